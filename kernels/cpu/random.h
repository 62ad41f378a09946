/* kernels/cpu/random.h - random tensors and dropout

   Every element is a function of its row-major position and the generator's state alone
   (fl_random_args), so threads and layouts do not matter. */
#include "common.h"
#ifndef FL_CPU_RANDOM_H
#define FL_CPU_RANDOM_H
#endif

#if defined(FL_IMPL_ONLY_CPU_RANDOM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_RANDOM_IMPL
#define FL_CPU_RANDOM_IMPL
FL__LOOPS_BEGIN

#define FL__PHILOX(LEVEL, TARGET) \
    TARGET static void fl__philox_##LEVEL(uint32_t *w, uint64_t key, uint64_t block, int64_t n) { \
        for (int64_t j = 0; j < n; j++) flm_philox(key, block + (uint64_t)j, w + 4 * j); \
    }
FL__PHILOX(portable, )
#ifdef FL__X86_LEVELS
FL__PHILOX(avx2, FL__TARGET_AVX2)
FL__PHILOX(avx512, FL__TARGET_AVX512)
#endif
#undef FL__PHILOX

/* The n words from word `first`, a multiple of 4; w has room for a multiple of 4. */
static void fl__random_words(uint32_t *w, fl_rng rng, int64_t first, int64_t n) {
    uint64_t block = rng.counter + (uint64_t)first / 4;
    int64_t blocks = fl__ceil_div(n, 4);
#ifdef FL__X86_LEVELS
    int level = fl__cpu_isa();
    if (level == FL__AVX512) fl__philox_avx512(w, rng.key, block, blocks);
    else if (level == FL__AVX2) fl__philox_avx2(w, rng.key, block, blocks);
    else
#endif
        fl__philox_portable(w, rng.key, block, blocks);
}

static void fl__uniform_f32(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_random_args *r = arg;
    const float a = (float)r->a, width = (float)(r->b - r->a);
    uint32_t w[FL__BLOCK];
    float *y = dst;
    fl__random_words(w, r->rng, begin, n);
    for (int64_t i = 0; i < n; i++) y[i] = a + width * flm_uniform_f32(w[i]);
}

static void fl__uniform_f64(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_random_args *r = arg;
    uint32_t w[2 * FL__BLOCK];
    double *y = dst;
    fl__random_words(w, r->rng, 2 * begin, 2 * n);
    for (int64_t i = 0; i < n; i++)
        y[i] = r->a + (r->b - r->a) * flm_uniform_f64(w[2 * i + 1], w[2 * i]);
}

/* Both numbers of a pair are made, also if only the first is wanted: begin is even. */
static void fl__normal_f32(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_random_args *r = arg;
    const float mean = (float)r->a, deviation = (float)r->b;
    uint32_t w[FL__BLOCK];
    float z[FL__BLOCK], *y = dst;
    fl__random_words(w, r->rng, begin, n);
    for (int64_t i = 0; i < n; i += 2) flm_normal_f32(w[i], w[i + 1], z + i);
    for (int64_t i = 0; i < n; i++) y[i] = mean + deviation * z[i];
}

static void fl__normal_f64(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_random_args *r = arg;
    uint32_t w[2 * FL__BLOCK];
    double z[FL__BLOCK], *y = dst;
    fl__random_words(w, r->rng, 2 * begin, 2 * n);
    for (int64_t i = 0; i < n; i += 2) flm_normal_f64(w + 2 * i, z + i);
    for (int64_t i = 0; i < n; i++) y[i] = r->a + r->b * z[i];
}

static void fl__integer_i64(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl_random_args *r = arg;
    const uint64_t low = (uint64_t)r->ia, range = (uint64_t)r->ib - low;
    uint32_t w[2 * FL__BLOCK];
    int64_t *y = dst;
    fl__random_words(w, r->rng, 2 * begin, 2 * n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (int64_t)(low + flm_bounded(w[2 * i + 1], w[2 * i], range));
}

static fl__sequence fl__distribution(fl_dist dist, fl_dtype dtype) {
    if (dist == FL_INTEGER) return dtype == FL_I64 ? fl__integer_i64 : NULL;
    if (dtype == FL_F32) return dist == FL_NORMAL ? fl__normal_f32 : fl__uniform_f32;
    if (dtype == FL_F64) return dist == FL_NORMAL ? fl__normal_f64 : fl__uniform_f64;
    return NULL;
}

FL_PRIVATE bool fl__cpu_random(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_random_args *args = c->args;
    fl__sequence sequence = fl__distribution(args->dist, c->out[0]->dtype);
    return sequence ? fl__fill_sequence(c->out[0], sequence, args)
                    : fl__no_kernel(c, c->out[0]->dtype);
}

/* p is y, x, the uniform numbers. */
#define FL__DROPOUT(T, name) \
    static void fl__dropout_##name(void *const p[], int64_t n, const void *arg) { \
        const fl_dropout_args *a = arg; \
        const float drop = (float)a->p, *u = p[2]; \
        const T scale = (T)(1.0 / (1.0 - a->p)), *x = p[1]; \
        T *y = p[0]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T kept = x[i] * scale; \
            y[i] = drop <= u[i] ? kept : 0; \
        } \
    }
FL__DROPOUT(float, f32)
FL__DROPOUT(double, f64)
#undef FL__DROPOUT

FL_PRIVATE bool fl__cpu_dropout(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_dropout_args *args = c->args;
    const fl_random_args uniform = {.dist = FL_UNIFORM, .b = 1, .rng = args->rng};
    fl_tensor *y = c->out[0];
    if (!fl_dtype_is_float(y->dtype)) return fl__no_kernel(c, y->dtype);
    if (!fl_make(y)) return false;
    fl__pass p;
    fl__pass_begin(&p, y->dtype == FL_F32 ? fl__dropout_f32 : fl__dropout_f64, args);
    fl__pass_add(&p, y, FL_WRITE, y->dtype);
    fl__pass_add(&p, c->in[0], FL_READ, y->dtype);
    fl__pass_add_sequence(&p, fl__uniform_f32, &uniform);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
