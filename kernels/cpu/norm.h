/* kernels/cpu/norm.h - layer norm, RMS norm and their gradients

   A row is what is normalised together; it stays in the L1 cache between the passes over it, so memory is
   read and written once. Rows run in parallel; the gradients of weight and bias are summed over fixed blocks
   of rows, then over the blocks in order. Rows of f16 and bf16 are widened and rounded a few at a time. */
#ifndef FL_CPU_NORM_H
#define FL_CPU_NORM_H
#include "slots.h"
#include "scratch.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_norm_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_NORM_IMPL
#define FL_CPU_NORM_IMPL
#include "../../fl/records/norm.h"
FL__LOOPS_BEGIN

enum {
    FL__NORM_PARTS = 64,       /* most blocks of rows */
    FL__NORM_BLOCK = 1 << 11   /* elements of f16 or bf16 rows that are widened together */
};

typedef struct fl__norm {
    const void *x, *w, *b, *dy;        /* rows of n; w and b: one row each */
    void *y, *mean, *rstd;             /* mean, rstd: one number per row */
    void *dx, *dw, *db, *part;         /* NULL if not wanted; part [blocks][2][n] */
    int64_t rows, n, rows_of_block, blocks, part_size; /* part_size: bytes of a block's part */
    double eps;
    bool rms;
    const struct fl__norm_kernels *kernels;
    fl__loop widen, narrow;            /* for f16 and bf16, or NULL */
    fl__scratch scratch;
} fl__norm;

typedef void (*fl__norm_rows)(const fl__norm *s, int64_t begin, int64_t end, void *part);
typedef struct fl__norm_kernels {
    fl__norm_rows rows, grad_rows;
    void (*grad_parts)(const fl__norm *s, int64_t begin, int64_t end);
} fl__norm_kernels;

#define FL__LEVEL_TEXT "norm.inc"
#define FL__UNIT norm
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
static const fl__norm_kernels *const fl__norm_kernels_of[FL__VARIANTS] = {
    FL__AT_FLOATS(&fl__norm_kernels)};

/* Whether t has x's dtype (as_x) or the kernels' wide one. */
static bool fl__norm_takes(const fl_tensor *t, const fl_tensor *x, bool as_x) {
    return t->weak || t->dtype == (as_x ? x->dtype : fl_dtype_wide(x->dtype));
}

/* Whether the kernels take the record: x is not empty and contiguous, and all dtypes match. Then fills *s. */
static bool fl__norm_begin(fl__norm *s, const fl_call *c) {
    const fl_norm_args *a = c->args;
    const fl_tensor *x = c->in[0];
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    *s = (fl__norm){.n = 1, .eps = a->eps, .rms = a->rms};
    s->kernels = fl__norm_kernels_of[fl__variant(wide)];
    for (int i = x->ndim - a->dims; i < x->ndim; i++) s->n *= x->shape[i];
    int64_t numel = fl_numel(x);
    if (numel == 0 || !s->kernels) return false;
    for (int i = 1; i < c->n_in; i++)
        if (!fl__norm_takes(c->in[i], x, i == 4)) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && (!fl__norm_takes(c->out[i], x, i == 0) || !fl_is_contiguous(c->out[i])))
            return false;
    s->rows = numel / s->n;
    s->x = fl_data(x);
    if (wide != x->dtype) {
        s->widen = fl__cast_loop(x->dtype, wide);
        s->narrow = fl__cast_loop(wide, x->dtype);
    }
    return true;
}

/* Rows of f16 or bf16 that are widened together. */
static int64_t fl__norm_block(const fl__norm *s) {
    return s->n < FL__NORM_BLOCK ? FL__NORM_BLOCK / s->n : 1;
}

/* Allocates `shared` rows, and for f16 and bf16 three blocks of rows per task. */
static bool fl__norm_open(fl__norm *s, int64_t tasks, int64_t shared, fl_dtype d, const char *op) {
    const int64_t row = s->n * (int64_t)fl_dtype_size(fl_dtype_wide(d));
    return fl__scratch_open(&s->scratch, tasks, s->widen ? 3 * fl__norm_block(s) * row : 0, shared * row, op);
}

/* A row of weight or bias; a number is broadcast to a row at `buffer`. */
static const void *fl__norm_row(const fl_tensor *w, fl_dtype d, int64_t n, char *buffer) {
    if (!w->weak) return fl_data(w);
    uint64_t bits = fl__weak_bits(w, d);
    fl__fill_row(buffer, (const char *)&bits, n, (int)fl_dtype_size(d));
    return buffer;
}

/* Rows of f16 or bf16: everything else is f32. */
static void fl__norm_narrow(const fl__norm *s, int64_t begin, int64_t end, void *part) {
    const int64_t piece = fl__norm_block(s);
    float *x = (float *)(void *)fl__scratch_take(&s->scratch), *y = x + piece * s->n, *dy = y + piece * s->n;
    uint16_t *to = s->dy ? s->dx : s->y;
    fl__norm w = *s;
    w.x = x, w.y = y, w.dy = dy, w.dx = s->dx ? y : NULL;
    for (int64_t r = begin, rows; r < end; r += rows) {
        rows = fl__min(piece, end - r);
        const int64_t at = r * s->n, n = rows * s->n;
        s->widen((void *[]){x, (uint16_t *)(uintptr_t)s->x + at}, n, NULL);
        if (s->dy) s->widen((void *[]){dy, (uint16_t *)(uintptr_t)s->dy + at}, n, NULL);
        if (s->mean) w.mean = (float *)s->mean + r;
        w.rstd = (float *)s->rstd + r;
        (s->dy ? s->kernels->grad_rows : s->kernels->rows)(&w, 0, rows, part);
        if (to) s->narrow((void *[]){to + at, y}, n, NULL);
    }
    fl__scratch_give_back(&s->scratch, (char *)x);
}

static void fl__norm_rows_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    (s->widen ? fl__norm_narrow : s->kernels->rows)(s, begin, end, NULL);
}

static bool fl__cpu_layer_norm(const fl_backend *self, const fl_call *c) {
    fl__norm s;
    (void)self;
    if (!fl__norm_begin(&s, c)) return fl_call_compose(c);
    const fl_dtype d = c->out[2]->dtype;
    const int64_t grain = fl__ceil_div(FL__GRAIN, s.n);
    for (int i = 0; i < 3; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    if (!fl__norm_open(&s, fl__ceil_div(s.rows, grain), 2, d, "layer_norm")) return false;
    s.w = fl__norm_row(c->in[1], d, s.n, s.scratch.shared);
    s.b = fl__norm_row(c->in[2], d, s.n, s.scratch.shared + s.n * (int64_t)fl_dtype_size(d));
    s.y = fl_data(c->out[0]);
    s.mean = c->out[1] ? fl_data(c->out[1]) : NULL;
    s.rstd = fl_data(c->out[2]);
    fl_parallel(s.rows, grain, fl__norm_rows_task, &s);
    fl__scratch_close(&s.scratch);
    return true;
}

/* Task: blocks of rows, and their parts of dw and db. */
static void fl__norm_grad_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    const fl__norm_rows run = s->widen ? fl__norm_narrow : s->kernels->grad_rows;
    for (int64_t block = begin; block < end; block++) {
        char *part = s->part ? (char *)s->part + block * s->part_size : NULL;
        const int64_t first = block * s->rows_of_block;
        if (part) memset(part, 0, (size_t)s->part_size);
        run(s, first, fl__min(s->rows, first + s->rows_of_block), part);
    }
}

static void fl__norm_parts_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    s->kernels->grad_parts(s, begin, end);
}

static bool fl__cpu_layer_norm_grad(const fl_backend *self, const fl_call *c) {
    fl__norm s;
    (void)self;
    if (!fl__norm_begin(&s, c)) return fl_call_compose(c);
    const fl_dtype d = c->in[3]->dtype;
    const int64_t row = s.n * (int64_t)fl_dtype_size(d);
    void **out[] = {&s.dx, &s.dw, &s.db};
    for (int i = 0; i < 3; i++) {
        if (!c->out[i]) continue;
        if (!fl_out_make(c->out[i])) return false;
        *out[i] = fl_data(c->out[i]);
    }
    s.rows_of_block = fl__ceil_div(s.rows, FL__NORM_PARTS);
    if (s.rows_of_block < 8) s.rows_of_block = 8;
    s.blocks = fl__ceil_div(s.rows, s.rows_of_block);
    const bool sums = s.dw || s.db;
    if (!fl__norm_open(&s, s.blocks, 1 + (sums ? 2 * s.blocks : 0), d, "layer_norm_grad")) return false;
    s.w = fl__norm_row(c->in[1], d, s.n, s.scratch.shared);
    s.mean = s.rms ? NULL : fl_data(c->in[2]);
    s.rstd = fl_data(c->in[3]);
    s.dy = fl_data(c->in[4]);
    s.part = sums ? s.scratch.shared + row : NULL;
    s.part_size = 2 * row;
    fl_parallel(s.blocks, 1, fl__norm_grad_task, &s);
    if (sums) fl_parallel(s.n, fl__ceil_div(FL__GRAIN, s.blocks), fl__norm_parts_task, &s);
    fl__scratch_close(&s.scratch);
    return true;
}

FL_PRIVATE void fl__cpu_norm_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_layer_norm, fl__cpu_layer_norm, FL_SLOT_CONTIGUOUS | FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_layer_norm_grad, fl__cpu_layer_norm_grad, FL_SLOT_CONTIGUOUS | FL_SLOT_NARROW);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
