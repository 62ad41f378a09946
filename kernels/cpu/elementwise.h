/* kernels/cpu/elementwise.h - the slots of the op tables' formulas and of their gradients, and where

   One slot runs all one-operand formulas, one all two-operand formulas. c->op and the dtype pick the
   loop: of a primitive (primitives.h), of a formula that is hot (elementwise.inc), or the executor
   with the formula's program (formula.h). Small contiguous operands go straight to it; a pass
   (common.h) takes other layouts, large operands and the narrow dtypes. */
#include "common.h"
#include "formula.h"
#include "primitives.h"
#ifndef FL_CPU_ELEMENTWISE_H
#define FL_CPU_ELEMENTWISE_H
#endif

#if defined(FL_IMPL_ONLY_CPU_ELEMENTWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ELEMENTWISE_IMPL
#define FL_CPU_ELEMENTWISE_IMPL
FL__LOOPS_BEGIN

/* The lines of the op tables that have compiled loops: their formulas, their gradients. */
#include "../fl_words.h"
#define FL__YES(...) __VA_ARGS__
#define FL__NO(...)
#define FL__HOT_REQ FL__NO
#define FL__HOT_HOT FL__NO
#define FL__HOT_OPT FL__YES
#define FL__HOT_DEF FL__NO
#define FL__HOT_GRAD_REQ FL__NO
#define FL__HOT_GRAD_HOT FL__YES
#define FL__HOT_GRAD_OPT FL__YES
#define FL__HOT_GRAD_DEF FL__NO
#define FL__LEVEL_TEXT "elementwise.inc"
#define FL__UNIT formula
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"

enum { FL__FORMULAS = FL_OP_copy }; /* the first op that is none */
#define FL__LOOPS(name) \
    {FL__AT_LEVELS(fl__formula_##name##_f32) [FL__VARIANT_F64] = fl__formula_##name##_f64_portable}
#define FL__ROW(op, cls, need, ...) \
    FL__HOT_##need([FL_OP_##op][0] = FL__LOOPS(op), ) \
    FL__HOT_GRAD_##need([FL_OP_##op][1] = FL__LOOPS(op##_dx), )
static const fl__loop fl__hot_loops[FL__FORMULAS][2][FL__VARIANTS] = {FL_UNARY_OPS(FL__ROW)};
#undef FL__ROW
#undef FL__LOOPS
#undef FL__YES
#undef FL__NO
#undef FL__HOT_REQ
#undef FL__HOT_HOT
#undef FL__HOT_OPT
#undef FL__HOT_DEF
#undef FL__HOT_GRAD_REQ
#undef FL__HOT_GRAD_HOT
#undef FL__HOT_GRAD_OPT
#undef FL__HOT_GRAD_DEF
#define FL_WORDS_END
#include "../fl_words.h"

/* The primitive that an op is, plus 1. */
static const uint8_t fl__primitive_of[] = {
#define FL__ROW(word, op, operands, cls) [FL_OP_##op] = FL_PRIMITIVE_##op + 1,
    FL_PRIMITIVES(FL__ROW)
#undef FL__ROW
};

FL_PRIVATE fl__loop fl__formula_loop(fl_op op, fl_dtype d) {
    if (fl__primitive_of[op]) return fl__primitive_loop((fl_primitive)(fl__primitive_of[op] - 1), d);
    return fl__hot_loops[op][0][fl__variant(d)];
}

/* The same for the gradient of a formula of x. */
static fl__loop fl__gradient_loop(fl_op op, fl_dtype d) {
    return fl__hot_loops[op][1][fl__variant(d)];
}

/* fl_data for dtypes that have loops, whose sizes are known here. */
static inline void *fl__bytes(const fl_tensor *t) {
    int shift = t->dtype == FL_F32 ? 2 : t->dtype == FL_B8 ? 0 : 3;
    return (char *)t->buffer->ptr + t->offset * ((int64_t)1 << shift);
}

/* True, with the number of elements, if all are contiguous: what nearly every call is. */
static inline bool fl__all_dense(const fl_tensor *y, const fl_tensor *a, const fl_tensor *b,
                                 int64_t *numel) {
    int64_t n = 1;
    if (a->weak | b->weak) return false;
    for (int i = y->ndim - 1; i >= 0; i--) {
        int64_t dim = y->shape[i];
        if (dim != 1 && ((y->stride[i] != n) | (a->stride[i] != n) | (b->stride[i] != n)))
            return false;
        n *= dim;
    }
    *numel = n;
    return true;
}

/* One pass over all operands of c by the loop, or where there is none by the program. All operands
   are of dtype d or weak; outputs that are conditions are b8. */
static bool fl__formula_pass(const fl_call *c, fl_op op, fl_program which, fl_dtype d, fl__loop loop) {
    const fl_dtype wide = fl_dtype_wide(d);
    const fl_tensor *y = c->out[0] ? c->out[0] : c->out[1];
    fl__executor e;
    bool zero = false;
    fl__pass p;
    if (!loop || (op == FL_OP_remainder && wide == FL_I64)) { /* its divisor is checked */
        const fl_formula *f = fl_op_program(op, which);
        if (!f) return false;
        if (!fl__executor_begin(&e, f, wide)) return fl__no_kernel(c, d);
        if (wide == FL_I64) e.zero = &zero;
        loop = fl__executor_run;
    }
    fl__pass_begin(&p, loop, &e);
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    fl__pass_follow(&p, y);
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) fl__pass_add_wide(&p, c->out[i], FL_WRITE, wide);
    for (int i = 0; i < c->n_in; i++) fl__pass_add_wide(&p, c->in[i], FL_READ, wide);
    fl__pass_run(&p, fl_numel(y));
    return !zero || fl_fail("fl_%s: integer division by zero", fl_op_get_info(op)->name);
}

/* The dtype that y is computed in, when all operands are weak numbers. */
static fl_dtype fl__dtype_of_numbers(const fl_call *c) {
    const fl_op_class cls = fl_op_get_info(c->op)->cls;
    return cls == FL_CLASS_CMP ? FL_F64 : cls == FL_CLASS_BOOL ? FL_B8 : c->out[0]->dtype;
}

/* Small dense operands go straight to the loop. Narrow dtypes have none of their own. */
FL_PRIVATE bool fl__cpu_unary(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *x = c->in[0];
    int64_t n;
    (void)self;
    fl__loop loop = fl__formula_loop(c->op, x->dtype);
    if (!loop || !fl__all_dense(y, x, x, &n) || n > FL__GRAIN) {
        const fl_dtype d = x->weak ? fl__dtype_of_numbers(c) : x->dtype;
        return fl__formula_pass(c, c->op, FL_PROGRAM_Y, d, fl__formula_loop(c->op, fl_dtype_wide(d)));
    }
    if (!fl_out_make(y)) return false;
    loop((void *[]){fl__bytes(y), fl__bytes(x)}, n, NULL);
    return true;
}

FL_PRIVATE bool fl__cpu_binary(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *a = c->in[0], *b = c->in[1];
    const bool checked = c->op == FL_OP_remainder; /* its divisor */
    int64_t n;
    (void)self;
    fl__loop loop = fl__formula_loop(c->op, a->dtype);
    if (!loop || checked || !fl__all_dense(y, a, b, &n) || n > FL__GRAIN) {
        const fl_dtype d = !a->weak ? a->dtype : !b->weak ? b->dtype : fl__dtype_of_numbers(c);
        return fl__formula_pass(c, c->op, FL_PROGRAM_Y, d, fl__formula_loop(c->op, fl_dtype_wide(d)));
    }
    if (!fl_out_make(y)) return false;
    loop((void *[]){fl__bytes(y), fl__bytes(a), fl__bytes(b)}, n, NULL);
    return true;
}

FL_PRIVATE bool fl__cpu_grad1(const fl_backend *self, const fl_call *c) {
    fl_tensor *dx = c->out[0], *x = c->in[0], *y = c->in[1], *dy = c->in[2];
    const fl_op op = ((const fl_grad_args *)c->args)->op;
    int64_t n;
    (void)self;
    fl__loop loop = fl__gradient_loop(op, dx->dtype);
    if (!loop || !fl__all_dense(dx, x, y, &n) || !fl__all_dense(dx, dy, dy, &n) || n > FL__GRAIN)
        return fl__formula_pass(c, op, FL_PROGRAM_DA, dx->dtype,
                                fl__gradient_loop(op, fl_dtype_wide(dx->dtype)));
    if (!fl_out_make(dx)) return false;
    loop((void *[]){fl__bytes(dx), fl__bytes(x), fl__bytes(y), fl__bytes(dy)}, n, NULL);
    return true;
}

FL_PRIVATE bool fl__cpu_grad2(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_tensor *da = c->out[0], *db = c->out[1];
    if (!da && !db) return true;
    const fl_program which = !db ? FL_PROGRAM_DA : !da ? FL_PROGRAM_DB : FL_PROGRAM_DA_DB;
    return fl__formula_pass(c, ((const fl_grad_args *)c->args)->op, which, (da ? da : db)->dtype, NULL);
}

FL_PRIVATE bool fl__cpu_where(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    const fl_dtype wide = fl_dtype_wide(y->dtype);
    fl__loop loop = fl__primitive_loop(FL_PRIMITIVE_where, wide);
    fl__pass p;
    if (!loop) return fl__no_kernel(c, y->dtype);
    if (!fl_out_make(y)) return false;
    fl__pass_begin(&p, loop, NULL);
    fl__pass_follow(&p, y);
    fl__pass_add_wide(&p, y, FL_WRITE, wide);
    fl__pass_add(&p, c->in[0], FL_READ, FL_B8);
    fl__pass_add_wide(&p, c->in[1], FL_READ, wide);
    fl__pass_add_wide(&p, c->in[2], FL_READ, wide);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
