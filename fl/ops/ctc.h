/* fl/ops/ctc.h - connectionist temporal classification (CTC) loss

   -log P(target), where P is the sum over all alignments of the target with the time steps. The forward
   algorithm runs in log space on the sequence blank, label 1, blank, label 2, ..., blank, one time step of
   the whole batch at a time. FL__LOG_ZERO stands for log 0: its sums stay finite, and so do gradients.

   Records (fl_ctc_args). logp may be any float, dlogp has its dtype; the other floats are f32 or f64.
     ctc       logp [t, n, c], i64: target [n, l], steps [n], lengths [n] -> log P(target) [n], about
               -1e30 for a target without an alignment
     ctc_grad  the same inputs, log P, dy [n] -> dlogp [t, n, c], 0 for a target without an alignment */
#ifndef FL_OPS_CTC_H
#define FL_OPS_CTC_H
#include "loss.h"
#include "../records/ctc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_ctc_loss_opts {
    fl_opts_guard guard_;
    int64_t blank;          /* class index of the blank */
    fl_reduction reduction; /* FL_MEAN: each loss is divided by its target length, then averaged */
    bool zero_infinity;     /* loss 0 instead of inf for a target without an alignment */
    char _end;
} fl_ctc_loss_opts;
/* torch's ctc_loss of log probabilities logp [t, n, c] and, all i64, padded targets [n, l], the number of
   time steps [n] (more than t count as t) and the target lengths [n] -> a scalar, or [n] with FL_NONE. A loss
   of inf has gradient 0. The gradient is exact for logp; PyTorch's assumes that a log_softmax made logp. */
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
#define FL__LOG_ZERO (-1e30)
#define FL_EXPAND_FILE "ctc.inc"
#include "expand.h"
#undef FL__LOG_ZERO

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
