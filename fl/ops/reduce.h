/* fl/ops/reduce.h - reductions, order statistics and scans

   Prototypes and formulas stand in fl_composed.h. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_REDUCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_REDUCE_IMPL
#define FL_OPS_REDUCE_IMPL
#include "softmax.h"
#include <math.h>
#define FL_TEXT "reduce.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

/* >>sums */

FL_T *FL_W(std)(FL_T *x, fl_axes axes, int64_t correction) {
    if (FL_ABSENT("std", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_dtype d = FL_VALUE(x)->dtype;
    bool real = fl_dtype_is_float(d);
    FL_T *y = FL_W(variance)(real ? FL_W(cast)(x, FL_F64) : x, axes, correction);
    return FL_GIVE(&s, y ? FL_W(cast)(SQRT(y), d) : NULL);
}

/* (sum |x|^p)^(1/p) of sizes a = |x|. 0 is kept out of the powers: they have no derivative there. */
static FL_T *FL_W(_power_norm)(FL_T *a, double p, fl_axes axes) {
    FL_T *zero = EQ(a, CONST(0)), *size = SELECT(zero, CONST(1), a);
    FL_T *power = p == 1 ? a : p == 2 ? MUL(a, a) : POW(size, CONST(p));
    if (p != 1 && p != 2) power = SELECT(zero, CONST(p < 0 ? (double)INFINITY : 0), power);
    FL_T *sum = FL_W(sum)(power, axes);
    if (p == 1) return sum;
    FL_T *none = EQ(sum, CONST(0)), *some = SELECT(none, CONST(1), sum);
    FL_T *root = p == 2 ? SQRT(some) : POW(some, CONST(1 / p));
    return SELECT(none, CONST(p < 0 ? (double)INFINITY : 0), root);
}

FL_T *FL_W(norm)(FL_T *x, double p, fl_axes axes) {
    if (FL_ABSENT("norm", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x, *y;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    fl_dtype d = FL_VALUE(x)->dtype;
    FL_T *a = ABS(x);
    if (isinf(p)) y = p > 0 ? FL_W(amax)(a, axes) : FL_W(amin)(a, axes);
    else if (p == 0) y = FL_W(sum)(FL_W(cast)(NOT(EQ(x, CONST(0))), d), axes);
    else y = FL_W(_power_norm)(a, p, axes);
    y = y ? FL_W(cast)(y, d) : NULL;
    return FL_GIVE(&s, FL_W(_narrowed)(y, given));
}

FL_T *FL_W(nansum)(FL_T *x, fl_axes axes) {
    if (FL_ABSENT("nansum", x)) return NULL;
    fl_scope s = fl_scope_begin();
    bool real = fl_dtype_is_float(FL_VALUE(x)->dtype);
    return FL_GIVE(&s, FL_W(sum)(real ? SELECT(EQ(x, x), x, CONST(0)) : x, axes));
}

FL_T *FL_W(nanmean)(FL_T *x, fl_axes axes) {
    if (FL_ABSENT("nanmean", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *count = FL_W(sum)(EQ(x, x), axes);
    return FL_GIVE(&s, FL_W(_narrowed)(DIV(FL_W(nansum)(x, axes), count), given));
}

FL_T *FL_W(trapezoid)(FL_T *y, double dx, int axis) {
    if (FL_ABSENT("trapezoid", y)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = y;
    if (!(y = FL_W(_widened)(y))) return FL_GIVE(&s, NULL);
    FL_T *pairs = ADD(FL_W(slice)(y, axis, 1, FL_SLICE_END, 1), FL_W(slice)(y, axis, 0, -1, 1));
    FL_T *area = MUL(FL_W(sum)(pairs, FL_AXES(axis)), CONST(0.5 * dx));
    return FL_GIVE(&s, FL_W(_narrowed)(area, given));
}

FL_T *FL_W(diff)(FL_T *x, int axis) {
    if (FL_ABSENT("diff", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *next = FL_W(slice)(x, axis, 1, FL_SLICE_END, 1);
    return FL_GIVE(&s, SUB(next, FL_W(slice)(x, axis, 0, -1, 1)));
}

/* >>order: a rank is a place in ascending order, NaN last */

/* x at the places `at` along axis, whose dim there is 1; *index gets them in the result's shape. */
static FL_T *FL_W(_picked)(fl_scope *s, FL_T *x, fl_tensor *at, int axis, bool keepdim,
                           fl_tensor **index) {
    FL_T *y = at ? FL_W(gather)(x, axis, at) : NULL;
    if (y && !keepdim) {
        y = FL_W(squeeze)(y, axis);
        at = fl_squeeze(at, axis);
    }
    y = FL_GIVE(s, index && y && !(at = fl_promote(s, at)) ? NULL : y);
    if (index && y) *index = at;
    return y;
}

FL_T *FL_W(max_along)(FL_T *x, int axis, bool keepdim, fl_tensor **index) {
    if (FL_ABSENT("max_along", x)) return NULL;
    fl_scope s = fl_scope_begin();
    return FL_W(_picked)(&s, x, fl_argmax(FL_VALUE(x), axis, true), axis, keepdim, index);
}

FL_T *FL_W(min_along)(FL_T *x, int axis, bool keepdim, fl_tensor **index) {
    if (FL_ABSENT("min_along", x)) return NULL;
    fl_scope s = fl_scope_begin();
    return FL_W(_picked)(&s, x, fl_argmin(FL_VALUE(x), axis, true), axis, keepdim, index);
}

#ifdef FL_ON_TENSORS
fl_tensor *fl_count_nonzero(fl_tensor *x, fl_axes axes) {
    if (fl_absent("fl_count_nonzero", x)) return NULL;
    fl_scope s = fl_scope_begin();
    x = fl_cast(x, FL_B8);
    return fl_scope_return(&s, x ? fl_sum(x, axes) : NULL);
}
#endif

/* Elements along axis, at least one; -1 after an error. */
static int64_t FL_W(_length)(const char *fn, const fl_tensor *x, int axis) {
    int at = axis < 0 ? axis + x->ndim : axis;
    if (at < 0 || at >= x->ndim) {
        fl_bad("fl_%s: axis %d of shape %s", fn, axis, FL_SHAPE_TEXT(x));
        return -1;
    }
    if (x->shape[at] > 0) return x->shape[at];
    fl_bad("fl_%s: no elements along axis %d of shape %s", fn, axis, FL_SHAPE_TEXT(x));
    return -1;
}

FL_T *FL_W(kthvalue)(FL_T *x, int64_t k, int axis, bool keepdim, fl_tensor **index) {
    if (FL_ABSENT("kthvalue", x)) return NULL;
    int64_t n = FL_W(_length)("kthvalue", FL_VALUE(x), axis);
    if (n < 0) return NULL;
    if (k < 1 || k > n)
        return fl_bad("fl_kthvalue: number %lld of the %lld along axis %d", (long long)k,
                       (long long)n, axis);
    fl_scope s = fl_scope_begin();
    fl_tensor *order = fl_argsort(FL_VALUE(x), axis, false);
    return FL_W(_picked)(&s, x, fl_slice(order, axis, k - 1, k, 1), axis, keepdim, index);
}

/* The numbers along each line of x that count, f64 with dim 1 at axis: all n, but the NaN if asked. */
static fl_tensor *FL_W(_counted)(fl_tensor *x, int64_t n, int axis, bool skip_nan) {
    fl_tensor *numbers = fl_sum(fl_eq(x, x), FL_AXES_KEEP(axis));
    fl_tensor *few = fl_maximum(numbers, fl_int(1)), *all = fl_eq(numbers, fl_int(n));
    return fl_cast(skip_nan ? few : fl_where(all, few, fl_int(n)), FL_F64);
}

/* True on the lines of x that hold a NaN, or nothing else. */
static fl_tensor *FL_W(_spoilt)(fl_tensor *x, int axis, bool skip_nan) {
    fl_tensor *numbers = fl_eq(x, x);
    return fl_logical_not(skip_nan ? fl_any(numbers, FL_AXES_KEEP(axis))
                                   : fl_all(numbers, FL_AXES_KEEP(axis)));
}

static FL_T *FL_W(_median)(const char *fn, FL_T *x, int axis, bool keepdim, bool skip_nan,
                           fl_tensor **index) {
    int64_t n = FL_W(_length)(fn, FL_VALUE(x), axis);
    if (n < 0) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *t = FL_VALUE(x), *count = FL_W(_counted)(t, n, axis, skip_nan);
    fl_tensor *rank = fl_floor(fl_mul(fl_sub(count, fl_num(1)), fl_num(0.5)));
    if (!skip_nan) { /* the first NaN */
        fl_tensor *numbers = fl_sum(fl_eq(t, t), FL_AXES_KEEP(axis));
        rank = fl_where(FL_W(_spoilt)(t, axis, false), fl_cast(numbers, FL_F64), rank);
    }
    fl_tensor *order = fl_argsort(t, axis, false);
    rank = order && rank ? fl_gather(order, axis, fl_cast(rank, FL_I64)) : NULL;
    return FL_W(_picked)(&s, x, rank, axis, keepdim, index);
}

FL_T *FL_W(median)(FL_T *x, int axis, bool keepdim, fl_tensor **index) {
    if (FL_ABSENT("median", x)) return NULL;
    return FL_W(_median)("median", x, axis, keepdim, false, index);
}

FL_T *FL_W(nanmedian)(FL_T *x, int axis, bool keepdim, fl_tensor **index) {
    if (FL_ABSENT("nanmedian", x)) return NULL;
    return FL_W(_median)("nanmedian", x, axis, keepdim, true, index);
}

/* Where between its two neighbours a quantile lies: 0 at the lower one. */
static fl_tensor *FL_W(_quantile_share)(fl_tensor *place, fl_between method) {
    fl_tensor *low = fl_floor(place), *part = fl_sub(place, low);
    switch (method) {
    case FL_BETWEEN_LOWER: return fl_mul(part, fl_num(0));
    case FL_BETWEEN_HIGHER: return fl_ceil(part);
    case FL_BETWEEN_NEAREST: return fl_sub(fl_rint(place), low);
    case FL_BETWEEN_MIDPOINT: return fl_mul(fl_ceil(part), fl_num(0.5));
    default: return part;
    }
}

static FL_T *FL_W(_quantile)(const char *fn, FL_T *x, double q, int axis, bool keepdim,
                             fl_between method, bool skip_nan) {
    int64_t n = FL_W(_length)(fn, FL_VALUE(x), axis);
    if (n < 0) return NULL;
    if (!(q >= 0 && q <= 1)) return fl_bad("fl_%s: %g is not in [0, 1]", fn, q);
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    fl_tensor *t = FL_VALUE(x), *order = fl_argsort(t, axis, false);
    fl_tensor *last = fl_sub(FL_W(_counted)(t, n, axis, skip_nan), fl_num(1));
    fl_tensor *place = fl_mul(last, fl_num(q)), *share = FL_W(_quantile_share)(place, method);
    if (!order || !place || !share) return FL_GIVE(&s, NULL);
    fl_tensor *low = fl_cast(fl_floor(place), FL_I64), *high = fl_cast(fl_ceil(place), FL_I64);
    FL_T *below = FL_W(gather)(x, axis, fl_gather(order, axis, low));
    FL_T *above = FL_W(gather)(x, axis, fl_gather(order, axis, high));
    FL_T *between = FL_W(lerp)(below, above, FL_OF(fl_cast(share, t->dtype)));
    FL_T *y = SELECT(EQ(below, above), below, between);
    y = SELECT(FL_OF(FL_W(_spoilt)(t, axis, skip_nan)), CONST((double)NAN), y);
    if (y && !keepdim) y = FL_W(squeeze)(y, axis);
    return FL_GIVE(&s, FL_W(_narrowed)(y, given));
}

FL_T *FL_W(quantile)(FL_T *x, double q, int axis, bool keepdim, fl_between method) {
    if (FL_ABSENT("quantile", x)) return NULL;
    return FL_W(_quantile)("quantile", x, q, axis, keepdim, method, false);
}

FL_T *FL_W(nanquantile)(FL_T *x, double q, int axis, bool keepdim, fl_between method) {
    if (FL_ABSENT("nanquantile", x)) return NULL;
    return FL_W(_quantile)("nanquantile", x, q, axis, keepdim, method, true);
}

/* >>scans: by one loop on the host, whatever the backend */

#ifdef FL_ON_TENSORS
/* A scan of x [outer, n, inner], row-major, in f64 or i64. */
typedef struct fl__scan_lines {
    int64_t outer, n, inner;
    int axis;
} fl__scan_lines;

static bool fl__lines_of(const char *fn, const fl_tensor *x, int axis, fl__scan_lines *l) {
    int at = axis < 0 ? axis + x->ndim : axis;
    if (at < 0 || at >= x->ndim)
        return fl_refuse("fl_%s: axis %d of shape %s", fn, axis, FL_SHAPE_TEXT(x));
    *l = (fl__scan_lines){1, x->shape[at], 1, at};
    for (int i = 0; i < at; i++) l->outer *= x->shape[i];
    for (int i = at + 1; i < x->ndim; i++) l->inner *= x->shape[i];
    return true;
}

/* Does v come in as the new extreme? The last of equals does, and NaN stays. */
static bool fl__new_real(double v, double best, bool max) {
    return isnan(v) || (!isnan(best) && (max ? v >= best : v <= best));
}
static bool fl__new_integer(int64_t v, int64_t best, bool max) {
    return max ? v >= best : v <= best;
}

/* index[i]: the place along its line of the extreme up to element i. */
static void fl__extremes(const void *data, bool real, bool max, fl__scan_lines l, int64_t *index) {
    const double *f = data;
    const int64_t *k = data;
    for (int64_t i = 0; i < l.outer * l.n * l.inner; i++) {
        int64_t place = i / l.inner % l.n, before = place ? index[i - l.inner] : 0;
        int64_t best = i + (before - place) * l.inner;
        bool is_new = real ? fl__new_real(f[i], f[best], max) : fl__new_integer(k[i], k[best], max);
        index[i] = place == 0 || is_new ? place : before;
    }
}

static fl_tensor *fl__extreme_index(const char *fn, fl_tensor *x, int axis, bool max) {
    fl__scan_lines l;
    if (!fl__lines_of(fn, x, axis, &l)) return NULL;
    fl_scope s = fl_scope_begin();
    bool real = fl_dtype_is_float(x->dtype);
    fl_tensor *host = fl_to(fl_contiguous(fl_cast(x, real ? FL_F64 : FL_I64)), "cpu");
    fl_tensor *index = fl_to(fl_zeros(fl_shape_of(x), FL_I64), "cpu");
    const void *from = fl_map(host, FL_READ);
    int64_t *to = from ? fl_map(index, FL_WRITE) : NULL;
    if (to && fl_numel(x)) fl__extremes(from, real, max, l, to);
    if (to) fl_unmap(index, FL_WRITE);
    if (from) fl_unmap(host, FL_READ);
    return fl_scope_return(&s, to ? fl_to(index, fl_family_name(x)) : NULL);
}

static double fl__log_add(double a, double b) {
    double high = a > b || isnan(a) ? a : b, low = a > b || isnan(a) ? b : a;
    return isinf(high) && !isnan(low) ? high : high + log1p(exp(low - high));
}

fl_tensor *fl_logcumsumexp(fl_tensor *x, int axis) {
    fl__scan_lines l;
    if (fl_absent("fl_logcumsumexp", x) || !fl__lines_of("logcumsumexp", x, axis, &l)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *given = fl__floating(x), *host = given ? fl_clone(fl_cast(given, FL_F64)) : NULL;
    host = host ? fl_to(host, "cpu") : NULL;
    double *y = host ? fl_map(host, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; y && i < fl_numel(x); i++)
        if (i / l.inner % l.n) y[i] = fl__log_add(y[i - l.inner], y[i]);
    if (y) fl_unmap(host, FL_READ | FL_WRITE);
    host = y ? fl_to(host, fl_family_name(given)) : NULL;
    return fl_scope_return(&s, host ? fl_cast(host, given->dtype) : NULL);
}
#else
static fl_var *fv__backwards(fl_var *x, int axis) {
    return fv_slice(x, axis, -1, FL_SLICE_END, -1);
}

/* sum over i >= j of dy[i] exp(x[j] - y[i]), of the positive dy. */
static fl_var *fv__logcumsumexp_part(fl_var *x, fl_var *y, fl_var *dy, int axis) {
    fl_var *is = LT(CONST(0), dy), *end = CONST(-(double)INFINITY);
    fl_var *finite = SELECT(EQ(y, end), CONST(0), y);
    fl_var *term = SELECT(is, SUB(LOG(SELECT(is, dy, CONST(1))), finite), end);
    fl_var *sum = fv_logcumsumexp(fv__backwards(term, axis), axis);
    return EXP(ADD(x, fv__backwards(sum, axis)));
}

static void fv__logcumsumexp_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0), *y = fv_saved(n, 1);
    int axis = *(const int *)fv_args(n);
    if (!x || !y) return;
    fv_add_grad(n, 0, SUB(fv__logcumsumexp_part(x, y, dy, axis),
                          fv__logcumsumexp_part(x, y, NEG(dy), axis)));
}

fl_var *fv_logcumsumexp(fl_var *x, int axis) {
    return fv_record_args("logcumsumexp", fl_logcumsumexp(fv_value(x), axis), fv__logcumsumexp_back,
                          FV_IN(x), FV_SAVE(x, FV_OUT), &axis, sizeof axis);
}
#endif

static FL_T *FL_W(_cumulative_extreme)(const char *fn, FL_T *x, int axis, bool max,
                                       fl_tensor **index) {
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__extreme_index(fn, FL_VALUE(x), axis, max);
    return FL_W(_picked)(&s, x, at, axis, true, index);
}

FL_T *FL_W(cummax)(FL_T *x, int axis, fl_tensor **index) {
    if (FL_ABSENT("cummax", x)) return NULL;
    return FL_W(_cumulative_extreme)("cummax", x, axis, true, index);
}

FL_T *FL_W(cummin)(FL_T *x, int axis, fl_tensor **index) {
    if (FL_ABSENT("cummin", x)) return NULL;
    return FL_W(_cumulative_extreme)("cummin", x, axis, false, index);
}

#endif
/* MIT licence: see LICENSE. */
