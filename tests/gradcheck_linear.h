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
/* MIT licence: see LICENSE. */
