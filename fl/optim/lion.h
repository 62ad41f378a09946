/* fl/optim/lion.h - Lion: updates by the sign of a momentum */
#ifndef FL_OPTIM_LION_H
#define FL_OPTIM_LION_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_lion_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-4 */
    double beta1, beta2; /* 0 -> 0.9, 0.99 */
    double weight_decay; /* 0; p -= lr weight_decay p */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_lion_opts;
/* p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p); m = beta2 m + (1 - beta2) g (Chen et al. 2023,
   "Symbolic discovery of optimization algorithms") */
#define fl_optim_lion(...) FL_OPTIM__LION(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__LION(params, ...) fl_optim_lion_opt(params, FL_LITERAL(fl_optim_lion_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_lion_opt(fv_list params, fl_optim_lion_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_LION_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_LION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_LION_IMPL
#define FL_OPTIM_LION_IMPL
#define FL__LION_MEAN(rate) "ADD(MUL(" rate ", m), MUL(SUB(CONST(1), " rate "), MUL(factor, g)))"
static fl_step_rule fl__lion_rule = {
    .reads = "g", .writes = "p m", .numbers = "factor t lr beta1 beta2 weight_decay",
    .formula = "SUB(MUL(SUB(CONST(1), MUL(lr, weight_decay)), p), "
               "MUL(lr, " FL_OPTIM_SIGN(FL__LION_MEAN("beta1")) ")),"
               FL__LION_MEAN("beta2")};
static const fl_optim_type fl__lion_type = {.name = "lion", .state = {"exp_avg"},
                                            .hyper = {"beta1", "beta2", "weight_decay"}, .limits = "ffn",
                                            .rule = &fl__lion_rule};

FL_API fl_optim *fl_optim_lion_opt(fv_list params, fl_optim_lion_opts o) {
    const double hyper[] = {fl_option(o.beta1, 0.9), fl_option(o.beta2, 0.99), fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__lion_type, params, o.lr, 1e-4, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
