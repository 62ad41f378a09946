/* optim.h - what an optimizer is: parameters, groups, a rule, and the step

   A kind of optimizer is a rule (fl/ops/step.h): formulas of the new parameter and of what is remembered
   about it. Steps read their numbers from tensors, so that one which was recorded, or waits in a device's
   queue, uses those of its moment. */
#ifndef FL_OPTIM_OPTIM_H
#define FL_OPTIM_OPTIM_H
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif
#include "../ops/step.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FL_OPTIM_STATES = 8, /* tensors that an optimizer may remember per parameter */
    FL_OPTIM_HYPERS = 8, /* numbers of an optimizer besides lr */
    FL_OPTIM_GROUPS = 16
};

typedef struct fl_optim fl_optim;
/* Parameters with the same numbers. */
typedef struct fl_optim_group {
    double lr_scale;               /* its lr is the optimizer's times this */
    double hyper[FL_OPTIM_HYPERS]; /* in the order of their names */
    fl_tensor *numbers;            /* f64 [1 + hypers]: lr and hyper, where steps read them */
    double sent[1 + FL_OPTIM_HYPERS];
} fl_optim_group;
typedef struct fl_optim_slot {
    fl_var *param;
    fl_tensor *master;                 /* f32, of a narrower parameter: fl_optim_use_masters; else NULL */
    /* f32, or f64 as param, zeros at first; those that the type has `apart` are of any shape, or NULL. */
    fl_tensor *state[FL_OPTIM_STATES];
    fl_tensor *steps;                  /* i64, 0-d: updates so far */
    fl_optim_group *group;
    /* During a step. NULL grad: the parameter is skipped. */
    fl_tensor *grad;     /* dense */
    fl_tensor *update;   /* what `prepare` made: a second tensor that the rule reads, */
    fl_tensor *number[2]; /* 0-d numbers behind its others, */
    fl_tensor *made[2];   /* and what only `step` reads */
    bool early;           /* updated within the pass, its gradient is gone: fl_optim_step_early */
} fl_optim_slot;

/* The loss, after fl_optim_zero_grad, with the gradients of fl_backward. NULL after an error. */
typedef fl_var *(*fl_optim_closure)(void *user);

/* Parts of rules: g with its factor, and with PyTorch's weight decay, which is no term at all if it is 0;
   p less the decay that is no gradient (AdamW's); -1, 0 or 1. */
#define FL_OPTIM_SCALED_G "MUL(factor, g)"
#define FL_OPTIM_DECAYED_G \
    "SELECT(EQ(weight_decay, CONST(0)), MUL(factor, g), ADD(MUL(factor, g), MUL(weight_decay, p)))"
#define FL_OPTIM_SHRUNK_P "SUB(p, MUL(MUL(lr, weight_decay), p))"
#define FL_OPTIM_SIGN(x) \
    "SELECT(LT(CONST(0), " x "), CONST(1), SELECT(LT(" x ", CONST(0)), CONST(-1), " x "))"

/* The table of a kind of optimizer. */
typedef struct fl_optim_type {
    const char *name;                   /* "sgd": compared when a checkpoint is loaded */
    const char *state[FL_OPTIM_STATES]; /* names of the tensors, up to the first NULL */
    const char *hyper[FL_OPTIM_HYPERS]; /* names of the numbers, up to the first NULL */
    const char *limits; /* a letter each: f in [0, 1), n finite and not negative; NULL: any number */
    /* reads "g" (and update), writes "p" and one for each state, numbers "factor t lr", one for each hyper,
       and those of prepare. t counts the steps before this one; g is to be multiplied by factor. */
    fl_step_rule *rule;
    /* Bit k: the rule does not write state k, which is one number, f64 and 0-d, or what `init` makes. */
    unsigned apart;
    /* May be NULL. The first value of state k, one of those apart, for a parameter of this value: of any
       shape and dtype, on its backend. NULL without an error: this parameter has none. */
    fl_tensor *(*init)(fl_optim *o, fl_tensor *param, int k);
    /* Both may be NULL. Before anything is written: sets p->update, p->number and p->made, which the
       innermost scope owns; all that may fail for want of memory. Instead of the rule: updates p->param in
       place. */
    bool (*prepare)(fl_optim *o, fl_optim_slot *p);
    bool (*step)(fl_optim *o, fl_optim_slot *p);
    /* Instead of rule and step, for fl_optim_step_closure: updates all parameters, evaluating the loss as
       often as it likes, and counts in o->steps; *loss is that of the first evaluation. Within a scope. */
    bool (*minimize)(fl_optim *o, fl_optim_closure closure, void *user, double *loss);
    void (*destroy)(fl_optim *o); /* frees what o->user points to; called once if that is set. May be NULL */
} fl_optim_type;

struct fl_optim {
    const fl_optim_type *type;
    void *user; /* of the type's functions; NULL at first */
    double lr;
    fl_optim_group group[FL_OPTIM_GROUPS];
    int n_groups;
    fl_optim_slot *slot;
    int64_t n;
    fl_tensor *steps;  /* i64 [n]: the slots' are its elements */
    fl_tensor *factor; /* of the gradients in the next step; NULL: */
    fl_tensor *sign;   /* 1, or -1 to maximize */
    fv_watcher early;  /* of the passes, while fl_optim_step_early is on; its user is the optimizer */
    int64_t last_early; /* the slot that it updated last */
};

/* An optimizer of that type; keeps the parameters. hyper has as many numbers as the type has names. */
FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr, const double *hyper);
FL_API void fl_optim_free(fl_optim *o); /* NULL is fine */
/* Gives every f16 or bf16 parameter an f32 master, made of its value: steps update that, and round it to
   the parameter in the same pass. Again: after values were loaded into the parameters. Makers take .master.
   */
FL_API bool fl_optim_use_masters(fl_optim *o);
/* While on, steps go up the gradient: the factor that rules read has the other sign. Not within a step, whose
   factor is set already (fl_optim_scale). Makers take .maximize. */
FL_API bool fl_optim_maximize(fl_optim *o, bool on);

/* Updates every parameter that has a gradient. False after an error, and while one is pending. */
FL_API bool fl_optim_step(fl_optim *o);
FL_API void fl_optim_zero_grad(fl_optim *o);
/* A step that evaluates the loss: of L-BFGS several times, of others once, then fl_optim_step. *loss, unless
   it is NULL, becomes that of the first evaluation. */
FL_API bool fl_optim_step_closure(fl_optim *o, fl_optim_closure closure, void *user, double *loss);
/* While on, fl_backward on this thread updates each parameter as soon as its gradient is complete, and
   drops the gradient: memory holds those of a layer or two instead of all, and what the pass wrote is read
   from a cache. fl_optim_step then updates those that are left and counts. The result has the same bits.
   One pass a step; no clipping and no scaler, which want all gradients first, and none that other processes
   are to sum (an error); a pass that fails leaves some parameters updated (LOMO, arXiv 2306.09782). */
FL_API bool fl_optim_step_early(fl_optim *o, bool on);
FL_API double fl_optim_lr(const fl_optim *o); /* NaN for NULL */
/* Of all groups: their ratios stay. Written to the tensor that steps read. */
FL_API bool fl_optim_set_lr(fl_optim *o, double lr);
/* In the next step gradients are multiplied by factor, a 0-d float; several factors multiply. 0: that
   step is skipped, whatever the gradients are, and counts nowhere. The host does not read it. */
FL_API bool fl_optim_scale(fl_optim *o, fl_tensor *factor);

typedef struct fl_optim_group_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> the optimizer's; else its ratio to that stays when lr changes */
    double weight_decay; /* 0 -> the optimizer's */
    char _end;
} fl_optim_group_opts;
/* Moves the parameters of m whose path matches pattern ("*.bias", "layers.?.norm*"; * any text, ? one
   character) to a group of their own, whose number is returned; others are set by fl_optim_set. -1 after
   an error: nothing matches, or not a parameter of o. */
#define fl_optim_group_of(...) FL_OPTIM__GROUP(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__GROUP(o, m, pattern, ...) \
    fl_optim_group_of_opt(o, m, pattern, FL_LITERAL(fl_optim_group_opts, __VA_ARGS__))
FL_API int fl_optim_group_of_opt(fl_optim *o, fl_nn_module *m, const char *pattern, fl_optim_group_opts opts);
/* Sets a number by name, "lr" too, of a group (0: those in no other). */
FL_API bool fl_optim_set(fl_optim *o, int group, const char *name, double value);

/* For types with a `step`: runs a rule on the slot's tensors. */
FL_API bool fl_optim_apply(fl_optim *o, fl_optim_slot *p, fl_step_rule *rule);
/* The factor of this step's gradients: 0-d, or the weak number 1, or -1 to maximize. */
FL_API fl_tensor *fl_optim_factor(const fl_optim *o);

FL_PRIVATE int fl__optim_names(const char *const *names, int most);
FL_PRIVATE bool fl__optim_params_ok(const char *name, fv_list params);
/* Is value possible for number k of the type, -1: lr? */
FL_PRIVATE bool fl__optim_allowed(const fl_optim_type *type, int k, double value);
/* Sends the groups' numbers to their tensors, where they changed. */
FL_PRIVATE bool fl__optim_send(fl_optim *o);
/* fl_optim_new, fl_optim_use_masters and fl_optim_maximize; lr 0: default_lr. */
FL_PRIVATE fl_optim *fl__optim_make(const fl_optim_type *type, fv_list params, double lr, double default_lr,
                                    const double *hyper, bool master, bool maximize);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_OPTIM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_OPTIM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_OPTIM_IMPL
#define FL_OPTIM_OPTIM_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/view.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

FL_PRIVATE int fl__optim_names(const char *const *names, int most) {
    int n = 0;
    while (n < most && names[n]) n++;
    return n;
}

FL_PRIVATE bool fl__optim_params_ok(const char *name, fv_list params) {
    const char *wrong = params.n > 0 ? NULL : "no parameters";
    for (int i = 0; !wrong && i < params.n; i++)
        wrong = !params.v[i]                   ? "a parameter is NULL"
                : fv_value(params.v[i])->weak ? "a parameter is a number without memory"
                                               : NULL;
    if (wrong && !fl_error()) fl_fail("fl_optim_%s: %s", name, wrong);
    return !wrong;
}

static char fl__optim_limit(const fl_optim_type *type, int k) {
    return k < 0 ? 'n' : type->limits ? type->limits[k] : ' ';
}

FL_PRIVATE bool fl__optim_allowed(const fl_optim_type *type, int k, double value) {
    const char limit = fl__optim_limit(type, k);
    return limit == ' ' || (value >= 0 && (limit == 'f' ? value < 1 : value <= DBL_MAX));
}

/* The same, or fl_fail. */
static bool fl__optim_check(const char *who, const fl_optim_type *type, int k, double value) {
    const char limit = fl__optim_limit(type, k);
    if (fl__optim_allowed(type, k, value)) return true;
    return fl_fail("fl_optim_%s: %s is %g, must be %s", who, k < 0 ? "lr" : type->hyper[k], value,
                   limit == 'f' ? "in [0, 1)" : "finite and not negative");
}

/* The first value of state k of param: zeros as wide as its arithmetic, or what the type has apart. */
static fl_tensor *fl__optim_first(fl_optim *o, fl_tensor *param, int k) {
    if (!(o->type->apart >> k & 1)) return fl_cast(fl_full_like(param, 0), fl_dtype_wide(param->dtype));
    if (o->type->init) return o->type->init(o, param, k);
    return fl_to(fl_zeros(FL_SCALAR_SHAPE, FL_F64), fl_backend_name(param));
}

static bool fl__optim_init_slot(fl_optim *o, fl_optim_slot *slot, int64_t i) {
    fl_tensor *param = fv_value(slot->param);
    slot->group = o->group;
    if (!(slot->steps = fl_keep(fl_select(o->steps, 0, i)))) return false;
    for (int k = 0; k < fl__optim_names(o->type->state, FL_OPTIM_STATES); k++)
        if (!(slot->state[k] = fl_keep(fl__optim_first(o, param, k))) && fl_error()) return false;
    return true;
}

/* A tensor of n zeros, in the backend of the parameters. */
static fl_tensor *fl__optim_numbers(fl_optim *o, int64_t n, fl_dtype dtype) {
    const char *backend = fl_backend_name(fv_value(o->slot[0].param));
    return fl_keep(fl_to(fl_zeros(FL_SHAPE(n), dtype), backend));
}

static bool fl__optim_init(fl_optim *o, fv_list params, const double *hyper) {
    const int n = fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS);
    fl_optim_group *g = &o->group[0];
    o->slot[0].param = params.v[0];
    o->steps = fl__optim_numbers(o, o->n, FL_I64);
    g->numbers = o->steps ? fl__optim_numbers(o, 1 + n, FL_F64) : NULL;
    o->slot[0].param = NULL;
    if (!g->numbers || !(o->sign = fl_keep(fl_num(1)))) return false;
    g->lr_scale = 1;
    for (int k = 0; k < n; k++) g->hyper[k] = hyper[k];
    for (int64_t i = 0; i < o->n; i++) o->slot[i].param = fv_keep(params.v[i]);
    for (int64_t i = 0; i < o->n; i++)
        if (!fl__optim_init_slot(o, &o->slot[i], i)) return false;
    return fl__optim_send(o);
}

FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr, const double *hyper) {
    if (!type || (!type->step && !type->rule && !type->minimize))
        return fl_err_null("fl_optim_new: the type is NULL, or has no step");
    if (!fl__optim_params_ok(type->name, params)) return fl_raise();
    if (!fl__optim_check(type->name, type, -1, lr)) return fl_raise();
    for (int k = 0; k < fl__optim_names(type->hyper, FL_OPTIM_HYPERS); k++)
        if (!fl__optim_check(type->name, type, k, hyper[k])) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_optim *o = fl_heap_alloc(sizeof *o);
    fl_optim_slot *slot = o ? fl_heap_alloc((size_t)params.n * sizeof *slot) : NULL;
    bool ok = o != NULL;
    if (ok) *o = (fl_optim){.type = type, .lr = lr, .n_groups = 1, .slot = slot, .n = slot ? params.n : 0};
    ok = slot && fl__optim_init(o, params, hyper);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return o;
    fl_optim_free(o);
    return fl_raise();
}

FL_API void fl_optim_free(fl_optim *o) {
    if (!o || fl_is_freed(o, "fl_optim_free", "the optimizer")) return;
    fv_unwatch(&o->early);
    if (o->user && o->type->destroy) o->type->destroy(o);
    for (int64_t i = 0; i < o->n; i++) {
        fv_drop(o->slot[i].param);
        fl_drop(o->slot[i].master);
        fl_drop(o->slot[i].steps);
        for (int k = 0; k < FL_OPTIM_STATES; k++) fl_drop(o->slot[i].state[k]);
    }
    for (int k = 0; k < o->n_groups; k++) fl_drop(o->group[k].numbers);
    fl_drop(o->steps);
    fl_drop(o->factor);
    fl_drop(o->sign);
    fl_heap_free(o->slot);
    fl_object_free(o, o->type->name, "");
}

FL_API bool fl_optim_use_masters(fl_optim *o) {
    if (!fl_given(o, "fl_optim_use_masters", "the optimizer")) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    for (int64_t i = 0; ok && i < o->n; i++) {
        fl_tensor *p = fv_value(o->slot[i].param);
        const fl_dtype wide = fl_dtype_wide(p->dtype);
        if (wide == p->dtype) continue;
        if (!o->slot[i].master) ok = (o->slot[i].master = fl_keep(fl_cast(p, wide))) != NULL;
        else ok = fl_assign(o->slot[i].master, p) != NULL;
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok || fl_raise();
}

FL_API bool fl_optim_maximize(fl_optim *o, bool on) {
    if (!fl_given(o, "fl_optim_maximize", "the optimizer")) return fl_raise();
    if (o->factor) return fl_err_false("fl_optim_maximize: the factor of a step that was not made is set");
    fl_scope s = fl_scope_begin();
    fl_tensor *sign = fl_keep(fl_num(on ? -1 : 1));
    fl_scope_end(&s);
    if (!sign) return false;
    fl_drop(o->sign);
    o->sign = sign;
    return true;
}

FL_PRIVATE fl_optim *fl__optim_make(const fl_optim_type *type, fv_list params, double lr, double default_lr,
                                    const double *hyper, bool master, bool maximize) {
    fl_optim *o = fl_optim_new(type, params, fl_option(lr, default_lr), hyper);
    if (!o || ((!master || fl_optim_use_masters(o)) && (!maximize || fl_optim_maximize(o, true)))) return o;
    fl_optim_free(o);
    return NULL;
}

/* numbers */

FL_PRIVATE bool fl__optim_send(fl_optim *o) {
    const int n = 1 + fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS);
    for (int k = 0; k < o->n_groups; k++) {
        fl_optim_group *g = &o->group[k];
        double now[1 + FL_OPTIM_HYPERS] = {o->lr * g->lr_scale};
        memcpy(now + 1, g->hyper, (size_t)(n - 1) * sizeof *now);
        const size_t bytes = (size_t)n * sizeof *now;
        if (!memcmp(now, g->sent, bytes)) continue;
        if (!fl_set_host(g->numbers, now, bytes)) return false;
        memcpy(g->sent, now, bytes);
    }
    return true;
}

FL_API double fl_optim_lr(const fl_optim *o) {
    return o ? o->lr : NAN;
}

FL_API bool fl_optim_set_lr(fl_optim *o, double lr) {
    if (!fl_given(o, "fl_optim_set_lr", "the optimizer")) return fl_raise();
    if (!fl__optim_check("set_lr", o->type, -1, lr)) return fl_raise();
    const double before = o->lr;
    o->lr = lr;
    if (fl__optim_send(o)) return true;
    o->lr = before;
    return fl_raise();
}

FL_API bool fl_optim_set(fl_optim *o, int group, const char *name, double value) {
    if (!fl_given(o, "fl_optim_set", "the optimizer") || !fl_given(name, "fl_optim_set", "the name"))
        return fl_raise();
    if (group < 0 || group >= o->n_groups)
        return fl_err_false("fl_optim_set: group %d of %d", group, o->n_groups);
    fl_optim_group *g = &o->group[group];
    const bool lr = !strcmp(name, "lr");
    int k = 0;
    while (!lr && k < FL_OPTIM_HYPERS && o->type->hyper[k] && strcmp(name, o->type->hyper[k])) k++;
    if (!lr && (k == FL_OPTIM_HYPERS || !o->type->hyper[k]))
        return fl_err_false("fl_optim_set: %s has no number '%s'", o->type->name, name);
    if (!fl__optim_check("set", o->type, lr ? -1 : k, value)) return fl_raise();
    if (lr && !(o->lr > 0))
        return fl_err_false("fl_optim_set: lr of a group is a ratio to that of the optimizer, which is 0");
    double *number = lr ? &g->lr_scale : &g->hyper[k], before = *number;
    *number = lr ? value / o->lr : value;
    if (fl__optim_send(o)) return true;
    *number = before;
    return fl_raise();
}

/* groups */

static bool fl__optim_matches(const char *pattern, const char *text) {
    if (*pattern == '*') return fl__optim_matches(pattern + 1, text) ||
                                (*text && fl__optim_matches(pattern, text + 1));
    if (!*pattern || !*text) return *pattern == *text;
    return (*pattern == '?' || *pattern == *text) && fl__optim_matches(pattern + 1, text + 1);
}

typedef struct fl__optim_search {
    fl_optim *o;
    const char *pattern;
    fl_optim_group *to; /* NULL: only look */
    int64_t found;
} fl__optim_search;

static bool fl__optim_match(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    fl__optim_search *s = user;
    (void)buffer;
    if (!param || !fl__optim_matches(s->pattern, path)) return true;
    for (int64_t i = 0; i < s->o->n; i++) {
        if (s->o->slot[i].param != param) continue;
        if (s->to) s->o->slot[i].group = s->to;
        s->found++;
        return true;
    }
    return fl_fail("fl_optim_group_of: '%s' is no parameter of this optimizer", path);
}

/* Sets what is not left at its default. */
static bool fl__optim_option(fl_optim *o, int group, const char *name, double value) {
    return (value == 0 && !signbit(value)) || fl_optim_set(o, group, name, fl_option(value, 0));
}

FL_API int fl_optim_group_of_opt(fl_optim *o, fl_nn_module *m, const char *pattern,
                                 fl_optim_group_opts opts) {
    static const char who[] = "fl_optim_group_of";
    if (!fl_given(o, who, "the optimizer") || !fl_given(m, who, "the module") ||
        !fl_given(pattern, who, "the pattern"))
        return fl_raise(), -1;
    if (o->type->minimize) return fl_err_null("%s: %s has one group", who, o->type->name), -1;
    if (o->n_groups == FL_OPTIM_GROUPS) return fl_err_null("%s: more than %d groups", who, FL_OPTIM_GROUPS), -1;
    fl__optim_search search = {o, pattern, NULL, 0};
    if (!fl_nn_named(m, fl__optim_match, &search)) return fl_raise(), -1;
    if (!search.found) return fl_err_null("%s: no parameter is called '%s'", who, pattern), -1;
    const int k = o->n_groups;
    fl_optim_group *g = search.to = &o->group[k];
    *g = o->group[0];
    memset(g->sent, 0, sizeof g->sent);
    fl_quiet(+1); /* a handler that jumps does so when all is as before */
    fl_scope s = fl_scope_begin();
    g->numbers = fl__optim_numbers(o, 1 + fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS), FL_F64);
    fl_scope_end(&s);
    if (g->numbers) o->n_groups++;
    const bool ok = g->numbers && fl__optim_option(o, k, "lr", opts.lr) &&
                    fl__optim_option(o, k, "weight_decay", opts.weight_decay) && fl__optim_send(o) &&
                    fl_nn_named(m, fl__optim_match, &search);
    fl_quiet(-1);
    if (ok) return k;
    fl_drop(g->numbers);
    o->n_groups = k;
    return fl_raise(), -1;
}

/* steps */

/* Does o update parameters one by one, from gradients that are there? Else fl_fail. */
static bool fl__optim_steps(const fl_optim *o, const char *who) {
    return !o->type->minimize ||
           fl_fail("%s: %s evaluates loss and gradients itself: use fl_optim_step_closure", who, o->type->name);
}

FL_API bool fl_optim_scale(fl_optim *o, fl_tensor *factor) {
    if (!fl_given(o, "fl_optim_scale", "the optimizer") || fl_is_null_arg("fl_optim_scale", factor))
        return fl_raise();
    if (!fl__optim_steps(o, "fl_optim_scale")) return fl_raise();
    if (factor->ndim || !fl_dtype_is_float(factor->dtype))
        return fl_err_false("fl_optim_scale: the factor is %s %s, must be a 0-d float",
                            fl_dtype_name(factor->dtype), FL_SHAPE_TEXT(factor));
    for (int64_t i = 0; i < o->n; i++)
        if (o->slot[i].early)
            return fl_err_false("fl_optim_scale: fl_optim_step_early is on: gradients were used in the pass");
    fl_scope s = fl_scope_begin();
    fl_tensor *all = o->sign->f64 == 1 ? factor : fl_mul(factor, o->sign);
    if (o->factor) /* 0 stays 0, beside NaN too */
        all = fl_where(fl_eq(o->factor, fl_num(0)), fl_num(0), fl_mul(o->factor, factor));
    fl_keep(all);
    fl_scope_end(&s);
    if (!all) return false;
    fl_drop(o->factor);
    o->factor = all;
    return true;
}

FL_API fl_tensor *fl_optim_factor(const fl_optim *o) {
    if (!fl_given(o, "fl_optim_factor", "the optimizer")) return NULL;
    return o->factor ? o->factor : o->sign;
}

FL_API bool fl_optim_apply(fl_optim *o, fl_optim_slot *p, fl_step_rule *rule) {
    if (!fl_given(o, "fl_optim_apply", "the optimizer") || !fl_given(p, "fl_optim_apply", "the slot") ||
        !fl_given(rule, "fl_optim_apply", "the rule")) return false;
    fl_tensor *value = fv_value(p->param), *tensor[3 + FL_OPTIM_STATES] = {p->grad}, *number[8];
    int n = 1, numbers = 0;
    if (!fl_step_program(rule)) return false;
    if (p->update) tensor[n++] = p->update;
    tensor[n++] = p->master ? p->master : value;
    for (int k = 0; k < FL_OPTIM_STATES; k++)
        if (p->state[k] && !(o->type->apart >> k & 1)) tensor[n++] = p->state[k];
    number[numbers++] = fl_optim_factor(o);
    number[numbers++] = p->steps;
    number[numbers++] = p->group->numbers;
    for (int k = 0; k < 2 && p->number[k]; k++) number[numbers++] = p->number[k];
    /* A record has four outputs: a parameter beside four others is rounded by a record of its own. */
    fl_tensor *narrow = p->master && rule->args.n_writes < 4 ? value : NULL;
    if (!fl_step(rule, tensor, numbers, number, narrow)) return false;
    return !p->master || narrow || fl_assign(value, p->master) != NULL;
}

/* A dense gradient (of a sum, say, it is broadcast) and what the type prepares; none: nothing. */
static bool fl__optim_prepare(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *g = fv_grad(p->param);
    p->grad = !g || fl_is_dense(g) ? g : fl_contiguous(g);
    return !g || (p->grad && (!o->type->prepare || o->type->prepare(o, p)));
}

/* steps += 1, unless the factor is 0. */
static bool fl__optim_count(fl_tensor *steps, fl_tensor *one) {
    return fl_assign_op(steps, FL_OP_add, steps, one) != NULL;
}

static bool fl__optim_update(fl_optim *o, fl_optim_slot *p) {
    return o->type->step ? o->type->step(o, p) : fl_optim_apply(o, p, o->type->rule);
}

static void fl__optim_forget(fl_optim_slot *p) {
    p->grad = p->update = p->number[0] = p->number[1] = p->made[0] = p->made[1] = NULL;
}

/* Counts only after all are written: rules see the steps before this one. */
static bool fl__optim_run(fl_optim *o, fl_tensor *one) {
    int64_t updated = 0;
    for (int64_t i = 0; i < o->n; i++) {
        fl_optim_slot *p = &o->slot[i];
        if (p->grad && !fl__optim_update(o, p)) return false;
        updated += p->grad || p->early;
    }
    if (updated == o->n) return fl__optim_count(o->steps, one);
    for (int64_t i = 0; i < o->n; i++)
        if ((o->slot[i].grad || o->slot[i].early) && !fl__optim_count(o->slot[i].steps, one)) return false;
    return true;
}

/* Parameters get ready in about the reverse of their order: the search goes on where it ended. */
static fl_optim_slot *fl__optim_slot_of(fl_optim *o, const fl_var *x) {
    for (int64_t i = 0, at = o->last_early; i < o->n; i++, at = (at > 0 ? at : o->n) - 1)
        if (o->slot[at].param == x) return &o->slot[o->last_early = at];
    return NULL;
}

static void fl__optim_ready(fv_watcher *w, fl_var *x) {
    fl_optim *o = w->user;
    fl_optim_slot *p = fv_grad(x) ? fl__optim_slot_of(o, x) : NULL;
    if (!p) return;
    if (p->early || fv__others_watch(w)) {
        fl_fail("fl_optim_step_early: %s",
                p->early ? "a second pass before fl_optim_step"
                         : "gradients of this pass are not summed over all processes yet");
        return;
    }
    p->early = fl__optim_send(o) && fl__optim_prepare(o, p) && fl__optim_update(o, p);
    if (p->early) fv_zero_grad(x);
    fl__optim_forget(p);
}

static void fl__optim_pass_end(fv_watcher *w, const char *error) { (void)w, (void)error; }

FL_API bool fl_optim_step_early(fl_optim *o, bool on) {
    if (!fl_given(o, "fl_optim_step_early", "the optimizer")) return fl_raise();
    if (on && !fl__optim_steps(o, "fl_optim_step_early")) return fl_raise();
    fv_unwatch(&o->early);
    o->early = (fv_watcher){.leaf_ready = fl__optim_ready, .end = fl__optim_pass_end, .user = o};
    if (on) fv_watch(&o->early);
    return true;
}

FL_API bool fl_optim_step(fl_optim *o) {
    if (fl_error()) return false;
    if (!fl_given(o, "fl_optim_step", "the optimizer") || !fl__optim_steps(o, "fl_optim_step"))
        return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_tensor *one = o->factor ? fl_cast(fl_ne(o->factor, fl_num(0)), FL_I64) : fl_int(1);
    /* All that takes memory comes before the first parameter is written. */
    bool ok = one && fl__optim_send(o);
    for (int64_t i = 0; ok && i < o->n; i++) ok = fl__optim_prepare(o, &o->slot[i]);
    ok = ok && fl__optim_run(o, one);
    for (int64_t i = 0; i < o->n; i++) fl__optim_forget(&o->slot[i]);
    for (int64_t i = 0; ok && i < o->n; i++) o->slot[i].early = false;
    fl_scope_end(&s);
    if (ok) {
        fl_drop(o->factor);
        o->factor = NULL;
    }
    fl_quiet(-1);
    return ok || fl_raise();
}

FL_API bool fl_optim_step_closure(fl_optim *o, fl_optim_closure closure, void *user, double *loss) {
    static const char who[] = "fl_optim_step_closure";
    double first = NAN;
    if (fl_error()) return false;
    if (!fl_given(o, who, "the optimizer") || !fl_given((const void *)(uintptr_t)closure, who, "the closure"))
        return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    if (o->type->minimize) {
        ok = fl__optim_send(o) && o->type->minimize(o, closure, user, &first);
    } else {
        fl_var *y = closure(user);
        first = y ? fl_item(fv_value(y)) : NAN;
        ok = (y || fl_error() || fl_fail("%s: the closure returned NULL", who)) && fl_optim_step(o);
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    if (loss) *loss = first;
    return (ok && !fl_error()) || fl_raise();
}

FL_API void fl_optim_zero_grad(fl_optim *o) {
    for (int64_t i = 0; o && i < o->n; i++) {
        fv_zero_grad(o->slot[i].param);
        o->slot[i].early = false; /* of a pass that failed */
    }
}

#endif
#endif
/* MIT licence: see LICENSE. */
