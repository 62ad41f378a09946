/* kernels/cuda/index.cu - ops along one axis: scan, gather, scatter, sort; and nonzero

   In scans and scatters one thread processes each line in order: no two threads write the same element, so
   sums need no atomics, and if an index repeats, the last write wins. Sums at indices that all lines share
   are taken in segments of fixed size. */
#include "common.cuh"

template <class T> __global__ void flk_scan_kernel(flk_lines l, bool product) {
    const int64_t i = flk_thread();
    int64_t at[2];
    if (i >= l.pass.n) return;
    flk_place<2>(l.pass, i, at);
    T sum = (T)product;
    for (int64_t k = 0; k < l.length; k++) {
        const T v = flk_load<T>(l.pass.t[1], at[1] + k * l.step[1]);
        sum = product ? flk_mul(sum, v) : flk_add(sum, v);
        flk_store(l.pass.t[0], at[0] + k * l.step[0], sum);
    }
}

const char *flk_scan(const flk_lines *l, int product, int dtype) {
    if (!l->length) return NULL;
    return FLK_BY_NUMBER(flk_scan_kernel, dtype, flk_blocks(l->pass.n), *l, product != 0);
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
    return FLK_LAUNCH_AS("flk_gather_kernel",
                         bytes == 1   ? flk_gather_kernel<uint8_t>
                         : bytes == 2 ? flk_gather_kernel<uint16_t>
                         : bytes == 4 ? flk_gather_kernel<uint32_t>
                         : bytes == 8 ? flk_gather_kernel<uint64_t>
                                      : flk_gather_kernel<flk_16>,
                         flk_blocks(l.pass.n * l.length), FLK_BLOCK, l, rows, flk_faults());
}

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
        flk_store(l.pass.t[0], y, add ? flk_add(flk_load<T>(l.pass.t[0], y), v) : v);
    }
}

const char *flk_index(const flk_lines *l, int kind, int dtype) {
    if (!l->length) return NULL;
    if (kind == FLK_GATHER) return flk_gather(*l, dtype);
    return FLK_BY_TYPE(flk_scatter_kernel, dtype, flk_blocks(l->pass.n), *l, kind == FLK_SCATTER_ADD,
                       flk_faults());
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

const char *flk_sort(const flk_lines *l, int descending, int dtype, int64_t *work) {
    const int64_t n = l->pass.n * l->length;
    const int64_t *order = work;
    int64_t *to = work + n;
    const char *why = NULL;
    if (!l->size) return NULL;
    for (int64_t run = 1; !why && run < l->length; run *= 2) {
        why = FLK_BY_TYPE(flk_merge_kernel, dtype, flk_blocks(n), *l, descending != 0, run, order, to);
        order = to;
        to = order == work ? work + n : work;
    }
    return why ? why : FLK_BY_TYPE(flk_sorted_kernel, dtype, flk_blocks(l->pass.n * l->size), *l, order);
}

/* ---- scatter_add with indices shared by all lines, such as rows of an embedding: the indices are sorted.
   One thread adds a segment of the sources of a line in order. Sums that go on in the next segment are parts,
   at [2 segment + 1], those from the previous one at [2 segment]; a second kernel adds them in order ---- */

enum { FLK_SEGMENT = 32, FLK_SEGMENT_LOADS = 8 };

template <class T>
__global__ void flk_scatter_segments_kernel(flk_lines l, const int64_t *place, const int64_t *order,
                                            void *parts, flk_fault *fault) {
    T *part = (T *)parts;
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
            sum = flk_add(sum, v[j]);
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
__global__ void flk_scatter_parts_kernel(flk_lines l, const int64_t *place, const void *parts) {
    const T *part = (const T *)parts;
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
    for (int64_t k = segment + 1; k <= last; k++) sum = flk_add(sum, part[2 * k * l.pass.n + line]);
    flk_place<1>(l.pass, line, at);
    flk_store(l.pass.t[0], at[0] + to * l.step[0], sum);
}

static int64_t flk_segments(const flk_lines *l) {
    return (l->length + FLK_SEGMENT - 1) / FLK_SEGMENT;
}

size_t flk_scatter_rows_work(const flk_lines *l) {
    return (size_t)(4 * l->length + 2 * flk_segments(l) * l->pass.n) * sizeof(int64_t);
}

const char *flk_scatter_rows(const flk_lines *l, int dtype, int64_t *work) {
    const int64_t n = l->length;
    const int64_t *place = work, *order = work + n;
    const unsigned blocks = flk_blocks(l->pass.n * flk_segments(l));
    void *part = work + 4 * n;
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
    if (!why)
        why = FLK_BY_NUMBER(flk_scatter_segments_kernel, dtype, blocks, *l, place, order, part, flk_faults());
    if (why || flk_segments(l) == 1) return why;
    return FLK_BY_NUMBER(flk_scatter_parts_kernel, dtype, blocks, *l, place, part);
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
