/* kernels/vision/resize.h - images in another size: sums of neighbours by weights, along rows, then columns

   What Pillow computes, bit for bit: weights of 22 fractional bits in 32-bit integers, u8 between passes. */
#ifndef FL_VISION_RESIZE_H
#define FL_VISION_RESIZE_H
#include "../../fl_tensor.h"

/* Output i is the sum over k < n[i] of weight[i * most + k] times input at[i] + k, plus one half, over 2^22,
   clipped. */
typedef struct fl__resize_taps {
    int64_t out, most;
    int32_t *at, *n, *weight;
} fl__resize_taps;

/* Up to FL__RESIZE_ROWS rows of c channels, from_row and to_row bytes apart: each of `to` has taps.out
   pixels. 4 readable bytes stand behind a row. */
enum { FL__RESIZE_ROWS = 4 };
FL_PRIVATE void fl__resize_rows(const uint8_t *from, int64_t from_row, uint8_t *to,
                                int64_t to_row, int64_t rows, int64_t c, const fl__resize_taps *t);
/* Output row i of `bytes` bytes from the rows below each other at `from`, `row` bytes apart; sums: as many
   numbers. */
FL_PRIVATE void fl__resize_column(const uint8_t *from, int64_t row, uint8_t *to, int64_t bytes,
                                  const fl__resize_taps *t, int64_t i, int32_t *sums);

#endif /* FL_VISION_RESIZE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_VISION_RESIZE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_RESIZE_IMPL
#define FL_VISION_RESIZE_IMPL
#include "../cpu/common.h"
#include "../cpu/levels.h"
#include <string.h>

FL__LOOPS_BEGIN

enum { FL__RESIZE_BITS = 22 };

typedef uint8_t fl__resize_u4 __attribute__((vector_size(4)));
typedef int32_t fl__resize_i4 __attribute__((vector_size(16)));

FL__INLINE uint8_t fl__resize_clip(int32_t sum) {
    const int32_t v = sum >> FL__RESIZE_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* A pixel of three or four channels is four lanes; the rows share their weights. */
FL__INLINE void fl__resize_rows_4(const uint8_t *from, int64_t from_row, uint8_t *to,
                                  int64_t to_row, int64_t rows, int64_t c, const fl__resize_taps *t) {
    const int32_t half = 1 << (FL__RESIZE_BITS - 1);
    for (int64_t i = 0; i < t->out; i++) {
        const int32_t *w = t->weight + i * t->most;
        const uint8_t *p = from + t->at[i] * c;
        fl__resize_i4 sum[FL__RESIZE_ROWS];
        for (int64_t r = 0; r < rows; r++) sum[r] = (fl__resize_i4){half, half, half, half};
        for (int32_t k = 0; k < t->n[i]; k++, p += c)
            FL__UNROLL for (int64_t r = 0; r < rows; r++) {
                fl__resize_u4 pixel;
                memcpy(&pixel, p + r * from_row, 4);
                sum[r] += __builtin_convertvector(pixel, fl__resize_i4) * w[k];
            }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < c; k++) to[r * to_row + i * c + k] = fl__resize_clip(sum[r][k]);
    }
}

FL__INLINE void fl__resize_rows_any(const uint8_t *from, int64_t from_row, uint8_t *to,
                                    int64_t to_row, int64_t rows, int64_t c, const fl__resize_taps *t) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < t->out; i++)
            for (int64_t j = 0; j < c; j++) {
                const uint8_t *p = from + r * from_row + t->at[i] * c + j;
                int32_t sum = 1 << (FL__RESIZE_BITS - 1);
                for (int32_t k = 0; k < t->n[i]; k++) sum += p[k * c] * t->weight[i * t->most + k];
                to[r * to_row + i * c + j] = fl__resize_clip(sum);
            }
}

FL__INLINE void fl__resize_column_any(const uint8_t *from, int64_t row, uint8_t *to,
                                      int64_t bytes, const fl__resize_taps *t, int64_t i, int32_t *sums) {
    const int32_t *w = t->weight + i * t->most;
    const uint8_t *p = from + t->at[i] * row;
    for (int64_t x = 0; x < bytes; x++) sums[x] = 1 << (FL__RESIZE_BITS - 1);
    int32_t k = 0;
    for (; k + 2 <= t->n[i]; k += 2, p += 2 * row) {
        const uint8_t *q = p + row;
        const int32_t u = w[k], v = w[k + 1];
        FL__VECTOR for (int64_t x = 0; x < bytes; x++) sums[x] += p[x] * u + q[x] * v;
    }
    if (k < t->n[i]) FL__VECTOR for (int64_t x = 0; x < bytes; x++) sums[x] += p[x] * w[k];
    FL__VECTOR for (int64_t x = 0; x < bytes; x++) {
        const int32_t v = sums[x] >> FL__RESIZE_BITS, low = v < 0 ? 0 : v;
        to[x] = (uint8_t)(low > 255 ? 255 : low);
    }
}

#define FL__RESIZE_AT(level)                                                                                 \
    FL__TARGET_##level static void fl__resize_rows_##level(const uint8_t *from, int64_t from_row,      \
                                                           uint8_t *to, int64_t to_row, int64_t rows,  \
                                                           int64_t c, const fl__resize_taps *t) {            \
        if (c == 3 && rows == FL__RESIZE_ROWS)                                                               \
            fl__resize_rows_4(from, from_row, to, to_row, FL__RESIZE_ROWS, 3, t);                            \
        else if (c == 3) /* what is left of the rows, one by one */                                          \
            for (int64_t r = 0; r < rows; r++)                                                               \
                fl__resize_rows_4(from + r * from_row, 0, to + r * to_row, 0, 1, 3, t);                      \
        else if (c == 4)                                                                                     \
            for (int64_t r = 0; r < rows; r++)                                                               \
                fl__resize_rows_4(from + r * from_row, 0, to + r * to_row, 0, 1, 4, t);                      \
        else fl__resize_rows_any(from, from_row, to, to_row, rows, c, t);                                    \
    }                                                                                                        \
    FL__TARGET_##level static void fl__resize_column_##level(const uint8_t *from, int64_t row,         \
                                                             uint8_t *to, int64_t bytes,               \
                                                             const fl__resize_taps *t, int64_t i,            \
                                                             int32_t *sums) {                                \
        fl__resize_column_any(from, row, to, bytes, t, i, sums);                                             \
    }
FL__EACH_LEVEL(FL__RESIZE_AT)
#undef FL__RESIZE_AT
FL__LOOPS_END

FL_PRIVATE void fl__resize_rows(const uint8_t *from, int64_t from_row, uint8_t *to,
                                int64_t to_row, int64_t rows, int64_t c, const fl__resize_taps *t) {
    static void (*const at[])(const uint8_t *, int64_t, uint8_t *, int64_t, int64_t, int64_t,
                              const fl__resize_taps *) = {FL__AT_LEVELS(fl__resize_rows)};
    at[fl__level()](from, from_row, to, to_row, rows, c, t);
}

FL_PRIVATE void fl__resize_column(const uint8_t *from, int64_t row, uint8_t *to, int64_t bytes,
                                  const fl__resize_taps *t, int64_t i, int32_t *sums) {
    static void (*const at[])(const uint8_t *, int64_t, uint8_t *, int64_t,
                              const fl__resize_taps *, int64_t,
                              int32_t *) = {FL__AT_LEVELS(fl__resize_column)};
    at[fl__level()](from, row, to, bytes, t, i, sums);
}

#endif
#endif

/* MIT licence: see LICENSE. */
