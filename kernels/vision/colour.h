/* kernels/vision/colour.h - colours of u8 images, pixel by pixel, for each instruction set

   Every loop is plain: compiled for wide registers it becomes vectors, whose results are the same. */
#ifndef FL_VISION_COLOUR_KERNEL_H
#define FL_VISION_COLOUR_KERNEL_H
#include "../../fl_tensor.h"

/* grey[i] = floor(.2989 R + .587 G + .114 B) of n pixels of c >= 3 channels. */
FL_PRIVATE void fl__colour_grey(const uint8_t *p, int64_t n, int64_t c, float *grey);
/* p = cut(a p + rest other) of n pixels: other[i] of each pixel, or, where step is 0, the one number. */
FL_PRIVATE void fl__colour_blend(uint8_t *p, int64_t n, int64_t c, float a, float rest, const float *other,
                                 int step);
/* Each byte x becomes (x & mask) ^ flip where x >= from, else x & mask. */
FL_PRIVATE void fl__colour_bits(uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from);
/* sum += weight x, of n numbers; and n of them, rounded, as bytes. */
FL_PRIVATE void fl__colour_add(float *sum, const float *x, float weight, int64_t n);
FL_PRIVATE void fl__colour_round(const float *x, int64_t n, uint8_t *to);
/* n pixels of c channels, the last one first. */
FL_PRIVATE void fl__colour_mirror(const uint8_t *p, int64_t n, int64_t c, uint8_t *to);

#endif /* FL_VISION_COLOUR_KERNEL_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_VISION_COLOUR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_COLOUR_IMPL
#define FL_VISION_COLOUR_IMPL
#include "../cpu/common.h"
#include "../cpu/levels.h"
#include <math.h>
#include <string.h>

FL__LOOPS_BEGIN

/* v >= 0 in what is floored: whole numbers of 32 bits do. */
FL__INLINE void fl__colour_grey_any(const uint8_t *p, int64_t n, int64_t c, float *grey) {
    if (c == 3)
        FL__VECTOR for (int64_t i = 0; i < n; i++)
            grey[i] = (float)(int32_t)(0.2989f * (float)p[3 * i] + 0.587f * (float)p[3 * i + 1] +
                                       0.114f * (float)p[3 * i + 2]);
    else
        for (int64_t i = 0; i < n; i++)
            grey[i] = (float)(int32_t)(0.2989f * (float)p[c * i] + 0.587f * (float)p[c * i + 1] +
                                       0.114f * (float)p[c * i + 2]);
}

FL__INLINE uint8_t fl__colour_cut(float v) {
    v = v > 0 ? v : 0;
    return (uint8_t)(int32_t)(v < 255 ? v : 255);
}

FL__INLINE void fl__colour_blend_any(uint8_t *p, int64_t n, int64_t c, float a, float rest,
                                     const float *other, int step) {
    const float one = rest * other[0];
    if (!step)
        FL__VECTOR for (int64_t i = 0; i < n * c; i++) p[i] = fl__colour_cut((float)p[i] * a + one);
    else if (c == 3)
        FL__VECTOR for (int64_t i = 0; i < n; i++) {
            const float with = rest * other[i];
            p[3 * i] = fl__colour_cut((float)p[3 * i] * a + with);
            p[3 * i + 1] = fl__colour_cut((float)p[3 * i + 1] * a + with);
            p[3 * i + 2] = fl__colour_cut((float)p[3 * i + 2] * a + with);
        }
    else
        for (int64_t i = 0; i < n * c; i++) p[i] = fl__colour_cut((float)p[i] * a + rest * other[i / c]);
}

FL__INLINE void fl__colour_bits_any(uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from) {
    FL__VECTOR for (int64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)((p[i] & mask) ^ (p[i] >= from ? flip : 0));
}

FL__INLINE void fl__colour_add_any(float *sum, const float *x, float weight, int64_t n) {
    FL__VECTOR for (int64_t i = 0; i < n; i++) sum[i] += weight * x[i];
}

FL__INLINE void fl__colour_round_any(const float *x, int64_t n, uint8_t *to) {
    FL__VECTOR for (int64_t i = 0; i < n; i++) to[i] = fl__colour_cut(nearbyintf(x[i]));
}

typedef uint8_t fl__colour_u16 __attribute__((vector_size(16)));

/* Five pixels of three channels at once; the sixteenth byte is written again, or by the loop below. */
FL__INLINE void fl__colour_mirror_any(const uint8_t *p, int64_t n, int64_t c, uint8_t *to) {
    int64_t i = 0;
    for (; c == 3 && i + 6 <= n; i += 5) {
        const fl__colour_u16 turn = {13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0};
        fl__colour_u16 v;
        memcpy(&v, p + 3 * (n - i - 5) - 1, 16);
#ifdef __clang__
        v = __builtin_shufflevector(v, v, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
        (void)turn;
#else
        v = __builtin_shuffle(v, turn);
#endif
        memcpy(to + 3 * i, &v, 16);
    }
    for (; i < n; i++)
        for (int64_t k = 0; k < c; k++) to[i * c + k] = p[(n - 1 - i) * c + k];
}

#define FL__COLOUR_AT(level)                                                                               \
    FL__TARGET_##level static void fl__colour_grey_##level(const uint8_t *p, int64_t n, int64_t c,         \
                                                           float *grey) {                                  \
        fl__colour_grey_any(p, n, c, grey);                                                                \
    }                                                                                                      \
    FL__TARGET_##level static void fl__colour_blend_##level(uint8_t *p, int64_t n, int64_t c, float a,     \
                                                            float rest, const float *other, int step) {    \
        fl__colour_blend_any(p, n, c, a, rest, other, step);                                               \
    }                                                                                                      \
    FL__TARGET_##level static void fl__colour_bits_##level(uint8_t *p, int64_t bytes, uint8_t mask,        \
                                                           uint8_t flip, uint8_t from) {                   \
        fl__colour_bits_any(p, bytes, mask, flip, from);                                                   \
    }                                                                                                      \
    FL__TARGET_##level static void fl__colour_add_##level(float *sum, const float *x, float weight,        \
                                                          int64_t n) {                                     \
        fl__colour_add_any(sum, x, weight, n);                                                             \
    }                                                                                                      \
    FL__TARGET_##level static void fl__colour_round_##level(const float *x, int64_t n, uint8_t *to) {      \
        fl__colour_round_any(x, n, to);                                                                    \
    }                                                                                                      \
    FL__TARGET_##level static void fl__colour_mirror_##level(const uint8_t *p, int64_t n, int64_t c,       \
                                                             uint8_t *to) {                                \
        fl__colour_mirror_any(p, n, c, to);                                                                \
    }
FL__EACH_LEVEL(FL__COLOUR_AT)
#undef FL__COLOUR_AT
FL__LOOPS_END

FL_PRIVATE void fl__colour_grey(const uint8_t *p, int64_t n, int64_t c, float *grey) {
    static void (*const at[])(const uint8_t *, int64_t, int64_t, float *) = {FL__AT_LEVELS(fl__colour_grey)};
    at[fl__level()](p, n, c, grey);
}

FL_PRIVATE void fl__colour_blend(uint8_t *p, int64_t n, int64_t c, float a, float rest, const float *other,
                                 int step) {
    static void (*const at[])(uint8_t *, int64_t, int64_t, float, float, const float *,
                              int) = {FL__AT_LEVELS(fl__colour_blend)};
    at[fl__level()](p, n, c, a, rest, other, step);
}

FL_PRIVATE void fl__colour_bits(uint8_t *p, int64_t bytes, uint8_t mask, uint8_t flip, uint8_t from) {
    static void (*const at[])(uint8_t *, int64_t, uint8_t, uint8_t,
                              uint8_t) = {FL__AT_LEVELS(fl__colour_bits)};
    at[fl__level()](p, bytes, mask, flip, from);
}

FL_PRIVATE void fl__colour_add(float *sum, const float *x, float weight, int64_t n) {
    static void (*const at[])(float *, const float *, float, int64_t) = {FL__AT_LEVELS(fl__colour_add)};
    at[fl__level()](sum, x, weight, n);
}

FL_PRIVATE void fl__colour_round(const float *x, int64_t n, uint8_t *to) {
    static void (*const at[])(const float *, int64_t, uint8_t *) = {FL__AT_LEVELS(fl__colour_round)};
    at[fl__level()](x, n, to);
}

FL_PRIVATE void fl__colour_mirror(const uint8_t *p, int64_t n, int64_t c, uint8_t *to) {
    static void (*const at[])(const uint8_t *, int64_t, int64_t,
                              uint8_t *) = {FL__AT_LEVELS(fl__colour_mirror)};
    at[fl__level()](p, n, c, to);
}

#endif
#endif

/* MIT licence: see LICENSE. */
