/* tests/heap.h - a heap that counts, fails on request and finds writes beyond a block; sweeps of faults */
#ifndef TESTS_HEAP_H
#define TESTS_HEAP_H
#include "../fl_tensor.h"
#include "test.h"

/* Requests since they were last set to 0; the one numbered fail_at, from 1, fails, and with for_ever all
   behind it. fl_heap_use(heap_fn, NULL) makes it the library's. */
static struct {
    int64_t calls, fail_at, bytes;
    int64_t live; /* blocks that were not freed; counted on Linux only */
    bool for_ever;
} heap;

/* Behind a block stands a pattern up to the end of what malloc gave, where its size and a mark are; blocks of
   another heap have no mark. */
enum { HEAP_PATTERN = 0xa5, HEAP_TAIL = 16 };
#ifdef __linux__
#include <malloc.h>
static const uint64_t heap_mark = 0x9e3779b97f4a7c15u;

static inline void *heap_guard(char *p, size_t bytes) {
    const uint64_t size = bytes, end = p ? malloc_usable_size(p) - HEAP_TAIL : 0;
    if (!p) return NULL;
    memset(p + bytes, HEAP_PATTERN, (size_t)(end - size));
    memcpy(p + end, &heap_mark, 8), memcpy(p + end + 8, &size, 8);
    __atomic_fetch_add(&heap.live, 1, __ATOMIC_RELAXED);
    return p;
}

/* Before a block is freed or moved. */
static inline void heap_check(char *p) {
    const size_t whole = p ? malloc_usable_size(p) : 0;
    uint64_t size;
    if (whole < HEAP_TAIL || memcmp(p + whole - HEAP_TAIL, &heap_mark, 8) != 0) return;
    __atomic_fetch_sub(&heap.live, 1, __ATOMIC_RELAXED);
    memcpy(&size, p + whole - 8, 8), memset(p + whole - HEAP_TAIL, 0, 8);
    for (size_t i = (size_t)size; i < whole - HEAP_TAIL; i++)
        if ((unsigned char)p[i] != HEAP_PATTERN) {
            printf("a block of %llu bytes was written at %zu\n", (unsigned long long)size, i);
            CHECK(!"a write beyond a block");
            return;
        }
}
#else
static inline void *heap_guard(char *p, size_t bytes) { return (void)bytes, p; }
static inline void heap_check(char *p) { (void)p; }
#endif

static inline void *heap_fn(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) {
        heap_check(p);
        free(p);
        return NULL;
    }
    const int64_t call = __atomic_add_fetch(&heap.calls, 1, __ATOMIC_RELAXED); /* of any thread */
    /* all that was ever asked for: at least what is in use */
    __atomic_fetch_add(&heap.bytes, (int64_t)bytes, __ATOMIC_RELAXED);
    const bool fails =
        heap.fail_at && (heap.for_ever ? call >= heap.fail_at : call == heap.fail_at);
    if (fails) return NULL;
    heap_check(p);
    return heap_guard(realloc(p, bytes + HEAP_TAIL + 1), bytes);
}

static inline void heap_fail_at(int64_t n) {
    heap.calls = 0, heap.fail_at = n;
}

static inline int64_t heap_sweep_once(bool (*action)(void), bool for_ever) {
    int64_t handles = fl_live_tensors(), buffers = test_live_buffers(), n = 0;
    for (bool done = false; !done && n < 1000;) {
        fl_scope s = fl_scope_begin();
        heap_fail_at(++n), heap.for_ever = for_ever;
        bool ok = action();
        done = heap.calls < n;
        heap.fail_at = 0;
        CHECK(ok ? !fl_error() || !done : fl_error() != NULL);
        if (done) CHECK(ok);
        fl_error_clear();
        fl_scope_end(&s);
        s = fl_scope_begin();
        CHECK(action());
        CHECK_NO_ERROR();
        fl_scope_end(&s);
        CHECK(fl_live_tensors() == handles && test_live_buffers() == buffers);
    }
    return n - 1;
}

/* Fails the n-th request for n = 1, 2, ... until the action succeeds without a failure: each failure is an
   error, nothing stays behind, and doing it again works. The second sweep finds caches as the first left
   them: a block more is a leak. Returns the number of points. */
static inline int64_t sweep_heap(bool (*action)(void), bool for_ever) {
    const int64_t points = heap_sweep_once(action, for_ever), live = heap.live;
    heap_sweep_once(action, for_ever);
    if (!CHECK(heap.live <= live)) printf("%lld blocks are left\n", (long long)(heap.live - live));
    return points;
}

#endif /* MIT licence: see LICENSE. */
