/* kernels/cpu/step.h - SGD and Adam, one pass over the parameter and its state, in place

   Formulas in fl/ops/step.h. The settings are rounded to the parameter's dtype once. */
#include "../../fl/ops/step.h"
#include "common.h"
#ifndef FL_CPU_STEP_H
#define FL_CPU_STEP_H
FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_STEP_IMPL
#define FL_CPU_STEP_IMPL
FL__LOOPS_BEGIN

/* >>sgd: p[] is g, p, m */

#define FL__SGD(T, S, LEVEL, TARGET) \
    TARGET static void FL__CAT3(fl__sgd, S, LEVEL)(void *const p[], int64_t n, const void *arg) { \
        const fl_sgd_args *a = arg; \
        const T lr = (T)a->lr, decay = (T)a->weight_decay; \
        const T *g = p[0]; \
        T *w = p[1]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T gi = decay != 0 ? g[i] + decay * w[i] : g[i]; \
            w[i] -= lr * gi; \
        } \
    } \
    TARGET static void FL__CAT3(fl__sgd_momentum, S, LEVEL)( \
        void *const p[], int64_t n, const void *arg) { \
        const fl_sgd_args *a = arg; \
        const T lr = (T)a->lr, decay = (T)a->weight_decay, momentum = (T)a->momentum; \
        const T share = (T)(a->first ? 1 : 1 - a->dampening); \
        const bool nesterov = a->nesterov; \
        const T *g = p[0]; \
        T *w = p[1], *m = p[2]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T gi = decay != 0 ? g[i] + decay * w[i] : g[i]; \
            const T mi = momentum * m[i] + share * gi; \
            m[i] = mi; \
            w[i] -= lr * (nesterov ? gi + momentum * mi : mi); \
        } \
    }

/* >>adam: p[] is g, p, m, v */

#define FL__ADAM(T, S, LEVEL, TARGET) \
    TARGET static void FL__CAT3(fl__adam, S, LEVEL)(void *const p[], int64_t n, const void *arg) { \
        const fl_adam_args *a = arg; \
        const T beta1 = (T)a->beta1, rest1 = (T)(1 - a->beta1); \
        const T beta2 = (T)a->beta2, rest2 = (T)(1 - a->beta2); \
        const T l2 = a->decoupled ? 0 : (T)a->weight_decay; \
        const T shrink = a->decoupled ? (T)(a->lr * a->weight_decay) : 0; \
        const T rate = (T)(a->lr / a->bias1), root = (T)sqrt(a->bias2), eps = (T)a->eps; \
        const T *g = p[0]; \
        T *w = p[1], *m = p[2], *v = p[3]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T wi = shrink != 0 ? w[i] - shrink * w[i] : w[i]; \
            const T gi = l2 != 0 ? g[i] + l2 * w[i] : g[i]; \
            const T mi = beta1 * m[i] + rest1 * gi, vi = beta2 * v[i] + rest2 * (gi * gi); \
            m[i] = mi; \
            v[i] = vi; \
            w[i] = wi - rate * mi / (FL__CAT2(flm_sqrt, S)(vi) / root + eps); \
        } \
    }

#define FL__STEPS(T, S, LEVEL, TARGET) FL__SGD(T, S, LEVEL, TARGET) FL__ADAM(T, S, LEVEL, TARGET)
FL__STEPS(float, f32, portable, )
FL__STEPS(double, f64, portable, )
#ifdef FL__X86_LEVELS
FL__STEPS(float, f32, avx2, FL__TARGET_AVX2)
FL__STEPS(float, f32, avx512, FL__TARGET_AVX512)
#define FL__STEP_ROW(op) {op##_f32_portable, op##_f32_avx2, op##_f32_avx512, op##_f64_portable}
#else
#define FL__STEP_ROW(op) {op##_f32_portable, NULL, NULL, op##_f64_portable}
#endif
#undef FL__SGD
#undef FL__ADAM
#undef FL__STEPS

/* Small dense tensors, as the many biases of a network, go straight to the loop. */
static bool fl__step_at_once(const fl_call *c, fl__loop loop) {
    void *at[4] = {fl_data(c->in[0])};
    if (fl_numel(c->in[0]) > FL__GRAIN || !fl_is_contiguous(c->in[0])) return false;
    for (int k = 0; k < c->n_out; k++) {
        if (!fl_is_contiguous(c->out[k])) return false;
        at[k + 1] = fl_data(c->out[k]);
    }
    loop(at, fl_numel(c->in[0]), c->args);
    return true;
}

/* in[] is the gradient, then what is written: out[]. */
static bool fl__run_step(const fl_call *c, const fl__loop loops[FL__AVX512 + 2]) {
    fl_dtype d = c->in[0]->dtype;
    if (d != FL_F32 && d != FL_F64) return fl__no_kernel(c, d);
    fl__loop loop = loops[d == FL_F32 ? fl__cpu_isa() : FL__AVX512 + 1];
    for (int k = 0; k < c->n_out; k++)
        if (!fl_make(c->out[k])) return false;
    if (fl__step_at_once(c, loop)) return true;
    fl__pass p;
    fl__pass_begin(&p, loop, c->args);
    fl__pass_follow(&p, c->out[0]);
    fl__pass_add(&p, c->in[0], FL_READ, d);
    for (int k = 0; k < c->n_out; k++) fl__pass_add(&p, c->out[k], FL_READ | FL_WRITE, d);
    fl__pass_run(&p, fl_numel(c->out[0]));
    return true;
}

static bool fl__cpu_sgd_step(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[2][FL__AVX512 + 2] = {FL__STEP_ROW(fl__sgd),
                                                      FL__STEP_ROW(fl__sgd_momentum)};
    (void)self;
    return fl__run_step(c, loops[c->n_out > 1]);
}

static bool fl__cpu_adam_step(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL__AVX512 + 2] = FL__STEP_ROW(fl__adam);
    (void)self;
    return fl__run_step(c, loops);
}
#undef FL__STEP_ROW

FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_sgd_step, fl__cpu_sgd_step, 0);
    fl_backend_set(cpu, fl_op_adam_step, fl__cpu_adam_step, 0);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
