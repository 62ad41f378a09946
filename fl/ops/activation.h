/* fl/ops/activation.h - activation functions with parameters, gated linear unit, maxout

   Activations without parameters (relu, gelu, silu ...) are in elementwise.h. Inputs are floats; integers
   become f32, and f16 and bf16 are computed in f32 and rounded once. SELECT computes both branches, so the
   operands of the branch that is not taken are replaced first: 0 * inf would be NaN in the gradient.

   Records (args: fl_axis_args); the kernels take f16 and bf16 too.
     glu       x = [a, g] along the axis, which has an even size -> y = a / (1 + exp(-g))
     glu_grad  x, dy -> dx */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ACTIVATION_H
#define FL_OPS_ACTIVATION_H
#include "../records/activation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x > 0 ? x : alpha expm1(x) */
FL_API fl_tensor *fl_elu(fl_tensor *x, double alpha);
FL_API fl_var *fv_elu(fl_var *x, double alpha);
/* x > 0 ? x : alpha expm1(x / alpha) */
FL_API fl_tensor *fl_celu(fl_tensor *x, double alpha);
FL_API fl_var *fv_celu(fl_var *x, double alpha);
/* x > 0 ? x : slope x */
FL_API fl_tensor *fl_leaky_relu(fl_tensor *x, double slope);
FL_API fl_var *fv_leaky_relu(fl_var *x, double slope);
/* x > 0 ? x : w x, as torch's prelu: w [1], or w [c] with one slope per channel (axis 1 of x). */
FL_API fl_tensor *fl_prelu_channels(fl_tensor *x, fl_tensor *w);
FL_API fl_var *fv_prelu_channels(fl_var *x, fl_var *w);
/* x > limit ? x : value */
FL_API fl_tensor *fl_threshold(fl_tensor *x, double limit, double value);
FL_API fl_var *fv_threshold(fl_var *x, double limit, double value);
/* |x| > lambda ? x : 0 */
FL_API fl_tensor *fl_hardshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_hardshrink(fl_var *x, double lambda);
/* x - clamp(x, -lambda, lambda). Error if lambda < 0. */
FL_API fl_tensor *fl_softshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_softshrink(fl_var *x, double lambda);
/* x sigmoid(beta x) */
FL_API fl_tensor *fl_swish(fl_tensor *x, double beta);
FL_API fl_var *fv_swish(fl_var *x, double beta);
/* a sigmoid(g), where a and g are the first and second half of x along axis. Error if its size is odd. */
FL_API fl_tensor *fl_glu(fl_tensor *x, int axis);
FL_API fl_var *fv_glu(fl_var *x, int axis);
/* Maximum of each group of `pieces` consecutive elements along axis: size n -> n / pieces, which must
   divide. */
FL_API fl_tensor *fl_maxout(fl_tensor *x, int64_t pieces, int axis);
FL_API fl_var *fv_maxout(fl_var *x, int64_t pieces, int axis);
/* beta x > threshold ? x : log(1 + exp(beta x)) / beta */
FL_API fl_tensor *fl_softplus_beta(fl_tensor *x, double beta, double threshold);
FL_API fl_var *fv_softplus_beta(fl_var *x, double beta, double threshold);

FL_PRIVATE void fl__register_activation(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ACTIVATION_H */

#if defined(FL_IMPL_ONLY_OPS_ACTIVATION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ACTIVATION_IMPL
#define FL_OPS_ACTIVATION_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#define FL_EXPAND_FILE "activation.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_glu, fl_op_glu_grad;

FL_PRIVATE void fl__register_activation(void) {
    FL__REGISTER(glu, .args_size = sizeof(fl_axis_args), .uses = "mul div add exp neg copy sigmoid",
                 .compose = fl__compose_glu, .gradient = fv__glu_back);
    FL__REGISTER(glu_grad, .args_size = sizeof(fl_axis_args),
                 .uses = "mul sub div add exp neg copy sigmoid", .compose = fl__compose_glu_grad);
}

#endif /* FL_OPS_ACTIVATION_IMPL */
#endif
/* MIT licence: see LICENSE. */
