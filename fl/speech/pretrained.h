/* fl/speech/pretrained.h - wav2vec 2.0 and Whisper of Hugging Face: loading, saving, inference

   Modules and parameters have the names in the files (model.safetensors), so no mapping is needed. */
#ifndef FL_SPEECH_PRETRAINED_H
#define FL_SPEECH_PRETRAINED_H
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Loads a model from a folder with config.json and model.safetensors (f32, f16, bf16; computed in f32):
   Wav2Vec2ForCTC with either norm, or WhisperForConditionalGeneration. Unsupported settings, and names or
   shapes that do not match, are errors. The model is in evaluation mode. Returns NULL after fl_fail. */
FL_API fl_nn_module *fl_speech_pretrained(const char *folder);
/* Writes config.json (the original with the current number of labels) and model.safetensors to an existing
   folder, such that transformers can load them. Returns false after fl_fail. */
FL_API bool fl_speech_pretrained_save(fl_nn_module *m, const char *folder);
/* Replaces the CTC head by a random one for `labels` labels, for fine-tuning. Returns false if m is not a
   wav2vec 2.0 model. */
FL_API bool fl_speech_wav2vec2_labels(fl_nn_module *m, int64_t labels, fl_rng *rng);
/* CTC logits [n, t', labels] of sounds x [n, t] at 16 kHz. Each sound is normalised to mean 0 and variance 1
   unless `raw`. */
FL_API fl_var *fl_speech_wav2vec2(fl_nn_module *m, fl_var *x, bool raw);

/* Encoder output [n, frames / 2, d] of log-mel features x [n, bands, frames] (the preset "whisper",
   transposed). */
FL_API fl_var *fl_speech_whisper_encode(fl_nn_module *m, fl_var *x);
/* Decoder logits [n, u, vocabulary] of the tokens that follow tokens i64 [n, u], given the encoder output. */
FL_API fl_var *fl_speech_whisper_scores(fl_nn_module *m, fl_var *memory, fl_tensor *tokens);

typedef struct fl_speech_whisper_opts {
    fl_opts_guard guard_;
    const int64_t *prompt; /* start of transcript, language, task, ...; NULL: the config's start token */
    int64_t n_prompt;
    int64_t most;          /* maximal number of new tokens; 0 -> limited by the positions */
    bool times;            /* generate timestamps, with their constraints (in pairs, non-decreasing) */
    int64_t first_time;    /* the token of 0.00 s; 0 -> the vocabulary's last 1501 tokens are timestamps */
    double latest;         /* maximal first timestamp, seconds; 0 -> 1 */
    const int64_t *suppressed, *suppressed_first; /* tokens never generated, and not as the first token */
    int64_t n_suppressed, n_suppressed_first;
    /* Temperature fallback: a higher temperature is tried if the mean log probability is below `least` (0 ->
       -1), or zlib compresses the tokens, 2 or 3 bytes each, by more than the factor `repeated` (0 -> 1.35,
       as transformers; without zlib never). FL_ZERO disables either. */
    double least, repeated;
    /* Silence: the mean is below `least` and P(no speech) above `silent` (0 -> 0.6, FL_ZERO: never). */
    double silent;
    int64_t no_speech; /* the no-speech token; 0 -> first_time - 2 */
    int64_t previous;  /* the token before the text of previous windows; 0 -> first_time - 3; FL_I0: windows
                          are not conditioned on previous text */
    uint64_t seed;
    char _end;
} fl_speech_whisper_opts;
typedef struct fl_speech_whisper_result {
    double mean;        /* mean log probability per token */
    double temperature; /* used temperature: 0 to 1 in steps of 0.2 */
    double repeated;    /* compression ratio of the tokens by zlib; 0 without zlib */
    double no_speech;   /* probability of no speech */
    bool silence;       /* classified as silence */
} fl_speech_whisper_result;
/* Transcribes log-mel features x [bands, frames] by incremental decoding with a KV cache. Writes at most
   `room` tokens to out, without the prompt and the end token. Returns their number, -1 after an error. */
#define fl_speech_whisper(...) FL__SPEECH_WHISPER(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_WHISPER(m, x, out, room, result, ...) \
    fl_speech_whisper_opt(m, x, out, room, result, FL_LITERAL(fl_speech_whisper_opts, __VA_ARGS__))
FL_API int64_t fl_speech_whisper_opt(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t room,
                                     fl_speech_whisper_result *result, fl_speech_whisper_opts o);

/* A transcribed segment: times in seconds, tokens including timestamps, and statistics of its window. */
typedef struct fl_speech_whisper_segment {
    double begin, end;
    const int64_t *token;
    int64_t n;
    fl_speech_whisper_result window;
} fl_speech_whisper_segment;
/* Callback for a segment; returns false to stop. */
typedef bool (*fl_speech_whisper_each)(const fl_speech_whisper_segment *s, void *user);
/* Transcribes features of any length, x [bands, frames], in windows of the model's length (30 s). The next
   window begins at the last pair of timestamps, or after this one; its prompt is the previous text, unless
   that needed a temperature above 0.5 (Radford et al., arXiv 2212.04356, 4.5). `each` is called for every
   segment with text, in order. Returns false if it does, or after an error. */
#define fl_speech_whisper_long(...) FL__SPEECH_WHISPER_LONG(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_WHISPER_LONG(m, x, each, user, ...) \
    fl_speech_whisper_long_opt(m, x, each, user, FL_LITERAL(fl_speech_whisper_opts, __VA_ARGS__))
FL_API bool fl_speech_whisper_long_opt(fl_nn_module *m, fl_tensor *x, fl_speech_whisper_each each,
                                       void *user, fl_speech_whisper_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_PRETRAINED_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_PRETRAINED) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_PRETRAINED_IMPL
#define FL_SPEECH_PRETRAINED_IMPL
#include "../../fl_text.h"
#include "../data/safetensors.h"
#include "../data/settings.h"
#include "../ops/activation.h"
#include "../ops/attention.h"
#include "../ops/conv.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/embedding.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/norm.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef FL_USE_ZLIB
#include <zlib.h>
#endif

/* ---- config.json ---- */

/* An integer setting from 1 to 2^24; 0 after fl_fail. */
static int64_t fl__hf_size(const fl_data_settings *c, const char *key, int64_t otherwise) {
    const double v = fl_data_settings_number(c, key, (double)otherwise);
    if (v >= 1 && v <= 1 << 24 && v == floor(v)) return (int64_t)v;
    return fl_fail("fl_speech_pretrained: config.json: %s must be an integer in [1, 2^24], got %g", key, v),
    0;
}

/* Whether model.safetensors has a tensor of that name and shape. Checked before modules of the sizes in
   config.json are created, so that memory use is bounded by the file. */
__attribute__((format(printf, 3, 4))) static bool fl__hf_has(const fl_data_file *f, fl_shape want,
                                                              const char *format, ...) {
    char name[160];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const int64_t i = fl_data_find(f, name);
    if (i < 0) return fl_fail("fl_speech_pretrained: %s: no tensor '%s'", f->f.path, name);
    const fl_shape got = fl_data_shape(f, i);
    if (got.ndim == want.ndim && !memcmp(got.dim, want.dim, (size_t)got.ndim * sizeof *got.dim)) return true;
    char text[2][FL_NN_SHAPE];
    return fl_fail("fl_speech_pretrained: %s: %s has shape %s, expected %s by config.json", f->f.path, name,
                   fl_shape_text(got, text[0], sizeof text[0]), fl_shape_text(want, text[1], sizeof text[1]));
}

/* ---- common parts ---- */

typedef struct fl__hf_model {
    bool whisper, stable, group_norm; /* wav2vec 2.0: pre-norm; only the first convolution has a norm */
    int64_t dim, layers, decoder_layers, heads, decoder_heads, vocabulary, convs, positions, start, eos;
    double eps, scale; /* scale: factor of token embeddings */
    char *config;      /* text of config.json */
    int64_t config_bytes;
} fl__hf_model;

static void fl__hf_release(void *data) { fl_heap_free(((fl__hf_model *)data)->config); }

static fl_nn_module *fl__hf_list(fl_nn_module *parent, const char *name) {
    return parent ? fl_nn_add(parent, name, fl_nn_module_list_of(0, NULL)) : NULL;
}

static bool fl__hf_linear(fl_nn_module *m, const char *name, int64_t in, int64_t out, bool no_bias) {
    return fl_nn_add(m, name, fl_nn_linear(in, out, .no_bias = no_bias)) != NULL;
}
static bool fl__hf_norm(fl_nn_module *m, const char *name, int64_t dim, double eps) {
    return fl_nn_add(m, name, fl_nn_layer_norm(FL_SHAPE(dim), .eps = eps)) != NULL;
}

static bool fl__hf_attention(fl_nn_module *m, const char *name, int64_t d, bool key_bias) {
    fl_nn_module *a = fl__hf_list(m, name);
    return a && fl__hf_linear(a, "k_proj", d, d, !key_bias) && fl__hf_linear(a, "v_proj", d, d, false) &&
           fl__hf_linear(a, "q_proj", d, d, false) && fl__hf_linear(a, "out_proj", d, d, false);
}

static fl_var *fl__hf_run(fl_nn_module *m, const char *path, fl_var *x) {
    return x ? fl_nn_forward(fl_nn_find(m, path), x) : NULL;
}

/* KV cache of an attention: [n, heads, t, d]. */
typedef struct fl__hf_kv {
    fl_var *k, *v;
} fl__hf_kv;

static fl_var *fl__hf_heads(fl_nn_module *m, const char *name, fl_var *x, int64_t heads) {
    fl_var *y = fl__hf_run(m, name, x);
    if (!y) return NULL;
    const int64_t *s = fv_value(y)->shape;
    return fv_transpose(fv_reshape(y, FL_SHAPE(s[0], s[1], heads, s[2] / heads)), 1, 2);
}

static bool fl__hf_keep(fl_var **slot, fl_var *now) {
    fv_keep(now);
    fv_drop(*slot);
    *slot = now;
    return now != NULL;
}

/* Self-attention, or cross-attention to a memory, whose keys and values are cached at the first step. */
static fl_var *fl__hf_attend(fl_nn_module *m, fl_var *x, fl_var *memory, int64_t heads, bool causal,
                             fl__hf_kv *kv) {
    const bool known = memory && kv && kv->k;
    fl_var *q = x ? fl__hf_heads(m, "q_proj", x, heads) : NULL;
    fl_var *k = known ? kv->k : q ? fl__hf_heads(m, "k_proj", memory ? memory : x, heads) : NULL;
    fl_var *v = known ? kv->v : q ? fl__hf_heads(m, "v_proj", memory ? memory : x, heads) : NULL;
    const int64_t before = !memory && kv && kv->k ? fv_value(kv->k)->shape[2] : 0;
    if (!q || !k || !v) return NULL;
    if (before) {
        fl_var *both[2][2] = {{kv->k, k}, {kv->v, v}};
        k = fv_concat(both[0], 2, 2), v = fv_concat(both[1], 2, 2);
    }
    if (kv && !known && (!fl__hf_keep(&kv->k, k) || !fl__hf_keep(&kv->v, v))) return NULL;
    fl_var *y = fv_transpose(fv_attention(q, k, v, .causal = causal, .offset = before), 1, 2);
    return fl__hf_run(m, "out_proj", fv_reshape(y, fl_shape_of(fv_value(x))));
}

static fl_vars fl__hf_forward(fl_nn_module *m, fl_vars in) {
    const fl__hf_model *h = m->data;
    if (in.n != 1 + h->whisper) return fl_nn_fail(m, "got %d inputs, expected %d", in.n, 1 + h->whisper);
    fl_var *y = h->whisper
                    ? fl_speech_whisper_scores(m, fl_speech_whisper_encode(m, in.v[0]), fv_value(in.v[1]))
                    : fl_speech_wav2vec2(m, in.v[0], false);
    return (fl_vars){y != NULL, {y}};
}

static const fl_nn_type fl__hf_wav2vec2_type = {.name = "Wav2Vec2ForCTC", .maker = "fl_speech_pretrained",
                                                .forward = fl__hf_forward, .release = fl__hf_release};
static const fl_nn_type fl__hf_whisper_type = {.name = "WhisperForConditionalGeneration",
                                               .maker = "fl_speech_pretrained", .forward = fl__hf_forward,
                                               .release = fl__hf_release};

static bool fl__hf_is(const fl_nn_module *m, const fl_nn_type *type) {
    return (m && m->type == type) ||
           fl_err_false("fl_speech_pretrained: the module is not a %s model", type->name);
}

/* ---- wav2vec 2.0 ---- */

/* The positional convolution with weight norm over the last axis; names before and after PyTorch 2. */
static bool fl__w2v_positions(fl_nn_module *encoder, const fl_data_settings *c, const fl_data_file *f,
                              int64_t d) {
    const bool old = fl_data_find(f, "wav2vec2.encoder.pos_conv_embed.conv.weight_g") >= 0;
    const int64_t kernel = fl__hf_size(c, "num_conv_pos_embeddings", 128);
    const int64_t groups = fl__hf_size(c, "num_conv_pos_embedding_groups", 16);
    fl_nn_module *embed = fl__hf_list(encoder, "pos_conv_embed"), *conv = fl__hf_list(embed, "conv"),
                 *at = conv;
    if (!kernel || !groups || !conv || d % groups)
        return !fl_error() && fl_fail("fl_speech_pretrained: config.json: num_conv_pos_embedding_groups does "
                                      "not divide hidden_size");
    if (!fl__hf_has(f, FL_SHAPE(d, d / groups, kernel), "wav2vec2.encoder.pos_conv_embed.conv.%s",
                    old ? "weight_v" : "parametrizations.weight.original1"))
        return false;
    if (!fl_nn_add_param(conv, "bias", fv_param(fl_zeros(FL_SHAPE(d), FL_F32)))) return false;
    if (!old) at = fl__hf_list(fl__hf_list(conv, "parametrizations"), "weight");
    return at &&
           fl_nn_add_param(at, old ? "weight_g" : "original0",
                           fv_param(fl_ones(FL_SHAPE(1, 1, kernel), FL_F32))) &&
           fl_nn_add_param(at, old ? "weight_v" : "original1",
                           fv_param(fl_ones(FL_SHAPE(d, d / groups, kernel), FL_F32)));
}

static fl_var *fl__w2v_add_positions(fl_nn_module *m, fl_var *x) {
    fl_nn_module *conv = fl_nn_find(m, "wav2vec2.encoder.pos_conv_embed.conv");
    fl_nn_module *at = fl_nn_find(conv, "parametrizations.weight");
    fl_var *g = fl_nn_param_at(at ? at : conv, at ? 0 : 1), *v = fl_nn_param_at(at ? at : conv, at ? 1 : 2);
    const int64_t *s = fv_value(v)->shape, kernel = s[2], t = fv_value(x)->shape[1];
    fl_var *w = fv_weight_norm(v, g, 2);
    fl_var *y = fv_conv(fv_transpose(x, 1, 2), w, fl_nn_param_at(conv, 0),
                        .pad = {kernel / 2 ? kernel / 2 : FL_I0}, .groups = s[0] / s[1]);
    y = fv_gelu(fv_slice(y, 2, 0, t, 1));
    return fv_add(x, fv_transpose(y, 1, 2));
}

/* Checks the shapes of a transformer layer's linear layers; one represents the four of an attention. */
static bool fl__hf_has_layer(const fl_data_file *f, const char *layers, int64_t i, const char *const names[4],
                             int64_t d, int64_t hidden) {
    const fl_shape shape[] = {FL_SHAPE(d, d), FL_SHAPE(hidden, d), FL_SHAPE(d, hidden), FL_SHAPE(d)};
    for (int k = 0; k < 4; k++)
        if (!fl__hf_has(f, shape[k], "%s.%" PRId64 ".%s.weight", layers, i, names[k])) return false;
    return true;
}

static bool fl__w2v_layer(fl_nn_module *list, int64_t d, int64_t hidden, double eps) {
    fl_nn_module *l = fl__hf_list(list, NULL), *ff = NULL;
    return l && fl__hf_attention(l, "attention", d, true) && fl__hf_norm(l, "layer_norm", d, eps) &&
           (ff = fl__hf_list(l, "feed_forward")) &&
           fl__hf_linear(ff, "intermediate_dense", d, hidden, false) &&
           fl__hf_linear(ff, "output_dense", hidden, d, false) && fl__hf_norm(l, "final_layer_norm", d, eps);
}

static bool fl__w2v_convs(fl_nn_module *list, const fl_data_settings *c, const fl_data_file *f,
                          fl__hf_model *h, int64_t *last) {
    const bool bias = fl_data_settings_number(c, "conv_bias", 0) != 0;
    char key[3][32];
    int64_t in = 1;
    for (h->convs = 0;; h->convs++, in = *last) {
        snprintf(key[0], 32, "conv_dim.%d", (int)h->convs),
            snprintf(key[1], 32, "conv_kernel.%d", (int)h->convs);
        snprintf(key[2], 32, "conv_stride.%d", (int)h->convs);
        if (!fl_data_settings_text(c, key[0]))
            return h->convs > 0 || fl_fail("fl_speech_pretrained: config.json: conv_dim is missing");
        const int64_t out = fl__hf_size(c, key[0], 0), kernel = fl__hf_size(c, key[1], 0),
                      stride = fl__hf_size(c, key[2], 0);
        if (!out || !kernel || !stride ||
            !fl__hf_has(f, FL_SHAPE(out, in, kernel), "wav2vec2.feature_extractor.conv_layers.%" PRId64
                        ".conv.weight", h->convs))
            return false;
        fl_nn_module *layer = fl__hf_list(list, NULL);
        if (!layer ||
            !fl_nn_add(layer, "conv", fl_nn_conv1d(in, out, kernel, .stride = stride, .no_bias = !bias)))
            return false;
        if (h->group_norm && !h->convs && !fl_nn_add(layer, "layer_norm", fl_nn_group_norm(out, out)))
            return false;
        if (!h->group_norm && !fl__hf_norm(layer, "layer_norm", out, 1e-5)) return false;
        *last = out;
    }
}

static bool fl__w2v_fill(fl_nn_module *m, const fl_data_settings *c, const fl_data_file *f) {
    fl__hf_model *h = m->data;
    const char *norm = fl_data_settings_text(c, "feat_extract_norm");
    const char *act = fl_data_settings_text(c, "hidden_act");
    const int64_t hidden = fl__hf_size(c, "intermediate_size", 3072);
    int64_t last = 0;
    h->stable = fl_data_settings_number(c, "do_stable_layer_norm", 0) != 0;
    h->group_norm = !norm || !strcmp(norm, "group");
    h->dim = fl__hf_size(c, "hidden_size", 768), h->layers = fl__hf_size(c, "num_hidden_layers", 12);
    h->heads = fl__hf_size(c, "num_attention_heads", 12), h->vocabulary = fl__hf_size(c, "vocab_size", 32);
    h->eps = fl_data_settings_number(c, "layer_norm_eps", 1e-5);
    if (!hidden || !h->dim || !h->layers || !h->heads || !h->vocabulary) return false;
    if (act && strcmp(act, "gelu") != 0)
        return fl_fail("fl_speech_pretrained: config.json: unsupported hidden_act '%s', expected gelu", act);
    if (fl_data_settings_number(c, "add_adapter", 0) != 0)
        return fl_fail("fl_speech_pretrained: config.json: add_adapter is not supported");
    fl_nn_module *w = fl__hf_list(m, "wav2vec2"),
                 *convs = fl__hf_list(fl__hf_list(w, "feature_extractor"), "conv_layers");
    const bool masked = fl_data_find(f, "wav2vec2.masked_spec_embed") >= 0;
    if (!convs || !fl__w2v_convs(convs, c, f, h, &last)) return false;
    static const char *const linear[] = {"attention.k_proj", "feed_forward.intermediate_dense",
                                         "feed_forward.output_dense", "final_layer_norm"};
    if (!fl__hf_has(f, FL_SHAPE(h->dim, last), "wav2vec2.feature_projection.projection.weight") ||
        !fl__hf_has(f, FL_SHAPE(h->vocabulary, h->dim), "lm_head.weight"))
        return false;
    fl_nn_module *projection = fl__hf_list(w, "feature_projection"), *encoder = fl__hf_list(w, "encoder"),
                 *layers = NULL;
    bool ok =
        projection && fl__hf_norm(projection, "layer_norm", last, h->eps) &&
        fl__hf_linear(projection, "projection", last, h->dim, false) && encoder &&
        fl__w2v_positions(encoder, c, f, h->dim) && fl__hf_norm(encoder, "layer_norm", h->dim, h->eps) &&
        (layers = fl__hf_list(encoder, "layers")) &&
        (!masked || fl_nn_add_param(w, "masked_spec_embed", fv_param(fl_zeros(FL_SHAPE(h->dim), FL_F32))));
    for (int64_t i = 0; ok && i < h->layers; i++)
        ok = fl__hf_has_layer(f, "wav2vec2.encoder.layers", i, linear, h->dim, hidden) &&
             fl__w2v_layer(layers, h->dim, hidden, h->eps);
    return ok && fl__hf_linear(m, "lm_head", h->dim, h->vocabulary, false);
}

static fl_var *fl__w2v_features(fl_nn_module *m, fl_var *x) {
    const fl__hf_model *h = m->data;
    fl_nn_module *layers = fl_nn_find(m, "wav2vec2.feature_extractor.conv_layers");
    for (int64_t i = 0; x && i < h->convs; i++) {
        x = fl__hf_run(layers->child[i], "conv", x);
        if (h->group_norm && !i) x = fl__hf_run(layers->child[i], "layer_norm", x);
        if (!h->group_norm)
            x = fv_transpose(fl__hf_run(layers->child[i], "layer_norm", fv_transpose(x, 1, 2)), 1, 2);
        x = fv_gelu(x);
    }
    return fv_transpose(x, 1, 2);
}

static fl_var *fl__w2v_block(fl_nn_module *l, const fl__hf_model *h, fl_var *x) {
    fl_nn_module *attention = fl_nn_find(l, "attention");
    fl_var *y = h->stable ? fl__hf_run(l, "layer_norm", x) : x;
    x = fv_add(x, fl__hf_attend(attention, y, NULL, h->heads, false, NULL));
    if (!h->stable) x = fl__hf_run(l, "layer_norm", x);
    y = h->stable ? fl__hf_run(l, "final_layer_norm", x) : x;
    y = fv_gelu(fl__hf_run(l, "feed_forward.intermediate_dense", y));
    x = fv_add(x, fl__hf_run(l, "feed_forward.output_dense", y));
    return h->stable ? x : fl__hf_run(l, "final_layer_norm", x);
}

FL_API fl_var *fl_speech_wav2vec2(fl_nn_module *m, fl_var *x, bool raw) {
    if (!fl__hf_is(m, &fl__hf_wav2vec2_type) || fl_is_null_arg("fl_speech_wav2vec2", x)) return NULL;
    const fl__hf_model *h = m->data;
    if (fv_value(x)->ndim != 2) {
        fl_err_false("fl_speech_wav2vec2: got sounds %s, expected [n, t]", FL_SHAPE_TEXT(fv_value(x)));
        return NULL;
    }
    fl_scope s = fl_scope_begin();
    if (!raw) x = fv_layer_norm(x, 1, NULL, NULL, 1e-7);
    fl_var *y = fl__w2v_features(m, fv_unsqueeze(x, 1));
    y = fl__hf_run(m, "wav2vec2.feature_projection.layer_norm", y);
    y = fl__hf_run(m, "wav2vec2.feature_projection.projection", y);
    y = y ? fl__w2v_add_positions(m, y) : NULL;
    if (!h->stable) y = fl__hf_run(m, "wav2vec2.encoder.layer_norm", y);
    fl_nn_module *layers = fl_nn_find(m, "wav2vec2.encoder.layers");
    for (int64_t i = 0; y && i < h->layers; i++) y = fl__w2v_block(layers->child[i], h, y);
    if (h->stable) y = fl__hf_run(m, "wav2vec2.encoder.layer_norm", y);
    return fv_scope_return(&s, fl__hf_run(m, "lm_head", y));
}

FL_API bool fl_speech_wav2vec2_labels(fl_nn_module *m, int64_t labels, fl_rng *rng) {
    if (!fl__hf_is(m, &fl__hf_wav2vec2_type)) return false;
    fl__hf_model *h = m->data;
    fl_nn_module *head = fl_nn_linear(h->dim, labels, .rng = rng);
    if (!head) return false;
    fl_nn_free(fl_nn_find(m, "lm_head"));
    h->vocabulary = labels;
    return fl_nn_add(m, "lm_head", head) != NULL;
}

/* ---- Whisper ---- */

static bool fl__whisper_layer(fl_nn_module *list, int64_t d, int64_t hidden, bool cross) {
    fl_nn_module *l = fl__hf_list(list, NULL);
    return l && fl__hf_attention(l, "self_attn", d, false) &&
           fl__hf_norm(l, "self_attn_layer_norm", d, 1e-5) &&
           (!cross || (fl__hf_attention(l, "encoder_attn", d, false) &&
                       fl__hf_norm(l, "encoder_attn_layer_norm", d, 1e-5))) &&
           fl__hf_linear(l, "fc1", d, hidden, false) && fl__hf_linear(l, "fc2", hidden, d, false) &&
           fl__hf_norm(l, "final_layer_norm", d, 1e-5);
}

static bool fl__whisper_half(fl_nn_module *half, const fl_data_file *f, int64_t d, int64_t positions,
                             int64_t layers, int64_t hidden, bool cross) {
    static const char *const linear[] = {"self_attn.k_proj", "fc1", "fc2", "final_layer_norm"};
    const char *name = cross ? "model.decoder" : "model.encoder";
    char path[40];
    snprintf(path, sizeof path, "%s.layers", name);
    if (!fl__hf_has(f, FL_SHAPE(positions, d), "%s.embed_positions.weight", name)) return false;
    fl_nn_module *at = fl__hf_list(half, "embed_positions"), *list = NULL;
    bool ok = at && fl_nn_add_param(at, "weight", fv_param(fl_zeros(FL_SHAPE(positions, d), FL_F32))) &&
              (list = fl__hf_list(half, "layers"));
    for (int64_t i = 0; ok && i < layers; i++)
        ok = fl__hf_has_layer(f, path, i, linear, d, hidden) && fl__whisper_layer(list, d, hidden, cross);
    return ok && fl__hf_norm(half, "layer_norm", d, 1e-5);
}

static bool fl__whisper_fill(fl_nn_module *m, const fl_data_settings *c, const fl_data_file *f) {
    fl__hf_model *h = m->data;
    const int64_t bands = fl__hf_size(c, "num_mel_bins", 80),
                  frames = fl__hf_size(c, "max_source_positions", 1500);
    const int64_t hidden[] = {fl__hf_size(c, "encoder_ffn_dim", 1536),
                              fl__hf_size(c, "decoder_ffn_dim", 1536)};
    h->whisper = true;
    h->dim = fl__hf_size(c, "d_model", 384), h->layers = fl__hf_size(c, "encoder_layers", 4);
    h->decoder_layers = fl__hf_size(c, "decoder_layers", 4),
    h->heads = fl__hf_size(c, "encoder_attention_heads", 6);
    h->decoder_heads = fl__hf_size(c, "decoder_attention_heads", 6),
    h->vocabulary = fl__hf_size(c, "vocab_size", 51865);
    h->positions = fl__hf_size(c, "max_target_positions", 448);
    h->start = (int64_t)fl_data_settings_number(c, "decoder_start_token_id", 50257),
    h->eos = (int64_t)fl_data_settings_number(c, "eos_token_id", 50256);
    h->scale = fl_data_settings_number(c, "scale_embedding", 0) != 0 ? sqrt((double)h->dim) : 1;
    if (!bands || !frames || !hidden[0] || !hidden[1] || !h->dim || !h->layers || !h->decoder_layers ||
        !h->heads || !h->decoder_heads || !h->vocabulary || !h->positions)
        return false;
    const char *act = fl_data_settings_text(c, "activation_function");
    if (act && strcmp(act, "gelu") != 0)
        return fl_fail("fl_speech_pretrained: config.json: unsupported activation_function '%s', expected "
                       "gelu", act);
    if (!fl__hf_has(f, FL_SHAPE(h->dim, bands, 3), "model.encoder.conv1.weight") ||
        !fl__hf_has(f, FL_SHAPE(h->dim, h->dim, 3), "model.encoder.conv2.weight") ||
        !fl__hf_has(f, FL_SHAPE(h->vocabulary, h->dim), "model.decoder.embed_tokens.weight"))
        return false;
    fl_nn_module *model = fl__hf_list(m, "model"), *encoder = fl__hf_list(model, "encoder"),
                 *decoder = fl__hf_list(model, "decoder");
    return encoder && decoder && fl_nn_add(encoder, "conv1", fl_nn_conv1d(bands, h->dim, 3, .pad = 1)) &&
           fl_nn_add(encoder, "conv2", fl_nn_conv1d(h->dim, h->dim, 3, .stride = 2, .pad = 1)) &&
           fl__whisper_half(encoder, f, h->dim, frames, h->layers, hidden[0], false) &&
           fl_nn_add(decoder, "embed_tokens", fl_nn_embedding(h->vocabulary, h->dim)) &&
           fl__whisper_half(decoder, f, h->dim, h->positions, h->decoder_layers, hidden[1], true);
}

static fl_var *fl__whisper_block(fl_nn_module *l, fl_var *x, fl_var *memory, int64_t heads, fl__hf_kv *kv) {
    fl_var *y = fl__hf_run(l, "self_attn_layer_norm", x);
    x = fv_add(x, fl__hf_attend(fl_nn_find(l, "self_attn"), y, NULL, heads, memory != NULL, kv));
    if (memory) {
        y = fl__hf_run(l, "encoder_attn_layer_norm", x);
        x = fv_add(x,
                   fl__hf_attend(fl_nn_find(l, "encoder_attn"), y, memory, heads, false, kv ? kv + 1 : NULL));
    }
    y = fv_gelu(fl__hf_run(l, "fc1", fl__hf_run(l, "final_layer_norm", x)));
    return fv_add(x, fl__hf_run(l, "fc2", y));
}

/* Runs the layers of encoder or decoder on x [n, t, d] at positions from `first`. kv: two per layer, or
   NULL. */
static fl_var *fl__whisper_stack(fl_nn_module *half, fl_var *x, int64_t first, fl_var *memory, int64_t heads,
                                 fl__hf_kv *kv) {
    fl_var *positions = fl_nn_get_param(half, "embed_positions.weight");
    const int64_t t = x ? fv_value(x)->shape[1] : 0, most = fv_value(positions)->shape[0];
    if (!x) return NULL;
    if (first + t > most)
        return fl_err_false("fl_speech_whisper: %lld positions are needed, the model has %lld",
                            (long long)(first + t), (long long)most),
               NULL;
    x = fv_add(x, fv_slice(positions, 0, first, first + t, 1));
    fl_nn_module *layers = fl_nn_find(half, "layers");
    for (int64_t i = 0; x && i < layers->n_child; i++)
        x = fl__whisper_block(layers->child[i], x, memory, heads, kv ? kv + 2 * i : NULL);
    return fl__hf_run(half, "layer_norm", x);
}

FL_API fl_var *fl_speech_whisper_encode(fl_nn_module *m, fl_var *x) {
    if (!fl__hf_is(m, &fl__hf_whisper_type) || fl_is_null_arg("fl_speech_whisper_encode", x)) return NULL;
    const fl__hf_model *h = m->data;
    fl_scope s = fl_scope_begin();
    fl_nn_module *encoder = fl_nn_find(m, "model.encoder");
    fl_var *y = fv_gelu(fl__hf_run(encoder, "conv1", x));
    y = fv_transpose(fv_gelu(fl__hf_run(encoder, "conv2", y)), 1, 2);
    return fv_scope_return(&s, fl__whisper_stack(encoder, y, 0, NULL, h->heads, NULL));
}

static fl_var *fl__whisper_decode(fl_nn_module *m, fl_var *memory, fl_tensor *tokens, int64_t first,
                                  fl__hf_kv *kv) {
    const fl__hf_model *h = m->data;
    fl_nn_module *decoder = fl_nn_find(m, "model.decoder");
    fl_var *x = tokens ? fl__hf_run(decoder, "embed_tokens", fv_const(tokens)) : NULL;
    if (x && h->scale != 1) x = fv_mul(x, fv_num(h->scale));
    x = memory ? fl__whisper_stack(decoder, x, first, memory, h->decoder_heads, kv) : NULL;
    return x ? fv_linear(x, fl_nn_get_param(decoder, "embed_tokens.weight"), NULL) : NULL;
}

FL_API fl_var *fl_speech_whisper_scores(fl_nn_module *m, fl_var *memory, fl_tensor *tokens) {
    if (!fl__hf_is(m, &fl__hf_whisper_type) || fl_is_null_arg("fl_speech_whisper_scores",
                                                              memory)) return NULL;
    fl_scope s = fl_scope_begin();
    return fv_scope_return(&s, fl__whisper_decode(m, memory, tokens, 0, NULL));
}

/* ---- Whisper: decoding ---- */

typedef struct fl__whisper_run {
    fl_nn_module *m;
    const fl__hf_model *h;
    const fl_speech_whisper_opts *o;
    fl_var *memory;
    int64_t times, *out, room; /* times: the token of 0.00 s; out has space for `room` tokens */
    int64_t *prompt, n_prompt;
    double temperature;
    fl_speech_whisper_result result;
    fl_rng rng;
} fl__whisper_run;

static void fl__whisper_mask(float *p, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) p[i] = -INFINITY;
}

static double fl__whisper_log_sum(const float *p, int64_t from, int64_t to, double *top) {
    double sum = 0;
    *top = -INFINITY;
    for (int64_t i = from; i < to; i++)
        if (p[i] > *top) *top = p[i];
    for (int64_t i = from; i < to && *top > -INFINITY; i++) sum += exp(p[i] - *top);
    return *top + log(sum);
}

/* Constraints: timestamps come first, in pairs, and never decrease; if all of them together are likelier
   than any other token, one must follow. */
static void fl__whisper_time_rules(const fl__whisper_run *w, float *p, int64_t n) {
    const int64_t v = w->h->vocabulary, begin = w->times, eos = w->h->eos;
    const bool last = n > 0 && w->out[n - 1] >= begin, before = n < 2 || w->out[n - 2] >= begin;
    int64_t newest = -1;
    double text, time;
    for (int64_t i = 0; i < n; i++)
        if (w->out[i] >= begin) newest = w->out[i];
    fl__whisper_mask(p, begin - 1, begin); /* the no-timestamps token */
    if (last && before) fl__whisper_mask(p, begin, v);
    else if (last) fl__whisper_mask(p, 0, eos);
    if (newest >= 0) fl__whisper_mask(p, begin, last && !before ? newest : newest + 1);
    if (n == 0) {
        const int64_t latest = begin + (int64_t)lround(fl_option(w->o->latest, 1) / 0.02);
        fl__whisper_mask(p, 0, begin);
        if (latest + 1 < v) fl__whisper_mask(p, latest + 1, v);
    }
    const double all = fl__whisper_log_sum(p, begin, v, &time);
    fl__whisper_log_sum(p, 0, begin, &text);
    if (all > text) fl__whisper_mask(p, 0, begin);
}

/* Chooses the next token by scores p [vocabulary], which are modified; *score becomes its log probability. */
static int64_t fl__whisper_choose(fl__whisper_run *w, float *p, int64_t n, double *score) {
    const fl_speech_whisper_opts *o = w->o;
    const int64_t v = w->h->vocabulary;
    double top;
    for (int64_t i = 0; i < o->n_suppressed; i++)
        if (o->suppressed[i] >= 0 && o->suppressed[i] < v) p[o->suppressed[i]] = -INFINITY;
    for (int64_t i = 0; !n && i < o->n_suppressed_first; i++)
        if (o->suppressed_first[i] >= 0 && o->suppressed_first[i] < v) p[o->suppressed_first[i]] = -INFINITY;
    if (o->times) fl__whisper_time_rules(w, p, n);
    const double norm = fl__whisper_log_sum(p, 0, v, &top);
    int64_t best = 0;
    for (int64_t i = 1; i < v; i++)
        if (p[i] > p[best]) best = i;
    if (w->temperature > 0) {
        double sum = 0, u = fl_rng_uniform(&w->rng);
        for (int64_t i = 0; i < v; i++) sum += exp((p[i] - top) / w->temperature);
        u *= sum;
        for (int64_t i = 0; i < v; i++)
            if (p[i] > -INFINITY && (best = i, u -= exp((p[i] - top) / w->temperature)) < 0) break;
    }
    *score = p[best] - norm;
    return best;
}

/* The probability of no speech, from the scores [u, vocabulary] after the start-of-transcript token. */
static double fl__whisper_no_speech(const fl__whisper_run *w, const float *p) {
    const int64_t v = w->h->vocabulary, token = w->o->no_speech ? w->o->no_speech : w->times - 2;
    int64_t start = w->n_prompt - 1;
    double top;
    while (start > 0 && w->prompt[start] != w->h->start) start--;
    p += start * v;
    return token >= 0 && token < v ? exp(p[token] - fl__whisper_log_sum(p, 0, v, &top)) : 0;
}

/* Decodes once at a temperature. Returns the number of tokens, -1 after an error. */
static int64_t fl__whisper_decode_once(fl__whisper_run *w) {
    const int64_t positions = w->h->positions - w->n_prompt, limit = w->o->most ? w->o->most : positions;
    const int64_t most = limit < positions ? limit : positions;
    fl__hf_kv *kv = fl_heap_alloc((size_t)(2 * w->h->decoder_layers) * sizeof *kv);
    int64_t n = 0, at = 0, token = -1;
    double sum = 0, score = 0;
    bool ok = kv != NULL;
    if (kv) memset(kv, 0, (size_t)(2 * w->h->decoder_layers) * sizeof *kv);
    while (ok && n < most && n < w->room) {
        fl_scope s = fl_scope_begin();
        const int64_t steps = at ? 1 : w->n_prompt;
        fl_tensor *in = fl_from_host(at ? &token : w->prompt, FL_SHAPE(1, steps), FL_I64);
        fl_var *y = in ? fl__whisper_decode(w->m, w->memory, in, at, kv) : NULL;
        fl_tensor *all = y ? fl_clone(fl_select(fv_value(y), 0, 0)) : NULL;
        float *p = all ? fl_map(all, FL_READ | FL_WRITE) : NULL;
        if ((ok = p != NULL)) {
            if (!at) w->result.no_speech = fl__whisper_no_speech(w, p);
            token = fl__whisper_choose(w, p + (steps - 1) * w->h->vocabulary, n, &score);
            sum += score;
            fl_unmap(all, FL_READ | FL_WRITE);
        }
        at += steps;
        fl_scope_end(&s);
        if (!ok || token == w->h->eos) break;
        w->out[n++] = token;
    }
    for (int64_t i = 0; kv && i < 2 * w->h->decoder_layers; i++) fv_drop(kv[i].k), fv_drop(kv[i].v);
    fl_heap_free(kv);
    w->result.mean = sum / (double)(n + 1);
    return ok ? n : -1;
}

/* Compression ratio of n tokens, 2 or 3 bytes each, by zlib. */
static double fl__whisper_repeated(const fl__whisper_run *w, int64_t n) {
    double ratio = 0;
#ifdef FL_USE_ZLIB
    const int size = w->h->vocabulary < 1 << 16 ? 2 : 3;
    uLongf packed = compressBound((uLong)(n * size));
    unsigned char *p = n ? fl_heap_alloc((size_t)packed + (size_t)(n * size)) : NULL,
                  *raw = p ? p + packed : NULL;
    for (int64_t i = 0; p && i < n * size; i++)
        raw[i] = (unsigned char)(w->out[i / size] >> 8 * (i % size));
    if (p && compress(p, &packed, raw, (uLong)(n * size)) == Z_OK)
        ratio = (double)(n * size) / (double)packed;
    fl_heap_free(p);
#else
    (void)w, (void)n;
#endif
    return ratio;
}

/* Transcribes features x [bands, frames], raising the temperature until the result is acceptable. */
static int64_t fl__whisper_window(fl__whisper_run *w, fl_tensor *x) {
    const double least = fl_option(w->o->least, -1), most = fl_option(w->o->repeated, 1.35),
                 silent = fl_option(w->o->silent, 0.6);
    fl_scope s = fl_scope_begin();
    int64_t n = -1;
    w->memory = x ? fl_speech_whisper_encode(w->m, fv_const(fl_unsqueeze(x, 0))) : NULL;
    for (int k = 0; w->memory && k <= 5; k++) {
        w->result.temperature = w->temperature = 0.2 * k;
        if ((n = fl__whisper_decode_once(w)) < 0) break;
        w->result.repeated = fl__whisper_repeated(w, n);
        const bool unlikely = least != 0 && w->result.mean < least;
        w->result.silence = unlikely && silent != 0 && w->result.no_speech > silent;
        if (w->result.silence || (!unlikely && !(most != 0 && w->result.repeated > most))) break;
    }
    fl_scope_end(&s);
    return n;
}

/* again: more windows may follow: up to half of the positions are reserved for previous text. */
static bool fl__whisper_begin(fl__whisper_run *w, fl_nn_module *m, const fl_tensor *x,
                              const fl_speech_whisper_opts *o, bool again) {
    if (!fl__hf_is(m, &fl__hf_whisper_type) || fl_is_null_arg("fl_speech_whisper", x)) return false;
    const fl__hf_model *h = m->data;
    *w = (fl__whisper_run){.m = m, .h = h, .o = o, .rng = fl_data_rng(o->seed, 0, 0)};
    w->times = o->first_time ? o->first_time : h->vocabulary - 1501;
    w->n_prompt = o->prompt ? o->n_prompt : 1;
    if (x->ndim != 2 || x->shape[1] < 1)
        return fl_err_false("fl_speech_whisper: got features %s, expected [bands, frames]", FL_SHAPE_TEXT(x));
    if (w->n_prompt < 1 || w->n_prompt >= h->positions - again * (h->positions / 2) ||
        (o->times && (w->times < 1 || w->times >= h->vocabulary)))
        return fl_err_false("fl_speech_whisper: got a prompt of %lld tokens, first_time %lld; expected at "
                            "least one token and fewer than the %lld positions left, first_time in the "
                            "vocabulary", (long long)w->n_prompt, (long long)w->times,
                            (long long)(h->positions - again * (h->positions / 2)));
    if (!(w->prompt = fl_heap_alloc((size_t)h->positions * sizeof *w->prompt)))
        return fl_raise() != NULL;
    memcpy(w->prompt, o->prompt ? o->prompt : &h->start, (size_t)w->n_prompt * sizeof *w->prompt);
    return true;
}

FL_API int64_t fl_speech_whisper_opt(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t room,
                                     fl_speech_whisper_result *result, fl_speech_whisper_opts o) {
    fl__whisper_run w;
    if (room < 1) return fl_err_false("fl_speech_whisper: room must be positive, got %lld", (long long)room),
    -1;
    if (!fl__whisper_begin(&w, m, x, &o, false)) return -1;
    const bool recorded = fl_no_grad(true);
    w.out = out, w.room = room;
    const int64_t n = fl__whisper_window(&w, x);
    if (result) *result = w.result;
    fl_no_grad(recorded);
    fl_heap_free(w.prompt);
    return n;
}

/* ---- long recordings ---- */

typedef struct fl__whisper_long {
    fl__whisper_run w;
    fl_speech_whisper_each each;
    void *user;
    int64_t *history, n, cap; /* tokens generated so far */
    int64_t from;          /* first frame of the window */
} fl__whisper_long;

/* Puts the last half of the previous text before the prompt. */
static void fl__whisper_prompt(fl__whisper_long *l) {
    fl__whisper_run *w = &l->w;
    const int64_t previous = w->o->previous ? fl_option_int(w->o->previous, 0) : w->times - 3;
    const int64_t most = w->h->positions / 2 - 1, n = l->n < most ? l->n : most;
    const int64_t own = w->o->prompt ? w->o->n_prompt : 1;
    const int64_t before = n && previous > 0 ? n + 1 : 0;
    w->n_prompt = before + own;
    if (before) {
        w->prompt[0] = previous;
        memcpy(w->prompt + 1, l->history + l->n - n, (size_t)n * sizeof *l->history);
    }
    memcpy(w->prompt + before, w->o->prompt ? w->o->prompt : &w->h->start,
           (size_t)own * sizeof *w->prompt);
}

/* Reports tokens `first` to `end` of a window as a segment of its frames `from` to `to`. */
static bool fl__whisper_emit(fl__whisper_long *l, int64_t first, int64_t end, int64_t from,
                             int64_t to) {
    const int64_t *token = l->w.out + first;
    fl_speech_whisper_segment s = {(double)(l->from + from) / 100, (double)(l->from + to) / 100,
                                   token, end - first, l->w.result};
    bool text = false;
    for (int64_t i = 0; i < s.n; i++) text |= token[i] < l->w.h->eos;
    if (!text || to <= from) return true;
    if (!fl_heap_grow(&l->history, &l->cap, l->n + s.n, sizeof *l->history)) return fl_raise() != NULL;
    memcpy(l->history + l->n, token, (size_t)s.n * sizeof *token);
    l->n += s.n;
    return !l->each || l->each(&s, l->user);
}

/* Splits the n tokens of a window of `frames` frames into segments. Returns the offset of the next window in
   frames, -1 if the callback stopped. The part after the last pair of timestamps is transcribed again. */
static int64_t fl__whisper_split(fl__whisper_long *l, int64_t n, int64_t frames) {
    const int64_t *out = l->w.out, begin = l->w.o->times ? l->w.times : INT64_MAX;
    const bool single = n > 1 && out[n - 1] >= begin && out[n - 2] < begin;
    int64_t first = 0;
    for (int64_t i = 0; i + 1 < n; i++) {
        if (out[i] < begin || out[i + 1] < begin) continue;
        if (!fl__whisper_emit(l, first, i + 1, 2 * (out[first] - begin), 2 * (out[i] - begin)))
            return -1;
        first = i + 1;
    }
    if (first && !single) {
        const int64_t by = 2 * (out[first - 1] - begin);
        return by > 0 ? by : frames;
    }
    const int64_t last = n && out[n - 1] >= begin ? 2 * (out[n - 1] - begin) : 0;
    const int64_t from = first ? 2 * (out[first] - begin) : 0;
    return fl__whisper_emit(l, first, n, from, last > from ? last : frames) ? frames : -1;
}

FL_API bool fl_speech_whisper_long_opt(fl_nn_module *m, fl_tensor *x, fl_speech_whisper_each each,
                                       void *user, fl_speech_whisper_opts o) {
    fl__whisper_long l = {.each = each, .user = user};
    if (!fl__whisper_begin(&l.w, m, x, &o, true)) return false;
    const fl_var *positions =
        fl_nn_get_param(fl_nn_find(m, "model.encoder"), "embed_positions.weight");
    const int64_t window = 2 * fv_value(positions)->shape[0], all = x->shape[1];
    const bool recorded = fl_no_grad(true);
    l.w.room = l.w.h->positions;
    bool ok = (l.w.out = fl_heap_alloc((size_t)l.w.room * sizeof *l.w.out)) != NULL || fl_raise();
    while (ok && l.from < all) {
        const int64_t frames = all - l.from < window ? all - l.from : window;
        fl_scope s = fl_scope_begin();
        fl_tensor *part = fl_slice(x, 1, l.from, l.from + frames, 1);
        if (part && frames < window) part = fl_pad(part, .high = {0, window - frames});
        fl__whisper_prompt(&l);
        const int64_t n = fl__whisper_window(&l.w, part);
        const int64_t by = n < 0                ? -1
                           : l.w.result.silence ? frames
                                                : fl__whisper_split(&l, n, frames);
        if (l.w.result.temperature > 0.5) l.n = 0;
        l.from += by;
        ok = by > 0;
        fl_scope_end(&s);
    }
    fl_no_grad(recorded);
    fl_heap_free(l.w.prompt), fl_heap_free(l.w.out), fl_heap_free(l.history);
    return ok;
}

/* ---- folders ---- */

static fl_nn_module *fl__hf_make(const char *path, const fl_data_settings *c, const fl_data_file *f,
                                 char *text, int64_t n) {
    const char *type = fl_data_settings_text(c, "model_type");
    fl__hf_model h = {.config = text, .config_bytes = n};
    if (!type || (strcmp(type, "wav2vec2") != 0 && strcmp(type, "whisper") != 0)) {
        fl_fail("fl_speech_pretrained: %s: unsupported model_type '%s'; known: wav2vec2, whisper", path,
                type ? type : "(missing)");
        fl_heap_free(text);
        return NULL;
    }
    const bool whisper = *type == 'w' && type[1] == 'h';
    fl_nn_module *m = fl_nn_new(whisper ? &fl__hf_whisper_type : &fl__hf_wav2vec2_type, &h, sizeof h);
    if (m && (whisper ? fl__whisper_fill(m, c, f) : fl__w2v_fill(m, c, f))) return m;
    fl_nn_free(m);
    return NULL;
}

FL_API fl_nn_module *fl_speech_pretrained(const char *folder) {
    char path[2][4096];
    fl_data_settings c = {0};
    int64_t n = 0;
    if (!folder || strlen(folder) > 4000)
        return fl_fail("fl_speech_pretrained: the folder is NULL or its path longer than 4000 bytes"), NULL;
    snprintf(path[0], sizeof path[0], "%s/config.json", folder);
    snprintf(path[1], sizeof path[1], "%s/model.safetensors", folder);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const char *fn = "fl_speech_pretrained";
    char *text = fl_data_settings_read(&c, path[0], fn) ? fl_text_read_file(fn, path[0], &n) : NULL;
    fl_data_file *f = text ? fl_data_open_safetensors(path[1]) : NULL;
    const bool lasting = fl_persistent(true);
    fl_nn_module *m = f ? fl__hf_make(path[0], &c, f, text, n) : NULL;
    fl_persistent(lasting);
    if (!f) fl_heap_free(text);
    fl_data_close(f);
    const bool ok = m && fl_nn_load(m, path[1], .cast = true, .ignore = "proj_out.weight");
    fl_data_settings_free(&c);
    if (!ok) fl_nn_free(m);
    else fl_nn_train(m, false);
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok ? m : NULL;
}

/* Writes the original config, with the current number of labels if it has vocab_size. */
static bool fl__hf_put_config(const fl__hf_model *h, const char *path) {
    const char *key = "\"vocab_size\":", *at = strstr(h->config, key);
    fl_data_text t = {NULL, 0, 0};
    char number[32];
    const size_t head = at ? (size_t)(at - h->config) + strlen(key) : (size_t)h->config_bytes;
    const char *rest = h->config + head;
    while (at && *rest && strchr(" 0123456789", *rest)) rest++;
    snprintf(number, sizeof number, " %" PRId64, h->vocabulary);
    const bool ok = fl_data_text_put(&t, h->config, head) &&
                    (!at || fl_data_text_put(&t, number, strlen(number))) &&
                    fl_data_text_put(&t, rest, strlen(rest)) &&
                    fl_data_replace("fl_speech_pretrained_save", path, t.p, (size_t)t.n);
    fl_heap_free(t.p);
    return ok;
}

FL_API bool fl_speech_pretrained_save(fl_nn_module *m, const char *folder) {
    char path[4096];
    if (!m || (m->type != &fl__hf_wav2vec2_type && m->type != &fl__hf_whisper_type) || !folder ||
        strlen(folder) > 4000)
        return fl_fail("fl_speech_pretrained_save: expected a wav2vec 2.0 or Whisper model and a folder with "
                       "a path of up to 4000 bytes");
    fl_nn_state s = {NULL, 0, 0};
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    bool ok = fl_nn_state_add_module(&s, "", m) && fl_nn_state_save(&s, path, NULL, 0);
    fl_nn_state_free(&s);
    snprintf(path, sizeof path, "%s/config.json", folder);
    return ok && fl__hf_put_config(m->data, path);
}

#endif
#endif

/* MIT licence: see LICENSE. */
