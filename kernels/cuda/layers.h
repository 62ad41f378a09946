/* kernels/cuda/layers.h - slots of registered ops on cuda: concat, softmax, losses, norms, pooling, dropout

   Calls that the kernels do not support (images of unusual layout) use their composition. */
#ifndef FL_CUDA_LAYERS_H
#define FL_CUDA_LAYERS_H
#include "backend.h"
FL_PRIVATE bool fl__cuda_outputs(const fl_call *c); /* allocates those that are requested */
FL_PRIVATE int fl__cuda_wide(const fl_tensor *t);   /* the wide dtype of its dtype */
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cuda_layers_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_LAYERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_LAYERS_IMPL
#define FL_CUDA_LAYERS_IMPL
#include "../../fl/records/activation.h"
#include "../../fl/records/copy.h"
#include "../../fl/tensor/copy.h"
#include "../../fl/records/image.h"
#include "../../fl/records/linear.h"
#include "../../fl/records/loss.h"
#include "../../fl/records/norm.h"
#include "../../fl/records/pool.h"
#include "../../fl/records/random.h"
#include "../../fl/records/softmax.h"
#include <string.h>

FL_PRIVATE bool fl__cuda_outputs(const fl_call *c) {
    bool ok = true;
    for (int i = 0; ok && i < c->n_out; i++) ok = !c->out[i] || fl_out_make(c->out[i]);
    return ok;
}

static void *fl__cuda_wanted(const fl_tensor *t) {
    return t ? fl_data(t) : NULL;
}

/* Workspace of n numbers of the computation's type. */
static void *fl__cuda_numbers(const fl_call *c, int64_t n) {
    return fl__cuda_work(c, (size_t)n * fl_dtype_size(fl_dtype_wide(c->in[0]->dtype)));
}

FL_PRIVATE int fl__cuda_wide(const fl_tensor *t) {
    return (int)fl_dtype_wide(t->dtype);
}

/* ---- concatenation ---- */

FL_CUDA_SLOT(fl__cuda_concat) {
    const int axis = ((const fl_axis_args *)c->args)->axis;
    fl_tensor part = *c->out[0];
    flk_parts p = {.parts = c->n_in};
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->dtype != part.dtype) return fl_call_compose(c); /* casts */
    if (!fl_out_make(c->out[0])) return false;
    part.buffer = c->out[0]->buffer;
    for (int i = 0; i < c->n_in; i++) {
        part.shape[axis] = c->in[i]->shape[axis];
        fl__cuda_pass(&p.part[i], c->op, 2, (fl_tensor *[]){&part, c->in[i]}, 0, -1, false);
        part.offset += part.shape[axis] * part.stride[axis];
    }
    return fl__cuda_started(c, flk_concat(&p));
}

/* ---- softmax, cross entropy ---- */

/* x -> y;  y, dy -> dx */
FL_CUDA_SLOT(fl__cuda_softmax) {
    const bool grad = c->n_in == 2, log = c->op == (grad ? fl_op_log_softmax_grad : fl_op_log_softmax);
    flk_lines l;
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_lines(&l, c->op, 1 + c->n_in, (fl_tensor *[]){c->out[0], c->in[0], c->in[1]}, 0,
                   ((const fl_axis_args *)c->args)->axis);
    return fl__cuda_started(c, flk_softmax(&l, log, grad, fl__cuda_wide(c->in[0])));
}

/* x, target -> loss, largest, sum;  x, target, largest, sum, dy -> dx. A target out of range is an error of
   gather, as in the composition. */
FL_CUDA_SLOT(fl__cuda_cross_entropy) {
    const fl_cross_entropy_args *a = c->args;
    const fl_tensor *x = c->in[0];
    const bool grad = c->op == fl_op_cross_entropy_grad;
    if (!fl__cuda_outputs(c)) return false;
    flk_cross_entropy_rows e = {.target = fl_data(c->in[1]), .rows = x->shape[0], .classes = x->shape[1],
                                .ignore = a->ignore, .smoothing = a->smoothing, .fault_op = FL_OP_gather};
    fl__cuda_operand(&e.x, x);
    if (grad) fl__cuda_operand(&e.dx, c->out[0]);
    else e.loss = fl_data(c->out[0]);
    e.largest = fl_data(grad ? c->in[2] : c->out[1]);
    e.sum = fl_data(grad ? c->in[3] : c->out[2]);
    e.dy = grad ? fl_data(c->in[4]) : NULL;
    return fl__cuda_started(c, flk_cross_entropy(&e, fl__cuda_wide(x)));
}

/* ---- layer norm ---- */

static flk_norm fl__cuda_norm(const fl_call *c, const fl_tensor *y) {
    const fl_norm_args *args = c->args;
    const fl_tensor *x = c->in[0];
    flk_norm a = {.n = 1, .eps = args->eps, .rms = args->rms};
    for (int i = x->ndim - args->dims; i < x->ndim; i++) a.n *= x->shape[i];
    a.rows = a.n ? fl_numel(x) / a.n : 0;
    fl__cuda_operand(&a.x, x);
    fl__cuda_operand(&a.w, c->in[1]);
    if (y) fl__cuda_operand(&a.y, y);
    return a;
}

FL_CUDA_SLOT(fl__cuda_layer_norm) {
    const bool adds = c->op == fl_op_add_layer_norm;
    if (!fl_is_contiguous(c->out[0]) || !fl_numel(c->in[0]) || (adds && !fl_is_contiguous(c->out[3])))
        return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    flk_norm a = fl__cuda_norm(c, c->out[0]);
    fl__cuda_operand(&a.b, c->in[2]);
    a.mean = fl__cuda_wanted(c->out[1]);
    a.rstd = fl_data(c->out[2]);
    if (adds) { /* its arguments begin with layer_norm's */
        const fl_add_norm_args *args = c->args;
        fl__cuda_operand(&a.x, c->out[3]);
        fl__cuda_operand(&a.branch, c->in[0]);
        fl__cuda_operand(&a.add, c->in[3]);
        a.drop = args->p, a.key = args->rng.key, a.counter = args->rng.counter;
    }
    return fl__cuda_started(c, flk_norm_run(&a, fl__cuda_wide(c->in[0])));
}

FL_CUDA_SLOT(fl__cuda_layer_norm_grad) {
    const bool sums = c->out[1] || c->out[2];
    for (int i = 0; i < 3; i++)
        if (c->out[i] && !fl_is_contiguous(c->out[i])) return fl_call_compose(c);
    if (!fl_numel(c->in[0])) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    flk_norm a = fl__cuda_norm(c, c->out[0]);
    fl__cuda_operand(&a.dy, c->in[4]);
    a.mean = a.rms ? NULL : fl_data(c->in[2]);
    a.rstd = fl_data(c->in[3]);
    a.dw = fl__cuda_wanted(c->out[1]);
    a.db = fl__cuda_wanted(c->out[2]);
    void *work = sums ? fl__cuda_numbers(c, flk_norm_parts(a.rows) * 2 * a.n) : NULL;
    if (sums && !work) return false;
    return fl__cuda_started(c, flk_norm_grad(&a, work, fl__cuda_wide(c->in[0])));
}

/* ---- batch norm ---- */

/* Whether t, an image or a number, has the layout of x. */
static bool fl__cuda_lies_as(const fl_tensor *t, const fl_tensor *x) {
    bool ok = t->weak || t->ndim == x->ndim;
    for (int i = 0; ok && !t->weak && i < x->ndim; i++)
        ok = t->shape[i] == x->shape[i] && (t->stride[i] == x->stride[i] || x->shape[i] == 1);
    return ok;
}

/* Whether the kernels support the call, whose images are the n given: if so, sets x and sizes in *a, but not
   the parts. */
static bool fl__cuda_batch(flk_batch_norm *a, const fl_call *c, fl_tensor *const *image, int n) {
    const fl_batch_norm_args *args = c->args;
    const fl_tensor *x = c->in[0];
    bool ok = fl_numel(x) > 0;
    for (int i = 0; i < n; i++) ok &= !image[i] || fl__cuda_lies_as(image[i], x);
    for (int i = 1; i < c->n_in; i++) /* values per channel are contiguous */
        ok &= c->in[i]->weak || fl_numel(c->in[i]) != x->shape[1] || fl_is_contiguous(c->in[i]);
    *a =
        (flk_batch_norm){.channels = x->shape[1], .width = 1, .eps = args->eps, .relu = args->relu};
    a->last = !fl_is_contiguous(x);
    ok &= !a->last || fl_is_channels_last(x);
    if (!ok) return false;
    for (int i = 2; i < x->ndim; i++) a->width *= x->shape[i];
    a->count = fl_numel(x) / a->channels;
    fl__cuda_operand(&a->x, x);
    return true;
}

/* Sets mean and var to those in statistics [2, c]. */
static void fl__cuda_batch_both(flk_batch_norm *a, const fl_tensor *statistics) {
    a->mean = fl_data(statistics);
    a->var = (char *)a->mean + (size_t)a->channels * fl_dtype_size(statistics->dtype);
}

FL_CUDA_SLOT(fl__cuda_batch_statistics) {
    flk_batch_norm a;
    if (!fl__cuda_batch(&a, c, c->in, 1)) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_batch_both(&a, c->out[0]);
    flk_batch_norm_parts(&a, fl__cuda_wide(c->in[0]));
    if (!(a.part = fl__cuda_numbers(c, a.parts * 2 * a.channels))) return false;
    return fl__cuda_started(c, flk_batch_statistics(&a, fl__cuda_wide(c->in[0])));
}

FL_CUDA_SLOT(fl__cuda_batch_norm) {
    const fl_batch_norm_args *args = c->args;
    flk_batch_norm a;
    const bool updates = c->n_in == 8;
    if (!fl__cuda_batch(&a, c, (fl_tensor *[]){c->out[0], c->in[3]}, 2)) return fl_call_compose(c);
    if (updates && !fl_is_contiguous(c->in[4])) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_operand(&a.w, c->in[1]);
    fl__cuda_operand(&a.y, c->out[0]);
    fl__cuda_operand(&a.b, c->in[2]);
    fl__cuda_operand(&a.add, c->in[3]);
    if (updates) {
        fl__cuda_batch_both(&a, c->in[4]);
        a.running_mean = fl_data(c->out[1]);
        a.running_var = fl_data(c->out[2]);
        a.batches = fl__cuda_wanted(c->out[3]);
        a.momentum = args->momentum, a.unbiased = args->unbiased;
    } else {
        a.mean = fl_data(c->in[4]);
        a.var = fl_data(c->in[5]);
    }
    flk_batch_norm_parts(&a, fl__cuda_wide(c->in[0]));
    return fl__cuda_started(c, flk_batch_norm_run(&a));
}

FL_CUDA_SLOT(fl__cuda_batch_norm_grad) {
    flk_batch_norm a;
    if (!fl__cuda_batch(&a, c, (fl_tensor *[]){c->out[0], c->out[3], c->in[4], c->in[5]}, 4))
        return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    const bool sums = c->out[0] || c->out[1] || c->out[2];
    fl__cuda_operand(&a.w, c->in[1]);
    a.mean = fl_data(c->in[2]);
    a.var = fl_data(c->in[3]);
    fl__cuda_operand(&a.y, c->in[4]);
    fl__cuda_operand(&a.dy, c->in[5]);
    if (c->out[0]) fl__cuda_operand(&a.dx, c->out[0]);
    if (c->out[3]) fl__cuda_operand(&a.dadd, c->out[3]);
    a.dw = fl__cuda_wanted(c->out[1]);
    a.db = fl__cuda_wanted(c->out[2]);
    flk_batch_norm_parts(&a, fl__cuda_wide(c->in[0]));
    if (sums && !(a.part = fl__cuda_numbers(c, a.parts * 2 * a.channels))) return false;
    return fl__cuda_started(c, flk_batch_norm_grad(&a, fl__cuda_wide(c->in[0])));
}

/* ---- group norm ---- */

/* Whether the kernels support the call with images x and other. */
static bool fl__cuda_group(flk_group_norm *a, const fl_call *c, const fl_tensor *other) {
    const fl_batch_norm_args *args = c->args;
    const fl_tensor *x = c->in[0];
    *a = (flk_group_norm){.images = x->shape[0],
                          .channels = x->shape[1],
                          .groups = args->groups,
                          .width = 1,
                          .eps = args->eps,
                          .last = !fl_is_contiguous(x)};
    for (int i = 2; i < x->ndim; i++) a->width *= x->shape[i];
    bool ok = fl_numel(x) > 0 && !args->relu && fl__cuda_lies_as(other, x);
    for (int i = 1; i < c->n_in; i++)
        ok &= c->in[i]->weak || c->in[i]->ndim == x->ndim || fl_is_contiguous(c->in[i]);
    if (!ok || (a->last && !fl_is_channels_last(x))) return false;
    fl__cuda_operand(&a->x, x);
    fl__cuda_operand(&a->w, c->in[1]);
    return true;
}

FL_CUDA_SLOT(fl__cuda_group_norm) {
    flk_group_norm a;
    const bool known = c->n_in == 6;
    if (!fl__cuda_group(&a, c, c->out[0]) || !c->in[3]->weak) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_operand(&a.y, c->out[0]);
    fl__cuda_operand(&a.b, c->in[2]);
    a.known = known;
    a.mean = fl_data(known ? c->in[4] : c->out[1]);
    a.var = fl_data(known ? c->in[5] : c->out[2]);
    return fl__cuda_started(c, flk_group_norm_run(&a, fl__cuda_wide(c->in[0])));
}

FL_CUDA_SLOT(fl__cuda_group_norm_grad) {
    flk_group_norm a;
    if (!fl__cuda_group(&a, c, c->in[5]) || c->out[3] ||
        (c->out[0] && !fl__cuda_lies_as(c->out[0], c->in[0])))
        return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    if (!(a.part = fl__cuda_numbers(c, 2 * a.images * a.channels))) return false;
    fl__cuda_operand(&a.dy, c->in[5]);
    if (c->out[0]) fl__cuda_operand(&a.y, c->out[0]);
    a.mean = fl_data(c->in[2]);
    a.var = fl_data(c->in[3]);
    a.dw = fl__cuda_wanted(c->out[1]);
    a.db = fl__cuda_wanted(c->out[2]);
    return fl__cuda_started(c, flk_group_norm_grad(&a, fl__cuda_wide(c->in[0])));
}

/* ---- resampling ---- */

FL_CUDA_SLOT(fl__cuda_resample) {
    const fl_resample_args *args = c->args;
    fl_tensor *x = c->in[0], *y = c->out[0];
    const fl_tensor *w = c->in[2];
    flk_resampling s = {.n = x->shape[args->axis],
                        .size = args->size,
                        .k = w->shape[1],
                        .taps = fl_numel(w),
                        .adjoint = args->adjoint};
    if (!fl_numel(y) || !s.taps) return fl_call_compose(c);
    if (!fl_out_make(y)) return false;
    fl__cuda_lines(&s.lines, c->op, 2, (fl_tensor *[]){y, x}, 0, args->axis);
    if (args->adjoint && !(s.work = fl__cuda_work(c, (size_t)(2 * s.size) * sizeof *s.work))) return false;
    fl_scope scope = fl_scope_begin(); /* the tables are small */
    fl_tensor *at = fl_contiguous(c->in[1]), *dense = fl_contiguous(c->in[2]);
    fl_tensor *inside = c->in[3]->weak ? NULL : fl_contiguous(c->in[3]);
    bool ok = at && dense && (inside || c->in[3]->weak);
    if (ok) {
        s.at = fl_data(at);
        s.weight = fl_data(dense);
        s.inside = inside ? fl_data(inside) : NULL;
        ok = fl__cuda_started(c, flk_resample(&s, (int)x->dtype));
    }
    fl_scope_end(&scope);
    return ok;
}

/* ---- pooling ---- */

/* max: x -> y, index;  dy, index -> dx. average: x -> y;  dy -> dx */
FL_CUDA_SLOT(fl__cuda_pool2d) {
    const fl_pool2d_args *args = c->args;
    const bool max = c->op == fl_op_max_pool2d || c->op == fl_op_max_pool2d_grad;
    const bool grad = c->op == fl_op_max_pool2d_grad || c->op == fl_op_avg_pool2d_grad;
    const fl_tensor *image = grad ? c->out[0] : c->in[0], *pooled = grad ? c->in[0] : c->out[0];
    const fl_tensor *index = !max ? NULL : grad ? c->in[1] : c->out[1];
    flk_pool a = {.count_pad = args->count_pad};
    if (max && !fl_dtype_is_float(c->in[0]->dtype)) return fl_call_compose(c);
    if (max && grad && index->dtype != FL_U8) return fl_call_compose(c); /* the user's, in the image */
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_strided(&a.in, c->in[0]);
    fl__cuda_strided(&a.out, c->out[0]);
    if (index) fl__cuda_strided(&a.index, index);
    memcpy(a.image, image->shape, sizeof a.image);
    memcpy(a.pooled, pooled->shape, sizeof a.pooled);
    for (int d = 0; d < 2; d++) {
        a.kernel[d] = args->kernel[d];
        a.stride[d] = args->stride[d];
        a.pad[d] = args->pad_lo[d];
    }
    return fl__cuda_started(c, flk_pool2d(&a, max, grad, fl__cuda_wide(c->out[0])));
}

/* ---- linear layers with weights stored in half precision ---- */

/* For more rows the composition converts the weight once. */
FL_CUDA_SLOT(fl__cuda_linear_stored) {
    enum { FEW = 16 };
    const fl_tensor *x = c->in[0], *w = c->in[1];
    flk_stored s = {.m = x->shape[0], .n = w->shape[0], .k = x->shape[1]};
    if (s.m > FEW || (w->dtype != FL_F16 && w->dtype != FL_BF16)) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_strided(&s.x, x);
    fl__cuda_strided(&s.w, w);
    s.y = fl_data(c->out[0]);
    return fl__cuda_started(c, flk_linear_stored(&s));
}

/* ---- dropout, gated linear units ---- */

FL_CUDA_SLOT(fl__cuda_dropout) {
    const fl_dropout_args *a = c->args;
    flk_pass p;
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_pass(&p, c->op, 2, (fl_tensor *[]){c->out[0], c->in[0]}, 0, -1, true);
    return fl__cuda_started(
        c, flk_dropout(&p, a->p, a->rng.key, a->rng.counter, fl__cuda_wide(c->out[0])));
}

/* Half `which` of t along the axis. */
static fl_tensor fl__cuda_half(const fl_tensor *t, int axis, int which) {
    fl_tensor h = *t;
    h.shape[axis] /= 2;
    h.offset += which * h.shape[axis] * h.stride[axis];
    return h;
}

/* x -> y;  x, dy -> dx */
FL_CUDA_SLOT(fl__cuda_glu) {
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const bool grad = c->op == fl_op_glu_grad;
    flk_pass p;
    if (!fl__cuda_outputs(c)) return false;
    fl_tensor a = fl__cuda_half(c->in[0], axis, 0), g = fl__cuda_half(c->in[0], axis, 1);
    fl_tensor da = fl__cuda_half(c->out[0], axis, 0), dg = fl__cuda_half(c->out[0], axis, 1);
    if (grad) fl__cuda_pass(&p, c->op, 5, (fl_tensor *[]){&da, &dg, &a, &g, c->in[1]}, 0, -1, false);
    else fl__cuda_pass(&p, c->op, 3, (fl_tensor *[]){c->out[0], &a, &g}, 0, -1, false);
    return fl__cuda_started(c, flk_glu(&p, grad, fl__cuda_wide(c->in[0])));
}

FL_PRIVATE void fl__cuda_layers_slots(fl_backend *cuda) {
    enum { ROWS = FL_SLOT_CONTIGUOUS | FL_SLOT_NARROW };
    fl_backend_set(cuda, fl_op_concat, fl__cuda_concat, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_softmax, fl__cuda_softmax, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_softmax_grad, fl__cuda_softmax, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_log_softmax, fl__cuda_softmax, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_log_softmax_grad, fl__cuda_softmax, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_cross_entropy, fl__cuda_cross_entropy, ROWS);
    fl_backend_set(cuda, fl_op_cross_entropy_grad, fl__cuda_cross_entropy, ROWS);
    fl_backend_set(cuda, fl_op_layer_norm, fl__cuda_layer_norm, ROWS);
    fl_backend_set(cuda, fl_op_add_layer_norm, fl__cuda_layer_norm, ROWS);
    fl_backend_set(cuda, fl_op_layer_norm_grad, fl__cuda_layer_norm_grad, ROWS);
    fl_backend_set(cuda, fl_op_batch_statistics, fl__cuda_batch_statistics, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_batch_norm, fl__cuda_batch_norm, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_batch_norm_grad, fl__cuda_batch_norm_grad, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_group_norm, fl__cuda_group_norm, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_group_norm_grad, fl__cuda_group_norm_grad, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_resample, fl__cuda_resample, 0);
    fl_backend_set(cuda, fl_op_max_pool2d, fl__cuda_pool2d, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_max_pool2d_grad, fl__cuda_pool2d, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_avg_pool2d, fl__cuda_pool2d, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_avg_pool2d_grad, fl__cuda_pool2d, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_linear_packed, fl__cuda_linear_stored, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_dropout, fl__cuda_dropout, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_glu, fl__cuda_glu, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_glu_grad, fl__cuda_glu, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
