/* fl/records/loss.h - call records of cross entropy: arguments and op numbers (fl/ops/loss.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_LOSS_H
#define FL_RECORDS_LOSS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_cross_entropy_args {
    double smoothing; /* label smoothing */
    int64_t ignore;   /* target class that is ignored */
} fl_cross_entropy_args;
FL_DATA fl_op fl_op_cross_entropy, fl_op_cross_entropy_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_LOSS_H */
/* MIT licence: see LICENSE. */
