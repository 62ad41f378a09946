/* kernels/cpu/recurrent.h - recurrent layers (RNN, GRU, LSTM) and their gradient

   The rows of a call are packed sequences: the rows of the first step, the longest sequence first, then those
   of the second, so that a step works on adjacent rows without padding. The products by W_ih, and in the
   gradient all products but those along time, are one product each over all rows. W_hh is packed for the
   register tiles once; a step is a product of its rows' states by W_hh and a pass over their gates.

   Sequences are independent: a task runs some of them in one direction through all steps, without
   synchronisation. If W_hh exceeds a cache that a thread has for itself, its columns are cut instead, and the
   threads synchronise once per step. The sums of a row do not depend on either. */
#ifndef FL_CPU_RECURRENT_H
#define FL_CPU_RECURRENT_H
#include "../../fl/records/recurrent.h"
#include "slots.h"
#include "gemm/tile.h"
#include "gemm/matmul.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_recurrent_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_RECURRENT_IMPL
#define FL_CPU_RECURRENT_IMPL
#include <string.h>

/* Loops over the gates of a row, by mode. */
typedef struct fl__rnn_loops {
    fl__loop forward[4], back[4];
} fl__rnn_loops;

FL__LOOPS_BEGIN
#define FL__LEVEL_TEXT "recurrent.inc"
#define FL__UNIT rnn
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
FL__LOOPS_END

enum {
    FL__RNN_UNITS = 64,      /* hidden units of a block of columns */
    FL__RNN_SHARED = 1 << 20 /* bytes of W_hh above which its columns are cut */
};

/* A call. Packed row first[t] + i is step t of sequence order[i], i < first[t + 1] - first[t]. Matrices are
   [packed rows][directions][...]; per-task state is [directions][sequences in order][...]. */
typedef struct fl__rnn {
    const fl_backend *self;
    const fl_rnn_args *a;
    const fl__kernels *ks;
    const fl__rnn_loops *loops;
    fl_dtype dtype;
    int64_t size, steps, n, in, columns, extra_size,
        total; /* columns: gates times hidden; extra_size: numbers stored besides the gates */
    int64_t *first, *order;
    bool dense;              /* packed rows are x's own */
    int64_t units, pieces;   /* hidden units of a block of columns; pieces of the sequences */
    const char *w, *h0, *c0; /* states NULL: zeros */
    char *y, *h, *c;         /* in the flat output, or its gradient */
    fl_buffer *scratch;
    fl_buffer *reserve;      /* the buffer of gates and extra */
    char *gates, *extra, *x; /* extra: c, o tanh(c); or h_n */
    /* scratch; forward and gradient use some of them each */
    char *w_hh, *w_hr, *bias, *state, *cell, *sums, *rows, *zeros, *ones;
    char *dx, *dh_gates, *before, *dy; /* dx: gradient of the gates by x, dh_gates: by h */
    char *d0[2];             /* gradients of h0 and c0, NULL: not wanted */
} fl__rnn;

static int64_t fl__rnn_active(const fl__rnn *r, int64_t t) {
    return t < 0 || t >= r->steps ? 0 : r->first[t + 1] - r->first[t];
}

/* Row of the step before t in that direction; -1 if t is the first. */
static int64_t fl__rnn_row_before(const fl__rnn *r, int way, int64_t t, int64_t i) {
    const int64_t before = way ? t + 1 : t - 1;
    return i < fl__rnn_active(r, before) ? r->first[before] + i : -1;
}

/* Address of [step t][sequence i] of y or x, rows of `width` numbers. */
static char *fl__rnn_element(const fl__rnn *r, const char *base, int64_t t, int64_t i, int64_t width) {
    const int64_t at = r->a->batch_first ? r->order[i] * r->steps + t : t * r->n + r->order[i];
    return (char *)(uintptr_t)base + at * width * r->size;
}

/* Row i of [directions][sequences][width] in the caller's order; zeros if base is NULL. */
static char *fl__rnn_state(const fl__rnn *r, const char *base, int way, int64_t i, int64_t width) {
    return base ? (char *)(uintptr_t)base + (way * r->n + r->order[i]) * width * r->size : r->zeros;
}

/* The same in sorted order; NULL if base is NULL. */
static char *fl__rnn_own(const fl__rnn *r, char *base, int way, int64_t i, int64_t width) {
    return base ? base + (way * r->n + i) * width * r->size : NULL;
}

/* [row][way] of a matrix of `width` numbers per direction; NULL if base is NULL. */
static char *fl__rnn_at(const fl__rnn *r, const char *base, int64_t row, int way, int64_t width) {
    return base ? (char *)(uintptr_t)base + (row * r->a->ways + way) * width * r->size : NULL;
}

/* >>products */

static fl_tensor fl__rnn_matrix(const fl__rnn *r, fl_buffer *b, const char *at, int64_t rows, int64_t columns,
                                int64_t row_step, int64_t column_step) {
    fl_tensor t = {.dtype = r->dtype, .ndim = 2, .shape = {rows, columns}, .stride = {row_step, column_step},
                   .buffer = b};
    t.offset = (at - (char *)b->ptr) / r->size;
    return t;
}

static bool fl__rnn_matmul(const fl__rnn *r, fl_tensor out, fl_tensor a, fl_tensor b) {
    const fl_call c = {.op = FL_OP_matmul, .n_out = 1, .n_in = 2, .out = {&out}, .in = {&a, &b}};
    return r->self->op[FL_OP_matmul](r->self, &c);
}

static int64_t fl__rnn_height(const fl__rnn *r, int64_t rows) {
    return fl__ceil_div(rows, fl__ceil_div(rows, r->ks->rows));
}

/* Packs m rows of k numbers, lda apart, for the tiles. */
static void fl__rnn_pack_rows(const fl__rnn *r, char *to, const char *a, int64_t lda, int64_t m, int64_t k) {
    for (int64_t i = 0, height; i < m; i += height) {
        height = fl__rnn_height(r, m - i);
        r->ks->pack(to + i * k * r->size, height, height, k, a + i * lda * r->size, lda, 1);
    }
}

/* Packs B [k][columns] in panels as wide as a tile. */
static void fl__rnn_pack_panels(const fl__rnn *r, char *to, const char *b, int64_t k, int64_t columns,
                                int64_t row_step, int64_t column_step) {
    const int64_t wide = 2 * r->ks->lanes;
    for (int64_t j = 0; j < columns; j += wide)
        r->ks->pack(to + j * k * r->size, wide, fl__min(wide, columns - j), k, b + j * column_step * r->size,
                    column_step, row_step);
}

static int64_t fl__rnn_panels(const fl__rnn *r, int64_t k, int64_t columns) {
    return fl__ceil_div(columns, 2 * r->ks->lanes) * 2 * r->ks->lanes * k;
}

/* Columns j0 .. j1 of c, rows ldc apart, (+)= m packed rows times panels. */
static void fl__rnn_product(const fl__rnn *r, const char *rows, int64_t m, int64_t k, const char *panels,
                            int64_t j0, int64_t j1, char *c, int64_t ldc, bool add) {
    const int64_t wide = 2 * r->ks->lanes;
    fl__segment s;
    fl__tile tile = {.segments = 1, .segment = &s, .k = k, .rsa = 1, .ldb = wide, .ldc = ldc, .add = add};
    for (int64_t j = j0; j < j1; j += wide)
        for (int64_t i = 0; i < m; i += tile.csa) {
            tile.csa = fl__rnn_height(r, m - i);
            s = (fl__segment){rows + i * k * r->size, panels + j * k * r->size};
            tile.c = c + (i * ldc + j) * r->size;
            fl__gemm_tile(r->ks, (int)tile.csa, (int)fl__min(wide, j1 - j), &tile);
        }
}

/* >>rows */

/* What a pass over all steps copies to or from packed rows. */
typedef struct fl__rnn_copy {
    const fl__rnn *r;
    char *packed;
    const char *unpacked; /* x, or its gradient; NULL: the previous states, from y and h0 */
    bool back;            /* copies back to `unpacked` */
} fl__rnn_copy;

static void fl__rnn_copy_steps(void *arg, int64_t begin, int64_t end) {
    const fl__rnn_copy *c = arg;
    const fl__rnn *r = c->r;
    const int64_t out = r->a->out, size = r->size;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < fl__rnn_active(r, t); i++) {
            const int64_t row = r->first[t] + i;
            if (c->unpacked) {
                char *packed = c->packed + row * r->in * size,
                     *unpacked = fl__rnn_element(r, c->unpacked, t, i, r->in);
                memcpy(c->back ? unpacked : packed, c->back ? packed : unpacked, (size_t)(r->in * size));
                continue;
            }
            for (int way = 0; way < r->a->ways; way++) {
                const bool later = fl__rnn_row_before(r, way, t, i) >= 0;
                const char *y =
                    later ? fl__rnn_element(r, r->y, way ? t + 1 : t - 1, i, r->a->ways * out) : NULL;
                memcpy(fl__rnn_at(r, c->packed, row, way, out),
                       y ? y + way * out * size : fl__rnn_state(r, r->h0, way, i, out), (size_t)(out * size));
            }
        }
}

static void fl__rnn_copy_rows(const fl__rnn *r, char *packed, const char *unpacked, bool back) {
    fl__rnn_copy c = {r, packed, unpacked, back};
    fl_parallel(r->steps, fl__ceil_div(FL__GRAIN, r->n * (r->in + r->a->out) + 1), fl__rnn_copy_steps, &c);
}

/* Computes first and order from the lengths (a number: all sequences have full length). */
static bool fl__rnn_plan(fl__rnn *r, const fl_tensor *lengths) {
    r->first = fl_heap_alloc((size_t)(2 * r->steps + 3 + r->n) * sizeof *r->first);
    if (!r->first) return false;
    int64_t *seen = r->first + r->steps + 1; /* [steps + 1] */
    r->order = seen + r->steps + 2;
    const int64_t *given = lengths->weak ? NULL : fl_data(lengths);
    for (int64_t i = 0; i < r->n; i++) r->first[given ? given[i] : r->steps]++;
    /* first[t]: number of sequences of length t; seen[t]: of longer ones; then first[t]: the sum of these
       before t */
    int64_t longer = 0;
    for (int64_t t = r->steps; t >= 0; t--) {
        seen[t] = longer;
        longer += r->first[t];
    }
    for (int64_t t = 0, row = 0; t <= r->steps; t++) {
        r->first[t] = row;
        row += seen[t];
    }
    for (int64_t i = 0; i < r->n; i++) r->order[seen[given ? given[i] : r->steps]++] = i;
    r->total = r->first[r->steps];
    r->dense = !given && !r->a->batch_first;
    return true;
}

/* >>calls */

static bool fl__rnn_begin(fl__rnn *r, const fl_backend *self, const fl_call *c, const fl_tensor *flat) {
    static const fl__rnn_loops *const loops[FL__VARIANTS] = {FL__AT_FLOATS(&fl__rnn_loops)};
    const fl_tensor *x = c->in[0];
    const fl_rnn_args *a = c->args;
    if (!loops[fl__variant(x->dtype)]) return fl__no_kernel(c, x->dtype);
    *r = (fl__rnn){.self = self,
                   .a = a,
                   .ks = fl__gemm_kernels(x->dtype),
                   .loops = loops[fl__variant(x->dtype)],
                   .dtype = x->dtype,
                   .size = (int64_t)fl_dtype_size(x->dtype),
                   .steps = x->shape[a->batch_first],
                   .n = x->shape[!a->batch_first],
                   .in = x->shape[2],
                   .columns = a->gates * a->hidden,
                   .x = fl_data(x),
                   .w = fl_data(c->in[3]),
                   .units = a->hidden};
    r->h0 = c->in[1]->weak ? NULL : fl_data(c->in[1]);
    r->c0 = c->in[2]->weak ? NULL : fl_data(c->in[2]);
    r->y = fl_data(flat);
    r->h = r->y + r->steps * r->n * a->ways * a->out * r->size;
    r->c = r->h + a->ways * r->n * a->out * r->size;
    r->extra_size = fl_rnn_reserve(a, 1) / a->ways - r->columns;
    const bool cut = a->out == a->hidden && a->hidden % FL__RNN_UNITS == 0 &&
                     r->columns * a->out * r->size > FL__RNN_SHARED;
    if (cut) r->units = FL__RNN_UNITS;
    r->pieces = cut ? 1 : fl__max(1, fl__min(fl_threads() / a->ways, fl__ceil_div(r->n, 4)));
    return fl__rnn_plan(r, c->in[4]);
}

static void fl__rnn_end(fl__rnn *r) {
    if (r->scratch) {
        fl_buffer_unmap(r->scratch);
        fl_buffer_drop(r->scratch);
    }
    fl_heap_free(r->first);
}

/* Numbers of scratch for *at, which is unchanged if `numbers` is 0. */
typedef struct fl__rnn_need {
    char **at;
    int64_t numbers;
} fl__rnn_need;

static bool fl__rnn_carve(fl__rnn *r, const fl__rnn_need *need, int count) {
    int64_t all = 0, at = 0;
    for (int i = 0; i < count; i++) all += fl__ceil_div(need[i].numbers, 64) * 64 + 64;
    r->scratch = fl__gemm_scratch(all, (size_t)r->size, "rnn");
    char *base = r->scratch ? fl_buffer_map(r->scratch) : NULL;
    if (!base) {
        fl_buffer_drop(r->scratch);
        r->scratch = NULL;
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (need[i].numbers) *need[i].at = base + at * r->size;
        at += fl__ceil_div(need[i].numbers, 64) * 64 + 64;
    }
    memset(r->zeros, 0, (size_t)(r->a->hidden * r->size));
    return true;
}

/* Part `part` of w, for one direction. */
static const char *fl__rnn_weight(const fl__rnn *r, int part, int way) {
    fl_shape s;
    return r->w + (fl_rnn_part(r->a, r->in, part, &s) + way * fl_shape_numel(s)) * r->size;
}

/* A step of one direction; its tasks are blocks of columns. */
typedef struct fl__rnn_step_args {
    const fl__rnn *r;
    int way;
    int64_t t, previous;      /* previous: the step processed before, in the gradient; -1 if none */
    int64_t begin, end, last; /* sequences; in the gradient those of the previous step end at `last` */
} fl__rnn_step_args;

/* Runs one direction of some sequences. */
typedef void (*fl__rnn_run)(const fl__rnn *r, int way, int64_t begin, int64_t end);
typedef struct fl__rnn_job {
    const fl__rnn *r;
    fl__rnn_run run;
} fl__rnn_job;

static void fl__rnn_task(void *arg, int64_t begin, int64_t end) {
    const fl__rnn_job *job = arg;
    const fl__rnn *r = job->r;
    for (int64_t task = begin; task < end; task++) {
        const int64_t piece = task / r->a->ways;
        job->run(r, (int)(task % r->a->ways), r->n * piece / r->pieces, r->n * (piece + 1) / r->pieces);
    }
}

/* Blocks of columns are cut within a direction: then the directions run one after the other. */
static void fl__rnn_run_all(const fl__rnn *r, fl__rnn_run run) {
    fl__rnn_job job = {r, run};
    if (r->units == r->a->hidden) fl_parallel(r->a->ways * r->pieces, 1, fl__rnn_task, &job);
    else fl__rnn_task(&job, 0, r->a->ways);
}

/* >>forward */

static void fl__rnn_step_forward(void *arg, int64_t begin, int64_t end) {
    const fl__rnn_step_args *s = arg;
    const fl__rnn *r = s->r;
    const int64_t hidden = r->a->hidden, out = r->a->out, size = r->size, m = s->end - s->begin;
    const bool projected = out != hidden;
    char *sums = fl__rnn_own(r, r->sums, s->way, s->begin, r->columns);
    const char *rows = fl__rnn_own(r, r->rows, s->way, s->begin, hidden),
               *w = r->w_hh + s->way * fl__rnn_panels(r, out, r->columns) * size;
    const char *bias = r->bias + s->way * (r->columns + hidden) * size;
    for (int64_t block = begin; block < end; block++) {
        const int64_t u = block * r->units;
        if (r->units == hidden) fl__rnn_product(r, rows, m, out, w, 0, r->columns, sums, r->columns, false);
        else
            for (int64_t k = u; k < r->columns; k += hidden)
                fl__rnn_product(r, rows, m, out, w, k, k + r->units, sums, r->columns, false);
        for (int64_t i = s->begin; i < s->end; i++) {
            const int64_t row = r->first[s->t] + i, before = fl__rnn_row_before(r, s->way, s->t, i),
                          at = u * size;
            char *state = fl__rnn_own(r, r->state, s->way, i, out),
                 *extra = fl__rnn_at(r, r->extra, row, s->way, r->extra_size);
            const char *old = r->a->mode != FL_LSTM ? state
                              : before < 0          ? fl__rnn_state(r, r->c0, s->way, i, hidden)
                                                    : fl__rnn_at(r, r->extra, before, s->way, r->extra_size);
            char *h = projected ? extra + hidden * size : state;
            r->loops->forward[r->a->mode]((void *[]){fl__rnn_at(r, r->gates, row, s->way, r->columns) + at,
                                                     fl__rnn_own(r, r->sums, s->way, i, r->columns) + at,
                                                     (char *)(uintptr_t)bias + at,
                                                     (char *)(uintptr_t)bias + r->columns * size + at,
                                                     (char *)(uintptr_t)old + at, extra ? extra + at : NULL,
                                                     h + at},
                                          r->units, &hidden);
            if (!projected)
                memcpy(fl__rnn_element(r, r->y, s->t, i, r->a->ways * out) + s->way * out * size + at, h + at,
                       (size_t)(r->units * size));
        }
    }
}

/* Projects the states of a step (LSTM with projection). */
static void fl__rnn_project(const fl__rnn_step_args *s) {
    const fl__rnn *r = s->r;
    const int64_t hidden = r->a->hidden, out = r->a->out, size = r->size, m = s->end - s->begin;
    char *rows = fl__rnn_own(r, r->rows, s->way, s->begin, hidden),
         *state = fl__rnn_own(r, r->state, s->way, s->begin, out);
    fl__rnn_pack_rows(r, rows,
                      fl__rnn_at(r, r->extra, r->first[s->t] + s->begin, s->way, r->extra_size) +
                          hidden * size,
                      r->a->ways * r->extra_size, m, hidden);
    fl__rnn_product(r, rows, m, hidden, r->w_hr + s->way * fl__rnn_panels(r, hidden, out) * size, 0, out,
                    state, out, false);
    for (int64_t i = s->begin; i < s->end; i++)
        memcpy(fl__rnn_element(r, r->y, s->t, i, r->a->ways * out) + s->way * out * size,
               fl__rnn_own(r, r->state, s->way, i, out), (size_t)(out * size));
}

static void fl__rnn_forward(const fl__rnn *r, int way, int64_t begin, int64_t end) {
    const int64_t hidden = r->a->hidden, out = r->a->out, size = r->size;
    for (int64_t i = begin; i < end; i++)
        memcpy(fl__rnn_own(r, r->state, way, i, out), fl__rnn_state(r, r->h0, way, i, out),
               (size_t)(out * size));
    for (int64_t k = 0; k < r->steps; k++) {
        const int64_t t = way ? r->steps - 1 - k : k;
        fl__rnn_step_args s = {
            .r = r, .way = way, .t = t, .begin = begin, .end = fl__min(end, fl__rnn_active(r, t))};
        if (s.end <= begin) continue;
        fl__rnn_pack_rows(r, fl__rnn_own(r, r->rows, way, begin, hidden),
                          fl__rnn_own(r, r->state, way, begin, out), out, s.end - begin, out);
        fl_parallel(hidden / r->units, 1, fl__rnn_step_forward, &s);
        if (out != hidden) fl__rnn_project(&s);
        for (int64_t i = fl__max(begin, fl__rnn_active(r, way ? t - 1 : t + 1)); i < s.end;
             i++) { /* sequences whose last step this is */
            memcpy(fl__rnn_state(r, r->h, way, i, out), fl__rnn_own(r, r->state, way, i, out),
                   (size_t)(out * size));
            if (r->a->mode == FL_LSTM)
                memcpy(fl__rnn_state(r, r->c, way, i, hidden),
                       fl__rnn_at(r, r->extra, r->first[t] + i, way, r->extra_size), (size_t)(hidden * size));
        }
    }
}

/* The biases of the gates of a direction: the sum of both, except for a GRU's h_n, whose bias follows. */
static void fl__rnn_biases(const fl__rnn *r, int way) {
    const int64_t apart = r->a->mode == FL_GRU ? r->a->hidden : 0, both = r->columns - apart;
    char *to = r->bias + way * (r->columns + r->a->hidden) * r->size;
    if (!r->a->biased) {
        memset(to, 0, (size_t)((r->columns + r->a->hidden) * r->size));
        return;
    }
    const char *h = fl__rnn_weight(r, 3, way);
    memcpy(to, fl__rnn_weight(r, 2, way), (size_t)(r->columns * r->size));
    r->ks->add(to, h, both);
    memcpy(to + r->columns * r->size, h + both * r->size, (size_t)(apart * r->size));
}

static bool fl__rnn_forward_all(fl__rnn *r, const fl_call *c) {
    const fl_rnn_args *a = r->a;
    const fl_tensor *reserve = c->n_out > 1 ? c->out[1] : NULL;
    const int64_t rows = r->n * a->ways, hidden = a->hidden, ways = a->ways;
    const int64_t gates = r->total * ways * r->columns, extra = r->total * ways * r->extra_size;
    const bool projected = a->out != hidden;
    char *xs = r->x;
    const fl__rnn_need need[] = {{&r->zeros, hidden},
                                 {&r->w_hh, ways * fl__rnn_panels(r, a->out, r->columns)},
                                 {&r->w_hr, projected ? ways * fl__rnn_panels(r, hidden, a->out) : 0},
                                 {&r->bias, ways * (r->columns + hidden)},
                                 {&r->state, rows * a->out},
                                 {&r->sums, rows * r->columns},
                                 {&r->rows, rows * hidden},
                                 {&xs, r->dense ? 0 : r->total * r->in},
                                 {&r->gates, reserve ? 0 : gates},
                                 {&r->extra, reserve ? 0 : extra}};
    if (!fl__rnn_carve(r, need, (int)(sizeof need / sizeof *need))) return false;
    if (reserve) {
        r->gates = fl_data(reserve);
        r->extra = r->gates + gates * r->size;
    }
    if (!r->dense) fl__rnn_copy_rows(r, xs, r->x, false);
    const fl_tensor *w = c->in[3];
    if (!fl__rnn_matmul(
            r,
            fl__rnn_matrix(r, reserve ? reserve->buffer : r->scratch, r->gates, r->total, ways * r->columns,
                           ways * r->columns, 1),
            fl__rnn_matrix(r, r->dense ? c->in[0]->buffer : r->scratch, xs, r->total, r->in, r->in, 1),
            fl__rnn_matrix(r, w->buffer, r->w, r->in, ways * r->columns, 1, r->in)))
        return false;
    for (int way = 0; way < ways; way++) {
        fl__rnn_pack_panels(r, r->w_hh + way * fl__rnn_panels(r, a->out, r->columns) * r->size,
                            fl__rnn_weight(r, 1, way), a->out, r->columns, 1, a->out);
        if (projected)
            fl__rnn_pack_panels(r, r->w_hr + way * fl__rnn_panels(r, hidden, a->out) * r->size,
                                fl__rnn_weight(r, 4, way), hidden, a->out, 1, hidden);
        fl__rnn_biases(r, way);
    }
    fl__rnn_run_all(r, fl__rnn_forward);
    return true;
}

static bool fl__cpu_rnn(const fl_backend *self, const fl_call *c) {
    fl__rnn r = {0};
    if (!fl_out_make(c->out[0]) || (c->n_out > 1 && c->out[1] && !fl_out_make(c->out[1]))) return false;
    bool ok = fl__rnn_begin(&r, self, c, c->out[0]);
    if (ok && r.total < r.steps * r.n) memset(r.y, 0, (size_t)(r.h - r.y));
    ok = ok && (r.n == 0 || fl__rnn_forward_all(&r, c));
    fl__rnn_end(&r);
    return ok;
}

/* >>gradient */

/* A block of columns: adds the contribution of the previous step to dh, which begins or ends there for some
   sequences, and computes the gradients of the gates. */
static void fl__rnn_step_back(void *arg, int64_t begin, int64_t end) {
    const fl__rnn_step_args *s = arg;
    const fl__rnn *r = s->r;
    const int64_t hidden = r->a->hidden, out = r->a->out, size = r->size;
    const bool projected = out != hidden, lstm = r->a->mode == FL_LSTM;
    char *dh = fl__rnn_own(r, r->state, s->way, s->begin, out);
    for (int64_t block = begin; block < end; block++) {
        const int64_t u = block * r->units, at = u * size, n = projected ? out : r->units;
        const size_t bytes = (size_t)(n * size), cells = (size_t)(r->units * size);
        if (s->last > s->begin)
            fl__rnn_product(r, fl__rnn_own(r, r->rows, s->way, s->begin, r->columns), s->last - s->begin,
                            r->columns, r->w_hh + s->way * fl__rnn_panels(r, r->columns, out) * size, u,
                            u + n, dh, out, r->a->mode == FL_GRU);
        for (int64_t i = fl__max(s->begin, s->end); i < s->last;
             i++) { /* sequences whose first step was the previous one */
            if (r->d0[0])
                memcpy(fl__rnn_state(r, r->d0[0], s->way, i, out) + at,
                       fl__rnn_own(r, r->state, s->way, i, out) + at, bytes);
            if (r->d0[1])
                memcpy(fl__rnn_state(r, r->d0[1], s->way, i, hidden) + at,
                       fl__rnn_own(r, r->cell, s->way, i, hidden) + at, cells);
        }
        for (int64_t i = fl__max(s->begin, s->last); i < s->end; i++) { /* sequences that end at this step */
            memcpy(fl__rnn_own(r, r->state, s->way, i, out) + at,
                   fl__rnn_state(r, r->h, s->way, i, out) + at, bytes);
            if (lstm)
                memcpy(fl__rnn_own(r, r->cell, s->way, i, hidden) + at,
                       fl__rnn_state(r, r->c, s->way, i, hidden) + at, cells);
        }
        if (projected && s->end > s->begin) { /* dy and dh through W_hr */
            char *dy = fl__rnn_at(r, r->dy, r->first[s->t] + s->begin, s->way, out);
            for (int64_t i = s->begin; i < s->end; i++) {
                char *to = dy + (i - s->begin) * r->a->ways * out * size;
                memcpy(to, fl__rnn_element(r, r->y, s->t, i, r->a->ways * out) + s->way * out * size, bytes);
                r->ks->add(to, fl__rnn_own(r, r->state, s->way, i, out), out);
            }
            char *rows = fl__rnn_own(r, r->rows, s->way, s->begin, r->columns);
            fl__rnn_pack_rows(r, rows, dy, r->a->ways * out, s->end - s->begin, out);
            fl__rnn_product(r, rows, s->end - s->begin, out,
                            r->w_hr + s->way * fl__rnn_panels(r, out, hidden) * size, 0, hidden,
                            fl__rnn_own(r, r->sums, s->way, s->begin, hidden), hidden, false);
        }
        for (int64_t i = s->begin; i < s->end; i++) {
            const int64_t row = r->first[s->t] + i, before = fl__rnn_row_before(r, s->way, s->t, i);
            const char *old = !lstm        ? fl__rnn_at(r, r->before, row, s->way, out)
                              : before < 0 ? fl__rnn_state(r, r->c0, s->way, i, hidden)
                                           : fl__rnn_at(r, r->extra, before, s->way, r->extra_size);
            char *dy = projected ? fl__rnn_own(r, r->sums, s->way, i, hidden)
                                 : fl__rnn_element(r, r->y, s->t, i, r->a->ways * out) + s->way * out * size;
            char *from = projected ? r->zeros : fl__rnn_own(r, r->state, s->way, i, out);
            r->loops->back[r->a->mode]((void *[]){fl__rnn_at(r, r->gates, row, s->way, r->columns) + at,
                                                  fl__rnn_at(r, r->extra, row, s->way, r->extra_size) + at,
                                                  (char *)(uintptr_t)old + at, dy + at, from + at,
                                                  fl__rnn_own(r, r->cell, s->way, i, hidden) + at,
                                                  fl__rnn_at(r, r->dx, row, s->way, r->columns) + at,
                                                  fl__rnn_at(r, r->dh_gates, row, s->way, r->columns) + at},
                                       r->units, &hidden);
        }
    }
}

static void fl__rnn_back(const fl__rnn *r, int way, int64_t begin, int64_t end) {
    fl__rnn_step_args s = {.r = r, .way = way, .previous = -1, .begin = begin, .end = begin, .last = begin};
    for (int64_t k = 0; k <= r->steps; k++) {
        s.t = way ? k : r->steps - 1 - k;
        s.end = fl__max(begin, fl__min(end, fl__rnn_active(r, s.t)));
        if (s.last > begin)
            fl__rnn_pack_rows(r, fl__rnn_own(r, r->rows, way, begin, r->columns),
                              fl__rnn_at(r, r->dh_gates, r->first[s.previous] + begin, way, r->columns),
                              r->a->ways * r->columns, s.last - begin, r->columns);
        if (s.end > begin || s.last > begin) fl_parallel(r->a->hidden / r->units, 1, fl__rnn_step_back, &s);
        s.previous = s.t;
        s.last = s.end;
    }
}

/* dw: one product over all rows per part. */
static bool fl__rnn_weights_back(fl__rnn *r, const fl_tensor *dw, fl_buffer *x_buffer, const char *x) {
    const fl_rnn_args *a = r->a;
    const int64_t all = a->ways * r->columns, n = r->total, hidden = a->hidden;
    fl__rnn of = *r;
    of.w = fl_data(dw);
    fl_buffer *b = r->scratch, *to = dw->buffer;
    for (int64_t i = 0; i < n; i++) {
        if (r->dtype == FL_F32) ((float *)(void *)r->ones)[i] = 1;
        else ((double *)(void *)r->ones)[i] = 1;
    }
    const fl_tensor ones = fl__rnn_matrix(r, b, r->ones, 1, n, n, 1);
    bool ok = fl__rnn_matmul(r, fl__rnn_matrix(r, to, fl__rnn_weight(&of, 0, 0), all, r->in, r->in, 1),
                             fl__rnn_matrix(r, b, r->dx, all, n, 1, all),
                             fl__rnn_matrix(r, x_buffer, x, n, r->in, r->in, 1));
    for (int way = 0; ok && way < a->ways; way++) {
        ok = fl__rnn_matmul(
            r, fl__rnn_matrix(r, to, fl__rnn_weight(&of, 1, way), r->columns, a->out, a->out, 1),
            fl__rnn_matrix(r, b, fl__rnn_at(r, r->dh_gates, 0, way, r->columns), r->columns, n, 1, all),
            fl__rnn_matrix(r, b, fl__rnn_at(r, r->before, 0, way, a->out), n, a->out, a->ways * a->out, 1));
        if (ok && a->out != hidden)
            ok = fl__rnn_matmul(
                r, fl__rnn_matrix(r, to, fl__rnn_weight(&of, 4, way), a->out, hidden, hidden, 1),
                fl__rnn_matrix(r, b, fl__rnn_at(r, r->dy, 0, way, a->out), a->out, n, 1, a->ways * a->out),
                fl__rnn_matrix(r, r->reserve,
                               fl__rnn_at(r, r->extra, 0, way, r->extra_size) + hidden * r->size, n, hidden,
                               a->ways * r->extra_size, 1));
    }
    for (int part = 2; ok && a->biased && part < 4; part++)
        ok = fl__rnn_matmul(r, fl__rnn_matrix(r, to, fl__rnn_weight(&of, part, 0), 1, all, all, 1), ones,
                            fl__rnn_matrix(r, b, part == 2 ? r->dx : r->dh_gates, n, all, all, 1));
    return ok;
}

static bool fl__rnn_back_all(fl__rnn *r, const fl_call *c) {
    const fl_rnn_args *a = r->a;
    fl_tensor *dx = c->out[0], *dw = c->out[3], *w = c->in[3];
    const int64_t rows = r->n * a->ways, hidden = a->hidden, ways = a->ways, all = ways * r->columns,
                  n = r->total;
    const bool projected = a->out != hidden, packs = !r->dense && dx, gru = a->mode == FL_GRU;
    char *xs = r->x, *dxs = dx ? fl_data(dx) : NULL, *y = fl_data(c->in[5]), *dy = r->y;
    const fl__rnn_need need[] = {{&r->zeros, hidden},
                                 {&r->w_hh, ways * fl__rnn_panels(r, r->columns, a->out)},
                                 {&r->w_hr, projected ? ways * fl__rnn_panels(r, a->out, hidden) : 0},
                                 {&r->state, rows * a->out},
                                 {&r->cell, rows * hidden},
                                 {&r->rows, rows * r->columns},
                                 {&r->sums, projected ? rows * hidden : 0},
                                 {&r->dx, n * all},
                                 {&r->dh_gates, gru ? n * all : 0},
                                 {&r->before, n * ways * a->out},
                                 {&r->dy, projected ? n * ways * a->out : 0},
                                 {&xs, r->dense || !dw ? 0 : n * r->in},
                                 {&dxs, packs ? n * r->in : 0},
                                 {&r->ones, n}};
    if (!fl__rnn_carve(r, need, (int)(sizeof need / sizeof *need))) return false;
    if (!gru) r->dh_gates = r->dx;
    r->reserve = c->in[6]->buffer;
    r->gates = fl_data(c->in[6]);
    r->extra = r->gates + n * all * r->size;
    r->y = y;
    fl__rnn_copy_rows(r, r->before, NULL, false);
    r->y = dy;
    for (int way = 0; way < ways; way++) {
        fl__rnn_pack_panels(r, r->w_hh + way * fl__rnn_panels(r, r->columns, a->out) * r->size,
                            fl__rnn_weight(r, 1, way), r->columns, a->out, a->out, 1);
        if (projected)
            fl__rnn_pack_panels(r, r->w_hr + way * fl__rnn_panels(r, a->out, hidden) * r->size,
                                fl__rnn_weight(r, 4, way), a->out, hidden, hidden, 1);
    }
    fl__rnn_run_all(r, fl__rnn_back);
    if (dx && !fl__rnn_matmul(r, fl__rnn_matrix(r, packs ? r->scratch : dx->buffer, dxs, n, r->in, r->in, 1),
                              fl__rnn_matrix(r, r->scratch, r->dx, n, all, all, 1),
                              fl__rnn_matrix(r, w->buffer, r->w, all, r->in, r->in, 1)))
        return false;
    if (packs) {
        if (n < r->steps * r->n) memset(fl_data(dx), 0, (size_t)(r->steps * r->n * r->in * r->size));
        fl__rnn_copy_rows(r, dxs, fl_data(dx), true);
    }
    if (dw && !r->dense) fl__rnn_copy_rows(r, xs, r->x, false);
    return !dw || fl__rnn_weights_back(r, dw, r->dense ? c->in[0]->buffer : r->scratch, xs);
}

/* Needs the reserve of fl__cpu_rnn: if another slot made it, the composed op works without. */
static bool fl__cpu_rnn_grad(const fl_backend *self, const fl_call *c) {
    fl__rnn r = {0};
    if (self->op[fl_op_rnn] != fl__cpu_rnn) return fl_call_compose(c);
    for (int i = 0; i < 4; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    bool ok = fl__rnn_begin(&r, self, c, c->in[7]);
    for (int i = 0; i < 2; i++) r.d0[i] = c->out[1 + i] ? fl_data(c->out[1 + i]) : NULL;
    if (ok && r.n == 0 && c->out[3]) memset(fl_data(c->out[3]), 0, (size_t)(fl_numel(c->out[3]) * r.size));
    ok = ok && (r.n == 0 || fl__rnn_back_all(&r, c));
    fl__rnn_end(&r);
    return ok;
}

FL_PRIVATE void fl__cpu_recurrent_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_rnn, fl__cpu_rnn, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_rnn_grad, fl__cpu_rnn_grad, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
