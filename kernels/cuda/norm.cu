/* kernels/cuda/norm.cu - layer norm, RMS norm and group norm, and their gradients

   A team of threads has a row, which may first be a residual sum, or a group of channels of an image,
   channels-first or channels-last. The gradients of weight and bias are sums over parts in order: a part are
   rows, as many as depend on the number of rows only, or an image, whose sums per channel also give those of
   its groups. */
#include "common.cuh"

enum { FLK_LANES = FLK_WARP, FLK_DEPTH = FLK_BLOCK / FLK_LANES };

template <class T, int TEAM>
static __device__ __forceinline__ void flk_norm_row(const flk_norm &a, int64_t r, int lane) {
    const int64_t n = a.n, at = r * n;
    T mean = 0, var = 0;
    for (int64_t k = lane; k < n && !a.rms; k += TEAM) mean += flk_load<T>(a.x, at + k);
    if (!a.rms) mean = flk_team<TEAM>(mean, flk_sum_of()) / (T)n;
    for (int64_t k = lane; k < n; k += TEAM) {
        const T d = flk_load<T>(a.x, at + k) - mean;
        var += d * d;
    }
    var = flk_team<TEAM>(var, flk_sum_of()) / (T)n;
    const T rstd = 1 / flk_sqrt(var + (T)a.eps);
    for (int64_t k = lane; k < n; k += TEAM)
        flk_store(a.y, at + k,
                  (flk_load<T>(a.x, at + k) - mean) * rstd * flk_load<T>(a.w, k) +
                      flk_load<T>(a.b, k));
    if (lane) return;
    if (a.mean) ((T *)a.mean)[r] = mean;
    ((T *)a.rstd)[r] = rstd;
}

/* x = add + dropout(branch) for a row that starts at element `at`: random numbers as in flk_dropout_kernel,
   four per thread and draw, of which the row may use only some. */
template <class T, int TEAM>
static __device__ __forceinline__ void flk_norm_add(const flk_norm &a, int64_t at, int lane) {
    const int64_t end = at + a.n;
    for (int64_t block = at / 4 + lane; block * 4 < end; block += TEAM) {
        uint32_t w[4];
        if (a.drop > 0) flm_philox(a.key, flk_counter(a.counter, a.word) + (uint64_t)block, w);
        for (int k = 0; k < 4; k++) {
            const int64_t i = block * 4 + k;
            if (i < at || i >= end) continue;
            T v = flk_load<T>(a.branch, i);
            if (a.drop > 0) v = flm_uniform_f32(w[k]) >= (float)a.drop ? v * (T)a.scale : (T)0;
            flk_store(a.x, i, flk_load<T>(a.add, i) + v);
        }
    }
    if (TEAM == FLK_WARP) __syncwarp();
    else __syncthreads();
}

template <class T, int TEAM> __global__ void flk_norm_kernel(flk_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane);
    if (r < a.rows) flk_norm_row<T, TEAM>(a, r, lane);
}

template <class T, int TEAM> __global__ void flk_add_norm_kernel(flk_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane);
    if (r >= a.rows) return;
    flk_norm_add<T, TEAM>(a, r * a.n, lane);
    flk_norm_row<T, TEAM>(a, r, lane);
}

template <class T>
static __device__ __forceinline__ T flk_normed(const flk_norm &a, int64_t r, int64_t at) {
    const T mean = a.rms ? 0 : ((const T *)a.mean)[r];
    return (flk_load<T>(a.x, at) - mean) * ((const T *)a.rstd)[r];
}

/* dx = rstd (g - mean(g) - n mean(g n)), g = dy w. */
template <class T, int TEAM> __global__ void flk_norm_grad_kernel(flk_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), n = a.n, at = r * n;
    if (r >= a.rows) return;
    T all = 0, along = 0;
    for (int64_t k = lane; k < n; k += TEAM) {
        const T g = flk_load<T>(a.dy, at + k) * flk_load<T>(a.w, k);
        all += g;
        along += g * flk_normed<T>(a, r, at + k);
    }
    along = flk_team<TEAM>(along, flk_sum_of()) / (T)n;
    all = a.rms ? 0 : flk_team<TEAM>(all, flk_sum_of()) / (T)n;
    const T rstd = ((const T *)a.rstd)[r];
    for (int64_t k = lane; k < n; k += TEAM) {
        const T g = flk_load<T>(a.dy, at + k) * flk_load<T>(a.w, k);
        flk_store(a.y, at + k, rstd * (g - all - flk_normed<T>(a, r, at + k) * along));
    }
}

/* Sums of dy n and dy over the rows of a part: part [parts][2][n]. */
template <class T> __global__ void flk_norm_parts_kernel(flk_norm a, int64_t parts, void *work) {
    T *part = (T *)work;
    __shared__ T sums[2][FLK_DEPTH][FLK_LANES];
    const int lane = (int)threadIdx.x % FLK_LANES, depth = (int)threadIdx.x / FLK_LANES;
    const int64_t columns = (a.n + FLK_LANES - 1) / FLK_LANES, rows = (a.rows + parts - 1) / parts;
    int64_t column = blockIdx.x;
    const int64_t p = flk_divide(&column, columns), k = column * FLK_LANES + lane;
    T dw = 0, db = 0;
    for (int64_t r = p * rows + depth; k < a.n && r < (p + 1) * rows && r < a.rows;
         r += FLK_DEPTH) {
        const T dy = flk_load<T>(a.dy, r * a.n + k);
        dw += dy * flk_normed<T>(a, r, r * a.n + k);
        db += dy;
    }
    sums[0][depth][lane] = dw;
    sums[1][depth][lane] = db;
    __syncthreads();
    if (depth || k >= a.n) return;
    for (int i = 1; i < FLK_DEPTH; i++) dw += sums[0][i][lane], db += sums[1][i][lane];
    part[2 * p * a.n + k] = dw;
    part[(2 * p + 1) * a.n + k] = db;
}

/* dw and db, of which one may be NULL, of n columns: sums of the numbers `step` apart from w and b on. */
template <class T>
__global__ void flk_norm_sums_kernel(int64_t n, int64_t parts, int64_t step, int64_t w, int64_t b,
                                     const void *part, void *dw, void *db) {
    const int64_t k = flk_thread();
    T sum_w = 0, sum_b = 0;
    if (k >= n) return;
    for (const T *p = (const T *)part + k; parts > 0; parts--, p += step) sum_w += p[w], sum_b += p[b];
    if (dw) ((T *)dw)[k] = sum_w;
    if (db) ((T *)db)[k] = sum_b;
}

int64_t flk_norm_parts(int64_t rows) {
    const int64_t parts = (rows + 31) / 32;
    return parts < 256 ? parts : 256;
}

const char *flk_norm_run(flk_norm *a, int dtype) {
    a->scale = 1 / (1 - a->drop);
    a->word = flk_rng_word();
    return a->branch.p ? FLK_BY_ROW(flk_add_norm_kernel, dtype, a->rows, a->n, *a)
                       : FLK_BY_ROW(flk_norm_kernel, dtype, a->rows, a->n, *a);
}

const char *flk_norm_grad(const flk_norm *a, void *work, int dtype) {
    const int64_t parts = flk_norm_parts(a->rows), columns = (a->n + FLK_LANES - 1) / FLK_LANES;
    const char *why = a->y.p ? FLK_BY_ROW(flk_norm_grad_kernel, dtype, a->rows, a->n, *a) : NULL;
    if (!why && work) why = FLK_BY_FLOAT(flk_norm_parts_kernel, dtype, parts * columns, *a, parts, work);
    if (why || !work) return why;
    return FLK_BY_FLOAT(flk_norm_sums_kernel, dtype, flk_blocks(a->n), a->n, parts, 2 * a->n, 0, a->n, work,
                        a->dw, a->db);
}

/* ---- group norm ---- */

struct flk_place_of {
    int64_t at, channel;
};
/* Offset of value i of group `row`, in memory order. */
static __device__ __forceinline__ flk_place_of flk_group_at(const flk_group_norm &a, int64_t row, int64_t i) {
    int64_t group = row;
    const int64_t image = flk_divide(&group, a.groups), each = a.channels / a.groups;
    const int64_t first = flk_divide(&i, a.last ? each : a.width), c = group * each + (a.last ? i : first);
    const int64_t in = a.last ? first : i;
    return {a.last ? (image * a.width + in) * a.channels + c : (image * a.channels + c) * a.width + in, c};
}

template <class T, int TEAM> __global__ void flk_group_norm_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), n = a.channels / a.groups * a.width;
    if (r >= a.images * a.groups) return;
    T mean = 0, var = 0;
    if (!a.known) {
        for (int64_t k = lane; k < n; k += TEAM) mean += flk_load<T>(a.x, flk_group_at(a, r, k).at);
        mean = flk_team<TEAM>(mean, flk_sum_of()) / (T)n;
        for (int64_t k = lane; k < n; k += TEAM) {
            const T d = flk_load<T>(a.x, flk_group_at(a, r, k).at) - mean;
            var += d * d;
        }
        var = flk_team<TEAM>(var, flk_sum_of()) / (T)n;
    } else {
        mean = ((const T *)a.mean)[r];
        var = ((const T *)a.var)[r];
    }
    const T rstd = 1 / flk_sqrt(var + (T)a.eps);
    for (int64_t k = lane; k < n; k += TEAM) {
        const flk_place_of p = flk_group_at(a, r, k);
        flk_store(a.y, p.at, (flk_load<T>(a.x, p.at) - mean) * (rstd * flk_load<T>(a.w, p.channel)) +
                                 flk_load<T>(a.b, p.channel));
    }
    if (lane || a.known) return;
    ((T *)a.mean)[r] = mean;
    ((T *)a.var)[r] = var;
}

/* part [2][images, channels]: sums of dy and of dy n, n = (x - mean) rstd. */
template <class T, int TEAM> __global__ void flk_group_parts_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), rows = a.images * a.channels;
    if (r >= rows) return;
    int64_t c = r;
    const int64_t image = flk_divide(&c, a.channels), group = image * a.groups + c / (a.channels / a.groups);
    const T mean = ((const T *)a.mean)[group], rstd = 1 / flk_sqrt(((const T *)a.var)[group] + (T)a.eps);
    T all = 0, along = 0;
    for (int64_t k = lane; k < a.width; k += TEAM) {
        const int64_t at = a.last ? (image * a.width + k) * a.channels + c : r * a.width + k;
        const T dy = flk_load<T>(a.dy, at);
        all += dy;
        along += dy * (flk_load<T>(a.x, at) - mean);
    }
    all = flk_team<TEAM>(all, flk_sum_of());
    along = flk_team<TEAM>(along, flk_sum_of()) * rstd;
    if (lane) return;
    ((T *)a.part)[r] = all;
    ((T *)a.part)[rows + r] = along;
}

/* dx = rstd (dy w - mean(dy w) - n mean(dy w n)). */
template <class T, int TEAM> __global__ void flk_group_grad_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), each = a.channels / a.groups, n = each * a.width;
    if (r >= a.images * a.groups) return;
    const T *part = (const T *)a.part + r * each;
    T all = 0, along = 0;
    for (int64_t k = lane; k < each; k += TEAM) {
        const T w = flk_load<T>(a.w, r % a.groups * each + k);
        all += w * part[k];
        along += w * part[a.images * a.channels + k];
    }
    all = flk_team<TEAM>(all, flk_sum_of()) / (T)n;
    along = flk_team<TEAM>(along, flk_sum_of()) / (T)n;
    const T mean = ((const T *)a.mean)[r], rstd = 1 / flk_sqrt(((const T *)a.var)[r] + (T)a.eps);
    for (int64_t k = lane; k < n; k += TEAM) {
        const flk_place_of p = flk_group_at(a, r, k);
        const T g = flk_load<T>(a.dy, p.at) * flk_load<T>(a.w, p.channel);
        flk_store(a.y, p.at, rstd * (g - all - (flk_load<T>(a.x, p.at) - mean) * rstd * along));
    }
}

const char *flk_group_norm_run(const flk_group_norm *a, int dtype) {
    const int64_t n = a->channels / a->groups * a->width;
    return FLK_BY_ROW(flk_group_norm_kernel, dtype, a->images * a->groups, n, *a);
}

const char *flk_group_norm_grad(const flk_group_norm *a, int dtype) {
    const int64_t n = a->channels / a->groups * a->width;
    const char *why = FLK_BY_ROW(flk_group_parts_kernel, dtype, a->images * a->channels, a->width, *a);
    if (!why && a->y.p) why = FLK_BY_ROW(flk_group_grad_kernel, dtype, a->images * a->groups, n, *a);
    if (why || !(a->dw || a->db)) return why;
    return FLK_BY_FLOAT(flk_norm_sums_kernel, dtype, flk_blocks(a->channels), a->channels, a->images,
                        a->channels, a->images * a->channels, 0, a->part, a->dw, a->db);
}
/* MIT licence: see LICENSE. */
