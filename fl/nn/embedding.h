/* fl/nn/embedding.h - embedding tables; learned and sinusoidal position embeddings */
#ifndef FL_NN_EMBEDDING_H
#define FL_NN_EMBEDDING_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_embedding_opts {
    fl_opts_guard guard_;
    double std;      /* of the initial weight, 0 -> 1 */
    int64_t padding; /* index whose row is zero and is not trained; 0 -> none, FL_I0 -> 0 */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_embedding_opts;
/* Indices [...] (i64) -> rows [..., dim] of weight [n, dim], initialised to N(0, std^2). */
#define fl_nn_embedding(...) FL_NN__EMBEDDING(__VA_ARGS__, ._end = 0)
#define FL_NN__EMBEDDING(n, dim, ...) \
    fl_nn_embedding_opt(n, dim, FL_LITERAL(fl_nn_embedding_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_embedding_opt(int64_t n, int64_t dim, fl_nn_embedding_opts o);

typedef struct fl_nn_position_opts {
    fl_opts_guard guard_;
    double std; /* of the initial weight, 0 -> 0.02 */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_position_opts;
/* y = x + weight[:t] with x [n, t, dim], weight [steps, dim] learned, t <= steps. With a KV cache
   (fl_nn_forward_cached) the rows begin at its position; so do those of fl_nn_sinusoid. */
#define fl_nn_position(...) FL_NN__POSITION(__VA_ARGS__, ._end = 0)
#define FL_NN__POSITION(steps, dim, ...) \
    fl_nn_position_opt(steps, dim, FL_LITERAL(fl_nn_position_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_position_opt(int64_t steps, int64_t dim, fl_nn_position_opts o);
/* Sinusoidal position embedding (arXiv 1706.03762): y = scale x + p, scale 0 -> 1, x [n, t, dim];
   p[t, 2 i] = sin(t w), p[t, 2 i + 1] = cos(t w), w = 10000^(-2 i / dim). */
FL_API fl_nn_module *fl_nn_sinusoid(int64_t dim, double scale);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_EMBEDDING_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_EMBEDDING) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_EMBEDDING_IMPL
#define FL_NN_EMBEDDING_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/embedding.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include "attention.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct fl__nn_embedding {
    int64_t n, dim, padding;
} fl__nn_embedding;

static fl_vars fl__nn_embedding_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_embedding *e = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->dtype != FL_I64) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s %s, expected i64", fl_dtype_name(x->dtype),
                          fl_nn_shape_text(in.v[0], text));
    }
    return FL_VARS(fv_embedding(fv_value(in.v[0]), fl_nn_param_at(m, 0), e->padding));
}

static void fl__nn_embedding_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_embedding *e = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64, e->n, e->dim);
    if (e->padding >= 0) fl_nn_put(&t, ", padding_idx=%" PRId64, e->padding);
}

static const fl_nn_type fl__nn_embedding_type = {
    .name = "Embedding",
    .maker = "fl_nn_embedding",
    .inputs = 1,
    .forward = fl__nn_embedding_forward,
    .describe = fl__nn_embedding_describe,
};

/* A layer of that type with a weight [n, dim] from N(0, std^2); the row of `padding`, if any, is zero. */
static fl_nn_module *fl__nn_embedding_new(const fl_nn_type *type, const fl__nn_embedding *e, double std,
                                          fl_dtype dtype, fl_rng *rng) {
    if (!fl_nn_dtype_ok(type->maker, dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(type, e, sizeof *e);
    fl_tensor *w = m ? fl_normal(FL_SHAPE(e->n, e->dim), 0, std, dtype, rng) : NULL;
    bool ok = w != NULL;
    if (ok && e->padding >= 0) {
        fl_tensor *row = fl_select(w, 0, e->padding);
        ok = row && fl_assign(row, fl_num(0));
    }
    ok = ok && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

FL_API fl_nn_module *fl_nn_embedding_opt(int64_t n, int64_t dim, fl_nn_embedding_opts o) {
    const fl__nn_embedding e = {n, dim, fl_option_int(o.padding, -1)};
    if (n < 1 || dim < 1 || e.padding < -1 || e.padding >= n)
        return fl_err_null("fl_nn_embedding: n and dim must be positive, padding in [0, n), "
                           "got %" PRId64 ", %" PRId64 " and %" PRId64, n, dim, e.padding);
    return fl__nn_embedding_new(&fl__nn_embedding_type, &e, fl_option(o.std, 1), o.dtype, o.rng);
}

static fl_vars fl__nn_position_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_embedding *e = m->data;
    const int64_t position = fl_nn_cached_position();
    if (!fl_nn_sequence_ok(m, in.v[0], e->dim, e->n - position)) return (fl_vars){0};
    fl_var *w = fl_nn_param_at(m, 0);
    return FL_VARS(fv_add(in.v[0], fv_slice(w, 0, position, position + fv_value(in.v[0])->shape[1], 1)));
}

static const fl_nn_type fl__nn_position_type = {
    .name = "Position",
    .maker = "fl_nn_position",
    .inputs = 1,
    .forward = fl__nn_position_forward,
    .describe = fl__nn_embedding_describe,
};

FL_API fl_nn_module *fl_nn_position_opt(int64_t steps, int64_t dim, fl_nn_position_opts o) {
    const fl__nn_embedding e = {steps, dim, -1};
    if (steps < 1 || dim < 1)
        return fl_err_null("fl_nn_position: steps and dim must be positive, got %" PRId64 " and %" PRId64,
                           steps, dim);
    return fl__nn_embedding_new(&fl__nn_position_type, &e, fl_option(o.std, 0.02), o.dtype, o.rng);
}

typedef struct fl__nn_sinusoid {
    int64_t dim;
    double scale;
} fl__nn_sinusoid;

/* p [t, dim] from `position` on, in f64; a phase of pi / 2 makes the sine a cosine. */
static fl_tensor *fl__nn_sinusoids(int64_t position, int64_t t, int64_t dim) {
    fl_tensor *at = fl_unsqueeze(fl_arange((double)position, (double)(position + t), 1, FL_F64), 1);
    fl_tensor *i = fl_arange(0, (double)dim, 1, FL_F64);
    fl_tensor *odd = fl_remainder(i, fl_num(2));
    fl_tensor *w = fl_exp(fl_mul(fl_sub(i, odd), fl_num(-log(10000) / (double)dim)));
    return fl_sin(fl_add(fl_mul(at, w), fl_mul(odd, fl_num(acos(-1) / 2))));
}

static fl_vars fl__nn_sinusoid_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_sinusoid *p = m->data;
    fl_var *x = in.v[0];
    if (!fl_nn_sequence_ok(m, x, p->dim, INT64_MAX)) return (fl_vars){0};
    const fl_tensor *t = fv_value(x);
    fl_tensor *waves = fl__nn_sinusoids(fl_nn_cached_position(), t->shape[1], p->dim);
    waves = waves ? fl_to(fl_cast(waves, t->dtype), fl_backend_name(t)) : NULL;
    if (p->scale != 1) x = fv_mul(x, fv_num(p->scale));
    return FL_VARS(fv_add(x, fv_const(waves)));
}

static void fl__nn_sinusoid_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_sinusoid *p = m->data;
    snprintf(buf, size, "%" PRId64 ", scale=%g", p->dim, p->scale);
}

static const fl_nn_type fl__nn_sinusoid_type = {
    .name = "Sinusoid",
    .maker = "fl_nn_sinusoid",
    .inputs = 1,
    .forward = fl__nn_sinusoid_forward,
    .describe = fl__nn_sinusoid_describe,
};

FL_API fl_nn_module *fl_nn_sinusoid(int64_t dim, double scale) {
    const fl__nn_sinusoid p = {dim, scale == 0 ? 1 : scale};
    if (dim < 1) return fl_err_null("fl_nn_sinusoid: dim must be positive, got %" PRId64, dim);
    return fl_nn_new(&fl__nn_sinusoid_type, &p, sizeof p);
}

#endif
#endif

/* MIT licence: see LICENSE. */
