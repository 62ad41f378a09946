/* fl/text/models/models.h - language models: a transformer with options, gated convolutions, LSTM */
#ifndef FL_TEXT_MODELS_MODELS_H
#define FL_TEXT_MODELS_MODELS_H
#ifndef FL_NN_H
#include "../../../fl_nn.h"
#endif
#include "../../ops/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_text_lm_kind { FL_LM_TRANSFORMER, FL_LM_GCNN, FL_LM_LSTM } fl_text_lm_kind;
typedef enum fl_text_lm_position {
    FL_LM_LEARNED,
    FL_LM_ROTARY,
    FL_LM_SINUSOID,
    FL_LM_NO_POSITION
} fl_text_lm_position;

/* Options of all models. The defaults are GPT-2's; Llama is {.place = FL_LM_ROTARY, .rms = true,
   .gated = true, .no_bias = true, .untied = true}; BERT {.post_norm = true, .bidirectional = true,
   .types = 2, .masked_head = true}. */
typedef struct fl_text_lm_opts {
    fl_opts_guard guard_;
    fl_text_lm_kind kind;
    int64_t layers, dim, heads; /* 0 -> 6, 384, 6 */
    int64_t kv_heads;   /* grouped-query attention; 0 -> heads */
    int64_t hidden;     /* width of the feed-forward layers; 0 -> 4 dim */
    int64_t context;    /* tokens at most, 0 -> 256; the number of learned positions */
    fl_text_lm_position place; /* position encoding */
    fl_rotary_opts rope; /* for FL_LM_ROTARY */
    double embedding_scale; /* factor on the embeddings; 0 -> 1 */
    int64_t window;     /* sliding-window attention over this many tokens; 0 -> all */
    bool rms, gated, post_norm,
        bidirectional;                /* see fl_nn_transformer; pre-norm models have a final norm */
    fl_var *(*activation)(fl_var *x); /* NULL -> fv_gelu_tanh, if gated fv_silu */
    bool no_bias, qkv_bias; /* qkv_bias: no_bias, except for the query, key and value projections */
    int64_t types;      /* token types (segments), as BERT's two; 0 -> 1, none */
    bool embedding_norm; /* a norm after the embeddings */
    bool masked_head;   /* scores = decoder(norm(gelu(dense(x)))) + bias, as BERT's */
    bool untied;        /* the output projection has its own weight, not the embedding's */
    fl_shape cutoffs;   /* adaptive embedding and softmax, see fl_nn_adaptive_softmax */
    int64_t kernel;     /* FL_LM_GCNN: kernel size in steps, 0 -> 4 */
    double eps, dropout;
    double std;         /* standard deviation of the initial weights, 0 -> 0.02 */
    fl_shape bos, eos;  /* ids that begin and end a text, for files: FL_SHAPE(1); ndim 0 -> none */
    fl_rng *rng;
    char _end;
} fl_text_lm_opts;
/* A language model over `vocabulary` ids. Inputs: tokens i64 [n, t]; optionally a mask b8 [n, t], true where
   a token is not padding (fv_num(0): none); optionally types i64 [n, t] (default 0). Output: scores (logits)
   [n, t, vocabulary]; log probabilities with an adaptive softmax.
     FL_LM_TRANSFORMER  x = embedding + positions, layers of fl_nn_transformer, norm, output projection
     FL_LM_GCNN         x = embedding, layers of x + glu(conv(x)) with causal convolutions of `kernel` steps,
                          weight normalisation (arXiv 1612.08083), norm, output projection
     FL_LM_LSTM         x = embedding, an LSTM of `layers`, norm, output projection
   Weights that end residual branches are initialised with std / sqrt(2 layers), as GPT-2's. */
#define fl_text_lm(...) FL_TEXT__LM(__VA_ARGS__, ._end = 0)
#define FL_TEXT__LM(vocabulary, ...) fl_text_lm_opt(vocabulary, FL_LITERAL(fl_text_lm_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_text_lm_opt(int64_t vocabulary, fl_text_lm_opts o);
/* The options of a model with defaults filled in; NULL after an error, if m is not a model of fl_text_lm. */
FL_API const fl_text_lm_opts *fl_text_lm_info(const fl_nn_module *m, int64_t *vocabulary);
/* Embeddings [..., dim] of tokens i64 [n] or [n, t]; the table may be quantised. */
FL_API fl_var *fl_text_embed(fl_nn_module *m, fl_var *tokens);
/* The first half of a forward call: inputs -> hidden states x [n, t, dim]. */
FL_API fl_var *fl_text_features(fl_nn_module *m, fl_vars in);
/* The second half: hidden states x [..., dim] -> scores [..., vocabulary]. */
FL_API fl_var *fl_text_scores(fl_nn_module *m, fl_var *x);
/* Cross entropy in nats for targets i64 [n, t] (-100: ignored), the mean or FL_SUM. With an adaptive softmax
   it does not compute the scores of all words. */
FL_API fl_var *fl_text_loss(fl_nn_module *m, fl_vars in, fl_tensor *targets, fl_reduction reduction);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_MODELS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_MODELS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_MODELS_IMPL
#define FL_TEXT_MODELS_MODELS_IMPL
#include "../../ops/activation.h"
#include "../../ops/autocast.h"
#include "../../ops/copy.h"
#include "../../ops/elementwise.h"
#include "../../ops/linear.h"
#include "../../ops/reduce.h"
#include "../../ops/softmax.h"
#include "../../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__lm {
    int64_t vocabulary;
    fl_text_lm_opts o;
    /* children, owned by the module tree; NULL if the model has none */
    fl_nn_module *embedding, *types, *position, *norm_in, *dropout, *layers, *norm, *transform, *head;
} fl__lm;

static const fl_nn_type fl__lm_type;

static const fl__lm *fl__lm_of(const fl_nn_module *m, const char *fn) {
    if (m && m->type == &fl__lm_type) return m->data;
    fl_fail("%s: the model is not one of fl_text_lm: got %s", fn, m ? m->kind : "NULL");
    fl_raise();
    return NULL;
}

FL_API const fl_text_lm_opts *fl_text_lm_info(const fl_nn_module *m, int64_t *vocabulary) {
    const fl__lm *t = fl__lm_of(m, "fl_text_lm_info");
    if (t && vocabulary) *vocabulary = t->vocabulary;
    return t ? &t->o : NULL;
}

/* ---- private layers ---- */

/* A linear layer with another module's weight and, optionally, a bias of its own. */
static fl_vars fl__lm_tied_forward(fl_nn_module *m, fl_vars in) {
    return FL_VARS(fv_linear(in.v[0], fl_nn_param_at(m, 0), fl_nn_param_at(m, 1)));
}

static const fl_nn_type fl__lm_tied_type = {
    .name = "TiedLinear", .inputs = 1, .forward = fl__lm_tied_forward};

/* x + glu(conv(x)) of x [n, t, dim]. */
static fl_vars fl__lm_gated_forward(fl_nn_module *m, fl_vars in) {
    fl_var *y = fl_nn_forward(m->child[0], fv_transpose(in.v[0], 1, 2));
    return FL_VARS(fv_add(in.v[0], fv_transpose(fv_glu(y, 1), 1, 2)));
}

static const fl_nn_type fl__lm_gated_type = {.name = "GatedConv", .inputs = 1,
                                               .forward = fl__lm_gated_forward};

/* ---- calls ---- */

/* b8 [n, t] as attention's mask [n, 1, 1, t]. */
static fl_var *fl__lm_attention_mask(const fl_var *mask) {
    return fv_const(fl_unsqueeze(fl_unsqueeze(fv_value(mask), 1), 1));
}

/* Rows [n, dim] of a quantised table. */
static fl_tensor *fl__lm_unpack_rows(fl_tensor *table, fl_tensor *tokens) {
    const int64_t n = fl_numel(tokens), blocks = table->shape[1];
    int64_t *id = fl_heap_alloc((size_t)n * sizeof *id);
    fl_tensor *rows = id ? fl_empty(FL_SHAPE(n, blocks), table->dtype) : NULL;
    const size_t bytes = (size_t)blocks * fl_dtype_size(table->dtype);
    const char *from = rows && fl_to_host(tokens, id, (size_t)n * sizeof *id) ? fl_map(table, FL_READ) : NULL;
    char *to = from ? fl_map(rows, FL_WRITE) : NULL;
    bool ok = to != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        ok = id[i] >= 0 && id[i] < table->shape[0];
        if (ok) memcpy(to + (size_t)i * bytes, from + (size_t)id[i] * bytes, bytes);
        else fl_fail("fl_text_embed: id is out of range: got %" PRId64 ", expected [0, %" PRId64 ")", id[i],
                     table->shape[0]);
    }
    if (to) fl_unmap(rows, FL_WRITE);
    if (from) fl_unmap(table, FL_READ);
    fl_heap_free(id);
    if (!ok) fl_raise();
    return ok ? fl_cast(rows, FL_F32) : NULL;
}

FL_API fl_var *fl_text_embed(fl_nn_module *m, fl_var *tokens) {
    const fl__lm *t = fl__lm_of(m, "fl_text_embed");
    if (!t || !fl_given(tokens, "fl_text_embed", "tokens")) return fl_raise();
    fl_tensor *table = t->embedding->n_param ? fv_value(fl_nn_param_at(t->embedding, 0)) : NULL;
    if (!table || !fl_dtype_registered(table->dtype)) return fl_nn_forward(t->embedding, tokens);
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(fv_value(tokens));
    fl_tensor *rows = fl__lm_unpack_rows(fl_contiguous(table), fl_contiguous(fv_value(tokens)));
    if (rows) shape.dim[shape.ndim++] = rows->shape[1];
    return fv_scope_return(&s, rows ? fv_const(fl_reshape(rows, shape)) : NULL);
}

static fl_var *fl__lm_embed(fl_nn_module *m, const fl_vars *in) {
    const fl__lm *t = m->data;
    fl_var *x = fl_text_embed(m, in->v[0]);
    if (t->o.embedding_scale != 1) x = fv_mul(x, fv_num(t->o.embedding_scale));
    if (t->types) { /* type 0 by default */
        fl_var *row = in->n > 2 ? fl_nn_forward(t->types, in->v[2])
                                : fv_slice(fl_nn_param_at(t->types, 0), 0, 0, 1, 1);
        x = fv_add(x, row);
    }
    if (t->position) x = fl_nn_forward(t->position, x);
    if (t->norm_in) x = fl_nn_forward(t->norm_in, x);
    return t->dropout ? fl_nn_forward(t->dropout, x) : x;
}

FL_API fl_var *fl_text_features(fl_nn_module *m, fl_vars in) {
    const fl__lm *t = fl__lm_of(m, "fl_text_features");
    if (!t) return NULL;
    const fl_tensor *tokens = in.n ? fv_value(in.v[0]) : NULL;
    if (in.n < 1 || in.n > 3 || !tokens || tokens->ndim != 2 || tokens->dtype != FL_I64) {
        if (in.n && !tokens) return NULL;
        fl_nn_fail(m, "got %d inputs, the first %s %s, expected tokens i64 [n, t], then a mask and types",
                   in.n,
                   tokens ? fl_dtype_name(tokens->dtype) : "none", tokens ? FL_SHAPE_TEXT(tokens) : "");
        return fl_raise();
    }
    fl_var *x = fl__lm_embed(m, &in);
    const bool masked = in.n > 1 && in.v[1] && !fv_value(in.v[1])->weak;
    if (masked && t->o.kind == FL_LM_TRANSFORMER)
        x = fl_nn_forward_vars(t->layers, FL_VARS(x, fl__lm_attention_mask(in.v[1]))).v[0];
    else x = fl_nn_forward(t->layers, x);
    return t->norm && x ? fl_nn_forward(t->norm, x) : x;
}

/* Log probabilities of all words by an adaptive softmax, of x [k, dim]. */
static fl_var *fl__lm_adaptive_scores(const fl__lm *t, fl_var *x) {
    const int64_t first = t->o.cutoffs.dim[0];
    fl_nn_module *tail = fl_nn_find(t->head, "tail");
    fl_var *part[FL_MAX_DIMS] = {NULL},
           *head = fv_log_softmax(fl_nn_forward(fl_nn_find(t->head, "head"), x), 1);
    part[0] = fv_slice(head, 1, 0, first, 1);
    for (int i = 1; i < t->o.cutoffs.ndim; i++) {
        fl_var *of = fv_slice(head, 1, first + i - 1, first + i, 1);
        part[i] = fv_add(of, fv_log_softmax(fl_nn_forward(tail->child[i - 1], x), 1));
    }
    return fv_concat(part, t->o.cutoffs.ndim, 1);
}

FL_API fl_var *fl_text_scores(fl_nn_module *m, fl_var *x) {
    const fl__lm *t = fl__lm_of(m, "fl_text_scores");
    if (!t || !fl_given(x, "fl_text_scores", "x")) return fl_raise();
    if (t->transform) x = fl_nn_forward(t->transform, x);
    if (!t->o.cutoffs.ndim || !x) return fl_nn_forward(t->head, x);
    fl_shape s = fl_shape_of(fv_value(x));
    fl_var *y = fl__lm_adaptive_scores(t, fv_reshape(x, FL_SHAPE(-1, t->o.dim)));
    s.dim[s.ndim - 1] = t->vocabulary;
    return fv_reshape(y, s);
}

FL_API fl_var *fl_text_loss(fl_nn_module *m, fl_vars in, fl_tensor *targets, fl_reduction reduction) {
    const fl__lm *t = fl__lm_of(m, "fl_text_loss");
    if (!t || !fl_given(targets, "fl_text_loss", "targets")) return fl_raise();
    fl_var *x = fl_text_features(m, in);
    if (!x) return NULL;
    const fl_shape s = fl_shape_of(fv_value(x));
    if (targets->ndim != 2 || targets->shape[0] != s.dim[0] || targets->shape[1] != s.dim[1])
        return fl_err_null("fl_text_loss: targets differ in shape from tokens: got %s, expected %s",
                           FL_SHAPE_TEXT(targets), FL_SHAPE_TEXT(fv_value(in.v[0])));
    const int64_t n = s.dim[0] * s.dim[1];
    x = fv_reshape(x, FL_SHAPE(n, s.dim[2])), targets = fl_reshape(targets, FL_SHAPE(n));
    if (!t->o.cutoffs.ndim)
        return fv_cross_entropy(fl_text_scores(m, x), targets, .reduction = reduction);
    fl_tensor *counts = fl_cast(fl_ne(targets, fl_int(-100)), FL_F32);
    fl_var *each = fl_nn_forward_vars(t->head, FL_VARS(x, fv_const(fl_maximum(targets, fl_int(0))))).v[0];
    fl_var *sum = fv_neg(fv_sum(fv_mul(each, fv_const(counts)), FL_ALL_AXES));
    return reduction == FL_SUM ? sum : fv_div(sum, fv_const(fl_sum(counts, FL_ALL_AXES)));
}

static fl_vars fl__lm_forward(fl_nn_module *m, fl_vars in) {
    fl_var *x = fl_text_features(m, in);
    return x ? FL_VARS(fl_text_scores(m, x)) : (fl_vars){0};
}

static void fl__lm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__lm *t = m->data;
    snprintf(buf, size, "%" PRId64 ", %" PRId64 ", context=%" PRId64, t->vocabulary, t->o.dim, t->o.context);
}

static const fl_nn_type fl__lm_type = {
    .name = "LanguageModel",
    .maker = "fl_text_lm",
    .forward = fl__lm_forward,
    .describe = fl__lm_describe,
};

/* ---- construction ---- */

static bool fl__lm_part(fl_nn_module *m, const char *name, fl_nn_module *child, fl_nn_module **at) {
    return (*at = fl_nn_add(m, name, child)) != NULL;
}

static fl_nn_module *fl__lm_norm(const fl_text_lm_opts *o) {
    return o->rms ? fl_nn_rms_norm(FL_SHAPE(o->dim), .eps = o->eps) :
           fl_nn_layer_norm(FL_SHAPE(o->dim), .eps = o->eps, .no_bias = o->no_bias);
}

static fl_nn_module *fl__lm_layer(const fl_text_lm_opts *o) {
    if (o->kind == FL_LM_GCNN) {
        fl_quiet(+1);
        fl_nn_module *m = fl_nn_new(&fl__lm_gated_type, NULL, 0);
        fl_nn_module *conv = fl_nn_conv1d(o->dim, 2 * o->dim, o->kernel, .causal = true, .rng = o->rng);
        conv = conv ? fl_nn_weight_norm(conv, "weight", 0) : NULL;
        if (!m) fl_nn_free(conv);
        return fl_nn_finish(m, m && fl_nn_add(m, "conv", conv));
    }
    return fl_nn_transformer(o->dim, o->heads, o->hidden, .dropout = o->dropout, .eps = o->eps,
                             .activation = o->activation, .rms = o->rms, .gated = o->gated,
                             .norm_first = !o->post_norm, .causal = !o->bidirectional,
                             .no_bias = o->no_bias,
                             .attention = {.n_kv_heads = o->kv_heads,
                                           .window = o->window,
                                           .in_bias = o->qkv_bias,
                                           .rotary = o->place == FL_LM_ROTARY,
                                           .rope = o->rope},
                             .rng = o->rng);
}

static bool fl__lm_fill_layers(fl__lm *t, fl_nn_module *m) {
    const fl_text_lm_opts *o = &t->o;
    if (o->kind == FL_LM_LSTM)
        return fl__lm_part(m, "layers",
                             fl_nn_lstm(o->dim, o->dim, .layers = (int)o->layers, .dropout = o->dropout,
                                        .output_only = true, .rng = o->rng), &t->layers);
    bool ok = fl__lm_part(m, "layers", fl_nn_sequential_of(0, NULL), &t->layers);
    for (int64_t i = 0; ok && i < o->layers; i++) ok = fl_nn_add(t->layers, NULL, fl__lm_layer(o)) != NULL;
    return ok;
}

static bool fl__lm_fill_head(fl__lm *t, fl_nn_module *m) {
    const fl_text_lm_opts *o = &t->o;
    if (o->masked_head &&
        !fl__lm_part(m, "transform",
                       fl_nn_sequential(fl_nn_linear(o->dim, o->dim, .act = FL_OP_gelu, .rng = o->rng),
                                        fl__lm_norm(o)), &t->transform))
        return false;
    if (o->cutoffs.ndim)
        return fl__lm_part(m, "head", fl_nn_adaptive_softmax(o->dim, o->cutoffs, .rng = o->rng), &t->head);
    if (o->untied)
        return fl__lm_part(m, "head", fl_nn_linear(o->dim, t->vocabulary, .no_bias = !o->masked_head,
                                                     .rng = o->rng), &t->head);
    return fl__lm_part(m, "head", fl_nn_new(&fl__lm_tied_type, NULL, 0), &t->head) &&
           fl_nn_add_param(t->head, "weight", fl_nn_param_at(t->embedding, 0)) &&
           (!o->masked_head ||
            fl_nn_add_param(t->head, "bias", fv_param(fl_zeros(FL_SHAPE(t->vocabulary), FL_F32))));
}

/* GPT-2's initialisation of matrices; those that end a residual branch are scaled down. */
static bool fl__lm_init(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    const fl_text_lm_opts *o = user;
    const size_t n = strlen(path);
    (void)buffer;
    if (!param || fv_value(param)->ndim < 2 || o->kind != FL_LM_TRANSFORMER) return true;
    const bool ends = (n > 15 && !strcmp(path + n - 15, "out_proj.weight")) ||
                      (n > 14 && !strcmp(path + n - 14, "linear2.weight"));
    return fl_nn_init_normal(param, 0, o->std / (ends ? sqrt(2.0 * (double)o->layers) : 1), o->rng);
}

static bool fl__lm_fill(fl_nn_module *m) {
    fl__lm *t = m->data;
    const fl_text_lm_opts *o = &t->o;
    const bool transformer = o->kind == FL_LM_TRANSFORMER;
    fl_nn_module *table = o->cutoffs.ndim ? fl_nn_adaptive_embedding(o->dim, o->cutoffs, .rng = o->rng)
                          : fl_nn_embedding(t->vocabulary, o->dim, .std = transformer ? o->std : 0.1,
                                            .rng = o->rng);
    bool ok = fl__lm_part(m, "embedding", table, &t->embedding) &&
              (o->types < 2 || fl__lm_part(m, "types", fl_nn_embedding(o->types, o->dim, .std = o->std,
                                                                       .rng = o->rng), &t->types));
    if (ok && transformer && (o->place == FL_LM_LEARNED || o->place == FL_LM_SINUSOID))
        ok = fl__lm_part(m, "position",
                         o->place == FL_LM_SINUSOID ? fl_nn_sinusoid(o->dim, 1)
                                                    : fl_nn_position(o->context, o->dim, .rng = o->rng),
                         &t->position);
    ok = ok && (!o->embedding_norm || fl__lm_part(m, "norm_in", fl__lm_norm(o), &t->norm_in)) &&
         (o->dropout == 0 || fl__lm_part(m, "dropout", fl_nn_dropout(o->dropout), &t->dropout)) &&
         fl__lm_fill_layers(t, m) &&
         (o->post_norm || fl__lm_part(m, "norm", fl__lm_norm(o), &t->norm)) && fl__lm_fill_head(t, m);
    return ok && fl_nn_visit_tensors(m, fl__lm_init, &t->o);
}

static bool fl__lm_ok(int64_t vocabulary, const fl_text_lm_opts *o) {
    const int64_t words = o->cutoffs.ndim ? o->cutoffs.dim[o->cutoffs.ndim - 1] : vocabulary;
    if (vocabulary < 1 || vocabulary > INT32_MAX || words != vocabulary || o->layers < 1 ||
        o->layers > 10000 || o->dim < 1 || o->context < 1 || o->hidden < 1 || o->kernel < 1 ||
        o->types < 0 || !(o->dropout >= 0 && o->dropout <= 1) || (o->cutoffs.ndim && o->masked_head))
        return fl_fail("fl_text_lm: options are out of range: got vocabulary %" PRId64 ", layers %" PRId64
                       ", dim %" PRId64 ", hidden %" PRId64 ", context %" PRId64 ", kernel %" PRId64
                       ", expected >= 1; dropout %g, expected [0, 1]; cutoffs up to %" PRId64
                       ", expected the vocabulary, and no masked_head",
                       vocabulary, o->layers, o->dim, o->hidden, o->context, o->kernel, o->dropout, words);
    return true;
}

FL_API fl_nn_module *fl_text_lm_opt(int64_t vocabulary, fl_text_lm_opts o) {
    if (!o.layers) o.layers = 6;
    if (!o.dim) o.dim = 384;
    if (!o.heads) o.heads = 6;
    if (!o.hidden) o.hidden = 4 * o.dim;
    if (!o.context) o.context = 256;
    if (!o.kernel) o.kernel = 4;
    if (!o.activation) o.activation = o.gated ? fv_silu : fv_gelu_tanh;
    if (o.eps == 0) o.eps = 1e-5;
    if (o.std == 0) o.std = 0.02;
    if (o.embedding_scale == 0) o.embedding_scale = 1;
    if (!fl__lm_ok(vocabulary, &o)) return fl_raise();
    const fl__lm t = {.vocabulary = vocabulary, .o = o};
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__lm_type, &t, sizeof t);
    const bool ok = m && fl__lm_fill(m);
    if (m) ((fl__lm *)m->data)->o.rng = NULL; /* the caller's, not valid later */
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

#endif
#endif

/* MIT licence: see LICENSE. */
