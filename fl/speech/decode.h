/* fl/speech/decode.h - beam search for CTC and ASG with lexicon and language model; endpoints, hot words */
#ifndef FL_SPEECH_DECODE_H
#define FL_SPEECH_DECODE_H
#include "search.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_speech_decoder_opts {
    fl_opts_guard guard_;
    /* The search. */
    int64_t beam;        /* beam size: hypotheses kept per frame; 0 -> 500 */
    int64_t tokens;      /* only the best tokens of each frame are expanded; 0 -> all */
    double threshold;    /* hypotheses this far below the best one are pruned; 0 -> 25 */
    bool log_add;        /* the score of merged hypotheses is the log of the sum; default: the maximum */
    /* Score: acoustic + sil_score per separator + word_score per word + lm_weight lm. */
    double lm_weight, word_score, sil_score;
    double unknown_score;       /* with unknown_words: score of a token sequence that is a node but no word */
    bool unknown_words;         /* accept such sequences as word `unknown` */
    bool open;                  /* also accept sequences outside the tree; they end with the separator */
    int64_t unknown;            /* the language model's index of the unknown word */
    const fl_text_scorer *lm;   /* of words, or without a lexicon of tokens; NULL: none. Borrowed */
    bool token_lm;              /* lm scores tokens, with a lexicon too */
    /* The criterion: by default CTC, whose blank is the last class. */
    int64_t blank;              /* index of the blank if not the last; FL_I0: 0 */
    bool asg;                   /* ASG: no blank */
    const float *transitions;   /* ASG: scores [classes, classes], to and from; NULL: zeros. Borrowed */
    int64_t separator;          /* class of the silence allowed between words; 0: none, FL_I0: 0 */
    bool flashlight;            /* reproduce the quirks of Flashlight's decoder: see below */
    char _end;
} fl_speech_decoder_opts;
/* Creates a decoder for n-best beam search as in Flashlight (Pratap et al., arXiv 1812.07625). A hypothesis
   is a language model state, a lexicon node, the last token and whether it was a blank. lexicon NULL: any
   sequence of tokens. By default repeated tokens need a blank between them, the last token of a word may
   extend over several frames, and hypotheses with equal language model states are merged. flashlight: the
   first two do not hold for the last token of a word; hypotheses with different histories are not merged;
   the language model's scores are log10; without a lexicon transitions are ignored. Use one decoder per
   thread; the (finished) lexicon and the language model may be shared. Returns NULL after fl_fail. */
typedef struct fl_speech_decoder fl_speech_decoder;
#define fl_speech_decoder_new(classes, ...) FL__SPEECH_DECODER_NEW(classes, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_DECODER_NEW(classes, lexicon, ...) \
    fl_speech_decoder_new_opt(classes, lexicon, FL_LITERAL(fl_speech_decoder_opts, __VA_ARGS__))
FL_API fl_speech_decoder *fl_speech_decoder_new_opt(int64_t classes, const fl_speech_lexicon *lexicon,
                                                    fl_speech_decoder_opts o);
FL_API void fl_speech_decoder_free(fl_speech_decoder *d); /* NULL is allowed */

/* Starts an utterance. */
FL_API bool fl_speech_decoder_begin(fl_speech_decoder *d);
/* Decodes scores [frames, classes]; may be called repeatedly. NaN or inf is an error that names the frame,
   and leaves the decoder unchanged. */
FL_API bool fl_speech_decoder_step(fl_speech_decoder *d, const float *scores, int64_t frames);
/* Ends the utterance: adds the language model's end scores, and prefers complete words. */
FL_API bool fl_speech_decoder_end(fl_speech_decoder *d);

/* The current n best hypotheses, or after the end the utterance's, best first. Returns their number: 0 if all
   hypotheses that lexicon and beam allow score -inf; -1 after fl_fail. */
FL_API int64_t fl_speech_decoder_best(fl_speech_decoder *d, int64_t n, fl_speech_result *out);
/* The best hypothesis' tokens, one per frame so far. */
FL_API bool fl_speech_decoder_tokens(fl_speech_decoder *d, int32_t *token);
/* Frees the history that all current hypotheses share. Returns the number of words that became final since
   the last call: *out, valid until the next use of the decoder. Later results omit them. */
FL_API int64_t fl_speech_decoder_prune(fl_speech_decoder *d, const fl_speech_word **out);
/* The number of frames decoded. */
FL_API int64_t fl_speech_decoder_frames(const fl_speech_decoder *d);

typedef struct fl_speech_endpoint_opts {
    fl_opts_guard guard_;
    double frame;                      /* seconds per frame; 0 -> 0.04 */
    double nothing, trailing, longest; /* thresholds of rules 1, 2, 3 in seconds; 0 -> 2.4, 1.2, 20 */
    char _end;
} fl_speech_endpoint_opts;
/* Endpoint detection by Kaldi's rules: returns 1 after `nothing` seconds without speech, 2 after `trailing`
   seconds of silence following speech, 3 after `longest` seconds, else 0. Silence is blanks and separators
   of the best hypothesis. */
#define fl_speech_decoder_endpoint(...) FL__SPEECH_ENDPOINT(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_ENDPOINT(d, ...) \
    fl_speech_decoder_endpoint_opt(d, FL_LITERAL(fl_speech_endpoint_opts, __VA_ARGS__))
FL_API int fl_speech_decoder_endpoint_opt(const fl_speech_decoder *d, fl_speech_endpoint_opts o);

/* Contextual biasing: a scorer that adds bonus[i] to lm's score of word[i] (lm NULL: all scores are 0), for
   i < n; the decoder multiplies it by lm_weight. With smearing, unfinished hot words are favoured too.
   Borrows lm. */
FL_API fl_text_scorer *fl_speech_hot_words(const fl_text_scorer *lm, const int64_t *word, const double *bonus,
                                           int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_DECODE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_DECODE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_DECODE_IMPL
#define FL_SPEECH_DECODE_IMPL
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A hypothesis. All kept ones stay in one array, in which back-pointers are indices. */
typedef struct fl__speech_hyp {
    double score, acoustic, lm;
    int32_t parent; /* -1: the start */
    int32_t state, node, token, word; /* word: -1 if none ends here */
    bool blank, grown; /* grown: the token is new, not a repetition */
} fl__speech_hyp;

/* Cache entry: a language model score. */
typedef struct fl__speech_lm_entry {
    int32_t state, token, to; /* to: next state; -1: the entry is free */
    double score;
} fl__speech_lm_entry;

struct fl_speech_decoder {
    fl_speech_decoder_opts o;
    int64_t classes, blank, sil;
    const fl_speech_node *node; /* NULL: no lexicon */
    const int32_t *list;
    fl__speech_hyp *hyp;        /* [hyps]: of all frames; the current ones start at `first` */
    int64_t hyps, first, hyp_cap;
    fl__speech_hyp *candidate;
    int32_t *table;             /* [table_size]: hash table of candidates for merging; -1: free */
    double *single;             /* log_add: candidates' best single scores before merging */
    int64_t candidates, candidate_cap, table_size, single_cap;
    double best;
    fl_text_state *state;
    fl__speech_lm_entry *cache;
    int64_t states, state_cap, cache_n, cache_size;
    int32_t *order, *path;
    int64_t order_cap, path_cap, frames, pruned;
    fl_speech_word *word;
    fl_text_state *next_states; /* for a batch */
    int64_t word_cap, next_states_cap, drop_at;
    bool ended;
};

/* ---- language model ---- */

static uint64_t fl__speech_mix(uint64_t a, uint64_t b) {
    a = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
    return a ^ a >> 32;
}

static fl__speech_lm_entry *fl__speech_lm_entry_at(const fl_speech_decoder *d, int32_t state, int32_t token) {
    uint64_t i = fl__speech_mix((uint64_t)state + 1, (uint64_t)token);
    for (;; i++) {
        fl__speech_lm_entry *s = &d->cache[i & (uint64_t)(d->cache_size - 1)];
        if (s->to < 0 || (s->state == state && s->token == token)) return s;
    }
}

static bool fl__speech_lm_cache_grow(fl_speech_decoder *d) {
    if (2 * (d->cache_n + 1) <= d->cache_size) return true;
    fl__speech_lm_entry *old = d->cache;
    const int64_t n = d->cache_size, size = n ? 2 * n : 1024;
    fl__speech_lm_entry *cache = fl_heap_alloc((size_t)size * sizeof *cache);
    if (!cache) return false;
    d->cache = cache, d->cache_size = size;
    for (int64_t i = 0; i < size; i++) cache[i].to = -1;
    for (int64_t i = 0; i < n; i++)
        if (old[i].to >= 0) *fl__speech_lm_entry_at(d, old[i].state, old[i].token) = old[i];
    fl_heap_free(old);
    return true;
}

/* The entry of an equal state, or a free one. States share the table of scores: their token is -2 - hash.
   Space must be available. */
static fl__speech_lm_entry *fl__speech_state_at(const fl_speech_decoder *d, const fl_text_state *s,
                                                int32_t *key) {
    uint64_t hash = (uint64_t)s->n;
    for (int i = 0; i < s->n; i++) hash = fl__speech_mix(hash, (uint64_t)s->word[i]);
    for (*key = -2 - (int32_t)(hash % 1000000007);; --*key) {
        fl__speech_lm_entry *at = fl__speech_lm_entry_at(d, -1, *key);
        if (at->to < 0 || fl_text_state_equal(&d->state[at->to], s)) return at;
    }
}

/* The index of a state, shared by equal states. */
static int32_t fl__speech_state_index(fl_speech_decoder *d, const fl_text_state *s) {
    if (!fl_heap_grow(&d->state, &d->state_cap, d->states + 1, sizeof *d->state) ||
        !fl__speech_lm_cache_grow(d)) return -1;
    int32_t key;
    fl__speech_lm_entry *at = d->o.flashlight ? NULL : fl__speech_state_at(d, s, &key);
    if (at && at->to >= 0) return at->to;
    d->state[d->states] = *s;
    if (at) *at = (fl__speech_lm_entry){-1, key, (int32_t)d->states, 0}, d->cache_n++;
    return (int32_t)d->states++;
}

/* Removes states without hypotheses, and their cached scores, when there are many: bounds the memory of
   endless utterances. */
static bool fl__speech_drop_states(fl_speech_decoder *d) {
    if (d->states < d->drop_at) return true;
    if (!fl_heap_grow(&d->order, &d->order_cap, d->states, sizeof *d->order)) return false;
    int32_t *to = d->order, kept = 0;
    for (int64_t i = 0; i < d->states; i++) to[i] = -1;
    for (int64_t i = d->first; i < d->hyps; i++) to[d->hyp[i].state] = 0;
    for (int64_t i = 0; i < d->states; i++)
        if (to[i] == 0) d->state[kept] = d->state[i], to[i] = kept++;
    for (int64_t i = 0; i < d->hyps; i++) d->hyp[i].state = i < d->first ? 0 : to[d->hyp[i].state];
    for (int64_t i = 0; i < d->cache_size; i++) d->cache[i].to = -1;
    d->cache_n = 0, d->states = kept, d->drop_at = kept < 2048 ? 4096 : 2 * kept;
    for (int32_t i = 0, key; i < kept && !d->o.flashlight; i++) {
        fl__speech_lm_entry *at = fl__speech_state_at(d, &d->state[i], &key);
        *at = (fl__speech_lm_entry){-1, key, i, 0}, d->cache_n++;
    }
    return true;
}

static int fl__speech_by_index(const void *a, const void *b) {
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

/* Passes the next states to the language model, so a neural one evaluates them in one batch. */
static bool fl__speech_lm_batch(fl_speech_decoder *d) {
    if (!d->o.lm || !d->o.lm->batch) return true;
    const int64_t n = d->hyps - d->first;
    int64_t k = 0;
    if (!fl_heap_grow(&d->order, &d->order_cap, n + 1, sizeof *d->order) ||
        !fl_heap_grow(&d->next_states, &d->next_states_cap, n + 1, sizeof *d->next_states))
        return false;
    for (int64_t i = 0; i < n; i++) d->order[i] = d->hyp[d->first + i].state;
    qsort(d->order, (size_t)n, sizeof *d->order, fl__speech_by_index);
    for (int64_t i = 0; i < n; i++)
        if (!i || d->order[i] != d->order[i - 1]) d->next_states[k++] = d->state[d->order[i]];
    return d->o.lm->batch(d->o.lm, d->next_states, k);
}

/* The language model's score of a token in a state, and the next state; -1 after fl_fail. */
static int32_t fl__speech_lm(fl_speech_decoder *d, int32_t state, int64_t token, double *score) {
    *score = 0;
    if (!d->o.lm) return state;
    const fl__speech_lm_entry *known = fl__speech_lm_entry_at(d, state, (int32_t)token);
    if (known->to >= 0) return *score = known->score, known->to;
    fl_text_state next;
    if (!d->o.lm->score(d->o.lm, &d->state[state], token, &next, score)) return -1;
    if (d->o.flashlight) *score *= 0.4342944819032518;
    const int32_t to = fl__speech_state_index(d, &next);
    if (to < 0 || !fl__speech_lm_cache_grow(d)) return -1;
    *fl__speech_lm_entry_at(d, state, (int32_t)token) =
        (fl__speech_lm_entry){state, (int32_t)token, to, *score};
    d->cache_n++;
    return to;
}

/* ---- candidates ---- */

/* Merges b into a candidate: the better one's history is kept, comparing single scores, not sums. */
static void fl__speech_merge_into(const fl_speech_decoder *d, int32_t at, const fl__speech_hyp *b) {
    fl__speech_hyp *a = &d->candidate[at];
    const double sum = a->score;
    const double most = sum > b->score ? sum : b->score, least = sum > b->score ? b->score : sum;
    if (b->score > (d->o.log_add ? d->single[at] : sum)) {
        *a = *b;
        if (d->o.log_add) d->single[at] = b->score;
    }
    if (d->o.log_add) a->score = most + log1p(exp(least - most));
}

static uint64_t fl__speech_hash(const fl__speech_hyp *h) {
    return fl__speech_mix(fl__speech_mix((uint64_t)h->state, (uint64_t)h->node),
                          (uint64_t)h->token * 2 + (uint64_t)h->blank);
}

/* Adds a candidate unless it is below the threshold. Space must be available. */
static void fl__speech_add(fl_speech_decoder *d, fl__speech_hyp h) {
    if (!(h.score >= d->best - d->o.threshold)) return;
    if (h.score > d->best) d->best = h.score;
    d->candidate[d->candidates++] = h;
}

static bool fl__speech_table_grow(fl_speech_decoder *d) {
    int64_t size = d->table_size ? d->table_size : 1024;
    while (size < 2 * d->candidates) size *= 2;
    if (size == d->table_size) return true;
    int32_t *table = fl_heap_alloc((size_t)size * sizeof *table);
    if (!table) return false;
    for (int64_t i = 0; i < size; i++) table[i] = -1;
    fl_heap_free(d->table);
    d->table = table, d->table_size = size;
    return true;
}

/* Prunes by the threshold, then merges equal candidates, as Flashlight does: sums exclude pruned ones. */
static bool fl__speech_merge(fl_speech_decoder *d) {
    if (!fl__speech_table_grow(d) ||
        (d->o.log_add && !fl_heap_grow(&d->single, &d->single_cap, d->candidates + 1, sizeof *d->single)))
        return false;
    const uint64_t mask = (uint64_t)d->table_size - 1;
    int64_t n = 0;
    for (int64_t i = 0; i < d->candidates; i++) {
        const fl__speech_hyp h = d->candidate[i];
        if (!(h.score >= d->best - d->o.threshold)) continue;
        for (uint64_t k = fl__speech_hash(&h);; k++) {
            int32_t *at = &d->table[k & mask];
            fl__speech_hyp *c = *at < 0 ? NULL : &d->candidate[*at];
            if (!c && d->o.log_add) d->single[n] = h.score;
            if (!c) d->candidate[*at = (int32_t)n++] = h;
            else if (c->state != h.state || c->node != h.node || c->token != h.token || c->blank != h.blank)
                continue;
            else fl__speech_merge_into(d, *at, &h);
            break;
        }
    }
    for (int64_t i = 0; i < n; i++) /* clear the table: probing sequences may be freed from any entry on */
        for (uint64_t k = fl__speech_hash(&d->candidate[i]); d->table[k & mask] >= 0; k++)
            d->table[k & mask] = -1;
    d->candidates = n;
    return true;
}

static bool fl__speech_better(const fl__speech_hyp *c, int32_t a, int32_t b) {
    return c[a].score > c[b].score || (c[a].score == c[b].score && a < b);
}

/* Moves the k best of n to the front (quickselect, Hoare 1961). */
static void fl__speech_select(const fl__speech_hyp *c, int32_t *order, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const int32_t pivot = order[(low + high) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (fl__speech_better(c, order[i], pivot)) i++;
            while (fl__speech_better(c, pivot, order[j])) j--;
            if (i > j) break;
            const int32_t t = order[i];
            order[i++] = order[j], order[j--] = t;
        }
        if (k <= j + 1) high = j;
        else if (k > i) low = i;
        else return;
    }
}

/* The best candidates become the current hypotheses. */
static bool fl__speech_prune(fl_speech_decoder *d) {
    if (!fl__speech_merge(d) || !fl_heap_grow(&d->order, &d->order_cap, d->candidates + 1, sizeof *d->order))
        return false;
    const int64_t n = d->candidates;
    for (int64_t i = 0; i < n; i++) d->order[i] = (int32_t)i;
    const int64_t kept = n < d->o.beam ? n : d->o.beam;
    if (d->hyps + kept > INT32_MAX || !fl_heap_grow(&d->hyp, &d->hyp_cap, d->hyps + kept + 1, sizeof *d->hyp))
        return false;
    if (kept < n) fl__speech_select(d->candidate, d->order, n, kept);
    for (int64_t i = 0; i < kept; i++) d->hyp[d->hyps + i] = d->candidate[d->order[i]];
    d->first = d->hyps;
    d->hyps += kept;
    return true;
}

/* Resets the candidates; -inf scores are below any threshold. */
static void fl__speech_clear(fl_speech_decoder *d) {
    d->candidates = 0;
    d->best = -DBL_MAX;
}

/* ---- a frame ---- */

/* Puts the k best tokens of a frame into d->order (unsorted, if k covers all), and returns k. */
static int64_t fl__speech_top(fl_speech_decoder *d, const float *e) {
    const int64_t n = d->classes, k = d->o.tokens && d->o.tokens < n ? d->o.tokens : n;
    for (int64_t i = 0; i < n; i++) d->order[i] = (int32_t)i;
    for (int64_t low = 0, high = n - 1; k < n && low < high;) {
        const float pivot = e[d->order[(low + high) / 2]];
        int64_t i = low, j = high;
        while (i <= j) {
            while (e[d->order[i]] > pivot) i++;
            while (e[d->order[j]] < pivot) j--;
            if (i > j) break;
            const int32_t t = d->order[i];
            d->order[i++] = d->order[j], d->order[j--] = t;
        }
        if (k <= j + 1) high = j;
        else if (k > i) low = i;
        else break;
    }
    return k;
}

/* The acoustic score of token n after hypothesis h, including ASG's transition. */
static double fl__speech_acoustic(const fl_speech_decoder *d, const fl__speech_hyp *h, const float *e,
                                  int64_t n) {
    double a = e[n];
    const bool counts = !d->o.flashlight || d->node;
    if (d->o.asg && d->o.transitions && d->frames && counts && h->token >= 0)
        a += d->o.transitions[n * d->classes + h->token];
    return a;
}

/* Hypothesis `at` extended by token n. */
static fl__speech_hyp fl__speech_next(const fl_speech_decoder *d, int64_t at, const float *e, int64_t n,
                                      bool grown) {
    fl__speech_hyp h = d->hyp[at];
    const double a = fl__speech_acoustic(d, &h, e, n);
    h.score += a + (n == d->sil ? d->o.sil_score : 0), h.acoustic += a;
    h.parent = (int32_t)at, h.token = (int32_t)n, h.word = -1;
    h.blank = !d->o.asg && n == d->blank, h.grown = grown;
    return h;
}

/* Whether token n after h is a new token, not a repetition. */
static bool fl__speech_is_new(const fl_speech_decoder *d, const fl__speech_hyp *h, int64_t n) {
    if (d->o.asg && d->o.flashlight && d->node) return true;
    return n != h->token || !d->frames;
}

static bool fl__speech_add_word(fl_speech_decoder *d, fl__speech_hyp h, int64_t word, double base,
                                double bonus) {
    if (!d->o.token_lm) {
        double lm;
        if ((h.state = fl__speech_lm(d, h.state, word, &lm)) < 0) return false;
        h.lm += lm - base, h.score += d->o.lm_weight * (lm - base);
    }
    h.score += bonus, h.word = (int32_t)word, h.node = 0;
    fl__speech_add(d, h);
    return true;
}

/* Extends hypothesis `at` to a child of its node. */
static bool fl__speech_descend(fl_speech_decoder *d, int64_t at, const float *e, int32_t child) {
    const fl_speech_node *node = &d->node[child];
    const fl__speech_hyp *from = &d->hyp[at];
    const bool fresh = fl__speech_is_new(d, from, node->token), root = from->node == 0;
    const double base = d->o.token_lm || root ? 0 : d->node[from->node].smeared;
    if (!fresh && (!d->o.flashlight || root)) return true;
    fl__speech_hyp h = fl__speech_next(d, at, e, node->token, true);
    if (d->o.token_lm) {
        double lm;
        if ((h.state = fl__speech_lm(d, h.state, node->token, &lm)) < 0) return false;
        h.lm += lm, h.score += d->o.lm_weight * lm;
    }
    if (fresh && node->children) {
        fl__speech_hyp down = h;
        down.node = child;
        if (!d->o.token_lm)
            down.lm += node->smeared - base, down.score += d->o.lm_weight * (node->smeared - base);
        fl__speech_add(d, down);
    }
    if (d->o.flashlight && root && from->token == node->token) return true;
    for (int i = 0; i < node->words; i++)
        if (!fl__speech_add_word(d, h, d->list[node->word + i], base, d->o.word_score)) return false;
    return node->words || !d->o.unknown_words ||
           fl__speech_add_word(d, h, d->o.unknown, base, d->o.unknown_score);
}

enum { FL__SPEECH_OUTSIDE = -1 }; /* node of token sequences outside the tree */

/* .open: extends by token n to a sequence outside the tree, or, by a separator, ends such a sequence as an
   unknown word. */
static bool fl__speech_outside(fl_speech_decoder *d, int64_t at, const float *e, int32_t n) {
    const fl__speech_hyp *from = &d->hyp[at];
    if ((!d->o.asg && n == d->blank) || (n == d->sil && !from->node) || !fl__speech_is_new(d, from, n) ||
        (from->node >= 0 && fl_speech_node_child(d->node, from->node, n) >= 0)) return true;
    const double base = d->o.token_lm || from->node <= 0 ? 0 : d->node[from->node].smeared;
    fl__speech_hyp h = fl__speech_next(d, at, e, n, true);
    double lm = 0;
    if (d->o.token_lm && (h.state = fl__speech_lm(d, h.state, n, &lm)) < 0) return false;
    h.lm += lm, h.score += d->o.lm_weight * lm;
    if (n == d->sil) return fl__speech_add_word(d, h, d->o.unknown, base, d->o.unknown_score);
    h.lm -= base, h.score -= d->o.lm_weight * base, h.node = FL__SPEECH_OUTSIDE;
    fl__speech_add(d, h);
    return true;
}

static bool fl__speech_lexical(fl_speech_decoder *d, int64_t at, const float *e, int64_t top) {
    const fl__speech_hyp from = d->hyp[at];
    static const fl_speech_node nothing = {.children = 0};
    const fl_speech_node *node = from.node < 0 ? &nothing : &d->node[from.node];
    const bool all = top == d->classes;
    for (int64_t i = 0; d->o.open && i < top; i++)
        if (!fl__speech_outside(d, at, e, d->order[i])) return false;
    for (int32_t i = 0; i < (all || from.node < 0 ? node->children : (int32_t)top); i++) {
        const int32_t child =
            all ? node->child + i : fl_speech_node_child(d->node, from.node, d->order[i]);
        if (child >= 0 && !fl__speech_descend(d, at, e, child)) return false;
    }
    const bool root = from.node == 0, last = from.token >= 0 && !from.blank && d->frames;
    if (d->o.flashlight && (!from.blank || root)) {
        const int64_t n = root ? d->sil : from.token;
        if (n >= 0) fl__speech_add(d, fl__speech_next(d, at, e, n, false));
    } else if (!d->o.flashlight) {
        if (last) fl__speech_add(d, fl__speech_next(d, at, e, from.token, false));
        if (root && d->sil >= 0 && !(last && from.token == d->sil))
            fl__speech_add(d, fl__speech_next(d, at, e, d->sil, false));
    }
    if (!d->o.asg) fl__speech_add(d, fl__speech_next(d, at, e, d->blank, false));
    return true;
}

static bool fl__speech_free(fl_speech_decoder *d, int64_t at, const float *e, int64_t top) {
    for (int64_t i = 0; i < top; i++) {
        const fl__speech_hyp *from = &d->hyp[at];
        const int64_t n = d->order[i];
        const bool blank = !d->o.asg && n == d->blank;
        const bool first = !d->frames && !d->o.flashlight;
        const bool grown = !blank && (n != from->token || from->blank || first);
        fl__speech_hyp h = fl__speech_next(d, at, e, n, grown);
        if (grown) {
            double lm;
            if ((h.state = fl__speech_lm(d, h.state, n, &lm)) < 0) return false;
            h.lm += lm, h.score += d->o.lm_weight * lm, h.word = (int32_t)n;
        }
        fl__speech_add(d, h);
    }
    return true;
}

static bool fl__speech_frame(fl_speech_decoder *d, const float *e) {
    const int64_t first = d->first, n = d->hyps - first;
    if (!fl_heap_grow(&d->order, &d->order_cap, d->classes, sizeof *d->order)) return false;
    const int64_t top = fl__speech_top(d, e);
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        int64_t most = top + 3, node = d->hyp[first + i].node;
        if (d->node && node >= 0) {
            const int64_t children = d->node[node].children;
            most = 3 + (top < children ? top : children) * 8 + (d->o.open ? top : 0);
        }
        ok = fl_heap_grow(&d->candidate, &d->candidate_cap, d->candidates + most, sizeof *d->candidate);
        ok = ok && (d->node ? fl__speech_lexical : fl__speech_free)(d, first + i, e, top);
    }
    ok = ok && fl__speech_prune(d);
    fl__speech_clear(d);
    d->frames += ok;
    return ok && fl__speech_lm_batch(d);
}

/* ---- utterances ---- */

FL_API fl_speech_decoder *fl_speech_decoder_new_opt(int64_t classes, const fl_speech_lexicon *lexicon,
                                                    fl_speech_decoder_opts o) {
    int64_t nodes = 0;
    const char *fn = "fl_speech_decoder_new";
    const fl_speech_node *node = lexicon ? fl_speech_lexicon_nodes(lexicon, &nodes) : NULL;
    const int64_t blank = o.blank ? fl_option_int(o.blank, 0) : classes - 1;
    const int64_t sil = o.separator ? fl_option_int(o.separator, 0) : -1;
    if (classes < 1 || classes > 1 << 24 || o.beam < 0 || o.beam > 1 << 24 || o.tokens < 0 ||
        !(o.threshold >= 0) || blank < 0 || blank >= classes || sil >= classes)
        return fl_fail("%s: got classes %lld, beam %lld, tokens %lld, threshold %g, blank %lld, separator "
                       "%lld; expected 1 to 2^24 classes, a beam up to 2^24, numbers >= 0, blank and "
                       "separator below classes",
                       fn, (long long)classes, (long long)o.beam, (long long)o.tokens, o.threshold,
                       (long long)blank, (long long)sil),
               NULL;
    if (o.open && (!lexicon || sil < 0))
        return fl_fail("%s: .open needs a lexicon and a separator", fn), NULL;
    if (lexicon && !fl_speech_lexicon_fits(fn, lexicon, classes)) return NULL;
    fl_speech_decoder *d = fl_heap_alloc(sizeof *d);
    if (!d) return NULL;
    o.beam = o.beam ? o.beam : 500, o.threshold = fl_option(o.threshold, 25);
    *d = (fl_speech_decoder){.o = o, .classes = classes, .blank = blank, .sil = sil, .node = node};
    if (lexicon) d->list = fl_speech_lexicon_list(lexicon);
    else d->o.token_lm = true;
    if (fl_speech_decoder_begin(d)) return d;
    fl_speech_decoder_free(d);
    return NULL;
}

FL_API void fl_speech_decoder_free(fl_speech_decoder *d) {
    if (!d) return;
    void *const all[] = {d->hyp,   d->candidate, d->table, d->single, d->state,
                         d->cache, d->order,     d->path,  d->word,   d->next_states, d};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fl_heap_free(all[i]);
}

FL_API bool fl_speech_decoder_begin(fl_speech_decoder *d) {
    if (!fl_given(d, "fl_speech_decoder_begin", "the decoder")) return false;
    if (!fl_heap_grow(&d->hyp, &d->hyp_cap, 1, sizeof *d->hyp) || !fl__speech_lm_cache_grow(d)) return false;
    for (int64_t i = 0; i < d->cache_size; i++) d->cache[i].to = -1;
    d->cache_n = d->states = 0, d->drop_at = 4096;
    fl_text_state start = {0};
    if (d->o.lm && !d->o.lm->start(d->o.lm, &start)) return false;
    const int32_t state = fl__speech_state_index(d, &start);
    if (state < 0) return false;
    d->hyp[0] = (fl__speech_hyp){.parent = -1, .state = state, .token = (int32_t)d->sil, .word = -1};
    d->hyps = 1, d->first = d->frames = d->pruned = 0, d->ended = false;
    fl__speech_clear(d);
    return true;
}

FL_API bool fl_speech_decoder_step(fl_speech_decoder *d, const float *scores, int64_t frames) {
    if (!fl_given(d, "fl_speech_decoder_step", "the decoder")) return false;
    if (d->ended) return fl_fail("fl_speech_decoder_step: the utterance has ended: call "
                                 "fl_speech_decoder_begin");
    for (int64_t i = 0; i < frames * d->classes; i++)
        if (!(scores[i] < INFINITY))
            return fl_fail("fl_speech_decoder_step: frame %lld, class %lld: the score is %s",
                           (long long)(d->frames + i / d->classes), (long long)(i % d->classes),
                           isnan(scores[i]) ? "NaN" : "inf");
    for (int64_t t = 0; t < frames; t++)
        if (!fl__speech_frame(d, scores + t * d->classes)) return false;
    return true;
}

FL_API bool fl_speech_decoder_end(fl_speech_decoder *d) {
    if (!fl_given(d, "fl_speech_decoder_end", "the decoder")) return false;
    if (d->ended) return true;
    const int64_t first = d->first, n = d->hyps - first;
    bool ok = fl_heap_grow(&d->candidate, &d->candidate_cap, n + 1, sizeof *d->candidate),
         complete = !d->node;
    for (int64_t i = 0; i < n; i++) complete |= d->hyp[first + i].node == 0;
    for (int64_t i = 0; ok && i < n; i++) {
        fl__speech_hyp h = d->hyp[first + i];
        double lm = 0;
        if (complete && h.node) continue;
        ok = !d->o.lm || d->o.lm->finish(d->o.lm, &d->state[h.state], &lm);
        if (d->o.flashlight) lm *= 0.4342944819032518;
        h.parent = (int32_t)(first + i), h.word = -1, h.grown = false, h.blank = false;
        h.lm += lm, h.score += d->o.lm_weight * lm;
        if (d->o.flashlight) h.token = (int32_t)d->sil; /* so that they are merged */
        if (ok) fl__speech_add(d, h);
    }
    ok = ok && fl__speech_prune(d);
    fl__speech_clear(d);
    d->ended = ok;
    return ok;
}

/* ---- results ---- */

/* Puts the hypotheses from the first frame to h into d->path. Returns their number, -1 after fl_fail. */
static int64_t fl__speech_backtrace(fl_speech_decoder *d, int64_t h) {
    int64_t n = 0;
    for (int64_t i = h; d->hyp[i].parent >= 0; i = d->hyp[i].parent) n++;
    if (!fl_heap_grow(&d->path, &d->path_cap, n + 1, sizeof *d->path)) return -1;
    for (int64_t i = h, k = n; k > 0; i = d->hyp[i].parent) d->path[--k] = (int32_t)i;
    return n - (d->ended && n > 0);
}

/* Appends the words of h at d->word[at]. A word begins at its first token, and ends with the last frame of
   its last token. Returns their number, -1 after fl_fail. */
static int64_t fl__speech_words_of(fl_speech_decoder *d, int64_t h, int64_t at) {
    const int64_t frames = fl__speech_backtrace(d, h);
    int64_t n = 0, begin = -1;
    if (frames < 0 || !fl_heap_grow(&d->word, &d->word_cap, at + frames + 1, sizeof *d->word)) return -1;
    for (int64_t t = 0; t < frames; t++) {
        const fl__speech_hyp *x = &d->hyp[d->path[t]];
        const int64_t now = d->pruned + t;
        if (x->grown && begin < 0) begin = now;
        if (!x->grown && n && begin < 0 && !x->blank && x->token == d->hyp[d->path[t - 1]].token &&
            d->word[at + n - 1].end == now)
            d->word[at + n - 1].end = now + 1;
        if (x->word < 0) continue;
        d->word[at + n++] = (fl_speech_word){x->word, begin, now + 1, 0};
        begin = -1;
    }
    return n;
}

FL_API int64_t fl_speech_decoder_best(fl_speech_decoder *d, int64_t n, fl_speech_result *out) {
    if (!fl_given(d, "fl_speech_decoder_best", "the decoder") ||
        !fl_given(out, "fl_speech_decoder_best", "the results")) return -1;
    const int64_t count = d->hyps - d->first;
    if (!fl_heap_grow(&d->order, &d->order_cap, count + 1, sizeof *d->order)) return -1;
    const fl__speech_hyp *h = d->hyp + d->first;
    for (int64_t i = 0; i < count; i++) d->order[i] = (int32_t)i;
    n = n < count ? n : count;
    for (int64_t k = 0; k < n; k++) fl__speech_select(h, d->order + k, count - k, 1);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        h = &d->hyp[d->first + d->order[i]];
        const int64_t words = fl__speech_words_of(d, d->first + d->order[i], at);
        if (words < 0) return -1;
        out[i] = (fl_speech_result){h->score, h->acoustic, h->lm, words, NULL};
        at += words;
    }
    for (int64_t i = 0, k = 0; i < n; k += out[i++].words) out[i].word = d->word + k;
    if (n > 0) fl_speech_confidences(out, n, d->word);
    return n;
}

FL_API int64_t fl_speech_decoder_frames(const fl_speech_decoder *d) {
    return fl_given(d, "fl_speech_decoder_frames", "the decoder") ? d->frames : 0;
}

FL_API bool fl_speech_decoder_tokens(fl_speech_decoder *d, int32_t *token) {
    if (!fl_given(d, "fl_speech_decoder_tokens", "the decoder") ||
        !fl_given(token, "fl_speech_decoder_tokens", "the result")) return false;
    int64_t best = d->first;
    for (int64_t i = d->first; i < d->hyps; i++)
        if (d->hyp[i].score > d->hyp[best].score) best = i;
    const int64_t n = d->hyps > d->first ? fl__speech_backtrace(d, best) : 0;
    for (int64_t t = 0; t < n; t++) token[d->pruned + t] = d->hyp[d->path[t]].token;
    return n >= 0;
}

/* Finds the last common ancestor of the hypotheses at a word boundary, which becomes the new start. */
FL_API int64_t fl_speech_decoder_prune(fl_speech_decoder *d, const fl_speech_word **out) {
    if (!fl_given(d, "fl_speech_decoder_prune", "the decoder") ||
        !fl_given(out, "fl_speech_decoder_prune", "the results")) return -1;
    const int64_t n = d->hyps - d->first;
    if (d->ended || !n || !fl_heap_grow(&d->order, &d->order_cap, n, sizeof *d->order))
        return d->ended || !n ? 0 : -1;
    for (int64_t i = 0; i < n; i++) d->order[i] = (int32_t)(d->first + i);
    int64_t depth = 0;
    for (bool one = n == 1; !one; depth++) { /* follow all back-pointers until they meet */
        one = true;
        for (int64_t i = 0; i < n; i++)
            d->order[i] = d->hyp[d->order[i]].parent, one &= d->order[i] == d->order[0];
        if (d->order[0] < 0 || d->hyp[d->order[0]].parent < 0) return 0;
    }
    int64_t at = d->order[0];
    while (at >= 0 && (d->hyp[at].node != 0 || d->hyp[at].parent < 0)) {
        if (d->hyp[at].parent < 0) return 0;
        at = d->hyp[at].parent, depth++;
    }
    const int64_t words = fl__speech_words_of(d, at, 0), frames = fl__speech_backtrace(d, at);
    if (words < 0 || frames < 0) return -1;
    *out = d->word;
    /* Move the later frames to the front, and adjust their back-pointers. */
    const int64_t shift = at;
    for (int64_t i = at; i < d->hyps; i++) {
        d->hyp[i - shift] = d->hyp[i];
        d->hyp[i - shift].parent = i == at ? -1 : d->hyp[i].parent - (int32_t)shift;
    }
    d->hyps -= shift, d->first -= shift, d->pruned += frames;
    return fl__speech_drop_states(d) ? words : -1;
}

/* ---- endpoints ---- */

FL_API int fl_speech_decoder_endpoint_opt(const fl_speech_decoder *d, fl_speech_endpoint_opts o) {
    if (!fl_given(d, "fl_speech_decoder_endpoint", "the decoder")) return 0;
    const double frame = fl_option(o.frame, 0.04);
    int64_t at = d->first, silent = 0;
    for (int64_t i = d->first; i < d->hyps; i++)
        if (d->hyp[i].score > d->hyp[at].score) at = i;
    const bool none = d->first == d->hyps; /* no hypothesis is left */
    if (none) at = 0, silent = d->frames;
    else if (d->ended) at = d->hyp[at].parent; /* the entry of the end is not a frame */
    for (; !none && d->hyp[at].parent >= 0 && (d->hyp[at].blank || d->hyp[at].token == d->sil); silent++)
        at = d->hyp[at].parent;
    const bool spoken = d->pruned || (!none && d->hyp[at].parent >= 0);
    if (!spoken && (double)silent * frame >= fl_option(o.nothing, 2.4)) return 1;
    if (spoken && (double)silent * frame >= fl_option(o.trailing, 1.2)) return 2;
    return (double)d->frames * frame >= fl_option(o.longest, 20) ? 3 : 0;
}

/* ---- hot words ---- */

typedef struct fl__speech_hot {
    fl_text_scorer s;
    const fl_text_scorer *lm;
    int64_t words;
    double bonus[]; /* [words] */
} fl__speech_hot;

static bool fl__hot_start(const fl_text_scorer *s, fl_text_state *out) {
    const fl__speech_hot *h = s->self;
    *out = (fl_text_state){0};
    return !h->lm || h->lm->start(h->lm, out);
}

static bool fl__hot_score(const fl_text_scorer *s, const fl_text_state *from, int64_t token,
                          fl_text_state *to, double *score) {
    const fl__speech_hot *h = s->self;
    *score = 0;
    if (h->lm && !h->lm->score(h->lm, from, token, to, score)) return false;
    if (!h->lm && to) *to = *from;
    if (token >= 0 && token < h->words) *score += h->bonus[token];
    return true;
}

static bool fl__hot_batch(const fl_text_scorer *s, const fl_text_state *state, int64_t n) {
    const fl__speech_hot *h = s->self;
    return h->lm->batch(h->lm, state, n);
}

static bool fl__hot_finish(const fl_text_scorer *s, const fl_text_state *from, double *score) {
    const fl__speech_hot *h = s->self;
    *score = 0;
    return !h->lm || h->lm->finish(h->lm, from, score);
}

static void fl__hot_free(fl_text_scorer *s) { fl_heap_free(s->self); }

FL_API fl_text_scorer *fl_speech_hot_words(const fl_text_scorer *lm, const int64_t *word, const double *bonus,
                                           int64_t n) {
    int64_t words = 0;
    for (int64_t i = 0; i < n; i++) {
        if (word[i] < 0 || word[i] > INT32_MAX || !isfinite(bonus[i]))
            return fl_fail("fl_speech_hot_words: got word %lld, bonus %g; expected an index in [0, 2^31), a "
                           "finite bonus", (long long)word[i], bonus[i]), NULL;
        words = word[i] >= words ? word[i] + 1 : words;
    }
    fl__speech_hot *h = fl_heap_alloc(sizeof *h + (size_t)words * sizeof *h->bonus);
    if (!h) return NULL;
    h->s = (fl_text_scorer){h, fl__hot_start, fl__hot_score, lm && lm->batch ? fl__hot_batch : NULL,
                            fl__hot_finish, fl__hot_free};
    h->lm = lm, h->words = words;
    memset(h->bonus, 0, (size_t)words * sizeof *h->bonus);
    for (int64_t i = 0; i < n; i++) h->bonus[word[i]] = bonus[i];
    return &h->s;
}

#endif
#endif

/* MIT licence: see LICENSE. */
