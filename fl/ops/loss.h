/* fl/ops/loss.h - loss functions

   Element-wise losses broadcast their operands and reduce; integers become f32, f16 and bf16 are computed in
   f32 and rounded once. Cross entropy of logits x [n, c] is one fused kernel: with
   logp = x - max - log(sum(exp(x - max))), where max is the row's maximum,
     loss = -(1 - smoothing) logp[target] - smoothing mean(logp), or 0 where the target is args.ignore

   Records (fl_cross_entropy_args); x and dx are floats, not empty, the others in x's wide dtype.
     cross_entropy       x [n, c], target i64 [n] -> loss [n], max [n, 1], sum [n, 1] of exp(x - max)
     cross_entropy_grad  x, target, max, sum, dy [n] -> dx */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_LOSS_H
#define FL_OPS_LOSS_H
#include "../records/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The mean or the sum over all elements -> a scalar; FL_NONE: the loss of each element. */
typedef enum fl_reduction { FL_MEAN, FL_SUM, FL_NONE } fl_reduction;
/* (x - y)^2 */
FL_API fl_tensor *fl_mse_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_mse_loss(fl_var *x, fl_var *y, fl_reduction r);
/* |x - y| */
FL_API fl_tensor *fl_l1_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_l1_loss(fl_var *x, fl_var *y, fl_reduction r);
/* d < delta ? d^2 / 2 : delta (d - delta / 2) with d = |x - y|, delta > 0 */
FL_API fl_tensor *fl_huber_loss(fl_tensor *x, fl_tensor *y, double delta, fl_reduction r);
FL_API fl_var *fv_huber_loss(fl_var *x, fl_var *y, double delta, fl_reduction r);
/* d < beta ? d^2 / (2 beta) : d - beta / 2 with d = |x - y|, beta >= 0; beta 0 is l1_loss. */
FL_API fl_tensor *fl_smooth_l1_loss(fl_tensor *x, fl_tensor *y, double beta, fl_reduction r);
FL_API fl_var *fv_smooth_l1_loss(fl_var *x, fl_var *y, double beta, fl_reduction r);
typedef struct fl_binary_cross_entropy_opts {
    fl_opts_guard guard_;
    fl_tensor *weight;     /* factor of each loss, broadcasts; NULL: 1. FL_MEAN divides by the element
                              count */
    fl_tensor *pos_weight; /* factor P of the term of y, broadcasts; NULL: 1 */
    char _end;
} fl_binary_cross_entropy_opts;
/* -P y log p - (1 - y) log(1 - p) of probabilities p in [0, 1], with logs clamped to at least -100, or, with
   logits x, of p = sigmoid(x). r is positional:
   fv_binary_cross_entropy_with_logits(x, y, FL_MEAN, .pos_weight = p) */
#define fl_binary_cross_entropy(...) FL__BCE(fl_binary_cross_entropy_opt, __VA_ARGS__, ._end = 0)
#define fv_binary_cross_entropy(...) FL__BCE(fv_binary_cross_entropy_opt, __VA_ARGS__, ._end = 0)
#define fl_binary_cross_entropy_with_logits(...) \
    FL__BCE(fl_binary_cross_entropy_with_logits_opt, __VA_ARGS__, ._end = 0)
#define fv_binary_cross_entropy_with_logits(...) \
    FL__BCE(fv_binary_cross_entropy_with_logits_opt, __VA_ARGS__, ._end = 0)
#define FL__BCE(f, x, y, r, ...) f(x, y, r, FL_LITERAL(fl_binary_cross_entropy_opts, __VA_ARGS__))
FL_API fl_tensor *fl_binary_cross_entropy_opt(fl_tensor *p, fl_tensor *y, fl_reduction r,
                                              fl_binary_cross_entropy_opts o);
FL_API fl_var *fv_binary_cross_entropy_opt(fl_var *p, fl_var *y, fl_reduction r,
                                           fl_binary_cross_entropy_opts o);
FL_API fl_tensor *fl_binary_cross_entropy_with_logits_opt(fl_tensor *x, fl_tensor *y, fl_reduction r,
                                                          fl_binary_cross_entropy_opts o);
FL_API fl_var *fv_binary_cross_entropy_with_logits_opt(fl_var *x, fl_var *y, fl_reduction r,
                                                       fl_binary_cross_entropy_opts o);
typedef struct fl_kl_div_opts {
    fl_opts_guard guard_;
    bool log_target; /* y holds log probabilities too: exp(y) (y - x) */
    bool batch_mean; /* FL_MEAN divides the sum by x's first dim (PyTorch's "batchmean") */
    char _end;
} fl_kl_div_opts;
/* Kullback-Leibler divergence y (log y - x) of target probabilities y from log probabilities x */
#define fl_kl_div(...) FL__KL_DIV(fl_, __VA_ARGS__, ._end = 0)
#define fv_kl_div(...) FL__KL_DIV(fv_, __VA_ARGS__, ._end = 0)
#define FL__KL_DIV(p, x, y, r, ...) p##kl_div_opt(x, y, r, FL_LITERAL(fl_kl_div_opts, __VA_ARGS__))
FL_API fl_tensor *fl_kl_div_opt(fl_tensor *x, fl_tensor *y, fl_reduction r, fl_kl_div_opts o);
FL_API fl_var *fv_kl_div_opt(fl_var *x, fl_var *y, fl_reduction r, fl_kl_div_opts o);
typedef struct fl_poisson_nll_loss_opts {
    fl_opts_guard guard_;
    bool full;  /* add Stirling's approximation of log(y!), y log y - y + log(2 pi y) / 2, where y > 1 */
    double eps; /* 0: 1e-8 */
    char _end;
} fl_poisson_nll_loss_opts;
/* Negative log likelihood of a Poisson distribution: exp(x) - y x if log_input, else x - y log(x + eps) */
#define fl_poisson_nll_loss(...) FL__POISSON_NLL_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_poisson_nll_loss(...) FL__POISSON_NLL_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__POISSON_NLL_LOSS(p, x, y, log_input, r, ...) \
    p##poisson_nll_loss_opt(x, y, log_input, r, FL_LITERAL(fl_poisson_nll_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_poisson_nll_loss_opt(fl_tensor *x, fl_tensor *y, bool log_input, fl_reduction r,
                                          fl_poisson_nll_loss_opts o);
FL_API fl_var *fv_poisson_nll_loss_opt(fl_var *x, fl_var *y, bool log_input, fl_reduction r,
                                       fl_poisson_nll_loss_opts o);
typedef struct fl_gaussian_nll_loss_opts {
    fl_opts_guard guard_;
    bool full;  /* add log(2 pi) / 2 */
    double eps; /* 0: 1e-6 */
    char _end;
} fl_gaussian_nll_loss_opts;
/* Negative log likelihood of a normal distribution: (log v + (x - y)^2 / v) / 2, v = max(var, eps) */
#define fl_gaussian_nll_loss(...) FL__GAUSSIAN_NLL_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_gaussian_nll_loss(...) FL__GAUSSIAN_NLL_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__GAUSSIAN_NLL_LOSS(p, x, y, var, r, ...) \
    p##gaussian_nll_loss_opt(x, y, var, r, FL_LITERAL(fl_gaussian_nll_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_gaussian_nll_loss_opt(fl_tensor *x, fl_tensor *y, fl_tensor *var, fl_reduction r,
                                           fl_gaussian_nll_loss_opts o);
FL_API fl_var *fv_gaussian_nll_loss_opt(fl_var *x, fl_var *y, fl_var *var, fl_reduction r,
                                        fl_gaussian_nll_loss_opts o);
/* The next four take targets y of 1 or -1. */
/* log(1 + exp(-y x)) */
FL_API fl_tensor *fl_soft_margin_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_soft_margin_loss(fl_var *x, fl_var *y, fl_reduction r);
/* y > 0 ? x : relu(margin - x) */
FL_API fl_tensor *fl_hinge_embedding_loss(fl_tensor *x, fl_tensor *y, double margin,
                                          fl_reduction r);
FL_API fl_var *fv_hinge_embedding_loss(fl_var *x, fl_var *y, double margin, fl_reduction r);
/* relu(margin - y (a - b)) */
FL_API fl_tensor *fl_margin_ranking_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                         fl_reduction r);
FL_API fl_var *fv_margin_ranking_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                      fl_reduction r);
/* y > 0 ? 1 - cos : relu(cos - margin), where cos is the cosine similarity of a and b along the last axis,
   with 1e-12 added to |a|^2 and |b|^2 */
FL_API fl_tensor *fl_cosine_embedding_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                           fl_reduction r);
FL_API fl_var *fv_cosine_embedding_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                        fl_reduction r);
typedef struct fl_triplet_margin_loss_opts {
    fl_opts_guard guard_;
    double p;   /* norm; 0: 2, FL_ZERO: 0 */
    double eps; /* 0: 1e-6 */
    bool swap;  /* use d(positive, negative) where it is less than d(anchor, negative) */
    char _end;
} fl_triplet_margin_loss_opts;
/* relu(margin + d(anchor, positive) - d(anchor, negative)), d(a, b) = |a - b + eps|_p along the last axis;
   margin >= 0 */
#define fl_triplet_margin_loss(...) FL__TRIPLET_MARGIN_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_triplet_margin_loss(...) FL__TRIPLET_MARGIN_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__TRIPLET_MARGIN_LOSS(p, a, b, c, margin, r, ...) \
    p##triplet_margin_loss_opt(a, b, c, margin, r, FL_LITERAL(fl_triplet_margin_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_triplet_margin_loss_opt(fl_tensor *anchor, fl_tensor *positive, fl_tensor *negative,
                                             double margin, fl_reduction r, fl_triplet_margin_loss_opts o);
FL_API fl_var *fv_triplet_margin_loss_opt(fl_var *anchor, fl_var *positive, fl_var *negative, double margin,
                                          fl_reduction r, fl_triplet_margin_loss_opts o);
typedef struct fl_multi_margin_loss_opts {
    fl_opts_guard guard_;
    int p;             /* exponent, 1 or 2; 0: 1 */
    fl_tensor *weight; /* [c], floats: factor of each target class; NULL: 1. FL_MEAN divides by n */
    char _end;
} fl_multi_margin_loss_opts;
/* weight[target] times the sum over the other classes j of relu(margin - x[target] + x[j])^p / c: x [n, c],
   integer target [n], or one row x [c] with target [] or [1] */
#define fl_multi_margin_loss(...) FL__MULTI_MARGIN_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_multi_margin_loss(...) FL__MULTI_MARGIN_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__MULTI_MARGIN_LOSS(p, x, target, margin, r, ...) \
    p##multi_margin_loss_opt(x, target, margin, r, FL_LITERAL(fl_multi_margin_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_multi_margin_loss_opt(fl_tensor *x, fl_tensor *target, double margin, fl_reduction r,
                                           fl_multi_margin_loss_opts o);
FL_API fl_var *fv_multi_margin_loss_opt(fl_var *x, fl_tensor *target, double margin, fl_reduction r,
                                        fl_multi_margin_loss_opts o);
typedef struct fl_nll_loss_opts {
    fl_opts_guard guard_;
    fl_reduction reduction; /* FL_MEAN divides by the sum of the weights of the targets that are not
                               ignored */
    int64_t ignore;         /* ignore_index: targets of this value have loss 0; 0: -100, FL_I0: 0 */
    fl_tensor *weight;      /* [c], floats: weight of each class; NULL: 1 */
    char _end;
} fl_nll_loss_opts;
/* PyTorch's nll_loss, -weight[target[i]] logp[i, target[i]]: log probabilities [n, c, ...], integer target
   [n, ...] -> a scalar, or [n, ...] with FL_NONE. A target outside [0, c) that is not ignored is an error. */
#define fl_nll_loss(...) FL__NLL_LOSS(fl_, __VA_ARGS__, ._end = 0)
#define fv_nll_loss(...) FL__NLL_LOSS(fv_, __VA_ARGS__, ._end = 0)
#define FL__NLL_LOSS(p, logp, target, ...) \
    p##nll_loss_opt(logp, target, FL_LITERAL(fl_nll_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_nll_loss_opt(fl_tensor *logp, fl_tensor *target, fl_nll_loss_opts o);
FL_API fl_var *fv_nll_loss_opt(fl_var *logp, fl_tensor *target, fl_nll_loss_opts o);
typedef struct fl_cross_entropy_opts {
    fl_opts_guard guard_;
    fl_reduction reduction; /* as in fl_nll_loss_opts */
    int64_t ignore;         /* as in fl_nll_loss_opts; not with class probabilities */
    double smoothing;       /* label smoothing in [0, 1]: share of the target probability spread over all
                               classes */
    fl_tensor *weight;      /* as in fl_nll_loss_opts */
    char _end;
} fl_cross_entropy_opts;
/* PyTorch's cross_entropy: nll_loss of the log softmax of logits [n, c, ...] along axis 1. target is integers
   [n, ...], or class probabilities, floats of the logits' shape: then the loss is -sum over the classes of
   target weight logp, FL_MEAN divides by the number of positions (n ...), and target gets no gradient. */
#define fl_cross_entropy(...) FL__CROSS_ENTROPY(fl_, __VA_ARGS__, ._end = 0)
#define fv_cross_entropy(...) FL__CROSS_ENTROPY(fv_, __VA_ARGS__, ._end = 0)
#define FL__CROSS_ENTROPY(p, logits, target, ...) \
    p##cross_entropy_opt(logits, target, FL_LITERAL(fl_cross_entropy_opts, __VA_ARGS__))
FL_API fl_tensor *fl_cross_entropy_opt(fl_tensor *logits, fl_tensor *target, fl_cross_entropy_opts o);
FL_API fl_var *fv_cross_entropy_opt(fl_var *logits, fl_tensor *target, fl_cross_entropy_opts o);

FL_PRIVATE void fl__register_loss(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_LOSS_H */

#if defined(FL_IMPL_ONLY_OPS_LOSS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_LOSS_IMPL
#define FL_OPS_LOSS_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "distance.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "softmax.h"
#include "view.h"
#define FL_EXPAND_FILE "loss.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_cross_entropy, fl_op_cross_entropy_grad;

FL_PRIVATE void fl__register_loss(void) {
    FL__REGISTER(cross_entropy, .args_size = sizeof(fl_cross_entropy_args),
                 .uses = "amax sub exp sum log gather mul add ne where neg div eq bitwise_not",
                 .compose = fl__compose_cross_entropy, .gradient = fv__cross_entropy_back);
    FL__REGISTER(cross_entropy_grad, .args_size = sizeof(fl_cross_entropy_args),
                 .uses = "sub exp div eq mul ne where iota add bitwise_not",
                 .compose = fl__compose_cross_entropy_grad);
}

#endif /* FL_OPS_LOSS_IMPL */
#endif
/* MIT licence: see LICENSE. */
