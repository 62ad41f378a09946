/* examples/research/mxfp4.h - operands of matrix products in MXFP4, transformed to spread outliers

   A product sums over one dim of each operand, so a block is 32 neighbours along that dim. Nearest: as the
   specification rounds (OCP Microscaling Formats 1.0), where the largest number of a block may be clipped, up
   to a quarter off. Stochastic: of 3/4 of the numbers, divided by 3/4 afterwards, so that none is clipped and
   the mean is right (as in arXiv 2502.20586). With a transform, groups of 64 numbers are multiplied
   by an orthogonal matrix first. If both operands are, their product is the same without rounding. */
#ifndef MXFP4_H
#define MXFP4_H
#include "formats.h"
#include "../../kernels/fl_math.h"

enum { MXFP4_GROUP = 64 };
typedef enum mxfp4_transform {
    MXFP4_PLAIN,
    MXFP4_FIXED, /* Hadamard's matrix */
    MXFP4_RANDOM /* random signs, then Hadamard's matrix */
} mxfp4_transform;
typedef struct mxfp4_rounding {
    bool stochastic;
    mxfp4_transform transform;
} mxfp4_rounding;

FL_KERNEL_BEGIN

/* x D H / 8 for 64 numbers: signs D, Hadamard's matrix H. */
static inline void mxfp4_turn(float *x, uint32_t signs, bool random) {
    for (uint32_t i = 0; random && i < MXFP4_GROUP; i++)
        x[i] *= format_noise(signs, i) >> 31 ? -1.f : 1.f;
    for (int half = 1; half < MXFP4_GROUP; half *= 2)
        for (int first = 0; first < MXFP4_GROUP; first += 2 * half)
            for (int i = first; i < first + half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b, x[i + half] = a - b;
            }
    for (int i = 0; i < MXFP4_GROUP; i++) x[i] *= 0.125f;
}

/* A block, whose first number is number `at` of the operand with this noise: the numbers of mx_pack, without
   codes. Of float4_e2m1fn the steps are 1/2 below 2, 1 below 4, and 2. */
static inline void mxfp4_round(float *x, bool stochastic, uint32_t noise, uint32_t at) {
    const int e = mx_exponent(&formats[FORMAT_float4_e2m1fn], x);
    const float down = ldexpf(stochastic ? 0.75f : 1, -e), up = ldexpf(stochastic ? 4 / 3.f : 1, e);
    for (uint32_t i = 0; i < MX_BLOCK; i++) {
        const float size = fabsf(x[i]) * down, step = size < 2 ? 0.5f : size < 4 ? 1 : 2;
        const float steps = size * (size < 2 ? 2 : size < 4 ? 1 : 0.5f);
        const float by_chance = (float)(int)(format_noise(noise, at + i) >> 8) * 0x1p-24f; /* in [0, 1) */
        const float near = (steps + 0x1.8p23f) - 0x1.8p23f; /* the nearest whole number, or the even one */
        const float whole = (stochastic ? (float)(int)(steps + by_chance) : near) * step;
        x[i] = copysignf((whole < 6 ? whole : 6) * up, x[i]);
    }
    for (int i = 0; e == 128 && i < MX_BLOCK; i++) x[i] = NAN;
}

typedef struct mxfp4_operand {
    const fl_tensor *t;
    float *to; /* of the same shape, row-major */
    int axis;  /* the dim that is summed */
    mxfp4_rounding how;
    uint32_t noise, signs;
} mxfp4_operand;

static void mxfp4_groups(void *arg, int64_t begin, int64_t end) {
    const mxfp4_operand *o = arg;
    const int64_t others = o->t->shape[!o->axis], columns = o->t->shape[1];
    const int64_t step = o->t->stride[o->axis], to_step = o->axis ? 1 : columns;
    for (int64_t n = begin; n < end; n++) {
        const int64_t first = n / others * MXFP4_GROUP, other = n % others;
        const float *from = (const float *)fl_data(o->t) + first * step + other * o->t->stride[!o->axis];
        float x[MXFP4_GROUP], *to = o->to + first * to_step + other * (o->axis ? columns : 1);
        for (int i = 0; i < MXFP4_GROUP; i++) x[i] = from[i * step];
        if (o->how.transform != MXFP4_PLAIN)
            mxfp4_turn(x, o->signs + (uint32_t)(n / others), o->how.transform == MXFP4_RANDOM);
        for (int i = 0; i < MXFP4_GROUP; i += MX_BLOCK)
            mxfp4_round(x + i, o->how.stochastic, o->noise, (uint32_t)(n * MXFP4_GROUP + i));
        for (int i = 0; i < MXFP4_GROUP; i++) to[i * to_step] = x[i];
    }
}

FL_KERNEL_END

/* The matrix t, transformed and rounded along axis: operand `which`, 0 or 1, of a product. Another key, other
   random numbers. NULL after fl_fail. */
static inline fl_tensor *mxfp4_rounded(const fl_tensor *t, int axis, mxfp4_rounding how, uint32_t key,
                                       int which) {
    if (t->ndim != 2 || t->dtype != FL_F32 || t->shape[axis] % MXFP4_GROUP)
        return fl_err_null("mxfp4_rounded: got %s of shape %s, expected an f32 matrix with a multiple of %d "
                           "in dim %d", fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), MXFP4_GROUP, axis);
    fl_tensor *y = fl_empty_on(fl_backend_name(t), fl_shape_of(t), FL_F32);
    mxfp4_operand o = {t, NULL, axis, how, 2 * key + (uint32_t)which, key * 0x85ebca6bu};
    if (!y || !(o.to = fl_data(y))) return NULL;
    fl_parallel(fl_numel(t) / MXFP4_GROUP, 128, mxfp4_groups, &o);
    return y;
}
#endif
/* MIT licence: see LICENSE. */
