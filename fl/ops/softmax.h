/* fl/ops/softmax.h - softmax and its logarithm along one axis

   softmax      y_i = exp(x_i - m) / s,  m = max x (0 where it is infinite),  s = sum exp(x - m)
   log_softmax  y_i = (x_i - m) - log s

   Records (fl_axis_args): softmax and log_softmax x -> y; softmax_grad and log_softmax_grad y, dy -> dx.
   Kernels get f32 or f64: other dtypes are cast before. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_SOFTMAX_H
#define FL_OPS_SOFTMAX_H
#include "../records/softmax.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Softmax and log softmax along axis, numerically stable for any finite x. Floats; integers become f32. */
FL_API fl_tensor *fl_softmax(fl_tensor *x, int axis);
FL_API fl_var *fv_softmax(fl_var *x, int axis);
FL_API fl_tensor *fl_log_softmax(fl_tensor *x, int axis);
FL_API fl_var *fv_log_softmax(fl_var *x, int axis);
/* The gradient of softmax with result y: dx = y (dy - sum(y dy)). y and dy are floats of one shape and
   dtype. */
FL_API fl_tensor *fl_softmax_grad(fl_tensor *y, fl_tensor *dy, int axis);
/* The gradient of log softmax with result y: dx = dy - exp(y) sum(dy). */
FL_API fl_tensor *fl_log_softmax_grad(fl_tensor *y, fl_tensor *dy, int axis);
/* The maximum along axes (kept as size 1), 0 where it is infinite: exp(x - max) does not overflow. */
FL_API fl_tensor *fl_stable_max(fl_tensor *x, fl_axes axes);

FL_PRIVATE void fl__register_softmax(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_SOFTMAX_H */

#if defined(FL_IMPL_ONLY_OPS_SOFTMAX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_SOFTMAX_IMPL
#define FL_OPS_SOFTMAX_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "autocast.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include <math.h>

/* ---- shape rules ---- */

/* Runs op on x along axis. */
static fl_tensor *fl__softmax_of(fl_op op, const char *fn, fl_tensor *x, int axis) {
    if (fl_is_null_arg(fn, x) || !(x = fl_materialise(x)) || (axis = fl_axis_of(fn, x,
                                                                                axis)) < 0) return NULL;
    if (!fl_dtype_is_float(x->dtype) && !(x = fl_cast(x, FL_F32))) return NULL;
    return fl_call_into(op, fl_out_like(x, x->dtype), x, NULL, &(fl_axis_args){axis});
}

static fl_tensor *fl__softmax_grad_of(fl_op op, const char *fn, fl_tensor *y, fl_tensor *dy, int axis) {
    if (fl_is_null_arg(fn, y) || fl_is_null_arg(fn, dy) || !(y = fl_materialise(y)) ||
        !(dy = fl_materialise(dy)) || (axis = fl_axis_of(fn, y, axis)) < 0)
        return NULL;
    if (!fl_same_shape(y, dy) || y->dtype != dy->dtype || y->backend != dy->backend ||
        !fl_dtype_is_float(y->dtype))
        return fl_err_null("%s: y and dy must be floats of one shape and dtype: got y %s %s, dy %s %s", fn,
                           fl_dtype_name(y->dtype), FL_SHAPE_TEXT(y), fl_dtype_name(dy->dtype),
                           FL_SHAPE_TEXT(dy));
    return fl_call_into(op, fl_out_like(y, y->dtype), y, dy, &(fl_axis_args){axis});
}

fl_tensor *fl_softmax(fl_tensor *x, int axis) {
    return fl__softmax_of(fl_op_softmax, "fl_softmax", x, axis);
}

fl_tensor *fl_log_softmax(fl_tensor *x, int axis) {
    return fl__softmax_of(fl_op_log_softmax, "fl_log_softmax", x, axis);
}

fl_tensor *fl_softmax_grad(fl_tensor *y, fl_tensor *dy, int axis) {
    return fl__softmax_grad_of(fl_op_softmax_grad, "fl_softmax_grad", y, dy, axis);
}

fl_tensor *fl_log_softmax_grad(fl_tensor *y, fl_tensor *dy, int axis) {
    return fl__softmax_grad_of(fl_op_log_softmax_grad, "fl_log_softmax_grad", y, dy, axis);
}

/* ---- compositions ---- */

fl_tensor *fl_stable_max(fl_tensor *x, fl_axes axes) {
    axes.keepdim = true;
    fl_tensor *m = fl_amax(x, axes);
    return fl_where(fl_eq(fl_abs(m), fl_num((double)INFINITY)), fl_constant(0), m);
}

static int fl__softmax_axis(const fl_call *c) {
    return ((const fl_axis_args *)c->args)->axis;
}

static bool fl__compose_softmax(const fl_call *c, fl_tensor **y) {
    fl_tensor *x = c->in[0];
    const int axis = fl__softmax_axis(c);
    if (fl_numel(x) == 0) return (y[0] = x) != NULL; /* empty: no maximum */
    fl_tensor *e = fl_exp(fl_sub(x, fl_stable_max(x, FL_AXES(axis))));
    return (y[0] = fl_div(e, fl_sum(e, FL_AXES_KEEP(axis)))) != NULL;
}

static bool fl__compose_log_softmax(const fl_call *c, fl_tensor **y) {
    fl_tensor *x = c->in[0];
    const int axis = fl__softmax_axis(c);
    if (fl_numel(x) == 0) return (y[0] = x) != NULL;
    fl_tensor *d = fl_sub(x, fl_stable_max(x, FL_AXES(axis)));
    return (y[0] = fl_sub(d, fl_log(fl_sum(fl_exp(d), FL_AXES_KEEP(axis))))) != NULL;
}

static bool fl__compose_softmax_grad(const fl_call *c, fl_tensor **dx) {
    fl_tensor *y = c->in[0], *dy = c->in[1];
    fl_tensor *sum = fl_sum(fl_mul(dy, y), FL_AXES_KEEP(fl__softmax_axis(c)));
    return (dx[0] = fl_mul(y, fl_sub(dy, sum))) != NULL;
}

static bool fl__compose_log_softmax_grad(const fl_call *c, fl_tensor **dx) {
    fl_tensor *y = c->in[0], *dy = c->in[1];
    fl_tensor *sum = fl_sum(dy, FL_AXES_KEEP(fl__softmax_axis(c)));
    return (dx[0] = fl_sub(dy, fl_mul(fl_exp(y), sum))) != NULL;
}

/* ---- gradients: fused, or composed if they are recorded for a second derivative ---- */

static void fv__softmax_back(fl_node *n, fl_var *dy) {
    const int axis = ((const fl_axis_args *)fv_args(n))->axis;
    fl_var *y = fv_saved(n, 0);
    if (!fl_grad_enabled()) fv_add_grad(n, 0, fv_const(fl_softmax_grad(fv_value(y), fv_value(dy), axis)));
    else fv_add_grad(n, 0, fv_mul(y, fv_sub(dy, fv_sum(fv_mul(dy, y), FL_AXES_KEEP(axis)))));
}

fl_var *fv_softmax(fl_var *x, int axis) {
    if (!fv_autocast(fl_op_softmax, &x, 1)) return NULL;
    return fv_record_op(fl_op_softmax, fl_softmax(fv_value(x), axis), FV_IN(x), FV_SAVE(FV_OUT),
                        &(fl_axis_args){axis});
}

static void fv__log_softmax_back(fl_node *n, fl_var *dy) {
    const int axis = ((const fl_axis_args *)fv_args(n))->axis;
    fl_var *y = fv_saved(n, 0);
    if (!fl_grad_enabled()) fv_add_grad(n, 0, fv_const(fl_log_softmax_grad(fv_value(y), fv_value(dy), axis)));
    else fv_add_grad(n, 0, fv_sub(dy, fv_mul(fv_exp(y), fv_sum(dy, FL_AXES_KEEP(axis)))));
}

fl_var *fv_log_softmax(fl_var *x, int axis) {
    if (!fv_autocast(fl_op_log_softmax, &x, 1)) return NULL;
    return fv_record_op(fl_op_log_softmax, fl_log_softmax(fv_value(x), axis), FV_IN(x), FV_SAVE(FV_OUT),
                        &(fl_axis_args){axis});
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_softmax, fl_op_softmax_grad, fl_op_log_softmax, fl_op_log_softmax_grad;

FL_PRIVATE void fl__register_softmax(void) {
    FL__REGISTER(softmax, .args_size = sizeof(fl_axis_args), .uses = "amax eq abs where sub exp sum div",
                 .compose = fl__compose_softmax, .gradient = fv__softmax_back);
    FL__REGISTER(softmax_grad, .args_size = sizeof(fl_axis_args), .uses = "mul sum sub",
                 .compose = fl__compose_softmax_grad);
    FL__REGISTER(log_softmax, .args_size = sizeof(fl_axis_args),
                 .uses = "amax eq abs where sub exp sum log", .compose = fl__compose_log_softmax,
                 .gradient = fv__log_softmax_back);
    FL__REGISTER(log_softmax_grad, .args_size = sizeof(fl_axis_args), .uses = "exp mul sum sub",
                 .compose = fl__compose_log_softmax_grad);
}

#endif /* FL_OPS_SOFTMAX_IMPL */
#endif
/* MIT licence: see LICENSE. */
