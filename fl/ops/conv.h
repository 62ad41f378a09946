/* fl/ops/conv.h - convolution and transposed convolution of 1 to 3 spatial dims, with gradients

   conv            y[n, o, p] = bias[o] + sum over c, k of x[n, c, stride p - pad + dilation k] w[o, c, k]
   conv_transpose  the gradient of conv with respect to x, as an op

   Records (args: fl_conv2d_args). In the op table of fl_backend.h: conv2d x, w -> y; conv2d_grad_input
   dy, w -> dx; conv2d_grad_weight x, dy -> dw. Registered here: conv2d_bias x, w, bias -> y, or max(0, y) if
   args.relu. relu is set only for conv2d_bias; without a bias it is a separate op. 1-d convolution is conv2d
   of one row. 3-d convolution is one conv2d per output depth: the input depths under the kernel become
   channels. Transposed, overlapping output depths are added. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_CONV_H
#define FL_OPS_CONV_H
#include "../records/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_conv_opts {
    fl_opts_guard guard_;
    int64_t stride[3];     /* per spatial dim; 0: as the dim before, first dim 1 */
    int64_t pad[3];        /* zeros on both sides, or FL_SAME; 0: as the dim before, first dim 0; FL_I0: 0 */
    int64_t dilation[3];   /* 0: as the dim before, first dim 1 */
    int64_t output_pad[3]; /* conv_transpose: extra elements at the end of this dim alone, fewer than its
                              stride or its dilation */
    int64_t groups;        /* 0: 1 */
    bool relu;             /* return max(0, y); not for conv_transpose */
    char _end;
} fl_conv_opts;
/* PyTorch's conv1d, conv2d and conv3d (cross-correlation): x [n, c, spatial...], w [o, c / groups,
   kernel...], bias [o] or NULL, floats of one dtype -> [n, o, spatial...]. A dim of size d becomes
   floor((d + 2 pad - dilation (k - 1) - 1) / stride) + 1; FL_SAME pads so that it becomes ceil(d / stride).
   Example: fl_conv(x, w, NULL, .stride = {2}, .pad = {1}). A 2-d result is stored channels-last if x or w is
   (fl_channels_last), and a gradient if one of its operands is. Errors: channels that do not match w and
   groups, a kernel larger than the padded input, settings out of range. */
#define fl_conv(...) FL__CONV(fl_, __VA_ARGS__, ._end = 0)
#define fv_conv(...) FL__CONV(fv_, __VA_ARGS__, ._end = 0)
#define FL__CONV(p, x, w, bias, ...) p##conv_opt(x, w, bias, FL_LITERAL(fl_conv_opts, __VA_ARGS__))
FL_API fl_tensor *fl_conv_opt(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv_opts o);
FL_API fl_var *fv_conv_opt(fl_var *x, fl_var *w, fl_var *bias, fl_conv_opts o);
/* PyTorch's conv_transpose1d to 3d: x [n, c, spatial...], w [c, o / groups, kernel...], bias [o] or NULL ->
   [n, o, spatial...]. A dim of size d becomes (d - 1) stride - 2 pad + dilation (k - 1) + output_pad + 1.
   FL_SAME is an error. */
#define fl_conv_transpose(...) FL__CONV_TRANSPOSE(fl_, __VA_ARGS__, ._end = 0)
#define fv_conv_transpose(...) FL__CONV_TRANSPOSE(fv_, __VA_ARGS__, ._end = 0)
#define FL__CONV_TRANSPOSE(p, x, w, bias, ...) \
    p##conv_transpose_opt(x, w, bias, FL_LITERAL(fl_conv_opts, __VA_ARGS__))
FL_API fl_tensor *fl_conv_transpose_opt(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv_opts o);
FL_API fl_var *fv_conv_transpose_opt(fl_var *x, fl_var *w, fl_var *bias, fl_conv_opts o);

typedef struct fl_conv2d_args fl_conv2d_args; /* fl_backend.h */
/* The 2-d records, with all settings resolved: x [n, c, h, w], w [o, c / groups, kh, kw], bias [o] or NULL;
   dx has x_shape, dw has w_shape. a.relu (return max(0, y)) is used by fl_conv2d_run only. */
FL_API fl_tensor *fl_conv2d_run(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv2d_args a);
FL_API fl_var *fv_conv2d_run(fl_var *x, fl_var *w, fl_var *bias, fl_conv2d_args a);
FL_API fl_tensor *fl_conv2d_grad_input(fl_tensor *dy, fl_tensor *w, fl_shape x_shape, fl_conv2d_args a);
FL_API fl_var *fv_conv2d_grad_input(fl_var *dy, fl_var *w, fl_shape x_shape, fl_conv2d_args a);
FL_API fl_tensor *fl_conv2d_grad_weight(fl_tensor *x, fl_tensor *dy, fl_shape w_shape, fl_conv2d_args a);

FL_PRIVATE void fl__register_conv(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_CONV_H */

#if defined(FL_IMPL_ONLY_OPS_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_CONV_IMPL
#define FL_OPS_CONV_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "image.h"
#include "index.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <string.h>
#define FL_EXPAND_FILE "conv.inc"
#include "expand.h"

/* ---- shape rules of the records ---- */

/* Checks settings that a caller may have filled in freely, so that nothing below divides by 0 or
   overflows. */
static bool fl__conv2d_args_ok(const char *fn, const fl_conv2d_args *a) {
    bool ok = true;
    if (!fl__in_range(a->groups, 1)) return fl_err_false("%s: groups must be at least 1, got %lld groups", fn,
                                                         (long long)a->groups);
    for (int i = 0; i < 2; i++)
        ok = ok && fl__in_range(a->stride[i], 1) && fl__in_range(a->pad_lo[i], 0) &&
             fl__in_range(a->pad_hi[i], 0) && fl__in_range(a->dilation[i], 1);
    if (ok) return true;
    return fl_err_false("%s: stride and dilation must be at least 1, pad at least 0: got stride %lld x %lld, "
                        "pad %lld x %lld, dilation %lld x %lld", fn,
                        (long long)a->stride[0], (long long)a->stride[1], (long long)a->pad_lo[0],
                        (long long)a->pad_lo[1], (long long)a->dilation[0], (long long)a->dilation[1]);
}

/* Checks that a and b are floats of one dtype on one backend. */
static bool fl__conv_floats(const char *fn, const fl_tensor *a, const fl_tensor *b) {
    if (fl_dtype_is_float(a->dtype) && a->dtype == b->dtype) return fl_same_backend(fn, a, b);
    return fl_err_false("%s: operands must be floats of one dtype, got %s and %s", fn,
                        fl_dtype_name(a->dtype), fl_dtype_name(b->dtype));
}

/* Convolution, then relu as a separate op. */
static fl_tensor *fl__conv2d_relu(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv2d_args a) {
    a.relu = false;
    fl_scope s = fl_scope_begin();
    return fl_scope_return(&s, fl_relu(fl_conv2d_run(x, w, bias, a)));
}

fl_tensor *fl_conv2d_run(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv2d_args a) {
    if (fl_is_null_arg("fl_conv2d", x) || fl_is_null_arg("fl_conv2d", w) ||
        !fl__conv_floats("fl_conv2d", x, w) || !fl__conv2d_args_ok("fl_conv2d", &a))
        return NULL;
    if (a.relu && !bias) return fl__conv2d_relu(x, w, NULL, a);
    if (x->ndim != 4 || w->ndim != 4 || x->shape[1] != w->shape[1] * a.groups ||
        w->shape[0] % a.groups || w->shape[1] < 1 || w->shape[2] < 1 || w->shape[3] < 1)
        return fl_err_null("fl_conv2d: channels do not match: got x %s, w %s, %lld groups, expected "
                           "x [n, c, h, w], w [o, c / groups, kh, kw], o divisible by "
                           "groups", FL_SHAPE_TEXT(x),
                           FL_SHAPE_TEXT(w), (long long)a.groups);
    if (bias && !fl__conv_floats("fl_conv2d", x, bias)) return NULL;
    if (bias && (bias->ndim != 1 || bias->shape[0] != w->shape[0]))
        return fl_err_null("fl_conv2d: bias must have one element per output channel of w %s, got bias %s",
                           FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(bias));
    fl_shape shape = FL_SHAPE(x->shape[0], w->shape[0], 0, 0);
    for (int i = 2; i < 4; i++) {
        shape.dim[i] = fl__windows(x->shape[i], a.pad_lo[i - 2], a.pad_hi[i - 2],
                                   a.dilation[i - 2] * (w->shape[i] - 1) + 1, a.stride[i - 2]);
        if (shape.dim[i] < 1)
            return fl_err_null("fl_conv2d: the kernel of w %s is larger than the padded image of x %s",
                               FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(x));
    }
    fl_call c = {.op = bias ? fl_op_conv2d_bias : FL_OP_conv2d, .n_out = 1, .n_in = bias ? 3 : 2,
                 .in = {x, w, bias}, .args = &a};
    c.out[0] = fl__image_as(fl_out_on(x->backend, shape, x->dtype), x, w);
    return c.out[0] ? fl_call_result(&c) : fl_raise();
}

/* Checks the operands p and q of a gradient of conv2d(x, w, a), and that dy has the shape of its result. */
static bool fl__conv2d_grad_ok(const char *fn, const fl_tensor *p, const fl_tensor *q, fl_shape x,
                               fl_shape w, const fl_tensor *dy, const fl_conv2d_args *a) {
    if (!fl__conv_floats(fn, p, q) || !fl__conv2d_args_ok(fn, a)) return false;
    bool ok = x.ndim == 4 && w.ndim == 4 && dy->ndim == 4 && x.dim[0] == dy->shape[0] &&
              w.dim[0] == dy->shape[1] && x.dim[1] == w.dim[1] * a->groups && w.dim[0] % a->groups == 0;
    for (int i = 0; ok && i < 2; i++)
        ok = fl__in_range(x.dim[2 + i], 0) && fl__in_range(w.dim[2 + i], 1) &&
             dy->shape[2 + i] == fl__windows(x.dim[2 + i], a->pad_lo[i], a->pad_hi[i],
                                             a->dilation[i] * (w.dim[2 + i] - 1) + 1, a->stride[i]);
    return ok || fl_err_false("%s: dy must have the shape of conv2d(x, w): got x %s, w %s, dy %s", fn,
                              FL_TEXT_OF(x), FL_TEXT_OF(w), FL_SHAPE_TEXT(dy));
}

fl_tensor *fl_conv2d_grad_input(fl_tensor *dy, fl_tensor *w, fl_shape x_shape, fl_conv2d_args a) {
    const char *fn = "fl_conv2d_grad_input";
    if (fl_is_null_arg(fn, dy) || fl_is_null_arg(fn, w) ||
        !fl__conv2d_grad_ok(fn, dy, w, x_shape, fl_shape_of(w), dy, &a))
        return NULL;
    fl_tensor *dx = fl__image_as(fl_out_on(dy->backend, x_shape, dy->dtype), dy, w);
    return fl_call_into(FL_OP_conv2d_grad_input, dx, dy, w, &a);
}

fl_tensor *fl_conv2d_grad_weight(fl_tensor *x, fl_tensor *dy, fl_shape w_shape, fl_conv2d_args a) {
    const char *fn = "fl_conv2d_grad_weight";
    if (fl_is_null_arg(fn, x) || fl_is_null_arg(fn, dy) ||
        !fl__conv2d_grad_ok(fn, x, dy, fl_shape_of(x), w_shape, dy, &a))
        return NULL;
    fl_tensor *dw = fl__image_as(fl_out_on(x->backend, w_shape, x->dtype), x, dy);
    return fl_call_into(FL_OP_conv2d_grad_weight, dw, x, dy, &a);
}

/* ---- composition ---- */

static bool fl__compose_conv2d_bias(const fl_call *c, fl_tensor **y) {
    const fl_conv2d_args *a = c->args;
    if (a->relu) return (y[0] = fl__conv2d_relu(c->in[0], c->in[1], c->in[2], *a)) != NULL;
    fl_tensor *product = fl_conv2d_run(c->in[0], c->in[1], NULL, *a);
    return (y[0] = fl_add(product, fl_reshape(c->in[2], FL_SHAPE(c->in[2]->shape[0], 1, 1)))) != NULL;
}

/* ---- gradients: those of conv2d, conv2d_grad_input and conv2d_grad_weight are the other two ---- */

static fl_var *fv__conv2d_grad_weight(fl_var *x, fl_var *dy, fl_shape w_shape, fl_conv2d_args a);

/* The gradient of w needs the most workspace, so it is computed before that of x. */
static void fv__conv2d_back(fl_node *n, fl_var *dy) {
    fl_conv2d_args a = *(const fl_conv2d_args *)fv_args(n);
    fl_var *x = fv_saved(n, 0), *w = fv_saved(n, 1);
    if (fv_needs(n, 2)) fv_add_grad(n, 2, fv_sum(dy, FL_AXES(0, 2, 3)));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv__conv2d_grad_weight(x, dy, fv_in_shape(n, 1), a));
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_conv2d_grad_input(dy, w, fv_in_shape(n, 0), a));
}

/* Inputs: dy, w. g has x's shape. */
static void fv__conv2d_grad_input_back(fl_node *n, fl_var *g) {
    fl_conv2d_args a = *(const fl_conv2d_args *)fv_args(n);
    fl_var *dy = fv_saved(n, 0), *w = fv_saved(n, 1);
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_conv2d_run(g, w, NULL, a));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv__conv2d_grad_weight(g, dy, fv_in_shape(n, 1), a));
}

/* Inputs: x, dy. g has w's shape. */
static void fv__conv2d_grad_weight_back(fl_node *n, fl_var *g) {
    fl_conv2d_args a = *(const fl_conv2d_args *)fv_args(n);
    fl_var *x = fv_saved(n, 0), *dy = fv_saved(n, 1);
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_conv2d_grad_input(dy, g, fv_in_shape(n, 0), a));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_conv2d_run(x, g, NULL, a));
}

/* Records y = f(p, q) + bias. f is bilinear, so p is saved only if q requires a gradient, and vice versa. */
static fl_var *fv__conv2d_record(const char *name, fl_tensor *y, fl_back_fn back, fl_var *p, fl_var *q,
                                 fl_var *bias, fl_conv2d_args a) {
    fl_var *saved_p = q && q->requires_grad ? p : NULL, *saved_q = p && p->requires_grad ? q : NULL;
    return fv_record_args(name, y, back, FV_IN(p, q, bias), FV_SAVE(saved_p, saved_q), &a, sizeof a);
}

/* With relu one record computes two nodes. The gradient of the first does not read its value: y stands in for
   it. */
FL_API fl_var *fv_conv2d_run(fl_var *x, fl_var *w, fl_var *bias, fl_conv2d_args a) {
    const bool relu = a.relu;
    fl_tensor *y = fl_conv2d_run(fv_value(x), fv_value(w), fv_value(bias), a);
    a.relu = false;
    fl_var *conv = fv__conv2d_record(bias ? "conv2d_bias" : "conv2d", y, fv__conv2d_back, x, w, bias, a);
    return conv && relu ? fv_record_formula(FL_OP_relu, conv, y) : conv;
}

FL_API fl_var *fv_conv2d_grad_input(fl_var *dy, fl_var *w, fl_shape x_shape, fl_conv2d_args a) {
    fl_tensor *dx = fl_conv2d_grad_input(fv_value(dy), fv_value(w), x_shape, a);
    return fv__conv2d_record("conv2d_grad_input", dx, fv__conv2d_grad_input_back, dy, w, NULL, a);
}

static fl_var *fv__conv2d_grad_weight(fl_var *x, fl_var *dy, fl_shape w_shape, fl_conv2d_args a) {
    fl_tensor *dw = fl_conv2d_grad_weight(fv_value(x), fv_value(dy), w_shape, a);
    return fv__conv2d_record("conv2d_grad_weight", dw, fv__conv2d_grad_weight_back, x, dy, NULL, a);
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_conv2d_bias;

static int64_t fl__conv2d_bias_macs(const fl_call *c) {
    return fl_numel(c->out[0]) * c->in[1]->shape[1] * c->in[1]->shape[2] * c->in[1]->shape[3];
}

FL_PRIVATE void fl__register_conv(void) {
    FL__REGISTER(conv2d_bias, .args_size = sizeof(fl_conv2d_args), .uses = "conv2d add relu maximum",
                 .compose = fl__compose_conv2d_bias, .gradient = fv__conv2d_back,
                 .macs = fl__conv2d_bias_macs);
}

#endif /* FL_OPS_CONV_IMPL */
#endif
/* MIT licence: see LICENSE. */
