/* fl_composed.h - the ops that are composed of others, on tensors and on variables

   Each composition is one text in kernels/composed/, expanded twice: fl_ on tensors and fv_ on
   variables, whose gradients of any order are those of the ops it runs. So whatever you put in place
   of an op of the tables works in all of these.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_composed.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_arange(-2, 3, 1, FL_F32));
        fl_backward(fv_sum(fv_elu(x, 1), FL_ALL_AXES));
        fl_print(fl_elu(fv_value(x), 1));
        fl_print(fv_grad(x));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>elementwise >>reduce
     >>implementation

   Errors, life time, broadcasting and dtypes are those of fl_tensor.h. */
#include "fl_autograd.h"
#ifndef FL_COMPOSED_H
#define FL_COMPOSED_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>elementwise -------------------------------------------------------------------------------- */

/* The same with tensors as bounds, either may be NULL. */
FL_API fl_tensor *fl_clamp(fl_tensor *x, fl_tensor *low, fl_tensor *high);
FL_API fl_var *fv_clamp(fl_var *x, fl_var *low, fl_var *high);
/* x > 0 ? x : alpha expm1(x);  x > 0 ? x : alpha expm1(x / alpha);  x > 0 ? x : slope x */
FL_API fl_tensor *fl_elu(fl_tensor *x, double alpha);
FL_API fl_var *fv_elu(fl_var *x, double alpha);
FL_API fl_tensor *fl_celu(fl_tensor *x, double alpha);
FL_API fl_var *fv_celu(fl_var *x, double alpha);
FL_API fl_tensor *fl_leaky_relu(fl_tensor *x, double slope);
FL_API fl_var *fv_leaky_relu(fl_var *x, double slope);
/* prelu with a number w [1], or w [c] with one for each place along axis 1 of x */
FL_API fl_tensor *fl_prelu_channels(fl_tensor *x, fl_tensor *w);
FL_API fl_var *fv_prelu_channels(fl_var *x, fl_var *w);
/* x > limit ? x : value;  |x| > lambda ? x : 0;  x less the part of it in [-lambda, lambda] */
FL_API fl_tensor *fl_threshold(fl_tensor *x, double limit, double value);
FL_API fl_var *fv_threshold(fl_var *x, double limit, double value);
FL_API fl_tensor *fl_hardshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_hardshrink(fl_var *x, double lambda);
FL_API fl_tensor *fl_softshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_softshrink(fl_var *x, double lambda);
/* x sigmoid(beta x);  a sigmoid(b) of the halves a, b of x along axis */
FL_API fl_tensor *fl_swish(fl_tensor *x, double beta);
FL_API fl_var *fv_swish(fl_var *x, double beta);
FL_API fl_tensor *fl_glu(fl_tensor *x, int axis);
FL_API fl_var *fv_glu(fl_var *x, int axis);
/* To that many decimals, which may be negative, halves to even; gradient 0. */
FL_API fl_tensor *fl_round(fl_tensor *x, int decimals);
FL_API fl_var *fv_round(fl_var *x, int decimals);
/* NaN, inf and -inf become nan, above and below; integers pass. */
FL_API fl_tensor *fl_nan_to_num(fl_tensor *x, double nan, double above, double below);
FL_API fl_var *fv_nan_to_num(fl_var *x, double nan, double above, double below);
/* sqrt(a^2 + b^2) without overflow; inf beside NaN too */
FL_API fl_tensor *fl_hypot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_hypot(fl_var *a, fl_var *b);
/* a + w (b - a);  x + value a b;  x + value a / b */
FL_API fl_tensor *fl_lerp(fl_tensor *a, fl_tensor *b, fl_tensor *w);
FL_API fl_var *fv_lerp(fl_var *a, fl_var *b, fl_var *w);
FL_API fl_tensor *fl_addcmul(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcmul(fl_var *x, fl_var *a, fl_var *b, double value);
FL_API fl_tensor *fl_addcdiv(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcdiv(fl_var *x, fl_var *a, fl_var *b, double value);
/* beta x > threshold ? x : log(1 + exp(beta x)) / beta */
FL_API fl_tensor *fl_softplus_beta(fl_tensor *x, double beta, double threshold);
FL_API fl_var *fv_softplus_beta(fl_var *x, double beta, double threshold);
/* a log(1 + b), 0 where a is 0;  a^b in f64 */
FL_API fl_tensor *fl_xlog1py(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_xlog1py(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_float_power(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_float_power(fl_var *a, fl_var *b);
/* -x log(x), 0 at 0, -inf below */
FL_API fl_tensor *fl_entr(fl_tensor *x);
FL_API fl_var *fv_entr(fl_var *x);
/* The normal distribution's integral up to x. */
FL_API fl_tensor *fl_ndtr(fl_tensor *x);
FL_API fl_var *fv_ndtr(fl_var *x);
/* log |gamma(x)|, within 1e-14 near its zeros, and its derivative. Computed in f64. */
FL_API fl_tensor *fl_lgamma(fl_tensor *x);
FL_API fl_var *fv_lgamma(fl_var *x);
FL_API fl_tensor *fl_digamma(fl_tensor *x);
FL_API fl_var *fv_digamma(fl_var *x);
/* erf's complement, for large x too, and its inverse. Computed in f64. */
FL_API fl_tensor *fl_erfc(fl_tensor *x);
FL_API fl_var *fv_erfc(fl_var *x);
FL_API fl_tensor *fl_erfinv(fl_tensor *y);
FL_API fl_var *fv_erfinv(fl_var *y);
/* floor(a / b), of integers exactly; integer x / 0: an error. Gradient 0. */
FL_API fl_tensor *fl_floor_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_floor_divide(fl_var *a, fl_var *b);
/* |a - b| <= atol + rtol |b|, or a = b, or both NaN with equal_nan -> b8 */
FL_API fl_tensor *fl_isclose(fl_tensor *a, fl_tensor *b, double rtol, double atol, bool equal_nan);

/* >>reduce ------------------------------------------------------------------------------------- */

/* sqrt of fl_variance. Computed in f64: the terms of its second derivative cancel. */
FL_API fl_tensor *fl_std(fl_tensor *x, fl_axes axes, int64_t correction);
FL_API fl_var *fv_std(fl_var *x, fl_axes axes, int64_t correction);
/* (sum |x|^p)^(1/p); p = inf, -inf: the largest, smallest |x|; 0: the number of x != 0.
   Gradient 0 at 0. */
FL_API fl_tensor *fl_norm(fl_tensor *x, double p, fl_axes axes);
FL_API fl_var *fv_norm(fl_var *x, double p, fl_axes axes);
/* How many are not 0 -> i64 */
FL_API fl_tensor *fl_count_nonzero(fl_tensor *x, fl_axes axes);
/* Sum and mean of what is not NaN; of nothing: 0 and NaN */
FL_API fl_tensor *fl_nansum(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nansum(fl_var *x, fl_axes axes);
FL_API fl_tensor *fl_nanmean(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nanmean(fl_var *x, fl_axes axes);
/* The first extreme along axis, NaN wins; *index (may be NULL) gets its place. */
FL_API fl_tensor *fl_max_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_max_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_tensor *fl_min_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_min_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
/* Number k, from 1, in ascending order along axis; NaN last. */
FL_API fl_tensor *fl_kthvalue(fl_tensor *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_kthvalue(fl_var *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
/* The middle one along axis, of an even number the lower; a NaN wins, or is passed by. */
FL_API fl_tensor *fl_median(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_median(fl_var *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_tensor *fl_nanmedian(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_nanmedian(fl_var *x, int axis, bool keepdim, fl_tensor **index);
typedef enum fl_interpolation {
    FL_LINEAR,
    FL_LOWER,
    FL_HIGHER,
    FL_NEAREST,
    FL_MIDPOINT
} fl_interpolation;
/* The place q (n - 1) in ascending order along axis, 0 <= q <= 1; between two elements by method. */
FL_API fl_tensor *fl_quantile(fl_tensor *x, double q, int axis, bool keepdim,
                               fl_interpolation method);
FL_API fl_var *fv_quantile(fl_var *x, double q, int axis, bool keepdim,
                            fl_interpolation method);
FL_API fl_tensor *fl_nanquantile(fl_tensor *x, double q, int axis, bool keepdim,
                                 fl_interpolation method);
FL_API fl_var *fv_nanquantile(fl_var *x, double q, int axis, bool keepdim,
                            fl_interpolation method);
/* The extreme of the elements up to each along axis, of equals the last; *index as above. */
FL_API fl_tensor *fl_cummax(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummax(fl_var *x, int axis, fl_tensor **index);
FL_API fl_tensor *fl_cummin(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummin(fl_var *x, int axis, fl_tensor **index);
/* log of the sums of exp(x) up to each along axis. Computed in f64. */
FL_API fl_tensor *fl_logcumsumexp(fl_tensor *x, int axis);
FL_API fl_var *fv_logcumsumexp(fl_var *x, int axis);
/* x[1:] - x[:-1] along axis;  dx / 2 times the sum of y[1:] + y[:-1] */
FL_API fl_tensor *fl_diff(fl_tensor *x, int axis);
FL_API fl_var *fv_diff(fl_var *x, int axis);
FL_API fl_tensor *fl_trapezoid(fl_tensor *y, double dx, int axis);
FL_API fl_var *fv_trapezoid(fl_var *y, double dx, int axis);

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "kernels/composed/elementwise.h"
#include "kernels/composed/reduce.h"
#endif
#endif
/* MIT licence: see LICENSE. */
