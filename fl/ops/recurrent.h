/* fl/ops/recurrent.h - recurrent networks: cells, and layers of them over sequences

   rnn    h' = tanh, or relu, of (x W_ih^T + b_ih + h W_hh^T + b_hh)
   gru    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z);  n = tanh(x_n + r h_n);  h' = n + z (h - n)
   lstm   i, f, g, o of x + h, by sigmoid, sigmoid, tanh, sigmoid;  c' = f c + i g;  h' = o tanh(c')

   where x_* and h_* are parts of x W_ih^T + b_ih and h W_hh^T + b_hh. Composed of other ops: see
   expand.h. Of a sequence the products by W_ih of all steps are one. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_RECURRENT_H
#define FL_OPS_RECURRENT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The next state of x [n, in] and h [n, hidden]. w: W_ih [gates hidden, in], W_hh [gates hidden,
   hidden], b_ih, b_hh [gates hidden] (either may be NULL), gates in PyTorch's order: gru r z n,
   lstm i f g o. *c_out: the LSTM's next cell. */
FL_API fl_tensor *fl_rnn_tanh_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_rnn_tanh_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_rnn_relu_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_rnn_relu_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_gru_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_gru_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_lstm_cell(fl_tensor *x, fl_tensor *h, fl_tensor *c, fl_tensor *const w[4],
                               fl_tensor **c_out);
FL_API fl_var *fv_lstm_cell(fl_var *x, fl_var *h, fl_var *c, fl_var *const w[4], fl_var **c_out);
/* Sequences: x [steps, n, in] -> [steps, n, ways hidden], ways = 1 + bidirectional. h0, c0 and
   *h_out, *c_out (NULL: not wanted): [layers ways, n, hidden]. w: four weights per layer and
   direction. */
FL_API fl_tensor *fl_rnn_tanh(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                              bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_rnn_tanh(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                           fl_var **h_out);
FL_API fl_tensor *fl_rnn_relu(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                              bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_rnn_relu(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                           fl_var **h_out);
FL_API fl_tensor *fl_gru(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                         bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_gru(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                      fl_var **h_out);
FL_API fl_tensor *fl_lstm(fl_tensor *x, fl_tensor *h0, fl_tensor *c0, fl_tensor *const *w,
                          int layers, bool bidirectional, fl_tensor **h_out, fl_tensor **c_out);
FL_API fl_var *fv_lstm(fl_var *x, fl_var *h0, fl_var *c0, fl_var *const *w, int layers,
                       bool bidirectional, fl_var **h_out, fl_var **c_out);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_RECURRENT_H */

#if defined(FL_IMPL_ONLY_OPS_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_RECURRENT_IMPL
#define FL_OPS_RECURRENT_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "elementwise.h"
#include "linear.h"
#include "view.h"
#include <limits.h>
#define FL_TEXT "recurrent.h"
#include "expand.h"
#endif /* FL_OPS_RECURRENT_IMPL */
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
enum { FL__RNN_TANH, FL__RNN_RELU, FL__GRU, FL__LSTM };
static const int fl__gates[] = {1, 1, 3, 4};
static const char *const fl__rnn_names[] = {"fl_rnn_tanh", "fl_rnn_relu", "fl_gru", "fl_lstm"};
static const char *const fl__cell_names[] = {"fl_rnn_tanh_cell", "fl_rnn_relu_cell", "fl_gru_cell",
                                             "fl_lstm_cell"};

/* x [..., n, in], h [..., n, hidden] and the weights of one cell fit. */
static bool fl__cell_fits(const char *fn, int gates, const fl_tensor *x, const fl_tensor *h,
                          fl_tensor *const w[4]) {
    bool ok = x->ndim >= 2 && h->ndim >= 2 && x->shape[x->ndim - 2] == h->shape[h->ndim - 2];
    int64_t in = ok ? x->shape[x->ndim - 1] : 0, hidden = ok ? h->shape[h->ndim - 1] : 0;
    for (int i = 0; ok && i < 4; i++) {
        int64_t columns = i ? hidden : in;
        if (!w[i] && i > 1) continue;
        ok = w[i]->ndim == (i < 2 ? 2 : 1) && w[i]->shape[0] == gates * hidden &&
             (i > 1 || w[i]->shape[1] == columns);
    }
    return ok || fl_refuse("%s: input %s and state %s do not fit weights %s and %s", fn,
                           FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(h), FL_SHAPE_TEXT(w[0]),
                           FL_SHAPE_TEXT(w[1]));
}
#endif

/* Copies the weights of a cell, as computed in; checks them. */
static bool FL_W(_cell_weights)(const char *fn, int gates, FL_T *x, FL_T *h, FL_T *const *given,
                                FL_T *w[4]) {
    fl_tensor *values[4];
    if (fl_absent(fn, given) || fl_absent(fn, given[0]) || fl_absent(fn, given[1])) return false;
    for (int i = 0; i < 4; i++) {
        w[i] = given[i];
        values[i] = w[i] ? FL_VALUE(w[i]) : NULL;
    }
    return fl__cell_fits(fn, gates, FL_VALUE(x), FL_VALUE(h), values) && FL_W(_widen)(w, 4);
}

/* Gate i along the last axis. */
static FL_T *FL_W(_rnn_gate)(FL_T *x, int i, int64_t hidden) {
    return FL_W(slice)(x, -1, i * hidden, (i + 1) * hidden, 1);
}

/* Gates r, z, n: n = tanh(x_n + r h_n), h' = n + z (h - n). */
static FL_T *FL_W(_gru_step)(FL_T *x, FL_T *hw, FL_T *h) {
    int64_t hidden = FL_VALUE(h)->shape[FL_VALUE(h)->ndim - 1];
    FL_T *r = FL_W(sigmoid)(ADD(FL_W(_rnn_gate)(x, 0, hidden), FL_W(_rnn_gate)(hw, 0, hidden)));
    FL_T *z = FL_W(sigmoid)(ADD(FL_W(_rnn_gate)(x, 1, hidden), FL_W(_rnn_gate)(hw, 1, hidden)));
    FL_T *n = TANH(ADD(FL_W(_rnn_gate)(x, 2, hidden), MUL(r, FL_W(_rnn_gate)(hw, 2, hidden))));
    return ADD(n, MUL(z, SUB(h, n)));
}

/* Gates i, f, g, o: c' = f c + i g, h' = o tanh(c'). */
static FL_T *FL_W(_lstm_step)(FL_T *gates, FL_T **c) {
    int64_t hidden = FL_VALUE(*c)->shape[FL_VALUE(*c)->ndim - 1];
    FL_T *i = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 0, hidden));
    FL_T *f = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 1, hidden));
    FL_T *g = TANH(FL_W(_rnn_gate)(gates, 2, hidden));
    FL_T *o = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 3, hidden));
    *c = ADD(MUL(f, *c), MUL(i, g));
    return MUL(o, TANH(*c));
}

/* The next state h; *c is the LSTM's cell. x is projected. */
static FL_T *FL_W(_rnn_step)(int kind, FL_T *x, FL_T *h, FL_T **c, FL_T *const w[4]) {
    FL_T *hw = FL_W(linear)(h, w[1], w[3]);
    if (!x || !hw) return NULL;
    if (kind == FL__GRU) return FL_W(_gru_step)(x, hw, h);
    FL_T *sum = ADD(x, hw);
    if (kind == FL__LSTM) return FL_W(_lstm_step)(sum, c);
    return kind == FL__RNN_RELU ? FL_W(relu)(sum) : TANH(sum);
}

static FL_T *FL_W(_rnn_cell)(int kind, FL_T *x, FL_T *h, FL_T *c, FL_T *const *given,
                             FL_T **c_out) {
    FL_T *w[4], *state[] = {x, h, c};
    const char *fn = fl__cell_names[kind];
    if (fl_absent(fn, x) || fl_absent(fn, h)) return NULL;
    if (kind == FL__LSTM && !fl_same_shape(FL_VALUE(h), FL_VALUE(c)))
        return fl_bad("%s: states %s and %s", fn, FL_SHAPE_TEXT(FL_VALUE(h)),
                      FL_SHAPE_TEXT(FL_VALUE(c)));
    fl_scope s = fl_scope_begin();
    if (!FL_W(_cell_weights)(fn, fl__gates[kind], x, h, given, w) || !FL_W(_widen)(state, 3))
        return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(_rnn_step)(kind, FL_W(linear)(state[0], w[0], w[2]), state[1], &state[2], w);
    if (!(y = FL_W(_narrowed)(y, h))) return FL_GIVE(&s, NULL);
    if (c_out && !(*c_out = FL_PROMOTE(&s, FL_W(_narrowed)(state[2], c)))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, y);
}

FL_T *FL_W(rnn_tanh_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__RNN_TANH, x, h, NULL, w, NULL);
}

FL_T *FL_W(rnn_relu_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__RNN_RELU, x, h, NULL, w, NULL);
}

FL_T *FL_W(gru_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__GRU, x, h, NULL, w, NULL);
}

FL_T *FL_W(lstm_cell)(FL_T *x, FL_T *h, FL_T *c, FL_T *const w[4], FL_T **c_out) {
    if (FL_ABSENT("lstm_cell", c)) return NULL;
    return FL_W(_rnn_cell)(FL__LSTM, x, h, c, w, c_out);
}

/* Joins n parts along axis 0, eight at a time; the list is overwritten. */
static FL_T *FL_W(_rnn_joined)(FL_T **part, int64_t n) {
    while (n > 1) {
        int64_t to = 0;
        for (int64_t i = 0; i < n; i += 8, to++) {
            int count = n - i < 8 ? (int)(n - i) : 8;
            part[to] = FL_W(concat)(part + i, count, 0);
            if (!part[to]) return NULL;
        }
        n = to;
    }
    return part[0];
}

/* One layer in one direction over x [steps, n, in]; *h, *c [n, hidden] are the state. */
static FL_T *FL_W(_rnn_way)(int kind, FL_T *x, FL_T **h, FL_T **c, FL_T *const *given, bool back) {
    FL_T *w[4], *y = NULL;
    const char *fn = fl__rnn_names[kind];
    if (!FL_W(_cell_weights)(fn, fl__gates[kind], x, *h, given, w)) return NULL;
    int64_t steps = FL_VALUE(x)->shape[0];
    FL_T **out = fl_heap_alloc((size_t)steps * sizeof *out);
    if (!out) return fl_bad("%s: out of memory for %lld steps", fn, (long long)steps);
    FL_T *projected = FL_W(linear)(x, w[0], w[2]);
    for (int64_t i = 0; *h && projected && i < steps; i++) {
        int64_t t = back ? steps - 1 - i : i;
        *h = FL_W(_rnn_step)(kind, FL_W(select)(projected, 0, t), *h, c, w);
        out[t] = FL_W(unsqueeze)(*h, 0);
        if (!out[t]) *h = NULL;
    }
    if (*h && projected) y = FL_W(_rnn_joined)(out, steps);
    fl_heap_free(out);
    return y;
}

/* state: h0 and, of an LSTM, c0, [layers * ways, n, hidden]; becomes the last states. */
static FL_T *FL_W(_rnn_layers)(int kind, FL_T *x, FL_T **state, FL_T *const *w, int layers,
                               int ways) {
    int count = layers * ways, states = kind == FL__LSTM ? 2 : 1;
    FL_T **last = fl_heap_alloc((size_t)(count * states) * sizeof *last);
    if (!last) return fl_bad("%s: out of memory for %d layers", fl__rnn_names[kind], layers);
    for (int i = 0; x && i < count; i += ways) {
        FL_T *side[2] = {0};
        for (int k = 0; k < ways; k++) {
            FL_T *h = FL_W(select)(state[0], 0, i + k);
            FL_T *c = states > 1 ? FL_W(select)(state[1], 0, i + k) : NULL;
            if (h && (c || states == 1))
                side[k] = FL_W(_rnn_way)(kind, x, &h, &c, w + 4 * (i + k), k == 1);
            last[i + k] = side[k] ? FL_W(unsqueeze)(h, 0) : NULL;
            if (states > 1) last[count + i + k] = side[k] ? FL_W(unsqueeze)(c, 0) : NULL;
        }
        bool ok = side[0] && (ways == 1 || side[1]);
        x = !ok ? NULL : ways == 1 ? side[0] : FL_W(concat)(side, 2, -1);
    }
    for (int k = 0; k < states; k++)
        state[k] = x ? FL_W(_rnn_joined)(last + k * count, count) : NULL;
    fl_heap_free(last);
    return x;
}

#ifdef FL_ON_TENSORS
/* x [steps, n, in] with steps > 0, and a state [count, n, hidden] */
static bool fl__sequence_fits(int kind, const fl_tensor *x, const fl_tensor *state, int layers,
                              int ways) {
    bool ok = x->ndim == 3 && x->shape[0] > 0 && state->ndim == 3 && layers > 0 &&
              layers <= INT_MAX / 16 && state->shape[0] == (int64_t)layers * ways;
    return ok || fl_refuse("%s: input %s and state %s of %d layers in %d directions",
                           fl__rnn_names[kind], FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(state), layers, ways);
}
#endif

static FL_T *FL_W(_recurrent)(int kind, FL_T *x, FL_T *const *given, FL_T *const *w, int layers,
                              bool bidirectional, FL_T **h_out, FL_T **c_out) {
    int states = kind == FL__LSTM ? 2 : 1, ways = bidirectional ? 2 : 1;
    const char *fn = fl__rnn_names[kind];
    if (fl_absent(fn, x) || fl_absent(fn, w)) return NULL;
    FL_T *in[] = {x, given[0], given[1]}, **out[] = {h_out, c_out};
    for (int k = 0; k < states; k++)
        if (fl_absent(fn, given[k]) ||
            !fl__sequence_fits(kind, FL_VALUE(x), FL_VALUE(given[k]), layers, ways))
            return NULL;
    fl_scope s = fl_scope_begin();
    if (!FL_W(_widen)(in, 3)) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(_rnn_layers)(kind, in[0], in + 1, w, layers, ways);
    for (int k = 0; y && k < states; k++) {
        FL_T *last = in[1 + k] ? FL_W(_narrowed)(in[1 + k], given[k]) : NULL;
        if (!last) return FL_GIVE(&s, NULL);
        if (out[k] && !(*out[k] = FL_PROMOTE(&s, last))) return FL_GIVE(&s, NULL);
    }
    return FL_GIVE(&s, FL_W(_narrowed)(y, x));
}

FL_T *FL_W(rnn_tanh)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional,
                     FL_T **h_out) {
    return FL_W(_recurrent)(FL__RNN_TANH, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(rnn_relu)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional,
                     FL_T **h_out) {
    return FL_W(_recurrent)(FL__RNN_RELU, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(gru)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional, FL_T **h_out) {
    return FL_W(_recurrent)(FL__GRU, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(lstm)(FL_T *x, FL_T *h0, FL_T *c0, FL_T *const *w, int layers, bool bidirectional,
                 FL_T **h_out, FL_T **c_out) {
    return FL_W(_recurrent)(FL__LSTM, x, (FL_T *[]){h0, c0}, w, layers, bidirectional, h_out,
                            c_out);
}

#endif
/* MIT licence: see LICENSE. */
