/* fl/ops/random.h - random tensors, sampling, dropout

   The generator is counter-based (Philox 4x32-10): the record `random` (fl_random_args) holds the generator's
   state, so running it again gives the same numbers on any backend. Record `dropout` (fl_dropout_args): x ->
   y = x / (1 - p) where the element's uniform number is >= p, else 0; the gradient is the same record on
   dy. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_RANDOM_H
#define FL_OPS_RANDOM_H
#include "../tensor/rng.h"
#include "../records/random.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rng NULL, here and below: the global generator. FL_DTYPE_NONE: f32. Backend: the default one. */
/* Uniform numbers in [low, high); dtype must be a float. */
FL_API fl_tensor *fl_uniform(fl_shape shape, double low, double high, fl_dtype dtype, fl_rng *rng);
/* Normal numbers; dtype must be a float. */
FL_API fl_tensor *fl_normal(fl_shape shape, double mean, double std, fl_dtype dtype, fl_rng *rng);
/* Uniform i64 integers in [low, high); error if the interval is empty. */
FL_API fl_tensor *fl_randint(fl_shape shape, int64_t low, int64_t high, fl_rng *rng);
/* x / (1 - p) with probability 1 - p, else 0; x is a float, p in [0, 1]. */
FL_API fl_tensor *fl_dropout(fl_tensor *x, double p, fl_rng *rng);
FL_API fl_var *fv_dropout(fl_var *x, double p, fl_rng *rng);
/* Dropout with a given generator state, to reuse a mask: dx = fl_dropout_at(dy, p, state). */
FL_API fl_tensor *fl_dropout_at(fl_tensor *x, double p, fl_rng state);

/* 1 with probability p, else 0, in p's shape and dtype. Error if an element is not in [0, 1]. Waits for p. */
FL_API fl_tensor *fl_bernoulli(fl_tensor *p, fl_rng *rng);
/* torch.randperm: 0 to n - 1 in random order, i64 [n] */
FL_API fl_tensor *fl_permutation(int64_t n, fl_rng *rng);
/* torch.multinomial: n i64 indices drawn with probabilities proportional to weights [k], or to each row of
   [m, k]. Without replacement the indices of a row are distinct, in the order of the draws. Waits for the
   weights. */
FL_API fl_tensor *fl_multinomial(fl_tensor *weights, int64_t n, bool replacement, fl_rng *rng);
/* Normal numbers truncated to [low, high]. Error if the interval has almost no probability. */
FL_API fl_tensor *fl_truncated_normal(fl_shape shape, double mean, double std, double low,
                                      double high, fl_dtype dtype, fl_rng *rng);

FL_PRIVATE void fl__register_random(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_RANDOM_H */

#if defined(FL_IMPL_ONLY_OPS_RANDOM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_RANDOM_IMPL
#define FL_OPS_RANDOM_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "order.h"
#include "reduce.h"
#include "scan.h"
#include "special.h"
#include "view.h"
#include "../../kernels/fl_math.h"
#include <math.h>

static fl_tensor *fl__random(fl_tensor *t, fl_random_args a, fl_rng *rng) {
    if (!t) return NULL;
    a.rng = fl_rng_take(rng, fl_numel(t));
    if (fl_flags() & FL_SHAPES_ONLY) return fl_zeros(fl_shape_of(t), t->dtype);
    return fl_call_into(FL_OP_random, t, NULL, NULL, &a);
}

fl_tensor *fl_uniform(fl_shape shape, double low, double high, fl_dtype dtype, fl_rng *rng) {
    if (dtype != FL_DTYPE_NONE && !fl_dtype_is_float(dtype))
        return fl_err_null("fl_uniform: dtype must be a float: %s is not a float", fl_dtype_name(dtype));
    fl_random_args a = {.dist = FL_UNIFORM, .a = low, .b = high};
    return fl__random(fl_out_new("fl_uniform", shape, dtype, FL_F32), a, rng);
}

fl_tensor *fl_normal(fl_shape shape, double mean, double std, fl_dtype dtype, fl_rng *rng) {
    if (dtype != FL_DTYPE_NONE && !fl_dtype_is_float(dtype))
        return fl_err_null("fl_normal: dtype must be a float: %s is not a float", fl_dtype_name(dtype));
    fl_random_args a = {.dist = FL_NORMAL, .a = mean, .b = std};
    return fl__random(fl_out_new("fl_normal", shape, dtype, FL_F32), a, rng);
}

fl_tensor *fl_randint(fl_shape shape, int64_t low, int64_t high, fl_rng *rng) {
    if (low >= high)
        return fl_err_null("fl_randint: the interval [%lld, %lld) is empty, expected low < high",
                           (long long)low, (long long)high);
    fl_random_args a = {.dist = FL_INTEGER, .ia = low, .ib = high};
    return fl__random(fl_out_new("fl_randint", shape, FL_I64, FL_I64), a, rng);
}

static bool fl__droppable(const fl_tensor *x, double p) {
    if (fl_is_null_arg("fl_dropout", x)) return false;
    if (fl_dtype_is_float(x->dtype) && p >= 0 && p <= 1) return true;
    return fl_err_false("fl_dropout: p must be in [0, 1] and x a float: got p %g, x %s", p,
                        fl_dtype_name(x->dtype));
}

fl_tensor *fl_dropout(fl_tensor *x, double p, fl_rng *rng) {
    if (!fl__droppable(x, p)) return NULL;
    return fl_dropout_at(x, p, fl_rng_take(rng, fl_numel(x)));
}

fl_tensor *fl_dropout_at(fl_tensor *x, double p, fl_rng state) {
    if (!fl__droppable(x, p) || !(x = fl_materialise(x))) return NULL;
    return fl_call_into(fl_op_dropout, fl_out_like(x, x->dtype), x, NULL, &(fl_dropout_args){p, state});
}

static bool fl__compose_dropout(const fl_call *c, fl_tensor **y) {
    const fl_dropout_args *a = c->args;
    fl_tensor *x = c->in[0];
    fl_random_args r = {.dist = FL_UNIFORM, .a = 0, .b = 1, .rng = a->rng};
    fl_tensor *u = fl_call_into(FL_OP_random, fl_out_like(x, FL_F32), NULL, NULL, &r);
    y[0] = fl_where(fl_ge(u, fl_num(a->p)), fl_mul(x, fl_num(1 / (1 - a->p))), fl_num(0));
    return y[0] != NULL;
}

static fl_var *fv__dropout_at(fl_var *x, fl_dropout_args a) {
    return fv_record_op(fl_op_dropout, fl_dropout_at(fv_value(x), a.p, a.rng), FV_IN(x), FV_NONE, &a);
}

static void fv__dropout_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv__dropout_at(dy, *(const fl_dropout_args *)fv_args(n)));
}

fl_var *fv_dropout(fl_var *x, double p, fl_rng *rng) {
    fl_dropout_args a = {.p = p};
    if (x && p >= 0 && p <= 1) a.rng = fl_rng_take(rng, fl_numel(x->value));
    return fv__dropout_at(x, a); /* which reports a p out of range */
}

FL_DATA_DEFINED fl_op fl_op_dropout;

FL_PRIVATE void fl__register_random(void) {
    FL__REGISTER(dropout, .args_size = sizeof(fl_dropout_args), .uses = "random le ge where mul",
                 .compose = fl__compose_dropout, .gradient = fv__dropout_back,
                 .rng_end = offsetof(fl_dropout_args, rng) + sizeof(fl_rng));
}

/* >>random numbers */

static bool fl__all_true(fl_tensor *condition) {
    fl_scope s = fl_scope_begin();
    bool ok = condition && fl_item(fl_all(condition, FL_ALL_AXES)) == 1;
    fl_scope_end(&s);
    return ok;
}

static fl_tensor *fl__uniform_like(fl_tensor *t, fl_shape shape, fl_dtype d, fl_rng *rng) {
    return fl_to(fl_uniform(shape, 0, 1, d, rng), fl_backend_name(t));
}

fl_tensor *fl_bernoulli(fl_tensor *p, fl_rng *rng) {
    if (fl_is_null_arg("fl_bernoulli", p) || !(p = fl_materialise(p))) return NULL;
    if (!fl_dtype_is_float(p->dtype))
        return fl_err_null("fl_bernoulli: p must be floats: %s is not a float", fl_dtype_name(p->dtype));
    fl_scope s = fl_scope_of(__func__);
    fl_dtype wide = p->dtype == FL_F64 ? FL_F64 : FL_F32;
    fl_tensor *y = NULL;
    if (fl__all_true(fl_bitwise_and(fl_ge(p, fl_num(0)), fl_le(p, fl_num(1)))))
        y = fl_cast(fl_lt(fl__uniform_like(p, fl_shape_of(p), wide, rng), p), p->dtype);
    else fl_fail("fl_bernoulli: a probability is not in [0, 1], or NaN");
    fl_scope_return(&s, y);
    return y ? y : fl_raise();
}

fl_tensor *fl_permutation(int64_t n, fl_rng *rng) {
    if (n < 0) return fl_err_null("fl_permutation: n must be at least 0, got %lld elements", (long long)n);
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *keys = fl_uniform(FL_SHAPE(n), 0, 1, FL_F64, rng);
    return fl_scope_return(&s, keys ? fl_argsort(keys, 0, false) : NULL);
}

/* True if w [..., k] holds valid weights, enough of them not 0 for n draws. */
static bool fl__are_weights(fl_tensor *w, int64_t n, bool replacement) {
    fl_tensor *total = fl_sum(w, FL_AXES(-1));
    fl_tensor *usable = fl_bitwise_and(fl_gt(total, fl_num(0)), fl_isfinite(total));
    if (!fl__all_true(fl_ge(w, fl_num(0))) || !fl__all_true(usable)) {
        fl_fail("fl_multinomial: weights must be finite, not negative, and not all 0");
        return false;
    }
    fl_tensor *choices = fl_sum(fl_gt(w, fl_num(0)), FL_AXES(-1));
    if (replacement || fl__all_true(fl_ge(choices, fl_int(n)))) return true;
    fl_fail("fl_multinomial: %lld draws without replacement need as many weights above 0", (long long)n);
    return false;
}

/* Inverse transform sampling: the number of cumulative sums at or below a uniform fraction of the total. */
static fl_tensor *fl__draw_replaced(fl_tensor *w, int64_t n, fl_rng *rng) {
    fl_shape shape = fl_shape_of(w);
    shape.dim[shape.ndim - 1] = n;
    fl_tensor *sums = fl_cumsum(w, -1), *total = fl_slice(sums, -1, -1, FL_SLICE_END, 1);
    fl_tensor *at = fl_mul(fl__uniform_like(w, shape, FL_F64, rng), total);
    fl_tensor *below = fl_le(fl_unsqueeze(sums, -2), fl_unsqueeze(at, -1));
    return fl_sum(below, FL_AXES(-1));
}

/* Gumbel top-k: the n largest of log w plus Gumbel noise are n draws without replacement, in order. */
static fl_tensor *fl__draw_distinct(fl_tensor *w, int64_t n, fl_rng *rng) {
    fl_tensor *u = fl__uniform_like(w, fl_shape_of(w), FL_F64, rng), *index = NULL;
    fl_tensor *keys = fl_sub(fl_log(w), fl_log(fl_neg(fl_log(u))));
    return fl_topk(keys, n, -1, false, &index) ? index : NULL;
}

fl_tensor *fl_multinomial(fl_tensor *weights, int64_t n, bool replacement, fl_rng *rng) {
    if (fl_is_null_arg("fl_multinomial", weights)) return NULL;
    int ndim = weights->ndim;
    if (ndim < 1 || ndim > 2 || n < 0 || weights->shape[ndim - 1] == 0)
        return fl_err_null("fl_multinomial: expected n of at least 0 and weights [k] or [m, k], k > 0: got "
                           "%lld draws from weights of shape %s", (long long)n, FL_SHAPE_TEXT(weights));
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *w = fl_cast(weights, FL_F64), *y = NULL;
    if (w && fl__are_weights(w, n, replacement))
        y = replacement ? fl__draw_replaced(w, n, rng) : fl__draw_distinct(w, n, rng);
    fl_scope_return(&s, y);
    return y ? y : fl_raise();
}

/* By the inverse of the normal distribution function, in the tail where it is accurate. */
fl_tensor *fl_truncated_normal(fl_shape shape, double mean, double std, double low, double high,
                               fl_dtype dtype, fl_rng *rng) {
    double a = (low - mean) / std, b = (high - mean) / std, root = 1.4142135623730951;
    double sign = a > 0 ? -1 : 1, from = sign > 0 ? a : -b, to = sign > 0 ? b : -a;
    double p = erfc(-from / root) / 2, q = erfc(-to / root) / 2;
    if (dtype == FL_DTYPE_NONE) dtype = FL_F32;
    if (!fl_dtype_is_float(dtype))
        return fl_err_null("fl_truncated_normal: dtype must be a float: %s is not a float",
                           fl_dtype_name(dtype));
    if (!(std > 0) || !(q - p > 1e-9))
        return fl_err_null("fl_truncated_normal: std must be above 0 and the interval have probability above "
                           "1e-9: got mean %g, std %g in [%g, %g]", mean, std, low, high);
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *u = fl_uniform(shape, p, q, FL_F64, rng);
    if (!u) return fl_scope_return(&s, NULL);
    u = fl_clamp(u, fl_num(0x1p-54), fl_num(1 - 0x1p-53)); /* so that the inverse is finite */
    fl_tensor *z = fl_erfinv(fl_sub(fl_mul(fl_num(2), u), fl_num(1)));
    z = fl_add(fl_mul(fl_num(sign * root * std), z), fl_num(mean));
    return fl_scope_return(&s, fl_cast(fl_clamp(z, fl_num(low), fl_num(high)), dtype));
}
#endif /* FL_OPS_RANDOM_IMPL */
#endif
/* MIT licence: see LICENSE. */
