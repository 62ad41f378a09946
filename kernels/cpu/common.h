/* kernels/cpu/common.h - passes: run an inner loop over operands of any layout

   A pass runs one inner loop over any number of operands in the order of their elements. The loop sees only
   dense blocks: a dense operand is passed in place, any other is copied block by block through a small buffer
   on the stack; a weak number or a tensor of one repeated element becomes a constant block; an operand may be
   a function of the position (random numbers); and one of a narrow dtype is converted on its way through the
   buffer. So an op needs one loop per wide dtype, for all layouts, at the price of a copy in the L1 cache.
   Work is cut by its size alone. */
#ifndef FL_CPU_COMMON_H
#define FL_CPU_COMMON_H
#include "../../fl_tensor.h"
#include "loops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes elements begin .. begin + n - 1 of a sequence; begin is a multiple of FL__BLOCK, n at most
   FL__BLOCK. */
typedef void (*fl__sequence)(void *dst, int64_t begin, int64_t n, const void *arg);

/* An iterator over an operand: adjacent dims that step evenly are merged, the innermost is dim[0]. */
typedef enum fl__layout { FL__DENSE, FL__CONSTANT, FL__STRIDED, FL__GENERATED } fl__layout;
typedef struct fl__iter {
    char *base;
    int size, raw;         /* bytes of an element for the loop; in memory */
    fl__loop load, save;   /* casts between the two if they differ, else NULL */
    int access;
    fl__layout layout;
    int ndim;
    int64_t dim[FL_MAX_DIMS], step[FL_MAX_DIMS]; /* step in bytes */
    uint64_t number;       /* bits of a constant that is not a tensor: base is NULL */
    fl__sequence sequence; /* of a generated operand */
    const void *sequence_arg;
} fl__iter;

typedef struct fl__pass {
    fl__loop loop;
    const void *arg;
    int n;
    bool blocked; /* pass blocks even if all operands are dense */
    bool streaming; /* large 4-byte operands: blocks twice as long, the next one prefetched */
    const int *order; /* of the axes, outermost first; NULL: in order */
    int axes[FL_MAX_DIMS];
    fl__iter iter[FL__OPERANDS];
} fl__pass;

/* Starts a pass without operands. */
static inline void fl__pass_begin(fl__pass *p, fl__loop loop, const void *arg) {
    p->loop = loop;
    p->arg = arg;
    p->n = 0;
    p->blocked = p->streaming = false;
    p->order = NULL;
}
/* Lets the pass visit elements in y's memory order, if their order does not matter; call it before adding
   operands. */
FL_PRIVATE void fl__pass_follow(fl__pass *p, const fl_tensor *y);
/* Adds an operand that the loop reads, writes or both. A weak one becomes a number of dtype `weak_as`. */
FL_PRIVATE void fl__pass_add(fl__pass *p, const fl_tensor *t, int access, fl_dtype weak_as);
/* The same for a loop of t's wide dtype. */
FL_PRIVATE void fl__pass_add_wide(fl__pass *p, const fl_tensor *t, int access, fl_dtype weak_as);
/* Adds a number of `size` bytes. */
FL_PRIVATE void fl__pass_add_number(fl__pass *p, uint64_t bits, int size);
/* Adds an operand whose elements are computed. */
FL_PRIVATE void fl__pass_add_sequence(fl__pass *p, fl__sequence sequence, const void *arg);
/* Runs the loop over numel elements of every operand, in parallel. */
FL_PRIVATE void fl__pass_run(fl__pass *p, int64_t numel);

/* A position of an iterator. */
typedef struct fl__cursor {
    char *ptr;
    int64_t at[FL_MAX_DIMS];
} fl__cursor;
/* Starts an iterator over t, without dims yet. */
FL_PRIVATE void fl__iter_begin(fl__iter *w, const fl_tensor *t, int access);
/* Iterates over all of t; order: the axes, outermost first; NULL: in order. */
FL_PRIVATE void fl__iter_init(fl__iter *w, const fl_tensor *t, int access, const int *order);
/* Lets reads and writes convert between memory of dtype d and its wide dtype. */
FL_PRIVATE void fl__iter_widen(fl__iter *w, fl_dtype d);
/* The same for a loop of dtype `to`, between which and d there is a cast loop. */
FL_PRIVATE void fl__iter_convert(fl__iter *w, fl_dtype d, fl_dtype to);
/* Adds the next outer dim to n iterators of the same dims, merged if all step evenly; _close turns iterators
   without dims into ones of one element. */
FL_PRIVATE void fl__iter_push(fl__iter *w, int n, int64_t dim, const int64_t *step);
FL_PRIVATE void fl__iter_close(fl__iter *w, int n);
FL_PRIVATE fl__cursor fl__iter_seek(const fl__iter *w, int64_t position);
/* Copies the next n elements to or from dense memory in the loop's dtype. */
FL_PRIVATE void fl__iter_read(const fl__iter *w, fl__cursor *c, void *dst, int64_t n);
FL_PRIVATE void fl__iter_write(const fl__iter *w, fl__cursor *c, void *src, int64_t n);
/* _row: elements from the cursor on that are in one row, at most n; _advance: moves the cursor by k elements
   within that row. */
FL_PRIVATE int64_t fl__iter_row(const fl__iter *w, const fl__cursor *c, int64_t n);
FL_PRIVATE void fl__iter_advance(const fl__iter *w, fl__cursor *c, int64_t k);
/* Calls fl_out_make, then sets y to elements 0, 1, ... of the sequence. */
FL_PRIVATE bool fl__fill_sequence(fl_tensor *y, fl__sequence sequence, const void *arg);
/* The bits of a weak number in dtype, in the low bytes. */
FL_PRIVATE uint64_t fl__weak_bits(const fl_tensor *t, fl_dtype dtype);
/* The loop of a pass that copies p[1] to p[0]; arg points to the element's size, a size_t. */
FL_PRIVATE void fl__move(void *const p[], int64_t n, const void *arg);
/* Fails because a slot has no loop for d; returns false. */
FL_PRIVATE bool fl__no_kernel(const fl_call *c, fl_dtype d);
/* The loop that casts p[1] to p[0]; NULL if it takes two, through the wide dtype. */
FL_PRIVATE fl__loop fl__cast_loop(fl_dtype from, fl_dtype to);
/* The loop of a formula for a dtype at the current instruction-set level; NULL if none. */
FL_PRIVATE fl__loop fl__formula_loop(fl_op op, fl_dtype d);


#ifdef __cplusplus
}
#endif
#endif /* FL_CPU_COMMON_H */

#if defined(FL_IMPL_ONLY_CPU_COMMON) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_COMMON_IMPL
#define FL_CPU_COMMON_IMPL
#include "../../fl_backend.h"
FL__LOOPS_BEGIN

#define FL__COPY_ROW(T) \
    for (int64_t i = 0; i < n; i++) \
        *(T *)(void *)(dst + i * dst_step) = *(const T *)(const void *)(src + i * src_step)

/* One word repeated: fills and broadcasts. */
#define FL__FILL_ROW(T) \
    do { \
        const T value = *(const T *)(const void *)src; \
        T *d = (T *)(void *)dst; \
        for (int64_t i = 0; i < n; i++) d[i] = value; \
    } while (0)

FL_PRIVATE void fl__fill_row(char *dst, const char *src, int64_t n, int size) {
    switch (size) {
    case 8: FL__FILL_ROW(fl__u64); break;
    case 4: FL__FILL_ROW(fl__u32); break;
    case 2: FL__FILL_ROW(fl__u16); break;
    default: memset(dst, *src, (size_t)n);
    }
}

FL_PRIVATE void fl__copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                             int64_t n, int size) {
    if (dst_step == size && src_step == size) {
        memcpy(dst, src, (size_t)(n * size));
    } else if (dst_step == size && src_step == 0) {
        fl__fill_row(dst, src, n, size);
    } else {
        switch (size) {
        case 8: FL__COPY_ROW(fl__u64); break;
        case 4: FL__COPY_ROW(fl__u32); break;
        case 2: FL__COPY_ROW(fl__u16); break;
        default: FL__COPY_ROW(char);
        }
    }
}
#undef FL__COPY_ROW
#undef FL__FILL_ROW

FL_PRIVATE void fl__iter_push(fl__iter *w, int n, int64_t dim, const int64_t *step) {
    int last = w->ndim - 1;
    bool even = last >= 0;
    if (dim == 1) return;
    for (int k = 0; k < n && even; k++) even = step[k] == w[k].step[last] * w[k].dim[last];
    for (int k = 0; k < n; k++) {
        if (even) {
            w[k].dim[last] *= dim;
        } else {
            w[k].dim[last + 1] = dim;
            w[k].step[last + 1] = step[k];
            w[k].ndim++;
        }
    }
}

FL_PRIVATE void fl__iter_close(fl__iter *w, int n) {
    for (int k = 0; k < n; k++) {
        if (w[k].ndim > 0) continue;
        w[k].ndim = 1;
        w[k].dim[0] = 1;
        w[k].step[0] = w[k].size;
    }
}

FL_PRIVATE void fl__iter_begin(fl__iter *w, const fl_tensor *t, int access) {
    w->base = fl_data(t);
    w->size = w->raw = (int)fl_dtype_size(t->dtype);
    w->load = w->save = NULL;
    w->access = access;
    w->ndim = 0;
}

FL_PRIVATE void fl__iter_init(fl__iter *w, const fl_tensor *t, int access, const int *order) {
    fl__iter_begin(w, t, access);
    for (int i = t->ndim - 1; i >= 0; i--) {
        int k = order ? order[i] : i;
        fl__iter_push(w, 1, t->shape[k], &(int64_t){t->stride[k] * w->size});
    }
    fl__iter_close(w, 1);
    bool dense = w->ndim == 1 && w->step[0] == w->size, constant = w->ndim == 1 && w->step[0] == 0;
    w->layout = dense ? FL__DENSE : constant ? FL__CONSTANT : FL__STRIDED;
}

FL_PRIVATE void fl__iter_convert(fl__iter *w, fl_dtype d, fl_dtype to) {
    if (to == d) return;
    w->size = (int)fl_dtype_size(to);
    w->load = fl__cast_loop(d, to);
    w->save = fl__cast_loop(to, d);
    w->layout = FL__STRIDED;
}

FL_PRIVATE void fl__iter_widen(fl__iter *w, fl_dtype d) { fl__iter_convert(w, d, fl_dtype_wide(d)); }

FL_PRIVATE fl__cursor fl__iter_seek(const fl__iter *w, int64_t position) {
    fl__cursor c = {.ptr = w->base};
    for (int k = 0; k < w->ndim && position > 0; k++) {
        int64_t above = fl__quotient(position, w->dim[k]);
        c.at[k] = position - above * w->dim[k];
        c.ptr += c.at[k] * w->step[k];
        position = above;
    }
    return c;
}

FL_PRIVATE int64_t fl__iter_row(const fl__iter *w, const fl__cursor *c, int64_t n) {
    return fl__min(n, w->dim[0] - c->at[0]);
}

FL_PRIVATE void fl__iter_advance(const fl__iter *w, fl__cursor *c, int64_t k) {
    c->at[0] += k;
    c->ptr += k * w->step[0];
    for (int i = 0; i < w->ndim - 1 && c->at[i] == w->dim[i]; i++) {
        c->ptr += w->step[i + 1] - w->dim[i] * w->step[i];
        c->at[i] = 0;
        c->at[i + 1]++;
    }
}

/* Reads n elements at src, w->step[0] bytes apart, into dense ones of the loop's dtype. */
static void fl__load_row(const fl__iter *w, char *dst, char *src, int64_t n) {
    char raw[FL__BLOCK * FL__ELEMENT];
    if (w->step[0] == w->raw) {
        w->load((void *[]){dst, src}, n, NULL);
        return;
    }
    for (int64_t i = 0, m; i < n; i += m) {
        m = fl__min(n - i, FL__BLOCK);
        fl__copy_row(raw, w->raw, src + i * w->step[0], w->step[0], m, w->raw);
        w->load((void *[]){dst + i * w->size, raw}, m, NULL);
    }
}

static void fl__save_row(const fl__iter *w, char *dst, char *src, int64_t n) {
    char raw[FL__BLOCK * FL__ELEMENT];
    if (w->step[0] == w->raw) {
        w->save((void *[]){dst, src}, n, NULL);
        return;
    }
    for (int64_t i = 0, m; i < n; i += m) {
        m = fl__min(n - i, FL__BLOCK);
        w->save((void *[]){raw, src + i * w->size}, m, NULL);
        fl__copy_row(dst + i * w->step[0], w->step[0], raw, w->raw, m, w->raw);
    }
}

FL_PRIVATE void fl__iter_read(const fl__iter *w, fl__cursor *c, void *dst, int64_t n) {
    for (char *d = dst; n > 0;) {
        int64_t row = fl__iter_row(w, c, n);
        if (w->load) fl__load_row(w, d, c->ptr, row);
        else fl__copy_row(d, w->size, c->ptr, w->step[0], row, w->size);
        fl__iter_advance(w, c, row);
        d += row * w->size;
        n -= row;
    }
}

FL_PRIVATE void fl__iter_write(const fl__iter *w, fl__cursor *c, void *src, int64_t n) {
    for (char *s = src; n > 0;) {
        int64_t row = fl__iter_row(w, c, n);
        if (w->save) fl__save_row(w, c->ptr, s, row);
        else fl__copy_row(c->ptr, w->step[0], s, w->size, row, w->size);
        fl__iter_advance(w, c, row);
        s += row * w->size;
        n -= row;
    }
}

FL_PRIVATE uint64_t fl__weak_bits(const fl_tensor *t, fl_dtype dtype) {
    uint64_t bits = 0;
    bool real = fl_dtype_is_float(dtype) || dtype == FL_B8;
    fl_number_store(dtype, &bits, (fl_number){real, t->f64, t->i64});
    return bits;
}

FL_PRIVATE void fl__pass_follow(fl__pass *p, const fl_tensor *y) {
    p->order = p->axes;
    fl_axes_by_stride(y, p->axes);
}

FL_PRIVATE void fl__pass_add(fl__pass *p, const fl_tensor *t, int access, fl_dtype weak_as) {
    if (t->weak) fl__pass_add_number(p, fl__weak_bits(t, weak_as), (int)fl_dtype_size(weak_as));
    else fl__iter_init(&p->iter[p->n++], t, access, p->order);
}

FL_PRIVATE void fl__pass_add_wide(fl__pass *p, const fl_tensor *t, int access, fl_dtype weak_as) {
    fl__pass_add(p, t, access, weak_as);
    if (!t->weak) fl__iter_widen(&p->iter[p->n - 1], t->dtype);
}

FL_PRIVATE void fl__pass_add_number(fl__pass *p, uint64_t bits, int size) {
    fl__iter *w = &p->iter[p->n++];
    w->base = NULL;
    w->size = w->raw = size;
    w->load = w->save = NULL;
    w->access = FL_READ;
    w->layout = FL__CONSTANT;
    w->number = bits;
}

FL_PRIVATE void fl__pass_add_sequence(fl__pass *p, fl__sequence sequence, const void *arg) {
    p->iter[p->n++] = (fl__iter){
        .access = FL_READ, .layout = FL__GENERATED, .sequence = sequence, .sequence_arg = arg};
}

/* One task's share of a pass. */
typedef struct fl__share {
    _Alignas(FL_ALIGN) char buffer[FL__OPERANDS][FL__BLOCK * FL__ELEMENT];
    fl__cursor at[FL__OPERANDS];
    void *ptr[FL__OPERANDS];
} fl__share;

static int64_t fl__pass_block(const fl__pass *p) { return p->streaming ? 2 * FL__BLOCK : FL__BLOCK; }

static void fl__share_begin(fl__share *s, const fl__pass *p, int64_t begin, int64_t end) {
    for (int k = 0; k < p->n; k++) {
        const fl__iter *w = &p->iter[k];
        const char *number = w->base ? w->base : (const char *)&w->number;
        s->ptr[k] = s->buffer[k];
        if (w->layout == FL__STRIDED) s->at[k] = fl__iter_seek(w, begin);
        if (w->layout == FL__CONSTANT)
            fl__fill_row(s->buffer[k], number, fl__min(end - begin, fl__pass_block(p)), w->size);
    }
}

static void fl__share_read(fl__share *s, const fl__pass *p, int64_t begin, int64_t n) {
    for (int k = 0; k < p->n; k++) {
        const fl__iter *w = &p->iter[k];
        if (w->layout == FL__DENSE) s->ptr[k] = w->base + begin * w->size;
        if (w->layout == FL__GENERATED) w->sequence(s->buffer[k], begin, n, w->sequence_arg);
        if (w->layout != FL__STRIDED || !(w->access & FL_READ)) continue;
        fl__cursor c = s->at[k];
        fl__iter_read(w, &c, s->buffer[k], n);
        if (!(w->access & FL_WRITE)) s->at[k] = c;
    }
}

static void fl__share_prefetch(const fl__share *s, const fl__pass *p, int64_t n) {
    for (int k = 0; k < p->n; k++) {
        const fl__iter *w = &p->iter[k];
        if (w->layout != FL__STRIDED || !w->load || w->step[0] != w->raw) continue;
        const bool written = w->access & FL_WRITE; /* read-only operands have advanced already */
        const char *at = s->at[k].ptr + (written ? n * w->raw : 0);
        for (const char *end = at + n * w->raw; at < end; at += 64)
            if (written) __builtin_prefetch(at, 1);
            else __builtin_prefetch(at);
    }
}

static void fl__share_write(fl__share *s, const fl__pass *p, int64_t n) {
    for (int k = 0; k < p->n; k++) {
        const fl__iter *w = &p->iter[k];
        if (w->layout == FL__STRIDED && w->access & FL_WRITE)
            fl__iter_write(w, &s->at[k], s->buffer[k], n);
    }
}

static void fl__pass_task(void *arg, int64_t begin, int64_t end) {
    const fl__pass *p = arg;
    fl__share s;
    fl__share_begin(&s, p, begin, end);
    for (int64_t i = begin, n; i < end; i += n) {
        n = p->blocked ? fl__min(end - i, fl__pass_block(p)) : end - i;
        fl__share_read(&s, p, i, n);
        if (p->streaming) fl__share_prefetch(&s, p, n);
        p->loop(s.ptr, n, p->arg);
        fl__share_write(&s, p, n);
    }
}

FL_PRIVATE void fl__pass_run(fl__pass *p, int64_t numel) {
    for (int k = 0; k < p->n; k++) {
        fl__iter *w = &p->iter[k];
        if (w->layout == FL__CONSTANT && w->access & FL_WRITE) w->layout = FL__STRIDED;
        p->blocked |= w->layout != FL__DENSE;
    }
    fl_parallel(numel, FL__GRAIN, fl__pass_task, p);
}

FL_PRIVATE void fl__move(void *const p[], int64_t n, const void *arg) {
    memcpy(p[0], p[1], (size_t)n * *(const size_t *)arg);
}

FL_PRIVATE bool fl__fill_sequence(fl_tensor *y, fl__sequence sequence, const void *arg) {
    size_t size = fl_dtype_size(y->dtype);
    fl__pass p;
    if (!fl_out_make(y)) return false;
    fl__pass_begin(&p, fl__move, &size);
    fl__pass_add(&p, y, FL_WRITE, y->dtype);
    fl__pass_add_sequence(&p, sequence, arg);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

FL_PRIVATE bool fl__no_kernel(const fl_call *c, fl_dtype d) {
    return fl_fail("fl_%s: the cpu has no kernel for %s", fl_op_get_info(c->op)->name,
                   fl_dtype_name(d));
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
