/* examples/extend/naive.h - a minimal backend: storage of its own, triple loops, the required ops

   What it shows: the minimum of a backend. `impl` points at a dense row-major array from
   malloc; there are no buffers, no strides and no views. Every model trains on it, because all
   other ops are compositions of these. All arithmetic is in double or int64_t, one element at a
   time.

   The contract it exercises
     make, drop  The storage hangs on t->impl and belongs to the handle. Never NULL, even for no
                 elements: NULL means "no storage yet". A slot calls fl_out_make on its output first;
                 outputs that are written in place have storage already.
     map         The array itself, for what reads and writes elements on the host.
     view        NULL refuses: the core asks for a dense copy, and marks it so that a write to it
                 is an error and not lost. Only `copy` sees strides: of aliases, handles with the
                 impl of another but a shape, strides and offset of their own. All other inputs
                 are dense.
     slots       Inputs come checked, promoted and broadcast. Weak numbers are no arrays: the value
                 is in the handle. A failing slot says why with fl_fail and returns false.
     op tables   The 31 formulas are the CORE lines of FL_UNARY_OPS and FL_BINARY_OPS, expanded
                 with the words of fl_primitives.h and the scalar functions of fl_math.h.

   Dtypes: f32 f64 i64 b8, the rest only in copy, fill and map: the core casts them for all other
   ops. Shapes and dtypes were checked by the core: a slot checks what only data can tell.

     fl_backend_use(fl_backend_naive(), NULL);
     fl_backend_set_default("naive");

   or, without a line of code, for any program:
     cc -I. -DFL_TENSOR_BACKEND=naive -DFL_TENSOR_BACKEND_H='"examples/extend/naive.h"' \
         examples/mnist.c fl.c -lm -lpthread */
#ifndef NAIVE_H
#define NAIVE_H

#include "../../fl_backend.h"
#include "../../fl_tensor.h"
#include "../../kernels/fl_math.h"

#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static inline fl_number naive_real(double f) {
    return (fl_number){true, f, 0};
}

static inline fl_number naive_whole(int64_t i) {
    return (fl_number){false, (double)i, i};
}

static inline fl_number naive_get(const fl_tensor *t, int64_t at) {
    return fl_number_load(t->dtype, (const char *)t->impl + at * (int64_t)fl_dtype_size(t->dtype));
}

/* Stores v as a cast would. */
static inline void naive_set(fl_tensor *t, int64_t at, fl_number v) {
    fl_number_store(t->dtype, (char *)t->impl + at * (int64_t)fl_dtype_size(t->dtype), v);
}

/* Element `at` of an operand that takes part in arithmetic of dtype d; a weak number has the same
   value everywhere. */
static inline fl_number naive_operand(const fl_tensor *t, int64_t at, fl_dtype d) {
    if (!t->weak) return naive_get(t, at);
    if (d == FL_F32) return naive_real((double)(float)t->f64);
    if (d == FL_F64) return naive_real(t->f64);
    return naive_whole(d == FL_B8 ? t->i64 != 0 : t->i64);
}

/* ---- formulas: each table line of the right class is one case ---- */

FL_KERNEL_BEGIN
#include "../../kernels/fl_primitives.h"
#define NAIVE_YES(...) __VA_ARGS__
#define NAIVE_NO(...)
#define NAIVE_CORE NAIVE_YES
#define NAIVE_CORE_HOT NAIVE_YES
#define NAIVE_COMPILED NAIVE_NO
#define NAIVE_COMPOSED NAIVE_NO
#define NAIVE_CASE(op, cls, need, f, ...) NAIVE_##need(NAIVE_##cls(case FL_OP_##op: return f;))

#define NAIVE_NUM NAIVE_YES
#define NAIVE_ANY NAIVE_YES
#define NAIVE_CMP NAIVE_YES
#define NAIVE_FLOAT NAIVE_YES
#define NAIVE_INT NAIVE_NO
#define FL_FN(word) flm_##word##_f64
static inline double naive_formula_f64(fl_op op, double a, double b) {
    const double x = a;
    double u, v;
    (void)u, (void)v;
    switch (op) {
        FL_UNARY_OPS(NAIVE_CASE)
        FL_BINARY_OPS(NAIVE_CASE)
    default: return 0;
    }
}

#undef NAIVE_FLOAT
#undef NAIVE_INT
#undef FL_FN
#define NAIVE_FLOAT NAIVE_NO
#define NAIVE_INT NAIVE_YES
#define FL_FN(word) flm_##word##_i64
static inline int64_t naive_formula_i64(fl_op op, int64_t a, int64_t b) {
    const int64_t x = a;
    int64_t u, v;
    (void)u, (void)v;
    switch (op) {
        FL_UNARY_OPS(NAIVE_CASE)
        FL_BINARY_OPS(NAIVE_CASE)
    default: return 0;
    }
}
#define FL_PRIMITIVES_END
#include "../../kernels/fl_primitives.h"

/* y = f(a) or f(a, b). Truth values are integers that naive_set makes 0 or 1 again. */
static inline fl_number naive_apply(fl_op op, fl_number a, fl_number b) {
    return a.real ? naive_real(naive_formula_f64(op, a.f, b.f))
                  : naive_whole(naive_formula_i64(op, a.i, b.i));
}

/* Element i of a random tensor of dtype d: see fl_random_args. */
static inline fl_number naive_draw(const fl_random_args *r, fl_dtype d, int64_t i) {
    const int64_t per_block = d == FL_F32 ? 4 : 2;
    uint32_t block[4], *w = block + i % per_block * (4 / per_block);
    float pair[2];
    double wide_pair[2];
    flm_philox(r->rng.key, r->rng.counter + (uint64_t)(i / per_block), block);
    const uint64_t first = (uint64_t)r->ia, range = (uint64_t)r->ib - first;
    if (r->dist == FL_INTEGER)
        return naive_whole((int64_t)(first + flm_bounded(w[1], w[0], range)));
    if (r->dist == FL_UNIFORM && d == FL_F32)
        return naive_real((double)((float)r->a + (float)(r->b - r->a) * flm_uniform_f32(w[0])));
    if (r->dist == FL_UNIFORM)
        return naive_real(r->a + (r->b - r->a) * flm_uniform_f64(w[1], w[0]));
    if (d == FL_F32) {
        flm_normal_f32(block[i % 4 / 2 * 2], block[i % 4 / 2 * 2 + 1], pair);
        return naive_real((double)((float)r->a + (float)r->b * pair[i % 2]));
    }
    flm_normal_f64(block, wide_pair);
    return naive_real(r->a + r->b * wide_pair[i % 2]);
}
FL_KERNEL_END

/* ---- walking: an odometer over dims, with an offset into two arrays ---- */

typedef struct naive_walk {
    int ndim;
    int64_t n; /* elements in all */
    int64_t shape[FL_MAX_DIMS], index[FL_MAX_DIMS], stride[2][FL_MAX_DIMS], at[2];
} naive_walk;

static inline void naive_dim(naive_walk *w, int64_t shape, int64_t stride0, int64_t stride1) {
    w->shape[w->ndim] = shape;
    w->stride[0][w->ndim] = stride0;
    w->stride[1][w->ndim++] = stride1;
    w->n *= shape;
}

static inline void naive_next(naive_walk *w) {
    for (int d = w->ndim - 1; d >= 0; d--) {
        w->at[0] += w->stride[0][d];
        w->at[1] += w->stride[1][d];
        if (++w->index[d] < w->shape[d]) return;
        w->index[d] = 0;
        w->at[0] -= w->shape[d] * w->stride[0][d];
        w->at[1] -= w->shape[d] * w->stride[1][d];
    }
}

/* Over the elements of t, by t's strides and those of other, which stands still along axis. */
static inline naive_walk naive_over(const fl_tensor *t, const fl_tensor *other, int axis) {
    naive_walk w = {.n = 1, .at = {t->offset, other->offset}};
    for (int d = 0; d < t->ndim; d++)
        naive_dim(&w, t->shape[d], t->stride[d], d == axis ? 0 : other->stride[d]);
    return w;
}

/* ---- hooks ---- */

static inline bool naive_make(const fl_backend *self, fl_tensor *t, const fl_mem_info *info) {
    (void)self, (void)info;
    size_t bytes;
    bool over = __builtin_mul_overflow((size_t)fl_numel(t), fl_dtype_size(t->dtype), &bytes);
    t->impl = over || bytes > PTRDIFF_MAX ? NULL : malloc(bytes ? bytes : 1);
    return t->impl || fl_fail("naive: out of memory: %lld elements of %s", (long long)fl_numel(t),
                              fl_dtype_name(t->dtype));
}

static inline void naive_drop(const fl_backend *self, fl_tensor *t) {
    (void)self, free(t->impl);
}

static inline void *naive_map(const fl_backend *self, fl_tensor *t, int access) {
    (void)self, (void)access;
    return t->impl;
}

/* ---- slots: create, copy, element-wise ---- */

#define NAIVE_FN(name) \
    static inline bool name(const fl_backend *self __attribute__((unused)), const fl_call *c)

NAIVE_FN(naive_copy) {
    fl_tensor *y = c->out[0];
    if (!fl_out_make(y)) return false;
    naive_walk w = naive_over(y, c->in[0], -1);
    for (int64_t i = 0; i < w.n; i++, naive_next(&w))
        naive_set(y, w.at[0], naive_get(c->in[0], w.at[1]));
    return true;
}

NAIVE_FN(naive_fill) {
    fl_tensor *y = c->out[0];
    const fl_fill_args *a = c->args;
    const fl_number v = {y->dtype != FL_I64, a->f64, a->i64};
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) naive_set(y, i, v);
    return true;
}

NAIVE_FN(naive_iota) {
    fl_tensor *y = c->out[0];
    const fl_iota_args *a = c->args;
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) {
        const int64_t whole = flm_add_i64(a->i_start, flm_mul_i64(i, a->i_step));
        const double real = a->f_start + (double)i * a->f_step;
        naive_set(y, i, (fl_number){y->dtype != FL_I64, real, whole});
    }
    return true;
}

NAIVE_FN(naive_random) {
    fl_tensor *y = c->out[0];
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) naive_set(y, i, naive_draw(c->args, y->dtype, i));
    return true;
}

/* All formulas, of one operand or two. */
NAIVE_FN(naive_elementwise) {
    fl_tensor *y = c->out[0];
    const fl_tensor *a = c->in[0], *b = c->in[c->n_in - 1];
    const fl_dtype d = a->weak ? b->dtype : a->dtype; /* one of the two is no weak number */
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) {
        fl_number u = naive_operand(a, i, d), v = naive_operand(b, i, d);
        if (c->op == FL_OP_remainder && !v.real && v.i == 0)
            return fl_fail("remainder: integer division by zero");
        if (c->op == FL_OP_bitwise_not && d == FL_B8) naive_set(y, i, naive_whole(!u.i));
        else naive_set(y, i, naive_apply(c->op, u, v));
    }
    return true;
}

NAIVE_FN(naive_where) {
    fl_tensor *y = c->out[0];
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++)
        naive_set(y, i, naive_operand(c->in[naive_get(c->in[0], i).i ? 1 : 2], i, y->dtype));
    return true;
}

/* ---- slots: reductions, indexing ---- */

/* The fold of all elements that w walks over, from element `from` of x; for argmax and argmin the
   position of the first extreme. NaN is the most extreme. */
static inline fl_number naive_fold(fl_op op, const fl_tensor *x, naive_walk w, int64_t from) {
    const bool sum = op == FL_OP_sum, product = op == FL_OP_prod;
    const bool most = op == FL_OP_amax || op == FL_OP_argmax;
    const fl_op step = sum ? FL_OP_add : product ? FL_OP_mul : most ? FL_OP_maximum : FL_OP_minimum;
    fl_number y = {fl_dtype_is_float(x->dtype), product, product};
    int64_t place = 0;
    for (int64_t i = 0; i < w.n; i++, naive_next(&w)) {
        const fl_number v = naive_get(x, from + w.at[0]), last = y;
        y = i || sum || product ? naive_apply(step, last, v) : v;
        if (y.real ? y.f != last.f && last.f == last.f : y.i != last.i) place = i;
    }
    return op == FL_OP_argmax || op == FL_OP_argmin ? naive_whole(place) : y;
}

NAIVE_FN(naive_reduce) {
    fl_tensor *y = c->out[0], *x = c->in[0];
    const fl_reduce_args *a = c->args;
    if (!fl_out_make(y)) return false;
    naive_walk kept = {.n = 1}, gone = {.n = 1};
    for (int d = 0; d < x->ndim; d++)
        naive_dim(a->axes >> d & 1 ? &gone : &kept, x->shape[d], x->stride[d], 0);
    for (int64_t i = 0; i < kept.n; i++, naive_next(&kept))
        naive_set(y, i, naive_fold(c->op, x, gone, kept.at[0]));
    return true;
}

/* Element i of index as an offset along axis of t; -1 after fl_fail. */
static inline int64_t naive_index(const fl_call *c, const fl_tensor *t, const fl_tensor *index,
                                  int64_t i) {
    int axis = ((const fl_axis_args *)c->args)->axis;
    int64_t at = ((const int64_t *)index->impl)[i];
    if (at >= 0 && at < t->shape[axis]) return at * t->stride[axis];
    fl_fail("%s: index %lld is out of range for axis %d of size %lld", fl_op_get_info(c->op)->name,
            (long long)at, axis, (long long)t->shape[axis]);
    return -1;
}

/* gather reads x at the indices; the scatters copy x and write or add src there. */
NAIVE_FN(naive_by_index) {
    fl_tensor *y = c->out[0], *x = c->in[0], *index = c->in[1];
    const bool gather = c->op == FL_OP_gather, add = c->op == FL_OP_scatter_add;
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; !gather && i < fl_numel(x); i++) naive_set(y, i, naive_get(x, i));
    naive_walk w = naive_over(index, x, ((const fl_axis_args *)c->args)->axis);
    for (int64_t i = 0, at; i < w.n; i++, naive_next(&w)) {
        if ((at = naive_index(c, x, index, i)) < 0) return false;
        at += w.at[1];
        fl_number v = gather ? naive_get(x, at) : naive_get(c->in[2], i);
        if (add) v = naive_apply(FL_OP_add, naive_get(y, at), v);
        naive_set(y, gather ? i : at, v);
    }
    return true;
}

/* ---- slots: order along one axis; element i's predecessor there is i - inner ---- */

NAIVE_FN(naive_scan) {
    fl_tensor *y = c->out[0], *x = c->in[0];
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const int64_t inner = x->stride[axis], n = x->shape[axis];
    const fl_op step = c->op == FL_OP_cumsum ? FL_OP_add : FL_OP_mul;
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) {
        const fl_number v = naive_get(x, i);
        naive_set(y, i, i / inner % n ? naive_apply(step, naive_get(y, i - inner), v) : v);
    }
    return true;
}

/* u comes before v; NaN is the largest. */
static inline bool naive_before(fl_number u, fl_number v) {
    if (!u.real) return u.i < v.i;
    return u.f == u.f && (v.f != v.f || u.f < v.f);
}

/* By insertion: an element goes back past all that must come after it; y may be shorter than x. */
NAIVE_FN(naive_sort) {
    fl_tensor *y = c->out[0], *index = c->out[1], *x = c->in[0];
    const fl_sort_args *a = c->args;
    const int64_t n = x->shape[a->axis], keep = y->shape[a->axis], inner = x->stride[a->axis];
    if (!fl_out_make(y) || !fl_out_make(index)) return false;
    for (int64_t i = 0; i < fl_numel(x); i++) {
        const fl_number v = naive_get(x, i);
        int64_t k = i / inner % n < keep ? i / inner % n : keep, *places = index->impl;
        int64_t at = (i / inner / n * keep + k) * inner + i % inner;
        for (; k > 0; k--, at -= inner) {
            const fl_number u = naive_get(y, at - inner);
            if (a->descending ? !naive_before(u, v) : !naive_before(v, u)) break;
            if (k == keep) continue;
            naive_set(y, at, u);
            places[at] = places[at - inner];
        }
        if (k == keep) continue;
        naive_set(y, at, v);
        places[at] = i / inner % n;
    }
    return true;
}

NAIVE_FN(naive_nonzero) {
    fl_tensor *x = c->in[0];
    int64_t *to = fl_out_make(c->out[0]) ? c->out[0]->impl : NULL;
    for (int64_t i = 0; to && i < fl_numel(x); i++)
        for (int d = 0; d < x->ndim && naive_get(x, i).i; d++)
            *to++ = i / x->stride[d] % x->shape[d];
    return to != NULL;
}

/* ---- slots: products ---- */

/* a [batch, m, k] b [batch, k, n] -> y [batch, m, n], row by row */
NAIVE_FN(naive_matmul) {
    fl_tensor *y = c->out[0], *a = c->in[0], *b = c->in[1];
    const int64_t m = y->shape[y->ndim - 2], n = y->shape[y->ndim - 1], k = a->shape[a->ndim - 1];
    const fl_number zero = {fl_dtype_is_float(y->dtype), 0, 0};
    fl_number *sum = malloc((size_t)n * sizeof *sum + 1);
    bool ok = (sum || fl_fail("naive: out of memory for a row")) && fl_out_make(y);
    for (int64_t row = 0; ok && row < (n ? fl_numel(y) / n : 0); row++) {
        for (int64_t j = 0; j < n; j++) sum[j] = zero;
        for (int64_t l = 0; l < k; l++) {
            const fl_number u = naive_get(a, row * k + l);
            const int64_t below = (row / m * k + l) * n;
            for (int64_t j = 0; j < n; j++)
                if (zero.real) sum[j].f += u.f * naive_get(b, below + j).f;
                else sum[j].i = flm_add_i64(sum[j].i, flm_mul_i64(u.i, naive_get(b, below + j).i));
        }
        for (int64_t j = 0; j < n; j++) naive_set(y, row * n + j, sum[j]);
    }
    free(sum);
    return ok;
}

FL_KERNEL_BEGIN
/* One channel of an image x [h, w], one kernel w [kh, kw], one plane y [oh, ow]: their product is
   added to whichever of the three the op computes. */
static inline void naive_plane(fl_op op, const fl_conv2d_args *a, const fl_tensor *const t[3],
                               double *y, double *x, double *w) {
    const int64_t *out = t[0]->shape + 2, *image = t[1]->shape + 2, *kernel = t[2]->shape + 2;
    for (int64_t i = 0; i < kernel[0] * kernel[1] * out[0]; i++) {
        const int64_t ky = i / out[0] / kernel[1], kx = i / out[0] % kernel[1], oy = i % out[0];
        const int64_t row = oy * a->stride[0] + ky * a->dilation[0] - a->pad_lo[0];
        int64_t column = kx * a->dilation[1] - a->pad_lo[1];
        if (row < 0 || row >= image[0]) continue;
        double *to = y + oy * out[1], *from = x + row * image[1], *weight = w + i / out[0];
        for (int64_t ox = 0; ox < out[1]; ox++, column += a->stride[1]) {
            if (column < 0 || column >= image[1]) continue;
            if (op == FL_OP_conv2d) to[ox] += from[column] * *weight;
            else if (op == FL_OP_conv2d_grad_input) from[column] += to[ox] * *weight;
            else *weight += from[column] * to[ox];
        }
    }
}
FL_KERNEL_END

/* t is y, x, w and p their elements; group by group, an output channel sees w's shape[1] inputs. */
static inline void naive_planes(fl_op op, const fl_conv2d_args *a, const fl_tensor *const t[3],
                                double *const p[3]) {
    const int64_t outputs = t[0]->shape[1], inputs = t[2]->shape[1];
    const int64_t per_group = outputs / a->groups;
    const int64_t y = t[0]->shape[2] * t[0]->shape[3], x = t[1]->shape[2] * t[1]->shape[3],
                  w = t[2]->shape[2] * t[2]->shape[3];
    for (int64_t n = 0; n < t[0]->shape[0]; n++)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++) {
                int64_t channel = n * t[1]->shape[1] + o / per_group * inputs + i;
                naive_plane(op, a, t, p[0] + (n * outputs + o) * y, p[1] + channel * x,
                            p[2] + (o * inputs + i) * w);
            }
}

/* x, w -> y;  dy, w -> dx;  x, dy -> dw */
NAIVE_FN(naive_conv2d) {
    fl_tensor *out = c->out[0];
    const bool forward = c->op == FL_OP_conv2d, input = c->op == FL_OP_conv2d_grad_input;
    const fl_tensor *const t[3] = {forward ? out : c->in[!input], input ? out : c->in[0],
                                   forward || input ? c->in[1] : out};
    double *p[3], *result = NULL;
    bool ok = fl_out_make(out);
    for (int k = 0; k < 3; k++) {
        p[k] = calloc((size_t)fl_numel(t[k]) + 1, sizeof *p[k]);
        if (!p[k]) ok = fl_fail("naive: out of memory for %zu", (size_t)fl_numel(t[k]));
        for (int64_t i = 0; ok && t[k] != out && i < fl_numel(t[k]); i++)
            p[k][i] = naive_get(t[k], i).f;
        if (t[k] == out) result = p[k];
    }
    if (ok) naive_planes(c->op, c->args, t, p);
    for (int64_t i = 0; ok && i < fl_numel(out); i++) naive_set(out, i, naive_real(result[i]));
    for (int k = 0; k < 3; k++) free(p[k]);
    return ok;
}

/* ---- the table ---- */

#define NAIVE_SLOT(op, cls, need, ...) NAIVE_##need([FL_OP_##op] = naive_elementwise, )
static inline const fl_backend *fl_backend_naive(void) {
    static const fl_backend table = {
        .name = "naive",
        .make = naive_make,
        .drop = naive_drop,
        .map = naive_map,
        .op = {FL_UNARY_OPS(NAIVE_SLOT) FL_BINARY_OPS(NAIVE_SLOT) /* and: */
               [FL_OP_copy] = naive_copy,
               [FL_OP_fill] = naive_fill,
               [FL_OP_iota] = naive_iota,
               [FL_OP_random] = naive_random,
               [FL_OP_where] = naive_where,
               [FL_OP_sum] = naive_reduce,
               [FL_OP_prod] = naive_reduce,
               [FL_OP_amax] = naive_reduce,
               [FL_OP_amin] = naive_reduce,
               [FL_OP_argmax] = naive_reduce,
               [FL_OP_argmin] = naive_reduce,
               [FL_OP_gather] = naive_by_index,
               [FL_OP_scatter_add] = naive_by_index,
               [FL_OP_scatter] = naive_by_index,
               [FL_OP_cumsum] = naive_scan,
               [FL_OP_cumprod] = naive_scan,
               [FL_OP_sort] = naive_sort,
               [FL_OP_nonzero] = naive_nonzero,
               [FL_OP_matmul] = naive_matmul,
               [FL_OP_conv2d] = naive_conv2d,
               [FL_OP_conv2d_grad_input] = naive_conv2d,
               [FL_OP_conv2d_grad_weight] = naive_conv2d},
    };
    return &table;
}

#endif
/* MIT licence: see LICENSE. */
