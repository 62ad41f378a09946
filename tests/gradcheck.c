/* gradcheck.c - every differentiable op against finite differences, first and second order, and its
   forward mode against its backward, on any backend

   usage: gradcheck [backend[@default] [op ...]]     as conformance's

   First order: fl_gradcheck, the full Jacobian in f64 against central differences; the fused
   gradients must agree with the recorded compositions, and f32 loosely with f64. Second order:
   fl_gradgradcheck, the same of the gradient as a function. Forward: J v of fl_jvp against the Jacobian.
   Mixed: forward over reverse, the product of the Hessian of a weighting of the outputs with a direction of
   all inputs together, against that Hessian. Every fv_ function of fl/ops has cases, or a reason to have
   none. Inputs lie in several layouts and are expanded, 0-d, of size 1 and empty too. Ops run in forked
   processes. With GROUPS_ONE_IN=n in the environment about one group in n runs, drawn by SEED: for backends
   that are slow. The last line is "N passed, N failed". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../fl_backend.h"
#include "../fl_nn.h"
#include "arrays.h"
#include "backends.h"
#include "groups.h"
#include "sample.h"
#include <ctype.h>
#include <glob.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_IN = 3, MAX_OPS = 512 };
enum { FIRST, SECOND, FORWARD, MIXED, ORDERS };

/* A function of up to three variables, and what its case needs to know. */
typedef struct grad_case grad_case;
typedef fl_var *(*grad_fn)(fl_var **x, const grad_case *c);
struct grad_case {
    grad_fn fn;
    int which;             /* of a table of functions */
    int n_in;
    fl_shape shape[MAX_IN];
    layout lay;            /* of every input that it fits */
    double low, high;      /* range of the values, which keep away from multiples of 1/2 by 0.05 */
    double base[MAX_IN];   /* added to input i */
    int64_t k[10];         /* settings */
    fl_axes axes;
    double step;           /* of the differences; 0: 1e-5 */
    bool zeros;            /* some inputs are 0 */
};

/* >>counts, shared by the forked groups */

typedef struct op_counts {
    char name[24];
    int passed[ORDERS], total[ORDERS];
} op_counts;
typedef struct shared_state {
    op_counts ops[MAX_OPS];
    int n_ops, checks, checks_passed, shown;
    char now[160];
} shared_state;
static shared_state *shared;
static op_counts *running;

static op_counts *counts_of(const char *name) {
    for (int i = 0; i < shared->n_ops; i++)
        if (!strcmp(shared->ops[i].name, name)) return &shared->ops[i];
    if (shared->n_ops == MAX_OPS) exit(2);
    op_counts *o = &shared->ops[shared->n_ops++];
    snprintf(o->name, sizeof o->name, "%s", name);
    return o;
}

__attribute__((format(printf, 1, 2))) static bool say(const char *format, ...) {
    va_list args;
    if (shared->shown++ >= 6) return false;
    va_start(args, format);
    printf("  %s: ", shared->now);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return false;
}

static void check(bool ok, const char *what) {
    shared->checks++;
    shared->checks_passed += ok;
    if (!ok)
        printf("  failed: %s%s%s\n", what, fl_error() ? ": " : "", fl_error() ? fl_error() : "");
    fl_error_clear();
}

/* >>inputs */

/* Away from the kinks of abs, relu, floor, rint and clip, which lie at multiples of 1/2. */
static double smooth_value(double low, double high) {
    double v = random_in(low, high), near = floor(v * 2 + 0.5) / 2;
    return fabs(v - near) < 0.05 ? near + random_in(0.05, 0.1) : v;
}

static void make_inputs(const grad_case *c, array *x) {
    for (int i = 0; i < c->n_in; i++) {
        x[i] = new_array(c->shape[i], FL_F64);
        for (int64_t k = 0; k < x[i].n; k++) {
            x[i].f[k] = smooth_value(c->low, c->high) + c->base[i];
            if (c->zeros && random_below(3) == 0) x[i].f[k] = 0;
        }
    }
}

/* Leaves of the values, in the case's layout. */
static bool make_leaves(const grad_case *c, const array *x, fl_dtype d, fl_var **leaf) {
    for (int i = 0; i < c->n_in; i++) {
        array a = cast_array(&x[i], d);
        leaf[i] = fv_param(lay_out(&a, layout_fits(c->lay, a.shape) ? c->lay : DENSE));
        if (!leaf[i]) return say("no leaf");
    }
    return true;
}

/* The function of leaves, of which it sees expanded ones in some layouts. */
static fl_var *call_case(fl_var *const *leaf, void *user) {
    const grad_case *c = user;
    fl_var *seen[MAX_IN];
    for (int i = 0; i < c->n_in; i++) {
        const fl_shape shape = fl_shape_of(fv_value(leaf[i]));
        seen[i] = leaf[i];
        if (c->lay != BROADCAST || shape.ndim == FL_MAX_DIMS) continue;
        fl_shape wide = {shape.ndim + 1, {2}};
        memcpy(wide.dim + 1, shape.dim, sizeof wide.dim - sizeof *wide.dim);
        seen[i] = fv_select(fv_expand(leaf[i], wide), 0, 1);
    }
    return c->fn(seen, c);
}

/* The output for x, as values. */
static bool evaluate(grad_case *c, const array *x, array *y) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN];
    bool was = fl_no_grad(true);
    bool ok = make_leaves(c, x, FL_F64, leaf);
    fl_var *out = ok ? call_case(leaf, c) : NULL;
    ok = out && read_tensor(fv_value(out), y);
    fl_no_grad(was);
    fl_scope_end(&s);
    return ok;
}

static bool near_to(double a, double b, double tol) {
    return (isnan(a) && isnan(b)) || fabs(a - b) <= tol * (1 + fabs(b));
}

/* The gradient of a leaf as values; zeros if there is none. */
static bool read_grad(fl_tensor *g, const array *x, fl_dtype d, array *out) {
    *out = new_array(x->shape, d);
    if (!g) return true;
    if (g->dtype != d || fl_numel(g) != x->n) return say("gradient of another shape or dtype");
    return read_tensor(g, out);
}

/* >>first order */

static double step_of(const grad_case *c) {
    return c->step > 0 ? c->step : 1e-5;
}

static double tolerance_of(const grad_case *c) {
    return c->step > 0 ? 20 * c->step : 3e-7;
}

/* jacobian[i]: [outputs, elements of input i], which the differences agree with. */
static bool jacobian_of(grad_case *c, const array *x, double **jacobian) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN];
    const double tol = tolerance_of(c);
    bool ok = make_leaves(c, x, FL_F64, leaf);
    const fv_list leaves = fv_list_of(c->n_in, leaf);
    ok = ok && fl_gradcheck(call_case, leaves, .eps = step_of(c), .atol = tol, .rtol = tol, .user = c);
    fl_var *out = ok ? call_case(leaf, c) : NULL;
    ok = out && fl_jacobian(out, leaves, jacobian);
    fl_scope_end(&s);
    return ok || say("%s", fl_error());
}

/* Gradients of sum(w out) in dtype d: by the fused slots, or by the composition. */
static bool weighted_gradient(grad_case *c, const array *x, fl_dtype d, const array *w,
                              bool composed, array *g) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN];
    bool ok = make_leaves(c, x, d, leaf);
    array wd = cast_array(w, d);
    fl_var *out = ok ? call_case(leaf, c) : NULL;
    fl_var *root = out ? fv_sum(fv_mul(out, fv_const(dense_tensor(&wd))), FL_ALL_AXES) : NULL;
    ok = root != NULL && (composed || !root->requires_grad || fl_backward(root));
    for (int i = 0; ok && i < c->n_in; i++) {
        fl_var *gi = composed ? fl_grad(root, leaf[i], true) : NULL;
        ok = !fl_error() && read_grad(composed ? fv_value(gi) : fv_grad(leaf[i]), &x[i], d, &g[i]);
    }
    fl_scope_end(&s);
    return ok;
}

static bool gradients_near(const grad_case *c, const array *a, const array *b, double tol,
                           const char *what) {
    for (int i = 0; i < c->n_in; i++)
        for (int64_t k = 0; k < a[i].n; k++)
            if (!near_to(a[i].f[k], b[i].f[k], tol))
                return say("%s: d in%d[%lld] is %.12g and %.12g", what, i, (long long)k, a[i].f[k],
                           b[i].f[k]);
    return true;
}

/* Forward mode: J v for a random direction of each input, against the Jacobian. */
static bool forward_mode(grad_case *c, const array *x, int64_t m, double **jacobian) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN];
    fl_var *out = make_leaves(c, x, FL_F64, leaf) ? call_case(leaf, c) : NULL;
    bool ok = out != NULL;
    for (int i = 0; ok && i < c->n_in; i++) {
        array v = new_array(x[i].shape, FL_F64), got = new_array(fl_shape_of(fv_value(out)), FL_F64);
        for (int64_t k = 0; k < v.n; k++) v.f[k] = random_in(-1, 1);
        fl_var *jv = fl_jvp(out, leaf[i], fv_const(dense_tensor(&v)), false);
        if (jv) ok = read_tensor(fv_value(jv), &got) && got.n == m;
        for (int64_t j = 0; ok && j < m; j++) {
            double want = 0, size = 0;
            for (int64_t k = 0; k < v.n; k++) {
                want += jacobian[i][j * v.n + k] * v.f[k];
                size += fabs(jacobian[i][j * v.n + k]);
            }
            if (!near_to(got.f[j], want, (c->step > 0 ? 1e-7 : 1e-11) * (1 + size)))
                ok = say("(J v)[%lld] of in%d is %.12g, by the Jacobian %.12g", (long long)j, i,
                         got.f[j], want);
        }
    }
    fl_scope_end(&s);
    return ok && !fl_error();
}

static bool first_order(grad_case *c, const array *x, const array *w, double **jacobian) {
    array fused[MAX_IN], composed[MAX_IN], single[MAX_IN];
    if (!jacobian_of(c, x, jacobian)) return false;
    return weighted_gradient(c, x, FL_F64, w, false, fused) &&
           weighted_gradient(c, x, FL_F64, w, true, composed) &&
           weighted_gradient(c, x, FL_F32, w, false, single) &&
           gradients_near(c, fused, composed, 1e-11, "fused and composed") &&
           gradients_near(c, single, fused, 2e-3, "f32 and f64");
}

/* >>second order */

/* hessian[i][j]: [elements of input i, elements of input j] of L = sum(w out), by backward through
   backward. */
static bool hessian_of(grad_case *c, const array *x, const array *w, double *hessian[MAX_IN][MAX_IN]) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN], *g[MAX_IN] = {0};
    bool ok = make_leaves(c, x, FL_F64, leaf);
    const fv_list leaves = fv_list_of(c->n_in, leaf);
    fl_var *out = ok ? call_case(leaf, c) : NULL;
    ok = out && fl_grads(FV_LIST(out), leaves, g, .given = FV_LIST(fv_const(dense_tensor(w))),
                         .create_graph = true, .allow_unused = true);
    for (int i = 0; ok && i < c->n_in; i++)
        if (g[i]) ok = fl_jacobian(g[i], leaves, hessian[i]); /* else none: zeros */
    fl_scope_end(&s);
    return ok && !fl_error();
}

static bool second_order(grad_case *c, const array *x, const array *w, double *hessian[MAX_IN][MAX_IN]) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN];
    const double tol = 10 * tolerance_of(c);
    const bool ok = make_leaves(c, x, FL_F64, leaf) &&
                    fl_gradgradcheck(call_case, fv_list_of(c->n_in, leaf), .eps = step_of(c), .atol = tol,
                                     .rtol = tol, .user = c);
    fl_scope_end(&s);
    if (!ok) return say("%s", fl_error());
    return hessian_of(c, x, w, hessian) || say("double backward failed");
}

/* Forward over reverse: the derivative of all first gradients in a direction of all inputs. */
static bool mixed_order(grad_case *c, const array *x, const array *w, double *hessian[MAX_IN][MAX_IN]) {
    fl_scope s = fl_scope_begin();
    fl_var *leaf[MAX_IN], *g[MAX_IN] = {0}, *v[MAX_IN], *hv[MAX_IN] = {0}, *some[MAX_IN];
    array along[MAX_IN];
    int n = 0, at[MAX_IN];
    fl_var *out = make_leaves(c, x, FL_F64, leaf) ? call_case(leaf, c) : NULL;
    fl_var *root = out ? fv_sum(fv_mul(out, fv_const(dense_tensor(w))), FL_ALL_AXES) : NULL;
    const fv_list leaves = fv_list_of(c->n_in, leaf);
    bool ok = root && fl_grads(FV_LIST(root), leaves, g, .create_graph = true, .allow_unused = true);
    for (int i = 0; ok && i < c->n_in; i++) {
        along[i] = new_array(x[i].shape, FL_F64);
        for (int64_t k = 0; k < x[i].n; k++) along[i].f[k] = random_in(-1, 1);
        v[i] = fv_const(dense_tensor(&along[i]));
        if (g[i]) some[n] = g[i], at[n++] = i;
    }
    if (ok && n) ok = fl_jvps(fv_list_of(n, some), leaves, fv_list_of(c->n_in, v), hv, false);
    for (int m = 0; ok && m < n; m++) {
        array got = new_array(x[at[m]].shape, FL_F64);
        if (hv[m]) ok = read_tensor(fv_value(hv[m]), &got);
        for (int64_t r = 0; ok && r < got.n; r++) {
            double want = 0, size = 0;
            for (int j = 0; j < c->n_in; j++)
                for (int64_t k = 0; k < x[j].n; k++) {
                    const double h = hessian[at[m]][j][r * x[j].n + k];
                    want += h * along[j].f[k];
                    size += fabs(h);
                }
            if (!near_to(got.f[r], want, (c->step > 0 ? 1e-5 : 1e-9) * (1 + size)))
                ok = say("(H v)[%lld] of in%d is %.12g, by the Hessian %.12g", (long long)r, at[m],
                         got.f[r], want);
        }
    }
    fl_scope_end(&s);
    return ok && !fl_error();
}

static void count(int order, bool ok) {
    if (fl_error()) ok = say("%s", fl_error());
    fl_error_clear();
    running->passed[order] += ok;
}

/* One case of `op`, first and second order, in every layout that suits its first input. */
static void run_case(const char *op, grad_case c) {
    static const layout layouts[] = {DENSE, TRANSPOSED, STEPPED, REVERSED, OFFSET, BROADCAST};
    char text[100];
    running = counts_of(op);
    for (int l = 0; l < 6; l++) {
        array x[MAX_IN], y;
        c.lay = layouts[l];
        if (!layout_fits(c.lay, c.shape[0]) && c.lay != BROADCAST) continue;
        snprintf(shared->now, sizeof shared->now, "%s %s %s", op, layout_names[c.lay],
                 fl_shape_text(c.shape[0], text, sizeof text));
        random_state = 77;
        for (const char *p = shared->now; *p; p++)
            random_state = (random_state ^ (uint8_t)*p) * 1099511628211u;
        pool_at = 0;
        fl_scope s = fl_scope_begin();
        make_inputs(&c, x);
        for (int order = 0; order < ORDERS; order++) running->total[order]++;
        if (evaluate(&c, x, &y)) {
            array w = new_array(y.shape, FL_F64);
            for (int64_t k = 0; k < w.n; k++) w.f[k] = random_in(0.5, 1.5);
            double *jacobian[MAX_IN];
            for (int i = 0; i < c.n_in; i++)
                jacobian[i] = take((size_t)(y.n * x[i].n) * sizeof(double) + 8);
            count(FIRST, first_order(&c, x, &w, jacobian));
            double *hessian[MAX_IN][MAX_IN];
            for (int i = 0; i < c.n_in; i++)
                for (int j = 0; j < c.n_in; j++)
                    hessian[i][j] = take((size_t)(x[i].n * x[j].n) * sizeof(double) + 8);
            count(SECOND, second_order(&c, x, &w, hessian));
            count(FORWARD, forward_mode(&c, x, y.n, jacobian));
            count(MIXED, mixed_order(&c, x, &w, hessian));
        } else say("%s", fl_error() ? fl_error() : "cannot be evaluated");
        fl_error_clear();
        fl_scope_end(&s);
    }
}

/* >>element-wise */

static fl_var *elu(fl_var *x) { return fv_elu(x, 1.5); }
static fl_var *celu(fl_var *x) { return fv_celu(x, 1.5); }
static fl_var *leaky_relu(fl_var *x) { return fv_leaky_relu(x, 0.125); }
static fl_var *threshold(fl_var *x) { return fv_threshold(x, 0.5, 3); }
static fl_var *hardshrink(fl_var *x) { return fv_hardshrink(x, 0.5); }
static fl_var *softshrink(fl_var *x) { return fv_softshrink(x, 0.5); }
static fl_var *swish(fl_var *x) { return fv_swish(x, 1.5); }
static fl_var *softplus_beta(fl_var *x) { return fv_softplus_beta(x, 1.5, 2); }
static fl_var *maxout(fl_var *x) {
    fl_var *both[] = {x, fv_sub(fv_num(0.3), x)};
    return fv_squeeze(fv_maxout(fv_stack(both, 2, -1), 2, -1), -1);
}
static fl_var *round_units(fl_var *x) { return fv_round(x, 0); }
static fl_var *nan_to_num(fl_var *x) { return fv_nan_to_num(x, 0, 1, -1); }

static const struct {
    const char *name;
    fl_var *(*fn)(fl_var *);
    double low, high;
} unary[] = {
    {"neg", fv_neg, -2, 2},
    {"abs", fv_abs, -2, 2},
    {"exp", fv_exp, -2, 2},
    {"log", fv_log, 0.3, 3},
    {"log1p", fv_log1p, -0.6, 3},
    {"expm1", fv_expm1, -2, 2},
    {"sqrt", fv_sqrt, 0.3, 3},
    {"sin", fv_sin, -4, 4},
    {"cos", fv_cos, -4, 4},
    {"tanh", fv_tanh, -2, 2},
    {"erf", fv_erf, -2, 2},
    {"floor", fv_floor, -3, 3},
    {"rint", fv_rint, -3, 3},
    {"ceil", fv_ceil, -3, 3},
    {"trunc", fv_trunc, -3, 3},
    {"frac", fv_frac, -3, 3},
    {"square", fv_square, -2, 2},
    {"reciprocal", fv_reciprocal, 0.4, 2},
    {"rsqrt", fv_rsqrt, 0.4, 3},
    {"sign", fv_sign, -2, 2},
    {"deg2rad", fv_deg2rad, -2, 2},
    {"rad2deg", fv_rad2deg, -2, 2},
    {"exp2", fv_exp2, -2, 2},
    {"log2", fv_log2, 0.3, 3},
    {"log10", fv_log10, 0.3, 3},
    {"tan", fv_tan, -1.2, 1.2},
    {"asin", fv_asin, -0.8, 0.8},
    {"acos", fv_acos, -0.8, 0.8},
    {"atan", fv_atan, -3, 3},
    {"sinh", fv_sinh, -2, 2},
    {"cosh", fv_cosh, -2, 2},
    {"asinh", fv_asinh, -3, 3},
    {"acosh", fv_acosh, 1.2, 3},
    {"atanh", fv_atanh, -0.8, 0.8},
    {"sinc", fv_sinc, -2, 2},
    {"logit", fv_logit, 0.2, 0.8},
    {"relu", fv_relu, -2, 2},
    {"sigmoid", fv_sigmoid, -3, 3},
    {"silu", fv_silu, -3, 3},
    {"softplus", fv_softplus, -3, 3},
    {"gelu", fv_gelu, -3, 3},
    {"gelu_tanh", fv_gelu_tanh, -3, 3},
    {"relu6", fv_relu6, -2, 8},
    {"hardsigmoid", fv_hardsigmoid, -5, 5},
    {"hardswish", fv_hardswish, -5, 5},
    {"mish", fv_mish, -3, 3},
    {"selu", fv_selu, -2, 2},
    {"softsign", fv_softsign, -2, 2},
    {"logsigmoid", fv_logsigmoid, -3, 3},
    {"tanhshrink", fv_tanhshrink, -2, 2},
    {"elu", elu, -2, 2},
    {"celu", celu, -2, 2},
    {"leaky_relu", leaky_relu, -2, 2},
    {"threshold", threshold, -2, 2},
    {"hardshrink", hardshrink, -2, 2},
    {"softshrink", softshrink, -2, 2},
    {"swish", swish, -2, 2},
    {"round", round_units, -2, 2},
    {"nan_to_num", nan_to_num, -2, 2},
    {"lgamma", fv_lgamma, 0.3, 4},
    {"digamma", fv_digamma, 0.3, 4},
    {"erfc", fv_erfc, -1.2, 1.2},
    {"softplus_beta", softplus_beta, -2, 2},
    {"entr", fv_entr, 0.3, 3},
    {"ndtr", fv_ndtr, -1.5, 1.5},
    {"log_ndtr", fv_log_ndtr, -6, 2},
    {"i0", fv_i0, -2, 2},
    {"maxout", maxout, -2, 2},
    {"erfinv", fv_erfinv, -0.8, 0.8},
};
enum { UNARY = sizeof unary / sizeof *unary };

static bool is_flat(const char *name) {
    static const char *const flat[] = {"floor",     "rint",     "ceil", "trunc", "sign", "round",
                                       "heaviside", "copysign", "floor_divide",
                                       "trunc_divide"};
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++)
        if (!strcmp(name, flat[i])) return true;
    return false;
}

/* Piecewise constant functions (of one operand at least) give results that record nothing: x is added,
   which the derivative shows. */
static fl_var *run_unary(fl_var **x, const grad_case *c) {
    fl_var *y = unary[c->which].fn(x[0]);
    return is_flat(unary[c->which].name) ? fv_add(y, x[0]) : y;
}

static const fl_shape small_shapes[] = {{0, {0}},       {1, {1}},          {1, {5}},
                                        {1, {0}},       {2, {2, 3}},       {2, {1, 1}},
                                        {3, {2, 1, 3}}, {4, {2, 1, 2, 2}}, {3, {2, 0, 3}}};
enum { SMALL_SHAPES = sizeof small_shapes / sizeof *small_shapes };

static void unary_cases(int which) {
    for (int s = 0; s < SMALL_SHAPES; s++)
        run_case(unary[which].name, (grad_case){.fn = run_unary,
                                                .which = which,
                                                .n_in = 1,
                                                .shape = {small_shapes[s]},
                                                .low = unary[which].low,
                                                .high = unary[which].high});
}

static const struct {
    const char *name;
    fl_var *(*fn)(fl_var *, fl_var *);
    double low, high, base_a, base_b;
} binary[] = {
    {"add", fv_add, -2, 2, 0, 0},         {"sub", fv_sub, -2, 2, 0, 0},
    {"mul", fv_mul, -2, 2, 0, 0},         {"div", fv_div, -0.9, 0.9, 0, 2},
    {"pow", fv_pow, -0.9, 0.9, 1.3, 0.7}, {"remainder", fv_remainder, 0.1, 0.3, 3, 1},
    {"maximum", fv_maximum, -2, 2, 0, 0}, {"minimum", fv_minimum, -2, 2, 0, 0},
    {"atan2", fv_atan2, -0.9, 0.9, 0, 2}, {"fmod", fv_fmod, 0.1, 0.3, 3, 1},
    {"fmax", fv_fmax, -2, 2, 0, 0},       {"fmin", fv_fmin, -2, 2, 0, 0},
    {"copysign", fv_copysign, -2, 2, 0, 0}, {"heaviside", fv_heaviside, -2, 2, 0, 0},
    {"ldexp", fv_ldexp, -2, 2, 0, 0},     {"xlogy", fv_xlogy, -0.9, 0.9, 0, 2},
    {"logaddexp", fv_logaddexp, -2, 2, 0, 0}, {"logaddexp2", fv_logaddexp2, -2, 2, 0, 0},
    {"prelu", fv_prelu, -2, 2, 0, 0},     {"hypot", fv_hypot, 0.1, 2, 0, 0},
    {"floor_divide", fv_floor_divide, 0.1, 0.3, 3, 1},
    {"trunc_divide", fv_trunc_divide, 0.1, 0.3, 3, 1},
    {"xlog1py", fv_xlog1py, -0.9, 0.9, 0, 2}, {"float_power", fv_float_power, -0.9, 0.9, 1.3, 0.7},
};
enum { BINARY = sizeof binary / sizeof *binary };

static fl_var *call_binary(fl_var **x, const grad_case *c) {
    if (c->k[0] == 1) return binary[c->which].fn(x[0], fv_num(1.75));
    if (c->k[0] == 2) return binary[c->which].fn(fv_num(1.75), x[0]);
    if (c->k[0] == 3) return binary[c->which].fn(x[0], fv_add(x[0], fv_num(0.25)));
    return binary[c->which].fn(x[0], x[1]);
}

static fl_var *run_binary(fl_var **x, const grad_case *c) {
    fl_var *y = call_binary(x, c);
    return is_flat(binary[c->which].name) ? fv_add(y, x[0]) : y;
}

/* Operands of maximum and minimum differ by a tenth at least: b's grid is moved by a quarter. */
static fl_var *run_extreme(fl_var **x, const grad_case *c) {
    fl_var *a = fv_add(fv_mul(x[0], fv_num(0.1)),
                       fv_const(fv_value(fv_floor(fv_mul(x[0], fv_num(2))))));
    fl_var *b = x[1];
    b = fv_add(fv_mul(b, fv_num(0.1)),
               fv_const(fl_add(fl_floor(fl_mul(fv_value(b), fl_num(2))), fl_num(0.5))));
    return binary[c->which].fn(a, b);
}

static void binary_cases(int which) {
    static const fl_shape pairs[][2] = {
        {{0, {0}}, {0, {0}}},    {{1, {3}}, {1, {3}}},          {{2, {2, 3}}, {1, {3}}},
        {{1, {3}}, {2, {2, 3}}}, {{2, {2, 1}}, {2, {1, 3}}},    {{0, {0}}, {2, {2, 2}}},
        {{2, {2, 2}}, {0, {0}}}, {{1, {0}}, {1, {1}}},          {{2, {2, 0}}, {1, {1}}},
        {{1, {1}}, {1, {1}}},    {{3, {2, 1, 2}}, {2, {3, 1}}}, {{3, {2, 1, 2}}, {3, {2, 1, 2}}},
    };
    const char *name = binary[which].name;
    bool extreme = !strcmp(name, "maximum") || !strcmp(name, "minimum") || !strcmp(name, "fmax") ||
                   !strcmp(name, "fmin");
    grad_case c = {.which = which, .n_in = 2, .low = binary[which].low, .high = binary[which].high,
                   .base = {binary[which].base_a, binary[which].base_b}};
    c.fn = extreme ? run_extreme : run_binary;
    for (int p = 0; p < 12; p++) {
        memcpy(c.shape, pairs[p], sizeof pairs[p]);
        run_case(binary[which].name, c);
    }
    c.n_in = 1;
    c.fn = run_binary;
    if (!strcmp(name, "remainder") || !strcmp(name, "fmod") || strstr(name, "_divide"))
        c.base[0] = 0.7; /* 1.75 / x and x / 1.75 stay off the integers */
    if (!strcmp(name, "div") || !strcmp(name, "xlogy")) c.base[0] = 2;
    for (c.k[0] = 1; c.k[0] <= 3; c.k[0]++)
        for (int s = 0; s < 5; s++) {
            c.shape[0] = small_shapes[s];
            run_case(binary[which].name, c);
        }
}

static fl_var *run_where(fl_var **x, const grad_case *c) {
    array cond = new_array(FL_SHAPE(2, 3), FL_B8);
    for (int k = 0; k < 6; k++) put_int(&cond, k, k % 3 != 1);
    fl_var *v = fv_const(c->k[0] ? fl_from_host(&(uint8_t){1}, FL_SCALAR_SHAPE, FL_B8)
                                 : dense_tensor(&cond));
    return c->k[1] ? fv_where(v, x[0], fv_num(0.5)) : fv_where(v, x[0], x[1]);
}
static fl_var *run_clip(fl_var **x, const grad_case *c) {
    return (void)c, fv_clamp(x[0], fv_num(-1), fv_num(0.5));
}
static fl_var *run_cast(fl_var **x, const grad_case *c) {
    fl_dtype d = x[0]->value->dtype;
    return (void)c, fv_cast(fv_mul(fv_cast(x[0], d == FL_F64 ? FL_F32 : FL_F64), fv_num(3)), d);
}

static void where_cases(int unused) {
    static const fl_shape pairs[][2] = {
        {{2, {2, 3}}, {2, {2, 3}}}, {{1, {3}}, {0, {0}}}, {{2, {2, 1}}, {1, {3}}}};
    (void)unused;
    for (int p = 0; p < 3; p++)
        for (int k = 0; k < 4; k++)
            run_case("where", (grad_case){.fn = run_where,
                                          .n_in = k & 2 ? 1 : 2,
                                          .shape = {pairs[p][0], pairs[p][1]},
                                          .low = -2,
                                          .high = 2,
                                          .k = {k & 1, k >> 1}});
    for (int s = 0; s < SMALL_SHAPES; s++) {
        run_case("clip",
                 (grad_case){
                     .fn = run_clip, .n_in = 1, .shape = {small_shapes[s]}, .low = -2, .high = 2});
        run_case("cast", (grad_case){.fn = run_cast,
                                     .n_in = 1,
                                     .shape = {small_shapes[s]},
                                     .low = -2,
                                     .high = 2,
                                     .step = 1e-2});
    }
}

/* >>movement: squared afterwards, so that second order is not empty */

enum {
    PERMUTE,
    TRANSPOSE,
    RESHAPE,
    FLATTEN,
    EXPAND,
    SLICE,
    SELECT,
    SQUEEZE,
    UNSQUEEZE,
    SUM_TO,
    CONCAT,
    STACK,
    MOVES
};
static const char *const move_names[] = {"permute",   "transpose", "reshape", "flatten",
                                         "expand",    "slice",     "select",  "squeeze",
                                         "unsqueeze", "sum_to",    "concat",  "stack"};

static fl_var *move(fl_var **x, const grad_case *c) {
    const int axes[] = {(int)c->k[0], (int)c->k[1], (int)c->k[2]};
    fl_shape to = {(int)c->k[4], {c->k[5], c->k[6], c->k[7], c->k[8]}};
    switch (c->which) {
    case PERMUTE: return fv_permute(x[0], 3, axes);
    case TRANSPOSE: return fv_transpose(x[0], axes[0], axes[1]);
    case RESHAPE: return fv_reshape(x[0], to);
    case FLATTEN: return fv_flatten(x[0], axes[0], axes[1]);
    case EXPAND: return fv_expand(x[0], to);
    case SLICE: return fv_slice(x[0], axes[0], c->k[1], c->k[2], c->k[3]);
    case SELECT: return fv_select(x[0], axes[0], c->k[1]);
    case SQUEEZE: return fv_squeeze(x[0], axes[0]);
    case UNSQUEEZE: return fv_unsqueeze(x[0], axes[0]);
    case SUM_TO: return fv_sum_to(x[0], to);
    case CONCAT: return fv_concat(x, c->n_in, axes[0]);
    default: return fv_stack(x, c->n_in, axes[0]);
    }
}

static fl_var *run_move(fl_var **x, const grad_case *c) {
    fl_var *y = move(x, c);
    return y ? fv_mul(y, y) : NULL;
}

static void move_cases(int which) {
    static const struct {
        int which;
        fl_shape shape;
        int64_t k[9];
    } cases[] = {
        {PERMUTE, {3, {2, 1, 3}}, {2, 0, 1}},
        {PERMUTE, {3, {2, 3, 2}}, {-1, 1, 0}},
        {PERMUTE, {3, {2, 0, 3}}, {1, 2, 0}},
        {TRANSPOSE, {2, {2, 3}}, {0, 1}},
        {TRANSPOSE, {3, {2, 2, 3}}, {-1, 0}},
        {TRANSPOSE, {1, {3}}, {0, 0}},
        {RESHAPE, {2, {2, 3}}, {0, 0, 0, 0, 1, 6}},
        {RESHAPE, {1, {6}}, {0, 0, 0, 0, 3, 3, -1, 2}},
        {RESHAPE, {0, {0}}, {0, 0, 0, 0, 2, 1, 1}},
        {RESHAPE, {2, {2, 0}}, {0, 0, 0, 0, 1, 0}},
        {FLATTEN, {3, {2, 1, 3}}, {1, 2}},
        {FLATTEN, {3, {2, 2, 2}}, {0, -1}},
        {FLATTEN, {0, {0}}, {0, 0}},
        {EXPAND, {2, {2, 1}}, {0, 0, 0, 0, 2, 2, 3}},
        {EXPAND, {1, {1}}, {0, 0, 0, 0, 2, 2, 3}},
        {EXPAND, {0, {0}}, {0, 0, 0, 0, 1, 3}},
        {EXPAND, {1, {3}}, {0, 0, 0, 0, 2, 2, -1}},
        {SLICE, {1, {6}}, {0, 1, 5, 2}},
        {SLICE, {1, {6}}, {0, -1, FL_SLICE_END, -1}},
        {SLICE, {2, {3, 2}}, {0, 2, 0, -1}},
        {SLICE, {2, {2, 5}}, {-1, 0, FL_SLICE_END, 3}},
        {SLICE, {1, {4}}, {0, 2, 2, 1}},
        {SLICE, {2, {2, 3}}, {1, -2, -1, 1}},
        {SELECT, {2, {2, 3}}, {1, 2}},
        {SELECT, {2, {2, 3}}, {0, -1}},
        {SELECT, {1, {3}}, {-1, 0}},
        {SQUEEZE, {3, {2, 1, 3}}, {1}},
        {SQUEEZE, {2, {2, 1}}, {-1}},
        {SQUEEZE, {1, {1}}, {0}},
        {UNSQUEEZE, {2, {2, 3}}, {1}},
        {UNSQUEEZE, {0, {0}}, {0}},
        {UNSQUEEZE, {1, {3}}, {-1}},
        {SUM_TO, {2, {2, 3}}, {0, 0, 0, 0, 1, 3}},
        {SUM_TO, {3, {2, 2, 3}}, {0, 0, 0, 0, 2, 2, 1}},
        {SUM_TO, {2, {2, 3}}, {0, 0, 0, 0, 0}},
        {SUM_TO, {1, {3}}, {0, 0, 0, 0, 1, 3}},
        {CONCAT, {2, {2, 2}}, {1}},
        {CONCAT, {1, {2}}, {0}},
        {CONCAT, {3, {1, 2, 2}}, {-3}},
        {STACK, {2, {2, 2}}, {1}},
        {STACK, {0, {0}}, {0}},
        {STACK, {1, {3}}, {-1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].which != which) continue;
        grad_case c = {
            .fn = run_move, .which = which, .n_in = which >= CONCAT ? 3 : 1, .low = -2, .high = 2};
        for (int k = 0; k < 3; k++) c.shape[k] = cases[i].shape;
        if (which == CONCAT)
            c.shape[1].dim[(cases[i].k[0] + c.shape[1].ndim) % c.shape[1].ndim] = 3;
        memcpy(c.k, cases[i].k, sizeof cases[i].k);
        run_case(move_names[which], c);
    }
}

#include "gradcheck_move.h"

/* >>reductions */

enum { SUM, PROD, MEAN, VARIANCE, AMAX, AMIN, LOGSUMEXP, REDUCTIONS };
static const char *const reduction_names[] = {"sum",  "prod", "mean",     "variance",
                                              "amax", "amin", "logsumexp"};

static fl_var *run_reduction(fl_var **x, const grad_case *c) {
    fl_var *v = x[0];
    switch (c->which) {
    case SUM: return fv_sum(fv_mul(v, v), c->axes);
    case PROD: return fv_prod(v, c->axes);
    case MEAN: return fv_mean(fv_mul(v, v), c->axes);
    case VARIANCE: return fv_variance(v, c->axes, c->k[0]);
    case AMAX: return fv_amax(fv_mul(v, v), c->axes);
    case AMIN: return fv_amin(fv_mul(v, v), c->axes);
    default: return fv_logsumexp(v, c->axes);
    }
}

static void reduction_cases(int which) {
    static const fl_shape sizes[] = {{0, {0}},       {1, {1}},    {1, {5}}, {2, {2, 3}},
                                     {3, {2, 3, 2}}, {2, {3, 1}}, {1, {0}}, {2, {0, 2}}};
    for (int s = 0; s < 8; s++)
        for (int mask = 0; mask < 1 << sizes[s].ndim; mask++)
            for (int variant = 0; variant < 2; variant++) {
                bool no_elements = s >= 6, empty_result = s == 7 && mask == 2;
                if ((no_elements && which >= MEAN && !empty_result) ||
                    (which == VARIANCE && empty_result))
                    continue;
                grad_case c = {.fn = run_reduction,
                               .which = which,
                               .n_in = 1,
                               .shape = {sizes[s]},
                               .low = -2,
                               .high = 2,
                               .axes = {.keepdim = variant},
                               .k = {which == VARIANCE && s >= 2 && s != 5 ? variant : 0},
                               .zeros = which == PROD && variant};
                for (int d = 0; d < sizes[s].ndim; d++)
                    if (mask >> d & 1) c.axes.axis[c.axes.n++] = d - (variant ? sizes[s].ndim : 0);
                int64_t reduced = 1;
                for (int d = 0; d < sizes[s].ndim; d++)
                    reduced *= mask >> d & 1 || !mask ? sizes[s].dim[d] : 1;
                if (which == VARIANCE && reduced <= c.k[0]) c.k[0] = 0;
                run_case(reduction_names[which], c);
            }
}

#include "gradcheck_reduce.h"

/* >>indexing */

enum { GATHER, SCATTER_ADD, INDEX_SELECT, SCATTER };
static fl_tensor *index_tensor(const grad_case *c) {
    array a = new_array(c->which == INDEX_SELECT ? FL_SHAPE(5) : c->shape[1], FL_I64);
    for (int64_t k = 0; k < a.n; k++) put_int(&a, k, (k * 7 + k / 3) % c->shape[0].dim[c->k[0]]);
    return lay_out(&a, c->lay == BROADCAST || !layout_fits(c->lay, a.shape) ? DENSE : c->lay);
}

static fl_var *run_index(fl_var **x, const grad_case *c) {
    int axis = (int)c->k[0];
    fl_tensor *index = index_tensor(c);
    fl_var *y = c->which == GATHER        ? fv_gather(x[0], axis - c->shape[0].ndim, index)
                : c->which == SCATTER_ADD ? fv_scatter_add(x[0], axis, index, x[1])
                : c->which == SCATTER     ? fv_scatter(x[0], axis, index, x[1])
                                          : fv_index_select(x[0], axis, index);
    return y ? fv_mul(y, y) : NULL;
}

static void index_cases(int which) {
    static const char *const names[] = {"gather", "scatter_add", "index_select", "scatter"};
    static const struct {
        fl_shape x, index;
        int64_t axis;
    } cases[] = {{{1, {4}}, {1, {6}}, 0},
                 {{2, {3, 2}}, {2, {4, 2}}, 0},
                 {{2, {2, 3}}, {2, {2, 4}}, 1},
                 {{2, {3, 3}}, {2, {2, 2}}, 1},
                 {{3, {2, 2, 2}}, {3, {2, 3, 2}}, 1},
                 {{1, {1}}, {1, {1}}, 0},
                 {{2, {2, 2}}, {2, {0, 2}}, 0}};
    for (int i = 0; i < 7; i++)
        run_case(names[which], (grad_case){.fn = run_index,
                                           .which = which,
                                           .n_in = which == SCATTER_ADD || which == SCATTER ? 2 : 1,
                                           .shape = {cases[i].x, cases[i].index},
                                           .low = -2,
                                           .high = 2,
                                           .k = {cases[i].axis}});
}

/* >>order: values apart by more than the step of the differences, so no place changes */

enum { CUMSUM, CUMPROD, SORT, TOPK, ORDER_OPS };
static const char *const order_names[] = {"cumsum", "cumprod", "sort", "topk"};

static fl_var *run_order(fl_var **x, const grad_case *c) {
    int axis = (int)c->k[0] - c->shape[0].ndim;
    fl_var *y = c->which == CUMSUM    ? fv_cumsum(x[0], axis)
                : c->which == CUMPROD ? fv_cumprod(x[0], axis)
                : c->which == SORT    ? fv_sort(x[0], axis, c->k[1], NULL)
                                      : fv_topk(x[0], (c->shape[0].dim[c->k[0]] + 1) / 2, axis,
                                                c->k[1], NULL);
    return y ? fv_mul(y, y) : NULL;
}

static void order_cases(int which) {
    static const fl_shape sizes[] = {{1, {1}}, {1, {6}}, {2, {3, 4}}, {3, {2, 3, 2}}, {2, {0, 3}}};
    for (int s = 0; s < 5; s++)
        for (int axis = 0; axis < sizes[s].ndim; axis++)
            for (int down = 0; down < 2; down++)
                run_case(order_names[which], (grad_case){.fn = run_order,
                                                         .which = which,
                                                         .n_in = 1,
                                                         .shape = {sizes[s]},
                                                         .low = -2,
                                                         .high = 2,
                                                         .zeros = which == CUMPROD && down,
                                                         .k = {axis, down}});
}

/* >>products */

static fl_var *run_matmul(fl_var **x, const grad_case *c) { return (void)c, fv_matmul(x[0], x[1]); }

static void matmul_cases(int unused) {
    static const fl_shape pairs[][2] = {{{2, {2, 3}}, {2, {3, 2}}},
                                        {{2, {1, 1}}, {2, {1, 1}}},
                                        {{1, {3}}, {1, {3}}},
                                        {{1, {3}}, {2, {3, 2}}},
                                        {{2, {2, 3}}, {1, {3}}},
                                        {{3, {2, 2, 3}}, {2, {3, 2}}},
                                        {{2, {2, 3}}, {3, {2, 3, 2}}},
                                        {{3, {2, 2, 2}}, {1, {2}}},
                                        {{1, {2}}, {3, {2, 2, 2}}},
                                        {{4, {2, 1, 1, 2}}, {3, {2, 2, 1}}},
                                        {{3, {1, 2, 2}}, {3, {2, 2, 2}}},
                                        {{2, {2, 0}}, {2, {0, 2}}},
                                        {{2, {0, 2}}, {2, {2, 2}}},
                                        {{3, {2, 1, 2}}, {3, {2, 2, 1}}}};
    (void)unused;
    for (int p = 0; p < 14; p++)
        run_case("matmul", (grad_case){.fn = run_matmul,
                                       .n_in = 2,
                                       .shape = {pairs[p][0], pairs[p][1]},
                                       .low = -2,
                                       .high = 2});
}

/* k: stride h, w; pad h, w; dilation h, w; groups; relu */
static fl_var *run_conv(fl_var **x, const grad_case *c) {
    fl_conv_opts o = {.stride = {c->k[0], c->k[1]},
                      .pad = {c->k[2] ? c->k[2] : FL_I0, c->k[3] ? c->k[3] : FL_I0},
                      .dilation = {c->k[4], c->k[5]},
                      .groups = c->k[6],
                      .relu = c->k[7]};
    return fv_conv_opt(x[0], x[1], c->n_in == 3 ? x[2] : NULL, o);
}

static void conv_cases(int unused) {
    static const struct {
        fl_shape x, w;
        int64_t k[7];
    } cases[] = {
        {{4, {1, 1, 3, 3}}, {4, {1, 1, 2, 2}}, {1, 1, 0, 0, 1, 1, 1}},
        {{4, {2, 2, 3, 2}}, {4, {2, 2, 2, 1}}, {1, 1, 1, 0, 1, 1, 1}},
        {{4, {1, 2, 4, 3}}, {4, {2, 1, 2, 2}}, {2, 1, 1, 1, 1, 1, 2}},
        {{4, {1, 1, 4, 4}}, {4, {1, 1, 2, 2}}, {1, 2, 0, 1, 2, 1, 1}},
        {{4, {1, 1, 3, 4}}, {4, {2, 1, 3, 2}}, {2, 2, FL_SAME, FL_SAME, 1, 1, 1}},
        {{4, {1, 2, 2, 2}}, {4, {2, 2, 1, 1}}, {1, 1, 0, 0, 1, 1, 1}},
        {{4, {1, 2, 3, 3}}, {4, {2, 1, 3, 3}}, {1, 1, 1, 1, 1, 1, 2}},
        {{4, {0, 1, 3, 3}}, {4, {1, 1, 2, 2}}, {1, 1, 0, 0, 1, 1, 1}},
    };
    (void)unused;
    for (int i = 0; i < 8; i++)
        for (int bias = 0; bias < 2; bias++) {
            grad_case c = {.fn = run_conv,
                           .n_in = 2 + bias,
                           .shape = {cases[i].x, cases[i].w, FL_SHAPE(cases[i].w.dim[0])},
                           .low = -2,
                           .high = 2};
            memcpy(c.k, cases[i].k, sizeof cases[i].k);
            c.k[7] = i % 2;
            run_case("conv2d", c);
        }
}

/* k: kernel h, w; stride h, w; pad h, w; ignore_pad. Windows of distinct values: the maximum's
   kinks are far. */
static fl_var *run_pool(fl_var **x, const grad_case *c) {
    fl_pool_opts o = {.kernel = {c->k[0], c->k[1]},
                      .stride = {c->k[2], c->k[3]},
                      .pad = {c->k[4] ? c->k[4] : FL_I0, c->k[5] ? c->k[5] : FL_I0},
                      .ignore_pad = c->k[6]};
    fl_var *y = c->which ? fv_avg_pool_opt(x[0], o) : fv_max_pool_opt(x[0], NULL, o);
    return y ? fv_mul(y, y) : NULL;
}

static void pool_cases(int which) {
    static const struct {
        fl_shape x;
        int64_t k[7];
    } cases[] = {{{4, {1, 1, 4, 4}}, {2, 2, 2, 2, 0, 0, 0}},
                 {{4, {2, 1, 3, 3}}, {2, 2, 1, 1, 0, 0, 0}},
                 {{4, {1, 2, 4, 3}}, {3, 2, 2, 1, 1, 1, 0}},
                 {{4, {1, 1, 3, 4}}, {3, 3, 1, 2, 1, 1, 1}},
                 {{4, {1, 1, 3, 5}}, {2, 2, 2, 2, FL_SAME, FL_SAME, 1}},
                 {{4, {1, 1, 1, 1}}, {1, 1, 1, 1, 0, 0, 0}},
                 {{4, {0, 1, 2, 2}}, {2, 2, 2, 2, 0, 0, 0}}};
    for (int i = 0; i < 7; i++) {
        grad_case c = {
            .fn = run_pool, .which = which, .n_in = 1, .shape = {cases[i].x}, .low = -3, .high = 3};
        memcpy(c.k, cases[i].k, sizeof cases[i].k);
        run_case(which ? "avg_pool2d" : "max_pool2d", c);
    }
}

static fl_var *run_softmax(fl_var **x, const grad_case *c) {
    return c->which ? fv_log_softmax(x[0], (int)c->k[0]) : fv_softmax(x[0], (int)c->k[0]);
}

static void softmax_cases(int which) {
    for (int s = 0; s < SMALL_SHAPES; s++)
        for (int axis = 0; axis < small_shapes[s].ndim; axis++)
            run_case(which ? "log_softmax" : "softmax",
                     (grad_case){.fn = run_softmax,
                                 .which = which,
                                 .n_in = 1,
                                 .shape = {small_shapes[s]},
                                 .low = -2,
                                 .high = 2,
                                 .k = {axis % 2 ? axis - small_shapes[s].ndim : axis}});
}

static fl_var *run_dropout(fl_var **x, const grad_case *c) {
    fl_rng rng = {(uint64_t)c->k[0], 3};
    fl_var *y = fv_dropout(x[0], 0.4, &rng);
    return y ? fv_mul(y, y) : NULL;
}

/* A leaf used twice, a branch that joins again, a constant between. */
static fl_var *run_network(fl_var **x, const grad_case *c) {
    (void)c;
    fl_var *h = fv_tanh(fv_matmul(x[0], x[1])), *skip = fv_mul(h, fv_add(h, fv_sigmoid(h)));
    fl_var *z = fv_matmul(skip, x[1]);
    return fv_mul(fv_log_softmax(fv_add(z, fv_mean(z, FL_AXES_KEEP(0))), 1), fv_num(-0.5));
}

static void other_cases(int unused) {
    (void)unused;
    for (int s = 0; s < SMALL_SHAPES; s++)
        run_case("dropout", (grad_case){.fn = run_dropout,
                                        .n_in = 1,
                                        .shape = {small_shapes[s]},
                                        .low = -2,
                                        .high = 2,
                                        .k = {s}});
    run_case("network", (grad_case){.fn = run_network,
                                    .n_in = 2,
                                    .shape = {FL_SHAPE(3, 2), FL_SHAPE(2, 2)},
                                    .low = -1,
                                    .high = 1});
}

/* >>ties: values that PyTorch defines where the derivative does not exist */

static bool gradient_is(fl_var *out, fl_var *x, const double *want, int n) {
    array g;
    fl_var *v = fl_grad(fv_sum(out, FL_ALL_AXES), x, false);
    bool ok = v && read_tensor(fv_value(v), &g) && g.n == n;
    for (int k = 0; ok && k < n; k++) ok = g.f[k] == want[k];
    return ok;
}

static void tie_cases(int unused) {
    (void)unused;
    pool_at = 0;
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_from_host((double[]){0, -1, 1, 2}, FL_SHAPE(4), FL_F64));
    fl_var *same = fv_param(fl_from_host((double[]){0, -1, 5, 0}, FL_SHAPE(4), FL_F64));
    check(gradient_is(fv_abs(x), x, (double[]){0, -1, 1, 1}, 4), "abs: 0 at 0");
    check(gradient_is(fv_relu(x), x, (double[]){0, 0, 1, 1}, 4), "relu: 0 at 0");
    check(gradient_is(fv_clamp(x, fv_num(-1), fv_num(1)), x, (double[]){1, 1, 1, 0}, 4),
          "clip: 1 at its bounds");
    fl_var *low = fv_param(fl_from_host((double[]){2, -2, 0, 3}, FL_SHAPE(4), FL_F64));
    fl_var *high = fv_param(fl_from_host((double[]){1, 0, 3, 4}, FL_SHAPE(4), FL_F64));
    check(gradient_is(fv_clamp(x, low, high), x, (double[]){0, 1, 1, 0}, 4), "clamp by tensors: x");
    check(gradient_is(fv_clamp(x, low, high), low, (double[]){0, 0, 0, 1}, 4),
          "clamp: low above high has none");
    check(gradient_is(fv_clamp(x, low, high), high, (double[]){1, 0, 0, 0}, 4),
          "clamp: high below low has all");
    check(gradient_is(fv_maximum(x, same), x, (double[]){0.5, 0.5, 0, 1}, 4),
          "maximum: equal operands share");
    check(gradient_is(fv_maximum(x, same), same, (double[]){0.5, 0.5, 1, 0}, 4),
          "maximum: equal operands share, right");
    check(gradient_is(fv_minimum(x, same), x, (double[]){0.5, 0.5, 1, 0}, 4),
          "minimum: equal operands share");
    fl_var *ties = fv_param(fl_from_host((double[]){3, 1, 3, 3}, FL_SHAPE(4), FL_F64));
    check(
        gradient_is(fv_mul(fv_amax(ties, FL_ALL_AXES), fv_num(3)), ties, (double[]){1, 0, 1, 1}, 4),
        "amax: equal maxima share");
    check(gradient_is(fv_amin(ties, FL_ALL_AXES), ties, (double[]){0, 1, 0, 0}, 4), "amin");
    fl_var *zero = fv_param(fl_zeros(FL_SHAPE(2), FL_F64));
    check(gradient_is(fv_pow(zero, fv_num(2)), zero, (double[]){0, 0}, 2), "pow: 0 at 0 squared");
    check(gradient_is(fv_pow(zero, fv_num(0)), zero, (double[]){0, 0}, 2), "pow: 0 at 0 to the 0");
    check(gradient_is(fv_pow(fv_num(0), zero), zero, (double[]){0, 0}, 2), "pow: 0 to the x at 0");
    fl_var *negative = fv_param(fl_from_host((double[]){-2, -1}, FL_SHAPE(2), FL_F64));
    check(gradient_is(fv_pow(negative, fv_num(3)), negative, (double[]){12, 3}, 2),
          "pow: negative to the 3");
    fl_var *pooled = fv_param(fl_ones(FL_SHAPE(1, 1, 2, 2), FL_F64));
    check(gradient_is(fv_max_pool(pooled, NULL, .kernel = {2}), pooled, (double[]){1, 0, 0, 0}, 4),
          "max_pool2d: the first of equal maxima");
    fl_scope_end(&s);
}

/* Gradients where formulas change, and logarithms of whole powers, which are exact. */
static void edge_cases(int unused) {
    (void)unused;
    pool_at = 0;
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_from_host((double[]){-3, 0, 3, 6}, FL_SHAPE(4), FL_F64));
    check(gradient_is(fv_hardswish(x), x, (double[]){0, 0.5, 1, 1}, 4),
          "hardswish: 0 at -3, 1 at 3");
    check(gradient_is(fv_hardsigmoid(x), x, (double[]){0, 1.0 / 6, 0, 0}, 4),
          "hardsigmoid: 0 at -3 and 3");
    check(gradient_is(fv_relu6(x), x, (double[]){0, 0, 1, 0}, 4), "relu6: 0 at 0 and 6");
    check(gradient_is(fv_prelu(x, fv_num(0.25)), x, (double[]){0.25, 0.25, 1, 1}, 4),
          "prelu: the slope at 0");
    check(gradient_is(fv_fmax(x, fv_num(0)), x, (double[]){0, 1, 1, 1}, 4), "fmax: a's at a = b");
    check(gradient_is(fv_fmin(x, fv_num(0)), x, (double[]){1, 1, 0, 0}, 4), "fmin: a's at a = b");
    check(gradient_is(fv_copysign(x, fv_num(-1)), x, (double[]){1, 0, -1, -1}, 4),
          "copysign: 0 at 0");
    fl_var *zero = fv_param(fl_zeros(FL_SHAPE(4), FL_F64));
    check(gradient_is(fv_xlogy(zero, fv_detach(zero)), zero, (double[]){0, 0, 0, 0}, 4),
          "xlogy: 0 at 0 log 0");
    check(gradient_is(fv_xlogy(zero, fv_num(-1)), zero, (double[]){0, 0, 0, 0}, 4),
          "xlogy: 0 at 0 log -1");
    check(gradient_is(fv_xlogy(x, fv_detach(zero)), x,
                      (double[]){-INFINITY, 0, -INFINITY, -INFINITY}, 4),
          "xlogy: log b where a is not 0");
    check(gradient_is(fv_heaviside(x, zero), zero, (double[]){0, 1, 0, 0}, 4),
          "heaviside: b's where a is 0");
    check(gradient_is(fv_sinc(zero), zero, (double[]){0, 0, 0, 0}, 4), "sinc: 0 at 0");
    bool two = true, ten = true;
    for (int e = -1022; e < 1024 && two; e++)
        two = fl_item(fl_log2(fl_full(FL_SCALAR_SHAPE, ldexp(1, e), FL_F64))) == e;
    for (int e = 0; e <= 22 && ten; e++)
        ten = fl_item(fl_log10(fl_full(FL_SCALAR_SHAPE, pow(10, e), FL_F64))) == e;
    for (int e = -126; e < 128 && two; e++)
        two = fl_item(fl_log2(fl_full(FL_SCALAR_SHAPE, ldexp(1, e), FL_F32))) == e;
    for (int e = 0; e <= 10 && ten; e++)
        ten = fl_item(fl_log10(fl_full(FL_SCALAR_SHAPE, pow(10, e), FL_F32))) == e;
    check(two, "log2 of powers of 2 is exact");
    check(ten, "log10 of powers of 10 is exact");
    fl_scope_end(&s);
}

/* Results that have no gradient record nothing. */
static void constant_cases(int unused) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_full(FL_SHAPE(2), 0.25, FL_F64)), *t = fv_gt(x, fv_num(0));
    fl_var *const results[] = {
        fv_eq(x, x),         fv_ne(x, x),          fv_lt(x, x),        fv_le(x, x),
        fv_gt(x, x),         fv_ge(x, x),          fv_isnan(x),        fv_floor(x),
        fv_rint(x),          fv_sign(x),           fv_logical_not(x),  fv_logical_and(x, x),
        fv_logical_or(x, x), fv_logical_xor(x, x), fv_bitwise_not(t),  fv_bitwise_and(t, t),
        fv_bitwise_or(t, t), fv_bitwise_xor(t, t), fv_cast(x, FL_I64), fv_detach(x)};
    char text[60];
    (void)unused;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        snprintf(text, sizeof text, "result %d of constants has no gradient", (int)i);
        fl_var *g = NULL;
        if (results[i] && fl_dtype_is_float(fv_value(results[i])->dtype))
            g = fl_grad(fv_sum(results[i], FL_ALL_AXES), x, false);
        check(results[i] && !g && !fl_error(), text);
    }
    fl_scope_end(&s);
}

#include "gradcheck_index.h"
#include "gradcheck_image.h"
#include "gradcheck_linear.h"
#include "gradcheck_neural.h"

/* >>running */

static group groups[MAX_OPS];
static int n_groups;

static void add_group(const char *name, void (*run)(int), int arg) {
    groups[n_groups++] = (group){name, run, arg};
}

static void make_groups(void) {
    static const char *const indexing[] = {"gather", "scatter_add", "index_select", "scatter"};
    for (int i = 0; i < UNARY; i++) add_group(unary[i].name, unary_cases, i);
    for (int i = 0; i < BINARY; i++) add_group(binary[i].name, binary_cases, i);
    add_group("where clip cast", where_cases, 0);
    for (int i = 0; i < MOVES; i++) add_group(move_names[i], move_cases, i);
    for (int i = 0; i < MOVE_FNS; i++) add_group(move_fns[i].name, move_fn_cases, i);
    for (int i = 0; i < REDUCTIONS; i++) add_group(reduction_names[i], reduction_cases, i);
    for (int i = 0; i < COMPOSED_REDUCTIONS; i++)
        add_group(composed_reductions[i], composed_reduction_cases, i);
    for (int i = 0; i < 4; i++) add_group(indexing[i], index_cases, i);
    for (int i = 0; i < ORDER_OPS; i++) add_group(order_names[i], order_cases, i);
    add_group("indices", index_table_group, 0);
    add_group("matmul", matmul_cases, 0);
    add_group("linear", linear_group, 0);
    add_group("factor", factor_group, 0);
    add_group("fft", fft_group, 0);
    add_group("conv2d", conv_cases, 0);
    add_group("image", image_group, 0);
    add_group("max_pool2d", pool_cases, 0);
    add_group("avg_pool2d", pool_cases, 1);
    add_group("softmax", softmax_cases, 0);
    add_group("log_softmax", softmax_cases, 1);
    add_group("other", other_cases, 0);
    for (int i = 0; i < NET_OPS; i++) add_group(net_ops[i].name, net_cases, i);
    for (int i = 0; i < N_OWN_OPS; i++) add_group(own_ops[i].name, own_cases, i);
    add_group("ties", tie_cases, 0);
    add_group("ties", edge_cases, 0);
    add_group("constants", constant_cases, 0);
}

static void run_group(const group *g) {
    g->run(g->arg);
}

static void run_forked(const group *g) {
    shared->shown = 0;
    snprintf(shared->now, sizeof shared->now, "(start)");
    if (!group_forked(g, run_group, shared->now)) shared->checks++;
}

/* Every formula that gives floats has cases. */
static void check_tables(void) {
    char text[80];
    for (int i = 1; i < fl_op_count(); i++) {
        const fl_op_info *info = fl_op_get_info((fl_op)i);
        if (info->cls != FL_CLASS_FLOAT && info->cls != FL_CLASS_NUM && info->cls != FL_CLASS_ANY)
            continue;
        snprintf(text, sizeof text, "op %s has cases", info->name);
        check(counts_of(info->name)->total[0] > 0, text);
    }
}

/* Functions of fl/ops/ without cases of their own, and why. */
static const struct {
    const char *name, *why;
} without_cases[] = {
    {"fv_isfinite", "a condition"},
    {"fv_isinf", "a condition"},
    {"fv_isposinf", "a condition"},
    {"fv_isneginf", "a condition"},
    {"fv_signbit", "a condition"},
    {"fv_fake_quantize", "its gradient is not that of its steps, but 1 between the bounds: tests/parity.c"},
    {"fv_shift_left", "of integers"},
    {"fv_shift_right", "of integers"},
    {"fv_linear_act_of", "a look-up"},
    {"fv_record_formula", "records an op of the tables, which has its own"},
    {"fv_conv2d_run", "the record under fv_conv, of which it takes the arguments"},
    {"fv_conv2d_grad_input", "the backward of fv_conv2d_run: the second order of conv2d"},
    {"fv_avg_pool2d_run", "the record under fv_avg_pool"},
    {"fv_fake_quantize", "steps, whose gradient is that of the identity: parity has it"},
};

static bool reads(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(text, 1, size - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return n > 0;
}

/* Is name, or name( of name_opt, a word of the text? */
static bool has_word(const char *text, const char *name, size_t n) {
    for (const char *p = text; (p = strstr(p, name)); p += n)
        if (!isalnum((unsigned char)p[n]) && p[n] != '_') return true;
    return false;
}

static bool named_in(glob_t *files, char *name) {
    static char text[400000];
    const size_t n = strlen(name);
    bool found = false;
    for (size_t i = 0; !found && i < files->gl_pathc; i++)
        found = reads(files->gl_pathv[i], text, sizeof text) && has_word(text, name, n);
    if (!found && n > 4 && !strcmp(name + n - 4, "_opt")) {
        name[n - 4] = 0;
        return named_in(files, name);
    }
    return found;
}

/* Every function on variables of fl/ops/ is called by a case, as the texts of both say. */
static void check_functions(void) {
    static char text[400000];
    char note[200], name[100];
    glob_t ops, cases;
    int functions = 0;
    if (glob("fl/ops/*.h", 0, NULL, &ops)) return; /* not in the root */
    if (glob("tests/gradcheck*.[ch]", 0, NULL, &cases)) return;
    for (size_t i = 0; i < ops.gl_pathc; i++) {
        if (!reads(ops.gl_pathv[i], text, sizeof text)) continue;
        for (char *p = text; (p = strstr(p, "\nFL_API fl_var *fv_")); functions++) {
            p += strlen("\nFL_API fl_var *");
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "("), p);
            bool excused = false;
            for (size_t k = 0; k < sizeof without_cases / sizeof *without_cases; k++)
                excused |= !strcmp(without_cases[k].name, name);
            snprintf(note, sizeof note, "%s has cases", name);
            check(excused || named_in(&cases, name), note);
        }
    }
    check(functions > 200, "the prototypes are found");
    globfree(&ops);
    globfree(&cases);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cpu";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    fl_set_error_handler(quiet_errors, NULL);
    if (!strcmp(name, "--groups")) { /* what may be named behind the backend */
        make_groups();
        for (int i = 0; i < n_groups; i++) puts(groups[i].name);
        return 0;
    }
    if (backend_is_absent(name)) return 0;
    if (!choose_backend(name)) {
        printf("gradcheck: no backend '%s': %s\n0 passed, 1 failed\n", name, fl_error());
        return 1;
    }
    make_groups();
    const char *one_in = getenv("GROUPS_ONE_IN");
    const unsigned each = one_in ? (unsigned)atoi(one_in) : 1;
    const bool all = argc <= 2 && each <= 1;
    int ran = 0, passed[ORDERS] = {0}, total[ORDERS] = {0}, sum = 0, of = 0;
    for (int i = 0; i < n_groups; i++)
        if (group_wanted(groups[i].name, argc, argv) && (each <= 1 || in_sample(groups[i].name, each)))
            run_forked(&groups[i]), ran++;
    if (all) check_tables();
    if (all) check_functions();
    printf("\n%-16s %14s %14s %14s %14s   cases passed / run\n", "op", "first order", "second order",
           "forward mode", "mixed");
    for (int i = 0; i < shared->n_ops; i++) {
        const op_counts *o = &shared->ops[i];
        printf("%-16s", o->name);
        for (int k = 0; k < ORDERS; k++) {
            printf(" %8d/%5d%s", o->passed[k], o->total[k], o->passed[k] < o->total[k] ? "!" : "");
            passed[k] += o->passed[k];
            total[k] += o->total[k];
        }
        printf("\n");
    }
    printf("%-16s", "all");
    for (int k = 0; k < ORDERS; k++) {
        printf(" %8d/%5d", passed[k], total[k]);
        sum += passed[k];
        of += total[k];
    }
    printf("\n");
    int failed = of - sum + shared->checks - shared->checks_passed + (ran == 0);
    printf("%d passed, %d failed\n", sum + shared->checks_passed, failed);
    return failed != 0;
}
/* MIT licence: see LICENSE. */
