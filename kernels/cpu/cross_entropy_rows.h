/* kernels/cpu/cross_entropy_rows.h - rows of the cross-entropy of logits for one element type at one
   ISA level

   cross_entropy.h includes it once for each pair, after defining FL__T and its suffix FL__S,
   FL__LANES, FL__I (the integer of FL__T's size), FL__FN(name) and FL__TARGET; it undefines them all
   but FL__FN. */
#include "exp_sums.h"

/* *largest = the largest of a row, and the sum of exp(x - largest): piece by piece, what was summed
   is scaled when a larger one comes, so memory is read while exponentials are computed. NaN for a
   row of -infinity. */
FL__SUM_INLINE FL__TARGET FL__T FL__FN(exp_sum)(const FL__T *x, int64_t n, FL__T *largest) {
    FL__T e[FL__EXP_PIECE], top = -INFINITY;
    double sum = 0;
    for (int64_t at = 0; at < n; at += FL__EXP_PIECE) {
        int64_t m = fl__min(n - at, FL__EXP_PIECE);
        FL__T more = FL__FN(largest)(x + at, m);
        if (more > top) {
            sum *= exp((double)(top - more));
            top = more;
        }
        sum += FL__FN(exps)(e, x + at, m, top > -INFINITY ? top : 0);
    }
    *largest = top;
    return top > -INFINITY ? (FL__T)sum : NAN;
}

FL__TARGET static void FL__FN(rows)(const fl__entropy *s, int64_t begin, int64_t end) {
    const int64_t n = s->classes;
    for (int64_t r = begin; r < end; r++) {
        const FL__T *x = (const FL__T *)s->x + r * n;
        FL__T largest, sum = FL__FN(exp_sum)(x, n, &largest);
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
            dx[i] = (FL__CAT2(flm_exp_share, FL__S)(x[i] - largest) * scale - spread) * dy;
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
