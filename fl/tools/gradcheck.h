/* fl/tools/gradcheck.h - gradient check by finite differences; Jacobians */
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#ifndef FL_TOOLS_GRADCHECK_H
#define FL_TOOLS_GRADCHECK_H

#ifdef __cplusplus
extern "C" {
#endif

/* Jacobian of y: j[i][k numel(x[i]) + n] = d y[k] / d x[i][n], with row-major indices k and n; zeros where y
   does not depend on x[i]. The caller allocates the numel(y) numel(x[i]) numbers of each j[i]. Runs a
   backward pass per element of y; the graph is retained. At most FV_MAX of x. False after an error. */
FL_API bool fl_jacobian(fl_var *y, fv_list x, double *const *j);

/* A deterministic function of variables. */
typedef fl_var *(*fl_gradcheck_fn)(fl_var *const *x, void *user);
typedef struct fl_gradcheck_opts {
    fl_opts_guard guard_;
    double eps;        /* step of the differences; 0: 1e-6 */
    double atol, rtol; /* absolute and relative tolerance; 0: 1e-5, 1e-3 */
    void *user;        /* passed to fn */
    char _end;
} fl_gradcheck_opts;
/* True if the Jacobian of fn at x by backward agrees with central differences,
     |backward - difference| <= atol + rtol |difference|,  difference = (fn(x + eps) - fn(x - eps)) / (2 eps),
   for all elements of all x that require a gradient, and two backward passes are bit-identical. Otherwise
   false after fl_fail, which names the worst element. x must be f64 leaves. Two NaNs count as equal; a
   result that requires no gradient has zeros. As torch.autograd.gradcheck. */
#define fl_gradcheck(...) FL__GRADCHECK(fl_gradcheck_opt, __VA_ARGS__, ._end = 0)
#define FL__GRADCHECK(check, fn, x, ...) check(fn, x, FL_LITERAL(fl_gradcheck_opts, __VA_ARGS__))
FL_API bool fl_gradcheck_opt(fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o);
/* The same for second derivatives: checks the gradient of (x, v) -> v J, by double backward, for a random v
   of fn's shape. At most FV_MAX - 1 of x. As torch.autograd.gradgradcheck. */
#define fl_gradgradcheck(...) FL__GRADCHECK(fl_gradgradcheck_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_gradgradcheck_opt(fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_GRADCHECK_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TOOLS_GRADCHECK) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_GRADCHECK_IMPL
#define FL_TOOLS_GRADCHECK_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/move.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <math.h>
#include <string.h>

enum { FL__CHECKED = FV_MAX }; /* maximum number of inputs */

/* Copies t to the host as f64. */
static bool fl__numbers(fl_tensor *t, double *to) {
    t = t ? fl_cast(t, FL_F64) : NULL;
    return t && fl_to_host(t, to, (size_t)fl_numel(t) * sizeof *to);
}

/* Row k of the Jacobians: a backward pass from a one-hot gradient. */
static bool fl__jacobian_row(fl_var *y, fv_list x, int64_t k, double *seed, double *const *j) {
    fl_var *g[FL__CHECKED];
    fl_scope s = fl_scope_begin();
    seed[k] = 1;
    fl_tensor *v = fl_empty_like(y->value);
    bool ok = v && (v = fl_cast(v, FL_F64)) && fl_set_host(v, seed, (size_t)fl_numel(v) * sizeof *seed) &&
              fl_grads(FV_LIST(y), x, g, .given = FV_LIST(fv_const(fl_cast(v, y->value->dtype))),
                       .retain_graph = true, .allow_unused = true);
    seed[k] = 0;
    for (int i = 0; ok && i < x.n; i++) {
        const int64_t n = fl_numel(x.v[i]->value);
        if (g[i]) ok = fl__numbers(g[i]->value, j[i] + k * n);
        else memset(j[i] + k * n, 0, (size_t)n * sizeof **j);
    }
    fl_scope_end(&s);
    return ok;
}

FL_API bool fl_jacobian(fl_var *y, fv_list x, double *const *j) {
    if (fl_error()) return false;
    if (!y || !j) return fl_err_false("fl_jacobian: %s is NULL", y ? "j" : "y");
    if (x.n < 1 || x.n > FL__CHECKED)
        return fl_err_false("fl_jacobian: got %d variables, expected 1 to %d", x.n, FL__CHECKED);
    const int64_t m = fl_numel(y->value);
    double *seed = fl_heap_alloc((size_t)(m + 1) * sizeof *seed);
    fl_quiet(1);
    bool ok = seed != NULL;
    if (ok) memset(seed, 0, (size_t)(m + 1) * sizeof *seed);
    for (int i = 0; ok && !y->requires_grad && i < x.n; i++)
        memset(j[i], 0, (size_t)(m * fl_numel(fv_value(x.v[i]))) * sizeof **j);
    for (int64_t k = 0; ok && y->requires_grad && k < m; k++) ok = fl__jacobian_row(y, x, k, seed, j);
    fl_heap_free(seed);
    fl_quiet(-1);
    return ok || fl_raise();
}

/* ---- the check ---- */

typedef struct fl__check {
    const char *fn_name;
    fl_gradcheck_fn fn;
    fv_list x;
    fl_gradcheck_opts o;
    fl_shape out;
    int64_t m, n[FL__CHECKED]; /* number of elements of the result, of each x */
    double *at[FL__CHECKED];   /* values of each x */
    double *jacobian[FL__CHECKED], *again[FL__CHECKED];
    double *up, *down;
    double worst;              /* largest error as a multiple of the tolerance, */
    double backward, difference; /* the two derivatives there, */
    int64_t k, element;        /* and the indices of result */
    int input;                 /* and input */
} fl__check;

/* Evaluates fn at the values `at`, on new leaves. */
static bool fl__check_value(const fl__check *c, double *to) {
    fl_var *x[FL__CHECKED];
    fl_scope s = fl_scope_begin();
    bool ok = true;
    for (int i = 0; ok && i < c->x.n; i++) {
        fl_tensor *t = fl_empty_like(c->x.v[i]->value);
        ok = t && fl_set_host(t, c->at[i], (size_t)c->n[i] * sizeof **c->at) && (x[i] = fv_param(t));
    }
    fl_var *y = ok ? c->fn(x, c->o.user) : NULL;
    ok = y && fl_numel(y->value) == c->m
             ? fl__numbers(y->value, to)
             : fl_fail("%s: fn returned NULL, or a result of a different size at x + eps", c->fn_name);
    fl_scope_end(&s);
    return ok;
}

/* Compares column e of the Jacobian of input i. */
static bool fl__check_column(fl__check *c, int i, int64_t e) {
    const double x = c->at[i][e], h = c->o.eps;
    c->at[i][e] = x + h;
    bool ok = fl__check_value(c, c->up);
    c->at[i][e] = x - h;
    ok = ok && fl__check_value(c, c->down);
    c->at[i][e] = x;
    for (int64_t k = 0; ok && k < c->m; k++) {
        const double d = (c->up[k] - c->down[k]) / (2 * h), b = c->jacobian[i][k * c->n[i] + e];
        double off = b == d || (isnan(b) && isnan(d)) ? 0 : fabs(b - d) / (c->o.atol + c->o.rtol * fabs(d));
        if (isnan(off)) off = (double)INFINITY;
        if (off <= c->worst) continue;
        c->worst = off, c->backward = b, c->difference = d;
        c->k = k, c->input = i, c->element = e;
    }
    return ok;
}

/* "[0, 2]": the index of element i of a shape. */
static fl_str200 fl__index_text(fl_shape s, int64_t i) {
    for (int d = s.ndim - 1; d >= 0; d--) {
        const int64_t n = s.dim[d];
        s.dim[d] = i % n;
        i /= n;
    }
    return fl_text_of_shape(s);
}

static bool fl__check_run(fl__check *c) {
    fl_var *y = c->fn(c->x.v, c->o.user);
    if (!y) return fl_fail("%s: fn returned NULL", c->fn_name);
    c->out = fl_shape_of(y->value);
    c->m = fl_numel(y->value);
    c->up = fl_heap_alloc((size_t)(2 * c->m + 1) * sizeof *c->up);
    if (!c->up) return false;
    c->down = c->up + c->m;
    for (int i = 0; i < c->x.n; i++) {
        const int64_t n = c->n[i], all = n * (1 + 2 * c->m) + 1;
        if (!(c->at[i] = fl_heap_alloc((size_t)all * sizeof **c->at))) return false;
        c->jacobian[i] = c->at[i] + n;
        c->again[i] = c->jacobian[i] + n * c->m;
        if (!fl__numbers(c->x.v[i]->value, c->at[i])) return false;
    }
    if (!fl_jacobian(y, c->x, c->jacobian) || !fl_jacobian(y, c->x, c->again)) return false;
    for (int i = 0; i < c->x.n; i++)
        if (memcmp(c->jacobian[i], c->again[i], (size_t)(c->n[i] * c->m) * sizeof **c->again))
            return fl_fail("%s: two backward passes differ in the gradient of input %d", c->fn_name, i);
    for (int i = 0; i < c->x.n; i++)
        for (int64_t e = 0; c->x.v[i]->requires_grad && e < c->n[i]; e++)
            if (!fl__check_column(c, i, e)) return false;
    if (c->worst <= 1) return true;
    return fl_fail("%s: d result%s / d input %d %s is %.12g by backward, %.12g by differences", c->fn_name,
                   fl__index_text(c->out, c->k).s, c->input,
                   fl__index_text(fl_shape_of(c->x.v[c->input]->value), c->element).s, c->backward,
                   c->difference);
}

static bool fl__check_of(const char *fn_name, fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o) {
    fl__check c = {.fn_name = fn_name, .fn = fn, .x = x, .o = o};
    if (fl_error()) return false;
    c.o.eps = fl_option(o.eps, 1e-6);
    c.o.atol = fl_option(o.atol, 1e-5);
    c.o.rtol = fl_option(o.rtol, 1e-3);
    if (!fn || !x.v) return fl_fail("%s: %s is NULL", fn_name, fn ? "x" : "fn");
    if (x.n < 1 || x.n > FL__CHECKED)
        return fl_fail("%s: got %d variables, expected 1 to %d", fn_name, x.n, FL__CHECKED);
    for (int i = 0; i < x.n; i++) {
        if (!x.v[i] || x.v[i]->value->dtype != FL_F64)
            return fl_fail("%s: input %d is %s, expected f64, which finite differences need", fn_name, i,
                           x.v[i] ? fl_dtype_name(x.v[i]->value->dtype) : "NULL");
        c.n[i] = fl_numel(x.v[i]->value);
    }
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    const bool recorded = fl_no_grad(false), ok = fl__check_run(&c);
    fl_no_grad(recorded);
    fl_scope_end(&s);
    for (int i = 0; i < x.n; i++) fl_heap_free(c.at[i]);
    fl_heap_free(c.up);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_gradcheck_opt(fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o) {
    return fl__check_of("fl_gradcheck", fn, x, o);
}

typedef struct fl__vjp {
    fl_gradcheck_fn fn;
    void *user;
    int n;
} fl__vjp;

/* The gradients of x for v = x[n], flattened and concatenated; zeros for x that the result does not depend
   on. */
static fl_var *fl__vjp_of(fl_var *const *x, void *user) {
    const fl__vjp *f = user;
    fl_var *g[FL__CHECKED];
    fl_var *y = f->fn(x, f->user);
    if (!y || !fl_grads(FV_LIST(y), fv_list_of(f->n, x), g, .given = FV_LIST(x[f->n]), .create_graph = true,
                        .allow_unused = true))
        return NULL;
    for (int i = 0; i < f->n; i++) {
        if (!g[i]) g[i] = fv_mul(x[i], fv_num(0));
        if (!g[i] || !(g[i] = fv_reshape(g[i], FL_SHAPE(-1)))) return NULL;
    }
    return fv_concat(g, f->n, 0);
}

FL_API bool fl_gradgradcheck_opt(fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o) {
    fl_var *all[FL__CHECKED] = {NULL};
    fl__vjp f = {fn, o.user, x.n};
    fl_rng rng = {1, 0};
    if (fl_error()) return false;
    if (!fn || !x.v) return fl_fail("fl_gradgradcheck: %s is NULL", fn ? "x" : "fn");
    if (x.n < 1 || x.n >= FL__CHECKED)
        return fl_fail("fl_gradgradcheck: got %d variables, expected 1 to %d", x.n, FL__CHECKED - 1);
    fl_scope s = fl_scope_begin();
    fl_quiet(1);
    fl_var *y = fn(x.v, o.user);
    memcpy(all, x.v, (size_t)x.n * sizeof *all);
    fl_tensor *v = y ? fl_uniform(fl_shape_of(y->value), -1, 1, FL_F64, &rng) : NULL;
    if (v) all[x.n] = fv_param(fl_to(v, fl_backend_name(y->value)));
    o.user = &f;
    const bool ok = y ? all[x.n] && fl__check_of("fl_gradgradcheck", fl__vjp_of, fv_list_of(x.n + 1, all), o)
                      : fl_fail("fl_gradgradcheck: fn returned NULL");
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
