/* kernels/cpu/norm.h - layer norm and its gradient */
#include "common.h"
#ifndef FL_CPU_NORM_H
#define FL_CPU_NORM_H
#endif

#if defined(FL_IMPL_ONLY_CPU_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_NORM_IMPL
#define FL_CPU_NORM_IMPL

FL_PRIVATE bool fl__cpu_layer_norm(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__run_composed(c);
}

FL_PRIVATE bool fl__cpu_layer_norm_grad(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__run_composed(c);
}

#endif
#endif
/* MIT licence: see LICENSE. */
