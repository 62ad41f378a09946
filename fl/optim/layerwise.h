/* fl/optim/layerwise.h - LAMB and NovoGrad: layer-wise adaptive rates */
#ifndef FL_OPTIM_LAYERWISE_H
#define FL_OPTIM_LAYERWISE_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* .master: see fl_optim_use_masters; .maximize: see fl_optim_maximize. */
typedef struct fl_optim_lamb_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-3 */
    double beta1, beta2; /* 0 -> 0.9, 0.999 */
    double eps;          /* 0 -> 1e-6 */
    double weight_decay; /* 0 */
    bool master, maximize;
    char _end;
} fl_optim_lamb_opts;
/* m, v, m', v' as in Adam; r = m' / (sqrt(v') + eps) + weight_decay p; p -= lr |p| / |r| r; the ratio is 1 if
   a norm is 0 (You et al. 2020, "Large batch optimization for deep learning") */
#define fl_optim_lamb(...) FL_OPTIM__LAMB(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__LAMB(params, ...) fl_optim_lamb_opt(params, FL_LITERAL(fl_optim_lamb_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_lamb_opt(fv_list params, fl_optim_lamb_opts o);

typedef struct fl_optim_novograd_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-3 */
    double beta1, beta2; /* 0 -> 0.95, 0.98 */
    double eps;          /* 0 -> 1e-8 */
    double weight_decay; /* 0 */
    bool master, maximize;
    char _end;
} fl_optim_novograd_opts;
/* v = beta2 v + (1 - beta2) |g|^2, initially |g|^2, one number per tensor; m = beta1 m + g / (sqrt(v) + eps)
   + weight_decay p; p -= lr m (Ginsburg et al. 2019, "Stochastic gradient methods with layer-wise adaptive
   moments"; Flashlight's defaults) */
#define fl_optim_novograd(...) FL_OPTIM__NOVOGRAD(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__NOVOGRAD(params, ...) \
    fl_optim_novograd_opt(params, FL_LITERAL(fl_optim_novograd_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_novograd_opt(fv_list params, fl_optim_novograd_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_LAYERWISE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_LAYERWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_LAYERWISE_IMPL
#define FL_OPTIM_LAYERWISE_IMPL
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#define FL__LAMB_G "MUL(factor, g)"
#define FL__LAMB_BIAS(beta) "SUB(CONST(1), POW(" beta ", ADD(t, CONST(1))))"
#define FL__LAMB_M "ADD(MUL(beta1, m), MUL(SUB(CONST(1), beta1), " FL__LAMB_G "))"
#define FL__LAMB_V \
    "ADD(MUL(beta2, v), MUL(SUB(CONST(1), beta2), MUL(" FL__LAMB_G ", " FL__LAMB_G ")))"
#define FL__LAMB_R \
    "ADD(DIV(DIV(" FL__LAMB_M ", " FL__LAMB_BIAS("beta1") "), " \
    "ADD(SQRT(DIV(" FL__LAMB_V ", " FL__LAMB_BIAS("beta2") ")), eps)), MUL(weight_decay, p))"
#define FL__LAMB_NUMBERS "factor t lr beta1 beta2 eps weight_decay"
/* First r, for its norm; then the update, with the ratio |p| / |r|. */
static fl_step_rule fl__lamb_peek = {.reads = "g p m v", .writes = "r", .numbers = FL__LAMB_NUMBERS,
                                     .formula = FL__LAMB_R};
static fl_step_rule fl__lamb_rule = {
    .reads = "g", .writes = "p m v", .numbers = FL__LAMB_NUMBERS " ratio",
    .formula = "SUB(p, MUL(MUL(lr, ratio), " FL__LAMB_R "))," FL__LAMB_M "," FL__LAMB_V};

static bool fl__lamb_prepare(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *value = p->master ? p->master : fv_value(p->param);
    fl_scope s = fl_scope_begin();
    fl_tensor *r = fl_empty_like(p->state[0]);
    fl_tensor *tensor[] = {p->grad, value, p->state[0], p->state[1], r};
    fl_tensor *number[] = {fl_optim_factor(o), p->steps, p->group->numbers};
    const bool ok = r && fl_step(&fl__lamb_peek, tensor, 3, number, NULL);
    fl_tensor *rr = ok ? fl_sum_squares(r) : NULL, *pp = rr ? fl_sum_squares(value) : NULL;
    fl_tensor *both = pp ? fl_gt(fl_mul(pp, rr), fl_num(0)) : NULL;
    p->number[0] = both ? fl_where(both, fl_sqrt(fl_div(pp, rr)), fl_num(1)) : NULL;
    return (p->number[0] = fl_scope_return(&s, p->number[0])) != NULL;
}

static const fl_optim_type fl__lamb_type = {.name = "lamb", .state = {"exp_avg", "exp_avg_sq"},
                                            .hyper = {"beta1", "beta2", "eps", "weight_decay"},
                                            .limits = "ffnn", .rule = &fl__lamb_rule,
                                            .prepare = fl__lamb_prepare};

FL_API fl_optim *fl_optim_lamb_opt(fv_list params, fl_optim_lamb_opts o) {
    const double hyper[] = {fl_option(o.beta1, 0.9), fl_option(o.beta2, 0.999), fl_option(o.eps, 1e-6),
                            fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__lamb_type, params, o.lr, 1e-3, hyper, o.master, o.maximize);
}

/* gg is |g|^2 before the factor; v is that of the previous step. */
#define FL__NOVO_GG "MUL(MUL(factor, factor), gg)"
#define FL__NOVO_V \
    "SELECT(EQ(t, CONST(0)), " FL__NOVO_GG ", " \
    "ADD(MUL(beta2, v), MUL(SUB(CONST(1), beta2), " FL__NOVO_GG ")))"
#define FL__NOVO_M \
    "ADD(MUL(beta1, m), ADD(DIV(" FL__LAMB_G ", ADD(SQRT(" FL__NOVO_V "), eps)), " \
    "MUL(weight_decay, p)))"
static fl_step_rule fl__novograd_rule = {
    .reads = "g", .writes = "p m", .numbers = "factor t lr beta1 beta2 eps weight_decay v gg",
    .formula = "SUB(p, MUL(lr, " FL__NOVO_M "))," FL__NOVO_M};
static fl_step_rule fl__novograd_norm = {.reads = "gg", .writes = "v",
                                         .numbers = "factor t lr beta1 beta2 eps weight_decay",
                                         .formula = FL__NOVO_V};

static bool fl__novograd_prepare(fl_optim *o, fl_optim_slot *p) {
    (void)o;
    p->number[0] = p->state[1];
    p->number[1] = fl_sum_squares(p->grad);
    return p->number[1] != NULL;
}

static bool fl__novograd_step(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *norms[] = {p->number[1], p->state[1]};
    fl_tensor *number[] = {fl_optim_factor(o), p->steps, p->group->numbers};
    return fl_optim_apply(o, p, &fl__novograd_rule) && fl_step(&fl__novograd_norm, norms, 3, number, NULL);
}

static const fl_optim_type fl__novograd_type = {.name = "novograd", .state = {"exp_avg", "norm_sq"},
                                                .hyper = {"beta1", "beta2", "eps", "weight_decay"},
                                                .limits = "ffnn", .apart = 2,
                                                .prepare = fl__novograd_prepare, .step = fl__novograd_step};

FL_API fl_optim *fl_optim_novograd_opt(fv_list params, fl_optim_novograd_opts o) {
    const double hyper[] = {fl_option(o.beta1, 0.95), fl_option(o.beta2, 0.98), fl_option(o.eps, 1e-8),
                            fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__novograd_type, params, o.lr, 1e-3, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
