/* columns.h - a part of conv.h: convolutions as products of whole matrices

   Where the weights are large beside the images, packing them at each call costs as much as the
   sums, and pixels of many channels lie so far apart that they push each other out of the cache.
   There the columns, a row [tap][channel] for each pixel of the result, are written out, and the
   matrix products read the weights as they lie:

     y[pixel][o] = columns[pixel][tap, c] times w[o][tap, c] turned,
     dw[o][tap, c] = dy[pixel][o] turned times columns[pixel][tap, c],
     dx = the sum of columns[pixel][tap, c] = dy[pixel][o] times w[o][tap, c] over the taps that
     reach a pixel of x, in their order.

   An image that a 1 x 1 kernel reads pixel by pixel is its columns. Everything is channels-last,
   in one group. */

#define FL__COLUMNS_MOST (1 << 24) /* elements of the columns */

typedef struct fl__columns {
    const fl__conv *v;
    fl__image image; /* x, or dx */
    char *data;
} fl__columns;

/* True if an image of n x h x w pixels of c channels is dense, channels last. */
static bool fl__image_dense(const fl__image *x, int64_t n, int64_t c, int64_t h, int64_t w) {
    return (c == 1 || x->c == 1) && (w == 1 || x->w == c) && (h == 1 || x->h == w * c) &&
           (n == 1 || x->n == h * w * c);
}

static int64_t fl__columns_pixels(const fl__conv *v) { return v->images * v->oh * v->ow; }
static int64_t fl__columns_width(const fl__conv *v) { return v->kh * v->kw * v->c; }

/* True if x is its own columns. */
static bool fl__columns_are(const fl__conv *v, const fl__image *x) {
    return v->kh * v->kw == 1 && v->stride[0] * v->stride[1] == 1 && v->pad[0] == 0 &&
           v->pad[1] == 0 && v->h == v->oh && v->w == v->ow &&
           fl__image_dense(x, v->images, v->c, v->h, v->w);
}

/* True if operands of these layouts can go this way; x: or dx, y: or dy. */
static bool fl__columns_can(const fl__conv *v, const fl__image *x, const fl__image *w,
                            const fl__image *y) {
    int64_t most = fl__columns_pixels(v) <= FL__COLUMNS_MOST ? fl__columns_width(v) : INT64_MAX;
    return v->groups == 1 && (v->c == 1 || x->c == 1) &&
           fl__image_dense(y, v->images, v->o, v->oh, v->ow) &&
           fl__image_dense(w, v->o, v->c, v->kh, v->kw) &&
           (fl__columns_are(v, x) || most <= FL__COLUMNS_MOST / fl__columns_pixels(v));
}

/* Measured: it pays from so many weights on. Only the products of this way may be rounded: then
   1 x 1 kernels take it earlier. */
static bool fl__columns_pay(const fl__conv *v) {
    const int64_t weights = fl__columns_width(v) * v->o;
    if (v->kh * v->kw > 1) return weights >= 1 << 20;
    return weights >= 1 << (fl__gemm_pairs(v->ks) ? 15 : 18);
}

static bool fl__columns_weights_pays(const fl__conv *v) {
    bool rounds = v->kh * v->kw == 1 && fl__gemm_pairs(v->ks);
    return (v->c >= 256 || rounds) && fl__columns_width(v) * v->o >= 1 << 16;
}

/* Whether to go this way: pays is what was measured for the direction. */
static bool fl__columns_wants(const fl__conv *v, const fl__image *x, const fl__image *w,
                              const fl__image *y, bool pays) {
    bool wanted = fl__conv_algorithm == FL__CONV_COLUMNS ||
                  (fl__conv_algorithm == FL__CONV_AUTO && pays);
    return wanted && fl__columns_can(v, x, w, y);
}

/* Writes the columns of a range of rows of pixels. */
static void fl__columns_task(void *arg, int64_t begin, int64_t end) {
    const fl__columns *p = arg;
    const fl__conv *v = p->v;
    const int64_t pixel = v->c * v->size;
    char *to = p->data + begin * v->ow * v->kh * v->kw * pixel;
    for (int64_t row = begin; row < end; row++) {
        const char *image = p->image.data + row / v->oh * p->image.n * v->size;
        const int64_t y0 = row % v->oh * v->stride[0] - v->pad[0];
        for (int64_t q = 0; q < v->ow; q++)
            for (int64_t t = 0; t < v->kh * v->kw; t++, to += pixel) {
                int64_t y = y0 + t / v->kw * v->dilation[0];
                int64_t x = q * v->stride[1] - v->pad[1] + t % v->kw * v->dilation[1];
                const char *from = image + (y * p->image.h + x * p->image.w) * v->size;
                if (y >= 0 && y < v->h && x >= 0 && x < v->w) memcpy(to, from, (size_t)pixel);
                else memset(to, 0, (size_t)pixel);
            }
    }
}

/* Along dimension d: the pixel of the result for which tap t reads pixel `at` of x, or -1. */
static int64_t fl__columns_reach(const fl__conv *v, int d, int64_t at, int64_t t) {
    int64_t from = at + v->pad[d] - t * v->dilation[d], last = d == 0 ? v->oh : v->ow;
    bool is = from >= 0 && from % v->stride[d] == 0 && from / v->stride[d] < last;
    return is ? from / v->stride[d] : -1;
}

/* Sums what the columns hold for a range of rows of dx. */
static void fl__columns_sum_task(void *arg, int64_t begin, int64_t end) {
    const fl__columns *p = arg;
    const fl__conv *v = p->v;
    const int64_t pixel = v->c * v->size, taps = v->kh * v->kw;
    for (int64_t row = begin; row < end; row++) {
        const int64_t n = row / v->h, y = row % v->h;
        for (int64_t x = 0; x < v->w; x++) {
            char *to = p->image.data + (n * p->image.n + y * p->image.h + x * p->image.w) * v->size;
            bool first = true;
            for (int64_t t = 0; t < taps; t++) {
                int64_t r = fl__columns_reach(v, 0, y, t / v->kw);
                int64_t q = fl__columns_reach(v, 1, x, t % v->kw);
                if (r < 0 || q < 0) continue;
                const char *from = p->data + (((n * v->oh + r) * v->ow + q) * taps + t) * pixel;
                if (first) memcpy(to, from, (size_t)pixel);
                else v->ks->add(to, from, v->c);
                first = false;
            }
            if (first) memset(to, 0, (size_t)pixel);
        }
    }
}

/* A matrix over t's data. */
static fl_tensor fl__columns_matrix(const fl_tensor *t, int64_t rows, int64_t columns) {
    fl_tensor m = *t;
    m.ndim = 2;
    m.shape[0] = rows, m.shape[1] = columns;
    m.stride[0] = columns, m.stride[1] = 1;
    return m;
}

/* The same turned. */
static fl_tensor fl__columns_turned(const fl_tensor *t, int64_t rows, int64_t columns) {
    fl_tensor m = fl__columns_matrix(t, columns, rows);
    m.shape[0] = rows, m.shape[1] = columns;
    m.stride[0] = 1, m.stride[1] = rows;
    return m;
}

/* The columns of x as a matrix: x itself, or in a buffer of their own, filled if `fill`. */
static bool fl__columns_open(const fl__conv *v, const fl_tensor *x, bool fill, fl_tensor *columns,
                             const char *op) {
    const int64_t pixels = fl__columns_pixels(v), width = fl__columns_width(v);
    fl__image image = fl__image_of(x);
    *columns = fl__columns_matrix(x, pixels, width);
    if (fl__columns_are(v, &image)) {
        fl_buffer_keep(columns->buffer);
        return true;
    }
    columns->buffer = fl__gemm_scratch(pixels * width, (size_t)v->size, op);
    columns->offset = 0;
    if (!columns->buffer) return false;
    if (!fl_buffer_map(columns->buffer)) {
        fl_buffer_drop(columns->buffer);
        return false;
    }
    fl__columns p = {v, image, fl_data(columns)};
    int64_t grain = fl__ceil_div(1 << 14, v->ow * width);
    if (fill) fl_parallel(v->images * v->oh, grain, fl__columns_task, &p);
    return true;
}

static void fl__columns_close(fl_tensor *columns, const fl_tensor *x) {
    if (columns->buffer != x->buffer) fl_buffer_unmap(columns->buffer);
    fl_buffer_drop(columns->buffer);
}

static bool fl__columns_forward(const fl__conv *v, const fl_call *c) {
    const int64_t pixels = fl__columns_pixels(v), width = fl__columns_width(v);
    fl_tensor columns, w = fl__columns_matrix(c->in[1], v->o, width),
              y = fl__columns_matrix(c->out[0], pixels, v->o);
    if (!fl__columns_open(v, c->in[0], true, &columns, "conv2d")) return false;
    const fl_linear_args plain = {.act = FL_OP_NONE};
    fl_call product = {.op = fl_op_linear, .n_out = 1, .n_in = c->n_in, .out = {&y},
                       .in = {&columns, &w, c->in[2]}, .args = &plain};
    bool ok = fl__cpu_linear(NULL, &product);
    fl__columns_close(&columns, c->in[0]);
    return ok;
}

static bool fl__columns_data(const fl__conv *v, const fl_call *c) {
    const int64_t pixels = fl__columns_pixels(v), width = fl__columns_width(v);
    fl_tensor columns, *dx = c->out[0], dy = fl__columns_matrix(c->in[0], pixels, v->o),
              w = fl__columns_matrix(c->in[1], v->o, width);
    if (!fl__columns_open(v, dx, false, &columns, "conv2d_grad_input")) return false;
    fl_call product = {.op = FL_OP_matmul, .n_out = 1, .n_in = 2, .out = {&columns},
                       .in = {&dy, &w}};
    bool ok = fl__cpu_matmul(NULL, &product);
    fl__columns p = {v, fl__image_of(dx), fl_data(&columns)};
    int64_t grain = fl__ceil_div(1 << 14, v->w * width);
    if (ok && columns.buffer != dx->buffer)
        fl_parallel(v->images * v->h, grain, fl__columns_sum_task, &p);
    fl__columns_close(&columns, dx);
    return ok;
}

static bool fl__columns_weights(const fl__conv *v, const fl_call *c) {
    const int64_t pixels = fl__columns_pixels(v), width = fl__columns_width(v);
    fl_tensor columns, dy = fl__columns_turned(c->in[1], v->o, pixels),
              dw = fl__columns_matrix(c->out[0], v->o, width);
    if (!fl__columns_open(v, c->in[0], true, &columns, "conv2d_grad_weight")) return false;
    fl_call product = {.op = FL_OP_matmul, .n_out = 1, .n_in = 2, .out = {&dw},
                       .in = {&dy, &columns}};
    bool ok = fl__cpu_matmul(NULL, &product);
    fl__columns_close(&columns, c->in[0]);
    return ok;
}
/* MIT licence: see LICENSE. */
