/* kernels/cuda/reduce.cu - sum, prod, max, min, argmax, argmin over any axes

   A row of threads reduces the elements of an output, then a tree their results: adjacent threads read
   adjacent elements or outputs, whichever are contiguous. If there are many elements and few outputs, the
   elements are split into parts, which a second launch reduces. The split depends on the numbers of elements
   and outputs only, so the bits are the same on every device. */
#include "common.cuh"

template <class T> struct flk_state {
    T v;
    int64_t at; /* index of an extreme; -1 before the first element */
};

/* Combines a and b, where b follows a; for indices in any order. */
template <class T, int KIND>
static __device__ __forceinline__ flk_state<T> flk_join(flk_state<T> a, flk_state<T> b) {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    if (KIND == FLK_SUM) a.v = flk_add(a.v, b.v);
    else if (KIND == FLK_PROD) a.v = flk_mul(a.v, b.v);
    else if (KIND == FLK_AMAX) a.v = flk_max(a.v, b.v);
    else if (KIND == FLK_AMIN) a.v = flk_min(a.v, b.v);
    else {
        const bool more = KIND == FLK_ARGMAX ? b.v > a.v : b.v < a.v;
        const bool nan_a = !(a.v == a.v), nan_b = !(b.v == b.v);
        const bool same = nan_a ? nan_b : b.v == a.v;
        if (same ? b.at < a.at : nan_b || (!nan_a && more)) a = b;
    }
    return a;
}

/* Reduces elements first, first + step ... before end, of the output whose x begins there. */
template <class T, int KIND>
static __device__ __forceinline__ flk_state<T> flk_fold(const flk_reduction &r, int64_t from, int64_t first,
                                                        int64_t end, int step) {
    flk_state<T> s = {(T)(KIND == FLK_PROD), -1};
    for (int64_t i = first; i < end; i += step) {
        int64_t at = from, left = i;
        for (int d = r.ndim - 1; d >= 0; d--) {
            const int64_t rest = d ? flk_divide(&left, r.shape[d]) : 0;
            at += left * r.stride[d];
            left = rest;
        }
        s = flk_join<T, KIND>(s, {flk_load<T>(r.kept.t[1], at), i});
    }
    return s;
}

/* A block has `lanes` outputs, or parts of them, with as many threads each as fit. */
template <class T, int KIND> __global__ void flk_reduce_kernel(flk_reduction r, int lanes) {
    __shared__ T v[FLK_BLOCK];
    __shared__ int64_t place[FLK_BLOCK];
    const int me = (int)threadIdx.x, depth = FLK_BLOCK / lanes;
    const int lane = r.inner ? me / depth : me % lanes, row = r.inner ? me % depth : me / lanes;
    const int64_t i = (int64_t)blockIdx.x * lanes + lane;
    const bool mine = i < r.kept.n * r.parts;
    int64_t at[2] = {}, output = i;
    flk_state<T> s = {(T)0, -1};
    if (mine) {
        const int64_t first = r.parts > 1 ? flk_divide(&output, r.kept.n) * r.size : 0;
        flk_place<2>(r.kept, output, at);
        s = flk_fold<T, KIND>(r, at[1], first + row, first + r.size < r.n ? first + r.size : r.n, depth);
    }
    const int spot = row * lanes + lane;
    for (int half = FLK_BLOCK / 2; half >= lanes; half /= 2) {
        v[spot] = s.v;
        place[spot] = s.at;
        __syncthreads();
        if (spot < half) s = flk_join<T, KIND>(s, {v[spot + half], place[spot + half]});
        __syncthreads();
    }
    if (row || !mine) return;
    if (r.parts > 1) ((T *)r.part)[i] = s.v;
    else if (KIND == FLK_ARGMAX || KIND == FLK_ARGMIN) ((int64_t *)r.kept.t[0].p)[at[0]] = s.at;
    else flk_store(r.kept.t[0], at[0], s.v);
}

/* Outputs per block: one thread per output for few elements; a warp or a block per output if reduced elements
   are contiguous; else threads of a warp have adjacent outputs. */
static int flk_reduce_lanes(const flk_reduction *r) {
    int lanes = 32;
    if (r->n <= 8) return FLK_BLOCK;
    if (r->inner) return r->n <= 1024 ? FLK_BLOCK / 32 : 1;
    if (r->n <= 64) return FLK_BLOCK;
    while (lanes > 1 && lanes / 2 >= r->kept.n) lanes /= 2;
    return lanes;
}

/* Enough blocks for any device, with at least 16 elements per thread. */
int64_t flk_reduce_parts(flk_reduction *r, int kind) {
    enum { BLOCKS = 1024, EACH = 16 };
    const int lanes = flk_reduce_lanes(r);
    const int64_t blocks = (r->kept.n + lanes - 1) / lanes, most = r->n / (FLK_BLOCK / lanes * EACH);
    r->parts = blocks ? BLOCKS / blocks : 1;
    if (r->parts > most) r->parts = most;
    if (r->parts < 1 || kind == FLK_ARGMAX || kind == FLK_ARGMIN) r->parts = 1;
    r->size = (r->n + r->parts - 1) / r->parts;
    return r->parts;
}

typedef void (*flk_reducer)(flk_reduction r, int lanes);
template <class T> static flk_reducer flk_reducer_of(int kind) {
    return kind == FLK_SUM      ? flk_reduce_kernel<T, FLK_SUM>
           : kind == FLK_PROD   ? flk_reduce_kernel<T, FLK_PROD>
           : kind == FLK_AMAX   ? flk_reduce_kernel<T, FLK_AMAX>
           : kind == FLK_AMIN   ? flk_reduce_kernel<T, FLK_AMIN>
           : kind == FLK_ARGMAX ? flk_reduce_kernel<T, FLK_ARGMAX>
                                : flk_reduce_kernel<T, FLK_ARGMIN>;
}

const char *flk_reduce(const flk_reduction *r, int kind, int dtype) {
    const int lanes = flk_reduce_lanes(r);
    const char *why = FLK_LAUNCH_AS("flk_reduce_kernel", FLK_OF_TYPE(flk_reducer_of, dtype)(kind),
                                    flk_blocks(r->kept.n * r->parts, lanes), FLK_BLOCK, *r, lanes);
    if (why || r->parts == 1) return why;
    flk_reduction all = *r;
    int64_t stride = 1;
    for (int d = r->kept.ndim - 1; d >= 0; d--) {
        all.kept.t[1].stride[d] = stride;
        stride *= r->kept.shape[d];
    }
    all.kept.t[1].p = r->part;
    all.kept.t[1].dtype = dtype;
    all.ndim = 1;
    all.n = all.size = all.shape[0] = r->parts;
    all.stride[0] = stride;
    all.inner = stride == 1;
    all.parts = 1;
    return flk_reduce(&all, kind, dtype);
}
/* MIT licence: see LICENSE. */
