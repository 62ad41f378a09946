/* kernels/cuda/formulas_b8.cu - the formulas of the op tables in b8 */
#include "common.cuh"
#define FLK_T uint8_t
#define FLK_S b8
#define FLK_KIND FLK_TRUTHS
#include "formulas.inc"
/* MIT licence: see LICENSE. */
