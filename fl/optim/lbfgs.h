/* fl/optim/lbfgs.h - L-BFGS: quasi-Newton steps with a strong Wolfe line search */
#ifndef FL_OPTIM_LBFGS_H
#define FL_OPTIM_LBFGS_H
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_optim_lbfgs_opts {
    fl_opts_guard guard_;
    double lr;                /* step length, or the first one that the line search tries; 0 -> 1 */
    int64_t max_iter;         /* updates per step; 0 -> 20 */
    int64_t max_eval;         /* evaluations of the loss per step; 0 -> 1.25 max_iter */
    double tolerance_grad;    /* stop when no gradient element exceeds this; 0 -> 1e-7 */
    double tolerance_change;  /* stop when loss or parameters change less; 0 -> 1e-9 */
    int64_t history;          /* stored pairs (y, s): memory of 2 history parameters; 0 -> 100 */
    bool strong_wolfe;        /* line search by sufficient decrease and curvature */
    bool master;              /* see fl_optim_use_masters */
    bool maximize;            /* see fl_optim_maximize */
    char _end;
} fl_optim_lbfgs_opts;
/* L-BFGS, for full-batch losses. It evaluates the loss itself, hence needs fl_optim_step_closure:
     fl_optim *o = fl_optim_lbfgs(fl_nn_parameters(net), .strong_wolfe = true);
     fl_optim_step_closure(o, loss_of, user, &loss);
   One group. torch.optim.LBFGS (Nocedal and Wright, "Numerical Optimization", algorithms 7.4, 3.5, 3.6) */
#define fl_optim_lbfgs(...) FL_OPTIM__LBFGS(__VA_ARGS__, ._end = 0)
#define FL_OPTIM__LBFGS(params, ...) fl_optim_lbfgs_opt(params, FL_LITERAL(fl_optim_lbfgs_opts, __VA_ARGS__))
FL_API fl_optim *fl_optim_lbfgs_opt(fv_list params, fl_optim_lbfgs_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_LBFGS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_LBFGS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_LBFGS_IMPL
#define FL_OPTIM_LBFGS_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <math.h>

/* The states, all in slot 0: all parameters form one flat vector. */
enum { FL__LBFGS_D, FL__LBFGS_GRAD, FL__LBFGS_Y, FL__LBFGS_S, FL__LBFGS_RHO, FL__LBFGS_NUMBERS };
enum { FL__LBFGS_ITERS, FL__LBFGS_EVALS, FL__LBFGS_TOL_GRAD, FL__LBFGS_TOL_CHANGE, FL__LBFGS_HISTORY,
       FL__LBFGS_WOLFE };

/* A step. `number` persists between steps in a state tensor. */
typedef struct fl__lbfgs {
    fl_optim *o;
    fl_optim_closure closure;
    void *user;
    const double *hyper;
    fl_tensor **state;
    fl_dtype dtype;
    struct {
        double t, scale;    /* step length; scale of the initial inverse Hessian */
        double pairs, next; /* number of stored pairs; index of the next: y and s are ring buffers of rows */
        double evals;
    } number;
} fl__lbfgs;
/* A point on the search line: loss, slope and gradient at step length t. */
typedef struct fl__lbfgs_point {
    double t, f, slope;
    fl_tensor *g;
} fl__lbfgs_point;

static fl_tensor *fl__lbfgs_value(const fl_optim_slot *p) {
    return p->master ? p->master : fv_value(p->param);
}

static fl_dtype fl__lbfgs_dtype(const fl_optim *o) {
    fl_dtype d = FL_F32;
    for (int64_t i = 0; i < o->n; i++)
        if (fv_value(o->slot[i].param)->dtype == FL_F64) d = FL_F64;
    return d;
}

static fl_tensor *fl__lbfgs_init(fl_optim *o, fl_tensor *param, int k) {
    const fl_dtype d = k < FL__LBFGS_RHO ? fl__lbfgs_dtype(o) : FL_F64;
    const int64_t history = (int64_t)o->group[0].hyper[FL__LBFGS_HISTORY];
    int64_t n = 0;
    if (o->slot[0].state[k] || param != fv_value(o->slot[0].param)) return NULL;
    for (int64_t i = 0; i < o->n; i++) n += fl_numel(fv_value(o->slot[i].param));
    const fl_shape shape = k == FL__LBFGS_NUMBERS                      ? FL_SHAPE(5)
                           : k == FL__LBFGS_RHO                        ? FL_SHAPE(history)
                           : k == FL__LBFGS_Y || k == FL__LBFGS_S ? FL_SHAPE(history, n)
                                                                       : FL_SHAPE(n);
    return fl_to(fl_zeros(shape, d), fl_backend_name(param));
}

/* A copy of all parameters, or of the gradients to descend, as one vector. */
static fl_tensor *fl__lbfgs_flat(const fl__lbfgs *w, bool grads) {
    const fl_optim *o = w->o;
    fl_tensor **part = fl_heap_alloc((size_t)o->n * sizeof *part), *y = NULL;
    if (!part) return NULL;
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; i < o->n; i++) {
        fl_tensor *value = fl__lbfgs_value(&o->slot[i]), *g = fv_grad(o->slot[i].param);
        fl_tensor *t = !grads ? value : g ? g : fl_full_like(value, 0);
        part[i] = fl_reshape(fl_cast(t, w->dtype), FL_SHAPE(-1));
    }
    y = fl_concat(part, (int)o->n, 0);
    if (grads) y = fl_mul(y, o->sign);
    fl_heap_free(part);
    return fl_scope_return(&s, y);
}

/* Assigns x to the parameters. */
static bool fl__lbfgs_assign(const fl__lbfgs *w, fl_tensor *x) {
    bool ok = x != NULL;
    int64_t at = 0;
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; ok && i < w->o->n; i++) {
        const fl_optim_slot *p = &w->o->slot[i];
        fl_tensor *value = fl__lbfgs_value(p);
        const int64_t n = fl_numel(value);
        ok = fl_assign(value, fl_reshape(fl_slice(x, 0, at, at + n, 1), fl_shape_of(value))) &&
             (!p->master || fl_assign(fv_value(p->param), value));
        at += n;
    }
    fl_scope_end(&s);
    return ok;
}

static double fl__lbfgs_dot(fl_tensor *a, fl_tensor *b) {
    fl_scope s = fl_scope_begin();
    const double y = fl_item(fl_sum(fl_mul(a, b), FL_ALL_AXES));
    fl_scope_end(&s);
    return y;
}

static double fl__lbfgs_largest(fl_tensor *x) {
    fl_scope s = fl_scope_begin();
    const double y = fl_item(fl_amax(fl_abs(x), FL_ALL_AXES));
    fl_scope_end(&s);
    return y;
}

/* Loss and gradient at x + t d, which is assigned to the parameters; d NULL: at the current parameters. */
static bool fl__lbfgs_eval(fl__lbfgs *w, fl_tensor *x, fl_tensor *d, double t, fl__lbfgs_point *at) {
    fl_scope s = fl_scope_begin();
    bool ok = !d || fl__lbfgs_assign(w, fl_add(x, fl_mul(d, fl_num(t))));
    fl_var *loss = ok ? w->closure(w->user) : NULL;
    if (ok && !loss && !fl_error()) fl_fail("fl_optim_step_closure: the closure returned NULL");
    at->t = t;
    at->f = loss ? fl_item(fv_value(loss)) * w->o->sign->f64 : NAN;
    at->g = fl_scope_return(&s, loss ? fl__lbfgs_flat(w, true) : NULL);
    at->slope = at->g && d ? fl__lbfgs_dot(at->g, d) : 0;
    w->number.evals++;
    return at->g && !fl_error();
}

/* The minimum in [low, high] of the cubic with the values and slopes of a and b. */
static double fl__lbfgs_cubic(const fl__lbfgs_point *a, const fl__lbfgs_point *b, double low, double high) {
    if (a->t > b->t) return fl__lbfgs_cubic(b, a, low, high);
    const double c = a->slope + b->slope - 3 * (a->f - b->f) / (a->t - b->t);
    const double square = c * c - a->slope * b->slope, root = sqrt(square);
    if (!(square >= 0)) return (low + high) / 2;
    const double t = b->t - (b->t - a->t) * ((b->slope + root - c) / (b->slope - a->slope + 2 * root));
    return fmin(fmax(t, low), high);
}

/* Finds a point on the line from `start` along d that satisfies the strong Wolfe conditions, or the best of
   25 evaluations. Afterwards the parameters may be at another point of the line. */
static bool fl__lbfgs_search(fl__lbfgs *w, fl_tensor *x, fl_tensor *d, const fl__lbfgs_point *start, double t,
                             fl__lbfgs_point *found) {
    enum { MOST = 25 };
    const double size = fl__lbfgs_largest(d), c1 = 1e-4, c2 = 0.9;
    fl__lbfgs_point end[2] = {*start}, now; /* the bracket, or the previous point */
    bool done = false, stuck = false, bracket = false;
    int i = 0;
    if (!fl__lbfgs_eval(w, x, d, t, &now)) return false;
    for (; i < MOST; i++) {
        end[1] = now;
        done = fabs(now.slope) <= -c2 * start->slope;
        const bool high = now.f > start->f + c1 * now.t * start->slope || (i > 1 && now.f >= end[0].f);
        if ((bracket = high || (!done && now.slope >= 0))) done = false;
        if (bracket || done) break;
        t = fl__lbfgs_cubic(&end[0], &now, now.t + 0.01 * (now.t - end[0].t), now.t * 10);
        end[0] = now;
        if (!fl__lbfgs_eval(w, x, d, t, &now)) return false;
    }
    if (done) {
        *found = now;
        return true;
    }
    if (!bracket) end[0] = *start, end[1] = now;
    int low = end[0].f <= end[1].f ? 0 : 1;
    while (!done && i < MOST && fabs(end[1].t - end[0].t) * size >= w->hyper[FL__LBFGS_TOL_CHANGE]) {
        const double left = fmin(end[0].t, end[1].t), right = fmax(end[0].t, end[1].t);
        const double margin = 0.1 * (right - left);
        t = fl__lbfgs_cubic(&end[0], &end[1], left, right);
        const bool at_edge = fmin(right - t, t - left) < margin;
        if (at_edge && (stuck || t >= right || t <= left)) {
            t = fabs(t - right) < fabs(t - left) ? right - margin : left + margin;
            stuck = false;
        } else {
            stuck = at_edge;
        }
        if (!fl__lbfgs_eval(w, x, d, t, &now)) return false;
        i++;
        if (now.f > start->f + c1 * t * start->slope || now.f >= end[low].f) {
            end[1 - low] = now;
            low = end[0].f <= end[1].f ? 0 : 1;
        } else {
            done = fabs(now.slope) <= -c2 * start->slope;
            if (!done && now.slope * (end[1 - low].t - end[low].t) >= 0) end[1 - low] = end[low];
            end[low] = now;
        }
    }
    *found = end[low];
    return true;
}

/* Row i of the pairs, the oldest first. */
static fl_tensor *fl__lbfgs_row(const fl__lbfgs *w, int state, int64_t i) {
    const int64_t rows = w->state[state]->shape[0];
    return fl_select(w->state[state], 0, ((int64_t)(w->number.next - w->number.pairs) + i + rows) % rows);
}

/* Stores y = g - previous gradient and s = t d, if the curvature y s is positive. */
static bool fl__lbfgs_store_pair(fl__lbfgs *w, fl_tensor *g) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_sub(g, w->state[FL__LBFGS_GRAD]);
    fl_tensor *step = fl_mul(w->state[FL__LBFGS_D], fl_num(w->number.t));
    const double ys = fl__lbfgs_dot(y, step), rows = (double)w->state[FL__LBFGS_Y]->shape[0];
    bool ok = !fl_error();
    if (ok && ys > 1e-10) {
        const int64_t at = (int64_t)w->number.next;
        w->number.scale = ys / fl__lbfgs_dot(y, y);
        ok = fl_assign(fl_select(w->state[FL__LBFGS_Y], 0, at), y) &&
             fl_assign(fl_select(w->state[FL__LBFGS_S], 0, at), step) &&
             fl_assign(fl_select(w->state[FL__LBFGS_RHO], 0, at), fl_num(1 / ys));
        w->number.pairs = fmin(w->number.pairs + 1, rows);
        w->number.next = fmod(w->number.next + 1, rows);
    }
    fl_scope_end(&s);
    return ok;
}

/* q -= x a, in place. */
static bool fl__lbfgs_subtract(fl_tensor *q, fl_tensor *x, double a) {
    return fl_assign_op(q, FL_OP_sub, q, fl_mul(x, fl_num(a))) != NULL;
}

/* d = -(inverse Hessian) g, by the two-loop recursion. */
static bool fl__lbfgs_direction(fl__lbfgs *w, fl_tensor *g) {
    fl_tensor *d = w->state[FL__LBFGS_D];
    const int64_t n = (int64_t)w->number.pairs;
    double *a = fl_heap_alloc((size_t)(n + 1) * sizeof *a);
    bool ok = a && fl_assign(d, fl_neg(g));
    for (int64_t k = 0; ok && k < 2 * n; k++) {
        const int64_t i = k < n ? n - 1 - k : k - n;
        fl_scope s = fl_scope_begin();
        fl_tensor *y = fl__lbfgs_row(w, FL__LBFGS_Y, i), *step = fl__lbfgs_row(w, FL__LBFGS_S, i);
        fl_tensor *rho = fl__lbfgs_row(w, FL__LBFGS_RHO, i);
        if (k == n) ok = fl_assign_op(d, FL_OP_mul, d, fl_num(w->number.scale)) != NULL;
        const double b = fl_item(rho) * fl__lbfgs_dot(k < n ? step : y, d);
        if (k < n) a[i] = b;
        ok = ok && fl__lbfgs_subtract(d, k < n ? y : step, k < n ? b : b - a[i]);
        fl_scope_end(&s);
    }
    fl_heap_free(a);
    return ok && !fl_error();
}

/* One update from *at, which becomes its end point; *more: whether to continue. */
static bool fl__lbfgs_update(fl__lbfgs *w, fl__lbfgs_point *at, bool last, bool *more) {
    const fl_optim *o = w->o;
    fl_tensor *d = w->state[FL__LBFGS_D];
    const bool first = fl_item_int(o->slot[0].steps) == 0, wolfe = w->hyper[FL__LBFGS_WOLFE] != 0;
    fl__lbfgs_point start = *at;
    bool ok = !fl_error() && (first || fl__lbfgs_store_pair(w, at->g)) && fl__lbfgs_direction(w, at->g) &&
              fl_assign(w->state[FL__LBFGS_GRAD], at->g) &&
              fl_assign_op(o->steps, FL_OP_add, o->steps, fl_int(1));
    *more = false;
    if (!ok) return false;
    w->number.t = o->lr;
    if (first) w->number.t *= fmin(1, 1 / fl_item(fl_sum(fl_abs(at->g), FL_ALL_AXES)));
    start.t = 0;
    start.slope = fl__lbfgs_dot(at->g, d);
    if (start.slope > -w->hyper[FL__LBFGS_TOL_CHANGE]) return true; /* not a descent direction */
    fl_tensor *x = fl__lbfgs_flat(w, false);
    ok = x != NULL;
    if (wolfe) ok = ok && fl__lbfgs_search(w, x, d, &start, w->number.t, at);
    else if (!last) ok = ok && fl__lbfgs_eval(w, x, d, w->number.t, at);
    if (wolfe) w->number.t = at->t;
    if (wolfe || last) ok = ok && fl__lbfgs_assign(w, fl_add(x, fl_mul(d, fl_num(w->number.t))));
    *more = ok && !last && !(fl__lbfgs_largest(at->g) <= w->hyper[FL__LBFGS_TOL_GRAD]) &&
            !(fl__lbfgs_largest(d) * fabs(w->number.t) <= w->hyper[FL__LBFGS_TOL_CHANGE]) &&
            !(fabs(at->f - start.f) < w->hyper[FL__LBFGS_TOL_CHANGE]);
    return ok && !fl_error();
}

static bool fl__lbfgs_minimize(fl_optim *o, fl_optim_closure closure, void *user, double *loss) {
    fl__lbfgs w = {.o = o, .closure = closure, .user = user, .hyper = o->group[0].hyper,
                   .state = o->slot[0].state, .dtype = fl__lbfgs_dtype(o)};
    fl_tensor *numbers = w.state[FL__LBFGS_NUMBERS];
    fl__lbfgs_point at = {.f = NAN};
    fl_scope s = fl_scope_begin();
    bool ok = fl_to_host(numbers, &w.number, sizeof w.number) && fl__lbfgs_eval(&w, NULL, NULL, 0, &at);
    bool more = ok && !(fl__lbfgs_largest(at.g) <= w.hyper[FL__LBFGS_TOL_GRAD]);
    const double evals = w.number.evals - 1;
    *loss = at.f * o->sign->f64;
    fl_keep(at.g); /* the next update drops this one */
    for (int64_t i = 1; ok && more; i++) {
        fl_scope inner = fl_scope_begin();
        fl_tensor *before = at.g;
        ok = fl__lbfgs_update(&w, &at, i >= w.hyper[FL__LBFGS_ITERS], &more);
        more = more && w.number.evals - evals < w.hyper[FL__LBFGS_EVALS];
        fl_keep(at.g);
        fl_drop(before);
        fl_scope_end(&inner);
    }
    fl_drop(at.g);
    ok = ok && fl_set_host(numbers, &w.number, sizeof w.number);
    fl_scope_end(&s);
    return ok;
}

static const fl_optim_type fl__lbfgs_type = {
    .name = "lbfgs", .state = {"d", "prev_flat_grad", "old_dirs", "old_stps", "ro", "numbers"},
    .hyper = {"max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "strong_wolfe"},
    .limits = "nnnnnn", .apart = 63, .init = fl__lbfgs_init, .minimize = fl__lbfgs_minimize};

FL_API fl_optim *fl_optim_lbfgs_opt(fv_list params, fl_optim_lbfgs_opts o) {
    const int64_t iters = fl_option_int(o.max_iter, 20), evals = fl_option_int(o.max_eval, iters * 5 / 4);
    const int64_t history = fl_option_int(o.history, 100);
    const double hyper[] = {(double)iters, (double)evals, fl_option(o.tolerance_grad, 1e-7),
                            fl_option(o.tolerance_change, 1e-9), (double)history, o.strong_wolfe};
    if (iters < 1 || evals < 1 || history < 1)
        return fl_err_null("fl_optim_lbfgs: max_iter, max_eval and history must be at least 1, got %g, %g "
                           "and %g", hyper[0], hyper[1], hyper[4]);
    return fl__optim_make(&fl__lbfgs_type, params, o.lr, 1, hyper, o.master, o.maximize);
}

#endif
#endif
/* MIT licence: see LICENSE. */
