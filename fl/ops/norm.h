/* fl/ops/norm.h - layer, RMS, batch, group, instance and local response norm; normalize, weight norm

   layer norm   y = (x - mean) rstd w + b,  rstd = 1 / sqrt(var + eps), over the last dims of x;
                rms: mean = 0 and var = mean(x^2)
   batch norm   y = (x - mean) rstd w + b + add, or max(y, 0) with relu, per channel over all other axes

   Records (fl_norm_args, fl_batch_norm_args). Variances are biased. x, y, add and their gradients may be f16
   or bf16; weights and statistics are f32 then. A kernel that takes no narrow operands gets all operands in
   the one dtype it computes in. [out] is optional.
     layer_norm       x, w, b -> y, [mean], rstd: w and b have the last args.dims dims of x, or are numbers;
     mean
                      (absent with rms) and rstd have x's shape with those dims 1
     layer_norm_grad  x, w, mean (a number with rms), rstd, dy -> [dx], [dw], [db]
     add_layer_norm   (fl_add_norm_args) x, w, b, add -> y, [mean], rstd, sum: the norm of sum = add +
                      dropout(x), all of x's shape
     batch_statistics x [n, c, ...] -> [2, c]: mean and var per channel
     batch_norm       x [n, c, ...], w, b, add, mean, var -> y: w and b are [c, 1, ...] or numbers, add is
                      like x or a number, mean and var are [1, c, 1, ...]; or, with an update of running
                      statistics in place, x, w, b, add, statistics, running_mean, running_var, batches -> y,
                      running_mean, running_var, [batches]: statistics as above, the running ones [c] of their
                      dtype, batches an i64 0-d, which is incremented, or a number
     batch_norm_grad  x, w, mean, var, y (a number without relu), dy -> [dx], [dw], [db], [dadd]
     group_norm       x, w, b, add -> y, mean, var, or x, w, b, add, mean, var -> y, with args.groups; mean
                      and var are [n, groups, 1, ...], with one dim more than x
     group_norm_grad  as batch_norm_grad */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_NORM_H
#define FL_OPS_NORM_H
#include "../records/norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All norms take floats; integers become f32, f16 and bf16 are computed in f32 and rounded once. */
/* (x - mean) / sqrt(var + eps) weight + bias, with mean and biased variance over the last `dims` dims. weight
   and bias have those dims; NULL: 1 and 0. */
FL_API fl_tensor *fl_layer_norm(fl_tensor *x, int dims, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_layer_norm(fl_var *x, int dims, fl_var *weight, fl_var *bias, double eps);
/* x / sqrt(mean(x^2) + eps) weight, with the mean over the last `dims` dims; weight NULL: 1. */
FL_API fl_tensor *fl_rms_norm(fl_tensor *x, int dims, fl_tensor *weight, double eps);
FL_API fl_var *fv_rms_norm(fl_var *x, int dims, fl_var *weight, double eps);
/* Residual add and norm, fused: *sum = add + dropout(x), returns its layer norm (RMS norm if a.rms). One
   forward pass if the backend has the kernel and x and add have one shape and dtype; else composed, with the
   same random numbers. p 0: no dropout; rng NULL: the global generator. */
FL_API fl_tensor *fl_add_layer_norm(fl_tensor *x, fl_tensor *add, fl_tensor *weight, fl_tensor *bias,
                                    fl_norm_args a, double p, fl_rng *rng, fl_tensor **sum);
FL_API fl_var *fv_add_layer_norm(fl_var *x, fl_var *add, fl_var *weight, fl_var *bias, fl_norm_args a,
                                 double p, fl_rng *rng, fl_var **sum);
/* Layer norm over each of `groups` groups of channels of x [n, c, ...]; groups divides c. weight and bias are
   [c] or NULL. */
FL_API fl_tensor *fl_group_norm(fl_tensor *x, int64_t groups, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_group_norm(fl_var *x, int64_t groups, fl_var *weight, fl_var *bias, double eps);
/* Group norm with one channel per group. */
FL_API fl_tensor *fl_instance_norm(fl_tensor *x, fl_tensor *weight, fl_tensor *bias, double eps);
FL_API fl_var *fv_instance_norm(fl_var *x, fl_var *weight, fl_var *bias, double eps);
typedef struct fl_batch_norm_opts {
    fl_opts_guard guard_;
    fl_tensor *mean, *var; /* [c], running statistics; required unless train */
    bool train; /* use the batch's statistics (at least 2 values per channel) and update mean and var, which
                   may be NULL. An empty batch does not change them */
    fl_tensor *batches;    /* i64 0-d, incremented with train; may be NULL */
    double momentum;       /* 0: 0.1; running = (1 - momentum) running + momentum batch, with unbiased var */
    double eps;            /* 0: 1e-5 */
    bool relu;             /* return max(y, 0) */
    /* Synchronised batch norm, with train: x is a part of the batch. reduce sums `sums`, f64 [2 c + 1], in
       place over all parts, once in the forward and once in the backward pass; its last element is the number
       of values per channel. It returns false after fl_fail. No second derivative. */
    bool (*reduce)(fl_tensor *sums, void *user);
    void *reduce_user; /* user of reduce */
    char _end;
} fl_batch_norm_opts;
/* (x - mean) / sqrt(var + eps) weight + bias per channel of x [n, c, ...], with the batch's statistics if
   train, else the running ones; weight and bias are [c] or NULL. */
#define fl_batch_norm(...) FL__BATCH_NORM(fl_, __VA_ARGS__, ._end = 0)
#define fv_batch_norm(...) FL__BATCH_NORM(fv_, __VA_ARGS__, ._end = 0)
#define FL__BATCH_NORM(p, x, weight, bias, ...) \
    p##batch_norm_opt(x, weight, bias, FL_LITERAL(fl_batch_norm_opts, __VA_ARGS__))
FL_API fl_tensor *fl_batch_norm_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                    fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_batch_norm_opts o);
/* Batch norm, plus y of x's shape, then the optional relu: the end of a residual block, fused. */
#define fl_batch_norm_add(...) FL__BATCH_NORM_ADD(fl_, __VA_ARGS__, ._end = 0)
#define fv_batch_norm_add(...) FL__BATCH_NORM_ADD(fv_, __VA_ARGS__, ._end = 0)
#define FL__BATCH_NORM_ADD(p, x, weight, bias, y, ...) \
    p##batch_norm_add_opt(x, weight, bias, y, FL_LITERAL(fl_batch_norm_opts, __VA_ARGS__))
FL_API fl_tensor *fl_batch_norm_add_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                        fl_tensor *y, fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_add_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_var *y,
                                     fl_batch_norm_opts o);
/* x / (k + alpha mean(x^2))^beta, where the mean is over `size` neighbouring channels of x [n, c, ...], with
   zeros outside */
FL_API fl_tensor *fl_local_response_norm(fl_tensor *x, int64_t size, double alpha, double beta,
                                         double k);
FL_API fl_var *fv_local_response_norm(fl_var *x, int64_t size, double alpha, double beta, double k);
/* x / max(|x|_p, eps), with the p-norm along axis */
FL_API fl_tensor *fl_normalize(fl_tensor *x, double p, int axis, double eps);
FL_API fl_var *fv_normalize(fl_var *x, double p, int axis, double eps);
/* v g / |v|_2, with the norm over all axes but `axis`; g broadcasts to the norm's shape. */
FL_API fl_tensor *fl_weight_norm(fl_tensor *v, fl_tensor *g, int axis);
FL_API fl_var *fv_weight_norm(fl_var *v, fl_var *g, int axis);

FL_PRIVATE void fl__register_norm(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_NORM_H */

#if defined(FL_IMPL_ONLY_OPS_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_NORM_IMPL
#define FL_OPS_NORM_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "random.h"
#include "reduce.h"
#include "view.h"
#define FL_EXPAND_FILE "norm.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_layer_norm, fl_op_layer_norm_grad, fl_op_batch_norm, fl_op_batch_norm_grad;
FL_DATA_DEFINED fl_op fl_op_group_norm, fl_op_group_norm_grad, fl_op_add_layer_norm;
FL_DATA_DEFINED fl_op fl_op_batch_statistics;

FL_PRIVATE void fl__register_norm(void) {
    FL__REGISTER(layer_norm, .args_size = sizeof(fl_norm_args),
                 .uses = "sum add sub mul div sqrt square rsqrt", .compose = fl__compose_layer_norm,
                 .gradient = fv__layer_norm_back);
    FL__REGISTER(layer_norm_grad, .args_size = sizeof(fl_norm_args), .uses = "sum add sub mul div",
                 .compose = fl__compose_layer_norm_grad);
    FL__REGISTER(add_layer_norm, .args_size = sizeof(fl_add_norm_args),
                 .uses = "dropout layer_norm random ge le where sum add sub mul div sqrt square rsqrt",
                 .compose = fl__compose_add_layer_norm, .rng_end = sizeof(fl_add_norm_args));
    FL__REGISTER(batch_statistics, .args_size = sizeof(fl_batch_norm_args),
                 .uses = "sum sub mul div square concat", .compose = fl__compose_batch_statistics);
    FL__REGISTER(batch_norm, .args_size = sizeof(fl_batch_norm_args),
                 .uses = "sum add sub mul div sqrt maximum square rsqrt",
                 .compose = fl__compose_batch_norm, .gradient = fv__batch_norm_back);
    FL__REGISTER(batch_norm_grad, .args_size = sizeof(fl_batch_norm_args),
                 .uses = "sum add sub mul div sqrt where le rsqrt",
                 .compose = fl__compose_batch_norm_grad);
    FL__REGISTER(group_norm, .args_size = sizeof(fl_batch_norm_args),
                 .uses = "sum add sub mul div sqrt maximum square rsqrt",
                 .compose = fl__compose_batch_norm, .gradient = fv__batch_norm_back);
    FL__REGISTER(group_norm_grad, .args_size = sizeof(fl_batch_norm_args),
                 .uses = "sum add sub mul div sqrt where le rsqrt",
                 .compose = fl__compose_batch_norm_grad);
}

#endif /* FL_OPS_NORM_IMPL */
#endif
/* MIT licence: see LICENSE. */
