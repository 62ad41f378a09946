/* fl/records/conv.h - call records of convolution: op numbers (fl/ops/conv.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_CONV_H
#define FL_RECORDS_CONV_H

#ifdef __cplusplus
extern "C" {
#endif

FL_DATA fl_op fl_op_conv2d_bias;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_CONV_H */
/* MIT licence: see LICENSE. */
