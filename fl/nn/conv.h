/* fl/nn/conv.h - convolutions and transposed convolutions in 1 to 3 spatial dims */
#ifndef FL_NN_CONV_H
#define FL_NN_CONV_H
#include "norm.h"
#include "../ops/move.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A per-dim setting of 0 repeats the dim before. In 2-d the plain name is for h and _w for w; in 3-d the
   plain name is for d, _h for h and _w for w. */
typedef struct fl_nn_conv_opts {
    fl_opts_guard guard_;
    int64_t kernel_h, kernel_w;                     /* where they differ from kernel */
    int64_t stride, stride_h, stride_w;             /* 0 -> 1 */
    int64_t pad, pad_h, pad_w;                      /* zeros on both sides, or FL_SAME; FL_I0: none */
    int64_t dilation, dilation_h, dilation_w;       /* 0 -> 1 */
    int64_t output_pad, output_pad_h, output_pad_w; /* transposed only: additional size at the end */
    int64_t pad_end;      /* 1-d: padding at the end, where it differs; 0 -> pad, FL_I0 -> 0 */
    bool causal;          /* 1-d: pads dilation (kernel - 1) at the start: no output sees later inputs */
    fl_pad_mode pad_mode; /* padding other than zeros, see fl_pad; not transposed (PyTorch's padding_mode) */
    int64_t groups;       /* 0 -> 1 */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_conv_opts;
/* x [n, in, t], [n, in, h, w] or [n, in, d, h, w] -> [n, out, ...] as fl_conv; weight [out, in / groups,
   kernel...] and bias [out] are initialised to U(-b, b), b = 1 / sqrt(in / groups * kernel...). (Flashlight's
   AsymmetricConv1D with padding p and future part f: .pad = 2 p (1 - f), .pad_end = 2 p f) */
#define fl_nn_conv1d(...) FL_NN__CONV(fl_nn_conv1d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_conv2d(...) FL_NN__CONV(fl_nn_conv2d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_conv3d(...) FL_NN__CONV(fl_nn_conv3d_opt, __VA_ARGS__, ._end = 0)
#define FL_NN__CONV(make, in, out, kernel, ...) \
    make(in, out, kernel, FL_LITERAL(fl_nn_conv_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_conv1d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
FL_API fl_nn_module *fl_nn_conv2d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
FL_API fl_nn_module *fl_nn_conv3d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
/* The same by fl_conv_transpose; weight [in, out / groups, kernel...] and bias [out] are initialised to
   U(-b, b), b = 1 / sqrt(out / groups * kernel...). */
#define fl_nn_conv_transpose1d(...) FL_NN__CONV(fl_nn_conv_transpose1d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_conv_transpose2d(...) FL_NN__CONV(fl_nn_conv_transpose2d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_conv_transpose3d(...) FL_NN__CONV(fl_nn_conv_transpose3d_opt, __VA_ARGS__, ._end = 0)
FL_API fl_nn_module *fl_nn_conv_transpose1d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
FL_API fl_nn_module *fl_nn_conv_transpose2d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
FL_API fl_nn_module *fl_nn_conv_transpose3d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o);
/* Converts the tree to channels-last images, stored [n, h, w, c], once, before an optimizer is made: the
   weights of 2-d convolutions are stored so from then on, and such a layer converts an input of another
   layout. Most ops keep the layout of a channels-last image, hence only the first layer converts. Shapes,
   values and files are unchanged. Returns false after an error. */
FL_API bool fl_nn_channels_last(fl_nn_module *m);

/* For containers: whether m is a 2-d convolution that can now be fused with a ReLU, or with the batch norm
   `norm` if that is not NULL: while it is frozen and no gradient is recorded. */
FL_PRIVATE bool fl__nn_conv_can_fuse(const fl_nn_module *m, const fl_nn_module *norm);
/* Runs that fused op, with cached weights that include the norm, then a ReLU if relu. */
FL_PRIVATE fl_var *fl__nn_conv_fused(fl_nn_module *m, const fl_nn_module *norm, bool relu, fl_var *x);
/* Frees these cached weights, if m is a convolution. */
FL_PRIVATE void fl__nn_conv_unfold(fl_nn_module *m);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_CONV_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_CONV_IMPL
#define FL_NN_CONV_IMPL
#include "../ops/conv.h"
#include "../ops/elementwise.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Weights w and b of a convolution with the batch norm folded in, and the addresses and versions of the
   tensors that they were computed from. */
enum { FL__NN_FOLDS = 8 };
typedef struct fl__nn_folded {
    fl_tensor *w, *b;
    int64_t n, of[FL__NN_FOLDS][2];
} fl__nn_folded;

/* Settings per dim of all six layers, resolved except for paddings, which may be FL_SAME. */
typedef struct fl__nn_conv {
    int64_t in, out, groups;
    fl_shape kernel, stride, pad, dilation, output_pad;
    int64_t pad_end; /* 1-d: padding at the end */
    fl_pad_mode pad_mode;
    bool transposed, channels_last, padded;
    fl_pad_opts around; /* if padded: padding applied to x first; the op itself then gets none */
    fl__nn_folded *folded; /* cache; NULL: empty */
} fl__nn_conv;

/* Options of the op. A resolved 0 becomes FL_I0, which the op reads as 0. */
static fl_conv_opts fl__nn_conv_opts_of(const fl__nn_conv *c) {
    fl_conv_opts o = {.groups = c->groups};
    for (int i = 0; i < c->kernel.ndim; i++) {
        o.stride[i] = c->stride.dim[i];
        o.dilation[i] = c->dilation.dim[i];
        o.pad[i] = !c->padded && c->pad.dim[i] ? c->pad.dim[i] : FL_I0;
        o.output_pad[i] = c->output_pad.dim[i] ? c->output_pad.dim[i] : FL_I0;
    }
    return o;
}

static fl_vars fl__nn_conv_apply(const fl_nn_module *m, fl_var *image, fl_var *w, fl_var *b, bool relu) {
    static const char *const dims[] = {"", "t", "h, w", "d, h, w"};
    const fl__nn_conv *c = m->data;
    const fl_tensor *x = fv_value(image);
    if (x->ndim != c->kernel.ndim + 2 || x->shape[1] != c->in) {
        char a[FL_NN_SHAPE], d[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s, expected [n, %" PRId64 ", %s]", fl_nn_shape_text(image, a),
                          fl_nn_shape_text(w, d), c->in, dims[c->kernel.ndim]);
    }
    if (c->channels_last && !fl_is_channels_last(x)) image = fv_channels_last(image);
    if (c->padded) image = fv_pad_opt(image, c->around);
    fl_conv_opts o = fl__nn_conv_opts_of(c);
    o.relu = relu;
    return FL_VARS(c->transposed ? fv_conv_transpose_opt(image, w, b, o) : fv_conv_opt(image, w, b, o));
}

static fl_vars fl__nn_conv_forward(fl_nn_module *m, fl_vars in) {
    return fl__nn_conv_apply(m, in.v[0], fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), false);
}

static void fl__nn_folded_free(fl__nn_folded *f) {
    if (!f) return;
    fl_drop(f->w);
    fl_drop(f->b);
    fl_heap_free(f);
}

static void fl__nn_conv_release(void *data) {
    fl__nn_folded_free(((fl__nn_conv *)data)->folded);
}

/* Prints a list unless all its elements are `usual`. */
static void fl__nn_put_dims(fl_nn_text *t, const char *name, const fl_shape *s, int64_t usual) {
    bool same = true, differs = false;
    for (int i = 0; i < s->ndim; i++) {
        same = same && s->dim[i] == FL_SAME;
        differs = differs || s->dim[i] != usual;
    }
    if (!differs) return;
    fl_nn_put(t, ", %s=", name);
    if (same) fl_nn_put(t, "same");
    else fl_nn_put_shape(t, s);
}

static void fl__nn_conv_describe(const fl_nn_module *m, char *buf, size_t size) {
    static const char *const modes[] = {"zeros", "replicate", "reflect", "symmetric", "circular"};
    const fl__nn_conv *c = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64, c->in, c->out);
    fl__nn_put_dims(&t, "kernel_size", &c->kernel, 0);
    fl__nn_put_dims(&t, "stride", &c->stride, 0);
    if (c->pad_end != c->pad.dim[0]) fl_nn_put_pair(&t, "padding", c->pad.dim[0], c->pad_end);
    else fl__nn_put_dims(&t, "padding", &c->pad, 0);
    fl__nn_put_dims(&t, "dilation", &c->dilation, 1);
    fl__nn_put_dims(&t, "output_padding", &c->output_pad, 0);
    if (c->groups > 1) fl_nn_put(&t, ", groups=%" PRId64, c->groups);
    if (!fl_nn_param_at(m, 1)) fl_nn_put(&t, ", bias=False");
    if (c->pad_mode) fl_nn_put(&t, ", padding_mode=%s", modes[c->pad_mode]);
}

#define FL__NN_CONV_TYPE(kind, make) \
    {.name = kind, .maker = make, .inputs = 1, .forward = fl__nn_conv_forward, \
     .describe = fl__nn_conv_describe, .release = fl__nn_conv_release}
static const fl_nn_type fl__nn_conv_types[2][3] = {
    {FL__NN_CONV_TYPE("Conv1d", "fl_nn_conv1d"), FL__NN_CONV_TYPE("Conv2d", "fl_nn_conv2d"),
     FL__NN_CONV_TYPE("Conv3d", "fl_nn_conv3d")},
    {FL__NN_CONV_TYPE("ConvTranspose1d", "fl_nn_conv_transpose1d"),
     FL__NN_CONV_TYPE("ConvTranspose2d", "fl_nn_conv_transpose2d"),
     FL__NN_CONV_TYPE("ConvTranspose3d", "fl_nn_conv_transpose3d")}};

/* Checks the resolved settings. Returns false after fl_fail. */
static bool fl__nn_conv_ok(const char *maker, const fl__nn_conv *c) {
    char k[FL_NN_SHAPE], s[FL_NN_SHAPE], p[FL_NN_SHAPE], d[FL_NN_SHAPE], more[FL_NN_SHAPE];
    bool ok = c->in >= 1 && c->out >= 1, extra = false, same = false;
    for (int i = 0; i < c->kernel.ndim; i++) {
        ok = ok && c->kernel.dim[i] >= 1 && c->stride.dim[i] >= 1 && c->dilation.dim[i] >= 1;
        extra = extra || c->output_pad.dim[i];
        same = same || c->pad.dim[i] == FL_SAME;
    }
    const char *kernel = fl_shape_text(c->kernel, k, sizeof k), *pad = fl_shape_text(c->pad, p, sizeof p);
    if (!ok)
        return fl_fail("%s: in, out, kernel, stride and dilation must be positive, got in %" PRId64 ", "
                       "out %" PRId64 ", kernel %s, stride %s, dilation %s", maker, c->in, c->out, kernel,
                       fl_shape_text(c->stride, s, sizeof s), fl_shape_text(c->dilation, d, sizeof d));
    if (c->groups < 1 || c->in % c->groups || c->out % c->groups)
        return fl_fail("%s: in (%" PRId64 ") and out (%" PRId64 ") must be divisible by groups (%" PRId64 ")",
                       maker, c->in, c->out, c->groups);
    if ((unsigned)c->pad_mode > FL_PAD_CIRCULAR ||
        (c->padded && (same || c->transposed || c->pad_end < 0)))
        return fl_fail("%s: padding %s, %" PRId64 " at the end, mode %d: a mode but zeros, or pad_end, "
                       "excludes FL_SAME%s", maker, pad, c->pad_end, (int)c->pad_mode,
                       c->transposed ? " and transposed convolutions" : "");
    return !extra || c->transposed ||
           fl_fail("%s: output_pad %s is only for transposed convolutions", maker,
                   fl_shape_text(c->output_pad, more, sizeof more));
}

/* Resolves the settings of each dim; false if one is set for a dim that the layer does not have. */
static bool fl__nn_conv_settings(fl__nn_conv *c, int dims, int64_t kernel, const fl_nn_conv_opts *o) {
    int64_t list[5][3] = {{kernel, o->kernel_h, o->kernel_w}, {o->stride, o->stride_h, o->stride_w},
                          {o->pad, o->pad_h, o->pad_w}, {o->dilation, o->dilation_h, o->dilation_w},
                          {o->output_pad, o->output_pad_h, o->output_pad_w}};
    static const int64_t otherwise[5] = {0, 1, 0, 1, 0};
    fl_shape *to[5] = {&c->kernel, &c->stride, &c->pad, &c->dilation, &c->output_pad};
    bool ok = dims == 1 || !(o->causal || o->pad_end);
    for (int i = 0; i < 5; i++) {
        ok = ok && (dims == 3 || !list[i][1]) && (dims > 1 || !list[i][2]);
        if (dims == 2) list[i][1] = list[i][2];
        *to[i] = fl_nn_per_dim(list[i], dims, otherwise[i]);
    }
    return ok;
}

static fl_nn_module *fl__nn_conv_new(int dims, bool transposed, int64_t in, int64_t out, int64_t kernel,
                                     fl_nn_conv_opts o) {
    const fl_nn_type *type = &fl__nn_conv_types[transposed][dims - 1];
    fl__nn_conv c = {.in = in, .out = out, .groups = fl_option_int(o.groups, 1), .pad_mode = o.pad_mode,
                     .transposed = transposed, .around = {.mode = o.pad_mode}};
    if (!fl__nn_conv_settings(&c, dims, kernel, &o))
        return fl_err_null("%s: a setting is for a dim that the layer of %d spatial dims does not have",
                           type->maker, dims);
    c.pad_end = fl_option_int(o.pad_end, c.pad.dim[0]);
    if (o.causal && (o.pad || o.pad_end || transposed || kernel > INT32_MAX || o.dilation > INT32_MAX))
        return fl_err_null("%s: causal sets the padding itself: got kernel %" PRId64 ", pad %" PRId64 ", "
                           "pad_end %" PRId64 ", expected no padding, not transposed", type->maker, kernel,
                           o.pad, o.pad_end);
    if (o.causal && kernel > 1) c.pad.dim[0] = c.dilation.dim[0] * (kernel - 1);
    c.padded = c.pad_end != c.pad.dim[0] || c.pad_mode;
    if (!fl__nn_conv_ok(type->maker, &c) || !fl_nn_dtype_ok(type->maker, o.dtype)) return fl_raise();
    const int64_t outer = transposed ? in : out, inner = (transposed ? out : in) / c.groups;
    fl_shape w = {dims + 2, {outer, inner}};
    double fan_in = (double)inner;
    for (int i = 0; i < dims; i++) {
        fan_in *= (double)(w.dim[2 + i] = c.kernel.dim[i]);
        c.around.low[2 + i] = c.pad.dim[i];
        c.around.high[2 + i] = i ? c.pad.dim[i] : c.pad_end;
    }
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(type, &c, sizeof c);
    return fl_nn_finish(
        m, m && fl_nn_add_uniform(m, w, o.no_bias ? 0 : out, 1 / sqrt(fan_in), o.dtype, o.rng));
}

/* >>frozen */

FL_PRIVATE bool fl__nn_conv_can_fuse(const fl_nn_module *m, const fl_nn_module *norm) {
    bool relu;
    if (m->type != &fl__nn_conv_types[0][1] || fl__nn_watched()) return false;
    if (!norm) return true;
    const fl_tensor *w = fv_value(fl_nn_param_at(m, 0));
    return !fl_grad_enabled() && fl_buffer_is_frozen(w->buffer) && fl__nn_batch_norm_is_affine(norm, &relu) &&
           m->n_param + m->n_buffer <= 2 && norm->n_param + norm->n_buffer <= FL__NN_FOLDS - 2 &&
           norm->buffer[0].tensor->dtype == w->dtype && norm->buffer[0].tensor->shape[0] == w->shape[0];
}

static void fl__nn_fold_record(fl__nn_folded *f, const fl_nn_module *m) {
    for (int64_t i = 0; i < m->n_param + m->n_buffer; i++) {
        const fl_tensor *t = i < m->n_param ? fv_value(m->param[i].var) : m->buffer[i - m->n_param].tensor;
        f->of[f->n][0] = (int64_t)(uintptr_t)t->buffer;
        f->of[f->n++][1] = (int64_t)t->buffer->version;
    }
}

/* The folded weights are frozen tensors of their own, so that backends cache what they pack from them. */
static bool fl__nn_fold(const fl_nn_module *m, const fl_nn_module *norm, fl__nn_folded *f) {
    fl_tensor *w = fv_value(fl_nn_param_at(m, 0)), *b = fv_value(fl_nn_param_at(m, 1)), *scale, *shift;
    fl_scope s = fl_scope_begin();
    if (fl__nn_batch_norm_affine(norm, &scale, &shift)) {
        fl_tensor *scaled = fl_mul(w, fl_reshape(scale, FL_SHAPE(w->shape[0], 1, 1, 1)));
        f->w = fl_keep(fl_is_channels_last(w) ? fl_channels_last(scaled) : scaled);
        f->b = fl_keep(b ? fl_add(fl_mul(b, scale), shift) : shift);
    }
    fl_scope_end(&s);
    return f->w && f->b && fl_buffer_freeze(f->w->buffer, true);
}

/* Threads that call this first may each compute the weights; one result is used. NULL: out of memory. */
static fl__nn_folded *fl__nn_folded_get(fl_nn_module *m, const fl_nn_module *norm) {
    fl__nn_conv *c = m->data;
    fl__nn_folded now = {.n = 0}, *made, *f = __atomic_load_n(&c->folded, __ATOMIC_ACQUIRE);
    fl__nn_fold_record(&now, m);
    fl__nn_fold_record(&now, norm);
    if (f && f->n == now.n && !memcmp(f->of, now.of, sizeof now.of)) return f;
    if ((made = fl_heap_alloc(sizeof *made))) *made = now;
    if (!made || !fl__nn_fold(m, norm, made)) {
        fl__nn_folded_free(made);
        fl_error_clear();
        return NULL;
    }
    const bool first = __atomic_compare_exchange_n(&c->folded, &f, made, false, __ATOMIC_ACQ_REL,
                                                   __ATOMIC_ACQUIRE);
    fl__nn_folded_free(first ? f : made);
    return first ? made : f;
}

FL_PRIVATE fl_var *fl__nn_conv_fused(fl_nn_module *m, const fl_nn_module *norm, bool relu, fl_var *x) {
    fl_var *w = fl_nn_param_at(m, 0), *b = fl_nn_param_at(m, 1);
    bool norm_relu = false;
    if (norm) {
        const fl__nn_folded *f = fl__nn_folded_get(m, norm);
        if (!f) return fl_nn_forward((fl_nn_module *)(uintptr_t)norm, fl_nn_forward(m, x));
        w = fv_const(f->w), b = fv_const(f->b);
        fl__nn_batch_norm_is_affine(norm, &norm_relu);
    }
    fl_scope s = fl_scope_in(m, fl__nn_describe);
    return fv_scope_return(&s, fl__nn_conv_apply(m, x, w, b, relu || norm_relu).v[0]);
}

FL_PRIVATE void fl__nn_conv_unfold(fl_nn_module *m) {
    if (m->type != &fl__nn_conv_types[0][1]) return;
    fl__nn_conv *c = m->data;
    fl__nn_folded_free(c->folded);
    c->folded = NULL;
}

#define FL__NN_CONV(name, dims, transposed) \
    FL_API fl_nn_module *fl_nn_##name##_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o) { \
        return fl__nn_conv_new(dims, transposed, in, out, kernel, o); \
    }
FL__NN_CONV(conv1d, 1, false)
FL__NN_CONV(conv2d, 2, false)
FL__NN_CONV(conv3d, 3, false)
FL__NN_CONV(conv_transpose1d, 1, true)
FL__NN_CONV(conv_transpose2d, 2, true)
FL__NN_CONV(conv_transpose3d, 3, true)
#undef FL__NN_CONV

static bool fl__nn_to_channels_last(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    if (m->type != &fl__nn_conv_types[0][1]) return true;
    fl_scope s = fl_scope_begin();
    fl_var *w = fl_nn_param_at(m, 0);
    fl_tensor *stored = fl_channels_last(fv_value(w));
    fl_var *next = stored ? fv_keep(fv_param(stored)) : NULL;
    fl_scope_end(&s);
    if (!next) return false;
    m->param[0].var = next;
    fv_drop(w);
    ((fl__nn_conv *)m->data)->channels_last = true;
    return true;
}

FL_API bool fl_nn_channels_last(fl_nn_module *m) {
    if (fl_given(m, "fl_nn_channels_last", "the module") &&
        fl_nn_visit_modules(m, fl__nn_to_channels_last, NULL))
        return true;
    return fl_raise();
}

#endif
#endif

/* MIT licence: see LICENSE. */
