/* fl/ops/index.h - reading and writing by indices and masks, and what sorting finds out

   Prototypes and rules stand in fl_composed.h. Index tensors and masks are plain tensors in both
   forms. Several indices become one into the leading dims made one, and rows of what is left go by
   index_select, scatter and scatter_add: in order, so repeated indices are defined. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_INDEX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_INDEX_IMPL
#define FL_OPS_INDEX_IMPL
#include <math.h>
#define FL_TEXT "index.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

/* >>helpers */

#ifdef FL_ON_TENSORS
static bool fl__is_index(const char *fn, const fl_tensor *index) {
    if (fl_absent(fn, index)) return false;
    if (index->dtype == FL_I64) return true;
    return fl_refuse("%s: the index is %s, not i64", fn, fl_dtype_name(index->dtype));
}

/* The same with those below 0 counted from the end; an error if one is outside [-size, size). */
static fl_tensor *fl__wrapped(const char *fn, fl_tensor *index, int axis, int64_t size) {
    if (!fl__is_index(fn, index)) return NULL;
    if (fl_numel(index) == 0) return index;
    fl_tensor *least = fl_amin(index, FL_ALL_AXES), *most = fl_amax(index, FL_ALL_AXES);
    if (!least || !most) return NULL;
    int64_t low = fl_item_int(least), high = fl_item_int(most);
    if (low < -size || high >= size)
        return fl_bad("%s: index %lld is out of range for axis %d of size %lld", fn,
                       (long long)(high >= size ? high : low), axis, (long long)size);
    if (low >= 0) return index;
    return fl_where(fl_lt(index, fl_int(0)), fl_add(index, fl_int(size)), index);
}

/* Where n index tensors point in x with its first n dims made one, as a vector; *shape: the one
   they broadcast to. */
static fl_tensor *fl__flat_index(const char *fn, const fl_tensor *x, fl_tensor *const *index, int n,
                                 fl_shape *shape) {
    fl_tensor *flat = NULL;
    if (fl_absent(fn, index)) return NULL;
    if (n < 1 || n > x->ndim) return fl_bad("%s: %d indices for %s", fn, n, FL_SHAPE_TEXT(x));
    *shape = FL_SCALAR_SHAPE;
    for (int i = 0; i < n; i++) {
        fl_tensor *at = fl__wrapped(fn, index[i], i, x->shape[i]);
        if (!at) return NULL;
        if (!fl_broadcast_shape(shape, at))
            return fl_bad("%s: index %d of shape %s does not broadcast with those before", fn, i,
                           FL_SHAPE_TEXT(at));
        flat = i ? fl_add(fl_mul(flat, fl_int(x->shape[i])), at) : at;
    }
    if (shape->ndim + x->ndim - n > FL_MAX_DIMS)
        return fl_bad("%s: indices of %d dims for %s: more than %d", fn, shape->ndim,
                       FL_SHAPE_TEXT(x), FL_MAX_DIMS);
    return fl_reshape(flat, FL_SHAPE(fl_numel(flat)));
}

/* shape, then x's dims from n on */
static fl_shape fl__and_rest(fl_shape shape, const fl_tensor *x, int n) {
    for (int i = n; i < x->ndim; i++) shape.dim[shape.ndim++] = x->shape[i];
    return shape;
}

/* x's shape with the length of the index along axis */
static fl_shape fl__part_shape(const fl_tensor *x, int axis, const fl_tensor *index) {
    fl_shape part = fl_shape_of(x);
    part.dim[axis] = index->shape[0];
    return part;
}

/* A vector of places along axis as scatters take it. src (or NULL) must have that shape. */
static fl_tensor *fl__along_axis(const char *fn, const fl_tensor *x, int axis, fl_tensor *index,
                                 const fl_tensor *src) {
    if (!fl__is_index(fn, index)) return NULL;
    if (index->ndim != 1)
        return fl_bad("%s: the index has shape %s, not one dim", fn, FL_SHAPE_TEXT(index));
    fl_shape part = fl__part_shape(x, axis, index), column = {x->ndim, {0}};
    bool fits = !src || src->ndim == part.ndim;
    for (int i = 0; i < x->ndim; i++) {
        column.dim[i] = i == axis ? part.dim[i] : 1;
        fits = fits && (!src || src->shape[i] == part.dim[i]);
    }
    if (!fits)
        return fl_bad("%s: src has shape %s, not %s", fn, FL_SHAPE_TEXT(src),
                       FL_TEXT_OF(part));
    return fl_expand(fl_reshape(index, column), part);
}

/* mask broadcast with x; *shape: theirs */
static fl_tensor *fl__mask_over(const char *fn, const fl_tensor *x, fl_tensor *mask,
                                fl_shape *shape) {
    if (fl_absent(fn, mask)) return NULL;
    if (mask->dtype != FL_B8)
        return fl_bad("%s: the mask is %s, not b8", fn, fl_dtype_name(mask->dtype));
    *shape = fl_shape_of(x);
    if (!fl_broadcast_shape(shape, mask))
        return fl_bad("%s: mask %s does not broadcast with %s", fn, FL_SHAPE_TEXT(mask),
                       FL_SHAPE_TEXT(x));
    return fl_expand(mask, *shape);
}

/* Where a mask is true, in its elements as a vector */
static fl_tensor *fl__true_places(fl_tensor *mask) {
    fl_tensor *at = fl_nonzero(fl_reshape(mask, FL_SHAPE(fl_numel(mask))));
    return at ? fl_select(at, 1, 0) : NULL;
}
#endif

/* x as a matrix: its first n dims, the others */
static FL_T *FL_W(_lead_rows)(FL_T *x, int n) {
    fl_shape two = FL_SHAPE(1, 1);
    for (int i = 0; i < FL_VALUE(x)->ndim; i++) two.dim[i >= n] *= FL_VALUE(x)->shape[i];
    return FL_W(reshape)(x, two);
}

static FL_T *FL_W(_as_vector)(FL_T *x) {
    return FL_W(reshape)(x, FL_SHAPE(fl_numel(FL_VALUE(x))));
}

/* >>indices */

FL_T *FL_W(take)(FL_T *x, fl_tensor *index) {
    if (FL_ABSENT("take", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__wrapped("fl_take", index, 0, fl_numel(FL_VALUE(x)));
    fl_tensor *line = at ? fl_reshape(at, FL_SHAPE(fl_numel(at))) : NULL;
    if (!line) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(index_select)(FL_W(_as_vector)(x), 0, line);
    return FL_GIVE(&s, FL_W(reshape)(y, fl_shape_of(at)));
}

FL_T *FL_W(take_along)(FL_T *x, fl_tensor *index, int axis) {
    const char *fn = "fl_take_along";
    if (FL_ABSENT("take_along", x) || !fl__is_index(fn, index)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_axis_of(fn, t, axis)) < 0) return NULL;
    fl_shape whole = fl_shape_of(t), places = fl_shape_of(index);
    bool fits = places.ndim == whole.ndim;
    for (int i = 0; fits && i < whole.ndim; i++) {
        int64_t a = whole.dim[i], b = places.dim[i];
        if (i == axis) continue;
        fits = a == b || a == 1 || b == 1;
        whole.dim[i] = places.dim[i] = a == 1 ? b : a;
    }
    if (!fits)
        return fl_bad("%s: index of shape %s for shape %s, axis %d", fn, FL_SHAPE_TEXT(index),
                       FL_SHAPE_TEXT(t), axis);
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl_expand(index, places);
    return FL_GIVE(&s, FL_W(gather)(FL_W(expand)(x, whole), axis, at));
}

FL_T *FL_W(index)(FL_T *x, fl_tensor *const *index, int n) {
    if (FL_ABSENT("index", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *at = fl__flat_index("fl_index", FL_VALUE(x), index, n, &shape);
    if (!at) return FL_GIVE(&s, NULL);
    FL_T *rows = FL_W(index_select)(FL_W(_lead_rows)(x, n), 0, at);
    return FL_GIVE(&s, FL_W(reshape)(rows, fl__and_rest(shape, FL_VALUE(x), n)));
}

FL_T *FL_W(index_put)(FL_T *x, fl_tensor *const *index, int n, FL_T *values, bool accumulate) {
    if (FL_ABSENT("index_put", x) || FL_ABSENT("index_put", values)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *t = FL_VALUE(x), *at = fl__flat_index("fl_index_put", t, index, n, &shape);
    FL_T *rows = at ? FL_W(_lead_rows)(x, n) : NULL;
    if (!rows) return FL_GIVE(&s, NULL);
    if (FL_VALUE(values)->weak) values = FL_W(cast)(values, t->dtype);
    fl_shape part = FL_SHAPE(fl_numel(at), FL_VALUE(rows)->shape[1]);
    values = FL_W(expand)(values, fl__and_rest(shape, t, n));
    values = FL_W(reshape)(values, part);
    at = fl_expand(fl_unsqueeze(at, 1), part);
    FL_T *y =
        accumulate ? FL_W(scatter_add)(rows, 0, at, values) : FL_W(scatter)(rows, 0, at, values);
    return FL_GIVE(&s, FL_W(reshape)(y, fl_shape_of(t)));
}

FL_T *FL_W(index_add)(FL_T *x, int axis, fl_tensor *index, FL_T *src, double alpha) {
    const char *fn = "fl_index_add";
    if (FL_ABSENT("index_add", x) || FL_ABSENT("index_add", src)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_axis_of(fn, t, axis)) < 0) return NULL;
    bool is_float = fl_dtype_is_float(t->dtype);
    if (!is_float && !(alpha == floor(alpha) && fabs(alpha) < 0x1p63))
        return fl_bad("%s: alpha %g for %s", fn, alpha, fl_dtype_name(t->dtype));
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__along_axis(fn, t, axis, index, FL_VALUE(src));
    if (!at) return FL_GIVE(&s, NULL);
    FL_T *factor = is_float ? CONST(alpha) : FL_OF(fl_int((int64_t)alpha));
    if (alpha != 1) src = MUL(factor, src);
    return FL_GIVE(&s, FL_W(scatter_add)(x, axis, at, src));
}

FL_T *FL_W(index_copy)(FL_T *x, int axis, fl_tensor *index, FL_T *src) {
    if (FL_ABSENT("index_copy", x) || FL_ABSENT("index_copy", src)) return NULL;
    if ((axis = fl_axis_of("fl_index_copy", FL_VALUE(x), axis)) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__along_axis("fl_index_copy", FL_VALUE(x), axis, index, FL_VALUE(src));
    return FL_GIVE(&s, at ? FL_W(scatter)(x, axis, at, src) : NULL);
}

FL_T *FL_W(index_fill)(FL_T *x, int axis, fl_tensor *index, double value) {
    if (FL_ABSENT("index_fill", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if ((axis = fl_axis_of("fl_index_fill", t, axis)) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl__wrapped("fl_index_fill", index, axis, t->shape[axis]);
    if (at) at = fl__along_axis("fl_index_fill", t, axis, at, NULL);
    if (!at) return FL_GIVE(&s, NULL);
    fl_tensor *src = fl_expand(fl__number_beside(t, value, t->dtype), fl_shape_of(at));
    return FL_GIVE(&s, FL_W(scatter)(x, axis, at, FL_OF(src)));
}

/* >>masks */

FL_T *FL_W(masked_fill)(FL_T *x, fl_tensor *mask, double value) {
    if (FL_ABSENT("masked_fill", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_fill", FL_VALUE(x), mask, &shape);
    fl_tensor *number = over ? fl__number_beside(FL_VALUE(x), value, FL_VALUE(x)->dtype) : NULL;
    return FL_GIVE(&s, number ? SELECT(FL_OF(over), FL_OF(number), x) : NULL);
}

FL_T *FL_W(masked_select)(FL_T *x, fl_tensor *mask) {
    if (FL_ABSENT("masked_select", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_select", FL_VALUE(x), mask, &shape);
    FL_T *line = over ? FL_W(expand)(x, shape) : NULL;
    fl_tensor *at = line ? fl__true_places(over) : NULL;
    return FL_GIVE(&s, at ? FL_W(index_select)(FL_W(_as_vector)(line), 0, at) : NULL);
}

FL_T *FL_W(masked_scatter)(FL_T *x, fl_tensor *mask, FL_T *src) {
    if (FL_ABSENT("masked_scatter", x) || FL_ABSENT("masked_scatter", src)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape shape;
    fl_tensor *over = fl__mask_over("fl_masked_scatter", FL_VALUE(x), mask, &shape);
    FL_T *line = over ? FL_W(expand)(x, shape) : NULL;
    fl_tensor *at = line ? fl__true_places(over) : NULL;
    if (!at) return FL_GIVE(&s, NULL);
    int64_t n = fl_numel(at), have = fl_numel(FL_VALUE(src));
    if (have < n) {
        fl_scope_end(&s);
        return fl_bad("fl_masked_scatter: %lld elements for %lld places", (long long)have,
                       (long long)n);
    }
    FL_T *part = FL_W(slice)(FL_W(_as_vector)(src), 0, 0, n, 1);
    return FL_GIVE(&s, FL_W(reshape)(FL_W(scatter)(FL_W(_as_vector)(line), 0, at, part), shape));
}

/* >>counts */

FL_T *FL_W(bincount)(fl_tensor *x, FL_T *weights, int64_t least) {
    const char *fn = "fl_bincount";
    if (fl_absent(fn, x)) return NULL;
    fl_dtype d = x->dtype;
    if (x->ndim != 1 || d == FL_B8 || fl_dtype_is_float(d) || least < 0)
        return fl_bad("%s: %s of shape %s, at least %lld bins", fn, fl_dtype_name(d),
                       FL_SHAPE_TEXT(x), (long long)least);
    if (weights && !fl_same_shape(x, FL_VALUE(weights)))
        return fl_bad("%s: weights of shape %s for shape %s", fn,
                       FL_SHAPE_TEXT(FL_VALUE(weights)), FL_SHAPE_TEXT(x));
    fl_scope s = fl_scope_begin();
    if (!(x = fl_cast(x, FL_I64))) return FL_GIVE(&s, NULL);
    int64_t most = fl_numel(x) ? fl_item_int(fl_amax(x, FL_ALL_AXES)) : -1;
    if (most == INT64_MAX)
        return FL_GIVE(&s, fl_bad("%s: %lld is too large", fn, (long long)most));
    int64_t bins = most >= least ? most + 1 : least;
    FL_T *w = weights ? weights : FL_OF(fl_full_like(x, 1));
    if (weights && FL_VALUE(w)->dtype != FL_F32) w = FL_W(cast)(w, FL_F64);
    if (!w) return FL_GIVE(&s, NULL);
    fl_tensor *none = fl__number_beside(x, 0, FL_VALUE(w)->dtype);
    FL_T *zeros = FL_OF(fl_expand(none, FL_SHAPE(bins)));
    return FL_GIVE(&s, FL_W(scatter_add)(zeros, 0, x, w));
}

#ifdef FL_ON_TENSORS

fl_tensor *fl_histc(fl_tensor *x, int64_t bins, double low, double high) {
    if (fl_absent("fl_histc", x)) return NULL;
    if (bins < 1 || !(low <= high) || !isfinite(high - low))
        return fl_bad("fl_histc: %lld bins from %g to %g", (long long)bins, low, high);
    fl_scope s = fl_scope_begin();
    fl_tensor *given = fl__floating(x);
    if (!given || !(x = fl__as_vector(fl__widened(given)))) return FL_GIVE(&s, NULL);
    if (low == high && fl_numel(x)) {
        low = fl_item(fl_amin(x, FL_ALL_AXES));
        high = fl_item(fl_amax(x, FL_ALL_AXES));
        if (!isfinite(high - low))
            return FL_GIVE(&s, fl_bad("fl_histc: elements from %g to %g", low, high));
    }
    if (low == high) low -= 1, high += 1;
    fl_tensor *inside = AND(LE(CONST(low), x), LE(x, CONST(high)));
    fl_tensor *at = DIV(MUL(SUB(x, CONST(low)), CONST((double)bins)), CONST(high - low));
    at = fl_cast(SELECT(inside, at, CONST(0)), FL_I64);
    at = fl_minimum(at, fl_int(bins - 1));
    fl_tensor *none = fl_expand(fl__number_beside(x, 0, FL_I64), FL_SHAPE(bins));
    fl_tensor *counts = at ? fl_scatter_add(none, 0, at, fl_cast(inside, FL_I64)) : NULL;
    return FL_GIVE(&s, fl_cast(counts, given->dtype));
}

bool fl_ix(fl_tensor *const *index, int n, fl_tensor **grid) {
    if (fl_absent("fl_ix", index) || fl_absent("fl_ix", grid)) return false;
    if (n < 1 || n > FL_MAX_DIMS) return fl_refuse("fl_ix: %d indices", n);
    for (int i = 0; i < n; i++) {
        fl_shape s = {n, {1, 1, 1, 1, 1, 1, 1, 1}};
        if (!fl__is_index("fl_ix", index[i])) return false;
        if (index[i]->ndim != 1)
            return fl_refuse("fl_ix: index %d has shape %s, not one dim", i,
                           FL_SHAPE_TEXT(index[i]));
        s.dim[i] = index[i]->shape[0];
        if (!(grid[i] = fl_reshape(index[i], s))) return false;
    }
    return true;
}

/* >>order */

/* Of a vector whose equal elements are neighbours: one of each run. order[i] (NULL: i) is where
   element i stands in *inverse, of the given shape. */
static fl_tensor *fl__runs(fl_scope *s, fl_tensor *line, fl_tensor *order, fl_shape shape,
                           fl_tensor **inverse, fl_tensor **counts) {
    int64_t n = line ? line->shape[0] : 0;
    fl_tensor *first = line ? fl_expand(fl__number_beside(line, 1, FL_B8), FL_SHAPE(n > 0)) : NULL;
    fl_tensor *change = fl_ne(fl_slice(line, 0, 1, n, 1), fl_slice(line, 0, 0, n ? n - 1 : 0, 1));
    fl_tensor *heads = first ? fl_concat((fl_tensor *[]){first, change}, 2, 0) : NULL;
    fl_tensor *start = heads ? fl__true_places(heads) : NULL;
    if (!start) return FL_GIVE(s, NULL);
    fl_tensor *run = fl_sub(fl_cumsum(heads, 0), fl_int(1));
    if (order) run = fl_scatter(fl_full_like(order, 0), 0, order, run);
    run = fl_reshape(run, shape);
    fl_tensor *end = fl_expand(fl__number_beside(line, (double)n, FL_I64), FL_SHAPE(1));
    fl_tensor *edges = fl_concat((fl_tensor *[]){start, end}, 2, 0);
    int64_t runs = start->shape[0];
    fl_tensor *sizes = fl_sub(fl_slice(edges, 0, 1, runs + 1, 1), fl_slice(edges, 0, 0, runs, 1));
    fl_tensor *y = fl_index_select(line, 0, start);
    if (!y || !run || !sizes) return FL_GIVE(s, NULL);
    if (inverse) *inverse = FL_PROMOTE(s, run);
    if (counts) *counts = FL_PROMOTE(s, sizes);
    return FL_GIVE(s, y);
}

fl_tensor *fl_unique(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts) {
    if (fl_absent("fl_unique", x)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *order = NULL, *line = fl_sort(fl__as_vector(x), 0, false, &order);
    return fl__runs(&s, line, order, fl_shape_of(x), inverse, counts);
}

fl_tensor *fl_unique_consecutive(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts) {
    if (fl_absent("fl_unique_consecutive", x)) return NULL;
    fl_scope s = fl_scope_begin();
    return fl__runs(&s, fl__as_vector(x), NULL, fl_shape_of(x), inverse, counts);
}

/* at + step where the element before that place comes before v, else at. NaN comes last. */
static fl_tensor *fl__step_right(fl_tensor *sorted, fl_tensor *v, bool right, fl_tensor *at,
                                 int64_t step) {
    fl_scope s = fl_scope_begin();
    fl_tensor *size = fl_int(sorted->shape[sorted->ndim - 1]), *to = fl_add(at, fl_int(step));
    fl_tensor *there = fl_sub(fl_minimum(to, size), fl_int(1));
    fl_tensor *e = fl_gather(sorted, -1, there);
    fl_tensor *before =
        right ? OR(LE(e, v), fl_ne(v, v)) : OR(LT(e, v), AND(EQ(e, e), fl_ne(v, v)));
    return FL_GIVE(&s, fl_where(AND(before, LE(to, size)), to, at));
}

fl_tensor *fl_searchsorted(fl_tensor *sorted, fl_tensor *v, bool right) {
    if (fl_absent("fl_searchsorted", sorted) || fl_absent("fl_searchsorted", v)) return NULL;
    bool fits = sorted->ndim == 1 || (sorted->ndim > 1 && sorted->ndim == v->ndim);
    for (int i = 0; fits && i < sorted->ndim - 1; i++) fits = sorted->shape[i] == v->shape[i];
    if (!fits)
        return fl_bad("fl_searchsorted: values of shape %s in %s", FL_SHAPE_TEXT(v),
                       FL_SHAPE_TEXT(sorted));
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(v);
    int64_t n = sorted->shape[sorted->ndim - 1], step = 1;
    if (sorted->ndim == 1) v = fl__as_vector(v);
    fl_tensor *at = v ? fl_expand(fl__number_beside(sorted, 0, FL_I64), fl_shape_of(v)) : NULL;
    while (step <= n / 2) step *= 2;
    for (; at && n && step; step /= 2) at = fl__step_right(sorted, v, right, at, step);
    return FL_GIVE(&s, fl_contiguous(fl_reshape(at, shape)));
}

fl_tensor *fl_isin(fl_tensor *x, fl_tensor *among) {
    if (fl_absent("fl_isin", x) || fl_absent("fl_isin", among)) return NULL;
    fl_scope s = fl_scope_begin();
    int64_t n = fl_numel(among);
    fl_tensor *none = n ? NULL : fl__number_beside(x, 0, FL_B8);
    if (!n) return FL_GIVE(&s, fl_contiguous(fl_expand(none, fl_shape_of(x))));
    fl_tensor *sorted = fl_sort(fl__as_vector(among), 0, false, NULL);
    fl_tensor *at = sorted ? fl_searchsorted(sorted, x, false) : NULL;
    fl_tensor *found = at ? fl_take(sorted, fl_minimum(at, fl_int(n - 1))) : NULL;
    return FL_GIVE(&s, found ? fl_eq(found, x) : NULL);
}
#endif
#endif
/* MIT licence: see LICENSE. */
