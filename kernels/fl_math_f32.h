/* kernels/fl_math_f32.h - the f32 functions of fl_math.h, included once with and once without FMA

   fl_math.h defines before each include, and this file undefines at its end,
     FLM__F(name)        the name with its prefix and suffix
     FLM__FMA(a, b, c)   a b + c in float, FLM__FMA64(a, b, c) in double */

FLM float FLM__F(abs)(float x) { return fabsf(x); }
FLM float FLM__F(sqrt)(float x) { return flm__libm_sqrtf(x); }

/* Equal operands differ at most in the sign of a zero: the bitwise and gives +0, the bitwise or -0. */
FLM float FLM__F(maximum)(float a, float b) {
    float m = ((a > b) | (a != a)) ? a : b;
    return a == b ? flm__float(flm__bits32(a) & flm__bits32(b)) : m;
}

FLM float FLM__F(minimum)(float a, float b) {
    float m = ((a < b) | (a != a)) ? a : b;
    return a == b ? flm__float(flm__bits32(a) | flm__bits32(b)) : m;
}

/* Adding 2^23 leaves no bits for a fraction. */
FLM float FLM__F(rint)(float x) {
    float a = fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    return a < 8388608.0f ? copysignf(r, x) : x;
}

FLM float FLM__F(floor)(float x) {
    float r = FLM__F(rint)(x);
    return r > x ? r - 1.0f : r;
}

/* a - n b with n = floor(a / b), exact except for the last addition */
FLM float FLM__F(remainder)(float a, float b) {
    float r = fmodf(a, b);
    return ((r != 0.0f) & ((r < 0.0f) != (b < 0.0f))) ? r + b : r;
}

/* x = n ln 2 + r, |r| <= ln 2 / 2. The magic addend 1.5 * 2^23 rounds to an integer and leaves
   n + bias in the low bits of *n. ln 2 is split in two parts: n times the upper one is exact. For NaN n is
   arbitrary, and r is NaN. */
FLM float FLM__F(_split_ln2)(float x, float bias, uint32_t *n) {
    float t = FLM__FMA(x, 1.44269504f, 12582912.0f + bias), k = t - (12582912.0f + bias);
    *n = flm__bits32(t);
    return FLM__FMA(k, 2.12194440e-4f, FLM__FMA(k, -0.693359375f, x));
}

/* e^r - 1 for |r| <= ln 2 / 2: r + r^2 P(r), with the two halves of P evaluated in parallel */
FLM float FLM__F(_expm1_poly)(float r) {
    float z = r * r, lo = FLM__FMA(1.66665211e-1f, r, 4.99999940e-1f);
    float hi = FLM__FMA(8.36870074e-3f, r, 4.16682884e-2f);
    hi = FLM__FMA(1.38189073e-3f, z, hi);
    return FLM__FMA(FLM__FMA(hi, z, lo), z, r);
}

/* 2^n as two factors, so that the product reaches infinity and rounds at most once in the denormals; their
   biased exponents are the halves of n + 254. */
FLM float FLM__F(exp)(float x) {
    uint32_t n, half;
    float r, scale;
    x = x < -104.5f ? -104.5f : x;
    x = x > 89.0f ? 89.0f : x;
    r = FLM__F(_split_ln2)(x, 254.0f, &n);
    half = n >> 1;
    scale = flm__float(half << 23);
    return FLM__FMA(scale, FLM__F(_expm1_poly)(r), scale) * flm__float((n - half) << 23);
}

/* e^x for softmax weights, x at most slightly above 0: 0 below -126.5 ln 2, where n + 127 is 0, because
   denormals cost a hundred times as much. */
FLM float FLM__F(exp_share)(float x) {
    uint32_t n;
    float r = FLM__F(_split_ln2)(x < -88.0f ? -88.0f : x, 127.0f, &n), scale = flm__float(n << 23);
    return FLM__FMA(scale, FLM__F(_expm1_poly)(r), scale);
}

/* one (e^x - 1) for x >= -18 and one = 2^(bias - 127), as s (e^r - 1) + (s - one) with s = one 2^n */
FLM float FLM__F(_expm1_scaled)(float x, float one, float bias) {
    uint32_t n;
    float r = FLM__F(_split_ln2)(x, bias, &n), scale = flm__float(n << 23);
    return FLM__FMA(scale, FLM__F(_expm1_poly)(r), scale - one);
}

/* Computed as twice (e^x - 1) / 2, which overflows late enough; near 0, where that is not exact, e^x - 1 =
   x. */
FLM float FLM__F(expm1)(float x) {
    float y = x < -18.0f ? -18.0f : x;
    y = y > 89.0f ? 89.0f : y;
    y = 2.0f * FLM__F(_expm1_scaled)(y, 0.5f, 126.0f);
    return fabsf(x) < 0x1p-60f ? x : y;
}

/* With t = e^(-2|x|) - 1, tanh |x| = -t / (2 + t): no overflow, no cancellation. */
FLM float FLM__F(tanh)(float x) {
    float t = -2.0f * fabsf(x);
    t = FLM__F(_expm1_scaled)(t < -18.0f ? -18.0f : t, 1.0f, 127.0f);
    return copysignf(t / (2.0f + t), x);
}

/* erf |x| = 1 - e^-q, q = t + t P(t) a fit of -log(erfc t) for t = |x| up to 4, from where on erf is 1 in
   float. P's even and odd terms are evaluated in parallel. */
FLM float FLM__F(_erf_exponent)(float t) {
    float z = t * t, p = 1.18869430e-4f, q = -9.38920402e-6f;
    p = FLM__FMA(p, z, 1.67569821e-3f);
    q = FLM__FMA(q, z, -6.37383084e-4f);
    p = FLM__FMA(p, z, -1.91478208e-2f);
    q = FLM__FMA(q, z, -1.69515130e-4f);
    p = FLM__FMA(p, z, 6.36619568e-1f);
    q = FLM__FMA(q, z, 1.02776304e-1f);
    p = FLM__FMA(FLM__FMA(q, t, p), t, 1.28379166e-1f);
    return FLM__FMA(t, p, t);
}
FLM float FLM__F(erf)(float x) {
    float a = fabsf(x), q = FLM__F(_erf_exponent)(a > 4.0f ? 4.0f : a);
    return copysignf(FLM__F(_expm1_scaled)(-q, 1.0f, 127.0f), x);
}

/* log(2^e (1 + f)), sqrt(1/2) - 1 <= f <= sqrt(2) - 1: f - f^2/2 + f^3 P(f) + e ln 2 */
FLM float FLM__F(_log_core)(float f, float e) {
    float z = f * f, p = 6.91554546e-2f;
    p = FLM__FMA(p, f, -1.17898569e-1f);
    p = FLM__FMA(p, f, 1.18729182e-1f);
    p = FLM__FMA(p, f, -1.23843357e-1f);
    p = FLM__FMA(p, f, 1.42186657e-1f);
    p = FLM__FMA(p, f, -1.66692525e-1f);
    p = FLM__FMA(p, f, 2.00022265e-1f);
    p = FLM__FMA(p, f, -2.49999866e-1f);
    p = FLM__FMA(p, f, 3.33333105e-1f);
    p = FLM__FMA(z * f, p, e * -2.12194440e-4f);
    return FLM__FMA(e, 0.693359375f, f + FLM__FMA(z, -0.5f, p));
}

/* 0x3f3504f3 is sqrt(1/2): after the subtraction the exponent changes there. */
FLM float FLM__F(log)(float x) {
    int tiny = x < 1.17549435e-38f;
    uint32_t u = flm__bits32(tiny ? x * 33554432.0f : x) - 0x3f3504f3u;
    float e = (float)((int32_t)u >> 23) - (tiny ? 25.0f : 0.0f);
    float y = FLM__F(_log_core)(flm__float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, e);
    y = x < INFINITY ? y : x;
    y = x < 0.0f ? NAN : y;
    return x == 0.0f ? -INFINITY : y;
}

/* log(1 + x): c is the rounding error of u = 1 + x (two-sum), added back at the scale of u's mantissa. For e
   = 0 that restores f = x. */
FLM float FLM__F(log1p)(float x) {
    float u = 1.0f + x, b = u - 1.0f, c = (1.0f - (u - b)) + (x - b);
    uint32_t i = flm__bits32(u) - 0x3f3504f3u;
    int32_t e = (int32_t)i >> 23;
    float f = flm__float((i & 0x7fffffu) + 0x3f3504f3u) - 1.0f, y;
    f += x < 1e9f ? c * flm__float((uint32_t)(127 - e) << 23) : 0.0f;
    y = FLM__F(_log_core)(f, (float)e);
    y = x < INFINITY ? y : x;
    y = x < -1.0f ? NAN : y;
    y = x == -1.0f ? -INFINITY : y;
    return x == 0.0f ? x : y;
}

/* t minus a multiple of 4, in [-4, 4]. The magic addend 1.5 * 2^53 rounds to an even number while |t / 4| <
   2^52; above, t itself is a multiple of 4. */
FLM double FLM__F(_mod4)(double t) {
    double k = FLM__FMA64(t, 0.25, 13510798882111488.0) - 13510798882111488.0;
    return fabs(t) < 18014398509481984.0 ? FLM__FMA64(k, -4.0, t) : 0.0;
}

/* sin(r + q pi/2) for |r| <= pi/4 */
FLM float FLM__F(_sin_quadrant)(double r, uint64_t q) {
    double z = r * r, s = 2.7182745248176924e-06, c = 2.4390043098191887e-05, y;
    s = FLM__FMA64(s, z, -1.983933100357565e-04);
    s = FLM__FMA64(s, z, 8.333329374147993e-03);
    s = FLM__FMA64(s, z, -1.6666666641527175e-01);
    s = r * FLM__FMA64(s, z, 1.0);
    c = FLM__FMA64(c, z, -1.3886759568895264e-03);
    c = FLM__FMA64(c, z, 4.1666623194893525e-02);
    c = FLM__FMA64(c, z, -4.9999999724012906e-01);
    c = FLM__FMA64(c, z, 1.0);
    y = q & 1 ? c : s;
    return (float)(q & 2 ? -y : y);
}

/* x = q pi/2 + r, |r| <= pi/4, for every float up to 2^128; NaN for infinity. 2/pi in pieces of 29
   bits: their products with the 24 bits of x are exact. The rounded sum of their residues mod 4 is q (low
   bits), subtracted before the small residues are added, so that no significant bits are lost. */
FLM double FLM__F(_quadrant)(float xf, uint64_t *q) {
    double x = xf, m0 = FLM__F(_mod4)(x * 0x1.45f306d000000p-1);
    double m1 = FLM__F(_mod4)(x * 0x1.9391054000000p-30);
    double m2 = FLM__F(_mod4)(x * 0x1.4fe13ab000000p-59);
    double m3 = FLM__F(_mod4)(x * 0x1.d1f534d000000p-88);
    double m4 = FLM__F(_mod4)(x * 0x1.b81b6c5000000p-117);
    double m5 = FLM__F(_mod4)(x * 0x1.5993c40000000p-148);
    double m6 = FLM__F(_mod4)(x * 0x1.c820ff2000000p-175);
    double t = (m0 + m1 + m2 + m3 + m4 + m5 + m6) + 6755399441055744.0;
    double r = m0 - (t - 6755399441055744.0) + m1 + m2 + m3 + m4 + m5 + m6;
    *q = flm__bits64(t);
    return (r + x * 0.0) * 1.5707963267948966;
}

FLM float FLM__F(sin)(float x) {
    uint64_t q;
    double r = FLM__F(_quadrant)(x, &q);
    return FLM__F(_sin_quadrant)(r, q);
}

FLM float FLM__F(cos)(float x) {
    uint64_t q;
    double r = FLM__F(_quadrant)(x, &q);
    return FLM__F(_sin_quadrant)(r, q + 1);
}

/* log2 a for a > 0, relative error 2^-43. The exponent e is converted to double by the bits of 2^52 + e +
   1024. */
FLM double FLM__F(_log2)(double a) {
    uint64_t u = flm__bits64(a) - 0x3fe6a09e667f3bcdu + ((uint64_t)1024 << 52);
    double e = flm__double((u >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1024.0);
    double m = flm__double((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.28290819154875285;
    p = FLM__FMA64(p, z, 0.3199050991127154);
    p = FLM__FMA64(p, z, 0.41220926796057783);
    p = FLM__FMA64(p, z, 0.5770779421988768);
    p = FLM__FMA64(p, z, 0.9617966941139626);
    p = FLM__FMA64(p, z, 2.8853900817778495);
    return FLM__FMA64(s, p, e);
}

/* 2^p, relative error 2^-34, |p| <= 200 */
FLM double FLM__F(_exp2)(double p) {
    double t = p + 6755399441055744.0, f = p - (t - 6755399441055744.0), y = 1.5201922248720531e-05;
    y = FLM__FMA64(y, f, 1.546929118668644e-04);
    y = FLM__FMA64(y, f, 1.3333922561280112e-03);
    y = FLM__FMA64(y, f, 9.61802725351768e-03);
    y = FLM__FMA64(y, f, 5.550410353449673e-02);
    y = FLM__FMA64(y, f, 2.402265119815887e-01);
    y = FLM__FMA64(y, f, 6.93147180728447e-01);
    y = FLM__FMA64(y, f, 0.9999999999616815);
    return y * flm__double((flm__bits64(t) + 1023) << 52);
}

/* 2^(y log2 |x|) in double, then the special cases of C's pow: signs, zeros, ones, infinities, NaN */
FLM float FLM__F(pow)(float xf, float yf) {
    double x = xf, y = yf, a = fabs(x), half = 0.5 * y, l = FLM__F(_log2)(a), p, r;
    int whole = FLM__F(rint)(yf) == yf, odd = whole & (FLM__F(rint)((float)half) != (float)half);
    l = a < INFINITY ? l : a;
    l = a == 0.0 ? -INFINITY : l;
    p = y * l;
    p = p > 200.0 ? 200.0 : p;
    p = p < -200.0 ? -200.0 : p;
    r = FLM__F(_exp2)(p);
    r = ((a == 1.0) & (y == y)) ? 1.0 : r;
    r = odd ? copysign(r, x) : r;
    r = ((x < 0.0) & (a < INFINITY) & !whole) ? NAN : r;
    return ((y == 0.0) | (x == 1.0)) ? 1.0f : (float)r;
}

/* The angle of the point (x, y) in double: reduced to an octant, |u| <= sqrt(2) - 1, then extended by pi/4,
   pi/2 and pi. */
FLM float FLM__F(atan2)(float yf, float xf) {
    double x = fabs((double)xf), y = fabs((double)yf), hi = x > y ? x : y, lo = x > y ? y : x;
    int both = lo == INFINITY, steep = y > x, left = (int)(flm__bits32(xf) >> 31), mid;
    double u, z, p = -0.04043033696147106;
    lo = both ? 1.0 : lo;
    hi = (both | (hi == 0.0)) ? 1.0 : hi;
    mid = lo > 0.41421356237309503 * hi;
    u = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    z = u * u;
    p = FLM__FMA64(p, z, 0.07135234647464041);
    p = FLM__FMA64(p, z, -0.09028967562110418);
    p = FLM__FMA64(p, z, 0.11107493853432703);
    p = FLM__FMA64(p, z, -0.14285612465275252);
    p = FLM__FMA64(p, z, 0.19999998916690562);
    p = FLM__FMA64(p, z, -0.33333333331439496);
    p = FLM__FMA64(u * z, p, u) + (mid ? 0.78539816339744831 : 0.0);
    p = steep ? 1.5707963267948966 - p : p;
    p = left ? 3.1415926535897931 - p : p;
    return ((xf != xf) | (yf != yf)) ? NAN : copysignf((float)p, yf);
}

#undef FLM__F
#undef FLM__FMA
#undef FLM__FMA64
/* MIT licence: see LICENSE. */
