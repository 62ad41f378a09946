/* gemm.h - matrix products on the CPU: packed, blocked, register-tiled

   C = A B is cut into blocks of rows and columns by its size alone; the blocks run on the thread
   pool. A block walks through k in chunks. For each chunk it packs one panel of B after the other
   (as many columns as a register tile has; the panel stays in the first-level cache) and runs the
   tiles of its rows over it. A is packed once, before. Panels of B may also come from somewhere
   else: conv.h cuts them out of images, so no column matrix is ever written.

   Tall heaps of rows are cut into tiles of equal height, so no tile computes rows that do not
   exist. What packing would not pay for is read in place: small products, and B transposed under
   few rows (then C^T = B^T A^T is computed, whose left operand streams through once). A handful of
   rows, bound by the reading of B, have loops of their own, for B as it is and transposed.

   The bits of the result depend on shapes, strides and the instruction set, never on the number of
   threads. */
#include "common.h"
#ifndef FL_CPU_GEMM_H
#define FL_CPU_GEMM_H

/* One register tile: C (+)= sum over segments and p < k of a[i * rsa + p * csa] b[p * ldb + j]. */
typedef struct fl__segment {
    const void *a, *b;
} fl__segment;
typedef struct fl__tile {
    int64_t segments;
    const fl__segment *segment;
    int64_t k, rsa, csa, ldb;
    void *c;
    int64_t ldc;
    bool add;
} fl__tile;
/* n pixels of an image that stand side by side, and the column of the panel where they go. */
typedef struct fl__pixels {
    int64_t from;
    int to, n;
} fl__pixels;

/* What gemm_tile.h makes for an element type and an instruction set. */
typedef void (*fl__tile_fn)(const fl__tile *t);
typedef void (*fl__few_fn)(const fl__tile *t, int64_t n);
typedef struct fl__kernels {
    size_t size;             /* of an element */
    int lanes;               /* elements per register */
    int rows;                /* most rows of a tile two registers wide, if rsa is 1 */
    int short_rows, widest;  /* most rows and most registers across of a tile with any rsa */
    fl__tile_fn tall[15];    /* [rows], two registers wide, rsa 1 */
    fl__tile_fn tile[3][7];  /* [registers across / 2][rows] */
    fl__few_fn dots[5];      /* [1, 2, 4]: rows x n of C, where csa is 1 and b is [n][k] */
    fl__few_fn axpys[5];     /* the same where b is [k][n] */
    /* dst[p * ldd + i] = src[i * rs + p * cs], i < n, p < k; reads up to a register past a row */
    void (*pack)(void *dst, int64_t ldd, int64_t n, int64_t k, const void *src, int64_t rs,
                 int64_t cs);
    /* row p of dst = the runs of src + offset[p] */
    void (*pack_runs)(void *dst, int64_t ldd, int64_t k, const void *src, const int64_t *offset,
                      const fl__pixels *run, int runs);
    void (*add)(void *dst, const void *src, int64_t n); /* dst[i] += src[i] */
} fl__kernels;
/* The kernels for f32 or f64 at the level in force. */
FL_PRIVATE const fl__kernels *fl__gemm_kernels(fl_dtype dtype);
/* Runs t on m x n elements of C, m and n within a tile. */
FL_PRIVATE void fl__gemm_tile(const fl__kernels *ks, int m, int n, const fl__tile *t);

#define FL__PANEL_BYTES 40960 /* of B: what stays in the first-level cache beside a panel of A */
#define FL__PANEL_SLACK 128   /* tiles read up to two registers past the end */

/* What becomes of an element c of C once it is summed: z = c + bias[j], written too if z is there,
   then act(z). The loops may be NULL. */
typedef struct fl__finish {
    fl__loop add, act;
    size_t size;
    const char *bias;
    char *z; /* NULL, or rows n apart */
    int64_t n;
} fl__finish;

/* A product of m x k by k x n, or several of them. Strides in elements. */
typedef struct fl__gemm fl__gemm;
struct fl__gemm {
    const fl__kernels *ks;
    int64_t m, n, k;
    const char *a; /* NULL where packed has it */
    int64_t rsa, csa;
    const char *b;
    int64_t rsb, csb;
    char *c; /* rows ldc apart */
    int64_t ldc;
    bool add;                 /* C starts from what it holds, not from 0 */
    int rows, width;          /* of a tile; fl__gemm_shape sets them */
    const char *packed;       /* A as fl__gemm_pack lays it out, NULL: read in place */
    /* packs rows k0 .. k0 + k of columns j .. j + n of B, fl__gemm.width apart; NULL: from b by
       strides, or in place */
    void (*pack_b)(const fl__gemm *g, int64_t k0, int64_t k, int64_t j, int n, void *dst);
    const void *source;       /* for pack_b */
    const fl__finish *finish; /* NULL: none */
};
/* Chooses the tile: for packed A, or for A in place. */
FL_PRIVATE void fl__gemm_shape(fl__gemm *g, bool packed);
/* Row tiles of C, and the first row of tile t (m for t = count). */
FL_PRIVATE int64_t fl__gemm_tiles(const fl__gemm *g);
FL_PRIVATE int64_t fl__gemm_row(const fl__gemm *g, int64_t t);
/* Packs row tiles t0 .. t1 of A (g->a, rsa, csa) into dst, m * k elements for all tiles. */
FL_PRIVATE void fl__gemm_pack(const fl__gemm *g, int64_t t0, int64_t t1, char *dst);
/* Computes row tiles t0 .. t1, columns j0 .. j1 of C. */
FL_PRIVATE void fl__gemm_block(const fl__gemm *g, int64_t t0, int64_t t1, int64_t j0, int64_t j1);
/* Length of the chunk of k that starts where `left` are left. */
FL_PRIVATE int64_t fl__gemm_chunk(const fl__gemm *g, int64_t left);
/* A scratch buffer until the op ends, with room for reads past its end. */
FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op);
/* Whether matrix products go through OpenBLAS: sets it, returns the setting before. False without
   FL_USE_OPENBLAS. */
FL_PRIVATE bool fl__gemm_use_openblas(bool on);

/* a [..., m, k], b [..., k, n] -> [..., m, n]; f32, f64, i64. */
FL_PRIVATE bool fl__cpu_matmul(const fl_backend *self, const fl_call *c);

#endif /* FL_CPU_GEMM_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_IMPL
#define FL_CPU_GEMM_IMPL

#include <string.h>

static inline int64_t fl__gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fl__gemm_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* >>kernels: gemm_tile.h for every element and level */

#define FL__INLINE static inline __attribute__((always_inline))
#define FL__TILE_REGISTERS 28
#define FL__SHUFFLE __builtin_shufflevector
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
#define FL__ROWS 4
#define FL__FN(name) fl__f32_portable_##name
#include "gemm_tile.h"
#define FL__TARGET
#define FL__T double
#define FL__LANES 2
#define FL__ROWS 4
#define FL__FN(name) fl__f64_portable_##name
#include "gemm_tile.h"
#ifdef FL__X86_LEVELS
#define FL__TARGET FL__TARGET_AVX2
#define FL__T float
#define FL__LANES 8
#define FL__ROWS 6
#define FL__FN(name) fl__f32_avx2_##name
#include "gemm_tile.h"
#define FL__TARGET FL__TARGET_AVX2
#define FL__T double
#define FL__LANES 4
#define FL__ROWS 6
#define FL__FN(name) fl__f64_avx2_##name
#include "gemm_tile.h"
#define FL__TARGET FL__TARGET_AVX512
#define FL__T float
#define FL__LANES 16
#define FL__ROWS 14
#define FL__FN(name) fl__f32_avx512_##name
#include "gemm_tile.h"
#define FL__TARGET FL__TARGET_AVX512
#define FL__T double
#define FL__LANES 8
#define FL__ROWS 6 /* f64 is for gradient checks: fewer tiles to compile */
#define FL__FN(name) fl__f64_avx512_##name
#include "gemm_tile.h"
#endif

#ifndef __clang__
#pragma GCC pop_options
#endif
#undef FL__SHUFFLE
#undef FL__UNROLL
#undef FL__CONTRACT

FL_PRIVATE const fl__kernels *fl__gemm_kernels(fl_dtype dtype) {
    bool f64 = dtype == FL_F64;
#ifdef FL__X86_LEVELS
    int level = fl__cpu_isa();
    if (level == FL__AVX512) return f64 ? &fl__f64_avx512_kernels : &fl__f32_avx512_kernels;
    if (level == FL__AVX2) return f64 ? &fl__f64_avx2_kernels : &fl__f32_avx2_kernels;
#endif
    return f64 ? &fl__f64_portable_kernels : &fl__f32_portable_kernels;
}

/* Copies or adds an m x n corner of a computed tile into C. */
static void fl__tile_corner(const fl__kernels *ks, int m, int n, const fl__tile *t,
                            const char *part, int width) {
    for (int i = 0; i < m; i++) {
        char *row = (char *)t->c + (size_t)(i * t->ldc) * ks->size;
        const char *from = part + (size_t)(i * width) * ks->size;
        if (t->add) ks->add(row, from, n);
        else memcpy(row, from, (size_t)n * ks->size);
    }
}

FL_PRIVATE void fl__gemm_tile(const fl__kernels *ks, int m, int n, const fl__tile *t) {
    bool tall = m > ks->short_rows;
    int across = n > 2 * ks->lanes ? 4 : n > ks->lanes || tall ? 2 : 1;
    fl__tile_fn run = tall ? ks->tall[m] : ks->tile[across / 2][m];
    if (n == across * ks->lanes) {
        run(t);
        return;
    }
    _Alignas(64) char part[FL__TILE_REGISTERS * 64];
    fl__tile whole = *t;
    whole.c = part;
    whole.ldc = across * ks->lanes;
    whole.add = false;
    run(&whole);
    fl__tile_corner(ks, m, n, t, part, across * ks->lanes);
}

/* >>blocks */

FL_PRIVATE void fl__gemm_shape(fl__gemm *g, bool packed) {
    g->rows = packed ? g->ks->rows : g->ks->short_rows;
    g->width = (packed ? 2 : g->ks->widest) * g->ks->lanes;
}

FL_PRIVATE int64_t fl__gemm_tiles(const fl__gemm *g) { return fl__gemm_div_up(g->m, g->rows); }

FL_PRIVATE int64_t fl__gemm_row(const fl__gemm *g, int64_t t) {
    int64_t tiles = fl__gemm_tiles(g);
    return t * (g->m / tiles) + fl__gemm_min(t, g->m % tiles);
}

FL_PRIVATE int64_t fl__gemm_chunk(const fl__gemm *g, int64_t left) {
    int64_t most = fl__gemm_min(384, FL__PANEL_BYTES / (g->width * (int64_t)g->ks->size));
    return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most;
}

/* The panel of tile t for the chunk at k0 starts at element k0 * m + row(t) * chunk. */
FL_PRIVATE void fl__gemm_pack(const fl__gemm *g, int64_t t0, int64_t t1, char *dst) {
    int64_t size = (int64_t)g->ks->size;
    for (int64_t k0 = 0, kc; k0 < g->k; k0 += kc) {
        kc = fl__gemm_chunk(g, g->k - k0);
        for (int64_t t = t0; t < t1; t++) {
            int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
            g->ks->pack(dst + (k0 * g->m + i * kc) * size, m, m, kc,
                        g->a + (i * g->rsa + k0 * g->csa) * size, g->rsa, g->csa);
        }
    }
}

/* Columns j .. j + n of B, rows k0 .. k0 + kc: packed into `panel`, or in place if the rows are
   dense, few tiles use them and a tile reads less than a register past column n, as a buffer's
   slack allows (there is no tile three registers wide). */
static const char *fl__gemm_panel(const fl__gemm *g, int64_t k0, int64_t kc, int64_t j, int n,
                                  char *panel, int64_t *ldb) {
    const fl__kernels *ks = g->ks;
    *ldb = g->width;
    if (g->pack_b) {
        g->pack_b(g, k0, kc, j, n, panel);
        return panel;
    }
    const char *from = g->b + (k0 * g->rsb + j * g->csb) * (int64_t)ks->size;
    int across = (n + ks->lanes - 1) / ks->lanes;
    if (g->csb == 1 && !g->packed && across != 3) {
        *ldb = g->rsb;
        return from;
    }
    int64_t columns = g->csb == 1 ? across * ks->lanes : n;
    ks->pack(panel, g->width, columns, kc, from, g->csb, g->rsb);
    return panel;
}

/* Finishes rows i .. i + m, columns j .. j + n of C, the first of which is at c. */
static void fl__gemm_finish(const fl__finish *f, char *c, int64_t ldc, int64_t i, int64_t m,
                            int64_t j, int64_t n) {
    const int64_t size = (int64_t)f->size;
    for (int64_t end = i + m; i < end; i++, c += ldc * size) {
        char *z = f->z ? f->z + (i * f->n + j) * size : c;
        if (f->add) f->add((void *[]){z, c, (char *)(uintptr_t)f->bias + j * size}, n, NULL);
        else if (z != c) memcpy(z, c, (size_t)(n * size));
        if (f->act) f->act((void *[]){c, z}, n, NULL);
        else if (f->add && z != c) memcpy(c, z, (size_t)(n * size));
    }
}

FL_PRIVATE void fl__gemm_block(const fl__gemm *g, int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
    _Alignas(64) char panel[FL__PANEL_BYTES + FL__PANEL_SLACK];
    const int64_t size = (int64_t)g->ks->size;
    fl__segment segment;
    fl__tile tile = {.segments = 1, .segment = &segment, .rsa = 1, .ldc = g->ldc};
    for (int64_t k0 = 0; k0 < g->k; k0 += tile.k) {
        tile.k = fl__gemm_chunk(g, g->k - k0);
        tile.add = g->add || k0 > 0;
        for (int64_t j = j0; j < j1; j += g->width) {
            int n = (int)fl__gemm_min(g->width, j1 - j);
            segment.b = fl__gemm_panel(g, k0, tile.k, j, n, panel, &tile.ldb);
            for (int64_t t = t0; t < t1; t++) {
                int64_t i = fl__gemm_row(g, t), m = fl__gemm_row(g, t + 1) - i;
                if (g->packed) {
                    segment.a = g->packed + (k0 * g->m + i * tile.k) * size;
                    tile.csa = m;
                } else {
                    segment.a = g->a + (i * g->rsa + k0 * g->csa) * size;
                    tile.rsa = g->rsa;
                    tile.csa = g->csa;
                }
                tile.c = g->c + (i * g->ldc + j) * size;
                fl__gemm_tile(g->ks, (int)m, n, &tile);
                if (g->finish && k0 + tile.k == g->k)
                    fl__gemm_finish(g->finish, tile.c, g->ldc, i, m, j, n);
            }
        }
    }
}

FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op) {
    size_t bytes;
    if (!fl__mul_size((size_t)elements, size, &bytes) || bytes > SIZE_MAX - FL__PANEL_SLACK) {
        fl_fail("fl_%s: scratch of %lld elements is too large", op, (long long)elements);
        return NULL;
    }
    return fl_buffer_new(bytes + FL__PANEL_SLACK, &(fl_mem_info){.op = op, .lifetime = 1});
}

/* >>openblas */

#ifdef FL_USE_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int n);
static bool fl__openblas = true;

/* OpenBLAS takes dense rows or dense columns, and 32-bit sizes. */
static bool fl__openblas_takes(int64_t rows, int64_t columns, int64_t rs, int64_t cs) {
    int64_t ld = cs == 1 ? rs : cs, least = cs == 1 ? columns : rows;
    return (cs == 1 || rs == 1) && ld >= least && ld <= INT32_MAX && rows <= INT32_MAX &&
           columns <= INT32_MAX;
}

/* True if g goes to OpenBLAS: where our tiles are not as fast, which for f32 they are from AVX2 on.
   Its own threads stay off: our blocks are on ours. */
static bool fl__openblas_wants(const fl__gemm *g) {
    static bool single;
    if (g->ks->size == 4 && g->ks->lanes > 4) return false;
    if (!__atomic_exchange_n(&single, true, __ATOMIC_RELAXED)) openblas_set_num_threads(1);
    return fl__openblas && fl__openblas_takes(g->m, g->k, g->rsa, g->csa) &&
           fl__openblas_takes(g->k, g->n, g->rsb, g->csb) && g->ldc <= INT32_MAX;
}

static void fl__openblas_block(const fl__gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    int64_t size = (int64_t)g->ks->size;
    const void *a = g->a + i0 * g->rsa * size, *b = g->b + j0 * g->csb * size;
    void *c = g->c + (i0 * g->ldc + j0) * size;
    int m = (int)(i1 - i0), n = (int)(j1 - j0), k = (int)g->k, ldc = (int)g->ldc;
    int lda = (int)(g->csa == 1 ? g->rsa : g->csa), ldb = (int)(g->csb == 1 ? g->rsb : g->csb);
    int ta = g->csa == 1 ? CblasNoTrans : CblasTrans, tb = g->csb == 1 ? CblasNoTrans : CblasTrans;
    if (size == 4) cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
    else cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
}

FL_PRIVATE bool fl__gemm_use_openblas(bool on) {
    bool old = fl__openblas;
    fl__openblas = on;
    return old;
}
#else
FL_PRIVATE bool fl__gemm_use_openblas(bool on) { return on && false; }
#endif

/* >>matmul */

#define FL__SMALL_PRODUCT (64 * 64 * 64) /* m n k up to which packing and threads do not pay */

/* A batch of products and how it is cut: task = ((item * splits + split) * row_blocks + row block)
   * column_blocks + column block. With splits > 1 each computes its part of k into `parts`, which
   are then added in order. */
typedef struct fl__matmul {
    fl__gemm g; /* of the first item */
    int ndim;   /* of the batch */
    const int64_t *shape, *a_stride, *b_stride;
    int64_t items, splits, split_k, row_blocks, block_tiles, column_blocks, block_columns;
    bool swapped;  /* g computes C^T */
    const fl__finish *finish; /* of C, of one item; NULL: none */
    bool openblas;
    char *packed;  /* m * k elements per item */
    char *parts;   /* C^T of each item, or the parts of C; NULL: straight into out */
    char *out;     /* [items][m][n] of C */
} fl__matmul;

/* The strides of a product as seen when C^T = B^T A^T is computed instead. */
static void fl__gemm_swap(fl__gemm *g) {
    fl__gemm o = *g;
    g->m = o.n, g->n = o.m;
    g->a = o.b, g->rsa = o.csb, g->csa = o.rsb;
    g->b = o.a, g->rsb = o.csa, g->csb = o.rsa;
}

/* Columns that the tiles compute, for rows * columns of C. */
static int64_t fl__gemm_area(const fl__gemm *g, int64_t rows, int64_t columns) {
    int64_t width = 2 * g->ks->lanes;
    return rows * (fl__gemm_div_up(columns, width) * width);
}

/* Decides orientation and packing. */
static void fl__matmul_plan(fl__matmul *p) {
    fl__gemm *g = &p->g;
    bool small = g->m * g->n <= FL__SMALL_PRODUCT && g->m * g->n * g->k <= FL__SMALL_PRODUCT;
    bool stream = g->csb != 1 && g->m <= 128 &&
                  g->n >= 2 * g->m; /* packing B would cost as much as the product */
    bool waste = 3 * fl__gemm_area(g, g->n, g->m) < 2 * fl__gemm_area(g, g->m, g->n);
    p->swapped = !small && (stream || waste);
    if (p->swapped) fl__gemm_swap(g);
    bool in_place = small || stream;
    fl__gemm_shape(g, !in_place);
    g->packed = in_place ? NULL : ""; /* set for each task */
    g->ldc = g->n;
}

/* Cuts the products into blocks: about 400 rows (a chunk of A in the second-level cache, for which
   a panel of B is packed once) by 512 columns, smaller where that gives few tasks, then along k. */
static void fl__matmul_cut(fl__matmul *p) {
    fl__gemm *g = &p->g;
    const int64_t tiles = fl__gemm_tiles(g), enough = 8;
    p->block_tiles = fl__gemm_min(tiles, fl__gemm_div_up(p->swapped ? 256 : 400, g->rows));
    p->block_columns = 512;
    p->splits = 1;
    if (g->m * g->n * g->k > FL__SMALL_PRODUCT) {
        while (p->block_columns > 64 && p->items * fl__gemm_div_up(tiles, p->block_tiles) *
                                                fl__gemm_div_up(g->n, p->block_columns) < enough)
            p->block_columns /= 2;
        while (p->block_tiles > 4 && p->items * fl__gemm_div_up(tiles, p->block_tiles) *
                                             fl__gemm_div_up(g->n, p->block_columns) < enough)
            p->block_tiles = (p->block_tiles + 1) / 2;
    }
    p->row_blocks = fl__gemm_div_up(tiles, p->block_tiles);
    p->column_blocks = fl__gemm_div_up(g->n, p->block_columns);
    int64_t tasks = p->items * p->row_blocks * p->column_blocks;
    if (tasks < enough && g->k >= 4096 && !p->swapped)
        p->splits = fl__gemm_min(enough, g->k / 2048);
    p->split_k = fl__gemm_div_up(g->k, p->splits);
    p->splits = fl__gemm_div_up(g->k, p->split_k);
}

/* Element offset of batch item `item` in an operand. */
static int64_t fl__batch_offset(const fl__matmul *p, const int64_t *stride, int64_t item) {
    int64_t at = 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
        at += item % p->shape[d] * stride[d];
        item /= p->shape[d];
    }
    return at;
}

/* The product of one split of one item. */
static fl__gemm fl__matmul_part(const fl__matmul *p, int64_t index) {
    fl__gemm g = p->g;
    const int64_t size = (int64_t)g.ks->size, item = index / p->splits;
    const int64_t k0 = index % p->splits * p->split_k;
    const int64_t *sa = p->swapped ? p->b_stride : p->a_stride;
    const int64_t *sb = p->swapped ? p->a_stride : p->b_stride;
    g.a += (fl__batch_offset(p, sa, item) + k0 * g.csa) * size;
    g.b += (fl__batch_offset(p, sb, item) + k0 * g.rsb) * size;
    g.k = fl__gemm_min(p->split_k, g.k - k0);
    if (g.packed) g.packed = p->packed + (item * p->g.k + k0) * g.m * size;
    g.c = (p->parts ? p->parts : p->out) + index * g.m * g.n * size;
    if (!p->swapped && p->splits == 1 && !p->openblas) g.finish = p->finish;
    return g;
}

static void fl__matmul_pack(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    for (int64_t task = begin; task < end; task++) {
        fl__gemm g = fl__matmul_part(p, task / p->row_blocks);
        int64_t t = task % p->row_blocks * p->block_tiles;
        int64_t t1 = fl__gemm_min(t + p->block_tiles, fl__gemm_tiles(&g));
        fl__gemm_pack(&g, t, t1, (char *)g.packed);
    }
}

static void fl__matmul_task(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    const int64_t size = (int64_t)p->g.ks->size;
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task / p->column_blocks, index = block / p->row_blocks;
        fl__gemm g = fl__matmul_part(p, index);
        int64_t t0 = block % p->row_blocks * p->block_tiles;
        int64_t t1 = fl__gemm_min(t0 + p->block_tiles, fl__gemm_tiles(&g));
        int64_t j0 = task % p->column_blocks * p->block_columns;
        int64_t j1 = fl__gemm_min(j0 + p->block_columns, g.n);
        int64_t i0 = fl__gemm_row(&g, t0), i1 = fl__gemm_row(&g, t1);
#ifdef FL_USE_OPENBLAS
        if (p->openblas) fl__openblas_block(&g, i0, i1, j0, j1);
        else
#endif
            fl__gemm_block(&g, t0, t1, j0, j1);
        if (!p->swapped) continue;
        char *out = p->out + ((index * g.n + j0) * g.m + i0) * size; /* out[j][i] = C^T[i][j] */
        g.ks->pack(out, g.m, i1 - i0, j1 - j0, g.c + (i0 * g.ldc + j0) * size, g.ldc, 1);
        if (p->finish) fl__gemm_finish(p->finish, out, g.m, j0, j1 - j0, i0, i1 - i0);
    }
}

/* Adds the parts of each item in order, over a range of the elements of all items. */
static void fl__matmul_sum(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    const int64_t size = (int64_t)p->g.ks->size, mn = p->g.m * p->g.n;
    while (begin < end) {
        int64_t item = begin / mn, at = begin % mn, n = fl__gemm_min(end - begin, mn - at);
        char *dst = p->out + begin * size;
        const char *src = p->parts + (item * p->splits * mn + at) * size;
        memcpy(dst, src, (size_t)(n * size));
        for (int64_t s = 1; s < p->splits; s++) p->g.ks->add(dst, src + s * mn * size, n);
        begin += n;
    }
}

/* >>few: at most 8 rows, for each of which B would be read: it is read once, in the order of memory */

enum { FL__FEW_ROWS = 8, FL__FEW_DOTS = 1024, FL__FEW_AXPYS = 16 };

/* One block of columns: a chunk of k at a time over all rows. */
static void fl__few_block(const fl__gemm *g, int64_t j, int64_t n) {
    const int64_t size = (int64_t)g->ks->size;
    const bool dots = g->csb != 1;
    fl__segment segment;
    fl__tile tile = {.segments = 1, .segment = &segment, .rsa = g->rsa, .csa = g->csa,
                     .ldb = dots ? g->csb : g->rsb, .ldc = g->ldc};
    for (int64_t k0 = 0; k0 < g->k; k0 += tile.k) {
        tile.k = fl__gemm_min(g->k - k0, dots ? FL__FEW_DOTS : FL__FEW_AXPYS);
        tile.add = k0 > 0;
        segment.b = g->b + (k0 * g->rsb + j * g->csb) * size;
        for (int64_t i = 0, mr; i < g->m; i += mr) {
            mr = g->m - i >= 4 ? 4 : g->m - i >= 2 ? 2 : 1;
            segment.a = g->a + (i * g->rsa + k0 * g->csa) * size;
            tile.c = g->c + (i * g->ldc + j) * size;
            (dots ? g->ks->dots : g->ks->axpys)[mr](&tile, n);
        }
    }
    if (g->finish)
        fl__gemm_finish(g->finish, g->c + j * size, g->ldc, 0, g->m, j, n);
}

static void fl__few_task(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    for (int64_t task = begin; task < end; task++) {
        fl__gemm g = fl__matmul_part(p, task / p->column_blocks);
        int64_t j = task % p->column_blocks * p->block_columns;
        fl__few_block(&g, j, fl__gemm_min(p->block_columns, g.n - j));
    }
}

/* Runs the product if it has few rows, or one column. */
static bool fl__matmul_few(fl__matmul *p) {
    fl__gemm *g = &p->g;
    p->swapped = g->n == 1 && g->m > FL__FEW_ROWS;
    if (p->swapped) fl__gemm_swap(g);
    bool takes = g->m <= FL__FEW_ROWS && (g->csb == 1 || (g->rsb == 1 && g->csa == 1));
    if (!takes || g->m * g->n * g->k < 4096) {
        if (p->swapped) fl__gemm_swap(g);
        return false;
    }
    g->ldc = g->n;
    p->splits = 1;
    p->split_k = g->k;
    p->block_columns = g->csb == 1 ? 1024 : 16;
    p->column_blocks = fl__gemm_div_up(g->n, p->block_columns);
    int64_t work = g->m * g->k * p->block_columns;
    fl_parallel(p->items * p->column_blocks, fl__gemm_div_up(FL__SMALL_PRODUCT, work), fl__few_task,
                p);
    return true;
}

/* Rows of C that no block could finish. */
static void fl__matmul_finish(void *arg, int64_t begin, int64_t end) {
    const fl__finish *f = ((const fl__matmul *)arg)->finish;
    char *c = ((const fl__matmul *)arg)->out + begin * f->n * (int64_t)f->size;
    fl__gemm_finish(f, c, f->n, begin, end - begin, 0, f->n);
}

static void fl__matmul_finish_rows(fl__matmul *p, int64_t rows) {
    if (p->finish)
        fl_parallel(rows, fl__gemm_div_up(1 << 14, p->finish->n), fl__matmul_finish, p);
}

static bool fl__matmul_float(fl__matmul *p) {
    fl__gemm *g = &p->g;
    if (fl__matmul_few(p)) {
        if (p->swapped) fl__matmul_finish_rows(p, g->n);
        return true;
    }
    fl__matmul_plan(p);
#ifdef FL_USE_OPENBLAS
    p->openblas = g->packed && fl__openblas_wants(g);
    if (p->openblas) g->packed = NULL;
#endif
    fl__matmul_cut(p);
    int64_t tasks = p->items * p->splits * p->row_blocks * p->column_blocks;
    int64_t pack = g->packed ? p->items * g->m * g->k : 0;
    int64_t parts = p->swapped || p->splits > 1 ? p->items * p->splits * g->m * g->n : 0;
    fl_buffer *scratch = NULL;
    if (pack + parts > 0) {
        scratch = fl__gemm_scratch(pack + parts, g->ks->size, "matmul");
        char *at = scratch ? fl_buffer_map(scratch) : NULL;
        if (!at) {
            fl_buffer_drop(scratch);
            return false;
        }
        p->packed = at;
        p->parts = parts ? at + pack * (int64_t)g->ks->size : NULL;
        if (pack) fl_parallel(p->items * p->splits * p->row_blocks, 1, fl__matmul_pack, p);
    }
    int64_t work = g->m * g->n * fl__gemm_min(g->k, 1 << 20) / (p->row_blocks * p->column_blocks);
    int64_t grain = work < FL__SMALL_PRODUCT ? fl__gemm_div_up(FL__SMALL_PRODUCT, work + 1) : 1;
    fl_parallel(tasks, grain, fl__matmul_task, p);
    if (p->splits > 1) fl_parallel(p->items * g->m * g->n, 1 << 14, fl__matmul_sum, p);
    if (p->splits > 1 || (p->openblas && !p->swapped)) fl__matmul_finish_rows(p, g->m);
    if (scratch) {
        fl_buffer_unmap(scratch);
        fl_buffer_drop(scratch);
    }
    return true;
}

/* i64, wrapping: rows of all items, each a sum of rows of B. */
static void fl__matmul_i64(void *arg, int64_t begin, int64_t end) {
    const fl__matmul *p = arg;
    const fl__gemm *g = &p->g;
    for (int64_t row = begin; row < end; row++) {
        int64_t item = row / g->m, i = row % g->m;
        const uint64_t *a =
            (const uint64_t *)g->a + fl__batch_offset(p, p->a_stride, item) + i * g->rsa;
        const uint64_t *b = (const uint64_t *)g->b + fl__batch_offset(p, p->b_stride, item);
        uint64_t *c = (uint64_t *)p->out + row * g->n;
        memset(c, 0, (size_t)g->n * sizeof *c);
        for (int64_t q = 0; q < g->k; q++)
            for (int64_t j = 0; j < g->n; j++) c[j] += a[q * g->csa] * b[q * g->rsb + j * g->csb];
    }
}

FL_PRIVATE bool fl__cpu_matmul(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    const fl_tensor *a = c->in[0], *b = c->in[1];
    if (!fl_make(y)) return false;
    int nd = y->ndim;
    int64_t count = fl_numel(y);
    if (count == 0) return true;
    fl__matmul p = {
        .ndim = nd - 2, .shape = y->shape, .a_stride = a->stride, .b_stride = b->stride};
    p.g = (fl__gemm){.m = y->shape[nd - 2], .n = y->shape[nd - 1], .k = a->shape[nd - 1],
                     .a = fl_data(a), .rsa = a->stride[nd - 2], .csa = a->stride[nd - 1],
                     .b = fl_data(b), .rsb = b->stride[nd - 2], .csb = b->stride[nd - 1]};
    p.out = fl_data(y);
    if (p.g.k == 0) {
        memset(p.out, 0, (size_t)count * fl_dtype_size(y->dtype));
        return true;
    }
    p.items = count / (p.g.m * p.g.n);
    if (y->dtype == FL_I64) {
        fl_parallel(p.items * p.g.m, fl__gemm_div_up(1 << 16, p.g.n * p.g.k), fl__matmul_i64, &p);
        return true;
    }
    if (!fl_dtype_is_float(y->dtype)) return fl_fail("fl_matmul: dtype %s", fl_dtype_name(y->dtype));
    p.g.ks = fl__gemm_kernels(y->dtype);
    return fl__matmul_float(&p);
}

FL_PRIVATE bool fl__cpu_linear(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0], *z = c->n_out > 1 ? c->out[1] : NULL;
    const fl_tensor *x = c->in[0], *w = c->in[1], *b = c->n_in > 2 ? c->in[2] : NULL;
    fl_op act = ((const fl_linear_args *)c->args)->act;
    int64_t m = y->shape[0], n = y->shape[1], k = x->shape[1];
    if (b && n > 1 && b->stride[0] != 1) return fl__run_composed(c);
    (void)self;
    if (!fl_make(y) || (z && !fl_make(z))) return false;
    if (m == 0 || n == 0) return true;
    fl__finish f = {.size = fl_dtype_size(y->dtype), .bias = b ? fl_data(b) : NULL, .n = n,
                    .z = z ? fl_data(z) : NULL};
    if (b) f.add = fl__formula_loop(FL_OP_add, y->dtype);
    if (act != FL_OP_COUNT) f.act = fl__formula_loop(act, y->dtype);
    fl__matmul p = {.items = 1, .out = fl_data(y)};
    p.finish = f.add || f.act || f.z ? &f : NULL;
    p.g = (fl__gemm){.ks = fl__gemm_kernels(y->dtype), .m = m, .n = n, .k = k,
                     .a = fl_data(x), .rsa = x->stride[0], .csa = x->stride[1],
                     .b = fl_data(w), .rsb = w->stride[1], .csb = w->stride[0]};
    if (k > 0) return fl__matmul_float(&p);
    memset(p.out, 0, (size_t)(m * n) * f.size);
    fl__matmul_finish_rows(&p, m);
    return true;
}

#endif /* FL_CPU_GEMM_IMPL */
#endif
/* MIT licence: see LICENSE. */
