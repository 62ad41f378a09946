/* kernels/cuda/copy.cu - casts and strided copies, fill, iota, random numbers, where; dispatch of formulas */
#include "common.cuh"

const char *flk_formulas_f32(const flk_pass *p, int which);
const char *flk_formulas_f64(const flk_pass *p, int which);
const char *flk_formulas_i64(const flk_pass *p, int which);
const char *flk_formulas_b8(const flk_pass *p, int which);
const char *flk_gradients_f32(const flk_pass *p, int which);
const char *flk_gradients_f64(const flk_pass *p, int which);

const char *flk_formula(const flk_pass *pass, int which, int dtype) {
    const flk_pass in_vectors = flk_vectors(pass, dtype), *p = &in_vectors;
    if (which != FLK_Y) return dtype == FLK_F64 ? flk_gradients_f64(p, which) : flk_gradients_f32(p, which);
    return dtype == FLK_F64   ? flk_formulas_f64(p, which)
           : dtype == FLK_F32 ? flk_formulas_f32(p, which)
           : dtype == FLK_B8  ? flk_formulas_b8(p, which)
                              : flk_formulas_i64(p, which);
}

/* ---- casts ---- */

#define FLK_CASTS(s, S) \
    static __device__ __forceinline__ void flk_cast_to(const flk_operand &t, int64_t at, S v) { \
        switch (t.dtype) { \
        case FLK_B8: ((uint8_t *)t.p)[at] = v != 0; break; \
        case FLK_U8: ((uint8_t *)t.p)[at] = flm_##s##_to_u8(v); break; \
        case FLK_I8: ((int8_t *)t.p)[at] = flm_##s##_to_i8(v); break; \
        case FLK_I16: ((int16_t *)t.p)[at] = flm_##s##_to_i16(v); break; \
        case FLK_I32: ((int32_t *)t.p)[at] = flm_##s##_to_i32(v); break; \
        case FLK_I64: ((int64_t *)t.p)[at] = flm_##s##_to_i64(v); break; \
        case FLK_U16: ((uint16_t *)t.p)[at] = flm_##s##_to_u16(v); break; \
        case FLK_U32: ((uint32_t *)t.p)[at] = flm_##s##_to_u32(v); break; \
        case FLK_U64: ((uint64_t *)t.p)[at] = flm_##s##_to_u64(v); break; \
        case FLK_F16: ((uint16_t *)t.p)[at] = flm_##s##_to_f16(v); break; \
        case FLK_BF16: ((uint16_t *)t.p)[at] = flm_##s##_to_bf16(v); break; \
        case FLK_F32: ((float *)t.p)[at] = flm_##s##_to_f32(v); break; \
        default: ((double *)t.p)[at] = flm_##s##_to_f64(v); \
        } \
    }
FLK_CASTS(f32, float)
FLK_CASTS(f64, double)
FLK_CASTS(i64, int64_t)
FLK_CASTS(b8, uint8_t)
/* Integer to integer casts wrap, as from i64. */
static __device__ __forceinline__ void flk_cast_to(const flk_operand &t, int64_t at, uint64_t v) {
    if (t.dtype == FLK_F16) ((uint16_t *)t.p)[at] = flm_u64_to_f16(v);
    else if (t.dtype == FLK_BF16) ((uint16_t *)t.p)[at] = flm_u64_to_bf16(v);
    else if (t.dtype == FLK_F32) ((float *)t.p)[at] = flm_u64_to_f32(v);
    else if (t.dtype == FLK_F64) ((double *)t.p)[at] = flm_u64_to_f64(v);
    else flk_cast_to(t, at, (int64_t)v);
}

template <class T> __global__ void flk_cast_kernel(flk_pass p) {
    int64_t i, at[2];
    T v[FLK_VECTOR<T>];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<2>(p, i, at);
    if (n == 1) return flk_cast_to(p.t[0], at[0], flk_load_at<T>(p.t[1].p, p.t[1].dtype, at[1]));
    if constexpr (sizeof(T) == sizeof(float)) { /* only halves and f32 are vectorised */
        flk_load_each(p, 1, at[1], n, v);
        flk_store_each(p.t[0], at[0], n, v);
    }
}

/* Copies elements of `size` bytes. */
__global__ void flk_move_kernel(flk_pass p, int size) {
    int64_t i, at[2];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<2>(p, i, at);
    flk_put((char *)p.t[0].p + at[0] * size, n * size,
            flk_take((const char *)p.t[1].p + at[1] * size, n * size));
}

__global__ void flk_concat_kernel(const __grid_constant__ flk_parts p, int size) {
    int64_t i = flk_thread(), at[2];
    int k = 0;
    while (k + 1 < p.parts && i >= p.first[k + 1]) k++;
    const flk_pass &part = p.part[k];
    const int n = flk_elements_of(part, i - p.first[k], &i);
    if (!n) return;
    flk_place<2>(part, i, at);
    flk_put((char *)part.t[0].p + at[0] * size, n * size,
            flk_take((const char *)part.t[1].p + at[1] * size, n * size));
}

__global__ void flk_fill_kernel(flk_pass p, int size, flk_16 bits) {
    int64_t i, at[1];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<1>(p, i, at);
    flk_put((char *)p.t[0].p + at[0] * size, n * size, bits);
}

static bool flk_dense(const flk_pass *p, int k) {
    return p->ndim == 0 || (p->ndim == 1 && (p->t[k].stride[0] == 1 || p->shape[0] == 1));
}

/* A pass that copies elements by size, vectorised; one by one if x is broadcast along the vector. */
static flk_pass flk_moved(const flk_pass *p, int size) {
    const bool stays = p->t[1].p && p->ndim && p->t[1].stride[p->ndim - 1] == 0;
    return flk_vectors(p, stays ? 0 : size == 1 ? FLK_B8 : size == 8 ? FLK_F64 : FLK_F32);
}

const char *flk_convert(const flk_pass *pass) {
    const int from = pass->t[1].dtype, to = pass->t[0].dtype, size = flk_size(from);
    if (!pass->n) return NULL;
    if (from == to && flk_dense(pass, 0) && flk_dense(pass, 1) && pass->t[0].p != pass->t[1].p)
        return flk_copy(pass->t[0].p, pass->t[1].p, (size_t)pass->n * (size_t)size);
    if (from == to) {
        const flk_pass p = flk_moved(pass, size);
        return FLK_LAUNCH(flk_move_kernel, flk_vector_blocks(p), FLK_BLOCK, p, size);
    }
    const bool floats = from >= FLK_F16 && from <= FLK_F32 && to >= FLK_F16 && to <= FLK_F32;
    const flk_pass p = flk_vectors(pass, floats ? FLK_F32 : 0);
    return from == FLK_U64 ? FLK_LAUNCH(flk_cast_kernel<uint64_t>, flk_vector_blocks(p), FLK_BLOCK, p)
                           : FLK_BY_TYPE(flk_cast_kernel, from, flk_vector_blocks(p), p);
}

/* Large contiguous blocks are copied by the device one by one: the launch overhead is negligible. */
const char *flk_concat(flk_parts *p) {
    enum { LARGE = 1 << 20 };
    const int size = flk_size(p->part[0].t[0].dtype);
    const char *why = NULL;
    bool large = true;
    p->n = 0;
    for (int k = 0; k < p->parts; k++) {
        const flk_pass *part = &p->part[k];
        large = large && part->n * size >= LARGE && flk_dense(part, 0) && flk_dense(part, 1);
    }
    for (int k = 0; large && !why && k < p->parts; k++) why = flk_convert(&p->part[k]);
    if (large) return why;
    for (int k = 0; k < p->parts; k++) {
        p->part[k] = flk_moved(&p->part[k], size);
        p->first[k] = p->n;
        p->n += (int64_t)flk_vector_blocks(p->part[k]) * FLK_BLOCK;
    }
    return FLK_LAUNCH(flk_concat_kernel, p->n / FLK_BLOCK, FLK_BLOCK, *p, size);
}

const char *flk_fill(const flk_pass *pass, uint64_t bits) {
    const int size = flk_size(pass->t[0].dtype);
    flk_16 all;
    const flk_pass p = flk_moved(pass, size);
    for (int i = 0; i < 16 / size; i++) memcpy((char *)&all + i * size, &bits, (size_t)size);
    return FLK_LAUNCH(flk_fill_kernel, flk_vector_blocks(p), FLK_BLOCK, p, size, all);
}

/* ---- where and sequences ---- */

template <class T> __global__ void flk_where_kernel(flk_pass p) {
    int64_t i, at[4];
    T a[FLK_VECTOR<T>], b[FLK_VECTOR<T>];
    uint8_t c[FLK_VECTOR<uint8_t>];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<4>(p, i, at);
    flk_load_each(p, 1, at[1], n, c);
    flk_load_each(p, 2, at[2], n, a);
    flk_load_each(p, 3, at[3], n, b);
    for (int j = 0; j < FLK_VECTOR<T>; j++) a[j] = c[j] ? a[j] : b[j];
    flk_store_each(p.t[0], at[0], n, a);
}

const char *flk_where(const flk_pass *pass, int dtype) {
    const flk_pass p = flk_vectors(pass, dtype);
    return FLK_BY_TYPE(flk_where_kernel, dtype, flk_vector_blocks(p), p);
}

__global__ void flk_iota_kernel(flk_pass p, double f_start, double f_step, int64_t i_start, int64_t i_step) {
    const int64_t i = flk_thread();
    const double f = f_start + (double)i * f_step;
    int64_t at[1];
    if (i >= p.n) return;
    flk_place<1>(p, i, at);
    if (p.t[0].dtype == FLK_F32) ((float *)p.t[0].p)[at[0]] = (float)f;
    else if (p.t[0].dtype == FLK_F64) ((double *)p.t[0].p)[at[0]] = f;
    else ((int64_t *)p.t[0].p)[at[0]] = flm_add_i64(i_start, flm_mul_i64(i, i_step));
}

const char *flk_iota(const flk_pass *p, double f_start, double f_step, int64_t i_start, int64_t i_step) {
    return FLK_LAUNCH(flk_iota_kernel, flk_blocks(p->n), FLK_BLOCK, *p, f_start, f_step, i_start, i_step);
}

/* A thread takes one block of four random words: four f32, or two values of 8 bytes. See fl_random_args. */
__global__ void flk_random_kernel(flk_random_args a) {
    const int per = a.dtype == FLK_F32 ? 4 : 2;
    const int64_t block = flk_thread();
    uint32_t w[4];
    if (block * per >= a.n) return;
    flm_philox(a.key, flk_counter(a.counter, a.word) + (uint64_t)block, w);
    if (a.dtype == FLK_F32) {
        float v[4], *y = (float *)a.y + block * 4;
        for (int k = 0; k < 4; k += 2) {
            if (a.dist == 1) flm_normal_f32(w[k], w[k + 1], v + k);
            else v[k] = flm_uniform_f32(w[k]), v[k + 1] = flm_uniform_f32(w[k + 1]);
        }
        const float low = (float)a.a, by = a.dist == 1 ? (float)a.b : (float)(a.b - a.a);
        for (int k = 0; k < 4 && block * 4 + k < a.n; k++) y[k] = low + by * v[k];
    } else if (a.dtype == FLK_F64) {
        double v[2], *y = (double *)a.y + block * 2;
        if (a.dist == 1) flm_normal_f64(w, v);
        else v[0] = flm_uniform_f64(w[1], w[0]), v[1] = flm_uniform_f64(w[3], w[2]);
        for (int k = 0; k < 2 && block * 2 + k < a.n; k++)
            y[k] = a.a + (a.dist == 1 ? a.b : a.b - a.a) * v[k];
    } else {
        int64_t *y = (int64_t *)a.y + block * 2;
        const uint64_t range = (uint64_t)a.ib - (uint64_t)a.ia;
        for (int k = 0; k < 2 && block * 2 + k < a.n; k++)
            y[k] = (int64_t)((uint64_t)a.ia + flm_bounded(w[2 * k + 1], w[2 * k], range));
    }
}

const char *flk_random(const flk_random_args *a) {
    const int64_t blocks = a->dtype == FLK_F32 ? (a->n + 3) / 4 : (a->n + 1) / 2;
    return FLK_LAUNCH(flk_random_kernel, flk_blocks(blocks), FLK_BLOCK, *a);
}
/* MIT licence: see LICENSE. */
