/* fl_tensor_ops.h - the second room of fl_tensor.h: shape rules and compositions of the ops, and
   printing

   The prototypes stand in fl_tensor.h, which includes this file. A function here checks its
   operands, infers the result's shape and dtype, and hands one record to fl_run; or composes other
   ops where the backend has no slot of its own.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_tensor_ops.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *image = fl_reshape(fl_arange(0, 16, 1, FL_F32), FL_SHAPE(1, 1, 4, 4));
        fl_tensor *blur = fl_full(FL_SHAPE(1, 1, 3, 3), 1.0 / 9, FL_F32);
        fl_print(fl_max_pool2d(fl_conv2d(image, blur, .pad = FL_SAME), 2, NULL));
        fl_print(fl_softmax(fl_sum(image, FL_AXES(0, 1, 2)), 0));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>sequences >>writing >>reductions >>blocks >>order >>indexing >>product >>convolution
     >>gradients >>randomness >>optimizers >>composed >>printing */
#include "fl_tensor.h"

#if defined(FL_IMPL_ONLY_TENSOR_OPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_OPS_IMPL
#define FL_TENSOR_OPS_IMPL
#include "fl/ops/copy.h"
#include "fl/ops/create.h"
#include "fl/ops/random.h"
#include "fl/ops/view.h"
#include "fl/ops/softmax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/fl_math.h"

/* >>reductions --------------------------------------------------------------------------------- */

/* Axes as a mask; all of them if none is named. False after an error. */
static bool fl_axes_mask(const char *fn, const fl_tensor *x, fl_axes axes, uint32_t *mask) {
    *mask = 0;
    if (axes.n < 0 || axes.n > FL_MAX_DIMS) return fl_refuse("%s: %d axes", fn, axes.n);
    if (axes.n == 0) *mask = (1u << x->ndim) - 1;
    for (int i = 0; i < axes.n; i++) {
        int a = fl_axis_of(fn, x, axes.axis[i]);
        if (a < 0) return false;
        if (*mask & 1u << a) return fl_refuse("%s: axis %d appears twice", fn, a);
        *mask |= 1u << a;
    }
    return true;
}

/* Shape left by a reduction; *count: elements that make one result. */
static fl_shape fl__reduced_shape(const fl_tensor *x, uint32_t mask, bool keepdim, int64_t *count) {
    fl_shape s = {0, {0}};
    *count = 1;
    for (int i = 0; i < x->ndim; i++) {
        bool gone = mask >> i & 1;
        if (gone) *count *= x->shape[i];
        if (!gone || keepdim) s.dim[s.ndim++] = gone ? 1 : x->shape[i];
    }
    return s;
}

static fl_tensor *fl__reduce(fl_op op, const char *fn, fl_tensor *x, fl_axes axes,
                             fl_dtype out_dtype, bool needs_elements) {
    fl_reduce_args a = {0, axes.keepdim};
    int64_t count;
    if (!fl_axes_mask(fn, x, axes, &a.axes)) return NULL;
    fl_shape shape = fl__reduced_shape(x, a.axes, axes.keepdim, &count);
    if (needs_elements && count == 0)
        return fl_bad("%s: no elements along the reduced axes of shape %s", fn, FL_SHAPE_TEXT(x));
    fl_dtype d = out_dtype == FL_DTYPE_NONE ? x->dtype : out_dtype;
    return fl_run_to(op, fl_call_out(x->family, shape, d), x, NULL, &a);
}

/* Operand of a reduction. Slots see b8 as u8. */
static fl_tensor *fl__reduce_operand(const char *fn, fl_tensor *x, fl_op_class cls) {
    if (fl_absent(fn, x) || !(x = fl_stored(x))) return NULL;
    if (x->dtype == FL_B8) return fl_cast(x, FL_U8);
    if (fl_compute_dtype(cls, x->dtype) == FL_DTYPE_NONE)
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    return x;
}

/* Sums and products of b8 and integers are i64. */
static fl_tensor *fl__reduce_whole(fl_op op, const char *fn, fl_tensor *x, fl_axes axes) {
    x = fl__reduce_operand(fn, x, FL_CLASS_CMP);
    fl_dtype d = x && !fl_dtype_is_float(x->dtype) ? FL_I64 : FL_DTYPE_NONE;
    return x ? fl__reduce(op, fn, x, axes, d, false) : NULL;
}
fl_tensor *fl_sum(fl_tensor *x, fl_axes axes) {
    return fl__reduce_whole(FL_OP_sum, "fl_sum", x, axes);
}
fl_tensor *fl_prod(fl_tensor *x, fl_axes axes) {
    return fl__reduce_whole(FL_OP_prod, "fl_prod", x, axes);
}

static fl_tensor *fl__reduce_extreme(fl_op op, const char *fn, fl_tensor *x, fl_axes axes) {
    fl_tensor *operand = fl__reduce_operand(fn, x, FL_CLASS_ANY);
    fl_tensor *y = operand ? fl__reduce(op, fn, operand, axes, FL_DTYPE_NONE, true) : NULL;
    return y && x->dtype == FL_B8 ? fl_cast(y, FL_B8) : y;
}
fl_tensor *fl_amax(fl_tensor *x, fl_axes axes) {
    return fl__reduce_extreme(FL_OP_amax, "fl_amax", x, axes);
}
fl_tensor *fl_amin(fl_tensor *x, fl_axes axes) {
    return fl__reduce_extreme(FL_OP_amin, "fl_amin", x, axes);
}

static fl_tensor *fl__reduce_arg_extreme(fl_op op, const char *fn, fl_tensor *x, int axis,
                                         bool keepdim) {
    x = fl__reduce_operand(fn, x, FL_CLASS_ANY);
    fl_axes axes = {1, {axis}, keepdim};
    return x ? fl__reduce(op, fn, x, axes, FL_I64, true) : NULL;
}
fl_tensor *fl_argmax(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmax, "fl_argmax", x, axis, keepdim);
}
fl_tensor *fl_argmin(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmin, "fl_argmin", x, axis, keepdim);
}

/* Elements per result of a reduction of x; -1 after an error. */
static int64_t fl__reduced_count(const char *fn, const fl_tensor *x, fl_axes axes) {
    uint32_t mask;
    int64_t count;
    if (!fl_axes_mask(fn, x, axes, &mask)) return -1;
    fl__reduced_shape(x, mask, false, &count);
    return count;
}

fl_tensor *fl_mean(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_mean", x) || !(x = fl_stored(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype))
        return fl_bad("fl_mean: %s is not a float: cast it first", fl_dtype_name(x->dtype));
    int64_t n = fl__reduced_count("fl_mean", x, axes);
    if (n < 0) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_mean(fl_cast(x, FL_F32), axes), x->dtype));
    return fl_scope_return(&s, fl_div(fl_sum(x, axes), fl_num((double)n)));
}

fl_tensor *fl_variance(fl_tensor *x, fl_axes axes, int64_t correction) {
    if (fl_absent("fl_variance", x) || !(x = fl_stored(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype))
        return fl_bad("fl_variance: %s is not a float: cast it first", fl_dtype_name(x->dtype));
    int64_t n = fl__reduced_count("fl_variance", x, axes);
    if (n < 0) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(
            &s, fl_cast(fl_variance(fl_cast(x, FL_F32), axes, correction), x->dtype));
    fl_axes keep = axes;
    keep.keepdim = true;
    fl_tensor *d = fl_sub(x, fl_mean(x, keep));
    double left = n > correction ? (double)n - (double)correction : 0;
    return fl_scope_return(&s, fl_div(fl_sum(fl_mul(d, d), axes), fl_num(left)));
}

fl_tensor *fl_all(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_all", x) || fl__reduced_count("fl_all", x, axes) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    return fl_scope_return(&s, fl_eq(fl_sum(fl_logical_not(x), axes), fl_int(0)));
}

fl_tensor *fl_any(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_any", x) || fl__reduced_count("fl_any", x, axes) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    return fl_scope_return(&s, fl_gt(fl_sum(fl_cast(x, FL_B8), axes), fl_int(0)));
}

fl_tensor *fl_logsumexp(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_logsumexp", x) || !(x = fl_stored(x)) ||
        fl__reduced_count("fl_logsumexp", x, axes) < 0)
        return NULL;
    if (!fl_dtype_is_float(x->dtype) && !(x = fl_cast(x, FL_F32))) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_logsumexp(fl_cast(x, FL_F32), axes), x->dtype));
    fl_axes keep = axes;
    keep.keepdim = true;
    fl_tensor *m = fl_stable_max(x, axes);
    fl_tensor *y = fl_add(fl_log(fl_sum(fl_exp(fl_sub(x, m)), keep)), m);
    uint32_t mask;
    int64_t count;
    if (y && !axes.keepdim && fl_axes_mask("fl_logsumexp", x, axes, &mask))
        y = fl_reshape(y, fl__reduced_shape(x, mask, false, &count));
    return fl_scope_return(&s, y);
}

static fl_tensor *fl__scan_op(fl_op op, const char *fn, fl_tensor *x, int axis) {
    x = fl__reduce_operand(fn, x, FL_CLASS_CMP);
    if (x && !fl_dtype_is_float(x->dtype)) x = fl_cast(x, FL_I64);
    if (!x || (axis = fl_axis_of(fn, x, axis)) < 0) return NULL;
    fl_axis_args a = {axis};
    return fl_run_to(op, fl_out_like(x, x->dtype), x, NULL, &a);
}
fl_tensor *fl_cumsum(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumsum, "fl_cumsum", x, axis);
}
fl_tensor *fl_cumprod(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumprod, "fl_cumprod", x, axis);
}

/* t, or what the blocks of t hold. */
static fl_tensor *fl__unpacked(fl_tensor *t) {
    return t && t->dtype >= FL_DTYPE_COUNT ? fl_cast(t, FL_F32) : t;
}

/* >>order -------------------------------------------------------------------------------------- */

/* The first `keep` of x in order along axis; `fn` has checked that there are as many. */
static fl_tensor *fl__sorted(const char *fn, fl_tensor *x, int axis, bool descending, int64_t keep,
                             fl_tensor **index) {
    if (fl_compute_dtype(FL_CLASS_ANY, x->dtype) == FL_DTYPE_NONE)
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    fl_sort_args a = {axis, descending};
    fl_call c = {.op = FL_OP_sort, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    fl_shape shape = fl_shape_of(x);
    shape.dim[axis] = keep;
    c.out[0] = fl_call_out(x->family, shape, x->dtype);
    c.out[1] = c.out[0] ? fl_call_out(x->family, shape, FL_I64) : NULL;
    fl_tensor *y = c.out[1] ? fl_run_result(&c) : fl_raise();
    if (y && index) *index = c.out[1];
    return y;
}

fl_tensor *fl_sort(fl_tensor *x, int axis, bool descending, fl_tensor **index) {
    if (fl_absent("fl_sort", x) || (axis = fl_axis_of("fl_sort", x, axis)) < 0) return NULL;
    return fl__sorted("fl_sort", x, axis, descending, x->shape[axis], index);
}

fl_tensor *fl_argsort(fl_tensor *x, int axis, bool descending) {
    fl_tensor *index;
    return fl_sort(x, axis, descending, &index) ? index : NULL;
}

fl_tensor *fl_topk(fl_tensor *x, int64_t k, int axis, bool smallest, fl_tensor **index) {
    if (fl_absent("fl_topk", x) || (axis = fl_axis_of("fl_topk", x, axis)) < 0) return NULL;
    if (k < 0 || k > x->shape[axis])
        return fl_bad("fl_topk: %lld of axis %d of shape %s", (long long)k, axis,
                       FL_SHAPE_TEXT(x));
    return fl__sorted("fl_topk", x, axis, !smallest, k, index);
}

fl_tensor *fl_nonzero(fl_tensor *x) {
    if (fl_absent("fl_nonzero", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *truth = fl_cast(x, FL_B8), *y = NULL;
    fl_tensor *count = truth ? fl_sum(truth, FL_ALL_AXES) : NULL;
    if (count) y = fl_call_out(truth->family, FL_SHAPE(fl_item_int(count), truth->ndim), FL_I64);
    fl_call c = {.op = FL_OP_nonzero, .n_out = 1, .n_in = 1, .out = {y}, .in = {truth}};
    return fl_scope_return(&s, fl_error() ? NULL : y ? fl_run_result(&c) : fl_raise());
}

/* >>indexing ----------------------------------------------------------------------------------- */

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
    if (fl_absent("fl_gather", x) || fl_absent("fl_gather", index) || !(index = fl_stored(index)) ||
        (axis = fl_axis_of("fl_gather", x, axis)) < 0 ||
        !fl__index_fits("fl_gather", x, axis, index) || !fl_same_family("gather", x, index) ||
        !(x = fl__cut_to(x, axis, index)))
        return NULL;
    fl_axis_args a = {axis};
    fl_tensor *y = fl_call_out(x->family, fl_shape_of(index), x->dtype);
    return fl_run_to(FL_OP_gather, y, x, index, &a);
}

static fl_tensor *fl__scatter_op(fl_op op, const char *fn, fl_tensor *x, int axis, fl_tensor *index,
                                 fl_tensor *src) {
    if (fl_absent(fn, x) || fl_absent(fn, index) || fl_absent(fn, src) || !(x = fl_stored(x)) ||
        !(index = fl_stored(index)) || !(src = fl_stored(src)) ||
        (axis = fl_axis_of(fn, x, axis)) < 0 || !fl__index_fits(fn, x, axis, index) ||
        !fl_same_family(fn + 3, x, index) || !fl_same_family(fn + 3, x, src))
        return NULL;
    if (!fl_same_shape(index, src))
        return fl_bad("%s: index %s and src %s differ in shape", fn, FL_SHAPE_TEXT(index),
                       FL_SHAPE_TEXT(src));
    if (src->dtype != x->dtype)
        return fl_bad("%s: x is %s, src %s", fn, fl_dtype_name(x->dtype),
                       fl_dtype_name(src->dtype));
    if (op == FL_OP_scatter_add && !fl_compute_dtype(FL_CLASS_NUM, x->dtype))
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    fl_axis_args a = {axis};
    fl_call c = {.op = op, .n_out = 1, .n_in = 3, .in = {x, index, src}, .args = &a};
    c.out[0] = fl_out_like(x, x->dtype);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
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
    fl_scope s = fl_scope_begin();
    fl_shape column = {x->ndim, {0}}, full = fl_shape_of(x);
    for (int i = 0; i < x->ndim; i++) column.dim[i] = i == axis ? index->shape[0] : 1;
    full.dim[axis] = index->shape[0];
    return fl_scope_return(&s, fl_gather(x, axis, fl_expand(fl_reshape(index, column), full)));
}

fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes) {
    if (fl_absent("fl_one_hot", index)) return NULL;
    if (index->dtype != FL_I64)
        return fl_bad("fl_one_hot: the index is %s, not i64", fl_dtype_name(index->dtype));
    if (classes < 0 || classes > (int64_t)1 << 53)
        return fl_bad("fl_one_hot: %lld classes", (long long)classes);
    fl_scope s = fl_scope_begin();
    fl_tensor *eq = fl_eq(fl_unsqueeze(index, -1), fl_arange(0, (double)classes, 1, FL_I64));
    return fl_scope_return(&s, fl_cast(eq, FL_F32));
}

/* >>product ------------------------------------------------------------------------------------ */

static int fl__matmul_precision = FL_F32;

fl_dtype fl_matmul_precision(void) {
    return (fl_dtype)__atomic_load_n(&fl__matmul_precision, __ATOMIC_RELAXED);
}

bool fl_set_matmul_precision(fl_dtype d) {
    if (d != FL_F32 && d != FL_BF16)
        return fl_refuse("fl_set_matmul_precision: %s: f32 or bf16", fl_dtype_name(d));
    __atomic_store_n(&fl__matmul_precision, (int)d, __ATOMIC_RELAXED);
    return true;
}

/* Expands two matrices or batches of them over the batch dims of both; *shape: of their product. */
static bool fl__stretch_batches(fl_tensor **a, fl_tensor **b, fl_shape *shape) {
    fl_tensor batch_a = **a, batch_b = **b; /* shapes only */
    batch_a.ndim -= 2;
    batch_b.ndim -= 2;
    *shape = fl_shape_of(&batch_a);
    if (!fl_broadcast_shape(shape, &batch_b))
        return fl_refuse("fl_matmul: shapes %s and %s: batch dims do not broadcast",
                       FL_SHAPE_TEXT(*a), FL_SHAPE_TEXT(*b));
    int n = shape->ndim;
    shape->ndim += 2;
    fl_shape sa = *shape, sb = *shape;
    for (int i = 0; i < 2; i++) {
        sa.dim[n + i] = (*a)->shape[(*a)->ndim - 2 + i];
        sb.dim[n + i] = (*b)->shape[(*b)->ndim - 2 + i];
    }
    shape->dim[n] = sa.dim[n];
    shape->dim[n + 1] = sb.dim[n + 1];
    return (*a = fl_expand(*a, sa)) && (*b = fl_expand(*b, sb));
}

fl_tensor *fl_matmul(fl_tensor *a, fl_tensor *b) {
    if (fl_absent("fl_matmul", a) || fl_absent("fl_matmul", b) || !fl_same_family("matmul", a, b) ||
        !(a = fl__unpacked(a)) || !(b = fl__unpacked(b)))
        return NULL;
    if (a->ndim < 1 || b->ndim < 1)
        return fl_bad("fl_matmul: shapes %s and %s: both need a dim", FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    fl_dtype d = fl_compute_dtype(FL_CLASS_NUM, fl_result_type(2, (fl_tensor *[]){a, b}));
    if (d == FL_DTYPE_NONE)
        return fl_bad("fl_matmul: %s and %s are not supported", fl_dtype_name(a->dtype),
                       fl_dtype_name(b->dtype));
    bool row = a->ndim == 1, column = b->ndim == 1;
    if (a->shape[a->ndim - 1] != b->shape[column ? 0 : b->ndim - 2])
        return fl_bad("fl_matmul: shapes %s and %s: inner dims differ", FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    if (!(a = fl_operand(a, d)) || !(b = fl_operand(b, d))) return NULL;
    if (row && !(a = fl_unsqueeze(a, 0))) return NULL;
    if (column && !(b = fl_unsqueeze(b, 1))) return NULL;
    fl_shape shape = FL_SHAPE(a->shape[0], b->shape[b->ndim - 1]);
    if ((a->ndim > 2 || b->ndim > 2) && !fl__stretch_batches(&a, &b, &shape)) return NULL;
    fl_tensor *y = fl_run_to(FL_OP_matmul, fl_call_out(a->family, shape, d), a, b, NULL);
    if (y && column) y = fl_squeeze(y, -1);
    if (y && row) y = fl_squeeze(y, column ? -1 : -2);
    return y;
}

/* >>convolution -------------------------------------------------------------------------------- */

double fl_option(double value, double otherwise) {
    return value != 0 ? value : signbit(value) ? 0 : otherwise;
}
int64_t fl_option_int(int64_t value, int64_t otherwise) {
    return value == FL_I0 ? 0 : value ? value : otherwise;
}

/* Padding of one dim: o is a count or FL_SAME. */
static void fl__resolve_pad(int64_t o, int64_t n, int64_t window, int64_t stride, int64_t *lo,
                            int64_t *hi) {
    *lo = *hi = o;
    if (o != FL_SAME) return;
    int64_t all = ((n + stride - 1) / stride - 1) * stride + window - n;
    all = all > 0 ? all : 0;
    *lo = all / 2;
    *hi = all - *lo;
}

/* Positions of a window over a padded dim; 0 or less if it does not fit. */
static int64_t fl__windows(int64_t n, int64_t lo, int64_t hi, int64_t window, int64_t stride) {
    return n + lo + hi < window ? 0 : (n + lo + hi - window) / stride + 1;
}

/* Settings stay far from overflow in the arithmetic above. */
static bool fl__sane(int64_t v, int64_t min) {
    return v >= min && v <= INT32_MAX;
}

bool fl_conv2d_resolve(fl_conv2d_opts o, int64_t h, int64_t w, int64_t kh, int64_t kw,
                       fl_conv2d_args *out) {
    int64_t sh = fl_option_int(o.stride, 1), sw = fl_option_int(o.stride_w, sh);
    int64_t dh = fl_option_int(o.dilation, 1), dw = fl_option_int(o.dilation_w, dh);
    int64_t ph = fl_option_int(o.pad, 0), pw = fl_option_int(o.pad_w, ph),
            groups = fl_option_int(o.groups, 1);
    bool ok = fl__sane(sh, 1) && fl__sane(sw, 1) && fl__sane(dh, 1) && fl__sane(dw, 1) &&
              fl__sane(ph, FL_SAME) && fl__sane(pw, FL_SAME) && fl__sane(groups, 1) &&
              fl__sane(kh, 1) && fl__sane(kw, 1) && fl__sane(h, 0) && fl__sane(w, 0);
    if (!ok)
        return fl_refuse("fl_conv2d: image %lld x %lld, kernel %lld x %lld, stride %lld x %lld, "
                       "dilation %lld x %lld, pad %lld x "
                       "%lld, %lld groups",
                       (long long)h, (long long)w, (long long)kh, (long long)kw, (long long)sh,
                       (long long)sw, (long long)dh, (long long)dw, (long long)ph, (long long)pw,
                       (long long)groups);
    *out = (fl_conv2d_args){{sh, sw}, {0, 0}, {0, 0}, {dh, dw}, groups};
    fl__resolve_pad(ph, h, dh * (kh - 1) + 1, sh, &out->pad_lo[0], &out->pad_hi[0]);
    fl__resolve_pad(pw, w, dw * (kw - 1) + 1, sw, &out->pad_lo[1], &out->pad_hi[1]);
    return true;
}

/* Resolved arguments may come from anywhere: nothing below divides by zero or overflows. */
static bool fl__window_args_ok(const char *fn, const int64_t *stride, const int64_t *lo,
                               const int64_t *hi, const int64_t *size) {
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && fl__sane(stride[i], 1) && fl__sane(lo[i], 0) && fl__sane(hi[i], 0) &&
             fl__sane(size[i], 1);
    if (ok) return true;
    return fl_refuse("%s: stride %lld x %lld, pad %lld x %lld, dilation or window %lld x %lld", fn,
                   (long long)stride[0], (long long)stride[1], (long long)lo[0], (long long)lo[1],
                   (long long)size[0], (long long)size[1]);
}

static bool fl__conv2d_args_ok(const char *fn, const fl_conv2d_args *a) {
    if (!fl__sane(a->groups, 1))
        return fl_refuse("%s: %lld groups", fn, (long long)a->groups);
    return fl__window_args_ok(fn, a->stride, a->pad_lo, a->pad_hi, a->dilation);
}

/* Floats of one dtype: the neural ops compute in nothing else. */
static bool fl__floats(const char *fn, const fl_tensor *a, const fl_tensor *b) {
    if (fl_dtype_is_float(a->dtype) && a->dtype == b->dtype) return fl_same_family(fn, a, b);
    return fl_refuse("fl_%s: %s and %s: both must be the same float", fn, fl_dtype_name(a->dtype),
                   fl_dtype_name(b->dtype));
}

/* True for an image stored [n, h, w, c] that cannot pass for row-major. */
static bool fl__is_channels_last(const fl_tensor *t) {
    static const int order[] = {1, 3, 2, 0};
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        if (t->shape[order[i]] != 1 && t->stride[order[i]] != n) return false;
        n *= t->shape[order[i]];
    }
    return !fl_is_contiguous(t);
}

/* Lays out an image, which has no storage yet, channels-last if one of the operands is so. */
static fl_tensor *fl__image_as(fl_tensor *out, const fl_tensor *a, const fl_tensor *b) {
    static const int order[] = {1, 3, 2, 0};
    if (!out || (!fl__is_channels_last(a) && !fl__is_channels_last(b))) return out;
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        out->stride[order[i]] = n;
        n *= out->shape[order[i]] ? out->shape[order[i]] : 1;
    }
    return out;
}

fl_tensor *fl_conv2d_opt(fl_tensor *x, fl_tensor *w, fl_conv2d_opts o) {
    if (fl_absent("fl_conv2d", x) || fl_absent("fl_conv2d", w) || fl_error()) return NULL;
    if (x->ndim != 4 || w->ndim != 4)
        return fl_bad("fl_conv2d: x %s and w %s: both need four dims", FL_SHAPE_TEXT(x),
                       FL_SHAPE_TEXT(w));
    fl_conv2d_args a;
    if (!fl_conv2d_resolve(o, x->shape[2], x->shape[3], w->shape[2], w->shape[3], &a)) return NULL;
    return fl_conv2d_run(x, w, o.bias, a);
}

fl_tensor *fl_conv2d_run(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d", x) || fl_absent("fl_conv2d", w) || !fl__floats("conv2d", x, w) ||
        !fl__conv2d_args_ok("fl_conv2d", &a))
        return NULL;
    if (x->ndim != 4 || w->ndim != 4 || x->shape[1] != w->shape[1] * a.groups ||
        w->shape[0] % a.groups || w->shape[1] < 1 || w->shape[2] < 1 || w->shape[3] < 1)
        return fl_bad("fl_conv2d: x %s, w %s, %lld groups: channels do not match",
                       FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(w), (long long)a.groups);
    if (bias &&
        (!fl__floats("conv2d", x, bias) || bias->ndim != 1 || bias->shape[0] != w->shape[0]))
        return fl_error() ? NULL
                          : fl_bad("fl_conv2d: bias %s for w %s", FL_SHAPE_TEXT(bias),
                                    FL_SHAPE_TEXT(w));
    fl_shape shape = {4, {x->shape[0], w->shape[0], 0, 0}};
    for (int i = 0; i < 2; i++) {
        shape.dim[2 + i] = fl__windows(x->shape[2 + i], a.pad_lo[i], a.pad_hi[i],
                                       a.dilation[i] * (w->shape[2 + i] - 1) + 1, a.stride[i]);
        if (shape.dim[2 + i] < 1)
            return fl_bad("fl_conv2d: the kernel of w %s is larger than the padded image of x %s",
                           FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(x));
    }
    fl_call c = {
        .op = FL_OP_conv2d, .n_out = 1, .n_in = bias ? 3 : 2, .in = {x, w, bias}, .args = &a};
    c.out[0] = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, w);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}

/* True if conv2d of x and w by a gives dy's shape. */
static bool fl__conv2d_shapes(const char *fn, fl_shape x, fl_shape w, const fl_tensor *dy,
                              const fl_conv2d_args *a) {
    bool ok = x.ndim == 4 && w.ndim == 4 && dy->ndim == 4 && x.dim[0] == dy->shape[0] &&
              w.dim[0] == dy->shape[1] && a->groups > 0 && x.dim[1] == w.dim[1] * a->groups &&
              w.dim[0] % a->groups == 0;
    for (int i = 0; ok && i < 2; i++)
        ok = fl__sane(x.dim[2 + i], 0) && fl__sane(w.dim[2 + i], 1) &&
             dy->shape[2 + i] == fl__windows(x.dim[2 + i], a->pad_lo[i], a->pad_hi[i],
                                             a->dilation[i] * (w.dim[2 + i] - 1) + 1, a->stride[i]);
    if (!ok)
        fl_bad("%s: x %s, w %s and dy %s do not belong together", fn, FL_TEXT_OF(x),
                FL_TEXT_OF(w), FL_SHAPE_TEXT(dy));
    return ok;
}

fl_tensor *fl_conv2d_grad_input(fl_tensor *dy, fl_tensor *w, fl_shape x_shape, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d_grad_input", dy) || fl_absent("fl_conv2d_grad_input", w) ||
        !fl__floats("conv2d_grad_input", dy, w) ||
        !fl__conv2d_args_ok("fl_conv2d_grad_input", &a) ||
        !fl__conv2d_shapes("fl_conv2d_grad_input", x_shape, fl_shape_of(w), dy, &a))
        return NULL;
    fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, w);
    return fl_run_to(FL_OP_conv2d_grad_input, dx, dy, w, &a);
}

fl_tensor *fl_conv2d_grad_weight(fl_tensor *x, fl_tensor *dy, fl_shape w_shape, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d_grad_weight", x) || fl_absent("fl_conv2d_grad_weight", dy) ||
        !fl__floats("conv2d_grad_weight", x, dy) ||
        !fl__conv2d_args_ok("fl_conv2d_grad_weight", &a) ||
        !fl__conv2d_shapes("fl_conv2d_grad_weight", fl_shape_of(x), w_shape, dy, &a))
        return NULL;
    fl_tensor *dw = fl__image_as(fl_call_out(x->family, w_shape, x->dtype), x, dy);
    return fl_run_to(FL_OP_conv2d_grad_weight, dw, x, dy, &a);
}

bool fl_pool2d_resolve(int64_t kernel, fl_pool2d_opts o, int64_t h, int64_t w,
                       fl_pool2d_args *out) {
    int64_t kh = kernel, kw = fl_option_int(o.kernel_w, kh);
    int64_t sh = fl_option_int(o.stride, kh), sw = fl_option_int(o.stride_w, o.stride ? sh : kw);
    int64_t ph = fl_option_int(o.pad, 0), pw = fl_option_int(o.pad_w, ph);
    bool ok = fl__sane(kh, 1) && fl__sane(kw, 1) && fl__sane(sh, 1) && fl__sane(sw, 1) &&
              fl__sane(ph, FL_SAME) && fl__sane(pw, FL_SAME) && fl__sane(h, 0) && fl__sane(w, 0);
    fl_pool2d_args a = {{kh, kw}, {sh, sw}, {0, 0}, {0, 0}, !o.ignore_pad};
    if (ok) {
        fl__resolve_pad(ph, h, kh, sh, &a.pad_lo[0], &a.pad_hi[0]);
        fl__resolve_pad(pw, w, kw, sw, &a.pad_lo[1], &a.pad_hi[1]);
        /* half a window at most, so that no window lies outside the image */
        ok = a.pad_hi[0] <= kh / 2 && a.pad_hi[1] <= kw / 2 &&
             fl__windows(h, a.pad_lo[0], a.pad_hi[0], kh, sh) > 0 &&
             fl__windows(w, a.pad_lo[1], a.pad_hi[1], kw, sw) > 0;
    }
    if (!ok)
        return fl_refuse("fl_pool2d: image %lld x %lld, window %lld x %lld, stride %lld x %lld, pad "
                       "%lld x %lld (at most half a "
                       "window)",
                       (long long)h, (long long)w, (long long)kh, (long long)kw, (long long)sh,
                       (long long)sw, (long long)ph, (long long)pw);
    *out = a;
    return true;
}

static fl_shape fl__pooled_shape(const fl_tensor *x, const fl_pool2d_args *a) {
    fl_shape s = fl_shape_of(x);
    for (int i = 0; i < 2; i++)
        s.dim[2 + i] =
            fl__windows(x->shape[2 + i], a->pad_lo[i], a->pad_hi[i], a->kernel[i], a->stride[i]);
    return s;
}

FL_PRIVATE bool fl__poolable(const char *fn, const fl_tensor *x) {
    if (fl_absent(fn, x)) return false;
    if (x->ndim == 4 && fl_dtype_is_float(x->dtype)) return true;
    return fl_refuse("%s: x is %s of shape %s, not a float of four dims", fn, fl_dtype_name(x->dtype),
                   FL_SHAPE_TEXT(x));
}

/* Positions of one dim's windows: i64 [out, kernel] = o * stride - pad_lo + k. */
static fl_tensor *fl__window_index(const fl_pool2d_args *a, int i, int64_t out) {
    fl_tensor *o = fl_arange(0, (double)out, 1, FL_I64),
              *k = fl_arange(0, (double)a->kernel[i], 1, FL_I64);
    fl_tensor *start = fl_sub(fl_mul(o, fl_int(a->stride[i])), fl_int(a->pad_lo[i]));
    return fl_add(fl_unsqueeze(start, 1), k);
}

/* For x of the shape x_shape: i64 [oh, ow, kh * kw] positions h * w of each window's elements,
   clipped into the image; *inside b8 of the same shape. The pooling compositions gather and scatter
   with them. */
static fl_tensor *fl__windows_of(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                 const char *family, fl_tensor **inside) {
    fl_tensor *pos[2], *in[2];
    for (int i = 0; i < 2; i++) {
        fl_shape s = {
            4, {i ? 1 : y.dim[2], i ? y.dim[3] : 1, i ? 1 : a->kernel[0], i ? a->kernel[1] : 1}};
        int64_t n = x_shape.dim[2 + i];
        fl_tensor *p = fl_reshape(fl__window_index(a, i, y.dim[2 + i]), s);
        in[i] = fl_logical_and(fl_ge(p, fl_int(0)), fl_lt(p, fl_int(n)));
        pos[i] = fl_minimum(fl_maximum(p, fl_int(0)), fl_int(n - 1));
    }
    fl_shape flat = FL_SHAPE(y.dim[2], y.dim[3], a->kernel[0] * a->kernel[1]);
    *inside = fl_to(fl_reshape(fl_logical_and(in[0], in[1]), flat), family);
    return fl_to(fl_reshape(fl_add(fl_mul(pos[0], fl_int(x_shape.dim[3])), pos[1]), flat), family);
}

/* The windows of x as values [n, c, oh * ow, k] with `outside` where they leave the image; *index
   (n, c expanded) and *inside as above, flat. */
static fl_tensor *fl__unfold_windows(fl_tensor *x, fl_shape y, const fl_pool2d_args *a,
                                     double outside, fl_tensor **index) {
    fl_tensor *inside;
    int64_t n = x->shape[0], c = x->shape[1], positions = y.dim[2] * y.dim[3],
            k = a->kernel[0] * a->kernel[1];
    fl_tensor *at = fl__windows_of(fl_shape_of(x), y, a, fl_family_name(x), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), FL_SHAPE(n, c, positions * k));
    fl_tensor *v = fl_gather(fl_reshape(x, FL_SHAPE(n, c, x->shape[2] * x->shape[3])), 2, at);
    v = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)),
                 fl_reshape(v, FL_SHAPE(n, c, positions, k)), fl_num(outside));
    *index = fl_reshape(at, FL_SHAPE(n, c, positions, k));
    return v;
}

static fl_tensor *fl__compose_max_pool(fl_tensor *x, fl_shape y, const fl_pool2d_args *a,
                                       fl_dtype d, fl_tensor **index) {
    fl_scope s = fl_scope_begin();
    fl_tensor *at;
    fl_tensor *v = fl__unfold_windows(x, y, a, -(double)INFINITY, &at);
    fl_tensor *best = fl_argmax(v, 3, true);
    fl_tensor *value = fl_reshape(fl_gather(v, 3, best), y);
    at = d == FL_I64 ? fl_gather(at, 3, best) : fl_cast(best, d);
    *index = fl_promote(&s, fl_reshape(at, y));
    return fl_scope_return(&s, *index ? value : NULL);
}

FL_PRIVATE fl_tensor *fl__max_pool2d(fl_tensor *x, fl_pool2d_args a, fl_dtype d,
                                     fl_tensor **index) {
    fl_shape shape = fl__pooled_shape(x, &a);
    if (!fl__by_slot(x, FL_OP_max_pool2d)) return fl__compose_max_pool(x, shape, &a, d, index);
    fl_call c = {.op = FL_OP_max_pool2d, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    c.out[0] = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, x);
    c.out[1] = *index = c.out[0] ? fl__image_as(fl_call_out(x->family, shape, d), x, x) : NULL;
    return *index ? fl_run_result(&c) : fl_raise();
}

fl_tensor *fl_max_pool2d_opt(fl_tensor *x, int64_t kernel, fl_tensor **index, fl_pool2d_opts o) {
    fl_pool2d_args a;
    if (!fl__poolable("fl_max_pool2d", x) ||
        !fl_pool2d_resolve(kernel, o, x->shape[2], x->shape[3], &a))
        return NULL;
    fl_tensor *at = NULL, *y = fl__max_pool2d(x, a, FL_I64, &at);
    if (index && y) *index = at;
    return y;
}

FL_PRIVATE fl_tensor *fl__pooled_places(fl_tensor *index, fl_shape x_shape, fl_pool2d_args a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(index);
    int64_t n = y.dim[0], c = y.dim[1], m = y.dim[2] * y.dim[3], k = a.kernel[0] * a.kernel[1];
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, &a, fl_family_name(index), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, m, k)), FL_SHAPE(n, c, m, k));
    fl_tensor *tap = fl_reshape(fl_cast(index, FL_I64), FL_SHAPE(n, c, m, 1));
    return fl_scope_return(&s, fl_reshape(fl_gather(at, 3, tap), y));
}

/* Adds src [n, c, m] at positions index [n, c, m] of zero images of x_shape. */
static fl_tensor *fl__scatter_images(fl_tensor *src, fl_tensor *index, fl_shape x_shape) {
    fl_shape flat = FL_SHAPE(x_shape.dim[0], x_shape.dim[1], x_shape.dim[2] * x_shape.dim[3]);
    fl_tensor *zero = fl_call_out(src->family, flat, src->dtype);
    if (!zero) return fl_raise();
    return fl_reshape(fl_scatter_add(fl__fill(zero, 0), 2, index, src), x_shape);
}

fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape) {
    if (fl_absent("fl_max_pool2d_grad", index) || !fl__poolable("fl_max_pool2d_grad", dy))
        return NULL;
    if (!fl_same_shape(dy, index) || index->dtype != FL_I64 || x_shape.ndim != 4 ||
        x_shape.dim[0] != dy->shape[0] || x_shape.dim[1] != dy->shape[1] ||
        fl_shape_numel(x_shape) < 0 || !fl_same_family("max_pool2d_grad", dy, index))
        return fl_bad("fl_max_pool2d_grad: dy %s, index %s (%s), x %s", FL_SHAPE_TEXT(dy),
                       FL_SHAPE_TEXT(index), fl_dtype_name(index->dtype),
                       FL_TEXT_OF(x_shape));
    return fl__max_pool2d_grad(dy, index, x_shape, (fl_pool2d_args){{0}, {0}, {0}, {0}, false});
}

FL_PRIVATE fl_tensor *fl__max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape,
                                          fl_pool2d_args a) {
    if (fl__by_slot(dy, FL_OP_max_pool2d_grad)) {
        fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, index);
        return fl_run_to(FL_OP_max_pool2d_grad, dx, dy, index, &a);
    }
    fl_scope s = fl_scope_begin();
    fl_shape flat = FL_SHAPE(dy->shape[0], dy->shape[1], dy->shape[2] * dy->shape[3]);
    if (index->dtype == FL_U8) index = fl__pooled_places(index, x_shape, a);
    fl_tensor *src = fl_reshape(dy, flat), *at = fl_reshape(index, flat);
    return fl_scope_return(&s, src && at ? fl__scatter_images(src, at, x_shape) : NULL);
}

/* One over the number of elements each window averages, [oh * ow, 1]; on x's family. */
static fl_tensor *fl__window_weights(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                     fl_dtype dtype, const char *family) {
    fl_tensor *inside;
    if (!fl__windows_of(x_shape, y, a, family, &inside)) return NULL;
    fl_tensor *count = fl_sum(fl_cast(fl_reshape(inside, FL_SHAPE(y.dim[2] * y.dim[3], -1)), dtype),
                              FL_AXES_KEEP(1));
    if (a->count_pad) count = fl_full_like(count, (double)(a->kernel[0] * a->kernel[1]));
    return fl_reciprocal(count);
}

fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a) {
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl__window_args_ok("fl_avg_pool2d", a.stride, a.pad_lo, a.pad_hi, a.kernel))
        return NULL;
    fl_shape shape = fl__pooled_shape(x, &a);
    if (fl__by_slot(x, FL_OP_avg_pool2d)) {
        fl_tensor *y = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, x);
        return fl_run_to(FL_OP_avg_pool2d, y, x, NULL, &a);
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *at, *v = fl__unfold_windows(x, shape, &a, 0, &at);
    fl_tensor *w = fl__window_weights(fl_shape_of(x), shape, &a, x->dtype, fl_family_name(x));
    return fl_scope_return(&s, fl_reshape(fl_mul(fl_sum(v, FL_AXES_KEEP(3)), w), shape));
}

fl_tensor *fl_avg_pool2d_opt(fl_tensor *x, int64_t kernel, fl_pool2d_opts o) {
    fl_pool2d_args a;
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl_pool2d_resolve(kernel, o, x->shape[2], x->shape[3], &a))
        return NULL;
    return fl_avg_pool2d_run(x, a);
}

static fl_tensor *fl__compose_avg_pool_grad(fl_tensor *dy, fl_shape x_shape,
                                            const fl_pool2d_args *a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(dy);
    int64_t n = y.dim[0], c = y.dim[1], positions = y.dim[2] * y.dim[3],
            k = a->kernel[0] * a->kernel[1];
    const char *family = fl_family_name(dy);
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, a, family, &inside);
    fl_tensor *w = fl__window_weights(x_shape, y, a, dy->dtype, family);
    fl_tensor *share = fl_mul(fl_reshape(dy, FL_SHAPE(n, c, positions, 1)), w);
    share = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)), share, fl_num(0));
    share = fl_reshape(share, FL_SHAPE(n, c, positions * k));
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), FL_SHAPE(n, c, positions * k));
    return fl_scope_return(&s, share && at ? fl__scatter_images(share, at, x_shape) : NULL);
}

fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a) {
    if (!fl__poolable("fl_avg_pool2d_grad", dy) ||
        !fl__window_args_ok("fl_avg_pool2d_grad", a.stride, a.pad_lo, a.pad_hi, a.kernel))
        return NULL;
    bool ok = x_shape.ndim == 4 && x_shape.dim[0] == dy->shape[0] && x_shape.dim[1] == dy->shape[1];
    for (int i = 0; ok && i < 2; i++)
        ok = fl__sane(x_shape.dim[2 + i], 0) && dy->shape[2 + i] ==
             fl__windows(x_shape.dim[2 + i], a.pad_lo[i], a.pad_hi[i], a.kernel[i], a.stride[i]);
    if (!ok)
        return fl_bad("fl_avg_pool2d_grad: dy %s, x %s", FL_SHAPE_TEXT(dy),
                       FL_TEXT_OF(x_shape));
    if (!fl__by_slot(dy, FL_OP_avg_pool2d_grad)) return fl__compose_avg_pool_grad(dy, x_shape, &a);
    fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, dy);
    return fl_run_to(FL_OP_avg_pool2d_grad, dx, dy, NULL, &a);
}

/* >>gradients ---------------------------------------------------------------------------------- */

/* The fused gradient may run: the family has the slot and nobody replaced an op of the formula. */
static bool fl__grad_by_slot(const fl_tensor *dy, fl_op slot, fl_op op) {
    const fl_backend *be = fl_family_backend(dy->family);
    return (be->any || be->op[slot]) && !be->no_grad[op];
}

/* An operand of a fused gradient: a number, or a float like dy. */
static bool fl__grad_operand(const char *fn, const fl_tensor *t, const fl_tensor *dy) {
    if (fl_absent(fn, t) || fl_absent(fn, dy)) return false;
    if (!dy->weak && (t->weak || (t->dtype == dy->dtype && t->family == dy->family &&
                                  fl_dtype_is_float(dy->dtype) && fl_same_shape(t, dy))))
        return true;
    return fl_refuse("%s: operand %s %s and dy %s %s differ, or are no floats", fn,
                   fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(dy->dtype),
                   FL_SHAPE_TEXT(dy));
}

FL_PRIVATE fl_tensor *fl__grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy,
                                fl_tensor *out) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 1)
        return fl_bad("fl_grad1: op %d has no formula of x", (int)op);
    if (!fl__grad_operand("fl_grad1", x, dy) || !fl__grad_operand("fl_grad1", y, dy)) return NULL;
    if (!fl__grad_by_slot(dy, FL_OP_grad1, op)) return NULL;
    fl_grad_args a = {op};
    fl_call c = {.op = FL_OP_grad1, .n_out = 1, .n_in = 3, .in = {x, y, dy}, .args = &a};
    c.out[0] = out ? out : fl_lay_out_as(fl_out_like(dy, dy->dtype), dy);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}

fl_tensor *fl_grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy) {
    return fl__grad1(op, x, y, dy, NULL);
}

bool fl_grad2(fl_op op, int want, fl_tensor *a, fl_tensor *b, fl_tensor *y, fl_tensor *dy,
              fl_tensor **da, fl_tensor **db) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 2)
        return fl_refuse("fl_grad2: op %d has no formula of a and b", (int)op);
    if (!fl__grad_operand("fl_grad2", a, dy) || !fl__grad_operand("fl_grad2", b, dy) ||
        !fl__grad_operand("fl_grad2", y, dy))
        return false;
    if (!fl__grad_by_slot(dy, FL_OP_grad2, op)) return false;
    fl_grad_args args = {op};
    fl_call c = {.op = FL_OP_grad2, .n_out = 2, .n_in = 4, .in = {a, b, y, dy}, .args = &args};
    for (int i = 0; i < 2; i++)
        if (want >> i & 1 && !(c.out[i] = fl_lay_out_as(fl_out_like(dy, dy->dtype), dy)))
            return fl_raise() != NULL;
    if (!fl_run(&c)) return fl_raise() != NULL;
    if (want & 1) *da = c.out[0];
    if (want & 2) *db = c.out[1];
    return true;
}

/* >>optimizers --------------------------------------------------------------------------------- */

/* p, g and the states are stored floats of one shape, dtype and family, and may be written. */
static bool fl__step_operands(const char *fn, fl_tensor *g, int n, fl_tensor *const *state) {
    if (fl_absent(fn, g)) return false;
    for (int i = 0; i < n; i++) {
        if (fl_absent(fn, state[i])) return false;
        if (!fl_same_shape(g, state[i]) || g->dtype != state[i]->dtype ||
            g->family != state[i]->family || !fl_dtype_is_float(g->dtype))
            return fl_refuse("%s: gradient %s %s and operand %d %s %s do not belong together", fn,
                           fl_dtype_name(g->dtype), FL_SHAPE_TEXT(g), i,
                           fl_dtype_name(state[i]->dtype), FL_SHAPE_TEXT(state[i]));
        if (!fl_writable(fn, state[i])) return false;
    }
    return true;
}

/* a * x + b * y. */
static fl_tensor *fl__axpby(double a, fl_tensor *x, double b, fl_tensor *y) {
    return fl_add(fl_mul(x, fl_num(a)), fl_mul(y, fl_num(b)));
}

static bool fl__compose_sgd(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a) {
    fl_scope s = fl_scope_begin();
    if (a->weight_decay != 0) g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    fl_tensor *d = g;
    bool ok = true;
    if (m) {
        ok = fl_assign(m, fl__axpby(a->momentum, m, a->first ? 1 : 1 - a->dampening, g));
        d = a->nesterov ? fl_add(g, fl_mul(m, fl_num(a->momentum))) : m;
    }
    ok = ok && fl_assign(p, fl_sub(p, fl_mul(d, fl_num(a->lr))));
    fl_scope_end(&s);
    return ok;
}

bool fl_sgd_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a) {
    if (fl_absent("fl_sgd_step", a) ||
        !fl__step_operands("fl_sgd_step", g, m ? 2 : 1, (fl_tensor *[]){p, m}))
        return false;
    if (!fl__by_slot(p, FL_OP_sgd_step)) return fl__compose_sgd(p, g, m, a);
    fl_call c = {.op = FL_OP_sgd_step,
                 .n_out = m ? 2 : 1,
                 .n_in = m ? 3 : 2,
                 .out = {p, m},
                 .in = {g, p, m},
                 .args = a};
    return fl_run(&c) || fl_raise();
}

static bool fl__compose_adam(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v,
                             const fl_adam_args *a) {
    fl_scope s = fl_scope_begin();
    fl_tensor *q = p;
    if (a->weight_decay != 0 && a->decoupled)
        q = fl_mul(p, fl_num(1 - a->lr * a->weight_decay));
    else if (a->weight_decay != 0)
        g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    bool ok = fl_assign(m, fl__axpby(a->beta1, m, 1 - a->beta1, g)) &&
              fl_assign(v, fl__axpby(a->beta2, v, 1 - a->beta2, fl_mul(g, g)));
    fl_tensor *scale = fl_add(fl_mul(fl_sqrt(v), fl_num(1 / sqrt(a->bias2))), fl_num(a->eps));
    ok = ok && fl_assign(p, fl_sub(q, fl_mul(fl_div(m, scale), fl_num(a->lr / a->bias1))));
    fl_scope_end(&s);
    return ok;
}

bool fl_adam_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v, const fl_adam_args *a) {
    if (fl_absent("fl_adam_step", a) ||
        !fl__step_operands("fl_adam_step", g, 3, (fl_tensor *[]){p, m, v}))
        return false;
    if (!fl__by_slot(p, FL_OP_adam_step)) return fl__compose_adam(p, g, m, v, a);
    fl_call c = {.op = FL_OP_adam_step,
                 .n_out = 3,
                 .n_in = 4,
                 .out = {p, m, v},
                 .in = {g, p, m, v},
                 .args = a};
    return fl_run(&c) || fl_raise();
}

/* >>composed ----------------------------------------------------------------------------------- */

/* The transform as a matrix [2 n, 2 n] of re and im: [[cos, sin], [-sin, cos]] of the angles. */
static fl_tensor *fl__fft_matrix(int64_t n, bool inverse, const fl_tensor *like) {
    fl_tensor *k = fl_arange(0, (double)n, 1, FL_I64);
    fl_tensor *jk = fl_remainder(fl_mul(fl_unsqueeze(k, 1), k), fl_int(n));
    double angle = (inverse ? 6.283185307179586 : -6.283185307179586) / (double)n;
    fl_tensor *a = fl_mul(fl_cast(jk, FL_F64), fl_num(angle)), *c = fl_cos(a), *s = fl_sin(a);
    fl_tensor *re[] = {c, s}, *im[] = {fl_neg(s), c};
    fl_tensor *rows[] = {fl_stack(re, 2, -1), fl_stack(im, 2, -1)};
    fl_tensor *w = fl_reshape(fl_stack(rows, 2, 1), FL_SHAPE(2 * n, 2 * n));
    return w ? fl_to(fl_cast(w, like->dtype), fl_family_name(like)) : NULL;
}

static fl_tensor *fl__compose_fft(fl_tensor *x, const fl_fft_args *a) {
    int last = x->ndim - 2;
    fl_tensor *lines = fl_contiguous(fl_transpose(x, a->axis, last));
    if (!lines) return NULL;
    fl_shape pairs = fl_shape_of(lines), flat = pairs;
    int64_t n = pairs.dim[last];
    flat.dim[--flat.ndim - 1] = 2 * n;
    fl_tensor *y = fl_matmul(fl_reshape(lines, flat), fl__fft_matrix(n, a->inverse, x));
    return fl_transpose(fl_reshape(y, pairs), a->axis, last);
}

/* The value of output i of an OPT op's record by its composition: what the public function does
   without the slot. */
static fl_tensor *fl__composed_value(const fl_call *c, int i, fl_tensor **index) {
    fl_tensor *const *in = c->in;
    fl_shape shape = fl_shape_of(c->out[i]);
    if (fl_op_get_info(c->op)->arity) return fl__formula(c->op, in[0], in[1]);
    switch (c->op) {
    case FL_OP_max_pool2d:
        return i ? *index : fl__compose_max_pool(in[0], shape, c->args, c->out[1]->dtype, index);
    case FL_OP_max_pool2d_grad:
        return fl__max_pool2d_grad(in[0], in[1], shape, *(const fl_pool2d_args *)c->args);
    case FL_OP_avg_pool2d:
        return fl_avg_pool2d_run(in[0], *(const fl_pool2d_args *)c->args);
    case FL_OP_avg_pool2d_grad:
        return fl_avg_pool2d_grad(in[0], shape, *(const fl_pool2d_args *)c->args);
    case FL_OP_fft:
        return fl__compose_fft(in[0], c->args);
    case FL_OP_grad1:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op, FL_PROGRAM_DA), in);
    case FL_OP_grad2:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op,
                                            i ? FL_PROGRAM_DB : FL_PROGRAM_DA), in);
    default:
        return fl_bad("fl_%s: it has no composition", fl_op_get_info(c->op)->name);
    }
}

/* y becomes v, which may be a number or broadcast. */
static bool fl__composed_out(fl_tensor *y, fl_tensor *v) {
    if (v && v->weak) { /* a formula that is a constant */
        fl_fill_args a = {v->f64, v->i64};
        fl_call fill = {.op = FL_OP_fill, .n_out = 1, .out = {y}, .args = &a};
        return fl_run(&fill);
    }
    v = v ? fl_expand(v, fl_shape_of(y)) : NULL;
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {v}};
    return v && fl_run(&copy);
}

/* Compositions of the ops that headers above this one have run so far. */
static fl_compose_fn fl__compositions[FL_TABLE_OPS];

FL_PRIVATE bool fl__run_fused(const fl_call *c, fl_compose_fn compose) {
    __atomic_store_n(&fl__compositions[c->op], compose, __ATOMIC_RELAXED);
    return fl_run(c) || fl_raise();
}

/* Runs the record of an OPT op that its backend has no slot for. */
bool fl_run_composed(const fl_call *c) {
    if (c->op == FL_OP_sgd_step)
        return fl__compose_sgd(c->out[0], c->in[0], c->n_out > 1 ? c->out[1] : NULL, c->args);
    if (c->op == FL_OP_adam_step)
        return fl__compose_adam(c->out[0], c->in[0], c->out[1], c->out[2], c->args);
    fl_compose_fn above = fl_op_get_info(c->op)->compose;
    if (!above) above = __atomic_load_n(&fl__compositions[c->op], __ATOMIC_RELAXED);
    fl_scope s = fl_scope_begin();
    fl_tensor *index = NULL, *value[4] = {NULL};
    bool ok = !above || above(c, value);
    for (int i = 0; ok && i < c->n_out; i++) {
        if (!c->out[i]) continue;
        ok = fl__composed_out(c->out[i], above ? value[i] : fl__composed_value(c, i, &index));
    }
    fl_scope_end(&s);
    return ok;
}

#endif /* FL_TENSOR_OPS_IMPL */
#endif

/* MIT licence: see LICENSE. */
