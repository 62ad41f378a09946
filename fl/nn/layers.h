/* fl/nn/layers.h - basic layers: linear, bilinear, reshaping, padding, dtype casts */
#ifndef FL_NN_LAYERS_H
#define FL_NN_LAYERS_H
#include "activation.h"
#include "container.h"
#include "../ops/move.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns its inputs unchanged. */
FL_API fl_nn_module *fl_nn_identity(void);
/* Reshapes its input. A first dim of -1 is the input's first dim (the batch); one other dim may be -1 and is
   inferred. */
FL_API fl_nn_module *fl_nn_view(fl_shape shape);
/* Merges dims first to last into one; PyTorch's defaults are 1 and -1. */
FL_API fl_nn_module *fl_nn_flatten(int first, int last);
/* Swaps axes a and b. */
FL_API fl_nn_module *fl_nn_transpose(int a, int b);
/* Axis i of the result is axis axes.axis[i] of x (Flashlight's Reorder): fl_nn_permute(FL_AXES(0, 2, 1)). */
FL_API fl_nn_module *fl_nn_permute(fl_axes axes);
/* fl_pad in the given mode: fl_nn_pad(FL_PAD_CONSTANT, .low = {0, 0, 1, 1}, .high = {0, 0, 1, 1}) is
   PyTorch's ZeroPad2d(1), with .value its ConstantPad2d; FL_PAD_REFLECT is ReflectionPad, FL_PAD_EDGE
   ReplicationPad. */
#define fl_nn_pad(...) FL_NN__PAD(__VA_ARGS__, ._end = 0)
#define FL_NN__PAD(mode, ...) fl_nn_pad_opt(mode, FL_LITERAL(fl_pad_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_pad_opt(fl_pad_mode mode, fl_pad_opts o);
/* Casts its inputs to a float dtype (Flashlight's PrecisionCast). */
FL_API fl_nn_module *fl_nn_precision_cast(fl_dtype dtype);

typedef struct fl_nn_linear_opts {
    fl_opts_guard guard_;
    bool no_bias;
    fl_op act; /* activation of y, one that fl_linear_act takes: FL_OP_relu, FL_OP_gelu, ...; 0 -> none */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_linear_opts;
/* y = x weight^T + bias with x [..., in] -> [..., out], weight [out, in], bias [out]; both are initialised to
   U(-1 / sqrt(in), 1 / sqrt(in)). */
#define fl_nn_linear(...) FL_NN__LINEAR(__VA_ARGS__, ._end = 0)
#define FL_NN__LINEAR(in, out, ...) fl_nn_linear_opt(in, out, FL_LITERAL(fl_nn_linear_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o);

/* y[o] = a weight[o] b + bias[o] of two inputs a [..., in1], b [..., in2] -> [..., out]; weight [out, in1,
   in2] and bias [out] are initialised to U(-1 / sqrt(in1), 1 / sqrt(in1)). .act must be 0. */
#define fl_nn_bilinear(...) FL_NN__BILINEAR(__VA_ARGS__, ._end = 0)
#define FL_NN__BILINEAR(in1, in2, out, ...) \
    fl_nn_bilinear_opt(in1, in2, out, FL_LITERAL(fl_nn_linear_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_bilinear_opt(int64_t in1, int64_t in2, int64_t out, fl_nn_linear_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_LAYERS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_LAYERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_LAYERS_IMPL
#define FL_NN_LAYERS_IMPL
#include "../ops/copy.h"
#include "../ops/linear.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static fl_vars fl__nn_identity_forward(fl_nn_module *m, fl_vars in) {
    (void)m;
    return in;
}

static const fl_nn_type fl__nn_identity_type = {.name = "Identity", .maker = "fl_nn_identity",
                                                .forward = fl__nn_identity_forward};

FL_API fl_nn_module *fl_nn_identity(void) {
    return fl_nn_new(&fl__nn_identity_type, NULL, 0);
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
        return fl_nn_fail(m, "cannot reshape input %s to %s", fl_nn_shape_text(in.v[0], a),
                          fl_shape_text(*want, b, sizeof b));
    }
    return FL_VARS(fv_reshape(in.v[0], s));
}

static void fl__nn_view_describe(const fl_nn_module *m, char *buf, size_t size) {
    fl_nn_put_shape(&(fl_nn_text){buf, size, 0}, m->data);
}

static const fl_nn_type fl__nn_view_type = {.name = "View", .maker = "fl_nn_view", .inputs = 1,
                                            .forward = fl__nn_view_forward,
                                            .describe = fl__nn_view_describe};

FL_API fl_nn_module *fl_nn_view(fl_shape shape) {
    fl_shape rest = shape; /* with 1 for the two dims that may be -1 */
    int open = 0;
    for (int i = 0; i < shape.ndim && i < FL_MAX_DIMS; i++) {
        if (shape.dim[i] != -1) continue;
        rest.dim[i] = 1;
        open += i > 0;
    }
    if (shape.ndim < 0 || shape.ndim > FL_MAX_DIMS || open > 1 || fl_shape_numel(rest) < 0) {
        char text[FL_NN_SHAPE];
        return fl_err_null("fl_nn_view: shape %s is not valid: at most one dim besides the first may be -1",
                           fl_shape_text(shape, text, sizeof text));
    }
    return fl_nn_new(&fl__nn_view_type, &shape, sizeof shape);
}

typedef struct fl__nn_axes {
    fl_var *(*fn)(fl_var *x, int a, int b);
    int a, b;
} fl__nn_axes;

static fl_vars fl__nn_axes_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_axes *f = m->data;
    const int ndim = fv_value(in.v[0])->ndim;
    const bool first = f->a >= -ndim && f->a < ndim;
    char text[FL_NN_SHAPE];
    if (first && f->b >= -ndim && f->b < ndim) return FL_VARS(f->fn(in.v[0], f->a, f->b));
    return fl_nn_fail(m, "axis %d is out of range for input %s", first ? f->b : f->a,
                      fl_nn_shape_text(in.v[0], text));
}

static void fl__nn_axes_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_axes *f = m->data;
    const bool flat = f->fn == fv_flatten;
    snprintf(buf, size, flat ? "start_dim=%d, end_dim=%d" : "%d, %d", f->a, f->b);
}

static const fl_nn_type fl__nn_transpose_type = {.name = "Transpose", .maker = "fl_nn_transpose",
                                                 .inputs = 1, .forward = fl__nn_axes_forward,
                                                 .describe = fl__nn_axes_describe};
static const fl_nn_type fl__nn_flatten_type = {.name = "Flatten", .maker = "fl_nn_flatten", .inputs = 1,
                                               .forward = fl__nn_axes_forward,
                                               .describe = fl__nn_axes_describe};

FL_API fl_nn_module *fl_nn_transpose(int a, int b) {
    return fl_nn_new(&fl__nn_transpose_type, &(fl__nn_axes){fv_transpose, a, b}, sizeof(fl__nn_axes));
}

FL_API fl_nn_module *fl_nn_flatten(int first, int last) {
    return fl_nn_new(&fl__nn_flatten_type, &(fl__nn_axes){fv_flatten, first, last}, sizeof(fl__nn_axes));
}

static fl_vars fl__nn_permute_forward(fl_nn_module *m, fl_vars in) {
    const fl_axes *a = m->data;
    if (fv_value(in.v[0])->ndim != a->n) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, expected %d dims", fl_nn_shape_text(in.v[0], text), a->n);
    }
    return FL_VARS(fv_permute(in.v[0], a->n, a->axis));
}

static void fl__nn_permute_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl_axes *a = m->data;
    fl_nn_text t = {buf, size, 0};
    for (int i = 0; i < a->n; i++) fl_nn_put(&t, "%s%d", i ? ", " : "", a->axis[i]);
}

static const fl_nn_type fl__nn_permute_type = {.name = "Permute", .maker = "fl_nn_permute", .inputs = 1,
                                               .forward = fl__nn_permute_forward,
                                               .describe = fl__nn_permute_describe};

FL_API fl_nn_module *fl_nn_permute(fl_axes axes) {
    unsigned seen = 0;
    for (int i = 0; i < axes.n && i < FL_MAX_DIMS; i++) {
        const int at = axes.axis[i] < 0 ? axes.axis[i] + axes.n : axes.axis[i];
        if (at >= 0 && at < axes.n) seen |= 1u << at;
    }
    if (axes.n < 1 || axes.n > FL_MAX_DIMS || seen != (1u << axes.n) - 1)
        return fl_err_null("fl_nn_permute: the %d axes are not a permutation of 0 to n - 1 (n in 1 to %d)",
                           axes.n, FL_MAX_DIMS);
    return fl_nn_new(&fl__nn_permute_type, &axes, sizeof axes);
}

static fl_vars fl__nn_pad_forward(fl_nn_module *m, fl_vars in) {
    const fl_pad_opts *o = m->data;
    const int ndim = fv_value(in.v[0])->ndim;
    for (int i = ndim; i < FL_MAX_DIMS; i++) {
        char text[FL_NN_SHAPE];
        if (o->low[i] || o->high[i])
            return fl_nn_fail(m, "padding of axis %d is out of range for input %s", i,
                              fl_nn_shape_text(in.v[0], text));
    }
    return FL_VARS(fv_pad_opt(in.v[0], *o));
}

/* "(0, 0), (1, 2), mode=reflect": low and high padding of each axis, up to the last padded one */
static void fl__nn_pad_describe(const fl_nn_module *m, char *buf, size_t size) {
    static const char *const modes[] = {"constant", "replicate", "reflect", "symmetric", "circular"};
    const fl_pad_opts *o = m->data;
    fl_nn_text t = {buf, size, 0};
    int n = FL_MAX_DIMS;
    while (n && !o->low[n - 1] && !o->high[n - 1]) n--;
    for (int i = 0; i < n; i++)
        fl_nn_put(&t, "%s(%" PRId64 ", %" PRId64 ")", i ? ", " : "", o->low[i], o->high[i]);
    if (o->mode) fl_nn_put(&t, ", mode=%s", modes[o->mode]);
    if (o->value != 0) fl_nn_put(&t, ", value=%g", o->value);
}

static const fl_nn_type fl__nn_pad_type = {.name = "Pad", .maker = "fl_nn_pad", .inputs = 1,
                                           .forward = fl__nn_pad_forward, .describe = fl__nn_pad_describe};

FL_API fl_nn_module *fl_nn_pad_opt(fl_pad_mode mode, fl_pad_opts o) {
    if ((unsigned)mode > FL_PAD_CIRCULAR)
        return fl_err_null("fl_nn_pad: mode %d is not an fl_pad_mode", (int)mode);
    o.mode = mode;
    return fl_nn_new(&fl__nn_pad_type, &o, sizeof o);
}

static fl_vars fl__nn_precision_forward(fl_nn_module *m, fl_vars in) {
    for (int i = 0; i < in.n; i++) in.v[i] = fv_cast(in.v[i], *(const fl_dtype *)m->data);
    return in;
}

static void fl__nn_precision_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "%s", fl_dtype_name(*(const fl_dtype *)m->data));
}

static const fl_nn_type fl__nn_precision_type = {.name = "PrecisionCast", .maker = "fl_nn_precision_cast",
                                                 .forward = fl__nn_precision_forward,
                                                 .describe = fl__nn_precision_describe};

FL_API fl_nn_module *fl_nn_precision_cast(fl_dtype dtype) {
    if (!fl_dtype_is_float(dtype))
        return fl_err_null("fl_nn_precision_cast: dtype must be a float, got %s", fl_dtype_name(dtype));
    return fl_nn_new(&fl__nn_precision_type, &dtype, sizeof dtype);
}

typedef struct fl__nn_linear {
    int64_t in, out;
    fl_op act;
} fl__nn_linear;

static fl_vars fl__nn_linear_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_linear *l = m->data;
    fl_var *x = in.v[0], *w = fl_nn_param_at(m, 0), *b = fl_nn_param_at(m, 1);
    const fl_tensor *t = fv_value(x);
    if (!t->ndim || t->shape[t->ndim - 1] != l->in) {
        char a[FL_NN_SHAPE], c[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s, expected [..., %" PRId64 "]", fl_nn_shape_text(x, a),
                          fl_nn_shape_text(w, c), l->in);
    }
    return FL_VARS(fv_linear_act(x, w, b, l->act));
}

static void fl__nn_linear_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_linear *l = m->data;
    snprintf(buf, size, "in_features=%" PRId64 ", out_features=%" PRId64 ", bias=%s%s%s", l->in,
             l->out, fl_nn_param_at(m, 1) ? "True" : "False", l->act ? ", act=" : "",
             fl_op_name(l->act));
}

static const fl_nn_type fl__nn_linear_type = {.name = "Linear", .maker = "fl_nn_linear", .inputs = 1,
                                              .forward = fl__nn_linear_forward,
                                              .describe = fl__nn_linear_describe};

FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o) {
    const fl__nn_linear l = {in, out, o.act};
    bool ok = in >= 1 && out >= 1;
    if (!ok) fl_fail("fl_nn_linear: in and out must be positive, got %" PRId64 " and %" PRId64, in, out);
    if (ok && !fl_linear_has_act(o.act))
        ok = fl_fail("fl_nn_linear: .act: op %d is not an activation that fl_linear_act takes", (int)o.act);
    if (!ok || !fl_nn_dtype_ok("fl_nn_linear", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_linear_type, &l, sizeof l);
    return fl_nn_finish_with_weights(m, FL_SHAPE(out, in), o.no_bias, o.dtype, o.rng);
}

typedef struct fl__nn_bilinear {
    int64_t in1, in2, out;
} fl__nn_bilinear;

static fl_vars fl__nn_bilinear_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_bilinear *l = m->data;
    const fl_tensor *a = fv_value(in.v[0]), *b = fv_value(in.v[1]);
    bool ok = a->ndim >= 1 && a->ndim == b->ndim && a->shape[a->ndim - 1] == l->in1 &&
              b->shape[b->ndim - 1] == l->in2;
    for (int i = 0; ok && i < a->ndim - 1; i++) ok = a->shape[i] == b->shape[i];
    if (!ok) {
        char s[FL_NN_SHAPE], t[FL_NN_SHAPE];
        return fl_nn_fail(m, "inputs %s and %s, expected [..., %" PRId64 "] and [..., %" PRId64 "]",
                          fl_nn_shape_text(in.v[0], s), fl_nn_shape_text(in.v[1], t), l->in1, l->in2);
    }
    return FL_VARS(fv_bilinear(in.v[0], in.v[1], fl_nn_param_at(m, 0), fl_nn_param_at(m, 1)));
}

static void fl__nn_bilinear_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_bilinear *l = m->data;
    snprintf(buf, size, "in1_features=%" PRId64 ", in2_features=%" PRId64 ", out_features=%" PRId64
             ", bias=%s", l->in1, l->in2, l->out, fl_nn_param_at(m, 1) ? "True" : "False");
}

static const fl_nn_type fl__nn_bilinear_type = {.name = "Bilinear", .maker = "fl_nn_bilinear", .inputs = 2,
                                                .forward = fl__nn_bilinear_forward,
                                                .describe = fl__nn_bilinear_describe};

FL_API fl_nn_module *fl_nn_bilinear_opt(int64_t in1, int64_t in2, int64_t out, fl_nn_linear_opts o) {
    const fl__nn_bilinear l = {in1, in2, out};
    if (in1 < 1 || in2 < 1 || out < 1 || o.act)
        return fl_err_null("fl_nn_bilinear: in1, in2 and out must be positive, got %" PRId64 ", %" PRId64
                           " and %" PRId64 "; .act must be 0, got %d", in1, in2, out, (int)o.act);
    if (!fl_nn_dtype_ok("fl_nn_bilinear", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_bilinear_type, &l, sizeof l);
    const fl_shape w = FL_SHAPE(out, in1, in2);
    const int64_t bias = o.no_bias ? 0 : out;
    return fl_nn_finish(m, m && fl_nn_add_uniform(m, w, bias, 1 / sqrt((double)in1), o.dtype, o.rng));
}

#endif
#endif

/* MIT licence: see LICENSE. */
