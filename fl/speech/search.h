/* fl/speech/search.h - beam search with autoregressive models: attention decoders and transducers */
#ifndef FL_SPEECH_SEARCH_H
#define FL_SPEECH_SEARCH_H
#include "lexicon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Interface of an autoregressive model. Its states are in slots 0, 1, ..., which the search assigns. */
typedef struct fl_speech_predictor fl_speech_predictor;
struct fl_speech_predictor {
    void *self;
    int64_t classes, end; /* end: the end-of-sequence class; of a transducer the blank */
    bool transducer;
    /* Appends token[i] to the state in slot from[i] and stores the result in slot to[i], for all n at once
       (token -1 and from -1: the initial state). An attention decoder may drop all other states; its to[i]
       is i. Returns false after fl_fail. */
    bool (*extend)(const fl_speech_predictor *p, int64_t n, const int32_t *from, const int32_t *token,
                   const int32_t *to);
    /* Log probabilities [n, classes] of the next token in slots at[i], for a transducer at a frame. */
    bool (*scores)(const fl_speech_predictor *p, int64_t frame, int64_t n, const int32_t *at, float *out);
    void (*free)(fl_speech_predictor *p);
};
FL_API void fl_speech_predictor_free(fl_speech_predictor *p); /* NULL is allowed */

typedef struct fl_speech_search_opts {
    fl_opts_guard guard_;
    int64_t beam;     /* beam size: hypotheses kept per step; 0 -> 10 */
    int64_t tokens;   /* only the best tokens of each hypothesis are expanded; 0 -> all */
    int64_t most;     /* maximal number of tokens per sequence, 0 -> 200; per frame of a transducer, 0 -> 4 */
    double threshold; /* hypotheses this far below the best one are pruned; 0 -> 25 */
    bool log_add;     /* transducer: sum over alignments; default: the best one */
    /* Score: the model's + word_score per word + end_score at the end + lm_weight lm. */
    double lm_weight, word_score, end_score;
    const fl_text_scorer *lm; /* of words, or without a lexicon of tokens; NULL: none. Borrowed */
    bool token_lm;            /* lm scores tokens, with a lexicon too */
    char _end;
} fl_speech_search_opts;
/* Creates a beam search over token sequences, with a lexicon over word sequences, which end at word
   boundaries. For transducers it is time-synchronous (Saon, Tueske, Audhkhasi, ICASSP 2020): frame by frame,
   with at most `most` tokens per frame, merging equal hypotheses. Borrows p, lexicon (finished) and lm.
   Returns NULL after fl_fail. */
typedef struct fl_speech_search fl_speech_search;
#define fl_speech_search_new(p, ...) FL__SPEECH_SEARCH_NEW(p, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_SEARCH_NEW(p, lexicon, ...) \
    fl_speech_search_new_opt(p, lexicon, FL_LITERAL(fl_speech_search_opts, __VA_ARGS__))
FL_API fl_speech_search *fl_speech_search_new_opt(const fl_speech_predictor *p,
                                                  const fl_speech_lexicon *lexicon, fl_speech_search_opts o);
FL_API void fl_speech_search_free(fl_speech_search *s); /* NULL is allowed */
/* Restarts, for the predictor's next utterance. */
FL_API bool fl_speech_search_begin(fl_speech_search *s);
/* Advances by `steps` frames of a transducer, or tokens of a sequence, fewer if all hypotheses have ended.
   NaN or inf is an error that names the step. Returns false after fl_fail. */
FL_API bool fl_speech_search_step(fl_speech_search *s, int64_t steps);
/* Ends the search: removes hypotheses with unfinished words or sequences, if any others are left. */
FL_API bool fl_speech_search_end(fl_speech_search *s);

typedef struct fl_speech_word {
    int64_t word;       /* index in the lexicon; without a lexicon the token */
    int64_t begin, end; /* frames since the start of the utterance; of sequences, token positions */
    double confidence;  /* posterior in the n-best list: see fl_speech_confidences */
} fl_speech_word;
typedef struct fl_speech_result {
    double score, acoustic, lm; /* lm without its weight */
    int64_t words;
    const fl_speech_word *word; /* [words], valid until the next use of the search or decoder */
} fl_speech_result;
/* The n best hypotheses, best first. Returns their number, -1 after fl_fail. */
FL_API int64_t fl_speech_search_best(fl_speech_search *s, int64_t n, fl_speech_result *out);
/* The tokens of result i of the last fl_speech_search_best, at most `most`. Returns their number. */
FL_API int64_t fl_speech_search_tokens(const fl_speech_search *s, int64_t i, int64_t *out, int64_t most);

/* Computes word confidences: the posterior share of those of the n results with the same word at an
   overlapping time. */
FL_API void fl_speech_confidences(const fl_speech_result *r, int64_t n, fl_speech_word *word);
/* Rescores and sorts results with another language model: score += weight (its score) - old_weight lm, and lm
   becomes its score of the whole sentence. Returns false after fl_fail. */
FL_API bool fl_speech_rescore(fl_speech_result *r, int64_t n, const fl_text_scorer *lm, double weight,
                              double old_weight);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_SEARCH_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_SEARCH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_SEARCH_IMPL
#define FL_SPEECH_SEARCH_IMPL
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A token in the history of hypotheses. All kept ones are in one array, with indices as back-pointers. */
typedef struct fl__search_trace {
    int32_t before, token, word; /* before: back-pointer, -1 at the start; word: -1 if none ends here */
    int32_t step;
} fl__search_trace;

typedef struct fl__search_hyp {
    double score, acoustic, lm;
    uint64_t history;          /* hash of tokens and words */
    int32_t back, slot;        /* back: index of its last token in `trace`; slot: of its state */
    int32_t node, token, word; /* token: a new one, not yet in `trace`; -1: none */
    bool ended;
    fl_text_state state;
} fl__search_hyp;

typedef struct fl__search_list {
    fl__search_hyp *at;
    int64_t n, cap;
    double best; /* the highest score so far */
} fl__search_list;

struct fl_speech_search {
    fl_speech_search_opts o;
    const fl_speech_predictor *p;
    const fl_speech_node *node; /* NULL: no lexicon */
    const int32_t *list;
    fl__search_list now, next, open; /* open: transducer hypotheses to be expanded at the current frame */
    fl__search_trace *trace;
    float *scores;
    int32_t *order, *from, *token, *to;
    bool *occupied; /* slots in use */
    fl_speech_word *word;
    fl_text_state *lm_states;
    int64_t trace_n, trace_cap, score_cap, order_cap, from_cap, token_cap, to_cap, occupied_cap,
        word_cap, lm_states_cap, steps;
};

FL_API void fl_speech_predictor_free(fl_speech_predictor *p) {
    if (p && p->free) p->free(p);
}

/* ---- hypotheses ---- */

static uint64_t fl__search_mix(uint64_t a, uint64_t b) {
    a = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
    return a ^ a >> 32;
}

static void fl__search_empty(fl__search_list *l) { l->n = 0, l->best = -INFINITY; }

static bool fl__search_put(const fl_speech_search *s, fl__search_list *l, const fl__search_hyp *h) {
    if (!(h->score > -INFINITY) || h->score < l->best - s->o.threshold) return true;
    if (h->score > l->best) l->best = h->score;
    if (!fl_heap_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at)) return false;
    l->at[l->n++] = *h;
    return true;
}

static bool fl__search_lm(const fl_speech_search *s, fl__search_hyp *h, int64_t token, double base) {
    double lm = 0;
    const fl_text_state from = h->state;
    if (s->o.lm && !s->o.lm->score(s->o.lm, &from, token, &h->state, &lm)) return false;
    h->lm += lm - base, h->score += s->o.lm_weight * (lm - base);
    return true;
}

/* Extends h by a token, and by each word that ends with it, into l. */
static bool fl__search_grow(const fl_speech_search *s, fl__search_list *l, fl__search_hyp h, int32_t token,
                            double score) {
    h.score += score, h.acoustic += score, h.token = token, h.word = -1;
    h.history = fl__search_mix(h.history, (uint64_t)token);
    const bool token_lm = s->o.token_lm || !s->node;
    if (token_lm && !fl__search_lm(s, &h, token, 0)) return false;
    if (!s->node) return h.word = token, fl__search_put(s, l, &h);
    const int32_t child = fl_speech_node_child(s->node, h.node, token);
    if (child < 0) return true;
    const fl_speech_node *node = &s->node[child];
    const double base = token_lm || !h.node ? 0 : s->node[h.node].smeared;
    if (node->children) {
        fl__search_hyp down = h;
        down.node = child;
        if (!token_lm)
            down.lm += node->smeared - base, down.score += s->o.lm_weight * (node->smeared - base);
        if (!fl__search_put(s, l, &down)) return false;
    }
    for (int32_t i = 0; i < node->words; i++) {
        fl__search_hyp word = h;
        word.word = s->list[node->word + i], word.node = 0, word.score += s->o.word_score;
        word.history = fl__search_mix(h.history, (uint64_t)word.word + (1ull << 32));
        if ((!token_lm && !fl__search_lm(s, &word, word.word, base)) || !fl__search_put(s, l, &word))
            return false;
    }
    return true;
}

/* Ends a sequence. */
static bool fl__search_finish(const fl_speech_search *s, fl__search_list *l, fl__search_hyp h, double score) {
    double lm = 0;
    if (h.node) return true;
    if (s->o.lm && !s->o.lm->finish(s->o.lm, &h.state, &lm)) return false;
    h.acoustic += score, h.lm += lm, h.ended = true, h.token = -1;
    h.score += score + s->o.end_score + s->o.lm_weight * lm;
    return fl__search_put(s, l, &h);
}

/* Sort order: by history, so that equal ones are adjacent, or by score, best first. */
static bool fl__search_before(const fl__search_hyp *a, const fl__search_hyp *b, bool by_history) {
    if (by_history && a->history != b->history) return a->history < b->history;
    return a->score != b->score ? a->score > b->score : a->history < b->history;
}

/* Heapsort: needs no extra memory. */
static void fl__search_sort(fl__search_list *l, bool by_history) {
    fl__search_hyp *x = l->at;
    for (int64_t n = l->n, top = n / 2; n > 1;) {
        fl__search_hyp h;
        if (top) h = x[--top];
        else h = x[--n], x[n] = x[0];
        int64_t at = top;
        for (int64_t k; (k = 2 * at + 1) < n; at = k) {
            if (k + 1 < n && fl__search_before(&x[k], &x[k + 1], by_history)) k++;
            if (!fl__search_before(&h, &x[k], by_history)) break;
            x[at] = x[k];
        }
        x[at] = h;
    }
}

/* Merges hypotheses with equal history; the best one's back-pointer is kept. */
static void fl__search_merge(const fl_speech_search *s, fl__search_list *l) {
    int64_t n = 0;
    fl__search_sort(l, true);
    for (int64_t i = 0; i < l->n; i++) {
        fl__search_hyp *last = n ? &l->at[n - 1] : NULL;
        if (!last || last->history != l->at[i].history) l->at[n++] = l->at[i];
        else if (s->o.log_add) last->score += log1p(exp(l->at[i].score - last->score));
    }
    l->n = n;
}

/* Prunes a list to the beam and to the threshold below its best score, or `best` if that is higher. */
static void fl__search_prune(const fl_speech_search *s, fl__search_list *l, double best) {
    fl__search_sort(l, false);
    if (l->n && l->at[0].score > best) best = l->at[0].score;
    if (l->n > s->o.beam) l->n = s->o.beam;
    while (l->n && l->at[l->n - 1].score < best - s->o.threshold) l->n--;
}

/* ---- the models ---- */

/* Evaluates the predictor's scores for the active hypotheses of a list. */
static bool fl__search_scores(fl_speech_search *s, const fl__search_list *l) {
    int64_t n = 0;
    const int64_t c = s->p->classes;
    if (!fl_heap_grow(&s->from, &s->from_cap, l->n + 1, sizeof *s->from) ||
        !fl_heap_grow(&s->lm_states, &s->lm_states_cap, l->n + 1, sizeof *s->lm_states) ||
        !fl_heap_grow(&s->scores, &s->score_cap, l->n * c + 1, sizeof *s->scores))
        return false;
    for (int64_t i = 0; i < l->n; i++)
        if (!l->at[i].ended) s->lm_states[n] = l->at[i].state, s->from[n++] = l->at[i].slot;
    if (n && !s->p->scores(s->p, s->steps, n, s->from, s->scores)) return false;
    for (int64_t i = 0; i < n * c; i++)
        if (!(s->scores[i] < INFINITY))
            return fl_fail("fl_speech_search_step: step %lld, class %lld: the score is %s",
                           (long long)s->steps, (long long)(i % c), isnan(s->scores[i]) ? "NaN" : "inf");
    return !n || !s->o.lm || !s->o.lm->batch || s->o.lm->batch(s->o.lm, s->lm_states, n);
}

/* Puts the best tokens of p except `end` into s->order. Returns their number. */
static int64_t fl__search_top(fl_speech_search *s, const float *p) {
    int64_t n = 0, k = s->o.tokens;
    for (int64_t i = 0; i < s->p->classes; i++)
        if (i != s->p->end) s->order[n++] = (int32_t)i;
    if (!k || k >= n) return n;
    for (int64_t i = 0; i < k; i++) /* selection sort, as k is small */
        for (int64_t j = i + 1; j < n; j++)
            if (p[s->order[j]] > p[s->order[i]]) {
                const int32_t t = s->order[i];
                s->order[i] = s->order[j], s->order[j] = t;
            }
    return k;
}

/* Stores the new tokens of a list's hypotheses, and advances the predictor by them. */
static bool fl__search_extend(fl_speech_search *s, fl__search_list *l) {
    int64_t n = 0, free = 0;
    if (!fl_heap_grow(&s->from, &s->from_cap, l->n + 1, sizeof *s->from) ||
        !fl_heap_grow(&s->token, &s->token_cap, l->n + 1, sizeof *s->token) ||
        !fl_heap_grow(&s->to, &s->to_cap, l->n + 1, sizeof *s->to) || s->trace_n + l->n > INT32_MAX ||
        !fl_heap_grow(&s->trace, &s->trace_cap, s->trace_n + l->n + 1, sizeof *s->trace))
        return false;
    const fl__search_list *const used[] = {&s->now, &s->next, &s->open};
    int64_t slots = l->n + 1;
    for (int k = 0; k < 3; k++) slots += used[k]->n;
    if (!fl_heap_grow(&s->occupied, &s->occupied_cap, slots, sizeof *s->occupied)) return false;
    memset(s->occupied, 0, (size_t)slots);
    for (int k = 0; s->p->transducer && k < 3; k++)
        for (int64_t i = 0; i < used[k]->n; i++)
            if (used[k]->at[i].slot < slots) s->occupied[used[k]->at[i].slot] = true;
    for (int64_t i = 0; i < l->n; i++) {
        fl__search_hyp *h = &l->at[i];
        if (h->token < 0) continue;
        s->trace[s->trace_n] = (fl__search_trace){h->back, h->token, h->word, (int32_t)s->steps};
        while (s->occupied[free]) free++;
        s->from[n] = h->slot, s->token[n] = h->token, s->to[n++] = (int32_t)free;
        h->back = (int32_t)s->trace_n++, h->slot = (int32_t)free++, h->token = -1;
    }
    return !n || s->p->extend(s->p, n, s->from, s->token, s->to);
}

/* ---- steps ---- */

/* Extends all sequences by one token. */
static bool fl__search_token(fl_speech_search *s) {
    bool ok = fl__search_scores(s, &s->now);
    const float *p = s->scores;
    fl__search_empty(&s->next);
    for (int64_t i = 0; ok && i < s->now.n; i++) {
        const fl__search_hyp h = s->now.at[i];
        if (h.ended) {
            ok = fl__search_put(s, &s->next, &h);
            continue;
        }
        ok = fl__search_finish(s, &s->next, h, p[s->p->end]);
        for (int64_t n = fl__search_top(s, p), k = 0; ok && k < n && s->steps < s->o.most; k++)
            ok = fl__search_grow(s, &s->next, h, s->order[k], p[s->order[k]]);
        p += s->p->classes;
    }
    if (!ok) return false;
    const fl__search_list old = s->now;
    if (s->next.n) s->now = s->next, s->next = old; /* if none: all hypotheses end here */
    else for (int64_t i = 0; i < s->now.n; i++) s->now.at[i].ended = true;
    fl__search_prune(s, &s->now, -INFINITY);
    s->next.n = 0;
    return fl__search_extend(s, &s->now);
}

/* A transducer's frame: expands up to `most` tokens per hypothesis; blanks advance to the next frame. */
static bool fl__search_frame(fl_speech_search *s) {
    fl__search_list swap;
    fl__search_empty(&s->next);
    swap = s->open, s->open = s->now, s->now = swap;
    bool ok = true;
    for (int64_t round = 0; ok && s->open.n && round <= s->o.most; round++) {
        ok = fl__search_scores(s, &s->open);
        for (int64_t i = 0; ok && i < s->open.n; i++) {
            fl__search_hyp h = s->open.at[i];
            const double blank = s->scores[i * s->p->classes + s->p->end];
            h.score += blank, h.acoustic += blank;
            ok = fl__search_put(s, &s->next, &h);
        }
        fl__search_merge(s, &s->next);
        fl__search_prune(s, &s->next, -INFINITY);
        const double best = s->next.n ? s->next.at[0].score : -INFINITY;
        const double last = s->next.n == s->o.beam ? s->next.at[s->next.n - 1].score : -INFINITY;
        fl__search_empty(&s->now);
        for (int64_t i = 0; ok && i < s->open.n && round < s->o.most; i++) {
            const float *p = s->scores + i * s->p->classes;
            for (int64_t n = fl__search_top(s, p), k = 0; ok && k < n; k++)
                ok = fl__search_grow(s, &s->now, s->open.at[i], s->order[k], p[s->order[k]]);
        }
        fl__search_prune(s, &s->now, best);
        while (s->now.n && s->now.at[s->now.n - 1].score < last) s->now.n--; /* below a full beam */
        swap = s->now, s->now = s->open, s->open = swap;
        ok = ok && fl__search_extend(s, &s->open);
    }
    s->open.n = s->now.n = 0;
    swap = s->now, s->now = s->next, s->next = swap;
    return ok;
}

FL_API bool fl_speech_search_step(fl_speech_search *s, int64_t steps) {
    if (!fl_given(s, "fl_speech_search_step", "the search")) return false;
    for (int64_t k = 0; k < steps; k++, s->steps++) {
        bool live = s->p->transducer;
        for (int64_t i = 0; i < s->now.n; i++) live |= !s->now.at[i].ended;
        if (!live || (!s->p->transducer && s->steps > s->o.most)) return true;
        if (!(s->p->transducer ? fl__search_frame : fl__search_token)(s)) return false;
    }
    return true;
}

FL_API bool fl_speech_search_begin(fl_speech_search *s) {
    if (!fl_given(s, "fl_speech_search_begin", "the search")) return false;
    static const int32_t none = -1, first = 0;
    fl__search_hyp h = {.back = -1, .token = -1, .word = -1};
    fl__search_empty(&s->now), fl__search_empty(&s->next), fl__search_empty(&s->open);
    s->trace_n = s->steps = 0;
    if (s->o.lm && !s->o.lm->start(s->o.lm, &h.state)) return false;
    return s->p->extend(s->p, 1, &none, &none, &first) && fl__search_put(s, &s->now, &h);
}

FL_API bool fl_speech_search_end(fl_speech_search *s) {
    if (!fl_given(s, "fl_speech_search_end", "the search")) return false;
    const bool transducer = s->p->transducer;
    bool complete = false, ok = true;
    for (int64_t i = 0; i < s->now.n; i++) complete |= transducer ? !s->now.at[i].node : s->now.at[i].ended;
    fl__search_empty(&s->next);
    for (int64_t i = 0; ok && i < s->now.n; i++) {
        const fl__search_hyp *h = &s->now.at[i];
        if (complete && (transducer ? h->node != 0 : !h->ended)) continue;
        ok = transducer && complete && !h->ended ? fl__search_finish(s, &s->next, *h, 0)
                                             : fl__search_put(s, &s->next, h);
    }
    if (!ok) return false;
    const fl__search_list old = s->now;
    s->now = s->next, s->next = old;
    fl__search_prune(s, &s->now, -INFINITY);
    return true;
}

/* ---- results ---- */

FL_API void fl_speech_confidences(const fl_speech_result *r, int64_t n, fl_speech_word *word) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(r[i].score - r[0].score);
    for (int64_t i = 0, at = 0; i < n; at += r[i++].words)
        for (int64_t k = 0; k < r[i].words; k++) {
            fl_speech_word *w = &word[at + k];
            double share = 0;
            for (int64_t j = 0; j < n; j++) {
                bool has = false;
                for (int64_t m = 0; m < r[j].words && !has; m++) {
                    const fl_speech_word *v = &r[j].word[m];
                    has = v->word == w->word && v->begin < w->end && w->begin < v->end;
                }
                if (has) share += exp(r[j].score - r[0].score);
            }
            w->confidence = share / sum;
        }
}

/* A word begins at its first token's step, and ends after its last token's. */
static int64_t fl__search_words(fl_speech_search *s, int32_t back, int64_t at) {
    int64_t n = 0, k;
    for (int32_t i = back; i >= 0; i = s->trace[i].before) n += s->trace[i].word >= 0;
    if (!fl_heap_grow(&s->word, &s->word_cap, at + n + 1, sizeof *s->word)) return -1;
    k = n;
    for (int32_t i = back; i >= 0; i = s->trace[i].before) {
        if (s->trace[i].word >= 0)
            s->word[at + --k] = (fl_speech_word){s->trace[i].word, 0, s->trace[i].step + 1, 0};
        if (k < n) s->word[at + k].begin = s->trace[i].step;
    }
    return n;
}

FL_API int64_t fl_speech_search_best(fl_speech_search *s, int64_t n, fl_speech_result *out) {
    if (!fl_given(s, "fl_speech_search_best", "the search") ||
        !fl_given(out, "fl_speech_search_best", "the results")) return -1;
    int64_t at = 0;
    n = n < s->now.n ? n : s->now.n;
    for (int64_t i = 0; i < n; i++) {
        const fl__search_hyp *h = &s->now.at[i];
        const int64_t words = fl__search_words(s, h->back, at);
        if (words < 0) return -1;
        out[i] = (fl_speech_result){h->score, h->acoustic, h->lm, words, NULL};
        at += words;
    }
    for (int64_t i = 0, k = 0; i < n; k += out[i++].words) out[i].word = s->word + k;
    if (n > 0) fl_speech_confidences(out, n, s->word);
    return n;
}

FL_API int64_t fl_speech_search_tokens(const fl_speech_search *s, int64_t i, int64_t *out, int64_t most) {
    if (!fl_given(s, "fl_speech_search_tokens", "the search")) return -1;
    int64_t n = 0;
    if (i < 0 || i >= s->now.n) return 0;
    for (int32_t k = s->now.at[i].back; k >= 0; k = s->trace[k].before) n++;
    int64_t at = n;
    for (int32_t k = s->now.at[i].back; k >= 0; k = s->trace[k].before)
        if (--at < most) out[at] = s->trace[k].token;
    return n < most ? n : most;
}

static int fl__search_by_score(const void *a, const void *b) {
    const double x = ((const fl_speech_result *)a)->score, y = ((const fl_speech_result *)b)->score;
    return (x < y) - (x > y);
}

FL_API bool fl_speech_rescore(fl_speech_result *r, int64_t n, const fl_text_scorer *lm, double weight,
                              double old_weight) {
    if (!fl_given(r, "fl_speech_rescore", "the results") || !fl_given(lm, "fl_speech_rescore", "the scorer"))
        return false;
    for (int64_t i = 0; i < n; i++) {
        fl_text_state state, next;
        double sum = 0, score;
        if (!lm->start(lm, &state)) return false;
        for (int64_t k = 0; k < r[i].words; k++) {
            if (!lm->score(lm, &state, r[i].word[k].word, &next, &score)) return false;
            sum += score, state = next;
        }
        if (!lm->finish(lm, &state, &score)) return false;
        sum += score;
        r[i].score += weight * sum - old_weight * r[i].lm, r[i].lm = sum;
    }
    qsort(r, (size_t)n, sizeof *r, fl__search_by_score);
    return true;
}

/* ---- construction ---- */

FL_API fl_speech_search *fl_speech_search_new_opt(const fl_speech_predictor *p,
                                                  const fl_speech_lexicon *lexicon, fl_speech_search_opts o) {
    if (!fl_given(p, "fl_speech_search_new", "the predictor")) return NULL;
    const char *fn = "fl_speech_search_new";
    int64_t nodes = 0;
    const fl_speech_node *node = lexicon ? fl_speech_lexicon_nodes(lexicon, &nodes) : NULL;
    if (!p) return NULL;
    if (o.beam < 0 || o.beam > 1 << 20 || o.tokens < 0 || o.most < 0 || o.most > 1 << 20 ||
        !(o.threshold >= 0) || p->classes < 1 || p->classes > 1 << 24 || p->end < 0 || p->end >= p->classes)
        return fl_fail("%s: got beam %lld, tokens %lld, most %lld, threshold %g, classes %lld, end %lld; "
                       "expected a beam and most up to 2^20, numbers >= 0, 1 to 2^24 classes, end below "
                       "classes", fn, (long long)o.beam, (long long)o.tokens, (long long)o.most, o.threshold,
                       (long long)p->classes, (long long)p->end),
               NULL;
    if (lexicon && !fl_speech_lexicon_fits(fn, lexicon, p->classes)) return NULL;
    fl_speech_search *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    o.beam = o.beam ? o.beam : 10, o.most = o.most ? o.most : p->transducer ? 4 : 200;
    o.threshold = fl_option(o.threshold, 25);
    *s = (fl_speech_search){.o = o, .p = p, .node = node};
    if (lexicon) s->list = fl_speech_lexicon_list(lexicon);
    if (fl_heap_grow(&s->order, &s->order_cap, p->classes, sizeof *s->order) && fl_speech_search_begin(s))
        return s;
    fl_speech_search_free(s);
    return NULL;
}

FL_API void fl_speech_search_free(fl_speech_search *s) {
    if (!s) return;
    void *const all[] = {s->now.at, s->next.at, s->open.at,  s->trace,     s->scores, s->order, s->from,
                         s->token,  s->to,      s->occupied, s->lm_states, s->word,   s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fl_heap_free(all[i]);
}

#endif
#endif

/* MIT licence: see LICENSE. */
