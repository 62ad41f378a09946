/* kernels/dist/nccl_calls.h - declarations of the NCCL functions that nccl.h calls

   Written by hand for NCCL 2.14 and later, so that building needs nothing from NVIDIA; tests/cuda/vendor.c
   compiles them against the real header, with FL_CUDA_CHECK selecting the real types. */
#ifndef NCCL_CALLS_FL_H
#define NCCL_CALLS_FL_H
#include <stddef.h>

#ifndef FL_CUDA_CHECK
typedef unsigned fl__nccl_status, fl__nccl_dtype, fl__nccl_op;
typedef struct fl__nccl_comm_data *fl__nccl_comm;
typedef struct fl__nccl_stream_data *fl__nccl_stream;
typedef struct fl__nccl_id {
    char internal[128];
} fl__nccl_id;
typedef struct fl__nccl_config { /* of 2.14: later versions read no more, by its size and version */
    size_t size;
    unsigned magic, version;
    int blocking;
} fl__nccl_config;
#endif

/* X(result, name, arguments) */
#define FL__NCCL_CALLS(X)                                                                                    \
    X(fl__nccl_status, ncclGetUniqueId, (fl__nccl_id *))                                                     \
    X(fl__nccl_status, ncclCommInitRankConfig, (fl__nccl_comm *, int, fl__nccl_id, int, fl__nccl_config *))  \
    X(fl__nccl_status, ncclCommGetAsyncError, (fl__nccl_comm, fl__nccl_status *))                            \
    X(fl__nccl_status, ncclCommFinalize, (fl__nccl_comm))                                                    \
    X(fl__nccl_status, ncclCommDestroy, (fl__nccl_comm))                                                     \
    X(fl__nccl_status, ncclCommAbort, (fl__nccl_comm))                                                       \
    X(const char *, ncclGetErrorString, (fl__nccl_status))                                                   \
    X(fl__nccl_status, ncclAllReduce,                                                                        \
      (const void *, void *, size_t, fl__nccl_dtype, fl__nccl_op, fl__nccl_comm, fl__nccl_stream))           \
    X(fl__nccl_status, ncclReduce,                                                                           \
      (const void *, void *, size_t, fl__nccl_dtype, fl__nccl_op, int, fl__nccl_comm, fl__nccl_stream))      \
    X(fl__nccl_status, ncclReduceScatter,                                                                    \
      (const void *, void *, size_t, fl__nccl_dtype, fl__nccl_op, fl__nccl_comm, fl__nccl_stream))           \
    X(fl__nccl_status, ncclBroadcast,                                                                        \
      (const void *, void *, size_t, fl__nccl_dtype, int, fl__nccl_comm, fl__nccl_stream))                   \
    X(fl__nccl_status, ncclAllGather,                                                                        \
      (const void *, void *, size_t, fl__nccl_dtype, fl__nccl_comm, fl__nccl_stream))                        \
    X(fl__nccl_status, ncclSend,                                                                             \
      (const void *, size_t, fl__nccl_dtype, int, fl__nccl_comm, fl__nccl_stream))                           \
    X(fl__nccl_status, ncclRecv, (void *, size_t, fl__nccl_dtype, int, fl__nccl_comm, fl__nccl_stream))      \
    X(fl__nccl_status, ncclGroupStart, (void))                                                               \
    X(fl__nccl_status, ncclGroupEnd, (void))

/* X(our name, the library's, value) */
#define FL__NCCL_NUMBERS(X)                     \
    X(FL__NCCL_INVALID, ncclInvalidArgument, 4) \
    X(FL__NCCL_REMOTE, ncclRemoteError, 6)      \
    X(FL__NCCL_IN_PROGRESS, ncclInProgress, 7)  \
    X(FL__NCCL_SUM, ncclSum, 0)                 \
    X(FL__NCCL_MAX, ncclMax, 2)                 \
    X(FL__NCCL_MIN, ncclMin, 3)                 \
    X(FL__NCCL_AVG, ncclAvg, 4)                 \
    X(FL__NCCL_I8, ncclInt8, 0)                 \
    X(FL__NCCL_U8, ncclUint8, 1)                \
    X(FL__NCCL_I32, ncclInt32, 2)               \
    X(FL__NCCL_U32, ncclUint32, 3)              \
    X(FL__NCCL_I64, ncclInt64, 4)               \
    X(FL__NCCL_U64, ncclUint64, 5)              \
    X(FL__NCCL_F16, ncclFloat16, 6)             \
    X(FL__NCCL_F32, ncclFloat32, 7)             \
    X(FL__NCCL_F64, ncclFloat64, 8)             \
    X(FL__NCCL_BF16, ncclBfloat16, 9)
enum {
#define FL__NCCL_NUMBER(here, theirs, value) here = value,
    FL__NCCL_NUMBERS(FL__NCCL_NUMBER)
#undef FL__NCCL_NUMBER
};
#endif
/* MIT licence: see LICENSE. */
