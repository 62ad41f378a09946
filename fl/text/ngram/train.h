/* fl/text/ngram/train.h - training n-gram models: interpolated modified Kneser-Ney smoothing */
#ifndef FL_TEXT_NGRAM_TRAIN_H
#define FL_TEXT_NGRAM_TRAIN_H
#include "ngram.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_ngram_opts {
    fl_opts_guard guard_;
    int order;                          /* 0 -> 3 */
    const fl_text_dictionary *words;    /* vocabulary, others are <unk>; NULL: all words of the text */
    /* n-grams of order k + 1 with at most prune[k] occurrences are dropped; unigrams are never dropped */
    int64_t prune[FL_TEXT_NGRAM_MOST];
    char _end;
} fl_text_ngram_opts;
/* Estimates a model from n bytes of text, one sentence per line, words separated by white space, and writes
   an ARPA file. Interpolated modified Kneser-Ney (Chen, Goodman 1998): n-grams of the highest order, and
   those that begin with <s>, are counted by occurrences, others by distinct preceding words; discounts D1,
   D2, D3+ from the counts of counts 1 to 4, or 0.5, 1, 1.5 where these are not defined; unigrams are
   interpolated with the uniform distribution over all words, </s> and <unk>. Returns false after fl_fail. */
#define fl_text_ngram_train(...) FL__TEXT_NGRAM_TRAIN(__VA_ARGS__, ._end = 0)
#define FL__TEXT_NGRAM_TRAIN(text, n, path, ...) \
    fl_text_ngram_train_opt(text, n, path, FL_LITERAL(fl_text_ngram_opts, __VA_ARGS__))
FL_API bool fl_text_ngram_train_opt(const char *text, int64_t n, const char *path, fl_text_ngram_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_NGRAM_TRAIN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_NGRAM_TRAIN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_NGRAM_TRAIN_IMPL
#define FL_TEXT_NGRAM_TRAIN_IMPL
#include "../../data/text.h"
#include "../pairs.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FL__KN_UNK, FL__KN_BEGIN, FL__KN_END }; /* ids of the special words */

/* An n-gram: the n-gram of its context, its last word, and the n-gram without its first word. */
typedef struct fl__kn_gram {
    int32_t context, word, tail;
    bool kept;        /* not pruned */
    int64_t count;    /* occurrences; later the adjusted count */
    double prob, sum; /* sum: counts of the n-grams whose context it is */
    double left;      /* discounted mass, for back-off */
} fl__kn_gram;

typedef struct fl__kn_level {
    fl__kn_gram *v;
    fl_text_pairs index; /* context and word -> index of the n-gram, as the rank */
    int64_t n, cap;
    double discount[4];
} fl__kn_level;

typedef struct fl__kn {
    fl_text_dictionary *words;
    int order;
    fl__kn_level level[FL_TEXT_NGRAM_MOST];
} fl__kn;

/* The n-gram, inserted if missing; -1 after fl_fail. */
static int32_t fl__kn_at(fl__kn_level *l, int32_t context, int32_t word, int32_t tail) {
    if (l->n >= INT32_MAX - 1) return (int32_t)fl_fail("fl_text_ngram_train: more than 2^31 - 2 n-grams") - 1;
    fl_text_pair *p = fl_text_pairs_add(&l->index, context, word);
    if (!p || p->rank != FL_TEXT_NO_RANK) return p ? (int32_t)p->rank : -1;
    if (!fl_heap_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) return -1;
    l->v[p->rank = (uint32_t)l->n] = (fl__kn_gram){.context = context, .word = word, .tail = tail};
    return (int32_t)l->n++;
}

/* Counts all n-grams that end with word i of a sentence; last[k]: n-gram of order k that ends before it. */
static bool fl__kn_count(fl__kn *k, int32_t word, int32_t *last, int length) {
    int32_t now[FL_TEXT_NGRAM_MOST];
    for (int n = 0; n < k->order && n <= length; n++) {
        now[n] = fl__kn_at(&k->level[n], n ? last[n - 1] : -1, word, n ? now[n - 1] : -1);
        if (now[n] < 0) return false;
        k->level[n].v[now[n]].count++;
    }
    memcpy(last, now, sizeof now);
    return true;
}

static bool fl__kn_read(fl__kn *k, const char *text, int64_t n, const fl_text_dictionary *known) {
    bool ok = true;
    int64_t size, len;
    for (const char *p = text, *line, *s; ok && (line = fl_text_line(&p, text + n, &size));) {
        int32_t last[FL_TEXT_NGRAM_MOST] = {0};
        int length = 0;
        const char *stop = line + size;
        ok = fl__kn_count(k, FL__KN_BEGIN, last, length++);
        while (ok && (s = fl_text_field(&line, stop, &len))) {
            int64_t id = known && fl_text_dictionary_find(known, s, len) < 0
                             ? FL__KN_UNK
                             : fl_text_dictionary_find(k->words, s, len);
            if (id < 0) id = fl_text_dictionary_add(k->words, s, len);
            if (id == FL__KN_BEGIN || id == FL__KN_END)
                ok = fl_fail("fl_text_ngram_train: the text must not contain <s> or </s>");
            ok = ok && id >= 0 && fl__kn_count(k, (int32_t)id, last, length++);
        }
        ok = ok && fl__kn_count(k, FL__KN_END, last, length);
    }
    return ok;
}

/* Is the first word <s>? */
static bool fl__kn_begins(const fl__kn *k, int n, int64_t i) {
    for (; n; n--) i = k->level[n].v[i].context;
    return k->level[0].v[i].word == FL__KN_BEGIN;
}

/* Below the highest order the count of an n-gram is its number of distinct preceding words. */
static void fl__kn_adjust(fl__kn *k, const int64_t *prune) {
    for (int n = 0; n < k->order; n++)
        for (int64_t i = 0; i < k->level[n].n; i++)
            k->level[n].v[i].kept = !n || k->level[n].v[i].count > prune[n];
    for (int n = k->order - 1; n > 0; n--) /* contexts and suffixes of kept n-grams are kept */
        for (int64_t i = 0; i < k->level[n].n; i++) {
            const fl__kn_gram *g = &k->level[n].v[i];
            if (g->kept) k->level[n - 1].v[g->context].kept = k->level[n - 1].v[g->tail].kept = true;
        }
    for (int n = 0; n + 1 < k->order; n++) {
        for (int64_t i = 0; i < k->level[n].n; i++)
            if (!fl__kn_begins(k, n, i)) k->level[n].v[i].count = 0;
        for (int64_t i = 0; i < k->level[n + 1].n; i++) {
            fl__kn_gram *t = &k->level[n].v[k->level[n + 1].v[i].tail];
            if (!fl__kn_begins(k, n, k->level[n + 1].v[i].tail)) t->count++;
        }
    }
    for (int64_t i = 0; i < k->level[0].n; i++) /* <s> is never predicted */
        if (k->level[0].v[i].word == FL__KN_BEGIN) k->level[0].v[i].count = 0;
}

/* D_k = k - (k + 1) Y n_(k+1) / n_k with Y = n_1 / (n_1 + 2 n_2). */
static void fl__kn_discounts(fl__kn_level *l) {
    double n[5] = {0};
    for (int64_t i = 0; i < l->n; i++)
        if (l->v[i].count > 0 && l->v[i].count < 5) n[l->v[i].count]++;
    const double y = n[1] > 0 ? n[1] / (n[1] + 2 * n[2]) : 0;
    for (int d = 1; d < 4; d++) {
        l->discount[d] = n[d] > 0 ? d - (d + 1) * y * n[d + 1] / n[d] : -1;
        if (n[1] <= 0 || !(l->discount[d] >= 0 && l->discount[d] <= d)) {
            l->discount[1] = 0.5, l->discount[2] = 1, l->discount[3] = 1.5;
            break;
        }
    }
}

static void fl__kn_estimate(fl__kn *k) {
    const double all = (double)fl_text_dictionary_size(k->words) - 1; /* without <s> */
    for (int n = 0; n < k->order; n++) {
        fl__kn_level *l = &k->level[n];
        double sum = 0, left = 0;
        fl__kn_discounts(l);
        for (int64_t i = 0; i < l->n; i++) {
            const fl__kn_gram *g = &l->v[i];
            const double cut = g->kept ? l->discount[g->count > 3 ? 3 : g->count] : (double)g->count;
            fl__kn_gram *c = n ? &k->level[n - 1].v[g->context] : NULL;
            *(c ? &c->sum : &sum) += (double)g->count;
            *(c ? &c->left : &left) += g->count > 0 ? cut : 0;
        }
        for (int64_t i = 0; i < l->n; i++) {
            fl__kn_gram *g = &l->v[i];
            const fl__kn_gram *c = n ? &k->level[n - 1].v[g->context] : NULL;
            const double total = c ? c->sum : sum, mass = c ? c->left : left;
            const double lower = c ? k->level[n - 1].v[g->tail].prob : 1 / all;
            const double own = g->count > 0 && g->kept
                                   ? (double)g->count - l->discount[g->count > 3 ? 3 : g->count]
                                   : 0;
            g->prob = total > 0 ? (own + mass * lower) / total : lower;
        }
    }
}

static bool fl__kn_put_words(const fl__kn *k, int n, int64_t i, fl_data_text *out) {
    int32_t word[FL_TEXT_NGRAM_MOST];
    bool ok = true;
    for (int m = n; m >= 0; m--) {
        word[m] = k->level[m].v[i].word;
        i = k->level[m].v[i].context;
    }
    for (int m = 0; ok && m <= n; m++) {
        int64_t len;
        const char *text = fl_text_dictionary_entry(k->words, word[m], &len);
        ok = fl_data_text_put(out, m ? " " : "\t", 1) && fl_data_text_put(out, text, (size_t)len);
    }
    return ok;
}

static bool fl__kn_write(const fl__kn *k, fl_data_text *out) {
    bool ok = fl_data_text_print(out, "\\data\\\n");
    for (int n = 0; ok && n < k->order; n++) {
        int64_t kept = 0;
        for (int64_t i = 0; i < k->level[n].n; i++) kept += k->level[n].v[i].kept;
        ok = fl_data_text_print(out, "ngram %d=%lld\n", n + 1, (long long)kept);
    }
    for (int n = 0; ok && n < k->order; n++) {
        ok = fl_data_text_print(out, "\n\\%d-grams:\n", n + 1);
        for (int64_t i = 0; ok && i < k->level[n].n; i++) {
            const fl__kn_gram *g = &k->level[n].v[i];
            if (!g->kept) continue;
            const bool begin = !n && g->word == FL__KN_BEGIN;
            ok = fl_data_text_print(out, "%.7g", begin ? -99.0 : log10(g->prob)) &&
                 fl__kn_put_words(k, n, i, out);
            if (ok && n + 1 < k->order && g->sum > 0 && g->left > 0)
                ok = fl_data_text_print(out, "\t%.7g", log10(g->left / g->sum));
            ok = ok && fl_data_text_print(out, "\n");
        }
    }
    return ok && fl_data_text_print(out, "\n\\end\\\n");
}

FL_API bool fl_text_ngram_train_opt(const char *text, int64_t n, const char *path, fl_text_ngram_opts o) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    fl__kn k = {.order = o.order ? o.order : 3};
    fl_data_text out = {0};
    if (k.order < 1 || k.order > FL_TEXT_NGRAM_MOST)
        return fl_fail("fl_text_ngram_train: order is out of range: got %d, expected 1 to %d", k.order,
                       FL_TEXT_NGRAM_MOST);
    if (n <= 0 || !text) return fl_fail("fl_text_ngram_train: text is NULL or empty: got %lld bytes",
                                        (long long)n);
    k.words = fl_text_dictionary_new();
    bool ok = k.words && fl_text_dictionary_add_all(k.words, special, 3) &&
              fl__kn_at(&k.level[0], -1, FL__KN_UNK, -1) == 0 && fl__kn_read(&k, text, n, o.words);
    for (int i = 0; i < FL_TEXT_NGRAM_MOST; i++) { /* the tables are needed for counting only */
        fl_heap_free(k.level[i].index.slot);
        k.level[i].index = (fl_text_pairs){0};
    }
    if (ok) fl__kn_adjust(&k, o.prune);
    if (ok) fl__kn_estimate(&k);
    ok = ok && fl__kn_write(&k, &out) && fl_data_replace("fl_text_ngram_train", path, out.p, (size_t)out.n);
    for (int i = 0; i < FL_TEXT_NGRAM_MOST; i++) fl_heap_free(k.level[i].v);
    fl_text_dictionary_free(k.words);
    fl_heap_free(out.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
