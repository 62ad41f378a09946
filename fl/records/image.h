/* fl/records/image.h - call records of resampling along an axis: arguments, op numbers (fl/ops/image.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_IMAGE_H
#define FL_RECORDS_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_resample_args {
    int64_t axis;
    int64_t size;    /* size of the axis in the result */
    int64_t adjoint; /* the gradient */
} fl_resample_args;
FL_DATA fl_op fl_op_resample;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_IMAGE_H */
/* MIT licence: see LICENSE. */
