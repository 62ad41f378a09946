/* fl/ops/special.h - arithmetic in several steps, and special functions

   A branch that SELECT does not take is computed all the same: its operands are made harmless first,
   or 0 * inf would be NaN in the gradient. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_SPECIAL_H
#define FL_OPS_SPECIAL_H

#ifdef __cplusplus
extern "C" {
#endif

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
/* a log(1 + b), 0 where a is 0;  a^b in f64 */
FL_API fl_tensor *fl_xlog1py(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_xlog1py(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_float_power(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_float_power(fl_var *a, fl_var *b);
/* -x log(x), 0 at 0, -inf below */
FL_API fl_tensor *fl_entr(fl_tensor *x);
FL_API fl_var *fv_entr(fl_var *x);
/* The normal distribution's integral up to x, and its logarithm, for very small x too. */
FL_API fl_tensor *fl_ndtr(fl_tensor *x);
FL_API fl_var *fv_ndtr(fl_var *x);
FL_API fl_tensor *fl_log_ndtr(fl_tensor *x);
FL_API fl_var *fv_log_ndtr(fl_var *x);
/* The modified Bessel function of the first kind, of order 0. Computed in f64. */
FL_API fl_tensor *fl_i0(fl_tensor *x);
FL_API fl_var *fv_i0(fl_var *x);
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
/* a / b, exactly, rounded down;  to 0. Integer x / 0: an error. Gradient 0. */
FL_API fl_tensor *fl_floor_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_floor_divide(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_trunc_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_trunc_divide(fl_var *a, fl_var *b);
/* Greatest common divisor and least common multiple of integers, not negative; wrap as * does. */
FL_API fl_tensor *fl_gcd(fl_tensor *a, fl_tensor *b);
FL_API fl_tensor *fl_lcm(fl_tensor *a, fl_tensor *b);
/* The float next to a on the way to b, and b if they are equal. Waits for a and b. */
FL_API fl_tensor *fl_nextafter(fl_tensor *a, fl_tensor *b);
/* |a - b| <= atol + rtol |b|, or a = b, or both NaN with equal_nan -> b8 */
FL_API fl_tensor *fl_isclose(fl_tensor *a, fl_tensor *b, double rtol, double atol, bool equal_nan);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_SPECIAL_H */

#if defined(FL_IMPL_ONLY_OPS_SPECIAL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_SPECIAL_IMPL
#define FL_OPS_SPECIAL_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "special.inc"
#include "expand.h"
#endif /* FL_OPS_SPECIAL_IMPL */
#endif
/* MIT licence: see LICENSE. */
