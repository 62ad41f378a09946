/* fl_cuda.h - kernels of yours on backend cuda: slots, streams, kernels compiled from source

   A kernel of yours is a slot of an op (fl_backend.h). Defined by FL_CUDA_SLOT it has what fl's own have: the
   call's device and stream, which waits for other streams' work on the operands; the order of several
   threads; capture by CUDA graphs. The kernel is compiled by nvcc (examples/extend/own_op.cu), or is text
   that NVRTC compiles when it first runs, as here:

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_cuda.h"
    static fl_op op_twice;
    static bool twice_compose(const fl_call *c, fl_tensor **y) {
        return (y[0] = fl_add(c->in[0], c->in[0])) != NULL;
    }
    FL_CUDA_SLOT(twice_cuda) {
        static const char *const source =
            "extern \"C\" __global__ void twice(float *y, const float *x, int64_t n) {\n"
            "    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;\n"
            "    if (i < n) y[i] = 2 * x[i];\n"
            "}\n";
        if (c->in[0]->dtype != FL_F32) return fl_call_compose(c);
        if (!fl_out_make(c->out[0])) return false;
        void *y = fl_data(c->out[0]), *x = fl_data(c->in[0]);
        int64_t n = fl_numel(c->in[0]);
        return fl_cuda_launch(c, source, "twice", (n + 255) / 256, 256, (void *[]){&y, &x, &n});
    }
    int main(void) {
        static const fl_op_info info = {.name = "twice", .uses = "add", .compose = twice_compose};
        fl_scope s = fl_scope_begin();
        op_twice = fl_op_register(&info);
    #ifdef FL_USE_CUDA
        fl_cuda_set(op_twice, twice_cuda, FL_SLOT_CONTIGUOUS);
    #else
        (void)twice_cuda; // fl was built without CUDA=1: the composition runs
    #endif
        fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
        fl_print(fl_call_into(op_twice, fl_out_like(x, FL_F32), x, NULL, NULL));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Call fl_cuda_set before other threads start. In builds of fl without CUDA these functions are errors.

   Contents: search for the marker.
     >>slots >>launches >>implementation */
#if defined(FL_CALLS_H) && !defined(FL_CUDA_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_cuda.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_CUDA_DECLARED
#include "fl_backend.h"
#ifndef FL_CUDA_H
#define FL_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>slots -------------------------------------------------------------------------------------- */

/* Defines a slot, static bool name(const fl_backend *self, const fl_call *c), whose body launches kernels on
   the operands of c, and does not wait for them. */
#define FL_CUDA_SLOT(name) \
    static bool name##_body(const fl_backend *self, const fl_call *c); \
    static bool name(const fl_backend *self, const fl_call *c) { \
        return fl_cuda_slot(self, c, name##_body); \
    } \
    static bool name##_body(const fl_backend *self __attribute__((unused)), const fl_call *c)
/* Runs the body of such a slot, with self's device as the current one, on this thread's stream (fl_stream),
   after the work of other streams on the operands. Other threads launch nothing meanwhile. */
FL_API bool fl_cuda_slot(const fl_backend *self, const fl_call *c, fl_slot body);
/* Sets the op's slot on cuda and all of cuda:1 ..., with the flags of fl_backend_set. */
FL_API bool fl_cuda_set(fl_op op, fl_slot slot, unsigned flags);

/* >>launches ----------------------------------------------------------------------------------- */

/* In a slot: the stream to launch on, a cudaStream_t. Work that fl has queued is launched first, as optimizer
   steps are. */
FL_API void *fl_cuda_stream(void);
/* In a slot, after launches: reports a failure of queued work, or `error`, the result of cudaGetLastError or
   cudaLaunchKernel, unless it is 0, as an error of c's op. Returns false after an error. */
FL_API bool fl_cuda_launched(const fl_call *c, int error);
/* In a slot: launches `extern "C" __global__ void name(...)` of a CUDA C text on the stream; args has the
   address of each argument. The first launch compiles it with NVRTC for the device, about 0.2 s; equal texts
   are compiled once. The integers of stdint.h and the functions of kernels/fl_math.h are declared. Errors:
   what NVRTC says of the text; NVRTC is not installed; a text that is new while a graph is captured. */
FL_API bool fl_cuda_launch(const fl_call *c, const char *source, const char *name, int64_t blocks,
                           int threads, void **args);

#ifdef __cplusplus
}
#endif
#endif /* FL_CUDA_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_CUDA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_CUDA_IMPL) && !defined(FL_USE_CUDA) /* with it: kernels/cuda/backend.h, program.h */
#define FL_CUDA_IMPL

static bool fl__cuda_absent(const char *fn) {
    return fl_fail("%s: fl was built without backend cuda: make CUDA=1", fn);
}

FL_API bool fl_cuda_slot(const fl_backend *self, const fl_call *c, fl_slot body) {
    return (void)self, (void)c, (void)body, fl__cuda_absent("fl_cuda_slot");
}

FL_API bool fl_cuda_set(fl_op op, fl_slot slot, unsigned flags) {
    return (void)op, (void)slot, (void)flags, fl__cuda_absent("fl_cuda_set") || fl_raise();
}

FL_API void *fl_cuda_stream(void) {
    return fl__cuda_absent("fl_cuda_stream"), NULL;
}

FL_API bool fl_cuda_launched(const fl_call *c, int error) {
    return (void)c, (void)error, fl__cuda_absent("fl_cuda_launched");
}

FL_API bool fl_cuda_launch(const fl_call *c, const char *source, const char *name, int64_t blocks,
                           int threads, void **args) {
    return (void)c, (void)source, (void)name, (void)blocks, (void)threads, (void)args,
           fl__cuda_absent("fl_cuda_launch");
}

#endif
#endif
/* MIT licence: see LICENSE. */
