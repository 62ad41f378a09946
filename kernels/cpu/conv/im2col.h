/* kernels/cpu/conv/im2col.h - convolutions as matrix products of an im2col matrix

   Used where the weights are large compared with the images, so that packing them at each call costs as much
   as the sums, and pixels of many channels are so far apart that they evict each other from the cache; and
   where a result has fewer channels than registers have lanes, so that direct.h wastes most products. The
   columns, a row [tap][channel] for each pixel of the result, are written to a workspace, and the matrix
   products read the weights in place:

     y[pixel][o] = columns[pixel][tap, c] times w[o][tap, c] transposed,
     dw[o][tap, c] = dy[pixel][o] transposed times columns[pixel][tap, c],
     dx = the sum of columns[pixel][tap, c] = dy[pixel][o] times w[o][tap, c] over the taps that reach a
     pixel of x, kernel row by kernel row.

   With a 1 x 1 kernel of stride 1 the image itself is the column matrix. Everything is channels-last, in one
   group. */
#ifndef FL_CPU_CONV_IM2COL_H
#define FL_CPU_CONV_IM2COL_H
#include "common.h"

/* Whether y, dx or dw can be computed here. */
FL_PRIVATE bool fl__im2col_can(const fl__conv *v);
/* Whether that is faster than fl__direct_run and fl__weight_run. */
FL_PRIVATE bool fl__im2col_pays(const fl__conv *v);
FL_PRIVATE bool fl__im2col_run(const fl__conv *v);

#endif /* FL_CPU_CONV_IM2COL_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_IM2COL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_IM2COL_IMPL
#define FL_CPU_CONV_IM2COL_IMPL
#include "../../../fl_backend.h"
#include "../../../fl/records/linear.h"
#include "../bf16.h"
#include <string.h>

#define FL__IM2COL_MOST (1 << 24) /* most elements of the columns */

typedef struct fl__im2col {
    const fl__conv *v;
    char *data; /* the columns: [pixels][kh][kw][c] */
} fl__im2col;

/* Whether x itself is the column matrix. */
static bool fl__im2col_is_image(const fl__conv *v) {
    return v->kh * v->kw == 1 && v->stride[0] * v->stride[1] == 1 && v->pad[0] == 0 && v->pad[1] == 0 &&
           v->h == v->oh && v->w == v->ow && fl__conv_dense(&v->x, v->images, v->c, v->h, v->w);
}

FL_PRIVATE bool fl__im2col_can(const fl__conv *v) {
    const int64_t pixels = v->images * v->oh * v->ow, width = v->kh * v->kw * v->c;
    const bool small = pixels <= FL__IM2COL_MOST && width <= FL__IM2COL_MOST / pixels;
    return v->groups == 1 && (v->c == 1 || v->x.c == 1) && (!v->bias || v->bias->stride[0] == 1) &&
           fl__conv_dense(&v->y, v->images, v->o, v->oh, v->ow) &&
           fl__conv_dense(&v->k, v->o, v->c, v->kh, v->kw) && (fl__im2col_is_image(v) || small);
}

static int64_t fl__im2col_round_up(int64_t n, int64_t step) { return fl__ceil_div(n, step) * step; }

/* Whether direct.h computes at least twice as many products: it pads strips of pixels and panels of two
   registers of channels; and a data gradient visits every pixel of x, many of which few pixels of y may
   reach. */
static bool fl__im2col_saves(const fl__conv *v) {
    const bool data = v->direction == FL__CONV_DATA;
    const int64_t strip = v->ck->strip / 2 + 1, width = 2 * v->ks->lanes;
    const int64_t rows = data ? fl__ceil_div(v->h, v->stride[0]) : v->oh;
    const int64_t cols = data ? fl__ceil_div(v->w, v->stride[1]) : v->ow;
    const int64_t direct = rows * fl__im2col_round_up(cols, strip) *
                           (data ? v->o * fl__im2col_round_up(v->c, width)
                                 : v->c * fl__im2col_round_up(v->o, width));
    return direct >= 2 * v->oh * v->ow * v->o * v->c;
}

/* Measured: it pays above these numbers of weights, and for weight gradients whose operands, images in place,
   the product reads without columns. Only these products may be rounded to bf16; then convolutions switch to
   them at an eighth of the weights. */
FL_PRIVATE bool fl__im2col_pays(const fl__conv *v) {
    const int64_t weights = v->kh * v->kw * v->c * v->o;
    const bool pixel = v->kh * v->kw == 1, rounds = fl__bf16_tiles(v->dtype) != NULL;
    if (fl__im2col_saves(v)) return true;
    if (v->direction == FL__CONV_WEIGHT && fl__max(v->c, v->o) <= 256 && fl__im2col_is_image(v)) return true;
    if (v->direction == FL__CONV_WEIGHT) return (v->c >= 256 || (pixel && rounds)) && weights >= 1 << 16;
    return weights >= (pixel ? 1 << 18 : 1 << 20) >> (rounds ? 3 : 0);
}

/* Taps of a kernel row that are contiguous in x, as they are in the columns. */
static int64_t fl__im2col_taps(const fl__conv *v) {
    return v->dilation[1] == 1 && (v->x.w == v->c || v->w == 1) ? v->kw : 1;
}

/* Of `run` taps from tap j on of pixel q of a row of y: taps *lo to *hi are inside x. Returns the pixel of x
   that the first tap reads, which may be outside. */
static int64_t fl__im2col_inside(const fl__conv *v, int64_t q, int64_t j, int64_t run, int64_t *lo,
                                 int64_t *hi) {
    const int64_t at = q * v->stride[1] - v->pad[1] + j * v->dilation[1];
    *lo = fl__conv_clamp(-at, 0, run);
    *hi = fl__conv_clamp(v->w - at, *lo, run);
    return at;
}

/* Task: writes the columns of a range of rows of pixels. */
static void fl__im2col_task(void *arg, int64_t begin, int64_t end) {
    const fl__im2col *p = arg;
    const fl__conv *v = p->v;
    const int64_t pixel = v->c * v->size, run = fl__im2col_taps(v), runs = v->kw / run;
    char *to = p->data + begin * v->ow * v->kh * v->kw * pixel;
    for (int64_t row = begin; row < end; row++) {
        const char *image = v->x.data + row / v->oh * v->x.n * v->size;
        const int64_t y0 = row % v->oh * v->stride[0] - v->pad[0];
        for (int64_t q = 0; q < v->ow; q++)
            for (int64_t t = 0; t < v->kh * runs; t++, to += run * pixel) {
                const int64_t y = y0 + t / runs * v->dilation[0];
                int64_t lo, hi, x = fl__im2col_inside(v, q, t % runs * run, run, &lo, &hi);
                if (y < 0 || y >= v->h) lo = hi = run;
                memset(to, 0, (size_t)(lo * pixel));
                if (lo < hi)
                    memcpy(to + lo * pixel, image + (y * v->x.h + (x + lo) * v->x.w) * v->size,
                           (size_t)((hi - lo) * pixel));
                memset(to + hi * pixel, 0, (size_t)((run - hi) * pixel));
            }
    }
}

/* Sums the columns' contributions to row y of an image of dx, at `to`; from: the image's columns. */
static void fl__col2im_row(const fl__conv *v, const char *from, int64_t y, char *to) {
    const int64_t pixel = v->c * v->size, run = fl__im2col_taps(v);
    for (int64_t x = 0; x < v->w; x++) memset(to + x * v->x.w * v->size, 0, (size_t)pixel);
    for (int64_t i = 0; i < v->kh; i++) {
        const int64_t r = fl__conv_reach(v, 0, y, i);
        for (int64_t q = 0; r >= 0 && q < v->ow; q++)
            for (int64_t j = 0; j < v->kw; j += run) {
                int64_t lo, hi, x = fl__im2col_inside(v, q, j, run, &lo, &hi);
                if (lo < hi)
                    v->ks->add(to + (x + lo) * v->x.w * v->size,
                               from + (((r * v->ow + q) * v->kh + i) * v->kw + j + lo) * pixel,
                               (hi - lo) * v->c);
            }
    }
}

/* Task: sums the columns' contributions to a range of rows of dx. */
static void fl__col2im_task(void *arg, int64_t begin, int64_t end) {
    const fl__im2col *p = arg;
    const fl__conv *v = p->v;
    const int64_t columns = v->oh * v->ow * v->kh * v->kw * v->c * v->size;
    for (int64_t row = begin; row < end; row++) {
        const int64_t n = row / v->h, y = row % v->h;
        fl__col2im_row(v, p->data + n * columns, y, v->x.data + (n * v->x.n + y * v->x.h) * v->size);
    }
}

/* t's data as a dense matrix of rows x columns; transposed: stored column by column. */
static fl_tensor fl__im2col_matrix(const fl_tensor *t, int64_t rows, int64_t columns, bool transposed) {
    fl_tensor m = *t;
    m.ndim = 2;
    m.shape[0] = rows, m.shape[1] = columns;
    m.stride[0] = transposed ? 1 : columns, m.stride[1] = transposed ? rows : 1;
    return m;
}

/* The product of one direction, by the backend's slot: linear, which adds the bias, applies relu and reads
   the weights transposed, or matmul. */
static bool fl__im2col_product(const fl__conv *v, fl_tensor *columns) {
    const fl_call *c = v->call;
    const int64_t pixels = v->images * v->oh * v->ow, width = v->kh * v->kw * v->c;
    const fl_linear_args args = {.act = v->relu ? FL_OP_relu : FL_OP_NONE};
    fl_call product = {.op = FL_OP_matmul, .n_out = 1, .n_in = 2};
    fl_tensor a, b, y;
    if (v->direction == FL__CONV_FORWARD) {
        b = fl__im2col_matrix(c->in[1], v->o, width, false);
        y = fl__im2col_matrix(c->out[0], pixels, v->o, false);
        product = (fl_call){.op = fl_op_linear, .n_out = 1, .n_in = c->n_in, .out = {&y},
                            .in = {columns, &b, c->in[2]}, .args = &args};
    } else if (v->direction == FL__CONV_DATA) {
        a = fl__im2col_matrix(c->in[0], pixels, v->o, false);
        b = fl__im2col_matrix(c->in[1], v->o, width, false);
        product.in[0] = &a, product.in[1] = &b, product.out[0] = columns;
    } else {
        a = fl__im2col_matrix(c->in[1], v->o, pixels, true);
        y = fl__im2col_matrix(c->out[0], v->o, width, false);
        product.in[0] = &a, product.in[1] = columns, product.out[0] = &y;
    }
    const fl_backend *cpu = fl_backend_cpu();
    return cpu->op[product.op](cpu, &product);
}

FL_PRIVATE bool fl__im2col_run(const fl__conv *v) {
    const bool data = v->direction == FL__CONV_DATA;
    const fl_tensor *x = data ? v->call->out[0] : v->call->in[0];
    const int64_t pixels = v->images * v->oh * v->ow, width = v->kh * v->kw * v->c;
    fl_tensor columns = fl__im2col_matrix(x, pixels, width, false);
    if (fl__im2col_is_image(v)) return fl__im2col_product(v, &columns);
    columns.buffer = fl__gemm_scratch(pixels * width, (size_t)v->size, v->op);
    columns.offset = 0;
    if (!columns.buffer) return false;
    if (!fl_buffer_map(columns.buffer)) {
        fl_buffer_drop(columns.buffer);
        return false;
    }
    fl__im2col p = {v, fl_data(&columns)};
    if (!data) fl_parallel(v->images * v->oh, fl__ceil_div(1 << 14, v->ow * width), fl__im2col_task, &p);
    bool ok = fl__im2col_product(v, &columns);
    if (ok && data)
        fl_parallel(v->images * v->h, fl__ceil_div(1 << 14, v->w * width), fl__col2im_task, &p);
    fl_buffer_unmap(columns.buffer);
    fl_buffer_drop(columns.buffer);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
