/* fl/text/tokenizers/unigram_train.h - training SentencePiece's unigram model */
#ifndef FL_TEXT_TOKENIZERS_UNIGRAM_TRAIN_H
#define FL_TEXT_TOKENIZERS_UNIGRAM_TRAIN_H
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_unigram_opts {
    fl_opts_guard guard_;
    int64_t size;    /* of the vocabulary, including <unk>, <s> and </s>, the first ids; 0 -> 8,192 */
    double coverage; /* character coverage: fraction of the text that must have pieces; 0 -> 0.9995 */
    bool byte_fallback; /* unknown characters become bytes; their 256 pieces count in size */
    char _end;
} fl_text_unigram_opts;
/* Trains on n bytes of text, words separated by white space (Kudo 2018, sentencepiece's settings): starts
   from all substrings of up to 16 characters that occur twice; alternates expectation maximisation and
   pruning of a quarter of the pieces, those whose loss reduces the likelihood least. NULL after fl_fail. */
#define fl_text_unigram_train(...) FL__TEXT_UNIGRAM_TRAIN(__VA_ARGS__, ._end = 0)
#define FL__TEXT_UNIGRAM_TRAIN(text, n, ...) \
    fl_text_unigram_train_opt(text, n, FL_LITERAL(fl_text_unigram_opts, __VA_ARGS__))
FL_API fl_text_tokenizer *fl_text_unigram_train_opt(const char *text, int64_t n, fl_text_unigram_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_UNIGRAM_TRAIN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_UNIGRAM_TRAIN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_UNIGRAM_TRAIN_IMPL
#define FL_TEXT_TOKENIZERS_UNIGRAM_TRAIN_IMPL
#include "../dictionary.h"
#include "sentencepiece.h"
#include "../utf8.h"
#include "words.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FL__LEARN_LONGEST = 16,
    FL__LEARN_WORD = 4000
}; /* characters of a piece, bytes of a word, at most */

/* An occurrence of a piece in a word; those of a word are contiguous, sorted by start. */
typedef struct fl__uni_arc {
    int32_t piece;
    uint16_t begin, end;
} fl__uni_arc;

typedef struct fl__uni_word {
    int64_t arc, n, times; /* arc: the first of its n arcs */
    int32_t len;
} fl__uni_word;

/* Statistics of a piece. */
typedef struct fl__uni_piece {
    double score, expected, loss;
    int64_t arc, word; /* an occurrence: the first arc at its start, and the word */
    uint16_t begin, end;
    uint8_t chars;
    bool alive;
} fl__uni_piece;

typedef struct fl__uni_learn {
    fl_text_dictionary *text; /* pieces and their counts */
    fl__uni_piece *piece;
    fl__uni_word *word;
    fl__uni_arc *arc;
    double *up, *down; /* forward and backward sums per position of a word */
    int64_t *from;     /* last arc of the best path to each position */
    int64_t n_arcs, arc_cap, n_words, word_cap, piece_cap, live, longest;
} fl__uni_learn;

static double fl__uni_log_sum(double a, double b) {
    if (a == -INFINITY) return b;
    return a > b ? a + log1p(exp(b - a)) : b + log1p(exp(a - b));
}

/* Digamma, the derivative of log gamma (Abramowitz and Stegun 6.3.18 at x - 1/2). */
static double fl__uni_digamma(double x) {
    double y = 0;
    for (; x < 7; x++) y -= 1 / x;
    const double z = 1 / ((x - 0.5) * (x - 0.5));
    return y + log(x - 0.5) + z * (1.0 / 24 - z * (7.0 / 960 - z * (31.0 / 8064 - z * 127.0 / 30720)));
}

/* ---- words and occurrences of pieces ---- */

static bool fl__uni_add_arc(fl__uni_learn *l, const char *s, int32_t begin, int32_t end, int chars,
                            int64_t first) {
    const int64_t known = fl_text_dictionary_size(l->text);
    const int64_t id = fl_text_dictionary_count(l->text, s + begin, end - begin, l->word[l->n_words].times);
    if (id < 0 || !fl_heap_grow(&l->arc, &l->arc_cap, l->n_arcs + 1, sizeof *l->arc) ||
        !fl_heap_grow(&l->piece, &l->piece_cap, id + 1, sizeof *l->piece))
        return false;
    if (id == known)
        l->piece[id] = (fl__uni_piece){.arc = first, .word = l->n_words, .begin = (uint16_t)begin,
                                       .end = (uint16_t)end, .chars = (uint8_t)chars};
    l->arc[l->n_arcs++] = (fl__uni_arc){(int32_t)id, (uint16_t)begin, (uint16_t)end};
    return true;
}

static bool fl__uni_add_word(fl__uni_learn *l, const char *s, int32_t len, int64_t times) {
    if (!fl_heap_grow(&l->word, &l->word_cap, l->n_words + 1, sizeof *l->word)) return false;
    l->word[l->n_words] = (fl__uni_word){l->n_arcs, 0, times, len};
    bool ok = true;
    int step;
    for (int32_t begin = 0; ok && begin < len; begin += step) {
        const int64_t first = l->n_arcs;
        int32_t end = begin;
        for (int k = 1, more; ok && k <= FL__LEARN_LONGEST && end < len; k++) {
            fl_text_utf8_decode(s + end, len - end, &more);
            ok = fl__uni_add_arc(l, s, begin, end += more, k, first);
        }
        fl_text_utf8_decode(s + begin, len - begin, &step);
    }
    l->word[l->n_words].n = l->n_arcs - l->word[l->n_words].arc;
    l->n_words++;
    if (len > l->longest) l->longest = len;
    return ok;
}

/* Adds a word with U+2581 in front, split at characters that are not in `letters`. */
static bool fl__uni_cut_word(fl__uni_learn *l, const fl_text_dictionary *letters, const char *s, int64_t n,
                             int64_t times, fl_data_text *buf) {
    bool ok = true;
    int len;
    buf->n = 0;
    ok = fl_data_text_put(buf, "\xe2\x96\x81", 3);
    for (int64_t i = 0; ok && i <= n; i += len) {
        const bool stop = i == n || (fl_text_utf8_decode(s + i, n - i, &len),
                                     fl_text_dictionary_find(letters, s + i, len) < 0);
        if (i == n) len = 1;
        if (stop && buf->n) ok = fl__uni_add_word(l, buf->p, (int32_t)buf->n, times), buf->n = 0;
        if (!stop && buf->n < FL__LEARN_WORD) ok = fl_data_text_put(buf, s + i, (size_t)len);
    }
    return ok;
}

/* The most frequent characters that reach the coverage. */
static fl_text_dictionary *fl__uni_letters(const fl_text_dictionary *words, double coverage) {
    fl_text_dictionary *all = fl_text_dictionary_new(), *kept = NULL;
    double sum = 0, seen = 0;
    bool ok = all != NULL;
    for (int64_t w = 0, n; ok && w < fl_text_dictionary_size(words); w++) {
        const char *s = fl_text_dictionary_entry(words, w, &n);
        int len;
        for (int64_t i = 0; ok && i < n; i += len) {
            if (fl_text_utf8_decode(s + i, n - i, &len) < 0) continue; /* ill-formed: unknown */
            const int64_t times = fl_text_dictionary_count_of(words, w);
            ok = fl_text_dictionary_count(all, s + i, len, times) >= 0, sum += (double)times;
        }
    }
    fl_text_dictionary *order = ok ? fl_text_dictionary_pruned(all, 0, 1, 0) : NULL;
    int64_t n = 0;
    while (order && n < fl_text_dictionary_size(order) && seen < coverage * sum)
        seen += (double)fl_text_dictionary_count_of(order, n++);
    if (order) kept = fl_text_dictionary_pruned(order, 0, 1, n ? n : 1);
    fl_text_dictionary_free(order);
    fl_text_dictionary_free(all);
    return kept;
}

/* ---- expectation and maximisation ---- */

/* Seed pieces: substrings that occur twice and are not always followed by the same character; and
   all characters. */
static void fl__uni_seed(fl__uni_learn *l) {
    const int64_t n = fl_text_dictionary_size(l->text);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        l->piece[i].alive = l->piece[i].chars == 1 || fl_text_dictionary_count_of(l->text, i) > 1;
    for (int64_t i = 0, bytes; i < n; i++) {
        const char *s = fl_text_dictionary_entry(l->text, i, &bytes);
        do bytes--;
        while (bytes > 0 && ((uint8_t)s[bytes] & 0xc0) == 0x80);
        const int64_t shorter = bytes > 0 ? fl_text_dictionary_find(l->text, s, bytes) : -1;
        if (shorter >= 0 && l->piece[shorter].chars > 1 && /* with an equal count */
            fl_text_dictionary_count_of(l->text, i) == fl_text_dictionary_count_of(l->text, shorter))
            l->piece[shorter].alive = false;
    }
    for (int64_t i = 0; i < n; i++) {
        fl__uni_piece *p = &l->piece[i];
        p->score = (double)fl_text_dictionary_count_of(l->text, i) * p->chars;
        if (p->alive) sum += p->score, l->live++;
    }
    for (int64_t i = 0; i < n; i++) l->piece[i].score = log(l->piece[i].score / sum);
}

/* Adds the expected counts of pieces in a word (forward-backward). */
static void fl__uni_expect(fl__uni_learn *l, const fl__uni_word *w) {
    const fl__uni_arc *arc = l->arc + w->arc;
    for (int32_t i = 0; i <= w->len; i++) l->up[i] = l->down[i] = -INFINITY;
    l->up[0] = l->down[w->len] = 0;
    for (int64_t k = 0; k < w->n; k++)
        if (l->piece[arc[k].piece].alive && l->up[arc[k].begin] > -INFINITY)
            l->up[arc[k].end] =
                fl__uni_log_sum(l->up[arc[k].end], l->up[arc[k].begin] + l->piece[arc[k].piece].score);
    for (int64_t k = w->n; k-- > 0;) {
        fl__uni_piece *p = &l->piece[arc[k].piece];
        if (!p->alive || l->down[arc[k].end] == -INFINITY) continue;
        const double rest = p->score + l->down[arc[k].end];
        l->down[arc[k].begin] = fl__uni_log_sum(l->down[arc[k].begin], rest);
        if (l->up[arc[k].begin] > -INFINITY)
            p->expected += (double)w->times * exp(l->up[arc[k].begin] + rest - l->up[w->len]);
    }
}

static void fl__uni_maximise(fl__uni_learn *l) {
    const int64_t n = fl_text_dictionary_size(l->text);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) l->piece[i].expected = 0;
    for (int64_t w = 0; w < l->n_words; w++) fl__uni_expect(l, &l->word[w]);
    for (int64_t i = 0; i < n; i++) {
        fl__uni_piece *p = &l->piece[i];
        if (!p->alive) continue;
        if (p->expected < 0.5 && p->chars > 1) p->alive = false, l->live--;
        else sum += p->expected = fmax(p->expected, 0.5);
    }
    for (int64_t i = 0; i < n; i++)
        if (l->piece[i].alive)
            l->piece[i].score = fl__uni_digamma(l->piece[i].expected) - fl__uni_digamma(sum);
}

/* ---- pruning ---- */

/* The best path over a word's arcs from k on within [begin, end] that avoids one piece: returns its score,
   -INFINITY if none; l->from has the last arc to each position. */
static double fl__uni_best_path(fl__uni_learn *l, const fl__uni_word *w, int64_t k, int32_t begin,
                                int32_t end, int64_t left_out) {
    for (int32_t i = begin; i <= end; i++) l->up[i] = -INFINITY;
    l->up[begin] = 0;
    for (; k < w->arc + w->n && l->arc[k].begin < end; k++) {
        const fl__uni_arc *a = &l->arc[k];
        if (a->end > end || a->piece == left_out || !l->piece[a->piece].alive) continue;
        const double score = l->up[a->begin] + l->piece[a->piece].score;
        if (score > l->up[a->end]) l->up[a->end] = score, l->from[a->end] = k;
    }
    return l->up[end];
}

/* Loss of likelihood if piece i, with `expected` occurrences on best paths, is replaced by its next best
   segmentation. INFINITY: keep it; -INFINITY: remove it. */
static double fl__uni_loss(fl__uni_learn *l, int64_t i, double sum, double words) {
    const fl__uni_piece *p = &l->piece[i];
    const double other = fl__uni_best_path(l, &l->word[p->word], p->arc, p->begin, p->end, i);
    if (other == -INFINITY || p->chars == 1) return INFINITY;
    if (p->expected == 0) return -INFINITY;
    if (other > p->score) return INFINITY; /* although another segmentation scores higher */
    int parts = 0;
    for (int32_t at = p->end; at > p->begin; at = l->arc[l->from[at]].begin) parts++;
    double apart = -parts * log(sum + p->expected * (parts - 1));
    for (int32_t at = p->end; at > p->begin; at = l->arc[l->from[at]].begin)
        apart += log(l->piece[l->arc[l->from[at]].piece].expected + p->expected);
    return p->expected / words * (log(p->expected) - log(sum) - apart);
}

typedef struct fl__uni_rank {
    double by;
    int64_t piece;
} fl__uni_rank;

/* Descending order; ties by index. */
static int fl__uni_falling(const void *a, const void *b) {
    const fl__uni_rank *x = a, *y = b;
    return x->by != y->by ? (x->by < y->by) - (x->by > y->by) : (x->piece > y->piece) - (x->piece < y->piece);
}

/* The *n live pieces sorted by loss or by score. The caller frees the list. */
static fl__uni_rank *fl__uni_ranked(const fl__uni_learn *l, bool by_loss, int64_t *n) {
    fl__uni_rank *r = fl_heap_alloc((size_t)(l->live + 1) * sizeof *r);
    *n = 0;
    for (int64_t i = 0; r && i < fl_text_dictionary_size(l->text); i++)
        if (l->piece[i].alive) r[(*n)++] = (fl__uni_rank){by_loss ? l->piece[i].loss : l->piece[i].score, i};
    if (r) qsort(r, (size_t)*n, sizeof *r, fl__uni_falling);
    return r;
}

/* Keeps that many pieces, or more if they must be kept. */
static bool fl__uni_prune(fl__uni_learn *l, int64_t keep) {
    const int64_t n = fl_text_dictionary_size(l->text);
    double sum = 0, words = 0;
    int64_t all;
    for (int64_t i = 0; i < n; i++) l->piece[i].expected = 0;
    for (int64_t w = 0; w < l->n_words; w++) {
        const fl__uni_word *word = &l->word[w];
        words += (double)word->times;
        fl__uni_best_path(l, word, word->arc, 0, word->len, -1);
        for (int32_t at = word->len; at > 0; at = l->arc[l->from[at]].begin)
            l->piece[l->arc[l->from[at]].piece].expected += (double)word->times, sum += (double)word->times;
    }
    for (int64_t i = 0; i < n; i++)
        if (l->piece[i].alive) l->piece[i].loss = fl__uni_loss(l, i, sum, words);
    fl__uni_rank *rank = fl__uni_ranked(l, true, &all);
    for (int64_t k = keep; rank && k < all; k++)
        if (rank[k].by < INFINITY) l->piece[rank[k].piece].alive = false, l->live--;
    fl_heap_free(rank);
    return rank != NULL;
}

/* ---- the vocabulary ---- */

/* Builds the vocabulary: special tokens, then characters and the best other pieces by descending score. */
static fl_text_tokenizer *fl__uni_finish(fl__uni_learn *l, int64_t size, bool bytes) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    const int64_t reserved = 3 + 256 * bytes;
    int64_t all, letters = 0, n = 0;
    char name[8];
    fl__uni_rank *rank = fl__uni_ranked(l, false, &all);
    float *score = fl_heap_alloc((size_t)(all + reserved) * sizeof *score);
    fl_text_dictionary *vocab = rank && score ? fl_text_dictionary_new() : NULL;
    bool ok = vocab != NULL;
    for (int64_t k = 0; k < all && rank; k++) letters += l->piece[rank[k].piece].chars == 1;
    if (ok && size < reserved + letters)
        ok = fl_fail("fl_text_unigram_train: size is too small: got %lld, expected at least %lld characters "
                     "+ "
                     "%lld reserved pieces", (long long)size, (long long)letters, (long long)reserved);
    ok = ok && fl_text_dictionary_add_all(vocab, special, n = 3);
    for (; ok && n < reserved; n++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(n - 3));
        ok = fl_text_dictionary_add(vocab, name, 6) >= 0;
    }
    int64_t left = size - reserved - letters, len;
    for (int64_t k = 0; ok && k < all; k++) {
        const fl__uni_piece *p = &l->piece[rank[k].piece];
        if (p->chars > 1 && left-- <= 0) continue;
        const char *s = fl_text_dictionary_entry(l->text, rank[k].piece, &len);
        ok = fl_text_dictionary_add(vocab, s, len) >= 0;
        score[n++] = (float)p->score;
    }
    fl_text_tokenizer *t =
        fl_text_pieces(fl_text_dictionary_or_free(vocab, ok), score, NULL,
                       (fl_text_pieces_opts){.byte_fallback = bytes, .where = "fl_text_unigram_train"});
    fl_heap_free(rank);
    fl_heap_free(score);
    return t;
}

/* ---- training ---- */

static bool fl__uni_learn_all(fl__uni_learn *l, int64_t size) {
    const size_t places = (size_t)(l->longest + 1);
    l->up = fl_heap_alloc(places * sizeof *l->up), l->down = fl_heap_alloc(places * sizeof *l->down);
    l->from = fl_heap_alloc(places * sizeof *l->from);
    if (!l->up || !l->down || !l->from) return false;
    const int64_t wanted = size * 11 / 10;
    fl__uni_seed(l);
    for (;;) {
        for (int i = 0; i < 2; i++) fl__uni_maximise(l);
        if (l->live <= wanted) return true;
        const int64_t before = l->live, keep = l->live * 3 / 4;
        if (!fl__uni_prune(l, keep > wanted ? keep : wanted)) return false;
        if (l->live == before) return true; /* all must be kept */
    }
}

FL_API fl_text_tokenizer *fl_text_unigram_train_opt(const char *text, int64_t n, fl_text_unigram_opts o) {
    fl__uni_learn l = {0};
    fl_data_text buf = {0};
    fl_text_tokenizer *t = NULL;
    if (!o.size) o.size = 8192;
    if (o.coverage == 0) o.coverage = 0.9995;
    if (!text || n < 0 || o.size < 4 || o.size > INT32_MAX || !(o.coverage > 0 && o.coverage <= 1))
        return fl_fail("fl_text_unigram_train: text is NULL (%lld bytes), size %lld is not in [4, 2^31), or "
                       "coverage %g is not in (0, 1]", (long long)n, (long long)o.size, o.coverage), NULL;
    fl_text_dictionary *words = fl_text_dictionary_new();
    l.text = words ? fl_text_dictionary_new() : NULL;
    bool ok = l.text && fl_text_count_words(words, text, n) &&
              (fl_text_dictionary_size(words) || fl_fail("fl_text_unigram_train: the text has no words"));
    fl_text_dictionary *letters = ok ? fl__uni_letters(words, o.coverage) : NULL;
    ok = letters != NULL;
    for (int64_t w = 0, len; ok && w < fl_text_dictionary_size(words); w++) {
        const char *s = fl_text_dictionary_entry(words, w, &len);
        ok = fl__uni_cut_word(&l, letters, s, len, fl_text_dictionary_count_of(words, w), &buf);
    }
    if (ok && fl__uni_learn_all(&l, o.size)) t = fl__uni_finish(&l, o.size, o.byte_fallback);
    fl_text_dictionary_free(words);
    fl_text_dictionary_free(letters);
    fl_text_dictionary_free(l.text);
    fl_heap_free(buf.p);
    fl_heap_free(l.piece), fl_heap_free(l.word), fl_heap_free(l.arc);
    fl_heap_free(l.up), fl_heap_free(l.down), fl_heap_free(l.from);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
