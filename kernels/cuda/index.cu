/* kernels/cuda/index.cu - ops along one axis: scan, gather, scatter, sort; and nonzero

   In scans and scatters one thread processes each line in order: no two threads write the same element, so
   sums need no atomics, and if an index repeats, the last write wins. */
#include "common.cuh"

template <class T> __global__ void flk_scan_kernel(flk_lines l, bool product);
#define FLK_SCAN(T, s) \
    template <> __global__ void flk_scan_kernel<T>(flk_lines l, bool product) { \
        const int64_t i = flk_thread(); \
        int64_t at[2]; \
        if (i >= l.pass.n) return; \
        flk_place<2>(l.pass, i, at); \
        T sum = (T)product; \
        for (int64_t k = 0; k < l.length; k++) { \
            const T v = flk_load<T>(l.pass.t[1], at[1] + k * l.step[1]); \
            sum = product ? flm_mul_##s(sum, v) : flm_add_##s(sum, v); \
            flk_store(l.pass.t[0], at[0] + k * l.step[0], sum); \
        } \
    }
FLK_SCAN(float, f32)
FLK_SCAN(double, f64)
FLK_SCAN(int64_t, i64)

const char *flk_scan(const flk_lines *l, int product, int dtype) {
    const unsigned blocks = flk_blocks(l->pass.n);
    if (!l->pass.n || !l->length) return NULL;
    if (dtype == FLK_F32) return FLK_LAUNCH(flk_scan_kernel<float>, blocks, FLK_BLOCK, *l, product != 0);
    if (dtype == FLK_F64) return FLK_LAUNCH(flk_scan_kernel<double>, blocks, FLK_BLOCK, *l, product != 0);
    return FLK_LAUNCH(flk_scan_kernel<int64_t>, blocks, FLK_BLOCK, *l, product != 0);
}

/* The index of element k of a line; -1 after reporting an error. */
static __device__ __forceinline__ int64_t flk_index_at(const flk_lines &l, int64_t at, flk_fault *fault) {
    const int64_t i = ((const int64_t *)l.pass.t[1].p)[at];
    if (i >= 0 && i < l.size) return i;
    flk_note(fault, l.pass.op, 0, i, l.size, l.axis);
    return -1;
}

/* y, index, x: lines of y and index; one thread per element. */
template <class T> __global__ void flk_gather_kernel(flk_lines l, flk_fault *fault) {
    int64_t i = flk_thread(), at[3];
    if (i >= l.pass.n * l.length) return;
    const int64_t line = flk_divide(&i, l.length);
    flk_place<3>(l.pass, line, at);
    const int64_t from = flk_index_at(l, at[1] + i * l.step[1], fault);
    if (from >= 0)
        ((T *)l.pass.t[0].p)[at[0] + i * l.step[0]] = ((const T *)l.pass.t[2].p)[at[2] + from * l.step[2]];
}

static __device__ __forceinline__ float flk_plus(float a, float b) { return a + b; }
static __device__ __forceinline__ double flk_plus(double a, double b) { return a + b; }
static __device__ __forceinline__ int64_t flk_plus(int64_t a, int64_t b) { return flm_add_i64(a, b); }
static __device__ __forceinline__ uint8_t flk_plus(uint8_t a, uint8_t b) { return flm_add_b8(a, b); }

/* y, index, src */
template <class T> __global__ void flk_scatter_kernel(flk_lines l, bool add, flk_fault *fault) {
    const int64_t i = flk_thread();
    int64_t at[3];
    if (i >= l.pass.n) return;
    flk_place<3>(l.pass, i, at);
    for (int64_t k = 0; k < l.length; k++) {
        const int64_t to = flk_index_at(l, at[1] + k * l.step[1], fault);
        if (to < 0) continue;
        const int64_t y = at[0] + to * l.step[0];
        const T v = flk_load<T>(l.pass.t[2], at[2] + k * l.step[2]);
        flk_store(l.pass.t[0], y, add ? flk_plus(flk_load<T>(l.pass.t[0], y), v) : v);
    }
}

const char *flk_index(const flk_lines *l, int kind, int dtype) {
    const int64_t n = l->pass.n * l->length;
    const unsigned all = flk_blocks(n), lines = flk_blocks(l->pass.n);
    const bool add = kind == FLK_SCATTER_ADD;
    if (!n) return NULL;
    if (kind == FLK_GATHER)
        switch (dtype) {
        case FLK_B8:
        case FLK_U8:
        case FLK_I8: return FLK_LAUNCH(flk_gather_kernel<uint8_t>, all, FLK_BLOCK, *l, flk_faults());
        case FLK_I16:
        case FLK_U16:
        case FLK_F16:
        case FLK_BF16: return FLK_LAUNCH(flk_gather_kernel<uint16_t>, all, FLK_BLOCK, *l, flk_faults());
        case FLK_I32:
        case FLK_U32:
        case FLK_F32: return FLK_LAUNCH(flk_gather_kernel<uint32_t>, all, FLK_BLOCK, *l, flk_faults());
        default: return FLK_LAUNCH(flk_gather_kernel<uint64_t>, all, FLK_BLOCK, *l, flk_faults());
        }
    switch (dtype) {
    case FLK_F16:
    case FLK_BF16:
    case FLK_F32: return FLK_LAUNCH(flk_scatter_kernel<float>, lines, FLK_BLOCK, *l, add, flk_faults());
    case FLK_F64: return FLK_LAUNCH(flk_scatter_kernel<double>, lines, FLK_BLOCK, *l, add, flk_faults());
    case FLK_B8: return FLK_LAUNCH(flk_scatter_kernel<uint8_t>, lines, FLK_BLOCK, *l, add, flk_faults());
    default: return FLK_LAUNCH(flk_scatter_kernel<int64_t>, lines, FLK_BLOCK, *l, add, flk_faults());
    }
}

/* ---- merge sort: runs of 1, 2, 4 ... elements of each line are merged; the new position of an element is
   its position in its run plus the number of elements in the other run that precede it ---- */

template <class T> static __device__ __forceinline__ bool flk_before(T u, T v) {
    return u < v || (u == u && v != v); /* NaN is the maximum */
}

template <class T>
__global__ void flk_merge_kernel(flk_lines l, bool falls, int64_t run, const int64_t *from, int64_t *to) {
    int64_t i = flk_thread(), at[3];
    if (i >= l.pass.n * l.length) return;
    const int64_t line = flk_divide(&i, l.length), first = i / (2 * run) * (2 * run);
    const bool right = i - first >= run;
    flk_place<3>(l.pass, line, at);
    const T *x = (const T *)l.pass.t[2].p + at[2];
    from += line * l.length;
    const int64_t mine = run == 1 ? i : from[i], begin = right ? first : first + run;
    const int64_t middle = right ? first + run : first + 2 * run;
    int64_t low = begin < l.length ? begin : l.length, high = middle < l.length ? middle : l.length;
    const T v = x[mine * l.step[2]];
    while (low < high) { /* search the first of the other run that comes after v */
        const int64_t half = low + (high - low) / 2;
        const T u = x[(run == 1 ? half : from[half]) * l.step[2]];
        const bool less = falls ? flk_before(v, u) : flk_before(u, v),
                   more = falls ? flk_before(u, v) : flk_before(v, u);
        if (right ? !more : less) low = half + 1;
        else high = half;
    }
    const int64_t start = begin < l.length ? begin : l.length;
    to[line * l.length + first + (right ? i - first - run : i - first) + (low - start)] = mine;
}

template <class T> __global__ void flk_sorted_kernel(flk_lines l, const int64_t *order) {
    int64_t i = flk_thread(), at[3];
    if (i >= l.pass.n * l.size) return;
    const int64_t line = flk_divide(&i, l.size);
    flk_place<3>(l.pass, line, at);
    const int64_t from = l.length == 1 ? 0 : order[line * l.length + i];
    ((T *)l.pass.t[0].p)[at[0] + i * l.step[0]] = ((const T *)l.pass.t[2].p)[at[2] + from * l.step[2]];
    ((int64_t *)l.pass.t[1].p)[at[1] + i * l.step[1]] = from;
}

template <class T> static const char *flk_sort_of(const flk_lines *l, bool falls, int64_t *work) {
    const int64_t n = l->pass.n * l->length;
    int64_t *from = work, *to = work + n;
    const char *why = NULL;
    for (int64_t run = 1; !why && run < l->length; run *= 2) {
        why = FLK_LAUNCH(flk_merge_kernel<T>, flk_blocks(n), FLK_BLOCK, *l, falls, run, (const int64_t *)from,
                         to);
        int64_t *was = from;
        from = to;
        to = was;
    }
    if (why) return why;
    return FLK_LAUNCH(flk_sorted_kernel<T>, flk_blocks(l->pass.n * l->size), FLK_BLOCK, *l,
                      (const int64_t *)from);
}

const char *flk_sort(const flk_lines *l, int descending, int dtype, int64_t *work) {
    if (!l->pass.n || !l->length || !l->size) return NULL;
    return dtype == FLK_F32   ? flk_sort_of<float>(l, descending != 0, work)
           : dtype == FLK_F64 ? flk_sort_of<double>(l, descending != 0, work)
           : dtype == FLK_B8  ? flk_sort_of<uint8_t>(l, descending != 0, work)
                              : flk_sort_of<int64_t>(l, descending != 0, work);
}

/* ---- scatter_add with indices shared by all lines, such as rows of an embedding: the indices are sorted,
   and the first of each value adds all its sources in order ---- */

template <class T>
__global__ void flk_scatter_rows_kernel(flk_lines l, const int64_t *place, const int64_t *order,
                                        flk_fault *fault) {
    int64_t line = flk_thread(), at[3];
    if (line >= l.pass.n * l.length) return;
    const int64_t first = flk_divide(&line, l.pass.n), to = place[first];
    if (first && place[first - 1] == to) return;
    if (to < 0 || to >= l.size) {
        flk_note(fault, l.pass.op, 0, to, l.size, l.axis);
        return;
    }
    flk_place<3>(l.pass, line, at);
    const int64_t y = at[0] + to * l.step[0];
    T sum = flk_load<T>(l.pass.t[0], y);
    for (int64_t k = first; k < l.length && place[k] == to; k++)
        sum = flk_plus(sum, flk_load<T>(l.pass.t[2], at[2] + order[k] * l.step[2]));
    flk_store(l.pass.t[0], y, sum);
}

const char *flk_scatter_rows(const flk_lines *l, int dtype, int64_t *work) {
    const int64_t n = l->length;
    const unsigned blocks = flk_blocks(l->pass.n * n);
    flk_lines sort = {};
    if (!l->pass.n || !n) return NULL;
    sort.pass.n = 1;
    sort.length = sort.size = n;
    sort.pass.t[0].p = work;
    sort.pass.t[1].p = work + n;
    sort.pass.t[2].p = l->pass.t[1].p;
    sort.step[0] = sort.step[1] = 1;
    sort.step[2] = l->step[1];
    const char *why = flk_sort(&sort, 0, FLK_I64, work + 2 * n);
    const int64_t *place = work, *order = work + n;
    if (why) return why;
    if (dtype == FLK_F32)
        return FLK_LAUNCH(flk_scatter_rows_kernel<float>, blocks, FLK_BLOCK, *l, place, order, flk_faults());
    if (dtype == FLK_F64)
        return FLK_LAUNCH(flk_scatter_rows_kernel<double>, blocks, FLK_BLOCK, *l, place, order, flk_faults());
    return FLK_LAUNCH(flk_scatter_rows_kernel<int64_t>, blocks, FLK_BLOCK, *l, place, order, flk_faults());
}

/* ---- nonzero: one block; each thread counts the elements of an interval, and writes after the previous
   ones ---- */

__global__ void flk_nonzero_kernel(const uint8_t *x, flk_pass p, int64_t *y) {
    __shared__ int64_t before[FLK_BLOCK + 1];
    const int me = (int)threadIdx.x;
    const int64_t each = (p.n + FLK_BLOCK - 1) / FLK_BLOCK, begin = me * each;
    const int64_t end = begin + each < p.n ? begin + each : p.n;
    int64_t count = 0;
    for (int64_t i = begin; i < end; i++) count += x[i] != 0;
    before[me + 1] = count;
    if (me == 0) before[0] = 0;
    __syncthreads();
    if (me == 0)
        for (int k = 0; k < FLK_BLOCK; k++) before[k + 1] += before[k];
    __syncthreads();
    y += before[me] * p.ndim;
    for (int64_t i = begin; i < end; i++) {
        if (!x[i]) continue;
        int64_t left = i;
        for (int d = p.ndim - 1; d >= 0; d--) {
            const int64_t rest = d ? flk_divide(&left, p.shape[d]) : 0;
            y[d] = left;
            left = rest;
        }
        y += p.ndim;
    }
}

const char *flk_nonzero(const void *x, int64_t n, int ndim, const int64_t *shape, int64_t *y) {
    flk_pass p = {};
    p.n = n;
    p.ndim = ndim;
    for (int d = 0; d < ndim; d++) p.shape[d] = shape[d];
    if (!n || !ndim) return NULL;
    return FLK_LAUNCH(flk_nonzero_kernel, 1, FLK_BLOCK, (const uint8_t *)x, p, y);
}
/* MIT licence: see LICENSE. */
