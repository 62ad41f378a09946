/* kernels/cuda/reduce.cu - sums, products and extremes over any axes, and where an extreme is

   Few elements: a thread folds them in order. Many: a block does, each thread every FLK_BLOCK-th of them,
   and then a tree. Which, is decided by the number of elements alone, so the bits are those of any device. */
#include "common.cuh"

enum { FLK_SERIAL = 64 }; /* elements that one thread folds */

template <class T> struct flk_state {
    T v;
    int64_t at; /* of an extreme: its place; -1 before the first element */
};

static __device__ __forceinline__ bool flk_nan(float v) { return v != v; }
static __device__ __forceinline__ bool flk_nan(double v) { return v != v; }
static __device__ __forceinline__ bool flk_nan(int64_t) { return false; }
static __device__ __forceinline__ bool flk_nan(uint8_t) { return false; }
#define FLK_ARITHMETIC(T, s) \
    static __device__ __forceinline__ T flk_add(T a, T b) { return flm_add_##s(a, b); } \
    static __device__ __forceinline__ T flk_mul(T a, T b) { return flm_mul_##s(a, b); } \
    static __device__ __forceinline__ T flk_max(T a, T b) { return flm_maximum_##s(a, b); } \
    static __device__ __forceinline__ T flk_min(T a, T b) { return flm_minimum_##s(a, b); }
FLK_ARITHMETIC(float, f32)
FLK_ARITHMETIC(double, f64)
FLK_ARITHMETIC(int64_t, i64)
FLK_ARITHMETIC(uint8_t, b8)

/* b comes after a, or, of places, may come before it. */
template <class T, int KIND>
static __device__ __forceinline__ flk_state<T> flk_join(flk_state<T> a, flk_state<T> b) {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    if (KIND == FLK_SUM) a.v = flk_add(a.v, b.v);
    else if (KIND == FLK_PROD) a.v = flk_mul(a.v, b.v);
    else if (KIND == FLK_AMAX) a.v = flk_max(a.v, b.v);
    else if (KIND == FLK_AMIN) a.v = flk_min(a.v, b.v);
    else {
        const bool more = KIND == FLK_ARGMAX ? b.v > a.v : b.v < a.v;
        const bool nan_a = flk_nan(a.v), nan_b = flk_nan(b.v);
        const bool same = nan_a ? nan_b : b.v == a.v;
        if (same ? b.at < a.at : nan_b || (!nan_a && more)) a = b;
    }
    return a;
}

/* Elements first, first + step ... of output i. */
template <class T, int KIND>
static __device__ __forceinline__ flk_state<T> flk_fold(const flk_reduction &r, int64_t from, int64_t first,
                                                        int64_t step) {
    flk_state<T> s = {(T)(KIND == FLK_PROD), -1};
    for (int64_t i = first; i < r.n; i += step) {
        int64_t at = from, left = i;
        for (int d = r.ndim - 1; d >= 0; d--) {
            const int64_t rest = d ? flk_divide(&left, r.shape[d]) : 0;
            at += left * r.stride[d];
            left = rest;
        }
        s = flk_join<T, KIND>(s, {flk_load<T>(r.kept.t[1], at), i});
    }
    return s;
}

template <class T, int KIND>
static __device__ __forceinline__ void flk_give(const flk_reduction &r, int64_t at, flk_state<T> s) {
    if (KIND == FLK_ARGMAX || KIND == FLK_ARGMIN) ((int64_t *)r.kept.t[0].p)[at] = s.at;
    else flk_store(r.kept.t[0], at, s.v);
}

template <class T, int KIND> __global__ void flk_reduce_serial(flk_reduction r) {
    const int64_t i = flk_thread();
    int64_t at[2];
    if (i >= r.kept.n) return;
    flk_place<2>(r.kept, i, at);
    flk_give<T, KIND>(r, at[0], flk_fold<T, KIND>(r, at[1], 0, 1));
}

template <class T, int KIND> __global__ void flk_reduce_block(flk_reduction r) {
    __shared__ T v[FLK_BLOCK];
    __shared__ int64_t place[FLK_BLOCK];
    const int me = (int)threadIdx.x;
    int64_t at[2];
    flk_place<2>(r.kept, blockIdx.x, at);
    flk_state<T> s = flk_fold<T, KIND>(r, at[1], me, FLK_BLOCK);
    for (int half = FLK_BLOCK / 2; half > 0; half /= 2) {
        v[me] = s.v;
        place[me] = s.at;
        __syncthreads();
        if (me < half) s = flk_join<T, KIND>(s, {v[me + half], place[me + half]});
        __syncthreads();
    }
    if (me == 0) flk_give<T, KIND>(r, at[0], s);
}

template <class T, int KIND> static const char *flk_reduce_as(const flk_reduction *r) {
    if (r->n <= FLK_SERIAL)
        return FLK_LAUNCH((flk_reduce_serial<T, KIND>), flk_blocks(r->kept.n), FLK_BLOCK, *r);
    return FLK_LAUNCH((flk_reduce_block<T, KIND>), (unsigned)r->kept.n, FLK_BLOCK, *r);
}

template <class T> static const char *flk_reduce_of(const flk_reduction *r, int kind) {
    switch (kind) {
    case FLK_SUM: return flk_reduce_as<T, FLK_SUM>(r);
    case FLK_PROD: return flk_reduce_as<T, FLK_PROD>(r);
    case FLK_AMAX: return flk_reduce_as<T, FLK_AMAX>(r);
    case FLK_AMIN: return flk_reduce_as<T, FLK_AMIN>(r);
    case FLK_ARGMAX: return flk_reduce_as<T, FLK_ARGMAX>(r);
    default: return flk_reduce_as<T, FLK_ARGMIN>(r);
    }
}

const char *flk_reduce(const flk_reduction *r, int kind, int dtype) {
    if (!r->kept.n) return NULL;
    return dtype == FLK_F32   ? flk_reduce_of<float>(r, kind)
           : dtype == FLK_F64 ? flk_reduce_of<double>(r, kind)
           : dtype == FLK_B8  ? flk_reduce_of<uint8_t>(r, kind)
                              : flk_reduce_of<int64_t>(r, kind);
}
/* MIT licence: see LICENSE. */
