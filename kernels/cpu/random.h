/* kernels/cpu/random.h - random tensors and dropout

   Every element is a function of its row-major position and the generator's state alone (fl_random_args), so
   threads and layouts do not matter. */
#ifndef FL_CPU_RANDOM_H
#define FL_CPU_RANDOM_H
#include "../../fl/records/random.h"
#include "copy.h"
#include "slots.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_random_slots(fl_backend *cpu);

/* Writes n words of the generator from word `first` on, a multiple of 4; w has space for n rounded up to a
   multiple of 4. */
FL_PRIVATE void fl__random_words(uint32_t *w, fl_rng rng, int64_t first, int64_t n);
/* The result of a call of random, iota or dropout as a sequence by row-major position. */
typedef struct fl__dropping {
    double scale;
    int32_t drop; /* drops elements whose number is below drop * 2^-24 */
    fl_rng rng;
    const char *row[2]; /* x and y if contiguous, else NULL */
    int size;
    fl__loop loop;
} fl__dropping;
typedef struct fl__generator {
    fl__sequence sequence;
    const void *arg;
    fl__dropping dropping; /* whose arg it is, for dropout */
} fl__generator;
/* True if c is a call of those with such a sequence of f32 or f64. */
FL_PRIVATE bool fl__generates(const fl_call *c);
/* That of a call for which this is true. x: its operand for dropout, dense and mapped. */
FL_PRIVATE void fl__generator_begin(fl__generator *g, const fl_call *c, const fl_tensor *x);

#endif /* FL_CPU_RANDOM_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_RANDOM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_RANDOM_IMPL
#define FL_CPU_RANDOM_IMPL
FL__LOOPS_BEGIN

/* Writes up to n blocks of four words; returns how many. */
typedef int64_t (*fl__philox_fn)(uint32_t *w, uint64_t key, uint64_t block, int64_t n);

#define FL__LEVEL_TEXT "philox.inc"
#define FL__UNIT philox
#include "levels.inc"

FL_PRIVATE void fl__random_words(uint32_t *w, fl_rng rng, int64_t first, int64_t n) {
    static const fl__philox_fn wide[] = {FL__AT_LEVELS(fl__philox_blocks_f32)};
    uint64_t block = rng.counter + (uint64_t)first / 4;
    int64_t blocks = fl__ceil_div(n, 4);
    for (int64_t j = wide[fl__level()](w, rng.key, block, blocks); j < blocks; j++)
        flm_philox(rng.key, block + (uint64_t)j, w + 4 * j);
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

/* Both numbers of a pair are computed, even if only the first is used: begin is even. */
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

static fl__sequence fl__distribution(fl_random_kind dist, fl_dtype dtype) {
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

/* Prefetches x and y for the loop while the random words are computed. */
static void fl__dropout_words(void *dst, int64_t begin, int64_t n, const void *arg) {
    enum { STEP = 128, LINE = 64 };
    const fl__dropping *a = arg;
    for (int64_t i = 0; i < n; i += STEP) {
        for (int k = 0; k < 2 && a->row[k]; k++)
            for (int64_t at = 0; at < STEP * a->size; at += LINE)
                __builtin_prefetch(a->row[k] + (begin + i) * a->size + at);
        fl__random_words((uint32_t *)dst + i, a->rng, begin + i, fl__min(n - i, STEP));
    }
}

#define FL__LEVEL_TEXT "dropout.inc"
#define FL__UNIT dropout
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
static const fl__loop fl__dropout_loops[FL__VARIANTS] = {FL__AT_FLOATS(fl__dropout_loop)};

/* Of dtype d. */
static fl__dropping fl__dropping_of(const fl_dropout_args *a, fl_dtype d) {
    return (fl__dropping){.scale = 1.0 / (1.0 - a->p), .rng = a->rng, .size = (int)fl_dtype_size(d),
                          .drop = (int32_t)ceil((double)(float)a->p * 0x1p24),
                          .loop = fl__dropout_loops[fl__variant(fl_dtype_wide(d))]};
}

static bool fl__cpu_dropout(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *y = c->out[0];
    if (!fl_dtype_is_float(y->dtype)) return fl__no_kernel(c, y->dtype);
    if (!fl_out_make(y)) return false;
    fl__dropping drop = fl__dropping_of(c->args, y->dtype);
    fl_tensor *row[2] = {c->in[0], y};
    for (int k = 0; k < 2; k++)
        if (!row[k]->weak && fl_is_contiguous(row[k])) drop.row[k] = fl_data(row[k]);
    fl__pass p;
    const fl_dtype wide = fl_dtype_wide(y->dtype);
    fl__pass_begin(&p, drop.loop, &drop);
    fl__pass_add_wide(&p, y, FL_WRITE, wide);
    fl__pass_add_wide(&p, c->in[0], FL_READ, wide);
    fl__pass_add_sequence(&p, fl__dropout_words, &drop);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

/* Dropout of a->row[0]. */
static void fl__dropped(void *dst, int64_t begin, int64_t n, const void *arg) {
    const fl__dropping *a = arg;
    uint32_t w[FL__BLOCK];
    fl__dropout_words(w, begin, n, a);
    a->loop((void *[]){dst, (char *)(uintptr_t)a->row[0] + begin * a->size, w}, n, a);
}

FL_PRIVATE bool fl__generates(const fl_call *c) {
    const fl_dtype d = c->out[0] ? c->out[0]->dtype : FL_DTYPE_NONE;
    if (d != FL_F32 && d != FL_F64) return false;
    return c->op == FL_OP_iota || c->op == fl_op_dropout ||
           (c->op == FL_OP_random && fl__distribution(((const fl_random_args *)c->args)->dist, d));
}

FL_PRIVATE void fl__generator_begin(fl__generator *g, const fl_call *c, const fl_tensor *x) {
    const fl_dtype d = c->out[0]->dtype;
    g->arg = c->args;
    if (c->op == FL_OP_iota) {
        g->sequence = fl__iota_sequence(d);
    } else if (c->op == FL_OP_random) {
        g->sequence = fl__distribution(((const fl_random_args *)c->args)->dist, d);
    } else {
        g->dropping = fl__dropping_of(c->args, d);
        g->dropping.row[0] = fl_data(x);
        g->sequence = fl__dropped, g->arg = &g->dropping;
    }
}

FL_PRIVATE void fl__cpu_random_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_dropout, fl__cpu_dropout, FL_SLOT_NARROW);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
