/* fl/optim/sgd.h - stochastic gradient descent with (Nesterov) momentum; averaged SGD (ASGD) */
#ifndef FL_OPTIM_SGD_H
#define FL_OPTIM_SGD_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_sgd_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-3 */
    double momentum;     /* 0 */
    double dampening;    /* 0 */
    double weight_decay; /* 0; added to the gradient */
    bool nesterov;       /* requires momentum and no dampening */
    bool decoupled;      /* decoupled weight decay: p -= lr weight_decay p */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_sgd_opts;
/* g += weight_decay p; m = momentum m + (1 - dampening) g, initially m = g; p -= lr (nesterov ? g
   + momentum m : m). torch.optim.SGD. Flashlight's and fairseq's NAG (momentum 0.99 there) is .nesterov
   with .decoupled: they store lr m instead of m and correct it when lr changes. */
#define fl_optim_sgd(...) FL_OPTIM__SGD(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__SGD(params, ...) fl_optim_sgd_opt(params, FL_LITERAL(fl_optim_sgd_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_sgd_opt(fv_list params, fl_optim_sgd_opts o);

typedef struct fl_optim_asgd_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 0.01 */
    double lambd;        /* decay of p and of the step size; 0 -> 1e-4 */
    double alpha;        /* exponent of the step size; 0 -> 0.75 */
    double t0;           /* step at which averaging starts; 0 -> 1e6 */
    double weight_decay; /* 0; added to the gradient */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_asgd_opts;
/* eta = lr / (1 + lambd lr t)^alpha; p = (1 - lambd eta) p - eta g; ax += (p - ax) / max(1, t - t0), where t
   is the number of steps before this one. The average, ax, is state 0 of a slot. torch.optim.ASGD, except
   that its eta uses the previous step's lr (Polyak and Juditsky 1992) */
#define fl_optim_asgd(...) FL_OPTIM__ASGD(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ASGD(params, ...) fl_optim_asgd_opt(params, FL_LITERAL(fl_optim_asgd_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_asgd_opt(fv_list params, fl_optim_asgd_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_SGD_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_SGD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_SGD_IMPL
#define FL_OPTIM_SGD_IMPL
#define FL__SGD_MOMENTUM(g) \
    "ADD(MUL(momentum, m), MUL(SELECT(EQ(t, CONST(0)), CONST(1), SUB(CONST(1), dampening))," g "))"
#define FL__SGD_PLAIN(g, p) "SUB(" p ", MUL(lr, " g "))"
#define FL__SGD_HEAVY(g, p) "SUB(" p ", MUL(lr, " FL__SGD_MOMENTUM(g) "))," FL__SGD_MOMENTUM(g)
#define FL__SGD_NESTEROV(g, p) \
    "SUB(" p ", MUL(lr, ADD(" g ", MUL(momentum, " FL__SGD_MOMENTUM(g) "))))," FL__SGD_MOMENTUM(g)

#define FL__SGD_RULE(writes_, FORMULA, g, p) \
    {.reads = "g", .writes = writes_, .numbers = "factor t lr momentum dampening weight_decay nesterov", \
     .formula = FORMULA(g, p)}
#define FL__SGD_TYPE(rule_, buffer) \
    {.name = "sgd", .state = {buffer}, .hyper = {"momentum", "dampening", "weight_decay", "nesterov"}, \
     .limits = "n nn", .rule = rule_}

/* [decoupled][plain, momentum, Nesterov] */
static fl_step_rule fl__sgd_rules[2][3] = {
    {FL__SGD_RULE("p", FL__SGD_PLAIN, FL_OPTIM_DECAYED_G, "p"),
     FL__SGD_RULE("p m", FL__SGD_HEAVY, FL_OPTIM_DECAYED_G, "p"),
     FL__SGD_RULE("p m", FL__SGD_NESTEROV, FL_OPTIM_DECAYED_G, "p")},
    {FL__SGD_RULE("p", FL__SGD_PLAIN, FL_OPTIM_SCALED_G, FL_OPTIM_SHRUNK_P),
     FL__SGD_RULE("p m", FL__SGD_HEAVY, FL_OPTIM_SCALED_G, FL_OPTIM_SHRUNK_P),
     FL__SGD_RULE("p m", FL__SGD_NESTEROV, FL_OPTIM_SCALED_G, FL_OPTIM_SHRUNK_P)}};
static const fl_optim_type fl__sgd_types[2][3] = {
    {FL__SGD_TYPE(&fl__sgd_rules[0][0], NULL), FL__SGD_TYPE(&fl__sgd_rules[0][1], "momentum_buffer"),
     FL__SGD_TYPE(&fl__sgd_rules[0][2], "momentum_buffer")},
    {FL__SGD_TYPE(&fl__sgd_rules[1][0], NULL), FL__SGD_TYPE(&fl__sgd_rules[1][1], "momentum_buffer"),
     FL__SGD_TYPE(&fl__sgd_rules[1][2], "momentum_buffer")}};

FL_API fl_optim *fl_optim_sgd_opt(fv_list params, fl_optim_sgd_opts o) {
    const double momentum = fl_option(o.momentum, 0), dampening = fl_option(o.dampening, 0);
    const double hyper[] = {momentum, dampening, fl_option(o.weight_decay, 0), o.nesterov};
    if (o.nesterov && (!(momentum > 0) || dampening != 0))
        return fl_err_null("fl_optim_sgd: nesterov requires momentum > 0 and dampening 0, got %g and %g",
                           momentum, dampening);
    const fl_optim_type *type = &fl__sgd_types[o.decoupled][o.nesterov ? 2 : momentum != 0];
    return fl__optim_make(type, params, o.lr, 1e-3, hyper, o.master, o.maximize);
}

#define FL__ASGD_ETA "DIV(lr, POW(ADD(CONST(1), MUL(MUL(lambd, lr), t)), alpha))"
#define FL__ASGD_P \
    "SUB(MUL(SUB(CONST(1), MUL(lambd, " FL__ASGD_ETA ")), p), MUL(" FL__ASGD_ETA ", " FL_OPTIM_DECAYED_G "))"
#define FL__ASGD_MU "DIV(CONST(1), MAX(CONST(1), SUB(t, t0)))"
static fl_step_rule fl__asgd_rule = {
    .reads = "g", .writes = "p a", .numbers = "factor t lr lambd alpha t0 weight_decay",
    .formula = FL__ASGD_P ", SELECT(EQ(" FL__ASGD_MU ", CONST(1)), " FL__ASGD_P ", "
               "ADD(a, MUL(" FL__ASGD_MU ", SUB(" FL__ASGD_P ", a))))"};
static const fl_optim_type fl__asgd_type = {.name = "asgd", .state = {"ax"},
                                            .hyper = {"lambd", "alpha", "t0", "weight_decay"},
                                            .limits = "nnnn", .rule = &fl__asgd_rule};

FL_API fl_optim *fl_optim_asgd_opt(fv_list params, fl_optim_asgd_opts o) {
    const double hyper[] = {fl_option(o.lambd, 1e-4), fl_option(o.alpha, 0.75), fl_option(o.t0, 1e6),
                            fl_option(o.weight_decay, 0)};
    return fl__optim_make(&fl__asgd_type, params, o.lr, 1e-2, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
