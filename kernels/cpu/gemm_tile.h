/* gemm_tile.h - the inner loops of gemm.h and conv.h for one instruction set and one element type

   gemm.h includes it once for each pair, after defining
     FL__T          the element: float or double
     FL__LANES      elements per register
     FL__ROWS       4, 6 or 14: most rows of a tile two registers wide (2 FL__ROWS + 3 must exist)
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
     FL__PAIRS      2 if the operands of tiles are pairs of bf16, which bf16_pairs.h handles; else
                    not defined
   and it defines FL__FN(kernels), the table that gemm.h describes, and undefines them all. Of pairs
   there are tall tiles only: fewer rows do not pay for being rounded.

   A tile holds mr x (nv registers) of C in registers and runs along k: one loop text, always
   inlined with constant mr and nv, unrolled until every accumulator is a register. */

typedef FL__T FL__FN(vec) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));
typedef FL__T FL__FN(mem) /* the same, anywhere in memory */
    __attribute__((vector_size(FL__LANES * sizeof(FL__T)), aligned(sizeof(FL__T)), may_alias));
#define FL__EVERY2(x, y, at) FL__CAT2(FL__EVERY2, FL__LANES)(x, y, at)
typedef FL__T FL__FN(eight) __attribute__((vector_size(8 * sizeof(FL__T))));
typedef FL__T FL__FN(eight_mem)
    __attribute__((vector_size(8 * sizeof(FL__T)), aligned(sizeof(FL__T)), may_alias));

#ifdef FL__PAIRS
#include "bf16_pairs.h"
#else
#define FL__PAIRS 1
/* An element in all lanes: exact, and no instruction. */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(spread)(const FL__T *a) { return *a - (FL__FN(vec)){0}; }
/* acc + x * y */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(more)(FL__FN(vec) acc, FL__FN(vec) x, FL__FN(vec) y) {
    FL__CONTRACT
    return acc + x * y;
}
/* What pack reads at a time: a register, eight, one. `step`: to what is next along k, of pairs. */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(across)(const FL__T *s, int64_t step) {
    (void)step;
    return *(const FL__FN(mem) *)s;
}
FL__INLINE FL__TARGET void FL__FN(along)(FL__FN(eight) *to, const FL__T *s) {
    *to = *(const FL__FN(eight_mem) *)s;
}
FL__INLINE FL__T FL__FN(one)(const FL__T *s, int64_t step, int64_t left) {
    (void)step, (void)left;
    return *s;
}
#endif

/* C (+)= sum over the segments and over p < k of a[i * rsa + p * csa] * b[p * ldb + j], for the
   whole tile. */
FL__INLINE FL__TARGET void FL__FN(tile)(const int mr, const int nv, int64_t rsa,
                                        const fl__tile *t) {
    FL__CONTRACT
    FL__FN(vec) acc[FL__TILE_REGISTERS];
    FL__UNROLL for (int i = 0; i < mr * nv; i++) acc[i] = (FL__FN(vec)){0};
    for (int64_t s = 0; s < t->segments; s++) {
        const FL__T *a = t->segment[s].a, *b = t->segment[s].b;
        for (int64_t p = 0; p < t->k; p++, a += t->csa, b += t->ldb) {
            FL__FN(vec) row[4];
            __builtin_prefetch(a + FL__AHEAD_A * t->csa);
            FL__UNROLL for (int j = 0; j < nv; j++) {
                row[j] = *(const FL__FN(mem) *)(b + j * FL__LANES);
                __builtin_prefetch(b + FL__AHEAD_B * t->ldb + j * FL__LANES);
            }
            FL__UNROLL for (int i = 0; i < mr; i++) {
                FL__FN(vec) x = FL__FN(spread)(a + i * rsa);
                FL__UNROLL for (int j = 0; j < nv; j++)
                    acc[i * nv + j] = FL__FN(more)(acc[i * nv + j], x, row[j]);
            }
        }
    }
    FL__T *c = t->c;
    if (t->add)
        FL__UNROLL for (int i = 0; i < mr * nv; i++)
            acc[i] += *(const FL__FN(mem) *)(c + i / nv * t->ldc + i % nv * FL__LANES);
    FL__UNROLL for (int i = 0; i < mr * nv; i++)
        *(FL__FN(mem) *)(c + i / nv * t->ldc + i % nv * FL__LANES) = acc[i];
}

/* Tall tiles, two registers wide, find the values of a column of A side by side (rsa is 1). */
#define FL__TALL(mr) \
    FL__TARGET static void FL__FN(tall##mr)(const fl__tile *t) { FL__FN(tile)(mr, 2, 1, t); }
#define FL__TILE_OF(mr, nv) \
    FL__TARGET static void FL__FN(tile##mr##x##nv)(const fl__tile *t) { \
        FL__FN(tile)(mr, nv, t->rsa, t); \
    }
#define FL__TALL_ROWS(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define FL__ROWS4(X, nv) X(1, nv) X(2, nv) X(3, nv) X(4, nv)
#define FL__ROWS6(X, nv) FL__ROWS4(X, nv) X(5, nv) X(6, nv)
#if FL__ROWS == 4
#define FL__ALL_TILES(X) FL__ROWS4(X, 1) FL__ROWS4(X, 2)
#elif FL__ROWS == 6
#define FL__ALL_TILES(X) FL__ROWS6(X, 1) FL__ROWS6(X, 2)
#else
#define FL__ALL_TILES(X) FL__ROWS6(X, 1) FL__ROWS6(X, 2) FL__ROWS6(X, 4)
FL__TALL_ROWS(FL__TALL)
#endif
#if FL__PAIRS == 1
FL__ALL_TILES(FL__TILE_OF)

/* The sums of the lanes of n vectors, lane by lane in as few vectors as they fill: neighbours of
   pairs of vectors are added until one lane of each is left. Not inlined: compilers would take
   minutes over its copies. */
__attribute__((noinline)) FL__TARGET static void FL__FN(fold)(int n, FL__FN(vec) *sum) {
    for (int width = FL__LANES; width > 1; width /= 2, n = (n + 1) / 2)
        for (int i = 0; i < n; i += 2) {
            FL__FN(vec) x = sum[i], y = sum[i + 1 < n ? i + 1 : i];
            sum[i / 2] = FL__EVERY2(x, y, 0) + FL__EVERY2(x, y, 1);
        }
}

/* Few rows of C, and B transposed: sums along k, whole registers at a time. mr x nc dot products. */
#define FL__DOTS (FL__ROWS > 6 ? 4 : 2)
FL__INLINE FL__TARGET void FL__FN(dot)(const int mr, const int nc, const FL__T *b,
                                       const fl__tile *t, FL__T *c) {
    FL__CONTRACT
    FL__FN(vec) acc[16];
    const FL__T *a = t->segment->a;
    int64_t p = 0;
    FL__UNROLL for (int i = 0; i < mr * nc; i++) acc[i] = (FL__FN(vec)){0};
    for (; p + FL__LANES <= t->k; p += FL__LANES) {
        FL__FN(vec) x[4];
        FL__UNROLL for (int i = 0; i < mr; i++) x[i] = *(const FL__FN(mem) *)(a + i * t->rsa + p);
        FL__UNROLL for (int j = 0; j < nc; j++) {
            FL__FN(vec) y = *(const FL__FN(mem) *)(b + j * t->ldb + p);
            FL__UNROLL for (int i = 0; i < mr; i++) acc[i * nc + j] += x[i] * y;
        }
    }
    FL__FN(vec) sums[16]; /* apart, so that those of the loop stay registers */
    FL__UNROLL for (int i = 0; i < mr * nc; i++) sums[i] = acc[i];
    FL__FN(fold)(mr * nc, sums);
    FL__UNROLL for (int i = 0; i < mr * nc; i++) {
        const FL__T *x = a + i / nc * t->rsa, *y = b + i % nc * t->ldb;
        FL__T *to = c + i / nc * t->ldc + i % nc, sum = sums[i / FL__LANES][i % FL__LANES];
        for (int64_t q = p; q < t->k; q++) sum += x[q] * y[q];
        *to = t->add ? *to + sum : sum;
    }
}

/* Few rows of C, and B as it is: C += np rows of B times as many columns of A. */
FL__INLINE FL__TARGET void FL__FN(axpy)(const int mr, const int np, const FL__T *a, const FL__T *b,
                                        const fl__tile *t, bool add, int64_t n) {
    FL__CONTRACT
    FL__FN(vec) x[16];
    FL__T *c = t->c;
    int64_t j = 0;
    FL__UNROLL for (int i = 0; i < mr * np; i++)
        x[i] = a[i / np * t->rsa + i % np * t->csa] - (FL__FN(vec)){0};
    for (; j + FL__LANES <= n; j += FL__LANES) {
        FL__FN(vec) acc[4];
        FL__UNROLL for (int i = 0; i < mr; i++) acc[i] = (FL__FN(vec)){0};
        if (add)
            FL__UNROLL for (int i = 0; i < mr; i++) acc[i] = *(FL__FN(mem) *)(c + i * t->ldc + j);
        FL__UNROLL for (int p = 0; p < np; p++) {
            FL__FN(vec) y = *(const FL__FN(mem) *)(b + p * t->ldb + j);
            FL__UNROLL for (int i = 0; i < mr; i++) acc[i] += x[i * np + p] * y;
        }
        FL__UNROLL for (int i = 0; i < mr; i++) *(FL__FN(mem) *)(c + i * t->ldc + j) = acc[i];
    }
    for (; j < n; j++)
        FL__UNROLL for (int i = 0; i < mr; i++) {
            FL__T sum = add ? c[i * t->ldc + j] : 0;
            FL__UNROLL for (int p = 0; p < np; p++) sum += x[i * np + p][0] * b[p * t->ldb + j];
            c[i * t->ldc + j] = sum;
        }
}

/* mr x n elements of C by either. */
#define FL__FEW(mr) \
    FL__TARGET static void FL__FN(dots##mr)(const fl__tile *t, int64_t n) { \
        const FL__T *b = t->segment->b; \
        int64_t j = 0; \
        for (; j + FL__DOTS <= n; j += FL__DOTS) \
            FL__FN(dot)(mr, FL__DOTS, b + j * t->ldb, t, (FL__T *)t->c + j); \
        for (; j < n; j++) FL__FN(dot)(mr, 1, b + j * t->ldb, t, (FL__T *)t->c + j); \
    } \
    FL__TARGET static void FL__FN(axpys##mr)(const fl__tile *t, int64_t n) { \
        const FL__T *a = t->segment->a, *b = t->segment->b; \
        int64_t p = 0; \
        for (; p + FL__DOTS <= t->k; p += FL__DOTS) \
            FL__FN(axpy)(mr, FL__DOTS, a + p * t->csa, b + p * t->ldb, t, t->add || p > 0, n); \
        for (; p < t->k; p++) \
            FL__FN(axpy)(mr, 1, a + p * t->csa, b + p * t->ldb, t, t->add || p > 0, n); \
    }
FL__FEW(1) FL__FEW(2) FL__FEW(4)

/* dst[i] += src[i] */
FL__TARGET static void FL__FN(add)(void *dst, const void *src, int64_t n) {
    FL__T *d = dst;
    const FL__T *s = src;
    int64_t i = 0;
    for (; i + FL__LANES <= n; i += FL__LANES)
        *(FL__FN(mem) *)(d + i) += *(const FL__FN(mem) *)(s + i);
    for (; i < n; i++) d[i] += s[i];
}
#endif

/* Transposes 8 x 8: dst[p * ldd + i] = src[i][p], of pairs too. */
FL__INLINE FL__TARGET void FL__FN(transpose8)(FL__T *dst, int64_t ldd, const FL__T *const src[8]) {
    FL__FN(eight) r[8], t[8];
    FL__UNROLL for (int i = 0; i < 8; i++) FL__FN(along)(&r[i], src[i]);
    FL__UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = FL__SHUFFLE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = FL__SHUFFLE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    FL__UNROLL for (int i = 0; i < 8; i += 4) FL__UNROLL for (int h = 0; h < 2; h++) {
        r[i + 2 * h] = FL__SHUFFLE(t[i + h], t[i + 2 + h], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 2 * h + 1] = FL__SHUFFLE(t[i + h], t[i + 2 + h], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    FL__UNROLL for (int i = 0; i < 4; i++)
        *(FL__FN(eight_mem) *)(dst + i * ldd) =
            FL__SHUFFLE(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    FL__UNROLL for (int i = 0; i < 4; i++)
        *(FL__FN(eight_mem) *)(dst + (i + 4) * ldd) =
            FL__SHUFFLE(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
}

/* A vector store may run past the end of a row of dst: the rows behind it, written later, repair
   that. So many rows are left to the scalar loop that nothing is written past the last one. */
FL__INLINE int64_t FL__FN(rows_kept)(int64_t n, int64_t step) {
    return n % step == 0 ? 0 : (step - n % step + n - 1) / n;
}

/* dst[p * ldd + i] = src[i * rs + p * cs] for p < k, i < n; of pairs the one from
   src[i * rs + 2 p cs] on, the last with 0 if k is odd. Writes nothing else; reads up to a register
   past a row. */
FL__TARGET static void FL__FN(pack)(void *dst, int64_t ldd, int64_t n, int64_t k, const void *src,
                                    int64_t rs, int64_t cs) {
    FL__T *d = dst;
    const FL__T *s = src;
    const int64_t step = rs == 1 ? FL__LANES : 8, rows = (k + FL__PAIRS - 1) / FL__PAIRS;
    int64_t wide = ldd == n ? n : n / step * step, p = 0;
    int64_t end = fl__min(rows - FL__FN(rows_kept)(wide, step), k / FL__PAIRS);
    if (rs == 1) {
        for (; p < end; p++) {
            for (int64_t i = 0; i < wide; i += FL__LANES)
                *(FL__FN(mem) *)(d + p * ldd + i) = FL__FN(across)(s + p * FL__PAIRS * cs + i, cs);
        }
    } else if (cs == 1 && wide > 0) {
        for (int64_t chunk = 64; p + 8 <= end; p = fl__min(p + chunk, end / 8 * 8))
            for (int64_t i = (wide - 1) / 8 * 8; i >= 0; i -= 8)
                for (int64_t r = p; r + 8 <= fl__min(p + chunk, end); r += 8) {
                    const FL__T *row[8];
                    for (int q = 0; q < 8; q++)
                        row[q] = s + (i + q < n ? i + q : n - 1) * rs + r * FL__PAIRS;
                    FL__FN(transpose8)(d + r * ldd + i, ldd, row);
                }
    }
    for (int64_t q = 0; q < rows; q++)
        for (int64_t i = q < p ? wide : 0; i < n; i++)
            d[q * ldd + i] = FL__FN(one)(s + i * rs + q * FL__PAIRS * cs, cs, k - q * FL__PAIRS);
}

#define FL__ENTRY_TALL(mr) [mr] = FL__FN(tall##mr),
#define FL__ENTRY(mr, nv) [nv / 2][mr] = FL__FN(tile##mr##x##nv),
static const fl__kernels FL__FN(kernels) = {
    .size = sizeof(FL__T),
    .lanes = FL__LANES,
    .pairs = FL__PAIRS,
    .rows = FL__ROWS,
#if FL__ROWS > 6
    .tall = {FL__TALL_ROWS(FL__ENTRY_TALL)},
    .short_rows = 6,
    .widest = 4,
#else
    .short_rows = FL__ROWS,
    .widest = 2,
#endif
#if FL__PAIRS == 1
    .tile = {FL__ALL_TILES(FL__ENTRY)},
    .dots = {[1] = FL__FN(dots1), [2] = FL__FN(dots2), [4] = FL__FN(dots4)},
    .axpys = {[1] = FL__FN(axpys1), [2] = FL__FN(axpys2), [4] = FL__FN(axpys4)},
    .turn = FL__FN(pack),
    .add = FL__FN(add),
#else
    .turn = fl__f32_avx512_pack,
    .add = fl__f32_avx512_add,
#endif
    .pack = FL__FN(pack),
};

#undef FL__T
#undef FL__LANES
#undef FL__ROWS
#undef FL__FN
#undef FL__TARGET
#undef FL__TALL
#undef FL__TILE_OF
#undef FL__DOTS
#undef FL__EVERY2
#undef FL__FEW
#undef FL__TALL_ROWS
#undef FL__ROWS4
#undef FL__ROWS6
#undef FL__ALL_TILES
#undef FL__ENTRY_TALL
#undef FL__ENTRY
#undef FL__PAIRS
/* MIT licence: see LICENSE. */
