/* fl/speech/models.h - acoustic models from architecture files of Flashlight and wav2letter

   Files list sizes and axes fastest first, (time, features, channels, batch); a tensor here is [batch,
   channels, features, time], so their axis d is ours 3 - d. */
#ifndef FL_SPEECH_MODELS_H
#define FL_SPEECH_MODELS_H
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Builds a network from an architecture file, one layer per line. NFEAT and NLABEL stand for `features` and
   `labels`; # begins a comment. Returns NULL after fl_fail with file, line and token, for an unknown token
   or wrong arguments. Tokens (arguments in brackets are optional):
     V, RO a [b c ...]              reshape (-1: inferred, 0: unchanged); permute, where axes not listed have
                                    size 1
     PD value (low high)...         padding
     C, C1 in out k stride [pad [dilation]]              convolution along time; pad -1: same length
     C2 in out kx ky sx sy [px py [dx dy]]               along time (x) and features (y)
     AC in out k stride [pad [future [dilation]]]        padding of 2 pad frames (-1: as many as C); the
                                    fraction `future` (1) of it is at the end
     TDS channels k width [dropout inner right norm_time]  time-depth separable block (arXiv 1904.02619)
     TR dim mlp heads context dropout [drop pre_norm causal]    transformer layer, on [1, n, t, dim]
     CFR dim mlp heads context k dropout [drop]          conformer layer (arXiv 2005.08100)
     POSEMB dim length [dropout], SINPOSEMB dim [scale]  learnt and sinusoidal position embeddings
     L in out [bias], E dim n, ADAPTIVEE dim cutoffs     linear (over the fastest axis), embeddings
     BN size axes..., LN axes..., WN axis layer          norms; LN has one scalar gain and bias, as Flashlight
     DO p; M, A wx wy sx sy [px py]                      dropout, max and average pooling
     ELU R R6 PR [n [start]] LG HT T SH [beta], GLU LSM axis    activations
     RNN GRU LSTM in hidden [layers both dropout]        on [1, t, n, in]; RNN uses relu
     RES layers skips [blocks], then layers, SKIP from to [scale], SKIPL from to layers [scale]
     SAUG warp f_width f_masks t_width t_share t_masks   SpecAugment, in training only
     PC dtype                                            cast */
typedef struct fl_speech_arch_opts {
    fl_opts_guard guard_;
    fl_rng *rng; /* of initial values and dropout, borrowed; NULL -> the default generator */
    /* A two-line file may describe a network of any size; exceeding these limits is an error, before a layer
       is allocated. */
    int64_t max_parameters; /* of all layers together; 0 -> 2^29, 2 GiB */
    int64_t max_layers;     /* lines, counted per use, and layers of RNN; 0 -> 4096 */
    char _end;
} fl_speech_arch_opts;
#define fl_speech_arch(...) FL__SPEECH_ARCH(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_ARCH(path, features, labels, ...) \
    fl_speech_arch_opt(path, features, labels, FL_LITERAL(fl_speech_arch_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_speech_arch_opt(const char *path, int64_t features, int64_t labels,
                                        fl_speech_arch_opts o);
/* As fl_speech_arch, from n bytes of text in memory; errors show `name` in place of the path. */
FL_API fl_nn_module *fl_speech_arch_parse(const char *name, const char *text, int64_t n, int64_t features,
                                          int64_t labels, fl_speech_arch_opts o);
/* Features x [n, t, features], of which steps i64 [n] are valid (NULL: all) -> [n, t', labels]. *steps_out,
   unless NULL, becomes the valid output frames, ceil(steps / t t'). Attention masks the others. */
FL_API fl_var *fl_speech_arch_forward(fl_nn_module *m, fl_var *x, fl_tensor *steps, fl_tensor **steps_out);

/* Streaming inference of such a network in evaluation mode: equal to the whole up to rounding. Supports
   convolution and pooling (padding -1 only for stride 1), PD, TDS without norms over time, causal TR,
   unidirectional RNN, GRU, LSTM, and frame-wise layers. Other layers are errors that name line and token.
   Returns NULL after fl_fail. Borrows m. */
typedef struct fl_speech_arch_stream fl_speech_arch_stream;
typedef struct fl_speech_arch_stream_opts {
    fl_opts_guard guard_;
    int64_t frames; /* maximal number of frames that causal TR attends to; 0 -> 6000 */
    char _end;
} fl_speech_arch_stream_opts;
#define fl_speech_arch_stream_new(...) FL__SPEECH_ARCH_STREAM(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_ARCH_STREAM(m, ...) \
    fl_speech_arch_stream_new_opt(m, FL_LITERAL(fl_speech_arch_stream_opts, __VA_ARGS__))
FL_API fl_speech_arch_stream *fl_speech_arch_stream_new_opt(fl_nn_module *m, fl_speech_arch_stream_opts o);
FL_API void fl_speech_arch_stream_free(fl_speech_arch_stream *s); /* NULL is allowed */
/* The look-ahead: number of input frames needed beyond an output's own. */
FL_API int64_t fl_speech_arch_stream_ahead(const fl_speech_arch_stream *s);
/* Takes features [frames, n]; `end` marks the last piece and resets the stream. *y becomes the outputs
   available, [frames', labels], or NULL if there are none. Returns false after an error. */
FL_API bool fl_speech_arch_stream_push(fl_speech_arch_stream *s, fl_tensor *x, bool end, fl_tensor **y);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_MODELS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_MODELS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_MODELS_IMPL
#define FL_SPEECH_MODELS_IMPL
#include "../../fl_text.h"
#include "augment.h"
#include "../ops/activation.h"
#include "../ops/conv.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/move.h"
#include "../ops/norm.h"
#include "../ops/position.h"
#include "../ops/softmax.h"
#include "../ops/special.h"
#include "../ops/view.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FL__ARCH_ARGS = 16, FL__ARCH_FIELD = 64 };

/* A layer: its line; submodules are created by its token's `make`. */
typedef struct fl__arch_layer fl__arch_layer;
typedef struct fl__arch_token {
    const char *name;
    int least, most; /* number of fields on the line, including the token */
    bool (*make)(fl_nn_module *m, const fl__arch_layer *l);
    double (*parameters)(const fl__arch_layer *l); /* that make will allocate; NULL: 0 */
    fl_var *(*run)(fl_nn_module *m, const fl__arch_layer *l, fl_var *x); /* NULL: the submodule's forward */
} fl__arch_token;
struct fl__arch_layer {
    const fl__arch_token *token;
    int n; /* fields */
    char field[FL__ARCH_ARGS][FL__ARCH_FIELD];
    double a[FL__ARCH_ARGS];
    int64_t line;
    fl_rng *rng;
};

static double fl__arch_number(const fl__arch_layer *l, int i, double otherwise) {
    return l->n > i ? l->a[i] : otherwise;
}
static int64_t fl__arch_int(const fl__arch_layer *l, int i, int64_t otherwise) {
    return l->n > i ? (int64_t)l->a[i] : otherwise;
}

/* For options in which 0 selects a default: maps 0 to the explicit zero. */
static int64_t fl__arch_zero(int64_t v) { return v ? v : FL_I0; }

static bool fl__arch_add(fl_nn_module *m, const char *name, fl_nn_module *child) {
    return fl_nn_add(m, name, child) != NULL;
}

static fl_var *fl__arch_child(fl_nn_module *m, const char *name, fl_var *x) {
    return x ? fl_nn_forward(fl_nn_find(m, name), x) : NULL;
}

/* Valid frames of the batch, and its length, during a forward pass of this thread. */
static _Thread_local fl_tensor *fl__arch_steps;
static _Thread_local int64_t fl__arch_frames;

/* ceil(steps t / frames), for input length `frames`. */
static fl_tensor *fl__arch_steps_of(fl_tensor *steps, int64_t frames, int64_t t) {
    fl_tensor *all = fl_add(fl_mul(steps, fl_int(t)), fl_int(frames - 1));
    return fl_minimum(fl_floor_divide(all, fl_int(frames)), fl_int(t));
}

/* ---- shapes ---- */

static fl_var *fl__arch_run_view(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    const fl_tensor *t = fv_value(x);
    fl_shape s = {l->n > 5 ? l->n - 1 : 4, {0}};
    for (int i = 0; i < s.ndim; i++) {
        const int from = t->ndim - 1 - i;
        int64_t *size = &s.dim[s.ndim - 1 - i];
        *size = fl__arch_int(l, 1 + i, 1);
        if (!*size) *size = from >= 0 ? t->shape[from] : 1;
    }
    (void)m;
    return fv_reshape(x, s);
}

static fl_var *fl__arch_run_reorder(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    const fl_tensor *t = fv_value(x);
    const int last = t->ndim - 1, n = l->n - 1;
    int axis[FL_MAX_DIMS];
    bool fits = n <= t->ndim;
    for (int i = 0; fits && i <= last; i++) {
        axis[last - i] = last - (int)fl__arch_int(l, 1 + i, i);
        fits = i < n || t->shape[last - i] == 1;
    }
    if (!fits)
        return fl_nn_fail(m, "RO lists %d axes, the input %s has %d", n, FL_SHAPE_TEXT(t), t->ndim), NULL;
    return fv_permute(x, t->ndim, axis);
}

static fl_var *fl__arch_run_pad(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    fl_pad_opts o = {.value = l->a[1]};
    for (int i = 0; 2 + 2 * i < l->n; i++)
        o.low[3 - i] = (int64_t)l->a[2 + 2 * i], o.high[3 - i] = (int64_t)l->a[3 + 2 * i];
    (void)m;
    return fv_pad_opt(x, o);
}

/* ---- convolutions ---- */

static bool fl__arch_make_conv1(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer",
                        fl_nn_conv2d((int64_t)l->a[1], (int64_t)l->a[2], 1, .kernel_w = (int64_t)l->a[3],
                                     .stride = 1, .stride_w = (int64_t)l->a[4], .pad = FL_I0,
                                     .pad_w = fl__arch_zero(fl__arch_int(l, 5, 0)), .dilation = 1,
                                     .dilation_w = fl__arch_int(l, 6, 1), .rng = l->rng));
}

static bool fl__arch_make_conv2(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(
        m, "layer",
        fl_nn_conv2d((int64_t)l->a[1], (int64_t)l->a[2], (int64_t)l->a[4], .kernel_w = (int64_t)l->a[3],
                     .stride = (int64_t)l->a[6], .stride_w = (int64_t)l->a[5],
                     .pad = fl__arch_zero(fl__arch_int(l, 8, 0)),
                     .pad_w = fl__arch_zero(fl__arch_int(l, 7, 0)),
                     .dilation = fl__arch_int(l, 10, 1), .dilation_w = fl__arch_int(l, 9, 1), .rng = l->rng));
}

static bool fl__arch_make_asymmetric(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer",
                        fl_nn_conv2d((int64_t)l->a[1], (int64_t)l->a[2], 1, .kernel_w = (int64_t)l->a[3],
                                     .stride = 1, .stride_w = (int64_t)l->a[4], .dilation = 1,
                                     .dilation_w = fl__arch_int(l, 7, 1), .rng = l->rng));
}

static fl_var *fl__arch_pad_time(fl_var *x, int64_t low, int64_t high) {
    return fv_pad(x, .low = {0, 0, 0, low}, .high = {0, 0, 0, high});
}

/* The part at the end of n frames of padding, rounded as in Flashlight: each side has half of them, and the
   fraction |1 - 2 future| of that half, rounded down, moves to the other side. */
static int64_t fl__arch_ahead(const fl__arch_layer *l, int64_t n) {
    const double future = (float)fl__arch_number(l, 6, 1); /* f32 there */
    const int64_t half = (n + 1) / 2, moved = (int64_t)(fabs(1 - 2 * future) * (double)half);
    return future < 0.5 ? half - moved : half + moved < n ? half + moved : n;
}

static fl_var *fl__arch_run_asymmetric(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    const int64_t pad = fl__arch_int(l, 5, 0), stride = (int64_t)l->a[4], t = fv_value(x)->shape[3];
    int64_t both = 2 * pad;
    if (pad < 0)
        both = (t - 1) / stride * stride + ((int64_t)l->a[3] - 1) * fl__arch_int(l, 7, 1) + 1 - t;
    if (both < 0) both = 0;
    const int64_t high = fl__arch_ahead(l, both);
    return fl__arch_child(m, "layer", fl__arch_pad_time(x, both - high, high));
}

/* ---- norms: LN has one scalar gain and bias ---- */

static bool fl__arch_add_norm(fl_nn_module *m, const char *gain, const char *bias) {
    fl_tensor *one = fl_ones(FL_SHAPE(1), FL_F32), *zero = fl_zeros(FL_SHAPE(1), FL_F32);
    return fl_nn_add_param(m, gain, one ? fv_param(one) : NULL) &&
           fl_nn_add_param(m, bias, zero ? fv_param(zero) : NULL);
}

/* Layer norm over some axes of a 4-D tensor, which are temporarily moved to the end. */
static fl_var *fl__arch_norm_axes(fl_var *x, const bool reduced[4], fl_var *gain, fl_var *bias) {
    int order[4], back[4], n = 0, count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 4; i++)
            if (reduced[i] == pass) order[n++] = i, count += pass;
    for (int i = 0; i < 4; i++) back[order[i]] = i;
    fl_var *y = fv_layer_norm(fv_permute(x, 4, order), count, NULL, NULL, 1e-5);
    return fv_add(fv_mul(fv_permute(y, 4, back), gain), bias);
}

static bool fl__arch_make_layer_norm(fl_nn_module *m, const fl__arch_layer *l) {
    (void)l;
    return fl__arch_add_norm(m, "weight", "bias");
}

static fl_var *fl__arch_run_layer_norm(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    bool reduced[4] = {false};
    for (int i = 1; i < l->n; i++) reduced[3 - (int)l->a[i]] = true;
    return fl__arch_norm_axes(x, reduced, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1));
}

static bool fl__arch_make_batch_norm(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_batch_norm1d((int64_t)l->a[1]));
}

/* Batch norm whose channels are the given axes, combined. */
static fl_var *fl__arch_run_batch_norm(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    int order[4], back[4], n = 0;
    bool named[4] = {false};
    int64_t rest = 1;
    for (int i = 2; i < l->n; i++) named[3 - (int)l->a[i]] = true;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 4; i++)
            if (named[i] != pass) order[n++] = i, rest *= pass ? fv_value(x)->shape[i] : 1;
    for (int i = 0; i < 4; i++) back[order[i]] = i;
    fl_var *y = fv_permute(x, 4, order);
    const fl_shape s = y ? fl_shape_of(fv_value(y)) : FL_SCALAR_SHAPE;
    if (!y || !rest) return y;
    y = fv_transpose(fv_reshape(y, FL_SHAPE(fl_numel(fv_value(x)) / rest, rest)), 0, 1);
    y = fv_transpose(fl__arch_child(m, "layer", y), 0, 1);
    return fv_permute(fv_reshape(y, s), 4, back);
}

/* ---- blocks ---- */

static bool fl__arch_make_tds(fl_nn_module *m, const fl__arch_layer *l) {
    const int64_t c = (int64_t)l->a[1], k = (int64_t)l->a[2], d = c * (int64_t)l->a[3];
    const int64_t inner = fl__arch_int(l, 5, 0) ? (int64_t)l->a[5] : d;
    return fl__arch_add(m, "conv", fl_nn_conv2d(c, c, 1, .kernel_w = k, .rng = l->rng)) &&
           fl__arch_add(m, "linear1", fl_nn_linear(d, inner, .rng = l->rng)) &&
           fl__arch_add(m, "linear2", fl_nn_linear(inner, d, .rng = l->rng)) &&
           fl__arch_add(m, "dropout", fl_nn_dropout(fl__arch_number(l, 4, 0), .rng = l->rng)) &&
           fl__arch_add_norm(m, "weight1", "bias1") && fl__arch_add_norm(m, "weight2", "bias2");
}

static int64_t fl__arch_tds_ahead(const fl__arch_layer *l) {
    const int64_t k = (int64_t)l->a[2], right = fl__arch_int(l, 6, -1);
    return right < 0 ? k - 1 - (k - 1) / 2 : right;
}

/* The part of TDS after the convolution y of x. */
static fl_var *fl__arch_tds_rest(fl_nn_module *m, const fl__arch_layer *l, fl_var *x, fl_var *y) {
    const int64_t *s = fv_value(x)->shape;
    const bool axes[] = {false, true, true, fl__arch_int(l, 7, 1) != 0};
    y = fv_add(x, fl__arch_child(m, "dropout", fv_relu(y)));
    y = fl__arch_norm_axes(y, axes, fl_nn_param_at(m, 0), fl_nn_param_at(m, 1));
    fl_var *z = fv_transpose(fv_reshape(y, FL_SHAPE(s[0], s[1] * s[2], s[3])), 1, 2);
    z = fl__arch_child(m, "dropout", fv_relu(fl__arch_child(m, "linear1", z)));
    z = fl__arch_child(m, "dropout", fl__arch_child(m, "linear2", z));
    z = fv_reshape(fv_transpose(z, 1, 2), FL_SHAPE(s[0], s[1], s[2], s[3]));
    return fl__arch_norm_axes(fv_add(y, z), axes, fl_nn_param_at(m, 2), fl_nn_param_at(m, 3));
}

static fl_var *fl__arch_run_tds(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    const int64_t k = (int64_t)l->a[2], high = fl__arch_tds_ahead(l);
    return fl__arch_tds_rest(m, l, x, fl__arch_child(m, "conv", fl__arch_pad_time(x, k - 1 - high, high)));
}

/* Runs a sequence layer on [n, t, c], with a mask of the valid frames if `masked`. */
static fl_var *fl__arch_in_sequence(fl_nn_module *m, fl_nn_module *layer, fl_var *x, bool masked) {
    const fl_tensor *t = fv_value(x);
    if (t->ndim != 4 || t->shape[0] != 1)
        return fl_nn_fail(m, "got input %s, expected [1, n, t, c]", FL_SHAPE_TEXT(t)), NULL;
    fl_vars in = {1, {fv_squeeze(x, 0)}};
    if (masked && fl__arch_steps) {
        fl_tensor *mask =
            fl_length_mask(fl__arch_steps_of(fl__arch_steps, fl__arch_frames, t->shape[2]), t->shape[2]);
        in.v[in.n++] = mask ? fv_const(mask) : NULL;
        if (!in.v[1]) return NULL;
    }
    fl_vars y = fl_nn_forward_vars(layer, in);
    return y.n ? fv_unsqueeze(y.v[0], 0) : NULL;
}

static fl_var *fl__arch_run_masked(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    (void)l;
    return fl__arch_in_sequence(m, m->child[0], x, true);
}

static fl_var *fl__arch_run_sequence(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    (void)l;
    return fl__arch_in_sequence(m, m->child[0], x, false);
}

static bool fl__arch_make_transformer(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer",
                        fl_nn_transformer((int64_t)l->a[1], (int64_t)l->a[3], (int64_t)l->a[2],
                                          .dropout = l->a[5], .drop_path = fl__arch_number(l, 6, 0),
                                          .norm_first = fl__arch_int(l, 7, 0) != 0,
                                          .causal = fl__arch_int(l, 8, 0) != 0,
                                          .attention = {.relative = (int64_t)l->a[4]}, .rng = l->rng));
}

/* Conformer: x + FF / 2, + attention, + convolution, + FF / 2, norm. */
static fl_nn_module *fl__arch_conformer_ff(int64_t dim, int64_t mlp, double dropout, fl_rng *rng) {
    return fl_nn_sequential(fl_nn_layer_norm(FL_SHAPE(dim)), fl_nn_linear(dim, mlp, .rng = rng), fl_nn_silu(),
                            fl_nn_dropout(dropout, .rng = rng), fl_nn_linear(mlp, dim, .rng = rng),
                            fl_nn_dropout(dropout, .rng = rng));
}

static fl_vars fl__arch_conformer_forward(fl_nn_module *m, fl_vars in) {
    fl_var *x = in.v[0], *half = fv_num(0.5);
    x = fv_add(x, fv_mul(half, fl__arch_child(m, "ff1", x)));
    fl_vars at = {in.n, {fl__arch_child(m, "norm", x), in.n > 1 ? in.v[1] : NULL}};
    fl_vars y = fl_nn_forward_vars(fl_nn_find(m, "attention"), at);
    x = fv_add(x, y.n ? fl__arch_child(m, "dropout", y.v[0]) : NULL);
    x = fv_add(x, fl__arch_child(m, "conv", x));
    x = fv_add(x, fv_mul(half, fl__arch_child(m, "ff2", x)));
    x = fl__arch_child(m, "last", x);
    return (fl_vars){x != NULL, {x}};
}

static bool fl__arch_make_conformer(fl_nn_module *m, const fl__arch_layer *l) {
    const int64_t dim = (int64_t)l->a[1], mlp = (int64_t)l->a[2];
    fl_nn_module *block = fl_nn_function("Conformer", fl__arch_conformer_forward, NULL, NULL);
    if (!fl__arch_add(m, "layer", block)) return false;
    return fl__arch_add(block, "ff1", fl__arch_conformer_ff(dim, mlp, l->a[6], l->rng)) &&
           fl__arch_add(block, "norm", fl_nn_layer_norm(FL_SHAPE(dim))) &&
           fl__arch_add(block, "attention",
                        fl_nn_attention(dim, (int64_t)l->a[3], .relative = (int64_t)l->a[4],
                                        .dropout = l->a[6], .rng = l->rng)) &&
           fl__arch_add(block, "conv",
                        fl_nn_sequential(fl_nn_layer_norm(FL_SHAPE(dim)), fl_nn_transpose(1, 2),
                                         fl_nn_conv1d(dim, 2 * dim, 1, .rng = l->rng), fl_nn_glu(1),
                                         fl_nn_conv1d(dim, dim, (int64_t)l->a[5], .pad = FL_SAME,
                                                      .groups = dim, .rng = l->rng),
                                         fl_nn_batch_norm1d(dim), fl_nn_silu(),
                                         fl_nn_conv1d(dim, dim, 1, .rng = l->rng), fl_nn_transpose(1, 2),
                                         fl_nn_dropout(l->a[6], .rng = l->rng))) &&
           fl__arch_add(block, "ff2", fl__arch_conformer_ff(dim, mlp, l->a[6], l->rng)) &&
           fl__arch_add(block, "last", fl_nn_layer_norm(FL_SHAPE(dim))) &&
           fl__arch_add(block, "dropout", fl_nn_dropout(l->a[6], .rng = l->rng));
}

/* ---- single layers ---- */

static bool fl__arch_make_linear(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_linear((int64_t)l->a[1], (int64_t)l->a[2],
                                                 .no_bias = l->n > 3 && l->a[3] == 0, .rng = l->rng));
}
static bool fl__arch_make_embedding(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_embedding((int64_t)l->a[2], (int64_t)l->a[1], .rng = l->rng));
}
static bool fl__arch_cutoffs(const fl__arch_layer *l, fl_shape *cut) {
    char *end = (char *)l->field[2];
    for (cut->ndim = 0; *end && cut->ndim < FL_MAX_DIMS; end += *end == ',') {
        const char *at = end;
        cut->dim[cut->ndim++] = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',')) return false;
    }
    return true;
}
static bool fl__arch_make_adaptive(fl_nn_module *m, const fl__arch_layer *l) {
    fl_shape cut;
    if (!fl__arch_cutoffs(l, &cut))
        return fl_fail("invalid cutoffs '%s', expected integers separated by commas", l->field[2]);
    return fl__arch_add(m, "layer", fl_nn_adaptive_embedding((int64_t)l->a[1], cut, .rng = l->rng));
}
static bool fl__arch_make_position(fl_nn_module *m, const fl__arch_layer *l) {
    fl_nn_module *p = fl_nn_position((int64_t)l->a[2], (int64_t)l->a[1], .rng = l->rng);
    return fl__arch_add(m, "layer",
                        fl_nn_sequential(p, fl_nn_dropout(fl__arch_number(l, 3, 0), .rng = l->rng)));
}
static bool fl__arch_make_sinusoid(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_sinusoid((int64_t)l->a[1], fl__arch_number(l, 2, 1)));
}
static bool fl__arch_make_dropout(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_dropout(l->a[1], .rng = l->rng));
}
static bool fl__arch_make_pool(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(
        m, "layer",
        fl_nn_pool2d((int64_t)l->a[2], .kernel_w = (int64_t)l->a[1], .stride = (int64_t)l->a[4],
                     .stride_w = (int64_t)l->a[3], .pad = fl__arch_zero(fl__arch_int(l, 6, 0)),
                     .pad_w = fl__arch_zero(fl__arch_int(l, 5, 0)), .average = *l->field[0] == 'A'));
}
static bool fl__arch_make_prelu(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_prelu(fl__arch_int(l, 1, 1), .init = fl__arch_number(l, 2, 0.25)));
}
static bool fl__arch_make_recurrent(fl_nn_module *m, const fl__arch_layer *l) {
    const int64_t in = (int64_t)l->a[1], hidden = (int64_t)l->a[2];
    const fl_nn_rnn_opts o = {.layers = (int)fl__arch_int(l, 3, 1),
                              .bidirectional = fl__arch_int(l, 4, 0) != 0,
                              .dropout = fl__arch_number(l, 5, 0),
                              .relu = true,
                              .time_first = true,
                              .rng = l->rng};
    return fl__arch_add(m, "layer", *l->field[0] == 'R'   ? fl_nn_rnn_opt(in, hidden, o)
                                    : *l->field[0] == 'G' ? fl_nn_gru_opt(in, hidden, o)
                                                          : fl_nn_lstm_opt(in, hidden, o));
}
static bool fl__arch_make_cast(fl_nn_module *m, const fl__arch_layer *l) {
    static const struct { const char *name; fl_dtype d;
    } table[] = {{"f16", FL_F16}, {"bf16", FL_BF16}, {"f32", FL_F32}, {"f64", FL_F64}};
    for (int i = 0; i < 4; i++)
        if (!strcmp(l->field[1], table[i].name))
            return fl__arch_add(m, "layer", fl_nn_precision_cast(table[i].d));
    return fl_fail("unknown dtype '%s'; known: f16, bf16, f32, f64", l->field[1]);
}

static fl_nn_module *fl__arch_elu(void) { return fl_nn_elu(0); }
static fl_nn_module *fl__arch_log(void) { return fl_nn_activation("Log", fv_log); }
static fl_nn_module *fl__arch_hardtanh(void) { return fl_nn_hardtanh(0, 0); }
static bool fl__arch_make_activation(fl_nn_module *m, const fl__arch_layer *l) {
    static const struct { const char *name; fl_nn_module *(*make)(void);
    } table[] = {{"ELU", fl__arch_elu}, {"R", fl_nn_relu}, {"R6", fl_nn_relu6}, {"LG", fl__arch_log},
                 {"HT", fl__arch_hardtanh}, {"T", fl_nn_tanh}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(l->field[0], table[i].name)) return fl__arch_add(m, "layer", table[i].make());
    return false;
}

static bool fl__arch_make_swish(fl_nn_module *m, const fl__arch_layer *l) {
    return fl__arch_add(m, "layer", fl_nn_swish(fl__arch_number(l, 1, 1)));
}

static fl_var *fl__arch_run_glu(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    (void)m;
    return fv_glu(x, fv_value(x)->ndim - 1 - (int)l->a[1]);
}
static fl_var *fl__arch_run_log_softmax(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    (void)m;
    return fv_log_softmax(x, fv_value(x)->ndim - 1 - (int)l->a[1]);
}

/* [n, 1, features, time], with different masks for each sequence. */
static fl_var *fl__arch_run_spec_augment(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    static fl_rng own;
    fl_rng *rng = l->rng ? l->rng : &own;
    if (!m->train) return x;
    const int64_t n = fv_value(x)->shape[0];
    fl_tensor **y = fl_heap_alloc((size_t)n * sizeof *y), *all = NULL;
    bool ok = y != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        fl_tensor *frames = fl_transpose(fl_select(fl_select(fv_value(x), 0, i), 0, 0), 0, 1);
        fl_tensor *masked = fl_speech_spec_augment(
            fl_contiguous(frames), rng, .warp = (int64_t)l->a[1],
            .band_width = fl__arch_zero((int64_t)l->a[2]), .bands = fl__arch_zero((int64_t)l->a[3]),
            .frame_width = fl__arch_zero((int64_t)l->a[4]), .share = l->a[5],
            .frames = fl__arch_zero((int64_t)l->a[6]));
        ok = masked && (y[i] = fl_unsqueeze(fl_transpose(masked, 0, 1), 0)) != NULL;
    }
    if (ok) all = fl_stack(y, (int)n, 0);
    fl_heap_free(y);
    return all ? fv_const(all) : NULL;
}

static fl_var *fl__arch_run_scale(fl_nn_module *m, const fl__arch_layer *l, fl_var *x) {
    (void)m;
    return fv_mul(x, fv_num(l->a[0]));
}

/* ---- number of parameters of a line, checked before allocation ---- */

static double fl__arch_size(const fl__arch_layer *l, int i) { return trunc(l->a[i]); }

static double fl__arch_conv_parameters(const fl__arch_layer *l) {
    const double out = fl__arch_size(l, 2), weight = fl__arch_size(l, 1) * out * fl__arch_size(l, 3);
    return out + (strcmp(l->field[0], "C2") == 0 ? weight * fl__arch_size(l, 4) : weight);
}
static double fl__arch_linear_parameters(const fl__arch_layer *l) {
    const double in = fl__arch_size(l, 1), out = fl__arch_size(l, 2);
    return in * out + (l->n > 3 && l->a[3] == 0 ? 0 : out);
}
static double fl__arch_table_parameters(const fl__arch_layer *l) {
    return fl__arch_size(l, 1) * fl__arch_size(l, 2);
}
static double fl__arch_adaptive_parameters(const fl__arch_layer *l) {
    fl_shape cut;
    const double dim = fl__arch_size(l, 1);
    double sum = 0, part = dim;
    if (!fl__arch_cutoffs(l, &cut)) return 0;
    for (int p = 0; p < cut.ndim; p++, part = trunc(part / 4))
        sum += part * (dim + (double)cut.dim[p] - (p ? (double)cut.dim[p - 1] : 0));
    return sum;
}
static double fl__arch_tds_parameters(const fl__arch_layer *l) {
    const double c = fl__arch_size(l, 1), d = c * fl__arch_size(l, 3);
    const double inner = fl__arch_int(l, 5, 0) ? fl__arch_size(l, 5) : d;
    return c * c * fl__arch_size(l, 2) + c + 2 * d * inner + d + inner + 4;
}
/* Of attention with relative positions. */
static double fl__arch_attention_parameters(const fl__arch_layer *l) {
    const double d = fl__arch_size(l, 1), heads = fl__arch_size(l, 3), positions = fl__arch_size(l, 4);
    return 4 * d * d + 4 * d + (heads >= 1 && positions >= 1 ? (2 * positions - 1) * d / heads : 0);
}
/* Of a feed-forward network. */
static double fl__arch_ff_parameters(const fl__arch_layer *l) {
    const double d = fl__arch_size(l, 1), mlp = fl__arch_size(l, 2);
    return 2 * d * mlp + d + mlp;
}
static double fl__arch_transformer_parameters(const fl__arch_layer *l) {
    return fl__arch_attention_parameters(l) + fl__arch_ff_parameters(l) + 4 * fl__arch_size(l, 1);
}
static double fl__arch_conformer_parameters(const fl__arch_layer *l) {
    const double d = fl__arch_size(l, 1), conv = 3 * d * d + d * fl__arch_size(l, 5) + 4 * d;
    return fl__arch_attention_parameters(l) + 2 * fl__arch_ff_parameters(l) + conv + 12 * d;
}
static double fl__arch_batch_norm_parameters(const fl__arch_layer *l) { return 2 * fl__arch_size(l, 1); }
static double fl__arch_prelu_parameters(const fl__arch_layer *l) { return fl__arch_number(l, 1, 1); }
static double fl__arch_two_parameters(const fl__arch_layer *l) { return (void)l, 2; }
static double fl__arch_recurrent_parameters(const fl__arch_layer *l) {
    const double ways = fl__arch_int(l, 4, 0) ? 2 : 1, layers = (double)fl__arch_int(l, 3, 1);
    const double hidden = fl__arch_size(l, 2), in = fl__arch_size(l, 1) + (layers - 1) * ways * hidden;
    const double gates = *l->field[0] == 'R' ? 1 : *l->field[0] == 'G' ? 3 : 4;
    return ways * gates * hidden * (in + layers * (hidden + 2));
}

static const fl__arch_token fl__arch_tokens[] = {
    {"V", 2, 1 + FL_MAX_DIMS, NULL, NULL, fl__arch_run_view},
    {"RO", 2, 1 + FL_MAX_DIMS, NULL, NULL, fl__arch_run_reorder},
    {"PD", 4, 10, NULL, NULL, fl__arch_run_pad},
    {"C", 5, 7, fl__arch_make_conv1, fl__arch_conv_parameters, NULL},
    {"C1", 5, 7, fl__arch_make_conv1, fl__arch_conv_parameters, NULL},
    {"C2", 7, 11, fl__arch_make_conv2, fl__arch_conv_parameters, NULL},
    {"AC", 5, 8, fl__arch_make_asymmetric, fl__arch_conv_parameters, fl__arch_run_asymmetric},
    {"TDS", 4, 8, fl__arch_make_tds, fl__arch_tds_parameters, fl__arch_run_tds},
    {"TR", 6, 9, fl__arch_make_transformer, fl__arch_transformer_parameters, fl__arch_run_masked},
    {"CFR", 7, 8, fl__arch_make_conformer, fl__arch_conformer_parameters, fl__arch_run_masked},
    {"POSEMB", 3, 4, fl__arch_make_position, fl__arch_table_parameters, fl__arch_run_sequence},
    {"SINPOSEMB", 2, 3, fl__arch_make_sinusoid, NULL, fl__arch_run_sequence},
    {"L", 3, 4, fl__arch_make_linear, fl__arch_linear_parameters, NULL},
    {"E", 3, 3, fl__arch_make_embedding, fl__arch_table_parameters, NULL},
    {"ADAPTIVEE", 3, 3, fl__arch_make_adaptive, fl__arch_adaptive_parameters, NULL},
    {"BN", 3, 5, fl__arch_make_batch_norm, fl__arch_batch_norm_parameters, fl__arch_run_batch_norm},
    {"LN", 2, 4, fl__arch_make_layer_norm, fl__arch_two_parameters, fl__arch_run_layer_norm},
    {"DO", 2, 2, fl__arch_make_dropout, NULL, NULL},
    {"M", 5, 7, fl__arch_make_pool, NULL, NULL},
    {"A", 5, 7, fl__arch_make_pool, NULL, NULL},
    {"ELU", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"R", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"R6", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"PR", 1, 3, fl__arch_make_prelu, fl__arch_prelu_parameters, NULL},
    {"LG", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"HT", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"T", 1, 1, fl__arch_make_activation, NULL, NULL},
    {"SH", 1, 2, fl__arch_make_swish, NULL, NULL},
    {"GLU", 2, 2, NULL, NULL, fl__arch_run_glu},
    {"LSM", 2, 2, NULL, NULL, fl__arch_run_log_softmax},
    {"RNN", 3, 6, fl__arch_make_recurrent, fl__arch_recurrent_parameters, fl__arch_run_sequence},
    {"GRU", 3, 6, fl__arch_make_recurrent, fl__arch_recurrent_parameters, fl__arch_run_sequence},
    {"LSTM", 3, 6, fl__arch_make_recurrent, fl__arch_recurrent_parameters, fl__arch_run_sequence},
    {"SAUG", 7, 7, NULL, NULL, fl__arch_run_spec_augment},
    {"PC", 2, 2, fl__arch_make_cast, NULL, NULL}};
static const fl__arch_token fl__arch_scale = {"scale", 0, 0, NULL, NULL, fl__arch_run_scale};
static const char fl__arch_texts[] = " ADAPTIVEE PC "; /* tokens with non-numeric arguments */

/* ---- layers as modules ---- */

static fl_vars fl__arch_layer_forward(fl_nn_module *m, fl_vars in) {
    const fl__arch_layer *l = m->data;
    fl_var *y = l->token->run ? l->token->run(m, l, in.v[0]) : fl_nn_forward(m->child[0], in.v[0]);
    return (fl_vars){y != NULL, {y}};
}

static void fl__arch_layer_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__arch_layer *l = m->data;
    fl_nn_text t = {buf, size, 0};
    for (int i = 0; i < l->n; i++) fl_nn_put(&t, "%s%s", i ? " " : "", l->field[i]);
}

static const fl_nn_type fl__arch_layer_type = {.name = "Arch", .maker = "fl_speech_arch", .inputs = 1,
                                               .forward = fl__arch_layer_forward,
                                               .describe = fl__arch_layer_describe};

/* ---- reading ---- */

typedef struct fl__arch {
    const char *name, *at, *end;
    int64_t line, features, labels;
    double layers, parameters; /* so far */
    int depth;                 /* nesting of RES */
    fl_speech_arch_opts o;
} fl__arch;
enum { FL__ARCH_DEEPEST = 16 };

static bool fl__arch_fail(const fl__arch *a, const char *token, const char *what) {
    return fl_fail("fl_speech_arch: %s:%lld: %s: %s", a->name, (long long)a->line, token, what);
}

/* Prefixes the current error with file, line and token. */
static bool fl__arch_prefix_error(const fl__arch *a, const char *token) {
    char text[512];
    snprintf(text, sizeof text, "%s", fl_error() ? fl_error() : "cannot be created");
    fl_error_clear();
    return fl__arch_fail(a, token, text);
}

/* Counts layers and parameters before they are created, and checks the limits. */
static bool fl__arch_count(fl__arch *a, const char *token, double layers, double parameters) {
    char text[120];
    const struct { const char *name; double n, max; } limit[] = {
        {"layers", a->layers += layers, (double)a->o.max_layers},
        {"parameters", a->parameters += parameters > 0 ? parameters : 0, (double)a->o.max_parameters}};
    const int over = limit[0].n > limit[0].max ? 0 : 1;
    if (limit[over].n <= limit[over].max) return true;
    snprintf(text, sizeof text, "the network has %.0f %s, .max_%s is %.0f", limit[over].n, limit[over].name,
             limit[over].name, limit[over].max);
    return fl__arch_fail(a, token, text);
}

/* Copies a field, replacing NFEAT and NLABEL. */
static bool fl__arch_field(const fl__arch *a, const char *text, int64_t n, char *to) {
    int64_t k = 0;
    for (int64_t i = 0; i < n;) {
        const bool feat = n - i >= 5 && !memcmp(text + i, "NFEAT", 5),
                   label = n - i >= 6 && !memcmp(text + i, "NLABEL", 6);
        if (k >= FL__ARCH_FIELD - 24) return fl__arch_fail(a, "a field", "it is longer than 40 bytes");
        if (feat || label) k += snprintf(to + k, 24, "%lld", (long long)(feat ? a->features : a->labels));
        else to[k++] = text[i];
        i += feat ? 5 : label ? 6 : 1;
    }
    to[k] = 0;
    return true;
}

/* Reads the fields of the next non-empty line; n = 0 at the end. */
static bool fl__arch_line(fl__arch *a, fl__arch_layer *l) {
    *l = (fl__arch_layer){.rng = a->o.rng};
    while (!l->n && a->at < a->end) {
        const char *stop = memchr(a->at, '\n', (size_t)(a->end - a->at)), *p = a->at;
        if (!stop) stop = a->end;
        const char *hash = memchr(p, '#', (size_t)(stop - p)), *last = hash ? hash : stop;
        int64_t n;
        a->line++;
        a->at = stop < a->end ? stop + 1 : stop;
        for (const char *f; (f = fl_text_field(&p, last, &n));) {
            if (l->n == FL__ARCH_ARGS) return fl__arch_fail(a, l->field[0], "got more than 15 arguments");
            if (!fl__arch_field(a, f, n, l->field[l->n++])) return false;
        }
        l->line = a->line;
    }
    return true;
}

static bool fl__arch_numbers(const fl__arch *a, fl__arch_layer *l, int from) {
    char padded[FL__ARCH_FIELD + 2], text[160];
    snprintf(padded, sizeof padded, " %s ", l->field[0]);
    const bool texts = strstr(fl__arch_texts, padded) != NULL;
    for (int i = from; i < l->n; i++)
        if (!fl_data_parse_double(l->field[i], strlen(l->field[i]), &l->a[i]) || !(fabs(l->a[i]) < 1e9)) {
            if (texts) continue;
            snprintf(text, sizeof text, "argument %d, '%s', is not a number below 1e9", i, l->field[i]);
            return fl__arch_fail(a, l->field[0], text);
        }
    return true;
}

static bool fl__arch_check_count(const fl__arch *a, const fl__arch_layer *l, int least, int most) {
    char text[120];
    if (l->n >= least && l->n <= most) return true;
    snprintf(text, sizeof text, "got %d arguments, expected %d to %d", l->n - 1, least - 1, most - 1);
    return fl__arch_fail(a, l->field[0], text);
}

/* Checks ranges: axes are 0 to 3, kernels and strides 1 or more, and a V has at most one -1. */
static bool fl__arch_sizes_ok(const fl__arch *a, const fl__arch_layer *l) {
    static const char axes[] = "axes must be in 0 to 3", sizes[] = "kernels, strides and sizes must be >= 1",
                      pads[] = "a padding must be >= 0, or -1 (same length)",
                      views[] = "sizes must be >= 1, 0 (unchanged) or -1 (inferred)";
    static const struct { const char *token; int from, to, least, most; const char *what;
    } table[] = {{"V", 1, 9, -1, INT_MAX, views},   {"LN", 1, 4, 0, 3, axes},
                 {"BN", 2, 5, 0, 3, axes},          {"GLU", 1, 2, 0, 3, axes},
                 {"LSM", 1, 2, 0, 3, axes},         {"C", 3, 5, 1, INT_MAX, sizes},
                 {"C", 5, 6, -1, INT_MAX, pads},    {"C", 6, 7, 1, INT_MAX, sizes},
                 {"C1", 3, 5, 1, INT_MAX, sizes},   {"C1", 5, 6, -1, INT_MAX, pads},
                 {"C1", 6, 7, 1, INT_MAX, sizes},   {"C2", 3, 7, 1, INT_MAX, sizes},
                 {"C2", 7, 9, -1, INT_MAX, pads},   {"C2", 9, 11, 1, INT_MAX, sizes},
                 {"AC", 3, 5, 1, INT_MAX, sizes},   {"AC", 7, 8, 1, INT_MAX, sizes},
                 {"AC", 5, 6, -1, INT_MAX, pads},
                 {"M", 1, 5, 1, INT_MAX, sizes},    {"M", 5, 7, -1, INT_MAX, pads},
                 {"A", 1, 5, 1, INT_MAX, sizes},    {"A", 5, 7, -1, INT_MAX, pads},
                 {"RNN", 1, 4, 1, INT_MAX, sizes},  {"GRU", 1, 4, 1, INT_MAX, sizes},
                 {"LSTM", 1, 4, 1, INT_MAX, sizes}, {"TDS", 1, 4, 1, INT_MAX, sizes}};
    char text[120];
    int left = 0, seen = 0;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)
        for (int i = table[k].from; !strcmp(l->field[0], table[k].token) && i < table[k].to && i < l->n; i++)
            if (l->a[i] < table[k].least || l->a[i] > table[k].most || l->a[i] != floor(l->a[i]))
                return fl__arch_fail(a, l->field[0], table[k].what);
    for (int i = 1; *l->field[0] == 'V' && i < l->n; i++) left += l->a[i] == -1;
    if (left > 1) return fl__arch_fail(a, l->field[0], "at most one size may be -1");
    for (int i = 1; !strcmp(l->field[0], "RO") && i < l->n; i++)
        for (int axis = 0; axis < l->n - 1; axis++) seen |= (l->a[i] == axis) << axis;
    if (!strcmp(l->field[0], "RO") && seen != (1 << (l->n - 1)) - 1) {
        snprintf(text, sizeof text, "axes must be 0 to %d, each once", l->n - 2);
        return fl__arch_fail(a, "RO", text);
    }
    if (!strcmp(l->field[0], "AC") && l->n > 6 && !(l->a[6] >= 0 && l->a[6] <= 1)) {
        snprintf(text, sizeof text, "the fraction of padding at the end must be in [0, 1], got %g", l->a[6]);
        return fl__arch_fail(a, "AC", text);
    }
    if (!strcmp(l->field[0], "PD") && l->n % 2)
        return fl__arch_fail(a, l->field[0], "expected pairs of low and high padding");
    return true;
}

static fl_nn_module *fl__arch_layer_of(fl__arch *a, fl__arch_layer *l);

static fl_nn_module *fl__arch_module(fl__arch_layer *l, const fl__arch_token *token) {
    l->token = token;
    return fl_nn_new(&fl__arch_layer_type, l, sizeof *l);
}

/* WN axis layer: weight norm along one of Flashlight's axes, counted from the end for convolutions. */
static fl_nn_module *fl__arch_weight_norm(fl__arch *a, fl__arch_layer *l) {
    fl__arch_layer inner = {.n = l->n - 2, .line = l->line, .rng = l->rng};
    double axis;
    if (!fl__arch_check_count(a, l, 3, FL__ARCH_ARGS)) return NULL;
    if (!fl_data_parse_double(l->field[1], strlen(l->field[1]), &axis))
        return fl__arch_fail(a, "WN", "the axis is not a number"), NULL;
    for (int i = 0; i < inner.n; i++) memcpy(inner.field[i], l->field[i + 2], FL__ARCH_FIELD);
    fl_nn_module *m = fl__arch_layer_of(a, &inner), *layer = m ? fl_nn_find(m, "layer") : NULL;
    fl_var *w = layer ? fl_nn_get_param(layer, "weight") : NULL;
    const int dims = w ? fv_value(w)->ndim : 0, at = dims == 4 ? 3 - (int)axis : (int)axis;
    if (m && w && at >= 0 && at < dims && !fl__arch_count(a, "WN", 0, (double)fv_value(w)->shape[at])) {
        fl_nn_free(m);
        return NULL;
    }
    if (m && (!w || at < 0 || at >= dims || !fl_nn_weight_norm(layer, "weight", at))) {
        if (w && fl_error()) fl__arch_prefix_error(a, "WN");
        else fl__arch_fail(a, "WN", w ? "the weight does not have this axis" : "the layer has no weight");
        fl_nn_free(m);
        return NULL;
    }
    return m;
}

/* Creates the next n layers, in an array to be freed by the caller. Returns NULL after fl_fail. */
static fl_nn_module **fl__arch_list(fl__arch *a, int64_t n, const char *what) {
    fl_nn_module **list = fl_heap_alloc((size_t)(n ? n : 1) * sizeof *list);
    bool ok = list != NULL;
    int64_t got = 0;
    for (; ok && got < n; got += ok) {
        fl__arch_layer l;
        ok = fl__arch_line(a, &l) && (l.n || fl__arch_fail(a, what, "the file ends before all its layers")) &&
             (list[got] = fl__arch_layer_of(a, &l)) != NULL;
    }
    if (ok) return list;
    while (list && got) fl_nn_free(list[--got]);
    fl_heap_free(list);
    return NULL;
}

typedef struct fl__arch_skip {
    int64_t from, to;
    double scale;
    fl_nn_module *projection;
} fl__arch_skip;
enum { FL__ARCH_SKIPS = 32 };

/* Reads SKIP from to [scale] or SKIPL from to layers [scale] in a block of n layers. */
static bool fl__arch_read_skip(fl__arch *a, int64_t n, fl__arch_skip *s) {
    fl__arch_layer l;
    if (!fl__arch_line(a, &l)) return false;
    const bool plain = !strcmp(l.field[0], "SKIP"), projected = !strcmp(l.field[0], "SKIPL");
    if (!plain && !projected) return fl__arch_fail(a, l.n ? l.field[0] : "RES", "expected SKIP or SKIPL");
    if (!fl__arch_check_count(a, &l, 3 + projected, 4 + projected) || !fl__arch_numbers(a, &l, 1))
        return false;
    *s = (fl__arch_skip){(int64_t)l.a[1], (int64_t)l.a[2], fl__arch_number(&l, 3 + projected, 1), NULL};
    if (s->from < 0 || s->to > n + 1 || s->from >= s->to)
        return fl__arch_fail(a, l.field[0], "the layers do not exist or are not in order");
    if (!projected) return true;
    if (!(l.a[3] >= 1 && l.a[3] <= 100)) return fl__arch_fail(a, "SKIPL", "expected 1 to 100 layers");
    fl_nn_module **list = fl__arch_list(a, (int64_t)l.a[3], "SKIPL");
    if (list) s->projection = fl_nn_sequential_of((int)l.a[3], list);
    fl_heap_free(list);
    return s->projection != NULL;
}

/* Moves layers and skips into a residual block: each shortcut ends in a scale before its target layer.
   Modules not moved stay in the list. */
static bool fl__arch_block(fl_nn_module *m, fl_nn_module **list, int64_t n, fl__arch_skip *skip,
                           int64_t skips) {
    char from[FL_NN_NAME], to[FL_NN_NAME], name[FL_NN_NAME];
    for (int64_t k = 1; k <= n + 1; k++) {
        for (int64_t i = 0; i < skips; i++) {
            fl__arch_layer l = {.a = {skip[i].scale}, .n = 1};
            if (skip[i].to != k) continue;
            snprintf(l.field[0], FL__ARCH_FIELD, "scale %g", skip[i].scale);
            snprintf(to, sizeof to, "skip%lld", (long long)i);
            if (!fl_nn_add(m, to, fl__arch_module(&l, &fl__arch_scale))) return false;
        }
        snprintf(to, sizeof to, "layer%lld", (long long)k);
        if (k > n) break;
        fl_nn_module *child = list[k - 1];
        list[k - 1] = NULL;
        if (!fl_nn_add(m, to, child)) return false;
    }
    for (int64_t i = 0; i < skips; i++) {
        snprintf(from, sizeof from, "layer%lld", (long long)skip[i].from);
        snprintf(to, sizeof to, "skip%lld", (long long)i);
        snprintf(name, sizeof name, "projection%lld", (long long)i);
        fl_nn_module *projection = skip[i].projection;
        skip[i].projection = NULL;
        if (!fl_nn_shortcut(m, skip[i].from ? from : NULL, to, name, projection)) return false;
    }
    return true;
}

/* RES layers skips [blocks]: creates several blocks by reading the lines repeatedly. */
static fl_nn_module *fl__arch_residual(fl__arch *a, fl__arch_layer *l) {
    if (!fl__arch_check_count(a, l, 3, 4) || !fl__arch_numbers(a, l, 1)) return NULL;
    const int64_t n = (int64_t)l->a[1], skips = (int64_t)l->a[2], blocks = fl__arch_int(l, 3, 1);
    if (n < 1 || n > 1000 || a->depth == FL__ARCH_DEEPEST || skips < 0 || skips > FL__ARCH_SKIPS ||
        blocks < 1 || blocks > 1000)
        return fl__arch_fail(a, "RES", "expected 1 to 1000 layers, 0 to 32 skips, 1 to 1000 blocks, nested "
                             "at most 16 "
                                       "deep"), NULL;
    a->depth++;
    fl__arch from = *a;
    fl_nn_module *all = fl_nn_sequential_of(0, NULL);
    bool ok = all != NULL;
    for (int64_t b = 0; ok && b < blocks; b++) {
        fl__arch_skip skip[FL__ARCH_SKIPS] = {{0, 0, 0, NULL}};
        from.layers = a->layers, from.parameters = a->parameters, *a = from;
        fl_nn_module **list = fl__arch_list(a, n, "RES");
        ok = list != NULL;
        for (int64_t i = 0; ok && i < skips; i++) ok = fl__arch_read_skip(a, n, &skip[i]);
        fl_nn_module *block = ok ? fl_nn_add(all, NULL, fl_nn_residual_of(0, NULL)) : NULL;
        if (ok && !(ok = block && fl__arch_block(block, list, n, skip, skips)))
            fl__arch_prefix_error(a, "RES");
        for (int64_t i = 0; i < skips; i++) fl_nn_free(skip[i].projection);
        for (int64_t i = 0; list && i < n; i++) fl_nn_free(list[i]);
        fl_heap_free(list);
    }
    a->depth--;
    if (ok) return all;
    fl_nn_free(all);
    return NULL;
}

/* The number of layers that a line counts as. */
static double fl__arch_depth(const fl__arch_layer *l, const fl__arch_token *t) {
    return t->make == fl__arch_make_recurrent ? (double)fl__arch_int(l, 3, 1) : 1;
}

static fl_nn_module *fl__arch_layer_of(fl__arch *a, fl__arch_layer *l) {
    if (!fl__arch_count(a, l->field[0], 1, 0)) return NULL;
    if (!strcmp(l->field[0], "WN")) return fl__arch_weight_norm(a, l);
    if (!strcmp(l->field[0], "RES")) return fl__arch_residual(a, l);
    for (size_t i = 0; i < sizeof fl__arch_tokens / sizeof *fl__arch_tokens; i++) {
        const fl__arch_token *t = &fl__arch_tokens[i];
        if (strcmp(l->field[0], t->name) != 0) continue;
        if (!fl__arch_check_count(a, l, t->least, t->most) || !fl__arch_numbers(a, l, 1) ||
            !fl__arch_sizes_ok(a, l) ||
            !fl__arch_count(a, t->name, fl__arch_depth(l, t) - 1, t->parameters ? t->parameters(l) : 0))
            return NULL;
        fl_nn_module *m = fl__arch_module(l, t);
        if (m && (!t->make || t->make(m, l))) return m;
        fl_nn_free(m);
        fl__arch_prefix_error(a, t->name);
        return NULL;
    }
    fl__arch_fail(a, l->field[0], "unknown layer");
    return NULL;
}

FL_API fl_nn_module *fl_speech_arch_parse(const char *name, const char *text, int64_t n, int64_t features,
                                          int64_t labels, fl_speech_arch_opts o) {
    fl__arch a = {.name = name, .at = text, .end = text + n, .features = features, .labels = labels, .o = o};
    a.o.max_layers = o.max_layers ? o.max_layers : 4096;
    a.o.max_parameters = o.max_parameters ? o.max_parameters : 1 << 29;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    bool ok = m != NULL;
    while (ok) {
        fl__arch_layer l;
        if (!(ok = fl__arch_line(&a, &l)) || !l.n) break;
        fl_nn_module *child = fl__arch_layer_of(&a, &l);
        ok = child && fl_nn_add(m, NULL, child);
    }
    if (ok && !m->n_child) ok = fl_fail("fl_speech_arch: %s: the file has no layers", name);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

FL_API fl_nn_module *fl_speech_arch_opt(const char *path, int64_t features, int64_t labels,
                                        fl_speech_arch_opts o) {
    int64_t n;
    char *text = fl_text_read_file("fl_speech_arch", path, &n);
    fl_nn_module *m = text ? fl_speech_arch_parse(path, text, n, features, labels, o) : NULL;
    fl_heap_free(text);
    return m;
}

FL_API fl_var *fl_speech_arch_forward(fl_nn_module *m, fl_var *x, fl_tensor *steps, fl_tensor **steps_out) {
    const char *fn = "fl_speech_arch_forward";
    if (fl_is_null_arg(fn, m) || fl_is_null_arg(fn, x)) return NULL;
    const fl_tensor *v = fv_value(x);
    if (v->ndim != 3 ||
        (steps && (steps->ndim != 1 || steps->dtype != FL_I64 || steps->shape[0] != v->shape[0]))) {
        fl_err_false("%s: got features %s, steps %s; expected [n, t, features], i64 [n]", fn,
                     FL_SHAPE_TEXT(v), steps ? FL_SHAPE_TEXT(steps) : "NULL");
        return NULL;
    }
    fl_scope s = fl_scope_begin();
    fl__arch_steps = steps, fl__arch_frames = v->shape[1];
    fl_var *y = fl_nn_forward(m, fv_unsqueeze(fv_transpose(x, 1, 2), 1));
    fl__arch_steps = NULL;
    const fl_tensor *t = y ? fv_value(y) : NULL;
    if (t && t->ndim == 4 && t->shape[0] == 1 && t->shape[1] == v->shape[0]) y = fv_squeeze(y, 0);
    else if (t) {
        fl_err_false("%s: the network's output is %s, expected [1, %lld, t, labels]: (labels, time, batch, "
                     "1)", fn, FL_SHAPE_TEXT(t), (long long)v->shape[0]);
        y = NULL;
    }
    if (y && steps && steps_out) {
        *steps_out = fl__arch_steps_of(steps, v->shape[1], fv_value(y)->shape[1]);
        if (*steps_out) fl_scope_escape(&s, *steps_out);
        else y = NULL;
    }
    return fv_scope_return(&s, y);
}

/* ---- streaming ---- */

/* State of a layer: frames needed by later outputs, inputs that wait for the residual sum, keys and values,
   hidden states of recurrent layers. */
typedef struct fl__arch_state {
    fl_nn_module *m;
    const fl__arch_layer *l;
    fl_tensor *pending, *residual;
    fl_nn_cache *cache;
    fl_var *h[2];
    bool begun;
} fl__arch_state;

struct fl_speech_arch_stream {
    fl__arch_state *layer;
    int64_t n, ahead;
};

static void fl__arch_reset(fl__arch_state *s) {
    fl_drop(s->pending), fl_drop(s->residual), fv_drop(s->h[0]), fv_drop(s->h[1]);
    s->pending = s->residual = NULL, s->h[0] = s->h[1] = NULL, s->begun = false;
    if (s->cache) fl_nn_cache_reset(s->cache);
}

static bool fl__arch_assign(fl_tensor **slot, fl_tensor *t) {
    t = t ? fl_contiguous(t) : NULL;
    fl_keep(t);
    fl_drop(*slot);
    *slot = t;
    return t != NULL;
}

/* A layer as a sliding window: padding at the start and at the end, length of the window, stride. */
typedef struct fl__arch_window {
    int64_t low, high, span, hop;
} fl__arch_window;

static bool fl__arch_window_of(const fl__arch_layer *l, fl__arch_window *w) {
    const char *t = l->field[0];
    const bool two = !strcmp(t, "C2"), pool = !strcmp(t, "M") || !strcmp(t, "A");
    int64_t pad = 0;
    *w = (fl__arch_window){0, 0, 1, 1};
    if (!strcmp(t, "TDS"))
        *w = (fl__arch_window){(int64_t)l->a[2] - 1 - fl__arch_tds_ahead(l), fl__arch_tds_ahead(l),
                               (int64_t)l->a[2], 1};
    else if (pool) w->span = (int64_t)l->a[1], w->hop = (int64_t)l->a[3], pad = fl__arch_int(l, 5, 0);
    else if (two || *t == 'C' || !strcmp(t, "AC")) {
        w->span = ((int64_t)l->a[3] - 1) * fl__arch_int(l, two ? 9 : *t == 'A' ? 7 : 6, 1) + 1;
        w->hop = (int64_t)l->a[two ? 5 : 4], pad = fl__arch_int(l, two ? 7 : 5, 0);
    } else return false;
    w->low += pad, w->high += pad;
    if (!strcmp(t, "AC") && (pad >= 0 || w->hop == 1)) {
        const int64_t both = pad < 0 ? w->span - 1 : 2 * pad;
        w->high = fl__arch_ahead(l, both), w->low = both - w->high;
    } else if (pad < 0)
        w->high = w->hop == 1 ? w->span - 1 - (w->span - 1) / 2 : -1, w->low = (w->span - 1) / 2;
    return w->low >= 0 && w->high >= 0 && w->hop >= 1 && w->hop <= w->span && (!pool || pad == 0);
}

/* *out becomes the frames that the next outputs see, [b, c, f, t]; NULL if no output is ready. */
static bool fl__arch_slide(fl__arch_state *s, fl_tensor *x, bool end, const fl__arch_window *w,
                           fl_tensor **out) {
    fl_tensor *part[4], *like = x ? x : s->pending, *all = NULL;
    int n = 0;
    *out = NULL;
    if (!like) return true;
    fl_shape zeros = fl_shape_of(like);
    zeros.dim[3] = w->low;
    if (!s->begun && w->low) part[n++] = fl_new_full(like, zeros, 0);
    if (s->pending) part[n++] = s->pending;
    if (x) part[n++] = x;
    zeros.dim[3] = w->high;
    if (end && w->high) part[n++] = fl_new_full(like, zeros, 0);
    s->begun = true;
    if (!(all = fl_concat(part, n, 3))) return false;
    const int64_t t = all->shape[3], outs = t >= w->span ? (t - w->span) / w->hop + 1 : 0;
    if (outs && !(*out = fl_slice(all, 3, 0, (outs - 1) * w->hop + w->span, 1))) return false;
    return fl__arch_assign(&s->pending, fl_slice(all, 3, outs * w->hop, t, 1));
}

/* The layer's convolution without padding along time. */
static fl_var *fl__arch_bare_conv(const fl__arch_state *s, fl_tensor *x) {
    fl_nn_module *conv = fl_nn_find(s->m, !strcmp(s->l->field[0], "TDS") ? "conv" : "layer");
    fl_var *w = fl_nn_get_param(conv, "weight"), *g = fl_nn_get_param(conv, "weight_g");
    const fl__arch_layer *l = s->l;
    const bool two = !strcmp(l->field[0], "C2"), tds = *l->field[0] == 'T';
    int axis = 0;
    for (int i = 0; g && i < 4; i++)
        if (fv_value(g)->shape[i] > 1) axis = i;
    if (g) w = fv_weight_norm(fl_nn_get_param(conv, "weight_v"), g, axis);
    const int64_t pad = two ? fl__arch_int(l, 8, 0) : 0, gap = two ? 9 : *l->field[0] == 'A' ? 7 : 6;
    const int64_t kernel = two ? (int64_t)l->a[4] : 1, step = two && l->a[6] > 0 ? (int64_t)l->a[6] : 1,
                  bands = x->shape[2];
    const int64_t same =
        (bands + step - 1) / step * step - step + (kernel - 1) * fl__arch_int(l, 10, 1) + 1 - bands;
    const int64_t below = pad < 0 && same > 0 ? same / 2
                          : pad < 0           ? 0
                                              : pad,
                  above = pad < 0 && same > 0 ? same - below : below;
    fl_var *y = fv_pad(fv_const(x), .low = {0, 0, below, 0}, .high = {0, 0, above, 0});
    return fv_conv(y, w, fl_nn_get_param(conv, "bias"),
                   .stride = {step, tds ? 1 : (int64_t)l->a[two ? 5 : 4]}, .pad = {0},
                   .dilation = {two ? fl__arch_int(l, 10, 1) : 1, tds ? 1 : fl__arch_int(l, (int)gap, 1)});
}

/* The next outputs of a sliding window; NULL if there are none. */
static bool fl__arch_push_window(fl__arch_state *s, const fl__arch_window *w, fl_tensor *x, bool end,
                                 fl_tensor **y) {
    const bool tds = !strcmp(s->l->field[0], "TDS"),
               pool = *s->l->field[0] == 'M' || !strcmp(s->l->field[0], "A");
    fl_tensor *in, *waiting[] = {s->residual, x};
    if (tds && x && !fl__arch_assign(&s->residual, s->residual ? fl_concat(waiting, 2, 3) : x)) return false;
    *y = NULL;
    if (!fl__arch_slide(s, x, end, w, &in)) return false;
    if (!in) return true;
    fl_var *v = pool ? fl_nn_forward(s->m->child[0], fv_const(in)) : fl__arch_bare_conv(s, in);
    if (v && tds) {
        const int64_t n = fv_value(v)->shape[3];
        v = fl__arch_tds_rest(s->m, s->l, fv_const(fl_slice(s->residual, 3, 0, n, 1)), v);
        if (!v || !fl__arch_assign(&s->residual, fl_slice(s->residual, 3, n, s->residual->shape[3], 1)))
            return false;
    }
    *y = v ? fv_value(v) : NULL;
    return v != NULL;
}

static fl_var *fl__arch_push_recurrent(fl__arch_state *s, fl_tensor *x) {
    const bool lstm = *s->l->field[0] == 'L';
    fl_vars in = {s->h[0] ? 2 + lstm : 1, {fv_const(fl_select(x, 0, 0)), s->h[0], s->h[1]}};
    fl_vars out = fl_nn_forward_vars(s->m->child[0], in);
    for (int i = 0; i < 1 + lstm && out.n; i++) {
        fv_keep(out.v[1 + i]);
        fv_drop(s->h[i]);
        s->h[i] = out.v[1 + i];
    }
    return out.n ? fv_unsqueeze(out.v[0], 0) : NULL;
}

/* Pads along time before the first and after the last frame. */
static bool fl__arch_push_pad(fl__arch_state *s, fl_tensor *x, bool end, fl_tensor **y) {
    fl_pad_opts o = {.value = s->l->a[1]};
    for (int i = 0; 2 + 2 * i < s->l->n; i++)
        o.low[3 - i] = (int64_t)s->l->a[2 + 2 * i], o.high[3 - i] = (int64_t)s->l->a[3 + 2 * i];
    if (s->begun) o.low[3] = 0;
    if (!end) o.high[3] = 0;
    if (!x && s->pending && o.high[3]) x = s->pending;
    *y = x ? fl_pad_opt(x, o) : NULL;
    if (x && x->shape[3]) s->begun = true;
    return (!x || *y) && (!x || fl__arch_assign(&s->pending, fl_slice(x, 3, 0, 0, 1)));
}

/* Runs one layer: *x becomes its output, NULL if there is no frame. */
static bool fl__arch_push(fl__arch_state *s, fl_tensor **x, bool end) {
    fl__arch_window w;
    if (!strcmp(s->l->field[0], "PD")) return fl__arch_push_pad(s, *x, end, x);
    if (fl__arch_window_of(s->l, &w)) return fl__arch_push_window(s, &w, *x, end, x);
    if (!*x) return true;
    fl_var *y;
    if (s->cache) {
        y = fl_nn_forward_cached(s->m->child[0], FL_VARS(fv_const(fl_select(*x, 0, 0))), s->cache).v[0];
        y = y ? fv_unsqueeze(y, 0) : NULL;
    } else if (s->l->token->make == fl__arch_make_recurrent) y = fl__arch_push_recurrent(s, *x);
    else y = fl_nn_forward(s->m, fv_const(*x));
    if (y && !strcmp(s->l->field[0], "V") && fv_value(y)->shape[3] != (*x)->shape[3])
        return fl_err_false("fl_speech_arch_stream_push: line %lld: V changes the number of frames from %lld "
                            "to %lld", (long long)s->l->line, (long long)(*x)->shape[3],
                            (long long)fv_value(y)->shape[3]);
    *x = y ? fv_value(y) : NULL;
    return y != NULL;
}

/* Why a layer cannot be streamed along time axis *time, or NULL; *time becomes its output's time axis. */
static const char *fl__arch_unstreamable(const fl__arch_layer *l, int *time) {
    static const char whole[] = " CFR POSEMB SINPOSEMB E ADAPTIVEE scale SAUG ";
    fl__arch_window w;
    char name[FL__ARCH_FIELD + 2];
    const char *t = l->field[0];
    const int at = 3 - *time; /* the axis as counted in files */
    snprintf(name, sizeof name, " %s ", t);
    if (strcmp(t, "SAUG") != 0 && strstr(whole, name)) return "it needs the whole sequence";
    const bool windowed = fl__arch_window_of(l, &w),
               conv = *t == 'C' || *t == 'M' || !strcmp(t, "A") || !strcmp(t, "AC");
    if (conv && !windowed) return "its padding depends on the length, or its stride exceeds the kernel";
    if ((windowed || !strcmp(t, "PD")) && at) return "time is not its first axis";
    if (!strcmp(t, "PD") && (l->a[2] < 0 || l->a[3] < 0)) return "its padding is negative";
    if (!strcmp(t, "TDS") && (!windowed || fl__arch_int(l, 7, 1))) return "its norms include time";
    if (!strcmp(t, "TR") && (!fl__arch_int(l, 8, 0) || at != 1)) return "it is not causal";
    if (l->token->make == fl__arch_make_recurrent && (fl__arch_int(l, 4, 0) || at != 2))
        return "it is bidirectional";
    if (!strcmp(t, "L") && !at) return "it combines frames";
    if ((!strcmp(t, "V") || !strcmp(t, "RO")) && l->n > 5) return "it has more than 4 axes";
    if (!strcmp(t, "V") && (at || (l->a[1] != 0 && l->a[1] != -1))) return "it fixes the number of frames";
    for (int i = *t == 'B' ? 2 : 1;
         (!strcmp(t, "LN") || !strcmp(t, "BN") || !strcmp(t, "GLU") || !strcmp(t, "LSM")) && i < l->n; i++)
        if ((int)l->a[i] == at) return "its axes include time";
    for (int i = 0; !strcmp(t, "RO") && i < l->n - 1; i++)
        if ((int)l->a[1 + i] == at) {
            *time = 3 - i;
            break;
        }
    return NULL;
}

FL_API void fl_speech_arch_stream_free(fl_speech_arch_stream *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) fl__arch_reset(&s->layer[i]), fl_nn_cache_free(s->layer[i].cache);
    fl_heap_free(s->layer);
    fl_heap_free(s);
}

FL_API int64_t fl_speech_arch_stream_ahead(const fl_speech_arch_stream *s) {
    return fl_given(s, "fl_speech_arch_stream_ahead", "the stream") ? s->ahead : -1;
}

FL_API fl_speech_arch_stream *fl_speech_arch_stream_new_opt(fl_nn_module *m, fl_speech_arch_stream_opts o) {
    if (!fl_given(m, "fl_speech_arch_stream_new", "the module")) return NULL;
    fl_speech_arch_stream *s = m ? fl_heap_alloc(sizeof *s) : NULL;
    int64_t hop = 1;
    int time = 3;
    if (!s) return NULL;
    *s = (fl_speech_arch_stream){fl_heap_alloc((size_t)(m->n_child + 1) * sizeof *s->layer), 0, 0};
    bool ok = s->layer != NULL;
    for (int64_t i = 0; ok && i < m->n_child; i++) {
        fl_nn_module *c = m->child[i];
        const bool is = c->type == &fl__arch_layer_type;
        const fl__arch_layer *l = is ? c->data : NULL;
        const char *why = is ? fl__arch_unstreamable(l, &time) : "blocks with shortcuts cannot be streamed";
        fl__arch_window w;
        if (why && !is) ok = fl_fail("fl_speech_arch_stream: layer %lld, RES: %s", (long long)i, why);
        else if (why)
            ok = fl_fail("fl_speech_arch_stream: line %lld: %s cannot be streamed: %s", (long long)l->line,
                         l->field[0], why);
        if (!ok) break;
        s->layer[s->n++] = (fl__arch_state){.m = c, .l = l};
        if (!strcmp(l->field[0], "TR"))
            ok = (s->layer[i].cache = fl_nn_cache_new(c->child[0], 1, fl_option_int(o.frames, 6000))) != NULL;
        if (!strcmp(l->field[0], "PD")) s->ahead -= hop * (int64_t)l->a[2];
        if (fl__arch_window_of(l, &w)) s->ahead += hop * (w.span - 1 - w.low), hop *= w.hop;
    }
    if (ok && time != 2)
        ok = fl_fail("fl_speech_arch_stream: expected a network with output (labels, time, 1, 1)");
    if (ok) return s;
    fl_speech_arch_stream_free(s);
    return NULL;
}

FL_API bool fl_speech_arch_stream_push(fl_speech_arch_stream *s, fl_tensor *x, bool end, fl_tensor **y) {
    if (!fl_given(s, "fl_speech_arch_stream_push", "the stream") ||
        !fl_given(y, "fl_speech_arch_stream_push", "the result")) return false;
    fl_scope scope = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    fl_tensor *t = NULL;
    *y = NULL;
    bool ok = !x || x->ndim == 2 ||
              fl_err_false("fl_speech_arch_stream_push: got features %s, expected [frames, n]",
                           FL_SHAPE_TEXT(x));
    if (ok && x && x->shape[0]) ok = (t = fl_unsqueeze(fl_unsqueeze(fl_transpose(x, 0, 1), 0), 0)) != NULL;
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__arch_push(&s->layer[i], &t, end);
    if (ok && t) ok = (*y = fl_select(fl_select(t, 0, 0), 0, 0)) != NULL;
    for (int64_t i = 0; i < s->n && (end || !ok); i++) fl__arch_reset(&s->layer[i]);
    fl_no_grad(recorded);
    *y = fl_scope_return(&scope, ok ? *y : NULL);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
