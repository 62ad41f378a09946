/* fl_optim.h - optimizers, learning-rate schedules, gradient clipping, weight averages, checkpoints

   An optimizer is a list of parameters, hyperparameters, and an update rule: formulas of the new parameter
   and its states, which run in one pass over memory. States are named, so any optimizer, custom ones
   included, can be saved and resumed.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_optim.h"
    #include <stdio.h>
    int main(void) {
        fl_nn_module *net = fl_nn_sequential(fl_nn_linear(2, 8), fl_nn_tanh(), fl_nn_linear(8, 1));
        fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.1, .momentum = 0.9);
        const float in[] = {0, 0, 0, 1, 1, 0, 1, 1}, out[] = {0, 1, 1, 0};
        for (int step = 0; step < 500; step++) {
            fl_scope s = fl_scope_begin();
            fl_var *x = fv_const(fl_from_host(in, FL_SHAPE(4, 2), FL_F32));
            fl_var *y = fv_const(fl_from_host(out, FL_SHAPE(4, 1), FL_F32));
            fl_var *loss = fv_mse_loss(fl_nn_forward(net, x), y, FL_MEAN);
            fl_optim_zero_grad(optim);
            fl_backward(loss);
            fl_optim_step(optim);
            if (step % 100 == 99) printf("step %d, loss %.4f\n", step + 1, fl_item(fv_value(loss)));
            fl_scope_end(&s);
        }
        fl_optim_free(optim);
        fl_nn_free(net);
        return 0;
    }
   <<example

   With parameter groups, f32 master weights, a schedule and gradient clipping without a host read:
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = 1e-3, .master = true);
    fl_optim_group_of(optim, net, "*.bias", .weight_decay = FL_ZERO);
    fl_optim_schedule s = {.kind = FL_LR_COSINE, .total = 1000, .warmup = 50};
    fl_optim_schedule_start(&s, optim);
    ... fl_optim_clip(optim, 1); fl_optim_step(optim); fl_optim_schedule_step(&s); ...

   Contents: the files of fl/optim/.
     optim.h       optimizers: groups, master weights, steps, custom optimizers
     sgd.h         SGD, momentum, Nesterov momentum, averaged SGD
     adam.h        Adam, AdamW, AMSGrad, Adamax, NAdam, RAdam
     adaptive.h    Adadelta, Adagrad, RMSProp, Rprop
     adafactor.h   Adafactor
     lion.h        Lion
     layerwise.h   LAMB, NovoGrad
     muon.h        Muon
     lbfgs.h       L-BFGS, with a closure that evaluates the loss
     clip.h        gradient norms, clipping by norm and by value
     scaler.h      loss scaling for f16
     schedule.h    learning-rate schedules, as functions and as objects
     ema.h         exponential moving average of weights
     checkpoint.h  checkpoints of the whole training state

   Concepts
     Numbers   Formulas and defaults are PyTorch's if it has the optimizer, otherwise the paper's. In
               options 0 means the default; write FL_ZERO for 0.
     Steps     A parameter without a gradient is skipped, and its step count does not advance. Steps read
               lr, counts and the gradients' scale from tensors, without host reads, so a recorded step
               follows fl_optim_set_lr.
     Narrow    States of f16 and bf16 parameters are f32; with .master = true a copy of the parameter is
               kept in f32 too, and rounded.
     Custom    An optimizer type is a table (fl_optim_type): its rule, or functions. States may have any
               shape, such as a factor per axis, and are saved in checkpoints; `destroy` frees
               fl_optim.user.
     Closures  fl_optim_step_closure is for optimizers that evaluate the loss themselves: L-BFGS.
     Batches   Gradients accumulate until fl_optim_zero_grad: for a batch in k parts call fl_backward on
               loss / k for each part, then step once.
     Early     fl_optim_step_in_backward updates parameters during fl_backward, so that their gradients are
     never
               in memory all at once.
     Errors    fl_optim_step fails while an error is pending. On backends with step slots, all possible
               errors of a step occur before the first parameter is written.
     Resuming  A checkpoint contains models, optimizers, schedules, scalers, averages, random generators,
               custom numbers and the position in the data. Training that stops at step k and resumes is
               bit-identical to uninterrupted training. */
#ifndef FL_OPTIM_H
#define FL_OPTIM_H /* its files test this: they need not read the following again */
#endif
#include "fl_nn.h"
FL__GLUE_BEGIN
#include "fl/optim/optim.h"
#include "fl/optim/sgd.h"
#include "fl/optim/adam.h"
#include "fl/optim/adaptive.h"
#include "fl/optim/adafactor.h"
#include "fl/optim/lion.h"
#include "fl/optim/layerwise.h"
#include "fl/optim/muon.h"
#include "fl/optim/lbfgs.h"
#include "fl/optim/clip.h"
#include "fl/optim/scaler.h"
#include "fl/optim/schedule.h"
#include "fl/optim/ema.h"
#include "fl/optim/checkpoint.h"
FL__GLUE_END

/* MIT licence: see LICENSE. */
