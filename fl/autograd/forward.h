/* fl/autograd/forward.h - forward-mode differentiation: Jacobian-vector products, by two reverse passes */
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#ifndef FL_AUTOGRAD_FORWARD_H
#define FL_AUTOGRAD_FORWARD_H

#ifdef __cplusplus
extern "C" {
#endif

/* Jacobian-vector product J v: the derivative of y in the direction v; J = dy/dx, v has x's shape, the
   result y's. Computed by double backward: the gradient u J is linear in u, and its own gradient is J v; so
   every op whose backward is differentiable supports it. create_graph and NULL as for fl_grad. */
FL_API fl_var *fl_jvp(fl_var *y, fl_var *x, fl_var *v, bool create_graph);
/* The same for several, in two passes: jv[k] = sum over i of dy[k]/dx[i] v[i] (v[i] NULL: zero); NULL where
   y[k] depends on no x. The graph is retained. False after an error, jv is then untouched. */
FL_API bool fl_jvps(fv_list y, fv_list x, fv_list v, fl_var **jv, bool create_graph);

#ifdef __cplusplus
}
#endif
#endif /* FL_AUTOGRAD_FORWARD_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_AUTOGRAD_FORWARD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_AUTOGRAD_FORWARD_IMPL
#define FL_AUTOGRAD_FORWARD_IMPL
#include <string.h>

/* Checks that the directions have the shapes of the variables; false after fl_fail. */
static bool fv__jvp_fits(fv_list x, fv_list v) {
    if (v.n != x.n || !v.v)
        return fl_fail("fl_jvps: got %d directions, expected one per variable, %d", v.n, x.n);
    for (int i = 0; i < x.n; i++) {
        fl_tensor *d = fv_value(v.v[i]);
        if (d && !fl_same_shape(d, x.v[i]->value))
            return fl_fail("fl_jvps: direction %d has shape %s, expected %s as the variable", i,
                           FL_SHAPE_TEXT(d), FL_SHAPE_TEXT(x.v[i]->value));
    }
    return true;
}

/* work: [2 y.n + 2 x.n]. */
static bool fv__jvps(fv_list y, fv_list x, fv_list v, fl_var **work, bool create_graph) {
    fl_var **u = work, **jv = work + y.n, **g = jv + y.n, **along = g + x.n;
    int n = 0;
    for (int k = 0; k < y.n; k++)
        if (!(u[k] = fv_param(fl_full_like(y.v[k]->value, 1)))) return false;
    if (!fl_grads(y, x, g, .given = fv_list_of(y.n, u), .create_graph = true, .allow_unused = true))
        return false;
    for (int i = 0; i < x.n; i++)
        if (g[i] && v.v[i]) g[n] = g[i], along[n++] = v.v[i];
    for (int k = 0; k < y.n; k++) jv[k] = NULL;
    return !n || fl_grads(fv_list_of(n, g), fv_list_of(y.n, u), jv, .given = fv_list_of(n, along),
                          .retain_graph = true, .create_graph = create_graph, .allow_unused = true);
}

FL_API bool fl_jvps(fv_list y, fv_list x, fv_list v, fl_var **jv, bool create_graph) {
    if (fl_error()) return false;
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    bool ok = fv_check_list("fl_jvps", "result", y) && fv_check_list("fl_jvps", "variable", x) &&
              fv__jvp_fits(x, v);
    fl_var **work = ok ? fl_heap_alloc(2 * ((size_t)y.n + (size_t)x.n) * sizeof *work) : NULL;
    const bool recorded = fl_no_grad(false);
    ok = work && fv__jvps(y, x, v, work, create_graph);
    fl_no_grad(recorded);
    for (int k = 0; ok && k < y.n; k++)
        if (work[y.n + k]) ok = fl_scope_escape(&s, work[y.n + k]) != NULL;
    if (ok) memcpy(jv, work + y.n, (size_t)y.n * sizeof *jv);
    fl_heap_free(work);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (!ok) fl_raise();
    return ok;
}

FL_API fl_var *fl_jvp(fl_var *y, fl_var *x, fl_var *v, bool create_graph) {
    fl_var *jv = NULL;
    if (fl_error()) return NULL;
    if (!y || !x || !v) {
        fl_fail("fl_jvp: the %s is NULL", !y ? "result" : !x ? "variable" : "direction");
        return fl_raise();
    }
    if (!y->requires_grad || !x->requires_grad) return NULL;
    return fl_jvps((fv_list){1, &y}, (fv_list){1, &x}, (fv_list){1, &v}, &jv, create_graph) ? jv : NULL;
}

#endif
#endif
/* MIT licence: see LICENSE. */
