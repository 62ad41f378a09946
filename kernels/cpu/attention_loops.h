/* kernels/cpu/attention_loops.h - the loops of attention.h for one element type at one ISA level

   attention.h includes it for each pair, after defining FL__T, its flm_ suffix FL__S, FL__FN(name)
   and FL__TARGET; it defines FL__FN(loops) and undefines them all.

   A block of scores has a row of FL__ATT_ROW elements for each key, of which the first `width` are
   computed. What belongs to a query is an array of as many elements. */

#define FL__EXP FL__CAT2(flm_exp_share, FL__S)
#define FL__LOG FL__CAT2(flm_log, FL__S)

/* x *= by */
FL__TARGET static void FL__FN(scale)(void *x, int64_t n, double by) {
    FL__T *y = x, f = (FL__T)by;
    for (int64_t i = 0; i < n; i++) y[i] *= f;
}

FL__TARGET static void FL__FN(fill)(void *x, int64_t n, double value) {
    for (int64_t i = 0; i < n; i++) ((FL__T *)x)[i] = (FL__T)value;
}

/* scores *= by, element by element */
FL__TARGET static void FL__FN(mul)(void *scores, const void *by, int64_t keys, int64_t width) {
    FL__T *s = scores;
    const FL__T *f = by;
    for (int64_t j = 0; j < keys; j++, s += FL__ATT_ROW, f += FL__ATT_ROW)
        FL__VECTOR for (int64_t i = 0; i < width; i++) s[i] *= f[i];
}

/* Rows of y, each by its own factor, which often is 1. */
FL__TARGET static void FL__FN(scale_rows)(void *y, int64_t row, int64_t n, int64_t columns,
                                          const void *by) {
    const FL__T *f = by;
    for (int64_t i = 0; i < n; i++) {
        FL__T *x = (FL__T *)y + i * row, fi = f[i];
        if (fi == 1) continue;
        for (int64_t j = 0; j < columns; j++) x[j] *= fi;
    }
}

/* Key j of the block counts for queries from first + j on. */
FL__TARGET static void FL__FN(hide_future)(void *scores, int64_t keys, int64_t width,
                                           int64_t first) {
    for (int64_t j = 0; j < keys; j++) {
        FL__T *s = (FL__T *)scores + j * FL__ATT_ROW;
        for (int64_t i = 0; i < fl__min(width, first + j); i++) s[i] = -INFINITY;
    }
}

/* Where the mask, b8, is false: -inf. Its steps in elements, from query to query and key to key. */
FL__TARGET static void FL__FN(choose)(void *scores, int64_t keys, int64_t queries,
                                      const void *mask, int64_t row, int64_t column) {
    const uint8_t *at = mask;
    for (int64_t j = 0; j < keys; j++, at += column) {
        FL__T *s = (FL__T *)scores + j * FL__ATT_ROW;
        if (row == 0 && *at) continue;
        for (int64_t i = 0; i < queries; i++) s[i] = at[i * row] ? s[i] : -INFINITY;
    }
}

FL__TARGET static void FL__FN(add)(void *scores, int64_t keys, int64_t queries, const void *mask,
                                   int64_t row, int64_t column) {
    const FL__T *at = mask;
    for (int64_t j = 0; j < keys; j++, at += column) {
        FL__T *s = (FL__T *)scores + j * FL__ATT_ROW;
        if (row == 0)
            for (int64_t i = 0; i < queries; i++) s[i] += *at;
        else
            for (int64_t i = 0; i < queries; i++) s[i] += at[i * row];
    }
}

/* One step of the online softmax: with the larger maximum the scores become p = exp(s - top), the
   sums of exp follow, and fix = exp(top before - top) is what earlier terms are to be multiplied
   by. While all scores are -inf, 0 is subtracted. */
FL__TARGET static void FL__FN(softmax)(void *scores, int64_t keys, int64_t width, void *top,
                                       void *sum, void *fix) {
    FL__T base[FL__ATT_QUERIES], *s = scores, *t = top, *z = sum, *f = fix;
    for (int64_t i = 0; i < width; i++) base[i] = t[i];
    for (int64_t j = 0; j < keys; j++)
        FL__VECTOR for (int64_t i = 0; i < width; i++) {
            const FL__T x = s[j * FL__ATT_ROW + i];
            base[i] = x > base[i] ? x : base[i];
        }
    for (int64_t i = 0; i < width; i++) {
        const FL__T before = t[i], now = base[i];
        base[i] = now == -INFINITY ? 0 : now;
        t[i] = now;
        f[i] = FL__EXP(before - base[i]);
        z[i] *= f[i];
    }
    for (int64_t j = 0; j < keys; j++)
        FL__VECTOR for (int64_t i = 0; i < width; i++) {
            const FL__T p = FL__EXP(s[j * FL__ATT_ROW + i] - base[i]);
            s[j * FL__ATT_ROW + i] = p;
            z[i] += p;
        }
}

/* sum becomes 1 / sum, and 0 for a query that sees no key; *lse the logarithm of the sum of exp(s),
   and inf for such a query, whose shares are then 0 in the gradient too. */
FL__TARGET static void FL__FN(close)(const void *top, void *sum, int64_t queries, void *lse,
                                     int64_t step) {
    const FL__T *t = top;
    FL__T *z = sum, *l = lse;
    for (int64_t i = 0; i < queries; i++) {
        const FL__T total = z[i];
        l[i * step] = total == 0 ? INFINITY : t[i] + FL__LOG(total);
        z[i] = total == 0 ? 0 : 1 / total;
    }
}

/* delta = y . dy of each query */
FL__TARGET static void FL__FN(dots)(const void *y, const int64_t *y_step, const void *dy,
                                    const int64_t *dy_step, int64_t queries, int64_t columns,
                                    void *delta) {
    for (int64_t i = 0; i < queries; i++) {
        const FL__T *a = (const FL__T *)y + i * y_step[0], *b = (const FL__T *)dy + i * dy_step[0];
        FL__T part[16] = {0}, sum = 0;
        int64_t whole = y_step[1] == 1 && dy_step[1] == 1 ? columns / 16 * 16 : 0;
        for (int64_t j = 0; j < whole; j += 16)
            FL__VECTOR for (int64_t k = 0; k < 16; k++) part[k] += a[j + k] * b[j + k];
        for (int64_t j = whole; j < columns; j++) sum += a[j * y_step[1]] * b[j * dy_step[1]];
        for (int64_t k = 0; k < 16; k++) sum += part[k];
        ((FL__T *)delta)[i] = sum;
    }
}

/* s becomes p = exp(s - lse), dp becomes ds = p (dp - delta) scale */
FL__TARGET static void FL__FN(grads)(void *s, void *dp, int64_t keys, int64_t width,
                                     const void *lse, const void *delta, double scale) {
    FL__T *ps = s, *ds = dp, f = (FL__T)scale;
    const FL__T *l = lse, *d = delta;
    for (int64_t j = 0; j < keys; j++, ps += FL__ATT_ROW, ds += FL__ATT_ROW)
        FL__VECTOR for (int64_t i = 0; i < width; i++) {
            const FL__T p = FL__EXP(ps[i] - l[i]);
            ps[i] = p;
            ds[i] = p * (ds[i] - d[i]) * f;
        }
}

/* keep[j][i] = 1 / (1 - p), or 0 where the uniform number first + i * row + j of rng is below p. */
FL__TARGET static void FL__FN(keep)(void *keep, int64_t keys, int64_t queries, uint64_t first,
                                    uint64_t row, const fl_attention_args *a) {
    const float drop = (float)a->p;
    const FL__T kept = (FL__T)(1 / (1 - a->p));
    uint32_t w[FL__ATT_KEYS + 8];
    for (int64_t i = 0; i < queries; i++) {
        const uint64_t at = first + (uint64_t)i * row, block = a->rng.counter + at / 4;
        FL__T *z = (FL__T *)keep + i;
        for (int64_t j = 0; j < keys / 4 + 2; j++)
            flm_philox(a->rng.key, block + (uint64_t)j, w + 4 * j);
        for (int64_t j = 0; j < keys; j++)
            z[j * FL__ATT_ROW] = drop <= flm_uniform_f32(w[at % 4 + (uint64_t)j]) ? kept : 0;
    }
}

static const fl__att_loops FL__FN(loops) = {
    .scale = FL__FN(scale),
    .fill = FL__FN(fill),
    .mul = FL__FN(mul),
    .scale_rows = FL__FN(scale_rows),
    .hide_future = FL__FN(hide_future),
    .choose = FL__FN(choose),
    .add = FL__FN(add),
    .softmax = FL__FN(softmax),
    .close = FL__FN(close),
    .dots = FL__FN(dots),
    .grads = FL__FN(grads),
    .keep = FL__FN(keep),
};

#undef FL__EXP
#undef FL__LOG
#undef FL__T
#undef FL__S
#undef FL__FN
#undef FL__TARGET
/* MIT licence: see LICENSE. */
