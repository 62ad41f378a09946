/* kernels/vision/resize.h - separable image resampling: weighted sums along rows, then along columns

   Bit-exact with Pillow: weights with 22 fractional bits in 32-bit integers, u8 between the passes. */
#ifndef FL_VISION_RESIZE_H
#define FL_VISION_RESIZE_H
#include "../../fl_mem.h"

/* Filter taps: output i = clip((sum over k < n[i] of weight[i * most + k] input[at[i] + k] + 2^21) / 2^22).
   Weights with k >= n[i] are 0; most is a multiple of 4. */
typedef struct fl__resize_taps {
    int64_t out, most;
    int32_t *at, *n, *weight;
} fl__resize_taps;

/* Resamples up to FL__RESIZE_ROWS rows of c channels to t->out pixels each; from_row, to_row: row strides in
   bytes. `bytes` of a row belong to the image; 4 more after them must be readable. */
enum { FL__RESIZE_ROWS = 4 };
FL_PRIVATE void fl__resize_rows(const uint8_t *from, int64_t from_row, uint8_t *to, int64_t to_row,
                                int64_t rows, int64_t c, int64_t bytes, const fl__resize_taps *t);
/* Resamples columns: output row i of `bytes` bytes from rows at `from`, `row` bytes apart; sums: workspace of
   `bytes` numbers. */
FL_PRIVATE void fl__resize_column(const uint8_t *from, int64_t row, uint8_t *to, int64_t bytes,
                                  const fl__resize_taps *t, int64_t i, int32_t *sums);

#endif /* FL_VISION_RESIZE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_VISION_RESIZE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_RESIZE_IMPL
#define FL_VISION_RESIZE_IMPL
#include "../cpu/loops.h"
#include <string.h>
#if FL__LEVELS_ON & 6
#include <immintrin.h>
#endif

FL__LOOPS_BEGIN

enum { FL__RESIZE_BITS = 22 };

typedef uint8_t fl__resize_u4 __attribute__((vector_size(4)));
typedef int32_t fl__resize_i4 __attribute__((vector_size(16)));

FL__INLINE uint8_t fl__resize_clip(int32_t sum) {
    const int32_t v = sum >> FL__RESIZE_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* Pixels of three or four channels as four lanes; rows share their weights. Computes outputs from `first`
   on. */
FL__INLINE void fl__resize_rows_4(const uint8_t *from, int64_t from_row, uint8_t *to,
                                  int64_t to_row, int64_t rows, int64_t c, const fl__resize_taps *t,
                                  int64_t first) {
    const int32_t half = 1 << (FL__RESIZE_BITS - 1);
    for (int64_t i = first; i < t->out; i++) {
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

#if FL__LEVELS_ON & 6
/* RGB rows, four taps at a time, for the outputs whose reads stay within `bytes` of a row; returns their
   number. Multiplies in 16-bit pairs: a weight is 2^11 high + low, summed separately, so that the total is
   exact. */
FL__TARGET_avx2 static int64_t fl__resize_rows_pairs(const uint8_t *from, int64_t from_row, uint8_t *to,
                                                     int64_t to_row, int64_t bytes,
                                                     const fl__resize_taps *t) {
    enum { LOW = 11, Z = -1 };
    /* shuffles: channels of taps 0, 1 to the lower half, of 2, 3 to the upper one; and their weights */
    const __m256i pairs = _mm256_setr_epi8(0, Z, 3, Z, 1, Z, 4, Z, 2, Z, 5, Z, Z, Z, Z, Z, 6, Z, 9, Z, 7, Z,
                                           10, Z, 8, Z, 11, Z, Z, Z, Z, Z);
    const __m256i high = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6,
                                          7, 4, 5, 6, 7, 4, 5, 6, 7);
    const __m256i low = _mm256_add_epi8(high, _mm256_set1_epi8(8));
    int64_t i = 0;
    for (; i < t->out && (t->at[i] + (t->n[i] + 3) / 4 * 4 - 4) * 3 + 16 <= bytes; i++) {
        const int32_t *w = t->weight + i * t->most;
        const uint8_t *p = from + t->at[i] * 3;
        __m256i a[FL__RESIZE_ROWS], b[FL__RESIZE_ROWS];
        for (int r = 0; r < FL__RESIZE_ROWS; r++) a[r] = b[r] = _mm256_setzero_si256();
        for (int32_t k = 0; k < t->n[i]; k += 4, p += 12) {
            const __m128i whole = _mm_loadu_si128((const __m128i *)(const void *)(w + k));
            const __m256i both = _mm256_broadcastsi128_si256(_mm_packs_epi32(
                _mm_srai_epi32(whole, LOW), _mm_and_si128(whole, _mm_set1_epi32((1 << LOW) - 1))));
            const __m256i u = _mm256_shuffle_epi8(both, high), v = _mm256_shuffle_epi8(both, low);
            FL__UNROLL for (int r = 0; r < FL__RESIZE_ROWS; r++) {
                const __m128i four = _mm_loadu_si128((const __m128i *)(const void *)(p + r * from_row));
                const __m256i x = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
                a[r] = _mm256_add_epi32(a[r], _mm256_madd_epi16(x, u));
                b[r] = _mm256_add_epi32(b[r], _mm256_madd_epi16(x, v));
            }
        }
        for (int r = 0; r < FL__RESIZE_ROWS; r++) {
            const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(a[r], LOW), b[r]);
            __m128i y = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
            y = _mm_srai_epi32(_mm_add_epi32(y, _mm_set1_epi32(1 << (FL__RESIZE_BITS - 1))), FL__RESIZE_BITS);
            const uint32_t rgb = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(_mm_packs_epi32(y, y), y));
            uint8_t *q = to + r * to_row + i * 3;
            q[0] = (uint8_t)rgb, q[1] = (uint8_t)(rgb >> 8), q[2] = (uint8_t)(rgb >> 16);
        }
    }
    return i;
}
#define fl__resize_rows_pairs_avx2 fl__resize_rows_pairs
#define fl__resize_rows_pairs_avx512 fl__resize_rows_pairs
#endif
#define fl__resize_rows_pairs_portable(from, from_row, to, to_row, bytes, t) ((void)(bytes), (int64_t)0)

#define FL__RESIZE_AT(level)                                                                                 \
    FL__TARGET_##level static void fl__resize_rows_##level(const uint8_t *from, int64_t from_row,      \
                                                           uint8_t *to, int64_t to_row, int64_t rows,  \
                                                           int64_t c, int64_t bytes,                         \
                                                           const fl__resize_taps *t) {                       \
        if (c == 3 && rows == FL__RESIZE_ROWS)                                                               \
            fl__resize_rows_4(from, from_row, to, to_row, FL__RESIZE_ROWS, 3, t,                             \
                              fl__resize_rows_pairs_##level(from, from_row, to, to_row, bytes, t));          \
        else if (c == 3) /* remaining rows, one by one */                                          \
            for (int64_t r = 0; r < rows; r++)                                                               \
                fl__resize_rows_4(from + r * from_row, 0, to + r * to_row, 0, 1, 3, t, 0);                   \
        else if (c == 4)                                                                                     \
            for (int64_t r = 0; r < rows; r++)                                                               \
                fl__resize_rows_4(from + r * from_row, 0, to + r * to_row, 0, 1, 4, t, 0);                   \
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

FL_PRIVATE void fl__resize_rows(const uint8_t *from, int64_t from_row, uint8_t *to, int64_t to_row,
                                int64_t rows, int64_t c, int64_t bytes, const fl__resize_taps *t) {
    static void (*const at[])(const uint8_t *, int64_t, uint8_t *, int64_t, int64_t, int64_t, int64_t,
                              const fl__resize_taps *) = {FL__AT_LEVELS(fl__resize_rows)};
    at[fl__level()](from, from_row, to, to_row, rows, c, bytes, t);
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
