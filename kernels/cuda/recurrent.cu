/* kernels/cuda/recurrent.cu - a step of recurrent layers besides the matrix products: gates and states

   The formulas are those of kernels/cpu/recurrent.inc. A thread has one number of one sequence in one
   direction; both directions take their steps together. A sequence that has ended, or not begun, keeps its
   state. */
#include "common.cuh"

enum { FLK_RNN_TANH, FLK_RNN_RELU, FLK_GRU, FLK_LSTM }; /* as fl_rnn_mode */

template <class T> static __device__ __forceinline__ T flk_sigmoid(T x) { return 1 / (1 + flk_exp(-x)); }

/* Number j of sequence i in a direction, at the current step. `at`: offset in [ways, n, width]; row, way and
   the row of the previous step (-1: none): in [rows, ways, ...]. */
struct flk_moment {
    int64_t at, way, j, row, before, sequence; /* sequence: way n + i */
    bool there, active;
};

static __device__ __forceinline__ flk_moment flk_moment_of(const flk_rnn &r, int64_t width) {
    flk_moment m = {flk_thread(), 0, 0, 0, -1, 0, false, false};
    if (m.at >= r.ways * r.n * width) return m;
    m.j = m.at;
    m.sequence = flk_divide(&m.j, width);
    int64_t i = m.sequence;
    m.way = flk_divide(&i, r.n);
    const int64_t t = m.way ? r.steps - 1 - r.step : r.step, was = m.way ? t + 1 : t - 1;
    const int64_t length = r.lengths ? r.lengths[i] : r.steps, to_i = r.batch_first ? r.steps : 1;
    const int64_t to_t = r.batch_first ? 1 : r.n;
    m.there = true;
    m.active = t < length;
    m.row = t * to_t + i * to_i;
    if (was >= 0 && was < length) m.before = was * to_t + i * to_i;
    return m;
}

template <class T> __global__ void flk_rnn_forward_kernel(flk_rnn r) {
    const flk_moment m = flk_moment_of(r, r.hidden);
    if (!m.there) return;
    const int64_t gap = r.hidden, columns = r.gates * gap, place = m.row * r.ways + m.way;
    T *g = (T *)r.gate + place * columns + m.j, *extra = (T *)r.extra + place * r.more + m.j, h, c = 0;
    const T *w = (const T *)r.sums + m.sequence * columns + m.j;
    const T *bx = (const T *)r.bias_x + m.way * columns + m.j,
            *bh = (const T *)r.bias_h + m.way * columns + m.j;
    const bool biased = r.bias_x != NULL;
    T *y = (T *)r.y + place * r.out + m.j, *state = (T *)r.h + m.at, *cell = (T *)r.c + m.at;
    if (!m.active) {
        if (!r.work) *y = 0;
        else ((T *)r.work)[m.at] = 0;
        for (int64_t k = 0; r.extra && k < r.more; k += gap) extra[k] = 0;
        return;
    }
#define FLK_GATE(k) (g[(k) * gap] + w[(k) * gap] + (biased ? bx[(k) * gap] + bh[(k) * gap] : (T)0))
    if (r.mode == FLK_RNN_TANH) {
        h = g[0] = flk_tanh(FLK_GATE(0));
    } else if (r.mode == FLK_RNN_RELU) {
        const T x = FLK_GATE(0);
        h = g[0] = x < 0 ? (T)0 : x;
    } else if (r.mode == FLK_GRU) {
        const T s = flk_sigmoid(FLK_GATE(0)), z = flk_sigmoid(FLK_GATE(1));
        c = w[2 * gap] + (biased ? bh[2 * gap] : (T)0);
        const T u = flk_tanh(g[2 * gap] + (biased ? bx[2 * gap] : (T)0) + s * c);
        g[0] = s, g[gap] = z, g[2 * gap] = u;
        h = u + z * (*state - u);
    } else {
        const T i = flk_sigmoid(FLK_GATE(0)), f = flk_sigmoid(FLK_GATE(1)), u = flk_tanh(FLK_GATE(2)),
                o = flk_sigmoid(FLK_GATE(3));
        *cell = c = f * *cell + i * u;
        g[0] = i, g[gap] = f, g[2 * gap] = u, g[3 * gap] = o;
        h = o * flk_tanh(c);
    }
#undef FLK_GATE
    if (r.extra && r.more) extra[0] = c;
    if (r.extra && r.work) extra[gap] = h;
    if (r.work) ((T *)r.work)[m.at] = h;
    else *y = *state = h;
}

/* The projected state. */
template <class T> __global__ void flk_rnn_put_kernel(flk_rnn r) {
    const flk_moment m = flk_moment_of(r, r.out);
    if (!m.there) return;
    const T v = m.active ? ((const T *)r.sums)[m.at] : (T)0;
    ((T *)r.y)[(m.row * r.ways + m.way) * r.out + m.j] = v;
    if (m.active) ((T *)r.h)[m.at] = v;
}

/* dh from the following step: passed through inactive steps, plus the part through its gates. */
template <class T> static __device__ __forceinline__ T flk_rnn_left(const flk_rnn &r, int64_t at) {
    return ((const T *)r.h)[at] + (r.sums ? ((const T *)r.sums)[at] : (T)0);
}

/* The state before this step, 0 if none; stored for the weight gradient. */
template <class T> static __device__ __forceinline__ T flk_rnn_old(const flk_rnn &r, const flk_moment &m) {
    T v = 0;
    if (m.active && m.before >= 0) v = ((const T *)r.y)[(m.before * r.ways + m.way) * r.out + m.j];
    else if (m.active && r.h0) v = ((const T *)r.h0)[m.at];
    return ((T *)r.old)[(m.row * r.ways + m.way) * r.out + m.j] = v;
}

/* dy of the projected state, stored for all rows and for this step. */
template <class T> __global__ void flk_rnn_meet_kernel(flk_rnn r) {
    const flk_moment m = flk_moment_of(r, r.out);
    if (!m.there) return;
    const int64_t place = (m.row * r.ways + m.way) * r.out + m.j;
    const T left = flk_rnn_left<T>(r, m.at), d = m.active ? ((const T *)r.dy)[place] + left : (T)0;
    flk_rnn_old<T>(r, m);
    ((T *)r.projected)[place] = ((T *)r.work)[m.at] = d;
    ((T *)r.h)[m.at] = m.active ? (T)0 : left;
}

template <class T> __global__ void flk_rnn_back_kernel(flk_rnn r) {
    const flk_moment m = flk_moment_of(r, r.hidden);
    if (!m.there) return;
    const int64_t gap = r.hidden, columns = r.gates * gap, place = m.row * r.ways + m.way;
    const T *g = (const T *)r.gate + place * columns + m.j,
            *extra = (const T *)r.extra + place * r.more + m.j;
    T *dc = (T *)r.c + m.at, dx[4] = {0, 0, 0, 0}, last = 0, keep = 0;
    const bool projected = r.work != NULL;
    const T left = projected ? (T)0 : flk_rnn_left<T>(r, m.at),
            before = projected ? (T)0 : flk_rnn_old<T>(r, m);
    if (m.active) {
        const T d = projected ? ((const T *)r.work)[m.at] : ((const T *)r.dy)[place * r.out + m.j] + left;
        if (r.mode == FLK_RNN_TANH) dx[0] = d * (1 - g[0] * g[0]);
        if (r.mode == FLK_RNN_RELU) dx[0] = g[0] > 0 ? d : (T)0;
        if (r.mode == FLK_GRU) {
            const T s = g[0], z = g[gap], u = g[2 * gap];
            dx[2] = d * (1 - z) * (1 - u * u);
            dx[1] = d * (before - u) * z * (1 - z);
            dx[0] = dx[2] * extra[0] * s * (1 - s);
            last = dx[2] * s;
            keep = d * z;
        }
        if (r.mode == FLK_LSTM) {
            const T i = g[0], f = g[gap], u = g[2 * gap], o = g[3 * gap], t = flk_tanh(extra[0]);
            const T e = *dc + d * o * (1 - t * t);
            const T old = m.before >= 0 ? ((const T *)r.extra)[(m.before * r.ways + m.way) * r.more + m.j]
                          : r.c0        ? ((const T *)r.c0)[m.at]
                                        : (T)0;
            dx[0] = e * u * i * (1 - i);
            dx[1] = e * old * f * (1 - f);
            dx[2] = e * i * (1 - u * u);
            dx[3] = d * t * o * (1 - o);
            *dc = e * f;
        }
    } else {
        keep = left;
    }
    if (!projected) ((T *)r.h)[m.at] = keep;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k >= r.gates) break;
        const T dh = r.mode == FLK_GRU && k == 2 ? last : dx[k];
        ((T *)r.dx)[place * columns + k * gap + m.j] = dx[k];
        ((T *)r.moment)[m.sequence * columns + k * gap + m.j] = dh;
        if (r.mode == FLK_GRU) ((T *)r.dh)[place * columns + k * gap + m.j] = dh;
    }
}

const char *flk_rnn_step(const flk_rnn *r, int what, int dtype) {
    const bool cells = what == FLK_RNN_FORWARD || what == FLK_RNN_BACK;
    const unsigned blocks = flk_blocks(r->ways * r->n * (cells ? r->hidden : r->out));
    switch (what) {
    case FLK_RNN_FORWARD: return FLK_BY_FLOAT(flk_rnn_forward_kernel, dtype, blocks, *r);
    case FLK_RNN_PUT: return FLK_BY_FLOAT(flk_rnn_put_kernel, dtype, blocks, *r);
    case FLK_RNN_MEET: return FLK_BY_FLOAT(flk_rnn_meet_kernel, dtype, blocks, *r);
    default: return FLK_BY_FLOAT(flk_rnn_back_kernel, dtype, blocks, *r);
    }
}
/* MIT licence: see LICENSE. */
