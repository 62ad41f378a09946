/* adam.h - Adam, AdamW, AMSGrad */
#ifndef FL_OPTIM_ADAM_H
#define FL_OPTIM_ADAM_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_adam_opts {
    fl_named _positional;
    double lr;           /* 0 -> 1e-3 */
    double beta1, beta2; /* 0 -> 0.9, 0.999 */
    double eps;          /* 0 -> 1e-8 */
    double weight_decay; /* adam: 0, added to g; adamw: 0 -> 0.01, p -= lr weight_decay p */
    bool amsgrad;        /* v' is the largest v so far, corrected as v is */
    bool master;         /* see fl_optim_use_masters */
    char _end;
} fl_optim_adam_opts;
/* m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p -= lr m' / (sqrt(v') + eps), m' =
   m / (1 - beta1^t), v' = v / (1 - beta2^t). torch.optim.Adam and AdamW; Flashlight's Adam is AdamW. */
#define fl_optim_adam(...) FL_OPTIM__ADAM(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAM(params, ...) fl_optim_adam_opt(params, (fl_optim_adam_opts){__VA_ARGS__})
FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o);
#define fl_optim_adamw(...) FL_OPTIM__ADAMW(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAMW(params, ...) fl_optim_adamw_opt(params, (fl_optim_adam_opts){__VA_ARGS__})
FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_ADAM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_ADAM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_ADAM_IMPL
#define FL_OPTIM_ADAM_IMPL
#define FL__ADAM_SCALED "MUL(factor, g)"
#define FL__ADAM_DECAYED "ADD(MUL(factor, g), MUL(weight_decay, p))"
#define FL__ADAM_SHRUNK "SUB(p, MUL(MUL(lr, weight_decay), p))"
#define FL__ADAM_BIAS(beta) "SUB(CONST(1), POW(" beta ", ADD(t, CONST(1))))"
#define FL__ADAM_M(g) "ADD(MUL(beta1, m), MUL(SUB(CONST(1), beta1), " g "))"
#define FL__ADAM_V(g) "ADD(MUL(beta2, v), MUL(SUB(CONST(1), beta2), MUL(" g ", " g ")))"
#define FL__ADAM_X(g) "MAX(x, " FL__ADAM_V(g) ")"
#define FL__ADAM_P(g, p, v) \
    "SUB(" p ", DIV(MUL(DIV(lr, " FL__ADAM_BIAS("beta1") "), " FL__ADAM_M(g) "), " \
    "ADD(DIV(SQRT(" v "), SQRT(" FL__ADAM_BIAS("beta2") ")), eps)))"
#define FL__ADAM(g, p) FL__ADAM_P(g, p, FL__ADAM_V(g)) "," FL__ADAM_M(g) "," FL__ADAM_V(g)
#define FL__ADAM_AMSGRAD(g, p) FL__ADAM_P(g, p, FL__ADAM_X(g)) "," FL__ADAM_M(g) "," FL__ADAM_V(g) "," FL__ADAM_X(g)

#define FL__ADAM_RULE(writes, formula) \
    {"g", writes, "factor t lr beta1 beta2 eps weight_decay", formula, {0}, 0, 0, 0}
#define FL__ADAM_TYPE(name, rule, largest) \
    {name,   {"exp_avg", "exp_avg_sq", largest}, {"beta1", "beta2", "eps", "weight_decay"}, \
     "ffnn", rule, 0, NULL, NULL}

/* [adam, adamw][amsgrad] */
static fl_step_rule fl__adam_rules[2][2] = {
    {FL__ADAM_RULE("p m v", FL__ADAM(FL__ADAM_DECAYED, "p")),
     FL__ADAM_RULE("p m v x", FL__ADAM_AMSGRAD(FL__ADAM_DECAYED, "p"))},
    {FL__ADAM_RULE("p m v", FL__ADAM(FL__ADAM_SCALED, FL__ADAM_SHRUNK)),
     FL__ADAM_RULE("p m v x", FL__ADAM_AMSGRAD(FL__ADAM_SCALED, FL__ADAM_SHRUNK))}};
static const fl_optim_type fl__adam_types[2][2] = {
    {FL__ADAM_TYPE("adam", &fl__adam_rules[0][0], NULL),
     FL__ADAM_TYPE("amsgrad", &fl__adam_rules[0][1], "max_exp_avg_sq")},
    {FL__ADAM_TYPE("adamw", &fl__adam_rules[1][0], NULL),
     FL__ADAM_TYPE("amsgrad", &fl__adam_rules[1][1], "max_exp_avg_sq")}};

static fl_optim *fl__adam_make(bool decoupled, fv_list params, fl_optim_adam_opts o, double decay) {
    const double hyper[] = {fl_option(o.beta1, 0.9), fl_option(o.beta2, 0.999), fl_option(o.eps, 1e-8),
                            fl_option(o.weight_decay, decay)};
    return fl__optim_make(&fl__adam_types[decoupled][o.amsgrad], params, o.lr, 1e-3, hyper, o.master);
}

FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(false, params, o, 0);
}

FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(true, params, o, 1e-2);
}

#endif
#endif
/* MIT licence: see LICENSE. */
