/* kernels/cuda/step.cu - optimizer steps, and sums of squares, of many tensors in one launch each

   The kernel of a step's rule is printed by kernels/kernel_text.h and compiled by program.h. */
#include "common.cuh"

const char *flk_step(const flk_step_rule *r, flk_step_list *l, void *kernel) {
    const bool f64 = r->dtype[r->n_reads] == FLK_F64;
    const int64_t takes = FLK_BLOCK * FLK_STEP_RUNS * (f64 ? FLK_VECTOR<double> : FLK_VECTOR<float>);
    void *args[] = {(void *)r, l};
    int64_t blocks = 0;
    for (int i = 0; i < l->n; i++) {
        l->first[i] = (int)blocks;
        blocks += (l->entry[i].n + takes - 1) / takes;
    }
    return blocks ? flk_kernel_launch(kernel, blocks, FLK_BLOCK, args) : NULL;
}

/* ---- sums of squares: one block per part; the last block to finish adds the parts in order ---- */

template <class T>
__global__ void flk_squares_kernel(flk_squares_list l, int dtype, double *part, int *ended) {
    __shared__ int place;
    int block = (int)blockIdx.x;
    const int at = flk_entry_of(l.first, l.n, &block), parts = l.first[at + 1] - l.first[at];
    const flk_squares_entry &e = l.entry[at];
    const int64_t size = (e.n + parts - 1) / parts, begin = block * size;
    const int64_t end = begin + size < e.n ? begin + size : e.n;
    T sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += FLK_BLOCK) {
        const T v = flk_load_at<T>(e.p, dtype, i);
        sum += v * v;
    }
    sum = flk_team<FLK_BLOCK>(sum, flk_sum_of());
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (double)sum;
        __threadfence();
        place = atomicAdd(ended, 1);
    }
    __syncthreads();
    if (threadIdx.x || place != (int)gridDim.x - 1) return;
    __threadfence();
    const volatile double *sums = part;
    double all = 0;
    for (int k = 0; k < l.n; k++) {
        double one = 0;
        if (!l.entry[k].follows) all = l.entry[k].before ? *l.entry[k].before : 0;
        for (int i = l.first[k]; i < l.first[k + 1]; i++) one += sums[i];
        all += one;
        if (l.entry[k].y) *l.entry[k].y = all;
    }
    *ended = 0;
}

const char *flk_squares(flk_squares_list *l, int dtype, double *part, int *ended) {
    int64_t blocks = 0;
    for (int i = 0; i < l->n; i++) {
        const int64_t parts = (l->entry[i].n + 8191) / 8192;
        l->first[i] = (int)blocks;
        blocks += parts < 1 ? 1 : parts < FLK_SQUARES_PARTS ? parts : (int64_t)FLK_SQUARES_PARTS;
    }
    l->first[l->n] = (int)blocks;
    return FLK_BY_FLOAT(flk_squares_kernel, dtype, blocks, *l, dtype, part, ended);
}
/* MIT licence: see LICENSE. */
