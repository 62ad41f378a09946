/* examples/research/formats.h - number formats of 4 to 16 bits as dtypes: float8, float6, float4, MX, posit

   A float of few bits has an optional sign, `exponent` bits of exponent, of which `bias` stands for 2^0, and
   `mantissa` bits. With exponent field 0 it has no hidden bit. The formats of FORMATS have the names and the
   rules of the Python package ml_dtypes. MX formats (OCP Microscaling Formats 1.0) are blocks of 32 of them
   with one power of two. A posit (Posit Standard 2022) has an exponent of varying length, in unary.

   Each is a dtype: fl_cast(x, format_dtype(FORMAT_float8_e5m2)) is stored, viewed, cast back, multiplied as
   any other. A new format of a known kind is a line of FORMATS. */
#ifndef FORMATS_H
#define FORMATS_H
#include "../../fl.h"

#include <math.h>
#include <string.h>

/* Which codes of the highest exponent are not numbers. */
typedef enum format_kind {
    FORMAT_IEEE,   /* all: infinities and NaN */
    FORMAT_FN,     /* the highest one is NaN; no infinities */
    FORMAT_FNUZ,   /* none: NaN is the code of -0; no infinities */
    FORMAT_FINITE, /* none: no NaN, no infinities */
    FORMAT_SCALE   /* a power of two: no sign, no 0; the highest one is NaN */
} format_kind;
typedef struct format {
    int exponent, mantissa, bias;
    format_kind kind;
} format;
#define FORMATS(X)                           \
    X(float8_e3m4, 3, 4, 3, IEEE)            \
    X(float8_e4m3, 4, 3, 7, IEEE)            \
    X(float8_e4m3fn, 4, 3, 7, FN)            \
    X(float8_e4m3fnuz, 4, 3, 8, FNUZ)        \
    X(float8_e4m3b11fnuz, 4, 3, 11, FNUZ)    \
    X(float8_e5m2, 5, 2, 15, IEEE)           \
    X(float8_e5m2fnuz, 5, 2, 16, FNUZ)       \
    X(float8_e8m0fnu, 8, 0, 127, SCALE)      \
    X(float6_e2m3fn, 2, 3, 1, FINITE)        \
    X(float6_e3m2fn, 3, 2, 3, FINITE)        \
    X(float4_e2m1fn, 2, 1, 1, FINITE)        \
    X(bfloat16, 8, 7, 127, IEEE)
#define MX_FORMATS(X)                        \
    X(mxfp8_e4m3, float8_e4m3fn, 8)             \
    X(mxfp8_e5m2, float8_e5m2, 8)               \
    X(mxfp6_e2m3, float6_e2m3fn, 6)             \
    X(mxfp6_e3m2, float6_e3m2fn, 6)             \
    X(mxfp4_e2m1, float4_e2m1fn, 4)
enum {
#define FORMAT_INDEX(name, ...) FORMAT_##name,
    FORMATS(FORMAT_INDEX) MX_FORMATS(FORMAT_INDEX)
    FORMAT_posit16, FORMAT_posit16_es1, FORMAT_bfloat16_stochastic, FORMAT_COUNT
};
static const format formats[] = {
#define FORMAT_ROW(name, exponent, mantissa, bias, kind) {exponent, mantissa, bias, FORMAT_##kind},
    FORMATS(FORMAT_ROW)
};

static inline int format_bits(const format *f) {
    return f->exponent + f->mantissa + (f->kind != FORMAT_SCALE);
}

/* The code of the largest number. */
static inline uint32_t format_highest(const format *f) {
    const uint32_t codes = 1u << (f->exponent + f->mantissa);
    if (f->kind == FORMAT_IEEE) return codes - (1u << f->mantissa) - 1;
    return codes - (f->kind == FORMAT_FN || f->kind == FORMAT_SCALE ? 2 : 1);
}

/* The code of x: the nearest, of two the even one, with noise FORMAT_NEAREST. With noise uniform in
   [0, 2^32) up or down at random, so that the mean is x. Too large numbers become infinite, NaN, or the
   largest one, as the kind has them, and the largest one with `clamp`. */
#define FORMAT_NEAREST ((int64_t)-1)
static inline uint32_t format_encode(const format *f, float x, int64_t noise, bool clamp) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    const uint32_t top = 1u << (f->exponent + f->mantissa), sign = word >> 31 ? top : 0;
    const uint32_t highest = format_highest(f), size = word & 0x7fffffff;
    const uint32_t quiet = f->kind == FORMAT_IEEE ? 1u << (f->mantissa - 1) : 0;
    if (f->kind == FORMAT_SCALE && (sign || !size)) return highest + 1;
    if (size > 0x7f800000) /* NaN */
        return f->kind == FORMAT_FINITE ? sign ^ top
               : f->kind == FORMAT_FNUZ ? top : sign | quiet | (highest + 1);
    const int e = (size >> 23 ? (int)(size >> 23) : 1) - 127, to = e < 1 - f->bias ? 1 - f->bias : e;
    const int all = 23 - f->mantissa + to - e, drop = all > 60 ? 60 : all; /* bits that do not fit */
    const uint64_t s = (size & 0x7fffff) | (size >> 23 ? 1u << 23 : 0);
    const uint64_t add = noise < 0    ? (1ull << (drop - 1)) - 1 + (s >> drop & 1)
                         : drop <= 32 ? (uint64_t)noise >> (32 - drop)
                                      : (uint64_t)noise << (drop - 32);
    const uint64_t code = ((uint64_t)(to + f->bias - 1) << f->mantissa) + ((s + add) >> drop);
    if (code <= highest) return (uint32_t)code | (f->kind == FORMAT_FNUZ && !code ? 0 : sign);
    if (clamp || f->kind == FORMAT_FINITE) return sign | highest;
    return f->kind == FORMAT_FNUZ ? top : sign | (highest + 1);
}

static inline float format_decode(const format *f, uint32_t code) {
    const int bits = f->exponent + f->mantissa;
    const uint32_t body = code & ((1u << bits) - 1), m = body & ((1u << f->mantissa) - 1);
    const int e = (int)(body >> f->mantissa);
    const bool negative = f->kind != FORMAT_SCALE && code >> bits & 1;
    float x = ldexpf((float)(e ? m + (1u << f->mantissa) : m), (e ? e : 1) - f->bias - f->mantissa);
    if (f->kind == FORMAT_SCALE) x = ldexpf(1, e - f->bias);
    if (body > format_highest(f)) x = f->kind == FORMAT_IEEE && !m ? INFINITY : NAN;
    if (f->kind == FORMAT_FNUZ && negative && !body) x = NAN;
    return negative ? -x : x;
}

/* ---- posits of 16 bits: sign; k + 1 ones and 0, or -k zeros and 1: 2^(k 2^es); es bits; mantissa ---- */

static inline uint16_t posit_encode(int es, float x) {
    if (x == 0) return 0;
    if (!isfinite(x)) return 0x8000; /* NaR */
    int e;
    const uint64_t fraction = (uint64_t)ldexpf(frexpf(fabsf(x), &e), 24) & 0x7fffff;
    const int k = (e - 1) >> es, low = es + 23, length = (k < 0 ? 1 - k : k + 2) + low;
    const uint64_t rest = (uint64_t)((e - 1) - k * (1 << es)) << 23 | fraction;
    uint64_t code = k < -14 ? 1 : 0x7fff; /* neither 0 nor NaR is the nearest of a number */
    if (k >= -14 && k <= 13) {
        const uint64_t all = (k < 0 ? 1 : (2ull << (k + 1)) - 2) << low | rest;
        const int drop = length - 15;
        code = (all + (1ull << (drop - 1)) - 1 + (all >> drop & 1)) >> drop;
    }
    return (uint16_t)(x < 0 ? -code : code);
}

static inline float posit_decode(int es, uint16_t code) {
    if (!code || code == 0x8000) return code ? NAN : 0;
    const uint32_t body = (code >> 15 ? -(uint32_t)code : code) & 0x7fff, ones = body >> 14;
    int run = 1;
    while (run < 15 && (body >> (14 - run) & 1) == ones) run++;
    const int left = run < 15 ? 14 - run : 0; /* bits after the run and the bit that ends it */
    const int k = ones ? run - 1 : -run, bits = left < es ? left : es, fraction = left - bits;
    const int e = (int)(body >> fraction & ((1u << bits) - 1)) << (es - bits);
    const uint32_t m = (body & ((1u << fraction) - 1)) | 1u << fraction;
    const float x = ldexpf((float)m, k * (1 << es) + e - fraction);
    return code >> 15 ? -x : x;
}

/* ---- MX: a byte of float8_e8m0fnu, then 32 codes, the first in the lowest bits ---- */

enum { MX_BLOCK = 32 };

/* The exponent of the block's power of two: that of the largest number becomes the highest one of f. 128,
   NaN, if a number is infinite or NaN. */
static inline int mx_exponent(const format *f, const float *x) {
    uint32_t word, largest = 0; /* without the sign floats are ordered as integers */
    for (int i = 0; i < MX_BLOCK; i++) {
        memcpy(&word, x + i, sizeof word);
        word &= 0x7fffffff;
        if (word > largest) largest = word;
    }
    float most;
    memcpy(&most, &largest, sizeof most);
    if (!isfinite(most)) return 128;
    const int e = most > 0 ? ilogbf(most) - ((int)(format_highest(f) >> f->mantissa) - f->bias) : -127;
    return e < -127 ? -127 : e;
}

static inline void mx_pack(const format *f, const float *x, void *blocks, int64_t n) {
    const int bits = format_bits(f), bytes = 1 + 4 * bits;
    for (uint8_t *b = blocks; n > 0; n--, b += bytes, x += MX_BLOCK) {
        const int e = mx_exponent(f, x);
        memset(b, 0, (size_t)bytes);
        b[0] = (uint8_t)(e + 127);
        for (int i = 0; i < MX_BLOCK && e < 128; i++) {
            uint8_t *to = b + 1 + i * bits / 8;
            const uint32_t code = format_encode(f, ldexpf(x[i], -e), FORMAT_NEAREST, true) << i * bits % 8;
            to[0] = (uint8_t)(to[0] | code);
            if (code >> 8) to[1] = (uint8_t)(code >> 8);
        }
    }
}

static inline void mx_unpack(const format *f, const void *blocks, float *x, int64_t n) {
    const int bits = format_bits(f), bytes = 1 + 4 * bits;
    for (const uint8_t *b = blocks; n > 0; n--, b += bytes, x += MX_BLOCK)
        for (int i = 0; i < MX_BLOCK; i++) {
            const uint8_t *from = b + 1 + i * bits / 8;
            const int shift = i * bits % 8;
            const uint32_t code = (uint32_t)(from[0] | (shift + bits > 8 ? from[1] << 8 : 0)) >> shift;
            x[i] = b[0] == 255 ? NAN : ldexpf(format_decode(f, code), b[0] - 127);
        }
}

/* ---- dtypes ---- */

/* 32 random bits for element i of what has this key (the last step of murmur3). */
static inline uint32_t format_noise(uint32_t key, uint32_t i) {
    uint32_t h = i * 2654435761u + key * 0x9e3779b9u;
    h = (h ^ h >> 16) * 2246822507u;
    h = (h ^ h >> 13) * 3266489909u;
    return h ^ h >> 16;
}

/* Another one for each cast to bfloat16_stochastic: `pack` is not told which numbers of a tensor it has, so
   noise is a function of this seed, of the number, and of its place among those of one call. */
static uint32_t format_seed = 1;

static inline void format_pack(const format *f, bool stochastic, const float *x, void *codes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, x + i, sizeof word);
        const uint32_t noise = format_noise(format_seed ^ word * 40503u, (uint32_t)i);
        const uint32_t code = format_encode(f, x[i], stochastic ? noise : FORMAT_NEAREST, false);
        if (format_bits(f) > 8) ((uint16_t *)codes)[i] = (uint16_t)code;
        else ((uint8_t *)codes)[i] = (uint8_t)code;
    }
}

/* Of 16 bits is only bfloat16, the upper half of an f32. */
static inline void format_unpack(const format *f, const void *codes, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t word = format_bits(f) > 8 ? (uint32_t)((const uint16_t *)codes)[i] << 16 : 0;
        if (format_bits(f) > 8) memcpy(x + i, &word, sizeof word);
        else x[i] = format_decode(f, ((const uint8_t *)codes)[i]);
    }
}

#define FORMAT_FUNCTIONS(name, pack, unpack)                                     \
    static void name##_pack(const float *x, void *to, int64_t n) { pack; }       \
    static void name##_unpack(const void *from, float *x, int64_t n) { unpack; }
#define FORMAT_PAIR(name, ...)                                                   \
    FORMAT_FUNCTIONS(name, format_pack(&formats[FORMAT_##name], false, x, to, n), \
                     format_unpack(&formats[FORMAT_##name], from, x, n))
#define MX_PAIR(name, of, ...)                                                    \
    FORMAT_FUNCTIONS(name, mx_pack(&formats[FORMAT_##of], x, to, n),             \
                     mx_unpack(&formats[FORMAT_##of], from, x, n))
#define POSIT_PAIR(name, es)                                                                              \
    FORMAT_FUNCTIONS(name, for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = posit_encode(es, x[i]), \
                     for (int64_t i = 0; i < n; i++) x[i] = posit_decode(es, ((const uint16_t *)from)[i]))
FORMATS(FORMAT_PAIR)
MX_FORMATS(MX_PAIR)
POSIT_PAIR(posit16, 2)
POSIT_PAIR(posit16_es1, 1)
FORMAT_FUNCTIONS(bfloat16_stochastic, format_pack(&formats[FORMAT_bfloat16], true, x, to, n),
                 format_unpack(&formats[FORMAT_bfloat16], from, x, n))

/* The dtype of a FORMAT_; FL_DTYPE_NONE after an error. */
static inline fl_dtype format_dtype(int i) {
#define FORMAT_INFO(name, size, block) {#name, size, block, name##_unpack, name##_pack},
#define FORMAT_ENTRY(name, exponent, mantissa, ...) FORMAT_INFO(name, exponent + mantissa > 8 ? 2 : 1, 1)
#define MX_ENTRY(name, of, bits) FORMAT_INFO(name, 1 + 4 * bits, MX_BLOCK)
    static const fl_dtype_info info[] = {
        FORMATS(FORMAT_ENTRY) MX_FORMATS(MX_ENTRY) FORMAT_INFO(posit16, 2, 1) FORMAT_INFO(posit16_es1, 2, 1)
        FORMAT_INFO(bfloat16_stochastic, 2, 1)};
    return fl_dtype_register(&info[i]);
}
#endif
/* MIT licence: see LICENSE. */
