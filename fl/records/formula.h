/* fl/records/formula.h - call records of formula: arguments and op number (fl/ops/apply.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_FORMULA_H
#define FL_RECORDS_FORMULA_H
#include "../tensor/formula.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs -> outputs, of one shape, as the program has them. Conditions are b8; numbers have one dtype or are
   weak. Equal programs have equal bytes. */
typedef struct fl_formula_args {
    fl_formula program; /* at most 8 inputs */
    /* For derivatives: step i is the value of the table op call[i][0], if not 0, of the values call[i][1] and
       call[i][2], indices as in fl_formula_builder. */
    uint8_t call[FL_FORMULA_STEPS][3];
} fl_formula_args;
/* For slots: the arguments of a record of `formula`, and the dtype of its numbers. NULL after fl_fail if the
   operands are not those of its program. */
FL_API const fl_formula_args *fl_formula_args_of(const fl_call *c, fl_dtype *numbers);
FL_DATA fl_op fl_op_formula;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_FORMULA_H */

#if defined(FL_IMPL_ONLY_RECORDS_FORMULA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_RECORDS_FORMULA_IMPL
#define FL_RECORDS_FORMULA_IMPL
#include "../../fl_backend.h"

/* True if t can be that operand; *d becomes the dtype of the numbers. */
static bool fl__formula_operand(const fl_tensor *t, bool condition, fl_dtype *d) {
    if (!t) return false;
    if (t->weak || condition) return condition == (t->dtype == FL_B8);
    if (*d == FL_DTYPE_NONE) *d = t->dtype;
    return t->dtype == *d;
}

const fl_formula_args *fl_formula_args_of(const fl_call *c, fl_dtype *numbers) {
    if (!fl_given(c, "fl_formula_args_of", "the record") ||
        !fl_given(numbers, "fl_formula_args_of", "the dtype")) return NULL;
    const fl_formula_args *a = c->args;
    fl_dtype d = FL_DTYPE_NONE;
    const fl_formula *f = a ? &a->program : NULL;
    bool ok = f && f->n_out > 0 && f->n_in == c->n_in && f->n_out == c->n_out;
    for (int i = 0; ok && i < f->n_out; i++) ok = fl__formula_operand(c->out[i], f->logical >> i & 1, &d);
    for (int i = 0; ok && i < f->n_in; i++)
        if (f->reads >> i & 1) ok = fl__formula_operand(c->in[i], f->conditions >> i & 1, &d);
    *numbers = d == FL_DTYPE_NONE ? FL_F32 : d;
    if (!ok) fl_fail("fl_formula: the operands of the record are not those of its program");
    return ok ? a : NULL;
}
#endif /* FL_RECORDS_FORMULA_IMPL */
#endif
/* MIT licence: see LICENSE. */
