/* fl/vision/deform.h - deformable convolution: learned sampling offsets, optional modulation mask

   deform_columns   im2col with offsets: for each output position p and kernel element k, x at the shifted
                    position (bilinear), times the mask:
                    v[n, c, k, p] = mask[n, g, k, p] x[n, c, p stride - pad + k dilation + offset[n, g, k, p]]
                    for channels c of offset group g (arXiv 1703.06211, with the mask 1811.11168)

   Ops (fl_deform_args), all operands of one float dtype:
   deform_columns: x [n, c, h, w], offset [n, 2 groups kh kw, oh, ow], and if args.masked mask [n, groups kh
   kw, oh, ow] -> columns [n, c, kh kw, oh ow].
   deform_columns_grad: the same operands, then the gradient of columns -> the gradients of x, offset and
   mask; each output may be NULL. */
#ifndef FL_VISION_DEFORM_H
#define FL_VISION_DEFORM_H
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_deform_args {
    int64_t kernel[2], stride[2], pad[2], dilation[2]; /* h, w */
    int64_t groups;                                    /* offset groups */
    int64_t masked;
} fl_deform_args;
typedef struct fl_vision_deform_opts {
    fl_opts_guard guard_;
    int64_t stride[2], dilation[2]; /* h, w; first 0 -> 1, second 0 -> the first */
    int64_t pad[2];                 /* zeros on both sides; second 0 -> the first, FL_I0: none */
    char _end;
} fl_vision_deform_opts;
/* Deformable convolution (torchvision.ops.deform_conv2d): x [n, c, h, w]; offset [n, 2 g kh kw, oh, ow] in
   pixels, a pair (down, right) for each of g channel groups and kernel elements; weight [o, c / groups, kh,
   kw]; bias [o] or NULL; mask [n, g kh kw, oh, ow] or NULL (version 1); floats of one dtype -> [n, o, oh,
   ow]. With zero offsets and no mask it equals fl_conv. Differentiable in all operands:
   fl_vision_deform_conv2d(x, offset, weight, NULL, NULL, .pad = {1}) */
#define fl_vision_deform_conv2d(...) FL__DEFORM(fl_, __VA_ARGS__, ._end = 0)
#define fv_vision_deform_conv2d(...) FL__DEFORM(fv_, __VA_ARGS__, ._end = 0)
#define FL__DEFORM(p, x, offset, weight, bias, mask, ...) \
    p##vision_deform_conv2d_opt(x, offset, weight, bias, mask, \
                                FL_LITERAL(fl_vision_deform_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_deform_conv2d_opt(fl_tensor *x, fl_tensor *offset, fl_tensor *weight,
                                              fl_tensor *bias, fl_tensor *mask, fl_vision_deform_opts o);
FL_API fl_var *fv_vision_deform_conv2d_opt(fl_var *x, fl_var *offset, fl_var *weight, fl_var *bias,
                                           fl_var *mask, fl_vision_deform_opts o);
FL_DATA fl_op fl_op_deform_columns, fl_op_deform_columns_grad;
/* Registers the ops and their kernels once; the functions above call it. Call it before other threads
   start. */
FL_API bool fl_deform_register(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_DEFORM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_DEFORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_DEFORM_IMPL
#define FL_VISION_DEFORM_IMPL
#include "../../fl_backend.h"
#include "../../kernels/vision/deform_columns.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <pthread.h>

FL_DATA_DEFINED fl_op fl_op_deform_columns, fl_op_deform_columns_grad;

/* Sampling positions without offsets along axis 0 or 1: [kh, 1, oh, 1] or [kw, 1, ow]. */
static fl_tensor *fl__deform_positions(const fl_tensor *like, const fl_deform_args *a, int axis,
                                       int64_t size) {
    fl_tensor *k = fl_new_arange(like, 0, (double)a->kernel[axis], 1, like->dtype);
    fl_tensor *p = fl_new_arange(like, 0, (double)size, 1, like->dtype);
    k = fl_mul(k, fl_num((double)a->dilation[axis]));
    p = fl_sub(fl_mul(p, fl_num((double)a->stride[axis])), fl_num((double)a->pad[axis]));
    if (!k || !p) return NULL;
    k = fl_reshape(k, FL_SHAPE(a->kernel[axis], 1, 1));
    if (axis) return fl_add(k, p);
    return fl_add(fl_unsqueeze(k, 3), fl_reshape(p, FL_SHAPE(size, 1)));
}

#define FL_EXPAND_FILE "../vision/deform.inc"
#include "../ops/expand.h"

static bool fl__compose_deform(const fl_call *c, fl_tensor **y) {
    return (y[0] = fl__deform_composed(c->in, c->args)) != NULL;
}

/* The gradients of the operands, given the gradient dy of columns, by autograd through the composition. */
static bool fv__deform_gradient(fl_var *const *given, const fl_deform_args *a, fl_var *dy, fl_var **d) {
    const bool create = fl_grad_enabled(), recorded = fl_no_grad(false);
    const int n = 2 + a->masked;
    fl_var *x[3] = {NULL, NULL, NULL};
    bool ok = true;
    for (int i = 0; i < n; i++)
        ok &= (x[i] = create && given[i]->requires_grad ? given[i] : fv_param(fv_value(given[i]))) != NULL;
    fl_var *y = ok ? fv__deform_composed(x, a) : NULL, *root = y ? fv_sum(fv_mul(y, dy), FL_ALL_AXES) : NULL;
    ok = root && fl_grads(FV_LIST(root), fv_list_of(n, x), d, .create_graph = create);
    fl_no_grad(recorded);
    return ok;
}

static bool fv__compose_deform_grad(const fl_call *c, fl_tensor **d) {
    const fl_deform_args *a = c->args;
    fl_var *x[4], *g[3];
    bool ok = true;
    for (int i = 0; i < c->n_in; i++) ok &= (x[i] = fv_const(c->in[i])) != NULL;
    const bool recorded = fl_no_grad(true);
    ok = ok && fv__deform_gradient(x, a, x[c->n_in - 1], g);
    fl_no_grad(recorded);
    for (int i = 0; ok && i < c->n_out; i++) d[i] = fv_value(g[i]);
    return ok;
}

static void fv__deform_backward(fl_node *n, fl_var *dy) {
    const fl_deform_args a = *(const fl_deform_args *)fv_args(n);
    fl_var *in[3], *d[3] = {NULL, NULL, NULL};
    fl_call c = {.op = fl_op_deform_columns_grad, .n_out = 2 + a.masked, .args = &a};
    for (; c.n_in < c.n_out; c.n_in++) {
        if (!(in[c.n_in] = fv_saved(n, c.n_in))) return;
        c.in[c.n_in] = fv_value(in[c.n_in]);
    }
    if (fl_grad_enabled()) {
        if (!fv__deform_gradient(in, &a, dy, d)) return;
    } else {
        c.in[c.n_in++] = fv_value(dy);
        for (int i = 0; i < c.n_out; i++)
            if (fv_needs(n, i) &&
                !(c.out[i] = fl_out_on(c.in[i]->backend, fl_shape_of(c.in[i]), c.in[i]->dtype))) return;
        if (!fl_call_run(&c)) {
            fl_raise();
            return;
        }
        for (int i = 0; i < c.n_out; i++)
            if (c.out[i]) d[i] = fv_const(c.out[i]);
    }
    for (int i = 0; i < c.n_out; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, d[i]);
}

static pthread_once_t fl__deform_once = PTHREAD_ONCE_INIT;
static bool fl__deform_registered;

static void fl__deform_register_all(void) {
    fl_backend cpu = *fl_backend_at(fl_backend_index(fl_backend_cpu()->name));
    FL__REGISTER(deform_columns, .args_size = sizeof(fl_deform_args),
                 .uses = "iota mul sub add floor ge lt logical_and maximum minimum gather where",
                 .compose = fl__compose_deform, .gradient = fv__deform_backward);
    if (fl_op_deform_columns == FL_OP_NONE) return;
    FL__REGISTER(deform_columns_grad, .args_size = sizeof(fl_deform_args),
                 .uses = "iota mul sub add floor ge lt logical_and maximum minimum gather where neg sum "
                             "scatter_add",
                 .compose = fv__compose_deform_grad);
    if (fl_op_deform_columns_grad == FL_OP_NONE) return;
    fl__cpu_deform_slots(&cpu);
    fl__deform_registered = fl_backend_use(&cpu, NULL);
}

FL_API bool fl_deform_register(void) {
    pthread_once(&fl__deform_once, fl__deform_register_all);
    return fl__deform_registered;
}

#endif
#endif
/* MIT licence: see LICENSE. */
