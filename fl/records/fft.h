/* fl/records/fft.h - arguments and op numbers of the call records of Fourier transforms (fl/ops/fft.h) */
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
    bool inverse; /* with +, and without 1 / n */
} fl_fft_args;
FL_DATA fl_op fl_op_fft;

#ifdef __cplusplus
}
#endif
#endif /* FL_RECORDS_FFT_H */
/* MIT licence: see LICENSE. */
