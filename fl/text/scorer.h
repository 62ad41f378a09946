/* fl/text/scorer.h - language model scorers for decoders: score of the next token given a state

   fl_text_ngram_scorer makes one from an n-gram model, fl_text_lm_scorer from a neural one. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_SCORER_H
#define FL_TEXT_SCORER_H

#ifdef __cplusplus
extern "C" {
#endif

#define FL_TEXT_NGRAM_MOST 8 /* the highest order of n-gram models */

/* The history as far as it affects what follows; copied by value. n-gram models store the last words, the
   last one first, and the back-off weights of the n-grams they end; other models use the fields freely. */
typedef struct fl_text_state {
    int32_t n, word[FL_TEXT_NGRAM_MOST - 1];
    float backoff[FL_TEXT_NGRAM_MOST - 1];
} fl_text_state;
/* Do both states give the same scores? Decoders merge such hypotheses. */
FL_API bool fl_text_state_equal(const fl_text_state *a, const fl_text_state *b);

/* A language model as a decoder sees it. Scores are natural logarithms of probabilities. All functions but
   batch may be called by several threads. They return false after fl_fail. */
typedef struct fl_text_scorer fl_text_scorer;
struct fl_text_scorer {
    void *self;
    bool (*start)(const fl_text_scorer *s, fl_text_state *out); /* the state at the start of a sentence */
    bool (*score)(const fl_text_scorer *s, const fl_text_state *from, int64_t token,
                  fl_text_state *to, double *score);
    /* Announces that only these n states are scored next: the model may compute them in one batch and drop
       what it caches of others. NULL: not needed. */
    bool (*batch)(const fl_text_scorer *s, const fl_text_state *state, int64_t n);
    bool (*finish)(const fl_text_scorer *s, const fl_text_state *from, double *score); /* end of sentence */
    void (*free)(fl_text_scorer *s);
};
FL_API void fl_text_scorer_free(fl_text_scorer *s); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_SCORER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_SCORER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_SCORER_IMPL
#define FL_TEXT_SCORER_IMPL
#include <string.h>

FL_API bool fl_text_state_equal(const fl_text_state *a, const fl_text_state *b) {
    if (!fl_given(a, "fl_text_state_equal", "the state") ||
        !fl_given(b, "fl_text_state_equal", "the other state")) return false;
    return a->n == b->n && !memcmp(a->word, b->word, (size_t)a->n * sizeof a->word[0]);
}

FL_API void fl_text_scorer_free(fl_text_scorer *s) {
    if (s && s->free) s->free(s);
}

#endif
#endif
/* MIT licence: see LICENSE. */
