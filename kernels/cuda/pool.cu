/* kernels/cuda/pool.cu - max and average pooling of images, and their gradients

   One thread per element; an element of a gradient sums the windows that contain it, in order, so no element
   is written by two threads. */
#include "common.cuh"

/* The position of element i of out: n, c, row, column. */
struct flk_pixel {
    int64_t n, c, row, column;
};
static __device__ __forceinline__ flk_pixel flk_pixel_of(int64_t i, const int64_t *shape) {
    flk_pixel p;
    p.column = i;
    p.row = flk_divide(&p.column, shape[3]);
    p.c = flk_divide(&p.row, shape[2]);
    p.n = flk_divide(&p.c, shape[1]);
    return p;
}
static __device__ __forceinline__ int64_t flk_at(const flk_operand &t, const flk_pixel &p,
                                                 int64_t row, int64_t column) {
    return p.n * t.stride[0] + p.c * t.stride[1] + row * t.stride[2] + column * t.stride[3];
}
/* The windows that contain position i along dim d: from *first to the returned end. */
static __device__ __forceinline__ int64_t flk_windows(const flk_pool &a, int d, int64_t i,
                                                      int64_t *first) {
    const int64_t at = i + a.pad[d], from = at - a.kernel[d] + a.stride[d],
                  end = at / a.stride[d] + 1;
    *first = from > 0 ? from / a.stride[d] : 0;
    return end < a.pooled[2 + d] ? end : a.pooled[2 + d];
}

/* y and index of x: the first maximum; NaN counts as the maximum. */
template <class T> __global__ void flk_max_pool_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.pooled[0] * a.pooled[1] * a.pooled[2] * a.pooled[3]) return;
    const flk_pixel p = flk_pixel_of(i, a.pooled);
    T best = 0;
    int64_t place = -1;
    for (int64_t ky = 0; ky < a.kernel[0]; ky++) {
        const int64_t row = p.row * a.stride[0] + ky - a.pad[0];
        for (int64_t kx = 0; kx < a.kernel[1] && row >= 0 && row < a.image[2]; kx++) {
            const int64_t column = p.column * a.stride[1] + kx - a.pad[1];
            if (column < 0 || column >= a.image[3]) continue;
            const T v = flk_load_at<T>(a.in.p, a.in.dtype, flk_at(a.in, p, row, column));
            if (place >= 0 && !(v > best || (v != v && best == best))) continue;
            best = v;
            place = a.index.dtype == FLK_U8 ? ky * a.kernel[1] + kx : row * a.image[3] + column;
        }
    }
    flk_store(a.out, flk_at(a.out, p, p.row, p.column), best);
    const int64_t at = flk_at(a.index, p, p.row, p.column);
    if (a.index.dtype == FLK_U8)
        ((uint8_t *)a.index.p)[at] = (uint8_t)place;
    else
        ((int64_t *)a.index.p)[at] = place;
}

/* dx of dy, by the positions in windows. */
template <class T> __global__ void flk_max_pool_grad_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.image[0] * a.image[1] * a.image[2] * a.image[3]) return;
    const flk_pixel p = flk_pixel_of(i, a.image);
    int64_t first[2];
    const int64_t rows = flk_windows(a, 0, p.row, &first[0]),
                  columns = flk_windows(a, 1, p.column, &first[1]);
    T sum = 0;
    for (int64_t y = first[0]; y < rows; y++)
        for (int64_t x = first[1]; x < columns; x++) {
            const int64_t ky = p.row + a.pad[0] - y * a.stride[0],
                          kx = p.column + a.pad[1] - x * a.stride[1];
            if (((const uint8_t *)a.index.p)[flk_at(a.index, p, y, x)] == ky * a.kernel[1] + kx)
                sum += flk_load_at<T>(a.in.p, a.in.dtype, flk_at(a.in, p, y, x));
        }
    flk_store(a.out, flk_at(a.out, p, p.row, p.column), sum);
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

template <class T> __global__ void flk_avg_pool_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.pooled[0] * a.pooled[1] * a.pooled[2] * a.pooled[3]) return;
    const flk_pixel p = flk_pixel_of(i, a.pooled);
    T sum = 0;
    for (int64_t ky = 0; ky < a.kernel[0]; ky++) {
        const int64_t row = p.row * a.stride[0] + ky - a.pad[0];
        for (int64_t kx = 0; kx < a.kernel[1] && row >= 0 && row < a.image[2]; kx++) {
            const int64_t column = p.column * a.stride[1] + kx - a.pad[1];
            if (column >= 0 && column < a.image[3])
                sum += flk_load_at<T>(a.in.p, a.in.dtype, flk_at(a.in, p, row, column));
        }
    }
    flk_store(a.out, flk_at(a.out, p, p.row, p.column),
              sum / (T)flk_window_size(a, p.row, p.column));
}

template <class T> __global__ void flk_avg_pool_grad_kernel(flk_pool a) {
    const int64_t i = flk_thread();
    if (i >= a.image[0] * a.image[1] * a.image[2] * a.image[3]) return;
    const flk_pixel p = flk_pixel_of(i, a.image);
    int64_t first[2];
    const int64_t rows = flk_windows(a, 0, p.row, &first[0]),
                  columns = flk_windows(a, 1, p.column, &first[1]);
    T sum = 0;
    for (int64_t y = first[0]; y < rows; y++)
        for (int64_t x = first[1]; x < columns; x++)
            sum += flk_load_at<T>(a.in.p, a.in.dtype, flk_at(a.in, p, y, x)) /
                   (T)flk_window_size(a, y, x);
    flk_store(a.out, flk_at(a.out, p, p.row, p.column), sum);
}

template <class T> static const char *flk_pool_of(const flk_pool *a, int which) {
    const bool grad = which == FLK_MAX_POOL_GRAD || which == FLK_AVG_POOL_GRAD;
    const int64_t *s = grad ? a->image : a->pooled, n = s[0] * s[1] * s[2] * s[3];
    if (!n) return NULL;
    switch (which) {
    case FLK_MAX_POOL:
        return FLK_LAUNCH(flk_max_pool_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
    case FLK_MAX_POOL_GRAD:
        return FLK_LAUNCH(flk_max_pool_grad_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
    case FLK_AVG_POOL:
        return FLK_LAUNCH(flk_avg_pool_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
    default:
        return FLK_LAUNCH(flk_avg_pool_grad_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
    }
}

const char *flk_pool2d(const flk_pool *a, int which, int dtype) {
    return dtype == FLK_F64   ? flk_pool_of<double>(a, which)
           : dtype == FLK_F32 ? flk_pool_of<float>(a, which)
                              : "pooling has no kernel of the dtype";
}
/* MIT licence: see LICENSE. */
