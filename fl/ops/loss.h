/* fl/ops/loss.h - losses

   Prototypes and formulas stand in fl_composed.h. Each is the formula of one element, and
   _loss_reduced. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_LOSS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_LOSS_IMPL
#define FL_OPS_LOSS_IMPL
#include "index.h"
#include "reduce.h"
#include "softmax.h"
#include <math.h>
#define FL_TEXT "loss.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

/* The operands of a loss as computed in; false after an error. */
static bool FL_W(_loss_operands)(const char *fn, FL_T **x, int n) {
    for (int i = 0; i < n; i++)
        if (fl_absent(fn, x[i])) return false;
    for (int i = 0; i < n; i++) {
        fl_shape all = fl_shape_of(FL_VALUE(x[0]));
        if (!fl_broadcast_shape(&all, FL_VALUE(x[i])))
            return fl_refuse("%s: shapes %s and %s", fn, FL_SHAPE_TEXT(FL_VALUE(x[0])),
                           FL_SHAPE_TEXT(FL_VALUE(x[i])));
    }
    return FL_W(_widen)(x, n);
}

/* Ends s with the loss in the dtype of `given`. */
static FL_T *FL_W(_loss_reduced)(fl_scope *s, FL_T *loss, fl_reduction r, FL_T *given) {
    if (r == FL_MEAN) loss = FL_W(mean)(loss, FL_ALL_AXES);
    if (r == FL_SUM) loss = FL_W(sum)(loss, FL_ALL_AXES);
    return FL_GIVE(s, FL_W(_narrowed)(loss, given));
}

FL_T *FL_W(mse_loss)(FL_T *x, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_mse_loss", in, 2)) return FL_GIVE(&s, NULL);
    return FL_W(_loss_reduced)(&s, FL_W(square)(SUB(in[0], in[1])), r, x);
}

FL_T *FL_W(l1_loss)(FL_T *x, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_l1_loss", in, 2)) return FL_GIVE(&s, NULL);
    return FL_W(_loss_reduced)(&s, ABS(SUB(in[0], in[1])), r, x);
}

FL_T *FL_W(huber_loss)(FL_T *x, FL_T *y, double delta, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_huber_loss", in, 2)) return FL_GIVE(&s, NULL);
    FL_T *d = SUB(in[0], in[1]), *size = ABS(d);
    FL_T *outside = MUL(CONST(delta), SUB(size, CONST(delta / 2)));
    FL_T *loss = SELECT(LT(size, CONST(delta)), MUL(CONST(0.5), FL_W(square)(d)), outside);
    return FL_W(_loss_reduced)(&s, loss, r, x);
}

FL_T *FL_W(smooth_l1_loss)(FL_T *x, FL_T *y, double beta, fl_reduction r) {
    if (beta == 0) return FL_W(l1_loss)(x, y, r);
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_smooth_l1_loss", in, 2)) return FL_GIVE(&s, NULL);
    FL_T *d = SUB(in[0], in[1]), *size = ABS(d);
    FL_T *inside = MUL(CONST(0.5 / beta), FL_W(square)(d));
    FL_T *loss = SELECT(LT(size, CONST(beta)), inside, SUB(size, CONST(beta / 2)));
    return FL_W(_loss_reduced)(&s, loss, r, x);
}

/* log(p), at least -100, where p is at most exp(-100) */
static FL_T *FL_W(_bounded_log)(FL_T *p) {
    FL_T *low = LE(p, CONST(3.720075976020836e-44));
    return SELECT(low, CONST(-100), LOG(SELECT(low, CONST(1), p)));
}

FL_T *FL_W(binary_cross_entropy)(FL_T *p, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {p, y};
    if (!FL_W(_loss_operands)("fl_binary_cross_entropy", in, 2)) return FL_GIVE(&s, NULL);
    FL_T *yes = MUL(in[1], FL_W(_bounded_log)(in[0]));
    FL_T *no = MUL(SUB(CONST(1), in[1]), FL_W(_bounded_log)(SUB(CONST(1), in[0])));
    return FL_W(_loss_reduced)(&s, NEG(ADD(yes, no)), r, p);
}

FL_T *FL_W(binary_cross_entropy_with_logits)(FL_T *x, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_binary_cross_entropy_with_logits", in, 2))
        return FL_GIVE(&s, NULL);
    return FL_W(_loss_reduced)(&s, SUB(FL_W(softplus)(in[0]), MUL(in[0], in[1])), r, x);
}

FL_T *FL_W(kl_div)(FL_T *x, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_kl_div", in, 2)) return FL_GIVE(&s, NULL);
    return FL_W(_loss_reduced)(&s, SUB(FL_W(xlogy)(in[1], in[1]), MUL(in[1], in[0])), r, x);
}

FL_T *FL_W(poisson_nll_loss)(FL_T *x, FL_T *y, bool log_input, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_poisson_nll_loss", in, 2)) return FL_GIVE(&s, NULL);
    FL_T *loss = log_input ? SUB(EXP(in[0]), MUL(in[1], in[0]))
                           : SUB(in[0], MUL(in[1], LOG(ADD(in[0], CONST(1e-8)))));
    return FL_W(_loss_reduced)(&s, loss, r, x);
}

FL_T *FL_W(gaussian_nll_loss)(FL_T *x, FL_T *y, FL_T *var, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y, var};
    if (!FL_W(_loss_operands)("fl_gaussian_nll_loss", in, 3)) return FL_GIVE(&s, NULL);
    FL_T *v = MAX(in[2], CONST(1e-6)), *d = FL_W(square)(SUB(in[0], in[1]));
    return FL_W(_loss_reduced)(&s, MUL(CONST(0.5), ADD(LOG(v), DIV(d, v))), r, x);
}

FL_T *FL_W(soft_margin_loss)(FL_T *x, FL_T *y, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_soft_margin_loss", in, 2)) return FL_GIVE(&s, NULL);
    return FL_W(_loss_reduced)(&s, FL_W(softplus)(NEG(MUL(in[0], in[1]))), r, x);
}

FL_T *FL_W(hinge_embedding_loss)(FL_T *x, FL_T *y, double margin, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)("fl_hinge_embedding_loss", in, 2)) return FL_GIVE(&s, NULL);
    FL_T *away = FL_W(relu)(SUB(CONST(margin), in[0]));
    return FL_W(_loss_reduced)(&s, SELECT(LT(CONST(0), in[1]), in[0], away), r, x);
}

FL_T *FL_W(margin_ranking_loss)(FL_T *a, FL_T *b, FL_T *y, double margin, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {a, b, y};
    if (!FL_W(_loss_operands)("fl_margin_ranking_loss", in, 3)) return FL_GIVE(&s, NULL);
    FL_T *behind = MUL(in[2], SUB(in[1], in[0]));
    return FL_W(_loss_reduced)(&s, FL_W(relu)(ADD(behind, CONST(margin))), r, a);
}

FL_T *FL_W(cosine_embedding_loss)(FL_T *a, FL_T *b, FL_T *y, double margin, fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {a, b};
    if (FL_ABSENT("cosine_embedding_loss", y) ||
        !FL_W(_loss_operands)("fl_cosine_embedding_loss", in, 2))
        return FL_GIVE(&s, NULL);
    FL_T *size_a = ADD(FL_W(sum)(FL_W(square)(in[0]), FL_AXES(-1)), CONST(1e-12));
    FL_T *size_b = ADD(FL_W(sum)(FL_W(square)(in[1]), FL_AXES(-1)), CONST(1e-12));
    FL_T *product = FL_W(sum)(MUL(in[0], in[1]), FL_AXES(-1));
    FL_T *cosine = DIV(product, SQRT(MUL(size_a, size_b)));
    FL_T *away = FL_W(relu)(SUB(cosine, CONST(margin)));
    return FL_W(_loss_reduced)(&s, SELECT(LT(CONST(0), y), SUB(CONST(1), cosine), away), r, a);
}

FL_T *FL_W(triplet_margin_loss)(FL_T *anchor, FL_T *positive, FL_T *negative, double margin,
                                fl_reduction r) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {anchor, positive, negative};
    if (!FL_W(_loss_operands)("fl_triplet_margin_loss", in, 3)) return FL_GIVE(&s, NULL);
    FL_T *close = FL_W(pairwise_distance)(in[0], in[1], 2, 1e-6);
    FL_T *away = FL_W(pairwise_distance)(in[0], in[2], 2, 1e-6);
    return FL_W(_loss_reduced)(&s, FL_W(relu)(ADD(SUB(close, away), CONST(margin))), r, anchor);
}

/* The class itself has margin 0, so its term is relu(0) = 0. */
FL_T *FL_W(multi_margin_loss)(FL_T *x, fl_tensor *target, double margin, fl_reduction r) {
    if (FL_ABSENT("multi_margin_loss", x) || FL_ABSENT("multi_margin_loss", target)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    if (t->ndim != 2 || target->ndim != 1 || target->shape[0] != t->shape[0])
        return fl_bad("fl_multi_margin_loss: input %s, target %s; want [n, c] and [n]",
                       FL_SHAPE_TEXT(t), FL_SHAPE_TEXT(target));
    fl_scope s = fl_scope_begin();
    fl_tensor *column = fl_unsqueeze(target, 1), *own = fl_one_hot(target, t->shape[1]);
    FL_T *wide = FL_W(_widened)(x);
    if (!own || !wide) return FL_GIVE(&s, NULL);
    FL_T *margins = FL_OF(fl_where(fl_cast(own, FL_B8), fl_num(0), fl_num(margin)));
    FL_T *over = ADD(SUB(wide, FL_W(gather)(wide, 1, column)), margins);
    FL_T *loss = FL_W(mean)(FL_W(relu)(over), FL_AXES(1));
    return FL_W(_loss_reduced)(&s, loss, r, x);
}

/* >>cross_entropy: of logits [n, c] */

#ifdef FL_ON_TENSORS
static bool fl__compose_cross_entropy(const fl_call *c, fl_tensor **y) {
    const fl_cross_entropy_args *a = c->args;
    fl_tensor *x = c->in[0], *target = c->in[1], *counts = fl_ne(target, fl_int(a->ignore));
    fl_tensor *place = fl_unsqueeze(SELECT(counts, target, fl_int(0)), 1);
    y[1] = fl_amax(x, FL_AXES_KEEP(1));
    fl_tensor *below = SUB(x, y[1]);
    y[2] = fl_sum(EXP(below), FL_AXES_KEEP(1));
    fl_tensor *logp = SUB(below, LOG(y[2]));
    fl_tensor *loss = NEG(fl_squeeze(fl_gather(logp, 1, place), 1));
    if (a->smoothing > 0) {
        fl_tensor *all = MUL(fl_mean(logp, FL_AXES(1)), CONST(-a->smoothing));
        loss = ADD(MUL(loss, CONST(1 - a->smoothing)), all);
    }
    return (y[0] = SELECT(counts, loss, CONST(0))) != NULL;
}
#endif

/* dx, given the softmax p of x */
static FL_T *FL_W(_cross_entropy_dx)(FL_T *p, fl_tensor *target, FL_T *dy,
                                     fl_cross_entropy_args a) {
    if (!p) return NULL;
    int64_t classes = FL_VALUE(p)->shape[1];
    fl_tensor *counts = fl_ne(target, fl_int(a.ignore));
    fl_tensor *own = fl_one_hot(fl_where(counts, target, fl_int(0)), classes);
    own = own ? fl_cast(own, FL_VALUE(p)->dtype) : NULL;
    fl_tensor *want = fl_add(fl_mul(own, fl_num(1 - a.smoothing)),
                             fl_num(a.smoothing / (double)classes));
    FL_T *dx = MUL(SUB(p, FL_OF(want)), FL_W(unsqueeze)(dy, 1));
    return SELECT(FL_OF(fl_unsqueeze(counts, 1)), dx, CONST(0));
}

#ifdef FL_ON_TENSORS
static bool fl__compose_cross_entropy_grad(const fl_call *c, fl_tensor **d) {
    fl_tensor *p = DIV(EXP(SUB(c->in[0], c->in[2])), c->in[3]);
    const fl_cross_entropy_args *a = c->args;
    return (d[0] = fl__cross_entropy_dx(p, c->in[1], c->in[4], *a)) != NULL;
}
#else
static void fv__cross_entropy_back(fl_node *n, fl_var *dy) {
    fl_cross_entropy_args a = *(const fl_cross_entropy_args *)fv_args(n);
    fl_var *x = fv_saved(n, 0);
    fl_tensor *target = fv_value(fv_saved(n, 1));
    if (fl_grad_enabled()) {
        fv_add_grad(n, 0, fv__cross_entropy_dx(fv_softmax(x, 1), target, dy, a));
        return;
    }
    fl_call c = {.op = FL_OP_cross_entropy_grad, .n_out = 1, .n_in = 5, .args = &a};
    c.out[0] = fl_out_like(x->value, x->value->dtype);
    for (int i = 0; i < 4; i++) c.in[i] = fv_value(fv_saved(n, i));
    c.in[4] = dy->value;
    if (!c.out[0]) (void)fl_raise();
    else if (fl__run_fused(&c, fl__compose_cross_entropy_grad)) fv_add_grad(n, 0, fv_const(c.out[0]));
}

FL_PRIVATE fl_var *fv__cross_entropy(fl_var *x, fl_tensor *target, fl_cross_entropy_args a) {
    fl_tensor *t = x->value;
    fl_call c = {.op = FL_OP_cross_entropy, .n_out = 3, .n_in = 2, .in = {t, target}, .args = &a};
    fl_shape rows = FL_SHAPE(t->shape[0]), column = FL_SHAPE(t->shape[0], 1);
    for (int i = 0; i < 3; i++)
        if (!(c.out[i] = fl_call_out(t->family, i ? column : rows, t->dtype))) return fl_raise();
    if (!fl__run_fused(&c, fl__compose_cross_entropy)) return NULL;
    fl_var *largest = fv_const(c.out[1]), *sum = fv_const(c.out[2]);
    return fv_record_args("cross_entropy", c.out[0], fv__cross_entropy_back, FV_IN(x),
                          FV_SAVE(x, fv_const(target), largest, sum), &a, sizeof a);
}
#endif

/* >>ctc: the forward pass in log space over blank, label 1, blank, label 2, ... blank, a step for
   each time for the whole batch. FL__NEVER stands for log 0: its sums stay finite, so gradients of
   any order do. */

#ifdef FL_ON_TENSORS
#define FL__NEVER (-1e30)
#endif

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
    fl_tensor *place = fl_to(fl_arange(0, (double)l, 1, FL_I64), fl_family_name(target));
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
    return (blank >= 0 && blank < x->shape[2]) || fl_refuse("fl_ctc_loss: blank %lld of %lld classes",
                                                          (long long)blank, (long long)x->shape[2]);
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
    if (!labels) return NULL;
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

/* Of: target, steps, lengths. */
static fl_tensor *fl__ctc_likelihood(fl_tensor *x, fl_tensor *const *of, int64_t blank) {
    fl_ctc_args a = {blank};
    fl_call c = {.op = FL_OP_ctc, .n_out = 1, .n_in = 4, .in = {x, of[0], of[1], of[2]}, .args = &a};
    c.out[0] = fl_call_out(x->family, FL_SHAPE(x->shape[1]), x->dtype);
    if (!c.out[0]) return fl_raise();
    return fl__run_fused(&c, fl__compose_ctc) ? c.out[0] : NULL;
}
#else
/* dy times the derivative of the likelihood by x, through the graph of its composition. */
static fl_var *fv__ctc_gradient(fl_var *x, fl_tensor *const *of, int64_t blank, fl_var *dy) {
    const bool again = fl_grad_enabled();
    const bool recorded = fl_no_grad(false);
    if (!again) x = fv_param(x->value);
    fl_var *y = x ? fv__ctc_composed(x, of, blank) : NULL;
    fl_tensor *possible = y ? fl_gt(y->value, fl_num(FL__NEVER / 2)) : NULL;
    fl_var *root = possible ? fv_sum(SELECT(fv_const(possible), MUL(y, dy), CONST(0)), FL_ALL_AXES)
                            : NULL;
    fl_var *dx = root ? fl_grad(root, x, again) : NULL;
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
    fl_call c = {.op = FL_OP_ctc_grad, .n_out = 1, .n_in = 6, .args = &a};
    for (int i = 0; i < 5; i++)
        if (!(c.in[i] = in[i])) return;
    c.in[5] = dy->value;
    c.out[0] = fl_call_out(in[0]->family, fl_shape_of(in[0]), in[0]->dtype);
    if (!c.out[0]) fl_raise();
    else if (fl__run_fused(&c, fv__compose_ctc_grad)) fv_add_grad(n, 0, fv_const(c.out[0]));
}

static fl_var *fv__ctc_likelihood(fl_var *x, fl_tensor *const *of, int64_t blank) {
    fl_ctc_args a = {blank};
    fl_tensor *y = fl__ctc_likelihood(x->value, of, blank);
    fl_var *kept[3];
    for (int i = 0; i < 3; i++) kept[i] = y ? fv_const(of[i]) : NULL;
    if (!y || !kept[0] || !kept[1] || !kept[2]) return NULL;
    return fv_record_args("ctc_loss", y, fv__ctc_back, FV_IN(x),
                          FV_SAVE(x, kept[0], kept[1], kept[2], FV_OUT), &a, sizeof a);
}
#endif

FL_T *FL_W(ctc_loss_opt)(FL_T *logp, fl_tensor *target, fl_tensor *steps, fl_tensor *lengths,
                         fl_ctc_loss_opts o) {
    if (FL_ABSENT("ctc_loss", logp) || FL_ABSENT("ctc_loss", target) ||
        FL_ABSENT("ctc_loss", steps) || FL_ABSENT("ctc_loss", lengths) ||
        !fl__ctc_fits(FL_VALUE(logp), target, steps, lengths, o.blank))
        return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *of[] = {target, steps, lengths};
    FL_T *x = FL_W(_widened)(logp), *total = x ? FL_W(_ctc_likelihood)(x, of, o.blank) : NULL;
    FL_T *impossible = LT(total, CONST(FL__NEVER / 2));
    FL_T *loss = SELECT(impossible, CONST(o.zero_infinity ? 0 : INFINITY), NEG(total));
    if (o.reduction == FL_MEAN && loss) {
        fl_tensor *n = fl_maximum(lengths, fl_int(1));
        loss = DIV(loss, FL_OF(n ? fl_cast(n, FL_VALUE(loss)->dtype) : NULL));
    }
    return FL_W(_loss_reduced)(&s, loss, o.reduction, logp);
}

#endif
/* MIT licence: see LICENSE. */
