/* kernels/cpu/reduce.h - sum, prod, amax, amin over any axes; argmax, argmin

   The reduced dims are iterated in order of their steps. If they are dense in memory, or no dim is, each
   output folds its elements into lanes: 512 and more into 64 lanes (element i into lane i mod 64), then these
   into the first 8; 16 and more into 8 lanes, but those after the last full 8 into lane 0. The 8 lanes, and
   fewer elements, are folded one by one. If a kept dim is dense, a tile of outputs is folded at once, row by
   row. Long reductions are cut into chunks of a fixed size, whose partial results are folded pairwise. So the
   summation tree depends on shape and strides only. f32 sums and products are accumulated in double. */
#ifndef FL_CPU_REDUCE_H
#define FL_CPU_REDUCE_H
#include "slots.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FL__FOLD_LANES = 64,
    FL__FEW_LANES = 8,
    FL__LANE_ROWS = 64, /* rows of all lanes that stay in the first-level cache */
    FL__TILE_COLUMNS = 1024,
    FL__CHUNK = 65536, /* elements, or a quarter of those of a tile */
    FL__FIND_BLOCK = 32 /* elements of a long row that are compared before a branch */
};

/* acc[j] = acc[j] op x[r * stride + j] for r < rows, j < width; the stride is in elements. */
typedef void (*fl__rows)(void *acc, const void *x, int64_t rows, int64_t stride, int64_t width);

/* How an op reduces a dtype. */
typedef enum fl__fold_op { FL__FOLD_SUM, FL__FOLD_PROD, FL__FOLD_AMAX, FL__FOLD_AMIN } fl__fold_op;
typedef struct fl__fold {
    fl__rows rows;        /* elements into accumulators */
    fl__rows combine;     /* accumulators into accumulators */
    fl__rows lines;       /* dense rows: acc[r] = the fold of x[r * stride + j] over j < width */
    fl_dtype dtype, acc;
    int size, acc_size;   /* bytes */
    uint64_t identity;    /* bits of an accumulator */
} fl__fold;
/* dtype: f32, f64 or i64. */
FL_PRIVATE fl__fold fl__fold_of(fl__fold_op op, fl_dtype dtype);
/* Folds n elements, step bytes apart, into lanes[0]; they are dense (step = size), or fewer than 2
   FL__FEW_LANES. */
FL_PRIVATE void fl__fold_line(const fl__fold *f, void *lanes, const void *x, int64_t step,
                              int64_t n);
/* y[r] = the fold of row r of x, of n elements, all dense; y is of f's dtype. The bits of the slots if n is
   at most FL__CHUNK. */
FL_PRIVATE void fl__fold_dense_rows(const fl__fold *f, void *y, const void *x, int64_t rows, int64_t n);

/* The same for argmax (AMAX) and argmin (AMIN) of rows of dtype d. */
FL_PRIVATE void fl__arg_dense_rows(fl__fold_op op, fl_dtype d, int64_t *y, const void *x, int64_t rows,
                                   int64_t n);

#ifdef __cplusplus
}
#endif
#endif

#if defined(FL_IMPL_ONLY_CPU_REDUCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_REDUCE_IMPL
#define FL_CPU_REDUCE_IMPL
#include "../../fl_backend.h"
FL__LOOPS_BEGIN

#define FL__LEVEL_TEXT "reduce.inc"
#define FL__UNIT fold
#define FL__WITH_F64 FL__ONCE
#define FL__WITH_I64 FL__ONCE
#include "levels.inc"

static fl__rows fl__rows_of(fl__fold_op op, fl_dtype d, bool lines) {
#define FL__FOLD_LOOP(name) \
    {FL__AT_FLOATS(fl__fold_##name), [FL__VARIANT_I64] = fl__fold_##name##_i64_portable}
    static const fl__rows table[2][4][FL__VARIANTS] = {
        {FL__FOLD_LOOP(sum_rows), FL__FOLD_LOOP(prod_rows), FL__FOLD_LOOP(amax_rows),
         FL__FOLD_LOOP(amin_rows)},
        {FL__FOLD_LOOP(sum_lines), FL__FOLD_LOOP(prod_lines), FL__FOLD_LOOP(amax_lines),
         FL__FOLD_LOOP(amin_lines)}};
#undef FL__FOLD_LOOP
    return table[lines][op][fl__variant(d)];
}

static uint64_t fl__fold_identity(fl__fold_op op, fl_dtype acc) {
    static const double f[4] = {0, 1, -INFINITY, INFINITY};
    static const int64_t i[4] = {0, 1, INT64_MIN, INT64_MAX};
    if (acc == FL_F32) return flm__bits32((float)f[op]);
    return acc == FL_F64 ? flm__bits64(f[op]) : (uint64_t)i[op];
}

FL_PRIVATE fl__fold fl__fold_of(fl__fold_op op, fl_dtype dtype) {
    fl_dtype acc = dtype == FL_F32 && op <= FL__FOLD_PROD ? FL_F64 : dtype;
    return (fl__fold){.rows = fl__rows_of(op, dtype, false),
                      .combine = fl__rows_of(op, acc, false),
                      .lines = fl__rows_of(op, dtype, true),
                      .dtype = dtype,
                      .acc = acc,
                      .size = (int)fl_dtype_size(dtype),
                      .acc_size = (int)fl_dtype_size(acc),
                      .identity = fl__fold_identity(op, acc)};
}

static void fl__lanes_begin(const fl__fold *f, void *lanes) {
    fl__fill_row(lanes, (const char *)&f->identity, FL__FOLD_LANES, f->acc_size);
}

static void fl__lanes_add(const fl__fold *f, void *lanes, const char *x, int64_t n) {
    int64_t full = n / FL__FOLD_LANES;
    f->rows(lanes, x, full, FL__FOLD_LANES, FL__FOLD_LANES);
    if (n % FL__FOLD_LANES) f->rows(lanes, x + full * FL__FOLD_LANES * f->size, 1, 0, n % FL__FOLD_LANES);
}

/* Folds the lanes into lane 0. */
static void fl__lanes_end(const fl__fold *f, void *lanes) {
    const char *rest = (const char *)lanes + FL__FEW_LANES * f->acc_size,
               *others = (const char *)lanes + f->acc_size;
    f->combine(lanes, rest, FL__FOLD_LANES / FL__FEW_LANES - 1, FL__FEW_LANES, FL__FEW_LANES);
    f->combine(lanes, others, FL__FEW_LANES - 1, 1, 1);
}

FL_PRIVATE void fl__fold_line(const fl__fold *f, void *lanes, const void *x, int64_t step,
                              int64_t n) {
    if (step == f->size) {
        f->lines(lanes, x, 1, 0, n);
    } else {
        memcpy(lanes, &f->identity, sizeof f->identity);
        f->rows(lanes, x, n, step / f->size, 1);
    }
}

FL_PRIVATE void fl__fold_dense_rows(const fl__fold *f, void *y, const void *x, int64_t rows, int64_t n) {
    double acc[FL__FOLD_LANES];
    if (f->acc == f->dtype) f->lines(y, x, rows, n, n);
    for (int64_t r = 0, m; f->acc != f->dtype && r < rows; r += m) {
        m = fl__min(rows - r, FL__FOLD_LANES);
        f->lines(acc, (const char *)x + r * n * f->size, m, n, n);
        for (int64_t k = 0; k < m; k++) ((float *)y)[r + k] = (float)acc[k];
    }
}

/* >>plan */

typedef struct fl__reduction {
    fl__fold fold;
    fl__iter kept, reduced; /* of x */
    fl__iter y;
    int64_t outputs, length;  /* elements of y; of x per element of y */
    int64_t chunk, chunks;    /* of the length */
    int64_t tile, tiles;      /* of the innermost kept dim; tile 0: one output at a time */
    char *partial;            /* [chunks][outputs] accumulators, NULL for one chunk */
} fl__reduction;

/* The reduced axes in order of growing step, repeated elements last. */
static int fl__reduced_axes(const fl_tensor *x, uint32_t axes, int order[FL_MAX_DIMS]) {
    int n = 0;
    for (int i = x->ndim - 1; i >= 0; i--) {
        if (!(axes >> i & 1)) continue;
        uint64_t key = (uint64_t)llabs(x->stride[i]) - 1;
        int k = n++;
        for (; k > 0 && (uint64_t)llabs(x->stride[order[k - 1]]) - 1 > key; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return n;
}

/* Iterators of x and y over the kept axes, in x's memory order. */
static void fl__kept_iters(fl__reduction *r, const fl_tensor *x, const fl_tensor *y, uint32_t axes,
                           bool keepdim) {
    int order[FL_MAX_DIMS], y_axis[FL_MAX_DIMS];
    fl_axes_by_stride(x, order);
    for (int i = 0, k = 0; i < x->ndim; i++) {
        y_axis[i] = k;
        k += keepdim || !(axes >> i & 1);
    }
    fl__iter_begin(&r->y, y, FL_WRITE);
    for (int i = x->ndim - 1; i >= 0; i--) {
        int axis = order[i];
        if (axes >> axis & 1) continue;
        fl__iter_push(&r->kept, 1, x->shape[axis], &(int64_t){x->stride[axis] * r->kept.raw});
        fl__iter_push(&r->y, 1, x->shape[axis],
                      &(int64_t){y->stride[y_axis[axis]] * (int64_t)r->y.raw});
    }
    fl__iter_close(&r->kept, 1);
    fl__iter_close(&r->y, 1);
    fl__iter_widen(&r->y, y->dtype);
}

static void fl__reduction_iters(fl__reduction *r, const fl_tensor *x, uint32_t axes) {
    int order[FL_MAX_DIMS], n = fl__reduced_axes(x, axes, order);
    fl__iter_begin(&r->kept, x, FL_READ);
    fl__iter_begin(&r->reduced, x, FL_READ);
    const int size = r->reduced.raw;
    fl__iter_widen(&r->reduced, x->dtype);
    r->length = 1;
    for (int k = 0; k < n; k++) {
        r->length *= x->shape[order[k]];
        fl__iter_push(&r->reduced, 1, x->shape[order[k]], &(int64_t){x->stride[order[k]] * size});
    }
    if (r->length == 0) r->reduced.ndim = 0; /* nothing to iterate over */
    fl__iter_close(&r->reduced, 1);
}

static void fl__reduction_plan(fl__reduction *r) {
    bool columns = r->reduced.step[0] != r->reduced.raw && r->kept.dim[0] > 1 &&
                   r->kept.step[0] == r->kept.raw;
    r->tile = columns ? fl__min(r->kept.dim[0], FL__TILE_COLUMNS) : 0;
    r->tiles = columns ? fl__ceil_div(r->kept.dim[0], r->tile) : 1;
    r->chunk = columns ? fl__quotient(4 * FL__CHUNK, r->tile) : FL__CHUNK;
    r->chunks = r->length ? fl__ceil_div(r->length, r->chunk) : 1;
}

/* >>fold */

/* Stores n accumulators in elements position .. of y. */
static void fl__reduction_store(const fl__reduction *r, void *acc, int64_t position,
                                int64_t n) {
    float narrow[FL__TILE_COLUMNS];
    fl__cursor c = fl__iter_seek(&r->y, position);
    if (r->fold.acc == r->fold.dtype) {
        fl__iter_write(&r->y, &c, acc, n);
        return;
    }
    const double *wide = acc;
    for (int64_t i = 0, m; i < n; i += m) {
        m = fl__min(n - i, FL__TILE_COLUMNS);
        for (int64_t j = 0; j < m; j++) narrow[j] = (float)wide[i + j];
        fl__iter_write(&r->y, &c, narrow, m);
    }
}

static void fl__reduction_emit(const fl__reduction *r, void *acc, int64_t chunk,
                               int64_t position, int64_t n) {
    int64_t size = r->fold.acc_size;
    if (r->partial)
        memcpy(r->partial + (chunk * r->outputs + position) * size, acc, (size_t)(n * size));
    else
        fl__reduction_store(r, acc, position, n);
}

/* Folds elements [begin, end) of the reduced dims into lane 0, for the output whose first element is at x. */
static void fl__fold_output(const fl__reduction *r, char *x, int64_t begin, int64_t end,
                            void *lanes) {
    const fl__fold *f = &r->fold;
    const fl__iter *w = &r->reduced;
    _Alignas(FL_ALIGN) char buffer[FL__BLOCK * FL__ELEMENT];
    bool dense = w->step[0] == w->size && !w->load;
    if (!w->load && w->ndim == 1 && (dense || end - begin < 2 * FL__FEW_LANES)) {
        fl__fold_line(f, lanes, x + begin * w->step[0], w->step[0], end - begin);
        return;
    }
    if (w->load && w->ndim == 1 && w->step[0] == w->raw && end - begin <= FL__BLOCK) {
        w->load((void *[]){buffer, x + begin * w->raw}, end - begin, NULL);
        fl__fold_line(f, lanes, buffer, w->size, end - begin);
        return;
    }
    fl__cursor c = fl__iter_seek(w, begin);
    c.ptr += x - w->base;
    if (end - begin <= FL__BLOCK) {
        fl__iter_read(w, &c, buffer, end - begin);
        fl__fold_line(f, lanes, buffer, w->size, end - begin);
        return;
    }
    fl__lanes_begin(f, lanes);
    for (int64_t i = begin, n; i < end; i += n) {
        n = fl__iter_row(w, &c, end - i);
        if (dense && n >= FL__FOLD_LANES) {
            fl__lanes_add(f, lanes, c.ptr, n);
            fl__iter_advance(w, &c, n);
        } else {
            n = fl__min(end - i, FL__BLOCK);
            fl__iter_read(w, &c, buffer, n);
            fl__lanes_add(f, lanes, buffer, n);
        }
    }
    fl__lanes_end(f, lanes);
}

/* Task: one chunk of one output per unit. */
static void fl__reduce_chunks(void *arg, int64_t first, int64_t last) {
    const fl__reduction *r = arg;
    _Alignas(FL_ALIGN) char acc[FL__FOLD_LANES * FL__ELEMENT];
    for (int64_t unit = first; unit < last; unit++) {
        int64_t output = unit / r->chunks, begin = unit % r->chunks * r->chunk;
        char *x = fl__iter_seek(&r->kept, output).ptr;
        fl__fold_output(r, x, begin, fl__min(begin + r->chunk, r->length), acc);
        fl__reduction_emit(r, acc, unit % r->chunks, output, 1);
    }
}

/* Folds up to n outputs from the cursor on, each of one dense row, into acc; returns how many, 0 if they are
   no such rows. Rows that are converted must be adjacent. */
static int64_t fl__fold_dense(const fl__reduction *r, fl__cursor *c, char *acc, int64_t n) {
    const fl__iter *w = &r->reduced;
    const int64_t step = r->kept.step[0], length = r->length;
    _Alignas(FL_ALIGN) char buffer[FL__BLOCK * FL__ELEMENT];
    if (w->ndim > 1 || w->step[0] != w->raw) return 0;
    n = fl__iter_row(&r->kept, c, n);
    if (!w->load) {
        r->fold.lines(acc, c->ptr, n, step / w->size, length);
    } else {
        if (length == 0 || length > FL__BLOCK || step != length * w->raw) return 0;
        n = fl__min(n, FL__BLOCK / length);
        w->load((void *[]){buffer, c->ptr}, n * length, NULL);
        r->fold.lines(acc, buffer, n, length, length);
    }
    fl__iter_advance(&r->kept, c, n);
    return n;
}

/* Task: one output per unit, for a single chunk; stored many at a time. */
static void fl__reduce_outputs(void *arg, int64_t first, int64_t last) {
    const fl__reduction *r = arg;
    _Alignas(FL_ALIGN) char lanes[FL__FOLD_LANES * FL__ELEMENT], acc[FL__TILE_COLUMNS * FL__ELEMENT];
    fl__cursor c = fl__iter_seek(&r->kept, first);
    for (int64_t i = first, n; i < last; i += n) {
        n = fl__min(last - i, FL__TILE_COLUMNS);
        for (int64_t k = 0, m; k < n; k += m) {
            char *to = acc + k * r->fold.acc_size;
            m = fl__fold_dense(r, &c, to, n - k);
            if (m > 0) continue;
            fl__fold_output(r, c.ptr, 0, r->length, lanes);
            fl__copy_row(to, 0, lanes, 0, 1, r->fold.acc_size);
            fl__iter_advance(&r->kept, &c, m = 1);
        }
        fl__reduction_store(r, acc, i, n);
    }
}

/* Task: one chunk of one tile of outputs per unit. */
static void fl__reduce_tiles(void *arg, int64_t first, int64_t last) {
    const fl__reduction *r = arg;
    const fl__iter *w = &r->reduced;
    _Alignas(FL_ALIGN) char acc[FL__TILE_COLUMNS * FL__ELEMENT], row[FL__TILE_COLUMNS * FL__ELEMENT];
    for (int64_t unit = first; unit < last; unit++) {
        int64_t column = fl__quotient(unit, r->chunks), chunk = unit - column * r->chunks;
        int64_t line = fl__quotient(column, r->tiles), tile = column - line * r->tiles;
        int64_t output = line * r->kept.dim[0] + tile * r->tile;
        int64_t width = fl__min(r->tile, r->kept.dim[0] - tile * r->tile);
        int64_t begin = chunk * r->chunk, end = fl__min(begin + r->chunk, r->length);
        fl__cursor c = fl__iter_seek(w, begin);
        c.ptr += fl__iter_seek(&r->kept, output).ptr - r->kept.base;
        fl__fill_row(acc, (const char *)&r->fold.identity, width, r->fold.acc_size);
        for (int64_t i = begin, n; i < end; i += n) {
            n = w->load ? 1 : fl__iter_row(w, &c, end - i);
            if (w->load) w->load((void *[]){row, c.ptr}, width, NULL);
            r->fold.rows(acc, w->load ? row : c.ptr, n, w->step[0] / w->size, width);
            fl__iter_advance(w, &c, n);
        }
        fl__reduction_emit(r, acc, chunk, output, width);
    }
}

static void fl__reduce_partials(const fl__reduction *r) {
    int64_t row = r->outputs * r->fold.acc_size;
    for (int64_t step = 1; step < r->chunks; step *= 2)
        for (int64_t i = 0; i + step < r->chunks; i += 2 * step)
            r->fold.combine(r->partial + i * row, r->partial + (i + step) * row, 1, 0, r->outputs);
    fl__reduction_store(r, r->partial, 0, r->outputs);
}

static bool fl__reduction_init(fl__reduction *r, const fl_call *c, fl__fold_op op) {
    const fl_reduce_args *args = c->args;
    fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    if (d != FL_F32 && d != FL_F64 && d != FL_I64) return fl__no_kernel(c, d);
    if (!fl_out_make(c->out[0])) return false;
    r->fold = fl__fold_of(op, d);
    r->outputs = fl_numel(c->out[0]);
    r->partial = NULL;
    fl__reduction_iters(r, c->in[0], args->axes);
    fl__kept_iters(r, c->in[0], c->out[0], args->axes, args->keepdim);
    fl__reduction_plan(r);
    return true;
}

static void fl__reduction_run(fl__reduction *r) {
    int64_t width = r->tile ? r->tile : 1,
            units = r->tile ? fl__quotient(r->outputs, r->kept.dim[0]) * r->tiles : r->outputs;
    int64_t grain = fl__ceil_div(FL__GRAIN, fl__min(r->length, r->chunk) * width + 1);
    fl_task task = r->chunks > 1 ? fl__reduce_chunks : fl__reduce_outputs;
    fl_parallel(units * r->chunks, grain, r->tile ? fl__reduce_tiles : task, r);
}

static bool fl__reduction_run_chunks(fl__reduction *r) {
    size_t bytes;
    if (!fl__mul_size((size_t)r->chunks, (size_t)(r->outputs * r->fold.acc_size), &bytes))
        return fl_fail("fl_reduce: partial results of %lld outputs are too large", (long long)r->outputs);
    const fl_mem_info info = {.op = "reduce", .step = fl_mem_step_now(), .lifetime = 1};
    fl_buffer *scratch = fl_buffer_new(bytes, &info);
    if (!scratch) return false;
    r->partial = fl_buffer_map(scratch);
    if (r->partial) {
        fl__reduction_run(r);
        fl__reduce_partials(r);
        fl_buffer_unmap(scratch);
    }
    fl_buffer_drop(scratch);
    return r->partial != NULL;
}

/* Fast path for a few dense elements, of which the first axes or all are reduced, with the same bits. *done:
   whether it applied. */
static bool fl__fold_small(const fl_call *c, fl__fold_op op, bool *done) {
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0];
    const uint32_t axes = ((const fl_reduce_args *)c->args)->axes;
    _Alignas(FL_ALIGN) char acc[FL__TILE_COLUMNS * FL__ELEMENT];
    int64_t rows = 1, width = 1;
    int i = 0;
    for (; i < x->ndim && axes >> i & 1; i++) rows *= x->shape[i];
    for (; i < x->ndim && !(axes >> i & 1); i++) width *= x->shape[i];
    *done = i == x->ndim && x->dtype == FL_F32 && rows * width > 0 && rows * width <= FL__GRAIN &&
            width <= FL__TILE_COLUMNS && fl_is_contiguous(x) && fl_is_contiguous(y);
    if (!*done) return true;
    if (!fl_out_make(y)) return false;
    const fl__fold f = fl__fold_of(op, FL_F32);
    if (width == 1) {
        fl__fold_line(&f, acc, fl_data(x), f.size, rows);
    } else {
        fl__fill_row(acc, (const char *)&f.identity, width, f.acc_size);
        f.rows(acc, fl_data(x), rows, width, width);
    }
    float *to = fl_data(y);
    const double *wide = (const double *)(const void *)acc;
    if (f.acc == FL_F32) memcpy(to, acc, (size_t)width * sizeof *to);
    else for (int64_t k = 0; k < width; k++) to[k] = (float)wide[k];
    return true;
}

static bool fl__fold_axes(const fl_call *c, fl__fold_op op) {
    fl__reduction r;
    bool done;
    if (!fl__fold_small(c, op, &done)) return false;
    if (done) return true;
    if (!fl__reduction_init(&r, c, op)) return false;
    if (r.outputs == 0) return true;
    if (r.chunks > 1) return fl__reduction_run_chunks(&r);
    fl__reduction_run(&r);
    return true;
}

#define FL__REDUCE_SLOT(name, fold) \
    FL_PRIVATE bool fl__cpu_##name(const fl_backend *self, const fl_call *c) { \
        (void)self; \
        return fl__fold_axes(c, fold); \
    }
FL__REDUCE_SLOT(sum, FL__FOLD_SUM)
FL__REDUCE_SLOT(prod, FL__FOLD_PROD)
FL__REDUCE_SLOT(amax, FL__FOLD_AMAX)
FL__REDUCE_SLOT(amin, FL__FOLD_AMIN)
#undef FL__REDUCE_SLOT

/* >>arg: the extreme of a block by lanes, then, if it beats the best so far, its first position in the
   block */

#define FL__FIND(T, name) \
    static int64_t fl__find_##name(const void *block, int64_t n, const void *value) { \
        const T *x = block, v = *(const T *)value; \
        int64_t i = 0; \
        for (int found = v != v || n < 4 * FL__FIND_BLOCK; !found && i + FL__FIND_BLOCK <= n;) { \
            for (int j = 0; j < FL__FIND_BLOCK; j++) found |= x[i + j] == v; \
            if (!found) i += FL__FIND_BLOCK; \
        } \
        for (; i < n; i++) \
            if (x[i] == v || (v != v && x[i] != x[i])) return i; \
        return -1; \
    } \
    static bool fl__beats_##name(const void *value, const void *best, bool largest) { \
        const T v = *(const T *)value, b = *(const T *)best; \
        return (v != v && b == b) || (largest ? v > b : v < b); \
    }
FL__FIND(float, f32)
FL__FIND(double, f64)
FL__FIND(int64_t, i64)
#undef FL__FIND

typedef struct fl__candidate {
    _Alignas(FL__ELEMENT) char value[FL__ELEMENT];
    int64_t position;
} fl__candidate;

typedef struct fl__extreme {
    fl__reduction r;
    bool largest;
    int64_t (*find)(const void *block, int64_t n, const void *value);
    bool (*beats)(const void *value, const void *best, bool largest);
    int64_t chunks;       /* of FL__CHUNK elements, per output */
    fl__candidate *found; /* [outputs][chunks], if there are several chunks */
} fl__extreme;

/* The first extreme of elements [begin, end) of one output. */
static fl__candidate fl__find_extreme(const fl__extreme *e, int64_t output, int64_t begin,
                                      int64_t end) {
    const fl__iter *w = &e->r.reduced;
    _Alignas(FL_ALIGN) char lanes[FL__FOLD_LANES * FL__ELEMENT];
    char buffer[FL__BLOCK * FL__ELEMENT];
    fl__candidate best = {{0}, 0};
    fl__cursor c = fl__iter_seek(w, begin);
    c.ptr += fl__iter_seek(&e->r.kept, output).ptr - e->r.kept.base;
    for (int64_t i = begin, n; i < end; i += n) {
        const char *x = w->step[0] == w->size && !w->load ? c.ptr : buffer;
        n = fl__min(end - i, FL__BLOCK);
        if (x == buffer) fl__iter_read(w, &c, buffer, n);
        else fl__iter_advance(w, &c, n);
        fl__fold_line(&e->r.fold, lanes, x, w->size, n);
        if (i > begin && !e->beats(lanes, best.value, e->largest)) continue;
        memcpy(best.value, lanes, (size_t)w->size);
        best.position = i + e->find(x, n, lanes);
    }
    return best;
}

/* Task: one output per unit. */
static void fl__extreme_task(void *arg, int64_t first, int64_t last) {
    const fl__extreme *e = arg;
    fl__cursor c = fl__iter_seek(&e->r.y, first);
    for (int64_t output = first; output < last; output++) {
        int64_t position = fl__find_extreme(e, output, 0, e->r.length).position;
        fl__iter_write(&e->r.y, &c, &position, 1);
    }
}

/* Task: one chunk of one output per unit. */
static void fl__extreme_chunk_task(void *arg, int64_t first, int64_t last) {
    const fl__extreme *e = arg;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t begin = unit % e->chunks * FL__CHUNK, end = fl__min(begin + FL__CHUNK, e->r.length);
        e->found[unit] = fl__find_extreme(e, unit / e->chunks, begin, end);
    }
}

/* Picks among the chunks' candidates in order: a later one must beat the best so far. */
static void fl__extreme_store(const fl__extreme *e) {
    fl__cursor c = fl__iter_seek(&e->r.y, 0);
    for (int64_t output = 0; output < e->r.outputs; output++) {
        const fl__candidate *found = e->found + output * e->chunks, *best = found;
        for (int64_t k = 1; k < e->chunks; k++)
            if (e->beats(found[k].value, best->value, e->largest)) best = found + k;
        int64_t position = best->position;
        fl__iter_write(&e->r.y, &c, &position, 1);
    }
}

static bool fl__extreme_chunks(fl__extreme *e) {
    size_t bytes;
    if (!fl__mul_size((size_t)(e->r.outputs * e->chunks), sizeof *e->found, &bytes) ||
        !(e->found = fl_heap_alloc(bytes)))
        return fl_fail("fl_argmax: out of memory for chunks of %lld outputs",
                       (long long)e->r.outputs);
    fl_parallel(e->r.outputs * e->chunks, 1, fl__extreme_chunk_task, e);
    fl__extreme_store(e);
    fl_heap_free(e->found);
    return true;
}

static void fl__extreme_loops(fl__extreme *e, fl__fold_op op, fl_dtype d) {
    e->largest = op == FL__FOLD_AMAX;
    e->find = d == FL_F32 ? fl__find_f32 : d == FL_F64 ? fl__find_f64 : fl__find_i64;
    e->beats = d == FL_F32 ? fl__beats_f32 : d == FL_F64 ? fl__beats_f64 : fl__beats_i64;
}

FL_PRIVATE void fl__arg_dense_rows(fl__fold_op op, fl_dtype d, int64_t *y, const void *x, int64_t rows,
                                   int64_t n) {
    fl__extreme e = {.r = {.fold = fl__fold_of(op, d)}};
    const int size = e.r.fold.size;
    const fl__iter dense = {.base = (char *)(uintptr_t)x, .size = size, .raw = size, .ndim = 1};
    fl__extreme_loops(&e, op, d);
    e.r.kept = e.r.reduced = dense;
    e.r.kept.dim[0] = rows, e.r.kept.step[0] = n * size;
    e.r.reduced.dim[0] = n, e.r.reduced.step[0] = size;
    for (int64_t r = 0; r < rows; r++) y[r] = fl__find_extreme(&e, r, 0, n).position;
}

static bool fl__arg_extreme(const fl_call *c, fl__fold_op op) {
    fl__extreme e;
    if (!fl__reduction_init(&e.r, c, op)) return false;
    if (e.r.outputs == 0) return true;
    if (e.r.length == 0) return fl_fail("fl_%s: the reduced axis is empty", fl_op_get_info(c->op)->name);
    fl__extreme_loops(&e, op, e.r.fold.dtype);
    e.chunks = fl__ceil_div(e.r.length, FL__CHUNK);
    if (e.chunks > 1) return fl__extreme_chunks(&e);
    fl_parallel(e.r.outputs, fl__ceil_div(FL__GRAIN, e.r.length), fl__extreme_task, &e);
    return true;
}

FL_PRIVATE bool fl__cpu_argmax(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__arg_extreme(c, FL__FOLD_AMAX);
}

FL_PRIVATE bool fl__cpu_argmin(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__arg_extreme(c, FL__FOLD_AMIN);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
