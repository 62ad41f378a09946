/* fl_math.h - scalar functions for the op tables, written once for C and CUDA

   flm_<name>_<t> computes one element: <name> is a name of fl_words.h, <t> is f32, f64, i64 or b8
   (uint8_t, 0 or 1). flm_<from>_to_<to> converts. The f32 functions have no branches, no errno and
   no tables, so gcc and clang turn a loop over them into vector code at any ISA level, and the loop
   gives the same bits as a single call: every product and every sum is rounded alone (nothing is
   contracted into an fma; nvcc wants --fmad=false for that, and clang no -ffp-contract=fast).

   Accuracy against the exact value, every f32 tested (tests/test_math.c --all): exp and log within
   2 ulp, the others within 4. f64 calls libm. Infinities, NaN, -0 and denormals are IEEE's; NaN
   propagates through maximum and minimum, for which +0 is above -0. Assumed: round to nearest,
   denormals on.

   Integers wrap. remainder follows the divisor's sign, as Python's %. Integer x / 0 and x % 0 are 0
   here; the caller raises the error. Comparisons return int conditions, `where` takes one, and for
   f32 and f64 bitwise_and/or/xor/not combine them: formulas have no other use for these words on
   floats.

   Functions of kernels stand between FL_KERNEL_BEGIN and FL_KERNEL_END: the functions here are
   inlined and follow the rules of the function that they land in.

   Contents: >>arithmetic >>f32 >>f64 >>i64 >>b8 >>casts >>random */
#ifndef FL_MATH_H
#define FL_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "fl_math.h needs IEEE arithmetic: drop -ffast-math (-Ofast); its safe part is on here anyway"
#endif

/* What a kernel file needs whatever the command line says: vectorised loops (gcc's -O2 leaves
   ours alone), no errno and no traps (either would forbid it), and no contraction. clang's
   float_control saves the contraction state. */
#if defined(__CUDACC__)
#define FL_KERNEL_BEGIN
#define FL_KERNEL_END
#define FLM static __host__ __device__ __forceinline__
#elif defined(__clang__)
#define FL_KERNEL_BEGIN _Pragma("float_control(push)") _Pragma("clang fp contract(off)")
#define FL_KERNEL_END _Pragma("float_control(pop)")
#define FLM static inline __attribute__((always_inline))
#else
#define FL_KERNEL_BEGIN                                                                            \
    _Pragma("GCC push_options")                                                                    \
    _Pragma("GCC optimize(\"O3\", \"no-trapping-math\", \"no-math-errno\", \"fp-contract=off\")")
#define FL_KERNEL_END _Pragma("GCC pop_options")
#define FLM static inline __attribute__((always_inline))
#endif

FL_KERNEL_BEGIN

/* A square root is vectorised only if it may not set errno. clang has no way to say so but on
   the command line: it gets a const name for libm's function, which it knows by its symbol. gcc
   knows it by its name: a const redeclaration. */
#if defined(__clang__) && !defined(__CUDACC__)
#define FLM__STR(x) #x
#define FLM__SYMBOL(prefix, name) FLM__STR(prefix) name
#ifdef __cplusplus
extern "C" {
#endif
float flm__libm_sqrtf(float) __asm__(FLM__SYMBOL(__USER_LABEL_PREFIX__, "sqrtf"))
    __attribute__((const));
double flm__libm_sqrt(double) __asm__(FLM__SYMBOL(__USER_LABEL_PREFIX__, "sqrt"))
    __attribute__((const));
#ifdef __cplusplus
}
#endif
#undef FLM__SYMBOL
#undef FLM__STR
#else
#ifndef __cplusplus
float(sqrtf)(float) __attribute__((const));
double(sqrt)(double) __attribute__((const));
#endif
#define flm__libm_sqrtf sqrtf
#define flm__libm_sqrt sqrt
#endif

FLM uint32_t flm__bits32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FLM float flm__float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

FLM uint64_t flm__bits64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FLM double flm__double(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* >>arithmetic: what the machine does itself */

#define FLM__COMPARE(t, T)                                                                         \
    FLM int flm_lt_##t(T a, T b) { return a < b; }                                                 \
    FLM int flm_le_##t(T a, T b) { return a <= b; }                                                \
    FLM int flm_eq_##t(T a, T b) { return a == b; }                                                \
    FLM T flm_where_##t(int c, T a, T b) { return c ? a : b; }
#define FLM__REAL(t, T)                                                                            \
    FLM T flm_add_##t(T a, T b) { return a + b; }                                                  \
    FLM T flm_sub_##t(T a, T b) { return a - b; }                                                  \
    FLM T flm_mul_##t(T a, T b) { return a * b; }                                                  \
    FLM T flm_div_##t(T a, T b) { return a / b; }                                                  \
    FLM T flm_neg_##t(T a) { return -a; }                                                          \
    FLM T flm_num_##t(double k) { return (T)k; }                                                   \
    FLM int flm_bitwise_and_##t(int a, int b) { return a & b; }                                    \
    FLM int flm_bitwise_or_##t(int a, int b) { return a | b; }                                     \
    FLM int flm_bitwise_xor_##t(int a, int b) { return a ^ b; }                                    \
    FLM int flm_bitwise_not_##t(int a) { return !a; }

FLM__COMPARE(f32, float)
FLM__COMPARE(f64, double)
FLM__COMPARE(i64, int64_t)
FLM__COMPARE(b8, uint8_t)
FLM__REAL(f32, float)
FLM__REAL(f64, double)
#undef FLM__COMPARE
#undef FLM__REAL

/* >>f32 */

FLM float flm_abs_f32(float x) { return fabsf(x); }
FLM float flm_sqrt_f32(float x) { return flm__libm_sqrtf(x); }

/* Equal operands differ in a zero's sign at most: and-ing their bits gives +0, or-ing -0. */
FLM float flm_maximum_f32(float a, float b) {
    float m = ((a > b) | (a != a)) ? a : b;
    return a == b ? flm__float(flm__bits32(a) & flm__bits32(b)) : m;
}

FLM float flm_minimum_f32(float a, float b) {
    float m = ((a < b) | (a != a)) ? a : b;
    return a == b ? flm__float(flm__bits32(a) | flm__bits32(b)) : m;
}

/* Adding 2^23 leaves no room for a fraction. */
FLM float flm_rint_f32(float x) {
    float a = fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    return a < 8388608.0f ? copysignf(r, x) : x;
}

FLM float flm_floor_f32(float x) {
    float r = flm_rint_f32(x);
    return r > x ? r - 1.0f : r;
}

/* a - n b with n = floor(a / b), exact but for the last addition */
FLM float flm_remainder_f32(float a, float b) {
    float r = fmodf(a, b);
    return ((r != 0.0f) & ((r < 0.0f) != (b < 0.0f))) ? r + b : r;
}

/* x = n ln 2 + r, |r| <= ln 2 / 2. The magic addend 1.5 * 2^23 rounds to an integer and leaves
   it in the low bits. ln 2 in two parts: n times the upper one is exact. Garbage n for NaN does
   no harm, as r is NaN then. */
FLM float flm__split_ln2(float x, int32_t *n) {
    float t = x * 1.44269504f + 12582912.0f, k = t - 12582912.0f;
    *n = (int32_t)(flm__bits32(t) - 0x4b400000u);
    return (x - k * 0.693359375f) + k * 2.12194440e-4f;
}

/* e^r - 1 on |r| <= ln 2 / 2 */
FLM float flm__expm1_poly(float r) {
    float p = 1.38144696e-3f;
    p = p * r + 8.36877991e-3f;
    p = p * r + 4.16683927e-2f;
    p = p * r + 1.66665196e-1f;
    p = p * r + 4.99999940e-1f;
    return r + r * r * p;
}

/* 2^n for -127 < n < 128 */
FLM float flm__exp2i(int32_t n) { return flm__float((uint32_t)(n + 127) << 23); }

/* 2^n in two steps reaches infinity and rounds once, if at all, into the denormals. */
FLM float flm_exp_f32(float x) {
    int32_t n, half;
    float r;
    x = x < -104.5f ? -104.5f : x;
    x = x > 89.0f ? 89.0f : x;
    r = flm__split_ln2(x, &n);
    half = n >> 1;
    return (1.0f + flm__expm1_poly(r)) * flm__exp2i(half) * flm__exp2i(n - half);
}

/* e^x for shares, x <= 0 or little more: 0 below -87, where denormals begin, which cost a hundred
   times as much */
FLM float flm_exp_share_f32(float x) {
    int32_t n;
    float r = flm__split_ln2(x < -87.0f ? -87.0f : x, &n);
    float y = (1.0f + flm__expm1_poly(r)) * flm__exp2i(n);
    return x < -87.0f ? 0.0f : y;
}

/* 2^n ((1 - 2^-n) + (e^r - 1)), sign not yet that of x = -0; -1 below -18 */
FLM float flm__expm1_core(float x) {
    int32_t n, half;
    float r, back;
    x = x < -18.0f ? -18.0f : x;
    x = x > 89.0f ? 89.0f : x;
    r = flm__split_ln2(x, &n);
    half = n >> 1;
    back = flm__exp2i(-half) * flm__exp2i(half - n);
    return ((1.0f - back) + flm__expm1_poly(r)) * flm__exp2i(half) * flm__exp2i(n - half);
}

FLM float flm_expm1_f32(float x) { return copysignf(flm__expm1_core(x), x); }

/* With t = e^(-2|x|) - 1, tanh |x| = -t / (2 + t): no overflow, no cancellation. */
FLM float flm_tanh_f32(float x) {
    float t = flm__expm1_core(-2.0f * fabsf(x));
    return copysignf(t / (2.0f + t), x);
}

/* log(2^e (1 + f)), sqrt(1/2) - 1 <= f <= sqrt(2) - 1: f - f^2/2 + f^3 P(f) + e ln 2 */
FLM float flm__log_core(float f, float e) {
    float z = f * f, p = 6.91554546e-2f;
    p = p * f - 1.17898569e-1f;
    p = p * f + 1.18729182e-1f;
    p = p * f - 1.23843357e-1f;
    p = p * f + 1.42186657e-1f;
    p = p * f - 1.66692525e-1f;
    p = p * f + 2.00022265e-1f;
    p = p * f - 2.49999866e-1f;
    p = p * f + 3.33333105e-1f;
    p = z * f * p - e * 2.12194440e-4f;
    return (f + (p - 0.5f * z)) + e * 0.693359375f;
}

/* 0x3f3504f3 is sqrt(1/2): the subtraction puts the mantissa's wrap there. */
FLM float flm_log_f32(float x) {
    int tiny = x < 1.17549435e-38f;
    uint32_t u = flm__bits32(tiny ? x * 33554432.0f : x) - 0x3f3504f3u;
    float e = (float)((int32_t)u >> 23) - (tiny ? 25.0f : 0.0f);
    float y = flm__log_core(flm__float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, e);
    y = x < INFINITY ? y : x;
    y = x < 0.0f ? NAN : y;
    return x == 0.0f ? -INFINITY : y;
}

/* log(1 + x): c is the rounding error of u = 1 + x (two-sum), which goes back in at the scale of
   u's mantissa. For e = 0 that restores f = x. */
FLM float flm_log1p_f32(float x) {
    float u = 1.0f + x, b = u - 1.0f, c = (1.0f - (u - b)) + (x - b);
    uint32_t i = flm__bits32(u) - 0x3f3504f3u;
    int32_t e = (int32_t)i >> 23;
    float f = flm__float((i & 0x7fffffu) + 0x3f3504f3u) - 1.0f, y;
    f += x < 1e9f ? c * flm__exp2i(-e) : 0.0f;
    y = flm__log_core(f, (float)e);
    y = x < INFINITY ? y : x;
    y = x < -1.0f ? NAN : y;
    y = x == -1.0f ? -INFINITY : y;
    return x == 0.0f ? x : y;
}

/* |x| <= 0.93: x + x P(x^2); above: 1 - e^-q(x), q a polynomial fit of -log(erfc(x)) up to 4 */
FLM float flm_erf_f32(float x) {
    float a = fabsf(x), s = a * a, t = a > 4.0f ? 4.0f : a;
    float p = -5.97689650e-4f, q = 1.14233344e-5f, r;
    int32_t n;
    p = p * s + 4.99098096e-3f;
    p = p * s - 2.67655682e-2f;
    p = p * s + 1.12818025e-1f;
    p = p * s - 3.76124948e-1f;
    p = p * s + 1.28379151e-1f;
    q = q * t - 3.24726425e-4f;
    q = q * t + 3.65027832e-3f;
    q = q * t - 2.37786062e-2f;
    q = q * t + 1.06256090e-1f;
    q = q * t + 6.35139704e-1f;
    q = q * t + 1.28651351e-1f;
    r = flm__split_ln2(-(t + t * q), &n);
    r = 1.0f - (1.0f + flm__expm1_poly(r)) * flm__exp2i(n);
    return copysignf(a > 0.93f ? r : a + a * p, x);
}

/* t less a multiple of 4, in [-4, 4]. The magic addend 1.5 * 2^53 rounds to an even number as
   long as |t / 4| stays below 2^52; from there on t is a multiple of 4 itself. */
FLM double flm__mod4(double t) {
    double k = (t * 0.25 + 13510798882111488.0) - 13510798882111488.0;
    return fabs(t) < 18014398509481984.0 ? t - 4.0 * k : 0.0;
}

/* sin(r + q pi/2) for |r| <= pi/4 */
FLM float flm__sin_quadrant(double r, uint64_t q) {
    double z = r * r, s = 2.7182745248176924e-06, c = 2.4390043098191887e-05, y;
    s = s * z - 1.983933100357565e-04;
    s = s * z + 8.333329374147993e-03;
    s = s * z - 1.6666666641527175e-01;
    s = r * (1.0 + z * s);
    c = c * z - 1.3886759568895264e-03;
    c = c * z + 4.1666623194893525e-02;
    c = c * z - 4.9999999724012906e-01;
    c = 1.0 + z * c;
    y = q & 1 ? c : s;
    return (float)(q & 2 ? -y : y);
}

/* x = q pi/2 + r, |r| <= pi/4, for every float up to 2^128; NaN for infinity. 2/pi in pieces of 29
   bits: their products with the 24 bits of x are exact. The sum of what they leave mod 4, rounded,
   gives q (in the low bits), which goes before the small ones come: nothing that counts is lost. */
FLM double flm__quadrant(float xf, uint64_t *q) {
    double x = xf, m0 = flm__mod4(x * 0x1.45f306d000000p-1);
    double m1 = flm__mod4(x * 0x1.9391054000000p-30), m2 = flm__mod4(x * 0x1.4fe13ab000000p-59);
    double m3 = flm__mod4(x * 0x1.d1f534d000000p-88), m4 = flm__mod4(x * 0x1.b81b6c5000000p-117);
    double m5 = flm__mod4(x * 0x1.5993c40000000p-148), m6 = flm__mod4(x * 0x1.c820ff2000000p-175);
    double t = (m0 + m1 + m2 + m3 + m4 + m5 + m6) + 6755399441055744.0;
    double r = m0 - (t - 6755399441055744.0) + m1 + m2 + m3 + m4 + m5 + m6;
    *q = flm__bits64(t);
    return (r + x * 0.0) * 1.5707963267948966;
}

FLM float flm_sin_f32(float x) {
    uint64_t q;
    double r = flm__quadrant(x, &q);
    return flm__sin_quadrant(r, q);
}

FLM float flm_cos_f32(float x) {
    uint64_t q;
    double r = flm__quadrant(x, &q);
    return flm__sin_quadrant(r, q + 1);
}

/* log2 a for a > 0, relative error 2^-43. The exponent becomes a double by way of the bits of
   2^52 + e + 1024. */
FLM double flm__log2(double a) {
    uint64_t u = flm__bits64(a) - 0x3fe6a09e667f3bcdu + ((uint64_t)1024 << 52);
    double e = flm__double((u >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1024.0);
    double m = flm__double((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.28290819154875285;
    p = p * z + 0.3199050991127154;
    p = p * z + 0.41220926796057783;
    p = p * z + 0.5770779421988768;
    p = p * z + 0.9617966941139626;
    p = p * z + 2.8853900817778495;
    return e + s * p;
}

/* 2^p, relative error 2^-34, |p| <= 200 */
FLM double flm__exp2(double p) {
    double t = p + 6755399441055744.0, f = p - (t - 6755399441055744.0), y = 1.5201922248720531e-05;
    y = y * f + 1.546929118668644e-04;
    y = y * f + 1.3333922561280112e-03;
    y = y * f + 9.61802725351768e-03;
    y = y * f + 5.550410353449673e-02;
    y = y * f + 2.402265119815887e-01;
    y = y * f + 6.93147180728447e-01;
    y = y * f + 0.9999999999616815;
    return y * flm__double((flm__bits64(t) + 1023) << 52);
}

/* 2^(y log2 |x|) in double, then C's rules for signs, zeros, ones, infinities and NaN */
FLM float flm_pow_f32(float xf, float yf) {
    double x = xf, y = yf, a = fabs(x), half = 0.5 * y, l = flm__log2(a), p, r;
    int whole = flm_rint_f32(yf) == yf, odd = whole & (flm_rint_f32((float)half) != (float)half);
    l = a < INFINITY ? l : a;
    l = a == 0.0 ? -INFINITY : l;
    p = y * l;
    p = p > 200.0 ? 200.0 : p;
    p = p < -200.0 ? -200.0 : p;
    r = flm__exp2(p);
    r = ((a == 1.0) & (y == y)) ? 1.0 : r;
    r = odd ? copysign(r, x) : r;
    r = ((x < 0.0) & (a < INFINITY) & !whole) ? NAN : r;
    return ((y == 0.0) | (x == 1.0)) ? 1.0f : (float)r;
}

/* The angle of the point (x, y) in double: that of the octant where it lies, |u| <= sqrt(2) - 1,
   then back by pi/4, pi/2 and pi. */
FLM float flm_atan2_f32(float yf, float xf) {
    double x = fabs((double)xf), y = fabs((double)yf), hi = x > y ? x : y, lo = x > y ? y : x;
    int both = lo == INFINITY, steep = y > x, left = (int)(flm__bits32(xf) >> 31), mid;
    double u, z, p = -0.04043033696147106;
    lo = both ? 1.0 : lo;
    hi = (both | (hi == 0.0)) ? 1.0 : hi;
    mid = lo > 0.41421356237309503 * hi;
    u = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    z = u * u;
    p = p * z + 0.07135234647464041;
    p = p * z - 0.09028967562110418;
    p = p * z + 0.11107493853432703;
    p = p * z - 0.14285612465275252;
    p = p * z + 0.19999998916690562;
    p = p * z - 0.33333333331439496;
    p = u + u * z * p + (mid ? 0.78539816339744831 : 0.0);
    p = steep ? 1.5707963267948966 - p : p;
    p = left ? 3.1415926535897931 - p : p;
    return ((xf != xf) | (yf != yf)) ? NAN : copysignf((float)p, yf);
}

/* >>f64 */

FLM double flm_abs_f64(double x) { return fabs(x); }
FLM double flm_sqrt_f64(double x) { return flm__libm_sqrt(x); }
FLM double flm_exp_f64(double x) { return exp(x); }
FLM double flm_exp_share_f64(double x) { return exp(x); }
FLM double flm_log_f64(double x) { return log(x); }
FLM double flm_log1p_f64(double x) { return log1p(x); }
FLM double flm_expm1_f64(double x) { return expm1(x); }
FLM double flm_sin_f64(double x) { return sin(x); }
FLM double flm_cos_f64(double x) { return cos(x); }
FLM double flm_tanh_f64(double x) { return tanh(x); }
FLM double flm_erf_f64(double x) { return erf(x); }
FLM double flm_atan2_f64(double y, double x) { return atan2(y, x); }
FLM double flm_pow_f64(double x, double y) { return pow(x, y); }

FLM double flm_maximum_f64(double a, double b) {
    double m = ((a > b) | (a != a)) ? a : b;
    return a == b ? flm__double(flm__bits64(a) & flm__bits64(b)) : m;
}

FLM double flm_minimum_f64(double a, double b) {
    double m = ((a < b) | (a != a)) ? a : b;
    return a == b ? flm__double(flm__bits64(a) | flm__bits64(b)) : m;
}

FLM double flm_rint_f64(double x) {
    double a = fabs(x), r = (a + 4503599627370496.0) - 4503599627370496.0;
    return a < 4503599627370496.0 ? copysign(r, x) : x;
}

FLM double flm_floor_f64(double x) {
    double r = flm_rint_f64(x);
    return r > x ? r - 1.0 : r;
}

FLM double flm_remainder_f64(double a, double b) {
    double r = fmod(a, b);
    return ((r != 0.0) & ((r < 0.0) != (b < 0.0))) ? r + b : r;
}

/* >>i64: sums and products wrap by way of uint64_t */

FLM int64_t flm_add_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
FLM int64_t flm_sub_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
FLM int64_t flm_mul_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
FLM int64_t flm_neg_i64(int64_t a) { return (int64_t)(0 - (uint64_t)a); }
FLM int64_t flm_abs_i64(int64_t a) { return a < 0 ? flm_neg_i64(a) : a; }
FLM int64_t flm_maximum_i64(int64_t a, int64_t b) { return a > b ? a : b; }
FLM int64_t flm_minimum_i64(int64_t a, int64_t b) { return a < b ? a : b; }
FLM int64_t flm_floor_i64(int64_t a) { return a; }
FLM int64_t flm_rint_i64(int64_t a) { return a; }
FLM int64_t flm_bitwise_and_i64(int64_t a, int64_t b) { return a & b; }
FLM int64_t flm_bitwise_or_i64(int64_t a, int64_t b) { return a | b; }
FLM int64_t flm_bitwise_xor_i64(int64_t a, int64_t b) { return a ^ b; }
FLM int64_t flm_bitwise_not_i64(int64_t a) { return ~a; }

/* A shift by 64 or more leaves nothing of a; a negative one counts as such. */
FLM int64_t flm_shift_left_i64(int64_t a, int64_t n) {
    return (uint64_t)n < 64 ? (int64_t)((uint64_t)a << ((uint64_t)n & 63)) : 0;
}
FLM int64_t flm_shift_right_i64(int64_t a, int64_t n) {
    return (uint64_t)n < 64 ? a >> n : 0;
}

/* Rounds down, so that FLOOR(DIV(a, b)) is floor_divide for integers too; 0 for b = 0. */
FLM int64_t flm_div_i64(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return flm_neg_i64(a);
    return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}

FLM int64_t flm_remainder_i64(int64_t a, int64_t b) {
    int64_t r;
    if (b == 0 || b == -1) return 0;
    r = a % b;
    return ((r != 0) & ((r < 0) != (b < 0))) ? r + b : r;
}

/* Wraps; a negative exponent gives 0 unless a is 1 or -1. */
FLM int64_t flm_pow_i64(int64_t a, int64_t n) {
    uint64_t x = (uint64_t)a, y = 1, k = (uint64_t)n;
    if (n < 0) return a == 1 ? 1 : a == -1 ? 1 - 2 * (int64_t)(k & 1) : 0;
    for (; k; k >>= 1, x *= x)
        if (k & 1) y *= x;
    return (int64_t)y;
}

/* >>b8: add is or, mul and div are and; a shift is that of the integer, where 2 is as true as 1 */

FLM uint8_t flm_add_b8(uint8_t a, uint8_t b) { return a | b; }
FLM uint8_t flm_mul_b8(uint8_t a, uint8_t b) { return a & b; }
FLM uint8_t flm_div_b8(uint8_t a, uint8_t b) { return a & b; }
FLM uint8_t flm_maximum_b8(uint8_t a, uint8_t b) { return a | b; }
FLM uint8_t flm_minimum_b8(uint8_t a, uint8_t b) { return a & b; }
FLM uint8_t flm_bitwise_and_b8(uint8_t a, uint8_t b) { return a & b; }
FLM uint8_t flm_bitwise_or_b8(uint8_t a, uint8_t b) { return a | b; }
FLM uint8_t flm_bitwise_xor_b8(uint8_t a, uint8_t b) { return a ^ b; }
FLM uint8_t flm_bitwise_not_b8(uint8_t a) { return 1 ^ a; }
FLM uint8_t flm_shift_left_b8(uint8_t a, uint8_t n) { return (void)n, a; }
FLM uint8_t flm_shift_right_b8(uint8_t a, uint8_t n) { return a & (1 ^ n); }

/* >>casts: from float to integer saturates and NaN gives 0; between integers wraps; to b8 is x
   != 0; to a narrower float rounds to nearest even. f16 and bf16 are held as their bits. */

FLM float flm_bf16_to_f32(uint16_t h) { return flm__float((uint32_t)h << 16); }

/* NaN keeps its sign and upper bits, and stays one. */
FLM uint16_t flm_f32_to_bf16(float x) {
    uint32_t u = flm__bits32(x);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : u >> 16 | 0x40);
}

/* The exponent moves by multiplication with 2^112, which makes denormals normal; infinity and NaN
   would land at 2^16 and above. */
FLM float flm_f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float scaled = flm__float(magnitude) * 0x1p112f;
    uint32_t special = magnitude | 0x7f800000u;
    return flm__float(sign | (magnitude >= 0x7c00u << 13 ? special : flm__bits32(scaled)));
}

/* Normal numbers round in integer arithmetic; denormals by adding 0.5, whose last place is that of
   the smallest f16. */
FLM uint16_t flm_f32_to_f16(float x) {
    uint32_t u = flm__bits32(x), sign = u >> 16 & 0x8000, m = u & 0x7fffffff;
    uint32_t normal = (m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t denormal = flm__bits32(flm__float(m) + 0.5f) - 0x3f000000u;
    uint32_t finite = m < 0x38800000u ? denormal : m >= 0x477ff000u ? 0x7c00u : normal;
    uint32_t nan = 0x7e00u | (m >> 13 & 0x3ff);
    return (uint16_t)(sign | (m > 0x7f800000u ? nan : finite));
}

/* Casts from the dtypes that ops compute in to all: X(name, C type, minimum, maximum, the power of
   two above it). The way back is C's conversion; u64 to float must not pass through i64. */
#define FLM__INTEGERS(X, ...)                                                                      \
    X(u8, uint8_t, 0, UINT8_MAX, 0x1p8, __VA_ARGS__)                                               \
    X(i8, int8_t, INT8_MIN, INT8_MAX, 0x1p7, __VA_ARGS__)                                          \
    X(i16, int16_t, INT16_MIN, INT16_MAX, 0x1p15, __VA_ARGS__)                                     \
    X(i32, int32_t, INT32_MIN, INT32_MAX, 0x1p31, __VA_ARGS__)                                     \
    X(i64, int64_t, INT64_MIN, INT64_MAX, 0x1p63, __VA_ARGS__)                                     \
    X(u16, uint16_t, 0, UINT16_MAX, 0x1p16, __VA_ARGS__)                                           \
    X(u32, uint32_t, 0, UINT32_MAX, 0x1p32, __VA_ARGS__)                                           \
    X(u64, uint64_t, 0, UINT64_MAX, 0x1p64, __VA_ARGS__)
#define FLM__SATURATE(t, T, min, max, above, s, S)                                                 \
    FLM T flm_##s##_to_##t(S x) {                                                                  \
        return x >= (S)above ? max : x > (S)min ? (T)x : x == x ? min : 0;                         \
    }
#define FLM__WRAP(t, T, min, max, above, s, S)                                                     \
    FLM T flm_##s##_to_##t(S x) { return (T)x; }
#define FLM__CAST(s, S, t, T)                                                                      \
    FLM T flm_##s##_to_##t(S x) { return (T)x; }
#define FLM__HALVES(s, S)                                                                          \
    FLM uint16_t flm_##s##_to_f16(S x) { return flm_f32_to_f16((float)x); }                        \
    FLM uint16_t flm_##s##_to_bf16(S x) { return flm_f32_to_bf16((float)x); }
#define FLM__TO_B8(s, S)                                                                           \
    FLM uint8_t flm_##s##_to_b8(S x) { return x != 0; }

FLM__INTEGERS(FLM__SATURATE, f32, float)
FLM__INTEGERS(FLM__SATURATE, f64, double)
FLM__INTEGERS(FLM__WRAP, i64, int64_t)
FLM__INTEGERS(FLM__WRAP, b8, uint8_t)
FLM__CAST(f32, float, f32, float)
FLM__CAST(f32, float, f64, double)
FLM__CAST(f64, double, f32, float)
FLM__CAST(f64, double, f64, double)
FLM__CAST(i64, int64_t, f32, float)
FLM__CAST(i64, int64_t, f64, double)
FLM__CAST(b8, uint8_t, f32, float)
FLM__CAST(b8, uint8_t, f64, double)
FLM__CAST(u64, uint64_t, f32, float)
FLM__CAST(u64, uint64_t, f64, double)
FLM__HALVES(f64, double)
FLM__HALVES(u64, uint64_t)
FLM__HALVES(i64, int64_t)
FLM__HALVES(b8, uint8_t)
FLM__TO_B8(f32, float)
FLM__TO_B8(f64, double)
FLM__TO_B8(i64, int64_t)
FLM__TO_B8(b8, uint8_t)
#undef FLM__INTEGERS
#undef FLM__SATURATE
#undef FLM__WRAP
#undef FLM__CAST
#undef FLM__HALVES
#undef FLM__TO_B8

FLM int64_t flm_num_i64(double k) { return flm_f64_to_i64(k); }
FLM uint8_t flm_num_b8(double k) { return k != 0; }

/* >>random: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
   2011). Four words are a function of (key, stream, counter) alone, so any element of any
   sequence may be computed by anyone. */

FLM void flm_philox_stream(uint64_t key, uint64_t stream, uint64_t counter, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

FLM void flm_philox(uint64_t key, uint64_t counter, uint32_t out[4]) {
    flm_philox_stream(key, 0, counter, out);
}

/* [0, 1) in steps of 2^-24 */
FLM float flm_uniform_f32(uint32_t u) { return (float)(int32_t)(u >> 8) * 0x1p-24f; }

/* [0, 1) in steps of 2^-53: 27 bits of u above 26 bits of v */
FLM double flm_uniform_f64(uint32_t u, uint32_t v) {
    return ((double)(int32_t)(u >> 5) * 0x1p26 + (double)(int32_t)(v >> 6)) * 0x1p-53;
}

/* Two independent standard normals (Box-Muller). The radius takes u in (0, 1] with 31 bits:
   |out| < 6.7. The angle needs no reduction: the top two bits of v are its quadrant, the others
   its place within. */
FLM void flm_normal_f32(uint32_t u, uint32_t v, float out[2]) {
    float uniform = (float)(int32_t)(u >> 1) * 0x1p-31f + 0x1p-32f;
    float radius = flm_sqrt_f32(-2.0f * flm_log_f32(uniform));
    double angle = (double)(int32_t)(v << 2) * (0.78539816339744831 * 0x1p-31);
    out[0] = radius * flm__sin_quadrant(angle, (v >> 30) + 1);
    out[1] = radius * flm__sin_quadrant(angle, v >> 30);
}

/* The same from four words: radius from w[0], w[1], angle from w[2], w[3]; |out| < 8.6. */
FLM void flm_normal_f64(const uint32_t w[4], double out[2]) {
    double radius = flm_sqrt_f64(-2.0 * log(1.0 - flm_uniform_f64(w[0], w[1])));
    double angle = flm_uniform_f64(w[2], w[3]) * 6.2831853071795865;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

/* Upper half of a * b */
FLM uint64_t flm__mulhi(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t mid = ah * bl + (al * bl >> 32), low = (uint32_t)mid + al * bh;
    return ah * bh + (mid >> 32) + (low >> 32);
}

/* [0, n) from 64 random bits; the probabilities differ by less than n / 2^64 of their size. 0
   for n = 0. */
FLM uint64_t flm_bounded(uint32_t u, uint32_t v, uint64_t n) {
    return flm__mulhi((uint64_t)u << 32 | v, n);
}

FL_KERNEL_END

#endif /* FL_MATH_H */
/* MIT licence: see LICENSE. */
