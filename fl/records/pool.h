/* fl/records/pool.h - call records of pooling: arguments and op numbers (fl/ops/pool.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_POOL_H
#define FL_RECORDS_POOL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_pool2d_args {
    /* h, w. pad_lo is at most half a window; pad_hi is such that the last window starts inside the image */
    int64_t kernel[2], stride[2], pad_lo[2], pad_hi[2];
    int count_pad; /* average pooling: padding counts as zeros */
    int in_window; /* max pooling: indices are u8, relative to the window, also after a cast to i64 */
} fl_pool2d_args;
FL_DATA fl_op fl_op_max_pool2d, fl_op_max_pool2d_grad, fl_op_avg_pool2d, fl_op_avg_pool2d_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_POOL_H */
/* MIT licence: see LICENSE. */
