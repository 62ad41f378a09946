/* fl/records/linear.h - arguments and op numbers of the call records of linear layers (fl/ops/linear.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_LINEAR_H
#define FL_RECORDS_LINEAR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_linear_args {
    fl_op act; /* relu, gelu, gelu_tanh, silu, sigmoid, tanh; FL_OP_NONE */
} fl_linear_args;
/* What products of f32 may round their operands to, process-wide: FL_F32 (nothing, at the start) or
   FL_BF16. That is a permission for matmul, linear layers, convolution and attention, their
   gradients, and what is composed of them; a backend uses it where its processor multiplies bf16
   (or anything in between, as TF32) faster, and keeps f32 where that gains nothing (of the cpu:
   fl_cpu_set_bf16). Sums and results
   stay f32, so weights and gradients need no scaling. Each operand is off by at most 2^-9 of itself,
   a product by 2^-8 of the sum of its absolute terms; NaN and infinities stay, denormals may count
   as 0. Compare PyTorch's torch.set_float32_matmul_precision("medium"). */
FL_API fl_dtype fl_matmul_precision(void);
FL_API bool fl_set_matmul_precision(fl_dtype d);
FL_DATA fl_op fl_op_linear, fl_op_linear_grad, fl_op_linear_packed;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_LINEAR_H */

#if defined(FL_IMPL_ONLY_RECORDS_LINEAR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_RECORDS_LINEAR_IMPL
#define FL_RECORDS_LINEAR_IMPL
static int fl__matmul_precision = FL_F32;

fl_dtype fl_matmul_precision(void) {
    return (fl_dtype)__atomic_load_n(&fl__matmul_precision, __ATOMIC_RELAXED);
}

bool fl_set_matmul_precision(fl_dtype d) {
    if (d != FL_F32 && d != FL_BF16)
        return fl_err_false("fl_set_matmul_precision: %s: f32 or bf16", fl_dtype_name(d));
    __atomic_store_n(&fl__matmul_precision, (int)d, __ATOMIC_RELAXED);
    return true;
}
#endif /* FL_RECORDS_LINEAR_IMPL */
#endif
/* MIT licence: see LICENSE. */
