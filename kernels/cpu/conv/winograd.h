/* kernels/cpu/conv/winograd.h - 3 x 3 and 5 x 5 convolutions of stride 1 by Winograd's algorithm

   F(4 x 4, 3 x 3) and F(2 x 2, 5 x 5). A tile of 4 x 4 results is A' [(G w G') . (B' x B)] A of a patch of 6
   x 6 pixels x: 36 products for each pair of channels instead of 144. The 36 elements of all patches are 36
   matrix products over the channels, [tile][c] by [c][o], which tile.inc computes. The data gradient is the
   same with the kernel rotated by 180 degrees; the weight gradient is G' [sum over tiles (B' x B) . (A dy
   A')] G. With 5 x 5 kernels a patch gives 2 x 2 results, 36 products instead of 100: B is the same, G and A
   are Vandermonde matrices of the same six points 0, 1, -1, 2, -2 and infinity.

   The transforms are for channels-last images, f32 or f16 and bf16 (converted on the fly), with whole
   registers of channels. They round more than direct sums do. For normal random numbers, 28 x 28 pixels, the
   root mean square of the errors relative to that of the results is 1.3e-6 (32 channels) to 4.5e-6 (512),
   four times direct.h's 3e-7 to 1.2e-6; with 5 x 5 kernels 1.5e-6 to 5.1e-6 against 5e-7 to 2e-6; in the
   weight gradient 1.5e-6 to 3.2e-6, seven to twelve times 2.5e-7. A NaN or an infinity reaches all results of
   its tile and of neighbouring tiles whose patches contain it, not only the results whose windows do.

   The transformed kernels of frozen weights are cached (gemm/packed_cache.h), at 4 times the weights' memory.
   Tiles are processed in groups whose transforms stay in a cache. */
#ifndef FL_CPU_CONV_WINOGRAD_H
#define FL_CPU_CONV_WINOGRAD_H
#include "weight.h"

/* Whether y, dx or dw can be computed here: channels-last f32, or f16 or bf16 summed in f32, in one group,
   stride 1. */
FL_PRIVATE bool fl__winograd_can(const fl__conv *v);
/* Whether that is faster than any other algorithm: at least `least` of its tiles, compared with f32 or with
   vdpbf16ps. */
enum { FL__WINO_TILES_F32 = 64, FL__WINO_TILES_VDPBF16 = 128 };
FL_PRIVATE bool fl__winograd_pays(const fl__conv *v, int64_t least);
FL_PRIVATE bool fl__winograd_run(const fl__conv *v);

#endif /* FL_CPU_CONV_WINOGRAD_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_WINOGRAD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_WINOGRAD_IMPL
#define FL_CPU_CONV_WINOGRAD_IMPL
#include <string.h>

/* A transform of winograd.inc maps a square of lines of n channels to another. bias, relu: for results. */
typedef enum fl__winograd_kind {
    FL__WINO_IMAGE, FL__WINO_KERNEL, FL__WINO_RESULT, FL__WINO_GRAD, FL__WINO_KERNEL_GRAD
} fl__winograd_kind;
typedef void (*fl__winograd_fn)(const void *const *from, void *const *to, int64_t n, const float *bias,
                                bool relu, bool f16);

FL__TILES_BEGIN
#define FL__LEVEL_TEXT "conv/winograd.inc"
#define FL__UNIT winograd
#include "../levels.inc"
FL__TILES_END

/* One convolution by tiles: out[n][r][q][o] = sum over i, j < k, d of in[n][r + at_h + i]
   [q + at_w + j][d] w(o, d, i, j). */
typedef struct fl__winograd {
    const fl__conv *v;
    fl__image in, out, w;       /* w: channels last */
    int64_t in_h, in_w, rows, cols, depth, o, at_h, at_w;
    bool flipped;               /* w(o, d, i, j) is w[d][k - 1 - i][k - 1 - j][o]: data gradient */
    const fl__winograd_fn *transform;
    bool f16;                   /* 16-bit images are f16, not bf16 */
    const float *bias;          /* or NULL */
    int64_t side, taps;                 /* results of a tile along a side; taps of the kernel */
    int64_t across, down, tiles;        /* tiles across and down an image; in all */
    int64_t group, first, count;        /* tiles per group; first and number of the current group */
    int64_t strip;                      /* tiles of a strip of the products; two strips run at a time */
    int64_t chunk, at, all;             /* chunk of o (in a weight gradient: of depth) whose kernels are in
                                           memory at a time; its start; all of depth */
    bool few;                           /* few channels: each thread runs whole groups */
    bool ready;                         /* the transformed kernels were in the cache */
    int64_t image_step, result_step;    /* strides between the elements of a patch */
    float *kernel, *image, *result, *zero, *part; /* part: of the weight gradient */
    fl__scratch scratch;
} fl__winograd;

/* Sizes of groups: for a group's transforms, of FL__WINO_BYTES, those of the kernels are read, or in a weight
   gradient read and written, so a group has at least so many tiles. With few channels each thread runs whole
   groups in its own caches; with many, all threads share a group in the last-level cache. */
#define FL__WINO_BYTES (1 << 20)
#define FL__WINO_FEW 640 /* channels of both images */
#define FL__WINO_KERNELS (5 << 19) /* elements of transformed kernels at a time, if one group holds all
                                      tiles */
enum { FL__WINO_FEW_TILES = 28, FL__WINO_FEW_SUMMED = 112, FL__WINO_TILES = 196 };

/* >>choice */

/* in, out: the images that tiles read and write, or both read for dw; rows, cols: of out. */
static fl__winograd fl__winograd_of(const fl__conv *v) {
    if (v->direction == FL__CONV_DATA)
        return (fl__winograd){.v = v, .in = v->y, .out = v->x, .w = v->k, .in_h = v->oh, .in_w = v->ow,
                              .rows = v->h, .cols = v->w, .depth = v->o, .o = v->c, .side = 7 - v->kh,
                              .at_h = v->pad[0] - (v->kh - 1), .at_w = v->pad[1] - (v->kw - 1),
                              .flipped = true};
    return (fl__winograd){.v = v, .in = v->x, .out = v->y, .w = v->k, .in_h = v->h, .in_w = v->w,
                          .rows = v->oh, .cols = v->ow, .depth = v->c, .o = v->o, .side = 7 - v->kh,
                          .at_h = -v->pad[0], .at_w = -v->pad[1]};
}

FL_PRIVATE bool fl__winograd_can(const fl__conv *v) {
    const fl__winograd p = fl__winograd_of(v);
    const bool weights = v->direction == FL__CONV_WEIGHT || fl__conv_relayout_size(v) == 0;
    return v->size == 4 && (v->raw == 4 || weights) && /* 16-bit images are read in place */
           (v->kh == 3 || v->kh == 5) && v->kw == v->kh && v->groups == 1 &&
           v->stride[0] == 1 && v->stride[1] == 1 && v->dilation[0] == 1 && v->dilation[1] == 1 &&
           v->x.c == 1 && v->y.c == 1 && p.depth % v->ks->lanes == 0 && p.o % (2 * v->ks->lanes) == 0 &&
           (!v->bias || v->bias->stride[0] == 1);
}

/* Measured: it pays from 32 channels on if the tiles do not exceed the image too far, and are many compared
   with the channels, whose kernels are transformed at each call unless they are cached. */
FL_PRIVATE bool fl__winograd_pays(const fl__conv *v, int64_t least) {
    const fl__winograd p = fl__winograd_of(v);
    int64_t tiles = v->images * fl__ceil_div(p.rows, p.side) * fl__ceil_div(p.cols, p.side);
    bool waste = 10 * tiles * p.side * p.side > 16 * v->images * p.rows * p.cols;
    bool many = tiles >= least && 8 * tiles >= fl__max(p.depth, p.o);
    return !waste && p.depth >= 32 && p.o >= 32 && (many || (fl__conv_cacheable(v) && 4 * tiles >= least));
}

/* >>kernels */

/* Task: transforms the kernels of a panel of 2 registers of o: [36][panel][d][width]. Flipped kernels are
   transformed along o; others along d, in blocks of a register that are then transposed. */
static void fl__winograd_kernel_task(void *arg, int64_t begin, int64_t end) {
    fl__winograd *p = arg;
    const int64_t lanes = p->v->ks->lanes, width = 2 * lanes, blocks = p->depth / lanes;
    const int64_t step = p->o * p->depth;
    const void *from[25];
    void *to[36];
    char *workspace = fl__scratch_take(&p->scratch);
    float *part = (float *)(void *)workspace; /* [36][width][lanes] */
    for (int64_t task = begin; task < end; task++) {
        int64_t o = task / blocks * width, d = task % blocks * lanes;
        float *kernel = p->kernel + (o * p->depth + d * width);
        for (int64_t r = 0; r < (p->flipped ? lanes : width); r++) {
            const int64_t at = p->flipped ? (d + r) * p->w.n + o : (o + r) * p->w.n + d;
            for (int64_t t = 0; t < p->taps; t++) {
                int64_t tap = p->flipped ? p->taps - 1 - t : t;
                from[t] = p->w.data + (at + tap / p->v->kw * p->w.h + tap % p->v->kw * p->w.w) * p->v->raw;
            }
            for (int e = 0; e < 36; e++)
                to[e] = p->flipped ? kernel + e * step + r * width : part + (e * width + r) * lanes;
            p->transform[FL__WINO_KERNEL](from, to, p->flipped ? width : lanes, NULL, false, p->f16);
        }
        for (int e = 0; e < 36 && !p->flipped; e++)
            p->v->ks->pack(kernel + e * step, width, width, lanes, part + e * width * lanes, lanes, 1);
    }
    fl__scratch_give_back(&p->scratch, workspace);
}

/* >>images */

/* Image, row and column of the results of tile t. */
static void fl__winograd_tile(const fl__winograd *p, int64_t t, int64_t *n, int64_t *r, int64_t *q) {
    *n = t / (p->across * p->down);
    *r = t / p->across % p->down * p->side;
    *q = t % p->across * p->side;
}

/* Sets `at` to the side x side pixels, of `size` bytes per channel, from row r, column q of an image; to
   `none` for pixels outside. */
static void fl__winograd_pixels(const fl__image *x, int64_t size, int64_t n, int64_t r, int64_t q, int64_t h,
                                int64_t w, int64_t side, float *none, void **at) {
    char *image = x->data + n * x->n * size;
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            bool inside = r + i >= 0 && r + i < h && q + j >= 0 && q + j < w;
            at[i * side + j] = inside ? image + ((r + i) * x->h + (q + j) * x->w) * size : (char *)none;
        }
}

/* Task: image[36][tile][d] of a range of the group's tiles. */
static void fl__winograd_image_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    void *from[36], *to[36];
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->in, p->v->raw, n, r + p->at_h, q + p->at_w, p->in_h, p->in_w, 6, p->zero,
                            from);
        for (int e = 0; e < 36; e++) to[e] = p->image + e * p->image_step + t * p->depth;
        p->transform[FL__WINO_IMAGE]((const void *const *)from, to, p->depth, NULL, false, p->f16);
    }
}

/* Results of tiles begin .. end of the group, from result[36][tile][o]; results outside the image go to
   `none`. */
static void fl__winograd_results(const fl__winograd *p, float *none, int64_t begin, int64_t end) {
    const void *from[36];
    void *to[16];
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->out, p->v->raw, n, r, q, p->rows, p->cols, p->side, none, to);
        for (int e = 0; e < 36; e++) from[e] = p->result + e * p->result_step + t * p->o;
        p->transform[FL__WINO_RESULT](from, to, p->o, p->bias ? p->bias + p->at : NULL, p->v->relu, p->f16);
    }
}

static void fl__winograd_result_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    char *workspace = fl__scratch_take(&p->scratch);
    fl__winograd_results(p, (float *)(void *)workspace, begin, end);
    fl__scratch_give_back(&p->scratch, workspace);
}

/* >>products */

/* Task: result[e][tile][o] = sum over d of image[e][tile][d] kernel[e][d][o], for a range of (e, panel). */
static void fl__winograd_product_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const int64_t width = 2 * p->v->ks->lanes, panels = p->o / width, strip = p->strip;
    const int64_t zero = 0;
    for (int64_t task = begin; task < end; task++) {
        int64_t e = task / panels, panel = task % panels;
        const float *image = p->image + e * p->image_step;
        float *result = p->result + e * p->result_step + panel * width;
        fl__conv_tile t = {.segment = &zero, .segments = 1, .k = p->depth, .pixel = p->depth,
                           .w = p->kernel + (e * p->o + panel * width) * p->depth,
                           .ldc = {p->o, p->o}};
        for (int64_t i = 0; i < p->count; i += 2 * strip) {
            for (int s = 0; s < 2; s++) {
                t.a[s] = image + (i + s * strip) * p->depth;
                t.c[s] = result + (i + s * strip) * p->o;
            }
            p->v->ck->tile[strip](&t);
        }
    }
}

/* >>weight gradient: in is x, out is dy; kernel[36][d][o] sums over all tiles */

/* Task: the transforms of dy, result[36][panel][tile][width]. */
static void fl__winograd_grad_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const int64_t width = 2 * p->v->ks->lanes;
    void *from[16], *to[36];
    for (int64_t t = begin; t < end; t++) {
        int64_t n, r, q;
        fl__winograd_tile(p, p->first + t, &n, &r, &q);
        fl__winograd_pixels(&p->out, p->v->raw, n, r, q, p->rows, p->cols, p->side, p->zero, from);
        for (int64_t o = 0; o < p->o; o += width) {
            for (int e = 0; e < 36; e++)
                to[e] = p->result + e * p->result_step + o * p->group + t * width;
            p->transform[FL__WINO_GRAD]((const void *const *)from, to, width, NULL, false, p->f16);
            for (int64_t i = 0; i < p->side * p->side; i++) from[i] = (char *)from[i] + width * p->v->raw;
        }
    }
}

/* Task: kernel[e][d][o] (+)= sum over tiles of image[e][tile][d] result[e][tile][o], for a range of (e,
   panel). */
static void fl__winograd_sum_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const fl__kernels *ks = p->v->ks;
    const int64_t width = 2 * ks->lanes, panels = p->o / width, line = width * p->v->size;
    const int64_t tiles = fl__ceil_div(p->depth, ks->rows);
    for (int64_t task = begin; task < end; task++) {
        int64_t e = task / panels, o = task % panels * width;
        const float *image = p->image + e * p->image_step;
        fl__segment segment = {.b = p->result + e * p->result_step + o * p->group};
        fl__tile tile = {.segments = 1, .segment = &segment, .k = p->count, .rsa = 1,
                         .csa = p->depth, .ldb = width, .ldc = p->o, .add = p->first > 0};
        for (int64_t t = 0, i = 0, m; t < tiles; t++, i += m) {
            m = p->depth / tiles + (t < p->depth % tiles);
            segment.a = image + i;
            tile.prefetch = t == 0 ? (const char *)segment.b + p->group * line : NULL; /* the next panel */
            tile.prefetch_step = t == 0 ? line : 0;
            tile.prefetch_other = t == 0 ? 64 : 0;
            tile.c = p->kernel + (e * p->depth + i) * p->o + o;
            fl__gemm_tile(ks, (int)m, (int)width, &tile);
        }
    }
}

/* Task: part[tap][d][o] of a range of d. */
static void fl__winograd_part_task(void *arg, int64_t begin, int64_t end) {
    const fl__winograd *p = arg;
    const void *from[36];
    void *to[25];
    for (int64_t d = begin; d < end; d++) {
        for (int e = 0; e < 36; e++) from[e] = p->kernel + (e * p->depth + d) * p->o;
        for (int64_t t = 0; t < p->taps; t++) to[t] = p->part + (t * p->all + d) * p->o;
        p->transform[FL__WINO_KERNEL_GRAD](from, to, p->o, NULL, false, false);
    }
}

/* >>runs */

/* Chooses the transforms and the groups of tiles. */
static void fl__winograd_plan(fl__winograd *p) {
    static const fl__winograd_fn (*const transforms[])[2][5] = {FL__AT_LEVELS(fl__winograd_transforms_f32)};
    const bool sums = p->v->direction == FL__CONV_WEIGHT;
    p->transform = transforms[fl__level()][p->v->kh == 5][p->v->raw < 4];
    p->f16 = p->v->dtype == FL_F16;
    p->taps = p->v->kh * p->v->kw;
    p->across = fl__ceil_div(p->cols, p->side);
    p->down = fl__ceil_div(p->rows, p->side);
    p->tiles = p->v->images * p->across * p->down;
    p->few = p->depth + p->o <= FL__WINO_FEW && (sums || p->tiles > FL__WINO_FEW_TILES);
    int64_t least = !p->few ? FL__WINO_TILES : sums ? FL__WINO_FEW_SUMMED : FL__WINO_FEW_TILES;
    int64_t group = fl__max(least, FL__WINO_BYTES / (36 * p->v->size * (p->depth + p->o)));
    const int64_t groups = fl__ceil_div(p->tiles, group), most = fl__ceil_div(p->tiles, groups);
    p->strip = sums ? p->v->ck->strip : fl__conv_strip(p->v->ck, most, 2);
    p->group = fl__ceil_div(most, 2 * p->strip) * 2 * p->strip;
    const int64_t width = 2 * p->v->ks->lanes, cut = sums ? p->depth : p->o;
    const bool whole = groups > 1 || fl__conv_cacheable(p->v);
    int64_t chunks = whole ? 1 : fl__ceil_div(36 * p->o * p->depth, FL__WINO_KERNELS);
    p->chunk = fl__ceil_div(fl__ceil_div(cut, chunks), width) * width;
    p->all = p->depth;
    p->image_step = p->group * (sums ? p->chunk : p->depth) + 16; /* not a multiple of the page size */
    p->result_step = p->group * (sums ? p->o : p->chunk) + 16;
}

/* Task: a range of groups of tiles, all steps, in a workspace that holds `none`, image and result. */
static void fl__winograd_group_task(void *arg, int64_t begin, int64_t end) {
    fl__winograd p = *(const fl__winograd *)arg;
    const int64_t panels = p.o / (2 * p.v->ks->lanes);
    char *workspace = fl__scratch_take(&p.scratch);
    float *none = (float *)(void *)workspace;
    p.image = none + p.o;
    p.result = p.image + 36 * p.image_step;
    for (int64_t i = begin; i < end; i++) {
        p.first = i * p.group;
        p.count = fl__min(p.group, p.tiles - p.first);
        fl__winograd_image_task(&p, 0, p.count);
        fl__winograd_product_task(&p, 0, 36 * panels);
        fl__winograd_results(&p, none, 0, p.count);
    }
    fl__scratch_give_back(&p.scratch, workspace);
}

/* A chunk of o: groups one after the other, or one per thread with few channels. */
static void fl__winograd_chunk(fl__winograd p, int64_t o) {
    const int64_t lanes = p.v->ks->lanes;
    p.at = o;
    p.o = fl__min(p.chunk, p.o - o);
    p.out.data += o * p.v->raw;
    p.w.data += o * (p.flipped ? 1 : p.w.n) * p.v->raw;
    if (!p.ready) fl_parallel(p.o / (2 * lanes) * (p.depth / lanes), 4, fl__winograd_kernel_task, &p);
    if (p.few) fl_parallel(fl__ceil_div(p.tiles, p.group), 1, fl__winograd_group_task, &p);
    for (p.first = 0; p.first < p.tiles && !p.few; p.first += p.group) {
        p.count = fl__min(p.group, p.tiles - p.first);
        if (o == 0) fl_parallel(p.count, fl__ceil_div(1 << 10, p.depth), fl__winograd_image_task, &p);
        fl_parallel(36 * p.o / (2 * lanes), fl__ceil_div(1 << 20, p.count * p.depth * lanes),
                    fl__winograd_product_task, &p);
        fl_parallel(p.count, fl__ceil_div(1 << 10, p.o), fl__winograd_result_task, &p);
    }
}

/* Computes y, or dx, which differs only in what fl__winograd_of sets. */
static bool fl__winograd_forward(fl__winograd *p) {
    const int64_t lanes = p->v->ks->lanes, channels = fl__max(p->depth, p->o);
    const int64_t kernel = 36 * p->chunk * p->depth, group = 36 * (p->image_step + p->result_step);
    const int64_t workspace = fl__max(72 * lanes * lanes, p->o + (p->few ? group : 0));
    fl__packed_cache cache;
    const bool cached = fl__conv_cacheable(p->v) &&
                        fl__packed_cache_open(&cache, p->v->weight, FL__PACKED_WINOGRAD, p->v->ks,
                                              kernel * p->v->size);
    const int64_t bias = p->v->bias ? p->o : 0;
    const int64_t shared = (cached ? 0 : kernel) + (p->few ? 0 : group) + channels + bias;
    if (!fl__scratch_open(&p->scratch, INT32_MAX, workspace * p->v->size,
                          (shared + fl__conv_relayout_size(p->v)) * p->v->size, p->v->op)) {
        if (cached) fl__packed_cache_drop(&cache);
        return false;
    }
    p->zero = (float *)(void *)p->scratch.shared + (cached ? 0 : kernel);
    p->kernel = (float *)(void *)(cached ? cache.data : p->scratch.shared);
    p->ready = cached && !cache.fresh;
    if (bias) p->bias = fl__conv_bias(p->v, p->zero + channels);
    p->image = p->zero + channels + bias;
    p->result = p->image + 36 * p->image_step;
    memset(p->zero, 0, (size_t)channels * sizeof *p->zero);
    p->w = fl__conv_relayout(p->v, p->scratch.shared + shared * p->v->size);
    for (int64_t o = 0; o < p->o; o += p->chunk) fl__winograd_chunk(*p, o);
    if (cached) fl__packed_cache_close(&cache);
    fl__scratch_close(&p->scratch);
    return true;
}

/* A chunk of depth of dw: adds a group's tiles, and after the last group computes the results. */
static void fl__winograd_sums(fl__winograd p, int64_t d) {
    const int64_t width = 2 * p.v->ks->lanes;
    p.depth = fl__min(p.chunk, p.all - d);
    p.in.data += d * p.v->raw;
    p.part += d * p.o;
    fl_parallel(p.count, fl__ceil_div(1 << 11, p.depth), fl__winograd_image_task, &p);
    fl_parallel(36 * p.o / width, fl__ceil_div(1 << 20, p.count * p.depth * width),
                fl__winograd_sum_task, &p);
    if (p.first + p.count == p.tiles)
        fl_parallel(p.depth, fl__ceil_div(1 << 12, p.o), fl__winograd_part_task, &p);
}

/* Computes dw: the sums over all tiles are one part of kh runs of kw taps. */
static bool fl__winograd_weight(fl__winograd *p) {
    const fl__conv *v = p->v;
    const int64_t channels = fl__max(p->depth, p->o), kernel = 36 * p->o * p->chunk;
    const int64_t shared = kernel + 36 * (p->image_step + p->result_step) + channels;
    fl__weight_parts parts = {.v = v, .splits = 1, .runs = v->kh, .tw = v->kw, .c_chunks = 1, .c = v->c};
    if (!fl__scratch_open(&parts.scratch, INT32_MAX, fl__weight_parts_workspace(v),
                          (shared + p->taps * p->o * p->depth) * v->size, v->op))
        return false;
    p->kernel = (float *)(void *)parts.scratch.shared;
    p->image = p->kernel + kernel;
    p->result = p->image + 36 * p->image_step;
    p->zero = p->result + 36 * p->result_step;
    p->part = p->kernel + shared;
    memset(p->zero, 0, (size_t)channels * sizeof *p->zero);
    for (p->first = 0; p->first < p->tiles; p->first += p->group) {
        p->count = fl__min(p->group, p->tiles - p->first);
        fl_parallel(p->count, fl__ceil_div(1 << 11, p->o), fl__winograd_grad_task, p);
        for (int64_t d = 0; d < p->depth; d += p->chunk) fl__winograd_sums(*p, d);
    }
    parts.data = (char *)p->part;
    fl__weight_parts_store(&parts);
    fl__scratch_close(&parts.scratch);
    return true;
}

FL_PRIVATE bool fl__winograd_run(const fl__conv *v) {
    fl__winograd p = fl__winograd_of(v);
    fl__winograd_plan(&p);
    return v->direction == FL__CONV_WEIGHT ? fl__winograd_weight(&p) : fl__winograd_forward(&p);
}

#endif
#endif
/* MIT licence: see LICENSE. */
