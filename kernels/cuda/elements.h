/* kernels/cuda/elements.h - elements of any dtype, one or 16 bytes at once; what the kernels of steps share

   Also part of the text of kernels that are compiled while a program runs, as elements_text.inc. */
#ifndef FLK_ELEMENTS_H
#define FLK_ELEMENTS_H

/* ---- elements: conversion between storage dtypes and the type of the computation ---- */

/* Halves use the device's conversions, with the same rounding; but NaN payloads are lost there. */
static __device__ __forceinline__ float flk_widen(int dtype, uint16_t h) {
    if (dtype == FLK_BF16) return flm_bf16_to_f32(h);
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    return flm_f16_to_f32(h);
#endif
}
static __device__ __forceinline__ uint32_t flk_narrow(int dtype, float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t w;
    if (dtype == FLK_F16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
#else
    if (dtype == FLK_F16) return flm_f32_to_f16(low) | (uint32_t)flm_f32_to_f16(high) << 16;
    return flm_f32_to_bf16(low) | (uint32_t)flm_f32_to_bf16(high) << 16;
#endif
}

template <class T> static __device__ __forceinline__ T flk_load_at(const void *p, int, int64_t at) {
    return ((const T *)p)[at];
}
template <> __device__ __forceinline__ float flk_load_at<float>(const void *p, int dtype, int64_t at) {
    if (dtype == FLK_F32) return ((const float *)p)[at];
    return flk_widen(dtype, ((const uint16_t *)p)[at]);
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

template <class T> static __device__ __forceinline__ T flk_load(const flk_operand &t, int64_t at) {
    T v;
    if (t.p) return flk_load_at<T>(t.p, t.dtype, at);
    flk_number(t, &v);
    return v;
}

static __device__ __forceinline__ void flk_store(const flk_operand &t, int64_t at, float v) {
    if (t.dtype == FLK_F32) ((float *)t.p)[at] = v;
    else ((uint16_t *)t.p)[at] = (uint16_t)flk_narrow(t.dtype, v, 0);
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

/* ---- vectors: the elements in 16 bytes, which one thread processes at once ---- */

/* Maximal number of elements of a type. For f32 4, or 8 if an operand is half. */
template <class T> static constexpr int FLK_VECTOR = sizeof(T) == 4 ? 8 : 16 / (int)sizeof(T);
struct alignas(16) flk_16 {
    uint32_t word[4];
};
struct alignas(8) flk_8 {
    uint32_t word[2];
};

/* Loads or stores 1, 2, 4, 8 or 16 bytes at once; the same for all threads except at the end of a pass. */
static __device__ __forceinline__ flk_16 flk_take(const void *p, int bytes) {
    flk_16 a = {};
    if (bytes == 16) a = *(const flk_16 *)p;
    else if (bytes == 8) a.word[0] = ((const flk_8 *)p)->word[0], a.word[1] = ((const flk_8 *)p)->word[1];
    else if (bytes == 4) a.word[0] = *(const uint32_t *)p;
    else a.word[0] = bytes == 2 ? *(const uint16_t *)p : *(const uint8_t *)p;
    return a;
}
static __device__ __forceinline__ void flk_put(void *p, int bytes, flk_16 a) {
    if (bytes == 16) *(flk_16 *)p = a;
    else if (bytes == 8) *(flk_8 *)p = {{a.word[0], a.word[1]}};
    else if (bytes == 4) *(uint32_t *)p = a.word[0];
    else if (bytes == 2) *(uint16_t *)p = (uint16_t)a.word[0];
    else *(uint8_t *)p = (uint8_t)a.word[0];
}

/* Loads n > 1 contiguous elements. */
template <class T>
static __device__ __forceinline__ void flk_load_vector(const flk_operand &t, int64_t at, int n, T *v) {
    const flk_16 a = flk_take((const T *)t.p + at, n * (int)sizeof(T));
    memcpy(v, &a, 16);
}
template <>
__device__ __forceinline__ void flk_load_vector(const flk_operand &t, int64_t at, int n, float *v) {
    const bool wide = t.dtype == FLK_F32;
    const flk_16 *p = (const flk_16 *)((const char *)t.p + at * (wide ? 4 : 2)), a = p[0];
    if (wide) memcpy(v, &a, 16);
    if (wide && n == 8) {
        const flk_16 b = p[1];
        memcpy(v + 4, &b, 16);
    }
    for (int j = 0; j < 8 && !wide; j++) v[j] = flk_widen(t.dtype, (uint16_t)(a.word[j / 2] >> j % 2 * 16));
}
/* Loads n elements of operand k; a broadcast operand repeats one. */
template <class T>
static __device__ __forceinline__ void flk_load_each(const flk_pass &p, int k, int64_t at, int n, T *v) {
    const flk_operand &t = p.t[k];
    if (n > 1 && t.p && t.stride[p.ndim - 1]) return flk_load_vector(t, at, n, v);
    const T x = flk_load<T>(t, at);
    for (int j = 0; j < FLK_VECTOR<T>; j++) v[j] = x;
}

template <class T>
static __device__ __forceinline__ void flk_store_vector(const flk_operand &t, int64_t at, int n, const T *v) {
    flk_16 a;
    memcpy(&a, v, 16);
    flk_put((T *)t.p + at, n * (int)sizeof(T), a);
}
template <>
__device__ __forceinline__ void flk_store_vector(const flk_operand &t, int64_t at, int n, const float *v) {
    const bool wide = t.dtype == FLK_F32;
    flk_16 *p = (flk_16 *)((char *)t.p + at * (wide ? 4 : 2)), a = {};
    if (wide) memcpy(&a, v, 16);
    for (int j = 0; j < 4 && !wide; j++) a.word[j] = flk_narrow(t.dtype, v[2 * j], v[2 * j + 1]);
    p[0] = a;
    if (wide && n == 8) {
        memcpy(&a, v + 4, 16);
        p[1] = a;
    }
}
template <class T>
static __device__ __forceinline__ void flk_store_each(const flk_operand &t, int64_t at, int n, const T *v) {
    if (n > 1) flk_store_vector(t, at, n, v);
    else flk_store(t, at, v[0]);
}

/* ---- steps: each thread of a block processes FLK_STEP_RUNS vectors ---- */

/* The entry that block b belongs to; *b becomes its index within the entry. */
static __device__ __forceinline__ int flk_entry_of(const int *first, int n, int *b) {
    int low = 0;
    for (int high = n; high - low > 1;) {
        const int half = (low + high) / 2;
        if (*b < first[half]) high = half;
        else low = half;
    }
    *b -= first[low];
    return low;
}

/* The first cells: a step's scalars and constants. */
static __device__ __forceinline__ int flk_step_numbers(const flk_step_rule &r, const flk_step_entry &e,
                                                        double *cell) {
    int n = 0;
    for (int i = 0; i < r.n_numbers; i++)
        for (int k = 0; k < r.numbers[i]; k++) {
            const int d = r.number_dtype[i], at = k * r.number_step[i];
            const void *p = e.number[i];
            cell[n++] = !p           ? r.weak[i]
                        : d == FLK_F64 ? ((const double *)p)[at]
                        : d == FLK_I64 ? (double)((const int64_t *)p)[at]
                                       : (double)flk_load_at<float>(p, d, at);
        }
    for (int i = 0; i < r.n_constants; i++) cell[n++] = r.constant[i];
    return n;
}

/* Whether the n tensors are aligned to 16 bytes. */
static __device__ __forceinline__ bool flk_step_fits(const flk_step_entry &e, int n) {
    uint64_t places = 0;
    for (int k = 0; k < n; k++) places |= (uint64_t)e.p[k];
    return places % 16 == 0;
}
/* Loads or stores elements i ... < end of a tensor of dtype D, as one vector if there are enough. */
template <int D, class T>
static __device__ __forceinline__ void flk_step_load(const void *p, int64_t i, int64_t end, bool fits, T *v) {
    flk_operand o = {};
    o.p = (void *)p;
    o.dtype = D;
    if (fits && i + FLK_VECTOR<T> <= end) flk_load_vector(o, i, FLK_VECTOR<T>, v);
    else
        for (int j = 0; j < FLK_VECTOR<T>; j++) v[j] = i + j < end ? flk_load_at<T>(p, D, i + j) : 0;
}
template <int D, class T>
static __device__ __forceinline__ void flk_step_store(void *p, int64_t i, int64_t end, bool fits,
                                                      const T *v) {
    flk_operand o = {};
    o.p = p;
    o.dtype = D;
    if (fits && i + FLK_VECTOR<T> <= end) flk_store_vector(o, i, FLK_VECTOR<T>, v);
    else
        for (int j = 0; j < FLK_VECTOR<T>; j++)
            if (i + j < end) flk_store(o, i + j, v[j]);
}

#endif
/* MIT licence: see LICENSE. */
