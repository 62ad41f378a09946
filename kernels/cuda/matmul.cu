/* kernels/cuda/matmul.cu - batched matrix products: reference kernel

   A block computes a tile of FLK_TILE x FLK_TILE elements, each thread FLK_EACH x FLK_EACH of them, from
   panels of FLK_DEEP of k in shared memory. The sum over k is sequential, in order. */
#include "common.cuh"

enum { FLK_TILE = 64, FLK_DEEP = 16, FLK_EACH = 4, FLK_SIDE = FLK_TILE / FLK_EACH };

static __device__ __forceinline__ float flk_fused(float a, float b, float c) { return fmaf(a, b, c); }
static __device__ __forceinline__ double flk_fused(double a, double b, double c) { return fma(a, b, c); }
static __device__ __forceinline__ int64_t flk_fused(int64_t a, int64_t b, int64_t c) {
    return flm_add_i64(flm_mul_i64(a, b), c);
}

/* Loads a tile [FLK_DEEP][FLK_TILE] whose element (l, i) is p[i * across + (k0 + l) * along]; zeros outside.
   Adjacent threads read adjacent addresses if possible. */
template <class T>
static __device__ __forceinline__ void flk_tile(T (*to)[FLK_TILE], const T *p, int64_t left, int64_t deep,
                                                int64_t across, int64_t along) {
    for (int i = (int)threadIdx.x; i < FLK_TILE * FLK_DEEP; i += FLK_BLOCK) {
        const int l = along == 1 ? i % FLK_DEEP : i / FLK_TILE, j = along == 1 ? i / FLK_DEEP : i % FLK_TILE;
        to[l][j] = j < left && l < deep ? p[j * across + l * along] : (T)0;
    }
}

template <class T> __global__ void __launch_bounds__(FLK_BLOCK) flk_matmul_kernel(flk_product p) {
    __shared__ T a[FLK_DEEP][FLK_TILE], b[FLK_DEEP][FLK_TILE];
    const int ty = (int)threadIdx.x / FLK_SIDE, tx = (int)threadIdx.x % FLK_SIDE;
    const int64_t columns = (p.n + FLK_TILE - 1) / FLK_TILE, rows = (p.m + FLK_TILE - 1) / FLK_TILE;
    int64_t block = blockIdx.x, at[3];
    const int64_t batch_row = flk_divide(&block, columns), j0 = block * FLK_TILE;
    int64_t i0 = batch_row;
    const int64_t batch = flk_divide(&i0, rows);
    i0 *= FLK_TILE;
    flk_place<3>(p.batch, batch, at);
    const T *pa = (const T *)p.batch.t[1].p + at[1] + i0 * p.row[1];
    const T *pb = (const T *)p.batch.t[2].p + at[2] + j0 * p.column[2];
    T sum[FLK_EACH][FLK_EACH] = {};
    for (int64_t k = 0; k < p.k; k += FLK_DEEP) {
        flk_tile<T>(a, pa + k * p.column[1], p.m - i0, p.k - k, p.row[1], p.column[1]);
        flk_tile<T>(b, pb + k * p.row[2], p.n - j0, p.k - k, p.column[2], p.row[2]);
        __syncthreads();
        for (int l = 0; l < FLK_DEEP && k + l < p.k; l++) {
#pragma unroll
            for (int i = 0; i < FLK_EACH; i++)
#pragma unroll
                for (int j = 0; j < FLK_EACH; j++)
                    sum[i][j] = flk_fused(a[l][ty + i * FLK_SIDE], b[l][tx + j * FLK_SIDE], sum[i][j]);
        }
        __syncthreads();
    }
    T *y = (T *)p.batch.t[0].p + at[0];
#pragma unroll
    for (int i = 0; i < FLK_EACH; i++)
#pragma unroll
        for (int j = 0; j < FLK_EACH; j++) {
            const int64_t row = i0 + ty + i * FLK_SIDE, column = j0 + tx + j * FLK_SIDE;
            if (row < p.m && column < p.n) y[row * p.row[0] + column * p.column[0]] = sum[i][j];
        }
}

/* A warp computes a column of y, reading its row of w once for a few rows of x at a time. */
__global__ void flk_stored_kernel(flk_stored s) {
    enum { ROWS = 4 };
    int lane;
    const int64_t j = flk_team_row<FLK_WARP>(&lane);
    if (j >= s.n) return;
    for (int64_t i = 0; i < s.m; i += ROWS) {
        float sum[ROWS] = {0, 0, 0, 0};
        for (int64_t l = lane; l < s.k; l += FLK_WARP) {
            const float w = flk_load_at<float>(s.w.p, s.w.dtype, j * s.w.stride[0] + l * s.w.stride[1]);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (i + r < s.m)
                    sum[r] =
                        fmaf(((const float *)s.x.p)[(i + r) * s.x.stride[0] + l * s.x.stride[1]], w, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float all = flk_team<FLK_WARP>(sum[r], flk_sum_of());
            if (!lane && i + r < s.m) s.y[(i + r) * s.n + j] = all;
        }
    }
}

const char *flk_linear_stored(const flk_stored *s) {
    if (!s->m) return NULL;
    return FLK_LAUNCH(flk_stored_kernel, flk_blocks(s->n, FLK_BLOCK / FLK_WARP), FLK_BLOCK, *s);
}

const char *flk_matmul(const flk_product *p, int dtype) {
    const int64_t blocks =
        p->batch.n * ((p->m + FLK_TILE - 1) / FLK_TILE) * ((p->n + FLK_TILE - 1) / FLK_TILE);
    return FLK_BY_NUMBER(flk_matmul_kernel, dtype, blocks, *p);
}
/* MIT licence: see LICENSE. */
