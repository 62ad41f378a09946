/* kernels/cuda/ctc.cu - CTC loss and its gradient: alpha and beta in log space

   The formulas are those of kernels/cpu/ctc.h. A block has a sequence, its threads the lattice states, step
   after step. The gradient first computes alpha + beta of all steps and states; then a block per step of a
   sequence sums them by class: each class by one thread, blanks by the block in a fixed order, so the result
   is deterministic. */
#include "common.cuh"

struct flk_ctc_line {
    int64_t n, steps, places; /* places 0: the target's length is out of range */
};

/* Describes a sequence; thread 0 reports an invalid length (fault NULL: already reported). */
static __device__ __forceinline__ flk_ctc_line flk_ctc_line_of(const flk_ctc &c, int64_t n,
                                                               flk_fault *fault) {
    const int64_t length = ((const int64_t *)c.lengths.p)[n * c.lengths.stride[0]];
    const int64_t steps = ((const int64_t *)c.steps.p)[n * c.steps.stride[0]];
    const bool fits = length >= 0 && length <= c.longest;
    if (!fits && fault && !threadIdx.x) flk_note(fault, c.fault_op, 0, length, c.longest + 1, 1);
    return {n, steps < c.t ? steps : c.t, fits ? 2 * length + 1 : 0};
}

static __device__ __forceinline__ int64_t flk_ctc_label(const flk_ctc &c, int64_t n, int64_t s) {
    if (s % 2 == 0) return c.blank;
    return ((const int64_t *)c.target.p)[n * c.target.stride[0] + s / 2 * c.target.stride[1]];
}

/* log p of a state's class; for an invalid class log 0, after reporting it. */
template <class T>
static __device__ __forceinline__ T flk_ctc_emitted(const flk_ctc &c, int64_t n, int64_t t, int64_t s,
                                                    flk_fault *fault) {
    const int64_t label = flk_ctc_label(c, n, s);
    if (label < 0 || label >= c.classes) {
        if (fault) flk_note(fault, c.fault_op, 0, label, c.classes, 2);
        return (T)FLK_NEVER;
    }
    const T v = flk_load<T>(c.x, t * c.x.stride[0] + n * c.x.stride[1] + label * c.x.stride[2]);
    return v < (T)FLK_NEVER ? (T)FLK_NEVER : v;
}

/* Log-sum over a state's neighbours in a row: itself, the one at distance by (-1 or 1), and the one at 2 by,
   if a blank lies between two different labels. */
template <class T, class F>
static __device__ __forceinline__ T flk_ctc_step(const flk_ctc &c, const flk_ctc_line &l, int64_t s, int by,
                                                 F row) {
    const int64_t next = s + by, over = next + by;
    const bool skips =
        over >= 0 && over < l.places && flk_ctc_label(c, l.n, s) != flk_ctc_label(c, l.n, over);
    const T a = row(s), b = next >= 0 && next < l.places ? row(next) : (T)FLK_NEVER;
    const T d = skips ? row(over) : (T)FLK_NEVER, ab = a > b ? a : b, top = ab > d ? ab : d;
    return top + flk_log(flk_exp(a - top) + flk_exp(b - top) + flk_exp(d - top));
}

/* alpha after all steps, with two alternating rows, or (keep) one row per step. */
template <class T>
static __device__ __forceinline__ const T *flk_ctc_alpha(const flk_ctc &c, const flk_ctc_line &l, T *rows,
                                                         bool keep, flk_fault *fault) {
    const T *from = rows;
    for (int64_t s = threadIdx.x; s < l.places; s += FLK_BLOCK) rows[s] = s ? (T)FLK_NEVER : (T)0;
    __syncthreads();
    for (int64_t t = 0; t < l.steps; t++) {
        T *to = rows + (keep ? t + 1 : (t + 1) % 2) * c.places;
        for (int64_t s = threadIdx.x; s < l.places; s += FLK_BLOCK)
            to[s] = flk_ctc_step<T>(c, l, s, -1, [=](int64_t i) { return from[i]; }) +
                    flk_ctc_emitted<T>(c, l.n, t, s, fault);
        __syncthreads();
        from = to;
    }
    return from;
}

template <class T> __global__ void flk_ctc_kernel(flk_ctc c, flk_fault *fault) {
    const flk_ctc_line l = flk_ctc_line_of(c, blockIdx.x, fault);
    const T *alpha = flk_ctc_alpha<T>(c, l, (T *)c.work + l.n * 2 * c.places, false, fault);
    if (threadIdx.x) return;
    const T a = l.places ? alpha[l.places - 1] : (T)FLK_NEVER,
            b = l.places > 1 ? alpha[l.places - 2] : (T)FLK_NEVER;
    const T top = a > b ? a : b;
    ((T *)c.total.p)[l.n * c.total.stride[0]] = top + flk_log(flk_exp(a - top) + flk_exp(b - top));
}

/* Rows of a sequence: alpha at the start and after each step, plus beta; then two rows for beta. */
template <class T> __global__ void flk_ctc_both_kernel(flk_ctc c) {
    const flk_ctc_line l = flk_ctc_line_of(c, blockIdx.x, NULL);
    T *rows = (T *)c.work + l.n * (c.t + 3) * c.places, *beta = rows + (c.t + 1) * c.places;
    flk_ctc_alpha<T>(c, l, rows, true, NULL);
    for (int64_t s = threadIdx.x; s < l.places; s += FLK_BLOCK)
        beta[l.steps % 2 * c.places + s] = s < l.places - 2 ? (T)FLK_NEVER : (T)0;
    __syncthreads();
    for (int64_t t = l.steps - 1; t >= 0; t--) {
        const T *from = beta + (t + 1) % 2 * c.places;
        T *to = beta + t % 2 * c.places;
        for (int64_t s = threadIdx.x; s < l.places; s += FLK_BLOCK) {
            rows[(t + 1) * c.places + s] += from[s];
            to[s] = flk_ctc_step<T>(
                c, l, s, 1, [&](int64_t i) { return from[i] + flk_ctc_emitted<T>(c, l.n, t, i, NULL); });
        }
        __syncthreads();
    }
}

/* Step t of sequence n of dlogp: dy sum exp(alpha + beta - total) over the states of each class. */
template <class T> __global__ void flk_ctc_grad_kernel(flk_ctc c) {
    int64_t n = blockIdx.x;
    const int64_t t = flk_divide(&n, c.n), to = t * c.dx.stride[0] + n * c.dx.stride[1];
    const flk_ctc_line l = flk_ctc_line_of(c, n, NULL);
    const T total = ((const T *)c.total.p)[n * c.total.stride[0]],
            dy = ((const T *)c.dy.p)[n * c.dy.stride[0]];
    const T *both = (const T *)c.work + (n * (c.t + 3) + t + 1) * c.places;
    for (int64_t k = threadIdx.x; k < c.classes; k += FLK_BLOCK)
        flk_store(c.dx, to + k * c.dx.stride[2], (T)0);
    if (t >= l.steps || total < (T)FLK_NEVER / 2) return;
    T sum = 0;
    for (int64_t s = threadIdx.x; s < l.places; s += FLK_BLOCK)
        if (flk_ctc_label(c, n, s) == c.blank) sum += flk_exp(both[s] - total);
    sum = flk_team<FLK_BLOCK>(sum, flk_sum_of()); /* also a barrier after the zeros */
    if (!threadIdx.x) flk_store(c.dx, to + c.blank * c.dx.stride[2], dy * sum);
    for (int64_t s = 2 * threadIdx.x + 1; s < l.places; s += 2 * FLK_BLOCK) {
        const int64_t label = flk_ctc_label(c, n, s);
        bool first = label != c.blank && label >= 0 && label < c.classes;
        for (int64_t i = 1; i < s && first; i += 2) first = flk_ctc_label(c, n, i) != label;
        if (!first) continue;
        T all = 0;
        for (int64_t i = s; i < l.places; i += 2)
            if (flk_ctc_label(c, n, i) == label) all += flk_exp(both[i] - total);
        flk_store(c.dx, to + label * c.dx.stride[2], dy * all);
    }
}

int64_t flk_ctc_work(const flk_ctc *c) { return c->n * c->places * (c->dx.p ? c->t + 3 : 2); }

const char *flk_ctc_run(const flk_ctc *c, int dtype) {
    if (!c->dx.p) return FLK_BY_FLOAT(flk_ctc_kernel, dtype, c->n, *c, flk_faults());
    const char *why = FLK_BY_FLOAT(flk_ctc_both_kernel, dtype, c->n, *c);
    return why ? why : FLK_BY_FLOAT(flk_ctc_grad_kernel, dtype, c->t * c->n, *c);
}
/* MIT licence: see LICENSE. */
