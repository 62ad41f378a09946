/* fl/ops/create.h - tensors from formulas and from random numbers

   Prototypes and formulas stand in fl_composed.h. Computed in f64, so f32 rounds once. */
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_CREATE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_CREATE_IMPL
#define FL_OPS_CREATE_IMPL
#include "index.h"
#include "order.h"
#include "reduce.h"
#include "scan.h"
#include <math.h>

/* >>like another */

fl_tensor *fl_zeros_like(fl_tensor *t) {
    return fl_absent("fl_zeros_like", t) ? NULL : fl_full_like(t, 0);
}

fl_tensor *fl_ones_like(fl_tensor *t) {
    return fl_absent("fl_ones_like", t) ? NULL : fl_full_like(t, 1);
}

/* >>sequences */

/* 0, 1, ... n - 1 in f64 */
static fl_tensor *fl__create_counted(const char *fn, int64_t n) {
    if (n < 0 || n > (int64_t)1 << 53) return fl_bad("%s: %lld elements", fn, (long long)n);
    return fl_arange(0, (double)n, 1, FL_F64);
}

/* Each half from its own end: exact at both, and symmetric. */
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
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl__spaced("fl_linspace", start, stop, n);
    return fl_scope_return(&s, y ? fl_cast(y, dtype ? dtype : FL_F32) : NULL);
}

fl_tensor *fl_logspace(double start, double stop, int64_t n, double base, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl__spaced("fl_logspace", start, stop, n);
    return fl_scope_return(&s, y ? fl_cast(fl_pow(fl_num(base), y), dtype ? dtype : FL_F32) : NULL);
}

fl_tensor *fl_tri(int64_t n, int64_t m, int64_t k, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_tensor *ones = fl_ones(FL_SHAPE(n, m), dtype);
    return fl_scope_return(&s, ones ? fl_tril(ones, k) : NULL);
}

/* >>windows */

/* The angles, in turns: 0 to 1, where 1 is element n, or n - 1 if not periodic. */
static fl_tensor *fl__turns(const char *fn, int64_t n, bool periodic) {
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
    fl_tensor *t = fl__turns(fn, n, periodic);
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
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl__turns("fl_bartlett_window", n, periodic);
    if (!t) return fl_scope_return(&s, NULL);
    t = fl_abs(fl_sub(fl_mul(fl_num(2), t), fl_num(1)));
    return fl_scope_return(&s, fl_cast(fl_sub(fl_num(1), t), dtype ? dtype : FL_F32));
}

/* >>random numbers */

static bool fl__all_true(fl_tensor *condition) {
    fl_scope s = fl_scope_begin();
    bool ok = condition && fl_item(fl_all(condition, FL_ALL_AXES)) == 1;
    fl_scope_end(&s);
    return ok;
}

static fl_tensor *fl__uniform_beside(fl_tensor *t, fl_shape shape, fl_dtype d, fl_rng *rng) {
    return fl_to(fl_uniform(shape, 0, 1, d, rng), fl_family_name(t));
}

fl_tensor *fl_bernoulli(fl_tensor *p, fl_rng *rng) {
    if (fl_absent("fl_bernoulli", p) || !(p = fl_stored(p))) return NULL;
    if (!fl_dtype_is_float(p->dtype))
        return fl_bad("fl_bernoulli: %s is not a float", fl_dtype_name(p->dtype));
    fl_scope s = fl_scope_begin();
    fl_dtype wide = p->dtype == FL_F64 ? FL_F64 : FL_F32;
    fl_tensor *y = NULL;
    if (fl__all_true(fl_bitwise_and(fl_ge(p, fl_num(0)), fl_le(p, fl_num(1)))))
        y = fl_cast(fl_lt(fl__uniform_beside(p, fl_shape_of(p), wide, rng), p), p->dtype);
    else fl_fail("fl_bernoulli: a probability is not in [0, 1]");
    fl_scope_return(&s, y);
    return y ? y : fl_raise();
}

fl_tensor *fl_permutation(int64_t n, fl_rng *rng) {
    if (n < 0) return fl_bad("fl_permutation: %lld elements", (long long)n);
    fl_scope s = fl_scope_begin();
    fl_tensor *keys = fl_uniform(FL_SHAPE(n), 0, 1, FL_F64, rng);
    return fl_scope_return(&s, keys ? fl_argsort(keys, 0, false) : NULL);
}

/* Are w [..., k] weights that n draws can use? */
static bool fl__are_weights(fl_tensor *w, int64_t n, bool replacement) {
    fl_tensor *total = fl_sum(w, FL_AXES(-1));
    fl_tensor *usable = fl_bitwise_and(fl_gt(total, fl_num(0)), fl_isfinite(total));
    if (!fl__all_true(fl_ge(w, fl_num(0))) || !fl__all_true(usable)) {
        fl_fail("fl_multinomial: weights must be finite, not negative, and not all 0");
        return false;
    }
    fl_tensor *choices = fl_sum(fl_gt(w, fl_num(0)), FL_AXES(-1));
    if (replacement || fl__all_true(fl_ge(choices, fl_int(n)))) return true;
    fl_fail("fl_multinomial: %lld draws without replacement from fewer weights that are not 0",
            (long long)n);
    return false;
}

/* How many of the running sums lie at or below a random part of the total. */
static fl_tensor *fl__drawn(fl_tensor *w, int64_t n, fl_rng *rng) {
    fl_shape shape = fl_shape_of(w);
    shape.dim[shape.ndim - 1] = n;
    fl_tensor *sums = fl_cumsum(w, -1), *total = fl_slice(sums, -1, -1, FL_SLICE_END, 1);
    fl_tensor *at = fl_mul(fl__uniform_beside(w, shape, FL_F64, rng), total);
    fl_tensor *below = fl_le(fl_unsqueeze(sums, -2), fl_unsqueeze(at, -1));
    return fl_sum(below, FL_AXES(-1));
}

/* The largest of log w plus Gumbel noise are n draws in order. */
static fl_tensor *fl__drawn_once(fl_tensor *w, int64_t n, fl_rng *rng) {
    fl_tensor *u = fl__uniform_beside(w, fl_shape_of(w), FL_F64, rng), *index = NULL;
    fl_tensor *keys = fl_sub(fl_log(w), fl_log(fl_neg(fl_log(u))));
    return fl_topk(keys, n, -1, false, &index) ? index : NULL;
}

fl_tensor *fl_multinomial(fl_tensor *weights, int64_t n, bool replacement, fl_rng *rng) {
    if (fl_absent("fl_multinomial", weights)) return NULL;
    int ndim = weights->ndim;
    if (ndim < 1 || ndim > 2 || n < 0 || weights->shape[ndim - 1] == 0)
        return fl_bad("fl_multinomial: %lld draws from weights of shape %s", (long long)n,
                       FL_SHAPE_TEXT(weights));
    fl_scope s = fl_scope_begin();
    fl_tensor *w = fl_cast(weights, FL_F64), *y = NULL;
    if (w && fl__are_weights(w, n, replacement))
        y = replacement ? fl__drawn(w, n, rng) : fl__drawn_once(w, n, rng);
    fl_scope_return(&s, y);
    return y ? y : fl_raise();
}

/* By the inverse of the distribution function, in the half where it is exact. */
fl_tensor *fl_truncated_normal(fl_shape shape, double mean, double std, double low, double high,
                               fl_dtype dtype, fl_rng *rng) {
    double a = (low - mean) / std, b = (high - mean) / std, root = 1.4142135623730951;
    double sign = a > 0 ? -1 : 1, from = sign > 0 ? a : -b, to = sign > 0 ? b : -a;
    double p = erfc(-from / root) / 2, q = erfc(-to / root) / 2;
    if (dtype == FL_DTYPE_NONE) dtype = FL_F32;
    if (!fl_dtype_is_float(dtype))
        return fl_bad("fl_truncated_normal: %s is not a float", fl_dtype_name(dtype));
    if (!(std > 0) || !(q - p > 1e-9))
        return fl_bad("fl_truncated_normal: mean %g, std %g in [%g, %g], where almost nothing is",
                       mean, std, low, high);
    fl_scope s = fl_scope_begin();
    fl_tensor *u = fl_uniform(shape, p, q, FL_F64, rng);
    if (!u) return fl_scope_return(&s, NULL);
    u = fl_clip(u, 0x1p-54, 1 - 0x1p-53); /* finite at the ends */
    fl_tensor *z = fl_erfinv(fl_sub(fl_mul(fl_num(2), u), fl_num(1)));
    z = fl_add(fl_mul(fl_num(sign * root * std), z), fl_num(mean));
    return fl_scope_return(&s, fl_cast(fl_clip(z, low, high), dtype));
}
#endif
#endif
/* MIT licence: see LICENSE. */
