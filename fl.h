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

   Define FL_IMPLEMENTATION before the include in one C file of the program, or compile fl.c and link it.
   Link with -lm -lpthread. This header declares nothing itself: each header below has its own manual and can
   be used alone.

     fl_mem.h       errors, log, dtypes, threads, devices, memory managers
     fl_tensor.h    tensors and scopes, and all ops (files in fl/ops/)
     fl_data.h      data sets, loaders, meters, tensors in files (files in fl/data/)
     fl_autograd.h  variables and the tape
     fl_nn.h        modules, layers, initialisation, saving (files in fl/nn/)
     fl_optim.h     optimizers, schedules, clipping, checkpoints

   Separate packages, included by programs that need them (each includes the core; fl_all.h includes all):

     fl_text.h      tokenizers, dictionaries, language models
     fl_speech.h    audio, features, speech recognition
     fl_vision.h    images, data sets, transforms, networks, detection
     fl_dist.h      distributed training: collectives, fault tolerance, data parallelism
     fl_graph.h     deferred and static execution
     fl_backend.h   op tables, call records, kernel slots, hooks: for writing ops and backends

   These headers include the headers they need and their own files outside the include guard, so that
   FL_IMPLEMENTATION may be defined before a second include. The files in the folders include what they use
   inside their guards.

   FL_TRACE_CALLS, defined before the include: errors, traces, the NaN finder and the list of live objects
   report file and line of the call, by a macro per function in build/calls.h, which `make calls`
   generates. */
#if defined(FL_TRACE_CALLS) && defined(FL_CALLS_H) && defined(FL_IMPLEMENTATION) && !defined(FL_TENSOR_IMPL)
#error "fl: with FL_TRACE_CALLS, define FL_IMPLEMENTATION before the first include of fl"
#endif
#include "fl_mem.h"
#include "fl_tensor.h"
#include "fl_data.h"
#include "fl_autograd.h"
#include "fl_nn.h"
#include "fl_optim.h"
#ifdef FL_TRACE_CALLS
#include "build/calls.h" /* if it is missing, run `make calls` in fl's folder */
#endif

/* MIT licence: see LICENSE. */
