/* kernels/cuda/common.cuh - what all kernels share: launches, loads and stores of any dtype, places, faults

   The same text is compiled by nvcc, by NVRTC (--device-as-default-execution-space) without what starts
   kernels, and, for machines without a GPU, by g++ on emu/. */
#ifndef FLK_COMMON_CUH
#define FLK_COMMON_CUH

#ifdef __CUDACC_RTC__
#include "rtc.h"
#else
#include <cuda_runtime.h>
#endif
#include "../fl_math.h"
#include "flk.h"

#ifndef __CUDACC_RTC__
/* The only way to start a kernel. Names the error, and is the value of a flk_ function. */
#ifdef FL_CUDA_EMU
#define FLK_LAUNCH(kernel, grid, block, ...) \
    (emu::launch(kernel, dim3(grid), dim3(block), flk_stream(), __VA_ARGS__), flk_started(#kernel))
#else
#define FLK_LAUNCH(kernel, grid, block, ...) \
    (kernel<<<dim3(grid), dim3(block), 0, flk_stream()>>>(__VA_ARGS__), flk_started(#kernel))
#endif
cudaStream_t flk_stream(void);
flk_fault *flk_faults(void); /* of the device; the first one stays */
const char *flk_started(const char *kernel);
const char *flk_error(cudaError_t e, const char *call);
#endif

static __device__ __forceinline__ uint64_t flk_counter(uint64_t counter, const uint64_t *word) {
    return word ? counter + *word : counter;
}

enum { FLK_BLOCK = 256 };
/* Blocks of `block` threads for n elements, one each: n / block <= 2^31 holds on every device there is. */
static inline unsigned flk_blocks(int64_t n, int block = FLK_BLOCK) {
    return (unsigned)((n + block - 1) / block);
}
static __device__ __forceinline__ int64_t flk_thread(void) {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* A condition is an int in formulas of integers too: this is its NOT. */
FLM int flm_bitwise_not_i64(int c) { return !c; }

/* The quotient of n, which becomes the remainder; 32 bits where they do, as 64 cost several times as much. */
static __device__ __forceinline__ int64_t flk_divide(int64_t *n, int64_t by) {
    int64_t q;
    if ((uint64_t)*n >> 32 || (uint64_t)by >> 32) q = *n / by;
    else q = (int64_t)((uint32_t)*n / (uint32_t)by);
    *n -= q * by;
    return q;
}

/* Offsets of element i of N operands, in elements. */
template <int N> static __device__ __forceinline__ void flk_place(const flk_pass &p, int64_t i, int64_t *at) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
    for (int d = p.ndim - 1; d >= 0; d--) {
        const int64_t rest = d ? flk_divide(&i, p.shape[d]) : 0;
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += i * p.t[k].stride[d];
        i = rest;
    }
}

#define FLK_NEVER (-1e30) /* stands for log 0; its sums are finite, in f32 too */

/* ---- teams: as many threads as share a row, a warp or a block ---- */

enum { FLK_WARP = 32 };
struct flk_sum_of {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct flk_max_of { /* NaN wins */
    __device__ __forceinline__ float operator()(float a, float b) const { return flm_maximum_f32(a, b); }
    __device__ __forceinline__ double operator()(double a, double b) const { return flm_maximum_f64(a, b); }
};

/* The threads' values folded: in pairs, then the warps' in order. All get it, with the same bits. */
template <int TEAM, class T, class F> static __device__ __forceinline__ T flk_team(T v, F fold) {
    for (int mask = FLK_WARP / 2; mask > 0; mask /= 2) v = fold(v, __shfl_xor_sync(~0u, v, mask));
    if (TEAM == FLK_WARP) return v;
    __shared__ T part[TEAM / FLK_WARP];
    __syncthreads(); /* what was folded before has been read */
    if (threadIdx.x % FLK_WARP == 0) part[threadIdx.x / FLK_WARP] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < TEAM / FLK_WARP; i++) v = fold(v, part[i]);
    return v;
}

/* The team's row, and this thread's place in the team. Rows end with a warp's or a block's. */
template <int TEAM> static __device__ __forceinline__ int64_t flk_team_row(int *lane) {
    *lane = (int)threadIdx.x % TEAM;
    return (int64_t)blockIdx.x * (FLK_BLOCK / TEAM) + threadIdx.x / TEAM;
}

/* Starts kernel<T, team> for so many rows of so many elements: a warp takes a short one, a block a long
   one. */
enum { FLK_SHORT_ROW = 512 };
#define FLK_BY_ROW(kernel, T, rows, length, ...) \
    ((length) <= FLK_SHORT_ROW \
         ? FLK_LAUNCH((kernel<T, FLK_WARP>), flk_blocks(rows, FLK_BLOCK / FLK_WARP), FLK_BLOCK, __VA_ARGS__) \
         : FLK_LAUNCH((kernel<T, FLK_BLOCK>), (unsigned)(rows), FLK_BLOCK, __VA_ARGS__))

/* Scalar mathematics by type. */
static __device__ __forceinline__ float flk_exp(float x) { return flm_exp_f32(x); }
static __device__ __forceinline__ double flk_exp(double x) { return flm_exp_f64(x); }
static __device__ __forceinline__ float flk_log(float x) { return flm_log_f32(x); }
static __device__ __forceinline__ double flk_log(double x) { return flm_log_f64(x); }
static __device__ __forceinline__ float flk_tanh(float x) { return flm_tanh_f32(x); }
static __device__ __forceinline__ double flk_tanh(double x) { return flm_tanh_f64(x); }
static __device__ __forceinline__ float flk_sqrt(float x) { return flm_sqrt_f32(x); }
static __device__ __forceinline__ double flk_sqrt(double x) { return flm_sqrt_f64(x); }

/* ---- elements: storage dtypes of the type that is computed in ---- */

template <class T> static __device__ __forceinline__ T flk_load_at(const void *p, int dtype, int64_t at);
template <> __device__ __forceinline__ float flk_load_at<float>(const void *p, int dtype, int64_t at) {
    if (dtype == FLK_F32) return ((const float *)p)[at];
    const uint16_t h = ((const uint16_t *)p)[at];
    return dtype == FLK_F16 ? flm_f16_to_f32(h) : flm_bf16_to_f32(h);
}
template <> __device__ __forceinline__ double flk_load_at<double>(const void *p, int, int64_t at) {
    return ((const double *)p)[at];
}
template <> __device__ __forceinline__ uint8_t flk_load_at<uint8_t>(const void *p, int, int64_t at) {
    return ((const uint8_t *)p)[at];
}
template <> __device__ __forceinline__ uint64_t flk_load_at<uint64_t>(const void *p, int, int64_t at) {
    return ((const uint64_t *)p)[at];
}
template <> __device__ __forceinline__ int64_t flk_load_at<int64_t>(const void *p, int dtype, int64_t at) {
    switch (dtype) {
    case FLK_I8: return ((const int8_t *)p)[at];
    case FLK_I16: return ((const int16_t *)p)[at];
    case FLK_I32: return ((const int32_t *)p)[at];
    case FLK_U16: return ((const uint16_t *)p)[at];
    case FLK_U32: return ((const uint32_t *)p)[at];
    case FLK_I64:
    case FLK_U64: return ((const int64_t *)p)[at];
    default: return ((const uint8_t *)p)[at];
    }
}

static __device__ __forceinline__ void flk_number(const flk_operand &t, float *v) { *v = (float)t.f; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, double *v) { *v = t.f; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, int64_t *v) { *v = t.i; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, uint8_t *v) { *v = t.i != 0; }
template <class T> static __device__ __forceinline__ T flk_load(const flk_operand &t, int64_t at) {
    T v;
    if (t.p) return flk_load_at<T>(t.p, t.dtype, at);
    flk_number(t, &v);
    return v;
}

static __device__ __forceinline__ void flk_store(const flk_operand &t, int64_t at, float v) {
    if (t.dtype == FLK_F32) ((float *)t.p)[at] = v;
    else ((uint16_t *)t.p)[at] = t.dtype == FLK_F16 ? flm_f32_to_f16(v) : flm_f32_to_bf16(v);
}
static __device__ __forceinline__ void flk_store(const flk_operand &t, int64_t at, double v) {
    ((double *)t.p)[at] = v;
}
static __device__ __forceinline__ void flk_store(const flk_operand &t, int64_t at, uint8_t v) {
    ((uint8_t *)t.p)[at] = v;
}
static __device__ __forceinline__ void flk_store(const flk_operand &t, int64_t at, int64_t v) {
    switch (t.dtype) {
    case FLK_I64:
    case FLK_U64: ((int64_t *)t.p)[at] = v; break;
    case FLK_I32:
    case FLK_U32: ((int32_t *)t.p)[at] = (int32_t)v; break;
    case FLK_I16:
    case FLK_U16: ((int16_t *)t.p)[at] = (int16_t)v; break;
    default: ((int8_t *)t.p)[at] = (int8_t)v;
    }
}

/* The first one stays: its op is written last, by the one thread that found the place free. */
static __device__ __forceinline__ void flk_note(flk_fault *f, int op, int zero, int64_t index, int64_t size,
                                                int64_t axis) {
    if (atomicCAS(&f->op, 0, op)) return;
    f->zero = zero;
    f->index = index;
    f->size = size;
    f->axis = axis;
}

#endif
/* MIT licence: see LICENSE. */
