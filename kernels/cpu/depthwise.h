/* depthwise.h - a part of conv.h: convolutions of each channel by a kernel of its own

   All that there is to compute are sums over pairs of lines of channels, y[c] = sum over i of
   a[i][c] b[i][c]: for a pixel of y over its taps of x and w, for one of dx over its taps of dy and
   w, for a tap of dw over pixels of x and dy. Images are channels-last; weights and their gradient
   are turned, [tap][channel]. */

typedef struct fl__depthwise fl__depthwise;
struct fl__depthwise {
    const fl__conv *v;
    fl__image x, y;      /* or dx, dy */
    char *w;             /* [tap][channel] */
    const char *bias;    /* NULL: none */
    int64_t splits;      /* of the rows of y, for dw: [split][tap][channel] */
    fl__rooms rooms;
    /* of y or dx: the pairs of lines that pixel (r, q) of image n sums, and how many there are */
    int64_t (*pairs)(const fl__depthwise *p, int64_t n, int64_t r, int64_t q, const void **a,
                     const void **b);
    fl__image to;
    int64_t rows, cols;
};

#define FL__DEPTHWISE_ROWS 16 /* of a split */

/* Whether to go this way: unless another is forced. */
static bool fl__depthwise_wants(const fl__conv *v, const fl__image *x, const fl__image *y) {
    return fl__conv_algorithm != FL__CONV_DIRECT && v->groups > 1 && v->c == 1 && v->o == 1 &&
           x->c == 1 && y->c == 1;
}

/* Opens scratch: tables of 2 `pairs` pointers for each task, and the weights of all splits. */
static bool fl__depthwise_open(fl__depthwise *p, int64_t pairs, const char *op) {
    const int64_t weights = p->splits * p->v->kh * p->v->kw * p->v->groups * p->v->size;
    const int64_t table = 2 * pairs * (int64_t)sizeof(void *);
    bool ok = fl__rooms_open(&p->rooms, INT32_MAX, table, weights, op);
    if (ok) p->w = p->rooms.more;
    return ok;
}

/* Copies weights [channel][0][i][j] to [tap][channel]. */
static void fl__depthwise_turn(const fl__depthwise *p, const fl__image *w) {
    const fl__conv *v = p->v;
    for (int64_t t = 0; t < v->kh * v->kw; t++) {
        const char *from = w->data + (t / v->kw * w->h + t % v->kw * w->w) * v->size;
        fl__conv_copy(p->w + t * v->groups * v->size, 1, from, w->n, v->groups, v->size);
    }
}

static char *fl__depthwise_pixel(const fl__conv *v, const fl__image *x, int64_t n, int64_t r,
                                 int64_t q) {
    return x->data + (n * x->n + r * x->h + q * x->w) * v->size;
}

static int64_t fl__depthwise_forward_pairs(const fl__depthwise *p, int64_t n, int64_t r, int64_t q,
                                           const void **a, const void **b) {
    const fl__conv *v = p->v;
    int64_t count = 0;
    for (int64_t t = 0; t < v->kh * v->kw; t++) {
        int64_t h = r * v->stride[0] - v->pad[0] + t / v->kw * v->dilation[0];
        int64_t w = q * v->stride[1] - v->pad[1] + t % v->kw * v->dilation[1];
        if (h < 0 || h >= v->h || w < 0 || w >= v->w) continue;
        a[count] = fl__depthwise_pixel(v, &p->x, n, h, w);
        b[count++] = p->w + t * v->groups * v->size;
    }
    return count;
}

static int64_t fl__depthwise_data_pairs(const fl__depthwise *p, int64_t n, int64_t h, int64_t w,
                                        const void **a, const void **b) {
    const fl__conv *v = p->v;
    int64_t count = 0;
    for (int64_t t = 0; t < v->kh * v->kw; t++) {
        int64_t r = fl__columns_reach(v, 0, h, t / v->kw);
        int64_t q = fl__columns_reach(v, 1, w, t % v->kw);
        if (r < 0 || q < 0) continue;
        a[count] = fl__depthwise_pixel(v, &p->y, n, r, q);
        b[count++] = p->w + t * v->groups * v->size;
    }
    return count;
}

/* A range of rows of y or dx. */
static void fl__depthwise_task(void *arg, int64_t begin, int64_t end) {
    const fl__depthwise *p = arg;
    char *room = fl__room_enter(&p->rooms);
    const void **a = (const void **)(void *)room, **b = a + p->v->kh * p->v->kw;
    for (int64_t row = begin; row < end; row++)
        for (int64_t q = 0; q < p->cols; q++) {
            const int64_t n = row / p->rows, r = row % p->rows;
            const int64_t count = p->pairs(p, n, r, q, a, b);
            p->v->ck.line(fl__depthwise_pixel(p->v, &p->to, n, r, q), p->bias, a, b, count,
                          p->v->groups);
        }
    fl__room_leave(&p->rooms, room);
}

/* Adds what row r of image n of dy gives to all taps of a split's dw, which starts there if
   `first`. a: 2 ow pointers. */
static void fl__depthwise_row(const fl__depthwise *p, char *dw, int64_t n, int64_t r, bool first,
                              const void **a) {
    const fl__conv *v = p->v;
    const void **b = a + v->ow;
    for (int64_t t = 0; t < v->kh * v->kw; t++, dw += v->groups * v->size) {
        int64_t h = r * v->stride[0] - v->pad[0] + t / v->kw * v->dilation[0], count = 0;
        for (int64_t q = 0; q < v->ow && h >= 0 && h < v->h; q++) {
            int64_t w = q * v->stride[1] - v->pad[1] + t % v->kw * v->dilation[1];
            if (w < 0 || w >= v->w) continue;
            a[count] = fl__depthwise_pixel(v, &p->x, n, h, w);
            b[count++] = fl__depthwise_pixel(v, &p->y, n, r, q);
        }
        if (first || count > 0) v->ck.line(dw, first ? NULL : dw, a, b, count, v->groups);
    }
}

/* A range of splits. */
static void fl__depthwise_weights_task(void *arg, int64_t begin, int64_t end) {
    const fl__depthwise *p = arg;
    const fl__conv *v = p->v;
    const int64_t rows = v->images * v->oh;
    char *room = fl__room_enter(&p->rooms);
    for (int64_t split = begin; split < end; split++) {
        char *dw = p->w + split * v->kh * v->kw * v->groups * v->size;
        int64_t first = split * rows / p->splits, last = (split + 1) * rows / p->splits;
        for (int64_t row = first; row < last; row++)
            fl__depthwise_row(p, dw, row / v->oh, row % v->oh, row == first,
                              (const void **)(void *)room);
    }
    fl__room_leave(&p->rooms, room);
}

/* Rows that a thread should take at least. */
static int64_t fl__depthwise_grain(const fl__conv *v, int64_t pixels) {
    return fl__ceil_div(1 << 16, pixels * v->kh * v->kw * v->groups);
}

/* All pixels of y or dx. */
static bool fl__depthwise_run(fl__depthwise *p, const fl__image *w, const char *op) {
    p->splits = 1;
    if (!fl__depthwise_open(p, p->v->kh * p->v->kw, op)) return false;
    fl__depthwise_turn(p, w);
    fl_parallel(p->v->images * p->rows, fl__depthwise_grain(p->v, p->cols), fl__depthwise_task, p);
    fl__rooms_close(&p->rooms);
    return true;
}

static bool fl__depthwise_forward(const fl__conv *v, fl__image x, fl__image w,
                                  const fl_tensor *bias, fl__image y) {
    fl__depthwise p = {.v = v, .x = x, .to = y, .rows = v->oh, .cols = v->ow,
                       .pairs = fl__depthwise_forward_pairs, .bias = bias ? fl_data(bias) : NULL};
    return fl__depthwise_run(&p, &w, "conv2d");
}

static bool fl__depthwise_data(const fl__conv *v, fl__image dy, fl__image w, fl__image dx) {
    fl__depthwise p = {.v = v, .y = dy, .to = dx, .rows = v->h, .cols = v->w,
                       .pairs = fl__depthwise_data_pairs};
    return fl__depthwise_run(&p, &w, "conv2d_grad_input");
}

static bool fl__depthwise_weights(const fl__conv *v, fl__image x, fl__image dy, fl__image dw) {
    const int64_t taps = v->kh * v->kw, line = v->groups * v->size;
    fl__depthwise p = {.v = v, .x = x, .y = dy};
    p.splits = fl__ceil_div(v->images * v->oh, FL__DEPTHWISE_ROWS);
    if (!fl__depthwise_open(&p, v->ow, "conv2d_grad_weight")) return false;
    int64_t grain = fl__depthwise_grain(v, FL__DEPTHWISE_ROWS * v->ow);
    fl_parallel(p.splits, grain, fl__depthwise_weights_task, &p);
    for (int64_t s = 1; s < p.splits; s++) v->ks->add(p.w, p.w + s * taps * line, taps * v->groups);
    for (int64_t t = 0; t < taps; t++) {
        char *to = dw.data + (t / v->kw * dw.h + t % v->kw * dw.w) * v->size;
        fl__conv_copy(to, dw.n, p.w + t * line, 1, v->groups, v->size);
    }
    fl__rooms_close(&p.rooms);
    return true;
}
/* MIT licence: see LICENSE. */
