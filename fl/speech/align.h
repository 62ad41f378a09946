/* fl/speech/align.h - forced alignment: the time spans of the tokens of a known transcript */
#ifndef FL_SPEECH_ALIGN_H
#define FL_SPEECH_ALIGN_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_speech_span {
    int64_t token;
    int64_t begin, end; /* frames */
    double confidence;  /* mean of exp(score) over the frames */
} fl_speech_span;
typedef struct fl_speech_align_opts {
    fl_opts_guard guard_;
    int64_t blank;            /* index of CTC's blank; 0 -> the last class, FL_I0 -> 0 */
    bool asg;                 /* ASG: no blank, each token lasts until the next one */
    const float *transitions; /* ASG: scores [classes, classes], to and from; NULL: zeros */
    char _end;
} fl_speech_align_opts;
/* Aligns n tokens to log probabilities [frames, classes] by the best path (CTC, or ASG: one token per
   frame). Writes one span per token to out, and, unless path is NULL, the token of each frame to path.
   Returns the path's score; NaN after fl_fail if a token is out of range, a score is NaN or the tokens need
   more frames (CTC needs an extra frame between equal neighbours). */
#define fl_speech_align(...) FL__SPEECH_ALIGN(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_ALIGN(scores, frames, classes, tokens, n, out, path, ...) \
    fl_speech_align_opt(scores, frames, classes, tokens, n, out, path, \
                        FL_LITERAL(fl_speech_align_opts, __VA_ARGS__))
FL_API double fl_speech_align_opt(const float *scores, int64_t frames, int64_t classes, const int64_t *tokens,
                                  int64_t n, fl_speech_span *out, int64_t *path, fl_speech_align_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_ALIGN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_ALIGN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_ALIGN_IMPL
#define FL_SPEECH_ALIGN_IMPL
#include <math.h>

/* States are blank, token 0, blank, ... blank; with ASG only the tokens. */
typedef struct fl__speech_lattice {
    const fl_speech_align_opts *o;
    const int64_t *token;
    int64_t classes, states, blank;
    uint8_t *step; /* [frames][states]: back-pointers, as a distance in states */
} fl__speech_lattice;

static int64_t fl__speech_label(const fl__speech_lattice *l, int64_t s) {
    return l->o->asg ? l->token[s] : s % 2 ? l->token[s / 2] : l->blank;
}

static bool fl__speech_may_skip(const fl__speech_lattice *l, int64_t s) {
    return !l->o->asg && s % 2 && s >= 2 && l->token[s / 2] != l->token[s / 2 - 1];
}

/* One step of the Viterbi recursion: the scores of all states at frame t from those at frame t - 1. */
static void fl__speech_lattice_frame(const fl__speech_lattice *l, int64_t t, const float *e,
                                     const double *before, double *now) {
    for (int64_t s = 0; s < l->states; s++) {
        const int64_t to = fl__speech_label(l, s);
        double best = -INFINITY;
        int distance = 0;
        for (int back = 0; back <= 2 && back <= s; back++) {
            if (back == 2 && !fl__speech_may_skip(l, s)) break;
            const int64_t from = fl__speech_label(l, s - back);
            const double move =
                l->o->asg && l->o->transitions && t ? l->o->transitions[to * l->classes + from] : 0;
            if (before[s - back] + move > best) best = before[s - back] + move, distance = back;
        }
        if (t == 0) best = s <= !l->o->asg ? 0 : -INFINITY, distance = 0;
        now[s] = best + e[to];
        l->step[t * l->states + s] = (uint8_t)distance;
    }
}

static void fl__speech_spans(const fl__speech_lattice *l, const float *scores, int64_t frames, int64_t s,
                             fl_speech_span *out, int64_t *path) {
    for (int64_t k = 0; k < (l->o->asg ? l->states : l->states / 2); k++)
        out[k] = (fl_speech_span){l->token[k], -1, -1, 0};
    for (int64_t t = frames - 1; t >= 0; s -= l->step[t-- * l->states + s]) {
        const int64_t label = fl__speech_label(l, s);
        if (path) path[t] = label;
        if (!l->o->asg && s % 2 == 0) continue;
        fl_speech_span *span = &out[l->o->asg ? s : s / 2];
        if (span->end < 0) span->end = t + 1;
        span->begin = t;
        span->confidence += exp(scores[t * l->classes + label]);
    }
    for (int64_t k = 0; k < (l->o->asg ? l->states : l->states / 2); k++)
        out[k].confidence /= (double)(out[k].end - out[k].begin);
}

FL_API double fl_speech_align_opt(const float *scores, int64_t frames, int64_t classes, const int64_t *tokens,
                                  int64_t n, fl_speech_span *out, int64_t *path, fl_speech_align_opts o) {
    const char *fn = "fl_speech_align";
    const int64_t blank = o.blank ? fl_option_int(o.blank, 0) : classes - 1;
    int64_t need = n;
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= classes || (!o.asg && tokens[i] == blank))
            return fl_fail("%s: token %lld is %lld, expected a class below %lld other than the blank", fn,
                           (long long)i, (long long)tokens[i], (long long)classes),
                   NAN;
        need += !o.asg && i && tokens[i] == tokens[i - 1];
    }
    if (frames < need || frames < 1 || n < o.asg)
        return fl_fail("%s: %lld tokens need %lld frames, got %lld", fn, (long long)n, (long long)need,
                       (long long)frames),
               NAN;
    for (int64_t i = 0; i < frames * classes; i++)
        if (isnan(scores[i])) return fl_fail("%s: a score of frame %lld is NaN", fn,
                                             (long long)(i / classes)), NAN;
    fl__speech_lattice l = {
        .o = &o, .token = tokens, .classes = classes, .states = o.asg ? n : 2 * n + 1, .blank = blank};
    double *row = fl_heap_alloc((size_t)(2 * l.states) * sizeof *row), total = NAN;
    l.step = row ? fl_heap_alloc((size_t)(frames * l.states)) : NULL;
    double *before = row, *now = row ? row + l.states : NULL;
    for (int64_t s = 0; row && s < l.states; s++) before[s] = -INFINITY;
    for (int64_t t = 0; l.step && t < frames; t++) {
        fl__speech_lattice_frame(&l, t, scores + t * classes, before, now);
        double *swap = before;
        before = now, now = swap;
    }
    if (l.step) {
        int64_t s = l.states - 1;
        if (!o.asg && s && before[s - 1] >= before[s]) s--;
        total = before[s];
        if (total == -INFINITY) fl_fail("%s: every path has score -inf", fn), total = NAN;
        else fl__speech_spans(&l, scores, frames, s, out, path);
    }
    fl_heap_free(row);
    fl_heap_free(l.step);
    return total;
}

#endif
#endif

/* MIT licence: see LICENSE. */
