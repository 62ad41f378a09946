/* fl/records/random.h - call records of dropout: arguments and op numbers (fl/ops/random.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_RANDOM_H
#define FL_RECORDS_RANDOM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Element i is decided by the UNIFORM f32 number i of rng (fl_random_args). */
typedef struct fl_dropout_args {
    double p;
    fl_rng rng;
} fl_dropout_args;
FL_DATA fl_op fl_op_dropout;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_RANDOM_H */
/* MIT licence: see LICENSE. */
