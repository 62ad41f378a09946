/* fl.h - the core: tensors, autograd, neural networks, optimizers and data in C11 headers

   >>example
    #define FL_IMPLEMENTATION
    #include "fl.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_arange(0, 4, 1, FL_F32));
        fl_backward(fv_sum(fv_mul(x, x), FL_ALL_AXES));
        fl_print(fv_grad(x)); // 2 x
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Define FL_IMPLEMENTATION before the include in one C file of the program, or compile fl.c beside it.
   Link -lm -lpthread.
   This header declares nothing: each header below explains itself and can be used alone.

     fl_mem.h       errors, log, dtypes, threads, devices, memory managers
     fl_tensor.h    tensors and scopes, and all ops (files in fl/ops/)
     fl_data.h      data sets, loaders, meters, tensors in files (files in fl/data/)
     fl_autograd.h  variables and the tape
     fl_nn.h        modules, layers, initialisation, saving (files in fl/nn/)
     fl_optim.h     optimizers, schedules, clipping, checkpoints

   Not part of it, each included by a program that wants it, with the core below it; fl_all.h has them all:

     fl_text.h      tokenizers, dictionaries, language models
     fl_speech.h    sound, its features, speech recognisers
     fl_vision.h    images, their data sets, transforms, networks, detection
     fl_dist.h      several ranks: collectives, failures, data-parallel training
     fl_backend.h   op tables, call records, slots, hooks: for those who replace or extend the inside

   A header of this list includes the lower ones and its files before any guard, so that a program that defines
   FL_IMPLEMENTATION after a first include still gets all of it. Such a file includes what it uses inside its
   guard, so that it is read once.

   FL_TRACE_CALLS, in files of yours: errors, traces, the first NaN and what is alive tell file and line of
   the call, by a macro for each function in build/calls.h, which `make calls` writes from the prototypes. */
#if defined(FL_TRACE_CALLS) && defined(FL_CALLS_H) && defined(FL_IMPLEMENTATION) && !defined(FL_TENSOR_IMPL)
#error "fl: with FL_TRACE_CALLS define FL_IMPLEMENTATION before the first include: functions are macros now"
#endif
#include "fl_mem.h"
#include "fl_tensor.h"
#include "fl_data.h"
#include "fl_autograd.h"
#include "fl_nn.h"
#include "fl_optim.h"
#ifdef FL_TRACE_CALLS
#include "build/calls.h" /* is it absent? `make calls` in fl's folder writes it */
#endif

/* MIT licence: see LICENSE. */
