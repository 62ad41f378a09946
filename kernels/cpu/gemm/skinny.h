/* kernels/cpu/gemm/skinny.h - loops of skinny products (few rows), for the table of tile.h

   A compilation unit of its own, as it takes long to compile; those for f64 are in f64.h. */
#ifndef FL_CPU_GEMM_SKINNY_H
#define FL_CPU_GEMM_SKINNY_H
#include "tile.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_GEMM_SKINNY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_SKINNY_IMPL
#define FL_CPU_GEMM_SKINNY_IMPL
FL__TILES_BEGIN
#define FL__LEVEL_TEXT "gemm/skinny.inc"
#define FL__UNIT skinny
#include "../levels.inc"
FL__TILES_END
#endif
#endif
/* MIT licence: see LICENSE. */
