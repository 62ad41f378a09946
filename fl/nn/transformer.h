/* transformer.h - multi-head attention and the layer around it */
#ifndef FL_NN_TRANSFORMER_H
#define FL_NN_TRANSFORMER_H
#include "dropout.h"
#include "init.h"
#include "layers.h"
#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_attention_opts {
    fl_named _positional;
    double dropout; /* of the weights that the softmax gives */
    bool causal;    /* step i sees steps 0 to i */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_attention_opts;
/* Multi-head attention as nn.MultiheadAttention(batch_first=True): in_proj_weight [3 dim, dim] and
   in_proj_bias [3 dim] give q, k and v, each of `heads` parts of dim / heads numbers; fl_attention
   of each; out_proj is a linear layer of the parts side by side. Inputs (the result has the first's
   shape):
     x [n, t, dim]                          attends to itself
     x, mask                                the same; a mask as fl_attention takes, with the heads'
                                            axis: it broadcasts to [n, heads, t, t]
     q [n, t, dim], k and v [n, s, dim]     q attends to k
     q, k, v, mask */
#define fl_nn_attention(...) FL_NN__ATTENTION(__VA_ARGS__, ._end = 0)
#define FL_NN__ATTENTION(dim, heads, ...) \
    fl_nn_attention_opt(dim, heads, (fl_nn_attention_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o);

typedef struct fl_nn_transformer_opts {
    fl_named _positional;
    double dropout;                   /* of attention weights, the hidden layer and both branches */
    double drop_path;                 /* of both branches, see fl_nn_drop_path */
    double eps;                       /* of the norms, 0 -> 1e-5 */
    fl_var *(*activation)(fl_var *x); /* NULL -> fv_relu */
    bool norm_first;                  /* norms at the start of the branches, not after the sums */
    bool causal, no_bias;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_transformer_opts;
/* One layer, as nn.TransformerEncoderLayer(batch_first=True): x [n, t, dim] -> the same,
     x = norm1(x + self_attn(x)),        x = norm2(x + linear2(activation(linear1(x)))), or
     x = x + self_attn(norm1(x)),        x = x + linear2(activation(linear1(norm2(x)))).
   With a mask as second input (see fl_nn_attention) the results are x and the mask, so that layers
   follow each other in a container. */
#define fl_nn_transformer(...) FL_NN__TRANSFORMER(__VA_ARGS__, ._end = 0)
#define FL_NN__TRANSFORMER(dim, heads, hidden, ...) \
    fl_nn_transformer_opt(dim, heads, hidden, (fl_nn_transformer_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_transformer_opt(int64_t dim, int64_t heads, int64_t hidden,
                                           fl_nn_transformer_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_TRANSFORMER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_TRANSFORMER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_TRANSFORMER_IMPL
#define FL_NN_TRANSFORMER_IMPL
#include "../ops/attention.h"
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct fl__nn_attention {
    int64_t dim, heads;
    double dropout;
    bool causal;
} fl__nn_attention;

enum { FL__NN_IN_WEIGHT, FL__NN_IN_BIAS }; /* the parameters' order */

/* [n, t, dim] -> [n, heads, t, dim / heads] */
static fl_var *fl__nn_split_heads(const fl__nn_attention *a, fl_var *x) {
    if (!x) return NULL;
    const fl_tensor *t = fv_value(x);
    const fl_shape parts = FL_SHAPE(t->shape[0], t->shape[1], a->heads, a->dim / a->heads);
    return fv_transpose(fv_reshape(x, parts), 1, 2);
}

/* q, k and v of one input, by one product: [3, n, heads, t, dim / heads] */
static fl_var *fl__nn_project_self(fl_nn_module *m, fl_var *x) {
    static const int parts_first[] = {2, 0, 3, 1, 4};
    const fl__nn_attention *a = m->data;
    const fl_tensor *t = fv_value(x);
    const fl_shape parts = FL_SHAPE(t->shape[0], t->shape[1], 3, a->heads, a->dim / a->heads);
    fl_var *y = fv_linear(x, fl_nn_param_at(m, FL__NN_IN_WEIGHT), fl_nn_param_at(m, FL__NN_IN_BIAS));
    return fv_permute(fv_reshape(y, parts), 5, parts_first);
}

/* Of three inputs, each by its third of the weight. */
static void fl__nn_project_each(fl_nn_module *m, const fl_vars *in, fl_var *qkv[3]) {
    const fl__nn_attention *a = m->data;
    fl_var *w = fl_nn_param_at(m, FL__NN_IN_WEIGHT), *b = fl_nn_param_at(m, FL__NN_IN_BIAS);
    for (int i = 0; i < 3; i++) {
        fl_var *part = fv_slice(w, 0, i * a->dim, (i + 1) * a->dim, 1);
        fl_var *shift = b ? fv_slice(b, 0, i * a->dim, (i + 1) * a->dim, 1) : NULL;
        qkv[i] = fl__nn_split_heads(a, fv_linear(in->v[i], part, shift));
    }
}

/* q, k, v are [n, ., dim] of one n, k and v of one length; else fails. */
static bool fl__nn_attention_ok(const fl_nn_module *m, const fl_vars *in) {
    const fl__nn_attention *a = m->data;
    if (in->n < 1 || in->n > 4) {
        fl_nn_fail(m, "%d inputs, takes 1 to 4", in->n);
        return false;
    }
    for (int i = 0; i < (in->n < 3 ? 1 : 3); i++)
        if (!fl_nn_sequence_ok(m, in->v[i], a->dim, INT64_MAX)) return false;
    if (in->n < 3) return true;
    const int64_t *q = fv_value(in->v[0])->shape, *k = fv_value(in->v[1])->shape;
    const int64_t *v = fv_value(in->v[2])->shape;
    if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1]) return true;
    char x[FL_NN_SHAPE], y[FL_NN_SHAPE], z[FL_NN_SHAPE];
    fl_nn_fail(m, "q %s, k %s, v %s do not fit", fl_nn_shape_text(in->v[0], x),
               fl_nn_shape_text(in->v[1], y), fl_nn_shape_text(in->v[2], z));
    return false;
}

static fl_vars fl__nn_attention_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_attention *a = m->data;
    if (!fl__nn_attention_ok(m, &in)) return (fl_vars){0};
    fl_var *qkv[3], *y, *mask = in.n == 2 ? in.v[1] : in.n == 4 ? in.v[3] : NULL;
    const fv_attention_opts o = {.mask = mask, .causal = a->causal,
                                 .dropout = m->train ? a->dropout : 0};
    if (in.n < 3) {
        qkv[0] = fl__nn_project_self(m, in.v[0]);
        y = qkv[0] ? fv_attention_packed_opt(qkv[0], o) : NULL;
    } else {
        fl__nn_project_each(m, &in, qkv);
        if (!qkv[0] || !qkv[1] || !qkv[2]) return (fl_vars){0};
        y = fv_attention_opt(qkv[0], qkv[1], qkv[2], o);
    }
    y = fv_reshape(fv_transpose(y, 1, 2), fl_shape_of(fv_value(in.v[0])));
    return fl_nn_forward_vars(m->child[0], FL_VARS(y));
}

static void fl__nn_attention_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_attention *a = m->data;
    snprintf(buf, size, "%" PRId64 ", %" PRId64 ", dropout=%g%s", a->dim, a->heads, a->dropout,
             a->causal ? ", causal=True" : "");
}

static const fl_nn_type fl__nn_attention_type = {
    .name = "MultiheadAttention",
    .maker = "fl_nn_attention",
    .forward = fl__nn_attention_forward,
    .describe = fl__nn_attention_describe,
};

static bool fl__nn_attention_fill(fl_nn_module *m, int64_t dim, const fl_nn_attention_opts *o) {
    const double bound = sqrt(6.0 / (double)(4 * dim)); /* Glorot's, of [3 dim, dim] */
    fl_tensor *w = fl_uniform(FL_SHAPE(3 * dim, dim), -bound, bound, o->dtype, o->rng);
    if (!fl_nn_add_param(m, "in_proj_weight", fv_param(w))) return false;
    if (!o->no_bias &&
        !fl_nn_add_param(m, "in_proj_bias", fv_param(fl_zeros(FL_SHAPE(3 * dim), o->dtype))))
        return false;
    fl_nn_module *out =
        fl_nn_add(m, "out_proj",
                  fl_nn_linear(dim, dim, .no_bias = o->no_bias, .dtype = o->dtype, .rng = o->rng));
    return out && (o->no_bias || fl_nn_init_constant(fl_nn_get_param(out, "bias"), 0));
}

FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o) {
    const fl__nn_attention a = {dim, heads, o.dropout, o.causal};
    if (dim < 1 || dim > INT32_MAX || heads < 1 || dim % heads ||
        !(o.dropout >= 0 && o.dropout <= 1))
        return fl_bad("fl_nn_attention: %" PRId64 " heads of dim %" PRId64 ", dropout %g", heads, dim,
                      o.dropout);
    if (!fl_nn_dtype_ok("fl_nn_attention", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_attention_type, &a, sizeof a);
    const bool ok = m && fl__nn_attention_fill(m, dim, &o);
    fl_scope_end(&s);
    return fl_nn_made(m, ok);
}

typedef struct fl__nn_transformer {
    fl_var *(*activation)(fl_var *x); /* NULL: linear1's */
    bool norm_first;
    /* children, each the tree's; drop_path may be NULL */
    fl_nn_module *attention, *up, *down, *norm1, *norm2, *dropout, *dropout1, *dropout2, *drop_path;
} fl__nn_transformer;

/* The end of a branch: dropout, and the whole of it left out. */
static fl_var *fl__nn_branch_end(const fl__nn_transformer *t, fl_nn_module *dropout, fl_var *y) {
    y = fl_nn_forward(dropout, y);
    return t->drop_path ? fl_nn_forward(t->drop_path, y) : y;
}

static fl_var *fl__nn_attention_branch(const fl__nn_transformer *t, fl_var *x, fl_var *mask) {
    const fl_vars in = {mask ? 2 : 1, {x, mask}};
    return fl__nn_branch_end(t, t->dropout1, fl_nn_forward_vars(t->attention, in).v[0]);
}

static fl_var *fl__nn_hidden_branch(const fl__nn_transformer *t, fl_var *x) {
    fl_var *hidden = fl_nn_forward(t->up, x);
    if (hidden && t->activation) hidden = t->activation(hidden);
    hidden = fl_nn_forward(t->dropout, hidden);
    return fl__nn_branch_end(t, t->dropout2, fl_nn_forward(t->down, hidden));
}

static fl_vars fl__nn_transformer_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_transformer *t = m->data;
    fl_var *x = in.v[0], *mask = in.n == 2 ? in.v[1] : NULL;
    if (in.n > 2) return fl_nn_fail(m, "%d inputs, takes 1 or 2", in.n);
    if (t->norm_first) {
        x = fv_add(x, fl__nn_attention_branch(t, fl_nn_forward(t->norm1, x), mask));
        x = fv_add(x, fl__nn_hidden_branch(t, fl_nn_forward(t->norm2, x)));
    } else {
        x = fl_nn_forward(t->norm1, fv_add(x, fl__nn_attention_branch(t, x, mask)));
        x = fl_nn_forward(t->norm2, fv_add(x, fl__nn_hidden_branch(t, x)));
    }
    return (fl_vars){in.n, {x, mask}};
}

static void fl__nn_transformer_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "norm_first=%s",
             ((fl__nn_transformer *)m->data)->norm_first ? "True" : "False");
}

static const fl_nn_type fl__nn_transformer_type = {
    .name = "TransformerEncoderLayer",
    .maker = "fl_nn_transformer",
    .forward = fl__nn_transformer_forward,
    .describe = fl__nn_transformer_describe,
};

/* Adds the child and says where it is; false after an error. */
static bool fl__nn_part(fl_nn_module *m, const char *name, fl_nn_module *child, fl_nn_module **at) {
    return (*at = fl_nn_add(m, name, child)) != NULL;
}

static fl_nn_module *fl__nn_wide(int64_t in, int64_t out, fl_op act,
                                 const fl_nn_transformer_opts *o) {
    return fl_nn_linear(in, out, .act = act, .no_bias = o->no_bias, .dtype = o->dtype,
                        .rng = o->rng);
}

static fl_nn_module *fl__nn_block_norm(int64_t dim, const fl_nn_transformer_opts *o) {
    return fl_nn_layer_norm(FL_SHAPE(dim), .eps = o->eps, .no_bias = o->no_bias, .dtype = o->dtype);
}

/* In the order of nn.TransformerEncoderLayer; ends at the first error. */
static bool fl__nn_transformer_fill(fl_nn_module *m, int64_t dim, int64_t heads, int64_t hidden,
                                    const fl_nn_transformer_opts *o) {
    fl__nn_transformer *t = m->data;
    const fl_op act = fv_linear_act_of(t->activation);
    if (act) t->activation = NULL;
    const fl_nn_attention_opts attention = {.dropout = o->dropout,
                                            .causal = o->causal,
                                            .no_bias = o->no_bias,
                                            .dtype = o->dtype,
                                            .rng = o->rng};
    return fl__nn_part(m, "self_attn", fl_nn_attention_opt(dim, heads, attention), &t->attention) &&
           fl__nn_part(m, "linear1", fl__nn_wide(dim, hidden, act, o), &t->up) &&
           fl__nn_part(m, "dropout", fl_nn_dropout(o->dropout), &t->dropout) &&
           fl__nn_part(m, "linear2", fl__nn_wide(hidden, dim, FL_OP_NONE, o), &t->down) &&
           fl__nn_part(m, "norm1", fl__nn_block_norm(dim, o), &t->norm1) &&
           fl__nn_part(m, "norm2", fl__nn_block_norm(dim, o), &t->norm2) &&
           fl__nn_part(m, "dropout1", fl_nn_dropout(o->dropout), &t->dropout1) &&
           fl__nn_part(m, "dropout2", fl_nn_dropout(o->dropout), &t->dropout2) &&
           (o->drop_path == 0 ||
            fl__nn_part(m, "drop_path", fl_nn_drop_path(o->drop_path), &t->drop_path));
}

FL_API fl_nn_module *fl_nn_transformer_opt(int64_t dim, int64_t heads, int64_t hidden,
                                           fl_nn_transformer_opts o) {
    const fl__nn_transformer t = {.activation = o.activation ? o.activation : fv_relu,
                                  .norm_first = o.norm_first};
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_transformer_type, &t, sizeof t);
    return fl_nn_made(m, m && fl__nn_transformer_fill(m, dim, heads, hidden, &o));
}

#endif
#endif

/* MIT licence: see LICENSE. */
