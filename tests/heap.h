/* heap.h - a heap that counts and fails when a test says so, and a sweep over all its failures */
#ifndef TESTS_HEAP_H
#define TESTS_HEAP_H
#include "../fl_tensor.h"
#include "test.h"

/* Requests since they were last set to 0; the one numbered fail_at, from 1, fails, and with for_ever all
   behind it. fl_heap_use(heap_fn, NULL) makes it the library's. */
static struct {
    int64_t calls, fail_at, bytes;
    bool for_ever;
} heap;

static inline void *heap_fn(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) {
        free(p);
        return NULL;
    }
    const int64_t call = __atomic_add_fetch(&heap.calls, 1, __ATOMIC_RELAXED); /* of any thread */
    /* all that was ever asked for: at least what is in use */
    __atomic_fetch_add(&heap.bytes, (int64_t)bytes, __ATOMIC_RELAXED);
    const bool fails =
        heap.fail_at && (heap.for_ever ? call >= heap.fail_at : call == heap.fail_at);
    return fails ? NULL : realloc(p, bytes);
}

static inline void heap_fail_at(int64_t n) {
    heap.calls = 0, heap.fail_at = n;
}

/* Fails the n-th request for n = 1, 2, ... until the action succeeds without a failure: each
   failure is an error, nothing stays behind, and doing it again works. Returns the number of
   points. */
static inline int64_t sweep_heap(bool (*action)(void), bool for_ever) {
    int64_t handles = fl_live(), buffers = fl_mem_live(), n = 0;
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
        CHECK(fl_live() == handles && fl_mem_live() == buffers);
    }
    return n - 1;
}

#endif /* MIT licence: see LICENSE. */
