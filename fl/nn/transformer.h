/* fl/nn/transformer.h - transformer encoder and decoder layers */
#ifndef FL_NN_TRANSFORMER_H
#define FL_NN_TRANSFORMER_H
#include "attention.h"
#include "dropout.h"
#include "layers.h"
#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_transformer_opts {
    fl_opts_guard guard_;
    double dropout;                   /* of attention weights, the hidden layer and all residual branches */
    double drop_path;                 /* stochastic depth of the branches, see fl_nn_drop_path */
    double eps;                       /* of the norms, 0 -> 1e-5 */
    fl_var *(*activation)(fl_var *x); /* NULL -> fv_relu */
    bool rms;                         /* fl_nn_rms_norm instead of fl_nn_layer_norm */
    bool gated;                       /* the hidden layer is activation(gate(x)) * linear1(x) (GLU variants,
                                         arXiv 2002.05202): a third linear layer `gate`, shaped as linear1 */
    bool norm_first;                  /* pre-norm: norms at the start of the branches, not after the sums */
    bool causal, no_bias;
    fl_nn_attention_opts attention;   /* of self_attn: n_kv_heads, window, rotary, ...; its dropout,
                                         causal, no_bias, dtype and rng are those of the layer */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_transformer_opts;
/* An encoder layer as nn.TransformerEncoderLayer(batch_first=True): x [n, t, dim] -> [n, t, dim],
     x = norm1(x + self_attn(x)),        x = norm2(x + linear2(activation(linear1(x)))), or
     x = x + self_attn(norm1(x)),        x = x + linear2(activation(linear1(norm2(x)))).
   With a mask as second input (see fl_nn_attention) the results are x and the mask, so that layers can be
   chained in a container. */
#define fl_nn_transformer(...) FL_NN__TRANSFORMER(__VA_ARGS__, ._end = 0)
#define FL_NN__TRANSFORMER(dim, heads, hidden, ...) \
    fl_nn_transformer_opt(dim, heads, hidden, FL_LITERAL(fl_nn_transformer_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_transformer_opt(int64_t dim, int64_t heads, int64_t hidden,
                                           fl_nn_transformer_opts o);
/* A decoder layer as nn.TransformerDecoderLayer(batch_first=True): x [n, t, dim], memory [n, s, dim] -> x,
     x = norm1(x + self_attn(x)),  x = norm2(x + multihead_attn(x, memory)),  x = norm3(x + ...),
   or with norm_first. PyTorch's tgt_mask is .causal or a third input, memory_mask a fourth input; fv_num(0)
   stands for no mask. The results are x and the other inputs. */
#define fl_nn_transformer_decoder(...) FL_NN__TRANSFORMER_DECODER(__VA_ARGS__, ._end = 0)
#define FL_NN__TRANSFORMER_DECODER(dim, heads, hidden, ...) \
    fl_nn_transformer_decoder_opt(dim, heads, hidden, FL_LITERAL(fl_nn_transformer_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_transformer_decoder_opt(int64_t dim, int64_t heads, int64_t hidden,
                                                   fl_nn_transformer_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_TRANSFORMER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_TRANSFORMER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_TRANSFORMER_IMPL
#define FL_NN_TRANSFORMER_IMPL
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include <inttypes.h>
#include <stdio.h>

typedef struct fl__nn_transformer {
    fl_var *(*activation)(fl_var *x); /* NULL: fused into linear1, or into gate */
    bool norm_first;
    /* Children, owned by the tree. cross is NULL in an encoder layer; gate and drop_path may be NULL. norm
       and drop are those of the branches, in order. */
    fl_nn_module *attention, *cross, *up, *gate, *down, *norm[3], *dropout, *drop[3], *drop_path;
} fl__nn_transformer;

static fl_var *fl__nn_hidden_branch(const fl__nn_transformer *t, fl_var *x) {
    fl_var *up = fl_nn_forward(t->up, x), *hidden = t->gate ? fl_nn_forward(t->gate, x) : up;
    if (hidden && t->activation) hidden = t->activation(hidden);
    if (t->gate) hidden = fv_mul(hidden, up);
    return fl_nn_forward(t->down, fl_nn_forward(t->dropout, hidden));
}

/* Branch i of x: self-attention, cross-attention to the memory (in), or the feed-forward branch. */
static fl_var *fl__nn_branch(const fl__nn_transformer *t, int i, fl_var *x, const fl_vars *in) {
    const bool cross = t->cross && i == 1;
    fl_var *mask = in->n > (t->cross ? 2 + cross : 1) ? in->v[t->cross ? 2 + cross : 1] : NULL;
    if (cross)
        return fl_nn_forward_vars(t->cross, (fl_vars){mask ? 4 : 3, {x, in->v[1], in->v[1], mask}}).v[0];
    if (i == 0) return fl_nn_forward_vars(t->attention, (fl_vars){mask ? 2 : 1, {x, mask}}).v[0];
    return fl__nn_hidden_branch(t, x);
}

static fl_vars fl__nn_transformer_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_transformer *t = m->data;
    const int least = t->cross ? 2 : 1, most = t->cross ? 4 : 2, branches = t->cross ? 3 : 2;
    if (in.n < least || in.n > most) return fl_nn_fail(m, "got %d inputs, expected %d to %d", in.n, least,
                                                       most);
    fl_vars out = in;
    fl_var *x = in.v[0], *y = t->norm_first ? fl_nn_forward(t->norm[0], x) : x; /* residual, its norm */
    for (int i = 0; i < branches; i++) {
        fl_nn_module *norm = !t->norm_first ? t->norm[i] : i + 1 < branches ? t->norm[i + 1] : NULL;
        y = fl_nn_add_norm(norm, t->drop[i], t->drop_path, fl__nn_branch(t, i, y, &in), &x);
        if (!t->norm_first) x = y;
    }
    out.v[0] = y;
    return out;
}

static void fl__nn_transformer_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "norm_first=%s",
             ((fl__nn_transformer *)m->data)->norm_first ? "True" : "False");
}

static const fl_nn_type fl__nn_encoder_type = {
    .name = "TransformerEncoderLayer",
    .maker = "fl_nn_transformer",
    .forward = fl__nn_transformer_forward,
    .describe = fl__nn_transformer_describe,
};
static const fl_nn_type fl__nn_decoder_type = {
    .name = "TransformerDecoderLayer",
    .maker = "fl_nn_transformer_decoder",
    .forward = fl__nn_transformer_forward,
    .describe = fl__nn_transformer_describe,
};

/* Adds the child and stores its pointer in *at; false after an error. */
static bool fl__nn_add_part(fl_nn_module *m, const char *name, fl_nn_module *child, fl_nn_module **at) {
    return (*at = fl_nn_add(m, name, child)) != NULL;
}

static fl_nn_module *fl__nn_ffn_linear(int64_t in, int64_t out, fl_op act,
                                       const fl_nn_transformer_opts *o) {
    return fl_nn_linear(in, out, .act = act, .no_bias = o->no_bias, .dtype = o->dtype,
                        .rng = o->rng);
}

static fl_nn_module *fl__nn_block_norm(int64_t dim, const fl_nn_transformer_opts *o) {
    if (o->rms) return fl_nn_rms_norm(FL_SHAPE(dim), .eps = o->eps ? o->eps : 1e-5, .dtype = o->dtype);
    return fl_nn_layer_norm(FL_SHAPE(dim), .eps = o->eps, .no_bias = o->no_bias, .dtype = o->dtype);
}

/* Adds the children in the order of PyTorch's layers; stops at the first error. */
static bool fl__nn_transformer_fill(fl_nn_module *m, int64_t dim, int64_t heads, int64_t hidden,
                                    const fl_nn_transformer_opts *o) {
    static const char *const norms[] = {"norm1", "norm2", "norm3"};
    static const char *const drops[] = {"dropout1", "dropout2", "dropout3"};
    fl__nn_transformer *t = m->data;
    const bool decoder = m->type == &fl__nn_decoder_type;
    const int branches = decoder ? 3 : 2;
    const fl_op act = fv_linear_act_of(t->activation);
    if (act) t->activation = NULL;
    fl_nn_attention_opts self = o->attention;
    self.dropout = o->dropout, self.causal = o->causal, self.no_bias = o->no_bias;
    self.dtype = o->dtype, self.rng = o->rng;
    const fl_nn_attention_opts cross = {.cross = true, .n_kv_heads = self.n_kv_heads, .dropout = o->dropout,
                                        .no_bias = o->no_bias, .dtype = o->dtype, .rng = o->rng};
    bool ok = fl__nn_add_part(m, "self_attn", fl_nn_attention_opt(dim, heads, self), &t->attention) &&
              (!decoder ||
               fl__nn_add_part(m, "multihead_attn", fl_nn_attention_opt(dim, heads, cross), &t->cross)) &&
              fl__nn_add_part(m, "linear1", fl__nn_ffn_linear(dim, hidden, o->gated ? FL_OP_NONE : act, o),
                              &t->up) &&
              (!o->gated || fl__nn_add_part(m, "gate", fl__nn_ffn_linear(dim, hidden, act, o), &t->gate)) &&
              fl__nn_add_part(m, "dropout", fl_nn_dropout(o->dropout), &t->dropout) &&
              fl__nn_add_part(m, "linear2", fl__nn_ffn_linear(hidden, dim, FL_OP_NONE, o), &t->down);
    for (int i = 0; ok && i < branches; i++)
        ok = fl__nn_add_part(m, norms[i], fl__nn_block_norm(dim, o), &t->norm[i]);
    for (int i = 0; ok && i < branches; i++)
        ok = fl__nn_add_part(m, drops[i], fl_nn_dropout(o->dropout), &t->drop[i]);
    return ok && (o->drop_path == 0 ||
                  fl__nn_add_part(m, "drop_path", fl_nn_drop_path(o->drop_path), &t->drop_path));
}

static fl_nn_module *fl__nn_transformer_new(const fl_nn_type *type, int64_t dim, int64_t heads,
                                            int64_t hidden, const fl_nn_transformer_opts *o) {
    const fl__nn_transformer t = {.activation = o->activation ? o->activation : fv_relu,
                                  .norm_first = o->norm_first};
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(type, &t, sizeof t);
    return fl_nn_finish(m, m && fl__nn_transformer_fill(m, dim, heads, hidden, o));
}

FL_API fl_nn_module *fl_nn_transformer_opt(int64_t dim, int64_t heads, int64_t hidden,
                                           fl_nn_transformer_opts o) {
    return fl__nn_transformer_new(&fl__nn_encoder_type, dim, heads, hidden, &o);
}

FL_API fl_nn_module *fl_nn_transformer_decoder_opt(int64_t dim, int64_t heads, int64_t hidden,
                                                   fl_nn_transformer_opts o) {
    return fl__nn_transformer_new(&fl__nn_decoder_type, dim, heads, hidden, &o);
}

#endif
#endif

/* MIT licence: see LICENSE. */
