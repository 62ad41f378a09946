/* fl/ops/special.h - arithmetic in several steps, and special functions

   A branch that SELECT does not take is computed all the same: its operands are made harmless first,
   or 0 * inf would be NaN in the gradient. */
#ifndef FL_T
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
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "special.h"
#include "expand.h"
#endif /* FL_OPS_SPECIAL_IMPL */
#endif
#else /* the text: see expand.h */

/* ---- arithmetic ---- */

FL_T *FL_W(round)(FL_T *x, int decimals) {
    if (FL_ABSENT("round", x)) return NULL;
    fl_scope s = fl_scope_begin();
    if (decimals == 0) return FL_GIVE(&s, RINT(x));
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    double scale = pow(10, fabs((double)decimals));
    FL_T *scaled = decimals > 0 ? MUL(x, CONST(scale)) : DIV(x, CONST(scale));
    FL_T *y = decimals > 0 ? DIV(RINT(scaled), CONST(scale)) : MUL(RINT(scaled), CONST(scale));
    return FL_GIVE(&s, SELECT(FL_W(isfinite)(scaled), y, RINT(x))); /* or it has no decimals */
}

FL_T *FL_W(nan_to_num)(FL_T *x, double nan, double above, double below) {
    if (FL_ABSENT("nan_to_num", x)) return NULL;
    if (!FL_VALUE(x)->weak && !fl_dtype_is_float(FL_VALUE(x)->dtype)) return x;
    fl_scope s = fl_scope_begin();
    FL_T *y = SELECT(FL_W(isposinf)(x), CONST(above), x);
    y = SELECT(FL_W(isneginf)(x), CONST(below), y);
    return FL_GIVE(&s, SELECT(EQ(x, x), y, CONST(nan)));
}

/* With the larger operand drawn out, so that no square overflows. */
FL_T *FL_W(hypot)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("hypot", a) || FL_ABSENT("hypot", b)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){FL_VALUE(a), FL_VALUE(b)});
    if (!fl_dtype_is_float(d)) d = FL_F32;
    if (!(a = FL_W(_matched)(a, b, d)) || !(b = FL_W(_matched)(b, a, d))) return FL_GIVE(&s, NULL);
    FL_T *hi = MAX(ABS(a), ABS(b)), *lo = MIN(ABS(a), ABS(b));
    FL_T *r = DIV(lo, SELECT(EQ(hi, CONST(0)), CONST(1), hi));
    FL_T *y = MUL(hi, SQRT(ADD(CONST(1), MUL(r, r))));
    FL_T *infinite = OR(FL_W(isinf)(a), FL_W(isinf)(b));
    y = SELECT(infinite, CONST(INFINITY), y);
    return FL_GIVE(&s, y ? FL_W(cast)(y, d) : y);
}

FL_T *FL_W(xlog1py)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("xlog1py", a) || FL_ABSENT("xlog1py", b)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){FL_VALUE(a), FL_VALUE(b)});
    if (!fl_dtype_is_float(d)) d = FL_F32;
    FL_T *left = FL_W(_matched)(a, b, d), *right = FL_W(_matched)(b, a, d);
    if (!(a = left) || !(b = right)) return FL_GIVE(&s, NULL);
    FL_T *off = AND(LE(b, CONST(-1)), EQ(a, CONST(0))), *inside = SELECT(off, CONST(0), b);
    FL_T *none = AND(EQ(a, CONST(0)), EQ(b, ADD(b, b))); /* 0 log(inf) */
    FL_T *y = SELECT(none, CONST(0), MUL(a, LOG1P(inside)));
    return FL_GIVE(&s, y ? FL_W(cast)(y, d) : NULL);
}

FL_T *FL_W(float_power)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("float_power", a) || FL_ABSENT("float_power", b)) return NULL;
    fl_scope s = fl_scope_begin();
    a = FL_W(cast)(a, FL_F64);
    b = FL_W(cast)(b, FL_F64);
    return FL_GIVE(&s, POW(a, b));
}

FL_T *FL_W(entr)(FL_T *x) {
    if (FL_ABSENT("entr", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *none = LE(x, CONST(0)), *some = SELECT(none, CONST(1), x);
    FL_T *edge = SELECT(EQ(x, CONST(0)), CONST(0), CONST(-(double)INFINITY));
    return FL_GIVE(&s, FL_W(_narrowed)(SELECT(none, edge, NEG(MUL(some, LOG(some)))), given));
}

FL_T *FL_W(ndtr)(FL_T *x) {
    if (FL_ABSENT("ndtr", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(cast)(given, FL_F64))) return FL_GIVE(&s, NULL);
    FL_T *y = MUL(CONST(0.5), FL_W(erfc)(MUL(x, CONST(-0.7071067811865476))));
    return FL_GIVE(&s, y ? FL_W(cast)(y, FL_VALUE(given)->dtype) : NULL);
}

/* The continued fraction of the normal distribution's tail below -5; nearer, the logarithm of the
   smaller side. */
FL_T *FL_W(log_ndtr)(FL_T *x) {
    if (FL_ABSENT("log_ndtr", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(cast)(given, FL_F64))) return FL_GIVE(&s, NULL);
    FL_T *deep = LT(x, CONST(-5)), *above = LT(CONST(0), x), *z = SELECT(deep, NEG(x), CONST(5));
    FL_T *fraction = z;
    for (int k = 30; k > 0; k--) fraction = ADD(z, DIV(CONST(k), fraction));
    FL_T *tail = SUB(MUL(CONST(-0.5), MUL(z, z)), LOG(fraction));
    tail = SUB(tail, CONST(0.91893853320467274)); /* log(2 pi) / 2 */
    FL_T *size = SELECT(above, x, NEG(SELECT(deep, CONST(0), x)));
    FL_T *beyond = MUL(CONST(0.5), FL_W(erfc)(MUL(size, CONST(0.7071067811865476))));
    FL_T *right = LOG1P(NEG(SELECT(above, beyond, CONST(0))));
    FL_T *y = SELECT(above, right, SELECT(deep, tail, LOG(SELECT(above, CONST(1), beyond))));
    return FL_GIVE(&s, y ? FL_W(cast)(y, FL_VALUE(given)->dtype) : NULL);
}

/* The power series, whose terms are all positive, up to 20; above, the asymptotic one, times exp(x)
   in two parts: it overflows before the product does. */
FL_T *FL_W(i0)(FL_T *x) {
    if (FL_ABSENT("i0", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(cast)(given, FL_F64))) return FL_GIVE(&s, NULL);
    FL_T *large = LT(CONST(20), ABS(x)), *inner = SELECT(large, CONST(0), x), *low = CONST(1);
    FL_T *square = MUL(inner, MUL(inner, CONST(0.25)));
    for (int k = 40; k > 0; k--) low = ADD(CONST(1), MUL(low, DIV(square, CONST(k * k))));
    FL_T *z = SELECT(large, ABS(x), CONST(20)), *high = CONST(1), *eighth = DIV(CONST(0.125), z);
    for (int k = 30; k > 0; k--)
        high = ADD(CONST(1), MUL(MUL(high, CONST((2 * k - 1) * (2 * k - 1) / (double)k)), eighth));
    FL_T *root = EXP(MUL(z, CONST(0.5)));
    high = MUL(MUL(root, DIV(high, SQRT(MUL(CONST(6.2831853071795865), z)))), root);
    high = SELECT(FL_W(isinf)(x), CONST(INFINITY), high);
    FL_T *y = SELECT(large, high, low);
    return FL_GIVE(&s, y ? FL_W(cast)(y, FL_VALUE(given)->dtype) : NULL);
}

/* From the nearer end: exact at both. */
FL_T *FL_W(lerp)(FL_T *a, FL_T *b, FL_T *w) {
    if (FL_ABSENT("lerp", a) || FL_ABSENT("lerp", b) || FL_ABSENT("lerp", w)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *d = SUB(b, a);
    FL_T *from_a = ADD(a, MUL(w, d)), *from_b = SUB(b, MUL(d, SUB(CONST(1), w)));
    return FL_GIVE(&s, SELECT(LT(ABS(w), CONST(0.5)), from_a, from_b));
}

FL_T *FL_W(addcmul)(FL_T *x, FL_T *a, FL_T *b, double value) {
    if (FL_ABSENT("addcmul", x) || FL_ABSENT("addcmul", a) || FL_ABSENT("addcmul", b)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *product = MUL(a, b);
    return FL_GIVE(&s, ADD(x, value == 1 ? product : MUL(CONST(value), product)));
}

FL_T *FL_W(addcdiv)(FL_T *x, FL_T *a, FL_T *b, double value) {
    if (FL_ABSENT("addcdiv", x) || FL_ABSENT("addcdiv", a) || FL_ABSENT("addcdiv", b)) return NULL;
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, ADD(x, MUL(CONST(value), DIV(a, b))));
}

/* >>gamma: Stirling's series for z >= 8; below, 8 is added, which a product or a sum over the steps
   takes back. In f64: f32 rounds once. x < 1/2 by reflection at 1/2, where sin(pi x) is taken from
   the nearest integer. */

/* z for the series: x or 1 - x, at least 1/2. *r: x less the nearest integer. */
static FL_T *FL_W(_reflected)(FL_T *x, FL_T *left, FL_T **r) {
    *r = SELECT(LE(ABS(x), CONST(0.5)), x, SUB(x, RINT(x)));
    return SELECT(left, SUB(CONST(1), x), x);
}

FL_T *FL_W(lgamma)(FL_T *x) {
    static const double series[] = {1 / 12.0, -1 / 360.0, 1 / 1260.0, -1 / 1680.0, 1 / 1188.0,
                                    -691 / 360360.0, 1 / 156.0, -3617 / 122400.0};
    if (FL_ABSENT("lgamma", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *r, *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(cast)(given, FL_F64))) return FL_GIVE(&s, NULL);
    FL_T *left = LT(x, CONST(0.5)), *z = FL_W(_reflected)(x, left, &r);
    FL_T *below = LT(z, CONST(8)), *w = SELECT(below, ADD(z, CONST(8)), z);
    FL_T *step = SELECT(below, z, CONST(1)), *product = step;
    for (int k = 1; k < 8; k++) product = MUL(product, ADD(step, CONST(k)));
    FL_T *inverse = DIV(CONST(1), w);
    FL_T *y = ADD(SUB(MUL(w, SUB(LOG(w), CONST(1))), MUL(CONST(0.5), LOG(w))),
                  ADD(CONST(0.91893853320467274), /* log(2 pi) / 2 */
                      MUL(inverse, FL_W(_poly)(MUL(inverse, inverse), series, 8))));
    y = SUB(y, SELECT(below, LOG(product), CONST(0)));
    FL_T *sine = SIN(MUL(CONST(3.1415926535897931), SELECT(left, ABS(r), CONST(0.5))));
    y = SELECT(left, SUB(SUB(CONST(1.1447298858494002), LOG(sine)), y), y); /* log(pi) */
    y = SELECT(FL_W(isinf)(x), CONST(INFINITY), y);
    return y ? FL_GIVE(&s, FL_W(cast)(y, FL_VALUE(given)->dtype)) : FL_GIVE(&s, NULL);
}

FL_T *FL_W(digamma)(FL_T *x) {
    static const double series[] = {0, -1 / 12.0, 1 / 120.0, -1 / 252.0, 1 / 240.0,
                                    -1 / 132.0, 691 / 32760.0, -1 / 12.0, 3617 / 8160.0};
    if (FL_ABSENT("digamma", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *r, *given = FL_W(_floating)(x);
    if (!given || !(x = FL_W(cast)(given, FL_F64))) return FL_GIVE(&s, NULL);
    FL_T *left = LT(x, CONST(0.5)), *z = FL_W(_reflected)(x, left, &r);
    FL_T *below = LT(z, CONST(8)), *w = SELECT(below, ADD(z, CONST(8)), z);
    FL_T *step = SELECT(below, z, CONST(1)), *sum = DIV(CONST(1), step);
    for (int k = 1; k < 8; k++) sum = ADD(sum, DIV(CONST(1), ADD(step, CONST(k))));
    FL_T *inverse = DIV(CONST(1), w);
    FL_T *y = SUB(ADD(LOG(w), FL_W(_poly)(MUL(inverse, inverse), series, 9)),
                  MUL(CONST(0.5), inverse));
    y = SUB(y, SELECT(below, sum, CONST(0)));
    FL_T *turn = MUL(CONST(3.1415926535897931), SELECT(left, r, CONST(0.25)));
    FL_T *cotangent = DIV(MUL(CONST(3.1415926535897931), COS(turn)), SIN(turn));
    y = SELECT(left, SUB(y, cotangent), y);
    y = SELECT(AND(EQ(r, CONST(0)), LT(x, CONST(0))), CONST(NAN), y); /* a pole, but at +-0 */
    return y ? FL_GIVE(&s, FL_W(cast)(y, FL_VALUE(given)->dtype)) : FL_GIVE(&s, NULL);
}

#ifdef FL_ON_TENSORS
/* 1 - erf(x) for x < 1/2, and Chebyshev's series for -log(erfc z) of t = 2 / (2 + z) above (Press et
   al., Numerical Recipes, 3rd ed., 6.2.2), in f64. z^2 is split so that its rounding does not count:
   to 1/16 exactly, and the rest. */
fl_tensor *fl_erfc(fl_tensor *x) {
    static const double c[28] = {
        -1.3026537197817094,  6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3,
        -9.46595344482036e-4, 3.66839497852761e-4,   4.2523324806907e-5,    -2.0278578112534e-5,
        -1.624290004647e-6,   1.303655835580e-6,     1.5626441722e-8,       -8.5238095915e-8,
        6.529054439e-9,       5.059343495e-9,        -9.91364156e-10,       -2.27365122e-10,
        9.6467911e-11,        2.394038e-12,          -6.886027e-12,         8.94487e-13,
        3.13092e-13,          -1.12708e-13,          3.81e-16,              7.106e-15,
        -1.523e-15,           -9.4e-17,              1.21e-16,              -2.8e-17};
    if (fl_absent("fl_erfc", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *given = fl__floating(x), *d = NULL, *before = NULL;
    if (!given || !(x = fl_cast(given, FL_F64))) return fl_scope_return(&s, NULL);
    fl_tensor *below = LT(x, CONST(0.5)), *z = SELECT(below, CONST(1), MIN(x, CONST(30)));
    fl_tensor *t = DIV(CONST(2), ADD(CONST(2), z)), *u = SUB(MUL(CONST(4), t), CONST(2));
    d = before = MUL(u, CONST(0));
    for (int j = 27; j > 0; j--) {
        fl_tensor *next = ADD(SUB(MUL(u, d), before), CONST(c[j]));
        before = d;
        d = next;
    }
    fl_tensor *series = SUB(MUL(CONST(0.5), ADD(CONST(c[0]), MUL(u, d))), before);
    fl_tensor *whole = MUL(RINT(MUL(z, CONST(16))), CONST(0.0625));
    fl_tensor *rest = SUB(series, MUL(SUB(z, whole), ADD(z, whole)));
    fl_tensor *tail = MUL(MUL(t, EXP(NEG(MUL(whole, whole)))), EXP(rest));
    fl_tensor *y = SELECT(below, SUB(CONST(1), ERF(x)), tail);
    return fl_scope_return(&s, y ? fl_cast(y, given->dtype) : NULL);
}

/* A rational approximation, and two Newton steps, on erfc where y is near 1, in f64. */
fl_tensor *fl_erfinv(fl_tensor *y) {
    static const double a[] = {0.886226899, -1.645349621, 0.914624893, -0.140543331};
    static const double b[] = {1, -2.118377725, 1.442710462, -0.329097515, 0.012229801};
    static const double c[] = {-1.970840454, -1.624906493, 3.429567803, 1.641345311};
    static const double d[] = {1, 3.543889200, 1.637067800};
    if (fl_absent("fl_erfinv", y)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *given = fl__floating(y);
    if (!given || !(y = fl_cast(given, FL_F64))) return fl_scope_return(&s, NULL);
    fl_tensor *size = ABS(y), *z = MUL(y, y);
    fl_tensor *middle = DIV(MUL(size, fl__poly(z, a, 4)), fl__poly(z, b, 5));
    fl_tensor *w = SQRT(NEG(LOG(MUL(CONST(0.5), SUB(CONST(1), size)))));
    fl_tensor *tail = DIV(fl__poly(w, c, 4), fl__poly(w, d, 3));
    fl_tensor *x = SELECT(LE(size, CONST(0.7)), middle, tail);
    for (int i = 0; i < 2; i++) {
        fl_tensor *slope = MUL(CONST(1.1283791670955126), EXP(NEG(MUL(x, x))));
        fl_tensor *off = SELECT(LE(size, CONST(0.7)), SUB(ERF(x), size),
                                SUB(SUB(CONST(1), size), fl_erfc(x)));
        x = SUB(x, DIV(off, slope));
    }
    fl_tensor *end = DIV(CONST(1), SQRT(SUB(CONST(1), size))); /* inf at 1, NaN above */
    x = SELECT(LE(CONST(1), size), end, x);
    x = SELECT(EQ(y, CONST(0)), y, SELECT(LT(y, CONST(0)), NEG(x), x));
    return fl_scope_return(&s, x ? fl_cast(x, given->dtype) : NULL);
}

/* The integer quotient a / b, rounded to 0, of an a less its remainder: by way of f64, and what that
   rounded away by way of f64 again. */
static fl_tensor *fl__integer_quotient(fl_tensor *whole, fl_tensor *b) {
    fl_tensor *divisor = fl_cast(b, FL_F64);
    if (!whole || !divisor) return NULL;
    fl_tensor *q = fl_cast(DIV(fl_cast(whole, FL_F64), divisor), FL_I64);
    fl_tensor *left = SUB(whole, MUL(q, b));
    return left ? ADD(q, fl_cast(DIV(fl_cast(left, FL_F64), divisor), FL_I64)) : NULL;
}

/* The exact quotient rounded to 0, or down. */
static fl_tensor *fl__divided(const char *fn, fl_tensor *a, fl_tensor *b, bool down) {
    if (fl_absent(fn, a) || fl_absent(fn, b)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){a, b});
    bool real = fl_dtype_is_float(d);
    fl_tensor *left = real ? fl__matched(a, b, d) : fl_cast(a, d);
    fl_tensor *right = real ? fl__matched(b, a, d) : fl_cast(b, d);
    if (!(a = left) || !(b = right)) return fl_scope_return(&s, NULL);
    fl_tensor *r = fl_fmod(a, b), *whole = SUB(a, r);
    fl_tensor *q = real ? RINT(DIV(whole, b)) : fl__integer_quotient(whole, b);
    if (down) {
        fl_tensor *past = AND(NOT(EQ(r, CONST(0))), XOR(LT(r, CONST(0)), LT(b, CONST(0))));
        q = q && past ? SUB(q, fl_cast(past, q->dtype)) : NULL;
    }
    if (real) q = SELECT(EQ(b, CONST(0)), DIV(a, b), q);
    return fl_scope_return(&s, q ? fl_cast(q, d) : NULL);
}

fl_tensor *fl_floor_divide(fl_tensor *a, fl_tensor *b) {
    return fl__divided("fl_floor_divide", a, b, true);
}
fl_tensor *fl_trunc_divide(fl_tensor *a, fl_tensor *b) {
    return fl__divided("fl_trunc_divide", a, b, false);
}

/* The operands as integers of one dtype. */
static bool fl__both_integers(const char *fn, fl_tensor **a, fl_tensor **b) {
    if (fl_absent(fn, *a) || fl_absent(fn, *b)) return false;
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){*a, *b});
    if (d == FL_B8 || fl_dtype_is_float(d))
        return fl_refuse("%s: %s and %s, not integers", fn, fl_dtype_name((*a)->dtype),
                       fl_dtype_name((*b)->dtype));
    return (*a = fl_cast(*a, d)) && (*b = fl_cast(*b, d));
}

/* Euclid's steps, for all elements until the last one is done. */
fl_tensor *fl_gcd(fl_tensor *a, fl_tensor *b) {
    fl_scope s = fl_scope_begin();
    if (!fl__both_integers("fl_gcd", &a, &b)) return FL_GIVE(&s, NULL);
    fl_tensor *none = fl_mul(b, fl_int(0));
    a = fl_add(a, none); /* of the common shape */
    b = a ? fl_add(b, fl_mul(a, fl_int(0))) : NULL;
    while (b && fl_numel(b) && fl_item_int(fl_any(b, FL_ALL_AXES))) {
        fl_tensor *done = EQ(b, fl_int(0));
        fl_tensor *rest = fl_fmod(a, SELECT(done, fl_int(1), b));
        a = SELECT(done, a, b);
        b = SELECT(done, b, rest);
    }
    return FL_GIVE(&s, b ? ABS(a) : NULL);
}

fl_tensor *fl_lcm(fl_tensor *a, fl_tensor *b) {
    fl_scope s = fl_scope_begin();
    if (!fl__both_integers("fl_lcm", &a, &b)) return FL_GIVE(&s, NULL);
    fl_tensor *divisor = fl_gcd(a, b);
    divisor = divisor ? SELECT(EQ(divisor, fl_int(0)), fl_int(1), divisor) : NULL;
    return FL_GIVE(&s, divisor ? ABS(fl_mul(fl_floor_divide(a, divisor), b)) : NULL);
}

/* x, floats, with step (-1, 0 or 1) added to the bits of each element. */
static fl_tensor *fl__bits_moved(fl_tensor *x, fl_tensor *step) {
    size_t n = (size_t)fl_numel(x), size = fl_dtype_size(x->dtype);
    char *bits = fl_heap_alloc(n * (size + 1) + 1); /* the steps follow the elements */
    signed char *by = bits ? (signed char *)bits + n * size : NULL;
    bool ok = bits && fl_to_host(x, bits, n * size) && fl_to_host(step, by, n);
    for (size_t i = 0; ok && i < n; i++) {
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        char *p = bits + i * size;
        if (size == 2) memcpy(&u16, p, 2), u16 = (uint16_t)(u16 + by[i]), memcpy(p, &u16, 2);
        if (size == 4) memcpy(&u32, p, 4), u32 += (uint32_t)by[i], memcpy(p, &u32, 4);
        if (size == 8) memcpy(&u64, p, 8), u64 += (uint64_t)by[i], memcpy(p, &u64, 8);
    }
    fl_tensor *y = ok ? fl_from_host(bits, fl_shape_of(x), x->dtype) : NULL;
    fl_heap_free(bits);
    return y ? fl_to(y, fl_backend_name(x)) : NULL;
}

fl_tensor *fl_nextafter(fl_tensor *a, fl_tensor *b) {
    if (fl_absent("fl_nextafter", a) || fl_absent("fl_nextafter", b)) return NULL;
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){a, b});
    if (!fl_dtype_is_float(d))
        return fl_bad("fl_nextafter: %s and %s, not floats", fl_dtype_name(a->dtype),
                       fl_dtype_name(b->dtype));
    fl_scope s = fl_scope_begin();
    fl_tensor *toward = fl_cast(b, d), *from = fl_cast(a, d);
    fl_tensor *equal = EQ(from, toward);
    from = equal ? fl_expand(from, fl_shape_of(equal)) : NULL;
    fl_tensor *away = XOR(LT(toward, from), LT(CONST(0), from)); /* from 0 */
    fl_tensor *step = away ? fl_cast(SELECT(away, fl_int(1), fl_int(-1)), FL_I8) : NULL;
    fl_tensor *y = step ? fl__bits_moved(from, step) : NULL;
    double least = d == FL_F64   ? 0x1p-1074
                   : d == FL_F32 ? 0x1p-149
                   : d == FL_F16 ? 0x1p-24
                                 : 0x1p-133;
    y = SELECT(EQ(from, CONST(0)), fl_copysign(fl_full_like(from, least), toward), y);
    fl_tensor *none = OR(fl_isnan(from), fl_isnan(toward));
    return FL_GIVE(&s, SELECT(none, CONST(NAN), SELECT(equal, toward, y)));
}

fl_tensor *fl_isclose(fl_tensor *a, fl_tensor *b, double rtol, double atol, bool equal_nan) {
    if (fl_absent("fl_isclose", a) || fl_absent("fl_isclose", b)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *off = ABS(SUB(a, b)), *allowed = ADD(CONST(atol), MUL(CONST(rtol), ABS(b)));
    fl_tensor *y = OR(EQ(a, b), AND(fl_isfinite(off), LE(off, allowed)));
    if (equal_nan) y = OR(y, AND(fl_isnan(a), fl_isnan(b)));
    return fl_scope_return(&s, y);
}
#endif

#ifdef FL_ON_VARS
/* -2 / sqrt(pi) exp(-x^2) */
static void fv__erfc_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0);
    fv_add_grad(n, 0, MUL(dy, MUL(CONST(-1.1283791670955126), EXP(NEG(MUL(x, x))))));
}

fl_var *fv_erfc(fl_var *x) {
    return fv_record_args("erfc", fl_erfc(fv_value(x)), fv__erfc_back, FV_IN(x), FV_SAVE(x), NULL, 0);
}

/* sqrt(pi) / 2 exp(x^2) of the result x */
static void fv__erfinv_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0);
    fv_add_grad(n, 0, MUL(dy, MUL(CONST(0.88622692545275801), EXP(MUL(x, x)))));
}

fl_var *fv_erfinv(fl_var *y) {
    return fv_record_args("erfinv", fl_erfinv(fv_value(y)), fv__erfinv_back, FV_IN(y),
                          FV_SAVE(FV_OUT), NULL, 0);
}
fl_var *fv_floor_divide(fl_var *a, fl_var *b) {
    return fv_const(fl_floor_divide(fv_value(a), fv_value(b)));
}
fl_var *fv_trunc_divide(fl_var *a, fl_var *b) {
    return fv_const(fl_trunc_divide(fv_value(a), fv_value(b)));
}
#endif

#endif
/* MIT licence: see LICENSE. */
