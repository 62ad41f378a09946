/* kernels/cpu/softmax_rows.h - softmax of one contiguous row, for one element type at one ISA level

   softmax.h includes it once for each pair, after defining FL__T and its suffix FL__S, FL__LANES,
   FL__I (the integer of FL__T's size), FL__FN(name) and FL__TARGET; it undefines them all but
   FL__FN. Every function goes over the row while it stays in a cache: memory is read and written
   once. */
#include "exp_sums.h"

/* y = exp(x - max) / sum */
FL__TARGET static void FL__FN(softmax)(void *out, const void *a, const void *b, int64_t n) {
    FL__T *y = out;
    (void)b;
    const FL__T scale = (FL__T)(1 / FL__FN(exps)(y, a, n, FL__FN(largest)(a, n)));
    FL__VECTOR for (int64_t i = 0; i < n; i++) y[i] *= scale;
}

/* y = (x - max) - log sum */
FL__TARGET static void FL__FN(log_softmax)(void *out, const void *a, const void *b, int64_t n) {
    const FL__T *x = a, largest = FL__FN(largest)(x, n);
    FL__T *y = out, e[FL__EXP_PIECE];
    double sum = 0;
    (void)b;
    for (int64_t at = 0; at < n; at += FL__EXP_PIECE)
        sum += FL__FN(exps)(e, x + at, fl__min(n - at, FL__EXP_PIECE), largest);
    const FL__T log_sum = (FL__T)log(sum);
    FL__VECTOR for (int64_t i = 0; i < n; i++) y[i] = (x[i] - largest) - log_sum;
}

/* sum of a b, FL__PIECE products in their own type */
FL__SUM_INLINE FL__TARGET double FL__FN(dot)(const FL__T *a, const FL__T *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n;) {
        FL__FN(vec) acc[4] = {{0}, {0}, {0}, {0}};
        const int64_t end = i + fl__min(n - i, FL__PIECE);
        for (; i + 4 * FL__LANES <= end; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++)
                acc[k] += FL__LOAD(a + i + k * FL__LANES) * FL__LOAD(b + i + k * FL__LANES);
        FL__T rest = 0;
        for (; i < end; i++) rest += a[i] * b[i];
        sum += (double)(FL__FN(total)(acc) + rest);
    }
    return sum;
}

/* dx = y (dy - sum y dy) */
FL__TARGET static void FL__FN(softmax_grad)(void *out, const void *a, const void *b, int64_t n) {
    const FL__T *y = a, *dy = b, sum = (FL__T)FL__FN(dot)(y, dy, n);
    FL__T *dx = out;
    FL__VECTOR for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

/* dx = dy - exp(y) sum dy */
FL__TARGET static void FL__FN(log_softmax_grad)(void *out, const void *a, const void *b,
                                                int64_t n) {
    const FL__T *y = a, *dy = b;
    FL__T *dx = out;
    double total = 0;
    for (int64_t at = 0; at < n; at += FL__PIECE)
        total += FL__FN(row_sum)(dy + at, fl__min(n - at, FL__PIECE), 0, false);
    const FL__T sum = (FL__T)total;
    FL__VECTOR for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] - FL__CAT2(flm_exp_share, FL__S)(y[i]) * sum;
}

#undef FL__T
#undef FL__S
#undef FL__I
#undef FL__LANES
#undef FL__TARGET
#undef FL__LOAD
#undef FL__STORE
/* MIT licence: see LICENSE. */
