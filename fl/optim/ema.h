/* fl/optim/ema.h - exponential moving average of parameters */
#ifndef FL_OPTIM_EMA_H
#define FL_OPTIM_EMA_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exponential moving averages of parameters, f32 or wider, to be evaluated and saved. */
typedef struct fl_optim_ema {
    fv_list params;      /* owned references */
    fl_tensor **average; /* the averages; while swapped, the parameters' values */
    fl_tensor *decay;    /* f64, 0-d */
    bool swapped;
} fl_optim_ema;
/* Averages that start at the parameters' values. decay in [0, 1), e.g. 0.999. */
FL_API fl_optim_ema *fl_optim_ema_new(fv_list params, double decay);
FL_API void fl_optim_ema_free(fl_optim_ema *e); /* NULL is allowed */
/* average = decay average + (1 - decay) parameter. Not for skipped steps; an error while swapped. */
FL_API bool fl_optim_ema_update(fl_optim_ema *e);
/* Swaps averages and parameters; the second call swaps back. The average of a narrow parameter is rounded to
   its dtype on the way, and keeps that value. */
FL_API bool fl_optim_ema_swap(fl_optim_ema *e);
/* Adds the averages under prefix, by index, for checkpoints; allowed while swapped. */
FL_API bool fl_optim_ema_state(fl_optim_ema *e, const char *prefix, fl_nn_state *state);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_EMA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_EMA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_EMA_IMPL
#define FL_OPTIM_EMA_IMPL
#include "../ops/copy.h"
#include <inttypes.h>
#include <stdio.h>

static fl_step_rule fl__ema_rule = {.reads = "p", .writes = "e", .numbers = "decay",
                                    .formula = "ADD(MUL(decay, e), MUL(SUB(CONST(1), decay), p))"};

FL_API fl_optim_ema *fl_optim_ema_new(fv_list params, double decay) {
    if (!fl__optim_params_ok("ema", params)) return fl_raise();
    if (!(decay >= 0 && decay < 1)) return fl_err_null("fl_optim_ema: decay must be in [0, 1), got %g",
                                                       decay);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_optim_ema *e = fl_heap_alloc(sizeof *e);
    fl_var **v = e ? fl_heap_alloc((size_t)params.n * sizeof *v) : NULL;
    fl_tensor **average = v ? fl_heap_alloc((size_t)params.n * sizeof *average) : NULL;
    if (e) *e = (fl_optim_ema){.params = {average ? params.n : 0, v}, .average = average};
    bool ok = average && (e->decay = fl_keep(fl_full_like(fl_num(0), decay))) != NULL;
    for (int i = 0; average && i < params.n; i++) {
        v[i] = fv_keep(params.v[i]);
        fl_tensor *p = fv_value(v[i]);
        if (ok) ok = (average[i] = fl_keep(fl_clone(fl_cast(p, fl_dtype_wide(p->dtype))))) != NULL;
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return e;
    fl_optim_ema_free(e);
    return fl_raise();
}

FL_API void fl_optim_ema_free(fl_optim_ema *e) {
    if (!e) return;
    for (int i = 0; i < e->params.n; i++) {
        fv_drop(e->params.v[i]);
        fl_drop(e->average[i]);
    }
    fl_drop(e->decay);
    fl_heap_free((void *)e->params.v);
    fl_heap_free(e->average);
    fl_heap_free(e);
}

FL_API bool fl_optim_ema_update(fl_optim_ema *e) {
    if (fl_error()) return false;
    if (!fl_given(e, "fl_optim_ema_update", "the average")) return fl_raise();
    if (e->swapped) return fl_err_false("fl_optim_ema_update: parameters and averages are swapped: call "
                                        "fl_optim_ema_swap first");
    bool ok = true;
    for (int i = 0; ok && i < e->params.n; i++)
        ok = fl_step(&fl__ema_rule, (fl_tensor *[]){fv_value(e->params.v[i]), e->average[i]}, 1, &e->decay,
                     NULL);
    return ok;
}

FL_API bool fl_optim_ema_swap(fl_optim_ema *e) {
    if (fl_error()) return false;
    if (!fl_given(e, "fl_optim_ema_swap", "the average")) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    for (int i = 0; ok && i < e->params.n; i++) {
        fl_scope one = fl_scope_begin();
        fl_tensor *p = fv_value(e->params.v[i]), *before = fl_clone(p);
        ok = before && fl_assign(p, e->average[i]) && fl_assign(e->average[i], before);
        fl_scope_end(&one);
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) e->swapped = !e->swapped;
    return ok || fl_raise();
}

FL_API bool fl_optim_ema_state(fl_optim_ema *e, const char *prefix, fl_nn_state *state) {
    char name[24];
    bool ok = fl_given(e, "fl_optim_ema_state", "the average");
    for (int i = 0; ok && i < e->params.n; i++) {
        snprintf(name, sizeof name, "%d", i);
        ok = fl_nn_state_add(state, prefix, name, e->average[i]);
    }
    return ok && fl_nn_state_add_host(state, prefix, "swapped", &e->swapped, FL_SCALAR_SHAPE, FL_B8);
}

#endif
#endif
/* MIT licence: see LICENSE. */
