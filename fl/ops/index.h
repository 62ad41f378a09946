/* fl/ops/index.h - gather, scatter, advanced indexing, masked ops, bincount and histc

   gather, scatter_add and scatter are ops of the table (args: fl_axis_args); the others are composed of them.
   Index tensors are i64 or i32 (kernels see i64) and masks b8, plain tensors in fv_ functions too; src has
   x's dtype. If an index repeats, the last write wins; sums are added in order. An index outside its axis is
   an error. Negative indices count from the end only where the comment says [-n, n); elsewhere they are an
   error, as in PyTorch: a label of -1 is not the last class. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_INDEX_H
#define FL_OPS_INDEX_H

#ifdef __cplusplus
extern "C" {
#endif

/* torch.gather: y[..i..] = x[..index[..i..]..] along axis, in index's shape. Outside axis, index's dims are
   at most x's. */
FL_API fl_tensor *fl_gather(fl_tensor *x, int axis, fl_tensor *index);
FL_API fl_var *fv_gather(fl_var *x, int axis, fl_tensor *index);
/* A copy of x with src[..i..] added at index[..i..] along axis, in order. index and src have one shape. */
FL_API fl_tensor *fl_scatter_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_scatter_add(fl_var *x, int axis, fl_tensor *index, fl_var *src);
/* A copy of x with src[..i..] written at index[..i..] along axis; if an index repeats, the last write
   wins. */
FL_API fl_tensor *fl_scatter(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_scatter(fl_var *x, int axis, fl_tensor *index, fl_var *src);
/* How elements of src with the same index are reduced; the mean of integers is rounded down. */
typedef enum fl_scatter_mode {
    FL_SCATTER_SUM,
    FL_SCATTER_PROD,
    FL_SCATTER_MEAN,
    FL_SCATTER_AMAX,
    FL_SCATTER_AMIN
} fl_scatter_mode;
/* torch.scatter_reduce: a copy of x with the elements of src reduced at index[..i..] along axis, together
   with x's element if include_self; elements without an index keep their value. Equal maxima or minima share
   the gradient. index and src have one shape. Sums and means take one pass, the others sort along axis. */
FL_API fl_tensor *fl_scatter_reduce(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                                    fl_scatter_mode mode, bool include_self);
FL_API fl_var *fv_scatter_reduce(fl_var *x, int axis, fl_tensor *index, fl_var *src, fl_scatter_mode mode,
                                 bool include_self);
/* The slices of x at the elements of index (1-d) along axis. */
FL_API fl_tensor *fl_index_select(fl_tensor *x, int axis, fl_tensor *index);
FL_API fl_var *fv_index_select(fl_var *x, int axis, fl_tensor *index);
/* index [...], integers -> i64 [..., classes]: 1 at the index, else 0; all 0 if it is outside [0,
   classes). */
FL_API fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes);
/* Elements of x, flattened to n elements, at index in [-n, n); the result has index's shape. */
FL_API fl_tensor *fl_take(fl_tensor *x, fl_tensor *index);
FL_API fl_var *fv_take(fl_var *x, fl_tensor *index);
/* torch.take_along_dim: fl_gather with x and index broadcast outside axis, index in [-n, n). */
FL_API fl_tensor *fl_take_along(fl_tensor *x, fl_tensor *index, int axis);
FL_API fl_var *fv_take_along(fl_var *x, fl_tensor *index, int axis);
/* x[i, j, ...]: n index tensors, broadcast to one shape, in [-n, n) for the leading axes of x. The result has
   that shape, followed by the remaining dims of x. */
FL_API fl_tensor *fl_index(fl_tensor *x, fl_tensor *const *index, int n);
FL_API fl_var *fv_index(fl_var *x, fl_tensor *const *index, int n);
/* A copy of x with values (a number, or broadcast to fl_index's result) written at x[i, j, ...], or added. */
FL_API fl_tensor *fl_index_put(fl_tensor *x, fl_tensor *const *index, int n, fl_tensor *values,
                               bool accumulate);
FL_API fl_var *fv_index_put(fl_var *x, fl_tensor *const *index, int n, fl_var *values,
                            bool accumulate);
/* numpy.ix_: shapes n index vectors into grid[0 .. n), with which fl_index and fl_index_put address their
   Cartesian product. Returns false after an error. */
FL_API bool fl_ix(fl_tensor *const *index, int n, fl_tensor **grid);
/* A copy of x with alpha src added to the slices at index (1-d) along axis. Here and in index_copy, src has
   x's shape, except for index's size along axis. */
FL_API fl_tensor *fl_index_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                               double alpha);
FL_API fl_var *fv_index_add(fl_var *x, int axis, fl_tensor *index, fl_var *src, double alpha);
/* A copy of x with src written to the slices at index (1-d) along axis. */
FL_API fl_tensor *fl_index_copy(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_index_copy(fl_var *x, int axis, fl_tensor *index, fl_var *src);
/* A copy of x with value in the slices at index (1-d), in [-n, n), along axis. */
FL_API fl_tensor *fl_index_fill(fl_tensor *x, int axis, fl_tensor *index, double value);
FL_API fl_var *fv_index_fill(fl_var *x, int axis, fl_tensor *index, double value);
/* mask ? value : x; x and mask broadcast, here and below. */
FL_API fl_tensor *fl_masked_fill(fl_tensor *x, fl_tensor *mask, double value);
FL_API fl_var *fv_masked_fill(fl_var *x, fl_tensor *mask, double value);
/* The elements of x where mask is true, as a vector. */
FL_API fl_tensor *fl_masked_select(fl_tensor *x, fl_tensor *mask);
FL_API fl_var *fv_masked_select(fl_var *x, fl_tensor *mask);
/* x with its elements where mask is true replaced, in order, by those of src. Error if src has too few. */
FL_API fl_tensor *fl_masked_scatter(fl_tensor *x, fl_tensor *mask, fl_tensor *src);
FL_API fl_var *fv_masked_scatter(fl_var *x, fl_tensor *mask, fl_var *src);
/* torch.bincount: the number of times 0, 1, ... occur in a vector of integers x >= 0, in at least min_length
   bins, i64; with weights (NULL: none) their sums instead, f32 for f32 weights, else f64. */
FL_API fl_tensor *fl_bincount(fl_tensor *x, fl_tensor *weights, int64_t min_length);
FL_API fl_var *fv_bincount(fl_tensor *x, fl_var *weights, int64_t min_length);
/* torch.histc: counts of x's elements in equal bins from low to high (both equal: from x's minimum to its
   maximum). The last bin includes high; other elements are ignored. In x's dtype, f32 for integers. */
FL_API fl_tensor *fl_histc(fl_tensor *x, int64_t bins, double low, double high);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_INDEX_H */

#if defined(FL_IMPL_ONLY_OPS_INDEX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_INDEX_IMPL
#define FL_OPS_INDEX_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "order.h"
#include "reduce.h"
#include "special.h"
#include "view.h"
#include <math.h>

/* ---- gather, scatter ---- */

/* index as i64; NULL after an error. */
static fl_tensor *fl__index_of(const char *fn, fl_tensor *index) {
    if (fl_is_null_arg(fn, index)) return NULL;
    if (index->dtype == FL_I64 || index->dtype == FL_I32) return fl_cast(index, FL_I64);
    return fl_err_null("%s: the index is %s, expected i64 or i32", fn, fl_dtype_name(index->dtype));
}

/* True if index has as many dims as x, none of them larger outside axis. */
static bool fl__index_fits(const char *fn, const fl_tensor *x, int axis, const fl_tensor *index) {
    bool ok = index->ndim == x->ndim;
    for (int i = 0; ok && i < x->ndim; i++) ok = i == axis || index->shape[i] <= x->shape[i];
    if (!ok)
        fl_err_null("%s: index of shape %s for shape %s, axis %d: expected as many dims, none larger outside "
                    "axis", fn, FL_SHAPE_TEXT(index), FL_SHAPE_TEXT(x), axis);
    return ok;
}

/* x cut to index's size outside axis. */
static fl_tensor *fl__cut_to(fl_tensor *x, int axis, const fl_tensor *index) {
    for (int i = 0; x && i < index->ndim; i++)
        if (i != axis && index->shape[i] != x->shape[i]) x = fl_slice(x, i, 0, index->shape[i], 1);
    return x;
}

fl_tensor *fl_gather(fl_tensor *x, int axis, fl_tensor *index) {
    if (fl_is_null_arg("fl_gather", x) || fl_is_null_arg("fl_gather", index) || !(x = fl_materialise(x)) ||
        !(index = fl_materialise(index)) || !(index = fl__index_of("fl_gather", index)) ||
        (axis = fl_axis_of("fl_gather", x, axis)) < 0 ||
        !fl__index_fits("fl_gather", x, axis, index) || !fl_same_backend("gather", x, index) ||
        !(x = fl__cut_to(x, axis, index)))
        return NULL;
    fl_axis_args a = {axis};
    fl_tensor *y = fl_out_on(x->backend, fl_shape_of(index), x->dtype);
    return fl_call_into(FL_OP_gather, y, x, index, &a);
}

/* Checks the operands of a scatter; numbers: x must have arithmetic. Returns the axis in [0, ndim), or -1
   after an error. */
static int fl__scatter_axis(const char *fn, const fl_tensor *x, int axis, const fl_tensor *index,
                            const fl_tensor *src, bool numbers) {
    if ((axis = fl_axis_of(fn, x, axis)) < 0 || !fl__index_fits(fn, x, axis, index) ||
        !fl_same_backend(fn + 3, x, index) || !fl_same_backend(fn + 3, x, src))
        return -1;
    if (!fl_same_shape(index, src))
        return fl_err_null("%s: index %s and src %s differ in shape, expected one", fn, FL_SHAPE_TEXT(index),
                           FL_SHAPE_TEXT(src)), -1;
    if (src->dtype != x->dtype)
        return fl_err_null("%s: x and src must have one dtype: x is %s, src %s", fn, fl_dtype_name(x->dtype),
                           fl_dtype_name(src->dtype)), -1;
    if (numbers && !fl_compute_dtype(FL_CLASS_NUM, x->dtype))
        return fl_err_null("%s: %s is not supported, expected a float or integers", fn,
                           fl_dtype_name(x->dtype)), -1;
    return axis;
}

static fl_tensor *fl__scatter_op(fl_op op, const char *fn, fl_tensor *x, int axis, fl_tensor *index,
                                 fl_tensor *src) {
    if (fl_is_null_arg(fn, x) || fl_is_null_arg(fn, index) || fl_is_null_arg(fn, src) ||
        !(x = fl_materialise(x)) ||
        !(index = fl_materialise(index)) || !(src = fl_materialise(src)) || !(index = fl__index_of(fn,
                                                                                                   index)) ||
        (axis = fl__scatter_axis(fn, x, axis, index, src, op == FL_OP_scatter_add)) < 0)
        return NULL;
    fl_axis_args a = {axis};
    fl_call c = {.op = op, .n_out = 1, .n_in = 3, .in = {x, index, src}, .args = &a};
    c.out[0] = fl_out_like(x, x->dtype);
    return c.out[0] ? fl_call_result(&c) : fl_raise();
}
fl_tensor *fl_scatter_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src) {
    return fl__scatter_op(FL_OP_scatter_add, "fl_scatter_add", x, axis, index, src);
}
fl_tensor *fl_scatter(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src) {
    return fl__scatter_op(FL_OP_scatter, "fl_scatter", x, axis, index, src);
}

fl_tensor *fl_index_select(fl_tensor *x, int axis, fl_tensor *index) {
    if (fl_is_null_arg("fl_index_select", x) || fl_is_null_arg("fl_index_select", index) ||
        (axis = fl_axis_of("fl_index_select", x, axis)) < 0)
        return NULL;
    if (index->ndim != 1)
        return fl_err_null("fl_index_select: the index has shape %s, expected one dim", FL_SHAPE_TEXT(index));
    fl_scope s = fl_scope_of(__func__);
    if (!(index = fl__index_of("fl_index_select", index))) return fl_scope_return(&s, NULL);
    fl_shape column = {x->ndim, {0}}, full = fl_shape_of(x);
    for (int i = 0; i < x->ndim; i++) column.dim[i] = i == axis ? index->shape[0] : 1;
    full.dim[axis] = index->shape[0];
    return fl_scope_return(&s, fl_gather(x, axis, fl_expand(fl_reshape(index, column), full)));
}

fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes) {
    if (fl_is_null_arg("fl_one_hot", index)) return NULL;
    if (fl_dtype_is_float(index->dtype) || index->dtype == FL_B8)
        return fl_err_null("fl_one_hot: the index is %s, expected integers", fl_dtype_name(index->dtype));
    if (classes < 0 || classes > (int64_t)1 << 53)
        return fl_err_null("fl_one_hot: classes must be in [0, 2^53], got %lld classes", (long long)classes);
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *wide = fl_cast(index, FL_I64);
    fl_tensor *number = wide ? fl_new_arange(wide, 0, (double)classes, 1, FL_I64) : NULL;
    fl_tensor *eq = number ? fl_eq(fl_unsqueeze(wide, -1), number) : NULL;
    return fl_scope_return(&s, eq ? fl_cast(eq, FL_I64) : NULL);
}

/* A single 0 expanded to shape: what a scatter starts from takes no memory. */
static fl_var *fv__zeros(const fl_tensor *like, fl_shape shape) {
    return fv_const(fl_expand(fl_new_full(like, FL_SCALAR_SHAPE, 0), shape));
}

static void fv__gather_back(fl_node *n, fl_var *dy) {
    fl_var *index = fv_saved(n, 0), *zeros = fv__zeros(dy->value, fv_in_shape(n, 0));
    fv_add_grad(n, 0, fv_scatter_add(zeros, *(const int *)fv_args(n), fv_value(index), dy));
}

fl_var *fv_gather(fl_var *x, int axis, fl_tensor *index) {
    fl_tensor *value = fl_gather(fv_value(x), axis, index);
    fl_var *saved = value ? fv_const(index) : NULL;
    return saved ? fv_record_args("gather", value, fv__gather_back, FV_IN(x), FV_SAVE(saved), &axis,
                                  sizeof axis)
                 : NULL;
}

static void fv__scatter_add_back(fl_node *n, fl_var *dy) {
    fl_var *index = fv_saved(n, 0);
    fv_add_grad(n, 0, dy);
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_gather(dy, *(const int *)fv_args(n), fv_value(index)));
}

fl_var *fv_scatter_add(fl_var *x, int axis, fl_tensor *index, fl_var *src) {
    fl_tensor *value = fl_scatter_add(fv_value(x), axis, index, fv_value(src));
    fl_var *saved = value ? fv_const(index) : NULL;
    if (!saved) return NULL;
    return fv_record_args("scatter_add", value, fv__scatter_add_back, FV_IN(x, src), FV_SAVE(saved),
                          &axis, sizeof axis);
}

/* b8 of index's shape: true for the elements of src that a scatter wrote last at their index. */
static fl_tensor *fv__last_writes(fl_tensor *index, fl_shape in, int axis) {
    fl_shape shape = fl_shape_of(index);
    fl_tensor *number = fl_reshape(fl_new_arange(index, 0, (double)fl_numel(index), 1, FL_I64), shape);
    fl_tensor *last = fl_to(fl_full(in, -1, FL_I64), fl_backend_name(index));
    return fl_eq(fl_gather(fl_scatter(last, axis, index, number), axis, index), number);
}

static void fv__scatter_back(fl_node *n, fl_var *dy) {
    int axis = *(const int *)fv_args(n);
    fl_tensor *index = fv_value(fv_saved(n, 0));
    if (!index) return;
    fl_var *zeros = fv_const(fl_new_full(dy->value, fl_shape_of(index), 0));
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_scatter(dy, axis, index, zeros));
    if (!fv_needs(n, 1)) return;
    fl_tensor *won = fv__last_writes(index, fv_in_shape(n, 0), axis);
    fv_add_grad(n, 1, fv_where(fv_const(won), fv_gather(dy, axis, index), fv_num(0)));
}

fl_var *fv_scatter(fl_var *x, int axis, fl_tensor *index, fl_var *src) {
    fl_tensor *value = fl_scatter(fv_value(x), axis, index, fv_value(src));
    fl_var *saved = value ? fv_const(index) : NULL;
    if (!saved) return NULL;
    return fv_record_args("scatter", value, fv__scatter_back, FV_IN(x, src), FV_SAVE(saved), &axis,
                          sizeof axis);
}

static void fv__index_select_back(fl_node *n, fl_var *dy) {
    fl_shape in = fv_in_shape(n, 0), column = {.ndim = in.ndim};
    int axis = *(const int *)fv_args(n);
    for (int d = 0; d < in.ndim; d++) column.dim[d] = d == axis ? dy->value->shape[d] : 1;
    fl_tensor *index =
        fl_expand(fl_reshape(fv_value(fv_saved(n, 0)), column), fl_shape_of(dy->value));
    fv_add_grad(n, 0, fv_scatter_add(fv__zeros(dy->value, in), axis, index, dy));
}

fl_var *fv_index_select(fl_var *x, int axis, fl_tensor *index) {
    fl_tensor *value = fl_index_select(fv_value(x), axis, index);
    fl_var *saved = value ? fv_const(fl__index_of("fl_index_select", index)) : NULL;
    if (!saved) return NULL;
    axis = fl_axis_of("fl_index_select", value, axis);
    return fv_record_args("index_select", value, fv__index_select_back, FV_IN(x), FV_SAVE(saved),
                          &axis, sizeof axis);
}

/* ---- several index tensors become one index into the flattened leading dims; index_select, scatter and
   scatter_add then work on rows, in order, so repeated indices are well defined ---- */

/* index with negative elements counted from the end; error if one is outside [-size, size). */
static fl_tensor *fl__wrapped(const char *fn, fl_tensor *index, int axis, int64_t size) {
    if (!(index = fl__index_of(fn, index)) || fl_numel(index) == 0) return index;
    fl_tensor *least = fl_amin(index, FL_ALL_AXES), *most = fl_amax(index, FL_ALL_AXES);
    if (!least || !most) return NULL;
    int64_t low = fl_item_int(least), high = fl_item_int(most);
    if (low < -size || high >= size)
        return fl_err_null("%s: index %lld is out of range for axis %d of size %lld", fn,
                           (long long)(high >= size ? high : low), axis, (long long)size);
    if (low >= 0) return index;
    return fl_where(fl_lt(index, fl_int(0)), fl_add(index, fl_int(size)), index);
}

/* The vector of indices into x with its first n dims flattened to one; *shape: the n indices' broadcast
   shape. */
static fl_tensor *fl__flat_index(const char *fn, const fl_tensor *x, fl_tensor *const *index, int n,
                                 fl_shape *shape) {
    fl_tensor *flat = NULL;
    if (fl_is_null_arg(fn, index)) return NULL;
    if (n < 1 || n > x->ndim) return fl_err_null("%s: got %d indices for %s, expected 1 to %d", fn, n,
                                                   FL_SHAPE_TEXT(x), x->ndim);
    *shape = FL_SCALAR_SHAPE;
    for (int i = 0; i < n; i++) {
        fl_tensor *at = fl__wrapped(fn, index[i], i, x->shape[i]);
        if (!at) return NULL;
        if (!fl_broadcast_shape(shape, at))
            return fl_err_null("%s: index %d of shape %s does not broadcast with those before", fn, i,
                               FL_SHAPE_TEXT(at));
        flat = i ? fl_add(fl_mul(flat, fl_int(x->shape[i])), at) : at;
    }
    if (shape->ndim + x->ndim - n > FL_MAX_DIMS)
        return fl_err_null("%s: indices of %d dims for %s: the result has more than %d dims", fn, shape->ndim,
                           FL_SHAPE_TEXT(x), FL_MAX_DIMS);
    return fl_reshape(flat, FL_SHAPE(fl_numel(flat)));
}

/* shape followed by x's dims from n on */
static fl_shape fl__and_rest(fl_shape shape, const fl_tensor *x, int n) {
    for (int i = n; i < x->ndim; i++) shape.dim[shape.ndim++] = x->shape[i];
    return shape;
}

/* x's shape with index's size along axis */
static fl_shape fl__part_shape(const fl_tensor *x, int axis, const fl_tensor *index) {
    fl_shape part = fl_shape_of(x);
    part.dim[axis] = index->shape[0];
    return part;
}

/* The index vector expanded to x's shape along axis, as scatter takes it; src (or NULL) must have that
   shape. */
static fl_tensor *fl__along_axis(const char *fn, const fl_tensor *x, int axis, fl_tensor *index,
                                 const fl_tensor *src) {
    if (!(index = fl__index_of(fn, index))) return NULL;
    if (index->ndim != 1)
        return fl_err_null("%s: the index has shape %s, expected one dim", fn, FL_SHAPE_TEXT(index));
    fl_shape part = fl__part_shape(x, axis, index), column = {x->ndim, {0}};
    bool fits = !src || src->ndim == part.ndim;
    for (int i = 0; i < x->ndim; i++) {
        column.dim[i] = i == axis ? part.dim[i] : 1;
        fits = fits && (!src || src->shape[i] == part.dim[i]);
    }
    if (!fits)
        return fl_err_null("%s: src has shape %s, expected %s", fn, FL_SHAPE_TEXT(src), FL_TEXT_OF(part));
    return fl_expand(fl_reshape(index, column), part);
}

/* mask broadcast with x; *shape: the broadcast shape */
static fl_tensor *fl__mask_over(const char *fn, const fl_tensor *x, fl_tensor *mask,
                                fl_shape *shape) {
    if (fl_is_null_arg(fn, mask)) return NULL;
    if (mask->dtype != FL_B8)
        return fl_err_null("%s: the mask is %s, expected b8", fn, fl_dtype_name(mask->dtype));
    *shape = fl_shape_of(x);
    if (!fl_broadcast_shape(shape, mask))
        return fl_err_null("%s: mask %s does not broadcast with %s", fn, FL_SHAPE_TEXT(mask),
                           FL_SHAPE_TEXT(x));
    return fl_expand(mask, *shape);
}

/* The indices of the true elements of the flattened mask */
static fl_tensor *fl__true_indices(fl_tensor *mask) {
    fl_tensor *at = fl_nonzero(fl_reshape(mask, FL_SHAPE(fl_numel(mask))));
    return at ? fl_select(at, 1, 0) : NULL;
}

#define FL_EXPAND_FILE "index.inc"
#include "expand.h"

#endif /* FL_OPS_INDEX_IMPL */
#endif
/* MIT licence: see LICENSE. */
