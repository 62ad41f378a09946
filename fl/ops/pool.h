/* fl/ops/pool.h - max, average, Lp and adaptive pooling of 1 to 3 spatial dims, max unpooling

   Records (args: fl_pool2d_args):
     max_pool2d       x [n, c, h, w] -> y [n, c, oh, ow], index of the first maximum: i64 into h * w, or, if
                      in_window, u8 into the window, which has at most 256 elements
     max_pool2d_grad  dy, index -> dx (its shape is out's)
     avg_pool2d       x -> y;  avg_pool2d_grad  dy -> dx
   1-d, 3-d, Lp and adaptive pooling work axis by axis, by the taps of taps.inc. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_POOL_H
#define FL_OPS_POOL_H
#include "../records/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Settings per spatial dim of a float x [n, c, spatial...]; 0: as the dim before. */
typedef struct fl_pool_opts {
    fl_opts_guard guard_;
    int64_t kernel[3], stride[3]; /* window size; distance of windows, first 0: the kernel */
    int64_t pad[3];               /* on both sides, at most half a window, or FL_SAME; FL_I0: 0 */
    bool ignore_pad;              /* average over the elements inside the image (count_include_pad=False) */
    int64_t pad_hi[3];            /* padding at the end, if it differs from pad */
    int64_t dilation[3];          /* distance of the elements of a window; first 0: 1 */
    bool ceil_mode;               /* round the number of windows up: the last may reach beyond the padding */
    int64_t divisor_override;     /* average: divide the sum by this; 0: by the number of elements */
    char _end;
} fl_pool_opts;
/* PyTorch's max_pool1d to 3d. Padding counts as -inf, NaN counts as largest. *index (may be NULL): the i64
   row-major index in the image of the first maximum. Example: fl_max_pool(x, NULL, .kernel = {3, 2}) */
#define fl_max_pool(...) FL__MAX_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_max_pool(...) FL__MAX_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__MAX_POOL(p, x, index, ...) p##max_pool_opt(x, index, FL_LITERAL(fl_pool_opts, __VA_ARGS__))
FL_API fl_tensor *fl_max_pool_opt(fl_tensor *x, fl_tensor **index, fl_pool_opts o);
FL_API fl_var *fv_max_pool_opt(fl_var *x, fl_tensor **index, fl_pool_opts o);
/* PyTorch's avg_pool1d to 3d: the mean of each window, with padding as 0. */
#define fl_avg_pool(...) FL__AVG_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_avg_pool(...) FL__AVG_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__AVG_POOL(p, x, ...) p##avg_pool_opt(x, FL_LITERAL(fl_pool_opts, __VA_ARGS__))
FL_API fl_tensor *fl_avg_pool_opt(fl_tensor *x, fl_pool_opts o);
FL_API fl_var *fv_avg_pool_opt(fl_var *x, fl_pool_opts o);
/* (sum x^p)^(1 / p) of each window, p > 0 */
#define fl_lp_pool(...) FL__LP_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_lp_pool(...) FL__LP_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__LP_POOL(prefix, x, p, ...) prefix##lp_pool_opt(x, p, FL_LITERAL(fl_pool_opts, __VA_ARGS__))
FL_API fl_tensor *fl_lp_pool_opt(fl_tensor *x, double p, fl_pool_opts o);
FL_API fl_var *fv_lp_pool_opt(fl_var *x, double p, fl_pool_opts o);
/* PyTorch's max_unpool: zero images with spatial dims `size`, in which x [n, c, spatial...] is written at
   index, as fl_max_pool returned it. If an index repeats, the last write wins. */
FL_API fl_tensor *fl_max_unpool(fl_tensor *x, fl_tensor *index, fl_shape size);
FL_API fl_var *fv_max_unpool(fl_var *x, fl_tensor *index, fl_shape size);
/* PyTorch's adaptive pooling to spatial dims `size`: of n elements, window i covers floor(i n / size) to
   ceil((i + 1) n / size) - 1. */
FL_API fl_tensor *fl_adaptive_max_pool(fl_tensor *x, fl_shape size, fl_tensor **index);
FL_API fl_var *fv_adaptive_max_pool(fl_var *x, fl_shape size, fl_tensor **index);
FL_API fl_tensor *fl_adaptive_avg_pool(fl_tensor *x, fl_shape size);
FL_API fl_var *fv_adaptive_avg_pool(fl_var *x, fl_shape size);

/* The 2-d records, with all settings resolved: average pooling, its gradient, and the gradient of max pooling
   from its i64 index. */
FL_API fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a);
FL_API fl_var *fv_avg_pool2d_run(fl_var *x, fl_pool2d_args a);
FL_API fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a);
FL_API fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape);

FL_PRIVATE void fl__register_pool(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_POOL_H */

#if defined(FL_IMPL_ONLY_OPS_POOL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_POOL_IMPL
#define FL_OPS_POOL_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "image.h"
#include "index.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>

/* 2-D max pooling; index may be NULL. */
static fl_tensor *fl__max_pool2d(fl_tensor *x, fl_pool2d_args a, fl_tensor **index);
static fl_var *fv__max_pool2d(fl_var *x, fl_pool2d_args a, fl_tensor **index);
static bool fl__takes_bytes(const fl_tensor *x, const fl_pool2d_args *a);

#define FL_EXPAND_FILE "pool.inc"
#include "expand.h"

/* ---- shape rules of the records ---- */

/* True if every window of a overlaps the image x [n, c, h, w]; *y: the shape of the result. */
static bool fl__pooled_shape(const char *fn, fl_shape x, const fl_pool2d_args *a, fl_shape *y) {
    bool ok = x.ndim == 4;
    *y = x;
    for (int i = 0; ok && i < 2; i++) {
        const int64_t k = a->kernel[i], lo = a->pad_lo[i], hi = a->pad_hi[i];
        ok = fl__in_range(x.dim[2 + i], 0) && fl__in_range(k, 1) && fl__in_range(a->stride[i], 1) &&
             lo >= 0 && lo <= k / 2 && fl__in_range(hi, 0);
        if (ok) y->dim[2 + i] = fl__windows(x.dim[2 + i], lo, hi, k, a->stride[i]);
        ok = ok && y->dim[2 + i] > 0 &&
             (hi <= k / 2 || (y->dim[2 + i] - 1) * a->stride[i] - lo < x.dim[2 + i]);
    }
    return ok || fl_err_false("%s: the windows do not fit x or a setting is out of range: x %s, window %lld "
                              "x %lld, stride %lld x %lld, pad %lld x %lld (at most half a window)", fn,
                              FL_TEXT_OF(x), (long long)a->kernel[0],
                              (long long)a->kernel[1], (long long)a->stride[0], (long long)a->stride[1],
                              (long long)a->pad_lo[0], (long long)a->pad_lo[1]);
}

static bool fl__poolable(const char *fn, const fl_tensor *x) {
    if (fl_is_null_arg(fn, x)) return false;
    if (x->ndim == 4 && fl_dtype_is_float(x->dtype)) return true;
    return fl_err_false("%s: x is %s of shape %s, expected a float of 4 dims", fn, fl_dtype_name(x->dtype),
                        FL_SHAPE_TEXT(x));
}

/* True if the indices, read by the gradient alone, may be u8: windows of at most 256 elements, and a backend
   whose kernels take u8 indices. */
static bool fl__takes_bytes(const fl_tensor *x, const fl_pool2d_args *a) {
    const fl_backend *be = fl_backend_at(x->backend);
    const fl_op both[] = {fl_op_max_pool2d, fl_op_max_pool2d_grad};
    bool can = a->kernel[0] * a->kernel[1] <= 256;
    for (int i = 0; i < 2; i++)
        can = can && fl_backend_has(x->backend, both[i]) && be->flags[both[i]] & FL_SLOT_NARROW;
    return can;
}

static fl_tensor *fl__max_pool2d(fl_tensor *x, fl_pool2d_args a, fl_tensor **index) {
    const fl_dtype d = a.in_window ? FL_U8 : FL_I64;
    fl_shape shape;
    if (!fl__pooled_shape("fl_max_pool", fl_shape_of(x), &a, &shape)) return NULL;
    fl_call c = {.op = fl_op_max_pool2d, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    c.out[0] = fl__image_as(fl_out_on(x->backend, shape, x->dtype), x, x);
    c.out[1] = c.out[0] ? fl__image_as(fl_out_on(x->backend, shape, d), x, x) : NULL;
    fl_tensor *y = c.out[1] ? fl_call_result(&c) : fl_raise();
    if (index) *index = y ? c.out[1] : NULL;
    return y;
}

static fl_tensor *fl__max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape, fl_pool2d_args a) {
    fl_tensor *dx = fl__image_as(fl_out_on(dy->backend, x_shape, dy->dtype), dy, index);
    return fl_call_into(fl_op_max_pool2d_grad, dx, dy, index, &a);
}

fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape) {
    if (fl_is_null_arg("fl_max_pool2d_grad", index) || !fl__poolable("fl_max_pool2d_grad", dy)) return NULL;
    if (!fl_same_shape(dy, index) || index->dtype != FL_I64 || x_shape.ndim != 4 ||
        x_shape.dim[0] != dy->shape[0] || x_shape.dim[1] != dy->shape[1] ||
        fl_shape_numel(x_shape) < 0 || !fl_same_backend("fl_max_pool2d_grad", dy, index))
        return fl_err_null("fl_max_pool2d_grad: dy and i64 index must have one shape, with x's [n, c]: got "
                           "dy %s, index %s (%s), x %s", FL_SHAPE_TEXT(dy), FL_SHAPE_TEXT(index),
                           fl_dtype_name(index->dtype), FL_TEXT_OF(x_shape));
    return fl__max_pool2d_grad(dy, index, x_shape, (fl_pool2d_args){.in_window = false});
}

fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a) {
    fl_shape shape;
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl__pooled_shape("fl_avg_pool2d", fl_shape_of(x), &a, &shape))
        return NULL;
    fl_tensor *y = fl__image_as(fl_out_on(x->backend, shape, x->dtype), x, x);
    return fl_call_into(fl_op_avg_pool2d, y, x, NULL, &a);
}

fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a) {
    fl_shape shape;
    if (!fl__poolable("fl_avg_pool2d_grad", dy) ||
        !fl__pooled_shape("fl_avg_pool2d_grad", x_shape, &a, &shape))
        return NULL;
    if (!fl_shape_is(dy, shape))
        return fl_err_null("fl_avg_pool2d_grad: dy must have the result's shape: got dy %s, x %s, expected "
                           "dy %s", FL_SHAPE_TEXT(dy), FL_TEXT_OF(x_shape), FL_TEXT_OF(shape));
    fl_tensor *dx = fl__image_as(fl_out_on(dy->backend, x_shape, dy->dtype), dy, dy);
    return fl_call_into(fl_op_avg_pool2d_grad, dx, dy, NULL, &a);
}

/* ---- compositions: by a table of the indices of each window's elements ---- */

/* i64 [oh, ow, kh * kw]: the row-major index in an image of x_shape of each window's elements, clipped to the
   image; *inside: b8 of the same shape. The compositions gather and scatter with them. */
static fl_tensor *fl__windows_of(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                 const char *backend, fl_tensor **inside) {
    const fl_shape flat = FL_SHAPE(y.dim[2], y.dim[3], a->kernel[0] * a->kernel[1]);
    const int64_t n = fl_shape_numel(flat), h = x_shape.dim[2], w = x_shape.dim[3];
    if (n < 0) fl_fail("fl_pool: windows %s have too many elements", FL_TEXT_OF(flat));
    int64_t *at = n < 0 ? NULL : fl_heap_alloc((size_t)n * (sizeof *at + 1) + 1);
    uint8_t *in = at ? (uint8_t *)(at + n) : NULL;
    for (int64_t k = 0; at && k < n; k++) {
        const int64_t part = k % flat.dim[2], window = k / flat.dim[2];
        const int64_t i = window / y.dim[3] * a->stride[0] - a->pad_lo[0] + part / a->kernel[1];
        const int64_t j = window % y.dim[3] * a->stride[1] - a->pad_lo[1] + part % a->kernel[1];
        in[k] = i >= 0 && i < h && j >= 0 && j < w;
        at[k] = (i < 0 ? 0 : i < h ? i : h - 1) * w + (j < 0 ? 0 : j < w ? j : w - 1);
    }
    fl_tensor *index_map = at ? fl_from_host(at, flat, FL_I64) : NULL;
    *inside = index_map ? fl_from_host(in, flat, FL_B8) : NULL;
    fl_heap_free(at);
    if (*inside) *inside = fl_to(*inside, backend);
    return *inside ? fl_to(index_map, backend) : NULL;
}

/* The windows' values [n, c, oh * ow, k], with `outside` for elements outside the image; *index (expanded
   over n and c) and *inside as above, flattened. */
static fl_tensor *fl__unfold_windows(fl_tensor *x, fl_shape y, const fl_pool2d_args *a,
                                     double outside, fl_tensor **index) {
    fl_tensor *inside;
    int64_t n = x->shape[0], c = x->shape[1], positions = y.dim[2] * y.dim[3],
            k = a->kernel[0] * a->kernel[1];
    fl_tensor *at = fl__windows_of(fl_shape_of(x), y, a, fl_backend_name(x), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), FL_SHAPE(n, c, positions * k));
    fl_tensor *v = fl_gather(fl_reshape(x, FL_SHAPE(n, c, x->shape[2] * x->shape[3])), 2, at);
    v = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)),
                 fl_reshape(v, FL_SHAPE(n, c, positions, k)), fl_num(outside));
    *index = fl_reshape(at, FL_SHAPE(n, c, positions, k));
    return v;
}

static bool fl__compose_max_pool2d(const fl_call *c, fl_tensor **y) {
    const fl_shape shape = fl_shape_of(c->out[0]);
    fl_tensor *at, *v = fl__unfold_windows(c->in[0], shape, c->args, -(double)INFINITY, &at);
    fl_tensor *best = fl_argmax(v, 3, true);
    y[0] = fl_reshape(fl_gather(v, 3, best), shape);
    const bool in_window = ((const fl_pool2d_args *)c->args)->in_window;
    y[1] = fl_reshape(in_window ? fl_cast(best, c->out[1]->dtype) : fl_gather(at, 3, best), shape);
    return y[0] && y[1];
}

/* Converts indices into windows to i64 indices into images of x_shape. */
static fl_tensor *fl__pooled_indices(fl_tensor *index, fl_shape x_shape, const fl_pool2d_args *a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(index);
    int64_t n = y.dim[0], c = y.dim[1], m = y.dim[2] * y.dim[3], k = a->kernel[0] * a->kernel[1];
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, a, fl_backend_name(index), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, m, k)), FL_SHAPE(n, c, m, k));
    fl_tensor *tap = fl_reshape(fl_cast(index, FL_I64), FL_SHAPE(n, c, m, 1));
    return fl_scope_return(&s, fl_reshape(fl_gather(at, 3, tap), y));
}

/* Zero images of x_shape with src [n, c, m] added at index [n, c, m]. */
static fl_tensor *fl__scatter_images(fl_tensor *src, fl_tensor *index, fl_shape x_shape) {
    fl_shape flat = FL_SHAPE(x_shape.dim[0], x_shape.dim[1], x_shape.dim[2] * x_shape.dim[3]);
    if (!src || !index) return NULL;
    fl_tensor *zero = fl_out_on(src->backend, flat, src->dtype);
    zero = fl_call_into(FL_OP_fill, zero, NULL, NULL, &(fl_fill_args){0, 0});
    return fl_reshape(fl_scatter_add(zero, 2, index, src), x_shape);
}

static bool fl__compose_max_pool2d_grad(const fl_call *c, fl_tensor **dx) {
    fl_tensor *dy = c->in[0], *index = c->in[1];
    const fl_shape x = fl_shape_of(c->out[0]);
    const fl_shape flat = FL_SHAPE(dy->shape[0], dy->shape[1], dy->shape[2] * dy->shape[3]);
    if (((const fl_pool2d_args *)c->args)->in_window) index = fl__pooled_indices(index, x, c->args);
    return (dx[0] = fl__scatter_images(fl_reshape(dy, flat), fl_reshape(index, flat), x)) != NULL;
}

/* 1 / (number of elements of each window), [oh * ow, 1], on x's backend. */
static fl_tensor *fl__window_weights(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                     fl_dtype dtype, const char *backend) {
    fl_tensor *inside;
    if (!fl__windows_of(x_shape, y, a, backend, &inside)) return NULL;
    fl_tensor *count = fl_sum(fl_cast(fl_reshape(inside, FL_SHAPE(y.dim[2] * y.dim[3], -1)), dtype),
                              FL_AXES_KEEP(1));
    if (a->count_pad) count = fl_full_like(count, (double)(a->kernel[0] * a->kernel[1]));
    return fl_reciprocal(count);
}

static bool fl__compose_avg_pool2d(const fl_call *c, fl_tensor **y) {
    fl_tensor *x = c->in[0], *at;
    const fl_shape shape = fl_shape_of(c->out[0]);
    fl_tensor *v = fl__unfold_windows(x, shape, c->args, 0, &at);
    fl_tensor *w = fl__window_weights(fl_shape_of(x), shape, c->args, x->dtype, fl_backend_name(x));
    return (y[0] = fl_reshape(fl_mul(fl_sum(v, FL_AXES_KEEP(3)), w), shape)) != NULL;
}

static bool fl__compose_avg_pool2d_grad(const fl_call *c, fl_tensor **dx) {
    fl_tensor *dy = c->in[0];
    const fl_pool2d_args *a = c->args;
    const fl_shape x = fl_shape_of(c->out[0]), y = fl_shape_of(dy);
    const int64_t positions = y.dim[2] * y.dim[3], k = a->kernel[0] * a->kernel[1];
    const fl_shape all = FL_SHAPE(y.dim[0], y.dim[1], positions * k);
    const char *backend = fl_backend_name(dy);
    fl_tensor *inside, *at = fl__windows_of(x, y, a, backend, &inside);
    fl_tensor *w = fl__window_weights(x, y, a, dy->dtype, backend);
    fl_tensor *share = fl_mul(fl_reshape(dy, FL_SHAPE(y.dim[0], y.dim[1], positions, 1)), w);
    share = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)), share, fl_num(0));
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), all);
    return (dx[0] = fl__scatter_images(fl_reshape(share, all), at, x)) != NULL;
}

/* ---- gradients ---- */

/* The gradient of dy: g [n, c, h, w] gathered at the maxima. */
static void fv__max_pool2d_grad_back(fl_node *n, fl_var *g) {
    fl_shape s = fl_shape_of(g->value), out = fv_in_shape(n, 0);
    fl_tensor *index = fv_value(fv_saved(n, 0));
    if (index && ((const fl_pool2d_args *)fv_args(n))->in_window)
        index = fl__pooled_indices(index, s, fv_args(n));
    index = fl_reshape(index, FL_SHAPE(out.dim[0], out.dim[1], out.dim[2] * out.dim[3]));
    g = fv_reshape(g, FL_SHAPE(s.dim[0], s.dim[1], s.dim[2] * s.dim[3]));
    fv_add_grad(n, 0, fv_reshape(fv_gather(g, 2, index), out));
}

static void fv__max_pool2d_back(fl_node *n, fl_var *dy) {
    const fl_pool2d_args *a = fv_args(n);
    fl_var *index = fv_saved(n, 0);
    if (!index) return;
    fl_tensor *dx = fl__max_pool2d_grad(dy->value, index->value, fv_in_shape(n, 0), *a);
    fv_add_grad(n, 0, fv_record_op(fl_op_max_pool2d_grad, dx, FV_IN(dy), FV_SAVE(index), a));
}

static fl_var *fv__max_pool2d(fl_var *x, fl_pool2d_args a, fl_tensor **index) {
    fl_tensor *at = NULL, *y = fl__max_pool2d(fv_value(x), a, &at);
    fl_var *saved = y ? fv_const(at) : NULL;
    fl_var *pooled = saved ? fv_record_op(fl_op_max_pool2d, y, FV_IN(x), FV_SAVE(saved), &a) : NULL;
    if (index) *index = pooled ? at : NULL;
    return pooled;
}

static void fv__avg_pool2d_grad_back(fl_node *n, fl_var *g) {
    fv_add_grad(n, 0, fv_avg_pool2d_run(g, *(const fl_pool2d_args *)fv_args(n)));
}

static void fv__avg_pool2d_back(fl_node *n, fl_var *dy) {
    const fl_pool2d_args *a = fv_args(n);
    fl_tensor *dx = fl_avg_pool2d_grad(dy->value, fv_in_shape(n, 0), *a);
    fv_add_grad(n, 0, fv_record_op(fl_op_avg_pool2d_grad, dx, FV_IN(dy), FV_NONE, a));
}

FL_API fl_var *fv_avg_pool2d_run(fl_var *x, fl_pool2d_args a) {
    return fv_record_op(fl_op_avg_pool2d, fl_avg_pool2d_run(fv_value(x), a), FV_IN(x), FV_NONE, &a);
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_max_pool2d, fl_op_max_pool2d_grad, fl_op_avg_pool2d, fl_op_avg_pool2d_grad;

FL_PRIVATE void fl__register_pool(void) {
    FL__REGISTER(max_pool2d, .args_size = sizeof(fl_pool2d_args), .uses = "gather where argmax",
                 .compose = fl__compose_max_pool2d, .gradient = fv__max_pool2d_back);
    FL__REGISTER(max_pool2d_grad, .args_size = sizeof(fl_pool2d_args), .uses = "scatter_add",
                 .compose = fl__compose_max_pool2d_grad, .gradient = fv__max_pool2d_grad_back);
    FL__REGISTER(avg_pool2d, .args_size = sizeof(fl_pool2d_args),
                 .uses = "gather where sum mul reciprocal div", .compose = fl__compose_avg_pool2d,
                 .gradient = fv__avg_pool2d_back);
    FL__REGISTER(avg_pool2d_grad, .args_size = sizeof(fl_pool2d_args),
                 .uses = "scatter_add mul where sum reciprocal div",
                 .compose = fl__compose_avg_pool2d_grad, .gradient = fv__avg_pool2d_grad_back);
}

#endif /* FL_OPS_POOL_IMPL */
#endif
/* MIT licence: see LICENSE. */
