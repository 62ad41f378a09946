/* kernels/cpu/glu.h - gated linear units and their gradient, in one pass over x

   x is a and g, concatenated along one axis: y = a s, da = dy s, dg = dy a s (1 - s), s = 1 / (1 + exp(-g)).
   The halves are views, so any layout is read in place. */
#ifndef FL_CPU_GLU_H
#define FL_CPU_GLU_H
#include "slots.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_glu_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_GLU) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GLU_IMPL
#define FL_CPU_GLU_IMPL
#include "../../fl/records/activation.h"
FL__LOOPS_BEGIN

#define FL__LEVEL_TEXT "glu.inc"
#define FL__UNIT glu
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
FL__LOOPS_END

/* Half `which` of t along the axis, a view. */
static fl_tensor fl__glu_half(const fl_tensor *t, int axis, int which) {
    fl_tensor h = *t;
    h.shape[axis] /= 2;
    h.offset += which * h.shape[axis] * h.stride[axis];
    return h;
}

/* Adds both halves of t as operands. */
static void fl__glu_add(fl__pass *p, const fl_tensor *t, int axis, int access) {
    for (int i = 0; i < 2; i++) {
        const fl_tensor half = fl__glu_half(t, axis, i);
        fl__pass_add_wide(p, &half, access, t->dtype);
    }
}

static bool fl__cpu_glu(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__VARIANTS] = {FL__AT_FLOATS(fl__glu_value)};
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    (void)self;
    if (!loops[fl__variant(d)]) return fl__no_kernel(c, d);
    if (!fl_out_make(c->out[0])) return false;
    fl__pass p;
    fl__pass_begin(&p, loops[fl__variant(d)], NULL);
    fl__pass_follow(&p, c->out[0]);
    fl__pass_add_wide(&p, c->out[0], FL_WRITE, d);
    fl__glu_add(&p, c->in[0], axis, FL_READ);
    fl__pass_run(&p, fl_numel(c->out[0]));
    return true;
}

static bool fl__cpu_glu_grad(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__VARIANTS] = {FL__AT_FLOATS(fl__glu_grad)};
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    (void)self;
    if (!loops[fl__variant(d)]) return fl__no_kernel(c, d);
    if (!fl_out_make(c->out[0])) return false;
    fl__pass p;
    fl__pass_begin(&p, loops[fl__variant(d)], NULL);
    fl__pass_follow(&p, c->out[0]);
    fl__glu_add(&p, c->out[0], axis, FL_WRITE);
    fl__glu_add(&p, c->in[0], axis, FL_READ);
    fl__pass_add_wide(&p, c->in[1], FL_READ, d);
    fl__pass_run(&p, fl_numel(c->in[1]));
    return true;
}

FL_PRIVATE void fl__cpu_glu_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_glu, fl__cpu_glu, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_glu_grad, fl__cpu_glu_grad, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
