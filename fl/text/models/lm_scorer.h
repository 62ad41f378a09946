/* fl/text/models/lm_scorer.h - neural language model as a scorer for decoders, with a tree of histories */
#ifndef FL_TEXT_MODELS_LM_SCORER_H
#define FL_TEXT_MODELS_LM_SCORER_H
#include "../scorer.h"
#include "decoder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A scorer that uses the decoder's model on its ids: sentences begin after the id `start` and end with the
   id `end`. Borrows the decoder, whose sequences cache histories: with more sequences less is recomputed.
   `batch` evaluates its states in one step. A sentence longer than the decoder's length is an error. */
FL_API fl_text_scorer *fl_text_lm_scorer(fl_text_decoder *r, int64_t start, int64_t end);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_LM_SCORER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_LM_SCORER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_LM_SCORER_IMPL
#define FL_TEXT_MODELS_LM_SCORER_IMPL
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

/* Histories form a tree: a state is the index of a node. */
typedef struct fl__lms_node {
    int32_t parent, child, next; /* first child, next sibling; -1: none */
    int32_t token, length;       /* length: tokens from the root, this one included */
    float *logp;                 /* log probabilities of the next token; NULL: not computed */
} fl__lms_node;

typedef struct fl__lms {
    fl_text_scorer s;
    fl_text_decoder *r;
    int64_t end;
    pthread_mutex_t lock;
    fl__lms_node *node;
    int64_t n, cap;
    int32_t *at;        /* per sequence of the decoder: the node it has read, -1: none */
    bool *taken;        /* sequence is used in this step */
    int64_t *of, *id, n_rows, of_cap, id_cap;
} fl__lms;

static int32_t fl__lms_add(fl__lms *l, int32_t parent, int32_t token) {
    for (int32_t c = parent < 0 ? -1 : l->node[parent].child; c >= 0; c = l->node[c].next)
        if (l->node[c].token == token) return c;
    if (l->n == INT32_MAX || !fl_heap_grow(&l->node, &l->cap, l->n + 1, sizeof *l->node)) return -1;
    const int32_t i = (int32_t)l->n++;
    l->node[i] = (fl__lms_node){parent, -1, -1, token, 1, NULL};
    if (parent >= 0) {
        l->node[i].next = l->node[parent].child, l->node[i].length = l->node[parent].length + 1;
        l->node[parent].child = i;
    }
    return i;
}

/* Length of the common prefix of a and b. */
static int32_t fl__lms_common(const fl__lms *l, int32_t a, int32_t b) {
    while (a != b && a >= 0 && b >= 0) {
        const bool longer = l->node[a].length >= l->node[b].length,
                   other = l->node[b].length >= l->node[a].length;
        if (longer) a = l->node[a].parent;
        if (other) b = l->node[b].parent;
    }
    return a >= 0 && b >= 0 ? l->node[a].length : 0;
}

/* Adds the rows that bring a free sequence of the decoder to node i, returns its index; -1 after fl_fail. */
static int64_t fl__lms_rows(fl__lms *l, int32_t i) {
    int64_t best = -1;
    int32_t most = -1;
    for (int64_t k = 0; k < fl_text_decoder_sequences(l->r); k++) {
        const int32_t common = l->taken[k] ? -1 : fl__lms_common(l, l->at[k], i);
        if (common > most) most = common, best = k;
    }
    if (most == l->node[i].length) most--; /* the last token is read again, for its scores */
    const int64_t rows = l->node[i].length - most, first = l->n_rows;
    if (!fl_text_decoder_rewind(l->r, best, most) ||
        !fl_heap_grow(&l->of, &l->of_cap, first + rows, sizeof *l->of) ||
        !fl_heap_grow(&l->id, &l->id_cap, first + rows, sizeof *l->id))
        return -1;
    for (int64_t k = rows; k-- > 0; i = l->node[i].parent)
        l->of[first + k] = best, l->id[first + k] = l->node[i].token;
    l->n_rows = first + rows;
    l->taken[best] = true;
    return best;
}

static bool fl__lms_take(fl__lms *l, int32_t i, int64_t text) {
    const int64_t n = fl_text_decoder_vocabulary(l->r);
    const float *x = fl_text_decoder_scores(l->r, text);
    float *y = fl_heap_alloc((size_t)n * sizeof *y);
    double top = x[0], sum = 0;
    if (!y) return false;
    for (int64_t k = 1; k < n; k++) top = x[k] > top ? x[k] : top;
    for (int64_t k = 0; k < n; k++) sum += exp(x[k] - top);
    for (int64_t k = 0; k < n; k++) y[k] = (float)(x[k] - top - log(sum));
    l->node[i].logp = y, l->at[text] = i;
    return true;
}

/* Computes the log probabilities of those nodes, in batches of the decoder's sequences. */
static bool fl__lms_compute(fl__lms *l, const int32_t *list, int64_t n) {
    const int64_t texts = fl_text_decoder_sequences(l->r);
    for (int64_t first = 0; first < n;) {
        int64_t last = first, rows = 0;
        memset(l->taken, 0, (size_t)texts);
        l->n_rows = 0;
        for (; last < n && rows < texts; last++) {
            bool known = l->node[list[last]].logp != NULL;
            for (int64_t k = first; k < last; k++) known = known || list[k] == list[last];
            if (known) continue;
            if (fl__lms_rows(l, list[last]) < 0) return false;
            rows++;
        }
        if (l->n_rows && !fl_text_decoder_read(l->r, l->n_rows, l->of, l->id)) {
            for (int64_t k = 0; k < texts; k++) /* their sequences were truncated */
                if (l->taken[k]) l->at[k] = -1, fl_text_decoder_rewind(l->r, k, 0);
            return false;
        }
        for (int64_t k = first, row = 0; k < last; k++) {
            if (l->node[list[k]].logp) continue;
            const int64_t text = l->of[row];
            if (!fl__lms_take(l, list[k], text)) return false;
            while (row < l->n_rows && l->of[row] == text) row++;
        }
        first = last;
    }
    return true;
}

static bool fl__lms_start(const fl_text_scorer *s, fl_text_state *out) {
    (void)s;
    *out = (fl_text_state){.n = 1}; /* the root, node 0 */
    return true;
}

static bool fl__lms_lookup(fl__lms *l, const fl_text_state *from, int64_t token, fl_text_state *to,
                           double *score) {
    if (from->n != 1 || from->word[0] < 0 || from->word[0] >= l->n || token < 0 ||
        token >= fl_text_decoder_vocabulary(l->r))
        return fl_fail("fl_text_lm_scorer: token is out of range: got %" PRId64 ", expected [0, %" PRId64
                       "), or the state is another scorer's", token, fl_text_decoder_vocabulary(l->r));
    if (!l->node[from->word[0]].logp && !fl__lms_compute(l, &from->word[0], 1)) return false;
    *score = l->node[from->word[0]].logp[token];
    const int32_t i = to ? fl__lms_add(l, from->word[0], (int32_t)token) : 0;
    if (to && i >= 0) *to = (fl_text_state){.n = 1, .word = {i}};
    return i >= 0;
}

static bool fl__lms_score(const fl_text_scorer *s, const fl_text_state *from, int64_t token,
                          fl_text_state *to, double *score) {
    fl__lms *l = s->self;
    pthread_mutex_lock(&l->lock);
    fl_quiet(+1);
    const bool ok = fl__lms_lookup(l, from, token, to, score);
    fl_quiet(-1);
    pthread_mutex_unlock(&l->lock);
    return ok;
}

static bool fl__lms_finish(const fl_text_scorer *s, const fl_text_state *from, double *score) {
    return fl__lms_score(s, from, ((fl__lms *)s->self)->end, NULL, score);
}

static bool fl__lms_batch(const fl_text_scorer *s, const fl_text_state *state, int64_t n) {
    fl__lms *l = s->self;
    int32_t *list = fl_heap_alloc((size_t)n * sizeof *list + 1);
    bool ok = list != NULL;
    pthread_mutex_lock(&l->lock);
    fl_quiet(+1);
    for (int64_t i = 0; ok && i < n; i++) {
        list[i] = state[i].word[0];
        ok = state[i].n == 1 && list[i] >= 0 && list[i] < l->n;
        if (!ok) fl_fail("fl_text_lm_scorer: state %" PRId64 " is another scorer's", i);
    }
    ok = ok && fl__lms_compute(l, list, n);
    for (int64_t i = 0, k; ok && i < l->n; i++) { /* drop the scores of other nodes */
        if (!l->node[i].logp) continue;
        for (k = 0; k < n && list[k] != i;) k++;
        if (k == n) fl_heap_free(l->node[i].logp), l->node[i].logp = NULL;
    }
    fl_quiet(-1);
    pthread_mutex_unlock(&l->lock);
    fl_heap_free(list);
    return ok;
}

static void fl__lms_free(fl_text_scorer *s) {
    fl__lms *l = s->self;
    for (int64_t i = 0; i < l->n; i++) fl_heap_free(l->node[i].logp);
    pthread_mutex_destroy(&l->lock);
    fl_heap_free(l->node);
    fl_heap_free(l->at);
    fl_heap_free(l->taken);
    fl_heap_free(l->of);
    fl_heap_free(l->id);
    fl_heap_free(l);
}

FL_API fl_text_scorer *fl_text_lm_scorer(fl_text_decoder *r, int64_t start, int64_t end) {
    const int64_t n = fl_text_decoder_vocabulary(r), texts = fl_text_decoder_sequences(r);
    if (!r || start < 0 || start >= n || end < 0 || end >= n) {
        fl_fail("fl_text_lm_scorer: start or end is out of range: got %" PRId64 " and %" PRId64
                ", expected [0, %" PRId64 "), or the decoder is NULL", start, end, n);
        return NULL;
    }
    fl__lms *l = fl_heap_alloc(sizeof *l);
    if (!l) return NULL;
    pthread_mutex_init(&l->lock, NULL);
    l->s = (fl_text_scorer){l, fl__lms_start, fl__lms_score, fl__lms_batch, fl__lms_finish, fl__lms_free};
    l->r = r, l->end = end;
    l->at = fl_heap_alloc((size_t)texts * sizeof *l->at);
    l->taken = fl_heap_alloc((size_t)texts);
    for (int64_t i = 0; l->at && i < texts; i++) l->at[i] = -1;
    if (l->at && l->taken && fl__lms_add(l, -1, (int32_t)start) == 0) return &l->s;
    fl__lms_free(&l->s);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
