/* kernels/cuda/lattice.cu - ASG and transducer losses and their gradients, in f64

   The formulas are those of kernels/speech/asg.h and transducer.h. A block has a sequence. Its threads have
   the cells of a diagonal (transducer), or the tokens or target positions (ASG). The gradient distributes to
   each transition its share of its sum, and each number is summed by one thread. */
#include "common.cuh"

template <class T> static __device__ __forceinline__ double flk_score(const void *p, int64_t at) {
    const double v = (double)((const T *)p)[at];
    return v < FLK_NEVER ? FLK_NEVER : v;
}

static __device__ __forceinline__ void flk_note_count(const flk_lattice &x, flk_fault *fault, int64_t count,
                                                      int64_t size, int axis) {
    if (fault && !threadIdx.x) flk_note(fault, x.fault_op, 0, count, size, axis);
}

/* ---- transducers ---- */

/* Steps of sequence n, 0 if its counts are out of range; *last: the number of labels. */
static __device__ __forceinline__ int64_t flk_transducer_steps(const flk_lattice &x, int64_t n, int64_t *last,
                                                               flk_fault *fault) {
    const int64_t steps = x.steps[n];
    *last = x.lengths[n];
    if (*last < 0 || *last > x.l) flk_note_count(x, fault, *last, x.l + 1, 2);
    if (steps < 1) flk_note_count(x, fault, steps, x.t + 1, 1);
    if (*last < 0 || *last > x.l || steps < 1) return 0;
    return steps < x.t ? steps : x.t;
}

/* The scores of both transitions into a cell, by a blank and by a label. */
template <class T>
static __device__ __forceinline__ void flk_ways(const flk_lattice &x, int64_t n, const double *a, int64_t t,
                                                int64_t u, double way[2]) {
    const int64_t s = x.l + 1;
    way[0] = way[1] = -4e30;
    if (t) way[0] = a[(t - 1) * s + u] + flk_score<T>(x.first, (n * x.t + t - 1) * s + u);
    if (u) way[1] = a[t * s + u - 1] + flk_score<T>(x.second, (n * x.t + t) * x.l + u - 1);
}

template <class T>
static __device__ void flk_transducer_fill(const flk_lattice &x, int64_t n, double *a, int64_t steps,
                                           int64_t last) {
    for (int64_t d = 0; d < steps + last; d++) {
        for (int64_t u = threadIdx.x; u <= last; u += FLK_BLOCK) {
            const int64_t t = d - u;
            double way[2];
            if (t < 0 || t >= steps) continue;
            flk_ways<T>(x, n, a, t, u, way);
            const double top = way[0] > way[1] ? way[0] : way[1];
            a[t * (x.l + 1) + u] = d ? top + log1p(exp(-fabs(way[0] - way[1]))) : 0;
        }
        __syncthreads();
    }
}

template <class T> __global__ void flk_transducer_kernel(flk_lattice x, flk_fault *fault) {
    const int64_t n = blockIdx.x, s = x.l + 1;
    int64_t last;
    const int64_t steps = flk_transducer_steps(x, n, &last, fault);
    double *a = x.work + n * x.t * s, total = FLK_NEVER;
    flk_transducer_fill<T>(x, n, a, steps, steps ? last : 0);
    if (threadIdx.x) return;
    if (steps) total = a[(steps - 1) * s + last] + flk_score<T>(x.first, (n * x.t + steps - 1) * s + last);
    ((T *)x.total)[n] = (T)(total < FLK_NEVER ? FLK_NEVER : total);
}

/* The gradient of a cell is the sum of what its blank and its label get from the cells they lead to. */
template <class T> __global__ void flk_transducer_grad_kernel(flk_lattice x) {
    const int64_t n = blockIdx.x, s = x.l + 1;
    int64_t last;
    const int64_t steps = flk_transducer_steps(x, n, &last, NULL);
    double *a = x.work + 2 * n * x.t * s, *g = a + x.t * s, way[2];
    T *d_first = (T *)x.d_first + n * x.t * s, *d_second = (T *)x.d_second + n * x.t * x.l;
    for (int64_t i = threadIdx.x; i < x.t * s; i += FLK_BLOCK) d_first[i] = 0;
    for (int64_t i = threadIdx.x; i < x.t * x.l; i += FLK_BLOCK) d_second[i] = 0;
    __syncthreads();
    if (!steps || flk_score<T>(x.total, n) <= FLK_NEVER / 2) return;
    flk_transducer_fill<T>(x, n, a, steps, last);
    for (int64_t d = steps + last - 1; d >= 0; d--) {
        for (int64_t u = threadIdx.x; u <= last; u += FLK_BLOCK) {
            const int64_t t = d - u;
            if (t < 0 || t >= steps) continue;
            double blank = t == steps - 1 && u == last ? flk_score<T>(x.dy, n) : 0, label = 0;
            if (t + 1 < steps) {
                flk_ways<T>(x, n, a, t + 1, u, way);
                blank = g[(t + 1) * s + u] / (1 + exp(way[1] - way[0]));
            }
            if (u < last) {
                flk_ways<T>(x, n, a, t, u + 1, way);
                label = g[t * s + u + 1] - g[t * s + u + 1] / (1 + exp(way[1] - way[0]));
            }
            g[t * s + u] = blank + label;
            d_first[t * s + u] = (T)blank;
            if (u < last) d_second[t * x.l + u] = (T)label;
        }
        __syncthreads();
    }
}

/* ---- ASG ---- */

/* A sequence: tokens, or positions of its target (label not NULL). */
struct flk_asg {
    int64_t n, steps, places;
    const int64_t *label;
    double *row; /* log-sums of all frames, or two alternating rows, before e is added */
    double *g, *to, *stayed, *moved;
};

static __device__ __forceinline__ flk_asg flk_asg_of(const flk_lattice &x, int64_t n, bool keep,
                                                     flk_fault *fault) {
    const int64_t width = x.full ? x.c : x.l, rows = (keep ? x.t : 2) + 4;
    flk_asg a;
    a.n = n;
    a.steps = x.steps[n] < x.t ? x.steps[n] : x.t;
    a.places = x.full ? x.c : x.lengths[n];
    a.label = x.full ? NULL : x.target + n * x.l;
    a.row = x.work + n * rows * width;
    a.g = a.row + (rows - 4) * width;
    a.to = a.g + width;
    a.stayed = a.to + width;
    a.moved = a.stayed + width;
    bool fits = a.steps >= 1 && a.places >= 0 && a.places <= width;
    if (a.steps < 1) flk_note_count(x, fault, a.steps, x.t + 1, 0);
    else if (!fits) flk_note_count(x, fault, a.places, x.l + 1, 1);
    for (int64_t s = 0; fits && a.label && s < a.places; s++) {
        const bool known = a.label[s] >= 0 && a.label[s] < x.c;
        if (!known) flk_note_count(x, fault, a.label[s], x.c, 2);
        fits = known;
    }
    if (!fits) a.places = 0;
    return a;
}

/* The score of a position at frame t. */
template <class T>
static __device__ __forceinline__ double flk_emission(const flk_lattice &x, const flk_asg &a, int64_t t,
                                                      int64_t s) {
    return flk_score<T>(x.first, (t * x.n + a.n) * x.c + (a.label ? a.label[s] : s));
}

/* The transition to position i from position j: any (full), or i and i - 1 only. */
template <class T>
static __device__ __forceinline__ double flk_way(const flk_lattice &x, const flk_asg &a, const double *before,
                                                 int64_t t, int64_t i, int64_t j) {
    if (a.label && j < 0) return -4e30;
    const int64_t to = a.label ? a.label[i] : i, from = a.label ? a.label[j] : j;
    return before[j] + flk_emission<T>(x, a, t - 1, j) + flk_score<T>(x.second, to * x.c + from);
}

template <class T>
static __device__ const double *flk_asg_rows(const flk_lattice &x, const flk_asg &a, bool keep) {
    const int64_t width = x.full ? x.c : x.l;
    const double *before = a.row;
    for (int64_t t = 0; t < a.steps; t++) {
        double *now = a.row + (keep ? t : t % 2) * width;
        for (int64_t i = threadIdx.x; i < a.places; i += FLK_BLOCK) {
            const int64_t j0 = a.label ? i - 1 : 0, j1 = a.label ? i + 1 : a.places;
            double top = -4e30, sum = 0;
            for (int64_t j = j0; t && j < j1; j++) top = fmax(top, flk_way<T>(x, a, before, t, i, j));
            for (int64_t j = j0; t && j < j1; j++) sum += exp(flk_way<T>(x, a, before, t, i, j) - top);
            now[i] = t ? top + log(sum) : a.label && i ? FLK_NEVER : 0;
        }
        __syncthreads();
        before = now;
    }
    return before;
}

/* log P, computed by each calling thread. */
template <class T>
static __device__ double flk_asg_total(const flk_lattice &x, const flk_asg &a, const double *row) {
    if (!a.places) return FLK_NEVER;
    if (a.label) return row[a.places - 1] + flk_emission<T>(x, a, a.steps - 1, a.places - 1);
    double top = -4e30, sum = 0;
    for (int64_t i = 0; i < a.places; i++) top = fmax(top, row[i] + flk_emission<T>(x, a, a.steps - 1, i));
    for (int64_t i = 0; i < a.places; i++) sum += exp(row[i] + flk_emission<T>(x, a, a.steps - 1, i) - top);
    return top + log(sum);
}

template <class T> __global__ void flk_asg_kernel(flk_lattice x, flk_fault *fault) {
    const flk_asg a = flk_asg_of(x, blockIdx.x, false, fault);
    const double *row = flk_asg_rows<T>(x, a, false);
    if (threadIdx.x) return;
    const double total = flk_asg_total<T>(x, a, row);
    ((T *)x.total)[a.n] = (T)(total < FLK_NEVER ? FLK_NEVER : total);
}

/* de of frame t: the positions of a token are summed by the thread of the first one. */
template <class T> static __device__ void flk_asg_emit(const flk_lattice &x, const flk_asg &a, int64_t t) {
    T *de = (T *)x.d_first + (t * x.n + a.n) * x.c;
    for (int64_t s = threadIdx.x; s < a.places; s += FLK_BLOCK) {
        bool first = true;
        for (int64_t i = 0; a.label && i < s && first; i++) first = a.label[i] != a.label[s];
        if (!first) continue;
        double sum = 0;
        for (int64_t i = s; i < (a.label ? a.places : s + 1); i++)
            if (!a.label || a.label[i] == a.label[s]) sum += a.g[i];
        de[a.label ? a.label[s] : s] = (T)sum;
    }
}

template <class T> __global__ void flk_asg_grad_kernel(flk_lattice x) {
    const flk_asg a = flk_asg_of(x, blockIdx.x, true, NULL);
    const int64_t width = x.full ? x.c : x.l, pairs = x.c * x.c;
    double *dw = x.work + x.n * (x.t + 4) * width + a.n * pairs;
    for (int64_t i = threadIdx.x; i < pairs; i += FLK_BLOCK) dw[i] = 0;
    for (int64_t i = threadIdx.x; i < x.t * x.c; i += FLK_BLOCK)
        ((T *)x.d_first)[(i / x.c * x.n + a.n) * x.c + i % x.c] = 0;
    __syncthreads();
    if (!a.places || flk_score<T>(x.total, a.n) <= FLK_NEVER / 2) return;
    const double *end = flk_asg_rows<T>(x, a, true), dy = flk_score<T>(x.dy, a.n);
    const double total = flk_asg_total<T>(x, a, end);
    for (int64_t s = threadIdx.x; s < a.places; s += FLK_BLOCK) {
        a.g[s] = a.label ? (s == a.places - 1 ? dy : 0)
                         : dy * exp(end[s] + flk_emission<T>(x, a, a.steps - 1, s) - total);
        a.stayed[s] = a.moved[s] = 0;
    }
    __syncthreads();
    for (int64_t t = a.steps - 1; t >= 0; t--) {
        const double *now = a.row + t * width, *before = now - width;
        flk_asg_emit<T>(x, a, t);
        if (!t) break;
        /* the gradient that position j gets from those it leads to */
        for (int64_t j = threadIdx.x; j < a.places; j += FLK_BLOCK) {
            const int64_t i0 = a.label ? j : 0, i1 = !a.label || j + 2 > a.places ? a.places : j + 2;
            double sum = 0;
            for (int64_t i = i0; i < i1; i++) {
                const double share =
                    a.g[i] == 0 ? 0 : a.g[i] * exp(flk_way<T>(x, a, before, t, i, j) - now[i]);
                sum += share;
                if (!a.label) dw[i * x.c + j] += share;
                else if (i == j) a.stayed[j] += share;
                else a.moved[i] += share;
            }
            a.to[j] = sum;
        }
        __syncthreads();
        for (int64_t j = threadIdx.x; j < a.places; j += FLK_BLOCK) a.g[j] = a.to[j];
        __syncthreads();
    }
    if (!a.label) return;
    for (int64_t i = threadIdx.x; i < pairs; i += FLK_BLOCK)
        for (int64_t s = 0; s < a.places; s++) {
            if (a.label[s] != i / x.c) continue;
            if (a.label[s] == i % x.c) dw[i] += a.stayed[s];
            if (s && a.label[s - 1] == i % x.c) dw[i] += a.moved[s];
        }
}

template <class T> __global__ void flk_asg_sums_kernel(flk_lattice x) {
    const int64_t i = flk_thread(), pairs = x.c * x.c;
    const double *dw = x.work + x.n * (x.t + 4) * (x.full ? x.c : x.l);
    double sum = 0;
    if (i >= pairs) return;
    for (int64_t n = 0; n < x.n; n++) sum += dw[n * pairs + i];
    ((T *)x.d_second)[i] = (T)sum;
}

/* ---- launches ---- */

int64_t flk_lattice_work(const flk_lattice *x) {
    const bool grad = x->d_first != NULL;
    if (!x->asg) return (1 + grad) * x->n * x->t * (x->l + 1);
    return x->n * ((grad ? x->t : 2) + 4) * (x->full ? x->c : x->l) + (grad ? x->n * x->c * x->c : 0);
}

const char *flk_lattice_run(const flk_lattice *x, int dtype) {
    const bool grad = x->d_first != NULL;
    if (!x->asg && !grad) return FLK_BY_FLOAT(flk_transducer_kernel, dtype, x->n, *x, flk_faults());
    if (!x->asg) return FLK_BY_FLOAT(flk_transducer_grad_kernel, dtype, x->n, *x);
    if (!grad) return FLK_BY_FLOAT(flk_asg_kernel, dtype, x->n, *x, flk_faults());
    const char *why = FLK_BY_FLOAT(flk_asg_grad_kernel, dtype, x->n, *x);
    return why ? why : FLK_BY_FLOAT(flk_asg_sums_kernel, dtype, flk_blocks(x->c * x->c), *x);
}
/* MIT licence: see LICENSE. */
