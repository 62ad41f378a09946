/* fl/mem/managers.h - memory managers: which one serves, figures, the native one, one of your own */
#ifndef FL_MEM_MANAGERS_H
#define FL_MEM_MANAGERS_H
#include "buffers.h"
#include "log.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* Closes a manager (the shared ones stay). One that is in use is replaced by the default. */
FL_API void fl_mem_close(fl_mem_manager *m);
FL_API fl_mem_stats fl_mem_stats_of(fl_mem_manager *m); /* NULL: current */
FL_API void fl_mem_stats_reset_peak(fl_mem_manager *m);
/* Several lines of text about m's peak, reuse and fragmentation, through fl_message at level. */
FL_API void fl_mem_report(fl_mem_manager *m, fl_log_level level);
/* Returns all cached memory of the current manager and of the calling thread to the device; bytes
   returned. */
FL_API size_t fl_mem_trim(void);
/* Marks the start of the next training step in infos and traces; returns its number. */
FL_API int64_t fl_mem_step(void);
/* That number now. */
FL_API int64_t fl_mem_step_now(void);
/* For a get of your own: lets `inner` serve the buffer and take it back by itself. */
FL_API bool fl_mem_delegate(fl_mem_manager *self, fl_mem_manager *inner, fl_buffer *b,
                            const fl_mem_info *info);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_MANAGERS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_MANAGERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_MANAGERS_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_MANAGERS_IMPL
#include "shared.h"
#include "errors.h"

FL_API bool fl_mem_delegate(fl_mem_manager *self, fl_mem_manager *inner, fl_buffer *b,
                            const fl_mem_info *info) {
    if (!fl_given(inner, "fl_mem_delegate", "the manager") ||
        !fl_given(b, "fl_mem_delegate", "the buffer")) return false;
    b->manager = inner;
    if (inner->get(inner, b, info)) return true;
    b->manager = self;
    return false;
}

FL_PRIVATE int64_t fl__step; /* atomic */

FL_API int64_t fl_mem_step(void) {
    return __atomic_add_fetch(&fl__step, 1, __ATOMIC_RELAXED);
}
FL_API int64_t fl_mem_step_now(void) {
    return fl__load(&fl__step);
}

/* ---- the native manager ---- */

static fl_mem_stats fl__native_stats; /* under fl__lock */

/* Under fl__lock is what the shared managers count. */
void fl__reset_peak(fl_mem_stats *s) {
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

FL_PRIVATE fl_mem_manager fl__native = {.name = "native",
                                        .get = fl__native_get,
                                        .put = fl__native_put,
                                        .stats = fl__native_stats_of,
                                        .reset_peak = fl__native_reset_peak};

FL_API fl_mem_manager *fl_mem_native(void) {
    return &fl__native;
}

/* ---- all managers ---- */

FL_PRIVATE fl_mem_manager *fl__current = &fl__caching; /* atomic */

FL_API fl_mem_manager *fl_mem_use(fl_mem_manager *m) {
    return __atomic_exchange_n(&fl__current, m ? m : &fl__caching, __ATOMIC_ACQ_REL);
}

FL_API fl_mem_manager *fl_mem_current(void) {
    return fl__manager_in_use();
}

size_t fl__trim_all(fl_mem_manager *m, const fl_device *d) {
    size_t freed = m->trim && m != &fl__caching ? m->trim(m) : 0;
    if (d->manager && d->manager != m && d->manager->trim) freed += d->manager->trim(d->manager);
    return freed + fl__cache_trim(&fl__caching);
}

FL_API size_t fl_mem_trim(void) {
    return fl__trim_all(fl_mem_current(), &fl__host);
}

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

FL_API void fl_mem_report(fl_mem_manager *m, fl_log_level level) {
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

#endif
#endif

/* MIT licence: see LICENSE. */
