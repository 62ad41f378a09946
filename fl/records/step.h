/* fl/records/step.h - call records of optimizer steps: arguments and op numbers (fl/ops/step.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_STEP_H
#define FL_RECORDS_STEP_H
#include "../tensor/formula.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_step_args {
    int n_reads, n_writes;
    int64_t skips;      /* the first number is a factor: 0 skips the step */
    fl_formula program; /* its inputs are reads, writes and numbers, in this order */
} fl_step_args;
/* For slots: the arguments of a record of `step`. NULL after fl_fail if they have no program, because its
   rule was not parsed, or one for a different number of operands. */
FL_API const fl_step_args *fl_step_args_of(const fl_call *c);
FL_DATA fl_op fl_op_step, fl_op_sum_squares;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_STEP_H */

#if defined(FL_IMPL_ONLY_RECORDS_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_RECORDS_STEP_IMPL
#define FL_RECORDS_STEP_IMPL
#include "../../fl_backend.h"

const fl_step_args *fl_step_args_of(const fl_call *c) {
    if (!fl_given(c, "fl_step_args_of", "the record")) return NULL;
    const fl_step_args *a = c->args;
    if (!a || !a->n_writes || a->program.n_out != a->n_writes)
        return fl_fail("fl_step: the record has no program: its rule was not parsed"), NULL;
    const int n = a->n_reads + a->n_writes;
    int64_t numbers = 0;
    for (int i = n; i < c->n_in; i++) numbers += fl_numel(c->in[i]);
    if (c->n_in >= n && n + numbers == a->program.n_in && (unsigned)(c->n_out - a->n_writes) <= 1) return a;
    fl_fail("fl_step: the record has %d inputs with %d numbers and %d outputs, expected %d reads, %d writes "
            "and %d numbers as in its program", c->n_in, (int)numbers, c->n_out, a->n_reads, a->n_writes,
            a->program.n_in - n);
    return NULL;
}
#endif /* FL_RECORDS_STEP_IMPL */
#endif
/* MIT licence: see LICENSE. */
