/* fl/optim/optim.h - optimizers: parameter groups, update rules, the step

   A type of optimizer is a rule (fl/ops/step.h): formulas of the new parameter and of its state. Steps read
   their hyperparameters from tensors, so that a recorded step, or one queued on a device, uses the values of
   its time. */
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
    FL_OPTIM_STATES = 8,  /* most state tensors per parameter */
    FL_OPTIM_HYPERS = 8,  /* most hyperparameters besides lr */
    FL_OPTIM_GROUPS = 16  /* most parameter groups */
};

typedef struct fl_optim fl_optim;
/* A parameter group: parameters with the same hyperparameters. */
typedef struct fl_optim_group {
    double lr_scale;               /* its lr is the optimizer's lr times this */
    double hyper[FL_OPTIM_HYPERS]; /* in the order of the type's names */
    fl_tensor *numbers;            /* f64 [1 + hypers]: lr and hyper, as read by steps */
    double sent[1 + FL_OPTIM_HYPERS]; /* the last values written there */
} fl_optim_group;
/* A parameter and its state. */
typedef struct fl_optim_slot {
    fl_var *param;
    fl_tensor *master;                 /* f32 copy of a narrower parameter: fl_optim_use_masters; else NULL */
    /* Initially zeros, f32 or f64 as param; those in the type's `apart` mask have any shape, or are NULL. */
    fl_tensor *state[FL_OPTIM_STATES];
    fl_tensor *steps;                  /* i64, 0-d: number of updates so far */
    fl_optim_group *group;
    /* During a step: */
    fl_tensor *grad;      /* dense; NULL: the parameter is skipped */
    fl_tensor *update;    /* from `prepare`: a second tensor that the rule reads */
    fl_tensor *number[2]; /* from `prepare`: 0-d numbers after the rule's others */
    fl_tensor *made[2];   /* from `prepare`: tensors for `step` only */
    bool early;           /* already updated in this pass, gradient dropped: fl_optim_step_in_backward */
} fl_optim_slot;

/* Calls fl_optim_zero_grad, computes the loss, calls fl_backward, returns the loss; NULL after an error. */
typedef fl_var *(*fl_optim_closure)(void *user);

/* Parts of rules: g times its factor; the same plus PyTorch's weight decay (no term at all if 0); p after
   decoupled weight decay (AdamW's); the sign -1, 0 or 1. */
#define FL_OPTIM_SCALED_G "MUL(factor, g)"
#define FL_OPTIM_DECAYED_G \
    "SELECT(EQ(weight_decay, CONST(0)), MUL(factor, g), ADD(MUL(factor, g), MUL(weight_decay, p)))"
#define FL_OPTIM_SHRUNK_P "SUB(p, MUL(MUL(lr, weight_decay), p))"
#define FL_OPTIM_SIGN(x) \
    "SELECT(LT(CONST(0), " x "), CONST(1), SELECT(LT(" x ", CONST(0)), CONST(-1), " x "))"

/* The type (vtable) of an optimizer. */
typedef struct fl_optim_type {
    const char *name;                   /* "sgd"; must match when a checkpoint is loaded */
    const char *state[FL_OPTIM_STATES]; /* names of the state tensors, up to the first NULL */
    const char *hyper[FL_OPTIM_HYPERS]; /* names of the hyperparameters, up to the first NULL */
    const char *limits; /* one letter per hyperparameter: f: in [0, 1), n: finite and >= 0; NULL: any */
    /* Reads "g" (and update); writes "p" and each state; numbers: "factor t lr", each hyperparameter, those
       of prepare. t is the number of steps before this one; g must be multiplied by factor. */
    fl_step_rule *rule;
    /* Mask of states that the rule does not write: f64 scalars, or made by `init`. */
    unsigned apart;
    /* Optional. Initial value of state k (one in `apart`) for a parameter of this value: of any shape and
       dtype, on its backend. NULL without an error: the parameter does not have that state. */
    fl_tensor *(*init)(fl_optim *o, fl_tensor *param, int k);
    /* Optional. Runs before anything is written, and does everything that may run out of memory: sets
       p->update, p->number and p->made, which the innermost scope owns. */
    bool (*prepare)(fl_optim *o, fl_optim_slot *p);
    /* Optional, instead of the rule: updates p->param in place. */
    bool (*step)(fl_optim *o, fl_optim_slot *p);
    /* Optional, instead of rule and step, for fl_optim_step_closure: updates all parameters, with any number
       of evaluations of the loss, and counts in o->steps; *loss is that of the first evaluation. Runs in a
       scope. */
    bool (*minimize)(fl_optim *o, fl_optim_closure closure, void *user, double *loss);
    void (*destroy)(fl_optim *o); /* optional: frees o->user, if that is not NULL */
} fl_optim_type;

struct fl_optim {
    const fl_optim_type *type;
    void *user; /* for the type's functions; initially NULL */
    double lr;
    fl_optim_group group[FL_OPTIM_GROUPS];
    int n_groups;
    fl_optim_slot *slot;
    int64_t n;
    fl_tensor *steps;  /* i64 [n]: its elements are the slots' steps */
    fl_tensor *factor; /* of the gradients in the next step; NULL: `sign` */
    fl_tensor *sign;   /* 1, or -1 to maximise */
    fv_watcher early;  /* watches backward passes while fl_optim_step_in_backward is on; its user is this */
    int64_t last_early; /* the slot updated last by it */
};

/* An optimizer of that type; holds references to the parameters. hyper has one value per name of the type. */
FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr, const double *hyper);
FL_API void fl_optim_free(fl_optim *o); /* NULL is allowed */
/* Gives each f16 or bf16 parameter an f32 master copy: steps update that and round it to the parameter in the
   same pass. Call again after loading values into the parameters. Makers take .master. */
FL_API bool fl_optim_use_masters(fl_optim *o);
/* While on, steps ascend the gradient: the factor that rules read changes sign. An error while a factor is
   set (fl_optim_scale). Makers take .maximize. */
FL_API bool fl_optim_maximize(fl_optim *o, bool on);

/* Updates every parameter that has a gradient. Returns false after an error, and while one is pending. */
FL_API bool fl_optim_step(fl_optim *o);
/* Drops the gradients of all its parameters. */
FL_API void fl_optim_zero_grad(fl_optim *o);
/* A step that evaluates the loss: L-BFGS several times; others once, then fl_optim_step. *loss, unless NULL,
   is set to that of the first evaluation. */
FL_API bool fl_optim_step_closure(fl_optim *o, fl_optim_closure closure, void *user, double *loss);
/* While on, fl_backward on this thread updates each parameter as soon as its gradient is complete, and drops
   the gradient (LOMO, arXiv 2306.09782): memory holds the gradients of one or two layers instead of all, and
   they are still in cache. fl_optim_step then updates the remaining parameters and counts. The result is
   bitwise the same. One pass per step. Clipping, a scaler, and gradients summed over processes need all
   gradients first and are errors. A pass that fails leaves some parameters updated. */
FL_API bool fl_optim_step_in_backward(fl_optim *o, bool on);
FL_API double fl_optim_lr(const fl_optim *o); /* NaN for NULL */
/* Sets lr of the optimizer; groups keep their ratio to it. Writes the tensor that steps read. */
FL_API bool fl_optim_set_lr(fl_optim *o, double lr);
/* Multiplies the gradients of the next step by factor, a 0-d float; several factors multiply. With 0 that
   step is skipped, whatever the gradients are, and not counted. Does not read factor on the host (no
   synchronisation). */
FL_API bool fl_optim_scale(fl_optim *o, fl_tensor *factor);

typedef struct fl_optim_group_opts {
    fl_opts_guard guard_;
    double lr;           /* 0 -> the optimizer's; else keeps its ratio to that when lr changes */
    double weight_decay; /* 0 -> the optimizer's */
    char _end;
} fl_optim_group_opts;
/* Moves the parameters of m whose path matches pattern ("*.bias", "layers.?.norm*"; * matches any text, ? one
   character) to a new group and returns its index; fl_optim_set sets its other hyperparameters. -1 after an
   error: nothing matches, or a match is not a parameter of o. */
#define fl_optim_group_of(...) FL_OPTIM__GROUP(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__GROUP(o, m, pattern, ...) \
    fl_optim_group_of_opt(o, m, pattern, FL_LITERAL(fl_optim_group_opts, __VA_ARGS__))
FL_API int fl_optim_group_of_opt(fl_optim *o, fl_nn_module *m, const char *pattern, fl_optim_group_opts opts);
/* Sets a hyperparameter, or "lr", of a group by name. Group 0 has the parameters that are in no other. */
FL_API bool fl_optim_set(fl_optim *o, int group, const char *name, double value);

/* For types with a `step`: runs a rule on the slot's tensors. */
FL_API bool fl_optim_apply(fl_optim *o, fl_optim_slot *p, fl_step_rule *rule);
/* The factor of this step's gradients: 0-d, or the weak number 1, or -1 to maximise. */
FL_API fl_tensor *fl_optim_factor(const fl_optim *o);

/* Number of names up to the first NULL. */
FL_PRIVATE int fl__optim_names(const char *const *names, int most);
/* Checks the parameters; reports errors of fl_optim_<name>. */
FL_PRIVATE bool fl__optim_params_ok(const char *name, fv_list params);
/* Whether value is valid for hyperparameter k of the type; -1: lr. */
FL_PRIVATE bool fl__optim_is_valid(const fl_optim_type *type, int k, double value);
/* Writes changed hyperparameters of the groups to their tensors. */
FL_PRIVATE bool fl__optim_write_hypers(fl_optim *o);
/* fl_optim_new, then fl_optim_use_masters and fl_optim_maximize if asked; lr 0 -> default_lr. */
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
    const char *wrong = params.n > 0 ? NULL : "the list of parameters is empty";
    for (int i = 0; !wrong && i < params.n; i++)
        wrong = !params.v[i]                   ? "a parameter is NULL"
                : fv_value(params.v[i])->weak ? "a parameter is a scalar constant without storage"
                                               : NULL;
    if (wrong && !fl_error()) fl_fail("fl_optim_%s: %s", name, wrong);
    return !wrong;
}

static char fl__optim_limit(const fl_optim_type *type, int k) {
    return k < 0 ? 'n' : type->limits ? type->limits[k] : ' ';
}

FL_PRIVATE bool fl__optim_is_valid(const fl_optim_type *type, int k, double value) {
    const char limit = fl__optim_limit(type, k);
    return limit == ' ' || (value >= 0 && (limit == 'f' ? value < 1 : value <= DBL_MAX));
}

/* Checks the same and reports an error. */
static bool fl__optim_check(const char *fn, const fl_optim_type *type, int k, double value) {
    const char limit = fl__optim_limit(type, k);
    if (fl__optim_is_valid(type, k, value)) return true;
    return fl_fail("fl_optim_%s: %s must be %s, got %g", fn, k < 0 ? "lr" : type->hyper[k],
                   limit == 'f' ? "in [0, 1)" : "finite and not negative", value);
}

/* Initial value of state k of param: zeros in the dtype of its arithmetic, or that of the type's init. */
static fl_tensor *fl__optim_initial_state(fl_optim *o, fl_tensor *param, int k) {
    if (!(o->type->apart >> k & 1)) return fl_cast(fl_full_like(param, 0), fl_dtype_wide(param->dtype));
    if (o->type->init) return o->type->init(o, param, k);
    return fl_to(fl_zeros(FL_SCALAR_SHAPE, FL_F64), fl_backend_name(param));
}

static bool fl__optim_init_slot(fl_optim *o, fl_optim_slot *slot, int64_t i) {
    fl_tensor *param = fv_value(slot->param);
    slot->group = o->group;
    if (!(slot->steps = fl_keep(fl_select(o->steps, 0, i)))) return false;
    for (int k = 0; k < fl__optim_names(o->type->state, FL_OPTIM_STATES); k++)
        if (!(slot->state[k] = fl_keep(fl__optim_initial_state(o, param, k))) && fl_error()) return false;
    return true;
}

/* A tensor of n zeros on the parameters' backend. */
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
    return fl__optim_write_hypers(o);
}

FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr, const double *hyper) {
    if (!type || (!type->step && !type->rule && !type->minimize))
        return fl_err_null("fl_optim_new: the type is NULL, or has neither rule, step nor minimize");
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
    if (o->factor) return fl_err_false("fl_optim_maximize: a factor is already set for the next step "
                                       "(fl_optim_scale)");
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

/* hyperparameters */

FL_PRIVATE bool fl__optim_write_hypers(fl_optim *o) {
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
    if (fl__optim_write_hypers(o)) return true;
    o->lr = before;
    return fl_raise();
}

FL_API bool fl_optim_set(fl_optim *o, int group, const char *name, double value) {
    if (!fl_given(o, "fl_optim_set", "the optimizer") || !fl_given(name, "fl_optim_set", "the name"))
        return fl_raise();
    if (group < 0 || group >= o->n_groups)
        return fl_err_false("fl_optim_set: group must be in [0, %d), got %d", o->n_groups, group);
    fl_optim_group *g = &o->group[group];
    const bool lr = !strcmp(name, "lr");
    int k = 0;
    while (!lr && k < FL_OPTIM_HYPERS && o->type->hyper[k] && strcmp(name, o->type->hyper[k])) k++;
    if (!lr && (k == FL_OPTIM_HYPERS || !o->type->hyper[k]))
        return fl_err_false("fl_optim_set: %s has no hyperparameter '%s'", o->type->name, name);
    if (!fl__optim_check("set", o->type, lr ? -1 : k, value)) return fl_raise();
    if (lr && !(o->lr > 0))
        return fl_err_false("fl_optim_set: cannot set lr of a group while the optimizer's lr is 0: it is "
                            "stored as a ratio");
    double *number = lr ? &g->lr_scale : &g->hyper[k], before = *number;
    *number = lr ? value / o->lr : value;
    if (fl__optim_write_hypers(o)) return true;
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
    fl_optim_group *to; /* NULL: only count matches */
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
    return fl_fail("fl_optim_group_of: '%s' is not a parameter of this optimizer", path);
}

/* Sets a hyperparameter unless the option has its default. */
static bool fl__optim_option(fl_optim *o, int group, const char *name, double value) {
    return (value == 0 && !signbit(value)) || fl_optim_set(o, group, name, fl_option(value, 0));
}

FL_API int fl_optim_group_of_opt(fl_optim *o, fl_nn_module *m, const char *pattern,
                                 fl_optim_group_opts opts) {
    static const char fn[] = "fl_optim_group_of";
    if (!fl_given(o, fn, "the optimizer") || !fl_given(m, fn, "the module") ||
        !fl_given(pattern, fn, "the pattern"))
        return fl_raise(), -1;
    if (o->type->minimize) return fl_err_null("%s: %s has only one group", fn, o->type->name), -1;
    if (o->n_groups == FL_OPTIM_GROUPS)
        return fl_err_null("%s: more than %d groups", fn, FL_OPTIM_GROUPS), -1;
    fl__optim_search search = {o, pattern, NULL, 0};
    if (!fl_nn_visit_tensors(m, fl__optim_match, &search)) return fl_raise(), -1;
    if (!search.found) return fl_err_null("%s: no parameter matches '%s'", fn, pattern), -1;
    const int k = o->n_groups;
    fl_optim_group *g = search.to = &o->group[k];
    *g = o->group[0];
    memset(g->sent, 0, sizeof g->sent);
    fl_quiet(+1); /* an error handler that jumps must find everything restored */
    fl_scope s = fl_scope_begin();
    g->numbers = fl__optim_numbers(o, 1 + fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS), FL_F64);
    fl_scope_end(&s);
    if (g->numbers) o->n_groups++;
    const bool ok = g->numbers && fl__optim_option(o, k, "lr", opts.lr) &&
                    fl__optim_option(o, k, "weight_decay", opts.weight_decay) && fl__optim_write_hypers(o) &&
                    fl_nn_visit_tensors(m, fl__optim_match, &search);
    fl_quiet(-1);
    if (ok) return k;
    fl_drop(g->numbers);
    o->n_groups = k;
    return fl_raise(), -1;
}

/* steps */

/* Checks that o updates from existing gradients; else fails. */
static bool fl__optim_steps(const fl_optim *o, const char *fn) {
    return !o->type->minimize ||
           fl_fail("%s: %s evaluates loss and gradients itself: use fl_optim_step_closure", fn,
                   o->type->name);
}

FL_API bool fl_optim_scale(fl_optim *o, fl_tensor *factor) {
    if (!fl_given(o, "fl_optim_scale", "the optimizer") || fl_is_null_arg("fl_optim_scale", factor))
        return fl_raise();
    if (!fl__optim_steps(o, "fl_optim_scale")) return fl_raise();
    if (factor->ndim || !fl_dtype_is_float(factor->dtype))
        return fl_err_false("fl_optim_scale: factor must be a 0-d float, got %s %s",
                            fl_dtype_name(factor->dtype), FL_SHAPE_TEXT(factor));
    for (int64_t i = 0; i < o->n; i++)
        if (o->slot[i].early)
            return fl_err_false("fl_optim_scale: gradients were already used: fl_optim_step_in_backward is on");
    fl_scope s = fl_scope_begin();
    fl_tensor *all = o->sign->f64 == 1 ? factor : fl_mul(factor, o->sign);
    if (o->factor) /* 0 stays 0, even times NaN */
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
    /* A step record has at most four outputs: with four others, the parameter is rounded separately. */
    fl_tensor *narrow = p->master && rule->args.n_writes < 4 ? value : NULL;
    if (!fl_step(rule, tensor, numbers, number, narrow)) return false;
    return !p->master || narrow || fl_assign(value, p->master) != NULL;
}

/* Makes the gradient dense (that of a sum is broadcast) and calls the type's prepare. Without gradient:
   nothing. */
static bool fl__optim_prepare(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *g = fv_grad(p->param);
    p->grad = !g || fl_is_dense(g) ? g : fl_contiguous(g);
    return !g || (p->grad && (!o->type->prepare || o->type->prepare(o, p)));
}

/* steps += 1, or 0 if the step is skipped. */
static bool fl__optim_count(fl_tensor *steps, fl_tensor *one) {
    return fl_assign_op(steps, FL_OP_add, steps, one) != NULL;
}

static bool fl__optim_update(fl_optim *o, fl_optim_slot *p) {
    return o->type->step ? o->type->step(o, p) : fl_optim_apply(o, p, o->type->rule);
}

static void fl__optim_reset_slot(fl_optim_slot *p) {
    p->grad = p->update = p->number[0] = p->number[1] = p->made[0] = p->made[1] = NULL;
}

/* Counts only after all parameters are written: rules read the number of steps before this one. */
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

/* Gradients complete in about the reverse order of parameters: the search resumes where it ended. */
static fl_optim_slot *fl__optim_slot_of(fl_optim *o, const fl_var *x) {
    for (int64_t i = 0, at = o->last_early; i < o->n; i++, at = (at > 0 ? at : o->n) - 1)
        if (o->slot[at].param == x) return &o->slot[o->last_early = at];
    return NULL;
}

static void fl__optim_on_leaf_ready(fv_watcher *w, fl_var *x) {
    fl_optim *o = w->user;
    fl_optim_slot *p = fv_grad(x) ? fl__optim_slot_of(o, x) : NULL;
    if (!p) return;
    if (p->early || fv__others_watch(w)) {
        fl_fail("fl_optim_step_in_backward: %s",
                p->early ? "a second backward pass before fl_optim_step"
                         : "gradients of this pass are not yet summed over all processes");
        return;
    }
    p->early = fl__optim_write_hypers(o) && fl__optim_prepare(o, p) && fl__optim_update(o, p);
    if (p->early) fv_zero_grad(x);
    fl__optim_reset_slot(p);
}

static void fl__optim_pass_end(fv_watcher *w, const char *error) { (void)w, (void)error; }

FL_API bool fl_optim_step_in_backward(fl_optim *o, bool on) {
    if (!fl_given(o, "fl_optim_step_in_backward", "the optimizer")) return fl_raise();
    if (on && !fl__optim_steps(o, "fl_optim_step_in_backward")) return fl_raise();
    fv_unwatch(&o->early);
    o->early = (fv_watcher){.leaf_ready = fl__optim_on_leaf_ready, .end = fl__optim_pass_end, .user = o};
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
    /* Everything that allocates comes before the first parameter is written. */
    bool ok = one && fl__optim_write_hypers(o);
    for (int64_t i = 0; ok && i < o->n; i++) ok = fl__optim_prepare(o, &o->slot[i]);
    ok = ok && fl__optim_run(o, one);
    for (int64_t i = 0; i < o->n; i++) fl__optim_reset_slot(&o->slot[i]);
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
    static const char fn[] = "fl_optim_step_closure";
    double first = NAN;
    if (fl_error()) return false;
    if (!fl_given(o, fn, "the optimizer") || !fl_given((const void *)(uintptr_t)closure, fn, "the closure"))
        return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    if (o->type->minimize) {
        ok = fl__optim_write_hypers(o) && o->type->minimize(o, closure, user, &first);
    } else {
        fl_var *y = closure(user);
        first = y ? fl_item(fv_value(y)) : NAN;
        ok = (y || fl_error() || fl_fail("%s: the closure returned NULL", fn)) && fl_optim_step(o);
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    if (loss) *loss = first;
    return (ok && !fl_error()) || fl_raise();
}

FL_API void fl_optim_zero_grad(fl_optim *o) {
    for (int64_t i = 0; o && i < o->n; i++) {
        fv_zero_grad(o->slot[i].param);
        o->slot[i].early = false; /* left by a failed pass */
    }
}

#endif
#endif
/* MIT licence: see LICENSE. */
