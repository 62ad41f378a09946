/* kernels/cuda/common.cuh - shared by all kernels: launches, loads and stores of any dtype, indexing, faults

   Compiled by nvcc, by NVRTC (--device-as-default-execution-space) without the parts that launch kernels,
   and, for machines without a GPU, by g++ with emu/. */
#ifndef FLK_COMMON_CUH
#define FLK_COMMON_CUH

#ifdef __CUDACC_RTC__
#include "rtc.h"
#else
#include <cuda_runtime.h>
#endif
#include "../../fl/tensor/op_table.h"
#include "../fl_math.h"
#include "flk.h"
#include "elements.h"

#ifndef __CUDACC_RTC__
/* The only way to launch a kernel; nothing if there are no blocks. The value is that of a flk_ function. */
#ifdef FL_CUDA_EMU
#define FLK_LAUNCH_GRID(kernel, grid, block, ...) \
    emu::launch(kernel, dim3((unsigned)(grid)), dim3(block), flk_stream(), __VA_ARGS__)
#else
#define FLK_LAUNCH_GRID(kernel, grid, block, ...) \
    (kernel)<<<dim3((unsigned)(grid)), dim3(block), 0, flk_stream()>>>(__VA_ARGS__)
#endif
#define FLK_LAUNCH_AS(name, kernel, grid, block, ...) \
    ((grid) != 0 ? (FLK_LAUNCH_GRID(kernel, grid, block, __VA_ARGS__), flk_started(name)) : NULL)
#define FLK_LAUNCH(kernel, grid, block, ...) FLK_LAUNCH_AS(#kernel, kernel, grid, block, __VA_ARGS__)
/* The same in blocks of FLK_BLOCK threads, for a kernel<type of the computation in dtype>. */
#define FLK_BY_FLOAT(kernel, dtype, grid, ...) \
    FLK_LAUNCH_AS(#kernel, FLK_OF_FLOAT(kernel, dtype), grid, FLK_BLOCK, __VA_ARGS__)
#define FLK_BY_NUMBER(kernel, dtype, grid, ...) \
    FLK_LAUNCH_AS(#kernel, FLK_OF_NUMBER(kernel, dtype), grid, FLK_BLOCK, __VA_ARGS__)
#define FLK_BY_TYPE(kernel, dtype, grid, ...) \
    FLK_LAUNCH_AS(#kernel, FLK_OF_TYPE(kernel, dtype), grid, FLK_BLOCK, __VA_ARGS__)
#define FLK_OF_FLOAT(f, dtype) ((dtype) == FLK_F64 ? f<double> : f<float>)
#define FLK_OF_NUMBER(f, dtype) ((dtype) < FLK_F16 ? f<int64_t> : FLK_OF_FLOAT(f, dtype))
#define FLK_OF_TYPE(f, dtype) ((dtype) == FLK_B8 ? f<uint8_t> : FLK_OF_NUMBER(f, dtype))
cudaStream_t flk_stream(void);
flk_fault *flk_faults(void); /* of the current device, in its memory */
const char *flk_started(const char *kernel);
const char *flk_error(cudaError_t e, const char *call);
#endif

static __device__ __forceinline__ uint64_t flk_counter(uint64_t counter, const uint64_t *word) {
    return word ? counter + *word : counter;
}

/* Number of blocks of `block` threads for n elements, one each: n / block <= 2^31 holds on every device. */
static inline unsigned flk_blocks(int64_t n, int block = FLK_BLOCK) {
    return (unsigned)((n + block - 1) / block);
}

/* Conditions are int in integer formulas too: this is their NOT. */
FLM int flm_bitwise_not_i64(int c) { return !c; }

#define FLK_NEVER (-1e30) /* represents log 0: sums stay finite, in f32 too */

/* ---- teams: the threads that share a row, a warp or a block ---- */

enum { FLK_WARP = 32 };
struct flk_sum_of {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct flk_max_of { /* NaN wins */
    __device__ __forceinline__ float operator()(float a, float b) const { return flm_maximum_f32(a, b); }
    __device__ __forceinline__ double operator()(double a, double b) const { return flm_maximum_f64(a, b); }
};

/* Reduces the threads' values: pairwise within warps, then over warps in order. All get the same bits. */
template <int TEAM, class T, class F> static __device__ __forceinline__ T flk_team(T v, F fold) {
    for (int mask = FLK_WARP / 2; mask > 0; mask /= 2) v = fold(v, __shfl_xor_sync(~0u, v, mask));
    if (TEAM == FLK_WARP) return v;
    __shared__ T part[TEAM / FLK_WARP];
    __syncthreads(); /* the previous reduction has been read */
    if (threadIdx.x % FLK_WARP == 0) part[threadIdx.x / FLK_WARP] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < TEAM / FLK_WARP; i++) v = fold(v, part[i]);
    return v;
}

/* The team's row, and this thread's index in the team (lane). */
template <int TEAM> static __device__ __forceinline__ int64_t flk_team_row(int *lane) {
    *lane = (int)threadIdx.x % TEAM;
    return (int64_t)blockIdx.x * (FLK_BLOCK / TEAM) + threadIdx.x / TEAM;
}

/* Launches kernel<T, team> for rows of n elements: a warp per short row, a block per long one. */
enum { FLK_SHORT_ROW = 512 };
#define FLK_BY_ROW(kernel, dtype, rows, length, ...) \
    ((length) <= FLK_SHORT_ROW \
         ? FLK_LAUNCH_AS(#kernel, FLK_TEAM(kernel, dtype, FLK_WARP), \
                         flk_blocks(rows, FLK_BLOCK / FLK_WARP), FLK_BLOCK, __VA_ARGS__) \
         : FLK_LAUNCH_AS(#kernel, FLK_TEAM(kernel, dtype, FLK_BLOCK), rows, FLK_BLOCK, __VA_ARGS__))
#define FLK_TEAM(kernel, dtype, team) ((dtype) == FLK_F64 ? kernel<double, team> : kernel<float, team>)

/* Calls use(value, position, whether it is kept) for elements lane, lane + TEAM ... of a team's line. The
   first FLK_KEPT of a thread stay in registers, loaded by flk_keep; the rest is loaded again. */
enum { FLK_KEPT = 16 };
template <int TEAM, class T, class Load>
static __device__ __forceinline__ void flk_keep(T *kept, int64_t n, int lane, Load load) {
#pragma unroll
    for (int j = 0; j < FLK_KEPT && j * TEAM < n; j++)
        if (lane + j * TEAM < n) kept[j] = load(lane + j * TEAM);
}
template <int TEAM, class T, class Load, class Use>
static __device__ __forceinline__ void flk_each_kept(T *kept, int64_t n, int lane, Load load, Use use) {
#pragma unroll
    for (int j = 0; j < FLK_KEPT && j * TEAM < n; j++)
        if (lane + j * TEAM < n) use(kept[j], lane + j * TEAM, true);
    for (int64_t k = lane + FLK_KEPT * TEAM; k < n; k += TEAM) {
        T v = load(k);
        use(v, k, false);
    }
}

/* Scalar functions by type. */
#define FLK_ARITHMETIC(T, s) \
    static __device__ __forceinline__ T flk_add(T a, T b) { return flm_add_##s(a, b); } \
    static __device__ __forceinline__ T flk_mul(T a, T b) { return flm_mul_##s(a, b); } \
    static __device__ __forceinline__ T flk_max(T a, T b) { return flm_maximum_##s(a, b); } /* NaN wins */ \
    static __device__ __forceinline__ T flk_min(T a, T b) { return flm_minimum_##s(a, b); }
FLK_ARITHMETIC(float, f32)
FLK_ARITHMETIC(double, f64)
FLK_ARITHMETIC(int64_t, i64)
FLK_ARITHMETIC(uint8_t, b8)
#undef FLK_ARITHMETIC
static __device__ __forceinline__ float flk_exp(float x) { return flm_exp_f32(x); }
static __device__ __forceinline__ double flk_exp(double x) { return flm_exp_f64(x); }
static __device__ __forceinline__ float flk_log(float x) { return flm_log_f32(x); }
static __device__ __forceinline__ double flk_log(double x) { return flm_log_f64(x); }
static __device__ __forceinline__ float flk_tanh(float x) { return flm_tanh_f32(x); }
static __device__ __forceinline__ double flk_tanh(double x) { return flm_tanh_f64(x); }
static __device__ __forceinline__ float flk_sqrt(float x) { return flm_sqrt_f32(x); }
static __device__ __forceinline__ double flk_sqrt(double x) { return flm_sqrt_f64(x); }

/* ---- approximate primitives for results that are rounded to bf16: within 1/8 of its last place, by the
   device's 2^x and 1/x, whose relative errors are at most 2^-22 and 2^-23. The emulation makes errors of
   that size, of either sign, so that tests cover the worst case. ---- */

static __device__ __forceinline__ float flk_exp2_near(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return (float)(exp2((double)x) * (1 + (flm__bits32(x) & 1 ? 0x1p-22 : -0x1p-22)));
#endif
}
static __device__ __forceinline__ float flk_reciprocal_near(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return (float)(1 / (double)x * (1 + (flm__bits32(x) & 1 ? 0x1p-23 : -0x1p-23)));
#endif
}

/* The primitives of fl_primitives.h, as in f32 except for these. erf's error is 2^-22 absolute, not
   relative: only for sums with 1, as in gelu. */
#define FLK_WORD(word, op, ...) \
    template <class... A> static __device__ __forceinline__ auto flk_near_##op(A... a) { \
        return flm_##op##_f32(a...); \
    }
FL_PRIMITIVES(FLK_WORD)
#undef FLK_WORD
static __device__ __forceinline__ float flk_near_num(double k) { return (float)k; }
static __device__ __forceinline__ float flk_near_exp(float x) { return flk_exp2_near(x * 1.44269504f); }
static __device__ __forceinline__ float flk_near_div(float a, float b) { return a * flk_reciprocal_near(b); }
static __device__ __forceinline__ float flk_near_tanh(float x) {
    const float y = 1 - 2 * flk_reciprocal_near(1 + flk_exp2_near(x * 2.88539008f));
    return fabsf(x) < 0x1p-6f ? x : y;
}
static __device__ __forceinline__ float flk_near_erf(float x) {
    const float a = fabsf(x), t = a > 4 ? 4 : a, q = flm__erf_exponent_f32(t);
    return copysignf(1 - flk_exp2_near(-1.44269504f * q), x);
}

/* ---- passes by vectors ---- */

#ifndef __CUDACC_RTC__
static inline int flk_size(int dtype) {
    static const uint8_t size[] = {0, 1, 1, 1, 2, 4, 8, 2, 4, 8, 2, 2, 4, 8};
    return size[dtype];
}

/* The pass with its elements per thread: a vector if all operands are contiguous and aligned along the
   innermost dim, or broadcast; otherwise, or if dtype is 0, one. */
static inline flk_pass flk_vectors(const flk_pass *pass, int dtype) {
    flk_pass p = *pass;
    const int last = p.ndim - 1;
    p.each = dtype == FLK_F32 ? 4 : dtype == FLK_B8 ? 16 : dtype ? 2 : 1;
    for (int k = 0; k < FLK_OPERANDS && dtype == FLK_F32; k++)
        if (p.t[k].p && flk_size(p.t[k].dtype) == 2) p.each = 8;
    bool fits = last == 0 || (last > 0 && p.shape[last] % p.each == 0);
    for (int k = 0; fits && k < FLK_OPERANDS; k++) {
        const flk_operand &t = p.t[k];
        if (!t.p || t.stride[last] == 0) continue;
        const int size = flk_size(t.dtype), bytes = p.each * size < 16 ? p.each * size : 16;
        uint64_t places = (uint64_t)(uintptr_t)t.p;
        for (int d = 0; d < last; d++) places |= (uint64_t)(t.stride[d] * size);
        fits = t.stride[last] == 1 && places % (unsigned)bytes == 0 &&
               (dtype != FLK_I64 || size == 8 || t.dtype == FLK_B8);
    }
    if (!fits) p.each = 1;
    p.vectors = p.n / p.each;
    return p;
}
static inline unsigned flk_vector_blocks(const flk_pass &p) {
    return flk_blocks(p.vectors + p.n - p.vectors * p.each);
}

/* Whether all operands that are tensors have the dtype and are aligned to 16 bytes. */
static inline bool flk_aligned(const flk_operand *const *t, int n, int dtype) {
    uint64_t places = 0;
    bool same = true;
    for (int k = 0; k < n; k++) {
        places |= (uint64_t)(uintptr_t)t[k]->p;
        same &= !t[k]->p || t[k]->dtype == dtype;
    }
    return same && places % 16 == 0;
}

/* Loads or stores N neighbouring elements of dtype D, or, if D is 0, of the operand's. */
template <int D, int N, class T>
static __device__ __forceinline__ void flk_load_some(const flk_operand &t, int64_t at, T *v) {
    flk_operand o = {};
    o.p = t.p;
    o.dtype = D ? D : t.dtype;
    if constexpr (N > 1) flk_load_vector(o, at, N, v);
    else v[0] = flk_load_at<T>(o.p, o.dtype, at);
}
template <int D, int N, class T>
static __device__ __forceinline__ void flk_store_some(const flk_operand &t, int64_t at, const T *v) {
    flk_operand o = {};
    o.p = t.p;
    o.dtype = D ? D : t.dtype;
    if constexpr (N > 1) flk_store_vector(o, at, N, v);
    else flk_store(o, at, v[0]);
}

/* Launches kernel<T, D, N>, whose threads have `each` = N channels: 8, of images of dtype D, or one. */
#define FLK_BY_CHANNELS(kernel, each, dtype, blocks, ...) \
    FLK_LAUNCH_AS(#kernel, \
                  ((dtype) == FLK_F64   ? kernel<double, 0, 1> \
                   : (each) == 1        ? kernel<float, 0, 1> \
                   : (dtype) == FLK_F32 ? kernel<float, FLK_F32, 8> \
                   : (dtype) == FLK_F16 ? kernel<float, FLK_F16, 8> \
                                        : kernel<float, FLK_BF16, 8>), \
                  blocks, FLK_BLOCK, __VA_ARGS__)
#endif

/* Number of elements of thread i of a vectorised pass, and the first. The rest of the pass is processed one
   by one. */
static __device__ __forceinline__ int flk_elements_of(const flk_pass &p, int64_t i, int64_t *first) {
    const int64_t left = i - p.vectors;
    *first = left < 0 ? i * p.each : p.vectors * p.each + left;
    return left < 0 ? p.each : *first < p.n;
}
static __device__ __forceinline__ int flk_elements(const flk_pass &p, int64_t *first) {
    return flk_elements_of(p, flk_thread(), first);
}

/* The first fault stays. Only the thread that finds the device's entry free writes over the bus. */
static __device__ __forceinline__ void flk_note(flk_fault *f, int op, int zero, int64_t index, int64_t size,
                                                int64_t axis) {
    if (*(volatile int *)&f->op || atomicCAS(&f->op, 0, op)) return;
    *f->host = {op, zero, index, size, axis, NULL};
}

#endif
/* MIT licence: see LICENSE. */
