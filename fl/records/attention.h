/* fl/records/attention.h - arguments and op numbers of the call records of attention (fl/ops/attention.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_ATTENTION_H
#define FL_RECORDS_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_attention_args {
    double scale;
    bool causal;            /* query i, which stands at i + offset, sees the keys up to there */
    int64_t offset, window; /* window > 0: it sees keys fewer than this many places away */
    double softcap;         /* 0: none */
    double p;               /* dropout of the softmax, before it meets v: element i as in fl_dropout_args */
    fl_rng rng;
} fl_attention_args;
FL_DATA fl_op fl_op_attention, fl_op_attention_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_ATTENTION_H */
/* MIT licence: see LICENSE. */
