/* fl/mem/buffers.h - reference-counted bytes that a manager gives, moves and takes back */
#ifndef FL_MEM_BUFFERS_H
#define FL_MEM_BUFFERS_H
#include "devices.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FL_ALIGN 64 /* every buffer starts on this boundary and has as many readable bytes behind its end */

typedef struct fl_buffer fl_buffer;
typedef enum fl_buffer_state { FL_RESIDENT, FL_EVICTED, FL_LAZY } fl_buffer_state;

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
FL_API fl_buffer *fl_buffer_new_lazy(size_t bytes, bool (*restore)(fl_buffer *), void *tag);
/* Gives a buffer that is not resident its bytes from its manager. */
FL_API bool fl_buffer_fill(fl_buffer *b);
FL_API fl_buffer *fl_buffer_keep(fl_buffer *b);
FL_API void fl_buffer_drop(fl_buffer *b); /* NULL is fine */
/* a and b, which nobody has mapped, have each other's bytes from now on: a copy of large ones both ways that
   costs nothing. False, without an error, where only a copy does it: sizes differ, not both are large ones
   of the caching manager on the host, or one has several references, of which one may be lent out
   (fl_to_dlpack). Counts as a write into both. */
FL_API bool fl_buffer_swap(fl_buffer *a, fl_buffer *b);
/* A promise that the bytes stay as they are, for pointers into them too: backends may keep what they make of
   them, as packed weights, until b is freed or `on` is false, when nobody may be using b. A write that counts
   as one (version) ends it. */
FL_API bool fl_buffer_freeze(fl_buffer *b, bool on);
FL_API bool fl_buffer_is_frozen(const fl_buffer *b);
/* For backends, in any thread: what was made of a frozen b under that key, and stays b's, or NULL;  hands
   `made` over to b, whether that succeeds or not. */
FL_API fl_buffer *fl_buffer_cache_get(const fl_buffer *b, const void *key, size_t size);
FL_API bool fl_buffer_cache_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made);
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
/* Buffers alive now, whatever their manager: 0 at the end of a clean program. */
FL_API int64_t fl_mem_live(void);

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

#define FL__AWAY (-1)
#define FL__RESTORING (-2)

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
    fl_buffer *b = fl_given(m, "fl_buffer_from", "the manager") ? fl__buffer_blank(bytes) : NULL;
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
    fl_mem_manager *m = fl__manager_in_use();
    bool plain = m == &fl__caching && fl__is_small(bytes) && !(info && info->device) && !fl__tracing();
    fl_buffer *b = plain ? fl__small_take(bytes) : NULL;
    if (!b) return fl_buffer_from(m, bytes, info);
    b->manager = m;
    b->device = &fl__host;
    return fl__buffer_begin(b, bytes);
}

FL_API fl_buffer *fl_buffer_new_lazy(size_t bytes, bool (*restore)(fl_buffer *), void *tag) {
    if (!restore) {
        fl_fail("fl_buffer_new_lazy: restore is NULL");
        return NULL;
    }
    fl_buffer *b = fl__buffer_blank(bytes);
    if (!b) return NULL;
    b->manager = fl_mem_current();
    b->device = &fl__host;
    b->restore = restore;
    b->tag = tag;
    b->state = FL_LAZY;
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

FL_API fl_buffer *fl_buffer_cache_get(const fl_buffer *b, const void *key, size_t size) {
    if (!fl_buffer_is_frozen(b)) return NULL;
    for (const fl__made *m = __atomic_load_n(&b->made_, __ATOMIC_ACQUIRE); m; m = m->next)
        if (m->size == size && !memcmp(m->key, key, size)) return m->buffer;
    return NULL;
}

/* Two threads may make the same: the older one is never found again. */
FL_API bool fl_buffer_cache_add(fl_buffer *b, const void *key, size_t size, fl_buffer *made) {
    fl__made *m = fl_buffer_is_frozen(b) ? fl_heap_alloc(sizeof *m + size) : NULL;
    if (!m) {
        fl_buffer_drop(made);
        return fl_error() ? false : fl_fail("fl_buffer_cache_add: the buffer is not frozen");
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
    if (!fl_given(b, "fl_buffer_resident", "the buffer")) return;
    int pins = FL__AWAY;
    b->state = FL_RESIDENT;
    __atomic_compare_exchange_n(&b->pins_, &pins, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

FL_API int64_t fl_mem_live(void) {
    pthread_mutex_lock(&fl__lock);
    int64_t n = fl__live();
    pthread_mutex_unlock(&fl__lock);
    return n;
}

#endif
#endif

/* MIT licence: see LICENSE. */
