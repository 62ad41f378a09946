/* fl/ops/linear.h - products of vectors, matrices and tensors, linear layers, einsum

   What sums products goes through matmul, or through linear.

   Records: matmul (of the table) a [..., m, k], b [..., k, n] -> [..., m, n];
   linear (args: fl_linear_args) x [n, in], w [out, in], [b out] -> y [n, out] = act(z),
   [z = x w^T + b]: floats of one dtype;
   linear_grad dz [n, out], x [n, in], w [out, in] -> dx = dz w, dw = dz^T x, db [out], the sum of dz's rows,
   those that are wanted; x or w may be a number if nothing wants it;
   linear_stored x [n, in] f32, w [out, in] f16 or bf16, or [out, in / block] of a registered dtype -> x w^T
   [n, out] f32: a slot need not make all of w f32, as the composition does. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_LINEAR_H
#define FL_OPS_LINEAR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_linear_args {
    fl_op act; /* relu, gelu, gelu_tanh, silu, sigmoid, tanh; FL_OP_NONE */
} fl_linear_args;

/* [..., m, k] x [..., k, n], batch dims broadcast; 1-D operands act as row and column and
   vanish. Blocks of a registered dtype are unpacked to f32. */
FL_API fl_tensor *fl_matmul(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_matmul(fl_var *a, fl_var *b);
/* What products of f32 may round their operands to, process-wide: FL_F32 (nothing, at the start) or
   FL_BF16. That is a permission for matmul, linear layers, convolution and attention, their
   gradients, and what is composed of them; a backend uses it where its processor multiplies bf16
   (or anything in between, as TF32) faster, and keeps f32 where that gains nothing (of the cpu:
   fl_cpu_set_bf16). Sums and results
   stay f32, so weights and gradients need no scaling. Each operand is off by at most 2^-9 of itself,
   a product by 2^-8 of the sum of its absolute terms; NaN and infinities stay, denormals may count
   as 0. Compare PyTorch's torch.set_float32_matmul_precision("medium"). */
FL_API fl_dtype fl_matmul_precision(void);
FL_API bool fl_set_matmul_precision(fl_dtype d);

/* sum a b of two vectors;  [m], [n] -> [m, n]: a_i b_j;  blocks a_ij b of at most 4 dims */
FL_API fl_tensor *fl_dot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_dot(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_outer(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_outer(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_kron(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_kron(fl_var *a, fl_var *b);
/* The vector product along axis, of 3 elements in both; the other dims broadcast. */
FL_API fl_tensor *fl_cross(fl_tensor *a, fl_tensor *b, int axis);
FL_API fl_var *fv_cross(fl_var *a, fl_var *b, int axis);
/* Sums over n axes of a and as many of b, in pairs; NULL, NULL: the last of a, the first of b. */
FL_API fl_tensor *fl_tensordot(fl_tensor *a, fl_tensor *b, int n, const int *axes_a,
                               const int *axes_b);
FL_API fl_var *fv_tensordot(fl_var *a, fl_var *b, int n, const int *axes_a, const int *axes_b);
/* Einstein's sum of 1 to 8 operands: "ij,jk->ik". A letter names a dim, twice in one operand its
   diagonal; without "->" the result has what appears once, in the alphabet's order (capitals
   first); "..." stands for dims that broadcast. What the result lacks is summed: from left to
   right, by matmul; letters of one operand alone as by fl_sum. */
FL_API fl_tensor *fl_einsum(const char *equation, fl_tensor *const *xs, int n);
FL_API fl_var *fv_einsum(const char *equation, fl_var *const *xs, int n);
/* Sum of the diagonal of a matrix. */
FL_API fl_tensor *fl_trace(fl_tensor *x);
FL_API fl_var *fv_trace(fl_var *x);
/* beta c + alpha a b, c broadcast; c is not read where beta is 0 */
FL_API fl_tensor *fl_addmm(fl_tensor *c, fl_tensor *a, fl_tensor *b, double beta, double alpha);
FL_API fl_var *fv_addmm(fl_var *c, fl_var *a, fl_var *b, double beta, double alpha);
/* [..., m, k], [..., n, k] -> [..., m, n]: the p-norm of a_i - b_j, p >= 0, INFINITY too */
FL_API fl_tensor *fl_cdist(fl_tensor *a, fl_tensor *b, double p);
FL_API fl_var *fv_cdist(fl_var *a, fl_var *b, double p);
/* linear: x [..., in], w [out, in], or [out, in / 32] of blocks such as fl_q8 -> x w^T + bias;
   bilinear: a [..., i], b [..., j], w [out, i, j] -> a w b + bias; bias [out] may be NULL */
FL_API fl_tensor *fl_linear(fl_tensor *x, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_linear(fl_var *x, fl_var *w, fl_var *bias);
/* act(linear(x, w, bias)) in one pass, act one of FL_OP_relu, gelu, gelu_tanh, silu, sigmoid, tanh, or
   FL_OP_NONE. Whether it takes act;  the act that fn is, such as fv_relu, FL_OP_NONE if there is none */
FL_API fl_tensor *fl_linear_act(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_op act);
FL_API fl_var *fv_linear_act(fl_var *x, fl_var *w, fl_var *bias, fl_op act);
FL_API bool fl_linear_takes(fl_op act);
FL_API fl_op fv_linear_act_of(fl_var *(*fn)(fl_var *x));
FL_API fl_tensor *fl_bilinear(fl_tensor *a, fl_tensor *b, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_bilinear(fl_var *a, fl_var *b, fl_var *w, fl_var *bias);

FL_DATA fl_op fl_op_linear, fl_op_linear_grad, fl_op_linear_stored;
/* For slots of linear_grad: the records of which it consists, into its outputs. */
typedef struct fl__linear_grad {
    fl_call dx, dw, db;
    fl_tensor across; /* dz^T */
    fl_reduce_args rows;
} fl__linear_grad;
/* Field by field: compilers make a slow string instruction of a literal. */
FL_PRIVATE void fl__linear_grad_parts(fl__linear_grad *p, const fl_call *c);
FL_PRIVATE void fl__register_linear(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_LINEAR_H */

#if defined(FL_IMPL_ONLY_OPS_LINEAR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_LINEAR_IMPL
#define FL_OPS_LINEAR_IMPL
#include "../../fl_autograd.h"
#include "autocast.h"
#include "copy.h"
#include "elementwise.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>

/* >>matmul */

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
        (a->dtype >= FL_DTYPE_COUNT && !(a = fl_cast(a, FL_F32))) ||
        (b->dtype >= FL_DTYPE_COUNT && !(b = fl_cast(b, FL_F32))))
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
    fl_tensor *y = fl_call_into(FL_OP_matmul, fl_out_on(a->family, shape, d), a, b, NULL);
    if (y && column) y = fl_squeeze(y, -1);
    if (y && row) y = fl_squeeze(y, column ? -1 : -2);
    return y;
}

/* One matrix times many is one product: [..., m, k] -> [.. m, k]. */
static fl_var *fv__as_rows(fl_var *x, int64_t columns) {
    int64_t rows = 1;
    for (int d = 0; x && d + 1 < x->value->ndim; d++) rows *= x->value->shape[d];
    return fv_reshape(x, FL_SHAPE(rows, columns));
}

/* Is t one transposed matrix, as a linear layer's weight? */
static bool fv__is_transposed(const fl_tensor *t) {
    int d = t->ndim - 2;
    return d == 0 && t->shape[d] > 1 && t->stride[d] == 1 && t->stride[d + 1] >= t->shape[d];
}

/* da = dy b', db = a' dy, or the transpose of dy' a if b is a transposed matrix (the argument), so
   that the gradient has its strides; the missing dim of a row or column comes back for that. */
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

FL_DATA_DEFINED fl_op fl_op_linear, fl_op_linear_grad, fl_op_linear_stored;

/* The activations that fl_linear_act takes. */
#define FL__ACTIVATIONS(X) X(relu) X(gelu) X(gelu_tanh) X(silu) X(sigmoid) X(tanh)

bool fl_linear_takes(fl_op act) {
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

/* The record of y, and of z if it is not NULL; bias may be. */
static bool fl__run_linear(fl_tensor *const *in, fl_op act, fl_tensor **y, fl_tensor **z) {
    fl_linear_args a = {act};
    fl_call c;
    fl_call_begin(&c, fl_op_linear, z ? 2 : 1, in[2] ? 3 : 2, &a);
    fl_shape shape = FL_SHAPE(in[0]->shape[0], in[1]->shape[0]);
    c.in[0] = in[0], c.in[1] = in[1], c.in[2] = in[2];
    c.out[0] = *y = fl_out_on(in[0]->family, shape, in[0]->dtype);
    if (z) c.out[1] = *z = fl_out_on(in[0]->family, shape, in[0]->dtype);
    return (*y && (!z || *z) && fl_call_run(&c)) || fl_raise();
}

/* Do the operands make a record: floats, a bias [out] or none, all of one family? The others take
   several ops, which say what is wrong. */
static bool fl__fits_linear(int n, fl_tensor *const *t) {
    fl_tensor *x = t[0], *w = t[1], *b = n > 2 ? t[2] : NULL;
    bool fits = !x->weak && !w->weak && x->ndim > 0 && x->shape[x->ndim - 1] == w->shape[1] &&
                x->family == w->family;
    return fits && (!b || (!b->weak && b->ndim == 1 && b->shape[0] == w->shape[0] &&
                           b->family == x->family));
}

static fl_tensor *fl__linear_node(fl_tensor *const *in, fl_op act) {
    fl_tensor *y;
    return fl__run_linear(in, act, &y, NULL) ? y : NULL;
}

FL_PRIVATE void fl__linear_grad_parts(fl__linear_grad *p, const fl_call *c) {
    fl_tensor *dz = c->in[0];
    p->across = *dz;
    for (int d = 0; d < 2; d++) {
        p->across.shape[d] = dz->shape[1 - d];
        p->across.stride[d] = dz->stride[1 - d];
    }
    p->rows = (fl_reduce_args){.axes = 1};
    fl_call_begin(&p->dx, FL_OP_matmul, 1, 2, NULL);
    fl_call_begin(&p->dw, FL_OP_matmul, 1, 2, NULL);
    fl_call_begin(&p->db, FL_OP_sum, 1, 1, &p->rows);
    p->dx.out[0] = c->out[0], p->dx.in[0] = dz, p->dx.in[1] = c->in[2];
    p->dw.out[0] = c->out[1], p->dw.in[0] = &p->across, p->dw.in[1] = c->in[1];
    p->db.out[0] = c->out[2], p->db.in[0] = dz;
}

static void fv__run_linear_grad(fl_node *n, fl_tensor *dz, fl_tensor *x, fl_tensor *w) {
    fl_call c;
    fl_call_begin(&c, fl_op_linear_grad, 3, 3, NULL);
    c.in[0] = dz, c.in[1] = x ? x : fl_num(0), c.in[2] = w ? w : fl_num(0);
    for (int i = 0; i < 3; i++) {
        c.out[i] = fv_needs(n, i) ? fl_out_on(dz->family, fv_in_shape(n, i), dz->dtype) : NULL;
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

/* Two nodes that one record computes: z, and act of it, whose gradient finds z saved if it reads it;
   else no z is written, and y stands for it. */
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

/* x f32 [..., in] and a weight of fewer bytes */
static bool fl__reads_stored(const fl_tensor *x, const fl_tensor *w) {
    const fl_dtype_info *blocks = fl_dtype_registered(w->dtype);
    return (blocks || w->dtype == FL_F16 || w->dtype == FL_BF16) && !w->weak && !x->weak &&
           x->dtype == FL_F32 && x->ndim > 0 && x->family == w->family &&
           x->shape[x->ndim - 1] == w->shape[1] * (blocks ? blocks->block : 1);
}

/* Of variables: the weight is no parameter, and nothing is to be cast. */
static bool fv__reads_stored(const fl_var *x, const fl_var *w) {
    return !w->requires_grad && !(fl_flags() & FL_AUTOCAST_FLAGS) && fl__reads_stored(x->value, w->value);
}

static fl_tensor *fl__linear_stored_node(fl_tensor *x, fl_tensor *w) {
    return fl_call_into(fl_op_linear_stored, fl_out_on(x->family, FL_SHAPE(x->shape[0], w->shape[0]), FL_F32),
                        x, w, NULL);
}

/* dx = dz w; w is no parameter */
static void fv__linear_stored_back(fl_node *n, fl_var *dz) {
    fv_add_grad(n, 0, fv_matmul(dz, fv_cast(fv_saved(n, 0), FL_F32)));
}

static fl_var *fv__linear_stored_node(fl_var *x, fl_var *w) {
    return fv_record_op(fl_op_linear_stored, fl__linear_stored_node(x->value, w->value), FV_IN(x), FV_SAVE(w),
                        NULL);
}

/* >>the texts */

enum { FL__TERMS = 8 }; /* operands of a sum of products */

#define FL_TEXT "linear.h"
#include "expand.h"

/* >>registration */

static int64_t fl__linear_macs(const fl_call *c) {
    return fl_numel(c->out[0]) * c->in[0]->shape[1];
}

/* A product for dx, and one for dw. */
static int64_t fl__linear_grad_macs(const fl_call *c) {
    int64_t n = 0;
    for (int i = 0; i < 2; i++)
        if (c->out[i]) n += fl_numel(c->in[0]) * c->out[i]->shape[1];
    return n;
}

FL_PRIVATE void fl__register_linear(void) {
    static const fl_op_info linear = {
        .name = "linear",
        .args_size = sizeof(fl_linear_args),
        .contains = "matmul add maximum mul div neg exp erf tanh relu gelu gelu_tanh silu sigmoid",
        .compose = fl__compose_linear,
        .gradient = fv__linear_back,
        .macs = fl__linear_macs};
    fl_op_linear = fl_op_register(&linear);
    static const fl_op_info grad = {.name = "linear_grad",
                                    .contains = "matmul sum",
                                    .compose = fl__compose_linear_grad,
                                    .macs = fl__linear_grad_macs};
    fl_op_linear_grad = fl_op_register(&grad);
    static const fl_op_info stored = {.name = "linear_stored",
                                      .contains = "copy matmul linear",
                                      .compose = fl__compose_linear_stored,
                                      .gradient = fv__linear_stored_back,
                                      .macs = fl__linear_macs};
    fl_op_linear_stored = fl_op_register(&stored);
}

#endif /* FL_OPS_LINEAR_IMPL */
#endif
#else /* the text: see expand.h */

/* >>products */

/* Operands of several steps, NULL passes: where the result is a half float, floats become f32.
   Returns the result's dtype; NONE after an error. */
static fl_dtype FL_W(_unhalved)(int n, FL_T **x) {
    fl_tensor *t[FL__TERMS] = {0};
    int count = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) t[count++] = FL_VALUE(x[i]);
    fl_dtype d = fl_result_type(count, t);
    for (int i = 0; i < n && (d == FL_F16 || d == FL_BF16); i++)
        if (x[i] && !(x[i] = FL_W(_widened)(x[i]))) return FL_DTYPE_NONE;
    return d;
}

FL_T *FL_W(dot)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("dot", a) || FL_ABSENT("dot", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    if (ta->ndim != 1 || tb->ndim != 1 || ta->shape[0] != tb->shape[0])
        return fl_bad("fl_dot: shapes %s and %s: not two vectors of one size", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    return FL_W(matmul)(a, b);
}

FL_T *FL_W(outer)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("outer", a) || FL_ABSENT("outer", b)) return NULL;
    if (FL_VALUE(a)->ndim != 1 || FL_VALUE(b)->ndim != 1)
        return fl_bad("fl_outer: shapes %s and %s: not two vectors", FL_SHAPE_TEXT(FL_VALUE(a)),
                       FL_SHAPE_TEXT(FL_VALUE(b)));
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, MUL(FL_W(unsqueeze)(a, 1), b));
}

/* Every dim of a before one of b, so that a reshape joins them. */
FL_T *FL_W(kron)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("kron", a) || FL_ABSENT("kron", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    int n = ta->ndim > tb->ndim ? ta->ndim : tb->ndim;
    fl_shape left = {2 * n, {0}}, right = left, joined = {n, {0}};
    bool fits = n <= FL_MAX_DIMS / 2;
    for (int i = 0; fits && i < n; i++) {
        int da = i - (n - ta->ndim), db = i - (n - tb->ndim);
        left.dim[2 * i] = da < 0 ? 1 : ta->shape[da];
        right.dim[2 * i + 1] = db < 0 ? 1 : tb->shape[db];
        left.dim[2 * i + 1] = right.dim[2 * i] = 1;
        fits = !__builtin_mul_overflow(left.dim[2 * i], right.dim[2 * i + 1], &joined.dim[i]);
    }
    if (!fits)
        return fl_bad("fl_kron: shapes %s and %s: the result is too large", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    fl_scope s = fl_scope_begin();
    FL_T *y = MUL(FL_W(reshape)(a, left), FL_W(reshape)(b, right));
    return FL_GIVE(&s, FL_W(reshape)(y, joined));
}

/* Elements k, k + 1, ... along axis, of 3, and then those before. */
static FL_T *FL_W(_rotated)(FL_T *x, int axis, int k) {
    FL_T *both[] = {FL_W(slice)(x, axis, k, 3, 1), FL_W(slice)(x, axis, 0, k, 1)};
    return FL_W(concat)(both, 2, axis);
}

FL_T *FL_W(cross)(FL_T *a, FL_T *b, int axis) {
    if (FL_ABSENT("cross", a) || FL_ABSENT("cross", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    int at = axis < 0 ? axis + ta->ndim : axis;
    if (ta->ndim != tb->ndim || at < 0 || at >= ta->ndim || ta->shape[at] != 3 ||
        tb->shape[at] != 3)
        return fl_bad("fl_cross: shapes %s and %s: not 3 elements along axis %d",
                       FL_SHAPE_TEXT(ta), FL_SHAPE_TEXT(tb), axis);
    FL_T *x[] = {a, b};
    fl_scope s = fl_scope_begin();
    fl_dtype d = FL_W(_unhalved)(2, x);
    FL_T *plus = MUL(FL_W(_rotated)(x[0], at, 1), FL_W(_rotated)(x[1], at, 2));
    FL_T *minus = MUL(FL_W(_rotated)(x[0], at, 2), FL_W(_rotated)(x[1], at, 1));
    return FL_GIVE(&s, FL_W(_halved)(SUB(plus, minus), d));
}

/* value x; integers stay what they are where value is whole. */
static FL_T *FL_W(_scaled)(FL_T *x, double value) {
    if (!x || value == 1) return x;
    bool whole = value == rint(value) && fabs(value) < 0x1p63;
    whole = whole && !fl_dtype_is_float(FL_VALUE(x)->dtype);
    return MUL(x, whole ? FL_OF(fl_int((int64_t)value)) : CONST(value));
}

FL_T *FL_W(addmm)(FL_T *c, FL_T *a, FL_T *b, double beta, double alpha) {
    if (FL_ABSENT("addmm", c) || FL_ABSENT("addmm", a) || FL_ABSENT("addmm", b)) return NULL;
    FL_T *x[] = {a, b, beta == 0 ? NULL : c};
    fl_scope s = fl_scope_begin();
    fl_dtype d = FL_W(_unhalved)(3, x);
    FL_T *y = FL_W(_scaled)(FL_W(matmul)(x[0], x[1]), alpha);
    if (x[2]) y = ADD(FL_W(_scaled)(x[2], beta), y);
    return FL_GIVE(&s, FL_W(_halved)(y, d));
}

/* act(x) */
static FL_T *FL_W(_activated)(FL_T *x, fl_op act) {
#define FL__APPLY(op) if (act == FL_OP_##op) return FL_W(op)(x);
    FL__ACTIVATIONS(FL__APPLY)
#undef FL__APPLY
    return x;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_linear(const fl_call *c, fl_tensor **y) {
    fl_tensor *in[] = {c->in[0], c->in[1], c->n_in > 2 ? c->in[2] : NULL};
    if (!FL_W(_widen)(in, 3)) return false;
    fl_tensor *z = fl_matmul(in[0], fl_transpose(in[1], 0, 1));
    if (in[2]) z = fl_add(z, in[2]);
    y[0] = fl__activated(z, ((const fl_linear_args *)c->args)->act);
    y[1] = z;
    return y[0] != NULL;
}

static bool fl__compose_linear_grad(const fl_call *c, fl_tensor **y) {
    fl_tensor *dz = c->in[0];
    if (c->out[0]) y[0] = fl_matmul(dz, c->in[2]);
    if (c->out[1]) y[1] = fl_matmul(fl_transpose(dz, 0, 1), c->in[1]);
    if (c->out[2]) y[2] = fl_sum(dz, FL_AXES(0));
    return !fl_error();
}

static bool fl__compose_linear_stored(const fl_call *c, fl_tensor **y) {
    fl_tensor *w = fl_cast(c->in[1], FL_F32);
    return w && (y[0] = fl_linear(c->in[0], w, NULL)) != NULL;
}
#endif

/* The same of a weight that is read as it is stored. */
static FL_T *FL_W(_linear_stored)(FL_T *x, FL_T *w, FL_T *bias, fl_op act) {
    fl_shape shape = fl_shape_of(FL_VALUE(x));
    int64_t rows = 1, columns = shape.dim[shape.ndim - 1];
    for (int i = 0; i + 1 < shape.ndim; i++) rows *= shape.dim[i];
    if (shape.ndim != 2 && !(x = FL_W(reshape)(x, FL_SHAPE(rows, columns)))) return NULL;
    FL_T *y = FL_W(_linear_stored_node)(x, w);
    shape.dim[shape.ndim - 1] = FL_VALUE(w)->shape[0];
    if (y && shape.ndim != 2) y = FL_W(reshape)(y, shape);
    return FL_W(_activated)(y && bias ? ADD(y, bias) : y, act);
}

/* One product of the rows of x, whatever its leading dims. */
static FL_T *FL_W(_linear_fused)(FL_T **in, fl_op act, fl_dtype d) {
    FL_T *all[3] = {NULL};
    for (int i = 0; i < 3; i++)
        if (in[i] && !(all[i] = FL_W(cast)(in[i], d))) return NULL;
    if (FL_VALUE(all[0])->ndim == 2) return FL_W(_linear_node)(all, act);
    fl_shape shape = fl_shape_of(FL_VALUE(all[0]));
    int64_t rows = 1, columns = shape.dim[shape.ndim - 1];
    for (int i = 0; i + 1 < shape.ndim; i++) rows *= shape.dim[i];
    if (!(all[0] = FL_W(reshape)(all[0], FL_SHAPE(rows, columns)))) return NULL;
    FL_T *y = FL_W(_linear_node)(all, act);
    shape.dim[shape.ndim - 1] = FL_VALUE(in[1])->shape[0];
    return y ? FL_W(reshape)(y, shape) : NULL;
}

static FL_T *FL_W(_linear_of)(FL_T *x, FL_T *w, FL_T *bias, fl_op act) {
    if (FL_VALUE(w)->ndim != 2)
        return fl_bad("fl_linear: the weight's shape is %s, not [out, in]",
                       FL_SHAPE_TEXT(FL_VALUE(w)));
    fl_scope s = fl_scope_begin();
    if (FL_W(_reads_stored)(x, w)) return FL_GIVE(&s, FL_W(_linear_stored)(x, w, bias, act));
    if (FL_VALUE(w)->dtype >= FL_DTYPE_COUNT && !(w = FL_W(cast)(w, FL_F32))) return FL_GIVE(&s, NULL);
    FL_T *all[] = {x, w, bias};
    if (!FL_AUTOCAST(fl_op_linear, all, 3)) return FL_GIVE(&s, NULL);
    fl_tensor *t[] = {FL_VALUE(all[0]), FL_VALUE(all[1]), bias ? FL_VALUE(all[2]) : NULL};
    fl_dtype d = fl_result_type(bias ? 3 : 2, t);
    if (d < FL_DTYPE_COUNT && fl_dtype_is_float(d) && fl__fits_linear(bias ? 3 : 2, t))
        return FL_GIVE(&s, FL_W(_linear_fused)(all, act, d));
    if (!bias) return FL_GIVE(&s, FL_W(_activated)(FL_W(matmul)(all[0], FL_W(transpose)(all[1], 0, 1)), act));
    d = FL_W(_unhalved)(3, all);
    FL_T *y = ADD(FL_W(matmul)(all[0], FL_W(transpose)(all[1], 0, 1)), all[2]);
    return FL_GIVE(&s, FL_W(_halved)(FL_W(_activated)(y, act), d));
}

FL_T *FL_W(linear)(FL_T *x, FL_T *w, FL_T *bias) {
    if (FL_ABSENT("linear", x) || FL_ABSENT("linear", w)) return NULL;
    return FL_W(_linear_of)(x, w, bias, FL_OP_NONE);
}

FL_T *FL_W(linear_act)(FL_T *x, FL_T *w, FL_T *bias, fl_op act) {
    if (FL_ABSENT("linear_act", x) || FL_ABSENT("linear_act", w)) return NULL;
    if (fl_linear_takes(act)) return FL_W(_linear_of)(x, w, bias, act);
    const fl_op_info *info = fl_op_get_info(act);
    return fl_bad("fl_linear_act: %s is no activation that it takes", info ? info->name : "no op");
}

FL_T *FL_W(bilinear)(FL_T *a, FL_T *b, FL_T *w, FL_T *bias) {
    if (FL_ABSENT("bilinear", a) || FL_ABSENT("bilinear", b) || FL_ABSENT("bilinear", w))
        return NULL;
    FL_T *x[] = {a, w, b, bias};
    fl_scope s = fl_scope_begin();
    fl_dtype d = FL_W(_unhalved)(4, x);
    FL_T *y = FL_W(einsum)("...i,oij,...j->...o", x, 3);
    return FL_GIVE(&s, FL_W(_halved)(bias ? ADD(y, x[3]) : y, d));
}

FL_T *FL_W(cdist)(FL_T *a, FL_T *b, double p) {
    if (FL_ABSENT("cdist", a) || FL_ABSENT("cdist", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    if (!(p >= 0)) return fl_bad("fl_cdist: p = %g is negative", p);
    if (ta->ndim < 2 || tb->ndim < 2 || ta->shape[ta->ndim - 1] != tb->shape[tb->ndim - 1])
        return fl_bad("fl_cdist: shapes %s and %s: not rows of one size", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    FL_T *x[] = {a, b};
    fl_scope s = fl_scope_begin();
    if (!FL_AUTOCAST(FL_OP_sum, x, 2)) return FL_GIVE(&s, NULL);
    fl_dtype d = FL_W(_unhalved)(2, x);
    FL_T *apart = SUB(FL_W(unsqueeze)(x[0], -2), FL_W(unsqueeze)(x[1], -3));
    if (apart) apart = FL_W(_floating)(apart);
    bool empty = ta->shape[ta->ndim - 1] == 0; /* of which there is no largest */
    return FL_GIVE(&s, FL_W(_halved)(FL_W(norm)(apart, empty ? 1 : p, FL_AXES(-1)), d));
}

FL_T *FL_W(trace)(FL_T *x) {
    if (FL_ABSENT("trace", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if (t->ndim != 2) return fl_bad("fl_trace: shape %s: not a matrix", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, FL_W(sum)(FL_W(diagonal)(x, 0, 0, 1), FL_ALL_AXES));
}

/* >>tensordot */

#ifdef FL_ON_TENSORS
/* Axes of t in the order of the product: with the n summed ones first, or last. False if they are
   not n different axes. */
static bool fl__dot_order(const fl_tensor *t, int n, const int *axes, bool first, int *order) {
    uint32_t summed = 0;
    int at = first ? 0 : t->ndim - n, rest = first ? n : 0;
    for (int i = 0; i < n; i++) {
        int given = axes ? axes[i] : first ? i : t->ndim - n + i;
        int axis = given < 0 ? given + t->ndim : given;
        if (axis < 0 || axis >= t->ndim || summed >> axis & 1) return false;
        summed |= 1u << axis;
        order[at++] = axis;
    }
    for (int i = 0; i < t->ndim; i++)
        if (!(summed >> i & 1)) order[rest++] = i;
    return true;
}

/* The product of dims order[from], ... order[to - 1] */
static int64_t fl__dims_product(const fl_tensor *t, const int *order, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= t->shape[order ? order[i] : i];
    return n;
}
#endif

FL_T *FL_W(tensordot)(FL_T *a, FL_T *b, int n, const int *axes_a, const int *axes_b) {
    if (FL_ABSENT("tensordot", a) || FL_ABSENT("tensordot", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    int left[FL_MAX_DIMS], right[FL_MAX_DIMS], ra = ta->ndim - n, rb = tb->ndim - n;
    bool fits = n >= 0 && ra >= 0 && rb >= 0 && ra + rb <= FL_MAX_DIMS &&
                fl__dot_order(ta, n, axes_a, false, left) &&
                fl__dot_order(tb, n, axes_b, true, right);
    for (int i = 0; fits && i < n; i++) fits = ta->shape[left[ra + i]] == tb->shape[right[i]];
    if (!fits)
        return fl_bad("fl_tensordot: shapes %s and %s do not fit along %d axes",
                       FL_SHAPE_TEXT(ta), FL_SHAPE_TEXT(tb), n);
    fl_shape shape = {ra + rb, {0}};
    for (int i = 0; i < ra; i++) shape.dim[i] = ta->shape[left[i]];
    for (int i = 0; i < rb; i++) shape.dim[ra + i] = tb->shape[right[n + i]];
    int64_t rows = fl__dims_product(ta, left, 0, ra), inner = fl__dims_product(tb, right, 0, n);
    int64_t columns = fl__dims_product(tb, right, n, tb->ndim);
    fl_scope s = fl_scope_begin();
    a = FL_W(reshape)(FL_W(permute)(a, ta->ndim, left), FL_SHAPE(rows, inner));
    b = FL_W(reshape)(FL_W(permute)(b, tb->ndim, right), FL_SHAPE(inner, columns));
    return FL_GIVE(&s, FL_W(reshape)(FL_W(matmul)(a, b), shape));
}

/* >>einsum: a label is a letter, or a dim that "..." stands for, counted from the last one. A set
   of labels is a word of bits. */

#ifdef FL_ON_TENSORS
enum { FL__LETTERS = 52, FL__LABELS = FL__LETTERS + FL_MAX_DIMS, FL__DOTS = 63 };

typedef struct fl__term { /* the labels of an operand or of the result, in order */
    int n;
    int label[2 * FL_MAX_DIMS];
} fl__term;

typedef struct fl__einsum {
    const char *equation;
    int n, dots; /* operands; dims of the longest "..." */
    fl__term in[FL__TERMS], out;
    int64_t size[FL__LABELS]; /* 0 where seen is 0 */
    int seen[FL__LABELS];
} fl__einsum;

static bool fl__einsum_bad(const fl__einsum *e, const char *at, const char *what) {
    return fl_refuse("fl_einsum: \"%.80s\": %s at %d", e->equation, what,
                   (int)(at - e->equation));
}

/* Capitals come first in the alphabet. */
static int fl__letter(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    return c >= 'a' && c <= 'z' ? 26 + c - 'a' : -1;
}

/* One term, up to a comma, an arrow or the end; *at goes there. */
static bool fl__einsum_term(const fl__einsum *e, const char **at, fl__term *t) {
    const char *p = *at;
    bool dots = false;
    t->n = 0;
    for (; *p && *p != ',' && *p != '-'; p++) {
        if (*p == ' ') continue;
        int label = fl__letter(*p);
        if (!strncmp(p, "...", 3)) label = FL__DOTS, p += 2;
        if (label < 0) return fl__einsum_bad(e, p, "no letter");
        if (label == FL__DOTS && dots) return fl__einsum_bad(e, p - 2, "a second \"...\"");
        if (t->n == FL_MAX_DIMS + dots) return fl__einsum_bad(e, p, "too many dims");
        dots |= label == FL__DOTS;
        t->label[t->n++] = label;
    }
    *at = p;
    return true;
}

/* Puts the labels of so many dims in the place of the dots, if there are any. */
static void fl__einsum_open(fl__term *t, int dims) {
    int at = 0;
    while (at < t->n && t->label[at] != FL__DOTS) at++;
    if (at == t->n) return;
    memmove(t->label + at + dims, t->label + at + 1, (size_t)(t->n - at - 1) * sizeof *t->label);
    for (int i = 0; i < dims; i++) t->label[at + i] = FL__LETTERS + dims - 1 - i;
    t->n += dims - 1;
}

static uint64_t fl__labels_of(const fl__term *t) {
    uint64_t set = 0;
    for (int i = 0; i < t->n; i++) set |= (uint64_t)1 << t->label[i];
    return set;
}

/* Operand i: its labels and their sizes, where 1 stretches, but not along a diagonal. */
static bool fl__einsum_sizes(fl__einsum *e, int i, const fl_tensor *x) {
    fl__term *t = &e->in[i];
    bool dots = fl__labels_of(t) >> FL__DOTS & 1;
    int dims = x->ndim - t->n + dots;
    if (dims < 0 || (dims > 0 && !dots))
        return fl_refuse("fl_einsum: \"%.80s\": operand %d of shape %s has %d letters", e->equation,
                       i, FL_SHAPE_TEXT(x), t->n - dots);
    fl__einsum_open(t, dims);
    if (dots && dims > e->dots) e->dots = dims;
    for (int d = 0; d < t->n; d++) {
        int label = t->label[d];
        int64_t *size = &e->size[label], n = x->shape[d];
        bool fits = !e->seen[label]++ || *size == 1 || n == 1 || *size == n;
        for (int k = 0; fits && k < d; k++) fits = t->label[k] != label || x->shape[k] == n;
        if (!fits)
            return fl_refuse("fl_einsum: \"%.80s\": dim %d of operand %d, shape %s, does not fit "
                           "%lld", e->equation, d, i, FL_SHAPE_TEXT(x), (long long)*size);
        if (e->seen[label] == 1 || *size == 1) *size = n;
    }
    return true;
}

/* The result's labels: what the dots stand for, then what appears once. */
static void fl__einsum_implied(fl__einsum *e) {
    e->out.n = 0;
    for (int i = e->dots - 1; i >= 0; i--) e->out.label[e->out.n++] = FL__LETTERS + i;
    for (int label = 0; label < FL__LETTERS && e->out.n <= FL_MAX_DIMS; label++)
        if (e->seen[label] == 1) e->out.label[e->out.n++] = label;
}

/* The result's labels behind an arrow. */
static bool fl__einsum_given(fl__einsum *e, const char *p) {
    const char *start = p;
    if (!fl__einsum_term(e, &p, &e->out)) return false;
    if (*p) return fl__einsum_bad(e, p, "more than one result");
    fl__einsum_open(&e->out, e->dots);
    for (int i = 0; i < e->out.n; i++)
        for (int k = 0; k <= i; k++) {
            bool twice = k < i && e->out.label[k] == e->out.label[i];
            if (twice) return fl__einsum_bad(e, start, "a letter twice in the result");
            if (!e->seen[e->out.label[i]])
                return fl__einsum_bad(e, start, "a letter of no operand in the result");
        }
    return true;
}

static bool fl__einsum_parse(fl__einsum *e, const char *equation, int n, fl_tensor *const *xs) {
    const char *p = equation;
    *e = (fl__einsum){.equation = equation, .n = n};
    for (int i = 0; i < n; i++, p++) {
        if (!fl__einsum_term(e, &p, &e->in[i])) return false;
        if (i + 1 < n && *p != ',') return fl__einsum_bad(e, p, "fewer terms than operands");
        if (i + 1 < n) continue;
        if (*p == ',') return fl__einsum_bad(e, p, "more terms than operands");
        if (*p == '-' && p[1] != '>') return fl__einsum_bad(e, p, "no \"->\"");
        break;
    }
    for (int i = 0; i < n; i++)
        if (!fl__einsum_sizes(e, i, xs[i])) return false;
    if (*p) {
        if (!fl__einsum_given(e, p + 2)) return false;
    } else {
        fl__einsum_implied(e);
    }
    return e->out.n <= FL_MAX_DIMS || fl__einsum_bad(e, p, "a result of more than 8 dims");
}

/* Labels that the result or an operand from number i on has. */
static uint64_t fl__einsum_needed(const fl__einsum *e, int i) {
    uint64_t set = fl__labels_of(&e->out);
    for (; i < e->n; i++) set |= fl__labels_of(&e->in[i]);
    return set;
}

/* Appends t's labels that are in the set; returns the product of their sizes. */
static int64_t fl__einsum_take(const fl__einsum *e, const fl__term *t, uint64_t set, fl__term *to) {
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) {
        if (!(set >> t->label[i] & 1)) continue;
        to->label[to->n++] = t->label[i];
        (void)__builtin_mul_overflow(n, e->size[t->label[i]], &n); /* reshape will refuse it */
    }
    return n;
}

/* One op gives the result, which rounds once. */
static bool fl__einsum_in_one(const fl__einsum *e) {
    uint64_t shared = fl__einsum_needed(e, 2);
    uint64_t a = fl__labels_of(&e->in[0]), b = fl__labels_of(&e->in[1]);
    return e->n < 2 || (e->n == 2 && !(a & ~b & ~shared) && !(b & ~a & ~shared));
}
#endif

/* x, of labels t, with its dims in the order of `to`, which has the same labels. */
static FL_T *FL_W(_relabelled)(FL_T *x, const fl__term *t, const fl__term *to) {
    int axes[FL_MAX_DIMS];
    for (int i = 0; i < to->n; i++) {
        axes[i] = 0;
        while (t->label[axes[i]] != to->label[i]) axes[i]++;
    }
    return FL_W(permute)(x, to->n, axes);
}

/* x without the labels of t outside the set: summed. */
static FL_T *FL_W(_einsum_sum)(FL_T *x, fl__term *t, uint64_t set) {
    fl_axes axes = {0, {0}, false};
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        if (set >> t->label[i] & 1) t->label[n++] = t->label[i];
        else axes.axis[axes.n++] = i;
    }
    t->n = n;
    return axes.n ? FL_W(sum)(x, axes) : x;
}

/* x's diagonal along its dims p < q, which becomes the last dim. */
static FL_T *FL_W(_einsum_diagonal)(FL_T *x, fl__term *t, int p, int q) {
    int axes[FL_MAX_DIMS], n = 0, label = t->label[p];
    for (int i = 0; i < t->n; i++) {
        if (i == p || i == q) continue;
        t->label[n] = t->label[i];
        axes[n++] = i;
    }
    axes[n] = p;
    axes[n + 1] = q;
    x = FL_W(permute)(x, t->n, axes);
    t->label[n] = label;
    t->n = n + 1;
    return FL_W(diagonal)(x, 0, -2, -1);
}

/* Operand i with every label once and at its full size, without those that nobody else has. */
static FL_T *FL_W(_einsum_operand)(const fl__einsum *e, int i, FL_T *x, fl__term *t) {
    fl__einsum others = *e;
    others.in[i].n = 0;
    *t = e->in[i];
    for (int q = 0; q < t->n; q++)
        for (int p = 0; p < q; p++)
            if (t->label[p] == t->label[q]) {
                x = FL_W(_einsum_diagonal)(x, t, p, q);
                q = 0;
            }
    x = FL_W(_einsum_sum)(x, t, fl__einsum_needed(&others, 0));
    fl_shape full = {t->n, {0}};
    for (int d = 0; d < t->n; d++) full.dim[d] = e->size[t->label[d]];
    return FL_W(expand)(x, full);
}

/* The product of x, of labels t, and operand i: one batched matmul. t becomes its labels. */
static FL_T *FL_W(_einsum_pair)(const fl__einsum *e, FL_T *x, fl__term *t, int i, FL_T *b) {
    fl__term right, left = {0}, transposed = {0}, product = {0};
    b = FL_W(_einsum_operand)(e, i, b, &right);
    if (!x || !b) return NULL;
    uint64_t in_x = fl__labels_of(t), in_b = fl__labels_of(&right);
    uint64_t later = fl__einsum_needed(e, i + 1), both = in_x & in_b;
    int64_t batch = fl__einsum_take(e, t, both & later, &left);
    int64_t rows = fl__einsum_take(e, t, in_x & ~in_b, &left);
    product = left;
    int64_t inner = fl__einsum_take(e, t, both & ~later, &left);
    transposed.n = 0;
    fl__einsum_take(e, t, both & later, &transposed);
    fl__einsum_take(e, t, both & ~later, &transposed);
    int64_t columns = fl__einsum_take(e, &right, in_b & ~in_x, &transposed);
    fl__einsum_take(e, &right, in_b & ~in_x, &product);
    if (product.n > FL_MAX_DIMS)
        return fl_bad("fl_einsum: \"%.80s\": %d dims after operand %d", e->equation, product.n, i);
    x = FL_W(reshape)(FL_W(_relabelled)(x, t, &left), FL_SHAPE(batch, rows, inner));
    b = FL_W(reshape)(FL_W(_relabelled)(b, &right, &transposed), FL_SHAPE(batch, inner, columns));
    fl_shape shape = {product.n, {0}};
    for (int d = 0; d < product.n; d++) shape.dim[d] = e->size[product.label[d]];
    *t = product;
    return FL_W(reshape)(FL_W(matmul)(x, b), shape);
}

FL_T *FL_W(einsum)(const char *equation, FL_T *const *xs, int n) {
    fl_tensor *values[FL__TERMS];
    FL_T *x[FL__TERMS];
    fl__einsum e;
    fl__term t;
    if (FL_ABSENT("einsum", equation) || FL_ABSENT("einsum", xs)) return NULL;
    if (n < 1 || n > FL__TERMS)
        return fl_bad("fl_einsum: %d operands, not 1 to %d", n, FL__TERMS);
    for (int i = 0; i < n; i++) {
        if (FL_ABSENT("einsum", xs[i])) return NULL;
        values[i] = FL_VALUE(x[i] = xs[i]);
    }
    if (!fl__einsum_parse(&e, equation, n, values)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_dtype d = fl__einsum_in_one(&e) ? FL_DTYPE_NONE : FL_W(_unhalved)(n, x);
    FL_T *y = FL_W(_einsum_operand)(&e, 0, x[0], &t);
    for (int i = 1; i < n; i++) y = FL_W(_einsum_pair)(&e, y, &t, i, x[i]);
    return FL_GIVE(&s, y ? FL_W(_halved)(FL_W(_relabelled)(y, &t, &e.out), d) : NULL);
}

#endif
/* MIT licence: see LICENSE. */
