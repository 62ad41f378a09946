/* kernels/cpu/norm_sums.h - sums along rows: norm_rows.h and batch_norm_rows.h include it

   They run in four registers over FL__SUM_BLOCK elements, then in double, so they lose little in
   long rows. */

typedef FL__T FL__FN(vec) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));
typedef FL__T FL__FN(mem) /* the same, anywhere in memory */
    __attribute__((vector_size(FL__LANES * sizeof(FL__T)), aligned(sizeof(FL__T)), may_alias));
#define FL__LOAD(p) (*(const FL__FN(mem) *)(p))
#define FL__STORE(p) (*(FL__FN(mem) *)(p))

/* What four registers hold, added pairwise. */
FL__SUM_INLINE FL__TARGET FL__T FL__FN(total)(const FL__FN(vec) *acc) {
    FL__FN(vec) all = (acc[0] + acc[1]) + (acc[2] + acc[3]);
    FL__T lane[FL__LANES];
    memcpy(lane, &all, sizeof lane);
    for (int half = FL__LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

/* sum of x - shift, or of its squares */
FL__SUM_INLINE FL__TARGET double FL__FN(row_sum)(const FL__T *x, int64_t n, FL__T shift,
                                                  const bool squares) {
    double sum = 0;
    for (int64_t i = 0; i < n;) {
        FL__FN(vec) acc[4] = {{0}, {0}, {0}, {0}};
        int64_t end = i + fl__min(n - i, FL__SUM_BLOCK);
        for (; i + 4 * FL__LANES <= end; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++) {
                FL__FN(vec) v = FL__LOAD(x + i + k * FL__LANES) - shift;
                acc[k] += squares ? v * v : v;
            }
        FL__T rest = 0;
        for (; i < end; i++) rest += squares ? (x[i] - shift) * (x[i] - shift) : x[i] - shift;
        sum += (double)(FL__FN(total)(acc) + rest);
    }
    return sum;
}
/* MIT licence: see LICENSE. */
