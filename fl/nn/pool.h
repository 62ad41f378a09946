/* fl/nn/pool.h - pooling over windows; adaptive pooling */
#ifndef FL_NN_POOL_H
#define FL_NN_POOL_H
#include "activation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Settings per dim as in fl_nn_conv_opts. */
typedef struct fl_nn_pool_opts {
    fl_opts_guard guard_;
    int64_t kernel_h, kernel_w;         /* where they differ from kernel */
    int64_t stride, stride_h, stride_w; /* 0 -> the kernel */
    int64_t pad, pad_h, pad_w;          /* on both sides, at most half a window, or FL_SAME; FL_I0: none */
    int64_t dilation, dilation_h, dilation_w; /* 0 -> 1 */
    bool ceil_mode;                     /* the last window may extend past the padding */
    bool average;                       /* mean instead of maximum */
    bool ignore_pad;                    /* average: leave padding out of the count */
    int64_t divisor_override;           /* average: divide by this instead; 0 -> off */
    double norm;                        /* p > 0: (sum x^p)^(1 / p) instead (PyTorch's LPPool) */
    bool return_indices;                /* maximum: second output, i64 argmax, for fl_max_unpool */
    char _end;
} fl_nn_pool_opts;
/* Pools windows of x [n, c, t], [n, c, h, w] or [n, c, d, h, w]: the maximum by default, else as the options
   say; see fl_max_pool, fl_avg_pool and fl_lp_pool. */
#define fl_nn_pool1d(...) FL_NN__POOL(fl_nn_pool1d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_pool2d(...) FL_NN__POOL(fl_nn_pool2d_opt, __VA_ARGS__, ._end = 0)
#define fl_nn_pool3d(...) FL_NN__POOL(fl_nn_pool3d_opt, __VA_ARGS__, ._end = 0)
#define FL_NN__POOL(make, kernel, ...) make(kernel, FL_LITERAL(fl_nn_pool_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_pool1d_opt(int64_t kernel, fl_nn_pool_opts o);
FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool_opts o);
FL_API fl_nn_module *fl_nn_pool3d_opt(int64_t kernel, fl_nn_pool_opts o);

/* x [n, c, ...] -> [n, c, size...] with 1 to 3 spatial dims: mean or maximum over windows that divide the
   image evenly (PyTorch's AdaptiveAvgPool1d to 3d, AdaptiveMaxPool1d to 3d). */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool(fl_shape size);
FL_API fl_nn_module *fl_nn_adaptive_max_pool(fl_shape size);
/* fl_nn_adaptive_avg_pool for images [n, c, h', w']. */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w);

/* Swaps each ReLU in a sequence of the tree with the 2-d max pooling that follows it: same values and
   gradients, but ReLU processes and saves fewer elements (VGG16 trains in 15 % less memory). Call once, after
   building the tree. Returns false after an error. */
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
    bool average, indices;
    double norm; /* 0: off */
    fl_pool_opts opts;
} fl__nn_pool;

/* Checks the number of spatial dims of x; else fails. */
static bool fl__nn_is_image(const fl_nn_module *m, const fl_var *x, int dims) {
    static const char *const names[] = {"", "t", "h, w", "d, h, w"};
    if (fv_value(x)->ndim == dims + 2) return true;
    char text[FL_NN_SHAPE];
    fl_nn_fail(m, "input %s, expected [n, c, %s]", fl_nn_shape_text(x, text), names[dims]);
    return false;
}

static fl_vars fl__nn_pool_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_pool *p = m->data;
    if (!fl__nn_is_image(m, in.v[0], p->dims)) return (fl_vars){0};
    if (p->indices) {
        fl_tensor *index = NULL;
        fl_var *y = fv_max_pool_opt(in.v[0], &index, p->opts);
        return y ? FL_VARS(y, fv_const(index)) : (fl_vars){0};
    }
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
    const fl_shape dilation = fl_nn_per_dim(o->dilation, p->dims, 1);
    const fl_shape stride = o->stride[0] ? fl_nn_per_dim(o->stride, p->dims, 0) : kernel;
    fl_nn_text t = {buf, size, 0};
    if (p->norm > 0) fl_nn_put(&t, "norm_type=%g", p->norm);
    fl__nn_put_size(&t, "kernel_size", &kernel);
    fl__nn_put_size(&t, "stride", &stride);
    fl__nn_put_size(&t, "padding", &pad);
    if (o->dilation[0]) fl__nn_put_size(&t, "dilation", &dilation);
    if (o->ceil_mode) fl_nn_put(&t, ", ceil_mode=True");
    if (p->indices) fl_nn_put(&t, ", return_indices=True");
}

#define FL__NN_POOL_TYPE(kind, make) \
    {.name = kind, .maker = make, .inputs = 1, .forward = fl__nn_pool_forward, \
     .describe = fl__nn_pool_describe}
static const fl_nn_type fl__nn_pool_types[] = {FL__NN_POOL_TYPE("MaxPool1d", "fl_nn_pool1d"),
                                               FL__NN_POOL_TYPE("MaxPool2d", "fl_nn_pool2d"),
                                               FL__NN_POOL_TYPE("MaxPool3d", "fl_nn_pool3d")};

static fl_nn_module *fl__nn_pool_new(int dims, int64_t kernel, fl_nn_pool_opts o) {
    static const char *const means[] = {"AvgPool1d", "AvgPool2d", "AvgPool3d"};
    static const char *const norms[] = {"LPPool1d", "LPPool2d", "LPPool3d"};
    const fl_nn_type *type = &fl__nn_pool_types[dims - 1];
    const bool three = dims == 3; /* 3-d: _h is the second dim; else _w is */
    const fl_pool_opts opts = {.kernel = {kernel, three ? o.kernel_h : o.kernel_w, o.kernel_w},
                               .stride = {o.stride, three ? o.stride_h : o.stride_w, o.stride_w},
                               .pad = {o.pad, three ? o.pad_h : o.pad_w, o.pad_w},
                               .dilation = {o.dilation, three ? o.dilation_h : o.dilation_w, o.dilation_w},
                               .ceil_mode = o.ceil_mode, .ignore_pad = o.ignore_pad,
                               .divisor_override = o.divisor_override};
    const fl__nn_pool p = {dims, o.average, o.return_indices, o.norm, opts};
    bool ok = kernel >= 1, own = three || !(o.kernel_h || o.stride_h || o.pad_h || o.dilation_h);
    for (int i = 0; i < dims; i++) ok = ok && opts.kernel[i] >= 0 && opts.stride[i] >= 0;
    if (!ok || !own || (dims == 1 && (o.kernel_w || o.stride_w || o.pad_w || o.dilation_w)))
        return fl_err_null("%s: kernel and stride must be positive, and set for at most %d spatial dims, "
                           "got kernel %" PRId64 ", stride %" PRId64, type->maker, dims, kernel, o.stride);
    if (!(o.norm >= 0) || (o.norm > 0 && o.average))
        return fl_err_null("%s: norm must be positive and excludes average, got %g", type->maker, o.norm);
    if (o.return_indices && (o.average || o.norm > 0))
        return fl_err_null("%s: return_indices is only for max pooling", type->maker);
    fl_nn_module *m = fl_nn_new(type, &p, sizeof p);
    if (m && o.norm > 0) m->kind = norms[dims - 1];
    if (m && o.average) m->kind = means[dims - 1];
    return m;
}

FL_API fl_nn_module *fl_nn_pool1d_opt(int64_t kernel, fl_nn_pool_opts o) {
    return fl__nn_pool_new(1, kernel, o);
}
FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool_opts o) {
    return fl__nn_pool_new(2, kernel, o);
}
FL_API fl_nn_module *fl_nn_pool3d_opt(int64_t kernel, fl_nn_pool_opts o) {
    return fl__nn_pool_new(3, kernel, o);
}

static bool fl__nn_swap_pools(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    for (int64_t i = 0; fl_nn_is_sequential(m) && i + 1 < m->n_child; i++) {
        fl_nn_module *relu = m->child[i], *pool = m->child[i + 1];
        const fl__nn_pool *p = pool->data;
        if (fl_nn_activation_of(relu) != fv_relu || pool->type != &fl__nn_pool_types[1] || p->average ||
            p->indices || p->norm > 0)
            continue;
        char name[FL_NN_NAME]; /* names stay at their indices */
        memcpy(name, relu->name, sizeof name);
        memcpy(relu->name, pool->name, sizeof name);
        memcpy(pool->name, name, sizeof name);
        m->child[i++] = pool;
        m->child[i] = relu;
    }
    return true;
}

FL_API bool fl_nn_pool_before_relu(fl_nn_module *m) {
    if (fl_given(m, "fl_nn_pool_before_relu", "the module") &&
        fl_nn_visit_modules(m, fl__nn_swap_pools, NULL))
        return true;
    return fl_raise();
}

typedef struct fl__nn_adaptive_pool {
    fl_shape size;
    bool largest;
} fl__nn_adaptive_pool;

static fl_vars fl__nn_adaptive_pool_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_adaptive_pool *p = m->data;
    if (!fl__nn_is_image(m, in.v[0], p->size.ndim)) return (fl_vars){0};
    return FL_VARS(p->largest ? fv_adaptive_max_pool(in.v[0], p->size, NULL)
                              : fv_adaptive_avg_pool(in.v[0], p->size));
}

static void fl__nn_adaptive_pool_describe(const fl_nn_module *m, char *buf, size_t size) {
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "output_size=");
    fl_nn_put_shape(&t, &((const fl__nn_adaptive_pool *)m->data)->size);
}

static const fl_nn_type fl__nn_adaptive_pool_type = {.name = "AdaptivePool",
                                                     .maker = "fl_nn_adaptive_pool", .inputs = 1,
                                                     .forward = fl__nn_adaptive_pool_forward,
                                                     .describe = fl__nn_adaptive_pool_describe};

static fl_nn_module *fl__nn_adaptive_pool_new(fl_shape size, bool largest) {
    static const char *const kinds[2][3] = {{"AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"},
                                            {"AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"}};
    bool ok = size.ndim >= 1 && size.ndim <= 3;
    for (int i = 0; ok && i < size.ndim; i++) ok = size.dim[i] >= 1;
    if (!ok) {
        char text[FL_NN_SHAPE];
        return fl_err_null("fl_nn_adaptive_pool: size must have 1 to 3 positive dims, got %s",
                           fl_shape_text(size, text, sizeof text));
    }
    const fl__nn_adaptive_pool p = {size, largest};
    fl_nn_module *m = fl_nn_new(&fl__nn_adaptive_pool_type, &p, sizeof p);
    if (m) m->kind = kinds[largest][size.ndim - 1];
    return m;
}

FL_API fl_nn_module *fl_nn_adaptive_avg_pool(fl_shape size) {
    return fl__nn_adaptive_pool_new(size, false);
}
FL_API fl_nn_module *fl_nn_adaptive_max_pool(fl_shape size) {
    return fl__nn_adaptive_pool_new(size, true);
}
FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w) {
    return fl_nn_adaptive_avg_pool(FL_SHAPE(h, w));
}

#endif
#endif

/* MIT licence: see LICENSE. */
