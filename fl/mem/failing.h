/* fl/mem/failing.h - a fault-injection memory manager, for testing out-of-memory paths */
#ifndef FL_MEM_FAILING_H
#define FL_MEM_FAILING_H
#include "managers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A manager whose n-th request from now fails (n = 1: the next), with keep_failing all later ones too; other
   requests go to `inner` (NULL: the current manager). Free it by fl_mem_close. NULL after fl_fail. */
FL_API fl_mem_manager *fl_mem_failing(fl_mem_manager *inner, int64_t n, bool keep_failing);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_FAILING_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_FAILING) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_FAILING_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_FAILING_IMPL
#include "heap.h"

typedef struct fl__failing {
    fl_mem_manager table;
    fl_mem_manager *inner;
    int64_t n; /* gets left until the one that fails; atomic, as is refused */
    bool keep_failing;
    const fl_buffer *refused; /* the failed buffer: its second try, after the trim, must fail too */
} fl__failing;

static bool fl__failing_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    fl__failing *f = self->user;
    const fl_buffer *second_try = b;
    if (__atomic_compare_exchange_n(&f->refused, &second_try, NULL, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        return false;
    int64_t left = __atomic_sub_fetch(&f->n, 1, __ATOMIC_RELAXED);
    if (left > 0 || (left < 0 && !f->keep_failing)) return fl_mem_delegate(self, f->inner, b, info);
    __atomic_store_n(&f->refused, b, __ATOMIC_RELAXED);
    return false;
}

/* Reached only by buffers dropped before they were materialised: all others belong to the inner manager. */
static void fl__failing_put(fl_mem_manager *self, fl_buffer *b) {
    fl__failing *f = self->user;
    f->inner->put(f->inner, b);
}

static size_t fl__failing_trim(fl_mem_manager *self) {
    fl__failing *f = self->user;
    return f->inner->trim ? f->inner->trim(f->inner) : 0;
}

static void fl__failing_stats(fl_mem_manager *self, fl_mem_stats *out) {
    fl__failing *f = self->user;
    *out = fl_mem_stats_of(f->inner);
}

static void fl__failing_close(fl_mem_manager *self) {
    fl_heap_free(self->user);
}

static void fl__failing_reset_peak(fl_mem_manager *self) {
    fl__failing *f = self->user;
    fl_mem_stats_reset_peak(f->inner);
}

FL_API fl_mem_manager *fl_mem_failing(fl_mem_manager *inner, int64_t n, bool keep_failing) {
    fl__failing *f = fl_heap_alloc(sizeof *f);
    if (!f) return NULL;
    f->table = (fl_mem_manager){.name = "failing",
                                .get = fl__failing_get,
                                .put = fl__failing_put,
                                .trim = fl__failing_trim,
                                .stats = fl__failing_stats,
                                .reset_peak = fl__failing_reset_peak,
                                .close = fl__failing_close,
                                .user = f};
    f->inner = inner ? inner : fl_mem_current();
    f->n = n;
    f->keep_failing = keep_failing;
    return &f->table;
}

#endif
#endif

/* MIT licence: see LICENSE. */
