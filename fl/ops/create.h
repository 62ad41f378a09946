/* fl/ops/create.h - creation ops: arange, linspace, eye, tri, window functions

   fl_empty, fl_full and so on are in fl_tensor.h. Values are computed in f64 and rounded once to the dtype.
   Results are on the default backend. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_CREATE_H
#define FL_OPS_CREATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* start, start + step, ..., excluding stop: max(0, ceil((stop - start) / step)) elements. FL_DTYPE_NONE: i64.
   Errors: step 0, a dtype without arithmetic (b8). */
FL_API fl_tensor *fl_arange(double start, double stop, double step, fl_dtype dtype);
/* fl_arange on t's backend: for constants that an op combines with its operand t. */
FL_API fl_tensor *fl_new_arange(const fl_tensor *t, double start, double stop, double step, fl_dtype dtype);
/* [n, m] with ones on the main diagonal, else 0. FL_DTYPE_NONE, here and below: f32. */
FL_API fl_tensor *fl_eye(int64_t n, int64_t m, fl_dtype dtype);

/* Zeros or ones with t's shape, dtype and backend, as fl_full_like. */
FL_API fl_tensor *fl_zeros_like(fl_tensor *t);
FL_API fl_tensor *fl_ones_like(fl_tensor *t);
/* n evenly spaced numbers from start to stop, both included */
FL_API fl_tensor *fl_linspace(double start, double stop, int64_t n, fl_dtype dtype);
/* base^x for the n numbers x of fl_linspace */
FL_API fl_tensor *fl_logspace(double start, double stop, int64_t n, double base, fl_dtype dtype);
/* [n, m] with ones on and below diagonal k (0: the main one, k > 0: above it), else 0 */
FL_API fl_tensor *fl_tri(int64_t n, int64_t m, int64_t k, fl_dtype dtype);
/* Window functions [n] for spectral analysis, torch.hann_window and so on. periodic: the symmetric window of
   n + 1 values without the last. With t = i / n (periodic) or i / (n - 1): */
/* 0.5 - 0.5 cos(2 pi t) */
FL_API fl_tensor *fl_hann_window(int64_t n, bool periodic, fl_dtype dtype);
/* 0.54 - 0.46 cos(2 pi t) */
FL_API fl_tensor *fl_hamming_window(int64_t n, bool periodic, fl_dtype dtype);
/* 0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t) */
FL_API fl_tensor *fl_blackman_window(int64_t n, bool periodic, fl_dtype dtype);
/* 1 - |2 t - 1| */
FL_API fl_tensor *fl_bartlett_window(int64_t n, bool periodic, fl_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_CREATE_H */

#if defined(FL_IMPL_ONLY_OPS_CREATE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_CREATE_IMPL
#define FL_OPS_CREATE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "move.h"
#include "view.h"
#include "../../kernels/fl_math.h"
#include <math.h>

static fl_tensor *fl__arange(const char *fn, int backend, double start, double stop, double step,
                             fl_dtype dtype) {
    double n = ceil((stop - start) / step);
    if (!(step != 0) || !(n < 4e18)) return fl_err_null("%s: step must not be 0, the range must be finite: "
                                                        "got from %g to %g by %g", fn, start, stop, step);
    if (dtype == FL_DTYPE_NONE) dtype = FL_I64;
    if (fl_dtype_size(dtype) == 0) return fl_err_null("%s: dtype %d is not known", fn, (int)dtype);
    if (fl_compute_dtype(FL_CLASS_NUM, dtype) != dtype)
        return fl_err_null("%s: %s is not supported, expected a float or an integer dtype", fn,
                           fl_dtype_name(dtype));
    fl_tensor *t = fl_out_on(backend, FL_SHAPE(n > 0 ? (int64_t)n : 0), dtype);
    fl_iota_args a = {start, step, flm_f64_to_i64(start), flm_f64_to_i64(step)};
    return t ? fl_call_into(FL_OP_iota, t, NULL, NULL, &a) : fl_raise();
}

fl_tensor *fl_arange(double start, double stop, double step, fl_dtype dtype) {
    return fl__arange("fl_arange", fl_backend_default(), start, stop, step, dtype);
}

fl_tensor *fl_new_arange(const fl_tensor *t, double start, double stop, double step, fl_dtype dtype) {
    if (fl_is_null_arg("fl_new_arange", t)) return NULL;
    if (t->weak) return fl_err_null("fl_new_arange: a weak number has no backend");
    return fl__arange("fl_new_arange", t->backend, start, stop, step, dtype);
}

fl_tensor *fl_eye(int64_t n, int64_t m, fl_dtype dtype) {
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *like = fl_out_new("fl_eye", FL_SHAPE(n, m), dtype, FL_F32); /* checks both */
    if (!like) return fl_scope_return(&s, NULL);
    fl_tensor *rows = fl_unsqueeze(fl_arange(0, (double)n, 1, FL_I64), 1);
    fl_tensor *eq = fl_eq(rows, fl_arange(0, (double)m, 1, FL_I64));
    return fl_scope_return(&s, fl_cast(eq, like->dtype));
}

/* >>like another */

fl_tensor *fl_zeros_like(fl_tensor *t) {
    return fl_is_null_arg("fl_zeros_like", t) ? NULL : fl_full_like(t, 0);
}

fl_tensor *fl_ones_like(fl_tensor *t) {
    return fl_is_null_arg("fl_ones_like", t) ? NULL : fl_full_like(t, 1);
}

/* >>sequences */

/* 0, 1, ... n - 1 in f64 */
static fl_tensor *fl__create_counted(const char *fn, int64_t n) {
    if (n < 0 || n > (int64_t)1 << 53)
        return fl_err_null("%s: n must be in [0, 2^53], got %lld elements", fn, (long long)n);
    return fl_arange(0, (double)n, 1, FL_F64);
}

/* n evenly spaced numbers. The halves are computed from start and from stop: both ends are exact. */
static fl_tensor *fl__spaced(const char *fn, double start, double stop, int64_t n) {
    double step = n > 1 ? (stop - start) / (double)(n - 1) : 0;
    fl_tensor *i = fl__create_counted(fn, n);
    if (!i) return NULL;
    fl_tensor *left = fl_lt(i, fl_num((double)n / 2));
    fl_tensor *from_start = fl_add(fl_num(start), fl_mul(fl_num(step), i));
    fl_tensor *rest = fl_sub(fl_num((double)(n - 1)), i);
    return fl_where(left, from_start, fl_sub(fl_num(stop), fl_mul(fl_num(step), rest)));
}

fl_tensor *fl_linspace(double start, double stop, int64_t n, fl_dtype dtype) {
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *y = fl__spaced("fl_linspace", start, stop, n);
    return fl_scope_return(&s, y ? fl_cast(y, dtype ? dtype : FL_F32) : NULL);
}

fl_tensor *fl_logspace(double start, double stop, int64_t n, double base, fl_dtype dtype) {
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *y = fl__spaced("fl_logspace", start, stop, n);
    return fl_scope_return(&s, y ? fl_cast(fl_pow(fl_num(base), y), dtype ? dtype : FL_F32) : NULL);
}

fl_tensor *fl_tri(int64_t n, int64_t m, int64_t k, fl_dtype dtype) {
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *ones = fl_ones(FL_SHAPE(n, m), dtype);
    return fl_scope_return(&s, ones ? fl_tril(ones, k) : NULL);
}

/* >>windows */

/* The phases i / n, or i / (n - 1) if not periodic, for i = 0 to n - 1, in f64. */
static fl_tensor *fl__window_phases(const char *fn, int64_t n, bool periodic) {
    fl_tensor *i = fl__create_counted(fn, n);
    if (!i) return NULL;
    int64_t last = periodic ? n : n - 1;
    return fl_div(i, fl_num((double)(last > 0 ? last : 1)));
}

/* a - b cos(2 pi t) + c cos(4 pi t) */
static fl_tensor *fl__cosine_window(const char *fn, int64_t n, bool periodic, fl_dtype dtype,
                                    double a, double b, double c) {
    if (n == 1) return fl_ones(FL_SHAPE(1), dtype);
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl__window_phases(fn, n, periodic);
    if (!t) return fl_scope_return(&s, NULL);
    t = fl_mul(t, fl_num(6.2831853071795865));
    fl_tensor *y = fl_sub(fl_num(a), fl_mul(fl_num(b), fl_cos(t)));
    y = fl_add(y, fl_mul(fl_num(c), fl_cos(fl_mul(fl_num(2), t))));
    return fl_scope_return(&s, y ? fl_cast(y, dtype ? dtype : FL_F32) : NULL);
}

fl_tensor *fl_hann_window(int64_t n, bool periodic, fl_dtype dtype) {
    return fl__cosine_window("fl_hann_window", n, periodic, dtype, 0.5, 0.5, 0);
}

fl_tensor *fl_hamming_window(int64_t n, bool periodic, fl_dtype dtype) {
    return fl__cosine_window("fl_hamming_window", n, periodic, dtype, 0.54, 0.46, 0);
}

fl_tensor *fl_blackman_window(int64_t n, bool periodic, fl_dtype dtype) {
    return fl__cosine_window("fl_blackman_window", n, periodic, dtype, 0.42, 0.5, 0.08);
}

fl_tensor *fl_bartlett_window(int64_t n, bool periodic, fl_dtype dtype) {
    if (n == 1) return fl_ones(FL_SHAPE(1), dtype);
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *t = fl__window_phases("fl_bartlett_window", n, periodic);
    if (!t) return fl_scope_return(&s, NULL);
    t = fl_abs(fl_sub(fl_mul(fl_num(2), t), fl_num(1)));
    return fl_scope_return(&s, fl_cast(fl_sub(fl_num(1), t), dtype ? dtype : FL_F32));
}
#endif /* FL_OPS_CREATE_IMPL */
#endif
/* MIT licence: see LICENSE. */
