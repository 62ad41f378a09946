/* kernels/cpu/sort.h - stable sorting along one axis, and the positions of nonzero elements

   Values are mapped to unsigned keys of the same order (NaN above infinity, -0 equal to +0; inverted for
   descending order), and pairs of key and index go through a radix sort of one byte per pass, lowest first:
   stable, linear in n, no comparisons. Passes whose byte is the same in all keys are skipped. Short lines are
   sorted by insertion. If only a few elements of a line are requested (top-k), a scan keeps the candidates,
   and only these are sorted. */
#ifndef FL_CPU_SORT_H
#define FL_CPU_SORT_H
#include "slots.h"
#endif

#if defined(FL_IMPL_ONLY_CPU_SORT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SORT_IMPL
#define FL_CPU_SORT_IMPL
#include "../../fl_backend.h"
FL__LOOPS_BEGIN

enum { FL__SHORT_LINE = 32, FL__SORT_BLOCK = 64, FL__SORT_TASKS = 64, FL__SORT_SCRATCH = 1 << 22 };

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
    int64_t n, keep, inner, lines, lines_per_task; /* keep: elements of a line of y */
    int64_t capacity;      /* pairs that are sorted at once: n, or fewer for top-k */
    fl__pair *scratch; /* 2 capacity pairs per task */
} fl__sorting;

/* Adding 0 makes -0 equal to 0. */
static inline uint64_t fl__sort_key_f32(float v) {
    uint32_t u = flm__bits32(v + 0.0f);
    return v != v ? UINT32_MAX : u ^ (-(u >> 31) | (uint32_t)1 << 31);
}

static inline uint64_t fl__sort_key_f64(double v) {
    uint64_t u = flm__bits64(v + 0.0);
    return v != v ? UINT64_MAX : u ^ (-(u >> 63) | (uint64_t)1 << 63);
}

static inline uint64_t fl__sort_key_i64(uint64_t v) {
    return v ^ (uint64_t)1 << 63;
}

static inline uint64_t fl__sort_key_b8(uint8_t v) {
    return v;
}

static void fl__sort_short(fl__pair *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        fl__pair v = a[i];
        int64_t j = i;
        for (; j > 0 && a[j - 1].key > v.key; j--) a[j] = a[j - 1];
        a[j] = v;
    }
}

/* Sorts the n pairs of a by their keys' lowest bytes; b has the same size. Returns the one of the two that
   holds the result. */
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

static fl__pair *fl__sort_pairs(const fl__sorting *s, fl__pair *a, int64_t n) {
    if (n > FL__SHORT_LINE)
        return fl__sort_radix(a, a + s->capacity, n, (int)fl_dtype_size(s->dtype));
    fl__sort_short(a, n);
    return a;
}

/* The keys of n elements of x from element `first` on, with stride inner. */
static void fl__sort_keys(const fl__sorting *s, int64_t first, int64_t n, uint64_t *key) {
#define FL__KEYS(T, f) \
    for (int64_t i = 0; i < n; i++) key[i] = f(((const T *)x)[i * s->inner]) ^ s->flip
    const void *x = s->x + first * (int64_t)fl_dtype_size(s->dtype);
    switch (s->dtype) {
    case FL_B8: FL__KEYS(uint8_t, fl__sort_key_b8); break;
    case FL_I64: FL__KEYS(fl__u64, fl__sort_key_i64); break;
    case FL_F32: FL__KEYS(float, fl__sort_key_f32); break;
    default: FL__KEYS(double, fl__sort_key_f64);
    }
#undef FL__KEYS
}

/* Reads a line into pairs and sorts them. If they exceed the capacity, only the first `keep` so far stay
   whenever it is full; from then on only keys before the last of them are added. */
static fl__pair *fl__sort_first(const fl__sorting *s, int64_t first, fl__pair *a) {
    uint64_t key[FL__SORT_BLOCK], last = UINT64_MAX; /* the last key to take */
    int64_t held = 0;
    for (int64_t i = 0, n; i < s->n; i += n) {
        n = fl__min(s->n - i, FL__SORT_BLOCK);
        if (held + n > s->capacity) {
            fl__pair *sorted = fl__sort_pairs(s, a, held);
            held = s->keep;
            if (sorted[held - 1].key == 0) return sorted;
            last = sorted[held - 1].key - 1;
            if (sorted != a) memcpy(a, sorted, (size_t)held * sizeof *a);
        }
        fl__sort_keys(s, first + i * s->inner, n, key);
        bool any = false;
        for (int64_t j = 0; j < n; j++) any |= key[j] <= last;
        for (int64_t j = 0; any && j < n; j++) {
            a[held] = (fl__pair){key[j], i + j};
            held += key[j] <= last;
        }
    }
    return fl__sort_pairs(s, a, held);
}

static void fl__sort_line(const fl__sorting *s, int64_t line, fl__pair *a) {
    int64_t outer = line / s->inner, column = line % s->inner;
    int64_t from = outer * s->n * s->inner + column, to = outer * s->keep * s->inner + column;
    size_t size = fl_dtype_size(s->dtype);
    const fl__pair *sorted = fl__sort_first(s, from, a);
    for (int64_t i = 0; i < s->keep; i++) s->index[to + i * s->inner] = sorted[i].index;
    for (int64_t i = 0; i < s->keep; i++)
        memcpy(s->y + (to + i * s->inner) * (int64_t)size,
               s->x + (from + sorted[i].index * s->inner) * (int64_t)size, size);
}

static void fl__sort_task(void *arg, int64_t begin, int64_t end) {
    const fl__sorting *s = arg;
    for (int64_t task = begin; task < end; task++) {
        int64_t line = task * s->lines_per_task;
        int64_t last = fl__min(line + s->lines_per_task, s->lines);
        for (; line < last; line++) fl__sort_line(s, line, s->scratch + task * 2 * s->capacity);
    }
}

/* For top-k: the kept pairs, as many new ones, and a block. */
static int64_t fl__sort_capacity(int64_t n, int64_t keep) {
    return keep < n / 8 ? fl__min(n, 2 * keep + 2 * FL__SORT_BLOCK) : n;
}

FL_PRIVATE bool fl__cpu_sort(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_sort_args *a = c->args;
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0], *index = c->out[1];
    bool known = x->dtype == FL_B8 || fl_dtype_wide(x->dtype) == x->dtype;
    if (!known) return fl__no_kernel(c, x->dtype);
    if (!fl_out_make(y) || !fl_out_make(index)) return false;
    if (fl_numel(y) == 0) return true;
    fl__sorting s = {.x = fl_data(x), .y = fl_data(y), .index = fl_data(index), .dtype = x->dtype};
    s.flip = a->descending ? UINT64_MAX >> (64 - 8 * fl_dtype_size(x->dtype)) : 0;
    s.n = x->shape[a->axis];
    s.keep = y->shape[a->axis];
    s.capacity = fl__sort_capacity(s.n, s.keep);
    s.inner = 1;
    for (int d = a->axis + 1; d < x->ndim; d++) s.inner *= x->shape[d];
    s.lines = fl_numel(x) / s.n;
    int64_t tasks = fl__min(s.lines, fl__min(FL__SORT_TASKS, 1 + FL__SORT_SCRATCH / s.capacity));
    s.lines_per_task = fl__ceil_div(s.lines, tasks);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)(tasks * 2), (size_t)s.capacity * sizeof *s.scratch, &bytes) ||
        !(s.scratch = fl_heap_alloc(bytes)))
        return fl_fail("fl_sort: out of memory for lines of %lld elements", (long long)s.n);
    fl_parallel(tasks, fl__ceil_div(FL__GRAIN, s.lines_per_task * s.n), fl__sort_task, &s);
    fl_heap_free(s.scratch);
    return true;
}

/* x is b8; the core has counted y's rows. */
FL_PRIVATE bool fl__cpu_nonzero(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_tensor *x = c->in[0];
    fl_tensor *y = c->out[0];
    if (!fl_out_make(y)) return false;
    const uint8_t *p = fl_data(x);
    int64_t *to = fl_data(y), numel = fl_numel(x), row = 0;
    for (int64_t i = 0; i < numel; i++) {
        if (!p[i]) continue;
        if (row == y->shape[0]) return fl_fail("fl_nonzero: x was modified during the call");
        for (int64_t d = x->ndim - 1, k = i; d >= 0; k /= x->shape[d--])
            to[row * x->ndim + d] = k % x->shape[d];
        row++;
    }
    return row == y->shape[0] || fl_fail("fl_nonzero: x was modified during the call");
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
