/* conformance_factor.h - what solves and factorises matrices, by what the results must satisfy

   Products of the results are taken in loops in f64 and compared with what they must give, within
   some eps of the dtype. Without LAPACK all but solve_triangular is skipped, with a line. */

/* >>matrices on the host: batches in the leading dims */

static int64_t rows_of(const array *a) { return a->shape.dim[a->shape.ndim - 2]; }
static int64_t columns_of(const array *a) { return a->shape.dim[a->shape.ndim - 1]; }

static array matrices_like(const array *a, int64_t rows, int64_t columns) {
    fl_shape s = a->shape;
    s.dim[s.ndim - 2] = rows;
    s.dim[s.ndim - 1] = columns;
    return new_array(s, FL_F64);
}

static array turned(const array *a) {
    int64_t m = rows_of(a), n = columns_of(a);
    array t = matrices_like(a, n, m);
    for (int64_t k = 0; k < a->n; k++)
        t.f[k / (m * n) * m * n + k % n * m + k / n % m] = a->f[k];
    return t;
}

static array times(const array *a, const array *b) {
    int64_t m = rows_of(a), k = columns_of(a), n = columns_of(b);
    array y = matrices_like(a, m, n);
    for (int64_t e = 0; e < y.n; e++)
        for (int64_t i = 0; i < k; i++)
            y.f[e] += a->f[e / n * k + i] * b->f[(e / (m * n) * k + i) * n + e % n];
    return y;
}

/* Matrices with d, [..., k], on their diagonal; of ones where d is NULL. */
static array diagonal(const array *like, int64_t k, const array *d) {
    array y = matrices_like(like, k, k);
    for (int64_t e = 0; e < y.n; e++)
        if (e / k % k == e % k) y.f[e] = d ? d->f[e / (k * k) * k + e % k] : 1;
    return y;
}

static bool near(const char *what, const array *got, const array *want, double eps) {
    double most = 1;
    for (int64_t k = 0; k < want->n; k++)
        if (!isinf(want->f[k])) most = fmax(most, fabs(want->f[k]));
    if (got->n != want->n) return say("%s: %lld elements", what, (long long)got->n);
    for (int64_t k = 0; k < want->n; k++)
        if (got->f[k] != want->f[k] && !(fabs(got->f[k] - want->f[k]) <= eps * most))
            return say("%s: element %lld is %.9g, not %.9g", what, (long long)k, got->f[k],
                       want->f[k]);
    return true;
}

/* a b = want */
static bool product_is(const char *what, const array *a, const array *b, const array *want,
                       double eps) {
    array y = times(a, b);
    return near(what, &y, want, eps);
}

static bool is_triangle(const char *what, const array *a, bool upper) {
    int64_t n = columns_of(a), m = rows_of(a);
    for (int64_t k = 0; k < a->n; k++)
        if ((upper ? k % n < k / n % m : k % n > k / n % m) && a->f[k] != 0)
            return say("%s: element %lld is not 0", what, (long long)k);
    return true;
}

static bool are_orthonormal(const char *what, const array *q, double eps) {
    array t = turned(q), one = diagonal(q, columns_of(q), NULL);
    return product_is(what, &t, q, &one, eps);
}

static bool in_order(const array *s, bool down) {
    int64_t n = s->shape.dim[s->shape.ndim - 1];
    for (int64_t k = 1; k < s->n; k++)
        if (k % n && (down ? s->f[k - 1] < s->f[k] : s->f[k - 1] > s->f[k]))
            return say("values %lld and %lld: order", (long long)k - 1, (long long)k);
    return true;
}

/* >>operands */

enum { GENERAL, POSITIVE };

/* Far from singular; the first dim broadcast for that layout. */
static operand matrices(fl_shape s, fl_dtype d, layout l, int kind) {
    operand o;
    fl_shape small = s;
    if (l == BROADCAST) small.dim[0] = 1;
    array a = random_array(small, d, TAME), full = matrices_like(&a, rows_of(&a), columns_of(&a));
    memcpy(full.f, a.f, (size_t)a.n * sizeof *a.f);
    if (kind == POSITIVE) {
        array t = turned(&full);
        full = times(&full, &t);
    }
    int64_t m = rows_of(&a), n = columns_of(&a);
    for (int64_t k = 0; k < a.n; k++)
        put_float(&a, k, full.f[k] + (k / n % m == k % n ? 3 : 0));
    o.a = l == BROADCAST ? expand_array(&a, s) : a;
    o.t = l == BROADCAST ? fl_expand(dense_tensor(&a), s) : lay_out(&a, l);
    return o;
}

static double eps_of(fl_dtype d) {
    return d == FL_F64 ? 0x1p-52 : d == FL_F32 ? 0x1p-23 : d == FL_F16 ? 0x1p-10 : 0x1p-7;
}

static bool read_as(fl_tensor *t, fl_dtype d, array *a) {
    if (!t) return say("no result");
    if (t->dtype != d) return say("result is %s", fl_dtype_name(t->dtype));
    return read_tensor(t, a) || say("cannot be read");
}

/* >>checks: of x, within eps */

static bool solves(const operand *x, fl_dtype d, double eps) {
    operand b = make_operand(x->a.shape, d, DENSE, TAME);
    array y;
    return read_as(fl_solve(x->t, b.t), d, &y) && product_is("a x", &x->a, &y, &b.a, eps);
}

/* The other triangle, which is not zero here, and with `unit` the diagonal are not read. */
static bool solves_triangular(const operand *x, fl_dtype d, double eps) {
    int64_t n = columns_of(&x->a);
    for (int which = 0; which < 4; which++) {
        bool upper = which & 1, unit = which & 2, ok;
        if (unit && n > 8) continue; /* the solution overflows */
        operand b = make_operand(x->a.shape, d, DENSE, TAME);
        array y, a = matrices_like(&x->a, n, n);
        for (int64_t k = 0; k < a.n; k++) {
            int64_t r = k / n % n, c = k % n;
            a.f[k] = r == c ? (unit ? 1 : x->a.f[k]) : (upper ? c > r : c < r) ? x->a.f[k] : 0;
        }
        ok = read_as(fl_solve_triangular(x->t, b.t, upper, unit), d, &y);
        double most = 1;
        for (int64_t k = 0; ok && k < y.n; k++) most = fmax(most, fabs(y.f[k]));
        if (!ok || !product_is("a x", &a, &y, &b.a, eps * most)) return false;
    }
    return true;
}

static bool inverts(const operand *x, fl_dtype d, double eps) {
    array y, one = diagonal(&x->a, columns_of(&x->a), NULL);
    return read_as(fl_inverse(x->t), d, &y) && product_is("x^-1 x", &y, &x->a, &one, eps);
}

static bool powers(const operand *x, fl_dtype d, double eps) {
    array y, want = times(&x->a, &x->a);
    want = times(&want, &x->a);
    return read_as(fl_matrix_power(x->t, 3), d, &y) && near("x^3", &y, &want, eps);
}

/* By Horner's rule on x / 2^4, then squared */
static bool exponentials(const operand *x, fl_dtype d, double eps) {
    const int64_t n = columns_of(&x->a);
    array y, one = diagonal(&x->a, n, NULL), want = one, part = matrices_like(&x->a, n, n);
    for (int64_t k = 0; k < part.n; k++) part.f[k] = x->a.f[k] / 16;
    for (int i = 40; i > 0; i--) {
        want = times(&part, &want);
        for (int64_t k = 0; k < want.n; k++) want.f[k] = one.f[k] + want.f[k] / i;
    }
    for (int i = 0; i < 4; i++) want = times(&want, &want);
    want = cast_array(&want, d); /* it may overflow */
    return read_as(fl_matrix_exp(x->t), d, &y) && near("exp", &y, &want, eps);
}

static bool lu_parts(const operand *x, fl_dtype d, double eps) {
    array l, u, p, one = diagonal(&x->a, rows_of(&x->a), NULL);
    fl_tensor *tu = NULL, *tp = NULL, *tl = fl_lu(x->t, &tu, &tp);
    if (!read_as(tl, d, &l) || !read_as(tu, d, &u) || !read_as(tp, d, &p)) return false;
    array pl = times(&p, &l), t = turned(&p);
    for (int64_t k = 0; k < l.n; k++)
        if (fabs(l.f[k]) > 1 || (k % columns_of(&l) == k / columns_of(&l) % rows_of(&l) && l.f[k] != 1))
            return say("l: element %lld is %g", (long long)k, l.f[k]);
    return is_triangle("l", &l, false) && is_triangle("u", &u, true) &&
           product_is("p^T p", &t, &p, &one, 0) && product_is("p l u", &pl, &u, &x->a, eps);
}

static bool lu_factors(const operand *x, fl_dtype d, double eps) {
    int64_t n = columns_of(&x->a);
    fl_tensor *pivot = NULL, *lu = fl_lu_factor(x->t, &pivot);
    array f, p, l = matrices_like(&x->a, n, n), u = matrices_like(&x->a, n, n);
    array swapped = matrices_like(&x->a, n, n);
    if (!read_as(lu, d, &f) || !read_as(pivot, FL_I64, &p)) return false;
    memcpy(swapped.f, x->a.f, (size_t)x->a.n * sizeof *x->a.f);
    for (int64_t k = 0; k < f.n; k++) {
        int64_t r = k / n % n, c = k % n;
        if (r > c) l.f[k] = f.f[k];
        else u.f[k] = f.f[k];
        if (r == c) l.f[k] = 1;
    }
    for (int64_t i = 0; i < p.n; i++) /* row i of its matrix with row pivot[i] */
        for (int64_t c = 0; c < n; c++) {
            double *a = swapped.f + i * n + c, *b = swapped.f + (i / n * n + p.i[i]) * n + c;
            double v = *a;
            *a = *b;
            *b = v;
        }
    return product_is("l u", &l, &u, &swapped, eps);
}

/* By elimination without pivots: x is far from singular. log: log |det|, *sign */
static array determinants(const array *x, bool log_size, double *sign) {
    int64_t n = columns_of(x);
    fl_shape s = x->shape;
    s.ndim -= 2;
    array a = matrices_like(x, n, n), y = new_array(s, FL_F64);
    memcpy(a.f, x->f, (size_t)x->n * sizeof *x->f);
    for (int64_t b = 0; b < y.n; b++) {
        double *m = a.f + b * n * n, det = 1;
        for (int64_t p = 0; p < n; p++) {
            det *= m[p * n + p];
            for (int64_t r = p + 1; r < n; r++)
                for (int64_t c = n - 1; c >= p; c--)
                    m[r * n + c] -= m[r * n + p] / m[p * n + p] * m[p * n + c];
        }
        y.f[b] = log_size ? log(fabs(det)) : det;
        sign[b] = det < 0 ? -1 : 1;
    }
    return y;
}

static bool has_determinant(const operand *x, fl_dtype d, double eps) {
    double *sign = take((size_t)x->a.n * 8 + 8);
    array y, want = determinants(&x->a, false, sign);
    want = cast_array(&want, d); /* it may overflow */
    return read_as(fl_det(x->t), d, &y) && near("det", &y, &want, eps);
}

static bool has_log_determinant(const operand *x, fl_dtype d, double eps) {
    double *sign = take((size_t)x->a.n * 8 + 8);
    array y, signs, want = determinants(&x->a, true, sign);
    fl_tensor *t = NULL, *log_size = fl_slogdet(x->t, &t);
    if (!read_as(log_size, d, &y) || !read_as(t, d, &signs)) return false;
    for (int64_t b = 0; b < want.n; b++)
        if (signs.f[b] != sign[b]) return say("sign %lld", (long long)b);
    return near("log |det|", &y, &want, eps);
}

static bool cholesky_factors(const operand *x, fl_dtype d, double eps) {
    array l;
    if (!read_as(fl_cholesky(x->t), d, &l) || !is_triangle("l", &l, false)) return false;
    array t = turned(&l);
    return product_is("l l^T", &l, &t, &x->a, eps);
}

static bool cholesky_solves(const operand *x, fl_dtype d, double eps) {
    operand b = make_operand(x->a.shape, d, DENSE, TAME);
    array y;
    return read_as(fl_cholesky_solve(fl_cholesky(x->t), b.t), d, &y) &&
           product_is("x y", &x->a, &y, &b.a, eps);
}

static bool qr_factors(const operand *x, fl_dtype d, double eps) {
    array q, r;
    fl_tensor *tr = NULL, *tq = fl_qr(x->t, &tr);
    return read_as(tq, d, &q) && read_as(tr, d, &r) && is_triangle("r", &r, true) &&
           are_orthonormal("q^T q", &q, eps) && product_is("q r", &q, &r, &x->a, eps);
}

static bool svd_factors(const operand *x, fl_dtype d, double eps) {
    array u, s, vt, alone;
    fl_tensor *ts = NULL, *tv = NULL, *tu = fl_svd(x->t, &ts, &tv);
    if (!read_as(tu, d, &u) || !read_as(ts, d, &s) || !read_as(tv, d, &vt)) return false;
    array v = turned(&vt), middle = diagonal(&x->a, columns_of(&u), &s), us = times(&u, &middle);
    return are_orthonormal("u^T u", &u, eps) && are_orthonormal("v^T v", &v, eps) &&
           in_order(&s, true) && product_is("u s vt", &us, &vt, &x->a, eps) &&
           read_as(fl_svdvals(x->t), d, &alone) && near("svdvals", &alone, &s, eps);
}

static bool eigh_factors(const operand *x, fl_dtype d, double eps) {
    array w, v, alone;
    fl_tensor *tv = NULL, *tw = fl_eigh(x->t, &tv);
    if (!read_as(tw, d, &w) || !read_as(tv, d, &v)) return false;
    array middle = diagonal(&x->a, columns_of(&v), &w), vw = times(&v, &middle);
    return are_orthonormal("v^T v", &v, eps) && in_order(&w, false) &&
           product_is("x v", &x->a, &v, &vw, eps) && read_as(fl_eigh(x->t, NULL), d, &alone) &&
           near("eigenvalues", &alone, &w, eps);
}

/* x v = v w in parts, columns of v of length 1, conjugate pairs */
static bool eig_factors(const operand *x, fl_dtype d, double eps) {
    array w[2], v[2], alone[2];
    fl_tensor *t[4] = {NULL}, *some = NULL;
    const int64_t n = columns_of(&x->a);
    t[0] = fl_eig(x->t, &t[1], &t[2], &t[3]);
    for (int i = 0; i < 2; i++)
        if (!read_as(t[i], d, &w[i]) || !read_as(t[2 + i], d, &v[i])) return false;
    if (!read_as(fl_eigvals(x->t, &some), d, &alone[0]) || !read_as(some, d, &alone[1])) return false;
    array re = diagonal(&x->a, n, &w[0]), im = diagonal(&x->a, n, &w[1]);
    array rr = times(&v[0], &re), ii = times(&v[1], &im), ri = times(&v[0], &im), ir = times(&v[1], &re);
    for (int64_t k = 0; k < rr.n; k++) rr.f[k] -= ii.f[k], ri.f[k] += ir.f[k];
    for (int64_t k = 0; k < w[0].n; k++) {
        double length = 0, sum = 0;
        for (int64_t r = 0; r < n; r++) {
            const int64_t at = k / n * n * n + r * n + k % n;
            length += v[0].f[at] * v[0].f[at] + v[1].f[at] * v[1].f[at];
            sum += w[1].f[k / n * n + r];
        }
        if (fabs(length - 1) > eps || fabs(sum) > eps)
            return say("vector %lld: %g, %g", (long long)k, length, sum);
    }
    return product_is("re x v", &x->a, &v[0], &rr, eps) && product_is("im x v", &x->a, &v[1], &ri, eps) &&
           near("eigenvalues", &alone[0], &w[0], eps) && near("eigenvalues", &alone[1], &w[1], eps);
}

/* x^T (x y - b) = 0; wide: x y = b, and y = x^T z: no longer than b needs */
static bool least_squares(const operand *x, fl_dtype d, double eps) {
    fl_shape s = x->a.shape;
    s.dim[s.ndim - 1] = 2;
    operand b = make_operand(s, d, DENSE, TAME);
    array y, t = turned(&x->a), normal = times(&t, &b.a);
    if (!read_as(fl_lstsq(x->t, b.t), d, &y)) return false;
    array fit = times(&x->a, &y);
    return rows_of(&x->a) < columns_of(&x->a) ? near("x y", &fit, &b.a, eps)
                                              : product_is("x^T x y", &t, &fit, &normal, eps);
}

static bool pseudo_inverts(const operand *x, fl_dtype d, double eps) {
    array y;
    if (!read_as(fl_pinv(x->t, 0), d, &y)) return false;
    array xy = times(&x->a, &y), yx = times(&y, &x->a), txy = turned(&xy), tyx = turned(&yx);
    return product_is("x y x", &xy, &x->a, &x->a, eps) && product_is("y x y", &yx, &y, &y, eps) &&
           near("x y symmetric", &xy, &txy, eps) && near("y x symmetric", &yx, &tyx, eps);
}

/* >>groups */

static const struct {
    const char *op;
    bool (*check)(const operand *x, fl_dtype d, double eps);
    int kind;
    bool square;
} factor_ops[] = {
    {"solve", solves, GENERAL, true},
    {"solve_triangular", solves_triangular, POSITIVE, true},
    {"inverse", inverts, GENERAL, true},
    {"matrix_power", powers, GENERAL, true},
    {"matrix_exp", exponentials, GENERAL, true},
    {"lu_factor", lu_factors, GENERAL, true},
    {"det", has_determinant, POSITIVE, true},
    {"slogdet", has_log_determinant, POSITIVE, true},
    {"cholesky", cholesky_factors, POSITIVE, true},
    {"cholesky_solve", cholesky_solves, POSITIVE, true},
    {"eigh", eigh_factors, POSITIVE, true},
    {"eig", eig_factors, GENERAL, true},
    {"lu", lu_parts, GENERAL, false},
    {"qr", qr_factors, GENERAL, false},
    {"svd", svd_factors, GENERAL, false},
    {"lstsq", least_squares, GENERAL, false},
    {"pinv", pseudo_inverts, GENERAL, false},
};
enum { FACTOR_OPS = sizeof factor_ops / sizeof *factor_ops };

static void factor_case(int op, fl_dtype d, layout l, fl_shape s) {
    char text[80];
    if (l == BROADCAST && s.ndim < 3) return;
    if (!layout_fits(l, s) ||
        !case_begin(factor_ops[op].op, d, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = matrices(s, d, l, factor_ops[op].kind);
    double n = (double)(s.dim[s.ndim - 1] + s.dim[s.ndim - 2]);
    case_end(factor_ops[op].check(&x, d, 40 * (1 + n) * eps_of(d)));
}

static void factor_op_cases(int op) {
    static const fl_shape square[] = {{2, {3, 3}},    {2, {1, 1}},   {3, {2, 4, 4}},
                                      {3, {2, 2, 2}}, {2, {33, 33}}, {2, {0, 0}},
                                      {3, {0, 2, 2}}, {4, {2, 1, 2, 2}}};
    static const fl_shape oblong[] = {{2, {5, 3}},    {2, {3, 5}},  {3, {2, 4, 2}},
                                      {3, {2, 1, 4}}, {2, {40, 7}}, {2, {4, 0}}};
    expect_row(factor_ops[op].op, FLOATS, UNWEAK, 0, 0);
    snprintf(row_of(factor_ops[op].op)->tolerance, 64, "what it satisfies: 40 (1 + m + n) eps");
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && takes(FLOATS, all_dtypes[k]); l++) {
            for (int s = 0; s < 8; s++) factor_case(op, all_dtypes[k], (layout)l, square[s]);
            for (int s = 0; s < 6 && !factor_ops[op].square; s++)
                factor_case(op, all_dtypes[k], (layout)l, oblong[s]);
        }
}

/* A batch whose second matrix has no answer */
static void factor_errors(void) {
    fl_tensor *t[] = {fl_eye(2, 2, FL_F32), fl_zeros(FL_SHAPE(2, 2), FL_F32)}, *s, *vt;
    fl_tensor *x = fl_stack(t, 2, 0), *none = fl_full(FL_SHAPE(2, 2), NAN, FL_F32);
    check(fails(fl_solve(x, x)) && strstr(fl_error(), "matrix 1 of 2 is singular"), "solve: 0");
    check(fails(fl_cholesky(x)) && strstr(fl_error(), "matrix 1 of 2"), "cholesky: 0");
    check(fails(fl_svd(none, &s, &vt)), "svd: NaN");
    check(fl_item(fl_sum(fl_det(x), FL_ALL_AXES)) == 1, "det: 0");
    check(isinf(fl_item(fl_select(fl_slogdet(x, &s), 0, 1))), "slogdet: 0");
    fl_tensor *vector = fl_solve(fl_mul(t[0], fl_num(2)), fl_ones(FL_SHAPE(2), FL_F32));
    check(vector && vector->ndim == 1 && fl_item(fl_select(vector, 0, 1)) == 0.5, "solve: vector");
    check(fl_item(fl_sum(fl_pinv(t[1], 0), FL_ALL_AXES)) == 0, "pinv: 0");
    fl_tensor *some = fl_from_host((float[]){3, 0, -1, 4, 0, 0}, FL_SHAPE(2, 3), FL_F32);
    static const double p[] = {1, -1, INFINITY, -INFINITY}, want[] = {7, 0, 4, 4};
    for (int i = 0; i < 4; i++) check(fl_item(fl_matrix_norm(some, p[i])) == want[i], "matrix_norm: sums");
    check(fl_item(fl_matrix_norm(fl_mul(t[0], fl_num(3)), 2)) == 3, "matrix_norm: singular value");
    check(fl_item(fl_nuclear_norm(fl_mul(t[0], fl_num(3)))) == 6, "nuclear_norm");
    static const double orders[] = {2, -2, 1, -1, INFINITY, -INFINITY}, conds[] = {4, 0.25, 4, 4, 4, 4};
    fl_tensor *line = fl_from_host((double[]){-2, 1, 4}, FL_SHAPE(3), FL_F64);
    fl_tensor *rule = fl_mul(fl_eye(3, 3, FL_F64), line), *ranks = NULL;
    for (int i = 0; i < 6; i++) {
        const double low = orders[i] < 0 && orders[i] != -2 ? 0.25 : conds[i]; /* least sums: 1 and 1 / 4 */
        check(fl_item(fl_cond(rule, orders[i])) == low, "cond: diagonal");
        fl_tensor *each = fl_cond(x, orders[i]); /* of 1 and of 0 */
        check(fl_item(fl_select(each, 0, 0)) == 1, "cond: 1");
        const double singular = fl_item(fl_select(each, 0, 1));
        check(fabs(orders[i]) == 2 ? isnan(singular) : isinf(singular), "cond: 0");
        check(fl_item(fl_cond(fl_zeros(FL_SHAPE(0, 0), FL_F32), orders[i])) == 0, "cond: empty");
    }
    check(fabs(fl_item(fl_cond(rule, 0)) - 21 / 4.0) < 1e-14, "cond: Frobenius");
    check(isinf(fl_item(fl_cond(none, 1))), "cond: NaN");
    /* exp(a [0 1; 0 0]) = [1 a; 0 1]; exp(a [0 -1; 1 0]) is a turn by a; matrices of a batch are apart */
    fl_tensor *pair = fl_from_host((double[]){0, 1e-9, 0, 0, 0, -600, 600, 0}, FL_SHAPE(2, 2, 2), FL_F64);
    static const double first[] = {1, 1e-9, 0, 1};
    double e[8];
    check(fl_to_host(fl_matrix_exp(pair), e, sizeof e) && !memcmp(e, first, sizeof first),
          "matrix_exp: nilpotent");
    check(fabs(e[4] - cos(600)) < 1e-12 && fabs(e[6] - sin(600)) < 1e-12, "matrix_exp: turn");
    /* a turn has the values +-600 i; [0 a; 0 0] has one vector, (1, 0), twice */
    fl_tensor *im = NULL, *v = NULL, *v_im = NULL, *w = fl_eig(pair, &im, &v, &v_im);
    double parts[4];
    check(w && fl_to_host(im, parts, sizeof parts) && parts[0] == 0 && parts[1] == 0 &&
              fabs(parts[2] - 600) < 1e-12 && parts[3] == -parts[2], "eig: values");
    check(fl_to_host(v, e, sizeof e) && fabs(e[0]) == 1 && fabs(e[1]) == 1 && e[2] == 0, "eig: defective");
    check(fails(fl_eig(none, &im, &v, &v_im)) && strstr(fl_error(), "matrix 0 of 1"), "eig: NaN");
    check(isnan(fl_item(fl_sum(fl_matrix_exp(none), FL_ALL_AXES))), "matrix_exp: NaN");
    check((ranks = fl_matrix_rank(x, 0, 0)) && ranks->dtype == FL_I64 && ranks->ndim == 1 &&
              fl_item(fl_select(ranks, 0, 0)) == 2 && fl_item(fl_select(ranks, 0, 1)) == 0, "matrix_rank");
    check(fl_item(fl_matrix_rank(rule, 1, 0)) == 2 && fl_item(fl_matrix_rank(rule, 0, 0.5)) == 1 &&
              fl_item(fl_matrix_rank(rule, 1, 0.5)) == 1, "matrix_rank: tolerances");
    check(fl_item(fl_sum(fl_matrix_rank(fl_zeros(FL_SHAPE(2, 0, 3), FL_F32), 0, 0), FL_ALL_AXES)) == 0,
          "matrix_rank: empty");
    check(fails(fl_matrix_rank(none, 0, 0)), "matrix_rank: NaN");
    fl_tensor *bad = fl_zeros(FL_SHAPE(2, 2), FL_I64);
    check(fails(fl_inverse(bad)) && fails(fl_det(bad)) && fails(fl_pinv(bad, 0)), "integers");
}

static void factor_group(void) {
    bool there = has_lapack();
    bool was = fl_backend_strict(false); /* what only the cpu has runs there */
    fl_scope s = fl_scope_begin();
    if (!there) skip("factorisations: built without LAPACK");
    for (int i = 0; i < FACTOR_OPS; i++) {
        row_of(factor_ops[i].op);
        if (there || !strcmp(factor_ops[i].op, "solve_triangular")) factor_op_cases(i);
    }
    if (there) factor_errors();
    fl_scope_end(&s);
    fl_backend_strict(was);
}
/* MIT licence: see LICENSE. */
