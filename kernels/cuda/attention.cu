/* kernels/cuda/attention.cu - attention between the two matrix products: masks, softmax, dropout

   A team of threads has a query's scores, q k^T. They are read repeatedly, from the cache, for their
   maximum, their sum and the weights; the gradient recomputes the weights from lse. Threads process four
   neighbours at a time, which share a draw of dropout's random numbers. */
#include "common.cuh"

/* A query: its first score, its index within the batch, and its row of the mask. */
struct flk_query {
    int64_t first, place, mask;
};
static __device__ __forceinline__ flk_query flk_query_of(const flk_attention &a, int64_t row) {
    flk_query q = {row * a.m, 0, 0};
    const int64_t batch = flk_divide(&row, a.n);
    flk_place<1>(a.batch, batch, &q.mask);
    q.mask += row * a.mask_row;
    q.place = row + a.offset;
    return q;
}

/* The masked score of key j, -inf if it is hidden. *slope: its derivative by q k^T. */
template <class T>
static __device__ __forceinline__ T flk_score(const flk_attention &a, const flk_query &q, int64_t j,
                                              T *slope) {
    const flk_operand &mask = a.batch.t[0];
    const int64_t ahead = j - q.place, at = q.mask + j * a.mask_column;
    *slope = (T)a.scale;
    if ((a.causal && ahead > 0) || (a.window && (ahead >= a.window || ahead <= -a.window)))
        return -(T)INFINITY;
    if (mask.p && mask.dtype == FLK_B8 && !((const uint8_t *)mask.p)[at]) return -(T)INFINITY;
    T s = ((const T *)a.scores)[q.first + j] * (T)a.scale;
    if (a.softcap != 0) {
        const T t = flk_tanh(s / (T)a.softcap);
        s = (T)a.softcap * t;
        *slope *= 1 - t * t;
    }
    return mask.p && mask.dtype != FLK_B8 ? s + ((const T *)mask.p)[at] : s;
}

/* Dropout factors of elements 4 quad ... 4 quad + 3. */
template <class T>
static __device__ __forceinline__ void flk_kept(const flk_attention &a, int64_t quad, T *kept) {
    uint32_t w[4];
    if (a.drop > 0) flm_philox(a.key, flk_counter(a.counter, a.word) + (uint64_t)quad, w);
#pragma unroll
    for (int k = 0; k < 4; k++)
        kept[k] = a.drop <= 0 ? (T)1 : flm_uniform_f32(w[k]) >= (float)a.drop ? (T)(1 / (1 - a.drop)) : (T)0;
}

/* Calls f(j, dropout factor) for the keys j of a thread. */
template <class T, int TEAM, class F>
static __device__ __forceinline__ void flk_each_key(const flk_attention &a, const flk_query &q, int lane,
                                                    F f) {
    T kept[4];
    for (int64_t quad = q.first / 4 + lane; quad * 4 < q.first + a.m; quad += TEAM) {
        flk_kept<T>(a, quad, kept);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int64_t j = quad * 4 + k - q.first;
            if (j >= 0 && j < a.m) f(j, kept[k]);
        }
    }
}

template <class T, int TEAM> __global__ void flk_attention_kernel(flk_attention a) {
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    if (row >= a.rows) return;
    const flk_query q = flk_query_of(a, row);
    T m = -(T)INFINITY, sum = 0, slope;
    for (int64_t j = lane; j < a.m; j += TEAM) m = flk_max_of()(m, flk_score<T>(a, q, j, &slope));
    m = flk_team<TEAM>(m, flk_max_of());
    const bool blind = m == -(T)INFINITY;
    if (blind || m == (T)INFINITY) m = 0;
    for (int64_t j = lane; j < a.m; j += TEAM) sum += flk_exp(flk_score<T>(a, q, j, &slope) - m);
    sum = flk_team<TEAM>(sum, flk_sum_of());
    if (!lane) ((T *)a.lse)[row] = blind ? (T)INFINITY : m + flk_log(sum);
    flk_each_key<T, TEAM>(a, q, lane, [&](int64_t j, T kept) {
        const T p = blind ? (T)0 : flk_exp(flk_score<T>(a, q, j, &slope) - m) / sum;
        flk_store(a.weights, q.first + j, p * kept);
    });
}

/* weights p, dscores p (dp - sum p dp) slope; dp is the gradient by the weights, with the same dropout. */
template <class T, int TEAM> __global__ void flk_attention_grad_kernel(flk_attention a) {
    int lane;
    const int64_t row = flk_team_row<TEAM>(&lane);
    if (row >= a.rows) return;
    const flk_query q = flk_query_of(a, row);
    const T lse = ((const T *)a.lse)[row], *dweights = (const T *)a.dweights + q.first;
    T sum = 0, slope;
    flk_each_key<T, TEAM>(a, q, lane, [&](int64_t j, T kept) {
        sum += flk_exp(flk_score<T>(a, q, j, &slope) - lse) * (dweights[j] * kept);
    });
    sum = flk_team<TEAM>(sum, flk_sum_of());
    flk_each_key<T, TEAM>(a, q, lane, [&](int64_t j, T kept) {
        const T p = flk_exp(flk_score<T>(a, q, j, &slope) - lse), dp = dweights[j] * kept;
        flk_store(a.dscores, q.first + j, p * (dp - sum) * slope);
        flk_store(a.weights, q.first + j, p * kept);
    });
}

static __global__ void flk_attention_blind_kernel(flk_lines l, float least) {
    const int64_t i = flk_thread();
    int64_t at[2];
    if (i >= l.pass.n) return;
    flk_place<2>(l.pass, i, at);
    float *lse = (float *)l.pass.t[1].p + at[1];
    if (!(*lse < least)) return;
    *lse = INFINITY;
    for (int64_t k = 0; k < l.length; k++) flk_store(l.pass.t[0], at[0] + k * l.step[0], 0.0f);
}

const char *flk_attention_blind(const flk_lines *l, double least) {
    return FLK_LAUNCH(flk_attention_blind_kernel, flk_blocks(l->pass.n), FLK_BLOCK, *l, (float)least);
}

const char *flk_attention_weights(const flk_attention *a, int dtype) {
    return FLK_BY_ROW(flk_attention_kernel, dtype, a->rows, a->m, *a);
}

const char *flk_attention_dscores(const flk_attention *a, int dtype) {
    if (!a->m) return NULL;
    return FLK_BY_ROW(flk_attention_grad_kernel, dtype, a->rows, a->m, *a);
}
/* MIT licence: see LICENSE. */
