/* fl/text/tokenizers/unigram.h - SentencePiece's unigram model: Viterbi segmentation by piece scores */
#ifndef FL_TEXT_TOKENIZERS_UNIGRAM_H
#define FL_TEXT_TOKENIZERS_UNIGRAM_H
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A unigram model; takes vocab. score: the log probability of each id, copied; NaN or -1e30: never chosen
   (control pieces, bytes). Chooses the segmentation with the highest sum (Kudo 2018). A character without a
   piece scores the lowest score - 10; consecutive ones, and pieces equal to unk, become one unk (an id; -1:
   an error), or with byte_fallback the pieces of their bytes. float32: sums are float32 and continue over
   the whole text, as in SentencePiece, where rounding decides ties; else each piece of the text has its own
   float64 sum, as in Hugging Face's tokenizers. Returns NULL after fl_fail. */
FL_API fl_text_model *fl_text_unigram(fl_text_dictionary *vocab, const double *score, int64_t unk,
                                      bool byte_fallback, bool float32, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_UNIGRAM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_UNIGRAM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_UNIGRAM_IMPL
#define FL_TEXT_TOKENIZERS_UNIGRAM_IMPL
#include "../../data/json.h"
#include "trie.h"
#include "../utf8.h"
#include "vocabulary.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FL__UNI_NEVER (-1e30)
#define FL__UNI_FAR (-1e5) /* sums below it are rebased to 0, as in SentencePiece 0.2.3 */
enum { FL__UNI_STEP = 4 }; /* units of work of a trie step */

typedef struct fl__uni {
    fl_text_model m;
    fl_text_trie trie;
    double *score, lowest,
        unknown; /* lowest: minimum of all pieces; unknown: of a character without a piece */
    int64_t unk, longest; /* longest: maximum bytes of a piece or character */
    bool byte_fallback, float32;
    int32_t byte[256];
} fl__uni;

/* The best segmentation up to a position. */
typedef struct fl__uni_position {
    union {
        double score;
        int32_t next; /* next position on the path, used after the scores */
    } is;
    int32_t from, id; /* start and id of the last token; id -1: an unknown character */
} fl__uni_position;

typedef struct fl__uni_memo {
    fl__uni_position *position;
    int64_t cap;
} fl__uni_memo;

/* Rounds a sum to the precision in use. */
static inline double fl__uni_round(bool float32, double sum) {
    return float32 ? (double)(float)sum : sum;
}

/* Subtracts the sum at this position from it and the n positions after it, so that float32 stays precise.
   Later positions with a path are at most the longest piece away. */
static void fl__uni_rebase(const fl__uni *u, fl__uni_position *position, int32_t n) {
    const double base = position->is.score;
    for (int32_t k = 0; k <= n && k <= u->longest; k++)
        if (position[k].from >= 0) position[k].is.score = fl__uni_round(true, position[k].is.score - base);
}

/* Computes the best segmentations up to all positions of n bytes, starting from `sum`. *left is decreased by
   the trie steps; stops when it is negative. */
static inline void fl__uni_forward(const fl__uni *u, const char *s, int32_t n, double sum,
                                   fl__uni_position *position, int64_t *left, bool float32) {
    const fl_text_trie *t = &u->trie;
    for (int32_t i = 1; i <= n; i++) position[i].from = -1;
    position[0] = (fl__uni_position){{sum}, 0, 0};
    for (int32_t i = 0; i < n && *left >= 0; i++) {
        if (position[i].from < 0) continue; /* inside a character */
        if (float32 && position[i].is.score < FL__UNI_FAR) fl__uni_rebase(u, position + i, n - i);
        const double base = position[i].is.score;
        const uint8_t c = (uint8_t)s[i];
        int len = 1;
        if (c >= 0x80) fl_text_utf8_decode(s + i, n - i, &len);
        bool single = false;
        int32_t node = 0, k = i;
        for (; k < n && (node = fl_text_trie_step(t, node, (uint8_t)s[k])) >= 0; k++) {
            const int32_t id = t->node[node].value;
            if (id < 0) continue;
            const double score = fl__uni_round(float32, base + u->score[id]);
            fl__uni_position *to = &position[k + 1];
            if (to->from < 0 || score > to->is.score)
                *to = (fl__uni_position){{score}, i, id};
            single |= k + 1 - i == len;
        }
        *left -= FL__UNI_STEP * (k - i);
        fl__uni_position *to = &position[i + len];
        const double score = fl__uni_round(float32, base + u->unknown);
        if (!single && (to->from < 0 || score > to->is.score)) *to = (fl__uni_position){{score}, i, -1};
    }
}

/* Adds the tokens of a run of unknown characters. */
static bool fl__uni_unknown(const fl__uni *u, fl_text_work *w, uint32_t begin, uint32_t end) {
    bool all = u->byte_fallback, ok = true;
    for (uint32_t i = begin; all && i < end; i++) all = u->byte[(uint8_t)w->p[i]] >= 0;
    for (uint32_t i = begin; all && ok && i < end; i++)
        ok = fl_text_work_token(w, u->byte[(uint8_t)w->p[i]], begin, end);
    if (all) return ok;
    return u->unk < 0 ? fl_text_work_unknown(w, begin) : fl_text_work_token(w, (int32_t)u->unk, begin, end);
}

static bool fl__uni_encode(const fl_text_model *model, fl_text_work *w, uint32_t begin, uint32_t end) {
    const fl__uni *u = (const fl__uni *)model;
    if (!w->memo && !(w->memo = fl_heap_alloc(sizeof(fl__uni_memo)))) return false;
    fl__uni_memo *m = w->memo;
    const int32_t n = (int32_t)(end - begin);
    if (!fl_text_work_reserve(&m->position, &m->cap, (int64_t)n + 1, sizeof *m->position)) return false;
    fl__uni_position *position = m->position;
    w->memo_bytes = m->cap * (int64_t)sizeof *position;
    if (u->float32) fl__uni_forward(u, w->p + begin, n, w->sum, position, &w->left, true);
    else fl__uni_forward(u, w->p + begin, n, 0, position, &w->left, false);
    bool ok = fl_text_work_spend(w, 0);
    if (!ok) return false;
    if (u->float32) w->sum = position[n].is.score;
    for (int32_t at = n; at > 0; at = position[at].from) position[position[at].from].is.next = at;
    for (int32_t at = 0, to; ok && at < n; at = to) {
        to = position[at].is.next;
        const int32_t id = position[to].id, first = to;
        const bool unknown = id < 0 || id == u->unk;
        for (int32_t k; unknown && to < n; to = k) {
            k = position[to].is.next;
            if (position[k].id >= 0 && position[k].id != u->unk) break;
        }
        ok = id >= 0 && to == first
                 ? fl_text_work_token(w, id, begin + (uint32_t)at, begin + (uint32_t)to)
                 : fl__uni_unknown(u, w, begin + (uint32_t)at, begin + (uint32_t)to);
    }
    return ok;
}

static void fl__uni_memo_free(void *memo) {
    fl_heap_free(((fl__uni_memo *)memo)->position);
    fl_heap_free(memo);
}

/* Pieces that are never chosen (control pieces, bytes) are listed in "unused", after the vocabulary, which
   other libraries ignore: the lowest score disturbs them least. */
static bool fl__uni_put(const fl_text_model *m, bool bytes, fl_data_text *out) {
    const fl__uni *u = (const fl__uni *)m;
    (void)bytes;
    bool ok = u->unk < 0 ? fl_data_text_print(out, ",\"unk_id\":null,\"byte_fallback\":false")
                         : fl_data_text_print(out, ",\"unk_id\":%lld,\"byte_fallback\":%s",
                                              (long long)u->unk, u->byte_fallback ? "true" : "false");
    ok = ok && fl_data_text_print(out, "%s,\n\"vocab\":[", u->float32 ? ",\"float32\":true" : "");
    const int64_t size = fl_text_dictionary_size(m->vocab);
    int64_t unused = 0;
    for (int64_t i = 0, n; ok && i < size; i++) {
        const char *piece = fl_text_dictionary_entry(m->vocab, i, &n);
        ok = fl_data_text_print(out, "%s", i ? ",\n[" : "[") &&
             fl_data_json_put_string(out, piece ? piece : "", piece ? (size_t)n : 0) &&
             fl_data_text_print(out, ",") &&
             fl_data_json_put_double(out, u->score[i] > FL__UNI_NEVER ? u->score[i] : u->lowest) &&
             fl_data_text_print(out, "]");
    }
    for (int64_t i = 0; ok && i < size; i++)
        if (!(u->score[i] > FL__UNI_NEVER))
            ok = fl_data_text_print(out, unused++ ? ",%lld" : "],\n\"unused\":[%lld", (long long)i);
    return ok && fl_data_text_print(out, "]");
}

static void fl__uni_free(fl_text_model *m) {
    fl__uni *u = (fl__uni *)m;
    fl_text_trie_free(&u->trie);
    fl_heap_free(u->score);
    fl_object_free(u, m->type, "");
}

static bool fl__uni_build(fl__uni *u, const double *score) {
    const int64_t size = fl_text_dictionary_size(u->m.vocab), all = fl_text_dictionary_entries(u->m.vocab);
    fl_text_key *key = fl_heap_alloc((size_t)(all + 1) * sizeof *key);
    int64_t n = 0;
    char text[8];
    u->score = fl_heap_alloc((size_t)(size + 1) * sizeof *u->score);
    for (int64_t i = 0, len, id; key && u->score && i < all; i++) {
        const char *piece = fl_text_dictionary_spelling(u->m.vocab, i, &len, &id);
        u->score[id] = score[id];
        if (!len || !(score[id] > FL__UNI_NEVER)) continue;
        if (score[id] < u->lowest) u->lowest = score[id];
        if (len > u->longest) u->longest = len;
        key[n++] = (fl_text_key){piece, len, (int32_t)id};
    }
    u->unknown = fl__uni_round(u->float32, u->lowest - 10);
    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        u->byte[i] = (int32_t)fl_text_dictionary_find(u->m.vocab, text, 6);
    }
    const bool ok = key && u->score && (n || fl_fail("fl_text_unigram: the vocabulary has no pieces")) &&
                    fl_text_trie_build(&u->trie, key, n);
    fl_heap_free(key);
    return ok;
}

FL_API fl_text_model *fl_text_unigram(fl_text_dictionary *vocab, const double *score, int64_t unk,
                                      bool byte_fallback, bool float32, const char *where) {
    fl__uni *u = fl_text_model_new(sizeof *u, (fl_text_model){"Unigram", vocab, !float32, fl__uni_encode,
                                                              fl__uni_put, fl__uni_free, fl__uni_memo_free});
    if (!u) return NULL;
    u->unk = unk, u->byte_fallback = byte_fallback, u->float32 = float32;
    u->lowest = INFINITY, u->longest = 4;
    if (unk >= fl_text_dictionary_size(vocab))
        fl_fail("%s: unk_id is out of range: got %lld, expected < %lld", where, (long long)unk,
                (long long)fl_text_dictionary_size(vocab));
    else if (fl__uni_build(u, score)) return &u->m;
    fl_text_model_free(&u->m);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
