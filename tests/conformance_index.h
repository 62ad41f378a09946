/* conformance_index.h - take, index, index_put, index_add, index_copy, index_fill, the masked ops,
   unique, searchsorted, isin, and single checks of bincount, histc and ix */
#include "conformance.h"

/* 0 .. below - 1, so that repeats are many and sums exact */
static array small_array(fl_shape s, fl_dtype d, int64_t below) {
    array a = new_array(s, d);
    for (int64_t k = 0; k < a.n; k++) {
        int64_t v = random_below(below);
        if (is_float(d))
            put_float(&a, k, (double)v);
        else
            put_int(&a, k, v);
    }
    return a;
}

static double value_at(const array *a, int64_t k) {
    return is_float(a->dtype) ? a->f[k] : (double)a->i[k];
}

/* Indices in [-size, size). */
static array signed_index(fl_shape s, int64_t size) {
    array a = new_array(s, FL_I64);
    for (int64_t k = 0; k < a.n; k++) put_int(&a, k, random_below(2 * size) - size);
    return a;
}

static int64_t unsigned_at(const array *index, int64_t k, int64_t size) {
    return index->i[k] < 0 ? index->i[k] + size : index->i[k];
}

static layout fitting(layout l, fl_shape s) {
    return layout_fits(l, s) ? l : DENSE;
}

/* >>coordinates: x[i, j] with i [5] and j [2, 1] */

static int64_t coords_place(const array *i, const array *j, fl_shape x, fl_shape y, int64_t k) {
    int64_t c[FL_MAX_DIMS] = {0};
    coords_of(y, k, c);
    c[1] = unsigned_at(i, c[1], x.dim[0]);
    c[0] = unsigned_at(j, c[0], x.dim[1]);
    int64_t swapped[FL_MAX_DIMS] = {c[1], c[0]};
    for (int d = 2; d < x.ndim; d++) swapped[d] = c[d];
    return index_of(x, swapped);
}

static void coords_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    if (!case_begin(name, d, l, "%d dims", s.ndim)) return;
    bool put = strcmp(name, "index"), add = !strcmp(name, "index_put_add");
    fl_shape to = s;
    to.dim[0] = 2, to.dim[1] = 5;
    array i = signed_index(FL_SHAPE(5), s.dim[0]), j = signed_index(FL_SHAPE(2, 1), s.dim[1]);
    array x = add ? small_array(s, d, 9) : random_array(s, d, WILD);
    array v = add ? small_array(to, d, 9) : random_array(to, d, WILD);
    array want = put ? cast_array(&x, d) : new_array(to, d);
    for (int64_t k = 0; k < v.n; k++) { /* in order */
        int64_t at = coords_place(&i, &j, s, to, k);
        if (!put)
            put_from(&want, k, &x, at);
        else if (!add)
            put_from(&want, at, &v, k);
        else if (is_float(d))
            put_float(&want, at, want.f[at] + v.f[k]);
        else
            put_int(&want, at, want.i[at] + v.i[k]);
    }
    fl_tensor *t = lay_out(&x, l), *src = lay_out(&v, fitting(l, to));
    fl_tensor *index[] = {dense_tensor(&i), dense_tensor(&j)};
    fl_tensor *y = put ? fl_index_put(t, index, 2, src, add) : fl_index(t, index, 2);
    case_end(equals(y, &want) && equals(t, &x));
}

static void take_case(fl_dtype d, layout l, fl_shape s) {
    if (!case_begin("take", d, l, "%d dims", s.ndim)) return;
    operand x = make_operand(s, d, l, WILD);
    array index = signed_index(FL_SHAPE(3, 2), x.a.n), want = new_array(FL_SHAPE(3, 2), d);
    for (int64_t k = 0; k < 6; k++) put_from(&want, k, &x.a, unsigned_at(&index, k, x.a.n));
    case_end(equals(fl_take(x.t, dense_tensor(&index)), &want));
}

/* >>along an axis */

static void part_case(const char *name, fl_dtype d, layout l, fl_shape s, int axis) {
    if (!case_begin(name, d, l, "%d dims, axis %d", s.ndim, axis)) return;
    bool add = !strcmp(name, "index_add"), fill = !strcmp(name, "index_fill");
    fl_shape part = s;
    part.dim[axis] = 5;
    array index = signed_index(FL_SHAPE(5), s.dim[axis]);
    array x = add ? small_array(s, d, 9) : random_array(s, d, WILD);
    array v = add ? small_array(part, d, 9) : random_array(part, d, WILD);
    array want = cast_array(&x, d);
    for (int64_t k = 0; k < 5; k++)
        if (!fill) put_int(&index, k, unsigned_at(&index, k, s.dim[axis]));
    for (int64_t k = 0; k < v.n; k++) {
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(part, k, c);
        c[axis] = unsigned_at(&index, c[axis], s.dim[axis]);
        int64_t at = index_of(s, c);
        if (fill && is_float(d))
            put_float(&want, at, 3);
        else if (fill)
            put_int(&want, at, 3);
        else if (!add)
            put_from(&want, at, &v, k);
        else if (is_float(d))
            put_float(&want, at, want.f[at] - 2 * v.f[k]);
        else
            put_int(&want, at, want.i[at] - 2 * v.i[k]);
    }
    fl_tensor *t = lay_out(&x, l), *src = lay_out(&v, fitting(l, part)), *at = dense_tensor(&index);
    case_end(equals(add    ? fl_index_add(t, axis - s.ndim, at, src, -2)
                    : fill ? fl_index_fill(t, axis, at, 3)
                           : fl_index_copy(t, axis, at, src),
                    &want));
}

/* >>masks, of x's shape or of its last dim */

static void mask_case(const char *name, fl_dtype d, layout l, fl_shape s, bool whole) {
    if (!case_begin(name, d, l, "%d dims, %s", s.ndim, whole ? "whole" : "last")) return;
    bool fill = !strcmp(name, "masked_fill"), pick = !strcmp(name, "masked_select");
    operand x = make_operand(s, d, l, WILD), src = make_operand(s, d, l, WILD);
    fl_shape of = whole ? s : FL_SHAPE(s.dim[s.ndim - 1]);
    array mask = small_array(of, FL_B8, 2), want = cast_array(&x.a, d);
    int64_t n = 0;
    for (int64_t k = 0; k < x.a.n; k++) {
        if (!mask.i[k % mask.n]) continue;
        if (pick)
            put_from(&want, n, &x.a, k);
        else if (!fill)
            put_from(&want, k, &src.a, n);
        else if (is_float(d))
            put_float(&want, k, 3);
        else
            put_int(&want, k, 3);
        n++;
    }
    if (pick) want.shape = FL_SHAPE(n), want.n = n;
    fl_tensor *m = lay_out(&mask, fitting(l, of));
    case_end(equals(fill   ? fl_masked_fill(x.t, m, 3)
                    : pick ? fl_masked_select(x.t, m)
                           : fl_masked_scatter(x.t, m, src.t),
                    &want));
}

/* >>what sorting finds out */

static void unique_case(fl_dtype d, layout l, fl_shape s) {
    if (!case_begin("unique", d, l, "%d dims", s.ndim)) return;
    array x = small_array(s, d, 5);
    int64_t times[5] = {0}, place[5] = {0}, n = 0;
    for (int64_t k = 0; k < x.n; k++) times[(int)value_at(&x, k)]++;
    for (int v = 0; v < 5; v++) place[v] = n, n += times[v] > 0;
    array want = new_array(FL_SHAPE(n), d), inverse = new_array(s, FL_I64);
    array sizes = new_array(FL_SHAPE(n), FL_I64);
    for (int64_t k = 0; k < x.n; k++) {
        int v = (int)value_at(&x, k);
        put_from(&want, place[v], &x, k);
        put_int(&inverse, k, place[v]);
        put_int(&sizes, place[v], times[v]);
    }
    fl_tensor *back = NULL, *many = NULL;
    bool ok = equals(fl_unique(lay_out(&x, l), &back, &many), &want);
    case_end(ok && equals(back, &inverse) && equals(many, &sizes));
}

/* Which of slices i and j along axis comes first, row-major: below 0, above 0, or 0 for equal ones. */
static int slice_order(const array *x, fl_shape s, int axis, int64_t i, int64_t j) {
    for (int64_t k = 0; k < x->n; k++) {
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(s, k, c);
        if (c[axis] != 0) continue;
        c[axis] = i;
        double u = value_at(x, index_of(s, c));
        c[axis] = j;
        double v = value_at(x, index_of(s, c));
        if (u != v) return u < v ? -1 : 1;
    }
    return 0;
}

static void unique_dim_case(fl_dtype d, layout l, fl_shape s, int axis) {
    if (!case_begin("unique_dim", d, l, "%d dims, axis %d", s.ndim, axis)) return;
    array x = small_array(s, d, 2);
    fl_shape to = s;
    const int64_t n = s.dim[axis];
    int64_t place[8], many[8] = {0}, runs = 0;
    for (int64_t i = 0; i < n; i++) { /* distinct slices that come before */
        place[i] = 0;
        for (int64_t j = 0; j < n; j++) {
            bool first = slice_order(&x, s, axis, j, i) < 0;
            for (int64_t m = 0; m < j; m++) first = first && slice_order(&x, s, axis, m, j) != 0;
            place[i] += first;
        }
        runs += many[place[i]]++ == 0;
    }
    to.dim[axis] = runs;
    array want = new_array(to, d), inverse = new_array(FL_SHAPE(n), FL_I64),
        sizes = new_array(FL_SHAPE(runs), FL_I64);
    for (int64_t k = 0; k < x.n; k++) {
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(s, k, c);
        put_int(&inverse, c[axis], place[c[axis]]);
        c[axis] = place[c[axis]];
        put_from(&want, index_of(to, c), &x, k);
    }
    for (int64_t i = 0; i < runs; i++) put_int(&sizes, i, many[i]);
    fl_tensor *back = NULL, *times = NULL;
    bool ok = equals(fl_unique_dim(lay_out(&x, l), axis - s.ndim, &back, &times), &want);
    case_end(ok && equals(back, &inverse) && equals(times, &sizes));
}

/* The first slice of each run, the number of its run for each, and the length of each run. */
static void runs_dim_case(fl_dtype d, layout l, fl_shape s, int axis) {
    if (!case_begin("unique_consecutive_dim", d, l, "%d dims, axis %d", s.ndim, axis)) return;
    array x = small_array(s, d, 2), inverse = new_array(FL_SHAPE(s.dim[axis]), FL_I64);
    fl_shape to = s;
    int64_t many[8] = {0}, runs = 0;
    for (int64_t i = 0; i < s.dim[axis]; i++) {
        runs += i == 0 || slice_order(&x, s, axis, i - 1, i) != 0;
        put_int(&inverse, i, runs - 1);
        many[runs - 1]++;
    }
    to.dim[axis] = runs;
    array want = new_array(to, d), sizes = new_array(FL_SHAPE(runs), FL_I64);
    for (int64_t k = 0; k < x.n; k++) {
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(s, k, c);
        c[axis] = inverse.i[c[axis]];
        put_from(&want, index_of(to, c), &x, k);
    }
    for (int64_t i = 0; i < runs; i++) put_int(&sizes, i, many[i]);
    fl_tensor *back = NULL, *times = NULL;
    bool ok = equals(fl_unique_consecutive_dim(lay_out(&x, l), axis - s.ndim, &back, &times), &want);
    case_end(ok && equals(back, &inverse) && equals(times, &sizes));
}

/* In order, in f64 or i64; small numbers, of which nothing rounds but quotients. */
static void scatter_reduce_case(fl_dtype d, layout l, fl_shape s, int axis, fl_scatter_mode way, bool self) {
    if (!case_begin("scatter_reduce", d, l, "%d dims, axis %d, way %d %d", s.ndim, axis, way, self)) return;
    fl_shape part = s;
    part.dim[axis] = 5;
    array x = small_array(s, d, 4), src = small_array(part, d, 4), index = new_array(part, FL_I64);
    array want = cast_array(&x, d), count = new_array(s, FL_I64);
    for (int64_t k = 0; k < src.n; k++) {
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(part, k, c);
        c[axis] = random_below(s.dim[axis]);
        put_int(&index, k, c[axis]);
        const int64_t at = index_of(s, c);
        const double a = value_at(&want, at), b = value_at(&src, k);
        const double y = !self && !count.i[at]     ? b
                         : way == FL_SCATTER_PROD  ? a * b
                         : way == FL_SCATTER_AMAX  ? fmax(a, b)
                         : way == FL_SCATTER_AMIN  ? fmin(a, b)
                                                   : a + b;
        if (is_float(d)) put_float(&want, at, y);
        else put_int(&want, at, (int64_t)y);
        put_int(&count, at, count.i[at] + 1);
    }
    for (int64_t k = 0; k < want.n && way == FL_SCATTER_MEAN; k++) {
        const int64_t n = count.i[k] + self;
        if (!count.i[k]) continue;
        if (is_float(d)) put_float(&want, k, want.f[k] / (double)n);
        else put_int(&want, k, want.i[k] / n);
    }
    fl_tensor *t = fl_scatter_reduce(lay_out(&x, l), axis, dense_tensor(&index),
                                     lay_out(&src, fitting(l, part)),
                                     way, self);
    case_end(equals(t, &want));
}

static void search_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    if (!case_begin(name, d, l, "%d dims", s.ndim)) return;
    bool in = !strcmp(name, "isin"), right = random_below(2);
    array x = small_array(s, d, 9), line = small_array(FL_SHAPE(7), d, 9);
    array want = new_array(s, in ? FL_B8 : FL_I64);
    for (int64_t k = 0; k < x.n; k++) {
        int64_t below = 0, equal = 0;
        for (int i = 0; i < 7; i++) {
            below += value_at(&line, i) < value_at(&x, k);
            equal += value_at(&line, i) == value_at(&x, k);
        }
        put_int(&want, k, in ? equal > 0 : right ? below + equal : below);
    }
    fl_tensor *t = lay_out(&x, l), *list = dense_tensor(&line);
    fl_tensor *order = fl_argsort(list, 0, false), *sorted = fl_sort(list, 0, false, NULL);
    if (in) case_end(equals(fl_isin(t, list), &want));
    else if (random_below(2)) case_end(equals(fl_searchsorted(sorted, t, right), &want));
    else case_end(equals(fl_searchsorted(list, t, right, .sorter = order), &want));
}

static void composed_index_cases(fl_dtype d, layout l, fl_shape s) {
    static const char *const coords[] = {"index", "index_put", "index_put_add"};
    static const char *const parts[] = {"index_copy", "index_fill", "index_add"};
    static const char *const masks[] = {"masked_fill", "masked_select", "masked_scatter"};
    bool computed = takes(COMPUTED, d), adds = takes(NUMBERS, d);
    take_case(d, l, s);
    for (int i = 0; i < 2 + adds; i++) coords_case(coords[i], d, l, s);
    for (int i = 0; i < 2 + adds; i++)
        for (int axis = 0; axis < s.ndim; axis++) part_case(parts[i], d, l, s, axis);
    for (int i = 0; computed && i < 6; i++) mask_case(masks[i / 2], d, l, s, i % 2);
    if (!computed) return;
    unique_case(d, l, s);
    for (int axis = 0; axis < s.ndim; axis++) unique_dim_case(d, l, s, axis), runs_dim_case(d, l, s, axis);
    for (int i = 0; adds && i < 10; i++)
        scatter_reduce_case(d, l, s, i % s.ndim, (fl_scatter_mode)(i / 2), i % 2);
    search_case("searchsorted", d, l, s);
    search_case("isin", d, l, s);
}

static void count_checks(void) {
    fl_scope s = fl_scope_begin();
    int64_t bins[5], want[] = {1, 0, 2, 0, 0}, places[6];
    float sums[3], heights[4];
    fl_tensor *x = fl_from_host((int64_t[]){2, 0, 2}, FL_SHAPE(3), FL_I64);
    fl_tensor *w = fl_from_host((float[]){1, 2, 0.5f}, FL_SHAPE(3), FL_F32);
    check(fl_to_host(fl_bincount(x, NULL, 5), bins, sizeof bins) &&
              !memcmp(bins, want, sizeof want),
          "bincount, at least 5 bins");
    check(fl_to_host(fl_bincount(x, w, 0), sums, sizeof sums) && sums[0] == 2 && sums[1] == 0 &&
              sums[2] == 1.5f,
          "bincount of weights");
    w = fl_from_host((float[]){0, 1, 1.5f, 2, 4, 5, -1, NAN}, FL_SHAPE(8), FL_F32);
    check(fl_to_host(fl_histc(w, 4, 0, 4), heights, sizeof heights) && heights[0] == 1 &&
              heights[1] == 2 && heights[2] == 1 && heights[3] == 1,
          "histc: the last bin is closed, NaN and what is outside do not count");
    fl_tensor *vectors[] = {x, fl_slice(x, 0, 0, 2, 1)}, *grid[2];
    fl_tensor *m = fl_reshape(fl_arange(0, 9, 1, FL_I64), FL_SHAPE(3, 3));
    check(fl_ix(vectors, 2, grid) && fl_to_host(fl_index(m, grid, 2), places, sizeof places) &&
              !memcmp(places, (int64_t[]){8, 6, 2, 0, 8, 6}, sizeof places),
          "x[ix([2, 0, 2], [2, 0])]");
    fl_tensor *nan = fl_full(FL_SHAPE(2), NAN, FL_F32), *runs = fl_unique(nan, NULL, NULL);
    check(fl_numel(runs) == 2, "unique: each NaN is one");
    check(fl_numel(fl_take(fl_zeros(FL_SHAPE(0), FL_F32), fl_zeros(FL_SHAPE(0), FL_I64))) == 0,
          "take of nothing from nothing");
    check(!fl_error(), "no error is left");
    fl_scope_end(&s);
}

static void composed_index_group(void) {
    static const char *const any[] = {
        "take",          "index",          "index_put", "index_copy",   "index_fill", "masked_fill",
        "masked_select", "masked_scatter", "unique",    "searchsorted", "isin", "unique_dim",
        "unique_consecutive_dim"};
    for (int i = 0; i < 13; i++) expect_row(any[i], i < 5 ? STORED : COMPUTED, UNWEAK, 0, 0);
    expect_row("index_put_add", NUMBERS, UNWEAK, 0, 0);
    expect_row("index_add", NUMBERS, UNWEAK, 0, 0);
    expect_row("scatter_reduce", NUMBERS, UNWEAK, 0, 0);
    const fl_shape of[] = {FL_SHAPE(4, 3), FL_SHAPE(3, 4, 2), FL_SHAPE(2, 3, 4, 2)};
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int i = 0; i < 3; i++)
                if (layout_fits((layout)l, of[i]))
                    composed_index_cases(all_dtypes[k], (layout)l, of[i]);
    count_checks();
}
/* MIT licence: see LICENSE. */
