/* kernels/cpu/step.h - SGD and Adam, one pass over the parameter and its state, in place

   Formulas in fl/ops/step.h. The settings are rounded to the parameter's dtype once. */
#ifndef FL_CPU_STEP_H
#define FL_CPU_STEP_H
#include "../../fl/ops/step.h"
#include "common.h"
/* Puts the slots of this file into the table. */
FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_STEP_IMPL
#define FL_CPU_STEP_IMPL
FL__LOOPS_BEGIN

#define FL__LEVEL_TEXT "step.inc"
#define FL__UNIT step
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"

/* Small dense tensors, as the many biases of a network, go straight to the loop. */
static bool fl__step_at_once(const fl_call *c, fl__loop loop) {
    void *at[4] = {fl_data(c->in[0])};
    if (fl_numel(c->in[0]) > FL__GRAIN || !fl_is_contiguous(c->in[0])) return false;
    for (int k = 0; k < c->n_out; k++) {
        if (!fl_is_contiguous(c->out[k])) return false;
        at[k + 1] = fl_data(c->out[k]);
    }
    loop(at, fl_numel(c->in[0]), c->args);
    return true;
}

/* in[] is the gradient, then what is written: out[]. */
static bool fl__run_step(const fl_call *c, const fl__loop loops[FL__VARIANTS]) {
    fl_dtype d = c->in[0]->dtype;
    fl__loop loop = loops[fl__variant(d)];
    if (!loop) return fl__no_kernel(c, d);
    for (int k = 0; k < c->n_out; k++)
        if (!fl_out_make(c->out[k])) return false;
    if (fl__step_at_once(c, loop)) return true;
    fl__pass p;
    fl__pass_begin(&p, loop, c->args);
    fl__pass_follow(&p, c->out[0]);
    fl__pass_add(&p, c->in[0], FL_READ, d);
    for (int k = 0; k < c->n_out; k++) fl__pass_add(&p, c->out[k], FL_READ | FL_WRITE, d);
    fl__pass_run(&p, fl_numel(c->out[0]));
    return true;
}

static bool fl__cpu_sgd_step(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[2][FL__VARIANTS] = {{FL__AT_FLOATS(fl__step_sgd)},
                                                    {FL__AT_FLOATS(fl__step_sgd_momentum)}};
    (void)self;
    return fl__run_step(c, loops[c->n_out > 1]);
}

static bool fl__cpu_adam_step(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__VARIANTS] = {FL__AT_FLOATS(fl__step_adam)};
    (void)self;
    return fl__run_step(c, loops);
}

FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_sgd_step, fl__cpu_sgd_step, 0);
    fl_backend_set(cpu, fl_op_adam_step, fl__cpu_adam_step, 0);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
