/* kernels/cpu/conv/conv.h - 2-D convolution and its two gradients on the CPU: chooses the algorithm of each
   call

   winograd.h computes 3 x 3 and 5 x 5 kernels with fewer products, im2col.h those whose weights are larger
   than the images as matrix products, depthwise.h channels that have a kernel each. Everything else goes
   through direct.h, its weight gradients through weight.h. If operands may be rounded to bf16
   (fl_set_matmul_precision), amx.h comes first, but vdpbf16ps leaves to f32 what Winograd's algorithm
   computes with a quarter of the products. Of the others only the matrix products round their operands:
   Winograd's transforms of rounded values would lose too many bits.

   Work is cut by size only, so the bits do not depend on the number of threads. The layout decides which
   algorithm runs, but the results of each algorithm are layout-independent. Tests and benchmarks may force an
   algorithm: force.h. */
#ifndef FL_CPU_CONV_CONV_H
#define FL_CPU_CONV_CONV_H
#include "../../../fl/records/conv.h"
#include "../bf16.h"
#include "amx.h"
#include "depthwise.h"
#include "direct.h"
#include "im2col.h"
#include "weight.h"
#include "winograd.h"
#include "../force.h"
#include "../slots.h"
/* Registers the slots of registered ops. */
FL_PRIVATE void fl__cpu_conv_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_CONV_CONV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_CONV_IMPL
#define FL_CPU_CONV_CONV_IMPL
#include <string.h>

static bool fl__conv_by_size(void) {
    return fl__cpu_forced() == FL__BY_SIZE || fl__cpu_forced() == FL__TILES;
}

/* Whether v is computed as a product of operands rounded to bf16. */
static bool fl__conv_rounds(const fl__conv *v) {
    if (!fl__conv_by_size() || !fl__conv_amx_takes(v)) return false;
    return !fl__bf16_is_vdpbf16() || !fl__winograd_can(v) || !fl__winograd_pays(v, FL__WINO_TILES_VDPBF16);
}

static bool fl__conv_by_winograd(const fl__conv *v) {
    const bool by_size = fl__conv_by_size();
    return (fl__cpu_forced() == FL__WINOGRAD || by_size) && fl__winograd_can(v) &&
           (!by_size || fl__winograd_pays(v, FL__WINO_TILES_F32));
}

static bool fl__conv_run(const fl__conv *v) {
    const fl__algorithm forced = fl__cpu_forced();
    const bool by_size = fl__conv_by_size();
    if (fl__conv_rounds(v)) return fl__conv_amx_run(v);
    if (fl__conv_by_winograd(v)) return fl__winograd_run(v);
    if (forced != FL__DIRECT && fl__depthwise_can(v)) return fl__depthwise_run(v);
    if ((forced == FL__IM2COL || by_size) && fl__im2col_can(v) && (!by_size || fl__im2col_pays(v)))
        return fl__im2col_run(v);
    return v->direction == FL__CONV_WEIGHT ? fl__weight_run(v) : fl__direct_run(v);
}

/* Returns true if the output has no elements, or is the gradient of an empty sum, which it sets to 0. */
static bool fl__conv_nothing(const fl_call *c, fl__conv_direction direction) {
    const int64_t n = fl_numel(c->out[0]);
    if (direction == FL__CONV_FORWARD) return n == 0;
    if (n > 0 && fl_numel(c->in[0]) > 0 && fl_numel(c->in[1]) > 0) return false;
    if (n > 0) memset(fl_data(c->out[0]), 0, (size_t)n * fl_dtype_size(c->out[0]->dtype));
    return true;
}

/* Allocates the output of c and computes it. Two algorithms read f16 and bf16; for all others they are cast
   to f32. */
static bool fl__conv_call(const fl_call *c, fl__conv_direction direction, const fl_tensor *x,
                          const fl_tensor *w, const fl_tensor *y) {
    fl__conv v;
    if (fl_is_narrow(x)) {
        v = fl__conv_of(c, direction, x, w, y);
        if (!fl__conv_rounds(&v) && !fl__conv_by_winograd(&v)) return fl__call_widen(c);
    }
    if (!fl_out_make(c->out[0])) return false;
    if (fl__conv_nothing(c, direction)) return true;
    v = fl__conv_of(c, direction, x, w, y);
    return fl__conv_run(&v);
}

/* conv2d and conv2d_bias: x [n, c, h, w], w [o, c / groups, kh, kw], [bias o] -> [n, o, oh, ow]; any strides;
   f32, f64. */
FL_PRIVATE bool fl__cpu_conv2d(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__conv_call(c, FL__CONV_FORWARD, c->in[0], c->in[1], c->out[0]);
}

/* dy, w -> dx */
FL_PRIVATE bool fl__cpu_conv2d_grad_input(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__conv_call(c, FL__CONV_DATA, c->out[0], c->in[1], c->in[0]);
}

/* x, dy -> dw */
FL_PRIVATE bool fl__cpu_conv2d_grad_weight(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl__conv_call(c, FL__CONV_WEIGHT, c->in[0], c->out[0], c->in[1]);
}

FL_PRIVATE void fl__cpu_conv_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_conv2d_bias, fl__cpu_conv2d, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
