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
    OP(solve, fv_solve(IN(0), IN(1))) \
    OP(solve_triangular, fv_solve_triangular(IN(0), IN(1), false, false)) \
    OP(inverse, fv_inverse(IN(0))) \
    OP(det, fv_det(IN(0))) \
    OP(cholesky, fv_cholesky(IN(0))) \
    OP(svdvals, fv_svdvals(IN(0))) \
    OP(eigvalsh, fv_eigh(symmetric(IN(0)), NULL)) \
    OP(lstsq, fv_lstsq(IN(0), IN(1))) \
    OP(pinv, fv_pinv(IN(0), 0))

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

/* The next three are one only up to signs. */
static int qr(parity_case *c, fl_var **y) {
    fl_var *r = NULL, *q = fv_qr(IN(0), &r);
    y[0] = fv_abs(r);
    y[1] = fv_matmul(q, r);
    return 2;
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
    LINEAR_OPS(OP_LINE) {"slogdet", slogdet, 1}, {"qr", qr, 1}, {"svd", svd, 1}, {"eigh", eigh, 1},
/* MIT licence: see LICENSE. */
