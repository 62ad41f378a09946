/* kernels/cpu/resample.h - weighted sums along an axis: interpolation, adaptive pooling, their gradients

   The taps of each element of the result are listed first; those of the adjoint in the order in which they
   read: each element is then one sum, in that order, whatever the number of threads. */
#ifndef FL_CPU_RESAMPLE_H
#define FL_CPU_RESAMPLE_H
#include "slots.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_resample_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_RESAMPLE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_RESAMPLE_IMPL
#define FL_CPU_RESAMPLE_IMPL
#include "../../fl/records/image.h"
FL__LOOPS_BEGIN

typedef struct fl__tap {
    int64_t from;
    double weight;
} fl__tap;

struct fl__resampling;
typedef void (*fl__resample_rows)(const struct fl__resampling *s, int64_t begin, int64_t end);

/* x [outer, n, inner] -> y [outer, size, inner]; tap[first[o]] to tap[first[o + 1]] are those of element o */
typedef struct fl__resampling {
    const void *x;
    void *y;
    int64_t outer, n, size, inner;
    int64_t *first;
    fl__tap *tap;
    fl__resample_rows rows;
} fl__resampling;

#define FL__LEVEL_TEXT "resample.inc"
#define FL__UNIT resample
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
FL__LOOPS_END

static double fl__tap_weight(const fl_tensor *w, int64_t i) {
    return w->dtype == FL_F64 ? ((const double *)fl_data(w))[i] : (double)((const float *)fl_data(w))[i];
}

/* Lists the taps of the record in s->tap, which has space for all; taps outside the input are dropped. */
static void fl__resample_list(fl__resampling *s, const fl_call *c, bool adjoint) {
    const fl_tensor *w = c->in[2];
    const int64_t *at = fl_data(c->in[1]), k = w->shape[1], count = fl_numel(w);
    const int64_t n = adjoint ? s->size : s->n;
    const unsigned char *inside = c->in[3]->weak ? NULL : fl_data(c->in[3]);
    memset(s->first, 0, (size_t)(s->size + 1) * sizeof *s->first);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count; i++) {
            if (at[i] < 0 || at[i] >= n || (inside && !inside[i])) continue;
            const int64_t to = adjoint ? at[i] : i / k;
            if (pass == 0) s->first[to + 1]++;
            else s->tap[s->first[to]++] = (fl__tap){adjoint ? i / k : at[i], fl__tap_weight(w, i)};
        }
        if (pass == 0)
            for (int64_t o = 0; o < s->size; o++) s->first[o + 1] += s->first[o];
    }
    memmove(s->first + 1, s->first, (size_t)s->size * sizeof *s->first); /* ends become starts */
    s->first[0] = 0;
}

/* Whether x and y have the same layout, with `inner` contiguous numbers after the axis; then fills *s with
   the sizes. */
static bool fl__resample_sizes(fl__resampling *s, const fl_tensor *x, const fl_tensor *y, int axis) {
    *s = (fl__resampling){.outer = 1, .inner = 1, .n = x->shape[axis], .size = y->shape[axis]};
    if (fl_is_contiguous(x) && fl_is_contiguous(y)) {
        for (int i = 0; i < x->ndim; i++)
            if (i != axis) *(i < axis ? &s->outer : &s->inner) *= x->shape[i];
        return true;
    }
    s->outer = x->shape[0] * (axis == 3 ? x->shape[2] : 1);
    s->inner = x->shape[1] * (axis == 2 ? x->shape[3] : 1);
    return x->ndim == 4 && axis >= 2 && fl_is_channels_last(x) && fl_is_channels_last(y);
}

static void fl__resample_task(void *arg, int64_t begin, int64_t end) {
    const fl__resampling *s = arg;
    s->rows(s, begin, end);
}

static bool fl__cpu_resample(const fl_backend *self, const fl_call *c) {
    static const fl__resample_rows rows[FL__VARIANTS] = {FL__AT_FLOATS(fl__resample_rows)};
    const fl_resample_args *a = c->args;
    const fl_tensor *x = c->in[0];
    fl__resampling s;
    (void)self;
    bool ok = fl__resample_sizes(&s, x, c->out[0], a->axis) && (s.rows = rows[fl__variant(x->dtype)]);
    for (int i = 1; ok && i < 4; i++) ok = c->in[i]->weak || fl_is_contiguous(c->in[i]);
    if (!ok || fl_numel(x) * s.size == 0) return fl_call_compose(c);
    if (!fl_out_make(c->out[0])) return false;
    const size_t firsts = (size_t)(s.size + 1) * sizeof *s.first;
    char *memory = fl_heap_alloc(firsts + (size_t)fl_numel(c->in[2]) * sizeof *s.tap);
    if (!memory) return false;
    s.first = (int64_t *)memory;
    s.tap = (fl__tap *)(memory + firsts);
    s.x = fl_data(x);
    s.y = fl_data(c->out[0]);
    fl__resample_list(&s, c, a->adjoint);
    fl_parallel(s.outer * s.size, fl__ceil_div(FL__GRAIN, s.inner), fl__resample_task, &s);
    fl_heap_free(memory);
    return true;
}

FL_PRIVATE void fl__cpu_resample_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_resample, fl__cpu_resample, 0);
}

#endif
#endif
/* MIT licence: see LICENSE. */
