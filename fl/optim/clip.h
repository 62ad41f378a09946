/* fl/optim/clip.h - gradient clipping by norm and by value */
#ifndef FL_OPTIM_CLIP_H
#define FL_OPTIM_CLIP_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* None of these reads the norm on the host: a step with them can be recorded or queued on a device. */

/* Global norm of all gradients: the root of the sum of their squares, 0-d, f64. */
FL_API fl_tensor *fl_optim_grad_norm(fv_list params);
/* Scales all gradients in place by max_norm / (norm + 1e-6) if that is below 1. Returns the norm before. A
   NaN norm propagates to all gradients (torch.nn.utils.clip_grad_norm_). */
FL_API fl_tensor *fl_optim_clip_grad_norm(fv_list params, double max_norm);
/* The same for the next step of o, by fl_optim_scale: gradients are not rewritten, which saves a pass over
   them. The norm is that of the gradients times o's factor so far. */
FL_API fl_tensor *fl_optim_clip(fl_optim *o, double max_norm);
/* Clamps every gradient element to [-most, most] in place (torch.nn.utils.clip_grad_value_). */
FL_API bool fl_optim_clip_grad_value(fv_list params, double most);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_CLIP_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_CLIP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_CLIP_IMPL
#define FL_OPTIM_CLIP_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/step.h"
#include "../ops/view.h"

/* Sum of the squares of all gradients. */
static fl_tensor *fl__clip_squares(int64_t n, fl_var *const *list, const fl_optim_slot *slot) {
    fl_tensor *sum = NULL;
    for (int64_t i = 0; i < n && !fl_error(); i++) {
        fl_tensor *g = fv_grad(list ? list[i] : slot[i].param);
        if (g) sum = fl_add_squares(sum, g);
    }
    if (!sum && !fl_error()) sum = fl_zeros(FL_SCALAR_SHAPE, FL_F64);
    return fl_error() ? NULL : sum;
}

/* norm = scale sqrt(sum); factor = most / (norm + 1e-6), at most 1; NaN propagates. One record instead of
   many small ones. */
static bool fl__clip_factor(fl_tensor *sum, fl_tensor *scale, double most, fl_tensor **norm,
                            fl_tensor **factor) {
#define FL__CLIP_NORM "MUL(SQRT(sum), ABS(scale))"
#define FL__CLIP_FACTOR "DIV(most, ADD(" FL__CLIP_NORM ", CONST(1e-6)))"
    static fl_step_rule rule = {.reads = "", .writes = "norm factor", .numbers = "sum scale most",
                                .formula = FL__CLIP_NORM ", SELECT(LE(CONST(1), " FL__CLIP_FACTOR
                                           "), CONST(1), " FL__CLIP_FACTOR ")"};
    fl_tensor *out[2] = {sum ? fl_empty_like(sum) : NULL, sum ? fl_empty_like(sum) : NULL};
    fl_tensor *number[] = {sum, scale, fl_num(most)};
    *norm = out[0];
    *factor = out[1];
    return out[0] && out[1] && number[1] && number[2] && fl_step(&rule, out, 3, number, NULL);
}

static bool fl__clip_allowed(const char *name, const char *what, double most) {
    return most >= 0 || fl_fail("fl_optim_%s: %s must not be negative, got %g", name, what, most);
}

/* g = op(g, x), in place unless g is not dense, e.g. broadcast. */
static bool fl__clip_grad(fl_var *p, fl_op op, fl_tensor *x) {
    fl_tensor *g = fv_grad(p);
    if (!g) return true;
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_is_dense(g) ? g : fl_empty_like(g);
    bool ok = y && fl_assign_op(y, op, g, x);
    if (ok && y != g) ok = fv_set_grad(p, fv_const(y));
    fl_scope_end(&s);
    return ok;
}

FL_API fl_tensor *fl_optim_grad_norm(fv_list params) {
    if (fl_error()) return NULL;
    if (!fl__optim_params_ok("grad_norm", params)) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *sum = fl__clip_squares(params.n, params.v, NULL);
    return fl_scope_return(&s, sum ? fl_sqrt(sum) : NULL);
}

FL_API fl_tensor *fl_optim_clip_grad_norm(fv_list params, double max_norm) {
    if (fl_error()) return NULL;
    if (!fl__optim_params_ok("clip_grad_norm", params) ||
        !fl__clip_allowed("clip_grad_norm", "max_norm", max_norm))
        return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *norm, *factor, *sum = fl__clip_squares(params.n, params.v, NULL);
    bool ok = fl__clip_factor(sum, fl_num(1), max_norm, &norm, &factor);
    for (int i = 0; ok && i < params.n; i++) ok = fl__clip_grad(params.v[i], FL_OP_mul, factor);
    return fl_scope_return(&s, ok ? norm : NULL);
}

FL_API fl_tensor *fl_optim_clip(fl_optim *o, double max_norm) {
    if (fl_error()) return NULL;
    if (!fl_given(o, "fl_optim_clip", "the optimizer") || !fl__clip_allowed("clip", "max_norm", max_norm))
        return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *norm, *factor, *sum = fl__clip_squares(o->n, NULL, o->slot);
    const bool ok = fl__clip_factor(sum, fl_optim_factor(o), max_norm, &norm, &factor);
    return fl_scope_return(&s, ok && fl_optim_scale(o, factor) ? norm : NULL);
}

FL_API bool fl_optim_clip_grad_value(fv_list params, double most) {
    if (fl_error()) return false;
    bool ok = fl__optim_params_ok("clip_grad_value", params) &&
              fl__clip_allowed("clip_grad_value", "the value", most);
    for (int i = 0; ok && i < params.n; i++) {
        fl_scope s = fl_scope_begin();
        ok = fl__clip_grad(params.v[i], FL_OP_minimum, fl_num(most)) &&
             fl__clip_grad(params.v[i], FL_OP_maximum, fl_num(-most));
        fl_scope_end(&s);
    }
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
