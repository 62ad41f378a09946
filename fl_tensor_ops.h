/* fl_tensor_ops.h - the second room of fl_tensor.h: shape rules and compositions of the ops, and
   printing

   The prototypes stand in fl_tensor.h, which includes this file. A function here checks its
   operands, infers the result's shape and dtype, and hands one record to fl_run; or composes other
   ops where the backend has no slot of its own.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_tensor_ops.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *image = fl_reshape(fl_arange(0, 16, 1, FL_F32), FL_SHAPE(1, 1, 4, 4));
        fl_tensor *blur = fl_full(FL_SHAPE(1, 1, 3, 3), 1.0 / 9, FL_F32);
        fl_tensor *smooth = fl_conv(image, blur, NULL, .pad = {FL_SAME});
        fl_print(fl_max_pool(smooth, NULL, .kernel = {2}));
        fl_print(fl_softmax(fl_sum(image, FL_AXES(0, 1, 2)), 0));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>sequences >>writing >>reductions >>blocks >>order >>indexing >>product >>options
     >>gradients >>randomness >>optimizers >>composed >>printing */
#include "fl_tensor.h"

#if defined(FL_IMPL_ONLY_TENSOR_OPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_OPS_IMPL
#define FL_TENSOR_OPS_IMPL
#include "fl/ops/copy.h"
#include "fl/ops/create.h"
#include "fl/ops/random.h"
#include "fl/ops/view.h"
#include "fl/ops/softmax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/fl_math.h"

/* >>reductions --------------------------------------------------------------------------------- */

/* Axes as a mask; all of them if none is named. False after an error. */
static bool fl_axes_mask(const char *fn, const fl_tensor *x, fl_axes axes, uint32_t *mask) {
    *mask = 0;
    if (axes.n < 0 || axes.n > FL_MAX_DIMS) return fl_refuse("%s: %d axes", fn, axes.n);
    if (axes.n == 0) *mask = (1u << x->ndim) - 1;
    for (int i = 0; i < axes.n; i++) {
        int a = fl_axis_of(fn, x, axes.axis[i]);
        if (a < 0) return false;
        if (*mask & 1u << a) return fl_refuse("%s: axis %d appears twice", fn, a);
        *mask |= 1u << a;
    }
    return true;
}

/* Shape left by a reduction; *count: elements that make one result. */
static fl_shape fl__reduced_shape(const fl_tensor *x, uint32_t mask, bool keepdim, int64_t *count) {
    fl_shape s = {0, {0}};
    *count = 1;
    for (int i = 0; i < x->ndim; i++) {
        bool gone = mask >> i & 1;
        if (gone) *count *= x->shape[i];
        if (!gone || keepdim) s.dim[s.ndim++] = gone ? 1 : x->shape[i];
    }
    return s;
}

static fl_tensor *fl__reduce(fl_op op, const char *fn, fl_tensor *x, fl_axes axes,
                             fl_dtype out_dtype, bool needs_elements) {
    fl_reduce_args a = {0, axes.keepdim};
    int64_t count;
    if (!fl_axes_mask(fn, x, axes, &a.axes)) return NULL;
    fl_shape shape = fl__reduced_shape(x, a.axes, axes.keepdim, &count);
    if (needs_elements && count == 0)
        return fl_bad("%s: no elements along the reduced axes of shape %s", fn, FL_SHAPE_TEXT(x));
    fl_dtype d = out_dtype == FL_DTYPE_NONE ? x->dtype : out_dtype;
    return fl_run_to(op, fl_call_out(x->family, shape, d), x, NULL, &a);
}

/* Operand of a reduction. Slots see b8 as u8. */
static fl_tensor *fl__reduce_operand(const char *fn, fl_tensor *x, fl_op_class cls) {
    if (fl_absent(fn, x) || !(x = fl_stored(x))) return NULL;
    if (x->dtype == FL_B8) return fl_cast(x, FL_U8);
    if (fl_compute_dtype(cls, x->dtype) == FL_DTYPE_NONE)
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    return x;
}

/* Sums and products of b8 and integers are i64. */
static fl_tensor *fl__reduce_whole(fl_op op, const char *fn, fl_tensor *x, fl_axes axes) {
    x = fl__reduce_operand(fn, x, FL_CLASS_CMP);
    fl_dtype d = x && !fl_dtype_is_float(x->dtype) ? FL_I64 : FL_DTYPE_NONE;
    return x ? fl__reduce(op, fn, x, axes, d, false) : NULL;
}
fl_tensor *fl_sum(fl_tensor *x, fl_axes axes) {
    return fl__reduce_whole(FL_OP_sum, "fl_sum", x, axes);
}
fl_tensor *fl_prod(fl_tensor *x, fl_axes axes) {
    return fl__reduce_whole(FL_OP_prod, "fl_prod", x, axes);
}

static fl_tensor *fl__reduce_extreme(fl_op op, const char *fn, fl_tensor *x, fl_axes axes) {
    fl_tensor *operand = fl__reduce_operand(fn, x, FL_CLASS_ANY);
    fl_tensor *y = operand ? fl__reduce(op, fn, operand, axes, FL_DTYPE_NONE, true) : NULL;
    return y && x->dtype == FL_B8 ? fl_cast(y, FL_B8) : y;
}
fl_tensor *fl_amax(fl_tensor *x, fl_axes axes) {
    return fl__reduce_extreme(FL_OP_amax, "fl_amax", x, axes);
}
fl_tensor *fl_amin(fl_tensor *x, fl_axes axes) {
    return fl__reduce_extreme(FL_OP_amin, "fl_amin", x, axes);
}

static fl_tensor *fl__reduce_arg_extreme(fl_op op, const char *fn, fl_tensor *x, int axis,
                                         bool keepdim) {
    x = fl__reduce_operand(fn, x, FL_CLASS_ANY);
    fl_axes axes = {1, {axis}, keepdim};
    return x ? fl__reduce(op, fn, x, axes, FL_I64, true) : NULL;
}
fl_tensor *fl_argmax(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmax, "fl_argmax", x, axis, keepdim);
}
fl_tensor *fl_argmin(fl_tensor *x, int axis, bool keepdim) {
    return fl__reduce_arg_extreme(FL_OP_argmin, "fl_argmin", x, axis, keepdim);
}

/* Elements per result of a reduction of x; -1 after an error. */
static int64_t fl__reduced_count(const char *fn, const fl_tensor *x, fl_axes axes) {
    uint32_t mask;
    int64_t count;
    if (!fl_axes_mask(fn, x, axes, &mask)) return -1;
    fl__reduced_shape(x, mask, false, &count);
    return count;
}

fl_tensor *fl_mean(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_mean", x) || !(x = fl_stored(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype))
        return fl_bad("fl_mean: %s is not a float: cast it first", fl_dtype_name(x->dtype));
    int64_t n = fl__reduced_count("fl_mean", x, axes);
    if (n < 0) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_mean(fl_cast(x, FL_F32), axes), x->dtype));
    return fl_scope_return(&s, fl_div(fl_sum(x, axes), fl_num((double)n)));
}

fl_tensor *fl_variance(fl_tensor *x, fl_axes axes, int64_t correction) {
    if (fl_absent("fl_variance", x) || !(x = fl_stored(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype))
        return fl_bad("fl_variance: %s is not a float: cast it first", fl_dtype_name(x->dtype));
    int64_t n = fl__reduced_count("fl_variance", x, axes);
    if (n < 0) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(
            &s, fl_cast(fl_variance(fl_cast(x, FL_F32), axes, correction), x->dtype));
    fl_axes keep = axes;
    keep.keepdim = true;
    fl_tensor *d = fl_sub(x, fl_mean(x, keep));
    double left = n > correction ? (double)n - (double)correction : 0;
    return fl_scope_return(&s, fl_div(fl_sum(fl_mul(d, d), axes), fl_num(left)));
}

fl_tensor *fl_all(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_all", x) || fl__reduced_count("fl_all", x, axes) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    return fl_scope_return(&s, fl_eq(fl_sum(fl_logical_not(x), axes), fl_int(0)));
}

fl_tensor *fl_any(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_any", x) || fl__reduced_count("fl_any", x, axes) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    return fl_scope_return(&s, fl_gt(fl_sum(fl_cast(x, FL_B8), axes), fl_int(0)));
}

fl_tensor *fl_logsumexp(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_logsumexp", x) || !(x = fl_stored(x)) ||
        fl__reduced_count("fl_logsumexp", x, axes) < 0)
        return NULL;
    if (!fl_dtype_is_float(x->dtype) && !(x = fl_cast(x, FL_F32))) return NULL;
    fl_scope s = fl_scope_begin();
    if (fl_is_narrow(x))
        return fl_scope_return(&s, fl_cast(fl_logsumexp(fl_cast(x, FL_F32), axes), x->dtype));
    fl_axes keep = axes;
    keep.keepdim = true;
    fl_tensor *m = fl_stable_max(x, axes);
    fl_tensor *y = fl_add(fl_log(fl_sum(fl_exp(fl_sub(x, m)), keep)), m);
    uint32_t mask;
    int64_t count;
    if (y && !axes.keepdim && fl_axes_mask("fl_logsumexp", x, axes, &mask))
        y = fl_reshape(y, fl__reduced_shape(x, mask, false, &count));
    return fl_scope_return(&s, y);
}

static fl_tensor *fl__scan_op(fl_op op, const char *fn, fl_tensor *x, int axis) {
    x = fl__reduce_operand(fn, x, FL_CLASS_CMP);
    if (x && !fl_dtype_is_float(x->dtype)) x = fl_cast(x, FL_I64);
    if (!x || (axis = fl_axis_of(fn, x, axis)) < 0) return NULL;
    fl_axis_args a = {axis};
    return fl_run_to(op, fl_out_like(x, x->dtype), x, NULL, &a);
}
fl_tensor *fl_cumsum(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumsum, "fl_cumsum", x, axis);
}
fl_tensor *fl_cumprod(fl_tensor *x, int axis) {
    return fl__scan_op(FL_OP_cumprod, "fl_cumprod", x, axis);
}

/* t, or what the blocks of t hold. */
static fl_tensor *fl__unpacked(fl_tensor *t) {
    return t && t->dtype >= FL_DTYPE_COUNT ? fl_cast(t, FL_F32) : t;
}

/* >>order -------------------------------------------------------------------------------------- */

/* The first `keep` of x in order along axis; `fn` has checked that there are as many. */
static fl_tensor *fl__sorted(const char *fn, fl_tensor *x, int axis, bool descending, int64_t keep,
                             fl_tensor **index) {
    if (fl_compute_dtype(FL_CLASS_ANY, x->dtype) == FL_DTYPE_NONE)
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    fl_sort_args a = {axis, descending};
    fl_call c = {.op = FL_OP_sort, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    fl_shape shape = fl_shape_of(x);
    shape.dim[axis] = keep;
    c.out[0] = fl_call_out(x->family, shape, x->dtype);
    c.out[1] = c.out[0] ? fl_call_out(x->family, shape, FL_I64) : NULL;
    fl_tensor *y = c.out[1] ? fl_run_result(&c) : fl_raise();
    if (y && index) *index = c.out[1];
    return y;
}

fl_tensor *fl_sort(fl_tensor *x, int axis, bool descending, fl_tensor **index) {
    if (fl_absent("fl_sort", x) || (axis = fl_axis_of("fl_sort", x, axis)) < 0) return NULL;
    return fl__sorted("fl_sort", x, axis, descending, x->shape[axis], index);
}

fl_tensor *fl_argsort(fl_tensor *x, int axis, bool descending) {
    fl_tensor *index;
    return fl_sort(x, axis, descending, &index) ? index : NULL;
}

fl_tensor *fl_topk(fl_tensor *x, int64_t k, int axis, bool smallest, fl_tensor **index) {
    if (fl_absent("fl_topk", x) || (axis = fl_axis_of("fl_topk", x, axis)) < 0) return NULL;
    if (k < 0 || k > x->shape[axis])
        return fl_bad("fl_topk: %lld of axis %d of shape %s", (long long)k, axis,
                       FL_SHAPE_TEXT(x));
    return fl__sorted("fl_topk", x, axis, !smallest, k, index);
}

fl_tensor *fl_nonzero(fl_tensor *x) {
    if (fl_absent("fl_nonzero", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *truth = fl_cast(x, FL_B8), *y = NULL;
    fl_tensor *count = truth ? fl_sum(truth, FL_ALL_AXES) : NULL;
    if (count) y = fl_call_out(truth->family, FL_SHAPE(fl_item_int(count), truth->ndim), FL_I64);
    fl_call c = {.op = FL_OP_nonzero, .n_out = 1, .n_in = 1, .out = {y}, .in = {truth}};
    return fl_scope_return(&s, fl_error() ? NULL : y ? fl_run_result(&c) : fl_raise());
}

/* >>indexing ----------------------------------------------------------------------------------- */

/* index fits x: i64, as many dims, none larger besides axis. */
static bool fl__index_fits(const char *fn, const fl_tensor *x, int axis, const fl_tensor *index) {
    if (index->dtype != FL_I64)
        return fl_refuse("%s: the index is %s, not i64", fn, fl_dtype_name(index->dtype));
    bool ok = index->ndim == x->ndim;
    for (int i = 0; ok && i < x->ndim; i++) ok = i == axis || index->shape[i] <= x->shape[i];
    if (!ok)
        fl_bad("%s: index of shape %s for shape %s, axis %d", fn, FL_SHAPE_TEXT(index),
                FL_SHAPE_TEXT(x), axis);
    return ok;
}

/* x cut to index's size in the dims besides axis. */
static fl_tensor *fl__cut_to(fl_tensor *x, int axis, const fl_tensor *index) {
    for (int i = 0; x && i < index->ndim; i++)
        if (i != axis && index->shape[i] != x->shape[i]) x = fl_slice(x, i, 0, index->shape[i], 1);
    return x;
}

fl_tensor *fl_gather(fl_tensor *x, int axis, fl_tensor *index) {
    if (fl_absent("fl_gather", x) || fl_absent("fl_gather", index) || !(index = fl_stored(index)) ||
        (axis = fl_axis_of("fl_gather", x, axis)) < 0 ||
        !fl__index_fits("fl_gather", x, axis, index) || !fl_same_family("gather", x, index) ||
        !(x = fl__cut_to(x, axis, index)))
        return NULL;
    fl_axis_args a = {axis};
    fl_tensor *y = fl_call_out(x->family, fl_shape_of(index), x->dtype);
    return fl_run_to(FL_OP_gather, y, x, index, &a);
}

static fl_tensor *fl__scatter_op(fl_op op, const char *fn, fl_tensor *x, int axis, fl_tensor *index,
                                 fl_tensor *src) {
    if (fl_absent(fn, x) || fl_absent(fn, index) || fl_absent(fn, src) || !(x = fl_stored(x)) ||
        !(index = fl_stored(index)) || !(src = fl_stored(src)) ||
        (axis = fl_axis_of(fn, x, axis)) < 0 || !fl__index_fits(fn, x, axis, index) ||
        !fl_same_family(fn + 3, x, index) || !fl_same_family(fn + 3, x, src))
        return NULL;
    if (!fl_same_shape(index, src))
        return fl_bad("%s: index %s and src %s differ in shape", fn, FL_SHAPE_TEXT(index),
                       FL_SHAPE_TEXT(src));
    if (src->dtype != x->dtype)
        return fl_bad("%s: x is %s, src %s", fn, fl_dtype_name(x->dtype),
                       fl_dtype_name(src->dtype));
    if (op == FL_OP_scatter_add && !fl_compute_dtype(FL_CLASS_NUM, x->dtype))
        return fl_bad("%s: %s is not supported", fn, fl_dtype_name(x->dtype));
    fl_axis_args a = {axis};
    fl_call c = {.op = op, .n_out = 1, .n_in = 3, .in = {x, index, src}, .args = &a};
    c.out[0] = fl_out_like(x, x->dtype);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}
fl_tensor *fl_scatter_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src) {
    return fl__scatter_op(FL_OP_scatter_add, "fl_scatter_add", x, axis, index, src);
}
fl_tensor *fl_scatter(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src) {
    return fl__scatter_op(FL_OP_scatter, "fl_scatter", x, axis, index, src);
}

fl_tensor *fl_index_select(fl_tensor *x, int axis, fl_tensor *index) {
    if (fl_absent("fl_index_select", x) || fl_absent("fl_index_select", index) ||
        (axis = fl_axis_of("fl_index_select", x, axis)) < 0)
        return NULL;
    if (index->ndim != 1 || index->dtype != FL_I64)
        return fl_bad("fl_index_select: the index is %s of shape %s, not i64 of one dim",
                       fl_dtype_name(index->dtype), FL_SHAPE_TEXT(index));
    fl_scope s = fl_scope_begin();
    fl_shape column = {x->ndim, {0}}, full = fl_shape_of(x);
    for (int i = 0; i < x->ndim; i++) column.dim[i] = i == axis ? index->shape[0] : 1;
    full.dim[axis] = index->shape[0];
    return fl_scope_return(&s, fl_gather(x, axis, fl_expand(fl_reshape(index, column), full)));
}

fl_tensor *fl_one_hot(fl_tensor *index, int64_t classes) {
    if (fl_absent("fl_one_hot", index)) return NULL;
    if (index->dtype != FL_I64)
        return fl_bad("fl_one_hot: the index is %s, not i64", fl_dtype_name(index->dtype));
    if (classes < 0 || classes > (int64_t)1 << 53)
        return fl_bad("fl_one_hot: %lld classes", (long long)classes);
    fl_scope s = fl_scope_begin();
    fl_tensor *eq = fl_eq(fl_unsqueeze(index, -1), fl_arange(0, (double)classes, 1, FL_I64));
    return fl_scope_return(&s, fl_cast(eq, FL_F32));
}

/* >>product ------------------------------------------------------------------------------------ */

static int fl__matmul_precision = FL_F32;

fl_dtype fl_matmul_precision(void) {
    return (fl_dtype)__atomic_load_n(&fl__matmul_precision, __ATOMIC_RELAXED);
}

bool fl_set_matmul_precision(fl_dtype d) {
    if (d != FL_F32 && d != FL_BF16)
        return fl_refuse("fl_set_matmul_precision: %s: f32 or bf16", fl_dtype_name(d));
    __atomic_store_n(&fl__matmul_precision, (int)d, __ATOMIC_RELAXED);
    return true;
}

/* Expands two matrices or batches of them over the batch dims of both; *shape: of their product. */
static bool fl__stretch_batches(fl_tensor **a, fl_tensor **b, fl_shape *shape) {
    fl_tensor batch_a = **a, batch_b = **b; /* shapes only */
    batch_a.ndim -= 2;
    batch_b.ndim -= 2;
    *shape = fl_shape_of(&batch_a);
    if (!fl_broadcast_shape(shape, &batch_b))
        return fl_refuse("fl_matmul: shapes %s and %s: batch dims do not broadcast",
                       FL_SHAPE_TEXT(*a), FL_SHAPE_TEXT(*b));
    int n = shape->ndim;
    shape->ndim += 2;
    fl_shape sa = *shape, sb = *shape;
    for (int i = 0; i < 2; i++) {
        sa.dim[n + i] = (*a)->shape[(*a)->ndim - 2 + i];
        sb.dim[n + i] = (*b)->shape[(*b)->ndim - 2 + i];
    }
    shape->dim[n] = sa.dim[n];
    shape->dim[n + 1] = sb.dim[n + 1];
    return (*a = fl_expand(*a, sa)) && (*b = fl_expand(*b, sb));
}

fl_tensor *fl_matmul(fl_tensor *a, fl_tensor *b) {
    if (fl_absent("fl_matmul", a) || fl_absent("fl_matmul", b) || !fl_same_family("matmul", a, b) ||
        !(a = fl__unpacked(a)) || !(b = fl__unpacked(b)))
        return NULL;
    if (a->ndim < 1 || b->ndim < 1)
        return fl_bad("fl_matmul: shapes %s and %s: both need a dim", FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    fl_dtype d = fl_compute_dtype(FL_CLASS_NUM, fl_result_type(2, (fl_tensor *[]){a, b}));
    if (d == FL_DTYPE_NONE)
        return fl_bad("fl_matmul: %s and %s are not supported", fl_dtype_name(a->dtype),
                       fl_dtype_name(b->dtype));
    bool row = a->ndim == 1, column = b->ndim == 1;
    if (a->shape[a->ndim - 1] != b->shape[column ? 0 : b->ndim - 2])
        return fl_bad("fl_matmul: shapes %s and %s: inner dims differ", FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    if (!(a = fl_operand(a, d)) || !(b = fl_operand(b, d))) return NULL;
    if (row && !(a = fl_unsqueeze(a, 0))) return NULL;
    if (column && !(b = fl_unsqueeze(b, 1))) return NULL;
    fl_shape shape = FL_SHAPE(a->shape[0], b->shape[b->ndim - 1]);
    if ((a->ndim > 2 || b->ndim > 2) && !fl__stretch_batches(&a, &b, &shape)) return NULL;
    fl_tensor *y = fl_run_to(FL_OP_matmul, fl_call_out(a->family, shape, d), a, b, NULL);
    if (y && column) y = fl_squeeze(y, -1);
    if (y && row) y = fl_squeeze(y, column ? -1 : -2);
    return y;
}

/* >>options ------------------------------------------------------------------------------------ */

double fl_option(double value, double otherwise) {
    return value != 0 ? value : signbit(value) ? 0 : otherwise;
}
int64_t fl_option_int(int64_t value, int64_t otherwise) {
    return value == FL_I0 ? 0 : value ? value : otherwise;
}

/* >>gradients ---------------------------------------------------------------------------------- */

/* The fused gradient may run: the family has the slot and nobody replaced an op of the formula. */
static bool fl__grad_by_slot(const fl_tensor *dy, fl_op slot, fl_op op) {
    const fl_backend *be = fl_family_backend(dy->family);
    return (be->any || be->op[slot]) && !be->no_grad[op];
}

/* An operand of a fused gradient: a number, or a float like dy. */
static bool fl__grad_operand(const char *fn, const fl_tensor *t, const fl_tensor *dy) {
    if (fl_absent(fn, t) || fl_absent(fn, dy)) return false;
    if (!dy->weak && (t->weak || (t->dtype == dy->dtype && t->family == dy->family &&
                                  fl_dtype_is_float(dy->dtype) && fl_same_shape(t, dy))))
        return true;
    return fl_refuse("%s: operand %s %s and dy %s %s differ, or are no floats", fn,
                   fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(dy->dtype),
                   FL_SHAPE_TEXT(dy));
}

FL_PRIVATE fl_tensor *fl__grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy,
                                fl_tensor *out) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 1)
        return fl_bad("fl_grad1: op %d has no formula of x", (int)op);
    if (!fl__grad_operand("fl_grad1", x, dy) || !fl__grad_operand("fl_grad1", y, dy)) return NULL;
    if (!fl__grad_by_slot(dy, FL_OP_grad1, op)) return NULL;
    fl_grad_args a = {op};
    fl_call c = {.op = FL_OP_grad1, .n_out = 1, .n_in = 3, .in = {x, y, dy}, .args = &a};
    c.out[0] = out ? out : fl_lay_out_as(fl_out_like(dy, dy->dtype), dy);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}

fl_tensor *fl_grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy) {
    return fl__grad1(op, x, y, dy, NULL);
}

bool fl_grad2(fl_op op, int want, fl_tensor *a, fl_tensor *b, fl_tensor *y, fl_tensor *dy,
              fl_tensor **da, fl_tensor **db) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 2)
        return fl_refuse("fl_grad2: op %d has no formula of a and b", (int)op);
    if (!fl__grad_operand("fl_grad2", a, dy) || !fl__grad_operand("fl_grad2", b, dy) ||
        !fl__grad_operand("fl_grad2", y, dy))
        return false;
    if (!fl__grad_by_slot(dy, FL_OP_grad2, op)) return false;
    fl_grad_args args = {op};
    fl_call c = {.op = FL_OP_grad2, .n_out = 2, .n_in = 4, .in = {a, b, y, dy}, .args = &args};
    for (int i = 0; i < 2; i++)
        if (want >> i & 1 && !(c.out[i] = fl_lay_out_as(fl_out_like(dy, dy->dtype), dy)))
            return fl_raise() != NULL;
    if (!fl_run(&c)) return fl_raise() != NULL;
    if (want & 1) *da = c.out[0];
    if (want & 2) *db = c.out[1];
    return true;
}

/* >>optimizers --------------------------------------------------------------------------------- */

/* p, g and the states are stored floats of one shape, dtype and family, and may be written. */
static bool fl__step_operands(const char *fn, fl_tensor *g, int n, fl_tensor *const *state) {
    if (fl_absent(fn, g)) return false;
    for (int i = 0; i < n; i++) {
        if (fl_absent(fn, state[i])) return false;
        if (!fl_same_shape(g, state[i]) || g->dtype != state[i]->dtype ||
            g->family != state[i]->family || !fl_dtype_is_float(g->dtype))
            return fl_refuse("%s: gradient %s %s and operand %d %s %s do not belong together", fn,
                           fl_dtype_name(g->dtype), FL_SHAPE_TEXT(g), i,
                           fl_dtype_name(state[i]->dtype), FL_SHAPE_TEXT(state[i]));
        if (!fl_writable(fn, state[i])) return false;
    }
    return true;
}

/* a * x + b * y. */
static fl_tensor *fl__axpby(double a, fl_tensor *x, double b, fl_tensor *y) {
    return fl_add(fl_mul(x, fl_num(a)), fl_mul(y, fl_num(b)));
}

static bool fl__compose_sgd(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a) {
    fl_scope s = fl_scope_begin();
    if (a->weight_decay != 0) g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    fl_tensor *d = g;
    bool ok = true;
    if (m) {
        ok = fl_assign(m, fl__axpby(a->momentum, m, a->first ? 1 : 1 - a->dampening, g));
        d = a->nesterov ? fl_add(g, fl_mul(m, fl_num(a->momentum))) : m;
    }
    ok = ok && fl_assign(p, fl_sub(p, fl_mul(d, fl_num(a->lr))));
    fl_scope_end(&s);
    return ok;
}

bool fl_sgd_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a) {
    if (fl_absent("fl_sgd_step", a) ||
        !fl__step_operands("fl_sgd_step", g, m ? 2 : 1, (fl_tensor *[]){p, m}))
        return false;
    if (!fl__by_slot(p, FL_OP_sgd_step)) return fl__compose_sgd(p, g, m, a);
    fl_call c = {.op = FL_OP_sgd_step,
                 .n_out = m ? 2 : 1,
                 .n_in = m ? 3 : 2,
                 .out = {p, m},
                 .in = {g, p, m},
                 .args = a};
    return fl_run(&c) || fl_raise();
}

static bool fl__compose_adam(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v,
                             const fl_adam_args *a) {
    fl_scope s = fl_scope_begin();
    fl_tensor *q = p;
    if (a->weight_decay != 0 && a->decoupled)
        q = fl_mul(p, fl_num(1 - a->lr * a->weight_decay));
    else if (a->weight_decay != 0)
        g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    bool ok = fl_assign(m, fl__axpby(a->beta1, m, 1 - a->beta1, g)) &&
              fl_assign(v, fl__axpby(a->beta2, v, 1 - a->beta2, fl_mul(g, g)));
    fl_tensor *scale = fl_add(fl_mul(fl_sqrt(v), fl_num(1 / sqrt(a->bias2))), fl_num(a->eps));
    ok = ok && fl_assign(p, fl_sub(q, fl_mul(fl_div(m, scale), fl_num(a->lr / a->bias1))));
    fl_scope_end(&s);
    return ok;
}

bool fl_adam_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v, const fl_adam_args *a) {
    if (fl_absent("fl_adam_step", a) ||
        !fl__step_operands("fl_adam_step", g, 3, (fl_tensor *[]){p, m, v}))
        return false;
    if (!fl__by_slot(p, FL_OP_adam_step)) return fl__compose_adam(p, g, m, v, a);
    fl_call c = {.op = FL_OP_adam_step,
                 .n_out = 3,
                 .n_in = 4,
                 .out = {p, m, v},
                 .in = {g, p, m, v},
                 .args = a};
    return fl_run(&c) || fl_raise();
}

/* >>composed ----------------------------------------------------------------------------------- */

/* The transform as a matrix [2 n, 2 n] of re and im: [[cos, sin], [-sin, cos]] of the angles. */
static fl_tensor *fl__fft_matrix(int64_t n, bool inverse, const fl_tensor *like) {
    fl_tensor *k = fl_arange(0, (double)n, 1, FL_I64);
    fl_tensor *jk = fl_remainder(fl_mul(fl_unsqueeze(k, 1), k), fl_int(n));
    double angle = (inverse ? 6.283185307179586 : -6.283185307179586) / (double)n;
    fl_tensor *a = fl_mul(fl_cast(jk, FL_F64), fl_num(angle)), *c = fl_cos(a), *s = fl_sin(a);
    fl_tensor *re[] = {c, s}, *im[] = {fl_neg(s), c};
    fl_tensor *rows[] = {fl_stack(re, 2, -1), fl_stack(im, 2, -1)};
    fl_tensor *w = fl_reshape(fl_stack(rows, 2, 1), FL_SHAPE(2 * n, 2 * n));
    return w ? fl_to(fl_cast(w, like->dtype), fl_family_name(like)) : NULL;
}

static fl_tensor *fl__compose_fft(fl_tensor *x, const fl_fft_args *a) {
    int last = x->ndim - 2;
    fl_tensor *lines = fl_contiguous(fl_transpose(x, a->axis, last));
    if (!lines) return NULL;
    fl_shape pairs = fl_shape_of(lines), flat = pairs;
    int64_t n = pairs.dim[last];
    flat.dim[--flat.ndim - 1] = 2 * n;
    fl_tensor *y = fl_matmul(fl_reshape(lines, flat), fl__fft_matrix(n, a->inverse, x));
    return fl_transpose(fl_reshape(y, pairs), a->axis, last);
}

/* The value of output i of an OPT op's record by its composition: what the public function does
   without the slot. */
static fl_tensor *fl__composed_value(const fl_call *c, int i) {
    fl_tensor *const *in = c->in;
    if (fl_op_get_info(c->op)->arity) return fl__formula(c->op, in[0], in[1]);
    switch (c->op) {
    case FL_OP_fft:
        return fl__compose_fft(in[0], c->args);
    case FL_OP_grad1:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op, FL_PROGRAM_DA), in);
    case FL_OP_grad2:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op,
                                            i ? FL_PROGRAM_DB : FL_PROGRAM_DA), in);
    default:
        return fl_bad("fl_%s: it has no composition", fl_op_get_info(c->op)->name);
    }
}

/* y becomes v, which may be a number or broadcast. */
static bool fl__composed_out(fl_tensor *y, fl_tensor *v) {
    if (v && v->weak) { /* a formula that is a constant */
        fl_fill_args a = {v->f64, v->i64};
        fl_call fill = {.op = FL_OP_fill, .n_out = 1, .out = {y}, .args = &a};
        return fl_run(&fill);
    }
    v = v ? fl_expand(v, fl_shape_of(y)) : NULL;
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {v}};
    return v && fl_run(&copy);
}

/* Compositions of the ops that headers above this one have run so far. */
static fl_compose_fn fl__compositions[FL_TABLE_OPS];

FL_PRIVATE bool fl__run_fused(const fl_call *c, fl_compose_fn compose) {
    __atomic_store_n(&fl__compositions[c->op], compose, __ATOMIC_RELAXED);
    return fl_run(c) || fl_raise();
}

/* Runs the record of an OPT op that its backend has no slot for. */
bool fl_run_composed(const fl_call *c) {
    if (c->op == FL_OP_sgd_step)
        return fl__compose_sgd(c->out[0], c->in[0], c->n_out > 1 ? c->out[1] : NULL, c->args);
    if (c->op == FL_OP_adam_step)
        return fl__compose_adam(c->out[0], c->in[0], c->out[1], c->out[2], c->args);
    fl_compose_fn above = fl_op_get_info(c->op)->compose;
    if (!above) above = __atomic_load_n(&fl__compositions[c->op], __ATOMIC_RELAXED);
    fl_scope s = fl_scope_begin();
    fl_tensor *value[4] = {NULL};
    bool ok = !above || above(c, value);
    for (int i = 0; ok && i < c->n_out; i++) {
        if (!c->out[i]) continue;
        ok = fl__composed_out(c->out[i], above ? value[i] : fl__composed_value(c, i));
    }
    fl_scope_end(&s);
    return ok;
}

#endif /* FL_TENSOR_OPS_IMPL */
#endif

/* MIT licence: see LICENSE. */
