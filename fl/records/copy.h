/* fl/records/copy.h - call records of concatenation: op numbers (fl/ops/copy.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_COPY_H
#define FL_RECORDS_COPY_H

#ifdef __cplusplus
extern "C" {
#endif

FL_DATA fl_op fl_op_concat;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_COPY_H */
/* MIT licence: see LICENSE. */
