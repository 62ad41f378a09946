/* fl/optim/muon.h - Muon: orthogonalised momentum updates of matrices */
#ifndef FL_OPTIM_MUON_H
#define FL_OPTIM_MUON_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_muon_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> 1e-3 */
    double weight_decay; /* 0 -> 0.1; p -= lr weight_decay p */
    double momentum;     /* 0 -> 0.95 */
    double eps;          /* 0 -> 1e-7 */
    int64_t steps;       /* Newton-Schulz iterations, 0 -> 5 */
    bool no_nesterov;
    bool match_adamw;    /* scale by 0.2 sqrt(max(rows, columns)), to match the RMS of AdamW's updates */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_muon_opts;
/* m = momentum m + (1 - momentum) g; u = (1 - momentum) g + momentum m (no_nesterov: m); p -= lr (sqrt(max(1,
   rows / columns)) orthogonal(u) + weight_decay p); orthogonal: x = u / |u|, then `steps` times x = 3.4445 x
   - 4.775 y x + 2.0315 y y x, y = x x^T, with x transposed if it has more rows than columns.
   torch.optim.Muon, which does that in bf16, fl in f32. Every parameter must have 2 dims: use another
   optimizer for biases, norms, embeddings and heads. */
#define fl_optim_muon(...) FL_OPTIM__MUON(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__MUON(params, ...) fl_optim_muon_opt(params, FL_LITERAL(fl_optim_muon_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_muon_opt(fv_list params, fl_optim_muon_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_MUON_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_MUON) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_MUON_IMPL
#define FL_OPTIM_MUON_IMPL
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/view.h"
#include <math.h>

#define FL__MUON_NUMBERS "factor t lr weight_decay momentum eps steps nesterov match_adamw"
#define FL__MUON_G "MUL(factor, g)"
#define FL__MUON_M "ADD(m, MUL(SUB(CONST(1), momentum), SUB(" FL__MUON_G ", m)))"
static fl_step_rule fl__muon_peek = {
    .reads = "g m", .writes = "u", .numbers = FL__MUON_NUMBERS,
    .formula = "SELECT(LT(CONST(0), nesterov), "
               "ADD(" FL__MUON_G ", MUL(momentum, SUB(" FL__MUON_M ", " FL__MUON_G "))), "
               FL__MUON_M ")"};
static fl_step_rule fl__muon_rule = {
    .reads = "g u", .writes = "p m", .numbers = FL__MUON_NUMBERS,
    .formula = "SUB(SUB(p, MUL(MUL(lr, weight_decay), p)), MUL(lr, u))," FL__MUON_M};

enum { FL__MUON_EPS = 2, FL__MUON_STEPS, FL__MUON_NESTEROV, FL__MUON_MATCH };

/* An approximation of the orthogonal matrix nearest to u: its singular values become 0.7 to 1.2. */
static fl_tensor *fl__muon_orthogonal(fl_tensor *u, double eps, int64_t steps) {
    fl_tensor *norm = fl_maximum(fl_cast(fl_sqrt(fl_sum_squares(u)), u->dtype), fl_num(eps));
    const bool tall = u->shape[0] > u->shape[1];
    fl_tensor *x = fl_div(tall ? fl_transpose(u, 0, 1) : u, norm);
    for (int64_t i = 0; i < steps; i++) {
        fl_tensor *y = fl_matmul(x, x ? fl_transpose(x, 0, 1) : NULL);
        fl_tensor *z = fl_add(fl_mul(y, fl_num(-4.7750)), fl_mul(fl_matmul(y, y), fl_num(2.0315)));
        x = fl_add(fl_mul(x, fl_num(3.4445)), fl_matmul(z, x));
    }
    return tall && x ? fl_transpose(x, 0, 1) : x;
}

static bool fl__muon_prepare(fl_optim *o, fl_optim_slot *p) {
    const double *hyper = p->group->hyper;
    fl_scope s = fl_scope_begin();
    fl_tensor *u = fl_empty_like(p->state[0]), *tensor[] = {p->grad, p->state[0], u};
    fl_tensor *number[] = {fl_optim_factor(o), p->steps, p->group->numbers};
    if (u && fl_step(&fl__muon_peek, tensor, 3, number, NULL)) {
        const double rows = (double)u->shape[0], columns = (double)u->shape[1];
        const double size = hyper[FL__MUON_MATCH] != 0 ? 0.2 * sqrt(rows > columns ? rows : columns)
                                                       : sqrt(rows > columns ? rows / columns : 1);
        fl_tensor *x = fl__muon_orthogonal(u, hyper[FL__MUON_EPS], (int64_t)hyper[FL__MUON_STEPS]);
        p->update = fl_contiguous(fl_mul(x, fl_num(size)));
    }
    p->update = fl_scope_escape(&s, p->update);
    fl_scope_end(&s);
    return p->update != NULL;
}

static const fl_optim_type fl__muon_type = {
    .name = "muon", .state = {"momentum_buffer"},
    .hyper = {"weight_decay", "momentum", "eps", "steps", "nesterov", "match_adamw"}, .limits = "nfnnnn",
    .rule = &fl__muon_rule, .prepare = fl__muon_prepare};

FL_API fl_optim *fl_optim_muon_opt(fv_list params, fl_optim_muon_opts o) {
    const double hyper[] = {fl_option(o.weight_decay, 0.1), fl_option(o.momentum, 0.95),
                            fl_option(o.eps, 1e-7), (double)fl_option_int(o.steps, 5), !o.no_nesterov,
                            o.match_adamw};
    for (int i = 0; i < params.n; i++)
        if (params.v[i] && fv_value(params.v[i])->ndim != 2)
            return fl_err_null("fl_optim_muon: parameters must have 2 dims, got %s for parameter %d: use "
                               "another optimizer for it", FL_SHAPE_TEXT(fv_value(params.v[i])), i);
    return fl__optim_make(&fl__muon_type, params, o.lr, 1e-3, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
