/* kernels/cpu/elementwise.h - slots of the op tables' formulas, of their gradients, of where, and of programs

   One slot runs all formulas of the tables. c->op and the dtype select the loop: of a primitive
   (primitives.h), of a hot formula (elementwise.inc), or the executor with the formula's program (formula.h).
   Small contiguous operands are passed to it directly; a pass (common.h) handles other layouts, large
   operands and narrow dtypes. */
#ifndef FL_CPU_ELEMENTWISE_H
#define FL_CPU_ELEMENTWISE_H
#include "../../fl/records/formula.h"
#include "slots.h"
#include "formula.h"
#include "primitives.h"
#include "random.h"
/* Registers the slot of formula. */
FL_PRIVATE void fl__cpu_formula_slots(fl_backend *cpu);
/* Runs a record of formula whose numbers are of dtype d, f32 or f64. Operands of the other of these dtypes
   are converted. Inputs i with from[i].sequence are no operands of the record, but generated: then outputs
   are dense. */
FL_PRIVATE bool fl__program_run(const fl_call *c, fl_dtype d, const fl__generator from[]);
#endif

#if defined(FL_IMPL_ONLY_CPU_ELEMENTWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ELEMENTWISE_IMPL
#define FL_CPU_ELEMENTWISE_IMPL
FL__LOOPS_BEGIN

/* Which lines of the op tables have compiled loops: for formulas, and for gradients. */
#include "../fl_primitives.h"
#define FL__YES(...) __VA_ARGS__
#define FL__NO(...)
#define FL__HOT_CORE FL__NO
#define FL__HOT_CORE_HOT FL__NO
#define FL__HOT_COMPILED FL__YES
#define FL__HOT_COMPOSED FL__NO
#define FL__HOT_GRAD_CORE FL__NO
#define FL__HOT_GRAD_CORE_HOT FL__YES
#define FL__HOT_GRAD_COMPILED FL__YES
#define FL__HOT_GRAD_COMPOSED FL__NO
#define FL__GRAD_FLOAT FL__YES
#define FL__GRAD_NUM FL__YES
#define FL__GRAD_ANY FL__YES
#define FL__GRAD_CMP FL__NO
#define FL__LEVEL_TEXT "elementwise.inc"
#define FL__UNIT formula
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"

enum { FL__FORMULAS = FL_OP_copy }; /* the first op that is not a formula */
#define FL__ROW(op, which, name) \
    [FL_OP_##op][FL_PROGRAM_##which] = {FL__AT_LEVELS(fl__formula_##name##_f32) \
                                        [FL__VARIANT_F64] = fl__formula_##name##_f64_portable},
#define FL__UNARY(op, cls, need, ...) \
    FL__HOT_##need(FL__ROW(op, Y, op)) FL__HOT_GRAD_##need(FL__GRAD_##cls(FL__ROW(op, DA, op##_da)))
#define FL__BINARY(op, cls, need, ...) \
    FL__HOT_##need(FL__ROW(op, Y, op)) \
    FL__HOT_GRAD_##need(FL__GRAD_##cls(FL__ROW(op, DA, op##_da) FL__ROW(op, DB, op##_db) \
                                       FL__ROW(op, DA_DB, op##_da_db)))
static const fl__loop fl__hot_loops[FL__FORMULAS][FL_PROGRAM_DA_DB + 1][FL__VARIANTS] = {
    FL_UNARY_OPS(FL__UNARY) FL_BINARY_OPS(FL__BINARY)};
#undef FL__ROW
#undef FL__UNARY
#undef FL__BINARY
#undef FL__YES
#undef FL__NO
#undef FL__HOT_CORE
#undef FL__HOT_CORE_HOT
#undef FL__HOT_COMPILED
#undef FL__HOT_COMPOSED
#undef FL__HOT_GRAD_CORE
#undef FL__HOT_GRAD_CORE_HOT
#undef FL__HOT_GRAD_COMPILED
#undef FL__HOT_GRAD_COMPOSED
#undef FL__GRAD_FLOAT
#undef FL__GRAD_NUM
#undef FL__GRAD_ANY
#undef FL__GRAD_CMP
#define FL_PRIMITIVES_END
#include "../fl_primitives.h"

/* The primitive of an op, plus 1; 0: none. */
static const uint8_t fl__primitive_of[] = {
#define FL__ROW(word, op, operands, cls) [FL_OP_##op] = FL_PRIMITIVE_##op + 1,
    FL_PRIMITIVES(FL__ROW)
#undef FL__ROW
};

/* The compiled loop of a formula; NULL if none. */
static fl__loop fl__compiled_loop(fl_op op, fl_program which, fl_dtype d) {
    if (which == FL_PROGRAM_Y && fl__primitive_of[op])
        return fl__primitive_loop((fl_primitive)(fl__primitive_of[op] - 1), d);
    return fl__hot_loops[op][which][fl__variant(d)];
}

FL_PRIVATE fl__loop fl__formula_loop(fl_op op, fl_dtype d) {
    return fl__compiled_loop(op, FL_PROGRAM_Y, d);
}

/* fl_data for dtypes that have loops, whose sizes are known here. */
static inline void *fl__bytes(const fl_tensor *t) {
    int shift = t->dtype == FL_F32 ? 2 : t->dtype == FL_B8 ? 0 : 3;
    return (char *)t->buffer->ptr + t->offset * ((int64_t)1 << shift);
}

/* Whether all are contiguous, as in nearly every call; *numel: the number of elements. */
static inline bool fl__all_dense(fl_tensor *const t[], int n, int64_t *numel) {
    *numel = 1;
    for (int i = t[0]->ndim - 1; i >= 0; i--) {
        const int64_t dim = t[0]->shape[i];
        for (int k = 0; k < n && dim != 1; k++)
            if (t[k]->stride[i] != *numel) return false;
        *numel *= dim;
    }
    return true;
}

enum { FL__BROADCAST_ROW = 256 }; /* most elements to which a number is broadcast without a pass */

/* Whether t is one element: a number, or a tensor expanded from one. */
static bool fl__is_scalar(const fl_tensor *t) {
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != 1 && t->stride[i]) return false;
    return true;
}

/* Fills a row with n copies of that element, in dtype d if it is weak. */
static void *fl__broadcast_row(const fl_tensor *t, fl_dtype d, int64_t n, void *row) {
    const uint64_t bits = t->weak ? fl__weak_bits(t, d) : 0;
    const char *number = t->weak ? (const char *)&bits : fl__bytes(t);
    fl__fill_row(row, number, n, (int)fl_dtype_size(t->weak ? d : t->dtype));
    return row;
}

/* Runs the loop directly, without a pass, if there are few elements, and the n operands are dense or (inputs
   only) one element. Returns whether it did. */
static bool fl__run_dense(fl__loop loop, const void *arg, fl_tensor *const t[], int n, int n_out,
                          fl_dtype d) {
    _Alignas(FL_ALIGN) char row[FL__OPERANDS][FL__BROADCAST_ROW * FL__ELEMENT];
    fl_tensor *dense[FL__OPERANDS] = {t[0]};
    void *at[FL__OPERANDS];
    bool one[FL__OPERANDS];
    int n_dense = 0;
    int64_t numel;
    for (int k = 0; k < n; k++)
        if (!(one[k] = k >= n_out && fl__is_scalar(t[k]))) dense[n_dense++] = t[k];
    if (!fl__all_dense(dense, n_dense, &numel)) return false;
    if (numel > (n_dense < n ? FL__BROADCAST_ROW : FL__GRAIN)) return false;
    for (int k = 0; k < n; k++) at[k] = one[k] ? fl__broadcast_row(t[k], d, numel, row[k]) : fl__bytes(t[k]);
    loop(at, numel, arg);
    return true;
}

/* Whether the results of f, the first of n operands of dtype d, can be stored past the caches: lines that are
   inputs too are in them. */
static bool fl__stores_past(const fl_formula *f, fl_dtype d, fl_tensor *const t[], int n, int n_out) {
    const int64_t numel = fl_numel(t[0]);
    if (numel % FL__PAST_BLOCK || !fl__is_past_caches(f, d, numel)) return false;
    for (int k = 0; k < n_out; k++) {
        if (!fl_is_contiguous(t[k]) || (uintptr_t)fl__bytes(t[k]) % FL_ALIGN) return false;
        for (int m = n_out; m < n; m++)
            if (!t[m]->weak && fl__bytes(t[m]) == fl__bytes(t[k])) return false;
    }
    return true;
}

/* Runs a program on the call's operands by `loop`, or if it is NULL by the executor. Operands are of dtype d
   or weak; conditions are b8. */
static bool fl__run_program(const fl_call *c, fl__loop loop, const fl_formula *f, fl_dtype d) {
    const fl_dtype wide = fl_dtype_wide(d);
    fl_tensor *t[FL__OPERANDS] = {NULL};
    bool zero = false;
    fl__executor e;
    const void *arg = NULL;
    int n = 0;
    for (int i = 0; i < c->n_out; i++) {
        if (!c->out[i]) continue;
        if (!fl_out_make(c->out[i])) return false;
        t[n++] = c->out[i];
    }
    const int n_out = n;
    for (int i = 0; i < c->n_in; i++) t[n++] = c->in[i];
    if (!loop) {
        if (!fl__executor_begin(&e, f, wide)) return fl__no_kernel(c, d);
        if (wide == FL_I64) e.zero = &zero;
        loop = fl__executor_loop(&e, fl_numel(t[0]), wide == d && fl__stores_past(f, d, t, n, n_out), &arg);
    }
    /* narrow dtypes have no loops */
    if (wide != d || !fl__run_dense(loop, arg, t, n, n_out, d)) {
        fl__pass p;
        e.streaming = true;
        fl__pass_begin(&p, loop, arg);
        fl__pass_follow(&p, t[0]);
        for (int k = 0; k < n; k++) fl__pass_add_wide(&p, t[k], k < n_out ? FL_WRITE : FL_READ, wide);
        fl__pass_run(&p, fl_numel(t[0]));
    }
    return !zero || fl_fail("fl_%s: integer division by zero", fl_op_get_info(c->op)->name);
}

/* Runs formula `which` of op, by its compiled loop or else by its program. */
static bool fl__run_formula(const fl_call *c, fl_op op, fl_program which, fl_dtype d) {
    const fl_dtype wide = fl_dtype_wide(d);
    fl__loop loop = fl__compiled_loop(op, which, wide);
    if (op == FL_OP_remainder && wide == FL_I64) loop = NULL; /* the executor checks for division by 0 */
    const fl_formula *f = loop ? NULL : fl_op_program(op, which);
    return (loop || f) && fl__run_program(c, loop, f, d);
}

/* The loop of a program that is one primitive of its inputs in order; NULL if it is not. */
static fl__loop fl__single_loop(const fl_formula *f, fl_dtype wide) {
    const fl_formula_step *s = f->step;
    if (f->n_steps != 1 || f->n_out != 1 || (wide == FL_I64 && s->primitive == FL_PRIMITIVE_remainder))
        return NULL;
    if (f->n_in != fl_primitive_operands((fl_primitive)s->primitive)) return NULL;
    for (int k = 0; k < f->n_in; k++)
        if (s->in[k] != k) return NULL;
    return fl__primitive_loop((fl_primitive)s->primitive, s->logical ? FL_B8 : wide);
}

static bool fl__cpu_program(const fl_backend *self, const fl_call *c) {
    fl_dtype d;
    const fl_formula_args *a = fl_formula_args_of(c, &d);
    (void)self;
    return a && fl__run_program(c, fl__single_loop(&a->program, fl_dtype_wide(d)), &a->program, d);
}

static void fl__pass_add_as(fl__pass *p, const fl_tensor *t, int access, fl_dtype d) {
    fl__pass_add(p, t, access, d);
    if (t->dtype != FL_B8) fl__iter_convert(&p->iter[p->n - 1], t->dtype, d);
}

FL_PRIVATE bool fl__program_run(const fl_call *c, fl_dtype d, const fl__generator from[]) {
    const fl_formula *f = &((const fl_formula_args *)c->args)->program;
    _Alignas(FL_ALIGN) char constants[FL__FORMULA_MEMORY];
    fl__executor e;
    fl__pass p;
    const void *arg;
    if (!fl__executor_begin(&e, f, d)) return fl__no_kernel(c, d);
    e.streaming = true;
    fl__executor_fill(&e, constants);
    fl__pass_begin(&p, fl__executor_loop(&e, fl_numel(c->out[0]), false, &arg), NULL);
    p.arg = arg;
    for (int k = 0; k < c->n_out; k++) fl__pass_add_as(&p, c->out[k], FL_WRITE, d);
    for (int i = 0, k = 0; i < f->n_in; i++)
        if (from[i].sequence) fl__pass_add_sequence(&p, from[i].sequence, from[i].arg);
        else fl__pass_add_as(&p, c->in[k++], FL_READ, d);
    fl__pass_run(&p, fl_numel(c->out[0]));
    return true;
}

FL_PRIVATE void fl__cpu_formula_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_formula, fl__cpu_program, FL_SLOT_NARROW);
}

/* The dtype that y is computed in, which weak numbers alone do not determine. */
static fl_dtype fl__compute_dtype(const fl_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (!c->in[i]->weak) return c->in[i]->dtype;
    const fl_op_class cls = fl_op_get_info(c->op)->cls;
    return cls == FL_CLASS_CMP ? FL_F64 : cls == FL_CLASS_BOOL ? FL_B8 : c->out[0]->dtype;
}

FL_API bool fl_cpu_loop(const fl_call *c, void (*loop)(void *const p[], int64_t n, const void *arg),
                        const void *arg) {
    fl_tensor *t[FL__OPERANDS];
    int n_out = 0;
    fl__pass p;
    if (!c || !loop) return fl_fail("fl_cpu_loop: the call or the loop is NULL");
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) t[n_out++] = c->out[i];
    if (!n_out) return true;
    memcpy(t + n_out, c->in, (size_t)c->n_in * sizeof *t);
    for (int i = 0; i < n_out + c->n_in; i++)
        if ((!t[i]->weak && !fl_same_shape(t[i], t[0])) || fl_dtype_registered(t[i]->dtype))
            return fl_fail(
                "fl_cpu_loop: operand %d of %s: got %s %s, expected a built-in dtype and shape %s", i,
                fl_op_get_info(c->op)->name, fl_dtype_name(t[i]->dtype), FL_SHAPE_TEXT(t[i]),
                FL_SHAPE_TEXT(t[0]));
    for (int i = 0; i < n_out; i++)
        if (!fl_out_make(t[i])) return false;
    fl__pass_begin(&p, loop, arg);
    fl__pass_follow(&p, t[0]);
    for (int i = 0; i < n_out + c->n_in; i++)
        fl__pass_add_wide(&p, t[i], i < n_out ? FL_WRITE : FL_READ, fl_dtype_wide(fl__compute_dtype(c)));
    fl__pass_run(&p, fl_numel(t[0]));
    return true;
}

/* The first lines are a fast path for most calls of small networks. */
FL_PRIVATE bool fl__cpu_formula(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0], *a = c->in[0], *b = c->in[c->n_in - 1];
    fl__loop loop = fl__formula_loop(c->op, a->dtype);
    int64_t n;
    (void)self;
    if (loop && c->op != FL_OP_remainder && !(a->weak | b->weak) &&
        fl__all_dense((fl_tensor *[]){y, a, b}, 3, &n) && n <= FL__GRAIN) {
        if (!fl_out_make(y)) return false;
        loop((void *[]){fl__bytes(y), fl__bytes(a), fl__bytes(b)}, n, NULL);
        return true;
    }
    return fl__run_formula(c, c->op, FL_PROGRAM_Y, fl__compute_dtype(c));
}

FL_PRIVATE bool fl__cpu_grad1(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__run_formula(c, ((const fl_grad_args *)c->args)->op, FL_PROGRAM_DA, c->out[0]->dtype);
}

FL_PRIVATE bool fl__cpu_grad2(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_tensor *da = c->out[0], *db = c->out[1];
    if (!da && !db) return true;
    const fl_program which = !db ? FL_PROGRAM_DA : !da ? FL_PROGRAM_DB : FL_PROGRAM_DA_DB;
    return fl__run_formula(c, ((const fl_grad_args *)c->args)->op, which, (da ? da : db)->dtype);
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
