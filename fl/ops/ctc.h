/* fl/ops/ctc.h - the loss of connectionist temporal classification

   -log P(target), P summed over all alignments of the target's labels with the steps. The forward pass
   runs in log space over blank, label 1, blank, label 2, ... blank, a step for each time for the whole
   batch. FL__NEVER stands for log 0: its sums stay finite, so gradients of any order do.

   Records (fl_ctc_args); of logp's dtype, any float, is its gradient, all else f32 or f64.
     ctc       logp [t, n, c], i64: target [n, l], steps [n], lengths [n] -> log P(target) [n], about
               -1e30 where no alignment gives it
     ctc_grad  the same, that, dy [n] -> dlogp [t, n, c], 0 for such targets */
#ifndef FL_OPS_CTC_H
#define FL_OPS_CTC_H
#include "loss.h"
#include "../records/ctc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_ctc_loss_opts {
    fl_opts_guard guard_;
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
    p##ctc_loss_opt(logp, target, steps, lengths, FL_LITERAL(fl_ctc_loss_opts, __VA_ARGS__))
FL_API fl_tensor *fl_ctc_loss_opt(fl_tensor *logp, fl_tensor *target, fl_tensor *steps,
                                  fl_tensor *lengths, fl_ctc_loss_opts o);
FL_API fl_var *fv_ctc_loss_opt(fl_var *logp, fl_tensor *target, fl_tensor *steps,
                               fl_tensor *lengths, fl_ctc_loss_opts o);

FL_PRIVATE void fl__register_ctc(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_CTC_H */

#if defined(FL_IMPL_ONLY_OPS_CTC) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_CTC_IMPL
#define FL_OPS_CTC_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#define FL__NEVER (-1e30)
#define FL_TEXT "ctc.inc"
#include "expand.h"
#undef FL__NEVER

FL_DATA_DEFINED fl_op fl_op_ctc, fl_op_ctc_grad;

FL_PRIVATE void fl__register_ctc(void) {
    FL__REGISTER(ctc, .args_size = sizeof(fl_ctc_args),
                 .uses = "gather amax sub exp sum log add mul where iota lt gt ne eq abs maximum "
                             "bitwise_not",
                 .compose = fl__compose_ctc, .gradient = fv__ctc_back);
    FL__REGISTER(ctc_grad, .args_size = sizeof(fl_ctc_args),
                 .uses = "gather scatter_add amax sub exp sum log add mul where iota lt gt ne eq abs "
                             "maximum bitwise_not grad2",
                 .compose = fv__compose_ctc_grad);
}

#endif /* FL_OPS_CTC_IMPL */
#endif
/* MIT licence: see LICENSE. */
