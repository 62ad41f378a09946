/* fl/records/factor.h - call records of matrix factorisations: arguments and op numbers (fl/ops/factor.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_FACTOR_H
#define FL_RECORDS_FACTOR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_triangle_args {
    bool upper; /* uses the upper triangle, else the lower one; the other is not read */
    bool unit;  /* unit diagonal: not read either */
} fl_triangle_args;
FL_DATA fl_op fl_op_lu_factor, fl_op_solve, fl_op_solve_triangular, fl_op_cholesky, fl_op_qr, fl_op_svd,
    fl_op_eigh, fl_op_eig;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_FACTOR_H */
/* MIT licence: see LICENSE. */
