/* kernels/cuda/norm.cu - layer norm and RMS norm, and their gradients

   A team of threads has a row, which may first be a residual sum. The gradients of weight and bias are sums
   over rows: over parts, whose size depends on the number of rows only, with a thread per column; then over
   the parts in order. */
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

template <class T> __global__ void flk_norm_sums_kernel(flk_norm a, int64_t parts, const void *work) {
    const T *part = (const T *)work;
    const int64_t k = flk_thread();
    T dw = 0, db = 0;
    if (k >= a.n) return;
    for (int64_t p = 0; p < parts; p++)
        dw += part[2 * p * a.n + k], db += part[(2 * p + 1) * a.n + k];
    if (a.dw) ((T *)a.dw)[k] = dw;
    if (a.db) ((T *)a.db)[k] = db;
}

int64_t flk_norm_parts(int64_t rows) {
    const int64_t parts = (rows + 31) / 32;
    return parts < 256 ? parts : 256;
}

const char *flk_norm_run(flk_norm *a, int dtype) {
    if (!a->rows || !a->n) return NULL;
    a->scale = 1 / (1 - a->drop);
    a->word = flk_rng_word();
    return a->branch.p ? FLK_BY_ROW(flk_add_norm_kernel, dtype, a->rows, a->n, *a)
                       : FLK_BY_ROW(flk_norm_kernel, dtype, a->rows, a->n, *a);
}

const char *flk_norm_grad(const flk_norm *a, void *work, int dtype) {
    const int64_t parts = flk_norm_parts(a->rows), columns = (a->n + FLK_LANES - 1) / FLK_LANES;
    const char *why = NULL;
    if (!a->rows || !a->n) return NULL;
    if (a->y.p) why = FLK_BY_ROW(flk_norm_grad_kernel, dtype, a->rows, a->n, *a);
    if (!why && work) why = FLK_FLOATS(flk_norm_parts_kernel, dtype, parts * columns, *a, parts, work);
    if (!why && work) why = FLK_FLOATS(flk_norm_sums_kernel, dtype, flk_blocks(a->n), *a, parts, work);
    return why;
}
/* MIT licence: see LICENSE. */
