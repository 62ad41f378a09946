/* fl/records/image.h - arguments and op numbers of the call records of resampling along an axis

   fl/ops/image.h says what they do. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_IMAGE_H
#define FL_RECORDS_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_resample_args {
    int axis;
    int64_t size; /* elements of the axis of the result */
    bool adjoint;
} fl_resample_args;
FL_DATA fl_op fl_op_resample;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_IMAGE_H */
/* MIT licence: see LICENSE. */
