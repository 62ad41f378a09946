/* gradcheck_linear.h - the cases of gradcheck.c for linear algebra */

static fl_var *run_dot(fl_var **x, const grad_case *c) { return (void)c, fv_dot(x[0], x[1]); }
static fl_var *run_outer(fl_var **x, const grad_case *c) { return (void)c, fv_outer(x[0], x[1]); }
static fl_var *run_kron(fl_var **x, const grad_case *c) { return (void)c, fv_kron(x[0], x[1]); }
static fl_var *run_cross(fl_var **x, const grad_case *c) {
    return fv_cross(x[0], x[1], (int)c->k[0]);
}
static fl_var *run_tensordot(fl_var **x, const grad_case *c) {
    static const int left[] = {-1, 0}, right[] = {0, 2};
    return c->k[0] < 0 ? fv_tensordot(x[0], x[1], 2, left, right)
                       : fv_tensordot(x[0], x[1], (int)c->k[0], NULL, NULL);
}
static fl_var *run_trace(fl_var **x, const grad_case *c) {
    return (void)c, fv_mul(fv_trace(x[0]), fv_trace(x[0]));
}
static fl_var *run_addmm(fl_var **x, const grad_case *c) {
    return fv_addmm(x[0], x[1], x[2], (double)c->k[0], 0.5);
}
static fl_var *run_linear(fl_var **x, const grad_case *c) {
    return fv_linear(x[0], x[1], c->n_in > 2 ? x[2] : NULL);
}
static fl_var *run_linear_act(fl_var **x, const grad_case *c) {
    static const fl_op acts[] = {FL_OP_relu, FL_OP_gelu, FL_OP_gelu_tanh,
                                 FL_OP_silu, FL_OP_sigmoid, FL_OP_tanh};
    return fv_linear_act(x[0], x[1], c->n_in > 2 ? x[2] : NULL, acts[c->which]);
}
static fl_var *run_bilinear(fl_var **x, const grad_case *c) {
    return (void)c, fv_bilinear(x[0], x[1], x[2], NULL);
}
static fl_var *run_cdist(fl_var **x, const grad_case *c) {
    return fv_cdist(x[0], x[1], c->k[0] ? (double)c->k[0] : INFINITY);
}

static const char *const einsums[] = {"ij,jk->ik",      "ii->i",       "ij,ij",
                                      "...i,...i->...", "iij,jk,k->i", "bij,bjk->kb"};
static fl_var *run_einsum(fl_var **x, const grad_case *c) {
    fl_var *y = fv_einsum(einsums[c->which], x, c->n_in);
    return y ? fv_mul(y, y) : NULL;
}

static const struct {
    const char *name;
    grad_fn fn;
    int which, n_in;
    fl_shape shape[MAX_IN];
    int64_t k;
} linear_cases[] = {
    {"dot", run_dot, 0, 2, {{1, {3}}, {1, {3}}}, 0},
    {"dot", run_dot, 0, 2, {{1, {0}}, {1, {0}}}, 0},
    {"outer", run_outer, 0, 2, {{1, {3}}, {1, {2}}}, 0},
    {"kron", run_kron, 0, 2, {{2, {1, 2}}, {1, {3}}}, 0},
    {"kron", run_kron, 0, 2, {{2, {2, 2}}, {2, {2, 1}}}, 0},
    {"cross", run_cross, 0, 2, {{1, {3}}, {1, {3}}}, 0},
    {"cross", run_cross, 0, 2, {{2, {3, 2}}, {2, {3, 1}}}, -2},
    {"tensordot", run_tensordot, 0, 2, {{2, {2, 3}}, {2, {3, 2}}}, 1},
    {"tensordot", run_tensordot, 0, 2, {{1, {2}}, {1, {3}}}, 0},
    {"tensordot", run_tensordot, 0, 2, {{2, {2, 3}}, {3, {3, 2, 2}}}, -1},
    {"trace", run_trace, 0, 1, {{2, {3, 3}}}, 0},
    {"trace", run_trace, 0, 1, {{2, {2, 4}}}, 0},
    {"addmm", run_addmm, 0, 3, {{2, {2, 2}}, {2, {2, 3}}, {2, {3, 2}}}, 2},
    {"addmm", run_addmm, 0, 3, {{1, {2}}, {2, {2, 3}}, {2, {3, 2}}}, 0},
    {"linear", run_linear, 0, 3, {{2, {2, 3}}, {2, {2, 3}}, {1, {2}}}, 0},
    {"linear", run_linear, 0, 2, {{3, {2, 1, 2}}, {2, {3, 2}}}, 0},
    {"linear_act", run_linear_act, 0, 3, {{2, {2, 3}}, {2, {2, 3}}, {1, {2}}}, 0},
    {"linear_act", run_linear_act, 1, 3, {{3, {2, 1, 2}}, {2, {3, 2}}, {1, {3}}}, 0},
    {"linear_act", run_linear_act, 2, 2, {{2, {2, 3}}, {2, {2, 3}}}, 0},
    {"linear_act", run_linear_act, 3, 3, {{1, {3}}, {2, {2, 3}}, {1, {2}}}, 0},
    {"linear_act", run_linear_act, 4, 3, {{2, {2, 2}}, {2, {2, 2}}, {1, {1}}}, 0},
    {"linear_act", run_linear_act, 5, 3, {{2, {2, 3}}, {2, {1, 3}}, {1, {1}}}, 0},
    {"bilinear", run_bilinear, 0, 3, {{2, {2, 2}}, {2, {2, 3}}, {3, {2, 2, 3}}}, 0},
    {"cdist", run_cdist, 0, 2, {{2, {3, 2}}, {2, {2, 2}}}, 2},
    {"cdist", run_cdist, 0, 2, {{3, {2, 2, 2}}, {2, {1, 2}}}, 3},
    {"cdist", run_cdist, 0, 2, {{2, {3, 2}}, {2, {2, 2}}}, 1},
    {"cdist", run_cdist, 0, 2, {{2, {2, 3}}, {2, {2, 3}}}, 0},
    {"einsum", run_einsum, 0, 2, {{2, {2, 3}}, {2, {3, 2}}}, 0},
    {"einsum", run_einsum, 1, 1, {{2, {3, 3}}}, 0},
    {"einsum", run_einsum, 2, 2, {{2, {2, 3}}, {2, {2, 1}}}, 0},
    {"einsum", run_einsum, 3, 2, {{3, {2, 1, 2}}, {2, {2, 2}}}, 0},
    {"einsum", run_einsum, 4, 3, {{3, {2, 2, 2}}, {2, {2, 3}}, {1, {3}}}, 0},
    {"einsum", run_einsum, 5, 2, {{3, {2, 1, 2}}, {3, {2, 2, 2}}}, 0},
};
enum { LINEAR_CASES = sizeof linear_cases / sizeof *linear_cases };

static void linear_group(int unused) {
    (void)unused;
    for (int i = 0; i < LINEAR_CASES; i++) {
        grad_case c = {.fn = linear_cases[i].fn,
                       .which = linear_cases[i].which,
                       .n_in = linear_cases[i].n_in,
                       .low = -2,
                       .high = 2,
                       .k = {linear_cases[i].k}};
        for (int k = 0; k < c.n_in; k++) {
            c.shape[k] = linear_cases[i].shape[k];
            c.base[k] = linear_cases[i].fn == run_cdist ? 0.13 * k : 0;
        }
        run_case(linear_cases[i].name, c);
    }
}
/* >>factorisations: of matrices far from singular, symmetric ones where the op needs them, and as
   what does not depend on signs: squares of q, u, v */

static fl_var *well(fl_var *x) { /* + 3 on the diagonal */
    int64_t m = x->value->shape[x->value->ndim - 2], n = x->value->shape[x->value->ndim - 1];
    return fv_add(x, fv_const(fl_mul(fl_eye(m, n, x->value->dtype), fl_num(3))));
}
static fl_var *positive(fl_var *x) {
    fl_var *gram = fv_matmul(x, fv_transpose(x, -1, -2));
    int64_t n = gram ? gram->value->shape[gram->value->ndim - 1] : 0;
    fl_tensor *apart = fl_arange(1, 1 + 1.5 * (double)n, 1.5, x->value->dtype); /* eigenvalues */
    return fv_add(gram, fv_const(fl_mul(fl_eye(n, n, x->value->dtype), apart)));
}
static fl_var *end_to_end(fl_var *a, fl_var *b, fl_var *c) {
    fl_var *all[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (all[i]) all[i] = fv_reshape(all[i], FL_SHAPE(-1));
    return fv_concat(all, c ? 3 : 2, 0);
}

static fl_var *run_solve(fl_var **x, const grad_case *c) {
    return (void)c, fv_solve(well(x[0]), x[1]);
}
static fl_var *run_triangular(fl_var **x, const grad_case *c) {
    return fv_solve_triangular(well(x[0]), x[1], c->k[0] & 1, c->k[0] & 2);
}
static fl_var *run_inverse(fl_var **x, const grad_case *c) {
    return (void)c, fv_inverse(well(x[0]));
}
static fl_var *run_power(fl_var **x, const grad_case *c) {
    return fv_matrix_power(well(x[0]), c->k[0]);
}
static fl_var *run_exp(fl_var **x, const grad_case *c) {
    return fv_matrix_exp(fv_mul(x[0], fv_num((double)c->k[0])));
}
static fl_var *run_det(fl_var **x, const grad_case *c) { return (void)c, fv_det(well(x[0])); }
static fl_var *run_slogdet(fl_var **x, const grad_case *c) {
    return (void)c, fv_slogdet(well(x[0]), NULL);
}
static fl_var *run_cholesky(fl_var **x, const grad_case *c) {
    return (void)c, fv_cholesky(positive(x[0]));
}
static fl_var *run_cholesky_solve(fl_var **x, const grad_case *c) {
    return (void)c, fv_cholesky_solve(well(x[0]), x[1]);
}
static fl_var *run_lu(fl_var **x, const grad_case *c) {
    (void)c;
    fl_tensor *p = NULL;
    fl_var *u = NULL, *l = fv_lu(well(x[0]), &u, &p);
    return l ? end_to_end(l, u, NULL) : NULL;
}
static fl_var *run_qr(fl_var **x, const grad_case *c) {
    (void)c;
    fl_var *r = NULL, *q = fv_qr(well(x[0]), &r);
    return q ? end_to_end(fv_mul(q, q), fv_mul(r, r), NULL) : NULL;
}
static fl_var *run_svd(fl_var **x, const grad_case *c) {
    fl_tensor *apart = fl_arange(1, (double)c->k[0] + 1, 1, x[0]->value->dtype);
    fl_var *s = NULL, *vt = NULL, *u = fv_svd(fv_mul(well(x[0]), fv_const(apart)), &s, &vt);
    return u ? end_to_end(fv_mul(u, u), s, fv_mul(vt, vt)) : NULL;
}
static fl_var *run_svdvals(fl_var **x, const grad_case *c) {
    return (void)c, fv_svdvals(well(x[0]));
}
static fl_var *run_matrix_norm(fl_var **x, const grad_case *c) {
    static const double p[] = {0, 1, -1, 2, -2, INFINITY, -INFINITY};
    return c->k[0] < 7 ? fv_matrix_norm(well(x[0]), p[c->k[0]]) : fv_nuclear_norm(well(x[0]));
}
static fl_var *run_cond(fl_var **x, const grad_case *c) {
    static const double p[] = {0, 1, -1, 2, -2, INFINITY, -INFINITY};
    return fv_cond(well(x[0]), p[c->k[0]]);
}
static fl_var *run_eigh(fl_var **x, const grad_case *c) {
    fl_var *v = NULL, *w = fv_eigh(positive(x[0]), c->k[0] ? &v : NULL);
    return v ? end_to_end(w, fv_mul(v, v), NULL) : w;
}
/* k: values; vectors by their sizes; vectors as they are */
static fl_var *run_eig(fl_var **x, const grad_case *c) {
    static const double apart[] = {0, 2, -1, -2, 1, 2, 1, -3, 5};
    fl_var *im = NULL, *v = NULL, *v_im = NULL, *a = fv_mul(x[0], fv_num(0.25));
    const int64_t n = x[0]->value->shape[x[0]->value->ndim - 1];
    a = fv_add(a, fv_const(fl_cast(fl_from_host(apart, FL_SHAPE(n, n), FL_F64), a->value->dtype)));
    fl_var *w = c->k[0] ? fv_eig(a, &im, &v, &v_im) : fv_eigvals(a, &im);
    if (!w || !v) return w ? end_to_end(w, im, NULL) : NULL;
    if (c->k[0] == 1) return end_to_end(w, fv_add(fv_mul(v, v), fv_mul(v_im, v_im)), NULL);
    return end_to_end(v, v_im, im);
}
static fl_var *run_lstsq(fl_var **x, const grad_case *c) {
    return (void)c, fv_lstsq(well(x[0]), x[1]);
}
static fl_var *run_pinv(fl_var **x, const grad_case *c) {
    return (void)c, fv_pinv(well(x[0]), 0);
}

static const struct {
    const char *name;
    grad_fn fn;
    int n_in;
    fl_shape shape[2];
    int64_t k;
} factor_cases[] = {
    {"solve", run_solve, 2, {{2, {3, 3}}, {2, {3, 2}}}, 0},
    {"solve", run_solve, 2, {{3, {2, 2, 2}}, {1, {2}}}, 0},
    {"solve", run_solve, 2, {{2, {2, 2}}, {3, {2, 2, 1}}}, 0},
    {"solve_triangular", run_triangular, 2, {{2, {3, 3}}, {2, {3, 2}}}, 0},
    {"solve_triangular", run_triangular, 2, {{2, {3, 3}}, {3, {2, 3, 1}}}, 1},
    {"solve_triangular", run_triangular, 2, {{3, {2, 2, 2}}, {2, {2, 2}}}, 2},
    {"solve_triangular", run_triangular, 2, {{2, {2, 2}}, {2, {2, 1}}}, 3},
    {"inverse", run_inverse, 1, {{2, {3, 3}}}, 0},
    {"inverse", run_inverse, 1, {{3, {2, 2, 2}}}, 0},
    {"matrix_power", run_power, 1, {{2, {2, 2}}}, 3},
    {"matrix_power", run_power, 1, {{2, {3, 3}}}, -2},
    {"matrix_exp", run_exp, 1, {{2, {3, 3}}}, 1},
    {"matrix_exp", run_exp, 1, {{3, {2, 2, 2}}}, 2},
    {"matrix_exp", run_exp, 1, {{2, {1, 1}}}, 0},
    {"det", run_det, 1, {{2, {3, 3}}}, 0},
    {"det", run_det, 1, {{3, {2, 2, 2}}}, 0},
    {"slogdet", run_slogdet, 1, {{2, {3, 3}}}, 0},
    {"slogdet", run_slogdet, 1, {{3, {2, 1, 1}}}, 0},
    {"cholesky", run_cholesky, 1, {{2, {3, 3}}}, 0},
    {"cholesky", run_cholesky, 1, {{3, {2, 2, 2}}}, 0},
    {"cholesky_solve", run_cholesky_solve, 2, {{2, {3, 3}}, {2, {3, 2}}}, 0},
    {"cholesky_solve", run_cholesky_solve, 2, {{3, {2, 2, 2}}, {2, {2, 1}}}, 0},
    {"lu", run_lu, 1, {{2, {3, 3}}}, 0},
    {"lu", run_lu, 1, {{3, {2, 4, 2}}}, 0},
    {"lu", run_lu, 1, {{2, {2, 4}}}, 0},
    {"qr", run_qr, 1, {{2, {3, 3}}}, 0},
    {"qr", run_qr, 1, {{2, {4, 2}}}, 0},
    {"qr", run_qr, 1, {{2, {2, 3}}}, 0},
    {"qr", run_qr, 1, {{3, {2, 2, 2}}}, 0},
    {"svd", run_svd, 1, {{2, {3, 3}}}, 3},
    {"svd", run_svd, 1, {{2, {4, 2}}}, 2},
    {"svd", run_svd, 1, {{2, {2, 3}}}, 3},
    {"svd", run_svd, 1, {{3, {2, 2, 2}}}, 2},
    {"svdvals", run_svdvals, 1, {{2, {3, 2}}}, 0},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 0},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 1},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 2},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 3},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 4},
    {"matrix_norm", run_matrix_norm, 1, {{3, {2, 2, 2}}}, 5},
    {"matrix_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 6},
    {"nuclear_norm", run_matrix_norm, 1, {{2, {3, 2}}}, 7},
    {"cond", run_cond, 1, {{3, {2, 2, 2}}}, 0},
    {"cond", run_cond, 1, {{2, {3, 3}}}, 1},
    {"cond", run_cond, 1, {{2, {3, 2}}}, 3},
    {"cond", run_cond, 1, {{2, {2, 3}}}, 4},
    {"cond", run_cond, 1, {{3, {2, 2, 2}}}, 6},
    {"eigvals", run_eig, 1, {{2, {3, 3}}}, 0},
    {"eig", run_eig, 1, {{2, {3, 3}}}, 1},
    {"eig", run_eig, 1, {{3, {2, 3, 3}}}, 2},
    {"eigh", run_eigh, 1, {{2, {3, 3}}}, 1},
    {"eigh", run_eigh, 1, {{3, {2, 2, 2}}}, 1},
    {"eigh", run_eigh, 1, {{2, {3, 3}}}, 0},
    {"lstsq", run_lstsq, 2, {{2, {4, 2}}, {2, {4, 2}}}, 0},
    {"lstsq", run_lstsq, 2, {{2, {2, 3}}, {2, {2, 1}}}, 0},
    {"pinv", run_pinv, 1, {{2, {3, 2}}}, 0},
    {"pinv", run_pinv, 1, {{2, {2, 3}}}, 0},
};
enum { FACTOR_CASES = sizeof factor_cases / sizeof *factor_cases };

static void factor_group(int unused) {
    (void)unused;
    bool was = fl_backend_strict(false); /* what only the cpu has runs there */
    bool there = has_lapack();
    if (!there) printf("  skipped: factorisations: built without LAPACK\n");
    for (int i = 0; i < FACTOR_CASES && there; i++) {
        grad_case c = {.fn = factor_cases[i].fn,
                       .n_in = factor_cases[i].n_in,
                       .low = -1,
                       .high = 1,
                       .k = {factor_cases[i].k}};
        for (int k = 0; k < c.n_in; k++) c.shape[k] = factor_cases[i].shape[k];
        run_case(factor_cases[i].name, c);
    }
    fl_backend_strict(was);
}

/* >>fft, squared */

static fl_var *run_fft(fl_var **x, const grad_case *c) {
    int axis = (int)c->k[0];
    fl_var *y = c->which == 0   ? fv_fft(x[0], axis)
                : c->which == 1 ? fv_ifft(x[0], axis)
                : c->which == 2 ? fv_fft2(x[0])
                : c->which == 3 ? fv_ifft2(x[0])
                : c->which == 4 ? fv_rfft(x[0], axis)
                : c->which == 5 ? fv_irfft(x[0], c->k[1], axis)
                : c->which == 6 ? fv_fft(x[0], axis, .n = c->k[1], .norm = FL_FFT_ORTHO)
                : c->which == 7 ? fv_rfft(x[0], axis, .n = c->k[1], .norm = FL_FFT_FORWARD)
                : c->which == 8 ? fv_stft(x[0], 4, .window = fl_hann_window(4, true, FL_F64))
                : c->which == 10 ? fv_fftn(x[0], .axes = FL_AXES(0, 2), .s = FL_SHAPE(3, 2))
                : c->which == 11 ? fv_ifftn(x[0], .norm = FL_FFT_ORTHO)
                : c->which == 12 ? fv_rfftn(x[0], .norm = FL_FFT_FORWARD)
                : c->which == 13 ? fv_rfft2(x[0], .s = FL_SHAPE(2, 4))
                : c->which == 14 ? fv_irfftn(x[0], .axes = FL_AXES(1, 0), .s = FL_SHAPE(2, 3))
                : c->which == 15 ? fv_irfft2(x[0])
                                : fv_istft(x[0], 4, .hop = 2, .normalized = true, .length = c->k[1]);
    return y ? fv_mul(y, y) : NULL;
}

static void fft_group(int unused) {
    static const struct {
        const char *name;
        int which;
        fl_shape shape;
        int64_t axis, n;
    } cases[] = {{"fft", 0, {2, {4, 2}}, 0, 0},     {"fft", 0, {3, {3, 2, 2}}, 0, 0},
                 {"ifft", 1, {2, {5, 2}}, -1, 0},   {"ifft", 1, {2, {1, 2}}, 0, 0},
                 {"fft2", 2, {3, {2, 3, 2}}, 0, 0}, {"ifft2", 3, {3, {2, 3, 2}}, 0, 0},
                 {"rfft", 4, {1, {5}}, 0, 0},       {"rfft", 4, {2, {4, 2}}, 0, 0},
                 {"irfft", 5, {2, {3, 2}}, 0, 4},   {"irfft", 5, {3, {2, 3, 2}}, 1, 5},
                 {"irfft", 5, {2, {3, 2}}, -1, 1},  {"fft n", 6, {2, {3, 2}}, 0, 5},
                 {"rfft n", 7, {1, {5}}, 0, 4},     {"stft", 8, {1, {6}}, 0, 0},
                 {"istft", 9, {3, {3, 3, 2}}, 0, 0}, {"istft", 9, {3, {3, 3, 2}}, 0, 5},
                 {"fftn", 10, {4, {2, 2, 3, 2}}, 0, 0}, {"ifftn", 11, {3, {3, 2, 2}}, 0, 0},
                 {"rfftn", 12, {3, {2, 2, 3}}, 0, 0}, {"rfft2", 13, {2, {3, 3}}, 0, 0},
                 {"irfftn", 14, {3, {3, 2, 2}}, 0, 0}, {"irfft2", 15, {3, {2, 3, 2}}, 0, 0}};
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(cases[i].name, (grad_case){.fn = run_fft,
                                            .which = cases[i].which,
                                            .n_in = 1,
                                            .shape = {cases[i].shape},
                                            .low = -2,
                                            .high = 2,
                                            .k = {cases[i].axis, cases[i].n}});
}
/* MIT licence: see LICENSE. */
