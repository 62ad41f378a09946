/* fl/text/models/load.h - pretrained models: load and save Hugging Face folders, GGUF; load llama2.c */
#ifndef FL_TEXT_MODELS_LOAD_H
#define FL_TEXT_MODELS_LOAD_H
#include "models.h"
#include "../tokenizers/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_load_opts {
    fl_opts_guard guard_;
    bool stored; /* weights keep the file's dtype, quantised ones too, and are memory-mapped where possible;
                    they cannot be trained. false: f32 */
    int64_t context; /* tokens at most; 0 -> the file's */
    char _end;
} fl_text_load_opts;
/* Loads a model of fl_text_lm with the weights of
     a folder with config.json and model.safetensors or model.safetensors.index.json: GPT-2, Llama, Mistral,
       Qwen2, BERT with its masked-LM head
     a .gguf file: architectures llama, qwen2, gpt2; tensors as in fl_text_open_gguf; Llama 3.1's factors
       rope_freqs.weight become the equivalent rotary scaling
     a .bin file of llama2.c, or a folder with one and without config.json
   Unsupported settings and unexpected, missing or misshapen tensors are errors that name them. Returns NULL
   after fl_fail. */
#define fl_text_load(...) FL_TEXT__LOAD(__VA_ARGS__, ._end = 0)
#define FL_TEXT__LOAD(path, ...) fl_text_load_opt(path, FL_LITERAL(fl_text_load_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_text_load_opt(const char *path, fl_text_load_opts o);
typedef struct fl_text_save_opts {
    fl_opts_guard guard_;
    const fl_text_tokenizer *tokenizer; /* written too; NULL -> none */
    fl_dtype dtype; /* .gguf only: of matrices, a float or blocks such as fl_q4_k(); 0 -> unchanged */
    char _end;
} fl_text_save_opts;
/* Writes config.json, model.safetensors and, with a tokenizer, tokenizer.json and tokenizer_config.json into
   an existing folder; transformers loads it as one of the architectures above. A path that ends in .gguf:
   writes one file of architecture llama, qwen2 or gpt2, with the tokenizer's keys of fl_text_gguf_vocab_of.
   Rows that are not a multiple of the dtype's block size become q8, else f16; vectors and learned positions
   f32. Returns false after fl_fail, for example if the model is none of these architectures, the tokenizer
   has ids beyond the model's vocabulary, or GGUF does not support its kind. */
#define fl_text_save(...) FL_TEXT__SAVE(__VA_ARGS__, ._end = 0)
#define FL_TEXT__SAVE(m, ...) FL_TEXT__SAVE_(m, __VA_ARGS__)
#define FL_TEXT__SAVE_(m, path, ...) fl_text_save_opt(m, path, FL_LITERAL(fl_text_save_opts, __VA_ARGS__))
FL_API bool fl_text_save_opt(fl_nn_module *m, const char *path, fl_text_save_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_LOAD_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_LOAD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_LOAD_IMPL
#define FL_TEXT_MODELS_LOAD_IMPL
#include "../../data/json.h"
#include "../../data/safetensors.h"
#include "../../tensor/blocks.h"
#include "../../ops/copy.h"
#include "../../ops/elementwise.h"
#include "../../ops/view.h"
#include "../tokenizers/gguf_tokenizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FL__LM_NAME = 256 };

/* ---- our names of weights and theirs ----

   Patterns: * is the index of a layer, a final ? is weight or bias. A weight of ours is one of theirs,
   perhaps transposed (T), or three of them stacked by rows (J: "a|b|c"). */

typedef struct fl__lm_row {
    const char *ours, *theirs;
    char how; /* 0, 'T' or 'J' */
} fl__lm_row;

static const fl__lm_row fl__lm_gpt2[] = {
    {"embedding.weight", "transformer.wte.weight", 0},
    {"position.weight", "transformer.wpe.weight", 0},
    {"layers.*.norm1.?", "transformer.h.*.ln_1.?", 0},
    {"layers.*.self_attn.in_proj_?", "transformer.h.*.attn.c_attn.?", 'T'},
    {"layers.*.self_attn.out_proj.?", "transformer.h.*.attn.c_proj.?", 'T'},
    {"layers.*.norm2.?", "transformer.h.*.ln_2.?", 0},
    {"layers.*.linear1.?", "transformer.h.*.mlp.c_fc.?", 'T'},
    {"layers.*.linear2.?", "transformer.h.*.mlp.c_proj.?", 'T'},
    {"norm.?", "transformer.ln_f.?", 0},
    {"head.weight", "lm_head.weight", 0},
    {0}};

#define FL__LM_LLAMA "model.layers.*."
static const fl__lm_row fl__lm_llama[] = {
    {"embedding.weight", "model.embed_tokens.weight", 0},
    {"layers.*.norm1.?", FL__LM_LLAMA "input_layernorm.?", 0},
    {"layers.*.self_attn.in_proj_?",
     FL__LM_LLAMA "self_attn.q_proj.?|" FL__LM_LLAMA "self_attn.k_proj.?|" FL__LM_LLAMA
                  "self_attn.v_proj.?", 'J'},
    {"layers.*.self_attn.out_proj.?", FL__LM_LLAMA "self_attn.o_proj.?", 0},
    {"layers.*.norm2.?", FL__LM_LLAMA "post_attention_layernorm.?", 0},
    {"layers.*.gate.?", FL__LM_LLAMA "mlp.gate_proj.?", 0},
    {"layers.*.linear1.?", FL__LM_LLAMA "mlp.up_proj.?", 0},
    {"layers.*.linear2.?", FL__LM_LLAMA "mlp.down_proj.?", 0},
    {"norm.?", "model.norm.?", 0},
    {"head.weight", "lm_head.weight", 0},
    {0}};

#define FL__LM_BERT "bert.encoder.layer.*."
static const fl__lm_row fl__lm_bert[] = {
    {"embedding.weight", "bert.embeddings.word_embeddings.weight", 0},
    {"position.weight", "bert.embeddings.position_embeddings.weight", 0},
    {"types.weight", "bert.embeddings.token_type_embeddings.weight", 0},
    {"norm_in.?", "bert.embeddings.LayerNorm.?", 0},
    {"layers.*.self_attn.in_proj_?",
     FL__LM_BERT "attention.self.query.?|" FL__LM_BERT "attention.self.key.?|" FL__LM_BERT
                 "attention.self.value.?", 'J'},
    {"layers.*.self_attn.out_proj.?", FL__LM_BERT "attention.output.dense.?", 0},
    {"layers.*.norm1.?", FL__LM_BERT "attention.output.LayerNorm.?", 0},
    {"layers.*.linear1.?", FL__LM_BERT "intermediate.dense.?", 0},
    {"layers.*.linear2.?", FL__LM_BERT "output.dense.?", 0},
    {"layers.*.norm2.?", FL__LM_BERT "output.LayerNorm.?", 0},
    {"transform.0.?", "cls.predictions.transform.dense.?", 0},
    {"transform.1.?", "cls.predictions.transform.LayerNorm.?", 0},
    {"head.bias", "cls.predictions.bias", 0},
    {"head.weight", "cls.predictions.decoder.weight", 0},
    {0}};

/* GGUF's names, for all architectures. */
static const fl__lm_row fl__lm_gguf[] = {
    {"embedding.weight", "token_embd.weight", 0},
    {"position.weight", "position_embd.weight", 0},
    {"layers.*.norm1.?", "blk.*.attn_norm.?", 0},
    {"layers.*.self_attn.in_proj_?", "blk.*.attn_qkv.?", 0},
    {"layers.*.self_attn.in_proj_?", "blk.*.attn_q.?|blk.*.attn_k.?|blk.*.attn_v.?", 'J'},
    {"layers.*.self_attn.out_proj.?", "blk.*.attn_output.?", 0},
    {"layers.*.norm2.?", "blk.*.ffn_norm.?", 0},
    {"layers.*.gate.?", "blk.*.ffn_gate.?", 0},
    {"layers.*.linear1.?", "blk.*.ffn_up.?", 0},
    {"layers.*.linear2.?", "blk.*.ffn_down.?", 0},
    {"norm.?", "output_norm.?", 0},
    {"head.weight", "output.weight", 0},
    {0}};

/* Suffixes of tensors that are not weights and are ignored. */
static const char *const fl__lm_ignored[] = {
    ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "embeddings.position_ids",
    "pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
    "cls.predictions.decoder.bias", NULL};
/* GGUF: divisors of the rotary frequencies, one per pair. */
static const char fl__lm_factors[] = "rope_freqs.weight";
static const char *const fl__lm_prefixes[] = {"transformer.", "model.", "bert.",
                                              NULL}; /* optional */

/* ---- configuration ---- */

/* An architecture's names of the common settings. */
typedef struct fl__lm_arch {
    const char *type, *layers, *dim, *heads, *kv, *hidden, *context, *eps, *vocabulary;
    const fl__lm_row *rows;
} fl__lm_arch;
static const fl__lm_arch fl__lm_archs[] = {
    {"gpt2", "n_layer", "n_embd", "n_head", "n_head", "n_inner", "n_positions", "layer_norm_epsilon",
     "vocab_size", fl__lm_gpt2},
#define FL__LM_HF(type, eps, rows)                                                              \
    {                                                                                           \
        type, "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", \
            "intermediate_size", "max_position_embeddings", eps, "vocab_size", rows             \
    }
    FL__LM_HF("llama", "rms_norm_eps", fl__lm_llama),
    FL__LM_HF("mistral", "rms_norm_eps", fl__lm_llama),
    FL__LM_HF("qwen2", "rms_norm_eps", fl__lm_llama),
    FL__LM_HF("bert", "layer_norm_eps", fl__lm_bert),
};
enum { FL__LM_ARCHS = sizeof fl__lm_archs / sizeof *fl__lm_archs };

static const struct fl__lm_act {
    const char *name;
    fl_var *(*fn)(fl_var *x);
} fl__lm_acts[] = {{"gelu_new", fv_gelu_tanh}, {"gelu_pytorch_tanh", fv_gelu_tanh}, {"gelu", fv_gelu},
                   {"relu", fv_relu}, {"silu", fv_silu}, {"swish", fv_silu}};

static bool fl__lm_read_act(const fl_data_settings *k, const char *key, fl_text_lm_opts *o) {
    const char *name = fl_data_settings_text(k, key);
    if (!name) return true;
    for (size_t i = 0; i < sizeof fl__lm_acts / sizeof *fl__lm_acts; i++)
        if (!strcmp(name, fl__lm_acts[i].name)) return o->activation = fl__lm_acts[i].fn, true;
    return fl_fail("fl_text_load: %s: unknown activation '%.80s'; known: gelu, gelu_new, gelu_pytorch_tanh, "
                   "relu, silu, swish", k->path, name);
}

/* Rotary settings: rope_parameters, or rope_scaling in older files. */
static bool fl__lm_read_rope(const fl_data_settings *k, fl_text_lm_opts *o) {
    static const char *const outer[] = {"rope_parameters", "rope_scaling"};
    double of[5] = {0}; /* factor, low and high of both kinds, length; 0: missing */
    static const char *const names[] = {"factor", "low_freq_factor", "high_freq_factor",
                                        "original_max_position_embeddings", "attention_factor"};
    const char *type = NULL, *slow = NULL;
    char key[FL__LM_NAME];
    for (int i = 0; !type && i < 2; i++) {
        snprintf(key, sizeof key, "%s.rope_type", outer[i]);
        type = fl_data_settings_text(k, key);
        snprintf(key, sizeof key, "%s.type", outer[i]);
        if (!type) type = fl_data_settings_text(k, key);
        slow = outer[i];
    }
    o->place = FL_LM_ROTARY;
    o->rope.base = fl_data_settings_number(k, "rope_theta",
                                           fl_data_settings_number(k, "rope_parameters.rope_theta", 10000));
    /* dynamic: no change within the file's context */
    if (!type || !strcmp(type, "default") || !strcmp(type, "dynamic")) return true;
    const bool yarn = !strcmp(type, "yarn"), llama3 = !strcmp(type, "llama3");
    for (int i = 0; i < 5; i++) {
        const char *name = yarn && i == 1 ? "beta_slow" : yarn && i == 2 ? "beta_fast" : names[i];
        snprintf(key, sizeof key, "%s.%s", slow, name);
        of[i] = fl_data_settings_number(k, key, 0);
    }
    if (!(yarn || llama3 || !strcmp(type, "linear")))
        return fl_fail("fl_text_load: %s: unknown rotary scaling '%.80s'; known: linear, dynamic, llama3, "
                       "yarn",
                       k->path, type);
    o->rope.scale = of[0] > 0 ? 1 / of[0] : 1;
    if (!yarn && !llama3) return true;
    o->rope.kind = yarn ? FL_ROTARY_YARN : FL_ROTARY_LLAMA3, o->rope.low = of[1], o->rope.high = of[2];
    o->rope.trained = of[3] >= 1 && of[3] <= INT32_MAX ? (int64_t)of[3] : o->context;
    return !(of[4] > 0 && fabs(of[4] - fl_rotary_attention_factor(&o->rope)) > 1e-6) ||
           fl_fail("fl_text_load: %s: attention_factor must be 1 + 0.1 ln(factor): got %g", k->path, of[4]);
}

/* The id of that key, or its list of ids, the first 8 of them; invalid ids are skipped. */
static fl_shape fl__lm_read_ids(const fl_data_settings *k, const char *name) {
    fl_shape ids = {0};
    char key[FL__LM_NAME];
    for (int i = -1; i < FL_MAX_DIMS && ids.ndim < FL_MAX_DIMS; i++) {
        snprintf(key, sizeof key, i < 0 ? "%s" : "%s.%d", name, i);
        const int64_t id = fl_data_settings_size(k, key, -1);
        if (id >= 0) ids.dim[ids.ndim++] = id;
    }
    return ids;
}

/* Fills *o and *vocabulary from the configuration. */
static bool fl__lm_read_config(const fl_data_settings *k, const fl__lm_arch *f, fl_text_lm_opts *o,
                               int64_t *vocabulary) {
    o->layers = fl_data_settings_size(k, f->layers, -1), o->dim = fl_data_settings_size(k, f->dim, -1);
    o->heads = fl_data_settings_size(k, f->heads, -1);
    o->kv_heads = fl_data_settings_size(k, f->kv, o->heads);
    o->hidden = fl_data_settings_size(k, f->hidden, 4 * o->dim);
    o->context = fl_data_settings_size(k, f->context, 2048);
    o->eps = fl_data_settings_number(k, f->eps, 1e-5);
    *vocabulary = fl_data_settings_size(k, f->vocabulary, -1);
    if (o->layers < 1 || o->dim < 1 || o->heads < 1 || o->kv_heads < 1 || o->hidden < 1 || o->context < 1 ||
        *vocabulary < 1 || o->dim % o->heads)
        return fl_fail("fl_text_load: %s: %s, %s, %s, %s and %s must be integers > 0, the width a multiple "
                       "of the "
                       "heads", k->path, f->layers, f->dim, f->heads, f->hidden, f->vocabulary);
    if (fl_data_settings_size(k, "head_dim", o->dim / o->heads) != o->dim / o->heads)
        return fl_fail("fl_text_load: %s: head_dim: got %s, expected %" PRId64 " / %" PRId64, k->path,
                       fl_data_settings_text(k, "head_dim"), o->dim, o->heads);
    if (o->kv_heads == o->heads) o->kv_heads = 0;
    o->bos = fl__lm_read_ids(k, "bos_token_id"), o->eos = fl__lm_read_ids(k, "eos_token_id");
    const bool bert = f->rows == fl__lm_bert, gpt2 = f->rows == fl__lm_gpt2;
    if (!fl__lm_read_act(k, gpt2 ? "activation_function" : "hidden_act", o)) return false;
    o->untied = fl_data_settings_number(k, "tie_word_embeddings", gpt2 || bert) == 0;
    if (gpt2) return true;
    if (bert) {
        const char *place = fl_data_settings_text(k, "position_embedding_type");
        o->post_norm = o->bidirectional = o->embedding_norm = o->masked_head = true;
        o->types = fl_data_settings_size(k, "type_vocab_size", 2);
        return !place || !strcmp(place, "absolute") ||
               fl_fail("fl_text_load: %s: unknown position encoding '%.80s'; known: absolute", k->path,
                       place);
    }
    o->rms = o->gated = o->no_bias = true;
    o->qkv_bias = !strcmp(f->type, "qwen2");
    if (!o->qkv_bias || fl_data_settings_number(k, "use_sliding_window", 0) > 0)
        o->window = fl_data_settings_size(k, "sliding_window", 0);
    if (fl_data_settings_number(k, "attention_bias", 0) > 0 || fl_data_settings_number(k, "mlp_bias", 0) > 0)
        return fl_fail("fl_text_load: %s: attention_bias and mlp_bias are not supported", k->path);
    return fl__lm_read_rope(k, o);
}

/* ---- weights ---- */

/* The values of * and ? in a name. */
typedef struct fl__lm_wildcards {
    int64_t number;
    const char *kind; /* "weight", "bias" */
} fl__lm_wildcards;

/* Writes the pattern with those values up to a |. Returns the rest of the pattern. */
static const char *fl__lm_put_name(const char *pattern, fl__lm_wildcards of, char *out) {
    size_t n = 0;
    for (; *pattern && *pattern != '|'; pattern++) {
        if (*pattern == '*') n += (size_t)snprintf(out + n, FL__LM_NAME - n, "%" PRId64, of.number);
        else if (*pattern == '?') n += (size_t)snprintf(out + n, FL__LM_NAME - n, "%s", of.kind);
        else out[n++] = *pattern;
    }
    out[n] = 0;
    return *pattern ? pattern + 1 : pattern;
}

static bool fl__lm_matches(const char *pattern, const char *name, fl__lm_wildcards *of) {
    const char *star = strchr(pattern, '*'), *tail = star ? star + 1 : pattern;
    char *end = (char *)(uintptr_t)name;
    if (star) {
        const size_t n = (size_t)(star - pattern);
        if (strncmp(pattern, name, n)) return false;
        of->number = strtoll(name + n, &end, 10);
        if (end == name + n) return false;
    }
    const size_t n = strcspn(tail, "?");
    if (strncmp(tail, end, n) || !tail[n]) return !strcmp(tail, end);
    of->kind = !strcmp(end + n, "weight") ? "weight" : !strcmp(end + n, "bias") ? "bias" : NULL;
    return of->kind != NULL;
}

typedef struct fl__lm_loader {
    fl_data_file *f;
    const fl__lm_row *rows;
    const fl_text_lm_opts *o;
    bool stored, *used;
} fl__lm_loader;

/* Index of that tensor in the file, with or without a prefix; -1: missing. */
static int64_t fl__lm_find(const fl_data_file *f, const char *name) {
    int64_t at = fl_data_find(f, name);
    for (int i = 0; at < 0 && fl__lm_prefixes[i]; i++) {
        const size_t n = strlen(fl__lm_prefixes[i]);
        if (!strncmp(name, fl__lm_prefixes[i], n)) at = fl_data_find(f, name + n);
    }
    const char *norm = strstr(name, "LayerNorm.");
    if (at < 0 && norm) { /* older files call them gamma and beta */
        char old[FL__LM_NAME];
        snprintf(old, sizeof old, "%.*s%s", (int)(norm + 10 - name), name,
                 norm[10] == 'w' ? "gamma" : "beta");
        at = fl_data_find(f, old);
    }
    return at;
}

/* The row for the parameter at that path whose tensors are all in the file: their indices and number. Returns
   NULL after fl_fail. */
static const fl__lm_row *fl__lm_find_row(const fl__lm_loader *l, const char *path, int64_t part[3], int *n) {
    char name[FL__LM_NAME];
    fl__lm_wildcards of = {0, ""};
    snprintf(name, sizeof name, "%s", path);
    for (const fl__lm_row *row = l->rows; row->ours; row++) {
        if (!fl__lm_matches(row->ours, path, &of)) continue;
        bool found = true;
        *n = 0;
        for (const char *at = row->theirs; found && *at; ++*n) {
            at = fl__lm_put_name(at, of, name);
            found = (part[*n] = fl__lm_find(l->f, name)) >= 0;
        }
        if (found) return row;
    }
    fl_fail("fl_text_load: %s: tensor '%s' is missing", l->f->f.path, name);
    return NULL;
}

/* Tensor i's shape in elements, not in blocks. */
static fl_shape fl__lm_shape(const fl_data_file *f, int64_t i) {
    const fl_dtype_info *blocks = fl_dtype_registered(fl_data_dtype(f, i));
    fl_shape s = fl_data_shape(f, i);
    if (blocks && s.ndim) s.dim[s.ndim - 1] *= blocks->block;
    return s;
}

/* The parameter's shape in the file: of a transposed tensor, or of stacked parts. */
static fl_shape fl__lm_file_shape(const fl__lm_loader *l, const fl__lm_row *row, const int64_t part[3],
                                  int n) {
    fl_shape s = fl__lm_shape(l->f, part[0]);
    if (row->how == 'T' && s.ndim == 2) s = FL_SHAPE(s.dim[1], s.dim[0]);
    for (int i = 1; i < n; i++) {
        const fl_shape next = fl__lm_shape(l->f, part[i]);
        bool fits = s.ndim == next.ndim && s.ndim > 0;
        for (int k = 1; fits && k < s.ndim; k++) fits = s.dim[k] == next.dim[k];
        if (!fits) return next;
        s.dim[0] += next.dim[0];
    }
    return s;
}

/* Checks that the file has the parameter at that path with that shape. */
static bool fl__lm_check_param(fl__lm_loader *l, const char *path, fl_shape want) {
    int64_t part[3];
    int n = 0;
    const fl__lm_row *row = fl__lm_find_row(l, path, part, &n);
    if (!row) return false;
    for (int i = 0; i < n; i++) {
        const fl_dtype d = fl_data_dtype(l->f, part[i]);
        l->used[part[i]] = true;
        if (!fl_dtype_is_float(d) && !fl_dtype_registered(d))
            return fl_fail("fl_text_load: %s: tensor '%.200s' is %s, expected a float", l->f->f.path,
                           fl_data_name(l->f, part[i]), fl_dtype_name(d));
    }
    const fl_shape got = fl__lm_file_shape(l, row, part, n);
    if (got.ndim == want.ndim && !memcmp(got.dim, want.dim, (size_t)got.ndim * sizeof *got.dim)) return true;
    return fl_fail("fl_text_load: %s: wrong shape of '%.200s', %s (%s here): got %s, expected %s",
                   l->f->f.path,
                   fl_data_name(l->f, part[0]), n > 1 ? "part of a tensor" : "a tensor", path,
                   fl_text_of_shape(got).s, fl_text_of_shape(want).s);
}

/* A tied output projection has no weight of its own. */
static bool fl__lm_is_tied(const fl__lm_loader *l, const char *path) {
    return !l->o->untied && !strcmp(path, "head.weight");
}

/* Checks m, a module of a model with one layer: all layers are like it. */
static bool fl__lm_check_module(fl_nn_module *m, const char *prefix, void *user) {
    fl__lm_loader *l = user;
    static const char first[] = "layers.0.";
    const bool layer = !strncmp(prefix, first, strlen(first));
    for (int64_t i = 0; i < m->n_param; i++)
        for (int64_t k = 0; k < (layer ? l->o->layers : 1); k++) {
            char path[FL_NN_PATH + 32];
            if (layer)
                snprintf(path, sizeof path, "layers.%" PRId64 ".%s%s", k, prefix + strlen(first),
                         m->param[i].name);
            else snprintf(path, sizeof path, "%s%s", prefix, m->param[i].name);
            if (!fl__lm_is_tied(l, path) &&
                !fl__lm_check_param(l, path, fl_shape_of(fv_value(m->param[i].var))))
                return false;
        }
    return true;
}

static bool fl__lm_ignorable(const char *name, bool untied) {
    for (int i = 0; fl__lm_ignored[i]; i++)
        if (fl_data_ends(name, fl__lm_ignored[i])) return true;
    return !untied && (!strcmp(name, "lm_head.weight") || !strcmp(name, "cls.predictions.decoder.weight") ||
                       !strcmp(name, "output.weight"));
}

/* A model with shapes but no values. */
static fl_nn_module *fl__lm_skeleton(int64_t vocabulary, fl_text_lm_opts o) {
    fl_scope s = fl_scope_begin();
    fl_set_flags(fl_flags() | FL_SHAPES_ONLY);
    fl_nn_module *m = fl_text_lm_opt(vocabulary, o);
    fl_scope_end(&s);
    return m;
}

/* Checks that the file has exactly the tensors of such a model. Costs as much as one layer, whatever the
   sizes in the configuration. */
static bool fl__lm_check(fl__lm_loader *l, int64_t vocabulary) {
    fl_text_lm_opts o = *l->o;
    fl_rng rng = {0, 0};
    o.layers = 1, o.rng = &rng;
    fl_nn_module *m = fl__lm_skeleton(vocabulary, o);
    l->used = m ? fl_heap_alloc((size_t)fl_data_count(l->f) + 1) : NULL;
    bool ok = l->used && fl_nn_visit_modules(m, fl__lm_check_module, l);
    for (int64_t i = 0; ok && i < fl_data_count(l->f); i++) {
        const char *name = fl_data_name(l->f, i);
        if (l->used[i] || (l->rows == fl__lm_gguf && !strcmp(name, fl__lm_factors))) continue;
        ok = fl__lm_ignorable(name, o.untied) ||
             fl_fail("fl_text_load: %s: unexpected tensor '%.200s'", l->f->f.path, name);
        if (ok) fl_log_message(FL_LOG_INFO, "fl_text_load: %s: tensor '%.200s' is ignored", l->f->f.path,
                               name);
    }
    fl_heap_free(l->used);
    fl_nn_free(m);
    return ok;
}

/* The parameter's value, in new memory unless `stored`; NULL after fl_fail. */
static fl_tensor *fl__lm_value(const fl__lm_loader *l, const char *path) {
    int64_t at[3];
    int n = 0;
    const fl__lm_row *row = fl__lm_find_row(l, path, at, &n);
    fl_tensor *part[3];
    bool same = true; /* parts of different dtypes cannot be one stored tensor */
    for (int i = 0; row && i < n; i++)
        same = same && fl_data_dtype(l->f, at[i]) == fl_data_dtype(l->f, at[0]);
    for (int i = 0; row && i < n; i++) {
        part[i] = fl_data_read(l->f, fl_data_name(l->f, at[i]));
        if (part[i] && !(l->stored && same)) part[i] = fl_cast(part[i], FL_F32);
        if (!part[i]) return NULL;
    }
    if (!row) return NULL;
    if (row->how == 'J') return fl_concat(part, n, 0);
    if (row->how == 'T' && part[0]->ndim == 2) return fl_contiguous(fl_transpose(part[0], 0, 1));
    return l->stored || fl_data_dtype(l->f, at[0]) != FL_F32 ? part[0] : fl_clone(part[0]);
}

static bool fl__lm_load_module(fl_nn_module *m, const char *prefix, void *user) {
    const fl__lm_loader *l = user;
    for (int64_t i = 0; i < m->n_param; i++) {
        char path[FL_NN_PATH];
        snprintf(path, sizeof path, "%s%s", prefix, m->param[i].name);
        if (fl__lm_is_tied(l, path)) continue;
        fl_scope s = fl_scope_begin();
        fl_persistent(true);
        fl_tensor *t = fl_keep(fl__lm_value(l, path));
        fl_scope_end(&s);
        if (!t) return false;
        fl_var *v = m->param[i].var;
        fl_drop(v->value);
        v->value = t;
        if (l->stored) v->requires_grad = false;
    }
    return true;
}

/* A model with those options and the file's weights. Frees nothing. */
static fl_nn_module *fl__lm_load(fl_data_file *f, const fl__lm_row *rows, int64_t vocabulary,
                                 fl_text_lm_opts o, const fl_text_load_opts *opts) {
    if (opts->context) o.context = o.place == FL_LM_LEARNED ? o.context : opts->context;
    fl__lm_loader l = {.f = f, .rows = rows, .o = &o, .stored = opts->stored};
    fl_nn_module *m = fl__lm_check(&l, vocabulary) ? fl__lm_skeleton(vocabulary, o) : NULL;
    if (m && fl_nn_visit_modules(m, fl__lm_load_module, &l)) return m;
    fl_nn_free(m);
    return NULL;
}

/* ---- file formats ---- */

static fl_nn_module *fl__lm_load_folder(const char *path, const char *config, const fl_text_load_opts *opts) {
    char name[4096];
    fl_data_settings k = {0};
    bool ok = fl_data_settings_read(&k, config, "fl_text_load");
    const char *type = ok ? fl_data_settings_text(&k, "model_type") : NULL;
    const fl__lm_arch *f = NULL;
    for (int i = 0; type && i < FL__LM_ARCHS; i++)
        if (!strcmp(type, fl__lm_archs[i].type)) f = &fl__lm_archs[i];
    if (ok && !f)
        ok = fl_fail("fl_text_load: %s: unknown model_type '%.80s'; known: gpt2, llama, mistral, qwen2, bert",
                     config, type ? type : "");
    fl_text_lm_opts o = {0};
    int64_t vocabulary = 0;
    ok = ok && fl__lm_read_config(&k, f, &o, &vocabulary);
    snprintf(name, sizeof name, "%s/model.safetensors.index.json", path);
    const int sharded = ok ? fl_data_exists("fl_text_load", name) : -1;
    if (!sharded) snprintf(name, sizeof name, "%s/model.safetensors", path);
    fl_data_file *file = sharded >= 0 ? fl_data_map_safetensors(name, false) : NULL;
    fl_nn_module *m = file ? fl__lm_load(file, f->rows, vocabulary, o, opts) : NULL;
    fl_data_close(file);
    fl_data_settings_free(&k);
    return m;
}

/* Does that scaling have the file's n factors, which are f32? */
static bool fl__lm_fits_factors(const fl_rotary_opts *o, const float *factor, int64_t n) {
    fl_rotary_opts plain = *o;
    plain.kind = FL_ROTARY_LINEAR, plain.scale = 1;
    bool fits = o->trained > 0;
    for (int64_t j = 0; fits && j < n; j++)
        fits = fabs(fl_rotary_frequency(&plain, j) / (factor[j] * fl_rotary_frequency(o, j)) - 1) < 1e-5;
    return fits;
}

/* Finds the rotary scaling llama3 with these frequency divisors: 1 for pairs that rotate more than `high`
   times within the original context, the scaling's factor for those that rotate less than `low` times; in
   between 1 / divisor is linear in the number of rotations, from which low = 1, high and the original
   context follow. Llama 3.1's values are tried first. Returns false if none. */
static bool fl__lm_take_factors(const float *factor, int64_t n, int64_t dim, double trained,
                                fl_rotary_opts *o) {
    const double lengths[] = {trained, 8192}, most = n ? factor[n - 1] : 0;
    fl_rotary_opts r = {.base = o->base, .dim = dim, .scale = 1 / most, .kind = FL_ROTARY_LLAMA3,
                        .low = 1, .high = 4, .interleaved = o->interleaved};
    fl_rotary_opts plain = {.base = o->base, .dim = dim};
    double share[2], rotations[2];
    int known = 0;
    if (!(most >= 1 && most < 1e6)) return false;
    for (int i = 0; i < 2; i++) {
        r.trained = (int64_t)fmin(fmax(lengths[i], 0), INT32_MAX);
        if (fl__lm_fits_factors(&r, factor, n)) return *o = r, true;
    }
    for (int64_t j = 0; j < n; j++) { /* first and last pair in between */
        if (!(factor[j] > 1.0001 && factor[j] < 0.9999 * most)) continue;
        const int k = known > 0;
        share[k] = (1 / (double)factor[j] - 1 / most) / (1 - 1 / most);
        rotations[k] = fl_rotary_frequency(&plain, j) / 6.283185307179586, known++;
    }
    if (known < 2) return false;
    const double slope = (share[0] - share[1]) / (rotations[0] - rotations[1]),
                 low = slope * rotations[0] - share[0];
    if (!(slope > 0 && low > 0)) return false;
    r.high = 1 + 1 / low, r.trained = (int64_t)fmin(slope / low + 0.5, INT32_MAX);
    return fl__lm_fits_factors(&r, factor, n) && (*o = r, true);
}

/* Applies the tensor of frequency divisors, if the file has one. */
static bool fl__lm_read_factors(fl_data_file *f, const fl_data_settings *k, fl_text_lm_opts *o) {
    const int64_t at = fl_data_find(f, fl__lm_factors), dim = o->dim / o->heads;
    if (at < 0) return true;
    fl_tensor *t = fl_data_read(f, fl__lm_factors);
    if (!t) return false;
    if (o->place != FL_LM_ROTARY || o->rope.kind != FL_ROTARY_LINEAR || fl_option(o->rope.scale, 1) != 1)
        return fl_fail("fl_text_load: %s: '%s' requires rotary positions without another scaling", k->path,
                       fl__lm_factors);
    if (t->dtype != FL_F32 || t->ndim != 1 || t->shape[0] != dim / 2)
        return fl_fail("fl_text_load: %s: '%s' is %s %s, expected f32 [%" PRId64 "]", k->path, fl__lm_factors,
                       fl_dtype_name(t->dtype), fl_text_of_shape(fl_shape_of(t)).s, dim / 2);
    const double trained =
        fl_data_settings_number(k, "rope_scaling.original_max_position_embeddings", 8192);
    const float *factor = fl_map(t, FL_READ);
    bool ok = factor && fl__lm_take_factors(factor, dim / 2, dim, trained, &o->rope);
    if (factor) fl_unmap(t, FL_READ);
    o->rope.dim = 0; /* default: the head dimension */
    return ok || fl_fail("fl_text_load: %s: '%s' are not the factors of rotary scaling llama3", k->path,
                         fl__lm_factors);
}

static fl_nn_module *fl__lm_load_gguf(const char *path, const fl_text_load_opts *opts) {
    fl_data_file *f = fl_text_open_gguf(path);
    const char *arch = f ? fl_data_meta(f, "general.architecture") : NULL;
    static const char *const known[] = {"llama", "qwen2", "gpt2"};
    int which = -1;
    for (int i = 0; arch && i < 3; i++)
        if (!strcmp(arch, known[i])) which = i;
    if (f && which < 0)
        fl_fail("fl_text_load: %s: unknown architecture '%.80s'; known: llama, qwen2, gpt2", path,
                arch ? arch : "");
    /* GGUF's keys and the configuration's */
    static const char *const keys[][2] = {{"block_count", "num_hidden_layers"},
                                          {"embedding_length", "hidden_size"},
                                          {"attention.head_count", "num_attention_heads"},
                                          {"attention.head_count_kv", "num_key_value_heads"},
                                          {"feed_forward_length", "intermediate_size"},
                                          {"context_length", "max_position_embeddings"},
                                          {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                          {"attention.layer_norm_epsilon", "rms_norm_eps"},
                                          {"rope.freq_base", "rope_theta"},
                                          {"rope.scaling.type", "rope_scaling.type"},
                                          {"rope.scaling.factor", "rope_scaling.factor"},
                                          {"rope.scaling.original_context_length",
                                           "rope_scaling.original_max_position_embeddings"},
                                          {"attention.sliding_window", "sliding_window"}};
    fl_data_settings k = {.path = path};
    bool ok = which >= 0;
    for (size_t i = 0; ok && i < sizeof keys / sizeof *keys; i++) {
        char key[FL__LM_NAME];
        snprintf(key, sizeof key, "%s.%s", arch, keys[i][0]);
        const char *value = fl_data_meta(f, key);
        if (value && strcmp(value, "none")) ok = fl_data_settings_add(&k, keys[i][1], value);
    }
    static const char *const ids[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; ok && i < 2; i++) {
        char key[FL__LM_NAME];
        snprintf(key, sizeof key, "tokenizer.ggml.%s", ids[i]);
        const char *value = fl_data_meta(f, key);
        if (value) ok = fl_data_settings_add(&k, ids[i], value);
    }
    const int64_t table = ok ? fl_data_find(f, "token_embd.weight") : -1;
    if (ok && table < 0) ok = fl_fail("fl_text_load: %s: tensor 'token_embd.weight' is missing", path);
    char size[32];
    snprintf(size, sizeof size, "%" PRId64, ok ? fl_data_shape(f, table).dim[0] : 0);
    ok = ok && fl_data_settings_add(&k, "vocab_size", size) &&
         (fl_data_find(f, "output.weight") >= 0 || fl_data_settings_add(&k, "tie_word_embeddings", "1"));
    fl_text_lm_opts o = {0};
    int64_t vocabulary = 0;
    static const fl__lm_arch gpt2 = FL__LM_HF("gpt2", "rms_norm_eps", fl__lm_gpt2);
    ok = ok && fl__lm_read_config(&k, which == 2 ? &gpt2 : &fl__lm_archs[which ? 3 : 1], &o, &vocabulary);
    if (which == 2) o.untied = fl_data_settings_number(&k, "tie_word_embeddings", 0) == 0;
    o.rope.interleaved = which == 0;
    ok = ok && fl__lm_read_factors(f, &k, &o);
    fl_nn_module *m = ok ? fl__lm_load(f, fl__lm_gguf, vocabulary, o, opts) : NULL;
    fl_data_close(f);
    fl_data_settings_free(&k);
    return m;
}

/* llama2.c: seven integers, then f32 in a fixed order, presented as a file of named tensors. */
static bool fl__lm_llama2c_fill(const fl_data_file *f, const fl_data_entry *e, void *dst) {
    return fl_data_stream_read(&f->f, dst, (size_t)(e->end - e->begin), e->begin);
}

static bool fl__lm_llama2c_add(fl_data_file *f, const char *pattern, int64_t number, fl_shape shape,
                               int64_t *at) {
    char name[FL__LM_NAME];
    fl__lm_put_name(pattern, (fl__lm_wildcards){number, ""}, name);
    fl_data_entry *e = fl_data_file_add(f, name, (int64_t)strlen(name));
    if (!e) return false;
    e->dtype = FL_F32, e->shape = shape, e->begin = *at;
    *at = e->end = e->begin + fl_shape_numel(shape) * 4;
    return true;
}

static fl_nn_module *fl__lm_load_llama2c(const char *path, const fl_text_load_opts *opts) {
    fl_data_file *f = fl_data_file_new("fl_text_load", path);
    int32_t h[7] = {0};
    if (!f || !fl_data_stream_read(&f->f, h, sizeof h, 0)) return fl_data_close(f), NULL;
    const int64_t dim = h[0], hidden = h[1], layers = h[2], heads = h[3], kv = h[4], context = h[6];
    const bool untied = h[5] < 0;
    const int64_t vocabulary = untied ? -(int64_t)h[5] : h[5];
    bool ok = dim > 0 && hidden > 0 && layers > 0 && heads > 0 && kv > 0 && vocabulary > 0 && context > 0 &&
              dim % heads == 0 && heads % kv == 0 && layers <= 64 + f->f.size / 512 && layers < 1000 &&
              dim < 1 << 20 && hidden < 1 << 22 &&
              vocabulary < 1 << 24 && context < 1 << 24;
    const int64_t rows = ok ? dim / heads * kv : 0;
    const struct { const char *name; fl_shape shape; } per_layer[] = {
        {"model.layers.*.input_layernorm.weight", FL_SHAPE(dim)},
        {"model.layers.*.self_attn.q_proj.weight", FL_SHAPE(dim, dim)},
        {"model.layers.*.self_attn.k_proj.weight", FL_SHAPE(rows, dim)},
        {"model.layers.*.self_attn.v_proj.weight", FL_SHAPE(rows, dim)},
        {"model.layers.*.self_attn.o_proj.weight", FL_SHAPE(dim, dim)},
        {"model.layers.*.post_attention_layernorm.weight", FL_SHAPE(dim)},
        {"model.layers.*.mlp.gate_proj.weight", FL_SHAPE(hidden, dim)},
        {"model.layers.*.mlp.down_proj.weight", FL_SHAPE(dim, hidden)},
        {"model.layers.*.mlp.up_proj.weight", FL_SHAPE(hidden, dim)}};
    const int64_t sinusoids = ok ? context * (dim / heads) * 4 : 0; /* cosines and sines, unused */
    int64_t want = ok ? 28 + sinusoids + (vocabulary * dim * (1 + untied) + dim) * 4 : 0;
    for (int i = 0; ok && i < 9; i++) want += layers * fl_shape_numel(per_layer[i].shape) * 4;
    if (!ok || f->f.size != want) {
        fl_fail("fl_text_load: %s: not a llama2.c file: %" PRId64 " bytes do not match the header: dim %d, "
                "hidden %d, layers %d, heads %d, kv heads %d, vocabulary %d, context %d",
                path, f->f.size, h[0], h[1], h[2], h[3], h[4], h[5], h[6]);
        return fl_data_close(f), NULL;
    }
    int64_t at = 28;
    ok = fl__lm_llama2c_add(f, "model.embed_tokens.weight", 0, FL_SHAPE(vocabulary, dim), &at);
    for (int i = 0; i < 9; i++)
        for (int64_t n = 0; ok && n < layers; n++)
            ok = fl__lm_llama2c_add(f, per_layer[i].name, n, per_layer[i].shape, &at);
    ok = ok && fl__lm_llama2c_add(f, "model.norm.weight", 0, FL_SHAPE(dim), &at);
    at += sinusoids;
    ok = ok && (!untied || fl__lm_llama2c_add(f, "lm_head.weight", 0, FL_SHAPE(vocabulary, dim), &at));
    f->fill = fl__lm_llama2c_fill;
    fl_nn_module *m = NULL;
    if (ok && fl_data_file_ready(f) && fl_data_file_map(f, NULL))
        m = fl__lm_load(f, fl__lm_llama, vocabulary,
                        (fl_text_lm_opts){.layers = layers,
                                          .dim = dim,
                                          .heads = heads,
                                          .kv_heads = kv,
                                          .hidden = hidden,
                                          .context = context,
                                          .place = FL_LM_ROTARY,
                                          .rope = {.interleaved = true},
                                          .rms = true,
                                          .gated = true,
                                          .no_bias = true,
                                          .untied = untied},
                        opts);
    fl_data_close(f);
    return m;
}

/* Finds the first .bin file of a folder that is not a tokenizer. */
static bool fl__lm_bin_name(void *arg, const char *name, bool folder) {
    char *found = arg;
    if (folder || !fl_data_ends(name, ".bin") || !strncmp(name, "tok", 3)) return true;
    snprintf(found, FL__LM_NAME, "%s", name);
    return false;
}

FL_API fl_nn_module *fl_text_load_opt(const char *path, fl_text_load_opts o) {
    char name[4096], bin[FL__LM_NAME] = "";
    if (!path || strlen(path) > sizeof name - FL__LM_NAME || o.context < 0 || o.context > INT32_MAX) {
        fl_fail("fl_text_load: path is NULL or too long, or context is negative: got %" PRId64, o.context);
        return NULL;
    }
    fl_nn_module *m = NULL;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    snprintf(name, sizeof name, "%s/config.json", path);
    if (fl_data_ends(path, ".gguf")) m = fl__lm_load_gguf(path, &o);
    else if (fl_data_ends(path, ".bin")) m = fl__lm_load_llama2c(path, &o);
    else {
        const int config = fl_data_exists("fl_text_load", name);
        if (config > 0) m = fl__lm_load_folder(path, name, &o);
        else if (!config && fl_data_folder_names("fl_text_load", path, fl__lm_bin_name, bin)) {
            snprintf(name, sizeof name, "%s/%s", path, bin);
            if (*bin) m = fl__lm_load_llama2c(name, &o);
            else fl_fail("fl_text_load: %s: the folder has no config.json and no llama2.c .bin file", path);
        }
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    return m;
}

/* ---- saving ---- */

/* The architecture with these options; NULL after fl_fail. */
static const fl__lm_arch *fl__lm_arch_of(const fl_text_lm_opts *o) {
    const bool plain = o->kind == FL_LM_TRANSFORMER && !o->cutoffs.ndim && o->embedding_scale == 1;
    int i = -1;
    if (!plain) i = -1;
    else if (o->place == FL_LM_ROTARY && o->rms && o->gated && o->no_bias && !o->post_norm &&
             !o->bidirectional && o->types < 2 && !o->masked_head && !o->embedding_norm)
        i = o->qkv_bias ? 3 : o->window ? 2 : 1;
    else if (o->place == FL_LM_LEARNED && !o->rms && !o->gated && !o->no_bias && !o->window && !o->kv_heads) {
        if (!o->post_norm && !o->bidirectional && o->types < 2 && !o->masked_head && !o->embedding_norm)
            i = 0;
        if (o->post_norm && o->bidirectional && o->types > 1 && o->masked_head && o->embedding_norm) i = 4;
    }
    if (i >= 0) return &fl__lm_archs[i];
    fl_fail("fl_text_save: no architecture has these options; known: gpt2, llama, mistral, qwen2, bert");
    return NULL;
}

typedef struct fl__lm_saver {
    const fl__lm_arch *f;
    const fl_text_lm_opts *o;
    fl_data_named_tensor *list;
    int64_t n, cap;
    fl_data_arena names;
    bool gguf, pairs; /* pairs: rotary pairs are adjacent rows of a head, else half a head apart */
    fl_dtype dtype;   /* GGUF: of matrices; 0: unchanged */
} fl__lm_saver;

/* The tensor as written to GGUF: matrices in the dtype, or one that fits their rows; others f32. */
static fl_tensor *fl__lm_gguf_value(const fl__lm_saver *s, const char *name, fl_tensor *t) {
    if (t->ndim < 2 || !strcmp(name, "position_embd.weight")) return fl_cast(t, FL_F32);
    if (!s->dtype || t->dtype == s->dtype) return t;
    const fl_dtype_info *from = fl_dtype_registered(t->dtype), *to = fl_dtype_registered(s->dtype);
    const int64_t columns = t->shape[t->ndim - 1] * (from ? from->block : 1);
    return fl_cast(t, !to || columns % to->block == 0 ? s->dtype : columns % 32 == 0 ? fl_q8() : FL_F16);
}

static bool fl__lm_save_add(fl__lm_saver *s, const char *name, fl_tensor *t) {
    if (t && s->gguf) t = fl__lm_gguf_value(s, name, t);
    if (!t || !fl_heap_grow(&s->list, &s->cap, s->n + 1, sizeof *s->list)) return false;
    s->list[s->n] = (fl_data_named_tensor){fl_data_arena_add(&s->names, name, strlen(name)), t};
    return s->list[s->n++].name != NULL;
}

/* Permutes the rows of each head from adjacent rotary pairs to halves; or (pairs) the other way. */
static fl_tensor *fl__lm_permute_rows(fl_tensor *t, int64_t heads, bool pairs) {
    const int64_t rows = t->shape[0], rest = fl_numel(t) / rows, half = rows / heads / 2;
    fl_tensor *x = fl_reshape(t, pairs ? FL_SHAPE(heads, 2, half, rest) : FL_SHAPE(heads, half, 2, rest));
    return fl_reshape(fl_contiguous(fl_transpose(x, 1, 2)), fl_shape_of(t));
}

static bool fl__lm_save_param(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    fl__lm_saver *s = user;
    const fl_text_lm_opts *o = s->o;
    fl__lm_wildcards of = {0, ""};
    (void)buffer;
    if (!param || (!strcmp(path, "head.weight") && !o->untied)) return true;
    const bool joined = s->f->rows == fl__lm_gpt2; /* q, k and v are one tensor there */
    const fl__lm_row *row = s->gguf ? fl__lm_gguf : s->f->rows;
    while (row->ours && (!fl__lm_matches(row->ours, path, &of) || (joined && row->how == 'J') ||
                         (!joined && !strcmp(row->theirs, "blk.*.attn_qkv.?"))))
        row++;
    if (!row->ours) return fl_fail("fl_text_save: architecture %s has no weight '%s'", s->f->type, path);
    char name[FL__LM_NAME];
    fl_tensor *t = fv_value(param);
    const int64_t kv = o->kv_heads ? o->kv_heads : o->heads, columns = o->dim / o->heads;
    if (row->how != 'J') {
        fl__lm_put_name(row->theirs, of, name);
        const bool transpose = row->how == 'T' && t->ndim == 2;
        return fl__lm_save_add(s, name, transpose ? fl_contiguous(fl_transpose(t, 0, 1)) : t);
    }
    const char *at = row->theirs;
    for (int64_t i = 0, begin = 0; i < 3; i++) {
        const int64_t heads = i ? kv : o->heads;
        at = fl__lm_put_name(at, of, name);
        fl_tensor *part = fl_contiguous(fl_slice(t, 0, begin, begin + heads * columns, 1));
        if (part && i < 2 && o->place == FL_LM_ROTARY && o->rope.interleaved != s->pairs)
            part = fl__lm_permute_rows(part, heads, s->pairs);
        begin += heads * columns;
        if (!fl__lm_save_add(s, name, part)) return false;
    }
    return true;
}

/* null, one id or a list. Without the key transformers uses the architecture's default ids. */
static bool fl__lm_save_ids(fl_data_text *t, const char *name, fl_shape ids) {
    bool ok = fl_data_text_print(t, ",\n  \"%s\": %s", name,
                                 ids.ndim == 0 ? "null" : ids.ndim > 1 ? "[" : "");
    for (int i = 0; ok && i < ids.ndim; i++)
        ok = fl_data_text_print(t, "%s%" PRId64, i ? ", " : "", ids.dim[i]);
    return ok && (ids.ndim < 2 || fl_data_text_print(t, "]"));
}

static bool fl__lm_save_config(const fl__lm_saver *s, int64_t vocabulary, const char *path) {
    const fl__lm_arch *f = s->f;
    const fl_text_lm_opts *o = s->o;
    const char *act = NULL;
    for (size_t i = 0; i < sizeof fl__lm_acts / sizeof *fl__lm_acts && !act; i++)
        if (o->activation == fl__lm_acts[i].fn) act = fl__lm_acts[i].name;
    if (!act) return fl_fail("fl_text_save: %s: the activation is not gelu, gelu_new, relu or silu", path);
    static const char *const classes[] = {"GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM",
                                          "Qwen2ForCausalLM", "BertForMaskedLM"};
    static const char *const kinds[] = {"linear", "llama3", "yarn"};
    static const char *const limits[][2] = {
        {0}, {"low_freq_factor", "high_freq_factor"}, {"beta_slow", "beta_fast"}};
    const fl_rotary_opts *r = &o->rope;
    fl_data_text t = {0};
    bool ok = fl_data_text_print(
        &t, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"%s\": %" PRId64
        ",\n  \"%s\": %" PRId64 ",\n  \"%s\": %" PRId64 ",\n  \"%s\": %" PRId64
        ",\n  \"%s\": %" PRId64 ",\n  \"%s\": %.17g,\n  \"%s\": %" PRId64
        ",\n  \"%s\": \"%s\",\n  \"type_vocab_size\": %" PRId64
        ",\n  \"tie_word_embeddings\": %s,\n  \"attn_pdrop\": %g,\n  \"torch_dtype\": \"float32\"",
        classes[f - fl__lm_archs], f->type, f->layers, o->layers, f->dim, o->dim, f->heads, o->heads,
        f->hidden, o->hidden, f->context, o->context, f->eps,
        o->eps, f->vocabulary, vocabulary, f == fl__lm_archs ? "activation_function" : "hidden_act", act,
        o->types > 1 ? o->types : 1, o->untied ? "false" : "true", o->dropout);
    if (strcmp(f->kv, f->heads)) /* GPT-2 has no key/value heads */
        ok = ok && fl_data_text_print(&t, ",\n  \"%s\": %" PRId64, f->kv,
                                      o->kv_heads ? o->kv_heads : o->heads);
    ok = ok && fl__lm_save_ids(&t, "bos_token_id", o->bos) && fl__lm_save_ids(&t, "eos_token_id", o->eos);
    const bool rotary = o->place == FL_LM_ROTARY, scaled = rotary && r->scale > 0 && r->scale != 1;
    if (rotary) ok = ok && fl_data_text_print(&t, ",\n  \"rope_theta\": %.17g", fl_option(r->base, 10000));
    if (scaled)
        ok = ok && fl_data_text_print(&t, ",\n  \"rope_scaling\": {\"rope_type\": \"%s\", \"type\": \"%s\", "
                                      "\"factor\": %.17g", kinds[r->kind], kinds[r->kind], 1 / r->scale);
    if (scaled && r->kind)
        ok = ok && fl_data_text_print(&t, ", \"%s\": %.17g, \"%s\": %.17g, "
                                      "\"original_max_position_embeddings\": %" PRId64,
                                      limits[r->kind][0], fl_option(r->low, 1), limits[r->kind][1],
                                      fl_option(r->high, r->kind == FL_ROTARY_YARN ? 32 : 4), r->trained);
    if (scaled) ok = ok && fl_data_text_print(&t, "}");
    if (rotary && o->window)
        ok = ok && fl_data_text_print(&t, ",\n  \"sliding_window\": %" PRId64 "%s", o->window, o->qkv_bias
                                      ? ",\n  \"use_sliding_window\": true, \"max_window_layers\": 0" : "");
    else if (f == &fl__lm_archs[2]) ok = ok && fl_data_text_print(&t, ",\n  \"sliding_window\": null");
    ok = ok && fl_data_text_print(&t, "\n}\n") && fl_data_replace("fl_text_save", path, t.p, (size_t)t.n);
    fl_heap_free(t.p);
    return ok;
}

/* tokenizer_config.json: the tokens that begin and end a text. */
static bool fl__lm_save_tokenizer(const fl__lm_saver *s, const fl_text_tokenizer *t, int64_t vocabulary,
                                  const char *folder) {
    static const char *const keys[] = {"bos_token", "eos_token"};
    const fl_shape ids[] = {s->o->bos, s->o->eos};
    char path[4096];
    if (fl_text_vocab_size(t) > vocabulary)
        return fl_fail("fl_text_save: %s: the tokenizer has more tokens than the model: got %" PRId64
                       ", expected at most %" PRId64,
                       folder, fl_text_vocab_size(t), vocabulary);
    fl_data_text out = {0};
    bool ok = fl_data_text_print(&out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    for (int i = 0; ok && i < 2; i++) {
        const bool known = ids[i].ndim > 0 && ids[i].dim[0] < fl_text_vocab_size(t);
        int64_t n = 0;
        const char *token = known ? fl_text_token_of(t, (int32_t)ids[i].dim[0], &n) : NULL;
        if (token) ok = fl_data_text_print(&out, ",\n  \"%s\": ", keys[i]) &&
                        fl_data_json_put_string(&out, token, (size_t)n);
    }
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    ok = ok && fl_data_text_print(&out, "\n}\n") &&
         fl_data_replace("fl_text_save", path, out.p, (size_t)out.n);
    fl_heap_free(out.p);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return ok && fl_text_tokenizer_save(t, path);
}

/* Writes config.json, the weights and the tokenizer. */
static bool fl__lm_save_folder(fl__lm_saver *s, fl_nn_module *m, const char *folder, int64_t vocabulary,
                               const fl_text_tokenizer *tokenizer) {
    char path[4096];
    const fl_data_key_value meta = {"format", "pt"};
    bool ok = (!tokenizer || fl__lm_save_tokenizer(s, tokenizer, vocabulary, folder)) &&
              fl_nn_visit_tensors(m, fl__lm_save_param, s);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    ok = ok && fl_data_save_safetensors(path, s->list, (int)s->n, &meta, 1);
    snprintf(path, sizeof path, "%s/config.json", folder);
    return ok && fl__lm_save_config(s, vocabulary, path);
}

/* Fails for what GGUF cannot represent. */
static bool fl__lm_gguf_unsupported(const fl__lm_saver *s, const char *path, fl_text_save_opts opts) {
    const fl_text_lm_opts *o = s->o;
    const fl_rotary_opts *r = &o->rope;
    const fl_dtype_info *blocks = fl_dtype_registered(opts.dtype);
    if (s->f->rows == fl__lm_bert)
        return !fl_fail("fl_text_save: %s: unknown architecture bert; known: llama, qwen2, gpt2", path);
    if (o->activation != (o->gated ? fv_silu : fv_gelu_tanh))
        return !fl_fail("fl_text_save: %s: GGUF supports only activation silu, of gpt2 gelu_new", path);
    const bool limits = fl_option(r->low, 1) != 1 || fl_option(r->high, 32) != 32;
    if (r->scale > 0 && r->scale != 1 &&
        ((r->kind == FL_ROTARY_LLAMA3 && o->qkv_bias) || (r->kind == FL_ROTARY_YARN && limits)))
        return !fl_fail("fl_text_save: %s: GGUF supports neither limits of yarn nor qwen2 with rotary "
                        "scaling "
                        "llama3", path);
    if (opts.dtype && !fl_dtype_is_float(opts.dtype) && !(blocks && blocks->pack))
        return !fl_fail("fl_text_save: %s: dtype %s cannot be written, expected a float or blocks that can "
                        "be "
                        "packed", path, fl_dtype_name(opts.dtype));
    return false;
}

/* The tokenizer's keys; without a tokenizer only the ids. */
static bool fl__lm_gguf_vocab(const fl__lm_saver *s, const char *path, int64_t vocabulary,
                              const fl_text_tokenizer *tokenizer, fl_text_gguf_vocab *out) {
    const int64_t bos = s->o->bos.ndim ? s->o->bos.dim[0] : -1;
    const int64_t eos = s->o->eos.ndim ? s->o->eos.dim[0] : -1;
    char where[300];
    snprintf(where, sizeof where, "fl_text_save: %.270s", path);
    if (tokenizer) return fl_text_gguf_vocab_of(tokenizer, vocabulary, bos, eos, where, out);
    fl_text_gguf_pair *p = out->pair;
    p[out->n++] = (fl_text_gguf_pair){"tokenizer.ggml.model", .text = "none"};
    if (bos >= 0) p[out->n++] = (fl_text_gguf_pair){"tokenizer.ggml.bos_token_id", .number = (double)bos};
    if (eos >= 0) p[out->n++] = (fl_text_gguf_pair){"tokenizer.ggml.eos_token_id", .number = (double)eos};
    return true;
}

/* Adds the divisors of the rotary frequencies of scaling llama3 as a tensor. */
static bool fl__lm_save_factors(fl__lm_saver *s) {
    fl_rotary_opts scaled = s->o->rope, plain;
    scaled.dim = s->o->dim / s->o->heads;
    plain = scaled, plain.kind = FL_ROTARY_LINEAR, plain.scale = 1;
    fl_tensor *t = fl_empty(FL_SHAPE(scaled.dim / 2), FL_F32);
    float *factor = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t j = 0; factor && j < scaled.dim / 2; j++)
        factor[j] = (float)(fl_rotary_frequency(&plain, j) / fl_rotary_frequency(&scaled, j));
    if (factor) fl_unmap(t, FL_WRITE);
    return factor && fl__lm_save_add(s, fl__lm_factors, t);
}

static bool fl__lm_save_gguf(fl__lm_saver *s, fl_nn_module *m, const char *path, int64_t vocabulary,
                             fl_text_save_opts opts) {
    const fl_text_lm_opts *o = s->o;
    const bool gpt2 = s->f->rows == fl__lm_gpt2, rotary = o->place == FL_LM_ROTARY;
    const char *arch = gpt2 ? "gpt2" : o->qkv_bias ? "qwen2" : "llama";
    const bool factors = rotary && o->rope.kind == FL_ROTARY_LLAMA3;
    const bool scaled = rotary && !factors && o->rope.scale > 0 && o->rope.scale != 1;
    const double trained = o->rope.kind == FL_ROTARY_YARN ? (double)o->rope.trained : 0;
    s->gguf = true, s->pairs = !gpt2 && !o->qkv_bias, s->dtype = opts.dtype;
    if (fl__lm_gguf_unsupported(s, path, opts)) return false;
    const struct { const char *key; double number; fl_dtype dtype; } all[] = { /* 0: omitted */
        {"%s.vocab_size", (double)vocabulary, FL_U32},
        {"%s.context_length", (double)o->context, FL_U32},
        {"%s.embedding_length", (double)o->dim, FL_U32},
        {"%s.block_count", (double)o->layers, FL_U32},
        {"%s.feed_forward_length", (double)o->hidden, FL_U32},
        {"%s.attention.head_count", (double)o->heads, FL_U32},
        {"%s.attention.head_count_kv", (double)(o->kv_heads ? o->kv_heads : o->heads), FL_U32},
        {gpt2 ? "%s.attention.layer_norm_epsilon" : "%s.attention.layer_norm_rms_epsilon", o->eps, FL_F32},
        {"%s.rope.dimension_count", rotary ? (double)(o->dim / o->heads) : 0, FL_U32},
        {"%s.rope.freq_base", rotary ? fl_option(o->rope.base, 10000) : 0, FL_F32},
        {"%s.rope.scaling.factor", scaled ? 1 / o->rope.scale : 0, FL_F32},
        {"%s.rope.scaling.original_context_length", scaled ? trained : 0, FL_U32},
        {"%s.attention.sliding_window", (double)o->window, FL_U32}};
    enum { ALL = sizeof all / sizeof *all };
    char key[ALL + 1][FL__LM_NAME];
    fl_text_gguf_pair meta[ALL + 3 + FL_TEXT_GGUF_KEYS] = {{"general.architecture", .text = arch},
                                                           {"general.quantization_version", .number = 2}};
    int n = 2;
    for (int i = 0; i < ALL; i++) {
        snprintf(key[i], sizeof key[i], all[i].key, arch);
        if (all[i].number != 0)
            meta[n++] = (fl_text_gguf_pair){key[i], .number = all[i].number, .dtype = all[i].dtype};
    }
    snprintf(key[ALL], sizeof key[ALL], "%s.rope.scaling.type", arch);
    if (scaled) meta[n++] = (fl_text_gguf_pair){key[ALL], .text = trained > 0 ? "yarn" : "linear"};
    fl_text_gguf_vocab vocab = {0};
    const bool ok = fl__lm_gguf_vocab(s, path, vocabulary, opts.tokenizer, &vocab) &&
                    fl_nn_visit_tensors(m, fl__lm_save_param, s) && (!factors || fl__lm_save_factors(s));
    for (int i = 0; i < vocab.n; i++) meta[n++] = vocab.pair[i];
    const bool saved = ok && fl_text_save_gguf(path, s->list, (int)s->n, meta, n);
    fl_text_gguf_vocab_free(&vocab);
    return saved;
}

FL_API bool fl_text_save_opt(fl_nn_module *m, const char *path, fl_text_save_opts o) {
    int64_t vocabulary = 0;
    if (!m || !path || strlen(path) > 4000)
        return fl_fail("fl_text_save: the model or path is NULL, or the path is longer than 4,000 bytes");
    const bool gguf = fl_data_ends(path, ".gguf");
    if (!gguf && o.dtype)
        return fl_fail("fl_text_save: %s: dtype applies to .gguf files only: got %s", path,
                       fl_dtype_name(o.dtype));
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl__lm_saver s = {.o = fl_text_lm_info(m, &vocabulary)};
    s.f = s.o ? fl__lm_arch_of(s.o) : NULL;
    const bool ok = s.f && (gguf ? fl__lm_save_gguf(&s, m, path, vocabulary, o)
                                 : fl__lm_save_folder(&s, m, path, vocabulary, o.tokenizer));
    fl_heap_free(s.list);
    fl_data_arena_free(&s.names);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
