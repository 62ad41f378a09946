/* fl/records/factor.h - arguments and op numbers of the call records of matrix factorisations

   fl/ops/factor.h says what they do. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_FACTOR_H
#define FL_RECORDS_FACTOR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_triangle_args {
    bool upper; /* else the lower triangle: the other one is not read, */
    bool unit;  /* nor the diagonal, which counts as ones */
} fl_triangle_args;
FL_DATA fl_op fl_op_lu_factor, fl_op_solve, fl_op_solve_triangular, fl_op_cholesky, fl_op_qr, fl_op_svd,
    fl_op_eigh, fl_op_eig;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_FACTOR_H */
/* MIT licence: see LICENSE. */
