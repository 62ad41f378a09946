/* kernels/cpu/cross_entropy_rows.h - rows of the cross-entropy of logits for one element type at one
   ISA level

   cross_entropy.h includes it once for each pair, after defining FL__T and its suffix FL__S,
   FL__LANES, FL__I (the integer of FL__T's size), FL__FN(name) and FL__TARGET; it undefines them all
   but FL__FN. */
#include "norm_sums.h"

typedef FL__I FL__FN(bits) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));

/* The largest of a row that is no NaN, at least -infinity. */
FL__SUM_INLINE FL__TARGET FL__T FL__FN(largest)(const FL__T *x, int64_t n) {
    FL__T best = -INFINITY;
    int64_t i = 0;
    if (n >= 4 * FL__LANES) {
        FL__FN(vec) low = (FL__T)-INFINITY - (FL__FN(vec)){0}, acc[4] = {low, low, low, low};
        for (; i + 4 * FL__LANES <= n; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++) {
                FL__FN(vec) v = FL__LOAD(x + i + k * FL__LANES);
                FL__FN(bits) more = v > acc[k];
                acc[k] = (FL__FN(vec))((more & (FL__FN(bits))v) | (~more & (FL__FN(bits))acc[k]));
            }
        FL__T lane[4 * FL__LANES];
        memcpy(lane, acc, sizeof lane);
        for (int j = 0; j < 4 * FL__LANES; j++) best = lane[j] > best ? lane[j] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* sum of exp(x - largest) */
FL__SUM_INLINE FL__TARGET double FL__FN(exp_sum)(const FL__T *x, int64_t n, FL__T largest) {
    FL__T e[FL__ENTROPY_PIECE];
    double sum = 0;
    for (int64_t at = 0; at < n; at += FL__ENTROPY_PIECE) {
        int64_t m = fl__min(n - at, FL__ENTROPY_PIECE);
        FL__VECTOR for (int64_t i = 0; i < m; i++)
            e[i] = FL__CAT2(flm_exp, FL__S)(x[at + i] - largest);
        sum += FL__FN(row_sum)(e, m, 0, false);
    }
    return sum;
}

FL__TARGET static void FL__FN(rows)(const fl__entropy *s, int64_t begin, int64_t end) {
    const int64_t n = s->classes;
    for (int64_t r = begin; r < end; r++) {
        const FL__T *x = (const FL__T *)s->x + r * n;
        FL__T largest = FL__FN(largest)(x, n), sum = (FL__T)FL__FN(exp_sum)(x, n, largest);
        ((FL__T *)s->largest)[r] = largest;
        ((FL__T *)s->sum)[r] = sum;
        double loss = 0, log_sum = log((double)sum);
        if (s->target[r] != s->ignore) {
            loss = (1 - s->smoothing) * (log_sum - (double)(x[s->target[r]] - largest));
            if (s->smoothing > 0)
                loss += s->smoothing *
                        (log_sum - FL__FN(row_sum)(x, n, largest, false) / (double)n);
        }
        ((FL__T *)s->loss)[r] = (FL__T)loss;
    }
}

/* dx = dy (exp(x - largest) / sum - smoothing / classes), and less (1 - smoothing) dy at the target */
FL__TARGET static void FL__FN(grad_rows)(const fl__entropy *s, int64_t begin, int64_t end) {
    const int64_t n = s->classes;
    const FL__T spread = (FL__T)(s->smoothing / (double)n);
    for (int64_t r = begin; r < end; r++) {
        const FL__T *x = (const FL__T *)s->x + r * n, dy = ((const FL__T *)s->dy)[r];
        const FL__T largest = ((FL__T *)s->largest)[r], scale = 1 / ((FL__T *)s->sum)[r];
        FL__T *dx = (FL__T *)s->dx + r * n;
        if (s->target[r] == s->ignore) {
            memset(dx, 0, (size_t)n * sizeof *dx);
            continue;
        }
        FL__VECTOR for (int64_t i = 0; i < n; i++)
            dx[i] = (FL__CAT2(flm_exp, FL__S)(x[i] - largest) * scale - spread) * dy;
        dx[s->target[r]] -= (FL__T)(1 - s->smoothing) * dy;
    }
}

static const fl__entropy_kernels FL__FN(kernels) = {FL__FN(rows), FL__FN(grad_rows)};
#undef FL__T
#undef FL__S
#undef FL__I
#undef FL__LANES
#undef FL__TARGET
#undef FL__LOAD
#undef FL__STORE
/* MIT licence: see LICENSE. */
