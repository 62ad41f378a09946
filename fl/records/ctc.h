/* fl/records/ctc.h - call records of CTC, connectionist temporal classification (fl/ops/ctc.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_CTC_H
#define FL_RECORDS_CTC_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_ctc_args {
    int64_t blank; /* index of the blank class */
} fl_ctc_args;
FL_DATA fl_op fl_op_ctc, fl_op_ctc_grad;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_CTC_H */
/* MIT licence: see LICENSE. */
