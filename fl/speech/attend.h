/* fl/speech/attend.h - attention decoders for speech: GRU or transformer, ten attentions, attention windows

   A decoder is `rounds` of {a state: GRU layers or a causal transformer layer; an attention}, then a linear
   layer: embedded token (the first is learnt) [+ last context vector] -> state -> attention -> + context
   vector -> next round -> scores of the next token. */
#ifndef FL_SPEECH_ATTEND_H
#define FL_SPEECH_ATTEND_H
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Attentions: content, keyvalue (frames are the concatenation of key and value), neural, simpleloc, location,
   neuralloc; multi (heads with projections), multisplit (heads without), multikv, multikvsplit. */
typedef struct fl_speech_attend_opts {
    fl_opts_guard guard_;
    const char *attention; /* NULL -> "content", or "multi" for transformers */
    int64_t attention_dim; /* of neuralloc; 0 -> hidden */
    int64_t channels;      /* of neuralloc's convolution; 0 -> 4 */
    int64_t kernel;        /* of the convolutions of location attentions, odd; 0 -> 7 */
    int64_t heads;         /* of multi... and transformers; 0 -> 8, FL_I0 is an error */
    bool transformer;      /* states are transformer layers; default: GRUs */
    bool attend_last;      /* only the last round has an attention (Flashlight's transformer criterion) */
    int64_t rounds;        /* 0 -> 1 */
    int64_t layers;        /* of the GRU in each round; 0 -> 1 */
    int64_t distances;     /* transformers: largest relative position; 0 -> 512 */
    double dropout;
    bool input_feeding;         /* GRU: add the last context vector to the embedded token */
    int64_t eos;                /* the token that ends a sequence; 0 -> the last, FL_I0 -> 0 */
    double smoothing;           /* label smoothing of the loss */
    const char *window;         /* "soft", "soft_pretrain", "step", "median"; NULL: none */
    bool window_always;         /* also after fl_speech_attend_warmup(m, 0) */
    double width, rate, offset; /* soft: standard deviation, frames per token, offset; 0 -> 5, 5, 10 */
    double min_frames, max_frames, min_rate, max_rate; /* step; 0 -> 0, 50, 3, 10 */
    int64_t left, right;   /* median: frames around the median of the last weights; 0 -> 50, 50 */
    const char *sampling;  /* inputs during training: "rand", "model", "gumbel"; NULL: rand */
    double replaced; /* rand: fraction of inputs replaced at random; model, gumbel: all if it is not 0 */
    double temperature;    /* of gumbel; 0 -> 1 */
    fl_rng *rng;           /* borrowed; NULL: the default generator */
    char _end;
} fl_speech_attend_opts;
/* Creates an attention decoder with submodules embed [classes, hidden], start [hidden], rounds.N.{state,
   attention}, out. Frames have `hidden` elements, keyvalue's twice as many. Returns NULL after an error. */
#define fl_speech_attend(...) FL__SPEECH_ATTEND(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_ATTEND(hidden, classes, ...) \
    fl_speech_attend_opt(hidden, classes, FL_LITERAL(fl_speech_attend_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_speech_attend_opt(int64_t hidden, int64_t classes, fl_speech_attend_opts o);
/* Scores [n, u + 1, classes] of targets [n, u] followed by eos (any tokens may pad a sequence), given frames
   x [n, t, d], of which the first steps[n] are valid. *weights, unless NULL, becomes the last attention's
   weights [n, u + 1, t]. */
FL_API fl_var *fl_speech_attend_scores(fl_nn_module *m, fl_var *x, fl_tensor *steps, fl_tensor *target,
                                       fl_var **weights);
/* Cross entropy of the targets and eos, summed over each sequence: [n]; lengths [n]. With label smoothing s:
   (1 - s) nll - s / classes sum of log p. */
FL_API fl_var *fl_speech_attend_loss(fl_nn_module *m, fl_var *x, fl_tensor *steps,
                                     fl_tensor *target, fl_tensor *lengths);
/* Warm-up, during which attention windows are used: factor of their logarithms, 1 at first, 0 at its end.
   Returns false if m is not an attention decoder. */
FL_API bool fl_speech_attend_warmup(fl_nn_module *m, double share);

/* State of incremental decoding of one utterance's frames x [t, d], for a batch of n hypotheses (a beam) of
   up to `most` tokens. */
typedef struct fl_speech_decoder_state fl_speech_decoder_state;
FL_API fl_speech_decoder_state *fl_speech_decoder_state_new(fl_nn_module *m, fl_tensor *x, int64_t n,
                                                            int64_t most);
FL_API void fl_speech_decoder_state_free(fl_speech_decoder_state *s); /* NULL is allowed */
/* Appends tokens i64 [n] (NULL at the start). Returns the log probabilities [n, classes] of the next token;
   NULL after an error. */
FL_API fl_tensor *fl_speech_decoder_state_next(fl_speech_decoder_state *s, fl_tensor *tokens);
/* Hypothesis i becomes a copy of hypothesis from[i]. */
FL_API bool fl_speech_decoder_state_reorder(fl_speech_decoder_state *s, fl_tensor *from);
/* The attention weights [n, t] of the last step; owned by s. */
FL_API fl_tensor *fl_speech_decoder_state_weights(const fl_speech_decoder_state *s);
/* Greedy decoding until eos, at most `most` tokens. Returns their number in out, -1 after an error. */
FL_API int64_t fl_speech_attend_greedy(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_ATTEND_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_ATTEND) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_ATTEND_IMPL
#define FL_SPEECH_ATTEND_IMPL
#include "../ops/attention.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/embedding.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/loss.h"
#include "../ops/order.h"
#include "../ops/position.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- attentions ---- */

/* Inputs of an attention: states q [n, u, d], keys k and values v [n, t, d], the last weights a [n, 1, t]
   (NULL if the attention does not use them). The submodules of m are created by the table's functions. */
typedef struct fl__attend_input {
    fl_nn_module *m;
    fl_var *q, *k, *v, *a, *bias; /* bias: log of window and mask, broadcastable to [n, u, t] */
} fl__attend_input;

typedef struct fl__attention_kind {
    const char *name;
    fl_var *(*scores)(const fl__attend_input *c); /* [n, u, t]; NULL: multi-head attention */
    bool (*make)(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o);
    bool reads_last, keyvalue, split;
} fl__attention_kind;

static fl_var *fl__attend_dot(fl_var *q, fl_var *k) { return fv_matmul(q, fv_transpose(k, 1, 2)); }

static fl_var *fl__attend_content(const fl__attend_input *c) {
    return fv_div(fl__attend_dot(c->q, c->k), fv_num(sqrt((double)fv_value(c->q)->shape[2])));
}

/* Convolution of the last weights: [n, channels, t]. */
static fl_var *fl__attend_conv(const fl__attend_input *c) {
    return fl_nn_forward(fl_nn_find(c->m, "conv"), c->a);
}

static fl_var *fl__attend_neural(const fl__attend_input *c) {
    fl_var *sum = fv_add(fv_unsqueeze(c->q, 2), fv_unsqueeze(c->k, 1)); /* [n, u, t, d] */
    return fv_squeeze(fl_nn_forward(fl_nn_find(c->m, "linear"), fv_relu(sum)), 3);
}

static fl_var *fl__attend_simple_location(const fl__attend_input *c) {
    return fv_add(fl__attend_dot(c->q, c->k), fv_relu(fl__attend_conv(c)));
}

static fl_var *fl__attend_location(const fl__attend_input *c) {
    return fv_add(fl__attend_dot(c->q, c->k), fv_matmul(c->q, fv_relu(fl__attend_conv(c))));
}

static fl_var *fl__attend_neural_location(const fl__attend_input *c) {
    fl_var *place = fl_nn_forward(fl_nn_find(c->m, "place"), fv_transpose(fl__attend_conv(c), 1, 2));
    fl_var *q = fl_nn_forward(fl_nn_find(c->m, "query"), c->q),
           *k = fl_nn_forward(fl_nn_find(c->m, "key"), c->k);
    fl_var *x = fv_tanh(fv_add(fv_add(q, k), place)); /* q has one step: [n, 1, d] */
    return fv_transpose(fl_nn_forward(fl_nn_find(c->m, "linear"), x), 1, 2);
}

static bool fl__attend_add_conv(fl_nn_module *m, int64_t channels, const fl_speech_attend_opts *o) {
    return fl_nn_add(m, "conv", fl_nn_conv1d(1, channels, fl_option_int(o->kernel, 7), .pad = FL_SAME,
                                             .rng = o->rng)) != NULL;
}

static bool fl__attend_add_linear(fl_nn_module *m, const char *name, int64_t in, int64_t out, bool no_bias,
                                  const fl_speech_attend_opts *o) {
    return fl_nn_add(m, name, fl_nn_linear(in, out, .no_bias = no_bias, .rng = o->rng)) != NULL;
}

static bool fl__attend_make_neural(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    return fl__attend_add_linear(m, "linear", d, 1, false, o);
}

static bool fl__attend_make_simple_location(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    (void)d;
    return fl__attend_add_conv(m, 1, o);
}

static bool fl__attend_make_location(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    return fl__attend_add_conv(m, d, o);
}

static bool fl__attend_make_neural_location(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    const int64_t channels = fl_option_int(o->channels, 4), to = fl_option_int(o->attention_dim, d);
    return fl__attend_add_conv(m, channels, o) && fl__attend_add_linear(m, "place", channels, to, true, o) &&
           fl__attend_add_linear(m, "query", d, to, false, o) &&
           fl__attend_add_linear(m, "key", d, to, true, o) &&
           fl__attend_add_linear(m, "linear", to, 1, true, o);
}

static bool fl__attend_make_split(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    return fl__attend_add_linear(m, "output", d, d, false, o);
}

static bool fl__attend_make_heads(fl_nn_module *m, int64_t d, const fl_speech_attend_opts *o) {
    return fl__attend_add_linear(m, "query", d, d, false, o) &&
           fl__attend_add_linear(m, "key", d, d, false, o) &&
           fl__attend_add_linear(m, "value", d, d, false, o) && fl__attend_make_split(m, d, o);
}

static const fl__attention_kind fl__attention_kinds[] = {
    {"content", fl__attend_content, NULL, false, false, false},
    {"keyvalue", fl__attend_content, NULL, false, true, false},
    {"neural", fl__attend_neural, fl__attend_make_neural, false, false, false},
    {"simpleloc", fl__attend_simple_location, fl__attend_make_simple_location, true, false, false},
    {"location", fl__attend_location, fl__attend_make_location, true, false, false},
    {"neuralloc", fl__attend_neural_location, fl__attend_make_neural_location, true, false, false},
    {"multi", NULL, fl__attend_make_heads, false, false, false},
    {"multikv", NULL, fl__attend_make_heads, false, true, false},
    {"multisplit", NULL, fl__attend_make_split, false, false, true},
    {"multikvsplit", NULL, fl__attend_make_split, false, true, true}};

/* [n, s, d] -> [n, heads, s, d / heads] */
static fl_var *fl__attend_heads(fl_nn_module *projection, fl_var *x, int64_t heads) {
    if (projection) x = fl_nn_forward(projection, x);
    if (!x) return NULL;
    const int64_t *s = fv_value(x)->shape;
    return fv_transpose(fv_reshape(x, FL_SHAPE(s[0], s[1], heads, s[2] / heads)), 1, 2);
}

/* The context vectors [n, u, d] and the weights [n, u, t], for heads their mean. */
static fl_var *fl__attend_run(const fl__attention_kind *kind, const fl__attend_input *c, int64_t heads,
                              fl_var **weights) {
    if (kind->scores) {
        fl_var *scores = kind->scores(c);
        if (c->bias) scores = fv_add(scores, c->bias);
        *weights = fv_softmax(scores, 2);
        return fv_matmul(*weights, c->v);
    }
    const char *const names[] = {"query", "key", "value"};
    fl_var *part[3] = {c->q, c->k, c->v};
    for (int i = 0; i < 3; i++) {
        fl_nn_module *p = kind->split ? NULL : fl_nn_find(c->m, names[i]);
        if (!(part[i] = fl__attend_heads(p, part[i], heads))) return NULL;
    }
    const double scale = sqrt((double)fv_value(part[0])->shape[3]);
    fl_var *scores = fv_div(fv_matmul(part[0], fv_transpose(part[1], 2, 3)), fv_num(scale));
    if (c->bias) scores = fv_add(scores, fv_unsqueeze(c->bias, 1));
    fl_var *w = fv_softmax(scores, 3), *y = fv_transpose(fv_matmul(w, part[2]), 1, 2);
    *weights = fv_mean(w, FL_AXES(1));
    y = fv_reshape(y, fl_shape_of(fv_value(c->q)));
    return *weights ? fl_nn_forward(fl_nn_find(c->m, "output"), y) : NULL;
}

/* ---- attention windows: logarithms that are added to scores ---- */

enum { FL__ATTEND_HIDDEN = -10000 }; /* in place of log 0 */

/* Window at frame t of `steps` for token u of `of`. */
static double fl__attend_window_soft(const fl_speech_attend_opts *o, int64_t u, int64_t of, int64_t t,
                              int64_t steps) {
    const double rate = fl_option(o->rate, 5), width = fl_option(o->width, 5);
    const double center = round(fmin(fl_option(o->offset, 10) + (double)u * rate, (double)steps - rate));
    (void)of;
    return -((double)t - center) * ((double)t - center) / (2 * width * width);
}

static double fl__attend_window_soft_pretrain(const fl_speech_attend_opts *o, int64_t u, int64_t of,
                                              int64_t t, int64_t steps) {
    const double width = fl_option(o->width, 5), center = (double)u * (double)steps / (double)of;
    return -((double)t - center) * ((double)t - center) / (2 * width * width);
}

static double fl__attend_window_step(const fl_speech_attend_opts *o, int64_t u, int64_t of, int64_t t,
                              int64_t steps) {
    const double from = fmin((double)steps - fl_option(o->max_rate, 10),
                             o->min_frames + (double)u * fl_option(o->min_rate, 3));
    const double to = fl_option(o->max_frames, 50) + (double)u * fl_option(o->max_rate, 10);
    (void)of;
    return (double)t >= fmax(0, round(from)) && (double)t < round(to) ? 0 : FL__ATTEND_HIDDEN;
}

static const struct {
    const char *name;
    double (*at)(const fl_speech_attend_opts *o, int64_t u, int64_t of, int64_t t, int64_t steps);
    bool decodes; /* usable in decoding, when the number of tokens is unknown */
} fl__attend_windows[] = {{"soft", fl__attend_window_soft, true},
                   {"soft_pretrain", fl__attend_window_soft_pretrain, false},
                   {"step", fl__attend_window_step, true},
                   {"median", NULL, true}}; /* depends on the last weights */

/* ---- the decoder ---- */

typedef struct fl__speech_attend {
    fl_speech_attend_opts o;
    const fl__attention_kind *kind;
    int64_t hidden, classes, eos, rounds, heads;
    int window; /* -1: none */
    double warm;
} fl__speech_attend;

/* State carried from token to token: per round the GRU's state; the last weights and context vector. */
typedef struct fl__attend_state {
    fl_var *h[16], *weights, *summary;
    fl_nn_cache **cache; /* of transformer layers in incremental decoding; NULL: all tokens at once */
} fl__attend_state;
enum { FL__ATTEND_ROUNDS = 16 };

/* [n, 1 or u, t]: the logarithm of the window, or 0, for tokens from `first` on; frames beyond a sequence's
   end are masked. */
static fl_tensor *fl__attend_bias(const fl__speech_attend *a, fl_tensor *steps, int64_t t, int64_t first,
                                  int64_t u, int64_t of, double windowed) {
    const int64_t n = steps->shape[0], tokens = windowed > 0 ? u : 1;
    fl_tensor *y = fl_empty(FL_SHAPE(n, tokens, t), FL_F32);
    const int64_t *count = y ? fl_map(steps, FL_READ) : NULL;
    float *p = count ? fl_map(y, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < n * tokens * t; i++) {
        const int64_t at = i % t, k = i / t % tokens, frames = count[i / t / tokens];
        p[i] = at >= frames ? FL__ATTEND_HIDDEN
               : windowed > 0
                   ? (float)(windowed *
                             fl__attend_windows[a->window].at(&a->o, first + k, of, at, frames))
                   : 0;
    }
    if (p) fl_unmap(y, FL_WRITE);
    if (count) fl_unmap(steps, FL_READ);
    return p ? y : NULL;
}

/* Median window: `left` frames before to `right` after the frame where the cumulative weights pass 1/2. */
static fl_tensor *fl__attend_median(const fl__speech_attend *a, fl_tensor *bias, const fl_var *last,
                                    fl_tensor *steps) {
    const int64_t left = fl_option_int(a->o.left, 50), right = fl_option_int(a->o.right, 50);
    fl_tensor *w = fl_contiguous(fl_cast(fv_value(last), FL_F32));
    const float *weight = w ? fl_map(w, FL_READ) : NULL;
    const int64_t *count = weight ? fl_map(steps, FL_READ) : NULL;
    float *y = count ? fl_map(bias, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; y && i < w->shape[0]; i++) {
        const int64_t t = w->shape[2], frames = count[i];
        const float *p = weight + i * t;
        int64_t middle = 0;
        for (double sum = p[0]; sum < 0.5 && middle + 1 < frames; sum += p[++middle]) {}
        int64_t from = middle - left < frames - left - right ? middle - left : frames - left - right;
        if (from < 0) from = 0;
        for (int64_t k = 0; k < t; k++)
            if (k < from || k >= from + left + right) y[i * t + k] = FL__ATTEND_HIDDEN;
    }
    if (y) fl_unmap(bias, FL_READ | FL_WRITE);
    if (count) fl_unmap(steps, FL_READ);
    if (weight) fl_unmap(w, FL_READ);
    return y ? bias : NULL;
}

static fl_nn_module *fl__attend_part(fl_nn_module *m, int64_t round, const char *part) {
    char path[64];
    snprintf(path, sizeof path, "rounds.%" PRId64 ".%s", round, part);
    return fl_nn_find(m, path);
}

/* Runs the state of a round on h [n, u, d]. */
static fl_var *fl__attend_advance(fl_nn_module *m, int64_t round, fl_var *h, fl__attend_state *s) {
    const fl__speech_attend *a = m->data;
    fl_nn_module *state = fl__attend_part(m, round, "state");
    if (a->o.transformer) {
        if (!s->cache) return fl_nn_forward(state, h);
        return fl_nn_forward_cached(state, FL_VARS(h), s->cache[round]).v[0];
    }
    fl_vars in = {s->h[round] ? 2 : 1, {h, s->h[round]}};
    fl_vars out = fl_nn_forward_vars(state, in);
    s->h[round] = out.n > 1 ? out.v[1] : NULL;
    return out.n ? out.v[0] : NULL;
}

/* Scores [n, u, classes] after embedded tokens [n, u, d], the first of which has index `first` of `of`. */
static fl_var *fl__attend_step(fl_nn_module *m, fl_var *h, fl_var *x, fl_tensor *steps, int64_t first,
                               int64_t of, fl__attend_state *s) {
    const fl__speech_attend *a = m->data;
    const int64_t d = a->hidden, t = fv_value(x)->shape[1];
    const bool windowed = a->window >= 0 && (m->train ? a->warm > 0 || a->o.window_always
                                                      : fl__attend_windows[a->window].decodes);
    const bool median = windowed && !fl__attend_windows[a->window].at;
    const double share = !windowed || median ? 0 : m->train && !a->o.window_always ? a->warm : 1;
    fl_tensor *bias =
        h ? fl__attend_bias(a, steps, t, first, fv_value(h)->shape[1], of, share) : NULL;
    if (bias && median && s->weights) bias = fl__attend_median(a, bias, s->weights, steps);
    fl__attend_input c = {.bias = bias ? fv_const(bias) : NULL, .a = s->weights, .k = x, .v = x};
    if (!c.bias) return NULL;
    if (a->kind->keyvalue) c.k = fv_slice(x, 2, 0, d, 1), c.v = fv_slice(x, 2, d, 2 * d, 1);
    if (a->o.input_feeding && s->summary) h = fv_add(h, s->summary);
    if (a->kind->reads_last && !c.a)
        c.a = fv_const(fl_full(FL_SHAPE(steps->shape[0], 1, t), 0, FL_F32));
    for (int64_t r = 0; h && r < a->rounds; r++) {
        if (!(c.q = h = fl__attend_advance(m, r, h, s))) return NULL;
        if (!(c.m = fl__attend_part(m, r, "attention"))) continue;
        s->summary = fl__attend_run(a->kind, &c, a->heads, &s->weights);
        h = s->summary ? fv_add(h, s->summary) : NULL;
    }
    return h ? fl_nn_forward(fl_nn_find(m, "out"), h) : NULL;
}

static bool fl__attend_is(const fl_nn_module *m);

static fl_var *fl__attend_start(fl_nn_module *m, int64_t n) {
    const int64_t d = ((const fl__speech_attend *)m->data)->hidden;
    return fv_expand(fv_reshape(fl_nn_param_at(m, 0), FL_SHAPE(1, 1, d)), FL_SHAPE(n, 1, d));
}

static fl_var *fl__attend_embed(fl_nn_module *m, fl_tensor *tokens) {
    return tokens ? fl_nn_forward(fl_nn_find(m, "embed"), fv_const(tokens)) : NULL;
}

/* Targets with a random subset replaced by random tokens other than the last class. */
static fl_tensor *fl__attend_replaced(const fl__speech_attend *a, fl_tensor *target) {
    fl_tensor *drawn = fl_uniform(fl_shape_of(target), 0, 1, FL_F32, a->o.rng);
    fl_tensor *other = fl_randint(fl_shape_of(target), 0, a->classes - 1, a->o.rng);
    return drawn && other ? fl_where(fl_lt(drawn, fl_num(a->o.replaced)), other, target) : NULL;
}

/* The next input from the last scores [n, 1, classes]: the embedded best token, or a Gumbel-softmax mix. */
static fl_var *fl__attend_sampled(fl_nn_module *m, fl_var *scores) {
    const fl__speech_attend *a = m->data;
    if (!strcmp(a->o.sampling, "model")) return fl__attend_embed(m, fl_argmax(fv_value(scores), 2, false));
    fl_tensor *u = fl_uniform(fl_shape_of(fv_value(scores)), 1e-9, 1, FL_F32, a->o.rng);
    fl_tensor *g = fl_neg(fl_log(fl_neg(fl_log(u))));
    if (!g) return NULL;
    fl_var *p = fv_softmax(fv_div(fv_add(scores, fv_const(g)), fv_num(fl_option(a->o.temperature, 1))), 2);
    return fv_matmul(p, fl_nn_get_param(m, "embed.weight"));
}

/* Runs the decoder token by token. */
static fl_var *fl__attend_in_steps(fl_nn_module *m, fl_var *h, fl_var *x, fl_tensor *steps,
                                   fl_var **weights) {
    const fl__speech_attend *a = m->data;
    const int64_t u = fv_value(h)->shape[1];
    const bool sampled = m->train && a->o.replaced > 0 && a->o.sampling && strcmp(a->o.sampling, "rand") != 0;
    fl__attend_state s = {.cache = NULL};
    fl_var **y = fl_heap_alloc((size_t)(2 * u) * sizeof *y), *next = NULL, *all = NULL;
    bool ok = y != NULL;
    for (int64_t k = 0; ok && k < u; k++) {
        fl_var *in = k && sampled ? next : fv_slice(h, 1, k, k + 1, 1);
        ok = (y[k] = fl__attend_step(m, in, x, steps, k, u, &s)) != NULL && (y[u + k] = s.weights) != NULL &&
             (!sampled || (next = fl__attend_sampled(m, y[k])) != NULL);
    }
    if (ok) all = fv_concat(y, (int)u, 1);
    if (ok && weights) *weights = fv_concat(y + u, (int)u, 1);
    fl_heap_free(y);
    return all;
}

FL_API fl_var *fl_speech_attend_scores(fl_nn_module *m, fl_var *x, fl_tensor *steps, fl_tensor *target,
                                       fl_var **weights) {
    const char *fn = "fl_speech_attend";
    if (!fl__attend_is(m) || fl_is_null_arg(fn, x) || fl_is_null_arg(fn, steps) || fl_is_null_arg(fn, target))
        return NULL;
    const fl__speech_attend *a = m->data;
    const fl_tensor *v = fv_value(x);
    if (v->ndim != 3 || v->shape[1] < 1 || v->shape[2] != a->hidden * (1 + a->kind->keyvalue) ||
        target->ndim != 2 || target->dtype != FL_I64 || target->shape[0] != v->shape[0] || steps->ndim != 1 ||
        steps->dtype != FL_I64 || steps->shape[0] != v->shape[0]) {
        fl_err_false("%s: got frames %s, targets %s, steps %s; expected [n, t > 0, %lld], i64 [n, u], i64 "
                     "[n]", fn, FL_SHAPE_TEXT(v), FL_SHAPE_TEXT(target), FL_SHAPE_TEXT(steps),
                     (long long)(a->hidden * (1 + a->kind->keyvalue)));
        return NULL;
    }
    fl_scope s = fl_scope_begin();
    steps = fl_contiguous(steps), target = fl_contiguous(target);
    if (m->train && a->o.replaced > 0 && (!a->o.sampling || !strcmp(a->o.sampling, "rand")))
        target = fl__attend_replaced(a, target);
    fl_var *parts[] = {fl__attend_start(m, v->shape[0]), fl__attend_embed(m, target)};
    fl_var *h = parts[0] && parts[1] ? fv_concat(parts, 2, 1) : NULL, *w = NULL, *y = NULL;
    const bool one_by_one = !a->o.transformer && (a->kind->reads_last || a->o.input_feeding ||
                                                  (a->o.replaced > 0 && a->o.sampling) ||
                                                  (a->window >= 0 && !fl__attend_windows[a->window].at));
    fl__attend_state state = {.cache = NULL};
    if (h && steps && one_by_one) y = fl__attend_in_steps(m, h, x, steps, &w);
    else if (h && steps) {
        y = fl__attend_step(m, h, x, steps, 0, fv_value(h)->shape[1], &state);
        w = state.weights;
    }
    if (weights && y) *weights = w, fl_scope_escape(&s, w);
    return fv_scope_return(&s, y);
}

FL_API fl_var *fl_speech_attend_loss(fl_nn_module *m, fl_var *x, fl_tensor *steps, fl_tensor *target,
                                     fl_tensor *lengths) {
    if (!fl__attend_is(m) || fl_is_null_arg("fl_speech_attend_loss", lengths)) return NULL;
    const fl__speech_attend *a = m->data;
    fl_scope s = fl_scope_begin();
    const int64_t n = target ? target->shape[0] : 0, u = target && target->ndim == 2 ? target->shape[1] : 0;
    fl_tensor *place = fl_arange(0, (double)u + 1, 1, FL_I64), *end = fl_unsqueeze(lengths, 1);
    fl_tensor *inside = place && end ? fl_lt(fl_slice(place, 0, 0, u, 1), end) : NULL;
    fl_tensor *safe = inside ? fl_where(inside, target, fl_int(a->eos)) : NULL;
    fl_var *y = safe ? fl_speech_attend_scores(m, x, steps, safe, NULL) : NULL;
    fl_tensor *eos = fl_full(FL_SHAPE(n, 1), (double)a->eos, FL_I64);
    fl_tensor *parts[] = {safe, eos}, *want = safe && eos ? fl_concat(parts, 2, 1) : NULL;
    if (!y || !want) return fv_scope_return(&s, NULL);
    want = fl_where(fl_le(place, end), want, fl_int(-100));
    fl_var *flat = fv_reshape(y, FL_SHAPE(n * (u + 1), a->classes));
    fl_var *each = fv_cross_entropy(flat, fl_reshape(want, FL_SHAPE(n * (u + 1))), .reduction = FL_NONE,
                                    .smoothing = a->o.smoothing);
    return fv_scope_return(&s, each ? fv_sum(fv_reshape(each, FL_SHAPE(n, u + 1)), FL_AXES(1)) : NULL);
}

/* ---- incremental decoding ---- */

struct fl_speech_decoder_state {
    fl_nn_module *m;
    fl_var *x, *h[FL__ATTEND_ROUNDS], *weights, *summary;
    fl_tensor *steps;
    fl_nn_cache *cache[FL__ATTEND_ROUNDS];
    int64_t n, at, most;
};

FL_API void fl_speech_decoder_state_free(fl_speech_decoder_state *s) {
    if (!s) return;
    for (int i = 0; i < FL__ATTEND_ROUNDS; i++) fv_drop(s->h[i]), fl_nn_cache_free(s->cache[i]);
    fv_drop(s->x), fv_drop(s->weights), fv_drop(s->summary), fl_drop(s->steps);
    fl_heap_free(s);
}

FL_API fl_speech_decoder_state *fl_speech_decoder_state_new(fl_nn_module *m, fl_tensor *x, int64_t n,
                                                            int64_t most) {
    if (!fl__attend_is(m) || fl_is_null_arg("fl_speech_decoder_state_new", x)) return NULL;
    const fl__speech_attend *a = m->data;
    if (x->ndim != 2 || x->shape[0] < 1 || n < 1 || most < 1) {
        fl_err_false("fl_speech_decoder_state_new: got frames %s, n %lld, most %lld; expected [t > 0, d] and "
                     "positive numbers", FL_SHAPE_TEXT(x), (long long)n, (long long)most);
        return NULL;
    }
    fl_speech_decoder_state *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    *s = (fl_speech_decoder_state){.m = m, .n = n, .most = most};
    fl_scope scope = fl_scope_begin();
    fl_tensor *all = fl_expand(fl_unsqueeze(x, 0), FL_SHAPE(n, x->shape[0], x->shape[1]));
    s->x = fv_keep(all ? fv_const(all) : NULL);
    s->steps = fl_keep(fl_full(FL_SHAPE(n), (double)x->shape[0], FL_I64));
    bool ok = s->x && s->steps;
    for (int64_t r = 0; ok && a->o.transformer && r < a->rounds; r++)
        ok = (s->cache[r] = fl_nn_cache_new(fl__attend_part(m, r, "state"), n, most)) != NULL;
    fl_scope_end(&scope);
    if (ok) return s;
    fl_speech_decoder_state_free(s);
    return NULL;
}

static void fl__attend_keep(fl_var **slot, fl_var *v) {
    fv_keep(v);
    fv_drop(*slot);
    *slot = v;
}

FL_API fl_tensor *fl_speech_decoder_state_next(fl_speech_decoder_state *s, fl_tensor *tokens) {
    if (!fl_given(s, "fl_speech_decoder_state_next", "the state")) return NULL;
    const fl__speech_attend *a = s->m->data;
    if (s->at == s->most)
        return fl_err_null("fl_speech_decoder_state_next: the state was made for %lld tokens",
                           (long long)s->most);
    if (tokens && (tokens->dtype != FL_I64 || fl_numel(tokens) != s->n))
        return fl_err_null("fl_speech_decoder_state_next: got tokens %s %s, expected i64 [%lld]",
                           fl_dtype_name(tokens->dtype), FL_SHAPE_TEXT(tokens), (long long)s->n);
    fl_scope scope = fl_scope_begin();
    const bool recorded = fl_no_grad(true);
    fl__attend_state state = {
        .weights = s->weights, .summary = s->summary, .cache = a->o.transformer ? s->cache : NULL};
    memcpy(state.h, s->h, sizeof state.h);
    fl_var *in = tokens ? fl__attend_embed(s->m, fl_reshape(tokens, FL_SHAPE(s->n, 1)))
                        : fl__attend_start(s->m, s->n);
    fl_var *y = in ? fl__attend_step(s->m, in, s->x, s->steps, s->at, s->most, &state) : NULL;
    fl_tensor *p = y ? fl_log_softmax(fl_select(fv_value(y), 1, 0), 1) : NULL;
    for (int i = 0; p && i < FL__ATTEND_ROUNDS; i++) fl__attend_keep(&s->h[i], state.h[i]);
    if (p)
        fl__attend_keep(&s->weights, state.weights), fl__attend_keep(&s->summary, state.summary), s->at++;
    fl_no_grad(recorded);
    return fl_scope_return(&scope, p);
}

FL_API bool fl_speech_decoder_state_reorder(fl_speech_decoder_state *s, fl_tensor *from) {
    if (!fl_given(s, "fl_speech_decoder_state_reorder", "the state") ||
        !fl_given(from, "fl_speech_decoder_state_reorder", "the order")) return false;
    fl_scope scope = fl_scope_begin();
    fl_var *moved[FL__ATTEND_ROUNDS + 2], **slot[FL__ATTEND_ROUNDS + 2];
    int count = 0;
    bool ok = true;
    for (int i = 0; i < FL__ATTEND_ROUNDS; i++) slot[count++] = &s->h[i];
    slot[count++] = &s->weights, slot[count++] = &s->summary;
    for (int i = 0; ok && i < count; i++) { /* axis 1 of a GRU's state is the batch */
        moved[i] =
            *slot[i] ? fv_const(fl_index_select(fv_value(*slot[i]), i < FL__ATTEND_ROUNDS, from)) : NULL;
        ok = !*slot[i] || moved[i];
    }
    for (int i = 0; ok && i < FL__ATTEND_ROUNDS; i++)
        if (s->cache[i]) ok = fl_nn_cache_reorder(s->cache[i], from);
    for (int i = 0; ok && i < count; i++) fl__attend_keep(slot[i], moved[i]);
    fl_scope_end(&scope);
    return ok;
}

FL_API fl_tensor *fl_speech_decoder_state_weights(const fl_speech_decoder_state *s) {
    if (!fl_given(s, "fl_speech_decoder_state_weights", "the state")) return NULL;
    return s->weights ? fl_select(fv_value(s->weights), 1, 0) : NULL;
}

FL_API int64_t fl_speech_attend_greedy(fl_nn_module *m, fl_tensor *x, int64_t *out, int64_t most) {
    fl_speech_decoder_state *s = fl_speech_decoder_state_new(m, x, 1, most + 1);
    const int64_t eos = s ? ((const fl__speech_attend *)m->data)->eos : 0;
    int64_t n = 0, token = -1;
    for (; s && n <= most; n++) {
        fl_scope scope = fl_scope_begin();
        fl_tensor *last = n ? fl_from_host(&token, FL_SHAPE(1), FL_I64) : NULL;
        fl_tensor *p = n && !last ? NULL : fl_speech_decoder_state_next(s, last);
        fl_tensor *best = p ? fl_argmax(p, 1, false) : NULL;
        token = best ? fl_item_int(best) : -1;
        fl_scope_end(&scope);
        if (token < 0 || token == eos || n == most) break;
        out[n] = token;
    }
    const bool failed = !s || token < 0;
    fl_speech_decoder_state_free(s);
    return failed ? -1 : n;
}

/* ---- construction ---- */

static fl_vars fl__attend_forward(fl_nn_module *m, fl_vars in) {
    if (in.n != 3) return fl_nn_fail(m, "got %d inputs, expected 3: frames, steps and targets", in.n);
    fl_var *y = fl_speech_attend_scores(m, in.v[0], fv_value(in.v[1]), fv_value(in.v[2]), NULL);
    return (fl_vars){y != NULL, {y}};
}

static void fl__attend_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__speech_attend *a = m->data;
    snprintf(buf, size, "%" PRId64 ", %" PRId64 ", attention=%s", a->hidden, a->classes, a->kind->name);
}

static const fl_nn_type fl__attend_type = {.name = "SpeechAttend", .maker = "fl_speech_attend",
                                           .forward = fl__attend_forward, .describe = fl__attend_describe};

static bool fl__attend_is(const fl_nn_module *m) {
    return (m && m->type == &fl__attend_type) ||
           fl_err_false("fl_speech_attend: the module is not an attention decoder");
}

FL_API bool fl_speech_attend_warmup(fl_nn_module *m, double share) {
    if (!fl__attend_is(m)) return false;
    ((fl__speech_attend *)m->data)->warm = share;
    return true;
}

static fl_nn_module *fl__attend_state_of(const fl__speech_attend *a) {
    const int64_t d = a->hidden;
    if (!a->o.transformer)
        return fl_nn_gru(d, d, .layers = (int)fl_option_int(a->o.layers, 1), .dropout = a->o.dropout,
                         .rng = a->o.rng);
    return fl_nn_transformer(d, a->heads, 4 * d, .causal = true, .norm_first = true, .dropout = a->o.dropout,
                             .attention = {.relative = fl_option_int(a->o.distances, 512)}, .rng = a->o.rng);
}

static bool fl__attend_round(fl_nn_module *list, const fl__speech_attend *a, bool attends) {
    fl_nn_module *round = fl_nn_add(list, NULL, fl_nn_module_list_of(0, NULL));
    if (!round || !fl_nn_add(round, "state", fl__attend_state_of(a))) return false;
    if (!attends) return true;
    fl_nn_module *attention = fl_nn_add(round, "attention", fl_nn_module_list_of(0, NULL));
    return attention && (!a->kind->make || a->kind->make(attention, a->hidden, &a->o));
}

static bool fl__attend_fill(fl_nn_module *m) {
    const fl__speech_attend *a = m->data;
    fl_tensor *start = fl_uniform(FL_SHAPE(a->hidden), -0.1, 0.1, FL_F32, a->o.rng);
    fl_nn_module *rounds = NULL;
    bool ok = fl_nn_add_param(m, "start", start ? fv_param(start) : NULL) &&
              fl_nn_add(m, "embed", fl_nn_embedding(a->classes, a->hidden, .rng = a->o.rng)) &&
              (rounds = fl_nn_add(m, "rounds", fl_nn_module_list_of(0, NULL)));
    for (int64_t r = 0; ok && r < a->rounds; r++)
        ok = fl__attend_round(rounds, a, !a->o.attend_last || r == a->rounds - 1);
    return ok && fl_nn_add(m, "out", fl_nn_linear(a->hidden, a->classes, .rng = a->o.rng));
}

/* Looks up the names in the options and checks the sizes. Returns false after fl_fail. */
static bool fl__attend_resolve(fl__speech_attend *a) {
    const char *fn = "fl_speech_attend", *name = a->o.attention     ? a->o.attention
                                                 : a->o.transformer ? "multi"
                                                                    : "content";
    const char *sampling = a->o.sampling ? a->o.sampling : "rand";
    for (size_t i = 0; i < sizeof fl__attention_kinds / sizeof *fl__attention_kinds; i++)
        if (!strcmp(name, fl__attention_kinds[i].name)) a->kind = &fl__attention_kinds[i];
    for (int i = 0; a->o.window && i < 4; i++)
        if (!strcmp(a->o.window, fl__attend_windows[i].name)) a->window = i;
    if (!a->kind)
        return fl_fail("%s: no attention '%s'; known: content, keyvalue, neural, simpleloc, location, "
                       "neuralloc, multi, multikv, multisplit, multikvsplit", fn, name);
    if (a->o.window && a->window < 0)
        return fl_fail("%s: no window '%s'; known: soft, soft_pretrain, step, median", fn, a->o.window);
    if (strcmp(sampling, "rand") != 0 && strcmp(sampling, "model") != 0 && strcmp(sampling, "gumbel") != 0)
        return fl_fail("%s: no sampling '%s'; known: rand, model, gumbel", fn, sampling);
    if (a->o.transformer && (a->kind->reads_last || a->o.input_feeding || strcmp(sampling, "rand") != 0 ||
                             (a->window >= 0 && !fl__attend_windows[a->window].at)))
        return fl_fail("%s: a transformer processes all tokens at once: expected no attention to last "
                       "weights, input feeding, sampling from the model or median window, got attention %s",
                       fn, a->kind->name);
    if (a->hidden < 1 || a->classes < 2 || a->eos < 0 || a->eos >= a->classes || a->rounds < 1 ||
        a->rounds > FL__ATTEND_ROUNDS || a->heads < 1 || (!a->kind->scores && a->hidden % a->heads))
        return fl_fail("%s: got hidden %lld, heads %lld, classes %lld, eos %lld, rounds %lld; expected heads "
                       "that divide hidden, 2 or more classes, eos a class, 1 to %d rounds", fn,
                       (long long)a->hidden,
                       (long long)a->heads, (long long)a->classes, (long long)a->eos, (long long)a->rounds,
                       FL__ATTEND_ROUNDS);
    return true;
}

FL_API fl_nn_module *fl_speech_attend_opt(int64_t hidden, int64_t classes,
                                          fl_speech_attend_opts o) {
    fl__speech_attend a = {.o = o, .hidden = hidden, .classes = classes, .window = -1, .warm = 1};
    a.eos = o.eos ? fl_option_int(o.eos, 0) : classes - 1;
    a.rounds = fl_option_int(o.rounds, 1), a.heads = fl_option_int(o.heads, 8);
    if (!fl__attend_resolve(&a)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__attend_type, &a, sizeof a);
    const bool ok = m && fl__attend_fill(m);
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

#endif
#endif

/* MIT licence: see LICENSE. */
