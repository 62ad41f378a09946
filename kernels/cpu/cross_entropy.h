/* kernels/cpu/cross_entropy.h - softmax cross-entropy of logits, and its gradient

   The forward pass reads the logits once and writes a few numbers per row; the gradient reads them once and
   writes once: log probabilities are never stored. */
#ifndef FL_CPU_CROSS_ENTROPY_H
#define FL_CPU_CROSS_ENTROPY_H
#include "slots.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_cross_entropy_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_CROSS_ENTROPY) || \
    (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CROSS_ENTROPY_IMPL
#define FL_CPU_CROSS_ENTROPY_IMPL
#include "../../fl/records/loss.h"
FL__LOOPS_BEGIN

typedef struct fl__entropy {
    const void *x, *dy; /* x, dx: rows of classes; all others: one number per row */
    void *loss, *largest, *sum, *dx;
    const int64_t *target;
    int64_t rows, classes, ignore;
    double smoothing;
    const struct fl__entropy_kernels *kernels;
} fl__entropy;

typedef struct fl__entropy_kernels {
    void (*rows)(const fl__entropy *s, int64_t begin, int64_t end);
    void (*grad_rows)(const fl__entropy *s, int64_t begin, int64_t end);
} fl__entropy_kernels;

#define FL__LEVEL_TEXT "cross_entropy.inc"
#define FL__UNIT entropy
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
static const fl__entropy_kernels *const fl__entropy_kernels_of[FL__VARIANTS] = {
    FL__AT_FLOATS(&fl__entropy_kernels)};

/* Whether the kernels take the record; a target that is not a class is left to the composed op, which reports
   it. */
static bool fl__entropy_begin(fl__entropy *s, const fl_call *c) {
    const fl_cross_entropy_args *a = c->args;
    const fl_tensor *x = c->in[0];
    *s = (fl__entropy){.x = fl_data(x), .target = fl_data(c->in[1]), .rows = x->shape[0],
                       .classes = x->shape[1], .ignore = a->ignore, .smoothing = a->smoothing};
    s->kernels = fl__entropy_kernels_of[fl__variant(x->dtype)];
    bool ok = s->kernels && s->rows > 0 && s->classes > 0;
    for (int64_t r = 0; ok && r < s->rows; r++)
        ok = s->target[r] == s->ignore || (s->target[r] >= 0 && s->target[r] < s->classes);
    return ok;
}

static void fl__entropy_task(void *arg, int64_t begin, int64_t end) {
    const fl__entropy *s = arg;
    if (s->dx) s->kernels->grad_rows(s, begin, end);
    else s->kernels->rows(s, begin, end);
}

static bool fl__entropy_run(fl__entropy *s) {
    fl_parallel(s->rows, fl__ceil_div(FL__GRAIN / 2, s->classes), fl__entropy_task, s);
    return true;
}

static bool fl__cpu_cross_entropy(const fl_backend *self, const fl_call *c) {
    fl__entropy s;
    (void)self;
    if (!fl__entropy_begin(&s, c)) return fl_call_compose(c);
    void **out[] = {&s.loss, &s.largest, &s.sum};
    for (int i = 0; i < 3; i++) {
        if (!fl_out_make(c->out[i])) return false;
        *out[i] = fl_data(c->out[i]);
    }
    return fl__entropy_run(&s);
}

static bool fl__cpu_cross_entropy_grad(const fl_backend *self, const fl_call *c) {
    fl__entropy s;
    (void)self;
    if (!fl__entropy_begin(&s, c)) return fl_call_compose(c);
    if (!fl_out_make(c->out[0])) return false;
    s.dx = fl_data(c->out[0]);
    s.largest = fl_data(c->in[2]);
    s.sum = fl_data(c->in[3]);
    s.dy = fl_data(c->in[4]);
    return fl__entropy_run(&s);
}

FL_PRIVATE void fl__cpu_cross_entropy_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_cross_entropy, fl__cpu_cross_entropy, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_cross_entropy_grad, fl__cpu_cross_entropy_grad, FL_SLOT_CONTIGUOUS);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
