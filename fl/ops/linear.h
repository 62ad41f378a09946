/* fl/ops/linear.h - matmul, linear layers, dot, outer, kron, cross, tensordot, einsum, cdist

   Sums of products run as matmul, or as linear.

   Records; operands and outputs in brackets are optional:
     matmul         (op table) a [..., m, k], b [..., k, n] -> [..., m, n]
     linear         (fl_linear_args) x [n, in], w [out, in], [b [out]], floats of one dtype ->
                    y [n, out] = act(z), [z = x w^T + b]
     linear_grad    dz [n, out], x [n, in], w [out, in] -> [dx = dz w], [dw = dz^T x], [db [out], the sum of
     dz's
                    rows]; x or w may be a number if no output needs it
     linear_packed  x [n, in] f32, w [out, in] f16 or bf16, or [out, in / block] of a registered dtype -> x
     w^T
                    [n, out] f32; unlike the composition, a kernel need not convert all of w to f32 */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_LINEAR_H
#define FL_OPS_LINEAR_H
#include "../records/linear.h"
#include "../tensor/op_table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* torch.matmul: [..., m, k] x [..., k, n] -> [..., m, n]; batch dims broadcast, dtypes promote. A 1-d operand
   is a row (a) or a column (b), whose dim is removed from the result. Registered block dtypes are unpacked to
   f32. b8 is an error. */
FL_API fl_tensor *fl_matmul(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_matmul(fl_var *a, fl_var *b);

/* sum of a b for two vectors of one size -> a scalar */
FL_API fl_tensor *fl_dot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_dot(fl_var *a, fl_var *b);
/* Outer product of two vectors: [m], [n] -> [m, n], a[i] b[j] */
FL_API fl_tensor *fl_outer(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_outer(fl_var *a, fl_var *b);
/* Kronecker product: a tensor of blocks a[i, j, ...] b, of at most 4 dims */
FL_API fl_tensor *fl_kron(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_kron(fl_var *a, fl_var *b);
/* Cross product along axis, which has size 3 in both; the other dims broadcast. */
FL_API fl_tensor *fl_cross(fl_tensor *a, fl_tensor *b, int axis);
FL_API fl_var *fv_cross(fl_var *a, fl_var *b, int axis);
/* torch.tensordot: sums over n axes of a paired with n axes of b, of equal sizes or 1 (which broadcasts). The
   result has the other dims of a, then those of b. axes NULL: the last n of a and the first n of b. */
FL_API fl_tensor *fl_tensordot(fl_tensor *a, fl_tensor *b, int n, const int *axes_a,
                               const int *axes_b);
FL_API fl_var *fv_tensordot(fl_var *a, fl_var *b, int n, const int *axes_a, const int *axes_b);
/* torch.einsum of 1 to 8 operands: "ij,jk->ik". A letter names a dim; twice in one operand it takes the
   diagonal; "..." stands for dims that broadcast. Without "->" the result has the letters that occur once, in
   alphabetical order (capitals first). Letters missing from the result are summed: those of one operand by
   fl_sum, the others by matmul, from left to right. */
FL_API fl_tensor *fl_einsum(const char *equation, fl_tensor *const *xs, int n);
FL_API fl_var *fv_einsum(const char *equation, fl_var *const *xs, int n);
/* The sum of the diagonal of a matrix [n, m] -> a scalar */
FL_API fl_tensor *fl_trace(fl_tensor *x);
FL_API fl_var *fv_trace(fl_var *x);
/* beta c + alpha a b, with a b by fl_matmul and c broadcast; beta 0: c is not read. */
FL_API fl_tensor *fl_addmm(fl_tensor *c, fl_tensor *a, fl_tensor *b, double beta, double alpha);
FL_API fl_var *fv_addmm(fl_var *c, fl_var *a, fl_var *b, double beta, double alpha);
/* Distances between rows: [..., m, k], [..., n, k] -> [..., m, n], the p-norm of a[i] - b[j], p in [0,
   inf] */
FL_API fl_tensor *fl_cdist(fl_tensor *a, fl_tensor *b, double p);
FL_API fl_var *fv_cdist(fl_var *a, fl_var *b, double p);
/* x w^T + bias: x [..., in], w [out, in], or [out, in / 32] of a block dtype such as fl_q8, bias [out] or
   NULL -> [..., out]. Dtypes promote. */
FL_API fl_tensor *fl_linear(fl_tensor *x, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_linear(fl_var *x, fl_var *w, fl_var *bias);
/* act(fl_linear(x, w, bias)) fused: act is FL_OP_relu, gelu, gelu_tanh, silu, sigmoid, tanh or FL_OP_NONE. */
FL_API fl_tensor *fl_linear_act(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_op act);
FL_API fl_var *fv_linear_act(fl_var *x, fl_var *w, fl_var *bias, fl_op act);
/* True if fl_linear_act takes act. */
FL_API bool fl_linear_has_act(fl_op act);
/* The act of fl_linear_act whose function is fn, such as fv_relu; FL_OP_NONE if none. */
FL_API fl_op fv_linear_act_of(fl_var *(*fn)(fl_var *x));
/* sum over i, j of a[..., i] w[o, i, j] b[..., j] + bias[o]: w [out, i, j], bias [out] or NULL -> [...,
   out] */
FL_API fl_tensor *fl_bilinear(fl_tensor *a, fl_tensor *b, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_bilinear(fl_var *a, fl_var *b, fl_var *w, fl_var *bias);

FL_PRIVATE void fl__register_linear(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_LINEAR_H */

#if defined(FL_IMPL_ONLY_OPS_LINEAR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_LINEAR_IMPL
#define FL_OPS_LINEAR_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "autocast.h"
#include "copy.h"
#include "elementwise.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>

/* Broadcasts the batch dims of a and b; *shape: the shape of their product. */
static bool fl__stretch_batches(fl_tensor **a, fl_tensor **b, fl_shape *shape) {
    fl_tensor batch_a = **a, batch_b = **b; /* shapes only */
    batch_a.ndim -= 2;
    batch_b.ndim -= 2;
    *shape = fl_shape_of(&batch_a);
    if (!fl_broadcast_shape(shape, &batch_b))
        return fl_err_false("fl_matmul: shapes %s and %s: batch dims do not broadcast",
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
    if (fl_is_null_arg("fl_matmul", a) || fl_is_null_arg("fl_matmul", b) || !fl_same_backend("matmul", a,
                                                                                             b) ||
        (a->dtype >= FL_DTYPE_COUNT && !(a = fl_cast(a, FL_F32))) ||
        (b->dtype >= FL_DTYPE_COUNT && !(b = fl_cast(b, FL_F32))))
        return NULL;
    if (a->ndim < 1 || b->ndim < 1)
        return fl_err_null("fl_matmul: operands need at least one dim: got shapes %s and %s",
                           FL_SHAPE_TEXT(a), FL_SHAPE_TEXT(b));
    fl_dtype d = fl_compute_dtype(FL_CLASS_NUM, fl_result_type(2, (fl_tensor *[]){a, b}));
    if (d == FL_DTYPE_NONE)
        return fl_err_null("fl_matmul: %s and %s are not supported, expected floats or integers",
                           fl_dtype_name(a->dtype), fl_dtype_name(b->dtype));
    bool row = a->ndim == 1, column = b->ndim == 1;
    if (a->shape[a->ndim - 1] != b->shape[column ? 0 : b->ndim - 2])
        return fl_err_null("fl_matmul: shapes %s and %s: inner dims differ", FL_SHAPE_TEXT(a),
                           FL_SHAPE_TEXT(b));
    if (!(a = fl_operand(a, d)) || !(b = fl_operand(b, d))) return NULL;
    if (row && !(a = fl_unsqueeze(a, 0))) return NULL;
    if (column && !(b = fl_unsqueeze(b, 1))) return NULL;
    fl_shape shape = FL_SHAPE(a->shape[0], b->shape[b->ndim - 1]);
    if ((a->ndim > 2 || b->ndim > 2) && !fl__stretch_batches(&a, &b, &shape)) return NULL;
    fl_tensor *y = fl_call_into(FL_OP_matmul, fl_out_on(a->backend, shape, d), a, b, NULL);
    if (y && column) y = fl_squeeze(y, -1);
    if (y && row) y = fl_squeeze(y, column ? -1 : -2);
    return y;
}

/* [..., m, k] -> [(... m), k]: the gradient of a shared matrix is one product. */
static fl_var *fv__as_rows(fl_var *x, int64_t columns) {
    int64_t rows = 1;
    for (int d = 0; x && d + 1 < x->value->ndim; d++) rows *= x->value->shape[d];
    return fv_reshape(x, FL_SHAPE(rows, columns));
}

/* True if t is a transposed matrix, as a linear layer's weight is. */
static bool fv__is_transposed(const fl_tensor *t) {
    int d = t->ndim - 2;
    return d == 0 && t->shape[d] > 1 && t->stride[d] == 1 && t->stride[d + 1] >= t->shape[d];
}

/* da = dy b^T, db = a^T dy; or db = (dy^T a)^T if b is a transposed matrix (args), so that db has b's
   strides. The removed dim of a row or column operand is inserted first. */
static void fv__matmul_back(fl_node *n, fl_var *dy) {
    fl_shape sa = fv_in_shape(n, 0), sb = fv_in_shape(n, 1);
    fl_var *a = fv_saved(n, 0), *b = fv_saved(n, 1);
    int ndim = dy->value->ndim;
    if (sb.ndim == 1) dy = fv_unsqueeze(dy, ndim++);
    if (sa.ndim == 1) dy = fv_unsqueeze(dy, ndim - 1);
    if (fv_needs(n, 0)) {
        if (sb.ndim == 1) b = fv_unsqueeze(b, 1);
        fv_add_grad(n, 0, fv_matmul(dy, fv_transpose(b, -1, -2)));
    }
    if (!fv_needs(n, 1)) return;
    if (sa.ndim == 1) a = fv_unsqueeze(a, 0);
    if (sa.ndim > 2 && sb.ndim == 2) {
        a = fv__as_rows(a, sb.dim[0]);
        dy = fv__as_rows(dy, sb.dim[1]);
    }
    if (*(const bool *)fv_args(n)) {
        fv_add_grad(n, 1, fv_transpose(fv_matmul(fv_transpose(dy, -1, -2), a), -1, -2));
        return;
    }
    fl_var *db = fv_matmul(fv_transpose(a, -1, -2), dy);
    fv_add_grad(n, 1, sb.ndim == 1 ? fv_squeeze(db, -1) : db);
}

fl_var *fv_matmul(fl_var *a, fl_var *b) {
    fl_var *in[] = {a, b};
    if (!fv_autocast(FL_OP_matmul, in, 2)) return NULL;
    a = in[0], b = in[1];
    fl_tensor *y = fl_matmul(fv_value(a), fv_value(b));
    if (!y) return NULL;
    const bool transposed = fv__is_transposed(b->value);
    fl_var *a_read = b->requires_grad ? a : NULL, *b_read = a->requires_grad ? b : NULL;
    return fv_record_args("matmul", y, fv__matmul_back, FV_IN(a, b), FV_SAVE(a_read, b_read), &transposed,
                          sizeof transposed);
}

/* >>linear layers: one record for the product, the bias and the activation */

FL_DATA_DEFINED fl_op fl_op_linear, fl_op_linear_grad, fl_op_linear_packed;

/* The activations that fl_linear_act takes. */
#define FL__ACTIVATIONS(X) X(relu) X(gelu) X(gelu_tanh) X(silu) X(sigmoid) X(tanh)

bool fl_linear_has_act(fl_op act) {
#define FL__IS(op) || act == FL_OP_##op
    return act == FL_OP_NONE FL__ACTIVATIONS(FL__IS);
#undef FL__IS
}

fl_op fv_linear_act_of(fl_var *(*fn)(fl_var *x)) {
#define FV__IS(op) if (fn == fv_##op) return FL_OP_##op;
    FL__ACTIVATIONS(FV__IS)
#undef FV__IS
    return FL_OP_NONE;
}

/* Runs the record for y, and for z if z is not NULL. in: x, w, bias (may be NULL). */
static bool fl__run_linear(fl_tensor *const *in, fl_op act, fl_tensor **y, fl_tensor **z) {
    fl_linear_args a = {act};
    fl_call c;
    fl_call_begin(&c, fl_op_linear, z ? 2 : 1, in[2] ? 3 : 2, &a);
    fl_shape shape = FL_SHAPE(in[0]->shape[0], in[1]->shape[0]);
    c.in[0] = in[0], c.in[1] = in[1], c.in[2] = in[2];
    c.out[0] = *y = fl_out_on(in[0]->backend, shape, in[0]->dtype);
    if (z) c.out[1] = *z = fl_out_on(in[0]->backend, shape, in[0]->dtype);
    return (*y && (!z || *z) && fl_call_run(&c)) || fl_raise();
}

/* True if the operands suit the record: tensors on one backend, matching shapes, bias [out] or none. Others
   run as several ops, which report errors. */
static bool fl__fits_linear(int n, fl_tensor *const *t) {
    fl_tensor *x = t[0], *w = t[1], *b = n > 2 ? t[2] : NULL;
    bool fits = !x->weak && !w->weak && x->ndim > 0 && x->shape[x->ndim - 1] == w->shape[1] &&
                x->backend == w->backend;
    return fits && (!b || (!b->weak && b->ndim == 1 && b->shape[0] == w->shape[0] &&
                           b->backend == x->backend));
}

static fl_tensor *fl__linear_node(fl_tensor *const *in, fl_op act) {
    fl_tensor *y;
    return fl__run_linear(in, act, &y, NULL) ? y : NULL;
}

static void fv__run_linear_grad(fl_node *n, fl_tensor *dz, fl_tensor *x, fl_tensor *w) {
    fl_call c;
    fl_call_begin(&c, fl_op_linear_grad, 3, 3, NULL);
    c.in[0] = dz, c.in[1] = x ? x : fl_num(0), c.in[2] = w ? w : fl_num(0);
    for (int i = 0; i < 3; i++) {
        c.out[i] = fv_needs(n, i) ? fl_out_on(dz->backend, fv_in_shape(n, i), dz->dtype) : NULL;
        if (fv_needs(n, i) && !c.out[i]) return;
    }
    if (fl_error() || !fl_call_run(&c)) return;
    for (int i = 0; i < 3; i++)
        if (c.out[i]) fv_add_grad(n, i, fv_const(c.out[i]));
}

/* dx = dz w, dw = dz^T x, db = the sum of dz's rows */
static void fv__linear_back(fl_node *n, fl_var *dz) {
    fl_var *x = fv_saved(n, 0), *w = fv_saved(n, 1);
    if (!fl_grad_enabled()) {
        fv__run_linear_grad(n, dz->value, fv_value(x), fv_value(w));
        return;
    }
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_matmul(dz, w));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_matmul(fv_transpose(dz, 0, 1), x));
    if (fv_needs(n, 2)) fv_add_grad(n, 2, fv_sum(dz, FL_AXES(0)));
}

/* One record computes two nodes: z, and y = act(z). z is written only if act's gradient reads it; else y
   stands in for z. */
static fl_var *fv__linear_node(fl_var *const *in, fl_op act) {
    fl_var *b = in[2];
    fl_tensor *t[] = {in[0]->value, in[1]->value, b ? b->value : NULL}, *y, *z = NULL;
    bool recorded = in[0]->requires_grad || in[1]->requires_grad || (b && b->requires_grad);
    bool wants_z = recorded && act != FL_OP_NONE && fv_formula_reads_x(act);
    if (!fl__run_linear(t, act, &y, wants_z ? &z : NULL)) return NULL;
    fl_var *x = in[1]->requires_grad ? in[0] : NULL, *w = in[0]->requires_grad ? in[1] : NULL;
    fl_var *linear = fv_record_op(fl_op_linear, z ? z : y, (fv_list){b ? 3 : 2, in}, FV_SAVE(x, w),
                                  &(fl_linear_args){FL_OP_NONE});
    return !linear || act == FL_OP_NONE ? linear : fv_record_formula(act, linear, y);
}

/* True if x is f32 [..., in] and w a narrower float or a block dtype that linear_packed reads. */
static bool fl__reads_packed(const fl_tensor *x, const fl_tensor *w) {
    const fl_dtype_info *blocks = fl_dtype_registered(w->dtype);
    return (blocks || w->dtype == FL_F16 || w->dtype == FL_BF16) && !w->weak && !x->weak &&
           x->dtype == FL_F32 && x->ndim > 0 && x->backend == w->backend &&
           x->shape[x->ndim - 1] == w->shape[1] * (blocks ? blocks->block : 1);
}

/* The same for variables: w must not require a gradient, and autocast must be off. */
static bool fv__reads_packed(const fl_var *x, const fl_var *w) {
    return !w->requires_grad && !(fl_flags() & FL_AUTOCAST_FLAGS) && fl__reads_packed(x->value, w->value);
}

static fl_tensor *fl__linear_packed_node(fl_tensor *x, fl_tensor *w) {
    return fl_call_into(fl_op_linear_packed, fl_out_on(x->backend, FL_SHAPE(x->shape[0], w->shape[0]),
                                                       FL_F32),
                        x, w, NULL);
}

/* dx = dz w; w has no gradient. */
static void fv__linear_packed_back(fl_node *n, fl_var *dz) {
    fv_add_grad(n, 0, fv_matmul(dz, fv_cast(fv_saved(n, 0), FL_F32)));
}

static fl_var *fv__linear_packed_node(fl_var *x, fl_var *w) {
    return fv_record_op(fl_op_linear_packed, fl__linear_packed_node(x->value, w->value), FV_IN(x), FV_SAVE(w),
                        NULL);
}

/* >>compositions */

enum { FL__TERMS = 8 }; /* maximum number of operands of einsum */

#define FL_EXPAND_FILE "linear.inc"
#include "expand.h"

/* >>registration */

static int64_t fl__linear_macs(const fl_call *c) {
    return fl_numel(c->out[0]) * c->in[0]->shape[1];
}

/* One product for dx, one for dw. */
static int64_t fl__linear_grad_macs(const fl_call *c) {
    int64_t n = 0;
    for (int i = 0; i < 2; i++)
        if (c->out[i]) n += fl_numel(c->in[0]) * c->out[i]->shape[1];
    return n;
}

FL_PRIVATE void fl__register_linear(void) {
    FL__REGISTER(linear, .args_size = sizeof(fl_linear_args),
                 .uses = "matmul add maximum mul div neg exp erf tanh relu gelu gelu_tanh silu sigmoid",
                 .compose = fl__compose_linear, .gradient = fv__linear_back, .macs = fl__linear_macs);
    FL__REGISTER(linear_grad, .uses = "matmul sum", .compose = fl__compose_linear_grad,
                 .macs = fl__linear_grad_macs);
    FL__REGISTER(linear_packed, .uses = "copy matmul linear", .compose = fl__compose_linear_packed,
                 .gradient = fv__linear_packed_back, .macs = fl__linear_macs);
}

#endif /* FL_OPS_LINEAR_IMPL */
#endif
/* MIT licence: see LICENSE. */
