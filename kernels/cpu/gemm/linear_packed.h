/* kernels/cpu/gemm/linear_packed.h - few rows times a weight stored in fewer bits than f32 (quantized, f16,
   bf16)

   As in text generation, a token at a time: reading the weight is the bottleneck, so it is read once, in its
   storage format. A few of its rows are converted to f32 in the L1 cache, a strip at a time, and multiplied
   by all rows of x there. One row of x with q8 blocks is summed directly, without that strip. More rows of x
   are left to the composed op, which converts the weight once for all of them. */
#ifndef FL_CPU_GEMM_LINEAR_PACKED_H
#define FL_CPU_GEMM_LINEAR_PACKED_H
#include "tile.h"
#include "product.h"
#include "../slots.h"

/* Registers the slot of this file. */
FL_PRIVATE void fl__cpu_linear_packed_slots(fl_backend *cpu);

#endif /* FL_CPU_GEMM_LINEAR_PACKED_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_LINEAR_PACKED) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_LINEAR_PACKED_IMPL
#define FL_CPU_GEMM_LINEAR_PACKED_IMPL
#include "../../../fl/tensor/blocks.h"
#include "../../fl_math.h"
#if FL__LEVELS_ON & 4
#include <immintrin.h>
#endif
typedef int16_t __attribute__((may_alias, aligned(1))) fl__i16_any;
FL__LOOPS_BEGIN

#define FL__LEVEL_TEXT "gemm/unpack.inc"
#define FL__UNIT unpack
#include "../levels.inc"
FL__LOOPS_END

/* A registered dtype; arg is its fl_dtype_info. */
static void fl__unpack_registered(void *const p[], int64_t n, const void *arg) {
    const fl_dtype_info *info = arg;
    info->unpack(p[1], p[0], n / info->block);
}

static fl__loop fl__unpack_loop(fl_dtype d) {
    static const fl__loop q8[FL__VARIANTS] = {FL__AT_LEVELS(fl__unpack_q8_f32)},
                          q4[FL__VARIANTS] = {FL__AT_LEVELS(fl__unpack_q4_f32)},
                          f16[FL__VARIANTS] = {FL__AT_LEVELS(fl__unpack_f16_f32)},
                          bf16[FL__VARIANTS] = {FL__AT_LEVELS(fl__unpack_bf16_f32)};
    if (d < FL_DTYPE_COUNT) return d == FL_F16 ? f16[fl__level()] : bf16[fl__level()];
    if (d == fl_q8() || d == fl_q4()) return (d == fl_q8() ? q8 : q4)[fl__level()];
#if FL__LEVELS_ON & 4
    if (fl__level() == FL__AVX512) {
        if (d == fl_q4_k()) return fl__unpack_q4_k_f32_avx512;
        if (d == fl_q5_k()) return fl__unpack_q5_k_f32_avx512;
        if (d == fl_q6_k()) return fl__unpack_q6_k_f32_avx512;
    }
#endif
    return fl__unpack_registered;
}

enum { FL__PACKED_LINEAR_STRIP = 2048, FL__PACKED_LINEAR_ROWS = 4 }; /* per step */

typedef struct fl__packed_linear {
    const fl__kernels *ks;
    fl__loop unpack, dot; /* dot: NULL if none */
    const fl_dtype_info *info; /* NULL: f16 or bf16 */
    int64_t m, n, k, ldx, strip, block;
    const float *x;
    const char *w;
    int64_t row, size; /* bytes of a row of w, and of an element of `block` numbers */
    float *y;
} fl__packed_linear;

/* Computes columns j to j + n - 1 of y. */
static void fl__packed_linear_columns(const fl__packed_linear *s, int64_t j, int64_t n) {
    _Alignas(64) float part[FL__PACKED_LINEAR_ROWS * FL__PACKED_LINEAR_STRIP];
    fl__segment segment = {NULL, part};
    fl__tile tile = {
        .segments = 1, .segment = &segment, .rsa = s->ldx, .csa = 1, .ldb = s->strip, .ldc = s->n};
    for (int64_t k0 = 0; k0 < s->k; k0 += tile.k) {
        tile.k = fl__min(s->k - k0, s->strip), tile.add = k0 > 0;
        for (int64_t i = 0; i < n; i++) {
            const char *from = s->w + (j + i) * s->row + k0 / s->block * s->size;
            s->unpack((void *[]){part + i * s->strip, (char *)(uintptr_t)from}, tile.k, s->info);
        }
        for (int64_t i = 0, mr; i < s->m; i += mr) {
            mr = s->m - i >= 4 ? 4 : s->m - i >= 2 ? 2 : 1;
            segment.a = s->x + i * s->ldx + k0, tile.c = s->y + i * s->n + j;
            s->ks->dots[mr](&tile, n);
        }
    }
}

static void fl__packed_linear_task(void *arg, int64_t begin, int64_t end) {
    const fl__packed_linear *s = arg;
    for (; s->dot && begin < end; begin++)
        s->dot((void *[]){s->y + begin, (char *)(uintptr_t)s->w + begin * s->row, (float *)(uintptr_t)s->x},
               s->k, NULL);
    for (int64_t j = begin; j < end; j += FL__PACKED_LINEAR_ROWS)
        fl__packed_linear_columns(s, j, fl__min(FL__PACKED_LINEAR_ROWS, end - j));
}

static bool fl__cpu_linear_packed(const fl_backend *self, const fl_call *c) {
    const fl_tensor *x = c->in[0], *w = c->in[1];
    fl__packed_linear s = {.m = x->shape[0], .n = w->shape[0], .k = x->shape[1], .ldx = x->stride[0],
                    .size = (int64_t)fl_dtype_size(w->dtype), .info = fl_dtype_registered(w->dtype)};
    s.block = s.info ? s.info->block : 1;
    (void)self;
    if (s.m > FL__SKINNY_ROWS || s.m * s.n * s.k == 0 || x->stride[1] != 1 || w->stride[1] != 1 ||
        s.block > FL__PACKED_LINEAR_STRIP || w->dtype == FL_F32)
        return fl_call_compose(c);
    if (!fl_out_make(c->out[0])) return false;
    static const fl__loop dots[FL__VARIANTS] = {FL__AT_LEVELS(fl__unpack_dot_q8_f32)};
    s.dot = s.m == 1 && w->dtype == fl_q8() ? dots[fl__level()] : NULL;
    s.ks = fl__gemm_kernels(FL_F32), s.unpack = fl__unpack_loop(w->dtype);
    s.strip = fl__min(s.k, FL__PACKED_LINEAR_STRIP / s.block * s.block), s.row = w->stride[0] * s.size;
    s.x = fl_data(x), s.w = fl_data(w), s.y = fl_data(c->out[0]);
    const int64_t each = FL__PACKED_LINEAR_ROWS;
    const int64_t grain = fl__ceil_div(FL__SMALL_PRODUCT / each, s.m * s.k) * each;
    fl_parallel(s.n, grain, fl__packed_linear_task, &s);
    return true;
}

FL_PRIVATE void fl__cpu_linear_packed_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_linear_packed, fl__cpu_linear_packed, FL_SLOT_NARROW | FL_SLOT_BLOCKS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
