/* fl/ops/ctc.h - the loss of connectionist temporal classification

   -log P(target), P summed over all alignments of the target's labels with the steps. The forward pass
   runs in log space over blank, label 1, blank, label 2, ... blank, a step for each time for the whole
   batch. FL__NEVER stands for log 0: its sums stay finite, so gradients of any order do.

   Records (fl_ctc_args); of logp's dtype, any float, is its gradient, all else f32 or f64.
     ctc       logp [t, n, c], i64: target [n, l], steps [n], lengths [n] -> log P(target) [n], about
               -1e30 where no alignment gives it
     ctc_grad  the same, that, dy [n] -> dlogp [t, n, c], 0 for such targets */
#ifndef FL_T
#include "loss.h"
#ifndef FL_OPS_CTC_H
#define FL_OPS_CTC_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_ctc_args {
    int64_t blank; /* its class */
} fl_ctc_args;

typedef struct fl_ctc_loss_opts {
    fl_named _positional;
    int64_t blank;          /* its class */
    fl_reduction reduction; /* FL_MEAN: each loss by its target's length, then over the batch */
    bool zero_infinity;     /* 0 instead of inf for targets that no alignment gives */
    char _end;
} fl_ctc_loss_opts;
/* -log P(target), summed over all alignments: log probabilities [t, n, c]; i64: target [n, l], and
   of each sequence the steps (beyond t: t) and the target's length, [n]. Gradient of inf: 0. That of
   PyTorch holds a log softmax's before it. */
#define fl_ctc_loss(...) FL__CTC_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_ctc_loss(...) FL__CTC_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__CTC_LOSS(p, logp, target, steps, lengths, ...) \
    p##ctc_loss_opt(logp, target, steps, lengths, (fl_ctc_loss_opts){__VA_ARGS__})
FL_API fl_tensor *fl_ctc_loss_opt(fl_tensor *logp, fl_tensor *target, fl_tensor *steps,
                                  fl_tensor *lengths, fl_ctc_loss_opts o);
FL_API fl_var *fv_ctc_loss_opt(fl_var *logp, fl_tensor *target, fl_tensor *steps,
                               fl_tensor *lengths, fl_ctc_loss_opts o);

FL_DATA fl_op fl_op_ctc, fl_op_ctc_grad;
FL_PRIVATE void fl__register_ctc(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_CTC_H */

#if defined(FL_IMPL_ONLY_OPS_CTC) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_CTC_IMPL
#define FL_OPS_CTC_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#define FL__NEVER (-1e30)
#define FL_TEXT "ctc.h"
#include "expand.h"
#undef FL__NEVER

FL_DATA_DEFINED fl_op fl_op_ctc, fl_op_ctc_grad;

FL_PRIVATE void fl__register_ctc(void) {
    static const fl_op_info ctc = {.name = "ctc",
                                   .args_size = sizeof(fl_ctc_args),
                                   .contains = "gather amax sub exp sum log add where",
                                   .compose = fl__compose_ctc,
                                   .gradient = fv__ctc_back},
                            ctc_grad = {.name = "ctc_grad",
                                        .args_size = sizeof(fl_ctc_args),
                                        .contains =
                                            "gather scatter_add amax sub exp sum log add mul where",
                                        .compose = fv__compose_ctc_grad};
    fl_op_ctc = fl_op_register(&ctc);
    fl_op_ctc_grad = fl_op_register(&ctc_grad);
}

#endif /* FL_OPS_CTC_IMPL */
#endif
#else /* the text: see expand.h */

/* x [n, s] moved to the right along axis 1, `fill` on the left */
static FL_T *FL_W(_shifted)(FL_T *x, int64_t by, double fill) {
    if (!x) return NULL;
    int64_t size = FL_VALUE(x)->shape[1], rest = size > by ? size - by : 0;
    fl_tensor *edge = fl_slice(FL_VALUE(x), 1, 0, size - rest, 1);
    if (!edge || !(edge = fl_full_like(edge, fill))) return NULL;
    FL_T *parts[] = {FL_OF(edge), FL_W(slice)(x, 1, 0, rest, 1)};
    return parts[0] && parts[1] ? FL_W(concat)(parts, 2, 1) : NULL;
}

#ifdef FL_ON_TENSORS
/* blank, label 1, blank, ... [n, 2 l + 1]; blanks past a target's end */
static fl_tensor *fl__ctc_labels(fl_tensor *target, fl_tensor *lengths, int64_t blank) {
    int64_t n = target->shape[0], l = target->shape[1];
    fl_tensor *place = fl_to(fl_arange(0, (double)l, 1, FL_I64), fl_backend_name(target));
    fl_tensor *inside = LT(place, fl_unsqueeze(lengths, 1));
    fl_tensor *label = SELECT(inside, target, fl_int(blank));
    fl_tensor *pair[] = {fl_full_like(target, (double)blank), label};
    if (!pair[0] || !label) return NULL;
    fl_tensor *both = fl_reshape(fl_stack(pair, 2, -1), FL_SHAPE(n, 2 * l));
    fl_tensor *parts[] = {both, fl_full_like(fl_unsqueeze(lengths, 1), (double)blank)};
    return both && parts[1] ? fl_concat(parts, 2, 1) : NULL;
}

static bool fl__ctc_fits(const fl_tensor *x, const fl_tensor *target, const fl_tensor *steps,
                         const fl_tensor *lengths, int64_t blank) {
    bool ok = x->ndim == 3 && x->shape[0] > 0 && target->ndim == 2 && steps->ndim == 1 &&
              lengths->ndim == 1 && target->shape[0] == x->shape[1] &&
              fl_same_shape(steps, lengths) && steps->shape[0] == x->shape[1] &&
              target->dtype == FL_I64 && steps->dtype == FL_I64 && lengths->dtype == FL_I64;
    if (!ok)
        return fl_refuse("fl_ctc_loss: input %s, target %s, lengths %s and %s; want [t > 0, n, c] and "
                         "i64 [n, l], [n], [n]",
                         FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(target), FL_SHAPE_TEXT(steps),
                         FL_SHAPE_TEXT(lengths));
    return (blank >= 0 && blank < x->shape[2]) ||
           fl_refuse("fl_ctc_loss: blank %lld of %lld classes", (long long)blank,
                     (long long)x->shape[2]);
}
#endif

/* Log probability of each place after all steps, [n, s], of emitted [t, n, s]. */
static FL_T *FL_W(_ctc_forward)(FL_T *emitted, fl_tensor *labels, fl_tensor *steps, int64_t blank) {
    fl_tensor *skips = fl_ne(labels, fl__shifted(labels, 2, (double)blank));
    fl_tensor *never = fl_select(FL_VALUE(emitted), 0, 0), *left = fl_unsqueeze(steps, 1);
    never = never ? fl_full_like(never, FL__NEVER) : NULL;
    fl_tensor *start = never ? fl_slice(fl__shifted(never, 1, 0), 1, 0, 1, 1) : NULL;
    if (!skips || !start || !left) return NULL;
    fl_tensor *parts[] = {start, fl_slice(never, 1, 1, never->shape[1], 1)};
    FL_T *a = FL_OF(parts[1] ? fl_concat(parts, 2, 1) : NULL);
    for (int64_t t = 0; a && t < FL_VALUE(emitted)->shape[0]; t++) {
        fl_scope s = fl_scope_begin();
        FL_T *ways[] = {a, FL_W(_shifted)(a, 1, FL__NEVER), FL_W(_shifted)(a, 2, FL__NEVER)};
        ways[2] = SELECT(FL_OF(skips), ways[2], FL_OF(never));
        FL_T *all = ways[1] && ways[2] ? FL_W(stack)(ways, 3, 0) : NULL;
        FL_T *next = ADD(FL_W(logsumexp)(all, FL_AXES(0)), FL_W(select)(emitted, 0, t));
        a = FL_GIVE(&s, SELECT(FL_OF(fl_gt(left, fl_int(t))), next, a));
    }
    return a;
}

/* log P of the targets [n]: at the last blank, or at the label before it */
static FL_T *FL_W(_ctc_total)(FL_T *a, fl_tensor *lengths) {
    fl_tensor *end = fl_unsqueeze(fl_mul(lengths, fl_int(2)), 1);
    fl_tensor *before = fl_maximum(fl_sub(end, fl_int(1)), fl_int(0));
    if (!a || !end || !before) return NULL;
    FL_T *label = FL_W(gather)(a, 1, before), *last = FL_W(gather)(a, 1, end);
    label = SELECT(FL_OF(fl_eq(end, fl_int(0))), CONST(FL__NEVER), label);
    FL_T *both[] = {last, label};
    return last && label ? FL_W(logsumexp)(FL_W(concat)(both, 2, 1), FL_AXES(1)) : NULL;
}

/* The likelihood by other ops, a graph of a dozen nodes for each step. */
static FL_T *FL_W(_ctc_composed)(FL_T *x, fl_tensor *const *of, int64_t blank) {
    const fl_tensor *t = FL_VALUE(x);
    fl_tensor *labels = fl__ctc_labels(of[0], of[2], blank);
    if (!labels || !(x = FL_W(_widened)(x))) return NULL;
    fl_shape every = FL_SHAPE(t->shape[0], t->shape[1], labels->shape[1]);
    FL_T *emitted = FL_W(gather)(x, 2, fl_expand(labels, every));
    emitted = MAX(emitted, CONST(FL__NEVER));
    FL_T *a = emitted ? FL_W(_ctc_forward)(emitted, labels, of[1], blank) : NULL;
    return FL_W(_ctc_total)(a, of[2]);
}

#ifdef FL_ON_TENSORS
static bool fl__compose_ctc(const fl_call *c, fl_tensor **y) {
    y[0] = fl__ctc_composed(c->in[0], &c->in[1], ((const fl_ctc_args *)c->args)->blank);
    return y[0] != NULL;
}
#else
/* dy times the derivative of the likelihood by x, through the graph of its composition. */
static fl_var *fv__ctc_gradient(fl_var *x, fl_tensor *const *of, int64_t blank, fl_var *dy) {
    const bool create_graph = fl_grad_enabled();
    const bool recorded = fl_no_grad(false);
    if (!create_graph) x = fv_param(x->value);
    fl_var *y = x ? fv__ctc_composed(x, of, blank) : NULL;
    fl_tensor *possible = y ? fl_gt(y->value, fl_num(FL__NEVER / 2)) : NULL;
    fl_var *root = possible ? fv_sum(SELECT(fv_const(possible), MUL(y, dy), CONST(0)), FL_ALL_AXES)
                            : NULL;
    fl_var *dx = root ? fl_grad(root, x, create_graph) : NULL;
    fl_no_grad(recorded);
    return dx;
}

static bool fv__compose_ctc_grad(const fl_call *c, fl_tensor **d) {
    fl_var *x = fv_const(c->in[0]), *dy = fv_const(c->in[5]);
    const int64_t blank = ((const fl_ctc_args *)c->args)->blank;
    const bool recorded = fl_no_grad(true);
    fl_var *dx = x && dy ? fv__ctc_gradient(x, &c->in[1], blank, dy) : NULL;
    fl_no_grad(recorded);
    d[0] = dx ? dx->value : NULL;
    return d[0] != NULL;
}

static void fv__ctc_back(fl_node *n, fl_var *dy) {
    fl_ctc_args a = *(const fl_ctc_args *)fv_args(n);
    fl_var *x = fv_saved(n, 0);
    fl_tensor *in[5];
    for (int i = 0; i < 5; i++) in[i] = fv_value(fv_saved(n, i));
    if (fl_grad_enabled()) {
        fv_add_grad(n, 0, x ? fv__ctc_gradient(x, &in[1], a.blank, dy) : NULL);
        return;
    }
    fl_call c = {.op = fl_op_ctc_grad, .n_out = 1, .n_in = 6, .args = &a};
    for (int i = 0; i < 5; i++)
        if (!(c.in[i] = in[i])) return;
    c.in[5] = dy->value;
    c.out[0] = fl_out_on(in[0]->family, fl_shape_of(in[0]), in[0]->dtype);
    fv_add_grad(n, 0, fv_const(c.out[0] ? fl_call_result(&c) : fl_raise()));
}
#endif

/* log P of the targets. of: target, steps, lengths */
static FL_T *FL_W(_ctc_likelihood)(FL_T *x, fl_tensor *const *of, int64_t blank) {
    const fl_ctc_args a = {blank};
    fl_tensor *t = FL_VALUE(x);
    fl_call c = {.op = fl_op_ctc, .n_out = 1, .n_in = 4, .in = {t, of[0], of[1], of[2]}, .args = &a};
    c.out[0] = fl_out_on(t->family, FL_SHAPE(t->shape[1]), fl_dtype_wide(t->dtype));
    fl_tensor *y = c.out[0] ? fl_call_result(&c) : fl_raise();
#ifdef FL_ON_TENSORS
    return y;
#else
    fl_var *kept[3];
    for (int i = 0; i < 3; i++)
        if (!y || !(kept[i] = fv_const(of[i]))) return NULL;
    return fv_record_op(fl_op_ctc, y, FV_IN(x), FV_SAVE(x, kept[0], kept[1], kept[2], FV_OUT), &a);
#endif
}

FL_T *FL_W(ctc_loss_opt)(FL_T *logp, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                         fl_ctc_loss_opts o) {
    if (FL_ABSENT("ctc_loss", logp) || FL_ABSENT("ctc_loss", target) ||
        FL_ABSENT("ctc_loss", steps) || FL_ABSENT("ctc_loss", lengths) ||
        !fl__ctc_fits(FL_VALUE(logp), target, steps, lengths, o.blank))
        return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *of[] = {target, steps, lengths};
    if (!FL_AUTOCAST(fl_op_ctc, &logp, 1)) return FL_GIVE(&s, NULL);
    FL_T *x = FL_W(_floating)(logp), *total = x ? FL_W(_ctc_likelihood)(x, of, o.blank) : NULL;
    FL_T *impossible = LT(total, CONST(FL__NEVER / 2));
    FL_T *loss = SELECT(impossible, CONST(o.zero_infinity ? 0 : INFINITY), NEG(total));
    if (o.reduction == FL_MEAN && loss) {
        fl_tensor *n = fl_maximum(lengths, fl_int(1));
        loss = DIV(loss, FL_OF(n ? fl_cast(n, FL_VALUE(loss)->dtype) : NULL));
    }
    if (o.reduction == FL_MEAN) loss = FL_W(mean)(loss, FL_ALL_AXES);
    if (o.reduction == FL_SUM) loss = FL_W(sum)(loss, FL_ALL_AXES);
    return FL_GIVE(&s, FL_W(_narrowed)(loss, logp));
}

#endif
/* MIT licence: see LICENSE. */
