/* kernels/cuda/softmax.cu - softmax, its logarithm, and their gradients along one axis of any strides

   A team of threads has a line, and keeps the sums; the line itself is read again, from a cache. */
#include "common.cuh"

/* y, x */
template <class T, int TEAM> __global__ void flk_softmax_kernel(flk_lines l, bool log) {
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    int64_t at[2];
    if (row >= l.pass.n) return;
    flk_place<2>(l.pass, row, at);
    const flk_operand &x = l.pass.t[1];
    T m = -(T)INFINITY, sum = 0;
    for (int64_t k = lane; k < l.length; k += TEAM)
        m = flk_max_of()(m, flk_load_at<T>(x.p, x.dtype, at[1] + k * l.step[1]));
    m = flk_team<TEAM>(m, flk_max_of());
    if (m == (T)INFINITY || m == -(T)INFINITY) m = 0;
    for (int64_t k = lane; k < l.length; k += TEAM)
        sum += flk_exp(flk_load_at<T>(x.p, x.dtype, at[1] + k * l.step[1]) - m);
    sum = flk_team<TEAM>(sum, flk_sum_of());
    if (log) sum = flk_log(sum);
    for (int64_t k = lane; k < l.length; k += TEAM) {
        const T d = flk_load_at<T>(x.p, x.dtype, at[1] + k * l.step[1]) - m;
        flk_store(l.pass.t[0], at[0] + k * l.step[0], log ? d - sum : flk_exp(d) / sum);
    }
}

/* dx, y, dy: y (dy - sum y dy);  dy - exp(y) sum dy */
template <class T, int TEAM> __global__ void flk_softmax_grad_kernel(flk_lines l, bool log) {
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    int64_t at[3];
    if (row >= l.pass.n) return;
    flk_place<3>(l.pass, row, at);
    const flk_operand &y = l.pass.t[1], &dy = l.pass.t[2];
    T sum = 0;
    for (int64_t k = lane; k < l.length; k += TEAM) {
        const T d = flk_load_at<T>(dy.p, dy.dtype, at[2] + k * l.step[2]);
        sum += log ? d : d * flk_load_at<T>(y.p, y.dtype, at[1] + k * l.step[1]);
    }
    sum = flk_team<TEAM>(sum, flk_sum_of());
    for (int64_t k = lane; k < l.length; k += TEAM) {
        const T d = flk_load_at<T>(dy.p, dy.dtype, at[2] + k * l.step[2]);
        const T v = flk_load_at<T>(y.p, y.dtype, at[1] + k * l.step[1]);
        flk_store(l.pass.t[0], at[0] + k * l.step[0], log ? d - flk_exp(v) * sum : v * (d - sum));
    }
}

const char *flk_softmax(const flk_lines *l, int log, int dtype) {
    if (!l->pass.n || !l->length) return NULL;
    return dtype == FLK_F64
               ? FLK_BY_ROW(flk_softmax_kernel, double, l->pass.n, l->length, *l, log != 0)
               : FLK_BY_ROW(flk_softmax_kernel, float, l->pass.n, l->length, *l, log != 0);
}

const char *flk_softmax_grad(const flk_lines *l, int log, int dtype) {
    if (!l->pass.n || !l->length) return NULL;
    return dtype == FLK_F64
               ? FLK_BY_ROW(flk_softmax_grad_kernel, double, l->pass.n, l->length, *l, log != 0)
               : FLK_BY_ROW(flk_softmax_grad_kernel, float, l->pass.n, l->length, *l, log != 0);
}
/* MIT licence: see LICENSE. */
