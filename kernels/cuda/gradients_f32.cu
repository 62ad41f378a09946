/* kernels/cuda/gradients_f32.cu - the gradients of the op tables in f32 */
#include "common.cuh"
#define FLK_YES(...) __VA_ARGS__
#define FLK_NO(...)
#define FLK_T float
#define FLK_S f32
#define FLK_CHECKS 0
#define FLK_NAME flk_gradients_f32
#define FLK_GRADIENTS
#define FLK_TAKES_FLOAT FLK_YES
#define FLK_TAKES_NUM FLK_YES
#define FLK_TAKES_ANY FLK_YES
#define FLK_TAKES_INT FLK_NO
#define FLK_TAKES_CMP FLK_NO
#define FLK_TAKES_BOOL FLK_NO
#include "formulas.inc"
/* MIT licence: see LICENSE. */
