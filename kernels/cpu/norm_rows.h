/* kernels/cpu/norm_rows.h - the rows of layer norm for one element type at one ISA level

   norm.h includes it once for each pair, after defining
     FL__T          the element: float or double, FL__LANES of them a register
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
   and it undefines them all but FL__FN. */

#include "norm_sums.h"

/* y = (x - mean) rstd w + b */
FL__TARGET static void FL__FN(rows)(const fl__norm *s, int64_t begin, int64_t end) {
    const int64_t n = s->n;
    const FL__T *w = s->w, *b = s->b;
    for (int64_t r = begin; r < end; r++) {
        const FL__T *x = (const FL__T *)s->x + r * n;
        FL__T *y = (FL__T *)s->y + r * n;
        FL__T mean = s->rms ? 0 : (FL__T)(FL__FN(row_sum)(x, n, 0, false) / (double)n);
        FL__T var = (FL__T)(FL__FN(row_sum)(x, n, mean, true) / (double)n) + (FL__T)s->eps;
        FL__T rstd = 1 / (FL__T)sqrt(var);
        if (!s->rms) ((FL__T *)s->mean)[r] = mean;
        ((FL__T *)s->rstd)[r] = rstd;
        FL__VECTOR for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
    }
}

/* sum of g and of g (x - mean) rstd, where g = dy w: [0] and [1] */
FL__SUM_INLINE FL__TARGET void FL__FN(grad_sums)(const FL__T *x, const FL__T *dy, const FL__T *w,
                                                  int64_t n, FL__T mean, FL__T rstd, double *sum) {
    sum[0] = sum[1] = 0;
    for (int64_t i = 0; i < n;) {
        FL__FN(vec) acc[2][4] = {{{0}, {0}, {0}, {0}}, {{0}, {0}, {0}, {0}}};
        int64_t end = i + fl__min(n - i, FL__SUM_BLOCK);
        for (; i + 4 * FL__LANES <= end; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++) {
                int64_t at = i + k * FL__LANES;
                FL__FN(vec) g = FL__LOAD(dy + at) * FL__LOAD(w + at);
                acc[0][k] += g;
                acc[1][k] += g * ((FL__LOAD(x + at) - mean) * rstd);
            }
        FL__T rest[2] = {0, 0};
        for (; i < end; i++) {
            rest[0] += dy[i] * w[i];
            rest[1] += dy[i] * w[i] * ((x[i] - mean) * rstd);
        }
        for (int k = 0; k < 2; k++) sum[k] += (double)(FL__FN(total)(acc[k]) + rest[k]);
    }
}

/* Of one row: dx; and dw += dy (x - mean) rstd, db += dy. */
FL__TARGET static void FL__FN(grad_row)(const fl__norm *s, int64_t r, FL__T *dw, FL__T *db) {
    const int64_t n = s->n;
    const FL__T *x = (const FL__T *)s->x + r * n, *dy = (const FL__T *)s->dy + r * n, *w = s->w;
    const FL__T mean = s->rms ? 0 : ((const FL__T *)s->mean)[r];
    const FL__T rstd = ((const FL__T *)s->rstd)[r];
    if (s->dx) {
        FL__T *dx = (FL__T *)s->dx + r * n;
        double sum[2];
        FL__FN(grad_sums)(x, dy, w, n, mean, rstd, sum);
        const FL__T m1 = s->rms ? 0 : (FL__T)(sum[0] / (double)n), m2 = (FL__T)(sum[1] / (double)n);
        FL__VECTOR for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * w[i] - ((x[i] - mean) * rstd * m2 + m1));
    }
    if (dw) {
        FL__VECTOR for (int64_t i = 0; i < n; i++) {
            dw[i] += dy[i] * ((x[i] - mean) * rstd);
            db[i] += dy[i];
        }
    }
}

/* dx of a block of rows, and the sums of dw and db over it into its part. */
FL__TARGET static void FL__FN(grad_rows)(const fl__norm *s, int64_t block) {
    int64_t begin = block * s->rows_of_block, end = fl__min(s->rows, begin + s->rows_of_block);
    FL__T *dw = s->part ? (FL__T *)s->part + 2 * block * s->n : NULL, *db = dw ? dw + s->n : NULL;
    if (dw) memset(dw, 0, (size_t)(2 * s->n) * sizeof *dw);
    for (int64_t r = begin; r < end; r++) FL__FN(grad_row)(s, r, dw, db);
}

/* The parts in their order: columns begin .. end of dw and db. */
FL__TARGET static void FL__FN(grad_parts)(const fl__norm *s, int64_t begin, int64_t end) {
    for (int k = 0; k < 2; k++) {
        FL__T *to = k ? s->db : s->dw;
        const FL__T *from = (const FL__T *)s->part + k * s->n;
        if (!to) continue;
        for (int64_t i = begin; i < end; i++) {
            double sum = 0;
            for (int64_t b = 0; b < s->blocks; b++) sum += (double)from[2 * b * s->n + i];
            to[i] = (FL__T)sum;
        }
    }
}

static const fl__norm_kernels FL__FN(kernels) = {FL__FN(rows), FL__FN(grad_rows),
                                                 FL__FN(grad_parts)};
#undef FL__T
#undef FL__LANES
#undef FL__TARGET
#undef FL__LOAD
#undef FL__STORE
/* MIT licence: see LICENSE. */
