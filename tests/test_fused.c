/* test_fused.c - every fused kernel of the CPU against the composition that stands for it

   Each op runs by its slots at every instruction set this processor has, and by compositions, with
   the slots taken away: result and gradients agree, on odd sizes around the kernels' blocks, with
   NaN and infinities, and the slots give the same bits with any number of threads. */
#include "../fl_backend.h"
#include "../fl_nn.h"
#include "../kernels/cpu/levels.h"
#include "test.h"

enum { RESULTS = 5 }; /* most: y and the gradients of four operands */
enum { PLAIN, CHANNELS_LAST, TRANSPOSED }; /* layouts of the first operand */

typedef struct fused fused;
struct fused {
    const char *name;
    fl_var *(*run)(const fused *f, fl_var *const *x);
    fl_shape shape;  /* of the first operand */
    int n;           /* operands; the others have the last dim, or the channels, of the first */
    int layout;
    fl_op slot[3];
    fl_dtype dtype;
};

static fl_tensor *numbers(fl_shape s, fl_dtype d, uint64_t key) {
    fl_rng rng = {key, 0};
    return fl_normal(s, 0.5, 2, d, &rng);
}

/* A few elements become NaN and infinities: of a part of the tensor only. */
static fl_tensor *spoilt(fl_tensor *x, int how) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    fl_tensor *first = fl_zeros_like(x), *flat = fl_reshape(first, FL_SHAPE(-1));
    int64_t n = fl_numel(x), at = n / 3;
    fl_tensor *one = fl_eq(fl_arange(0, (double)n, 1, FL_I64), fl_int(at));
    flat = fl_where(one, fl_num(odd[how]), fl_reshape(x, FL_SHAPE(-1)));
    return fl_reshape(flat, fl_shape_of(x));
}

static fl_tensor *laid_out(fl_tensor *t, int layout) {
    if (layout == TRANSPOSED && t->ndim > 1)
        return fl_transpose(fl_contiguous(fl_transpose(t, 0, 1)), 0, 1);
    if (layout != CHANNELS_LAST || t->ndim != 4) return t;
    t = fl_contiguous(fl_permute(t, 4, (int[]){0, 2, 3, 1}));
    return fl_permute(t, 4, (int[]){0, 3, 1, 2});
}

/* y and the gradients of sum(y u) for some u. */
static bool results(const fused *f, int odd, fl_tensor **out) {
    fl_var *x[4] = {NULL};
    int64_t channels = f->shape.dim[f->shape.ndim == 4 ? 1 : f->shape.ndim - 1];
    for (int i = 0; i < f->n; i++) {
        fl_tensor *t = numbers(i && i < 3 ? FL_SHAPE(channels) : f->shape, f->dtype, 7 + (uint64_t)i);
        if (i == 0 && odd >= 0) t = spoilt(t, odd);
        x[i] = fv_param(laid_out(t, i ? PLAIN : f->layout));
    }
    fl_var *y = f->run(f, x);
    if (!CHECK(y != NULL)) return false;
    fl_tensor *u = laid_out(numbers(fl_shape_of(y->value), f->dtype, 99), f->layout);
    if (!CHECK(fl_backward(y, .grad = u))) return false;
    out[0] = y->value;
    for (int i = 0; i < f->n; i++) out[1 + i] = fv_grad(x[i]);
    return true;
}

/* Largest difference, over the largest value; infinities and NaN have to be the same. */
static double difference(fl_tensor *a, fl_tensor *b) {
    fl_tensor *same = fl_logical_or(fl_eq(a, b), fl_logical_and(fl_isnan(a), fl_isnan(b)));
    fl_tensor *gap = fl_where(same, fl_num(0), fl_abs(fl_sub(a, b)));
    fl_tensor *size = fl_where(fl_isfinite(b), fl_abs(b), fl_num(0));
    return fl_item(fl_amax(gap, FL_ALL_AXES)) / (1e-30 + fl_item(fl_amax(size, FL_ALL_AXES)));
}

static void compare(const fused *f, fl_tensor **got, fl_tensor **want, const char *what) {
    double tolerance = f->dtype == FL_F64 ? 1e-13 : 4e-6;
    for (int i = 0; i <= f->n; i++) {
        if (!want[i] && !got[i]) continue;
        double d = want[i] && got[i] ? difference(got[i], want[i]) : NAN;
        if (!CHECK(d <= tolerance))
            printf("    %s, %s: result %d differs by %g\n", f->name, what, i, d);
    }
}

static bool same_bits(fl_tensor *a, fl_tensor *b) {
    if (!a || !b) return a == b;
    size_t size = (size_t)fl_numel(a) * fl_dtype_size(a->dtype);
    a = fl_contiguous(a), b = fl_contiguous(b);
    bool same = memcmp(fl_map(a, FL_READ), fl_map(b, FL_READ), size) == 0;
    fl_unmap(a, FL_READ);
    fl_unmap(b, FL_READ);
    return same;
}

/* With the slots, one thread against others. */
static void check_threads(const fused *f, fl_tensor **want, const char *what) {
    for (int threads = 2; threads <= 4; threads++) {
        fl_tensor *got[RESULTS] = {NULL};
        fl_set_threads(threads);
        if (!results(f, -1, got)) continue;
        for (int i = 0; i <= f->n; i++)
            if (!CHECK(same_bits(got[i], want[i])))
                printf("    %s, %s: result %d with %d threads\n", f->name, what, i, threads);
    }
    fl_set_threads(1);
}

static void check_fused(const fused *f) {
    static const char *const level_name[] = {"portable", "avx2", "avx512"};
    fl_backend plain = *fl_backend_cpu(), old;
    for (int i = 0; i < 3; i++)
        if (f->slot[i]) plain.op[f->slot[i]] = NULL;
    int top = fl__level_cap(FL__AVX512);
    for (int odd = -1; odd < 3; odd++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *want[RESULTS] = {NULL};
        CHECK(fl_backend_use(&plain, &old));
        bool ok = results(f, odd, want);
        CHECK(fl_backend_use(&old, NULL));
        for (int level = 0; ok && level <= top; level++) {
            fl_tensor *got[RESULTS] = {NULL};
            fl__level_cap(level);
            fl_set_threads(1);
            if (!results(f, odd, got)) continue;
            compare(f, got, want, level_name[level]);
            if (odd < 0) check_threads(f, got, level_name[level]);
        }
        fl__level_cap(FL__AVX512);
        fl_scope_end(&s);
    }
    fl_set_threads(0);
}

/* Halves: a slot that reads them gives the bits that it gives where the core casts all of them. */
static void check_halves(fused f) {
    const fl_backend *cpu = fl_backend_cpu();
    fl_backend wide = *cpu, old;
    for (int i = 0; i < 2; i++) {
        CHECK(cpu->flags[f.slot[i]] & FL_SLOT_NARROW);
        fl_backend_set(&wide, f.slot[i], cpu->op[f.slot[i]], cpu->flags[f.slot[i]] & ~FL_SLOT_NARROW);
    }
    const int top = fl__level_cap(FL__AVX512);
    for (int odd = -1; odd < 3; odd++)
        for (int level = 0; level <= top; level++) {
            fl_scope s = fl_scope_begin();
            fl_tensor *want[RESULTS] = {NULL};
            fl__level_cap(level);
            fl_set_threads(1);
            f.dtype = odd == 0 ? FL_F16 : FL_BF16;
            CHECK(fl_backend_use(&wide, &old));
            results(&f, odd, want);
            CHECK(fl_backend_use(&old, NULL));
            for (int threads = 1; threads < 4; threads++) {
                fl_tensor *got[RESULTS] = {NULL};
                fl_set_threads(threads);
                results(&f, odd, got);
                for (int i = 0; i <= f.n; i++)
                    if (!CHECK(same_bits(got[i], want[i])))
                        printf("    %s, %d threads, level %d: result %d\n", f.name, threads, level, i);
            }
            fl_scope_end(&s);
        }
    fl__level_cap(FL__AVX512);
    fl_set_threads(0);
}

/* >>softmax */

static fl_var *softmax(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_softmax(x[0], -1);
}
static fl_var *log_softmax(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_log_softmax(x[0], -1);
}
static fl_var *softmax_of_columns(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_softmax(x[0], 0);
}

#define SOFTMAX fl_op_softmax, fl_op_softmax_grad
TEST(softmax_of_halves) {
    for (int k = 0; k < 4; k++) {
        const fl_shape s = k < 2 ? FL_SHAPE(37, 300) : FL_SHAPE(3, 1);
        const int layout = k & 1 ? TRANSPOSED : PLAIN;
        check_halves((fused){"softmax", softmax, s, 1, layout, {SOFTMAX}, FL_F32});
        check_halves((fused){"softmax of columns", softmax_of_columns, s, 1, layout, {SOFTMAX}, FL_F32});
        check_halves((fused){"log_softmax", log_softmax, s, 1, layout,
                             {fl_op_log_softmax, fl_op_log_softmax_grad}, FL_F32});
    }
}

/* >>norms */

static fl_var *layer_norm(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_layer_norm(x[0], 1, x[1], x[2], 1e-5);
}
static fl_var *plain_layer_norm(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_layer_norm(x[0], 2, NULL, NULL, 0.1);
}
static fl_var *rms_norm(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_rms_norm(x[0], 1, x[1], 1e-5);
}

#define LAYER_NORM fl_op_layer_norm, fl_op_layer_norm_grad
TEST(layer_norm) {
    static const int64_t size[][2] = {{1, 1},   {3, 2},   {7, 15},   {9, 16},  {65, 17},
                                      {130, 63}, {17, 64}, {1, 129}, {5, 4097}, {700, 33}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int k = 0; k < 4; k++) {
            fl_shape s = FL_SHAPE(size[i][0], size[i][1]);
            fl_dtype d = k & 1 ? FL_F64 : FL_F32;
            int layout = k & 2 ? TRANSPOSED : PLAIN;
            check_fused(&(fused){"layer_norm", layer_norm, s, 3, layout, {LAYER_NORM}, d});
            check_fused(&(fused){"layer_norm 2", plain_layer_norm, s, 1, layout, {LAYER_NORM}, d});
            check_fused(&(fused){"rms_norm", rms_norm, s, 2, layout, {LAYER_NORM}, d});
            if (k & 1) continue;
            check_halves((fused){"layer_norm", layer_norm, s, 3, layout, {LAYER_NORM}, d});
            check_halves((fused){"rms_norm", rms_norm, s, 2, layout, {LAYER_NORM}, d});
        }
}

static fl_var *batch_norm(const fused *f, fl_var *const *x) {
    bool relu = f->name[11] == 'r';
    fl_tensor *mean = fl_zeros(fl_shape_of(x[1]->value), f->dtype), *var = fl_ones_like(mean);
    fl_var *y = f->n == 4 ? fv_batch_norm_add(x[0], x[1], x[2], x[3], .train = true, .mean = mean,
                                              .var = var, .relu = relu)
                          : fv_batch_norm(x[0], x[1], x[2], .train = true, .mean = mean,
                                          .var = var, .relu = relu);
    return fv_add(y, fv_const(fl_reshape(fl_mul(mean, var), FL_SHAPE(-1, 1, 1))));
}
static fl_var *plain_batch_norm(const fused *f, fl_var *const *x) {
    (void)f;
    return fv_batch_norm(x[0], NULL, NULL, .train = true, .eps = 0.1);
}

#define BATCH_NORM fl_op_batch_norm, fl_op_batch_norm_grad, fl_op_batch_statistics
TEST(batch_norm) {
    static const fl_shape shape[] = {{4, {2, 1, 1, 1}},   {4, {3, 3, 5, 7}},  {4, {2, 16, 8, 8}},
                                     {4, {9, 17, 11, 13}}, {4, {2, 65, 3, 3}}, {4, {2, 3, 65, 67}},
                                     {4, {70, 5, 1, 1}}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int k = 0; k < 6; k++) {
            fl_dtype d = k & 1 ? FL_F64 : FL_F32;
            fl_shape s = shape[i];
            check_fused(&(fused){"batch_norm", plain_batch_norm, s, 1, k / 2, {BATCH_NORM}, d});
            check_fused(&(fused){"batch_norm plain", batch_norm, s, 3, k / 2, {BATCH_NORM}, d});
            check_fused(&(fused){"batch_norm relu", batch_norm, s, 3, k / 2, {BATCH_NORM}, d});
            check_fused(&(fused){"batch_norm plain", batch_norm, s, 4, k / 2, {BATCH_NORM}, d});
            check_fused(&(fused){"batch_norm relu", batch_norm, s, 4, k / 2, {BATCH_NORM}, d});
            if (k & 1) continue;
            check_halves((fused){"batch_norm plain", batch_norm, s, 3, k / 2, {BATCH_NORM}, d});
            check_halves((fused){"batch_norm relu", batch_norm, s, 4, k / 2, {BATCH_NORM}, d});
        }
}

/* With momentum 1 they are those of the batch. */
static void run_on(fl_tensor *x, double momentum, fl_tensor *mean, fl_tensor *var, fl_tensor *batches) {
    CHECK(fl_batch_norm(x, NULL, NULL, .train = true, .mean = mean, .var = var, .batches = batches,
                        .momentum = momentum));
}
TEST(running_statistics_have_the_bits_of_single_ops) {
    for (int k = 0; k < 6; k++) {
        fl_scope s = fl_scope_begin();
        const fl_dtype d = k & 1 ? FL_F64 : FL_F32;
        fl_tensor *x = laid_out(numbers(FL_SHAPE(9, 17, 11, 13), d, 5), k / 2), *batches = NULL;
        fl_tensor *t[2], *batch[2], *old[2];
        for (int i = 0; i < 2; i++) {
            t[i] = numbers(FL_SHAPE(17), d, 8 + (uint64_t)i);
            old[i] = fl_clone(t[i]);
            batch[i] = fl_zeros_like(t[i]);
        }
        batches = fl_full(FL_SCALAR_SHAPE, 6, FL_I64);
        run_on(x, 1, batch[0], batch[1], NULL);
        run_on(x, 0.3, t[0], t[1], batches);
        for (int i = 0; i < 2; i++)
            CHECK(same_bits(t[i], fl_add(fl_mul(old[i], fl_num(0.7)), fl_mul(batch[i], fl_num(0.3)))));
        CHECK_EQ_INT(fl_item_int(batches), 7);
        fl_scope_end(&s);
    }
}

static fl_var *group_norm(const fused *f, fl_var *const *x) {
    const int64_t c = f->shape.dim[1], groups = f->name[11] == 'i' ? c : c % 4 == 0 ? 4 : c % 3 == 0 ? 3 : 1;
    return fv_group_norm(x[0], groups, f->n > 1 ? x[1] : NULL, f->n > 1 ? x[2] : NULL, 0.01);
}

#define GROUP_NORM fl_op_group_norm, fl_op_group_norm_grad
TEST(group_norm) {
    static const fl_shape shape[] = {{4, {2, 1, 1, 3}},   {4, {3, 3, 5, 7}},  {4, {2, 16, 8, 8}},
                                     {4, {4, 12, 29, 31}}, {4, {2, 64, 3, 3}}, {4, {2, 3, 65, 67}},
                                     {4, {70, 8, 1, 1}}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int k = 0; k < 6; k++) {
            fl_dtype d = k & 1 ? FL_F64 : FL_F32;
            check_fused(&(fused){"group_norm plain", group_norm, shape[i], 1, k / 2, {GROUP_NORM}, d});
            check_fused(&(fused){"group_norm affine", group_norm, shape[i], 3, k / 2, {GROUP_NORM}, d});
            if (!(k & 1))
                check_halves((fused){"group_norm affine", group_norm, shape[i], 3, k / 2, {GROUP_NORM}, d});
            if (shape[i].dim[2] > 1)
                check_fused(&(fused){"group_norm instance", group_norm, shape[i], 3, k / 2, {GROUP_NORM}, d});
        }
}

/* >>resampling */

static fl_var *upsampled(const fused *f, fl_var *const *x) {
    const bool cubic = f->name[12] == 'c';
    return fv_interpolate(x[0], FL_SCALAR_SHAPE, cubic ? FL_CUBIC : FL_LINEAR, false,
                          .scale = {cubic ? 0.7 : 2});
}

TEST(interpolate) {
    static const fl_shape shape[] = {{4, {2, 3, 5, 7}}, {4, {3, 64, 6, 4}}, {4, {2, 17, 33, 9}}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int k = 0; k < 6; k++) {
            fl_dtype d = k & 1 ? FL_F64 : FL_F32;
            check_fused(&(fused){"interpolate linear", upsampled, shape[i], 1, k / 2, {fl_op_resample}, d});
            check_fused(&(fused){"interpolate cubic", upsampled, shape[i], 1, k / 2, {fl_op_resample}, d});
        }
}

/* >>losses */

static fl_var *cross_entropy(const fused *f, fl_var *const *x) {
    fl_rng rng = {5, 0};
    fl_tensor *target = fl_randint(FL_SHAPE(f->shape.dim[0]), 0, f->shape.dim[1], &rng);
    return fv_cross_entropy(x[0], target, .reduction = FL_NONE, .ignore = 1,
                               .smoothing = f->name[14] == 's' ? 0.1 : 0);
}

#define CROSS_ENTROPY fl_op_cross_entropy, fl_op_cross_entropy_grad
TEST(cross_entropy) {
    static const int64_t size[][2] = {{1, 1},  {3, 2},   {7, 15},    {9, 64},    {65, 17},
                                      {5, 65}, {2, 1023}, {3, 1025}, {70, 300}, {2, 5000}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int k = 0; k < 4; k++) {
            fl_shape s = FL_SHAPE(size[i][0], size[i][1]);
            fl_dtype d = k & 1 ? FL_F64 : FL_F32;
            int layout = k & 2 ? TRANSPOSED : PLAIN;
            check_fused(&(fused){"cross_entropy plain", cross_entropy, s, 1, layout, {CROSS_ENTROPY}, d});
            check_fused(&(fused){"cross_entropy smooth", cross_entropy, s, 1, layout, {CROSS_ENTROPY}, d});
        }
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
