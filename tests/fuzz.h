/* fuzz.h - what the fuzz harnesses share: numbers, shapes and tensors out of bytes, memory with a
   budget that fails on request, and what must hold after every input

   A harness defines fuzz_one(), which reads the input by the fuzz_ functions below and calls the
   library. It is built in two ways:
     clang -fsanitize=fuzzer -DFUZZ_MAIN=0   libFuzzer calls it with inputs that it evolves
     any compiler                            a small main runs seeded random inputs:
       program [inputs] [first seed]         (2000 from 1), or
       program file ...                      the inputs in files, such as those of a crash
   A bug ends the program with a line that starts with "fuzz: ". Nothing here depends on the order
   in which a compiler evaluates arguments, so an input means the same to all of them. */
#ifndef FUZZ_H
#define FUZZ_H

#include "../fl_all.h"
#include "cost.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_MAIN
#define FUZZ_MAIN 1
#endif

#define FUZZ_FN __attribute__((unused)) static

static void fuzz_one(void); /* the harness: one input */

/* What the program does now: for the message of a bug, and on stderr if FUZZ_SHOW is in the
   environment. */
static const char *fuzz_doing = "";
static bool fuzz_shows;

__attribute__((format(printf, 1, 2), noreturn)) FUZZ_FN void fuzz_bug(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fuzz: %s: ", fuzz_doing);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    if (fl_error()) fprintf(stderr, "fuzz: pending: %s\n", fl_error());
    abort(); /* what libFuzzer takes for a crash: it saves the input */
}

/* ---- bytes ---- */

static struct {
    const uint8_t *p;
    size_t left;
} fuzz_input;

/* The next byte, 0 past the end. */
FUZZ_FN unsigned fuzz_byte(void) {
    if (!fuzz_input.left) return 0;
    fuzz_input.left--;
    return *fuzz_input.p++;
}

FUZZ_FN uint64_t fuzz_word(int bytes) {
    uint64_t w = 0;
    for (int i = 0; i < bytes; i++) w |= (uint64_t)fuzz_byte() << 8 * i;
    return w;
}

/* In [0, n), n <= 256. */
FUZZ_FN int fuzz_below(int n) {
    return (int)(fuzz_byte() % (unsigned)n);
}

/* True for one byte in n; false past the end. */
FUZZ_FN bool fuzz_rarely(int n) {
    return fuzz_below(n) == n - 1;
}

/* Small in most cases; else a number at which arithmetic goes wrong, or any. */
FUZZ_FN int64_t fuzz_int(void) {
    static const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, INT32_MIN,
                                    INT32_MAX, (int64_t)1 << 31, (int64_t)1 << 32,
                                    (int64_t)1 << 61, (int64_t)1 << 62, -1, -2, 1000, 65536, 0, 1};
    const unsigned b = fuzz_byte();
    if (b < 200) return (int64_t)(b % 10) - 3;
    if (b < 250) return edges[fuzz_below(16)];
    return (int64_t)fuzz_word(8);
}

/* As fuzz_int, mostly in [0, 4]. */
FUZZ_FN int64_t fuzz_size(void) {
    const unsigned b = fuzz_byte();
    return b < 248 ? (int64_t)(b % 5) : fuzz_int();
}

FUZZ_FN double fuzz_double(void) {
    static const double edges[] = {0,    -0.0, 1,    -1,     0.5,   1e-310, -1e-320,   1e38,
                                   1e39, -1e300, 1e-45, (double)INFINITY, (double)-INFINITY,
                                   9.3e18, 2147483648.0, 65520};
    const unsigned b = fuzz_byte();
    double x;
    if (b < 150) return ((int)b - 60) / 8.0;
    if (b < 230) return edges[b % 16];
    if (b < 240) return (double)NAN;
    const uint64_t w = fuzz_word(8);
    memcpy(&x, &w, sizeof x);
    return x;
}

FUZZ_FN fl_dtype fuzz_dtype(void) {
    const unsigned b = fuzz_byte();
    if (b < 100) return FL_F32;
    if (b < 250) return (fl_dtype)(1 + b % (FL_DTYPE_COUNT - 1));
    return b & 1 ? (fl_dtype)FL_DTYPE_COUNT : FL_DTYPE_NONE;
}

/* An axis or another small int, sometimes absurd. */
FUZZ_FN int fuzz_axis(void) {
    const unsigned b = fuzz_byte();
    if (b < 245) return (int)(b % 7) - 3;
    return b & 1 ? INT32_MIN : b & 2 ? INT32_MAX : (int)fuzz_word(4);
}

/* A number of dims or axes: below n in most cases, else up to 8, or wrong. */
FUZZ_FN int fuzz_count_of(unsigned b, int n) {
    static const int wrong[] = {-1, FL_MAX_DIMS + 1, INT32_MAX};
    if (b >= 253) return wrong[b - 253];
    return (int)b % (b < 245 ? n : FL_MAX_DIMS + 1);
}

/* Small in most cases, up to 4 dims; else any number of dims, with any sizes. */
FUZZ_FN fl_shape fuzz_shape(void) {
    fl_shape s = {0, {0}};
    const unsigned b = fuzz_byte();
    s.ndim = fuzz_count_of(b, 5);
    for (int i = 0; i < s.ndim && i < FL_MAX_DIMS; i++) s.dim[i] = fuzz_size();
    return s;
}

/* ---- a disk of one file, in memory ---- */

enum { FUZZ_MEM_ROOM = 1 << 15 };
__attribute__((unused)) static struct {
    const char *path; /* the others are not there; NULL: all are this file */
    size_t size;
    char bytes[FUZZ_MEM_ROOM];
} fuzz_mem;

FUZZ_FN void *fuzz_mem_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    if (mode == FL_DATA_READ && (!fuzz_mem.path || !strcmp(path, fuzz_mem.path))) return &fuzz_mem;
    errno = ENOENT;
    return NULL;
}
FUZZ_FN int64_t fuzz_mem_read(void *user, void *handle, void *dst, size_t n, int64_t at) {
    (void)user, (void)handle;
    if (at < 0) fuzz_bug("a read at %" PRId64, at);
    if ((uint64_t)at >= fuzz_mem.size) return 0;
    if (n > fuzz_mem.size - (size_t)at) n = fuzz_mem.size - (size_t)at;
    memcpy(dst, fuzz_mem.bytes + at, n);
    return (int64_t)n;
}
FUZZ_FN int64_t fuzz_mem_size(void *user, void *handle) {
    return (void)user, (void)handle, (int64_t)fuzz_mem.size;
}
FUZZ_FN int fuzz_mem_close(void *user, void *handle) {
    return (void)user, (void)handle, 0;
}
/* Appends to the file: n bytes, the low n bytes of v, or a text as GGUF has it, behind its length. */
FUZZ_FN void fuzz_append(const void *p, size_t n) {
    if (n > FUZZ_MEM_ROOM - fuzz_mem.size) n = FUZZ_MEM_ROOM - fuzz_mem.size;
    memcpy(fuzz_mem.bytes + fuzz_mem.size, p, n);
    fuzz_mem.size += n;
}
FUZZ_FN void fuzz_append_int(uint64_t v, size_t n) { fuzz_append(&v, n); }
FUZZ_FN void fuzz_append_text(const char *s) { fuzz_append_int(strlen(s), 8), fuzz_append(s, strlen(s)); }
static const fl_data_io fuzz_disk = {
    .open = fuzz_mem_open, .read = fuzz_mem_read, .size = fuzz_mem_size, .close = fuzz_mem_close};

/* ---- options ---- */

FUZZ_FN fl_axes fuzz_axes(void) {
    fl_axes a = {0, {0}, false};
    const unsigned b = fuzz_byte();
    a.n = fuzz_count_of(b, 4);
    for (int i = 0; i < a.n && i < FL_MAX_DIMS; i++) a.axis[i] = fuzz_axis();
    a.keepdim = fuzz_byte() & 1;
    return a;
}

/* One that fits t, with other sizes, or any. */
FUZZ_FN fl_shape fuzz_shape_for(const fl_tensor *t) {
    const unsigned b = fuzz_byte();
    if (!t || b < 100) return fuzz_shape();
    fl_shape s = fl_shape_of(t);
    if (b < 150) return (fl_shape){1, {b & 1 ? -1 : fl_numel(t)}};
    if (s.ndim) s.dim[b % (unsigned)s.ndim] = b < 200 ? -1 : fuzz_size();
    return s;
}

/* For images of two dims. */
FUZZ_FN fl_conv_opts fuzz_conv(void) {
    fl_conv_opts o = {.groups = 0};
    int64_t *field[] = {o.stride, o.stride + 1, o.pad, o.pad + 1, o.dilation, o.dilation + 1,
                        &o.groups};
    const unsigned set = fuzz_byte();
    for (int i = 0; i < 7; i++)
        if (set >> i & 1) *field[i] = fuzz_size();
    return o;
}

FUZZ_FN fl_pool_opts fuzz_pool(int64_t kernel) {
    fl_pool_opts o = {.kernel = {kernel}};
    int64_t *field[] = {o.kernel + 1, o.stride, o.stride + 1, o.pad, o.pad + 1};
    const unsigned set = fuzz_byte();
    for (int i = 0; i < 5; i++)
        if (set >> i & 1) *field[i] = fuzz_size();
    o.ignore_pad = set >> 7;
    return o;
}

/* ---- memory ----

   A manager that gives at most a budget, fills what it gives with a pattern (a result that depends
   on the pattern was read before it was written), guards the bytes behind, and, like the heap
   here, fails from the n-th request on until fuzz_faults(0, 0). */

enum { FUZZ_BUDGET = 2 << 20, FUZZ_GUARD = FL_ALIGN };

static struct {
    unsigned char pattern;
    int64_t budget;       /* bytes that buffers, and that the heap, may take */
    int64_t gets, allocs; /* requests until the first that fails; 0: none does */
    int64_t in_use, heap; /* bytes, now */
    int64_t peak;         /* of their sum; requests that are refused count */
    bool failed;          /* a request has failed on purpose during this input */
} fuzz_memory = {.budget = FUZZ_BUDGET};

FUZZ_FN void fuzz_faults(int64_t gets, int64_t allocs) {
    fuzz_memory.gets = gets;
    fuzz_memory.allocs = allocs;
}

/* True when this request is to fail: the count stays at 1. */
static bool fuzz_fails(int64_t *count) {
    if (*count == 0) return false;
    if (*count > 1) {
        --*count;
        return false;
    }
    return fuzz_memory.failed = true;
}

static void fuzz_want(size_t bytes) {
    const int64_t sum = fuzz_memory.in_use + fuzz_memory.heap;
    const int64_t most = bytes < INT64_MAX / 2 ? sum + (int64_t)bytes : INT64_MAX;
    if (most > fuzz_memory.peak) fuzz_memory.peak = most;
}

static bool fuzz_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self;
    (void)info;
    fuzz_want(b->bytes);
    if (fuzz_fails(&fuzz_memory.gets)) return false;
    if (b->bytes > (size_t)(fuzz_memory.budget - fuzz_memory.in_use)) return false;
    const size_t whole = (b->bytes + FUZZ_GUARD + FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN;
    char *p = aligned_alloc(FL_ALIGN, whole);
    if (!p) return false;
    memset(p, fuzz_memory.pattern, b->bytes);
    memset(p + b->bytes, fuzz_memory.pattern ^ 0xff, FUZZ_GUARD);
    b->ptr = p;
    b->tag = (void *)(uintptr_t)(fuzz_memory.pattern ^ 0xff);
    fuzz_memory.in_use += (int64_t)b->bytes;
    return true;
}

static void fuzz_put(fl_mem_manager *self, fl_buffer *b) {
    const unsigned char *guard = (unsigned char *)b->ptr + b->bytes;
    (void)self;
    for (int i = 0; i < FUZZ_GUARD; i++)
        if (guard[i] != (unsigned char)(uintptr_t)b->tag)
            fuzz_bug("byte %d behind a buffer of %zu was written", i, b->bytes);
    fuzz_memory.in_use -= (int64_t)b->bytes;
    free(b->ptr);
}

/* The heap, with the size of each block in front of it. */
static void *fuzz_heap(void *user, void *p, size_t bytes) {
    enum { FRONT = 16 };
    char *block = p ? (char *)p - FRONT : NULL;
    const int64_t before = block ? *(int64_t *)(void *)block : 0;
    (void)user;
    if (!bytes) {
        fuzz_memory.heap -= before;
        free(block);
        return NULL;
    }
    if (bytes > (size_t)before) fuzz_want(bytes - (size_t)before);
    if (fuzz_fails(&fuzz_memory.allocs) || bytes > (size_t)fuzz_memory.budget) return NULL;
    block = realloc(block, FRONT + bytes);
    if (!block) return NULL;
    *(int64_t *)(void *)block = (int64_t)bytes;
    fuzz_memory.heap += (int64_t)bytes - before;
    return block + FRONT;
}

/* Around the reading of a file of n bytes: a bug if it takes more than tests/cost.h allows. */
static struct {
    int64_t memory;
    double seconds;
} fuzz_cost;
FUZZ_FN void fuzz_cost_begin(void) {
    fuzz_cost.memory = fuzz_memory.peak = fuzz_memory.in_use + fuzz_memory.heap;
    fuzz_cost.seconds = cost_cpu_seconds();
}
FUZZ_FN void fuzz_cost_end(size_t n) {
    const int64_t memory = fuzz_memory.peak - fuzz_cost.memory;
    const double seconds = cost_cpu_seconds() - fuzz_cost.seconds;
    if (memory > cost_memory_limit((int64_t)n)) fuzz_bug("%" PRId64 " bytes of memory for a file of %zu",
                                                         memory, n);
    if (seconds > cost_seconds_limit((int64_t)n)) fuzz_bug("%.2f s for a file of %zu bytes", seconds, n);
}

/* ---- tensors ---- */

/* A value of dtype d at p: small numbers, edges, or any bits. */
FUZZ_FN void fuzz_element(fl_dtype d, void *p) {
    const bool real = fl_dtype_is_float(d);
    const double x = real ? fuzz_double() : 0;
    const int64_t i = real ? 0 : fuzz_int();
    fl_number_store(d, p, (fl_number){real, real ? x : (double)i, i});
}

/* A new tensor of that shape; its first elements come from the input, the rest repeat them. */
FUZZ_FN fl_tensor *fuzz_fill(fl_shape shape, fl_dtype d) {
    static _Alignas(8) unsigned char data[8 << 12];
    const int64_t n = fl_shape_numel(shape), size = (int64_t)fl_dtype_size(d);
    const int64_t given = n < 12 ? n : 12;
    if (n < 0 || size == 0 || n > (int64_t)sizeof data / size) return fl_full(shape, 1, d);
    for (int64_t i = 0; i < given; i++) fuzz_element(d, data + i * size);
    for (int64_t i = given; i < n; i++)
        memcpy(data + i * size, data + i % given * size, (size_t)size);
    return fl_from_host(data, shape, d);
}

FUZZ_FN fl_tensor *fuzz_tensor(void) {
    const unsigned kind = fuzz_byte();
    if (kind == 255) return fl_num(fuzz_double());
    if (kind == 254) return fl_int(fuzz_int());
    const fl_dtype d = fuzz_dtype();
    return fuzz_fill(fuzz_shape(), d);
}

/* Indices in range of most axes, of that many dims of 1 to 3. */
FUZZ_FN fl_tensor *fuzz_index(int ndim) {
    int64_t data[16];
    fl_shape s = {ndim, {0}};
    unsigned dims = fuzz_byte();
    for (int i = 0; i < ndim && i < FL_MAX_DIMS; i++, dims /= 3) s.dim[i] = 1 + dims % 3;
    if (fl_shape_numel(s) > 16) return fl_full(s, 0, FL_I64);
    for (int i = 0; i < 16; i++) {
        const unsigned v = fuzz_byte();
        data[i] = v < 150 ? 0 : v < 250 ? (int64_t)(v % 3) : v % 2 ? -1 : 9;
    }
    return fl_from_host(data, s, FL_I64);
}

/* Few small images [n, c, h, w]; as well a kernel [o, c, kh, kw]. */
FUZZ_FN fl_tensor *fuzz_image(void) {
    const unsigned b = fuzz_byte();
    const fl_shape s = {4, {1 + (b & 1), 1 + (b >> 1 & 1), 1 + (b >> 2 & 7), 1 + (b >> 5 & 7)}};
    return fuzz_fill(s, fuzz_rarely(4) ? fuzz_dtype() : FL_F32);
}

__extension__ typedef __int128 fuzz_wide;

/* t is something that the library may hand out: its dims make sense and all its elements lie in
   its buffer. */
FUZZ_FN void fuzz_check_tensor(const fl_tensor *t) {
    if (t->obj.refs_ < 1) fuzz_bug("a tensor with %d references", t->obj.refs_);
    if (t->ndim < 0 || t->ndim > FL_MAX_DIMS) fuzz_bug("a tensor of %d dims", t->ndim);
    if (!fl_dtype_size(t->dtype)) fuzz_bug("a tensor of dtype %d", (int)t->dtype);
    const int64_t n = fl_shape_numel(fl_shape_of(t));
    if (n < 0 || n != fl_numel(t)) fuzz_bug("a tensor of %" PRId64 " elements", n);
    if (t->weak) {
        if (t->ndim) fuzz_bug("a weak number of %d dims", t->ndim);
        return;
    }
    if (!t->buffer) fuzz_bug("a tensor without a buffer");
    fuzz_wide low = t->offset, high = t->offset;
    for (int i = 0; i < t->ndim; i++) {
        const fuzz_wide reach = (fuzz_wide)(t->shape[i] - 1) * t->stride[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    if (n && (low < 0 || high >= (fuzz_wide)(t->buffer->bytes / fl_dtype_size(t->dtype))))
        fuzz_bug("a view beyond its buffer");
}

/* "f32 [2, 3]" of t on stderr, if asked to. */
FUZZ_FN void fuzz_show(const char *what, const fl_tensor *t) {
    char text[200];
    if (!fuzz_shows) return;
    if (!t)
        fprintf(stderr, "%s NULL", what);
    else
        fprintf(stderr, "%s %s%s %s", what, t->weak ? "weak " : "", fl_dtype_name(t->dtype),
                fl_shape_text(fl_shape_of(t), text, sizeof text));
}

/* Of the bytes of t's whole storage; 0 for what has none, or a large one. */
FUZZ_FN uint64_t fuzz_hash(const fl_tensor *t) {
    uint64_t h = 1469598103934665603u;
    if (!t || !t->buffer || t->buffer->bytes > 16384) return 0;
    const unsigned char *p = t->buffer->ptr;
    for (size_t i = 0; i < t->buffer->bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* ---- one input ---- */

/* Hash of all that the input computed: it may not depend on the pattern in fresh memory. */
static uint64_t fuzz_trace;

FUZZ_FN void fuzz_note(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) fuzz_trace = (fuzz_trace ^ p[i]) * 1099511628211u;
}

/* Ends a line of FUZZ_SHOW; the hash tells where two runs part. */
FUZZ_FN void fuzz_show_end(void) {
    const char *error = fl_error() ? fl_error() : "";
    if (fuzz_shows) fprintf(stderr, " %016" PRIx64 " %s\n", fuzz_trace, error);
}

/* Notes the elements of a small tensor, in row-major order. */
FUZZ_FN void fuzz_note_tensor(const fl_tensor *t) {
    int64_t at[FL_MAX_DIMS] = {0};
    const int64_t n = fl_numel(t);
    if (!t->buffer || n > 4096) return;
    const size_t size = fl_dtype_size(t->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t place = t->offset;
        for (int k = 0; k < t->ndim; k++) place += at[k] * t->stride[k];
        fuzz_note((const char *)t->buffer->ptr + place * (int64_t)size, size);
        for (int k = t->ndim - 1; k >= 0 && ++at[k] == t->shape[k]; k--) at[k] = 0;
    }
}

static int fuzz_raised; /* calls of the error handler */

static void fuzz_returns(const char *text, void *user) {
    (void)user;
    if (!text || !fl_error()) fuzz_bug("the handler was called without an error");
    fuzz_raised++;
}

static void fuzz_swallow(fl_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

/* Once: errors return, memory is ours, one thread (coverage then depends on the input alone). */
static void fuzz_prepare(void) {
    static fl_mem_manager manager = {.name = "fuzz", .get = fuzz_get, .put = fuzz_put};
    static bool ready;
    if (ready) return;
    ready = true;
    fuzz_shows = getenv("FUZZ_SHOW") != NULL;
    fl_heap_use(fuzz_heap, NULL); /* before any block exists */
    fl_set_error_handler(fuzz_returns, NULL);
    fl_log_set_sink(fuzz_swallow, NULL, FL_LOG_DEBUG);
    fl_set_threads(1);
    fl_mem_set_current(&manager);
}

/* Runs the harness over one input: whatever it did, nothing may be left when its scope ends. */
static void fuzz_run(const uint8_t *p, size_t n, unsigned char pattern) {
    const int64_t live = fl_live_tensors(), buffers = fl_mem_live_buffers(), in_use = fuzz_memory.in_use;
    const int64_t owned = fl_scope_size();
    fuzz_input.p = p;
    fuzz_input.left = n;
    fuzz_memory.pattern = pattern;
    fuzz_trace = 1469598103934665603u;
    fl_seed(1);
    fl_scope s = fl_scope_begin();
    fuzz_one();
    fuzz_faults(0, 0);
    fl_scope_end(&s);
    fl_error_clear();
    fuzz_doing = "end of the input";
    if (fl_live_tensors() != live) fuzz_bug("%" PRId64 " tensors are left", fl_live_tensors() - live);
    if (fl_mem_live_buffers() != buffers) fuzz_bug("%" PRId64 " buffers are left",
                                                   fl_mem_live_buffers() - buffers);
    if (fuzz_memory.in_use != in_use) fuzz_bug("bytes are left");
    if (fl_scope_size() != owned) fuzz_bug("the scope was not restored");
    if (fl_flags()) fuzz_bug("flags %" PRIu64 " are left", fl_flags());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_prepare();
    fuzz_memory.failed = false;
    fuzz_run(data, size, 0x55);
    if (size % 4) return 0;
    const uint64_t first = fuzz_trace;
    fuzz_run(data, size, 0xaa);
    /* A request that fails may be another one now, because the library's caches are warm. */
    if (!fuzz_memory.failed && fuzz_trace != first)
        fuzz_bug("a result depends on memory that was never written");
    return 0;
}

#if FUZZ_MAIN
/* xorshift64*; whole words of small bytes now and then, so that all lengths of programs occur. */
static uint64_t fuzz_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static void fuzz_seeded(uint64_t seed) {
    uint8_t data[1024];
    uint64_t state = seed * 11400714819323198485u + 1;
    const size_t n = 8 + fuzz_random(&state) % (sizeof data - 8);
    for (size_t i = 0; i < n; i++) data[i] = (uint8_t)(fuzz_random(&state) >> 32);
    LLVMFuzzerTestOneInput(data, n);
}

static void fuzz_file(const char *path) {
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f) fuzz_bug("%s cannot be read", path);
    const size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
}

int main(int argc, char **argv) {
    char *end = "x";
    long inputs = argc > 1 ? strtol(argv[1], &end, 10) : 2000;
    if (argc > 1 && *end) {
        for (int i = 1; i < argc; i++) fuzz_file(argv[i]);
        inputs = argc - 1;
    } else {
        const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
        for (long i = 0; i < inputs; i++) fuzz_seeded(seed + (uint64_t)i);
    }
    printf("%ld inputs\n1 passed, 0 failed\n", inputs);
    return 0;
}
#endif

#endif /* FUZZ_H */
/* MIT licence: see LICENSE. */
