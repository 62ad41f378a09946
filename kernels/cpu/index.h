/* kernels/cpu/index.h - gather, scatter and scatter_add along one axis

   y, x and index are iterated together over the index's dims; along the axis, the indexed tensor has step 0
   and the index selects the element. All indices are checked before anything is written. */
#ifndef FL_CPU_INDEX_H
#define FL_CPU_INDEX_H
#include "slots.h"
#include "scratch.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_INDEX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_INDEX_IMPL
#define FL_CPU_INDEX_IMPL
FL__LOOPS_BEGIN

typedef struct fl__range {
    int64_t size;
    bool bad;
} fl__range;

static void fl__find_outside(void *const p[], int64_t n, const void *arg) {
    fl__range *range = *(fl__range *const *)arg;
    const int64_t *index = p[0];
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= (uint64_t)index[i] >= (uint64_t)range->size;
    if (bad) __atomic_store_n(&range->bad, true, __ATOMIC_RELAXED);
}

static bool fl__check_index(const fl_call *c, const fl_tensor *index, int axis, int64_t size) {
    fl__range range = {.size = size}, *arg = &range;
    fl_tensor once = *index; /* broadcast elements are checked once */
    int64_t value = 0, numel;
    fl__pass p;
    if (fl_numel(index) == 0) return true;
    for (int i = 0; i < once.ndim; i++)
        if (once.stride[i] == 0) once.shape[i] = 1;
    numel = fl_numel(&once);
    fl__pass_begin(&p, fl__find_outside, &arg);
    fl__pass_add(&p, &once, FL_READ, FL_I64);
    fl__pass_run(&p, numel);
    if (!range.bad) return true;
    fl__cursor at = fl__iter_seek(&p.iter[0], 0);
    do fl__iter_read(&p.iter[0], &at, &value, 1);
    while ((uint64_t)value < (uint64_t)size);
    return fl_fail("fl_%s: index %lld is out of range for axis %d of size %lld",
                   fl_op_get_info(c->op)->name, (long long)value, axis, (long long)size);
}

/* The indexed tensor t (step 0 along the axis), the index, and the other tensor, over the index's dims. */
enum { FL__INDEXED, FL__INDEX, FL__OTHER, FL__INDEX_ITERS };
typedef struct fl__indexing {
    fl__iter w[FL__INDEX_ITERS];
    int64_t step;                    /* bytes along the axis of the indexed tensor */
    int64_t length, index_step, other_step; /* of the axis, over which scatters loop themselves */
    void (*scatter)(const struct fl__indexing *s, char *const p[], int64_t n);
} fl__indexing;
typedef void (*fl__scatter_row)(const fl__indexing *s, char *const p[], int64_t n);

static void fl__indexing_init(fl__indexing *s, const fl_tensor *t, const fl_tensor *index,
                              const fl_tensor *other, int axis, bool loop_over_axis) {
    const fl_tensor *tensors[FL__INDEX_ITERS] = {t, index, other};
    int size = (int)fl_dtype_size(t->dtype);
    for (int k = 0; k < FL__INDEX_ITERS; k++)
        s->w[k] = (fl__iter){.base = fl_data(tensors[k]), .size = k == FL__INDEX ? 8 : size};
    s->step = t->stride[axis] * size;
    s->length = index->shape[axis];
    s->index_step = index->stride[axis] * 8;
    s->other_step = other->stride[axis] * size;
    for (int i = index->ndim - 1; i >= 0; i--) {
        int64_t still = i == axis ? 0 : t->stride[i] * size;
        if (i == axis && loop_over_axis) continue;
        fl__iter_push(s->w, FL__INDEX_ITERS, index->shape[i],
                      (int64_t[]){still, index->stride[i] * 8, other->stride[i] * size});
    }
    fl__iter_close(s->w, FL__INDEX_ITERS);
}

/* Calls row on every run of elements of [begin, end), at most `longest` at a time. */
static FL__HOT void fl__indexing_rows(const fl__indexing *s, int64_t begin, int64_t end, int64_t longest,
                              void (*row)(const fl__indexing *s, char *const p[], int64_t n)) {
    fl__cursor c[FL__INDEX_ITERS];
    for (int k = 0; k < FL__INDEX_ITERS; k++) c[k] = fl__iter_seek(&s->w[k], begin);
    for (int64_t i = begin, n; i < end; i += n) {
        n = fl__iter_row(&s->w[0], &c[0], fl__min(longest, end - i));
        row(s, (char *[]){c[0].ptr, c[1].ptr, c[2].ptr}, n);
        for (int k = 0; k < FL__INDEX_ITERS; k++) fl__iter_advance(&s->w[k], &c[k], n);
    }
}

static int64_t fl__index_at(const char *p) {
    return *(const int64_t *)(const void *)p;
}

#define FL__GATHER_ROW(T) \
    for (int64_t i = 0; i < n; i++) { \
        const char *from = x + i * x_step + fl__index_at(index + i * index_step) * s->step; \
        *(T *)(void *)(y + i * y_step) = *(const T *)(const void *)from; \
    }

static void fl__gather_row(const fl__indexing *s, char *const p[], int64_t n) {
    const char *x = p[FL__INDEXED], *index = p[FL__INDEX];
    char *y = p[FL__OTHER];
    int64_t x_step = s->w[FL__INDEXED].step[0], index_step = s->w[FL__INDEX].step[0],
            y_step = s->w[FL__OTHER].step[0];
    int size = s->w[FL__OTHER].size;
    if (index_step == 0) {
        fl__copy_row(y, y_step, x + fl__index_at(index) * s->step, x_step, n, size);
        return;
    }
    switch (size) {
    case 8: FL__GATHER_ROW(fl__u64) break;
    case 4: FL__GATHER_ROW(fl__u32) break;
    case 2: FL__GATHER_ROW(fl__u16) break;
    default: FL__GATHER_ROW(char)
    }
}
#undef FL__GATHER_ROW

static void fl__gather_task(void *arg, int64_t begin, int64_t end) {
    fl__indexing_rows(arg, begin, end, end - begin, fl__gather_row);
}

FL_PRIVATE bool fl__cpu_gather(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_tensor *x = c->in[0], *index = c->in[1];
    int axis = ((const fl_axis_args *)c->args)->axis;
    fl_tensor *y = c->out[0];
    fl__indexing s;
    if (!fl__check_index(c, index, axis, x->shape[axis]) || !fl_out_make(y)) return false;
    fl__indexing_init(&s, x, index, y, axis, false);
    fl_parallel(fl_numel(y), FL__GRAIN, fl__gather_task, &s);
    return true;
}

/* Adds or writes n columns of src in order along the axis; whole rows if the index repeats over them. */
#define FL__SECOND(a, b) (b)
#define FL__SCATTER(T, name, join) \
    static void fl__scatter_##name(const fl__indexing *s, char *const p[], int64_t n) { \
        int64_t y_step = s->w[FL__INDEXED].step[0], src_step = s->w[FL__OTHER].step[0]; \
        int64_t index_step = s->w[FL__INDEX].step[0]; \
        bool whole = index_step == 0 && y_step == sizeof(T) && src_step == sizeof(T); \
        for (int64_t i = 0; i < s->length; i++) { \
            const char *index = p[FL__INDEX] + i * s->index_step; \
            const char *src = p[FL__OTHER] + i * s->other_step; \
            if (whole) { \
                T *y = (T *)(void *)(p[FL__INDEXED] + fl__index_at(index) * s->step); \
                const T *x = (const T *)(const void *)src; \
                FL__VECTOR for (int64_t j = 0; j < n; j++) y[j] = join(y[j], x[j]); \
                continue; \
            } \
            for (int64_t j = 0; j < n; j++) { \
                int64_t to = fl__index_at(index + j * index_step) * s->step; \
                char *at = p[FL__INDEXED] + j * y_step + to; \
                T *y = (T *)(void *)at; \
                *y = join(*y, *(const T *)(const void *)(src + j * src_step)); \
            } \
        } \
    }
FL__SCATTER(uint8_t, add_b8, flm_add_b8)
FL__SCATTER(int64_t, add_i64, flm_add_i64)
FL__SCATTER(float, add_f32, flm_add_f32)
FL__SCATTER(double, add_f64, flm_add_f64)
FL__SCATTER(uint8_t, bytes1, FL__SECOND)
FL__SCATTER(fl__u16, bytes2, FL__SECOND)
FL__SCATTER(fl__u32, bytes4, FL__SECOND)
FL__SCATTER(fl__u64, bytes8, FL__SECOND)
#undef FL__SCATTER
#undef FL__SECOND

/* Whether to process adjacent columns together, if src is dense across them; else one at a time, along the
   axis. */
static bool fl__scatter_across(const fl__indexing *s) {
    return s->other_step != s->w[FL__OTHER].size;
}

static void fl__scatter_task(void *arg, int64_t begin, int64_t end) {
    const fl__indexing *s = arg;
    fl__indexing_rows(s, begin, end, fl__scatter_across(s) ? FL__BLOCK : 1, s->scatter);
}

/* Columns of one task: enough work, and whole cache lines of adjacent columns. */
static int64_t fl__scatter_grain(const fl__indexing *s) {
    int64_t enough = fl__ceil_div(FL__GRAIN, s->length);
    int64_t line = fl__scatter_across(s) ? FL_ALIGN / s->w[FL__OTHER].size : 1;
    return enough > line ? enough : line;
}

/* Adds whole rows in order: first[to] is the first row of src that is added to row `to` of y, next[i] the one
   after row i; -1: none. f16 and bf16 are summed in f32, and rounded once. */
typedef struct fl__row_adds {
    fl__loop add, widen, narrow; /* the last two for f16 and bf16, else NULL */
    char *y;
    const char *src;
    int64_t elements, bytes; /* of a row */
    int64_t *first, *next;
    fl__scratch scratch; /* two rows of f16 or bf16 in f32 */
} fl__row_adds;

static void fl__row_adds_task(void *arg, int64_t begin, int64_t end) {
    const fl__row_adds *r = arg;
    char *wide = r->widen ? fl__scratch_take(&r->scratch) : NULL;
    char *other = wide ? wide + 4 * r->elements : NULL;
    for (int64_t to = begin; to < end; to++) {
        char *y = r->y + to * r->bytes, *sum = wide ? wide : y;
        if (r->first[to] < 0) continue;
        if (wide) r->widen((void *[]){sum, y}, r->elements, NULL);
        for (int64_t i = r->first[to]; i >= 0; i = r->next[i]) {
            void *from = (char *)(uintptr_t)r->src + i * r->bytes;
            if (wide) r->widen((void *[]){other, from}, r->elements, NULL), from = other;
            r->add((void *[]){sum, sum, from}, r->elements, NULL);
        }
        if (wide) r->narrow((void *[]){y, sum}, r->elements, NULL);
    }
    if (wide) fl__scratch_give_back(&r->scratch, wide);
}

/* Whether fl__add_rows applies: the axis is the outermost, tensors are dense, and the index is constant along
   a row. */
static bool fl__adds_rows(const fl_call *c, int axis) {
    const fl_tensor *y = c->out[0], *index = c->in[1], *src = c->in[2];
    const bool halves = y->dtype == FL_F16 || y->dtype == FL_BF16, dense = fl_is_contiguous(y);
    if (c->op != FL_OP_scatter_add || axis != 0 || !dense || !fl_is_contiguous(src)) return false;
    for (int i = 1; i < index->ndim; i++)
        if (index->shape[i] != y->shape[i] || (index->shape[i] > 1 && index->stride[i])) return false;
    return (halves || (y->dtype != FL_B8 && !fl_is_narrow(y))) && fl_numel(src) >= 8 * src->shape[0];
}

static bool fl__add_rows(const fl_call *c) {
    const fl_tensor *y = c->out[0], *index = c->in[1], *src = c->in[2];
    const int64_t rows = y->shape[0], n = src->shape[0], elements = fl_numel(src) / n;
    const fl_dtype wide = fl_dtype_wide(y->dtype);
    fl__row_adds r = {.add = fl__formula_loop(FL_OP_add, wide), .y = fl_data(y), .src = fl_data(src),
                      .elements = elements, .bytes = elements * (int64_t)fl_dtype_size(y->dtype)};
    if (wide != y->dtype) r.widen = fl__cast_loop(y->dtype, wide), r.narrow = fl__cast_loop(wide, y->dtype);
    const int64_t tasks = fl__min(64, fl__ceil_div(fl_numel(src), 4 * FL__GRAIN));
    if (!fl__scratch_open(&r.scratch, tasks, r.widen ? 8 * elements : 0, (rows + n) * 8, "scatter_add"))
        return false;
    r.first = (int64_t *)(void *)r.scratch.shared, r.next = r.first + rows;
    for (int64_t to = 0; to < rows; to++) r.first[to] = -1;
    for (int64_t i = n; i-- > 0;) {
        const int64_t to = fl__index_at((char *)fl_data(index) + i * index->stride[0] * 8);
        r.next[i] = r.first[to];
        r.first[to] = i;
    }
    fl_parallel(rows, fl__ceil_div(rows, tasks), fl__row_adds_task, &r);
    fl__scratch_close(&r.scratch);
    return true;
}

static bool fl__scatter(const fl_backend *self, const fl_call *c, fl__scatter_row row) {
    const fl_tensor *x = c->in[0], *index = c->in[1], *src = c->in[2];
    int axis = ((const fl_axis_args *)c->args)->axis;
    fl_tensor *y = c->out[0];
    fl__indexing s = {.scatter = row};
    const bool by_rows = fl__adds_rows(c, axis);
    if (c->op == FL_OP_scatter_add && fl_is_narrow(y) && !by_rows) return fl__call_widen(c);
    if (!row && !by_rows) return fl__no_kernel(c, y->dtype);
    const fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {c->in[0]}};
    if (!fl__check_index(c, index, axis, x->shape[axis]) || !fl__cpu_copy(self, &copy))
        return false;
    if (fl_numel(src) == 0) return true;
    if (by_rows) return fl__add_rows(c);
    fl__indexing_init(&s, y, index, src, axis, true);
    fl_parallel(fl_numel(src) / s.length, fl__scatter_grain(&s), fl__scatter_task, &s);
    return true;
}

FL_PRIVATE bool fl__cpu_scatter_add(const fl_backend *self, const fl_call *c) {
    static const fl__scatter_row rows[FL_DTYPE_COUNT] = {[FL_B8] = fl__scatter_add_b8,
                                                         [FL_I64] = fl__scatter_add_i64,
                                                         [FL_F32] = fl__scatter_add_f32,
                                                         [FL_F64] = fl__scatter_add_f64};
    return fl__scatter(self, c, rows[c->out[0]->dtype]);
}

FL_PRIVATE bool fl__cpu_scatter(const fl_backend *self, const fl_call *c) {
    static const fl__scatter_row rows[9] = {[1] = fl__scatter_bytes1,
                                            [2] = fl__scatter_bytes2,
                                            [4] = fl__scatter_bytes4,
                                            [8] = fl__scatter_bytes8};
    return fl__scatter(self, c, rows[fl_dtype_size(c->out[0]->dtype)]);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
