/* tokenizer_file.h - tokenizer.json, read */
#ifndef FL_TEXT_TOKENIZER_FILE_H
#define FL_TEXT_TOKENIZER_FILE_H
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tokenizer of a file "tokenizer.json" (Hugging Face's tokenizers, fl_text_tokenizer_save); NULL after
   fl_fail. What it has and we do not is an error that names it. */
FL_API fl_text_tokenizer *fl_text_tokenizer_load(const char *path);
/* Any of the files that we read, or a folder with one: tokenizer.json, vocab.json and merges.txt,
   encoder.json and vocab.bpe, vocab.txt (of BERT, uncased), tokenizer.model; a file by its name's end,
   .json, .txt or .model. */
FL_API fl_text_tokenizer *fl_text_tokenizer_open(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZER_FILE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZER_FILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZER_FILE_IMPL
#define FL_TEXT_TOKENIZER_FILE_IMPL
#include "../data/json.h"
#include "bpe.h"
#include "gpt2.h"
#include "sentencepiece.h"
#include "unigram.h"
#include "vocabulary.h"
#include "wordpiece.h"
#include "words.h"
#include <stdio.h>
#include <string.h>

typedef struct fl__tokf {
    fl_data_stream f;
    char where[300];
    fl_text_tree *pipeline, **end;
    fl_text_added *added;
    int64_t n_added, added_cap;
    fl_data_arena text;
    int64_t model_at; /* offset of the model; 0: none was there */
    /* the model */
    fl_text_dictionary *vocab;
    fl_text_merge *merge;
    int64_t n_merges, merge_cap, score_cap;
    double *score; /* of Unigram's pieces */
    fl_text_tree *options;
    bool bytes;
} fl__tokf;

static bool fl__tokf_added(fl__tokf *t, fl_data_json *j) {
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) {
        fl_text_tree *e = fl_text_tree_read(j);
        int64_t id;
        fl_text_added a = fl_text_added_of(e, &id);
        if (e && (!a.text || id < 0 || id >= INT32_MAX))
            ok = fl_data_json_fail(j, "an added token without \"content\" or \"id\"");
        a.id = (int32_t)id;
        a.text = ok && a.text ? fl_data_arena_add(&t->text, a.text, (size_t)a.n) : NULL;
        ok = a.text && fl_heap_grow(&t->added, &t->added_cap, t->n_added + 1, sizeof *t->added);
        if (ok) t->added[t->n_added++] = a;
        fl_text_tree_free(e);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* A value of the pipeline or of the model's settings, behind the others. */
static bool fl__tokf_keep(fl_data_json *j, const char *key, fl_text_tree *into) {
    fl_text_tree **end = &into->first, *v = fl_text_tree_read(j);
    if (!v) return false;
    while (*end) end = &(*end)->next;
    *end = v;
    v->key = fl_heap_alloc(strlen(key) + 1);
    if (v->key) strcpy(v->key, key);
    return v->key != NULL;
}

/* "a b" or ["a", "b"]. */
static bool fl__tokf_merges(fl__tokf *t, fl_data_json *j) {
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) {
        char raw[1000];
        int64_t id[2] = {-1, -1};
        const bool pair = fl_data_json_next(j) == FL_DATA_JSON_ARRAY;
        if (!pair && j->event != FL_DATA_JSON_STRING)
            return fl_data_json_fail(j, "a merge that is no string and no pair");
        const char *space = pair ? NULL : memchr(j->text, ' ', (size_t)j->n);
        for (int k = 0; ok && k < 2; k++) {
            if (pair && !fl_data_json_string(j)) return false;
            const char *text = pair || !k ? j->text : space + 1;
            int64_t n = pair ? j->n : !space ? -1 : !k ? space - j->text : j->text + j->n - text;
            if (n < 0 || n > (int64_t)sizeof raw)
                return fl_data_json_fail(j, "a merge that is no pair of tokens");
            text = fl_text_token_bytes(text, &n, t->bytes, raw);
            id[k] = fl_text_dictionary_find(t->vocab, text, n);
            if (id[k] < 0) return fl_data_json_fail(j, "a merge of '%.60s', which is no token", j->text);
        }
        ok = (!pair || fl_data_json_expect(j, FL_DATA_JSON_ARRAY_END)) &&
             fl_heap_grow(&t->merge, &t->merge_cap, t->n_merges + 1, sizeof *t->merge);
        if (ok) t->merge[t->n_merges++] = (fl_text_merge){(int32_t)id[0], (int32_t)id[1]};
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Unigram's list of [piece, score]. */
static bool fl__tokf_pieces(fl__tokf *t, fl_data_json *j) {
    bool ok = true;
    int64_t n = 0;
    while (ok && fl_data_json_more(j)) {
        ok = fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && fl_data_json_string(j);
        if (ok && fl_text_dictionary_find(t->vocab, j->text, j->n) >= 0)
            ok = fl_data_json_fail(j, "'%.60s' is there twice", j->text);
        ok = ok && fl_text_dictionary_add(t->vocab, j->text, j->n) >= 0 &&
             fl_heap_grow(&t->score, &t->score_cap, n + 1, sizeof *t->score) &&
             fl_data_json_double(j, &t->score[n++]) &&
             fl_data_json_expect(j, FL_DATA_JSON_ARRAY_END);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

static bool fl__tokf_vocab(fl__tokf *t, fl_data_json *j) {
    const fl_data_json_event e = fl_data_json_next(j);
    if (e == FL_DATA_JSON_OBJECT) return fl_text_read_vocab(j, t->bytes, t->f.size, t->vocab);
    return e == FL_DATA_JSON_ARRAY
               ? fl__tokf_pieces(t, j)
               : fl_data_json_fail(j, "a vocabulary that is no object and no list");
}

static bool fl__tokf_model_part(fl__tokf *t, fl_data_json *j, const char *key) {
    if (!strcmp(key, "vocab")) return fl__tokf_vocab(t, j);
    if (!strcmp(key, "merges")) return fl__tokf_merges(t, j);
    return fl__tokf_keep(j, key, t->options);
}

/* The model's object is next. */
static fl_text_model *fl__tokf_model(fl__tokf *t, fl_data_json *j) {
    char key[60];
    t->bytes = fl_text_pipeline_bytes(t->pipeline);
    t->vocab = fl_text_dictionary_new();
    t->options = fl_heap_alloc(sizeof *t->options);
    bool ok = t->vocab && t->options && fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
    if (t->options) t->options->event = FL_DATA_JSON_OBJECT;
    while (ok && fl_data_json_more(j)) {
        snprintf(key, sizeof key, "%s", j->text);
        ok = fl__tokf_model_part(t, j, key);
    }
    if (!ok || j->event == FL_DATA_JSON_ERROR) return NULL;
    const char *type = fl_text_tree_string(t->options, "type", NULL,
                                           t->score   ? "Unigram"
                                           : t->merge ? "BPE"
                                           : fl_text_tree_at(t->options, "max_input_chars_per_word")
                                               ? "WordPiece"
                                               : "WordLevel");
    const char *unk = fl_text_tree_string(t->options, "unk_token", NULL, NULL);
    fl_text_dictionary *vocab = t->vocab;
    t->vocab = NULL;
    if (!strcmp(type, "BPE"))
        return fl_text_bpe(
            vocab, .merge = t->merge, .n_merges = t->n_merges, .bytes = t->bytes,
            .byte_fallback = fl_text_tree_true(t->options, "byte_fallback", false),
            .fuse_unk = fl_text_tree_true(t->options, "fuse_unk", false),
            .ignore_merges = fl_text_tree_true(t->options, "ignore_merges", false), .unk = unk,
            .prefix = fl_text_tree_string(t->options, "continuing_subword_prefix", NULL, NULL),
            .suffix = fl_text_tree_string(t->options, "end_of_word_suffix", NULL, NULL),
            .where = t->where);
    if (!strcmp(type, "WordLevel"))
        return fl_text_word_model(
            vocab, unk ? fl_text_dictionary_find(vocab, unk, (int64_t)strlen(unk)) : -1);
    if (!strcmp(type, "WordPiece"))
        return fl_text_wordpiece(
            vocab, unk ? unk : "[UNK]",
            fl_text_tree_string(t->options, "continuing_subword_prefix", NULL, "##"),
            fl_text_tree_int(t->options, "max_input_chars_per_word", 100), t->where);
    if (!strcmp(type, "Unigram") && t->score)
        return fl_text_unigram(vocab, t->score, fl_text_tree_int(t->options, "unk_id", -1),
                               fl_text_tree_true(t->options, "byte_fallback", false), t->where);
    fl_text_dictionary_free(vocab);
    fl_fail("%s: a model of type \"%.60s\" is unknown", t->where, type);
    return NULL;
}

/* All but the model, whose vocabulary depends on what may stand behind it. */
static bool fl__tokf_parts(fl__tokf *t, fl_data_json *j) {
    static const char *const part[] = {"truncation",    "padding",        "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder"};
    bool ok = fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
    while (ok && fl_data_json_more(j)) {
        const char *key = NULL;
        for (int i = 0; i < 6; i++)
            if (!strcmp(j->text, part[i])) key = part[i];
        if (key) ok = fl__tokf_keep(j, key, t->pipeline);
        else if (!strcmp(j->text, "added_tokens")) ok = fl__tokf_added(t, j);
        else if (!strcmp(j->text, "model")) {
            t->model_at = j->at + j->n + 2; /* behind the key, at its colon */
            ok = fl_data_json_skip(j);
        } else ok = fl_data_json_skip(j);
    }
    return ok && j->event != FL_DATA_JSON_ERROR && fl_data_json_next(j) == FL_DATA_JSON_END;
}

static fl_text_tokenizer *fl__tokf_read(fl__tokf *t) {
    fl_data_json *j = fl_data_json_in(&t->f, 0, t->f.size, (fl_data_json_opts){0});
    t->pipeline = fl_heap_alloc(sizeof *t->pipeline);
    if (t->pipeline) t->pipeline->event = FL_DATA_JSON_OBJECT;
    bool ok = j && t->pipeline && fl__tokf_parts(t, j);
    fl_data_json_close(j);
    if (!ok) return NULL;
    if (!t->model_at) return fl_fail("%s: no \"model\"", t->where), NULL;
    char c = 0;
    while (c != ':' && t->model_at < t->f.size && fl_data_stream_read(&t->f, &c, 1, t->model_at))
        t->model_at++;
    j = fl_data_json_in(&t->f, t->model_at, t->f.size - t->model_at, (fl_data_json_opts){.many = true});
    fl_text_model *m = j ? fl__tokf_model(t, j) : NULL;
    fl_data_json_close(j);
    fl_text_tree *pipeline = t->pipeline;
    if (m) t->pipeline = NULL;
    return m ? fl_text_tokenizer_of(m, pipeline, t->added, t->n_added, t->where) : NULL;
}

FL_API fl_text_tokenizer *fl_text_tokenizer_load(const char *path) {
    fl__tokf t = {0};
    if (!fl_data_stream_open(&t.f, "fl_text_tokenizer_load", path, FL_DATA_READ)) return NULL;
    snprintf(t.where, sizeof t.where, "fl_text_tokenizer_load: %.240s", path);
    fl_text_tokenizer *out = fl__tokf_read(&t);
    t.f.io.close(t.f.io.user, t.f.file);
    fl_text_tree_free(t.pipeline);
    fl_text_tree_free(t.options);
    fl_text_dictionary_free(t.vocab);
    fl_data_arena_free(&t.text);
    fl_heap_free(t.added);
    fl_heap_free(t.merge);
    fl_heap_free(t.score);
    return out;
}

static fl_text_tokenizer *fl__tokf_one(const char *path) {
    if (fl_data_ends(path, ".txt")) return fl_text_wordpiece_load(path, false);
    return fl_data_ends(path, ".model") ? fl_text_sentencepiece_load(path) : fl_text_tokenizer_load(path);
}

FL_API fl_text_tokenizer *fl_text_tokenizer_open(const char *path) {
    static const char *const pair[][2] = {
        {"tokenizer.json", NULL}, {"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"},
        {"vocab.txt", NULL},      {"tokenizer.model", NULL},    {"spiece.model", NULL}};
    char name[2][1024];
    if (!path) return fl_fail("fl_text_tokenizer_open: path is NULL"), NULL;
    if (fl_data_ends(path, ".json") || fl_data_ends(path, ".txt") || fl_data_ends(path, ".model"))
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
    return fl_fail("fl_text_tokenizer_open: %s: no file of a tokenizer", path), NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
