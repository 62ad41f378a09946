/* kernels/cpu/norm.h - layer norm and its gradient

   A row is one that layer norm normalises: it stays in the first-level cache between the passes
   over it, so memory is read and written once. Rows run in parallel; the gradients of weight and
   bias are summed over fixed blocks of rows, then over the blocks in their order. */
#ifndef FL_CPU_NORM_H
#define FL_CPU_NORM_H
#include "common.h"
#include "gemm.h"
/* Puts the slots of this file into the table. */
FL_PRIVATE void fl__cpu_norm_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_NORM_IMPL
#define FL_CPU_NORM_IMPL
#include "../../fl/ops/norm.h"
FL__LOOPS_BEGIN

enum { FL__NORM_PARTS = 64 /* most blocks of rows */ };

typedef struct fl__norm {
    const void *x, *w, *b, *dy;        /* rows of n; w and b one each */
    void *y, *mean, *rstd;             /* mean, rstd: a number a row */
    void *dx, *dw, *db, *part;         /* NULL where not wanted; part [blocks][2][n] */
    int64_t rows, n, rows_of_block, blocks;
    double eps;
    bool rms;
    const struct fl__norm_kernels *kernels;
} fl__norm;

typedef struct fl__norm_kernels {
    void (*rows)(const fl__norm *s, int64_t begin, int64_t end);
    void (*grad_rows)(const fl__norm *s, int64_t block);
    void (*grad_parts)(const fl__norm *s, int64_t begin, int64_t end);
} fl__norm_kernels;

#define FL__LEVEL_TEXT "norm.inc"
#define FL__UNIT norm
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
static const fl__norm_kernels *const fl__norm_kernels_of[FL__VARIANTS] = {
    FL__AT_FLOATS(&fl__norm_kernels)};

/* Whether the kernels take the record: c->in[0] and the result of its dtype, not empty. Then *s has
   its sizes. */
static bool fl__norm_begin(fl__norm *s, const fl_call *c) {
    const fl_norm_args *a = c->args;
    const fl_tensor *x = c->in[0];
    *s = (fl__norm){.n = 1, .eps = a->eps, .rms = a->rms};
    s->kernels = fl__norm_kernels_of[fl__variant(x->dtype)];
    for (int i = x->ndim - a->dims; i < x->ndim; i++) s->n *= x->shape[i];
    int64_t numel = fl_numel(x);
    if (numel == 0 || !s->kernels) return false;
    for (int i = 0; i < c->n_in; i++)
        if (!c->in[i]->weak && c->in[i]->dtype != x->dtype) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && (c->out[i]->dtype != x->dtype || !fl_is_contiguous(c->out[i])))
            return false;
    s->rows = numel / s->n;
    s->x = fl_data(x);
    return true;
}

/* Weight or bias: a number becomes a row of it at `room`. */
static const void *fl__norm_row(const fl_tensor *w, fl_dtype d, int64_t n, char *room) {
    if (!w->weak) return fl_data(w);
    uint64_t bits = fl__weak_bits(w, d);
    fl__fill_row(room, (const char *)&bits, n, (int)fl_dtype_size(d));
    return room;
}

static void fl__norm_rows_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    s->kernels->rows(s, begin, end);
}

static bool fl__cpu_layer_norm(const fl_backend *self, const fl_call *c) {
    fl__norm s;
    (void)self;
    if (!fl__norm_begin(&s, c)) return fl_call_compose(c);
    fl_dtype d = c->in[0]->dtype;
    int64_t row = s.n * (int64_t)fl_dtype_size(d);
    for (int i = 0; i < 3; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    fl_buffer *scratch = fl__gemm_scratch(2 * row, 1, "layer_norm");
    char *room = scratch ? fl_buffer_map(scratch) : NULL;
    if (room) {
        s.w = fl__norm_row(c->in[1], d, s.n, room);
        s.b = fl__norm_row(c->in[2], d, s.n, room + row);
        s.y = fl_data(c->out[0]);
        s.mean = c->out[1] ? fl_data(c->out[1]) : NULL;
        s.rstd = fl_data(c->out[2]);
        fl_parallel(s.rows, fl__ceil_div(FL__GRAIN, s.n), fl__norm_rows_task, &s);
        fl_buffer_unmap(scratch);
    }
    fl_buffer_drop(scratch);
    return room != NULL;
}

static void fl__norm_grad_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    for (int64_t block = begin; block < end; block++) s->kernels->grad_rows(s, block);
}

static void fl__norm_parts_task(void *arg, int64_t begin, int64_t end) {
    const fl__norm *s = arg;
    s->kernels->grad_parts(s, begin, end);
}

static void fl__norm_grad_run(fl__norm *s) {
    fl_parallel(s->blocks, 1, fl__norm_grad_task, s);
    if (s->part) fl_parallel(s->n, fl__ceil_div(FL__GRAIN, s->blocks), fl__norm_parts_task, s);
}

static bool fl__cpu_layer_norm_grad(const fl_backend *self, const fl_call *c) {
    fl__norm s;
    (void)self;
    if (!fl__norm_begin(&s, c)) return fl_call_compose(c);
    fl_dtype d = c->in[0]->dtype;
    int64_t row = s.n * (int64_t)fl_dtype_size(d);
    void **out[] = {&s.dx, &s.dw, &s.db};
    for (int i = 0; i < 3; i++) {
        if (!c->out[i]) continue;
        if (!fl_out_make(c->out[i])) return false;
        *out[i] = fl_data(c->out[i]);
    }
    s.rows_of_block = fl__ceil_div(s.rows, FL__NORM_PARTS);
    if (s.rows_of_block < 8) s.rows_of_block = 8;
    s.blocks = fl__ceil_div(s.rows, s.rows_of_block);
    bool sums = s.dw || s.db;
    fl_buffer *scratch =
        fl__gemm_scratch(row * (1 + (sums ? 2 * s.blocks : 0)), 1, "layer_norm_grad");
    char *room = scratch ? fl_buffer_map(scratch) : NULL;
    if (room) {
        s.w = fl__norm_row(c->in[1], d, s.n, room);
        s.mean = s.rms ? NULL : fl_data(c->in[2]);
        s.rstd = fl_data(c->in[3]);
        s.dy = fl_data(c->in[4]);
        s.part = sums ? room + row : NULL;
        fl__norm_grad_run(&s);
        fl_buffer_unmap(scratch);
    }
    fl_buffer_drop(scratch);
    return room != NULL;
}

FL_PRIVATE void fl__cpu_norm_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_layer_norm, fl__cpu_layer_norm, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_layer_norm_grad, fl__cpu_layer_norm_grad, FL_SLOT_CONTIGUOUS);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
