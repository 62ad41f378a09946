/* fl/text/tokenizers/gguf_tokenizer.h - tokenizers in GGUF files (keys tokenizer.ggml.*): load, save */
#ifndef FL_TEXT_TOKENIZERS_GGUF_TOKENIZER_H
#define FL_TEXT_TOKENIZERS_GGUF_TOKENIZER_H
#include "../models/gguf.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Four kinds, by tokenizer.ggml.model:
     gpt2   byte-level BPE; tokenizer.ggml.pre names the split: gpt-2, llama-bpe, smaug-bpe, qwen2, gpt-4o (or
            another name of one of these)
     llama  SentencePiece BPE: merges two pieces to the piece with the highest score
     t5     SentencePiece unigram
     bert   BERT's WordPiece, uncased or cased
   Control tokens are recognised in text by gpt2 and bert, but not by llama and t5, unless fl's own key
   tokenizer.fl.special_in_text is true. */

/* Loads the tokenizer of a .gguf file. Returns NULL after fl_fail: an unknown kind or split, missing or
   inconsistent keys, duplicate tokens. */
FL_API fl_text_tokenizer *fl_text_gguf_tokenizer_load(const char *path);

enum { FL_TEXT_GGUF_KEYS = 24 };
/* The metadata of a tokenizer for fl_text_save_gguf. Starts zeroed. */
typedef struct fl_text_gguf_vocab {
    fl_text_gguf_pair pair[FL_TEXT_GGUF_KEYS];
    int n;
    /* private */
    const char **token_, **merge_;
    float *score_;
    int32_t *kind_;
    char *charsmap_;
    fl_data_arena text_;
} fl_text_gguf_vocab;
/* Fills out with the keys of t, padded with unused tokens to `size`, the rows of the model's embedding. bos
   and eos: the model's ids, -1 for none. Truncation, padding, trimming of offsets, the template of pairs,
   and the order of merges that give the same token are lost. Other properties that GGUF cannot represent are
   errors: other kinds, splits and normalizers, added tokens that absorb spaces or match whole words, a
   template with more than one token before or after. llama.cpp normalises less than fl does: no NFC for
   qwen2, no character map or removal of spaces for llama. Borrows from t. Free out with the next function,
   also after false. where: prefix of error texts. */
FL_API bool fl_text_gguf_vocab_of(const fl_text_tokenizer *t, int64_t size, int64_t bos,
                                  int64_t eos, const char *where, fl_text_gguf_vocab *out);
/* Frees the arrays of v. */
FL_API void fl_text_gguf_vocab_free(fl_text_gguf_vocab *v);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_GGUF_TOKENIZER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_GGUF_TOKENIZER) || \
    (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_GGUF_TOKENIZER_IMPL
#define FL_TEXT_TOKENIZERS_GGUF_TOKENIZER_IMPL
#include "../../data/json.h"
#include "bpe.h"
#include "bytes.h"
#include "gpt2.h"
#include "pattern.h"
#include "sentencepiece.h"
#include "tokenizer_file.h"
#include "vocabulary.h"
#include "wordpiece.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum fl__ggt_form {
    FL__GGT_GPT2,
    FL__GGT_LLAMA,
    FL__GGT_T5,
    FL__GGT_BERT,
    FL__GGT_FORMS
} fl__ggt_form;
static const char *const fl__ggt_forms[FL__GGT_FORMS] = {"gpt2", "llama", "t5", "bert"};

/* Splits by name; the first name of a split is the one written. */
typedef struct fl__ggt_split {
    const char *name, *pattern;
    bool ignore_merges, nfc, bos; /* bos: added by default */
} fl__ggt_split;
static const fl__ggt_split fl__ggt_splits[] = {
    {"gpt-2", FL_TEXT_SPLIT_GPT2, false, false, false},
    {"phi-2", FL_TEXT_SPLIT_GPT2, false, false, false},
    {"llama-bpe", FL_TEXT_SPLIT_LLAMA3, true, false, true},
    {"llama3", FL_TEXT_SPLIT_LLAMA3, true, false, true},
    {"llama-v3", FL_TEXT_SPLIT_LLAMA3, true, false, true},
    {"smaug-bpe", FL_TEXT_SPLIT_LLAMA3, false, false, false},
    {"dbrx", FL_TEXT_SPLIT_LLAMA3, false, false, false},
    {"qwen2", FL_TEXT_SPLIT_QWEN2, false, true, false},
    {"deepseek-r1-qwen", FL_TEXT_SPLIT_QWEN2, false, true, false},
    {"gpt-4o", FL_TEXT_SPLIT_O200K, false, false, false},
    {"llama4", FL_TEXT_SPLIT_O200K, false, false, false}};
enum { FL__GGT_SPLITS = sizeof fl__ggt_splits / sizeof *fl__ggt_splits };

/* Llama's normalizer in tokenizers' form: without and with a mark in front. */
#define FL__GGT_MARK "\xe2\x96\x81"
#define FL__GGT_SPACES \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" FL__GGT_MARK "\"}"
static const char *const fl__ggt_normalizer[2] = {
    FL__GGT_SPACES,
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" FL__GGT_MARK
    "\"}," FL__GGT_SPACES "]}"};

/* ---- reading ---- */

typedef struct fl__ggt_reader {
    fl_data_file *f;
    char where[300];
    fl__ggt_form form;
    fl_text_dictionary *d;
    int64_t n, n_kinds, n_scores, n_merges, n_added; /* n: number of tokens */
    int64_t kind_cap, score_cap, merge_cap, added_cap;
    int32_t *kind;
    float *score;
    fl_text_merge *merge;
    fl_text_added_token *added;
    fl_data_text raw, charsmap;
} fl__ggt_reader;

/* The value of a key "tokenizer.*"; NULL: missing. */
static const char *fl__ggt_meta(const fl__ggt_reader *r, const char *key) {
    char name[80];
    snprintf(name, sizeof name, "tokenizer.%s", key);
    return fl_data_meta(r->f, name);
}

static bool fl__ggt_true(const fl__ggt_reader *r, const char *key, bool other) {
    const char *value = fl__ggt_meta(r, key);
    return value ? !strcmp(value, "1") : other;
}

/* Sets *id to the token of a key, or to `other` if the key is missing. */
static bool fl__ggt_id(const fl__ggt_reader *r, const char *key, int64_t other, int64_t *id) {
    const char *value = fl__ggt_meta(r, key);
    double x = 0;
    *id = other;
    if (!value) return true;
    const bool ok = fl_data_parse_double(value, strlen(value), &x) && x >= 0 && x < (double)r->n &&
                    x == floor(x);
    *id = ok ? (int64_t)x : -1;
    return ok ||
           fl_fail("%s: tokenizer.%s is out of range: got %.40s, expected < %" PRId64, r->where, key, value,
                   r->n);
}

static bool fl__ggt_add_kind(const char *text, int64_t n, double number, void *user) {
    fl__ggt_reader *r = user;
    (void)n;
    if (text || !(number >= FL_TEXT_NORMAL && number <= FL_TEXT_BYTE))
        return fl_fail("%s: tokenizer.ggml.token_type: got %g at %" PRId64 ", expected 1 to 6",
                       r->where, number, r->n_kinds);
    if (!fl_heap_grow(&r->kind, &r->kind_cap, r->n_kinds + 1, sizeof *r->kind)) return false;
    r->kind[r->n_kinds++] = (int32_t)number;
    return true;
}

static bool fl__ggt_add_score(const char *text, int64_t n, double number, void *user) {
    fl__ggt_reader *r = user;
    (void)n;
    if (text) return fl_fail("%s: tokenizer.ggml.scores: got a string, expected numbers", r->where);
    if (!fl_heap_grow(&r->score, &r->score_cap, r->n_scores + 1, sizeof *r->score)) return false;
    r->score[r->n_scores++] = (float)number;
    return true;
}

static bool fl__ggt_add_byte(const char *text, int64_t n, double number, void *user) {
    fl__ggt_reader *r = user;
    (void)n;
    if (text || !(number >= -128 && number <= 255))
        return fl_fail("%s: tokenizer.ggml.precompiled_charsmap: expected bytes", r->where);
    const char byte = (char)(int)number;
    return fl_data_text_put(&r->charsmap, &byte, 1);
}

static fl_text_piece_kind fl__ggt_kind(const fl__ggt_reader *r, int64_t i) {
    return i < r->n_kinds ? (fl_text_piece_kind)r->kind[i] : FL_TEXT_NORMAL;
}

/* Is the token a placeholder that fills the model's table? */
static bool fl__ggt_is_filler(const char *text, int64_t i) {
    char name[40];
    snprintf(name, sizeof name, "[PAD%" PRId64 "]", i);
    return !strcmp(text, name);
}

/* The bytes of token i as dictionaries store them: in r->raw, or text itself. NULL after fl_fail. */
static const char *fl__ggt_bytes(fl__ggt_reader *r, int64_t i, const char *text, int64_t *n) {
    const bool normal = fl__ggt_kind(r, i) == FL_TEXT_NORMAL;
    if (normal && r->form == FL__GGT_GPT2) return fl_text_token_bytes(text, n, true, &r->raw);
    if (!normal || r->form != FL__GGT_BERT) return text;
    if (*n >= 3 && !memcmp(text, FL__GGT_MARK, 3))
        return *n -= 3, text + 3; /* the start of a word */
    r->raw.n = 0;
    if (!fl_data_text_put(&r->raw, "##", 2) || !fl_data_text_put(&r->raw, text, (size_t)*n))
        return NULL;
    return *n = r->raw.n, r->raw.p;
}

static bool fl__ggt_add_token(const char *text, int64_t n, double number, void *user) {
    fl__ggt_reader *r = user;
    const bool pieces = r->form == FL__GGT_LLAMA || r->form == FL__GGT_T5;
    const int64_t i = r->n++;
    (void)number;
    if (!text || i >= INT32_MAX)
        return fl_fail("%s: tokenizer.ggml.tokens: expected strings", r->where);
    if (fl__ggt_kind(r, i) == FL_TEXT_UNUSED && (!pieces || fl__ggt_is_filler(text, i))) return true;
    char name[40];
    for (int64_t k = fl_text_dictionary_size(r->d); pieces && k < i;
         k++) { /* SentencePiece: each id is a piece */
        snprintf(name, sizeof name, "[PAD%" PRId64 "]", k);
        if (!fl_text_dictionary_add_at(r->d, name, (int64_t)strlen(name), k)) return false;
    }
    const char *bytes = fl__ggt_bytes(r, i, text, &n);
    if (bytes && fl_text_dictionary_find(r->d, bytes, n) >= 0)
        return fl_fail("%s: token %" PRId64 ": duplicate '%.60s'", r->where, i, text);
    return bytes && fl_text_dictionary_add_at(r->d, bytes, n, i);
}

/* Adds a merge "left right". */
static bool fl__ggt_add_merge(const char *text, int64_t n, double number, void *user) {
    fl__ggt_reader *r = user;
    const char *space = text && n ? memchr(text + 1, ' ', (size_t)n - 1) : NULL;
    int32_t id[2] = {-1, -1};
    (void)number;
    for (int k = 0; space && k < 2; k++) {
        const char *half = k ? space + 1 : text;
        int64_t bytes = k ? text + n - half : space - text;
        if (!(half = fl_text_token_bytes(half, &bytes, true, &r->raw))) return false;
        id[k] = (int32_t)fl_text_dictionary_find(r->d, half, bytes);
    }
    if (id[0] < 0 || id[1] < 0)
        return fl_fail("%s: merge %" PRId64 ": got '%.60s', expected two tokens", r->where, r->n_merges,
                       text ? text : "");
    if (!fl_heap_grow(&r->merge, &r->merge_cap, r->n_merges + 1, sizeof *r->merge)) return false;
    r->merge[r->n_merges++] = (fl_text_merge){id[0], id[1]};
    return true;
}

static bool fl__ggt_read_arrays(fl__ggt_reader *r) {
    static const char tokens[] = "tokenizer.ggml.tokens";
    const bool pieces = r->form == FL__GGT_LLAMA || r->form == FL__GGT_T5;
    bool ok =
        fl_text_gguf_array(r->f, "tokenizer.ggml.token_type", fl__ggt_add_kind, r) >= 0 &&
        fl_text_gguf_array(r->f, tokens, fl__ggt_add_token, r) >= 0 &&
        (!pieces || fl_text_gguf_array(r->f, "tokenizer.ggml.scores", fl__ggt_add_score, r) >= 0) &&
        (!pieces ||
         fl_text_gguf_array(r->f, "tokenizer.ggml.precompiled_charsmap", fl__ggt_add_byte, r) >= 0);
    if (ok && (!r->n || (r->n_kinds && r->n_kinds != r->n) || (pieces && r->n_scores != r->n)))
        ok = fl_fail("%s: numbers of tokens, token types and scores differ: got %" PRId64
                     ", %" PRId64 " and %" PRId64,
                     r->where, r->n, r->n_kinds, r->n_scores);
    return ok && (r->form != FL__GGT_GPT2 ||
                  fl_text_gguf_array(r->f, "tokenizer.ggml.merges", fl__ggt_add_merge, r) >= 0);
}

/* Collects added tokens. */
static bool fl__ggt_read_added(fl__ggt_reader *r, bool in_text) {
    for (int64_t i = 0; i < r->n_kinds; i++) {
        const fl_text_piece_kind k = fl__ggt_kind(r, i);
        fl_text_added_token a = {.id = (int32_t)i, .special = k != FL_TEXT_USER};
        if (k != FL_TEXT_CONTROL && k != FL_TEXT_USER && k != FL_TEXT_UNKNOWN) continue;
        a.unreachable = a.special && !in_text;
        a.text = fl_text_dictionary_entry(r->d, i, &a.n);
        if (!a.n) return fl_fail("%s: token %" PRId64 " is empty", r->where, i);
        if (!fl_heap_grow(&r->added, &r->added_cap, r->n_added + 1, sizeof *r->added)) return false;
        r->added[r->n_added++] = a;
    }
    return true;
}

/* The ids added before and after a text, -1 for none. */
static bool fl__ggt_read_frame(const fl__ggt_reader *r, bool with_bos, int64_t *bos, int64_t *eos) {
    const bool bert = r->form == FL__GGT_BERT;
    const int64_t cls = bert                       ? fl_text_dictionary_find(r->d, "[CLS]", 5)
                        : r->form == FL__GGT_LLAMA ? 1
                                                   : -1;
    const int64_t sep = bert                    ? fl_text_dictionary_find(r->d, "[SEP]", 5)
                        : r->form == FL__GGT_T5 ? 1
                                                : -1;
    if (!fl__ggt_id(r, "ggml.bos_token_id", cls, bos) ||
        !fl__ggt_id(r, bert ? "ggml.seperator_token_id" : "ggml.eos_token_id", sep, eos))
        return false;
    if (!fl__ggt_true(r, "ggml.add_bos_token", with_bos || bert || r->form == FL__GGT_LLAMA))
        *bos = -1;
    if (!fl__ggt_true(r, bert ? "ggml.add_sep_token" : "ggml.add_eos_token",
                      bert || r->form == FL__GGT_T5))
        *eos = -1;
    if ((*bos >= 0 && !fl_text_dictionary_entry(r->d, *bos, NULL)) ||
        (*eos >= 0 && !fl_text_dictionary_entry(r->d, *eos, NULL)))
        return fl_fail("%s: bos_token_id (%" PRId64 ") or eos_token_id (%" PRId64 ") is not a token",
                       r->where, *bos, *eos);
    return true;
}

static fl_text_tokenizer *fl__ggt_read_gpt2(fl__ggt_reader *r, bool in_text) {
    const char *pre = fl__ggt_meta(r, "ggml.pre");
    const fl__ggt_split *split = NULL;
    int64_t bos, eos;
    fl_data_text json = {0};
    for (int i = 0; pre && i < FL__GGT_SPLITS && !split; i++)
        if (!strcmp(pre, fl__ggt_splits[i].name)) split = &fl__ggt_splits[i];
    bool ok =
        split ||
        fl_fail("%s: unknown tokenizer.ggml.pre '%.60s'; known: gpt-2, llama-bpe, smaug-bpe, qwen2, gpt-4o",
                r->where, pre ? pre : "");
    ok = ok && fl__ggt_read_added(r, in_text) && fl__ggt_read_frame(r, split->bos, &bos, &eos) &&
         fl_text_bytes_pipeline(&json, split->pattern);
    if (ok) json.n--; /* the closing brace */
    ok = ok && (!split->nfc || fl_data_text_print(&json, ",\"normalizer\":{\"type\":\"NFC\"}")) &&
         fl_text_put_template(r->d, bos, eos, &json) && fl_data_text_print(&json, "}");
    fl_text_dictionary *d = fl_text_dictionary_or_free(r->d, ok);
    r->d = NULL;
    fl_text_model *m =
        !d ? NULL
           : fl_text_bpe(d, .merge = r->merge, .n_merges = r->n_merges, .bytes = true,
                         .ignore_merges = split->ignore_merges, .where = r->where);
    fl_text_tokenizer *t =
        m ? fl_text_tokenizer_new(m, json.p, r->added, r->n_added, r->where) : NULL;
    fl_heap_free(json.p);
    return t;
}

static fl_text_tokenizer *fl__ggt_read_bert(fl__ggt_reader *r, bool in_text) {
    const bool lower = fl__ggt_true(r, "ggml.normalizer.lowercase", true);
    int64_t cls, sep;
    fl_data_text json = {0};
    bool ok = fl__ggt_true(r, "ggml.normalizer.strip_accents", lower) == lower ||
              fl_fail("%s: tokenizer.ggml.normalizer.strip_accents must equal .lowercase", r->where);
    ok = ok && fl__ggt_read_added(r, in_text) && fl__ggt_read_frame(r, true, &cls, &sep) &&
         ((cls >= 0) == (sep >= 0) || fl_fail("%s: expected both or neither of [CLS] and [SEP]", r->where)) &&
         fl_text_bert_pipeline(&json, !lower, cls, sep) && fl_data_text_print(&json, "}");
    fl_text_dictionary *d = fl_text_dictionary_or_free(r->d, ok);
    r->d = NULL;
    fl_text_model *m = d ? fl_text_wordpiece(d, "[UNK]", "##", 100, r->where) : NULL;
    fl_text_tokenizer *t =
        m ? fl_text_tokenizer_new(m, json.p, r->added, r->n_added, r->where) : NULL;
    fl_heap_free(json.p);
    return t;
}

/* Llama's tokenizer in tokenizers' form: special tokens are recognised in text, and each section between them
   starts with a mark. */
static fl_text_tokenizer *fl__ggt_read_marked(fl__ggt_reader *r, bool byte_fallback) {
    const bool prefix = fl__ggt_true(r, "ggml.add_space_prefix", true);
    int64_t bos, eos;
    const char *unk = NULL;
    fl_data_text json = {0};
    bool ok = fl__ggt_read_added(r, true) && fl__ggt_read_frame(r, true, &bos, &eos) &&
              fl_data_text_print(
                  &json,
                  "{\"normalizer\":%s,\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" FL__GGT_MARK "\"},"
                  "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}",
                  fl__ggt_normalizer[prefix],
                  prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "") &&
              fl_text_put_template(r->d, bos, eos, &json) && fl_data_text_print(&json, "}");
    for (int64_t i = 0; ok && i < r->n; i++) {
        const fl_text_piece_kind k = fl__ggt_kind(r, i);
        if (k == FL_TEXT_UNKNOWN && !unk) unk = fl_text_dictionary_entry(r->d, i, NULL);
        if (!isfinite(r->score[i])) ok = fl_fail("%s: score of token %" PRId64 " is not finite", r->where, i);
        if (k != FL_TEXT_NORMAL && k != FL_TEXT_USER) r->score[i] = -1e30f;
    }
    fl_text_dictionary *d = fl_text_dictionary_or_free(r->d, ok);
    r->d = NULL;
    fl_text_model *m = d ? fl_text_bpe(d, .score = r->score, .byte_fallback = byte_fallback,
                                       .fuse_unk = true, .unk = unk, .where = r->where)
                         : NULL;
    fl_text_tokenizer *t =
        m ? fl_text_tokenizer_new(m, json.p, r->added, r->n_added, r->where) : NULL;
    fl_heap_free(json.p);
    return t;
}

static fl_text_tokenizer *fl__ggt_read_pieces(fl__ggt_reader *r, bool in_text) {
    fl_text_pieces_opts o = {.bpe = r->form == FL__GGT_LLAMA,
                             .no_prefix = !fl__ggt_true(r, "ggml.add_space_prefix", true),
                             .keep_spaces =
                                 !fl__ggt_true(r, "ggml.remove_extra_whitespaces", false),
                             .charsmap = r->charsmap.p,
                             .n_charsmap = r->charsmap.n,
                             .where = r->where};
    for (int64_t i = 0; i < r->n_kinds; i++) o.byte_fallback |= r->kind[i] == FL_TEXT_BYTE;
    if (!r->n_kinds) o.byte_fallback = fl_text_dictionary_find(r->d, "<0x0A>", 6) >= 0;
    if (in_text && o.bpe) return fl__ggt_read_marked(r, o.byte_fallback);
    if (!fl__ggt_read_frame(r, o.bpe, &o.bos, &o.eos)) return NULL;
    if (!o.bos || !o.eos)
        return fl_fail("%s: token 0 cannot begin or end a text: got bos %" PRId64 ", eos %" PRId64, r->where,
                       o.bos,
                       o.eos), NULL;
    if (o.bos < 0) o.bos = 0;
    if (o.eos < 0) o.eos = 0;
    fl_text_dictionary *d = r->d;
    r->d = NULL;
    return fl_text_pieces(d, r->score, r->n_kinds ? r->kind : NULL, o);
}

static fl_text_tokenizer *fl__ggt_read(fl__ggt_reader *r) {
    const char *model = fl__ggt_meta(r, "ggml.model");
    int form = 0;
    while (form < FL__GGT_FORMS && !(model && !strcmp(model, fl__ggt_forms[form]))) form++;
    if (form == FL__GGT_FORMS)
        return fl_fail("%s: unknown tokenizer.ggml.model '%.60s'; known: gpt2, llama, t5, bert",
                       r->where, model ? model : ""), NULL;
    r->form = (fl__ggt_form)form;
    const bool in_text =
        fl__ggt_true(r, "fl.special_in_text", form == FL__GGT_GPT2 || form == FL__GGT_BERT);
    if (!(r->d = fl_text_dictionary_new()) || !fl__ggt_read_arrays(r)) return NULL;
    return form == FL__GGT_GPT2   ? fl__ggt_read_gpt2(r, in_text)
           : form == FL__GGT_BERT ? fl__ggt_read_bert(r, in_text)
                                  : fl__ggt_read_pieces(r, in_text);
}

FL_API fl_text_tokenizer *fl_text_gguf_tokenizer_load(const char *path) {
    fl__ggt_reader r = {.f = fl_text_open_gguf(path)};
    snprintf(r.where, sizeof r.where, "fl_text_gguf_tokenizer_load: %.240s", path ? path : "NULL");
    fl_text_tokenizer *t = r.f ? fl__ggt_read(&r) : NULL;
    fl_data_close(r.f);
    fl_text_dictionary_free(r.d);
    fl_heap_free(r.kind);
    fl_heap_free(r.score);
    fl_heap_free(r.merge);
    fl_heap_free(r.added);
    fl_heap_free(r.raw.p);
    fl_heap_free(r.charsmap.p);
    return t;
}

/* ---- writing ---- */

typedef struct fl__ggt_writer {
    const fl_text_tokenizer *t;
    const char *where;
    fl_text_parts p;
    fl__ggt_form form;
    fl_text_gguf_vocab *out;
    int64_t size, unk;
    bool marked; /* llama's, in tokenizers' form */
} fl__ggt_writer;

static bool fl__ggt_unsupported(const fl__ggt_writer *w, const char *feature) {
    return fl_fail("%s: GGUF does not support %s", w->where, feature);
}

static void fl__ggt_put(fl__ggt_writer *w, fl_text_gguf_pair pair) {
    if (w->out->n < FL_TEXT_GGUF_KEYS) w->out->pair[w->out->n++] = pair;
}

static void fl__ggt_put_true(fl__ggt_writer *w, const char *key, bool yes) {
    fl__ggt_put(w, (fl_text_gguf_pair){key, .number = yes, .dtype = FL_B8});
}

/* Adds a key with a token's id, unless it is -1. */
static void fl__ggt_put_id(fl__ggt_writer *w, const char *key, int64_t id) {
    if (id >= 0) fl__ggt_put(w, (fl_text_gguf_pair){key, .number = (double)id});
}

static bool fl__ggt_is(const fl_text_tree *t, const char *type) {
    return t && !strcmp(fl_text_tree_string(t, "type", NULL, ""), type);
}

/* The named split of a byte-level pre-tokenizer; NULL: none has its pattern. */
static const fl__ggt_split *fl__ggt_split_of(const fl__ggt_writer *w) {
    const fl_text_tree *pre = fl_text_tree_at(w->p.pipeline, "pre_tokenizer"),
                       *norm = fl_text_tree_at(w->p.pipeline, "normalizer"),
                       *list = fl_text_tree_at(pre, "pretokenizers"), *split = NULL;
    const bool ignore = fl_text_tree_true(w->p.options, "ignore_merges", false);
    if (list) split = list->first, pre = split ? split->next : NULL;
    const bool own = fl_text_tree_true(pre, "use_regex", true);
    const char *pattern =
        split ? fl_text_tree_string(fl_text_tree_at(split, "pattern"), "Regex", NULL, "")
        : own ? FL_TEXT_SPLIT_GPT2
              : "";
    if (!fl__ggt_is(pre, "ByteLevel") || (list && pre->next) ||
        fl_text_tree_true(pre, "add_prefix_space", true) || (norm && !fl__ggt_is(norm, "NFC")) ||
        (split &&
         (own || !fl__ggt_is(split, "Split") || fl_text_tree_true(split, "invert", false) ||
          strcmp(fl_text_tree_string(split, "behavior", NULL, ""), "Isolated"))))
        return NULL;
    for (int i = 0; i < FL__GGT_SPLITS; i++) {
        const fl__ggt_split *s = &fl__ggt_splits[i];
        if (!strcmp(pattern, s->pattern) && s->ignore_merges == ignore && s->nfc == (norm != NULL))
            return s;
    }
    return NULL;
}

/* Collects control tokens and other added tokens. */
static bool fl__ggt_take_added(fl__ggt_writer *w) {
    for (int64_t i = 0; i < w->p.n_added; i++) {
        const fl_text_added_token *a = &w->p.added[i];
        if (a->single_word || a->lstrip || a->rstrip)
            return fl__ggt_unsupported(w, "added tokens that absorb spaces or match whole words");
        const bool hidden = (w->form == FL__GGT_LLAMA || w->form == FL__GGT_T5) && !w->marked;
        if (a->special && a->unreachable != hidden)
            return fl__ggt_unsupported(
                w, "special tokens of which only some are recognised in text");
        if (a->id < w->size) w->out->kind_[a->id] = a->special ? FL_TEXT_CONTROL : FL_TEXT_USER;
    }
    return true;
}

static bool fl__ggt_is_byte(const char *text, int64_t n) {
    return n == 6 && !memcmp(text, "<0x", 3) && text[5] == '>';
}

/* The kind of a token that is not an added one; text NULL: unused. */
static fl_text_piece_kind fl__ggt_kind_of(const fl__ggt_writer *w, int64_t id, const char *text,
                                          int64_t n) {
    if (!text) return FL_TEXT_UNUSED;
    const bool pieces = w->form == FL__GGT_LLAMA || w->form == FL__GGT_T5;
    if (pieces && fl__ggt_is_byte(text, n) &&
        fl_text_tree_true(w->p.options, "byte_fallback", false))
        return FL_TEXT_BYTE;
    return w->p.score && isnan(w->p.score[id]) ? FL_TEXT_UNUSED : FL_TEXT_NORMAL;
}

/* The token's text as written to files; NULL after fl_fail. */
static const char *fl__ggt_text_of(fl__ggt_writer *w, int64_t id, const char *text, int64_t n) {
    const bool normal = w->out->kind_[id] == FL_TEXT_NORMAL;
    const bool inner = n >= 2 && !memcmp(text, "##", 2);
    fl_data_text out = {0};
    if (!normal || (w->form != FL__GGT_GPT2 && w->form != FL__GGT_BERT)) {
        if (!memchr(text, 0, (size_t)n)) return text;
        return fl__ggt_unsupported(w, "zero bytes in tokens"), NULL;
    }
    bool ok =
        w->form == FL__GGT_GPT2 ? fl_text_bytes_put(&out, text, n)
        : inner                 ? fl_data_text_put(&out, text + 2, (size_t)n - 2)
                : fl_data_text_print(&out, FL__GGT_MARK) && fl_data_text_put(&out, text, (size_t)n);
    const char *copy =
        ok ? fl_data_arena_add(&w->out->text_, out.p ? out.p : "", (size_t)out.n) : NULL;
    fl_heap_free(out.p);
    return copy;
}

static bool fl__ggt_take_tokens(fl__ggt_writer *w) {
    fl_text_gguf_vocab *v = w->out;
    v->kind_ = fl_heap_alloc((size_t)(w->size + 1) * sizeof *v->kind_);
    v->token_ = fl_heap_alloc((size_t)(w->size + 1) * sizeof *v->token_);
    bool ok = v->kind_ && v->token_ && fl__ggt_take_added(w);
    const bool unknown = (w->form == FL__GGT_LLAMA || w->form == FL__GGT_T5) && w->unk >= 0;
    if (ok && unknown) v->kind_[w->unk] = FL_TEXT_UNKNOWN;
    for (int64_t i = 0; ok && i < w->size; i++) {
        char name[40];
        int64_t n = 0;
        const char *text =
            i < fl_text_vocab_size(w->t) ? fl_text_token_of(w->t, (int32_t)i, &n) : NULL;
        if (!v->kind_[i]) v->kind_[i] = (int32_t)fl__ggt_kind_of(w, i, text, n);
        if (!text) {
            snprintf(name, sizeof name, "[PAD%" PRId64 "]", i);
            v->token_[i] = fl_data_arena_add(&v->text_, name, strlen(name));
        } else
            v->token_[i] = fl__ggt_text_of(w, i, text, n);
        ok = v->token_[i] != NULL;
    }
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.tokens", .array = v->token_, .n = w->size});
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.token_type", .array = v->kind_, .n = w->size,
                                       .dtype = FL_I32});
    return ok;
}

/* Writes merges as "left right". */
static bool fl__ggt_take_merges(fl__ggt_writer *w) {
    fl_data_text out = {0};
    bool ok = (w->out->merge_ =
                   fl_heap_alloc((size_t)(w->p.n_merges + 1) * sizeof *w->out->merge_)) != NULL;
    for (int64_t i = 0; ok && i < w->p.n_merges; i++) {
        int64_t left, right;
        const char *l = fl_text_dictionary_entry(w->p.vocab, w->p.merge[i].left, &left),
                   *r = fl_text_dictionary_entry(w->p.vocab, w->p.merge[i].right, &right);
        out.n = 0;
        ok = fl_text_bytes_put(&out, l, left) && fl_data_text_put(&out, " ", 1) &&
             fl_text_bytes_put(&out, r, right);
        w->out->merge_[i] = ok ? fl_data_arena_add(&w->out->text_, out.p, (size_t)out.n) : NULL;
        ok = w->out->merge_[i] != NULL;
    }
    fl_heap_free(out.p);
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.merges", .array = w->out->merge_,
                                       .n = w->p.n_merges});
    return ok;
}

/* The id of the token that merge i makes; -1 after fl_fail. */
static int64_t fl__ggt_merged(const fl__ggt_writer *w, int64_t i, fl_data_text *both) {
    int64_t left, right;
    const char *l = fl_text_dictionary_entry(w->p.vocab, w->p.merge[i].left, &left),
               *r = fl_text_dictionary_entry(w->p.vocab, w->p.merge[i].right, &right);
    both->n = 0;
    if (!fl_data_text_put(both, l, (size_t)left) || !fl_data_text_put(both, r, (size_t)right))
        return -1;
    return fl_text_dictionary_find(w->p.vocab, both->p, both->n);
}

/* Number of ways to split token id's bytes in two tokens. */
static int64_t fl__ggt_n_splits(const fl__ggt_writer *w, int64_t id) {
    int64_t n = 0, ways = 0;
    const char *text = fl_text_dictionary_entry(w->p.vocab, id, &n);
    for (int64_t k = 1; text && k < n; k++)
        ways += fl_text_dictionary_find(w->p.vocab, text, k) >= 0 &&
                fl_text_dictionary_find(w->p.vocab, text + k, n - k) >= 0;
    return ways;
}

/* Assigns scores that reproduce the order of the merges when any two tokens that spell a token may be
   merged: minus the rank of a token's first merge. Tokens whose merges interleave share a score. last: last
   merge of each token. */
static bool fl__ggt_take_scores(fl__ggt_writer *w, int64_t *made, int64_t *last) {
    fl_data_text both = {0};
    const int64_t n = w->p.n_merges;
    int64_t ways = 0, until = -1, start = 0, used = 0;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        made[i] = fl__ggt_merged(w, i, &both);
        ok = made[i] >= 0;
        if (ok) last[made[i]] = i, used += w->out->kind_[made[i]] == FL_TEXT_NORMAL;
    }
    for (int64_t i = 0; ok && i < n; i++) {
        if (i > until) start = i;
        if (last[made[i]] > until) until = last[made[i]];
        w->out->score_[made[i]] = (float)-start;
    }
    for (int64_t i = 0; ok && i < w->size; i++)
        if (w->out->kind_[i] == FL_TEXT_NORMAL) ways += fl__ggt_n_splits(w, i);
    fl_heap_free(both.p);
    return ok && (ways == used ||
                  fl__ggt_unsupported(w, "merges that omit a pair of tokens whose text is a token"));
}

static bool fl__ggt_take_all_scores(fl__ggt_writer *w) {
    const size_t bytes = (size_t)(w->size + w->p.n_merges + 1) * sizeof(int64_t);
    w->out->score_ = fl_heap_alloc((size_t)(w->size + 1) * sizeof *w->out->score_);
    int64_t *work = w->out->score_ ? fl_heap_alloc(bytes) : NULL;
    const bool ok = work && (w->p.score || fl__ggt_take_scores(w, work + w->size, work));
    for (int64_t i = 0; ok && w->p.score && i < fl_text_dictionary_size(w->p.vocab); i++)
        w->out->score_[i] = isnan(w->p.score[i]) ? 0 : (float)w->p.score[i];
    fl_heap_free(work);
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.scores", .array = w->out->score_,
                                       .n = w->size, .dtype = FL_F32});
    return ok;
}

static bool fl__ggt_take_charsmap(fl__ggt_writer *w, const fl_text_tree *normalizer) {
    const fl_text_tree *list = fl_text_tree_at(normalizer, "normalizers"),
                       *first = list ? list->first : NULL;
    int64_t n = 0;
    const char *text = fl_text_tree_string(first, "precompiled_charsmap", &n, NULL);
    if (!text) return true;
    if (!(w->out->charsmap_ = fl_heap_alloc((size_t)n + 1))) return false;
    n = fl_text_base64_get(text, n, w->out->charsmap_);
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.precompiled_charsmap",
                                       .array = w->out->charsmap_, .n = n, .dtype = FL_U8});
    return n >= 0 || fl__ggt_unsupported(w, "a charsmap that is not base64");
}

/* Checks that llama or t5 has the normalizer, and sets w->marked. */
static bool fl__ggt_take_normalizer(fl__ggt_writer *w) {
    const fl_text_tree *t = fl_text_tree_at(w->p.pipeline, "normalizer");
    fl_data_text text = {0};
    bool prefix = fl_text_tree_true(t, "add_dummy_prefix", true);
    if (!strcmp(fl_text_tree_string(t, "exact", NULL, ""), "SentencePiece")) {
        if (!fl_text_tree_true(t, "escape_whitespaces", true) ||
            fl_text_tree_true(t, "treat_whitespace_as_suffix", false))
            return fl__ggt_unsupported(w, "spaces that are not escaped, or after words");
        fl__ggt_put_true(w, "tokenizer.ggml.remove_extra_whitespaces",
                         fl_text_tree_true(t, "remove_extra_whitespaces", true));
        if (!fl__ggt_take_charsmap(w, t)) return false;
    } else {
        const bool ok = w->form == FL__GGT_LLAMA && fl_text_tree_put(&text, t);
        prefix = ok && !strcmp(text.p, fl__ggt_normalizer[1]);
        w->marked = prefix || (ok && !strcmp(text.p, fl__ggt_normalizer[0]));
        fl_heap_free(text.p);
        if (!w->marked || fl_text_tree_at(w->p.pipeline, "pre_tokenizer"))
            return fl__ggt_unsupported(w, "this normalizer or pre-tokenizer");
    }
    fl__ggt_put_true(w, "tokenizer.ggml.add_space_prefix", prefix);
    return true;
}

static bool fl__ggt_take_bert(fl__ggt_writer *w) {
    const fl_text_tree *t = fl_text_tree_at(w->p.pipeline, "normalizer"), *o = w->p.options;
    const bool lower = fl_text_tree_true(t, "lowercase", true);
    if (!fl__ggt_is(t, "BertNormalizer") || !fl_text_tree_true(t, "clean_text", true) ||
        !fl_text_tree_true(t, "handle_chinese_chars", true) ||
        fl_text_tree_true(t, "strip_accents", lower) != lower ||
        !fl__ggt_is(fl_text_tree_at(w->p.pipeline, "pre_tokenizer"), "BertPreTokenizer") ||
        strcmp(fl_text_tree_string(o, "unk_token", NULL, ""), "[UNK]") ||
        strcmp(fl_text_tree_string(o, "continuing_subword_prefix", NULL, ""), "##") ||
        fl_text_tree_int(o, "max_input_chars_per_word", 100) != 100)
            return fl__ggt_unsupported(w, "WordPiece with settings other than BERT's");
    fl__ggt_put_true(w, "tokenizer.ggml.normalizer.lowercase", lower);
    fl__ggt_put_true(w, "tokenizer.ggml.normalizer.strip_accents", lower);
    return true;
}

/* The ids added around a text, found by encoding a token. */
static bool fl__ggt_take_frame(fl__ggt_writer *w, int64_t *bos, int64_t *eos) {
    fl_text_encoding e = {0};
    int64_t token = 0, n = 0, front = 0, back = 0, inner = 0;
    *bos = *eos = -1;
    while (token < w->size && w->out->kind_[token] != FL_TEXT_NORMAL) token++;
    const char *text = token < w->size ? fl_text_token_of(w->t, (int32_t)token, &n) : "";
    const bool ok = fl_text_encode(w->t, text ? text : "", n, &e);
    for (int64_t i = 0; i < e.n; i++) {
        if (!e.mask[i]) continue; /* padding */
        if (!e.special[i])
            inner++;
        else if (inner)
            back++, *eos = e.id[i];
        else
            front++, *bos = e.id[i];
    }
    fl_text_encoding_free(&e);
    return ok && ((front < 2 && back < 2) ||
                  fl__ggt_unsupported(w, "more than one token before or after a text"));
}

/* Writes the keys of special ids. bos and eos: the model's. */
static bool fl__ggt_take_ids(fl__ggt_writer *w, int64_t bos, int64_t eos) {
    static const char *const pads[] = {"<pad>", "[PAD]", "<|pad|>"};
    const bool bert = w->form == FL__GGT_BERT;
    int64_t front, back, pad = -1;
    if (!fl__ggt_take_frame(w, &front, &back)) return false;
    if ((front >= 0 && bos >= 0 && front != bos) || (back >= 0 && eos >= 0 && back != eos && !bert))
        return fl_fail("%s: the tokenizer's bos or eos differs from the model's: got %" PRId64 " and %" PRId64
                       ", expected %" PRId64 " and %" PRId64,
                       w->where, front, back, bos, eos);
    for (int i = 0; i < 3 && pad < 0; i++)
        pad = fl_text_id_of(w->t, pads[i], (int64_t)strlen(pads[i]));
    fl__ggt_put_id(w, "tokenizer.ggml.bos_token_id", front >= 0 ? front : bos);
    fl__ggt_put_id(w, "tokenizer.ggml.eos_token_id", back >= 0 && !bert ? back : eos);
    fl__ggt_put_id(w, "tokenizer.ggml.unknown_token_id", w->unk);
    fl__ggt_put_id(w, "tokenizer.ggml.padding_token_id", pad);
    if (bert) fl__ggt_put_id(w, "tokenizer.ggml.seperator_token_id", back); /* GGUF's spelling */
    if (bert) fl__ggt_put_id(w, "tokenizer.ggml.cls_token_id", front);
    if (bert) fl__ggt_put_id(w, "tokenizer.ggml.mask_token_id", fl_text_id_of(w->t, "[MASK]", 6));
    fl__ggt_put_true(w, "tokenizer.ggml.add_bos_token", front >= 0);
    fl__ggt_put_true(w, bert ? "tokenizer.ggml.add_sep_token" : "tokenizer.ggml.add_eos_token",
                     back >= 0);
    return true;
}

/* Determines the kind and writes its specific keys. */
static bool fl__ggt_take_form(fl__ggt_writer *w) {
    const fl_text_tree *o = w->p.options;
    const char *type = fl_text_tree_string(o, "type", NULL, ""),
               *unk = fl_text_tree_string(o, "unk_token", NULL, NULL);
    const fl__ggt_split *split = NULL;
    const bool bpe = !strcmp(type, "BPE");
    w->unk = unk ? fl_text_dictionary_find(w->p.vocab, unk, (int64_t)strlen(unk))
                 : fl_text_tree_int(o, "unk_id", -1);
    w->form = bpe && w->p.bytes          ? FL__GGT_GPT2
              : bpe                      ? FL__GGT_LLAMA
              : !strcmp(type, "Unigram") ? FL__GGT_T5
                                         : FL__GGT_BERT;
    if (w->form == FL__GGT_BERT && strcmp(type, "WordPiece"))
        return fl__ggt_unsupported(w, "a word-level model");
    const bool plain = !fl_text_tree_at(o, "continuing_subword_prefix") &&
                       !fl_text_tree_at(o, "end_of_word_suffix");
    if (bpe && (!plain || (w->p.bytes && unk)))
        return fl__ggt_unsupported(
            w, "BPE with a token prefix or suffix, or byte-level with an unknown token");
    if (w->form == FL__GGT_GPT2 && !(split = fl__ggt_split_of(w)))
        return fl__ggt_unsupported(w, "this normalizer, split or \"ignore_merges\"");
    fl__ggt_put(w, (fl_text_gguf_pair){"tokenizer.ggml.model", .text = fl__ggt_forms[w->form]});
    fl__ggt_put(w,
                (fl_text_gguf_pair){"tokenizer.ggml.pre", .text = split ? split->name : "default"});
    return w->form == FL__GGT_GPT2 ||
           (w->form == FL__GGT_BERT ? fl__ggt_take_bert(w) : fl__ggt_take_normalizer(w));
}

FL_API bool fl_text_gguf_vocab_of(const fl_text_tokenizer *t, int64_t size, int64_t bos,
                                  int64_t eos, const char *where, fl_text_gguf_vocab *out) {
    static const char fn[] = "fl_text_gguf_vocab_of";
    if (!where) where = fn;
    if (!fl_given(t, fn, "the tokenizer") || !fl_given(out, fn, "the keys")) return false;
    if (fl_text_vocab_size(t) > size || size > INT32_MAX)
        return fl_fail("%s: the tokenizer has more tokens than the model: got %" PRId64
                       ", expected at most %" PRId64, where, fl_text_vocab_size(t), size);
    fl__ggt_writer w = {.t = t, .where = where, .out = out, .size = size};
    const bool ok =
        fl_text_parts_of(t, &w.p) && fl__ggt_take_form(&w) && fl__ggt_take_tokens(&w) &&
        (w.form != FL__GGT_GPT2 || fl__ggt_take_merges(&w)) &&
        (w.form == FL__GGT_GPT2 || w.form == FL__GGT_BERT || fl__ggt_take_all_scores(&w)) &&
        fl__ggt_take_ids(&w, bos, eos);
    fl__ggt_put_true(&w, "tokenizer.fl.special_in_text",
                     w.marked || w.form == FL__GGT_GPT2 || w.form == FL__GGT_BERT);
    fl_text_parts_free(&w.p);
    return ok;
}

FL_API void fl_text_gguf_vocab_free(fl_text_gguf_vocab *v) {
    if (!v) return;
    fl_heap_free(v->token_);
    fl_heap_free(v->merge_);
    fl_heap_free(v->score_);
    fl_heap_free(v->kind_);
    fl_heap_free(v->charsmap_);
    fl_data_arena_free(&v->text_);
    *v = (fl_text_gguf_vocab){0};
}

#endif
#endif

/* MIT licence: see LICENSE. */
