/* fl/ops/loss.h - losses

   Most are the formula of one element, and a reduction. The cross entropy of rows of logits is one
   pass: with logp = x - largest - log sum,
     loss = -(1 - smoothing) logp[target] - smoothing mean(logp), or 0 where the target is args.ignore

   Records (fl_cross_entropy_args); slots see f32 or f64, not empty.
     cross_entropy       x [n, c], target i64 [n] -> loss [n], largest [n, 1] of each row, sum [n, 1] of
                         exp(x - largest)
     cross_entropy_grad  x, target, largest, sum, dy [n] -> dx */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_LOSS_H
#define FL_OPS_LOSS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_cross_entropy_args {
    double smoothing;
    int64_t ignore;
} fl_cross_entropy_args;

/* The mean or sum over all elements, or each by itself. Operands broadcast. */
typedef enum fl_reduction { FL_MEAN, FL_SUM, FL_NONE } fl_reduction;
/* (x - y)^2;  |x - y| */
FL_API fl_tensor *fl_mse_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_mse_loss(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_l1_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_l1_loss(fl_var *x, fl_var *y, fl_reduction r);
/* d = |x - y|: d < delta ? d^2 / 2 : delta (d - delta / 2);  the same over beta, beta 0: l1 */
FL_API fl_tensor *fl_huber_loss(fl_tensor *x, fl_tensor *y, double delta, fl_reduction r);
FL_API fl_var *fv_huber_loss(fl_var *x, fl_var *y, double delta, fl_reduction r);
FL_API fl_tensor *fl_smooth_l1_loss(fl_tensor *x, fl_tensor *y, double beta, fl_reduction r);
FL_API fl_var *fv_smooth_l1_loss(fl_var *x, fl_var *y, double beta, fl_reduction r);
typedef struct fl_binary_cross_entropy_opts {
    fl_named _positional;
    fl_tensor *weight;     /* of each element's loss; broadcasts. NULL: 1. The mean is over the elements */
    fl_tensor *pos_weight; /* P, of the part of y; broadcasts. NULL: 1 */
    char _end;
} fl_binary_cross_entropy_opts;
/* -P y log p - (1 - y) log(1 - p), logs at least -100;  of p = sigmoid(x). The reduction is the third
   argument: fv_binary_cross_entropy_with_logits(x, y, FL_MEAN, .pos_weight = p) */
#define fl_binary_cross_entropy(...) FL__BCE(fl_binary_cross_entropy_opt, __VA_ARGS__, ._end = 0)
#define fv_binary_cross_entropy(...) FL__BCE(fv_binary_cross_entropy_opt, __VA_ARGS__, ._end = 0)
#define fl_binary_cross_entropy_with_logits(...) \
    FL__BCE(fl_binary_cross_entropy_with_logits_opt, __VA_ARGS__, ._end = 0)
#define fv_binary_cross_entropy_with_logits(...) \
    FL__BCE(fv_binary_cross_entropy_with_logits_opt, __VA_ARGS__, ._end = 0)
#define FL__BCE(f, x, y, r, ...) f(x, y, r, (fl_binary_cross_entropy_opts){__VA_ARGS__})
FL_API fl_tensor *fl_binary_cross_entropy_opt(fl_tensor *p, fl_tensor *y, fl_reduction r,
                                              fl_binary_cross_entropy_opts o);
FL_API fl_var *fv_binary_cross_entropy_opt(fl_var *p, fl_var *y, fl_reduction r,
                                           fl_binary_cross_entropy_opts o);
FL_API fl_tensor *fl_binary_cross_entropy_with_logits_opt(fl_tensor *x, fl_tensor *y, fl_reduction r,
                                                          fl_binary_cross_entropy_opts o);
FL_API fl_var *fv_binary_cross_entropy_with_logits_opt(fl_var *x, fl_var *y, fl_reduction r,
                                                       fl_binary_cross_entropy_opts o);
/* y (log y - x);  exp(x) - y x, or x - y log(x + 1e-8);  (log v + (x - y)^2 / v) / 2, v >= 1e-6 */
FL_API fl_tensor *fl_kl_div(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_kl_div(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_poisson_nll_loss(fl_tensor *x, fl_tensor *y, bool log_input, fl_reduction r);
FL_API fl_var *fv_poisson_nll_loss(fl_var *x, fl_var *y, bool log_input, fl_reduction r);
FL_API fl_tensor *fl_gaussian_nll_loss(fl_tensor *x, fl_tensor *y, fl_tensor *var, fl_reduction r);
FL_API fl_var *fv_gaussian_nll_loss(fl_var *x, fl_var *y, fl_var *var, fl_reduction r);
/* With y = 1 or -1: log(1 + exp(-y x));  y > 0 ? x : relu(margin - x);  relu(margin - y (a - b));
   y > 0 ? 1 - cos : relu(cos - margin), cos along the last axis, 1e-12 added to |a|^2 and |b|^2 */
FL_API fl_tensor *fl_soft_margin_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_soft_margin_loss(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_hinge_embedding_loss(fl_tensor *x, fl_tensor *y, double margin,
                                          fl_reduction r);
FL_API fl_var *fv_hinge_embedding_loss(fl_var *x, fl_var *y, double margin, fl_reduction r);
FL_API fl_tensor *fl_margin_ranking_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                         fl_reduction r);
FL_API fl_var *fv_margin_ranking_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                      fl_reduction r);
FL_API fl_tensor *fl_cosine_embedding_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                           fl_reduction r);
FL_API fl_var *fv_cosine_embedding_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                        fl_reduction r);
/* relu(margin + |anchor - positive| - |anchor - negative|), along the last axis */
FL_API fl_tensor *fl_triplet_margin_loss(fl_tensor *anchor, fl_tensor *positive,
                                         fl_tensor *negative, double margin, fl_reduction r);
FL_API fl_var *fv_triplet_margin_loss(fl_var *anchor, fl_var *positive, fl_var *negative,
                                      double margin, fl_reduction r);
/* x [n, c], target integers [n]: sum over the other classes j of relu(margin - x[target] + x[j]) / c */
FL_API fl_tensor *fl_multi_margin_loss(fl_tensor *x, fl_tensor *target, double margin,
                                       fl_reduction r);
FL_API fl_var *fv_multi_margin_loss(fl_var *x, fl_tensor *target, double margin, fl_reduction r);
typedef struct fl_nll_loss_opts {
    fl_named _positional;
    fl_reduction reduction; /* FL_MEAN: over the targets that count, by their classes' weights */
    int64_t ignore;         /* targets of this value do not count; 0 -> -100, FL_I0 -> 0 */
    fl_tensor *weight;      /* [c], floats: of each class; NULL: 1 */
    char _end;
} fl_nll_loss_opts;
/* -weight[target[i]] logp[i, target[i]]: log probabilities [n, c, ...], target integers [n, ...] -> a
   number ([n, ...] with FL_NONE). */
#define fl_nll_loss(...) FL__NLL_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_nll_loss(...) FL__NLL_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__NLL_LOSS(p, logp, target, ...) p##nll_loss_opt(logp, target, (fl_nll_loss_opts){__VA_ARGS__})
FL_API fl_tensor *fl_nll_loss_opt(fl_tensor *logp, fl_tensor *target, fl_nll_loss_opts o);
FL_API fl_var *fv_nll_loss_opt(fl_var *logp, fl_tensor *target, fl_nll_loss_opts o);
typedef struct fl_cross_entropy_opts {
    fl_named _positional;
    fl_reduction reduction; /* as above */
    int64_t ignore;         /* not with probabilities */
    double smoothing; /* the part of the target's probability that all classes share */
    fl_tensor *weight;
    char _end;
} fl_cross_entropy_opts;
/* The same on the log softmax of logits [n, c, ...] along axis 1. Or with probabilities as the target,
   floats of the logits' shape: -sum over the classes of target weight logp, whose mean is over the
   n ... places; no gradient goes to the target. */
#define fl_cross_entropy(...) FL__CROSS_ENTROPY(fl_, __VA_ARGS__, ._end = 0)
#define fv_cross_entropy(...) FL__CROSS_ENTROPY(fv_, __VA_ARGS__, ._end = 0)
#define FL__CROSS_ENTROPY(p, logits, target, ...) \
    p##cross_entropy_opt(logits, target, (fl_cross_entropy_opts){__VA_ARGS__})
FL_API fl_tensor *fl_cross_entropy_opt(fl_tensor *logits, fl_tensor *target, fl_cross_entropy_opts o);
FL_API fl_var *fv_cross_entropy_opt(fl_var *logits, fl_tensor *target, fl_cross_entropy_opts o);

FL_DATA fl_op fl_op_cross_entropy, fl_op_cross_entropy_grad;
FL_PRIVATE void fl__register_loss(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_LOSS_H */

#if defined(FL_IMPL_ONLY_OPS_LOSS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_LOSS_IMPL
#define FL_OPS_LOSS_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "elementwise.h"
#include "index.h"
#include "norm.h"
#include "reduce.h"
#include "softmax.h"
#include "view.h"
#define FL_TEXT "loss.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_cross_entropy, fl_op_cross_entropy_grad;

FL_PRIVATE void fl__register_loss(void) {
    static const fl_op_info cross_entropy = {.name = "cross_entropy",
                                             .args_size = sizeof(fl_cross_entropy_args),
                                             .contains = "amax sub exp sum log gather mul add ne where",
                                             .compose = fl__compose_cross_entropy,
                                             .gradient = fv__cross_entropy_back},
                            cross_entropy_grad = {.name = "cross_entropy_grad",
                                                  .args_size = sizeof(fl_cross_entropy_args),
                                                  .contains = "sub exp div eq mul ne where",
                                                  .compose = fl__compose_cross_entropy_grad};
    fl_op_cross_entropy = fl_op_register(&cross_entropy);
    fl_op_cross_entropy_grad = fl_op_register(&cross_entropy_grad);
}

#endif /* FL_OPS_LOSS_IMPL */
#endif
#else /* the text: see expand.h */

/* ---- of elements and vectors ---- */

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
    return FL_GIVE(s, FL_AUTOCAST_WIDE(fl_op_cross_entropy) ? loss : FL_W(_narrowed)(loss, given));
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

#ifdef FL_ON_TENSORS
/* The weights of a loss of p and y broadcast with both, and are what the loss is computed in; NULLs stay. */
static bool fl__bce_weights(const char *fn, fl_tensor *p, fl_tensor *y, fl_binary_cross_entropy_opts *o) {
    fl_tensor **weights[] = {&o->weight, &o->pos_weight};
    if (fl_error()) return false; /* a weight that failed */
    for (int i = 0; i < 2; i++) {
        fl_tensor *w = *weights[i];
        fl_shape all = fl_shape_of(p);
        if (!w) continue;
        if (!fl_broadcast_shape(&all, y) || !fl_broadcast_shape(&all, w))
            return fl_refuse("%s: %s %s for operands %s and %s", fn, i ? "pos_weight" : "weight",
                             FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(p), FL_SHAPE_TEXT(y));
        if (!(*weights[i] = fl_cast(w, p->dtype))) return false;
    }
    return true;
}
#endif

FL_T *FL_W(binary_cross_entropy_opt)(FL_T *p, FL_T *y, fl_reduction r, fl_binary_cross_entropy_opts o) {
    const char *fn = "fl_binary_cross_entropy";
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {p, y};
    if (!FL_W(_loss_operands)(fn, in, 2) || !fl__bce_weights(fn, FL_VALUE(in[0]), FL_VALUE(in[1]), &o))
        return FL_GIVE(&s, NULL);
    FL_T *yes = MUL(in[1], FL_W(_bounded_log)(in[0]));
    FL_T *no = MUL(SUB(CONST(1), in[1]), FL_W(_bounded_log)(SUB(CONST(1), in[0])));
    if (o.pos_weight) yes = MUL(FL_OF(o.pos_weight), yes);
    FL_T *loss = NEG(ADD(yes, no));
    return FL_W(_loss_reduced)(&s, o.weight ? MUL(FL_OF(o.weight), loss) : loss, r, p);
}

/* With P: (1 - y) x + (1 + (P - 1) y) softplus(-x) */
FL_T *FL_W(binary_cross_entropy_with_logits_opt)(FL_T *x, FL_T *y, fl_reduction r,
                                                 fl_binary_cross_entropy_opts o) {
    const char *fn = "fl_binary_cross_entropy_with_logits";
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, y};
    if (!FL_W(_loss_operands)(fn, in, 2) || !fl__bce_weights(fn, FL_VALUE(in[0]), FL_VALUE(in[1]), &o))
        return FL_GIVE(&s, NULL);
    FL_T *loss;
    if (o.pos_weight) {
        FL_T *scale = ADD(MUL(FL_OF(fl_sub(o.pos_weight, fl_num(1))), in[1]), CONST(1));
        loss = ADD(MUL(SUB(CONST(1), in[1]), in[0]), MUL(scale, FL_W(softplus)(NEG(in[0]))));
    } else {
        loss = SUB(FL_W(softplus)(in[0]), MUL(in[0], in[1]));
    }
    return FL_W(_loss_reduced)(&s, o.weight ? MUL(FL_OF(o.weight), loss) : loss, r, x);
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

#ifdef FL_ON_TENSORS
/* The classes target, integers [n, ...], of x [n, c, ...], which is of floats, as i64; or raises. */
static fl_tensor *fl__classes_for(const char *fn, const fl_tensor *x, fl_tensor *target) {
    bool ok = x->ndim >= 2 && target->ndim == x->ndim - 1 && fl_dtype_is_float(x->dtype) &&
              !fl_dtype_is_float(target->dtype) && target->dtype != FL_B8;
    for (int i = 0, j = 0; ok && i < x->ndim; i++)
        if (i != 1) ok = target->shape[j++] == x->shape[i];
    if (ok) return fl_cast(target, FL_I64);
    return fl_bad("%s: input %s %s wants a target [n, ...] of integers, has %s %s", fn,
                  fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_dtype_name(target->dtype),
                  FL_SHAPE_TEXT(target));
}

/* A weight for each class of x, as computed in; false after an error. NULL stays. */
static bool fl__class_weights(const char *fn, const fl_tensor *x, fl_tensor **weight) {
    if (fl_error()) return false; /* weights that failed */
    fl_tensor *w = *weight;
    if (!w) return true;
    if (w->ndim != 1 || w->shape[0] != x->shape[1] || !fl_dtype_is_float(w->dtype))
        return fl_refuse("%s: weight %s %s for input %s; want floats [%lld]", fn, fl_dtype_name(w->dtype),
                         FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(x), (long long)x->shape[1]);
    return (*weight = fl_cast(w, fl_dtype_wide(x->dtype))) != NULL;
}

/* The weight of each target's class, 0 where it does not count. */
static fl_tensor *fl__target_weights(fl_tensor *weight, fl_tensor *target, int64_t ignore) {
    fl_tensor *counts = fl_ne(target, fl_int(ignore));
    fl_tensor *at = fl_reshape(fl_where(counts, target, fl_int(0)), FL_SHAPE(fl_numel(target)));
    fl_tensor *each = fl_reshape(fl_gather(weight, 0, at), fl_shape_of(target));
    return fl_where(counts, each, fl_num(0));
}

/* Weights [c] beside logits of ndim dims. */
static fl_tensor *fl__along_classes(fl_tensor *weight, int ndim) {
    fl_shape s = {ndim - 1, {weight->shape[0], 1, 1, 1, 1, 1, 1}};
    return fl_reshape(weight, s);
}
#endif

/* The class itself has margin 0, so its term is relu(0) = 0. */
FL_T *FL_W(multi_margin_loss)(FL_T *x, fl_tensor *target, double margin, fl_reduction r) {
    if (FL_ABSENT("multi_margin_loss", x) || FL_ABSENT("multi_margin_loss", target)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    if (t->ndim != 2)
        return fl_bad("fl_multi_margin_loss: input %s, target %s; want [n, c] and [n]",
                      FL_SHAPE_TEXT(t), FL_SHAPE_TEXT(target));
    fl_scope s = fl_scope_begin();
    if (!(target = fl__classes_for("fl_multi_margin_loss", t, target))) return FL_GIVE(&s, NULL);
    fl_tensor *column = fl_unsqueeze(target, 1), *own = fl_one_hot(target, t->shape[1]);
    FL_T *wide = FL_W(_widened)(x);
    if (!own || !wide) return FL_GIVE(&s, NULL);
    FL_T *over = FL_W(relu)(ADD(SUB(wide, FL_W(gather)(wide, 1, column)), CONST(margin)));
    FL_T *loss = FL_W(mean)(SELECT(FL_OF(fl_cast(own, FL_B8)), CONST(0), over), FL_AXES(1));
    return FL_W(_loss_reduced)(&s, loss, r, x);
}

/* ---- cross entropy of rows ---- */

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
    fl_call c = {.op = fl_op_cross_entropy_grad, .n_out = 1, .n_in = 5, .args = &a};
    for (int i = 0; i < 4; i++) c.in[i] = fv_value(fv_saved(n, i));
    c.in[4] = dy->value;
    c.out[0] = fl_out_like(x->value, x->value->dtype);
    fv_add_grad(n, 0, fv_const(c.out[0] ? fl_call_result(&c) : fl_raise()));
}
#endif

/* The loss of each row of x [n, c], f32 or f64 and not empty. */
static FL_T *FL_W(_cross_entropy_rows)(FL_T *x, fl_tensor *target, fl_cross_entropy_args a) {
    fl_tensor *t = FL_VALUE(x);
    fl_call c = {.op = fl_op_cross_entropy, .n_out = 3, .n_in = 2, .in = {t, target}, .args = &a};
    fl_shape rows = FL_SHAPE(t->shape[0]), column = FL_SHAPE(t->shape[0], 1);
    for (int i = 0; i < 3; i++)
        if (!(c.out[i] = fl_out_on(t->family, i ? column : rows, t->dtype))) return fl_raise();
    if (!fl_call_run(&c)) return fl_raise();
#ifdef FL_ON_TENSORS
    return c.out[0];
#else
    fl_var *largest = fv_const(c.out[1]), *sum = fv_const(c.out[2]);
    return fv_record_op(fl_op_cross_entropy, c.out[0], FV_IN(x),
                        FV_SAVE(x, fv_const(target), largest, sum), &a);
#endif
}

/* ---- of classes ---- */

/* Of each target, 0 where it does not count. No value is read on the host: a step can be recorded,
   and runs on a device without waiting. Gather refuses a target that is no class. */
static FL_T *FL_W(_nll_of_each)(FL_T *logp, fl_tensor *target, fl_tensor *weight, fl_cross_entropy_args a) {
    if (!logp) return NULL;
    const double classes = (double)FL_VALUE(logp)->shape[1];
    if (weight) logp = MUL(logp, FL_OF(fl__along_classes(weight, FL_VALUE(logp)->ndim)));
    fl_tensor *counts = fl_ne(target, fl_int(a.ignore));
    fl_tensor *class_of = fl_unsqueeze(fl_where(counts, target, fl_int(0)), 1);
    FL_T *loss = NEG(FL_W(squeeze)(FL_W(gather)(logp, 1, class_of), 1));
    if (a.smoothing > 0) {
        FL_T *all = MUL(FL_W(sum)(logp, FL_AXES(1)), CONST(-a.smoothing / classes));
        loss = ADD(MUL(loss, CONST(1 - a.smoothing)), all);
    }
    return SELECT(FL_OF(counts), loss, CONST(0));
}

/* Ends s with the losses of each target, reduced: the mean is over the targets that count. */
static FL_T *FL_W(_class_loss)(fl_scope *s, FL_T *each, fl_tensor *target, fl_tensor *weight, int64_t ignore,
                               fl_reduction r) {
    if (r == FL_NONE) return FL_GIVE(s, each);
    FL_T *loss = FL_W(sum)(each, FL_ALL_AXES);
    if (!loss || r == FL_SUM) return FL_GIVE(s, loss);
    fl_tensor *n = weight ? fl__target_weights(weight, target, ignore) : fl_ne(target, fl_int(ignore));
    n = n ? fl_sum(n, FL_ALL_AXES) : NULL;
    n = n ? fl_cast(n, FL_VALUE(loss)->dtype) : NULL;
    return FL_GIVE(s, DIV(loss, FL_OF(n)));
}

FL_T *FL_W(nll_loss_opt)(FL_T *logp, fl_tensor *target, fl_nll_loss_opts o) {
    if (FL_ABSENT("nll_loss", logp) || FL_ABSENT("nll_loss", target)) return NULL;
    const fl_cross_entropy_args a = {.ignore = fl_option_int(o.ignore, -100)};
    fl_scope s = fl_scope_begin();
    if (!FL_AUTOCAST(fl_op_cross_entropy, &logp, 1)) return FL_GIVE(&s, NULL);
    target = fl__classes_for("fl_nll_loss", FL_VALUE(logp), target);
    if (!target || !fl__class_weights("fl_nll_loss", FL_VALUE(logp), &o.weight)) return FL_GIVE(&s, NULL);
    FL_T *wide = FL_W(_widened)(logp), *each = FL_W(_nll_of_each)(wide, target, o.weight, a);
    each = each ? FL_W(_narrowed)(each, logp) : NULL;
    return FL_W(_class_loss)(&s, each, target, o.weight, a.ignore, o.reduction);
}

/* Ends s with the loss of logits, in the dtype of `given`, with probabilities as the target. */
static FL_T *FL_W(_soft_cross_entropy)(fl_scope *s, FL_T *logits, fl_tensor *target,
                                       fl_cross_entropy_opts o, FL_T *given) {
    FL_T *logp = FL_W(log_softmax)(logits, 1);
    fl_tensor *p = logp ? fl_cast(target, FL_VALUE(logp)->dtype) : NULL;
    if (p && o.smoothing > 0)
        p = fl_add(fl_mul(p, fl_num(1 - o.smoothing)), fl_num(o.smoothing / (double)p->shape[1]));
    if (p && o.weight) p = fl_mul(p, fl__along_classes(o.weight, p->ndim));
    FL_T *each = NEG(FL_W(sum)(MUL(logp, FL_OF(p)), FL_AXES(1)));
    return FL_W(_loss_reduced)(s, each, o.reduction, given);
}

/* One pass, in f32 for halves, where the logits are rows of classes; what a class weighs is a factor of
   its rows, but smoothing looks at all classes. */
static FL_T *FL_W(_hard_cross_entropy)(FL_T *logits, fl_tensor *target, fl_tensor *weight,
                                       fl_cross_entropy_args a) {
    const fl_tensor *t = FL_VALUE(logits);
    if (t->ndim != 2 || fl_numel(t) == 0 || (weight && a.smoothing > 0))
        return FL_W(_nll_of_each)(FL_W(log_softmax)(logits, 1), target, weight, a);
    FL_T *each = FL_W(_cross_entropy_rows)(logits, target, a);
    return weight ? MUL(each, FL_OF(fl__target_weights(weight, target, a.ignore))) : each;
}

FL_T *FL_W(cross_entropy_opt)(FL_T *logits, fl_tensor *target, fl_cross_entropy_opts o) {
    const char *fn = "fl_cross_entropy";
    if (FL_ABSENT("cross_entropy", logits) || FL_ABSENT("cross_entropy", target)) return NULL;
    if (!(o.smoothing >= 0 && o.smoothing <= 1))
        return fl_bad("%s: smoothing is %g, must be in [0, 1]", fn, o.smoothing);
    const fl_tensor *t = FL_VALUE(logits);
    const fl_cross_entropy_args a = {.smoothing = o.smoothing, .ignore = fl_option_int(o.ignore, -100)};
    const bool soft = t->ndim >= 2 && fl_dtype_is_float(t->dtype) && fl_dtype_is_float(target->dtype) &&
                      fl_same_shape(t, target);
    if (soft && a.ignore >= 0)
        return fl_bad("%s: ignore is %lld, but the target is of probabilities", fn, (long long)a.ignore);
    fl_scope s = fl_scope_begin();
    if (!FL_AUTOCAST(fl_op_cross_entropy, &logits, 1)) return FL_GIVE(&s, NULL);
    fl_tensor *classes = soft ? target : fl__classes_for(fn, t, target);
    if (!classes || !fl__class_weights(fn, t, &o.weight)) return FL_GIVE(&s, NULL);
    FL_T *wide = FL_W(_widened)(logits);
    if (!wide) return FL_GIVE(&s, NULL);
    if (soft) return FL_W(_soft_cross_entropy)(&s, wide, target, o, logits);
    FL_T *each = FL_W(_hard_cross_entropy)(wide, classes, o.weight, a);
    each = each ? FL_W(_narrowed)(each, logits) : NULL;
    return FL_W(_class_loss)(&s, each, classes, o.weight, a.ignore, o.reduction);
}

#endif
/* MIT licence: see LICENSE. */
