/* kernels/cuda/softmax.cu - softmax, log softmax, and their gradients, along one axis of any strides

   A team of threads keeps a line in registers, including its exponentials, which are computed once. */
#include "common.cuh"

/* y, x */
template <class T, int TEAM> __global__ void flk_softmax_kernel(flk_lines l, bool log) {
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    int64_t at[2];
    T v[FLK_KEPT], m = -(T)INFINITY, sum = 0;
    if (row >= l.pass.n) return;
    flk_place<2>(l.pass, row, at);
    auto load = [&](int64_t k) {
        return flk_load_at<T>(l.pass.t[1].p, l.pass.t[1].dtype, at[1] + k * l.step[1]);
    };
    flk_keep<TEAM>(v, l.length, lane, load);
    flk_each_kept<TEAM>(v, l.length, lane, load, [&](T x, int64_t, bool) { m = flk_max_of()(m, x); });
    m = flk_team<TEAM>(m, flk_max_of());
    if (m == (T)INFINITY || m == -(T)INFINITY) m = 0;
    flk_each_kept<TEAM>(v, l.length, lane, load, [&](T &x, int64_t, bool) {
        const T e = flk_exp(x - m);
        sum += e;
        if (!log) x = e;
    });
    sum = flk_team<TEAM>(sum, flk_sum_of());
    if (log) sum = flk_log(sum);
    flk_each_kept<TEAM>(v, l.length, lane, load, [&](T x, int64_t k, bool kept) {
        const T y = log ? x - m - sum : (kept ? x : flk_exp(x - m)) / sum;
        flk_store(l.pass.t[0], at[0] + k * l.step[0], y);
    });
}

/* dx, y, dy: softmax y (dy - sum y dy); log softmax dy - exp(y) sum dy. */
template <class T, int TEAM> __global__ void flk_softmax_grad_kernel(flk_lines l, bool log) {
    struct pair {
        T y, dy;
    } v[FLK_KEPT];
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    int64_t at[3];
    T sum = 0;
    if (row >= l.pass.n) return;
    flk_place<3>(l.pass, row, at);
    auto load = [&](int64_t k) {
        return pair{flk_load_at<T>(l.pass.t[1].p, l.pass.t[1].dtype, at[1] + k * l.step[1]),
                    flk_load_at<T>(l.pass.t[2].p, l.pass.t[2].dtype, at[2] + k * l.step[2])};
    };
    flk_keep<TEAM>(v, l.length, lane, load);
    flk_each_kept<TEAM>(v, l.length, lane, load,
                        [&](pair x, int64_t, bool) { sum += log ? x.dy : x.dy * x.y; });
    sum = flk_team<TEAM>(sum, flk_sum_of());
    flk_each_kept<TEAM>(v, l.length, lane, load, [&](pair x, int64_t k, bool) {
        const T dx = log ? x.dy - flk_exp(x.y) * sum : x.y * (x.dy - sum);
        flk_store(l.pass.t[0], at[0] + k * l.step[0], dx);
    });
}

const char *flk_softmax(const flk_lines *l, int log, int grad, int dtype) {
    if (!l->length) return NULL;
    return grad ? FLK_BY_ROW(flk_softmax_grad_kernel, dtype, l->pass.n, l->length, *l, log != 0)
                : FLK_BY_ROW(flk_softmax_kernel, dtype, l->pass.n, l->length, *l, log != 0);
}
/* MIT licence: see LICENSE. */
