/* kernels/cpu/attention.h - attention and its gradient without a score matrix in memory (as FlashAttention)

   A block of up to 256 queries iterates over the keys, up to 140 at a time. Scores are computed transposed,
   keys by queries: the values of a query are a lane of a register, and the probabilities are the packed
   operand of the next product without copying. Rows of keys and values are the left operand of scores, in
   place; what is read as rows of registers is packed into panels that stay in the L1 cache, from any strides:
   heads are views whose rows are a power of two apart, so that they map to few cache sets.

     forward    s = k q^T scale, p = exp(s - top so far), y = y exp(top before - top) + p^T v;
                at the end y /= sum, and lse = top + log sum is saved for
     gradient   p = exp(s - lse), dv += p dy, dp = v dy^T, ds = p (dp - dy . y) scale,
                dk += ds q, dq += ds^T k

   Forward, a task is one block of queries. In the gradient it is all queries of one head; with few heads the
   queries are cut into splits, whose dk and dv are added in order. Keys that causal or window hide from all
   queries of a block are skipped; in the hidden half of a causal block only tiles with a visible score are
   computed.

   If operands may be rounded to bf16 and the processor has instructions for it, the products are those of
   gemm/amx.h, over up to 256 keys; the rest is the same, in f32. They read bf16 directly: then y, dq, dk and
   dv are summed in the workspace, and rounded once.

   A single query (a step of decoding) has its own algorithm, which reads each key and value once, in place,
   for all heads that share it: see >>one query. */
#ifndef FL_CPU_ATTENTION_H
#define FL_CPU_ATTENTION_H
#include "slots.h"
#include "gemm/tile.h"
#include "scratch.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_attention_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ATTENTION_IMPL
#define FL_CPU_ATTENTION_IMPL
#include "../../fl/records/attention.h"
#include "bf16.h"
#include "gemm/amx.h"
/* FL__ATT_ROW: elements from key to key in a block of scores, not a power of two. FL__ATT_VDPBF16:
   multiply-adds of a head's scores from which f32 is rounded for vdpbf16ps. */
enum {
    FL__ATT_QUERIES = 256,
    FL__ATT_TILED_KEYS = 256,
    FL__ATT_KEYS = 140,
    FL__ATT_GRAD_KEYS = 70,
    FL__ATT_ROW = 272,
    FL__ATT_VDPBF16 = 1 << 20
};
#define FL__ATT_ALL (INT64_MIN / 2)
/* Scores of a key that is hidden from the queries before seen + j are computed from this query on: products
   read them in tiles of up to 8 rows. The rest of a block's hidden half is not computed. */
static inline int64_t fl__att_from(int64_t seen, int64_t j) { return fl__max(0, seen + j - 8) / 16 * 16; }

/* For a single query: keys in a part and in a block. */
enum { FL__ATT_PART = 512, FL__ATT_ONE_KEYS = 64 };

/* >>loops: see attention.inc */
typedef struct fl__att_loops {
    void (*scale)(void *x, int64_t n, double by);
    void (*fill)(void *x, int64_t n, double value);
    void (*mul)(void *scores, const void *by, int64_t keys, int64_t width);
    void (*scale_rows)(void *y, int64_t row, int64_t n, int64_t columns, const void *by);
    void (*cap)(void *scores, void *slope, int64_t keys, int64_t width, double most);
    void (*mask_range)(void *scores, int64_t keys, int64_t width, int64_t seen, int64_t first, int64_t count);
    void (*mask_bool)(void *scores, int64_t keys, int64_t queries, const void *mask, int64_t row,
                      int64_t column);
    void (*add)(void *scores, int64_t keys, int64_t queries, const void *mask, int64_t row,
                int64_t column);
    void (*softmax)(void *scores, int64_t keys, int64_t width, int64_t seen, void *top, void *sum,
                    void *rescale);
    void (*normalise)(const void *top, void *sum, int64_t queries, void *lse, int64_t step);
    void (*dots)(const void *y, const int64_t *y_step, const void *dy, const int64_t *dy_step,
                 int64_t queries, int64_t columns, void *delta);
    void (*grads)(void *s, void *dp, int64_t keys, int64_t width, int64_t seen, const void *lse,
                  const void *delta, double scale);
    void (*dropout)(void *dropout, int64_t keys, int64_t queries, uint64_t first, uint64_t row,
                    const fl_attention_args *a);
    void (*one_softmax)(void *s, int64_t keys, void *top, void *sum, void *rescale);
    void (*one_join)(const void *parts, int64_t step, int64_t n, int64_t e, void *y, void *lse);
} fl__att_loops;

FL__LOOPS_BEGIN
#define FL__LEVEL_TEXT "attention.inc"
#define FL__UNIT attention
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
FL__LOOPS_END

/* >>blocks */

/* A call. Operands are [..., rows, columns]; an item is one head of one sequence. */
typedef struct fl__attention {
    const fl_attention_args *args;
    const fl__kernels *ks;
    const fl__amx_kernels *tiles; /* or NULL */
    const fl__att_loops *loops;
    const fl_tensor *q, *k, *v, *mask, *y, *lse, *dy, *dq, *dk, *dv; /* mask: NULL if none */
    int64_t items, n, m, d, e, size; /* bytes of an element that is computed */
    fl__loop widen, narrow;          /* casts of bf16 operands and results, or NULL */
    int64_t wide;                    /* columns of a panel: the registers of a tile's width */
    int64_t keys;                    /* most keys in a block */
    int64_t query_blocks, splits;    /* splits: tasks per item in the gradient */
    int64_t split_blocks;            /* query blocks per split */
    char *parts[2];                  /* dk, dv of each item and split, if splits > 1 */
    fl__scratch scratch;
} fl__attention;

/* A task's workspace, and its current block. Panels of a matrix [rows, columns]: `across` holds the columns,
   `wide` at a time, [columns / wide][rows][wide]; `down` the same of the transposed matrix. */
typedef struct fl__att_block {
    char *s, *dp, *dropout, *slope;   /* [keys][FL__ATT_ROW]; slope: derivative of softcap */
    char *scaled;                     /* [queries][d or e], with tiles */
    char *rows, *sums[2]; /* sums of y or dq, and of dk and dv, before they are rounded */
    char *q_down, *dy_down;           /* of the queries and their dy */
    char *q_across, *dy_across;       /* the same, not transposed */
    char *keys, *values; /* a panel of columns of values; with tiles all of A, and of B */
    char *top, *sum, *rescale;        /* [queries] */
    int64_t item, q0, nq, width;      /* queries, and their number rounded up to registers */
    int64_t position;                 /* position of the first query among the keys */
    int64_t j0, nj, start, end;       /* keys; the range of all keys of the block */
    int64_t seen; /* key j of these is hidden from the queries before seen + j; FL__ATT_ALL: from none */
    bool adds;    /* dk and dv already hold sums of earlier blocks */
    const fl_tensor *prefetch[2];     /* rows to prefetch, of this item or a later one; or NULL */
    int64_t prefetch_item;
} fl__att_block;

/* Address of element [item][row][column]. */
static char *fl__att_at(const fl_tensor *t, int64_t item, int64_t row, int64_t column) {
    int64_t at = row * t->stride[t->ndim - 2] + column * t->stride[t->ndim - 1];
    for (int i = t->ndim - 3; i >= 0; i--) {
        at += item % t->shape[i] * t->stride[i];
        item /= t->shape[i];
    }
    return (char *)fl_data(t) + at * (int64_t)fl_dtype_size(t->dtype);
}

/* Strides of rows and columns. */
static const int64_t *fl__att_step(const fl_tensor *t) { return &t->stride[t->ndim - 2]; }

/* Returns the next `bytes` of a workspace, followed by space for reads past their end. */
static char *fl__att_carve(char *base, int64_t *at, int64_t bytes) {
    int64_t here = *at;
    *at += (bytes + FL__PANEL_SLACK + 63) / 64 * 64;
    return base ? base + here : NULL;
}

/* Lays out a workspace at base (NULL: only computes its size); returns its size. */
static int64_t fl__att_layout(const fl__attention *a, fl__att_block *b, char *base, bool gradient) {
    const int64_t queries = FL__ATT_QUERIES * a->size, block = a->keys * FL__ATT_ROW * a->size;
    const int64_t rows = a->d > a->e ? a->d : a->e, none = 0;
    int64_t across = fl__ceil_div(rows, a->wide) * a->wide * queries, down = a->d * queries;
    int64_t dy_down = a->e * queries, keys = 0, values = a->keys * a->wide * a->size, at = 0;
    if (a->tiles) {
        across = fl__amx_bytes(rows, FL__ATT_QUERIES);
        down = fl__amx_bytes(FL__ATT_QUERIES, a->d), dy_down = fl__amx_bytes(FL__ATT_QUERIES, a->e);
        keys = fl__max(fl__amx_bytes(a->keys, rows), fl__amx_bytes(FL__ATT_QUERIES, a->keys));
        values = fl__amx_bytes(rows, a->keys);
    }
    b->s = fl__att_carve(base, &at, block);
    b->dp = fl__att_carve(base, &at, gradient ? block : none);
    b->dropout = fl__att_carve(base, &at, a->args->p > 0 ? block : none);
    b->slope = gradient && a->args->softcap > 0 ? fl__att_carve(base, &at, block) : NULL;
    b->scaled = fl__att_carve(base, &at, a->tiles ? rows * queries : none);
    b->rows = fl__att_carve(base, &at, a->narrow ? rows * queries : none);
    for (int i = 0; i < 2; i++)
        b->sums[i] = fl__att_carve(base, &at, gradient && a->narrow && a->splits == 1
                                                  ? a->m * (i ? a->e : a->d) * a->size : none);
    b->q_down = fl__att_carve(base, &at, down);
    b->dy_down = fl__att_carve(base, &at, gradient ? dy_down : none);
    b->q_across = fl__att_carve(base, &at, gradient ? across : none);
    b->dy_across = fl__att_carve(base, &at, gradient ? across : none);
    b->keys = fl__att_carve(base, &at, keys);
    b->values = fl__att_carve(base, &at, values);
    b->top = fl__att_carve(base, &at, queries);
    b->sum = fl__att_carve(base, &at, queries);
    b->rescale = fl__att_carve(base, &at, queries);
    return at;
}

/* Packs `outer` x k values of `size` bytes for tiles. */
static void fl__att_pack_tiles(const fl__attention *a, bool of_b, const char *from, int64_t size,
                               int64_t outer, int64_t k, int64_t outer_step, int64_t k_step, char *to) {
    const fl__amx_operand x = fl__amx_matrix(from, size, outer, k, outer_step, k_step);
    fl__amx_pack_all(a->tiles, &x, of_b, to);
}

/* The same for rows [first, first + n) of an operand: outer are its rows, or its columns. */
static void fl__att_pack_operand(const fl__attention *a, bool of_b, const fl_tensor *t, int64_t item,
                                 int64_t first, int64_t n, bool by_rows, char *to) {
    const int64_t columns = t->shape[t->ndim - 1], *step = fl__att_step(t);
    fl__att_pack_tiles(a, of_b, fl__att_at(t, item, first, 0), (int64_t)fl_dtype_size(t->dtype),
                       by_rows ? n : columns, by_rows ? columns : n, step[!by_rows], step[by_rows], to);
}

/* Copies a row of an operand, dense and in the wide dtype. */
static void fl__att_row(const fl__attention *a, const fl_tensor *t, int64_t item, int64_t row, char *to) {
    const int64_t columns = t->shape[t->ndim - 1];
    char *from = fl__att_at(t, item, row, 0);
    if (a->widen) a->widen((void *[]){to, from}, columns, NULL);
    else fl__copy_row(to, a->size, from, fl__att_step(t)[1] * a->size, columns, (int)a->size);
}

/* Rows of heads are a page apart, which hardware does not prefetch: with the tiles of n rows from `first` on,
   prefetches as many rows of the operands that are packed next. */
static void fl__att_prefetch(const fl__attention *a, const fl__att_block *b, int64_t first, int64_t n) {
    for (int i = 0; i < 2; i++) {
        const fl_tensor *t = b->prefetch[i];
        if (!t || b->prefetch_item >= a->items || fl__att_step(t)[1] != 1) continue;
        const int64_t end = fl__min(first + n, t->shape[t->ndim - 2]);
        const int64_t bytes = t->shape[t->ndim - 1] * (int64_t)fl_dtype_size(t->dtype);
        const int64_t row = fl__att_step(t)[0] * (int64_t)fl_dtype_size(t->dtype);
        if (first >= end) continue;
        const char *at = fl__att_at(t, b->prefetch_item, first, 0);
        for (int64_t r = first; r < end; r++, at += row)
            for (int64_t k = 0; k < bytes; k += 64) __builtin_prefetch(at + k, 0, 2);
    }
}

/* Sets what to prefetch: up to two operands of an item. */
static void fl__att_set_prefetch(fl__att_block *b, int64_t item, const fl_tensor *first,
                                 const fl_tensor *second) {
    b->prefetch[0] = first, b->prefetch[1] = second, b->prefetch_item = item;
}

/* Rounds n dense rows into rows of a result. */
static void fl__att_round(const fl__attention *a, const fl_tensor *t, int64_t item, int64_t first, int64_t n,
                          char *rows) {
    const int64_t columns = t->shape[t->ndim - 1];
    for (int64_t i = 0; i < n; i++)
        a->narrow((void *[]){fl__att_at(t, item, first + i, 0), rows + i * columns * a->size}, columns, NULL);
}

/* Where the block's rows of a result are summed; *row: their stride. */
static char *fl__att_result(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
        int64_t *row) {
    *row = a->narrow ? t->shape[t->ndim - 1] : fl__att_step(t)[0];
    return a->narrow ? b->rows : fl__att_at(t, b->item, b->q0, 0);
}

/* fl__att_pack_down for tiles. */
static void fl__att_pack_queries(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
                                 double by, char *to) {
    const int64_t columns = t->shape[t->ndim - 1];
    if (by == 1) {
        fl__att_pack_operand(a, true, t, b->item, b->q0, b->nq, true, to);
        return;
    }
    for (int64_t i = 0; i < b->nq; i++)
        fl__att_row(a, t, b->item, b->q0 + i, b->scaled + i * columns * a->size);
    a->loops->scale(b->scaled, b->nq * columns, by);
    fl__att_pack_tiles(a, true, b->scaled, a->size, b->nq, columns, columns, 1, to);
}

/* Packs the block's rows of t, transposed and times `by`, with zeros after the last query. */
static void fl__att_pack_down(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
                              double by, char *to) {
    const int64_t columns = t->shape[t->ndim - 1], *step = fl__att_step(t);
    if (a->tiles) {
        fl__att_pack_queries(a, b, t, by, to);
        return;
    }
    for (int64_t i = 0, wide; i < b->nq; i += wide, to += wide * columns * a->size) {
        const int64_t n = fl__min(a->wide, b->nq - i);
        wide = fl__min(a->wide, b->width - i);
        if (n < wide) memset(to, 0, (size_t)(wide * columns * a->size));
        a->ks->pack(to, wide, n, columns, fl__att_at(t, b->item, b->q0 + i, 0), step[0], step[1]);
        if (by != 1) a->loops->scale(to, wide * columns, by);
    }
}

/* Packs the block's rows of t. */
static void fl__att_pack_across(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
                                char *to) {
    const int64_t columns = t->shape[t->ndim - 1], *step = fl__att_step(t);
    if (a->tiles) {
        fl__att_pack_operand(a, true, t, b->item, b->q0, b->nq, false, to);
        return;
    }
    for (int64_t j = 0; j < columns; j += a->wide, to += a->wide * FL__ATT_QUERIES * a->size)
        a->ks->pack(to, a->wide, fl__min(a->wide, columns - j), b->nq,
                    fl__att_at(t, b->item, b->q0, j), step[1], step[0]);
}

/* Cuts rows into tiles of equal height, at most `most`: the height of the one at row i. */
static int64_t fl__att_height(int64_t rows, int64_t i, int64_t most) {
    return fl__ceil_div(rows - i, fl__ceil_div(rows - i, most));
}

/* Most rows of a tile of n columns. */
static int64_t fl__att_most(const fl__attention *a, int64_t n) {
    return a->ks->low[fl__ceil_div(n, a->ks->lanes)];
}

/* out [nj][queries] = the block's keys, rows of t, times the packed queries. */
static void fl__att_scores(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
                           const char *queries, char *out) {
    const int64_t columns = t->shape[t->ndim - 1], *step = fl__att_step(t);
    const char *keys = fl__att_at(t, b->item, b->j0, 0);
    fl__segment s;
    fl__tile tile = {.segments = 1, .segment = &s, .k = columns, .rsa = step[0], .csa = step[1],
                     .ldc = FL__ATT_ROW};
    if (a->tiles) {
        fl__att_pack_operand(a, false, t, b->item, b->j0, b->nj, true, b->keys);
        fl__amx_multiply(a->tiles, b->keys, queries, b->nj, b->width, columns, (float *)(void *)out,
                         FL__ATT_ROW, false);
        return;
    }
    for (int64_t i = 0; i < b->width; i += tile.ldb) {
        tile.ldb = fl__min(a->wide, b->width - i);
        for (int64_t j = 0, rows; j < b->nj; j += rows) {
            const int64_t from = fl__max(i, fl__att_from(b->seen, j)), n = i + tile.ldb - from;
            if (n <= 0) break;
            rows = fl__att_height(b->nj, j, fl__att_most(a, n));
            if (i == 0) fl__att_prefetch(a, b, b->j0 + j, rows);
            s.a = keys + j * step[0] * a->size;
            s.b = queries + (i * columns + from - i) * a->size;
            tile.c = out + (j * FL__ATT_ROW + from) * a->size;
            fl__gemm_tile(a->ks, (int)rows, (int)n, &tile);
        }
    }
}

/* y (+)= p^T times the block's keys, rows of t; rows of y are `row` apart. */
static void fl__att_apply(const fl__attention *a, const fl__att_block *b, const char *p,
                          const fl_tensor *t, char *y, int64_t row) {
    const int64_t columns = t->shape[t->ndim - 1], *step = fl__att_step(t);
    fl__segment s = {.b = b->values};
    fl__tile tile = {.segments = 1, .segment = &s, .rsa = 1, .csa = FL__ATT_ROW,
                     .ldb = a->wide, .ldc = row, .add = b->j0 > b->start};
    if (a->tiles) {
        fl__att_pack_tiles(a, false, p, a->size, b->nq, b->nj, 1, FL__ATT_ROW, b->keys);
        fl__att_pack_operand(a, true, t, b->item, b->j0, b->nj, false, b->values);
        fl__amx_multiply(a->tiles, b->keys, b->values, b->nq, columns, b->nj, (float *)(void *)y, row,
                tile.add);
        return;
    }
    for (int64_t j = 0; j < columns; j += a->wide) {
        const int64_t n = fl__min(a->wide, columns - j), most = fl__att_most(a, n);
        char *to = y + j * a->size;
        a->ks->pack(b->values, a->wide, n, b->nj, fl__att_at(t, b->item, b->j0, j), step[1],
                    step[0]);
        for (int64_t i = 0, rows; i < b->nq; i += rows) {
            rows = fl__att_height(b->nq, i, most);
            if (j == 0 && b->j0 == b->start) fl__att_prefetch(a, b, i, rows);
            s.a = p + i * a->size;
            tile.c = to + i * tile.ldc * a->size;
            tile.k = fl__max(0, fl__min(b->nj, i + rows - b->seen));
            fl__gemm_tile(a->ks, (int)rows, (int)n, &tile);
        }
    }
}

/* sum [nj][columns], rows `row` apart, (+)= p times the block's queries, packed across: 64 queries at a time,
   whose panel stays in the L1 cache. */
static void fl__att_gather(const fl__attention *a, const fl__att_block *b, const char *p,
                           const char *queries, int64_t columns, char *sum, int64_t row) {
    fl__segment s;
    fl__tile tile = {.segments = 1, .segment = &s, .rsa = FL__ATT_ROW, .csa = 1, .ldb = a->wide,
                     .ldc = row};
    if (a->tiles) {
        fl__att_pack_tiles(a, false, p, a->size, b->nj, b->nq, FL__ATT_ROW, 1, b->keys);
        fl__amx_multiply(a->tiles, b->keys, queries, b->nj, columns, b->nq,
                         (float *)(void *)(sum + b->j0 * row * a->size), row, b->adds);
        return;
    }
    for (int64_t j = 0; j < columns; j += a->wide, queries += a->wide * FL__ATT_QUERIES * a->size) {
        const int64_t n = fl__min(a->wide, columns - j), most = fl__att_most(a, n);
        for (int64_t k = 0, end; k < b->nq; k = end) {
            end = fl__min(k + 64, b->nq);
            for (int64_t i = 0, rows; i < b->nj; i += rows) {
                rows = fl__att_height(b->nj, i, most);
                const int64_t first = fl__max(0, b->seen + i), from = fl__max(k, first);
                if (from >= end) break;
                s.a = p + (i * FL__ATT_ROW + from) * a->size;
                s.b = queries + from * a->wide * a->size;
                tile.k = end - from;
                tile.add = b->adds || from > first;
                tile.c = sum + ((b->j0 + i) * row + j) * a->size;
                fl__gemm_tile(a->ks, (int)rows, (int)n, &tile);
            }
        }
    }
}

/* Applies softcap and the masks to the scores. */
static void fl__att_mask(const fl__attention *a, const fl__att_block *b) {
    const int64_t window = a->args->window, first = b->j0 - b->position;
    if (a->args->softcap > 0) a->loops->cap(b->s, b->slope, b->nj, b->width, a->args->softcap);
    /* key j0 is visible to the queries from `first` on (causal), or from window - 1 before */
    if (window)
        a->loops->mask_range(b->s, b->nj, b->width, b->seen, a->args->causal ? first : first - window + 1,
                             a->args->causal ? window : 2 * window - 1);
    else if (a->args->causal && first + b->nj - 1 > 0)
        a->loops->mask_range(b->s, b->nj, b->width, b->seen, first, INT64_MAX / 4);
    if (!a->mask) return;
    const int64_t *step = fl__att_step(a->mask);
    const char *at = fl__att_at(a->mask, b->item, b->q0, b->j0);
    if (a->mask->dtype == FL_B8) a->loops->mask_bool(b->s, b->nj, b->nq, at, step[0], step[1]);
    else a->loops->add(b->s, b->nj, b->nq, at, step[0], step[1]);
}

/* The dropout factors of the block's scores. */
static void fl__att_dropout(const fl__attention *a, const fl__att_block *b) {
    const uint64_t first = (uint64_t)((b->item * a->n + b->q0) * a->m + b->j0);
    memset(b->dropout, 0, (size_t)(b->nj * FL__ATT_ROW * a->size));
    a->loops->dropout(b->dropout, b->nj, b->nq, first, (uint64_t)a->m, a->args);
}

/* The keys [start, end) that causal and window leave to nq queries, the first of which is at `position`. */
static void fl__att_range(const fl__attention *a, int64_t position, int64_t nq, int64_t *start,
                          int64_t *end) {
    const int64_t ahead = a->args->causal ? 1 : a->args->window, window = a->args->window;
    *end = ahead ? fl__min(a->m, position + nq - 1 + ahead) : a->m;
    *start = window && position >= window ? fl__min(position - window + 1, *end) : 0;
}

static void fl__att_begin(const fl__attention *a, fl__att_block *b, int64_t item, int64_t block) {
    b->item = item;
    b->q0 = block * FL__ATT_QUERIES;
    b->nq = fl__min(FL__ATT_QUERIES, a->n - b->q0);
    b->width = fl__ceil_div(b->nq, a->ks->lanes) * a->ks->lanes;
    b->position = a->args->offset + b->q0;
    fl__att_range(a, b->position, b->nq, &b->start, &b->end);
    b->j0 = b->start;
    b->nj = 0;
}

/* Advances to the next keys that a query of the block may see. */
static bool fl__att_next(const fl__attention *a, fl__att_block *b) {
    b->j0 += b->nj;
    b->nj = b->j0 >= b->end ? 0
            : a->tiles      ? fl__min(b->end - b->j0, a->keys)
                            : fl__att_height(b->end, b->j0, a->keys);
    b->seen = a->args->causal && !a->tiles ? b->j0 - b->position : FL__ATT_ALL;
    return b->nj > 0;
}

/* >>forward */

static void fl__att_forward(const fl__attention *a, fl__att_block *b) {
    int64_t row;
    char *y = fl__att_result(a, b, a->y, &row);
    if (a->narrow && b->start >= b->end) a->loops->fill(y, b->nq * row, 0);
    a->loops->fill(b->top, FL__ATT_QUERIES, -INFINITY);
    a->loops->fill(b->sum, FL__ATT_QUERIES, 0);
    fl__att_pack_down(a, b, a->q, a->args->scale, b->q_down);
    while (fl__att_next(a, b)) {
        fl__att_set_prefetch(b, b->item, a->v, NULL);
        fl__att_scores(a, b, a->k, b->q_down, b->s);
        fl__att_set_prefetch(b, b->item + 1, a->q, a->k);
        fl__att_mask(a, b);
        a->loops->softmax(b->s, b->nj, b->width, b->seen, b->top, b->sum, b->rescale);
        if (a->args->p > 0) {
            fl__att_dropout(a, b);
            a->loops->mul(b->s, b->dropout, b->nj, b->width);
        }
        if (b->j0 > b->start) a->loops->scale_rows(y, row, b->nq, a->e, b->rescale);
        fl__att_apply(a, b, b->s, a->v, y, row);
    }
    a->loops->normalise(b->top, b->sum, b->nq, fl__att_at(a->lse, b->item, b->q0, 0),
                        fl__att_step(a->lse)[0]);
    a->loops->scale_rows(y, row, b->nq, a->e, b->sum);
    if (a->narrow) fl__att_round(a, a->y, b->item, b->q0, b->nq, y);
}

static void fl__att_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    fl__att_block b;
    char *workspace = fl__scratch_take(&a->scratch);
    fl__att_layout(a, &b, workspace, false);
    for (int64_t task = begin; task < end; task++) {
        fl__att_begin(a, &b, task / a->query_blocks, task % a->query_blocks);
        fl__att_forward(a, &b);
    }
    fl__scratch_give_back(&a->scratch, workspace);
}

/* >>one query

   Of each head, or of the heads that share a key: `group` rows of q, consecutive along the last batch axis,
   along which k and v have stride 0. The visible keys are cut into parts of FL__ATT_PART, a task each, which
   store y times sum, then top and sum; the parts are merged in order. */

typedef struct fl__att_single {
    fl__attention a;
    int64_t group, start, end, parts, row; /* row: elements that a part stores per query */
} fl__att_single;

static bool fl__att_one_fits(const fl__attention *a) {
    return a->n == 1 && a->items && a->m && a->args->p == 0 && (a->d == 1 || fl__att_step(a->k)[1] == 1) &&
           (a->e == 1 || fl__att_step(a->v)[1] == 1) && a->d > 0 && a->e > 0;
}

/* One block of keys, which stays in the cache for all rows of the group: up to four rows from g on use each
   key together. */
static void fl__att_one_rows(const fl__att_single *o, const fl__att_block *b, int64_t g, int rows,
                             char *left) {
    const fl__attention *a = &o->a;
    fl__segment at = {b->q_down + g * a->d * a->size, fl__att_at(a->k, b->item, b->j0, 0)};
    fl__tile tile = {.segments = 1, .segment = &at, .k = a->d, .rsa = a->d, .csa = 1,
                     .ldb = fl__att_step(a->k)[0], .c = b->s, .ldc = FL__ATT_ROW};
    a->ks->dots[rows](&tile, b->nj);
    for (int i = 0; i < rows; i++) {
        char *s = b->s + i * FL__ATT_ROW * a->size, *y = left + i * o->row * a->size;
        char *top = y + a->e * a->size;
        if (a->args->softcap > 0) a->loops->cap(s, NULL, 1, b->nj, a->args->softcap);
        if (a->mask) { /* keys take the place of a block's queries */
            const char *mask = fl__att_at(a->mask, b->item + g + i, 0, b->j0);
            const int64_t column = fl__att_step(a->mask)[1];
            (a->mask->dtype == FL_B8 ? a->loops->mask_bool : a->loops->add)(s, 1, b->nj, mask, column, 0);
        }
        a->loops->one_softmax(s, b->nj, top, top + a->size, b->rescale);
        a->loops->scale_rows(y, 0, 1, a->e, b->rescale);
    }
    at = (fl__segment){b->s, fl__att_at(a->v, b->item, b->j0, 0)};
    tile.k = b->nj, tile.rsa = FL__ATT_ROW, tile.ldb = fl__att_step(a->v)[0];
    tile.c = left, tile.ldc = o->row, tile.add = true;
    a->ks->axpys[rows](&tile, a->e);
}

static void fl__att_one_block(const fl__att_single *o, const fl__att_block *b, char *left) {
    for (int64_t g = 0, rows; g < o->group; g += rows) {
        rows = o->group - g >= 4 ? 4 : o->group - g >= 2 ? 2 : 1;
        fl__att_one_rows(o, b, g, (int)rows, left + g * o->row * o->a.size);
    }
}

static void fl__att_one_task(void *arg, int64_t begin, int64_t end) {
    const fl__att_single *o = arg;
    const fl__attention *a = &o->a;
    fl__att_block b;
    char *workspace = fl__scratch_take(&a->scratch);
    fl__att_layout(a, &b, workspace, false);
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task / o->parts * o->group, part = task % o->parts;
        const int64_t stop = fl__min(o->end, o->start + (part + 1) * FL__ATT_PART);
        char *left = a->parts[0] + (first * o->parts + part * o->group) * o->row * a->size;
        for (int64_t g = 0; g < o->group; g++) {
            char *q = b.q_down + g * a->d * a->size, *at = left + g * o->row * a->size;
            fl__copy_row(q, a->size, fl__att_at(a->q, first + g, 0, 0), fl__att_step(a->q)[1] * a->size, a->d,
                         (int)a->size);
            a->loops->scale(q, a->d, a->args->scale);
            a->loops->fill(at, o->row, 0);
            a->loops->fill(at + a->e * a->size, 1, -INFINITY);
        }
        b.item = first;
        for (b.j0 = o->start + part * FL__ATT_PART; b.j0 < stop; b.j0 += b.nj) {
            b.nj = fl__min(FL__ATT_ONE_KEYS, stop - b.j0);
            fl__att_one_block(o, &b, left);
        }
    }
    fl__scratch_give_back(&a->scratch, workspace);
}

static bool fl__att_one(const fl__attention *given) {
    fl__att_single o = {.a = *given, .group = 1, .row = given->e + 2};
    fl__attention *a = &o.a;
    fl__att_block b;
    const int last = a->q->ndim - 3;
    if (last >= 0 && a->k->stride[last] == 0 && a->v->stride[last] == 0 &&
        a->q->shape[last] <= FL__ATT_QUERIES)
        o.group = a->q->shape[last];
    fl__att_range(a, a->args->offset, 1, &o.start, &o.end);
    o.parts = fl__ceil_div(o.end - o.start, FL__ATT_PART);
    o.parts += o.parts == 0;
    const int64_t tasks = a->items / o.group * o.parts, keys = fl__min(FL__ATT_PART, o.end - o.start);
    const int64_t grain = fl__ceil_div(1 << 15, (keys + 1) * o.group * fl__min(a->d + a->e, 1 << 20));
    a->keys = FL__ATT_ONE_KEYS;
    if (!fl__scratch_open(&a->scratch, tasks, fl__att_layout(a, &b, NULL, false),
                          a->items * o.parts * o.row * a->size, "attention"))
        return false;
    a->parts[0] = a->scratch.shared;
    fl_parallel(tasks, grain, fl__att_one_task, &o);
    for (int64_t i = 0; i < a->items; i++) {
        const char *left = a->parts[0] + (i / o.group * o.group * o.parts + i % o.group) * o.row * a->size;
        a->loops->one_join(left, o.group * o.row, o.parts, a->e, fl__att_at(a->y, i, 0, 0),
                           fl__att_at(a->lse, i, 0, 0));
    }
    fl__scratch_close(&a->scratch);
    return true;
}

/* >>gradient */

/* Where the task of a split sums dk (0) or dv (1) of its item; *row: the stride of rows. */
static char *fl__att_sum(const fl__attention *a, const fl__att_block *b, int which, int64_t item,
                         int64_t split, int64_t *row) {
    const fl_tensor *t = which ? a->dv : a->dk;
    *row = a->splits > 1 || a->narrow ? t->shape[t->ndim - 1] : fl__att_step(t)[0];
    if (a->splits == 1) return a->narrow ? b->sums[which] : fl__att_at(t, item, 0, 0);
    return a->parts[which] + (item * a->splits + split) * a->m * *row * a->size;
}

/* rescale = dy . y of each query */
static void fl__att_delta(const fl__attention *a, const fl__att_block *b) {
    const int64_t dense[] = {a->e, 1};
    char *row = b->scaled;
    if (!a->widen)
        a->loops->dots(fl__att_at(a->y, b->item, b->q0, 0), fl__att_step(a->y),
                       fl__att_at(a->dy, b->item, b->q0, 0), fl__att_step(a->dy), b->nq, a->e, b->rescale);
    for (int64_t i = 0; i < b->nq && a->widen; i++) {
        fl__att_row(a, a->y, b->item, b->q0 + i, row);
        fl__att_row(a, a->dy, b->item, b->q0 + i, row + a->e * a->size);
        a->loops->dots(row, dense, row + a->e * a->size, dense, 1, a->e, b->rescale + i * a->size);
    }
}

/* One block of queries: its dq, and its contributions to dk and dv. Here top is lse, and rescale is dy .
   y. */
static void fl__att_backward(const fl__attention *a, fl__att_block *b, char *const sum[2],
                             const int64_t row[2]) {
    const bool drops = a->args->p > 0;
    int64_t dq_row;
    char *dq = fl__att_result(a, b, a->dq, &dq_row);
    if (a->narrow && b->start >= b->end) a->loops->fill(dq, b->nq * dq_row, 0);
    fl__att_pack_down(a, b, a->q, a->args->scale, b->q_down);
    fl__att_pack_down(a, b, a->dy, 1, b->dy_down);
    fl__att_pack_across(a, b, a->q, b->q_across);
    fl__att_pack_across(a, b, a->dy, b->dy_across);
    a->loops->fill(b->top, FL__ATT_QUERIES, 0);
    a->loops->fill(b->rescale, FL__ATT_QUERIES, 0);
    fl__copy_row(b->top, a->size, fl__att_at(a->lse, b->item, b->q0, 0), fl__att_step(a->lse)[0] * a->size,
                 b->nq, (int)a->size);
    fl__att_delta(a, b);
    while (fl__att_next(a, b)) {
        fl__att_set_prefetch(b, b->item, a->v, NULL);
        fl__att_scores(a, b, a->k, b->q_down, b->s);
        fl__att_mask(a, b);
        fl__att_set_prefetch(b, b->item + 1, a->q, a->dy);
        fl__att_scores(a, b, a->v, b->dy_down, b->dp);
        fl__att_set_prefetch(b, b->item + 1, a->k, a->y);
        if (drops) {
            fl__att_dropout(a, b);
            a->loops->mul(b->dp, b->dropout, b->nj, b->width);
        }
        a->loops->grads(b->s, b->dp, b->nj, b->width, b->seen, b->top, b->rescale, a->args->scale);
        if (drops) a->loops->mul(b->s, b->dropout, b->nj, b->width);
        if (a->args->softcap > 0) a->loops->mul(b->dp, b->slope, b->nj, b->width);
        fl__att_gather(a, b, b->dp, b->q_across, a->d, sum[0], row[0]);
        fl__att_gather(a, b, b->s, b->dy_across, a->e, sum[1], row[1]);
        fl__att_apply(a, b, b->dp, a->k, dq, dq_row);
    }
    if (a->narrow) fl__att_round(a, a->dq, b->item, b->q0, b->nq, dq);
}

/* Clears the sums of keys that the first block does not see. */
static void fl__att_zero(const fl__attention *a, const fl__att_block *b, char *at, int64_t row,
                         int64_t columns) {
    for (int64_t i = b->start > 0 ? 0 : b->end; i < a->m; i = i + 1 == b->start ? b->end : i + 1)
        memset(at + i * row * a->size, 0, (size_t)(columns * a->size));
}

static void fl__att_backward_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    fl__att_block b;
    char *workspace = fl__scratch_take(&a->scratch);
    fl__att_layout(a, &b, workspace, true);
    for (int64_t task = begin; task < end; task++) {
        const int64_t item = task / a->splits, split = task % a->splits;
        int64_t row[2], first = split * a->split_blocks;
        char *sum[2] = {fl__att_sum(a, &b, 0, item, split, &row[0]),
                        fl__att_sum(a, &b, 1, item, split, &row[1])};
        for (int64_t i = first; i < fl__min(first + a->split_blocks, a->query_blocks); i++) {
            fl__att_begin(a, &b, item, i);
            b.adds = i > first;
            if (!b.adds) fl__att_zero(a, &b, sum[0], row[0], a->d), fl__att_zero(a, &b, sum[1], row[1], a->e);
            fl__att_backward(a, &b, sum, row);
        }
        for (int i = 0; i < 2 && a->narrow && a->splits == 1; i++)
            fl__att_round(a, i ? a->dv : a->dk, item, 0, a->m, sum[i]);
    }
    fl__scratch_give_back(&a->scratch, workspace);
}

/* Task: sums the splits' dk and dv, a row of an item per unit. */
static void fl__att_sum_splits_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    for (int64_t i = begin; i < end; i++)
        for (int which = 0; which < 2; which++) {
            const fl_tensor *t = which ? a->dv : a->dk;
            const int64_t item = i / a->m, j = i % a->m, columns = t->shape[t->ndim - 1];
            const int64_t bytes = columns * a->size, step = bytes * a->m;
            char *part = a->parts[which] + item * a->splits * step + j * bytes;
            char *to = a->narrow ? part : fl__att_at(t, item, j, 0);
            if (to != part) memcpy(to, part, (size_t)bytes);
            for (int64_t s = 1; s < a->splits; s++) a->ks->add(to, part + s * step, columns);
            if (a->narrow) fl__att_round(a, t, item, j, 1, part);
        }
}

/* >>slots */

/* Tiles of 16 and 32 pay if they are filled, and rows or columns are dense; vdpbf16ps pays for f32 in large
   heads, where it saves more than packing costs. */
static const fl__amx_kernels *fl__att_tiles(const fl__attention *a) {
    const fl_tensor *all[] = {a->q, a->k, a->v, a->dy ? a->dy : a->q};
    const int64_t work = a->n * a->m * fl__min(a->d, a->e) / (a->args->causal ? 2 : 1);
    if (fl__min(a->n, a->m) < 16 || fl__min(a->d, a->e) < 16) return NULL;
    if (work < FL__ATT_VDPBF16 && fl__bf16_is_vdpbf16() && !a->widen && !fl__of_bf16()) return NULL;
    for (int i = 0; i < 4; i++)
        if ((a->widen || fl__att_step(all[i])[0] != 1) && fl__att_step(all[i])[1] != 1) return NULL;
    return fl__bf16_tiles(a->q->dtype);
}

static fl__attention fl__att_of(const fl_call *c) {
    static const fl__att_loops *const loops[] = {FL__AT_LEVELS(&fl__attention_loops_f32)[FL__VARIANT_F64] =
                                                     &fl__attention_loops_f64_portable};
    const fl_tensor *q = c->in[0], *v = c->in[2], *mask = c->in[3];
    int nd = q->ndim;
    fl__attention a = {.args = c->args, .q = q, .k = c->in[1], .v = v, .splits = 1, .items = 1,
                       .mask = mask->weak ? NULL : mask, .n = q->shape[nd - 2],
                       .m = v->shape[nd - 2], .d = q->shape[nd - 1], .e = v->shape[nd - 1]};
    const fl_dtype wide = fl_dtype_wide(q->dtype);
    a.ks = fl__gemm_kernels(wide);
    a.loops = loops[fl__variant(wide)];
    if (wide != q->dtype) a.widen = fl__cast_loop(q->dtype, wide), a.narrow = fl__cast_loop(wide, q->dtype);
    a.size = (int64_t)a.ks->size;
    a.wide = a.ks->widest * a.ks->lanes;
    for (int i = 0; i < nd - 2; i++) a.items *= q->shape[i];
    a.query_blocks = fl__ceil_div(a.n, FL__ATT_QUERIES);
    return a;
}

/* Grain for tasks of at least about 2^17 products. */
static int64_t fl__att_grain(const fl__attention *a, int64_t queries) {
    int64_t work = fl__min(queries, a->n) * (a->m + 1) * fl__min(a->d + a->e + 1, 1 << 20);
    return fl__ceil_div(1 << 17, work);
}

/* Allocates the outputs, which must have dense rows; clears them if there is nothing to compute. */
static bool fl__att_make(const fl_call *c, bool clear) {
    for (int i = 0; i < c->n_out; i++) {
        fl_tensor *y = c->out[i];
        if (y->stride[y->ndim - 1] != 1 && y->shape[y->ndim - 1] > 1)
            return fl_fail("fl_%s: the rows of the outputs must be dense",
                           fl_op_get_info(c->op)->name);
        if (!fl_out_make(y)) return false;
        if (clear) memset(fl_data(y), 0, (size_t)fl_numel(y) * fl_dtype_size(y->dtype));
    }
    return true;
}

/* Runs the tasks, and sums the splits of dk and dv. */
static bool fl__att_run(fl__attention *a, int64_t tasks, int64_t grain, fl_task task) {
    fl__att_block b;
    const bool gradient = task == fl__att_backward_task;
    const int64_t rows = a->splits > 1 ? a->items * a->splits * a->m * a->size : 0;
    if (!fl__scratch_open(&a->scratch, tasks, fl__att_layout(a, &b, NULL, gradient),
                        rows * (a->d + a->e), gradient ? "attention_grad" : "attention"))
        return false;
    a->parts[0] = a->scratch.shared;
    a->parts[1] = a->scratch.shared + rows * a->d;
    fl_parallel(tasks, grain, task, a);
    if (a->splits > 1) fl_parallel(a->items * a->m, 64, fl__att_sum_splits_task, a);
    fl__scratch_close(&a->scratch);
    return true;
}

static bool fl__cpu_attention(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    fl__attention a = fl__att_of(c);
    a.tiles = fl__att_tiles(&a);
    a.keys = a.tiles ? FL__ATT_TILED_KEYS : FL__ATT_KEYS;
    if (a.narrow && !a.tiles) return fl__call_widen(c);
    if (!fl__att_make(c, a.m == 0 || a.args->window > 0)) return false;
    a.y = c->out[0];
    a.lse = c->out[1];
    if (fl__att_one_fits(&a)) return fl__att_one(&a);
    return a.items * a.n == 0 ||
           fl__att_run(&a, a.items * a.query_blocks, fl__att_grain(&a, FL__ATT_QUERIES),
                       fl__att_forward_task);
}

static bool fl__cpu_attention_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    fl__attention a = fl__att_of(c);
    const bool nothing = a.items * a.n * a.m == 0;
    a.y = c->in[4], a.lse = c->in[5], a.dy = c->in[6];
    a.tiles = fl__att_tiles(&a);
    a.keys = a.tiles ? FL__ATT_TILED_KEYS : FL__ATT_GRAD_KEYS;
    if (a.narrow && !a.tiles) return fl__call_widen(c);
    if (!fl__att_make(c, nothing || a.args->window > 0)) return false;
    if (nothing) return true;
    a.dq = c->out[0], a.dk = c->out[1], a.dv = c->out[2];
    /* with few heads, about 8 tasks in all, if there are as many blocks */
    a.split_blocks = fl__ceil_div(a.query_blocks, fl__ceil_div(8, a.items));
    a.splits = fl__ceil_div(a.query_blocks, a.split_blocks);
    return fl__att_run(&a, a.items * a.splits,
                       fl__att_grain(&a, a.split_blocks * FL__ATT_QUERIES), fl__att_backward_task);
}

FL_PRIVATE void fl__cpu_attention_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_attention, fl__cpu_attention, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_attention_grad, fl__cpu_attention_grad, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
