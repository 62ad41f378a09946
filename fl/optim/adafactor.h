/* fl/optim/adafactor.h - Adafactor: factored second moments (a row and a column per matrix) */
#ifndef FL_OPTIM_ADAFACTOR_H
#define FL_OPTIM_ADAFACTOR_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_adafactor_opts {
    fl_opts_guard guard_;
    double lr;           /* the maximum; 0 -> 0.01 */
    double beta2_decay;  /* at most 0; 0 -> -0.8 */
    double eps1;         /* lower bound of the divisor; 0 -> machine epsilon of f32, or f64 for f64 */
    double eps2;         /* lower bound of a parameter's RMS; 0 -> 1e-3 */
    double d;            /* upper bound of an update's RMS, at least 1; 0 -> 1 */
    double weight_decay; /* 0; p -= lr weight_decay p */
    bool master;         /* see fl_optim_use_masters */
    bool maximize;       /* see fl_optim_maximize */
    char _end;
} fl_optim_adafactor_opts;
/* w = t^beta2_decay; row += w (mean of g^2 over the last axis - row); col likewise over the last axis but
   one; v = row col / max(mean of row, eps1), for a parameter of at most one axis v += w (g^2 - v); u = g /
   max( sqrt(v), eps1); p -= min(lr, 1 / sqrt(t)) max(eps2, rms(p)) u / max(1, rms(u) / d). The state of an n
   x m matrix has n + m elements. torch.optim.Adafactor (Shazeer and Stern 2018, "Adaptive learning rates with
   sublinear memory cost") */
#define fl_optim_adafactor(...) FL_OPTIM__ADAFACTOR(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAFACTOR(params, ...) \
    fl_optim_adafactor_opt(params, FL_LITERAL(fl_optim_adafactor_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_adafactor_opt(fv_list params, fl_optim_adafactor_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_ADAFACTOR_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_ADAFACTOR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_ADAFACTOR_IMPL
#define FL_OPTIM_ADAFACTOR_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/reduce.h"
#include <float.h>

#define FL__FACTOR_NUMBERS "factor t lr beta2_decay eps1 eps2 d weight_decay"
/* v after the step; x is the (mean of the) squares before the factor. */
#define FL__FACTOR_V \
    "ADD(v, MUL(POW(ADD(t, CONST(1)), beta2_decay), SUB(MUL(MUL(factor, factor), x), v)))"
static fl_step_rule fl__factor_peek = {.reads = "x v", .writes = "y", .numbers = FL__FACTOR_NUMBERS,
                                       .formula = FL__FACTOR_V};
static fl_step_rule fl__factor_moment = {.reads = "x", .writes = "v", .numbers = FL__FACTOR_NUMBERS,
                                         .formula = FL__FACTOR_V};
/* Turns the estimate of the second moment into the update. */
static fl_step_rule fl__factor_update = {
    .reads = "g", .writes = "u", .numbers = FL__FACTOR_NUMBERS " least",
    .formula = "DIV(MUL(factor, g), SQRT(MAX(u, MUL(least, least))))"};
/* The factor of the update, from sums of squares of p and u and their count n. */
static fl_step_rule fl__factor_size = {
    .reads = "", .writes = "size", .numbers = FL__FACTOR_NUMBERS " pp uu n",
    .formula = "DIV(MUL(MIN(lr, DIV(CONST(1), SQRT(ADD(t, CONST(1))))), MAX(eps2, SQRT(DIV(pp, n)))), "
               "MAX(CONST(1), DIV(SQRT(DIV(uu, n)), d)))"};
/* Writing u too, unchanged, makes the record compute in u's wide dtype: p may be narrow. */
static fl_step_rule fl__factor_rule = {.reads = "", .writes = "p u", .numbers = FL__FACTOR_NUMBERS " size",
                                       .formula = "SUB(" FL_OPTIM_SHRUNK_P ", MUL(size, u)), u"};

enum { FL__FACTOR_EPS = 1, FL__FACTOR_VECTOR = 2 /* the state of parameters without rows */ };

static fl_tensor *fl__factor_init(fl_optim *o, fl_tensor *param, int k) {
    fl_shape shape = fl_shape_of(param);
    (void)o;
    if ((k < FL__FACTOR_VECTOR) != (param->ndim > 1)) return NULL;
    if (k < FL__FACTOR_VECTOR) shape.dim[shape.ndim - 1 - k] = 1;
    return fl_to(fl_zeros(shape, fl_dtype_wide(param->dtype)), fl_backend_name(param));
}

static bool fl__factor_prepare(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *value = p->master ? p->master : fv_value(p->param), *after[2] = {NULL}, *u = NULL;
    const fl_dtype d = fl_dtype_wide(value->dtype);
    const bool rows = value->ndim > 1;
    const double eps = p->group->hyper[FL__FACTOR_EPS], least = eps != 0      ? eps
                                                                : d == FL_F64 ? DBL_EPSILON
                                                                              : FLT_EPSILON;
    fl_tensor *number[6] = {fl_optim_factor(o), p->steps, p->group->numbers};
    fl_scope s = fl_scope_begin();
    fl_tensor *gg = fl_square(fl_cast(p->grad, d));
    bool ok = gg != NULL;
    for (int k = 0; ok && k < 1 + rows; k++) {
        fl_tensor *x = p->made[k] = rows ? fl_mean(gg, FL_AXES_KEEP(-1 - k)) : gg;
        fl_tensor *before = p->state[rows ? k : FL__FACTOR_VECTOR];
        after[k] = x ? fl_empty_like(before) : NULL;
        ok = after[k] && fl_step(&fl__factor_peek, (fl_tensor *[]){x, before, after[k]}, 3, number, NULL);
    }
    if (ok && rows)
        u = fl_div(fl_mul(after[0], after[1]),
                   fl_maximum(fl_mean(after[0], FL_AXES_KEEP(-2)), fl_num(least)));
    else u = after[0];
    ok = ok && u && (number[3] = fl_num(least)) &&
         fl_step(&fl__factor_update, (fl_tensor *[]){p->grad, u}, 4, number, NULL);
    fl_tensor *pp = ok ? fl_sum_squares(value) : NULL, *size = pp ? fl_empty_like(pp) : NULL;
    number[3] = pp;
    number[4] = size ? fl_sum_squares(u) : NULL;
    number[5] = number[4] ? fl_num((double)fl_numel(u)) : NULL;
    ok = number[5] && fl_step(&fl__factor_size, &size, 6, number, NULL);
    p->update = fl_scope_escape(&s, ok ? u : NULL);
    p->number[0] = fl_scope_escape(&s, ok ? size : NULL);
    for (int k = 0; k < 2; k++) p->made[k] = fl_scope_escape(&s, p->made[k]);
    fl_scope_end(&s);
    return ok;
}

static bool fl__factor_step(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *value = fv_value(p->param), *tensor[] = {p->master ? p->master : value, p->update};
    fl_tensor *number[] = {fl_optim_factor(o), p->steps, p->group->numbers, p->number[0]};
    bool ok = fl_step(&fl__factor_rule, tensor, 4, number, p->master ? value : NULL);
    for (int k = 0; ok && k < 2 && p->made[k]; k++) {
        fl_tensor *state = p->state[p->made[1] ? k : FL__FACTOR_VECTOR];
        ok = fl_step(&fl__factor_moment, (fl_tensor *[]){p->made[k], state}, 3, number, NULL);
    }
    return ok;
}

static const fl_optim_type fl__factor_type = {
    .name = "adafactor", .state = {"row_var", "col_var", "variance"},
    .hyper = {"beta2_decay", "eps1", "eps2", "d", "weight_decay"}, .limits = " nnnn", .apart = 7,
    .init = fl__factor_init, .prepare = fl__factor_prepare, .step = fl__factor_step};

FL_API fl_optim *fl_optim_adafactor_opt(fv_list params, fl_optim_adafactor_opts o) {
    const double decay = fl_option(o.beta2_decay, -0.8), d = fl_option(o.d, 1);
    const double hyper[] = {decay, fl_option(o.eps1, 0), fl_option(o.eps2, 1e-3), d,
                            fl_option(o.weight_decay, 0)};
    if (!(decay <= 0 && d >= 1))
        return fl_err_null("fl_optim_adafactor: beta2_decay must be at most 0, got %g; d at least 1, got %g",
                           decay, d);
    return fl__optim_make(&fl__factor_type, params, o.lr, 1e-2, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
