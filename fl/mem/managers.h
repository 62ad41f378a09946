/* fl/mem/managers.h - memory managers (allocators): selection, statistics, native manager, custom
   managers */
#ifndef FL_MEM_MANAGERS_H
#define FL_MEM_MANAGERS_H
#include "buffers.h"
#include "log.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_mem_stats {
    /* Bytes allocated by buffers, now and at the peak; the peak of blocks below 64 KiB is exact only up to
       the capacity of the thread caches. */
    int64_t in_use, peak_in_use;
    int64_t reserved, peak_reserved; /* bytes allocated from the device, now and at the peak */
    int64_t gets, puts, reuses;      /* allocations, frees, allocations served from the cache */
    int64_t device_gets;             /* allocations from the device */
    /* Of the cached memory, in bytes and blocks: fragmentation = 1 - largest_free / (reserved - in_use). */
    int64_t largest_free, free_blocks;
} fl_mem_stats;

/* A memory manager; a custom one takes about 40 lines. Its functions may be called from any thread. get may
   defer the allocation: then it sets restore and the state instead of ptr, and claims the buffer
   (fl_buffer_claim) if it makes it pageable. */
struct fl_mem_manager {
    const char *name;
    /* Sets b->ptr to b->bytes bytes of b->device, aligned to FL_ALIGN, plus FL_ALIGN readable ones; false if
       out of memory. A manager of the host's memory delegates other devices' buffers to the caching one. */
    bool (*get)(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info);
    void (*put)(fl_mem_manager *self, fl_buffer *b); /* frees b->ptr; b may not be resident */
    size_t (*trim)(fl_mem_manager *self); /* frees cached memory, returns its bytes; NULL: none */
    void (*stats)(fl_mem_manager *self, fl_mem_stats *out); /* NULL: zeros */
    void (*reset_peak)(fl_mem_manager *self); /* sets peaks to current values; NULL: nothing to do */
    void (*close)(fl_mem_manager *self); /* frees the manager; NULL: nothing to do */
    void *user;
};

/* Makes m (NULL: the caching manager) the manager of buffers created from now on, in all threads; returns
   the previous one. Buffers remember their manager, so this is safe at any time; a manager must outlive its
   buffers. Deferred calls run first, with the previous manager; if one fails, that is raised. */
FL_API fl_mem_manager *fl_mem_set_current(fl_mem_manager *m);
/* The manager of new buffers. */
FL_API fl_mem_manager *fl_mem_current(void);
/* Allocates from the device and frees to it, without a cache. */
FL_API fl_mem_manager *fl_mem_native(void);
/* Frees a manager; no effect on the native and the caching one. The current one is replaced by the default.
   Deferred calls run first, as their results may be its memory; if one fails, that is raised, and the manager
   is freed. */
FL_API void fl_mem_close(fl_mem_manager *m);
/* Statistics of m; m NULL, here and below: the current one. */
FL_API fl_mem_stats fl_mem_stats_of(fl_mem_manager *m);
/* Sets m's peaks to its current values. */
FL_API void fl_mem_stats_reset_peak(fl_mem_manager *m);
/* Logs m's usage, reuse and fragmentation by fl_log_message at level, in four lines. */
FL_API void fl_mem_report(fl_mem_manager *m, fl_log_level level);
/* Frees the cached memory of the current and the caching manager and of the calling thread; returns its
   bytes. */
FL_API size_t fl_mem_trim(void);
/* Marks the start of a training step, for fl_mem_info and traces; returns its number, from 1. */
FL_API int64_t fl_mem_step(void);
/* The number of the current step, 0 before the first. */
FL_API int64_t fl_mem_step_now(void);
/* For the get of a custom manager: delegates the buffer to `inner`, which will also free it. */
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

/* For the native and the caching manager, whose statistics are under fl__lock. */
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

FL_API fl_mem_manager *fl_mem_set_current(fl_mem_manager *m) {
    if (!fl__await_all_calls()) fl_raise();
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
    if (!fl__await_all_calls()) fl_raise(); /* results of deferred calls may be its memory */
    if (fl_mem_current() == m) fl_mem_set_current(NULL);
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
    fl_log_message(level, "memory (%s): in use %.2f MiB, peak %.2f; reserved %.2f MiB, peak %.2f",
                   m->name ? m->name : "unnamed", (double)s.in_use / mib,
                   (double)s.peak_in_use / mib, (double)s.reserved / mib,
                   (double)s.peak_reserved / mib);
    fl_log_message(
        level,
        "memory: %lld requests, %lld returned; %.1f %% served without the device (%lld trips)",
        (long long)s.gets, (long long)s.puts,
        s.gets ? 100.0 * (double)s.reuses / (double)s.gets : 0.0, (long long)s.device_gets);
    fl_log_message(
        level,
        "memory: idle %.2f MiB, %lld free blocks, the largest %.2f MiB: fragmentation %.1f %%",
        (double)idle / mib, (long long)s.free_blocks, (double)s.largest_free / mib,
        idle > 0 ? 100.0 * (1.0 - (double)s.largest_free / (double)idle) : 0.0);
    fl_log_message(level, "memory: %lld buffers alive", (long long)fl_mem_live_buffers());
}

#endif
#endif

/* MIT licence: see LICENSE. */
