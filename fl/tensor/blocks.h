/* fl/tensor/blocks.h - quantised block dtypes: the formats of ggml and GGUF

   Each is a registered dtype (fl_dtype_register), registered by the first call of its function: an element
   is a block of 32 or 256 numbers, and a tensor's last axis counts blocks. fl_cast converts to f32 and,
   where the table says "written", back. fl_matmul and fl_linear accept them as weights.

     fl_tensor *q = fl_cast(w, fl_q4_k());      w f32 [out, in] -> q [out, in / 256]

   A number is computed from its code q, the block's f16 scale d and minimum m, and the integer scales s and
   t of its group of 16 or 32:

     dtype     ggml     numbers  bytes  number        bits
     fl_q8     Q8_0          32     34  d q           q 8                    written
     fl_q4     Q4_0          32     18  d (q - 8)     q 4                    written
     fl_q4_1   Q4_1          32     20  d q + m       q 4
     fl_q5_0   Q5_0          32     22  d (q - 16)    q 5
     fl_q5_1   Q5_1          32     24  d q + m       q 5
     fl_q2_k   Q2_K         256     84  d s q - m t   q 2, s and t 4
     fl_q3_k   Q3_K         256    110  d s (q - 4)   q 3, s 6, signed
     fl_q4_k   Q4_K         256    144  d s q - m t   q 4, s and t 6         written
     fl_q5_k   Q5_K         256    176  d s q - m t   q 5, s and t 6
     fl_q6_k   Q6_K         256    210  d s (q - 32)  q 6, s 8, signed       written
     fl_q8_k   Q8_K         256    292  d q           q 8; d is f32
     fl_iq4_nl IQ4_NL        32     18  d table[q]    q 4
     fl_iq4_xs IQ4_XS       256    136  d s table[q]  q 4, s 6, signed
     fl_mxfp4  MXFP4         32     17  2^e table[q]  q 4, e 8; the table is e2m1's

   Conversion to f32 is bit-identical to ggml's, and so is packing to q8 and q4. Packing to q4_k and q6_k has
   a smaller error than ggml's reference. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_BLOCKS_H
#define FL_TENSOR_BLOCKS_H

#ifdef __cplusplus
extern "C" {
#endif

/* "q8": the scale is max |x| / 127. */
FL_API fl_dtype fl_q8(void);
/* "q4": the number of largest magnitude is mapped to code -8. */
FL_API fl_dtype fl_q4(void);
FL_API fl_dtype fl_q4_1(void);
FL_API fl_dtype fl_q5_0(void);
FL_API fl_dtype fl_q5_1(void);
FL_API fl_dtype fl_q2_k(void);
FL_API fl_dtype fl_q3_k(void);
FL_API fl_dtype fl_q4_k(void);
FL_API fl_dtype fl_q5_k(void);
FL_API fl_dtype fl_q6_k(void);
FL_API fl_dtype fl_q8_k(void);
FL_API fl_dtype fl_iq4_nl(void);
FL_API fl_dtype fl_iq4_xs(void);
FL_API fl_dtype fl_mxfp4(void);

/* Unpacks the 6-bit s and t of the eight groups of a block of q4_k or q5_k from 12 bytes: the upper two bits
   of groups 4 to 7 are in the bytes of groups 0 to 3. */
FL_PRIVATE void fl__k_scales(const uint8_t *from, uint8_t s[8], uint8_t t[8]);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_BLOCKS_H */

#if defined(FL_IMPL_ONLY_TENSOR_BLOCKS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_BLOCKS_IMPL
#define FL_TENSOR_BLOCKS_IMPL
#include "../../kernels/fl_math.h"
#include <math.h>
#include <string.h>
FL_KERNEL_BEGIN

/* Load an unaligned f16 or f32. */
static float fl__block_f16(const void *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return flm_f16_to_f32(half);
}

static float fl__block_f32(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* ---- blocks of 32: low nibbles are numbers 0 to 15, high nibbles 16 to 31 ---- */

/* Stores d as f16, clamped to its range so that numbers saturate; returns the stored value. */
static float fl__put_scale(void *to, float d) {
    const uint16_t half = flm_f32_to_f16(d > 65504 ? 65504 : d < -65504 ? -65504 : d);
    memcpy(to, &half, sizeof half);
    return flm_f16_to_f32(half);
}

/* Rounds half away from 0, using the scale before its rounding to f16, as ggml does. NaN counts as 0. */
static void fl__q8_pack(const float *x, void *blocks, int64_t n) {
    int8_t *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, to += 34) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        const float d = most / 127 > 65504 ? 65504 : most / 127, by = d > 0 ? 1 / d : 0;
        fl__put_scale(to, d);
        for (int i = 0; i < 32; i++) {
            const float v = fabsf(x[i] * by), size = v > 127 ? 127 : v == v ? v : 0;
            const int whole = (int)size, q = whole + (size - (float)whole >= 0.5f);
            to[2 + i] = (int8_t)(x[i] < 0 ? -q : q);
        }
    }
}

static void fl__q8_unpack(const void *blocks, float *x, int64_t n) {
    const int8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 34) {
        const float d = fl__block_f16(from);
        for (int i = 0; i < 32; i++) x[i] = d * (float)from[2 + i];
    }
}

static int fl__q4_code(float x, float by) {
    const float v = x * by + 8.5f;
    return v >= 15 ? 15 : v > 0 ? (int)v : 0;
}

static void fl__q4_pack(const float *x, void *blocks, int64_t n) {
    uint8_t *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, to += 18) {
        float top = 0; /* the number of largest magnitude, with its sign, is mapped to -8 */
        for (int i = 0; i < 32; i++)
            if (fabsf(x[i]) > fabsf(top)) top = x[i];
        const float scale = top / -8, by = scale != 0 ? 1 / scale : 0;
        fl__put_scale(to, scale);
        for (int i = 0; i < 16; i++)
            to[2 + i] = (uint8_t)(fl__q4_code(x[i], by) | fl__q4_code(x[16 + i], by) << 4);
    }
}

static void fl__q4_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 18) {
        const float d = fl__block_f16(from);
        for (int i = 0; i < 16; i++) x[i] = (float)((from[2 + i] & 15) - 8) * d;
        for (int i = 0; i < 16; i++) x[16 + i] = (float)((from[2 + i] >> 4) - 8) * d;
    }
}

static void fl__q4_1_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 20) {
        const float d = fl__block_f16(from), m = fl__block_f16(from + 2);
        for (int i = 0; i < 16; i++) x[i] = (float)(from[4 + i] & 15) * d + m;
        for (int i = 0; i < 16; i++) x[16 + i] = (float)(from[4 + i] >> 4) * d + m;
    }
}

/* Expands bit i of four bytes to 16 or 0 in byte i, eight at a time within a 64-bit word. */
static void fl__fifth_bits(const uint8_t *bits, uint8_t fifth[32]) {
    for (int i = 0; i < 4; i++) {
        const uint64_t one = bits[i] * 0x0101010101010101u & 0x8040201008040201u;
        const uint64_t is = (one + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
        memcpy(fifth + 8 * i, &is, 8);
    }
}

static void fl__q5_0_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    uint8_t fifth[32];
    for (int64_t b = 0; b < n; b++, x += 32, from += 22) {
        const float d = fl__block_f16(from);
        fl__fifth_bits(from + 2, fifth);
        for (int i = 0; i < 16; i++) x[i] = (float)(((from[6 + i] & 15) | fifth[i]) - 16) * d;
        for (int i = 0; i < 16; i++) x[16 + i] = (float)((from[6 + i] >> 4 | fifth[16 + i]) - 16) * d;
    }
}

static void fl__q5_1_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    uint8_t fifth[32];
    for (int64_t b = 0; b < n; b++, x += 32, from += 24) {
        const float d = fl__block_f16(from), m = fl__block_f16(from + 2);
        fl__fifth_bits(from + 4, fifth);
        for (int i = 0; i < 16; i++) x[i] = (float)((from[8 + i] & 15) | fifth[i]) * d + m;
        for (int i = 0; i < 16; i++) x[16 + i] = (float)(from[8 + i] >> 4 | fifth[16 + i]) * d + m;
    }
}

/* Table lookup of 32 4-bit codes in 16 bytes. */
static void fl__unpack_table(const uint8_t *from, const float table[16], float d, float *x) {
    for (int i = 0; i < 16; i++) x[i] = table[from[i] & 15] * d;
    for (int i = 0; i < 16; i++) x[16 + i] = table[from[i] >> 4] * d;
}

static const float fl__iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

static void fl__iq4_nl_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 18)
        fl__unpack_table(from + 2, fl__iq4_table, fl__block_f16(from), x);
}

/* The table is e2m1's times 2, so d is 2^(e - 128). */
static void fl__mxfp4_unpack(const void *blocks, float *x, int64_t n) {
    static const float table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 17) {
        const uint32_t e = *from, bits = e < 2 ? UINT32_C(0x200000) << e : (e - 1) << 23;
        fl__unpack_table(from + 1, table, fl__block_f32(&bits), x);
    }
}

/* ---- blocks of 256 ---- */

/* layout: scales 16 bytes (s low, t high nibble), codes 64, d, m */
static void fl__q2_k_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, from += 84) {
        const float d = fl__block_f16(from + 80), m = fl__block_f16(from + 82);
        for (int g = 0; g < 16; g++, x += 16) {
            const uint8_t *q = from + 16 + g / 8 * 32 + g % 2 * 16;
            const int shift = g % 8 / 2 * 2;
            const float scale = d * (float)(from[g] & 15), low = m * (float)(from[g] >> 4);
            for (int i = 0; i < 16; i++) x[i] = scale * (float)(q[i] >> shift & 3) - low;
        }
    }
}

/* layout: third bits 32 bytes (number i in bit i / 32; 0 subtracts 4), codes 64, scales 12, d */
static void fl__q3_k_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, from += 110) {
        const float d = fl__block_f16(from + 108);
        const uint8_t *s = from + 96;
        for (int g = 0; g < 16; g++, x += 16) {
            const uint8_t *q = from + 32 + g / 8 * 32 + g % 2 * 16, *third = from + g % 2 * 16;
            const int shift = g % 8 / 2 * 2, bit = g / 2;
            const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high = s[8 + g % 4] >> g / 4 * 2 & 3;
            const float scale = d * (float)((low | high << 4) - 32);
            for (int i = 0; i < 16; i++)
                x[i] = scale * (float)(((q[i] >> shift & 3) | (third[i] >> bit & 1) << 2) - 4);
        }
    }
}

FL_PRIVATE void fl__k_scales(const uint8_t *from, uint8_t s[8], uint8_t t[8]) {
    for (int g = 0; g < 4; g++) {
        s[g] = from[g] & 63, t[g] = from[4 + g] & 63;
        s[4 + g] = (uint8_t)((from[8 + g] & 15) | from[g] >> 6 << 4);
        t[4 + g] = (uint8_t)(from[8 + g] >> 4 | from[4 + g] >> 6 << 4);
    }
}

/* layout: d, m, scales 12 bytes, codes 128: low nibbles are a group of 32, high nibbles the next */
static void fl__q4_k_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    uint8_t s[8], t[8];
    for (int64_t b = 0; b < n; b++, from += 144) {
        const float d = fl__block_f16(from), m = fl__block_f16(from + 2);
        fl__k_scales(from + 4, s, t);
        for (int g = 0; g < 8; g++, x += 32) {
            const uint8_t *q = from + 16 + g / 2 * 32;
            const float scale = d * (float)s[g], low = m * (float)t[g];
            const int shift = g % 2 * 4;
            for (int i = 0; i < 32; i++) x[i] = scale * (float)(q[i] >> shift & 15) - low;
        }
    }
}

/* layout: as q4_k, with fifth bits, 32 bytes, before the codes: group g in bit g */
static void fl__q5_k_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    uint8_t s[8], t[8];
    for (int64_t b = 0; b < n; b++, from += 176) {
        const float d = fl__block_f16(from), m = fl__block_f16(from + 2);
        fl__k_scales(from + 4, s, t);
        for (int g = 0; g < 8; g++, x += 32) {
            const uint8_t *fifth = from + 16, *q = from + 48 + g / 2 * 32;
            const float scale = d * (float)s[g], low = m * (float)t[g];
            const int shift = g % 2 * 4;
            for (int i = 0; i < 32; i++)
                x[i] = scale * (float)((q[i] >> shift & 15) | (fifth[i] >> g & 1) << 4) - low;
        }
    }
}

/* layout: low four bits of codes 128 bytes, upper two bits 64, scales 16, d */
static void fl__q6_k_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, from += 210) {
        const float d = fl__block_f16(from + 208);
        for (int g = 0; g < 16; g++, x += 16) {
            const uint8_t *q = from + g / 8 * 64 + g % 4 * 16, *upper = from + 128 + g / 8 * 32 + g % 2 * 16;
            const int shift = g % 8 / 4 * 4, two = g % 8 / 2 * 2;
            const float scale = d * (float)(int8_t)from[192 + g];
            for (int i = 0; i < 16; i++)
                x[i] = scale * (float)(((q[i] >> shift & 15) | (upper[i] >> two & 3) << 4) - 32);
        }
    }
}

/* layout: d, codes 256 bytes, sums of 16 codes each for products (not read) */
static void fl__q8_k_unpack(const void *blocks, float *x, int64_t n) {
    const int8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 256, from += 292) {
        const float d = fl__block_f32(from);
        for (int i = 0; i < 256; i++) x[i] = d * (float)from[4 + i];
    }
}

/* layout: d, upper two bits of eight scales 2 bytes, lower four bits 4 bytes, codes 128 */
static void fl__iq4_xs_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, from += 136) {
        const float d = fl__block_f16(from);
        for (int g = 0; g < 8; g++, x += 32) {
            const int low = from[4 + g / 2] >> g % 2 * 4 & 15, high = from[2 + g / 4] >> g % 4 * 2 & 3;
            fl__unpack_table(from + 8 + 16 * g, fl__iq4_table, d * (float)((low | high << 4) - 32), x);
        }
    }
}

/* ---- packing blocks of 256 ----

   For each group, a search over scales near that of the group's range determines codes, and weighted least
   squares the best scale for them. After the scales are rounded to integers, their neighbours are tried too.
   Eight groups are processed at a time, interleaved, so that the loops over them are vectorised. */

typedef float fl__eight[8]; /* one value per group, of eight groups */

static float fl__code(float x, float low, float high) {
    x = flm_rint_f32(x);
    return x < low ? low : x > high ? high : x;
}

/* Loads eight groups of n numbers, each divided by its largest magnitude, `most`. NaN counts as 0,
   magnitudes are clamped to 2^27, and a group without magnitudes above 1e-30 becomes zeros. */
static void fl__load_groups(const float *x, int n, fl__eight *y, fl__eight most) {
    for (int g = 0; g < 8; g++) most[g] = 0;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < 8; g++) {
            const float v = x[g * n + i], size = fabsf(v) > 0x1p27f ? 0x1p27f : fabsf(v);
            y[i][g] = v != v ? 0 : v < 0 ? -size : size;
            most[g] = size > most[g] ? size : most[g];
        }
    for (int i = 0; i < n; i++)
        for (int g = 0; g < 8; g++) y[i][g] = most[g] > 1e-30f ? y[i][g] / most[g] : 0;
}

/* For eight groups of 32: scale and low >= 0 that minimise the sum of w (scale q - low - y)^2, q in [0,
   15]. */
static void fl__fit_q4_k(fl__eight *y, fl__eight *w, fl__eight scale, fl__eight low) {
    fl__eight min = {0}, max, best, all = {0}, x = {0};
    for (int g = 0; g < 8; g++) max[g] = -1, best[g] = INFINITY;
    for (int i = 0; i < 32; i++)
        for (int g = 0; g < 8; g++) {
            min[g] = y[i][g] < min[g] ? y[i][g] : min[g], max[g] = y[i][g] > max[g] ? y[i][g] : max[g];
            all[g] += w[i][g], x[g] += w[i][g] * y[i][g];
        }
    for (int g = 0; g < 8; g++) scale[g] = 0, low[g] = -min[g];
    for (int k = 0; k <= 20; k++) {
        fl__eight at, by, q1 = {0}, q2 = {0}, qx = {0};
        for (int g = 0; g < 8; g++)
            at[g] = low[g], by[g] = max[g] > -at[g] ? (14 + 0.1f * (float)k) / (max[g] + at[g]) : 0;
        for (int i = 0; i < 32; i++)
            for (int g = 0; g < 8; g++) {
                const float q = fl__code(by[g] * (y[i][g] + at[g]), 0, 15), wq = w[i][g] * q;
                q1[g] += wq, q2[g] += wq * q, qx[g] += wq * y[i][g];
            }
        for (int g = 0; g < 8; g++) {
            const float det = all[g] * q2[g] - q1[g] * q1[g];
            float s = (all[g] * qx[g] - x[g] * q1[g]) / det, t = (q1[g] * qx[g] - q2[g] * x[g]) / det;
            if (det <= 1e-5f * all[g] * q2[g] || t < 0) t = 0, s = qx[g] / q2[g]; /* singular (a single
                                                                                     code), or low < 0 */
            const float off = s * s * q2[g] + t * t * all[g] - 2 * (s * t * q1[g] + s * qx[g] - t * x[g]);
            if (q2[g] > 0 && off < best[g]) best[g] = off, scale[g] = s, low[g] = t;
        }
    }
}

static void fl__q4_k_pack(const float *x, void *blocks, int64_t n) {
    uint8_t *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 256, to += 144) {
        fl__eight y[32], w[32], most, s, t, rms = {0}, top = {0};
        fl__load_groups(x, 32, y, most);
        for (int i = 0; i < 32; i++)
            for (int g = 0; g < 8; g++) rms[g] += y[i][g] * y[i][g];
        for (int g = 0; g < 8; g++) rms[g] = sqrtf(rms[g] / 32);
        for (int i = 0; i < 32; i++)
            for (int g = 0; g < 8; g++) w[i][g] = rms[g] + fabsf(y[i][g]);
        fl__fit_q4_k(y, w, s, t);
        for (int g = 0; g < 8; g++) {
            s[g] *= most[g], t[g] *= most[g];
            top[0] = s[g] > top[0] ? s[g] : top[0], top[1] = t[g] > top[1] ? t[g] : top[1];
        }
        const float d = fl__put_scale(to, top[0] / 63), m = fl__put_scale(to + 2, top[1] / 63);
        fl__eight best, ks, kt;
        uint8_t code[32][8], *q = to + 16;
        for (int g = 0; g < 8; g++) best[g] = INFINITY, ks[g] = kt[g] = 0;
        for (int near = 0; near < 9; near++) {
            fl__eight us, ut, a, c, off = {0};
            for (int g = 0; g < 8; g++) {
                us[g] = d > 0 ? fl__code(s[g] / d + (float)(near % 3 - 1), 0, 63) : 0;
                ut[g] = m > 0 ? fl__code(t[g] / m + (float)(near / 3 - 1), 0, 63) : 0;
                a[g] = most[g] > 1e-30f ? d * us[g] / most[g] : 0;
                c[g] = most[g] > 1e-30f ? m * ut[g] / most[g] : 0;
            }
            for (int i = 0; i < 32; i++)
                for (int g = 0; g < 8; g++) {
                    const float v = a[g] > 0 ? fl__code((y[i][g] + c[g]) / a[g], 0, 15) : 0;
                    const float e = a[g] * v - c[g] - y[i][g];
                    off[g] += w[i][g] * e * e;
                }
            for (int g = 0; g < 8; g++)
                if (off[g] < best[g]) best[g] = off[g], ks[g] = us[g], kt[g] = ut[g];
        }
        for (int g = 0; g < 8; g++) {
            const float a = d * ks[g], c = m * kt[g];
            for (int i = 0; i < 32; i++)
                code[i][g] = (uint8_t)(a > 0 ? fl__code((y[i][g] * most[g] + c) / a, 0, 15) : 0);
        }
        for (int g = 0; g < 4; g++) {
            const int s0 = (int)ks[g], s4 = (int)ks[4 + g], t0 = (int)kt[g], t4 = (int)kt[4 + g];
            to[4 + g] = (uint8_t)(s0 | s4 >> 4 << 6), to[8 + g] = (uint8_t)(t0 | t4 >> 4 << 6);
            to[12 + g] = (uint8_t)((s4 & 15) | (t4 & 15) << 4);
        }
        for (int g = 0; g < 8; g += 2, q += 32)
            for (int i = 0; i < 32; i++) q[i] = (uint8_t)(code[i][g] | code[i][g + 1] << 4);
    }
}

/* For eight groups of 16: the scale that minimises the sum of y^2 (scale q - y)^2, q in [-32, 31]. */
static void fl__fit_q6_k(fl__eight *y, fl__eight scale) {
    fl__eight top = {0}, best = {0};
    for (int i = 0; i < 16; i++)
        for (int g = 0; g < 8; g++) top[g] = fabsf(y[i][g]) > fabsf(top[g]) ? y[i][g] : top[g];
    for (int g = 0; g < 8; g++) scale[g] = 0;
    for (int k = -9; k <= 9; k++) {
        fl__eight by, q2 = {0}, qx = {0};
        for (int g = 0; g < 8; g++) by[g] = -(32 + 0.1f * (float)k) * top[g]; /* top is 1 or -1, or 0 for
                                                                                 zeros */
        for (int i = 0; i < 16; i++)
            for (int g = 0; g < 8; g++) {
                const float q = fl__code(by[g] * y[i][g], -32, 31), wq = y[i][g] * y[i][g] * q;
                q2[g] += wq * q, qx[g] += wq * y[i][g];
            }
        for (int g = 0; g < 8; g++)
            if (q2[g] > 0 && qx[g] * qx[g] > best[g] * q2[g])
                best[g] = qx[g] * qx[g] / q2[g], scale[g] = qx[g] / q2[g];
    }
}

static void fl__q6_k_pack(const float *x, void *blocks, int64_t n) {
    uint8_t *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 256, to += 210) {
        fl__eight y[2][16], most[2], s[2];
        float top = 0;
        memset(to, 0, 208);
        for (int h = 0; h < 2; h++) {
            fl__load_groups(x + 128 * h, 16, y[h], most[h]);
            fl__fit_q6_k(y[h], s[h]);
            for (int g = 0; g < 8; g++) {
                s[h][g] *= most[h][g];
                top = fabsf(s[h][g]) > fabsf(top) ? s[h][g] : top;
            }
        }
        const float d = fl__put_scale(to + 208, top / -128);
        for (int h = 0; d != 0 && h < 2; h++) {
            fl__eight best, ks;
            for (int g = 0; g < 8; g++) best[g] = INFINITY, ks[g] = 0;
            for (int near = -1; near < 2; near++) {
                fl__eight us, a, off = {0};
                for (int g = 0; g < 8; g++) {
                    us[g] = fl__code(s[h][g] / d + (float)near, -128, 127);
                    a[g] = most[h][g] > 1e-30f ? d * us[g] / most[h][g] : 0;
                }
                for (int i = 0; i < 16; i++)
                    for (int g = 0; g < 8; g++) {
                        const float v = y[h][i][g], q = a[g] != 0 ? fl__code(v / a[g], -32, 31) : 0;
                        off[g] += v * v * (a[g] * q - v) * (a[g] * q - v);
                    }
                for (int g = 0; g < 8; g++)
                    if (off[g] < best[g]) best[g] = off[g], ks[g] = us[g];
            }
            for (int g = 0; g < 8; g++) {
                uint8_t *low = to + h * 64 + g % 4 * 16, *upper = to + 128 + h * 32 + g % 2 * 16;
                const float a = d * ks[g];
                to[192 + 8 * h + g] = (uint8_t)(int8_t)ks[g];
                for (int i = 0; i < 16; i++) {
                    const int q = 32 + (int)(a != 0 ? fl__code(y[h][i][g] * most[h][g] / a, -32, 31) : 0);
                    low[i] = (uint8_t)(low[i] | (q & 15) << g / 4 * 4);
                    upper[i] = (uint8_t)(upper[i] | q >> 4 << g / 2 * 2);
                }
            }
        }
    }
}

FL_KERNEL_END

/* ---- the dtypes ---- */

#define FL__BLOCKS(fn, name, size, block, unpack, pack)                                  \
    FL_API fl_dtype fn(void) {                                                           \
        return fl_dtype_register(&(fl_dtype_info){name, size, block, unpack, pack});     \
    }
FL__BLOCKS(fl_q8, "q8", 34, 32, fl__q8_unpack, fl__q8_pack)
FL__BLOCKS(fl_q4, "q4", 18, 32, fl__q4_unpack, fl__q4_pack)
FL__BLOCKS(fl_q4_1, "q4_1", 20, 32, fl__q4_1_unpack, NULL)
FL__BLOCKS(fl_q5_0, "q5_0", 22, 32, fl__q5_0_unpack, NULL)
FL__BLOCKS(fl_q5_1, "q5_1", 24, 32, fl__q5_1_unpack, NULL)
FL__BLOCKS(fl_q2_k, "q2_k", 84, 256, fl__q2_k_unpack, NULL)
FL__BLOCKS(fl_q3_k, "q3_k", 110, 256, fl__q3_k_unpack, NULL)
FL__BLOCKS(fl_q4_k, "q4_k", 144, 256, fl__q4_k_unpack, fl__q4_k_pack)
FL__BLOCKS(fl_q5_k, "q5_k", 176, 256, fl__q5_k_unpack, NULL)
FL__BLOCKS(fl_q6_k, "q6_k", 210, 256, fl__q6_k_unpack, fl__q6_k_pack)
FL__BLOCKS(fl_q8_k, "q8_k", 292, 256, fl__q8_k_unpack, NULL)
FL__BLOCKS(fl_iq4_nl, "iq4_nl", 18, 32, fl__iq4_nl_unpack, NULL)
FL__BLOCKS(fl_iq4_xs, "iq4_xs", 136, 256, fl__iq4_xs_unpack, NULL)
FL__BLOCKS(fl_mxfp4, "mxfp4", 17, 32, fl__mxfp4_unpack, NULL)

#endif /* FL_TENSOR_BLOCKS_IMPL */
#endif
/* MIT licence: see LICENSE. */
