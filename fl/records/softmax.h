/* fl/records/softmax.h - call records of softmax: op numbers (fl/ops/softmax.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_SOFTMAX_H
#define FL_RECORDS_SOFTMAX_H

#ifdef __cplusplus
extern "C" {
#endif

FL_DATA fl_op fl_op_softmax, fl_op_softmax_grad, fl_op_log_softmax, fl_op_log_softmax_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_SOFTMAX_H */
/* MIT licence: see LICENSE. */
