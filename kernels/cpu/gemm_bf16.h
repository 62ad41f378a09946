/* kernels/cpu/gemm_bf16.h - the register tiles of gemm.h for pairs of bf16 */
#ifndef FL_CPU_GEMM_BF16_H
#define FL_CPU_GEMM_BF16_H
#include "gemm.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_GEMM_BF16) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_BF16_IMPL
#define FL_CPU_GEMM_BF16_IMPL
#include "bf16.h"
#ifdef FL__HAS_PAIRS_avx512
#ifndef FL_EMULATE_BF16
#include <immintrin.h>
#endif

FL__TILES_BEGIN
#define FL__LEVEL_TEXT "gemm.inc"
#define FL__UNIT gemm
#define FL__WITH_F32 0
#define FL__WITH_PAIRS 1
#include "levels.inc"
FL__TILES_END

FL_PRIVATE const fl__kernels *fl__gemm_kernels_pairs(void) {
    return fl__level_has_bf16() ? &fl__gemm_kernels_pairs_avx512 : NULL;
}
#else
FL_PRIVATE const fl__kernels *fl__gemm_kernels_pairs(void) { return NULL; }
#endif

FL_PRIVATE const fl__kernels *fl__gemm_pairs(const fl__kernels *ks) {
    return ks->size == 4 && fl__bf16_pairs() ? fl__gemm_kernels_pairs() : NULL;
}

#endif
#endif
/* MIT licence: see LICENSE. */
