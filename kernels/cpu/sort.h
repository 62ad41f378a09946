/* kernels/cpu/sort.h - stable sorting along one axis, and the places of nonzero elements

   Values become unsigned keys of the same order (NaN above infinity, -0 equal to +0; inverted for
   descending order), and pairs of key and index go through a radix sort of one byte a pass, lowest
   first: stable, linear in n, no comparisons. Passes whose byte is the same in all keys are
   skipped. Short lines are sorted by insertion. */
#include "common.h"
#ifndef FL_CPU_SORT_H
#define FL_CPU_SORT_H
#endif

#if defined(FL_IMPL_ONLY_CPU_SORT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SORT_IMPL
#define FL_CPU_SORT_IMPL
FL__LOOPS_BEGIN

enum { FL__SHORT_LINE = 32, FL__SORT_TASKS = 64, FL__SORT_SCRATCH = 1 << 22 };

typedef struct fl__pair {
    uint64_t key;
    int64_t index;
} fl__pair;

typedef struct fl__sorting {
    const char *x;
    char *y;
    int64_t *index;
    fl_dtype dtype;
    uint64_t flip; /* all ones for descending order */
    int64_t n, inner, lines, lines_per_task;
    fl__pair *scratch; /* 2 n pairs for each task */
} fl__sorting;

static uint64_t fl__sort_key(fl_dtype d, const char *p) {
    if (d == FL_B8) return *(const uint8_t *)p;
    if (d == FL_I64) return *(const fl__u64 *)(const void *)p ^ (uint64_t)1 << 63;
    if (d == FL_F32) {
        float v = *(const float *)(const void *)p;
        uint32_t u = v == 0 ? 0 : flm__bits32(v);
        return v != v ? UINT32_MAX : u >> 31 ? (uint32_t)~u : u | (uint32_t)1 << 31;
    }
    double v = *(const double *)(const void *)p;
    uint64_t u = v == 0 ? 0 : flm__bits64(v);
    return v != v ? UINT64_MAX : u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

static void fl__sort_short(fl__pair *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        fl__pair v = a[i];
        int64_t j = i;
        for (; j > 0 && a[j - 1].key > v.key; j--) a[j] = a[j - 1];
        a[j] = v;
    }
}

/* Sorts a of n pairs by their keys' lowest bytes; b is as large. Returns which of the two holds the
   result. */
static fl__pair *fl__sort_radix(fl__pair *a, fl__pair *b, int64_t n, int bytes) {
    for (int shift = 0; shift < 8 * bytes; shift += 8) {
        int64_t count[256] = {0}, before = 0;
        for (int64_t i = 0; i < n; i++) count[a[i].key >> shift & 255]++;
        if (count[a[0].key >> shift & 255] == n) continue;
        for (int k = 0; k < 256; k++) {
            int64_t here = count[k];
            count[k] = before;
            before += here;
        }
        for (int64_t i = 0; i < n; i++) b[count[a[i].key >> shift & 255]++] = a[i];
        fl__pair *t = a;
        a = b;
        b = t;
    }
    return a;
}

static void fl__sort_line(const fl__sorting *s, int64_t line, fl__pair *a) {
    int64_t first = line / s->inner * s->n * s->inner + line % s->inner;
    int size = (int)fl_dtype_size(s->dtype);
    for (int64_t i = 0; i < s->n; i++) {
        const char *p = s->x + (first + i * s->inner) * size;
        a[i] = (fl__pair){fl__sort_key(s->dtype, p) ^ s->flip, i};
    }
    fl__pair *sorted = a;
    if (s->n <= FL__SHORT_LINE) fl__sort_short(a, s->n);
    else sorted = fl__sort_radix(a, a + s->n, s->n, size);
    for (int64_t i = 0; i < s->n; i++) s->index[first + i * s->inner] = sorted[i].index;
    for (int64_t i = 0; i < s->n; i++)
        memcpy(s->y + (first + i * s->inner) * size,
               s->x + (first + sorted[i].index * s->inner) * size, (size_t)size);
}

static void fl__sort_task(void *arg, int64_t begin, int64_t end) {
    const fl__sorting *s = arg;
    for (int64_t task = begin; task < end; task++) {
        int64_t line = task * s->lines_per_task;
        int64_t last = fl__min(line + s->lines_per_task, s->lines);
        for (; line < last; line++) fl__sort_line(s, line, s->scratch + task * 2 * s->n);
    }
}

FL_PRIVATE bool fl__cpu_sort(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_sort_args *a = c->args;
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0], *index = c->out[1];
    bool known = x->dtype == FL_B8 || fl_dtype_wide(x->dtype) == x->dtype;
    if (!known) return fl__no_kernel(c, x->dtype);
    if (!fl_make(y) || !fl_make(index)) return false;
    int64_t numel = fl_numel(x);
    if (numel == 0) return true;
    fl__sorting s = {.x = fl_data(x), .y = fl_data(y), .index = fl_data(index), .dtype = x->dtype};
    s.flip = a->descending ? UINT64_MAX >> (64 - 8 * fl_dtype_size(x->dtype)) : 0;
    s.n = x->shape[a->axis];
    s.inner = 1;
    for (int d = a->axis + 1; d < x->ndim; d++) s.inner *= x->shape[d];
    s.lines = numel / s.n;
    int64_t tasks = fl__min(s.lines, fl__min(FL__SORT_TASKS, 1 + FL__SORT_SCRATCH / s.n));
    s.lines_per_task = fl__ceil_div(s.lines, tasks);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)(tasks * 2), (size_t)s.n * sizeof *s.scratch, &bytes) ||
        !(s.scratch = fl__alloc(bytes)))
        return fl_fail("fl_sort: out of memory for lines of %lld elements", (long long)s.n);
    fl_parallel(tasks, fl__ceil_div(FL__GRAIN, s.lines_per_task * s.n), fl__sort_task, &s);
    fl__free(s.scratch);
    return true;
}

/* x is b8; y's rows were counted by the core. */
FL_PRIVATE bool fl__cpu_nonzero(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0];
    if (!fl_make(y)) return false;
    const uint8_t *p = fl_data(x);
    int64_t *to = fl_data(y), numel = fl_numel(x), row = 0;
    for (int64_t i = 0; i < numel; i++) {
        if (!p[i]) continue;
        if (row == y->shape[0]) return fl_fail("fl_nonzero: x changed meanwhile");
        for (int64_t d = x->ndim - 1, k = i; d >= 0; k /= x->shape[d--])
            to[row * x->ndim + d] = k % x->shape[d];
        row++;
    }
    return row == y->shape[0] || fl_fail("fl_nonzero: x changed meanwhile");
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
