/* fl/nn/capsule.h - capsule layers with dynamic routing */
#ifndef FL_NN_CAPSULE_H
#define FL_NN_CAPSULE_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x |x| / (1 + x^2) along the last axis: keeps the direction, maps the length to [0, 1). */
FL_API fl_var *fl_nn_squash(fl_var *x);
typedef struct fl_nn_capsules_opts {
    fl_opts_guard guard_;
    int64_t rounds; /* routing iterations, 0 -> 3 */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_capsules_opts;
/* Capsules by dynamic routing (arXiv 1710.09829): x [n, in, in_dim] -> [n, out, out_dim]. Each input capsule
   i predicts u_ij = W_ij x_i; weight [in, out, out_dim, in_dim] is initialised to N(0, 0.01^2). Starting with
   b = 0, each round computes c = softmax(b) over j and v_j = squash(sum_i c_ij u_ij), and adds u_ij . v_j to
   b_ij. */
#define fl_nn_capsules(...) FL_NN__CAPSULES(__VA_ARGS__, ._end = 0)
#define FL_NN__CAPSULES(in, in_dim, out, out_dim, ...) \
    fl_nn_capsules_opt(in, in_dim, out, out_dim, FL_LITERAL(fl_nn_capsules_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_capsules_opt(int64_t in, int64_t in_dim, int64_t out, int64_t out_dim,
                                        fl_nn_capsules_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_CAPSULE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_CAPSULE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_CAPSULE_IMPL
#define FL_NN_CAPSULE_IMPL
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <stdio.h>

FL_API fl_var *fl_nn_squash(fl_var *x) {
    if (!fl_given(x, "fl_nn_squash", "the operand")) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_var *square = fv_sum(fv_square(x), FL_AXES_KEEP(-1));
    fl_var *length = fv_div(square, fv_add(square, fv_num(1)));
    /* 1e-16 keeps the gradient of the root finite at 0. */
    return fv_scope_return(&s, fv_mul(x, fv_mul(length, fv_rsqrt(fv_add(square, fv_num(1e-16))))));
}

typedef struct fl__nn_capsules {
    int64_t in, in_dim, out, out_dim, rounds;
} fl__nn_capsules;

/* u [n, in, out, out_dim]: one matrix product [n, in_dim] x weight per input capsule */
static fl_var *fl__nn_predictions(const fl__nn_capsules *c, fl_var *w, fl_var *x) {
    const int64_t n = fv_value(x)->shape[0];
    fl_var *each = fv_reshape(w, FL_SHAPE(c->in, c->out * c->out_dim, c->in_dim));
    fl_var *u = fv_matmul(fv_transpose(x, 0, 1), fv_transpose(each, 1, 2));
    return fv_transpose(fv_reshape(u, FL_SHAPE(c->in, n, c->out, c->out_dim)), 0, 1);
}

static fl_vars fl__nn_capsules_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_capsules *c = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 3 || x->shape[1] != c->in || x->shape[2] != c->in_dim) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, expected [n, %" PRId64 ", %" PRId64 "]",
                          fl_nn_shape_text(in.v[0], text), c->in, c->in_dim);
    }
    fl_var *u = fl__nn_predictions(c, fl_nn_param_at(m, 0), in.v[0]);
    fl_var *probabilities = fv_num(1 / (double)c->out); /* softmax(0) in the first round */
    fl_var *b = NULL, *v = NULL;
    for (int64_t r = 0; u && r < c->rounds; r++) {
        if (r) {
            fl_var *agree = fv_sum(fv_mul(u, fv_unsqueeze(v, 1)), FL_AXES_KEEP(-1));
            b = b ? fv_add(b, agree) : agree;
            probabilities = b ? fv_softmax(b, 2) : NULL;
        }
        v = fl_nn_squash(fv_sum(fv_mul(probabilities, u), FL_AXES(1)));
    }
    return FL_VARS(v);
}

static void fl__nn_capsules_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_capsules *c = m->data;
    snprintf(buf, size, "%" PRId64 " x %" PRId64 " to %" PRId64 " x %" PRId64 ", rounds=%" PRId64,
             c->in, c->in_dim, c->out, c->out_dim, c->rounds);
}

static const fl_nn_type fl__nn_capsules_type = {
    .name = "Capsules",
    .maker = "fl_nn_capsules",
    .inputs = 1,
    .forward = fl__nn_capsules_forward,
    .describe = fl__nn_capsules_describe,
};

FL_API fl_nn_module *fl_nn_capsules_opt(int64_t in, int64_t in_dim, int64_t out, int64_t out_dim,
                                        fl_nn_capsules_opts o) {
    const fl__nn_capsules c = {in, in_dim, out, out_dim, o.rounds ? o.rounds : 3};
    if (in < 1 || in_dim < 1 || out < 1 || out_dim < 1 || c.rounds < 1)
        return fl_err_null("fl_nn_capsules: in, in_dim, out, out_dim and rounds must be positive, "
                           "got %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 " and %" PRId64, in, in_dim,
                           out, out_dim, c.rounds);
    if (!fl_nn_dtype_ok("fl_nn_capsules", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__nn_capsules_type, &c, sizeof c);
    fl_tensor *w =
        m ? fl_normal(FL_SHAPE(in, out, out_dim, in_dim), 0, 0.01, o.dtype, o.rng) : NULL;
    const bool ok = w && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

#endif
#endif

/* MIT licence: see LICENSE. */
