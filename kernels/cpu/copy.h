/* kernels/cpu/copy.h - copies between layouts and dtypes, fill, iota

   Copies of one dtype run row by row along y's innermost dim in memory; if x is dense along another dim, in
   square tiles of both. Casts are passes. */
#ifndef FL_CPU_COPY_H
#define FL_CPU_COPY_H
#include "slots.h"
/* The sequence of iota in dtype d, its argument an fl_iota_args; NULL: it has none. */
FL_PRIVATE fl__sequence fl__iota_sequence(fl_dtype d);
#endif

#if defined(FL_IMPL_ONLY_CPU_COPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_COPY_IMPL
#define FL_CPU_COPY_IMPL
FL__LOOPS_BEGIN

/* >>casts: from the dtypes that ops compute in to all, and from the narrow ones to their wide dtype, through
   which they are cast to others */

#define FL__CAST_AT(level, from, F, to, T, f) \
    FL__TARGET_##level static void fl__cast_##from##_##to##_##level( \
        void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        T *y = p[0]; \
        const F *x = p[1]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) y[i] = f(x[i]); \
    }
#define FL__CAST(...) FL__CAST_AT(portable, __VA_ARGS__)
#define FL__CASTS(from, F) \
    FL__CAST(from, F, b8, uint8_t, flm_##from##_to_b8) \
    FL__CAST(from, F, u8, uint8_t, flm_##from##_to_u8) \
    FL__CAST(from, F, i8, int8_t, flm_##from##_to_i8) \
    FL__CAST(from, F, i16, int16_t, flm_##from##_to_i16) \
    FL__CAST(from, F, i32, int32_t, flm_##from##_to_i32) \
    FL__CAST(from, F, i64, int64_t, flm_##from##_to_i64) \
    FL__CAST(from, F, u16, uint16_t, flm_##from##_to_u16) \
    FL__CAST(from, F, u32, uint32_t, flm_##from##_to_u32) \
    FL__CAST(from, F, u64, uint64_t, flm_##from##_to_u64) \
    FL__CAST(from, F, f16, uint16_t, flm_##from##_to_f16) \
    FL__CAST(from, F, bf16, uint16_t, flm_##from##_to_bf16) \
    FL__CAST(from, F, f32, float, flm_##from##_to_f32) \
    FL__CAST(from, F, f64, double, flm_##from##_to_f64)
#define FL__CAST_ROW(from) \
    {[FL_B8] = fl__cast_##from##_b8_portable, [FL_U8] = fl__cast_##from##_u8_portable, \
     [FL_I8] = fl__cast_##from##_i8_portable, [FL_I16] = fl__cast_##from##_i16_portable, \
     [FL_I32] = fl__cast_##from##_i32_portable, [FL_I64] = fl__cast_##from##_i64_portable, \
     [FL_U16] = fl__cast_##from##_u16_portable, [FL_U32] = fl__cast_##from##_u32_portable, \
     [FL_U64] = fl__cast_##from##_u64_portable, [FL_F16] = fl__cast_##from##_f16_portable, \
     [FL_BF16] = fl__cast_##from##_bf16_portable, [FL_F32] = fl__cast_##from##_f32_portable, \
     [FL_F64] = fl__cast_##from##_f64_portable}
FL__CASTS(b8, uint8_t)
FL__CASTS(i64, int64_t)
FL__CASTS(f32, float)
FL__CASTS(f64, double)
FL__CAST(u8, uint8_t, i64, int64_t, (int64_t))
FL__CAST(i8, int8_t, i64, int64_t, (int64_t))
FL__CAST(i16, int16_t, i64, int64_t, (int64_t))
FL__CAST(i32, int32_t, i64, int64_t, (int64_t))
FL__CAST(u16, uint16_t, i64, int64_t, (int64_t))
FL__CAST(u32, uint32_t, i64, int64_t, (int64_t))
FL__CAST(u64, uint64_t, i64, int64_t, (int64_t))
FL__CAST(u64, uint64_t, f16, uint16_t, flm_u64_to_f16)
FL__CAST(u64, uint64_t, bf16, uint16_t, flm_u64_to_bf16)
FL__CAST(u64, uint64_t, f32, float, flm_u64_to_f32)
FL__CAST(u64, uint64_t, f64, double, flm_u64_to_f64)
FL__CAST(f16, uint16_t, f32, float, flm_f16_to_f32)
FL__CAST(bf16, uint16_t, f32, float, flm_bf16_to_f32)
static const fl__loop fl__casts[FL_DTYPE_COUNT][FL_DTYPE_COUNT] = {
    [FL_B8] = FL__CAST_ROW(b8),
    [FL_I64] = FL__CAST_ROW(i64),
    [FL_F32] = FL__CAST_ROW(f32),
    [FL_F64] = FL__CAST_ROW(f64),
    [FL_U8] = {[FL_I64] = fl__cast_u8_i64_portable},
    [FL_I8] = {[FL_I64] = fl__cast_i8_i64_portable},
    [FL_I16] = {[FL_I64] = fl__cast_i16_i64_portable},
    [FL_I32] = {[FL_I64] = fl__cast_i32_i64_portable},
    [FL_U16] = {[FL_I64] = fl__cast_u16_i64_portable},
    [FL_U32] = {[FL_I64] = fl__cast_u32_i64_portable},
    [FL_U64] = {[FL_I64] = fl__cast_u64_i64_portable,
                [FL_F16] = fl__cast_u64_f16_portable,
                [FL_BF16] = fl__cast_u64_bf16_portable,
                [FL_F32] = fl__cast_u64_f32_portable,
                [FL_F64] = fl__cast_u64_f64_portable},
    [FL_F16] = {[FL_F32] = fl__cast_f16_f32_portable},
    [FL_BF16] = {[FL_F32] = fl__cast_bf16_f32_portable}};

/* The casts that dominate ops on narrow dtypes, at the other levels. */
#define FL__HOT_CASTS(level) \
    FL__CAST_AT(level, f32, float, f16, uint16_t, flm_f32_to_f16) \
    FL__CAST_AT(level, f32, float, bf16, uint16_t, flm_f32_to_bf16) \
    FL__CAST_AT(level, f16, uint16_t, f32, float, flm_f16_to_f32) \
    FL__CAST_AT(level, bf16, uint16_t, f32, float, flm_bf16_to_f32) \
    FL__CAST_AT(level, i64, int64_t, u8, uint8_t, flm_i64_to_u8) \
    FL__CAST_AT(level, i64, int64_t, i8, int8_t, flm_i64_to_i8) \
    FL__CAST_AT(level, i64, int64_t, i32, int32_t, flm_i64_to_i32) \
    FL__CAST_AT(level, u8, uint8_t, i64, int64_t, (int64_t)) \
    FL__CAST_AT(level, i8, int8_t, i64, int64_t, (int64_t)) \
    FL__CAST_AT(level, i32, int32_t, i64, int64_t, (int64_t))
#define FL__HOT_TABLE(level) \
    static const fl__loop fl__hot_casts_##level[FL_DTYPE_COUNT][FL_DTYPE_COUNT] = { \
        [FL_F32] = {[FL_F16] = fl__cast_f32_f16_##level, [FL_BF16] = fl__cast_f32_bf16_##level}, \
        [FL_F16] = {[FL_F32] = fl__cast_f16_f32_##level}, \
        [FL_BF16] = {[FL_F32] = fl__cast_bf16_f32_##level}, \
        [FL_I64] = {[FL_U8] = fl__cast_i64_u8_##level, \
                    [FL_I8] = fl__cast_i64_i8_##level, \
                    [FL_I32] = fl__cast_i64_i32_##level}, \
        [FL_U8] = {[FL_I64] = fl__cast_u8_i64_##level}, \
        [FL_I8] = {[FL_I64] = fl__cast_i8_i64_##level}, \
        [FL_I32] = {[FL_I64] = fl__cast_i32_i64_##level}};
FL__ABOVE_PORTABLE(FL__HOT_CASTS)
FL__EACH_LEVEL(FL__HOT_TABLE)
static const fl__loop (*const fl__hot_casts[])[FL_DTYPE_COUNT] = {FL__AT_LEVELS(fl__hot_casts)};
#undef FL__HOT_CASTS
#undef FL__HOT_TABLE
#undef FL__CAST_AT
#undef FL__CAST
#undef FL__CASTS
#undef FL__CAST_ROW

FL_PRIVATE fl__loop fl__cast_loop(fl_dtype from, fl_dtype to) {
    fl__loop hot = fl__hot_casts[fl__level()][from][to];
    return hot ? hot : fl__casts[from][to];
}

/* Casts x to its wide dtype and that to y, block by block. */
static void fl__cast_twice(void *const p[], int64_t n, const void *arg) {
    const fl__loop *casts = arg;
    _Alignas(FL_ALIGN) char wide[FL__BLOCK * FL__ELEMENT];
    casts[0]((void *[]){wide, p[1]}, n, NULL);
    casts[1]((void *[]){p[0], wide}, n, NULL);
}

static bool fl__cast(fl_tensor *y, const fl_tensor *x) {
    size_t size = fl_dtype_size(y->dtype);
    fl_dtype wide = fl_dtype_wide(x->dtype);
    const fl__loop direct = x->weak ? fl__move : fl__cast_loop(x->dtype, y->dtype),
                   casts[2] = {fl__cast_loop(x->dtype, wide), fl__cast_loop(wide, y->dtype)};
    fl__pass p;
    fl__pass_begin(&p, direct ? direct : fl__cast_twice, &size);
    if (!direct) {
        p.arg = casts;
        p.blocked = true;
    }
    fl__pass_follow(&p, y);
    fl__pass_add(&p, y, FL_WRITE, y->dtype);
    fl__pass_add(&p, x, FL_READ, y->dtype);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

/* >>copies: y and x as iterators over the same dims, merged where both step evenly, ordered by y's steps */

typedef struct fl__copies {
    fl__iter y, x;
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
    fl__cursor y = fl__iter_seek(&c->y, begin), x = fl__iter_seek(&c->x, begin);
    for (int64_t i = begin, n; i < end; i += n) {
        n = fl__iter_row(&c->y, &y, end - i);
        fl__copy_row(y.ptr, c->y.step[0], x.ptr, c->x.step[0], n, c->y.size);
        fl__iter_advance(&c->y, &y, n);
        fl__iter_advance(&c->x, &x, n);
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
    case 2: FL__COPY_TILE(fl__u16); break;
    default: FL__COPY_TILE(char);
    }
}
#undef FL__COPY_TILE

/* Task: strips of FL__TILE rows (dim 1), all columns (dim 0), at one outer position. */
static void fl__transpose_task(void *arg, int64_t begin, int64_t end) {
    const fl__copies *c = arg;
    int64_t plane = c->y.dim[0] * c->y.dim[1];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t row = unit % c->tiles * FL__TILE, rows = fl__min(FL__TILE, c->y.dim[1] - row);
        char *y = fl__iter_seek(&c->y, unit / c->tiles * plane).ptr + row * c->y.step[1];
        const char *x = fl__iter_seek(&c->x, unit / c->tiles * plane).ptr + row * c->x.step[1];
        for (int64_t col = 0; col < c->y.dim[0]; col += FL__TILE)
            fl__copy_tile(c, y + col * c->y.step[0], x + col * c->x.step[0], rows,
                          fl__min(FL__TILE, c->y.dim[0] - col));
    }
}

/* Moves dim k to dim 1, in both iterators. */
static void fl__copies_second(fl__copies *c, int k) {
    fl__iter *iters[2] = {&c->y, &c->x};
    for (int i = 0; i < 2; i++) {
        int64_t dim = iters[i]->dim[k], step = iters[i]->step[k];
        for (int j = k; j > 1; j--) {
            iters[i]->dim[j] = iters[i]->dim[j - 1];
            iters[i]->step[j] = iters[i]->step[j - 1];
        }
        iters[i]->dim[1] = dim;
        iters[i]->step[1] = step;
    }
}

FL_PRIVATE bool fl__cpu_copy(const fl_backend *self, const fl_call *call) {
    (void)self;
    fl_tensor *y = call->out[0];
    const fl_tensor *x = call->in[0];
    if (!fl_out_make(y)) return false;
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
    const fl__iter *number = arg;
    fl__fill_row(p[0], (const char *)&number->number, n, number->size);
}

static uint64_t fl__fill_bits(const fl_fill_args *a, fl_dtype dtype) {
    uint64_t bits = 0;
    bool real = dtype != FL_I64;
    fl_number_store(dtype, &bits, (fl_number){real, a->f64, a->i64});
    return bits;
}

FL_PRIVATE bool fl__cpu_fill(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    fl__iter number = {.number = fl__fill_bits(c->args, y->dtype),
                       .size = (int)fl_dtype_size(y->dtype)};
    fl__pass p;
    if (!fl_out_make(y)) return false;
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

FL_PRIVATE fl__sequence fl__iota_sequence(fl_dtype d) {
    return d == FL_I64 ? fl__iota_i64 : d == FL_F32 ? fl__iota_f32 : d == FL_F64 ? fl__iota_f64 : NULL;
}

FL_PRIVATE bool fl__cpu_iota(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    const fl__sequence sequence = fl__iota_sequence(y->dtype);
    return sequence ? fl__fill_sequence(y, sequence, c->args) : fl__no_kernel(c, y->dtype);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
