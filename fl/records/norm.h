/* fl/records/norm.h - call records of layer, group and batch norm: arguments, op numbers (fl/ops/norm.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_NORM_H
#define FL_RECORDS_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_norm_args {
    int64_t dims; /* number of trailing dims that are normalised, at least 1 */
    double eps;
    int64_t rms; /* RMS norm: x / sqrt(mean(x^2) + eps), without subtracting the mean */
} fl_norm_args;
typedef struct fl_add_norm_args {
    fl_norm_args norm;
    double p; /* dropout probability as in fl_dropout_args, 0: none */
    fl_rng rng;
} fl_add_norm_args;
typedef struct fl_batch_norm_args {
    double eps;
    int64_t relu;   /* fused relu */
    int64_t groups; /* > 0: group norm, statistics per image and group of channels, not per channel of the
                       batch */
    double momentum, unbiased; /* of an update: running = (1 - momentum) running + momentum batch, where var
                                  is multiplied by unbiased, n / (n - 1) */
} fl_batch_norm_args;
FL_DATA fl_op fl_op_layer_norm, fl_op_layer_norm_grad, fl_op_batch_norm, fl_op_batch_norm_grad;
FL_DATA fl_op fl_op_batch_statistics;
FL_DATA fl_op fl_op_group_norm, fl_op_group_norm_grad, fl_op_add_layer_norm;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_NORM_H */
/* MIT licence: see LICENSE. */
