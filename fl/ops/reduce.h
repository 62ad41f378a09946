/* fl/ops/reduce.h - reductions: sum, mean, variance, max, norm, logsumexp, median, quantile, trapezoid

   sum, prod, amax, amin, argmax and argmin are ops of the table, with records (fl_reduce_args) x -> y; the
   others are composed of them. Kernels see b8 as u8. Sums and products of b8 and integers are i64. f16 and
   bf16 accumulate in f32; means and norms are rounded once. axes: FL_AXES(0, 2) removes axes,
   FL_AXES_KEEP(...) keeps them as size 1, FL_ALL_AXES reduces all. Errors: an axis out of range or given
   twice. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_REDUCE_H
#define FL_OPS_REDUCE_H
#include "../autograd/accumulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sum; 0 over no elements */
FL_API fl_tensor *fl_sum(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_sum(fl_var *x, fl_axes axes);
/* Product; 1 over no elements. Its gradient is exact at zeros too. */
FL_API fl_tensor *fl_prod(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_prod(fl_var *x, fl_axes axes);
/* sum(x) / n; floats only, as variance and std */
FL_API fl_tensor *fl_mean(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_mean(fl_var *x, fl_axes axes);
/* torch.var: sum((x - mean)^2) / (n - correction); correction 1 is unbiased (PyTorch's default), 0 biased */
FL_API fl_tensor *fl_variance(fl_tensor *x, fl_axes axes, int64_t correction);
FL_API fl_var *fv_variance(fl_var *x, fl_axes axes, int64_t correction);
/* The square root of the variance, in f64, because the terms of its second derivative cancel */
FL_API fl_tensor *fl_std(fl_tensor *x, fl_axes axes, int64_t correction);
FL_API fl_var *fv_std(fl_var *x, fl_axes axes, int64_t correction);
/* Maximum and minimum; NaN wins; equal elements share the gradient. Error over no elements. */
FL_API fl_tensor *fl_amax(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_amax(fl_var *x, fl_axes axes);
FL_API fl_tensor *fl_amin(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_amin(fl_var *x, fl_axes axes);
/* The i64 index of the first maximum, or minimum, along axis; NaN wins. */
FL_API fl_tensor *fl_argmax(fl_tensor *x, int axis, bool keepdim);
FL_API fl_tensor *fl_argmin(fl_tensor *x, int axis, bool keepdim);
/* torch.max and min with dim: the first maximum, or minimum, along axis, which gets the gradient; NaN wins.
   *index (may be NULL): its i64 index. */
FL_API fl_tensor *fl_max_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_max_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_tensor *fl_min_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_min_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
/* b8: true if all elements, or any, are not 0 */
FL_API fl_tensor *fl_all(fl_tensor *x, fl_axes axes);
FL_API fl_tensor *fl_any(fl_tensor *x, fl_axes axes);
/* i64: the number of elements that are not 0 */
FL_API fl_tensor *fl_count_nonzero(fl_tensor *x, fl_axes axes);
/* log(sum(exp(x))), stable for any finite x; -inf over no elements */
FL_API fl_tensor *fl_logsumexp(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_logsumexp(fl_var *x, fl_axes axes);
/* Vector p-norm (sum |x|^p)^(1/p); p = inf or -inf: the largest or smallest |x|; p = 0: the number of x != 0.
   The gradient is 0 at x = 0. */
FL_API fl_tensor *fl_norm(fl_tensor *x, double p, fl_axes axes);
FL_API fl_var *fv_norm(fl_var *x, double p, fl_axes axes);
/* Sum of the elements that are not NaN; 0 if there are none */
FL_API fl_tensor *fl_nansum(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nansum(fl_var *x, fl_axes axes);
/* Mean of the elements that are not NaN; NaN if there are none */
FL_API fl_tensor *fl_nanmean(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nanmean(fl_var *x, fl_axes axes);
/* Trapezoidal rule with spacing dx: dx / 2 sum(y[1:] + y[:-1]) along axis */
FL_API fl_tensor *fl_trapezoid(fl_tensor *y, double dx, int axis);
FL_API fl_var *fv_trapezoid(fl_var *y, double dx, int axis);
/* The same with sample points x: a vector along axis, or a shape that broadcasts with y's */
FL_API fl_tensor *fl_trapezoid_x(fl_tensor *y, fl_tensor *x, int axis);
FL_API fl_var *fv_trapezoid_x(fl_var *y, fl_var *x, int axis);
/* The n - 1 integrals up to samples 1, 2, ..., n - 1 along axis */
FL_API fl_tensor *fl_cumulative_trapezoid(fl_tensor *y, double dx, int axis);
FL_API fl_var *fv_cumulative_trapezoid(fl_var *y, double dx, int axis);
FL_API fl_tensor *fl_cumulative_trapezoid_x(fl_tensor *y, fl_tensor *x, int axis);
FL_API fl_var *fv_cumulative_trapezoid_x(fl_var *y, fl_var *x, int axis);

/* The k-th smallest element along axis, 1 <= k <= n; NaN is the largest. *index, here and below, may be
   NULL. */
FL_API fl_tensor *fl_kthvalue(fl_tensor *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_kthvalue(fl_var *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
/* The median along axis, the lower of two middle elements; NaN if an element is NaN */
FL_API fl_tensor *fl_median(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_median(fl_var *x, int axis, bool keepdim, fl_tensor **index);
/* The median of the elements that are not NaN */
FL_API fl_tensor *fl_nanmedian(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_nanmedian(fl_var *x, int axis, bool keepdim, fl_tensor **index);
/* The median over several axes, or all. */
FL_API fl_tensor *fl_median_axes(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_median_axes(fl_var *x, fl_axes axes);
/* Interpolation between the two nearest elements, as torch.quantile's */
typedef enum fl_quantile_method {
    FL_QUANTILE_LINEAR,
    FL_QUANTILE_LOWER,
    FL_QUANTILE_HIGHER,
    FL_QUANTILE_NEAREST,
    FL_QUANTILE_MIDPOINT
} fl_quantile_method;
/* The quantile q in [0, 1] along axis: the element at rank q (n - 1) in ascending order. NaN if an element is
   NaN; nanquantile ignores NaN. */
FL_API fl_tensor *fl_quantile(fl_tensor *x, double q, int axis, bool keepdim, fl_quantile_method method);
FL_API fl_var *fv_quantile(fl_var *x, double q, int axis, bool keepdim, fl_quantile_method method);
FL_API fl_tensor *fl_nanquantile(fl_tensor *x, double q, int axis, bool keepdim, fl_quantile_method method);
FL_API fl_var *fv_nanquantile(fl_var *x, double q, int axis, bool keepdim, fl_quantile_method method);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_REDUCE_H */

#if defined(FL_IMPL_ONLY_OPS_REDUCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_REDUCE_IMPL
#define FL_OPS_REDUCE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "autocast.h"
#include "copy.h"
#include "elementwise.h"
#include "index.h"
#include "order.h"
#include "scan.h"
#include "softmax.h"
#include "special.h"
#include "view.h"
#include <math.h>

/* ---- shape rules ---- */

/* *mask: axes as bits, all of x's if none is given. Returns false after an error. */
static bool fl__axes_mask(const char *fn, const fl_tensor *x, fl_axes axes, uint32_t *mask) {
    *mask = 0;
    if (axes.n < 0 || axes.n > FL_MAX_DIMS) return fl_err_false("%s: got %d axes, expected 0 to %d", fn,
                                                                axes.n,
                                                                   FL_MAX_DIMS);
    if (axes.n == 0) *mask = (1u << x->ndim) - 1;
    for (int i = 0; i < axes.n; i++) {
        int a = fl_axis_of(fn, x, axes.axis[i]);
        if (a < 0) return false;
        if (*mask & 1u << a) return fl_err_false("%s: axis %d appears twice", fn, a);
        *mask |= 1u << a;
    }
    return true;
}

/* The number of elements per result: the product of the sizes of the axes of the mask. */
static int64_t fl__group_size(fl_shape x, uint32_t mask) {
    int64_t n = 1;
    for (int d = 0; d < x.ndim; d++)
        if (mask >> d & 1) n *= x.dim[d];
    return n;
}

static fl_shape fl__reduced_shape(const fl_tensor *x, uint32_t mask, bool keepdim) {
    fl_shape s = {0, {0}};
    for (int d = 0; d < x->ndim; d++) {
        bool gone = mask >> d & 1;
        if (!gone || keepdim) s.dim[s.ndim++] = gone ? 1 : x->shape[d];
    }
    return s;
}

/* Runs the record; out: dtype of the result, FL_DTYPE_NONE: x's. */
static fl_tensor *fl__reduce(fl_op op, const char *fn, fl_tensor *x, fl_axes axes, fl_dtype out,
                             bool needs_elements) {
    fl_reduce_args a = {0, axes.keepdim};
    if (!fl__axes_mask(fn, x, axes, &a.axes)) return NULL;
    if (needs_elements && fl__group_size(fl_shape_of(x), a.axes) == 0)
        return fl_err_null("%s: no elements along the reduced axes of shape %s", fn, FL_SHAPE_TEXT(x));
    fl_shape shape = fl__reduced_shape(x, a.axes, axes.keepdim);
    return fl_call_into(op, fl_out_on(x->backend, shape, out ? out : x->dtype), x, NULL, &a);
}

/* x as a kernel takes it: b8 as u8, materialised. */
static fl_tensor *fl__reduce_operand(const char *fn, fl_tensor *x, fl_op_class cls) {
    if (fl_is_null_arg(fn, x) || !(x = fl_materialise(x))) return NULL;
    if (x->dtype == FL_B8) return fl_cast(x, FL_U8);
    if (fl_compute_dtype(cls, x->dtype) == FL_DTYPE_NONE)
        return fl_err_null("%s: dtype %s is not supported", fn, fl_dtype_name(x->dtype));
    return x;
}

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

static fl_tensor *fl__reduce_arg_extreme(fl_op op, const char *fn, fl_tensor *x, int axis, bool keepdim) {
    x = fl__reduce_operand(fn, x, FL_CLASS_ANY);
    return x ? fl__reduce(op, fn, x, (fl_axes){1, {axis}, keepdim}, FL_I64, true) : NULL;
}

fl_tensor *fl_argmax(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmax, "fl_argmax", x, axis, keepdim);
}

fl_tensor *fl_argmin(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmin, "fl_argmin", x, axis, keepdim);
}

/* ---- composed of these, on tensors ---- */

/* Checks that x is a float, materialised; *n: elements per result. */
static fl_tensor *fl__mean_operand(const char *fn, fl_tensor *x, fl_axes axes, int64_t *n) {
    uint32_t mask;
    if (fl_is_null_arg(fn, x) || !(x = fl_materialise(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype))
        return fl_err_null("%s: %s is not a float: cast it first", fn, fl_dtype_name(x->dtype));
    if (!fl__axes_mask(fn, x, axes, &mask)) return NULL;
    *n = fl__group_size(fl_shape_of(x), mask);
    return x;
}

fl_tensor *fl_mean(fl_tensor *x, fl_axes axes) {
    int64_t n = 0;
    if (!(x = fl__mean_operand("fl_mean", x, axes, &n))) return NULL;
    fl_scope s = fl_scope_of(__func__);
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_mean(fl_cast(x, FL_F32), axes), x->dtype));
    return fl_scope_return(&s, fl_div(fl_sum(x, axes), fl_num((double)n)));
}

fl_tensor *fl_variance(fl_tensor *x, fl_axes axes, int64_t correction) {
    int64_t n = 0;
    if (!(x = fl__mean_operand("fl_variance", x, axes, &n))) return NULL;
    fl_scope s = fl_scope_of(__func__);
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
    uint32_t mask;
    if (fl_is_null_arg("fl_all", x) || !fl__axes_mask("fl_all", x, axes, &mask)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    return fl_scope_return(&s, fl_eq(fl_sum(fl_logical_not(x), axes), fl_int(0)));
}

fl_tensor *fl_any(fl_tensor *x, fl_axes axes) {
    uint32_t mask;
    if (fl_is_null_arg("fl_any", x) || !fl__axes_mask("fl_any", x, axes, &mask)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    return fl_scope_return(&s, fl_gt(fl_sum(fl_cast(x, FL_B8), axes), fl_int(0)));
}

fl_tensor *fl_count_nonzero(fl_tensor *x, fl_axes axes) {
    if (fl_is_null_arg("fl_count_nonzero", x)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    x = fl_cast(x, FL_B8);
    return fl_scope_return(&s, x ? fl_sum(x, axes) : NULL);
}

fl_tensor *fl_logsumexp(fl_tensor *x, fl_axes axes) {
    uint32_t mask;
    if (fl_is_null_arg("fl_logsumexp", x) || !(x = fl_materialise(x)) ||
        !fl__axes_mask("fl_logsumexp", x, axes, &mask) ||
        (!fl_dtype_is_float(x->dtype) && !(x = fl_cast(x, FL_F32))))
        return NULL;
    fl_scope s = fl_scope_of(__func__);
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_logsumexp(fl_cast(x, FL_F32), axes), x->dtype));
    fl_axes keep = axes;
    keep.keepdim = true;
    if (fl__group_size(fl_shape_of(x), mask) == 0) {
        const fl_shape shape = fl__reduced_shape(x, mask, axes.keepdim);
        return fl_scope_return(&s, fl_new_full(x, shape, -(double)INFINITY));
    }
    fl_tensor *m = fl_stable_max(x, axes);
    fl_tensor *y = fl_add(fl_log(fl_sum(fl_exp(fl_sub(x, m)), keep)), m);
    if (y && !axes.keepdim) y = fl_reshape(y, fl__reduced_shape(x, mask, false));
    return fl_scope_return(&s, y);
}

/* ---- gradients ---- */

/* The saved arguments of a reduction: axes as bits, correction. */
typedef struct fv__reduced {
    uint32_t axes;
    int64_t correction;
} fv__reduced;

/* Records a reduction. */
static fl_var *fv__reduction(const char *name, fl_tensor *value, fl_back_fn back, fl_var *x, fl_axes axes,
                             fv_list saved, int64_t correction) {
    fv__reduced r = {.correction = correction};
    if (!value || !fl__axes_mask(name, x->value, axes, &r.axes)) return NULL;
    return fv_record_args(name, value, back, FV_IN(x), saved, &r, sizeof r);
}

/* The axes of a mask as an fl_axes that keeps them as size 1. */
static fl_axes fv__keepdim_axes(uint32_t axes) {
    fl_axes a = {.keepdim = true};
    for (int d = 0; d < FL_MAX_DIMS; d++)
        if (axes >> d & 1) a.axis[a.n++] = d;
    return a;
}

/* A result of the reduction, or its gradient, with the reduced dims as 1, to broadcast with the input. */
static fl_var *fv__keepdim(fl_var *r, fl_shape in, uint32_t axes) {
    for (int d = 0; d < in.ndim; d++)
        if (axes >> d & 1) in.dim[d] = 1;
    return fv_reshape(r, in);
}

static void fv__sum_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0);
    fv_add_grad(n, 0, fv_expand(fv__keepdim(dy, in, r->axes), in));
}

fl_var *fv_sum(fl_var *x, fl_axes axes) {
    if (!fv_autocast(FL_OP_sum, &x, 1)) return NULL;
    return fv__reduction("sum", fl_sum(fv_value(x), axes), fv__sum_back, x, axes, FV_NONE, 0);
}

static void fv__mean_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0);
    fl_var *share = fv_div(dy, fv_num((double)fl__group_size(in, r->axes)));
    fv_add_grad(n, 0, fv_expand(fv__keepdim(share, in, r->axes), in));
}

fl_var *fv_mean(fl_var *x, fl_axes axes) {
    return fv__reduction("mean", fl_mean(fv_value(x), axes), fv__mean_back, x, axes, FV_NONE, 0);
}

/* dx = 2 (x - mean) dy / (n - correction) */
static void fv__variance_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0);
    fl_var *x = fv_saved(n, 0);
    int64_t left = fl__group_size(in, r->axes) - r->correction;
    fl_var *away = fv_sub(x, fv_mean(x, fv__keepdim_axes(r->axes)));
    fl_var *scaled = fv_mul(dy, fv_num(2.0 / (double)(left > 0 ? left : 0)));
    fv_add_grad(n, 0, fv_mul(away, fv__keepdim(scaled, in, r->axes)));
}

fl_var *fv_variance(fl_var *x, fl_axes axes, int64_t correction) {
    fl_tensor *value = fl_variance(fv_value(x), axes, correction);
    return fv__reduction("variance", value, fv__variance_back, x, axes, FV_SAVE(x), correction);
}

/* Elements equal to the result share dy. */
static void fv__extreme_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0);
    fl_var *x = fv_saved(n, 0), *y = fv__keepdim(fv_saved(n, 1), in, r->axes);
    fl_var *hit = fv_cast(fv_eq(x, y), dy->value->dtype);
    fl_var *share = fv_div(fv__keepdim(dy, in, r->axes), fv_sum(hit, fv__keepdim_axes(r->axes)));
    fv_add_grad(n, 0, fv_mul(hit, share));
}

fl_var *fv_amax(fl_var *x, fl_axes axes) {
    fl_tensor *value = fl_amax(fv_value(x), axes);
    return fv__reduction("amax", value, fv__extreme_back, x, axes, FV_SAVE(x, FV_OUT), 0);
}

fl_var *fv_amin(fl_var *x, fl_axes axes) {
    fl_tensor *value = fl_amin(fv_value(x), axes);
    return fv__reduction("amin", value, fv__extreme_back, x, axes, FV_SAVE(x, FV_OUT), 0);
}

/* dx = dy exp(x - y) */
static void fv__logsumexp_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0);
    fl_var *x = fv_saved(n, 0), *y = fv__keepdim(fv_saved(n, 1), in, r->axes);
    fv_add_grad(n, 0, fv_mul(fv__keepdim(dy, in, r->axes), fv_exp(fv_sub(x, y))));
}

fl_var *fv_logsumexp(fl_var *x, fl_axes axes) {
    if (!fv_autocast(FL_OP_sum, &x, 1)) return NULL;
    fl_tensor *value = fl_logsumexp(fv_value(x), axes);
    return fv__reduction("logsumexp", value, fv__logsumexp_back, x, axes, FV_SAVE(x, FV_OUT), 0);
}

/* x [rows, n], dy [rows, 1] -> [rows, n]: dy times the product of the other elements of the row. Pairwise
   products are computed up a tree, products of all other elements down it. Without division, so that
   derivatives of any order are right at zeros. */
static fl_var *fv__times_others(fl_var *x, fl_var *dy, int64_t rows, int64_t n) {
    fl_var *pairs[64];
    int64_t size[64];
    int depth = 0;
    for (; n > 1 && x; n = (n + 1) / 2) {
        if (n % 2) {
            fl_var *both[] = {x, fv_const(fl_new_full(x->value, FL_SHAPE(rows, 1), 1))};
            x = fv_concat(both, 2, 1);
        }
        size[depth] = n;
        pairs[depth] = fv_reshape(x, FL_SHAPE(rows, (n + 1) / 2, 2));
        x = fv_mul(fv_select(pairs[depth], 2, 0), fv_select(pairs[depth], 2, 1));
        depth++;
    }
    while (depth-- > 0 && x) {
        fl_var *swapped = fv_slice(pairs[depth], 2, -1, FL_SLICE_END, -1);
        dy = fv_reshape(fv_mul(fv_unsqueeze(dy, 2), swapped),
                        FL_SHAPE(rows, (size[depth] + 1) / 2 * 2));
        if (size[depth] % 2) dy = fv_slice(dy, 1, 0, size[depth], 1);
    }
    return x ? dy : NULL;
}

static void fv__prod_back(fl_node *n, fl_var *dy) {
    const fv__reduced *r = fv_args(n);
    fl_shape in = fv_in_shape(n, 0), moved = {.ndim = in.ndim};
    int to[FL_MAX_DIMS], back[FL_MAX_DIMS], k = 0;
    for (int reduced = 0; reduced < 2; reduced++) /* the reduced axes after the others */
        for (int d = 0; d < in.ndim; d++)
            if ((int)(r->axes >> d & 1) == reduced)
                back[d] = k, to[k] = d, moved.dim[k++] = in.dim[d];
    int64_t group = fl__group_size(in, r->axes), rows = fl__group_size(in, ~r->axes);
    fl_var *x = fv_saved(n, 0);
    if (group == 0 || rows == 0) { /* empty gradient */
        fv_add_grad(n, 0, fv_const(fl_new_full(dy->value, in, 0)));
        return;
    }
    x = fv_reshape(fv_permute(x, in.ndim, to), FL_SHAPE(rows, group));
    fl_var *dx = fv__times_others(x, fv_reshape(dy, FL_SHAPE(rows, 1)), rows, group);
    fv_add_grad(n, 0, fv_permute(fv_reshape(dx, moved), in.ndim, back));
}

fl_var *fv_prod(fl_var *x, fl_axes axes) {
    if (!fv_autocast(FL_OP_prod, &x, 1)) return NULL;
    return fv__reduction("prod", fl_prod(fv_value(x), axes), fv__prod_back, x, axes, FV_SAVE(x), 0);
}

/* ---- norms and order statistics, on tensors and on variables ---- */

#define FL_EXPAND_FILE "reduce.inc"
#include "expand.h"

#endif /* FL_OPS_REDUCE_IMPL */
#endif
/* MIT licence: see LICENSE. */
