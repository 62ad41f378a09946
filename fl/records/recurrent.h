/* fl/records/recurrent.h - call records of recurrent layers: arguments, packed weights
   (fl/ops/recurrent.h) */
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
    int gates, ways;     /* gates: 1, GRU 3, LSTM 4; ways: number of directions, 1 or 2 */
    int batch_first;     /* x and y are [n, t, ...] */
    int64_t biased;      /* w contains b_ih and b_hh */
    int64_t hidden, out; /* out < hidden: with projection */
} fl_rnn_args;
/* For slots: offset in the packed weights w of W_ih, W_hh, b_ih, b_hh, W_hr (part 0 to 4) of the first
   direction, which that of the second follows; part 5: the end of w. *s: the part's shape in one
   direction. */
FL_API int64_t fl_rnn_part(const fl_rnn_args *a, int64_t in, int part, fl_shape *s);
/* Size, in elements, of the reserve (values saved for backward) of `rows` rows. */
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

/* The reserve has the gates; for a GRU also h_n; for an LSTM also c and, with projection, o tanh(c). */
FL_API int64_t fl_rnn_reserve(const fl_rnn_args *a, int64_t rows) {
    if (!fl_given(a, "fl_rnn_reserve", "the args")) return -1;
    const int more = a->mode < FL_GRU ? 0 : a->out == a->hidden ? 1 : 2;
    return rows * a->ways * (a->gates + more) * a->hidden;
}
#endif /* FL_RECORDS_RECURRENT_IMPL */
#endif
/* MIT licence: see LICENSE. */
