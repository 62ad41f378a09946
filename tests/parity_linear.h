/* parity_linear.h - the lines of parity.c for linear algebra */

#define LINEAR_OPS(OP) \
    OP(dot, fv_dot(IN(0), IN(1))) \
    OP(outer, fv_outer(IN(0), IN(1))) \
    OP(kron, fv_kron(IN(0), IN(1))) \
    OP(cross, fv_cross(IN(0), IN(1), AXIS("axis"))) \
    OP(tensordot, fv_tensordot(IN(0), IN(1), AXIS("axes"), NULL, NULL)) \
    OP(einsum, fv_einsum(text_of(c, "equation"), c->x, c->n_in)) \
    OP(trace, fv_trace(IN(0))) \
    OP(addmm, fv_addmm(IN(0), IN(1), IN(2), NUM("beta"), NUM("alpha"))) \
    OP(cdist, fv_cdist(IN(0), IN(1), NUM("p"))) \
    OP(linear, fv_linear(IN(0), IN(1), c->n_in > 2 ? IN(2) : NULL)) \
    OP(bilinear, fv_bilinear(IN(0), IN(1), IN(2), IN(3))) \
    OP(matrix_power, fv_matrix_power(IN(0), INT("n"))) \
    OP(matrix_exp, fv_matrix_exp(IN(0))) \
    OP(solve, fv_solve(IN(0), IN(1))) \
    OP(solve_triangular, fv_solve_triangular(IN(0), IN(1), false, false)) \
    OP(inverse, fv_inverse(IN(0))) \
    OP(det, fv_det(IN(0))) \
    OP(cholesky, fv_cholesky(IN(0))) \
    OP(cholesky_solve, fv_cholesky_solve(IN(0), IN(1))) \
    OP(cond, fv_cond(IN(0), NUM("p"))) \
    OP(matrix_rank, fv_const(fl_matrix_rank(IN(0)->value, NUM("atol"), NUM("rtol")))) \
    OP(svdvals, fv_svdvals(IN(0))) \
    OP(matrix_norm, fv_matrix_norm(IN(0), NUM("p"))) \
    OP(nuclear_norm, fv_nuclear_norm(IN(0))) \
    OP(eigvalsh, fv_eigh(symmetric(IN(0)), NULL)) \
    OP(lstsq, fv_lstsq(IN(0), IN(1))) \
    OP(pinv, fv_pinv(IN(0), 0)) \
    OP(fft, fv_fft(IN(0), -1)) \
    OP(ifft, fv_ifft(IN(0), -1)) \
    OP(fft2, fv_fft2(IN(0))) \
    OP(ifft2, fv_ifft2(IN(0))) \
    OP(rfft, fv_rfft(IN(0), -1)) \
    OP(irfft, fv_irfft(IN(0), INT("n"), -1)) \
    OP(fft_options, fft_options(c)) \
    OP(fftn_options, fftn_options(c)) \
    OP(stft, fv_stft_opt(IN(0), INT("n_fft"), stft_options(c))) \
    OP(istft, fv_istft_opt(IN(0), INT("n_fft"), stft_options(c)))

static fl_fft_norm norm_of(const parity_case *c) {
    const char *norm = text_of(c, "norm");
    return norm[0] == 'o' ? FL_FFT_ORTHO : norm[0] == 'f' ? FL_FFT_FORWARD : FL_FFT_BACKWARD;
}

static fl_var *fftn_options(const parity_case *c) {
    const char *kind = text_of(c, "kind");
    const fl_shape axes = shape_of(c, "axes");
    fl_fftn_opts o = {.axes = {.n = axes.ndim}, .s = shape_of(c, "s"), .norm = norm_of(c)};
    for (int i = 0; i < axes.ndim; i++) o.axes.axis[i] = (int)axes.dim[i];
    return !strcmp(kind, "fftn")     ? fv_fftn_opt(IN(0), o)
           : !strcmp(kind, "ifftn")  ? fv_ifftn_opt(IN(0), o)
           : !strcmp(kind, "rfftn")  ? fv_rfftn_opt(IN(0), o)
           : !strcmp(kind, "rfft2")  ? fv_rfft2_opt(IN(0), o)
           : !strcmp(kind, "irfftn") ? fv_irfftn_opt(IN(0), o)
                                     : fv_irfft2_opt(IN(0), o);
}

static fl_var *fft_options(const parity_case *c) {
    const char *kind = text_of(c, "kind");
    fl_fft_opts o = {.n = INT("n"), .norm = norm_of(c)};
    const int axis = AXIS("axis");
    if (!strcmp(kind, "fft")) return fv_fft_opt(IN(0), axis, o);
    if (!strcmp(kind, "ifft")) return fv_ifft_opt(IN(0), axis, o);
    if (!strcmp(kind, "rfft")) return fv_rfft_opt(IN(0), axis, o);
    const int64_t n = o.n;
    o.n = 0;
    return fv_irfft_opt(IN(0), n, axis, o);
}

static fl_stft_opts stft_options(const parity_case *c) {
    return (fl_stft_opts){.hop = INT("hop"), .win_length = INT("win"), .window = MAYBE(1),
                          .no_center = !INT("center"), .normalized = INT("normalized") != 0,
                          .two_sided = !INT("onesided"), .length = INT("length")};
}

static fl_var *symmetric(fl_var *x) {
    return fv_mul(fv_num(0.5), fv_add(x, fv_transpose(x, -1, -2)));
}

/* a diag(d) b */
static fl_var *three(fl_var *a, fl_var *d, fl_var *b) {
    return fv_matmul(fv_mul(a, fv_unsqueeze(d, -2)), b);
}

static int slogdet(parity_case *c, fl_var **y) {
    fl_tensor *sign = NULL;
    y[1] = fv_slogdet(IN(0), &sign);
    y[0] = fv_const(sign);
    return 2;
}

/* qr, svd and eigh are one only up to signs. */
static int qr(parity_case *c, fl_var **y) {
    fl_var *r = NULL, *q = fv_qr(IN(0), &r);
    y[0] = fv_abs(r);
    y[1] = fv_matmul(q, r);
    return 2;
}

static int lu(parity_case *c, fl_var **y) {
    fl_tensor *p = NULL;
    y[0] = fv_lu(IN(0), &y[1], &p);
    y[2] = fv_const(p);
    return 3;
}

static int eig(parity_case *c, fl_var **y) {
    fl_var *v = NULL, *v_im = NULL;
    y[0] = fv_eig(IN(0), &y[1], &v, &v_im);
    y[2] = fv_add(fv_square(v), fv_square(v_im));
    return 3;
}

static int svd(parity_case *c, fl_var **y) {
    fl_var *vt = NULL, *u = fv_svd(IN(0), &y[0], &vt);
    y[1] = three(u, y[0], vt);
    return 2;
}

static int eigh(parity_case *c, fl_var **y) {
    fl_var *v = NULL;
    y[0] = fv_eigh(IN(0), &v);
    y[1] = three(v, y[0], fv_transpose(v, -1, -2));
    return 2;
}
LINEAR_OPS(OP_BODY)

#define LINEAR_PARITY \
    LINEAR_OPS(OP_LINE) {"slogdet", slogdet, 1}, {"lu", lu, 1}, {"qr", qr, 1}, {"svd", svd, 1}, \
        {"eigh", eigh, 1}, {"eig", eig, 1},
/* MIT licence: see LICENSE. */
