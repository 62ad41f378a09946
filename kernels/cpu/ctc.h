/* kernels/cpu/ctc.h - log-likelihood of CTC and its gradient: forward-backward algorithm in log space

   The states of a target of length l are blank, label 1, blank, ... blank: 2 l + 1 of them. With e[t][s] =
   max(logp[t][label s], FL__CTC_LOG_ZERO), which stands for log 0,

     alpha[t][s] = log(exp alpha[t-1][s] + exp alpha[t-1][s-1] + exp alpha[t-1][s-2]) + e[t][s]
     beta[t][s]  = the same of (beta + e)[t+1] at s, s+1, s+2
     d log P / d logp[t][c] = sum over the states s of class c of exp(alpha + beta - log P)

   where a state is reached by skipping one (s-2, s+2) only if the labels of both differ. A task is one
   sequence; its states are the lanes of a register. The gradient recomputes alpha, into a workspace of steps
   x states. */
#ifndef FL_CPU_CTC_H
#define FL_CPU_CTC_H
#include "slots.h"
#include "scratch.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_ctc_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_CTC) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CTC_IMPL
#define FL_CPU_CTC_IMPL
#include "../../fl/records/ctc.h"
#define FL__CTC_LOG_ZERO (-1e30f)
enum { FL__CTC_EDGE = 16 }; /* elements before and after a row, for states outside */

/* Rows have the element type; x[-1], x[-2] and x[states], x[states + 1] exist. */
typedef struct fl__ctc_loops {
    /* e[s] = max(logp[label[s] * step], FL__CTC_LOG_ZERO) */
    void (*emit)(void *e, const void *logp, int64_t step, const int64_t *label, int64_t states);
    /* y[s] = log(exp x[s] + exp x[s + by] + exp(x[s + 2 by] + skip[s])) + e[s]; e may be NULL */
    void (*step)(void *y, const void *x, const void *skip, const void *e, int64_t by,
                 int64_t states);
    void (*add)(void *y, const void *a, const void *b, int64_t states);
    /* dlogp[label[s] * step] += dy exp(alpha[s] + beta[s] - total), in order */
    void (*share)(void *dlogp, int64_t step, const int64_t *label, const void *alpha,
                  const void *beta, double total, double dy, int64_t states);
} fl__ctc_loops;

FL__LOOPS_BEGIN

#define FL__LEVEL_TEXT "ctc.inc"
#define FL__UNIT ctc
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
FL__LOOPS_END

static const fl__ctc_loops *const fl__ctc_loops_of[FL__VARIANTS] = {
    FL__AT_FLOATS(&fl__ctc_loops)};

/* >>sequences */

typedef struct fl__ctc {
    const fl__ctc_loops *loops;
    const fl_tensor *logp, *target, *steps, *lengths, *total, *dy; /* dy NULL: forward */
    fl_tensor *y;
    fl_dtype dtype;
    int64_t blank, size, row; /* bytes of an element, and of a row of states with its edges */
    fl__scratch scratch;
} fl__ctc;

/* One sequence. skip: 0 if state s can be reached from s - 2, else FL__CTC_LOG_ZERO; skip_on: the same as
   seen from s - 2. */
typedef struct fl__ctc_line {
    char log_zero[FL__ELEMENT];
    int64_t n, steps, states;
    int64_t *label;
    char *skip, *skip_on, *e, *beta, *next, *alpha; /* alpha: the rows before the first and after all steps */
} fl__ctc_line;

static int64_t fl__ctc_int(const fl_tensor *t, int64_t n) {
    return ((const int64_t *)fl_data(t))[n * t->stride[0]];
}

static void fl__ctc_set(const fl__ctc *c, char *row, int64_t s, double value) {
    fl_number_store(c->dtype, row + s * c->size, (fl_number){true, value, 0});
}

/* Clears a row: every state, and those outside, are impossible. */
static void fl__ctc_clear(const fl__ctc *c, const fl__ctc_line *x, char *row) {
    fl__fill_row(row - FL__CTC_EDGE * c->size, x->log_zero, c->row / c->size, (int)c->size);
}

/* Row i of a workspace: six rows, then one for each step; the labels come first. */
static char *fl__ctc_row(const fl__ctc *c, char *workspace, int64_t i) {
    return workspace + i * c->row + FL__CTC_EDGE * c->size;
}

static fl__ctc_line fl__ctc_begin(const fl__ctc *c, char *workspace, int64_t n) {
    const int64_t l = fl__ctc_int(c->lengths, n), t = c->logp->shape[0];
    fl__ctc_line x = {.n = n, .states = 2 * l + 1};
    const int64_t *target = (const int64_t *)fl_data(c->target) + n * c->target->stride[0];
    x.steps = fl__min(fl__ctc_int(c->steps, n), t);
    x.label = (int64_t *)(void *)workspace;
    workspace += fl__ceil_div((2 * c->target->shape[1] + 1) * 8, FL_ALIGN) * FL_ALIGN;
    fl__ctc_set(c, x.log_zero, 0, FL__CTC_LOG_ZERO);
    for (int i = 0; i < 6; i++) fl__ctc_clear(c, &x, fl__ctc_row(c, workspace, i));
    x.skip = fl__ctc_row(c, workspace, 0), x.skip_on = fl__ctc_row(c, workspace, 1);
    x.e = fl__ctc_row(c, workspace, 2), x.beta = fl__ctc_row(c, workspace, 3);
    x.next = fl__ctc_row(c, workspace, 4), x.alpha = fl__ctc_row(c, workspace, 5);
    for (int64_t s = 0; s < x.states; s++) {
        x.label[s] = s % 2 ? target[s / 2 * c->target->stride[1]] : c->blank;
        if (s < 2 ? x.label[s] == c->blank : x.label[s] == x.label[s - 2]) continue;
        fl__ctc_set(c, x.skip, s, 0);
        if (s >= 2) fl__ctc_set(c, x.skip_on, s - 2, 0);
    }
    fl__ctc_set(c, x.alpha, 0, 0);
    return x;
}

static void fl__ctc_emit(const fl__ctc *c, const fl__ctc_line *x, int64_t t) {
    const fl_tensor *p = c->logp;
    const int64_t at = t * p->stride[0] + x->n * p->stride[1];
    c->loops->emit(x->e, (const char *)fl_data(p) + at * c->size, p->stride[2], x->label,
                   x->states);
}

/* alpha after all steps; `keep`: keeps the rows of all steps, else alternates between two. */
static const char *fl__ctc_alpha(const fl__ctc *c, const fl__ctc_line *x, bool keep) {
    char *from = x->alpha;
    for (int64_t t = 0; t < x->steps; t++) {
        char *to = keep ? from + c->row : t % 2 ? x->alpha : x->next;
        if (keep) fl__ctc_clear(c, x, to);
        fl__ctc_emit(c, x, t);
        c->loops->step(to, from, x->skip, x->e, -1, x->states);
        from = to;
    }
    return from;
}

static double fl__ctc_get(const fl__ctc *c, const char *row, int64_t s) {
    return fl_number_load(c->dtype, row + s * c->size).f;
}

/* log P: the sum of the last blank and the last label */
static double fl__ctc_line_total(const fl__ctc *c, const fl__ctc_line *x, const char *alpha) {
    const double a = fl__ctc_get(c, alpha, x->states - 1);
    const double b = x->states > 1 ? fl__ctc_get(c, alpha, x->states - 2) : (double)FL__CTC_LOG_ZERO;
    const double top = a > b ? a : b;
    return top + log(exp(a - top) + exp(b - top));
}

static void fl__ctc_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__ctc *c = arg;
    char *workspace = fl__scratch_take(&c->scratch);
    for (int64_t n = begin; n < end; n++) {
        const fl__ctc_line x = fl__ctc_begin(c, workspace, n);
        const double total = fl__ctc_line_total(c, &x, fl__ctc_alpha(c, &x, false));
        fl__ctc_set(c, fl_data(c->y), n * c->y->stride[0], total);
    }
    fl__scratch_give_back(&c->scratch, workspace);
}

/* beta from the last step to the first, and the gradient of each step. */
static void fl__ctc_backward(const fl__ctc *c, const fl__ctc_line *x, double total, double dy) {
    const int64_t *step = c->y->stride;
    const char *alpha = fl__ctc_alpha(c, x, true);
    fl__ctc_set(c, x->beta, x->states - 1, 0);
    if (x->states > 1) fl__ctc_set(c, x->beta, x->states - 2, 0);
    for (int64_t t = x->steps - 1; t >= 0; t--, alpha -= c->row) {
        char *to = (char *)fl_data(c->y) + (t * step[0] + x->n * step[1]) * c->size;
        c->loops->share(to, step[2], x->label, alpha, x->beta, total, dy, x->states);
        fl__ctc_emit(c, x, t);
        c->loops->add(x->next, x->beta, x->e, x->states);
        c->loops->step(x->beta, x->next, x->skip_on, NULL, 1, x->states);
    }
}

static void fl__ctc_backward_task(void *arg, int64_t begin, int64_t end) {
    const fl__ctc *c = arg;
    const fl_tensor *y = c->y;
    char *workspace = fl__scratch_take(&c->scratch);
    for (int64_t n = begin; n < end; n++) {
        for (int64_t t = 0; t < y->shape[0]; t++) /* rows are dense */
            memset((char *)fl_data(y) + (t * y->stride[0] + n * y->stride[1]) * c->size, 0,
                   (size_t)(y->shape[2] * c->size));
        const double total = fl__ctc_get(c, fl_data(c->total), n * c->total->stride[0]);
        if (total < FL__CTC_LOG_ZERO / 2) continue;
        const fl__ctc_line x = fl__ctc_begin(c, workspace, n);
        fl__ctc_backward(c, &x, total, fl__ctc_get(c, fl_data(c->dy), n * c->dy->stride[0]));
    }
    fl__scratch_give_back(&c->scratch, workspace);
}

/* >>slots */

static bool fl__ctc_check(const fl__ctc *c) {
    const fl_tensor *target = c->target;
    const int64_t *at = fl_data(target), l = target->shape[1], classes = c->logp->shape[2];
    for (int64_t n = 0; n < target->shape[0]; n++) {
        const int64_t length = fl__ctc_int(c->lengths, n);
        if (length < 0 || length > l)
            return fl_fail("fl_ctc_loss: target length %lld is out of range for targets of %lld",
                           (long long)length, (long long)l);
        for (int64_t s = 0; s < length; s++) {
            const int64_t label = at[n * target->stride[0] + s * target->stride[1]];
            if (label < 0 || label >= classes)
                return fl_fail("fl_ctc_loss: label %lld is out of range for %lld classes",
                               (long long)label, (long long)classes);
        }
    }
    return true;
}

static bool fl__ctc_run(const fl_call *call, fl_task task) {
    const bool gradient = task == fl__ctc_backward_task;
    fl_tensor *const *in = call->in;
    fl__ctc c = {.logp = in[0], .target = in[1], .steps = in[2], .lengths = in[3],
                 .total = gradient ? in[4] : NULL, .dy = gradient ? in[5] : NULL,
                 .y = call->out[0], .dtype = in[0]->dtype,
                 .blank = ((const fl_ctc_args *)call->args)->blank};
    if (c.dtype != FL_F32 && c.dtype != FL_F64) return fl__no_kernel(call, c.dtype);
    const int64_t l = c.target->shape[1], n = c.target->shape[0], steps = c.logp->shape[0];
    c.loops = fl__ctc_loops_of[fl__variant(c.dtype)];
    c.size = (int64_t)fl_dtype_size(c.dtype);
    c.row = fl__ceil_div((2 * l + 1 + 2 * FL__CTC_EDGE) * c.size, FL_ALIGN) * FL_ALIGN;
    const int64_t rows = 6 + (gradient ? steps : 0);
    if (!fl__ctc_check(&c) || !fl_out_make(c.y)) return false;
    if (!fl__scratch_open(&c.scratch, n, (2 * l + 1) * 8 + FL_ALIGN + rows * c.row, 0,
                        fl_op_get_info(call->op)->name))
        return false;
    fl_parallel(n, fl__ceil_div(FL__GRAIN / 4, (steps + 1) * (2 * l + 1)), task, &c);
    fl__scratch_close(&c.scratch);
    return true;
}

static bool fl__cpu_ctc(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__ctc_run(c, fl__ctc_forward_task);
}

static bool fl__cpu_ctc_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__ctc_run(c, fl__ctc_backward_task);
}

FL_PRIVATE void fl__cpu_ctc_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_ctc, fl__cpu_ctc, 0);
    fl_backend_set(cpu, fl_op_ctc_grad, fl__cpu_ctc_grad, 0);
}

#endif
#endif
/* MIT licence: see LICENSE. */
