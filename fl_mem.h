/* fl_mem.h - errors, log, dtypes, threads, devices, memory managers, buffers: the lowest layer of fl

   All of fl is built on this header. It does not know tensors: it provides reference-counted buffers of
   bytes, parallel loops on one thread pool, and one error record per thread.

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

   Contents: one file of fl/mem/ per line; each file needs only the files listed before it.
     build.h      build configuration: linkage, attributes, array literals, version
     errors.h     per-thread errors, the error handler, call context for error texts
     log.h        log messages: levels, threshold, sink
     text.h       string builder: appends to a buffer or a file
     dtypes.h     element types, built-in and registered
     heap.h       heap allocation and its hook
     threads.h    thread pool: parallel loops
     records.h    internal: small records on per-thread free lists
     devices.h    memory devices: the host, and registered ones
     buffers.h    reference-counted buffers
     managers.h   memory managers (allocators): selection, statistics, custom managers
     caching.h    the caching manager, the default
     failing.h    fault-injection manager, for tests
     trace.h      trace of buffer events, as a timeline
   Only the implementations of these files include shared.h (global lock, clock, internal functions) and
   thread_cache.h (per-thread caches).

   Macros, all optional
     FL_IMPLEMENTATION  define it in one C file before the include: the implementation is compiled there
     FL_STATIC          all functions static, for one-file programs (implies FL_IMPLEMENTATION)
     FL_BUILD_SHARED    build a shared library: exports the public functions, which are hidden otherwise
     FL_SHARED          for programs that link with the shared library (set by pkg-config)
     FL_IMPL_ONLY, FL_IMPL_ONLY_MEM_HEAP   compile the implementation of one file only, here
                        fl/mem/heap.h (for one object per file)

   Concepts
     Errors   A function that fails records an error text for its thread, leaves its outputs untouched and
              returns NULL or false. While an error is pending, functions given NULL return NULL without a
              new error and the first text is kept, so nested calls need one check. Functions that return a
              value handle also call the handler of fl_set_error_handler; the default handler prints the text
              and aborts. Functions for files, data and devices never abort.
     Threads  One thread pool per process. Work is split by its size, never by the number of threads, so
              results are bit-identical for any number of threads.
     Memory   A buffer gets its bytes from the manager that is current when it is created and returns them
              to that manager. The bytes may be accessed only between fl_buffer_map and fl_buffer_unmap, so
              a manager may move, page out or recompute them. */
#if defined(__cplusplus) && (defined(FL_IMPLEMENTATION) || defined(FL_STATIC))
#error "fl: the implementation is C, not C++: define FL_IMPLEMENTATION in a C file, include only here"
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
#include "fl/mem/trace.h"
#define FL__MEM_DECLARED /* all files are declared: a second include may compile their implementations */
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
#include "fl/mem/trace.h"
#endif

/* MIT licence: see LICENSE. */
