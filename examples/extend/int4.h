/* examples/extend/int4.h - a block-quantised dtype: 4-bit integers with one scale for each 64 numbers

   An element of the dtype is one block of 34 bytes: the scale s as f16, then 32 bytes with two codes c each,
   the low half first. A number is s (c - 8), where c is 0 to 15 and s = max |x| / 7 over the block. That is
   4.25 bits a number, with an error of at most s / 2.

   The two functions below are all that fl needs: tensors of the dtype are made, viewed, copied, cast from and
   to floats, gathered from, and multiplied by fl_matmul and fl_linear, which unpack a few rows at a time. The
   last axis of such a tensor counts blocks, so it must have a multiple of 64 numbers. No file has this dtype:
   save the f32 weights, and pack them after loading (fl_nn_store). */
#ifndef INT4_H
#define INT4_H
#include "../../fl.h"

#include <math.h>

enum { INT4_BLOCK = 64, INT4_BYTES = 2 + INT4_BLOCK / 2 };

static void int4_unpack(const void *blocks, float *x, int64_t n) {
    for (const uint8_t *b = blocks; n > 0; n--, b += INT4_BYTES, x += INT4_BLOCK) {
        const float scale = (float)fl_number_load(FL_F16, b).f;
        for (int i = 0; i < INT4_BLOCK / 2; i++) {
            x[2 * i] = scale * (float)((b[2 + i] & 15) - 8);
            x[2 * i + 1] = scale * (float)((b[2 + i] >> 4) - 8);
        }
    }
}

/* NaN becomes 0, and infinities the largest number that a block can hold. */
static inline uint8_t int4_code(float x, float scale) {
    const float steps = scale > 0 ? x / scale : 0;
    return (uint8_t)(8 + (steps >= 7 ? 7 : steps <= -7 ? -7 : isnan(steps) ? 0 : (int)lrintf(steps)));
}

static void int4_pack(const float *x, void *blocks, int64_t n) {
    for (uint8_t *b = blocks; n > 0; n--, b += INT4_BYTES, x += INT4_BLOCK) {
        float largest = 0;
        for (int i = 0; i < INT4_BLOCK; i++) largest = fmaxf(largest, fabsf(x[i])); /* fmaxf ignores NaN */
        fl_number_store(FL_F16, b, (fl_number){true, fminf(largest / 7, 65504), 0});
        const float scale = (float)fl_number_load(FL_F16, b).f; /* as it will be read */
        for (int i = 0; i < INT4_BLOCK / 2; i++)
            b[2 + i] = (uint8_t)(int4_code(x[2 * i], scale) | int4_code(x[2 * i + 1], scale) << 4);
    }
}

/* The dtype; FL_DTYPE_NONE after an error. Later calls return the same one. */
static inline fl_dtype int4_dtype(void) {
    static const fl_dtype_info info = {"int4", INT4_BYTES, INT4_BLOCK, int4_unpack, int4_pack};
    return fl_dtype_register(&info);
}
#endif
/* MIT licence: see LICENSE. */
