/* conformance_reduction.h - the composed reductions, order statistics and scans along one axis,
   against loops over each line */
#include "conformance.h"

/* Element i of the line of s through place j of the results along axis. */
static int64_t line_element(fl_shape s, int axis, int64_t j, int64_t i) {
    int64_t c[FL_MAX_DIMS] = {0};
    coords_of(with_ones(s, 1u << axis), j, c);
    c[axis] = i;
    return index_of(s, c);
}

static int by_value(const void *a, const void *b) {
    double u = *(const double *)a, v = *(const double *)b;
    return (u > v) - (u < v);
}

/* The place q (n - 1) among the numbers of a line in order, between two of them, or in the
   middle of the two. Up to 64 elements. */
static double line_quantile(const double *v, int64_t n, double q, bool middle) {
    double sorted[64];
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(v[i])) sorted[m++] = v[i];
    if (!m) return NAN;
    qsort(sorted, (size_t)m, sizeof *sorted, by_value);
    double at = q * (double)(m - 1), part = at - floor(at);
    double low = sorted[(int)floor(at)], high = sorted[(int)ceil(at)];
    return low + (middle ? 0.5 : part) * (high - low);
}

/* One number of a line v [n]: what op says. */
static double line_value(const char *op, const double *v, int64_t n) {
    double sum = 0, powers[4] = {0}, numbers = 0, least = INFINITY, most = 0, area = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i) area += 0.5 * 1.5 * (v[i] + v[i - 1]);
        if (isnan(v[i])) continue;
        numbers++;
        sum += v[i];
        for (int p = 0; p < 4; p++) powers[p] += v[i] == 0 ? 0 : pow(fabs(v[i]), p);
        least = fmin(least, fabs(v[i]));
        most = fmax(most, fabs(v[i]));
    }
    double mean = sum / numbers, away = 0;
    for (int64_t i = 0; i < n; i++) away += (v[i] - mean) * (v[i] - mean);
    if (!strcmp(op, "nansum")) return sum;
    if (!strcmp(op, "nanmean")) return mean;
    if (!strcmp(op, "std")) return sqrt(away / numbers);
    if (!strcmp(op, "quantile")) return line_quantile(v, n, 0.3, false);
    if (!strcmp(op, "nanquantile")) return line_quantile(v, n, 0.6, true);
    if (!strncmp(op, "trapezoid", 9)) return area;
    if (!strcmp(op, "norm inf")) return most;
    if (!strcmp(op, "norm -inf")) return least;
    if (!strcmp(op, "norm 0")) return powers[0];
    if (!strcmp(op, "norm 1")) return powers[1];
    return !strcmp(op, "norm") ? sqrt(powers[2]) : cbrt(powers[3]);
}

static fl_tensor *line_op(const char *op, fl_tensor *x, int axis) {
    if (!strcmp(op, "nansum")) return fl_nansum(x, FL_AXES(axis));
    if (!strcmp(op, "nanmean")) return fl_nanmean(x, FL_AXES(axis));
    if (!strcmp(op, "std")) return fl_std(x, FL_AXES(axis), 0);
    if (!strcmp(op, "quantile")) return fl_quantile(x, 0.3, axis, false, FL_QUANTILE_LINEAR);
    if (!strcmp(op, "nanquantile")) return fl_nanquantile(x, 0.6, axis, false, FL_QUANTILE_MIDPOINT);
    if (!strcmp(op, "trapezoid")) return fl_trapezoid(x, 1.5, axis);
    if (!strcmp(op, "trapezoid_x")) {
        fl_tensor *at = fl_to(fl_arange(0, (double)x->shape[axis], 1, FL_I64), fl_backend_name(x));
        return fl_trapezoid_x(x, fl_mul(fl_cast(at, x->dtype), fl_num(1.5)), axis);
    }
    return fl_norm(x, op[4] ? strtod(op + 5, NULL) : 2, FL_AXES(axis));
}

static void line_case(const char *op, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin(op, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    operand x = make_operand(s, d, l, TAME);
    if (!strncmp(op, "nan", 3) && l != BROADCAST) {
        for (int64_t k = 0; k < x.a.n; k += 3) x.a.f[k] = NAN;
        x.t = lay_out(&x.a, l);
    }
    int64_t n = s.dim[axis];
    array want = new_array(reduced_shape(s, 1u << axis, false), d);
    double *scale = take((size_t)want.n * 8 + 8), *v = take((size_t)n * 8 + 8);
    for (int64_t j = 0; j < want.n; j++) {
        scale[j] = 1;
        for (int64_t i = 0; i < n; i++) {
            v[i] = x.a.f[line_element(s, axis, j, i)];
            scale[j] += isnan(v[i]) ? 0 : fabs(v[i]);
        }
        want.f[j] = line_value(op, v, n);
    }
    tolerance tol = {1, rounding(l, (double)n), 0};
    case_end(agrees(line_op(op, x.t, axis), &want, tol, scale, false));
}

/* The k-th of a line in order, from 1, by counting those before it; NaN last. */
static int64_t kth_place(const array *a, fl_shape s, int axis, int64_t j, int64_t k) {
    int64_t n = s.dim[axis];
    for (int64_t i = 0; i < n; i++) {
        int64_t p = line_element(s, axis, j, i), less = 0, equal = 0;
        for (int64_t m = 0; m < n; m++) {
            int64_t q = line_element(s, axis, j, m);
            less += comes_before(a, q, p, false);
            equal += !comes_before(a, q, p, false) && !comes_before(a, p, q, false);
        }
        if (less < k && k <= less + equal) return p;
    }
    return -1;
}

/* Of op: which one in order the middle of a line is. */
static int64_t kth_of(const char *op, const array *a, fl_shape s, int axis, int64_t j) {
    int64_t n = s.dim[axis], numbers = 0;
    for (int64_t i = 0; i < n; i++) numbers += !isnan(a->f[line_element(s, axis, j, i)]);
    if (!strcmp(op, "kthvalue")) return (n + 2) / 3;
    if (!strcmp(op, "median")) return numbers < n ? n : (n + 1) / 2;
    return numbers ? (numbers + 1) / 2 : 1;
}

/* kthvalue, median, nanmedian: values exactly, and that the index leads to them. */
static void kth_case(const char *op, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin(op, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    array want = new_array(with_ones(s, 1u << axis), d);
    for (int64_t j = 0; j < want.n; j++)
        put_from(&want, j, &x.a, kth_place(&x.a, s, axis, j, kth_of(op, &x.a, s, axis, j)));
    fl_tensor *index = NULL, *y;
    if (!strcmp(op, "kthvalue")) y = fl_kthvalue(x.t, (s.dim[axis] + 2) / 3, axis, true, &index);
    else y = (op[0] == 'm' ? fl_median : fl_nanmedian)(x.t, axis, true, &index);
    bool ok = agrees(y, &want, EXACT, NULL, false);
    case_end(ok && agrees(fl_gather(x.t, axis, index), &want, EXACT, NULL, false));
}

/* The first and last axes: by counting, as above, over a copy whose lines they are. */
static void median_axes_case(fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (s.ndim < 2 || !fl_shape_numel(s) || fl_shape_numel(s) > 256 ||
        !case_begin("median_axes", d, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    const int64_t a = s.dim[0], c = s.dim[s.ndim - 1], b = x.a.n / a / c;
    fl_shape lines = FL_SHAPE(b, a * c), rest = {s.ndim - 2, {0}};
    array flat = new_array(lines, d);
    for (int64_t k = 0; k < x.a.n; k++) put_from(&flat, k / c % b * a * c + k / c / b * c + k % c, &x.a, k);
    for (int i = 0; i < rest.ndim; i++) rest.dim[i] = s.dim[i + 1];
    array want = new_array(rest, d);
    for (int64_t j = 0; j < b; j++)
        put_from(&want, j, &flat, kth_place(&flat, lines, 1, j, kth_of("median", &flat, lines, 1, j)));
    case_end(agrees(fl_median_axes(x.t, FL_AXES(0, -1)), &want, EXACT, NULL, false));
}

/* logcumsumexp and diff. */
static void scan_case(bool sums, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin(sums ? "logcumsumexp" : "diff", d, l, "%s axis %d",
                    fl_shape_text(s, text, sizeof text), axis))
        return;
    operand x = make_operand(s, d, l, TAME);
    fl_shape to = s;
    to.dim[axis] -= !sums;
    array want = new_array(to, d);
    int64_t lines = fl_shape_numel(with_ones(s, 1u << axis));
    for (int64_t j = 0; j < lines; j++) {
        double total = 0;
        for (int64_t i = 0; i < to.dim[axis]; i++) {
            int64_t at = line_element(to, axis, j, i), p = line_element(s, axis, j, i);
            int64_t q = sums ? p : line_element(s, axis, j, i + 1);
            if (sums) want.f[at] = log(total += exp(x.a.f[p]));
            else if (is_float(d)) put_float(&want, at, x.a.f[q] - x.a.f[p]);
            else put_int(&want, at, i_sub(x.a.i[q], x.a.i[p]));
        }
    }
    fl_tensor *y = sums ? fl_logcumsumexp(x.t, axis) : fl_diff(x.t, axis);
    case_end(agrees(y, &want, sums ? (tolerance){1, rounding(l, 64), 0} : EXACT, NULL, false));
}

static void nonzero_count_case(fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin("count_nonzero", d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis))
        return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    array want = new_array(reduced_shape(s, 1u << axis, false), FL_I64);
    for (int64_t j = 0; j < want.n; j++)
        for (int64_t i = 0; i < s.dim[axis]; i++) {
            int64_t k = line_element(s, axis, j, i);
            put_int(&want, j, want.i[j] + (is_float(d) ? x.a.f[k] != 0 : x.a.i[k] != 0));
        }
    case_end(equals(fl_count_nonzero(x.t, FL_AXES(axis)), &want));
}

/* The place of the extreme of the first m elements of a line, the first or the last of equals. */
static int64_t extreme_place(const array *a, fl_shape s, int axis, int64_t j, int64_t m, bool max,
                             bool last) {
    int64_t best = 0;
    for (int64_t i = 1; i < m; i++) {
        int64_t p = line_element(s, axis, j, i), q = line_element(s, axis, j, best);
        double u = a->f[p], v = a->f[q];
        bool equal = is_float(a->dtype) ? u == v || (isnan(u) && isnan(v)) : a->i[p] == a->i[q];
        bool better = is_float(a->dtype) ? !isnan(v) && (isnan(u) || (max ? u > v : u < v))
                      : max              ? a->i[p] > a->i[q]
                                         : a->i[p] < a->i[q];
        if (better || (last && equal)) best = i;
    }
    return best;
}

/* max_along, min_along and cummax, cummin: values and places, exactly. */
static void extreme_case(bool max, bool scan, fl_dtype d, layout l, fl_shape s, int axis) {
    const char *name = scan ? max ? "cummax" : "cummin" : max ? "max_along" : "min_along";
    char text[100];
    if (!case_begin(name, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    fl_shape to = scan ? s : with_ones(s, 1u << axis);
    array want = new_array(to, d), places = new_array(to, FL_I64);
    int64_t lines = fl_shape_numel(with_ones(s, 1u << axis)), n = s.dim[axis];
    for (int64_t j = 0; j < lines; j++)
        for (int64_t i = scan ? 0 : n - 1; i < n; i++) {
            int64_t best = extreme_place(&x.a, s, axis, j, i + 1, max, scan);
            int64_t at = scan ? line_element(s, axis, j, i) : j;
            put_from(&want, at, &x.a, line_element(s, axis, j, best));
            put_int(&places, at, best);
        }
    fl_tensor *index = NULL, *y;
    if (scan) y = max ? fl_cummax(x.t, axis, &index) : fl_cummin(x.t, axis, &index);
    else y = max ? fl_max_along(x.t, axis, true, &index) : fl_min_along(x.t, axis, true, &index);
    case_end(agrees(y, &want, EXACT, NULL, false) && equals(index, &places));
}

static const char *const line_ops[] = {"nansum", "nanmean", "std", "norm", "norm 3", "norm 0",
                                       "norm 1", "norm inf", "norm -inf", "quantile",
                                       "nanquantile", "trapezoid", "trapezoid_x"};
static const char *const kth_ops[] = {"kthvalue", "median", "nanmedian"};
enum { LINE_OPS = sizeof line_ops / sizeof *line_ops, KTH_OPS = 3 };

static void lines_of_shape(fl_dtype d, layout l, fl_shape s) {
    if (takes(NUMBERS, d)) median_axes_case(d, l, s);
    for (int axis = 0; axis < s.ndim; axis++) {
        if (s.dim[axis] == 0 || s.dim[axis] > 64) continue;
        nonzero_count_case(d, l, s, axis);
        if (!takes(NUMBERS, d)) continue;
        for (int i = 0; i < LINE_OPS && is_float(d); i++) line_case(line_ops[i], d, l, s, axis);
        for (int k = 0; k < 4; k++) extreme_case(k & 1, k & 2, d, l, s, axis);
        for (int i = 0; i < KTH_OPS; i++) kth_case(kth_ops[i], d, l, s, axis);
        scan_case(false, d, l, s, axis);
        if (is_float(d)) scan_case(true, d, l, s, axis);
    }
}

static void reduction_group(void) {
    static const char *const others[] = {"max_along", "min_along", "cummax",    "cummin",
                                         "kthvalue",  "median",    "nanmedian", "diff"};
    for (int i = 0; i < LINE_OPS; i++) {
        expect_row(line_ops[i], FLOATS, UNWEAK, 0, 0);
        snprintf(row_of(line_ops[i])->tolerance, 64, "1 ulp + (4 + sqrt n) eps, of sum |x|");
    }
    for (int i = 0; i < 8; i++) expect_row(others[i], NUMBERS, UNWEAK, 0, 0);
    expect_row("median_axes", NUMBERS, UNWEAK, 0, 0);
    expect_row("count_nonzero", STORED, UNWEAK, 0, 0);
    expect_row("logcumsumexp", FLOATS, UNWEAK, 0, 0);
    snprintf(row_of("logcumsumexp")->tolerance, 64, "1 ulp + 12 eps");
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES; s++)
                if (layout_fits((layout)l, shapes[s]))
                    lines_of_shape(all_dtypes[k], (layout)l, shapes[s]);
}
/* MIT licence: see LICENSE. */
