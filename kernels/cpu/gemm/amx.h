/* kernels/cpu/gemm/amx.h - products of matrices rounded to bf16, with AMX tiles or vdpbf16ps

   C[m][n] = A B, accumulated in f32. An operand is described as lines of contiguous values, f32 or bf16, that
   run either along k or across it: rows of a matrix, or the channels of a pixel that a convolution's tap
   reads, so that a convolution is a product whose im2col matrix is never stored. Both operands are rounded
   once, into panels of 32 rows of A or 32 columns of B. For each 32 of k a panel has two tiles of 1 KiB: of A
   [16 rows][16 pairs along k], for vdpbf16ps [16 pairs][16 rows]; of B [16 pairs][16 columns].

   The smaller operand is packed by all threads for a pass along k. Then a task packs a group of panels of the
   other one, which stays in its L2 cache, and iterates over the smaller operand: one panel of that, for as
   much of k as the L1 cache holds, is multiplied by the whole group before the next one.

   tdpbf16ps sums the products of even k and of odd k in two chains of fused multiply-adds from 0, adds the
   chains, and adds that to C, separately for every 32 of k. So neither blocking along k nor the number of
   threads changes a bit. vdpbf16ps adds the product of the odd k of a pair to C, then that of the even k.
   Denormals are treated as 0 in inputs and results. fl__amx_emulated and fl__vdpbf16_emulated compute the
   same bits in plain C. */
#ifndef FL_CPU_GEMM_AMX_H
#define FL_CPU_GEMM_AMX_H
#include "product.h"

/* The kernels for products of rounded operands: of the processor, or in plain C. */
typedef struct fl__amx_kernels fl__amx_kernels;
FL_PRIVATE const fl__amx_kernels *fl__amx_emulated(void);
/* The processor's; NULL if it has none, the level is capped below it, or the system permits no tiles. */
FL_PRIVATE const fl__amx_kernels *fl__amx_real(void);
/* The same for vdpbf16ps. */
FL_PRIVATE const fl__amx_kernels *fl__vdpbf16_emulated(void);
FL_PRIVATE const fl__amx_kernels *fl__vdpbf16_real(void);
/* Multiply-adds per second on operands in the L1 cache. */
FL_PRIVATE double fl__amx_rate(const fl__amx_kernels *ks);

enum { FL__AMX_ZEROS = 1 << 14 }; /* bytes of the longest line of zeros */
FL_PRIVATE const char *fl__amx_zeros(void); /* FL__AMX_ZEROS zero bytes */

/* An operand of `segments` times `inner` values along the contiguous dimension, k or across it, and `lines`
   along the other one. */
typedef struct fl__amx_operand fl__amx_operand;
struct fl__amx_operand {
    const char *data;
    int64_t size; /* bytes of a value: 4 f32, 2 bf16 */
    bool along;   /* lines run along k */
    int64_t lines, inner, segments;
    int64_t step; /* bytes from line to line, if find is NULL */
    /* sets at[i], i < n <= 32, to line first + i of a segment; fl__amx_zeros for a line of zeros */
    void (*find)(const fl__amx_operand *x, int64_t segment, int64_t first, int64_t n, const char **at);
    const void *arg;
};

/* One product; or the batch described by `of`. */
typedef struct fl__amx_product {
    const fl__amx_kernels *ks;
    fl__amx_operand a, b; /* A: lines along k are its rows; B: lines across k are its rows */
    fl_dtype dtype;       /* of C: FL_F32, or FL_BF16, to which sums are rounded once */
    char *c;              /* dense rows of n */
    int64_t m, n, k;      /* k includes the zeros that pad each segment */
    const fl__product *of; /* NULL: one item */
    const fl__epilogue *epilogue; /* its bias has C's dtype */
} fl__amx_product;
/* Runs the product. Returns false after fl_fail. */
FL_PRIVATE bool fl__amx_run(const fl__amx_product *product, const char *op);
/* The parts of a product, for kernels that keep packed operands. fl__amx_matrix: an operand of `outer` x k
   values, with strides in elements, one of which is 1. fl__amx_bytes: size of all its panels.
   fl__amx_pack_all: packs it. fl__amx_multiply: C [m][n], rows ldc apart, (+)= A B. */
FL_PRIVATE fl__amx_operand fl__amx_matrix(const char *data, int64_t size, int64_t outer, int64_t k,
                                          int64_t outer_step, int64_t k_step);
static inline int64_t fl__amx_bytes(int64_t outer, int64_t k) {
    return (outer + 31) / 32 * ((k + 31) / 32) * 2048;
}
FL_PRIVATE void fl__amx_pack_all(const fl__amx_kernels *ks, const fl__amx_operand *x, bool of_b, char *to);
FL_PRIVATE void fl__amx_multiply(const fl__amx_kernels *ks, const char *a, const char *b, int64_t m,
                                 int64_t n, int64_t k, float *c, int64_t ldc, bool add);
/* Whether p runs here: rounding is allowed, and it is faster. */
FL_PRIVATE bool fl__amx_takes(const fl__product *p);
FL_PRIVATE bool fl__amx_matmul(const fl__product *p);

#endif /* FL_CPU_GEMM_AMX_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_AMX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_AMX_IMPL
#define FL_CPU_GEMM_AMX_IMPL
#include "../bf16.h"
#include "../scratch.h"
#include <math.h>
#include <string.h>
#ifdef FL__TARGET_vdpbf16
#include <immintrin.h>
#endif
#ifdef FL__TARGET_amx
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum {
    FL__AMX_TILE = 1024,           /* bytes */
    FL__AMX_STEP = 32,             /* of k */
    FL__AMX_L1_STEPS = 16,         /* steps for which the tiles of two panels stay in the L1 cache */
    FL__AMX_PASS = 32,             /* steps of a pass along k */
    FL__AMX_GROUP = 14,            /* most panels of a group */
    FL__AMX_TASKS = 6,             /* fewest tasks to aim at */
    FL__AMX_STREAM_ROWS = 32       /* rows of A for which f32 streams B */
};

FL_PRIVATE const char *fl__amx_zeros(void) {
    _Alignas(64) static const char zeros[FL__AMX_ZEROS];
    return zeros;
}

/* Up to 32 x 32 of C, in tiles of 16 x 16: to = from (or 0) + a b. Values after `rows` rows are undefined. */
typedef struct fl__amx_block {
    const char *a, *b;
    int64_t steps, rows;
    const float *from;
    int64_t ldf;
    float *to;
    int64_t ldt;
} fl__amx_block;

struct fl__amx_kernels {
    void (*begin)(void), (*end)(void); /* called before and after the blocks of a task */
    /* Packs one tile of 16 outer values and 32 of k: 16 lines along k, `left` values from `at` on, or 32
       lines across. [f32, bf16][of A, of B] */
    void (*along[2][2])(char *to, const char *const *line, int64_t at, int64_t left);
    void (*across[2][2])(char *to, const char *const *line, int64_t at, int64_t left);
    /* [A, B is streamed from the L2 cache][more than 16 rows][more than 16 columns] */
    void (*block[2][2][2])(const fl__amx_block *x);
};

/* >>plain C */

static float fl__amx_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static float fl__amx_quiet(float x) {
    return flm__float(flm__bits32(x) | 0x400000u);
}

/* a * b + c, rounded once to nearest even. Denormal inputs and results are 0; a result is tiny if it is so
   after rounding to 24 bits with an unbounded exponent. The first NaN is returned. */
static float fl__amx_fused(float a, float b, float c) {
    a = fl__amx_flush(a), b = fl__amx_flush(b), c = fl__amx_flush(c);
    if (isnan(a) || isnan(b) || isnan(c)) return fl__amx_quiet(isnan(a) ? a : isnan(b) ? b : c);
    const float r = fmaf(a, b, c);
    if (isnan(r)) return flm__float(0xffc00000u);
    const double sign = r < 0 ? -1 : 1; /* was it rounded up to 2^-126 from below? */
    if (fabsf(r) == 0x1p-126f && sign * a * (double)b < 0x1p-126 - 0x1p-151 - sign * c)
        return copysignf(0, r);
    return fl__amx_flush(r);
}

/* One tdpbf16ps. */
static void fl__amx_plain_tile(float c[16][16], const uint16_t *a, const uint16_t *b) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum[2] = {0, 0};
            for (int p = 0; p < 32; p++)
                sum[p & 1] = fl__amx_fused(flm_bf16_to_f32(a[i * 32 + p]),
                                           flm_bf16_to_f32(b[p / 2 * 32 + 2 * j + (p & 1)]), sum[p & 1]);
            c[i][j] = fl__amx_fused(1, c[i][j], fl__amx_fused(1, sum[0], sum[1]));
        }
}

/* 32 of k by vdpbf16ps, for which A is packed as B is. */
static void fl__vdpbf16_plain_tile(float c[16][16], const uint16_t *a, const uint16_t *b) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            for (int p = 0; p < 32; p++) {
                const int at = p / 2 * 32 + 1 - p % 2; /* the second of a pair comes first */
                const float x = flm_bf16_to_f32(a[at + 2 * i]), y = flm_bf16_to_f32(b[at + 2 * j]);
                c[i][j] = fl__amx_fused(x, y, c[i][j]);
            }
}

typedef void (*fl__amx_tile_fn)(float c[16][16], const uint16_t *a, const uint16_t *b);

static void fl__amx_plain_block(const fl__amx_block *x, int rows, int columns, fl__amx_tile_fn tile) {
    for (int h = 0; h < rows; h++)
        for (int w = 0; w < columns; w++) {
            float t[16][16] = {{0}};
            for (int i = 0; i < 16 && x->from; i++)
                memcpy(t[i], x->from + (h * 16 + i) * x->ldf + w * 16, 64);
            for (int64_t s = 0; s < x->steps; s++)
                tile(t, (const void *)(x->a + (2 * s + h) * FL__AMX_TILE),
                     (const void *)(x->b + (2 * s + w) * FL__AMX_TILE));
            for (int i = 0; i < 16; i++) memcpy(x->to + (h * 16 + i) * x->ldt + w * 16, t[i], 64);
        }
}

/* Rounds as vcvtne2ps2bf16 does, for which denormals are 0. */
static uint16_t fl__amx_plain_round(const char *value, bool half) {
    uint16_t h;
    float f;
    memcpy(half ? (void *)&h : &f, value, half ? 2 : 4);
    return half ? h : flm_f32_to_bf16(fl__amx_flush(f));
}

static void fl__amx_plain_pack(char *to, const char *const *line, int64_t at, int64_t left, bool along,
                               bool half, bool of_b) {
    const int64_t size = half ? 2 : 4;
    uint16_t *tile = (uint16_t *)(void *)to;
    for (int64_t p = 0; p < 32; p++)
        for (int64_t i = 0; i < 16; i++) {
            const int64_t near = along ? p : i;
            const char *from = line[along ? i : p];
            tile[of_b ? p / 2 * 32 + 2 * i + p % 2 : i * 32 + p] =
                from && near < left ? fl__amx_plain_round(from + (at + near) * size, half) : 0;
        }
}

static void fl__amx_nothing(void) {}
#define FL__AMX_PLAIN(name, along, half, of_b) \
    static void fl__amx_plain_##name(char *to, const char *const *line, int64_t at, int64_t left) { \
        fl__amx_plain_pack(to, line, at, left, along, half, of_b); \
    }
FL__AMX_PLAIN(along_a, true, false, false)
FL__AMX_PLAIN(along_b, true, false, true)
FL__AMX_PLAIN(along_half_a, true, true, false)
FL__AMX_PLAIN(along_half_b, true, true, true)
FL__AMX_PLAIN(across_a, false, false, false)
FL__AMX_PLAIN(across_b, false, false, true)
FL__AMX_PLAIN(across_half_a, false, true, false)
FL__AMX_PLAIN(across_half_b, false, true, true)
#define FL__AMX_PLAIN_BLOCK(way, rows, columns) \
    static void fl__##way##_plain_##rows##x##columns(const fl__amx_block *x) { \
        fl__amx_plain_block(x, rows, columns, fl__##way##_plain_tile); \
    }
#define FL__AMX_PLAIN_BLOCKS(way) \
    FL__AMX_PLAIN_BLOCK(way, 1, 1) FL__AMX_PLAIN_BLOCK(way, 1, 2) \
    FL__AMX_PLAIN_BLOCK(way, 2, 1) FL__AMX_PLAIN_BLOCK(way, 2, 2)
FL__AMX_PLAIN_BLOCKS(amx) FL__AMX_PLAIN_BLOCKS(vdpbf16)

/* a: the suffix of the function that packs A. */
#define FL__AMX_PACKS(kind, way, a) \
    .way = {{kind##_##way##_##a, kind##_##way##_b}, {kind##_##way##_half_##a, kind##_##way##_half_b}}
#define FL__AMX_BLOCKS(stem) {{stem##1x1, stem##1x2}, {stem##2x1, stem##2x2}}
FL_PRIVATE const fl__amx_kernels *fl__amx_emulated(void) {
    static const fl__amx_kernels ks = {
        .begin = fl__amx_nothing, .end = fl__amx_nothing,
        FL__AMX_PACKS(fl__amx_plain, along, a), FL__AMX_PACKS(fl__amx_plain, across, a),
        .block = {FL__AMX_BLOCKS(fl__amx_plain_), FL__AMX_BLOCKS(fl__amx_plain_)}};
    return &ks;
}

FL_PRIVATE const fl__amx_kernels *fl__vdpbf16_emulated(void) {
    static const fl__amx_kernels ks = {
        .begin = fl__amx_nothing, .end = fl__amx_nothing,
        FL__AMX_PACKS(fl__amx_plain, along, b), FL__AMX_PACKS(fl__amx_plain, across, b),
        .block = {FL__AMX_BLOCKS(fl__vdpbf16_plain_), FL__AMX_BLOCKS(fl__vdpbf16_plain_)}};
    return &ks;
}

/* >>vdpbf16ps, and packing for both instructions */

#ifdef FL__TARGET_vdpbf16
#define FL__AMX_INLINE static inline __attribute__((always_inline)) FL__TARGET_vdpbf16

FL__AMX_INLINE uint32_t fl__amx_mask(int64_t n) { return n >= 32 ? ~0u : n > 0 ? (1u << n) - 1 : 0; }

/* Sixteen pairs of adjacent values of a line. */
FL__AMX_INLINE __m512i fl__amx_pairs(const char *line, int64_t at, uint32_t keep, bool half) {
    if (!line) return _mm512_setzero_si512();
    if (half) return _mm512_maskz_loadu_epi16(keep, line + 2 * at);
    const float *s = (const float *)(const void *)line + at;
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(keep >> 16), s + 16),
                                        _mm512_maskz_loadu_ps((__mmask16)keep, s));
}

/* Sixteen values of a line, as 32-bit words. */
FL__AMX_INLINE __m512i fl__amx_halves(const char *line, int64_t at, __mmask16 keep) {
    return line ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(keep, line + 2 * at))
                : _mm512_setzero_si512();
}
FL__AMX_INLINE __m512 fl__amx_floats(const char *line, int64_t at, __mmask16 keep) {
    return line ? _mm512_maskz_loadu_ps(keep, line + 4 * at) : _mm512_setzero_ps();
}

/* Sixteen pairs, each of a value of either line. */
FL__AMX_INLINE __m512i fl__amx_zip(const char *first, const char *second, int64_t at, __mmask16 keep,
                                   bool half) {
    if (half)
        return _mm512_or_si512(fl__amx_halves(first, at, keep),
                               _mm512_slli_epi32(fl__amx_halves(second, at, keep), 16));
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                           23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(fl__amx_floats(second, at, keep),
                                                                        fl__amx_floats(first, at, keep)));
}

/* Transposes 16 x 16 words by swapping off-diagonal blocks of doubling size. */
FL__AMX_INLINE void fl__amx_transpose(__m512i *v) {
    typedef int words __attribute__((vector_size(64)));
    const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    FL__UNROLL for (int h = 1; h < 16; h *= 2)
        FL__UNROLL for (int i = 0; i < 16; i++) {
            if (i & h) continue;
            const words high = (lane & h) != 0;
            const words lo = lane + (high & (16 - h)), hi = lane + (high & 16) + (~high & h);
            const __m512i x = v[i], y = v[i + h];
            v[i] = _mm512_permutex2var_epi32(x, (__m512i)lo, y);
            v[i + h] = _mm512_permutex2var_epi32(x, (__m512i)hi, y);
        }
}

FL__AMX_INLINE void fl__amx_pack_tile(char *to, const char *const *line, int64_t at, int64_t left, bool along,
                                      bool half, bool of_b) {
    const uint32_t keep = fl__amx_mask(left);
    __m512i v[16];
    FL__UNROLL for (int i = 0; i < 16; i++)
        v[i] = along ? fl__amx_pairs(line[i], at, keep, half)
                     : fl__amx_zip(line[2 * i], line[2 * i + 1], at, (__mmask16)keep, half);
    if (along == of_b) fl__amx_transpose(v);
    FL__UNROLL for (int i = 0; i < 16; i++) _mm512_store_si512(to + 64 * i, v[i]);
}

#define FL__AMX_PACK(name, along, half, of_b) \
    FL__TARGET_vdpbf16 static void fl__amx_##name(char *to, const char *const *line, int64_t at, \
                                                    int64_t left) { \
        fl__amx_pack_tile(to, line, at, left, along, half, of_b); \
    }
FL__AMX_PACK(along_a, true, false, false)
FL__AMX_PACK(along_b, true, false, true)
FL__AMX_PACK(along_half_a, true, true, false)
FL__AMX_PACK(along_half_b, true, true, true)
FL__AMX_PACK(across_a, false, false, false)
FL__AMX_PACK(across_b, false, false, true)
FL__AMX_PACK(across_half_a, false, true, false)
FL__AMX_PACK(across_half_b, false, true, true)

/* Eight rows of a block from row `at` on, `across` registers wide, accumulated in registers. */
FL__AMX_INLINE void fl__vdpbf16_rows(const fl__amx_block *x, int64_t at, const int across) {
    __m512 sum[16];
    const char *a = x->a + at / 16 * FL__AMX_TILE + at % 16 * 4, *b = x->b;
    FL__UNROLL for (int i = 0; i < 8 * across; i++)
        sum[i] = x->from ? _mm512_loadu_ps(x->from + (at + i / across) * x->ldf + i % across * 16)
                         : _mm512_setzero_ps();
    for (int64_t s = x->steps; s; s--, a += FL__AMX_TILE, b += FL__AMX_TILE)
        for (int p = 0; p < 16; p++, a += 64, b += 64) {
            __m512bh row[2];
            FL__UNROLL for (int j = 0; j < across; j++)
                row[j] = (__m512bh)_mm512_load_si512(b + j * FL__AMX_TILE);
            FL__UNROLL for (int i = 0; i < 8; i++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const int *)(const void *)(a + 4 * i));
                FL__UNROLL for (int j = 0; j < across; j++)
                    sum[i * across + j] = _mm512_dpbf16_ps(sum[i * across + j], pair, row[j]);
            }
        }
    FL__UNROLL for (int i = 0; i < 8 * across; i++)
        _mm512_storeu_ps(x->to + (at + i / across) * x->ldt + i % across * 16, sum[i]);
}

#define FL__VDPBF16_BLOCK(across) \
    FL__TARGET_vdpbf16 static void fl__vdpbf16_block##across(const fl__amx_block *x) { \
        for (int64_t at = 0; at < x->rows; at += 8) fl__vdpbf16_rows(x, at, across); \
    }
FL__VDPBF16_BLOCK(1) FL__VDPBF16_BLOCK(2)
#define FL__VDPBF16_BLOCKS \
    {{fl__vdpbf16_block1, fl__vdpbf16_block2}, {fl__vdpbf16_block1, fl__vdpbf16_block2}}

FL_PRIVATE const fl__amx_kernels *fl__vdpbf16_real(void) {
    static const fl__amx_kernels ks = {
        .begin = fl__amx_nothing, .end = fl__amx_nothing,
        FL__AMX_PACKS(fl__amx, along, b), FL__AMX_PACKS(fl__amx, across, b),
        .block = {FL__VDPBF16_BLOCKS, FL__VDPBF16_BLOCKS}};
    return fl__level_has_bf16() ? &ks : NULL;
}
#else
FL_PRIVATE const fl__amx_kernels *fl__vdpbf16_real(void) { return NULL; }
#endif

/* >>tiles */

#ifdef FL__TARGET_amx

/* Configures eight tiles of 16 x 64 bytes for this thread. The configuration is static: gcc 12's intrinsic
   declares that it reads only the first 8 bytes, so that stores to a local variable would be dropped. */
FL__TARGET_amx static void fl__amx_on(void) {
    static const struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } c = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&c);
}

FL__TARGET_amx static void fl__amx_off(void) { _tile_release(); }

/* Tiles 0 to 3 are C, 4 and 5 A, 6 and 7 B. The operand streamed from the L2 cache is loaded with a hint that
   leaves the L1 cache to the other one. gcc's tile loads declare no memory operand, hence the asm
   barriers. */
#define FL__AMX_BLOCK(name, rows, columns, LOAD_A, LOAD_B) \
    FL__TARGET_amx static void name(const fl__amx_block *x) { \
        const char *a = x->a, *b = x->b; \
        __asm__ volatile("" ::: "memory"); \
        _tile_zero(0); \
        if (columns > 1) _tile_zero(1); \
        if (rows > 1) _tile_zero(2); \
        if (rows + columns > 3) _tile_zero(3); \
        if (x->from) { \
            const int64_t ldf = 4 * x->ldf; \
            _tile_loadd(0, x->from, ldf); \
            if (columns > 1) _tile_loadd(1, x->from + 16, ldf); \
            if (rows > 1) _tile_loadd(2, x->from + 16 * x->ldf, ldf); \
            if (rows + columns > 3) _tile_loadd(3, x->from + 16 * x->ldf + 16, ldf); \
        } \
        for (int64_t s = x->steps; s; s--, a += 2 * FL__AMX_TILE, b += 2 * FL__AMX_TILE) { \
            LOAD_B(6, b, 64); \
            LOAD_A(4, a, 64); \
            _tile_dpbf16ps(0, 4, 6); \
            if (columns > 1) LOAD_B(7, b + FL__AMX_TILE, 64); \
            if (columns > 1) _tile_dpbf16ps(1, 4, 7); \
            if (rows > 1) LOAD_A(5, a + FL__AMX_TILE, 64); \
            if (rows > 1) _tile_dpbf16ps(2, 5, 6); \
            if (rows + columns > 3) _tile_dpbf16ps(3, 5, 7); \
        } \
        const int64_t ldt = 4 * x->ldt; \
        _tile_stored(0, x->to, ldt); \
        if (columns > 1) _tile_stored(1, x->to + 16, ldt); \
        if (rows > 1) _tile_stored(2, x->to + 16 * x->ldt, ldt); \
        if (rows + columns > 3) _tile_stored(3, x->to + 16 * x->ldt + 16, ldt); \
        __asm__ volatile("" ::: "memory"); \
    }
#define FL__AMX_ALL_BLOCKS(stem, LOAD_A, LOAD_B) \
    FL__AMX_BLOCK(stem##1x1, 1, 1, LOAD_A, LOAD_B) FL__AMX_BLOCK(stem##1x2, 1, 2, LOAD_A, LOAD_B) \
    FL__AMX_BLOCK(stem##2x1, 2, 1, LOAD_A, LOAD_B) FL__AMX_BLOCK(stem##2x2, 2, 2, LOAD_A, LOAD_B)
FL__AMX_ALL_BLOCKS(fl__amx_a_, _tile_stream_loadd, _tile_loadd)
FL__AMX_ALL_BLOCKS(fl__amx_b_, _tile_loadd, _tile_stream_loadd)

static const fl__amx_kernels fl__amx_tiles = {
    .begin = fl__amx_on, .end = fl__amx_off,
    FL__AMX_PACKS(fl__amx, along, a), FL__AMX_PACKS(fl__amx, across, a),
    .block = {FL__AMX_BLOCKS(fl__amx_a_), FL__AMX_BLOCKS(fl__amx_b_)}};

/* Linux saves the 8 KiB of tile state only for processes that requested it, which is granted once per
   process. */
FL_PRIVATE const fl__amx_kernels *fl__amx_real(void) {
    enum { UNKNOWN, GRANTED, REFUSED, REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    static int permission;
    if (!fl__level_has_amx()) return NULL;
    int now = __atomic_load_n(&permission, __ATOMIC_RELAXED);
    if (now == UNKNOWN) {
        now = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? GRANTED : REFUSED;
        __atomic_store_n(&permission, now, __ATOMIC_RELAXED);
    }
    return now == GRANTED ? &fl__amx_tiles : NULL;
}
#else
FL_PRIVATE const fl__amx_kernels *fl__amx_real(void) { return NULL; }
#endif

/* The best of several runs, so that interrupts do not count. */
FL_PRIVATE double fl__amx_rate(const fl__amx_kernels *ks) {
    enum { ROUNDS = 40, STEPS = FL__AMX_ZEROS / 2 / FL__AMX_TILE };
    _Alignas(64) float c[32 * 32];
    const fl__amx_block x = {fl__amx_zeros(), fl__amx_zeros(), STEPS, 32, NULL, 0, c, 32};
    double least = 1;
    ks->begin();
    for (int i = 0; i < ROUNDS; i++) {
        const double start = fl__bf16_now();
        for (int j = 0; j < 8; j++) ks->block[0][1][1](&x);
        least = fmin(least, fl__bf16_now() - start);
    }
    ks->end();
    return 8.0 * 32 * 32 * 32 * STEPS / least;
}

/* >>panels */

static int64_t fl__amx_up(int64_t n) { return fl__ceil_div(n, 32); }

/* The number of panels of an operand. */
static int64_t fl__amx_panels(const fl__amx_operand *x) {
    return x->along ? fl__amx_up(x->lines) : x->segments * fl__amx_up(x->inner);
}

/* Returns the first row or column of C that belongs to a panel; *n: how many. */
static int64_t fl__amx_range(const fl__amx_operand *x, int64_t panel, int64_t *n) {
    const int64_t each = x->along ? 1 : fl__amx_up(x->inner), at = x->along ? panel * 32 : panel % each * 32;
    *n = fl__min(32, (x->along ? x->lines : x->inner) - at);
    return x->along ? at : panel / each * x->inner + at;
}

/* Lines first .. first + 32 of a segment; NULL, which packs as zeros, for those past the last. */
static void fl__amx_lines(const fl__amx_operand *x, int64_t segment, int64_t first, const char **line) {
    const int64_t n = fl__min(32, x->lines - first);
    if (x->find) x->find(x, segment, first, n, line);
    else
        for (int64_t i = 0; i < n; i++) line[i] = x->data + (first + i) * x->step;
    for (int64_t i = fl__max(n, 0); i < 32; i++) line[i] = NULL;
}

/* Packs steps s0 .. s1 of panels p0 .. p1, panel after panel, s1 - s0 steps each. */
static void fl__amx_pack(const fl__amx_kernels *ks, const fl__amx_operand *x, bool of_b, int64_t p0,
                         int64_t p1, int64_t s0, int64_t s1, char *to) {
    const int64_t each = fl__amx_up(x->inner), panel = (s1 - s0) * 2 * FL__AMX_TILE;
    const bool half = x->size == 2;
    const char *line[32];
    if (x->along) {
        for (int64_t p = p0; p < p1; p++)
            for (int64_t s = s0; s < s1; s++, to += 2 * FL__AMX_TILE) {
                const int64_t at = s % each * 32;
                if (at == 0 || s == s0) fl__amx_lines(x, s / each, p * 32, line);
                ks->along[half][of_b](to, line, at, x->inner - at);
                ks->along[half][of_b](to + FL__AMX_TILE, line + 16, at, x->inner - at);
            }
        return;
    }
    for (int64_t s = s0; s < s1; s++, to += 2 * FL__AMX_TILE)
        for (int64_t p = p0; p < p1; p++) {
            const int64_t at = p % each * 32;
            char *tile = to + (p - p0) * panel;
            if (at == 0 || p == p0) fl__amx_lines(x, p / each, s * 32, line);
            ks->across[half][of_b](tile, line, at, x->inner - at);
            ks->across[half][of_b](tile + FL__AMX_TILE, line, at + 16, x->inner - at - 16);
        }
}

FL_PRIVATE void fl__amx_pack_all(const fl__amx_kernels *ks, const fl__amx_operand *x, bool of_b, char *to) {
    const int64_t steps = x->along ? x->segments * fl__amx_up(x->inner) : fl__amx_up(x->lines);
    fl__amx_pack(ks, x, of_b, 0, fl__amx_panels(x), 0, steps, to);
}

/* Computes one block; if its rows and columns of C are not whole tiles, through acc [32][32]. */
static void fl__amx_edge(const fl__amx_kernels *ks, fl__amx_block *x, bool group_of_b, float *c, int64_t ldc,
                         int64_t rows, int64_t columns, float *acc, bool reads, bool writes) {
    const bool whole = rows % 16 == 0 && columns % 16 == 0;
    x->rows = rows;
    if (reads && whole) x->from = c, x->ldf = ldc;
    else if (reads)
        for (int64_t i = 0; i < rows; i++) memcpy(acc + i * 32, c + i * ldc, (size_t)columns * sizeof *c);
    if (writes && whole) x->to = c, x->ldt = ldc;
    ks->block[group_of_b][rows > 16][columns > 16](x);
    if (!writes || whole) return;
    for (int64_t i = 0; i < rows; i++) memcpy(c + i * ldc, acc + i * 32, (size_t)columns * sizeof *c);
}

FL_PRIVATE void fl__amx_multiply(const fl__amx_kernels *ks, const char *a, const char *b, int64_t m,
                                 int64_t n, int64_t k, float *c, int64_t ldc, bool add) {
    _Alignas(64) float acc[32 * 32];
    const int64_t steps = fl__amx_up(k), panel = steps * 2 * FL__AMX_TILE;
    ks->begin();
    for (int64_t j = 0; j < n; j += 32, b += panel)
        for (int64_t i = 0; i < m; i += 32) {
            fl__amx_block x = {a + i / 32 * panel, b, steps, 0, add ? acc : NULL, 32, acc, 32};
            fl__amx_edge(ks, &x, false, c + i * ldc + j, ldc, fl__min(32, m - i), fl__min(32, n - j), acc,
                         add, true);
        }
    ks->end();
}

/* >>products */

typedef struct fl__amx_plan {
    const fl__amx_product *of;
    bool groups_of_b; /* whether B is packed in groups by tasks, and A by all threads; else the reverse */
    int64_t items, steps, shared, own, group, groups; /* panels of an item; most of a group */
    int64_t s0, s1;   /* the current pass */
    /* For rounded results: the rounding loop; the sums of all items, or NULL if one pass sums a task's part
       of C in its workspace; and the epilogue. */
    fl__loop narrow;
    float *sums;
    fl__epilogue epilogue;
    fl__scratch scratch;
} fl__amx_plan;

/* Where a task accumulates: rows `ld` apart, the first value being C's (i, j). */
typedef struct fl__amx_sums {
    float *at;
    int64_t ld, i, j;
} fl__amx_sums;

/* Operand A or B of an item. */
static fl__amx_operand fl__amx_item(const fl__amx_plan *p, bool b, int64_t item) {
    const fl__product *of = p->of->of;
    fl__amx_operand x = b ? p->of->b : p->of->a;
    if (of) x.data += fl__product_offset(of, b ? of->b_stride : of->a_stride, item) * x.size;
    return x;
}

/* Task: packs some panels of the shared operand. */
static void fl__amx_pack_task(void *arg, int64_t begin, int64_t end) {
    const fl__amx_plan *p = arg;
    const int64_t bytes = (p->s1 - p->s0) * 2 * FL__AMX_TILE;
    for (int64_t task = begin, last; task < end; task = last) {
        const int64_t item = task / p->shared, first = item * p->shared;
        last = fl__min(end, first + p->shared);
        const fl__amx_operand x = fl__amx_item(p, !p->groups_of_b, item);
        fl__amx_pack(p->of->ks, &x, !p->groups_of_b, task - first, last - first, p->s0, p->s1,
                     p->scratch.shared + task * bytes);
    }
}

/* Multiplies panel y of the shared operand by panels x0 .. x1 of the other one, packed at `group`. */
static void fl__amx_multiply_panel(const fl__amx_plan *p, const char *shared, int64_t y, char *group,
                                   int64_t x0, int64_t x1, const fl__amx_sums *c) {
    const fl__amx_product *of = p->of;
    const int64_t deep = p->s1 - p->s0, near = fl__ceil_div(deep, fl__ceil_div(deep, FL__AMX_L1_STEPS));
    float *acc = (float *)(void *)(group + p->group * deep * 2 * FL__AMX_TILE);
    for (int64_t t = 0; t < deep; t += near)
        for (int64_t x = x0; x < x1; x++) {
            const char *own = group + ((x - x0) * deep + t) * 2 * FL__AMX_TILE;
            const char *other = shared + (y * deep + t) * 2 * FL__AMX_TILE;
            fl__amx_block block = {.a = p->groups_of_b ? other : own, .b = p->groups_of_b ? own : other,
                                   .steps = fl__min(near, deep - t)};
            int64_t rows, columns, i = fl__amx_range(&of->a, p->groups_of_b ? y : x, &rows);
            const int64_t j = fl__amx_range(&of->b, p->groups_of_b ? x : y, &columns);
            const bool opens = t == 0, closes = t + near >= deep;
            float *part = acc + (x - x0) * 32 * 32;
            block.from = opens && p->s0 == 0 ? NULL : part, block.ldf = 32;
            block.to = part, block.ldt = 32;
            fl__amx_edge(of->ks, &block, p->groups_of_b, c->at + (i - c->i) * c->ld + j - c->j, c->ld, rows,
                         columns, part, opens && p->s0 > 0, closes);
        }
}

/* The rows or columns of C of panels p0 .. p1 of x: returns the first; *n: how many. */
static int64_t fl__amx_span(const fl__amx_operand *x, int64_t p0, int64_t p1, int64_t *n) {
    const int64_t first = fl__amx_range(x, p0, n), last = fl__amx_range(x, p1 - 1, n);
    *n += last - first;
    return first;
}

/* A block of C: panels a0 .. a1 of A by panels b0 .. b1 of B. */
typedef struct fl__amx_part {
    int64_t i, rows, j, columns;
} fl__amx_part;

static fl__amx_part fl__amx_part_of(const fl__amx_product *of, int64_t a0, int64_t a1, int64_t b0,
        int64_t b1) {
    fl__amx_part at;
    at.i = fl__amx_span(&of->a, a0, a1, &at.rows);
    at.j = fl__amx_span(&of->b, b0, b1, &at.columns);
    return at;
}

/* Where the part's sums go: into C, or into a buffer that will be rounded. */
static fl__amx_sums fl__amx_sums_of(const fl__amx_plan *p, int64_t item, const fl__amx_part *at,
        char *group) {
    const fl__amx_product *of = p->of;
    const int64_t first = item * of->m * of->n;
    if (!p->narrow) return (fl__amx_sums){(float *)(void *)of->c + first, of->n, 0, 0};
    if (p->sums) return (fl__amx_sums){p->sums + first, of->n, 0, 0};
    float *acc = (float *)(void *)(group + p->group * (p->s1 - p->s0) * 2 * FL__AMX_TILE);
    return (fl__amx_sums){acc + p->group * 32 * 32, at->columns, at->i, at->j};
}

/* Runs the epilogue of a completed part and rounds it. */
static void fl__amx_epilogue(const fl__amx_plan *p, int64_t item, const fl__amx_part *at,
        const fl__amx_sums *c) {
    const fl__amx_product *of = p->of;
    float *sum = c->at + (at->i - c->i) * c->ld + at->j - c->j;
    if (p->narrow)
        fl__gemm_round(&p->epilogue, p->narrow, sum, c->ld, (uint16_t *)(void *)of->c + item * of->m * of->n,
                       at->i, at->rows, at->j, at->columns);
    else if (of->epilogue)
        fl__gemm_epilogue(of->epilogue, (char *)sum, c->ld, at->i, at->rows, at->j, at->columns);
}

/* Task = item * groups + group. */
static void fl__amx_task(void *arg, int64_t begin, int64_t end) {
    const fl__amx_plan *p = arg;
    const fl__amx_product *of = p->of;
    const int64_t bytes = (p->s1 - p->s0) * 2 * FL__AMX_TILE;
    /* The epilogue runs at once if rows of the group are long (B) or its workspace will be reused; else on
       whole rows at the end. */
    const bool last = p->s1 == p->steps, at_once = p->groups_of_b || (p->narrow && !p->sums);
    char *group = fl__scratch_take(&p->scratch);
    of->ks->begin();
    for (int64_t task = begin; task < end; task++) {
        const int64_t item = task / p->groups, at_group = task % p->groups;
        const int64_t x0 = at_group * p->own / p->groups, x1 = (at_group + 1) * p->own / p->groups;
        const char *shared = p->scratch.shared + item * p->shared * bytes;
        const fl__amx_operand own = fl__amx_item(p, p->groups_of_b, item);
        fl__amx_pack(of->ks, &own, p->groups_of_b, x0, x1, p->s0, p->s1, group);
        for (int64_t y = 0; y < p->shared; y++) {
            const fl__amx_part at = p->groups_of_b ? fl__amx_part_of(of, y, y + 1, x0, x1)
                                                   : fl__amx_part_of(of, x0, x1, y, y + 1);
            const fl__amx_sums c = fl__amx_sums_of(p, item, &at, group);
            fl__amx_multiply_panel(p, shared, y, group, x0, x1, &c);
            if (last && at_once) fl__amx_epilogue(p, item, &at, &c);
        }
        if (!last || at_once) continue;
        const fl__amx_part at = fl__amx_part_of(of, x0, x1, 0, p->shared);
        const fl__amx_sums c = fl__amx_sums_of(p, item, &at, group);
        fl__amx_epilogue(p, item, &at, &c);
    }
    of->ks->end();
    fl__scratch_give_back(&p->scratch, group);
}

/* Cuts the other operand into groups of panels: a few tasks per thread; if they are few, a multiple of the
   threads. */
static void fl__amx_cut(fl__amx_plan *p) {
    const int64_t threads = fl_threads(), wanted = fl__max(FL__AMX_TASKS, 3 * threads);
    p->groups = fl__ceil_div(p->own, fl__min(FL__AMX_GROUP, fl__ceil_div(p->own * p->items, wanted)));
    while (p->groups < p->own && p->items * p->groups < 8 * threads && p->items * p->groups % threads)
        p->groups++;
    p->group = fl__ceil_div(p->own, p->groups);
}

FL_PRIVATE bool fl__amx_run(const fl__amx_product *of, const char *op) {
    fl__amx_plan p = {.of = of, .items = of->of ? of->of->items : 1, .steps = fl__amx_up(of->k)};
    const int64_t a = fl__amx_panels(&of->a), b = fl__amx_panels(&of->b);
    p.groups_of_b = b >= a;
    p.own = p.groups_of_b ? b : a;
    p.shared = p.groups_of_b ? a : b;
    const int64_t pass = fl__ceil_div(p.steps, fl__ceil_div(p.steps, FL__AMX_PASS));
    fl__amx_cut(&p);
    const int64_t panel = pass * 2 * FL__AMX_TILE, acc = 32 * 32 * (int64_t)sizeof(float);
    const int64_t packed = p.items * p.shared * panel, all = p.items * of->m * of->n;
    if (of->dtype != FL_F32) p.narrow = fl__cast_loop(FL_F32, of->dtype);
    const bool parts = p.narrow && pass >= p.steps; /* the sums of a part stay in a workspace */
    const int64_t sums = p.narrow && !parts ? all * (int64_t)sizeof(float) : 0;
    const int64_t bias = p.narrow && of->epilogue && of->epilogue->add ? of->n * (int64_t)sizeof(float) : 0;
    if (!fl__scratch_open(&p.scratch, p.items * p.groups, p.group * (panel + (parts ? 2 : 1) * acc),
                          packed + sums + bias, op))
        return false;
    if (sums) p.sums = (float *)(void *)(p.scratch.shared + packed);
    if (p.narrow) p.epilogue = of->epilogue ? *of->epilogue : (fl__epilogue){.n = of->n};
    if (bias) {
        char *wide = p.scratch.shared + packed + sums;
        fl__cast_loop(of->dtype, FL_F32)((void *[]){wide, (void *)(uintptr_t)p.epilogue.bias}, of->n, NULL);
        p.epilogue.bias = wide;
    }
    const int64_t work = p.group * p.shared * pass * 32 * 32 * 32, packing = pass * 32 * 32;
    for (p.s0 = 0; p.s0 < p.steps; p.s0 = p.s1) {
        p.s1 = fl__min(p.s0 + pass, p.steps);
        fl_parallel(p.items * p.shared, fl__ceil_div(1 << 15, packing), fl__amx_pack_task, &p);
        fl_parallel(p.items * p.groups, fl__ceil_div(1 << 21, work), fl__amx_task, &p);
    }
    fl__scratch_close(&p.scratch);
    return true;
}

/* >>matrices */

FL_PRIVATE fl__amx_operand fl__amx_matrix(const char *data, int64_t size, int64_t outer, int64_t k,
                                      int64_t outer_step, int64_t k_step) {
    const bool along = k_step == 1;
    return (fl__amx_operand){.data = data, .size = size, .along = along, .lines = along ? outer : k,
                             .inner = along ? k : outer, .segments = 1,
                             .step = (along ? outer_step : k_step) * size};
}

FL_PRIVATE bool fl__amx_takes(const fl__product *p) {
    const bool small = p->m * p->n * p->k <= FL__SMALL_PRODUCT;
    const bool few = p->m <= FL__SKINNY_ROWS || p->n <= FL__SKINNY_ROWS || p->k < 16;
    /* With few rows, f32 reads B once, in place: packing it costs vdpbf16ps as much as it saves. */
    const bool streams = p->m <= FL__AMX_STREAM_ROWS && p->csb != 1 && fl__bf16_is_vdpbf16();
    return !small && ((!few && !streams) || p->dtype == FL_BF16) && (p->rsa == 1 || p->csa == 1) &&
           (p->rsb == 1 || p->csb == 1) && fl__bf16_tiles(p->dtype);
}

FL_PRIVATE bool fl__amx_matmul(const fl__product *p) {
    const int64_t size = (int64_t)fl_dtype_size(p->dtype);
    const fl__amx_product product = {
        .ks = fl__bf16_tiles(p->dtype), .dtype = p->dtype, .c = p->out, .m = p->m, .n = p->n, .k = p->k,
                .of = p,
        .a = fl__amx_matrix(p->a, size, p->m, p->k, p->rsa, p->csa),
        .b = fl__amx_matrix(p->b, size, p->n, p->k, p->csb, p->rsb),
        .epilogue = p->has_epilogue ? &p->epilogue : NULL};
    return fl__amx_run(&product, "matmul");
}

#undef FL__AMX_PLAIN
#undef FL__AMX_PLAIN_BLOCK
#undef FL__AMX_PLAIN_BLOCKS
#undef FL__AMX_PACKS
#undef FL__AMX_BLOCKS
#ifdef FL__TARGET_vdpbf16
#undef FL__AMX_INLINE
#undef FL__AMX_PACK
#undef FL__VDPBF16_BLOCK
#undef FL__VDPBF16_BLOCKS
#endif
#ifdef FL__TARGET_amx
#undef FL__AMX_BLOCK
#undef FL__AMX_ALL_BLOCKS
#endif
#endif
#endif
/* MIT licence: see LICENSE. */
