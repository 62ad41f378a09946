/* fl/optim/adaptive.h - Adadelta, Adagrad, RMSProp, Rprop */
#ifndef FL_OPTIM_ADAPTIVE_H
#define FL_OPTIM_ADAPTIVE_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Formulas and defaults of torch.optim; weight decay is added to the gradient. .master: see
   fl_optim_use_masters; .maximize: see fl_optim_maximize. */
typedef struct fl_optim_adadelta_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1 */
    double rho, eps;     /* 0 -> 0.9, 1e-6 */
    double weight_decay; /* 0 */
    bool master, maximize;
    char _end;
} fl_optim_adadelta_opts;
/* v = rho v + (1 - rho) g^2; d = sqrt(a + eps) / sqrt(v + eps) g; a = rho a + (1 - rho) d^2; p -= lr d
   (Zeiler 2012) */
#define fl_optim_adadelta(...) FL_OPTIM__ADADELTA(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADADELTA(params, ...) \
    fl_optim_adadelta_opt(params, FL_LITERAL(fl_optim_adadelta_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adadelta_opt(fv_list params, fl_optim_adadelta_opts o);

typedef struct fl_optim_adagrad_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 0.01 */
    double lr_decay;     /* 0 */
    double eps;          /* 0 -> 1e-10 */
    double weight_decay; /* 0 */
    bool master, maximize;
    char _end;
} fl_optim_adagrad_opts;
/* s = s + g^2; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011) */
#define fl_optim_adagrad(...) FL_OPTIM__ADAGRAD(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAGRAD(params, ...) \
    fl_optim_adagrad_opt(params, FL_LITERAL(fl_optim_adagrad_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adagrad_opt(fv_list params, fl_optim_adagrad_opts o);

typedef struct fl_optim_rmsprop_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 0.01 */
    double alpha, eps;   /* 0 -> 0.99, 1e-8 */
    double momentum;     /* 0 */
    double weight_decay; /* 0 */
    bool centered;       /* normalises by the variance instead of the second moment */
    bool master, maximize;
    char _end;
} fl_optim_rmsprop_opts;
/* v = alpha v + (1 - alpha) g^2; d = g / (sqrt(v) + eps), if centered: a = alpha a + (1 - alpha) g, d = g /
   (sqrt(v - a^2) + eps); p -= lr d, with momentum: b = momentum b + d, p -= lr b */
#define fl_optim_rmsprop(...) FL_OPTIM__RMSPROP(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__RMSPROP(params, ...) \
    fl_optim_rmsprop_opt(params, FL_LITERAL(fl_optim_rmsprop_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_rmsprop_opt(fv_list params, fl_optim_rmsprop_opts o);

typedef struct fl_optim_rprop_opts {
    fl_opts_guard guard_;
    double lr;                 /* initial step size; 0 -> 0.01 */
    double etaminus, etaplus;  /* 0 -> 0.5, 1.2 */
    double step_min, step_max; /* 0 -> 1e-6, 50 */
    bool master, maximize;
    char _end;
} fl_optim_rprop_opts;
/* s = s etaplus where g keeps its sign; s = s etaminus and g = 0 where it changes; s within [step_min,
   step_max]; p -= s sign(g). For full-batch gradients (Riedmiller and Braun 1993) */
#define fl_optim_rprop(...) FL_OPTIM__RPROP(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__RPROP(params, ...) fl_optim_rprop_opt(params, FL_LITERAL(fl_optim_rprop_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_rprop_opt(fv_list params, fl_optim_rprop_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_ADAPTIVE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_ADAPTIVE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_ADAPTIVE_IMPL
#define FL_OPTIM_ADAPTIVE_IMPL
/* exponential average: rate old + (1 - rate) new */
#define FL__PAST_MEAN(rate, old, new_one) \
    "ADD(MUL(" rate ", " old "), MUL(SUB(CONST(1), " rate "), " new_one "))"
#define FL__PAST_SQUARE "MUL(" FL_OPTIM_DECAYED_G ", " FL_OPTIM_DECAYED_G ")"

#define FL__DELTA_V FL__PAST_MEAN("rho", "v", FL__PAST_SQUARE)
#define FL__DELTA "MUL(DIV(SQRT(ADD(a, eps)), SQRT(ADD(" FL__DELTA_V ", eps))), " FL_OPTIM_DECAYED_G ")"
static fl_step_rule fl__adadelta_rule = {
    .reads = "g", .writes = "p v a", .numbers = "factor t lr rho eps weight_decay",
    .formula = "SUB(p, MUL(lr, " FL__DELTA "))," FL__DELTA_V ","
               FL__PAST_MEAN("rho", "a", "MUL(" FL__DELTA ", " FL__DELTA ")")};
static const fl_optim_type fl__adadelta_type = {.name = "adadelta", .state = {"square_avg", "acc_delta"},
                                                .hyper = {"rho", "eps", "weight_decay"}, .limits = "fnn",
                                                .rule = &fl__adadelta_rule};

FL_API fl_optim *fl_optim_adadelta_opt(fv_list params, fl_optim_adadelta_opts o) {
    const double hyper[] = {fl_option(o.rho, 0.9), fl_option(o.eps, 1e-6), fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__adadelta_type, params, o.lr, 1, hyper, o.master, o.maximize);
}

#define FL_OPTIM_DECAYED_GRAD_S "ADD(s, " FL__PAST_SQUARE ")"
static fl_step_rule fl__adagrad_rule = {
    .reads = "g", .writes = "p s", .numbers = "factor t lr lr_decay eps weight_decay",
    .formula = "SUB(p, DIV(MUL(DIV(lr, ADD(CONST(1), MUL(t, lr_decay))), " FL_OPTIM_DECAYED_G "), "
               "ADD(SQRT(" FL_OPTIM_DECAYED_GRAD_S "), eps)))," FL_OPTIM_DECAYED_GRAD_S};
static const fl_optim_type fl__adagrad_type = {.name = "adagrad", .state = {"sum"},
                                               .hyper = {"lr_decay", "eps", "weight_decay"}, .limits = "nnn",
                                               .rule = &fl__adagrad_rule};

FL_API fl_optim *fl_optim_adagrad_opt(fv_list params, fl_optim_adagrad_opts o) {
    const double hyper[] = {fl_option(o.lr_decay, 0), fl_option(o.eps, 1e-10), fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__adagrad_type, params, o.lr, 1e-2, hyper, o.master, o.maximize);
}

#define FL__RMS_V FL__PAST_MEAN("alpha", "v", FL__PAST_SQUARE)
#define FL__RMS_A FL__PAST_MEAN("alpha", "a", FL_OPTIM_DECAYED_G)
#define FL__RMS_D(v) "DIV(" FL_OPTIM_DECAYED_G ", ADD(SQRT(" v "), eps))"
#define FL__RMS_C "SUB(" FL__RMS_V ", MUL(" FL__RMS_A ", " FL__RMS_A "))"
#define FL__RMS_B(v) "ADD(MUL(momentum, b), " FL__RMS_D(v) ")"
#define FL__RMS_RULE(writes_, formula_) \
    {.reads = "g", .writes = writes_, .numbers = "factor t lr alpha eps momentum weight_decay", \
     .formula = formula_}
/* [centered][with momentum] */
static fl_step_rule fl__rmsprop_rules[2][2] = {
    {FL__RMS_RULE("p v", "SUB(p, MUL(lr, " FL__RMS_D(FL__RMS_V) "))," FL__RMS_V),
     FL__RMS_RULE("p v b", "SUB(p, MUL(lr, " FL__RMS_B(FL__RMS_V) "))," FL__RMS_V "," FL__RMS_B(FL__RMS_V))},
    {FL__RMS_RULE("p v a", "SUB(p, MUL(lr, " FL__RMS_D(FL__RMS_C) "))," FL__RMS_V "," FL__RMS_A),
     FL__RMS_RULE("p v a b", "SUB(p, MUL(lr, " FL__RMS_B(FL__RMS_C) "))," FL__RMS_V "," FL__RMS_A ","
                             FL__RMS_B(FL__RMS_C))}};
#define FL__RMS_TYPE(rule_, ...) \
    {.name = "rmsprop", .state = {"square_avg", __VA_ARGS__}, \
     .hyper = {"alpha", "eps", "momentum", "weight_decay"}, .limits = "fnnn", .rule = rule_}
static const fl_optim_type fl__rmsprop_types[2][2] = {
    {FL__RMS_TYPE(&fl__rmsprop_rules[0][0], NULL), FL__RMS_TYPE(&fl__rmsprop_rules[0][1], "momentum_buffer")},
    {FL__RMS_TYPE(&fl__rmsprop_rules[1][0], "grad_avg"),
     FL__RMS_TYPE(&fl__rmsprop_rules[1][1], "grad_avg", "momentum_buffer")}};

FL_API fl_optim *fl_optim_rmsprop_opt(fv_list params, fl_optim_rmsprop_opts o) {
    const double momentum = fl_option(o.momentum, 0);
    const double hyper[] = {fl_option(o.alpha, 0.99), fl_option(o.eps, 1e-8), momentum,
                            fl_option(o.weight_decay, 0)};
    const fl_optim_type *type = &fl__rmsprop_types[o.centered][momentum != 0];
    return fl__optim_make(type, params, o.lr, 1e-2, hyper, o.master, o.maximize);
}

/* q is the previous gradient, 0 where it changed sign. */
#define FL__RPROP_PRODUCT "MUL(" FL_OPTIM_SCALED_G ", q)"
#define FL__RPROP_ETA \
    "SELECT(LT(CONST(0), " FL__RPROP_PRODUCT "), etaplus, " \
    "SELECT(LT(" FL__RPROP_PRODUCT ", CONST(0)), etaminus, CONST(1)))"
#define FL__RPROP_S "MIN(MAX(MUL(SELECT(EQ(t, CONST(0)), lr, s), " FL__RPROP_ETA "), step_min), step_max)"
#define FL__RPROP_G "SELECT(LT(" FL__RPROP_PRODUCT ", CONST(0)), CONST(0), " FL_OPTIM_SCALED_G ")"
static fl_step_rule fl__rprop_rule = {
    .reads = "g", .writes = "p q s", .numbers = "factor t lr etaminus etaplus step_min step_max",
    .formula = "SUB(p, MUL(" FL_OPTIM_SIGN(FL__RPROP_G) ", " FL__RPROP_S "))," FL__RPROP_G "," FL__RPROP_S};
static const fl_optim_type fl__rprop_type = {.name = "rprop", .state = {"prev", "step_size"},
                                             .hyper = {"etaminus", "etaplus", "step_min", "step_max"},
                                             .limits = "fnnn", .rule = &fl__rprop_rule};

FL_API fl_optim *fl_optim_rprop_opt(fv_list params, fl_optim_rprop_opts o) {
    const double hyper[] = {fl_option(o.etaminus, 0.5), fl_option(o.etaplus, 1.2),
                            fl_option(o.step_min, 1e-6), fl_option(o.step_max, 50)};
    return fl__optim_make(&fl__rprop_type, params, o.lr, 1e-2, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
