/* kernels/cuda/formulas_b8.cu - the formulas of the op tables in b8 */
#include "common.cuh"
#define FLK_YES(...) __VA_ARGS__
#define FLK_NO(...)
#define FLK_T uint8_t
#define FLK_S b8
#define FLK_CHECKS 0
#define FLK_NAME flk_formulas_b8
#define FLK_TAKES_FLOAT FLK_NO
#define FLK_TAKES_NUM FLK_NO
#define FLK_TAKES_ANY FLK_YES
#define FLK_TAKES_INT FLK_YES
#define FLK_TAKES_CMP FLK_YES
#define FLK_TAKES_BOOL FLK_YES
#include "formulas.inc"
/* MIT licence: see LICENSE. */
