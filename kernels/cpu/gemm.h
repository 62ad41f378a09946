/* gemm.h - the register tiles of matrix products, for matmul.h, conv.h and attention.h

   A tile is a corner of C, as large as the registers hold, and runs along k. gemm_tile.h is its text
   for one element type and one instruction set; here it is expanded for all of them, and chosen.

   Where fl_matmul_precision allows it, packed f32 operands may be rounded to bf16, two values along
   k in the place of one: vdpbf16ps multiplies both and adds them to an f32 sum. */
#include "../../fl/ops/linear.h"
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
/* What gemm_tile.h makes for an element type and an instruction set. */
typedef void (*fl__tile_fn)(const fl__tile *t);
typedef void (*fl__few_fn)(const fl__tile *t, int64_t n);
typedef struct fl__kernels {
    size_t size;             /* of an element */
    int lanes;               /* elements per register */
    int pairs;               /* values along k in an element of a packed operand: 1, or 2 of bf16 */
    int rows;                /* most rows of a tile two registers wide, if rsa is 1 */
    int short_rows, widest;  /* most rows and most registers across of a tile with any rsa */
    fl__tile_fn tall[15];    /* [rows], two registers wide, rsa 1; of pairs there is nothing else */
    fl__tile_fn tile[3][7];  /* [registers across / 2][rows] */
    fl__few_fn dots[5];      /* [1, 2, 4]: rows x n of C, where csa is 1 and b is [n][k] */
    fl__few_fn axpys[5];     /* the same where b is [k][n] */
    /* dst[p * ldd + i] = src[i * rs + p * cs], i < n, p < k; reads up to a register past a row.
       pack is for operands: of pairs it makes fl__gemm_depth rows. turn is for all else. */
    void (*pack)(void *dst, int64_t ldd, int64_t n, int64_t k, const void *src, int64_t rs,
                 int64_t cs);
    void (*turn)(void *dst, int64_t ldd, int64_t n, int64_t k, const void *src, int64_t rs,
                 int64_t cs);
    void (*add)(void *dst, const void *src, int64_t n); /* dst[i] += src[i] */
} fl__kernels;
/* The kernels for f32 or f64 at the level in force. */
FL_PRIVATE const fl__kernels *fl__gemm_kernels(fl_dtype dtype);
/* The kernels for pairs of bf16, where products of ks may be rounded and that is faster; else
   NULL. */
FL_PRIVATE const fl__kernels *fl__gemm_pairs(const fl__kernels *ks);
/* Elements along k of a packed operand. */
static inline int64_t fl__gemm_depth(const fl__kernels *ks, int64_t k) {
    return (k + ks->pairs - 1) / ks->pairs;
}
/* Runs t on m x n elements of C, m and n within a tile. */
FL_PRIVATE void fl__gemm_tile(const fl__kernels *ks, int m, int n, const fl__tile *t);

#define FL__PANEL_SLACK 128 /* bytes that tiles may read past the end of their operands */
/* A scratch buffer until the op ends, with room for reads past its end. */
FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op);

#endif /* FL_CPU_GEMM_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_IMPL
#define FL_CPU_GEMM_IMPL

#include <string.h>
#if defined(FL__X86_BF16) && !defined(FL_EMULATE_BF16)
#include <immintrin.h>
#endif

/* >>kernels: gemm_tile.h for every element and level */

#define FL__INLINE static inline __attribute__((always_inline))
#define FL__TILE_REGISTERS 28
#define FL__AHEAD_A 16 /* steps along k from which the operands are asked for */
#define FL__AHEAD_B 8
#define FL__SHUFFLE __builtin_shufflevector
/* Every second element of two vectors of 2, 4, 8 or 16, from element `at` on. */
#define FL__EVERY2_2(x, y, at) FL__SHUFFLE(x, y, at, at + 2)
#define FL__EVERY2_4(x, y, at) FL__SHUFFLE(x, y, at, at + 2, at + 4, at + 6)
#define FL__EVERY2_8(x, y, at) \
    FL__SHUFFLE(x, y, at, at + 2, at + 4, at + 6, at + 8, at + 10, at + 12, at + 14)
#define FL__EVERY2_16(x, y, at) \
    FL__SHUFFLE(x, y, at, at + 2, at + 4, at + 6, at + 8, at + 10, at + 12, at + 14, at + 16, \
                at + 18, at + 20, at + 22, at + 24, at + 26, at + 28, at + 30)
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
#ifdef FL__X86_BF16
#define FL__TARGET FL__TARGET_BF16
#define FL__T float
#define FL__PAIRS 2
#define FL__LANES 16
#define FL__ROWS 14
#define FL__FN(name) fl__bf16_##name
#include "gemm_tile.h"
#endif

#ifndef __clang__
#pragma GCC pop_options
#endif
#undef FL__SHUFFLE
#undef FL__EVERY2_2
#undef FL__EVERY2_4
#undef FL__EVERY2_8
#undef FL__EVERY2_16
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

FL_PRIVATE const fl__kernels *fl__gemm_pairs(const fl__kernels *ks) {
#ifdef FL__X86_BF16
    bool rounds = fl_matmul_precision() == FL_BF16 && fl__cpu_has_bf16();
    if (rounds && ks == &fl__f32_avx512_kernels) return &fl__bf16_kernels;
#endif
    (void)ks;
    return NULL;
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

FL_PRIVATE fl_buffer *fl__gemm_scratch(int64_t elements, size_t size, const char *op) {
    size_t bytes;
    if (!fl__mul_size((size_t)elements, size, &bytes) || bytes > SIZE_MAX - FL__PANEL_SLACK) {
        fl_fail("fl_%s: scratch of %lld elements is too large", op, (long long)elements);
        return NULL;
    }
    return fl_buffer_new(bytes + FL__PANEL_SLACK, &(fl_mem_info){.op = op, .lifetime = 1});
}

#endif /* FL_CPU_GEMM_IMPL */
#endif
/* MIT licence: see LICENSE. */
