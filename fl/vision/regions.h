/* fl/vision/regions.h - features of regions of interest: the op RoIAlign

   roi_align   for each bin of a box the mean of bilinear samples on a grid (arXiv 1703.06870,
               torchvision.ops.roi_align)

   Op (fl_roi_align_args): x [images, c, h, w], boxes [k, 5] -> y [k, c, rows, columns], of x's dtype; boxes
   have its wide dtype. adjoint: dy, boxes -> dx. Bilinear weights factor into rows and columns, so for each
   box y = R x C^T with R [rows, h] and C [columns, w], which is linear in x. */
#ifndef FL_VISION_REGIONS_H
#define FL_VISION_REGIONS_H
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_roi_align_args {
    int adjoint, aligned;
    int64_t images, h, w;   /* of x */
    int64_t rows, columns;  /* of y */
    int64_t sampling_ratio; /* 0: computed for each box */
    double scale;
} fl_roi_align_args;
typedef struct fl_vision_roi_opts {
    fl_opts_guard guard_;
    double scale;           /* pixels of x per unit of the boxes; 0 -> 1 */
    int64_t sampling_ratio; /* samples along each side of a bin; 0 -> ceil(side of the box / bins) */
    bool aligned;           /* shift boxes by half a pixel, and do not enlarge boxes below one pixel to one */
    char _end;
} fl_vision_roi_opts;
/* RoIAlign: x [n, c, h, w], boxes [k, 5] floats (image index, left, top, right, bottom) -> [k, c, rows,
   columns]. A sample outside [-1, h] x [-1, w] is 0. As in torchvision, boxes get no gradient:
   fl_vision_roi_align(x, boxes, 7, 7, .scale = 1 / 16.0, .sampling_ratio = 2, .aligned = true) */
#define fl_vision_roi_align(...) FL__ROI_ALIGN(fl_, __VA_ARGS__, ._end = 0)
#define fv_vision_roi_align(...) FL__ROI_ALIGN(fv_, __VA_ARGS__, ._end = 0)
#define FL__ROI_ALIGN(p, x, boxes, rows, columns, ...) \
    p##vision_roi_align_opt(x, boxes, rows, columns, FL_LITERAL(fl_vision_roi_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_roi_align_opt(fl_tensor *x, fl_tensor *boxes, int64_t rows, int64_t columns,
                                          fl_vision_roi_opts o);
FL_API fl_var *fv_vision_roi_align_opt(fl_var *x, fl_tensor *boxes, int64_t rows, int64_t columns,
                                       fl_vision_roi_opts o);
FL_DATA fl_op fl_op_roi_align;
/* Registers the op and its kernel once; the functions above call it. Call it before other threads start. */
FL_API bool fl_roi_align_register(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_REGIONS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_REGIONS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_REGIONS_IMPL
#define FL_VISION_REGIONS_IMPL
#include "../../fl_backend.h"
#include "../../kernels/vision/roi_align.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <pthread.h>

FL_DATA_DEFINED fl_op fl_op_roi_align;

/* ---- composition ---- */

/* 0, 1, ... n - 1 with the dtype and backend of `like`, of shape [n, 1, ...] with `trailing` axes of 1. */
static fl_tensor *fl__roi_range(const fl_tensor *like, int64_t n, int trailing) {
    fl_tensor *t = fl_new_arange(like, 0, (double)n, 1, like->dtype);
    for (int i = 0; i < trailing; i++) t = fl_unsqueeze(t, -1);
    return t;
}

/* Sums of the samples' weights along one axis (0: rows), [k, bins, size]; *samples: per bin, [k, 1, 1]. The
   arithmetic is the kernel's, so that both take the same number of samples. */
static fl_tensor *fl__roi_matrix(fl_tensor *boxes, int axis, const fl_roi_align_args *a,
                                 fl_tensor **samples) {
    const int64_t bins = axis ? a->columns : a->rows, size = axis ? a->w : a->h;
    const int first = 2 - axis;
    fl_tensor *side[2];
    for (int i = 0; i < 2; i++) {
        fl_tensor *t = fl_unsqueeze(fl_slice(boxes, 1, first + 2 * i, first + 2 * i + 1, 1), 2);
        side[i] = fl_sub(fl_mul(t, fl_num(a->scale)), fl_num(a->aligned ? 0.5 : 0));
    }
    fl_tensor *length = fl_sub(side[1], side[0]);
    if (!a->aligned) length = fl_maximum(length, fl_num(1));
    fl_tensor *bin = fl_div(length, fl_num((double)bins));
    if (!bin) return NULL;
    *samples = a->sampling_ratio ? fl_full_like(bin, (double)a->sampling_ratio) : fl_ceil(bin);
    const double most = *samples ? fl_item(fl_amax(*samples, FL_ALL_AXES)) : 1;
    if (!(most <= FL__ROI_SAMPLES))
        return fl_err_null("fl_vision_roi_align: %g samples along a bin, expected at most %d", most,
                           FL__ROI_SAMPLES);
    fl_tensor *i = fl__roi_range(boxes, most > 1 ? (int64_t)most : 1, 0);
    fl_tensor *step = fl_div(fl_mul(fl_add(i, fl_num(0.5)), bin), *samples);
    fl_tensor *at = fl_add(fl_add(side[0], fl_mul(fl__roi_range(boxes, bins, 1), bin)), step);
    fl_tensor *inside = fl_logical_and(fl_ge(at, fl_num(-1)), fl_le(at, fl_num((double)size)));
    inside = fl_unsqueeze(fl_logical_and(inside, fl_lt(i, *samples)), 3);
    at = fl_unsqueeze(fl_minimum(fl_maximum(at, fl_num(0)), fl_num((double)size - 1)), 3);
    fl_tensor *weight = fl_sub(fl_num(1), fl_abs(fl_sub(at, fl__roi_range(boxes, size, 0))));
    weight = inside && weight ? fl_where(inside, fl_maximum(weight, fl_num(0)), fl_num(0)) : NULL;
    return weight ? fl_sum(weight, FL_AXES(2)) : NULL;
}

static bool fl__compose_roi_align(const fl_call *c, fl_tensor **y) {
    const fl_roi_align_args *a = c->args;
    fl_tensor *x = c->in[0], *boxes = c->in[1], *rows, *columns;
    fl_tensor *r = fl__roi_matrix(boxes, 0, a, &rows), *l = fl__roi_matrix(boxes, 1, a, &columns);
    fl_tensor *image = fl_cast(fl_select(boxes, 1, 0), FL_I64);
    if (!r || !l || !image) return false;
    fl_tensor *count = fl_maximum(fl_mul(rows, columns), fl_num(1));
    r = fl_unsqueeze(fl_div(r, count), 1), l = fl_unsqueeze(l, 1);
    if (!a->adjoint) {
        x = fl_index_select(x, 0, image);
        return (y[0] = fl_matmul(fl_matmul(r, x), fl_transpose(l, -1, -2))) != NULL;
    }
    x = fl_matmul(fl_matmul(fl_transpose(r, -1, -2), x), l);
    fl_tensor *zeros = x ? fl_new_full(x, FL_SHAPE(a->images, x->shape[1], a->h, a->w), 0) : NULL;
    return (y[0] = zeros ? fl_index_add(zeros, 0, image, x, 1) : NULL) != NULL;
}

/* ---- op calls; the gradient is the adjoint op ---- */

static fl_tensor *fl__roi_call(fl_tensor *x, fl_tensor *boxes, fl_roi_align_args a) {
    const int64_t c = x->shape[1];
    const fl_shape shape = a.adjoint ? FL_SHAPE(a.images, c, a.h, a.w)
                                     : FL_SHAPE(boxes->shape[0], c, a.rows, a.columns);
    if (!fl_numel(x) || !fl_shape_numel(shape)) return fl_new_full(x, shape, 0);
    return fl_call_into(fl_op_roi_align, fl_out_on(x->backend, shape, x->dtype), x, boxes, &a);
}

static fl_var *fv__roi_call(fl_var *x, fl_var *boxes, fl_roi_align_args a) {
    if (!x || !boxes) return NULL;
    fl_tensor *y = fl__roi_call(fv_value(x), fv_value(boxes), a);
    return fv_record_op(fl_op_roi_align, y, FV_IN(x), FV_SAVE(boxes), &a);
}

static void fv__roi_backward(fl_node *n, fl_var *dy) {
    fl_roi_align_args a = *(const fl_roi_align_args *)fv_args(n);
    a.adjoint = !a.adjoint;
    fv_add_grad(n, 0, fv__roi_call(dy, fv_saved(n, 0), a));
}

static pthread_once_t fl__roi_once = PTHREAD_ONCE_INIT;
static bool fl__roi_registered;

static void fl__roi_register(void) {
    fl_backend cpu = *fl_backend_at(fl_backend_index(fl_backend_cpu()->name));
    FL__REGISTER(roi_align, .args_size = sizeof(fl_roi_align_args),
                 .uses = "mul sub maximum minimum div ceil amax iota add ge le lt logical_and abs where "
                             "sum gather matmul scatter_add",
                 .compose = fl__compose_roi_align, .gradient = fv__roi_backward);
    if (fl_op_roi_align == FL_OP_NONE) return;
    fl__cpu_roi_align_slots(&cpu);
    fl__roi_registered = fl_backend_use(&cpu, NULL);
}

FL_API bool fl_roi_align_register(void) {
    pthread_once(&fl__roi_once, fl__roi_register);
    return fl__roi_registered;
}

/* Checks the operands and fills in the arguments. Returns boxes in the dtype that the op takes, or NULL. */
static fl_tensor *fl__roi_args(const fl_tensor *x, fl_tensor *boxes, int64_t rows, int64_t columns,
                               const fl_vision_roi_opts *o, fl_roi_align_args *a) {
    const char *fn = "fl_vision_roi_align";
    if (!fl_roi_align_register()) return fl_raise();
    if (x->ndim != 4 || !fl_dtype_is_float(x->dtype) || boxes->ndim != 2 || boxes->shape[1] != 5 ||
        !fl_dtype_is_float(boxes->dtype))
        return fl_err_null("%s: x is %s %s, boxes are %s %s; expected floats [n, c, h, w] and [k, 5]", fn,
                           fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_dtype_name(boxes->dtype),
                           FL_SHAPE_TEXT(boxes));
    if (rows < 1 || rows > INT16_MAX || columns < 1 || columns > INT16_MAX || o->sampling_ratio < 0 ||
        o->sampling_ratio > FL__ROI_SAMPLES || !(o->scale >= 0))
        return fl_err_null("%s: got %lld x %lld bins, scale %g, sampling_ratio %lld, expected 1 to %d bins, "
                           "scale > 0, a ratio of 0 to %d",
                           fn, (long long)rows, (long long)columns, o->scale, (long long)o->sampling_ratio,
                           INT16_MAX, FL__ROI_SAMPLES);
    if (!fl_same_backend(fn, x, boxes)) return NULL;
    *a = (fl_roi_align_args){.aligned = o->aligned, .images = x->shape[0], .h = x->shape[2], .w = x->shape[3],
                             .rows = rows, .columns = columns, .sampling_ratio = o->sampling_ratio,
                             .scale = fl_option(o->scale, 1)};
    return fl_cast(boxes, fl_dtype_wide(x->dtype));
}

FL_API fl_tensor *fl_vision_roi_align_opt(fl_tensor *x, fl_tensor *boxes, int64_t rows, int64_t columns,
                                          fl_vision_roi_opts o) {
    fl_roi_align_args a;
    if (fl_is_null_arg("fl_vision_roi_align", x) || fl_is_null_arg("fl_vision_roi_align", boxes)) return NULL;
    fl_scope s = fl_scope_begin();
    boxes = fl__roi_args(x, boxes, rows, columns, &o, &a);
    return fl_scope_return(&s, boxes ? fl__roi_call(x, boxes, a) : NULL);
}

FL_API fl_var *fv_vision_roi_align_opt(fl_var *x, fl_tensor *boxes, int64_t rows, int64_t columns,
                                       fl_vision_roi_opts o) {
    fl_roi_align_args a;
    if (fl_is_null_arg("fv_vision_roi_align", x) || fl_is_null_arg("fv_vision_roi_align", boxes)) return NULL;
    fl_scope s = fl_scope_begin();
    boxes = fl__roi_args(fv_value(x), boxes, rows, columns, &o, &a);
    return fv_scope_return(&s, boxes ? fv__roi_call(x, fv_const(boxes), a) : NULL);
}

#endif
#endif
/* MIT licence: see LICENSE. */
