/* fl/ops/special.h - special functions (erf, gamma, Bessel, normal distribution), composed arithmetic, gcd

   Operands broadcast and promote; floats, integers become f32, f16 and bf16 are computed in f32 unless
   stated. SELECT computes both branches, so the operands of the branch that is not taken are replaced first:
   0 * inf would be NaN in the gradient. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_SPECIAL_H
#define FL_OPS_SPECIAL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds to `decimals` decimal places (may be negative), ties to even; gradient 0. */
FL_API fl_tensor *fl_round(fl_tensor *x, int decimals);
FL_API fl_var *fv_round(fl_var *x, int decimals);
/* Replaces NaN, inf and -inf by nan, above and below; integers are returned unchanged. */
FL_API fl_tensor *fl_nan_to_num(fl_tensor *x, double nan, double above, double below);
FL_API fl_var *fv_nan_to_num(fl_var *x, double nan, double above, double below);
/* sqrt(a^2 + b^2) without overflow; inf if one operand is infinite, even if the other is NaN */
FL_API fl_tensor *fl_hypot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_hypot(fl_var *a, fl_var *b);
/* Linear interpolation a + w (b - a) */
FL_API fl_tensor *fl_lerp(fl_tensor *a, fl_tensor *b, fl_tensor *w);
FL_API fl_var *fv_lerp(fl_var *a, fl_var *b, fl_var *w);
/* x + value a b */
FL_API fl_tensor *fl_addcmul(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcmul(fl_var *x, fl_var *a, fl_var *b, double value);
/* x + value a / b */
FL_API fl_tensor *fl_addcdiv(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcdiv(fl_var *x, fl_var *a, fl_var *b, double value);
/* a log(1 + b); 0 where a is 0 */
FL_API fl_tensor *fl_xlog1py(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_xlog1py(fl_var *a, fl_var *b);
/* a^b in f64 */
FL_API fl_tensor *fl_float_power(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_float_power(fl_var *a, fl_var *b);
/* Entropy -x log(x); 0 at x = 0, -inf for x < 0 */
FL_API fl_tensor *fl_entr(fl_tensor *x);
FL_API fl_var *fv_entr(fl_var *x);
/* The cumulative distribution function of the standard normal distribution */
FL_API fl_tensor *fl_ndtr(fl_tensor *x);
FL_API fl_var *fv_ndtr(fl_var *x);
/* log(ndtr(x)), accurate for very negative x too */
FL_API fl_tensor *fl_log_ndtr(fl_tensor *x);
FL_API fl_var *fv_log_ndtr(fl_var *x);
/* The modified Bessel function of the first kind of order 0, computed in f64 */
FL_API fl_tensor *fl_i0(fl_tensor *x);
FL_API fl_var *fv_i0(fl_var *x);
/* log |gamma(x)|, computed in f64, with an absolute error of 1e-14 near its zeros */
FL_API fl_tensor *fl_lgamma(fl_tensor *x);
FL_API fl_var *fv_lgamma(fl_var *x);
/* The derivative of lgamma, computed in f64 */
FL_API fl_tensor *fl_digamma(fl_tensor *x);
FL_API fl_var *fv_digamma(fl_var *x);
/* 1 - erf(x), computed in f64, accurate for large x too */
FL_API fl_tensor *fl_erfc(fl_tensor *x);
FL_API fl_var *fv_erfc(fl_var *x);
/* The inverse of erf, computed in f64; inf at 1, NaN for |y| > 1 */
FL_API fl_tensor *fl_erfinv(fl_tensor *y);
FL_API fl_var *fv_erfinv(fl_var *y);
/* floor(a / b), exact; integer division by 0 is an error; gradient 0; u64 is not supported. */
FL_API fl_tensor *fl_floor_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_floor_divide(fl_var *a, fl_var *b);
/* trunc(a / b), exact; the rest as floor_divide. */
FL_API fl_tensor *fl_trunc_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_trunc_divide(fl_var *a, fl_var *b);
/* The greatest common divisor of integers, at least 0 */
FL_API fl_tensor *fl_gcd(fl_tensor *a, fl_tensor *b);
/* The least common multiple of integers, at least 0; wraps around on overflow */
FL_API fl_tensor *fl_lcm(fl_tensor *a, fl_tensor *b);
/* The next float after a towards b; b if they are equal. Floats only. Waits for a and b. */
FL_API fl_tensor *fl_nextafter(fl_tensor *a, fl_tensor *b);
/* b8: |a - b| <= atol + rtol |b|, or a = b, or, with equal_nan, both NaN; rtol and atol at least 0 */
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
#define FL_EXPAND_FILE "special.inc"
#include "expand.h"
#endif /* FL_OPS_SPECIAL_IMPL */
#endif
/* MIT licence: see LICENSE. */
