/* pool_plane.h - pooling of one plane of an image, or averages of channels side by side, for one
   element type

   pool.h includes it once for each, after defining FL__T (the element), FL__LOWEST (below all
   others), FL__IS_NAN(x), FL__FN(name), and FL__FLOAT if it is a float: then averages and gradients
   too. */

/* Columns o0 .. o0 + n of output row `row`, from number `to` of the outputs on: tap by tap over the
   whole row, so the loop has no windows in it. best and at (place in the window or, relative to its
   origin, in the image; -1: none yet) stay in the first-level cache. */
static void FL__FN(max_row)(const fl__pooling *p, const FL__T *x, int64_t row, int64_t o0,
                            int64_t n, int64_t to) {
    FL__T best[FL__POOL_COLUMNS];
    int32_t at[FL__POOL_COLUMNS];
    for (int64_t o = 0; o < n; o++) best[o] = FL__LOWEST, at[o] = -1;
    const int64_t top = row * p->stride[0] - p->pad[0], left = o0 * p->stride[1] - p->pad[1],
                  step = p->stride[1];
    for (int64_t i = 0; i < p->kernel[0]; i++) {
        if (top + i < 0 || top + i >= p->h) continue;
        for (int64_t j = 0; j < p->kernel[1]; j++) {
            int64_t lo, hi;
            fl__pooling_inside(left + j, step, p->w, n, &lo, &hi);
            const FL__T *from = x + (top + i) * p->w + left + j;
            const int32_t position = (int32_t)(i * (p->taps ? p->kernel[1] : p->w) + j);
            for (int64_t o = lo; o < hi; o++) {
                FL__T v = from[o * step];
                bool take = (!(v <= best[o]) | (at[o] < 0)) & !FL__IS_NAN(best[o]);
                best[o] = take ? v : best[o];
                at[o] = take ? position : at[o];
            }
        }
    }
    memcpy((FL__T *)p->out + to, best, (size_t)n * sizeof *best);
    for (int64_t o = 0; o < n; o++) {
        if (p->taps) p->taps[to + o] = (uint8_t)(at[o] < 0 ? 0 : at[o]);
        else p->index[to + o] = at[o] < 0 ? 0 : top * p->w + left + o * step + at[o];
    }
}

static void FL__FN(max)(const fl__pooling *p, int64_t plane) {
    const FL__T *x = (const FL__T *)p->in + plane * p->h * p->w;
    for (int64_t row = 0; row < p->oh; row++)
        for (int64_t o = 0; o < p->ow; o += FL__POOL_COLUMNS) {
            int64_t n = p->ow - o < FL__POOL_COLUMNS ? p->ow - o : FL__POOL_COLUMNS;
            int64_t to = (plane * p->oh + row) * p->ow + o;
            FL__FN(max_row)(p, x, row, o, n, to);
        }
}

#ifdef FL__FLOAT
/* Channels-last: a block of an image's channels. */
static void FL__FN(max_grad_block)(const fl__pooling *p, int64_t block) {
    const int64_t blocks = (p->c + FL__POOL_BLOCK - 1) / FL__POOL_BLOCK, image = block / blocks;
    const int64_t first = block % blocks * FL__POOL_BLOCK, size = p->h * p->w;
    const int64_t n = p->c - first < FL__POOL_BLOCK ? p->c - first : FL__POOL_BLOCK;
    const int64_t from = image * p->oh * p->ow * p->c + first;
    FL__T *dx = (FL__T *)p->out + image * size * p->c + first;
    for (int64_t i = 0; i < size; i++) memset(dx + i * p->c, 0, (size_t)n * sizeof *dx);
    for (int64_t o = 0; o < p->oh * p->ow; o++) {
        const FL__T *dy = (const FL__T *)p->in + from + o * p->c;
        const int64_t *index = p->index + from + o * p->c;
        for (int64_t k = 0; k < n; k++)
            if (index[k] >= 0 && index[k] < size) dx[index[k] * p->c + k] += dy[k];
            else __atomic_store_n(p->outside, true, __ATOMIC_RELAXED);
    }
}

/* The gradient by taps: step[tap] leads from a window's origin to that place. */
static void FL__FN(max_grad_taps)(const fl__pooling *p, int64_t plane) {
    FL__T *dx = (FL__T *)p->out + plane * p->h * p->w;
    const FL__T *dy = (const FL__T *)p->in + plane * p->oh * p->ow;
    const uint8_t *tap = p->taps + plane * p->oh * p->ow;
    int64_t step[FL__POOL_TAPS] = {0};
    for (int64_t k = 0; k < p->kernel[0] * p->kernel[1]; k++)
        step[k] = k / p->kernel[1] * p->w + k % p->kernel[1];
    memset(dx, 0, (size_t)(p->h * p->w) * sizeof *dx);
    for (int64_t row = 0; row < p->oh; row++)
        for (int64_t col = 0; col < p->ow; col++, dy++, tap++) {
            const int64_t top = row * p->stride[0] - p->pad[0];
            dx[top * p->w + col * p->stride[1] - p->pad[1] + step[*tap]] += *dy;
        }
}

static void FL__FN(max_grad)(const fl__pooling *p, int64_t plane) {
    FL__T *dx = (FL__T *)p->out + plane * p->h * p->w;
    const FL__T *dy = (const FL__T *)p->in + plane * p->oh * p->ow;
    const int64_t *index = p->index + plane * p->oh * p->ow, size = p->h * p->w;
    memset(dx, 0, (size_t)size * sizeof *dx);
    for (int64_t o = 0; o < p->oh * p->ow; o++)
        if (index[o] >= 0 && index[o] < size) dx[index[o]] += dy[o];
        else __atomic_store_n(p->outside, true, __ATOMIC_RELAXED);
}

static void FL__FN(avg)(const fl__pooling *p, int64_t plane) {
    const FL__T *x = (const FL__T *)p->in + plane * p->h * p->w;
    FL__T *y = (FL__T *)p->out + plane * p->oh * p->ow;
    for (int64_t row = 0; row < p->oh; row++, y += p->ow) {
        const int64_t top = row * p->stride[0] - p->pad[0], step = p->stride[1];
        memset(y, 0, (size_t)p->ow * sizeof *y);
        for (int64_t i = 0; i < p->kernel[0]; i++) {
            if (top + i < 0 || top + i >= p->h) continue;
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                int64_t lo, hi;
                fl__pooling_inside(j - p->pad[1], step, p->w, p->ow, &lo, &hi);
                const FL__T *from = x + (top + i) * p->w + j - p->pad[1];
                for (int64_t o = lo; o < hi; o++) y[o] += from[o * step];
            }
        }
        for (int64_t o = 0; o < p->ow; o++) y[o] /= (FL__T)fl__pooling_count(p, row, o);
    }
}

/* Channels-last: to = the sum of the places of a box of `from`, which is `width` places wide, each
   times `share`; share 0: over the count of its window. */
static void FL__FN(avg_box)(const fl__pooling *p, const FL__T *from, int64_t width,
                            const fl__pooling_box *rows, const fl__pooling_box *cols, FL__T share,
                            FL__T *to) {
    const int64_t c = p->c;
    bool first = true;
    for (int64_t row = rows->lo; row < rows->hi; row++)
        for (int64_t col = cols->lo; col < cols->hi; col++, first = false) {
            const FL__T *x = from + (row * width + col) * c;
            const FL__T scale =
                share > 0 ? share : 1 / (FL__T)fl__pooling_count(p, row, col);
            if (first) for (int64_t k = 0; k < c; k++) to[k] = x[k] * scale;
            else for (int64_t k = 0; k < c; k++) to[k] += x[k] * scale;
        }
    if (first) memset(to, 0, (size_t)c * sizeof *to);
}

/* Output row `line` of all images' rows, channels-last. */
static void FL__FN(avg_line)(const fl__pooling *p, int64_t line) {
    const FL__T *x = (const FL__T *)p->in + line / p->oh * p->h * p->w * p->c;
    FL__T *y = (FL__T *)p->out + line * p->ow * p->c;
    const int64_t row = line % p->oh;
    const fl__pooling_box rows = fl__pooling_window(p, 0, row, p->h);
    for (int64_t col = 0; col < p->ow; col++, y += p->c) {
        const fl__pooling_box cols = fl__pooling_window(p, 1, col, p->w);
        FL__FN(avg_box)(p, x, p->w, &rows, &cols, 1 / (FL__T)fl__pooling_count(p, row, col), y);
    }
}

/* Row `line` of all gradients' rows. */
static void FL__FN(avg_grad_line)(const fl__pooling *p, int64_t line) {
    const FL__T *dy = (const FL__T *)p->in + line / p->h * p->oh * p->ow * p->c;
    FL__T *dx = (FL__T *)p->out + line * p->w * p->c;
    const fl__pooling_box rows = fl__pooling_cover(p, 0, line % p->h, p->oh);
    for (int64_t col = 0; col < p->w; col++, dx += p->c) {
        const fl__pooling_box cols = fl__pooling_cover(p, 1, col, p->ow);
        FL__FN(avg_box)(p, dy, p->ow, &rows, &cols, 0, dx);
    }
}

static void FL__FN(avg_grad)(const fl__pooling *p, int64_t plane) {
    FL__T *dx = (FL__T *)p->out + plane * p->h * p->w;
    const FL__T *dy = (const FL__T *)p->in + plane * p->oh * p->ow;
    memset(dx, 0, (size_t)(p->h * p->w) * sizeof *dx);
    for (int64_t row = 0; row < p->oh; row++, dy += p->ow)
        for (int64_t i = 0; i < p->kernel[0]; i++) {
            const int64_t y = row * p->stride[0] - p->pad[0] + i, step = p->stride[1];
            if (y < 0 || y >= p->h) continue;
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                int64_t lo, hi;
                fl__pooling_inside(j - p->pad[1], step, p->w, p->ow, &lo, &hi);
                FL__T *to = dx + y * p->w + j - p->pad[1];
                for (int64_t o = lo; o < hi; o++)
                    to[o * step] += dy[o] / (FL__T)fl__pooling_count(p, row, o);
            }
        }
}
#endif

#undef FL__T
#undef FL__LOWEST
#undef FL__FN
#undef FL__IS_NAN
#undef FL__FLOAT
/* MIT licence: see LICENSE. */
