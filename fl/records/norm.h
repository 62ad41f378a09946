/* fl/records/norm.h - arguments and op numbers of the call records of layer, group and batch norm

   fl/ops/norm.h says what they do. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_NORM_H
#define FL_RECORDS_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_norm_args {
    int dims; /* the last ones, at least 1 */
    double eps;
    bool rms; /* 1 / sqrt(mean(x^2) + eps), and nothing is subtracted */
} fl_norm_args;
typedef struct fl_add_norm_args {
    fl_norm_args norm;
    double p; /* of fl_dropout_args, 0: none */
    fl_rng rng;
} fl_add_norm_args;
typedef struct fl_batch_norm_args {
    double eps;
    bool relu;
    int64_t groups; /* > 0: statistics of groups of channels of each image, not of channels of the batch */
} fl_batch_norm_args;
FL_DATA fl_op fl_op_layer_norm, fl_op_layer_norm_grad, fl_op_batch_norm, fl_op_batch_norm_grad;
FL_DATA fl_op fl_op_group_norm, fl_op_group_norm_grad, fl_op_add_layer_norm;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_NORM_H */
/* MIT licence: see LICENSE. */
