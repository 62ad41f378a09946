/* kernels/cpu/gemm/matmul.h - matrix products on the CPU: packed, blocked, in the register tiles of tile.h

   C = A B is computed in chunks along k, so long that C is seldom read from memory again. For each chunk the
   threads pack A; then blocks of rows and columns of C run on the thread pool. A block packs one panel of B
   at a time (as many columns as a tile has) and runs the tiles of its rows over it, which prefetch C shortly
   before they write it, and the next panel.

   Rows are cut into tiles of equal height, so that no tile computes rows that do not exist. Operands for
   which packing does not pay are read in place: those of small products; rows of A if all of B stays in the
   L2 cache; and a transposed B with few rows of A (then C^T = B^T A^T is computed, whose left operand is
   streamed once). Skinny products, of up to 8 rows, are bound by reading B and have loops of their own, for B
   and for B transposed.

   If operands may be rounded to bf16, amx.h takes the products for which it is faster. Other f16 and bf16
   operands are converted to f32 while they are packed, and sums are rounded once, block by block.

   The bits of the result depend on shapes, strides and the instruction set, never on the number of
   threads. */
#ifndef FL_CPU_GEMM_MATMUL_H
#define FL_CPU_GEMM_MATMUL_H
#include "../../linear_grad.h"
#include "tile.h"
#include "packed_cache.h"
#include "product.h"
#include "../scratch.h"
#include "../slots.h"

/* Allocates the outputs of a call and computes them. */
FL_PRIVATE bool fl__cpu_product(fl__product *of, const fl_call *c);
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_matmul_slots(fl_backend *cpu);

#endif /* FL_CPU_GEMM_MATMUL_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_MATMUL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_MATMUL_IMPL
#define FL_CPU_GEMM_MATMUL_IMPL
#include "../bf16.h"
#include "amx.h"
#include "openblas.h"
#include <string.h>

enum {
    FL__MATMUL_CHUNK = 1024,      /* of k: a panel of B stays in the L2 cache */
    FL__MATMUL_ALIAS = 4096,      /* bytes: rows of B a multiple of it apart map to few cache sets, */
    FL__MATMUL_CHUNK_ALIAS = 256, /* so a chunk has fewer of them */
    FL__MATMUL_GROUP = 8,         /* panels of B that are packed together */
    FL__MATMUL_SLAB = 16,         /* of k, packed at a time */
    FL__MATMUL_UNBLOCKED = 4096,  /* elements of B, in the L1 cache, up to which a product is not blocked, */
    FL__MATMUL_UNBLOCKED_M = 128, /* if it has at most so many rows */
    FL__MATMUL_SHORT = 128,       /* k up to which C is written row by row */
    FL__MATMUL_L2 = 3 << 16,      /* elements of B that stay in the L2 cache besides everything else */
    FL__MATMUL_EVICTED = 1 << 18, /* elements of A that are evicted before the next panel of B uses them */
    FL__MATMUL_BLOCK_ROWS = 1024, /* rows that use a panel of B */
    FL__MATMUL_TASKS = 6,         /* blocks, below which a long k is split */
    FL__MATMUL_SKINNY = 64        /* rows up to which packing a transposed B does not pay */
};

/* A product of m x k by k x n, or a chunk of one. Strides are in elements. */
typedef struct fl__gemm {
    const fl__kernels *ks;
    int64_t m, n, k;
    int64_t raw;   /* bytes of an element of A and B */
    fl__loop widen; /* f16 or bf16 to f32; NULL if they are f32 or f64 */
    const char *a;
    int64_t rsa, csa;
    const char *b;
    int64_t rsb, csb;
    char *c; /* rows ldc apart */
    int64_t ldc;
    bool add;         /* C += A B instead of C = A B */
    bool tight;       /* B must not be read past its end */
    int rows, width;  /* of a tile */
    int64_t group;    /* columns of B that are packed together */
    bool prefetches;  /* tiles prefetch the next panel */
    int64_t tiles, height, taller; /* row tiles of `height` rows each, the first `taller` of them one more */
    const char *packed; /* packed A, the panel of tile t at row(t) * depth; NULL: read in place */
    const char *cached_b; /* cached packed panels of B of this chunk; NULL: none */
    const fl__epilogue *epilogue; /* or NULL */
} fl__gemm;

/* How a batch of products is cut into tasks: task = ((item * splits + split) * row_blocks + row block) *
   column_blocks + column block. With splits > 1 each split computes its part of k into `parts`, which are
   then added in order. */
typedef struct fl__matmul {
    fl__product *of;
    fl__gemm g; /* of the first item */
    int64_t splits, split_k, row_blocks, block_tiles, column_blocks, block_columns;
    int64_t at, chunk; /* offset and length of the current chunk of each split */
    bool swapped;      /* g computes C^T */
    fl__scratch scratch; /* panels of B for each task, and the shared buffers below */
    char *packed;      /* packed A of the chunk, m * chunk elements per part */
    bool cached;       /* B is a frozen weight with cached panels, cache_chunk bytes per chunk */
    fl__packed_cache cache;
    int64_t cache_chunk;
    char *parts;       /* C^T of each item, the parts of C, or sums to be rounded; NULL: directly into out */
    fl__loop narrow;   /* f32 to f16 or bf16, or NULL */
} fl__matmul;

/* >>blocks: one chunk of k */

/* Cuts the rows into tiles of at most `rows` rows. */
static void fl__gemm_set_tiles(fl__gemm *g, int rows) {
    g->rows = rows;
    g->tiles = fl__ceil_div(g->m, rows);
    g->height = fl__quotient(g->m, g->tiles);
    g->taller = g->m - g->height * g->tiles;
}

/* The first row of tile t; m for t = tiles. */
static int64_t fl__gemm_row(const fl__gemm *g, int64_t t) {
    return t * g->height + fl__min(t, g->taller);
}

/* Sets how many columns of B are packed together, for chunks of up to k rows. One panel, just before it is
   used, if its rows or columns are dense: the tiles of the previous panel prefetch it. If k is short, time
   goes into writing C, row by row for several panels. Rows of A that are read in place use as many panels as
   stay in the L2 cache. */
static void fl__gemm_set_group(fl__gemm *g, int64_t k) {
    g->prefetches = g->packed && !g->widen && (g->rsb == 1 || g->csb == 1) && k > FL__MATMUL_SHORT;
    const int64_t near = fl__max(1, FL__MATMUL_L2 / (g->width * k));
    g->group = g->width * (g->prefetches ? 1 : g->packed ? FL__MATMUL_GROUP : near);
}

/* How much of k is packed at a time: if panels are adjacent in memory, a few rows of all of them, which the
   processor then reads sequentially. */
static int64_t fl__gemm_slab(const fl__gemm *g, int64_t stride_across) {
    return stride_across == 1 ? FL__MATMUL_SLAB : g->k;
}

/* Packs the panels of row tiles t0 .. t1 of A. */
static void fl__gemm_pack_a(const fl__gemm *g, int64_t t0, int64_t t1) {
    const int64_t size = (int64_t)g->ks->size, slab = fl__gemm_slab(g, g->rsa);
    for (int64_t p = 0; p < g->k; p += slab)
        for (int64_t t = t0; t < t1; t++) {
            int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
            char *dst = (char *)(uintptr_t)g->packed + (i * g->k + p * m) * size;
            fl__gemm_pack(g->ks, g->widen, dst, m, m, fl__min(slab, g->k - p),
                          g->a + (i * g->rsa + p * g->csa) * g->raw, g->rsa, g->csa);
        }
}

/* Adds the packed rows of A of row tile t, each summed along k, to `sums`: first elements FL__MATMUL_SLAB
   apart, in long vectors that stay in the L1 cache. */
static void fl__gemm_add_sums(const fl__gemm *g, int64_t t, char *sums) {
    const int64_t size = (int64_t)g->ks->size, i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
    const char *panel = g->packed + i * g->k * size;
    _Alignas(64) char part[FL__MATMUL_SLAB * FL__TILE_REGISTERS / 2 * sizeof(double)] = {0};
    for (int64_t p = 0; p < g->k; p += FL__MATMUL_SLAB)
        g->ks->add(part, panel + p * m * size, fl__min(FL__MATMUL_SLAB, g->k - p) * m);
    for (int64_t p = 0; p < FL__MATMUL_SLAB; p++) g->ks->add(sums + i * size, part + p * m * size, m);
}

/* Packs columns j0 .. j1 of B, panel after panel. */
static void fl__gemm_pack_b(const fl__gemm *g, int64_t j0, int64_t j1, char *panels) {
    const int64_t size = (int64_t)g->ks->size, slab = fl__gemm_slab(g, g->csb);
    /* whole registers if B, or the memory after it, has the rest */
    const int64_t lanes = g->csb == 1 && !g->tight ? g->ks->lanes : 1;
    for (int64_t p = 0; p < g->k; p += slab)
        for (int64_t j = j0; j < j1; j += g->width) {
            int64_t n = fl__ceil_div(fl__min(g->width, j1 - j), lanes) * lanes;
            char *dst = panels + ((j - j0) * g->k + p * g->width) * size;
            fl__gemm_pack(g->ks, g->widen, dst, g->width, n, fl__min(slab, g->k - p),
                          g->b + (p * g->rsb + j * g->csb) * g->raw, g->csb, g->rsb);
        }
}

/* Whether n columns of B are read in place: if its rows are dense, few tiles use them, and a tile reads less
   than a register past column n (as a buffer's slack allows) or nothing. Tall tiles exist only two registers
   wide. */
static bool fl__gemm_in_place(const fl__gemm *g, int64_t n) {
    const int64_t registers = fl__ceil_div(n, g->ks->lanes);
    const bool tile = registers == 0 || registers == 2 || g->rows <= g->ks->low[registers];
    return !g->packed && !g->widen && g->csb == 1 && tile && (!g->tight || n == registers * g->ks->lanes);
}

/* Lets tile `index` of `tiles` prefetch its share of n lines along k, `step` bytes apart, two at a time:
   shares, so that no tile prefetches more than memory delivers while it runs. */
static void fl__gemm_prefetch_along(const fl__gemm *g, fl__tile *tile, int64_t index, int64_t tiles,
                                         const char *lines, int64_t n, int64_t step) {
    const int64_t each = fl__ceil_div(n, 2 * tiles);
    tile->prefetch = lines + 2 * index * each % n * step; /* wraps around: more tiles than pairs of lines */
    tile->prefetch_other = step;
    tile->prefetch_step = each * (int64_t)g->ks->size;
    tile->prefetch_run = fl__ceil_div(tile->k, each);
    tile->prefetch_jump = 2 * step - tile->prefetch_run * tile->prefetch_step;
}

/* Lets row tile `index` of `tiles` prefetch its share of a panel of B, in place or from the packed cache. */
static void fl__gemm_prefetch(const fl__gemm *g, fl__tile *tile, int64_t index, int64_t tiles,
                              const char *panel) {
    const int64_t size = (int64_t)g->ks->size, row = (g->cached_b ? g->width : g->rsb) * size;
    if (!g->cached_b && g->csb != 1) {
        fl__gemm_prefetch_along(g, tile, index, tiles, panel, g->width, g->csb * size);
        return;
    }
    tile->prefetch = panel + index * g->k / tiles * row; /* one row per `tiles` steps along k */
    tile->prefetch_other = (g->width - 1) * size;
    tile->prefetch_run = tiles;
    tile->prefetch_jump = row;
}

/* Row tiles t0 .. t1 of columns j .. j + n of C, with the panel of B at b; `next` is what will be packed for
   the next panel, or NULL. */
static void fl__gemm_column(const fl__gemm *g, int64_t t0, int64_t t1, int64_t j, int64_t n,
                            const char *b, int64_t ldb, const char *next) {
    const int64_t size = (int64_t)g->ks->size;
    fl__segment segment = {.b = b};
    fl__tile tile = {.segments = 1, .segment = &segment, .k = g->k, .rsa = g->rsa, .csa = g->csa,
                     .ldb = ldb, .ldc = g->ldc, .add = g->add};
    const bool far = !g->packed && g->csa == 1 && g->m * g->k > FL__MATMUL_EVICTED; /* next rows of A */
    for (int64_t t = t0; t < t1; t++) {
        int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
        segment.a = g->a + i * g->rsa * size;
        if (g->packed) {
            segment.a = g->packed + i * g->k * size;
            tile.rsa = 1;
            tile.csa = m;
        }
        tile.c = g->c + (i * g->ldc + j) * size;
        if (far)
            fl__gemm_prefetch_along(g, &tile, 0, 1, (const char *)segment.a + m * g->rsa * size, m,
                                    g->rsa * size);
        if (next) fl__gemm_prefetch(g, &tile, t - t0, t1 - t0, next);
        fl__gemm_tile(g->ks, (int)m, (int)n, &tile);
        if (g->epilogue && t1 - t0 > 1) fl__gemm_epilogue(g->epilogue, tile.c, g->ldc, i, m, j, n);
    }
}

/* Row tiles t0 .. t1, columns j0 .. j1 of C; columns of B are `step` elements apart from panel to panel. If k
   is short, time goes into writing C; if A is read in place or too large for the L2 cache, into reading A:
   then one row tile runs over all panels, and its rows get their epilogue together, in long loops. */
static void fl__gemm_panels(const fl__gemm *g, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                            const char *b, int64_t step, int64_t ldb, const char *next) {
    const int64_t size = (int64_t)g->ks->size;
    const bool far = (t1 - t0) * g->rows * g->k > FL__MATMUL_EVICTED && !g->prefetches;
    const int64_t tiles = g->k <= FL__MATMUL_SHORT || !g->packed || far ? 1 : t1 - t0;
    for (int64_t t = t0; t < t1; t += tiles) {
        for (int64_t j = j0; j < j1; j += g->width) {
            const char *panel = b + (j - j0) * step * size;
            if (g->cached_b) next = j + g->width < g->n ? panel + g->width * step * size : NULL;
            fl__gemm_column(g, t, t + tiles, j, fl__min(g->width, j1 - j), panel, ldb, next);
        }
        const int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
        if (g->epilogue && tiles == 1)
            fl__gemm_epilogue(g->epilogue, g->c + (i * g->ldc + j0) * size, g->ldc, i, m, j0, j1 - j0);
    }
}

/* The same with packing: `panels` has space for a group of panels of B. */
static void fl__gemm_block(const fl__gemm *g, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                           char *panels) {
    const int64_t size = (int64_t)g->ks->size;
    if (g->cached_b) {
        fl__gemm_panels(g, t0, t1, j0, j1, g->cached_b + j0 * g->k * size, g->k, g->width, NULL);
        return;
    }
    for (int64_t j = j0, end; j < j1; j = end) {
        end = fl__min(j + g->group, j1);
        if (fl__gemm_in_place(g, (end - j) % g->width)) {
            fl__gemm_panels(g, t0, t1, j, end, g->b + j * size, 1, g->rsb, NULL);
        } else {
            fl__gemm_pack_b(g, j, end, panels);
            fl__gemm_panels(g, t0, t1, j, end, panels, g->k, g->width,
                            g->prefetches && end < j1 ? g->b + end * g->csb * size : NULL);
        }
    }
}

/* >>matmul */

/* Swaps the operands, to compute C^T = B^T A^T instead. */
static void fl__gemm_swap(fl__gemm *g) {
    fl__gemm o = *g;
    g->m = o.n, g->n = o.m;
    g->a = o.b, g->rsa = o.csb, g->csa = o.rsb;
    g->b = o.a, g->rsb = o.csa, g->csb = o.rsa;
}

/* Elements that the tiles compute, padding included, for rows * columns of C. */
static int64_t fl__gemm_area(const fl__gemm *g, int64_t rows, int64_t columns) {
    int64_t width = 2 * g->ks->lanes;
    return rows * (fl__ceil_div(columns, width) * width);
}

/* Whether neither packing nor threads pay. */
static bool fl__gemm_small(const fl__gemm *g) {
    return g->m * g->n <= FL__SMALL_PRODUCT && g->m * g->n * g->k <= FL__SMALL_PRODUCT;
}

/* Width in registers of the tiles that read A in place: one that divides n without rest, else the widest. */
static int fl__gemm_across(const fl__gemm *g) {
    const int64_t registers = fl__ceil_div(g->n, g->ks->lanes);
    int across = g->ks->widest;
    while (across > 2 && registers % across) across--;
    return registers % across && registers > 2 ? g->ks->widest : across;
}

/* Whether the columns of A are contiguous. */
static bool fl__gemm_tall(const fl__gemm *g) { return g->rsa == 1 && g->csa != 1; }

/* Chooses the tiles, for A in place or packed. Tiles one or three registers wide exist only for any rsa, with
   few rows. */
static void fl__gemm_choose_tiles(fl__gemm *g, bool in_place) {
    const int64_t odd = g->n <= g->ks->lanes || (g->n > 2 * g->ks->lanes && g->n <= 3 * g->ks->lanes);
    const bool low = in_place && (odd || !fl__gemm_tall(g));
    const int across = low ? fl__gemm_across(g) : 2;
    fl__gemm_set_tiles(g, low ? g->ks->low[across] : g->ks->rows);
    g->width = across * g->ks->lanes;
    g->packed = in_place ? NULL : ""; /* set to the real address for each task */
}

/* Decides whether to swap the operands and to pack A. */
static void fl__matmul_plan(fl__matmul *p) {
    fl__gemm *g = &p->g;
    bool small = fl__gemm_small(g);
    p->cached = !small && p->of->weight && g->csb != 1;
    bool stream = g->csb != 1 && g->m <= FL__MATMUL_SKINNY &&
                  g->n >= 2 * g->m; /* packing B would cost as much as the product */
    bool waste = 3 * fl__gemm_area(g, g->n, g->m) < 2 * fl__gemm_area(g, g->m, g->n);
    p->swapped = !small && !p->cached && !g->widen && (stream || waste);
    if (p->swapped) fl__gemm_swap(g);
    bool tall = fl__gemm_tall(g);
    bool near = tall ? fl__max(g->m, g->n) <= 256 : g->n * g->k <= FL__MATMUL_L2;
    bool in_place = !g->widen && (small || (!p->cached && (stream || near)));
    fl__gemm_choose_tiles(g, in_place);
    g->ldc = g->n;
    fl__gemm_set_group(g, g->k);
}

static int64_t fl__matmul_tasks(const fl__matmul *p) {
    return p->of->items * p->splits * p->row_blocks * p->column_blocks;
}

static void fl__matmul_blocks(fl__matmul *p, int64_t tiles, int64_t columns) {
    p->block_tiles = tiles;
    p->block_columns = columns;
    p->row_blocks = fl__ceil_div(p->g.tiles, tiles);
    p->column_blocks = fl__ceil_div(p->g.n, columns);
}

/* Blocks of rows, for which a panel of B is packed once, by 512 columns; smaller if that gives fewer tasks
   than wanted. Cached panels need no packing: then blocks have as many rows of A as stay in the L2 cache. */
static void fl__matmul_choose_blocks(fl__matmul *p, int64_t wanted) {
    const fl__gemm *g = &p->g;
    const int64_t near = FL__MATMUL_L2 / fl__min(g->k, FL__MATMUL_CHUNK);
    const int64_t rows = p->swapped ? 256 : p->cached ? near : FL__MATMUL_BLOCK_ROWS;
    const int64_t blocks = fl__ceil_div(g->tiles, fl__ceil_div(rows, g->rows));
    fl__matmul_blocks(p, fl__ceil_div(g->tiles, blocks), 512);
    if (fl__gemm_small(g)) return;
    while (p->block_columns > 64 && fl__matmul_tasks(p) < wanted)
        fl__matmul_blocks(p, p->block_tiles, p->block_columns / 2);
    while (p->block_tiles > 4 && fl__matmul_tasks(p) < wanted)
        fl__matmul_blocks(p, (p->block_tiles + 1) / 2, p->block_columns);
}

/* Makes column blocks of about equal numbers of panels, and a small number of blocks a multiple of the
   threads. */
static void fl__matmul_balance(fl__matmul *p) {
    const int64_t threads = fl_threads(), panels = fl__ceil_div(p->g.n, p->g.width);
    p->column_blocks = fl__min(p->column_blocks, panels);
    while (p->column_blocks < panels && fl__matmul_tasks(p) < 8 * threads && fl__matmul_tasks(p) % threads)
        p->column_blocks++;
    p->block_columns = fl__ceil_div(panels, p->column_blocks) * p->g.width;
}

/* The first column of a block; n for the one past the last. */
static int64_t fl__matmul_column(const fl__matmul *p, int64_t block) {
    const int64_t panels = fl__ceil_div(p->g.n, p->g.width);
    return fl__min(block * panels / p->column_blocks * p->g.width, p->g.n);
}

/* Cuts the products into blocks, and along k into splits and chunks, which depend on the shape alone because
   they determine the order of summation. */
static void fl__matmul_cut(fl__matmul *p) {
    fl__gemm *g = &p->g;
    p->splits = 1;
    fl__matmul_choose_blocks(p, FL__MATMUL_TASKS);
    if (fl__matmul_tasks(p) < FL__MATMUL_TASKS && g->k >= 4096 && !p->swapped && !p->cached && !p->narrow)
        p->splits = fl__min(FL__MATMUL_TASKS, g->k / 2048);
    p->split_k = fl__ceil_div(g->k, p->splits);
    p->splits = fl__ceil_div(g->k, p->split_k);
    const bool aliases = g->csb == 1 && g->rsb * (int64_t)g->ks->size % FL__MATMUL_ALIAS == 0;
    const int64_t most = aliases ? FL__MATMUL_CHUNK_ALIAS : FL__MATMUL_CHUNK;
    p->chunk = fl__ceil_div(p->split_k, fl__ceil_div(p->split_k, most));
    fl__matmul_choose_blocks(p, fl_threads() > 1 ? 3 * fl_threads() : 1);
    fl__matmul_balance(p);
    fl__gemm_set_group(g, p->chunk);
}

/* The current chunk of one split of one item; k < 1 if that split has ended. */
static fl__gemm fl__matmul_part(const fl__matmul *p, int64_t index) {
    fl__gemm g = p->g;
    const int64_t size = (int64_t)g.ks->size, item = fl__quotient(index, p->splits);
    const int64_t begin = (index - item * p->splits) * p->split_k, k0 = begin + p->at;
    const int64_t end = fl__min(begin + p->split_k, g.k);
    const int64_t *sa = p->swapped ? p->of->b_stride : p->of->a_stride;
    const int64_t *sb = p->swapped ? p->of->a_stride : p->of->b_stride;
    g.a += (fl__product_offset(p->of, sa, item) + k0 * g.csa) * g.raw;
    g.b += (fl__product_offset(p->of, sb, item) + k0 * g.rsb) * g.raw;
    g.k = fl__min(p->chunk, end - k0);
    g.add = p->at > 0;
    if (p->cached) g.cached_b = p->cache.data + p->at / p->chunk * p->cache_chunk;
    if (g.packed && p->packed) g.packed = p->packed + index * g.m * p->chunk * size;
    g.c = (p->parts ? p->parts : p->of->out) + index * g.m * g.n * size;
    bool last = k0 + g.k == end;
    if (last && !p->swapped && !p->narrow && p->splits == 1 && p->of->has_epilogue)
        g.epilogue = &p->of->epilogue;
    return g;
}

/* Task: packs some row tiles of A of one part. */
static void fl__matmul_pack(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    const int64_t tiles = p->g.tiles;
    for (int64_t task = begin, last; task < end; task = last) {
        fl__gemm g = fl__matmul_part(p, task / tiles);
        last = fl__min(end, (task / tiles + 1) * tiles);
        fl__gemm_pack_a(&g, task % tiles, task % tiles + last - task);
        for (int64_t t = task; p->of->summed && t < last; t++) fl__gemm_add_sums(&g, t % tiles, p->of->sums);
    }
}

/* Writes rows i0 .. i1, columns j0 .. j1 of C^T to C. */
static void fl__matmul_transpose(const fl__matmul *p, const fl__gemm *g, int64_t item, int64_t i0,
                            int64_t i1, int64_t j0, int64_t j1) {
    const int64_t size = (int64_t)g->ks->size;
    char *out = p->of->out + ((item * g->n + j0) * g->m + i0) * size; /* out[j][i] = C^T[i][j] */
    g->ks->pack(out, g->m, i1 - i0, j1 - j0, g->c + (i0 * g->ldc + j0) * size, g->ldc, 1);
    if (p->of->has_epilogue) fl__gemm_epilogue(&p->of->epilogue, out, g->m, j0, j1 - j0, i0, i1 - i0);
}

/* Rounds rows i0 .. i1, columns j0 .. j1 of the sums of an item. */
static void fl__matmul_round(const fl__matmul *p, const fl__gemm *g, int64_t item, int64_t i0, int64_t i1,
                             int64_t j0, int64_t j1) {
    uint16_t *out = (uint16_t *)(void *)p->of->out + item * g->m * g->n;
    float *sums = (float *)(void *)g->c + i0 * g->ldc + j0;
    fl__gemm_round(&p->of->epilogue, p->narrow, sums, g->ldc, out, i0, i1 - i0, j0, j1 - j0);
}

static void fl__matmul_task(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    char *panels = p->scratch.buffer ? fl__scratch_take(&p->scratch) : NULL;
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task / p->column_blocks, index = block / p->row_blocks;
        fl__gemm g = fl__matmul_part(p, index);
        if (g.k < 1) continue;
        int64_t t0 = block % p->row_blocks * p->block_tiles;
        int64_t t1 = fl__min(t0 + p->block_tiles, g.tiles);
        int64_t j0 = fl__matmul_column(p, task % p->column_blocks);
        int64_t j1 = fl__matmul_column(p, task % p->column_blocks + 1);
        int64_t i0 = fl__gemm_row(&g, t0), i1 = fl__gemm_row(&g, t1);
        fl__gemm_block(&g, t0, t1, j0, j1, panels);
        if (p->at + g.k < p->split_k) continue;
        if (p->swapped) fl__matmul_transpose(p, &g, index, i0, i1, j0, j1);
        if (p->narrow) fl__matmul_round(p, &g, index, i0, i1, j0, j1);
    }
    if (panels) fl__scratch_give_back(&p->scratch, panels);
}

/* Adds the parts of each item in order, for a range of the elements of all items. */
static void fl__matmul_sum(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    const int64_t size = (int64_t)p->g.ks->size, mn = p->g.m * p->g.n;
    while (begin < end) {
        int64_t item = begin / mn, at = begin % mn, n = fl__min(end - begin, mn - at);
        char *dst = p->of->out + begin * size;
        const char *src = p->parts + (item * p->splits * mn + at) * size;
        memcpy(dst, src, (size_t)(n * size));
        for (int64_t s = 1; s < p->splits; s++) p->g.ks->add(dst, src + s * mn * size, n);
        begin += n;
    }
}

/* >>skinny: at most 8 rows: B is read once, in memory order, instead of once per row */

enum { FL__SKINNY_DOTS = 2048, FL__SKINNY_AXPYS = 16, FL__SKINNY_ONCE = 2 };
enum { FL__SKINNY_PREFETCH = 1 << 20 }; /* bytes of B that no L2 cache keeps between calls */

/* One block of columns: all rows, a chunk of k at a time. */
static void fl__skinny_block(const fl__gemm *g, int64_t j, int64_t n) {
    const int64_t size = (int64_t)g->ks->size;
    const bool dots = g->csb != 1;
    fl__segment segment;
    fl__tile tile = {.segments = 1, .segment = &segment, .rsa = g->rsa, .csa = g->csa,
                     .ldb = dots ? g->csb : g->rsb, .ldc = g->ldc,
                     .prefetch = g->n * g->k * size > FL__SKINNY_PREFETCH ? g->b : NULL};
    for (int64_t k0 = 0; k0 < g->k; k0 += tile.k) {
        tile.k = fl__min(g->k - k0, dots ? FL__SKINNY_DOTS : FL__SKINNY_AXPYS);
        tile.add = k0 > 0;
        segment.b = g->b + (k0 * g->rsb + j * g->csb) * size;
        for (int64_t i = 0, mr; i < g->m; i += mr) {
            mr = g->m - i >= 4 ? 4 : g->m - i >= 2 ? 2 : 1;
            segment.a = g->a + (i * g->rsa + k0 * g->csa) * size;
            tile.c = g->c + (i * g->ldc + j) * size;
            (dots ? g->ks->dots : g->ks->axpys)[mr](&tile, n);
        }
    }
    if (g->epilogue)
        fl__gemm_epilogue(g->epilogue, g->c + j * size, g->ldc, 0, g->m, j, n);
}

static void fl__skinny_task(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    for (int64_t task = begin; task < end;) {
        const int64_t item = fl__quotient(task, p->column_blocks), first = item * p->column_blocks;
        const int64_t last = fl__min(first + p->column_blocks, end);
        const fl__gemm g = fl__matmul_part(p, item);
        for (; task < last; task++) {
            int64_t j = (task - first) * p->block_columns;
            fl__skinny_block(&g, j, fl__min(p->block_columns, g.n - j));
        }
    }
}

/* Runs the product if it has few rows, or one column; returns whether it did. */
static bool fl__matmul_skinny(fl__matmul *p) {
    fl__gemm *g = &p->g;
    p->swapped = g->n == 1 && g->m > FL__SKINNY_ROWS;
    if (p->swapped) fl__gemm_swap(g);
    bool takes = g->m <= FL__SKINNY_ROWS && (g->csb == 1 || (g->rsb == 1 && g->csa == 1));
    if (!takes || (p->of->items > 1 && g->m * g->n * g->k < 4096)) {
        if (p->swapped) fl__gemm_swap(g);
        return false;
    }
    g->ldc = g->n;
    p->splits = 1;
    p->split_k = p->chunk = g->k;
    p->block_columns = g->csb == 1 ? 1024 : 16;
    p->column_blocks = fl__ceil_div(g->n, p->block_columns);
    int64_t work = g->m * g->k * p->block_columns;
    fl_parallel(p->of->items * p->column_blocks, fl__ceil_div(FL__SMALL_PRODUCT, work), fl__skinny_task,
                p);
    return true;
}

/* >>run */

/* The whole product, rows of C n apart; assigned field by field, as in product.h. */
static void fl__gemm_begin(fl__gemm *g, const fl__product *of) {
    g->ks = fl__gemm_kernels(of->dtype);
    g->m = of->m, g->n = of->n, g->k = of->k;
    g->raw = (int64_t)fl_dtype_size(of->dtype);
    g->widen = g->raw < (int64_t)g->ks->size ? fl__cast_loop(of->dtype, FL_F32) : NULL;
    g->a = of->a, g->rsa = of->rsa, g->csa = of->csa;
    g->b = of->b, g->rsb = of->rsb, g->csb = of->csb;
    g->c = of->out, g->ldc = of->n;
    g->add = g->prefetches = false, g->tight = of->tight;
    g->packed = g->cached_b = NULL, g->epilogue = NULL;
}

/* Computes a small product without blocking: one or two rows by a transposed B as dot products, else in
   tiles, where a panel of B that is not read in place is packed on the stack. */
static bool fl__matmul_unblocked(const fl__product *of) {
    if (of->items > 1 || of->m > FL__MATMUL_UNBLOCKED_M || of->n * of->k > FL__MATMUL_UNBLOCKED) return false;
    if (of->n == 1 && of->m > FL__SKINNY_ROWS) return false; /* rows of A are dense: skinny dots */
    fl__gemm g;
    fl__gemm_begin(&g, of);
    g.epilogue = of->has_epilogue ? &of->epilogue : NULL;
    if (of->csb != 1 && of->m <= FL__SKINNY_ONCE) {
        const bool dots = of->rsb == 1 && of->csa == 1;
        if (dots) fl__skinny_block(&g, 0, g.n);
        return dots;
    }
    _Alignas(64) char panel[FL__MATMUL_UNBLOCKED * sizeof(double) + FL__PANEL_SLACK];
    fl__gemm_choose_tiles(&g, true);
    if (g.width * g.k > FL__MATMUL_UNBLOCKED) return false;
    g.group = g.width;
    fl__gemm_block(&g, 0, g.tiles, 0, g.n, panel);
    return true;
}

/* Task: packs some panels of B of the chunk into the cache. */
static void fl__matmul_cache_b_task(void *arg, int64_t begin, int64_t end) {
    const fl__gemm g = fl__matmul_part(arg, 0);
    const int64_t depth = g.k * (int64_t)g.ks->size;
    for (int64_t j = begin * g.width; j < end * g.width; j += g.width)
        fl__gemm_pack_b(&g, j, fl__min(j + g.width, g.n), (char *)(uintptr_t)g.cached_b + j * depth);
}

/* Finds the cached panels of a frozen B, or packs all of them. */
static void fl__matmul_cache_b(fl__matmul *p) {
    const fl__gemm *g = &p->g;
    const int64_t panels = fl__ceil_div(g->n, g->width);
    p->cache_chunk = panels * g->width * p->chunk * (int64_t)g->ks->size;
    p->cached = fl__packed_cache_open(&p->cache, p->of->weight, FL__PACKED_PRODUCT, g->ks,
                                               fl__ceil_div(g->k, p->chunk) * p->cache_chunk);
    for (p->at = 0; p->cached && p->cache.fresh && p->at < g->k; p->at += p->chunk)
        fl_parallel(panels, FL__MATMUL_GROUP, fl__matmul_cache_b_task, p);
}

/* Runs all chunks of a blocked product. */
static void fl__matmul_run(fl__matmul *p) {
    const fl__gemm *g = &p->g;
    const int64_t tasks = fl__matmul_tasks(p), tiles = p->of->items * p->splits * g->tiles;
    const int64_t work = g->m * g->n * p->chunk / (p->row_blocks * p->column_blocks);
    const int64_t grain = fl__ceil_div(FL__SMALL_PRODUCT, work + 1);
    const int64_t share = fl__min(FL__MATMUL_GROUP, fl__ceil_div(tiles, fl_threads()));
    for (p->at = 0; p->at < p->split_k; p->at += p->chunk) {
        if (g->packed) fl_parallel(tiles, share, fl__matmul_pack, p);
        fl_parallel(tasks, grain, fl__matmul_task, p);
    }
}

static bool fl__matmul_float(fl__product *of) {
    fl__matmul whole = {.of = of}, *p = &whole;
    fl__gemm *g = &p->g;
    fl__gemm_begin(g, of);
    const int64_t size = (int64_t)g->ks->size;
    if (g->widen) {
        p->narrow = fl__cast_loop(FL_F32, of->dtype);
    } else if (fl__matmul_skinny(p)) {
        if (p->swapped) fl__product_epilogue(of, g->n);
        return true;
    }
    fl__matmul_plan(p);
    fl__matmul_cut(p);
    if (p->cached) fl__matmul_cache_b(p);
    const bool in_place = p->cached || fl__gemm_in_place(g, g->n % g->width);
    int64_t pack = g->packed ? p->of->items * p->splits * g->m * p->chunk : 0;
    int64_t parts = p->swapped || p->narrow || p->splits > 1 ? p->of->items * p->splits * g->m * g->n : 0;
    const int64_t bias = p->narrow && of->epilogue.add ? g->n : 0;
    if (pack + parts > 0 || !in_place) {
        const int64_t most = fl__ceil_div(fl__min(g->n, p->block_columns), g->width) * g->width;
        const int64_t panels = in_place ? 0 : fl__min(g->group, most) * p->chunk * size;
        if (!fl__scratch_open(&p->scratch, fl__matmul_tasks(p), panels, (pack + parts + bias) * size,
                              "matmul")) {
            if (p->cached) fl__packed_cache_close(&p->cache);
            return false;
        }
        p->packed = p->scratch.shared;
        p->parts = parts ? p->scratch.shared + pack * size : NULL;
    }
    if (bias) {
        char *wide = p->parts + parts * size;
        g->widen((void *[]){wide, (char *)(uintptr_t)of->epilogue.bias}, bias, NULL);
        of->epilogue.bias = wide;
    }
    const bool once = g->packed && !p->swapped && p->splits == 1 && of->items == 1;
    of->summed = of->sums && once;
    if (of->summed) memset(of->sums, 0, (size_t)(g->m * size));
    fl__matmul_run(p);
    if (p->cached) fl__packed_cache_close(&p->cache);
    if (p->splits > 1) {
        fl_parallel(p->of->items * g->m * g->n, 1 << 14, fl__matmul_sum, p);
        fl__product_epilogue(p->of, g->m);
    }
    if (p->scratch.buffer) fl__scratch_close(&p->scratch);
    return true;
}

/* Wrapping i64 products: rows of all items, each a sum of rows of B. */
static void fl__matmul_i64(void *arg, int64_t begin, int64_t end) {
    const fl__product *p = arg;
    for (int64_t row = begin; row < end; row++) {
        int64_t item = row / p->m, i = row % p->m;
        const uint64_t *a = (const uint64_t *)p->a + fl__product_offset(p, p->a_stride, item) + i * p->rsa;
        const uint64_t *b = (const uint64_t *)p->b + fl__product_offset(p, p->b_stride, item);
        uint64_t *c = (uint64_t *)p->out + row * p->n;
        memset(c, 0, (size_t)p->n * sizeof *c);
        for (int64_t q = 0; q < p->k; q++)
            for (int64_t j = 0; j < p->n; j++) c[j] += a[q * p->csa] * b[q * p->rsb + j * p->csb];
    }
}

/* >>slots */

/* Whether f16 and bf16 operands are converted to f32 while they are packed: not if f32 reads A in place, with
   a B that stays in the L2 cache; converting whole tensors then takes less than packing (measured: 5 % of a
   step of gpt_small). */
static bool fl__matmul_converts(const fl__product *of) {
    return fl_dtype_is_float(of->dtype) && of->m * of->n * of->k > FL__SMALL_PRODUCT &&
           of->n * of->k > FL__MATMUL_L2;
}

FL_PRIVATE bool fl__cpu_product(fl__product *of, const fl_call *c) {
    const bool narrow = fl_is_narrow(c->out[0]);
    if (narrow && !fl__amx_takes(of) && !fl__matmul_converts(of)) return fl__call_widen(c);
    if (!fl__product_make(of, c)) return false;
    if (of->m * of->n * of->items == 0) return true;
    if (of->k == 0) {
        memset(of->out, 0, (size_t)(of->m * of->n * of->items) * fl_dtype_size(of->dtype));
        fl__product_epilogue(of, of->m);
        return true;
    }
    if (of->dtype == FL_I64) {
        fl_parallel(of->items * of->m, fl__ceil_div(1 << 16, of->n * of->k), fl__matmul_i64, of);
        return true;
    }
    if (!fl_dtype_is_float(of->dtype))
        return fl_fail("fl_matmul: dtype %s is not supported, expected floats or i64",
                       fl_dtype_name(of->dtype));
    if (fl__amx_takes(of)) return fl__amx_matmul(of);
    return (!narrow && fl__matmul_unblocked(of)) || fl__matmul_float(of);
}

/* matmul: a [..., m, k], b [..., k, n] -> [..., m, n]; floats and i64. linear: x [m, k], w [n, k], bias [n]
   -> act(x w^T + bias). */
FL_PRIVATE bool fl__cpu_matmul(const fl_backend *self, const fl_call *c) {
    fl__product of;
    (void)self;
    return fl__product_of(&of, c) ? fl__cpu_product(&of, c) : fl_call_compose(c);
}

/* db is summed while dw's operand is packed, except for f16 and bf16. */
static bool fl__cpu_linear_grad(const fl_backend *self, const fl_call *c) {
    fl_tensor *dw = c->out[1], *db = c->out[2];
    fl__product p = {.summed = false};
    fl__linear_grad part;
    const bool near = fl_numel(c->in[2]) <= FL__MATMUL_L2; /* then f16 and bf16 are cast as whole tensors */
    if (near && fl_is_narrow(c->in[0]) && !fl__bf16_tiles(c->in[0]->dtype)) return fl__call_widen(c);
    fl__linear_grad_parts(&part, c);
    if (c->out[0] && !self->op[FL_OP_matmul](self, &part.dx)) return false;
    if (db && !fl_out_make(db)) return false;
    if (dw) {
        fl__product_of(&p, &part.dw);
        p.sums = db && !fl_is_narrow(db) ? fl_data(db) : NULL;
        const bool other = fl__openblas_takes(&p);
        if (!(other ? self->op[FL_OP_matmul](self, &part.dw) : fl__cpu_product(&p, &part.dw))) return false;
    }
    return !db || p.summed || self->op[FL_OP_sum](self, &part.db);
}

FL_PRIVATE void fl__cpu_matmul_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_linear_grad, fl__cpu_linear_grad, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_linear, fl__cpu_matmul, FL_SLOT_NARROW);
}

#endif /* FL_CPU_GEMM_MATMUL_IMPL */
#endif
/* MIT licence: see LICENSE. */
