/* kernels/cpu/conv/direct.h - direct convolutions and data gradients: sums over the taps of an image

   A task copies the rows of the image that it needs, with padding, into a band that stays in the L2 cache;
   the copy also transposes images of any layout other than channels-last. A channels-last image without
   padding is read in place. A pixel's products are sums over segments of a band (the values of a kernel row)
   with packed weights, which tile.inc computes for two strips of pixels at a time. Results are stored in
   place, or, for layouts other than channels-last, transposed block by block.

   Forward: y[n][o][r][q] = sum over i, j, c of x[n][c][r s + i d - p][q s + j d - p] w[o][c][i][j].

   Data gradient: the pixels of dx with the same ih mod stride_h and iw mod stride_w use the same taps; each
   such phase is a convolution of stride 1 of dy with those taps, with the roles of o and c exchanged. */
#ifndef FL_CPU_CONV_DIRECT_H
#define FL_CPU_CONV_DIRECT_H
#include "common.h"

/* Computes y or dx, by v->direction, for any sizes and strides. */
FL_PRIVATE bool fl__direct_run(const fl__conv *v);

#endif /* FL_CPU_CONV_DIRECT_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_DIRECT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_DIRECT_IMPL
#define FL_CPU_CONV_DIRECT_IMPL
#include <string.h>

#define FL__STRIP_BYTES 1024       /* at least the bytes of a strip's results */
#define FL__BAND_BYTES (384 << 10) /* most bytes of a band, which stays in the L2 cache */
#define FL__BAND_PIXELS 448        /* output pixels of a band: a panel of weights is reused so often */
#define FL__DIRECT_TASKS 32        /* fewest tasks to aim at */

/* out[n][o][r][q] = bias[o] + sum over i < th, j < tw, d < depth of
   in[n][d][r step_h + at_h[i]][q step_w + at_w[j]] weight[o][d][i][j], per group */
typedef struct fl__direct {
    const fl__conv *v;
    fl__band band; /* in: of all groups; left = -at_w[0] */
    fl__image out;
    int64_t images, groups, depth, o, rows, cols;
    const int64_t *step;
    int64_t th, tw;
    int64_t *at_h, *at_w;   /* ascending */
    int64_t *tap_h, *tap_w; /* the corresponding taps of the weights */
    fl__image w;            /* n: stride over o; c: over depth; data: of group 0 */
    int64_t w_group;
    /* the plan: */
    bool in_place;                      /* the image is read in place, not copied to bands */
    bool channels_last;                 /* out is channels-last: tiles store into it */
    bool merged;                        /* a kernel row is one segment */
    int64_t pieces, k, chunk, segments; /* pieces of a tap; values per segment; segments per call, in all */
    int64_t width, panels;              /* channels of a panel */
    int64_t strip;                      /* pixels of a strip */
    int64_t line_strips, strips;        /* strips of a line; most in a band */
    int64_t line_blocks, block_strips;  /* blocks of a long line */
    int64_t image_bands, band_rows, band_images, bands, panel_blocks, block_panels;
    int64_t image_rows;                 /* rows of a band per image */
    char *packed;
    int64_t *segment;
    fl__scratch scratch;
} fl__direct;

/* A strip: its pixels first .. first + count are at in, out. */
typedef struct fl__strip {
    const char *in;
    char *out;
    int first, count;
} fl__strip;

/* The part of the output that a task computes. */
typedef struct fl__area {
    int64_t group, n0, n1, r0, r1, s0, s1; /* images, rows, strips of each row */
    int64_t panel0, panel1;
} fl__area;

/* >>plan */

/* A 1 x 1 kernel over dense images treats all pixels as one long line. */
static void fl__direct_flatten(fl__direct *p) {
    const fl__image *in = &p->band.in, *out = &p->out;
    bool one = p->th * p->tw == 1 && p->step[0] == 1 && p->step[1] == 1 && p->at_h[0] == 0 &&
               p->at_w[0] == 0 && p->rows <= p->band.h && p->cols == p->band.w;
    bool dense = in->c == 1 && out->c == 1 && (p->rows == 1 || (in->h == p->cols * in->w &&
                 out->h == p->cols * out->w)) && (p->images == 1 ||
                 (in->n == p->rows * p->cols * in->w && out->n == p->rows * p->cols * out->w));
    if (!one || !dense) return;
    p->cols = p->band.w = p->images * p->rows * p->cols;
    p->images = p->rows = p->band.h = 1;
}

/* Segments, and how many of them a call of the tile sums: about 768 values. Taps along w whose pixels are
   contiguous are one segment. */
static void fl__direct_plan_segments(fl__direct *p) {
    const int64_t most = 768, pixel = p->in_place ? p->band.in.w : p->depth;
    const bool dense_taps = p->tw == 1 || p->at_w[1] - p->at_w[0] == 1;
    p->merged = dense_taps && pixel == p->depth && p->tw * p->depth <= 2 * most;
    p->pieces = p->depth > 2 * most ? fl__ceil_div(p->depth, most) : 1;
    p->k = p->merged ? p->tw * p->depth : fl__ceil_div(p->depth, p->pieces);
    p->segments = (p->merged ? p->th : p->th * p->tw) * p->pieces;
    p->chunk = p->pieces > 1 ? 1 : fl__conv_clamp(most / p->k, 1, p->segments);
}

/* Rows of the band per image for `rows` rows of output. */
static int64_t fl__direct_band_height(const fl__direct *p, int64_t rows) {
    return (rows - 1) * p->step[0] + p->at_h[p->th - 1] - p->at_h[0] + 1;
}

/* Cuts the output into bands: rows of an image, whole images, or parts of one long line. */
static void fl__direct_plan_bands(fl__direct *p) {
    const int64_t row = p->band.width * p->depth * p->v->size, strip = p->strip;
    int64_t most = fl__conv_clamp(FL__BAND_BYTES / (p->depth * p->v->size), 8 * strip, FL__BAND_PIXELS);
    p->line_strips = p->block_strips = fl__ceil_div(p->cols, strip);
    p->line_blocks = 1;
    p->band_rows = fl__conv_clamp(FL__BAND_PIXELS / p->cols, 1, p->rows);
    while (p->band_rows > 1 && fl__direct_band_height(p, p->band_rows) * row > FL__BAND_BYTES)
        p->band_rows--;
    p->image_bands = fl__ceil_div(p->rows, p->band_rows);
    p->band_rows = fl__ceil_div(p->rows, p->image_bands);
    p->image_bands = fl__ceil_div(p->rows, p->band_rows);
    p->image_rows = fl__direct_band_height(p, p->band_rows);
    p->band_images = 1;
    if (p->in_place && p->cols > 2 * most) {
        p->line_blocks = fl__ceil_div(p->cols, most);
        p->block_strips = fl__ceil_div(p->line_strips, 2 * p->line_blocks) * 2;
        p->line_blocks = fl__ceil_div(p->line_strips, p->block_strips);
    } else if (p->image_bands == 1) {
        int64_t images = fl__min(FL__BAND_PIXELS / (p->rows * p->cols),
                                 FL__BAND_BYTES / (p->image_rows * row));
        p->band_images = fl__conv_clamp(images, 1, p->images);
    }
    p->bands = fl__ceil_div(p->images, p->band_images) * p->image_bands *
               (p->line_blocks > 1 ? p->band_rows : 1) * p->line_blocks;
    p->strips = p->band_images * p->band_rows * p->block_strips;
}

static void fl__direct_plan(fl__direct *p) {
    const fl__conv *v = p->v;
    fl__direct_flatten(p);
    p->strip = fl__conv_strip(v->ck, p->cols, 1);
    const fl__band *b = &p->band;
    p->in_place = b->in.c == 1 && p->at_h[0] >= 0 && p->at_w[0] >= 0 && p->cols >= p->strip &&
                  (p->rows - 1) * p->step[0] + p->at_h[p->th - 1] < b->h &&
                  (p->cols - 1) * p->step[1] + p->at_w[p->tw - 1] < b->w;
    p->channels_last = p->out.c == 1;
    p->width = 2 * v->ks->lanes;
    p->panels = fl__ceil_div(p->o, p->width);
    p->band.ks = v->ks;
    p->band.size = v->size;
    p->band.depth = p->depth;
    p->band.left = -p->at_w[0];
    p->band.width = (p->cols - 1) * p->step[1] + p->at_w[p->tw - 1] - p->at_w[0] + 1;
    fl__direct_plan_segments(p);
    fl__direct_plan_bands(p);
    int64_t blocks = fl__ceil_div(FL__DIRECT_TASKS, p->bands * p->groups);
    p->block_panels = fl__ceil_div(p->panels, fl__min(blocks, p->panels));
    p->panel_blocks = fl__ceil_div(p->panels, p->block_panels);
}

/* The offset of segment s from the first value of a pixel. */
static int64_t fl__direct_segment(const fl__direct *p, int64_t s) {
    int64_t tap = s / p->pieces, i = p->merged ? tap : tap / p->tw, j = p->merged ? 0 : tap % p->tw;
    int64_t row = p->in_place ? p->band.in.h : p->band.width * p->depth;
    int64_t pixel = p->in_place ? p->band.in.w : p->depth;
    int64_t y = p->in_place ? p->at_h[i] : p->at_h[i] - p->at_h[0];
    int64_t x = p->in_place ? p->at_w[j] : p->at_w[j] - p->at_w[0];
    return y * row + x * pixel + s % p->pieces * p->k;
}

/* A task's workspace holds a band, a block of results and the strips; these return the elements of the first
   two. */
static int64_t fl__direct_band_part(const fl__direct *p) {
    int64_t slack = p->strip * p->step[1] * p->depth; /* read by strips that are not full */
    int64_t row = p->band.width * p->depth;
    return p->in_place ? 0 : fl__conv_part(p->band_images * p->image_rows * row + slack);
}

static int64_t fl__direct_block_part(const fl__direct *p) {
    int64_t pixels = p->band_images * p->band_rows * p->cols;
    return p->channels_last ? 0 : fl__conv_part((pixels + p->strip) * p->width);
}

/* >>weights: [group][panel][tap][depth][width] */

static int64_t fl__direct_panel_size(const fl__direct *p) {
    return p->th * p->tw * p->depth * p->width;
}

/* Task: packs a range of (group, panel, tap) of the weights. */
static void fl__direct_pack_task(void *arg, int64_t begin, int64_t end) {
    const fl__direct *p = arg;
    const int64_t size = p->v->size, taps = p->th * p->tw, bytes = p->depth * p->width * size;
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

static fl__area fl__direct_area(const fl__direct *p, int64_t task) {
    int64_t block = task % p->panel_blocks, band = task / p->panel_blocks;
    fl__area a = {.group = band % p->groups, .s1 = p->line_strips};
    band /= p->groups;
    if (p->line_blocks > 1) {
        a.s0 = band % p->line_blocks * p->block_strips;
        a.s1 = fl__min(a.s0 + p->block_strips, p->line_strips);
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
static void fl__direct_fill(const fl__direct *p, const fl__area *a, char *band) {
    const fl__band *b = &p->band;
    const int64_t row = b->width * p->depth * b->size, rows = fl__direct_band_height(p, a->r1 - a->r0);
    for (int64_t n = a->n0; n < a->n1; n++) {
        const char *from = b->in.data + (n * b->in.n + a->group * p->depth * b->in.c) * b->size;
        for (int64_t r = 0; r < rows; r++)
            fl__band_row(b, from, a->r0 * p->step[0] + p->at_h[0] + r, band + r * row);
        band += p->image_rows * row;
    }
}

/* Lists the strips of an area; returns their number. */
static int64_t fl__direct_strips(const fl__direct *p, const fl__area *a, char *band, char *block,
                                 fl__strip *strip) {
    const int64_t size = p->v->size, length = p->strip, depth = p->depth;
    const fl__image *in = &p->band.in, *out = &p->out;
    const int64_t pixel = p->step[1] * (p->in_place ? in->w : depth) * size;
    const int64_t out_pixel = (p->channels_last ? out->w : p->width) * size;
    fl__strip *at = strip;
    for (int64_t n = a->n0; n < a->n1; n++)
        for (int64_t r = a->r0; r < a->r1; r++) {
            const char *from = p->in_place
                ? in->data + (n * in->n + a->group * depth * in->c + r * p->step[0] * in->h) * size
                : band + ((n - a->n0) * p->image_rows + (r - a->r0) * p->step[0]) * p->band.width *
                      depth * size;
            char *to = p->channels_last
                ? out->data + (n * out->n + r * out->h + a->group * p->o) * size
                : block + ((n - a->n0) * (a->r1 - a->r0) + r - a->r0) * p->cols * out_pixel;
            for (int64_t s = a->s0; s < a->s1; s++, at++) {
                int64_t q = s * length, count = fl__min(length, p->cols - q);
                int64_t back = p->cols >= length ? length - count : 0; /* read no pixel past the line */
                *at = (fl__strip){from + (q - back) * pixel, to + q * out_pixel, (int)back, (int)count};
            }
        }
    return at - strip;
}

/* Copies the pixels of a partial strip, or of a partial panel, between the output and a tile's buffer. */
static void fl__direct_corner(const fl__direct *p, const fl__strip *strip, char *out, char *tile, int64_t n,
                              bool load) {
    const int64_t bytes = p->width * p->v->size;
    const int64_t step = (p->channels_last ? p->out.w : p->width) * p->v->size;
    tile += strip->first * bytes;
    for (int i = 0; i < strip->count; i++)
        if (load) memcpy(tile + i * bytes, out + i * step, (size_t)(n * p->v->size));
        else memcpy(out + i * step, tile + i * bytes, (size_t)(n * p->v->size));
}

/* One call of the tile for a pair of strips, n channels, `out` bytes after their first channel. */
static void fl__direct_pair(const fl__direct *p, const fl__strip *pair, fl__conv_tile *t, int64_t out,
                            int64_t n) {
    _Alignas(64) char corner[2][FL__STRIP_BYTES];
    const bool full = n == p->width;
    bool whole[2];
    for (int s = 0; s < 2; s++) {
        whole[s] = full && pair[s].count == p->strip;
        t->a[s] = pair[s].in;
        t->c[s] = whole[s] ? pair[s].out + out : corner[s];
        t->ldc[s] = whole[s] && p->channels_last ? p->out.w : p->width;
        if (t->add && !whole[s]) fl__direct_corner(p, &pair[s], pair[s].out + out, corner[s], n, true);
    }
    p->v->ck->tile[p->strip](t);
    for (int s = 0; s < 2; s++)
        if (!whole[s]) fl__direct_corner(p, &pair[s], pair[s].out + out, corner[s], n, false);
}

/* One panel of channels for all strips of an area, chunk by chunk. */
static void fl__direct_panel(const fl__direct *p, const fl__strip *strip, int64_t strips, int64_t group,
                             int64_t panel) {
    const int64_t size = p->v->size, first = panel * p->width;
    const int64_t n = p->channels_last ? fl__min(p->width, p->o - first) : p->width;
    const char *w = p->packed + (group * p->panels + panel) * fl__direct_panel_size(p) * size;
    const fl_tensor *b = p->v->bias;
    _Alignas(64) char bias[128] = {0};
    fl__conv_tile t = {.bias = b ? bias : NULL, .segments = p->chunk,
                       .pixel = p->step[1] * (p->in_place ? p->band.in.w : p->depth)};
    if (b)
        fl__conv_copy(bias, 1, (char *)fl_data(b) + (group * p->o + first) * b->stride[0] * size,
                      b->stride[0], fl__min(p->width, p->o - first), size);
    for (int64_t s = 0; s < p->segments; s += t.segments) {
        t.k = (s + 1) % p->pieces ? p->k : p->pieces > 1 ? p->depth - (p->pieces - 1) * p->k : p->k;
        t.segments = fl__min(p->chunk, p->segments - s);
        t.segment = p->segment + s;
        t.w = w;
        t.relu = p->v->relu && s + t.segments == p->segments;
        for (int64_t i = 0; i + 1 < strips; i += 2)
            fl__direct_pair(p, strip + i, &t, p->channels_last ? first * size : 0, n);
        w += t.segments * t.k * p->width * size;
        t.add = true;
    }
}

/* Copies the results of a panel from the block to the output. */
static void fl__direct_scatter(const fl__direct *p, const fl__area *a, int64_t panel, const char *block) {
    const int64_t size = p->v->size, first = panel * p->width, width = p->width;
    const int64_t n = fl__min(width, p->o - first), rows = a->r1 - a->r0;
    const fl__image *out = &p->out;
    const bool dense = out->w == 1 && out->h == p->cols;
    for (int64_t i = a->n0; i < a->n1; i++, block += rows * p->cols * width * size) {
        char *to = out->data + (i * out->n + (a->group * p->o + first) * out->c + a->r0 * out->h) * size;
        if (dense) {
            p->v->ks->pack(to, out->c, rows * p->cols, n, block, width, 1);
            continue;
        }
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < rows; r++)
                fl__conv_copy(to + (c * out->c + r * out->h) * size, out->w,
                              block + (r * p->cols * width + c) * size, width, p->cols, size);
    }
}

/* Task = ((band of images and rows) * groups + group) * panel_blocks + block of panels. */
static void fl__direct_task(void *arg, int64_t begin, int64_t end) {
    fl__direct *p = arg;
    const int64_t size = p->v->size;
    char *band = fl__scratch_take(&p->scratch);
    char *block = band + fl__direct_band_part(p) * size;
    fl__strip *strip = (fl__strip *)(void *)(block + fl__direct_block_part(p) * size);
    int64_t filled = -1;
    for (int64_t task = begin; task < end; task++) {
        fl__area a = fl__direct_area(p, task);
        if (!p->in_place && filled != task / p->panel_blocks) fl__direct_fill(p, &a, band);
        filled = task / p->panel_blocks;
        int64_t strips = fl__direct_strips(p, &a, band, block, strip);
        if (strips % 2) {
            strip[strips] = strip[strips - 1];
            strip[strips++].count = 0;
        }
        for (int64_t panel = a.panel0; panel < a.panel1; panel++) {
            fl__direct_panel(p, strip, strips, a.group, panel);
            if (!p->channels_last) fl__direct_scatter(p, &a, panel, block);
        }
    }
    fl__scratch_give_back(&p->scratch, band);
}

/* Plans, packs the weights and runs the tasks. */
static bool fl__direct_sum(fl__direct *p) {
    const int64_t size = p->v->size, taps = p->th * p->tw;
    fl__direct_plan(p);
    const int64_t panels = p->groups * p->panels, tasks = p->bands * p->groups * p->panel_blocks;
    const int64_t offsets = fl__conv_part(p->segments * 8 / size);
    const int64_t strips = (p->strips + 1) * (int64_t)sizeof(fl__strip) / size;
    const int64_t work = p->strips * p->strip * p->block_panels * fl__direct_panel_size(p);
    const int64_t packed = panels * fl__direct_panel_size(p);
    fl__packed_cache cache; /* only for one group: the number of groups is not part of the key */
    const bool cached = p->groups == 1 && fl__conv_cacheable(p->v) &&
                       fl__packed_cache_open(&cache, p->v->weight, FL__PACKED_DIRECT, p->v->ks,
                                              packed * size);
    if (!fl__scratch_open(&p->scratch, tasks, (fl__direct_band_part(p) + fl__direct_block_part(p) +
                          fl__conv_part(strips)) * size,
                          (offsets + (cached ? 0 : packed)) * size, p->v->op)) {
        if (cached) fl__packed_cache_drop(&cache);
        return false;
    }
    p->segment = (int64_t *)(void *)p->scratch.shared;
    p->packed = cached ? cache.data : p->scratch.shared + offsets * size;
    for (int64_t s = 0; s < p->segments; s++) p->segment[s] = fl__direct_segment(p, s);
    if (!cached || cache.fresh)
        fl_parallel(panels * taps, fl__ceil_div(1 << 14, p->depth * p->width), fl__direct_pack_task, p);
    fl_parallel(tasks, fl__ceil_div(1 << 18, work), fl__direct_task, p);
    if (cached) fl__packed_cache_close(&cache);
    fl__scratch_close(&p->scratch);
    return true;
}

/* >>directions: p has the weights w, channels-last or in place, and tables for all taps */

static bool fl__direct_forward(fl__direct *p) {
    const fl__conv *v = p->v;
    p->band = (fl__band){.in = v->x, .h = v->h, .w = v->w};
    p->out = v->y, p->rows = v->oh, p->cols = v->ow;
    p->depth = v->c, p->o = v->o, p->step = v->stride;
    p->th = v->kh, p->tw = v->kw;
    for (int64_t i = 0; i < v->kh; i++)
        p->tap_h[i] = i, p->at_h[i] = i * v->dilation[0] - v->pad[0];
    for (int64_t j = 0; j < v->kw; j++)
        p->tap_w[j] = j, p->at_w[j] = j * v->dilation[1] - v->pad[1];
    return fl__direct_sum(p);
}

/* Lists the taps that reach the pixels of dx with ih mod stride = phase along dim d, last first: pixel r of
   the phase reads dy's row r + at. Returns their number. */
static int64_t fl__direct_phase_taps(const fl__conv *v, int d, int64_t phase, int64_t *at, int64_t *tap) {
    int64_t count = 0, k = d == 0 ? v->kh : v->kw;
    for (int64_t t = k - 1; t >= 0; t--) {
        int64_t from = phase + v->pad[d] - t * v->dilation[d];
        if (from - fl__conv_floor(from, v->stride[d]) * v->stride[d] != 0) continue;
        at[count] = fl__conv_floor(from, v->stride[d]);
        tap[count++] = t;
    }
    return count;
}

/* Computes the pixels of dx that are (a, b) modulo the strides. */
static bool fl__direct_phase(fl__direct p, int64_t a, int64_t b) {
    static const int64_t one[2] = {1, 1};
    const fl__conv *v = p.v;
    const fl__image *dx = &v->x;
    p.band = (fl__band){.in = v->y, .h = v->oh, .w = v->ow};
    p.out = (fl__image){dx->data + (a * dx->h + b * dx->w) * v->size, dx->n, dx->c,
                        dx->h * v->stride[0], dx->w * v->stride[1]};
    p.rows = fl__ceil_div(v->h - a, v->stride[0]), p.cols = fl__ceil_div(v->w - b, v->stride[1]);
    p.depth = v->o, p.o = v->c, p.step = one;
    p.w = (fl__image){p.w.data, p.w.c, p.w.n, p.w.h, p.w.w};
    p.th = fl__direct_phase_taps(v, 0, a, p.at_h, p.tap_h);
    p.tw = fl__direct_phase_taps(v, 1, b, p.at_w, p.tap_w);
    return p.th * p.tw == 0 || fl__direct_sum(&p);
}

/* Computes dx; pixels that no tap reaches are set to 0. */
static bool fl__direct_data(const fl__direct *p) {
    const fl__conv *v = p->v;
    bool gaps = false, ok = true;
    for (int d = 0; d < 2; d++)
        for (int64_t phase = 0; phase < v->stride[d]; phase++)
            gaps = gaps || fl__direct_phase_taps(v, d, phase, d ? p->at_w : p->at_h,
                                                 d ? p->tap_w : p->tap_h) == 0;
    if (gaps) memset(v->x.data, 0, (size_t)(v->images * v->groups * v->c * v->h * v->w * v->size));
    for (int64_t a = 0; a < fl__min(v->stride[0], v->h); a++)
        for (int64_t b = 0; ok && b < fl__min(v->stride[1], v->w); b++) ok = fl__direct_phase(*p, a, b);
    return ok;
}

FL_PRIVATE bool fl__direct_run(const fl__conv *v) {
    const int64_t taps = v->kh + v->kw, tables = fl__conv_part(2 * taps * 8 / v->size);
    fl_buffer *buffer = fl__gemm_scratch(tables + fl__conv_relayout_size(v), (size_t)v->size, v->op);
    char *at = buffer ? fl_buffer_map(buffer) : NULL;
    if (!at) {
        fl_buffer_drop(buffer);
        return false;
    }
    int64_t *table = (int64_t *)(void *)at;
    fl__direct p = {.v = v, .images = v->images, .groups = v->groups, .at_h = table,
                    .at_w = table + v->kh, .tap_h = table + taps, .tap_w = table + taps + v->kh,
                    .w = fl__conv_relayout(v, at + tables * v->size)};
    p.w_group = v->o * p.w.n;
    bool ok = v->direction == FL__CONV_FORWARD ? fl__direct_forward(&p) : fl__direct_data(&p);
    fl_buffer_unmap(buffer);
    fl_buffer_drop(buffer);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
