/* conv.h - convolutions */
#ifndef FL_NN_CONV_H
#define FL_NN_CONV_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_conv2d_opts {
    fl_named _positional;
    int64_t kernel_w;             /* 0 -> kernel */
    int64_t stride, stride_w;     /* 0 -> 1; stride_w 0 -> stride */
    int64_t pad, pad_w;           /* zeros on both sides, or FL_SAME; pad_w 0 -> pad, FL_I0 -> 0 */
    int64_t dilation, dilation_w; /* 0 -> 1; 0 -> dilation */
    int64_t groups;               /* 0 -> 1 */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_conv2d_opts;
/* x [n, in, h, w] -> [n, out, oh, ow] as fl_conv; weight [out, in / groups, kernel, kernel_w] and
   bias [out] are uniform within 1 / sqrt(in / groups * kernel * kernel_w) of 0. */
#define fl_nn_conv2d(...) FL_NN__CONV2D(__VA_ARGS__, ._end = 0)
#define FL_NN__CONV2D(in, out, kernel, ...) \
    fl_nn_conv2d_opt(in, out, kernel, (fl_nn_conv2d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_conv2d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv2d_opts o);
/* Lays the tree out for images stored [n, h, w, c], once, before an optimizer is made: weights of
   2-d convolutions are stored so from here on, and such a layer converts an input that is stored
   otherwise. As what follows a channels-last image stays so, that is the first one's. Shapes,
   values and files are what they were. False after an error. */
FL_API bool fl_nn_channels_last(fl_nn_module *m);

typedef struct fl_nn_conv1d_opts {
    fl_named _positional;
    int64_t stride;   /* 0 -> 1 */
    int64_t pad;      /* zeros on both sides, or FL_SAME */
    int64_t dilation; /* 0 -> 1 */
    int64_t groups;   /* 0 -> 1 */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_conv1d_opts;
/* x [n, in, t] -> [n, out, t'] as fl_conv; weight [out, in / groups, kernel] and bias [out] are
   uniform within 1 / sqrt(in / groups * kernel) of 0. */
#define fl_nn_conv1d(...) FL_NN__CONV1D(__VA_ARGS__, ._end = 0)
#define FL_NN__CONV1D(in, out, kernel, ...) \
    fl_nn_conv1d_opt(in, out, kernel, (fl_nn_conv1d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_conv1d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv1d_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_CONV_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_CONV_IMPL
#define FL_NN_CONV_IMPL
#include "../ops/conv.h"
#include "../ops/move.h"
#include <inttypes.h>

typedef struct fl__nn_conv2d {
    int64_t in, out, kernel[2];
    bool channels_last;
    fl_conv_opts opts;
} fl__nn_conv2d;

/* x [n, c, h, w] lies in memory as [n, h, w, c]. */
static bool fl__nn_is_channels_last(const fl_tensor *x) {
    const int64_t c = x->shape[1], h = x->shape[2], w = x->shape[3];
    return (c == 1 || x->stride[1] == 1) && (w == 1 || x->stride[3] == c) &&
           (h == 1 || x->stride[2] == c * w) && (x->shape[0] == 1 || x->stride[0] == c * w * h);
}

static fl_vars fl__nn_conv2d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_conv2d *c = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 4 || x->shape[1] != c->in) {
        char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s, wants [n, %" PRId64 ", h, w]",
                          fl_nn_shape_text(in.v[0], a), fl_nn_shape_text(fl_nn_param_at(m, 0), b), c->in);
    }
    fl_var *image = in.v[0];
    if (c->channels_last && !fl__nn_is_channels_last(x)) image = fv_channels_last(image);
    return FL_VARS(fv_conv_opt(image, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), c->opts));
}

static void fl__nn_conv2d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_conv2d *c = m->data;
    const fl_conv_opts *o = &c->opts;
    const int64_t stride = fl_option_int(o->stride[0], 1), dilation = fl_option_int(o->dilation[0], 1);
    const int64_t pad = fl_option_int(o->pad[0], 0), pad_w = fl_option_int(o->pad[1], pad);
    const int64_t dilation_w = fl_option_int(o->dilation[1], dilation);
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64, c->in, c->out);
    fl_nn_put_pair(&t, "kernel_size", c->kernel[0], c->kernel[1]);
    fl_nn_put_pair(&t, "stride", stride, fl_option_int(o->stride[1], stride));
    if (pad == FL_SAME && pad_w == FL_SAME) fl_nn_put(&t, ", padding=same");
    else if (pad || pad_w) fl_nn_put_pair(&t, "padding", pad, pad_w);
    if (dilation != 1 || dilation_w != 1) fl_nn_put_pair(&t, "dilation", dilation, dilation_w);
    if (o->groups > 1) fl_nn_put(&t, ", groups=%" PRId64, o->groups);
    if (!fl_nn_param_at(m, 1)) fl_nn_put(&t, ", bias=False");
}

static const fl_nn_type fl__nn_conv2d_type = {
    .name = "Conv2d",
    .maker = "fl_nn_conv2d",
    .inputs = 1,
    .forward = fl__nn_conv2d_forward,
    .describe = fl__nn_conv2d_describe,
};

FL_API fl_nn_module *fl_nn_conv2d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv2d_opts o) {
    const int64_t groups = fl_option_int(o.groups, 1), kernel_w = fl_option_int(o.kernel_w, kernel);
    if (in < 1 || out < 1 || kernel < 1 || kernel_w < 1)
        return fl_bad("fl_nn_conv2d: in %" PRId64 ", out %" PRId64 ", kernel [%" PRId64 ", %" PRId64
                      "]: must be positive", in, out, kernel, kernel_w);
    if (o.stride < 0 || o.stride_w < 0 || o.dilation < 0 || o.dilation_w < 0)
        return fl_bad("fl_nn_conv2d: stride [%" PRId64 ", %" PRId64 "], dilation [%" PRId64 ", %" PRId64
                      "]: must be positive", o.stride, o.stride_w, o.dilation, o.dilation_w);
    if (groups < 1 || in % groups || out % groups)
        return fl_bad("fl_nn_conv2d: groups %" PRId64 " must divide in %" PRId64 " and out %" PRId64,
                      groups, in, out);
    if (!fl_nn_dtype_ok("fl_nn_conv2d", o.dtype)) return fl_raise();
    const fl_conv_opts opts = {.stride = {o.stride, o.stride_w}, .pad = {o.pad, o.pad_w},
                               .dilation = {o.dilation, o.dilation_w}, .groups = o.groups};
    const fl__nn_conv2d c = {in, out, {kernel, kernel_w}, false, opts};
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_conv2d_type, &c, sizeof c);
    return fl_nn_made_with(m, FL_SHAPE(out, in / groups, kernel, kernel_w), o.no_bias, o.dtype, o.rng);
}

static bool fl__nn_to_channels_last(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    if (m->type != &fl__nn_conv2d_type) return true;
    fl_scope s = fl_scope_begin();
    fl_var *w = fl_nn_param_at(m, 0);
    fl_tensor *stored = fl_channels_last(fv_value(w));
    fl_var *next = stored ? fv_keep(fv_param(stored)) : NULL;
    fl_scope_end(&s);
    if (!next) return false;
    m->param[0].var = next;
    fv_drop(w);
    ((fl__nn_conv2d *)m->data)->channels_last = true;
    return true;
}

FL_API bool fl_nn_channels_last(fl_nn_module *m) {
    if (fl_nn_given(m, "fl_nn_channels_last", "the module") && fl_nn_each(m, fl__nn_to_channels_last, NULL))
        return true;
    return fl_raise();
}

typedef struct fl__nn_conv1d {
    int64_t in, out, kernel;
    fl_conv_opts opts;
} fl__nn_conv1d;

static fl_vars fl__nn_conv1d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_conv1d *c = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 3 || x->shape[1] != c->in) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", t]", fl_nn_shape_text(in.v[0], text),
                          c->in);
    }
    return FL_VARS(fv_conv_opt(in.v[0], fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), c->opts));
}

static void fl__nn_conv1d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_conv1d *c = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64 ", kernel_size=(%" PRId64 ",), stride=(%" PRId64 ",), padding=",
              c->in, c->out, c->kernel, fl_option_int(c->opts.stride[0], 1));
    if (c->opts.pad[0] == FL_SAME) fl_nn_put(&t, "same");
    else fl_nn_put(&t, "%" PRId64, c->opts.pad[0]);
    if (!fl_nn_param_at(m, 1)) fl_nn_put(&t, ", bias=False");
}

static const fl_nn_type fl__nn_conv1d_type = {
    .name = "Conv1d",
    .maker = "fl_nn_conv1d",
    .inputs = 1,
    .forward = fl__nn_conv1d_forward,
    .describe = fl__nn_conv1d_describe,
};

FL_API fl_nn_module *fl_nn_conv1d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv1d_opts o) {
    const int64_t groups = fl_option_int(o.groups, 1);
    const fl_conv_opts opts = {
        .stride = {o.stride}, .dilation = {o.dilation}, .pad = {o.pad}, .groups = o.groups};
    const fl__nn_conv1d c = {in, out, kernel, opts};
    if (in < 1 || out < 1 || kernel < 1 || o.stride < 0 || o.dilation < 0 || groups < 1 ||
        in % groups || out % groups)
        return fl_bad("fl_nn_conv1d: in %" PRId64 ", out %" PRId64 ", kernel %" PRId64 ", stride %" PRId64
                      ", dilation %" PRId64 ": must be positive; groups %" PRId64 " must divide in and out",
                      in, out, kernel, o.stride, o.dilation, groups);
    if (!fl_nn_dtype_ok("fl_nn_conv1d", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_conv1d_type, &c, sizeof c);
    return fl_nn_made_with(m, FL_SHAPE(out, in / groups, kernel), o.no_bias, o.dtype, o.rng);
}

#endif
#endif

/* MIT licence: see LICENSE. */
