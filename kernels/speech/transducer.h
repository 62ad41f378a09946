/* kernels/speech/transducer.h - transducer loss on the CPU: log-sum over lattice paths, and its gradient

     a[t][u] = log(exp(a[t-1][u] + blank[t-1][u]) + exp(a[t][u-1] + label[t][u-1])),  a[0][0] = 0
     log P   = a[T-1][U] + blank[T-1][U]

   in f64. The gradient goes backwards, and distributes to both transitions into a cell their shares. One
   task is one sequence. */
#ifndef FL_CPU_TRANSDUCER_H
#define FL_CPU_TRANSDUCER_H
#include "../../fl/speech/lattice.h"
#include "../cpu/slots.h"
#include "../cpu/scratch.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cpu_transducer_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_SPEECH_TRANSDUCER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_TRANSDUCER_IMPL
#define FL_CPU_TRANSDUCER_IMPL
#include <math.h>
#include <string.h>
#define FL__TRANSDUCER_NEVER (-1e30)

typedef struct fl__transducer {
    fl_dtype dtype;
    int64_t n, t, s; /* s = u + 1 */
    const void *blank, *label, *total, *dy;
    const int64_t *steps, *lengths;
    void *y, *d_blank, *d_label;
    fl__scratch scratch;
} fl__transducer;

static double fl__transducer_get(const fl__transducer *x, const void *p, int64_t i) {
    const double v = x->dtype == FL_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
    return v < FL__TRANSDUCER_NEVER ? FL__TRANSDUCER_NEVER : v;
}
static void fl__transducer_set(const fl__transducer *x, void *p, int64_t i, double v) {
    if (x->dtype == FL_F32) ((float *)p)[i] = (float)v;
    else ((double *)p)[i] = v;
}
static int64_t fl__transducer_blank(const fl__transducer *x, int64_t n, int64_t t, int64_t u) {
    return (n * x->t + t) * x->s + u;
}
static int64_t fl__transducer_label(const fl__transducer *x, int64_t n, int64_t t, int64_t u) {
    return (n * x->t + t) * (x->s - 1) + u;
}

/* The scores of both transitions into cell (t, u) of lattice a: by blank, by label. */
static void fl__transducer_scores(const fl__transducer *x, int64_t n, const double *a, int64_t t, int64_t u,
                                  double score[2]) {
    score[0] = score[1] = FL__TRANSDUCER_NEVER * 4;
    if (t)
        score[0] =
            a[(t - 1) * x->s + u] + fl__transducer_get(x, x->blank, fl__transducer_blank(x, n, t - 1, u));
    if (u)
        score[1] =
            a[t * x->s + u - 1] + fl__transducer_get(x, x->label, fl__transducer_label(x, n, t, u - 1));
}

/* The lattice [steps, s] of sequence n, and log P. */
static double fl__transducer_fill(const fl__transducer *x, int64_t n, double *a) {
    const int64_t steps = fl__min(x->steps[n], x->t), u_end = x->lengths[n];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t u = 0; u <= u_end; u++) {
            double score[2];
            fl__transducer_scores(x, n, a, t, u, score);
            const double top = score[0] > score[1] ? score[0] : score[1];
            a[t * x->s + u] = t || u ? top + log1p(exp(-fabs(score[0] - score[1]))) : 0;
        }
    return a[(steps - 1) * x->s + u_end] +
           fl__transducer_get(x, x->blank, fl__transducer_blank(x, n, steps - 1, u_end));
}

static void fl__transducer_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__transducer *x = arg;
    char *buffer = fl__scratch_take(&x->scratch);
    for (int64_t n = begin; n < end; n++) {
        const double total = fl__transducer_fill(x, n, (double *)(void *)buffer);
        fl__transducer_set(x, x->y, n, total < FL__TRANSDUCER_NEVER ? FL__TRANSDUCER_NEVER : total);
    }
    fl__scratch_give_back(&x->scratch, buffer);
}

static void fl__transducer_backward(const fl__transducer *x, int64_t n, double *a, double dy) {
    const int64_t steps = fl__min(x->steps[n], x->t), u_end = x->lengths[n];
    double *g = a + x->t * x->s; /* gradients of one row of cells */
    memset(g, 0, (size_t)x->s * sizeof *g);
    fl__transducer_fill(x, n, a);
    g[u_end] = dy;
    fl__transducer_set(x, x->d_blank, fl__transducer_blank(x, n, steps - 1, u_end), dy);
    for (int64_t t = steps - 1; t >= 0; t--)
        for (int64_t u = u_end; u >= 0; u--) {
            double score[2];
            if (g[u] == 0 || (!t && !u)) continue;
            fl__transducer_scores(x, n, a, t, u, score);
            const double by_blank = g[u] / (1 + exp(score[1] - score[0])), by_label = g[u] - by_blank;
            if (t) fl__transducer_set(x, x->d_blank, fl__transducer_blank(x, n, t - 1, u), by_blank);
            if (u) {
                fl__transducer_set(x, x->d_label, fl__transducer_label(x, n, t, u - 1), by_label);
                g[u - 1] += by_label;
            }
            g[u] = t ? by_blank : 0;
        }
}

static void fl__transducer_backward_task(void *arg, int64_t begin, int64_t end) {
    const fl__transducer *x = arg;
    const int64_t size = (int64_t)fl_dtype_size(x->dtype);
    char *buffer = fl__scratch_take(&x->scratch);
    for (int64_t n = begin; n < end; n++) {
        memset((char *)x->d_blank + n * x->t * x->s * size, 0, (size_t)(x->t * x->s * size));
        memset((char *)x->d_label + n * x->t * (x->s - 1) * size, 0, (size_t)(x->t * (x->s - 1) * size));
        if (fl__transducer_get(x, x->total, n) > FL__TRANSDUCER_NEVER / 2)
            fl__transducer_backward(x, n, (double *)(void *)buffer, fl__transducer_get(x, x->dy, n));
    }
    fl__scratch_give_back(&x->scratch, buffer);
}

/* >>slots */

static bool fl__transducer_run(const fl_call *call, bool gradient) {
    fl_tensor *const *in = call->in;
    fl__transducer x = {.dtype = in[0]->dtype, .n = in[0]->shape[0], .t = in[0]->shape[1],
                        .s = in[0]->shape[2], .steps = fl_data(in[2]), .lengths = fl_data(in[3])};
    if (x.dtype != FL_F32 && x.dtype != FL_F64) return fl__no_kernel(call, x.dtype);
    for (int i = 0; i < call->n_out; i++)
        if (!fl_out_make(call->out[i])) return false;
    for (int64_t n = 0; n < x.n; n++)
        if (x.steps[n] < 1 || x.lengths[n] < 0 || x.lengths[n] >= x.s)
            return fl_fail("fl_transducer_loss: sequence %lld has %lld frames and %lld labels, expected 1 to "
                           "%lld frames and 0 to %lld labels", (long long)n, (long long)x.steps[n],
                           (long long)x.lengths[n], (long long)x.t, (long long)x.s - 1);
    x.blank = fl_data(in[0]), x.label = fl_data(in[1]), x.y = x.d_blank = fl_data(call->out[0]);
    if (gradient) x.total = fl_data(in[4]), x.dy = fl_data(in[5]), x.d_label = fl_data(call->out[1]);
    if (!fl__scratch_open(&x.scratch, x.n, (x.t + 1) * x.s * 8, 0, fl_op_get_info(call->op)->name))
        return false;
    fl_parallel(x.n, 1, gradient ? fl__transducer_backward_task : fl__transducer_forward_task, &x);
    fl__scratch_close(&x.scratch);
    return true;
}

static bool fl__cpu_transducer(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__transducer_run(c, false);
}

static bool fl__cpu_transducer_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__transducer_run(c, true);
}

FL_PRIVATE void fl__cpu_transducer_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_transducer, fl__cpu_transducer, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_transducer_grad, fl__cpu_transducer_grad, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
