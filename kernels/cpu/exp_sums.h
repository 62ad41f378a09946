/* kernels/cpu/exp_sums.h - exponentials along rows, for softmax_rows.h and cross_entropy_rows.h

   Beside what norm_sums.h needs they define FL__S, the suffix of FL__T's functions, and FL__I, the
   integer of its size. */
#include "norm_sums.h"

typedef FL__I FL__FN(bits) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));

/* a where it is larger than b, which is no NaN, else b. */
FL__SUM_INLINE FL__TARGET FL__FN(vec) FL__FN(larger)(FL__FN(vec) a, FL__FN(vec) b) {
    const FL__FN(bits) more = a > b;
    return (FL__FN(vec))((more & (FL__FN(bits))a) | (~more & (FL__FN(bits))b));
}

/* The largest of a row that is no NaN, at least -infinity. */
FL__SUM_INLINE FL__TARGET FL__T FL__FN(largest)(const FL__T *x, int64_t n) {
    FL__T best = -INFINITY;
    int64_t i = 0;
    if (n >= 4 * FL__LANES) {
        FL__FN(vec) low = (FL__T)-INFINITY - (FL__FN(vec)){0}, acc[4] = {low, low, low, low};
        for (; i + 4 * FL__LANES <= n; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++)
                acc[k] = FL__FN(larger)(FL__LOAD(x + i + k * FL__LANES), acc[k]);
        acc[0] = FL__FN(larger)(FL__FN(larger)(acc[0], acc[1]), FL__FN(larger)(acc[2], acc[3]));
        FL__T lane[FL__LANES];
        memcpy(lane, acc, sizeof lane);
        for (int half = FL__LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++)
                lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
        best = lane[0];
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* e = exp(x - shift), shift >= x, and their sum: pieces of e are added up while they are cached.
   Memory brings what lies behind x, the next row or piece, while exponentials are computed. */
FL__SUM_INLINE FL__TARGET double FL__FN(exps)(FL__T *e, const FL__T *x, int64_t n, FL__T shift) {
    double sum = 0;
    for (int64_t at = 0; at < n; at += FL__EXP_PIECE) {
        const int64_t end = at + fl__min(n - at, FL__EXP_PIECE);
        for (int64_t from = at; from < end; from += FL__EXP_AHEAD) {
            const int64_t to = from + fl__min(end - from, FL__EXP_AHEAD);
            for (int64_t i = from; i < to; i += FL_ALIGN / (int64_t)sizeof *x)
                __builtin_prefetch(x + n + i);
            FL__VECTOR for (int64_t i = from; i < to; i++)
                e[i] = FL__CAT2(flm_exp_share, FL__S)(x[i] - shift);
        }
        sum += FL__FN(row_sum)(e + at, end - at, 0, false);
    }
    return sum;
}
/* MIT licence: see LICENSE. */
