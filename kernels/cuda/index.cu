/* kernels/cuda/index.cu - ops along one axis: scan, gather, scatter, sort; and nonzero

   In scans and scatters one thread processes each line in order: no two threads write the same element, so
   sums need no atomics, and if an index repeats, the last write wins. Sums at indices that all lines share
   are taken in segments of fixed size. */
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

/* y, index, x: lines of y and index; one thread per element. Neighbouring threads take one line, or, if rows,
   neighbouring lines. */
template <class T> __global__ void flk_gather_kernel(flk_lines l, bool rows, flk_fault *fault) {
    int64_t i = flk_thread(), at[3];
    if (i >= l.pass.n * l.length) return;
    const int64_t outer = flk_divide(&i, rows ? l.pass.n : l.length), k = rows ? outer : i;
    flk_place<3>(l.pass, rows ? i : outer, at);
    const int64_t from = flk_index_at(l, at[1] + k * l.step[1], fault);
    if (from >= 0)
        ((T *)l.pass.t[0].p)[at[0] + k * l.step[0]] = ((const T *)l.pass.t[2].p)[at[2] + from * l.step[2]];
}

/* Makes 16 bytes one element where neighbouring lines, contiguous in y and x, share their indices. Returns
   the bytes of an element. */
static int flk_gather_bytes(flk_lines *l, int size) {
    flk_pass &p = l->pass;
    const int last = p.ndim - 1, each = 16 / size;
    bool fits = last >= 0 && p.t[1].stride[last] == 0 && p.shape[last] % each == 0;
    for (int k = 0; fits && k < 3; k += 2) {
        uint64_t places = (uint64_t)(uintptr_t)p.t[k].p | (uint64_t)(l->step[k] * size);
        for (int d = 0; d < last; d++) places |= (uint64_t)(p.t[k].stride[d] * size);
        fits = p.t[k].stride[last] == 1 && places % 16 == 0;
    }
    if (!fits) return size;
    p.n /= each;
    p.shape[last] /= each;
    for (int k = 0; k < 3; k += 2) {
        l->step[k] /= each;
        for (int d = 0; d < last; d++) p.t[k].stride[d] /= each;
    }
    return 16;
}

static const char *flk_gather(flk_lines l, int dtype) {
    const int last = l.pass.ndim - 1, bytes = flk_gather_bytes(&l, flk_size(dtype));
    const bool rows = last >= 0 && llabs(l.pass.t[0].stride[last]) < llabs(l.step[0]);
    const unsigned blocks = flk_blocks(l.pass.n * l.length);
    switch (bytes) {
    case 1: return FLK_LAUNCH(flk_gather_kernel<uint8_t>, blocks, FLK_BLOCK, l, rows, flk_faults());
    case 2: return FLK_LAUNCH(flk_gather_kernel<uint16_t>, blocks, FLK_BLOCK, l, rows, flk_faults());
    case 4: return FLK_LAUNCH(flk_gather_kernel<uint32_t>, blocks, FLK_BLOCK, l, rows, flk_faults());
    case 8: return FLK_LAUNCH(flk_gather_kernel<uint64_t>, blocks, FLK_BLOCK, l, rows, flk_faults());
    default: return FLK_LAUNCH(flk_gather_kernel<flk_16>, blocks, FLK_BLOCK, l, rows, flk_faults());
    }
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
    const unsigned lines = flk_blocks(l->pass.n);
    const bool add = kind == FLK_SCATTER_ADD;
    if (!l->pass.n || !l->length) return NULL;
    if (kind == FLK_GATHER) return flk_gather(*l, dtype);
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

/* ---- scatter_add with indices shared by all lines, such as rows of an embedding: the indices are sorted.
   One thread adds a segment of the sources of a line in order. Sums that go on in the next segment are parts,
   at [2 segment + 1], those from the previous one at [2 segment]; a second kernel adds them in order ---- */

enum { FLK_SEGMENT = 32, FLK_SEGMENT_LOADS = 8 };

template <class T>
__global__ void flk_scatter_segments_kernel(flk_lines l, const int64_t *place, const int64_t *order, T *part,
                                            flk_fault *fault) {
    int64_t line = flk_thread(), at[3];
    const int64_t segment = flk_divide(&line, l.pass.n), begin = segment * FLK_SEGMENT;
    const int64_t end = begin + FLK_SEGMENT < l.length ? begin + FLK_SEGMENT : l.length;
    if (begin >= end) return;
    flk_place<3>(l.pass, line, at);
    T sum = 0;
    bool begins = !begin || place[begin - 1] != place[begin], whole = begins;
    for (int64_t i = begin; i < end; i += FLK_SEGMENT_LOADS) {
        T v[FLK_SEGMENT_LOADS];
#pragma unroll
        for (int j = 0; j < FLK_SEGMENT_LOADS; j++)
            if (i + j < end) v[j] = flk_load<T>(l.pass.t[2], at[2] + order[i + j] * l.step[2]);
#pragma unroll
        for (int j = 0; j < FLK_SEGMENT_LOADS; j++) {
            const int64_t k = i + j, to = k < end ? place[k] : 0, y = at[0] + to * l.step[0];
            if (k >= end) break;
            const bool valid = to >= 0 && to < l.size;
            if (begins && valid) sum = flk_load<T>(l.pass.t[0], y);
            if (begins && !valid) flk_note(fault, l.pass.op, 0, to, l.size, l.axis);
            sum = flk_plus(sum, v[j]);
            begins = k + 1 < l.length && place[k + 1] != to;
            const bool ends = begins || k + 1 == l.length;
            if (valid && ends && whole) flk_store(l.pass.t[0], y, sum);
            else if (ends || k + 1 == end) part[(2 * segment + whole) * l.pass.n + line] = sum;
            whole |= ends;
        }
    }
}

/* The sums that begin in one segment and end in another. */
template <class T>
__global__ void flk_scatter_parts_kernel(flk_lines l, const int64_t *place, const T *part) {
    int64_t line = flk_thread(), at[1];
    const int64_t segment = flk_divide(&line, l.pass.n), begin = segment * FLK_SEGMENT;
    int64_t low = begin + FLK_SEGMENT, high = l.length;
    if (low >= high) return;
    const int64_t to = place[low - 1];
    if (place[low] != to || (begin && place[begin - 1] == to) || to < 0 || to >= l.size) return;
    while (low < high) { /* search their end */
        const int64_t half = low + (high - low) / 2;
        if (place[half] == to) low = half + 1;
        else high = half;
    }
    const int64_t last = (low - 1) / FLK_SEGMENT;
    T sum = part[(2 * segment + 1) * l.pass.n + line];
#pragma unroll 8
    for (int64_t k = segment + 1; k <= last; k++) sum = flk_plus(sum, part[2 * k * l.pass.n + line]);
    flk_place<1>(l.pass, line, at);
    flk_store(l.pass.t[0], at[0] + to * l.step[0], sum);
}

static int64_t flk_segments(const flk_lines *l) {
    return (l->length + FLK_SEGMENT - 1) / FLK_SEGMENT;
}

size_t flk_scatter_rows_work(const flk_lines *l) {
    return (size_t)(4 * l->length + 2 * flk_segments(l) * l->pass.n) * sizeof(int64_t);
}

template <class T>
static const char *flk_scatter_rows_of(const flk_lines *l, const int64_t *place, const int64_t *order,
                                       T *part) {
    const unsigned blocks = flk_blocks(l->pass.n * flk_segments(l));
    const char *why = FLK_LAUNCH(flk_scatter_segments_kernel<T>, blocks, FLK_BLOCK, *l, place, order, part,
                                 flk_faults());
    if (why || flk_segments(l) == 1) return why;
    return FLK_LAUNCH(flk_scatter_parts_kernel<T>, blocks, FLK_BLOCK, *l, place, (const T *)part);
}

const char *flk_scatter_rows(const flk_lines *l, int dtype, int64_t *work) {
    const int64_t n = l->length;
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
    if (dtype == FLK_F32) return flk_scatter_rows_of(l, place, order, (float *)(work + 4 * n));
    if (dtype == FLK_F64) return flk_scatter_rows_of(l, place, order, (double *)(work + 4 * n));
    return flk_scatter_rows_of(l, place, order, work + 4 * n);
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
