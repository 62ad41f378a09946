/* kernels/cpu/copy.h - copies between layouts and dtypes, fill, iota

   Copies of one dtype go row by row along the dim that y steps through fastest; where x is dense
   along another dim, in square tiles of both. Casts are passes. */
#include "common.h"
#ifndef FL_CPU_COPY_H
#define FL_CPU_COPY_H
#endif

#if defined(FL_IMPL_ONLY_CPU_COPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_COPY_IMPL
#define FL_CPU_COPY_IMPL
FL__LOOPS_BEGIN

/* >>casts: i32 converts as i64 does and u8 as b8 does, whose bytes may be any here */

#define FL__CAST(from, F, as, A, to, T) \
    static void fl__cast_##from##_##to(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        T *y = p[0]; \
        const F *x = p[1]; \
        for (int64_t i = 0; i < n; i++) y[i] = flm_##as##_to_##to((A)x[i]); \
    }
#define FL__CASTS(from, F, as, A) \
    FL__CAST(from, F, as, A, b8, uint8_t) \
    FL__CAST(from, F, as, A, u8, uint8_t) \
    FL__CAST(from, F, as, A, i32, int32_t) \
    FL__CAST(from, F, as, A, i64, int64_t) \
    FL__CAST(from, F, as, A, f32, float) \
    FL__CAST(from, F, as, A, f64, double)
#define FL__CAST_ROW(from) \
    {[FL_B8] = fl__cast_##from##_b8,   [FL_U8] = fl__cast_##from##_u8, \
     [FL_I32] = fl__cast_##from##_i32, [FL_I64] = fl__cast_##from##_i64, \
     [FL_F32] = fl__cast_##from##_f32, [FL_F64] = fl__cast_##from##_f64}
FL__CASTS(b8, uint8_t, b8, uint8_t)
FL__CASTS(i32, int32_t, i64, int64_t)
FL__CASTS(i64, int64_t, i64, int64_t)
FL__CASTS(f32, float, f32, float)
FL__CASTS(f64, double, f64, double)
static const fl__loop fl__casts[FL_DTYPE_COUNT][FL_DTYPE_COUNT] = {
    [FL_B8] = FL__CAST_ROW(b8),   [FL_U8] = FL__CAST_ROW(b8),   [FL_I32] = FL__CAST_ROW(i32),
    [FL_I64] = FL__CAST_ROW(i64), [FL_F32] = FL__CAST_ROW(f32), [FL_F64] = FL__CAST_ROW(f64)};
#undef FL__CAST
#undef FL__CASTS
#undef FL__CAST_ROW

static bool fl__cast(fl_tensor *y, const fl_tensor *x) {
    size_t size = fl_dtype_size(y->dtype);
    fl__pass p;
    fl__pass_begin(&p, x->weak ? fl__move : fl__casts[x->dtype][y->dtype], &size);
    fl__pass_add(&p, y, FL_WRITE, y->dtype);
    fl__pass_add(&p, x, FL_READ, y->dtype);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

/* >>copies: y and x as walks over the same dims, merged where both step evenly, by y's steps */

typedef struct fl__copies {
    fl__walk y, x;
    int64_t tiles; /* along dim 1 */
} fl__copies;

enum { FL__TILE = 32 };

static void fl__copies_push(fl__copies *c, int64_t dim, int64_t y_step, int64_t x_step) {
    int k = c->y.ndim++;
    for (; k > 0 && llabs(c->y.step[k - 1]) > llabs(y_step); k--) {
        c->y.dim[k] = c->y.dim[k - 1];
        c->y.step[k] = c->y.step[k - 1];
        c->x.step[k] = c->x.step[k - 1];
    }
    c->y.dim[k] = dim;
    c->y.step[k] = y_step;
    c->x.step[k] = x_step;
}

static void fl__copies_merge(fl__copies *c) {
    int n = 0;
    for (int k = 1; k < c->y.ndim; k++) {
        bool even = c->y.step[k] == c->y.step[n] * c->y.dim[n] &&
                    c->x.step[k] == c->x.step[n] * c->y.dim[n];
        if (even) {
            c->y.dim[n] *= c->y.dim[k];
            continue;
        }
        n++;
        c->y.dim[n] = c->y.dim[k];
        c->y.step[n] = c->y.step[k];
        c->x.step[n] = c->x.step[k];
    }
    c->y.ndim = c->x.ndim = n + 1;
    memcpy(c->x.dim, c->y.dim, sizeof c->x.dim);
}

static fl__copies fl__copies_of(const fl_tensor *y, const fl_tensor *x) {
    fl__copies c = {.tiles = 0};
    int size = (int)fl_dtype_size(y->dtype);
    c.y.size = c.x.size = size;
    c.y.base = fl_data(y);
    c.x.base = fl_data(x);
    for (int i = y->ndim - 1; i >= 0; i--)
        if (y->shape[i] != 1)
            fl__copies_push(&c, y->shape[i], y->stride[i] * size, x->stride[i] * size);
    if (c.y.ndim == 0) fl__copies_push(&c, 1, size, size);
    fl__copies_merge(&c);
    return c;
}

static void fl__copy_task(void *arg, int64_t begin, int64_t end) {
    const fl__copies *c = arg;
    fl__cursor y = fl__walk_seek(&c->y, begin), x = fl__walk_seek(&c->x, begin);
    for (int64_t i = begin, n; i < end; i += n) {
        n = fl__walk_row(&c->y, &y, end - i);
        fl__copy_row(y.ptr, c->y.step[0], x.ptr, c->x.step[0], n, c->y.size);
        fl__walk_advance(&c->y, &y, n);
        fl__walk_advance(&c->x, &x, n);
    }
}

#define FL__COPY_TILE(T) \
    for (int64_t j = 0; j < rows; j++) \
        for (int64_t i = 0; i < cols; i++) \
            *(T *)(void *)(y + j * c->y.step[1] + i * c->y.step[0]) = \
                *(const T *)(const void *)(x + j * c->x.step[1] + i * c->x.step[0])

static void fl__copy_tile(const fl__copies *c, char *y, const char *x, int64_t rows, int64_t cols) {
    switch (c->y.size) {
    case 8: FL__COPY_TILE(fl__u64); break;
    case 4: FL__COPY_TILE(fl__u32); break;
    default: FL__COPY_TILE(char);
    }
}
#undef FL__COPY_TILE

/* A unit is a strip of FL__TILE rows (dim 1), all columns (dim 0), at one outer place. */
static void fl__transpose_task(void *arg, int64_t begin, int64_t end) {
    const fl__copies *c = arg;
    int64_t plane = c->y.dim[0] * c->y.dim[1];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t row = unit % c->tiles * FL__TILE, rows = fl__min(FL__TILE, c->y.dim[1] - row);
        char *y = fl__walk_seek(&c->y, unit / c->tiles * plane).ptr + row * c->y.step[1];
        const char *x = fl__walk_seek(&c->x, unit / c->tiles * plane).ptr + row * c->x.step[1];
        for (int64_t col = 0; col < c->y.dim[0]; col += FL__TILE)
            fl__copy_tile(c, y + col * c->y.step[0], x + col * c->x.step[0], rows,
                          fl__min(FL__TILE, c->y.dim[0] - col));
    }
}

/* Makes dim k dim 1, in both walks. */
static void fl__copies_second(fl__copies *c, int k) {
    fl__walk *walks[2] = {&c->y, &c->x};
    for (int i = 0; i < 2; i++) {
        int64_t dim = walks[i]->dim[k], step = walks[i]->step[k];
        for (int j = k; j > 1; j--) {
            walks[i]->dim[j] = walks[i]->dim[j - 1];
            walks[i]->step[j] = walks[i]->step[j - 1];
        }
        walks[i]->dim[1] = dim;
        walks[i]->step[1] = step;
    }
}

FL_PRIVATE bool fl__cpu_copy(const fl_backend *self, const fl_call *call) {
    (void)self;
    fl_tensor *y = call->out[0];
    const fl_tensor *x = call->in[0];
    if (!fl_make(y)) return false;
    int64_t numel = fl_numel(y);
    if (x->weak || x->dtype != y->dtype) return fl__cast(y, x);
    if (numel == 0) return true;
    fl__copies c = fl__copies_of(y, x);
    int dense = c.y.ndim;
    if (c.x.step[0] != c.x.size && c.x.step[0] != 0)
        for (dense = 1; dense < c.y.ndim && c.x.step[dense] != c.x.size;) dense++;
    if (dense < c.y.ndim) {
        fl__copies_second(&c, dense);
        c.tiles = fl__ceil_div(c.y.dim[1], FL__TILE);
        int64_t units = numel / (c.y.dim[0] * c.y.dim[1]) * c.tiles;
        fl_parallel(units, fl__ceil_div(FL__GRAIN, c.y.dim[0] * FL__TILE), fl__transpose_task, &c);
    } else {
        fl_parallel(numel, FL__GRAIN, fl__copy_task, &c);
    }
    return true;
}

/* >>create */

static void fl__fill_loop(void *const p[], int64_t n, const void *arg) {
    const fl__walk *number = arg;
    fl__fill_row(p[0], (const char *)&number->number, n, number->size);
}

static uint64_t fl__fill_bits(const fl_fill_args *a, fl_dtype dtype) {
    switch (dtype) {
    case FL_F32: return flm__bits32(flm_f64_to_f32(a->f64));
    case FL_F64: return flm__bits64(a->f64);
    case FL_B8: return flm_f64_to_b8(a->f64);
    case FL_U8: return flm_f64_to_u8(a->f64);
    case FL_I32: return (uint64_t)flm_f64_to_i32(a->f64);
    default: return (uint64_t)a->i64;
    }
}

FL_PRIVATE bool fl__cpu_fill(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    fl__walk number = {.number = fl__fill_bits(c->args, y->dtype),
                       .size = (int)fl_dtype_size(y->dtype)};
    fl__pass p;
    if (!fl_make(y)) return false;
    fl__pass_begin(&p, fl__fill_loop, &number);
    fl__pass_add(&p, y, FL_WRITE, y->dtype);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

static void fl__iota_f32(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_iota_args *a = arg;
    float *y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = (float)(a->f_start + (double)(begin + i) * a->f_step);
}

static void fl__iota_f64(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_iota_args *a = arg;
    double *y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = a->f_start + (double)(begin + i) * a->f_step;
}

static void fl__iota_i64(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_iota_args *a = arg;
    int64_t *y = dst;
    for (int64_t i = 0; i < n; i++)
        y[i] = flm_add_i64(a->i_start, flm_mul_i64(begin + i, a->i_step));
}

FL_PRIVATE bool fl__cpu_iota(const fl_backend *self, const fl_call *c) {
    static const fl__sequence sequences[FL_DTYPE_COUNT] = {
        [FL_I64] = fl__iota_i64, [FL_F32] = fl__iota_f32, [FL_F64] = fl__iota_f64};
    (void)self;
    fl_tensor *y = c->out[0];
    if (!sequences[y->dtype]) return fl__no_kernel(c, y->dtype);
    return fl__fill_sequence(y, sequences[y->dtype], c->args);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
