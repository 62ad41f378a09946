/* fl/nn/recurrent.h - recurrent layers: RNN, LSTM, GRU */
#ifndef FL_NN_RECURRENT_H
#define FL_NN_RECURRENT_H
#include "../ops/recurrent.h"
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_rnn_opts {
    fl_opts_guard guard_;
    int layers;         /* 0 -> 1 */
    bool bidirectional;
    double dropout;     /* on the outputs of each layer but the last, in training */
    int64_t projection; /* fl_nn_lstm: features of h, fewer than hidden (PyTorch's proj_size); 0: none */
    bool relu;          /* fl_nn_rnn: relu instead of tanh */
    bool time_first;    /* x and y are [t, n, ...], as PyTorch's default; otherwise [n, t, ...] */
    bool output_only;   /* return y only, for use in containers */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;        /* of the initial values and dropout; NULL -> the global generator; must outlive it */
    char _end;
} fl_nn_rnn_opts;
/* Recurrent layers as nn.RNN, nn.LSTM and nn.GRU (formulas: fl_rnn), with PyTorch's names and order of the
   parameters: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0 with a projection, then the
   same with _reverse for the other direction, then layer 1; all U(-1 / sqrt(hidden), 1 / sqrt(hidden)).
   Inputs: x [n, t, in]; optionally the initial state, h0 [layers directions, n, out] and for an LSTM c0
   [layers directions, n, hidden] (default: zeros); optionally last, i64 lengths [n], 1 to t: later steps are
   not computed and give 0. Results: y [n, t, directions out], the last h and, for an LSTM, c. */
#define fl_nn_rnn(...) FL_NN__RNN(rnn, __VA_ARGS__, ._end = 0)
#define fl_nn_lstm(...) FL_NN__RNN(lstm, __VA_ARGS__, ._end = 0)
#define fl_nn_gru(...) FL_NN__RNN(gru, __VA_ARGS__, ._end = 0)
#define FL_NN__RNN(kind, in, hidden, ...) \
    fl_nn_##kind##_opt(in, hidden, FL_LITERAL(fl_nn_rnn_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_rnn_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o);
FL_API fl_nn_module *fl_nn_lstm_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o);
FL_API fl_nn_module *fl_nn_gru_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_RECURRENT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_RECURRENT_IMPL
#define FL_NN_RECURRENT_IMPL
#include "../ops/random.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct fl__nn_rnn {
    int64_t in, hidden;
    fl_rnn_mode mode;
    fl_nn_rnn_opts o;
} fl__nn_rnn;

/* The weights as fl_rnn takes them, with NULL for absent biases. */
static fl_var **fl__nn_rnn_weights(const fl_nn_module *m, const fl__nn_rnn *r) {
    const int count = r->o.projection ? 5 : 4, groups = r->o.layers * (1 + r->o.bidirectional);
    fl_var **w = fl_heap_alloc((size_t)(groups * count) * sizeof *w);
    int64_t at = 0;
    for (int i = 0; w && i < groups * count; i++) {
        const int part = i % count;
        w[i] = r->o.no_bias && (part == 2 || part == 3) ? NULL : fl_nn_param_at(m, at++);
    }
    return w;
}

static fl_vars fl__nn_rnn_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_rnn *r = m->data;
    const int states = r->mode == FL_LSTM ? 2 : 1;
    fl_tensor *lengths = NULL;
    if (in.n > 1 && fv_value(in.v[in.n - 1])->dtype == FL_I64) lengths = fv_value(in.v[--in.n]);
    if (in.n != 1 && in.n != 1 + states)
        return fl_nn_fail(m, "got %d inputs without lengths, expected x alone or with %s", in.n,
                          states == 2 ? "h0 and c0" : "h0");
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 3 || x->shape[2] != r->in) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, expected %s with in = %" PRId64, fl_nn_shape_text(in.v[0], text),
                          r->o.time_first ? "[t, n, in]" : "[n, t, in]", r->in);
    }
    fl_var *last[2] = {NULL}, **w = fl__nn_rnn_weights(m, r);
    if (!w) return (fl_vars){0};
    fl_var *y = fv_rnn(r->mode, in.v[0], w, .h0 = in.n > 1 ? in.v[1] : NULL,
                       .c0 = in.n > 2 ? in.v[2] : NULL, .lengths = lengths, .layers = r->o.layers,
                       .bidirectional = r->o.bidirectional, .batch_first = !r->o.time_first,
                       .projected = r->o.projection != 0, .dropout = m->train ? r->o.dropout : 0,
                       .rng = r->o.rng, .h_out = &last[0], .c_out = &last[1]);
    fl_heap_free(w);
    if (!y || r->o.output_only) return (fl_vars){y ? 1 : 0, {y}};
    return (fl_vars){1 + states, {y, last[0], last[1]}};
}

static void fl__nn_rnn_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_rnn *r = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64, r->in, r->hidden);
    if (r->o.projection) fl_nn_put(&t, ", proj_size=%" PRId64, r->o.projection);
    if (r->o.layers > 1) fl_nn_put(&t, ", num_layers=%d", r->o.layers);
    if (r->o.no_bias) fl_nn_put(&t, ", bias=False");
    if (!r->o.time_first) fl_nn_put(&t, ", batch_first=True");
    if (r->o.dropout > 0) fl_nn_put(&t, ", dropout=%g", r->o.dropout);
    if (r->o.bidirectional) fl_nn_put(&t, ", bidirectional=True");
}

#define FL_NN__RNN_TYPE(printed, made_by) \
    {.name = printed, .maker = made_by, .forward = fl__nn_rnn_forward, .describe = fl__nn_rnn_describe}
static const fl_nn_type fl__nn_rnn_types[] = {[FL_RNN_TANH] = FL_NN__RNN_TYPE("RNN", "fl_nn_rnn"),
                                              [FL_RNN_RELU] = FL_NN__RNN_TYPE("RNN", "fl_nn_rnn"),
                                              [FL_GRU] = FL_NN__RNN_TYPE("GRU", "fl_nn_gru"),
                                              [FL_LSTM] = FL_NN__RNN_TYPE("LSTM", "fl_nn_lstm")};
#undef FL_NN__RNN_TYPE

/* Adds the parameters of one layer and direction. */
static bool fl__nn_rnn_fill(fl_nn_module *m, const fl__nn_rnn *r, int layer, bool reverse) {
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"};
    const int64_t rows = (r->mode == FL_LSTM ? 4 : r->mode == FL_GRU ? 3 : 1) * r->hidden;
    const int64_t out = r->o.projection ? r->o.projection : r->hidden;
    const int64_t in = layer ? (1 + r->o.bidirectional) * out : r->in;
    const fl_shape shapes[] = {FL_SHAPE(rows, in), FL_SHAPE(rows, out), FL_SHAPE(rows), FL_SHAPE(rows),
                               FL_SHAPE(out, r->hidden)};
    const double bound = 1 / sqrt((double)r->hidden);
    for (int i = 0; i < (r->o.projection ? 5 : 4); i++) {
        char name[FL_NN_NAME];
        if (r->o.no_bias && (i == 2 || i == 3)) continue;
        snprintf(name, sizeof name, "%s_l%d%s", names[i], layer, reverse ? "_reverse" : "");
        fl_tensor *w = fl_uniform(shapes[i], -bound, bound, r->o.dtype, r->o.rng);
        if (!fl_nn_add_param(m, name, fv_param(w))) return false;
    }
    return true;
}

static fl_nn_module *fl__nn_rnn_new(fl_rnn_mode mode, int64_t in, int64_t hidden, fl_nn_rnn_opts o) {
    const char *maker = fl__nn_rnn_types[mode].maker;
    if (!o.layers) o.layers = 1;
    const fl__nn_rnn r = {in, hidden, mode, o};
    if (in < 1 || in > INT32_MAX || hidden < 1 || hidden > INT32_MAX / 4 || o.layers < 1 ||
        o.layers > INT16_MAX || !(o.dropout >= 0 && o.dropout <= 1))
        return fl_err_null("%s: in, hidden and layers must be positive, dropout in [0, 1], got "
                           "in %" PRId64 ", hidden %" PRId64 ", layers %d, dropout %g", maker, in, hidden,
                           o.layers, o.dropout);
    if (o.projection && (mode != FL_LSTM || o.projection < 1 || o.projection >= hidden))
        return fl_err_null("%s: projection must be in [1, hidden) and is only for an LSTM, got %" PRId64 " "
                           "with hidden %" PRId64, maker, o.projection, hidden);
    if (!fl_nn_dtype_ok(maker, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__nn_rnn_types[mode], &r, sizeof r);
    bool ok = m != NULL;
    for (int layer = 0; ok && layer < o.layers; layer++)
        ok = fl__nn_rnn_fill(m, &r, layer, false) &&
             (!o.bidirectional || fl__nn_rnn_fill(m, &r, layer, true));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

FL_API fl_nn_module *fl_nn_rnn_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o) {
    return fl__nn_rnn_new(o.relu ? FL_RNN_RELU : FL_RNN_TANH, in, hidden, o);
}

FL_API fl_nn_module *fl_nn_lstm_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o) {
    return fl__nn_rnn_new(FL_LSTM, in, hidden, o);
}

FL_API fl_nn_module *fl_nn_gru_opt(int64_t in, int64_t hidden, fl_nn_rnn_opts o) {
    return fl__nn_rnn_new(FL_GRU, in, hidden, o);
}

#endif
#endif

/* MIT licence: see LICENSE. */
