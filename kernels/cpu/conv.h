/* conv.h - 2-D convolution and its two gradients on the CPU, direct, with three ways around

   winograd.h does 3 x 3 and 5 x 5 kernels with fewer products, columns.h those whose weights are
   heavier than the images as matrix products, depthwise.h channels that have a kernel each. All
   else goes here.
   Of these only the matrix products round operands where they may (fl_set_matmul_precision): what
   Winograd's transforms do to rounded values would cost too many bits.

   Everything runs over channels-last data, where the values that a kernel row of an output pixel
   reads stand side by side. A task copies the rows of the image that it needs into a band with its
   padding, which stays in the second-level cache; that copy also turns images of any other layout.
   Where nothing is padded and the image is channels-last, it is read in place. A pixel's products
   are sums over segments of a band (a kernel row of values each) with packed weights; conv_tile.h
   computes two halves of a few pixels by two registers of output channels at a time. Results are
   stored where they belong, or, for other layouts than channels-last, turned block by block.

   Forward: y[n][o][r][q] = sum over i, j, c of x[n][c][r s + i d - p][q s + j d - p] w[o][c][i][j].

   Data gradient: the pixels of dx that share ih mod stride_h and iw mod stride_w see the same taps;
   each such phase is a convolution of stride 1 of dy with those taps, with the roles of o and c
   exchanged. It runs through the same pass.

   Weight gradient: dw[(tap, c)][o] = sum over pixels of x[pixel + tap][c] dy[pixel][o], with the
   tall tiles of gemm.h: a task owns all taps of some channels c and columns o for a part of the
   pixels, and copies what they read of x and dy for some hundred pixels at a time, once for all
   taps. The parts are added in order.

   Work is cut by size only: the bits do not depend on the number of threads; the layout decides
   which way a convolution goes, but not the bits of this one. */
#include "gemm.h"
#include "matmul.h"
#include "rooms.h"
#ifndef FL_CPU_CONV_H
#define FL_CPU_CONV_H

/* x [n, c, h, w], w [o, c / groups, kh, kw], [bias o] -> [n, o, oh, ow]; any strides; f32, f64. */
FL_PRIVATE bool fl__cpu_conv2d(const fl_backend *self, const fl_call *c);
/* dy, w -> dx */
FL_PRIVATE bool fl__cpu_conv2d_grad_input(const fl_backend *self, const fl_call *c);
/* x, dy -> dw */
FL_PRIVATE bool fl__cpu_conv2d_grad_weight(const fl_backend *self, const fl_call *c);

/* Which way convolutions go from now on, where they can; returns the setting before. For tests and
   benchmarks: the default chooses by size. */
enum { FL__CONV_AUTO, FL__CONV_DIRECT, FL__CONV_COLUMNS, FL__CONV_WINOGRAD };
FL_PRIVATE int fl__conv_force(int algorithm);

#endif /* FL_CPU_CONV_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_IMPL
#define FL_CPU_CONV_IMPL

#include <string.h>

/* >>kernels: conv_tile.h for every element and level */

/* Two halves of a tile; lengths in elements. */
typedef struct fl__conv_tile {
    const void *a[2];       /* the first pixel of each half, where segment offset 0 is */
    const int64_t *segment; /* offsets */
    int64_t segments, k;    /* k: values of a segment */
    int64_t pixel;          /* from a pixel to the next */
    const void *w;          /* [segments][k][2 registers] */
    const void *bias;       /* [2 registers] or NULL */
    void *c[2];
    int64_t ldc[2];
    bool add;               /* c holds a sum already */
} fl__conv_tile;

/* A transform of winograd.h: squares of n channels each. bias: for results. */
typedef enum fl__winograd_kind {
    FL__WINO_IMAGE, FL__WINO_KERNEL, FL__WINO_RESULT, FL__WINO_GRAD, FL__WINO_KERNEL_GRAD
} fl__winograd_kind;
typedef void (*fl__winograd_fn)(const float *const *from, float *const *to, int64_t n,
                                const float *bias);

#define FL__INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define FL__UNROLL _Pragma("clang loop unroll(full)")
#define FL__CONTRACT _Pragma("clang fp contract(fast)")
#else
#define FL__UNROLL _Pragma("GCC unroll 32")
#define FL__CONTRACT
#pragma GCC push_options
#pragma GCC optimize("O2", "fp-contract=fast")
#endif

#define FL__TARGET
#define FL__T float
#define FL__LANES 4
#define FL__HALF 2
#define FL__FN(name) fl__f32_portable_##name
#include "conv_tile.h"
#define FL__TARGET
#define FL__T double
#define FL__LANES 2
#define FL__HALF 2
#define FL__FN(name) fl__f64_portable_##name
#include "conv_tile.h"
#define FL__TARGET
#define FL__LANES 4
#define FL__FN(name) fl__f32_portable_##name
#include "winograd_tile.h"
#ifdef FL__X86_LEVELS
#define FL__TARGET FL__TARGET_AVX2
#define FL__T float
#define FL__LANES 8
#define FL__HALF 3
#define FL__FN(name) fl__f32_avx2_##name
#include "conv_tile.h"
#define FL__TARGET FL__TARGET_AVX2
#define FL__T double
#define FL__LANES 4
#define FL__HALF 3
#define FL__FN(name) fl__f64_avx2_##name
#include "conv_tile.h"
#define FL__TARGET FL__TARGET_AVX512
#define FL__T float
#define FL__LANES 16
#define FL__HALF 7
#define FL__FN(name) fl__f32_avx512_##name
#include "conv_tile.h"
#define FL__TARGET FL__TARGET_AVX512
#define FL__T double
#define FL__LANES 8
#define FL__HALF 7
#define FL__FN(name) fl__f64_avx512_##name
#include "conv_tile.h"
#define FL__TARGET FL__TARGET_AVX2
#define FL__LANES 8
#define FL__FN(name) fl__f32_avx2_##name
#include "winograd_tile.h"
#define FL__TARGET FL__TARGET_AVX512
#define FL__LANES 16
#define FL__FN(name) fl__f32_avx512_##name
#include "winograd_tile.h"
#endif

#ifndef __clang__
#pragma GCC pop_options
#endif
#undef FL__INLINE
#undef FL__UNROLL
#undef FL__CONTRACT

/* What conv_tile.h makes for an element and a level. */
typedef struct fl__conv_kernels {
    void (*tile)(const fl__conv_tile *t);
    int half; /* pixels */
    /* y[j] = start[j] + sum over i < count of a[i][j] b[i][j], j < n */
    void (*line)(void *y, const void *start, const void *const *a, const void *const *b,
                 int64_t count, int64_t n);
} fl__conv_kernels;

static fl__conv_kernels fl__conv_kernels_of(fl_dtype dtype) {
#define FL__CONV_KERNELS(name, half) {fl__##name##_conv_tile, half, fl__##name##_conv_line}
    static const fl__conv_kernels f32[] = {
        FL__CONV_KERNELS(f32_portable, 2),
#ifdef FL__X86_LEVELS
        FL__CONV_KERNELS(f32_avx2, 3), FL__CONV_KERNELS(f32_avx512, 7),
#endif
    }, f64[] = {
        FL__CONV_KERNELS(f64_portable, 2),
#ifdef FL__X86_LEVELS
        FL__CONV_KERNELS(f64_avx2, 3), FL__CONV_KERNELS(f64_avx512, 7),
#endif
    };
#undef FL__CONV_KERNELS
    return dtype == FL_F64 ? f64[fl__cpu_isa()] : f32[fl__cpu_isa()];
}

/* The transforms for kernels of k x k. */
static const fl__winograd_fn *fl__winograd_of(int64_t k) {
#ifdef FL__X86_LEVELS
    int level = fl__cpu_isa();
    if (level == FL__AVX512) return fl__f32_avx512_winograd[k == 5];
    if (level == FL__AVX2) return fl__f32_avx2_winograd[k == 5];
#endif
    return fl__f32_portable_winograd[k == 5];
}

/* >>sizes */

static int64_t fl__conv_floor(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static int64_t fl__conv_clamp(int64_t v, int64_t lo, int64_t hi) {
    return fl__max(lo, fl__min(v, hi));
}

static int fl__conv_algorithm = FL__CONV_AUTO;

FL_PRIVATE int fl__conv_force(int algorithm) {
    int old = fl__conv_algorithm;
    fl__conv_algorithm = algorithm;
    return old;
}

/* Four strides over data, in elements: of images or weights. */
typedef struct fl__image {
    char *data;
    int64_t n, c, h, w;
} fl__image;

static fl__image fl__image_of(const fl_tensor *t) {
    return (fl__image){fl_data(t), t->stride[0], t->stride[1], t->stride[2], t->stride[3]};
}

/* The sizes of a convolution. */
typedef struct fl__conv {
    const fl__kernels *ks;
    fl__conv_kernels ck;
    int64_t size; /* of an element */
    int64_t images, groups, c, o; /* c, o: channels per group */
    int64_t h, w, oh, ow, kh, kw;
    const int64_t *stride, *pad, *dilation; /* h, w; pad: the low side */
} fl__conv;

static fl__conv fl__conv_of(const fl_call *c, const fl_tensor *x, const fl_tensor *w,
                            const fl_tensor *y) {
    const fl_conv2d_args *a = c->args;
    return (fl__conv){
        .ks = fl__gemm_kernels(x->dtype), .ck = fl__conv_kernels_of(x->dtype),
        .size = (int64_t)fl_dtype_size(x->dtype),
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

/* Elements of a part of scratch that is read in whole registers: at least 16 more than its n, so
   that a read past its end touches nothing that another thread writes. */
static int64_t fl__conv_part(int64_t n) {
    return (n + 31) / 16 * 16;
}

/* >>band: rows of images with their padding, channels last and dense */

typedef struct fl__band {
    const fl__kernels *ks;
    int64_t size;
    fl__image in;
    int64_t h, w, depth;   /* of an image; what lies outside is 0 */
    int64_t left, width;   /* pixels -left .. -left + width of a row */
} fl__band;

/* Row y of the image at `from` (its element (0, 0, 0)): width x depth elements. */
static void fl__band_row(const fl__band *b, const char *from, int64_t y, char *to) {
    const int64_t pixel = b->depth * b->size;
    int64_t lo = fl__conv_clamp(b->left, 0, b->width);
    int64_t hi = fl__conv_clamp(b->left + b->w, lo, b->width);
    if (y < 0 || y >= b->h) lo = hi = b->width;
    memset(to, 0, (size_t)(lo * pixel));
    from += (y * b->in.h + (lo - b->left) * b->in.w) * b->size;
    if (hi == lo) ;
    else if (b->in.c == 1 && b->in.w == b->depth) memcpy(to + lo * pixel, from, (size_t)((hi - lo) * pixel));
    else b->ks->turn(to + lo * pixel, b->depth, b->depth, hi - lo, from, b->in.c, b->in.w);
    memset(to + hi * pixel, 0, (size_t)((b->width - hi) * pixel));
}

/* >>pass: sums over taps of an image by packed weights */

/* out[n][o][r][q] = bias[o] + sum over i < th, j < tw, d < depth of
   in[n][d][r step_h + at_h[i]][q step_w + at_w[j]] weight[o][d][i][j], per group */
typedef struct fl__conv_pass {
    const fl__conv *v;
    fl__band band; /* in: of all groups; left = -at_w[0] */
    fl__image out;
    int64_t images, groups, depth, o, rows, cols;
    const int64_t *step;
    int64_t th, tw;
    const int64_t *at_h, *at_w;   /* ascending */
    const int64_t *tap_h, *tap_w; /* the weights' taps that they stand for */
    fl__image w;                  /* n: over o, c: over depth; w.data of group 0 */
    int64_t w_group;
    const char *bias;             /* NULL: none */
    int64_t bias_step;
    /* the plan */
    bool in_place, direct, merged;     /* merged: a kernel row is one segment */
    int64_t pieces, k, chunk, segments; /* pieces of a tap; values, segments per call, in all */
    int64_t width, panels;             /* channels of a panel */
    int64_t line_halves, halves;       /* of a line; most in a band */
    int64_t line_blocks, block_halves; /* a long line is cut */
    int64_t image_bands, band_rows, band_images, bands, panel_blocks, block_panels;
    int64_t image_rows;                /* of a band, per image */
    char *packed;
    int64_t *segment;
    fl__rooms rooms;
} fl__conv_pass;

#define FL__TILE_BYTES 2048        /* at least of a tile's results */
#define FL__BAND_BYTES (384 << 10) /* of a band: it stays in the second-level cache */
#define FL__BAND_PIXELS 448        /* of its output: a panel of weights is used that often */
#define FL__CONV_TASKS 32          /* wanted at least, if there is so much to cut */

/* Half a tile: its pixels first .. first + count stand at in, out. */
typedef struct fl__conv_half {
    const char *in;
    char *out;
    int first, count;
} fl__conv_half;

/* What a task computes. */
typedef struct fl__conv_area {
    int64_t group, n0, n1, r0, r1, h0, h1; /* images, rows, halves of each row */
    int64_t panel0, panel1;
} fl__conv_area;

static int64_t fl__pass_taps(const fl__conv_pass *p) { return p->th * p->tw; }

/* True if taps along w read pixels side by side. */
static bool fl__pass_dense_taps(const fl__conv_pass *p) {
    return p->tw == 1 || p->at_w[1] - p->at_w[0] == 1;
}

/* True if a pass need not copy its input. */
static bool fl__pass_reads_in_place(const fl__conv_pass *p) {
    const fl__band *b = &p->band;
    return b->in.c == 1 && p->at_h[0] >= 0 && p->at_w[0] >= 0 && p->cols >= p->v->ck.half &&
           (p->rows - 1) * p->step[0] + p->at_h[p->th - 1] < b->h &&
           (p->cols - 1) * p->step[1] + p->at_w[p->tw - 1] < b->w;
}

/* A 1 x 1 pass over dense images is one long line of pixels. */
static void fl__pass_flatten(fl__conv_pass *p) {
    const fl__image *in = &p->band.in, *out = &p->out;
    bool one = fl__pass_taps(p) == 1 && p->step[0] == 1 && p->step[1] == 1 && p->at_h[0] == 0 &&
               p->at_w[0] == 0 && p->rows <= p->band.h && p->cols == p->band.w;
    bool dense = in->c == 1 && out->c == 1 && (p->rows == 1 || (in->h == p->cols * in->w &&
                 out->h == p->cols * out->w)) && (p->images == 1 ||
                 (in->n == p->rows * p->cols * in->w && out->n == p->rows * p->cols * out->w));
    if (!one || !dense) return;
    p->cols = p->band.w = p->images * p->rows * p->cols;
    p->images = p->rows = p->band.h = 1;
}

/* Segments, and how many of them a call of the tile sums: about 768 values. */
static void fl__pass_plan_segments(fl__conv_pass *p) {
    const int64_t most = 768;
    int64_t pixel = p->in_place ? p->band.in.w : p->depth;
    p->merged = fl__pass_dense_taps(p) && pixel == p->depth && p->tw * p->depth <= 2 * most;
    p->pieces = p->depth > 2 * most ? fl__ceil_div(p->depth, most) : 1;
    p->k = p->merged ? p->tw * p->depth : fl__ceil_div(p->depth, p->pieces);
    p->segments = (p->merged ? p->th : fl__pass_taps(p)) * p->pieces;
    p->chunk = p->pieces > 1 ? 1 : fl__conv_clamp(most / p->k, 1, p->segments);
}

/* Rows that one image of a band holds for `rows` rows of output. */
static int64_t fl__pass_band_height(const fl__conv_pass *p, int64_t rows) {
    return (rows - 1) * p->step[0] + p->at_h[p->th - 1] - p->at_h[0] + 1;
}

/* Bands: rows of an image, whole images, or parts of one long line. */
static void fl__pass_plan_bands(fl__conv_pass *p) {
    const int64_t row = p->band.width * p->depth * p->v->size, half = p->v->ck.half;
    int64_t most = fl__conv_clamp(FL__BAND_BYTES / (p->depth * p->v->size), 8 * half, FL__BAND_PIXELS);
    p->line_halves = p->block_halves = fl__ceil_div(p->cols, half);
    p->line_blocks = 1;
    p->band_rows = fl__conv_clamp(FL__BAND_PIXELS / p->cols, 1, p->rows);
    while (p->band_rows > 1 && fl__pass_band_height(p, p->band_rows) * row > FL__BAND_BYTES)
        p->band_rows--;
    p->image_bands = fl__ceil_div(p->rows, p->band_rows);
    p->band_rows = fl__ceil_div(p->rows, p->image_bands);
    p->image_bands = fl__ceil_div(p->rows, p->band_rows);
    p->image_rows = fl__pass_band_height(p, p->band_rows);
    p->band_images = 1;
    if (p->in_place && p->cols > 2 * most) {
        p->line_blocks = fl__ceil_div(p->cols, most);
        p->block_halves = fl__ceil_div(p->line_halves, 2 * p->line_blocks) * 2;
        p->line_blocks = fl__ceil_div(p->line_halves, p->block_halves);
    } else if (p->image_bands == 1) {
        p->band_images = fl__min(FL__BAND_PIXELS / (p->rows * p->cols),
                                      FL__BAND_BYTES / (p->image_rows * row));
        p->band_images = fl__conv_clamp(p->band_images, 1, p->images);
    }
    p->bands = fl__ceil_div(p->images, p->band_images) * p->image_bands *
               (p->line_blocks > 1 ? p->band_rows : 1) * p->line_blocks;
    p->halves = p->band_images * p->band_rows * p->block_halves;
}

static void fl__pass_plan(fl__conv_pass *p) {
    const fl__conv *v = p->v;
    fl__pass_flatten(p);
    p->in_place = fl__pass_reads_in_place(p);
    p->direct = p->out.c == 1;
    p->width = 2 * v->ks->lanes;
    p->panels = fl__ceil_div(p->o, p->width);
    p->band.ks = v->ks;
    p->band.size = v->size;
    p->band.depth = p->depth;
    p->band.left = -p->at_w[0];
    p->band.width = (p->cols - 1) * p->step[1] + p->at_w[p->tw - 1] - p->at_w[0] + 1;
    fl__pass_plan_segments(p);
    fl__pass_plan_bands(p);
    int64_t blocks = fl__ceil_div(FL__CONV_TASKS, p->bands * p->groups);
    p->block_panels = fl__ceil_div(p->panels, fl__min(blocks, p->panels));
    p->panel_blocks = fl__ceil_div(p->panels, p->block_panels);
}

/* Where segment s starts, from the first value of a pixel. */
static int64_t fl__pass_segment(const fl__conv_pass *p, int64_t s) {
    int64_t tap = s / p->pieces, i = p->merged ? tap : tap / p->tw, j = p->merged ? 0 : tap % p->tw;
    int64_t row = p->in_place ? p->band.in.h : p->band.width * p->depth;
    int64_t pixel = p->in_place ? p->band.in.w : p->depth;
    int64_t y = p->in_place ? p->at_h[i] : p->at_h[i] - p->at_h[0];
    int64_t x = p->in_place ? p->at_w[j] : p->at_w[j] - p->at_w[0];
    return y * row + x * pixel + s % p->pieces * p->k;
}

/* Elements of a task's room: the band, a block of results, the halves. */
static int64_t fl__pass_band_part(const fl__conv_pass *p) {
    int64_t slack = p->v->ck.half * p->step[1] * p->depth; /* read by halves that are not full */
    int64_t row = p->band.width * p->depth;
    return p->in_place ? 0 : fl__conv_part(p->band_images * p->image_rows * row + slack);
}

static int64_t fl__pass_block_part(const fl__conv_pass *p) {
    int64_t pixels = p->band_images * p->band_rows * p->cols;
    return p->direct ? 0 : fl__conv_part((pixels + p->v->ck.half) * p->width);
}

static int64_t fl__pass_room(const fl__conv_pass *p) {
    int64_t halves = (p->halves + 1) * (int64_t)sizeof(fl__conv_half) / p->v->size;
    return fl__pass_band_part(p) + fl__pass_block_part(p) + fl__conv_part(halves);
}

/* >>weights: [group][panel][tap][depth][width] */

static int64_t fl__pass_panel_size(const fl__conv_pass *p) {
    return fl__pass_taps(p) * p->depth * p->width;
}

/* Packs taps of panels: a range of (group, panel, tap). */
static void fl__pass_pack_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_pass *p = arg;
    const int64_t size = p->v->size, taps = fl__pass_taps(p), bytes = p->depth * p->width * size;
    for (int64_t at = begin; at < end; at++) {
        int64_t tap = at % taps, panel = at / taps % p->panels, group = at / taps / p->panels;
        int64_t o = panel * p->width, n = fl__min(p->width, p->o - o);
        char *to = p->packed + at * bytes;
        const char *from = p->w.data + (group * p->w_group + o * p->w.n + p->tap_h[tap / p->tw] *
                           p->w.h + p->tap_w[tap % p->tw] * p->w.w) * size;
        if (n < p->width) memset(to, 0, (size_t)bytes);
        p->v->ks->pack(to, p->width, n, p->depth, from, p->w.n, p->w.c);
    }
}

/* >>tasks */

static fl__conv_area fl__pass_area(const fl__conv_pass *p, int64_t task) {
    int64_t block = task % p->panel_blocks, band = task / p->panel_blocks;
    fl__conv_area a = {.group = band % p->groups, .h1 = p->line_halves};
    band /= p->groups;
    if (p->line_blocks > 1) {
        a.h0 = band % p->line_blocks * p->block_halves;
        a.h1 = fl__min(a.h0 + p->block_halves, p->line_halves);
        band /= p->line_blocks;
        a.n0 = band / p->rows;
        a.r0 = band % p->rows;
        a.r1 = a.r0 + 1;
    } else {
        a.n0 = band / p->image_bands * p->band_images;
        a.r0 = band % p->image_bands * p->band_rows;
        a.r1 = fl__min(a.r0 + p->band_rows, p->rows);
    }
    a.n1 = fl__min(a.n0 + p->band_images, p->images);
    a.panel0 = block * p->block_panels;
    a.panel1 = fl__min(a.panel0 + p->block_panels, p->panels);
    return a;
}

/* Fills the band with the rows of an area. */
static void fl__pass_copy(const fl__conv_pass *p, const fl__conv_area *a, char *band) {
    const fl__band *b = &p->band;
    const int64_t row = b->width * p->depth * b->size, rows = fl__pass_band_height(p, a->r1 - a->r0);
    for (int64_t n = a->n0; n < a->n1; n++) {
        const char *from = b->in.data + (n * b->in.n + a->group * p->depth * b->in.c) * b->size;
        for (int64_t r = 0; r < rows; r++)
            fl__band_row(b, from, a->r0 * p->step[0] + p->at_h[0] + r, band + r * row);
        band += p->image_rows * row;
    }
}

/* Lists the halves of an area; returns their number. */
static int64_t fl__pass_halves(const fl__conv_pass *p, const fl__conv_area *a, char *band, char *block,
                               fl__conv_half *half) {
    const int64_t size = p->v->size, H = p->v->ck.half, depth = p->depth;
    const fl__image *in = &p->band.in, *out = &p->out;
    const int64_t pixel = p->step[1] * (p->in_place ? in->w : depth) * size;
    const int64_t out_pixel = (p->direct ? out->w : p->width) * size;
    fl__conv_half *at = half;
    for (int64_t n = a->n0; n < a->n1; n++)
        for (int64_t r = a->r0; r < a->r1; r++) {
            const char *from = p->in_place
                ? in->data + (n * in->n + a->group * depth * in->c + r * p->step[0] * in->h) * size
                : band + ((n - a->n0) * p->image_rows + (r - a->r0) * p->step[0]) * p->band.width *
                      depth * size;
            char *to = p->direct ? out->data + (n * out->n + r * out->h + a->group * p->o) * size
                : block + ((n - a->n0) * (a->r1 - a->r0) + r - a->r0) * p->cols * out_pixel;
            for (int64_t h = a->h0; h < a->h1; h++, at++) {
                int64_t q = h * H, count = fl__min(H, p->cols - q);
                int64_t back = p->cols >= H ? H - count : 0; /* read no pixel past the line */
                *at = (fl__conv_half){from + (q - back) * pixel, to + q * out_pixel, (int)back,
                                      (int)count};
            }
        }
    return at - half;
}

/* Moves the pixels of a half that is not full, or not of full width, between its own place and a
   tile's. */
static void fl__pass_corner(const fl__conv_pass *p, const fl__conv_half *half, char *out, char *tile,
                            int64_t n, bool load) {
    const int64_t bytes = p->width * p->v->size, step = (p->direct ? p->out.w : p->width) * p->v->size;
    tile += half->first * bytes;
    for (int i = 0; i < half->count; i++)
        if (load) memcpy(tile + i * bytes, out + i * step, (size_t)(n * p->v->size));
        else memcpy(out + i * step, tile + i * bytes, (size_t)(n * p->v->size));
}

/* One call of the tile: a pair of halves, at `out` bytes behind their first channel, n channels. */
static void fl__pass_pair(const fl__conv_pass *p, const fl__conv_half *pair, fl__conv_tile *t,
                          int64_t out, int64_t n) {
    _Alignas(64) char corner[2][FL__TILE_BYTES / 2];
    const bool full = n == p->width;
    bool whole[2];
    for (int h = 0; h < 2; h++) {
        whole[h] = full && pair[h].count == p->v->ck.half;
        t->a[h] = pair[h].in;
        t->c[h] = whole[h] ? pair[h].out + out : corner[h];
        t->ldc[h] = whole[h] && p->direct ? p->out.w : p->width;
        if (t->add && !whole[h]) fl__pass_corner(p, &pair[h], pair[h].out + out, corner[h], n, true);
    }
    p->v->ck.tile(t);
    for (int h = 0; h < 2; h++)
        if (!whole[h]) fl__pass_corner(p, &pair[h], pair[h].out + out, corner[h], n, false);
}

/* One panel of channels for all halves of an area, chunk by chunk. */
static void fl__pass_panel(const fl__conv_pass *p, const fl__conv_half *half, int64_t halves,
                           int64_t group, int64_t panel) {
    const int64_t size = p->v->size, first = panel * p->width;
    const int64_t n = p->direct ? fl__min(p->width, p->o - first) : p->width;
    const char *w = p->packed + (group * p->panels + panel) * fl__pass_panel_size(p) * size;
    _Alignas(64) char bias[128] = {0};
    fl__conv_tile t = {.bias = p->bias ? bias : NULL, .segments = p->chunk,
                       .pixel = p->step[1] * (p->in_place ? p->band.in.w : p->depth)};
    if (p->bias)
        fl__conv_copy(bias, 1, p->bias + (group * p->o + first) * p->bias_step * size, p->bias_step,
                      fl__min(p->width, p->o - first), size);
    for (int64_t s = 0; s < p->segments; s += t.segments) {
        t.k = (s + 1) % p->pieces ? p->k : p->pieces > 1 ? p->depth - (p->pieces - 1) * p->k : p->k;
        t.segments = fl__min(p->chunk, p->segments - s);
        t.segment = p->segment + s;
        t.w = w;
        for (int64_t h = 0; h + 1 < halves; h += 2)
            fl__pass_pair(p, half + h, &t, p->direct ? first * size : 0, n);
        w += t.segments * t.k * p->width * size;
        t.add = true;
    }
}

/* The results of a panel from block to where they belong. */
static void fl__pass_scatter(const fl__conv_pass *p, const fl__conv_area *a, int64_t panel,
                             const char *block) {
    const int64_t size = p->v->size, first = panel * p->width, width = p->width;
    const int64_t n = fl__min(width, p->o - first), rows = a->r1 - a->r0;
    const fl__image *out = &p->out;
    const bool dense = out->w == 1 && out->h == p->cols;
    for (int64_t i = a->n0; i < a->n1; i++, block += rows * p->cols * width * size) {
        char *to = out->data + (i * out->n + (a->group * p->o + first) * out->c + a->r0 * out->h) * size;
        if (dense) {
            p->v->ks->turn(to, out->c, rows * p->cols, n, block, width, 1);
            continue;
        }
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < rows; r++)
                fl__conv_copy(to + (c * out->c + r * out->h) * size, out->w,
                              block + (r * p->cols * width + c) * size, width, p->cols, size);
    }
}

static void fl__conv_pass_task(void *arg, int64_t begin, int64_t end) {
    fl__conv_pass *p = arg;
    const int64_t size = p->v->size;
    char *band = fl__room_enter(&p->rooms);
    char *block = band + fl__pass_band_part(p) * size;
    fl__conv_half *half = (fl__conv_half *)(block + fl__pass_block_part(p) * size);
    int64_t filled = -1;
    for (int64_t task = begin; task < end; task++) {
        fl__conv_area a = fl__pass_area(p, task);
        if (!p->in_place && filled != task / p->panel_blocks) fl__pass_copy(p, &a, band);
        filled = task / p->panel_blocks;
        int64_t halves = fl__pass_halves(p, &a, band, block, half);
        if (halves % 2) {
            half[halves] = half[halves - 1];
            half[halves++].count = 0;
        }
        for (int64_t panel = a.panel0; panel < a.panel1; panel++) {
            fl__pass_panel(p, half, halves, a.group, panel);
            if (!p->direct) fl__pass_scatter(p, &a, panel, block);
        }
    }
    fl__room_leave(&p->rooms, band);
}

/* Plans, packs and runs. `shared` elements of the call's own come first in the scratch; the caller
   closes p->rooms. */
static bool fl__pass_open(fl__conv_pass *p, int64_t *shared, const char *op) {
    const int64_t size = p->v->size;
    fl__pass_plan(p);
    int64_t weights = p->groups * p->panels * fl__pass_panel_size(p);
    int64_t offsets = fl__conv_part(p->segments * 8 / size);
    int64_t tasks = p->bands * p->groups * p->panel_blocks, own = fl__conv_part(*shared);
    if (!fl__rooms_open(&p->rooms, tasks, fl__pass_room(p) * size, (own + offsets + weights) * size, op))
        return false;
    p->segment = (int64_t *)(p->rooms.more + own * size);
    p->packed = p->rooms.more + (own + offsets) * size;
    for (int64_t s = 0; s < p->segments; s++) p->segment[s] = fl__pass_segment(p, s);
    return true;
}

static void fl__conv_pass_run(fl__conv_pass *p) {
    int64_t taps = fl__pass_taps(p), tasks = p->bands * p->groups * p->panel_blocks;
    fl_parallel(p->groups * p->panels * taps, fl__ceil_div(1 << 14, p->depth * p->width),
                fl__pass_pack_task, p);
    int64_t work = p->halves * p->v->ck.half * p->block_panels * fl__pass_panel_size(p);
    fl_parallel(tasks, fl__ceil_div(1 << 18, work), fl__conv_pass_task, p);
}

/* >>turn: weights with their channels last */

typedef struct fl__conv_turned {
    const fl__conv *v;
    fl__image w;
    char *to; /* [o][kh][kw][c] of all groups */
} fl__conv_turned;

static void fl__conv_turn_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_turned *p = arg;
    const fl__conv *v = p->v;
    const bool dense = p->w.h == v->kw * p->w.w;
    const int64_t taps = dense ? v->kh * v->kw : v->kw, calls = dense ? 1 : v->kh;
    for (int64_t o = begin; o < end; o++)
        for (int64_t i = 0; i < calls; i++)
            v->ks->turn(p->to + (o * v->kh * v->kw + i * v->kw) * v->c * v->size, v->c, v->c, taps,
                        p->w.data + (o * p->w.n + i * p->w.h) * v->size, p->w.c, p->w.w);
}

/* Elements of the turned weights: 0 if they are read as they are. */
static int64_t fl__conv_turned_size(const fl__conv *v, const fl__image *w) {
    return w->c == 1 || v->c == 1 ? 0 : v->groups * v->o * v->c * v->kh * v->kw;
}

static fl__image fl__conv_turn(const fl__conv *v, fl__image w, char *to) {
    if (fl__conv_turned_size(v, &w) == 0) return w;
    fl__conv_turned arg = {v, w, to};
    int64_t row = v->c * v->kh * v->kw;
    fl_parallel(v->groups * v->o, fl__ceil_div(1 << 14, row), fl__conv_turn_task, &arg);
    return (fl__image){to, row, 1, v->kw * v->c, v->c};
}

#include "winograd.h"
#include "columns.h"
#include "depthwise.h"

/* >>forward */

/* Taps 0 .. k along dim d, and where they read. */
static void fl__conv_forward_taps(const fl__conv *v, int d, int64_t k, int64_t *at, int64_t *tap) {
    for (int64_t i = 0; i < k; i++) {
        at[i] = i * v->dilation[d] - v->pad[d];
        tap[i] = i;
    }
}

/* Tables of taps, of which there may be many: 2 (kh + kw) numbers in a buffer of their own. */
static int64_t *fl__conv_tables(const fl__conv *v, fl_buffer **buffer, const char *op) {
    *buffer = fl__gemm_scratch(2 * (v->kh + v->kw), sizeof(int64_t), op);
    int64_t *at = *buffer ? fl_buffer_map(*buffer) : NULL;
    if (!at) fl_buffer_drop(*buffer);
    return at;
}

static void fl__conv_unmap(fl_buffer *buffer) {
    fl_buffer_unmap(buffer);
    fl_buffer_drop(buffer);
}

static bool fl__winograd_forward(const fl__conv *v, fl__image x, fl__image w, const fl_tensor *bias,
                                 fl__image y) {
    fl__winograd wino = {.v = v, .in = x, .out = y, .w = w, .in_h = v->h, .in_w = v->w,
                         .rows = v->oh, .cols = v->ow, .depth = v->c, .o = v->o,
                         .at_h = -v->pad[0], .at_w = -v->pad[1],
                         .bias = bias ? fl_data(bias) : NULL};
    return fl__winograd_run(&wino, "conv2d");
}

static bool fl__conv_forward(const fl__conv *v, fl__image x, fl__image w, const fl_tensor *bias,
                             fl__image y) {
    fl_buffer *tables;
    int64_t *at_h = fl__conv_tables(v, &tables, "conv2d");
    if (!at_h) return false;
    int64_t *at_w = at_h + v->kh, *tap_h = at_w + v->kw, *tap_w = tap_h + v->kh;
    fl__conv_forward_taps(v, 0, v->kh, at_h, tap_h);
    fl__conv_forward_taps(v, 1, v->kw, at_w, tap_w);
    fl__conv_pass p = {
        .v = v, .band = {.in = x, .h = v->h, .w = v->w}, .out = y, .images = v->images,
        .groups = v->groups, .depth = v->c, .o = v->o, .rows = v->oh, .cols = v->ow,
        .step = v->stride, .th = v->kh, .tw = v->kw, .at_h = at_h, .at_w = at_w, .tap_h = tap_h,
        .tap_w = tap_w, .bias = bias ? fl_data(bias) : NULL, .bias_step = bias ? bias->stride[0] : 0,
    };
    int64_t turned = fl__conv_turned_size(v, &w);
    bool ok = fl__pass_open(&p, &turned, "conv2d");
    if (ok) {
        p.w = fl__conv_turn(v, w, p.rooms.more);
        p.w_group = v->o * p.w.n;
        fl__conv_pass_run(&p);
        fl__rooms_close(&p.rooms);
    }
    fl__conv_unmap(tables);
    return ok;
}

FL_PRIVATE bool fl__cpu_conv2d(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    if (!fl_make(y)) return false;
    if (fl_numel(y) == 0) return true;
    fl__conv v = fl__conv_of(c, c->in[0], c->in[1], y);
    const fl_tensor *bias = c->n_in > 2 ? c->in[2] : NULL;
    fl__image x = fl__image_of(c->in[0]), w = fl__image_of(c->in[1]), out = fl__image_of(y);
    bool dense = !bias || bias->stride[0] == 1;
    if (dense && fl__winograd_wants(&v, &x, &out, v.oh, v.ow, v.c, v.o))
        return fl__winograd_forward(&v, x, w, bias, out);
    if (dense && fl__depthwise_wants(&v, &x, &out)) return fl__depthwise_forward(&v, x, w, bias, out);
    if (dense && fl__columns_wants(&v, &x, &w, &out, fl__columns_pay(&v)))
        return fl__columns_forward(&v, c);
    return fl__conv_forward(&v, x, w, bias, out);
}

/* >>data gradient */

/* The taps that reach the pixels of dx with ih mod stride = phase along dim d, last first: dy's row
   for pixel number r of the phase is r + at. Returns how many. */
static int64_t fl__conv_taps(const fl__conv *v, int d, int64_t phase, int64_t *at, int64_t *tap) {
    int64_t count = 0, k = d == 0 ? v->kh : v->kw;
    for (int64_t t = k - 1; t >= 0; t--) {
        int64_t from = phase + v->pad[d] - t * v->dilation[d];
        if (from - fl__conv_floor(from, v->stride[d]) * v->stride[d] != 0) continue;
        if (at) at[count] = fl__conv_floor(from, v->stride[d]);
        if (tap) tap[count] = t;
        count++;
    }
    return count;
}

/* The pixels (a, b) of dx modulo the strides. w: channels last or as it is. */
static bool fl__conv_data_phase(const fl__conv *v, fl__image dy, fl__image w, fl__image dx, int64_t a,
                                int64_t b, int64_t *tables) {
    static const int64_t one[2] = {1, 1};
    int64_t *at_h = tables, *at_w = at_h + v->kh, *tap_h = at_w + v->kw, *tap_w = tap_h + v->kh;
    fl__conv_pass p = {
        .v = v, .band = {.in = dy, .h = v->oh, .w = v->ow}, .images = v->images,
        .groups = v->groups, .depth = v->o, .o = v->c, .step = one,
        .rows = fl__ceil_div(v->h - a, v->stride[0]), .cols = fl__ceil_div(v->w - b, v->stride[1]),
        .th = fl__conv_taps(v, 0, a, at_h, tap_h), .tw = fl__conv_taps(v, 1, b, at_w, tap_w),
        .at_h = at_h, .at_w = at_w, .tap_h = tap_h, .tap_w = tap_w,
        .w = {w.data, w.c, w.n, w.h, w.w}, .w_group = v->o * w.n,
        .out = {dx.data + (a * dx.h + b * dx.w) * v->size, dx.n, dx.c, dx.h * v->stride[0],
                dx.w * v->stride[1]},
    };
    int64_t shared = 0;
    if (p.th * p.tw == 0) return true;
    if (!fl__pass_open(&p, &shared, "conv2d_grad_input")) return false;
    fl__conv_pass_run(&p);
    fl__rooms_close(&p.rooms);
    return true;
}

static bool fl__winograd_data(const fl__conv *v, fl__image dy, fl__image w, fl__image dx) {
    fl__winograd wino = {.v = v, .in = dy, .out = dx, .w = w, .in_h = v->oh, .in_w = v->ow,
                         .rows = v->h, .cols = v->w, .depth = v->o, .o = v->c,
                         .at_h = v->pad[0] - (v->kh - 1), .at_w = v->pad[1] - (v->kw - 1),
                         .turned = true};
    return fl__winograd_run(&wino, "conv2d_grad_input");
}

static bool fl__conv_backward_data(const fl__conv *v, fl__image dy, fl__image w, fl__image dx) {
    int64_t turned = fl__conv_turned_size(v, &w), tables = fl__conv_part(2 * (v->kh + v->kw) * 8 / v->size);
    fl_buffer *scratch = fl__gemm_scratch(tables + turned, (size_t)v->size, "conv2d_grad_input");
    char *at = scratch ? fl_buffer_map(scratch) : NULL;
    bool ok = at != NULL;
    if (!ok) {
        fl_buffer_drop(scratch);
        return false;
    }
    w = fl__conv_turn(v, w, at + tables * v->size);
    for (int64_t a = 0; a < fl__min(v->stride[0], v->h); a++)
        for (int64_t b = 0; ok && b < fl__min(v->stride[1], v->w); b++)
            ok = fl__conv_data_phase(v, dy, w, dx, a, b, (int64_t *)at);
    fl__conv_unmap(scratch);
    return ok;
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
    fl__image dy = fl__image_of(c->in[0]), w = fl__image_of(c->in[1]), out = fl__image_of(dx);
    const bool empty = fl_numel(c->in[0]) == 0;
    if (!empty && fl__winograd_wants(&v, &dy, &out, v.h, v.w, v.o, v.c))
        return fl__winograd_data(&v, dy, w, out);
    if (!empty && fl__depthwise_wants(&v, &out, &dy)) return fl__depthwise_data(&v, dy, w, out);
    if (!empty && fl__columns_wants(&v, &out, &w, &dy, fl__columns_pay(&v)))
        return fl__columns_data(&v, c);
    if (empty || fl__conv_has_gaps(&v))
        memset(fl_data(dx), 0, (size_t)fl_numel(dx) * fl_dtype_size(dx->dtype));
    return empty || fl__conv_backward_data(&v, dy, w, out);
}

/* >>weight gradient */

/* A task owns rows [run][tap of a run][channel of a chunk] and a chunk of columns o of dw, and sums
   a split of the units: rows of dy's pixels, or parts of long ones. */
typedef struct fl__conv_dw {
    const fl__conv *v;
    fl__image x, dy, dw;
    int64_t tw, runs;                 /* taps of a run; runs = kh, or kh kw with dilation */
    int64_t c, c_chunks, o, o_chunks; /* channels of a chunk */
    int64_t length, row_units, units, block; /* pixels of a unit; units per row, in all, at a time */
    int64_t extent, next;     /* rows of x that a unit reads; of those, the unit before reads not */
    int64_t line;             /* pixels of a copied row of x */
    int64_t splits, split_units, width;
    char *parts;              /* [split][group][run][c chunk][tap][c][o] */
    fl__rooms rooms;
} fl__conv_dw;

#define FL__DW_PIXELS 256        /* of a block: its part of dy is a panel in the first-level cache */
#define FL__DW_SEGMENTS 128      /* most units of a block */
#define FL__DW_PART (1 << 17)    /* elements of dw that a task owns: they stay, with */
#define FL__DW_BAND (80 << 10)   /* the rows of x of a block, in the second-level cache */
#define FL__DW_PARTS (1 << 22)   /* most elements of all parts */

/* Rows of x that a block reads, at most: all that a unit does where an image begins. */
static int64_t fl__dw_block_rows(const fl__conv_dw *p) {
    int64_t images = fl__min(p->block, (p->block - 2 + 2 * p->v->oh) / p->v->oh);
    return images * p->extent + (p->block - images) * p->next;
}

/* Units, and how many go through at a time. */
static void fl__dw_plan_units(fl__conv_dw *p) {
    const fl__conv *v = p->v;
    p->row_units = fl__ceil_div(v->ow, 2 * FL__DW_PIXELS);
    p->length = fl__ceil_div(v->ow, p->row_units);
    p->units = v->images * v->oh * p->row_units;
    p->block = p->row_units > 1 ? 1 : fl__conv_clamp(FL__DW_PIXELS / p->length, 1, FL__DW_SEGMENTS);
    p->extent = (v->kh - 1) * v->dilation[0] + 1;
    p->next = fl__min(v->stride[0], p->extent);
    p->line = (p->length - 1) * v->stride[1] + (v->kw - 1) * v->dilation[1] + 1;
}

/* The rows and columns of a task: two to four panels of columns, and so many channels that its part
   of dw and the rows of x stay in the cache. */
static void fl__dw_plan_chunks(fl__conv_dw *p) {
    const fl__conv *v = p->v;
    const bool wide = v->dilation[1] == 1 || v->kw == 1;
    const int64_t taps = v->kh * v->kw, panels = fl__ceil_div(v->o, 2 * v->ks->lanes);
    p->tw = wide ? v->kw : 1;
    p->runs = v->kh * (wide ? 1 : v->kw);
    p->width = 2 * v->ks->lanes;
    int64_t most = fl__conv_clamp(FL__DW_PART / (taps * v->c * p->width), 2, 4);
    p->o_chunks = fl__ceil_div(panels, most);
    p->o = fl__ceil_div(panels, p->o_chunks) * p->width;
    p->o_chunks = fl__ceil_div(v->o, p->o);
    p->c_chunks = fl__max(fl__ceil_div(taps * v->c * p->o, FL__DW_PART),
                               fl__ceil_div(fl__dw_block_rows(p) * p->line * v->c, FL__DW_BAND));
    p->c = fl__ceil_div(v->c, fl__min(p->c_chunks, v->c));
    p->c_chunks = fl__ceil_div(v->c, p->c);
}

static void fl__dw_plan(fl__conv_dw *p) {
    const fl__conv *v = p->v;
    fl__dw_plan_units(p);
    fl__dw_plan_chunks(p);
    int64_t tasks = v->groups * p->c_chunks * p->o_chunks;
    int64_t weights = v->groups * p->runs * p->c_chunks * p->tw * p->c * v->o;
    p->splits = fl__min(fl__ceil_div(FL__CONV_TASKS / 2, tasks), fl__ceil_div(p->units, p->block));
    while (p->splits > 1 && p->splits * weights > FL__DW_PARTS) p->splits /= 2;
    p->split_units = fl__ceil_div(p->units, p->splits);
    p->splits = fl__ceil_div(p->units, p->split_units);
}

/* What a task works on. */
typedef struct fl__dw_block {
    int64_t group, c0, c, o0, o;       /* channels c0 .. c0 + c of the group, o0 .. o0 + o */
    int64_t u0, units, length;         /* a block of units */
    int64_t row[FL__DW_SEGMENTS];      /* of x, where each unit starts */
    char *x, *dy, *part;               /* part: its row 0, column o0 */
} fl__dw_block;

/* Image and row of unit u, and the first pixel in that row. */
static void fl__dw_unit(const fl__conv_dw *p, int64_t u, int64_t *image, int64_t *row, int64_t *pixel) {
    *pixel = u % p->row_units * p->length;
    *row = u / p->row_units % p->v->oh;
    *image = u / p->row_units / p->v->oh;
}

/* Copies what a block of units reads of x: [row][line][c]. */
static void fl__dw_copy_x(const fl__conv_dw *p, fl__dw_block *b) {
    const fl__conv *v = p->v;
    fl__band band = {.ks = v->ks, .size = v->size, .in = p->x, .h = v->h, .w = v->w, .depth = b->c,
                     .width = p->line};
    for (int64_t u = 0, at = 0; u < b->units; u++) {
        int64_t image, row, pixel;
        fl__dw_unit(p, b->u0 + u, &image, &row, &pixel);
        band.left = v->pad[1] - pixel * v->stride[1];
        const char *from = p->x.data + (image * p->x.n + (b->group * v->c + b->c0) * p->x.c) * v->size;
        int64_t i = u > 0 && row > 0 ? p->extent - p->next : 0; /* the first row not there yet */
        b->row[u] = at - i;
        for (; i < p->extent; i++, at++)
            fl__band_row(&band, from, row * v->stride[0] + i - v->pad[0],
                         b->x + at * p->line * b->c * v->size);
    }
}

/* Packs the task's columns of dy for a block of units: [panel][unit][pixel][width]. */
static void fl__dw_copy_dy(const fl__conv_dw *p, const fl__dw_block *b) {
    const fl__conv *v = p->v;
    const int64_t panel = b->units * b->length * p->width * v->size;
    for (int64_t u = 0; u < b->units; u++) {
        int64_t image, row, pixel;
        fl__dw_unit(p, b->u0 + u, &image, &row, &pixel);
        const char *from = p->dy.data + (image * p->dy.n + (b->group * v->o + b->o0) * p->dy.c +
                                         row * p->dy.h + pixel * p->dy.w) * v->size;
        char *to = b->dy + u * b->length * p->width * v->size;
        for (int64_t o = 0; o < b->o; o += p->width, to += panel)
            v->ks->pack(to, p->width, fl__min(p->width, b->o - o), b->length,
                        from + o * p->dy.c * v->size, p->dy.c, p->dy.w);
    }
}

/* Adds a block of units to a run's rows of the task's part, for one panel of dy. */
static void fl__dw_run_add(const fl__conv_dw *p, const fl__dw_block *b, int64_t run, int64_t o,
                           bool add) {
    const fl__conv *v = p->v;
    const int64_t size = v->size, unit = b->length * p->width * size, rows = p->tw * b->c;
    const int64_t tiles = fl__ceil_div(rows, v->ks->rows), across = v->kw / p->tw;
    const int64_t i = run / across * v->dilation[0], j = run % across * v->dilation[1];
    const bool one = v->kh * v->kw == 1 && v->stride[1] == 1; /* all pixels stand in one line */
    const char *dy = b->dy + o / p->width * b->units * unit;
    char *part = b->part + run * p->c_chunks * p->tw * p->c * v->o * size;
    fl__segment segment[FL__DW_SEGMENTS];
    fl__tile tile = {.segments = one ? 1 : b->units, .segment = segment, .rsa = 1,
                     .csa = v->stride[1] * b->c, .k = one ? b->units * b->length : b->length,
                     .ldb = p->width, .ldc = v->o, .add = add};
    for (int64_t t = 0, r = 0, m; t < tiles; t++, r += m) {
        m = rows / tiles + (t < rows % tiles);
        for (int64_t s = 0; s < tile.segments; s++) {
            segment[s].a = b->x + (((b->row[s] + i) * p->line + j) * b->c + r) * size;
            segment[s].b = dy + s * unit;
        }
        tile.c = part + (r * v->o + o) * size;
        fl__gemm_tile(v->ks, (int)m, (int)fl__min(p->width, b->o - o), &tile);
    }
}

static int64_t fl__dw_x_part(const fl__conv_dw *p) {
    return fl__conv_part(fl__dw_block_rows(p) * p->line * p->c);
}

/* Task = ((split * groups + group) * c_chunks + c chunk) * o_chunks + o chunk. */
static void fl__dw_task(void *arg, int64_t begin, int64_t end) {
    fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    char *at = fl__room_enter(&p->rooms);
    for (int64_t task = begin; task < end; task++) {
        int64_t chunk = task / p->o_chunks % p->c_chunks, item = task / p->o_chunks / p->c_chunks;
        int64_t split = item / v->groups;
        fl__dw_block b = {.group = item % v->groups, .x = at, .dy = at + fl__dw_x_part(p) * v->size,
                          .c0 = chunk * p->c, .o0 = task % p->o_chunks * p->o};
        b.c = fl__min(p->c, v->c - b.c0);
        b.o = fl__min(p->o, v->o - b.o0);
        b.part = p->parts + ((item * p->runs * p->c_chunks + chunk) * p->tw * p->c * v->o + b.o0) *
                 v->size;
        int64_t first = split * p->split_units, last = fl__min(first + p->split_units, p->units);
        for (b.u0 = first; b.u0 < last; b.u0 += b.units) {
            b.units = fl__min(p->block, last - b.u0);
            b.length = fl__min(p->length, v->ow - b.u0 % p->row_units * p->length);
            fl__dw_copy_x(p, &b);
            fl__dw_copy_dy(p, &b);
            for (int64_t o = 0; o < b.o; o += p->width)
                for (int64_t run = 0; run < p->runs; run++)
                    fl__dw_run_add(p, &b, run, o, b.u0 > first);
        }
    }
    fl__room_leave(&p->rooms, at);
}

#define FL__DW_TURN 64 /* rows of dw that are summed and turned at a time */

/* Where row (tap, c) of a group is in the parts. */
static const char *fl__dw_row(const fl__conv_dw *p, int64_t group, int64_t tap, int64_t c) {
    const fl__conv *v = p->v;
    int64_t run = p->tw == 1 ? tap : tap / v->kw, j = p->tw == 1 ? 0 : tap % v->kw;
    int64_t chunk = c / p->c, height = fl__min(p->c, v->c - chunk * p->c);
    int64_t part = (group * p->runs + run) * p->c_chunks + chunk;
    return p->parts + (part * p->tw * p->c + j * height + c % p->c) * v->o * v->size;
}

/* Adds the parts in order and stores dw, for a range of (group, block of rows); the rows are in dw's
   order, (tap, c) or (c, tap). */
static void fl__dw_store_task(void *arg, int64_t begin, int64_t end) {
    fl__conv_dw *p = arg;
    const fl__conv *v = p->v;
    const int64_t size = v->size, taps = v->kh * v->kw, rows = taps * v->c;
    const int64_t blocks = fl__ceil_div(rows, FL__DW_TURN);
    const int64_t part = v->groups * p->runs * p->c_chunks * p->tw * p->c * v->o;
    const bool last = p->dw.c == 1;
    char *sum = fl__room_enter(&p->rooms);
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / blocks, r0 = i % blocks * FL__DW_TURN, n = fl__min(FL__DW_TURN, rows - r0);
        char *at = sum;
        for (int64_t r = r0; r < r0 + n; r++, at += v->o * size) {
            const char *from = fl__dw_row(p, group, last ? r / v->c : r % taps, last ? r % v->c : r / taps);
            memcpy(at, from, (size_t)(v->o * size));
            for (int64_t s = 1; s < p->splits; s++) v->ks->add(at, from + s * part * size, v->o);
        }
        v->ks->turn(p->dw.data + (group * v->o * p->dw.n + r0) * size, p->dw.n, n, v->o, sum, v->o, 1);
    }
    fl__room_leave(&p->rooms, sum);
}

/* Adds up and stores what parts hold. */
static void fl__dw_store(fl__conv_dw *p) {
    const fl__conv *v = p->v;
    int64_t blocks = v->groups * fl__ceil_div(v->kh * v->kw * v->c, FL__DW_TURN);
    fl_parallel(blocks, fl__ceil_div(1 << 14, FL__DW_TURN * v->o), fl__dw_store_task, p);
}

/* The weight gradient by winograd.h: its sums are one part of kh runs of kw taps. */
static bool fl__dw_winograd(const fl__conv *v, fl__image x, fl__image dy, fl__image dw) {
    fl__winograd w = {.v = v, .in = x, .out = dy, .in_h = v->h, .in_w = v->w, .rows = v->oh,
                      .cols = v->ow, .depth = v->c, .o = v->o, .at_h = -v->pad[0],
                      .at_w = -v->pad[1]};
    fl__conv_dw p = {.v = v, .dw = dw, .tw = v->kw, .runs = v->kh, .c = v->c, .c_chunks = 1, .splits = 1};
    fl__winograd_plan(&w, true);
    int64_t kernel = 36 * w.o * w.depth, channels = fl__max(w.depth, w.o);
    int64_t shared = kernel + 36 * (w.image_step + w.result_step) + channels + w.taps * w.o * w.depth;
    if (!fl__rooms_open(&p.rooms, INT32_MAX, FL__DW_TURN * v->o * 4, shared * 4, "conv2d_grad_weight"))
        return false;
    w.kernel = (float *)p.rooms.more;
    w.image = w.kernel + kernel;
    w.result = w.image + 36 * w.image_step;
    w.zero = w.result + 36 * w.result_step;
    w.part = w.zero + channels;
    memset(w.zero, 0, (size_t)channels * sizeof *w.zero);
    fl__winograd_weights(&w);
    p.parts = (char *)w.part;
    fl__dw_store(&p);
    fl__rooms_close(&p.rooms);
    return true;
}

static bool fl__conv_backward_weights(const fl__conv *v, fl__image x, fl__image dy, fl__image dw) {
    fl__conv_dw p = {.v = v, .x = x, .dy = dy, .dw = dw};
    fl__dw_plan(&p);
    int64_t parts = v->groups * p.runs * p.c_chunks * p.tw * p.c * v->o, rows = v->kh * v->kw * v->c;
    int64_t each = fl__dw_x_part(&p) + fl__conv_part(p.block * p.length * p.o);
    int64_t tasks = p.splits * v->groups * p.c_chunks * p.o_chunks;
    int64_t blocks = v->groups * fl__ceil_div(rows, FL__DW_TURN);
    if (!fl__rooms_open(&p.rooms, fl__max(tasks, blocks),
                        fl__max(each, FL__DW_TURN * v->o) * v->size, p.splits * parts * v->size,
                        "conv2d_grad_weight"))
        return false;
    p.parts = p.rooms.more;
    int64_t work = p.runs * p.tw * p.c * fl__min(p.o, v->o) * p.split_units * p.length;
    fl_parallel(tasks, fl__ceil_div(1 << 18, work), fl__dw_task, &p);
    fl__dw_store(&p);
    fl__rooms_close(&p.rooms);
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
    fl__image x = fl__image_of(c->in[0]), dy = fl__image_of(c->in[1]), out = fl__image_of(dw);
    if (fl__winograd_wants(&v, &x, &dy, v.oh, v.ow, v.c, v.o))
        return fl__dw_winograd(&v, x, dy, out);
    if (fl__depthwise_wants(&v, &x, &dy)) return fl__depthwise_weights(&v, x, dy, out);
    if (fl__columns_wants(&v, &x, &out, &dy, fl__columns_weights_pays(&v)))
        return fl__columns_weights(&v, c);
    return fl__conv_backward_weights(&v, x, dy, out);
}

#endif /* FL_CPU_CONV_IMPL */
#endif
/* MIT licence: see LICENSE. */
