/* kernels/cpu/softmax.h - softmax and log_softmax along one axis, and their gradients

   Inputs are contiguous, [outer, n, inner]. Rows (inner = 1) of f32 have loops of their own, softmax.inc.
   Other lines are cut into tiles that stay in the L1 cache: of a row FL__ROW_TILE elements each, with an
   array that repeats the row's maximum or sum; of columns one tile per element, as wide as the block of
   columns, with a maximum and sum per column. The tiles go through the loops of the op table and of the
   reductions. Rows of f16 and bf16 are widened and rounded one at a time. */
#ifndef FL_CPU_SOFTMAX_H
#define FL_CPU_SOFTMAX_H
#include "../../fl/records/softmax.h"
#include "slots.h"
#include "reduce.h"
#include "scratch.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_softmax_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_SOFTMAX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SOFTMAX_IMPL
#define FL_CPU_SOFTMAX_IMPL
FL__LOOPS_BEGIN

enum { FL__ROW_TILE = 256 }; /* elements that are summed in their own dtype, and of a loop */

#define FL__LEVEL_TEXT "softmax.inc"
#define FL__UNIT softmax
#include "levels.inc"

typedef struct fl__lines fl__lines;
typedef void (*fl__row_fn)(void *out, const void *a, const void *b, int64_t n); /* of f32 */
typedef struct fl__line_op {
    void (*run)(const fl__lines *s, int64_t first, int64_t width); /* one row, or `width` columns */
    fl__row_fn row[FL__LEVEL_COUNT];
} fl__line_op;

struct fl__lines {
    void (*run)(const fl__lines *s, int64_t first, int64_t width);
    fl__row_fn row; /* used instead of run if not NULL */
    char *out;
    const char *a, *b;
    int64_t n, inner;
    int size;
    fl__fold largest, sum;
    fl__loop sub, mul, div, exp, log;
    fl__loop widen, narrow; /* for f16 and bf16, which use `row` */
    fl__scratch scratch;
};

/* One value per column, or one row's value repeated. */
typedef struct fl__row_stats {
    _Alignas(FL_ALIGN) char value[FL__ROW_TILE * FL__ELEMENT];
} fl__row_stats;

/* Converts accumulators, which are double for sums, to the dtype. */
static void fl__row_stats_narrow(const fl__lines *s, fl__row_stats *to, const char *acc,
                                 const fl__fold *f, int64_t width) {
    if (f->acc == f->dtype) {
        memcpy(to->value, acc, (size_t)(width * s->size));
        return;
    }
    float *narrow = (float *)(void *)to->value;
    const double *wide = (const double *)(const void *)acc;
    for (int64_t j = 0; j < width; j++) narrow[j] = (float)wide[j];
}

/* to = the reduction of each line of x */
static void fl__lines_fold(const fl__lines *s, const fl__fold *f, fl__row_stats *to, const char *x,
                           int64_t width) {
    _Alignas(FL_ALIGN) char acc[FL__ROW_TILE * FL__ELEMENT];
    if (s->inner > 1) {
        fl__fill_row(acc, (const char *)&f->identity, width, f->acc_size);
        f->rows(acc, x, s->n, s->inner, width);
        fl__row_stats_narrow(s, to, acc, f, width);
    } else {
        fl__fold_line(f, acc, x, s->size, s->n);
        fl__row_stats_narrow(s, to, acc, f, 1);
        fl__fill_row(to->value, to->value, fl__min(s->n, FL__ROW_TILE), s->size);
    }
}

/* A tile: offset in bytes, number of elements; fl__next_row_tile returns tile i, or false after the last. */
typedef struct fl__row_tile {
    int64_t at, n;
} fl__row_tile;

static bool fl__next_row_tile(const fl__lines *s, int64_t width, int64_t i, fl__row_tile *p) {
    int64_t step = s->inner > 1 ? s->inner : FL__ROW_TILE;
    if (i * step >= s->n * s->inner) return false;
    p->at = i * step * s->size;
    p->n = s->inner > 1 ? width : fl__min(FL__ROW_TILE, s->n - i * step);
    return true;
}

static void fl__do(fl__loop loop, char *y, const void *a, const void *b, int64_t n) {
    loop((void *[]){y, (void *)(uintptr_t)a, (void *)(uintptr_t)b}, n, NULL);
}

/* y = exp(x - max); to = max, sum of y */
static void fl__lines_exp(const fl__lines *s, char *y, const char *x, fl__row_stats to[2],
                          int64_t width) {
    fl__row_tile p;
    fl__lines_fold(s, &s->largest, &to[0], x, width);
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++) {
        fl__do(s->sub, y + p.at, x + p.at, to[0].value, p.n);
        fl__do(s->exp, y + p.at, y + p.at, NULL, p.n);
    }
    fl__lines_fold(s, &s->sum, &to[1], y, width);
}

static void fl__softmax_lines(const fl__lines *s, int64_t first, int64_t width) {
    char *y = s->out + first;
    fl__row_stats to[2];
    fl__row_tile p;
    fl__lines_exp(s, y, s->a + first, to, width);
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++)
        fl__do(s->div, y + p.at, y + p.at, to[1].value, p.n);
}

/* y = (x - max) - log sum */
static void fl__log_softmax_lines(const fl__lines *s, int64_t first, int64_t width) {
    const char *x = s->a + first;
    char *y = s->out + first;
    fl__row_stats to[2];
    fl__row_tile p;
    fl__lines_exp(s, y, x, to, width);
    fl__do(s->log, to[1].value, to[1].value, NULL, s->inner > 1 ? width : fl__min(s->n, FL__ROW_TILE));
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++) {
        fl__do(s->sub, y + p.at, x + p.at, to[0].value, p.n);
        fl__do(s->sub, y + p.at, y + p.at, to[1].value, p.n);
    }
}

/* dx = y (dy - sum y dy) */
static void fl__softmax_grad_lines(const fl__lines *s, int64_t first, int64_t width) {
    const char *y = s->a + first, *dy = s->b + first;
    char *dx = s->out + first;
    fl__row_stats sum;
    fl__row_tile p;
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++)
        fl__do(s->mul, dx + p.at, y + p.at, dy + p.at, p.n);
    fl__lines_fold(s, &s->sum, &sum, dx, width);
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++) {
        fl__do(s->sub, dx + p.at, dy + p.at, sum.value, p.n);
        fl__do(s->mul, dx + p.at, y + p.at, dx + p.at, p.n);
    }
}

/* dx = dy - exp(y) sum dy */
static void fl__log_softmax_grad_lines(const fl__lines *s, int64_t first, int64_t width) {
    const char *y = s->a + first, *dy = s->b + first;
    char *dx = s->out + first;
    fl__row_stats sum;
    fl__row_tile p;
    fl__lines_fold(s, &s->sum, &sum, dy, width);
    for (int64_t i = 0; fl__next_row_tile(s, width, i, &p); i++) {
        fl__do(s->exp, dx + p.at, y + p.at, NULL, p.n);
        fl__do(s->mul, dx + p.at, dx + p.at, sum.value, p.n);
        fl__do(s->sub, dx + p.at, dy + p.at, dx + p.at, p.n);
    }
}

/* Task: a block of columns, or a row, per unit. */
static void fl__lines_task(void *arg, int64_t begin, int64_t end) {
    const fl__lines *s = arg;
    int64_t tiles = fl__ceil_div(s->inner, FL__ROW_TILE);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t column = unit % tiles * FL__ROW_TILE;
        int64_t first = (unit / tiles * s->n * s->inner + column) * s->size;
        if (s->row) s->row(s->out + first, s->a + first, s->b ? s->b + first : NULL, s->n);
        else s->run(s, first, fl__min(FL__ROW_TILE, s->inner - column));
    }
}

/* Task: rows of f16 or bf16. */
static void fl__lines_narrow(void *arg, int64_t begin, int64_t end) {
    const fl__lines *s = arg;
    float *x[3] = {(float *)(void *)fl__scratch_take(&s->scratch)};
    x[1] = x[0] + s->n, x[2] = x[1] + s->n;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit * s->n * (int64_t)sizeof(uint16_t);
        s->widen((void *[]){x[1], (void *)(uintptr_t)(s->a + first)}, s->n, NULL);
        if (s->b) s->widen((void *[]){x[2], (void *)(uintptr_t)(s->b + first)}, s->n, NULL);
        s->row(x[0], x[1], s->b ? x[2] : NULL, s->n);
        s->narrow((void *[]){s->out + first, x[0]}, s->n, NULL);
    }
    fl__scratch_give_back(&s->scratch, (char *)x[0]);
}

static bool fl__lines_run(const fl_call *c, const fl__line_op *op) {
    int axis = ((const fl_axis_args *)c->args)->axis;
    fl_tensor *out = c->out[0];
    const fl_dtype d = fl_dtype_wide(out->dtype);
    int64_t numel = fl_numel(out), width, inner = 1;
    for (int i = axis + 1; i < out->ndim; i++) inner *= out->shape[i];
    if (d != out->dtype && (d != FL_F32 || inner > 1)) return fl__call_widen(c);
    if (!fl_dtype_is_float(d)) return fl__no_kernel(c, d);
    if (!fl_is_contiguous(out))
        return fl_fail("fl_%s: the output must be contiguous", fl_op_get_info(c->op)->name);
    if (!fl_out_make(out)) return false;
    if (numel == 0) return true;
    fl__lines s = {.run = op->run, .out = fl_data(out), .a = fl_data(c->in[0]), .n = 1, .inner = 1};
    s.b = c->n_in > 1 ? fl_data(c->in[1]) : NULL;
    s.size = (int)fl_dtype_size(d);
    if (out->ndim > 0) s.n = out->shape[axis];
    s.inner = inner;
    if (d == FL_F32 && s.inner == 1) s.row = op->row[fl__level()];
    s.largest = fl__fold_of(FL__FOLD_AMAX, d);
    s.sum = fl__fold_of(FL__FOLD_SUM, d);
    s.sub = fl__formula_loop(FL_OP_sub, d);
    s.mul = fl__formula_loop(FL_OP_mul, d);
    s.div = fl__formula_loop(FL_OP_div, d);
    s.exp = fl__formula_loop(FL_OP_exp, d);
    s.log = fl__formula_loop(FL_OP_log, d);
    width = fl__min(s.inner, FL__ROW_TILE);
    const int64_t units = numel / (s.n * s.inner) * fl__ceil_div(s.inner, FL__ROW_TILE);
    const int64_t grain = fl__ceil_div(FL__GRAIN / 4, s.n * width);
    if (d == out->dtype) {
        fl_parallel(units, grain, fl__lines_task, &s);
        return true;
    }
    s.widen = fl__cast_loop(out->dtype, d);
    s.narrow = fl__cast_loop(d, out->dtype);
    if (!fl__scratch_open(&s.scratch, fl__ceil_div(units, grain), 3 * s.n * (int64_t)sizeof(float), 0,
            "softmax"))
        return false;
    fl_parallel(units, grain, fl__lines_narrow, &s);
    fl__scratch_close(&s.scratch);
    return true;
}

static bool fl__cpu_softmax(const fl_backend *self, const fl_call *c) {
    static const fl__line_op op = {fl__softmax_lines, {FL__AT_LEVELS(fl__softmax_row_f32)}};
    (void)self;
    return fl__lines_run(c, &op);
}

static bool fl__cpu_softmax_grad(const fl_backend *self, const fl_call *c) {
    static const fl__line_op op = {fl__softmax_grad_lines, {FL__AT_LEVELS(fl__softmax_grad_f32)}};
    (void)self;
    return fl__lines_run(c, &op);
}

static bool fl__cpu_log_softmax(const fl_backend *self, const fl_call *c) {
    static const fl__line_op op = {fl__log_softmax_lines, {FL__AT_LEVELS(fl__softmax_log_row_f32)}};
    (void)self;
    return fl__lines_run(c, &op);
}

static bool fl__cpu_log_softmax_grad(const fl_backend *self, const fl_call *c) {
    static const fl__line_op op = {fl__log_softmax_grad_lines, {FL__AT_LEVELS(fl__softmax_log_grad_f32)}};
    (void)self;
    return fl__lines_run(c, &op);
}

FL_PRIVATE void fl__cpu_softmax_slots(fl_backend *cpu) {
    enum { flags = FL_SLOT_CONTIGUOUS | FL_SLOT_NARROW };
    fl_backend_set(cpu, fl_op_softmax, fl__cpu_softmax, flags);
    fl_backend_set(cpu, fl_op_softmax_grad, fl__cpu_softmax_grad, flags);
    fl_backend_set(cpu, fl_op_log_softmax, fl__cpu_log_softmax, flags);
    fl_backend_set(cpu, fl_op_log_softmax_grad, fl__cpu_log_softmax_grad, flags);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
