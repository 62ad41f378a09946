/* fl/ops/recurrent.h - recurrent networks: RNN, GRU and LSTM cells, and multi-layer sequences of them

   rnn    h' = tanh, or relu, of (x W_ih^T + b_ih + h W_hh^T + b_hh)
   gru    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z);  n = tanh(x_n + r h_n);  h' = n + z (h - n)
   lstm   i, f, g, o of x + h, by sigmoid, sigmoid, tanh, sigmoid;  c' = f c + i g;  h' = o tanh(c'),
                 projected: h' = (o tanh(c')) W_hr^T (arXiv 1402.1128)

   where x_* and h_* are the gates' parts of x W_ih^T + b_ih and h W_hh^T + b_hh. Cells are composed of other
   ops (expand.h). A layer over a sequence, in one direction or both, is one record.

   Records (fl_rnn_args), of one dtype except i64 lengths. t steps, n sequences, ways = 1 or 2 directions; out
   = hidden, or the projection's size. Flat: concatenated to one dim.
     rnn       x [t, n, in] or [n, t, in], h0 [ways, n, out], c0 [ways, n, hidden] (LSTM), flat weights w:
     W_ih of
               all directions, then W_hh, b_ih, b_hh, W_hr (fl_rnn_part); lengths [n]. A number instead of h0
               or c0 means zeros, instead of lengths all steps
               -> flat y: y [t, n, ways out] or [n, t, ways out], the last h, the last c; [reserve]: what the
               backend's rnn_grad needs, fl_rnn_reserve numbers
     rnn_grad  the same, flat y, reserve, gradient of flat y -> [dx], [dh0], [dc0], [dw] */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_RECURRENT_H
#define FL_OPS_RECURRENT_H
#include "../records/recurrent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PyTorch's RNNCell, GRUCell and LSTMCell: the next state [n, hidden] for input x [n, in] and state h [n,
   hidden]. w: W_ih [gates hidden, in], W_hh [gates hidden, hidden], b_ih and b_hh [gates hidden] (each may be
   NULL), with gates in PyTorch's order: r z n (GRU), i f g o (LSTM). *c_out: the LSTM's next cell state. */
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
    fl_opts_guard guard_;
    fl_tensor *h0, *c0;         /* initial states [layers ways, n, out] and (LSTM) [layers ways, n, hidden];
                                   NULL: 0 */
    fl_tensor *lengths;         /* i64 [n] in [1, t]: steps of each sequence; NULL: t */
    int layers;                 /* 0: 1 */
    bool bidirectional;
    bool batch_first;           /* x and y are [n, t, ...] */
    bool projected;             /* LSTM with proj_size: a fifth weight W_hr [out, hidden] */
    double dropout;             /* probability in [0, 1]; on the output of each layer except the last */
    fl_rng *rng;                /* generator for dropout; NULL: the global one */
    fl_tensor **h_out, **c_out; /* receive the last states, of h0's and c0's shapes; may be NULL */
    char _end;
} fl_rnn_opts;
/* The same fields on variables. */
typedef struct fv_rnn_opts {
    fl_opts_guard guard_;
    fl_var *h0, *c0;
    fl_tensor *lengths;
    int layers;
    bool bidirectional, batch_first, projected;
    double dropout;
    fl_rng *rng;
    fl_var **h_out, **c_out;
    char _end;
} fv_rnn_opts;
/* torch.rnn_tanh, rnn_relu, gru and lstm: x [t, n, in] -> y [t, n, ways out], ways = 1 + bidirectional. w:
   the four weights of a cell (five if projected) for each layer and, within it, each direction. With lengths,
   sequences need not be sorted: steps past the end are not computed, y is 0 there, and the last states are
   those of each sequence's last step, as for PyTorch's packed sequences. *c_out is NULL except for an LSTM;
   both are NULL after an error. */
#define fl_rnn(...) FL__RNN(fl_, __VA_ARGS__, ._end = 0)
#define fv_rnn(...) FL__RNN(fv_, __VA_ARGS__, ._end = 0)
#define FL__RNN(p, mode, x, w, ...) p##rnn_opt(mode, x, w, FL_LITERAL(p##rnn_opts, __VA_ARGS__))
FL_API fl_tensor *fl_rnn_opt(fl_rnn_mode mode, fl_tensor *x, fl_tensor *const *w, fl_rnn_opts o);
FL_API fl_var *fv_rnn_opt(fl_rnn_mode mode, fl_var *x, fl_var *const *w, fv_rnn_opts o);

FL_PRIVATE void fl__register_recurrent(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_RECURRENT_H */

#if defined(FL_IMPL_ONLY_OPS_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_RECURRENT_IMPL
#define FL_OPS_RECURRENT_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "linear.h"
#include "random.h"
#include "reduce.h"
#include "view.h"
#include <limits.h>
#include <string.h>
#define FL_EXPAND_FILE "recurrent.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_rnn, fl_op_rnn_grad;

/* Multiply-adds: rows of x times the number of weights without biases; the gradient has twice as many. */
static int64_t fl__rnn_macs(const fl_call *c) {
    const fl_rnn_args *a = c->args;
    const fl_tensor *x = c->in[0], *w = c->in[3];
    return x->shape[0] * x->shape[1] * (fl_numel(w) - (a->biased ? 2 * a->ways * a->gates * a->hidden : 0));
}
static int64_t fl__rnn_grad_macs(const fl_call *c) {
    return 2 * fl__rnn_macs(c);
}

FL_PRIVATE void fl__register_recurrent(void) {
    FL__REGISTER(rnn, .args_size = sizeof(fl_rnn_args),
                 .uses = "matmul linear add sub mul sigmoid tanh relu where gt neg exp div lt maximum "
                             "concat",
                 .compose = fl__compose_rnn, .gradient = fv__rnn_back, .macs = fl__rnn_macs);
    FL__REGISTER(rnn_grad, .args_size = sizeof(fl_rnn_args),
                 .uses = "matmul linear add sub mul sigmoid tanh relu where sum grad1 linear_grad gt neg "
                             "exp div lt maximum le concat",
                 .compose = fv__compose_rnn_grad, .macs = fl__rnn_grad_macs);
}

#endif /* FL_OPS_RECURRENT_IMPL */
#endif
/* MIT licence: see LICENSE. */
