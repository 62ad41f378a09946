/* conformance_reduce.h - reductions over every set of axes, and indexing */

typedef fl_tensor *(*reduce_fn)(fl_tensor *, fl_axes);
static fl_tensor *variance_0(fl_tensor *x, fl_axes a) { return fl_variance(x, a, 0); }
static fl_tensor *variance_1(fl_tensor *x, fl_axes a) { return fl_variance(x, a, 1); }

typedef struct reduction {
    const char *name;
    reduce_fn fn;
    /* s sum, p product, M maximum, m minimum, a all, o any, e mean, v V variance, l logsumexp */
    char kind;
    unsigned dtypes, refused;
    const char *row;
} reduction;
static const reduction reductions[] = {
    {"sum", fl_sum, 's', STORED, 0, "sum"},
    {"prod", fl_prod, 'p', STORED, 0, "prod"},
    {"amax", fl_amax, 'M', COMPUTED, STORED & ~COMPUTED, "amax"},
    {"amin", fl_amin, 'm', COMPUTED, STORED & ~COMPUTED, "amin"},
    {"all", fl_all, 'a', STORED, 0, "all"},
    {"any", fl_any, 'o', STORED, 0, "any"},
    {"mean", fl_mean, 'e', FLOATS, STORED & ~FLOATS, "mean"},
    {"variance", variance_0, 'v', FLOATS, STORED & ~FLOATS, "variance"},
    {"variance 1", variance_1, 'V', FLOATS, STORED & ~FLOATS, "variance"},
    {"logsumexp", fl_logsumexp, 'l', STORED, 0, "logsumexp"},
};
enum { REDUCTIONS = sizeof reductions / sizeof *reductions };

static fl_shape reduced_shape(fl_shape s, unsigned mask, bool keep) {
    fl_shape r = {0, {0}};
    for (int d = 0; d < s.ndim; d++)
        if (keep || !(mask >> d & 1)) r.dim[r.ndim++] = mask >> d & 1 ? 1 : s.dim[d];
    return r;
}

/* Element k's place among the results. */
static int64_t result_of(fl_shape s, unsigned mask, int64_t k) {
    int64_t c[FL_MAX_DIMS] = {0};
    coords_of(s, k, c);
    return index_of(with_ones(s, mask), c);
}

static fl_dtype reduced_dtype(char kind, fl_dtype d) {
    if (kind == 's' || kind == 'p') return is_float(d) ? d : FL_I64;
    if (kind == 'a' || kind == 'o') return FL_B8;
    return kind == 'l' && !is_float(d) ? FL_F32 : d;
}

/* One element more: acc is the float result so far, *i the integer one. Sums of references are long
   double, so that the tolerance is the op's own. */
static void reduce_step(char kind, long double *acc, int64_t *i, const array *x, int64_t k) {
    double v = x->f[k];
    switch (kind) {
    case 'p':
        *acc *= v;
        *i = i_mul(*i, x->i[k]);
        break;
    case 'M':
        *acc = f_max((double)*acc, v);
        if (x->i[k] > *i) *i = x->i[k];
        break;
    case 'm':
        *acc = f_min((double)*acc, v);
        if (x->i[k] < *i) *i = x->i[k];
        break;
    case 'a': *i &= v != 0; break;
    case 'o': *i |= v != 0; break;
    default:
        *acc += v;
        *i = i_add(*i, x->i[k]);
    }
}

/* The second pass: squares around the mean, exponentials around the maximum. `first` has the sums
   or maxima. */
static void second_pass(char kind, const array *x, unsigned mask, const long double *first,
                        double count, long double *second) {
    for (int64_t k = 0; k < x->n; k++) {
        int64_t j = result_of(x->shape, mask, k);
        double from = kind != 'l'       ? (double)(first[j] / count)
                      : isinf(first[j]) ? 0
                                        : (double)first[j],
               v = x->f[k] - from;
        second[j] += kind == 'l' ? exp(v) : v * v;
    }
}

/* The result in `want`, the scale of the tolerance per element in `scale`. */
static void reduce_reference(const reduction *r, const array *given, unsigned mask, array *want,
                             double *scale) {
    array x = r->kind == 'l' ? cast_array(given, want->dtype) : *given;
    int64_t m = want->n;
    long double *acc = take((size_t)m * sizeof *acc), *more = take((size_t)m * sizeof *more);
    double count = m ? (double)(x.n / m) : 0;
    int64_t *i = take((size_t)m * 8 + 8);
    for (int64_t j = 0; j < m; j++) {
        bool max = r->kind == 'M' || r->kind == 'l';
        acc[j] = r->kind == 'p' ? 1 : max ? -INFINITY : r->kind == 'm' ? INFINITY : 0;
        i[j] = r->kind == 'p' || r->kind == 'a' ? 1
               : r->kind == 'M'                 ? INT64_MIN
               : r->kind == 'm'                 ? INT64_MAX
                                                : 0;
    }
    for (int64_t k = 0; k < x.n; k++) {
        int64_t j = result_of(x.shape, mask, k);
        reduce_step(r->kind == 'l' ? 'M' : r->kind, &acc[j], &i[j], &x, k);
        scale[j] += fabs(x.f[k]);
    }
    bool variance = r->kind == 'v' || r->kind == 'V';
    if (variance || r->kind == 'l') second_pass(r->kind, &x, mask, acc, count, more);
    for (int64_t j = 0; j < m; j++) {
        double left = count - (r->kind == 'V'), sum = (double)acc[j], v = sum;
        if (r->kind == 'p') scale[j] = fabs(sum);
        if (r->kind == 'e') v = (double)(acc[j] / count), scale[j] /= count;
        if (variance)
            v = (double)more[j] / (left > 0 ? left : 0),
            scale[j] = v + scale[j] * scale[j] / (count * count);
        if (r->kind == 'l')
            v = log((double)more[j]) + (isinf(sum) ? 0 : sum), scale[j] = isinf(sum) ? 1 : 1 + fabs(sum);
        if (is_float(want->dtype)) want->f[j] = v;
        else put_int(want, j, i[j]);
    }
}

static void reduce_case(const reduction *r, fl_dtype d, layout l, fl_shape s, unsigned mask,
                        bool keep) {
    char text[100];
    if (!case_begin(r->row, d, l, "%s axes %x%s %c", fl_shape_text(s, text, sizeof text), mask,
                    keep ? " kept" : "", r->kind))
        return;
    bool exact = strchr("Mmao", r->kind) != NULL;
    operand x = make_operand(s, d, l, exact ? WILD : TAME);
    fl_axes axes = {.keepdim = keep};
    for (int i = 0; i < s.ndim && mask + 1 != 1u << s.ndim; i++)
        if (mask >> i & 1) axes.axis[axes.n++] = random_below(2) ? i : i - s.ndim;
    fl_tensor *t = mask || s.ndim == 0 ? r->fn(x.t, axes) : NULL;
    array want = new_array(reduced_shape(s, mask, keep), reduced_dtype(r->kind, d));
    double *scale = take((size_t)want.n * 8 + 8), count = 1;
    for (int i = 0; i < s.ndim; i++) count *= mask >> i & 1 ? (double)s.dim[i] : 1;
    if (count == 0 && strchr("Mm", r->kind)) {
        case_end(was_refused(t));
        return;
    }
    reduce_reference(r, &x.a, mask, &want, scale);
    if (x.a.n == 0)
        for (int64_t j = 0; j < want.n; j++)
            if (strchr("evV", r->kind)) want.f[j] = NAN;
    tolerance tol = {1, r->kind == 'p' ? 4 + count : rounding(l, count), 0};
    case_end(agrees(t, &want, exact ? EXACT : tol, scale, false));
}

static void reduce_group(int which) {
    const reduction *r = &reductions[which];
    expect_row(r->row, r->dtypes, UNWEAK, 0, r->refused);
    bool exact = strchr("Mmao", r->kind) != NULL;
    snprintf(row_of(r->row)->tolerance, 64, "%s",
             exact            ? "exact"
             : r->kind == 'p' ? "1 ulp + (4 + n) eps"
                              : "1 ulp + (4 + sqrt n) eps, of sum |x|");
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (takes(r->refused, d)) {
            if (!case_begin(r->row, d, REFUSED, "[3] %s", r->name)) continue;
            array x = random_array(FL_SHAPE(3), d, TAME);
            case_end(was_refused(r->fn(dense_tensor(&x), FL_ALL_AXES)));
            continue;
        }
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES; s++) {
                if (!layout_fits((layout)l, shapes[s])) continue;
                int n = shapes[s].ndim, step = n > 4 ? 37 : 1;
                for (int mask = n ? 1 : 0; mask < 1 << n; mask += step)
                    reduce_case(r, d, (layout)l, shapes[s], (unsigned)mask, mask % 3 == 1);
            }
    }
}

/* >>argmax, argmin */

static void arg_case(bool max, fl_dtype d, layout l, fl_shape s, int axis, bool keep) {
    char text[100];
    if (!case_begin(max ? "argmax" : "argmin", d, l, "%s axis %d%s",
                    fl_shape_text(s, text, sizeof text), axis, keep ? " kept" : ""))
        return;
    operand x = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    int given = axis - (int)random_below(2) * s.ndim;
    fl_tensor *t = max ? fl_argmax(x.t, given, keep) : fl_argmin(x.t, given, keep);
    if (s.dim[axis] == 0) {
        case_end(was_refused(t));
        return;
    }
    array want = new_array(reduced_shape(s, 1u << axis, keep), FL_I64);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t j = 0; j < want.n; j++) {
        fl_shape kept = with_ones(s, 1u << axis);
        coords_of(kept, j, c);
        int64_t best = index_of(s, c);
        for (int64_t i = 0; i < s.dim[axis]; i++) {
            c[axis] = i;
            int64_t k = index_of(s, c);
            double v = x.a.f[k], b = x.a.f[best];
            int64_t vi = x.a.i[k], bi = x.a.i[best];
            bool better = is_float(d) ? !isnan(b) && (isnan(v) || (max ? v > b : v < b))
                          : max       ? vi > bi
                                      : vi < bi;
            if (i == 0 || better) best = k, put_int(&want, j, i);
        }
    }
    case_end(equals(t, &want));
}

static void arg_group(void) {
    for (int max = 0; max < 2; max++) {
        const char *name = max ? "argmax" : "argmin";
        expect_row(name, COMPUTED, UNWEAK, 0, STORED & ~COMPUTED);
        if (case_begin(name, FL_U64, REFUSED, "[3]")) {
            array x = random_array(FL_SHAPE(3), FL_U64, TAME);
            case_end(was_refused(max ? fl_argmax(dense_tensor(&x), 0, false)
                                     : fl_argmin(dense_tensor(&x), 0, false)));
        }
        for (int k = 0; k < DTYPES; k++)
            for (int l = DENSE; l <= BROADCAST; l++)
                for (int s = 0; s < SHAPES; s++)
                    for (int axis = 0; axis < shapes[s].ndim; axis++)
                        if (takes(COMPUTED, all_dtypes[k]) && layout_fits((layout)l, shapes[s]))
                            arg_case(max, all_dtypes[k], (layout)l, shapes[s], axis, axis % 2);
    }
}

/* >>indexing */

typedef struct index_case {
    fl_shape x, index;
    int axis;
} index_case;
static const index_case index_cases[] = {
    {{1, {7}}, {1, {20}}, 0},
    {{2, {5, 3}}, {2, {4, 3}}, 0},
    {{2, {5, 3}}, {2, {5, 9}}, 1},
    {{2, {5, 3}}, {2, {2, 2}}, 1},
    {{3, {2, 3, 4}}, {3, {2, 5, 4}}, 1},
    {{2, {5, 3}}, {2, {0, 3}}, 0},
    {{4, {2, 3, 4, 5}}, {4, {2, 3, 4, 2}}, 3},
    {{1, {1}}, {1, {1}}, 0},
    {{2, {40, 33}}, {2, {100, 33}}, 0},
    {{8, {1, 2, 1, 2, 2, 1, 2, 1}}, {8, {1, 2, 1, 2, 3, 1, 2, 1}}, 4},
    {{2, {3, 0}}, {2, {3, 0}}, 0},
};
enum { INDEX_CASES = sizeof index_cases / sizeof *index_cases };

static array random_index(fl_shape s, int64_t below) {
    array a = new_array(s, FL_I64);
    for (int64_t k = 0; k < a.n; k++) put_int(&a, k, random_below(below));
    return a;
}

/* Where element k of index points in x. */
static int64_t pointed(const array *index, fl_shape x, int axis, int64_t k) {
    int64_t c[FL_MAX_DIMS] = {0}, at = 0;
    coords_of(index->shape, k, c);
    c[axis] = index->i[k];
    for (int d = 0; d < x.ndim; d++) at = at * x.dim[d] + c[d];
    return at;
}

static void gather_case(fl_dtype d, layout l, const index_case *c, int n) {
    if (!case_begin("gather", d, l, "%d", n)) return;
    operand x = make_operand(c->x, d, l, WILD);
    array index = random_index(c->index, c->x.dim[c->axis]), want = new_array(c->index, d);
    for (int64_t k = 0; k < want.n; k++)
        put_from(&want, k, &x.a, pointed(&index, c->x, c->axis, k));
    fl_tensor *at = lay_out(&index, layout_fits(l, c->index) ? l : DENSE);
    case_end(equals(fl_gather(x.t, c->axis - (int)random_below(2) * c->x.ndim, at), &want));
}

static void scatter_case(fl_dtype d, layout l, const index_case *c, int n) {
    if (!case_begin("scatter_add", d, l, "%d", n)) return;
    operand x = make_operand(c->x, d, l, TAME),
            src = make_operand(c->index, d, layout_fits(l, c->index) ? l : DENSE, TAME);
    array index = random_index(c->index, c->x.dim[c->axis]), want = new_array(c->x, d);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t k = 0; k < want.n; k++) {
        put_from(&want, k, &x.a, k);
        scale[k] = fabs(want.f[k]);
    }
    for (int64_t k = 0; k < src.a.n; k++) {
        int64_t at = pointed(&index, c->x, c->axis, k);
        if (is_float(d)) want.f[at] += src.a.f[k];
        else put_int(&want, at, i_add(want.i[at], src.a.i[k]));
        scale[at] += fabs(src.a.f[k]);
    }
    fl_tensor *t = fl_scatter_add(x.t, c->axis,
                                  lay_out(&index, layout_fits(l, c->index) ? l : DENSE), src.t);
    bool ok = agrees(t, &want, (tolerance){0.5, 8, 0}, scale, false);
    case_end(ok && equals(x.t, &x.a));
}

static void index_select_case(fl_dtype d, layout l, const index_case *c, int n) {
    if (!case_begin("index_select", d, l, "%d", n)) return;
    operand x = make_operand(c->x, d, l, WILD);
    fl_shape to = c->x;
    array index = random_index(FL_SHAPE(6), c->x.dim[c->axis]);
    to.dim[c->axis] = 6;
    array want = new_array(to, d);
    int64_t at[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < want.n; k++) {
        coords_of(to, k, at);
        at[c->axis] = index.i[at[c->axis]];
        put_from(&want, k, &x.a, index_of(c->x, at));
    }
    case_end(equals(fl_index_select(x.t, c->axis, lay_out(&index, REVERSED)), &want));
}

static void one_hot_case(layout l, fl_shape s) {
    char text[100];
    if (!case_begin("one_hot", FL_I64, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = make_operand(s, FL_I64, l, TAME); /* -4 .. 4: outside is all zeros */
    fl_shape to = s;
    to.dim[to.ndim++] = 3;
    array want = new_array(to, FL_I64);
    for (int64_t k = 0; k < x.a.n; k++)
        for (int64_t j = 0; j < 3; j++) put_int(&want, k * 3 + j, x.a.i[k] == j);
    case_end(equals(fl_one_hot(x.t, 3), &want));
}

static void index_group(void) {
    expect_row("gather", STORED, UNWEAK, 0, 0);
    expect_row("scatter_add", NUMBERS, UNWEAK, 0, STORED & ~NUMBERS);
    expect_row("index_select", STORED, UNWEAK, 0, 0);
    expect_row("one_hot", I64, UNWEAK, 0, 0);
    snprintf(row_of("scatter_add")->tolerance, 64, "0.5 ulp + 8 eps, of sum |x|");
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int n = 0; n < INDEX_CASES; n++) {
                const index_case *c = &index_cases[n];
                if (!layout_fits((layout)l, c->x)) continue;
                gather_case(all_dtypes[k], (layout)l, c, n);
                if (takes(NUMBERS, all_dtypes[k])) scatter_case(all_dtypes[k], (layout)l, c, n);
                index_select_case(all_dtypes[k], (layout)l, c, n);
            }
    for (int k = 0; k < DTYPES; k++) {
        if (takes(NUMBERS, all_dtypes[k])) continue;
        if (!case_begin("scatter_add", all_dtypes[k], REFUSED, "[3]")) continue;
        array x = random_array(FL_SHAPE(3), all_dtypes[k], TAME), i = random_index(FL_SHAPE(3), 3);
        fl_tensor *t = dense_tensor(&x);
        case_end(was_refused(fl_scatter_add(t, 0, dense_tensor(&i), t)));
    }
    for (int l = DENSE; l <= BROADCAST; l++)
        for (int s = 0; s < SHAPES - 1; s++)
            if (layout_fits((layout)l, shapes[s]) && shapes[s].ndim < 8)
                one_hot_case((layout)l, shapes[s]);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    check(fails(fl_gather(x, 0, fl_from_host((int64_t[]){0, 3}, FL_SHAPE(2), FL_I64))),
          "gather of index 3 of 3");
    check(fails(fl_gather(x, 0, fl_from_host((int64_t[]){-1}, FL_SHAPE(1), FL_I64))),
          "gather of index -1");
    check(fails(fl_gather(x, 0, fl_zeros(FL_SHAPE(2), FL_F32))), "gather by floats");
    check(
        fails(fl_scatter_add(x, 0, fl_full(FL_SHAPE(1), 3, FL_I64), fl_ones(FL_SHAPE(1), FL_F32))),
        "scatter to index 3 of 3");
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
