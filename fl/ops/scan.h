/* fl/ops/scan.h - cumulative sum, product, maximum, minimum and logsumexp along an axis; diff

   cumsum and cumprod are ops of the table, with records (fl_axis_args) x -> y; b8 and integers give i64.
   cummax, cummin and logcumsumexp run one loop on the host for any backend, and wait for x. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_SCAN_H
#define FL_OPS_SCAN_H

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = x[0] + ... + x[i] along axis */
FL_API fl_tensor *fl_cumsum(fl_tensor *x, int axis);
FL_API fl_var *fv_cumsum(fl_var *x, int axis);
/* y[i] = x[0] ... x[i] (product) along axis */
FL_API fl_tensor *fl_cumprod(fl_tensor *x, int axis);
FL_API fl_var *fv_cumprod(fl_var *x, int axis);
/* y[i] = max, or min, of x[0] to x[i] along axis; NaN wins. *index (may be NULL): its i64 index, the last one
   of equal elements. */
FL_API fl_tensor *fl_cummax(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummax(fl_var *x, int axis, fl_tensor **index);
FL_API fl_tensor *fl_cummin(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummin(fl_var *x, int axis, fl_tensor **index);
/* y[i] = log(exp(x[0]) + ... + exp(x[i])) along axis, computed in f64 */
FL_API fl_tensor *fl_logcumsumexp(fl_tensor *x, int axis);
FL_API fl_var *fv_logcumsumexp(fl_var *x, int axis);
/* x[1:] - x[:-1] along axis */
FL_API fl_tensor *fl_diff(fl_tensor *x, int axis);
FL_API fl_var *fv_diff(fl_var *x, int axis);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_SCAN_H */

#if defined(FL_IMPL_ONLY_OPS_SCAN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_SCAN_IMPL
#define FL_OPS_SCAN_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "autocast.h"
#include "copy.h"
#include "elementwise.h"
#include "index.h"
#include "view.h"
#include <math.h>

/* ---- cumsum, cumprod ---- */

static fl_tensor *fl__scan_op(fl_op op, const char *fn, fl_tensor *x, int axis) {
    if (fl_is_null_arg(fn, x) || !(x = fl_materialise(x))) return NULL;
    if (fl_compute_dtype(FL_CLASS_CMP, x->dtype) == FL_DTYPE_NONE)
        return fl_err_null("%s: dtype %s is not supported", fn, fl_dtype_name(x->dtype));
    if (!fl_dtype_is_float(x->dtype)) x = fl_cast(x, FL_I64);
    if (!x || (axis = fl_axis_of(fn, x, axis)) < 0) return NULL;
    return fl_call_into(op, fl_out_like(x, x->dtype), x, NULL, &(fl_axis_args){axis});
}

fl_tensor *fl_cumsum(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumsum, "fl_cumsum", x, axis);
}

fl_tensor *fl_cumprod(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumprod, "fl_cumprod", x, axis);
}

static fl_var *fv__reversed(fl_var *x, int axis) {
    return x && x->value->ndim == 0 ? x : fv_slice(x, axis, -1, FL_SLICE_END, -1);
}

static void fv__cumsum_back(fl_node *n, fl_var *dy) {
    int axis = *(const int *)fv_args(n);
    fv_add_grad(n, 0, fv__reversed(fv_cumsum(fv__reversed(dy, axis), axis), axis));
}

fl_var *fv_cumsum(fl_var *x, int axis) {
    if (!fv_autocast(FL_OP_cumsum, &x, 1)) return NULL;
    return fv_record_args("cumsum", fl_cumsum(fv_value(x), axis), fv__cumsum_back, FV_IN(x),
                          FV_NONE, &axis, sizeof axis);
}

/* Cumulative products by doubling: after k rounds each element is the product of up to 2^k. Without division,
   so that derivatives of any order are right at zeros. */
static fl_var *fv__doubled_products(fl_var *x, int axis) {
    int64_t n = x->value->shape[axis];
    for (int64_t reach = 1; reach < n && x; reach *= 2) {
        fl_var *head = fv_slice(x, axis, 0, reach, 1);
        fl_var *tail = fv_mul(fv_slice(x, axis, reach, n, 1), fv_slice(x, axis, 0, n - reach, 1));
        fl_var *both[] = {head, tail};
        x = fv_concat(both, 2, axis);
    }
    return x;
}

fl_var *fv_cumprod(fl_var *x, int axis) {
    if (!fv_autocast(FL_OP_cumprod, &x, 1)) return NULL;
    fl_tensor *value = fl_cumprod(fv_value(x), axis);
    if (!value) return NULL;
    if (!x->requires_grad || !fl_grad_enabled()) return fv_const(value);
    return fv__doubled_products(x, fl_axis_of("fl_cumprod", value, axis));
}

/* ---- logcumsumexp, indices of cummax and cummin ---- */

/* The sizes of x viewed as [outer, n, inner] with axis in the middle. Returns false after an error. */
static bool fl__lines_of(const char *fn, const fl_tensor *x, int axis, int64_t *n, int64_t *inner) {
    if ((axis = fl_axis_of(fn, x, axis)) < 0) return false;
    *n = x->shape[axis];
    *inner = 1;
    for (int i = axis + 1; i < x->ndim; i++) *inner *= x->shape[i];
    return true;
}

/* True if v replaces the extreme `best`: equal values do, and NaN is kept. */
static bool fl__new_real(double v, double best, bool max) {
    return isnan(v) || (!isnan(best) && (max ? v >= best : v <= best));
}
static bool fl__new_integer(int64_t v, int64_t best, bool max) {
    return max ? v >= best : v <= best;
}

/* index[i]: the index along the axis of the extreme up to element i; data has `count` elements, f64 or
   i64. */
static void fl__extremes(const void *data, bool real, bool max, int64_t count, int64_t n, int64_t inner,
                         int64_t *index) {
    const double *f = data;
    const int64_t *k = data;
    for (int64_t i = 0; i < count; i++) {
        int64_t position = i / inner % n, before = position ? index[i - inner] : 0;
        int64_t best = i + (before - position) * inner;
        bool is_new = real ? fl__new_real(f[i], f[best], max) : fl__new_integer(k[i], k[best], max);
        index[i] = position == 0 || is_new ? position : before;
    }
}

static fl_tensor *fl__extreme_index(const char *fn, fl_tensor *x, int axis, bool max) {
    int64_t n, inner;
    if (!(x = fl_materialise(x)) || !fl__lines_of(fn, x, axis, &n, &inner)) return NULL;
    fl_scope s = fl_scope_begin();
    bool real = fl_dtype_is_float(x->dtype);
    fl_tensor *host = fl_to(fl_contiguous(fl_cast(x, real ? FL_F64 : FL_I64)), "cpu");
    fl_tensor *index = fl_to(fl_zeros(fl_shape_of(x), FL_I64), "cpu");
    const void *from = fl_map(host, FL_READ);
    int64_t *to = from ? fl_map(index, FL_WRITE) : NULL;
    if (to) fl__extremes(from, real, max, fl_numel(x), n, inner, to);
    if (to) fl_unmap(index, FL_WRITE);
    if (from) fl_unmap(host, FL_READ);
    return fl_scope_return(&s, to ? fl_to(index, fl_backend_name(x)) : NULL);
}

static double fl__log_add(double a, double b) {
    double high = a > b || isnan(a) ? a : b, low = a > b || isnan(a) ? b : a;
    return isinf(high) && !isnan(low) ? high : high + log1p(exp(low - high));
}

fl_tensor *fl_logcumsumexp(fl_tensor *x, int axis) {
    int64_t n, inner;
    if (fl_is_null_arg("fl_logcumsumexp", x) || !(x = fl_materialise(x)) ||
        !fl__lines_of("fl_logcumsumexp", x, axis, &n, &inner))
        return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *given = fl_dtype_is_float(x->dtype) ? x : fl_cast(x, FL_F32);
    fl_tensor *host = given ? fl_clone(fl_cast(given, FL_F64)) : NULL;
    host = host ? fl_to(host, "cpu") : NULL;
    double *y = host ? fl_map(host, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; y && i < fl_numel(x); i++)
        if (i / inner % n) y[i] = fl__log_add(y[i - inner], y[i]);
    if (y) fl_unmap(host, FL_READ | FL_WRITE);
    host = y ? fl_to(host, fl_backend_name(given)) : NULL;
    return fl_scope_return(&s, host ? fl_cast(host, given->dtype) : NULL);
}

/* sum over i >= j of dy[i] exp(x[j] - y[i]), of the positive dy. */
static fl_var *fv__logcumsumexp_part(fl_var *x, fl_var *y, fl_var *dy, int axis) {
    fl_var *is = fv_lt(fv_num(0), dy), *end = fv_num(-(double)INFINITY);
    fl_var *finite = fv_where(fv_eq(y, end), fv_num(0), y);
    fl_var *log_dy = fv_log(fv_where(is, dy, fv_num(1)));
    fl_var *term = fv_where(is, fv_sub(log_dy, finite), end);
    fl_var *sum = fv_logcumsumexp(fv__reversed(term, axis), axis);
    return fv_exp(fv_add(x, fv__reversed(sum, axis)));
}

static void fv__logcumsumexp_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0), *y = fv_saved(n, 1);
    int axis = *(const int *)fv_args(n);
    if (!x || !y) return;
    fv_add_grad(n, 0, fv_sub(fv__logcumsumexp_part(x, y, dy, axis),
                             fv__logcumsumexp_part(x, y, fv_neg(dy), axis)));
}

fl_var *fv_logcumsumexp(fl_var *x, int axis) {
    return fv_record_args("logcumsumexp", fl_logcumsumexp(fv_value(x), axis), fv__logcumsumexp_back,
                          FV_IN(x), FV_SAVE(x, FV_OUT), &axis, sizeof axis);
}

#define FL_EXPAND_FILE "scan.inc"
#include "expand.h"

#endif /* FL_OPS_SCAN_IMPL */
#endif
/* MIT licence: see LICENSE. */
