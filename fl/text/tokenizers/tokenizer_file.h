/* fl/text/tokenizers/tokenizer_file.h - loading tokenizer.json; opening any tokenizer file or folder */
#ifndef FL_TEXT_TOKENIZERS_TOKENIZER_FILE_H
#define FL_TEXT_TOKENIZERS_TOKENIZER_FILE_H
#include "bpe.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads a tokenizer.json (of Hugging Face's tokenizers, or of fl_text_tokenizer_save). Unsupported features
   are errors that name them. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_tokenizer_load(const char *path);
/* Opens any supported tokenizer file by its suffix, .json, .txt, .model or .gguf, or a folder with
   tokenizer.json, vocab.json and merges.txt, encoder.json and vocab.bpe, vocab.txt (BERT, uncased) or
   tokenizer.model. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_tokenizer_open(const char *path);

/* The contents of tokenizer.json for a tokenizer, for writers of other formats. */
typedef struct fl_text_parts {
    fl_text_tree *pipeline;    /* an object: "normalizer", "pre_tokenizer" and so on */
    fl_text_tree *options;     /* of the model: "type", "unk_token" and so on */
    fl_text_dictionary *vocab; /* of the model; added tokens may have further ids */
    fl_text_merge *merge;      /* BPE: by rank */
    int64_t n_merges;
    double *score; /* Unigram: by id; NaN: never chosen */
    fl_text_added_token *added;
    int64_t n_added;
    bool bytes; /* tokens are bytes, written as characters in files */
    /* private */
    int64_t merge_cap_, score_cap_, added_cap_;
    fl_data_arena text_;
} fl_text_parts;
/* Fills out, which starts zeroed; free it with the next function, also after false (fl_fail). */
FL_API bool fl_text_parts_of(const fl_text_tokenizer *t, fl_text_parts *out);
/* Frees the parts. */
FL_API void fl_text_parts_free(fl_text_parts *p);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_TOKENIZER_FILE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_TOKENIZER_FILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_TOKENIZER_FILE_IMPL
#define FL_TEXT_TOKENIZERS_TOKENIZER_FILE_IMPL
#include "../../data/json.h"
#include "gguf_tokenizer.h"
#include "gpt2.h"
#include "sentencepiece.h"
#include "unigram.h"
#include "vocabulary.h"
#include "wordpiece.h"
#include "words.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__tokf {
    fl_data_stream f;
    const char *json; /* instead of a file: f.size bytes of JSON */
    char where[300];
    fl_text_parts p;
    int64_t model_at; /* offset of the model; 0: missing */
    fl_data_text raw; /* one side of a merge as bytes */
} fl__tokf;

static bool fl__tokf_added(fl__tokf *t, fl_data_json *j) {
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) {
        fl_text_tree *e = fl_text_tree_read(j);
        int64_t id;
        fl_text_added_token a = fl_text_added_of(e, &id);
        if (e && (!a.text || id < 0 || id >= INT32_MAX))
            ok = fl_data_json_fail(j, "added token: expected \"content\" and \"id\"");
        a.id = (int32_t)id;
        a.text = ok && a.text ? fl_data_arena_add(&t->p.text_, a.text, (size_t)a.n) : NULL;
        ok = a.text && fl_heap_grow(&t->p.added, &t->p.added_cap_, t->p.n_added + 1, sizeof *t->p.added);
        if (ok) t->p.added[t->p.n_added++] = a;
        fl_text_tree_free(e);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Appends a value of the pipeline or of the model's settings. */
static bool fl__tokf_append(fl_data_json *j, const char *key, fl_text_tree *into) {
    enum { SETTINGS = 64 };
    fl_text_tree **end = &into->first;
    for (int n = 1; *end; end = &(*end)->next)
        if (++n > SETTINGS) return fl_data_json_fail(j, "too many settings, expected at most %d",
                                                     (int)SETTINGS);
    fl_text_tree *v = *end = fl_text_tree_read(j);
    if (v) v->key = fl_heap_alloc(strlen(key) + 1);
    if (v && v->key) strcpy(v->key, key);
    return v && v->key;
}

/* Parses a merge, "a b" or ["a", "b"]. */
static bool fl__tokf_merge(fl__tokf *t, fl_data_json *j) {
    int64_t id[2] = {-1, -1};
    bool ok = true;
    const bool pair = fl_data_json_next(j) == FL_DATA_JSON_ARRAY;
    if (!pair && j->event != FL_DATA_JSON_STRING)
        return fl_data_json_fail(j, "merge: expected a string or an array of two strings");
    const char *space = pair ? NULL : memchr(j->text, ' ', (size_t)j->n);
    for (int k = 0; ok && k < 2; k++) {
        if (pair && !fl_data_json_string(j)) return false;
        const char *text = pair || !k ? j->text : space + 1;
        int64_t n = pair ? j->n : !space ? -1 : !k ? space - j->text : j->text + j->n - text;
        if (n < 0) return fl_data_json_fail(j, "merge: expected two tokens separated by a space");
        text = fl_text_token_bytes(text, &n, t->p.bytes, &t->raw);
        id[k] = text ? fl_text_dictionary_find(t->p.vocab, text, n) : -1;
        ok = text && (id[k] >= 0 || fl_data_json_fail(j, "merge: '%.60s' is not in the vocabulary", j->text));
    }
    ok = ok && (!pair || fl_data_json_expect(j, FL_DATA_JSON_ARRAY_END)) &&
         fl_heap_grow(&t->p.merge, &t->p.merge_cap_, t->p.n_merges + 1, sizeof *t->p.merge);
    if (ok) t->p.merge[t->p.n_merges++] = (fl_text_merge){(int32_t)id[0], (int32_t)id[1]};
    return ok;
}

static bool fl__tokf_merges(fl__tokf *t, fl_data_json *j) {
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) ok = fl__tokf_merge(t, j);
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Parses Unigram's list of [piece, score]. */
static bool fl__tokf_pieces(fl__tokf *t, fl_data_json *j) {
    bool ok = true;
    int64_t n = 0;
    while (ok && fl_data_json_more(j)) {
        ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && fl_data_json_string(j);
        if (ok && fl_text_dictionary_find(t->p.vocab, j->text, j->n) >= 0)
            ok = fl_data_json_fail(j, "duplicate token '%.60s'", j->text);
        ok = ok && fl_text_dictionary_add(t->p.vocab, j->text, j->n) >= 0 &&
             fl_heap_grow(&t->p.score, &t->p.score_cap_, n + 1, sizeof *t->p.score) &&
             fl_data_json_double(j, &t->p.score[n++]) &&
             fl_data_json_expect(j, FL_DATA_JSON_ARRAY_END);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Parses Unigram's list "unused" of pieces that are never chosen, an extension of fl. */
static bool fl__tokf_unused(fl__tokf *t, fl_data_json *j) {
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) {
        int64_t id;
        ok = fl_data_json_int(j, &id);
        if (ok && (id < 0 || id >= (t->p.score ? fl_text_dictionary_size(t->p.vocab) : 0)))
            ok = fl_data_json_fail(j, "\"unused\" is out of range: got %lld, expected the id of a piece",
                                   (long long)id);
        if (ok) t->p.score[id] = (double)NAN;
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

static bool fl__tokf_vocab(fl__tokf *t, fl_data_json *j) {
    const fl_data_json_event e = fl_data_json_next(j);
    if (e == FL_DATA_JSON_OBJECT) return fl_text_read_vocab(j, t->p.bytes, t->f.size, t->p.vocab);
    return e == FL_DATA_JSON_ARRAY
               ? fl__tokf_pieces(t, j)
               : fl_data_json_fail(j, "vocabulary: expected an object or an array");
}

static bool fl__tokf_model_part(fl__tokf *t, fl_data_json *j, const char *key) {
    if (!strcmp(key, "vocab")) return fl__tokf_vocab(t, j);
    if (!strcmp(key, "merges")) return fl__tokf_merges(t, j);
    if (!strcmp(key, "unused")) return fl__tokf_unused(t, j);
    return fl__tokf_append(j, key, t->p.options);
}

/* Parses the model: settings and vocabulary. */
static bool fl__tokf_model(fl__tokf *t, fl_data_json *j) {
    char key[60];
    t->p.bytes = fl_text_pipeline_bytes(t->p.pipeline);
    t->p.vocab = fl_text_dictionary_new();
    t->p.options = fl_heap_alloc(sizeof *t->p.options);
    bool ok = t->p.vocab && t->p.options && fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
    if (t->p.options) t->p.options->event = FL_DATA_JSON_OBJECT;
    while (ok && fl_data_json_more(j)) {
        snprintf(key, sizeof key, "%s", j->text);
        ok = fl__tokf_model_part(t, j, key);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Builds the model, which takes the vocabulary. */
static fl_text_model *fl__tokf_make(fl__tokf *t) {
    const char *type = fl_text_tree_string(t->p.options, "type", NULL,
                                           t->p.score   ? "Unigram"
                                           : t->p.merge ? "BPE"
                                           : fl_text_tree_at(t->p.options, "max_input_chars_per_word")
                                               ? "WordPiece"
                                               : "WordLevel");
    const char *unk = fl_text_tree_string(t->p.options, "unk_token", NULL, NULL);
    fl_text_dictionary *vocab = t->p.vocab;
    t->p.vocab = NULL;
    if (!strcmp(type, "BPE"))
        return fl_text_bpe(
            vocab, .merge = t->p.merge, .n_merges = t->p.n_merges, .bytes = t->p.bytes,
            .byte_fallback = fl_text_tree_true(t->p.options, "byte_fallback", false),
            .fuse_unk = fl_text_tree_true(t->p.options, "fuse_unk", false),
            .ignore_merges = fl_text_tree_true(t->p.options, "ignore_merges", false), .unk = unk,
            .prefix = fl_text_tree_string(t->p.options, "continuing_subword_prefix", NULL, NULL),
            .suffix = fl_text_tree_string(t->p.options, "end_of_word_suffix", NULL, NULL),
            .where = t->where);
    if (!strcmp(type, "WordLevel"))
        return fl_text_word_model(
            vocab, unk ? fl_text_dictionary_find(vocab, unk, (int64_t)strlen(unk)) : -1);
    if (!strcmp(type, "WordPiece"))
        return fl_text_wordpiece(
            vocab, unk ? unk : "[UNK]",
            fl_text_tree_string(t->p.options, "continuing_subword_prefix", NULL, "##"),
            fl_text_tree_int(t->p.options, "max_input_chars_per_word", 100), t->where);
    if (!strcmp(type, "Unigram") && t->p.score)
        return fl_text_unigram(vocab, t->p.score, fl_text_tree_int(t->p.options, "unk_id", -1),
                               fl_text_tree_true(t->p.options, "byte_fallback", false),
                               fl_text_tree_true(t->p.options, "float32", false), t->where);
    fl_text_dictionary_free(vocab);
    fl_fail("%s: unknown model type \"%.60s\"; known: BPE, WordPiece, WordLevel, Unigram", t->where, type);
    return NULL;
}

/* Parses all but the model, which is parsed last because its vocabulary depends on the other parts. */
static bool fl__tokf_parts(fl__tokf *t, fl_data_json *j) {
    static const char *const part[] = {"truncation",    "padding",        "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder"};
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
    while (ok && fl_data_json_more(j)) {
        const char *key = NULL;
        for (int i = 0; i < 6; i++)
            if (!strcmp(j->text, part[i])) key = part[i];
        if (key) ok = fl__tokf_append(j, key, t->p.pipeline);
        else if (!strcmp(j->text, "added_tokens")) ok = fl__tokf_added(t, j);
        else if (!strcmp(j->text, "model")) {
            t->model_at = j->at + j->n + 2; /* after the key, at its colon */
            ok = fl_data_json_skip(j);
        } else ok = fl_data_json_skip(j);
    }
    return ok && j->event != FL_DATA_JSON_ERROR && fl_data_json_next(j) == FL_DATA_JSON_END;
}

/* A JSON reader from offset `at`. */
static fl_data_json *fl__tokf_json(fl__tokf *t, int64_t at, bool many) {
    const fl_data_json_opts o = {.many = many, .who = t->json ? t->f.who : NULL};
    return t->json ? fl_data_json_of_opt(t->json + at, (size_t)(t->f.size - at), o)
                   : fl_data_json_in(&t->f, at, t->f.size - at, o);
}

/* The byte at an offset; 0 after fl_fail. */
static char fl__tokf_byte(const fl__tokf *t, int64_t at) {
    char c = 0;
    if (t->json) return t->json[at];
    return fl_data_stream_read(&t->f, &c, 1, at) ? c : 0;
}

/* Parses all parts. */
static bool fl__tokf_read(fl__tokf *t) {
    fl_data_json *j = fl__tokf_json(t, 0, false);
    t->p.pipeline = fl_heap_alloc(sizeof *t->p.pipeline);
    if (t->p.pipeline) t->p.pipeline->event = FL_DATA_JSON_OBJECT;
    bool ok = j && t->p.pipeline && fl__tokf_parts(t, j);
    fl_data_json_close(j);
    if (!ok) return false;
    if (!t->model_at) return fl_fail("%s: key \"model\" is missing", t->where);
    char c = 0;
    while (c != ':' && t->model_at < t->f.size && (c = fl__tokf_byte(t, t->model_at))) t->model_at++;
    j = fl__tokf_json(t, t->model_at, true);
    ok = j && fl__tokf_model(t, j);
    fl_data_json_close(j);
    return ok;
}

FL_API void fl_text_parts_free(fl_text_parts *p) {
    if (!p) return;
    fl_text_tree_free(p->pipeline);
    fl_text_tree_free(p->options);
    fl_text_dictionary_free(p->vocab);
    fl_data_arena_free(&p->text_);
    fl_heap_free(p->added);
    fl_heap_free(p->merge);
    fl_heap_free(p->score);
    *p = (fl_text_parts){0};
}

FL_API bool fl_text_parts_of(const fl_text_tokenizer *t, fl_text_parts *out) {
    static const char fn[] = "fl_text_parts_of";
    fl_data_text json = {0};
    if (!fl_given(t, fn, "the tokenizer") || !fl_given(out, fn, "the parts")) return false;
    bool ok = fl_text_tokenizer_json(t, &json);
    fl__tokf f = {.f = {.who = fn, .size = json.n}, .json = json.p, .where = "fl_text_parts_of"};
    ok = ok && fl__tokf_read(&f);
    *out = f.p;
    fl_heap_free(f.raw.p);
    fl_heap_free(json.p);
    return ok;
}

FL_API fl_text_tokenizer *fl_text_tokenizer_load(const char *path) {
    fl__tokf t = {0};
    if (!fl_data_stream_open(&t.f, "fl_text_tokenizer_load", path, FL_DATA_READ)) return NULL;
    snprintf(t.where, sizeof t.where, "fl_text_tokenizer_load: %.240s", path);
    fl_text_model *m = fl__tokf_read(&t) ? fl__tokf_make(&t) : NULL;
    t.f.io.close(t.f.io.user, t.f.file);
    fl_text_tree *pipeline = t.p.pipeline;
    if (m) t.p.pipeline = NULL;
    fl_text_tokenizer *out =
        m ? fl_text_tokenizer_of(m, pipeline, t.p.added, t.p.n_added, t.where) : NULL;
    fl_text_parts_free(&t.p);
    fl_heap_free(t.raw.p);
    return out;
}

static fl_text_tokenizer *fl__tokf_one(const char *path) {
    if (fl_data_ends(path, ".txt")) return fl_text_wordpiece_load(path, false);
    if (fl_data_ends(path, ".gguf")) return fl_text_gguf_tokenizer_load(path);
    return fl_data_ends(path, ".model") ? fl_text_sentencepiece_load(path) : fl_text_tokenizer_load(path);
}

FL_API fl_text_tokenizer *fl_text_tokenizer_open(const char *path) {
    static const char *const pair[][2] = {
        {"tokenizer.json", NULL}, {"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"},
        {"vocab.txt", NULL},      {"tokenizer.model", NULL},    {"spiece.model", NULL}};
    char name[2][1024];
    if (!path) return fl_fail("fl_text_tokenizer_open: path is NULL"), NULL;
    if (fl_data_ends(path, ".json") || fl_data_ends(path, ".txt") || fl_data_ends(path, ".model") ||
        fl_data_ends(path, ".gguf"))
        return fl__tokf_one(path);
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        int there = 1;
        for (int k = 0; k < 2 && pair[i][k] && there > 0; k++) {
            snprintf(name[k], sizeof name[k], "%.900s/%s", path, pair[i][k]);
            there = fl_data_exists("fl_text_tokenizer_open", name[k]);
        }
        if (there < 0) return NULL;
        if (there) return pair[i][1] ? fl_text_gpt2_load(name[0], name[1]) : fl__tokf_one(name[0]);
    }
    return fl_fail("fl_text_tokenizer_open: %s: no known tokenizer file; known: .json, .txt, .model, .gguf, "
                   "or a "
                   "folder with one", path), NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
