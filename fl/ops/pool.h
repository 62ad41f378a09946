/* fl/ops/pool.h - pooling of 1 to 3 spatial dims: the maximum, mean or p-norm of windows

   Records (args: fl_pool2d_args):
     max_pool2d       x [n, c, h, w] -> y [n, c, oh, ow], index of the first maximum: i64 into h * w, or,
                      in_window, u8 into the window, of at most 256 elements
     max_pool2d_grad  dy, index -> dx (its shape is out's)
     avg_pool2d       x -> y;  avg_pool2d_grad  dy -> dx
   1-d, 3-d, p-norms and adaptive windows go axis by axis, through the taps of taps.inc. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_POOL_H
#define FL_OPS_POOL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Of a float x [n, c, spatial...]. */
typedef struct fl_pool_opts {
    fl_named _positional;
    int64_t kernel[3], stride[3]; /* per dim, 0 -> that of the dim before; no stride: the kernel */
    int64_t pad[3];               /* on both sides, at most half a window, or FL_SAME; FL_I0: 0 */
    bool ignore_pad;              /* average over the elements inside the image only */
    int64_t pad_hi[3];            /* behind the image, where that is another one than pad */
    int64_t dilation[3];          /* between the elements of a window */
    bool ceil_mode;               /* the last window may reach beyond the padding */
    int64_t divisor_override;     /* of averages: the sum over this; 0: over the elements that count */
    char _end;
} fl_pool_opts;
/* The largest of each window; padding counts as -inf, NaN wins. *index (may be NULL) gets the i64
   row-major place of the first maximum in its image: fl_max_pool(x, NULL, .kernel = {3, 2}). */
#define fl_max_pool(...) FL__MAX_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_max_pool(...) FL__MAX_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__MAX_POOL(p, x, index, ...) p##max_pool_opt(x, index, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_max_pool_opt(fl_tensor *x, fl_tensor **index, fl_pool_opts o);
FL_API fl_var *fv_max_pool_opt(fl_var *x, fl_tensor **index, fl_pool_opts o);
/* The mean of each window, padding counted as 0. */
#define fl_avg_pool(...) FL__AVG_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_avg_pool(...) FL__AVG_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__AVG_POOL(p, x, ...) p##avg_pool_opt(x, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_avg_pool_opt(fl_tensor *x, fl_pool_opts o);
FL_API fl_var *fv_avg_pool_opt(fl_var *x, fl_pool_opts o);
/* (sum x^p)^(1 / p) of each window, p > 0 */
#define fl_lp_pool(...) FL__LP_POOL(fl_, __VA_ARGS__, ._end = 0)
#define fv_lp_pool(...) FL__LP_POOL(fv_, __VA_ARGS__, ._end = 0)
#define FL__LP_POOL(prefix, x, p, ...) prefix##lp_pool_opt(x, p, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_lp_pool_opt(fl_tensor *x, double p, fl_pool_opts o);
FL_API fl_var *fv_lp_pool_opt(fl_var *x, double p, fl_pool_opts o);
/* The adjoint of picking maxima: zero images of the spatial dims size with x [n, c, spatial...] written at
   index, the places that fl_max_pool gave (of repeated ones the last stays). */
FL_API fl_tensor *fl_max_unpool(fl_tensor *x, fl_tensor *index, fl_shape size);
FL_API fl_var *fv_max_unpool(fl_var *x, fl_tensor *index, fl_shape size);
/* Windows i n / size to (i + 1) n / size, rounded outwards: size has one entry per spatial dim. */
FL_API fl_tensor *fl_adaptive_max_pool(fl_tensor *x, fl_shape size, fl_tensor **index);
FL_API fl_var *fv_adaptive_max_pool(fl_var *x, fl_shape size, fl_tensor **index);
FL_API fl_tensor *fl_adaptive_avg_pool(fl_tensor *x, fl_shape size);
FL_API fl_var *fv_adaptive_avg_pool(fl_var *x, fl_shape size);

typedef struct fl_pool2d_args {
    /* h, w; pad_lo: at most half a window; pad_hi: as large as the last window begins in the image */
    int64_t kernel[2], stride[2], pad_lo[2], pad_hi[2];
    bool count_pad; /* of means */
    bool in_window; /* of maxima: u8 indices, which mean the same when they are cast to i64 */
} fl_pool2d_args;
/* With resolved args: the mean, its gradient, and that of the maximum by its i64 index. */
FL_API fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a);
FL_API fl_var *fv_avg_pool2d_run(fl_var *x, fl_pool2d_args a);
FL_API fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a);
FL_API fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape);

FL_DATA fl_op fl_op_max_pool2d, fl_op_max_pool2d_grad, fl_op_avg_pool2d, fl_op_avg_pool2d_grad;
FL_PRIVATE void fl__register_pool(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_POOL_H */

#if defined(FL_IMPL_ONLY_OPS_POOL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_POOL_IMPL
#define FL_OPS_POOL_IMPL
#include "../../fl_autograd.h"
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

#define FL_TEXT "pool.h"
#include "expand.h"

/* ---- shape rules of the records ---- */

/* True if a pools x, a float of four dims, in windows that all see some of the image; *y: the shape. */
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
    return ok || fl_refuse("%s: x %s, window %lld x %lld, stride %lld x %lld, pad %lld x %lld (at most half "
                           "a window)", fn, FL_TEXT_OF(x), (long long)a->kernel[0],
                           (long long)a->kernel[1], (long long)a->stride[0], (long long)a->stride[1],
                           (long long)a->pad_lo[0], (long long)a->pad_lo[1]);
}

static bool fl__poolable(const char *fn, const fl_tensor *x) {
    if (fl_absent(fn, x)) return false;
    if (x->ndim == 4 && fl_dtype_is_float(x->dtype)) return true;
    return fl_refuse("%s: x is %s of shape %s, not a float of four dims", fn, fl_dtype_name(x->dtype),
                     FL_SHAPE_TEXT(x));
}

/* True if places of maxima that only the gradient reads may be bytes: in windows of at most 256 elements,
   where the family's slots take them as they are. */
static bool fl__takes_bytes(const fl_tensor *x, const fl_pool2d_args *a) {
    const fl_backend *be = fl_backend_at(x->family);
    const fl_op both[] = {fl_op_max_pool2d, fl_op_max_pool2d_grad};
    bool can = a->kernel[0] * a->kernel[1] <= 256;
    for (int i = 0; i < 2; i++)
        can = can && fl_backend_has(x->family, both[i]) && be->flags[both[i]] & FL_SLOT_NARROW;
    return can;
}

static fl_tensor *fl__max_pool2d(fl_tensor *x, fl_pool2d_args a, fl_tensor **index) {
    const fl_dtype d = a.in_window ? FL_U8 : FL_I64;
    fl_shape shape;
    if (!fl__pooled_shape("fl_max_pool", fl_shape_of(x), &a, &shape)) return NULL;
    fl_call c = {.op = fl_op_max_pool2d, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    c.out[0] = fl__image_as(fl_out_on(x->family, shape, x->dtype), x, x);
    c.out[1] = c.out[0] ? fl__image_as(fl_out_on(x->family, shape, d), x, x) : NULL;
    fl_tensor *y = c.out[1] ? fl_call_result(&c) : fl_raise();
    if (index) *index = y ? c.out[1] : NULL;
    return y;
}

static fl_tensor *fl__max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape, fl_pool2d_args a) {
    fl_tensor *dx = fl__image_as(fl_out_on(dy->family, x_shape, dy->dtype), dy, index);
    return fl_call_into(fl_op_max_pool2d_grad, dx, dy, index, &a);
}

fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape) {
    if (fl_absent("fl_max_pool2d_grad", index) || !fl__poolable("fl_max_pool2d_grad", dy)) return NULL;
    if (!fl_same_shape(dy, index) || index->dtype != FL_I64 || x_shape.ndim != 4 ||
        x_shape.dim[0] != dy->shape[0] || x_shape.dim[1] != dy->shape[1] ||
        fl_shape_numel(x_shape) < 0 || !fl_same_family("fl_max_pool2d_grad", dy, index))
        return fl_bad("fl_max_pool2d_grad: dy %s, index %s (%s), x %s", FL_SHAPE_TEXT(dy),
                      FL_SHAPE_TEXT(index), fl_dtype_name(index->dtype), FL_TEXT_OF(x_shape));
    return fl__max_pool2d_grad(dy, index, x_shape, (fl_pool2d_args){.in_window = false});
}

fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a) {
    fl_shape shape;
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl__pooled_shape("fl_avg_pool2d", fl_shape_of(x), &a, &shape))
        return NULL;
    fl_tensor *y = fl__image_as(fl_out_on(x->family, shape, x->dtype), x, x);
    return fl_call_into(fl_op_avg_pool2d, y, x, NULL, &a);
}

fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a) {
    fl_shape shape;
    if (!fl__poolable("fl_avg_pool2d_grad", dy) ||
        !fl__pooled_shape("fl_avg_pool2d_grad", x_shape, &a, &shape))
        return NULL;
    if (!fl_shape_is(dy, shape))
        return fl_bad("fl_avg_pool2d_grad: dy %s, x %s", FL_SHAPE_TEXT(dy), FL_TEXT_OF(x_shape));
    fl_tensor *dx = fl__image_as(fl_out_on(dy->family, x_shape, dy->dtype), dy, dy);
    return fl_call_into(fl_op_avg_pool2d_grad, dx, dy, NULL, &a);
}

/* ---- compositions: by a table of the places of each window's elements ---- */

/* Positions of one dim's windows: i64 [out, kernel] = o * stride - pad_lo + k. */
static fl_tensor *fl__window_index(const fl_pool2d_args *a, int i, int64_t out) {
    fl_tensor *o = fl_arange(0, (double)out, 1, FL_I64),
              *k = fl_arange(0, (double)a->kernel[i], 1, FL_I64);
    fl_tensor *start = fl_sub(fl_mul(o, fl_int(a->stride[i])), fl_int(a->pad_lo[i]));
    return fl_add(fl_unsqueeze(start, 1), k);
}

/* For x of the shape x_shape: i64 [oh, ow, kh * kw] positions h * w of each window's elements,
   clipped into the image; *inside b8 of the same shape. The pooling compositions gather and scatter
   with them. */
static fl_tensor *fl__windows_of(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                 const char *family, fl_tensor **inside) {
    fl_tensor *pos[2], *in[2];
    for (int i = 0; i < 2; i++) {
        fl_shape s = {
            4, {i ? 1 : y.dim[2], i ? y.dim[3] : 1, i ? 1 : a->kernel[0], i ? a->kernel[1] : 1}};
        int64_t n = x_shape.dim[2 + i];
        fl_tensor *p = fl_reshape(fl__window_index(a, i, y.dim[2 + i]), s);
        in[i] = fl_logical_and(fl_ge(p, fl_int(0)), fl_lt(p, fl_int(n)));
        pos[i] = fl_minimum(fl_maximum(p, fl_int(0)), fl_int(n - 1));
    }
    fl_shape flat = FL_SHAPE(y.dim[2], y.dim[3], a->kernel[0] * a->kernel[1]);
    *inside = fl_to(fl_reshape(fl_logical_and(in[0], in[1]), flat), family);
    return fl_to(fl_reshape(fl_add(fl_mul(pos[0], fl_int(x_shape.dim[3])), pos[1]), flat), family);
}

/* The windows of x as values [n, c, oh * ow, k] with `outside` where they leave the image; *index
   (n, c expanded) and *inside as above, flat. */
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

/* i64 places in images of x_shape of places in windows */
static fl_tensor *fl__pooled_places(fl_tensor *index, fl_shape x_shape, const fl_pool2d_args *a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(index);
    int64_t n = y.dim[0], c = y.dim[1], m = y.dim[2] * y.dim[3], k = a->kernel[0] * a->kernel[1];
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, a, fl_backend_name(index), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, m, k)), FL_SHAPE(n, c, m, k));
    fl_tensor *tap = fl_reshape(fl_cast(index, FL_I64), FL_SHAPE(n, c, m, 1));
    return fl_scope_return(&s, fl_reshape(fl_gather(at, 3, tap), y));
}

/* Adds src [n, c, m] at the places index [n, c, m] of zero images of x_shape. */
static fl_tensor *fl__scatter_images(fl_tensor *src, fl_tensor *index, fl_shape x_shape) {
    fl_shape flat = FL_SHAPE(x_shape.dim[0], x_shape.dim[1], x_shape.dim[2] * x_shape.dim[3]);
    if (!src || !index) return NULL;
    fl_tensor *zero = fl_out_on(src->family, flat, src->dtype);
    zero = fl_call_into(FL_OP_fill, zero, NULL, NULL, &(fl_fill_args){0, 0});
    return fl_reshape(fl_scatter_add(zero, 2, index, src), x_shape);
}

static bool fl__compose_max_pool2d_grad(const fl_call *c, fl_tensor **dx) {
    fl_tensor *dy = c->in[0], *index = c->in[1];
    const fl_shape x = fl_shape_of(c->out[0]);
    const fl_shape flat = FL_SHAPE(dy->shape[0], dy->shape[1], dy->shape[2] * dy->shape[3]);
    if (((const fl_pool2d_args *)c->args)->in_window) index = fl__pooled_places(index, x, c->args);
    return (dx[0] = fl__scatter_images(fl_reshape(dy, flat), fl_reshape(index, flat), x)) != NULL;
}

/* One over the number of elements each window averages, [oh * ow, 1]; on x's family. */
static fl_tensor *fl__window_weights(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                     fl_dtype dtype, const char *family) {
    fl_tensor *inside;
    if (!fl__windows_of(x_shape, y, a, family, &inside)) return NULL;
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
    const char *family = fl_backend_name(dy);
    fl_tensor *inside, *at = fl__windows_of(x, y, a, family, &inside);
    fl_tensor *w = fl__window_weights(x, y, a, dy->dtype, family);
    fl_tensor *share = fl_mul(fl_reshape(dy, FL_SHAPE(y.dim[0], y.dim[1], positions, 1)), w);
    share = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)), share, fl_num(0));
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), all);
    return (dx[0] = fl__scatter_images(fl_reshape(share, all), at, x)) != NULL;
}

/* ---- gradients ---- */

/* g [n, c, h, w] at the places that won. */
static void fv__max_pool2d_grad_back(fl_node *n, fl_var *g) {
    fl_shape s = fl_shape_of(g->value), out = fv_in_shape(n, 0);
    fl_tensor *index = fv_value(fv_saved(n, 0));
    if (index && ((const fl_pool2d_args *)fv_args(n))->in_window)
        index = fl__pooled_places(index, s, fv_args(n));
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
    static const fl_op_info max_pool2d = {.name = "max_pool2d",
                                          .args_size = sizeof(fl_pool2d_args),
                                          .contains = "gather where argmax",
                                          .compose = fl__compose_max_pool2d,
                                          .gradient = fv__max_pool2d_back},
                            max_pool2d_grad = {.name = "max_pool2d_grad",
                                               .args_size = sizeof(fl_pool2d_args),
                                               .contains = "scatter_add",
                                               .compose = fl__compose_max_pool2d_grad,
                                               .gradient = fv__max_pool2d_grad_back},
                            avg_pool2d = {.name = "avg_pool2d",
                                          .args_size = sizeof(fl_pool2d_args),
                                          .contains = "gather where sum mul",
                                          .compose = fl__compose_avg_pool2d,
                                          .gradient = fv__avg_pool2d_back},
                            avg_pool2d_grad = {.name = "avg_pool2d_grad",
                                               .args_size = sizeof(fl_pool2d_args),
                                               .contains = "scatter_add mul where",
                                               .compose = fl__compose_avg_pool2d_grad,
                                               .gradient = fv__avg_pool2d_grad_back};
    fl_op_max_pool2d = fl_op_register(&max_pool2d);
    fl_op_max_pool2d_grad = fl_op_register(&max_pool2d_grad);
    fl_op_avg_pool2d = fl_op_register(&avg_pool2d);
    fl_op_avg_pool2d_grad = fl_op_register(&avg_pool2d_grad);
}

#endif /* FL_OPS_POOL_IMPL */
#endif
#else /* the text: see expand.h */
#include "taps.inc"

/* Largest taps, the last axis first, so that the first maximum in row-major order wins; *place, i64
   of x's shape, follows. */
static FL_T *FL_W(_largest)(FL_T *x, int axis, const fl__axis_map *m, fl_tensor **place) {
    fl__axis_taps t;
    if (!x || !fl__taps_of(m, FL_VALUE(x), &t)) return NULL;
    if (!(x = FL_W(_image_spread)(x, axis, &t, -(double)INFINITY))) return NULL;
    fl_tensor *best = fl_argmax(FL_VALUE(x), axis + 1, true);
    t.inside = NULL;
    *place = fl__image_spread(*place, axis, &t, 0);
    if (!best || !*place) return NULL;
    if (!(*place = fl_squeeze(fl_gather(*place, axis + 1, best), axis + 1))) return NULL;
    x = FL_W(gather)(x, axis + 1, best);
    return x ? FL_W(reshape)(x, fl_shape_of(*place)) : NULL;
}

static FL_T *FL_W(_largest_all)(FL_T *x, const fl__axis_map *m, fl_tensor **index) {
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(FL_VALUE(x)), image = shape;
    int64_t count = 1;
    if (index) *index = NULL;
    image.dim[0] = image.dim[1] = 1;
    for (int i = 2; i < shape.ndim; i++) count *= shape.dim[i];
    fl_tensor *place = fl_reshape(fl_arange(0, (double)count, 1, FL_I64), image);
    place = fl_to(place, fl_backend_name(FL_VALUE(x)));
    place = place ? fl_expand(place, shape) : NULL;
    for (int i = shape.ndim - 3; x && i >= 0; i--) x = FL_W(_largest)(x, 2 + i, &m[i], &place);
    if (x && index) *index = FL_PROMOTE(&s, place);
    return FL_GIVE(&s, !index || *index ? x : NULL);
}

#ifdef FL_ON_TENSORS
/* Elements behind an axis that the last window reaches. */
static int64_t fl__pool_reach(const fl__axis_map *m) {
    return (m->out - 1) * m->stride + m->dilation * (m->k - 1) + 1 - m->n - m->lo;
}

/* The windows of dim i of images, n elements; false if they do not fit. Rounding up the number of windows is
   as if there were stride - 1 elements more; a window that would begin behind the image is none. */
static bool fl__pool_map(fl__axis_map *m, int64_t n, fl_pool_opts o, int i) {
    const int64_t k = fl__setting(o.kernel, i, 0), stride = fl__setting(o.stride, i, k);
    const int64_t lo = fl__setting(o.pad, i, 0), hi = fl__setting(o.pad_hi, i, lo);
    if (!fl__in_range(stride, 1) || !fl__in_range(hi, FL_SAME)) return false;
    const int64_t more = o.ceil_mode && lo != FL_SAME ? stride - 1 : 0;
    if (!fl__slide(m, n, k, stride, lo, hi + more, fl__setting(o.dilation, i, 1))) return false;
    m->hi -= more;
    if (more && (m->out - 1) * stride >= n + m->lo) m->out--;
    const int64_t window = m->dilation * (k - 1) + 1;
    m->ignore_pad = o.ignore_pad && !o.divisor_override;
    if (o.divisor_override && fl__pool_reach(m) > m->hi) m->hi = fl__pool_reach(m); /* all k count */
    return m->lo <= window / 2 && (hi == FL_SAME || hi <= window / 2);
}

static bool fl__pool_maps(const char *fn, fl_tensor *x, fl_pool_opts o, fl__axis_map *m) {
    if (!fl__is_image(fn, x)) return false;
    for (int i = 0; i < x->ndim - 2; i++)
        if (!fl__pool_map(&m[i], x->shape[2 + i], o, i))
            return fl_refuse("%s: x %s, dim %d: window %lld, stride %lld, pad %lld (at most half a "
                             "window)", fn, FL_SHAPE_TEXT(x), 2 + i, (long long)fl__setting(o.kernel, i, 0),
                             (long long)fl__setting(o.stride, i, fl__setting(o.kernel, i, 0)),
                             (long long)fl__setting(o.pad, i, 0));
    return true;
}

/* Whether the 2-d records do what the maps say, whose windows have no gaps; *a: how. Of averages over the
   padding a window that reaches beyond it is not theirs, unless there is none. */
static bool fl__pool2d_takes(const fl_tensor *x, const fl__axis_map *m, bool average, fl_pool2d_args *a) {
    bool beyond = false, padded = false;
    if (x->ndim != 4 || m[0].dilation != 1 || m[1].dilation != 1) return false;
    *a = (fl_pool2d_args){.count_pad = !m[0].ignore_pad};
    for (int i = 0; i < 2; i++) {
        const int64_t reach = fl__pool_reach(&m[i]);
        a->kernel[i] = m[i].k, a->stride[i] = m[i].stride, a->pad_lo[i] = m[i].lo;
        a->pad_hi[i] = reach > m[i].hi ? reach : m[i].hi;
        beyond = beyond || reach > m[i].hi;
        padded = padded || m[i].lo || m[i].hi;
    }
    if (average && beyond && !padded) a->count_pad = false;
    return !average || !beyond || !a->count_pad;
}
#endif

FL_T *FL_W(max_pool_opt)(FL_T *x, fl_tensor **index, fl_pool_opts o) {
    fl__axis_map m[3];
    if (FL_ABSENT("max_pool", x) || !fl__pool_maps("fl_max_pool", FL_VALUE(x), o, m)) return NULL;
    fl_pool2d_args a;
    if (!fl__pool2d_takes(FL_VALUE(x), m, false, &a)) return FL_W(_largest_all)(x, m, index);
    a.in_window = !index && fl__takes_bytes(FL_VALUE(x), &a);
    return FL_W(_max_pool2d)(x, a, index);
}

FL_T *FL_W(avg_pool_opt)(FL_T *x, fl_pool_opts o) {
    fl__axis_map m[3];
    if (FL_ABSENT("avg_pool", x) || !fl__pool_maps("fl_avg_pool", FL_VALUE(x), o, m)) return NULL;
    fl_pool2d_args a;
    double count = 1;
    for (int i = 0; i < FL_VALUE(x)->ndim - 2; i++) count *= (double)m[i].k;
    fl_scope s = fl_scope_begin();
    FL_T *y = fl__pool2d_takes(FL_VALUE(x), m, true, &a) ? FL_W(avg_pool2d_run)(x, a)
                                                         : FL_W(_resample_all)(x, m);
    return FL_GIVE(&s, o.divisor_override ? MUL(y, CONST(count / (double)o.divisor_override)) : y);
}

FL_T *FL_W(max_unpool)(FL_T *x, fl_tensor *index, fl_shape size) {
    if (FL_ABSENT("max_unpool", x) || FL_ABSENT("max_unpool", index)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    if (!fl__is_image("fl_max_unpool", t)) return NULL;
    fl_shape flat = FL_SHAPE(t->shape[0], t->shape[1], 1), image = flat;
    fl_shape all = {t->ndim, {flat.dim[0], flat.dim[1]}};
    bool ok = fl_same_shape(t, index) && index->dtype == FL_I64 && size.ndim == t->ndim - 2;
    for (int i = 0; ok && i < size.ndim; i++) {
        ok = fl__in_range(size.dim[i], 1) &&
             !__builtin_mul_overflow(image.dim[2], size.dim[i], &image.dim[2]);
        flat.dim[2] *= t->shape[2 + i];
        all.dim[2 + i] = size.dim[i];
    }
    if (!ok || fl_shape_numel(all) < 0)
        return fl_bad("fl_max_unpool: x %s, index %s %s (i64 of x's shape), size %s", FL_SHAPE_TEXT(t),
                      fl_dtype_name(index->dtype), FL_SHAPE_TEXT(index), FL_TEXT_OF(size));
    fl_scope s = fl_scope_begin();
    fl_tensor *zeros = fl_new_full(t, image, 0), *at = fl_reshape(index, flat);
    FL_T *y = zeros && at ? FL_W(scatter)(FL_OF(zeros), 2, at, FL_W(reshape)(x, flat)) : NULL;
    return FL_GIVE(&s, y ? FL_W(reshape)(y, all) : NULL);
}

FL_T *FL_W(adaptive_max_pool)(FL_T *x, fl_shape size, fl_tensor **index) {
    fl__axis_map m[3], like = {.tap = fl__tap_adaptive};
    if (FL_ABSENT("adaptive_max_pool", x) ||
        !fl__size_maps("fl_adaptive_max_pool", FL_VALUE(x), size, m, like))
        return NULL;
    return FL_W(_largest_all)(x, m, index);
}

FL_T *FL_W(adaptive_avg_pool)(FL_T *x, fl_shape size) {
    fl__axis_map m[3], like = {.tap = fl__tap_adaptive};
    if (FL_ABSENT("adaptive_avg_pool", x) ||
        !fl__size_maps("fl_adaptive_avg_pool", FL_VALUE(x), size, m, like))
        return NULL;
    const fl_tensor *t = FL_VALUE(x);
    bool same = true, whole = true;
    for (int i = 0; i < size.ndim; i++) {
        same = same && size.dim[i] == t->shape[2 + i];
        whole = whole && size.dim[i] == 1;
    }
    if (same) return x;
    if (!whole) return FL_W(_resample_all)(x, m);
    fl_axes spatial = {.n = size.ndim, .axis = {2, 3, 4}, .keepdim = true};
    return FL_W(mean)(x, spatial);
}

FL_T *FL_W(lp_pool_opt)(FL_T *x, double p, fl_pool_opts o) {
    fl__axis_map m[3];
    double count = 1;
    o.ignore_pad = false, o.divisor_override = 0;
    if (FL_ABSENT("lp_pool", x) || !fl__pool_maps("fl_lp_pool", FL_VALUE(x), o, m)) return NULL;
    if (!(p > 0)) return fl_bad("fl_lp_pool: p = %g is not above 0", p);
    for (int i = 0; i < FL_VALUE(x)->ndim - 2; i++) count *= (double)m[i].k;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *powers = POW(x, CONST(p)), *mean = powers ? FL_W(_resample_all)(powers, m) : NULL;
    FL_T *y = mean ? POW(MUL(mean, CONST(count)), CONST(1 / p)) : NULL;
    return FL_GIVE(&s, FL_W(_narrowed)(y, given));
}
#endif
/* MIT licence: see LICENSE. */
