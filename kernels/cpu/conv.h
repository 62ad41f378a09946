/* conv.h - 2-D convolution and its two gradients on the CPU, as matrix products without a column
   matrix

   Forward: y[image][o][pixel] = sum over k = (c, tap) of w[o][k] x[offset[k] + pixel]. The input is
   copied once into planes with its padding, split into stride_h x stride_w phases, so that the
   pixels of an output row stand side by side in the source for every tap, whatever stride and
   dilation. Panels of B are then cut straight from the planes by vector copies (gemm.h's
   pack_runs); without padding and stride they are cut from the input itself.

   Data gradient: the pixels of dx that share ih mod stride_h and iw mod stride_w see the same taps;
   each such phase is a convolution of stride 1 of dy with those taps, with the roles of o and c
   exchanged. It runs through the same pass.

   Weight gradient: dw[(tap, c)][o] = sum over pixels of x[pixel + tap][c] dy[pixel][o]. Both are
   turned channels-last once; then a row of taps of x (kw * c values side by side) and a row of dy
   are the operands of a register tile where they stand. The sum over pixels is cut into parts by
   size, added in order. */
#include "../../fl_tensor.h"
#include "gemm.h"
#ifndef FL_CPU_CONV_H
#define FL_CPU_CONV_H

/* x [n, c, h, w], w [o, c / groups, kh, kw], [bias o] -> [n, o, oh, ow]; contiguous; f32, f64. */
FL_PRIVATE bool fl__cpu_conv2d(const fl_backend *self, const fl_call *c);
/* dy, w -> dx */
FL_PRIVATE bool fl__cpu_conv2d_grad_input(const fl_backend *self, const fl_call *c);
/* x, dy -> dw */
FL_PRIVATE bool fl__cpu_conv2d_grad_weight(const fl_backend *self, const fl_call *c);

#endif /* FL_CPU_CONV_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_IMPL
#define FL_CPU_CONV_IMPL

#include <string.h>

/* The sizes of a convolution. */
typedef struct fl__conv {
    const fl__kernels *ks;
    int64_t size; /* of an element */
    int64_t images, groups, c, o; /* c, o: channels per group */
    int64_t h, w, oh, ow, kh, kw;
    const int64_t *stride, *pad, *dilation; /* h, w; pad: the low side */
} fl__conv;

static int64_t fl__conv_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t fl__conv_max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t fl__conv_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t fl__conv_floor(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static fl__conv fl__conv_of(const fl_call *c, const fl_tensor *x, const fl_tensor *w,
                            const fl_tensor *y) {
    const fl_conv2d_args *a = c->args;
    return (fl__conv){
        .ks = fl__gemm_kernels(x->dtype), .size = (int64_t)fl_dtype_size(x->dtype),
        .images = x->shape[0], .groups = a->groups, .c = w->shape[1], .o = w->shape[0] / a->groups,
        .h = x->shape[2], .w = x->shape[3], .oh = y->shape[2], .ow = y->shape[3],
        .kh = w->shape[2], .kw = w->shape[3],
        .stride = a->stride, .pad = a->pad_lo, .dilation = a->dilation,
    };
}

/* n elements, the source's `from_step` apart, the destination's `to_step`. */
static void fl__conv_copy(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                          int64_t size) {
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)(n * size));
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 4, from + i * from_step * 4, 4);
    } else {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 8, from + i * from_step * 8, 8);
    }
}

/* >>planes: a padded copy of images, split into phases */

typedef struct fl__planes {
    const char *from;
    char *to;
    int64_t size, count, h, w;          /* planes of h x w */
    int64_t stride[2], pad[2];          /* pixel i of phase p is row i stride + p - pad */
    int64_t phases[2], rows, pitch;     /* of each phase */
} fl__planes;

static int64_t fl__planes_size(const fl__planes *p) {
    return p->phases[0] * p->phases[1] * p->rows * p->pitch;
}

/* Phase (a, b) of a plane: what is outside the plane is 0. */
static void fl__planes_phase(const fl__planes *p, char *to, const char *plane, int64_t a,
                             int64_t b) {
    const int64_t size = p->size, s = p->stride[1], shift = b - p->pad[1];
    int64_t lo = fl__conv_max(0, -fl__conv_floor(shift, s)),
            hi = fl__conv_floor(p->w - 1 - shift, s) + 1;
    lo = fl__conv_min(lo, p->pitch);
    hi = fl__conv_max(lo, fl__conv_min(hi, p->pitch));
    for (int64_t r = 0; r < p->rows; r++, to += p->pitch * size) {
        int64_t i = r * p->stride[0] + a - p->pad[0];
        if (i < 0 || i >= p->h) {
            memset(to, 0, (size_t)(p->pitch * size));
            continue;
        }
        memset(to, 0, (size_t)(lo * size));
        fl__conv_copy(to + lo * size, 1, plane + (i * p->w + lo * s + shift) * size, s, hi - lo,
                      size);
        memset(to + hi * size, 0, (size_t)((p->pitch - hi) * size));
    }
}

static void fl__planes_task(void *arg, int64_t begin, int64_t end) {
    const fl__planes *p = arg;
    const int64_t phase = p->rows * p->pitch * p->size;
    for (int64_t plane = begin; plane < end; plane++) {
        const char *from = p->from + plane * p->h * p->w * p->size;
        char *to = p->to + plane * fl__planes_size(p) * p->size;
        for (int64_t a = 0; a < p->phases[0]; a++)
            for (int64_t b = 0; b < p->phases[1]; b++, to += phase)
                fl__planes_phase(p, to, from, a, b);
    }
}

static void fl__planes_make(fl__planes *p) {
    fl_parallel(p->count, fl__conv_div_up(1 << 15, fl__planes_size(p)), fl__planes_task, p);
}

/* True if the phases would be the planes themselves. */
static bool fl__planes_same(const fl__planes *p) {
    return p->pad[0] == 0 && p->pad[1] == 0 && p->stride[0] == 1 && p->stride[1] == 1 &&
           p->rows == p->h && p->pitch == p->w;
}

/* >>pass: products of packed weights by patches of planes */

/* For each image and group: out[i][row][col] = bias[i] + sum over k of A[i][k] src[offset[k] + row
   * pitch + col]. Small images are strung together into one row of columns (flat), so that tiles
   are full. */
typedef struct fl__conv_pass {
    fl__gemm g; /* of group 0; g.packed holds all groups */
    int64_t images, groups;
    const char *src;
    int64_t src_image, src_group, pitch; /* in elements, as are the strides of out */
    const int64_t *offset;
    int64_t rows, cols;
    char *out;
    int64_t out_image, out_plane, out_row, out_col;
    const char *bias; /* NULL: none */
    char *temp; /* g.m * rows * cols * images * groups elements, NULL: the tiles write into out */
    bool flat;
    int64_t items, columns, block_tiles, row_blocks, block_columns, column_blocks;
    int64_t taps, k_tap, depth, k_depth; /* k = tap * k_tap + channel * k_depth */
    bool by_pixel;
} fl__conv_pass;

/* What the tiles of one item read. */
typedef struct fl__conv_item {
    const fl__conv_pass *pass;
    const char *src;
} fl__conv_item;

/* Cuts columns j .. j + n into pixels that stand side by side in the source; returns how many
   pieces. */
static int fl__conv_runs(const fl__conv_pass *p, int64_t j, int64_t n, fl__pixels *run) {
    int count = 0;
    for (int64_t to = 0; to < n; count++) {
        int64_t pixel = (j + to) % (p->rows * p->cols), image = (j + to) / (p->rows * p->cols);
        int64_t row = pixel / p->cols, col = pixel % p->cols;
        int64_t left = p->pitch == p->cols ? p->rows * p->cols - pixel : p->cols - col;
        run[count].from = image * p->src_image + row * p->pitch + col;
        run[count].to = (int)to;
        run[count].n = (int)fl__conv_min(left, n - to);
        to += run[count].n;
    }
    return count;
}

static void fl__conv_panel(const fl__gemm *g, int64_t k0, int64_t k, int64_t j, int n, void *dst) {
    const fl__conv_item *item = g->source;
    fl__pixels run[64];
    int runs = fl__conv_runs(item->pass, j, n, run);
    g->ks->pack_runs(dst, g->width, k, item->src, item->pass->offset + k0, run, runs);
}

static void fl__conv_fill_bias(const fl__conv_pass *p, const fl__gemm *g, int64_t group, int64_t i0,
                               int64_t i1, int64_t j0, int64_t j1) {
    int64_t size = (int64_t)g->ks->size;
    for (int64_t i = i0; i < i1; i++) {
        char *row = g->c + (i * g->ldc + j0) * size;
        const char *value = p->bias + (group * g->m + i) * size;
        fl__conv_copy(row, 1, value, 0, j1 - j0, size);
    }
}

/* Columns j0 .. j1 of rows i0 .. i1 from temp to where they belong. */
static void fl__conv_scatter(const fl__conv_pass *p, const fl__gemm *g, char *out, int64_t i0,
                             int64_t i1, int64_t j0, int64_t j1) {
    const int64_t size = (int64_t)g->ks->size, pixels = p->rows * p->cols;
    bool dense = p->out_col == 1 && p->out_row == p->cols;
    for (int64_t i = i0; i < i1; i++) {
        const char *from = g->c + i * g->ldc * size;
        for (int64_t j = j0, n; j < j1; j += n) {
            int64_t image = j / pixels, pixel = j % pixels, row = pixel / p->cols,
                    col = pixel % p->cols;
            int64_t at =
                image * p->out_image + i * p->out_plane + row * p->out_row + col * p->out_col;
            n = fl__conv_min(j1 - j, dense ? pixels - pixel : p->cols - col);
            fl__conv_copy(out + at * size, p->out_col, from + j * size, 1, n, size);
        }
    }
}

static void fl__conv_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_pass *p = arg;
    const int64_t size = (int64_t)p->g.ks->size;
    for (int64_t task = begin; task < end; task++) {
        int64_t j0 = task % p->column_blocks * p->block_columns;
        int64_t j1 = fl__conv_min(j0 + p->block_columns, p->columns),
                block = task / p->column_blocks;
        int64_t item = block / p->row_blocks, group = item % p->groups, image = item / p->groups;
        fl__gemm g = p->g;
        int64_t t0 = block % p->row_blocks * p->block_tiles;
        int64_t t1 = fl__conv_min(t0 + p->block_tiles, fl__gemm_tiles(&g));
        int64_t i0 = fl__gemm_row(&g, t0), i1 = fl__gemm_row(&g, t1);
        char *out = p->out + (image * p->out_image + group * g.m * p->out_plane) * size;
        fl__conv_item source = {p, p->src + (image * p->src_image + group * p->src_group) * size};
        g.source = &source;
        g.packed += group * g.m * g.k * size;
        g.c = p->temp ? p->temp + item * g.m * p->columns * size : out;
        if (p->bias) fl__conv_fill_bias(p, &g, group, i0, i1, j0, j1);
        fl__gemm_block(&g, t0, t1, j0, j1);
        if (p->temp) fl__conv_scatter(p, &g, out, i0, i1, j0, j1);
    }
}

/* >>by pixel: the transposed product, for small images, where panels of patches would cost much.
   The rows of a tile are pixels of an output row, read in place; its columns are channels, a panel
   of the packed weights. */

#define FL__CONV_TAPS 64

/* Points the segments of a tile, one for each tap, at the pixels from (row, col). */
static void fl__conv_segments(const fl__conv_pass *p, const char *src, const char *weights,
                              int64_t row, int64_t col, fl__segment *segment) {
    const int64_t size = (int64_t)p->g.ks->size;
    for (int64_t t = 0; t < p->taps; t++) {
        segment[t].a = src + (p->offset[t * p->k_tap] + row * p->pitch + col) * size;
        segment[t].b = weights + t * p->k_tap * p->g.width * size;
    }
}

/* block[pixel][channel] of an image for one panel of channels. */
static void fl__conv_pixel_block(const fl__conv_pass *p, const char *src, const char *weights,
                                 const char *bias, char *block) {
    const fl__gemm *g = &p->g, line = {.m = p->cols, .rows = g->rows};
    const int64_t size = (int64_t)g->ks->size, bytes = g->width * size;
    fl__segment segment[FL__CONV_TAPS];
    fl__tile tile = {.segments = p->taps, .segment = segment, .k = p->depth, .rsa = 1,
                     .csa = p->offset[p->k_depth] - p->offset[0], .ldb = p->k_depth * g->width,
                     .ldc = g->width, .add = bias != NULL};
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t t = 0; t < fl__gemm_tiles(&line); t++) {
            int64_t col = fl__gemm_row(&line, t), m = fl__gemm_row(&line, t + 1) - col;
            fl__conv_segments(p, src, weights, row, col, segment);
            tile.c = block;
            for (int64_t i = 0; bias && i < m; i++) memcpy(block + i * bytes, bias, (size_t)bytes);
            fl__gemm_tile(g->ks, (int)m, g->width, &tile);
            block += m * bytes;
        }
}

/* A range of (image, group). */
static void fl__conv_pixel_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_pass *p = arg;
    const fl__gemm *g = &p->g;
    const int64_t size = (int64_t)g->ks->size;
    _Alignas(64) char block[FL__PANEL_BYTES + FL__PANEL_SLACK];
    for (int64_t item = begin; item < end; item++) {
        int64_t group = item % p->groups, image = item / p->groups;
        const char *src = p->src + (image * p->src_image + group * p->src_group) * size;
        char *out = p->out + image * p->out_image * size;
        for (int64_t o = group * g->m; o < (group + 1) * g->m; o += g->width) {
            const char *bias = p->bias ? p->bias + o * size : NULL;
            fl__conv_pixel_block(p, src, g->packed + o * g->k * size, bias, block);
            g->ks->pack(out + o * p->out_plane * size, p->out_plane, p->out_plane, g->width, block,
                        g->width, 1);
        }
    }
}

/* Whether the pass runs by pixel: tiles full of channels and nearly of pixels, the output of an
   image for a panel in the first-level cache, a panel of weights in the second. */
static bool fl__conv_wants_pixels(const fl__conv_pass *p) {
    const fl__gemm *g = &p->g;
    const int64_t bytes = g->width * (int64_t)g->ks->size, most = 1 << 18;
    int64_t height = p->cols / fl__conv_div_up(p->cols, g->rows);
    bool dense = p->out_col == 1 && p->out_row == p->cols && p->out_plane == p->rows * p->cols;
    return dense && p->images * p->groups >= 8 && p->out_plane <= FL__PANEL_BYTES / bytes &&
           p->taps > 1 && p->taps <= FL__CONV_TAPS && p->depth >= 8 && g->m % g->width == 0 &&
           4 * height >= 3 * g->rows && g->k <= most / bytes;
}

/* Sets items, columns and blocks; true if temp is wanted. */
static bool fl__conv_cut(fl__conv_pass *p) {
    int64_t pixels = p->rows * p->cols;
    p->g.pack_b = fl__conv_panel;
    fl__gemm_shape(&p->g, true);
    p->by_pixel = fl__conv_wants_pixels(p);
    if (p->by_pixel) return false;
    p->flat = pixels < 256 && p->images > 1;
    p->items = p->flat ? p->groups : p->images * p->groups;
    p->columns = p->flat ? p->images * pixels : pixels;
    int64_t tiles = fl__gemm_tiles(&p->g), width = p->g.width;
    p->block_tiles = fl__conv_min(tiles, fl__conv_div_up(256, p->g.rows));
    p->row_blocks = fl__conv_div_up(tiles, p->block_tiles);
    int64_t most = 512, rest = p->items * p->row_blocks;
    while (most > 64 && rest * fl__conv_div_up(p->columns, most) < 8) most /= 2;
    int64_t blocks = fl__conv_div_up(p->columns, most);
    p->block_columns = fl__conv_div_up(fl__conv_div_up(p->columns, blocks), width) * width;
    p->column_blocks = fl__conv_div_up(p->columns, p->block_columns);
    p->g.add = p->bias != NULL;
    bool temp = p->flat || p->out_col != 1 || p->out_row != p->cols;
    p->g.ldc = temp ? p->columns : p->out_plane;
    return temp;
}

static void fl__conv_run(fl__conv_pass *p) {
    if (p->by_pixel) {
        int64_t work = p->g.m * p->g.k * p->out_plane;
        fl_parallel(p->images * p->groups, fl__conv_div_up(1 << 18, work), fl__conv_pixel_task, p);
        return;
    }
    int64_t tasks = p->items * p->row_blocks * p->column_blocks;
    int64_t work = p->g.m * p->g.k * p->columns / (p->row_blocks * p->column_blocks) + 1;
    fl_parallel(tasks, fl__conv_div_up(1 << 18, work), fl__conv_task, p);
}

typedef struct fl__conv_weights {
    const fl__gemm *g;
    char *to;
} fl__conv_weights;

static void fl__conv_pack_weights(void *arg, int64_t begin, int64_t end) {
    const fl__conv_weights *p = arg;
    fl__gemm g = *p->g;
    int64_t tiles = fl__gemm_tiles(&g), size = (int64_t)g.ks->size;
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / tiles, t = i % tiles;
        g.a = p->g->a + group * g.m * g.k * size;
        fl__gemm_pack(&g, t, t + 1, p->to + group * g.m * g.k * size);
    }
}

/* Panels of g->width rows of A, as [k][row]. */
static void fl__conv_pack_channels(void *arg, int64_t begin, int64_t end) {
    const fl__conv_weights *p = arg;
    const int64_t size = (int64_t)p->g->ks->size, width = p->g->width, k = p->g->k;
    for (int64_t i = begin; i < end; i++)
        p->g->ks->pack(p->to + i * width * k * size, width, width, k,
                       p->g->a + i * width * k * size, k, 1);
}

/* Packs A, [groups][m][k] at pass->g.a, into `to`. */
static void fl__conv_pack(fl__conv_pass *pass, char *to) {
    fl__conv_weights arg = {&pass->g, to};
    pass->g.rsa = pass->g.k;
    pass->g.csa = 1;
    if (pass->by_pixel)
        fl_parallel(pass->groups * pass->g.m / pass->g.width,
                    fl__conv_div_up(1 << 14, pass->g.width * pass->g.k), fl__conv_pack_channels,
                    &arg);
    else fl_parallel(pass->groups * fl__gemm_tiles(&pass->g),
                fl__conv_div_up(1 << 14, pass->g.rows * pass->g.k), fl__conv_pack_weights, &arg);
    pass->g.packed = to;
}

/* Elements of a part of scratch that is read in whole registers: at least 16 more than its n, so
   that a read past its end touches nothing that another thread writes. */
static int64_t fl__conv_part(int64_t n) {
    return (n + 31) / 16 * 16;
}

/* A scratch buffer in several parts; all functions below map one and unmap it. */
static char *fl__conv_map(fl_buffer **scratch, int64_t elements, int64_t size, const char *op) {
    *scratch = fl__gemm_scratch(elements, (size_t)size, op);
    char *at = *scratch ? fl_buffer_map(*scratch) : NULL;
    if (!at) fl_buffer_drop(*scratch);
    return at;
}

static void fl__conv_unmap(fl_buffer *scratch) {
    fl_buffer_unmap(scratch);
    fl_buffer_drop(scratch);
}

/* Bytes of `n` offsets, in elements of `size`, rounded so that what follows stays aligned. */
static int64_t fl__conv_room(int64_t n, int64_t size) { return (n * 8 / size + 15) / 16 * 16; }

/* >>forward */

static fl__planes fl__conv_input_planes(const fl__conv *v) {
    fl__planes p = {.size = v->size, .count = v->images * v->groups * v->c, .h = v->h, .w = v->w};
    const int64_t k[2] = {v->kh, v->kw}, out[2] = {v->oh, v->ow};
    int64_t extent[2];
    for (int d = 0; d < 2; d++) {
        p.stride[d] = v->stride[d];
        p.pad[d] = v->pad[d];
        p.phases[d] = fl__conv_min(v->stride[d], (k[d] - 1) * v->dilation[d] + 1);
        extent[d] = out[d] + (k[d] - 1) * v->dilation[d] / v->stride[d];
    }
    p.rows = extent[0];
    p.pitch = extent[1];
    return p;
}

/* offset[(c, tap)] in the planes of an image. */
static void fl__conv_input_offsets(const fl__conv *v, const fl__planes *p, int64_t *offset) {
    for (int64_t c = 0; c < v->c; c++)
        for (int64_t i = 0; i < v->kh; i++)
            for (int64_t j = 0; j < v->kw; j++) {
                int64_t y = i * v->dilation[0], x = j * v->dilation[1];
                int64_t phase = y % v->stride[0] * p->phases[1] + x % v->stride[1];
                *offset++ = c * fl__planes_size(p) + phase * p->rows * p->pitch +
                            y / v->stride[0] * p->pitch + x / v->stride[1];
            }
}

static bool fl__conv_forward(const fl__conv *v, const char *x, const char *w, const char *bias,
                             char *y) {
    fl__planes planes = fl__conv_input_planes(v);
    int64_t plane = fl__planes_size(&planes), k = v->c * v->kh * v->kw;
    bool same = fl__planes_same(&planes);
    fl__conv_pass p = {.g = {.ks = v->ks, .m = v->o, .k = k, .a = w},
                       .images = v->images,
                       .groups = v->groups,
                       .src_image = v->groups * v->c * plane,
                       .src_group = v->c * plane,
                       .pitch = planes.pitch,
                       .rows = v->oh,
                       .cols = v->ow,
                       .out = y,
                       .out_image = v->groups * v->o * v->oh * v->ow,
                       .out_plane = v->oh * v->ow,
                       .out_row = v->ow,
                       .out_col = 1,
                       .taps = v->kh * v->kw,
                       .k_tap = 1,
                       .depth = v->c,
                       .k_depth = v->kh * v->kw,
                       .bias = bias};
    bool temp = fl__conv_cut(&p);
    int64_t offsets = fl__conv_room(k, v->size), weights = v->groups * v->o * k;
    int64_t copy = same ? 0 : fl__conv_part(planes.count * plane);
    fl_buffer *scratch;
    char *at =
        fl__conv_map(&scratch, offsets + weights + copy + (temp ? p.out_image * v->images : 0),
                     v->size, "conv2d");
    if (!at) return false;
    fl__conv_input_offsets(v, &planes, (int64_t *)at);
    p.offset = (int64_t *)at;
    planes.from = p.src = x;
    if (!same) {
        p.src = planes.to = at + (offsets + weights) * v->size;
        fl__planes_make(&planes);
    }
    p.temp = temp ? at + (offsets + weights + copy) * v->size : NULL;
    fl__conv_pack(&p, at + offsets * v->size);
    fl__conv_run(&p);
    fl__conv_unmap(scratch);
    return true;
}

FL_PRIVATE bool fl__cpu_conv2d(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    if (!fl_make(y)) return false;
    if (fl_numel(y) == 0) return true;
    fl__conv v = fl__conv_of(c, c->in[0], c->in[1], y);
    const char *bias = c->n_in > 2 && c->in[2] ? fl_data(c->in[2]) : NULL;
    return fl__conv_forward(&v, fl_data(c->in[0]), fl_data(c->in[1]), bias, fl_data(y));
}

/* >>data gradient */

/* The taps that reach the pixels of dx with ih mod stride = phase along dim d: dy's row for pixel
   number r of the phase is r + shift. Returns how many. */
static int64_t fl__conv_taps(const fl__conv *v, int d, int64_t phase, int64_t *tap,
                             int64_t *shift) {
    int64_t count = 0, k = d == 0 ? v->kh : v->kw;
    for (int64_t t = 0; t < k; t++) {
        int64_t at = phase + v->pad[d] - t * v->dilation[d];
        if (at - fl__conv_floor(at, v->stride[d]) * v->stride[d] != 0) continue;
        if (tap) tap[count] = t;
        if (shift) shift[count] = fl__conv_floor(at, v->stride[d]);
        count++;
    }
    return count;
}

/* dy with as much zero padding as any pixel of dx reaches past its edges. */
static fl__planes fl__conv_output_planes(const fl__conv *v) {
    fl__planes p = {.size = v->size, .count = v->images * v->groups * v->o, .h = v->oh, .w = v->ow,
                    .stride = {1, 1}, .phases = {1, 1}};
    const int64_t k[2] = {v->kh, v->kw}, in[2] = {v->h, v->w}, out[2] = {v->oh, v->ow};
    int64_t extent[2];
    for (int d = 0; d < 2; d++) {
        int64_t first = fl__conv_floor(v->pad[d] - (k[d] - 1) * v->dilation[d], v->stride[d]);
        int64_t last = fl__conv_floor(in[d] - 1 + v->pad[d], v->stride[d]);
        p.pad[d] = fl__conv_max(0, -first);
        extent[d] = p.pad[d] + fl__conv_max(out[d], last + 1);
    }
    p.rows = extent[0];
    p.pitch = extent[1];
    return p;
}

/* One phase of dx: its taps, and where its tables are. */
typedef struct fl__conv_phase {
    const fl__conv *v;
    int64_t a, b;       /* ih mod stride_h, iw mod stride_w */
    int64_t th, tw;     /* taps along h, w */
    int64_t *tap_h, *tap_w, *shift_h, *shift_w;
    const char *turned; /* [groups][c, kh, kw][o] */
    char *to;           /* [groups][c][th, tw, o] */
} fl__conv_phase;

/* turned[group][c, tap][o] = w[group, o][c, tap], for blocks begin .. end of FL__TURN rows of a
   group. */
#define FL__TURN 64
typedef struct fl__conv_turned {
    const fl__conv *v;
    const char *w;
    char *turned;
} fl__conv_turned;

static void fl__conv_turn_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_turned *p = arg;
    const fl__conv *v = p->v;
    const int64_t rows = v->c * v->kh * v->kw, blocks = fl__conv_div_up(rows, FL__TURN);
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / blocks * rows * v->o, r = i % blocks * FL__TURN;
        v->ks->pack(p->turned + (group + r * v->o) * v->size, v->o, v->o,
                    fl__conv_min(FL__TURN, rows - r), p->w + (group + r) * v->size, rows, 1);
    }
}

/* to[group, c][t][o] = turned[group, c, tap t][o], for a range of (group, c). */
static void fl__conv_pick_taps(void *arg, int64_t begin, int64_t end) {
    const fl__conv_phase *p = arg;
    const fl__conv *v = p->v;
    const int64_t row = v->o * v->size;
    char *to = p->to + begin * p->th * p->tw * row;
    for (int64_t c = begin; c < end; c++)
        for (int64_t i = 0; i < p->th; i++)
            for (int64_t j = 0; j < p->tw; j++, to += row)
                memcpy(to, p->turned + ((c * v->kh + p->tap_h[i]) * v->kw + p->tap_w[j]) * row,
                       (size_t)row);
}

/* offset[(tap, o)] in the planes of an image of dy. */
static void fl__conv_output_offsets(const fl__conv_phase *p, const fl__planes *planes,
                                    int64_t *offset) {
    for (int64_t i = 0; i < p->th; i++)
        for (int64_t j = 0; j < p->tw; j++)
            for (int64_t o = 0; o < p->v->o; o++)
                *offset++ = o * fl__planes_size(planes) +
                            (planes->pad[0] + p->shift_h[i]) * planes->pitch + planes->pad[1] +
                            p->shift_w[j];
}

/* Scratch of the data gradient, in elements. */
typedef struct fl__conv_room_of {
    int64_t taps, offsets, weights, planes, temp;
} fl__conv_room_of;

static fl__conv_pass fl__conv_phase_pass(const fl__conv *v, const fl__planes *planes,
                                         const fl__conv_phase *f, char *dx) {
    int64_t plane = fl__planes_size(planes);
    return (fl__conv_pass){
        .g = {.ks = v->ks, .m = v->c, .k = v->o * f->th * f->tw},
        .images = v->images, .groups = v->groups,
        .src = planes->to ? planes->to : planes->from,
        .src_image = v->groups * v->o * plane, .src_group = v->o * plane, .pitch = planes->pitch,
        .rows = (v->h - f->a + v->stride[0] - 1) / v->stride[0],
        .cols = (v->w - f->b + v->stride[1] - 1) / v->stride[1],
        .out = dx + (f->a * v->w + f->b) * v->size,
        .out_image = v->groups * v->c * v->h * v->w, .out_plane = v->h * v->w,
        .out_row = v->stride[0] * v->w, .out_col = v->stride[1],
        .taps = f->th * f->tw, .k_tap = v->o, .depth = v->o, .k_depth = 1,
    };
}

/* The tables, weights and the product of one phase. `at` is the scratch behind the planes. */
static void fl__conv_run_phase(fl__conv_phase *f, const fl__planes *planes,
                               const fl__conv_room_of *room, char *at, char *dx) {
    const fl__conv *v = f->v;
    f->tap_h = (int64_t *)at;
    f->shift_h = f->tap_h + v->kh;
    f->tap_w = f->shift_h + v->kh;
    f->shift_w = f->tap_w + v->kw;
    f->th = fl__conv_taps(v, 0, f->a, f->tap_h, f->shift_h);
    f->tw = fl__conv_taps(v, 1, f->b, f->tap_w, f->shift_w);
    fl__conv_pass p = fl__conv_phase_pass(v, planes, f, dx);
    if (p.g.k == 0) return;
    int64_t *offset = (int64_t *)(at + room->taps * v->size);
    fl__conv_output_offsets(f, planes, offset);
    p.offset = offset;
    at += (room->taps + room->offsets) * v->size;
    if (f->th == v->kh && f->tw == v->kw) {
        p.g.a = f->turned;
    } else {
        p.g.a = f->to = at;
        fl_parallel(v->groups * v->c, fl__conv_div_up(1 << 14, p.g.k), fl__conv_pick_taps, f);
    }
    if (fl__conv_cut(&p)) p.temp = at + 2 * room->weights * v->size;
    fl__conv_pack(&p, at + room->weights * v->size);
    fl__conv_run(&p);
}

static bool fl__conv_backward_data(const fl__conv *v, const char *dy, const char *w, char *dx) {
    fl__planes planes = fl__conv_output_planes(v);
    bool same = fl__planes_same(&planes);
    int64_t pixels = v->images * v->groups * v->c * v->h * v->w;
    fl__conv_room_of room = {
        .taps = fl__conv_room(2 * (v->kh + v->kw), v->size),
        .offsets = fl__conv_room(v->o * v->kh * v->kw, v->size),
        .weights = v->groups * v->o * v->c * v->kh * v->kw,
        .planes = same ? 0 : fl__conv_part(planes.count * fl__planes_size(&planes)),
        .temp = pixels, /* at most one phase at a time */
    };
    fl_buffer *scratch;
    int64_t turned = fl__conv_part(room.weights);
    char *at = fl__conv_map(
        &scratch, turned + room.planes + room.taps + room.offsets + 2 * room.weights + room.temp,
        v->size, "conv2d_grad_input");
    if (!at) return false;
    fl__conv_turned turn = {v, w, at};
    fl_parallel(v->groups * fl__conv_div_up(v->c * v->kh * v->kw, FL__TURN),
                fl__conv_div_up(1 << 8, v->o), fl__conv_turn_task, &turn);
    at += turned * v->size;
    planes.from = dy;
    if (!same) {
        planes.to = at;
        fl__planes_make(&planes);
    }
    for (int64_t a = 0; a < fl__conv_min(v->stride[0], v->h); a++)
        for (int64_t b = 0; b < fl__conv_min(v->stride[1], v->w); b++) {
            fl__conv_phase f = {.v = v, .a = a, .b = b, .turned = turn.turned};
            fl__conv_run_phase(&f, &planes, &room, at + room.planes * v->size, dx);
        }
    fl__conv_unmap(scratch);
    return true;
}

/* True if some pixel of dx is reached by no tap: it stays 0. */
static bool fl__conv_has_gaps(const fl__conv *v) {
    for (int d = 0; d < 2; d++)
        for (int64_t phase = 0; phase < v->stride[d]; phase++)
            if (fl__conv_taps(v, d, phase, NULL, NULL) == 0) return true;
    return false;
}

FL_PRIVATE bool fl__cpu_conv2d_grad_input(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *dx = c->out[0];
    if (!fl_make(dx)) return false;
    if (fl_numel(dx) == 0) return true;
    fl__conv v = fl__conv_of(c, dx, c->in[1], c->in[0]);
    if (fl_numel(c->in[0]) == 0 || fl__conv_has_gaps(&v))
        memset(fl_data(dx), 0, (size_t)fl_numel(dx) * fl_dtype_size(dx->dtype));
    if (fl_numel(c->in[0]) == 0) return true;
    return fl__conv_backward_data(&v, fl_data(c->in[0]), fl_data(c->in[1]), fl_data(dx));
}

/* >>weight gradient */

/* Rows of dw^T that stand side by side in x: `runs` of them per group, `run` values each ((kw, c),
   or c with dilation). Units of the sum: `units` rows of `length` pixels. */
typedef struct fl__conv_dw {
    const fl__conv *v;
    int64_t hp, wp;                  /* the padded image */
    int64_t runs, run, units, length, unit_rows; /* unit_rows: units per image */
    int64_t splits, split_units, row_blocks, block_tiles;
    const char *x_from, *dy_from;
    char *x, *dy;                    /* [image][group][hp][wp][c], [image][group][oh][ow][o] */
    char *parts, *sum;               /* [split][group][run][value][o], [group][c, tap][o] */
    char *dw;
} fl__conv_dw;

/* x and dy of a range of (image, group), channels last. Writes past a row are repaired by the next
   row. */
static void fl__conv_channels_last(void *arg, int64_t begin, int64_t end) {
    const fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    const int64_t size = v->size, row_bytes = p->wp * v->c * size, hw = v->h * v->w,
                  out = v->oh * v->ow;
    for (int64_t i = begin; i < end; i++) {
        v->ks->pack(p->dy + i * out * v->o * size, v->o, v->o, out,
                    p->dy_from + i * out * v->o * size, out, 1);
        const char *from = p->x_from + i * hw * v->c * size;
        char *to = p->x + i * p->hp * row_bytes;
        for (int64_t r = 0; r < p->hp; r++, to += row_bytes) {
            int64_t y = r - v->pad[0], left = fl__conv_min(v->pad[1], p->wp),
                    n = fl__conv_min(v->w, p->wp - left);
            if (y < 0 || y >= v->h || n <= 0) {
                memset(to, 0, (size_t)row_bytes);
                continue;
            }
            memset(to, 0, (size_t)(left * v->c * size));
            v->ks->pack(to + left * v->c * size, v->c, v->c, n, from + y * v->w * size, hw, 1);
            memset(to + (left + n) * v->c * size, 0, (size_t)((p->wp - left - n) * v->c * size));
        }
    }
}

/* Where value 0 of run r starts, for output pixel (0, 0). */
static int64_t fl__conv_run_offset(const fl__conv_dw *p, int64_t r) {
    const fl__conv *v = p->v;
    int64_t per_row = p->runs / v->kh;
    return (r / per_row * v->dilation[0] * p->wp + r % per_row * v->dilation[1]) * v->c;
}

#define FL__DW_PIXELS \
    256 /* of one block of the sum: its rows of dy stay in the second-level cache */
#define FL__DW_SEGMENTS 256

/* Adds a block of units u0 .. u1, pixels k0 .. k0 + k of each, to row tiles t0 .. t1 of run r. */
static void fl__conv_dw_block(const fl__conv_dw *p, const fl__gemm *g, fl__tile tile, int64_t group,
                              int64_t r, int64_t u0, int64_t u1, int64_t k0, int64_t t0,
                              int64_t t1) {
    const fl__conv *v = p->v;
    const int64_t size = v->size;
    fl__segment first[FL__DW_SEGMENTS], segment[FL__DW_SEGMENTS];
    for (int64_t u = u0; u < u1; u++) {
        int64_t at = u / p->unit_rows * v->groups + group, row = u % p->unit_rows;
        first[u - u0].a = p->x + ((at * p->hp + row * v->stride[0]) * p->wp * v->c +
                                  k0 * tile.csa + fl__conv_run_offset(p, r)) * size;
        first[u - u0].b = p->dy + (at * v->oh * v->ow + row * p->length + k0) * v->o * size;
    }
    tile.segments = u1 - u0;
    tile.segment = segment;
    for (int64_t j = 0; j < g->n; j += g->width)
        for (int64_t t = t0; t < t1; t++) {
            int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
            for (int64_t s = 0; s < tile.segments; s++) {
                segment[s].a = (const char *)first[s].a + i * size;
                segment[s].b = (const char *)first[s].b + j * size;
            }
            tile.c = g->c + (i * g->ldc + j) * size;
            fl__gemm_tile(g->ks, (int)m, (int)fl__conv_min(g->width, g->n - j), &tile);
        }
}

static fl__gemm fl__conv_dw_product(const fl__conv_dw *p) {
    fl__gemm g = {.ks = p->v->ks, .m = p->run, .n = p->v->o, .ldc = p->v->o};
    fl__gemm_shape(&g, true);
    return g;
}

/* Task = ((split * groups + group) * runs + run) * row_blocks + row block. */
static void fl__conv_dw_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    fl__gemm g = fl__conv_dw_product(p);
    for (int64_t task = begin; task < end; task++) {
        int64_t t0 = task % p->row_blocks * p->block_tiles, index = task / p->row_blocks;
        int64_t t1 = fl__conv_min(t0 + p->block_tiles, fl__gemm_tiles(&g));
        int64_t r = index % p->runs, group = index / p->runs % v->groups,
                split = index / p->runs / v->groups;
        int64_t u_end = fl__conv_min((split + 1) * p->split_units, p->units);
        int64_t step = fl__conv_min(FL__DW_SEGMENTS, fl__conv_max(1, FL__DW_PIXELS / p->length));
        fl__tile tile = {.rsa = 1, .csa = v->stride[1] * v->c, .ldb = v->o, .ldc = g.ldc};
        g.c = p->parts + index * p->run * v->o * v->size;
        for (int64_t u = split * p->split_units; u < u_end; u += step)
            for (int64_t k0 = 0; k0 < p->length; k0 += tile.k) {
                tile.k = fl__conv_min(p->length - k0, FL__DW_PIXELS);
                fl__conv_dw_block(p, &g, tile, group, r, u, fl__conv_min(u + step, u_end), k0, t0,
                                  t1);
                tile.add = true;
            }
    }
}

/* sum[group][c, tap][o] = the parts [group][run][value][o] added in order, for a range of (group,
   c). */
static void fl__conv_dw_sum(void *arg, int64_t begin, int64_t end) {
    const fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    const int64_t row = v->o * v->size, per_row = p->runs / v->kh,
                  part = v->groups * p->runs * p->run * row;
    char *to = p->sum + begin * v->kh * v->kw * row;
    for (int64_t at = begin; at < end; at++)
        for (int64_t tap = 0; tap < v->kh * v->kw; tap++, to += row) {
            int64_t group = at / v->c, j = tap % v->kw,
                    run = tap / v->kw * per_row + (per_row > 1 ? j : 0);
            int64_t value = (per_row > 1 ? 0 : j * v->c) + at % v->c;
            const char *from = p->parts + ((group * p->runs + run) * p->run + value) * row;
            memcpy(to, from, (size_t)row);
            for (int64_t s = 1; s < p->splits; s++) v->ks->add(to, from + s * part, v->o);
        }
}

/* dw[group, o][c, tap] = sum[group][c, tap][o], for blocks of FL__TURN o of a group. */
static void fl__conv_dw_turn(void *arg, int64_t begin, int64_t end) {
    const fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    const int64_t rows = v->c * v->kh * v->kw, blocks = fl__conv_div_up(v->o, FL__TURN);
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / blocks * rows * v->o, o = i % blocks * FL__TURN;
        v->ks->pack(p->dw + (group + o * rows) * v->size, rows, rows,
                    fl__conv_min(FL__TURN, v->o - o), p->sum + (group + o) * v->size, v->o, 1);
    }
}

/* Units, splits and blocks: about 16 tasks, by size alone. */
static void fl__conv_dw_cut(fl__conv_dw *p) {
    const fl__conv *v = p->v;
    bool merged =
        v->stride[0] == 1 && v->stride[1] == 1 && p->wp == v->ow; /* rows follow each other */
    bool wide = v->dilation[1] == 1 || v->kw == 1;
    p->runs = wide ? v->kh : v->kh * v->kw;
    p->run = wide ? v->kw * v->c : v->c;
    p->unit_rows = merged ? 1 : v->oh;
    p->length = merged ? v->oh * v->ow : v->ow;
    p->units = v->images * p->unit_rows;
    fl__gemm g = fl__conv_dw_product(p);
    int64_t tiles = fl__gemm_tiles(&g), weights = v->groups * p->runs * p->run * v->o;
    p->row_blocks = fl__conv_div_up(tiles, 8);
    p->block_tiles = fl__conv_div_up(tiles, p->row_blocks);
    p->row_blocks = fl__conv_div_up(tiles, p->block_tiles);
    p->splits = fl__conv_min(fl__conv_div_up(16, v->groups * p->runs * p->row_blocks), p->units);
    while (p->splits > 1 && p->splits * weights > (1 << 22)) p->splits /= 2;
    p->split_units = fl__conv_div_up(p->units, p->splits);
    p->splits = fl__conv_div_up(p->units, p->split_units);
}

static bool fl__conv_backward_weights(const fl__conv *v, const char *x, const char *dy, char *dw) {
    fl__conv_dw p = {.v = v, .x_from = x, .dy_from = dy, .dw = dw};
    p.hp = (v->oh - 1) * v->stride[0] + (v->kh - 1) * v->dilation[0] + 1;
    p.wp = (v->ow - 1) * v->stride[1] + (v->kw - 1) * v->dilation[1] + 1;
    fl__conv_dw_cut(&p);
    const int64_t size = v->size, items = v->images * v->groups;
    int64_t xs = fl__conv_part(items * p.hp * p.wp * v->c);
    int64_t dys = fl__conv_part(items * v->oh * v->ow * v->o);
    int64_t weights = v->groups * p.runs * p.run * v->o;
    fl_buffer *scratch;
    p.parts =
        fl__conv_map(&scratch, p.splits * weights + xs + dys + weights, size, "conv2d_grad_weight");
    if (!p.parts) return false;
    p.x = p.parts + p.splits * weights * size;
    p.dy = p.x + xs * size;
    p.sum = p.dy + dys * size;
    int64_t image = p.hp * p.wp * v->c + v->oh * v->ow * v->o;
    fl_parallel(items, fl__conv_div_up(1 << 14, image), fl__conv_channels_last, &p);
    int64_t work = p.run / p.row_blocks * v->o * p.split_units * p.length + 1;
    fl_parallel(p.splits * v->groups * p.runs * p.row_blocks, fl__conv_div_up(1 << 18, work),
                fl__conv_dw_task, &p);
    int64_t rows = v->c * v->kh * v->kw;
    fl_parallel(v->groups * v->c, fl__conv_div_up(1 << 14, v->kh * v->kw * v->o), fl__conv_dw_sum,
                &p);
    fl_parallel(v->groups * fl__conv_div_up(v->o, FL__TURN), fl__conv_div_up(1 << 8, rows),
                fl__conv_dw_turn, &p);
    fl__conv_unmap(scratch);
    return true;
}

FL_PRIVATE bool fl__cpu_conv2d_grad_weight(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *dw = c->out[0];
    if (!fl_make(dw)) return false;
    if (fl_numel(dw) == 0) return true;
    if (fl_numel(c->in[0]) == 0 || fl_numel(c->in[1]) == 0) {
        memset(fl_data(dw), 0, (size_t)fl_numel(dw) * fl_dtype_size(dw->dtype));
        return true;
    }
    fl__conv v = fl__conv_of(c, c->in[0], dw, c->in[1]);
    return fl__conv_backward_weights(&v, fl_data(c->in[0]), fl_data(c->in[1]), fl_data(dw));
}

#endif /* FL_CPU_CONV_IMPL */
#endif
/* MIT licence: see LICENSE. */
