/* fl_optim.h - optimizers, learning-rate schedules, gradient clipping, checkpoints

   An optimizer is a list of parameters, a few numbers, and a small table that updates one parameter
   from its gradient. What it remembers has names, so any optimizer, one of yours too, is saved and
   resumed.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_optim.h"
    #include <stdio.h>
    int main(void) {
        fl_nn_module *net = fl_nn_sequential(fl_nn_linear(2, 8), fl_nn_tanh(), fl_nn_linear(8, 1));
        fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.1, .momentum = 0.9);
        const float in[] = {0, 0, 0, 1, 1, 0, 1, 1}, out[] = {0, 1, 1, 0};
        for (int step = 0; step < 500; step++) {
            fl_scope s = fl_scope_begin();
            fl_var *x = fv_const(fl_from_host(in, FL_SHAPE(4, 2), FL_F32));
            fl_var *y = fv_const(fl_from_host(out, FL_SHAPE(4, 1), FL_F32));
            fl_var *loss = fv_mse_loss(fl_nn_forward(net, x), y, FL_MEAN);
            fl_optim_zero_grad(optim);
            fl_backward(loss);
            fl_optim_step(optim);
            if (step % 100 == 99) printf("step %d, loss %.4f\n", step + 1, fl_item(fv_value(loss)));
            fl_scope_end(&s);
        }
        fl_optim_free(optim);
        fl_nn_free(net);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>optimizers  >>steps  >>schedules  >>checkpoints
     >>implementation

   Concepts
     Numbers   Formulas and defaults are PyTorch's. In options 0 is the default; where 0 is meant,
               write FL_ZERO.
     Steps     A parameter without a gradient is skipped, and its own count of steps stands still.
     Errors    fl_optim_step refuses while an error is pending. All that can fail of a step on a
               backend with step slots fails before the first parameter is written.
     Resuming  A checkpoint holds the model, the optimizer, the process's random numbers and where
               you were. Training that stops at step k and resumes gives the same bits as training
               that did not. */
#include "fl_nn.h"
#ifndef FL_OPTIM_H
#define FL_OPTIM_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>optimizers --------------------------------------------------------------------------------- */

#define FL_OPTIM_STATES 3 /* tensors that an optimizer may remember per parameter */
#define FL_OPTIM_HYPERS 8 /* numbers of an optimizer besides lr */

typedef struct fl_optim fl_optim;
typedef struct fl_optim_slot {
    fl_var *param;
    fl_tensor *state[FL_OPTIM_STATES]; /* as param, zeros at first; NULL past the type's last */
    int64_t steps;                     /* updates so far */
    fl_tensor *grad;                   /* during a step, dense; NULL: the parameter is skipped */
} fl_optim_slot;

/* The table of a kind of optimizer: for one of your own, about 20 lines. */
typedef struct fl_optim_type {
    const char *name;                   /* "sgd": compared when a checkpoint is loaded */
    const char *state[FL_OPTIM_STATES]; /* names of the tensors, up to the first NULL */
    const char *hyper[FL_OPTIM_HYPERS]; /* names of the numbers, up to the first NULL */
    /* Updates p->param in place from p->grad; p->steps counts this step already. */
    bool (*step)(fl_optim *o, fl_optim_slot *p);
} fl_optim_type;

struct fl_optim {
    const fl_optim_type *type;
    double lr;
    double hyper[FL_OPTIM_HYPERS]; /* in the order of their names */
    fl_optim_slot *slot;
    int64_t n;
};

/* An optimizer of that type; keeps the parameters. hyper has as many numbers as the type has names.
   */
FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr,
                              const double *hyper);
FL_API void fl_optim_free(fl_optim *o); /* NULL is fine */

typedef struct fl_optim_sgd_opts {
    fl_named _positional;
    double lr;           /* 0 -> 1e-3 */
    double momentum;     /* 0 */
    double dampening;    /* 0 */
    double weight_decay; /* 0; added to the gradient */
    bool nesterov;       /* wants momentum and no dampening */
    char _end;
} fl_optim_sgd_opts;
/* g += weight_decay p;  m = momentum m + (1 - dampening) g, at first m = g;  p -= lr (nesterov ? g
   + momentum m : m) */
#define fl_optim_sgd(...) FL_OPTIM__SGD(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__SGD(params, ...) fl_optim_sgd_opt(params, (fl_optim_sgd_opts){__VA_ARGS__})
FL_API fl_optim *fl_optim_sgd_opt(fv_list params, fl_optim_sgd_opts o);

typedef struct fl_optim_adam_opts {
    fl_named _positional;
    double lr;           /* 0 -> 1e-3 */
    double beta1, beta2; /* 0 -> 0.9, 0.999 */
    double eps;          /* 0 -> 1e-8 */
    double weight_decay; /* adam: 0, added to g; adamw: 0 -> 0.01, p -= lr weight_decay p */
    char _end;
} fl_optim_adam_opts;
/* m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p -= lr m' / (sqrt(v') + eps), m' =
   m / (1 - beta1^t), v' = v / (1 - beta2^t) */
#define fl_optim_adam(...) FL_OPTIM__ADAM(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAM(params, ...) fl_optim_adam_opt(params, (fl_optim_adam_opts){__VA_ARGS__})
FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o);
#define fl_optim_adamw(...) FL_OPTIM__ADAMW(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__ADAMW(params, ...) fl_optim_adamw_opt(params, (fl_optim_adam_opts){__VA_ARGS__})
FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o);

/* >>steps -------------------------------------------------------------------------------------- */

/* Updates every parameter that has a gradient. False after an error, and while one is pending. */
FL_API bool fl_optim_step(fl_optim *o);
FL_API void fl_optim_zero_grad(fl_optim *o);
FL_API double fl_optim_lr(const fl_optim *o); /* NaN for NULL */
FL_API bool fl_optim_set_lr(fl_optim *o, double lr);
/* Scales all gradients by max_norm / (norm + 1e-6) if that is below 1; norm is the root of the sum
   of the squares of all of them, and is returned. NaN after an error. */
FL_API double fl_optim_clip_grad_norm(fv_list params, double max_norm);

/* >>schedules ---------------------------------------------------------------------------------- */

/* Learning rates as plain functions of the step (or epoch) t = 0, 1, ...: fl_optim_set_lr(o,
   fl_optim_lr_cosine(0.1, 0, t, 1000)). They multiply: warm-up of a cosine is the warm-up of its
   value. lr gamma^floor(t / every) */
FL_API double fl_optim_lr_step(double lr, int64_t t, int64_t every, double gamma);
/* low + (lr - low) (1 + cos(pi t / total)) / 2; low from t = total on */
FL_API double fl_optim_lr_cosine(double lr, double low, int64_t t, int64_t total);
/* lr min(1, (t + 1) / steps) */
FL_API double fl_optim_lr_warmup(double lr, int64_t t, int64_t steps);

/* >>checkpoints -------------------------------------------------------------------------------- */

/* Where training stands. The numbers are yours; nothing here reads them. */
typedef struct fl_optim_progress {
    int64_t step, epoch;
    int64_t position; /* samples (or batches) of the epoch that are done */
} fl_optim_progress;
/* Writes model ("model." + path), optimizer ("optim." + index + name), the process's generator and
   *at (NULL: zeros) to one safetensors file, which is replaced in one piece or not at all. Weights
   alone: fl_nn_load(m, path, .prefix = "model."). */
FL_API bool fl_optim_save_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     const fl_optim_progress *at);
/* Restores all of it; everything is checked before anything is touched. The optimizer must be of
   the saved kind, over the same list of parameters; its lr and other numbers are restored too. Both
   never stop. */
FL_API bool fl_optim_load_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     fl_optim_progress *at);
/* Adds the optimizer's tensors and numbers under prefix, for checkpoints of your own (see
   fl_nn_state). */
FL_API bool fl_optim_state(fl_optim *o, const char *prefix, fl_nn_state *state);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_OPTIM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_IMPL
#define FL_OPTIM_IMPL
#include "fl/ops/copy.h"
#include "fl/ops/elementwise.h"
#include "fl/ops/random.h"
#include "fl/ops/reduce.h"
#include "fl/ops/step.h"
#include "fl/ops/view.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* optimizers */

static int fl__optim_names(const char *const *names, int most) {
    int n = 0;
    while (n < most && names[n]) n++;
    return n;
}

static bool fl__optim_init_slot(fl_optim_slot *slot, const fl_optim_type *type, fl_var *param) {
    slot->param = fv_keep(param);
    for (int k = 0; k < fl__optim_names(type->state, FL_OPTIM_STATES); k++) {
        slot->state[k] = fl_keep(fl_full_like(fv_value(param), 0));
        if (!slot->state[k]) return false;
    }
    return true;
}

static bool fl__optim_params_ok(const char *name, fv_list params) {
    bool ok = params.n > 0;
    for (int i = 0; ok && i < params.n; i++) ok = params.v[i] != NULL;
    if (!ok && !fl_error())
        fl_fail("fl_optim_%s: %s", name, params.n > 0 ? "a parameter is NULL" : "no parameters");
    return ok;
}

FL_API fl_optim *fl_optim_new(const fl_optim_type *type, fv_list params, double lr,
                              const double *hyper) {
    if (!type || !type->step) return fl_bad("fl_optim_new: the type is NULL, or has no step");
    if (!fl__optim_params_ok(type->name, params)) return fl_raise();
    if (!(lr >= 0)) return fl_bad("fl_optim_%s: lr is %g, must not be negative", type->name, lr);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_optim *o = fl_heap_alloc(sizeof *o);
    fl_optim_slot *slot = o ? fl_heap_alloc((size_t)params.n * sizeof *slot) : NULL;
    bool ok = slot != NULL;
    if (ok) *o = (fl_optim){.type = type, .lr = lr, .slot = slot, .n = params.n};
    for (int k = 0; ok && k < fl__optim_names(type->hyper, FL_OPTIM_HYPERS); k++)
        o->hyper[k] = hyper[k];
    for (int i = 0; ok && i < params.n; i++) ok = fl__optim_init_slot(&slot[i], type, params.v[i]);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return o;
    fl_optim_free(o);
    return fl_raise();
}

FL_API void fl_optim_free(fl_optim *o) {
    if (!o) return;
    for (int64_t i = 0; i < o->n; i++) {
        fv_drop(o->slot[i].param);
        for (int k = 0; k < FL_OPTIM_STATES; k++) fl_drop(o->slot[i].state[k]);
    }
    fl_heap_free(o->slot);
    fl_heap_free(o);
}

enum { FL__SGD_MOMENTUM, FL__SGD_DAMPENING, FL__SGD_WEIGHT_DECAY, FL__SGD_NESTEROV };

static bool fl__optim_sgd_step(fl_optim *o, fl_optim_slot *p) {
    const fl_sgd_args a = {
        .lr = o->lr,
        .momentum = o->hyper[FL__SGD_MOMENTUM],
        .dampening = o->hyper[FL__SGD_DAMPENING],
        .weight_decay = o->hyper[FL__SGD_WEIGHT_DECAY],
        .nesterov = o->hyper[FL__SGD_NESTEROV] != 0,
        .first = p->steps == 1,
    };
    return fl_sgd_step(fv_value(p->param), p->grad, p->state[0], &a);
}

/* Without momentum there is nothing to remember. */
static const fl_optim_type fl__optim_sgd_type = {
    .name = "sgd",
    .hyper = {"momentum", "dampening", "weight_decay", "nesterov"},
    .step = fl__optim_sgd_step,
};
static const fl_optim_type fl__optim_sgd_momentum_type = {
    .name = "sgd",
    .state = {"momentum_buffer"},
    .hyper = {"momentum", "dampening", "weight_decay", "nesterov"},
    .step = fl__optim_sgd_step,
};

FL_API fl_optim *fl_optim_sgd_opt(fv_list params, fl_optim_sgd_opts o) {
    const double momentum = fl_option(o.momentum, 0), dampening = fl_option(o.dampening, 0);
    const double decay = fl_option(o.weight_decay, 0);
    const double hyper[] = {momentum, dampening, decay, o.nesterov};
    if (!(momentum >= 0) || !(decay >= 0) || (o.nesterov && (momentum == 0 || dampening != 0))) {
        const char *rule = "must not be negative";
        if (o.nesterov) rule = "nesterov wants momentum and no dampening";
        return fl_bad("fl_optim_sgd: momentum %g, dampening %g, weight_decay %g: %s", momentum, dampening,
                      decay, rule);
    }
    const fl_optim_type *type = momentum > 0 ? &fl__optim_sgd_momentum_type : &fl__optim_sgd_type;
    return fl_optim_new(type, params, fl_option(o.lr, 1e-3), hyper);
}

enum { FL__ADAM_BETA1, FL__ADAM_BETA2, FL__ADAM_EPS, FL__ADAM_WEIGHT_DECAY };

static bool fl__optim_adam_run(fl_optim *o, fl_optim_slot *p, bool decoupled) {
    const double beta1 = o->hyper[FL__ADAM_BETA1], beta2 = o->hyper[FL__ADAM_BETA2];
    const fl_adam_args a = {
        .lr = o->lr,
        .beta1 = beta1,
        .beta2 = beta2,
        .eps = o->hyper[FL__ADAM_EPS],
        .weight_decay = o->hyper[FL__ADAM_WEIGHT_DECAY],
        .bias1 = 1 - pow(beta1, (double)p->steps),
        .bias2 = 1 - pow(beta2, (double)p->steps),
        .decoupled = decoupled,
    };
    return fl_adam_step(fv_value(p->param), p->grad, p->state[0], p->state[1], &a);
}

static bool fl__optim_adam_step(fl_optim *o, fl_optim_slot *p) {
    return fl__optim_adam_run(o, p, false);
}

static bool fl__optim_adamw_step(fl_optim *o, fl_optim_slot *p) {
    return fl__optim_adam_run(o, p, true);
}

static const fl_optim_type fl__optim_adam_type = {
    .name = "adam",
    .state = {"exp_avg", "exp_avg_sq"},
    .hyper = {"beta1", "beta2", "eps", "weight_decay"},
    .step = fl__optim_adam_step,
};
static const fl_optim_type fl__optim_adamw_type = {
    .name = "adamw",
    .state = {"exp_avg", "exp_avg_sq"},
    .hyper = {"beta1", "beta2", "eps", "weight_decay"},
    .step = fl__optim_adamw_step,
};

static fl_optim *fl__optim_adam_new(const fl_optim_type *type, fv_list params, fl_optim_adam_opts o,
                                    double default_decay) {
    const double beta1 = fl_option(o.beta1, 0.9), beta2 = fl_option(o.beta2, 0.999);
    const double eps = fl_option(o.eps, 1e-8), decay = fl_option(o.weight_decay, default_decay);
    const double hyper[] = {beta1, beta2, eps, decay};
    if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1) || !(eps >= 0) || !(decay >= 0))
        return fl_bad("fl_optim_%s: beta1 %g and beta2 %g must be in [0, 1), eps %g and weight_decay %g >= 0",
                      type->name, beta1, beta2, eps, decay);
    return fl_optim_new(type, params, fl_option(o.lr, 1e-3), hyper);
}

FL_API fl_optim *fl_optim_adam_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__optim_adam_new(&fl__optim_adam_type, params, o, 0);
}

FL_API fl_optim *fl_optim_adamw_opt(fv_list params, fl_optim_adam_opts o) {
    return fl__optim_adam_new(&fl__optim_adamw_type, params, o, 1e-2);
}

/* steps */

/* t with its axes in the order in which it lies in memory: contiguous if it is dense in any. */
static fl_tensor *fl__optim_in_order(fl_tensor *t) {
    int order[FL_MAX_DIMS];
    if (fl_is_contiguous(t)) return t;
    fl_axes_by_stride(t, order);
    return fl_permute(t, t->ndim, order);
}

static bool fl__optim_is_dense(fl_tensor *t) {
    fl_tensor *in_order = fl__optim_in_order(t);
    return in_order && fl_is_contiguous(in_order);
}

FL_API bool fl_optim_step(fl_optim *o) {
    if (fl_error()) return false;
    if (!fl_nn_given(o, "fl_optim_step", "the optimizer")) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    /* Broadcast gradients (of a sum, say) become dense before any parameter is written: the steps
       themselves are in place and take no memory. */
    for (int64_t i = 0; ok && i < o->n; i++) {
        fl_tensor *g = fv_grad(o->slot[i].param);
        o->slot[i].grad = !g || fl__optim_is_dense(g) ? g : fl_contiguous(g);
        ok = !g || o->slot[i].grad;
    }
    for (int64_t i = 0; ok && i < o->n; i++) {
        fl_optim_slot *p = &o->slot[i];
        if (!p->grad) continue;
        p->steps++;
        ok = o->type->step(o, p);
        if (!ok) p->steps--;
    }
    for (int64_t i = 0; i < o->n; i++) o->slot[i].grad = NULL;
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok || fl_raise();
}

FL_API void fl_optim_zero_grad(fl_optim *o) {
    for (int64_t i = 0; o && i < o->n; i++) fv_zero_grad(o->slot[i].param);
}

FL_API double fl_optim_lr(const fl_optim *o) {
    return o ? o->lr : NAN;
}

FL_API bool fl_optim_set_lr(fl_optim *o, double lr) {
    if (!fl_nn_given(o, "fl_optim_set_lr", "the optimizer")) return fl_raise();
    if (!(lr >= 0)) return fl_refuse("fl_optim_set_lr: lr is %g, must not be negative", lr);
    o->lr = lr;
    return true;
}

/* The sum of the squares of g, in pieces whose squares stay in the caches; NaN after an error. */
static double fl__optim_sum_squares(fl_tensor *g) {
    enum { PIECE = 1 << 18 };
    double sum = 0;
    fl_scope all = fl_scope_begin();
    fl_tensor *dense = fl__optim_in_order(g), *flat = dense ? fl_reshape(dense, FL_SHAPE(-1)) : NULL;
    for (int64_t i = 0, n = fl_numel(flat); flat && i < n; i += PIECE) {
        fl_scope s = fl_scope_begin();
        fl_tensor *part = fl_slice(flat, 0, i, i + PIECE, 1);
        fl_tensor *squares = fl_sum(fl_square(part), FL_ALL_AXES);
        sum += squares ? fl_item(squares) : NAN;
        fl_scope_end(&s);
    }
    fl_scope_end(&all);
    return flat && !fl_error() ? sum : NAN;
}

/* In place, but for gradients that are not dense, such as broadcast ones. */
static bool fl__optim_scale_grad(fl_var *p, double factor) {
    fl_tensor *g = fv_grad(p);
    if (!g) return true;
    fl_scope s = fl_scope_begin();
    fl_call c = {.op = FL_OP_mul, .n_out = 1, .n_in = 2, .out = {g}, .in = {g, fl_num(factor)}};
    bool ok = c.in[1] != NULL;
    if (ok && fl__optim_is_dense(g)) {
        ok = fl_call_run(&c);
    } else if (ok) {
        fl_var *scaled = fv_const(fl_mul(g, c.in[1]));
        ok = scaled && fv_set_grad(p, scaled);
    }
    fl_scope_end(&s);
    return ok;
}

FL_API double fl_optim_clip_grad_norm(fv_list params, double max_norm) {
    if (fl_error()) return NAN;
    bool ok = fl__optim_params_ok("clip_grad_norm", params);
    if (ok && !(max_norm >= 0))
        ok = fl_fail("fl_optim_clip_grad_norm: max_norm is %g, must not be negative", max_norm);
    double sum = 0; /* in double, whatever the gradients are */
    for (int i = 0; ok && i < params.n && !fl_error(); i++) {
        fl_tensor *g = fv_grad(params.v[i]);
        if (g) sum += fl__optim_sum_squares(g);
    }
    const double norm = sqrt(sum), factor = max_norm / (norm + 1e-6);
    /* Not "factor < 1": a norm that is not a number goes into all gradients, as in PyTorch. */
    for (int i = 0; ok && !fl_error() && i < params.n && !(factor >= 1); i++)
        ok = fl__optim_scale_grad(params.v[i], factor);
    if (ok && !fl_error()) return norm;
    fl_raise();
    return NAN;
}

/* schedules */

FL_API double fl_optim_lr_step(double lr, int64_t t, int64_t every, double gamma) {
    return every > 0 ? lr * pow(gamma, (double)(t / every)) : lr;
}

FL_API double fl_optim_lr_cosine(double lr, double low, int64_t t, int64_t total) {
    if (t >= total) return low;
    return low + (lr - low) * (1 + cos(3.14159265358979323846 * (double)t / (double)total)) / 2;
}

FL_API double fl_optim_lr_warmup(double lr, int64_t t, int64_t steps) {
    return t + 1 < steps ? lr * (double)(t + 1) / (double)steps : lr;
}

/* checkpoints */

static bool fl__optim_add_number(fl_nn_state *state, const char *prefix, const char *name,
                                 void *number, fl_dtype dtype) {
    return fl_nn_state_add_host(state, prefix, name, number, FL_SCALAR_SHAPE, dtype);
}

static bool fl__optim_add_slot(fl_nn_state *state, const char *prefix, const fl_optim_type *type,
                               fl_optim_slot *slot, int64_t i) {
    char name[FL_NN_PATH];
    for (int k = 0; k < fl__optim_names(type->state, FL_OPTIM_STATES); k++) {
        snprintf(name, sizeof name, "%" PRId64 ".%s", i, type->state[k]);
        if (!fl_nn_state_add(state, prefix, name, slot->state[k])) return false;
    }
    snprintf(name, sizeof name, "%" PRId64 ".step", i);
    return fl__optim_add_number(state, prefix, name, &slot->steps, FL_I64);
}

FL_API bool fl_optim_state(fl_optim *o, const char *prefix, fl_nn_state *state) {
    if (!fl_nn_given(o, "fl_optim_state", "the optimizer") ||
        (!state && !fl_fail("fl_optim_state: the state is NULL")) ||
        !fl__optim_add_number(state, prefix, "lr", &o->lr, FL_F64))
        return false;
    for (int k = 0; k < fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS); k++)
        if (!fl__optim_add_number(state, prefix, o->type->hyper[k], &o->hyper[k], FL_F64))
            return false;
    for (int64_t i = 0; i < o->n; i++)
        if (!fl__optim_add_slot(state, prefix, o->type, &o->slot[i], i)) return false;
    return true;
}

/* The numbers of a checkpoint besides the tensors, in the order of their keys. */
enum { FL__META_STEP, FL__META_EPOCH, FL__META_POSITION, FL__META_KEY, FL__META_COUNTER,
       FL__META_COUNT };
static const char *const fl__optim_keys[] = {"step", "epoch", "position", "rng.key", "rng.counter"};

static bool fl__optim_checkpoint_given(const char *path, const fl_nn_module *m, const fl_optim *o,
                                       const char *who) {
    if (!fl_nn_given(o, who, "the optimizer")) return false;
    if (path && m) return true;
    return fl_error() ? false : fl_fail("%s: the %s is NULL", who, path ? "module" : "path");
}

static bool fl__optim_collect(fl_nn_module *m, fl_optim *o, fl_nn_state *state) {
    return fl_nn_state_add_module(state, "model.", m) && fl_optim_state(o, "optim.", state);
}

FL_API bool fl_optim_save_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     const fl_optim_progress *at) {
    const fl_optim_progress start = {0};
    const fl_rng rng = fl_rng_state();
    if (!at) at = &start;
    const uint64_t numbers[FL__META_COUNT] = {
        [FL__META_STEP] = (uint64_t)at->step,
        [FL__META_EPOCH] = (uint64_t)at->epoch,
        [FL__META_POSITION] = (uint64_t)at->position,
        [FL__META_KEY] = rng.key,
        [FL__META_COUNTER] = rng.counter,
    };
    char text[FL__META_COUNT][24];
    fl_data_pair meta[FL__META_COUNT + 1];
    for (int i = 0; i < FL__META_COUNT; i++) {
        snprintf(text[i], sizeof text[i], "%" PRIu64, numbers[i]);
        meta[i] = (fl_data_pair){fl__optim_keys[i], text[i]};
    }
    if (!fl__optim_checkpoint_given(path, m, o, "fl_optim_save_checkpoint")) return false;
    meta[FL__META_COUNT] = (fl_data_pair){"optim", o->type->name};
    fl_nn_state state = {0};
    const bool ok =
        fl__optim_collect(m, o, &state) && fl_nn_state_save(&state, path, meta, FL__META_COUNT + 1);
    fl_nn_state_free(&state);
    return ok;
}

/* A decimal number of 64 bits, no more and no less. */
static bool fl__optim_parse(const char *text, uint64_t *out) {
    if (!text || *text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !*end && !errno;
}

static bool fl__optim_read_meta(const fl_data_file *f, const char *what, const fl_optim *o,
                                uint64_t *numbers) {
    const char *name = fl_data_meta(f, "optim");
    if (!name) return fl_fail("%s: no checkpoint: it names no optimizer; fl_nn_load reads weights", what);
    if (strcmp(name, o->type->name))
        return fl_fail("%s: of optimizer '%s', this one is '%s'", what, name, o->type->name);
    for (int i = 0; i < FL__META_COUNT; i++)
        if (!fl__optim_parse(fl_data_meta(f, fl__optim_keys[i]), &numbers[i]))
            return fl_fail("%s: metadata '%s' is no number", what, fl__optim_keys[i]);
    return true;
}

FL_API bool fl_optim_load_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     fl_optim_progress *at) {
    if (!fl__optim_checkpoint_given(path, m, o, "fl_optim_load_checkpoint")) return false;
    char what[FL_NN_PATH];
    uint64_t numbers[FL__META_COUNT];
    fl_nn_state state = {0};
    snprintf(what, sizeof what, "fl_optim_load_checkpoint: %s", path);
    fl_data_file *f = fl__optim_collect(m, o, &state) ? fl_data_open_safetensors(path) : NULL;
    const bool ok = f && fl__optim_read_meta(f, what, o, numbers) &&
                    fl_nn_state_read(&state, f, what, "", false) && fl_nn_state_commit(&state);
    fl_data_close(f);
    fl_nn_state_free(&state);
    if (!ok) return false;
    if (at) {
        at->step = (int64_t)numbers[FL__META_STEP];
        at->epoch = (int64_t)numbers[FL__META_EPOCH];
        at->position = (int64_t)numbers[FL__META_POSITION];
    }
    fl_rng_set_state((fl_rng){numbers[FL__META_KEY], numbers[FL__META_COUNTER]});
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
