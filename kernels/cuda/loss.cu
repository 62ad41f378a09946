/* kernels/cuda/loss.cu - cross entropy of rows of logits, and its gradient: one pass over the logits each */
#include "common.cuh"

/* The class of row r; -1 if it is ignored. A class out of range is reported. */
static __device__ __forceinline__ int64_t flk_target(const flk_cross_entropy_rows &e, int64_t r,
                                                     flk_fault *fault) {
    const int64_t t = e.target[r];
    if (t == e.ignore) return -1;
    if (t >= 0 && t < e.classes) return t;
    flk_note(fault, e.fault_op, 0, t, e.classes, 1);
    return -1;
}

template <class T, int TEAM>
__global__ void flk_entropy_kernel(flk_cross_entropy_rows e, flk_fault *fault) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane);
    if (r >= e.rows) return;
    const T *x = (const T *)e.x + r * e.classes;
    T m = -(T)INFINITY, sum = 0, below = 0;
    for (int64_t k = lane; k < e.classes; k += TEAM) m = flk_max_of()(m, x[k]);
    m = flk_team<TEAM>(m, flk_max_of());
    for (int64_t k = lane; k < e.classes; k += TEAM) {
        sum += flk_exp(x[k] - m);
        below += x[k] - m;
    }
    sum = flk_team<TEAM>(sum, flk_sum_of());
    if (e.smoothing > 0) below = flk_team<TEAM>(below, flk_sum_of());
    if (lane) return;
    const int64_t target = flk_target(e, r, fault);
    const T log_sum = flk_log(sum), s = (T)e.smoothing;
    T loss = 0;
    if (target >= 0) loss = log_sum - (x[target] - m);
    if (target >= 0 && s > 0) loss = loss * (1 - s) + (log_sum - below / (T)e.classes) * s;
    ((T *)e.loss)[r] = loss;
    ((T *)e.largest)[r] = m;
    ((T *)e.sum)[r] = sum;
}

template <class T>
__global__ void flk_entropy_grad_kernel(flk_cross_entropy_rows e, flk_fault *fault) {
    int64_t k = flk_thread();
    if (k >= e.rows * e.classes) return;
    const int64_t i = k, r = flk_divide(&k, e.classes), target = flk_target(e, r, fault);
    const T p = flk_exp(((const T *)e.x)[i] - ((const T *)e.largest)[r]) / ((const T *)e.sum)[r];
    const T want = (k == target ? 1 - (T)e.smoothing : 0) + (T)(e.smoothing / (double)e.classes);
    ((T *)e.dx)[i] = target < 0 ? 0 : (p - want) * ((const T *)e.dy)[r];
}

const char *flk_cross_entropy(const flk_cross_entropy_rows *e, int dtype) {
    const int64_t n = e->rows * e->classes;
    if (!n) return NULL;
    if (e->dx && dtype == FLK_F64)
        return FLK_LAUNCH(flk_entropy_grad_kernel<double>, flk_blocks(n), FLK_BLOCK, *e,
                          flk_faults());
    if (e->dx)
        return FLK_LAUNCH(flk_entropy_grad_kernel<float>, flk_blocks(n), FLK_BLOCK, *e,
                          flk_faults());
    return dtype == FLK_F64
               ? FLK_BY_ROW(flk_entropy_kernel, double, e->rows, e->classes, *e, flk_faults())
               : FLK_BY_ROW(flk_entropy_kernel, float, e->rows, e->classes, *e, flk_faults());
}
/* MIT licence: see LICENSE. */
