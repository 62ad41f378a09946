/* fl/ops/step.h - fused optimizer steps: an update rule written as formulas, run in one pass, in place

   A rule computes the new values of tensors of one shape from their old values and a few numbers:

     reads "g", writes "p m", numbers "factor t lr momentum",
     "SUB(p, MUL(lr, ADD(MUL(momentum, m), MUL(factor, g)))), ADD(MUL(momentum, m), MUL(factor, g))"

   The formulas' primitives are those of fl/tensor/formula.h. Subexpressions of numbers alone are computed
   once, in f64; the rest in f32, or in f64 for f64 tensors. The numbers are tensors, read when the step runs:
   a recorded or queued step uses their values at that time. If the first number is called "factor" and is 0,
   the step is skipped: nothing is written.

   Records:
     step (fl_step_args)  reads, writes, numbers -> [narrow,] writes, with the same handles for writes. Number
                          tensors are 0-d or 1-d. The arguments contain the program, so that a copy of them
                          runs without the rule, in another process too
     sum_squares          sum 0-d f64 or the number 0, x a float -> 0-d f64: sum + the squares of x */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_STEP_H
#define FL_OPS_STEP_H
#include "../records/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_step_rule {
    const char *reads, *writes, *numbers; /* operand names, separated by spaces */
    const char *formula;                  /* one formula for each of `writes`, separated by commas */
    /* Private: compiled at the first step; initialise to 0. */
    fl_step_args args;
    bool known;
} fl_step_rule;
/* Runs a rule, which must outlive the step. tensor: its reads, then its writes; number: n_numbers tensors
   with its numbers, one after the other. All tensors are floats of one shape, dtype and backend, except that
   reads may be f16 or bf16. narrow (may be NULL) receives the first of the writes in its own dtype: a
   parameter whose f32 master weight that is. At most 4 outputs, with narrow, and 8 inputs. Returns false
   after an error. */
FL_API bool fl_step(fl_step_rule *rule, fl_tensor *const *tensor, int n_numbers, fl_tensor *const *number,
                    fl_tensor *narrow);
/* The sum of the squares of a float t, 0-d f64; blocks are summed in f32 (f64 for f64), their sums in f64. */
FL_API fl_tensor *fl_sum_squares(fl_tensor *t);
/* sum + fl_sum_squares(t), where sum is a result of these functions, or NULL for 0. A device may run a chain
   of them as one launch. */
FL_API fl_tensor *fl_add_squares(fl_tensor *sum, fl_tensor *t);
/* The compiled rule, with inputs in the order reads, writes, numbers. NULL after fl_fail for an invalid
   formula. */
FL_API const fl_formula *fl_step_program(fl_step_rule *rule);

FL_PRIVATE void fl__register_step(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_STEP_H */

#if defined(FL_IMPL_ONLY_OPS_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_STEP_IMPL
#define FL_OPS_STEP_IMPL
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#include "../../fl_tensor.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int fl__count_names(const char *list) {
    int n = 0;
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += strspn(p, " ")) n++;
    return n;
}

const fl_formula *fl_step_program(fl_step_rule *rule) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!fl_given(rule, "fl_step_program", "the rule")) return NULL;
    fl_step_args *args = &rule->args;
    if (__atomic_load_n(&rule->known, __ATOMIC_ACQUIRE)) return &args->program;
    char names[512];
    snprintf(names, sizeof names, "%s %s %s", rule->reads, rule->writes, rule->numbers);
    pthread_mutex_lock(&lock);
    bool ok = rule->known || fl_formula_parse(&args->program, rule->formula, names);
    args->n_reads = fl__count_names(rule->reads);
    args->n_writes = fl__count_names(rule->writes);
    args->skips = !strncmp(rule->numbers, "factor", 6);
    if (ok && args->program.n_out != args->n_writes)
        ok = fl_fail("fl_step: expected one formula for each of writes: got %d formulas for \"%s\"",
                     args->program.n_out, rule->writes);
    __atomic_store_n(&rule->known, ok, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return ok ? &args->program : NULL;
}

/* True if t is a float with the shape, backend and dtype of `like`, or a narrower dtype if allowed. */
static bool fl__step_operand(const fl_tensor *t, int i, const fl_tensor *like, bool narrow) {
    if (fl_is_null_arg("fl_step", t)) return false;
    if (fl_same_shape(like, t) && like->backend == t->backend && fl_dtype_is_float(t->dtype) &&
        (t->dtype == like->dtype || (narrow && fl_dtype_wide(t->dtype) == fl_dtype_wide(like->dtype))))
        return true;
    return fl_err_false("fl_step: operands must be floats of one shape, dtype and backend: got operand %d %s "
                        "%s, expected %s %s", i, fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t),
                        fl_dtype_name(like->dtype), FL_SHAPE_TEXT(like));
}

/* Sets the record's inputs, and the written tensors as its outputs too. */
static bool fl__step_operands(fl_call *c, const fl_step_args *rule, fl_tensor *const *tensor,
                              fl_tensor *narrow) {
    const int n = rule->n_reads + rule->n_writes, wide = narrow != NULL;
    const fl_tensor *like = tensor[n - 1];
    if (fl_is_null_arg("fl_step", like)) return false;
    for (int i = 0; i < n; i++) {
        const bool written = i >= rule->n_reads;
        if (!fl__step_operand(tensor[i], i, like, i <= rule->n_reads)) return false;
        if (written && !fl_is_writable("fl_step", tensor[i])) return false;
        c->in[i] = tensor[i];
        if (written) c->out[wide + i - rule->n_reads] = tensor[i];
    }
    if (!narrow) return true;
    c->out[0] = narrow;
    return fl__step_operand(narrow, n, like, true) && fl_is_writable("fl_step", narrow);
}

bool fl_step(fl_step_rule *rule, fl_tensor *const *tensor, int n_numbers, fl_tensor *const *number,
             fl_tensor *narrow) {
    if (fl_is_null_arg("fl_step", rule) || fl_is_null_arg("fl_step", tensor)) return false;
    const fl_formula *f = fl_step_program(rule);
    if (!f) return fl_raise();
    const fl_step_args *args = &rule->args;
    const int n = args->n_reads + args->n_writes;
    fl_call c;
    int64_t numbers = 0;
    fl_call_begin(&c, fl_op_step, args->n_writes + (narrow != NULL), n + n_numbers, args);
    if (c.n_out > 4 || c.n_in > 8)
        return fl_err_false("fl_step: got %d outputs and %d inputs, expected at most 4 and 8", c.n_out,
                            c.n_in);
    if (!fl__step_operands(&c, args, tensor, narrow)) return false;
    for (int i = 0; i < n_numbers; i++) {
        if (fl_is_null_arg("fl_step", c.in[n + i] = number[i])) return false;
        numbers += fl_numel(number[i]);
    }
    if (numbers != f->n_in - n)
        return fl_err_false("fl_step: expected one number per name: got %d numbers for \"%s\"", (int)numbers,
                            rule->numbers);
    return fl_call_run(&c) || fl_raise();
}

/* Sums blocks whose squares fit the caches, in the memory order of t. */
static fl_tensor *fl__squares(fl_tensor *t) {
    enum { PIECE = 1 << 18 };
    int order[FL_MAX_DIMS];
    fl_scope s = fl_scope_begin();
    fl_axes_by_stride(t, order);
    fl_tensor *dense = fl_is_contiguous(t) ? t : fl_permute(t, t->ndim, order), *sum = NULL;
    fl_tensor *flat = dense ? fl_reshape(dense, FL_SHAPE(-1)) : NULL;
    for (int64_t i = 0, n = fl_numel(flat); flat && (i < n || !sum) && !fl_error(); i += PIECE) {
        fl_scope piece = fl_scope_begin();
        fl_tensor *part = n > PIECE ? fl_slice(flat, 0, i, i + PIECE, 1) : flat;
        fl_tensor *wide = part ? fl_cast(part, fl_dtype_wide(t->dtype)) : NULL;
        fl_tensor *one = fl_cast(fl_sum(fl_square(wide), FL_ALL_AXES), FL_F64);
        sum = fl_scope_return(&piece, sum ? fl_add(sum, one) : one);
    }
    return fl_scope_return(&s, sum);
}

static bool fl__compose_sum_squares(const fl_call *c, fl_tensor **y) {
    fl_tensor *one = fl__squares(c->in[1]);
    return (y[0] = c->in[0]->weak ? one : fl_add(c->in[0], one)) != NULL;
}

/* Without a kernel, f16 and bf16 are widened block by block here, not as a whole by the core. */
fl_tensor *fl_add_squares(fl_tensor *sum, fl_tensor *t) {
    if (fl_is_null_arg("fl_sum_squares", t) || fl_error()) return NULL;
    if (!fl_dtype_is_float(t->dtype))
        return fl_err_null("fl_sum_squares: %s is not supported, expected a float", fl_dtype_name(t->dtype));
    if (sum && (sum->ndim || sum->dtype != FL_F64 || sum->backend != t->backend))
        return fl_err_null("fl_add_squares: the sum is %s %s, must be a 0-d f64 on t's backend",
                           fl_dtype_name(sum->dtype), FL_SHAPE_TEXT(sum));
    if (t->weak || !fl_backend_has(t->backend, fl_op_sum_squares)) {
        fl_scope s = fl_scope_begin();
        fl_tensor *one = fl__squares(t);
        return fl_scope_return(&s, sum ? fl_add(sum, one) : one);
    }
    fl_tensor *before = sum ? sum : fl_num(0);
    fl_tensor *y = before ? fl_out_on(t->backend, FL_SCALAR_SHAPE, FL_F64) : NULL;
    return fl_call_into(fl_op_sum_squares, y, before, t, NULL);
}

fl_tensor *fl_sum_squares(fl_tensor *t) {
    return fl_add_squares(NULL, t);
}

/* ---- composition ---- */

static void *fl__step_number(double value, void *user) {
    (void)user;
    return fl_constant(value);
}

/* Numbers are f64 until they are combined with a tensor. */
static void *fl__step_primitive(fl_primitive primitive, void *const x[], void *user) {
    (void)user;
    const fl_op op = fl_primitive_op(primitive);
    const int n = fl_primitive_operands(primitive);
    fl_tensor *t[3];
    fl_dtype d = FL_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        t[i] = x[i];
        if (!t[i]->weak && t[i]->dtype != FL_B8 && (d == FL_DTYPE_NONE || d == FL_F64)) d = t[i]->dtype;
    }
    for (int i = 0; i < n; i++)
        if (!t[i]->weak && t[i]->dtype != FL_B8 && !(t[i] = fl_cast(t[i], d))) return NULL;
    if (op == FL_OP_where) return fl_where(t[0], t[1], t[2]);
    return n == 1 ? fl_unary_op(op, t[0]) : fl_binary_op(op, t[0], t[1]);
}

static bool fl__compose_step(const fl_call *c, fl_tensor **value) {
    static const fl_formula_vtable meaning = {fl__step_number, fl__step_primitive, NULL};
    const fl_step_args *args = fl_step_args_of(c);
    if (!args) return false;
    const int n = args->n_reads + args->n_writes, wide = c->n_out - args->n_writes;
    const fl_dtype d = fl_dtype_wide(c->in[n - 1]->dtype);
    void *in[FL_FORMULA_INPUTS], *out[FL_FORMULA_OUTPUTS];
    int k = 0;
    for (; k < n; k++)
        if (!(in[k] = fl_cast(c->in[k], d))) return false;
    for (int i = n; i < c->n_in; i++) {
        fl_tensor *t = c->in[i];
        for (int64_t at = 0; at < fl_numel(t); at++)
            if (!(in[k++] = t->weak ? t : fl_cast(t->ndim ? fl_select(t, 0, at) : t, FL_F64)))
                return false;
    }
    if (!fl_formula_run(&args->program, &meaning, in, out)) return false;
    fl_tensor *factor = args->skips ? in[n] : NULL;
    fl_tensor *runs = factor && !factor->weak ? fl_ne(factor, fl_num(0)) : NULL;
    for (int i = 0; i < args->n_writes; i++) {
        fl_tensor *new_one = out[i], *old = in[args->n_reads + i];
        if (factor) new_one = runs ? fl_where(runs, new_one, old) : factor->f64 != 0 ? new_one : old;
        if (!(value[wide + i] = new_one)) return false;
    }
    if (wide) value[0] = value[1];
    return true;
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_step, fl_op_sum_squares;

FL_PRIVATE void fl__register_step(void) {
    FL__REGISTER(step, .args_size = sizeof(fl_step_args),
                 .uses = "add sub mul div neg abs exp log log1p expm1 sqrt sin cos tanh erf atan2 pow "
                             "remainder maximum minimum floor rint lt le eq ne where bitwise_not",
                 .compose = fl__compose_step);
    FL__REGISTER(sum_squares, .uses = "sum mul add copy square", .compose = fl__compose_sum_squares);
}

#endif /* FL_OPS_STEP_IMPL */
#endif
/* MIT licence: see LICENSE. */
