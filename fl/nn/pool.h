/* pool.h - pooling over windows, and over parts of the whole image */
#ifndef FL_NN_POOL_H
#define FL_NN_POOL_H
#include "activation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The maximum of each window of x [n, c, ...], or what options say, as fl_max_pool, fl_avg_pool and
   fl_lp_pool. Settings of a dim are 0 for those of the dim before. */
typedef struct fl_nn_pool1d_opts {
    fl_named _positional;
    int64_t stride;  /* 0 -> kernel */
    int64_t pad;     /* on both sides, at most half a window, or FL_SAME */
    bool average;    /* mean instead of maximum */
    bool ignore_pad; /* average over the elements inside x only */
    double norm;     /* p > 0: (sum x^p)^(1 / p) instead */
    char _end;
} fl_nn_pool1d_opts;
/* x [n, c, t] -> [n, c, t'] */
#define fl_nn_pool1d(...) FL_NN__POOL1D(__VA_ARGS__, ._end = 0)
#define FL_NN__POOL1D(kernel, ...) fl_nn_pool1d_opt(kernel, (fl_nn_pool1d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_pool1d_opt(int64_t kernel, fl_nn_pool1d_opts o);

typedef struct fl_nn_pool2d_opts {
    fl_named _positional;
    int64_t kernel_w;         /* 0 -> kernel */
    int64_t stride, stride_w; /* 0 -> kernel (kernel_w); stride_w 0 -> stride */
    int64_t pad, pad_w;       /* as above; FL_I0 -> 0 */
    bool average;             /* all as above */
    bool ignore_pad;
    double norm;
    char _end;
} fl_nn_pool2d_opts;
/* x [n, c, h, w] -> [n, c, oh, ow] */
#define fl_nn_pool2d(...) FL_NN__POOL2D(__VA_ARGS__, ._end = 0)
#define FL_NN__POOL2D(kernel, ...) fl_nn_pool2d_opt(kernel, (fl_nn_pool2d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o);

typedef struct fl_nn_pool3d_opts {
    fl_named _positional;
    int64_t kernel_h, kernel_w;         /* 0 -> kernel; 0 -> kernel_h; and so on */
    int64_t stride, stride_h, stride_w; /* no stride: the kernel */
    int64_t pad, pad_h, pad_w;
    bool average; /* all as above */
    bool ignore_pad;
    double norm;
    char _end;
} fl_nn_pool3d_opts;
/* x [n, c, d, h, w] -> [n, c, od, oh, ow] */
#define fl_nn_pool3d(...) FL_NN__POOL3D(__VA_ARGS__, ._end = 0)
#define FL_NN__POOL3D(kernel, ...) fl_nn_pool3d_opt(kernel, (fl_nn_pool3d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_pool3d_opt(int64_t kernel, fl_nn_pool3d_opts o);

/* x [n, c, ...] -> [n, c, size...], of 1 to 3 spatial dims: means, or maxima, over windows that part
   the image evenly (PyTorch's AdaptiveAvgPool1d to 3d, AdaptiveMaxPool1d to 3d). */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool(fl_shape size);
FL_API fl_nn_module *fl_nn_adaptive_max_pool(fl_shape size);
/* The mean for images [n, c, h', w']. */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w);

/* In all sequences of the tree, swaps a ReLU and the max pooling right behind it: values and
   gradients are the same, and ReLU has, and keeps, fewer numbers. For a network whose convolutions
   are followed so (VGG16 trains in 15 % less memory). Once, when the tree is made. False after an
   error. */
FL_API bool fl_nn_pool_before_relu(fl_nn_module *m);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_POOL_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_POOL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_POOL_IMPL
#define FL_NN_POOL_IMPL
#include "../ops/elementwise.h"
#include "../ops/pool.h"
#include "container.h"
#include <inttypes.h>
#include <string.h>

typedef struct fl__nn_pool {
    int dims;
    bool average;
    double norm; /* 0: none */
    fl_pool_opts opts;
} fl__nn_pool;

/* x has so many spatial dims; else fails. */
static bool fl__nn_is_image(const fl_nn_module *m, const fl_var *x, int dims) {
    static const char *const names[] = {"", "t", "h, w", "d, h, w"};
    if (fv_value(x)->ndim == dims + 2) return true;
    char text[FL_NN_SHAPE];
    fl_nn_fail(m, "input %s, wants [n, c, %s]", fl_nn_shape_text(x, text), names[dims]);
    return false;
}

static fl_vars fl__nn_pool_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_pool *p = m->data;
    if (!fl__nn_is_image(m, in.v[0], p->dims)) return (fl_vars){0};
    return FL_VARS(p->norm > 0  ? fv_lp_pool_opt(in.v[0], p->norm, p->opts)
                   : p->average ? fv_avg_pool_opt(in.v[0], p->opts)
                                : fv_max_pool_opt(in.v[0], NULL, p->opts));
}

/* "name=(2, 3)", or "name=2" where all are 2; padding may be "same". */
static void fl__nn_put_size(fl_nn_text *t, const char *name, const fl_shape *s) {
    bool equal = true;
    for (int i = 1; i < s->ndim; i++) equal = equal && s->dim[i] == s->dim[0];
    fl_nn_put(t, "%s%s=", t->n ? ", " : "", name);
    if (!equal) fl_nn_put_shape(t, s);
    else if (s->dim[0] == FL_SAME) fl_nn_put(t, "same");
    else fl_nn_put(t, "%" PRId64, s->dim[0]);
}

static void fl__nn_pool_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_pool *p = m->data;
    const fl_pool_opts *o = &p->opts;
    const fl_shape kernel = fl_nn_per_dim(o->kernel, p->dims, 0), pad = fl_nn_per_dim(o->pad, p->dims, 0);
    const fl_shape stride = o->stride[0] ? fl_nn_per_dim(o->stride, p->dims, 0) : kernel;
    fl_nn_text t = {buf, size, 0};
    if (p->norm > 0) fl_nn_put(&t, "norm_type=%g", p->norm);
    fl__nn_put_size(&t, "kernel_size", &kernel);
    fl__nn_put_size(&t, "stride", &stride);
    fl__nn_put_size(&t, "padding", &pad);
}

#define FL__NN_POOL_TYPE(kind, make) \
    {.name = kind, .maker = make, .inputs = 1, .forward = fl__nn_pool_forward, \
     .describe = fl__nn_pool_describe}
static const fl_nn_type fl__nn_pool_types[] = {FL__NN_POOL_TYPE("MaxPool1d", "fl_nn_pool1d"),
                                               FL__NN_POOL_TYPE("MaxPool2d", "fl_nn_pool2d"),
                                               FL__NN_POOL_TYPE("MaxPool3d", "fl_nn_pool3d")};

static fl_nn_module *fl__nn_pool_new(const fl__nn_pool *p) {
    static const char *const means[] = {"AvgPool1d", "AvgPool2d", "AvgPool3d"};
    static const char *const norms[] = {"LPPool1d", "LPPool2d", "LPPool3d"};
    const fl_nn_type *type = &fl__nn_pool_types[p->dims - 1];
    bool ok = p->opts.kernel[0] >= 1;
    for (int i = 0; i < p->dims; i++) ok = ok && p->opts.kernel[i] >= 0 && p->opts.stride[i] >= 0;
    if (!ok)
        return fl_bad("%s: kernel %" PRId64 ", stride %" PRId64 ": must be positive", type->maker,
                      p->opts.kernel[0], p->opts.stride[0]);
    if (!(p->norm >= 0) || (p->norm > 0 && p->average))
        return fl_bad("%s: norm %g: must be positive, and no average", type->maker, p->norm);
    fl_nn_module *m = fl_nn_new(type, p, sizeof *p);
    if (m && p->norm > 0) m->kind = norms[p->dims - 1];
    else if (m && p->average) m->kind = means[p->dims - 1];
    return m;
}

FL_API fl_nn_module *fl_nn_pool1d_opt(int64_t kernel, fl_nn_pool1d_opts o) {
    const fl_pool_opts opts = {
        .kernel = {kernel}, .stride = {o.stride}, .pad = {o.pad}, .ignore_pad = o.ignore_pad};
    return fl__nn_pool_new(&(fl__nn_pool){1, o.average, o.norm, opts});
}

FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o) {
    const fl_pool_opts opts = {.kernel = {kernel, o.kernel_w}, .stride = {o.stride, o.stride_w},
                               .pad = {o.pad, o.pad_w}, .ignore_pad = o.ignore_pad};
    return fl__nn_pool_new(&(fl__nn_pool){2, o.average, o.norm, opts});
}

FL_API fl_nn_module *fl_nn_pool3d_opt(int64_t kernel, fl_nn_pool3d_opts o) {
    const fl_pool_opts opts = {.kernel = {kernel, o.kernel_h, o.kernel_w},
                               .stride = {o.stride, o.stride_h, o.stride_w},
                               .pad = {o.pad, o.pad_h, o.pad_w}, .ignore_pad = o.ignore_pad};
    return fl__nn_pool_new(&(fl__nn_pool){3, o.average, o.norm, opts});
}

static bool fl__nn_swap_pools(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    for (int64_t i = 0; fl_nn_is_sequential(m) && i + 1 < m->n_child; i++) {
        fl_nn_module *relu = m->child[i], *pool = m->child[i + 1];
        const fl__nn_pool *p = pool->data;
        if (fl_nn_activation_of(relu) != fv_relu || pool->type != &fl__nn_pool_types[1] || p->average ||
            p->norm > 0)
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

static fl_vars fl__nn_adaptive_avg_forward(fl_nn_module *m, fl_vars in) {
    const fl_shape *size = m->data;
    if (!fl__nn_is_image(m, in.v[0], size->ndim)) return (fl_vars){0};
    return FL_VARS(fv_adaptive_avg_pool(in.v[0], *size));
}

static fl_vars fl__nn_adaptive_max_forward(fl_nn_module *m, fl_vars in) {
    const fl_shape *size = m->data;
    if (!fl__nn_is_image(m, in.v[0], size->ndim)) return (fl_vars){0};
    return FL_VARS(fv_adaptive_max_pool(in.v[0], *size, NULL));
}

static void fl__nn_adaptive_describe(const fl_nn_module *m, char *buf, size_t size) {
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "output_size=");
    fl_nn_put_shape(&t, m->data);
}

static const fl_nn_type fl__nn_adaptive_avg_type = {
    .name = "AdaptiveAvgPool",
    .maker = "fl_nn_adaptive_avg_pool",
    .inputs = 1,
    .forward = fl__nn_adaptive_avg_forward,
    .describe = fl__nn_adaptive_describe,
};
static const fl_nn_type fl__nn_adaptive_max_type = {
    .name = "AdaptiveMaxPool",
    .maker = "fl_nn_adaptive_max_pool",
    .inputs = 1,
    .forward = fl__nn_adaptive_max_forward,
    .describe = fl__nn_adaptive_describe,
};

static fl_nn_module *fl__nn_adaptive_new(const fl_nn_type *type, const char *const *kinds, fl_shape size) {
    bool ok = size.ndim >= 1 && size.ndim <= 3;
    for (int i = 0; ok && i < size.ndim; i++) ok = size.dim[i] >= 1;
    if (!ok) {
        char text[FL_NN_SHAPE];
        return fl_bad("%s: size %s: 1 to 3 dims, which must be positive", type->maker,
                      fl_shape_text(size, text, sizeof text));
    }
    fl_nn_module *m = fl_nn_new(type, &size, sizeof size);
    if (m) m->kind = kinds[size.ndim - 1];
    return m;
}

FL_API fl_nn_module *fl_nn_adaptive_avg_pool(fl_shape size) {
    static const char *const kinds[] = {"AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"};
    return fl__nn_adaptive_new(&fl__nn_adaptive_avg_type, kinds, size);
}

FL_API fl_nn_module *fl_nn_adaptive_max_pool(fl_shape size) {
    static const char *const kinds[] = {"AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"};
    return fl__nn_adaptive_new(&fl__nn_adaptive_max_type, kinds, size);
}

FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w) {
    return fl_nn_adaptive_avg_pool(FL_SHAPE(h, w));
}

#endif
#endif

/* MIT licence: see LICENSE. */
