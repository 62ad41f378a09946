/* layers.h - sequences of layers, and the plain ones: shapes, linear, activations, pooling */
#ifndef FL_NN_LAYERS_H
#define FL_NN_LAYERS_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each child's results are the next one's inputs. Owns the children; if it fails, they are freed.
   fl_nn_add adds more. */
#define fl_nn_sequential(...) \
    fl_nn_sequential_of(FL_COUNT(fl_nn_module *, __VA_ARGS__), FL_ARRAY(fl_nn_module *, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children);
/* In all sequences of the tree, swaps a ReLU and the max pooling right behind it: values and
   gradients are the same, and ReLU has, and keeps, fewer numbers. For a network whose convolutions
   are followed so (VGG16 trains in 15 % less memory). Once, when the tree is made. False after an
   error. */
FL_API bool fl_nn_pool_before_relu(fl_nn_module *m);

/* Same elements, other shape. A first dim of -1 is that of the input (the batch); one other may be
   -1. */
FL_API fl_nn_module *fl_nn_view(fl_shape shape);

typedef struct fl_nn_linear_opts {
    fl_named _positional;
    bool no_bias;
    fl_op act; /* y = act(that), one of fl_linear_act's: FL_OP_relu, FL_OP_gelu, ...; 0 -> none */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_linear_opts;
/* y = x weight^T + bias; x [..., in] -> [..., out], weight [out, in], bias [out], both U(-1 /
   sqrt(in), 1 / sqrt(in)). */
#define fl_nn_linear(...) FL_NN__LINEAR(__VA_ARGS__, ._end = 0)
#define FL_NN__LINEAR(in, out, ...) fl_nn_linear_opt(in, out, (fl_nn_linear_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o);

/* A function of one variable as a layer, e.g. fl_nn_activation("SiLU", fv_silu); the name is for
   printing (a literal). */
FL_API fl_nn_module *fl_nn_activation(const char *name, fl_var *(*fn)(fl_var *x));
FL_API fl_nn_module *fl_nn_relu(void);
FL_API fl_nn_module *fl_nn_gelu(void);
FL_API fl_nn_module *fl_nn_tanh(void);
FL_API fl_nn_module *fl_nn_sigmoid(void);
/* fl_log_softmax along axis. */
FL_API fl_nn_module *fl_nn_log_softmax(int axis);

/* a sigmoid(b) of the halves a, b of x along axis. */
FL_API fl_nn_module *fl_nn_glu(int axis);
/* x with axis a and axis b swapped. */
FL_API fl_nn_module *fl_nn_transpose(int a, int b);

typedef struct fl_nn_pool2d_opts {
    fl_named _positional;
    int64_t kernel_w;         /* 0 -> kernel */
    int64_t stride, stride_w; /* 0 -> kernel (kernel_w); stride_w 0 -> stride */
    int64_t pad, pad_w;       /* as above */
    bool average;             /* mean instead of maximum */
    bool ignore_pad;          /* average over the elements inside the image only */
    char _end;
} fl_nn_pool2d_opts;
/* x [n, c, h, w] -> [n, c, oh, ow], the maximum (or mean) of each window. */
#define fl_nn_pool2d(...) FL_NN__POOL2D(__VA_ARGS__, ._end = 0)
#define FL_NN__POOL2D(kernel, ...) fl_nn_pool2d_opt(kernel, (fl_nn_pool2d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o);

/* x [n, c, h', w'] -> [n, c, h, w]: means over windows that part the image evenly. */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_LAYERS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_LAYERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_LAYERS_IMPL
#define FL_NN_LAYERS_IMPL
#include "../ops/activation.h"
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/pool.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* containers */

/* Values that the scope holds through this one object, so that they can go before it ends. */
typedef struct fl__nn_held {
    fl_obj obj;
    fl_vars vars;
} fl__nn_held;

static void fl__nn_let_go(fl_vars vars) {
    for (int i = 0; i < vars.n; i++) fv_drop(vars.v[i]);
}

static void fl__nn_held_drop(fl_obj *o) {
    fl__nn_let_go(((fl__nn_held *)(void *)o)->vars);
    fl_obj_free(o);
}

/* What a layer gave dies as soon as the next one has run, unless its backward reads it. */
static fl_vars fl__nn_sequential_forward(fl_nn_module *m, fl_vars in) {
    fl__nn_held *held = fl_obj_new(sizeof *held, fl__nn_held_drop);
    if (!held || !fl_obj_own(&held->obj)) return (fl_vars){0};
    for (int64_t i = 0; i < m->n_child && in.n; i++) {
        const fl_vars last = held->vars;
        fl_scope s = fl_scope_begin();
        in = fl_nn_forward_vars(m->child[i], in);
        for (int k = in.n; k-- > 0;) fl_obj_take(&in.v[k]->obj);
        held->vars = in;
        fl_scope_end(&s);
        fl__nn_let_go(last);
    }
    return in;
}

static const fl_nn_type fl__nn_sequential_type = {
    .name = "Sequential",
    .maker = "fl_nn_sequential",
    .forward = fl__nn_sequential_forward,
};

FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children) {
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_sequential_type, NULL, 0);
    bool ok = m != NULL;
    for (int i = 0; i < n; i++) {
        if (ok) ok = fl_nn_add(m, NULL, children[i]) != NULL;
        else if (children[i] && !children[i]->parent) fl_nn_free(children[i]);
    }
    return fl_nn_made(m, ok);
}

static fl_vars fl__nn_view_forward(fl_nn_module *m, fl_vars in) {
    const fl_tensor *x = fv_value(in.v[0]);
    const fl_shape *want = m->data;
    fl_shape s = *want;
    int64_t known = 1, free_dim = -1;
    if (s.ndim && s.dim[0] == -1 && x->ndim) s.dim[0] = x->shape[0];
    for (int i = 0; i < s.ndim; i++) {
        if (s.dim[i] < 0) free_dim = i;
        else known *= s.dim[i];
    }
    if (free_dim >= 0 && known > 0) s.dim[free_dim] = fl_numel(x) / known;
    if (fl_shape_numel(s) != fl_numel(x)) {
        char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s does not fit %s", fl_nn_shape_text(in.v[0], a),
                          fl_shape_text(*want, b, sizeof b));
    }
    return FL_VARS(fv_reshape(in.v[0], s));
}

static void fl__nn_view_describe(const fl_nn_module *m, char *buf, size_t size) {
    fl_nn_put_shape(&(fl_nn_text){buf, size, 0}, m->data);
}

static const fl_nn_type fl__nn_view_type = {
    .name = "View",
    .maker = "fl_nn_view",
    .inputs = 1,
    .forward = fl__nn_view_forward,
    .describe = fl__nn_view_describe,
};

FL_API fl_nn_module *fl_nn_view(fl_shape shape) {
    fl_shape rest = shape; /* without the two dims that may be -1 */
    int open = 0;
    for (int i = 0; i < shape.ndim && i < FL_MAX_DIMS; i++) {
        if (shape.dim[i] != -1) continue;
        rest.dim[i] = 1;
        open += i > 0;
    }
    if (shape.ndim < 0 || shape.ndim > FL_MAX_DIMS || open > 1 || fl_shape_numel(rest) < 0) {
        char text[FL_NN_SHAPE];
        return fl_bad("fl_nn_view: %s is no shape: one dim besides the first may be -1",
                      fl_shape_text(shape, text, sizeof text));
    }
    return fl_nn_new(&fl__nn_view_type, &shape, sizeof shape);
}

typedef struct fl__nn_activation {
    fl_var *(*fn)(fl_var *x);
} fl__nn_activation;

static fl_vars fl__nn_activation_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_activation *a = m->data;
    return FL_VARS(a->fn(in.v[0]));
}

static const fl_nn_type fl__nn_activation_type = {
    .name = "Activation",
    .inputs = 1,
    .forward = fl__nn_activation_forward,
};

FL_API fl_nn_module *fl_nn_activation(const char *name, fl_var *(*fn)(fl_var *x)) {
    const fl__nn_activation a = {fn};
    if (!fn) return fl_bad("fl_nn_activation: no function");
    fl_nn_module *m = fl_nn_new(&fl__nn_activation_type, &a, sizeof a);
    if (m && name) m->kind = name;
    return m;
}

FL_API fl_nn_module *fl_nn_relu(void) {
    return fl_nn_activation("ReLU", fv_relu);
}
FL_API fl_nn_module *fl_nn_gelu(void) {
    return fl_nn_activation("GELU", fv_gelu);
}
FL_API fl_nn_module *fl_nn_tanh(void) {
    return fl_nn_activation("Tanh", fv_tanh);
}
FL_API fl_nn_module *fl_nn_sigmoid(void) {
    return fl_nn_activation("Sigmoid", fv_sigmoid);
}

static fl_vars fl__nn_log_softmax_forward(fl_nn_module *m, fl_vars in) {
    const int axis = *(const int *)m->data, ndim = fv_value(in.v[0])->ndim;
    if (axis < -ndim || axis >= ndim) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "axis %d, input %s", axis, fl_nn_shape_text(in.v[0], text));
    }
    return FL_VARS(fv_log_softmax(in.v[0], axis));
}

static void fl__nn_log_softmax_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "dim=%d", *(const int *)m->data);
}

static const fl_nn_type fl__nn_log_softmax_type = {
    .name = "LogSoftmax",
    .maker = "fl_nn_log_softmax",
    .inputs = 1,
    .forward = fl__nn_log_softmax_forward,
    .describe = fl__nn_log_softmax_describe,
};

FL_API fl_nn_module *fl_nn_log_softmax(int axis) {
    return fl_nn_new(&fl__nn_log_softmax_type, &axis, sizeof axis);
}

typedef struct fl__nn_axes {
    int a, b;
} fl__nn_axes;

/* Both are axes of x; else fails. */
static bool fl__nn_axes_ok(const fl_nn_module *m, fl_var *x, int a, int b) {
    const int ndim = fv_value(x)->ndim;
    char text[FL_NN_SHAPE];
    if (a >= -ndim && a < ndim && b >= -ndim && b < ndim) return true;
    fl_nn_fail(m, "axis %d, input %s", a >= -ndim && a < ndim ? b : a, fl_nn_shape_text(x, text));
    return false;
}

static fl_vars fl__nn_glu_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_axes *a = m->data;
    if (!fl__nn_axes_ok(m, in.v[0], a->a, a->a)) return (fl_vars){0};
    return FL_VARS(fv_glu(in.v[0], a->a));
}

static void fl__nn_glu_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "dim=%d", ((const fl__nn_axes *)m->data)->a);
}

static const fl_nn_type fl__nn_glu_type = {
    .name = "GLU",
    .maker = "fl_nn_glu",
    .inputs = 1,
    .forward = fl__nn_glu_forward,
    .describe = fl__nn_glu_describe,
};

FL_API fl_nn_module *fl_nn_glu(int axis) {
    const fl__nn_axes a = {axis, axis};
    return fl_nn_new(&fl__nn_glu_type, &a, sizeof a);
}

static fl_vars fl__nn_transpose_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_axes *a = m->data;
    if (!fl__nn_axes_ok(m, in.v[0], a->a, a->b)) return (fl_vars){0};
    return FL_VARS(fv_transpose(in.v[0], a->a, a->b));
}

static void fl__nn_transpose_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_axes *a = m->data;
    snprintf(buf, size, "%d, %d", a->a, a->b);
}

static const fl_nn_type fl__nn_transpose_type = {
    .name = "Transpose",
    .maker = "fl_nn_transpose",
    .inputs = 1,
    .forward = fl__nn_transpose_forward,
    .describe = fl__nn_transpose_describe,
};

FL_API fl_nn_module *fl_nn_transpose(int a, int b) {
    const fl__nn_axes axes = {a, b};
    return fl_nn_new(&fl__nn_transpose_type, &axes, sizeof axes);
}

typedef struct fl__nn_pool2d {
    bool average;
    fl_pool_opts opts;
} fl__nn_pool2d;

static fl_vars fl__nn_pool2d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_pool2d *p = m->data;
    if (fv_value(in.v[0])->ndim != 4) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, c, h, w]", fl_nn_shape_text(in.v[0], text));
    }
    return FL_VARS(p->average ? fv_avg_pool_opt(in.v[0], p->opts)
                              : fv_max_pool_opt(in.v[0], NULL, p->opts));
}

/* "name=(2, 3)", or "name=2" where both are 2; padding may be "same". */
static void fl__nn_put_size(fl_nn_text *t, const char *name, int64_t a, int64_t b) {
    const char *comma = t->n ? ", " : "";
    if (a != b) fl_nn_put_pair(t, name, a, b);
    else if (a == FL_SAME) fl_nn_put(t, "%s%s=same", comma, name);
    else fl_nn_put(t, "%s%s=%" PRId64, comma, name, a);
}

static void fl__nn_pool2d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl_pool_opts *o = &((const fl__nn_pool2d *)m->data)->opts;
    const int64_t kh = o->kernel[0], kw = fl_option_int(o->kernel[1], kh), sh = o->stride[0];
    const int64_t pad = fl_option_int(o->pad[0], 0);
    fl_nn_text t = {buf, size, 0};
    fl__nn_put_size(&t, "kernel_size", kh, kw);
    fl__nn_put_size(&t, "stride", sh ? sh : kh, o->stride[1] ? o->stride[1] : sh ? sh : kw);
    fl__nn_put_size(&t, "padding", pad, fl_option_int(o->pad[1], pad));
}

static const fl_nn_type fl__nn_pool2d_type = {
    .name = "MaxPool2d",
    .maker = "fl_nn_pool2d",
    .inputs = 1,
    .forward = fl__nn_pool2d_forward,
    .describe = fl__nn_pool2d_describe,
};

FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o) {
    const fl_pool_opts opts = {.kernel = {kernel, o.kernel_w}, .stride = {o.stride, o.stride_w},
                               .pad = {o.pad, o.pad_w}, .ignore_pad = o.ignore_pad};
    const fl__nn_pool2d p = {o.average, opts};
    if (kernel < 1 || o.kernel_w < 0 || o.stride < 0 || o.stride_w < 0)
        return fl_bad("fl_nn_pool2d: kernel %" PRId64 ", stride %" PRId64 ": must be positive", kernel,
                      o.stride);
    fl_nn_module *m = fl_nn_new(&fl__nn_pool2d_type, &p, sizeof p);
    if (m && o.average) m->kind = "AvgPool2d";
    return m;
}

static bool fl__nn_swap_pools(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    for (int64_t i = 0; m->type == &fl__nn_sequential_type && i + 1 < m->n_child; i++) {
        fl_nn_module *relu = m->child[i], *pool = m->child[i + 1];
        if (relu->type != &fl__nn_activation_type || ((fl__nn_activation *)relu->data)->fn != fv_relu ||
            pool->type != &fl__nn_pool2d_type || ((fl__nn_pool2d *)pool->data)->average)
            continue;
        char name[FL_NN_NAME]; /* names stay with places: numbers count on */
        memcpy(name, relu->name, sizeof name);
        memcpy(relu->name, pool->name, sizeof name);
        memcpy(pool->name, name, sizeof name);
        m->child[i++] = pool;
        m->child[i] = relu;
    }
    return true;
}

FL_API bool fl_nn_pool_before_relu(fl_nn_module *m) {
    if (fl_nn_given(m, "fl_nn_pool_before_relu", "the module") && fl_nn_each(m, fl__nn_swap_pools, NULL))
        return true;
    return fl_raise();
}

static fl_vars fl__nn_adaptive_pool_forward(fl_nn_module *m, fl_vars in) {
    if (fv_value(in.v[0])->ndim != 4) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, c, h, w]", fl_nn_shape_text(in.v[0], text));
    }
    return FL_VARS(fv_adaptive_avg_pool(in.v[0], *(const fl_shape *)m->data));
}

static void fl__nn_adaptive_pool_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl_shape *s = m->data;
    snprintf(buf, size, "output_size=(%" PRId64 ", %" PRId64 ")", s->dim[0], s->dim[1]);
}

static const fl_nn_type fl__nn_adaptive_pool_type = {
    .name = "AdaptiveAvgPool2d",
    .maker = "fl_nn_adaptive_avg_pool2d",
    .inputs = 1,
    .forward = fl__nn_adaptive_pool_forward,
    .describe = fl__nn_adaptive_pool_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w) {
    const fl_shape size = {2, {h, w}};
    if (h < 1 || w < 1)
        return fl_bad("fl_nn_adaptive_avg_pool2d: size [%" PRId64 ", %" PRId64 "]: must be positive", h, w);
    return fl_nn_new(&fl__nn_adaptive_pool_type, &size, sizeof size);
}

typedef struct fl__nn_linear {
    int64_t in, out;
    fl_op act;
} fl__nn_linear;

static fl_vars fl__nn_linear_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_linear *l = m->data;
    fl_var *x = in.v[0], *w = fl_nn_param_at(m, 0), *b = fl_nn_param_at(m, 1);
    fl_shape shape = fl_shape_of(fv_value(x));
    if (!shape.ndim || shape.dim[shape.ndim - 1] != l->in) {
        char a[FL_NN_SHAPE], c[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s", fl_nn_shape_text(x, a), fl_nn_shape_text(w, c));
    }
    return FL_VARS(fv_linear_act(x, w, b, l->act));
}

static void fl__nn_linear_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_linear *l = m->data;
    snprintf(buf, size, "in_features=%" PRId64 ", out_features=%" PRId64 ", bias=%s%s%s", l->in,
             l->out, fl_nn_param_at(m, 1) ? "True" : "False", l->act ? ", act=" : "",
             l->act ? fl_op_get_info(l->act)->name : "");
}

static const fl_nn_type fl__nn_linear_type = {
    .name = "Linear",
    .maker = "fl_nn_linear",
    .inputs = 1,
    .forward = fl__nn_linear_forward,
    .describe = fl__nn_linear_describe,
};

FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o) {
    const fl__nn_linear l = {in, out, o.act};
    bool ok = in >= 1 && out >= 1;
    if (!ok) fl_fail("fl_nn_linear: in %" PRId64 ", out %" PRId64 ": must be positive", in, out);
    if (ok && !fl_linear_takes(o.act))
        ok = fl_fail("fl_nn_linear: .act: op %d is no activation that fl_linear_act takes", (int)o.act);
    if (!ok || !fl_nn_dtype_ok("fl_nn_linear", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_linear_type, &l, sizeof l);
    return fl_nn_made_with(m, FL_SHAPE(out, in), o.no_bias, o.dtype, o.rng);
}

#endif
#endif

/* MIT licence: see LICENSE. */
