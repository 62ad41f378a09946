/* kernels/vision/colour.h - colour adjustments of u8 images, compiled for each instruction set

   The loops are scalar C that the compiler vectorises; results are the same at each level. */
#ifndef FL_VISION_COLOUR_KERNEL_H
#define FL_VISION_COLOUR_KERNEL_H
#include "../../fl_mem.h"

/* p = cut(a p + rest) for each byte; cut clamps to [0, 255] and truncates. */
FL_PRIVATE void fl__colour_scale(uint8_t *p, int64_t bytes, float a, float rest);
/* *sum = sum of grey = floor(.2989 R + .587 G + .114 B) over n pixels of c >= 3 channels. */
FL_PRIVATE void fl__colour_grey(const uint8_t *p, int64_t n, int64_t c, int64_t *sum);
/* x = cut(a x + rest grey) for R, G and B of n pixels. */
FL_PRIVATE void fl__colour_saturate(uint8_t *p, int64_t n, int64_t c, float a, float rest);
/* Shifts the hue of n pixels by `shift` of a full circle. */
FL_PRIVATE void fl__colour_hue(uint8_t *p, int64_t n, int64_t c, float shift);
/* Minimum and maximum of each of c channels, 1 to 4. */
FL_PRIVATE void fl__colour_range(const uint8_t *p, int64_t bytes, int64_t c, uint8_t low[4],
                                 uint8_t high[4]);
/* Sharpens a row of `bytes` bytes: x + rest (s - x), s the mean of 3 x 3 pixels with weights 1, centre 5. */
FL_PRIVATE void fl__colour_sharpen(const uint8_t *const row[3], int64_t bytes, int64_t c, float rest,
                                   uint8_t *to);
/* x = (x & mask) ^ flip if x >= from, else x & mask (posterize, solarize, invert). */
FL_PRIVATE void fl__colour_bits(uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from);
/* sum[i] += weight x[i]. */
FL_PRIVATE void fl__colour_add(float *sum, const float *x, float weight, int64_t n);
/* to[i] = x[i] rounded and clamped to a byte. */
FL_PRIVATE void fl__colour_round(const float *x, int64_t n, uint8_t *to);
/* Reverses a row of n pixels of c channels. */
FL_PRIVATE void fl__colour_mirror(const uint8_t *p, int64_t n, int64_t c, uint8_t *to);

#endif /* FL_VISION_COLOUR_KERNEL_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_VISION_COLOUR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_COLOUR_IMPL
#define FL_VISION_COLOUR_IMPL
#include "../cpu/loops.h"
#include <math.h>
#include <string.h>

FL__LOOPS_BEGIN

FL__INLINE uint8_t fl__colour_to_u8(float v) {
    v = v > 0 ? v : 0;
    return (uint8_t)(int32_t)(v < 255 ? v : 255);
}

FL__INLINE void fl__colour_scale_any(uint8_t *p, int64_t bytes, float a, float rest) {
    FL__VECTOR for (int64_t i = 0; i < bytes; i++) p[i] = fl__colour_to_u8((float)p[i] * a + rest);
}

typedef uint8_t fl__colour_u16 __attribute__((vector_size(16)));
#ifdef __clang__
#define FL__COLOUR_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define FL__COLOUR_SHUFFLE(v, ...) __builtin_shuffle(v, (fl__colour_u16){__VA_ARGS__})
#endif

/* Unpacks at most FL__COLOUR_CHUNK pixels to a 32-bit word each, R in its lowest byte, then G, B. Four pixels
   of three channels at once read four bytes more than they use. */
enum { FL__COLOUR_CHUNK = 512, FL__COLOUR_LITTLE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ };
FL__INLINE void fl__colour_unpack(const uint8_t *p, int64_t n, int64_t c, uint32_t *word) {
    int64_t i = 0;
    for (; FL__COLOUR_LITTLE && c == 3 && i + 6 <= n; i += 4) {
        fl__colour_u16 v;
        memcpy(&v, p + 3 * i, 16);
        v = FL__COLOUR_SHUFFLE(v, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
        memcpy(word + i, &v, 16);
    }
    for (; i < n; i++) word[i] = (uint32_t)(p[c * i] | p[c * i + 1] << 8 | p[c * i + 2] << 16);
}

/* The inverse; four pixels at once write four bytes more, which later ones, or the last loop, overwrite. */
FL__INLINE void fl__colour_pack(const uint32_t *word, int64_t n, int64_t c, uint8_t *p) {
    int64_t i = 0;
    for (; FL__COLOUR_LITTLE && c == 3 && i + 6 <= n; i += 4) {
        fl__colour_u16 v;
        memcpy(&v, word + i, 16);
        v = FL__COLOUR_SHUFFLE(v, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
        memcpy(p + 3 * i, &v, 16);
    }
    for (; i < n; i++)
        for (int64_t k = 0; k < 3; k++) p[c * i + k] = (uint8_t)(word[i] >> 8 * k);
}

FL__INLINE float fl__colour_of(uint32_t word, int k) {
    return (float)(int32_t)(word >> 8 * k & 255);
}

FL__INLINE uint32_t fl__colour_join(float r, float g, float b) {
    return (uint32_t)(fl__colour_to_u8(r) | fl__colour_to_u8(g) << 8 | fl__colour_to_u8(b) << 16);
}

/* Truncation is floor here: the value is not negative. */
FL__INLINE int32_t fl__colour_grey_of(uint32_t w) {
    return (int32_t)(0.2989f * fl__colour_of(w, 0) + 0.587f * fl__colour_of(w, 1) +
                     0.114f * fl__colour_of(w, 2));
}

FL__INLINE void fl__colour_grey_any(const uint8_t *p, int64_t n, int64_t c, int64_t *sum) {
    uint32_t word[FL__COLOUR_CHUNK];
    *sum = 0;
    for (int64_t m; n > 0; n -= m, p += m * c) {
        int32_t part = 0;
        fl__colour_unpack(p, m = n < FL__COLOUR_CHUNK ? n : FL__COLOUR_CHUNK, c, word);
        FL__VECTOR for (int64_t i = 0; i < m; i++) part += fl__colour_grey_of(word[i]);
        *sum += part;
    }
}

FL__INLINE void fl__colour_saturate_any(uint8_t *p, int64_t n, int64_t c, float a, float rest) {
    uint32_t word[FL__COLOUR_CHUNK];
    for (int64_t m; n > 0; n -= m, p += m * c) {
        fl__colour_unpack(p, m = n < FL__COLOUR_CHUNK ? n : FL__COLOUR_CHUNK, c, word);
        FL__VECTOR for (int64_t i = 0; i < m; i++) {
            const float with = rest * (float)fl__colour_grey_of(word[i]);
            word[i] = fl__colour_join(fl__colour_of(word[i], 0) * a + with,
                                      fl__colour_of(word[i], 1) * a + with,
                                      fl__colour_of(word[i], 2) * a + with);
        }
        fl__colour_pack(word, m, c, p);
    }
}

/* floor for |v| < 2^31. */
FL__INLINE float fl__colour_floor(float v) {
    const float whole = (float)(int32_t)v;
    return whole > v ? whole - 1 : whole;
}

/* Converts r, g, b in [0, 1] to h, s, v, shifts h and converts back. */
FL__INLINE uint32_t fl__colour_hue_of(uint32_t w, float shift) {
    const float r = fl__colour_of(w, 0) / 255, g = fl__colour_of(w, 1) / 255, b = fl__colour_of(w, 2) / 255;
    const float high_gb = g > b ? g : b, low_gb = g < b ? g : b, most = r > high_gb ? r : high_gb;
    const float range = most - (r < low_gb ? r : low_gb), by = range == 0 ? 1 : range;
    const float s = range / (range == 0 ? 1 : most);
    const float rc = (most - r) / by, gc = (most - g) / by, bc = (most - b) / by;
    float h = (most == r ? bc - gc : most == g ? rc + 2 - bc : gc + 4 - rc) * (1.0f / 6.0f) + 1;
    h = h - fl__colour_floor(h) + shift;
    h -= fl__colour_floor(h);
    const float six = h * 6, part = fl__colour_floor(six), f = six - part, k = part < 6 ? part : 0;
    const float q = (1 - s * f) * most, t = (s * f + (1 - s)) * most, low = (1 - s) * most;
    const float red = k == 0 || k == 5 ? most : k == 1 ? q : k == 4 ? t : low,
                green = k == 1 || k == 2 ? most : k == 3 ? q : k == 0 ? t : low,
                blue = k == 3 || k == 4 ? most : k == 5 ? q : k == 2 ? t : low;
    return fl__colour_join(red * (256.0f - 1e-3f), green * (256.0f - 1e-3f), blue * (256.0f - 1e-3f));
}

FL__INLINE void fl__colour_hue_any(uint8_t *p, int64_t n, int64_t c, float shift) {
    uint32_t word[FL__COLOUR_CHUNK];
    for (int64_t m; n > 0; n -= m, p += m * c) {
        fl__colour_unpack(p, m = n < FL__COLOUR_CHUNK ? n : FL__COLOUR_CHUNK, c, word);
        FL__VECTOR for (int64_t i = 0; i < m; i++) word[i] = fl__colour_hue_of(word[i], shift);
        fl__colour_pack(word, m, c, p);
    }
}

/* 48 lanes side by side: channel k is in lanes k, k + c, ... */
FL__INLINE void fl__colour_range_any(const uint8_t *p, int64_t bytes, int64_t c, uint8_t *low,
                                     uint8_t *high) {
    enum { SIDE = 48 };
    uint8_t least[SIDE], most[SIDE];
    memset(least, 255, SIDE), memset(most, 0, SIDE);
    int64_t i = 0;
    for (; i + SIDE <= bytes; i += SIDE)
        FL__VECTOR for (int k = 0; k < SIDE; k++) {
            const uint8_t v = p[i + k];
            least[k] = v < least[k] ? v : least[k], most[k] = v > most[k] ? v : most[k];
        }
    for (int k = 0; i < bytes; i++, k++)
        least[k] = p[i] < least[k] ? p[i] : least[k], most[k] = p[i] > most[k] ? p[i] : most[k];
    memset(low, 255, 4), memset(high, 0, 4);
    for (int k = 0; k < SIDE; k++) {
        if (least[k] < low[k % c]) low[k % c] = least[k];
        if (most[k] > high[k % c]) high[k % c] = most[k];
    }
}

FL__INLINE void fl__colour_sharpen_any(const uint8_t *const row[3], int64_t bytes, int64_t c, float rest,
                                       uint8_t *to) {
    const uint8_t *u = row[0], *v = row[1], *w = row[2];
    FL__VECTOR for (int64_t i = c; i < bytes - c; i++) {
        const int32_t sum = u[i - c] + u[i] + u[i + c] + v[i - c] + 5 * v[i] + v[i + c] + w[i - c] + w[i] +
                            w[i + c];
        const float old = (float)v[i];
        to[i] = fl__colour_to_u8(old + rest * (nearbyintf((float)sum / 13.0f) - old));
    }
}

FL__INLINE void fl__colour_bits_any(uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from) {
    FL__VECTOR for (int64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)((p[i] & mask) ^ (p[i] >= from ? flip : 0));
}

FL__INLINE void fl__colour_add_any(float *sum, const float *x, float weight, int64_t n) {
    FL__VECTOR for (int64_t i = 0; i < n; i++) sum[i] += weight * x[i];
}

FL__INLINE void fl__colour_round_any(const float *x, int64_t n, uint8_t *to) {
    FL__VECTOR for (int64_t i = 0; i < n; i++) to[i] = fl__colour_to_u8(nearbyintf(x[i]));
}

/* Five pixels of three channels at once; the sixteenth byte is overwritten later. */
FL__INLINE void fl__colour_mirror_any(const uint8_t *p, int64_t n, int64_t c, uint8_t *to) {
    int64_t i = 0;
    for (; c == 3 && i + 6 <= n; i += 5) {
        fl__colour_u16 v;
        memcpy(&v, p + 3 * (n - i - 5) - 1, 16);
        v = FL__COLOUR_SHUFFLE(v, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
        memcpy(to + 3 * i, &v, 16);
    }
    for (; i < n; i++)
        for (int64_t k = 0; k < c; k++) to[i * c + k] = p[(n - 1 - i) * c + k];
}

/* A function for each level, and a dispatcher to the current level. */
#define FL__COLOUR_AT(level, name, params, args)                                                           \
    FL__ON_##level(FL__TARGET_##level static void fl__colour_##name##_##level params {                     \
        fl__colour_##name##_any args;                                                                      \
    })
#define FL__COLOUR(name, params, args)                                     \
    FL__COLOUR_AT(portable, name, params, args)                            \
    FL__COLOUR_AT(avx2, name, params, args)                                \
    FL__COLOUR_AT(avx512, name, params, args)                              \
    FL_PRIVATE void fl__colour_##name params {                             \
        static void(*const at[]) params = {FL__AT_LEVELS(fl__colour_##name)}; \
        at[fl__level()] args;                                              \
    }
FL__COLOUR(scale, (uint8_t *p, int64_t bytes, float a, float rest), (p, bytes, a, rest))
FL__COLOUR(grey, (const uint8_t *p, int64_t n, int64_t c, int64_t *sum), (p, n, c, sum))
FL__COLOUR(saturate, (uint8_t *p, int64_t n, int64_t c, float a, float rest), (p, n, c, a, rest))
FL__COLOUR(hue, (uint8_t *p, int64_t n, int64_t c, float shift), (p, n, c, shift))
FL__COLOUR(range, (const uint8_t *p, int64_t bytes, int64_t c, uint8_t low[4], uint8_t high[4]),
           (p, bytes, c, low, high))
FL__COLOUR(sharpen, (const uint8_t *const row[3], int64_t bytes, int64_t c, float rest, uint8_t *to),
           (row, bytes, c, rest, to))
FL__COLOUR(bits, (uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from),
           (p, bytes, mask, flip, from))
FL__COLOUR(add, (float *sum, const float *x, float weight, int64_t n), (sum, x, weight, n))
FL__COLOUR(round, (const float *x, int64_t n, uint8_t *to), (x, n, to))
FL__COLOUR(mirror, (const uint8_t *p, int64_t n, int64_t c, uint8_t *to), (p, n, c, to))
#undef FL__COLOUR
#undef FL__COLOUR_AT
#undef FL__COLOUR_SHUFFLE
FL__LOOPS_END

#endif
#endif

/* MIT licence: see LICENSE. */
