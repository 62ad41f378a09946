/* kernels/fl_math.h - scalar math for C and CUDA: arithmetic, exp, log, erf, casts, random numbers

   flm_<name>_<t> computes one element: <name> is a name of fl_primitives.h, <t> is f32, f32_fma, f64,
   i64 or b8 (uint8_t, 0 or 1). flm_<from>_to_<to> converts. The f32 functions have no branches, no
   errno and no tables, so that gcc and clang vectorise a loop over them at any ISA level, with the same bits
   as a single call: fused multiply-adds are explicit, every other operation is rounded (contraction is off;
   nvcc needs --fmad=false for that, and clang must not be given -ffp-contract=fast).

   f32_fma is f32 with fused multiply-adds: half the instructions of a polynomial. Only functions compiled for
   an ISA level with FMA may call it; elsewhere each fma is a call of libm. f32 uses FMA too if all code may,
   in CUDA or with -mfma, and multiplies and adds everywhere else.

   Accuracy against the exact value, every f32 tested (tests/test_math.c --all): exp and log within 2 ulp, the
   others within 4. f64 calls libm. Infinities, NaN, -0 and denormals follow IEEE 754; NaN propagates through
   maximum and minimum, for which +0 is above -0. Assumes round to nearest and denormals enabled.

   Integers wrap around. remainder has the divisor's sign, as Python's %. Integer x / 0 and x % 0 are 0
   here; the caller reports the error. Comparisons return int conditions, `where` takes one, and for f32 and
   f64 bitwise_and/or/xor/not combine them: formulas do not use these on floats otherwise.

   Kernels are written between FL_KERNEL_BEGIN and FL_KERNEL_END: the functions here are inlined and compiled
   with the options of their caller.

   Contents: >>arithmetic >>f32 >>f64 >>i64 >>b8 >>casts >>random */
#ifndef FL_MATH_H
#define FL_MATH_H

#ifndef __CUDACC_RTC__ /* NVRTC: cuda/rtc.h comes first */
#include <math.h>
#include <stdint.h>
#include <string.h>
#endif

#ifdef __FAST_MATH__
#error "fl_math.h needs IEEE arithmetic: drop -ffast-math (-Ofast); its safe part is on here anyway"
#endif

/* Options of kernel files, independent of the command line: vectorised loops (gcc's -O2 does not vectorise
   ours; -O3 first transforms some so that it cannot), no errno and no traps, which would prevent it, and no
   contraction. clang's float_control saves the contraction state. With FL_QUICK the command line decides, and
   with FL_KERNEL_OPTIONS it has these options: gcc reads this file in a fourth of the time then. */
#if defined(__CUDACC__)
#define FL_KERNEL_BEGIN
#define FL_KERNEL_END
#define FLM static __host__ __device__ __forceinline__
#elif defined(FL_QUICK)
#define FL_KERNEL_BEGIN
#define FL_KERNEL_END
#define FLM static inline
#elif defined(FL_KERNEL_OPTIONS)
#define FL_KERNEL_BEGIN
#define FL_KERNEL_END
#define FLM static inline __attribute__((always_inline))
#elif defined(__clang__)
#define FL_KERNEL_BEGIN _Pragma("float_control(push)") _Pragma("clang fp contract(off)")
#define FL_KERNEL_END _Pragma("float_control(pop)")
#define FLM static inline __attribute__((always_inline))
#else
#define FL_KERNEL_BEGIN                                                                            \
    _Pragma("GCC push_options")                                                                    \
    _Pragma("GCC optimize(\"O2\", \"tree-vectorize\", \"vect-cost-model=dynamic\", \"unswitch-loops\")") \
    _Pragma("GCC optimize(\"no-trapping-math\", \"no-math-errno\", \"fp-contract=off\")")
#define FL_KERNEL_END _Pragma("GCC pop_options")
#define FLM static inline __attribute__((always_inline))
#endif

/* FL__VECTOR marks loops without loop-carried dependences, whose output may be the same memory as an input.
   Loops that call libm stay scalar, which clang would warn about: kernels with such loops are enclosed in
   FL__LOOPS_BEGIN and FL__LOOPS_END. */
#if defined(__clang__)
#define FL__VECTOR _Pragma("clang loop vectorize(assume_safety)")
#define FL__LOOPS_BEGIN \
    FL_KERNEL_BEGIN     \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wpass-failed\"")
#define FL__LOOPS_END _Pragma("clang diagnostic pop") FL_KERNEL_END
#else
#define FL__VECTOR _Pragma("GCC ivdep")
#define FL__LOOPS_BEGIN FL_KERNEL_BEGIN
#define FL__LOOPS_END FL_KERNEL_END
#endif

FL_KERNEL_BEGIN

/* A square root is vectorised only if it cannot set errno. clang can be told so only on the command line, so
   it gets a const function with sqrt's symbol, which it recognises. gcc recognises the name: a const
   redeclaration. */
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

/* >>arithmetic: single machine operations */

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
FLM__COMPARE(f32_fma, float)
FLM__COMPARE(f64, double)
FLM__COMPARE(i64, int64_t)
FLM__COMPARE(b8, uint8_t)
FLM__REAL(f32, float)
FLM__REAL(f32_fma, float)
FLM__REAL(f64, double)
#undef FLM__COMPARE
#undef FLM__REAL

/* >>f32: flm_<name>_f32 and flm_<name>_f32_fma */

#if defined(__CUDACC__)
#define FLM__FUSED(a, b, c) fmaf(a, b, c)
#define FLM__FUSED64(a, b, c) fma(a, b, c)
#else
#define FLM__FUSED(a, b, c) __builtin_fmaf(a, b, c)
#define FLM__FUSED64(a, b, c) __builtin_fma(a, b, c)
#endif

#define FLM__F(name) flm_##name##_f32
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FLM__FMA FLM__FUSED
#define FLM__FMA64 FLM__FUSED64
#else
#define FLM__FMA(a, b, c) ((a) * (b) + (c))
#define FLM__FMA64(a, b, c) ((a) * (b) + (c))
#endif
#include "fl_math_f32.h"

#define FLM__F(name) flm_##name##_f32_fma
#define FLM__FMA FLM__FUSED
#define FLM__FMA64 FLM__FUSED64
#include "fl_math_f32.h"
#undef FLM__FUSED
#undef FLM__FUSED64

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

/* >>i64: sums and products wrap around, computed as uint64_t */

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

/* Shifts by n < 0 or n >= 64 give 0 to the left, the sign (0 or -1) to the right. */
FLM int64_t flm_shift_left_i64(int64_t a, int64_t n) {
    return (uint64_t)n < 64 ? (int64_t)((uint64_t)a << ((uint64_t)n & 63)) : 0;
}
FLM int64_t flm_shift_right_i64(int64_t a, int64_t n) {
    return a >> ((uint64_t)n < 64 ? n : 63);
}

/* floor(a / b), so that FLOOR(DIV(a, b)) is floor_divide for integers too; 0 for b = 0. */
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

/* a^n, wraps around; a negative exponent gives 0 unless a is 1 or -1. */
FLM int64_t flm_pow_i64(int64_t a, int64_t n) {
    uint64_t x = (uint64_t)a, y = 1, k = (uint64_t)n;
    if (n < 0) return a == 1 ? 1 : a == -1 ? 1 - 2 * (int64_t)(k & 1) : 0;
    for (; k; k >>= 1, x *= x)
        if (k & 1) y *= x;
    return (int64_t)y;
}

/* >>b8: add is or, mul and div are and; shifts are those of the integer, != 0 */

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

/* >>casts: float to integer saturates, NaN gives 0; integer to integer wraps around; to b8 is x != 0; to a
   narrower float rounds to nearest even. f16 and bf16 are represented by their bits. */

FLM float flm_bf16_to_f32(uint16_t h) { return flm__float((uint32_t)h << 16); }

/* A NaN stays a NaN, with its sign and upper bits. */
FLM uint16_t flm_f32_to_bf16(float x) {
    uint32_t u = flm__bits32(x);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : u >> 16 | 0x40);
}

/* Adds 112 to the exponent. Denormals are computed as a difference of normal numbers, because processors are
   slow on denormal operands. */
FLM float flm_f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = magnitude + (112u << 23), special = magnitude | 0x7f800000u;
    uint32_t denormal = flm__bits32(flm__float(magnitude + (113u << 23)) - 0x1p-14f);
    uint32_t finite = magnitude < 1u << 23 ? denormal : normal;
    return flm__float(sign | (magnitude >= 0x7c00u << 13 ? special : finite));
}

/* Normal numbers are rounded in integer arithmetic, denormals by adding 0.5, whose ulp is the smallest
   f16. */
FLM uint16_t flm_f32_to_f16(float x) {
    uint32_t u = flm__bits32(x), sign = u >> 16 & 0x8000, m = u & 0x7fffffff;
    uint32_t normal = (m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t denormal = flm__bits32(flm__float(m) + 0.5f) - 0x3f000000u;
    uint32_t finite = m < 0x38800000u ? denormal : m >= 0x477ff000u ? 0x7c00u : normal;
    uint32_t nan = 0x7e00u | (m >> 13 & 0x3ff);
    return (uint16_t)(sign | (m > 0x7f800000u ? nan : finite));
}

/* Casts from the dtypes that ops compute in to all integers: X(name, C type, minimum, maximum, the power of
   two above it). Casts from them are C's conversions; u64 to float must not pass through i64. */
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
   2011). Four words are a function of (key, stream, counter) alone, so that any element of any sequence can
   be computed independently. */

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
   |out| < 6.7. The angle needs no range reduction: the top two bits of v are its quadrant, the others its
   position in it. */
FLM void flm_normal_f32(uint32_t u, uint32_t v, float out[2]) {
    float uniform = (float)(int32_t)(u >> 1) * 0x1p-31f + 0x1p-32f;
    float radius = flm_sqrt_f32(-2.0f * flm_log_f32(uniform));
    double angle = (double)(int32_t)(v << 2) * (0.78539816339744831 * 0x1p-31);
    out[0] = radius * flm__sin_quadrant_f32(angle, (v >> 30) + 1);
    out[1] = radius * flm__sin_quadrant_f32(angle, v >> 30);
}

/* The same from four words: radius from w[0], w[1], angle from w[2], w[3]; |out| < 8.6. */
FLM void flm_normal_f64(const uint32_t w[4], double out[2]) {
    double radius = flm_sqrt_f64(-2.0 * log(1.0 - flm_uniform_f64(w[0], w[1])));
    double angle = flm_uniform_f64(w[2], w[3]) * 6.2831853071795865;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

/* The upper 64 bits of a * b */
FLM uint64_t flm__mulhi(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t mid = ah * bl + (al * bl >> 32), low = (uint32_t)mid + al * bh;
    return ah * bh + (mid >> 32) + (low >> 32);
}

/* An integer in [0, n) from 64 random bits; 0 for n = 0. The relative bias of a probability is below n /
   2^64. */
FLM uint64_t flm_bounded(uint32_t u, uint32_t v, uint64_t n) {
    return flm__mulhi((uint64_t)u << 32 | v, n);
}

FL_KERNEL_END

#endif /* FL_MATH_H */
/* MIT licence: see LICENSE. */
