/* kernels/cpu/gemm/f64.h - micro-kernels and skinny loops of tile.h for f64

   A compilation unit of its own, as it takes long to compile. */
#ifndef FL_CPU_GEMM_F64_H
#define FL_CPU_GEMM_F64_H
#include "tile.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_GEMM_F64) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_F64_IMPL
#define FL_CPU_GEMM_F64_IMPL
FL__TILES_BEGIN
#define FL__LEVEL_TEXT "gemm/tile.inc"
#define FL__UNIT gemm
#define FL__WITH_F32 0
#define FL__WITH_F64 FL__PER_LEVEL
#include "../levels.inc"
#define FL__LEVEL_TEXT "gemm/skinny.inc"
#define FL__UNIT skinny
#define FL__WITH_F32 0
#define FL__WITH_F64 FL__PER_LEVEL
#include "../levels.inc"
FL__TILES_END

FL_PRIVATE const fl__kernels *fl__gemm_kernels_f64(void) {
    static const fl__kernels *const f64[] = {FL__AT_LEVELS(&fl__gemm_kernels_f64)};
    return f64[fl__level()];
}

#endif
#endif
/* MIT licence: see LICENSE. */
