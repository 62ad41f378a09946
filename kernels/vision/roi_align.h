/* kernels/vision/roi_align.h - RoIAlign and its adjoint on the cpu

   The row and column weights of each box are listed first. A task is a plane of a box; for the adjoint it is
   a plane of an image, to which boxes add in order: the order of every sum does not depend on the number of
   threads. */
#ifndef FL_CPU_ROI_ALIGN_H
#define FL_CPU_ROI_ALIGN_H
#include "../../fl/vision/regions.h"
#include "../cpu/slots.h"
#include "../cpu/scratch.h"
enum { FL__ROI_SAMPLES = 1 << 16 }; /* limit along a side of a bin */
/* Sets the table entry of this file's kernel. */
FL_PRIVATE void fl__cpu_roi_align_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_VISION_ROI_ALIGN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ROI_ALIGN_IMPL
#define FL_CPU_ROI_ALIGN_IMPL
#include <math.h>
#include <string.h>
FL__LOOPS_BEGIN

typedef struct fl__roi_tap {
    int64_t at; /* row or column */
    double weight;
} fl__roi_tap;

typedef struct fl__roi_box {
    int64_t image, low, width;      /* the columns that it reads */
    double start[2], bin[2];        /* by row and by column, in pixels */
    int64_t samples[2];             /* along each side of a bin */
    const fl__roi_tap **first;      /* [rows + columns + 1]: begin of each bin's weights */
} fl__roi_box;

struct fl__roi;
typedef void (*fl__roi_fn)(const struct fl__roi *r, const fl__roi_box *b, const void *from, void *to,
                           void *scratch);
typedef struct fl__roi {
    const fl_roi_align_args *a;
    int64_t boxes, c, rows, columns, h, w, size; /* bytes of an element */
    const char *x;
    char *y;
    fl__roi_box *box;
    fl__roi_fn run;
    fl__scratch scratch;
} fl__roi;

#define FL__LEVEL_TEXT "../vision/roi_align.inc"
#define FL__UNIT roi
#define FL__WITH_F64 FL__ONCE
#include "../cpu/levels.inc"

/* Rounding f64 arithmetic to f32 after each step gives the same results as f32 arithmetic. */
static double fl__roi_round(fl_dtype d, double v) {
    return d == FL_F32 ? (double)(float)v : v;
}

/* Computes box k's position, bin size and number of samples; false after fl_fail. */
static bool fl__roi_init_box(const fl__roi *r, const fl_tensor *boxes, int64_t k, fl__roi_box *b) {
    const fl_dtype d = boxes->dtype;
    double v[5];
    for (int i = 0; i < 5; i++)
        v[i] = d == FL_F32 ? (double)((const float *)fl_data(boxes))[5 * k + i]
                           : ((const double *)fl_data(boxes))[5 * k + i];
    if (!(v[0] >= 0 && v[0] < (double)r->a->images))
        return fl_fail("fl_vision_roi_align: box %lld has image index %g, expected 0 to %lld", (long long)k,
                       v[0], (long long)r->a->images - 1);
    b->image = (int64_t)v[0];
    const double scale = fl__roi_round(d, r->a->scale);
    for (int axis = 0; axis < 2; axis++) {
        const double bins = (double)(axis ? r->columns : r->rows), move = r->a->aligned ? 0.5 : 0;
        const double end = fl__roi_round(d, fl__roi_round(d, v[4 - axis] * scale) - move);
        b->start[axis] = fl__roi_round(d, fl__roi_round(d, v[2 - axis] * scale) - move);
        double length = fl__roi_round(d, end - b->start[axis]);
        if (!r->a->aligned && !(length >= 1)) length = isnan(length) ? length : 1;
        b->bin[axis] = fl__roi_round(d, length / bins);
        const double samples = r->a->sampling_ratio ? (double)r->a->sampling_ratio : ceil(b->bin[axis]);
        if (!(samples <= FL__ROI_SAMPLES))
            return fl_fail("fl_vision_roi_align: %g samples along a bin of box %lld, expected at most %d",
                           samples, (long long)k, FL__ROI_SAMPLES);
        b->samples[axis] = samples > 0 ? (int64_t)samples : 0;
    }
    return true;
}

/* Adds a weight to the list [t, end), merging with the last two entries; returns the new end. */
static fl__roi_tap *fl__roi_add(fl__roi_tap *t, fl__roi_tap *end, int64_t at, double weight) {
    for (int i = 1; i <= 2 && end - i >= t; i++)
        if (end[-i].at == at) return end[-i].weight += weight, end;
    *end = (fl__roi_tap){at, weight};
    return end + 1;
}

/* Writes the weights of a box from t on; returns the end of the list. */
static fl__roi_tap *fl__roi_list_weights(const fl__roi *r, fl__roi_box *b, fl_dtype d, fl__roi_tap *t) {
    int64_t high = 0, bin = 0;
    const double count = (double)fl__max(b->samples[0] * b->samples[1], 1);
    b->low = r->w;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t bins = axis ? r->columns : r->rows, size = axis ? r->w : r->h;
        const double samples = (double)b->samples[axis], by = axis ? 1 : 1 / count;
        for (int64_t p = 0; p < bins; p++) {
            fl__roi_tap *begin = t;
            b->first[bin++] = t;
            const double from = fl__roi_round(d, b->start[axis] + fl__roi_round(d, (double)p * b->bin[axis]));
            for (int64_t i = 0; i < b->samples[axis]; i++) {
                const double step = fl__roi_round(d, ((double)i + 0.5) * b->bin[axis]) / samples;
                double v = fl__roi_round(d, from + fl__roi_round(d, step));
                if (!(v >= -1 && v <= (double)size)) continue;
                v = v < 0 ? 0 : v > (double)size - 1 ? (double)size - 1 : v;
                const int64_t at = (int64_t)v;
                const double part = v - (double)at;
                t = fl__roi_add(begin, t, at, (1 - part) * by);
                if (at + 1 < size) t = fl__roi_add(begin, t, at + 1, part * by);
            }
            for (const fl__roi_tap *q = begin; axis && q < t; q++)
                b->low = fl__min(b->low, q->at), high = fl__max(high, q->at + 1);
        }
    }
    b->first[bin] = t;
    b->width = fl__max(high - b->low, 0);
    return t;
}
FL__LOOPS_END

static void fl__roi_forward_task(void *arg, int64_t begin, int64_t end) {
    const fl__roi *r = arg;
    char *u = fl__scratch_take(&r->scratch);
    for (int64_t i = begin; i < end; i++) {
        const fl__roi_box *b = r->box + i / r->c;
        r->run(r, b, r->x + (b->image * r->c + i % r->c) * r->h * r->w * r->size,
               r->y + i * r->rows * r->columns * r->size, u);
    }
    fl__scratch_give_back(&r->scratch, u);
}

static void fl__roi_adjoint_task(void *arg, int64_t begin, int64_t end) {
    const fl__roi *r = arg;
    const int64_t plane = r->h * r->w * r->size, bins = r->rows * r->columns * r->size;
    char *u = fl__scratch_take(&r->scratch);
    for (int64_t i = begin; i < end; i++) {
        memset(r->y + i * plane, 0, (size_t)plane);
        for (int64_t k = 0; k < r->boxes; k++)
            if (r->box[k].image == i / r->c)
                r->run(r, r->box + k, r->x + (k * r->c + i % r->c) * bins, r->y + i * plane, u);
    }
    fl__scratch_give_back(&r->scratch, u);
}

static bool fl__cpu_roi_align(const fl_backend *self, const fl_call *c) {
    static const fl__roi_fn forward[FL__VARIANTS] = {FL__AT_FLOATS(fl__roi_forward)},
                            adjoint[FL__VARIANTS] = {FL__AT_FLOATS(fl__roi_adjoint)};
    const fl_roi_align_args *a = c->args;
    const fl_tensor *x = c->in[0], *boxes = c->in[1];
    const fl_dtype d = x->dtype;
    (void)self;
    fl__roi r = {.a = a, .boxes = boxes->shape[0], .c = x->shape[1], .rows = a->rows, .columns = a->columns,
                 .h = a->h, .w = a->w, .size = (int64_t)fl_dtype_size(d),
                 .run = (a->adjoint ? adjoint : forward)[fl__variant(d)]};
    if (!r.run || boxes->dtype != d) return fl__no_kernel(c, d);
    if (!fl_out_make(c->out[0])) return false;
    r.x = fl_data(x), r.y = fl_data(c->out[0]);
    const size_t starts = (size_t)(r.rows + r.columns + 1);
    int64_t taps = 0;
    r.box = fl_heap_alloc((size_t)r.boxes * (sizeof *r.box + starts * sizeof *r.box->first));
    bool ok = r.box != NULL;
    for (int64_t k = 0; ok && k < r.boxes; k++) {
        fl__roi_box *b = r.box + k;
        b->first = (const fl__roi_tap **)(void *)(r.box + r.boxes) + (size_t)k * starts;
        if ((ok = fl__roi_init_box(&r, boxes, k, b)))
            taps += 2 * (b->samples[0] * r.rows + b->samples[1] * r.columns);
    }
    fl__roi_tap *tap = ok ? fl_heap_alloc((size_t)(taps + 1) * sizeof *tap) : NULL, *end = tap;
    const int64_t tasks = (a->adjoint ? a->images : r.boxes) * r.c;
    ok = tap && fl__scratch_open(&r.scratch, tasks, r.w * r.size, 0, "roi_align");
    if (ok) {
        for (int64_t k = 0; k < r.boxes; k++) end = fl__roi_list_weights(&r, r.box + k, d, end);
        fl_parallel(tasks, fl__ceil_div(FL__GRAIN, a->adjoint ? r.h * r.w : 4 * r.rows * r.columns),
                    a->adjoint ? fl__roi_adjoint_task : fl__roi_forward_task, &r);
        fl__scratch_close(&r.scratch);
    }
    fl_heap_free(tap), fl_heap_free(r.box);
    return ok;
}

FL_PRIVATE void fl__cpu_roi_align_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_roi_align, fl__cpu_roi_align, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
