/* fl/records/recurrent.h - arguments and op numbers of the call records of recurrent layers

   fl/ops/recurrent.h says what they do. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_RECURRENT_H
#define FL_RECORDS_RECURRENT_H

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
/* For slots. Where W_ih, W_hh, b_ih, b_hh, W_hr (part 0 to 4) of the first direction begin in w, each of
   the others follows it; 5: the end of w. *s: the part's shape in one direction. */
FL_API int64_t fl_rnn_part(const fl_rnn_args *a, int64_t in, int part, fl_shape *s);
/* Numbers in the reserve of so many rows. */
FL_API int64_t fl_rnn_reserve(const fl_rnn_args *a, int64_t rows);
FL_DATA fl_op fl_op_rnn, fl_op_rnn_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_RECURRENT_H */

#if defined(FL_IMPL_ONLY_RECORDS_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_RECORDS_RECURRENT_IMPL
#define FL_RECORDS_RECURRENT_IMPL
FL_API int64_t fl_rnn_part(const fl_rnn_args *a, int64_t in, int part, fl_shape *s) {
    if (!fl_given(a, "fl_rnn_part", "the args") || !fl_given(s, "fl_rnn_part", "the shape")) return -1;
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
    if (!fl_given(a, "fl_rnn_reserve", "the args")) return -1;
    const int more = a->mode < FL_GRU ? 0 : a->out == a->hidden ? 1 : 2;
    return rows * a->ways * (a->gates + more) * a->hidden;
}
#endif /* FL_RECORDS_RECURRENT_IMPL */
#endif
/* MIT licence: see LICENSE. */
