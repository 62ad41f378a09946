/* conformance_order.h - what depends on order along an axis: cumsum cumprod sort argsort topk
   nonzero, and scatter, which writes in order */
#include "conformance.h"

/* Element k of s with its coordinate along axis replaced. */
static int64_t beside(fl_shape s, int64_t k, int axis, int64_t at) {
    int64_t c[FL_MAX_DIMS] = {0};
    coords_of(s, k, c);
    c[axis] = at;
    return index_of(s, c);
}

static int64_t along(fl_shape s, int64_t k, int axis) {
    int64_t c[FL_MAX_DIMS] = {0};
    coords_of(s, k, c);
    return c[axis];
}

/* >>cumulative: f64 sums in order, as f32 does too; the slack grows with the terms' sizes */

static void cumulative_case(const char *name, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    bool sum = !strcmp(name, "cumsum");
    if (!case_begin(name, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    operand x = make_operand(s, d, l, TAME);
    array want = new_array(s, is_float(d) ? d : FL_I64);
    double *scale = take((size_t)x.a.n * 8 + 8);
    for (int64_t k = 0; k < x.a.n; k++) {
        int64_t at = along(s, k, axis), before = at ? beside(s, k, axis, at - 1) : 0;
        double v = x.a.f[k], so_far = at ? want.f[before] : sum ? 0 : 1;
        int64_t i = x.a.i[k], count = at ? want.i[before] : sum ? 0 : 1;
        if (is_float(d)) want.f[k] = sum ? so_far + v : so_far * v;
        else put_int(&want, k, sum ? i_add(count, i) : i_mul(count, i));
        scale[k] = sum ? (at ? scale[before] : 0) + fabs(v) : fabs(want.f[k]) * (double)(at + 1);
    }
    int given = axis - (int)random_below(2) * s.ndim;
    fl_tensor *y = sum ? fl_cumsum(x.t, given) : fl_cumprod(x.t, given);
    case_end(agrees(y, &want, (tolerance){0.5, rounding(l, (double)s.dim[axis]), 1}, scale, false));
}

/* >>sorting: places by counting what must come before, which is stable by construction */

static bool comes_before(const array *a, int64_t j, int64_t k, bool descending) {
    double u = a->f[j], v = a->f[k];
    int64_t turn = a->dtype == FL_U64 ? INT64_MIN : 0, m = a->i[j] ^ turn, n = a->i[k] ^ turn;
    bool less = is_float(a->dtype) ? !isnan(u) && (isnan(v) || u < v) : m < n;
    bool more = is_float(a->dtype) ? !isnan(v) && (isnan(u) || v < u) : n < m;
    return descending ? more : less;
}

static int64_t rank_of(const array *a, int64_t k, int axis, bool descending) {
    int64_t rank = 0, at = along(a->shape, k, axis);
    for (int64_t i = 0; i < a->shape.dim[axis]; i++) {
        int64_t j = beside(a->shape, k, axis, i);
        bool tie = !comes_before(a, j, k, descending) && !comes_before(a, k, j, descending);
        rank += tie ? i < at : comes_before(a, j, k, descending);
    }
    return rank;
}

/* want, places: the first `keep` along axis of a in order. */
static void sorted(const array *a, int axis, bool descending, array *want, array *places) {
    for (int64_t k = 0; k < a->n; k++) {
        int64_t rank = rank_of(a, k, axis, descending);
        if (rank >= want->shape.dim[axis]) continue;
        int64_t c[FL_MAX_DIMS] = {0};
        coords_of(a->shape, k, c);
        int64_t at = c[axis];
        c[axis] = rank;
        put_from(want, index_of(want->shape, c), a, k);
        put_int(places, index_of(want->shape, c), at);
    }
}

static void sort_case(const char *name, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin(name, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    bool top = !strcmp(name, "topk"), down = random_below(2);
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    int64_t k = s.dim[axis] ? random_below(s.dim[axis] + 1) : 0;
    fl_shape to = s;
    if (top) to.dim[axis] = k;
    array want = new_array(to, d), places = new_array(to, FL_I64);
    if (want.n) sorted(&x.a, axis, down, &want, &places);
    int given = axis - (int)random_below(2) * s.ndim;
    fl_tensor *index = NULL, *y;
    if (!strcmp(name, "argsort")) {
        case_end(equals(fl_argsort(x.t, given, down), &places));
        return;
    }
    y = top ? fl_topk(x.t, k, given, !down, &index) : fl_sort(x.t, given, down, &index);
    case_end(agrees(y, &want, EXACT, NULL, false) && equals(index, &places));
}

/* A few of a long line are found by selection: the same elements as the first of the sorted line,
   with and without many ties, in either direction of order. */
static void long_topk_case(fl_tensor *x, int64_t k, bool smallest) {
    fl_tensor *some, *all, *y = fl_topk(x, k, 0, smallest, &some),
                           *sorted_x = fl_sort(x, 0, !smallest, &all);
    fl_tensor *first = fl_slice(sorted_x, 0, 0, k, 1), *places = fl_slice(all, 0, 0, k, 1);
    int64_t n = fl_numel(y), wrong = fl_item_int(fl_sum(fl_ne(some, places), FL_ALL_AXES));
    bool nan = fl_dtype_is_float(x->dtype);
    fl_tensor *same = nan ? fl_logical_or(fl_eq(y, first), fl_ne(first, first)) : fl_eq(y, first);
    check(wrong == 0 && fl_item_int(fl_sum(same, FL_ALL_AXES)) == n, "topk is the first of sort");
}

static void long_topk_cases(void) {
    static const int64_t keep[] = {1, 50, 300, 620};
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    fl_tensor *x[5] = {fl_normal(FL_SHAPE(5000, 3), 0, 1, FL_F32, &rng),
                       fl_randint(FL_SHAPE(5000, 2), 0, 40, &rng),
                       fl_arange(0, 6000, 1, FL_F64), fl_zeros(FL_SHAPE(5000), FL_F32)};
    x[4] = fl_sqrt(x[0]); /* half of it NaN */
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 8; k++) long_topk_case(x[i], keep[k / 2], k % 2);
    fl_scope_end(&s);
}

/* An extreme of a line of many chunks: its first place, NaN before all else. */
static void long_argmax_cases(void) {
    enum { LONG = 200000 };
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(2, LONG), FL_F32);
    float *v = fl_map(x, FL_WRITE);
    int64_t most[2] = {0}, least[2] = {0};
    memset(v, 0, 2 * LONG * sizeof *v);
    v[70000] = v[150000] = 3;
    v[69999] = v[199999] = -3;
    v[LONG + 140000] = v[LONG + 190000] = NAN;
    fl_unmap(x, FL_WRITE);
    check(fl_to_host(fl_argmax(x, 1, false), most, sizeof most) && most[0] == 70000 &&
              most[1] == 140000,
          "argmax of a long line");
    check(fl_to_host(fl_argmin(x, 1, false), least, sizeof least) && least[0] == 69999 &&
              least[1] == 140000,
          "argmin of a long line");
    fl_scope_end(&s);
}

/* >>nonzero */

static void nonzero_case(fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin("nonzero", d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    int64_t n = 0, c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < x.a.n; k++) n += is_float(d) ? x.a.f[k] != 0 : x.a.i[k] != 0;
    array want = new_array(FL_SHAPE(n, s.ndim), FL_I64);
    for (int64_t k = 0, row = 0; k < x.a.n; k++) {
        if (is_float(d) ? x.a.f[k] == 0 : x.a.i[k] == 0) continue;
        coords_of(s, k, c);
        for (int i = 0; i < s.ndim; i++) put_int(&want, row * s.ndim + i, c[i]);
        row++;
    }
    case_end(equals(fl_nonzero(x.t), &want));
}

/* >>scatter: the last of equal indices along the axis stays */

static void scatter_write_case(fl_dtype d, layout l, const index_case *c, int n) {
    if (!case_begin("scatter", d, l, "%d", n)) return;
    operand x = make_operand(c->x, d, l, WILD),
            src = make_operand(c->index, d, layout_fits(l, c->index) ? l : DENSE, WILD);
    array index = random_index(c->index, c->x.dim[c->axis]), want = cast_array(&x.a, d);
    for (int64_t k = 0; k < src.a.n; k++) /* row-major order is order along every axis */
        put_from(&want, pointed(&index, c->x, c->axis, k), &src.a, k);
    fl_tensor *at = lay_out(&index, layout_fits(l, c->index) ? l : DENSE);
    bool ok = equals(fl_scatter(x.t, c->axis - c->x.ndim, at, src.t), &want);
    case_end(ok && equals(x.t, &x.a));
}

static void order_cases(fl_dtype d, layout l) {
    static const char *const sorts[] = {"sort", "argsort", "topk"};
    for (int s = 0; s < SHAPES - 1; s++) { /* the references are quadratic */
        if (!layout_fits(l, shapes[s])) continue;
        if (takes(STORED, d)) nonzero_case(d, l, shapes[s]);
        for (int axis = 0; axis < shapes[s].ndim; axis++) {
            cumulative_case("cumsum", d, l, shapes[s], axis);
            cumulative_case("cumprod", d, l, shapes[s], axis);
            for (int i = 0; i < 3; i++) sort_case(sorts[i], d, l, shapes[s], axis);
        }
    }
    for (int n = 0; n < INDEX_CASES; n++)
        if (layout_fits(l, index_cases[n].x)) scatter_write_case(d, l, &index_cases[n], n);
}

static void order_group(void) {
    static const char *const any[] = {"cumsum", "cumprod", "nonzero", "scatter"};
    static const char *const ordered[] = {"sort", "argsort", "topk"};
    for (int i = 0; i < 4; i++) expect_row(any[i], STORED, UNWEAK, 0, 0);
    for (int i = 0; i < 3; i++) expect_row(ordered[i], STORED, UNWEAK, 0, 0);
    snprintf(row_of("cumsum")->tolerance, 64, "0.5 ulp + (4 + sqrt n) eps, of sum |x|");
    snprintf(row_of("cumprod")->tolerance, 64, "0.5 ulp + n eps");
    for (int k = 0; k < DTYPES; k++) {
        for (int l = DENSE; l <= BROADCAST; l++) order_cases(all_dtypes[k], (layout)l);
    }
    long_topk_cases();
    long_argmax_cases();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_from_host((float[]){1, -0.0f, NAN, 0, 1}, FL_SHAPE(5), FL_F32), *index;
    int64_t up[5], down[5];
    check(fl_sort(x, 0, false, &index) && fl_to_host(index, up, sizeof up) &&
              !memcmp(up, (int64_t[]){1, 3, 0, 4, 2}, sizeof up),
          "ascending: -0 and 0 keep their order, NaN is last");
    check(fl_sort(x, 0, true, &index) && fl_to_host(index, down, sizeof down) &&
              !memcmp(down, (int64_t[]){2, 0, 4, 1, 3}, sizeof down),
          "descending: NaN is first, ties keep their order");
    check(fails(fl_topk(x, 6, 0, false, NULL)), "topk of 6 of 5");
    check(fails(fl_topk(x, -1, 0, false, NULL)), "topk of -1");
    check(fails(fl_sort(x, 1, false, NULL)), "sort along axis 1 of 1");
    check(fails(fl_cumsum(x, -2)), "cumsum along axis -2 of 1");
    fl_tensor *five = fl_full(FL_SHAPE(1), 5, FL_I64), *one = fl_ones(FL_SHAPE(1), FL_F32);
    check(fails(fl_scatter(x, 0, five, one)), "scatter to index 5 of 5");
    check(fails(fl_scatter(x, 0, five, fl_cast(one, FL_F64))), "scatter of f64 into f32");
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
