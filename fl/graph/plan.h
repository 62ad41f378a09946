/* fl/graph/plan.h - memory plan: offsets for values whose first and last use are known */
#ifndef FL_MEM_H
#include "../../fl_mem.h"
#endif
#ifndef FL_GRAPH_PLAN_H
#define FL_GRAPH_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

/* A value that needs `bytes` from step `first` to step `last`. */
typedef struct fl_plan_value {
    int64_t bytes;
    int first, last;
    int64_t offset; /* result: a multiple of FL_ALIGN, with FL_ALIGN readable bytes past its end */
} fl_plan_value;
/* Sets the offsets such that values that live at the same time do not overlap, largest value first, each at
   the lowest free offset (greedy by size: Pisarchyk and Lee, arXiv 2001.03288). Returns the bytes of all; -1
   after fl_fail. */
FL_API int64_t fl_plan_memory(fl_plan_value *value, int n);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_PLAN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_PLAN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_PLAN_IMPL
#define FL_GRAPH_PLAN_IMPL
#include <stdlib.h>

static int64_t fl__plan_size(const fl_plan_value *v) {
    return (v->bytes + 2 * FL_ALIGN - 1) & ~(int64_t)(FL_ALIGN - 1);
}

static int fl__plan_order(const void *x, const void *y) {
    const fl_plan_value *a = *(fl_plan_value *const *)x, *b = *(fl_plan_value *const *)y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return a < b ? -1 : a > b;
}

/* Lowest offset for v beside the n values of `placed`, which are sorted by offset; *at: where it belongs. */
static int64_t fl__plan_offset(const fl_plan_value *v, fl_plan_value *const *placed, int n, int *at) {
    int64_t offset = 0;
    for (int i = 0; i < n; i++) {
        const fl_plan_value *o = placed[i];
        if (o->last < v->first || v->last < o->first) continue;
        if (o->offset >= offset + fl__plan_size(v)) break;
        const int64_t end = o->offset + fl__plan_size(o);
        offset = end > offset ? end : offset;
    }
    for (*at = n; *at > 0 && placed[*at - 1]->offset > offset;) --*at;
    return offset;
}

FL_API int64_t fl_plan_memory(fl_plan_value *value, int n) {
    if (n <= 0) return 0;
    if (!fl_given(value, "fl_plan_memory", "the list of values")) return -1;
    fl_plan_value **order = fl_heap_alloc(2 * (size_t)n * sizeof *order);
    if (!order) return -1;
    fl_plan_value **placed = order + n;
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) order[i] = &value[i];
    qsort(order, (size_t)n, sizeof *order, fl__plan_order);
    for (int i = 0; i < n; i++) {
        fl_plan_value *v = order[i];
        int at;
        v->offset = fl__plan_offset(v, placed, i, &at);
        for (int k = i; k > at; k--) placed[k] = placed[k - 1];
        placed[at] = v;
        const int64_t end = v->offset + fl__plan_size(v);
        bytes = end > bytes ? end : bytes;
    }
    fl_heap_free(order);
    return bytes;
}

#endif
#endif
/* MIT licence: see LICENSE. */
