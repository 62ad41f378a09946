/* fl/speech/lattice.h - logarithms of sums over paths, as ops: those of ASG and of transducers

   asg         over paths of tokens, one a frame: e[0, p0] + sum over t of e[t, pt] + w[pt, pt-1]; all of
               them, or those that spell a target, each token for one frame or more
   transducer  over monotone paths through [t, u + 1]: a blank moves on in t, a label in u; they end with a
               blank at (t - 1, u) (arXiv 1211.3711)

   Records (fl_lattice_args), of one float dtype but i64 target [n, l], steps [n] and lengths [n].
     asg         e [t, n, c], w [c (to), c (from)], target, steps, lengths -> [n]
     transducer  blanks [n, t, u + 1], labels [n, t, u], steps, lengths -> [n]; a log probability each
     ..._grad    the same, that, dy [n] -> the gradients of the two, 0 where there is no path
   -1e30 stands for log 0, so that gradients of any order are finite. */
#ifndef FL_T
#ifndef FL_SPEECH_LATTICE_H
#define FL_SPEECH_LATTICE_H
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#include "../ops/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_lattice_args {
    bool full; /* asg: all paths; target and lengths are not looked at */
} fl_lattice_args;
typedef struct fl_lattice_opts {
    fl_named _positional;
    int64_t blank;          /* of a transducer, its class; 0 -> the last, FL_I0 -> 0 */
    fl_reduction reduction; /* FL_MEAN: over the batch */
    bool zero_infinity;     /* 0 instead of inf for targets that do not fit */
    int64_t cells;          /* fv_transducer_joint: of its lattice at a time, 0 -> 4096 */
    char _end;
} fl_lattice_opts;
/* The two halves of ASG (Collobert et al., arXiv 1609.03193): log of the sum over all paths through scores
   x [t, n, c], and over those that spell the targets; about -1e30 where there is none. */
FL_API fl_tensor *fl_asg_full(fl_tensor *x, fl_tensor *w, fl_tensor *steps);
FL_API fl_var *fv_asg_full(fl_var *x, fl_var *w, fl_tensor *steps);
FL_API fl_tensor *fl_asg_forced(fl_tensor *x, fl_tensor *w, fl_tensor *target, fl_tensor *steps,
                                fl_tensor *lengths);
FL_API fl_var *fv_asg_forced(fl_var *x, fl_var *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths);
/* The first less the second. */
#define fl_asg_loss(...) FL__LATTICE(fl_asg_loss, __VA_ARGS__, ._end = 0)
#define fv_asg_loss(...) FL__LATTICE(fv_asg_loss, __VA_ARGS__, ._end = 0)
#define FL__LATTICE(fn, x, w, target, steps, lengths, ...) \
    fn##_opt(x, w, target, steps, lengths, (fl_lattice_opts){__VA_ARGS__})
FL_API fl_tensor *fl_asg_loss_opt(fl_tensor *x, fl_tensor *w, fl_tensor *target, fl_tensor *steps,
                                  fl_tensor *lengths, fl_lattice_opts o);
FL_API fl_var *fv_asg_loss_opt(fl_var *x, fl_var *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                               fl_lattice_opts o);
/* -log P(target) of scores x [n, t, u + 1, c], whose log softmax is taken (torchaudio.functional.rnnt_loss),
   targets [n, u]. */
#define fl_transducer_loss(...) FL__TRANSDUCER(fl_, __VA_ARGS__, ._end = 0)
#define fv_transducer_loss(...) FL__TRANSDUCER(fv_, __VA_ARGS__, ._end = 0)
#define FL__TRANSDUCER(p, x, target, steps, lengths, ...) \
    p##transducer_loss_opt(x, target, steps, lengths, (fl_lattice_opts){__VA_ARGS__})
FL_API fl_tensor *fl_transducer_loss_opt(fl_tensor *x, fl_tensor *target, fl_tensor *steps,
                                         fl_tensor *lengths, fl_lattice_opts o);
FL_API fl_var *fv_transducer_loss_opt(fl_var *x, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                                      fl_lattice_opts o);
/* What that loss needs of x = tanh(a[n, t] + b[n, u]) weight^T + bias: a [n, t, h], b [n, u + 1, h], weight
   [c, h], bias [c] -> log probabilities of the blank and of the next label, [n, t, u + 1, 2] (0 for a label
   after the last). x is made for some frames at a time, forward and backward, and never stands there as a
   whole. */
#define fv_transducer_joint(...) FL__JOINT(__VA_ARGS__, ._end = 0)
#define FL__JOINT(a, b, weight, bias, target, ...) \
    fv_transducer_joint_opt(a, b, weight, bias, target, (fl_lattice_opts){__VA_ARGS__})
FL_API fl_var *fv_transducer_joint_opt(fl_var *a, fl_var *b, fl_var *weight, fl_var *bias, fl_tensor *target,
                                       fl_lattice_opts o);
/* The loss of these log probabilities [n, t, u + 1, 2]. */
FL_API fl_tensor *fl_transducer_joint_loss(fl_tensor *joint, fl_tensor *steps, fl_tensor *lengths,
                                           fl_lattice_opts o);
FL_API fl_var *fv_transducer_joint_loss(fl_var *joint, fl_tensor *steps, fl_tensor *lengths,
                                        fl_lattice_opts o);

FL_DATA fl_op fl_op_asg, fl_op_asg_grad, fl_op_transducer, fl_op_transducer_grad;
/* Registers the ops and their kernels, once: called by the functions above. */
FL_API bool fl_lattice_register(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_LATTICE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_LATTICE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_LATTICE_IMPL
#define FL_SPEECH_LATTICE_IMPL
#include "../../kernels/cpu/asg.h"
#include "../../kernels/cpu/transducer.h"
#ifdef FL_USE_CUDA
#include "../../kernels/cuda/lattice.h"
#endif
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#define FL__LATTICE_NEVER (-1e30)

FL_DATA_DEFINED fl_op fl_op_asg, fl_op_asg_grad, fl_op_transducer, fl_op_transducer_grad;

/* Operands before the gradient's own: two of floats, then the integers. */
static int fl__lattice_operands(fl_op op) {
    return op == fl_op_asg || op == fl_op_asg_grad ? 5 : 4;
}

/* target where a place is before the sequence's end, `fill` behind it */
static fl_tensor *fl__lattice_labels(fl_tensor *target, fl_tensor *lengths, int64_t fill) {
    fl_tensor *place = fl_to(fl_arange(0, (double)target->shape[1], 1, FL_I64), fl_backend_name(target));
    fl_tensor *inside = fl_lt(place, fl_unsqueeze(lengths, 1));
    return inside ? fl_where(inside, target, fl_int(fill)) : NULL;
}

#define FL_TEXT "../speech/lattice.h"
#include "../ops/expand.h"

static bool fl__compose_lattice(const fl_call *c, fl_tensor **y) {
    y[0] = fl__lattice_composed(c->op, c->in, &c->in[2], c->args);
    return y[0] != NULL;
}

/* dy times the derivative of the sum by both operands, through the graph of its composition. */
static bool fv__lattice_gradient(fl_op op, fl_var *const *given, fl_tensor *const *of,
                                 const fl_lattice_args *a, fl_var *dy, fl_var **d) {
    const bool create = fl_grad_enabled(), recorded = fl_no_grad(false);
    fl_var *x[2];
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok &= (x[i] = create && given[i]->requires_grad ? given[i] : fv_param(fv_value(given[i]))) != NULL;
    fl_var *y = ok ? fv__lattice_composed(op, x, of, a) : NULL;
    fl_tensor *possible = y ? fl_gt(fv_value(y), fl_num(FL__LATTICE_NEVER / 2)) : NULL;
    fl_var *each = possible ? fv_where(fv_const(possible), fv_mul(y, dy), fv_num(0)) : NULL;
    fl_var *root = fv_sum(each, FL_ALL_AXES);
    ok = root && fl_grads(FV_LIST(root), fv_list_of(2, x), d, .create_graph = create, .allow_unused = true);
    for (int i = 0; ok && i < 2; i++)
        if (!d[i]) ok = (d[i] = fv_const(fl_full_like(fv_value(x[i]), 0))) != NULL;
    fl_no_grad(recorded);
    return ok;
}

static bool fv__compose_lattice_grad(const fl_call *c, fl_tensor **d) {
    const int n = fl__lattice_operands(c->op);
    fl_var *x[] = {fv_const(c->in[0]), fv_const(c->in[1])}, *dy = fv_const(c->in[n + 1]), *g[2];
    const bool recorded = fl_no_grad(true);
    const bool ok = x[0] && x[1] && dy && fv__lattice_gradient(c->op, x, &c->in[2], c->args, dy, g);
    fl_no_grad(recorded);
    for (int i = 0; ok && i < 2; i++) d[i] = fv_value(g[i]);
    return ok;
}

static void fv__lattice_back(fl_node *n, fl_var *dy) {
    const fl_lattice_args a = *(const fl_lattice_args *)fv_args(n);
    const fl_op op = fv_op(n);
    const int count = fl__lattice_operands(op);
    fl_var *in[8], *d[2] = {NULL, NULL};
    fl_call c = {.op = op == fl_op_asg ? fl_op_asg_grad : fl_op_transducer_grad, .n_out = 2, .args = &a};
    for (; c.n_in < count + 1; c.n_in++) {
        if (!(in[c.n_in] = fv_saved(n, c.n_in))) return;
        c.in[c.n_in] = fv_value(in[c.n_in]);
    }
    c.in[c.n_in++] = fv_value(dy);
    if (fl_grad_enabled()) {
        if (!fv__lattice_gradient(op, in, &c.in[2], &a, dy, d)) return;
    } else {
        for (int i = 0; i < 2; i++)
            if (!(c.out[i] = fl_out_on(c.in[i]->family, fl_shape_of(c.in[i]), c.in[i]->dtype))) return;
        if (!fl_call_result(&c)) return;
        for (int i = 0; i < 2; i++) d[i] = fv_const(c.out[i]);
    }
    for (int i = 0; i < 2; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, d[i]);
}

static pthread_once_t fl__lattice_once = PTHREAD_ONCE_INIT;
static bool fl__lattice_known;

static void fl__lattice_register_all(void) {
    static const char contains[] = "gather index_select amax sub exp sum log add where concat stack";
    static const fl_op_info info[] = {
        {.name = "asg", .args_size = sizeof(fl_lattice_args), .contains = contains,
         .compose = fl__compose_lattice, .gradient = fv__lattice_back},
        {.name = "asg_grad", .args_size = sizeof(fl_lattice_args), .contains = contains,
         .compose = fv__compose_lattice_grad},
        {.name = "transducer", .args_size = sizeof(fl_lattice_args), .contains = contains,
         .compose = fl__compose_lattice, .gradient = fv__lattice_back},
        {.name = "transducer_grad", .args_size = sizeof(fl_lattice_args), .contains = contains,
         .compose = fv__compose_lattice_grad}};
    fl_op *const op[] = {&fl_op_asg, &fl_op_asg_grad, &fl_op_transducer, &fl_op_transducer_grad};
    fl_backend cpu = *fl_backend_at(fl_backend_index(fl_backend_cpu()->name));
    for (int i = 0; i < 4; i++)
        if ((*op[i] = fl_op_register(&info[i])) == FL_OP_NONE) return;
    fl__cpu_asg_slots(&cpu);
    fl__cpu_transducer_slots(&cpu);
    fl__lattice_known = fl_backend_use(&cpu, NULL);
#ifdef FL_USE_CUDA
    for (int i = 0; fl__lattice_known && fl_backend_cuda_of(i); i++) {
        fl_backend cuda = *fl_backend_at(fl_backend_index(fl_backend_cuda_of(i)->name));
        fl__cuda_lattice_slots(&cuda);
        fl__lattice_known = fl_backend_use(&cuda, NULL);
    }
#endif
}

FL_API bool fl_lattice_register(void) {
    pthread_once(&fl__lattice_once, fl__lattice_register_all);
    return fl__lattice_known;
}

/* ---- the joint ---- */

/* Log probabilities [n, t, u + 1, 2] of some frames. */
static fl_var *fv__joint_some(fl_var *a, fl_var *b, fl_var *weight, fl_var *bias, fl_tensor *labels,
                              int64_t blank) {
    fl_var *x = a && b ? fv_tanh(fv_add(fv_unsqueeze(a, 2), fv_unsqueeze(b, 1))) : NULL;
    if (!x || !(x = fv_linear(x, weight, bias))) return NULL;
    const int64_t *s = fv_value(x)->shape, u = labels->shape[1];
    fl_shape each = FL_SHAPE(s[0], s[1], u, 1);
    fl_tensor *next = fl_expand(fl_unsqueeze(fl_unsqueeze(labels, 1), 3), each);
    fl_var *norm = fv_logsumexp(x, FL_AXES_KEEP(3)), *own = fv_slice(x, 3, blank, blank + 1, 1);
    fl_var *label = next && norm ? fv_gather(fv_slice(x, 2, 0, u, 1), 3, next) : NULL;
    label = label ? fv_sub(label, fv_slice(norm, 2, 0, u, 1)) : NULL;
    fl_tensor *none = fl_new_full(fv_value(x), FL_SHAPE(s[0], s[1], 1, 1), 0);
    fl_var *labelled[] = {label, none ? fv_const(none) : NULL};
    fl_var *both[] = {fv_sub(own, norm), labelled[0] && labelled[1] ? fv_concat(labelled, 2, 2) : NULL};
    return both[0] && both[1] ? fv_concat(both, 2, 3) : NULL;
}

typedef struct fl__joint {
    int64_t blank, frames; /* at a time */
} fl__joint;

/* For each piece of the frames its graph is made again and run backward. */
static void fv__joint_back(fl_node *n, fl_var *dy) {
    const fl__joint j = *(const fl__joint *)fv_args(n);
    fl_var *x[5], *d[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < 5; i++)
        if (!(x[i] = fv_saved(n, i))) return;
    const int64_t frames = fv_value(x[0])->shape[1];
    const bool recorded = fl_no_grad(false);
    fl_tensor *whole = fl_full_like(fv_value(x[0]), 0);
    bool ok = whole != NULL;
    for (int i = 1; ok && i < 4; i++) ok = (d[i] = fv_const(fl_full_like(fv_value(x[i]), 0))) != NULL;
    for (int64_t t = 0; ok && t < frames; t += j.frames) {
        fl_scope s = fl_scope_begin();
        const int64_t end = t + j.frames < frames ? t + j.frames : frames;
        fl_var *p[4], *g[4];
        for (int i = 0; i < 4; i++)
            ok &= (p[i] = fv_param(i ? fv_value(x[i]) : fl_slice(fv_value(x[0]), 1, t, end, 1))) != NULL;
        fl_var *y = ok ? fv__joint_some(p[0], p[1], p[2], p[3], fv_value(x[4]), j.blank) : NULL;
        fl_var *part = fv_const(fl_slice(fv_value(dy), 1, t, end, 1));
        ok = y && part && fl_grads(FV_LIST(y), fv_list_of(4, p), g, .given = FV_LIST(part)) &&
             fl_assign(fl_slice(whole, 1, t, end, 1), fv_value(g[0]));
        for (int i = 1; ok && i < 4; i++)
            ok = fl_assign(fv_value(d[i]), fl_add(fv_value(d[i]), fv_value(g[i]))) != NULL;
        fl_scope_end(&s);
    }
    fl_no_grad(recorded);
    for (int i = 0; ok && i < 4; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, i ? d[i] : fv_const(whole));
}

static bool fl__joint_fits(const fl_tensor *a, const fl_tensor *b, const fl_tensor *w, const fl_tensor *bias,
                           const fl_tensor *target, int64_t blank) {
    const bool ok = a->ndim == 3 && b->ndim == 3 && w->ndim == 2 && bias->ndim == 1 && target->ndim == 2 &&
                    a->shape[1] > 0 && a->shape[0] == b->shape[0] && a->shape[2] == b->shape[2] &&
                    w->shape[1] == a->shape[2] && bias->shape[0] == w->shape[0] &&
                    target->shape[0] == a->shape[0] && target->shape[1] + 1 == b->shape[1] &&
                    target->dtype == FL_I64 && blank >= 0 && blank < w->shape[0];
    return ok ||
           fl_refuse("fv_transducer_joint: a %s, b %s, weight %s, bias %s, targets %s, blank %lld; want "
                     "[n, t > 0, h], [n, u + 1, h], [c, h], [c], i64 [n, u]",
                     FL_SHAPE_TEXT(a), FL_SHAPE_TEXT(b), FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(bias),
                     FL_SHAPE_TEXT(target), (long long)blank);
}

FL_API fl_var *fv_transducer_joint_opt(fl_var *a, fl_var *b, fl_var *weight, fl_var *bias, fl_tensor *target,
                                       fl_lattice_opts o) {
    const char *fn = "fv_transducer_joint";
    if (fl_absent(fn, a) || fl_absent(fn, b) || fl_absent(fn, weight) || fl_absent(fn, bias) ||
        fl_absent(fn, target)) return NULL;
    const fl_tensor *x = fv_value(a), *w = fv_value(weight);
    const int64_t blank = o.blank ? fl_option_int(o.blank, 0) : w->shape[0] - 1;
    if (!fl__joint_fits(x, fv_value(b), w, fv_value(bias), target, blank)) return NULL;
    const int64_t most = fl_option_int(o.cells, 4096), row = x->shape[0] * (target->shape[1] + 1);
    const fl__joint j = {blank, most > row ? most / row : 1};
    fl_scope s = fl_scope_begin();
    fl_tensor *labels = fl_contiguous(fl_maximum(target, fl_int(0)));
    fl_tensor *y =
        labels ? fl_new_full(x, FL_SHAPE(x->shape[0], x->shape[1], target->shape[1] + 1, 2), 0) : NULL;
    const bool recorded = fl_no_grad(true);
    for (int64_t t = 0; y && t < x->shape[1]; t += j.frames) {
        fl_scope piece = fl_scope_begin();
        const int64_t end = t + j.frames < x->shape[1] ? t + j.frames : x->shape[1];
        fl_var *some = fv__joint_some(fv_slice(a, 1, t, end, 1), b, weight, bias, labels, j.blank);
        if (!some || !fl_assign(fl_slice(y, 1, t, end, 1), fv_value(some))) y = NULL;
        fl_scope_end(&piece);
    }
    fl_no_grad(recorded);
    fl_var *kept = y ? fv_const(labels) : NULL;
    return fv_scope_return(&s, kept ? fv_record_args("transducer_joint", y, fv__joint_back,
                                                     FV_IN(a, b, weight, bias),
                                                     FV_SAVE(a, b, weight, bias, kept), &j, sizeof j)
                                    : NULL);
}

#undef FL__LATTICE_NEVER
#endif
#endif
#else /* the text: see expand.h */

/* Row t of a [n, s] lattice by the two ways into each place: from itself, and from the one before. */
static FL_T *FL_W(_lattice_ways)(FL_T *stay, FL_T *move) {
    if (!stay || !move) return NULL;
    fl_tensor *edge = fl_slice(FL_VALUE(stay), 1, 0, 1, 1);
    edge = edge ? fl_full_like(edge, FL__LATTICE_NEVER) : NULL;
    FL_T *moved[] = {edge ? FL_OF(edge) : NULL, move};
    FL_T *ways[] = {stay, moved[0] ? FL_W(concat)(moved, 2, 1) : NULL};
    return ways[1] ? FL_W(logsumexp)(FL_W(stack)(ways, 2, 0), FL_AXES(0)) : NULL;
}

/* [n, c]: the sums over all paths to each token after the last frame */
static FL_T *FL_W(_asg_full_row)(FL_T *x, FL_T *w, fl_tensor *left) {
    FL_T *a = FL_W(select)(x, 0, 0);
    for (int64_t t = 1; a && t < FL_VALUE(x)->shape[0]; t++) {
        fl_scope s = fl_scope_begin();
        FL_T *ways = ADD(FL_W(unsqueeze)(a, 1), w);
        FL_T *next = ways ? ADD(FL_W(logsumexp)(ways, FL_AXES(2)), FL_W(select)(x, 0, t)) : NULL;
        a = FL_GIVE(&s, next ? SELECT(FL_OF(fl_gt(left, fl_int(t))), next, a) : NULL);
    }
    return a;
}

/* [n, l]: the same over those that have come to each place of the target */
static FL_T *FL_W(_asg_forced_row)(FL_T *x, FL_T *w, fl_tensor *labels, fl_tensor *left) {
    const int64_t t_all = FL_VALUE(x)->shape[0], c = FL_VALUE(w)->shape[0], n = labels->shape[0],
                  l = labels->shape[1];
    fl_tensor *before = fl_slice(labels, 1, 0, l - 1, 1), *after = fl_slice(labels, 1, 1, l, 1);
    fl_tensor *on = before && after ? fl_add(fl_mul(after, fl_int(c)), before) : NULL;
    fl_tensor *self = fl_mul(labels, fl_int(c + 1));
    FL_T *flat = FL_W(reshape)(w, FL_SHAPE(c * c));
    FL_T *e = FL_W(gather)(x, 2, fl_expand(labels, FL_SHAPE(t_all, n, l)));
    if (!on || !self || !flat || !e) return NULL;
    FL_T *stay =
        FL_W(reshape)(FL_W(index_select)(flat, 0, fl_reshape(self, FL_SHAPE(n * l))), FL_SHAPE(n, l));
    FL_T *move = FL_W(reshape)(FL_W(index_select)(flat, 0, fl_reshape(on, FL_SHAPE(n * (l - 1)))),
                               FL_SHAPE(n, l - 1));
    fl_tensor *never = fl_full_like(fl_select(FL_VALUE(e), 0, 0), FL__LATTICE_NEVER);
    FL_T *start[] = {FL_W(slice)(FL_W(select)(e, 0, 0), 1, 0, 1, 1), FL_OF(fl_slice(never, 1, 1, l, 1))};
    FL_T *a = start[0] && start[1] ? FL_W(concat)(start, 2, 1) : NULL;
    for (int64_t t = 1; a && stay && move && t < t_all; t++) {
        fl_scope s = fl_scope_begin();
        FL_T *next = FL_W(_lattice_ways)(ADD(a, stay), ADD(FL_W(slice)(a, 1, 0, l - 1, 1), move));
        next = next ? ADD(next, FL_W(select)(e, 0, t)) : NULL;
        a = FL_GIVE(&s, next ? SELECT(FL_OF(fl_gt(left, fl_int(t))), next, a) : NULL);
    }
    return a;
}

/* of: target, steps, lengths */
static FL_T *FL_W(_asg_composed)(FL_T *x, FL_T *w, fl_tensor *const *of, bool full) {
    const int64_t n = FL_VALUE(x)->shape[1], l = of[0]->shape[1];
    fl_tensor *left = fl_unsqueeze(of[1], 1);
    if (!left || !(x = MAX(x, CONST(FL__LATTICE_NEVER))) || !(w = MAX(w, CONST(FL__LATTICE_NEVER))))
        return NULL;
    if (full) {
        FL_T *row = FL_W(_asg_full_row)(x, w, left);
        return row ? FL_W(logsumexp)(row, FL_AXES(1)) : NULL;
    }
    fl_tensor *never = fl_new_full(FL_VALUE(x), FL_SHAPE(n), FL__LATTICE_NEVER);
    fl_tensor *labels = l ? fl__lattice_labels(of[0], of[2], 0) : NULL;
    if (!l || !labels) return l || !never ? NULL : FL_OF(never);
    FL_T *row = FL_W(_asg_forced_row)(x, w, labels, left);
    fl_tensor *last = fl_maximum(fl_sub(fl_unsqueeze(of[2], 1), fl_int(1)), fl_int(0));
    FL_T *end = row && last ? FL_W(squeeze)(FL_W(gather)(row, 1, last), 1) : NULL;
    return end ? SELECT(FL_OF(fl_gt(of[2], fl_int(0))), end, FL_OF(never)) : NULL;
}

/* x [n, t, s] at times d - place, which are cut to 0 ... t - 1: a diagonal, [n, s] */
static FL_T *FL_W(_lattice_diagonal)(FL_T *x, int64_t d) {
    const int64_t n = FL_VALUE(x)->shape[0], t = FL_VALUE(x)->shape[1], s = FL_VALUE(x)->shape[2];
    fl_tensor *at = fl_sub(fl_int(d), fl_arange(0, (double)s, 1, FL_I64));
    at = at ? fl_minimum(fl_maximum(at, fl_int(0)), fl_int(t - 1)) : NULL;
    at = at ? fl_to(fl_expand(at, FL_SHAPE(n, 1, s)), fl_backend_name(FL_VALUE(x))) : NULL;
    return at ? FL_W(squeeze)(FL_W(gather)(x, 1, at), 1) : NULL;
}

/* Diagonal d holds the cells (d - place, place). of: steps, lengths */
static FL_T *FL_W(_transducer_composed)(FL_T *blank, FL_T *label, fl_tensor *const *of) {
    const int64_t n = FL_VALUE(blank)->shape[0], t = FL_VALUE(blank)->shape[1], s = FL_VALUE(blank)->shape[2];
    blank = MAX(blank, CONST(FL__LATTICE_NEVER)), label = MAX(label, CONST(FL__LATTICE_NEVER));
    fl_tensor *last = fl_unsqueeze(fl_sub(of[0], fl_int(1)), 1), *place = fl_arange(0, (double)s, 1, FL_I64);
    fl_tensor *end = last ? fl_add(last, fl_unsqueeze(of[1], 1)) : NULL;
    fl_tensor *never = blank ? fl_new_full(FL_VALUE(blank), FL_SHAPE(n, s), FL__LATTICE_NEVER) : NULL;
    fl_tensor *zero = never ? fl_new_full(never, FL_SHAPE(n, 1), 0) : NULL;
    fl_tensor *parts[] = {zero, zero ? fl_slice(never, 1, 1, s, 1) : NULL};
    if (!label || !end || !place || !parts[1]) return NULL;
    FL_T *a = FL_OF(fl_concat(parts, 2, 1));
    for (int64_t d = 1; a && d < t + s - 1; d++) {
        fl_scope scope = fl_scope_begin();
        FL_T *b = FL_W(_lattice_diagonal)(blank, d - 1);
        FL_T *l = s > 1 ? FL_W(_lattice_diagonal)(label, d - 1) : label;
        if (s == 1 && l) l = FL_W(select)(l, 1, 0);
        fl_tensor *time = fl_sub(fl_int(d), place); /* of each cell of this diagonal */
        fl_tensor *inside = time ? fl_logical_and(fl_ge(time, fl_int(0)), fl_lt(time, fl_int(t))) : NULL;
        fl_tensor *later = time ? fl_gt(time, fl_int(0)) : NULL;
        FL_T *stay = later && b ? SELECT(FL_OF(fl_to(later, fl_backend_name(never))), ADD(a, b), FL_OF(never))
                                : NULL;
        FL_T *next = l ? FL_W(_lattice_ways)(stay, ADD(FL_W(slice)(a, 1, 0, s - 1, 1), l)) : NULL;
        next =
            next && inside ? SELECT(FL_OF(fl_to(inside, fl_backend_name(never))), next, FL_OF(never)) : NULL;
        a = FL_GIVE(&scope, next ? SELECT(FL_OF(fl_ge(end, fl_int(d))), next, a) : NULL);
    }
    fl_tensor *at = fl_unsqueeze(of[1], 1);
    fl_tensor *row = fl_expand(fl_unsqueeze(last, 2), FL_SHAPE(n, 1, s));
    FL_T *end_row = row ? FL_W(squeeze)(FL_W(gather)(blank, 1, row), 1) : NULL;
    FL_T *total = a && end_row && at ? ADD(FL_W(gather)(a, 1, at), FL_W(gather)(end_row, 1, at)) : NULL;
    return total ? FL_W(squeeze)(total, 1) : NULL;
}

static FL_T *FL_W(_lattice_composed)(fl_op op, FL_T *const *x, fl_tensor *const *of,
                                     const fl_lattice_args *a) {
    fl_scope s = fl_scope_begin();
    FL_T *v[] = {FL_W(_widened)(x[0]), FL_W(_widened)(x[1])}, *y = NULL;
    if (v[0] && v[1])
        y = fl__lattice_operands(op) == 5 ? FL_W(_asg_composed)(v[0], v[1], of, a->full)
                                          : FL_W(_transducer_composed)(v[0], v[1], of);
    return FL_GIVE(&s, y);
}

/* One record of them. of: the integers */
static FL_T *FL_W(_lattice)(fl_op op, FL_T *x0, FL_T *x1, fl_tensor *const *of, fl_lattice_args a) {
    fl_tensor *t = FL_VALUE(x0);
    const int count = fl__lattice_operands(op);
    const int64_t n = count == 5 ? t->shape[1] : t->shape[0];
    fl_call c = {.op = op, .n_out = 1, .n_in = count, .in = {t, FL_VALUE(x1)}, .args = &a};
    for (int i = 2; i < count; i++) c.in[i] = of[i - 2];
    c.out[0] = fl_out_on(t->family, FL_SHAPE(n), fl_dtype_wide(t->dtype));
    fl_tensor *y = c.out[0] ? fl_call_result(&c) : fl_raise();
#ifdef FL_ON_TENSORS
    return y;
#else
    fl_var *saved[8] = {x0, x1};
    for (int i = 2; y && i < count; i++)
        if (!(saved[i] = fv_const(of[i - 2]))) return NULL;
    saved[count] = FV_OUT;
    return fv_record_opt(y, &(fv_record_opts){
                                .op = op, .in = FV_IN(x0, x1), .saved = {count + 1, saved}, .args = &a});
#endif
}

#ifdef FL_ON_TENSORS
static bool fl__lattice_counts(const char *fn, const fl_tensor *t, int64_t n) {
    return (t->ndim == 1 && t->dtype == FL_I64 && t->shape[0] == n) ||
           fl_refuse("%s: steps or lengths are %s %s, not i64 [%lld]", fn, fl_dtype_name(t->dtype),
                     FL_SHAPE_TEXT(t), (long long)n);
}

static bool fl__asg_fits(const char *fn, const fl_tensor *x, const fl_tensor *w, const fl_tensor *target,
                         const fl_tensor *steps, const fl_tensor *lengths) {
    if (x->ndim != 3 || x->shape[0] < 1 || !fl_dtype_is_float(x->dtype) || w->dtype != x->dtype ||
        w->ndim != 2 || w->shape[0] != x->shape[2] || w->shape[1] != x->shape[2])
        return fl_refuse("%s: scores %s %s, transitions %s %s; want floats [t > 0, n, c] and [c, c]", fn,
                         fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_dtype_name(w->dtype),
                         FL_SHAPE_TEXT(w));
    if (target && (target->ndim != 2 || target->dtype != FL_I64 || target->shape[0] != x->shape[1]))
        return fl_refuse("%s: targets %s %s, not i64 [%lld, l]", fn, fl_dtype_name(target->dtype),
                         FL_SHAPE_TEXT(target), (long long)x->shape[1]);
    return fl__lattice_counts(fn, steps, x->shape[1]) && fl__lattice_counts(fn, lengths, x->shape[1]);
}
#endif

FL_T *FL_W(asg_full)(FL_T *x, FL_T *w, fl_tensor *steps) {
    if (FL_ABSENT("asg_full", x) || FL_ABSENT("asg_full", w) || FL_ABSENT("asg_full", steps) ||
        !fl__asg_fits("fl_asg_full", FL_VALUE(x), FL_VALUE(w), NULL, steps, steps)) return NULL;
    if (!fl_lattice_register()) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *of[] = {fl_to(fl_zeros(FL_SHAPE(steps->shape[0], 0), FL_I64), fl_backend_name(steps)), steps,
                       steps};
    return FL_GIVE(&s, of[0] ? FL_W(_lattice)(fl_op_asg, x, w, of, (fl_lattice_args){true}) : NULL);
}

FL_T *FL_W(asg_forced)(FL_T *x, FL_T *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths) {
    if (FL_ABSENT("asg_forced", x) || FL_ABSENT("asg_forced", w) || FL_ABSENT("asg_forced", target) ||
        FL_ABSENT("asg_forced", steps) || FL_ABSENT("asg_forced", lengths) ||
        !fl__asg_fits("fl_asg_forced", FL_VALUE(x), FL_VALUE(w), target, steps, lengths)) return NULL;
    if (!fl_lattice_register()) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *of[] = {target, steps, lengths};
    return FL_GIVE(&s, FL_W(_lattice)(fl_op_asg, x, w, of, (fl_lattice_args){false}));
}

/* Losses of sums of logarithms of which those below half of never are impossible. */
static FL_T *FL_W(_lattice_reduced)(FL_T *total, FL_T *loss, const fl_lattice_opts *o) {
    if (!total || !loss) return NULL;
    FL_T *impossible = LT(total, CONST(FL__LATTICE_NEVER / 2));
    loss = SELECT(impossible, CONST(o->zero_infinity ? 0 : INFINITY), loss);
    if (o->reduction == FL_MEAN) loss = FL_W(mean)(loss, FL_ALL_AXES);
    if (o->reduction == FL_SUM) loss = FL_W(sum)(loss, FL_ALL_AXES);
    return loss;
}

FL_T *FL_W(asg_loss_opt)(FL_T *x, FL_T *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                         fl_lattice_opts o) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, w};
    if (!FL_AUTOCAST(fl_op_cross_entropy, in, 2)) return FL_GIVE(&s, NULL);
    FL_T *forced = FL_W(asg_forced)(in[0], in[1], target, steps, lengths);
    FL_T *full = forced ? FL_W(asg_full)(in[0], in[1], steps) : NULL;
    FL_T *loss = full ? SUB(full, forced) : NULL;
    return FL_GIVE(&s, loss ? FL_W(_lattice_reduced)(forced, loss, &o) : NULL);
}

FL_T *FL_W(transducer_joint_loss)(FL_T *joint, fl_tensor *steps, fl_tensor *lengths, fl_lattice_opts o) {
    const char *fn = "fl_transducer_joint_loss";
    if (fl_absent(fn, joint) || fl_absent(fn, steps) || fl_absent(fn, lengths)) return NULL;
    const fl_tensor *t = FL_VALUE(joint);
    if (t->ndim != 4 || t->shape[1] < 1 || t->shape[2] < 1 || t->shape[3] != 2 ||
        !fl_dtype_is_float(t->dtype)) {
        fl_refuse("%s: %s of shape %s, not floats [n, t > 0, u + 1, 2]", fn, fl_dtype_name(t->dtype),
                  FL_SHAPE_TEXT(t));
        return NULL;
    }
    if (!fl__lattice_counts(fn, steps, t->shape[0]) || !fl__lattice_counts(fn, lengths, t->shape[0]))
        return NULL;
    if (!fl_lattice_register()) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *of[] = {steps, lengths};
    FL_T *blank = FL_W(select)(joint, 3, 0);
    FL_T *label = FL_W(slice)(FL_W(select)(joint, 3, 1), 2, 0, t->shape[2] - 1, 1);
    FL_T *total =
        blank && label ? FL_W(_lattice)(fl_op_transducer, blank, label, of, (fl_lattice_args){false}) : NULL;
    return FL_GIVE(&s, total ? FL_W(_lattice_reduced)(total, NEG(total), &o) : NULL);
}

FL_T *FL_W(transducer_loss_opt)(FL_T *x, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                                fl_lattice_opts o) {
    const char *fn = "fl_transducer_loss";
    if (fl_absent(fn, x) || fl_absent(fn, target) || fl_absent(fn, lengths)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    const int64_t blank = o.blank || t->ndim != 4 ? fl_option_int(o.blank, 0) : t->shape[3] - 1;
    if (t->ndim != 4 || target->ndim != 2 || target->dtype != FL_I64 || target->shape[0] != t->shape[0] ||
        target->shape[1] + 1 != t->shape[2] || blank < 0 || blank >= t->shape[3]) {
        fl_refuse("%s: scores %s, targets %s, blank %lld; want [n, t, u + 1, c] and i64 [n, u]", fn,
                  FL_SHAPE_TEXT(t), FL_SHAPE_TEXT(target), (long long)blank);
        return NULL;
    }
    fl_scope s = fl_scope_begin();
    const int64_t n = t->shape[0], u = target->shape[1];
    fl_tensor *labels = fl__lattice_labels(target, lengths, 0);
    labels =
        labels ? fl_expand(fl_unsqueeze(fl_unsqueeze(labels, 1), 3), FL_SHAPE(n, t->shape[1], u, 1)) : NULL;
    FL_T *p = labels ? FL_W(log_softmax)(x, 3) : NULL;
    fl_tensor *none = p ? fl_new_full(FL_VALUE(p), FL_SHAPE(n, t->shape[1], 1, 1), 0) : NULL;
    FL_T *label[] = {none ? FL_W(gather)(FL_W(slice)(p, 2, 0, u, 1), 3, labels) : NULL,
                     none ? FL_OF(none) : NULL};
    FL_T *both[] = {none ? FL_W(slice)(p, 3, blank, blank + 1, 1) : NULL,
                    label[0] && label[1] ? FL_W(concat)(label, 2, 2) : NULL};
    FL_T *joint = both[0] && both[1] ? FL_W(concat)(both, 2, 3) : NULL;
    return FL_GIVE(&s, joint ? FL_W(transducer_joint_loss)(joint, steps, lengths, o) : NULL);
}

#endif
/* MIT licence: see LICENSE. */
