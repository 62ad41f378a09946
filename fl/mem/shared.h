/* fl/mem/shared.h - internals shared by the implementations of fl/mem/: global lock, clock, private
   functions */
#ifndef FL_MEM_SHARED_H
#define FL_MEM_SHARED_H
#ifndef FL_MEM_H /* compiling one file (FL_IMPL_ONLY): include its dependencies; otherwise fl_mem.h has
                    included all */
#include "errors.h"
#include "heap.h"
#include "managers.h"
#include "records.h"
#endif

#if defined(_WIN32) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1
#endif
#include <pthread.h>
#include <time.h>
#ifndef _WIN32
#include <sys/mman.h>
#endif

#if !defined(_WIN32) && (!defined(MAP_ANONYMOUS) || !defined(CLOCK_MONOTONIC))
/* A system header was included first under a strict -std=, which hides mmap and clock_gettime. */
#error "fl: include fl first in the file that defines FL_IMPLEMENTATION, or add -D_GNU_SOURCE"
#endif

#define FL__TEXT 1024

/* Global lock for all shared state except the thread pool: settings, thread records, caches, trace. */
FL__PRIVATE_VARIABLE pthread_mutex_t fl__lock;

static inline int64_t fl__load(const int64_t *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

/* Adds to a counter that only this thread writes but others read: needs no read-modify-write instruction. */
static inline void fl__bump(int64_t *p, int64_t delta) {
    __atomic_store_n(p, *p + delta, __ATOMIC_RELAXED);
}

static inline int64_t fl__nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* heap.h */
struct fl__heap {
    fl_heap_fn fn; /* atomic; stored after user */
    void *user;
};
FL__PRIVATE_VARIABLE struct fl__heap fl__heap;
FL_PRIVATE void *fl__heap_raw(void *p, size_t bytes);

/* threads.h */
FL__PRIVATE_VARIABLE _Thread_local bool fl__inside_task;
#ifdef __linux__
FL_PRIVATE int64_t fl__system_number(const char *path, long long *second);
#endif
FL_PRIVATE void fl__pool_forget(void);
FL_PRIVATE void fl__pool_end(void);

/* records.h: registers the thread-exit and fork handlers, once. */
FL_PRIVATE void fl__setup(void);

/* devices.h, managers.h, caching.h */
FL__PRIVATE_VARIABLE const fl_device fl__host;
FL__PRIVATE_VARIABLE fl_mem_manager fl__native;
FL__PRIVATE_VARIABLE fl_mem_manager fl__caching;
FL__PRIVATE_VARIABLE fl_mem_manager *fl__current; /* atomic */
FL__PRIVATE_VARIABLE int64_t fl__step;            /* atomic */
FL_PRIVATE void fl__reset_peak(fl_mem_stats *s);
FL_PRIVATE size_t fl__cache_trim(fl_mem_manager *self);
FL_PRIVATE size_t fl__trim_all(fl_mem_manager *m, const fl_device *d);

/* fl_mem_current, inlined into buffer creation. */
static inline fl_mem_manager *fl__manager_in_use(void) {
    return __atomic_load_n(&fl__current, __ATOMIC_ACQUIRE);
}

static inline void fl__stats_took(fl_mem_stats *s, int64_t bytes) {
    s->in_use += bytes;
    if (s->in_use > s->peak_in_use) s->peak_in_use = s->in_use;
}

static inline void fl__stats_reserved(fl_mem_stats *s, int64_t bytes) {
    s->reserved += bytes;
    s->device_gets++;
    if (s->reserved > s->peak_reserved) s->peak_reserved = s->reserved;
}

/* trace.h */
typedef enum fl__event_kind { FL__GET, FL__PUT, FL__MAP, FL__RESTORE } fl__event_kind;
typedef struct fl__event {
    int64_t time, step;
    size_t bytes;
    const void *ptr;
    int thread;
    fl__event_kind kind;
    char op[24];
} fl__event;
struct fl__trace {
    bool on;           /* atomic */
    fl__event *events; /* this and the rest under fl__lock */
    int64_t n, cap, max, lost;
};
FL__PRIVATE_VARIABLE struct fl__trace fl__trace;
FL_PRIVATE void fl__trace_add(fl__event_kind kind, const fl_buffer *b, const char *op);

static inline bool fl__tracing(void) {
    return __builtin_expect(__atomic_load_n(&fl__trace.on, __ATOMIC_RELAXED), 0);
}

#endif /* FL_MEM_SHARED_H */

/* MIT licence: see LICENSE. */
