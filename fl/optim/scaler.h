/* fl/optim/scaler.h - dynamic loss scaling for f16 gradients */
#ifndef FL_OPTIM_SCALER_H
#define FL_OPTIM_SCALER_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gradients below 6e-8 underflow to zero in f16. Therefore the loss is multiplied by a scale, and the step
   divides the gradients by it, in the optimizer's f32. If a gradient is infinite or NaN, the step is skipped
   and the scale is multiplied by `backoff`; after `interval` steps in a row without that it is multiplied by
   `growth`. (PyTorch's torch.amp.GradScaler; not needed for bf16.) The state is tensors, so nothing waits for
   the device.

     fl_backward(fl_optim_scaler_scale(scaler, loss));
     fl_optim_scaler_unscale(scaler, optim); // then optionally fl_optim_clip
     fl_optim_step(optim);
     fl_optim_scaler_update(scaler);

   With several optimizers: unscale and step each, then update once. */
typedef struct fl_optim_scaler {
    double growth, backoff, least; /* as in the options */
    int64_t interval;
    fl_tensor *scale; /* f32, 0-d */
    fl_tensor *good;  /* i64, 0-d: steps since the scale changed or a step was skipped */
    fl_tensor *sum;   /* f64, 0-d: sum of squares of this step's gradients; NULL: none unscaled yet */
    int64_t updates;
} fl_optim_scaler;

typedef struct fl_optim_scaler_opts {
    fl_opts_guard guard_;
    double growth;    /* 0 -> 2 */
    double backoff;   /* 0 -> 0.5 */
    int64_t interval; /* 0 -> 2000 */
    double least;     /* lower bound of the scale; 0 -> 2^-14 */
    char _end;
} fl_optim_scaler_opts;
/* init: the initial scale, 0 -> 65536. */
#define fl_optim_scaler_new(...) FL_OPTIM__SCALER(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__SCALER(init, ...) \
    fl_optim_scaler_new_opt(init, FL_LITERAL(fl_optim_scaler_opts, __VA_ARGS__))
FL_API fl_optim_scaler *fl_optim_scaler_new_opt(double init, fl_optim_scaler_opts o);
FL_API void fl_optim_scaler_free(fl_optim_scaler *s); /* NULL is allowed */
/* loss times the scale; computed in f32 for a half dtype. */
FL_API fl_var *fl_optim_scaler_scale(fl_optim_scaler *s, fl_var *loss);
/* Makes the next step of o divide gradients by the scale, or be skipped (fl_optim_scale); the gradients
   themselves are not rewritten. Call once per step. */
FL_API bool fl_optim_scaler_unscale(fl_optim_scaler *s, fl_optim *o);
/* Computes the scale of the next step. An error if gradients are not finite although the scale is at its
   lower bound: checked in every update, but on asynchronous devices only in each hundredth. */
FL_API bool fl_optim_scaler_update(fl_optim_scaler *s);
/* Adds scale and count under prefix, for checkpoints (fl_optim_checkpoint). */
FL_API bool fl_optim_scaler_state(fl_optim_scaler *s, const char *prefix, fl_nn_state *state);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_SCALER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_SCALER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_SCALER_IMPL
#define FL_OPTIM_SCALER_IMPL
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#include <inttypes.h>
#include <math.h>

FL_API void fl_optim_scaler_free(fl_optim_scaler *s) {
    if (!s) return;
    fl_drop(s->scale);
    fl_drop(s->good);
    fl_drop(s->sum);
    fl_heap_free(s);
}

FL_API fl_optim_scaler *fl_optim_scaler_new_opt(double init, fl_optim_scaler_opts o) {
    const double growth = fl_option(o.growth, 2), backoff = fl_option(o.backoff, 0.5);
    const double least = fl_option(o.least, 0x1p-14);
    const int64_t interval = o.interval ? o.interval : 2000;
    init = fl_option(init, 65536);
    if (!(least > 0 && init >= least && init < 0x1p127 && growth >= 1 && growth < 0x1p127 && backoff > 0 &&
          backoff < 1 && interval > 0))
        return fl_err_null("fl_optim_scaler_new: expected init >= least > 0, growth >= 1, backoff in (0, 1), "
                           "interval > 0, got init %g, least %g, growth %g, backoff %g, interval %" PRId64,
                           init, least, growth, backoff, interval);
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_optim_scaler *s = fl_heap_alloc(sizeof *s);
    bool ok = s != NULL;
    if (ok) *s = (fl_optim_scaler){growth, backoff, least, interval, NULL, NULL, NULL, 0};
    ok = ok && (s->scale = fl_keep(fl_full(FL_SCALAR_SHAPE, init, FL_F32))) &&
         (s->good = fl_keep(fl_zeros(FL_SCALAR_SHAPE, FL_I64)));
    fl_scope_end(&scope);
    fl_quiet(-1);
    if (ok) return s;
    fl_optim_scaler_free(s);
    return fl_raise();
}

/* Moves the state to the loss's backend. */
static bool fl__scaler_move(fl_optim_scaler *s, const fl_tensor *to) {
    if (to->weak || s->scale->backend == to->backend) return true;
    fl_scope scope = fl_scope_begin();
    fl_tensor *scale = fl_keep(fl_to(s->scale, fl_backend_name(to)));
    fl_tensor *good = fl_keep(fl_to(s->good, fl_backend_name(to)));
    fl_scope_end(&scope);
    const bool ok = scale && good;
    fl_drop(ok ? s->scale : scale);
    fl_drop(ok ? s->good : good);
    if (ok) s->scale = scale, s->good = good;
    return ok;
}

FL_API fl_var *fl_optim_scaler_scale(fl_optim_scaler *s, fl_var *loss) {
    if (!fl_given(s, "fl_optim_scaler_scale", "the scaler") ||
        !fl_given(loss, "fl_optim_scaler_scale", "the loss") || !fl__scaler_move(s, fv_value(loss)))
        return fl_raise();
    fl_scope scope = fl_scope_begin();
    fl_var *wide = fv_cast(loss, fl_dtype_wide(fv_value(loss)->dtype));
    /* a copy, because backward may read it after an update */
    return fv_scope_return(&scope, wide ? fv_mul(wide, fv_const(fl_clone(s->scale))) : NULL);
}

FL_API bool fl_optim_scaler_unscale(fl_optim_scaler *s, fl_optim *o) {
    if (!fl_given(s, "fl_optim_scaler_unscale", "the scaler") ||
        !fl_given(o, "fl_optim_scaler_unscale", "the optimizer"))
        return fl_raise() != NULL;
    fl_scope scope = fl_scope_begin();
    fl_tensor *sum = fl_cast(fl_mul(s->scale, fl_num(0)), FL_F64);
    for (int64_t i = 0; sum && i < o->n; i++) {
        fl_tensor *g = fv_grad(o->slot[i].param);
        if (g) sum = fl_add_squares(sum, g);
    }
    fl_tensor *factor = sum ? fl_where(fl_isfinite(sum), fl_reciprocal(s->scale), fl_num(0)) : NULL;
    fl_tensor *all = factor && s->sum ? fl_add(sum, s->sum) : sum;
    const bool ok = factor && all && fl_optim_scale(o, factor);
    if (ok) fl_keep(all), fl_drop(s->sum), s->sum = all;
    fl_scope_end(&scope);
    return ok;
}

/* Whether the scale is at its lower bound and gradients are not finite. Reading waits for the device. */
static bool fl__scaler_at_bound(const fl_optim_scaler *s, fl_tensor *finite) {
    if (s->updates % 100 && fl_is_async(s->scale)) return false;
    return fl_item_int(fl_cast(fl_logical_or(finite, fl_gt(s->scale, fl_num(s->least))), FL_I64)) == 0;
}

FL_API bool fl_optim_scaler_update(fl_optim_scaler *s) {
    if (!fl_given(s, "fl_optim_scaler_update", "the scaler")) return fl_raise() != NULL;
    if (!s->sum) return fl_err_false("fl_optim_scaler_update: no gradients were unscaled since the last one");
    fl_scope scope = fl_scope_begin();
    fl_tensor *finite = fl_isfinite(s->sum), *good = fl_add(s->good, fl_int(1));
    fl_tensor *up = fl_mul(s->scale, fl_num(s->growth)), *grows = fl_ge(good, fl_int(s->interval));
    fl_tensor *down = fl_maximum(fl_mul(s->scale, fl_num(s->backoff)), fl_num(s->least));
    up = fl_where(fl_logical_and(grows, fl_isfinite(up)), up, s->scale);
    fl_tensor *next = fl_where(finite, up, down);
    good = fl_where(fl_logical_and(finite, fl_logical_not(grows)), good, fl_int(0));
    s->updates++;
    bool ok = next && good;
    if (ok && fl__scaler_at_bound(s, finite)) {
        ok = fl_fail("fl_optim_scaler_update: the scale is at its lower bound, %g, and gradients are still "
                     "infinite or NaN", s->least);
        fl_raise();
    }
    ok = ok && !fl_error() && fl_assign(s->scale, next) && fl_assign(s->good, good);
    fl_scope_end(&scope);
    fl_drop(s->sum);
    s->sum = NULL;
    return ok;
}

FL_API bool fl_optim_scaler_state(fl_optim_scaler *s, const char *prefix, fl_nn_state *state) {
    return fl_given(s, "fl_optim_scaler_state", "the scaler") &&
           fl_given(prefix, "fl_optim_scaler_state", "the prefix") &&
           fl_nn_state_add(state, prefix, "scale", s->scale) &&
           fl_nn_state_add(state, prefix, "good", s->good) &&
           fl_nn_state_add_integer(state, prefix, "updates", &s->updates);
}

#endif
#endif

/* MIT licence: see LICENSE. */
