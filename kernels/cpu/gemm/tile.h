/* kernels/cpu/gemm/tile.h - micro-kernels of matrix products, used by matmul.h, conv/conv.h, attention.h

   A register tile is a block of C as large as the registers hold; its micro-kernel runs along k. The template
   is tile.inc, expanded at every instruction-set level: here for f32, in f64.h for f64. */
#ifndef FL_CPU_GEMM_TILE_H
#define FL_CPU_GEMM_TILE_H
#include "../loops.h"

/* One register tile: C (+)= sum over segments and p < k of a[i * rsa + p * csa] b[p * ldb + j]. Strides and
   leading dimensions are in elements. */
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
    /* What the tile prefetches at each step along k, for the next panel: `prefetch` and prefetch_other bytes
       further; then both advance by prefetch_step, and after each prefetch_run steps by prefetch_jump more.
       NULL: nothing. For dots only whether it is NULL matters: set if B is in memory, not in a cache. */
    const char *prefetch;
    int64_t prefetch_step, prefetch_other, prefetch_run, prefetch_jump;
} fl__tile;
/* The micro-kernels that tile.inc and skinny.inc define for an element type and a level. */
typedef void (*fl__tile_fn)(const fl__tile *t);
typedef void (*fl__skinny_fn)(const fl__tile *t, int64_t n);
typedef struct fl__kernels {
    size_t size;             /* of an element */
    int lanes;               /* elements per register */
    int rows;                /* most rows of a tile two registers wide, if rsa is 1 */
    int low[5], widest;      /* most rows of a tile with any rsa, by width in registers; the widest */
    fl__tile_fn tall[15];    /* [rows], two registers wide, rsa 1 */
    fl__tile_fn tile[5][9];  /* [width in registers][rows] */
    fl__skinny_fn dots[5];      /* [1, 2, 4 rows]: rows x n of C, where csa is 1 and b is [n][k] */
    fl__skinny_fn axpys[5];     /* the same, where b is [k][n] */
    /* dst[p * ldd + i] = src[i * rs + p * cs], i < n, p < k; reads up to a register past a row */
    void (*pack)(void *dst, int64_t ldd, int64_t n, int64_t k, const void *src, int64_t rs,
                 int64_t cs);
    void (*add)(void *dst, const void *src, int64_t n); /* dst[i] += src[i] */
} fl__kernels;
/* The kernels for f32 or f64 at the current level. */
FL_PRIVATE const fl__kernels *fl__gemm_kernels(fl_dtype dtype);
FL_PRIVATE const fl__kernels *fl__gemm_kernels_f64(void);
enum { FL__TILE_REGISTERS = 28 }; /* most accumulator registers of a tile */
/* Runs t on m x n elements of C; m and n must fit in one tile. */
FL_PRIVATE void fl__gemm_tile(const fl__kernels *ks, int m, int n, const fl__tile *t);
/* Calls ks->pack; if `widen` is not NULL, src is f16 or bf16 and is converted to f32 on the way. */
FL_PRIVATE void fl__gemm_pack(const fl__kernels *ks, fl__loop widen, char *dst, int64_t ldd, int64_t n,
                              int64_t k, const char *src, int64_t rs, int64_t cs);

#define FL__PANEL_SLACK 128 /* bytes that tiles may read past the end of their operands */
/* A scratch buffer for one op, with FL__PANEL_SLACK bytes after its end. */
FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op);

#endif /* FL_CPU_GEMM_TILE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_TILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_TILE_IMPL
#define FL_CPU_GEMM_TILE_IMPL
#include <string.h>

FL__TILES_BEGIN
#define FL__LEVEL_TEXT "gemm/tile.inc"
#define FL__UNIT gemm
#include "../levels.inc"
FL__TILES_END

FL_PRIVATE const fl__kernels *fl__gemm_kernels(fl_dtype dtype) {
    static const fl__kernels *const f32[] = {FL__AT_LEVELS(&fl__gemm_kernels_f32)};
    return dtype == FL_F64 ? fl__gemm_kernels_f64() : f32[fl__level()];
}

/* Copies or adds the m x n corner of a computed tile to C. */
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
    int across = 1;
    while (across * ks->lanes < n) across++;
    const bool tall = m > ks->low[across] || (across == 2 && t->rsa == 1 && ks->tall[m]);
    if (tall) across = 2;
    fl__tile_fn run = tall ? ks->tall[m] : ks->tile[across][m];
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

/* Dense rows of dst are converted to f32 where they are; others block by block, in a buffer of 16 KiB that
   stays in the L1 cache. */
FL_PRIVATE void fl__gemm_pack(const fl__kernels *ks, fl__loop widen, char *dst, int64_t ldd, int64_t n,
                              int64_t k, const char *src, int64_t rs, int64_t cs) {
    enum { ROWS = 32, DEEP = 128 };
    _Alignas(64) float part[ROWS * DEEP + 16];
    const int64_t size = (int64_t)sizeof *part, raw = (int64_t)sizeof(uint16_t);
    if (!widen) {
        ks->pack(dst, ldd, n, k, src, rs, cs);
        return;
    }
    const bool whole = rs == 1 && n % 16 == 0;
    for (int64_t p = 0; p < k && whole; p++)
        widen((void *[]){dst + p * ldd * size, (char *)(uintptr_t)src + p * cs * raw}, n, NULL);
    for (int64_t p = 0; p < k && !whole; p += DEEP)
        for (int64_t i = 0; i < n; i += ROWS) {
            const int64_t deep = fl__min(DEEP, k - p), rows = fl__min(ROWS, n - i);
            for (int64_t q = 0; q < deep && rs == 1; q++) { /* whole vectors, except at the end */
                char *from = (char *)(uintptr_t)src + (i + (p + q) * cs) * raw;
                widen((void *[]){part + q * ROWS, from}, p + q + 1 < k ? (rows + 15) / 16 * 16 : rows, NULL);
            }
            if (rs == 1) ks->pack(dst + (p * ldd + i) * size, ldd, rows, deep, part, 1, ROWS);
            if (rs == 1) continue;
            for (int64_t r = 0; r < rows; r++) {
                char *from = (char *)(uintptr_t)src + ((i + r) * rs + p * cs) * raw;
                _Alignas(64) uint16_t line[DEEP];
                if (cs != 1) fl__copy_row((char *)line, raw, from, cs * raw, deep, (int)raw);
                widen((void *[]){part + r * DEEP, cs == 1 ? (void *)from : line}, deep, NULL);
            }
            ks->pack(dst + (p * ldd + i) * size, ldd, rows, deep, part, DEEP, 1);
        }
}

FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op) {
    size_t bytes;
    if (!fl__mul_size((size_t)elements, size, &bytes) || bytes > SIZE_MAX - FL__PANEL_SLACK) {
        fl_fail("fl_%s: a workspace of %lld elements is too large", op, (long long)elements);
        return NULL;
    }
    const fl_mem_info info = {.op = op, .step = fl_mem_step_now(), .lifetime = 1};
    return fl_buffer_new(bytes + FL__PANEL_SLACK, &info);
}

#endif /* FL_CPU_GEMM_TILE_IMPL */
#endif
/* MIT licence: see LICENSE. */
