/* fl_mem.h - errors, log, dtypes, threads, devices, memory managers and buffers: the ground floor
   of fl

   Everything in fl stands on this header. It knows no tensors: it hands out reference-counted
   buffers of bytes, runs loops on one pool of threads, and keeps the error of each thread.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_mem.h"
    #include <stdio.h>
    static void square(void *arg, int64_t begin, int64_t end) {
        float *x = arg;
        for (int64_t i = begin; i < end; i++) x[i] *= x[i];
    }
    int main(void) {
        fl_buffer *b = fl_buffer_new(1000 * sizeof(float), NULL);
        float *x = fl_buffer_map(b);
        for (int i = 0; i < 1000; i++) x[i] = (float)i;
        fl_parallel(1000, 256, square, x);
        printf("%g\n", x[999]); // 998001
        fl_buffer_unmap(b);
        fl_buffer_drop(b);
        return 0;
    }
   <<example

   Contents: one file of fl/mem/ each; what a file declares needs only files before it.
     build.h      how fl is compiled: linkage, attributes, arrays as arguments, the version
     errors.h     the error of each thread, its handler, and who is at work
     log.h        messages: levels, threshold, sink
     text.h       text that grows, in a buffer or a file
     dtypes.h     types of elements, those of yours too
     heap.h       small allocations and their hook
     threads.h    the thread pool
     records.h    between the files of fl: small records on free lists
     devices.h    where memory is: the host, and devices of others
     buffers.h    reference-counted bytes
     managers.h   who gives buffers their bytes: which one serves, figures, one of your own
     caching.h    the manager that serves by default
     failing.h    one that fails, for tests
     arena.h      one that plans the offsets of a step
     trace.h      a timeline of what buffers did
   Only implementations of these include shared.h, one lock and what else they have in common, and
   thread_cache.h, what each thread keeps for itself.

   Macros, all optional
     FL_IMPLEMENTATION  define it in one C file before the include: compiles the
                        implementation there
     FL_STATIC          everything static, for one-file programs (implies FL_IMPLEMENTATION)
     FL_BUILD_SHARED    export the public functions from a shared library; they are hidden otherwise
     FL_SHARED          in programs that are linked with one (pkg-config says so)
     FL_IMPL_ONLY, FL_IMPL_ONLY_MEM_HEAP   compile the implementation of one file alone, here
                        fl/mem/heap.h (one object per file)

   Concepts
     Errors   A function that fails records one text for its thread and returns NULL or false,
              outputs untouched. While an error is pending NULL operands pass silently and the first
              text stays, so nested calls need one check. Failures of functions that return a value
              handle reach the handler of fl_on_error: the default one prints and stops. Functions
              about files, data and devices never stop.
     Threads  One pool per process. Work is cut by its size, never by the number of threads, so any
              number of threads computes the same bits.
     Memory   A buffer takes its bytes from the manager in use when it is made and returns them
              there. Its bytes are reached between fl_buffer_map and fl_buffer_unmap only, so a
              manager may move, page or recompute them. */
#if defined(__cplusplus) && (defined(FL_IMPLEMENTATION) || defined(FL_STATIC))
#error "fl: its implementation is C: define FL_IMPLEMENTATION in a C file, and only include fl here"
#undef FL_IMPLEMENTATION
#undef FL_STATIC
#endif
#ifndef FL_MEM_H
#define FL_MEM_H
#include "fl/mem/build.h"
#include "fl/mem/errors.h"
#include "fl/mem/log.h"
#include "fl/mem/text.h"
#include "fl/mem/dtypes.h"
#include "fl/mem/heap.h"
#include "fl/mem/threads.h"
#include "fl/mem/records.h"
#include "fl/mem/devices.h"
#include "fl/mem/buffers.h"
#include "fl/mem/managers.h"
#include "fl/mem/caching.h"
#include "fl/mem/failing.h"
#include "fl/mem/arena.h"
#include "fl/mem/trace.h"
#define FL__MEM_DECLARED /* all of them, so that each can be implemented, by a second include */
#endif

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY) && !defined(FL_MEM_FILES_IMPL)
#define FL_MEM_FILES_IMPL
#include "fl/mem/build.h"
#include "fl/mem/errors.h"
#include "fl/mem/log.h"
#include "fl/mem/text.h"
#include "fl/mem/dtypes.h"
#include "fl/mem/heap.h"
#include "fl/mem/threads.h"
#include "fl/mem/records.h"
#include "fl/mem/devices.h"
#include "fl/mem/buffers.h"
#include "fl/mem/managers.h"
#include "fl/mem/caching.h"
#include "fl/mem/failing.h"
#include "fl/mem/arena.h"
#include "fl/mem/trace.h"
#endif

/* MIT licence: see LICENSE. */
