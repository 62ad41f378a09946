/* fl/mem/buffers.h - reference-counted buffers: creation, mapping, paging, streams, frozen contents */
#ifndef FL_MEM_BUFFERS_H
#define FL_MEM_BUFFERS_H
#include "devices.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FL_ALIGN 64 /* alignment of every buffer, and number of readable bytes past its end */

typedef struct fl_buffer fl_buffer;
typedef enum fl_buffer_state { FL_RESIDENT, FL_EVICTED, FL_LAZY } fl_buffer_state;

struct fl_buffer {
    void *ptr;                        /* the memory; NULL unless resident */
    size_t bytes;                     /* size as requested */
    fl_mem_manager *manager;          /* allocated the memory and frees it; may delegate the buffer to
                                         another */
    const fl_device *device;          /* where the memory is; never NULL */
    void *stream;                     /* of the last use (fl_buffer_use); NULL on host */
    uint32_t version;                 /* counts in-place writes; autograd compares it */
    bool pageable;                    /* its manager may evict it, so pins are counted */
    bool tight;                       /* foreign memory without readable bytes past its end */
    fl_buffer_state state;
    bool (*restore)(fl_buffer *self); /* makes it resident: sets ptr; false after fl_fail */
    void *tag;                        /* for use by the manager */
    uint64_t last_use;                /* tick of the last map; pageable buffers only */
    /* private */
    uint64_t frozen_;                 /* 1 + the version at fl_buffer_freeze; 0: not frozen */
    struct fl__cache_entry *cache_;           /* cache of data derived from the frozen contents */
    int refs_, pins_;                 /* refs_: references, see FL__WAITED_FOR; pins_: number of mappings; -1:
                                         not resident; -2: being restored */
    int64_t slot_;                    /* index in a list of deferred calls */
    fl_buffer *next_;
};

/* Information about a request, passed to the manager. */
typedef struct fl_mem_info {
    const fl_device *device; /* NULL: host */
    void *stream;
    const char *op;          /* the requesting op, NULL if none */
    int64_t step;            /* fl_mem_step's count */
    int ndim;
    const int64_t *shape;
    int lifetime;            /* hint: 0 unknown; lives until 1 the op (workspace), 2 the step ends; 3
                                persistent */
} fl_mem_info;

/* An uninitialised buffer with one reference, from the current manager. info may be NULL. NULL after fl_fail
   if out of memory even after all caches were trimmed. Does not call the error handler. */
FL_API fl_buffer *fl_buffer_new(size_t bytes, const fl_mem_info *info);
/* fl_buffer_new from manager m. */
FL_API fl_buffer *fl_buffer_from(fl_mem_manager *m, size_t bytes, const fl_mem_info *info);
/* A buffer on a device (NULL: the host) that is materialised on its first map, by restore(b): it calls
   fl_buffer_fill(b, NULL), so that the memory comes from the current manager, then writes b->ptr, using
   b->tag. The tag belongs to the caller until then; a paging manager may overwrite it in fill, so read it
   first if one may be in use. */
FL_API fl_buffer *fl_buffer_new_lazy(size_t bytes, const fl_device *device, bool (*restore)(fl_buffer *),
                                     void *tag);
/* Allocates the memory of a buffer that is not resident, from its manager. info (may be NULL) describes the
   request; the device is b's. */
FL_API bool fl_buffer_fill(fl_buffer *b, const fl_mem_info *info);
/* Adds a reference; returns b. NULL passes. */
FL_API fl_buffer *fl_buffer_keep(fl_buffer *b);
/* Removes a reference; the last one frees the buffer. NULL is allowed. */
FL_API void fl_buffer_drop(fl_buffer *b);
/* Swaps the storage of a and b, which must not be mapped: exchanges large contents without copying. Counts
   as a write into both. Returns false, without an error, where only a copy can do it: the sizes differ, a
   buffer is not a large host buffer of the caching manager, or it has further references (one may have been
   exported by fl_to_dlpack). */
FL_API bool fl_buffer_swap(fl_buffer *a, fl_buffer *b);
/* Promises that the contents do not change, through raw pointers either, so that backends may cache data
   derived from them, such as packed weights. Ends when b is freed, by a write that increments version, or
   with on false, which must not be called while b is in use. */
FL_API bool fl_buffer_freeze(fl_buffer *b, bool on);
/* True from fl_buffer_freeze until a write. */
FL_API bool fl_buffer_is_frozen(const fl_buffer *b);
/* For backends, in any thread: the derived buffer cached in a frozen b under key, owned by b; NULL if
   none. */
FL_API fl_buffer *fl_buffer_cache_get(const fl_buffer *b, const void *key, size_t size);
/* Caches `made` in a frozen b under key; takes ownership of `made`, even on failure. False with an error. */
FL_API bool fl_buffer_cache_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made);
/* The memory, resident and pinned until the matching unmap; NULL after fl_fail if it cannot be restored. */
FL_API void *fl_buffer_map(fl_buffer *b);
/* Releases a mapping. */
FL_API void fl_buffer_unmap(fl_buffer *b);
/* For backends: call before enqueuing work on b into `stream`. The stream waits for the last use, if that
   was in another stream, and becomes the last user; when b is freed, its manager reuses the memory only
   after that work. False after an error of the device. Only one thread at a time may use a buffer. */
FL_API bool fl_buffer_use(fl_buffer *b, void *stream);
/* For managers: claims a resident, unmapped, pageable buffer for eviction; then save the contents of b->ptr,
   free it, set it NULL and state FL_EVICTED. False if b is mapped or not resident. Hold the manager's lock
   from the claim until the state is FL_EVICTED, and take it in restore and put: meanwhile another thread may
   map or drop the buffer, and must wait there. If the manager cancels the eviction, restore finds b->ptr
   set. */
FL_API bool fl_buffer_claim(fl_buffer *b);
/* For managers, after a claim or in restore: marks b resident, b->ptr is valid again. */
FL_API void fl_buffer_resident(fl_buffer *b);
/* Live buffers of all managers: 0 at the end of a program without leaks. */
FL_API int64_t fl_mem_live_buffers(void);

/* Internal to fl. A list of deferred calls holds each buffer of its calls by one reference that counts
   FL__WAITED_FOR, so that every op and host access sees in refs_ that calls wait for the buffer: to make its
   contents, to write or to read it. fl__run_waiting, set by fl_graph.h, runs the lists in the way of an
   access, all lists if b is NULL; false after an error. */
#define FL__WAITED_FOR (1 << 20)
/* Adds or removes such a reference. */
FL_PRIVATE void fl__buffer_wait(fl_buffer *b, bool waits);
/* fl_buffer_map after fl__await_calls. */
FL_PRIVATE void *fl__buffer_map(fl_buffer *b);
/* Gives a lazy buffer its memory without its restore: it becomes what fl_buffer_new returns. info->device is
   b's. */
FL_PRIVATE bool fl__buffer_arrive(fl_buffer *b, const fl_mem_info *info);
/* Gives a lazy buffer the memory of `from`, of the same size, which only a list holds, and which must forget
   it before it is dropped. False if that is not possible. */
FL_PRIVATE bool fl__buffer_steal(fl_buffer *to, const fl_buffer *from);
static inline void fl__buffer_forget(fl_buffer *stolen) {
    stolen->ptr = NULL;
}
/* References but for those of lists. */
static inline int fl_buffer_refs(const fl_buffer *b) {
    return __atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) % FL__WAITED_FOR;
}
#ifndef __cplusplus
FL__PRIVATE_VARIABLE bool (*fl__run_waiting)(fl_buffer *b, bool write); /* atomic; NULL: no list yet */
static inline bool fl__is_waited_for(const fl_buffer *b) {
    return __builtin_expect(__atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) >= FL__WAITED_FOR, 0);
}
/* Before an access to b outside of the list: runs the calls that must come first. */
static inline bool fl__await_calls(fl_buffer *b, bool write) {
    return !b || !fl__is_waited_for(b) || __atomic_load_n(&fl__run_waiting, __ATOMIC_RELAXED)(b, write);
}
/* Before a change that deferred calls of any thread must not see: of a setting, or the end of a manager. */
static inline bool fl__await_all_calls(void) {
    bool (*run)(fl_buffer *, bool) = __atomic_load_n(&fl__run_waiting, __ATOMIC_RELAXED);
    return !run || run(NULL, true);
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_BUFFERS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_BUFFERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_BUFFERS_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_BUFFERS_IMPL
#include "thread_cache.h"
#include "errors.h"
#include "heap.h"
#include <string.h>

FL_PRIVATE pthread_cond_t fl__restored = PTHREAD_COND_INITIALIZER;

#define FL__NOT_RESIDENT (-1)
#define FL__RESTORING (-2)

/* Second and last try, after a trim. On success the error of the first try is cleared, unless an error was
   pending before. */
static FL__COLD bool fl__retry_get(fl_mem_manager *m, fl_buffer *b, const fl_mem_info *info, bool failed) {
    if (b->bytes <= SIZE_MAX / 4) {
        fl__trim_all(m, b->device);
        b->manager = m;
        if (m->get(m, b, info)) {
            if (!failed) fl_error_clear();
            return true;
        }
    }
    m = b->device == &fl__host ? m : b->manager; /* the manager whose statistics explain the failure */
    fl_mem_stats s = fl_mem_stats_of(m);
    return fl_fail("fl_buffer_new: out of memory: asked for %zu bytes, in use %lld, reserved %lld, "
                   "largest free %lld (manager %s)",
                   b->bytes, (long long)s.in_use, (long long)s.reserved, (long long)s.largest_free,
                   m->name ? m->name : "unnamed");
}

/* Allocates the memory of b from m, which may delegate to another manager. Without info, the thread's own is
   used: its thread record exists, because b came from it. */
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

/* Initialises all fields but ptr, manager and device. Field by field, because compilers turn a struct
   literal into a slow string instruction. */
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
    fl_buffer *b = fl_given(m, "fl_buffer_from", "the manager") ? fl__buffer_blank(bytes) : NULL;
    if (!b) return NULL;
    if (!fl__get(m, b, info)) {
        fl__record_put(FL__RECORD_BUFFER, b);
        return NULL;
    }
    /* Another thread may already be evicting a pageable buffer: its claim has set the count. */
    if (!b->pageable && b->state != FL_RESIDENT) b->pins_ = FL__NOT_RESIDENT;
    return b;
}

/* Fast path: small buffers of the default manager come ready-made from this thread's bin. */
FL_API fl_buffer *fl_buffer_new(size_t bytes, const fl_mem_info *info) {
    fl_mem_manager *m = fl__manager_in_use();
    bool plain = m == &fl__caching && fl__is_small(bytes) && !(info && info->device) && !fl__tracing();
    fl_buffer *b = plain ? fl__small_take(bytes) : NULL;
    if (!b) return fl_buffer_from(m, bytes, info);
    b->manager = m;
    b->device = &fl__host;
    return fl__buffer_begin(b, bytes);
}

FL_API fl_buffer *fl_buffer_new_lazy(size_t bytes, const fl_device *device, bool (*restore)(fl_buffer *),
                                     void *tag) {
    if (!restore) {
        fl_fail("fl_buffer_new_lazy: restore is NULL");
        return NULL;
    }
    fl_buffer *b = fl__buffer_blank(bytes);
    if (!b) return NULL;
    b->manager = fl_mem_current();
    b->device = device ? device : &fl__host;
    b->restore = restore;
    b->tag = tag;
    b->state = FL_LAZY;
    b->pins_ = FL__NOT_RESIDENT;
    return b;
}

FL_API bool fl_buffer_fill(fl_buffer *b, const fl_mem_info *info) {
    if (!b) return fl_fail("fl_buffer_fill: the buffer is NULL");
    fl_mem_info request = info ? *info : (fl_mem_info){.step = fl__load(&fl__step)};
    request.device = b->device;
    return b->ptr || fl__get(b->manager, b, &request);
}

FL_PRIVATE bool fl__buffer_arrive(fl_buffer *b, const fl_mem_info *info) {
    bool (*restore)(fl_buffer *) = b->restore;
    void *tag = b->tag;
    b->restore = NULL, b->tag = NULL, b->state = FL_RESIDENT;
    if (!fl__get(b->manager, b, info)) {
        b->restore = restore, b->tag = tag, b->state = FL_LAZY;
        return false;
    }
    if (b->state == FL_RESIDENT) __atomic_store_n(&b->pins_, 0, __ATOMIC_RELEASE);
    return true;
}

/* True for a resident host buffer of the caching manager. */
static bool fl__is_plain(const fl_buffer *b) {
    return b && b->manager == &fl__caching && b->device == &fl__host && !b->pageable && b->ptr;
}

FL_PRIVATE bool fl__buffer_steal(fl_buffer *to, const fl_buffer *from) {
    if (to->state != FL_LAZY || !fl__is_plain(from) || fl__tracing() || to->manager != from->manager ||
        to->device != from->device || to->bytes != from->bytes ||
        __atomic_load_n(&from->refs_, __ATOMIC_ACQUIRE) != FL__WAITED_FOR)
        return false;
    to->ptr = from->ptr;
    to->restore = NULL, to->tag = NULL, to->state = FL_RESIDENT;
    __atomic_store_n(&to->pins_, 0, __ATOMIC_RELEASE);
    return true;
}

FL_API fl_buffer *fl_buffer_keep(fl_buffer *b) {
    if (b) __atomic_fetch_add(&b->refs_, 1, __ATOMIC_RELAXED);
    return b;
}

FL_API bool fl_buffer_swap(fl_buffer *a, fl_buffer *b) {
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

typedef struct fl__cache_entry {
    struct fl__cache_entry *next;
    fl_buffer *buffer;
    size_t size;
    char key[];
} fl__cache_entry;

static FL__COLD void fl__made_drop(fl_buffer *b) {
    for (fl__cache_entry *m = b->cache_, *next; m; m = next) {
        next = m->next;
        fl_buffer_drop(m->buffer);
        fl_heap_free(m);
    }
    b->cache_ = NULL;
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

FL_API fl_buffer *fl_buffer_cache_get(const fl_buffer *b, const void *key, size_t size) {
    if (!fl_buffer_is_frozen(b)) return NULL;
    for (const fl__cache_entry *m = __atomic_load_n(&b->cache_, __ATOMIC_ACQUIRE); m; m = m->next)
        if (m->size == size && !memcmp(m->key, key, size)) return m->buffer;
    return NULL;
}

/* If two threads add the same key, the older entry is never found again. */
FL_API bool fl_buffer_cache_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made) {
    fl__cache_entry *m = fl_buffer_is_frozen(b) ? fl_heap_alloc(sizeof *m + size) : NULL;
    if (!m) {
        fl_buffer_drop(made);
        return fl_error() ? false : fl_fail("fl_buffer_cache_add: the buffer is not frozen");
    }
    m->buffer = made, m->size = size, m->next = __atomic_load_n(&b->cache_, __ATOMIC_ACQUIRE);
    memcpy(m->key, key, size);
    while (!__atomic_compare_exchange_n(&b->cache_, &m->next, m, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {}
    return true;
}

static void fl__buffer_free(fl_buffer *b) {
    if (b->cache_) fl__made_drop(b);
    /* Known to a manager, which may be evicting it if it is pageable. */
    bool held = b->pageable || b->ptr;
    if (held && fl__tracing()) fl__trace_add(FL__PUT, b, NULL);
    if (fl__is_plain(b) && fl__is_small(b->bytes) && fl__small_put(b)) return;
    if (held) b->manager->put(b->manager, b);
    fl__record_put(FL__RECORD_BUFFER, b);
}

FL_API void fl_buffer_drop(fl_buffer *b) {
    if (b && (__atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) == 1 ||
              !__atomic_sub_fetch(&b->refs_, 1, __ATOMIC_ACQ_REL)))
        fl__buffer_free(b);
}

FL_PRIVATE bool (*fl__run_waiting)(fl_buffer *b, bool write);

FL_PRIVATE void fl__buffer_wait(fl_buffer *b, bool waits) {
    if (waits) __atomic_fetch_add(&b->refs_, FL__WAITED_FOR, __ATOMIC_RELAXED);
    else if (__atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) == FL__WAITED_FOR ||
             !__atomic_sub_fetch(&b->refs_, FL__WAITED_FOR, __ATOMIC_ACQ_REL))
        fl__buffer_free(b);
}

FL_API bool fl_buffer_use(fl_buffer *b, void *stream) {
    if (!b) return fl_fail("fl_buffer_use: the buffer is NULL");
    if (b->stream == stream) return true;
    const fl_device *d = b->device;
    if (d->wait && !d->wait(d, stream, b->stream))
        return fl_fail("fl_buffer_use: device %s: waiting for another stream failed", d->name);
    b->stream = stream;
    return true;
}

/* This thread has set pins_ to FL__RESTORING; other threads wait on fl__restored. */
static bool fl__restore(fl_buffer *b) {
    bool ok = b->restore && b->restore(b);
    if (ok && b->state != FL_RESIDENT)
        b->state = FL_RESIDENT; /* written only if the manager has not set it */
    pthread_mutex_lock(&fl__lock);
    __atomic_store_n(&b->pins_, ok ? b->pageable : FL__NOT_RESIDENT, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&fl__restored);
    pthread_mutex_unlock(&fl__lock);
    if (ok && fl__tracing()) fl__trace_add(FL__RESTORE, b, NULL);
    return ok || fl_fail("fl_buffer_map: cannot restore a buffer of %zu bytes", b->bytes);
}

static void fl__await_restored(const fl_buffer *b) {
    pthread_mutex_lock(&fl__lock);
    while (__atomic_load_n(&b->pins_, __ATOMIC_ACQUIRE) == FL__RESTORING)
        pthread_cond_wait(&fl__restored, &fl__lock);
    pthread_mutex_unlock(&fl__lock);
}

/* Pins a buffer that may not be resident; pins are counted only if it is pageable. */
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

FL_PRIVATE void *fl__buffer_map(fl_buffer *b) {
    static int64_t tick;
    bool plain = __atomic_load_n(&b->pins_, __ATOMIC_ACQUIRE) >= 0 && !b->pageable;
    if (!plain && !fl__pin(b)) return NULL;
    if (b->pageable) {
        uint64_t now = (uint64_t)__atomic_add_fetch(&tick, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&b->last_use, now, __ATOMIC_RELAXED);
    }
    if (fl__tracing()) fl__trace_add(FL__MAP, b, NULL);
    return b->ptr;
}

FL_API void *fl_buffer_map(fl_buffer *b) {
    return fl_given(b, "fl_buffer_map", "the buffer") && fl__await_calls(b, true) ? fl__buffer_map(b) : NULL;
}

FL_API void fl_buffer_unmap(fl_buffer *b) {
    if (b && b->pageable) __atomic_sub_fetch(&b->pins_, 1, __ATOMIC_RELEASE);
}

FL_API bool fl_buffer_claim(fl_buffer *b) {
    int pins = 0;
    return b && b->pageable &&
           __atomic_compare_exchange_n(&b->pins_, &pins, FL__NOT_RESIDENT, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* During a restore (FL__RESTORING) fl__restore sets the count instead. */
FL_API void fl_buffer_resident(fl_buffer *b) {
    if (!fl_given(b, "fl_buffer_resident", "the buffer")) return;
    int pins = FL__NOT_RESIDENT;
    b->state = FL_RESIDENT;
    __atomic_compare_exchange_n(&b->pins_, &pins, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

FL_API int64_t fl_mem_live_buffers(void) {
    pthread_mutex_lock(&fl__lock);
    int64_t n = fl__live();
    pthread_mutex_unlock(&fl__lock);
    return n;
}

#endif
#endif

/* MIT licence: see LICENSE. */
