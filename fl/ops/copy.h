/* fl/ops/copy.h - concat, stack, in-place add, and the gradients of casts and copies

   fl_cast, fl_contiguous, fl_clone and fl_assign are in fl/tensor/copy.h. All run the record copy: x -> y, of
   one shape, with any strides and dtypes. Where the backend has it, concat and stack run the record concat
   (fl_axis_args): up to 8 x -> y, joined along the axis. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_COPY_H
#define FL_OPS_COPY_H
#include "../autograd/accumulate.h"
#include "../tensor/blocks.h"
#include "../tensor/copy.h"
#include "../records/copy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* torch.cat: joins n >= 1 tensors along axis; their shapes must be equal in all other axes. Dtypes
   promote. */
FL_API fl_tensor *fl_concat(fl_tensor *const *ts, int n, int axis);
FL_API fl_var *fv_concat(fl_var *const *xs, int n, int axis);
/* torch.stack: joins n >= 1 tensors of one shape along a new axis, in [-ndim - 1, ndim]. Dtypes promote. */
FL_API fl_tensor *fl_stack(fl_tensor *const *ts, int n, int axis);
FL_API fl_var *fv_stack(fl_var *const *xs, int n, int axis);
/* fl_contiguous and fl_clone on variables. */
FL_API fl_var *fv_contiguous(fl_var *x);
FL_API fl_var *fv_clone(fl_var *x);
/* dst += src in place, by fl_assign: src broadcasts to dst, the sum is cast to dst's dtype. Returns dst. */
FL_API fl_tensor *fl_accumulate(fl_tensor *dst, fl_tensor *src);

FL_PRIVATE void fl__register_copy(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_COPY_H */

#if defined(FL_IMPL_ONLY_OPS_COPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_COPY_IMPL
#define FL_OPS_COPY_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "elementwise.h"
#include "view.h"
#include <string.h>

/* ---- joining ---- */

fl_tensor *fl_accumulate(fl_tensor *dst, fl_tensor *src) {
    if (fl_is_null_arg("fl_accumulate", dst) || fl_is_null_arg("fl_accumulate", src)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    return fl_scope_return(&s, fl_assign(dst, fl_add(dst, src)));
}

/* Writes n tensors along axis into out, starting at element *at, and advances *at. */
static bool fl__write_parts(fl_tensor *out, fl_tensor *const *ts, int n, int axis, int64_t *at) {
    const fl_axis_args args = {axis};
    fl_tensor alias = *out; /* used by the call below only */
    fl_call c = {.op = n > 1 ? fl_op_concat : FL_OP_copy, .n_out = 1, .n_in = n, .out = {&alias},
                 .args = &args};
    alias.offset += *at * out->stride[axis];
    alias.shape[axis] = 0;
    for (int i = 0; i < n; i++) alias.shape[axis] += (c.in[i] = ts[i])->shape[axis];
    *at += alias.shape[axis];
    return fl_numel(&alias) == 0 || fl_call_run(&c);
}

static bool fl__compose_concat(const fl_call *c, fl_tensor **y) {
    int64_t at = 0;
    y[0] = fl_out_layout_like(fl_out_like(c->out[0], c->out[0]->dtype), c->out[0]);
    bool ok = y[0] && fl_out_allocate(y[0]);
    for (int i = 0; ok && i < c->n_in; i++)
        ok = fl__write_parts(y[0], &c->in[i], 1, ((const fl_axis_args *)c->args)->axis, &at);
    return ok;
}

fl_tensor *fl_concat(fl_tensor *const *ts, int n, int axis) {
    if (fl_is_null_arg("fl_concat", ts)) return NULL;
    if (n < 1) return fl_err_null("fl_concat: expected at least one tensor, got %d tensors", n);
    for (int i = 0; i < n; i++) {
        if (fl_is_null_arg("fl_concat", ts[i])) return NULL;
        if (ts[i]->weak) return fl_err_null("fl_concat: tensor %d is a weak number, expected a tensor", i);
        if (!fl_same_backend("concat", ts[0], ts[i])) return NULL;
    }
    if ((axis = fl_own_axis_of("fl_concat", ts[0], axis)) < 0) return NULL;
    fl_shape shape = fl_shape_of(ts[0]);
    for (int i = 1; i < n; i++) {
        fl_shape rest = fl_shape_of(ts[i]);
        if (rest.ndim != shape.ndim ||
            __builtin_add_overflow(shape.dim[axis], rest.dim[axis], &shape.dim[axis]))
            return fl_err_null("fl_concat: shapes %s and %s have different numbers of dims, or too many "
                               "elements", FL_SHAPE_TEXT(ts[0]), FL_SHAPE_TEXT(ts[i]));
        for (int d = 0; d < shape.ndim; d++)
            if (d != axis && rest.dim[d] != shape.dim[d])
                return fl_err_null("fl_concat: shapes %s and %s differ outside axis %d",
                               FL_SHAPE_TEXT(ts[0]), FL_SHAPE_TEXT(ts[i]), axis);
    }
    fl_tensor *out = fl_out_on(ts[0]->backend, shape, fl_result_type(n, ts));
    bool last = shape.ndim == 4; /* channels-last images give a channels-last result */
    for (int i = 0; last && i < n; i++) last = fl_is_channels_last(ts[i]) && !fl_is_contiguous(ts[i]);
    if (out && last) out = fl_out_order_as(out, ts[0]);
    if (!out || !fl_out_allocate(out)) return fl_raise();
    const int most = out->buffer && fl_backend_has(out->backend, fl_op_concat) ? 8 : 1; /* inputs of a
                                                                                           record */
    int64_t at = 0;
    for (int i = 0; i < n; i += most)
        if (!fl__write_parts(out, ts + i, n - i < most ? n - i : most, axis, &at)) return fl_raise();
    return out;
}

fl_tensor *fl_stack(fl_tensor *const *ts, int n, int axis) {
    if (fl_is_null_arg("fl_stack", ts)) return NULL;
    if (n < 1) return fl_err_null("fl_stack: expected at least one tensor, got %d tensors", n);
    for (int i = 0; i < n; i++) {
        if (fl_is_null_arg("fl_stack", ts[i])) return NULL;
        if (!fl_same_shape(ts[0], ts[i]))
            return fl_err_null("fl_stack: tensors must have one shape, got shapes %s and %s",
                               FL_SHAPE_TEXT(ts[0]), FL_SHAPE_TEXT(ts[i]));
    }
    int dims = ts[0]->ndim, at = axis < 0 ? axis + dims + 1 : axis;
    if (at < 0 || at > dims || dims == FL_MAX_DIMS)
        return fl_err_null("fl_stack: cannot insert axis %d for shape %s", axis, FL_SHAPE_TEXT(ts[0]));
    fl_quiet(+1); /* an error handler that longjmps must not leak rows */
    fl_scope s = fl_scope_of(__func__);
    fl_tensor **rows = fl_heap_alloc((size_t)n * sizeof *rows), *out = NULL;
    bool ok = rows != NULL;
    for (int i = 0; ok && i < n; i++) ok = (rows[i] = fl_unsqueeze(ts[i], at)) != NULL;
    if (ok) out = fl_concat(rows, n, at);
    fl_heap_free(rows);
    fl_scope_return(&s, out);
    fl_quiet(-1);
    return out ? out : fl_raise();
}

/* ---- gradients ---- */

static void fv__copy_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, dy);
}

fl_var *fv_contiguous(fl_var *x) {
    return fv_record_args("contiguous", fl_contiguous(fv_value(x)), fv__copy_back, FV_IN(x),
                          FV_NONE, NULL, 0);
}

fl_var *fv_clone(fl_var *x) {
    return fv_record_args("clone", fl_clone(fv_value(x)), fv__copy_back, FV_IN(x), FV_NONE, NULL, 0);
}

static void fv__concat_back(fl_node *n, fl_var *dy) {
    int axis = *(const int *)fv_args(n);
    int64_t at = 0;
    for (int i = 0; i < fv_in_count(n); i++) {
        int64_t next = at + fv_in_shape(n, i).dim[axis];
        if (fv_needs(n, i)) fv_add_grad(n, i, fv_slice(dy, axis, at, next, 1));
        at = next;
    }
}

static void fv__stack_back(fl_node *n, fl_var *dy) {
    for (int i = 0; i < fv_in_count(n); i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, fv_select(dy, *(const int *)fv_args(n), i));
}

typedef fl_tensor *(*fv__join_fn)(fl_tensor *const *ts, int n, int axis);

/* n <= FV_MAX */
static fl_var *fv__join(const char *name, fv__join_fn join, fl_back_fn back, fl_var *const *xs,
                        int n, int axis) {
    fl_tensor *ts[FV_MAX];
    if (!xs || n < 1) {
        if (!xs) fl_fail("fv_%s: the list of variables is NULL", name);
        else fl_fail("fv_%s: expected at least one variable, got %d variables", name, n);
        return fl_raise();
    }
    for (int i = 0; i < n; i++) ts[i] = fv_value(xs[i]);
    fl_tensor *value = join(ts, n, axis);
    if (value && axis < 0) axis += value->ndim;
    return fv_record_args(name, value, back, (fv_list){n, xs}, FV_NONE, &axis, sizeof axis);
}

/* For more variables than a node has inputs: joins FV_MAX groups, then their results. */
static fl_var *fv__join_groups(fl_var *(*join)(fl_var *const *xs, int n, int axis),
                               fl_var *const *xs, int n, int axis) {
    fl_scope s = fl_scope_begin();
    fl_var *group[FV_MAX];
    bool ok = true;
    for (int64_t i = 0; ok && i < FV_MAX; i++) {
        int from = (int)(n * i / FV_MAX), to = (int)(n * (i + 1) / FV_MAX);
        ok = (group[i] = join(xs + from, to - from, axis)) != NULL;
    }
    return fv_scope_return(&s, ok ? fv_concat(group, FV_MAX, axis) : NULL);
}

FL_API fl_var *fv_concat(fl_var *const *xs, int n, int axis) {
    if (xs && n > FV_MAX) return fv__join_groups(fv_concat, xs, n, axis);
    return fv__join("concat", fl_concat, fv__concat_back, xs, n, axis);
}

FL_API fl_var *fv_stack(fl_var *const *xs, int n, int axis) {
    if (xs && n > FV_MAX) return fv__join_groups(fv_stack, xs, n, axis);
    return fv__join("stack", fl_stack, fv__stack_back, xs, n, axis);
}

FL_DATA_DEFINED fl_op fl_op_concat;

FL_PRIVATE void fl__register_copy(void) {
    FL__REGISTER(concat, .args_size = sizeof(fl_axis_args), .uses = "copy", .compose = fl__compose_concat,
                 .gradient = fv__concat_back);
}
#endif /* FL_OPS_COPY_IMPL */
#endif
/* MIT licence: see LICENSE. */
