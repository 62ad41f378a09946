/* kernels/cuda/loss.cu - cross entropy of rows of logits, and its gradient: one pass over the logits each

   Rows of any length are read, and their gradient written, 16 bytes at once: all but their ends, as rows of
   an odd number of halves begin anywhere. */
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

/* Calls use(k, v) for elements k ... of row r, where v is an array: aligned vectors, if dx is aligned as x
   is, and elements at the row's ends. */
template <class T, int TEAM, class Use>
static __device__ __forceinline__ void flk_each_of_row(const flk_cross_entropy_rows &e, int64_t r, int lane,
                                                       Use use) {
    const bool vectors = !e.dx.p || ((uintptr_t)e.x.p - (uintptr_t)e.dx.p) % 16 == 0;
    constexpr int EACH = FLK_VECTOR<T>;
    const int size = sizeof(T) == 8 ? 8 : e.x.dtype == FLK_F32 ? 4 : 2;
    const int64_t start = r * e.classes;
    const int before = (int)(((uintptr_t)e.x.p / (unsigned)size + (uint64_t)start) % EACH);
    for (int64_t k = (int64_t)lane * EACH - before; k < e.classes; k += TEAM * EACH) {
        T v[EACH], one[1];
        if (vectors && k >= 0 && k + EACH <= e.classes) {
            flk_load_vector(e.x, start + k, EACH, v);
            use(k, v);
        } else
            for (int64_t j = k < 0 ? 0 : k; j < k + EACH && j < e.classes; j++) {
                one[0] = flk_load_at<T>(e.x.p, e.x.dtype, start + j);
                use(j, one);
            }
    }
}

template <class T, int TEAM>
__global__ void flk_entropy_kernel(flk_cross_entropy_rows e, flk_fault *fault) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane);
    if (r >= e.rows) return;
    T m = -(T)INFINITY, sum = 0, all = 0; /* of exp(x - m), which is rescaled when m grows, and of x */
    flk_each_of_row<T, TEAM>(e, r, lane, [&](int64_t, const auto &x) {
        T top = m;
        for (const T v : x) top = flk_max_of()(top, v);
        if (!(top <= m)) sum *= flk_exp(m - top), m = top;
        for (const T v : x) {
            sum += flk_exp(v - (m == -(T)INFINITY ? 0 : m));
            all += v;
        }
    });
    const T mine = m;
    m = flk_team<TEAM>(m, flk_max_of());
    sum = flk_team<TEAM>(sum * flk_exp(mine - m), flk_sum_of()); /* NaN if all x are -infinity */
    if (e.smoothing > 0) all = flk_team<TEAM>(all, flk_sum_of());
    if (lane) return;
    const int64_t target = flk_target(e, r, fault);
    const T log_sum = flk_log(sum), s = (T)e.smoothing;
    T loss = 0;
    if (target >= 0) loss = log_sum - (flk_load_at<T>(e.x.p, e.x.dtype, r * e.classes + target) - m);
    if (target >= 0 && s > 0) loss = loss * (1 - s) + (log_sum - (all / (T)e.classes - m)) * s;
    ((T *)e.loss)[r] = loss;
    ((T *)e.largest)[r] = m;
    ((T *)e.sum)[r] = sum;
}

template <class T, int TEAM>
__global__ void flk_entropy_grad_kernel(flk_cross_entropy_rows e, flk_fault *fault) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane);
    if (r >= e.rows) return;
    const int64_t target = flk_target(e, r, fault);
    const T m = ((const T *)e.largest)[r], scale = 1 / ((const T *)e.sum)[r], dy = ((const T *)e.dy)[r];
    const T own = (T)(1 - e.smoothing), spread = (T)(e.smoothing / (double)e.classes);
    flk_each_of_row<T, TEAM>(e, r, lane, [&](int64_t k, const auto &x) {
        constexpr int N = (int)(sizeof x / sizeof *x);
        T d[N];
        for (int j = 0; j < N; j++) {
            const T want = (k + j == target ? own : 0) + spread;
            d[j] = target < 0 ? 0 : (flk_exp(x[j] - m) * scale - want) * dy;
        }
        flk_store_each(e.dx, r * e.classes + k, N, d);
    });
}

const char *flk_cross_entropy(const flk_cross_entropy_rows *e, int dtype) {
    if (!e->classes) return NULL;
    return e->dx.p ? FLK_BY_ROW(flk_entropy_grad_kernel, dtype, e->rows, e->classes, *e, flk_faults())
                   : FLK_BY_ROW(flk_entropy_kernel, dtype, e->rows, e->classes, *e, flk_faults());
}
/* MIT licence: see LICENSE. */
