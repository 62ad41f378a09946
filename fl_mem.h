/* fl_mem.h - errors, log, dtypes, threads, devices, memory managers and buffers: the ground floor
   of fl

   Everything in fl stands on this header. It knows no tensors: it hands out reference-counted
   buffers of bytes, runs loops on one pool of threads, and keeps the error of each thread.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_mem.h"
    #include <stdio.h>
    static void square(void *arg, int64_t begin, int64_t end) {
        float *x = arg;
        for (int64_t i = begin; i < end; i++) x[i] *= x[i];
    }
    int main(void) {
        fl_buffer *b = fl_buffer_new(1000 * sizeof(float), NULL);
        float *x = fl_buffer_map(b);
        for (int i = 0; i < 1000; i++) x[i] = (float)i;
        fl_parallel(1000, 256, square, x);
        printf("%g\n", x[999]); // 998001
        fl_buffer_unmap(b);
        fl_buffer_drop(b);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>build  >>errors  >>log  >>dtypes  >>threads  >>heap  >>records  >>devices  >>buffers
     >>managers  >>trace
     >>implementation
   Two managers that stand on others, one that fails and one that plans offsets, have a room of their
   own: fl/mem/managers.h.

   >>build: macros, all optional
     FL_IMPLEMENTATION  define it in one C file before the include: compiles the family's
                        implementation there
     FL_STATIC          everything static, for one-file programs (implies FL_IMPLEMENTATION)
     FL_BUILD_SHARED    export the public functions from a shared library; they are hidden otherwise
     FL_SHARED          in programs that are linked with one (pkg-config says so)
     FL_IMPL_ONLY, FL_IMPL_ONLY_MEM   compile this header's implementation alone (one object per
                                      header)

   Concepts
     Errors   A function that fails records one text for its thread and returns NULL or false,
              outputs untouched. While an error is pending NULL operands pass silently and the first
              text stays, so nested calls need one check. Failures of functions that return a value
              handle reach the handler of fl_on_error: the default one prints and stops. Functions
              about files, data and devices never stop.
     Threads  One pool per process. Work is cut by its size, never by the number of threads, so any
              number of threads computes the same bits.
     Memory   A buffer takes its bytes from the manager in use when it is made and returns them
              there. Its bytes are reached between fl_buffer_map and fl_buffer_unmap only, so a
              manager may move, page or recompute them. */
#if defined(__cplusplus) && (defined(FL_IMPLEMENTATION) || defined(FL_STATIC))
#error "fl: its implementation is C: define FL_IMPLEMENTATION in a C file, and only include fl here"
#undef FL_IMPLEMENTATION
#undef FL_STATIC
#endif
#ifndef FL_MEM_H
#define FL_MEM_H

#if !defined(__GNUC__)
#error "fl needs gcc or clang (atomic builtins, thread-local storage): compile with one of them"
#endif
#ifdef __FAST_MATH__
#error "fl needs IEEE arithmetic: drop -ffast-math (or -Ofast); the kernels set its safe part themselves"
#endif
#ifdef FL_STATIC
#ifndef FL_IMPLEMENTATION
#define FL_IMPLEMENTATION
#endif
#endif
#if (defined(FL_IMPLEMENTATION) || defined(FL_IMPL_ONLY)) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* works when this is the file's first include; checked at >>implementation */
#endif

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <initializer_list>
#endif

#if defined(FL_STATIC)
#define FL_API static __attribute__((unused))
#elif defined(FL_BUILD_SHARED) && defined(_WIN32)
#define FL_API __declspec(dllexport)
#elif defined(FL_BUILD_SHARED) || (defined(FL_SHARED) && !defined(_WIN32))
#define FL_API __attribute__((visibility("default")))
#elif defined(_WIN32)
#define FL_API
#else
#define FL_API __attribute__((visibility("hidden")))
#endif
/* Public variables: FL_DATA int x; declares one, FL_DATA_DEFINED int x; in the implementation defines it. */
#if defined(FL_STATIC)
#define FL_DATA static __attribute__((unused))
#define FL_DATA_DEFINED FL_DATA
#else
#define FL_DATA extern FL_API
#define FL_DATA_DEFINED
#endif
#if defined(FL_STATIC)
#define FL_PRIVATE static __attribute__((unused))
#elif defined(_WIN32)
#define FL_PRIVATE
#else
#define FL_PRIVATE __attribute__((visibility("hidden")))
#endif

#if defined(FL_STATIC)
#define FL__PRIVATE_VARIABLE static __attribute__((unused))
#elif defined(_WIN32)
#define FL__PRIVATE_VARIABLE extern
#else
#define FL__PRIVATE_VARIABLE extern __attribute__((visibility("hidden")))
#endif

/* Around the includes of rooms whose time goes by in the ops that they call: at O1 a program's unit takes a
   third less for them. The Makefile does the same for their objects. */
#if defined(FL_IMPLEMENTATION) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__) && !defined(__clang__)
#define FL__GLUE_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\")")
#define FL__GLUE_END _Pragma("GCC pop_options")
#else
#define FL__GLUE_BEGIN
#define FL__GLUE_END
#endif

/* Keeps rare paths out of the hot functions, and hot ones together. */
#define FL__COLD __attribute__((noinline, cold))
#define FL__HOT inline __attribute__((always_inline))

#if defined(_WIN32) && !defined(__clang__)
#define FL_PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define FL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#endif

/* The address of an array of T with these elements, for an argument `T const *`: it lives until the
   end of the full expression. FL_COUNT is the number of its elements, which it does not evaluate. */
#ifdef __cplusplus
#define FL_ARRAY(T, ...) (std::initializer_list<T>{__VA_ARGS__}.begin())
#else
#define FL_ARRAY(T, ...) ((T[]){__VA_ARGS__})
#endif
#define FL_COUNT(T, ...) ((int)(sizeof((T[]){__VA_ARGS__}) / sizeof(T)))

#ifdef __cplusplus
extern "C" {
#endif

/* The first field of every struct of options: arguments are named, f(x, .stride = 2), and one that
   is not lands here, where compilers warn about its missing braces (C) or refuse it (C++). The last
   field is `char _end`, which the macros append: so C++ finds all fields in their order. */
typedef struct fl_named {
    char _;
} fl_named;

#define FL_VERSION_MAJOR 0
#define FL_VERSION_MINOR 1
#define FL_VERSION_PATCH 0
/* "0.1.0" of the compiled implementation. */
FL_API const char *fl_version(void);

/* >>errors ------------------------------------------------------------------------------------- */

/* Records a failure of this thread: printf format, "function: what, actual shapes or file and
   offset". The first text stays until fl_error_clear. Returns false, so that a slot or reader can
   end with `return fl_fail(...)`. Never calls the handler. */
FL_API bool fl_fail(const char *format, ...) FL_PRINTF(1, 2);
/* Hands a recorded failure to the handler, once, unless this thread is quiet. Returns NULL.
   Functions that return a value handle end their failures with it; nothing may be half-done and no
   lock held, because a handler may longjmp. */
FL_API void *fl_raise(void);
/* Both at once, for a mistake of the caller: fl_bad ends functions that return a pointer (NULL),
   fl_refuse those that return a truth value (false). */
FL_API void *fl_bad(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
FL_API bool fl_refuse(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
/* The text of the pending error of this thread, NULL if there is none. Valid until
   fl_error_clear. */
FL_API const char *fl_error(void);
/* Ends the pending error. */
FL_API void fl_error_clear(void);
typedef void (*fl_error_fn)(const char *text, void *user);
/* Installs the process's error handler. The default (fn NULL) prints the text and aborts, so that a
   debugger stands on the faulty line. A handler that returns makes all errors return values; it may
   longjmp. It runs on the caller's thread, outside parallel regions, no lock held. */
FL_API void fl_on_error(fl_error_fn fn, void *user);
/* Adds delta (+1, then -1) to this thread's quiet count; above zero fl_raise leaves the handler
   alone. For functions about files and data, which never stop, and for worker threads, which carry
   their error to the consumer. */
FL_API void fl_quiet(int delta);
/* Who is at work on this thread, for the texts of its errors; scopes keep it (fl_tensor.h). */
typedef struct fl_error_place {
    const char *fn; /* the public function that was called: its name takes the place of an inner one's */
    const void *of; /* what runs it, a module, whose description comes first; NULL: nothing */
    void (*describe)(const void *of, char *buf, size_t size);
    const char
        *backward; /* name of the record whose backward runs: `of` is where that was made; NULL: none */
} fl_error_place;
/* The line of the program that made the innermost call on this thread, NULL and 0 if it was compiled without
   FL_TRACE_CALLS: then each call of build/calls.h pushes its line and pops it, as the one around it goes on
   behind its arguments. A pop gives back what it is given. */
typedef struct fl_site {
    const char *file; /* a literal */
    int line;
} fl_site;
FL_API fl_site fl_site_now(void);
FL_API void fl_site_push(const char *file, int line);
FL_API void *fl_site_pop(const void *result);
/* "fl_nn_linear 'head' at train.c:42": what describes the place of this thread, and the site; "" if nobody
   says so. Returns buf. */
FL_API char *fl_place_text(char *buf, size_t size);
#ifndef __cplusplus
FL__PRIVATE_VARIABLE _Thread_local fl_error_place fl__place;
#endif

/* >>log ---------------------------------------------------------------------------------------- */

typedef enum fl_level { FL_LOG_DEBUG, FL_LOG_INFO, FL_LOG_WARN, FL_LOG_ERROR, FL_LOG_OFF } fl_level;
typedef void (*fl_message_fn)(fl_level level, const char *text, void *user);
/* Writes one line through the sink when level is at or above the threshold. */
FL_API void fl_message(fl_level level, const char *format, ...) FL_PRINTF(2, 3);
/* Sets sink and threshold. fn NULL: stderr. Default threshold: FL_LOG_WARN. */
FL_API void fl_message_use(fl_message_fn fn, void *user, fl_level threshold);
/* Text that grows: what does not fit into buf is counted and left out, as by snprintf; with a file it goes
   there. fl_put_json puts the inside of a JSON string. */
typedef struct fl_lines {
    char *buf;
    size_t size;
    int64_t n;  /* characters so far, written or not */
    void *file; /* a FILE *; NULL: buf */
} fl_lines;
FL_API void fl_put(fl_lines *t, const char *format, ...) FL_PRINTF(2, 3);
FL_API void fl_vput(fl_lines *t, const char *format, va_list args) FL_PRINTF(2, 0);
FL_API void fl_put_json(fl_lines *t, const char *text);
/* A file of what `put` puts: one of that name is replaced once all is written, or stays. False after
   fl_fail, with the name of the public function, `who`. */
FL_API bool fl_put_file(const char *who, const char *path, void (*put)(fl_lines *t, void *user), void *user);

/* >>dtypes ------------------------------------------------------------------------------------- */

/* 0 means "the default" wherever a dtype is an option. */
typedef enum fl_dtype {
    FL_DTYPE_NONE,
    FL_B8,  /* truth value, one byte, 0 or 1 */
    FL_U8,
    FL_I8,
    FL_I16,
    FL_I32,
    FL_I64, /* the default integer */
    FL_U16,
    FL_U32,
    FL_U64, /* storage, casts, comparisons, and of arithmetic what is exact modulo 2^64: add sub mul neg,
               maximum minimum, bitwise_*, shift_left */
    FL_F16,  /* IEEE binary16 */
    FL_BF16, /* the upper half of an f32 */
    FL_F32,  /* the default float */
    FL_F64,
    FL_DTYPE_COUNT
} fl_dtype;
/* The table is open: a dtype of yours packs `block` numbers into each element of `size` bytes. A
   tensor of it counts such blocks, along its last axis: it is stored, viewed, copied, cast from and
   to floats, and taken by fl_matmul; other ops ask for a cast. n: blocks. */
typedef struct fl_dtype_info {
    const char *name; /* a literal */
    size_t size;
    int block;
    void (*unpack)(const void *blocks, float *numbers, int64_t n);
    void (*pack)(const float *numbers, void *blocks, int64_t n);
} fl_dtype_info;
/* The dtype of that name, new or known; FL_DTYPE_NONE with an error after 16. Thread-safe. */
FL_API fl_dtype fl_dtype_register(const fl_dtype_info *info);
/* Its entry; NULL (no error) unless it was registered. */
FL_API const fl_dtype_info *fl_dtype_registered(fl_dtype d);
/* Bytes of one element; 0 for an unknown dtype. */
FL_API size_t fl_dtype_size(fl_dtype d);
/* "f32", "i64", ...; "?" for an unknown dtype. */
FL_API const char *fl_dtype_name(fl_dtype d);
/* The dtype of that name, FL_DTYPE_NONE if there is none (no error). */
FL_API fl_dtype fl_dtype_named(const char *name);
FL_API bool fl_dtype_is_float(fl_dtype d);
/* The dtype that arithmetic on d is done in: f32 for f16, bf16 and registered ones, i64 for
   integers, else d. */
FL_API fl_dtype fl_dtype_wide(fl_dtype d);

/* >>threads ------------------------------------------------------------------------------------ */

typedef void (*fl_task)(void *arg, int64_t begin, int64_t end);
/* Calls task(arg, begin, end) over [0, n) in chunks of exactly `grain` (the last may be shorter),
   in any order and on any thread; begin is always a multiple of grain. Serial when called inside a
   parallel body, when another thread holds the pool, when one chunk suffices, or with one thread.
   Returns when all chunks are done. */
FL_API void fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg);
/* True inside a task of fl_parallel: ops refuse to run there. */
FL_API bool fl_in_parallel(void);
/* Threads that fl_parallel uses, the caller included. Default: the processors this process may run
   on, or FL_THREADS from the environment. Setting joins the old workers; n < 1 restores the
   default. */
FL_API int fl_threads(void);
FL_API bool fl_set_threads(int n);

/* >>heap --------------------------------------------------------------------------------------- */

/* All heap use of the library besides buffers. p NULL allocates, bytes 0 frees; returns NULL when
   it cannot. */
typedef void *(*fl_heap_fn)(void *user, void *p, size_t bytes);
/* Replaces the heap (fault injection, accounting). NULL restores realloc/free. Blocks made before
   stay valid only if the new function can free them: wrap, do not replace, the C heap once fl has
   been used. Host blocks below 1 MiB come from here too. The function may be called with a lock of
   fl held: it must not call fl. */
FL_API void fl_heap_use(fl_heap_fn fn, void *user);
/* zeroed; records "out of memory" on failure */
FL_API void *fl_heap_alloc(size_t bytes);
/* p stays valid on failure */
FL_API void *fl_heap_realloc(void *p, size_t bytes);
FL_API void fl_heap_free(void *p);
/* *array doubles until it holds need elements */
FL_API bool fl_heap_grow(void *array, int64_t *cap, int64_t need, size_t size);
/* the same, which records no error */
FL_PRIVATE bool fl__grow_raw(void *array, int64_t *cap, int64_t need, size_t size);
/* a * b without overflow; false (no error recorded) if it does not fit. */
FL_PRIVATE bool fl__mul_size(size_t a, size_t b, size_t *out);

/* >>records ------------------------------------------------------------------------------------ */

/* Between the headers of fl; not for users. Small records come from free lists that each thread
   keeps for itself, so that one is taken and put back without a lock or an atomic
   read-modify-write. The lists are bounded: the surplus goes to shared lists, in batches, and
   everything does when the thread ends. Kinds 0 to 15 are sizes, of 64 to 1024 bytes. */
enum {
    FL__RECORD_SIZES = 16,
    FL__RECORD_TENSOR = FL__RECORD_SIZES,
    FL__RECORD_BUFFER,
    FL__RECORD_KINDS,
    FL__RECORDS_MOST = 1024 /* in each list of a thread */
};
typedef struct fl__record {
    struct fl__record *next;
} fl__record;
typedef struct fl__records {
    struct {
        fl__record *head;
        int64_t n; /* written by its thread, read by all */
    } list[FL__RECORD_KINDS];
    int64_t most; /* FL__RECORDS_MOST; 0 before the thread has lists of its own */
} fl__records;
/* For empty and for full lists. NULL after fl_fail. */
FL_PRIVATE void *fl__record_refill(int kind, size_t size);
FL_PRIVATE void fl__record_overflow(int kind, void *record);
/* Records of that kind in use, in all threads. */
FL_PRIVATE int64_t fl__records_live(int kind);
/* Calls fn when this thread ends, or the process if it is the first, before its records go. Another
   fn replaces it. False when the heap is out. */
FL_PRIVATE bool fl__at_thread_end(void (*fn)(void));
#ifndef __cplusplus
FL__PRIVATE_VARIABLE _Thread_local fl__records *fl__self; /* never NULL */
/* A record of `size` bytes, not cleared: always the same size for one kind. */
static FL__HOT void *fl__record_get(int kind, size_t size) {
    fl__records *t = fl__self;
    fl__record *r = t->list[kind].head;
    if (__builtin_expect(!r, 0)) return fl__record_refill(kind, size);
    t->list[kind].head = r->next;
    __atomic_store_n(&t->list[kind].n, t->list[kind].n - 1, __ATOMIC_RELAXED);
    return r;
}
static FL__HOT void fl__record_put(int kind, void *record) {
    fl__records *t = fl__self;
    fl__record *r = record;
    if (__builtin_expect(t->list[kind].n >= t->most, 0)) {
        fl__record_overflow(kind, record);
        return;
    }
    r->next = t->list[kind].head;
    t->list[kind].head = r;
    __atomic_store_n(&t->list[kind].n, t->list[kind].n + 1, __ATOMIC_RELAXED);
}
#endif

/* >>devices ------------------------------------------------------------------------------------ */

typedef struct fl_mem_manager fl_mem_manager;
typedef struct fl_device fl_device;
struct fl_device {
    const char *name;
    void *(*get)(const fl_device *self, size_t bytes, size_t align); /* NULL when it has no more */
    void (*put)(const fl_device *self, void *ptr, size_t bytes);
    /* Between its memory and the host's, or within it. */
    bool (*copy)(const fl_device *self, void *dst, const void *src, size_t bytes);
    size_t (*limit)(const fl_device *self); /* bytes it can have in all, 0 if unknown */
    /* What is put into `stream` from now on waits for all that is in `before` now. NULL: no work outlasts
       the call that starts it. */
    bool (*wait)(const fl_device *self, void *stream, void *before);
    /* Hands out its memory wherever the manager in use is for the host's alone, as the caching one is;
       NULL: each request goes to get and put. Its figures are fl_mem_stats_of(manager). */
    fl_mem_manager *manager;
    bool host; /* the processor reads and writes its bytes */
};
/* Plain memory: large blocks come page-aligned, on huge pages where the system has them, faulted in
   when taken. */
FL_API const fl_device *fl_device_host(void);

/* >>buffers ------------------------------------------------------------------------------------ */

#define FL_ALIGN 64 /* every buffer starts on this boundary and has as many readable bytes behind its end */

typedef struct fl_buffer fl_buffer;
typedef enum fl_buffer_state { FL_RESIDENT, FL_EVICTED, FL_ABSENT } fl_buffer_state;

struct fl_buffer {
    void *ptr;                        /* the bytes; NULL unless resident */
    size_t bytes;                     /* as asked for */
    fl_mem_manager *manager;          /* gave the bytes, takes them back; may hand the buffer on */
    const fl_device *device;          /* has the bytes; never NULL */
    void *stream;                     /* of the last use (fl_buffer_use); NULL on host */
    uint32_t version;                 /* counts in-place writes; autograd compares it */
    bool pageable;                    /* its manager may take ptr away: pins are counted */
    bool tight;                       /* the bytes are somebody's who has no readable ones behind their end */
    fl_buffer_state state;
    bool (*restore)(fl_buffer *self); /* makes it resident: sets ptr; false after fl_fail */
    void *tag;                        /* the manager's own word */
    uint64_t last_use;                /* tick of the last map; pageable buffers only */
    /* private */
    uint64_t frozen_;                 /* the version that was promised to stay, plus 1; 0: none */
    struct fl__made *made_;           /* what was made of that */
    int refs_, pins_;                 /* pins_: mappings, -1: away, -2: being restored */
    int64_t slot_;                    /* the arena's number of the request */
    fl_buffer *next_;
};

/* What a manager is told about a request. */
typedef struct fl_mem_info {
    const fl_device *device; /* NULL: host */
    void *stream;
    const char *op;          /* the op that asks, NULL if none */
    int64_t step;            /* fl_mem_step's count */
    int ndim;
    const int64_t *shape;
    int lifetime;            /* hint: 0 unknown, until 1 the op (scratch), 2 the step ends, 3 for ever */
} fl_mem_info;

/* A buffer of `bytes` with one reference; its bytes are not cleared. info may be NULL. NULL after
   fl_fail when memory is out even after every manager trimmed its caches. Does not raise. */
FL_API fl_buffer *fl_buffer_new(size_t bytes, const fl_mem_info *info);
/* The same from that manager. */
FL_API fl_buffer *fl_buffer_from(fl_mem_manager *m, size_t bytes, const fl_mem_info *info);
/* A buffer whose bytes do not exist yet: restore(b) makes them on first map (from b->tag). The
   bytes it sets must come from the manager in use: restore calls fl_buffer_fill(b), then writes
   b->ptr. The tag is the caller's until then; a paging manager may take it over in fill, so read it
   first if such managers are about. */
FL_API fl_buffer *fl_buffer_absent(size_t bytes, bool (*restore)(fl_buffer *), void *tag);
/* Gives a buffer that is not resident its bytes from its manager. */
FL_API bool fl_buffer_fill(fl_buffer *b);
FL_API fl_buffer *fl_buffer_keep(fl_buffer *b);
FL_API void fl_buffer_drop(fl_buffer *b); /* NULL is fine */
/* a and b, which nobody has mapped, have each other's bytes from now on: a copy of large ones both ways that
   costs nothing. False, without an error, where only a copy does it: sizes differ, not both are large ones
   of the caching manager on the host, or one has several references, of which one may be lent out
   (fl_to_dlpack). Counts as a write into both. */
FL_API bool fl_buffer_exchange(fl_buffer *a, fl_buffer *b);
/* A promise that the bytes stay as they are, for pointers into them too: backends may keep what they make of
   them, as packed weights, until b is freed or `on` is false, when nobody may be using b. A write that counts
   as one (version) ends it. */
FL_API bool fl_buffer_freeze(fl_buffer *b, bool on);
FL_API bool fl_buffer_is_frozen(const fl_buffer *b);
/* For backends, in any thread: what was made of a frozen b under that key, and stays b's, or NULL;  hands
   `made` over to b, whether that succeeds or not. */
FL_API fl_buffer *fl_buffer_made(const fl_buffer *b, const void *key, size_t size);
FL_API bool fl_buffer_made_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made);
/* The bytes, resident and pinned until the matching unmap; NULL after fl_fail if they cannot be
   brought back. */
FL_API void *fl_buffer_map(fl_buffer *b);
FL_API void fl_buffer_unmap(fl_buffer *b);
/* For backends: work in `stream` is about to use b. It waits for the last use, if that was in another
   stream, and becomes the last one; a manager that takes b back gives it out again behind that. False
   after the device's fl_fail. One thread at a time uses a buffer. */
FL_API bool fl_buffer_use(fl_buffer *b, void *stream);
/* For managers: takes a resident, unmapped, pageable buffer out of reach (then save b->ptr, free
   it, set it NULL and state FL_EVICTED). False if it is mapped or away. Hold the manager's lock
   from claim until the state is FL_EVICTED and take it in restore and put: another thread may map
   or drop the buffer meanwhile, and must wait there. restore finds b->ptr already set when the
   manager changed its mind. */
FL_API bool fl_buffer_claim(fl_buffer *b);
/* For managers, after claim or in restore: b->ptr is valid again. */
FL_API void fl_buffer_resident(fl_buffer *b);

/* >>managers ----------------------------------------------------------------------------------- */

typedef struct fl_mem_stats {
    /* Bytes handed out, now and at most; blocks below 64 KiB are counted to within the bound of the
       thread caches. */
    int64_t in_use, peak_in_use;
    int64_t reserved, peak_reserved; /* bytes taken from the device */
    int64_t gets, puts, reuses;      /* requests, returns, requests served without the device */
    int64_t device_gets;             /* trips to the device */
    /* Of the cached memory: fragmentation = 1 - largest_free / (reserved - in_use). */
    int64_t largest_free, free_blocks;
} fl_mem_stats;

/* A memory manager: about 40 lines for one of your own. All functions are called from any thread.
   get may leave the bytes for later: sets restore and the state instead of ptr, and claims the
   buffer if it declares it pageable. */
struct fl_mem_manager {
    const char *name;
    /* Sets b->ptr to b->bytes bytes, aligned to FL_ALIGN with FL_ALIGN spare; false: none left. */
    bool (*get)(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info);
    void (*put)(fl_mem_manager *self, fl_buffer *b); /* takes b->ptr back; b may be not resident */
    size_t (*trim)(fl_mem_manager *self); /* returns cached bytes to the device; NULL: none */
    void (*stats)(fl_mem_manager *self, fl_mem_stats *out); /* NULL: zeros */
    void (*reset_peak)(fl_mem_manager *self); /* peaks become what is; NULL: nothing to do */
    void (*close)(fl_mem_manager *self); /* frees the manager; NULL: nothing to do */
    void *user;
};

/* Makes m the manager of all buffers made from now on and returns the one before. NULL: the caching
   one. A buffer remembers its own manager, so swapping is safe at any time; a manager must outlive
   its buffers. */
FL_API fl_mem_manager *fl_mem_use(fl_mem_manager *m);
FL_API fl_mem_manager *fl_mem_current(void);
/* Straight to the device, nothing kept. */
FL_API fl_mem_manager *fl_mem_native(void);
/* The default: size classes with thread caches for small blocks; large blocks best-fit with
   splitting and merging, in slabs that stay. FL_MEM_SPLIT_LIMIT bytes (environment): blocks above
   it are never split. */
FL_API fl_mem_manager *fl_mem_caching(void);
/* Closes a manager (the shared ones stay). One that is in use is replaced by the default. */
FL_API void fl_mem_close(fl_mem_manager *m);
FL_API fl_mem_stats fl_mem_stats_of(fl_mem_manager *m); /* NULL: current */
FL_API void fl_mem_stats_reset_peak(fl_mem_manager *m);
/* Several lines of text about m's peak, reuse and fragmentation, through fl_message at level. */
FL_API void fl_mem_report(fl_mem_manager *m, fl_level level);
/* Returns all cached memory of the current manager and of the calling thread to the device; bytes
   returned. */
FL_API size_t fl_mem_trim(void);
/* Marks the start of the next training step in infos and traces; returns its number. */
FL_API int64_t fl_mem_step(void);
/* That number now. */
FL_API int64_t fl_mem_step_now(void);
/* Buffers alive now, whatever their manager: 0 at the end of a clean program. */
FL_API int64_t fl_mem_live(void);

/* >>trace -------------------------------------------------------------------------------------- */

/* Records every get, put, map and restore (pointer, bytes, op, step, time), up to max events (0: a
   million). */
FL_API bool fl_mem_trace_begin(int64_t max_events);
/* Writes the events as JSON for timeline viewers ("traceEvents") and ends the trace. */
FL_API bool fl_mem_trace_save(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_H: stop here if you only want the API */

/* >>implementation -------------------------------------------------------------------------------
   */

#if defined(FL_IMPL_ONLY_MEM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_MEM_IMPL
#define FL_MEM_IMPL
#if defined(_WIN32) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1
#endif

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#endif

#if !defined(_WIN32) && (!defined(MAP_ANONYMOUS) || !defined(CLOCK_MONOTONIC))
/* System headers came first under a strict -std=, which hid mmap and clocks. */
#error "fl: include fl first in the file that defines FL_IMPLEMENTATION, or add -D_GNU_SOURCE"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define FL__ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FL__ASAN
#endif
#endif
#ifdef FL__ASAN
#include <sanitizer/asan_interface.h>
#endif

#define FL__TEXT 1024

/* The one lock of everything shared but the pool: settings, thread records, caches, trace. */
static pthread_mutex_t fl__lock = PTHREAD_MUTEX_INITIALIZER;

FL_API const char *fl_version(void) {
    return "0.1.0";
}

static int64_t fl__load(const int64_t *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

/* Adds to a counter that only this thread writes and others may read: no read-modify-write
   instruction. */
static void fl__bump(int64_t *p, int64_t delta) {
    __atomic_store_n(p, *p + delta, __ATOMIC_RELAXED);
}

static int64_t fl__nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- errors and log ---- */

typedef struct fl__error_record {
    bool pending, raised;
    int quiet;
    char text[FL__TEXT];
} fl__error_record;

static _Thread_local fl__error_record fl__failure;
static _Thread_local bool fl__inside_task;
static struct {
    fl_error_fn fn;
    void *user;
} fl__handler; /* under fl__lock */
static struct {
    fl_message_fn fn;
    void *user;
    int threshold;                      /* atomic */
} fl__sink = {NULL, NULL, FL_LOG_WARN}; /* under fl__lock */

FL_PRIVATE _Thread_local fl_error_place fl__place;

/* text without the name of an fl_ or fv_ function in front. */
static const char *fl__after_name(const char *text) {
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    const bool ours = text[0] == 'f' && (text[1] == 'l' || text[1] == 'v') && text[2] == '_';
    return ours && text[n] == ':' && text[n + 1] == ' ' ? text + n + 2 : text;
}

/* The lines of the calls within calls of this thread. A call that is left by longjmp leaves its own behind,
   under those that come later: so they go round. */
enum { FL__SITES = 32 };
static _Thread_local struct {
    fl_site site[FL__SITES];
    unsigned n;
} fl__calls;

FL_API fl_site fl_site_now(void) {
    return fl__calls.site[fl__calls.n % FL__SITES];
}
FL_API void fl_site_push(const char *file, int line) {
    fl__calls.site[++fl__calls.n % FL__SITES] = (fl_site){file, line};
}
FL_API void *fl_site_pop(const void *result) {
    fl__calls.n--;
    return (void *)(uintptr_t)result;
}

FL_API char *fl_place_text(char *buf, size_t size) {
    const fl_site site = fl_site_now();
    *buf = 0;
    if (fl__place.of) fl__place.describe(fl__place.of, buf, size);
    const size_t n = strlen(buf);
    if (site.file && !fl__place.backward) /* that of fl_backward says nothing */
        snprintf(buf + n, size - n, "%sat %s:%d", n ? " " : "", site.file, site.line);
    return buf;
}

/* "fl_sum: axis 3 ..." becomes "fl_nn_x 'path': fl_norm: axis 3 ...". __func__ gave the name: fv_conv_opt
   is called fl_conv. */
static void fl__place_failure(char *text) {
    char was[FL__TEXT], of[FL__TEXT / 4] = "", fn[100] = "", pass[100] = "";
    const fl_error_place *p = &fl__place;
    const char *what = was;
    strcpy(was, text);
    if (p->of) p->describe(p->of, of, sizeof of);
    if (*of && !strncmp(was, of, strlen(of))) return; /* it says so itself */
    if (p->backward && strncmp(was, "fl_backward: ", 13))
        snprintf(pass, sizeof pass, "backward of %.80s: ", p->backward);
    if (p->fn) {
        const size_t n = strlen(p->fn + 3), end = n > 4 && !strcmp(p->fn + n - 1, "_opt") ? 4 : 0;
        snprintf(fn, sizeof fn, "fl_%.*s: ", (int)(n - end), p->fn + 3);
        what = fl__after_name(was);
    }
    snprintf(text, FL__TEXT, "%s%s%s%s%.500s", of, *of ? ": " : "", pass, fn, what);
}

/* The first text stays. */
static void fl__record_failure(const char *format, va_list args) {
    fl__error_record *e = &fl__failure;
    if (e->pending) return;
    vsnprintf(e->text, sizeof e->text, format, args);
    if (fl__place.fn || fl__place.of) fl__place_failure(e->text);
    const fl_site site = fl_site_now();
    const size_t n = strlen(e->text);
    if (site.file) snprintf(e->text + n, sizeof e->text - n, " (%s:%d)", site.file, site.line);
    e->pending = true;
    e->raised = false;
}

FL_API bool fl_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return false;
}

FL_API void *fl_raise(void) {
    fl__error_record *e = &fl__failure;
    if (!e->pending || e->raised || e->quiet > 0 || fl__inside_task) return NULL;
    e->raised = true;
    pthread_mutex_lock(&fl__lock);
    fl_error_fn fn = fl__handler.fn;
    void *user = fl__handler.user;
    pthread_mutex_unlock(&fl__lock);
    if (fn) {
        fn(e->text, user);
        return NULL;
    }
    fprintf(stderr, "fl: %s\n", e->text);
    fflush(stderr);
    abort(); /* the default handler: the only place where the library stops a program */
}

FL_API void *fl_bad(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return fl_raise();
}

FL_API bool fl_refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return fl_raise();
}

FL_API const char *fl_error(void) {
    return fl__failure.pending ? fl__failure.text : NULL;
}

FL_API void fl_error_clear(void) {
    fl__failure.pending = false;
    fl__failure.raised = false;
}

FL_API void fl_on_error(fl_error_fn fn, void *user) {
    pthread_mutex_lock(&fl__lock);
    fl__handler.fn = fn;
    fl__handler.user = user;
    pthread_mutex_unlock(&fl__lock);
}

FL_API void fl_quiet(int delta) {
    fl__failure.quiet += delta;
}

FL_API void fl_message(fl_level level, const char *format, ...) {
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char text[FL__TEXT];
    if ((int)level < __atomic_load_n(&fl__sink.threshold, __ATOMIC_RELAXED) || level >= FL_LOG_OFF)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&fl__lock);
    fl_message_fn fn = fl__sink.fn;
    void *user = fl__sink.user;
    pthread_mutex_unlock(&fl__lock);
    if (fn)
        fn(level, text, user);
    else
        fprintf(stderr, "fl: %s: %s\n", names[level], text);
}

FL_API void fl_message_use(fl_message_fn fn, void *user, fl_level threshold) {
    pthread_mutex_lock(&fl__lock);
    fl__sink.fn = fn;
    fl__sink.user = user;
    __atomic_store_n(&fl__sink.threshold, (int)threshold, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
}

FL_API void fl_vput(fl_lines *t, const char *format, va_list args) {
    const size_t at = (size_t)t->n < t->size ? (size_t)t->n : t->size;
    const int n = t->file ? vfprintf((FILE *)t->file, format, args)
                          : vsnprintf(t->buf ? t->buf + at : NULL, t->buf ? t->size - at : 0, format, args);
    t->n += n > 0 ? n : 0;
}

FL_API void fl_put(fl_lines *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl_vput(t, format, args);
    va_end(args);
}

FL_API void fl_put_json(fl_lines *t, const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126) fl_put(t, "\\u%04x", c);
        else fl_put(t, "%s%c", c == '"' || c == '\\' ? "\\" : "", c);
    }
}

FL_API bool fl_put_file(const char *who, const char *path, void (*put)(fl_lines *t, void *user), void *user) {
    char temporary[1024];
    if (snprintf(temporary, sizeof temporary, "%s.part", path) >= (int)sizeof temporary)
        return fl_fail("%s: the path has more than %zu characters", who, sizeof temporary - 6);
    FILE *f = fopen(temporary, "w");
    if (!f) return fl_fail("%s: cannot open %s: %s", who, temporary, strerror(errno));
    put(&(fl_lines){.file = f}, user);
    const bool bad = ferror(f) != 0;
    if (!fclose(f) && !bad && !rename(temporary, path)) return true;
    fl_fail("%s: cannot write %s: %s", who, path, strerror(errno));
    remove(temporary);
    return false;
}

/* ---- dtypes ---- */

static const struct {
    const char *name;
    size_t size;
    fl_dtype wide;
} fl__dtypes[FL_DTYPE_COUNT] = {
    [FL_B8] = {"b8", 1, FL_B8},     [FL_U8] = {"u8", 1, FL_I64},     [FL_I8] = {"i8", 1, FL_I64},
    [FL_I16] = {"i16", 2, FL_I64},  [FL_I32] = {"i32", 4, FL_I64},   [FL_I64] = {"i64", 8, FL_I64},
    [FL_U16] = {"u16", 2, FL_I64},  [FL_U32] = {"u32", 4, FL_I64},   [FL_U64] = {"u64", 8, FL_I64},
    [FL_F16] = {"f16", 2, FL_F32},  [FL_BF16] = {"bf16", 2, FL_F32}, [FL_F32] = {"f32", 4, FL_F32},
    [FL_F64] = {"f64", 8, FL_F64},
};

enum { FL__OWN_DTYPES = 16 };
static fl_dtype_info fl__own_dtypes[FL__OWN_DTYPES]; /* dtype FL_DTYPE_COUNT and up */
static int fl__n_own_dtypes;                         /* entries before it never change */

FL_API const fl_dtype_info *fl_dtype_registered(fl_dtype d) {
    int i = (int)d - FL_DTYPE_COUNT;
    return i >= 0 && i < __atomic_load_n(&fl__n_own_dtypes, __ATOMIC_ACQUIRE) ? &fl__own_dtypes[i] : NULL;
}

FL_API fl_dtype fl_dtype_register(const fl_dtype_info *info) {
    if (!info || !info->name || info->size < 1 || info->block < 1 || !info->unpack || !info->pack) {
        fl_fail("fl_dtype_register: a name, a size, a block and both conversions are needed");
        return FL_DTYPE_NONE;
    }
    pthread_mutex_lock(&fl__lock);
    fl_dtype d = fl_dtype_named(info->name);
    bool full = fl__n_own_dtypes == FL__OWN_DTYPES;
    if (d == FL_DTYPE_NONE && !full) {
        fl__own_dtypes[fl__n_own_dtypes] = *info;
        d = (fl_dtype)(FL_DTYPE_COUNT + fl__n_own_dtypes);
        __atomic_store_n(&fl__n_own_dtypes, fl__n_own_dtypes + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&fl__lock);
    if (d == FL_DTYPE_NONE) fl_fail("fl_dtype_register: '%s' is one too many", info->name);
    return d;
}

FL_API size_t fl_dtype_size(fl_dtype d) {
    if ((unsigned)d < FL_DTYPE_COUNT) return fl__dtypes[d].size;
    const fl_dtype_info *own = fl_dtype_registered(d);
    return own ? own->size : 0;
}

FL_API const char *fl_dtype_name(fl_dtype d) {
    if (d > FL_DTYPE_NONE && d < FL_DTYPE_COUNT) return fl__dtypes[d].name;
    const fl_dtype_info *own = fl_dtype_registered(d);
    return own ? own->name : "?";
}

FL_API fl_dtype fl_dtype_named(const char *name) {
    for (int d = FL_DTYPE_NONE + 1; name && d < FL_DTYPE_COUNT; d++)
        if (!strcmp(name, fl__dtypes[d].name)) return (fl_dtype)d;
    for (int i = 0; name && i < __atomic_load_n(&fl__n_own_dtypes, __ATOMIC_ACQUIRE); i++)
        if (!strcmp(name, fl__own_dtypes[i].name)) return (fl_dtype)(FL_DTYPE_COUNT + i);
    return FL_DTYPE_NONE;
}

FL_API bool fl_dtype_is_float(fl_dtype d) {
    return d >= FL_F16 && d <= FL_F64;
}

FL_API fl_dtype fl_dtype_wide(fl_dtype d) {
    if ((unsigned)d < FL_DTYPE_COUNT) return fl__dtypes[d].wide;
    return fl_dtype_registered(d) ? FL_F32 : FL_DTYPE_NONE;
}

/* ---- heap ---- */

static struct {
    fl_heap_fn fn; /* atomic; the user word is stored first */
    void *user;
} fl__heap;

FL_API void fl_heap_use(fl_heap_fn fn, void *user) {
    __atomic_store_n(&fl__heap.user, user, __ATOMIC_RELAXED);
    __atomic_store_n(&fl__heap.fn, fn, __ATOMIC_RELEASE);
}

/* The heap without an error record: p NULL allocates, bytes 0 frees. */
static void *fl__heap_raw(void *p, size_t bytes) {
    fl_heap_fn fn = __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE);
    if (fn) return fn(__atomic_load_n(&fl__heap.user, __ATOMIC_RELAXED), p, bytes);
    if (bytes) return realloc(p, bytes);
    free(p);
    return NULL;
}

FL_API void *fl_heap_alloc(size_t bytes) {
    bool hooked = __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE) != NULL;
    size_t n = bytes ? bytes : 1;
    void *p = hooked ? fl__heap_raw(NULL, n) : calloc(1, n);
    if (!p)
        fl_fail("out of memory: asked the heap for %zu bytes", bytes);
    else if (hooked)
        memset(p, 0, n);
    return p;
}

FL_API void *fl_heap_realloc(void *p, size_t bytes) {
    void *q = fl__heap_raw(p, bytes ? bytes : 1);
    if (!q) fl_fail("out of memory: asked the heap for %zu bytes", bytes);
    return q;
}

FL_API void fl_heap_free(void *p) {
    if (p) fl__heap_raw(p, 0);
}

FL_PRIVATE bool fl__mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

FL_PRIVATE bool fl__grow_raw(void *array, int64_t *cap, int64_t need, size_t size) {
    size_t bytes;
    void *p;
    if (need <= *cap) return true;
    int64_t n = *cap < 8 ? 8 : *cap;
    while (n < need) n = n > INT64_MAX / 2 ? need : 2 * n;
    if (!fl__mul_size((size_t)n, size, &bytes)) return false;
    memcpy(&p, array, sizeof p); /* array is a T **: its pointer travels as bytes */
    p = fl__heap_raw(p, bytes);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = n;
    return true;
}

FL_API bool fl_heap_grow(void *array, int64_t *cap, int64_t need, size_t size) {
    if (fl__grow_raw(array, cap, need, size)) return true;
    return fl_fail("out of memory: asked the heap for %lld elements of %zu bytes", (long long)need,
                   size);
}

/* ---- processors ---- */

#define FL__THREADS_MAX 256

#ifdef __linux__
/* The number in the first line of a small system file, -1 if it cannot be had. *second gets the
   next one, if any. */
static int64_t fl__system_number(const char *path, long long *second) {
    long long first = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fscanf(f, "%lld %lld", &first, second) < 1) first = -1;
    fclose(f);
    return first;
}
#endif

/* Processors this process may run on: its affinity mask, cut by the quota of its container. */
static int fl__processors(void) {
    int n = 0;
#if defined(__linux__)
    unsigned long mask[1024 / CHAR_BIT] = {0};
    long long period = 0;
    long got = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (size_t i = 0; got > 0 && i < sizeof mask / sizeof mask[0]; i++)
        n += __builtin_popcountl(mask[i]);
    int64_t quota = fl__system_number("/sys/fs/cgroup/cpu.max", &period);
    if (quota > 0 && period > 0 && (quota + period - 1) / period < n)
        n = (int)((quota + period - 1) / period);
#elif defined(_WIN32)
    n = pthread_num_processors_np();
#else
    n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return n < 1 ? 1 : n > FL__THREADS_MAX ? FL__THREADS_MAX : n;
}

static int fl__threads_default(void) {
    const char *text = getenv("FL_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n < 1 ? fl__processors() : n > FL__THREADS_MAX ? FL__THREADS_MAX : (int)n;
}

/* ---- thread pool ----

   One caller at a time owns the pool (`busy`); it fills in the loop and opens the gate: number of
   the loop << 16, plus a bit that says closed, plus the count of workers inside. A worker enters
   with a compare-and-swap that fails once the gate is closed, so a worker that wakes late misses
   the loop instead of delaying it, and the loop's fields are only written while the gate is closed
   and nobody is inside. Chunks are taken one by one from `next`. Who waits spins for a while and
   then parks; the flags `parked` and `waiting` are ordered against the gate by sequential
   consistency on both sides, so no wake-up is lost. Forking inside a task is not supported. */

#define FL__GATE_CLOSED (1u << 15)
#define FL__GATE_INSIDE (FL__GATE_CLOSED - 1)
#define FL__SPIN_NS 30000

static struct {
    _Alignas(64) uint64_t gate; /* atomic */
    _Alignas(64) int64_t next;  /* atomic: the first chunk that nobody took */
    _Alignas(64) int busy;      /* atomic: a caller owns the pool */
    int n_threads;              /* atomic; 0: not decided yet */
    int parked, waiting;        /* atomic: workers asleep; the caller sleeps */
    bool stop;                  /* atomic: workers leave */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    fl_task task; /* the loop */
    void *arg;
    int64_t n, grain, chunks;
    int started;  /* the rest belongs to the owner: workers running, */
    int away;     /* 1 + the processor that they keep off, 0: none */
    bool refused; /* the system gives no more threads, */
    int64_t spin; /* how long to spin: not at all with more threads than processors */
    bool failed;  /* a task failed on a worker (under lock) */
    char text[FL__TEXT];
    pthread_t workers[FL__THREADS_MAX];
} fl__pool = {
    .gate = FL__GATE_CLOSED,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};

static void fl__pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

FL_API int fl_threads(void) {
    int n = __atomic_load_n(&fl__pool.n_threads, __ATOMIC_ACQUIRE);
    if (n) return n;
    int fresh = fl__threads_default();
    if (!__atomic_compare_exchange_n(&fl__pool.n_threads, &n, fresh, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return n;
    return fresh;
}

FL_API bool fl_in_parallel(void) {
    return fl__inside_task;
}

static void fl__serial(int64_t n, int64_t grain, fl_task task, void *arg) {
    bool before = fl__inside_task;
    fl__inside_task = true;
    for (int64_t i = 0; i < n; i += grain) {
        if (n - i <= grain) {
            task(arg, i, n);
            break;
        }
        task(arg, i, i + grain);
    }
    fl__inside_task = before;
}

static void fl__pool_chunks(void) {
    int64_t c;
    fl__inside_task = true;
    while ((c = __atomic_fetch_add(&fl__pool.next, 1, __ATOMIC_RELAXED)) < fl__pool.chunks) {
        int64_t begin = c * fl__pool.grain;
        bool last = fl__pool.n - begin <= fl__pool.grain;
        fl__pool.task(fl__pool.arg, begin, last ? fl__pool.n : begin + fl__pool.grain);
    }
    fl__inside_task = false;
}

/* Carries the error of a task from this worker to the caller: the first one stays. */
static void fl__pool_hand_over_error(void) {
    if (!fl_error()) return;
    pthread_mutex_lock(&fl__pool.lock);
    if (!fl__pool.failed) memcpy(fl__pool.text, fl_error(), FL__TEXT);
    fl__pool.failed = true;
    pthread_mutex_unlock(&fl__pool.lock);
    fl_error_clear();
}

/* Enters the open loop unless it is the one this worker has seen. */
static bool fl__pool_enter(uint64_t *seen) {
    uint64_t g = __atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST);
    while (!(g & FL__GATE_CLOSED) && g >> 16 != *seen) {
        if (__atomic_compare_exchange_n(&fl__pool.gate, &g, g + 1, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            *seen = g >> 16;
            return true;
        }
    }
    return false;
}

static void fl__pool_leave(void) {
    uint64_t g = __atomic_sub_fetch(&fl__pool.gate, 1, __ATOMIC_SEQ_CST);
    if (!(g & FL__GATE_CLOSED) || g & FL__GATE_INSIDE) return;
    if (__atomic_load_n(&fl__pool.waiting, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&fl__pool.lock);
        pthread_cond_signal(&fl__pool.done);
        pthread_mutex_unlock(&fl__pool.lock);
    }
}

/* Waits for a loop and enters it. False: the pool stops. */
static bool fl__pool_await(uint64_t *seen) {
    int64_t end = fl__pool.spin ? fl__nanoseconds() + fl__pool.spin : 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (fl__pool_enter(seen)) return true;
            fl__pause();
        }
    } while (end && fl__nanoseconds() < end);
    bool entered, stop = false;
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_add_fetch(&fl__pool.parked, 1, __ATOMIC_SEQ_CST);
    while (!(entered = fl__pool_enter(seen)) &&
           !(stop = __atomic_load_n(&fl__pool.stop, __ATOMIC_RELAXED)))
        pthread_cond_wait(&fl__pool.work, &fl__pool.lock);
    __atomic_sub_fetch(&fl__pool.parked, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&fl__pool.lock);
    return entered;
}

static void *fl__pool_worker(void *unused) {
    uint64_t seen = 0;
    while (fl__pool_await(&seen)) {
        fl__pool_chunks();
        fl__pool_hand_over_error();
        fl__pool_leave();
    }
    return unused;
}

/* Waits until the last worker has left the closed loop. */
static void fl__pool_drain(void) {
    int64_t end = fl__pool.spin ? fl__nanoseconds() + fl__pool.spin : 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (!(__atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)) return;
            fl__pause();
        }
    } while (end && fl__nanoseconds() < end);
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_store_n(&fl__pool.waiting, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)
        pthread_cond_wait(&fl__pool.done, &fl__pool.lock);
    __atomic_store_n(&fl__pool.waiting, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&fl__pool.lock);
}

/* Starts workers up to `want`, with all signals blocked and the stack that kernels may count on. */
static void fl__pool_start(int want, int threads) {
    pthread_attr_t attr;
    if (fl__pool.started >= want || fl__pool.refused || pthread_attr_init(&attr)) return;
    if (!fl__pool.started) fl__pool.spin = threads <= fl__processors() ? FL__SPIN_NS : 0;
    pthread_attr_setstacksize(&attr, (size_t)2 << 20);
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    while (fl__pool.started < want && !fl__pool.refused) {
        pthread_t *slot = &fl__pool.workers[fl__pool.started];
        if (pthread_create(slot, &attr, fl__pool_worker, NULL))
            fl__pool.refused = true;
        else
            fl__pool.started++;
        fl__pool.away = 0;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    pthread_attr_destroy(&attr);
}

static void fl__pool_stop(void) {
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_store_n(&fl__pool.stop, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&fl__pool.work);
    pthread_mutex_unlock(&fl__pool.lock);
    while (fl__pool.started > 0) pthread_join(fl__pool.workers[--fl__pool.started], NULL);
    fl__pool.stop = false;
    fl__pool.refused = false;
}

/* A sleeper tends to wake up on its waker's processor and to stay behind it for milliseconds while
   another one idles; so workers keep off the processor where the loop was started. */
static void fl__pool_spread(void) {
#if defined(__linux__)
    cpu_set_t others;
    const int here = sched_getcpu();
    if (here < 0 || here + 1 == fl__pool.away) return;
    if (sched_getaffinity(0, sizeof others, &others)) return;
    if (CPU_COUNT(&others) <= fl__pool.started) return; /* more threads than processors */
    CPU_CLR((size_t)here, &others);
    for (int i = 0; i < fl__pool.started; i++)
        pthread_setaffinity_np(fl__pool.workers[i], sizeof others, &others);
    fl__pool.away = here + 1;
#endif
}

/* Wakes as many sleepers as the loop can use besides those that spin. */
static void fl__pool_wake(int helpers) {
    int n = __atomic_load_n(&fl__pool.parked, __ATOMIC_SEQ_CST);
    if (!n) return;
    fl__pool_spread();
    pthread_mutex_lock(&fl__pool.lock);
    if (n <= helpers)
        pthread_cond_broadcast(&fl__pool.work);
    else
        for (int i = 0; i < helpers; i++) pthread_cond_signal(&fl__pool.work);
    pthread_mutex_unlock(&fl__pool.lock);
}

/* One loop over the pool, which this thread owns. */
static void fl__pool_run(int64_t n, int64_t grain, fl_task task, void *arg, int threads) {
    int64_t chunks = n / grain + (n % grain != 0);
    int helpers = chunks < threads ? (int)chunks - 1 : threads - 1;
    fl__pool_start(helpers, threads);
    fl__pool.task = task;
    fl__pool.arg = arg;
    fl__pool.n = n;
    fl__pool.grain = grain;
    fl__pool.chunks = chunks;
    __atomic_store_n(&fl__pool.next, 0, __ATOMIC_RELAXED);
    uint64_t number = (__atomic_load_n(&fl__pool.gate, __ATOMIC_RELAXED) >> 16) + 1;
    __atomic_store_n(&fl__pool.gate, number << 16, __ATOMIC_SEQ_CST);
    fl__pool_wake(helpers);
    fl__pool_chunks();
    if (__atomic_or_fetch(&fl__pool.gate, FL__GATE_CLOSED, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)
        fl__pool_drain();
    if (fl__pool.failed) fl_fail("%s", fl__pool.text);
    fl__pool.failed = false;
}

static void fl__setup(void);

FL_API void fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg) {
    if (grain < 1) grain = 1;
    int threads = n > grain && !fl__inside_task ? fl_threads() : 1;
    if (threads == 1 || __atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) {
        fl__serial(n, grain, task, arg);
        return;
    }
    fl__setup();
    fl__pool_run(n, grain, task, arg, threads);
    __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
}

FL_API bool fl_set_threads(int n) {
    if (fl__inside_task) return fl_fail("fl_set_threads: called inside a parallel body");
    if (n > FL__THREADS_MAX)
        return fl_fail("fl_set_threads: %d threads, at most %d are possible", n, FL__THREADS_MAX);
    while (__atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    fl__pool_stop();
    __atomic_store_n(&fl__pool.n_threads, n < 1 ? fl__threads_default() : n, __ATOMIC_RELEASE);
    __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
    return true;
}

#ifndef _WIN32
/* After a fork the child has this thread only: the pool is as new, with the number of threads kept.
   */
static void fl__pool_forget(void) {
    fl__pool.gate |= FL__GATE_CLOSED;
    fl__pool.gate &= ~(uint64_t)FL__GATE_INSIDE;
    fl__pool.busy = fl__pool.parked = fl__pool.waiting = fl__pool.started = 0;
    fl__pool.stop = fl__pool.refused = fl__pool.failed = false;
    fl__pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    fl__pool.work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    fl__pool.done = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
#endif

/* ---- the host device ----

   Large blocks are mapped by themselves, on 2 MiB boundaries and huge pages, and faulted in at
   once: a first touch page by page runs at a tenth of the speed. Small ones come from the heap
   hook, so that fault tests reach them. */

#define FL__LARGE ((size_t)1 << 20)
#define FL__HUGE ((size_t)2 << 20)

/* Bytes of memory this process can hope for, 0 if unknown. */
static size_t fl__host_limit(const fl_device *self) {
    size_t limit = 0;
    (void)self;
#if defined(__linux__)
    long long unused;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t group = fl__system_number("/sys/fs/cgroup/memory.max", &unused);
    if (pages > 0 && page > 0) limit = (size_t)pages * (size_t)page;
    if (group > 0 && (size_t)group < limit) limit = (size_t)group;
#endif
    return limit;
}

#ifndef _WIN32
static size_t fl__pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static bool fl__fault_in(char *p, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish: kernels without huge pages refuse */
#endif
#ifdef __linux__
    const int populate_write = 23; /* MADV_POPULATE_WRITE, Linux 5.14 */
    if (madvise(p, bytes, populate_write) == 0) return true;
    if (errno == ENOMEM || errno == EFAULT) return false;
#endif
    for (size_t i = 0; i < bytes; i += 4096) ((volatile char *)p)[i] = 0;
    return true;
}

static void *fl__map_large(size_t bytes, size_t align) {
    size_t size = fl__pages(bytes), limit = fl__host_limit(NULL);
    if (align < FL__HUGE) align = FL__HUGE;
    if (limit && size > limit)
        return NULL; /* the kernel would promise it and kill us while we fault it in */
    char *raw =
        mmap(NULL, size + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t skip = (align - (uintptr_t)raw % align) % align;
    if (skip) munmap(raw, skip);
    munmap(raw + skip + size, align - skip);
    if (fl__fault_in(raw + skip, size)) return raw + skip;
    munmap(raw + skip, size);
    return NULL;
}
#endif

/* align is a power of two. The block's heap address stands just before it. */
static void *fl__host_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self;
    if (align < FL_ALIGN) align = FL_ALIGN;
#ifndef _WIN32
    if (bytes >= FL__LARGE) return fl__map_large(bytes, align);
#endif
    char *raw = fl__heap_raw(NULL, bytes + align + sizeof raw);
    if (!raw) return NULL;
    char *p = raw + sizeof raw;
    p += (align - (uintptr_t)p % align) % align;
    memcpy(p - sizeof raw, &raw, sizeof raw);
    return p;
}

static void fl__host_put(const fl_device *self, void *ptr, size_t bytes) {
    (void)self;
#ifndef _WIN32
    if (bytes >= FL__LARGE) {
        munmap(ptr, fl__pages(bytes));
        return;
    }
#endif
    char *raw;
    (void)bytes;
    memcpy(&raw, (char *)ptr - sizeof raw, sizeof raw);
    fl__heap_raw(raw, 0);
}

static bool fl__host_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    if (bytes) memmove(dst, src, bytes);
    return true;
}

static const fl_device fl__host = {.name = "host",
                                   .get = fl__host_get,
                                   .put = fl__host_put,
                                   .copy = fl__host_copy,
                                   .limit = fl__host_limit,
                                   .host = true};

FL_API const fl_device *fl_device_host(void) {
    return &fl__host;
}

/* ---- size classes ----

   Sizes are multiples of 64. The first eight classes are 64 apart, then come four per doubling: at
   most a fifth of a block is slack. Small blocks have exactly the size of their class; free large
   blocks are only sorted by it. */

#define FL__SMALL_MAX ((size_t)64 << 10)
#define FL__SMALL_CLASSES 36
#define FL__CLASSES 224

static int fl__class(size_t bytes) {
    size_t q = (bytes - 1) >> 6;
    if (q < 8) return (int)q;
    int e = 63 - __builtin_clzll((unsigned long long)q);
    return 8 + (e - 3) * 4 + (int)((q >> (e - 2)) & 3);
}

static size_t fl__class_size(int c) {
    if (c < 8) return ((size_t)c + 1) << 6;
    return (size_t)(5 + (c & 3)) << ((c - 8) / 4 + 1) << 6;
}

/* ---- threads and their records ----

   What a thread keeps for itself: free records, shelves of small buffers that are ready (a record
   with its block, as it was dropped), counters. It stands on the heap and is linked, so that
   counters can be summed and a forked child can outlive the threads it lost. */

#define FL__BIN_BLOCKS 256                  /* buffers on one shelf, */
#define FL__BIN_BYTES ((size_t)64 << 10)    /* and their bytes; but four blocks are always kept */
#define FL__REFILL 8                        /* buffers from one trip to the shared bins, */
#define FL__REFILL_BYTES ((size_t)16 << 10) /* and their bytes at most */

typedef struct fl__node {
    struct fl__node *next;
} fl__node;

typedef struct fl__bin {
    fl__node *head;
    int64_t count; /* blocks */
} fl__bin;

typedef struct fl__shelf {
    fl_buffer *head;
    int64_t count;
    int size; /* bytes of a block */
    int most; /* buffers a thread keeps */
} fl__shelf;

/* Counters are written by their thread and read by all. Few of them: every store counts on the hot
   path. */
typedef struct fl__thread {
    fl__records records; /* first: fl__self points there */
    int64_t taken[FL__RECORD_KINDS]; /* records that came in minus those given away: what is not free lives */
    int64_t gets; /* small blocks served */
    fl__shelf shelves[FL__SMALL_CLASSES];
    fl_mem_info info;  /* what managers are told when the caller tells nothing */
    void (*end)(void); /* see fl__at_thread_end */
    int id;            /* 1, 2, ...: for traces */
    struct fl__thread *next;
} fl__thread;

/* Of a thread that has no record yet: all is empty, and full. */
static fl__thread fl__nobody;
FL_PRIVATE _Thread_local fl__records *fl__self = &fl__nobody.records;
static struct {
    fl__thread *threads;
    int last_id;
    int64_t taken[FL__RECORD_KINDS], gets; /* of threads that are gone */
    fl__record *records[FL__RECORD_KINDS];
    pthread_key_t key;
    bool ready;
    pthread_once_t once;
} fl__shared = {.once = PTHREAD_ONCE_INIT}; /* under fl__lock */
static pthread_cond_t fl__restored = PTHREAD_COND_INITIALIZER;

static void fl__thread_end(void *thread);
static void fl__trim_thread(fl__thread *t);

#ifndef _WIN32
static void fl__fork_prepare(void) {
    pthread_mutex_lock(&fl__lock);
}

static void fl__fork_parent(void) {
    pthread_mutex_unlock(&fl__lock);
}

static void fl__fork_child(void) {
    fl__pool_forget();
    fl__restored = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&fl__lock);
}
#endif

static void fl__setup_once(void) {
    fl__shared.ready = pthread_key_create(&fl__shared.key, fl__thread_end) == 0;
#ifndef _WIN32
    pthread_atfork(fl__fork_prepare, fl__fork_parent, fl__fork_child);
#endif
}

static void fl__setup(void) {
    pthread_once(&fl__shared.once, fl__setup_once);
}

/* NULL when the heap is out; does not record it, for a drop must not fail. */
static FL__COLD fl__thread *fl__thread_start(void) {
    fl__setup();
    fl__thread *t = fl__heap_raw(NULL, sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->records.most = FL__RECORDS_MOST;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) {
        size_t size = fl__class_size(c), most = FL__BIN_BYTES / size;
        t->shelves[c].size = (int)size;
        t->shelves[c].most = most > FL__BIN_BLOCKS ? FL__BIN_BLOCKS : most < 4 ? 4 : (int)most;
    }
    if (fl__shared.ready) pthread_setspecific(fl__shared.key, t);
    pthread_mutex_lock(&fl__lock);
    t->id = ++fl__shared.last_id;
    t->next = fl__shared.threads;
    fl__shared.threads = t;
    pthread_mutex_unlock(&fl__lock);
    fl__self = &t->records;
    return t;
}

static inline fl__thread *fl__this_thread(void) {
    return (fl__thread *)(void *)fl__self;
}

static fl__thread *fl__thread_record(void) {
    return fl__this_thread() == &fl__nobody ? fl__thread_start() : fl__this_thread();
}

FL_PRIVATE bool fl__at_thread_end(void (*fn)(void)) {
    fl__thread *t = fl__thread_record();
    if (t) t->end = fn;
    return t != NULL;
}

static void fl__thread_call_end(fl__thread *t) {
    void (*end)(void) = t->end;
    t->end = NULL;
    if (end) end();
}

/* The end of a thread (or of the process): its caches go to the shared lists. Key destructors that
   run later and touch buffers start a new record, which ends the same way. */
static void fl__thread_end(void *thread) {
    fl__thread *t = thread, **link = &fl__shared.threads;
    fl__thread_call_end(t);
    pthread_mutex_lock(&fl__lock);
    fl__trim_thread(t);
    while (*link != t) link = &(*link)->next;
    *link = t->next;
    for (int k = 0; k < FL__RECORD_KINDS; k++) fl__shared.taken[k] += t->taken[k];
    fl__shared.gets += t->gets;
    pthread_mutex_unlock(&fl__lock);
    fl__self = &fl__nobody.records;
    fl_heap_free(t);
}

/* Under fl__lock. */
static void fl__record_share(int kind, void *record) {
    fl__record *r = record;
    r->next = fl__shared.records[kind];
    fl__shared.records[kind] = r;
}

/* Under fl__lock: a thread gives records away until it keeps so many. */
static void fl__records_share(fl__thread *t, int kind, int64_t keep) {
    while (t->records.list[kind].n > keep) {
        fl__record_share(kind, fl__record_get(kind, 0));
        fl__bump(&t->taken[kind], -1);
    }
}

/* Under fl__lock: one more record for a thread, a shared or a new one. */
static bool fl__record_take(fl__thread *t, int kind, size_t size) {
    fl__record *r = fl__shared.records[kind];
    if (r) fl__shared.records[kind] = r->next;
    else if (!(r = fl__heap_raw(NULL, size))) return false;
    fl__record_put(kind, r);
    fl__bump(&t->taken[kind], 1);
    return true;
}

FL_PRIVATE FL__COLD void *fl__record_refill(int kind, size_t size) {
    fl__thread *t = fl__thread_record();
    pthread_mutex_lock(&fl__lock);
    bool ok = t && fl__record_take(t, kind, size);
    while (ok && fl__shared.records[kind] && t->records.list[kind].n < FL__RECORDS_MOST / 4)
        fl__record_take(t, kind, size);
    pthread_mutex_unlock(&fl__lock);
    if (ok) return fl__record_get(kind, size);
    fl_fail("out of memory: asked the heap for a record of %zu bytes", size);
    return NULL;
}

FL_PRIVATE FL__COLD void fl__record_overflow(int kind, void *record) {
    fl__thread *t = fl__thread_record();
    pthread_mutex_lock(&fl__lock);
    if (t) {
        fl__records_share(t, kind, FL__RECORDS_MOST / 2);
        fl__record_put(kind, record);
    } else { /* no memory for lists of its own */
        fl__record_share(kind, record);
        fl__shared.taken[kind]--;
    }
    pthread_mutex_unlock(&fl__lock);
}

/* Under fl__lock: records in use, and buffers on shelves. */
static int64_t fl__records_out(int kind) {
    int64_t n = fl__shared.taken[kind];
    for (const fl__thread *t = fl__shared.threads; t; t = t->next)
        n += fl__load(&t->taken[kind]) - fl__load(&t->records.list[kind].n);
    return n;
}

FL_PRIVATE int64_t fl__records_live(int kind) {
    pthread_mutex_lock(&fl__lock);
    int64_t n = fl__records_out(kind);
    pthread_mutex_unlock(&fl__lock);
    return n;
}

/* Under fl__lock: buffers. */
static int64_t fl__live(void) {
    int64_t n = fl__records_out(FL__RECORD_BUFFER);
    for (const fl__thread *t = fl__shared.threads; t; t = t->next)
        for (int c = 0; c < FL__SMALL_CLASSES; c++) n -= fl__load(&t->shelves[c].count);
    return n;
}

FL_API int64_t fl_mem_live(void) {
    pthread_mutex_lock(&fl__lock);
    int64_t n = fl__live();
    pthread_mutex_unlock(&fl__lock);
    return n;
}

/* ---- trace ---- */

typedef enum fl__event_kind { FL__GET, FL__PUT, FL__MAP, FL__RESTORE } fl__event_kind;
typedef struct fl__event {
    int64_t time, step;
    size_t bytes;
    const void *ptr;
    int thread;
    fl__event_kind kind;
    char op[24];
} fl__event;

static struct {
    bool on;           /* atomic */
    fl__event *events; /* the rest under fl__lock */
    int64_t n, cap, max, lost;
} fl__trace;
static int64_t fl__step; /* atomic */

static bool fl__tracing(void) {
    return __builtin_expect(__atomic_load_n(&fl__trace.on, __ATOMIC_RELAXED), 0);
}

static FL__COLD void fl__trace_add(fl__event_kind kind, const fl_buffer *b, const char *op) {
    const fl__thread *t = fl__this_thread();
    fl__event e = {.time = fl__nanoseconds(), .step = fl__load(&fl__step), .bytes = b->bytes};
    e.ptr = b->ptr;
    e.kind = kind;
    e.thread = t ? t->id : 0;
    snprintf(e.op, sizeof e.op, "%s", op ? op : "");
    pthread_mutex_lock(&fl__lock);
    bool fits = fl__trace.on && fl__trace.n < fl__trace.max &&
                fl__grow_raw(&fl__trace.events, &fl__trace.cap, fl__trace.n + 1, sizeof e);
    if (fits)
        fl__trace.events[fl__trace.n++] = e;
    else
        fl__trace.lost += fl__trace.on; /* a trace that cannot grow loses events, not the program */
    pthread_mutex_unlock(&fl__lock);
}

FL_API bool fl_mem_trace_begin(int64_t max_events) {
    if (max_events < 0)
        return fl_fail("fl_mem_trace_begin: max_events %lld", (long long)max_events);
    pthread_mutex_lock(&fl__lock);
    if (fl__trace.events) fl__heap_raw(fl__trace.events, 0);
    fl__trace.events = NULL;
    fl__trace.n = fl__trace.cap = fl__trace.lost = 0;
    fl__trace.max = max_events ? max_events : 1000000;
    __atomic_store_n(&fl__trace.on, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
    return true;
}

/* One event as an instant on its thread; gets and puts also as a counter, which viewers draw as a
   curve. Times are written as integers, for the decimal point depends on the locale. */
static void fl__write_event(FILE *f, const fl__event *e, int64_t start, int64_t *in_use) {
    static const char *const names[] = {"get", "put", "map", "restore"};
    long long t = (long long)(e->time - start);
    fprintf(f,
            ",\n{\"name\":\"%s\",\"cat\":\"memory\",\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":%d,",
            names[e->kind], e->thread);
    fprintf(
        f, "\"ts\":%lld.%03lld,\"args\":{\"ptr\":\"0x%llx\",\"bytes\":%llu,\"step\":%lld,\"op\":\"",
        t / 1000, t % 1000, (unsigned long long)(uintptr_t)e->ptr, (unsigned long long)e->bytes,
        (long long)e->step);
    fl_put_json(&(fl_lines){.file = f}, e->op);
    fprintf(f, "\"}}");
    if (e->kind > FL__PUT) return;
    *in_use += e->kind == FL__GET ? (int64_t)e->bytes : -(int64_t)e->bytes;
    fprintf(f,
            ",\n{\"name\":\"in "
            "use\",\"ph\":\"C\",\"pid\":1,\"ts\":%lld.%03lld,\"args\":{\"bytes\":%lld}}",
            t / 1000, t % 1000, (long long)*in_use);
}

/* The trace has stopped: its events belong to this thread. */
static bool fl__trace_write(const char *path) {
    int64_t in_use = 0, start = fl__trace.n ? fl__trace.events[0].time : 0;
    FILE *f = fopen(path, "w");
    if (!f) return fl_fail("fl_mem_trace_save: cannot open %s: %s", path, strerror(errno));
    fprintf(f, "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{"
               "\"name\":\"fl\"}}");
    for (int64_t i = 0; i < fl__trace.n; i++)
        fl__write_event(f, &fl__trace.events[i], start, &in_use);
    fprintf(f, "\n],\"lost\":%lld}\n", (long long)fl__trace.lost);
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad)
        return fl_fail("fl_mem_trace_save: cannot write %s: %s", path, strerror(errno));
    return true;
}

FL_API bool fl_mem_trace_save(const char *path) {
    if (!path) return fl_fail("fl_mem_trace_save: path is NULL");
    pthread_mutex_lock(&fl__lock);
    bool begun = fl__trace.on || fl__trace.events;
    __atomic_store_n(&fl__trace.on, false, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
    if (!begun) return fl_fail("fl_mem_trace_save: no trace was begun");
    if (!fl__trace_write(path)) return false; /* the events stay: saving elsewhere may work */
    fl__heap_raw(fl__trace.events, 0);
    fl__trace.events = NULL;
    fl__trace.n = fl__trace.cap = 0;
    return true;
}

FL_API int64_t fl_mem_step(void) {
    return __atomic_add_fetch(&fl__step, 1, __ATOMIC_RELAXED);
}
FL_API int64_t fl_mem_step_now(void) {
    return fl__load(&fl__step);
}

/* ---- the native manager ---- */

static fl_mem_stats fl__native_stats; /* under fl__lock */

static void fl__stats_took(fl_mem_stats *s, int64_t bytes) {
    s->in_use += bytes;
    if (s->in_use > s->peak_in_use) s->peak_in_use = s->in_use;
}

static void fl__stats_reserved(fl_mem_stats *s, int64_t bytes) {
    s->reserved += bytes;
    s->device_gets++;
    if (s->reserved > s->peak_reserved) s->peak_reserved = s->reserved;
}

/* Under fl__lock is what the shared managers count. */
static void fl__reset_peak(fl_mem_stats *s) {
    pthread_mutex_lock(&fl__lock);
    s->peak_in_use = s->in_use;
    s->peak_reserved = s->reserved;
    pthread_mutex_unlock(&fl__lock);
}

static bool fl__native_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self;
    (void)info;
    void *p = b->device->get(b->device, b->bytes + FL_ALIGN, FL_ALIGN);
    if (!p) return false;
    b->ptr = p;
    pthread_mutex_lock(&fl__lock);
    fl__native_stats.gets++;
    fl__stats_took(&fl__native_stats, (int64_t)b->bytes);
    fl__stats_reserved(&fl__native_stats, (int64_t)(b->bytes + FL_ALIGN));
    pthread_mutex_unlock(&fl__lock);
    return true;
}

static void fl__native_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    if (!b->ptr) return;
    b->device->put(b->device, b->ptr, b->bytes + FL_ALIGN);
    pthread_mutex_lock(&fl__lock);
    fl__native_stats.puts++;
    fl__native_stats.in_use -= (int64_t)b->bytes;
    fl__native_stats.reserved -= (int64_t)(b->bytes + FL_ALIGN);
    pthread_mutex_unlock(&fl__lock);
}

static void fl__native_stats_of(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    pthread_mutex_lock(&fl__lock);
    *out = fl__native_stats;
    pthread_mutex_unlock(&fl__lock);
}

static void fl__native_reset_peak(fl_mem_manager *self) {
    (void)self;
    fl__reset_peak(&fl__native_stats);
}

static fl_mem_manager fl__native = {.name = "native",
                                    .get = fl__native_get,
                                    .put = fl__native_put,
                                    .stats = fl__native_stats_of,
                                    .reset_peak = fl__native_reset_peak};

FL_API fl_mem_manager *fl_mem_native(void) {
    return &fl__native;
}

/* ---- the caching manager: what it keeps ----

   Small blocks are carved from runs: aligned pieces of device memory with a header, each of one
   class. Large blocks lie in slabs; each has a header in front of it that knows its neighbours, so
   that free ones merge. All of it is under fl__lock. With the address sanitizer, free blocks are
   poisoned but for their links. */

#define FL__RUN ((size_t)512 << 10)
#define FL__SLAB ((size_t)32 << 20)
#define FL__HEADER ((size_t)FL_ALIGN)

typedef struct fl__run {
    struct fl__run *next;
    size_t carved; /* blocks handed out so far, */
    size_t idle;   /* and, during a trim, how many of them are free */
} fl__run;

typedef struct fl__slab {
    struct fl__slab *next;
    size_t bytes;
} fl__slab;

typedef struct fl__block {
    size_t bytes, before; /* with header: of the block, and of its left neighbour (0: none) */
    fl__slab *slab;
    struct fl__block *next, *prev; /* free blocks of the same class */
    bool vacant;
} fl__block;

_Static_assert(sizeof(fl__block) <= FL_ALIGN && sizeof(fl__run) <= FL_ALIGN,
               "headers fit before the bytes");

static struct {
    fl__bin bins[FL__SMALL_CLASSES];
    fl__run *runs;
    fl__run *fresh[FL__SMALL_CLASSES]; /* the run that is being carved */
    fl__slab *slabs;
    fl__block *vacant[FL__CLASSES];
    size_t split_limit; /* 0: not read yet */
    int64_t small_out;  /* small blocks that are not in the shared bins */
    fl_mem_stats stats; /* in_use includes the shelves of the threads; gets, puts: large ones */
} fl__cache;

static void fl__poison(const void *p, size_t bytes) {
#ifdef FL__ASAN
    __asan_poison_memory_region(p, bytes);
#endif
    (void)p;
    (void)bytes;
}

static void fl__unpoison(const void *p, size_t bytes) {
#ifdef FL__ASAN
    __asan_unpoison_memory_region(p, bytes);
#endif
    (void)p;
    (void)bytes;
}

/* ---- small blocks ---- */

static inline void fl__bin_push(fl__bin *bin, void *block, size_t bytes) {
    fl__node *node = block;
    fl__unpoison(node, sizeof *node);
    node->next = bin->head;
    fl__poison(node + 1, bytes - sizeof *node);
    bin->head = node;
    fl__bump(&bin->count, 1);
}

static inline fl__node *fl__bin_pop(fl__bin *bin) {
    fl__node *node = bin->head;
    bin->head = node->next;
    fl__bump(&bin->count, -1);
    return node;
}

/* The next block never used before, from a new run if need be; NULL when the device has no more. */
static void *fl__carve(int c) {
    size_t size = fl__class_size(c);
    fl__run *run = fl__cache.fresh[c];
    if (!run || FL__HEADER + (run->carved + 1) * size > FL__RUN) {
        run = fl__host.get(&fl__host, FL__RUN, FL__RUN);
        if (!run) return NULL;
        fl__stats_reserved(&fl__cache.stats, (int64_t)FL__RUN);
        run->carved = 0;
        run->next = fl__cache.runs;
        fl__cache.runs = run;
        fl__cache.fresh[c] = run;
    }
    return (char *)run + FL__HEADER + run->carved++ * size;
}

static inline void fl__shelf_push(fl__shelf *shelf, fl_buffer *b) {
    fl__poison(b->ptr, (size_t)shelf->size);
    b->next_ = shelf->head;
    shelf->head = b;
    fl__bump(&shelf->count, 1);
}

static inline fl_buffer *fl__shelf_pop(fl__shelf *shelf) {
    fl_buffer *b = shelf->head;
    shelf->head = b->next_;
    fl__bump(&shelf->count, -1);
    return b;
}

/* Makes buffers of blocks from the shared bin; of records, only the first may come from the heap.
   NULL: none left. */
static FL__COLD fl__shelf *fl__shelf_refill(int c) {
    fl__thread *t = fl__thread_record();
    if (!t) return NULL;
    fl__shelf *to = &t->shelves[c];
    fl__bin *from = &fl__cache.bins[c];
    size_t size = (size_t)to->size;
    int n = size > FL__REFILL_BYTES / FL__REFILL ? 1 : FL__REFILL;
    pthread_mutex_lock(&fl__lock);
    while (to->count < n) {
        const bool may_take = to->count == 0 || fl__shared.records[FL__RECORD_BUFFER];
        if (!t->records.list[FL__RECORD_BUFFER].head &&
            !(may_take && fl__record_take(t, FL__RECORD_BUFFER, sizeof(fl_buffer))))
            break;
        void *block = from->head ? (void *)fl__bin_pop(from) : fl__carve(c);
        if (!block) break;
        fl_buffer *b = fl__record_get(FL__RECORD_BUFFER, sizeof *b);
        b->ptr = block;
        fl__shelf_push(to, b);
    }
    fl__cache.small_out += to->count;
    fl__stats_took(&fl__cache.stats, (int64_t)size * to->count);
    pthread_mutex_unlock(&fl__lock);
    return to->count > 0 ? to : NULL;
}

/* Takes the thread's buffers of a class apart, until `keep` are left. Under fl__lock. */
static void fl__shelf_share(fl__thread *t, int c, int64_t keep) {
    fl__shelf *from = &t->shelves[c];
    size_t size = (size_t)from->size;
    int64_t moved = from->count > keep ? from->count - keep : 0;
    for (; from->count > keep; fl__bump(&t->taken[FL__RECORD_BUFFER], -1)) {
        fl_buffer *b = fl__shelf_pop(from);
        fl__bin_push(&fl__cache.bins[c], b->ptr, size);
        fl__record_share(FL__RECORD_BUFFER, b);
    }
    fl__cache.small_out -= moved;
    fl__cache.stats.in_use -= (int64_t)size * moved;
}

/* Everything a thread keeps goes to the shared lists. Under fl__lock. */
static void fl__trim_thread(fl__thread *t) {
    for (int k = 0; k < FL__RECORD_KINDS; k++) fl__records_share(t, k, 0);
    for (int c = 0; c < FL__SMALL_CLASSES; c++) fl__shelf_share(t, c, 0);
}

/* A ready buffer, with the fields that do not change on a shelf; NULL when there is no memory. */
static FL__HOT fl_buffer *fl__small_take(size_t bytes) {
    int c = fl__class(bytes + FL_ALIGN);
    fl__shelf *shelf = &fl__this_thread()->shelves[c];
    if (!shelf->head && !(shelf = fl__shelf_refill(c))) return NULL;
    fl_buffer *b = fl__shelf_pop(shelf);
    fl__unpoison(b->ptr, bytes + FL_ALIGN);
    fl__bump(&fl__this_thread()->gets, 1);
    return b;
}

/* A thread that gets no record (the heap is out) gives straight to the shared bin. */
static FL__COLD void fl__small_put_shared(void *block, int c) {
    size_t size = fl__class_size(c);
    pthread_mutex_lock(&fl__lock);
    fl__bin_push(&fl__cache.bins[c], block, size);
    fl__cache.stats.in_use -= (int64_t)size;
    fl__cache.small_out--;
    pthread_mutex_unlock(&fl__lock);
}

/* A shelf that is full gives half of it away; NULL if this thread has none. */
static FL__COLD fl__shelf *fl__shelf_overflow(int c) {
    fl__thread *t = fl__thread_record();
    if (!t) return NULL;
    pthread_mutex_lock(&fl__lock);
    if (t->shelves[c].count >= t->shelves[c].most) fl__shelf_share(t, c, t->shelves[c].most / 2);
    pthread_mutex_unlock(&fl__lock);
    return &t->shelves[c];
}

/* Puts a dropped buffer away, record and block. False: this thread has no shelves. */
static FL__HOT bool fl__small_put(fl_buffer *b) {
    int c = fl__class(b->bytes + FL_ALIGN);
    fl__shelf *shelf = &fl__this_thread()->shelves[c];
    if (shelf->count >= shelf->most && !(shelf = fl__shelf_overflow(c))) return false;
    fl__shelf_push(shelf, b);
    return true;
}

/* ---- large blocks: under fl__lock ---- */

static fl__block *fl__right_of(const fl__block *k) {
    char *end = (char *)k + k->bytes;
    return end < (char *)k->slab + k->slab->bytes ? (fl__block *)(void *)end : NULL;
}

static void fl__vacant_add(fl__block *k) {
    fl__block **head = &fl__cache.vacant[fl__class(k->bytes)];
    k->vacant = true;
    k->prev = NULL;
    k->next = *head;
    if (k->next) k->next->prev = k;
    *head = k;
    fl__poison((char *)k + FL__HEADER, k->bytes - FL__HEADER);
}

static void fl__vacant_remove(fl__block *k) {
    if (k->prev)
        k->prev->next = k->next;
    else
        fl__cache.vacant[fl__class(k->bytes)] = k->next;
    if (k->next) k->next->prev = k->prev;
    k->vacant = false;
}

static size_t fl__split_limit(void) {
    if (!fl__cache.split_limit) {
        const char *text = getenv("FL_MEM_SPLIT_LIMIT");
        long long n = text ? strtoll(text, NULL, 10) : 0;
        fl__cache.split_limit = n > 0 ? (size_t)n : SIZE_MAX;
    }
    return fl__cache.split_limit;
}

/* Best fit: the smallest vacant block that is large enough. Blocks above the split limit serve only
   such requests. */
static fl__block *fl__vacant_find(size_t need) {
    size_t limit = fl__split_limit(), most = need > limit ? SIZE_MAX : limit;
    for (int c = fl__class(need); c < FL__CLASSES; c++) {
        fl__block *best = NULL;
        for (fl__block *k = fl__cache.vacant[c]; k; k = k->next)
            if (k->bytes >= need && k->bytes <= most && (!best || k->bytes < best->bytes)) best = k;
        if (best) return best;
    }
    return NULL;
}

/* A new slab, as one vacant block. */
static fl__block *fl__slab_new(size_t need) {
    size_t limit = fl__split_limit(), size = limit < FL__SLAB ? limit : FL__SLAB;
    if (size < need) size = need;
    size = (size + FL__HEADER + 63) & ~(size_t)63;
    fl__slab *slab = fl__host.get(&fl__host, size, FL_ALIGN);
    if (!slab && size > need + FL__HEADER) {
        size = need + FL__HEADER;
        slab = fl__host.get(&fl__host, size, FL_ALIGN);
    }
    if (!slab) return NULL;
    fl__stats_reserved(&fl__cache.stats, (int64_t)size);
    slab->bytes = size;
    slab->next = fl__cache.slabs;
    fl__cache.slabs = slab;
    fl__block *k = (fl__block *)(void *)((char *)slab + FL__HEADER);
    *k = (fl__block){.bytes = size - FL__HEADER, .slab = slab};
    fl__vacant_add(k);
    return k;
}

/* Cuts the end off a block that is larger than needed. */
static void fl__block_split(fl__block *k, size_t need) {
    if (k->bytes - need < FL__SMALL_MAX || k->bytes > fl__split_limit()) return;
    fl__block *rest = (fl__block *)(void *)((char *)k + need), *right = fl__right_of(k);
    fl__unpoison(rest, FL__HEADER);
    *rest = (fl__block){.bytes = k->bytes - need, .before = need, .slab = k->slab};
    if (right) right->before = rest->bytes;
    k->bytes = need;
    fl__vacant_add(rest);
}

/* Joins a block with its right neighbour; neither is in a list. */
static void fl__block_merge(fl__block *k, fl__block *right) {
    k->bytes += right->bytes;
    fl__block *next = fl__right_of(k);
    if (next) next->before = k->bytes;
}

static FL__COLD bool fl__large_get(fl_buffer *b) {
    size_t need = (b->bytes + FL_ALIGN + FL__HEADER + 4095) & ~(size_t)4095;
    pthread_mutex_lock(&fl__lock);
    fl__block *k = fl__vacant_find(need);
    if (!k) k = fl__slab_new(need);
    if (k) {
        fl__vacant_remove(k);
        fl__block_split(k, need);
        fl__stats_took(&fl__cache.stats, (int64_t)k->bytes);
        fl__cache.stats.gets++;
        b->ptr = (char *)k + FL__HEADER;
        fl__unpoison(b->ptr, b->bytes + FL_ALIGN);
    }
    pthread_mutex_unlock(&fl__lock);
    return k != NULL;
}

static FL__COLD void fl__large_put(void *ptr) {
    fl__block *k = (fl__block *)(void *)((char *)ptr - FL__HEADER);
    pthread_mutex_lock(&fl__lock);
    fl__cache.stats.in_use -= (int64_t)k->bytes;
    fl__cache.stats.puts++;
    fl__block *right = fl__right_of(k);
    if (right && right->vacant) {
        fl__vacant_remove(right);
        fl__block_merge(k, right);
    }
    fl__block *left = k->before ? (fl__block *)(void *)((char *)k - k->before) : NULL;
    if (left && left->vacant) {
        fl__vacant_remove(left);
        fl__block_merge(left, k);
        k = left;
    }
    fl__vacant_add(k);
    pthread_mutex_unlock(&fl__lock);
}

/* ---- trim: under fl__lock ---- */

static fl__run *fl__run_of(void *block) {
    return (fl__run *)((uintptr_t)block & ~(uintptr_t)(FL__RUN - 1));
}

/* Takes the blocks of wholly idle runs out of a shared bin. */
static void fl__bin_forget_idle(fl__bin *bin) {
    fl__node **link = &bin->head;
    while (*link) {
        const fl__run *run = fl__run_of(*link);
        if (run->idle < run->carved) {
            link = &(*link)->next;
        } else {
            *link = (*link)->next;
            bin->count--;
        }
    }
}

static size_t fl__trim_runs(void) {
    size_t freed = 0;
    for (fl__run *run = fl__cache.runs; run; run = run->next) run->idle = 0;
    for (int c = 0; c < FL__SMALL_CLASSES; c++)
        for (fl__node *node = fl__cache.bins[c].head; node; node = node->next)
            fl__run_of(node)->idle++;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) {
        fl__bin_forget_idle(&fl__cache.bins[c]);
        if (fl__cache.fresh[c] && fl__cache.fresh[c]->idle == fl__cache.fresh[c]->carved)
            fl__cache.fresh[c] = NULL;
    }
    for (fl__run **link = &fl__cache.runs, *run; (run = *link);) {
        if (run->idle < run->carved) {
            link = &run->next;
            continue;
        }
        *link = run->next;
        fl__unpoison(run, FL__RUN);
        fl__host.put(&fl__host, run, FL__RUN);
        freed += FL__RUN;
    }
    return freed;
}

static size_t fl__trim_slabs(void) {
    size_t freed = 0;
    for (fl__slab **link = &fl__cache.slabs, *slab; (slab = *link);) {
        fl__block *k = (fl__block *)(void *)((char *)slab + FL__HEADER);
        if (!k->vacant || k->bytes + FL__HEADER < slab->bytes) {
            link = &slab->next;
            continue;
        }
        fl__vacant_remove(k);
        *link = slab->next;
        size_t bytes = slab->bytes;
        fl__unpoison(slab, bytes);
        fl__host.put(&fl__host, slab, bytes);
        freed += bytes;
    }
    return freed;
}

static void fl__trim_records(void) {
    for (int k = 0; k < FL__RECORD_KINDS; k++)
        for (fl__record *r = fl__shared.records[k], *next; r; r = next) {
            next = r->next;
            fl_heap_free(r);
        }
    memset(fl__shared.records, 0, sizeof fl__shared.records);
}

static size_t fl__cache_trim(fl_mem_manager *self) {
    (void)self;
    pthread_mutex_lock(&fl__lock);
    if (fl__this_thread() != &fl__nobody) fl__trim_thread(fl__this_thread());
    size_t freed = fl__trim_runs() + fl__trim_slabs();
    fl__trim_records();
    fl__cache.stats.reserved -= (int64_t)freed;
    pthread_mutex_unlock(&fl__lock);
    return freed;
}

/* ---- the caching manager: its table ---- */

static bool fl__is_small(size_t bytes) {
    return bytes <= FL__SMALL_MAX - FL_ALIGN;
}

/* Of another device than the host, which has a manager of its own or is asked itself. The buffer is that
   one's from now on. */
static bool fl__device_get(fl_buffer *b, const fl_mem_info *info) {
    b->manager = b->device->manager ? b->device->manager : &fl__native;
    return b->manager->get(b->manager, b, info);
}

/* A small block for a buffer that has a record already, as other managers ask for. */
static bool fl__cache_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self;
    if (b->device != &fl__host) return fl__device_get(b, info);
    if (!fl__is_small(b->bytes)) return fl__large_get(b);
    fl_buffer *ready = fl__small_take(b->bytes);
    if (!ready) return false;
    b->ptr = ready->ptr;
    fl__record_put(FL__RECORD_BUFFER, ready);
    return true;
}

static void fl__cache_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    if (b->ptr && !fl__is_small(b->bytes)) {
        fl__large_put(b->ptr);
    } else if (b->ptr) {
        fl_buffer *record = fl__record_get(FL__RECORD_BUFFER, sizeof(fl_buffer));
        if (record) {
            record->ptr = b->ptr;
            record->bytes = b->bytes;
            fl__small_put(record);
        } else {
            fl__small_put_shared(b->ptr, fl__class(b->bytes + FL_ALIGN));
        }
    }
}

/* What threads keep on shelves is not in use; a small block came back if it is there or in a bin. Under
   fl__lock. */
static void fl__stats_add_small(fl_mem_stats *out) {
    int64_t gets = fl__shared.gets, used = fl__cache.small_out;
    for (const fl__thread *t = fl__shared.threads; t; t = t->next) {
        gets += fl__load(&t->gets);
        for (int c = 0; c < FL__SMALL_CLASSES; c++) {
            int64_t idle = fl__load(&t->shelves[c].count);
            used -= idle;
            out->in_use -= idle * t->shelves[c].size;
        }
    }
    out->gets += gets;
    out->puts += gets - used;
}

static void fl__cache_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    pthread_mutex_lock(&fl__lock);
    *out = fl__cache.stats;
    fl__stats_add_small(out);
    out->reuses = out->gets - out->device_gets;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) out->free_blocks += fl__cache.bins[c].count;
    for (int c = 0; c < FL__CLASSES; c++)
        for (const fl__block *k = fl__cache.vacant[c]; k; k = k->next) {
            out->free_blocks++;
            if ((int64_t)k->bytes > out->largest_free) out->largest_free = (int64_t)k->bytes;
        }
    pthread_mutex_unlock(&fl__lock);
}

static void fl__cache_reset_peak(fl_mem_manager *self) {
    (void)self;
    fl__reset_peak(&fl__cache.stats);
}

static fl_mem_manager fl__caching = {.name = "caching",
                                     .get = fl__cache_get,
                                     .put = fl__cache_put,
                                     .trim = fl__cache_trim,
                                     .stats = fl__cache_stats,
                                     .reset_peak = fl__cache_reset_peak};
static fl_mem_manager *fl__current = &fl__caching; /* atomic */

FL_API fl_mem_manager *fl_mem_caching(void) {
    return &fl__caching;
}

FL_API fl_mem_manager *fl_mem_use(fl_mem_manager *m) {
    return __atomic_exchange_n(&fl__current, m ? m : &fl__caching, __ATOMIC_ACQ_REL);
}

FL_API fl_mem_manager *fl_mem_current(void) {
    return __atomic_load_n(&fl__current, __ATOMIC_ACQUIRE);
}

/* ---- buffers ---- */

#define FL__AWAY (-1)
#define FL__RESTORING (-2)

static size_t fl__trim_all(fl_mem_manager *m, const fl_device *d) {
    size_t freed = m->trim && m != &fl__caching ? m->trim(m) : 0;
    if (d->manager && d->manager != m && d->manager->trim) freed += d->manager->trim(d->manager);
    return freed + fl__cache_trim(&fl__caching);
}

FL_API size_t fl_mem_trim(void) {
    return fl__trim_all(fl_mem_current(), &fl__host);
}

/* The second and last try, after a trim. What the first one said goes with it, unless it was said before. */
static FL__COLD bool fl__retry_get(fl_mem_manager *m, fl_buffer *b, const fl_mem_info *info, bool failed) {
    if (b->bytes <= SIZE_MAX / 4) {
        fl__trim_all(m, b->device);
        b->manager = m;
        if (m->get(m, b, info)) {
            if (!failed) fl_error_clear();
            return true;
        }
    }
    m = b->device == &fl__host ? m : b->manager; /* whose figures tell why */
    fl_mem_stats s = fl_mem_stats_of(m);
    return fl_fail("fl_buffer_new: out of memory: asked for %zu bytes, in use %lld, reserved %lld, "
                   "largest free %lld (manager %s)",
                   b->bytes, (long long)s.in_use, (long long)s.reserved, (long long)s.largest_free,
                   m->name ? m->name : "without a name");
}

/* Asks m for the bytes of b; m may hand the buffer on to another manager. Without info this thread
   has a record, since b came from it. */
static bool fl__get(fl_mem_manager *m, fl_buffer *b, const fl_mem_info *info) {
    const bool failed = fl_error() != NULL;
    if (!info) {
        fl__this_thread()->info.step = fl__load(&fl__step);
        info = &fl__this_thread()->info;
    }
    b->manager = m;
    b->device = info->device ? info->device : &fl__host;
    if ((b->bytes > SIZE_MAX / 4 || !m->get(m, b, info)) && !fl__retry_get(m, b, info, failed))
        return false;
    if (fl__tracing()) fl__trace_add(FL__GET, b, info->op);
    return true;
}

/* One reference, everything but ptr, manager and device. Field by field: compilers make a slow
   string instruction of a literal. */
static inline fl_buffer *fl__buffer_begin(fl_buffer *b, size_t bytes) {
    b->bytes = bytes;
    memset(&b->stream, 0, offsetof(fl_buffer, refs_) - offsetof(fl_buffer, stream));
    b->refs_ = 1;
    b->pins_ = 0;
    return b;
}

static fl_buffer *fl__buffer_blank(size_t bytes) {
    fl_buffer *b = fl__record_get(FL__RECORD_BUFFER, sizeof(fl_buffer));
    if (!b) return NULL;
    b->ptr = NULL;
    return fl__buffer_begin(b, bytes);
}

FL_API FL__COLD fl_buffer *fl_buffer_from(fl_mem_manager *m, size_t bytes, const fl_mem_info *info) {
    fl_buffer *b = fl__buffer_blank(bytes);
    if (!b) return NULL;
    if (!fl__get(m, b, info)) {
        fl__record_put(FL__RECORD_BUFFER, b);
        return NULL;
    }
    /* Another thread may be paging a pageable one out already: its claim set the count. */
    if (!b->pageable && b->state != FL_RESIDENT) b->pins_ = FL__AWAY;
    return b;
}

/* Small ones of the default manager are taken from this thread's shelf as they are. */
FL_API fl_buffer *fl_buffer_new(size_t bytes, const fl_mem_info *info) {
    fl_mem_manager *m = fl_mem_current();
    bool plain = m == &fl__caching && fl__is_small(bytes) && !(info && info->device) && !fl__tracing();
    fl_buffer *b = plain ? fl__small_take(bytes) : NULL;
    if (!b) return fl_buffer_from(m, bytes, info);
    b->manager = m;
    b->device = &fl__host;
    return fl__buffer_begin(b, bytes);
}

FL_API fl_buffer *fl_buffer_absent(size_t bytes, bool (*restore)(fl_buffer *), void *tag) {
    if (!restore) {
        fl_fail("fl_buffer_absent: restore is NULL");
        return NULL;
    }
    fl_buffer *b = fl__buffer_blank(bytes);
    if (!b) return NULL;
    b->manager = fl_mem_current();
    b->device = &fl__host;
    b->restore = restore;
    b->tag = tag;
    b->state = FL_ABSENT;
    b->pins_ = FL__AWAY;
    return b;
}

FL_API bool fl_buffer_fill(fl_buffer *b) {
    if (!b) return fl_fail("fl_buffer_fill: the buffer is NULL");
    fl_mem_info info = {.device = b->device, .step = fl__load(&fl__step)};
    return b->ptr || fl__get(b->manager, b, &info);
}

FL_API fl_buffer *fl_buffer_keep(fl_buffer *b) {
    if (b) __atomic_fetch_add(&b->refs_, 1, __ATOMIC_RELAXED);
    return b;
}

/* A count of 1 is this caller's own: nobody else can change it. */
static bool fl__is_plain(const fl_buffer *b) {
    return b && b->manager == &fl__caching && b->device == &fl__host && !b->pageable && b->ptr;
}

FL_API bool fl_buffer_exchange(fl_buffer *a, fl_buffer *b) {
    if (!fl__is_plain(a) || !fl__is_plain(b) || a->bytes != b->bytes || fl__is_small(a->bytes) ||
        fl__tracing() || __atomic_load_n(&a->refs_, __ATOMIC_ACQUIRE) != 1 ||
        __atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) != 1)
        return false;
    void *ptr = a->ptr;
    a->ptr = b->ptr;
    b->ptr = ptr;
    a->version = b->version = (a->version > b->version ? a->version : b->version) + 1;
    return true;
}

/* ---- frozen buffers ---- */

typedef struct fl__made {
    struct fl__made *next;
    fl_buffer *buffer;
    size_t size;
    char key[];
} fl__made;

static FL__COLD void fl__made_drop(fl_buffer *b) {
    for (fl__made *m = b->made_, *next; m; m = next) {
        next = m->next;
        fl_buffer_drop(m->buffer);
        fl_heap_free(m);
    }
    b->made_ = NULL;
}

FL_API bool fl_buffer_is_frozen(const fl_buffer *b) {
    return b && b->frozen_ == (uint64_t)b->version + 1;
}

FL_API bool fl_buffer_freeze(fl_buffer *b, bool on) {
    if (!b) return fl_fail("fl_buffer_freeze: the buffer is NULL");
    if (on && fl_buffer_is_frozen(b)) return true;
    fl__made_drop(b);
    b->frozen_ = on ? (uint64_t)b->version + 1 : 0;
    return true;
}

FL_API fl_buffer *fl_buffer_made(const fl_buffer *b, const void *key, size_t size) {
    if (!fl_buffer_is_frozen(b)) return NULL;
    for (const fl__made *m = __atomic_load_n(&b->made_, __ATOMIC_ACQUIRE); m; m = m->next)
        if (m->size == size && !memcmp(m->key, key, size)) return m->buffer;
    return NULL;
}

/* Two threads may make the same: the older one is never found again. */
FL_API bool fl_buffer_made_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made) {
    fl__made *m = fl_buffer_is_frozen(b) ? fl_heap_alloc(sizeof *m + size) : NULL;
    if (!m) {
        fl_buffer_drop(made);
        return fl_error() ? false : fl_fail("fl_buffer_made_add: the buffer is not frozen");
    }
    m->buffer = made, m->size = size, m->next = __atomic_load_n(&b->made_, __ATOMIC_ACQUIRE);
    memcpy(m->key, key, size);
    while (!__atomic_compare_exchange_n(&b->made_, &m->next, m, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
    return true;
}

FL_API void fl_buffer_drop(fl_buffer *b) {
    if (!b) return;
    if (__atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) != 1 &&
        __atomic_sub_fetch(&b->refs_, 1, __ATOMIC_ACQ_REL))
        return;
    if (b->made_) fl__made_drop(b);
    /* A manager has seen it; it may be taking the bytes of a pageable one away. */
    bool held = b->pageable || b->ptr;
    if (held && fl__tracing()) fl__trace_add(FL__PUT, b, NULL);
    if (fl__is_plain(b) && fl__is_small(b->bytes) && fl__small_put(b)) return;
    if (held) b->manager->put(b->manager, b);
    fl__record_put(FL__RECORD_BUFFER, b);
}

FL_API bool fl_buffer_use(fl_buffer *b, void *stream) {
    if (!b) return fl_fail("fl_buffer_use: the buffer is NULL");
    if (b->stream == stream) return true;
    const fl_device *d = b->device;
    if (d->wait && !d->wait(d, stream, b->stream))
        return fl_fail("fl_buffer_use: device %s does not let a stream wait", d->name);
    b->stream = stream;
    return true;
}

/* This thread has set pins_ to FL__RESTORING; the others wait at fl__restored. */
static bool fl__restore(fl_buffer *b) {
    bool ok = b->restore && b->restore(b);
    if (ok && b->state != FL_RESIDENT)
        b->state = FL_RESIDENT; /* no write when the manager did it */
    pthread_mutex_lock(&fl__lock);
    __atomic_store_n(&b->pins_, ok ? b->pageable : FL__AWAY, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&fl__restored);
    pthread_mutex_unlock(&fl__lock);
    if (ok && fl__tracing()) fl__trace_add(FL__RESTORE, b, NULL);
    return ok || fl_fail("fl_buffer_map: cannot restore the %zu bytes of a buffer", b->bytes);
}

static void fl__await_restored(const fl_buffer *b) {
    pthread_mutex_lock(&fl__lock);
    while (__atomic_load_n(&b->pins_, __ATOMIC_ACQUIRE) == FL__RESTORING)
        pthread_cond_wait(&fl__restored, &fl__lock);
    pthread_mutex_unlock(&fl__lock);
}

/* Pins a buffer that may be away; the pin is counted only if it is pageable. */
static FL__COLD bool fl__pin(fl_buffer *b) {
    for (;;) {
        int pins = __atomic_load_n(&b->pins_, __ATOMIC_ACQUIRE);
        if (pins == FL__RESTORING) {
            fl__await_restored(b);
            continue;
        }
        if (pins >= 0 && !b->pageable) return true;
        int wanted = pins >= 0 ? pins + 1 : FL__RESTORING;
        if (__atomic_compare_exchange_n(&b->pins_, &pins, wanted, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return wanted > 0 || fl__restore(b);
    }
}

FL_API void *fl_buffer_map(fl_buffer *b) {
    static int64_t tick;
    if (!b) {
        fl_fail("fl_buffer_map: the buffer is NULL");
        return NULL;
    }
    bool plain = __atomic_load_n(&b->pins_, __ATOMIC_ACQUIRE) >= 0 && !b->pageable;
    if (!plain && !fl__pin(b)) return NULL;
    if (b->pageable) {
        uint64_t now = (uint64_t)__atomic_add_fetch(&tick, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&b->last_use, now, __ATOMIC_RELAXED);
    }
    if (fl__tracing()) fl__trace_add(FL__MAP, b, NULL);
    return b->ptr;
}

FL_API void fl_buffer_unmap(fl_buffer *b) {
    if (b && b->pageable) __atomic_sub_fetch(&b->pins_, 1, __ATOMIC_RELEASE);
}

FL_API bool fl_buffer_claim(fl_buffer *b) {
    int pins = 0;
    return b && b->pageable &&
           __atomic_compare_exchange_n(&b->pins_, &pins, FL__AWAY, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* While a map waits in restore (FL__RESTORING), that map sets the count itself. */
FL_API void fl_buffer_resident(fl_buffer *b) {
    int pins = FL__AWAY;
    b->state = FL_RESIDENT;
    __atomic_compare_exchange_n(&b->pins_, &pins, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* ---- all managers ---- */

FL_API void fl_mem_close(fl_mem_manager *m) {
    if (!m || !m->close) return;
    if (fl_mem_current() == m) fl_mem_use(NULL);
    m->close(m);
}

FL_API fl_mem_stats fl_mem_stats_of(fl_mem_manager *m) {
    fl_mem_stats s = {0};
    if (!m) m = fl_mem_current();
    if (m->stats) m->stats(m, &s);
    return s;
}

FL_API void fl_mem_stats_reset_peak(fl_mem_manager *m) {
    if (!m) m = fl_mem_current();
    if (m->reset_peak) m->reset_peak(m);
}

FL_API void fl_mem_report(fl_mem_manager *m, fl_level level) {
    if (!m) m = fl_mem_current();
    fl_mem_stats s = fl_mem_stats_of(m);
    int64_t idle = s.reserved - s.in_use;
    const double mib = 1024 * 1024;
    fl_message(level, "memory (%s): in use %.2f MiB, peak %.2f; reserved %.2f MiB, peak %.2f",
               m->name ? m->name : "without a name", (double)s.in_use / mib,
               (double)s.peak_in_use / mib, (double)s.reserved / mib,
               (double)s.peak_reserved / mib);
    fl_message(
        level,
        "memory: %lld requests, %lld returned; %.1f %% served without the device (%lld trips)",
        (long long)s.gets, (long long)s.puts,
        s.gets ? 100.0 * (double)s.reuses / (double)s.gets : 0.0, (long long)s.device_gets);
    fl_message(
        level,
        "memory: idle %.2f MiB, %lld free blocks, the largest %.2f MiB: fragmentation %.1f %%",
        (double)idle / mib, (long long)s.free_blocks, (double)s.largest_free / mib,
        idle > 0 ? 100.0 * (1.0 - (double)s.largest_free / (double)idle) : 0.0);
    fl_message(level, "memory: %lld buffers alive", (long long)fl_mem_live());
}

/* ---- the end of the process, or of the shared library ---- */

/* Memory is given back only if nobody can still use it: no buffer alive, no other thread, the heap
   our own. */
static void fl__free_everything(void) {
    fl__thread *t = fl__this_thread();
    pthread_mutex_lock(&fl__lock);
    bool mine = t != &fl__nobody;
    bool alone = !fl__shared.threads || (mine && fl__shared.threads == t && !t->next);
    bool unused = fl__live() == 0;
    pthread_mutex_unlock(&fl__lock);
    if (!alone || !unused || __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE)) return;
    if (mine) fl__thread_end(t);
    fl__cache_trim(&fl__caching);
    fl_heap_free(fl__trace.events);
    fl__trace.events = NULL;
}

__attribute__((destructor)) static void fl__at_exit(void) {
    fl__thread_call_end(fl__this_thread());
#if defined(_WIN32) && defined(FL_BUILD_SHARED)
    return; /* joining threads under the loader's lock would hang */
#else
    if (!__atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) {
        fl__pool_stop();
        __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
    }
    fl__free_everything();
    if (fl__shared.ready) pthread_key_delete(fl__shared.key);
    fl__shared.ready = false;
#endif
}

#endif /* FL_MEM_IMPL */
#endif

#include "fl/mem/managers.h"
/* MIT licence: see LICENSE. */
