/* fl/ops/activation.h - activations with settings, and gated linear units

   Those without settings (relu, gelu, silu ...) are formulas of the table in fl_tensor.h. A branch
   that SELECT does not take is computed all the same: its operands are made harmless first, or 0 * inf
   would be NaN in the gradient.

   Records (args: fl_axis_args); slots take halves as they are.
     glu       x, an even number of elements along the axis: a, then g -> y = a / (1 + exp(-g))
     glu_grad  x, dy -> dx */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ACTIVATION_H
#define FL_OPS_ACTIVATION_H

#ifdef __cplusplus
extern "C" {
#endif

/* x > 0 ? x : alpha expm1(x);  x > 0 ? x : alpha expm1(x / alpha);  x > 0 ? x : slope x */
FL_API fl_tensor *fl_elu(fl_tensor *x, double alpha);
FL_API fl_var *fv_elu(fl_var *x, double alpha);
FL_API fl_tensor *fl_celu(fl_tensor *x, double alpha);
FL_API fl_var *fv_celu(fl_var *x, double alpha);
FL_API fl_tensor *fl_leaky_relu(fl_tensor *x, double slope);
FL_API fl_var *fv_leaky_relu(fl_var *x, double slope);
/* prelu with a number w [1], or w [c] with one for each place along axis 1 of x */
FL_API fl_tensor *fl_prelu_channels(fl_tensor *x, fl_tensor *w);
FL_API fl_var *fv_prelu_channels(fl_var *x, fl_var *w);
/* x > limit ? x : value;  |x| > lambda ? x : 0;  x less the part of it in [-lambda, lambda] */
FL_API fl_tensor *fl_threshold(fl_tensor *x, double limit, double value);
FL_API fl_var *fv_threshold(fl_var *x, double limit, double value);
FL_API fl_tensor *fl_hardshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_hardshrink(fl_var *x, double lambda);
FL_API fl_tensor *fl_softshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_softshrink(fl_var *x, double lambda);
/* x sigmoid(beta x);  a sigmoid(b) of the halves a, b of x along axis */
FL_API fl_tensor *fl_swish(fl_tensor *x, double beta);
FL_API fl_var *fv_swish(fl_var *x, double beta);
FL_API fl_tensor *fl_glu(fl_tensor *x, int axis);
FL_API fl_var *fv_glu(fl_var *x, int axis);
/* The largest of each `pieces` neighbours along axis, whose size they divide. */
FL_API fl_tensor *fl_maxout(fl_tensor *x, int64_t pieces, int axis);
FL_API fl_var *fv_maxout(fl_var *x, int64_t pieces, int axis);
/* beta x > threshold ? x : log(1 + exp(beta x)) / beta */
FL_API fl_tensor *fl_softplus_beta(fl_tensor *x, double beta, double threshold);
FL_API fl_var *fv_softplus_beta(fl_var *x, double beta, double threshold);

FL_DATA fl_op fl_op_glu, fl_op_glu_grad;
FL_PRIVATE void fl__register_activation(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ACTIVATION_H */

#if defined(FL_IMPL_ONLY_OPS_ACTIVATION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ACTIVATION_IMPL
#define FL_OPS_ACTIVATION_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#define FL_TEXT "activation.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_glu, fl_op_glu_grad;

FL_PRIVATE void fl__register_activation(void) {
    static const fl_op_info glu = {.name = "glu",
                                   .args_size = sizeof(fl_axis_args),
                                   .contains = "mul div add exp neg copy",
                                   .compose = fl__compose_glu,
                                   .gradient = fv__glu_back},
                            glu_grad = {.name = "glu_grad",
                                        .args_size = sizeof(fl_axis_args),
                                        .contains = "mul sub div add exp neg copy",
                                        .compose = fl__compose_glu_grad};
    fl_op_glu = fl_op_register(&glu);
    fl_op_glu_grad = fl_op_register(&glu_grad);
}

#endif /* FL_OPS_ACTIVATION_IMPL */
#endif
#else /* the text: see expand.h */

FL_T *FL_W(elu)(FL_T *x, double alpha) {
    if (FL_ABSENT("elu", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *above = LT(CONST(0), x), *low = SELECT(above, CONST(0), x);
    FL_T *y = SELECT(above, x, MUL(CONST(alpha), EXPM1(low)));
    return FL_GIVE(&s, FL_W(_narrowed)(y, given));
}

FL_T *FL_W(celu)(FL_T *x, double alpha) {
    if (FL_ABSENT("celu", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *above = LT(CONST(0), x), *low = SELECT(above, CONST(0), x);
    FL_T *curve = MUL(CONST(alpha), EXPM1(DIV(low, CONST(alpha))));
    return FL_GIVE(&s, FL_W(_narrowed)(SELECT(above, x, curve), given));
}

FL_T *FL_W(leaky_relu)(FL_T *x, double slope) {
    if (FL_ABSENT("leaky_relu", x)) return NULL;
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, FL_W(prelu)(x, CONST(slope)));
}

FL_T *FL_W(prelu_channels)(FL_T *x, FL_T *w) {
    if (FL_ABSENT("prelu_channels", x) || FL_ABSENT("prelu_channels", w)) return NULL;
    fl_tensor *t = FL_VALUE(x), *u = FL_VALUE(w);
    if (u->ndim != 1 || (u->shape[0] != 1 && (t->ndim < 2 || u->shape[0] != t->shape[1])))
        return fl_bad("fl_prelu_channels: x %s and w %s: w needs a number for each place of axis 1",
                      FL_SHAPE_TEXT(t), FL_SHAPE_TEXT(u));
    fl_scope s = fl_scope_begin();
    fl_shape one_each = {t->ndim > 1 ? t->ndim - 1 : 1, {u->shape[0], 1, 1, 1, 1, 1, 1, 1}};
    return FL_GIVE(&s, FL_W(prelu)(x, FL_W(reshape)(w, one_each)));
}

FL_T *FL_W(threshold)(FL_T *x, double limit, double value) {
    if (FL_ABSENT("threshold", x)) return NULL;
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, SELECT(LE(x, CONST(limit)), CONST(value), x));
}

FL_T *FL_W(hardshrink)(FL_T *x, double lambda) {
    if (FL_ABSENT("hardshrink", x)) return NULL;
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, SELECT(LE(ABS(x), CONST(lambda)), CONST(0), x));
}

FL_T *FL_W(softshrink)(FL_T *x, double lambda) {
    if (FL_ABSENT("softshrink", x)) return NULL;
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, SUB(x, FL_W(clamp)(x, CONST(-lambda), CONST(lambda))));
}

FL_T *FL_W(softplus_beta)(FL_T *x, double beta, double threshold) {
    if (FL_ABSENT("softplus_beta", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *scaled = MUL(x, CONST(beta)), *straight = LT(CONST(threshold), scaled);
    FL_T *curve = DIV(FL_W(softplus)(SELECT(straight, CONST(0), scaled)), CONST(beta));
    return FL_GIVE(&s, FL_W(_narrowed)(SELECT(straight, x, curve), given));
}

FL_T *FL_W(swish)(FL_T *x, double beta) {
    if (FL_ABSENT("swish", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, FL_W(_narrowed)(MUL(x, FL_W(sigmoid)(MUL(x, CONST(beta)))), given));
}

/* The halves a, g of x and s = sigmoid(g); false after an error. */
static bool FL_W(_glu_parts)(FL_T *x, int axis, FL_T *part[3]) {
    const int64_t n = FL_VALUE(x)->shape[axis];
    part[0] = FL_W(slice)(x, axis, 0, n / 2, 1);
    part[1] = FL_W(slice)(x, axis, n / 2, n, 1);
    part[2] = part[1] ? FL_W(sigmoid)(part[1]) : NULL;
    return part[0] && part[2];
}

/* dy s and dy a s (1 - s), side by side */
static FL_T *FL_W(_glu_grad)(FL_T *x, FL_T *dy, int axis) {
    FL_T *part[3], *d[2];
    if (!FL_W(_glu_parts)(x, axis, part)) return NULL;
    d[0] = MUL(dy, part[2]);
    d[1] = MUL(MUL(d[0], part[0]), SUB(CONST(1), part[2]));
    return d[1] ? FL_W(concat)(d, 2, axis) : NULL;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_glu(const fl_call *c, fl_tensor **y) {
    fl_tensor *part[3];
    if (!fl__glu_parts(c->in[0], ((const fl_axis_args *)c->args)->axis, part)) return false;
    return (y[0] = fl_mul(part[0], part[2])) != NULL;
}

static bool fl__compose_glu_grad(const fl_call *c, fl_tensor **d) {
    d[0] = fl__glu_grad(c->in[0], c->in[1], ((const fl_axis_args *)c->args)->axis);
    return d[0] != NULL;
}
#else
static void fv__glu_back(fl_node *n, fl_var *dy) {
    fl_axis_args a = *(const fl_axis_args *)fv_args(n);
    fl_var *x = fv_saved(n, 0);
    if (!x) return;
    if (fl_grad_enabled()) {
        fv_add_grad(n, 0, fv__glu_grad(x, dy, a.axis));
        return;
    }
    const fl_tensor *t = x->value;
    fl_tensor *dx = fl_out_order_as(fl_out_on(t->family, fl_shape_of(t), t->dtype), t);
    fv_add_grad(n, 0, fv_const(fl_call_into(fl_op_glu_grad, dx, x->value, dy->value, &a)));
}
#endif

FL_T *FL_W(glu)(FL_T *x, int axis) {
    if (FL_ABSENT("glu", x)) return NULL;
    const fl_axis_args a = {fl_axis_of("fl_glu", FL_VALUE(x), axis)};
    if (a.axis < 0) return NULL;
    fl_shape half = fl_shape_of(FL_VALUE(x));
    if (half.dim[a.axis] % 2)
        return fl_bad("fl_glu: axis %d has %lld elements, an odd number", axis,
                      (long long)half.dim[a.axis]);
    half.dim[a.axis] /= 2;
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    const fl_tensor *t = FL_VALUE(x);
    fl_tensor *y = fl_out_order_as(fl_out_on(t->family, half, t->dtype), t);
    y = fl_call_into(fl_op_glu, y, FL_VALUE(x), NULL, &a);
#ifdef FL_ON_TENSORS
    return fl_scope_return(&s, y);
#else
    return fv_scope_return(&s, fv_record_op(fl_op_glu, y, FV_IN(x), FV_SAVE(x), &a));
#endif
}

FL_T *FL_W(maxout)(FL_T *x, int64_t pieces, int axis) {
    if (FL_ABSENT("maxout", x)) return NULL;
    fl_shape s = fl_shape_of(FL_VALUE(x));
    int at = axis < 0 ? axis + s.ndim : axis;
    if (at < 0 || at >= s.ndim || s.ndim == FL_MAX_DIMS || pieces < 1 || s.dim[at] % pieces)
        return fl_bad("fl_maxout: axis %d of shape %s in groups of %lld", axis,
                      FL_SHAPE_TEXT(FL_VALUE(x)), (long long)pieces);
    fl_scope scope = fl_scope_begin();
    for (int i = s.ndim++; i > at + 1; i--) s.dim[i] = s.dim[i - 1];
    s.dim[at] /= pieces;
    s.dim[at + 1] = pieces;
    return FL_GIVE(&scope, FL_W(amax)(FL_W(reshape)(x, s), FL_AXES(at + 1)));
}

#endif
/* MIT licence: see LICENSE. */
