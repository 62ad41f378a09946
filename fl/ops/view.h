/* fl/ops/view.h - views on variables: reshape, permute, transpose, slice, select, squeeze, unsqueeze, flatten

   The functions of fl/tensor/view.h, with gradients. A view shares its tensor's storage. reshape copies if no
   strides can describe the result, and every view copies if the backend does not support views. The gradient
   of a view is the inverse view; that of a part (slice, select) is dy with zeros around it. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_VIEW_H
#define FL_OPS_VIEW_H
#include "../autograd/accumulate.h"
#include "../tensor/view.h"

#ifdef __cplusplus
extern "C" {
#endif

FL_API fl_var *fv_reshape(fl_var *x, fl_shape shape);
FL_API fl_var *fv_permute(fl_var *x, int naxes, const int *axes);
FL_API fl_var *fv_transpose(fl_var *x, int a, int b);
FL_API fl_var *fv_slice(fl_var *x, int axis, int64_t start, int64_t stop, int64_t step);
FL_API fl_var *fv_select(fl_var *x, int axis, int64_t i);
FL_API fl_var *fv_squeeze(fl_var *x, int axis);
FL_API fl_var *fv_unsqueeze(fl_var *x, int axis);
FL_API fl_var *fv_flatten(fl_var *x, int first, int last);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_VIEW_H */

#if defined(FL_IMPL_ONLY_OPS_VIEW) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_VIEW_IMPL
#define FL_OPS_VIEW_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "index.h"
#include <string.h>

/* ---- gradients ---- */

static void fv__reshape_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_reshape(dy, fv_in_shape(n, 0)));
}

static fl_tensor *fv__reshape_recompute(fl_node *n) {
    return fl_reshape(fv_value(fv_saved(n, 0)), *(const fl_shape *)fv_args(n));
}

/* Records an op that changes only the shape. If x is recomputed in the backward pass, so is its view. */
static fl_var *fv__reshaped(const char *name, fl_var *x, fl_tensor *value) {
    if (!value) return NULL;
    const bool again = fv_recomputed(x);
    const fl_shape to = fl_shape_of(value);
    return fv_record_opt(value, &(fv_record_opts){.name = name,
                                         .back = fv__reshape_back,
                                         .recompute = again ? fv__reshape_recompute : NULL,
                                         .in = FV_IN(x),
                                         .saved = again ? FV_SAVE(x) : FV_NONE,
                                         .n_recompute_only = again,
                                         .args = &to,
                                         .bytes = again ? sizeof to : 0});
}

FL_API fl_var *fv_reshape(fl_var *x, fl_shape shape) {
    return fv__reshaped("reshape", x, fl_reshape(fv_value(x), shape));
}

FL_API fl_var *fv_squeeze(fl_var *x, int axis) {
    return fv__reshaped("squeeze", x, fl_squeeze(fv_value(x), axis));
}

FL_API fl_var *fv_unsqueeze(fl_var *x, int axis) {
    return fv__reshaped("unsqueeze", x, fl_unsqueeze(fv_value(x), axis));
}

FL_API fl_var *fv_flatten(fl_var *x, int first, int last) {
    return fv__reshaped("flatten", x, fl_flatten(fv_value(x), first, last));
}

typedef struct fv__axis_list {
    int n, axis[FL_MAX_DIMS];
} fv__axis_list;

static void fv__permute_back(fl_node *n, fl_var *dy) {
    const fv__axis_list *p = fv_args(n);
    int back[FL_MAX_DIMS] = {0};
    for (int i = 0; i < p->n; i++) back[p->axis[i]] = i;
    fv_add_grad(n, 0, fv_permute(dy, p->n, back));
}

FL_API fl_var *fv_permute(fl_var *x, int naxes, const int *axes) {
    fl_tensor *value = fl_permute(fv_value(x), naxes, axes);
    fv__axis_list p = {.n = naxes};
    for (int i = 0; value && i < naxes; i++) p.axis[i] = axes[i] < 0 ? axes[i] + naxes : axes[i];
    return fv_record_args("permute", value, fv__permute_back, FV_IN(x), FV_NONE, &p, sizeof p);
}

static void fv__transpose_back(fl_node *n, fl_var *dy) {
    const int *axis = fv_args(n);
    fv_add_grad(n, 0, fv_transpose(dy, axis[0], axis[1]));
}

FL_API fl_var *fv_transpose(fl_var *x, int a, int b) {
    int axis[] = {a, b};
    return fv_record_args("transpose", fl_transpose(fv_value(x), a, b), fv__transpose_back,
                          FV_IN(x), FV_NONE, axis, sizeof axis);
}

typedef struct fv__range {
    int axis;
    int64_t start, stop, step;
} fv__range;

/* The scatter index, in dy's shape, of a slice of `shape`: for backends without writable views. */
static fl_tensor *fv__range_index(const fl_tensor *dy, fl_shape shape, fv__range r) {
    int axis = r.axis < 0 ? r.axis + shape.ndim : r.axis;
    fl_shape column = {.ndim = shape.ndim};
    for (int d = 0; d < shape.ndim; d++) column.dim[d] = d == axis ? dy->shape[d] : 1;
    fl_tensor *indices = fl_new_arange(dy, 0, (double)shape.dim[axis], 1, FL_I64);
    indices = fl_reshape(fl_slice(indices, 0, r.start, r.stop, r.step), column);
    return fl_expand(indices, fl_shape_of(dy));
}

static fl_tensor *fv__spread_range(fl_tensor *dy, fl_shape shape, fv__range r) {
    fl_tensor *dx = fl_new_full(dy, shape, 0), *part = fl_slice(dx, r.axis, r.start, r.stop, r.step);
    if (!part) return NULL;
    if (part->copied) return fl_scatter_add(dx, r.axis, fv__range_index(dy, shape, r), dy);
    return fl_assign(part, dy) ? dx : NULL;
}

static void fv__slice_grad_back(fl_node *n, fl_var *dy) {
    const fv__range *r = fv_args(n);
    fv_add_grad(n, 0, fv_slice(dy, r->axis, r->start, r->stop, r->step));
}

/* Zeros of `shape` with dy in the slice r. */
static fl_var *fv__slice_grad(fl_var *dy, fl_shape shape, fv__range r) {
    if (!dy) return NULL;
    return fv_record_args("slice_grad", fv__spread_range(dy->value, shape, r), fv__slice_grad_back,
                          FV_IN(dy), FV_NONE, &r, sizeof r);
}

static fl_tensor *fv__slice_part(fl_node *n, fl_tensor *whole) {
    const fv__range *r = fv_args(n);
    return fl_slice(whole, r->axis, r->start, r->stop, r->step);
}

static void fv__slice_back(fl_node *n, fl_var *dy) {
    if (fv_add_grad_part(n, 0, dy, fv__slice_part)) return;
    fv_add_grad(n, 0, fv__slice_grad(dy, fv_in_shape(n, 0), *(const fv__range *)fv_args(n)));
}

FL_API fl_var *fv_slice(fl_var *x, int axis, int64_t start, int64_t stop, int64_t step) {
    fv__range r = {axis, start, stop, step};
    return fv_record_args("slice", fl_slice(fv_value(x), axis, start, stop, step), fv__slice_back,
                          FV_IN(x), FV_NONE, &r, sizeof r);
}

static fl_tensor *fv__select_part(fl_node *n, fl_tensor *whole) {
    const fv__range *r = fv_args(n);
    return fl_select(whole, r->axis, r->start);
}

static void fv__select_back(fl_node *n, fl_var *dy) {
    fv__range r = *(const fv__range *)fv_args(n);
    if (fv_add_grad_part(n, 0, dy, fv__select_part)) return;
    fv_add_grad(n, 0, fv__slice_grad(fv_unsqueeze(dy, r.axis), fv_in_shape(n, 0), r));
}

FL_API fl_var *fv_select(fl_var *x, int axis, int64_t i) {
    fl_tensor *value = fl_select(fv_value(x), axis, i);
    if (!value) return NULL;
    if (axis < 0) axis += x->value->ndim;
    if (i < 0) i += x->value->shape[axis];
    fv__range r = {axis, i, i + 1, 1};
    return fv_record_args("select", value, fv__select_back, FV_IN(x), FV_NONE, &r, sizeof r);
}
#endif /* FL_OPS_VIEW_IMPL */
#endif
/* MIT licence: see LICENSE. */
