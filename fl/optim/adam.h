/* fl/optim/adam.h - Adam, AdamW, AMSGrad, Adamax, NAdam, RAdam */
#ifndef FL_OPTIM_ADAM_H
#define FL_OPTIM_ADAM_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_adam_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-3 */
    double beta1, beta2; /* 0 -> 0.9, 0.999 */
    double eps;          /* 0 -> 1e-8 */
    double weight_decay; /* adam: added to g, 0 -> 0; adamw: p -= lr weight_decay p, 0 -> 0.01 */
    bool amsgrad;        /* adam and adamw: v' is the bias-corrected maximum of v so far */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_adam_opts;
/* m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr m' / (sqrt(v') + eps), m' =
   m / (1 - beta1^t), v' = v / (1 - beta2^t). torch.optim.Adam and AdamW; Flashlight's Adam is AdamW. */
#define fl_optim_adam(...) FL_OPTIM__ADAM(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAM(params, ...) fl_optim_adam_opt(params, FL_LITERAL(fl_optim_adam_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o);
#define fl_optim_adamw(...) FL_OPTIM__ADAMW(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAMW(params, ...) fl_optim_adamw_opt(params, FL_LITERAL(fl_optim_adam_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o);
/* v = max(beta2 v, |g| + eps); p -= lr m' / v. torch.optim.Adamax: lr 0 -> 2e-3, weight_decay added to g */
#define fl_optim_adamax(...) FL_OPTIM__ADAMAX(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAMAX(params, ...) fl_optim_adamax_opt(params, FL_LITERAL(fl_optim_adam_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adamax_opt(fv_list params, fl_optim_adam_opts o);
/* Adam with Nesterov momentum: u_t = beta1 (1 - 0.96^(0.004 t) / 2); p -= lr ((1 - u_t) / (1 - u_1 ...
   u_t) g + u_t+1 / (1 - u_1 ... u_t+1) m) / (sqrt(v') + eps). torch.optim.NAdam: lr 0 -> 2e-3, weight_decay
   added to g */
#define fl_optim_nadam(...) FL_OPTIM__NADAM(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__NADAM(params, ...) fl_optim_nadam_opt(params, FL_LITERAL(fl_optim_adam_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_nadam_opt(fv_list params, fl_optim_adam_opts o);
/* Rectified Adam: rho = rho' - 2 t beta2^t / (1 - beta2^t), rho' = 2 / (1 - beta2) - 1;
   p -= lr m' r / (sqrt(v') + eps / sqrt(1 - beta2^t)) if rho > 5, else lr m'; r = sqrt((rho - 4) (rho - 2)
   rho' / ((rho' - 4) (rho' - 2) rho)). torch.optim.RAdam, weight_decay added to g (Liu et al. 2020, "On the
   variance of the adaptive learning rate and beyond") */
#define fl_optim_radam(...) FL_OPTIM__RADAM(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__RADAM(params, ...) fl_optim_radam_opt(params, FL_LITERAL(fl_optim_adam_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_radam_opt(fv_list params, fl_optim_adam_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_ADAM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_ADAM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_ADAM_IMPL
#define FL_OPTIM_ADAM_IMPL
#define FL__ADAM_BIAS(beta) "SUB(CONST(1), POW(" beta ", ADD(t, CONST(1))))"
#define FL__ADAM_M(g) "ADD(MUL(beta1, m), MUL(SUB(CONST(1), beta1), " g "))"
#define FL__ADAM_V(g) "ADD(MUL(beta2, v), MUL(SUB(CONST(1), beta2), MUL(" g ", " g ")))"
#define FL__ADAM_X(g) "MAX(x, " FL__ADAM_V(g) ")"
#define FL__ADAM_P(g, p, v) \
    "SUB(" p ", DIV(MUL(DIV(lr, " FL__ADAM_BIAS("beta1") "), " FL__ADAM_M(g) "), " \
    "ADD(DIV(SQRT(" v "), SQRT(" FL__ADAM_BIAS("beta2") ")), eps)))"
#define FL__ADAM(g, p) FL__ADAM_P(g, p, FL__ADAM_V(g)) "," FL__ADAM_M(g) "," FL__ADAM_V(g)
#define FL__ADAM_AMSGRAD(g, p) \
    FL__ADAM_P(g, p, FL__ADAM_X(g)) "," FL__ADAM_M(g) "," FL__ADAM_V(g) "," FL__ADAM_X(g)

#define FL__ADAM_RULE(writes_, formula_) \
    {.reads = "g", .writes = writes_, .numbers = "factor t lr beta1 beta2 eps weight_decay", \
     .formula = formula_}
#define FL__ADAM_TYPE(name_, rule_, largest) \
    {.name = name_, .state = {"exp_avg", "exp_avg_sq", largest}, \
     .hyper = {"beta1", "beta2", "eps", "weight_decay"}, .limits = "ffnn", .rule = rule_}

/* [adam, adamw][amsgrad] */
static fl_step_rule fl__adam_rules[2][2] = {
    {FL__ADAM_RULE("p m v", FL__ADAM(FL_OPTIM_DECAYED_G, "p")),
     FL__ADAM_RULE("p m v x", FL__ADAM_AMSGRAD(FL_OPTIM_DECAYED_G, "p"))},
    {FL__ADAM_RULE("p m v", FL__ADAM(FL_OPTIM_SCALED_G, FL_OPTIM_SHRUNK_P)),
     FL__ADAM_RULE("p m v x", FL__ADAM_AMSGRAD(FL_OPTIM_SCALED_G, FL_OPTIM_SHRUNK_P))}};
static const fl_optim_type fl__adam_types[2][2] = {
    {FL__ADAM_TYPE("adam", &fl__adam_rules[0][0], NULL),
     FL__ADAM_TYPE("amsgrad", &fl__adam_rules[0][1], "max_exp_avg_sq")},
    {FL__ADAM_TYPE("adamw", &fl__adam_rules[1][0], NULL),
     FL__ADAM_TYPE("amsgrad", &fl__adam_rules[1][1], "max_exp_avg_sq")}};

static fl_optim *fl__adam_make(const fl_optim_type *type, fv_list params, fl_optim_adam_opts o, double lr,
                               double decay) {
    const double hyper[] = {fl_option(o.beta1, 0.9), fl_option(o.beta2, 0.999), fl_option(o.eps, 1e-8),
                            fl_option(o.weight_decay, decay)};
    return fl__optim_make(type, params, o.lr, lr, hyper, o.master, o.maximize);
}

FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(&fl__adam_types[0][o.amsgrad], params, o, 1e-3, 0);
}

FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(&fl__adam_types[1][o.amsgrad], params, o, 1e-3, 1e-2);
}

#define FL__ADAM_NUMBERS "factor t lr beta1 beta2 eps weight_decay"
#define FL__ADAM_LARGEST "MAX(MUL(beta2, v), ADD(ABS(" FL_OPTIM_DECAYED_G "), eps))"
static fl_step_rule fl__adamax_rule = {
    .reads = "g", .writes = "p m v", .numbers = FL__ADAM_NUMBERS,
    .formula = "SUB(p, DIV(MUL(DIV(lr, " FL__ADAM_BIAS("beta1") "), " FL__ADAM_M(FL_OPTIM_DECAYED_G) "), "
               FL__ADAM_LARGEST "))," FL__ADAM_M(FL_OPTIM_DECAYED_G) "," FL__ADAM_LARGEST};
static const fl_optim_type fl__adamax_type = {.name = "adamax", .state = {"exp_avg", "exp_inf"},
                                              .hyper = {"beta1", "beta2", "eps", "weight_decay"},
                                              .limits = "ffnn", .rule = &fl__adamax_rule};

FL_API fl_optim *fl_optim_adamax_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(&fl__adamax_type, params, o, 2e-3, 0);
}

/* u at step t + n; the product of u up to the previous step is a state, 0 before the first. */
#define FL__ADAM_U(n) \
    "MUL(beta1, SUB(CONST(1), MUL(CONST(0.5), POW(CONST(0.96), MUL(CONST(0.004), ADD(t, CONST(" n ")))))))"
#define FL__ADAM_ALL "MUL(SELECT(EQ(t, CONST(0)), CONST(1), all), " FL__ADAM_U("1") ")"
static fl_step_rule fl__nadam_product = {.reads = "", .writes = "all", .numbers = FL__ADAM_NUMBERS,
                                         .formula = FL__ADAM_ALL};
static fl_step_rule fl__nadam_rule = {
    .reads = "g", .writes = "p m v", .numbers = FL__ADAM_NUMBERS " all",
    .formula = "SUB(p, DIV(ADD("
               "MUL(DIV(MUL(lr, SUB(CONST(1), " FL__ADAM_U("1") ")), SUB(CONST(1), " FL__ADAM_ALL ")), "
               FL_OPTIM_DECAYED_G "), "
               "MUL(DIV(MUL(lr, " FL__ADAM_U("2") "), "
               "SUB(CONST(1), MUL(" FL__ADAM_ALL ", " FL__ADAM_U("2") "))), "
               FL__ADAM_M(FL_OPTIM_DECAYED_G) ")), "
               "ADD(DIV(SQRT(" FL__ADAM_V(FL_OPTIM_DECAYED_G) "), SQRT(" FL__ADAM_BIAS("beta2") ")), eps))),"
               FL__ADAM_M(FL_OPTIM_DECAYED_G) "," FL__ADAM_V(FL_OPTIM_DECAYED_G)};

static bool fl__nadam_prepare(fl_optim *o, fl_optim_slot *p) {
    (void)o;
    p->number[0] = p->state[2];
    return true;
}

static bool fl__nadam_step(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *number[] = {fl_optim_factor(o), p->steps, p->group->numbers};
    return fl_optim_apply(o, p, &fl__nadam_rule) &&
           fl_step(&fl__nadam_product, &p->state[2], 3, number, NULL);
}

static const fl_optim_type fl__nadam_type = {
    .name = "nadam", .state = {"exp_avg", "exp_avg_sq", "mu_product"},
    .hyper = {"beta1", "beta2", "eps", "weight_decay"}, .limits = "ffnn", .rule = &fl__nadam_rule,
    .apart = 4, .prepare = fl__nadam_prepare, .step = fl__nadam_step};

FL_API fl_optim *fl_optim_nadam_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(&fl__nadam_type, params, o, 2e-3, 0);
}

#define FL__RADAM_MOST "SUB(DIV(CONST(2), SUB(CONST(1), beta2)), CONST(1))"
#define FL__RADAM_RHO \
    "SUB(" FL__RADAM_MOST ", DIV(MUL(MUL(CONST(2), ADD(t, CONST(1))), POW(beta2, ADD(t, CONST(1)))), " \
    FL__ADAM_BIAS("beta2") "))"
#define FL__RADAM_TERMS(rho) "MUL(SUB(" rho ", CONST(4)), SUB(" rho ", CONST(2)))"
#define FL__RADAM_RECT \
    "SQRT(DIV(MUL(" FL__RADAM_TERMS(FL__RADAM_RHO) ", " FL__RADAM_MOST "), " \
    "MUL(" FL__RADAM_TERMS(FL__RADAM_MOST) ", " FL__RADAM_RHO ")))"
static fl_step_rule fl__radam_rule = {
    .reads = "g", .writes = "p m v", .numbers = FL__ADAM_NUMBERS,
    .formula = "SUB(p, MUL(MUL(DIV(lr, " FL__ADAM_BIAS("beta1") "), " FL__ADAM_M(FL_OPTIM_DECAYED_G) "), "
               "SELECT(LT(CONST(5), " FL__RADAM_RHO "), "
               "DIV(MUL(" FL__RADAM_RECT ", SQRT(" FL__ADAM_BIAS("beta2") ")), "
               "ADD(SQRT(" FL__ADAM_V(FL_OPTIM_DECAYED_G) "), eps)), CONST(1)))),"
               FL__ADAM_M(FL_OPTIM_DECAYED_G) "," FL__ADAM_V(FL_OPTIM_DECAYED_G)};
static const fl_optim_type fl__radam_type = FL__ADAM_TYPE("radam", &fl__radam_rule, NULL);

FL_API fl_optim *fl_optim_radam_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__adam_make(&fl__radam_type, params, o, 1e-3, 0);
}

#endif
#endif
/* MIT licence: see LICENSE. */
