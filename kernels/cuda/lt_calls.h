/* kernels/cuda/lt_calls.h - declarations of the cuBLASLt functions that lt.h calls

   Written by hand, so that building needs nothing from NVIDIA; tests/cuda/vendor.c compiles them against the
   real headers, with FL_CUDA_CHECK selecting the real types. */
#ifndef FL_CUDA_LT_CALLS_H
#define FL_CUDA_LT_CALLS_H
#include <stddef.h>
#include <stdint.h>

#ifndef FL_CUDA_CHECK
typedef int fl__lt_status;
typedef unsigned fl__lt_compute, fl__lt_type, fl__lt_desc_attribute, fl__lt_layout_attribute,
    fl__lt_pref_attribute;
typedef struct fl__lt_library *fl__lt_handle;
typedef struct fl__lt_desc_data *fl__lt_desc;
typedef struct fl__lt_layout_data *fl__lt_layout;
typedef struct fl__lt_pref_data *fl__lt_pref;
typedef struct fl__lt_stream_data *fl__lt_stream;
typedef struct fl__lt_algo {
    uint64_t data[8];
} fl__lt_algo;
typedef struct fl__lt_choice {
    fl__lt_algo algo;
    size_t workspaceSize;
    fl__lt_status state;
    float wavesCount;
    int reserved[4];
} fl__lt_choice;
#endif

/* X(result, name, arguments) */
#define FL__LT_CALLS(X)                                                                                     \
    X(fl__lt_status, cublasLtCreate, (fl__lt_handle *))                                                     \
    X(size_t, cublasLtGetVersion, (void))                                                                   \
    X(const char *, cublasLtGetStatusString, (fl__lt_status))                                               \
    X(fl__lt_status, cublasLtMatmulDescCreate, (fl__lt_desc *, fl__lt_compute, fl__lt_type))                \
    X(fl__lt_status, cublasLtMatmulDescDestroy, (fl__lt_desc))                                              \
    X(fl__lt_status, cublasLtMatmulDescSetAttribute,                                                        \
      (fl__lt_desc, fl__lt_desc_attribute, const void *, size_t))                                           \
    X(fl__lt_status, cublasLtMatrixLayoutCreate,                                                            \
      (fl__lt_layout *, fl__lt_type, uint64_t, uint64_t, int64_t))                                          \
    X(fl__lt_status, cublasLtMatrixLayoutDestroy, (fl__lt_layout))                                          \
    X(fl__lt_status, cublasLtMatrixLayoutSetAttribute,                                                      \
      (fl__lt_layout, fl__lt_layout_attribute, const void *, size_t))                                       \
    X(fl__lt_status, cublasLtMatmulPreferenceCreate, (fl__lt_pref *))                                       \
    X(fl__lt_status, cublasLtMatmulPreferenceDestroy, (fl__lt_pref))                                        \
    X(fl__lt_status, cublasLtMatmulPreferenceSetAttribute,                                                  \
      (fl__lt_pref, fl__lt_pref_attribute, const void *, size_t))                                           \
    X(fl__lt_status, cublasLtMatmulAlgoGetHeuristic,                                                        \
      (fl__lt_handle, fl__lt_desc, fl__lt_layout, fl__lt_layout, fl__lt_layout, fl__lt_layout, fl__lt_pref, \
       int, fl__lt_choice *, int *))                                                                        \
    X(fl__lt_status, cublasLtMatmul,                                                                        \
      (fl__lt_handle, fl__lt_desc, const void *, const void *, fl__lt_layout, const void *, fl__lt_layout,  \
       const void *, const void *, fl__lt_layout, void *, fl__lt_layout, const fl__lt_algo *, void *,       \
       size_t, fl__lt_stream))

/* X(our name, the library's, value) */
#define FL__LT_NUMBERS(X)                                                   \
    X(FL__LT_COMPUTE_F32, CUBLAS_COMPUTE_32F, 68)                           \
    X(FL__LT_COMPUTE_F64, CUBLAS_COMPUTE_64F, 70)                           \
    X(FL__LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                \
    X(FL__LT_F32, CUDA_R_32F, 0)                                            \
    X(FL__LT_F64, CUDA_R_64F, 1)                                            \
    X(FL__LT_F16, CUDA_R_16F, 2)                                            \
    X(FL__LT_BF16, CUDA_R_16BF, 14)                                         \
    X(FL__LT_TRANSPOSE, CUBLAS_OP_T, 1)                                     \
    X(FL__LT_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA, 3)                        \
    X(FL__LT_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB, 4)                        \
    X(FL__LT_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                    \
    X(FL__LT_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)            \
    X(FL__LT_NO_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT, 1)                     \
    X(FL__LT_RELU, CUBLASLT_EPILOGUE_RELU, 2)                               \
    X(FL__LT_BIAS, CUBLASLT_EPILOGUE_BIAS, 4)                               \
    X(FL__LT_GELU_TANH, CUBLASLT_EPILOGUE_GELU, 32)                         \
    X(FL__LT_SUMS_OF_B, CUBLASLT_EPILOGUE_BGRADB, 512)                      \
    X(FL__LT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)            \
    X(FL__LT_BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)  \
    X(FL__LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)   \
    X(FL__LT_PREF_REDUCTION, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
    X(FL__LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)   \
    X(FL__LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)   \
    X(FL__LT_REDUCE_IN_F32, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)
enum {
#define FL__LT_NUMBER(here, theirs, value) here = value,
    FL__LT_NUMBERS(FL__LT_NUMBER)
#undef FL__LT_NUMBER
};
#endif
/* MIT licence: see LICENSE. */
