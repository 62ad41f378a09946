/* fl/nn/dropout.h - dropout of elements, layers and residual branches */
#ifndef FL_NN_DROPOUT_H
#define FL_NN_DROPOUT_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_dropout_opts {
    fl_opts_guard guard_;
    fl_rng *rng; /* NULL -> the global generator; must outlive the layer */
    char _end;
} fl_nn_dropout_opts;
/* In training x / (1 - p) with probability 1 - p, else 0; in evaluation x. */
#define fl_nn_dropout(...) FL_NN__DROPOUT(__VA_ARGS__, ._end = 0)
#define FL_NN__DROPOUT(p, ...) fl_nn_dropout_opt(p, FL_LITERAL(fl_nn_dropout_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_dropout_opt(double p, fl_nn_dropout_opts o);
/* The current drop probability of m, 0 in evaluation, and its generator in *rng; -1 if m is not
   fl_nn_dropout. */
FL_API double fl_nn_dropout_of(const fl_nn_module *m, fl_rng **rng);

/* LayerDrop (arXiv 1909.11556): a sequence of children, added by fl_nn_add, each of which keeps the shapes of
   its inputs; in training each child is skipped (replaced by the identity) with probability p. */
#define fl_nn_layer_drop(...) FL_NN__LAYER_DROP(__VA_ARGS__, ._end = 0)
#define FL_NN__LAYER_DROP(p, ...) fl_nn_layer_drop_opt(p, FL_LITERAL(fl_nn_dropout_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_layer_drop_opt(double p, fl_nn_dropout_opts o);
/* Stochastic depth (arXiv 1603.09382), for a residual branch: in training each sample x[i] of x [n, ...] is 0
   with probability p, else x[i] / (1 - p). */
#define fl_nn_drop_path(...) FL_NN__DROP_PATH(__VA_ARGS__, ._end = 0)
#define FL_NN__DROP_PATH(p, ...) fl_nn_drop_path_opt(p, FL_LITERAL(fl_nn_dropout_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_drop_path_opt(double p, fl_nn_dropout_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_DROPOUT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_DROPOUT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_DROPOUT_IMPL
#define FL_NN_DROPOUT_IMPL
#include "../ops/elementwise.h"
#include "../ops/random.h"
#include <stdio.h>

typedef struct fl__nn_dropout {
    double p;
    fl_rng *rng;
} fl__nn_dropout;

static void fl__nn_dropout_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "p=%g", ((const fl__nn_dropout *)m->data)->p);
}

/* A module of that type with drop probability p. */
static fl_nn_module *fl__nn_dropout_new(const fl_nn_type *type, double p, fl_rng *rng) {
    const fl__nn_dropout d = {p, rng};
    if (!(p >= 0 && p <= 1)) return fl_err_null("%s: p must be in [0, 1], got %g", type->maker, p);
    return fl_nn_new(type, &d, sizeof d);
}

static fl_vars fl__nn_dropout_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_dropout *d = m->data;
    if (!m->train || d->p == 0) return in;
    return FL_VARS(fv_dropout(in.v[0], d->p, d->rng));
}

static const fl_nn_type fl__nn_dropout_type = {
    .name = "Dropout",
    .maker = "fl_nn_dropout",
    .inputs = 1,
    .forward = fl__nn_dropout_forward,
    .describe = fl__nn_dropout_describe,
};

FL_API fl_nn_module *fl_nn_dropout_opt(double p, fl_nn_dropout_opts o) {
    return fl__nn_dropout_new(&fl__nn_dropout_type, p, o.rng);
}

FL_API double fl_nn_dropout_of(const fl_nn_module *m, fl_rng **rng) {
    if (!m || m->type != &fl__nn_dropout_type) return -1;
    const fl__nn_dropout *d = m->data;
    *rng = d->rng;
    return m->train ? d->p : 0;
}

static fl_vars fl__nn_layer_drop_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_dropout *d = m->data;
    for (int64_t i = 0; i < m->n_child && in.n; i++) {
        const bool skip = m->train && d->p > 0 && fl_rng_uniform(d->rng) < d->p;
        if (!skip) in = fl_nn_forward_vars(m->child[i], in);
    }
    return in;
}

static const fl_nn_type fl__nn_layer_drop_type = {
    .name = "LayerDrop",
    .maker = "fl_nn_layer_drop",
    .forward = fl__nn_layer_drop_forward,
    .describe = fl__nn_dropout_describe,
};

FL_API fl_nn_module *fl_nn_layer_drop_opt(double p, fl_nn_dropout_opts o) {
    return fl__nn_dropout_new(&fl__nn_layer_drop_type, p, o.rng);
}

static fl_vars fl__nn_drop_path_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_dropout *d = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (!m->train || d->p == 0 || !x->ndim) return in;
    fl_shape each = fl_shape_of(x);
    for (int i = 1; i < each.ndim; i++) each.dim[i] = 1;
    fl_tensor *scale = fl_dropout(fl_new_full(x, each, 1), d->p, d->rng);
    return FL_VARS(fv_mul(in.v[0], fv_const(scale)));
}

static const fl_nn_type fl__nn_drop_path_type = {
    .name = "DropPath",
    .maker = "fl_nn_drop_path",
    .inputs = 1,
    .forward = fl__nn_drop_path_forward,
    .describe = fl__nn_dropout_describe,
};

FL_API fl_nn_module *fl_nn_drop_path_opt(double p, fl_nn_dropout_opts o) {
    return fl__nn_dropout_new(&fl__nn_drop_path_type, p, o.rng);
}

#endif
#endif

/* MIT licence: see LICENSE. */
