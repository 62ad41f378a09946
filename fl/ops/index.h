/* fl/ops/index.h - reading and writing by indices and masks

   gather, scatter_add and scatter are ops of the table (args: fl_axis_args); the others are composed of
   them. Index tensors are i64, masks b8, src of x's dtype, and in both forms plain tensors. Of repeated
   indices the last one stays; where things add up, they do so in order. An index outside its axis is an
   error; those below 0 count from the end where it says so: [-n, n). */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_INDEX_H
#define FL_OPS_INDEX_H

#ifdef __cplusplus
extern "C" {
#endif

/* y[..i..] = x[..index[..i..]..] along axis; index's other dims are at most x's. */
FL_API fl_tensor *fl_gather(fl_tensor *x, int axis, fl_tensor *index);
FL_API fl_var *fv_gather(fl_var *x, int axis, fl_tensor *index);
/* Copy of x with src[..i..] added at index[..i..]; repeats add up in order. index and src have one
   shape. */
FL_API fl_tensor *fl_scatter_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_scatter_add(fl_var *x, int axis, fl_tensor *index, fl_var *src);
/* Copy of x with src[..i..] written at index[..i..]; of repeats the last one stays. */
FL_API fl_tensor *fl_scatter(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_scatter(fl_var *x, int axis, fl_tensor *index, fl_var *src);
/* What elements of src that share a place become; the mean of integers is rounded down. */
typedef enum fl_scatter_way {
    FL_SCATTER_SUM,
    FL_SCATTER_PROD,
    FL_SCATTER_MEAN,
    FL_SCATTER_AMAX,
    FL_SCATTER_AMIN
} fl_scatter_way;
/* Copy of x with src[..i..] reduced at index[..i..], with what was there if include_self; places without any
   keep theirs. Gradients of largest and smallest elements are shared among equal ones. index and src have one
   shape. Sums and means are one pass, the others sort along axis. */
FL_API fl_tensor *fl_scatter_reduce(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                                    fl_scatter_way way, bool include_self);
FL_API fl_var *fv_scatter_reduce(fl_var *x, int axis, fl_tensor *index, fl_var *src, fl_scatter_way way,
                                 bool include_self);
/* Rows index (1-D) of x along axis. */
FL_API fl_tensor *fl_index_select(fl_tensor *x, int axis, fl_tensor *index);
FL_API fl_var *fv_index_select(fl_var *x, int axis, fl_tensor *index);
/* index [...], integers -> f32 [..., classes]. */
FL_API fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes);
/* Elements index of x as a vector, in index's shape. [-n, n) */
FL_API fl_tensor *fl_take(fl_tensor *x, fl_tensor *index);
FL_API fl_var *fv_take(fl_var *x, fl_tensor *index);
/* fl_gather with x and index broadcast in the dims besides axis */
FL_API fl_tensor *fl_take_along(fl_tensor *x, fl_tensor *index, int axis);
FL_API fl_var *fv_take_along(fl_var *x, fl_tensor *index, int axis);
/* x[i, j, ...]: n indices, broadcast with each other, one for each leading axis; what is left of
   x's dims follows theirs. [-size, size). index_put: a copy of x with values (a number, or of a
   shape that broadcasts to that) written there, or added. */
FL_API fl_tensor *fl_index(fl_tensor *x, fl_tensor *const *index, int n);
FL_API fl_var *fv_index(fl_var *x, fl_tensor *const *index, int n);
FL_API fl_tensor *fl_index_put(fl_tensor *x, fl_tensor *const *index, int n, fl_tensor *values,
                               bool accumulate);
FL_API fl_var *fv_index_put(fl_var *x, fl_tensor *const *index, int n, fl_var *values,
                            bool accumulate);
/* n vectors of indices become grid[0 .. n), with which the two above read and write the Cartesian
   product, as numpy.ix_ does. */
FL_API bool fl_ix(fl_tensor *const *index, int n, fl_tensor **grid);
/* Copies of x with alpha src added to, src written to, or value in the places index (a vector)
   along axis. src has x's shape but for axis. index_fill: [-size, size) */
FL_API fl_tensor *fl_index_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                               double alpha);
FL_API fl_var *fv_index_add(fl_var *x, int axis, fl_tensor *index, fl_var *src, double alpha);
FL_API fl_tensor *fl_index_copy(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_index_copy(fl_var *x, int axis, fl_tensor *index, fl_var *src);
FL_API fl_tensor *fl_index_fill(fl_tensor *x, int axis, fl_tensor *index, double value);
FL_API fl_var *fv_index_fill(fl_var *x, int axis, fl_tensor *index, double value);
/* With x and mask broadcast: value where it is true;  the elements where it is true, a vector;  the
   first elements of src in turn where it is true, which must be enough */
FL_API fl_tensor *fl_masked_fill(fl_tensor *x, fl_tensor *mask, double value);
FL_API fl_var *fv_masked_fill(fl_var *x, fl_tensor *mask, double value);
FL_API fl_tensor *fl_masked_select(fl_tensor *x, fl_tensor *mask);
FL_API fl_var *fv_masked_select(fl_var *x, fl_tensor *mask);
FL_API fl_tensor *fl_masked_scatter(fl_tensor *x, fl_tensor *mask, fl_tensor *src);
FL_API fl_var *fv_masked_scatter(fl_var *x, fl_tensor *mask, fl_var *src);
/* How often 0, 1, ... appear in a vector of integers, none below 0, in at least so many bins: i64;
   or the sums of their weights (or NULL): f32 for f32, else f64. */
FL_API fl_tensor *fl_bincount(fl_tensor *x, fl_tensor *weights, int64_t least);
FL_API fl_var *fv_bincount(fl_tensor *x, fl_var *weights, int64_t least);
/* Elements in each of equal bins from low to high (low = high: of the least and largest element),
   the last one closed; others do not count. In x's dtype, of integers f32. */
FL_API fl_tensor *fl_histc(fl_tensor *x, int64_t bins, double low, double high);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_INDEX_H */

#if defined(FL_IMPL_ONLY_OPS_INDEX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_INDEX_IMPL
#define FL_OPS_INDEX_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "order.h"
#include "reduce.h"
#include "special.h"
#include "view.h"
#include <math.h>

/* ---- gather, scatter ---- */

/* index fits x: i64, as many dims, none larger besides axis. */
static bool fl__index_fits(const char *fn, const fl_tensor *x, int axis, const fl_tensor *index) {
    if (index->dtype != FL_I64)
        return fl_refuse("%s: the index is %s, not i64", fn, fl_dtype_name(index->dtype));
    bool ok = index->ndim == x->ndim;
    for (int i = 0; ok && i < x->ndim; i++) ok = i == axis || index->shape[i] <= x->shape[i];
    if (!ok)
        fl_bad("%s: index of shape %s for shape %s, axis %d", fn, FL_SHAPE_TEXT(index),
                FL_SHAPE_TEXT(x), axis);
    return ok;
}

/* x cut to index's size in the dims besides axis. */
static fl_tensor *fl__cut_to(fl_tensor *x, int axis, const fl_tensor *index) {
    for (int i = 0; x && i < index->ndim; i++)
        if (i != axis && index->shape[i] != x->shape[i]) x = fl_slice(x, i, 0, index->shape[i], 1);
    return x;
}

fl_tensor *fl_gather(fl_tensor *x, int axis, fl_tensor *index) {
    if (fl_absent("fl_gather", x) || fl_absent("fl_gather", index) || !(x = fl_stored(x)) ||
        !(index = fl_stored(index)) ||
        (axis = fl_axis_of("fl_gather", x, axis)) < 0 ||
        !fl__index_fits("fl_gather", x, axis, index) || !fl_same_family("gather", x, index) ||
        !(x = fl__cut_to(x, axis, index)))
        return NULL;
    fl_axis_args a = {axis};
    fl_tensor *y = fl_out_on(x->family, fl_shape_of(index), x->dtype);
    return fl_call_into(FL_OP_gather, y, x, index, &a);
}

/* The axis in [0, ndim) along which index and src, of one shape, fit x, of numbers; -1 after an error. */
static int fl__scatter_axis(const char *fn, const fl_tensor *x, int axis, const fl_tensor *index,
                            const fl_tensor *src, bool numbers) {
    if ((axis = fl_axis_of(fn, x, axis)) < 0 || !fl__index_fits(fn, x, axis, index) ||
        !fl_same_family(fn + 3, x, index) || !fl_same_family(fn + 3, x, src))
        return -1;
    if (!fl_same_shape(index, src))
        return fl_bad("%s: index %s and src %s differ in shape", fn, FL_SHAPE_TEXT(index),
                      FL_SHAPE_TEXT(src)), -1;
    if (src->dtype != x->dtype)
        return fl_bad("%s: x is %s, src %s", fn, fl_dtype_name(x->dtype), fl_dtype_name(src->dtype)), -1;
    if (numbers && !fl_compute_dtype(FL_CLASS_NUM, x->dtype))
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype)), -1;
    return axis;
}

static fl_tensor *fl__scatter_op(fl_op op, const char *fn, fl_tensor *x, int axis, fl_tensor *index,
                                 fl_tensor *src) {
    if (fl_absent(fn, x) || fl_absent(fn, index) || fl_absent(fn, src) || !(x = fl_stored(x)) ||
        !(index = fl_stored(index)) || !(src = fl_stored(src)) ||
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
    if (fl_absent("fl_index_select", x) || fl_absent("fl_index_select", index) ||
        (axis = fl_axis_of("fl_index_select", x, axis)) < 0)
        return NULL;
    if (index->ndim != 1 || index->dtype != FL_I64)
        return fl_bad("fl_index_select: the index is %s of shape %s, not i64 of one dim",
                       fl_dtype_name(index->dtype), FL_SHAPE_TEXT(index));
    fl_scope s = fl_scope_of(__func__);
    fl_shape column = {x->ndim, {0}}, full = fl_shape_of(x);
    for (int i = 0; i < x->ndim; i++) column.dim[i] = i == axis ? index->shape[0] : 1;
    full.dim[axis] = index->shape[0];
    return fl_scope_return(&s, fl_gather(x, axis, fl_expand(fl_reshape(index, column), full)));
}

fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes) {
    if (fl_absent("fl_one_hot", index)) return NULL;
    if (fl_dtype_is_float(index->dtype) || index->dtype == FL_B8)
        return fl_bad("fl_one_hot: the index is %s, not of integers", fl_dtype_name(index->dtype));
    if (classes < 0 || classes > (int64_t)1 << 53)
        return fl_bad("fl_one_hot: %lld classes", (long long)classes);
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *wide = fl_cast(index, FL_I64);
    fl_tensor *eq = fl_eq(fl_unsqueeze(wide, -1), fl_arange(0, (double)classes, 1, FL_I64));
    return fl_scope_return(&s, fl_cast(eq, FL_F32));
}

/* One zero, seen in that shape: what a scatter starts from is read once. */
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

/* b8, of index's shape: true for the elements that are the last to write their place. */
static fl_tensor *fv__winners(fl_tensor *index, fl_shape in, int axis) {
    fl_shape shape = fl_shape_of(index);
    fl_tensor *number = fl_arange(0, (double)fl_numel(index), 1, FL_I64);
    number = fl_to(fl_reshape(number, shape), fl_backend_name(index));
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
    fl_tensor *won = fv__winners(index, fv_in_shape(n, 0), axis);
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
    fl_var *saved = value ? fv_const(index) : NULL;
    if (!saved) return NULL;
    axis = fl_axis_of("fl_index_select", value, axis);
    return fv_record_args("index_select", value, fv__index_select_back, FV_IN(x), FV_SAVE(saved),
                          &axis, sizeof axis);
}

/* ---- several indices become one into the leading dims made one, and rows of what is left go by
   index_select, scatter and scatter_add: in order, so repeated indices are defined ---- */

static bool fl__is_index(const char *fn, const fl_tensor *index) {
    if (fl_absent(fn, index)) return false;
    if (index->dtype == FL_I64) return true;
    return fl_refuse("%s: the index is %s, not i64", fn, fl_dtype_name(index->dtype));
}

/* The same with those below 0 counted from the end; an error if one is outside [-size, size). */
static fl_tensor *fl__wrapped(const char *fn, fl_tensor *index, int axis, int64_t size) {
    if (!fl__is_index(fn, index)) return NULL;
    if (fl_numel(index) == 0) return index;
    fl_tensor *least = fl_amin(index, FL_ALL_AXES), *most = fl_amax(index, FL_ALL_AXES);
    if (!least || !most) return NULL;
    int64_t low = fl_item_int(least), high = fl_item_int(most);
    if (low < -size || high >= size)
        return fl_bad("%s: index %lld is out of range for axis %d of size %lld", fn,
                       (long long)(high >= size ? high : low), axis, (long long)size);
    if (low >= 0) return index;
    return fl_where(fl_lt(index, fl_int(0)), fl_add(index, fl_int(size)), index);
}

/* Where n index tensors point in x with its first n dims made one, as a vector; *shape: the one
   they broadcast to. */
static fl_tensor *fl__flat_index(const char *fn, const fl_tensor *x, fl_tensor *const *index, int n,
                                 fl_shape *shape) {
    fl_tensor *flat = NULL;
    if (fl_absent(fn, index)) return NULL;
    if (n < 1 || n > x->ndim) return fl_bad("%s: %d indices for %s", fn, n, FL_SHAPE_TEXT(x));
    *shape = FL_SCALAR_SHAPE;
    for (int i = 0; i < n; i++) {
        fl_tensor *at = fl__wrapped(fn, index[i], i, x->shape[i]);
        if (!at) return NULL;
        if (!fl_broadcast_shape(shape, at))
            return fl_bad("%s: index %d of shape %s does not broadcast with those before", fn, i,
                           FL_SHAPE_TEXT(at));
        flat = i ? fl_add(fl_mul(flat, fl_int(x->shape[i])), at) : at;
    }
    if (shape->ndim + x->ndim - n > FL_MAX_DIMS)
        return fl_bad("%s: indices of %d dims for %s: more than %d", fn, shape->ndim,
                       FL_SHAPE_TEXT(x), FL_MAX_DIMS);
    return fl_reshape(flat, FL_SHAPE(fl_numel(flat)));
}

/* shape, then x's dims from n on */
static fl_shape fl__and_rest(fl_shape shape, const fl_tensor *x, int n) {
    for (int i = n; i < x->ndim; i++) shape.dim[shape.ndim++] = x->shape[i];
    return shape;
}

/* x's shape with the length of the index along axis */
static fl_shape fl__part_shape(const fl_tensor *x, int axis, const fl_tensor *index) {
    fl_shape part = fl_shape_of(x);
    part.dim[axis] = index->shape[0];
    return part;
}

/* A vector of places along axis as scatters take it. src (or NULL) must have that shape. */
static fl_tensor *fl__along_axis(const char *fn, const fl_tensor *x, int axis, fl_tensor *index,
                                 const fl_tensor *src) {
    if (!fl__is_index(fn, index)) return NULL;
    if (index->ndim != 1)
        return fl_bad("%s: the index has shape %s, not one dim", fn, FL_SHAPE_TEXT(index));
    fl_shape part = fl__part_shape(x, axis, index), column = {x->ndim, {0}};
    bool fits = !src || src->ndim == part.ndim;
    for (int i = 0; i < x->ndim; i++) {
        column.dim[i] = i == axis ? part.dim[i] : 1;
        fits = fits && (!src || src->shape[i] == part.dim[i]);
    }
    if (!fits)
        return fl_bad("%s: src has shape %s, not %s", fn, FL_SHAPE_TEXT(src),
                       FL_TEXT_OF(part));
    return fl_expand(fl_reshape(index, column), part);
}

/* mask broadcast with x; *shape: theirs */
static fl_tensor *fl__mask_over(const char *fn, const fl_tensor *x, fl_tensor *mask,
                                fl_shape *shape) {
    if (fl_absent(fn, mask)) return NULL;
    if (mask->dtype != FL_B8)
        return fl_bad("%s: the mask is %s, not b8", fn, fl_dtype_name(mask->dtype));
    *shape = fl_shape_of(x);
    if (!fl_broadcast_shape(shape, mask))
        return fl_bad("%s: mask %s does not broadcast with %s", fn, FL_SHAPE_TEXT(mask),
                       FL_SHAPE_TEXT(x));
    return fl_expand(mask, *shape);
}

/* Where a mask is true, in its elements as a vector */
static fl_tensor *fl__true_places(fl_tensor *mask) {
    fl_tensor *at = fl_nonzero(fl_reshape(mask, FL_SHAPE(fl_numel(mask))));
    return at ? fl_select(at, 1, 0) : NULL;
}

#define FL_TEXT "index.h"
#include "expand.h"

#endif /* FL_OPS_INDEX_IMPL */
#endif
#else /* the text: see expand.h */

/* x as a matrix: its first n dims, the others */
static FL_T *FL_W(_lead_rows)(FL_T *x, int n) {
    fl_shape two = FL_SHAPE(1, 1);
    for (int i = 0; i < FL_VALUE(x)->ndim; i++) two.dim[i >= n] *= FL_VALUE(x)->shape[i];
    return FL_W(reshape)(x, two);
}

static FL_T *FL_W(_as_vector)(FL_T *x) {
    return FL_W(reshape)(x, FL_SHAPE(fl_numel(FL_VALUE(x))));
}

/* >>indices */

FL_T *FL_W(take)(FL_T *x, fl_tensor *index) {
    if (FL_ABSENT("take", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__wrapped("fl_take", index, 0, fl_numel(FL_VALUE(x)));
    fl_tensor *line = at ? fl_reshape(at, FL_SHAPE(fl_numel(at))) : NULL;
    if (!line) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(index_select)(FL_W(_as_vector)(x), 0, line);
    return FL_GIVE(&s, FL_W(reshape)(y, fl_shape_of(at)));
}

FL_T *FL_W(take_along)(FL_T *x, fl_tensor *index, int axis) {
    const char *fn = "fl_take_along";
    if (FL_ABSENT("take_along", x) || !fl__is_index(fn, index)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_own_axis_of(fn, t, axis)) < 0) return NULL;
    fl_shape whole = fl_shape_of(t), places = fl_shape_of(index);
    bool fits = places.ndim == whole.ndim;
    for (int i = 0; fits && i < whole.ndim; i++) {
        int64_t a = whole.dim[i], b = places.dim[i];
        if (i == axis) continue;
        fits = a == b || a == 1 || b == 1;
        whole.dim[i] = places.dim[i] = a == 1 ? b : a;
    }
    if (!fits)
        return fl_bad("%s: index of shape %s for shape %s, axis %d", fn, FL_SHAPE_TEXT(index),
                       FL_SHAPE_TEXT(t), axis);
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl_expand(index, places);
    return FL_GIVE(&s, FL_W(gather)(FL_W(expand)(x, whole), axis, at));
}

FL_T *FL_W(index)(FL_T *x, fl_tensor *const *index, int n) {
    if (FL_ABSENT("index", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *at = fl__flat_index("fl_index", FL_VALUE(x), index, n, &shape);
    if (!at) return FL_GIVE(&s, NULL);
    FL_T *rows = FL_W(index_select)(FL_W(_lead_rows)(x, n), 0, at);
    return FL_GIVE(&s, FL_W(reshape)(rows, fl__and_rest(shape, FL_VALUE(x), n)));
}

FL_T *FL_W(index_put)(FL_T *x, fl_tensor *const *index, int n, FL_T *values, bool accumulate) {
    if (FL_ABSENT("index_put", x) || FL_ABSENT("index_put", values)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *t = FL_VALUE(x), *at = fl__flat_index("fl_index_put", t, index, n, &shape);
    FL_T *rows = at ? FL_W(_lead_rows)(x, n) : NULL;
    if (!rows) return FL_GIVE(&s, NULL);
    if (FL_VALUE(values)->weak) values = FL_W(cast)(values, t->dtype);
    fl_shape part = FL_SHAPE(fl_numel(at), FL_VALUE(rows)->shape[1]);
    values = FL_W(expand)(values, fl__and_rest(shape, t, n));
    values = FL_W(reshape)(values, part);
    at = fl_expand(fl_unsqueeze(at, 1), part);
    FL_T *y =
        accumulate ? FL_W(scatter_add)(rows, 0, at, values) : FL_W(scatter)(rows, 0, at, values);
    return FL_GIVE(&s, FL_W(reshape)(y, fl_shape_of(t)));
}

FL_T *FL_W(index_add)(FL_T *x, int axis, fl_tensor *index, FL_T *src, double alpha) {
    const char *fn = "fl_index_add";
    if (FL_ABSENT("index_add", x) || FL_ABSENT("index_add", src)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_axis_of(fn, t, axis)) < 0) return NULL;
    bool is_float = fl_dtype_is_float(t->dtype);
    if (!is_float && !(alpha == floor(alpha) && fabs(alpha) < 0x1p63))
        return fl_bad("%s: alpha %g for %s", fn, alpha, fl_dtype_name(t->dtype));
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__along_axis(fn, t, axis, index, FL_VALUE(src));
    if (!at) return FL_GIVE(&s, NULL);
    FL_T *factor = is_float ? CONST(alpha) : FL_OF(fl_int((int64_t)alpha));
    if (alpha != 1) src = MUL(factor, src);
    return FL_GIVE(&s, FL_W(scatter_add)(x, axis, at, src));
}

FL_T *FL_W(index_copy)(FL_T *x, int axis, fl_tensor *index, FL_T *src) {
    if (FL_ABSENT("index_copy", x) || FL_ABSENT("index_copy", src)) return NULL;
    if ((axis = fl_axis_of("fl_index_copy", FL_VALUE(x), axis)) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__along_axis("fl_index_copy", FL_VALUE(x), axis, index, FL_VALUE(src));
    return FL_GIVE(&s, at ? FL_W(scatter)(x, axis, at, src) : NULL);
}

FL_T *FL_W(index_fill)(FL_T *x, int axis, fl_tensor *index, double value) {
    if (FL_ABSENT("index_fill", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_axis_of("fl_index_fill", t, axis)) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__wrapped("fl_index_fill", index, axis, t->shape[axis]);
    if (at) at = fl__along_axis("fl_index_fill", t, axis, at, NULL);
    if (!at) return FL_GIVE(&s, NULL);
    fl_tensor *src = fl_expand(fl_new_full(t, FL_SCALAR_SHAPE, value), fl_shape_of(at));
    return FL_GIVE(&s, FL_W(scatter)(x, axis, at, FL_OF(src)));
}

/* >>scatter_reduce */

/* Of s, whose neighbours along axis with one key belong together: what each and those before it make, in
   log n steps: of 1, then 2, 4 ... elements. The last of each key has all. */
static FL_T *FL_W(_runs_joined)(FL_T *s, fl_tensor *keys, int axis, fl_scatter_way way) {
    const int64_t n = keys->shape[axis];
    for (int64_t step = 1; s && step < n; step *= 2) {
        FL_T *early = FL_W(slice)(s, axis, 0, n - step, 1), *late = FL_W(slice)(s, axis, step, n, 1);
        fl_tensor *same = fl_eq(fl_slice(keys, axis, 0, n - step, 1), fl_slice(keys, axis, step, n, 1));
        FL_T *both = way == FL_SCATTER_PROD   ? MUL(early, late)
                     : way == FL_SCATTER_AMAX ? MAX(early, late)
                                              : MIN(early, late);
        FL_T *part[] = {FL_W(slice)(s, axis, 0, step, 1), SELECT(FL_OF(same), both, late)};
        s = part[0] && part[1] ? FL_W(concat)(part, 2, axis) : NULL;
    }
    return s;
}

/* x with the product, or an extreme, of the elements of src at their places: of repeated indices, which
   stand together when sorted, the last one stays. */
static FL_T *FL_W(_scatter_runs)(FL_T *x, int axis, fl_tensor *index, FL_T *src, fl_scatter_way way) {
    fl_tensor *order = NULL, *keys = fl_sort(index, axis, false, &order);
    FL_T *sorted = keys ? FL_W(gather)(src, axis, order) : NULL;
    FL_T *joined = sorted ? FL_W(_runs_joined)(sorted, keys, axis, way) : NULL;
    return joined ? FL_W(scatter)(x, axis, keys, joined) : NULL;
}

/* Sums, and the number of elements that count at each place, at least 1 (*count). */
static FL_T *FL_W(_scatter_sums)(FL_T *x, int axis, fl_tensor *index, FL_T *src, bool self,
                                 fl_tensor **count) {
    fl_tensor *t = FL_VALUE(src), *one = fl_new_full(t, FL_SCALAR_SHAPE, 1);
    fl_tensor *none = fl_new_full(t, FL_SCALAR_SHAPE, 0);
    if (!one || !none) return NULL;
    fl_tensor *ones = fl_expand(one, fl_shape_of(t)), *zeros = fl_expand(none, fl_shape_of(t));
    fl_tensor *start = fl_expand(self ? one : none, fl_shape_of(FL_VALUE(x)));
    if (count) *count = fl_maximum(fl_scatter_add(start, axis, index, ones), one);
    if (!self) x = FL_W(scatter)(x, axis, index, FL_OF(zeros));
    return x ? FL_W(scatter_add)(x, axis, index, src) : NULL;
}

#ifdef FL_ON_TENSORS
/* b8 of x's shape: the places that index names */
static fl_tensor *fl__touched(const fl_tensor *x, int axis, fl_tensor *index) {
    fl_tensor *no = fl_full(FL_SCALAR_SHAPE, 0, FL_B8), *yes = fl_full(FL_SCALAR_SHAPE, 1, FL_B8);
    no = fl_to(no, fl_backend_name(x)), yes = fl_to(yes, fl_backend_name(x));
    if (!no || !yes) return NULL;
    return fl_scatter(fl_expand(no, fl_shape_of(x)), axis, index, fl_expand(yes, fl_shape_of(index)));
}

static fl_tensor *fl__scatter_extreme(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                                      fl_scatter_way way, bool self) {
    fl_tensor *y = fl__scatter_runs(x, axis, index, src, way);
    return !self ? y : way == FL_SCATTER_AMAX ? fl_maximum(x, y) : fl_minimum(x, y);
}
#else
typedef struct fv__scatter_args {
    int axis;
    bool self;
} fv__scatter_args;

/* Each of the elements that equal the result gets its share, as in PyTorch. Saved: x, src, index, y */
static void fv__scatter_extreme_back(fl_node *n, fl_var *dy) {
    const fv__scatter_args *a = fv_args(n);
    fl_tensor *v[4];
    for (int i = 0; i < 4; i++)
        if (!(v[i] = fv_value(fv_saved(n, i)))) return;
    fl_tensor *x = v[0], *src = v[1], *index = v[2], *y = v[3];
    fl_tensor *touched = fl__touched(x, a->axis, index), *same = fl_eq(x, y);
    if (!a->self && touched) same = fl_logical_not(touched);
    fl_tensor *own = fl_eq(src, fl_gather(y, a->axis, index));
    same = same ? fl_cast(same, x->dtype) : NULL;
    own = own ? fl_cast(own, x->dtype) : NULL;
    fl_tensor *count = same && own ? fl_scatter_add(same, a->axis, index, own) : NULL;
    fl_var *share = count ? fv_div(dy, fv_const(fl_maximum(count, fl_num(1)))) : NULL;
    if (!share) return;
    fv_add_grad(n, 0, fv_mul(share, fv_const(same)));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_mul(fv_gather(share, a->axis, index), fv_const(own)));
}

static fl_var *fv__scatter_extreme(fl_var *x, int axis, fl_tensor *index, fl_var *src, fl_scatter_way way,
                                   bool self) {
    fl_tensor *y = fl__scatter_extreme(x->value, axis, index, src->value, way, self);
    const fv__scatter_args a = {axis, self};
    fl_var *at = y ? fv_const(index) : NULL;
    if (!at) return NULL;
    return fv_record_args("scatter_reduce", y, fv__scatter_extreme_back, FV_IN(x, src),
                          FV_SAVE(x, src, at, FV_OUT), &a, sizeof a);
}
#endif

FL_T *FL_W(scatter_reduce)(FL_T *x, int axis, fl_tensor *index, FL_T *src, fl_scatter_way way,
                           bool include_self) {
    const char *fn = "fl_scatter_reduce";
    if (FL_ABSENT("scatter_reduce", x) || FL_ABSENT("scatter_reduce", index) ||
        FL_ABSENT("scatter_reduce", src) ||
        (axis = fl__scatter_axis(fn, FL_VALUE(x), axis, index, FL_VALUE(src), true)) < 0)
        return NULL;
    if ((int)way < FL_SCATTER_SUM || (int)way > FL_SCATTER_AMIN)
        return fl_bad("%s: there is no way %d", fn, (int)way);
    fl_scope s = fl_scope_begin();
    const fl_tensor *t = FL_VALUE(x);
    fl_tensor *count = NULL;
    FL_T *y;
    if (way == FL_SCATTER_AMAX || way == FL_SCATTER_AMIN)
        return FL_GIVE(&s, FL_W(_scatter_extreme)(x, axis, index, src, way, include_self));
    if (way == FL_SCATTER_PROD) {
        fl_tensor *ones = fl_expand(fl_new_full(t, FL_SCALAR_SHAPE, 1), fl_shape_of(t));
        y = ones ? FL_W(_scatter_runs)(FL_OF(ones), axis, index, src, way) : NULL;
        fl_tensor *touched = include_self ? NULL : fl__touched(t, axis, index);
        return FL_GIVE(&s, include_self ? MUL(x, y) : touched ? SELECT(FL_OF(touched), y, x) : NULL);
    }
    y = FL_W(_scatter_sums)(x, axis, index, src, include_self, way == FL_SCATTER_MEAN ? &count : NULL);
    if (way == FL_SCATTER_MEAN && y)
        y = fl_dtype_is_float(t->dtype) ? DIV(y, FL_OF(count)) : FL_OF(fl_floor_divide(FL_VALUE(y), count));
    return FL_GIVE(&s, y);
}

/* >>masks */

FL_T *FL_W(masked_fill)(FL_T *x, fl_tensor *mask, double value) {
    if (FL_ABSENT("masked_fill", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_fill", FL_VALUE(x), mask, &shape);
    fl_tensor *number = over ? fl_new_full(fl_stored(FL_VALUE(x)), FL_SCALAR_SHAPE, value) : NULL;
    return FL_GIVE(&s, number ? SELECT(FL_OF(over), FL_OF(number), x) : NULL);
}

FL_T *FL_W(masked_select)(FL_T *x, fl_tensor *mask) {
    if (FL_ABSENT("masked_select", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_select", FL_VALUE(x), mask, &shape);
    FL_T *line = over ? FL_W(expand)(x, shape) : NULL;
    fl_tensor *at = line ? fl__true_places(over) : NULL;
    return FL_GIVE(&s, at ? FL_W(index_select)(FL_W(_as_vector)(line), 0, at) : NULL);
}

FL_T *FL_W(masked_scatter)(FL_T *x, fl_tensor *mask, FL_T *src) {
    if (FL_ABSENT("masked_scatter", x) || FL_ABSENT("masked_scatter", src)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_scatter", FL_VALUE(x), mask, &shape);
    FL_T *line = over ? FL_W(expand)(x, shape) : NULL;
    fl_tensor *at = line ? fl__true_places(over) : NULL;
    if (!at) return FL_GIVE(&s, NULL);
    int64_t n = fl_numel(at), have = fl_numel(FL_VALUE(src));
    if (have < n) {
        fl_scope_end(&s);
        return fl_bad("fl_masked_scatter: %lld elements for %lld places", (long long)have,
                       (long long)n);
    }
    FL_T *part = FL_W(slice)(FL_W(_as_vector)(src), 0, 0, n, 1);
    return FL_GIVE(&s, FL_W(reshape)(FL_W(scatter)(FL_W(_as_vector)(line), 0, at, part), shape));
}

/* >>counts */

FL_T *FL_W(bincount)(fl_tensor *x, FL_T *weights, int64_t least) {
    const char *fn = "fl_bincount";
    if (fl_absent(fn, x)) return NULL;
    fl_dtype d = x->dtype;
    if (x->ndim != 1 || d == FL_B8 || fl_dtype_is_float(d) || least < 0)
        return fl_bad("%s: %s of shape %s, at least %lld bins", fn, fl_dtype_name(d),
                       FL_SHAPE_TEXT(x), (long long)least);
    if (weights && !fl_same_shape(x, FL_VALUE(weights)))
        return fl_bad("%s: weights of shape %s for shape %s", fn,
                       FL_SHAPE_TEXT(FL_VALUE(weights)), FL_SHAPE_TEXT(x));
    fl_scope s = fl_scope_begin();
    if (!(x = fl_cast(x, FL_I64))) return FL_GIVE(&s, NULL);
    int64_t most = fl_numel(x) ? fl_item_int(fl_amax(x, FL_ALL_AXES)) : -1;
    if (most == INT64_MAX)
        return FL_GIVE(&s, fl_bad("%s: %lld is too large", fn, (long long)most));
    int64_t bins = most >= least ? most + 1 : least;
    FL_T *w = weights ? weights : FL_OF(fl_full_like(x, 1));
    if (weights && FL_VALUE(w)->dtype != FL_F32) w = FL_W(cast)(w, FL_F64);
    if (!w) return FL_GIVE(&s, NULL);
    FL_T *zeros = FL_OF(fl_expand(fl_new_full(FL_VALUE(w), FL_SCALAR_SHAPE, 0), FL_SHAPE(bins)));
    return FL_GIVE(&s, FL_W(scatter_add)(zeros, 0, x, w));
}

#ifdef FL_ON_TENSORS

fl_tensor *fl_histc(fl_tensor *x, int64_t bins, double low, double high) {
    if (fl_absent("fl_histc", x)) return NULL;
    if (bins < 1 || !(low <= high) || !isfinite(high - low))
        return fl_bad("fl_histc: %lld bins from %g to %g", (long long)bins, low, high);
    fl_scope s = fl_scope_begin();
    fl_tensor *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(_as_vector)(FL_W(_widened)(given)))) return FL_GIVE(&s, NULL);
    if (low == high && fl_numel(x)) {
        low = fl_item(fl_amin(x, FL_ALL_AXES));
        high = fl_item(fl_amax(x, FL_ALL_AXES));
        if (!isfinite(high - low))
            return FL_GIVE(&s, fl_bad("fl_histc: elements from %g to %g", low, high));
    }
    if (low == high) low -= 1, high += 1;
    fl_tensor *inside = AND(LE(CONST(low), x), LE(x, CONST(high)));
    fl_tensor *at = DIV(MUL(SUB(x, CONST(low)), CONST((double)bins)), CONST(high - low));
    at = fl_cast(SELECT(inside, at, CONST(0)), FL_I64);
    at = fl_minimum(at, fl_int(bins - 1));
    fl_tensor *none = fl_expand(fl_new_full(at, FL_SCALAR_SHAPE, 0), FL_SHAPE(bins));
    fl_tensor *counts = fl_scatter_add(none, 0, at, fl_cast(inside, FL_I64));
    return FL_GIVE(&s, fl_cast(counts, given->dtype));
}

bool fl_ix(fl_tensor *const *index, int n, fl_tensor **grid) {
    if (fl_absent("fl_ix", index) || fl_absent("fl_ix", grid)) return false;
    if (n < 1 || n > FL_MAX_DIMS) return fl_refuse("fl_ix: %d indices", n);
    for (int i = 0; i < n; i++) {
        fl_shape s = {n, {1, 1, 1, 1, 1, 1, 1, 1}};
        if (!fl__is_index("fl_ix", index[i])) return false;
        if (index[i]->ndim != 1)
            return fl_refuse("fl_ix: index %d has shape %s, not one dim", i,
                           FL_SHAPE_TEXT(index[i]));
        s.dim[i] = index[i]->shape[0];
        if (!(grid[i] = fl_reshape(index[i], s))) return false;
    }
    return true;
}
#endif
#endif
/* MIT licence: see LICENSE. */
