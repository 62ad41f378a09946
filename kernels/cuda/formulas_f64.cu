/* kernels/cuda/formulas_f64.cu - the formulas of the op tables in f64 */
#include "common.cuh"
#define FLK_T double
#define FLK_S f64
#define FLK_KIND FLK_FLOATS
#include "formulas.inc"
/* MIT licence: see LICENSE. */
