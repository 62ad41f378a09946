/* kernels/cuda/pool.cu - max and average pooling of images, and their gradients

   One thread per element, or, channels-last, per 8 channels if they are aligned. Neighbouring threads are
   neighbours along the innermost dim of the memory. An element of a gradient sums the windows that contain
   it, in order, so no element is written by two threads. */
#include "common.cuh"

/* N channels from c on of an image at a row and column. */
struct flk_pixel {
    int64_t n, c, row, column;
};
/* That of thread i of an output of this shape. */
template <int N>
static __device__ __forceinline__ flk_pixel flk_pixel_of(const flk_pool &a, int64_t i, const int64_t *shape) {
    flk_pixel p;
    if (N > 1 || a.last) {
        p.c = i;
        p.column = flk_divide(&p.c, shape[1] / N);
        p.row = flk_divide(&p.column, shape[3]);
        p.n = flk_divide(&p.row, shape[2]);
        p.c *= N;
    } else {
        p.column = i;
        p.row = flk_divide(&p.column, shape[3]);
        p.c = flk_divide(&p.row, shape[2]);
        p.n = flk_divide(&p.c, shape[1]);
    }
    return p;
}
static __device__ __forceinline__ int64_t flk_at(const flk_operand &t, const flk_pixel &p,
                                                 int64_t row, int64_t column) {
    return p.n * t.stride[0] + p.c * t.stride[1] + row * t.stride[2] + column * t.stride[3];
}
/* Calls use(k, row, column) for the elements of the image in window p, where k is the place in the window. */
template <class Use>
static __device__ __forceinline__ void flk_each_inside(const flk_pool &a, const flk_pixel &p, Use use) {
    for (int ky = 0; ky < a.kernel[0]; ky++) {
        const int64_t row = p.row * a.stride[0] + ky - a.pad[0];
        for (int kx = 0; kx < a.kernel[1] && row >= 0 && row < a.image[2]; kx++) {
            const int64_t column = p.column * a.stride[1] + kx - a.pad[1];
            if (column >= 0 && column < a.image[3]) use(ky * (int)a.kernel[1] + kx, row, column);
        }
    }
}
/* The windows that contain position i along dim d: from *first to the returned end. */
static __device__ __forceinline__ int64_t flk_windows(const flk_pool &a, int d, int64_t i,
                                                      int64_t *first) {
    const int64_t at = i + a.pad[d], from = at - a.kernel[d] + a.stride[d],
                  end = at / a.stride[d] + 1;
    *first = from > 0 ? from / a.stride[d] : 0;
    return end < a.pooled[2 + d] ? end : a.pooled[2 + d];
}
/* Calls use(row, column) for the windows that contain p. */
template <class Use>
static __device__ __forceinline__ void flk_each_around(const flk_pool &a, const flk_pixel &p, Use use) {
    int64_t first[2];
    const int64_t rows = flk_windows(a, 0, p.row, &first[0]);
    const int64_t columns = flk_windows(a, 1, p.column, &first[1]);
    for (int64_t row = first[0]; row < rows; row++)
        for (int64_t column = first[1]; column < columns; column++) use(row, column);
}

/* Stores indices in windows or, in an i64 tensor, in the image. */
template <int N>
static __device__ __forceinline__ void flk_store_places(const flk_pool &a, const flk_pixel &p, const int *k) {
    const int64_t at = flk_at(a.index, p, p.row, p.column), wide = a.kernel[1];
    uint8_t in_window[16] = {};
    for (int j = 0; j < N && a.index.dtype == FLK_I64; j++)
        ((int64_t *)a.index.p)[at + j] =
            (p.row * a.stride[0] + k[j] / wide - a.pad[0]) * a.image[3] + p.column * a.stride[1] +
            k[j] % wide - a.pad[1];
    if (a.index.dtype == FLK_I64) return;
#pragma unroll
    for (int j = 0; j < N; j++) in_window[j] = (uint8_t)k[j];
    flk_store_each<uint8_t>(a.index, at, N, in_window);
}

/* y and index of x: the first maximum; NaN counts as the maximum. */
template <class T, int D, int N> __global__ void flk_max_pool_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.threads) return;
    const flk_pixel p = flk_pixel_of<N>(a, i, a.pooled);
    T best[N] = {}, v[N];
    int place[N];
    for (int j = 0; j < N; j++) place[j] = -1;
    flk_each_inside(a, p, [&](int k, int64_t row, int64_t column) {
        flk_load_some<D, N>(a.in, flk_at(a.in, p, row, column), v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (place[j] >= 0 && !(v[j] > best[j] || (v[j] != v[j] && best[j] == best[j]))) continue;
            best[j] = v[j];
            place[j] = k;
        }
    });
    flk_store_some<D, N>(a.out, flk_at(a.out, p, p.row, p.column), best);
    flk_store_places<N>(a, p, place);
}

/* dx of dy, by the positions in windows. */
template <class T, int D, int N> __global__ void flk_max_pool_grad_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.threads) return;
    const flk_pixel p = flk_pixel_of<N>(a, i, a.image);
    T sum[N] = {}, dy[N];
    uint8_t place[16];
    flk_each_around(a, p, [&](int64_t y, int64_t x) {
        const int64_t ky = p.row + a.pad[0] - y * a.stride[0], kx = p.column + a.pad[1] - x * a.stride[1];
        const int k = (int)(ky * a.kernel[1] + kx);
        flk_load_some<FLK_U8, N>(a.index, flk_at(a.index, p, y, x), place);
        flk_load_some<D, N>(a.in, flk_at(a.in, p, y, x), dy);
#pragma unroll
        for (int j = 0; j < N; j++)
            if (place[j] == k) sum[j] += dy[j];
    });
    flk_store_some<D, N>(a.out, flk_at(a.out, p, p.row, p.column), sum);
}

/* Number of elements of the image, or of image and padding, in window (y, x). */
static __device__ __forceinline__ int64_t flk_window_size(const flk_pool &a, int64_t y, int64_t x) {
    const int64_t at[2] = {y, x};
    int64_t size = 1;
    for (int d = 0; d < 2; d++) {
        const int64_t begin = at[d] * a.stride[d] - a.pad[d], end = begin + a.kernel[d];
        const int64_t low = begin > 0 ? begin : 0,
                      high = end < a.image[2 + d] ? end : a.image[2 + d];
        size *= a.count_pad ? a.kernel[d] : high - low;
    }
    return size;
}

template <class T, int D, int N> __global__ void flk_avg_pool_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.threads) return;
    const flk_pixel p = flk_pixel_of<N>(a, i, a.pooled);
    T sum[N] = {}, v[N];
    flk_each_inside(a, p, [&](int, int64_t row, int64_t column) {
        flk_load_some<D, N>(a.in, flk_at(a.in, p, row, column), v);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += v[j];
    });
    const T size = (T)flk_window_size(a, p.row, p.column);
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] /= size;
    flk_store_some<D, N>(a.out, flk_at(a.out, p, p.row, p.column), sum);
}

template <class T, int D, int N> __global__ void flk_avg_pool_grad_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.threads) return;
    const flk_pixel p = flk_pixel_of<N>(a, i, a.image);
    T sum[N] = {}, dy[N];
    flk_each_around(a, p, [&](int64_t y, int64_t x) {
        const T size = (T)flk_window_size(a, y, x);
        flk_load_some<D, N>(a.in, flk_at(a.in, p, y, x), dy);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += dy[j] / size;
    });
    flk_store_some<D, N>(a.out, flk_at(a.out, p, p.row, p.column), sum);
}

/* Whether vectors of 8 channels of t begin at multiples of their size, or of 16 bytes. */
static bool flk_channels_fit(const flk_operand &t) {
    const int bytes = t.dtype == FLK_U8 ? 8 : 16;
    uint64_t places = (uint64_t)(uintptr_t)t.p;
    for (int d = 0; t.p && d < 4; d++)
        if (d != 1) places |= (uint64_t)(t.stride[d] * flk_size(t.dtype));
    return places % (unsigned)bytes == 0;
}

const char *flk_pool2d(const flk_pool *given, int max, int grad, int dtype) {
    flk_pool own = *given, *a = &own;
    const int64_t *s = grad ? a->image : a->pooled;
    const flk_operand *const all[] = {&a->in, &a->out, &a->index};
    if (dtype != FLK_F32 && dtype != FLK_F64) return "pooling has no kernel of the dtype";
    a->last = s[1] > 1;
    for (int k = 0; k < 3; k++) a->last &= !all[k]->p || all[k]->stride[1] == 1;
    const bool fits = a->last && dtype == FLK_F32 && s[1] % 8 == 0 && flk_aligned(all, 2, a->in.dtype) &&
                      flk_channels_fit(a->in) && flk_channels_fit(a->out) && flk_channels_fit(a->index);
    const int each = fits ? 8 : 1;
    a->threads = s[0] * s[1] / each * s[2] * s[3];
#define FLK_POOL(kernel) FLK_BY_CHANNELS(kernel, each, a->in.dtype, flk_blocks(a->threads), *a)
    if (max) return grad ? FLK_POOL(flk_max_pool_grad_kernel) : FLK_POOL(flk_max_pool_kernel);
    return grad ? FLK_POOL(flk_avg_pool_grad_kernel) : FLK_POOL(flk_avg_pool_kernel);
#undef FLK_POOL
}
/* MIT licence: see LICENSE. */
