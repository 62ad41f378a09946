/* kernels/cuda/formulas_i64.cu - the formulas of the op tables in i64 */
#include "common.cuh"
#define FLK_T int64_t
#define FLK_S i64
#define FLK_KIND FLK_INTEGERS
#include "formulas.inc"
/* MIT licence: see LICENSE. */
