/* kernels/cpu/conv/weight.h - weight gradients of convolutions as sums over pixels

   dw[(tap, c)][o] = sum over pixels of x[pixel + tap][c] dy[pixel][o], with the tall tiles of gemm/tile.h: a
   task owns all taps of some channels c and columns o for a part of the pixels, and copies the x and dy that
   they read for some hundred pixels at a time, once for all taps. With few rows of dw, dy is read in place.
   The parts are added in order. */
#ifndef FL_CPU_CONV_WEIGHT_H
#define FL_CPU_CONV_WEIGHT_H
#include "common.h"

/* dw, of any sizes and strides. */
FL_PRIVATE bool fl__weight_run(const fl__conv *v);

/* A gradient in parts: [split][group][run of taps][chunk of channels][tap of the run][c][o]. A run is the
   taps of a kernel row, or one tap if dilation separates them. */
typedef struct fl__weight_parts {
    const fl__conv *v;
    int64_t splits, runs, tw; /* tw: taps per run */
    int64_t c_chunks, c;      /* number of chunks; channels of each but the last */
    char *data;
    fl__scratch scratch; /* workspaces of at least fl__weight_parts_workspace bytes */
} fl__weight_parts;
enum { FL__WEIGHT_ROWS = 64 }; /* rows of dw that are summed and transposed at a time */
static inline int64_t fl__weight_parts_workspace(const fl__conv *v) {
    return FL__WEIGHT_ROWS * v->o * v->size * (v->raw < v->size ? 2 : 1);
}
/* Adds the splits in order and stores dw. */
FL_PRIVATE void fl__weight_parts_store(fl__weight_parts *p);

#endif /* FL_CPU_CONV_WEIGHT_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_WEIGHT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_WEIGHT_IMPL
#define FL_CPU_CONV_WEIGHT_IMPL
#include <string.h>

#define FL__WEIGHT_TASKS 16       /* fewest tasks to aim at */
#define FL__WEIGHT_PIXELS 256     /* pixels of a block: its part of dy is a panel in the L1 cache */
#define FL__WEIGHT_SEGMENTS 128   /* most units of a block */
#define FL__WEIGHT_PART (1 << 17) /* elements of dw that a task owns, and */
#define FL__WEIGHT_BAND (80 << 10) /* bytes of a block's rows of x: both stay in the L2 cache */
#define FL__WEIGHT_PARTS (1 << 22) /* most elements of all parts */
#define FL__WEIGHT_FEW 512 /* rows of dw up to which packing dy costs more than it saves */

/* A task owns rows [run][tap of a run][channel of a chunk] and a chunk of columns o of dw, and sums a split
   of the units: rows of dy's pixels, or parts of long rows. */
typedef struct fl__weight {
    fl__weight_parts to;
    int64_t o, o_chunks;  /* columns of a chunk; chunks */
    int64_t length;       /* pixels of a unit */
    int64_t row_units, units, block; /* units per row, in all, per block */
    int64_t extent, next; /* rows of x that a unit reads; of those, not read by the previous unit */
    int64_t line;         /* pixels of a copied row of x */
    int64_t split_units, width;
    bool in_place;        /* dy is read in place */
} fl__weight;

/* Most rows of x that a block reads: all of a unit's where an image begins, else only the new ones. */
static int64_t fl__weight_block_rows(const fl__weight *p) {
    int64_t images = fl__min(p->block, (p->block - 2 + 2 * p->to.v->oh) / p->to.v->oh);
    return images * p->extent + (p->block - images) * p->next;
}

/* Sizes of units, and how many make a block. */
static void fl__weight_plan_units(fl__weight *p) {
    const fl__conv *v = p->to.v;
    p->row_units = fl__ceil_div(v->ow, 2 * FL__WEIGHT_PIXELS);
    p->length = fl__ceil_div(v->ow, p->row_units);
    p->units = v->images * v->oh * p->row_units;
    p->block = fl__conv_clamp(FL__WEIGHT_PIXELS / p->length, 1, FL__WEIGHT_SEGMENTS);
    if (p->row_units > 1) p->block = 1;
    p->extent = (v->kh - 1) * v->dilation[0] + 1;
    p->next = fl__min(v->stride[0], p->extent);
    p->line = (p->length - 1) * v->stride[1] + (v->kw - 1) * v->dilation[1] + 1;
}

/* The rows and columns of a task: two to four panels of columns, and so many channels that its part of dw and
   the rows of x stay in the cache. */
static void fl__weight_plan_chunks(fl__weight *p) {
    const fl__conv *v = p->to.v;
    const bool wide = v->dilation[1] == 1 || v->kw == 1;
    const int64_t taps = v->kh * v->kw, panels = fl__ceil_div(v->o, 2 * v->ks->lanes);
    p->to.tw = wide ? v->kw : 1;
    p->to.runs = v->kh * (wide ? 1 : v->kw);
    p->width = 2 * v->ks->lanes;
    int64_t most = fl__conv_clamp(FL__WEIGHT_PART / (taps * v->c * p->width), 2, 4);
    p->o_chunks = fl__ceil_div(panels, most);
    p->o = fl__ceil_div(panels, p->o_chunks) * p->width;
    p->o_chunks = fl__ceil_div(v->o, p->o);
    p->to.c_chunks = fl__max(fl__ceil_div(taps * v->c * p->o, FL__WEIGHT_PART),
                               fl__ceil_div(fl__weight_block_rows(p) * p->line * v->c, FL__WEIGHT_BAND));
    p->to.c = fl__ceil_div(v->c, fl__min(p->to.c_chunks, v->c));
    p->to.c_chunks = fl__ceil_div(v->c, p->to.c);
}

static void fl__weight_plan(fl__weight *p) {
    const fl__conv *v = p->to.v;
    fl__weight_plan_units(p);
    fl__weight_plan_chunks(p);
    p->in_place = v->kh * v->kw * v->c <= FL__WEIGHT_FEW && v->y.c == 1 && v->o % p->width == 0;
    int64_t tasks = v->groups * p->to.c_chunks * p->o_chunks;
    int64_t weights = v->groups * p->to.runs * p->to.c_chunks * p->to.tw * p->to.c * v->o;
    p->to.splits = fl__min(fl__ceil_div(FL__WEIGHT_TASKS, tasks), fl__ceil_div(p->units, p->block));
    while (p->to.splits > 1 && p->to.splits * weights > FL__WEIGHT_PARTS) p->to.splits /= 2;
    p->split_units = fl__ceil_div(p->units, p->to.splits);
    p->to.splits = fl__ceil_div(p->units, p->split_units);
}

/* The current block of a task. */
typedef struct fl__weight_block {
    int64_t group, c0, c, o0, o;       /* channels c0 .. c0 + c of the group, o0 .. o0 + o */
    int64_t u0, units, length;         /* a block of units */
    int64_t row[FL__WEIGHT_SEGMENTS];      /* row of x at which each unit starts */
    const char *from[FL__WEIGHT_SEGMENTS]; /* dy of each unit, [pixel][ldb], column o0 */
    int64_t ldb, panel;                /* panel: bytes of dy from panel to panel */
    char *x, *dy, *part;               /* part: row 0, column o0 of the task's part of dw */
} fl__weight_block;

/* Image and row of unit u, and its first pixel in that row. */
static void fl__weight_unit(const fl__weight *p, int64_t u, int64_t *image, int64_t *row, int64_t *pixel) {
    *pixel = u % p->row_units * p->length;
    *row = u / p->row_units % p->to.v->oh;
    *image = u / p->row_units / p->to.v->oh;
}

/* Copies the pixels of x that a block of units reads: [row][line][c]. */
static void fl__weight_copy_x(const fl__weight *p, fl__weight_block *b) {
    const fl__conv *v = p->to.v;
    fl__band band = {.ks = v->ks, .size = v->size, .in = v->x, .h = v->h, .w = v->w, .depth = b->c,
                     .width = p->line};
    for (int64_t u = 0, at = 0; u < b->units; u++) {
        int64_t image, row, pixel;
        fl__weight_unit(p, b->u0 + u, &image, &row, &pixel);
        band.left = v->pad[1] - pixel * v->stride[1];
        const char *from = v->x.data + (image * v->x.n + (b->group * v->c + b->c0) * v->x.c) * v->size;
        int64_t i = u > 0 && row > 0 ? p->extent - p->next : 0; /* the first row not copied yet */
        b->row[u] = at - i;
        for (; i < p->extent; i++, at++)
            fl__band_row(&band, from, row * v->stride[0] + i - v->pad[0],
                         b->x + at * p->line * b->c * v->size);
    }
}

/* Finds the task's columns of dy for a block of units in place, or packs them:
   [panel][unit][pixel][width]. */
static void fl__weight_find_dy(const fl__weight *p, fl__weight_block *b) {
    const fl__conv *v = p->to.v;
    const int64_t unit = b->length * p->width * v->size;
    b->ldb = p->in_place ? v->y.w : p->width;
    b->panel = p->in_place ? p->width * v->size : b->units * unit;
    for (int64_t u = 0; u < b->units; u++) {
        int64_t image, row, pixel;
        fl__weight_unit(p, b->u0 + u, &image, &row, &pixel);
        const char *from = v->y.data + (image * v->y.n + (b->group * v->o + b->o0) * v->y.c +
                                         row * v->y.h + pixel * v->y.w) * v->size;
        b->from[u] = p->in_place ? from : b->dy + u * unit;
        for (int64_t o = 0; o < b->o && !p->in_place; o += p->width)
            v->ks->pack(b->dy + u * unit + o / p->width * b->panel, p->width, fl__min(p->width, b->o - o),
                        b->length, from + o * v->y.c * v->size, v->y.c, v->y.w);
    }
}

/* Lets a tile prefetch the same columns of as many pixels after the block's. */
static void fl__weight_prefetch(const fl__weight *p, const fl__weight_block *b, fl__tile *tile, int64_t dy) {
    tile->prefetch_step = b->ldb * p->to.v->size;
    tile->prefetch = b->from[0] + dy + b->units * b->length * tile->prefetch_step;
    tile->prefetch_other = 64;
}

/* Adds a block of units to a run's rows of the task's part of dw, for one panel of dy. */
static void fl__weight_run_add(const fl__weight *p, const fl__weight_block *b, int64_t run, int64_t o,
                           bool add) {
    const fl__conv *v = p->to.v;
    const int64_t size = v->size, rows = p->to.tw * b->c;
    const int64_t tiles = fl__ceil_div(rows, v->ks->rows), across = v->kw / p->to.tw;
    const int64_t i = run / across * v->dilation[0], j = run % across * v->dilation[1];
    const bool one = v->kh * v->kw == 1 && v->stride[1] == 1 && !p->in_place; /* pixels are contiguous */
    const int64_t dy = o / p->width * b->panel;
    char *part = b->part + run * p->to.c_chunks * p->to.tw * p->to.c * v->o * size;
    fl__segment segment[FL__WEIGHT_SEGMENTS];
    fl__tile tile = {.segments = one ? 1 : b->units, .segment = segment, .rsa = 1,
                     .csa = v->stride[1] * b->c, .k = one ? b->units * b->length : b->length,
                     .ldb = b->ldb, .ldc = v->o, .add = add};
    for (int64_t t = 0, r = 0, m; t < tiles; t++, r += m) {
        m = rows / tiles + (t < rows % tiles);
        if (p->in_place && run + t == 0) fl__weight_prefetch(p, b, &tile, dy);
        else tile.prefetch = NULL, tile.prefetch_step = tile.prefetch_other = 0;
        for (int64_t s = 0; s < tile.segments; s++) {
            segment[s].a = b->x + (((b->row[s] + i) * p->line + j) * b->c + r) * size;
            segment[s].b = b->from[s] + dy;
        }
        tile.c = part + (r * v->o + o) * size;
        fl__gemm_tile(v->ks, (int)m, (int)fl__min(p->width, b->o - o), &tile);
    }
}

static int64_t fl__weight_x_part(const fl__weight *p) {
    return fl__conv_part(fl__weight_block_rows(p) * p->line * p->to.c);
}

/* Task = ((split * groups + group) * c_chunks + c chunk) * o_chunks + o chunk. */
static void fl__weight_task(void *arg, int64_t begin, int64_t end) {
    fl__weight *p = arg;
    const fl__conv *v = p->to.v;
    char *at = fl__scratch_take(&p->to.scratch);
    for (int64_t task = begin; task < end; task++) {
        int64_t chunk = task / p->o_chunks % p->to.c_chunks, item = task / p->o_chunks / p->to.c_chunks;
        int64_t split = item / v->groups;
        fl__weight_block b = {.group = item % v->groups, .x = at, .dy = at + fl__weight_x_part(p) * v->size,
                          .c0 = chunk * p->to.c, .o0 = task % p->o_chunks * p->o};
        b.c = fl__min(p->to.c, v->c - b.c0);
        b.o = fl__min(p->o, v->o - b.o0);
        b.part = p->to.data + v->size *
                 ((item * p->to.runs * p->to.c_chunks + chunk) * p->to.tw * p->to.c * v->o + b.o0);
        int64_t first = split * p->split_units, last = fl__min(first + p->split_units, p->units);
        for (b.u0 = first; b.u0 < last; b.u0 += b.units) {
            b.units = fl__min(p->block, last - b.u0);
            b.length = fl__min(p->length, v->ow - b.u0 % p->row_units * p->length);
            fl__weight_copy_x(p, &b);
            fl__weight_find_dy(p, &b);
            for (int64_t o = 0; o < b.o; o += p->width)
                for (int64_t run = 0; run < p->to.runs; run++)
                    fl__weight_run_add(p, &b, run, o, b.u0 > first);
        }
    }
    fl__scratch_give_back(&p->to.scratch, at);
}

/* The address of row (tap, c) of a group in the parts. */
static const char *fl__weight_row(const fl__weight_parts *p, int64_t group, int64_t tap, int64_t c) {
    const fl__conv *v = p->v;
    int64_t run = p->tw == 1 ? tap : tap / v->kw, j = p->tw == 1 ? 0 : tap % v->kw;
    int64_t chunk = c / p->c, height = fl__min(p->c, v->c - chunk * p->c);
    int64_t part = (group * p->runs + run) * p->c_chunks + chunk;
    return p->data + (part * p->tw * p->c + j * height + c % p->c) * v->o * v->size;
}

/* Adds the splits of a range of (group, block of rows) and stores them; rows are in dw's order, (tap, c) or
   (c, tap). */
static void fl__weight_store_task(void *arg, int64_t begin, int64_t end) {
    fl__weight_parts *p = arg;
    const fl__conv *v = p->v;
    const int64_t size = v->size, taps = v->kh * v->kw, rows = taps * v->c;
    const int64_t blocks = fl__ceil_div(rows, FL__WEIGHT_ROWS);
    const int64_t part = v->groups * p->runs * p->c_chunks * p->tw * p->c * v->o;
    const bool last = v->k.c == 1;
    const fl__loop narrow = v->raw < size ? fl__cast_loop(FL_F32, v->dtype) : NULL;
    char *sum = fl__scratch_take(&p->scratch), *transposed = sum + FL__WEIGHT_ROWS * v->o * size;
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / blocks, r0 = i % blocks * FL__WEIGHT_ROWS;
        int64_t n = fl__min(FL__WEIGHT_ROWS, rows - r0);
        char *at = sum;
        for (int64_t r = r0; r < r0 + n; r++, at += v->o * size) {
            const char *from =
                fl__weight_row(p, group, last ? r / v->c : r % taps, last ? r % v->c : r / taps);
            memcpy(at, from, (size_t)(v->o * size));
            for (int64_t s = 1; s < p->splits; s++) v->ks->add(at, from + s * part * size, v->o);
        }
        char *to = v->k.data + (group * v->o * v->k.n + r0) * v->raw;
        if (!narrow) {
            v->ks->pack(to, v->k.n, n, v->o, sum, v->o, 1);
            continue;
        }
        v->ks->pack(transposed, n, n, v->o, sum, v->o, 1);
        for (int64_t o = 0; o < v->o; o++)
            narrow((void *[]){to + o * v->k.n * v->raw, transposed + o * n * size}, n, NULL);
    }
    fl__scratch_give_back(&p->scratch, sum);
}

FL_PRIVATE void fl__weight_parts_store(fl__weight_parts *p) {
    const fl__conv *v = p->v;
    int64_t blocks = v->groups * fl__ceil_div(v->kh * v->kw * v->c, FL__WEIGHT_ROWS);
    fl_parallel(blocks, fl__ceil_div(1 << 14, FL__WEIGHT_ROWS * v->o), fl__weight_store_task, p);
}

FL_PRIVATE bool fl__weight_run(const fl__conv *v) {
    fl__weight p = {.to.v = v};
    fl__weight_plan(&p);
    const int64_t part = p.to.runs * p.to.c_chunks * p.to.tw * p.to.c * v->o;
    const int64_t tasks = p.to.splits * v->groups * p.to.c_chunks * p.o_chunks;
    const int64_t blocks = v->groups * fl__ceil_div(v->kh * v->kw * v->c, FL__WEIGHT_ROWS);
    const int64_t block = fl__weight_x_part(&p) + fl__conv_part(p.block * p.length * p.o);
    const int64_t work = p.to.runs * p.to.tw * p.to.c * fl__min(p.o, v->o) * p.split_units * p.length;
    if (!fl__scratch_open(&p.to.scratch, fl__max(tasks, blocks),
                          fl__max(block * v->size, fl__weight_parts_workspace(v)),
                          p.to.splits * v->groups * part * v->size, v->op))
        return false;
    p.to.data = p.to.scratch.shared;
    fl_parallel(tasks, fl__ceil_div(1 << 18, work), fl__weight_task, &p);
    fl__weight_parts_store(&p.to);
    fl__scratch_close(&p.to.scratch);
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
