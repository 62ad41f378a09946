/* fl/nn/norm.h - normalisation layers: batch, layer, RMS, group, instance norm, Lp normalisation */
#ifndef FL_NN_NORM_H
#define FL_NN_NORM_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_batch_norm_opts {
    fl_opts_guard guard_;
    double momentum; /* 0 -> 0.1; running = (1 - momentum) running + momentum batch */
    bool cumulative; /* running is the plain average over all batches instead (PyTorch's momentum=None) */
    double eps;      /* 0 -> 1e-5 */
    bool no_affine;  /* no weight and bias */
    bool no_track;   /* no running statistics: always normalise by the batch's */
    bool frozen;     /* always use running statistics; weight and bias are buffers; no batch count */
    bool relu;       /* y = max(0, y), after the second input, if any, was added */
    fl_dtype dtype;
    char _end;
} fl_nn_batch_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias per channel of x [n, c] or [n, c, t] (1d), [n, c, h, w]
   (2d), [n, c, d, h, w] (3d). In training, mean and var (biased) are the batch's, and running_mean,
   running_var (unbiased) and num_batches_tracked (i64) are updated; in evaluation the running ones are used.
   A second input of x's shape is added to y, which fuses the end of a residual block. .frozen: torchvision's
   FrozenBatchNorm2d. */
#define fl_nn_batch_norm1d(...) FL_NN__BATCH_NORM(fl_nn_batch_norm1d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_batch_norm2d(...) FL_NN__BATCH_NORM(fl_nn_batch_norm2d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_batch_norm3d(...) FL_NN__BATCH_NORM(fl_nn_batch_norm3d_opt, __VA_ARGS__, ._end = 0)
#define FL_NN__BATCH_NORM(make, channels, ...) make(channels, FL_LITERAL(fl_nn_batch_norm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_batch_norm1d_opt(int64_t channels, fl_nn_batch_norm_opts o);
FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o);
FL_API fl_nn_module *fl_nn_batch_norm3d_opt(int64_t channels, fl_nn_batch_norm_opts o);
/* Makes the batch norms of the tree sum their statistics over several parts of a batch: sets fl_batch_norm's
   .reduce (NULL: removes it). fl_dist_sync_batch_norm sets one over ranks. */
FL_API bool fl_nn_batch_norm_reduce(fl_nn_module *m, bool (*reduce)(fl_tensor *sums, void *user), void *user);
/* Whether m is a 2-d batch norm that uses running statistics now, hence is x scale + shift per channel, then
   a ReLU if *relu. */
FL_PRIVATE bool fl__nn_batch_norm_is_affine(const fl_nn_module *m, bool *relu);
/* Scale and shift [channels] of such a norm. Returns false after an error. */
FL_PRIVATE bool fl__nn_batch_norm_affine(const fl_nn_module *m, fl_tensor **scale, fl_tensor **shift);

typedef struct fl_nn_layer_norm_opts {
    fl_opts_guard guard_;
    double eps;     /* 0 -> 1e-5 */
    bool no_affine; /* no weight and no bias */
    bool no_bias;   /* weight but no bias */
    fl_dtype dtype;
    char _end;
} fl_nn_layer_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias; mean and var (biased) over the last dims of x, which must
   be `shape`, the shape of weight and bias. */
#define fl_nn_layer_norm(...) FL_NN__LAYER_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__LAYER_NORM(shape, ...) \
    fl_nn_layer_norm_opt(shape, FL_LITERAL(fl_nn_layer_norm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);

/* y = x / sqrt(mean(x^2) + eps) * weight over the last dims of x, which must be `shape`. eps 0 -> the machine
   epsilon of x's dtype (2^-23 for f32), as in PyTorch. no_bias is ignored. */
#define fl_nn_rms_norm(...) FL_NN__RMS_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__RMS_NORM(shape, ...) fl_nn_rms_norm_opt(shape, FL_LITERAL(fl_nn_layer_norm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);
/* Residual add and norm, fused: *x becomes *x + drop_path(dropout(branch)); returns norm(*x). norm (then *x
   is returned) and drop_path may be NULL. Same values as the modules' forwards, but one pass if the backend
   implements it, norm is fl_nn_layer_norm or fl_nn_rms_norm, dropout is fl_nn_dropout, and no calls are
   watched. */
FL_API fl_var *fl_nn_add_norm(fl_nn_module *norm, fl_nn_module *dropout, fl_nn_module *drop_path,
                              fl_var *branch, fl_var **x);
/* A layer norm over groups of channels of x [n, channels, ...]; weight and bias [channels]. */
#define fl_nn_group_norm(...) FL_NN__GROUP_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__GROUP_NORM(groups, channels, ...) \
    fl_nn_group_norm_opt(groups, channels, FL_LITERAL(fl_nn_layer_norm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o);
typedef struct fl_nn_instance_norm_opts {
    fl_opts_guard guard_;
    double eps;      /* 0 -> 1e-5 */
    bool affine;     /* weight and bias */
    bool track;      /* running statistics, which evaluation uses as batch norm does */
    double momentum; /* 0 -> 0.1; running = (1 - momentum) running + momentum (mean over the batch) */
    fl_dtype dtype;
    char _end;
} fl_nn_instance_norm_opts;
/* A layer norm over each channel of x [n, channels, ...] (PyTorch's InstanceNorm1d to 3d, which have no
   weight by default). .track adds running_mean, running_var (unbiased) [channels] and num_batches_tracked,
   which stays 0 as in PyTorch. */
#define fl_nn_instance_norm(...) FL_NN__INSTANCE_NORM(__VA_ARGS__, ._end = 0)
#define FL_NN__INSTANCE_NORM(channels, ...) \
    fl_nn_instance_norm_opt(channels, FL_LITERAL(fl_nn_instance_norm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_instance_norm_opt(int64_t channels, fl_nn_instance_norm_opts o);

typedef struct fl_nn_normalize_opts {
    fl_opts_guard guard_;
    double p;     /* 0 -> 2 */
    double eps;   /* 0 -> 1e-12 */
    double value; /* 0 -> 1 */
    char _end;
} fl_nn_normalize_opts;
/* y = value x / max(|x|_p over axes, eps), as PyTorch's F.normalize: fl_nn_normalize(FL_AXES(1)). */
#define fl_nn_normalize(...) FL_NN__NORMALIZE(__VA_ARGS__, ._end = 0)
#define FL_NN__NORMALIZE(axes, ...) fl_nn_normalize_opt(axes, FL_LITERAL(fl_nn_normalize_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_normalize_opt(fl_axes axes, fl_nn_normalize_opts o);

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
#include "../ops/reduce.h"
#include "../ops/view.h"
#include "dropout.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__nn_batch_norm {
    int64_t channels;
    double momentum, eps;
    int dims;
    bool cumulative, track, frozen, relu;
    bool (*reduce)(fl_tensor *sums, void *user);
    void *reduce_user;
} fl__nn_batch_norm;

/* Order of the buffers; those after the statistics depend on whether they are frozen. */
enum { FL__NN_RUNNING_MEAN, FL__NN_RUNNING_VAR, FL__NN_BATCHES, FL__NN_WEIGHT = FL__NN_BATCHES, FL__NN_BIAS };

static bool fl__nn_batch_norm_fits(const fl__nn_batch_norm *b, const fl_tensor *x) {
    return (x->ndim == b->dims + 2 || (b->dims == 1 && x->ndim == 2)) && x->shape[1] == b->channels;
}

static fl_vars fl__nn_batch_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_batch_norm *b = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    const bool batch = (m->train && !b->frozen) || !b->track;
    static const char *const dims[] = {"", "] or [n, c, t", ", h, w", ", d, h, w"};
    char text[FL_NN_SHAPE];
    if (in.n != 1 && in.n != 2) return fl_nn_fail(m, "got %d inputs, expected 1 or 2", in.n);
    if (!fl__nn_batch_norm_fits(b, x))
        return fl_nn_fail(m, "input %s, expected [n, %" PRId64 "%s]", fl_nn_shape_text(in.v[0], text),
                          b->channels, dims[b->dims]);
    const int64_t n = fl_numel(x) / b->channels;
    if (batch && n == 1 && !b->reduce)
        return fl_nn_fail(m, "input %s has %" PRId64 " value per channel, batch statistics need at least 2",
                          fl_nn_shape_text(in.v[0], text), n);
    fl_batch_norm_opts o = {
        .train = batch, .momentum = b->momentum, .eps = b->eps, .relu = b->relu,
        .reduce = b->reduce, .reduce_user = b->reduce_user};
    if (b->track) {
        o.mean = m->buffer[FL__NN_RUNNING_MEAN].tensor;
        o.var = m->buffer[FL__NN_RUNNING_VAR].tensor;
        if (batch) o.batches = m->buffer[FL__NN_BATCHES].tensor;
        if (batch && b->cumulative) o.momentum = 1.0 / (double)(fl_item_int(o.batches) + 1);
    }
    if (o.momentum == 0) o.momentum = FL_ZERO;
    if (o.eps == 0) o.eps = FL_ZERO;
    fl_var *weight = fl_nn_param_at(m, 0), *bias = fl_nn_param_at(m, 1);
    if (b->frozen) {
        weight = fv_const(m->buffer[FL__NN_WEIGHT].tensor);
        bias = fv_const(m->buffer[FL__NN_BIAS].tensor);
    }
    fl_var *y = in.n == 2 ? fv_batch_norm_add_opt(in.v[0], weight, bias, in.v[1], o)
                          : fv_batch_norm_opt(in.v[0], weight, bias, o);
    return FL_VARS(y);
}

static void fl__nn_batch_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_batch_norm *b = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", eps=%g", b->channels, b->eps);
    if (b->frozen) {
    } else if (b->cumulative) fl_nn_put(&t, ", momentum=None");
    else fl_nn_put(&t, ", momentum=%g", b->momentum);
    if (!b->frozen)
        fl_nn_put(&t, ", affine=%s, track_running_stats=%s", m->n_param ? "True" : "False",
                  b->track ? "True" : "False");
    if (b->relu) fl_nn_put(&t, ", relu=True");
}

#define FL__NN_BATCH_NORM_TYPE(kind, make) \
    {.name = kind, .maker = make, .forward = fl__nn_batch_norm_forward, \
     .describe = fl__nn_batch_norm_describe, .wide = true}
static const fl_nn_type fl__nn_batch_norm_types[] = {
    FL__NN_BATCH_NORM_TYPE("BatchNorm1d", "fl_nn_batch_norm1d"),
    FL__NN_BATCH_NORM_TYPE("BatchNorm2d", "fl_nn_batch_norm2d"),
    FL__NN_BATCH_NORM_TYPE("BatchNorm3d", "fl_nn_batch_norm3d")};

/* Adds running statistics, then the count of batches or, if frozen, weight and bias. */
static bool fl__nn_add_running(fl_nn_module *m, fl_shape shape, bool frozen, fl_dtype dtype) {
    if (!fl_nn_add_buffer(m, "running_mean", fl_zeros(shape, dtype)) ||
        !fl_nn_add_buffer(m, "running_var", fl_ones(shape, dtype)))
        return false;
    if (!frozen)
        return fl_nn_add_buffer(m, "num_batches_tracked", fl_zeros(FL_SCALAR_SHAPE, FL_I64)) != NULL;
    return fl_nn_add_buffer(m, "weight", fl_ones(shape, dtype)) &&
           fl_nn_add_buffer(m, "bias", fl_zeros(shape, dtype));
}

static fl_nn_module *fl__nn_batch_norm_new(int dims, int64_t channels, fl_nn_batch_norm_opts o) {
    static const char *const frozen[] = {"FrozenBatchNorm1d", "FrozenBatchNorm2d", "FrozenBatchNorm3d"};
    const fl_nn_type *type = &fl__nn_batch_norm_types[dims - 1];
    const fl__nn_batch_norm b = {
        .channels = channels, .momentum = fl_option(o.momentum, 0.1), .eps = fl_option(o.eps, 1e-5),
        .dims = dims, .cumulative = o.cumulative, .track = !o.no_track, .frozen = o.frozen, .relu = o.relu};
    if (channels < 1 || !(b.eps >= 0) || !(b.momentum >= 0 && b.momentum <= 1))
        return fl_err_null("%s: channels must be positive, momentum in [0, 1], eps not negative, got %" PRId64
                           ", %g and %g", type->maker, channels, b.momentum, b.eps);
    if (o.frozen && (o.no_affine || o.no_track))
        return fl_err_null("%s: .frozen cannot be combined with .no_affine or .no_track", type->maker);
    if (!fl_nn_dtype_ok(type->maker, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(type, &b, sizeof b);
    bool ok = m != NULL;
    const fl_shape shape = FL_SHAPE(channels);
    if (ok && !o.no_affine && !o.frozen) ok = fl_nn_add_affine(m, shape, false, o.dtype);
    if (ok && !o.no_track) ok = fl__nn_add_running(m, shape, o.frozen, o.dtype);
    if (ok && o.frozen) m->kind = frozen[dims - 1];
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

FL_API fl_nn_module *fl_nn_batch_norm1d_opt(int64_t channels, fl_nn_batch_norm_opts o) {
    return fl__nn_batch_norm_new(1, channels, o);
}
FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o) {
    return fl__nn_batch_norm_new(2, channels, o);
}
FL_API fl_nn_module *fl_nn_batch_norm3d_opt(int64_t channels, fl_nn_batch_norm_opts o) {
    return fl__nn_batch_norm_new(3, channels, o);
}

FL_PRIVATE bool fl__nn_batch_norm_is_affine(const fl_nn_module *m, bool *relu) {
    const fl__nn_batch_norm *b = m->data;
    if (m->type != &fl__nn_batch_norm_types[1]) return false;
    *relu = b->relu;
    return b->track && (!m->train || b->frozen);
}

FL_PRIVATE bool fl__nn_batch_norm_affine(const fl_nn_module *m, fl_tensor **scale, fl_tensor **shift) {
    const fl__nn_batch_norm *b = m->data;
    fl_tensor *w = fv_value(fl_nn_param_at(m, 0)), *bias = fv_value(fl_nn_param_at(m, 1));
    if (b->frozen) w = m->buffer[FL__NN_WEIGHT].tensor, bias = m->buffer[FL__NN_BIAS].tensor;
    *scale = fl_rsqrt(fl_add(m->buffer[FL__NN_RUNNING_VAR].tensor, fl_num(b->eps)));
    if (w) *scale = fl_mul(*scale, w);
    *shift = fl_neg(fl_mul(m->buffer[FL__NN_RUNNING_MEAN].tensor, *scale));
    if (bias) *shift = fl_add(*shift, bias);
    return *shift != NULL;
}

FL_API bool fl_nn_batch_norm_reduce(fl_nn_module *m, bool (*reduce)(fl_tensor *sums, void *user),
                                    void *user) {
    if (!fl_given(m, "fl_nn_batch_norm_reduce", "the module")) return fl_raise();
    const size_t kinds = sizeof fl__nn_batch_norm_types / sizeof *fl__nn_batch_norm_types;
    if (m->type >= fl__nn_batch_norm_types && m->type < fl__nn_batch_norm_types + kinds) {
        fl__nn_batch_norm *b = m->data;
        b->reduce = reduce;
        b->reduce_user = user;
    }
    for (int64_t i = 0; i < m->n_child; i++) fl_nn_batch_norm_reduce(m->child[i], reduce, user);
    return true;
}

typedef struct fl__nn_norm {
    fl_shape shape; /* of the weight */
    int64_t groups; /* groups of channels; -1: norm over the last dims, 0: over each channel */
    double eps;
    double momentum; /* of an instance norm's running statistics */
} fl__nn_norm;

/* A norm of that type with a weight of ones and, unless disabled, a bias of zeros. */
static fl_nn_module *fl__nn_norm_new(const fl_nn_type *type, fl_shape shape, int64_t groups,
                                     fl_nn_layer_norm_opts o) {
    const fl__nn_norm l = {shape, groups, fl_option(o.eps, 1e-5), 0};
    if (shape.ndim < 1 || shape.ndim > FL_MAX_DIMS || fl_shape_numel(shape) < 1 || !(l.eps >= 0)) {
        char text[FL_NN_SHAPE];
        return fl_err_null("%s: dims must be positive (1 to %d of them), eps not negative, got %s and %g",
                           type->maker, FL_MAX_DIMS, fl_shape_text(shape, text, sizeof text), l.eps);
    }
    if (!fl_nn_dtype_ok(type->maker, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(type, &l, sizeof l);
    const bool ok = m && (o.no_affine || fl_nn_add_affine(m, shape, o.no_bias, o.dtype));
    fl_scope_end(&scope);
    return fl_nn_finish(m, ok);
}

/* Checks that the last dims of x are those of the weight. Returns false after fl_nn_fail. */
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

/* "(4,), eps=1e-05, elementwise_affine=True" over dims, "2, 4, eps=1e-05, affine=True" over channels */
static void fl__nn_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    fl_nn_text t = {buf, size, 0};
    if (l->groups > 0) fl_nn_put(&t, "%" PRId64 ", ", l->groups);
    if (l->groups < 0) fl_nn_put_shape(&t, &l->shape);
    else fl_nn_put(&t, "%" PRId64, l->shape.dim[0]);
    if (l->eps == HUGE_VAL) fl_nn_put(&t, ", eps=None");
    else fl_nn_put(&t, ", eps=%g", l->eps);
    fl_nn_put(&t, ", %s=%s", l->groups < 0 ? "elementwise_affine" : "affine", m->n_param ? "True" : "False");
}

static fl_vars fl__nn_layer_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_norm_fits(m, in.v[0])) return (fl_vars){0};
    return FL_VARS(
        fv_layer_norm(in.v[0], l->shape.ndim, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), l->eps));
}

static const fl_nn_type fl__nn_layer_norm_type = {.name = "LayerNorm", .maker = "fl_nn_layer_norm",
                                                  .inputs = 1, .forward = fl__nn_layer_norm_forward,
                                                  .describe = fl__nn_norm_describe, .wide = true};

FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    return fl__nn_norm_new(&fl__nn_layer_norm_type, shape, -1, o);
}

/* Machine epsilon: the difference of 1 and the next larger number. */
static double fl__nn_epsilon(fl_dtype dtype) {
    return dtype == FL_F64 ? 0x1p-52 : dtype == FL_BF16 ? 0x1p-7 : dtype == FL_F16 ? 0x1p-10 : 0x1p-23;
}

static fl_vars fl__nn_rms_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_norm_fits(m, in.v[0])) return (fl_vars){0};
    const double eps = l->eps == HUGE_VAL ? fl__nn_epsilon(fv_value(in.v[0])->dtype) : l->eps;
    return FL_VARS(fv_rms_norm(in.v[0], l->shape.ndim, fl_nn_param_at(m, 0), eps));
}

static const fl_nn_type fl__nn_rms_norm_type = {.name = "RMSNorm", .maker = "fl_nn_rms_norm", .inputs = 1,
                                                .forward = fl__nn_rms_norm_forward,
                                                .describe = fl__nn_norm_describe, .wide = true};

FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    o.no_bias = true;
    o.eps = o.eps == 0 && !signbit(o.eps) ? HUGE_VAL : o.eps;
    return fl__nn_norm_new(&fl__nn_rms_norm_type, shape, -1, o);
}

/* Whether fl_add_layer_norm computes them, and the backend implements it itself. */
static bool fl__nn_can_fuse_norm(const fl_nn_module *norm, const fl_tensor *branch, const fl_tensor *x) {
    return norm && (norm->type == &fl__nn_layer_norm_type || norm->type == &fl__nn_rms_norm_type) &&
           branch->dtype == x->dtype && fl_backend_has(x->backend, fl_op_add_layer_norm) && !fl__nn_watched();
}

FL_API fl_var *fl_nn_add_norm(fl_nn_module *norm, fl_nn_module *dropout, fl_nn_module *drop_path,
                              fl_var *branch, fl_var **x) {
    fl_rng *rng = NULL;
    const double p = drop_path ? -1 : fl_nn_dropout_of(dropout, &rng);
    static const char fn[] = "fl_nn_add_norm";
    if (fl_is_null_arg(fn, branch) || fl_is_null_arg(fn, x) || fl_is_null_arg(fn, *x)) return NULL;
    if (p < 0 || !fl__nn_can_fuse_norm(norm, fv_value(branch), fv_value(*x))) {
        branch = fl_nn_forward(dropout, branch);
        *x = fv_add(*x, drop_path ? fl_nn_forward(drop_path, branch) : branch);
        return norm ? fl_nn_forward(norm, *x) : *x;
    }
    if (!fl__nn_norm_fits(norm, *x)) return NULL;
    const fl__nn_norm *l = norm->data;
    const bool rms = norm->type == &fl__nn_rms_norm_type;
    const double eps = l->eps == HUGE_VAL ? fl__nn_epsilon(fv_value(*x)->dtype) : l->eps;
    return fv_add_layer_norm(branch, *x, fl_nn_param_at(norm, 0), fl_nn_param_at(norm, 1),
                             (fl_norm_args){l->shape.ndim, eps, rms}, p, rng, x);
}

/* Checks the channels of x; fails if they differ. */
static bool fl__nn_channels_fit(const fl_nn_module *m, const fl_var *v, int dims) {
    const fl__nn_norm *l = m->data;
    const fl_tensor *x = fv_value(v);
    if (x->ndim >= dims && x->shape[1] == l->shape.dim[0]) return true;
    char text[FL_NN_SHAPE];
    fl_nn_fail(m, "input %s, expected [n, %" PRId64 ", %s...]", fl_nn_shape_text(v, text), l->shape.dim[0],
               dims > 2 ? "t, " : "");
    return false;
}

static fl_vars fl__nn_group_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_channels_fit(m, in.v[0], 2)) return (fl_vars){0};
    return FL_VARS(
        fv_group_norm(in.v[0], l->groups, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1), l->eps));
}

static const fl_nn_type fl__nn_group_norm_type = {.name = "GroupNorm", .maker = "fl_nn_group_norm",
                                                  .inputs = 1, .forward = fl__nn_group_norm_forward,
                                                  .describe = fl__nn_norm_describe, .wide = true};

FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o) {
    if (groups < 1 || channels < 1 || channels % groups)
        return fl_err_null("fl_nn_group_norm: channels (%" PRId64 ") must be divisible by groups (%" PRId64
                           "), both positive", channels, groups);
    return fl__nn_norm_new(&fl__nn_group_norm_type, FL_SHAPE(channels), groups, o);
}

/* (1 - momentum) running + momentum (mean over the batch), of statistics [n, channels] */
static fl_tensor *fl__nn_running_update(fl_tensor *running, fl_tensor *each, double momentum) {
    return fl_add(fl_mul(running, fl_num(1 - momentum)), fl_mul(fl_mean(each, FL_AXES(0)), fl_num(momentum)));
}

static fl_vars fl__nn_instance_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_channels_fit(m, in.v[0], 3)) return (fl_vars){0};
    fl_var *weight = fl_nn_param_at(m, 0), *bias = fl_nn_param_at(m, 1);
    if (!m->n_buffer) return FL_VARS(fv_instance_norm(in.v[0], weight, bias, l->eps));
    fl_tensor *mean = m->buffer[FL__NN_RUNNING_MEAN].tensor, *var = m->buffer[FL__NN_RUNNING_VAR].tensor;
    if (!m->train)
        return FL_VARS(fv_batch_norm(in.v[0], weight, bias, .mean = mean, .var = var,
                                     .eps = l->eps != 0 ? l->eps : FL_ZERO));
    fl_tensor *x = fl_cast(fl_flatten(fv_value(in.v[0]), 2, -1), mean->dtype);
    if (x && x->shape[2] < 2) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s has 1 value per channel, running statistics need at least 2",
                          fl_nn_shape_text(in.v[0], text));
    }
    fl_var *y = fv_instance_norm(in.v[0], weight, bias, l->eps);
    fl_tensor *next_mean = fl__nn_running_update(mean, fl_mean(x, FL_AXES(2)), l->momentum);
    fl_tensor *next_var = fl__nn_running_update(var, fl_variance(x, FL_AXES(2), 1), l->momentum);
    const bool ok = y && next_mean && next_var && fl_assign(mean, next_mean) && fl_assign(var, next_var);
    return ok ? FL_VARS(y) : (fl_vars){0};
}

static void fl__nn_instance_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    fl__nn_norm_describe(m, buf, size);
    fl_nn_text t = {buf, size, (int64_t)strlen(buf)};
    if (m->n_buffer) fl_nn_put(&t, ", momentum=%g, track_running_stats=True", l->momentum);
}

static const fl_nn_type fl__nn_instance_norm_type = {.name = "InstanceNorm",
                                                     .maker = "fl_nn_instance_norm", .inputs = 1,
                                                     .forward = fl__nn_instance_norm_forward,
                                                     .describe = fl__nn_instance_norm_describe,
                                                     .wide = true};

FL_API fl_nn_module *fl_nn_instance_norm_opt(int64_t channels, fl_nn_instance_norm_opts o) {
    const fl_nn_layer_norm_opts l = {.eps = o.eps, .no_affine = !o.affine, .dtype = o.dtype};
    const double momentum = fl_option(o.momentum, 0.1);
    if (!(momentum >= 0 && momentum <= 1))
        return fl_err_null("fl_nn_instance_norm: momentum must be in [0, 1], got %g", momentum);
    fl_nn_module *m = fl__nn_norm_new(&fl__nn_instance_norm_type, FL_SHAPE(channels), 0, l);
    if (!m || !o.track) return m;
    ((fl__nn_norm *)m->data)->momentum = momentum;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    const bool ok = fl__nn_add_running(m, FL_SHAPE(channels), false, o.dtype);
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

typedef struct fl__nn_normalize {
    fl_axes axes;
    double p, eps, value;
} fl__nn_normalize;

static fl_vars fl__nn_normalize_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_normalize *f = m->data;
    fl_var *x = in.v[0];
    const int ndim = fv_value(x)->ndim;
    for (int i = 0; i < f->axes.n; i++) {
        char text[FL_NN_SHAPE];
        if (f->axes.axis[i] < -ndim || f->axes.axis[i] >= ndim)
            return fl_nn_fail(m, "axis %d is out of range for input %s", f->axes.axis[i],
                              fl_nn_shape_text(x, text));
    }
    fl_var *y = fv_div(x, fv_maximum(fv_norm(x, f->p, f->axes), fv_num(f->eps)));
    return FL_VARS(f->value == 1 ? y : fv_mul(y, fv_num(f->value)));
}

static void fl__nn_normalize_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_normalize *f = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "p=%g, dim=(", f->p);
    for (int i = 0; i < f->axes.n; i++) fl_nn_put(&t, "%s%d", i ? ", " : "", f->axes.axis[i]);
    fl_nn_put(&t, "), eps=%g", f->eps);
    if (f->value != 1) fl_nn_put(&t, ", value=%g", f->value);
}

static const fl_nn_type fl__nn_normalize_type = {.name = "Normalize", .maker = "fl_nn_normalize",
                                                 .inputs = 1, .forward = fl__nn_normalize_forward,
                                                 .describe = fl__nn_normalize_describe};

FL_API fl_nn_module *fl_nn_normalize_opt(fl_axes axes, fl_nn_normalize_opts o) {
    fl__nn_normalize f = {axes, fl_option(o.p, 2), fl_option(o.eps, 1e-12), fl_option(o.value, 1)};
    f.axes.keepdim = true;
    if (axes.n < 0 || axes.n > FL_MAX_DIMS || !(f.eps >= 0) || isnan(f.p) || isnan(f.value))
        return fl_err_null("fl_nn_normalize: expected up to %d axes, eps >= 0, p and value not NaN, got %d "
                           "axes, "
                           "eps %g, p %g, value %g", FL_MAX_DIMS, axes.n, f.eps, f.p, f.value);
    return fl_nn_new(&fl__nn_normalize_type, &f, sizeof f);
}

#endif
#endif

/* MIT licence: see LICENSE. */
