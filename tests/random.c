/* random.c - random programs of ops, against an interpreter

   usage: random [backend [count [seed]]]     20,000 programs from seed 1 on cpu, 2,500 elsewhere

   A program is a chain of 5 to 20 steps over a few tensors of any dtype and shape: views, writes
   through views, broadcasts, reductions, indexing, joins, casts, products, on values with NaN,
   infinities and -0. The interpreter keeps the elements of each storage in a host array, and for
   each tensor the places of its elements there: so it knows what a write through one view changes
   in all the others. A step is computed by plain loops from what the tensors hold, compared, and
   what fl gave is taken over, so that errors do not add up. Every eighth program runs on variables,
   and its gradient is compared with a difference quotient.

   A failing program is shortened by leaving out steps, and printed as a list of the rest. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#pragma GCC diagnostic ignored \
    "-Wunused-function" /* the reference loops are shared, the cases not */
#include "backends.h"
#include "conformance.h"
#include "conformance_elementwise.h"
#include "conformance_reduce.h"
#include "conformance_order.h"
#include <time.h>

enum { REGISTERS = 64, MOST_STEPS = 20, FEW = 300, MANY = 5000, FULL = 20000 };

/* A tensor and what the interpreter knows of it: element k is element at[k] of base. */
typedef struct reg {
    fl_tensor *t;
    array *base;
    int64_t *at;
} reg;

typedef struct program {
    uint64_t seed;
    int n_steps;
    uint64_t step[MOST_STEPS]; /* seeds; 0: left out */
    bool gradient;
} program;

static struct {
    reg r[REGISTERS];
    int n;
    fl_shape dims;  /* what shapes are made of, so that many fit together */
    int64_t most;   /* elements */
    bool told;      /* the steps are printed */
    char text[200]; /* of the step, to print */
} vm;

/* >>registers */

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    va_list args;
    size_t n = strlen(vm.text);
    va_start(args, format);
    vsnprintf(vm.text + n, sizeof vm.text - n, format, args);
    va_end(args);
}

static reg *add_reg(fl_tensor *t, array *base, int64_t *at) {
    if (vm.n == REGISTERS) return &vm.r[vm.n - 1];
    vm.r[vm.n] = (reg){t, base, at};
    return &vm.r[vm.n++];
}

/* A storage of its own, laid out as t is. */
static void add_new(fl_tensor *t, const array *a) {
    array *base = take(sizeof *base);
    int64_t *at = take((size_t)a->n * sizeof *at + 1), low = 0, high = 0, c[FL_MAX_DIMS] = {0};
    for (int d = 0; d < a->shape.ndim && a->n; d++) {
        int64_t reach = (a->shape.dim[d] - 1) * t->stride[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    *base = new_array(FL_SHAPE(high - low + 1), a->dtype);
    for (int64_t k = 0; k < a->n; k++) {
        coords_of(a->shape, k, c);
        at[k] = -low;
        for (int d = 0; d < a->shape.ndim; d++) at[k] += c[d] * t->stride[d];
        put_from(base, at[k], a, k);
    }
    add_reg(t, base, at);
}

static array values_of(const reg *r) {
    array a = new_array(fl_shape_of(r->t), r->base->dtype);
    for (int64_t k = 0; k < a.n; k++) put_from(&a, k, r->base, r->at[k]);
    return a;
}

/* Later results are likelier. */
static reg *pick(void) {
    int64_t from = vm.n > 5 && random_below(2) ? vm.n - 5 : 0;
    return &vm.r[from + random_below(vm.n - from)];
}

/* For the listing; a weak number by its value. */
static const char *name_of(const reg *r) {
    static char text[4][40];
    static int turn;
    char *s = text[turn = (turn + 1) % 4];
    if (!r->t->weak)
        snprintf(s, 40, "t%d", (int)(r - vm.r));
    else
        snprintf(s, 40, is_float(r->t->dtype) ? "num(%g)" : "int(%g)", r->t->f64);
    return s;
}

/* A number that every dtype holds, behind the registers. */
static reg *weak(bool small) {
    static const double reals[] = {0, 1, -1, 0.5, 2, -1.5, 3, -0.0, INFINITY, NAN};
    static reg w;
    static array base;
    static int64_t zero;
    bool real = random_below(2);
    w.t = real ? fl_num(reals[random_below(10)]) : fl_int(random_below(6) - (small ? 0 : 2));
    base = new_array(FL_SCALAR_SHAPE, real ? FL_F32 : FL_I64);
    if (real)
        put_float(&base, 0, w.t->f64);
    else
        put_int(&base, 0, w.t->i64);
    w.base = &base;
    w.at = &zero;
    return &w;
}

static bool broadcasts(fl_shape a, fl_shape b) {
    for (int d = 1; d <= a.ndim && d <= b.ndim; d++) {
        int64_t x = a.dim[a.ndim - d], y = b.dim[b.ndim - d];
        if (x != y && x != 1 && y != 1) return false;
    }
    return fl_shape_numel(broadcast_shape(a, b)) <= vm.most;
}

/* One that broadcasts with shape s, or a number, or else r itself. */
static reg *partner(reg *r, fl_shape s) {
    if (!r->t->weak && random_below(6) == 0) return weak(is_unsigned(r->t->dtype));
    for (int64_t k = 0, from = random_below(vm.n); k < vm.n; k++) {
        reg *o = &vm.r[(from + k) % vm.n];
        if (broadcasts(s, fl_shape_of(o->t))) return o;
    }
    return r;
}

/* >>promotion, by PyTorch's lattice */

static int category(fl_dtype d) {
    return d == FL_DTYPE_NONE ? -1 : d == FL_B8 ? 0 : is_float(d) ? 2 : 1;
}

static fl_dtype wider(fl_dtype a, fl_dtype b) {
    static const fl_dtype order[] = {FL_B8,  FL_U8,  FL_I8,   FL_I16, FL_I32,
                                     FL_I64, FL_F16, FL_BF16, FL_F32, FL_F64};
    bool halves = (a == FL_F16 && b == FL_BF16) || (a == FL_BF16 && b == FL_F16);
    bool bytes = (a == FL_U8 && b == FL_I8) || (a == FL_I8 && b == FL_U8);
    if (halves) return FL_F32;
    if (bytes) return FL_I16;
    for (int i = 9; i >= 0; i--)
        if (order[i] == a || order[i] == b) return order[i];
    return a;
}

static fl_dtype promotes_to(int n, reg *const *r) {
    fl_dtype rank[3] = {FL_DTYPE_NONE, FL_DTYPE_NONE, FL_DTYPE_NONE}, d = FL_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        fl_dtype *of = &rank[r[i]->t->weak ? 2 : r[i]->t->ndim == 0];
        *of = *of == FL_DTYPE_NONE ? r[i]->base->dtype : wider(*of, r[i]->base->dtype);
    }
    for (int i = 0; i < 3; i++)
        if (category(rank[i]) > category(d)) d = rank[i];
    return d;
}

/* >>results */

/* The result of a step with storage of its own: want was compared. */
static bool take_over(fl_tensor *t, bool agreed) {
    array got;
    if (!agreed || !read_tensor(t, &got)) return false;
    if (vm.told) tell(" -> t%d", vm.n);
    add_new(t, &got);
    return true;
}

static bool gives_exactly(fl_tensor *t, const array *want) {
    return take_over(t, agrees(t, want, EXACT, NULL, false));
}

/* Sums and products: where the scale is infinite, partial results may have overflowed. */
static bool gives_about(fl_tensor *t, array *want, double terms, const double *scale) {
    array got;
    tolerance tol = {1, 4 + sqrt(terms), 1};
    if (!t || t->dtype != want->dtype || !same_shape(fl_shape_of(t), want->shape))
        return agrees(t, want, tol, scale, false); /* which says it */
    if (!read_tensor(t, &got)) return say("cannot be read");
    for (int64_t k = 0; k < want->n; k++)
        if (is_float(want->dtype) && isinf(scale[k])) want->f[k] = got.f[k];
    return take_over(t, agrees(t, want, tol, scale, false));
}

/* INFINITY where numbers of that size overflow, or products get lost below. */
static double bounded(double scale, fl_dtype d) {
    double most = d == FL_F64 ? DBL_MAX : FLT_MAX;
    return scale < most / 4 ? scale : (double)INFINITY;
}

/* A view of r: the places follow. One that the backend made by copying is on its own. */
static bool gives_view(fl_tensor *t, reg *r, const array *want, int64_t *at) {
    if (!agrees(t, want, EXACT, NULL, false)) return false;
    if (t->copied) return take_over(t, true);
    if (t->buffer && t->buffer != r->t->buffer) return say("not a view");
    if (vm.told) tell(" -> t%d", vm.n);
    add_reg(t, r->base, at);
    return true;
}

static bool all_hold(void) {
    for (int i = 0; i < vm.n; i++) {
        array want = values_of(&vm.r[i]);
        if (!agrees(vm.r[i].t, &want, EXACT, NULL, false)) return say("which is t%d", i);
    }
    return true;
}

/* >>views */

/* Room for the places and values of a view of r with that shape. */
typedef struct view {
    array a;
    int64_t *at;
} view;

static view new_view(const reg *r, fl_shape s) {
    view v = {new_array(s, r->base->dtype), NULL};
    v.at = take((size_t)v.a.n * sizeof *v.at + 1);
    return v;
}

static void set_view(view *v, int64_t k, const reg *r, int64_t from) {
    v->at[k] = r->at[from];
    put_from(&v->a, k, r->base, v->at[k]);
}

/* The elements of r whose coordinate d is start[d] + step[d] times that of axis to[d]; -1:
   fixed. */
typedef struct affine {
    int to[FL_MAX_DIMS];
    int64_t start[FL_MAX_DIMS], step[FL_MAX_DIMS];
} affine;

static affine same_places(void) {
    affine a;
    for (int d = 0; d < FL_MAX_DIMS; d++) a.to[d] = d, a.start[d] = 0, a.step[d] = 1;
    return a;
}

static bool gives_affine(fl_tensor *t, reg *r, fl_shape s, affine a) {
    view v = new_view(r, s);
    fl_shape from = fl_shape_of(r->t);
    int64_t c[FL_MAX_DIMS] = {0}, at[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < v.a.n; k++) {
        coords_of(s, k, c);
        for (int d = 0; d < from.ndim; d++)
            at[d] = a.start[d] + (a.to[d] < 0 ? 0 : c[a.to[d]] * a.step[d]);
        set_view(&v, k, r, index_of(from, at));
    }
    return gives_view(t, r, &v.a, v.at);
}

static bool do_permute(void) {
    reg *r = pick();
    int n = r->t->ndim, axes[FL_MAX_DIMS] = {0};
    fl_shape s = {n, {0}};
    affine a = same_places();
    for (int i = 0; i < n; i++) {
        int64_t j = random_below(i + 1);
        axes[i] = axes[j];
        axes[j] = i;
    }
    tell("permute(%s", name_of(r));
    for (int i = 0; i < n; i++) {
        s.dim[i] = r->t->shape[axes[i]];
        a.to[axes[i]] = i;
        tell(", %d", axes[i]);
    }
    tell(")");
    return gives_affine(fl_permute(r->t, n, axes), r, s, a);
}

static bool do_transpose(void) {
    reg *r = pick();
    int n = r->t->ndim;
    if (!n) return true;
    int a = (int)random_below(n), b = (int)random_below(n);
    fl_shape s = fl_shape_of(r->t);
    s.dim[a] = r->t->shape[b];
    s.dim[b] = r->t->shape[a];
    affine p = same_places();
    p.to[a] = b;
    p.to[b] = a;
    tell("transpose(%s, %d, %d)", name_of(r), a, b);
    return gives_affine(fl_transpose(r->t, a - n, b), r, s, p);
}

static bool do_slice(void) {
    reg *r = pick();
    if (!r->t->ndim) return true;
    int axis = (int)random_below(r->t->ndim);
    int64_t n = r->t->shape[axis], step = random_below(7) - 3, start = 0, count = 0;
    if (!step) step = 1;
    fl_shape s = fl_shape_of(r->t);
    affine a = same_places();
    if (n) start = random_below(n);
    int64_t room = !n ? 0 : step > 0 ? (n - 1 - start) / step + 1 : start / -step + 1;
    if (room) count = random_below(4) ? room : random_below(room + 1);
    int64_t stop = count == room ? (step > 0 ? n : FL_SLICE_END) : start + count * step;
    s.dim[axis] = count;
    a.start[axis] = start;
    a.step[axis] = step;
    if (n && start && random_below(2)) start -= n;
    tell("slice(%s, %d, %lld, %lld, %lld)", name_of(r), axis, (long long)start, (long long)stop,
         (long long)step);
    return gives_affine(fl_slice(r->t, axis, start, stop, step), r, s, a);
}

static bool do_select(void) {
    reg *r = pick();
    if (!r->t->ndim) return true;
    int axis = (int)random_below(r->t->ndim);
    fl_shape s = fl_shape_of(r->t);
    if (!s.dim[axis]) return true;
    affine a = same_places();
    a.start[axis] = random_below(s.dim[axis]);
    a.to[axis] = -1;
    for (int d = axis + 1; d < s.ndim; d++) a.to[d] = d - 1, s.dim[d - 1] = s.dim[d];
    s.dim[--s.ndim] = 0;
    tell("select(%s, %d, %lld)", name_of(r), axis, (long long)a.start[axis]);
    return gives_affine(fl_select(r->t, axis, a.start[axis]), r, s, a);
}

static bool do_expand(void) {
    reg *r = pick();
    fl_shape s = fl_shape_of(r->t);
    affine a = same_places();
    int more = s.ndim < 5 ? (int)random_below(2) : 0;
    for (int d = s.ndim - 1; d >= 0; d--) {
        a.to[d] = d + more;
        s.dim[d + more] = s.dim[d] == 1 && random_below(2) ? random_below(4) : s.dim[d];
        if (s.dim[d + more] != r->t->shape[d]) a.step[d] = 0;
    }
    s.ndim += more;
    if (more) s.dim[0] = random_below(4);
    if (fl_shape_numel(s) > vm.most) return true;
    char text[80];
    tell("expand(%s, %s)", name_of(r), fl_shape_text(s, text, sizeof text));
    return gives_affine(fl_expand(r->t, s), r, s, a);
}

static bool do_squeeze(void) {
    reg *r = pick();
    fl_shape s = fl_shape_of(r->t);
    int axis = (int)random_below(s.ndim + 1);
    affine a = same_places();
    if (axis < s.ndim && s.dim[axis] == 1) {
        a.to[axis] = -1;
        for (int d = axis + 1; d < s.ndim; d++) a.to[d] = d - 1, s.dim[d - 1] = s.dim[d];
        s.dim[--s.ndim] = 0;
        tell("squeeze(%s, %d)", name_of(r), axis);
        return gives_affine(fl_squeeze(r->t, axis), r, s, a);
    }
    if (s.ndim > 5) return true;
    for (int d = s.ndim - 1; d >= axis; d--) a.to[d] = d + 1, s.dim[d + 1] = s.dim[d];
    s.dim[axis] = 1;
    s.ndim++;
    tell("unsqueeze(%s, %d)", name_of(r), axis);
    return gives_affine(fl_unsqueeze(r->t, axis), r, s, a);
}

/* Whether strides can say where the elements are: a reshape is a view then, else a copy. */
static bool strided(const view *v) {
    fl_shape s = v->a.shape;
    int64_t step[FL_MAX_DIMS] = {0}, c[FL_MAX_DIMS] = {0}, unit = 1;
    for (int d = s.ndim - 1; d >= 0; d--) {
        if (s.dim[d] > 1) step[d] = v->at[unit] - v->at[0];
        unit *= s.dim[d];
    }
    for (int64_t k = 0; k < v->a.n; k++) {
        int64_t at = v->at[0];
        coords_of(s, k, c);
        for (int d = 0; d < s.ndim; d++) at += c[d] * step[d];
        if (at != v->at[k]) return false;
    }
    return true;
}

static bool gives_reshaped(fl_tensor *t, reg *r, fl_shape s) {
    view v = new_view(r, s);
    for (int64_t k = 0; k < v.a.n; k++) set_view(&v, k, r, k);
    return !v.a.n || strided(&v) ? gives_view(t, r, &v.a, v.at) : gives_exactly(t, &v.a);
}

/* The same number of elements, in dims cut and joined at random. */
static bool do_reshape(void) {
    reg *r = pick();
    fl_shape s = {0, {0}};
    int64_t left = fl_numel(r->t);
    while (s.ndim < 4 && left > 1) {
        int64_t d = 1 + random_below(6);
        if (random_below(4) == 0) d = left;
        if (left % d == 0) s.dim[s.ndim++] = d, left /= d;
    }
    if (left != 1 || !s.ndim) s.dim[s.ndim++] = left;
    fl_shape given = s;
    if (left && fl_numel(r->t) && random_below(3) == 0) given.dim[random_below(s.ndim)] = -1;
    char text[80];
    tell("reshape(%s, %s)", name_of(r), fl_shape_text(given, text, sizeof text));
    return gives_reshaped(fl_reshape(r->t, given), r, s);
}

static bool do_flatten(void) {
    reg *r = pick();
    fl_shape s = fl_shape_of(r->t), to = {0, {0}};
    if (!s.ndim) return true;
    int last = (int)random_below(s.ndim), first = (int)random_below(last + 1);
    for (int d = 0; d < s.ndim; d++)
        if (d <= first || d > last)
            to.dim[to.ndim++] = s.dim[d];
        else
            to.dim[to.ndim - 1] *= s.dim[d];
    tell("flatten(%s, %d, %d)", name_of(r), first, last);
    return gives_reshaped(fl_flatten(r->t, first, last), r, to);
}

/* >>copies and writes */

static bool do_copy(void) {
    reg *r = pick();
    array want = values_of(r);
    bool clone = random_below(2);
    tell("%s(%s)", clone ? "clone" : "contiguous", name_of(r));
    fl_tensor *t = clone ? fl_clone(r->t) : fl_contiguous(r->t);
    if (t != r->t) return gives_exactly(t, &want);
    return !clone ? gives_view(t, r, &want, r->at) : say("clone gave its operand");
}

static bool do_cast(void) {
    static const fl_dtype to[] = {FL_B8,  FL_U8,  FL_I8,   FL_I16, FL_I32,
                                  FL_I64, FL_F16, FL_BF16, FL_F32, FL_F64};
    reg *r = pick();
    fl_dtype d = to[random_below(10)];
    array from = values_of(r), want = cast_array(&from, d);
    tell("cast(%s, %s)", name_of(r), fl_dtype_name(d));
    fl_tensor *t = fl_cast(r->t, d);
    return t == r->t ? gives_view(t, r, &want, r->at) : gives_exactly(t, &want);
}

/* No element twice, and not a copy that stands for a view. */
static bool writable(const reg *r) {
    if (r->t->copied) return false;
    char *seen = take((size_t)r->base->n + 1);
    for (int64_t k = 0; k < fl_numel(r->t); k++)
        if (seen[r->at[k]]++) return false;
    return true;
}

static void write_all(reg *r, const array *a) {
    for (int64_t k = 0; k < a->n; k++) put_from(r->base, r->at[k], a, k);
}

static bool do_assign(void) {
    reg *dst = pick(), *src = pick();
    fl_shape s = fl_shape_of(dst->t);
    for (int i = 0; i < 8; i++) {
        fl_shape from = fl_shape_of(src->t);
        if (broadcasts(s, from) && same_shape(broadcast_shape(s, from), s)) break;
        src = i < 6 ? pick() : weak(is_unsigned(dst->t->dtype));
    }
    array from = values_of(src);
    tell("assign(%s, %s)", name_of(dst), name_of(src));
    if (!writable(dst)) return was_refused(fl_assign(dst->t, src->t));
    array wide = expand_array(&from, s), want = cast_array(&wide, dst->t->dtype);
    fl_tensor *t = fl_assign(dst->t, src->t);
    if (!want.n && !t) return was_refused(t); /* a broadcast, though of no elements */
    if (t != dst->t) return say("not the tensor written");
    write_all(dst, &want);
    return all_hold();
}

static bool do_set_host(void) {
    reg *r = pick();
    array a = random_array(fl_shape_of(r->t), r->t->dtype, random_below(2) ? WILD : TAME);
    size_t size = fl_dtype_size(a.dtype);
    char *p = take((size_t)a.n * size + 1);
    for (int64_t k = 0; k < a.n; k++) store(p + (size_t)k * size, &a, k);
    tell("set_host(%s)", name_of(r));
    bool ok = fl_set_host(r->t, p, (size_t)a.n * size);
    if (!writable(r) || (!ok && !a.n)) return was_refused(ok ? r->t : NULL);
    write_all(r, &a);
    return ok ? all_hold() : say("not written");
}

/* >>element-wise */

static bool do_unary(void) {
    reg *r = pick();
    int i = (int)random_below(UNARY_FNS);
    const unary_ref *f = &unary_refs[i];
    array x = values_of(r);
    tell("%s(%s)", f->op, name_of(r));
    fl_tensor *t = unary_fns[i].run(r->t);
    if (!takes(dtypes_of(f->cls), x.dtype)) return was_refused(t);
    return take_over(t, unary_agrees(f, t, &x));
}

static bool has_zero(const array *a) {
    for (int64_t k = 0; k < a->n; k++)
        if (a->i[k] == 0) return true;
    return false;
}

static bool do_binary(void) {
    int i = (int)random_below(BINARY_FNS);
    const binary_ref *f = &binary_refs[i];
    reg *a = pick(), *b = partner(a, fl_shape_of(a->t)), *both[] = {a, b};
    if (!broadcasts(fl_shape_of(a->t), fl_shape_of(b->t))) return true;
    if (random_below(2)) both[0] = b, both[1] = a;
    fl_dtype d = promotes_to(2, both);
    tell("%s(%s, %s)", f->op, name_of(both[0]), name_of(both[1]));
    fl_tensor *t = binary_fns[i].run(both[0]->t, both[1]->t);
    if (!takes(dtypes_of(f->cls), d)) return was_refused(t);
    fl_dtype c = computes_in(f->cls, d);
    array x = values_of(both[0]), y = values_of(both[1]);
    x = cast_array(&x, c), y = cast_array(&y, c);
    bool divides = f->i == i_remainder || f->i == i_fmod || f->i == i_floor_divide ||
                   f->i == i_trunc_divide;
    if (divides && !is_float(c) && has_zero(&y) &&
        fl_shape_numel(broadcast_shape(x.shape, y.shape)))
        return was_refused(t);
    return take_over(t, binary_agrees(f, t, &x, &y));
}

/* A condition: a b8 register, or x < 0 of one. */
static reg *condition(fl_shape s) {
    for (int64_t k = 0, from = random_below(vm.n); k < vm.n; k++) {
        reg *o = &vm.r[(from + k) % vm.n];
        if (o->t->dtype == FL_B8 && broadcasts(s, fl_shape_of(o->t))) return o;
    }
    return NULL;
}

static bool do_where(void) {
    reg *a = pick(), *b = partner(a, fl_shape_of(a->t)), *both[] = {a, b};
    fl_shape s = broadcast_shape(fl_shape_of(a->t), fl_shape_of(b->t));
    reg *c = condition(s);
    if (!c) return true;
    if (random_below(2)) both[0] = b, both[1] = a;
    s = broadcast_shape(s, fl_shape_of(c->t));
    fl_dtype d = promotes_to(2, both);
    array which = values_of(c), x = values_of(both[0]), y = values_of(both[1]);
    which = expand_array(&which, s);
    x = cast_array(&x, d), x = expand_array(&x, s);
    y = cast_array(&y, d), y = expand_array(&y, s);
    array want = new_array(s, d);
    for (int64_t k = 0; k < want.n; k++) put_from(&want, k, which.i[k] ? &x : &y, k);
    tell("where(%s, %s, %s)", name_of(c), name_of(both[0]), name_of(both[1]));
    return gives_exactly(fl_where(c->t, both[0]->t, both[1]->t), &want);
}

/* >>reductions */

static fl_axes random_axes(fl_shape s, unsigned *mask) {
    fl_axes a = {0, {0}, random_below(2)};
    *mask = 0;
    for (int d = 0; d < s.ndim; d++)
        if (random_below(2)) {
            a.axis[a.n++] = random_below(2) ? d : d - s.ndim;
            *mask |= 1u << d;
        }
    if (!a.n) *mask = (1u << s.ndim) - 1;
    return a;
}

/* Sums and products of the elements that went before; low and high: products of the small and the
   large ones, for what may get lost on the way. */
static void add_term(array *y, double *scale, int64_t o, const array *x, int64_t k) {
    if (!is_float(y->dtype))
        y->i[o] = i_add(y->i[o], x->i[k]);
    else
        y->f[o] += x->f[k];
    if (isfinite(x->f[k])) scale[o] += fabs(x->f[k]);
}

static void multiply_term(array *y, double *size, double *small, int64_t o, const array *x,
                          int64_t k) {
    if (!is_float(y->dtype))
        y->i[o] = i_mul(y->i[o], x->i[k]);
    else
        y->f[o] *= x->f[k];
    double m = fabs(x->f[k]);
    if (isfinite(m) && m > 1) size[o] *= m;
    if (m > 0 && m < 1) small[o] *= m;
}

static double *filled(int64_t n, double value) {
    double *p = take((size_t)n * sizeof *p + 1);
    for (int64_t k = 0; k < n; k++) p[k] = value;
    return p;
}

/* Of a product: where parts of it leave the range, anything goes; else n roundings of its size. */
static double product_scale(double value, double size, double small, fl_dtype d) {
    double least = d == FL_F64 ? DBL_MIN : (double)FLT_MIN;
    bool lost = isinf(bounded(size, d)) || small < least;
    return lost ? (double)INFINITY : isfinite(value) ? fabs(value) : 0;
}

static bool do_sum(void) {
    reg *r = pick();
    array x = values_of(r);
    unsigned mask;
    fl_axes axes = random_axes(x.shape, &mask);
    bool prod = random_below(3) == 0;
    fl_dtype d = is_float(x.dtype) ? x.dtype : FL_I64;
    array y = new_array(reduced_shape(x.shape, mask, axes.keepdim), d);
    double *scale = filled(y.n, prod), *small = filled(y.n, 1);
    for (int64_t o = 0; o < y.n; o++) y.f[o] = prod, y.i[o] = prod;
    for (int64_t k = 0; k < x.n; k++) {
        int64_t o = result_of(x.shape, mask, k);
        if (prod)
            multiply_term(&y, scale, small, o, &x, k);
        else
            add_term(&y, scale, o, &x, k);
    }
    for (int64_t o = 0; o < y.n; o++)
        scale[o] = prod ? product_scale(y.f[o], scale[o], small[o], d) : bounded(scale[o], d);
    double terms = y.n ? (double)x.n / (double)y.n : 0;
    tell("%s(%s, axes %x%s)", prod ? "prod" : "sum", name_of(r), mask, axes.keepdim ? " keep" : "");
    return gives_about(prod ? fl_prod(r->t, axes) : fl_sum(r->t, axes), &y,
                       prod ? terms * terms : terms, scale);
}

static bool do_mean(void) {
    reg *r = pick();
    array x = values_of(r);
    unsigned mask;
    fl_axes axes = random_axes(x.shape, &mask);
    tell("mean(%s, axes %x%s)", name_of(r), mask, axes.keepdim ? " keep" : "");
    fl_tensor *t = fl_mean(r->t, axes);
    if (!is_float(x.dtype)) return was_refused(t);
    array y = new_array(reduced_shape(x.shape, mask, axes.keepdim), x.dtype);
    double *scale = filled(y.n, 0), n = y.n ? (double)x.n / (double)y.n : 0;
    for (int64_t k = 0; k < x.n; k++) add_term(&y, scale, result_of(x.shape, mask, k), &x, k);
    for (int64_t o = 0; o < y.n; o++) {
        y.f[o] /= n;
        scale[o] = n == 0 ? 0 : bounded(scale[o], x.dtype) / n;
    }
    return gives_about(t, &y, n, scale);
}

/* Whether v at index k takes the place of the extreme so far: NaN does, and keeps it. */
static bool beats(const array *x, int64_t k, int64_t best, bool max) {
    if (!is_float(x->dtype)) return max ? x->i[k] > x->i[best] : x->i[k] < x->i[best];
    if (isnan(x->f[best])) return false;
    return isnan(x->f[k]) || (max ? x->f[k] > x->f[best] : x->f[k] < x->f[best]);
}

/* The index in x of the extreme of each place. */
static int64_t *extremes(const array *x, unsigned mask, int64_t n, bool max) {
    int64_t *best = take((size_t)n * sizeof *best + 1);
    for (int64_t o = 0; o < n; o++) best[o] = -1;
    for (int64_t k = 0; k < x->n; k++) {
        int64_t o = result_of(x->shape, mask, k);
        if (best[o] < 0 || beats(x, k, best[o], max)) best[o] = k;
    }
    return best;
}

static bool do_extreme(void) {
    reg *r = pick();
    array x = values_of(r);
    unsigned mask;
    fl_axes axes = random_axes(x.shape, &mask);
    bool max = random_below(2);
    if (!x.n) return true;
    array y = new_array(reduced_shape(x.shape, mask, axes.keepdim), x.dtype);
    int64_t *best = extremes(&x, mask, y.n, max);
    for (int64_t o = 0; o < y.n; o++) put_from(&y, o, &x, best[o]);
    tell("%s(%s, axes %x)", max ? "amax" : "amin", name_of(r), mask);
    return gives_exactly(max ? fl_amax(r->t, axes) : fl_amin(r->t, axes), &y);
}

static bool do_arg(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.n || !x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    bool max = random_below(2), keep = random_below(2);
    array y = new_array(reduced_shape(x.shape, 1u << axis, keep), FL_I64);
    int64_t *best = extremes(&x, 1u << axis, y.n, max), c[FL_MAX_DIMS] = {0};
    for (int64_t o = 0; o < y.n; o++) {
        coords_of(x.shape, best[o], c);
        put_int(&y, o, c[axis]);
    }
    tell("%s(%s, %d)", max ? "argmax" : "argmin", name_of(r), axis);
    return gives_exactly(max ? fl_argmax(r->t, axis, keep) : fl_argmin(r->t, axis, keep), &y);
}

static bool do_all(void) {
    reg *r = pick();
    array x = values_of(r);
    unsigned mask;
    fl_axes axes = random_axes(x.shape, &mask);
    bool any = random_below(2);
    array y = new_array(reduced_shape(x.shape, mask, axes.keepdim), FL_B8);
    for (int64_t o = 0; o < y.n; o++) put_int(&y, o, !any);
    for (int64_t k = 0; k < x.n; k++) {
        bool truth = is_float(x.dtype) ? x.f[k] != 0 : x.i[k] != 0;
        if (truth == any) put_int(&y, result_of(x.shape, mask, k), any);
    }
    tell("%s(%s, axes %x)", any ? "any" : "all", name_of(r), mask);
    return gives_exactly(any ? fl_any(r->t, axes) : fl_all(r->t, axes), &y);
}

static bool do_cumulative(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    bool prod = random_below(3) == 0;
    int64_t inner = 1;
    for (int d = axis + 1; d < x.shape.ndim; d++) inner *= x.shape.dim[d];
    fl_dtype d = is_float(x.dtype) ? x.dtype : FL_I64;
    array y = new_array(x.shape, d);
    double *scale = filled(y.n, 0), *small = filled(y.n, 1), *about = filled(y.n, 0);
    for (int64_t k = 0; k < x.n; k++) {
        bool first = k / inner % x.shape.dim[axis] == 0;
        int64_t last = k - inner;
        y.f[k] = first ? prod : y.f[last];
        y.i[k] = first ? prod : y.i[last];
        scale[k] = first ? prod : scale[last];
        small[k] = first ? 1 : small[last];
        if (prod)
            multiply_term(&y, scale, small, k, &x, k);
        else
            add_term(&y, scale, k, &x, k);
        about[k] = prod ? product_scale(y.f[k], scale[k], small[k], d) : bounded(scale[k], d);
    }
    double terms = (double)x.shape.dim[axis];
    tell("%s(%s, %d)", prod ? "cumprod" : "cumsum", name_of(r), axis);
    return gives_about(prod ? fl_cumprod(r->t, axis) : fl_cumsum(r->t, axis), &y,
                       prod ? terms * terms : terms, about);
}

/* >>order and index */

static bool do_sort(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    int64_t n = x.shape.dim[axis], count = random_below(3) ? n : random_below(n + 1);
    bool down = random_below(2);
    fl_shape to = x.shape;
    to.dim[axis] = count;
    array y = new_array(to, x.dtype), places = new_array(to, FL_I64);
    if (y.n) sorted(&x, axis, down, &y, &places);
    fl_tensor *index = NULL, *t;
    tell("%s(%s, %d%s)", count < n ? "topk" : "sort", name_of(r), axis, down ? ", down" : "");
    t = count < n ? fl_topk(r->t, count, axis, !down, &index) : fl_sort(r->t, axis, down, &index);
    return gives_exactly(t, &y) && gives_exactly(index, &places);
}

static bool do_nonzero(void) {
    reg *r = pick();
    array x = values_of(r);
    int64_t n = 0, c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < x.n; k++) n += is_float(x.dtype) ? x.f[k] != 0 : x.i[k] != 0;
    array y = new_array(FL_SHAPE(n, x.shape.ndim), FL_I64);
    for (int64_t k = 0, row = 0; k < x.n; k++) {
        if (is_float(x.dtype) ? x.f[k] == 0 : x.i[k] == 0) continue;
        coords_of(x.shape, k, c);
        for (int d = 0; d < x.shape.ndim; d++) put_int(&y, row * x.shape.ndim + d, c[d]);
        row++;
    }
    tell("nonzero(%s)", name_of(r));
    return gives_exactly(fl_nonzero(r->t), &y);
}

/* An index into axis of x, in any layout; its other dims at most x's. */
static operand index_for(const array *x, int axis) {
    fl_shape s = x->shape;
    for (int d = 0; d < s.ndim; d++)
        s.dim[d] = d == axis ? 1 + random_below(5) : s.dim[d] ? s.dim[d] - random_below(2) : 0;
    operand o = {new_array(s, FL_I64), NULL};
    for (int64_t k = 0; k < o.a.n; k++) put_int(&o.a, k, random_below(x->shape.dim[axis]));
    layout l = (layout)random_below(CHANNELS_LAST + 1);
    o.t = lay_out(&o.a, layout_fits(l, s) ? l : DENSE);
    return o;
}

/* The element of x that element k of the index names. */
static int64_t named_by(const array *x, const array *index, int axis, int64_t k) {
    int64_t c[FL_MAX_DIMS] = {0}, at = 0;
    coords_of(index->shape, k, c);
    c[axis] = index->i[k];
    for (int d = 0; d < x->shape.ndim; d++) at = at * x->shape.dim[d] + c[d];
    return at;
}

static bool do_gather(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.n || !x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    operand index = index_for(&x, axis);
    array y = new_array(index.a.shape, x.dtype);
    for (int64_t k = 0; k < y.n; k++) put_from(&y, k, &x, named_by(&x, &index.a, axis, k));
    tell("gather(%s, %d, ...)", name_of(r), axis);
    return gives_exactly(fl_gather(r->t, axis, index.t), &y);
}

static bool do_index_select(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.n || !x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    array index = new_array(FL_SHAPE(random_below(6)), FL_I64);
    fl_shape s = x.shape;
    s.dim[axis] = index.n;
    if (fl_shape_numel(s) > vm.most) return true;
    for (int64_t k = 0; k < index.n; k++) put_int(&index, k, random_below(x.shape.dim[axis]));
    bool outside = index.n && random_below(20) == 0;
    if (outside) put_int(&index, random_below(index.n), random_below(2) ? -1 : x.shape.dim[axis]);
    tell("index_select(%s, %d, %lld rows%s)", name_of(r), axis, (long long)index.n,
         outside ? ", one outside" : "");
    fl_tensor *t = fl_index_select(r->t, axis, dense_tensor(&index));
    if (outside) return was_refused(t);
    array y = new_array(s, x.dtype);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < y.n; k++) {
        coords_of(s, k, c);
        c[axis] = index.i[c[axis]];
        put_from(&y, k, &x, index_of(x.shape, c));
    }
    return gives_exactly(t, &y);
}

static bool do_scatter(void) {
    reg *r = pick();
    array x = values_of(r);
    if (!x.n || !x.shape.ndim) return true;
    int axis = (int)random_below(x.shape.ndim);
    operand index = index_for(&x, axis);
    array src = random_array(index.a.shape, x.dtype, random_below(2) ? WILD : TAME);
    bool adds = random_below(2);
    array y = new_array(x.shape, x.dtype);
    double *scale = filled(x.n, 0);
    for (int64_t k = 0; k < x.n; k++) {
        put_from(&y, k, &x, k);
        if (isfinite(x.f[k])) scale[k] = fabs(x.f[k]);
    }
    for (int64_t k = 0; k < src.n; k++) {
        int64_t o = named_by(&x, &index.a, axis, k);
        if (adds)
            add_term(&y, scale, o, &src, k);
        else
            put_from(&y, o, &src, k);
    }
    for (int64_t k = 0; k < y.n; k++) {
        if (!is_float(y.dtype)) put_int(&y, k, y.i[k]); /* wraps once */
        scale[k] = bounded(scale[k], y.dtype);
    }
    tell("%s(%s, %d, ...)", adds ? "scatter_add" : "scatter", name_of(r), axis);
    fl_tensor *s = dense_tensor(&src);
    if (!adds) return gives_exactly(fl_scatter(r->t, axis, index.t, s), &y);
    fl_tensor *t = fl_scatter_add(r->t, axis, index.t, s);
    return x.dtype == FL_B8 ? was_refused(t) : gives_about(t, &y, (double)src.n, scale);
}

/* >>joins and products */

static bool joins(const reg *a, const reg *b, int axis) {
    if (a->t->ndim != b->t->ndim) return false;
    for (int d = 0; d < a->t->ndim; d++)
        if (d != axis && a->t->shape[d] != b->t->shape[d]) return false;
    return true;
}

/* Element k of the joined shape s comes from part *p, at the index that is returned. */
static int64_t joined_from(fl_shape s, int axis, bool stacked, const array *parts, int64_t k,
                           int *p) {
    int64_t c[FL_MAX_DIMS] = {0}, at = 0;
    coords_of(s, k, c);
    *p = stacked ? (int)c[axis] : 0;
    if (!stacked)
        while (c[axis] >= parts[*p].shape.dim[axis]) c[axis] -= parts[(*p)++].shape.dim[axis];
    for (int d = 0, e = 0; d < s.ndim; d++)
        if (!stacked || d != axis) at = at * parts[*p].shape.dim[e++] + c[d];
    return at;
}

static bool do_join(void) {
    reg *r[4] = {pick()};
    fl_tensor *t[4] = {r[0]->t};
    bool stacked = random_below(2);
    int n = 1, most = 1 + (int)random_below(4), axis = r[0]->t->ndim;
    if ((!stacked && !axis) || axis > 5) return true;
    axis = (int)random_below(axis + stacked);
    for (int k = 0; k < 20 && n < most; k++) {
        reg *o = pick();
        if (joins(r[0], o, stacked ? -1 : axis)) r[n] = o, t[n++] = o->t;
    }
    fl_dtype d = promotes_to(n, r);
    array parts[4];
    fl_shape s = fl_shape_of(t[0]);
    for (int i = 0; i < n; i++) {
        array a = values_of(r[i]);
        parts[i] = cast_array(&a, d);
        if (i && !stacked) s.dim[axis] += t[i]->shape[axis];
    }
    if (stacked) {
        for (int e = s.ndim++; e > axis; e--) s.dim[e] = s.dim[e - 1];
        s.dim[axis] = n;
    }
    if (fl_shape_numel(s) > vm.most) return true;
    array y = new_array(s, d);
    for (int64_t k = 0; k < y.n; k++) {
        int p;
        int64_t from = joined_from(s, axis, stacked, parts, k, &p);
        put_from(&y, k, &parts[p], from);
    }
    tell("%s(", stacked ? "stack" : "concat");
    for (int i = 0; i < n; i++) tell("%s, ", name_of(r[i]));
    tell("axis %d)", axis);
    return gives_exactly(stacked ? fl_stack(t, n, axis) : fl_concat(t, n, axis), &y);
}

/* a [.., m, k], b [.., k, n] -> y; batch dims broadcast. */
static void multiply(const array *a, const array *b, array *y, double *scale) {
    fl_shape sa = a->shape, sb = b->shape, s = y->shape;
    int64_t inner = sa.dim[sa.ndim - 1];
    int64_t c[FL_MAX_DIMS] = {0}, at[FL_MAX_DIMS];
    for (int64_t k = 0; k < y->n; k++) {
        coords_of(s, k, c);
        for (int64_t i = 0; i < inner; i++) {
            memcpy(at, c, sizeof at);
            at[s.ndim - 1] = i;
            int64_t p = index_of(sa, at + s.ndim - sa.ndim);
            memcpy(at, c, sizeof at);
            at[s.ndim - 2] = i;
            int64_t q = index_of(sb, at + s.ndim - sb.ndim);
            if (!is_float(y->dtype))
                put_int(y, k, i_add(y->i[k], i_mul(a->i[p], b->i[q])));
            else
                y->f[k] += a->f[p] * b->f[q];
            double term = fabs(a->f[p] * b->f[q]);
            bool special = !isfinite(a->f[p]) || !isfinite(b->f[q]);
            scale[k] += special ? 0 : term;
        }
        scale[k] = bounded(scale[k], y->dtype);
    }
}

static bool do_matmul(void) {
    reg *a = pick(), *b = NULL;
    int na = a->t->ndim;
    if (na < 2) return true;
    for (int i = 0; i < 20 && !b; i++) {
        reg *o = pick();
        if (o->t->ndim >= 2 && o->t->shape[o->t->ndim - 2] == a->t->shape[na - 1]) b = o;
    }
    fl_tensor *right = b ? b->t : NULL;
    if (!b) { /* by its own transpose, which fits */
        b = a;
        right = fl_transpose(a->t, -1, -2);
    }
    array x = values_of(a), y = values_of(b);
    if (right != b->t && !read_tensor(right, &y)) return say("cannot be read");
    fl_shape ba = x.shape, bb = y.shape;
    ba.ndim -= 2, bb.ndim -= 2;
    fl_shape s = broadcast_shape(ba, bb);
    if (!broadcasts(ba, bb) || s.ndim > 5) return true;
    s.dim[s.ndim] = x.shape.dim[na - 2];
    s.dim[s.ndim + 1] = y.shape.dim[y.shape.ndim - 1];
    s.ndim += 2;
    if (fl_shape_numel(s) > vm.most) return true;
    fl_dtype d = promotes_to(2, (reg *[]){a, b});
    tell("matmul(%s, %s%s)", name_of(a), name_of(b), right != b->t ? " transposed" : "");
    fl_tensor *t = fl_matmul(a->t, right);
    if (d == FL_B8) return was_refused(t);
    array z = new_array(s, d);
    double *scale = filled(z.n, 0);
    x = cast_array(&x, d), y = cast_array(&y, d);
    multiply(&x, &y, &z, scale);
    return gives_about(t, &z, (double)x.shape.dim[na - 1], scale);
}

/* >>programs */

static const struct {
    bool (*run)(void);
    int weight;
} rows[] = {
    {do_permute, 3},    {do_transpose, 3}, {do_slice, 6},   {do_select, 3},  {do_expand, 3},
    {do_squeeze, 3},    {do_reshape, 4},   {do_flatten, 2}, {do_copy, 2},    {do_cast, 6},
    {do_assign, 8},     {do_set_host, 4},  {do_unary, 10},  {do_binary, 14}, {do_where, 4},
    {do_sum, 5},        {do_mean, 2},      {do_extreme, 3}, {do_arg, 2},     {do_all, 2},
    {do_cumulative, 3}, {do_sort, 3},      {do_nonzero, 1}, {do_gather, 3},  {do_index_select, 3},
    {do_scatter, 4},    {do_join, 5},      {do_matmul, 4},
};

static bool run_row(void) {
    int total = 0, i = 0;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) total += rows[k].weight;
    for (int64_t at = random_below(total); at >= rows[i].weight; i++) at -= rows[i].weight;
    return rows[i].run();
}

/* Dims from the right end of vm.dims, some of them 1. */
static fl_shape some_shape(void) {
    fl_shape s = {(int)random_below(vm.dims.ndim + 1), {0}};
    for (int d = 0; d < s.ndim; d++)
        s.dim[d] = random_below(4) ? vm.dims.dim[vm.dims.ndim - s.ndim + d] : 1;
    return s;
}

static void start(uint64_t seed) {
    static const fl_dtype dtypes[] = {FL_B8,  FL_U8,   FL_I8,  FL_I16, FL_I32, FL_I64,
                                      FL_F16, FL_BF16, FL_F32, FL_F64, FL_F32, FL_F64};
    pool_at = 0;
    random_state = seed;
    vm.n = 0;
    bool large = random_below(10) == 0;
    vm.most = large ? MANY : FEW;
    vm.dims.ndim = 1 + (int)random_below(4);
    for (int d = 0; d < vm.dims.ndim; d++)
        vm.dims.dim[d] = random_below(20) ? 1 + random_below(5) : 0;
    if (large) vm.dims.dim[vm.dims.ndim - 1] = 17 + random_below(50);
    for (int i = 0; i < 4; i++) {
        array a =
            random_array(some_shape(), dtypes[random_below(12)], random_below(2) ? WILD : TAME);
        add_new(dense_tensor(&a), &a);
    }
}

static void list_step(int first) {
    char text[80];
    if (!vm.text[0]) return;
    printf("    %s", vm.text);
    for (int i = first; i < vm.n; i++)
        printf("%s %s%s", i > first ? "," : "", fl_dtype_name(vm.r[i].t->dtype),
               fl_shape_text(fl_shape_of(vm.r[i].t), text, sizeof text));
    printf("\n");
}

static bool run_program(const program *p) {
    fl_scope s = fl_scope_begin();
    int64_t live = fl_live_tensors();
    start(p->seed);
    bool ok = true;
    snprintf(vm.text, sizeof vm.text, "(start)");
    if (vm.told) list_step(0);
    for (int i = 0; i < p->n_steps && ok && vm.n < REGISTERS - 2; i++) {
        if (!p->step[i]) continue;
        int before = vm.n;
        random_state = p->step[i];
        vm.text[0] = 0;
        ok = run_row();
        if (ok && fl_error()) ok = say("%s", fl_error());
        if (vm.told) list_step(before);
    }
    ok = ok && all_hold();
    if (fl_error()) say("pending: %s", fl_error());
    fl_error_clear();
    fl_scope_end(&s);
    if (ok && fl_live_tensors() != live) ok = say("%d handles are left", (int)(fl_live_tensors() - live));
    return ok;
}

/* >>gradients: programs of variables, against difference quotients */

enum { VARS = 32, PARAMS = 2 };
static struct {
    fl_var *v[VARS];
    double size[VARS]; /* a bound of its elements, so that nothing overflows */
    int n;
    array param[PARAMS], ahead[PARAMS]; /* where the gradient is taken, and in which direction */
} gm;

static void add_var(const char *name, fl_var *v, double size) {
    if (!v || gm.n == VARS) return;
    tell("%s -> v%d", name, gm.n);
    gm.v[gm.n] = v;
    gm.size[gm.n++] = size;
}

static int pick_var(void) {
    int from = gm.n > 4 && random_below(2) ? gm.n - 4 : 0;
    return from + (int)random_below(gm.n - from);
}

static void grad_unary(void) {
    static const struct {
        const char *op;
        fl_var *(*run)(fl_var *);
        double size; /* of the result; 0: as large as x */
    } ops[] = {{"sin", fv_sin, 1},         {"cos", fv_cos, 1},   {"tanh", fv_tanh, 1},
               {"sigmoid", fv_sigmoid, 1}, {"erf", fv_erf, 1},   {"atan", fv_atan, 2},
               {"neg", fv_neg, 0},         {"gelu", fv_gelu, 0}, {"softplus", fv_softplus, 0}};
    int x = pick_var(), i = (int)random_below(9);
    tell("(v%d) ", x);
    add_var(ops[i].op, ops[i].run(gm.v[x]), ops[i].size > 0 ? ops[i].size : gm.size[x] + 1);
}

static void grad_binary(void) {
    static const struct {
        const char *op;
        fl_var *(*run)(fl_var *, fl_var *);
    } ops[] = {{"add", fv_add},
               {"sub", fv_sub},
               {"maximum", fv_maximum},
               {"minimum", fv_minimum},
               {"mul", fv_mul}};
    int a = pick_var(), b = pick_var(), i = (int)random_below(5);
    for (int k = 0; k < 8 && !broadcasts(fl_shape_of(gm.v[a]->value), fl_shape_of(gm.v[b]->value));
         k++)
        b = k < 7 ? pick_var() : a;
    double size = i == 4 ? gm.size[a] * gm.size[b] : gm.size[a] + gm.size[b];
    tell("(v%d, v%d) ", a, b);
    if (size < 20) add_var(ops[i].op, ops[i].run(gm.v[a], gm.v[b]), size);
}

/* Of one axis. */
static void grad_along(void) {
    int x = pick_var();
    fl_var *v = gm.v[x];
    fl_tensor *t = v->value;
    if (!t->ndim || !fl_numel(t)) return;
    int axis = (int)random_below(t->ndim), b = (int)random_below(t->ndim);
    int64_t n = t->shape[axis];
    double size = gm.size[x];
    array ix = new_array(FL_SHAPE(1 + random_below(4)), FL_I64);
    for (int64_t k = 0; k < ix.n; k++) put_int(&ix, k, random_below(n));
    tell("(v%d, %d, %d) ", x, axis, b);
    switch (random_below(11)) {
    case 0:
        add_var("transpose", fv_transpose(v, axis, b), size);
        break;
    case 1:
        add_var("slice", fv_slice(v, axis, n - 1, FL_SLICE_END, -1 - random_below(2)), size);
        break;
    case 2:
        add_var("select", fv_select(v, axis, random_below(n)), size);
        break;
    case 3:
        add_var("sort", fv_sort(v, axis, random_below(2), NULL), size);
        break;
    case 4:
        add_var("softmax", fv_softmax(v, axis), 1);
        break;
    case 5:
        add_var("log_softmax", fv_log_softmax(v, axis), 2 * size + 5);
        break;
    case 6:
        add_var("index_select", fv_index_select(v, axis, dense_tensor(&ix)), size);
        break;
    case 7:
        add_var("flatten", fv_flatten(v, axis < b ? axis : b, axis < b ? b : axis), size);
        break;
    case 8:
        if (n * size < 20) add_var("cumsum", fv_cumsum(v, axis), n * size);
        break;
    case 9:
        if (size < 1.5 && n < 5) add_var("cumprod", fv_cumprod(v, axis), 8);
        break;
    default:
        if (fl_numel(t) * 2 <= FEW) add_var("concat", fv_concat((fl_var *[]){v, v}, 2, axis), size);
    }
}

static void grad_reduce(void) {
    int x = pick_var();
    fl_var *v = gm.v[x];
    unsigned mask;
    fl_axes axes = random_axes(fl_shape_of(v->value), &mask);
    double n = (double)fl_numel(v->value), size = gm.size[x];
    if (n == 0) return;
    tell("(v%d, axes %x) ", x, mask);
    switch (random_below(6)) {
    case 0:
        if (n * size < 20) add_var("sum", fv_sum(v, axes), n * size);
        break;
    case 1:
        add_var("mean", fv_mean(v, axes), size);
        break;
    case 2:
        add_var("amax", fv_amax(v, axes), size);
        break;
    case 3:
        add_var("logsumexp", fv_logsumexp(v, axes), size + 6);
        break;
    case 4:
        add_var("variance", fv_variance(v, axes, 0), 4 * size * size);
        break;
    default:
        if (size < 1.5 && n < 6) add_var("prod", fv_prod(v, axes), 8);
        break;
    }
}

static void grad_gather(void) {
    int x = pick_var();
    fl_var *v = gm.v[x];
    array shape = new_array(fl_shape_of(v->value), FL_F64);
    if (!shape.n || !shape.shape.ndim) return;
    int axis = (int)random_below(shape.shape.ndim);
    operand index = index_for(&shape, axis);
    fl_var *y = fv_gather(v, axis, index.t);
    tell("(v%d, %d) ", x, axis);
    if (random_below(2))
        add_var("gather", y, gm.size[x]);
    else if (gm.size[x] < 3)
        add_var("scatter_add", fv_scatter_add(v, axis, index.t, fv_sin(y)),
                gm.size[x] + (double)index.a.n);
}

static void grad_matmul(void) {
    int x = pick_var();
    fl_var *v = gm.v[x];
    int n = v->value->ndim;
    if (n < 2 || gm.size[x] > 4 || v->value->shape[n - 1] > 5) return;
    fl_var *y = fv_matmul(v, fv_tanh(fv_transpose(v, -1, -2)));
    tell("(v%d, tanh of its transpose) ", x);
    if (fl_numel(y->value) <= FEW) add_var("matmul", y, gm.size[x] * 5);
}

/* Runs p from params + h * ahead, and gives a number that all results take part in. */
static fl_var *gradient_run(const program *p, double h, fl_var **params) {
    static void (*const forms[])(void) = {grad_unary,  grad_unary, grad_binary, grad_binary,
                                          grad_along,  grad_along, grad_along,  grad_reduce,
                                          grad_gather, grad_matmul};
    gm.n = 0;
    for (int i = 0; i < PARAMS; i++) {
        array a = new_array(gm.param[i].shape, FL_F64);
        for (int64_t k = 0; k < a.n; k++) a.f[k] = gm.param[i].f[k] + h * gm.ahead[i].f[k];
        params[i] = fv_param(dense_tensor(&a));
        add_var("", params[i], 2);
    }
    for (int i = 0; i < p->n_steps; i++) {
        if (!p->step[i]) continue;
        random_state = p->step[i];
        vm.text[0] = 0;
        forms[random_below(10)]();
        if (vm.told && strstr(vm.text, "->")) printf("    %s\n", vm.text);
    }
    fl_var *total = fv_num(0);
    for (int i = 0; i < gm.n; i++) {
        fl_rng rng = {p->seed, (uint64_t)i * 64};
        fl_tensor *w = fl_uniform(fl_shape_of(gm.v[i]->value), -1, 1, FL_F64, &rng);
        total = fv_add(total, fv_sum(fv_mul(gm.v[i], fv_const(w)), FL_ALL_AXES));
    }
    return total;
}

/* The slope along `ahead`: by gradients, and by a quotient. Two values close to each other may
   change places in between: so a second point decides. */
static bool slopes_agree(const program *p) {
    const double h = 1e-6;
    fl_var *params[PARAMS], *other[PARAMS];
    double slope = 0;
    fl_var *y = gradient_run(p, 0, params);
    if (!y || !fl_backward(y)) return say("%s", fl_error());
    for (int i = 0; i < PARAMS; i++) {
        array g;
        if (!fv_grad(params[i]) || !read_tensor(fv_grad(params[i]), &g)) return say("no gradient");
        for (int64_t k = 0; k < g.n; k++) slope += g.f[k] * gm.ahead[i].f[k];
    }
    bool told = vm.told;
    vm.told = false;
    double above = fl_item(fv_value(gradient_run(p, h, other)));
    double below = fl_item(fv_value(gradient_run(p, -h, other)));
    vm.told = told;
    double want = (above - below) / (2 * h), most = 1e-5 * (1 + fabs(slope)) + 1e-8 * fabs(above);
    if (isnan(slope) || !(fabs(slope - want) <= most))
        return say("the slope is %.10g, not %.10g", slope, want);
    return true;
}

static bool run_gradient(const program *p) {
    bool ok = false;
    for (int point = 0; point < 2 && !ok; point++) {
        fl_scope s = fl_scope_begin();
        start(p->seed);
        vm.most = FEW;
        random_state += (uint64_t)point;
        for (int i = 0; i < PARAMS; i++) {
            fl_shape shape = some_shape();
            for (int d = 0; d < shape.ndim; d++) shape.dim[d] = 1 + shape.dim[d] % 5;
            gm.param[i] = new_array(shape, FL_F64);
            gm.ahead[i] = new_array(shape, FL_F64);
            for (int64_t k = 0; k < gm.param[i].n; k++) {
                gm.param[i].f[k] = random_in(-2, 2);
                gm.ahead[i].f[k] = random_in(-1, 1);
            }
        }
        ok = slopes_agree(p);
        fl_error_clear();
        fl_scope_end(&s);
    }
    return ok;
}

static bool run_any(const program *p) {
    return p->gradient ? run_gradient(p) : run_program(p);
}

/* Leaves out what the failure does not need, and prints the rest. */
static void shorten(program *p) {
    quick_run = 1; /* say nothing */
    for (int i = p->n_steps - 1; i >= 0; i--) {
        uint64_t step = p->step[i];
        p->step[i] = 0;
        if (run_any(p)) p->step[i] = step;
    }
    quick_run = 0;
    shared->shown = 0;
    vm.told = true;
    printf("%s fails%s:\n", shared->now, p->gradient ? " (on variables)" : "");
    run_any(p);
    vm.told = false;
}

static bool random_program(uint64_t seed) {
    program p = {.seed = seed * 0x9e3779b97f4a7c15u + 1, .gradient = seed % 8 == 0};
    random_state = p.seed;
    p.n_steps = 5 + (int)random_below(MOST_STEPS - 4);
    for (int i = 0; i < p.n_steps; i++) p.step[i] = random_bits() | 1;
    snprintf(shared->now, sizeof shared->now, "program %llu", (unsigned long long)seed);
    quick_run = 1;
    bool ok = run_any(&p);
    quick_run = 0;
    if (!ok) shorten(&p);
    return ok;
}

int main(int argc, char **argv) {
    static shared_state state;
    int64_t count = argc > 2 ? atoll(argv[2]) : FULL, seed = argc > 3 ? atoll(argv[3]) : 1;
    int64_t passed = 0, failed = 0;
    shared = &state;
    if (argc > 1) backend_name = argv[1];
    if (argc < 3 && strcmp(backend_name, "cpu")) count /= 8;
    fl_set_error_handler(quiet_errors, NULL);
    if (backend_is_absent(backend_name)) return 0;
    bool works = choose_backend(backend_name); /* before the scope, at whose end "lazy" would end */
    fl_scope s = fl_scope_begin();
    works = works && fl_ones(FL_SCALAR_SHAPE, FL_F32); /* a device */
    fl_scope_end(&s);
    if (!works) {
        printf("random: no backend '%s': %s\n0 passed, 1 failed\n", backend_name, fl_error());
        return 1;
    }
    if (find_references()) return 1;
    for (int64_t i = 0; i < count && failed < 10; i++)
        if (random_program((uint64_t)(seed + i)))
            passed++;
        else
            failed++;
    printf("%lld passed, %lld failed\n", (long long)passed, (long long)failed);
    return failed != 0;
}
/* MIT licence: see LICENSE. */
