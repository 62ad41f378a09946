/* fl/speech/criteria.h - training criteria for speech: CTC, ASG, transducer, attention, joint CTC/attention

   A criterion is a module: it holds the parameters besides the network's, and is saved with it. Each has a
   loss, a best path and a forced alignment: see the table fl__criteria. */
#ifndef FL_SPEECH_CRITERIA_H
#define FL_SPEECH_CRITERIA_H
#include "align.h"
#include "attend.h"
#include "lattice.h"
#include "search.h"
#include "targets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scaling of a loss: by 1, 1/T, sqrt(1/T), 1/L, sqrt(1/L), for T padded frames and L tokens. */
typedef enum fl_speech_scale_mode {
    FL_SPEECH_SCALE_NONE,
    FL_SPEECH_SCALE_INPUT,
    FL_SPEECH_SCALE_INPUT_SQRT,
    FL_SPEECH_SCALE_TARGET,
    FL_SPEECH_SCALE_TARGET_SQRT
} fl_speech_scale_mode;
/* A target that needs more frames than there are: fail with its index in the batch; cut the target; or set
   its loss to 0. */
typedef enum fl_speech_too_long { FL_SPEECH_TOO_LONG, FL_SPEECH_CUT, FL_SPEECH_SKIP } fl_speech_too_long;

typedef struct fl_speech_criterion_opts {
    fl_opts_guard guard_;
    fl_speech_scale_mode scale;
    fl_speech_too_long too_long;
    double diagonal; /* asg: the initial transitions are this times the identity */
    bool linseg_by_frames; /* asg with linear segmentation (LinSeg): L of `scale` is the number of frames to
                              which targets are stretched, as in Flashlight; default: of their tokens, so
                              that both phases of training are scaled alike */
    int64_t hidden;  /* transducer: size of predictor and joint network; 0 -> dim */
    int64_t context; /* transducer: number of last tokens that the predictor sees (stateless, Ghodsi et al.,
                        ICASSP 2020), at most 16; 0: all, by a GRU */
    double ctc_weight; /* weight of an auxiliary CTC loss of all criteria but ctc and asg; their own loss has
                          the rest; 0 -> none, joint 0.3 */
    fl_speech_attend_opts attend; /* seq2seq, transformer and joint (.transformer selects the decoder) */
    fl_rng *rng; /* borrowed; NULL: the default generator */
    char _end;
} fl_speech_criterion_opts;
/* Creates a criterion: "ctc", "asg", "transducer", "seq2seq", "transformer" or "joint". dim: size of the
   network's frames, which for ctc and asg are scores of the classes (dim 0: classes). The last class is the
   blank of ctc and transducer, and eos of the others (joint: eos; its blank is an additional class after
   it). Returns NULL after an error. */
#define fl_speech_criterion(...) FL__SPEECH_CRITERION(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_CRITERION(kind, dim, classes, ...) \
    fl_speech_criterion_opt(kind, dim, classes, FL_LITERAL(fl_speech_criterion_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_speech_criterion_opt(const char *kind, int64_t dim, int64_t classes,
                                             fl_speech_criterion_opts o);
/* Mean over the batch of the scaled losses of frames x [n, t, dim], of which steps i64 [n] are valid, and
   targets i64 [n, l], of which lengths i64 [n] are valid. */
FL_API fl_var *fl_speech_criterion_loss(fl_nn_module *m, fl_var *x, fl_tensor *steps,
                                        fl_tensor *target, fl_tensor *lengths);
/* Warm-up: while `share` is above 0, targets of asg are stretched evenly over the frames (LinSeg), and
   attention windows have this weight (fl_speech_attend_warmup). Initially 0 for asg, 1 for attention. */
FL_API bool fl_speech_criterion_warmup(fl_nn_module *m, double share);
/* Writes the tokens of the best path through x [t, dim], at most `most`, to out. Returns their number, -1
   after an error. */
FL_API int64_t fl_speech_criterion_best(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most);
/* Aligns n tokens to x [t, dim]: see fl_speech_align. For attention, whose weights need not be monotone, the
   best monotone path through their logarithms; if there are more tokens than frames, frames have several
   tokens. Returns the path's score, NaN after an error. */
FL_API double fl_speech_criterion_align(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                                        fl_speech_span *out);
/* Predictor for a beam search (fl_speech_search) through frames x [t, dim], for transducer, seq2seq,
   transformer and joint (its attention). Attention predictors are limited to `beam` hypotheses of `most`
   tokens. Borrows m. Returns NULL after an error. */
FL_API fl_speech_predictor *fl_speech_criterion_predictor(fl_nn_module *m, fl_tensor *x, int64_t beam,
                                                          int64_t most);
/* The kind given to fl_speech_criterion. */
FL_API const char *fl_speech_criterion_name(const fl_nn_module *m);
/* ASG's transitions [to, from]; NULL for other criteria. */
FL_API fl_var *fl_speech_criterion_transitions(const fl_nn_module *m);
/* The attention decoder of seq2seq, transformer and joint; NULL for other criteria. */
FL_API fl_nn_module *fl_speech_criterion_decoder(const fl_nn_module *m);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_CRITERIA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_CRITERIA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_CRITERIA_IMPL
#define FL_SPEECH_CRITERIA_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/ctc.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/loss.h"
#include "../ops/order.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A batch. Targets and lengths are copies on the host, which may be modified. */
typedef struct fl__criterion_batch {
    fl_var *x;
    fl_tensor *steps, *target, *lengths;
} fl__criterion_batch;

typedef struct fl__criterion_kind {
    const char *name;
    bool (*make)(fl_nn_module *m);
    fl_var *(*loss)(fl_nn_module *m, const fl__criterion_batch *b); /* [n] */
    int64_t (*best)(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most);
    double (*align)(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n, fl_speech_span *out);
    int64_t (*need)(const int64_t *target, int64_t n); /* frames that a target needs; NULL: no minimum */
} fl__criterion_kind;

typedef struct fl__criterion {
    fl_speech_criterion_opts o;
    const fl__criterion_kind *kind;
    int64_t dim, classes;
    bool linseg;
} fl__criterion;

static const fl__criterion *fl__criterion_of(const fl_nn_module *m) { return m->data; }

/* Maps *x, which becomes contiguous f32, until fl_unmap(*x, FL_READ); NULL, as *x, after an error. */
static const float *fl__criterion_scores(fl_tensor **x) {
    *x = *x ? fl_contiguous(fl_cast(*x, FL_F32)) : NULL;
    const float *p = *x ? fl_map(*x, FL_READ) : NULL;
    if (!p) *x = NULL;
    return p;
}

/* Collapses a path of t classes, in place, and copies at most `most` tokens to out. */
static int64_t fl__criterion_collapsed(int64_t *path, int64_t t, int64_t blank, int64_t *out, int64_t most) {
    int64_t n = fl_speech_collapse(path, t, blank, path);
    if (n > most) n = most;
    if (n > 0) memcpy(out, path, (size_t)n * sizeof *out);
    return n;
}

/* ---- CTC ---- */

static int64_t fl__criterion_need_ctc(const int64_t *target, int64_t n) {
    int64_t need = n;
    for (int64_t i = 1; i < n; i++) need += target[i] == target[i - 1];
    return need;
}

static fl_var *fl__criterion_ctc_of(fl_var *scores, const fl__criterion_batch *b, int64_t classes) {
    fl_var *p = fv_transpose(fv_log_softmax(scores, 2), 0, 1);
    return fv_ctc_loss(p, b->target, b->steps, b->lengths, .blank = classes - 1, .reduction = FL_NONE,
                       .zero_infinity = true);
}

static fl_var *fl__criterion_loss_ctc(fl_nn_module *m, const fl__criterion_batch *b) {
    return fl__criterion_ctc_of(b->x, b, fl__criterion_of(m)->classes);
}

static int64_t fl__criterion_best_of_frames(fl_tensor *x, int64_t blank, int64_t *out, int64_t most) {
    fl_tensor *best = x ? fl_contiguous(fl_argmax(x, 1, false)) : NULL;
    int64_t *path = best ? fl_map(best, FL_READ | FL_WRITE) : NULL;
    const int64_t n = path ? fl__criterion_collapsed(path, best->shape[0], blank, out, most) : -1;
    if (path) fl_unmap(best, FL_READ | FL_WRITE);
    return n;
}

static int64_t fl__criterion_best_ctc(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most) {
    return fl__criterion_best_of_frames(x, fl__criterion_of(m)->classes - 1, out, most);
}

/* Aligns tokens to log probabilities x [t, classes]; the blank is the last class. */
static double fl__criterion_align_frames(fl_tensor *x, int64_t classes, const int64_t *tokens, int64_t n,
                                         fl_speech_span *out) {
    const float *p = fl__criterion_scores(&x);
    const double score = p ? fl_speech_align(p, x->shape[0], classes, tokens, n, out, NULL) : NAN;
    fl_unmap(x, FL_READ);
    return score;
}

static double fl__criterion_align_ctc(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                            fl_speech_span *out) {
    return fl__criterion_align_frames(fl_log_softmax(x, 1), fl__criterion_of(m)->classes, tokens, n, out);
}

/* ---- ASG ---- */

static bool fl__criterion_make_asg(fl_nn_module *m) {
    const fl__criterion *c = m->data;
    fl_tensor *w = fl_mul(fl_eye(c->classes, c->classes, FL_F32), fl_num(c->o.diagonal));
    return fl_nn_add_param(m, "transitions", w ? fv_param(w) : NULL) != NULL;
}

static int64_t fl__criterion_need_asg(const int64_t *target, int64_t n) {
    (void)target;
    return n;
}

/* Targets stretched to the number of frames T: frame t has token floor(t L / T). */
static fl_tensor *fl__criterion_linear_segmentation(const fl__criterion_batch *b, int64_t frames) {
    const int64_t n = b->target->shape[0], l = b->target->shape[1];
    fl_tensor *y = fl_zeros(FL_SHAPE(n, frames), FL_I64);
    const int64_t *target = y ? fl_map(b->target, FL_READ) : NULL,
                  *steps = target ? fl_map(b->steps, FL_READ) : NULL,
                  *lengths = steps ? fl_map(b->lengths, FL_READ) : NULL;
    int64_t *p = lengths ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < n; i++)
        for (int64_t t = 0; lengths[i] && t < frames && t < steps[i]; t++)
            p[i * frames + t] = target[i * l + t * lengths[i] / steps[i]];
    if (p) fl_unmap(y, FL_READ | FL_WRITE);
    if (lengths) fl_unmap(b->lengths, FL_READ);
    if (steps) fl_unmap(b->steps, FL_READ);
    if (target) fl_unmap(b->target, FL_READ);
    return p ? y : NULL;
}

static fl_var *fl__criterion_loss_asg(fl_nn_module *m, const fl__criterion_batch *b) {
    const fl__criterion *c = m->data;
    fl_tensor *target = b->target, *lengths = b->lengths;
    if (c->linseg) {
        target = fl__criterion_linear_segmentation(b, fv_value(b->x)->shape[1]);
        lengths = fl_where(fl_gt(lengths, fl_int(0)), b->steps, lengths);
    }
    if (!target || !lengths) return NULL;
    return fv_asg_loss(fv_transpose(b->x, 0, 1), fl_nn_param_at(m, 0), target, b->steps, lengths,
                       .reduction = FL_NONE, .zero_infinity = true);
}

/* The Viterbi path over all tokens. */
static bool fl__criterion_asg_path(const float *e, const float *w, int64_t t, int64_t c, int64_t *path) {
    double *score = fl_heap_alloc((size_t)(2 * c) * sizeof *score);
    int32_t *from = score ? fl_heap_alloc((size_t)(t * c) * sizeof *from) : NULL;
    for (int64_t k = 0; from && k < t; k++) {
        double *now = score + (k % 2) * c, *before = score + (1 - k % 2) * c;
        for (int64_t i = 0; i < c; i++) {
            double best = k ? -INFINITY : 0;
            int64_t at = 0;
            for (int64_t j = 0; k && j < c; j++)
                if (before[j] + w[i * c + j] > best) best = before[j] + w[i * c + j], at = j;
            now[i] = best + e[k * c + i], from[k * c + i] = (int32_t)at;
        }
    }
    if (from) {
        const double *last = score + ((t - 1) % 2) * c;
        int64_t i = 0;
        for (int64_t j = 1; j < c; j++)
            if (last[j] > last[i]) i = j;
        for (int64_t k = t - 1; k >= 0; i = from[k-- * c + i]) path[k] = i;
    }
    const bool ok = from != NULL;
    fl_heap_free(from);
    fl_heap_free(score);
    return ok;
}

static int64_t fl__criterion_best_asg(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most) {
    const int64_t t = x->shape[0], c = fl__criterion_of(m)->classes;
    fl_tensor *transitions = fv_value(fl_nn_param_at(m, 0));
    const float *e = fl__criterion_scores(&x), *w = fl__criterion_scores(&transitions);
    int64_t *path = e && w ? fl_heap_alloc((size_t)t * sizeof *path) : NULL, n = -1;
    if (path && fl__criterion_asg_path(e, w, t, c, path)) n = fl__criterion_collapsed(path, t, -1, out, most);
    fl_heap_free(path);
    fl_unmap(transitions, FL_READ), fl_unmap(x, FL_READ);
    return n;
}

/* Scores are normalised because confidences are exp of them; this adds a constant to all paths. */
static double fl__criterion_align_asg(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                            fl_speech_span *out) {
    fl_tensor *y = fl_log_softmax(x, 1), *transitions = fv_value(fl_nn_param_at(m, 0));
    const float *e = fl__criterion_scores(&y), *w = fl__criterion_scores(&transitions);
    const double score = e && w ? fl_speech_align(e, x->shape[0], fl__criterion_of(m)->classes, tokens, n,
                                                  out, NULL, .asg = true, .transitions = w)
                                : NAN;
    fl_unmap(transitions, FL_READ), fl_unmap(y, FL_READ);
    return score;
}

/* ---- transducer ---- */

enum { FL__TRANSDUCER_CONTEXT = 16 };

/* embed -> GRU, or the last tokens concatenated -> predictor, + encoder of the frames -> tanh -> out. The
   first token is the blank. */
static bool fl__criterion_make_transducer(fl_nn_module *m) {
    const fl__criterion *c = m->data;
    const int64_t h = fl_option_int(c->o.hidden, c->dim), context = c->o.context;
    fl_rng *rng = c->o.rng;
    if (context < 0 || context > FL__TRANSDUCER_CONTEXT)
        return fl_fail("fl_speech_criterion: transducer: context must be in [0, %d], got %lld",
                       FL__TRANSDUCER_CONTEXT, (long long)context);
    return fl_nn_add(m, "embed", fl_nn_embedding(c->classes, h, .rng = rng)) &&
           (context || fl_nn_add(m, "state", fl_nn_gru(h, h, .rng = rng))) &&
           fl_nn_add(m, "predictor",
                     fl_nn_linear(h * (context ? context : 1), h, .no_bias = true, .rng = rng)) &&
           fl_nn_add(m, "encoder", fl_nn_linear(c->dim, h, .rng = rng)) &&
           fl_nn_add(m, "out", fl_nn_linear(h, c->classes, .rng = rng));
}

/* The last tokens, embedded and concatenated: [n, u, context h]. *state: those before, initially zeros. */
static fl_var *fl__criterion_transducer_last(fl_var *h, int64_t context, fl_var **state) {
    const int64_t *s = fv_value(h)->shape, u = s[1];
    fl_var *part[FL__TRANSDUCER_CONTEXT];
    if (context == 1) return h;
    fl_var *both[] = {
        *state ? *state : fv_const(fl_zeros(FL_SHAPE(s[0], context - 1, s[2]), FL_F32)), h};
    fl_var *all = both[0] ? fv_concat(both, 2, 1) : NULL;
    *state = fv_slice(all, 1, u, u + context - 1, 1);
    for (int64_t k = 0; k < context; k++)
        if (!all || !(part[k] = fv_slice(all, 1, k, k + u, 1))) return NULL;
    return fv_concat(part, (int)context, 2);
}

/* The predictor's output after tokens i64 [n, u]: [n, u, h]; updates *state. */
static fl_var *fl__criterion_transducer_predict(fl_nn_module *m, fl_tensor *tokens,
                                                fl_var **state) {
    const int64_t context = fl__criterion_of(m)->o.context;
    fl_var *h = tokens ? fl_nn_forward(fl_nn_find(m, "embed"), fv_const(tokens)) : NULL;
    if (h && context)
        h = fl__criterion_transducer_last(h, context, state);
    else if (h) {
        fl_vars y =
            fl_nn_forward_vars(fl_nn_find(m, "state"), (fl_vars){*state ? 2 : 1, {h, *state}});
        *state = y.n > 1 ? y.v[1] : NULL, h = y.n ? y.v[0] : NULL;
    }
    return h ? fl_nn_forward(fl_nn_find(m, "predictor"), h) : NULL;
}

/* Log probabilities of blank and next label, [n, t, u + 1, 2]. */
static fl_var *fl__criterion_transducer_lattice(fl_nn_module *m, fl_var *x, fl_tensor *target) {
    const int64_t blank = fl__criterion_of(m)->classes - 1;
    fl_tensor *parts[] = {fl_full(FL_SHAPE(target->shape[0], 1), (double)blank, FL_I64), target};
    fl_var *state = NULL,
           *b = parts[0] ? fl__criterion_transducer_predict(m, fl_concat(parts, 2, 1), &state) : NULL;
    fl_var *a = fl_nn_forward(fl_nn_find(m, "encoder"), x);
    fl_nn_module *out = fl_nn_find(m, "out");
    return a && b ? fv_transducer_joint(a, b, fl_nn_param_at(out, 0), fl_nn_param_at(out, 1), target) : NULL;
}

static fl_var *fl__criterion_loss_transducer(fl_nn_module *m, const fl__criterion_batch *b) {
    fl_var *joint = fl__criterion_transducer_lattice(m, b->x, b->target);
    return joint ? fv_transducer_joint_loss(joint, b->steps, b->lengths,
                                            (fl_lattice_opts){.reduction = FL_NONE, .zero_infinity = true})
                 : NULL;
}

/* The best class at a frame [1, 1, h], given the predictor's output. */
static int64_t fl__criterion_transducer_class(fl_nn_module *m, fl_var *frame, fl_var *predicted) {
    fl_var *y = fl_nn_forward(fl_nn_find(m, "out"), fv_tanh(fv_add(frame, predicted)));
    fl_tensor *best = y ? fl_argmax(fv_value(y), 2, false) : NULL;
    return best ? fl_item_int(best) : -1;
}

enum { FL__TRANSDUCER_FRAME_TOKENS = 10 }; /* maximal number of tokens per frame */

static int64_t fl__criterion_best_transducer(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most) {
    const int64_t blank = fl__criterion_of(m)->classes - 1, frames = x->shape[0];
    int64_t n = 0, token = blank;
    fl_var *a = fl_nn_forward(fl_nn_find(m, "encoder"), fv_const(fl_unsqueeze(x, 0))), *state = NULL;
    fl_var *b =
        a ? fl__criterion_transducer_predict(m, fl_from_host(&token, FL_SHAPE(1, 1), FL_I64), &state) : NULL;
    for (int64_t t = 0, emitted = 0; b && t < frames && n < most;) {
        token = fl__criterion_transducer_class(m, fv_slice(a, 1, t, t + 1, 1), b);
        if (token < 0) return -1;
        if (token == blank || emitted == FL__TRANSDUCER_FRAME_TOKENS) t++, emitted = 0;
        else {
            out[n++] = token, emitted++;
            b = fl__criterion_transducer_predict(m, fl_from_host(&token, FL_SHAPE(1, 1), FL_I64), &state);
        }
    }
    return b ? n : -1;
}

/* The best path through p [t, u + 1, 2]: token k is emitted at frame out[k].begin, until the next one. */
static double fl__criterion_transducer_path(const float *p, int64_t t, int64_t u, fl_speech_span *out) {
    const int64_t s = u + 1;
    double *a = fl_heap_alloc((size_t)(t * s) * sizeof *a);
    if (!a) return NAN;
    for (int64_t k = 0; k < t; k++)
        for (int64_t i = 0; i < s; i++) {
            const double stay = k ? a[(k - 1) * s + i] + p[((k - 1) * s + i) * 2] : -INFINITY;
            const double move = i ? a[k * s + i - 1] + p[(k * s + i - 1) * 2 + 1] : -INFINITY;
            a[k * s + i] = k || i ? (move > stay ? move : stay) : 0;
        }
    const double total = a[t * s - 1] + p[(t * s - 1) * 2];
    for (int64_t k = t - 1, i = u; i > 0;) {
        const double move = a[k * s + i - 1] + p[(k * s + i - 1) * 2 + 1];
        if (k && move < a[k * s + i]) k--;
        else {
            i--;
            out[i].begin = k, out[i].end = i + 1 < u && out[i + 1].begin > k ? out[i + 1].begin : k + 1;
            out[i].confidence = exp(p[(k * s + i) * 2 + 1]);
        }
    }
    fl_heap_free(a);
    return total;
}

static double fl__criterion_align_transducer(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                                   fl_speech_span *out) {
    fl_tensor *target = fl_from_host(tokens, FL_SHAPE(1, n), FL_I64);
    fl_var *joint = target ? fl__criterion_transducer_lattice(m, fv_const(fl_unsqueeze(x, 0)), target) : NULL;
    fl_tensor *y = joint ? fv_value(joint) : NULL;
    const float *p = fl__criterion_scores(&y);
    for (int64_t k = 0; k < n; k++) out[k] = (fl_speech_span){.token = tokens[k]};
    const double score = p ? fl__criterion_transducer_path(p, x->shape[0], n, out) : NAN;
    fl_unmap(y, FL_READ);
    return score;
}

/* ---- attention ---- */

static bool fl__criterion_make_attend(fl_nn_module *m) {
    const fl__criterion *c = m->data;
    fl_speech_attend_opts o = c->o.attend;
    const bool keyvalue = o.attention && strstr(o.attention, "kv");
    const int64_t twice = keyvalue || (o.attention && !strcmp(o.attention, "keyvalue")) ? 2 : 1;
    if (!strcmp(c->kind->name, "transformer")) o.transformer = true;
    if (!o.rng) o.rng = c->o.rng;
    if (c->dim % twice)
        return fl_fail("fl_speech_criterion: dim (%lld) must be even for keys and values", (long long)c->dim);
    return fl_nn_add(m, "decoder", fl_speech_attend_opt(c->dim / twice, c->classes, o)) != NULL;
}

static fl_var *fl__criterion_loss_attend(fl_nn_module *m, const fl__criterion_batch *b) {
    return fl_speech_attend_loss(fl_nn_find(m, "decoder"), b->x, b->steps, b->target, b->lengths);
}

static int64_t fl__criterion_best_attend(fl_nn_module *m, fl_tensor *x, int64_t *out,
                                         int64_t most) {
    return fl_speech_attend_greedy(fl_nn_find(m, "decoder"), x, out, most);
}

/* Aligns positions: row t of the logarithms of weights [n, t] gives a frame's scores of n classes. */
static double fl__criterion_align_attend(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                               fl_speech_span *out) {
    fl_tensor *target = fl_from_host(tokens, FL_SHAPE(1, n), FL_I64);
    fl_tensor *steps = fl_full(FL_SHAPE(1), (double)x->shape[0], FL_I64);
    fl_var *w = NULL;
    if (!target || !steps ||
        !fl_speech_attend_scores(fl_nn_find(m, "decoder"), fv_const(fl_unsqueeze(x, 0)), steps, target, &w))
        return NAN;
    const int64_t t = x->shape[0], times = (n + t - 1) / t; /* tokens per frame */
    fl_tensor *each = fl_transpose(fl_select(fl_slice(fv_value(w), 1, 0, n, 1), 0, 0), 0, 1);
    each = fl_expand(fl_unsqueeze(fl_log(fl_add(each, fl_num(1e-10))), 1), FL_SHAPE(t, times, n));
    each = fl_reshape(each, FL_SHAPE(t * times, n));
    const float *p = fl__criterion_scores(&each);
    int64_t *place = p ? fl_heap_alloc((size_t)n * sizeof *place) : NULL;
    for (int64_t k = 0; place && k < n; k++) place[k] = k;
    const double score = place ? fl_speech_align(p, t * times, n, place, n, out, NULL, .asg = true) : NAN;
    for (int64_t k = 0; !isnan(score) && k < n; k++) {
        out[k].token = tokens[k];
        out[k].begin /= times, out[k].end = (out[k].end - 1) / times + 1;
    }
    fl_unmap(each, FL_READ);
    fl_heap_free(place);
    return score;
}

static double fl__criterion_align_joint(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                              fl_speech_span *out) {
    fl_var *scores = fl_nn_forward(fl_nn_find(m, "ctc"), fv_const(x));
    return fl__criterion_align_frames(scores ? fl_log_softmax(fv_value(scores), 1) : NULL,
                                      fl__criterion_of(m)->classes + 1, tokens, n, out);
}

/* ---- the table ---- */

static const fl__criterion_kind fl__criteria[] = {
    {"ctc", NULL, fl__criterion_loss_ctc, fl__criterion_best_ctc, fl__criterion_align_ctc,
     fl__criterion_need_ctc},
    {"asg", fl__criterion_make_asg, fl__criterion_loss_asg, fl__criterion_best_asg, fl__criterion_align_asg,
     fl__criterion_need_asg},
    {"transducer", fl__criterion_make_transducer, fl__criterion_loss_transducer,
     fl__criterion_best_transducer, fl__criterion_align_transducer, NULL},
    {"seq2seq", fl__criterion_make_attend, fl__criterion_loss_attend, fl__criterion_best_attend,
     fl__criterion_align_attend, NULL},
    {"transformer", fl__criterion_make_attend, fl__criterion_loss_attend, fl__criterion_best_attend,
     fl__criterion_align_attend, NULL},
    {"joint", fl__criterion_make_attend, fl__criterion_loss_attend, fl__criterion_best_attend,
     fl__criterion_align_joint, fl__criterion_need_ctc}};
enum { FL__CRITERIA = sizeof fl__criteria / sizeof *fl__criteria };

static fl_vars fl__criterion_forward(fl_nn_module *m, fl_vars in) {
    if (in.n != 4) return fl_nn_fail(m, "got %d inputs, expected 4: frames, steps, targets, lengths", in.n);
    fl_var *y = fl_speech_criterion_loss(m, in.v[0], fv_value(in.v[1]), fv_value(in.v[2]), fv_value(in.v[3]));
    return (fl_vars){y != NULL, {y}};
}

static void fl__criterion_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__criterion *c = m->data;
    snprintf(buf, size, "%s, %" PRId64 ", %" PRId64, c->kind->name, c->dim, c->classes);
}

static const fl_nn_type fl__criterion_type = {.name = "SpeechCriterion",
                                              .maker = "fl_speech_criterion",
                                              .forward = fl__criterion_forward,
                                              .describe = fl__criterion_describe};

static bool fl__is_criterion(const fl_nn_module *m) {
    return (m && m->type == &fl__criterion_type) ||
           fl_err_false("fl_speech_criterion: the module is not a criterion");
}

FL_API fl_nn_module *fl_speech_criterion_opt(const char *kind, int64_t dim, int64_t classes,
                                             fl_speech_criterion_opts o) {
    fl__criterion c = {.o = o, .dim = dim ? dim : classes, .classes = classes};
    for (int i = 0; kind && i < FL__CRITERIA; i++)
        if (!strcmp(kind, fl__criteria[i].name)) c.kind = &fl__criteria[i];
    if (!c.kind)
        return fl_err_null("fl_speech_criterion: no criterion '%s'; known: ctc, asg, transducer, seq2seq, "
                           "transformer, joint", kind ? kind : "NULL");
    const bool scores = !strcmp(kind, "ctc") || !strcmp(kind, "asg");
    if (scores) c.o.ctc_weight = 0;
    if (!strcmp(kind, "joint")) c.o.ctc_weight = fl_option(o.ctc_weight, 0.3);
    if (classes < 2 || c.dim < 1 || (scores && c.dim != classes))
        return fl_err_null("fl_speech_criterion: %s: got dim %lld, classes %lld; expected dim >= 1 (ctc, "
                           "asg: equal to classes) and classes >= 2", kind, (long long)c.dim,
                           (long long)classes);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__criterion_type, &c, sizeof c);
    const bool ok = m && (!c.kind->make || c.kind->make(m)) &&
                    (!(c.o.ctc_weight > 0) ||
                     fl_nn_add(m, "ctc", fl_nn_linear(c.dim, classes + 1, .rng = o.rng)));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

FL_API const char *fl_speech_criterion_name(const fl_nn_module *m) {
    return fl__is_criterion(m) ? fl__criterion_of(m)->kind->name : NULL;
}
FL_API fl_var *fl_speech_criterion_transitions(const fl_nn_module *m) {
    return fl__is_criterion(m) && fl__criterion_of(m)->kind->make == fl__criterion_make_asg
               ? fl_nn_param_at(m, 0)
               : NULL;
}
FL_API fl_nn_module *fl_speech_criterion_decoder(const fl_nn_module *m) {
    return fl__is_criterion(m) ? fl_nn_find((fl_nn_module *)m, "decoder") : NULL;
}

FL_API bool fl_speech_criterion_warmup(fl_nn_module *m, double share) {
    if (!fl__is_criterion(m)) return false;
    fl_nn_module *decoder = fl_nn_find(m, "decoder");
    ((fl__criterion *)m->data)->linseg = share > 0;
    return !decoder || fl_speech_attend_warmup(decoder, share);
}

static double fl__criterion_factor(fl_speech_scale_mode mode, double frames, double tokens) {
    const double size = mode <= FL_SPEECH_SCALE_INPUT_SQRT ? frames : fmax(1, tokens);
    if (mode == FL_SPEECH_SCALE_NONE) return 1;
    return mode == FL_SPEECH_SCALE_INPUT || mode == FL_SPEECH_SCALE_TARGET ? 1 / size : sqrt(1 / size);
}

/* Checks sequence i of a batch: a target of *length out of l tokens, `steps` of `frames` frames. Cuts *length
   to what the frames can hold; *factor becomes that of its loss, 0 if it is ignored. False after an error. */
static bool fl__criterion_sequence(const fl__criterion *c, int64_t i, int64_t steps, int64_t frames,
                                   int64_t *target, int64_t l, int64_t *length, float *factor) {
    const int64_t available = steps < frames ? steps : frames;
    if (*length < 0 || *length > l || steps < 1)
        return fl_err_false("fl_speech_criterion: sequence %lld: got %lld tokens, %lld frames; expected 0 to "
                            "%lld tokens, 1 or more frames", (long long)i, (long long)*length,
                            (long long)steps, (long long)l);
    for (int64_t k = *length; k < l; k++) target[k] = 0; /* padding may be out of range */
    for (int64_t k = 0; k < *length; k++)
        if (target[k] < 0 || target[k] >= c->classes)
            return fl_err_false("fl_speech_criterion: sequence %lld: token %lld is %lld, expected a class "
                                "below %lld", (long long)i, (long long)k, (long long)target[k],
                                (long long)c->classes);
    const int64_t need = c->kind->need ? c->kind->need(target, *length) : 0;
    if (need > available && c->o.too_long == FL_SPEECH_TOO_LONG)
        return fl_err_false("fl_speech_criterion: sequence %lld: %lld tokens need %lld frames, got %lld",
                            (long long)i, (long long)*length, (long long)need, (long long)available);
    *factor = need <= available || c->o.too_long == FL_SPEECH_CUT;
    while (need > available && *length && c->kind->need(target, *length) > available) --*length;
    const bool stretched = c->linseg && c->o.linseg_by_frames && *length;
    *factor *= (float)fl__criterion_factor(c->o.scale, (double)frames,
                                           (double)(stretched ? frames : *length));
    return true;
}

/* Checks and cuts the sequences of a batch, and writes the factors [n] of their losses. */
static bool fl__criterion_sequences(const fl__criterion *c, const fl__criterion_batch *b, int64_t frames,
                                    fl_tensor *factors) {
    const int64_t n = b->target->shape[0], l = b->target->shape[1];
    const int64_t *steps = fl_map(b->steps, FL_READ);
    int64_t *target = steps ? fl_map(b->target, FL_READ | FL_WRITE) : NULL,
            *length = target ? fl_map(b->lengths, FL_READ | FL_WRITE) : NULL;
    float *factor = length ? fl_map(factors, FL_WRITE) : NULL;
    bool ok = factor != NULL;
    for (int64_t i = 0; ok && i < n; i++)
        ok = fl__criterion_sequence(c, i, steps[i], frames, target + i * l, l, &length[i], &factor[i]);
    if (factor) fl_unmap(factors, FL_WRITE);
    if (length) fl_unmap(b->lengths, FL_READ | FL_WRITE);
    if (target) fl_unmap(b->target, FL_READ | FL_WRITE);
    if (steps) fl_unmap(b->steps, FL_READ);
    return ok;
}

static bool fl__criterion_fits(const fl__criterion *c, const fl_tensor *x, const fl_tensor *steps,
                               const fl_tensor *target, const fl_tensor *lengths) {
    const int64_t n = x->shape[0];
    const bool ok = x->ndim == 3 && x->shape[1] > 0 && x->shape[2] == c->dim && target->ndim == 2 &&
                    target->shape[0] == n && steps->ndim == 1 && lengths->ndim == 1 &&
                    steps->shape[0] == n && lengths->shape[0] == n && target->dtype == FL_I64 &&
                    steps->dtype == FL_I64 && lengths->dtype == FL_I64;
    return ok || fl_err_false("fl_speech_criterion: %s: got frames %s, targets %s, steps %s, lengths %s; "
                              "expected [n, t > 0, %lld], i64 [n, l], [n], [n]", c->kind->name,
                              FL_SHAPE_TEXT(x),
                              FL_SHAPE_TEXT(target), FL_SHAPE_TEXT(steps), FL_SHAPE_TEXT(lengths),
                              (long long)c->dim);
}

/* The criterion's loss [n], combined with the auxiliary CTC loss if there is one. */
static fl_var *fl__criterion_loss_of(fl_nn_module *m, const fl__criterion_batch *b) {
    const fl__criterion *c = m->data;
    fl_nn_module *head = fl_nn_find(m, "ctc");
    fl_var *own = c->kind->loss(m, b), *scores = own && head ? fl_nn_forward(head, b->x) : NULL;
    fl_var *ctc = scores ? fl__criterion_ctc_of(scores, b, c->classes + 1) : NULL;
    if (!head || !ctc) return head ? NULL : own;
    return fv_add(fv_mul(ctc, fv_num(c->o.ctc_weight)), fv_mul(own, fv_num(1 - c->o.ctc_weight)));
}

FL_API fl_var *fl_speech_criterion_loss(fl_nn_module *m, fl_var *x, fl_tensor *steps,
                                        fl_tensor *target, fl_tensor *lengths) {
    const char *fn = "fl_speech_criterion_loss";
    if (!fl__is_criterion(m) || fl_is_null_arg(fn, x) || fl_is_null_arg(fn, steps) ||
        fl_is_null_arg(fn, target) || fl_is_null_arg(fn, lengths)) return NULL;
    const fl__criterion *c = m->data;
    if (!fl__criterion_fits(c, fv_value(x), steps, target, lengths)) return NULL;
    fl_scope s = fl_scope_begin();
    fl__criterion_batch b = {x, fl_contiguous(steps), fl_clone(target), fl_clone(lengths)};
    fl_tensor *factor = fl_empty(FL_SHAPE(fv_value(x)->shape[0]), FL_F32);
    if (!b.steps || !b.target || !b.lengths || !factor ||
        !fl__criterion_sequences(c, &b, fv_value(x)->shape[1], factor))
        return fv_scope_return(&s, NULL);
    fl_var *loss = fl__criterion_loss_of(m, &b);
    return fv_scope_return(&s, loss ? fv_mean(fv_mul(loss, fv_const(factor)), FL_ALL_AXES) : NULL);
}

static bool fl__criterion_utterance(const fl_nn_module *m, const fl_tensor *x) {
    if (!fl__is_criterion(m) || fl_is_null_arg("fl_speech_criterion", x)) return false;
    const fl__criterion *c = m->data;
    return (x->ndim == 2 && x->shape[0] > 0 && x->shape[1] == c->dim) ||
           fl_err_false("fl_speech_criterion: got frames %s, expected [t > 0, %lld]", FL_SHAPE_TEXT(x),
                        (long long)c->dim);
}

FL_API int64_t fl_speech_criterion_best(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most) {
    if (!fl__criterion_utterance(m, x)) return -1;
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    const int64_t n = fl__criterion_of(m)->kind->best(m, x, out, most);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    return n;
}

FL_API double fl_speech_criterion_align(fl_nn_module *m, fl_tensor *x, const int64_t *tokens, int64_t n,
                                        fl_speech_span *out) {
    if (!fl__criterion_utterance(m, x)) return NAN;
    if (n < 1)
        return fl_fail("fl_speech_criterion_align: expected 1 or more tokens, got %lld", (long long)n), NAN;
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    const double score = fl__criterion_of(m)->kind->align(m, x, tokens, n, out);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    return score;
}

/* ---- predictors ---- */

/* Values stored per slot: of a transducer the predictor's state and output, of attention the scores. */
typedef struct fl__criterion_predictor {
    fl_speech_predictor p;
    fl_nn_module *m;
    fl_tensor *x; /* frames; of a transducer the encoder's output */
    fl_speech_decoder_state *decoder_state;
    float *state, *output; /* [slots][h] */
    int64_t beam, most, h, state_cap, output_cap;
} fl__criterion_predictor;

/* Gathers rows of a table into a tensor. */
static fl_tensor *fl__criterion_rows(const float *rows, int64_t h, int64_t n, const int32_t *at) {
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n, h), FL_F32);
    float *p = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < n; i++) memcpy(p + i * h, rows + at[i] * h, (size_t)h * sizeof *rows);
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

static bool fl__criterion_put_rows(float **rows, int64_t *cap, int64_t h, fl_tensor *t, int64_t n,
                                   const int32_t *at) {
    const float *from = fl__criterion_scores(&t);
    int32_t last = 0;
    for (int64_t i = 0; i < n; i++) last = at[i] > last ? at[i] : last;
    const bool ok = from && fl_heap_grow(rows, cap, (last + 1) * h, sizeof **rows);
    for (int64_t i = 0; ok && i < n; i++) memcpy(*rows + at[i] * h, from + i * h, (size_t)h * sizeof *from);
    fl_unmap(t, FL_READ);
    return ok;
}

/* n numbers as i64 of this shape, the first repeated past the last, negative ones replaced. */
static fl_tensor *fl__criterion_integers(const int32_t *v, int64_t n, fl_shape shape, int64_t negative) {
    fl_tensor *t = fl_data_host_tensor(shape, FL_I64);
    int64_t *p = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < fl_numel(t); i++) {
        const int32_t k = v[i < n ? i : 0];
        p[i] = k < 0 ? negative : k;
    }
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

static bool fl__criterion_extend_transducer(fl__criterion_predictor *c, int64_t n, const int32_t *from,
                                            const int32_t *token, const int32_t *to) {
    fl_tensor *tokens = fl__criterion_integers(token, n, FL_SHAPE(n, 1), c->p.end);
    fl_tensor *state = from[0] < 0 ? NULL : fl__criterion_rows(c->state, c->h, n, from);
    fl_var *s = state ? fv_const(fl_unsqueeze(state, 0)) : NULL;
    if (!tokens || (from[0] >= 0 && !s)) return false;
    fl_var *y = fl__criterion_transducer_predict(c->m, tokens, &s);
    return y && s && fl__criterion_put_rows(&c->output, &c->output_cap, c->h, fv_value(y), n, to) &&
           fl__criterion_put_rows(&c->state, &c->state_cap, c->h, fv_value(s), n, to);
}

/* The decoder's batch is always `beam`: unused hypotheses duplicate the first. */
static bool fl__criterion_extend_attend(fl__criterion_predictor *c, int64_t n, const int32_t *from,
                                        const int32_t *token, const int32_t *to) {
    if (n > c->beam)
        return fl_err_null("fl_speech_criterion_predictor: got %lld hypotheses, it was made for %lld",
                           (long long)n, (long long)c->beam);
    fl_tensor *order = fl__criterion_integers(from, n, FL_SHAPE(c->beam), -1),
              *tokens = fl__criterion_integers(token, n, FL_SHAPE(c->beam), -1);
    if (!order || !tokens) return false;
    if (from[0] < 0) {
        fl_speech_decoder_state_free(c->decoder_state);
        c->decoder_state =
            fl_speech_decoder_state_new(fl_nn_find(c->m, "decoder"), c->x, c->beam, c->most + 1);
        tokens = NULL;
    }
    if (!c->decoder_state || (tokens && !fl_speech_decoder_state_reorder(c->decoder_state, order)))
        return false;
    fl_tensor *p = fl_speech_decoder_state_next(c->decoder_state, tokens);
    return p && fl__criterion_put_rows(&c->output, &c->output_cap, c->h, p, n, to);
}

static bool fl__criterion_extend(const fl_speech_predictor *p, int64_t n, const int32_t *from,
                                 const int32_t *token, const int32_t *to) {
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    const bool ok = (p->transducer ? fl__criterion_extend_transducer : fl__criterion_extend_attend)(
        p->self, n, from, token, to);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    return ok;
}

static bool fl__criterion_next(const fl_speech_predictor *p, int64_t frame, int64_t n, const int32_t *at,
                               float *out) {
    const fl__criterion_predictor *c = p->self;
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    fl_tensor *y = fl__criterion_rows(c->output, c->h, n, at);
    if (p->transducer) {
        if (frame >= c->x->shape[0])
            y = fl_err_null("fl_speech_criterion_predictor: frame %lld is out of range, there are %lld",
                            (long long)frame, (long long)c->x->shape[0]);
        fl_var *sum = y ? fv_const(fl_add(y, fl_select(c->x, 0, frame))) : NULL;
        fl_var *e = sum ? fl_nn_forward(fl_nn_find(c->m, "out"), fv_tanh(sum)) : NULL;
        y = e ? fl_log_softmax(fv_value(e), 1) : NULL;
    }
    const float *scores = fl__criterion_scores(&y);
    if (scores) memcpy(out, scores, (size_t)(n * p->classes) * sizeof *out);
    fl_unmap(y, FL_READ);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    return scores != NULL;
}

static void fl__criterion_predictor_free(fl_speech_predictor *p) {
    fl__criterion_predictor *c = p->self;
    fl_speech_decoder_state_free(c->decoder_state);
    fl_drop(c->x);
    fl_heap_free(c->state), fl_heap_free(c->output), fl_heap_free(c);
}

FL_API fl_speech_predictor *fl_speech_criterion_predictor(fl_nn_module *m, fl_tensor *x, int64_t beam,
                                                          int64_t most) {
    if (!fl__criterion_utterance(m, x)) return NULL;
    const fl__criterion *k = m->data;
    const bool transducer = k->kind->make == fl__criterion_make_transducer;
    const int64_t eos = k->o.attend.eos;
    if (!transducer && !fl_nn_find(m, "decoder"))
        return fl_err_null("fl_speech_criterion_predictor: got %s, expected transducer, seq2seq, transformer "
                           "or joint", k->kind->name);
    fl__criterion_predictor *c = fl_heap_alloc(sizeof *c);
    if (!c) return fl_raise();
    *c = (fl__criterion_predictor){.m = m, .beam = beam, .most = most};
    c->p = (fl_speech_predictor){c, k->classes, !transducer && eos ? fl_option_int(eos, 0) : k->classes - 1,
                                 transducer, fl__criterion_extend, fl__criterion_next,
                                 fl__criterion_predictor_free};
    c->h = transducer ? fl_option_int(k->o.hidden, k->dim) : k->classes;
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    fl_var *a = transducer ? fl_nn_forward(fl_nn_find(m, "encoder"), fv_const(x)) : NULL;
    c->x = fl_keep(transducer ? (a ? fv_value(a) : NULL) : x);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    if (c->x) return &c->p;
    fl__criterion_predictor_free(&c->p);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
