/* kernels/cuda/gradients_f64.cu - the gradients of the op tables in f64 */
#include "common.cuh"
#define FLK_T double
#define FLK_S f64
#define FLK_KIND FLK_FLOATS
#define FLK_GRADIENTS
#include "formulas.inc"
/* MIT licence: see LICENSE. */
