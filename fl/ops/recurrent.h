/* fl/ops/recurrent.h - recurrent networks: cells, and layers of them over sequences

   rnn    h' = tanh, or relu, of (x W_ih^T + b_ih + h W_hh^T + b_hh)
   gru    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z);  n = tanh(x_n + r h_n);  h' = n + z (h - n)
   lstm   i, f, g, o of x + h, by sigmoid, sigmoid, tanh, sigmoid;  c' = f c + i g;  h' = o tanh(c'),
          projected: h' = (o tanh(c')) W_hr^T (arXiv 1402.1128)

   where x_* and h_* are parts of x W_ih^T + b_ih and h W_hh^T + b_hh. Cells are composed of other
   ops: see expand.h. A layer over a sequence, in one direction or both, is one record.

   Records (fl_rnn_args), of one dtype but i64 lengths. t steps, n sequences, r = n t rows; out =
   hidden, or what it is projected to.
     rnn       x [t, n, in] or [n, t, in], h0 [ways, n, out], c0 [ways, n, hidden] (of an LSTM), flat
               weights w: for all directions W_ih, then W_hh, b_ih, b_hh, W_hr (fl_rnn_part);
               lengths [n]. Numbers: zeros for h0 and c0, all steps for lengths
               -> flat: y [t, n, ways out], or [n, t, ...], then the last h and c; [reserve], flat, what
               the backend's rnn_grad wants to know: fl_rnn_reserve numbers
     rnn_grad  the same, flat y, reserve, gradient of flat y -> [dx], [dh0], [dc0], [dw] */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_RECURRENT_H
#define FL_OPS_RECURRENT_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_rnn_mode { FL_RNN_TANH, FL_RNN_RELU, FL_GRU, FL_LSTM } fl_rnn_mode;
typedef struct fl_rnn_args {
    fl_rnn_mode mode;
    int gates, ways;     /* gates: 1, 3 of a GRU, 4 of an LSTM; ways: directions, 1 or 2 */
    bool batch_first;    /* x and y are [n, t, ...] */
    bool biased;         /* w holds b_ih and b_hh */
    int64_t hidden, out; /* out < hidden: projected */
} fl_rnn_args;

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
typedef struct fl_rnn_opts {
    fl_named _positional;
    fl_tensor *h0, *c0;         /* [layers ways, n, out] and, of an LSTM, [layers ways, n, hidden]; NULL: 0 */
    fl_tensor *lengths;         /* i64 [n], 1 to t: steps of each sequence; NULL: t */
    int layers;                 /* 0 -> 1 */
    bool bidirectional;
    bool batch_first;           /* x and y are [n, t, ...] */
    bool projected;             /* LSTM: five weights, the fifth W_hr [out, hidden] */
    double dropout;             /* of each layer's results but the last's */
    fl_rng *rng;                /* of the dropout; NULL: the process's */
    fl_tensor **h_out, **c_out; /* the last states, of h0's and c0's shapes; NULL: not wanted */
    char _end;
} fl_rnn_opts;
/* The same on variables. */
typedef struct fv_rnn_opts {
    fl_named _positional;
    fl_var *h0, *c0;
    fl_tensor *lengths;
    int layers;
    bool bidirectional, batch_first, projected;
    double dropout;
    fl_rng *rng;
    fl_var **h_out, **c_out;
    char _end;
} fv_rnn_opts;
/* Layers over sequences (torch.rnn_tanh, rnn_relu, gru, lstm): x [t, n, in] -> y [t, n, ways out],
   ways = 1 + bidirectional. w: of each layer and direction the four weights of a cell, five where
   projected. Sequences may be of any lengths, in any order: their further steps are not computed, y is 0
   there, and the last states are those of their own last steps (as of PyTorch's packed sequences).
   After an error *h_out and *c_out are NULL; *c_out is NULL of all but an LSTM. */
#define fl_rnn(...) FL__RNN(fl_, __VA_ARGS__, ._end = 0)
#define fv_rnn(...) FL__RNN(fv_, __VA_ARGS__, ._end = 0)
#define FL__RNN(p, mode, x, w, ...) p##rnn_opt(mode, x, w, (p##rnn_opts){__VA_ARGS__})
FL_API fl_tensor *fl_rnn_opt(fl_rnn_mode mode, fl_tensor *x, fl_tensor *const *w, fl_rnn_opts o);
FL_API fl_var *fv_rnn_opt(fl_rnn_mode mode, fl_var *x, fl_var *const *w, fv_rnn_opts o);

/* For slots. Where W_ih, W_hh, b_ih, b_hh, W_hr (part 0 to 4) of the first direction begin in w, each of
   the others follows it; 5: the end of w. *s: the part's shape in one direction. */
FL_API int64_t fl_rnn_part(const fl_rnn_args *a, int64_t in, int part, fl_shape *s);
/* Numbers in the reserve of so many rows. */
FL_API int64_t fl_rnn_reserve(const fl_rnn_args *a, int64_t rows);

FL_DATA fl_op fl_op_rnn, fl_op_rnn_grad;
FL_PRIVATE void fl__register_recurrent(void);

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
#include "random.h"
#include "reduce.h"
#include "view.h"
#include <limits.h>
#include <string.h>
#define FL_TEXT "recurrent.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_rnn, fl_op_rnn_grad;

/* Each row of x, at its step, meets all weights but the biases; in the gradient twice: for x and h, for w. */
static int64_t fl__rnn_macs(const fl_call *c) {
    const fl_rnn_args *a = c->args;
    const fl_tensor *x = c->in[0], *w = c->in[3];
    return x->shape[0] * x->shape[1] * (fl_numel(w) - (a->biased ? 2 * a->ways * a->gates * a->hidden : 0));
}
static int64_t fl__rnn_grad_macs(const fl_call *c) {
    return 2 * fl__rnn_macs(c);
}

FL_PRIVATE void fl__register_recurrent(void) {
    static const fl_op_info rnn = {.name = "rnn",
                                   .args_size = sizeof(fl_rnn_args),
                                   .contains = "matmul linear add sub mul sigmoid tanh relu where",
                                   .compose = fl__compose_rnn,
                                   .gradient = fv__rnn_back,
                                   .macs = fl__rnn_macs},
                            rnn_grad = {.name = "rnn_grad",
                                        .args_size = sizeof(fl_rnn_args),
                                        .contains =
                                            "matmul linear add sub mul sigmoid tanh relu where sum",
                                        .compose = fv__compose_rnn_grad,
                                        .macs = fl__rnn_grad_macs};
    fl_op_rnn = fl_op_register(&rnn);
    fl_op_rnn_grad = fl_op_register(&rnn_grad);
}

#endif /* FL_OPS_RECURRENT_IMPL */
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
static const int fl__gates[] = {[FL_RNN_TANH] = 1, [FL_RNN_RELU] = 1, [FL_GRU] = 3, [FL_LSTM] = 4};
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
    if (kind == FL_GRU) return FL_W(_gru_step)(x, hw, h);
    FL_T *sum = ADD(x, hw);
    if (kind == FL_LSTM) return FL_W(_lstm_step)(sum, c);
    return kind == FL_RNN_RELU ? FL_W(relu)(sum) : TANH(sum);
}

/* Other results of what gives y are there with it, or NULL. */
static FL_T *FL_W(_together)(FL_T *y, FL_T **a, FL_T **b) {
    if (!y && a) *a = NULL;
    if (!y && b) *b = NULL;
    return y;
}

static FL_T *FL_W(_rnn_cell)(int kind, FL_T *x, FL_T *h, FL_T *c, FL_T *const *given,
                             FL_T **c_out) {
    FL_T *w[4], *state[] = {x, h, c};
    const char *fn = fl__cell_names[kind];
    if (fl_absent(fn, x) || fl_absent(fn, h)) return NULL;
    if (kind == FL_LSTM && !fl_same_shape(FL_VALUE(h), FL_VALUE(c)))
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
    return FL_W(_rnn_cell)(FL_RNN_TANH, x, h, NULL, w, NULL);
}

FL_T *FL_W(rnn_relu_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL_RNN_RELU, x, h, NULL, w, NULL);
}

FL_T *FL_W(gru_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL_GRU, x, h, NULL, w, NULL);
}

FL_T *FL_W(lstm_cell)(FL_T *x, FL_T *h, FL_T *c, FL_T *const w[4], FL_T **c_out) {
    FL_T *y = FL_ABSENT("lstm_cell", c) ? NULL : FL_W(_rnn_cell)(FL_LSTM, x, h, c, w, c_out);
    return FL_W(_together)(y, c_out, NULL);
}

/* ---- layers ---- */

#ifdef FL_ON_TENSORS
FL_API int64_t fl_rnn_part(const fl_rnn_args *a, int64_t in, int part, fl_shape *s) {
    const int64_t rows = a->gates * a->hidden;
    const fl_shape shapes[] = {FL_SHAPE(rows, in), FL_SHAPE(rows, a->out), FL_SHAPE(rows), FL_SHAPE(rows),
                               FL_SHAPE(a->out, a->hidden)};
    const bool there[] = {true, true, a->biased, a->biased, a->out != a->hidden};
    int64_t at = 0;
    for (int i = 0; i < part; i++)
        if (there[i]) at += a->ways * fl_shape_numel(shapes[i]);
    if (part < 5) *s = shapes[part];
    return at;
}

/* The gates; of a GRU h_n, of an LSTM c and, where that is projected, o tanh(c). */
FL_API int64_t fl_rnn_reserve(const fl_rnn_args *a, int64_t rows) {
    const int more = a->mode < FL_GRU ? 0 : a->out == a->hidden ? 1 : 2;
    return rows * a->ways * (a->gates + more) * a->hidden;
}

/* The parts of the flat result: y, h, c (of an LSTM) and their end. */
static void fl__rnn_results(const fl_rnn_args *a, int64_t steps, int64_t n, fl_shape part[3],
                            int64_t at[4]) {
    part[0] = a->batch_first ? FL_SHAPE(n, steps, a->ways * a->out) : FL_SHAPE(steps, n, a->ways * a->out);
    part[1] = FL_SHAPE(a->ways, n, a->out);
    part[2] = FL_SHAPE(a->mode == FL_LSTM ? a->ways : 0, n, a->hidden);
    at[0] = 0;
    for (int i = 0; i < 3; i++) at[i + 1] = at[i] + fl_shape_numel(part[i]);
}
#endif

/* Numbers at .. of the flat x, as shape s. */
static FL_T *FL_W(_rnn_cut)(FL_T *x, int64_t at, fl_shape s) {
    FL_T *y = x ? FL_W(slice)(x, 0, at, at + fl_shape_numel(s), 1) : NULL;
    return y ? FL_W(reshape)(y, s) : NULL;
}

/* n variables, NULLs left out, one behind the other. */
static FL_T *FL_W(_rnn_flat)(FL_T *const *x, int n) {
    FL_T *flat[10];
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (!x[i]) continue;
        flat[count] = FL_W(reshape)(x[i], FL_SHAPE(-1));
        if (!flat[count++]) return NULL;
    }
    return FL_W(concat)(flat, count, 0);
}

/* Where steps of sequences are not the last state passes by. active: NULL, or b8 [n, 1]. */
static FL_T *FL_W(_rnn_if)(fl_tensor *active, FL_T *now, FL_T *before) {
    return active ? SELECT(FL_OF(active), now, before) : now;
}

/* One direction over x [t, n, in]: y; *h, *c [n, ...] are the state. */
static FL_T *FL_W(_rnn_way)(const fl_rnn_args *a, FL_T *x, fl_tensor *lengths, FL_T **h, FL_T **c,
                            FL_T *const w[5], bool back) {
    const int64_t steps = FL_VALUE(x)->shape[0];
    FL_T *y = NULL, **out = fl_heap_alloc((size_t)steps * sizeof *out);
    FL_T *projected = out ? FL_W(linear)(x, w[0], w[2]) : NULL;
    bool ok = projected != NULL;
    for (int64_t i = 0; ok && i < steps; i++) {
        const int64_t t = back ? steps - 1 - i : i;
        fl_tensor *active = lengths ? fl_gt(lengths, fl_int(t)) : NULL;
        if (lengths && !active) break;
        FL_T *cell = *c, *now = FL_W(_rnn_step)(a->mode, FL_W(select)(projected, 0, t), *h, &cell, w);
        if (w[4] && now) now = FL_W(linear)(now, w[4], NULL);
        if (a->mode == FL_LSTM) *c = FL_W(_rnn_if)(active, cell, *c);
        out[t] = FL_W(_rnn_if)(active, now, CONST(0));
        *h = FL_W(_rnn_if)(active, now, *h);
        ok = out[t] && *h && (*c || a->mode != FL_LSTM);
        if (ok && i + 1 == steps) y = FL_W(stack)(out, (int)steps, 0);
    }
    fl_heap_free(out);
    return y;
}

/* The record by other ops. in: x, h0, c0, w */
static FL_T *FL_W(_rnn_composed)(const fl_rnn_args *a, FL_T *const *in, fl_tensor *lengths) {
    FL_T *x = a->batch_first ? FL_W(transpose)(in[0], 0, 1) : in[0], *y[2], *last[2][2] = {{NULL}};
    if (!x || (!lengths->weak && !(lengths = fl_unsqueeze(lengths, 1)))) return NULL;
    const int64_t n = FL_VALUE(x)->shape[1], width = FL_VALUE(x)->shape[2];
    const int states = a->mode == FL_LSTM ? 2 : 1;
    for (int way = 0; way < a->ways; way++) {
        FL_T *w[5] = {NULL}, *state[2] = {NULL};
        for (int i = 0; i < 5; i++) {
            fl_shape s;
            const int64_t at = fl_rnn_part(a, width, i, &s);
            if (i > 1 && (i < 4 ? !a->biased : a->out == a->hidden)) continue;
            if (!(w[i] = FL_W(_rnn_cut)(in[3], at + way * fl_shape_numel(s), s))) return NULL;
        }
        for (int i = 0; i < states; i++) {
            const fl_shape s = FL_SHAPE(n, i ? a->hidden : a->out);
            state[i] = FL_VALUE(in[1 + i])->weak ? FL_OF(fl_new_full(FL_VALUE(x), s, 0))
                                                 : FL_W(select)(in[1 + i], 0, way);
            if (!state[i]) return NULL;
        }
        y[way] = FL_W(_rnn_way)(a, x, lengths->weak ? NULL : lengths, &state[0], &state[1], w, way == 1);
        if (!y[way]) return NULL;
        for (int i = 0; i < states; i++) last[i][way] = state[i];
    }
    FL_T *all = a->ways == 2 ? FL_W(concat)(y, 2, -1) : y[0];
    if (a->batch_first) all = FL_W(transpose)(all, 0, 1);
    FL_T *parts[] = {all, FL_W(stack)(last[0], a->ways, 0),
                     states == 2 ? FL_W(stack)(last[1], a->ways, 0) : NULL};
    return parts[0] && parts[1] && (parts[2] || states == 1) ? FL_W(_rnn_flat)(parts, 3) : NULL;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_rnn(const fl_call *c, fl_tensor **y) {
    y[0] = fl__rnn_composed(c->args, c->in, c->in[4]);
    if (c->n_out > 1 && c->out[1]) /* nobody reads it */
        y[1] = fl_expand(fl_new_full(c->in[0], FL_SHAPE(1), 0), fl_shape_of(c->out[1]));
    return y[0] != NULL && (c->n_out == 1 || !c->out[1] || y[1]);
}
#else
/* Gradients of x, h0, c0, w by the graph of the composition, as a pass of its own. */
static bool fv__rnn_gradients(const fl_rnn_args *a, fl_var *const *in, fl_tensor *lengths, fl_var *dy,
                              fl_var **d) {
    const bool create_graph = fl_grad_enabled(), recorded = fl_no_grad(false);
    fl_var *given[4], *part[4];
    for (int i = 0; i < 4; i++) given[i] = in[i]->value->weak ? NULL : in[i];
    fl_var *all = fv__rnn_flat(given, 4), *dz = NULL;
    if (all && !create_graph) all = fv_param(all->value);
    int64_t at = 0;
    bool ok = all != NULL;
    for (int i = 0; ok && i < 4; i++) {
        part[i] = given[i] ? fv__rnn_cut(all, at, fl_shape_of(given[i]->value)) : in[i];
        if (given[i]) at += fl_numel(given[i]->value);
        ok = part[i] != NULL;
    }
    if (ok) {
        fl_var *y = fv__rnn_composed(a, part, lengths);
        fl_var *root = fv_sum(MUL(y, dy), FL_ALL_AXES);
        dz = root ? fl_grad(root, all, create_graph) : NULL;
    }
    at = 0;
    for (int i = 0; dz && i < 4; i++) {
        d[i] = given[i] ? fv__rnn_cut(dz, at, fl_shape_of(given[i]->value)) : NULL;
        if (given[i]) at += fl_numel(given[i]->value);
    }
    fl_no_grad(recorded);
    return dz != NULL;
}

static bool fv__compose_rnn_grad(const fl_call *c, fl_tensor **d) {
    fl_var *in[4], *dy = fv_const(c->in[7]), *of[4] = {NULL};
    const bool recorded = fl_no_grad(true);
    bool ok = dy != NULL;
    for (int i = 0; ok && i < 4; i++) ok = (in[i] = fv_const(c->in[i])) != NULL;
    ok = ok && fv__rnn_gradients(c->args, in, c->in[4], dy, of);
    fl_no_grad(recorded);
    for (int i = 0; ok && i < 4; i++) d[i] = fv_value(of[i]);
    return ok;
}

static void fv__rnn_back(fl_node *n, fl_var *dy) {
    const fl_rnn_args a = *(const fl_rnn_args *)fv_args(n);
    fl_var *in[7], *d[4] = {NULL};
    fl_call c = {.op = fl_op_rnn_grad, .n_out = 4, .n_in = 8, .args = &a};
    for (int i = 0; i < 7; i++)
        if (!(in[i] = fv_saved(n, i))) return;
    if (fl_grad_enabled()) {
        if (!fv__rnn_gradients(&a, in, in[4]->value, dy, d)) return;
    } else {
        for (int i = 0; i < 7; i++) c.in[i] = in[i]->value;
        c.in[7] = dy->value;
        for (int i = 0; i < 4; i++)
            if (fv_needs(n, i) && !(c.out[i] = fl_out_like(c.in[i], c.in[i]->dtype))) return;
        if (!fl_call_run(&c)) {
            fl_raise();
            return;
        }
        for (int i = 0; i < 4; i++) d[i] = fv_const(c.out[i]);
    }
    for (int i = 0; i < 4; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, d[i]);
}
#endif

/* Runs the record: y, and the last states. in: x, h0, c0 (NULL: zeros), w */
static FL_T *FL_W(_rnn_layer)(const fl_rnn_args *a, FL_T **in, fl_tensor *lengths, FL_T *last[2]) {
    for (int i = 1; i < 3; i++)
        if (!in[i] && !(in[i] = CONST(0))) return NULL;
    if (!lengths && !(lengths = fl_int(0))) return NULL;
    fl_tensor *x = FL_VALUE(in[0]), *reserve = NULL;
    const int64_t rows = x->shape[0] * x->shape[1];
    fl_shape part[3];
    int64_t at[4];
    fl__rnn_results(a, x->shape[a->batch_first], x->shape[!a->batch_first], part, at);
#ifdef FL_ON_VARS
    bool recorded = false;
    for (int i = 0; i < 4; i++) recorded |= in[i]->requires_grad;
    if (recorded && fl_grad_enabled() &&
        !(reserve = fl_out_on(x->family, FL_SHAPE(fl_rnn_reserve(a, rows)), x->dtype)))
        return fl_raise();
#endif
    fl_call c = {.op = fl_op_rnn,
                 .n_out = 2,
                 .n_in = 5,
                 .out = {fl_out_on(x->family, FL_SHAPE(at[3]), x->dtype), reserve},
                 .in = {x, FL_VALUE(in[1]), FL_VALUE(in[2]), FL_VALUE(in[3]), lengths},
                 .args = a};
    fl_tensor *value = c.out[0] ? fl_call_result(&c) : fl_raise();
    (void)rows;
#ifdef FL_ON_TENSORS
    fl_tensor *flat = value;
#else
    fl_var *flat = value && reserve
                       ? fv_record_op(fl_op_rnn, value, FV_IN(in[0], in[1], in[2], in[3]),
                                      FV_SAVE(in[0], in[1], in[2], in[3], fv_const(lengths), FV_OUT,
                                              fv_const(reserve)), a)
                       : fv_const(value);
#endif
    FL_T *y = FL_W(_rnn_cut)(flat, at[0], part[0]);
    for (int i = 0; i < 2; i++)
        last[i] = y && part[1 + i].dim[0] ? FL_W(_rnn_cut)(flat, at[1 + i], part[1 + i]) : NULL;
    return y && last[0] && (last[1] || a->mode != FL_LSTM) ? y : NULL;
}

#ifdef FL_ON_TENSORS
static bool fl__rnn_weights_fit(const fl_rnn_args *a, int64_t in, fl_tensor *const *w, int count) {
    for (int i = 0; i < count; i++) {
        fl_shape s;
        fl_rnn_part(a, in, i, &s);
        if (i != 2 && i != 3 && fl_absent("fl_rnn", w[i])) return false;
        if (!w[i] == a->biased && (i == 2 || i == 3))
            return fl_refuse("fl_rnn: all biases are there, or none");
        if (w[i] && !fl_shape_is(w[i], s))
            return fl_refuse("fl_rnn: weight %d of a layer is %s, of %lld inputs it is %s", i,
                             FL_SHAPE_TEXT(w[i]), (long long)in, FL_TEXT_OF(s));
    }
    return true;
}

/* lengths: i64 [n], each 1 to t; reads them. */
static bool fl__rnn_lengths_fit(fl_tensor *lengths, int64_t steps, int64_t n) {
    if (!lengths) return true;
    if (lengths->weak || lengths->dtype != FL_I64 || !fl_shape_is(lengths, FL_SHAPE(n)))
        return fl_refuse("fl_rnn: lengths %s %s, of %lld sequences they are i64 [%lld]",
                         fl_dtype_name(lengths->dtype), FL_SHAPE_TEXT(lengths), (long long)n, (long long)n);
    const char *at = fl_map(lengths, FL_READ);
    int64_t bad = 0;
    if (!at) return false;
    for (int64_t i = 0, k; i < n && !bad; i++) {
        memcpy(&k, at + i * lengths->stride[0] * (int64_t)sizeof k, sizeof k);
        if (k < 1 || k > steps) fl_fail("fl_rnn: sequence %lld has %lld steps, of 1 to %lld", (long long)i,
                                        (long long)k, (long long)steps), bad = 1;
    }
    fl_unmap(lengths, FL_READ);
    return !bad || fl_raise();
}

/* x [t, n, in] of at least one step, and states (NULL: none given). */
static bool fl__rnn_fits(const fl_rnn_args *a, const fl_tensor *x, int layers, const fl_tensor *h,
                         const fl_tensor *c) {
    if (x->ndim != 3 || x->shape[a->batch_first] < 1)
        return fl_refuse("fl_rnn: input %s, want %s with at least one step", FL_SHAPE_TEXT(x),
                         a->batch_first ? "[n, t, in]" : "[t, n, in]");
    const fl_tensor *state[] = {h, c};
    for (int i = 0; i < 2; i++) {
        const fl_shape s =
            FL_SHAPE((int64_t)layers * a->ways, x->shape[!a->batch_first], i ? a->hidden : a->out);
        if (state[i] && i && a->mode != FL_LSTM) return fl_refuse("fl_rnn: c0 is of LSTMs only");
        if (state[i] && !fl_shape_is(state[i], s))
            return fl_refuse("fl_rnn: %s %s, of %d layers in %d directions it is %s", i ? "c0" : "h0",
                             FL_SHAPE_TEXT(state[i]), layers, a->ways, FL_TEXT_OF(s));
    }
    return true;
}
#endif

/* What the records of all layers say; false after an error. */
static bool FL_W(_rnn_args)(fl_rnn_mode mode, FL_T *x, FL_T *const *w, const FL_W(rnn_opts) *o, int layers,
                            fl_rnn_args *a) {
    if (fl_absent("fl_rnn", x) || fl_absent("fl_rnn", w) || fl_absent("fl_rnn", w[0]) ||
        fl_absent("fl_rnn", w[1]))
        return false;
    const fl_tensor *first = FL_VALUE(w[1]);
    if ((unsigned)mode > FL_LSTM || layers < 1 || layers > INT_MAX / 16 ||
        !(o->dropout >= 0 && o->dropout <= 1) || (o->projected && mode != FL_LSTM))
        return fl_refuse("fl_rnn: mode %d, %d layers, dropout %g%s", (int)mode, layers, o->dropout,
                         o->projected ? ", projected" : "");
    if (first->ndim != 2 || first->shape[0] < 1 || first->shape[0] % fl__gates[mode])
        return fl_refuse("fl_rnn: W_hh %s of %d gates", FL_SHAPE_TEXT(first), fl__gates[mode]);
    *a = (fl_rnn_args){.mode = mode, .gates = fl__gates[mode], .ways = o->bidirectional ? 2 : 1,
                       .batch_first = o->batch_first, .biased = w[2] != NULL, .out = first->shape[1],
                       .hidden = first->shape[0] / fl__gates[mode]};
    if (o->projected ? a->out >= a->hidden : a->out != a->hidden)
        return fl_refuse("fl_rnn: W_hh %s of %d gates%s", FL_SHAPE_TEXT(first), a->gates,
                         o->projected ? ", projected to fewer numbers" : "");
    return fl__rnn_fits(a, FL_VALUE(x), layers, o->h0 ? FL_VALUE(o->h0) : NULL,
                        o->c0 ? FL_VALUE(o->c0) : NULL) &&
           fl__rnn_lengths_fit(o->lengths, FL_VALUE(x)->shape[o->batch_first],
                               FL_VALUE(x)->shape[!o->batch_first]);
}

/* The weights of a layer in all directions as one: W_ih of each, W_hh of each, ... */
static FL_T *FL_W(_rnn_weights)(const fl_rnn_args *a, int64_t in, FL_T *const *w, int count) {
    FL_T *parts[10] = {NULL};
    fl_tensor *values[10];
    for (int way = 0; way < a->ways; way++) {
        for (int i = 0; i < count; i++) {
            parts[i * a->ways + way] = w[way * count + i];
            values[i] = w[way * count + i] ? FL_VALUE(w[way * count + i]) : NULL;
        }
        if (!fl__rnn_weights_fit(a, in, values, count)) return NULL;
    }
    return FL_W(_rnn_flat)(parts, a->ways * count);
}

/* All of a record in the dtype that they promote to, in which it is computed. */
static bool FL_W(_rnn_promote)(FL_T **in) {
    fl_tensor *t[4];
    if (!FL_W(_widen)(in, 4)) return false;
    for (int i = 0; i < 4; i++) t[i] = FL_VALUE(in[i] ? in[i] : in[0]);
    const fl_dtype d = fl_result_type(4, t);
    for (int i = 0; i < 4; i++)
        if (in[i] && !(in[i] = FL_W(cast)(in[i], d))) return false;
    return true;
}

/* All layers: y; last [2][layers] gets their states. */
static FL_T *FL_W(_rnn_layers)(const fl_rnn_args *a, FL_T *x, FL_T *const *w, const FL_W(rnn_opts) *o,
                               int layers, FL_T **last) {
    const int count = o->projected ? 5 : 4;
    FL_T *given[] = {x, o->h0, o->c0};
    if (!FL_W(_widen)(given, 3)) return NULL;
    FL_T *y = given[0];
    for (int k = 0; y && k < layers; k++) {
        FL_T *in[4] = {y}, *states[2] = {NULL};
        const int64_t width = FL_VALUE(y)->shape[2];
        for (int i = 1; i < 3; i++)
            if (given[i] && !(in[i] = FL_W(slice)(given[i], 0, k * a->ways, (k + 1) * a->ways, 1)))
                return NULL;
        in[3] = FL_W(_rnn_weights)(a, width, w + k * a->ways * count, count);
        if (!in[3] || !FL_W(_rnn_promote)(in)) return NULL;
        y = FL_W(_rnn_layer)(a, in, o->lengths, states);
        if (y && k + 1 < layers && o->dropout > 0) y = FL_W(dropout)(y, o->dropout, o->rng);
        for (int i = 0; i < 2; i++) last[i * layers + k] = states[i];
    }
    return y;
}

FL_T *FL_W(rnn_opt)(fl_rnn_mode mode, FL_T *x, FL_T *const *w, FL_W(rnn_opts) o) {
    fl_rnn_args a;
    const int layers = o.layers ? o.layers : 1;
    FL_T **last = NULL, *y = NULL, **out[] = {o.h_out, o.c_out};
    if (!FL_W(_rnn_args)(mode, x, w, &o, layers, &a)) return FL_W(_together)(NULL, o.h_out, o.c_out);
    fl_scope s = fl_scope_begin();
    if (!(last = fl_heap_alloc(2 * (size_t)layers * sizeof *last))) fl_raise();
    else y = FL_W(_rnn_layers)(&a, x, w, &o, layers, last);
    for (int i = 0; y && i < 2; i++) {
        if (!out[i]) continue;
        FL_T *all = last[i * layers] ? FL_W(concat)(last + i * layers, layers, 0) : NULL;
        *out[i] = FL_PROMOTE(&s, FL_W(_narrowed)(all, x));
        if (last[i * layers] && !*out[i]) y = NULL;
    }
    fl_heap_free(last);
    return FL_W(_together)(FL_GIVE(&s, FL_W(_narrowed)(y, x)), o.h_out, o.c_out);
}

#endif
/* MIT licence: see LICENSE. */
