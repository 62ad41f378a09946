/* kernels/cuda/formulas_f32.cu - the formulas of the op tables in f32 */
#include "common.cuh"
#define FLK_T float
#define FLK_S f32
#define FLK_KIND FLK_FLOATS
#define FLK_NEARLY FLK_NEAR(exp) FLK_NEAR(tanh) FLK_NEAR(sigmoid) FLK_NEAR(silu) \
    FLK_NEAR(gelu) FLK_NEAR(gelu_tanh)
#include "formulas.inc"
/* MIT licence: see LICENSE. */
