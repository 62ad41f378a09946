/* fl/records/activation.h - call records of gated linear units: op numbers (fl/ops/activation.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_ACTIVATION_H
#define FL_RECORDS_ACTIVATION_H

#ifdef __cplusplus
extern "C" {
#endif

FL_DATA fl_op fl_op_glu, fl_op_glu_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_ACTIVATION_H */
/* MIT licence: see LICENSE. */
