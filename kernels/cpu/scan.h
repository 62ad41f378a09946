/* kernels/cpu/scan.h - cumulative sums and products along one axis

   x is [outer, n, inner], dense. A unit of work is a block of columns at one outer position, so the additions
   along n keep their order whatever the number of threads. f32 is accumulated in f64. */
#ifndef FL_CPU_SCAN_H
#define FL_CPU_SCAN_H
#include "slots.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_SCAN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SCAN_IMPL
#define FL_CPU_SCAN_IMPL
FL__LOOPS_BEGIN

enum { FL__SCAN_COLUMNS = 256 };

typedef struct fl__scan {
    const void *x;
    void *y;
    int64_t n, inner, blocks; /* blocks of columns per outer position */
} fl__scan;

#define FL__SCAN(op, join, start, T, name, A, as) \
    static void fl__##op##_##name(void *arg, int64_t begin, int64_t end) { \
        const fl__scan *s = arg; \
        for (int64_t unit = begin; unit < end; unit++) { \
            int64_t column = unit % s->blocks * FL__SCAN_COLUMNS; \
            int64_t columns = fl__min(FL__SCAN_COLUMNS, s->inner - column); \
            int64_t at = unit / s->blocks * s->n * s->inner + column; \
            A acc[FL__SCAN_COLUMNS]; \
            for (int64_t j = 0; j < columns; j++) acc[j] = start; \
            for (int64_t i = 0; i < s->n; i++, at += s->inner) { \
                const T *x = (const T *)s->x + at; \
                T *y = (T *)s->y + at; \
                for (int64_t j = 0; j < columns; j++) { \
                    acc[j] = flm_##join##_##as(acc[j], (A)x[j]); \
                    y[j] = (T)acc[j]; \
                } \
            } \
        } \
    }
FL__SCAN(cumsum, add, 0, float, f32, double, f64)
FL__SCAN(cumsum, add, 0, double, f64, double, f64)
FL__SCAN(cumsum, add, 0, int64_t, i64, int64_t, i64)
FL__SCAN(cumprod, mul, 1, float, f32, double, f64)
FL__SCAN(cumprod, mul, 1, double, f64, double, f64)
FL__SCAN(cumprod, mul, 1, int64_t, i64, int64_t, i64)
#undef FL__SCAN

static bool fl__run_scan(const fl_call *c, fl_task f32, fl_task f64, fl_task i64) {
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0];
    int axis = ((const fl_axis_args *)c->args)->axis;
    fl_task task = y->dtype == FL_F32   ? f32
                   : y->dtype == FL_F64 ? f64
                   : y->dtype == FL_I64 ? i64
                                        : NULL;
    int64_t numel = fl_numel(y), outer = 1;
    fl__scan s = {.n = x->shape[axis], .inner = 1};
    if (!task) return fl__no_kernel(c, y->dtype);
    if (!fl_out_make(y)) return false;
    if (numel == 0) return true;
    for (int d = 0; d < axis; d++) outer *= x->shape[d];
    for (int d = axis + 1; d < x->ndim; d++) s.inner *= x->shape[d];
    s.x = fl_data(x);
    s.y = fl_data(y);
    s.blocks = fl__ceil_div(s.inner, FL__SCAN_COLUMNS);
    int64_t unit = s.n * fl__min(s.inner, FL__SCAN_COLUMNS);
    fl_parallel(outer * s.blocks, fl__ceil_div(FL__GRAIN, unit), task, &s);
    return true;
}

FL_PRIVATE bool fl__cpu_cumsum(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__run_scan(c, fl__cumsum_f32, fl__cumsum_f64, fl__cumsum_i64);
}

FL_PRIVATE bool fl__cpu_cumprod(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__run_scan(c, fl__cumprod_f32, fl__cumprod_f64, fl__cumprod_i64);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
