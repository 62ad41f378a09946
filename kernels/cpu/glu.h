/* kernels/cpu/glu.h - gated linear units and their gradient, one pass over x

   x is a beside g along one axis: y = a s, da = dy s, dg = dy a s (1 - s), s = 1 / (1 + exp(-g)). The
   halves are views, so any layout is read where it lies. */
#include "common.h"
#ifndef FL_CPU_GLU_H
#define FL_CPU_GLU_H
#endif

#if defined(FL_IMPL_ONLY_CPU_GLU) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GLU_IMPL
#define FL_CPU_GLU_IMPL
FL__LOOPS_BEGIN

/* p[] is y, a, g;  da, dg, a, g, dy */
#define FL__GLU(T, S, LEVEL, TARGET) \
    TARGET static void FL__CAT3(fl__glu, S, LEVEL)(void *const p[], int64_t n, const void *arg) { \
        T *y = p[0]; \
        const T *a = p[1], *g = p[2]; \
        (void)arg; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) \
            y[i] = a[i] * (1 / (1 + FL__CAT2(flm_exp, S)(-g[i]))); \
    } \
    TARGET static void FL__CAT3(fl__glu_grad, S, LEVEL)( \
        void *const p[], int64_t n, const void *arg) { \
        T *da = p[0], *dg = p[1]; \
        const T *a = p[2], *g = p[3], *dy = p[4]; \
        (void)arg; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T s = 1 / (1 + FL__CAT2(flm_exp, S)(-g[i])), d = dy[i] * s, ai = a[i]; \
            da[i] = d; \
            dg[i] = d * ai * (1 - s); \
        } \
    }
FL__GLU(float, f32, portable, )
FL__GLU(double, f64, portable, )
#ifdef FL__X86_LEVELS
FL__GLU(float, f32_fma, avx2, FL__TARGET_AVX2)
FL__GLU(float, f32_fma, avx512, FL__TARGET_AVX512)
#define FL__GLU_ROW(op) \
    {op##_f32_portable, op##_f32_fma_avx2, op##_f32_fma_avx512, op##_f64_portable}
#else
#define FL__GLU_ROW(op) {op##_f32_portable, NULL, NULL, op##_f64_portable}
#endif
#undef FL__GLU
FL__LOOPS_END

/* Half `which` of t along the axis. */
static fl_tensor fl__glu_half(const fl_tensor *t, int axis, int which) {
    fl_tensor h = *t;
    h.shape[axis] /= 2;
    h.offset += which * h.shape[axis] * h.stride[axis];
    return h;
}

/* Both halves of t as operands. */
static void fl__glu_add(fl__pass *p, const fl_tensor *t, int axis, int access) {
    for (int i = 0; i < 2; i++) {
        const fl_tensor half = fl__glu_half(t, axis, i);
        fl__pass_add_wide(p, &half, access, t->dtype);
    }
}

FL_PRIVATE bool fl__cpu_glu(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__AVX512 + 2] = FL__GLU_ROW(fl__glu);
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    (void)self;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    if (!fl_make(c->out[0])) return false;
    fl__pass p;
    fl__pass_begin(&p, loops[d == FL_F32 ? fl__cpu_isa() : FL__AVX512 + 1], NULL);
    fl__pass_follow(&p, c->out[0]);
    fl__pass_add_wide(&p, c->out[0], FL_WRITE, d);
    fl__glu_add(&p, c->in[0], axis, FL_READ);
    fl__pass_run(&p, fl_numel(c->out[0]));
    return true;
}

FL_PRIVATE bool fl__cpu_glu_grad(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__AVX512 + 2] = FL__GLU_ROW(fl__glu_grad);
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    (void)self;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    if (!fl_make(c->out[0])) return false;
    fl__pass p;
    fl__pass_begin(&p, loops[d == FL_F32 ? fl__cpu_isa() : FL__AVX512 + 1], NULL);
    fl__pass_follow(&p, c->out[0]);
    fl__glu_add(&p, c->out[0], axis, FL_WRITE);
    fl__glu_add(&p, c->in[0], axis, FL_READ);
    fl__pass_add_wide(&p, c->in[1], FL_READ, d);
    fl__pass_run(&p, fl_numel(c->in[1]));
    return true;
}
#undef FL__GLU_ROW

#endif
#endif
/* MIT licence: see LICENSE. */
