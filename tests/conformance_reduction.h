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

/* One number of a line v [n]: what op says. */
static double line_value(const char *op, const double *v, int64_t n) {
    double sum = 0, squares = 0, cubes = 0, numbers = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(v[i])) continue;
        numbers++;
        sum += v[i];
        squares += v[i] * v[i];
        cubes += pow(fabs(v[i]), 3);
    }
    double mean = sum / numbers, away = 0;
    for (int64_t i = 0; i < n; i++) away += (v[i] - mean) * (v[i] - mean);
    if (!strcmp(op, "nansum")) return sum;
    if (!strcmp(op, "nanmean")) return mean;
    if (!strcmp(op, "std")) return sqrt(away / numbers);
    return !strcmp(op, "norm") ? sqrt(squares) : cbrt(cubes);
}

static fl_tensor *line_op(const char *op, fl_tensor *x, int axis) {
    if (!strcmp(op, "nansum")) return fl_nansum(x, FL_AXES(axis));
    if (!strcmp(op, "nanmean")) return fl_nanmean(x, FL_AXES(axis));
    if (!strcmp(op, "std")) return fl_std(x, FL_AXES(axis), 0);
    return fl_norm(x, !strcmp(op, "norm") ? 2 : 3, FL_AXES(axis));
}

static void line_case(const char *op, fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin(op, d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis)) return;
    operand x = make_operand(s, d, l, TAME);
    int64_t n = s.dim[axis];
    array want = new_array(reduced_shape(s, 1u << axis, false), d);
    double *scale = take((size_t)want.n * 8 + 8), *v = take((size_t)n * 8 + 8);
    for (int64_t j = 0; j < want.n; j++) {
        scale[j] = 1;
        for (int64_t i = 0; i < n; i++) {
            v[i] = x.a.f[line_element(s, axis, j, i)];
            scale[j] += fabs(v[i]);
        }
        want.f[j] = line_value(op, v, n);
    }
    tolerance tol = {1, rounding(l, (double)n), 0};
    case_end(agrees(line_op(op, x.t, axis), &want, tol, scale, false));
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

static const char *const line_ops[] = {"nansum", "nanmean", "std", "norm", "norm 3"};

static void lines_of_shape(fl_dtype d, layout l, fl_shape s) {
    for (int axis = 0; axis < s.ndim; axis++) {
        if (s.dim[axis] == 0 || s.dim[axis] > 64) continue;
        for (int i = 0; i < 5 && is_float(d); i++) line_case(line_ops[i], d, l, s, axis);
        for (int k = 0; k < 4; k++) extreme_case(k & 1, k & 2, d, l, s, axis);
    }
}

static void reduction_group(void) {
    static const char *const extremes[] = {"max_along", "min_along", "cummax", "cummin"};
    for (int i = 0; i < 5; i++) {
        expect_row(line_ops[i], FLOATS, UNWEAK, 0, 0);
        snprintf(row_of(line_ops[i])->tolerance, 64, "1 ulp + (4 + sqrt n) eps, of sum |x|");
    }
    for (int i = 0; i < 4; i++) expect_row(extremes[i], NUMBERS, UNWEAK, 0, 0);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES; s++)
                if (takes(NUMBERS, all_dtypes[k]) && layout_fits((layout)l, shapes[s]))
                    lines_of_shape(all_dtypes[k], (layout)l, shapes[s]);
}
/* MIT licence: see LICENSE. */
