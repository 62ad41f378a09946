/* kernels/cuda/batch_norm.cu - batch norm in training, fused with a sum and ReLU, and its gradients

   Images are planes per channel, or channels-last. A channel's values are split into parts depending on
   their number only; a part's mean and sum of squares take two passes, the second from the cache; then the
   parts are combined in order. Three launches forward, three backward. */
#include "common.cuh"

enum { FLK_LANES = FLK_WARP, FLK_DEPTH = FLK_BLOCK / FLK_LANES };

/* Number of channels that blocks are assigned to. */
static __host__ __device__ __forceinline__ int64_t flk_columns(const flk_batch_norm &a) {
    return a.last ? (a.channels + FLK_LANES - 1) / FLK_LANES : a.channels;
}

/* Offset of value i of channel c. */
static __device__ __forceinline__ int64_t flk_image_at(const flk_batch_norm &a, int64_t c,
                                                       int64_t i) {
    if (a.last) return i * a.channels + c;
    int64_t in = i;
    const int64_t n = flk_divide(&in, a.width);
    return (n * a.channels + c) * a.width + in;
}

static __device__ __forceinline__ int64_t flk_channel_of(const flk_batch_norm &a, int64_t i) {
    flk_divide(&i, a.last ? a.channels : a.width * a.channels);
    return a.last ? i : flk_divide(&i, a.width);
}

/* A thread's part of the work: for planes, a block processes one channel; for channels-last, a row of
   threads has one channel per thread. */
struct flk_share {
    int64_t channel, part, first, end, step;
    bool mine;
};
static __device__ __forceinline__ flk_share flk_share_of(const flk_batch_norm &a) {
    flk_share s;
    int64_t block = blockIdx.x;
    const int lane = (int)threadIdx.x % FLK_LANES, depth = (int)threadIdx.x / FLK_LANES;
    s.part = flk_divide(&block, flk_columns(a));
    s.channel = a.last ? block * FLK_LANES + lane : block;
    s.mine = s.channel < a.channels;
    s.first = s.part * a.size + (a.last ? depth : (int)threadIdx.x);
    s.end = s.part * a.size + a.size < a.count ? s.part * a.size + a.size : a.count;
    s.step = a.last ? (int64_t)FLK_DEPTH : (int64_t)FLK_BLOCK;
    if (!s.mine) s.end = s.first;
    return s;
}

/* Sums v over the threads of a channel; all of them get the result. */
template <class T> static __device__ __forceinline__ T flk_share_sum(bool last, T v) {
    __shared__ T sums[FLK_BLOCK];
    const int lane = (int)threadIdx.x % FLK_LANES;
    if (!last) return flk_team<FLK_BLOCK>(v, flk_sum_of());
    __syncthreads();
    sums[threadIdx.x] = v;
    __syncthreads();
    v = sums[lane];
    for (int i = 1; i < FLK_DEPTH; i++) v += sums[i * FLK_LANES + lane];
    return v;
}

/* part [parts][2][channels]: mean, and sum of squared deviations. */
template <class T> __global__ void flk_moments_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of(a);
    const T n = (T)(s.part * a.size + a.size < a.count ? a.size : a.count - s.part * a.size);
    T sum = 0, squares = 0;
    for (int64_t i = s.first; i < s.end; i += s.step)
        sum += flk_load<T>(a.x, flk_image_at(a, s.channel, i));
    const T mean = flk_share_sum(a.last, sum) / n;
    for (int64_t i = s.first; i < s.end; i += s.step) {
        const T d = flk_load<T>(a.x, flk_image_at(a, s.channel, i)) - mean;
        squares += d * d;
    }
    squares = flk_share_sum(a.last, squares);
    if (threadIdx.x >= (a.last ? FLK_LANES : 1) || !s.mine) return;
    ((T *)a.part)[2 * s.part * a.channels + s.channel] = mean;
    ((T *)a.part)[(2 * s.part + 1) * a.channels + s.channel] = squares;
}

template <class T> __global__ void flk_statistics_kernel(flk_batch_norm a) {
    const int64_t c = flk_thread();
    if (c >= a.channels) return;
    T n = 0, mean = 0, squares = 0;
    for (int64_t p = 0; p < a.parts; p++) {
        const T *part = (const T *)a.part + 2 * p * a.channels + c;
        const T more = (T)(p * a.size + a.size < a.count ? a.size : a.count - p * a.size),
                all = n + more;
        const T d = part[0] - mean;
        mean += d * (more / all);
        squares += part[a.channels] + d * d * (n * (more / all));
        n = all;
    }
    ((T *)a.mean)[c] = mean;
    ((T *)a.var)[c] = squares / n;
}

template <class T> __global__ void flk_batch_norm_kernel(flk_batch_norm a) {
    const int64_t i = flk_thread();
    if (i >= a.count * a.channels) return;
    const int64_t c = flk_channel_of(a, i);
    const T rstd = 1 / flk_sqrt(((const T *)a.var)[c] + (T)a.eps);
    T y = (flk_load<T>(a.x, i) - ((const T *)a.mean)[c]) * (rstd * flk_load<T>(a.w, c)) +
          flk_load<T>(a.b, c);
    if (a.add.p) y += flk_load<T>(a.add, i);
    flk_store(a.y, i, a.relu ? flk_max_of()(y, (T)0) : y);
}

/* The gradient dy masked by the ReLU. */
template <class T>
static __device__ __forceinline__ T flk_through(const flk_batch_norm &a, int64_t i) {
    return a.relu && flk_load<T>(a.y, i) <= 0 ? 0 : flk_load<T>(a.dy, i);
}

/* part [parts][2][channels]: sums of g and of g (x - mean). */
template <class T> __global__ void flk_grad_sums_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of(a);
    T all = 0, along = 0;
    const T mean = s.mine ? ((const T *)a.mean)[s.channel] : 0;
    for (int64_t i = s.first; i < s.end; i += s.step) {
        const int64_t at = flk_image_at(a, s.channel, i);
        const T g = flk_through<T>(a, at);
        all += g;
        along += g * (flk_load<T>(a.x, at) - mean);
    }
    all = flk_share_sum(a.last, all);
    along = flk_share_sum(a.last, along);
    if (threadIdx.x >= (a.last ? FLK_LANES : 1) || !s.mine) return;
    ((T *)a.part)[2 * s.part * a.channels + s.channel] = all;
    ((T *)a.part)[(2 * s.part + 1) * a.channels + s.channel] = along;
}

/* Adds the sums of all parts into the first one's. */
template <class T> __global__ void flk_grad_statistics_kernel(flk_batch_norm a) {
    const int64_t c = flk_thread();
    if (c >= a.channels) return;
    T *part = (T *)a.part, all = 0, along = 0;
    for (int64_t p = 0; p < a.parts; p++) {
        all += part[2 * p * a.channels + c];
        along += part[(2 * p + 1) * a.channels + c];
    }
    part[c] = all;
    part[a.channels + c] = along;
    if (a.dw) ((T *)a.dw)[c] = along / flk_sqrt(((const T *)a.var)[c] + (T)a.eps);
    if (a.db) ((T *)a.db)[c] = all;
}

/* dx = w rstd (g - mean(g) - n mean(g n)), n = (x - mean) rstd. */
template <class T> __global__ void flk_batch_norm_grad_kernel(flk_batch_norm a) {
    const int64_t i = flk_thread();
    if (i >= a.count * a.channels) return;
    const int64_t c = flk_channel_of(a, i);
    const T g = flk_through<T>(a, i), count = (T)a.count,
            rstd = 1 / flk_sqrt(((const T *)a.var)[c] + (T)a.eps);
    if (a.dadd.p) flk_store(a.dadd, i, g);
    if (!a.dx.p) return;
    const T n = (flk_load<T>(a.x, i) - ((const T *)a.mean)[c]) * rstd;
    const T all = ((const T *)a.part)[c] / count,
            along = ((const T *)a.part)[a.channels + c] * rstd / count;
    flk_store(a.dx, i, rstd * flk_load<T>(a.w, c) * (g - all - n * along));
}

/* Chooses parts that fit in the cache, and not too many of them. */
void flk_batch_norm_parts(flk_batch_norm *a) {
    a->size = a->last ? 256 : 8192;
    if (a->size * 512 < a->count) a->size = (a->count + 511) / 512;
    a->parts = (a->count + a->size - 1) / a->size;
}

template <class T> static const char *flk_batch_norm_of(const flk_batch_norm *a, bool known) {
    const int64_t n = a->count * a->channels, blocks = a->parts * flk_columns(*a);
    const char *why = NULL;
    if (!known) why = FLK_LAUNCH(flk_moments_kernel<T>, (unsigned)blocks, FLK_BLOCK, *a);
    if (!known && !why)
        why = FLK_LAUNCH(flk_statistics_kernel<T>, flk_blocks(a->channels), FLK_BLOCK, *a);
    return why ? why : FLK_LAUNCH(flk_batch_norm_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
}

template <class T> static const char *flk_batch_norm_grad_of(const flk_batch_norm *a) {
    const int64_t n = a->count * a->channels, blocks = a->parts * flk_columns(*a);
    const char *why = NULL;
    if (a->part) why = FLK_LAUNCH(flk_grad_sums_kernel<T>, (unsigned)blocks, FLK_BLOCK, *a);
    if (a->part && !why)
        why = FLK_LAUNCH(flk_grad_statistics_kernel<T>, flk_blocks(a->channels), FLK_BLOCK, *a);
    if (why || !(a->dx.p || a->dadd.p)) return why;
    return FLK_LAUNCH(flk_batch_norm_grad_kernel<T>, flk_blocks(n), FLK_BLOCK, *a);
}

const char *flk_batch_norm_run(const flk_batch_norm *a, int known, int dtype) {
    return dtype == FLK_F64 ? flk_batch_norm_of<double>(a, known)
                            : flk_batch_norm_of<float>(a, known);
}

const char *flk_batch_norm_grad(const flk_batch_norm *a, int dtype) {
    return dtype == FLK_F64 ? flk_batch_norm_grad_of<double>(a) : flk_batch_norm_grad_of<float>(a);
}
/* MIT licence: see LICENSE. */
