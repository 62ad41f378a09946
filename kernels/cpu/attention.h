/* kernels/cpu/attention.h - attention and its gradient without a score matrix in memory

   A block of 64 queries walks over the keys, 128 at a time. Scores are computed transposed, keys by
   queries: then the tiles of gemm.h read keys, values and gradients where they lie, with any
   stride between their rows (heads are views), and what belongs to a query is a lane of a register.
   Only the queries of a block are packed, once.

     forward    s = k q^T scale, p = exp(s - top so far), y = y exp(top before - top) + p^T v;
                at the end y /= sum, and lse = top + log sum is saved for
     gradient   p = exp(s - lse), dv += p dy, dp = v dy^T, ds = p (dp - dy . y) scale,
                dk += ds q, dq += ds^T k

   Forward, one task is one block of queries. In the gradient it is all queries of one head; with
   few heads the queries are cut into parts, whose dk and dv are added in order. Keys that are
   hidden from all queries of a block (causal) are not looked at. */
#include "common.h"
#include "gemm.h"
#ifndef FL_CPU_ATTENTION_H
#define FL_CPU_ATTENTION_H
#endif

#if defined(FL_IMPL_ONLY_CPU_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ATTENTION_IMPL
#define FL_CPU_ATTENTION_IMPL

enum { FL__ATT_QUERIES = 64, FL__ATT_KEYS = 128 };
#define FL__ATT_PANEL 65536 /* bytes of packed queries: all of d up to 256, else in chunks */

/* >>loops: see attention_loops.h */
typedef struct fl__att_loops {
    void (*scale)(void *x, int64_t n, double by);
    void (*mul)(void *x, const void *by, int64_t n);
    void (*scale_rows)(void *y, int64_t row, int64_t n, int64_t columns, const void *by);
    void (*hide_future)(void *scores, int64_t keys, int64_t width, int64_t first);
    void (*choose)(void *scores, int64_t keys, int64_t queries, const void *mask, int64_t row,
                   int64_t column);
    void (*add)(void *scores, int64_t keys, int64_t queries, const void *mask, int64_t row,
                int64_t column);
    void (*softmax)(void *scores, int64_t keys, int64_t width, void *top, void *sum, void *fix);
    void (*close)(const void *top, void *sum, int64_t queries, void *lse, int64_t step);
    void (*dots)(const void *y, int64_t y_row, const void *dy, int64_t dy_row, int64_t queries,
                 int64_t columns, void *delta);
    void (*grads)(void *s, void *dp, int64_t keys, int64_t width, const void *lse,
                  const void *delta, double scale);
    void (*keep)(void *keep, int64_t keys, int64_t queries, uint64_t first, uint64_t row,
                 const fl_attention_args *a);
} fl__att_loops;

FL__LOOPS_BEGIN
#ifndef __clang__
#pragma GCC optimize("fp-contract=fast")
#endif
#define FL__T float
#define FL__S f32
#define FL__FN(name) fl__att_f32_portable_##name
#define FL__TARGET
#include "attention_loops.h"
#define FL__T double
#define FL__S f64
#define FL__FN(name) fl__att_f64_##name
#define FL__TARGET
#include "attention_loops.h"
#ifdef FL__X86_LEVELS
#define FL__T float
#define FL__S f32
#define FL__FN(name) fl__att_f32_avx2_##name
#define FL__TARGET FL__TARGET_AVX2
#include "attention_loops.h"
#define FL__T float
#define FL__S f32
#define FL__FN(name) fl__att_f32_avx512_##name
#define FL__TARGET FL__TARGET_AVX512
#include "attention_loops.h"
#endif
FL__LOOPS_END

static const fl__att_loops *fl__att_loops_of(fl_dtype d) {
    if (d == FL_F64) return &fl__att_f64_loops;
#ifdef FL__X86_LEVELS
    if (fl__cpu_isa() == FL__AVX512) return &fl__att_f32_avx512_loops;
    if (fl__cpu_isa() == FL__AVX2) return &fl__att_f32_avx2_loops;
#endif
    return &fl__att_f32_portable_loops;
}

/* >>blocks */

/* A call. Operands are [..., rows, columns]; an item is one head of one sequence. */
typedef struct fl__attention {
    const fl_attention_args *args;
    const fl__kernels *ks;
    const fl__att_loops *loops;
    const fl_tensor *q, *k, *v, *mask, *y, *lse, *dy, *dq, *dk, *dv; /* mask NULL: none */
    int64_t items, n, m, d, e;
    int64_t query_blocks, splits, split_blocks; /* of the gradient: query blocks a task has */
    char *parts[2]; /* dk, dv of each item and split, if splits > 1 */
} fl__attention;

/* One task's room, and where it is. */
typedef struct fl__att_block {
    _Alignas(64) char scores[FL__ATT_KEYS * FL__ATT_QUERIES * 8];
    _Alignas(64) char dp[FL__ATT_KEYS * FL__ATT_QUERIES * 8];
    _Alignas(64) char keep[FL__ATT_KEYS * FL__ATT_QUERIES * 8];
    _Alignas(64) char queries[FL__ATT_PANEL], dys[FL__ATT_PANEL];
    _Alignas(64) char top[FL__ATT_QUERIES * 8], sum[FL__ATT_QUERIES * 8], fix[FL__ATT_QUERIES * 8];
    int64_t item, q0, nq, width; /* queries, and columns computed */
    int64_t j0, nj;              /* keys */
} fl__att_block;

/* Element [item][row][0]. */
static char *fl__att_at(const fl_tensor *t, int64_t item, int64_t row) {
    int64_t at = row * t->stride[t->ndim - 2];
    for (int i = t->ndim - 3; i >= 0; i--) {
        at += item % t->shape[i] * t->stride[i];
        item /= t->shape[i];
    }
    return (char *)fl_data(t) + at * (int64_t)fl_dtype_size(t->dtype);
}

static int64_t fl__att_row(const fl_tensor *t) { return t->stride[t->ndim - 2]; }

/* C (+)= A B in tiles of equal height; A has any strides, B and C dense rows. No tile is three
   registers wide, so none reads a whole register past a row of B. */
static void fl__att_product(const fl__gemm *g) {
    const fl__kernels *ks = g->ks;
    const int64_t size = (int64_t)ks->size, widest = ks->widest * ks->lanes;
    const int64_t tiles = fl__ceil_div(g->m, ks->short_rows), height = g->m / tiles;
    fl__segment s;
    fl__tile t = {.segments = 1, .segment = &s, .k = g->k, .rsa = g->rsa, .csa = g->csa,
                  .ldb = g->rsb, .ldc = g->ldc, .add = g->add};
    for (int64_t j = 0, columns; j < g->n; j += columns) {
        columns = fl__min(g->n - j, widest);
        if (columns > 2 * ks->lanes && columns <= 3 * ks->lanes) columns = 2 * ks->lanes;
        s.b = g->b + j * size;
        for (int64_t i = 0, rows, taller = g->m % tiles; i < g->m; i += rows, taller--) {
            rows = taller > 0 ? height + 1 : height;
            s.a = g->a + i * g->rsa * size;
            t.c = g->c + (i * g->ldc + j) * size;
            fl__gemm_tile(ks, (int)rows, (int)columns, &t);
        }
    }
}

/* Packs columns d0 .. d0 + nd of the block's rows of t: [nd][64], zeros behind the last query. */
static void fl__att_pack(const fl__attention *a, const fl__att_block *b, const fl_tensor *t,
                         int64_t d0, int64_t nd, char *panel) {
    const int64_t size = (int64_t)a->ks->size, column = t->stride[t->ndim - 1];
    if (b->nq < b->width) memset(panel, 0, (size_t)(nd * FL__ATT_QUERIES * size));
    a->ks->pack(panel, FL__ATT_QUERIES, b->nq, nd,
                fl__att_at(t, b->item, b->q0) + d0 * column * size, fl__att_row(t), column);
}

/* out = rows j0 .. of keys times the block's rows of t, transposed, times `by`; [nj][64]. The panel
   is packed for the first keys, and again only where d has several chunks. */
static void fl__att_scores(const fl__attention *a, fl__att_block *b, const fl_tensor *keys,
                           const fl_tensor *t, double by, char *panel, char *out) {
    const int64_t size = (int64_t)a->ks->size, d = t->shape[t->ndim - 1];
    const int64_t most = FL__ATT_PANEL / (FL__ATT_QUERIES * size);
    const int64_t column = keys->stride[keys->ndim - 1];
    fl__gemm g = {.ks = a->ks, .m = b->nj, .n = b->width, .rsa = fl__att_row(keys), .csa = column,
                  .b = panel, .rsb = FL__ATT_QUERIES, .c = out, .ldc = FL__ATT_QUERIES};
    if (d == 0) memset(out, 0, (size_t)(b->nj * FL__ATT_QUERIES * size));
    for (int64_t d0 = 0; d0 < d; d0 += g.k) {
        g.k = fl__min(most, d - d0);
        if (d > most || b->j0 == 0) {
            fl__att_pack(a, b, t, d0, g.k, panel);
            if (by != 1) a->loops->scale(panel, g.k * FL__ATT_QUERIES, by);
        }
        g.a = fl__att_at(keys, b->item, b->j0) + d0 * column * size;
        g.add = d0 > 0;
        fl__att_product(&g);
    }
}

/* What the masks leave of the scores. */
static void fl__att_mask(const fl__attention *a, fl__att_block *b) {
    if (a->args->causal && b->j0 + b->nj - 1 > b->q0)
        a->loops->hide_future(b->scores, b->nj, b->width, b->j0 - b->q0);
    if (!a->mask) return;
    const fl_tensor *mask = a->mask;
    const int64_t column = mask->stride[mask->ndim - 1];
    const char *at = fl__att_at(mask, b->item, b->q0);
    at += b->j0 * column * (int64_t)fl_dtype_size(mask->dtype);
    if (mask->dtype == FL_B8)
        a->loops->choose(b->scores, b->nj, b->nq, at, fl__att_row(mask), column);
    else a->loops->add(b->scores, b->nj, b->nq, at, fl__att_row(mask), column);
}

/* x *= keep, of the block's scores. */
static void fl__att_keep(const fl__attention *a, fl__att_block *b) {
    const uint64_t first = (uint64_t)((b->item * a->n + b->q0) * a->m + b->j0);
    memset(b->keep, 0, (size_t)(b->nj * FL__ATT_QUERIES) * a->ks->size);
    a->loops->keep(b->keep, b->nj, b->nq, first, (uint64_t)a->m, a->args);
}

static void fl__att_begin(const fl__attention *a, fl__att_block *b, int64_t item, int64_t block) {
    b->item = item;
    b->q0 = block * FL__ATT_QUERIES;
    b->nq = fl__min(FL__ATT_QUERIES, a->n - b->q0);
    b->width = fl__ceil_div(b->nq, 16) * 16;
    b->j0 = -FL__ATT_KEYS;
}

/* The next keys that a query of the block may see. */
static bool fl__att_next(const fl__attention *a, fl__att_block *b) {
    int64_t end = a->args->causal ? fl__min(a->m, b->q0 + b->nq) : a->m;
    b->j0 += FL__ATT_KEYS;
    b->nj = fl__min(FL__ATT_KEYS, end - b->j0);
    return b->nj > 0;
}

/* >>forward */

static void fl__att_forward(const fl__attention *a, fl__att_block *b) {
    const int64_t row = fl__att_row(a->y), size = (int64_t)a->ks->size;
    char *y = fl__att_at(a->y, b->item, b->q0);
    fl__gemm g = {.ks = a->ks, .m = b->nq, .n = a->e, .rsa = 1, .csa = FL__ATT_QUERIES,
                  .a = b->scores, .rsb = fl__att_row(a->v), .c = y, .ldc = row};
    double nothing = -INFINITY;
    memset(b->sum, 0, sizeof b->sum);
    for (int64_t i = 0; i < FL__ATT_QUERIES; i++)
        fl_number_store(a->y->dtype, b->top + i * size, (fl_number){true, nothing, 0});
    while (fl__att_next(a, b)) {
        fl__att_scores(a, b, a->k, a->q, a->args->scale, b->queries, b->scores);
        fl__att_mask(a, b);
        a->loops->softmax(b->scores, b->nj, b->width, b->top, b->sum, b->fix);
        if (a->args->p > 0) {
            fl__att_keep(a, b);
            a->loops->mul(b->scores, b->keep, b->nj * FL__ATT_QUERIES);
        }
        if (b->j0 > 0) a->loops->scale_rows(y, row, b->nq, a->e, b->fix);
        g.k = b->nj;
        g.b = fl__att_at(a->v, b->item, b->j0);
        g.add = b->j0 > 0;
        fl__att_product(&g);
    }
    a->loops->close(b->top, b->sum, b->nq, fl__att_at(a->lse, b->item, b->q0),
                    fl__att_row(a->lse));
    a->loops->scale_rows(y, row, b->nq, a->e, b->sum);
}

static void fl__att_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    fl__att_block b;
    for (int64_t task = begin; task < end; task++) {
        fl__att_begin(a, &b, task / a->query_blocks, task % a->query_blocks);
        fl__att_forward(a, &b);
    }
}

/* >>gradient */

/* Where the task of split s adds up dk (0) or dv (1) of its item, and how far its rows are apart. */
static char *fl__att_sum(const fl__attention *a, int which, int64_t item, int64_t split,
                         int64_t *row) {
    const fl_tensor *t = which ? a->dv : a->dk;
    *row = a->splits > 1 ? t->shape[t->ndim - 1] : fl__att_row(t);
    if (a->splits == 1) return fl__att_at(t, item, 0);
    return a->parts[which] + (item * a->splits + split) * a->m * *row * (int64_t)a->ks->size;
}

/* p^T of the block times its rows of t, added to rows j0 .. of sum. */
static void fl__att_gather(const fl__attention *a, const fl__att_block *b, const char *p,
                           const fl_tensor *t, char *sum, int64_t row) {
    fl__gemm g = {.ks = a->ks, .m = b->nj, .n = t->shape[t->ndim - 1], .k = b->nq, .a = p,
                  .rsa = FL__ATT_QUERIES, .csa = 1, .b = fl__att_at(t, b->item, b->q0),
                  .rsb = fl__att_row(t), .c = sum + b->j0 * row * (int64_t)a->ks->size,
                  .ldc = row, .add = true};
    fl__att_product(&g);
}

/* One block of queries: its dq, and what it adds to dk and dv. */
static void fl__att_backward(const fl__attention *a, fl__att_block *b, char *const sum[2],
                             const int64_t row[2]) {
    fl__gemm g = {.ks = a->ks, .m = b->nq, .n = a->d, .rsa = 1, .csa = FL__ATT_QUERIES, .a = b->dp,
                  .rsb = fl__att_row(a->k), .ldc = fl__att_row(a->dq),
                  .c = fl__att_at(a->dq, b->item, b->q0)};
    const char *lse = fl__att_at(a->lse, b->item, b->q0);
    memset(b->fix, 0, sizeof b->fix);
    memset(b->top, 0, sizeof b->top);
    memcpy(b->top, lse, (size_t)b->nq * a->ks->size);
    a->loops->dots(fl__att_at(a->y, b->item, b->q0), fl__att_row(a->y),
                   fl__att_at(a->dy, b->item, b->q0), fl__att_row(a->dy), b->nq, a->e, b->fix);
    while (fl__att_next(a, b)) {
        int64_t all = b->nj * FL__ATT_QUERIES;
        fl__att_scores(a, b, a->k, a->q, a->args->scale, b->queries, b->scores);
        fl__att_mask(a, b);
        fl__att_scores(a, b, a->v, a->dy, 1, b->dys, b->dp);
        if (a->args->p > 0) {
            fl__att_keep(a, b);
            a->loops->mul(b->dp, b->keep, all);
        }
        a->loops->grads(b->scores, b->dp, b->nj, b->width, b->top, b->fix, a->args->scale);
        if (a->args->p > 0) a->loops->mul(b->scores, b->keep, all);
        fl__att_gather(a, b, b->dp, a->q, sum[0], row[0]);
        fl__att_gather(a, b, b->scores, a->dy, sum[1], row[1]);
        g.k = b->nj;
        g.b = fl__att_at(a->k, b->item, b->j0);
        g.add = b->j0 > 0;
        fl__att_product(&g);
    }
}

static void fl__att_zero(const fl__attention *a, char *at, int64_t row, int64_t columns) {
    const int64_t size = (int64_t)a->ks->size;
    for (int64_t i = 0; i < a->m; i++) memset(at + i * row * size, 0, (size_t)(columns * size));
}

static void fl__att_backward_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    fl__att_block b;
    for (int64_t task = begin; task < end; task++) {
        const int64_t item = task / a->splits, split = task % a->splits;
        int64_t row[2], first = split * a->split_blocks;
        char *sum[2] = {fl__att_sum(a, 0, item, split, &row[0]),
                        fl__att_sum(a, 1, item, split, &row[1])};
        fl__att_zero(a, sum[0], row[0], a->d);
        fl__att_zero(a, sum[1], row[1], a->e);
        for (int64_t i = first; i < fl__min(first + a->split_blocks, a->query_blocks); i++) {
            fl__att_begin(a, &b, item, i);
            fl__att_backward(a, &b, sum, row);
        }
    }
}

/* dk and dv from the parts, a row of an item each. */
static void fl__att_join_task(void *arg, int64_t begin, int64_t end) {
    const fl__attention *a = arg;
    for (int64_t i = begin; i < end; i++)
        for (int which = 0; which < 2; which++) {
            const fl_tensor *t = which ? a->dv : a->dk;
            const int64_t item = i / a->m, j = i % a->m, columns = t->shape[t->ndim - 1];
            const size_t bytes = (size_t)columns * a->ks->size, step = bytes * (size_t)a->m;
            const char *part = a->parts[which] + (size_t)(item * a->splits) * step +
                               (size_t)j * bytes;
            char *to = fl__att_at(t, item, j);
            memcpy(to, part, bytes);
            for (int64_t s = 1; s < a->splits; s++)
                a->ks->add(to, part + (size_t)s * step, columns);
        }
}

/* >>slots */

/* True if the rows of t are dense, as what the tiles read as B and write must be. */
static bool fl__att_dense(const fl_tensor *t) {
    return t->stride[t->ndim - 1] == 1 || t->shape[t->ndim - 1] <= 1;
}

static fl__attention fl__att_of(const fl_call *c) {
    const fl_tensor *q = c->in[0], *v = c->in[2], *mask = c->in[3];
    int nd = q->ndim;
    fl__attention a = {.args = c->args, .q = q, .k = c->in[1], .v = v, .splits = 1,
                       .mask = mask->weak ? NULL : mask, .n = q->shape[nd - 2],
                       .m = v->shape[nd - 2], .d = q->shape[nd - 1], .e = v->shape[nd - 1]};
    a.ks = fl__gemm_kernels(q->dtype);
    a.loops = fl__att_loops_of(q->dtype);
    a.items = 1;
    for (int i = 0; i < nd - 2; i++) a.items *= q->shape[i];
    a.query_blocks = fl__ceil_div(a.n, FL__ATT_QUERIES);
    return a;
}

/* Tasks of at least about 2^17 products. */
static int64_t fl__att_grain(const fl__attention *a, int64_t queries) {
    int64_t work = queries * (a->m + 1) * fl__min(a->d + a->e + 1, 1 << 20);
    return fl__ceil_div(1 << 17, work);
}

/* Runs the record with dense copies of the operands whose rows are not. */
static bool fl__att_settle(const fl_call *c) {
    fl_scope s = fl_scope_begin();
    fl_call d = *c;
    bool ok = true;
    for (int i = 0; ok && i < c->n_in; i++)
        if (!d.in[i]->weak && d.in[i]->dtype != FL_B8)
            ok = (d.in[i] = fl_contiguous(d.in[i])) != NULL;
    ok = ok && fl_run(&d);
    fl_scope_end(&s);
    return ok;
}

/* True if the slot can run c as it is. */
static bool fl__att_takes(const fl_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (i != 3 && !fl__att_dense(c->in[i])) return false;
    return c->n_in < 6 || fl_is_contiguous(c->in[5]);
}

/* Storage for the outputs, cleared where the loops only add to them or have nothing to do. */
static bool fl__att_make(const fl_call *c, bool clear) {
    for (int i = 0; i < c->n_out; i++) {
        fl_tensor *y = c->out[i];
        if (!fl__att_dense(y))
            return fl_fail("fl_%s: the rows of the outputs must be dense",
                           fl_op_get_info(c->op)->name);
        if (!fl_make(y)) return false;
        if (clear) memset(fl_data(y), 0, (size_t)fl_numel(y) * fl_dtype_size(y->dtype));
    }
    return true;
}

FL_PRIVATE bool fl__cpu_attention(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_dtype d = c->in[0]->dtype;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    if (!fl__att_takes(c)) return fl__att_settle(c);
    fl__attention a = fl__att_of(c);
    if (!fl__att_make(c, a.m == 0)) return false;
    a.y = c->out[0];
    a.lse = c->out[1];
    fl_parallel(a.items * a.query_blocks, fl__att_grain(&a, FL__ATT_QUERIES),
                fl__att_forward_task, &a);
    return true;
}

/* With few heads the queries are cut into about 8 tasks together, if there are as many blocks. */
static bool fl__att_split(fl__attention *a, fl_buffer **scratch) {
    int64_t splits = fl__min(fl__ceil_div(8, a->items), fl__ceil_div(a->query_blocks, 2));
    a->split_blocks = fl__ceil_div(a->query_blocks, splits);
    a->splits = fl__ceil_div(a->query_blocks, a->split_blocks);
    if (a->splits == 1) return true;
    const int64_t rows = a->items * a->splits * a->m, size = (int64_t)a->ks->size;
    *scratch = fl__gemm_scratch(rows * (a->d + a->e), a->ks->size, "attention_grad");
    a->parts[0] = *scratch ? fl_buffer_map(*scratch) : NULL;
    if (a->parts[0]) a->parts[1] = a->parts[0] + rows * a->d * size;
    return a->parts[0] != NULL;
}

static bool fl__att_gradient(fl__attention *a) {
    fl_buffer *scratch = NULL;
    bool ok = fl__att_split(a, &scratch);
    if (ok) {
        fl_parallel(a->items * a->splits,
                    fl__att_grain(a, a->split_blocks * FL__ATT_QUERIES), fl__att_backward_task, a);
        if (a->splits > 1) fl_parallel(a->items * a->m, 64, fl__att_join_task, a);
        if (scratch) fl_buffer_unmap(scratch);
    }
    fl_buffer_drop(scratch);
    return ok;
}

FL_PRIVATE bool fl__cpu_attention_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_dtype d = c->in[0]->dtype;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    if (!fl__att_takes(c)) return fl__att_settle(c);
    fl__attention a = fl__att_of(c);
    bool nothing = a.items * a.n * a.m == 0;
    if (!fl__att_make(c, nothing)) return false;
    a.y = c->in[4], a.lse = c->in[5], a.dy = c->in[6];
    a.dq = c->out[0], a.dk = c->out[1], a.dv = c->out[2];
    return nothing || fl__att_gradient(&a);
}

#endif
#endif
/* MIT licence: see LICENSE. */
