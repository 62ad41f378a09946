/* kernels/cpu/batch_norm_rows.h - the loops of batch norm for one element type at one ISA level

   batch_norm.h includes it once for each pair, after defining
     FL__T          the element: float or double, FL__LANES of them a register
     FL__I          the integer of its size
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
   and it undefines them all but FL__FN. A unit of work is a plane of one channel or, channels
   innermost, a block of rows of all channels; then `step` is 1, and the values per channel stand
   side by side. */
#include "norm_sums.h"

typedef FL__I FL__FN(bits) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));

/* Mean, and sum of (x - mean)^2, of a unit: the squares while it is in the cache. */
FL__TARGET static void FL__FN(moments)(const fl__bnorm *s, int64_t unit) {
    const int64_t c = s->channels, n = s->width;
    const FL__T *x = (const FL__T *)s->x + fl__bnorm_at(s, unit);
    FL__T *part = (FL__T *)s->part + fl__bnorm_part(s, unit), *squares = part + c;
    if (!s->last) {
        part[0] = (FL__T)(FL__FN(row_sum)(x, n, 0, false) / (double)n);
        part[1] = (FL__T)FL__FN(row_sum)(x, n, part[0], true);
        return;
    }
    const int64_t rows = fl__bnorm_rows(s, unit);
    memset(part, 0, (size_t)(2 * c) * sizeof *part);
    for (int64_t r = 0; r < rows; r++)
        FL__VECTOR for (int64_t i = 0; i < c; i++) part[i] += x[r * c + i];
    for (int64_t i = 0; i < c; i++) part[i] /= (FL__T)rows;
    for (int64_t r = 0; r < rows; r++)
        FL__VECTOR for (int64_t i = 0; i < c; i++) {
            const FL__T d = x[r * c + i] - part[i];
            squares[i] += d * d;
        }
}

/* mean, var and 1 / sqrt(var + eps) of a channel from its units */
FL__TARGET static void FL__FN(statistics)(const fl__bnorm *s, int64_t channel) {
    fl__bnorm_walk w = fl__bnorm_of(s, channel);
    const FL__T *part = s->part;
    double mean = 0, squares = 0, count = (double)s->count;
    for (int64_t k = 0; k < w.n; k++)
        mean += (double)part[w.first + k * w.step] * (double)fl__bnorm_size(s, k) / count;
    for (int64_t k = 0; k < w.n; k++) {
        const FL__T *own = part + w.first + k * w.step;
        const double gap = (double)own[0] - mean;
        squares += (double)own[w.second] + (double)fl__bnorm_size(s, k) * gap * gap;
    }
    ((FL__T *)s->mean)[channel] = (FL__T)mean;
    ((FL__T *)s->var)[channel] = (FL__T)(squares / count);
}

/* scale = w / sqrt(var + eps), rstd without w */
FL__TARGET static void FL__FN(scales)(const fl__bnorm *s) {
    const FL__T *var = s->var, *w = s->w;
    for (int64_t i = 0; i < s->channels; i++) {
        FL__T rstd = 1 / (FL__T)sqrt(var[i] + (FL__T)s->eps);
        ((FL__T *)s->rstd)[i] = rstd;
        ((FL__T *)s->scale)[i] = rstd * w[i];
    }
}

/* y = (x - mean) scale + b [+ add], [at least 0]; element i of channel i * step */
FL__SUM_INLINE FL__TARGET void FL__FN(apply_row)(const fl__bnorm *s, const int step, int64_t at,
                                                 int64_t n, int64_t channel) {
    const FL__T *x = (const FL__T *)s->x + at, *add = s->add ? (const FL__T *)s->add + at : NULL;
    const FL__T *mean = (const FL__T *)s->mean + channel, *b = (const FL__T *)s->b + channel;
    const FL__T *scale = (const FL__T *)s->scale + channel;
    FL__T *y = (FL__T *)s->y + at;
    const bool relu = s->relu;
    FL__VECTOR for (int64_t i = 0; i < n; i++) {
        FL__T v = (x[i] - mean[i * step]) * scale[i * step] + b[i * step];
        if (add) v += add[i];
        y[i] = (relu & (v <= 0)) ? 0 : v;
    }
}

FL__TARGET static void FL__FN(apply)(const fl__bnorm *s, int64_t unit) {
    int64_t at = fl__bnorm_at(s, unit), c = s->channels;
    if (!s->last) {
        FL__FN(apply_row)(s, 0, at, s->width, unit % c);
        return;
    }
    for (int64_t r = 0; r < fl__bnorm_rows(s, unit); r++) FL__FN(apply_row)(s, 1, at + r * c, c, 0);
}

/* sum of g and of g (x - mean) rstd of a plane, where g is dy, or 0 where y is at most 0 */
FL__SUM_INLINE FL__TARGET void FL__FN(plane_sums)(const fl__bnorm *s, int64_t unit,
                                                  const bool masked) {
    const int64_t at = fl__bnorm_at(s, unit), n = s->width, channel = unit % s->channels;
    const FL__T *x = (const FL__T *)s->x + at, *dy = (const FL__T *)s->dy + at;
    const FL__T *y = masked ? (const FL__T *)s->y + at : dy;
    const FL__T mean = ((const FL__T *)s->mean)[channel], rstd = ((const FL__T *)s->rstd)[channel];
    double sum[2] = {0, 0};
    for (int64_t i = 0; i < n;) {
        FL__FN(vec) acc[2][4] = {{{0}, {0}, {0}, {0}}, {{0}, {0}, {0}, {0}}};
        int64_t end = i + fl__min(n - i, FL__SUM_BLOCK);
        for (; i + 4 * FL__LANES <= end; i += 4 * FL__LANES)
            FL__SUM_UNROLL for (int k = 0; k < 4; k++) {
                int64_t j = i + k * FL__LANES;
                FL__FN(vec) g = FL__LOAD(dy + j);
                if (masked) g = (FL__FN(vec))((FL__FN(bits))g & ~(FL__LOAD(y + j) <= 0));
                acc[0][k] += g;
                acc[1][k] += g * ((FL__LOAD(x + j) - mean) * rstd);
            }
        FL__T rest[2] = {0, 0};
        for (; i < end; i++) {
            const FL__T g = masked && y[i] <= 0 ? 0 : dy[i];
            rest[0] += g;
            rest[1] += g * ((x[i] - mean) * rstd);
        }
        for (int k = 0; k < 2; k++) sum[k] += (double)(FL__FN(total)(acc[k]) + rest[k]);
    }
    FL__T *part = (FL__T *)s->part + fl__bnorm_part(s, unit);
    part[0] = (FL__T)sum[0];
    part[1] = (FL__T)sum[1];
}

/* The same sums of a row, of each channel. */
FL__SUM_INLINE FL__TARGET void FL__FN(row_sums)(const fl__bnorm *s, int64_t at, FL__T *part,
                                                const bool masked) {
    const int64_t c = s->channels;
    const FL__T *x = (const FL__T *)s->x + at, *dy = (const FL__T *)s->dy + at;
    const FL__T *y = masked ? (const FL__T *)s->y + at : dy, *mean = s->mean, *rstd = s->rstd;
    FL__VECTOR for (int64_t i = 0; i < c; i++) {
        const FL__T g = (masked & (y[i] <= 0)) ? 0 : dy[i];
        part[i] += g;
        part[c + i] += g * ((x[i] - mean[i]) * rstd[i]);
    }
}

FL__TARGET static void FL__FN(grad_sums)(const fl__bnorm *s, int64_t unit) {
    const int64_t c = s->channels;
    if (!s->last && s->relu) FL__FN(plane_sums)(s, unit, true);
    else if (!s->last) FL__FN(plane_sums)(s, unit, false);
    if (!s->last) return;
    FL__T *part = (FL__T *)s->part + fl__bnorm_part(s, unit);
    int64_t at = fl__bnorm_at(s, unit), end = at + fl__bnorm_rows(s, unit) * c;
    memset(part, 0, (size_t)(2 * c) * sizeof *part);
    for (; at < end; at += c)
        if (s->relu) FL__FN(row_sums)(s, at, part, true);
        else FL__FN(row_sums)(s, at, part, false);
}

/* db, dw, and their means over the channel's values */
FL__TARGET static void FL__FN(grad_statistics)(const fl__bnorm *s, int64_t channel) {
    fl__bnorm_walk w = fl__bnorm_of(s, channel);
    double sum[2] = {0, 0};
    for (int64_t k = 0; k < w.n; k++)
        for (int i = 0; i < 2; i++)
            sum[i] += (double)((const FL__T *)s->part)[w.first + k * w.step + i * w.second];
    if (s->db) ((FL__T *)s->db)[channel] = (FL__T)sum[0];
    if (s->dw) ((FL__T *)s->dw)[channel] = (FL__T)sum[1];
    for (int i = 0; i < 2; i++)
        ((FL__T *)s->mean_of[i])[channel] = (FL__T)(sum[i] / (double)s->count);
}

/* dx = scale (g - (n mean(g n) + mean(g))), n = (x - mean) rstd; dadd = g */
FL__SUM_INLINE FL__TARGET void FL__FN(grad_row)(const fl__bnorm *s, const int step, int64_t at,
                                                int64_t n, int64_t channel, const bool masked) {
    const FL__T *x = (const FL__T *)s->x + at, *dy = (const FL__T *)s->dy + at;
    const FL__T *y = masked ? (const FL__T *)s->y + at : dy;
    const FL__T *mean = (const FL__T *)s->mean + channel, *rstd = (const FL__T *)s->rstd + channel;
    const FL__T *scale = (const FL__T *)s->scale + channel;
    const FL__T *m1 = (const FL__T *)s->mean_of[0] + channel;
    const FL__T *m2 = (const FL__T *)s->mean_of[1] + channel;
    FL__T *dx = s->dx ? (FL__T *)s->dx + at : NULL, *dadd = s->dadd ? (FL__T *)s->dadd + at : NULL;
    if (dx) {
        FL__VECTOR for (int64_t i = 0; i < n; i++) {
            const int64_t j = i * step;
            const FL__T g = (masked & (y[i] <= 0)) ? 0 : dy[i];
            dx[i] = scale[j] * (g - ((x[i] - mean[j]) * rstd[j] * m2[j] + m1[j]));
        }
    }
    if (dadd) {
        FL__VECTOR for (int64_t i = 0; i < n; i++) dadd[i] = (masked & (y[i] <= 0)) ? 0 : dy[i];
    }
}

FL__TARGET static void FL__FN(grad_apply)(const fl__bnorm *s, int64_t unit) {
    int64_t at = fl__bnorm_at(s, unit), c = s->channels;
    if (!s->last) {
        if (s->relu) FL__FN(grad_row)(s, 0, at, s->width, unit % c, true);
        else FL__FN(grad_row)(s, 0, at, s->width, unit % c, false);
        return;
    }
    for (int64_t end = at + fl__bnorm_rows(s, unit) * c; at < end; at += c)
        if (s->relu) FL__FN(grad_row)(s, 1, at, c, 0, true);
        else FL__FN(grad_row)(s, 1, at, c, 0, false);
}

static const fl__bnorm_kernels FL__FN(kernels) = {
    FL__FN(moments), FL__FN(statistics),     FL__FN(scales),    FL__FN(apply),
    FL__FN(grad_sums), FL__FN(grad_statistics), FL__FN(grad_apply)};
#undef FL__T
#undef FL__I
#undef FL__LANES
#undef FL__TARGET
#undef FL__LOAD
#undef FL__STORE
/* MIT licence: see LICENSE. */
