/* kernels/cuda/batch_norm.cu - batch norm in training, fused with a sum and ReLU, and its gradients

   Images are planes per channel, or channels-last. A channel's values are split into parts depending on the
   images' sizes. A block has a part of one channel of planes or, channels-last, of a row of channels: a
   thread has 8 of them if they are aligned, else one, and steps over the values. What depends on the channel
   alone is computed once per block. A part's mean and sum of squares take two passes, the second from the
   cache; then threads combine the parts in a fixed order. The launch that normalises also updates the
   running statistics. Two launches for the statistics, one for y, three backward. */
#include "common.cuh"

/* Offset of value i of N channels from c on. */
template <int N>
static __device__ __forceinline__ int64_t flk_image_at(const flk_batch_norm &a, int64_t c, int64_t i) {
    if (N > 1 || a.last) return i * a.channels + c;
    int64_t in = i;
    const int64_t n = flk_divide(&in, a.width);
    return (n * a.channels + c) * a.width + in;
}

/* A thread's part of the work: values first, first + step ... of N channels. block: the block's first
   channel, lane: the thread's index among those with the same values, mine: it has channels. */
struct flk_share {
    int64_t block, channel, part, first, end, step;
    int lane;
    bool mine;
};
template <int N> static __device__ __forceinline__ flk_share flk_share_of(const flk_batch_norm &a) {
    flk_share s;
    int64_t column = blockIdx.x;
    s.part = flk_divide(&column, a.columns);
    s.lane = (int)threadIdx.x & (a.lanes - 1); /* a power of 2 */
    s.block = column * a.lanes * N;
    s.channel = s.block + s.lane * N;
    s.mine = s.channel < a.channels;
    s.first = s.part * a.size + threadIdx.x / (unsigned)a.lanes;
    s.step = FLK_BLOCK / a.lanes;
    s.end = (s.part + 1) * a.size < a.count ? (s.part + 1) * a.size : a.count;
    if (!s.mine) s.end = s.first;
    return s;
}

/* Sums v over the threads of a lane, within warps and then over them in order; all of them get the result. */
template <int N, class T> static __device__ __forceinline__ void flk_share_sum(int lanes, T *v) {
    __shared__ T sums[FLK_BLOCK / FLK_WARP][FLK_WARP * N];
    const int lane = (int)threadIdx.x & (lanes - 1);
    for (int mask = FLK_WARP / 2; mask >= lanes; mask /= 2)
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += __shfl_xor_sync(~0u, v[j], mask);
    __syncthreads(); /* the previous sums have been read */
    if ((int)threadIdx.x % FLK_WARP < lanes)
        for (int j = 0; j < N; j++) sums[threadIdx.x / FLK_WARP][lane * N + j] = v[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) {
        v[j] = sums[0][lane * N + j];
        for (int i = 1; i < FLK_BLOCK / FLK_WARP; i++) v[j] += sums[i][lane * N + j];
    }
}

/* Number of values of a channel in part p. */
static __device__ __forceinline__ int64_t flk_part_size(const flk_batch_norm &a, int64_t p) {
    return (p + 1) * a.size < a.count ? a.size : a.count - p * a.size;
}

/* part [parts][2][channels]: mean, and sum of squared deviations. */
template <class T, int D, int N> __global__ void flk_moments_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of<N>(a);
    T mean[N] = {}, squares[N] = {}, x[N];
    for (int64_t i = s.first; i < s.end; i += s.step) {
        flk_load_some<D, N>(a.x, flk_image_at<N>(a, s.channel, i), x);
#pragma unroll
        for (int j = 0; j < N; j++) mean[j] += x[j];
    }
    flk_share_sum<N>(a.lanes, mean);
    const T n = (T)flk_part_size(a, s.part);
#pragma unroll
    for (int j = 0; j < N; j++) mean[j] /= n;
    for (int64_t i = s.first; i < s.end; i += s.step) {
        flk_load_some<D, N>(a.x, flk_image_at<N>(a, s.channel, i), x);
#pragma unroll
        for (int j = 0; j < N; j++) squares[j] += (x[j] - mean[j]) * (x[j] - mean[j]);
    }
    flk_share_sum<N>(a.lanes, squares);
    if ((int)threadIdx.x >= a.lanes || !s.mine) return;
    T *part = (T *)a.part + 2 * s.part * a.channels + s.channel;
    for (int j = 0; j < N; j++) part[j] = mean[j], part[a.channels + j] = squares[j];
}

/* Mean and var of FLK_MERGED channels: threads of a channel combine the parts, first their means. */
enum { FLK_MERGED = 8 }; /* 32 bytes of f32 */
template <class T> __global__ void flk_statistics_kernel(flk_batch_norm a) {
    const int64_t c = (int64_t)blockIdx.x * FLK_MERGED + threadIdx.x % FLK_MERGED;
    const int64_t parts = c < a.channels ? a.parts : 0, step = FLK_BLOCK / FLK_MERGED;
    const T *part = (const T *)a.part + c;
    T mean = 0, squares = 0;
    for (int64_t p = threadIdx.x / FLK_MERGED; p < parts; p += step)
        mean += part[2 * p * a.channels] * (T)flk_part_size(a, p);
    flk_share_sum<1>(FLK_MERGED, &mean);
    mean /= (T)a.count;
    for (int64_t p = threadIdx.x / FLK_MERGED; p < parts; p += step) {
        const T d = part[2 * p * a.channels] - mean;
        squares += part[(2 * p + 1) * a.channels] + d * d * (T)flk_part_size(a, p);
    }
    flk_share_sum<1>(FLK_MERGED, &squares);
    if (threadIdx.x >= FLK_MERGED || !parts) return;
    ((T *)a.mean)[c] = mean;
    ((T *)a.var)[c] = squares / (T)a.count;
}

/* running = (1 - momentum) running + momentum batch, rounded like the ops of the composition. */
template <class T> static __device__ __forceinline__ void flk_run_on(const flk_batch_norm &a, int64_t c) {
    T *mean = (T *)a.running_mean + c, *var = (T *)a.running_var + c;
    const T before = (T)(1 - a.momentum), now = (T)a.momentum, old_var = *var;
    *mean = *mean * before + ((const T *)a.mean)[c] * now;
    *var = old_var * before + ((const T *)a.var)[c] * (T)a.unbiased * now;
    if (c == 0 && a.batches) ++*a.batches;
}

/* Copies the N numbers of this thread's channels from the block's. */
template <int N, class T> static __device__ __forceinline__ void flk_own(const T *block, int lane, T *v) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = block[lane * N + j];
}

template <class T> static __device__ __forceinline__ T flk_rstd(const flk_batch_norm &a, int64_t c) {
    return 1 / flk_sqrt(((const T *)a.var)[c] + (T)a.eps);
}

template <class T, int D, int N> __global__ void flk_batch_norm_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of<N>(a);
    __shared__ T number[3][FLK_BLOCK];
    const int64_t c = s.block + threadIdx.x;
    if ((int)threadIdx.x < a.lanes * N && c < a.channels) {
        number[0][threadIdx.x] = ((const T *)a.mean)[c];
        number[1][threadIdx.x] = flk_rstd<T>(a, c) * flk_load<T>(a.w, c);
        number[2][threadIdx.x] = flk_load<T>(a.b, c);
        if (s.part == 0 && a.running_mean) flk_run_on<T>(a, c);
    }
    __syncthreads();
    T mean[N], scale[N], b[N], x[N], add[N] = {};
    flk_own<N>(number[0], s.lane, mean);
    flk_own<N>(number[1], s.lane, scale);
    flk_own<N>(number[2], s.lane, b);
    for (int64_t i = s.first; i < s.end; i += s.step) {
        const int64_t at = flk_image_at<N>(a, s.channel, i);
        flk_load_some<D, N>(a.x, at, x);
        if (a.add.p) flk_load_some<D, N>(a.add, at, add);
#pragma unroll
        for (int j = 0; j < N; j++) {
            x[j] = (x[j] - mean[j]) * scale[j] + b[j];
            if (a.add.p) x[j] += add[j];
            if (a.relu && x[j] <= 0) x[j] = 0;
        }
        flk_store_some<D, N>(a.y, at, x);
    }
}

/* The gradient dy masked by the ReLU. */
template <int D, int N, class T>
static __device__ __forceinline__ void flk_through(const flk_batch_norm &a, int64_t at, T *g) {
    T y[N];
    flk_load_some<D, N>(a.dy, at, g);
    if (!a.relu) return;
    flk_load_some<D, N>(a.y, at, y);
#pragma unroll
    for (int j = 0; j < N; j++)
        if (y[j] <= 0) g[j] = 0;
}

/* part [parts][2][channels]: sums of g and of g (x - mean). */
template <class T, int D, int N> __global__ void flk_grad_sums_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of<N>(a);
    T all[N] = {}, along[N] = {}, mean[N] = {}, g[N], x[N];
    for (int j = 0; j < N && s.mine; j++) mean[j] = ((const T *)a.mean)[s.channel + j];
    for (int64_t i = s.first; i < s.end; i += s.step) {
        const int64_t at = flk_image_at<N>(a, s.channel, i);
        flk_through<D, N>(a, at, g);
        flk_load_some<D, N>(a.x, at, x);
#pragma unroll
        for (int j = 0; j < N; j++) all[j] += g[j], along[j] += g[j] * (x[j] - mean[j]);
    }
    flk_share_sum<N>(a.lanes, all);
    flk_share_sum<N>(a.lanes, along);
    if ((int)threadIdx.x >= a.lanes || !s.mine) return;
    T *part = (T *)a.part + 2 * s.part * a.channels + s.channel;
    for (int j = 0; j < N; j++) part[j] = all[j], part[a.channels + j] = along[j];
}

/* Adds the sums of all parts into the first one's, for FLK_MERGED channels. */
template <class T> __global__ void flk_grad_statistics_kernel(flk_batch_norm a) {
    const int64_t c = (int64_t)blockIdx.x * FLK_MERGED + threadIdx.x % FLK_MERGED;
    const int64_t parts = c < a.channels ? a.parts : 0, step = FLK_BLOCK / FLK_MERGED;
    T *part = (T *)a.part + c, sum[2] = {};
    for (int64_t p = threadIdx.x / FLK_MERGED; p < parts; p += step)
        for (int k = 0; k < 2; k++) sum[k] += part[(2 * p + k) * a.channels];
    flk_share_sum<2>(FLK_MERGED, sum);
    if (threadIdx.x >= FLK_MERGED || !parts) return;
    part[0] = sum[0];
    part[a.channels] = sum[1];
    if (a.dw) ((T *)a.dw)[c] = sum[1] * flk_rstd<T>(a, c);
    if (a.db) ((T *)a.db)[c] = sum[0];
}

/* dx = w rstd (g - mean(g) - n mean(g n)), n = (x - mean) rstd. */
template <class T, int D, int N> __global__ void flk_batch_norm_grad_kernel(flk_batch_norm a) {
    const flk_share s = flk_share_of<N>(a);
    __shared__ T number[4][FLK_BLOCK];
    const int64_t c = s.block + threadIdx.x;
    if (a.dx.p && (int)threadIdx.x < a.lanes * N && c < a.channels) {
        const T rstd = flk_rstd<T>(a, c), *part = (const T *)a.part;
        number[0][threadIdx.x] = ((const T *)a.mean)[c];
        number[1][threadIdx.x] = rstd * flk_load<T>(a.w, c);
        number[2][threadIdx.x] = part[c] / (T)a.count;
        number[3][threadIdx.x] = part[a.channels + c] * rstd / (T)a.count * rstd;
    }
    __syncthreads();
    T mean[N], scale[N], all[N], slope[N], g[N], x[N];
    flk_own<N>(number[0], s.lane, mean);
    flk_own<N>(number[1], s.lane, scale);
    flk_own<N>(number[2], s.lane, all);
    flk_own<N>(number[3], s.lane, slope);
    for (int64_t i = s.first; i < s.end; i += s.step) {
        const int64_t at = flk_image_at<N>(a, s.channel, i);
        flk_through<D, N>(a, at, g);
        if (a.dadd.p) flk_store_some<D, N>(a.dadd, at, g);
        if (!a.dx.p) continue;
        flk_load_some<D, N>(a.x, at, x);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = scale[j] * (g[j] - all[j] - (x[j] - mean[j]) * slope[j]);
        flk_store_some<D, N>(a.dx, at, x);
    }
}

/* Chooses channels per thread, and parts that fit in the cache, and not too many of them. */
void flk_batch_norm_parts(flk_batch_norm *a, int dtype) {
    const flk_operand *const image[] = {&a->x, &a->y, &a->add, &a->dy, &a->dx, &a->dadd};
    const bool fits = a->last && dtype == FLK_F32 && a->channels % 8 == 0;
    a->each = fits && flk_aligned(image, 6, a->x.dtype) ? 8 : 1;
    a->lanes = 1;
    while (a->last && a->lanes < FLK_WARP && a->lanes * a->each < a->channels) a->lanes *= 2;
    a->columns = (a->channels + a->lanes * a->each - 1) / (a->lanes * a->each);
    const int64_t most = !a->last ? 512 : a->columns < 1024 ? 1024 / a->columns : 1;
    a->size = a->last ? 4 * FLK_BLOCK / a->lanes : 8192;
    if (a->size * most < a->count) a->size = (a->count + most - 1) / most;
    a->parts = (a->count + a->size - 1) / a->size;
}

#define FLK_BATCH(kernel, a) \
    FLK_BY_CHANNELS(kernel, (a)->each, (a)->x.dtype, (a)->parts * (a)->columns, *(a))

const char *flk_batch_statistics(const flk_batch_norm *a, int dtype) {
    const char *why = FLK_BATCH(flk_moments_kernel, a);
    return why ? why : FLK_BY_FLOAT(flk_statistics_kernel, dtype, flk_blocks(a->channels, FLK_MERGED), *a);
}

const char *flk_batch_norm_run(const flk_batch_norm *a) {
    return FLK_BATCH(flk_batch_norm_kernel, a);
}

const char *flk_batch_norm_grad(const flk_batch_norm *a, int dtype) {
    const char *why = a->part ? FLK_BATCH(flk_grad_sums_kernel, a) : NULL;
    if (a->part && !why)
        why = FLK_BY_FLOAT(flk_grad_statistics_kernel, dtype, flk_blocks(a->channels, FLK_MERGED), *a);
    return why || !(a->dx.p || a->dadd.p) ? why : FLK_BATCH(flk_batch_norm_grad_kernel, a);
}
/* MIT licence: see LICENSE. */
