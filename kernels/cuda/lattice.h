/* kernels/cuda/lattice.h - slots of ASG and transducer losses on backend cuda */
#ifndef FL_CUDA_LATTICE_H
#define FL_CUDA_LATTICE_H
#include "backend.h"
/* Adds the slots of this file to the table; the ops must be registered. */
FL_PRIVATE void fl__cuda_lattice_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_LATTICE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_LATTICE_IMPL
#define FL_CUDA_LATTICE_IMPL
#include "../../fl/speech/lattice.h"
#include "layers.h"

/* asg: e, w, target, steps, lengths -> total; transducer: blanks, labels, steps, lengths -> total;
   gradients: the same, total, dy -> gradients of the first two. Counts out of range are an error of the next
   sync. */
FL_CUDA_SLOT(fl__cuda_lattice) {
    const bool asg = c->op == fl_op_asg || c->op == fl_op_asg_grad, grad = c->n_out > 1;
    const fl_tensor *x = c->in[0], *const *in = (const fl_tensor *const *)c->in + 2 + asg;
    flk_lattice a = {.first = fl_data(x),
                     .second = fl_data(c->in[1]),
                     .steps = fl_data(in[0]),
                     .lengths = fl_data(in[1]),
                     .t = x->shape[asg ? 0 : 1],
                     .n = x->shape[asg ? 1 : 0],
                     .c = asg ? x->shape[2] : 0,
                     .l = asg ? c->in[2]->shape[1] : x->shape[2] - 1,
                     .asg = asg,
                     .full = ((const fl_lattice_args *)c->args)->full,
                     .fault_op = c->op};
    if (!fl__cuda_outputs(c)) return false;
    a.target = asg ? fl_data(c->in[2]) : NULL;
    a.total = fl_data(grad ? in[2] : c->out[0]);
    a.dy = grad ? fl_data(in[3]) : NULL;
    a.d_first = grad ? fl_data(c->out[0]) : NULL;
    a.d_second = grad ? fl_data(c->out[1]) : NULL;
    a.work = fl__cuda_work(c, (size_t)flk_lattice_work(&a) * sizeof *a.work);
    return a.work && fl__cuda_started(c, flk_lattice_run(&a, (int)x->dtype));
}

FL_PRIVATE void fl__cuda_lattice_slots(fl_backend *cuda) {
    const fl_op op[] = {fl_op_asg, fl_op_asg_grad, fl_op_transducer, fl_op_transducer_grad};
    for (int i = 0; i < 4; i++) fl_backend_set(cuda, op[i], fl__cuda_lattice, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
