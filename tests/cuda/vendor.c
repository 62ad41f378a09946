/* vendor.c - compiles the prototypes and numbers that kernels have by hand beside NVIDIA's own headers:
   a difference does not compile (make cuda-vendor) */
#include <cublasLt.h>
#include <stdbool.h>
#include <cudnn.h>
#include <nccl.h>
#include <nvrtc.h>

#define FL_CUDA_CHECK
typedef cublasStatus_t fl__lt_status;
typedef cublasComputeType_t fl__lt_compute;
typedef cudaDataType_t fl__lt_type;
typedef cublasLtMatmulDescAttributes_t fl__lt_desc_attribute;
typedef cublasLtMatrixLayoutAttribute_t fl__lt_layout_attribute;
typedef cublasLtMatmulPreferenceAttributes_t fl__lt_pref_attribute;
typedef cublasLtHandle_t fl__lt_handle;
typedef cublasLtMatmulDesc_t fl__lt_desc;
typedef cublasLtMatrixLayout_t fl__lt_layout;
typedef cublasLtMatmulPreference_t fl__lt_pref;
typedef cudaStream_t fl__lt_stream;
typedef cublasLtMatmulAlgo_t fl__lt_algo;
typedef cublasLtMatmulHeuristicResult_t fl__lt_choice;
typedef cudnnStatus_t fl__dnn_status;
typedef cudnnBackendDescriptorType_t fl__dnn_kind;
typedef cudnnBackendAttributeName_t fl__dnn_attribute;
typedef cudnnBackendAttributeType_t fl__dnn_type;
typedef cudnnHandle_t fl__dnn_handle;
typedef cudaStream_t fl__dnn_stream;
typedef cudnnBackendDescriptor_t fl__dnn_desc;
typedef ncclResult_t fl__nccl_status;
typedef ncclDataType_t fl__nccl_dtype;
typedef ncclRedOp_t fl__nccl_op;
typedef ncclComm_t fl__nccl_comm;
typedef cudaStream_t fl__nccl_stream;
typedef ncclUniqueId fl__nccl_id;
typedef ncclConfig_t fl__nccl_config;
typedef nvrtcProgram fl__nvrtc_program;
typedef nvrtcResult fl__nvrtc_result;
#include "../../kernels/cuda/dnn_calls.h"
#include "../../kernels/cuda/lt_calls.h"
#include "../../kernels/cuda/nvrtc.h"
#include "../../kernels/dist/nccl_calls.h"

#define AGAIN(result, name, args) result name args;
FL__LT_CALLS(AGAIN)
FL__DNN_CALLS(AGAIN)
FL__NVRTC_CALLS(AGAIN)
FL__NCCL_CALLS(AGAIN)
#define SAME_DNN(name, value) _Static_assert((int)FL__##name == (int)CUDNN_##name, #name);
FL__DNN_NUMBERS(SAME_DNN)
#define SAME_NUMBER(here, theirs, value) _Static_assert((int)here == (int)theirs, #here);
FL__LT_NUMBERS(SAME_NUMBER)
FL__NCCL_NUMBERS(SAME_NUMBER)

/* The structs that cross by value: their layout here, in lt_calls.h without FL_CUDA_CHECK. */
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "fl__lt_algo");
_Static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64, "fl__lt_choice");
_Static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == 72, "fl__lt_choice");
_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "fl__lt_choice");
_Static_assert(sizeof(ncclUniqueId) == 128 && offsetof(ncclConfig_t, blocking) == 16, "fl__nccl_config");
_Static_assert(sizeof(cublasStatus_t) == 4 && sizeof(cublasLtMatmulDescAttributes_t) == 4, "enums are ints");
/* MIT licence: see LICENSE. */
