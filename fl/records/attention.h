/* fl/records/attention.h - call records of attention: arguments and op numbers (fl/ops/attention.h) */
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
    int64_t causal;         /* query i, at position i + offset, attends to keys up to that position */
    int64_t offset, window; /* window > 0: attends only to keys fewer than `window` positions away */
    double softcap;         /* cap of the logits, 0: none */
    double p;               /* dropout of the softmax's output: element i as in fl_dropout_args */
    fl_rng rng;
} fl_attention_args;
FL_DATA fl_op fl_op_attention, fl_op_attention_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_ATTENTION_H */
/* MIT licence: see LICENSE. */
