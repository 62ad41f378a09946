/* fl/text/tokenizers/bpe_train.h - training BPE tokenizers; merges for WordPiece */
#ifndef FL_TEXT_TOKENIZERS_BPE_TRAIN_H
#define FL_TEXT_TOKENIZERS_BPE_TRAIN_H
#include "bpe.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_train_opts {
    fl_opts_guard guard_;
    int64_t size;               /* of the vocabulary, special tokens included; 0 -> 8,192 */
    int64_t min_count;          /* pairs that occur less often are not merged; 0 -> 1 */
    const char *const *special; /* special tokens, which get the first ids */
    int n_special;
    const char *split;          /* fl_text_bpe_train: a regular expression; NULL: FL_TEXT_SPLIT_GPT2 */
    bool cased;                 /* fl_text_wordpiece_train: keeps case and accents */
    char _end;
} fl_text_train_opts;
/* Trains a byte-level BPE on n bytes of text: always merges the most frequent pair, of equal ones the one of
   the lower ids, as the trainer of Hugging Face's tokenizers. Returns NULL after fl_fail. */
#define fl_text_bpe_train(...) FL__TEXT_BPE_TRAIN(__VA_ARGS__, ._end = 0)
#define FL__TEXT_BPE_TRAIN(text, n, ...) \
    fl_text_bpe_train_opt(text, n, FL_LITERAL(fl_text_train_opts, __VA_ARGS__))
FL_API fl_text_tokenizer *fl_text_bpe_train_opt(const char *text, int64_t n, fl_text_train_opts o);

/* For trainers: counts in d the pieces that a pipeline's normalizer and pre-tokenizer make of a text. */
FL_API bool fl_text_count_pieces(fl_text_dictionary *d, const char *pipeline, const char *text,
                                 int64_t n, const char *where);
/* Learns merges. vocab has the special tokens and symbols, bytes or (prefix not NULL) characters and
   prefixed ones; merged tokens are added. *merge is to be freed by the caller. */
FL_API bool fl_text_learn_merges(fl_text_dictionary *vocab, const fl_text_dictionary *pieces,
                                 const char *prefix, int64_t size, int64_t min_count,
                                 fl_text_merge **merge, int64_t *n_merges);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_BPE_TRAIN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_BPE_TRAIN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_BPE_TRAIN_IMPL
#define FL_TEXT_TOKENIZERS_BPE_TRAIN_IMPL
#include "../../data/json.h"
#include "bytes.h"
#include "gpt2.h"
#include "normalize.h"
#include "../pairs.h"
#include "pattern.h"
#include "split.h"
#include "../utf8.h"
#include <stdlib.h>
#include <string.h>

FL_API bool fl_text_count_pieces(fl_text_dictionary *d, const char *pipeline, const char *text,
                                 int64_t n, const char *where) {
    if (!fl_given(d, "fl_text_count_pieces", "the dictionary") ||
        !fl_given(pipeline, "fl_text_count_pieces", "the pipeline")) return false;
    fl_data_json *j = fl_data_json_of(pipeline, strlen(pipeline), .who = where);
    fl_text_tree *tree = j ? fl_text_tree_read(j) : NULL;
    fl_text_steps normalize = {0}, split = {0};
    fl_text_work w = {.p = text, .n = n, .first = true};
    bool ok = tree && fl_text_normalizers_of(&normalize, fl_text_tree_at(tree, "normalizer"), where) &&
              fl_text_splits_of(&split, fl_text_tree_at(tree, "pre_tokenizer"), where);
    if (n > INT32_MAX)
        ok = fl_fail("%s: the text is too long: got %lld bytes, expected at most 2^31 - 1", where,
                     (long long)n);
    fl_text_work_begin(&w, n);
    ok = ok && fl_text_steps_run(&normalize, &w) && (!w.n || fl_text_work_cut(&w, 0, w.n, -1));
    fl_text_work_swap_pieces(&w);
    ok = ok && fl_text_steps_run(&split, &w);
    for (int64_t i = 0; ok && i < w.n_pieces; i++)
        ok = fl_text_dictionary_count(d, w.p + w.piece[i].begin, w.piece[i].end - w.piece[i].begin, 1) >= 0;
    fl_data_json_close(j);
    fl_text_work_free(&w);
    fl_text_steps_free(&normalize);
    fl_text_steps_free(&split);
    fl_text_tree_free(tree);
    return ok;
}

/* A pair of adjacent symbols: its count, and the words that contain it (perhaps listed more than once). */
typedef struct fl__learn_pair {
    int32_t left, right;
    int64_t count;
    int32_t *word;
    int64_t n, cap;
} fl__learn_pair;

typedef struct fl__learn {
    int32_t *symbol; /* of all words, consecutively; words shrink in place */
    int64_t *begin, *times; /* per word */
    int32_t *len;
    int64_t words;
    fl__learn_pair *pair;
    fl_text_pairs index; /* pair -> index, as the rank */
    int64_t n_pairs, pair_cap;
    struct fl__learn_top { int64_t count; int32_t pair; } *heap;
    int64_t n_heap, heap_cap;
} fl__learn;

/* The pair, inserted if missing; NULL after fl_fail. */
static fl__learn_pair *fl__learn_pair_of(fl__learn *l, int32_t left, int32_t right) {
    fl_text_pair *p = fl_text_pairs_add(&l->index, left, right);
    if (!p || p->rank != FL_TEXT_NO_RANK) return p ? &l->pair[p->rank] : NULL;
    if (!fl_heap_grow(&l->pair, &l->pair_cap, l->n_pairs + 1, sizeof *l->pair)) return NULL;
    l->pair[p->rank = (uint32_t)l->n_pairs] = (fl__learn_pair){.left = left, .right = right};
    return &l->pair[l->n_pairs++];
}

static bool fl__learn_count(fl__learn *l, int32_t left, int32_t right, int64_t word, int64_t times) {
    fl__learn_pair *p = fl__learn_pair_of(l, left, right);
    if (!p) return false;
    p->count += times;
    if (times < 0 || (p->n && p->word[p->n - 1] == word)) return true;
    if (!fl_heap_grow(&p->word, &p->cap, p->n + 1, sizeof *p->word)) return false;
    p->word[p->n++] = (int32_t)word;
    return true;
}

/* Is a merged before b? */
static bool fl__learn_before(const fl__learn *l, struct fl__learn_top a, struct fl__learn_top b) {
    const fl__learn_pair *x = &l->pair[a.pair], *y = &l->pair[b.pair];
    if (a.count != b.count) return a.count > b.count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static void fl__learn_down(fl__learn *l, int64_t at) {
    const struct fl__learn_top e = l->heap[at];
    for (int64_t child; (child = 2 * at + 1) < l->n_heap; at = child) {
        if (child + 1 < l->n_heap && fl__learn_before(l, l->heap[child + 1], l->heap[child])) child++;
        if (!fl__learn_before(l, l->heap[child], e)) break;
        l->heap[at] = l->heap[child];
    }
    l->heap[at] = e;
}

static bool fl__learn_push(fl__learn *l, int32_t pair) {
    if (!fl_heap_grow(&l->heap, &l->heap_cap, l->n_heap + 1, sizeof *l->heap)) return false;
    const struct fl__learn_top e = {l->pair[pair].count, pair};
    int64_t at = l->n_heap++;
    for (; at && fl__learn_before(l, e, l->heap[(at - 1) / 2]); at = (at - 1) / 2)
        l->heap[at] = l->heap[(at - 1) / 2];
    l->heap[at] = e;
    return true;
}

/* Merges every occurrence of a pair in a word, from the left. */
static bool fl__learn_join(fl__learn *l, int64_t word, int32_t left, int32_t right, int32_t id) {
    int32_t *s = l->symbol + l->begin[word], out = 0, n = l->len[word];
    const int64_t times = l->times[word];
    bool ok = true;
    for (int32_t i = 0; ok && i < n; i++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[out++] = s[i];
            continue;
        }
        if (out)
            ok = fl__learn_count(l, s[out - 1], left, word, -times) &&
                 fl__learn_count(l, s[out - 1], id, word, times);
        if (ok && i + 2 < n)
            ok = fl__learn_count(l, right, s[i + 2], word, -times) &&
                 fl__learn_count(l, id, s[i + 2], word, times);
        s[out++] = id, i++;
    }
    l->len[word] = out;
    return ok;
}

/* The symbols of all pieces; characters that are not in the vocabulary are skipped. */
static bool fl__learn_words(fl__learn *l, const fl_text_dictionary *vocab,
                            const fl_text_dictionary *pieces, const char *prefix) {
    const size_t front = prefix ? strlen(prefix) : 0;
    int64_t total = 0, n, index;
    char text[64];
    l->words = fl_text_dictionary_entries(pieces);
    for (int64_t i = 0; i < l->words; i++) fl_text_dictionary_spelling(pieces, i, &n, NULL), total += n;
    l->symbol = fl_heap_alloc((size_t)(total + 1) * sizeof *l->symbol);
    l->begin = fl_heap_alloc((size_t)(l->words + 1) * sizeof *l->begin);
    l->times = fl_heap_alloc((size_t)(l->words + 1) * sizeof *l->times);
    l->len = fl_heap_alloc((size_t)(l->words + 1) * sizeof *l->len);
    if (!l->symbol || !l->begin || !l->times || !l->len || front > 50) return false;
    for (int64_t i = 0, at = 0; i < l->words; i++) {
        const char *s = fl_text_dictionary_spelling(pieces, i, &n, &index);
        int len = 1;
        l->begin[i] = at, l->times[i] = fl_text_dictionary_count_of(pieces, index);
        for (int64_t k = 0; k < n; k += len) {
            if (prefix) fl_text_utf8_decode(s + k, n - k, &len);
            const size_t skip = k ? front : 0;
            if (skip) memcpy(text, prefix, skip);
            memcpy(text + skip, s + k, (size_t)len);
            const int64_t id = fl_text_dictionary_find(vocab, text, (int64_t)skip + len);
            if (id >= 0) l->symbol[at++] = (int32_t)id;
        }
        l->len[i] = (int32_t)(at - l->begin[i]);
        for (int64_t k = l->begin[i]; k + 1 < at; k++)
            if (!fl__learn_count(l, l->symbol[k], l->symbol[k + 1], i, l->times[i])) return false;
    }
    for (int64_t i = 0; i < l->n_pairs; i++)
        if (!fl__learn_push(l, (int32_t)i)) return false;
    return true;
}

/* The token that two tokens merge to; added if missing. */
static int64_t fl__learn_token(fl_text_dictionary *vocab, int32_t left, int32_t right, size_t front) {
    fl_data_text t = {0};
    int64_t n, m;
    const char *l = fl_text_dictionary_entry(vocab, left, &n),
               *r = fl_text_dictionary_entry(vocab, right, &m);
    int64_t id = -1;
    if (fl_data_text_put(&t, l, (size_t)n) && fl_data_text_put(&t, r + front, (size_t)m - front)) {
        id = fl_text_dictionary_find(vocab, t.p, t.n);
        if (id < 0) id = fl_text_dictionary_add(vocab, t.p, t.n);
    }
    fl_heap_free(t.p);
    return id;
}

FL_API bool fl_text_learn_merges(fl_text_dictionary *vocab, const fl_text_dictionary *pieces,
                                 const char *prefix, int64_t size, int64_t min_count,
                                 fl_text_merge **merge, int64_t *n_merges) {
    if (!fl_given(vocab, "fl_text_learn_merges", "the vocabulary") ||
        !fl_given(pieces, "fl_text_learn_merges", "the pieces") ||
        !fl_given(merge, "fl_text_learn_merges", "the result") ||
        !fl_given(n_merges, "fl_text_learn_merges", "the count")) return false;
    fl__learn l = {.words = 0};
    int64_t cap = 0;
    *merge = NULL, *n_merges = 0;
    bool ok = fl__learn_words(&l, vocab, pieces, prefix);
    while (ok && l.n_heap && fl_text_dictionary_size(vocab) < size) {
        struct fl__learn_top *top = &l.heap[0];
        if (top->count != l.pair[top->pair].count) { /* it decreased since the push */
            top->count = l.pair[top->pair].count;
            fl__learn_down(&l, 0);
            continue;
        }
        if (top->count < 1 || top->count < min_count) break;
        const int32_t k = top->pair;
        const fl__learn_pair p = l.pair[k];
        *top = l.heap[--l.n_heap];
        if (l.n_heap) fl__learn_down(&l, 0);
        const int64_t tokens = fl_text_dictionary_size(vocab), before = l.n_pairs;
        const int64_t id = fl__learn_token(vocab, p.left, p.right, prefix ? strlen(prefix) : 0);
        ok = id >= 0 && fl_heap_grow(merge, &cap, *n_merges + 1, sizeof **merge);
        if (ok) (*merge)[(*n_merges)++] = (fl_text_merge){p.left, p.right};
        l.pair[k].word = NULL, l.pair[k].n = l.pair[k].cap = 0;
        for (int64_t i = 0; ok && i < p.n; i++)
            ok = fl__learn_join(&l, p.word[i], p.left, p.right, (int32_t)id);
        fl_heap_free(p.word);
        l.pair[k].count = 0;
        for (int64_t i = id < tokens ? 0 : before; ok && i < l.n_pairs;
              i++) /* counts of pairs with an existing token may have increased */
            ok = (i < before && l.pair[i].left != id && l.pair[i].right != id) ||
                 fl__learn_push(&l, (int32_t)i);
    }
    for (int64_t i = 0; i < l.n_pairs; i++) fl_heap_free(l.pair[i].word);
    void *const part[] = {l.symbol, l.begin, l.times, l.len, l.pair, l.index.slot, l.heap};
    for (int i = 0; i < 7; i++) fl_heap_free(part[i]);
    return ok;
}

static int fl__learn_by_char(const void *a, const void *b) {
    return (int)fl_text_byte_char(*(const uint8_t *)a) -
           (int)fl_text_byte_char(*(const uint8_t *)b);
}

FL_API fl_text_tokenizer *fl_text_bpe_train_opt(const char *text, int64_t n, fl_text_train_opts o) {
    uint8_t byte[256];
    fl_data_text pipeline = {0};
    fl_text_merge *merge = NULL;
    int64_t n_merges = 0;
    fl_text_dictionary *vocab = fl_text_dictionary_new(), *pieces = vocab ? fl_text_dictionary_new() : NULL;
    bool ok = pieces && fl_text_bytes_pipeline(&pipeline, o.split ? o.split : FL_TEXT_SPLIT_GPT2);
    ok = ok && fl_text_dictionary_add_all(vocab, o.special, o.n_special);
    for (int i = 0; i < 256; i++) byte[i] = (uint8_t)i;
    qsort(byte, 256, 1, fl__learn_by_char);
    for (int i = 0; ok && i < 256; i++)
        ok = fl_text_dictionary_find(vocab, (const char *)&byte[i], 1) >= 0 ||
             fl_text_dictionary_add(vocab, (const char *)&byte[i], 1) >= 0;
    ok = ok && fl_text_count_pieces(pieces, pipeline.p, text, n, "fl_text_bpe_train") &&
         fl_text_learn_merges(vocab, pieces, NULL, o.size ? o.size : 8192, o.min_count, &merge, &n_merges);
    fl_text_model *m = fl_text_bpe(fl_text_dictionary_or_free(vocab, ok), .merge = merge,
                                   .n_merges = n_merges,
                                   .bytes = true, .where = "fl_text_bpe_train");
    fl_text_added_token *special = m ? fl_heap_alloc((size_t)(o.n_special + 1) * sizeof *special) : NULL;
    for (int i = 0; special && i < o.n_special; i++)
        special[i] = (fl_text_added_token){.text = o.special[i], .n = (int64_t)strlen(o.special[i]), .id = -1,
                                           .special = true};
    if (!special) fl_text_model_free(m);
    fl_text_tokenizer *t =
        special ? fl_text_tokenizer_new(m, pipeline.p, special, o.n_special, "fl_text_bpe_train") : NULL;
    fl_heap_free(special);
    fl_text_dictionary_free(pieces);
    fl_heap_free(merge);
    fl_heap_free(pipeline.p);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
