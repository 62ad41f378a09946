/* fl/ops/step.h - optimizer steps: one pass over a parameter and its state, in place

   sgd_step   g' = g + weight_decay p;  m = momentum m + (first ? 1 : 1 - dampening) g';
              p -= lr (nesterov ? g' + momentum m : m);  without m: p -= lr g'
   adam_step  g' = g + weight_decay p, or if decoupled: p -= lr weight_decay p;
              m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2;
              p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps),  bias_i = 1 - beta_i^t

   Records, whose outputs are the same handles as the inputs: sgd_step (fl_sgd_args) g, p, [m] -> p, [m];
   adam_step (fl_adam_args) g, p, m, v -> p, m, v. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_STEP_H
#define FL_OPS_STEP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_sgd_args {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* m holds nothing yet */
} fl_sgd_args;
typedef struct fl_adam_args {
    double lr, beta1, beta2, eps, weight_decay, bias1, bias2;
    bool decoupled; /* AdamW */
} fl_adam_args;
/* p, m and v are written: floats of g's shape, dtype and family. m NULL: momentum 0. */
FL_API bool fl_sgd_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a);
FL_API bool fl_adam_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v, const fl_adam_args *a);

FL_DATA fl_op fl_op_sgd_step, fl_op_adam_step;
FL_PRIVATE void fl__register_step(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_STEP_H */

#if defined(FL_IMPL_ONLY_OPS_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_STEP_IMPL
#define FL_OPS_STEP_IMPL
#include "elementwise.h"
#include "../../fl_tensor.h"
#include <math.h>

/* p, g and the states are stored floats of one shape, dtype and family, and may be written. */
static bool fl__step_operands(const char *fn, fl_tensor *g, int n, fl_tensor *const *state) {
    if (fl_absent(fn, g)) return false;
    for (int i = 0; i < n; i++) {
        if (fl_absent(fn, state[i])) return false;
        if (!fl_same_shape(g, state[i]) || g->dtype != state[i]->dtype ||
            g->family != state[i]->family || !fl_dtype_is_float(g->dtype))
            return fl_refuse("%s: gradient %s %s and operand %d %s %s do not belong together", fn,
                             fl_dtype_name(g->dtype), FL_SHAPE_TEXT(g), i,
                             fl_dtype_name(state[i]->dtype), FL_SHAPE_TEXT(state[i]));
        if (!fl_writable(fn, state[i])) return false;
    }
    return true;
}

bool fl_sgd_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, const fl_sgd_args *a) {
    const int n = m ? 2 : 1;
    if (fl_absent("fl_sgd_step", a) || !fl__step_operands("fl_sgd_step", g, n, (fl_tensor *[]){p, m}))
        return false;
    fl_call c = {
        .op = fl_op_sgd_step, .n_out = n, .n_in = n + 1, .out = {p, m}, .in = {g, p, m}, .args = a};
    return fl_run(&c) || fl_raise();
}

bool fl_adam_step(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v, const fl_adam_args *a) {
    if (fl_absent("fl_adam_step", a) ||
        !fl__step_operands("fl_adam_step", g, 3, (fl_tensor *[]){p, m, v}))
        return false;
    fl_call c = {
        .op = fl_op_adam_step, .n_out = 3, .n_in = 4, .out = {p, m, v}, .in = {g, p, m, v}, .args = a};
    return fl_run(&c) || fl_raise();
}

/* ---- compositions: the new values ---- */

/* a x + b y */
static fl_tensor *fl__axpby(double a, fl_tensor *x, double b, fl_tensor *y) {
    return fl_add(fl_mul(x, fl_num(a)), fl_mul(y, fl_num(b)));
}

static bool fl__compose_sgd_step(const fl_call *c, fl_tensor **value) {
    const fl_sgd_args *a = c->args;
    fl_tensor *g = c->in[0], *p = c->in[1], *m = NULL;
    if (a->weight_decay != 0) g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    fl_tensor *d = g;
    if (c->n_out > 1) {
        m = value[1] = fl__axpby(a->momentum, c->in[2], a->first ? 1 : 1 - a->dampening, g);
        d = a->nesterov ? fl_add(g, fl_mul(m, fl_num(a->momentum))) : m;
    }
    return (value[0] = fl_sub(p, fl_mul(d, fl_num(a->lr)))) != NULL;
}

static bool fl__compose_adam_step(const fl_call *c, fl_tensor **value) {
    const fl_adam_args *a = c->args;
    fl_tensor *g = c->in[0], *p = c->in[1];
    if (a->weight_decay != 0 && a->decoupled) p = fl_mul(p, fl_num(1 - a->lr * a->weight_decay));
    else if (a->weight_decay != 0) g = fl_add(g, fl_mul(p, fl_num(a->weight_decay)));
    fl_tensor *m = value[1] = fl__axpby(a->beta1, c->in[2], 1 - a->beta1, g);
    fl_tensor *v = value[2] = fl__axpby(a->beta2, c->in[3], 1 - a->beta2, fl_mul(g, g));
    fl_tensor *scale = fl_add(fl_mul(fl_sqrt(v), fl_num(1 / sqrt(a->bias2))), fl_num(a->eps));
    return (value[0] = fl_sub(p, fl_mul(fl_div(m, scale), fl_num(a->lr / a->bias1)))) != NULL;
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_sgd_step, fl_op_adam_step;

FL_PRIVATE void fl__register_step(void) {
    static const fl_op_info sgd_step = {.name = "sgd_step",
                                        .args_size = sizeof(fl_sgd_args),
                                        .contains = "mul add sub",
                                        .compose = fl__compose_sgd_step},
                            adam_step = {.name = "adam_step",
                                         .args_size = sizeof(fl_adam_args),
                                         .contains = "mul add sub div sqrt",
                                         .compose = fl__compose_adam_step};
    fl_op_sgd_step = fl_op_register(&sgd_step);
    fl_op_adam_step = fl_op_register(&adam_step);
}

#endif /* FL_OPS_STEP_IMPL */
#endif
/* MIT licence: see LICENSE. */
