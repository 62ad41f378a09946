/* norm.h - layers that normalise */
#ifndef FL_NN_NORM_H
#define FL_NN_NORM_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_batch_norm_opts {
    fl_named _positional;
    double momentum; /* 0 -> 0.1; running = (1 - momentum) running + momentum batch */
    bool cumulative; /* running is the plain average over all batches instead */
    double eps;      /* 0 -> 1e-5 */
    bool no_affine;  /* no weight and bias */
    bool no_track;   /* no running statistics: those of the batch always */
    bool relu;       /* y = max(0, that), after the second input, if there is one, was added */
    fl_dtype dtype;
    char _end;
} fl_nn_batch_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias per channel of x [n, c, h, w]. In training mean
   and var (biased) are the batch's, and running_mean, running_var (unbiased) and
   num_batches_tracked (i64) are updated; else the running ones. A second input of x's shape is
   added to y: the end of a residual block in one pass. */
#define fl_nn_batch_norm2d(...) FL_NN__BATCH_NORM2D(__VA_ARGS__, ._end = 0)
#define FL_NN__BATCH_NORM2D(channels, ...) \
    fl_nn_batch_norm2d_opt(channels, (fl_nn_batch_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o);

typedef struct fl_nn_layer_norm_opts {
    fl_named _positional;
    double eps;     /* 0 -> 1e-5 */
    bool no_affine; /* no weight and no bias */
    bool no_bias;   /* no bias only */
    fl_dtype dtype;
    char _end;
} fl_nn_layer_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias; mean and var (biased) over the last dims of x,
   which are `shape`, as are weight and bias. */
#define fl_nn_layer_norm(...) FL_NN__LAYER_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__LAYER_NORM(shape, ...) \
    fl_nn_layer_norm_opt(shape, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);

/* y = x / sqrt(mean(x^2) + eps) * weight over the last dims of x, which are `shape`. no_bias counts
   for nothing. */
#define fl_nn_rms_norm(...) FL_NN__RMS_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__RMS_NORM(shape, ...) fl_nn_rms_norm_opt(shape, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);
/* A layer norm over groups of channels of x [n, channels, ...]; weight and bias [channels]. */
#define fl_nn_group_norm(...) FL_NN__GROUP_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__GROUP_NORM(groups, channels, ...) \
    fl_nn_group_norm_opt(groups, channels, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_NORM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_NORM_IMPL
#define FL_NN_NORM_IMPL
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#include "../ops/norm.h"
#include <inttypes.h>
#include <stdio.h>

typedef struct fl__nn_batch_norm {
    int64_t channels;
    double momentum, eps;
    bool cumulative, track, relu;
} fl__nn_batch_norm;

enum { FL__NN_RUNNING_MEAN, FL__NN_RUNNING_VAR, FL__NN_BATCHES }; /* the buffers' order */

static fl_vars fl__nn_batch_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_batch_norm *b = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    const bool batch = m->train || !b->track;
    char text[FL_NN_SHAPE];
    if (in.n != 1 && in.n != 2) return fl_nn_fail(m, "%d inputs, takes 1 or 2", in.n);
    if (x->ndim != 4 || x->shape[1] != b->channels)
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", h, w]", fl_nn_shape_text(in.v[0], text),
                          b->channels);
    const int64_t n = fl_numel(x) / b->channels;
    if (batch && n < 2)
        return fl_nn_fail(m, "input %s has %" PRId64 " values per channel, batch statistics want 2",
                          fl_nn_shape_text(in.v[0], text), n);
    fl_batch_norm_opts o = {
        .train = batch, .momentum = b->momentum, .eps = b->eps, .relu = b->relu};
    fl_tensor *batches = b->track ? m->buffer[FL__NN_BATCHES].tensor : NULL;
    fl_tensor *next = batch && b->track ? fl_add(batches, fl_int(1)) : NULL;
    if (b->track) {
        o.mean = m->buffer[FL__NN_RUNNING_MEAN].tensor;
        o.var = m->buffer[FL__NN_RUNNING_VAR].tensor;
        if (batch && !next) return (fl_vars){0};
        if (batch && b->cumulative) o.momentum = 1.0 / (double)fl_item_int(next);
    }
    if (o.momentum == 0) o.momentum = FL_ZERO;
    if (o.eps == 0) o.eps = FL_ZERO;
    fl_var *weight = fl_nn_param_at(m, 0), *bias = fl_nn_param_at(m, 1);
    fl_var *y = in.n == 2 ? fv_batch_norm_add_opt(in.v[0], weight, bias, in.v[1], o)
                          : fv_batch_norm_opt(in.v[0], weight, bias, o);
    if (y && next && !fl_assign(batches, next)) return (fl_vars){0};
    return FL_VARS(y);
}

static void fl__nn_batch_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_batch_norm *b = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", eps=%g, momentum=", b->channels, b->eps);
    if (b->cumulative) fl_nn_put(&t, "None");
    else fl_nn_put(&t, "%g", b->momentum);
    fl_nn_put(&t, ", affine=%s, track_running_stats=%s", m->n_param ? "True" : "False",
               b->track ? "True" : "False");
    if (b->relu) fl_nn_put(&t, ", relu=True");
}

static const fl_nn_type fl__nn_batch_norm_type = {
    .name = "BatchNorm2d",
    .maker = "fl_nn_batch_norm2d",
    .forward = fl__nn_batch_norm_forward,
    .describe = fl__nn_batch_norm_describe,
    .wide = true,
};

FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o) {
    const fl__nn_batch_norm b = {channels, fl_option(o.momentum, 0.1), fl_option(o.eps, 1e-5),
                                 o.cumulative, !o.no_track, o.relu};
    if (channels < 1 || !(b.eps >= 0) || !(b.momentum >= 0 && b.momentum <= 1))
        return fl_bad("fl_nn_batch_norm2d: %" PRId64 " channels, momentum %g, eps %g", channels,
                      b.momentum, b.eps);
    if (!fl_nn_dtype_ok("fl_nn_batch_norm2d", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_batch_norm_type, &b, sizeof b);
    bool ok = m != NULL;
    const fl_shape shape = FL_SHAPE(channels);
    if (ok && !o.no_affine) ok = fl_nn_add_affine(m, shape, false, o.dtype);
    if (ok && !o.no_track)
        ok = fl_nn_add_buffer(m, "running_mean", fl_zeros(shape, o.dtype)) &&
             fl_nn_add_buffer(m, "running_var", fl_ones(shape, o.dtype)) &&
             fl_nn_add_buffer(m, "num_batches_tracked", fl_zeros(FL_SCALAR_SHAPE, FL_I64));
    fl_scope_end(&s);
    return fl_nn_made(m, ok);
}

typedef struct fl__nn_norm {
    fl_shape shape; /* of the weight */
    int64_t groups;
    double eps;
} fl__nn_norm;

/* A norm of that type with weight one, and bias zero unless there is none. */
static fl_nn_module *fl__nn_norm_new(const fl_nn_type *type, fl_shape shape, int64_t groups,
                                     fl_nn_layer_norm_opts o) {
    const fl__nn_norm l = {shape, groups, fl_option(o.eps, 1e-5)};
    if (shape.ndim < 1 || shape.ndim > FL_MAX_DIMS || fl_shape_numel(shape) < 1 || !(l.eps >= 0)) {
        char text[FL_NN_SHAPE];
        return fl_bad("%s: shape %s, eps %g", type->maker, fl_shape_text(shape, text, sizeof text), l.eps);
    }
    if (!fl_nn_dtype_ok(type->maker, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(type, &l, sizeof l);
    const bool ok = m && (o.no_affine || fl_nn_add_affine(m, shape, o.no_bias, o.dtype));
    fl_scope_end(&scope);
    return fl_nn_made(m, ok);
}

/* The last dims of x are those of the weight. False after fl_nn_fail. */
static bool fl__nn_norm_fits(const fl_nn_module *m, const fl_var *x) {
    const fl__nn_norm *l = m->data;
    const fl_shape have = fl_shape_of(fv_value(x)), want = l->shape;
    bool ok = have.ndim >= want.ndim;
    for (int i = 1; ok && i <= want.ndim; i++) ok = have.dim[have.ndim - i] == want.dim[want.ndim - i];
    if (ok) return true;
    char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
    fl_nn_fail(m, "input %s does not end in %s", fl_nn_shape_text(x, a), fl_shape_text(want, b, sizeof b));
    return false;
}

static void fl__nn_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put_shape(&t, &l->shape);
    fl_nn_put(&t, ", eps=%g, elementwise_affine=%s", l->eps, m->n_param ? "True" : "False");
}

static fl_vars fl__nn_layer_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_norm_fits(m, in.v[0])) return (fl_vars){0};
    return FL_VARS(
        fv_layer_norm(in.v[0], l->shape.ndim, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), l->eps));
}

static const fl_nn_type fl__nn_layer_norm_type = {
    .name = "LayerNorm",
    .maker = "fl_nn_layer_norm",
    .inputs = 1,
    .forward = fl__nn_layer_norm_forward,
    .describe = fl__nn_norm_describe,
    .wide = true,
};

FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    return fl__nn_norm_new(&fl__nn_layer_norm_type, shape, 1, o);
}

static fl_vars fl__nn_rms_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_norm_fits(m, in.v[0])) return (fl_vars){0};
    return FL_VARS(fv_rms_norm(in.v[0], l->shape.ndim, fl_nn_param_at(m, 0), l->eps));
}

static const fl_nn_type fl__nn_rms_norm_type = {
    .name = "RMSNorm",
    .maker = "fl_nn_rms_norm",
    .inputs = 1,
    .forward = fl__nn_rms_norm_forward,
    .describe = fl__nn_norm_describe,
    .wide = true,
};

FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    o.no_bias = true;
    return fl__nn_norm_new(&fl__nn_rms_norm_type, shape, 1, o);
}

static fl_vars fl__nn_group_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim < 2 || x->shape[1] != l->shape.dim[0]) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", ...]", fl_nn_shape_text(in.v[0], text),
                          l->shape.dim[0]);
    }
    return FL_VARS(
        fv_group_norm(in.v[0], l->groups, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), l->eps));
}

static void fl__nn_group_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    snprintf(buf, size, "%" PRId64 ", %" PRId64 ", eps=%g, affine=%s", l->groups, l->shape.dim[0],
             l->eps, m->n_param ? "True" : "False");
}

static const fl_nn_type fl__nn_group_norm_type = {
    .name = "GroupNorm",
    .maker = "fl_nn_group_norm",
    .inputs = 1,
    .forward = fl__nn_group_norm_forward,
    .describe = fl__nn_group_norm_describe,
    .wide = true,
};

FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o) {
    if (groups < 1 || channels < 1 || channels % groups)
        return fl_bad("fl_nn_group_norm: %" PRId64 " groups of %" PRId64 " channels", groups, channels);
    return fl__nn_norm_new(&fl__nn_group_norm_type, FL_SHAPE(channels), groups, o);
}

#endif
#endif

/* MIT licence: see LICENSE. */
