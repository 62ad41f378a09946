/* kernels/cpu/conv/common.h - what convolution algorithms share: sizes, images, bands, register tile

   Everything runs over channels-last data, where the values that a kernel row of an output pixel reads are
   contiguous. */
#ifndef FL_CPU_CONV_COMMON_H
#define FL_CPU_CONV_COMMON_H
#include "../common.h"
#include "../gemm/tile.h"
#include "../gemm/packed_cache.h"
#include "../scratch.h"

/* >>tile */

/* A tile of results: two strips of a few pixels by two registers of output channels. Lengths are in
   elements. */
typedef struct fl__conv_tile {
    const void *a[2];       /* the first pixel of each strip, at segment offset 0 */
    const int64_t *segment; /* [segments] offsets from a pixel */
    int64_t segments, k;    /* k: values per segment */
    int64_t pixel;          /* stride from pixel to pixel */
    const void *w;          /* [segments][k][2 registers] */
    const void *bias;       /* [2 registers] or NULL */
    void *c[2];             /* the results of each strip, pixels ldc elements apart */
    int64_t ldc[2];
    bool add;               /* accumulate: c holds a sum already */
    bool relu;              /* then c = max(0, c) */
} fl__conv_tile;

/* The kernels that tile.inc defines for an element type and a level. */
typedef struct fl__conv_kernels {
    void (*tile[8])(const fl__conv_tile *t); /* [pixels of a strip] */
    int strip;                               /* most pixels of a strip */
    /* y[j] = start[j] + sum over i < count of a[i][j] b[i][j], j < n; a NULL start means 0 */
    void (*line)(void *y, const void *start, const void *const *a, const void *const *b, int64_t count,
                 int64_t n);
} fl__conv_kernels;

/* >>sizes */

/* Data with four strides, in elements: images [n][c][h][w] or weights [o][c][kh][kw]. */
typedef struct fl__image {
    char *data;
    int64_t n, c, h, w;
} fl__image;

typedef enum fl__conv_direction { FL__CONV_FORWARD, FL__CONV_DATA, FL__CONV_WEIGHT } fl__conv_direction;

/* A convolution or one of its gradients. */
typedef struct fl__conv {
    fl__conv_direction direction;
    const fl_call *call;
    const char *op; /* the op's name */
    const fl__kernels *ks;
    const fl__conv_kernels *ck;
    fl_dtype dtype;
    int64_t size, raw;            /* bytes of an element in the sums; in memory (2 for f16 and bf16) */
    int64_t images, groups, c, o; /* c, o: channels per group */
    int64_t h, w, oh, ow, kh, kw;
    const int64_t *stride, *pad, *dilation; /* along h, w; pad: the low side */
    fl__image x, k, y;            /* x or dx, the weights or dw, y or dy */
    const fl_tensor *weight;      /* the tensor of k */
    const fl_tensor *bias;        /* of y, or NULL */
    bool relu;                    /* of y */
} fl__conv;

/* Fills the sizes from a call; x, w, y: those operands of c, or their gradients. */
FL_PRIVATE fl__conv fl__conv_of(const fl_call *c, fl__conv_direction direction, const fl_tensor *x,
                                const fl_tensor *w, const fl_tensor *y);
/* The bias, of stride 1, in the sums' type: in place, or converted to `to`, o values per group. */
FL_PRIVATE const void *fl__conv_bias(const fl__conv *v, void *to);

static inline int64_t fl__conv_floor(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static inline int64_t fl__conv_clamp(int64_t v, int64_t lo, int64_t hi) {
    return fl__max(lo, fl__min(v, hi));
}

/* Elements to reserve in a workspace for n elements that are read in whole registers: at least 16 more, so
   that a read past the end touches nothing that another thread writes. */
static inline int64_t fl__conv_part(int64_t n) {
    return (n + 31) / 16 * 16;
}

/* Along dimension d (0: h, 1: w): the pixel of y whose tap t reads pixel `at` of x, or -1. */
static inline int64_t fl__conv_reach(const fl__conv *v, int d, int64_t at, int64_t t) {
    int64_t from = at + v->pad[d] - t * v->dilation[d], last = d == 0 ? v->oh : v->ow;
    bool is = from >= 0 && from % v->stride[d] == 0 && from / v->stride[d] < last;
    return is ? from / v->stride[d] : -1;
}

/* Whether an image of n x h x w pixels of c channels is dense, channels last. */
FL_PRIVATE bool fl__conv_dense(const fl__image *x, int64_t n, int64_t c, int64_t h, int64_t w);
/* Copies n elements of `size` bytes, with strides from_step and to_step in elements. */
FL_PRIVATE void fl__conv_copy(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                              int64_t size);

/* Elements of the weights with channels last; 0 if they are read in place. */
FL_PRIVATE int64_t fl__conv_relayout_size(const fl__conv *v);
/* The weights with channels last: copied to `to`, or in place. */
FL_PRIVATE fl__image fl__conv_relayout(const fl__conv *v, char *to);

/* Whether packed weights are cached: frozen weights that are read in place. */
static inline bool fl__conv_cacheable(const fl__conv *v) {
    return v->direction == FL__CONV_FORWARD && fl__conv_relayout_size(v) == 0 &&
           fl__packed_cacheable(v->weight);
}

/* The strip length with which `strips` strips at a time cover so many pixels in the least time: each step of
   a tile costs 4 multiply-adds per pixel of a strip, and a constant. */
static inline int64_t fl__conv_strip(const fl__conv_kernels *ck, int64_t pixels, int64_t strips) {
    int64_t best = ck->strip, least = INT64_MAX;
    for (int64_t n = ck->strip; n > 0; n--) {
        const int64_t time = fl__ceil_div(pixels, strips * n) * (4 * n + 1);
        if (ck->tile[n] && time < least) best = n, least = time;
    }
    return best;
}

/* >>band: rows of an image with their padding, channels last and dense */

typedef struct fl__band {
    const fl__kernels *ks;
    int64_t size;
    fl__image in;
    int64_t h, w, depth; /* of an image; depth: channels. Pixels outside are 0. */
    int64_t left, width; /* pixels -left .. -left + width of a row */
} fl__band;
/* Writes row y of the image whose element (0, 0, 0) is at `from`: [width][depth] elements. */
FL_PRIVATE void fl__band_row(const fl__band *b, const char *from, int64_t y, char *to);

#endif /* FL_CPU_CONV_COMMON_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_COMMON) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_COMMON_IMPL
#define FL_CPU_CONV_COMMON_IMPL
#include "../../../fl_backend.h"
#include <string.h>

FL__TILES_BEGIN
#define FL__LEVEL_TEXT "conv/tile.inc"
#define FL__UNIT conv_tile
#define FL__WITH_F64 FL__PER_LEVEL
#include "../levels.inc"
FL__TILES_END

static fl__image fl__image_of(const fl_tensor *t) {
    return (fl__image){t->buffer ? fl_data(t) : NULL, t->stride[0], t->stride[1], t->stride[2], t->stride[3]};
}

FL_PRIVATE fl__conv fl__conv_of(const fl_call *c, fl__conv_direction direction, const fl_tensor *x,
                                const fl_tensor *w, const fl_tensor *y) {
    static const fl__conv_kernels *const f32[] = {FL__AT_LEVELS(&fl__conv_tile_kernels_f32)};
    static const fl__conv_kernels *const f64[] = {FL__AT_LEVELS(&fl__conv_tile_kernels_f64)};
    const fl_conv2d_args *a = c->args;
    return (fl__conv){
        .direction = direction, .call = c, .op = fl_op_name(c->op),
        .ks = fl__gemm_kernels(x->dtype), .ck = (x->dtype == FL_F64 ? f64 : f32)[fl__level()],
        .dtype = x->dtype, .size = (int64_t)fl_dtype_size(fl_dtype_wide(x->dtype)),
        .raw = (int64_t)fl_dtype_size(x->dtype),
        .images = x->shape[0], .groups = a->groups, .c = w->shape[1], .o = w->shape[0] / a->groups,
        .h = x->shape[2], .w = x->shape[3], .oh = y->shape[2], .ow = y->shape[3],
        .kh = w->shape[2], .kw = w->shape[3],
        .stride = a->stride, .pad = a->pad_lo, .dilation = a->dilation,
        .x = fl__image_of(x), .k = fl__image_of(w), .y = fl__image_of(y), .weight = w,
        .bias = direction == FL__CONV_FORWARD && c->n_in > 2 ? c->in[2] : NULL,
        .relu = direction == FL__CONV_FORWARD && a->relu,
    };
}

FL_PRIVATE const void *fl__conv_bias(const fl__conv *v, void *to) {
    if (v->raw == v->size) return fl_data(v->bias);
    fl__cast_loop(v->dtype, FL_F32)((void *[]){to, fl_data(v->bias)}, v->groups * v->o, NULL);
    return to;
}

FL_PRIVATE bool fl__conv_dense(const fl__image *x, int64_t n, int64_t c, int64_t h, int64_t w) {
    return (c == 1 || x->c == 1) && (w == 1 || x->w == c) && (h == 1 || x->h == w * c) &&
           (n == 1 || x->n == h * w * c);
}

FL_PRIVATE void fl__conv_copy(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                              int64_t size) {
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)(n * size));
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 4, from + i * from_step * 4, 4);
    } else {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 8, from + i * from_step * 8, 8);
    }
}

/* >>relayout */

typedef struct fl__conv_weights {
    const fl__conv *v;
    char *to; /* [o][kh][kw][c] of all groups */
} fl__conv_weights;

static void fl__conv_relayout_task(void *arg, int64_t begin, int64_t end) {
    const fl__conv_weights *p = arg;
    const fl__conv *v = p->v;
    const bool dense = v->k.h == v->kw * v->k.w;
    const int64_t taps = dense ? v->kh * v->kw : v->kw, calls = dense ? 1 : v->kh;
    for (int64_t o = begin; o < end; o++)
        for (int64_t i = 0; i < calls; i++)
            v->ks->pack(p->to + (o * v->kh * v->kw + i * v->kw) * v->c * v->size, v->c, v->c, taps,
                             v->k.data + (o * v->k.n + i * v->k.h) * v->size, v->k.c, v->k.w);
}

FL_PRIVATE int64_t fl__conv_relayout_size(const fl__conv *v) {
    return v->k.c == 1 || v->c == 1 ? 0 : v->groups * v->o * v->c * v->kh * v->kw;
}

FL_PRIVATE fl__image fl__conv_relayout(const fl__conv *v, char *to) {
    if (fl__conv_relayout_size(v) == 0) return v->k;
    fl__conv_weights arg = {v, to};
    int64_t row = v->c * v->kh * v->kw;
    fl_parallel(v->groups * v->o, fl__ceil_div(1 << 14, row), fl__conv_relayout_task, &arg);
    return (fl__image){to, row, 1, v->kw * v->c, v->c};
}

/* >>band */

FL_PRIVATE void fl__band_row(const fl__band *b, const char *from, int64_t y, char *to) {
    const int64_t pixel = b->depth * b->size;
    int64_t lo = fl__conv_clamp(b->left, 0, b->width);
    int64_t hi = fl__conv_clamp(b->left + b->w, lo, b->width);
    if (y < 0 || y >= b->h) lo = hi = b->width;
    memset(to, 0, (size_t)(lo * pixel));
    from += (y * b->in.h + (lo - b->left) * b->in.w) * b->size;
    if (hi > lo && b->in.c == 1 && b->in.w == b->depth)
        memcpy(to + lo * pixel, from, (size_t)((hi - lo) * pixel));
    else if (hi > lo)
        b->ks->pack(to + lo * pixel, b->depth, b->depth, hi - lo, from, b->in.c, b->in.w);
    memset(to + hi * pixel, 0, (size_t)((b->width - hi) * pixel));
}

#endif
#endif
/* MIT licence: see LICENSE. */
