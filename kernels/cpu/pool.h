/* kernels/cpu/pool.h - 2-D max and average pooling on the CPU, and their gradients

   Planes of images are independent: they run on the thread pool. Channels-last images are cut into rows, for
   gradients of maxima by index into blocks of channels. */
#ifndef FL_CPU_POOL_H
#define FL_CPU_POOL_H
#include "../../fl/tensor/copy.h"
#include "../../fl/records/pool.h"
#include "../../fl/tensor/view.h"
#include "slots.h"

/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_pool_slots(fl_backend *cpu);

#endif /* FL_CPU_POOL_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_POOL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_POOL_IMPL
#define FL_CPU_POOL_IMPL
#include <math.h>
#include <string.h>

#define FL__POOL_COLUMNS 256
#define FL__POOL_BLOCK 16
#define FL__POOL_TAPS 256 /* of a window that u8 indices can distinguish */

typedef struct fl__pooling {
    const void *in;
    void *out;
    int64_t *index;
    uint8_t *taps; /* instead of index: the position in the window */
    int64_t h, w, oh, ow, c;
    const int64_t *kernel, *stride, *pad; /* h, w; pad: the low side */
    bool count_pad;
    bool *outside; /* set if an index of max_grad is out of range */
    void (*plane)(const struct fl__pooling *p, int64_t plane);
} fl__pooling;

/* t [n, c, h, w] as kernels read it: row-major, or channels-last; t itself if it is so. */
static fl_tensor *fl__pooling_input(fl_tensor *t, bool channels_last) {
    static const int last[] = {0, 2, 3, 1}, first[] = {0, 3, 1, 2};
    if (!channels_last) return fl_contiguous(t);
    return fl_permute(fl_contiguous(fl_permute(t, 4, last)), 4, first);
}

/* Outputs *lo .. *hi of 0 .. n: those whose input at + o * step is within 0 .. w. */
static inline void fl__pooling_inside(int64_t at, int64_t step, int64_t w, int64_t n, int64_t *lo,
                                      int64_t *hi) {
    *lo = at >= 0 ? 0 : (step - 1 - at) / step;
    int64_t end = at >= w ? 0 : (w - 1 - at) / step + 1;
    *hi = end < n ? end : n;
}

/* Positions lo .. hi of one dim. */
typedef struct fl__pooling_box {
    int64_t lo, hi;
} fl__pooling_box;

/* _window: the inputs, of n, in the window of output o of dim d. _cover: the outputs, of n, whose windows
   contain input i. */
static inline fl__pooling_box fl__pooling_window(const fl__pooling *p, int d, int64_t o,
                                                 int64_t n) {
    int64_t lo = o * p->stride[d] - p->pad[d], hi = lo + p->kernel[d];
    return (fl__pooling_box){lo > 0 ? lo : 0, hi < n ? hi : n};
}

static inline fl__pooling_box fl__pooling_cover(const fl__pooling *p, int d, int64_t i, int64_t n) {
    int64_t at = i + p->pad[d], hi = at / p->stride[d] + 1;
    int64_t lo = at < p->kernel[d] ? 0 : (at - p->kernel[d]) / p->stride[d] + 1;
    return (fl__pooling_box){lo, hi < n ? hi : n};
}

/* An iterator over rows x cols pixels of a channels-last image: the first element, the steps to the next
   pixel and the next row, and the same of marks, which identify the pixels. */
typedef struct fl__pooling_iter {
    int64_t rows, cols, at, right, down, mark, mark_right, mark_down;
} fl__pooling_iter;

/* The window of output (row, col). Marks: the position in the window, or in the image. */
static inline fl__pooling_iter fl__pooling_window_iter(const fl__pooling *p, int64_t row,
                                                       int64_t col) {
    const fl__pooling_box y = fl__pooling_window(p, 0, row, p->h);
    const fl__pooling_box x = fl__pooling_window(p, 1, col, p->w);
    const int64_t top = p->taps ? row * p->stride[0] - p->pad[0] : 0;
    const int64_t left = p->taps ? col * p->stride[1] - p->pad[1] : 0;
    const int64_t width = p->taps ? p->kernel[1] : p->w;
    return (fl__pooling_iter){
        y.hi - y.lo, x.hi - x.lo, (y.lo * p->w + x.lo) * p->c, p->c, p->w * p->c,
        (y.lo - top) * width + x.lo - left, 1, width};
}

/* The outputs, rows y and columns x, whose windows contain pixel (row, col). Marks: its position in their
   windows. */
static inline fl__pooling_iter fl__pooling_cover_iter(const fl__pooling *p, int64_t row,
                                                      int64_t col, fl__pooling_box y,
                                                      fl__pooling_box x) {
    const int64_t down = row + p->pad[0] - y.lo * p->stride[0];
    const int64_t right = col + p->pad[1] - x.lo * p->stride[1];
    return (fl__pooling_iter){
        y.hi - y.lo, x.hi - x.lo, (y.lo * p->ow + x.lo) * p->c, p->c, p->ow * p->c,
        down * p->kernel[1] + right, -p->stride[1], -p->stride[0] * p->kernel[1]};
}

/* Advances b, the outputs whose windows contain input i - 1, to input i, without a division. */
static inline void fl__pooling_advance(const fl__pooling *p, int d, int64_t i, int64_t n,
                                       fl__pooling_box *b) {
    const int64_t at = i + p->pad[d];
    while (b->hi < n && b->hi * p->stride[d] <= at) b->hi++;
    while (b->lo < b->hi && b->lo * p->stride[d] + p->kernel[d] <= at) b->lo++;
}

/* Number of elements that output (row, col) averages. */
static inline int64_t fl__pooling_count(const fl__pooling *p, int64_t row, int64_t col) {
    if (p->count_pad) return p->kernel[0] * p->kernel[1];
    fl__pooling_box rows = fl__pooling_window(p, 0, row, p->h);
    fl__pooling_box cols = fl__pooling_window(p, 1, col, p->w);
    return (rows.hi - rows.lo) * (cols.hi - cols.lo);
}

FL__LOOPS_BEGIN
#define FL__LEVEL_TEXT "pool_lanes.inc"
#define FL__UNIT pooling
#define FL__WITH_F64 FL__ONCE
#define FL__WITH_I64 FL__ONCE
#include "levels.inc"

#define FL__LEVEL_TEXT "pool_plane.inc"
#define FL__UNIT pooling
#define FL__WITH_F64 FL__ONCE
#define FL__WITH_I64 FL__ONCE
#include "levels.inc"

FL__LOOPS_END

static void fl__pooling_task(void *arg, int64_t begin, int64_t end) {
    const fl__pooling *p = arg;
    for (int64_t plane = begin; plane < end; plane++) p->plane(p, plane);
}

/* Runs p->plane over all parts (e.g. planes) of image (x or dx) and pooled (y or dy). */
static bool fl__pooling_run(fl__pooling *p, const fl_tensor *image, const fl_tensor *pooled,
                            int64_t parts) {
    p->c = image->shape[1];
    p->h = image->shape[2], p->w = image->shape[3];
    p->oh = pooled->shape[2], p->ow = pooled->shape[3];
    if (!p->plane) return fl_fail("fl_pool2d: dtype %s is not supported", fl_dtype_name(image->dtype));
    if (p->h * p->w > INT32_MAX)
        return fl_fail("fl_pool2d: a plane of %lld elements is too large, at most %d",
                       (long long)(p->h * p->w), INT32_MAX);
    int64_t size = fl_numel(image) / parts + 1;
    fl_parallel(parts, ((1 << 15) + size - 1) / size, fl__pooling_task, p);
    return true;
}

static int64_t fl__pooling_planes(const fl_tensor *image) {
    return image->shape[0] * image->shape[1];
}

static fl__pooling fl__pooling_of(const fl_pool2d_args *a) {
    return (fl__pooling){
        .kernel = a->kernel, .stride = a->stride, .pad = a->pad_lo, .count_pad = a->count_pad};
}

typedef void (*fl__pooling_plane)(const fl__pooling *p, int64_t plane);

/* NULL: no kernel for that dtype. Rows with fewer windows than lanes use a lower level. */
static fl__pooling_plane fl__pooling_max_of(fl_dtype d, bool last, int64_t windows) {
    static const fl__pooling_plane of[2][FL__VARIANTS] = {
        {FL__AT_FLOATS(fl__pooling_max), [FL__VARIANT_I64] = fl__pooling_max_i64_portable},
        {FL__AT_FLOATS(fl__pooling_max_line), [FL__VARIANT_I64] = fl__pooling_max_line_i64_portable}};
    int at = fl__variant(d);
    while (!last && at > 0 && at < FL__LEVEL_COUNT && windows < 4 << at && of[0][at - 1]) at--;
    return of[last][at];
}

static fl__pooling_plane fl__pooling_max_grad_of(fl_dtype d, bool last, bool taps) {
    static const fl__pooling_plane of[2][2][FL__VARIANTS] = {
        {{FL__AT_FLOATS(fl__pooling_max_grad)}, {FL__AT_FLOATS(fl__pooling_max_grad_block)}},
        {{FL__AT_FLOATS(fl__pooling_max_grad_taps)}, {FL__AT_FLOATS(fl__pooling_max_grad_line)}}};
    return of[taps][last][fl__variant(d)];
}

/* Narrow floats are pooled as wide ones; indices are unaffected. */
static bool fl__pooling_wide(const fl_call *c) {
    fl_scope s = fl_scope_begin();
    fl_call wide = *c;
    fl_tensor *y = c->out[0];
    const fl_dtype d = fl_dtype_wide(y->dtype);
    wide.in[0] = fl_cast(c->in[0], d);
    wide.out[0] = fl_out_layout_like(fl_out_on(y->backend, fl_shape_of(y), d), y);
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {wide.out[0]}};
    const bool ok = wide.in[0] && wide.out[0] && fl_call_run(&wide) && fl_call_run(&copy);
    fl_scope_end(&s);
    return ok;
}

/* NaN is the maximum, padding never is; the outputs are all row-major or all channels-last. */
static bool fl__cpu_max_pool2d(const fl_backend *self, const fl_call *c) {
    (void)self;
    if (fl_is_narrow(c->out[0])) return fl__pooling_wide(c);
    fl_tensor *y = c->out[0], *index = c->out[1];
    if (!fl_out_make(y) || !fl_out_make(index)) return false;
    if (fl_numel(y) == 0) return true;
    const bool last = !fl_is_contiguous(y);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl__pooling_input(c->in[0], last);
    fl__pooling p = fl__pooling_of(c->args);
    bool ok = x != NULL;
    if (ok) {
        p.in = fl_data(x), p.out = fl_data(y);
        if (index->dtype == FL_U8) p.taps = fl_data(index);
        else p.index = fl_data(index);
        p.plane = fl__pooling_max_of(y->dtype, last, (x->shape[3] - p.kernel[1]) / p.stride[1] + 1);
        ok = fl__pooling_run(&p, x, y, last ? y->shape[0] * y->shape[2] : fl__pooling_planes(x));
    }
    fl_scope_end(&s);
    return ok;
}

static bool fl__cpu_max_pool2d_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    if (fl_is_narrow(c->out[0])) return fl__pooling_wide(c);
    fl_tensor *dx = c->out[0];
    if (!fl_out_make(dx)) return false;
    if (fl_numel(dx) == 0) return true;
    const bool last = !fl_is_contiguous(dx), taps = c->in[1]->dtype == FL_U8;
    const int64_t blocks = (dx->shape[1] + FL__POOL_BLOCK - 1) / FL__POOL_BLOCK;
    bool outside = false;
    fl_scope s = fl_scope_begin();
    fl_tensor *dy = fl__pooling_input(c->in[0], last), *index = fl__pooling_input(c->in[1], last);
    bool ok = dy && index;
    if (ok) {
        fl__pooling p = fl__pooling_of(c->args);
        p.in = fl_data(dy), p.out = fl_data(dx), p.outside = &outside;
        if (taps) p.taps = fl_data(index);
        else p.index = fl_data(index);
        p.plane = fl__pooling_max_grad_of(dx->dtype, last, taps);
        const int64_t lines = dx->shape[0] * (taps ? dx->shape[2] : blocks);
        ok = fl__pooling_run(&p, dx, dy, last ? lines : fl__pooling_planes(dx));
    }
    fl_scope_end(&s);
    if (!ok) return false;
    return !outside || fl_fail("fl_max_pool2d_grad: an index is out of range for images of %lld x %lld",
                               (long long)dx->shape[2], (long long)dx->shape[3]);
}

static fl__pooling_plane fl__pooling_avg_of(fl_dtype d, bool last, bool grad) {
    static const fl__pooling_plane of[2][2][FL__VARIANTS] = {
        {{FL__AT_FLOATS(fl__pooling_avg)}, {FL__AT_FLOATS(fl__pooling_avg_line)}},
        {{FL__AT_FLOATS(fl__pooling_avg_grad)}, {FL__AT_FLOATS(fl__pooling_avg_grad_line)}}};
    return of[grad][last][fl__variant(d)];
}

/* x -> y, or dy -> dx */
static bool fl__pooling_avg(const fl_call *c, bool grad) {
    fl_tensor *out = c->out[0];
    if (!fl_out_make(out)) return false;
    if (fl_numel(out) == 0) return true;
    const bool last = !fl_is_contiguous(out);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl__pooling_input(c->in[0], last);
    fl__pooling p = fl__pooling_of(c->args);
    bool ok = in != NULL;
    if (ok) {
        p.in = fl_data(in), p.out = fl_data(out);
        p.plane = fl__pooling_avg_of(out->dtype, last, grad);
        int64_t parts = last ? out->shape[0] * out->shape[2] : fl__pooling_planes(out);
        ok = fl__pooling_run(&p, grad ? out : in, grad ? in : out, parts);
    }
    fl_scope_end(&s);
    return ok;
}

static bool fl__cpu_avg_pool2d(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__pooling_avg(c, false);
}

static bool fl__cpu_avg_pool2d_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__pooling_avg(c, true);
}

FL_PRIVATE void fl__cpu_pool_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_max_pool2d, fl__cpu_max_pool2d, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_max_pool2d_grad, fl__cpu_max_pool2d_grad, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_avg_pool2d, fl__cpu_avg_pool2d, 0);
    fl_backend_set(cpu, fl_op_avg_pool2d_grad, fl__cpu_avg_pool2d_grad, 0);
}

#endif /* FL_CPU_POOL_IMPL */
#endif
/* MIT licence: see LICENSE. */
