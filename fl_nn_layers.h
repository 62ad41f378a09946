/* fl_nn_layers.h - the second room of fl_nn.h: layers for sequences, attention, transformers, large
   vocabularies and capsules

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_nn_layers.h"
    int main(void) {
        fl_nn_module *layers = fl_nn_layer_drop(0.1); // skips one layer in ten
        for (int i = 0; i < 2; i++)
            fl_nn_add(layers, NULL, fl_nn_transformer(16, 4, 64, .causal = true));
        fl_nn_module *net = fl_nn_sequential(fl_nn_embedding(100, 16), fl_nn_position(32, 16),
                                             layers, fl_nn_linear(16, 100));
        fl_scope s = fl_scope_begin();
        fl_tensor *words = fl_randint(FL_SHAPE(2, 9), 0, 100, NULL);
        fl_var *y = fl_nn_forward(net, fv_const(words)); // [2, 9, 100]
        fl_backward(fl_nn_cross_entropy(fv_reshape(y, FL_SHAPE(18, 100)),
                                        fl_reshape(words, FL_SHAPE(18))));
        fl_print(fv_grad(fl_nn_get_param(net, "3.bias")));
        fl_scope_end(&s);
        fl_nn_free(net);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>sequences >>norms >>embeddings >>attention >>transformers >>vocabularies >>capsules >>ctc
     >>implementation

   Names of parameters are PyTorch's. A sequence is [n, t, dim]: batch, steps, features; t is free
   unless a layer learns something for each step. Indices come as constants, fv_const of i64. */
#include "fl_nn.h"
#ifndef FL_NN_LAYERS_H
#define FL_NN_LAYERS_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>sequences ---------------------------------------------------------------------------------- */

typedef struct fl_nn_conv1d_opts {
    char _;
    int64_t stride;   /* 0 -> 1 */
    int64_t pad;      /* zeros on both sides, or FL_SAME */
    int64_t dilation; /* 0 -> 1 */
    int64_t groups;   /* 0 -> 1 */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_conv1d_opts;
/* x [n, in, t] -> [n, out, t'] as fl_conv; weight [out, in / groups, kernel] and bias [out] are
   uniform within 1 / sqrt(in / groups * kernel) of 0. */
#define fl_nn_conv1d(...) FL_NN__CONV1D(__VA_ARGS__, ._ = 0)
#define FL_NN__CONV1D(in, out, kernel, ...) \
    fl_nn_conv1d_opt(in, out, kernel, (fl_nn_conv1d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_conv1d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv1d_opts o);

/* x [n, c, h', w'] -> [n, c, h, w]: means over windows that part the image evenly. */
FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w);
/* a sigmoid(b) of the halves a, b of x along axis. */
FL_API fl_nn_module *fl_nn_glu(int axis);
/* x with axis a and axis b swapped. */
FL_API fl_nn_module *fl_nn_transpose(int a, int b);

typedef struct fl_nn_layer_drop_opts {
    char _;
    fl_rng *rng; /* NULL: the process's; must outlive the layer */
} fl_nn_layer_drop_opts;
/* A sequence of the children that fl_nn_add gives it, each of which maps its inputs to the same
   shapes: in training each is left out, so is the identity, with probability p (arXiv
   1909.11556). */
#define fl_nn_layer_drop(...) FL_NN__LAYER_DROP(__VA_ARGS__, ._ = 0)
#define FL_NN__LAYER_DROP(p, ...) fl_nn_layer_drop_opt(p, (fl_nn_layer_drop_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_layer_drop_opt(double p, fl_nn_layer_drop_opts o);
/* In training each x[i] of x [n, ...] is 0 with probability p, else x[i] / (1 - p): the branch of a
   residual that is left out for a sample at a time (arXiv 1603.09382). */
#define fl_nn_drop_path(...) FL_NN__DROP_PATH(__VA_ARGS__, ._ = 0)
#define FL_NN__DROP_PATH(p, ...) fl_nn_drop_path_opt(p, (fl_nn_dropout_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_drop_path_opt(double p, fl_nn_dropout_opts o);

/* >>norms -------------------------------------------------------------------------------------- */

/* y = x / sqrt(mean(x^2) + eps) * weight over the last dims of x, which are `shape`. no_bias counts
   for nothing. */
#define fl_nn_rms_norm(...) FL_NN__RMS_NORM(__VA_ARGS__, ._ = 0)
#define FL_NN__RMS_NORM(shape, ...) fl_nn_rms_norm_opt(shape, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);
/* A layer norm over groups of channels of x [n, channels, ...]; weight and bias [channels]. */
#define fl_nn_group_norm(...) FL_NN__GROUP_NORM(__VA_ARGS__, ._ = 0)
#define FL_NN__GROUP_NORM(groups, channels, ...) \
    fl_nn_group_norm_opt(groups, channels, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o);

/* >>embeddings --------------------------------------------------------------------------------- */

typedef struct fl_nn_embedding_opts {
    char _;
    double std;      /* of the initial weight, 0 -> 1 */
    int64_t padding; /* index whose row is zero and stays so; 0 -> none, FL_I0 -> 0 */
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_embedding_opts;
/* Indices [...] -> rows [..., dim] of weight [n, dim], normal numbers at first. */
#define fl_nn_embedding(...) FL_NN__EMBEDDING(__VA_ARGS__, ._ = 0)
#define FL_NN__EMBEDDING(n, dim, ...) \
    fl_nn_embedding_opt(n, dim, (fl_nn_embedding_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_embedding_opt(int64_t n, int64_t dim, fl_nn_embedding_opts o);

typedef struct fl_nn_position_opts {
    char _;
    double std; /* of the initial weight, 0 -> 0.02 */
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_position_opts;
/* y = x + weight[:t]: x [n, t, dim], weight [steps, dim] learned, t <= steps. */
#define fl_nn_position(...) FL_NN__POSITION(__VA_ARGS__, ._ = 0)
#define FL_NN__POSITION(steps, dim, ...) \
    fl_nn_position_opt(steps, dim, (fl_nn_position_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_position_opt(int64_t steps, int64_t dim, fl_nn_position_opts o);
/* y = scale x + p, scale 0 -> 1: p[t, 2 i] = sin(t w), p[t, 2 i + 1] = cos(t w), with
   w = 10000^(-2 i / dim); x [n, t, dim] (arXiv 1706.03762). */
FL_API fl_nn_module *fl_nn_sinusoid(int64_t dim, double scale);

/* >>attention ---------------------------------------------------------------------------------- */

typedef struct fl_nn_attention_opts {
    char _;
    double dropout; /* of the weights that the softmax gives */
    bool causal;    /* step i sees steps 0 to i */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
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
#define fl_nn_attention(...) FL_NN__ATTENTION(__VA_ARGS__, ._ = 0)
#define FL_NN__ATTENTION(dim, heads, ...) \
    fl_nn_attention_opt(dim, heads, (fl_nn_attention_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o);

/* >>transformers ------------------------------------------------------------------------------- */

typedef struct fl_nn_transformer_opts {
    char _;
    double dropout;                   /* of attention weights, the hidden layer and both branches */
    double drop_path;                 /* of both branches, see fl_nn_drop_path */
    double eps;                       /* of the norms, 0 -> 1e-5 */
    fl_var *(*activation)(fl_var *x); /* NULL -> fv_relu */
    bool norm_first;                  /* norms at the start of the branches, not after the sums */
    bool causal, no_bias;
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_transformer_opts;
/* One layer, as nn.TransformerEncoderLayer(batch_first=True): x [n, t, dim] -> the same,
     x = norm1(x + self_attn(x)),        x = norm2(x + linear2(activation(linear1(x)))), or
     x = x + self_attn(norm1(x)),        x = x + linear2(activation(linear1(norm2(x)))).
   With a mask as second input (see fl_nn_attention) the results are x and the mask, so that layers
   follow each other in a container. */
#define fl_nn_transformer(...) FL_NN__TRANSFORMER(__VA_ARGS__, ._ = 0)
#define FL_NN__TRANSFORMER(dim, heads, hidden, ...) \
    fl_nn_transformer_opt(dim, heads, hidden, (fl_nn_transformer_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_transformer_opt(int64_t dim, int64_t heads, int64_t hidden,
                                           fl_nn_transformer_opts o);

/* >>vocabularies ------------------------------------------------------------------------------- */

/* Large vocabularies, most frequent words first, cut at 0 < cutoffs[0] < ... < cutoffs[n - 1], the
   number of words; each next part works in `divide` (0 -> 4) times fewer dims (arXiv 1609.04309).
   At most 8 parts. */
typedef struct fl_nn_adaptive_opts {
    char _;
    int64_t divide;
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_adaptive_opts;
/* Words [...] -> [..., dim]: embeddings.i.0 is the table of part i, embeddings.i.1 a linear layer
   without bias from its dims to dim, as in fairseq. */
#define fl_nn_adaptive_embedding(...) FL_NN__ADAPTIVE_EMBEDDING(__VA_ARGS__, ._ = 0)
#define FL_NN__ADAPTIVE_EMBEDDING(dim, cutoffs, ...) \
    fl_nn_adaptive_embedding_opt(dim, cutoffs, (fl_nn_adaptive_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_adaptive_embedding_opt(int64_t dim, fl_shape cutoffs,
                                                  fl_nn_adaptive_opts o);
/* x [k, dim], words [k] -> log P(word | x) [k], as nn.AdaptiveLogSoftmaxWithLoss: `head` is a
   linear layer to the first part's words and a class for each other part, tail.i two linear layers
   to the words of such a part. Waits for the words. */
#define fl_nn_adaptive_softmax(...) FL_NN__ADAPTIVE_SOFTMAX(__VA_ARGS__, ._ = 0)
#define FL_NN__ADAPTIVE_SOFTMAX(dim, cutoffs, ...) \
    fl_nn_adaptive_softmax_opt(dim, cutoffs, (fl_nn_adaptive_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_adaptive_softmax_opt(int64_t dim, fl_shape cutoffs,
                                                fl_nn_adaptive_opts o);

/* >>capsules ----------------------------------------------------------------------------------- */

/* x |x| / (1 + x^2) along the last axis: the direction stays, the length comes into [0, 1). */
FL_API fl_var *fl_nn_squash(fl_var *x);
typedef struct fl_nn_capsules_opts {
    char _;
    int64_t rounds; /* of routing, 0 -> 3 */
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_capsules_opts;
/* Capsules by dynamic routing (arXiv 1710.09829): x [n, in, in_dim] -> [n, out, out_dim]. Each
   input capsule i predicts u_ij = W_ij x_i, weight [in, out, out_dim, in_dim], normal of deviation
   0.01. Starting with b = 0, each round weighs them by c = softmax(b) over j, v_j = squash(sum_i
   c_ij u_ij), and adds u_ij . v_j to b_ij. */
#define fl_nn_capsules(...) FL_NN__CAPSULES(__VA_ARGS__, ._ = 0)
#define FL_NN__CAPSULES(in, in_dim, out, out_dim, ...) \
    fl_nn_capsules_opt(in, in_dim, out, out_dim, (fl_nn_capsules_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_capsules_opt(int64_t in, int64_t in_dim, int64_t out, int64_t out_dim,
                                        fl_nn_capsules_opts o);

/* >>ctc ---------------------------------------------------------------------------------------- */

/* fl_ctc_loss of the log softmax of logits [n, t, c]. target i64 [n, l]; steps and lengths i64 [n]:
   of each sequence the steps and the target's length. */
#define fl_nn_ctc(...) FL_NN__CTC(__VA_ARGS__, ._ = 0)
#define FL_NN__CTC(logits, target, steps, lengths, ...) \
    fl_nn_ctc_opt(logits, target, steps, lengths, (fl_ctc_loss_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_ctc_opt(fl_var *logits, fl_tensor *target, fl_tensor *steps,
                             fl_tensor *lengths, fl_ctc_loss_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_LAYERS_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_NN_LAYERS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_LAYERS_IMPL
#define FL_NN_LAYERS_IMPL
#include "fl/ops/index.h"
#include "fl/ops/linear.h"
#include "fl/ops/order.h"
#include "fl/ops/reduce.h"
#include "fl/ops/softmax.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* sequences */

typedef struct fl__nn_conv1d {
    int64_t in, out, kernel;
    fl_conv_opts opts;
} fl__nn_conv1d;

static fl_vars fl__nn_conv1d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_conv1d *c = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 3 || x->shape[1] != c->in) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", t]", fl__nn_shape(in.v[0], text),
                          c->in);
    }
    return FL_VARS(fv_conv_opt(in.v[0], fl__nn_param(m, 0), fl__nn_param(m, 1), c->opts));
}

static void fl__nn_conv1d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_conv1d *c = m->data;
    char pad[32];
    snprintf(pad, sizeof pad, "%" PRId64, c->opts.pad[0]);
    snprintf(buf, size,
             "%" PRId64 ", %" PRId64 ", kernel_size=(%" PRId64 ",), stride=(%" PRId64
             ",), padding=%s%s",
             c->in, c->out, c->kernel, fl_option_int(c->opts.stride[0], 1),
             c->opts.pad[0] == FL_SAME ? "same" : pad, fl__nn_param(m, 1) ? "" : ", bias=False");
}

static const fl_nn_type fl__nn_conv1d_type = {
    .name = "Conv1d",
    .maker = "fl_nn_conv1d",
    .inputs = 1,
    .forward = fl__nn_conv1d_forward,
    .describe = fl__nn_conv1d_describe,
};

FL_API fl_nn_module *fl_nn_conv1d_opt(int64_t in, int64_t out, int64_t kernel,
                                      fl_nn_conv1d_opts o) {
    const int64_t groups = fl_option_int(o.groups, 1);
    const fl__nn_conv1d c = {
        in,
        out,
        kernel,
        {.stride = {o.stride}, .dilation = {o.dilation}, .pad = {o.pad}, .groups = o.groups}};
    if (in < 1 || out < 1 || kernel < 1 || o.stride < 0 || o.dilation < 0 || groups < 1 ||
        in % groups || out % groups) {
        fl_fail("fl_nn_conv1d: in %" PRId64 ", out %" PRId64 ", kernel %" PRId64 ", stride %" PRId64
                ", dilation %" PRId64 ": must be positive; groups %" PRId64
                " must divide in and out",
                in, out, kernel, o.stride, o.dilation, groups);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_conv1d", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_conv1d_type, &c, sizeof c);
    return fl__nn_weighted(m, FL_SHAPE(out, in / groups, kernel), o.no_bias, o.dtype, o.rng);
}

static fl_vars fl__nn_adaptive_pool_forward(fl_nn_module *m, fl_vars in) {
    if (fv_value(in.v[0])->ndim != 4) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, c, h, w]", fl__nn_shape(in.v[0], text));
    }
    return FL_VARS(fv_adaptive_avg_pool(in.v[0], *(const fl_shape *)m->data));
}

static void fl__nn_adaptive_pool_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl_shape *s = m->data;
    snprintf(buf, size, "output_size=(%" PRId64 ", %" PRId64 ")", s->dim[0], s->dim[1]);
}

static const fl_nn_type fl__nn_adaptive_pool_type = {
    .name = "AdaptiveAvgPool2d",
    .maker = "fl_nn_adaptive_avg_pool2d",
    .inputs = 1,
    .forward = fl__nn_adaptive_pool_forward,
    .describe = fl__nn_adaptive_pool_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_avg_pool2d(int64_t h, int64_t w) {
    const fl_shape size = {2, {h, w}};
    if (h < 1 || w < 1) {
        fl_fail("fl_nn_adaptive_avg_pool2d: size [%" PRId64 ", %" PRId64 "]: must be positive", h,
                w);
        return fl_raise();
    }
    return fl_nn_new(&fl__nn_adaptive_pool_type, &size, sizeof size);
}

typedef struct fl__nn_axes {
    int a, b;
} fl__nn_axes;

/* Both are axes of x; else fails. */
static bool fl__nn_axes_ok(const fl_nn_module *m, fl_var *x, int a, int b) {
    const int ndim = fv_value(x)->ndim;
    char text[FL__NN_SHAPE];
    if (a >= -ndim && a < ndim && b >= -ndim && b < ndim) return true;
    fl_nn_fail(m, "axis %d, input %s", a >= -ndim && a < ndim ? b : a, fl__nn_shape(x, text));
    return false;
}

static fl_vars fl__nn_glu_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_axes *a = m->data;
    if (!fl__nn_axes_ok(m, in.v[0], a->a, a->a)) return (fl_vars){0};
    return FL_VARS(fv_glu(in.v[0], a->a));
}

static void fl__nn_glu_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "dim=%d", ((const fl__nn_axes *)m->data)->a);
}

static const fl_nn_type fl__nn_glu_type = {
    .name = "GLU",
    .maker = "fl_nn_glu",
    .inputs = 1,
    .forward = fl__nn_glu_forward,
    .describe = fl__nn_glu_describe,
};

FL_API fl_nn_module *fl_nn_glu(int axis) {
    const fl__nn_axes a = {axis, axis};
    return fl_nn_new(&fl__nn_glu_type, &a, sizeof a);
}

static fl_vars fl__nn_transpose_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_axes *a = m->data;
    if (!fl__nn_axes_ok(m, in.v[0], a->a, a->b)) return (fl_vars){0};
    return FL_VARS(fv_transpose(in.v[0], a->a, a->b));
}

static void fl__nn_transpose_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_axes *a = m->data;
    snprintf(buf, size, "%d, %d", a->a, a->b);
}

static const fl_nn_type fl__nn_transpose_type = {
    .name = "Transpose",
    .maker = "fl_nn_transpose",
    .inputs = 1,
    .forward = fl__nn_transpose_forward,
    .describe = fl__nn_transpose_describe,
};

FL_API fl_nn_module *fl_nn_transpose(int a, int b) {
    const fl__nn_axes axes = {a, b};
    return fl_nn_new(&fl__nn_transpose_type, &axes, sizeof axes);
}

typedef struct fl__nn_drop {
    double p;
    fl_rng *rng;
} fl__nn_drop;

static void fl__nn_drop_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "p=%g", ((const fl__nn_drop *)m->data)->p);
}

/* A module of that type, with probability p. */
static fl_nn_module *fl__nn_drop_new(const fl_nn_type *type, double p, fl_rng *rng) {
    const fl__nn_drop d = {p, rng};
    if (!(p >= 0 && p <= 1)) {
        fl_fail("%s: p is %g, must be in [0, 1]", type->maker, p);
        return fl_raise();
    }
    return fl_nn_new(type, &d, sizeof d);
}

/* One uniform number of the host in [0, 1); NaN after an error. */
static double fl__nn_draw(fl_rng *rng) {
    fl_scope s = fl_scope_begin();
    fl_tensor *u = fl_uniform(FL_SCALAR_SHAPE, 0, 1, FL_F32, rng);
    const double value = u ? fl_item(u) : NAN;
    fl_scope_end(&s);
    return value;
}

static fl_vars fl__nn_layer_drop_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_drop *d = m->data;
    for (int64_t i = 0; i < m->n_child && in.n; i++) {
        const double u = m->train && d->p > 0 ? fl__nn_draw(d->rng) : 1;
        if (isnan(u)) return (fl_vars){0};
        if (u >= d->p) in = fl_nn_forward_vars(m->child[i], in);
    }
    return in;
}

static const fl_nn_type fl__nn_layer_drop_type = {
    .name = "LayerDrop",
    .maker = "fl_nn_layer_drop",
    .forward = fl__nn_layer_drop_forward,
    .describe = fl__nn_drop_describe,
};

FL_API fl_nn_module *fl_nn_layer_drop_opt(double p, fl_nn_layer_drop_opts o) {
    return fl__nn_drop_new(&fl__nn_layer_drop_type, p, o.rng);
}

static fl_vars fl__nn_drop_path_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_drop *d = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (!m->train || d->p == 0 || !x->ndim) return in;
    fl_shape each = fl_shape_of(x);
    for (int i = 1; i < each.ndim; i++) each.dim[i] = 1;
    fl_tensor *share = fl_dropout(fl_ones(each, x->dtype), d->p, d->rng);
    return FL_VARS(fv_mul(in.v[0], fv_const(share)));
}

static const fl_nn_type fl__nn_drop_path_type = {
    .name = "DropPath",
    .maker = "fl_nn_drop_path",
    .inputs = 1,
    .forward = fl__nn_drop_path_forward,
    .describe = fl__nn_drop_describe,
};

FL_API fl_nn_module *fl_nn_drop_path_opt(double p, fl_nn_dropout_opts o) {
    return fl__nn_drop_new(&fl__nn_drop_path_type, p, o.rng);
}

/* norms */

typedef struct fl__nn_norm {
    fl_shape shape; /* of the weight */
    int64_t groups;
    double eps;
} fl__nn_norm;

static fl_vars fl__nn_rms_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    if (!fl__nn_trailing(fv_value(in.v[0]), &l->shape)) {
        char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s does not end in %s", fl__nn_shape(in.v[0], a),
                          fl_shape_text(l->shape, b, sizeof b));
    }
    return FL_VARS(fv_rms_norm(in.v[0], l->shape.ndim, fl__nn_param(m, 0), l->eps));
}

static void fl__nn_rms_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    char shape[FL__NN_SHAPE];
    fl__nn_describe_shape(&l->shape, shape, sizeof shape);
    snprintf(buf, size, "%s, eps=%g, elementwise_affine=%s", shape, l->eps,
             m->n_param ? "True" : "False");
}

static const fl_nn_type fl__nn_rms_norm_type = {
    .name = "RMSNorm",
    .maker = "fl_nn_rms_norm",
    .inputs = 1,
    .forward = fl__nn_rms_norm_forward,
    .describe = fl__nn_rms_norm_describe,
};

static fl_vars fl__nn_group_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_norm *l = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim < 2 || x->shape[1] != l->shape.dim[0]) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", ...]", fl__nn_shape(in.v[0], text),
                          l->shape.dim[0]);
    }
    return FL_VARS(
        fv_group_norm(in.v[0], l->groups, fl__nn_param(m, 0), fl__nn_param(m, 1), l->eps));
}

static void fl__nn_group_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_norm *l = m->data;
    snprintf(buf, size, "%" PRId64 ", %" PRId64 ", eps=%g, affine=%s", l->groups, l->shape.dim[0],
             l->eps, m->n_param ? "True" : "False");
}

static const fl_nn_type fl__nn_group_norm_type = {
    .name = "GroupNorm",
    .maker = "fl_nn_group_norm",
    .inputs = 1,
    .forward = fl__nn_group_norm_forward,
    .describe = fl__nn_group_norm_describe,
};

/* A norm of that type with weight one, and bias zero unless the type has none. */
static fl_nn_module *fl__nn_norm_new(const fl_nn_type *type, const fl__nn_norm *l,
                                     fl_nn_layer_norm_opts o) {
    const fl_shape s = l->shape;
    if (s.ndim < 1 || s.ndim > FL_MAX_DIMS || fl_shape_numel(s) < 1 || !(l->eps >= 0)) {
        char text[FL__NN_SHAPE];
        fl_fail("%s: shape %s, eps %g", type->maker, fl_shape_text(s, text, sizeof text), l->eps);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok(type->maker, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(type, l, sizeof *l);
    const bool ok = m && (o.no_affine || fl__nn_add_affine(m, s, o.no_bias, o.dtype));
    fl_scope_end(&scope);
    return fl__nn_made(m, ok);
}

FL_API fl_nn_module *fl_nn_rms_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    const fl__nn_norm l = {shape, 1, fl_option(o.eps, 1e-5)};
    o.no_bias = true;
    return fl__nn_norm_new(&fl__nn_rms_norm_type, &l, o);
}

FL_API fl_nn_module *fl_nn_group_norm_opt(int64_t groups, int64_t channels,
                                          fl_nn_layer_norm_opts o) {
    const fl__nn_norm l = {FL_SHAPE(channels), groups, fl_option(o.eps, 1e-5)};
    if (groups < 1 || channels < 1 || channels % groups) {
        fl_fail("fl_nn_group_norm: %" PRId64 " groups of %" PRId64 " channels", groups, channels);
        return fl_raise();
    }
    return fl__nn_norm_new(&fl__nn_group_norm_type, &l, o);
}

/* embeddings */

typedef struct fl__nn_embedding {
    int64_t n, dim, padding;
} fl__nn_embedding;

static fl_vars fl__nn_embedding_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_embedding *e = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->dtype != FL_I64) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s %s, wants i64", fl_dtype_name(x->dtype),
                          fl__nn_shape(in.v[0], text));
    }
    return FL_VARS(fv_embedding(fv_value(in.v[0]), fl__nn_param(m, 0), e->padding));
}

static void fl__nn_embedding_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_embedding *e = m->data;
    const int n = snprintf(buf, size, "%" PRId64 ", %" PRId64, e->n, e->dim);
    if (e->padding >= 0 && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, ", padding_idx=%" PRId64, e->padding);
}

static const fl_nn_type fl__nn_embedding_type = {
    .name = "Embedding",
    .maker = "fl_nn_embedding",
    .inputs = 1,
    .forward = fl__nn_embedding_forward,
    .describe = fl__nn_embedding_describe,
};

/* Normal numbers; the row padding, if it is one, is zero. */
static fl_tensor *fl__nn_table(const fl__nn_embedding *e, double std, fl_dtype dtype, fl_rng *rng) {
    fl_tensor *w = fl_normal(FL_SHAPE(e->n, e->dim), 0, std, dtype, rng);
    fl_tensor *row = w && e->padding >= 0 ? fl_select(w, 0, e->padding) : NULL;
    return !row || fl_assign(row, fl_num(0)) ? w : NULL;
}

FL_API fl_nn_module *fl_nn_embedding_opt(int64_t n, int64_t dim, fl_nn_embedding_opts o) {
    const fl__nn_embedding e = {n, dim, fl_option_int(o.padding, -1)};
    if (n < 1 || dim < 1 || e.padding < -1 || e.padding >= n) {
        fl_fail("fl_nn_embedding: %" PRId64 " rows of %" PRId64 ", padding %" PRId64, n, dim,
                e.padding);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_embedding", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_embedding_type, &e, sizeof e);
    fl_tensor *w = m ? fl__nn_table(&e, fl_option(o.std, 1), o.dtype, o.rng) : NULL;
    const bool ok = w && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

/* x is [n, t, dim] with t <= steps; else fails. */
static bool fl__nn_sequence_ok(const fl_nn_module *m, fl_var *x, int64_t dim, int64_t steps) {
    const fl_tensor *t = fv_value(x);
    if (t->ndim == 3 && t->shape[2] == dim && t->shape[1] <= steps) return true;
    char text[FL__NN_SHAPE], most[40] = "";
    if (steps != INT64_MAX) snprintf(most, sizeof most, " of at most %" PRId64 " steps", steps);
    fl_nn_fail(m, "input %s, wants [n, t, %" PRId64 "]%s", fl__nn_shape(x, text), dim, most);
    return false;
}

static fl_vars fl__nn_position_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_embedding *e = m->data;
    if (!fl__nn_sequence_ok(m, in.v[0], e->dim, e->n)) return (fl_vars){0};
    fl_var *w = fl__nn_param(m, 0);
    return FL_VARS(fv_add(in.v[0], fv_slice(w, 0, 0, fv_value(in.v[0])->shape[1], 1)));
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
    if (steps < 1 || dim < 1) {
        fl_fail("fl_nn_position: %" PRId64 " steps of %" PRId64, steps, dim);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_position", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_position_type, &e, sizeof e);
    fl_tensor *w = m ? fl__nn_table(&e, fl_option(o.std, 0.02), o.dtype, o.rng) : NULL;
    const bool ok = w && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

typedef struct fl__nn_sinusoid {
    int64_t dim;
    double scale;
} fl__nn_sinusoid;

/* p [t, dim], in f64: a phase of pi / 2 makes a sine a cosine. */
static fl_tensor *fl__nn_waves(int64_t t, int64_t dim) {
    fl_tensor *at = fl_unsqueeze(fl_arange(0, (double)t, 1, FL_F64), 1);
    fl_tensor *i = fl_arange(0, (double)dim, 1, FL_F64);
    fl_tensor *odd = fl_remainder(i, fl_num(2));
    fl_tensor *w = fl_exp(fl_mul(fl_sub(i, odd), fl_num(-log(10000) / (double)dim)));
    return fl_sin(fl_add(fl_mul(at, w), fl_mul(odd, fl_num(acos(-1) / 2))));
}

static fl_vars fl__nn_sinusoid_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_sinusoid *p = m->data;
    fl_var *x = in.v[0];
    if (!fl__nn_sequence_ok(m, x, p->dim, INT64_MAX)) return (fl_vars){0};
    const fl_tensor *t = fv_value(x);
    fl_tensor *waves = fl__nn_waves(t->shape[1], p->dim);
    waves = waves ? fl_to(fl_cast(waves, t->dtype), fl_family_name(t)) : NULL;
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
    if (dim < 1) {
        fl_fail("fl_nn_sinusoid: dim %" PRId64 ": must be positive", dim);
        return fl_raise();
    }
    return fl_nn_new(&fl__nn_sinusoid_type, &p, sizeof p);
}

/* attention */

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
    fl_var *y = fv_linear(x, fl__nn_param(m, FL__NN_IN_WEIGHT), fl__nn_param(m, FL__NN_IN_BIAS));
    return fv_permute(fv_reshape(y, parts), 5, parts_first);
}

/* Of three inputs, each by its third of the weight. */
static void fl__nn_project_each(fl_nn_module *m, const fl_vars *in, fl_var *qkv[3]) {
    const fl__nn_attention *a = m->data;
    fl_var *w = fl__nn_param(m, FL__NN_IN_WEIGHT), *b = fl__nn_param(m, FL__NN_IN_BIAS);
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
        if (!fl__nn_sequence_ok(m, in->v[i], a->dim, INT64_MAX)) return false;
    if (in->n < 3) return true;
    const int64_t *q = fv_value(in->v[0])->shape, *k = fv_value(in->v[1])->shape;
    const int64_t *v = fv_value(in->v[2])->shape;
    if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1]) return true;
    char x[FL__NN_SHAPE], y[FL__NN_SHAPE], z[FL__NN_SHAPE];
    fl_nn_fail(m, "q %s, k %s, v %s do not fit", fl__nn_shape(in->v[0], x),
               fl__nn_shape(in->v[1], y), fl__nn_shape(in->v[2], z));
    return false;
}

static fl_vars fl__nn_attention_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_attention *a = m->data;
    if (!fl__nn_attention_ok(m, &in)) return (fl_vars){0};
    fl_var *qkv[3], *y, *mask = in.n == 2 ? in.v[1] : in.n == 4 ? in.v[3] : NULL;
    const fl_attention_opts o = {.causal = a->causal, .dropout = m->train ? a->dropout : 0};
    if (in.n < 3) {
        qkv[0] = fl__nn_project_self(m, in.v[0]);
        y = qkv[0] ? fv_attention_packed(qkv[0], mask, o) : NULL;
    } else {
        fl__nn_project_each(m, &in, qkv);
        if (!qkv[0] || !qkv[1] || !qkv[2]) return (fl_vars){0};
        y = fv_attention_opt(qkv[0], qkv[1], qkv[2], mask, o);
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
    return out && (o->no_bias || fl_nn_constant_(fl_nn_get_param(out, "bias"), 0));
}

FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o) {
    const fl__nn_attention a = {dim, heads, o.dropout, o.causal};
    if (dim < 1 || dim > INT32_MAX || heads < 1 || dim % heads ||
        !(o.dropout >= 0 && o.dropout <= 1)) {
        fl_fail("fl_nn_attention: %" PRId64 " heads of dim %" PRId64 ", dropout %g", heads, dim,
                o.dropout);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_attention", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_attention_type, &a, sizeof a);
    const bool ok = m && fl__nn_attention_fill(m, dim, &o);
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

/* transformers */

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
    fl_op act = fv_linear_act_of(t->activation);
    if (act == FL_OP_NONE) act = (fl_op)0;
    else t->activation = NULL;
    const fl_nn_attention_opts attention = {.dropout = o->dropout,
                                            .causal = o->causal,
                                            .no_bias = o->no_bias,
                                            .dtype = o->dtype,
                                            .rng = o->rng};
    return fl__nn_part(m, "self_attn", fl_nn_attention_opt(dim, heads, attention), &t->attention) &&
           fl__nn_part(m, "linear1", fl__nn_wide(dim, hidden, act, o), &t->up) &&
           fl__nn_part(m, "dropout", fl_nn_dropout(o->dropout), &t->dropout) &&
           fl__nn_part(m, "linear2", fl__nn_wide(hidden, dim, (fl_op)0, o), &t->down) &&
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
    return fl__nn_made(m, m && fl__nn_transformer_fill(m, dim, heads, hidden, &o));
}

/* vocabularies */

typedef struct fl__nn_adaptive {
    int64_t dim, divide;
    fl_shape cutoffs; /* the last is the number of words */
} fl__nn_adaptive;

/* Where words of part p begin and end. */
static int64_t fl__nn_part_first(const fl__nn_adaptive *a, int p) {
    return p ? a->cutoffs.dim[p - 1] : 0;
}

/* The dims that part p works in. */
static int64_t fl__nn_part_dim(const fl__nn_adaptive *a, int p) {
    int64_t dim = a->dim;
    while (p--) dim /= a->divide;
    return dim;
}

static bool fl__nn_adaptive_ok(const char *who, const fl__nn_adaptive *a, fl_dtype dtype) {
    const fl_shape *c = &a->cutoffs;
    char text[FL__NN_SHAPE];
    bool ok = c->ndim >= 1 && c->ndim <= FL_MAX_DIMS && a->dim >= 1 && a->divide >= 1;
    for (int p = 0; ok && p < c->ndim; p++)
        ok = c->dim[p] > fl__nn_part_first(a, p) && fl__nn_part_dim(a, p) > 0;
    if (!ok)
        return fl_fail("%s: dim %" PRId64 " divided by %" PRId64 " a part, cutoffs %s", who, a->dim,
                       a->divide, fl_shape_text(*c, text, sizeof text));
    return fl__nn_dtype_ok(who, dtype);
}

/* words is i64; else fails. */
static bool fl__nn_words_ok(const fl_nn_module *m, const fl_tensor *words) {
    if (words->dtype != FL_I64)
        fl_nn_fail(m, "words are %s, must be i64", fl_dtype_name(words->dtype));
    return words->dtype == FL_I64;
}

/* Indices [k] of the words [n] of part p, and *local [k]: their numbers within it. k may be 0. */
static fl_tensor *fl__nn_words_of(const fl__nn_adaptive *a, fl_tensor *words, int p,
                                  fl_tensor **local) {
    const int64_t first = fl__nn_part_first(a, p);
    fl_tensor *in =
        fl_logical_and(fl_ge(words, fl_int(first)), fl_lt(words, fl_int(a->cutoffs.dim[p])));
    fl_tensor *rows = fl_nonzero(in);
    rows = rows ? fl_reshape(rows, FL_SHAPE(fl_numel(rows))) : NULL;
    *local = rows ? fl_sub(fl_index_select(words, 0, rows), fl_int(first)) : NULL;
    return *local ? rows : NULL;
}

static void fl__nn_adaptive_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_adaptive *a = m->data;
    char cutoffs[FL__NN_SHAPE];
    fl__nn_describe_shape(&a->cutoffs, cutoffs, sizeof cutoffs);
    snprintf(buf, size, "%" PRId64 ", cutoffs=%s, div_value=%" PRId64, a->dim, cutoffs, a->divide);
}

static fl_vars fl__nn_all_words(const fl_nn_module *m, int64_t have, int64_t want, fl_var *y) {
    const fl__nn_adaptive *a = m->data;
    if (!y || have == want) return FL_VARS(y);
    return fl_nn_fail(m, "%" PRId64 " words are not in [0, %" PRId64 ")", want - have,
                      a->cutoffs.dim[a->cutoffs.ndim - 1]);
}

static fl_vars fl__nn_adaptive_embedding_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_adaptive *a = m->data;
    fl_shape shape = fl_shape_of(fv_value(in.v[0]));
    if (!fl__nn_words_ok(m, fv_value(in.v[0]))) return (fl_vars){0};
    if (shape.ndim == FL_MAX_DIMS) return fl_nn_fail(m, "words of %d dims", FL_MAX_DIMS);
    const int64_t n = fl_shape_numel(shape);
    fl_tensor *words = fl_reshape(fv_value(in.v[0]), FL_SHAPE(n));
    const fl_tensor *like = fv_value(fl_nn_get_param(m, "embeddings.0.0.weight"));
    fl_var *y = fv_const(fl_to(fl_zeros(FL_SHAPE(n, a->dim), like->dtype), fl_family_name(like)));
    int64_t found = 0;
    for (int p = 0; y && p < a->cutoffs.ndim; p++) {
        fl_tensor *local, *rows = fl__nn_words_of(a, words, p, &local);
        if (!rows) return (fl_vars){0};
        found += fl_numel(rows);
        if (!fl_numel(rows)) continue;
        y = fv_index_add(y, 0, rows, fl_nn_forward(m->child[0]->child[p], fv_const(local)), 1);
    }
    shape.dim[shape.ndim++] = a->dim;
    return fl__nn_all_words(m, found, n, fv_reshape(y, shape));
}

static const fl_nn_type fl__nn_adaptive_embedding_type = {
    .name = "AdaptiveEmbedding",
    .maker = "fl_nn_adaptive_embedding",
    .inputs = 1,
    .forward = fl__nn_adaptive_embedding_forward,
    .describe = fl__nn_adaptive_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_embedding_opt(int64_t dim, fl_shape cutoffs,
                                                  fl_nn_adaptive_opts o) {
    const fl__nn_adaptive a = {dim, o.divide ? o.divide : 4, cutoffs};
    if (!fl__nn_adaptive_ok("fl_nn_adaptive_embedding", &a, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_adaptive_embedding_type, &a, sizeof a);
    fl_nn_module *parts = m ? fl_nn_add(m, "embeddings", fl_nn_sequential_of(0, NULL)) : NULL;
    bool ok = parts != NULL;
    for (int p = 0; ok && p < cutoffs.ndim; p++) {
        const int64_t n = cutoffs.dim[p] - fl__nn_part_first(&a, p), d = fl__nn_part_dim(&a, p);
        fl_nn_module *table =
            fl_nn_embedding(n, d, .std = 1 / sqrt((double)d), .dtype = o.dtype, .rng = o.rng);
        fl_nn_module *wider = fl_nn_linear(d, dim, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        ok = fl_nn_add(parts, NULL, fl_nn_sequential(table, wider)) != NULL;
    }
    return fl__nn_made(m, ok);
}

/* The class of the head that a word is, or belongs to. */
static fl_tensor *fl__nn_head_class(const fl__nn_adaptive *a, fl_tensor *words) {
    fl_tensor *y = words;
    for (int p = 1; p < a->cutoffs.ndim; p++) {
        fl_tensor *past = fl_ge(words, fl_int(fl__nn_part_first(a, p)));
        y = fl_where(past, fl_int(a->cutoffs.dim[0] + p - 1), y);
    }
    return y;
}

/* log softmax of scores [k, c] at classes [k] */
static fl_var *fl__nn_log_share(fl_var *scores, fl_tensor *classes) {
    fl_var *logp = scores ? fv_log_softmax(scores, 1) : NULL;
    return fv_squeeze(fv_gather(logp, 1, fl_unsqueeze(classes, 1)), 1);
}

static fl_vars fl__nn_adaptive_softmax_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_adaptive *a = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    fl_tensor *words = fv_value(in.v[1]);
    if (x->ndim != 2 || x->shape[1] != a->dim || words->ndim != 1 ||
        words->shape[0] != x->shape[0]) {
        char s[FL__NN_SHAPE], t[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, words %s, wants [k, %" PRId64 "] and [k]",
                          fl__nn_shape(in.v[0], s), fl__nn_shape(in.v[1], t), a->dim);
    }
    if (!fl__nn_words_ok(m, words)) return (fl_vars){0};
    fl_tensor *local, *rows = fl__nn_words_of(a, words, 0, &local);
    int64_t found = rows ? fl_numel(rows) : 0;
    fl_var *y = NULL;
    for (int p = 1; rows && p < a->cutoffs.ndim; p++) {
        rows = fl__nn_words_of(a, words, p, &local);
        if (!rows || !fl_numel(rows)) continue;
        found += fl_numel(rows);
        if (!y)
            y = fl__nn_log_share(fl_nn_forward(m->child[0], in.v[0]), fl__nn_head_class(a, words));
        fl_var *part = fl_nn_forward(m->child[1]->child[p - 1], fv_index_select(in.v[0], 0, rows));
        y = fv_index_add(y, 0, rows, fl__nn_log_share(part, local), 1);
    }
    if (!rows) return (fl_vars){0};
    if (found < x->shape[0]) return fl__nn_all_words(m, found, x->shape[0], in.v[0]);
    if (!y) y = fl__nn_log_share(fl_nn_forward(m->child[0], in.v[0]), words);
    return FL_VARS(y);
}

static const fl_nn_type fl__nn_adaptive_softmax_type = {
    .name = "AdaptiveLogSoftmaxWithLoss",
    .maker = "fl_nn_adaptive_softmax",
    .inputs = 2,
    .forward = fl__nn_adaptive_softmax_forward,
    .describe = fl__nn_adaptive_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_softmax_opt(int64_t dim, fl_shape cutoffs,
                                                fl_nn_adaptive_opts o) {
    const fl__nn_adaptive a = {dim, o.divide ? o.divide : 4, cutoffs};
    if (!fl__nn_adaptive_ok("fl_nn_adaptive_softmax", &a, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_adaptive_softmax_type, &a, sizeof a);
    const int64_t classes = cutoffs.dim[0] + cutoffs.ndim - 1;
    fl_nn_module *head =
        fl_nn_linear(dim, classes, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
    bool ok = m && fl_nn_add(m, "head", head);
    if (!m) fl_nn_free(head);
    fl_nn_module *tail = ok ? fl_nn_add(m, "tail", fl_nn_sequential_of(0, NULL)) : NULL;
    for (int p = 1; tail && ok && p < cutoffs.ndim; p++) {
        const int64_t n = cutoffs.dim[p] - fl__nn_part_first(&a, p), d = fl__nn_part_dim(&a, p);
        fl_nn_module *narrow =
            fl_nn_linear(dim, d, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        fl_nn_module *words = fl_nn_linear(d, n, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        ok = fl_nn_add(tail, NULL, fl_nn_sequential(narrow, words)) != NULL;
    }
    return fl__nn_made(m, tail && ok);
}

/* capsules */

FL_API fl_var *fl_nn_squash(fl_var *x) {
    if (!fl__nn_given(x, "fl_nn_squash", "the operand")) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_var *square = fv_sum(fv_square(x), FL_AXES_KEEP(-1));
    fl_var *share = fv_div(square, fv_add(square, fv_num(1)));
    /* 1e-16 keeps the gradient of the root finite at 0 */
    return fv_scope_return(&s, fv_mul(x, fv_mul(share, fv_rsqrt(fv_add(square, fv_num(1e-16))))));
}

typedef struct fl__nn_capsules {
    int64_t in, in_dim, out, out_dim, rounds;
} fl__nn_capsules;

/* u [n, in, out, out_dim]: for each input capsule one product of [n, in_dim] and its weight */
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
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", %" PRId64 "]",
                          fl__nn_shape(in.v[0], text), c->in, c->in_dim);
    }
    fl_var *u = fl__nn_predictions(c, fl__nn_param(m, 0), in.v[0]);
    /* softmax(0) of the first round */
    fl_var *share = fv_num(1 / (double)c->out), *b = NULL, *v = NULL;
    for (int64_t r = 0; u && r < c->rounds; r++) {
        if (r) {
            fl_var *agree = fv_sum(fv_mul(u, fv_unsqueeze(v, 1)), FL_AXES_KEEP(-1));
            b = b ? fv_add(b, agree) : agree;
            share = b ? fv_softmax(b, 2) : NULL;
        }
        v = fl_nn_squash(fv_sum(fv_mul(share, u), FL_AXES(1)));
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
    if (in < 1 || in_dim < 1 || out < 1 || out_dim < 1 || c.rounds < 1) {
        fl_fail("fl_nn_capsules: %" PRId64 " of %" PRId64 " to %" PRId64 " of %" PRId64 ", %" PRId64
                " rounds: must be positive",
                in, in_dim, out, out_dim, c.rounds);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_capsules", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_capsules_type, &c, sizeof c);
    fl_tensor *w =
        m ? fl_normal(FL_SHAPE(in, out, out_dim, in_dim), 0, 0.01, o.dtype, o.rng) : NULL;
    const bool ok = w && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

/* ctc */

FL_API fl_var *fl_nn_ctc_opt(fl_var *logits, fl_tensor *target, fl_tensor *steps,
                             fl_tensor *lengths, fl_ctc_loss_opts o) {
    if (!fl__nn_given(logits, "fl_nn_ctc", "the input")) return fl_raise();
    if (fv_value(logits)->ndim != 3) {
        char text[FL__NN_SHAPE];
        fl_fail("fl_nn_ctc: logits %s, wants [n, t, c]", fl__nn_shape(logits, text));
        return fl_raise();
    }
    fl_scope s = fl_scope_begin();
    fl_var *logp = fv_transpose(fv_log_softmax(logits, 2), 0, 1);
    return fv_scope_return(&s, fv_ctc_loss_opt(logp, target, steps, lengths, o));
}

#endif
#endif

/* MIT licence: see LICENSE. */
