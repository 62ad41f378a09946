/* fl/ops/order.h - sort, topk, unique, searchsorted, isin, nonzero

   Records of the op table: sort (fl_sort_args) x -> y, i64 index: stable along one axis, NaN largest, y = x
   at index; if y is shorter along the axis, its first elements. nonzero x b8 -> y i64 [n, ndim]. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ORDER_H
#define FL_OPS_ORDER_H

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts along axis, stable; NaN is the largest. *index (may be NULL): the i64 index in x of each element. */
FL_API fl_tensor *fl_sort(fl_tensor *x, int axis, bool descending, fl_tensor **index);
FL_API fl_var *fv_sort(fl_var *x, int axis, bool descending, fl_tensor **index);
/* The i64 indices of fl_sort. */
FL_API fl_tensor *fl_argsort(fl_tensor *x, int axis, bool descending);
/* The k largest (or smallest) along axis, sorted; *index (may be NULL) as of fl_sort. Error if k exceeds the
   axis. */
FL_API fl_tensor *fl_topk(fl_tensor *x, int64_t k, int axis, bool smallest, fl_tensor **index);
FL_API fl_var *fv_topk(fl_var *x, int64_t k, int axis, bool smallest, fl_tensor **index);
/* Coordinates of the nonzero elements, i64 [n, ndim], in row-major order. Waits for x. */
FL_API fl_tensor *fl_nonzero(fl_tensor *x);
/* torch.unique: the distinct elements, sorted; each NaN is distinct. *inverse (x's shape): the index of each
   element of x in the result; *counts: the number of elements equal to each. Both are i64 and may be NULL.
   Waits for x. */
FL_API fl_tensor *fl_unique(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts);
/* One element of each run of equal elements in row-major order; *inverse and *counts as above. Waits for
   x. */
FL_API fl_tensor *fl_unique_consecutive(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts);
/* The same for the slices of x along axis, compared in row-major order: inverse and counts are vectors. */
FL_API fl_tensor *fl_unique_dim(fl_tensor *x, int axis, fl_tensor **inverse, fl_tensor **counts);
FL_API fl_tensor *fl_unique_consecutive_dim(fl_tensor *x, int axis, fl_tensor **inverse, fl_tensor **counts);
typedef struct fl_searchsorted_opts {
    fl_opts_guard guard_;
    fl_tensor *sorter; /* indices that sort `sorted`, as of fl_argsort, in its shape; NULL: it is sorted */
    char _end;
} fl_searchsorted_opts;
/* torch.searchsorted: the i64 index at which each element of v would be inserted into the ascending `sorted`
   (NaN last), before equal elements or, if right, after them. sorted is a vector, or has a row [..., n] for
   each row [..., m] of v. */
#define fl_searchsorted(...) FL__SEARCHSORTED(__VA_ARGS__, ._end = 0)
#define FL__SEARCHSORTED(sorted, v, right, ...) \
    fl_searchsorted_opt(sorted, v, right, FL_LITERAL(fl_searchsorted_opts, __VA_ARGS__))
FL_API fl_tensor *fl_searchsorted_opt(fl_tensor *sorted, fl_tensor *v, bool right, fl_searchsorted_opts o);
/* b8 of x's shape: true where the element occurs in `among` */
FL_API fl_tensor *fl_isin(fl_tensor *x, fl_tensor *among);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ORDER_H */

#if defined(FL_IMPL_ONLY_OPS_ORDER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ORDER_IMPL
#define FL_OPS_ORDER_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "create.h"
#include "index.h"
#include "move.h"
#include "reduce.h"
#include "scan.h"
#include "view.h"
/* ---- sort and nonzero ---- */

/* The first *keep elements of x in sorted order along axis; keep NULL: all. */
static fl_tensor *fl__sorted(const char *fn, fl_tensor *x, int axis, bool descending, const int64_t *keep,
                             fl_tensor **index) {
    if (fl_is_null_arg(fn, x) || !(x = fl_materialise(x)) || (axis = fl_axis_of(fn, x,
                                                                                axis)) < 0) return NULL;
    const int64_t n = x->shape[axis], k = keep ? *keep : n;
    if (k < 0 || k > n)
        return fl_err_null("%s: k must be at most the axis' size: got %lld of axis %d of shape %s", fn,
                           (long long)k, axis, FL_SHAPE_TEXT(x));
    if (x->dtype == FL_U64) { /* sorted as i64 after flipping the sign bit */
        fl_scope s = fl_scope_begin();
        x = fl_bitwise_xor(fl_cast(x, FL_I64), fl_int(INT64_MIN));
        fl_tensor *at = NULL, *y = x ? fl__sorted(fn, x, axis, descending, keep, &at) : NULL;
        y = y ? fl_cast(fl_bitwise_xor(y, fl_int(INT64_MIN)), FL_U64) : NULL;
        if (y && index) *index = fl_scope_escape(&s, at);
        return fl_scope_return(&s, y);
    }
    if (fl_compute_dtype(FL_CLASS_ANY, x->dtype) == FL_DTYPE_NONE)
        return fl_err_null("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    fl_sort_args a = {axis, descending};
    fl_call c = {.op = FL_OP_sort, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    fl_shape shape = fl_shape_of(x);
    shape.dim[axis] = k;
    c.out[0] = fl_out_on(x->backend, shape, x->dtype);
    c.out[1] = c.out[0] ? fl_out_on(x->backend, shape, FL_I64) : NULL;
    fl_tensor *y = c.out[1] ? fl_call_result(&c) : fl_raise();
    if (y && index) *index = c.out[1];
    return y;
}

fl_tensor *fl_sort(fl_tensor *x, int axis, bool descending, fl_tensor **index) {
    return fl__sorted("fl_sort", x, axis, descending, NULL, index);
}

fl_tensor *fl_argsort(fl_tensor *x, int axis, bool descending) {
    fl_tensor *index;
    return fl__sorted("fl_argsort", x, axis, descending, NULL, &index) ? index : NULL;
}

fl_tensor *fl_topk(fl_tensor *x, int64_t k, int axis, bool smallest, fl_tensor **index) {
    return fl__sorted("fl_topk", x, axis, !smallest, &k, index);
}

fl_tensor *fl_nonzero(fl_tensor *x) {
    if (fl_is_null_arg("fl_nonzero", x)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *truth = fl_cast(x, FL_B8), *count = truth ? fl_sum(truth, FL_ALL_AXES) : NULL;
    const int64_t n = count ? fl_item_int(count) : 0;
    if (!count || fl_error()) return fl_scope_return(&s, NULL);
    fl_call c = {.op = FL_OP_nonzero, .n_out = 1, .n_in = 1, .in = {truth}};
    c.out[0] = fl_out_on(truth->backend, FL_SHAPE(n, truth->ndim), FL_I64);
    return fl_scope_return(&s, c.out[0] ? fl_call_result(&c) : fl_raise());
}

/* y = x at index, so dx is dy scattered to index. */
static void fv__sort_back(fl_node *n, fl_var *dy) {
    fl_tensor *index = fv_value(fv_saved(n, 0)), *zero = fl_new_full(dy->value, FL_SCALAR_SHAPE, 0);
    fl_var *zeros = fv_const(fl_expand(zero, fv_in_shape(n, 0)));
    fv_add_grad(n, 0, fv_scatter_add(zeros, *(const int *)fv_args(n), index, dy));
}

static fl_var *fv__sorted(const char *name, fl_var *x, int axis, fl_tensor *value, fl_tensor *indices,
                          fl_tensor **index) {
    fl_var *saved = value ? fv_const(indices) : NULL;
    if (!saved) return NULL;
    fl_var *y = fv_record_args(name, value, fv__sort_back, FV_IN(x), FV_SAVE(saved), &axis, sizeof axis);
    if (y && index) *index = indices;
    return y;
}

fl_var *fv_sort(fl_var *x, int axis, bool descending, fl_tensor **index) {
    fl_tensor *indices = NULL, *value = fl_sort(fv_value(x), axis, descending, &indices);
    return fv__sorted("sort", x, axis, value, indices, index);
}

fl_var *fv_topk(fl_var *x, int64_t k, int axis, bool smallest, fl_tensor **index) {
    fl_tensor *indices = NULL, *value = fl_topk(fv_value(x), k, axis, smallest, &indices);
    return fv__sorted("topk", x, axis, value, indices, index);
}

/* ---- runs of equal elements, binary search ---- */

/* One element of each run of equal elements of a vector, or rows of a matrix. order[i] (NULL: i) is the index
   of element i in *inverse, which has the given shape. */
static fl_tensor *fl__runs(fl_scope *s, fl_tensor *line, fl_tensor *order, fl_shape shape,
                           fl_tensor **inverse, fl_tensor **counts) {
    if (!line) return fl_scope_return(s, NULL);
    const char *backend = fl_backend_name(line);
    int64_t n = line->shape[0];
    fl_tensor *first = fl_to(fl_full(FL_SHAPE(n > 0), 1, FL_B8), backend);
    fl_tensor *change = fl_ne(fl_slice(line, 0, 1, n, 1), fl_slice(line, 0, 0, n ? n - 1 : 0, 1));
    if (change && change->ndim > 1) change = fl_any(change, FL_AXES(1));
    fl_tensor *heads = first && change ? fl_concat((fl_tensor *[]){first, change}, 2, 0) : NULL;
    fl_tensor *start = heads ? fl_select(fl_nonzero(heads), 1, 0) : NULL;
    if (!start) return fl_scope_return(s, NULL);
    fl_tensor *run = fl_sub(fl_cumsum(heads, 0), fl_int(1));
    if (order) run = fl_scatter(fl_full_like(order, 0), 0, order, run);
    run = fl_reshape(run, shape);
    fl_tensor *end = fl_to(fl_full(FL_SHAPE(1), (double)n, FL_I64), backend);
    fl_tensor *edges = fl_concat((fl_tensor *[]){start, end}, 2, 0);
    int64_t runs = start->shape[0];
    fl_tensor *sizes = fl_sub(fl_slice(edges, 0, 1, runs + 1, 1), fl_slice(edges, 0, 0, runs, 1));
    fl_tensor *y = fl_index_select(line, 0, start);
    if (!y || !run || !sizes) return fl_scope_return(s, NULL);
    if (inverse) *inverse = fl_scope_escape(s, run);
    if (counts) *counts = fl_scope_escape(s, sizes);
    return fl_scope_return(s, y);
}

fl_tensor *fl_unique(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts) {
    if (fl_is_null_arg("fl_unique", x)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *order = NULL, *line = fl_sort(fl_reshape(x, FL_SHAPE(fl_numel(x))), 0, false, &order);
    return fl__runs(&s, line, order, fl_shape_of(x), inverse, counts);
}

/* Indices that sort rows [n, m] lexicographically: stable sorts by the last column first (LSD radix
   order). */
static fl_tensor *fl__row_order(fl_tensor *rows) {
    if (!rows) return NULL;
    fl_tensor *order = fl_new_arange(rows, 0, (double)rows->shape[0], 1, FL_I64);
    for (int64_t k = rows->shape[1] - 1; order && k >= 0; k--) {
        fl_scope step = fl_scope_begin();
        fl_tensor *column = fl_index_select(fl_select(rows, 1, k), 0, order), *by = NULL;
        if (column) by = fl_argsort(column, 0, false);
        order = fl_scope_return(&step, by ? fl_index_select(order, 0, by) : NULL);
    }
    return order;
}

/* One of each run of equal slices along axis, which are sorted first if asked for. */
static fl_tensor *fl__unique_slices(const char *fn, fl_tensor *x, int axis, bool sort, fl_tensor **inverse,
                                    fl_tensor **counts) {
    if (fl_is_null_arg(fn, x) || (axis = fl_axis_of(fn, x, axis)) < 0) return NULL;
    if (x->ndim == 0) return fl_unique(x, inverse, counts);
    fl_scope s = fl_scope_begin();
    fl_tensor *first = fl_movedim(x, axis, 0);
    if (!first) return fl_scope_return(&s, NULL);
    fl_shape shape = fl_shape_of(first);
    const int64_t n = shape.dim[0], m = n ? fl_numel(first) / n : 0;
    fl_tensor *rows = fl_reshape(first, FL_SHAPE(n, m)), *order = sort ? fl__row_order(rows) : NULL;
    if (sort) rows = order ? fl_index_select(rows, 0, order) : NULL;
    if (!rows) return fl_scope_return(&s, NULL);
    fl_scope inner = fl_scope_begin();
    fl_tensor *indices = NULL, *sizes = NULL;
    fl_tensor *y = fl__runs(&inner, rows, order, FL_SHAPE(n), &indices, &sizes);
    if (y) shape.dim[0] = y->shape[0];
    if (y) y = fl_movedim(fl_reshape(y, shape), 0, axis);
    if (!y) return fl_scope_return(&s, NULL);
    if (inverse) *inverse = fl_scope_escape(&s, indices);
    if (counts) *counts = fl_scope_escape(&s, sizes);
    return fl_scope_return(&s, y);
}

fl_tensor *fl_unique_dim(fl_tensor *x, int axis, fl_tensor **inverse, fl_tensor **counts) {
    return fl__unique_slices("fl_unique_dim", x, axis, true, inverse, counts);
}

fl_tensor *fl_unique_consecutive_dim(fl_tensor *x, int axis, fl_tensor **inverse, fl_tensor **counts) {
    return fl__unique_slices("fl_unique_consecutive_dim", x, axis, false, inverse, counts);
}

fl_tensor *fl_unique_consecutive(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts) {
    if (fl_is_null_arg("fl_unique_consecutive", x)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    return fl__runs(&s, fl_reshape(x, FL_SHAPE(fl_numel(x))), NULL, fl_shape_of(x), inverse, counts);
}

/* One step of the binary search: at + step where sorted[at + step - 1] comes before v, else at. NaN is
   last. */
static fl_tensor *fl__step_right(fl_tensor *sorted, fl_tensor *v, bool right, fl_tensor *at,
                                 int64_t step) {
    fl_scope s = fl_scope_begin();
    fl_tensor *size = fl_int(sorted->shape[sorted->ndim - 1]), *to = fl_add(at, fl_int(step));
    fl_tensor *there = fl_sub(fl_minimum(to, size), fl_int(1));
    fl_tensor *e = fl_gather(sorted, -1, there);
    fl_tensor *nan = fl_ne(v, v);
    fl_tensor *before = right ? fl_bitwise_or(fl_le(e, v), nan)
                              : fl_bitwise_or(fl_lt(e, v), fl_bitwise_and(fl_eq(e, e), nan));
    return fl_scope_return(&s, fl_where(fl_bitwise_and(before, fl_le(to, size)), to, at));
}

fl_tensor *fl_searchsorted_opt(fl_tensor *sorted, fl_tensor *v, bool right, fl_searchsorted_opts o) {
    if (fl_is_null_arg("fl_searchsorted", sorted) || fl_is_null_arg("fl_searchsorted", v) ||
        fl_error()) return NULL;
    bool fits = sorted->ndim == 1 || (sorted->ndim > 1 && sorted->ndim == v->ndim);
    for (int i = 0; fits && i < sorted->ndim - 1; i++) fits = sorted->shape[i] == v->shape[i];
    if (!fits)
        return fl_err_null("fl_searchsorted: sorted must be a vector or have v's leading dims: got values of "
                           "shape %s in %s", FL_SHAPE_TEXT(v), FL_SHAPE_TEXT(sorted));
    if (o.sorter && !fl_same_shape(sorted, o.sorter))
        return fl_err_null("fl_searchsorted: sorter must have sorted's shape: got sorter of shape %s for %s",
                           FL_SHAPE_TEXT(o.sorter), FL_SHAPE_TEXT(sorted));
    fl_scope s = fl_scope_of("fl_searchsorted");
    if (o.sorter && !(sorted = fl_gather(sorted, -1, o.sorter))) return fl_scope_return(&s, NULL);
    fl_shape shape = fl_shape_of(v);
    int64_t n = sorted->shape[sorted->ndim - 1], step = 1;
    if (sorted->ndim == 1) v = fl_reshape(v, FL_SHAPE(fl_numel(v)));
    fl_tensor *at = v ? fl_to(fl_zeros(fl_shape_of(v), FL_I64), fl_backend_name(sorted)) : NULL;
    while (step <= n / 2) step *= 2;
    for (; at && n && step; step /= 2) at = fl__step_right(sorted, v, right, at, step);
    return fl_scope_return(&s, fl_contiguous(fl_reshape(at, shape)));
}

fl_tensor *fl_isin(fl_tensor *x, fl_tensor *among) {
    if (fl_is_null_arg("fl_isin", x) || fl_is_null_arg("fl_isin", among)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    int64_t n = fl_numel(among);
    if (n == 0) return fl_scope_return(&s, fl_lt(x, x));
    fl_tensor *sorted = fl_sort(fl_reshape(among, FL_SHAPE(n)), 0, false, NULL);
    fl_tensor *at = sorted ? fl_searchsorted(sorted, x, false) : NULL;
    fl_tensor *found = at ? fl_take(sorted, fl_minimum(at, fl_int(n - 1))) : NULL;
    return fl_scope_return(&s, found ? fl_eq(found, x) : NULL);
}

#endif /* FL_OPS_ORDER_IMPL */
#endif
/* MIT licence: see LICENSE. */
