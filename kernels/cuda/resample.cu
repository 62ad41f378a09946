/* kernels/cuda/resample.cu - weighted sums along an axis: interpolation, adaptive pooling, their gradients

   One thread per element, in the order of its taps. In the adjoint, the taps of an element lie between the
   first and the last one that use it, which were found by one thread each. */
#include "common.cuh"

/* Whether tap i is valid, and uses an element below n. */
static __device__ __forceinline__ bool flk_tap(const flk_resampling &s, int64_t i, int64_t n) {
    return s.at[i] >= 0 && s.at[i] < n && (!s.inside || s.inside[i]);
}

__global__ void flk_taps_kernel(flk_resampling s) {
    const int64_t o = flk_thread();
    int64_t first = s.taps, last = 0;
    if (o >= s.size) return;
    for (int64_t i = 0; i < s.taps; i++)
        if (s.at[i] == o && flk_tap(s, i, s.size)) first = i < first ? i : first, last = i + 1;
    s.work[2 * o] = first;
    s.work[2 * o + 1] = last;
}

/* y, x: a pass over y, in which the axis has size 1. */
template <class T> __global__ void flk_resample_kernel(flk_resampling s) {
    int64_t line = flk_thread(), at[2];
    if (line >= s.lines.pass.n * s.size) return;
    const int64_t o = flk_divide(&line, s.lines.pass.n);
    flk_place<2>(s.lines.pass, line, at);
    const T *x = (const T *)s.lines.pass.t[1].p + at[1], *w = (const T *)s.weight;
    const int64_t step = s.lines.step[1], first = s.adjoint ? s.work[2 * o] : o * s.k,
                  last = s.adjoint ? s.work[2 * o + 1] : (o + 1) * s.k;
    T sum = 0;
    for (int64_t i = first; i < last; i++) {
        if (s.adjoint && s.at[i] == o && flk_tap(s, i, s.size)) sum += w[i] * x[i / s.k * step];
        if (!s.adjoint && flk_tap(s, i, s.n)) sum += w[i] * x[s.at[i] * step];
    }
    ((T *)s.lines.pass.t[0].p)[at[0] + o * s.lines.step[0]] = sum;
}

const char *flk_resample(const flk_resampling *s, int dtype) {
    const char *why = s->adjoint ? FLK_LAUNCH(flk_taps_kernel, flk_blocks(s->size), FLK_BLOCK, *s) : NULL;
    return why ? why : FLK_BY_FLOAT(flk_resample_kernel, dtype, flk_blocks(s->lines.pass.n * s->size), *s);
}
/* MIT licence: see LICENSE. */
