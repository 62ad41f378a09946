/* fl_optim.h - optimizers, learning-rate schedules, gradient clipping, weight averages, checkpoints

   An optimizer is a list of parameters, a few numbers, and a rule: formulas of the new parameter and of what
   is remembered about it, which run in one pass over memory. What it remembers has names, so any optimizer,
   one of yours too, is saved and resumed.

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

   And with groups, masters, a schedule and a bound on the gradients' norm that no host reads.
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = 1e-3, .master = true);
    fl_optim_group_of(optim, net, "*.bias", .weight_decay = FL_ZERO);
    fl_optim_schedule s = {.kind = FL_LR_COSINE, .total = 1000, .warmup = 50};
    fl_optim_schedule_start(&s, optim);
    ... fl_optim_clip(optim, 1); fl_optim_step(optim); fl_optim_schedule_step(&s); ...

   Contents: one room of fl/optim/ each.
     optim.h       what an optimizer is: groups, masters, steps; one of your own
     sgd.h         SGD, momentum, Nesterov's, averaged SGD
     adam.h        Adam, AdamW, AMSGrad, Adamax, NAdam, RAdam
     adaptive.h    Adadelta, Adagrad, RMSProp, Rprop
     adafactor.h   Adafactor
     lion.h        Lion
     layerwise.h   LAMB, NovoGrad
     muon.h        Muon
     lbfgs.h       L-BFGS, whose step evaluates the loss itself
     clip.h        norms of gradients, clipping by norm and value
     scaler.h      loss scaling for f16
     schedule.h    learning rates over time, as functions and as objects
     ema.h         averages of weights
     checkpoint.h  all of it in files

   Concepts
     Numbers   Formulas and defaults are PyTorch's where it has the optimizer, else the paper's. In
               options 0 is the default; where 0 is meant, write FL_ZERO.
     Steps     A parameter without a gradient is skipped, and its own count of steps stands still.
               Steps read lr, counts and the gradients' factor from tensors, nothing is read back: one
               that was recorded follows fl_optim_set_lr.
     Narrow    What is remembered about an f16 or bf16 parameter is f32; .master = true keeps the
               parameter itself in f32 too, and rounds.
     Your own  A type is a table (fl_optim_type): its rule, or functions. States may have any shape, such as a
               factor for each axis, and are in checkpoints all the same; fl_optim.user is freed by `destroy`.
     Closures  fl_optim_step_closure is for optimizers that evaluate the loss themselves: L-BFGS.
     Batches   Gradients add up until fl_optim_zero_grad: for a batch in k parts call fl_backward on
               loss / k of each, then step once.
     Early     fl_optim_step_early has parameters updated within fl_backward, whose gradients then never
               are in memory together.
     Errors    fl_optim_step refuses while an error is pending. All that can fail of a step on a
               backend with step slots fails before the first parameter is written.
     Resuming  A checkpoint holds models, optimizers, schedules, scalers, averages, generators, numbers
               of yours and where you were. Training that stops at step k and resumes gives the same
               bits as training that did not. */
#ifndef FL_OPTIM_H
#define FL_OPTIM_H /* for rooms, which need no second look at all that follows */
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
