/* fl/ops/elementwise.h - element-wise unary and binary ops, where, clamp

   One prototype per line of FL_UNARY_OPS and FL_BINARY_OPS (fl/tensor/op_table.h), which has each op's
   formula, gradient and dtype rule; they run fl_unary_op and fl_binary_op. Binary operands broadcast and
   promote. The gradient formula is one fused kernel (records grad1, grad2) if the backend has it, else run op
   by op. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ELEMENTWISE_H
#define FL_OPS_ELEMENTWISE_H
#include "../tensor/formula.h"
#include "../tensor/where.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops of FL_UNARY_OPS; formulas and dtype rules are in op_table.h. */
FL_API fl_tensor *fl_neg(fl_tensor *x);
FL_API fl_var *fv_neg(fl_var *x);
FL_API fl_tensor *fl_abs(fl_tensor *x);
FL_API fl_var *fv_abs(fl_var *x);
FL_API fl_tensor *fl_exp(fl_tensor *x);
FL_API fl_var *fv_exp(fl_var *x);
FL_API fl_tensor *fl_log(fl_tensor *x);
FL_API fl_var *fv_log(fl_var *x);
FL_API fl_tensor *fl_log1p(fl_tensor *x); /* log(1 + x) */
FL_API fl_var *fv_log1p(fl_var *x);
FL_API fl_tensor *fl_expm1(fl_tensor *x); /* exp(x) - 1 */
FL_API fl_var *fv_expm1(fl_var *x);
FL_API fl_tensor *fl_sqrt(fl_tensor *x);
FL_API fl_var *fv_sqrt(fl_var *x);
FL_API fl_tensor *fl_sin(fl_tensor *x);
FL_API fl_var *fv_sin(fl_var *x);
FL_API fl_tensor *fl_cos(fl_tensor *x);
FL_API fl_var *fv_cos(fl_var *x);
FL_API fl_tensor *fl_tanh(fl_tensor *x);
FL_API fl_var *fv_tanh(fl_var *x);
FL_API fl_tensor *fl_erf(fl_tensor *x);
FL_API fl_var *fv_erf(fl_var *x);
FL_API fl_tensor *fl_floor(fl_tensor *x);
FL_API fl_var *fv_floor(fl_var *x);
FL_API fl_tensor *fl_rint(fl_tensor *x); /* nearest integer, ties to even: torch.round */
FL_API fl_var *fv_rint(fl_var *x);
FL_API fl_tensor *fl_bitwise_not(fl_tensor *x);
FL_API fl_var *fv_bitwise_not(fl_var *x);
FL_API fl_tensor *fl_ceil(fl_tensor *x);
FL_API fl_var *fv_ceil(fl_var *x);
FL_API fl_tensor *fl_trunc(fl_tensor *x); /* towards 0 */
FL_API fl_var *fv_trunc(fl_var *x);
FL_API fl_tensor *fl_frac(fl_tensor *x); /* x - trunc(x) */
FL_API fl_var *fv_frac(fl_var *x);
FL_API fl_tensor *fl_square(fl_tensor *x);
FL_API fl_var *fv_square(fl_var *x);
FL_API fl_tensor *fl_reciprocal(fl_tensor *x);
FL_API fl_var *fv_reciprocal(fl_var *x);
FL_API fl_tensor *fl_rsqrt(fl_tensor *x); /* 1 / sqrt(x) */
FL_API fl_var *fv_rsqrt(fl_var *x);
FL_API fl_tensor *fl_sign(fl_tensor *x);
FL_API fl_var *fv_sign(fl_var *x);
FL_API fl_tensor *fl_deg2rad(fl_tensor *x);
FL_API fl_var *fv_deg2rad(fl_var *x);
FL_API fl_tensor *fl_rad2deg(fl_tensor *x);
FL_API fl_var *fv_rad2deg(fl_var *x);
FL_API fl_tensor *fl_exp2(fl_tensor *x);
FL_API fl_var *fv_exp2(fl_var *x);
FL_API fl_tensor *fl_log2(fl_tensor *x);
FL_API fl_var *fv_log2(fl_var *x);
FL_API fl_tensor *fl_log10(fl_tensor *x);
FL_API fl_var *fv_log10(fl_var *x);
FL_API fl_tensor *fl_tan(fl_tensor *x);
FL_API fl_var *fv_tan(fl_var *x);
FL_API fl_tensor *fl_asin(fl_tensor *x);
FL_API fl_var *fv_asin(fl_var *x);
FL_API fl_tensor *fl_acos(fl_tensor *x);
FL_API fl_var *fv_acos(fl_var *x);
FL_API fl_tensor *fl_atan(fl_tensor *x);
FL_API fl_var *fv_atan(fl_var *x);
FL_API fl_tensor *fl_sinh(fl_tensor *x);
FL_API fl_var *fv_sinh(fl_var *x);
FL_API fl_tensor *fl_cosh(fl_tensor *x);
FL_API fl_var *fv_cosh(fl_var *x);
FL_API fl_tensor *fl_asinh(fl_tensor *x);
FL_API fl_var *fv_asinh(fl_var *x);
FL_API fl_tensor *fl_acosh(fl_tensor *x);
FL_API fl_var *fv_acosh(fl_var *x);
FL_API fl_tensor *fl_atanh(fl_tensor *x);
FL_API fl_var *fv_atanh(fl_var *x);
FL_API fl_tensor *fl_sinc(fl_tensor *x); /* sin(pi x) / (pi x) */
FL_API fl_var *fv_sinc(fl_var *x);
FL_API fl_tensor *fl_logit(fl_tensor *x); /* log(x / (1 - x)) */
FL_API fl_var *fv_logit(fl_var *x);
FL_API fl_tensor *fl_relu(fl_tensor *x);
FL_API fl_var *fv_relu(fl_var *x);
FL_API fl_tensor *fl_sigmoid(fl_tensor *x);
FL_API fl_var *fv_sigmoid(fl_var *x);
FL_API fl_tensor *fl_silu(fl_tensor *x); /* x sigmoid(x) */
FL_API fl_var *fv_silu(fl_var *x);
FL_API fl_tensor *fl_softplus(fl_tensor *x); /* log(1 + exp(x)) */
FL_API fl_var *fv_softplus(fl_var *x);
FL_API fl_tensor *fl_gelu(fl_tensor *x); /* x Phi(x), exact (erf) */
FL_API fl_var *fv_gelu(fl_var *x);
FL_API fl_tensor *fl_gelu_tanh(fl_tensor *x); /* x Phi(x), the tanh approximation of GPT-2 */
FL_API fl_var *fv_gelu_tanh(fl_var *x);
FL_API fl_tensor *fl_relu6(fl_tensor *x); /* min(max(x, 0), 6) */
FL_API fl_var *fv_relu6(fl_var *x);
FL_API fl_tensor *fl_hardsigmoid(fl_tensor *x); /* relu6(x + 3) / 6 */
FL_API fl_var *fv_hardsigmoid(fl_var *x);
FL_API fl_tensor *fl_hardswish(fl_tensor *x); /* x relu6(x + 3) / 6 */
FL_API fl_var *fv_hardswish(fl_var *x);
FL_API fl_tensor *fl_mish(fl_tensor *x); /* x tanh(softplus(x)) */
FL_API fl_var *fv_mish(fl_var *x);
FL_API fl_tensor *fl_selu(fl_tensor *x);
FL_API fl_var *fv_selu(fl_var *x);
FL_API fl_tensor *fl_softsign(fl_tensor *x); /* x / (1 + |x|) */
FL_API fl_var *fv_softsign(fl_var *x);
FL_API fl_tensor *fl_logsigmoid(fl_tensor *x); /* log(sigmoid(x)) */
FL_API fl_var *fv_logsigmoid(fl_var *x);
FL_API fl_tensor *fl_tanhshrink(fl_tensor *x); /* x - tanh(x) */
FL_API fl_var *fv_tanhshrink(fl_var *x);
FL_API fl_tensor *fl_isnan(fl_tensor *x);
FL_API fl_var *fv_isnan(fl_var *x);
FL_API fl_tensor *fl_isfinite(fl_tensor *x);
FL_API fl_var *fv_isfinite(fl_var *x);
FL_API fl_tensor *fl_isinf(fl_tensor *x);
FL_API fl_var *fv_isinf(fl_var *x);
FL_API fl_tensor *fl_isposinf(fl_tensor *x);
FL_API fl_var *fv_isposinf(fl_var *x);
FL_API fl_tensor *fl_isneginf(fl_tensor *x);
FL_API fl_var *fv_isneginf(fl_var *x);
FL_API fl_tensor *fl_signbit(fl_tensor *x); /* x < 0 or x is -0; false for NaN */
FL_API fl_var *fv_signbit(fl_var *x);
FL_API fl_tensor *fl_logical_not(fl_tensor *x);
FL_API fl_var *fv_logical_not(fl_var *x);
/* The ops of FL_BINARY_OPS. */
FL_API fl_tensor *fl_add(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_add(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_sub(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_sub(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_mul(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_mul(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_div(fl_tensor *a, fl_tensor *b); /* true division: integers become f32 */
FL_API fl_var *fv_div(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_pow(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_pow(fl_var *a, fl_var *b);
/* a - b floor(a / b): the sign of b. Integer division by 0 is an error. */
FL_API fl_tensor *fl_remainder(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_remainder(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_atan2(fl_tensor *a, fl_tensor *b); /* angle of the point (x = b, y = a) */
FL_API fl_var *fv_atan2(fl_var *a, fl_var *b);
/* Of maximum and minimum, each of two equal operands gets half of the gradient. */
FL_API fl_tensor *fl_maximum(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_maximum(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_minimum(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_minimum(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_eq(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_eq(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_ne(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_ne(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_lt(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_lt(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_le(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_le(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_gt(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_gt(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_ge(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_ge(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_bitwise_and(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_bitwise_and(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_bitwise_or(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_bitwise_or(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_bitwise_xor(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_bitwise_xor(fl_var *a, fl_var *b);
/* a << b, that is a 2^b; 0 if b < 0 or b is at least the bit width */
FL_API fl_tensor *fl_shift_left(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_shift_left(fl_var *a, fl_var *b);
/* a >> b, that is floor(a / 2^b); 0, or -1 for a < 0, if b < 0 or b is at least the bit width */
FL_API fl_tensor *fl_shift_right(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_shift_right(fl_var *a, fl_var *b);
/* a - b trunc(a / b): the sign of a. Integer division by 0 is an error. */
FL_API fl_tensor *fl_fmod(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_fmod(fl_var *a, fl_var *b);
/* Maximum and minimum that ignore a NaN if the other operand is a number. */
FL_API fl_tensor *fl_fmax(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_fmax(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_fmin(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_fmin(fl_var *a, fl_var *b);
/* |a| with the sign of b; positive for b = NaN */
FL_API fl_tensor *fl_copysign(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_copysign(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_heaviside(fl_tensor *a, fl_tensor *b); /* a < 0: 0; a == 0: b; a > 0: 1 */
FL_API fl_var *fv_heaviside(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_ldexp(fl_tensor *a, fl_tensor *b); /* a 2^b */
FL_API fl_var *fv_ldexp(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_xlogy(fl_tensor *a, fl_tensor *b); /* a log(b); 0 where a is 0 */
FL_API fl_var *fv_xlogy(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_logaddexp(fl_tensor *a, fl_tensor *b); /* log(exp(a) + exp(b)) */
FL_API fl_var *fv_logaddexp(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_logaddexp2(fl_tensor *a, fl_tensor *b); /* log2(2^a + 2^b) */
FL_API fl_var *fv_logaddexp2(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_prelu(fl_tensor *a, fl_tensor *b); /* a > 0 ? a : b a */
FL_API fl_var *fv_prelu(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_logical_and(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_logical_and(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_logical_or(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_logical_or(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_logical_xor(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_logical_xor(fl_var *a, fl_var *b);
/* c ? a : b, fl_where on variables; c gets no gradient. */
FL_API fl_var *fv_where(fl_var *c, fl_var *a, fl_var *b);
/* min(max(x, low), high). The bounds are numbers or tensors; NULL means no bound. The gradient dy goes to x
   where low <= x <= high, to low where x < low < high, to high where max(x, low) > high. */
FL_API fl_tensor *fl_clamp(fl_tensor *x, fl_tensor *low, fl_tensor *high);
FL_API fl_var *fv_clamp(fl_var *x, fl_var *low, fl_var *high);

/* Runs the gradient formula of op, one of FL_UNARY_OPS, as one fused kernel: x, y, dy -> dx, written into out
   (which may be dy) or, if out is NULL, a new tensor. Returns NULL without an error if the backend has no
   fused gradient for op; the caller then runs the formula op by op. */
FL_API fl_tensor *fl_grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy, fl_tensor *out);
/* The same for op, one of FL_BINARY_OPS, with all operands of one shape. want: bit 0 asks for *da, bit 1 for
   *db. Returns false without an error if the backend has no fused gradient for op. */
FL_API bool fl_grad2(fl_op op, int want, fl_tensor *a, fl_tensor *b, fl_tensor *y, fl_tensor *dy,
                     fl_tensor **da, fl_tensor **db);
/* A primitive on variables, as fl_formula_vtable.step. */
FL_API void *fv_primitive(fl_primitive primitive, void *const x[], void *user);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ELEMENTWISE_H */

#if defined(FL_IMPL_ONLY_OPS_ELEMENTWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ELEMENTWISE_IMPL
#define FL_OPS_ELEMENTWISE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "autocast.h"
#include "copy.h"
#include "view.h"
/* ---- on tensors ---- */

fl_tensor *fl_clamp(fl_tensor *x, fl_tensor *low, fl_tensor *high) {
    if (fl_is_null_arg("fl_clamp", x) || ((!low || !high) && fl_error())) return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_tensor *y = low ? fl_maximum(x, low) : x;
    return fl_scope_return(&s, high ? fl_minimum(y, high) : y);
}

/* True if the backend has the fused kernel and no op of the formula was replaced. */
static bool fl__grad_by_slot(const fl_tensor *dy, fl_op slot, fl_op op) {
    const fl_backend *be = fl_backend_at(dy->backend);
    return be->op[slot] && !be->no_grad[op];
}

/* True if t is a number or a float of dy's dtype, shape and backend. */
static bool fl__grad_operand(const char *fn, const fl_tensor *t, const fl_tensor *dy) {
    if (fl_is_null_arg(fn, t) || fl_is_null_arg(fn, dy)) return false;
    if (!dy->weak && (t->weak || (t->dtype == dy->dtype && t->backend == dy->backend &&
                                  fl_dtype_is_float(dy->dtype) && fl_same_shape(t, dy))))
        return true;
    return fl_err_false("%s: operands must be floats of dy's dtype, shape and backend: got %s %s, dy %s %s",
                        fn, fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(dy->dtype),
                        FL_SHAPE_TEXT(dy));
}

fl_tensor *fl_grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy, fl_tensor *out) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 1)
        return fl_err_null("fl_grad1: op %d is not in FL_UNARY_OPS: it has no formula of x", (int)op);
    if (!fl__grad_operand("fl_grad1", x, dy) || !fl__grad_operand("fl_grad1", y, dy)) return NULL;
    if (!fl__grad_by_slot(dy, FL_OP_grad1, op)) return NULL;
    fl_grad_args a = {op};
    fl_call c;
    fl_call_begin(&c, FL_OP_grad1, 1, 3, &a);
    c.in[0] = x, c.in[1] = y, c.in[2] = dy;
    c.out[0] = out ? out : fl_out_layout_like(fl_out_like(dy, dy->dtype), dy);
    return c.out[0] ? fl_call_result(&c) : fl_raise();
}

bool fl_grad2(fl_op op, int want, fl_tensor *a, fl_tensor *b, fl_tensor *y, fl_tensor *dy,
              fl_tensor **da, fl_tensor **db) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 2)
        return fl_err_false("fl_grad2: op %d is not in FL_BINARY_OPS: it has no formula of a and b", (int)op);
    if (!fl__grad_operand("fl_grad2", a, dy) || !fl__grad_operand("fl_grad2", b, dy) ||
        !fl__grad_operand("fl_grad2", y, dy))
        return false;
    if (!fl__grad_by_slot(dy, FL_OP_grad2, op)) return false;
    fl_grad_args args = {op};
    fl_call c;
    fl_call_begin(&c, FL_OP_grad2, 2, 4, &args);
    c.in[0] = a, c.in[1] = b, c.in[2] = y, c.in[3] = dy;
    for (int i = 0; i < 2; i++) {
        c.out[i] = want >> i & 1 ? fl_out_layout_like(fl_out_like(dy, dy->dtype), dy) : NULL;
        if (want >> i & 1 && !c.out[i]) return fl_raise() != NULL;
    }
    if (!fl_call_run(&c)) return fl_raise() != NULL;
    if (want & 1) *da = c.out[0];
    if (want & 2) *db = c.out[1];
    return true;
}

/* ---- on variables ---- */

/* Properties of the gradient formula of operand i, in bits 8 i to 8 i + 7: */
enum {
    FV__READS_A = 1, /* reads a, or x */
    FV__READS_B = 2,
    FV__READS_Y = 4,
    FV__READS_DY = 8,   /* reads dy: the gradient is not 0 everywhere */
    FV__MULTI_OP = 16,   /* more than one op: fused if the backend can */
    FV__IS_DY = 32, /* is dy itself */
    FV__COMPUTED = 64   /* the entry is computed */
};

static unsigned fv__needs_of_formula(fl_op op, int i) {
    const int arity = fl_op_get_info(op)->arity;
    if (i >= arity) return 0;
    const fl_formula *f = fl_op_program(op, i ? FL_PROGRAM_DB : FL_PROGRAM_DA);
    unsigned needs = f->n_steps > 1 ? FV__MULTI_OP : !f->n_steps && f->out[0] == arity + 1 ? FV__IS_DY : 0;
    if (f->reads & 1) needs |= FV__READS_A;
    if (f->reads & 2 && arity == 2) needs |= FV__READS_B;
    if (f->reads >> arity & 1) needs |= FV__READS_Y;
    if (f->reads >> (arity + 1) & 1) needs |= FV__READS_DY;
    return needs;
}

/* Computed from the formula's program once per op. Threads that race store the same value. */
static unsigned fv__needs_of(fl_op op) {
    static unsigned known[FL_TABLE_OPS];
    unsigned needs = __atomic_load_n(&known[op], __ATOMIC_RELAXED);
    if (needs) return needs;
    needs = FV__COMPUTED | fv__needs_of_formula(op, 0) | fv__needs_of_formula(op, 1) << 8;
    __atomic_store_n(&known[op], needs, __ATOMIC_RELAXED);
    return needs;
}

/* An operand of the fused kernel, in dy's dtype and shape; dy in place of an operand that the formula does
   not read (x NULL). */
static fl_tensor *fv__operand(fl_var *x, fl_var *dy) {
    fl_tensor *t = fl_cast(x ? x->value : dy->value, dy->value->dtype);
    return !t || fl_same_shape(t, dy->value) ? t : fl_expand(t, fl_shape_of(dy->value));
}

static fl_var *fv__unary(fl_op op, fl_var *x);
static fl_var *fv__binary(fl_op op, fl_var *a, fl_var *b);

static void *fv__formula_number(double value, void *user) {
    (void)user;
    return fv_num(value);
}

FL_API void *fv_primitive(fl_primitive primitive, void *const x[], void *user) {
    (void)user;
    if (!fl_given(x, "fv_primitive", "the list of operands")) return NULL;
    const fl_op op = fl_primitive_op(primitive);
    if (op == FL_OP_where) return fv_where(x[0], x[1], x[2]);
    return fl_op_get_info(op)->arity == 1 ? fv__unary(op, x[0]) : fv__binary(op, x[0], x[1]);
}

/* The gradient of operand i, op by op: for one-op formulas, without a fused kernel, and if it is recorded. */
static fl_var *fv__gradient(fl_op op, int i, void *const in[]) {
    static const fl_formula_vtable variables = {fv__formula_number, fv_primitive, NULL};
    void *d[FL_FORMULA_OUTPUTS];
    const fl_formula *f = fl_op_program(op, i ? FL_PROGRAM_DB : FL_PROGRAM_DA);
    return f && fl_formula_run(f, &variables, in, d) ? d[0] : NULL;
}

static fl_tensor *fv__unary_recompute(fl_node *n) {
    return fl_unary_op(fv_op(n), fv_value(fv_saved(n, 0)));
}

/* dx is written over dy if nothing else holds dy. */
static void fv__unary_back(fl_node *n, fl_var *dy) {
    const fl_op op = fv_op(n);
    fl_tensor *own = fv_own_grad(n, dy);
    const int n_saved = fv_saved_count(n);
    fl_var *x = n_saved > 0 ? fv_saved(n, 0) : NULL, *y = n_saved > 1 ? fv_saved(n, 1) : NULL;
    fl_tensor *dx = NULL;
    if (fl_error() || !fv_needs(n, 0)) return;
    if (!fl_grad_enabled() && fv__needs_of(op) & FV__MULTI_OP)
        dx = fl_grad1(op, fv__operand(x, dy), fv__operand(y, dy), dy->value, own);
    if (dx) fv_add_grad(n, 0, dx == own ? dy : fv_const(dx));
    else if (!fl_error()) fv_add_grad(n, 0, fv__gradient(op, 0, (void *[]){x, y, dy}));
}

/* Assigns field by field: compilers turn a literal into a slow string instruction. */
static fl_var *fv__record_line(fl_op op, fl_tensor *value, fl_back_fn back, int n_in, fl_var *const *in,
                               int n_saved, fl_var *const *saved, unsigned blocked,
                               fl_tensor *(*recompute)(fl_node *n)) {
    fv_record_opts o;
    o.name = fl_op_get_info(op)->name;
    o.back = back;
    o.in = (fv_list){n_in, in};
    o.saved = (fv_list){n_saved, saved};
    o.op = op;
    o.blocked = blocked;
    o.recompute = recompute;
    o.n_recompute_only = 0;
    o.args = NULL;
    o.bytes = 0;
    o.free_args = NULL;
    return fv_record_opt(value, &o);
}

FL_API fl_var *fv_record_formula(fl_op op, fl_var *x, fl_tensor *value) {
    const fl_op_info *info = fl_op_get_info(op);
    if (!info || info->arity != 1) return fl_err_null("fv_record_formula: op %d is not in FL_UNARY_OPS: it "
                                                      "has no formula of x", op);
    if (!value || !x->requires_grad) return fv_const(value);
    unsigned needs = fv__needs_of(op);
    fl_var *saved[] = {needs & FV__READS_A ? x : NULL, needs & FV__READS_Y ? FV_OUT : NULL};
    int n_saved = needs & FV__READS_Y ? 2 : needs & FV__READS_A ? 1 : 0;
    return fv__record_line(op, value, fv__unary_back, 1, &x, n_saved, saved, needs & FV__READS_DY ? 0 : 1,
                           n_saved == 1 ? fv__unary_recompute : NULL);
}

static fl_var *fv__unary(fl_op op, fl_var *x) {
    if (!fv_autocast(op, &x, 1)) return NULL;
    return fv_record_formula(op, x, fl_unary_op(op, fv_value(x)));
}

FL_API bool fv_formula_reads_x(fl_op op) {
    const fl_op_info *info = fl_op_get_info(op);
    return info && info->arity == 1 && fv__needs_of(op) & FV__READS_A;
}

/* x in dy's dtype. A weak number becomes a tensor: formulas combine it with constants, and two numbers would
   give f32, which rounds if the other operand is f64. */
static fl_var *fv__strong(fl_var *x, fl_var *dy) {
    if (!x) return NULL;
    if (!x->value->weak) return fv_cast(x, dy->value->dtype);
    return fv_const(fl_new_full(dy->value, FL_SCALAR_SHAPE, x->value->f64));
}

static bool fv__binary_fused(fl_node *n, int want, fl_var *a, fl_var *b, fl_var *y, fl_var *dy) {
    fl_tensor *d[2] = {NULL, NULL}, *at = fv__operand(a, dy), *bt = fv__operand(b, dy),
              *yt = fv__operand(y, dy);
    if (!fl_grad2(fv_op(n), want, at, bt, yt, dy->value, &d[0], &d[1])) return false;
    for (int i = 0; i < 2; i++)
        if (want >> i & 1) fv_add_grad(n, i, fv_const(d[i]));
    return true;
}

static void fv__binary_back(fl_node *n, fl_var *dy) {
    const fl_op op = fv_op(n);
    const int want = fv_needs(n, 0) | fv_needs(n, 1) << 1, n_saved = fv_saved_count(n);
    unsigned needs = fv__needs_of(op);
    fl_var *a = n_saved > 0 ? fv_saved(n, 0) : NULL, *b = n_saved > 1 ? fv_saved(n, 1) : NULL;
    fl_var *y = n_saved > 2 ? fv_saved(n, 2) : NULL;
    if (fl_error()) return;
    if ((want & 1 && needs & FV__MULTI_OP) || (want & 2 && needs >> 8 & FV__MULTI_OP)) {
        a = fv__strong(a, dy);
        b = fv__strong(b, dy);
        if ((!fl_grad_enabled() && fv__binary_fused(n, want, a, b, y, dy)) || fl_error()) return;
    }
    for (int i = 0; i < 2; i++, needs >>= 8)
        if (want >> i & 1)
            fv_add_grad(n, i, needs & FV__IS_DY ? dy : fv__gradient(op, i, (void *[]){a, b, y, dy}));
}

static fl_var *fv__binary(fl_op op, fl_var *a, fl_var *b) {
    fl_var *in[] = {a, b};
    if (!fv_autocast(op, in, 2)) return NULL;
    a = in[0], b = in[1];
    fl_tensor *value = fl_binary_op(op, fv_value(a), fv_value(b));
    if (!value || !(a->requires_grad || b->requires_grad)) return fv_const(value);
    unsigned needs = fv__needs_of(op), da = needs & 255, db = needs >> 8;
    unsigned read = (a->requires_grad ? da : 0) | (b->requires_grad ? db : 0);
    fl_var *saved[] = {read & FV__READS_A ? a : NULL, read & FV__READS_B ? b : NULL,
                       read & FV__READS_Y ? FV_OUT : NULL};
    int n_saved = read & FV__READS_Y ? 3 : read & FV__READS_B ? 2 : read & FV__READS_A ? 1 : 0;
    const unsigned blocked = (da & FV__READS_DY ? 0u : 1u) | (db & FV__READS_DY ? 0u : 2u);
    return fv__record_line(op, value, fv__binary_back, 2, in, n_saved, saved, blocked, NULL);
}

/* ---- one function per table line: fl_add(a, b), fv_add(a, b), fl_exp(x), fv_exp(x) and so on ---- */

#define FL__UNARY(op, ...) \
    fl_tensor *fl_##op(fl_tensor *x) { return fl_unary_op(FL_OP_##op, x); } \
    fl_var *fv_##op(fl_var *x) { return fv__unary(FL_OP_##op, x); }
#define FL__BINARY(op, ...) \
    fl_tensor *fl_##op(fl_tensor *a, fl_tensor *b) { return fl_binary_op(FL_OP_##op, a, b); } \
    fl_var *fv_##op(fl_var *a, fl_var *b) { return fv__binary(FL_OP_##op, a, b); }
FL_UNARY_OPS(FL__UNARY)
FL_BINARY_OPS(FL__BINARY)
#undef FL__UNARY
#undef FL__BINARY

static void fv__where_back(fl_node *n, fl_var *dy) {
    fl_var *c = fv_saved(n, 0);
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_where(c, dy, fv_num(0)));
    if (fv_needs(n, 2)) fv_add_grad(n, 2, fv_where(c, fv_num(0), dy));
}

FL_API fl_var *fv_where(fl_var *c, fl_var *a, fl_var *b) {
    return fv_record_args("where", fl_where(fv_value(c), fv_value(a), fv_value(b)), fv__where_back,
                          FV_IN(c, a, b), FV_SAVE(c), NULL, 0);
}

static void fv__clamp_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0), *low = fv_saved(n, 1), *high = fv_saved(n, 2), *zero = fv_num(0);
    fl_var *from = low ? fv_ge(x, low) : NULL, *to = high ? fv_le(x, high) : NULL;
    fl_var *inside = from && to ? fv_logical_and(from, to) : from ? from : to;
    if (fv_needs(n, 0)) fv_add_grad(n, 0, inside ? fv_where(inside, dy, zero) : dy);
    fl_var *below = fv_needs(n, 1) ? fv_lt(x, low) : NULL;
    if (below && high) below = fv_logical_and(below, fv_lt(low, high));
    if (below) fv_add_grad(n, 1, fv_where(below, dy, zero));
    if (fv_needs(n, 2)) fv_add_grad(n, 2, fv_where(fv_gt(low ? fv_maximum(x, low) : x, high), dy, zero));
}

fl_var *fv_clamp(fl_var *x, fl_var *low, fl_var *high) {
    fl_tensor *y = fl_clamp(fv_value(x), fv_value(low), fv_value(high));
    return fv_record_args("clamp", y, fv__clamp_back, FV_IN(x, low, high), FV_SAVE(x, low, high), NULL, 0);
}

#endif /* FL_OPS_ELEMENTWISE_IMPL */
#endif
/* MIT licence: see LICENSE. */
