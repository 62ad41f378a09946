/* fl.h - the whole family: tensors, autograd, neural networks, optimizers and data in C11 headers

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
     fl_tensor.h    tensors, scopes, the call record, backends, and all ops (rooms in fl/ops/)
     fl_data.h      data sets, loaders, meters, tensors in files (rooms in fl/data/)
     fl_autograd.h  variables and the tape
     fl_nn.h        modules, layers, initialisation, saving (rooms in fl/nn/)
     fl_optim.h     optimizers, schedules, clipping, checkpoints
     fl_text.h      tokenizers, dictionaries, language models (rooms in fl/text/)
     fl_speech.h    sound, its features, recognisers of speech (rooms in fl/speech/)
     fl_vision.h    images, their data sets, transforms, networks, detection
     fl_dist.h      several ranks: collectives, failures; data-parallel training (rooms in fl/dist/)

   A header of this list includes the lower ones and its rooms before any guard, so that whoever defines
   FL_IMPLEMENTATION after a first include still gets all of it. A room includes what it uses inside its
   guard: it is read once, not once for each file that uses it.

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
#include "fl_text.h"
#include "fl_speech.h"
#include "fl_vision.h"
#include "fl_dist.h"
#include "fl/dist/train.h"
#ifdef FL_TRACE_CALLS
#include "build/calls.h" /* is it absent? `make calls` in fl's folder writes it */
#endif

/* MIT licence: see LICENSE. */
