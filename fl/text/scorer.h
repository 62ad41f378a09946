/* fl/text/scorer.h - what decoders ask of a language model: scores of the next token after a history

   fl_text_ngram_scorer makes one of an n-gram model, fl_text_lm_scorer of a neural one. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_SCORER_H
#define FL_TEXT_SCORER_H

#ifdef __cplusplus
extern "C" {
#endif

#define FL_TEXT_NGRAM_MOST 8 /* the highest order of n-gram models */

/* What was said, as far as it matters for what comes: a value to copy. Of n-grams the last words, the last
   one first, and the back-off weights of the n-grams that they end; of other models what these put there. */
typedef struct fl_text_state {
    int32_t n, word[FL_TEXT_NGRAM_MOST - 1];
    float backoff[FL_TEXT_NGRAM_MOST - 1];
} fl_text_state;
/* Do both go on alike? Decoders join such hypotheses. */
FL_API bool fl_text_state_equal(const fl_text_state *a, const fl_text_state *b);

/* A language model as a decoder sees it. Scores are natural logarithms of probabilities. All but batch may be
   called by several threads. False after fl_fail. */
typedef struct fl_text_scorer fl_text_scorer;
struct fl_text_scorer {
    void *self;
    bool (*start)(const fl_text_scorer *s, fl_text_state *out); /* before the first token of a sentence */
    bool (*score)(const fl_text_scorer *s, const fl_text_state *from, int64_t token,
                  fl_text_state *to, double *score);
    /* These n states are asked about next, and no others: a model may work them out at once, and forget what
       it keeps of others. NULL: there is nothing to do. */
    bool (*batch)(const fl_text_scorer *s, const fl_text_state *state, int64_t n);
    bool (*finish)(const fl_text_scorer *s, const fl_text_state *from, double *score); /* the sentence ends */
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
