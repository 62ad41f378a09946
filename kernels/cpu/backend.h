/* kernels/cpu/backend.h - the table of the CPU backend, and all its kernels */
#ifndef FL_CPU_BACKEND_H
#define FL_CPU_BACKEND_H
#include "../../fl_backend.h"
#include "levels.h"
#include "slots.h"
#include "primitives.h"
#include "formula.h"
#include "elementwise.h"
#include "copy.h"
#include "random.h"
#include "reduce.h"
#include "index.h"
#include "scan.h"
#include "sort.h"
#include "softmax.h"
#include "norm.h"
#include "batch_norm.h"
#include "cross_entropy.h"
#include "step.h"
#include "gemm/tile.h"
#include "gemm/f64.h"
#include "gemm/skinny.h"
#include "gemm/packed_cache.h"
#include "scratch.h"
#include "force.h"
#include "gemm/product.h"
#include "bf16.h"
#include "gemm/amx.h"
#include "gemm/matmul.h"
#include "gemm/linear_packed.h"
#include "gemm/openblas.h"
#include "attention.h"
#include "ctc.h"
#include "glu.h"
#include "conv/conv.h"
#include "pool.h"
#include "resample.h"
#include "recurrent.h"
#include "lapack.h"
#include "fft.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_BACKEND) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_BACKEND_IMPL
#define FL_CPU_BACKEND_IMPL
#define FL__FORMULA_SLOT(op, ...) [FL_OP_##op] = fl__cpu_formula,
#define FL__NARROW(op, ...) [FL_OP_##op] = FL_SLOT_NARROW,
#define FL__OTHER_SLOT(op, ...) [FL_OP_##op] = fl__cpu_##op,
static fl_backend fl__cpu_table = {.name = "cpu", .shipped_ = true,
                                         .op = {FL_UNARY_OPS(FL__FORMULA_SLOT) FL_BINARY_OPS(
                                             FL__FORMULA_SLOT) FL_OTHER_OPS(FL__OTHER_SLOT)},
                                         .flags = {FL_UNARY_OPS(FL__NARROW)
                                                       FL_BINARY_OPS(FL__NARROW)
                                                   [FL_OP_where] = FL_SLOT_NARROW,
                                                   [FL_OP_grad1] = FL_SLOT_NARROW,
                                                   [FL_OP_grad2] = FL_SLOT_NARROW,
                                                   [FL_OP_sum] = FL_SLOT_NARROW,
                                                   [FL_OP_prod] = FL_SLOT_NARROW,
                                                   [FL_OP_amax] = FL_SLOT_NARROW,
                                                   [FL_OP_amin] = FL_SLOT_NARROW,
                                                   [FL_OP_argmax] = FL_SLOT_NARROW,
                                                   [FL_OP_argmin] = FL_SLOT_NARROW,
                                                   [FL_OP_gather] = FL_SLOT_NARROW,
                                                   [FL_OP_scatter] = FL_SLOT_NARROW,
                                                   [FL_OP_scatter_add] = FL_SLOT_NARROW,
                                                   [FL_OP_matmul] = FL_SLOT_NARROW,
                                                   [FL_OP_conv2d] = FL_SLOT_NARROW,
                                                   [FL_OP_conv2d_grad_input] = FL_SLOT_NARROW,
                                                   [FL_OP_conv2d_grad_weight] = FL_SLOT_NARROW,
                                                   [FL_OP_cumsum] = FL_SLOT_CONTIGUOUS,
                                                   [FL_OP_cumprod] = FL_SLOT_CONTIGUOUS,
                                                   [FL_OP_sort] = FL_SLOT_CONTIGUOUS,
                                                   [FL_OP_nonzero] = FL_SLOT_CONTIGUOUS}};
#undef FL__FORMULA_SLOT
#undef FL__OTHER_SLOT
#undef FL__NARROW

/* Slots of registered ops are set by the files of their kernels, once, when the library starts. */
FL_API const fl_backend *fl_backend_cpu(void) {
    static bool complete;
    if (complete) return &fl__cpu_table;
    fl__cpu_attention_slots(&fl__cpu_table);
    fl__cpu_batch_norm_slots(&fl__cpu_table);
    fl__cpu_conv_slots(&fl__cpu_table);
    fl__cpu_cross_entropy_slots(&fl__cpu_table);
    fl__cpu_ctc_slots(&fl__cpu_table);
    fl__cpu_fft_slots(&fl__cpu_table);
    fl__cpu_formula_slots(&fl__cpu_table);
    fl__cpu_glu_slots(&fl__cpu_table);
    fl__cpu_lapack_slots(&fl__cpu_table);
    fl__cpu_linear_packed_slots(&fl__cpu_table);
    fl__cpu_matmul_slots(&fl__cpu_table);
    fl__cpu_norm_slots(&fl__cpu_table);
    fl__cpu_pool_slots(&fl__cpu_table);
    fl__cpu_random_slots(&fl__cpu_table);
    fl__cpu_recurrent_slots(&fl__cpu_table);
    fl__cpu_resample_slots(&fl__cpu_table);
    fl__cpu_softmax_slots(&fl__cpu_table);
    fl__cpu_step_slots(&fl__cpu_table);
    fl__cpu_openblas_slots(&fl__cpu_table); /* last: it overrides others */
    complete = true;
    return &fl__cpu_table;
}

#endif
#endif
/* MIT licence: see LICENSE. */
