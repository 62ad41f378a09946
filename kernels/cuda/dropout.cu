/* kernels/cuda/dropout.cu - dropout, and gated linear units with their gradient */
#include "common.cuh"

/* y, x: element i in row-major order is kept if its uniform number is >= p. A draw has four numbers. */
template <class T>
__global__ void flk_dropout_kernel(flk_pass p, float drop, double scale, uint64_t key,
                                   uint64_t counter, const uint64_t *word) {
    int64_t i, at[2];
    T v[FLK_VECTOR<T>];
    uint32_t w[4];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<2>(p, i, at);
    flk_load_each(p, 1, at[1], n, v);
    const uint64_t draw = flk_counter(counter, word) + (uint64_t)i / 4;
    flm_philox(key, draw, w);
    if (i & 2) w[0] = w[2], w[1] = w[3]; /* vectors of one or two elements */
    if (i & 1) w[0] = w[1];
#pragma unroll
    for (int j = 0; j < FLK_VECTOR<T>; j++) {
        if (j == 4 && n == 8) flm_philox(key, draw + 1, w);
        v[j] = flm_uniform_f32(w[j % 4]) >= drop ? v[j] * (T)scale : (T)0;
    }
    flk_store_each(p.t[0], at[0], n, v);
}

const char *flk_dropout(const flk_pass *pass, double drop, uint64_t key, uint64_t counter, int dtype) {
    const flk_pass p = flk_vectors(pass, dtype);
    return FLK_BY_FLOAT(flk_dropout_kernel, dtype, flk_vector_blocks(p), p, (float)drop, 1 / (1 - drop), key,
                        counter, flk_rng_word());
}

/* y, a, g: y = a / (1 + exp(-g)). */
template <class T> __global__ void flk_glu_kernel(flk_pass p) {
    int64_t i, at[3];
    T a[FLK_VECTOR<T>], g[FLK_VECTOR<T>];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<3>(p, i, at);
    flk_load_each(p, 1, at[1], n, a);
    flk_load_each(p, 2, at[2], n, g);
    for (int j = 0; j < FLK_VECTOR<T>; j++) a[j] *= 1 / (1 + flk_exp(-g[j]));
    flk_store_each(p.t[0], at[0], n, a);
}

/* da, dg, a, g, dy */
template <class T> __global__ void flk_glu_grad_kernel(flk_pass p) {
    int64_t i, at[5];
    T a[FLK_VECTOR<T>], g[FLK_VECTOR<T>], dy[FLK_VECTOR<T>];
    const int n = flk_elements(p, &i);
    if (!n) return;
    flk_place<5>(p, i, at);
    flk_load_each(p, 2, at[2], n, a);
    flk_load_each(p, 3, at[3], n, g);
    flk_load_each(p, 4, at[4], n, dy);
    for (int j = 0; j < FLK_VECTOR<T>; j++) {
        const T s = 1 / (1 + flk_exp(-g[j])), d = dy[j] * s;
        dy[j] = d;
        g[j] = d * a[j] * (1 - s);
    }
    flk_store_each(p.t[0], at[0], n, dy);
    flk_store_each(p.t[1], at[1], n, g);
}

const char *flk_glu(const flk_pass *pass, int grad, int dtype) {
    const flk_pass p = flk_vectors(pass, dtype);
    return grad ? FLK_BY_FLOAT(flk_glu_grad_kernel, dtype, flk_vector_blocks(p), p)
                : FLK_BY_FLOAT(flk_glu_kernel, dtype, flk_vector_blocks(p), p);
}
/* MIT licence: see LICENSE. */
