/* kernels/cuda/formulas_f32.cu - the formulas of the op tables in f32 */
#include "common.cuh"
#define FLK_T float
#define FLK_S f32
#define FLK_KIND FLK_FLOATS
#define FLK_NAME flk_formulas_f32
#include "formulas.inc"
/* MIT licence: see LICENSE. */
