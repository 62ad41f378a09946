/* examples/extend/own_op.cu - the op of own_op.h on backend cuda: one kernel instead of a composition of five

   nvcc -O2 -I. -c examples/extend/own_op.cu && make CUDA=1 lib
   cc -O2 -I. examples/extend/own_op.c own_op.o -Lbuild -lfl    (FL_DEVICE=cuda ./a.out)

   snake_register of own_op.h calls snake_on_cuda where this file is linked. */
#include "../../fl_cuda.h"
#include <cuda_runtime.h>
#include <math.h>

template <class T> __global__ void snake_kernel(T *y, const T *x, int64_t n, T a) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + sin(a * x[i]) * sin(a * x[i]) / a;
}

template <class T> static bool launch(const fl_call *c, double a) {
    int64_t n = fl_numel(c->in[0]);
    const T *x = (const T *)fl_data(c->in[0]);
    T *y = (T *)fl_data(c->out[0]), factor = (T)a;
    void *args[] = {&y, &x, &n, &factor};
    if (!n) return true;
    const dim3 blocks((unsigned)((n + 255) / 256)), threads(256);
    const cudaStream_t stream = (cudaStream_t)fl_cuda_stream();
    return fl_cuda_launched(c, cudaLaunchKernel(snake_kernel<T>, blocks, threads, args, 0, stream));
}

/* Narrower dtypes arrive as f32. The arguments are own_op.h's snake_args. */
FL_CUDA_SLOT(snake_slot) {
    const double a = *(const double *)c->args;
    if (!fl_out_make(c->out[0])) return false;
    return c->in[0]->dtype == FL_F32 ? launch<float>(c, a) : launch<double>(c, a);
}

extern "C" bool snake_on_cuda(fl_op op) {
    return fl_cuda_set(op, snake_slot, FL_SLOT_CONTIGUOUS);
}
/* MIT licence: see LICENSE. */
