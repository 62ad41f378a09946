/* fl/records/linear.h - call records of linear layers, matmul precision (fl/ops/linear.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_LINEAR_H
#define FL_RECORDS_LINEAR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_linear_args {
    fl_op act; /* fused activation: relu, gelu, gelu_tanh, silu, sigmoid, tanh; or FL_OP_NONE */
} fl_linear_args;
/* The dtype to which matrix products of f32 may round their operands, process-wide: FL_F32 (the default: no
   rounding) or FL_BF16. FL_BF16 permits it for matmul, linear layers, convolution and attention, their
   gradients and their compositions; a backend uses bf16 (or an intermediate format such as TF32) where its
   hardware multiplies it faster (cpu: see fl_cpu_set_bf16). Sums and results remain f32, so weights and
   gradients need no scaling. Relative error of an operand at most 2^-9, of a product 2^-8 of the sum of its
   absolute terms; NaN and infinities are kept, denormals may become 0. As
   torch.set_float32_matmul_precision("medium"). */
FL_API fl_dtype fl_matmul_precision(void);
/* Sets it, after deferred calls have run by the old one. False with an error, and nothing is set, for other
   dtypes and if such a call fails. */
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
        return fl_err_false("fl_set_matmul_precision: got %s, expected f32 or bf16", fl_dtype_name(d));
    if (d == fl_matmul_precision()) return true;
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    __atomic_store_n(&fl__matmul_precision, (int)d, __ATOMIC_RELAXED);
    return true;
}
#endif /* FL_RECORDS_LINEAR_IMPL */
#endif
/* MIT licence: see LICENSE. */
