/* fl/text/tokenizers/wordpiece.h - WordPiece, BERT's tokenizer: greedy longest match; load, train */
#ifndef FL_TEXT_TOKENIZERS_WORDPIECE_H
#define FL_TEXT_TOKENIZERS_WORDPIECE_H
#include "bpe_train.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A WordPiece model; takes vocab. A word is split into the longest token it starts with, then the longest
   ones with `prefix` ("##") that continue it. If that fails, or the word has more than `most` characters, it
   is unk. Returns NULL after fl_fail. */
FL_API fl_text_model *fl_text_wordpiece(fl_text_dictionary *vocab, const char *unk,
                                        const char *prefix, int64_t most, const char *where);
/* Appends the beginning of a tokenizer.json object: BERT's normalizer, pre-tokenizer, decoder and, with ids
   of [CLS] and [SEP] (-1: without), template. */
FL_API bool fl_text_bert_pipeline(fl_data_text *out, bool cased, int64_t cls, int64_t sep);
/* Loads vocab.txt, one token per line, with BERT's normalizer, pre-tokenizer and template. cased: keeps case
   and accents. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_wordpiece_load(const char *path, bool cased);
/* Trains on n bytes of text as Hugging Face's trainer: BPE merges, of which only the vocabulary is kept.
   special must include [UNK], [CLS], [SEP]; default [PAD] [UNK] [CLS] [SEP] [MASK]. NULL after fl_fail. */
#define fl_text_wordpiece_train(...) FL__TEXT_WORDPIECE_TRAIN(__VA_ARGS__, ._end = 0)
#define FL__TEXT_WORDPIECE_TRAIN(text, n, ...) \
    fl_text_wordpiece_train_opt(text, n, FL_LITERAL(fl_text_train_opts, __VA_ARGS__))
FL_API fl_text_tokenizer *fl_text_wordpiece_train_opt(const char *text, int64_t n, fl_text_train_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_WORDPIECE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_WORDPIECE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_WORDPIECE_IMPL
#define FL_TEXT_TOKENIZERS_WORDPIECE_IMPL
#include "../../data/json.h"
#include "trie.h"
#include "../utf8.h"
#include "vocabulary.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fl__wp {
    fl_text_model m;
    fl_text_trie first, inner; /* inner: continuations, without their prefix */
    int32_t unk;
    int64_t most;
    char *prefix;
} fl__wp;

static bool fl__wp_encode(const fl_text_model *m, fl_text_work *w, uint32_t begin, uint32_t end) {
    const fl__wp *p = (const fl__wp *)m;
    const int64_t before = w->n_tokens;
    const bool fits =
        (int64_t)(end - begin) <= p->most || fl_text_utf8_count(w->p + begin, end - begin) <= p->most;
    for (int64_t at = begin, len = 0; fits; at += len) {
        if (at == end) return true;
        const int32_t id =
            fl_text_trie_longest(at == begin ? &p->first : &p->inner, w->p + at, end - at, &len, &w->left);
        if (id < 0) break;
        if (!fl_text_work_token(w, id, at, at + len)) return false;
    }
    w->n_tokens = before;
    return p->unk < 0 ? fl_text_work_unknown(w, begin) : fl_text_work_token(w, p->unk, begin, end);
}

static bool fl__wp_put(const fl_text_model *m, bool bytes, fl_data_text *out) {
    const fl__wp *p = (const fl__wp *)m;
    int64_t n;
    const char *unk = fl_text_dictionary_entry(m->vocab, p->unk, &n);
    return fl_data_text_print(out, ",\"unk_token\":") &&
           fl_data_json_put_string(out, unk ? unk : "[UNK]", unk ? (size_t)n : 5) &&
           fl_data_text_print(out, ",\"continuing_subword_prefix\":") &&
           fl_data_json_put_string(out, p->prefix, strlen(p->prefix)) &&
           fl_data_text_print(out, ",\"max_input_chars_per_word\":%lld", (long long)p->most) &&
           fl_text_put_vocab(m->vocab, bytes, out);
}

static void fl__wp_free(fl_text_model *m) {
    fl__wp *p = (fl__wp *)m;
    fl_text_trie_free(&p->first);
    fl_text_trie_free(&p->inner);
    fl_heap_free(p->prefix);
    fl_object_free(p, m->type, "");
}

static bool fl__wp_tries(fl__wp *p) {
    const int64_t all = fl_text_dictionary_entries(p->m.vocab), skip = (int64_t)strlen(p->prefix);
    fl_text_key *key = fl_heap_alloc((size_t)(all + 1) * sizeof *key);
    bool ok = key != NULL;
    for (int inner = 0; ok && inner < 2; inner++) {
        int64_t n = 0;
        for (int64_t i = 0, len, id; i < all; i++) {
            const char *text = fl_text_dictionary_spelling(p->m.vocab, i, &len, &id);
            if (inner && (len <= skip || memcmp(text, p->prefix, (size_t)skip))) continue;
            if (len)
                key[n++] =
                    (fl_text_key){text + (inner ? skip : 0), len - (inner ? skip : 0), (int32_t)id};
        }
        ok = !n || fl_text_trie_build(inner ? &p->inner : &p->first, key, n);
    }
    fl_heap_free(key);
    return ok;
}

FL_API fl_text_model *fl_text_wordpiece(fl_text_dictionary *vocab, const char *unk,
                                        const char *prefix, int64_t most, const char *where) {
    fl__wp *p = fl_text_model_new(
        sizeof *p, (fl_text_model){"WordPiece", vocab, false, fl__wp_encode, fl__wp_put, fl__wp_free, NULL});
    if (!p) return NULL;
    p->most = most, p->unk = (int32_t)fl_text_dictionary_find(vocab, unk, (int64_t)strlen(unk));
    p->prefix = fl_heap_alloc(strlen(prefix) + 1);
    if (p->prefix) strcpy(p->prefix, prefix);
    if (p->prefix && p->unk < 0)
        fl_fail("%s: the unknown token '%.60s' is not in the vocabulary", where, unk);
    else if (p->prefix && fl__wp_tries(p)) return &p->m;
    fl_text_model_free(&p->m);
    return NULL;
}

/* ---- BERT ---- */

enum { FL__WP_SPECIAL = 5 };
static const char *const fl__wp_special[FL__WP_SPECIAL] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

FL_API bool fl_text_bert_pipeline(fl_data_text *out, bool cased, int64_t cls, int64_t sep) {
    if (!fl_given(out, "fl_text_bert_pipeline", "the text")) return false;
    return fl_data_text_print(out, "{\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                              "\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":%s},"
                              "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                              "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
                              cased ? "false" : "true") &&
           (cls < 0 || sep < 0 ||
            fl_data_text_print(out, ",\"post_processor\":{\"type\":\"BertProcessing\","
                               "\"sep\":[\"[SEP]\",%lld],\"cls\":[\"[CLS]\",%lld]}", (long long)sep,
                               (long long)cls));
}

/* BERT's tokenizer for that vocabulary, with the special tokens it contains. */
static fl_text_tokenizer *fl__wp_bert(fl_text_dictionary *vocab, bool cased, const char *where) {
    fl_text_added_token added[FL__WP_SPECIAL] = {{0}};
    fl_data_text json = {0};
    int32_t id[FL__WP_SPECIAL];
    int64_t n = 0;
    for (int i = 0; vocab && i < FL__WP_SPECIAL; i++) {
        const char *text = fl__wp_special[i];
        id[i] = (int32_t)fl_text_dictionary_find(vocab, text, (int64_t)strlen(text));
        if (id[i] >= 0)
            added[n++] = (fl_text_added_token){
                .text = text, .n = (int64_t)strlen(text), .id = id[i], .special = true};
    }
    const bool ok = vocab && fl_text_bert_pipeline(&json, cased, id[2], id[3]) &&
                    fl_data_text_print(&json, "}");
    fl_text_model *m = fl_text_wordpiece(fl_text_dictionary_or_free(vocab, ok), "[UNK]", "##", 100, where);
    fl_text_tokenizer *t = fl_text_tokenizer_new(m, json.p, added, n, where);
    fl_heap_free(json.p);
    return t;
}

FL_API fl_text_tokenizer *fl_text_wordpiece_load(const char *path, bool cased) {
    int64_t n, len, line = 0;
    char where[300];
    snprintf(where, sizeof where, "fl_text_wordpiece_load: %.240s", path ? path : "NULL");
    char *text = fl_text_read_file("fl_text_wordpiece_load", path, &n);
    fl_text_dictionary *d = text ? fl_text_dictionary_new() : NULL;
    bool ok = d != NULL;
    for (const char *p = text, *s; ok && (s = fl_text_line(&p, text + n, &len));)
        ok = (fl_text_dictionary_find(d, s, len) < 0 ||
               fl_fail("%s: line %lld: duplicate token '%.*s'", where, (long long)line + 1,
                       (int)(len < 60 ? len : 60), s)) &&
             fl_text_dictionary_add_at(d, s, len, line++);
    fl_heap_free(text);
    return fl__wp_bert(fl_text_dictionary_or_free(d, ok), cased, where);
}

/* Adds the characters of all words, by code point, then those that occur inside words, prefixed. */
static bool fl__wp_alphabet(fl_text_dictionary *vocab, const fl_text_dictionary *pieces) {
    uint8_t *seen = fl_heap_alloc(0x110000);
    char text[8] = "##";
    bool ok = seen != NULL;
    int64_t n;
    int len;
    for (int64_t i = 0; ok && i < fl_text_dictionary_entries(pieces); i++) {
        const char *s = fl_text_dictionary_spelling(pieces, i, &n, NULL);
        for (int64_t k = 0; k < n; k += len) {
            const int32_t c = fl_text_utf8_decode(s + k, n - k, &len);
            seen[c < 0 ? 0xfffd : c] |= k ? 3 : 1;
        }
    }
    for (int inner = 0; inner < 2; inner++)
        for (int32_t c = 0; ok && c < 0x110000; c++) {
            if (!(seen[c] & (1 << inner))) continue;
            const int size = fl_text_utf8_encode(text + 2, c);
            const char *s = inner ? text : text + 2;
            ok = fl_text_dictionary_find(vocab, s, size + 2 * inner) >= 0 ||
                 fl_text_dictionary_add(vocab, s, size + 2 * inner) >= 0;
        }
    fl_heap_free(seen);
    return ok;
}

FL_API fl_text_tokenizer *fl_text_wordpiece_train_opt(const char *text, int64_t n, fl_text_train_opts o) {
    fl_data_text json = {0};
    fl_text_merge *merge = NULL;
    int64_t n_merges = 0;
    if (!o.n_special) o.special = fl__wp_special, o.n_special = FL__WP_SPECIAL;
    fl_text_dictionary *vocab = fl_text_dictionary_new(), *pieces = vocab ? fl_text_dictionary_new() : NULL;
    const bool ok = pieces && fl_text_dictionary_add_all(vocab, o.special, o.n_special) &&
                    fl_text_bert_pipeline(&json, o.cased, -1, -1) && fl_data_text_print(&json, "}") &&
                    fl_text_count_pieces(pieces, json.p, text, n, "fl_text_wordpiece_train") &&
                    fl__wp_alphabet(vocab, pieces) &&
                    fl_text_learn_merges(vocab, pieces, "##", o.size ? o.size : 8192, o.min_count, &merge,
                                         &n_merges);
    fl_heap_free(merge);
    fl_heap_free(json.p);
    fl_text_dictionary_free(pieces);
    return fl__wp_bert(fl_text_dictionary_or_free(vocab, ok), o.cased, "fl_text_wordpiece_train");
}

#endif
#endif

/* MIT licence: see LICENSE. */
