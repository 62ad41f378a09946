/* kernels/cuda/fft.h - slot of the FFT on backend cuda */
#ifndef FL_CUDA_FFT_H
#define FL_CUDA_FFT_H
#include "layers.h"
/* Adds the slot of this file to the table. */
FL_PRIVATE void fl__cuda_fft_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_FFT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_FFT_IMPL
#define FL_CUDA_FFT_IMPL
#include "../../fl/records/fft.h"

FL_CUDA_SLOT(fl__cuda_fft) {
    const fl_fft_args *a = c->args;
    const fl_tensor *x = c->in[0];
    if (!fl_out_make(c->out[0])) return false;
    if (!fl_numel(x)) return true;
    flk_fft f = {.n = x->shape[a->axis], .inner = 1, .inverse = a->inverse};
    for (int d = a->axis + 1; d < x->ndim - 1; d++) f.inner *= x->shape[d];
    f.lines = fl_numel(x) / (2 * f.n);
    if (f.n > (int64_t)1 << 31)
        return fl_fail("fl_fft: cuda: the length must be at most 2^31, got %lld", (long long)f.n);
    f.work = fl__cuda_work(c, flk_fft_plan(&f));
    f.x = fl_data(x);
    f.y = fl_data(c->out[0]);
    return f.work && fl__cuda_started(c, flk_fft_run(&f, (int)x->dtype));
}

FL_PRIVATE void fl__cuda_fft_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_fft, fl__cuda_fft, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
