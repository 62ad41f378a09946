/* tests/cost.h - the cost of reading a file: peak memory and CPU time, and their limits by file size

   cost_begin makes the library's heap and buffers count what is asked for and refuse what exceeds a budget.
   Memory that libpng, libjpeg or libsndfile take from malloc is not counted. */
#ifndef TESTS_COST_H
#define TESTS_COST_H
#include "../fl_tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A file of n bytes may take 64 n + 1 MiB of memory, and 1 s of CPU time per MB. */
static inline int64_t cost_memory_limit(int64_t n) {
    return 64 * n + (1 << 20);
}
/* 0.1 s more covers what does not depend on the file; sanitizers and -O0 slow it down. */
static inline double cost_seconds_limit(int64_t n) {
    const double limit = 0.1 + (double)n * 1e-6;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    return 20 * limit;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return 20 * limit;
#endif
#endif
    return limit;
}

/* peak counts requests whether or not they were granted, so a refusal cannot hide one. */
static struct {
    int64_t in_use, peak, budget;
} cost;

static inline bool cost_take(int64_t bytes) {
    const int64_t now = __atomic_add_fetch(&cost.in_use, bytes, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&cost.peak, __ATOMIC_RELAXED);
    while (now > peak && !__atomic_compare_exchange_n(&cost.peak, &peak, now, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {}
    if (bytes <= 0 || now <= cost.budget) return true;
    __atomic_sub_fetch(&cost.in_use, bytes, __ATOMIC_RELAXED);
    return false;
}

/* The size of a block stands in front of it. */
static inline void *cost_heap(void *user, void *p, size_t bytes) {
    enum { FRONT = 16 };
    char *block = p ? (char *)p - FRONT : NULL;
    const int64_t before = block ? *(int64_t *)(void *)block : 0;
    (void)user;
    if (!bytes) {
        cost_take(-before);
        free(block);
        return NULL;
    }
    if (bytes > INT64_MAX / 2 || !cost_take((int64_t)bytes - before)) return NULL;
    char *grown = realloc(block, FRONT + bytes);
    if (!grown) return cost_take(before - (int64_t)bytes), NULL;
    *(int64_t *)(void *)grown = (int64_t)bytes;
    return grown + FRONT;
}

static inline bool cost_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self, (void)info;
    if (b->bytes > INT64_MAX / 2 || !cost_take((int64_t)b->bytes)) return false;
    b->ptr = aligned_alloc(FL_ALIGN, (b->bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN);
    return b->ptr || (cost_take(-(int64_t)b->bytes), false);
}

static inline void cost_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    cost_take(-(int64_t)b->bytes);
    free(b->ptr);
}

/* Before the library is used: its blocks cannot change heaps. */
static inline void cost_begin(void) {
    static fl_mem_manager manager = {.name = "cost", .get = cost_get, .put = cost_put};
    cost.budget = INT64_MAX / 2;
    fl_heap_use(cost_heap, NULL);
    fl_mem_set_current(&manager);
    fl_scope all = fl_scope_begin(); /* a list of deferred calls keeps its memory: that of a full one */
    fl_tensor *x = fl_ones(FL_SHAPE(2000), FL_F32);
    for (int64_t i = 0; i < 1100; i++) {
        fl_scope s = fl_scope_begin();
        fl_add(fl_slice(x, 0, i, i + 9, 1), fl_slice(x, 0, i + 1, i + 10, 1));
        fl_scope_end(&s);
    }
    fl_scope_end(&all);
}

static inline double cost_cpu_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

/* CPU seconds of a fixed piece of work, over those of the machine that the limits were set on (0.065 s on a
   quiet Xeon with AMX); at least 1. A busy or older machine takes more for the same work. */
static inline double cost_slowness(void) {
    static uint32_t table[1 << 18];
    const double start = cost_cpu_seconds();
    uint32_t at = 1;
    for (int i = 0; i < 6000000; i++) at = at * 1664525u + 1013904223u + (table[at >> 14] += at);
    return fmax(1, (cost_cpu_seconds() - start) / 0.065) + 0 * at;
}

/* Calls read(path), with a file of n bytes there, and again up to twice if only the time exceeded its limit
   on this machine. False, after a line that says what exceeded its limit. */
static inline bool cost_check(const char *format, void (*read)(const char *path), const char *path,
                              int64_t n) {
    const int64_t before = cost.in_use, limit = cost_memory_limit(n);
    cost.peak = before;
    cost.budget = before + 2 * limit; /* a reader without bounds must not take the machine's memory */
    double seconds = INFINITY, most = cost_seconds_limit(n);
    for (int i = 0; i < 3 && seconds > most; i++) {
        if (i) most = cost_seconds_limit(n) * cost_slowness();
        const double start = cost_cpu_seconds();
        fl_scope s = fl_scope_begin();
        read(path);
        fl_sync(NULL); /* deferred calls */
        fl_error_clear();
        fl_scope_end(&s);
        seconds = fmin(seconds, cost_cpu_seconds() - start);
    }
    const int64_t peak = cost.peak - before;
    cost.budget = INT64_MAX / 2;
    const bool ok = peak <= limit && seconds <= most;
    printf("  %-40s %9lld bytes: %11lld of memory (limit %lld), %.3f s (limit %.2f)%s\n", format,
           (long long)n,
           (long long)peak, (long long)limit, seconds, most, ok ? "" : "  EXCEEDED");
    return ok;
}

#endif /* MIT licence: see LICENSE. */
