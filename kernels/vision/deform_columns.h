/* kernels/vision/deform_columns.h - im2col of deformable convolution and its gradients on the cpu

   Sampling positions of a row are computed once for all channels that share its offsets. A task is such a
   row; for x's gradient it is a block of planes, so that the order of every sum does not depend on the number
   of threads. */
#ifndef FL_CPU_DEFORM_COLUMNS_H
#define FL_CPU_DEFORM_COLUMNS_H
#include "../../fl/vision/deform.h"
#include "../cpu/slots.h"
#include "../cpu/scratch.h"
/* Sets the table entries of this file's kernels. */
FL_PRIVATE void fl__cpu_deform_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_VISION_DEFORM_COLUMNS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_DEFORM_COLUMNS_IMPL
#define FL_CPU_DEFORM_COLUMNS_IMPL
#include <string.h>
FL__LOOPS_BEGIN

enum { FL__DEFORM_BLOCK = 16 }; /* planes per task of x's gradient */

struct fl__deform;
typedef void (*fl__deform_fn)(const struct fl__deform *f, int64_t item, void *scratch);
typedef struct fl__deform {
    const fl_deform_args *a;
    int64_t h, w, oh, ow, kernel, each, blocks; /* each: channels per offset group; blocks of them */
    int64_t even_row;                           /* ow, rounded up to even */
    const void *x, *offset, *mask;
    void *columns, *dx, *d_offset, *d_mask;
    fl__deform_fn run;
    fl__scratch scratch;
} fl__deform;

#define FL__LEVEL_TEXT "../vision/deform_columns.inc"
#define FL__UNIT deform
#define FL__WITH_F64 FL__ONCE
#include "../cpu/levels.inc"
FL__LOOPS_END

static void fl__deform_task(void *arg, int64_t begin, int64_t end) {
    const fl__deform *f = arg;
    char *scratch = fl__scratch_take(&f->scratch);
    for (int64_t i = begin; i < end; i++) f->run(f, i, scratch);
    fl__scratch_give_back(&f->scratch, scratch);
}

static void fl__deform_begin(const fl_call *c, fl__deform *f) {
    const fl_deform_args *a = c->args;
    const int64_t *s = c->in[0]->shape, *out = &c->in[1]->shape[2];
    *f = (fl__deform){.a = a, .h = s[2], .w = s[3], .oh = out[0], .ow = out[1],
                      .kernel = a->kernel[0] * a->kernel[1], .each = s[1] / a->groups, .x = fl_data(c->in[0]),
                      .offset = fl_data(c->in[1]), .mask = a->masked ? fl_data(c->in[2]) : NULL};
    f->blocks = fl__ceil_div(f->each, FL__DEFORM_BLOCK);
    f->even_row = f->ow + f->ow % 2;
}

/* Can the kernel run: pixel indices must fit 32 bits, and rows and columns be exact in f32. */
static bool fl__deform_fits(const fl_call *c) {
    const fl_tensor *x = c->in[0];
    return fl__variant(x->dtype) <= FL__VARIANT_F64 && x->shape[2] * x->shape[3] < INT32_MAX &&
           fl__max(x->shape[2], x->shape[3]) < 1 << 24 && c->in[1]->shape[3] < INT32_MAX;
}

static bool fl__deform_run(fl__deform *f, const fl_call *c, fl__deform_fn run, int64_t items, int64_t grain) {
    const int64_t size = (int64_t)fl_dtype_size(c->in[0]->dtype);
    f->run = run;
    if (!fl__scratch_open(&f->scratch, items, f->even_row * (16 + 15 * size), 0, fl_op_get_info(c->op)->name))
        return false;
    fl_parallel(items, grain, fl__deform_task, f);
    fl__scratch_close(&f->scratch);
    return true;
}

static bool fl__cpu_deform_columns(const fl_backend *self, const fl_call *c) {
    static const fl__deform_fn gather[FL__VARIANTS] = {FL__AT_FLOATS(fl__deform_gather)};
    fl__deform f;
    (void)self;
    if (!fl__deform_fits(c)) return fl_call_compose(c);
    if (!fl_out_make(c->out[0])) return false;
    fl__deform_begin(c, &f);
    f.columns = fl_data(c->out[0]);
    return fl__deform_run(&f, c, gather[fl__variant(c->in[0]->dtype)],
                          c->in[0]->shape[0] * f.a->groups * f.kernel * f.oh,
                          fl__ceil_div(FL__GRAIN, f.ow * (f.each + 4)));
}

static bool fl__cpu_deform_columns_grad(const fl_backend *self, const fl_call *c) {
    static const fl__deform_fn offset_grad[FL__VARIANTS] = {FL__AT_FLOATS(fl__deform_offset_grad)},
                               input_grad[FL__VARIANTS] = {FL__AT_FLOATS(fl__deform_input_grad)};
    const int variant = fl__variant(c->in[0]->dtype);
    fl__deform f;
    (void)self;
    if (!fl__deform_fits(c)) return fl_call_compose(c);
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    fl__deform_begin(c, &f);
    f.columns = fl_data(c->in[c->n_in - 1]);
    f.dx = c->out[0] ? fl_data(c->out[0]) : NULL;
    f.d_offset = c->out[1] ? fl_data(c->out[1]) : NULL;
    f.d_mask = f.a->masked && c->out[2] ? fl_data(c->out[2]) : NULL;
    const int64_t groups = c->in[0]->shape[0] * f.a->groups;
    if ((f.d_offset || f.d_mask) && !fl__deform_run(&f, c, offset_grad[variant], groups * f.kernel * f.oh,
                                                    fl__ceil_div(FL__GRAIN, f.ow * (f.each + 4))))
        return false;
    return !f.dx || fl__deform_run(&f, c, input_grad[variant], groups * f.blocks, 1);
}

FL_PRIVATE void fl__cpu_deform_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_deform_columns, fl__cpu_deform_columns, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_deform_columns_grad, fl__cpu_deform_columns_grad, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
