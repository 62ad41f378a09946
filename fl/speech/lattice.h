/* fl/speech/lattice.h - ASG and transducer losses: log-sum over lattice paths as ops

   asg         sum over paths of one token per frame of e[0, p0] + sum over t of e[t, pt] + w[pt, pt-1]: all
   paths,
               or those that spell a target, each token lasting one or more frames
   transducer  sum over monotone paths through [t, u + 1]: a blank advances t, a label advances u; the last
   step
               is a blank at (t - 1, u) (arXiv 1211.3711)

   Operands (args: fl_lattice_args), of one float dtype except i64 target [n, l], steps [n] and lengths [n]:
     asg         e [t, n, c], w [c (to), c (from)], target, steps, lengths -> [n]
     transducer  blanks [n, t, u + 1], labels [n, t, u], steps, lengths -> [n]; log probabilities
     ..._grad    the same, the result, dy [n] -> gradients of the two floats, 0 if there is no path
   log 0 is represented by -1e30, so that gradients of any order are finite. */
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
    bool full; /* asg: all paths; ignores target and lengths */
} fl_lattice_args;
typedef struct fl_lattice_opts {
    fl_opts_guard guard_;
    int64_t blank;          /* transducer: index of the blank; 0 -> the last class, FL_I0 -> 0 */
    fl_reduction reduction; /* FL_MEAN: over the batch */
    bool zero_infinity;     /* losses of targets that do not fit are 0, not inf */
    int64_t cells;          /* fv_transducer_joint: lattice cells computed at a time, 0 -> 4096 */
    char _end;
} fl_lattice_opts;
/* The two terms of ASG (Collobert et al., arXiv 1609.03193): the log-sum over all paths through scores
   x [t, n, c], and over paths that spell the targets; about -1e30 if none. */
FL_API fl_tensor *fl_asg_full(fl_tensor *x, fl_tensor *w, fl_tensor *steps);
FL_API fl_var *fv_asg_full(fl_var *x, fl_var *w, fl_tensor *steps);
FL_API fl_tensor *fl_asg_forced(fl_tensor *x, fl_tensor *w, fl_tensor *target, fl_tensor *steps,
                                fl_tensor *lengths);
FL_API fl_var *fv_asg_forced(fl_var *x, fl_var *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths);
/* ASG loss: fl_asg_full - fl_asg_forced. */
#define fl_asg_loss(...) FL__LATTICE(fl_asg_loss, __VA_ARGS__, ._end = 0)
#define fv_asg_loss(...) FL__LATTICE(fv_asg_loss, __VA_ARGS__, ._end = 0)
#define FL__LATTICE(fn, x, w, target, steps, lengths, ...) \
    fn##_opt(x, w, target, steps, lengths, FL_LITERAL(fl_lattice_opts, __VA_ARGS__))
FL_API fl_tensor *fl_asg_loss_opt(fl_tensor *x, fl_tensor *w, fl_tensor *target, fl_tensor *steps,
                                  fl_tensor *lengths, fl_lattice_opts o);
FL_API fl_var *fv_asg_loss_opt(fl_var *x, fl_var *w, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                               fl_lattice_opts o);
/* Transducer loss -log P(target) of logits x [n, t, u + 1, c], as torchaudio.functional.rnnt_loss; targets
   [n, u]. */
#define fl_transducer_loss(...) FL__TRANSDUCER(fl_, __VA_ARGS__, ._end = 0)
#define fv_transducer_loss(...) FL__TRANSDUCER(fv_, __VA_ARGS__, ._end = 0)
#define FL__TRANSDUCER(p, x, target, steps, lengths, ...) \
    p##transducer_loss_opt(x, target, steps, lengths, FL_LITERAL(fl_lattice_opts, __VA_ARGS__))
FL_API fl_tensor *fl_transducer_loss_opt(fl_tensor *x, fl_tensor *target, fl_tensor *steps,
                                         fl_tensor *lengths, fl_lattice_opts o);
FL_API fl_var *fv_transducer_loss_opt(fl_var *x, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                                      fl_lattice_opts o);
/* Fused joint network of a transducer: with logits x = tanh(a[n, t] + b[n, u]) weight^T + bias for a [n, t,
   h], b [n, u + 1, h], weight [c, h], bias [c], returns the log probabilities of the blank and of the next
   label, [n, t, u + 1, 2] (0 for a label after the last). x is computed for a few frames at a time, forward
   and backward, and never materialised as a whole. */
#define fv_transducer_joint(...) FL__JOINT(__VA_ARGS__, ._end = 0)
#define FL__JOINT(a, b, weight, bias, target, ...) \
    fv_transducer_joint_opt(a, b, weight, bias, target, FL_LITERAL(fl_lattice_opts, __VA_ARGS__))
FL_API fl_var *fv_transducer_joint_opt(fl_var *a, fl_var *b, fl_var *weight, fl_var *bias, fl_tensor *target,
                                       fl_lattice_opts o);
/* Transducer loss of the log probabilities [n, t, u + 1, 2] from fv_transducer_joint. */
FL_API fl_tensor *fl_transducer_joint_loss(fl_tensor *joint, fl_tensor *steps, fl_tensor *lengths,
                                           fl_lattice_opts o);
FL_API fl_var *fv_transducer_joint_loss(fl_var *joint, fl_tensor *steps, fl_tensor *lengths,
                                        fl_lattice_opts o);

FL_DATA fl_op fl_op_asg, fl_op_asg_grad, fl_op_transducer, fl_op_transducer_grad;
/* Registers the ops and their kernels once; called by the functions above. */
FL_API bool fl_lattice_register(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_LATTICE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_LATTICE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_LATTICE_IMPL
#define FL_SPEECH_LATTICE_IMPL
#include "../../fl_backend.h"
#include "../../kernels/speech/asg.h"
#include "../../kernels/speech/transducer.h"
#if defined(FL_USE_CUDA) && __has_include("../../kernels/cuda/lattice.h")
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

/* Number of operands of the forward op: two floats, then the integers. */
static int fl__lattice_operands(fl_op op) {
    return op == fl_op_asg || op == fl_op_asg_grad ? 5 : 4;
}

/* target where a position is inside the sequence, `fill` elsewhere. */
static fl_tensor *fl__lattice_labels(fl_tensor *target, fl_tensor *lengths, int64_t fill) {
    fl_tensor *place = fl_new_arange(target, 0, (double)target->shape[1], 1, FL_I64);
    fl_tensor *inside = fl_lt(place, fl_unsqueeze(lengths, 1));
    return inside ? fl_where(inside, target, fl_int(fill)) : NULL;
}

#define FL_EXPAND_FILE "../speech/lattice.inc"
#include "../ops/expand.h"

static bool fl__compose_lattice(const fl_call *c, fl_tensor **y) {
    y[0] = fl__lattice_composed(c->op, c->in, &c->in[2], c->args);
    return y[0] != NULL;
}

/* dy times the derivatives by both float operands, by differentiating the composition. */
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
            if (!(c.out[i] = fl_out_on(c.in[i]->backend, fl_shape_of(c.in[i]), c.in[i]->dtype))) return;
        if (!fl_call_result(&c)) return;
        for (int i = 0; i < 2; i++) d[i] = fv_const(c.out[i]);
    }
    for (int i = 0; i < 2; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, d[i]);
}

static pthread_once_t fl__lattice_once = PTHREAD_ONCE_INIT;
static bool fl__lattice_known;

static void fl__lattice_register_all(void) {
    static const char uses[] = "gather scatter_add amax sub exp sum log add mul where concat maximum "
                                   "minimum iota lt gt ge eq abs logical_and grad2";
    fl_backend cpu = *fl_backend_at(fl_backend_index(fl_backend_cpu()->name));
    FL__REGISTER(asg, .args_size = sizeof(fl_lattice_args), .uses = uses,
                 .compose = fl__compose_lattice, .gradient = fv__lattice_back);
    if (fl_op_asg == FL_OP_NONE) return;
    FL__REGISTER(asg_grad, .args_size = sizeof(fl_lattice_args), .uses = uses,
                 .compose = fv__compose_lattice_grad);
    if (fl_op_asg_grad == FL_OP_NONE) return;
    FL__REGISTER(transducer, .args_size = sizeof(fl_lattice_args), .uses = uses,
                 .compose = fl__compose_lattice, .gradient = fv__lattice_back);
    if (fl_op_transducer == FL_OP_NONE) return;
    FL__REGISTER(transducer_grad, .args_size = sizeof(fl_lattice_args), .uses = uses,
                 .compose = fv__compose_lattice_grad);
    if (fl_op_transducer_grad == FL_OP_NONE) return;
    fl__cpu_asg_slots(&cpu);
    fl__cpu_transducer_slots(&cpu);
    fl__lattice_known = fl_backend_use(&cpu, NULL);
#ifdef FL_CUDA_LATTICE_H
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

/* Log probabilities [n, t, u + 1, 2] of a few frames. */
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
    int64_t blank, frames; /* frames computed at a time */
} fl__joint;

/* Recomputes the graph of each group of frames, and differentiates it. */
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
           fl_err_false("fv_transducer_joint: got a %s, b %s, weight %s, bias %s, targets %s, blank %lld; "
                        "expected [n, t > 0, h], [n, u + 1, h], [c, h], [c], i64 [n, u], a class",
                        FL_SHAPE_TEXT(a), FL_SHAPE_TEXT(b), FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(bias),
                        FL_SHAPE_TEXT(target), (long long)blank);
}

FL_API fl_var *fv_transducer_joint_opt(fl_var *a, fl_var *b, fl_var *weight, fl_var *bias, fl_tensor *target,
                                       fl_lattice_opts o) {
    const char *fn = "fv_transducer_joint";
    if (fl_is_null_arg(fn, a) || fl_is_null_arg(fn, b) || fl_is_null_arg(fn, weight) ||
        fl_is_null_arg(fn, bias) || fl_is_null_arg(fn, target)) return NULL;
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
/* MIT licence: see LICENSE. */
