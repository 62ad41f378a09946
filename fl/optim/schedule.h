/* fl/optim/schedule.h - learning rate schedules */
#ifndef FL_OPTIM_SCHEDULE_H
#define FL_OPTIM_SCHEDULE_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As functions of the step (or epoch) t = 0, 1, ...: fl_optim_set_lr(o, fl_optim_lr_cosine(0.1, 0, t, 1000)).
   They compose: pass the value of a warm-up as lr of a cosine. */

/* lr gamma^floor(t / every) */
FL_API double fl_optim_lr_step(double lr, int64_t t, int64_t every, double gamma);
/* lr gamma^k, where k of the n steps have been reached */
FL_API double fl_optim_lr_multi_step(double lr, int64_t t, int n, const int64_t *steps, double gamma);
/* lr gamma^t */
FL_API double fl_optim_lr_exponential(double lr, int64_t t, double gamma);
/* lr (1 - t / total)^power; 0 from t = total on */
FL_API double fl_optim_lr_polynomial(double lr, int64_t t, int64_t total, double power);
/* low + (lr - low) (1 + cos(pi t / total)) / 2; low from t = total on */
FL_API double fl_optim_lr_cosine(double lr, double low, int64_t t, int64_t total);
/* Cosine with warm restarts: the first period has `period` steps, each next one `grow` (1, 2, ...) times as
   many (CosineAnnealingWarmRestarts) */
FL_API double fl_optim_lr_cosine_restarts(double lr, double low, int64_t t, int64_t period, int64_t grow);
/* lr min(1, (t + 1) / steps) */
FL_API double fl_optim_lr_warmup(double lr, int64_t t, int64_t steps);
/* lr min((t + 1) / steps, sqrt(steps / (t + 1))) (Vaswani et al. 2017; fairseq's inverse_sqrt) */
FL_API double fl_optim_lr_inverse_sqrt(double lr, int64_t t, int64_t steps);
/* Warm-up, stable, decay: lr min(1, (t + 1) / warmup) until t = total - decay, then linearly to low at t =
   total */
FL_API double fl_optim_lr_wsd(double lr, double low, int64_t t, int64_t warmup, int64_t decay, int64_t total);
/* From lr / 25 to lr in the first `rise` (0.3) of total, then to lr / 250000, each along half a cosine
   (OneCycleLR). */
FL_API double fl_optim_lr_one_cycle(double lr, int64_t t, int64_t total, double rise);
/* The matching momentum: from high to low (0.95 and 0.85) while the rate rises, and back. */
FL_API double fl_optim_momentum_one_cycle(double low, double high, int64_t t, int64_t total, double rise);

/* A schedule as an object: a plain struct; set the fields that its kind uses.
     fl_optim_schedule s = {.kind = FL_LR_COSINE, .total = 1000, .warmup = 50};
     fl_optim_schedule_start(&s, optim);
     for (...) { ...; fl_optim_step(optim); fl_optim_schedule_step(&s); } */
typedef enum fl_optim_schedule_kind {
    FL_LR_CONSTANT,
    FL_LR_STEP,            /* every, gamma */
    FL_LR_MULTI_STEP,      /* milestone, gamma */
    FL_LR_EXPONENTIAL,     /* gamma */
    FL_LR_POLYNOMIAL,      /* total, power */
    FL_LR_COSINE,          /* total, low */
    FL_LR_COSINE_RESTARTS, /* every, grow, low */
    FL_LR_INVERSE_SQRT,    /* warmup */
    FL_LR_WSD,             /* warmup, decay, total, low */
    FL_LR_ONE_CYCLE,       /* total, rise, momentum_low, momentum_high */
    FL_LR_PLATEAU          /* gamma, patience, cooldown, threshold, low; fl_optim_schedule_metric */
} fl_optim_schedule_kind;
typedef struct fl_optim_schedule {
    fl_optim_schedule_kind kind;
    double lr;           /* the peak; 0 -> the optimizer's at the start */
    double low;          /* the minimum */
    double gamma, power; /* 0 -> 0.1, 1 */
    double rise;         /* 0 -> 0.3 */
    double momentum_low, momentum_high; /* momentum, or beta1, of all groups; high 0: unchanged */
    double threshold;    /* 0 -> 1e-4: an improvement is below best (1 - threshold) */
    int64_t every, total, grow; /* grow: 0 -> 1 */
    int64_t warmup, decay;      /* warmup applies to other kinds too, as fl_optim_lr_warmup */
    int64_t patience, cooldown; /* patience: 0 -> 10 */
    int64_t milestone[8];       /* ascending, up to the first 0 */
    bool maximize;              /* the metric: an improvement is above best (1 + threshold) */
    /* Current state; initialise with zeros. */
    fl_optim *optim;
    int64_t t, bad, waits; /* step; evaluations without improvement; left of the cooldown */
    double best;
} fl_optim_schedule;
/* The rate at step t; for a plateau the current rate. */
FL_API double fl_optim_schedule_at(const fl_optim_schedule *s, int64_t t);
/* Binds the schedule to o and sets the rate of t = 0. */
FL_API bool fl_optim_schedule_start(fl_optim_schedule *s, fl_optim *o);
/* Sets the rate of the next step, t + 1. */
FL_API bool fl_optim_schedule_step(fl_optim_schedule *s);
/* FL_LR_PLATEAU, after each evaluation: multiplies lr by gamma, down to low, after more than `patience`
   evaluations without an improvement of `metric` (ReduceLROnPlateau). */
FL_API bool fl_optim_schedule_metric(fl_optim_schedule *s, double metric);
/* Adds the current state under prefix, for checkpoints. The kind must equal the file's; all other settings
   are the program's. */
FL_API bool fl_optim_schedule_state(fl_optim_schedule *s, const char *prefix, fl_nn_state *state);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_SCHEDULE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_SCHEDULE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_SCHEDULE_IMPL
#define FL_OPTIM_SCHEDULE_IMPL
#include <math.h>
#include <string.h>

#define FL__PI 3.14159265358979323846

FL_API double fl_optim_lr_step(double lr, int64_t t, int64_t every, double gamma) {
    return every > 0 ? lr * pow(gamma, (double)(t / every)) : lr;
}

FL_API double fl_optim_lr_multi_step(double lr, int64_t t, int n, const int64_t *steps, double gamma) {
    int reached = 0;
    while (reached < n && t >= steps[reached]) reached++;
    return lr * pow(gamma, reached);
}

FL_API double fl_optim_lr_exponential(double lr, int64_t t, double gamma) {
    return lr * pow(gamma, (double)t);
}

FL_API double fl_optim_lr_polynomial(double lr, int64_t t, int64_t total, double power) {
    return t < total ? lr * pow(1 - (double)t / (double)total, power) : 0;
}

FL_API double fl_optim_lr_cosine(double lr, double low, int64_t t, int64_t total) {
    if (t >= total) return low;
    return low + (lr - low) * (1 + cos(FL__PI * (double)t / (double)total)) / 2;
}

FL_API double fl_optim_lr_cosine_restarts(double lr, double low, int64_t t, int64_t period, int64_t grow) {
    if (period <= 0) return lr;
    if (grow <= 1) return fl_optim_lr_cosine(lr, low, t % period, period);
    for (; t >= period; period *= grow) t -= period;
    return fl_optim_lr_cosine(lr, low, t, period);
}

FL_API double fl_optim_lr_warmup(double lr, int64_t t, int64_t steps) {
    return t + 1 < steps ? lr * (double)(t + 1) / (double)steps : lr;
}

FL_API double fl_optim_lr_inverse_sqrt(double lr, int64_t t, int64_t steps) {
    if (t + 1 < steps) return fl_optim_lr_warmup(lr, t, steps);
    return lr * sqrt((double)(steps > 0 ? steps : 1) / (double)(t + 1));
}

FL_API double fl_optim_lr_wsd(double lr, double low, int64_t t, int64_t warmup, int64_t decay,
                              int64_t total) {
    if (t >= total) return low;
    if (t < total - decay) return fl_optim_lr_warmup(lr, t, warmup);
    return low + (lr - low) * (double)(total - t) / (double)decay;
}

/* Cosine from a to b as x runs from 0 to 1. */
static double fl__schedule_anneal(double a, double b, double x) {
    return b + (a - b) * (1 + cos(FL__PI * x)) / 2;
}

/* Cosine from `from` to `top` in the first `rise` of total, then to `to`. */
static double fl__schedule_cycle(double from, double top, double to, int64_t t, int64_t total, double rise) {
    const double peak = rise * (double)total - 1, end = (double)total - 1, at = (double)t;
    if (at >= end) return to;
    return at <= peak ? fl__schedule_anneal(from, top, at / peak)
                      : fl__schedule_anneal(top, to, (at - peak) / (end - peak));
}

FL_API double fl_optim_lr_one_cycle(double lr, int64_t t, int64_t total, double rise) {
    return fl__schedule_cycle(lr / 25, lr, lr / 25 / 1e4, t, total, rise);
}

FL_API double fl_optim_momentum_one_cycle(double low, double high, int64_t t, int64_t total, double rise) {
    return fl__schedule_cycle(high, low, high, t, total, rise);
}

FL_API double fl_optim_schedule_at(const fl_optim_schedule *s, int64_t t) {
    if (!fl_given(s, "fl_optim_schedule_at", "the schedule")) return NAN;
    const double gamma = fl_option(s->gamma, 0.1), warm = fl_optim_lr_warmup(s->lr, t, s->warmup);
    int n = 0;
    while (n < 8 && s->milestone[n] > 0) n++;
    switch (s->kind) {
    case FL_LR_STEP: return fl_optim_lr_step(warm, t, s->every, gamma);
    case FL_LR_MULTI_STEP: return fl_optim_lr_multi_step(warm, t, n, s->milestone, gamma);
    case FL_LR_EXPONENTIAL: return fl_optim_lr_exponential(warm, t, gamma);
    case FL_LR_POLYNOMIAL: return fl_optim_lr_polynomial(warm, t, s->total, fl_option(s->power, 1));
    case FL_LR_COSINE: return fl_optim_lr_cosine(warm, s->low, t, s->total);
    case FL_LR_COSINE_RESTARTS:
        return fl_optim_lr_cosine_restarts(warm, s->low, t, s->every, fl_option_int(s->grow, 1));
    case FL_LR_INVERSE_SQRT: return fl_optim_lr_inverse_sqrt(s->lr, t, s->warmup);
    case FL_LR_WSD: return fl_optim_lr_wsd(s->lr, s->low, t, s->warmup, s->decay, s->total);
    case FL_LR_ONE_CYCLE: return fl_optim_lr_one_cycle(warm, t, s->total, fl_option(s->rise, 0.3));
    default: return warm;
    }
}

static bool fl__schedule_momentum(const fl_optim_schedule *s, double value) {
    const fl_optim_type *type = s->optim->type;
    bool ok = true;
    for (int g = 0; ok && g < s->optim->n_groups; g++)
        ok = fl_optim_set(s->optim, g,
                          type->hyper[0] && !strcmp(type->hyper[0], "beta1") ? "beta1" : "momentum", value);
    return ok;
}

/* Sets the optimizer's rate, and momentum, of step t. */
static bool fl__schedule_apply(const fl_optim_schedule *s) {
    if (!fl_optim_set_lr(s->optim, fl_optim_schedule_at(s, s->t))) return false;
    return s->kind != FL_LR_ONE_CYCLE || s->momentum_high == 0 ||
           fl__schedule_momentum(s, fl_optim_momentum_one_cycle(s->momentum_low, s->momentum_high, s->t,
                                                                s->total, fl_option(s->rise, 0.3)));
}

FL_API bool fl_optim_schedule_start(fl_optim_schedule *s, fl_optim *o) {
    if (!fl_given(s, "fl_optim_schedule_start", "the schedule") ||
        !fl_given(o, "fl_optim_schedule_start", "the optimizer"))
        return fl_raise();
    s->optim = o;
    s->t = s->bad = s->waits = 0;
    s->best = s->maximize ? -INFINITY : INFINITY;
    if (s->lr == 0) s->lr = o->lr;
    return fl__schedule_apply(s);
}

static bool fl__schedule_started(const fl_optim_schedule *s, const char *fn) {
    if (!fl_given(s, fn, "the schedule")) return fl_raise();
    return s->optim || fl_err_false("%s: call fl_optim_schedule_start first", fn);
}

FL_API bool fl_optim_schedule_step(fl_optim_schedule *s) {
    if (!fl__schedule_started(s, "fl_optim_schedule_step")) return false;
    s->t++;
    return fl__schedule_apply(s);
}

FL_API bool fl_optim_schedule_metric(fl_optim_schedule *s, double metric) {
    if (!fl__schedule_started(s, "fl_optim_schedule_metric")) return false;
    const double edge = fl_option(s->threshold, 1e-4);
    const bool better = s->maximize ? metric > s->best * (1 + edge) : metric < s->best * (1 - edge);
    s->bad = better ? 0 : s->bad + 1;
    if (better) s->best = metric;
    if (s->waits > 0) s->waits--, s->bad = 0;
    if (s->bad <= fl_option_int(s->patience, 10)) return true;
    const double lower = s->lr * fl_option(s->gamma, 0.1);
    s->lr = lower > s->low ? lower : s->low;
    s->waits = s->cooldown;
    s->bad = 0;
    return fl__schedule_apply(s);
}

FL_API bool fl_optim_schedule_state(fl_optim_schedule *s, const char *prefix, fl_nn_state *state) {
    return fl_given(s, "fl_optim_schedule_state", "the schedule") &&
           fl_nn_state_add_fixed(state, prefix, "kind", (int64_t)s->kind) &&
           fl_nn_state_add_number(state, prefix, "lr", &s->lr) &&
           fl_nn_state_add_number(state, prefix, "best", &s->best) &&
           fl_nn_state_add_integer(state, prefix, "t", &s->t) &&
           fl_nn_state_add_integer(state, prefix, "bad", &s->bad) &&
           fl_nn_state_add_integer(state, prefix, "waits", &s->waits);
}

#endif
#endif
/* MIT licence: see LICENSE. */
