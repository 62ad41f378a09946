/* fl/records/fft.h - call records of Fourier transforms: arguments and op numbers (fl/ops/fft.h) */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_RECORDS_FFT_H
#define FL_RECORDS_FFT_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_fft_args {
    int axis;
    int inverse; /* positive exponent, without the factor 1 / n */
} fl_fft_args;
FL_DATA fl_op fl_op_fft;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_FFT_H */
/* MIT licence: see LICENSE. */
