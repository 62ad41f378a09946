/* steps.h - single steps of SGD and Adam on tensors, by the rules of fl_optim.h, for the suites of ops */
#ifndef TEST_STEPS_H
#define TEST_STEPS_H
#include "../fl_optim.h"

typedef struct sgd_args {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* m holds nothing yet */
} sgd_args;
typedef struct adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t t; /* steps before this one */
    bool decoupled;
} adam_args;

/* The rule of an optimizer over one parameter. */
static inline fl_step_rule *rule_of(fl_optim *o) {
    fl_step_rule *rule = o ? o->type->rule : NULL;
    fl_optim_free(o);
    return rule;
}

static inline bool step_by(fl_step_rule *rule, fl_tensor *const *t, int64_t steps, const double *v, int n) {
    fl_scope s = fl_scope_begin();
    fl_tensor *number[] = {fl_num(1), fl_from_host(&steps, FL_SCALAR_SHAPE, FL_I64),
                           fl_from_host(v, FL_SHAPE(n), FL_F64)};
    const bool ok = number[1] && number[2] && fl_step(rule, t, 3, number, NULL);
    fl_scope_end(&s);
    return ok;
}

/* p, and m if there is momentum, become those after a step with gradient g. */
static inline bool sgd_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, const sgd_args *a) {
    const double v[] = {a->lr, a->momentum, a->dampening, a->weight_decay, a->nesterov};
    fl_scope s = fl_scope_begin();
    fl_var *one = fv_param(fl_ones(FL_SHAPE(1), FL_F32));
    fl_step_rule *rule = rule_of(fl_optim_sgd(FV_LIST(one), .momentum = m ? 0.5 : 0,
                                              .nesterov = m && a->nesterov));
    fl_scope_end(&s);
    return rule && step_by(rule, (fl_tensor *[]){g, p, m}, !a->first, v, 5);
}

static inline bool adam_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v, const adam_args *a) {
    const double number[] = {a->lr, a->beta1, a->beta2, a->eps, a->weight_decay};
    fl_scope s = fl_scope_begin();
    fv_list one = FV_LIST(fv_param(fl_ones(FL_SHAPE(1), FL_F32)));
    fl_step_rule *rule = rule_of(a->decoupled ? fl_optim_adamw(one) : fl_optim_adam(one));
    fl_scope_end(&s);
    return rule && step_by(rule, (fl_tensor *[]){g, p, m, v}, a->t, number, 5);
}

#endif
/* MIT licence: see LICENSE. */
