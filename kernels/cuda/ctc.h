/* kernels/cuda/ctc.h - slots of CTC loss and its gradient on backend cuda */
#ifndef FL_CUDA_CTC_H
#define FL_CUDA_CTC_H
#include "layers.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cuda_ctc_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_CTC) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_CTC_IMPL
#define FL_CUDA_CTC_IMPL
#include "../../fl/records/ctc.h"

/* logp, target, steps, lengths -> total; gradient: the same, total, dy -> dlogp. Out-of-range labels are
   errors of gather, as in the composition. */
FL_CUDA_SLOT(fl__cuda_ctc) {
    const fl_tensor *x = c->in[0], *target = c->in[1];
    const bool grad = c->op == fl_op_ctc_grad;
    flk_ctc a = {.t = x->shape[0],
                 .n = x->shape[1],
                 .classes = x->shape[2],
                 .longest = target->shape[1],
                 .places = 2 * target->shape[1] + 1,
                 .blank = ((const fl_ctc_args *)c->args)->blank,
                 .fault_op = FL_OP_gather};
    if (!fl_out_make(c->out[0])) return false;
    fl__cuda_strided(&a.x, x);
    fl__cuda_strided(&a.target, target);
    fl__cuda_strided(&a.steps, c->in[2]);
    fl__cuda_strided(&a.lengths, c->in[3]);
    fl__cuda_strided(&a.total, grad ? c->in[4] : c->out[0]);
    if (grad) fl__cuda_strided(&a.dy, c->in[5]);
    if (grad) fl__cuda_strided(&a.dx, c->out[0]);
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    a.work = fl__cuda_work(c, (size_t)flk_ctc_work(&a) * fl_dtype_size(wide));
    return a.work && fl__cuda_started(c, flk_ctc_run(&a, (int)wide));
}

FL_PRIVATE void fl__cuda_ctc_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_ctc, fl__cuda_ctc, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_ctc_grad, fl__cuda_ctc, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
