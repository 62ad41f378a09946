/* kernels/cpu/pool_lanes.h - max pooling of channels-last images at one ISA level

   pool.h includes it once for each, after defining
     FL__T          the element, FL__LANES of them a register
     FL__I          the integer of its size
     FL__LOWEST     below all others
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
   and it undefines them all. A line is a row of places of one image. */

#define FL__BYTES(T) (FL__LANES * sizeof(T))
#ifdef FL__FLOAT
#define FL__NO_NAN(v) (v == v)
#else
#define FL__NO_NAN(v) ~(FL__FN(marks)){0}
#endif
typedef FL__T FL__FN(vec) __attribute__((vector_size(FL__BYTES(FL__T))));
typedef FL__I FL__FN(marks) __attribute__((vector_size(FL__BYTES(FL__I))));
typedef int64_t FL__FN(places) __attribute__((vector_size(FL__BYTES(int64_t))));
typedef uint8_t FL__FN(taps) __attribute__((vector_size(FL__BYTES(uint8_t))));
typedef uint16_t FL__FN(words) __attribute__((vector_size(FL__BYTES(uint16_t))));

/* The maximum of n channels, from x on, over a window, and the mark of its place. */
FL__POOL_INLINE FL__TARGET void FL__FN(max_lanes)(const fl__pooling *p, const fl__pooling_walk *w,
                                                  const FL__T *x, int64_t to, const int64_t n) {
    FL__FN(vec) best = (FL__FN(vec)){0} + FL__LOWEST;
    FL__FN(marks) at = {0};
    if (w->rows > 0 && w->cols > 0) {
        memcpy(&best, x + w->at, (size_t)n * sizeof *x);
        at += (FL__I)w->mark;
    }
    for (int64_t i = 0; i < w->rows; i++) {
        const FL__T *from = x + w->at + i * w->down;
        FL__I mark = (FL__I)(w->mark + i * w->mark_down);
        for (int64_t j = 0; j < w->cols; j++, from += w->right, mark++) {
            FL__FN(vec) v = {0};
            memcpy(&v, from, (size_t)n * sizeof *x);
            FL__FN(marks) take = ~(v <= best) & FL__NO_NAN(best);
            best = (FL__FN(vec))((take & (FL__FN(marks))v) | (~take & (FL__FN(marks))best));
            at = (take & mark) | (~take & at);
        }
    }
    memcpy((FL__T *)p->out + to, &best, (size_t)n * sizeof best[0]);
    if (p->taps) {
        FL__FN(taps) tap = __builtin_convertvector(at, FL__FN(taps));
        memcpy(p->taps + to, &tap, (size_t)n);
    } else {
        FL__FN(places) place = __builtin_convertvector(at, FL__FN(places));
        memcpy(p->index + to, &place, (size_t)n * sizeof place[0]);
    }
}

/* Output row `line` of all images' rows. */
FL__TARGET static void FL__FN(max_line)(const fl__pooling *p, int64_t line) {
    const FL__T *x = (const FL__T *)p->in + line / p->oh * p->h * p->w * p->c;
    const int64_t c = p->c;
    for (int64_t col = 0; col < p->ow; col++) {
        const fl__pooling_walk w = fl__pooling_window_walk(p, line % p->oh, col);
        const int64_t to = (line * p->ow + col) * c;
        int64_t k = 0;
        for (; k + FL__LANES <= c; k += FL__LANES)
            FL__FN(max_lanes)(p, &w, x + k, to + k, FL__LANES);
        if (k < c) FL__FN(max_lanes)(p, &w, x + k, to + k, c - k);
    }
}

#ifdef FL__FLOAT
/* n channels of the gradient at a place: what the outputs that found their maxima there give, in
   their order. */
FL__POOL_INLINE FL__TARGET void FL__FN(grad_lanes)(const fl__pooling_walk *w, const FL__T *dy,
                                                   const uint8_t *taps, FL__T *dx,
                                                   const int64_t n) {
    FL__FN(vec) sum = {0};
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t at = w->at + i * w->down;
        FL__I mark = (FL__I)(w->mark + i * w->mark_down);
        for (int64_t j = 0; j < w->cols; j++, at += w->right, mark += (FL__I)w->mark_right) {
            FL__FN(vec) g = {0};
            FL__FN(taps) tap = {0};
            memcpy(&g, dy + at, (size_t)n * sizeof *dx);
            memcpy(&tap, taps + at, (size_t)n);
            /* in two steps, which gcc 12 takes in registers */
            FL__FN(words) word = __builtin_convertvector(tap, FL__FN(words));
            FL__FN(marks) here = __builtin_convertvector(word, FL__FN(marks)) == mark;
            sum += (FL__FN(vec))(here & (FL__FN(marks))g);
        }
    }
    memcpy(dx, &sum, (size_t)n * sizeof *dx);
}

/* Row `line` of all gradients' rows. */
FL__TARGET static void FL__FN(max_grad_line)(const fl__pooling *p, int64_t line) {
    const int64_t image = line / p->h * p->oh * p->ow * p->c, c = p->c;
    const FL__T *dy = (const FL__T *)p->in + image;
    const uint8_t *taps = p->taps + image;
    FL__T *dx = (FL__T *)p->out + line * p->w * c;
    const fl__pooling_box rows = fl__pooling_cover(p, 0, line % p->h, p->oh);
    fl__pooling_box cols = {0, 0};
    for (int64_t col = 0; col < p->w; col++, dx += c) {
        fl__pooling_move(p, 1, col, p->ow, &cols);
        const fl__pooling_walk w = fl__pooling_cover_walk(p, line % p->h, col, rows, cols);
        int64_t k = 0;
        for (; k + FL__LANES <= c; k += FL__LANES)
            FL__FN(grad_lanes)(&w, dy + k, taps + k, dx + k, FL__LANES);
        if (k < c) FL__FN(grad_lanes)(&w, dy + k, taps + k, dx + k, c - k);
    }
}
#endif

#undef FL__BYTES
#undef FL__NO_NAN
#undef FL__T
#undef FL__I
#undef FL__LANES
#undef FL__LOWEST
#undef FL__FN
#undef FL__TARGET
#undef FL__FLOAT
/* MIT licence: see LICENSE. */
