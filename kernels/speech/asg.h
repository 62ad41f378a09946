/* kernels/speech/asg.h - ASG on the CPU: log-sums over paths, and their gradients

   a[t][i], the log-sum over the paths that end in token i at frame t, is

     a[t][i] = e[t][i] + log(sum over j of exp(w[i][j] + a[t-1][j])),

   and over the positions of a target the same with two terms. Sums over all tokens are a product of the
   matrix exp(w - row maximum) and exp(a - maximum), in f64; a row that underflows is summed again with its
   own maximum. The gradient distributes to each term its share of its sum, so nothing overflows, and no
   backward variables (beta) are needed. One task is one sequence. */
#ifndef FL_CPU_ASG_H
#define FL_CPU_ASG_H
#include "../../fl/speech/lattice.h"
#include "../cpu/slots.h"
#include "../cpu/scratch.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cpu_asg_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_SPEECH_ASG) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ASG_IMPL
#define FL_CPU_ASG_IMPL
#include <math.h>
#include <string.h>
#define FL__ASG_NEVER (-1e30)
#define FL__ASG_LEAST 1e-200 /* smaller sums are computed again with their own maximum */
FL__LOOPS_BEGIN

typedef struct fl__asg {
    bool full;
    fl_dtype dtype;
    int64_t frames, n, c, l, stride; /* stride: space per row, for all tokens or target positions */
    const void *e;
    const int64_t *target, *steps, *lengths;
    double *w, *exp_w, *exp_by_from, *top_w; /* [c, c] to, from; exp(w - top_w), and its transpose; [c] */
    double *dw;                              /* [n, c, c] */
    const void *total, *dy;
    void *y, *de;
    fl__scratch scratch;
} fl__asg;

static double fl__asg_number(fl_dtype d, const void *p, int64_t i) {
    const double v = d == FL_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
    return v < FL__ASG_NEVER ? FL__ASG_NEVER : v;
}
static void fl__asg_add(fl_dtype d, void *p, int64_t i, double v) {
    if (d == FL_F32) ((float *)p)[i] += (float)v;
    else ((double *)p)[i] += v;
}

static int64_t fl__asg_at(const fl__asg *a, int64_t t, int64_t n) { return (t * a->n + n) * a->c; }

static double fl__asg_largest(const double *x, int64_t n) {
    double top = x[0];
    for (int64_t i = 1; i < n; i++)
        if (x[i] > top) top = x[i];
    return top;
}

/* log(sum of exp(x + y)). Unless shares is NULL, adds each term's share of the sum, times `times`. */
static double fl__asg_log_sum(const double *x, const double *y, int64_t n, double *shares, double times) {
    double top = FL__ASG_NEVER * 4, sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] + y[i] > top) top = x[i] + y[i];
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] + y[i] - top);
    for (int64_t i = 0; shares && i < n; i++) shares[i] += times * exp(x[i] + y[i] - top) / sum;
    return top + log(sum);
}

/* v = exp(a - max a); sums[i] = sum over j of exp_w[i][j] v[j]. Returns max a. */
static double fl__asg_sums(const fl__asg *x, const double *a, double *v, double *sums) {
    const double top = fl__asg_largest(a, x->c);
    for (int64_t j = 0; j < x->c; j++) v[j] = exp(a[j] - top);
    memset(sums, 0, (size_t)x->c * sizeof *sums);
    for (int64_t j = 0; j < x->c; j++) {
        const double *row = x->exp_by_from + j * x->c, f = v[j];
        FL__VECTOR for (int64_t i = 0; i < x->c; i++) sums[i] += row[i] * f;
    }
    return top;
}

/* Row t for all paths, from row t - 1. */
static void fl__asg_full_frame(const fl__asg *x, const double *before, double *now, double *v, double *sums) {
    const double top = fl__asg_sums(x, before, v, sums);
    for (int64_t i = 0; i < x->c; i++)
        now[i] += sums[i] < FL__ASG_LEAST ? fl__asg_log_sum(before, x->w + i * x->c, x->c, NULL, 0)
                                          : top + x->top_w[i] + log(sums[i]);
}

/* Distributes the gradient g of a row to the row before it, `to`, and to the transitions. */
static void fl__asg_full_back(const fl__asg *x, const double *before, const double *g, double *to, double *dw,
                              double *v, double *sums) {
    fl__asg_sums(x, before, v, sums);
    memset(to, 0, (size_t)x->c * sizeof *to);
    for (int64_t i = 0; i < x->c; i++) {
        if (g[i] == 0) continue;
        double *row = dw + i * x->c, *shares = v + x->c;
        const double *e = x->exp_w + i * x->c, q = g[i] / sums[i];
        if (sums[i] < FL__ASG_LEAST) {
            memset(shares, 0, (size_t)x->c * sizeof *shares);
            fl__asg_log_sum(before, x->w + i * x->c, x->c, shares, g[i]);
            for (int64_t j = 0; j < x->c; j++) row[j] += shares[j], to[j] += shares[j];
        } else
            FL__VECTOR for (int64_t j = 0; j < x->c; j++) {
                const double p = q * e[j] * v[j];
                row[j] += p, to[j] += p;
            }
    }
}

/* Log-sum of staying at position s and of coming from s - 1; *moved: the share of the latter. */
static double fl__asg_two(const fl__asg *x, const int64_t *y, const double *before, int64_t s,
                          double *moved) {
    const double stay = before[s] + x->w[y[s] * x->c + y[s]];
    const double move = s ? before[s - 1] + x->w[y[s] * x->c + y[s - 1]] : FL__ASG_NEVER * 4;
    const double top = stay > move ? stay : move;
    const double sum = exp(stay - top) + exp(move - top);
    *moved = exp(move - top) / sum;
    return top + log(sum);
}

static void fl__asg_forced_back(const fl__asg *x, const int64_t *y, int64_t l, const double *before,
                                const double *g, double *to, double *dw) {
    memset(to, 0, (size_t)l * sizeof *to);
    for (int64_t s = 0; s < l; s++) {
        double moved;
        if (g[s] == 0) continue;
        fl__asg_two(x, y, before, s, &moved);
        to[s] += g[s] * (1 - moved), dw[y[s] * x->c + y[s]] += g[s] * (1 - moved);
        if (s) to[s - 1] += g[s] * moved, dw[y[s] * x->c + y[s - 1]] += g[s] * moved;
    }
}

/* >>sequences */

typedef struct fl__asg_line {
    const int64_t *label; /* NULL: all paths */
    int64_t n, steps, positions;
    double *row, *v, *sums; /* row: all frames, or two rows used alternately; v: 2 stride */
} fl__asg_line;

static fl__asg_line fl__asg_begin(const fl__asg *a, char *buffer, int64_t n) {
    fl__asg_line x = {
        .n = n, .steps = fl__min(a->steps[n], a->frames), .positions = a->full ? a->c : a->lengths[n]};
    if (!a->full) x.label = a->target + n * a->l;
    x.v = (double *)(void *)buffer, x.sums = x.v + 2 * a->stride, x.row = x.sums + 2 * a->stride;
    return x;
}

/* Computes all rows, and returns the last; keep: row t is stored at row + t stride. */
static double *fl__asg_rows(const fl__asg *a, const fl__asg_line *x, bool keep) {
    double *now = x->row, *before = NULL, moved;
    for (int64_t t = 0; t < x->steps; t++) {
        const int64_t at = fl__asg_at(a, t, x->n);
        before = now, now = x->row + (keep ? t : t % 2) * a->stride;
        for (int64_t s = 0; s < x->positions; s++)
            now[s] = fl__asg_number(a->dtype, a->e, at + (x->label ? x->label[s] : s));
        if (t && a->full) fl__asg_full_frame(a, before, now, x->v, x->sums);
        else if (t)
            for (int64_t s = 0; s < x->positions; s++) now[s] += fl__asg_two(a, x->label, before, s, &moved);
        else
            for (int64_t s = 1; !a->full && s < x->positions; s++) now[s] = FL__ASG_NEVER;
    }
    return now;
}

static void fl__asg_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__asg *a = arg;
    char *buffer = fl__scratch_take(&a->scratch);
    for (int64_t n = begin; n < end; n++) {
        const fl__asg_line x = fl__asg_begin(a, buffer, n);
        double total = FL__ASG_NEVER;
        if (x.positions) {
            const double *row = fl__asg_rows(a, &x, false);
            memset(x.sums, 0, (size_t)a->stride * sizeof *x.sums);
            total = a->full ? fl__asg_log_sum(row, x.sums, x.positions, NULL, 0) : row[x.positions - 1];
        }
        if (total < FL__ASG_NEVER) total = FL__ASG_NEVER;
        fl_number_store(a->dtype, (char *)a->y + n * (int64_t)fl_dtype_size(a->dtype),
                        (fl_number){true, total, 0});
    }
    fl__scratch_give_back(&a->scratch, buffer);
}

static void fl__asg_backward(const fl__asg *a, const fl__asg_line *x, double *dw, double dy) {
    double *last = fl__asg_rows(a, x, true), *g = x->sums + a->stride, *to = x->row + a->frames * a->stride;
    memset(g, 0, (size_t)x->positions * sizeof *g);
    if (a->full) {
        memset(to, 0, (size_t)x->positions * sizeof *to);
        fl__asg_log_sum(last, to, x->positions, g, dy);
    } else g[x->positions - 1] = dy;
    for (int64_t t = x->steps - 1; t >= 0; t--) {
        for (int64_t s = 0; s < x->positions; s++)
            fl__asg_add(a->dtype, a->de, fl__asg_at(a, t, x->n) + (x->label ? x->label[s] : s), g[s]);
        if (!t) break;
        const double *before = x->row + (t - 1) * a->stride;
        if (a->full) fl__asg_full_back(a, before, g, to, dw, x->v, x->sums);
        else fl__asg_forced_back(a, x->label, x->positions, before, g, to, dw);
        memcpy(g, to, (size_t)x->positions * sizeof *g);
    }
}

static void fl__asg_backward_task(void *arg, int64_t begin, int64_t end) {
    const fl__asg *a = arg;
    const int64_t size = (int64_t)fl_dtype_size(a->dtype);
    char *buffer = fl__scratch_take(&a->scratch);
    for (int64_t n = begin; n < end; n++) {
        double *dw = a->dw + n * a->c * a->c;
        memset(dw, 0, (size_t)(a->c * a->c) * sizeof *dw);
        for (int64_t t = 0; t < a->frames; t++)
            memset((char *)a->de + fl__asg_at(a, t, n) * size, 0, (size_t)(a->c * size));
        const fl__asg_line x = fl__asg_begin(a, buffer, n);
        if (x.positions && fl__asg_number(a->dtype, a->total, n) > FL__ASG_NEVER / 2)
            fl__asg_backward(a, &x, dw, fl__asg_number(a->dtype, a->dy, n));
    }
    fl__scratch_give_back(&a->scratch, buffer);
}
FL__LOOPS_END

/* >>slots */

static bool fl__asg_check(const fl__asg *a) {
    for (int64_t n = 0; n < a->n; n++) {
        if (a->steps[n] < 1)
            return fl_fail("fl_asg_loss: sequence %lld has %lld frames, expected 1 or more", (long long)n,
                           (long long)a->steps[n]);
        if (!a->full && (a->lengths[n] < 0 || a->lengths[n] > a->l))
            return fl_fail("fl_asg_loss: the target length %lld of sequence %lld is not in [0, %lld]",
                           (long long)a->lengths[n], (long long)n, (long long)a->l);
        for (int64_t s = 0; !a->full && s < a->lengths[n]; s++)
            if (a->target[n * a->l + s] < 0 || a->target[n * a->l + s] >= a->c)
                return fl_fail("fl_asg_loss: label %lld of sequence %lld is out of range for %lld classes",
                               (long long)a->target[n * a->l + s], (long long)n, (long long)a->c);
    }
    return true;
}

/* Transitions in f64, and the tables of their exponentials. */
static void fl__asg_tables(fl__asg *a, const void *w, double *buffer) {
    const int64_t c = a->c;
    a->w = buffer, a->exp_w = a->w + c * c, a->exp_by_from = a->exp_w + c * c;
    a->top_w = a->exp_by_from + c * c, a->dw = a->top_w + c;
    for (int64_t i = 0; i < c * c; i++) a->w[i] = fl__asg_number(a->dtype, w, i);
    for (int64_t i = 0; a->full && i < c; i++) {
        a->top_w[i] = fl__asg_largest(a->w + i * c, c);
        for (int64_t j = 0; j < c; j++)
            a->exp_by_from[j * c + i] = a->exp_w[i * c + j] = exp(a->w[i * c + j] - a->top_w[i]);
    }
}

static bool fl__asg_run(const fl_call *call, bool gradient) {
    fl_tensor *const *in = call->in;
    const fl_dtype d = in[0]->dtype;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(call, d);
    fl__asg a = {.full = ((const fl_lattice_args *)call->args)->full, .dtype = d, .frames = in[0]->shape[0],
                 .n = in[0]->shape[1], .c = in[0]->shape[2], .l = in[2]->shape[1], .e = fl_data(in[0]),
                 .target = fl_numel(in[2]) ? fl_data(in[2]) : NULL, .steps = fl_data(in[3]),
                 .lengths = fl_data(in[4]), .total = gradient ? fl_data(in[5]) : NULL,
                 .dy = gradient ? fl_data(in[6]) : NULL};
    for (int i = 0; i < call->n_out; i++)
        if (!fl_out_make(call->out[i])) return false;
    if (!fl__asg_check(&a)) return false;
    a.stride = a.full ? a.c : a.l;
    a.y = a.de = fl_data(call->out[0]);
    const int64_t rows = (gradient ? a.frames : 2) + 5, shared = (3 + (gradient ? a.n : 0)) * a.c * a.c + a.c;
    if (!fl__scratch_open(&a.scratch, a.n, rows * (a.stride + 1) * 8, shared * 8,
                          fl_op_get_info(call->op)->name)) return false;
    fl__asg_tables(&a, fl_data(in[1]), (double *)(void *)a.scratch.shared);
    fl_parallel(a.n, 1, gradient ? fl__asg_backward_task : fl__asg_forward_task, &a);
    for (int64_t i = 0; gradient && i < a.c * a.c; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a.n; n++) sum += a.dw[n * a.c * a.c + i];
        fl_number_store(d, (char *)fl_data(call->out[1]) + i * (int64_t)fl_dtype_size(d),
                        (fl_number){true, sum, 0});
    }
    fl__scratch_close(&a.scratch);
    return true;
}

static bool fl__cpu_asg(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__asg_run(c, false);
}

static bool fl__cpu_asg_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__asg_run(c, true);
}

FL_PRIVATE void fl__cpu_asg_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_asg, fl__cpu_asg, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_asg_grad, fl__cpu_asg_grad, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
