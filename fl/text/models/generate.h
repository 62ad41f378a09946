/* fl/text/models/generate.h - text generation: sampling (temperature, top-k, top-p, min-p) and beam search */
#ifndef FL_TEXT_MODELS_GENERATE_H
#define FL_TEXT_MODELS_GENERATE_H
#include "decoder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the next token is sampled from its scores (logits), in this order: the scores of tokens that occur in
   the text are divided (negative ones: multiplied) by `repetition` (arXiv 1909.05858); all are divided by
   the temperature; the top_k best are kept; of these the fewest whose probabilities sum to top_p; of these
   the ones with at least min_p times the best one's probability. Ties go to the lower id. */
typedef struct fl_text_sampler {
    fl_opts_guard guard_;
    double temperature; /* 0 -> 1; FL_ZERO: greedy */
    int64_t top_k;      /* 0: off */
    double top_p, min_p; /* 0: off */
    double repetition;  /* repetition penalty, 0 -> 1 */
    char _end;
} fl_text_sampler;
typedef struct fl_text_candidate {
    float score;
    int32_t id;
} fl_text_candidate;
/* Samples an id from n scores; returns -1 after fl_fail (a score is NaN, an option is out of range). seen:
   the n_seen ids of the text; scratch: workspace of n candidates. */
FL_API int64_t fl_text_sample(const float *scores, int64_t n, const fl_text_sampler *s, const int64_t *seen,
                              int64_t n_seen, fl_rng *rng, fl_text_candidate *scratch);

/* A growing sequence of tokens. Starts zeroed, or with a prompt; free it with fl_text_sequence_free. */
typedef struct fl_text_sequence {
    int64_t *id, n;
    double score; /* beam search: sum of log probabilities / length^length_penalty */
    int64_t cap_;
} fl_text_sequence;
/* Appends n ids. Returns false after fl_fail. */
FL_API bool fl_text_sequence_add(fl_text_sequence *s, const int64_t *id, int64_t n);
FL_API void fl_text_sequence_free(fl_text_sequence *s);

typedef struct fl_text_generate_opts {
    fl_opts_guard guard_;
    int64_t most;           /* new tokens per text; 0 -> up to the decoder's length */
    fl_text_sampler sampler;
    uint64_t seed;          /* random numbers depend on (seed, index of the text, position) only */
    const int64_t *stop;    /* ids that end a text; they are part of it */
    int64_t n_stop;
    bool slide; /* when the decoder is full, continue with the last half of its length as context */
    /* Called with each new token; returning false ends that text (for example at a stop string). */
    bool (*each)(int64_t text, int64_t id, void *user);
    void *user;
    /* beam search only */
    int64_t beams;          /* 0 -> 4 */
    double length_penalty;  /* 0 -> 1, FL_ZERO -> 0 */
    char _end;
} fl_text_generate_opts;
/* Continues n texts, each from its own prompt of one or more tokens. The result for a text depends neither
   on the other texts nor on the number of threads. Returns false after an error: texts keep their tokens. */
#define fl_text_generate(...) FL_TEXT__GENERATE(fl_text_generate_opt, __VA_ARGS__, ._end = 0)
#define FL_TEXT__GENERATE(fn, d, texts, n, ...) \
    fn(d, texts, n, FL_LITERAL(fl_text_generate_opts, __VA_ARGS__))
FL_API bool fl_text_generate_opt(fl_text_decoder *d, fl_text_sequence *texts, int64_t n,
                                 fl_text_generate_opts o);
/* Beam search: writes the n best continuations of texts[0] to texts[0] to texts[n - 1], the best first; the
   other texts must be empty. d needs twice as many sequences as there are beams. A hypothesis that ends with
   a stop id is finished; search ends when `beams` are finished and no live hypothesis can be better. */
#define fl_text_beam_search(...) FL_TEXT__GENERATE(fl_text_beam_search_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_text_beam_search_opt(fl_text_decoder *d, fl_text_sequence *texts, int64_t n,
                                    fl_text_generate_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_GENERATE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_GENERATE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_GENERATE_IMPL
#define FL_TEXT_MODELS_GENERATE_IMPL
#include "../../data/set.h"
#include "../../ops/random.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sequences ---- */

FL_API bool fl_text_sequence_add(fl_text_sequence *s, const int64_t *id, int64_t n) {
    if (!s || n < 0 || (n && !id))
        return fl_fail("fl_text_sequence_add: n must be >= 0: got %" PRId64 ", or s or id is NULL", n);
    if (!fl_heap_grow(&s->id, &s->cap_, s->n + n, sizeof *s->id)) return false;
    if (n) memcpy(s->id + s->n, id, (size_t)n * sizeof *id);
    s->n += n;
    return true;
}

FL_API void fl_text_sequence_free(fl_text_sequence *s) {
    if (!s) return;
    fl_heap_free(s->id);
    *s = (fl_text_sequence){0};
}

/* ---- samplers ---- */

/* Is a better than b? Ties go to the lower id. */
static bool fl__lm_better(const fl_text_candidate *a, const fl_text_candidate *b) {
    return a->score > b->score || (a->score == b->score && a->id < b->id);
}

/* Sifts c[at] down in a max-heap of n. */
static void fl__lm_sift_down(fl_text_candidate *c, int64_t at, int64_t n) {
    const fl_text_candidate x = c[at];
    for (int64_t k; (k = 2 * at + 1) < n; c[at] = c[k], at = k) {
        if (k + 1 < n && fl__lm_better(&c[k + 1], &c[k])) k++;
        if (!fl__lm_better(&c[k], &x)) break;
    }
    c[at] = x;
}

/* Sorts the best `most` of n candidates to the end of c: c[n - 1] is the best, c[n - most] the last one. */
static void fl__lm_best(fl_text_candidate *c, int64_t n, int64_t most) {
    for (int64_t i = n / 2; i-- > 0;) fl__lm_sift_down(c, i, n);
    for (int64_t left = n; left > n - most;) {
        const fl_text_candidate top = c[0];
        c[0] = c[--left];
        fl__lm_sift_down(c, 0, left);
        c[left] = top;
    }
}

static bool fl__lm_sampler_ok(const fl_text_sampler *s) {
    return (s->temperature >= 0 && s->top_k >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 &&
            s->min_p <= 1 && s->repetition >= 0 && s->temperature < INFINITY && s->repetition < INFINITY) ||
           fl_fail("fl_text_sample: options are out of range: got temperature %g, top_k %" PRId64
                   ", top_p %g, min_p %g, repetition %g, expected >= 0 and finite, top_p and min_p <= 1",
                   s->temperature, s->top_k, s->top_p, s->min_p, s->repetition);
}

static bool fl__lm_candidates(const float *scores, int64_t n, const fl_text_sampler *s, const int64_t *seen,
                              int64_t n_seen, fl_text_candidate *c) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(scores[i])) return fl_fail("fl_text_sample: the score of id %" PRId64 " is NaN", i);
        c[i] = (fl_text_candidate){scores[i], (int32_t)i};
    }
    const double by = fl_option(s->repetition, 1);
    for (int64_t i = 0; by != 1 && i < n_seen; i++) {
        if (seen[i] < 0 || seen[i] >= n) continue;
        const double x = scores[seen[i]];
        c[seen[i]].score = (float)(x > 0 ? x / by : x * by); /* applied once, from the original score */
    }
    return true;
}

FL_API int64_t fl_text_sample(const float *scores, int64_t n, const fl_text_sampler *s, const int64_t *seen,
                              int64_t n_seen, fl_rng *rng, fl_text_candidate *c) {
    if (!scores || n < 1 || n > INT32_MAX || !s || !c || (n_seen && !seen)) {
        fl_fail("fl_text_sample: n must be >= 1: got %" PRId64 ", or an argument is NULL", n);
        return -1;
    }
    if (!fl__lm_sampler_ok(s) || !fl__lm_candidates(scores, n, s, seen, n_seen, c)) return -1;
    const double temperature = fl_option(s->temperature, 1);
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (fl__lm_better(&c[i], &c[best])) best = i;
    if (temperature == 0 || s->top_k == 1 || c[best].score == INFINITY) return best;
    const double top = c[best].score;
    if (top == -INFINITY) return fl_fail("fl_text_sample: no id has a probability above 0"), -1;
    int64_t first = 0; /* the remaining candidates are c[first] to c[n - 1] */
    if (s->top_k && s->top_k < n) fl__lm_best(c, n, s->top_k), first = n - s->top_k;
    double sum = 0;
    for (int64_t i = first; i < n; i++) sum += c[i].score = (float)exp((c[i].score - top) / temperature);
    if (s->top_p > 0 && s->top_p < 1) {
        double mass = 0;
        int64_t count = 0;
        if (!first) fl__lm_best(c, n, n);
        while (count < n - first && mass < s->top_p * sum) mass += c[n - ++count].score;
        first = n - count, sum = mass;
    }
    const float least = (float)s->min_p;
    for (int64_t i = first; s->min_p > 0 && i < n; i++)
        if (c[i].score < least) sum -= c[i].score, c[i].score = 0;
    double u = fl_rng_uniform(rng) * sum;
    int64_t last = n - 1;
    for (int64_t i = n - 1; i >= first; i--) {
        if (c[i].score <= 0) continue;
        last = i;
        if ((u -= c[i].score) < 0) break;
    }
    return c[last].id;
}

/* ---- generation ---- */

static bool fl__lm_stops(const fl_text_generate_opts *o, int64_t id) {
    for (int64_t i = 0; i < o->n_stop; i++)
        if (o->stop[i] == id) return true;
    return false;
}

static bool fl__lm_generate_ok(const char *fn, const fl_text_decoder *d, const fl_text_sequence *texts,
                               int64_t n, const fl_text_generate_opts *o) {
    if (!d || !texts || n < 1 || o->most < 0 || o->n_stop < 0 || (o->n_stop && !o->stop))
        return fl_fail("%s: n must be >= 1 and most >= 0: got %" PRId64 " and %" PRId64
                       ", or an argument is NULL", fn, n, o->most);
    return fl__lm_sampler_ok(&o->sampler);
}

/* Checks that the first n texts have prompts, and empties the decoder. */
static bool fl__lm_prompts(const char *fn, fl_text_decoder *d, const fl_text_sequence *texts, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!texts[i].n)
            return fl_fail("%s: text %" PRId64 " is empty, expected a prompt of 1 or more tokens", fn, i);
        if (!fl_text_decoder_rewind(d, i, 0)) return false;
    }
    return true;
}

/* Appends a prompt in chunks whose intermediate results fit in the processor's cache. */
static bool fl__lm_read(fl_text_decoder *d, const fl_text_sequence *text, int64_t i) {
    enum { PART = 256 };
    int64_t of[PART];
    for (int64_t k = 0; k < PART; k++) of[k] = i;
    for (int64_t at = 0; at < text->n; at += PART)
        if (!fl_text_decoder_read(d, text->n - at < PART ? text->n - at : PART, of, text->id + at))
            return false;
    return true;
}

/* Restarts sequence i with the last half of the decoder's length, without the last token. */
static bool fl__lm_slide(fl_text_decoder *d, const fl_text_sequence *text, int64_t i) {
    const int64_t half = fl_text_decoder_length(d) / 2;
    const fl_text_sequence end = {.id = text->id + text->n - 1 - half, .n = half};
    return fl_text_decoder_rewind(d, i, 0) && fl__lm_read(d, &end, i);
}

typedef struct fl__lm_generation {
    int64_t *of, *id; /* the rows of the next step */
    int64_t rows;
    fl_text_candidate *scratch;
} fl__lm_generation;

/* Samples the next token of text i and adds it to the rows of the next step, unless the text ends. */
static bool fl__lm_choose(fl_text_decoder *d, fl_text_sequence *text, int64_t i, int64_t end,
                          const fl_text_generate_opts *o, fl__lm_generation *g) {
    fl_rng rng = fl_data_rng(o->seed, i, text->n);
    const int64_t id = fl_text_sample(fl_text_decoder_scores(d, i), fl_text_decoder_vocabulary(d),
                                      &o->sampler, text->id, text->n, &rng, g->scratch);
    if (id < 0 || !fl_text_sequence_add(text, &id, 1)) return false;
    if ((o->each && !o->each(i, id, o->user)) || fl__lm_stops(o, id) || text->n >= end) return true;
    g->of[g->rows] = i, g->id[g->rows++] = id;
    return true;
}

FL_API bool fl_text_generate_opt(fl_text_decoder *d, fl_text_sequence *texts, int64_t n,
                                 fl_text_generate_opts o) {
    static const char fn[] = "fl_text_generate";
    if (!fl__lm_generate_ok(fn, d, texts, n, &o)) return fl_raise();
    const size_t count = (size_t)n;
    int64_t *list = fl_heap_alloc(3 * count * sizeof *list), *end = list ? list + 2 * n : NULL;
    fl__lm_generation g = {list, list ? list + n : NULL, 0, NULL};
    g.scratch = fl_heap_alloc((size_t)fl_text_decoder_vocabulary(d) * sizeof *g.scratch);
    fl_quiet(+1);
    bool ok = list && g.scratch && fl__lm_prompts(fn, d, texts, n);
    for (int64_t i = 0; ok && i < n; i++) {
        end[i] = o.most ? texts[i].n + o.most : INT64_MAX;
        ok = fl__lm_read(d, &texts[i], i) && fl__lm_choose(d, &texts[i], i, end[i], &o, &g);
    }
    while (ok && g.rows) {
        int64_t rows = 0; /* a full text ends, or slides */
        for (int64_t k = 0; ok && k < g.rows; k++) {
            const int64_t i = g.of[k], full = fl_text_decoder_position(d, i) == fl_text_decoder_length(d);
            if (full && o.slide) ok = fl__lm_slide(d, &texts[i], i);
            else if (full) continue;
            g.of[rows] = i, g.id[rows++] = g.id[k];
        }
        g.rows = 0;
        ok = ok && (!rows || fl_text_decoder_read(d, rows, g.of, g.id));
        for (int64_t k = 0; ok && k < rows; k++) /* overwrites rows already read only */
            ok = fl__lm_choose(d, &texts[g.of[k]], g.of[k], end[g.of[k]], &o, &g);
    }
    fl_quiet(-1);
    fl_heap_free(list);
    fl_heap_free(g.scratch);
    return ok || fl_raise();
}

/* ---- beam search ---- */

typedef struct fl__lm_beam {
    double score;   /* the sum of log probabilities */
    int64_t from, id;
} fl__lm_beam;

typedef struct fl__lm_search {
    int64_t beams, n_done, from; /* from: length of the prompt */
    double penalty;
    fl_text_sequence *live, *next, *done;
    double *score, *next_score; /* of the live hypotheses */
    fl__lm_beam *candidate;   /* the best 2 beams candidates of the step, sorted */
} fl__lm_search;

static double fl__lm_beam_score(const fl__lm_search *s, double sum, int64_t length) {
    return sum / pow((double)length, s->penalty);
}

/* The best 2 beams continuations of all live hypotheses; ties go to the earlier one, then to the lower id. */
static int64_t fl__lm_extend(const fl_text_decoder *d, fl__lm_search *s, int64_t live) {
    const int64_t vocabulary = fl_text_decoder_vocabulary(d), most = 2 * s->beams;
    int64_t n = 0;
    for (int64_t b = 0; b < live; b++) {
        const float *x = fl_text_decoder_scores(d, b);
        double top = x[0], sum = 0;
        for (int64_t i = 1; i < vocabulary; i++) top = x[i] > top ? x[i] : top;
        for (int64_t i = 0; i < vocabulary; i++) sum += exp(x[i] - top);
        const double base = s->score[b] - top - log(sum);
        for (int64_t i = 0; i < vocabulary; i++) {
            const double score = base + x[i];
            int64_t k = n;
            if (n == most && !(score > s->candidate[n - 1].score)) continue;
            if (n < most) n++;
            else k = n - 1;
            for (; k > 0 && s->candidate[k - 1].score < score; k--) s->candidate[k] = s->candidate[k - 1];
            s->candidate[k] = (fl__lm_beam){score, b, i};
        }
    }
    return n;
}

/* Adds a finished hypothesis if it is among the best `beams`. */
static bool fl__lm_finish(fl__lm_search *s, const fl_text_sequence *text, const int64_t *id, double sum) {
    const double score = fl__lm_beam_score(s, sum, text->n + (id != NULL) - s->from);
    int64_t k = s->n_done;
    if (s->n_done == s->beams && !(score > s->done[k - 1].score)) return true;
    if (s->n_done < s->beams) s->n_done++;
    else k--;
    fl_text_sequence at = s->done[k];
    at.n = 0;
    if (!fl_text_sequence_add(&at, text->id, text->n) || (id && !fl_text_sequence_add(&at, id, 1))) {
        s->done[k] = at, s->n_done--;
        return false;
    }
    at.score = score;
    for (; k > 0 && s->done[k - 1].score < score; k--) s->done[k] = s->done[k - 1];
    s->done[k] = at;
    return true;
}

/* Turns candidates into live or finished hypotheses; *live is the number of live ones. */
static bool fl__lm_select(fl__lm_search *s, const fl_text_generate_opts *o, int64_t n, int64_t *live,
                          int64_t *from) {
    *live = 0;
    for (int64_t i = 0; i < n && *live < s->beams; i++) {
        const fl__lm_beam *c = &s->candidate[i];
        const fl_text_sequence *text = &s->live[c->from];
        if (fl__lm_stops(o, c->id)) { /* only the first `beams` candidates may finish */
            if (i < s->beams && !fl__lm_finish(s, text, &c->id, c->score)) return false;
            continue;
        }
        fl_text_sequence *to = &s->next[*live];
        to->n = 0;
        if (!fl_text_sequence_add(to, text->id, text->n) || !fl_text_sequence_add(to, &c->id, 1))
            return false;
        s->next_score[*live] = c->score, from[(*live)++] = c->from;
    }
    fl_text_sequence *t = s->live;
    double *score = s->score;
    s->live = s->next, s->next = t, s->score = s->next_score, s->next_score = score;
    return true;
}

/* Reorders the decoder's sequences to match the live hypotheses, by copies through its second half. */
static bool fl__lm_reorder(fl_text_decoder *d, const fl__lm_search *s, const int64_t *from, int64_t live) {
    for (int64_t i = 0; i < live; i++) /* copy to the second half, */
        if (!fl_text_decoder_copy(d, s->beams + i, from[i])) return false;
    for (int64_t i = 0; i < live; i++)
        if (!fl_text_decoder_copy(d, i, s->beams + i)) return false;
    return true;
}

static bool fl__lm_search_run(fl_text_decoder *d, fl__lm_search *s, const fl_text_generate_opts *o,
                              int64_t end) {
    int64_t of[64], id[64], from[64], live = 1;
    bool ok = true;
    for (;;) {
        const int64_t n = fl__lm_extend(d, s, live);
        ok = fl__lm_select(s, o, n, &live, from);
        if (!ok || !live || s->live[0].n >= end) break;
        /* the best score a live hypothesis can reach, at its present length, as transformers computes it */
        const int64_t length = s->live[0].n - s->from;
        if (s->n_done == s->beams &&
            s->done[s->beams - 1].score >= fl__lm_beam_score(s, s->score[0], length))
            break;
        ok = fl__lm_reorder(d, s, from, live);
        for (int64_t i = 0; i < live; i++) of[i] = i, id[i] = s->live[i].id[s->live[i].n - 1];
        if (!ok || !(ok = fl_text_decoder_read(d, live, of, id))) break;
    }
    for (int64_t i = 0; ok && i < live; i++) ok = fl__lm_finish(s, &s->live[i], NULL, s->score[i]);
    return ok;
}

FL_API bool fl_text_beam_search_opt(fl_text_decoder *d, fl_text_sequence *texts, int64_t n,
                                    fl_text_generate_opts o) {
    static const char fn[] = "fl_text_beam_search";
    if (!fl__lm_generate_ok(fn, d, texts, n, &o)) return fl_raise();
    fl__lm_search s = {
        .beams = o.beams ? o.beams : 4, .penalty = fl_option(o.length_penalty, 1), .from = texts[0].n};
    if (s.beams < 1 || s.beams > 64 || n > s.beams || 2 * s.beams > fl_text_decoder_sequences(d))
        return fl_err_false("%s: beams must be in [n, 64], the decoder's sequences >= 2 beams: got %" PRId64
                            " beams, n %" PRId64 ", %" PRId64 " sequences",
                            fn, s.beams, n, fl_text_decoder_sequences(d));
    const size_t beams = (size_t)s.beams;
    const int64_t end = o.most && texts[0].n + o.most < fl_text_decoder_length(d) ? texts[0].n + o.most
                                                                                  : fl_text_decoder_length(d);
    fl_text_sequence *all = fl_heap_alloc(3 * beams * sizeof *all);
    double *score = fl_heap_alloc(2 * beams * sizeof *score);
    s.candidate = fl_heap_alloc(2 * beams * sizeof *s.candidate);
    fl_quiet(+1);
    bool ok = all && score && s.candidate && fl__lm_prompts(fn, d, texts, 1);
    if (ok) {
        s.live = all, s.next = all + beams, s.done = all + 2 * beams, s.score = score,
        s.next_score = score + beams;
        ok = fl_text_sequence_add(&s.live[0], texts[0].id, texts[0].n) && fl__lm_read(d, &texts[0], 0) &&
             fl__lm_search_run(d, &s, &o, end);
    }
    for (int64_t i = 0; ok && i < n && i < s.n_done; i++) { /* swap: texts get the results */
        const fl_text_sequence t = texts[i];
        texts[i] = s.done[i], s.done[i] = t;
    }
    for (int64_t i = 0; all && i < 3 * s.beams; i++) fl_text_sequence_free(&all[i]);
    fl_heap_free(all);
    fl_heap_free(score);
    fl_heap_free(s.candidate);
    fl_quiet(-1);
    return ok || fl_raise();
}

#endif
#endif

/* MIT licence: see LICENSE. */
