/* test_kernels.c - matrix products, convolution and pooling of the CPU against plain loops

   Every case runs at every instruction set this processor has. References are loops over f64 values
   written here. */
#include "../fl_all.h"
#include "../kernels/cpu/force.h"
#include "../kernels/cpu/levels.h"
#include "test.h"
#include "bf16.h"

/* A quick generator of values in [-1, 1) with few bits, so that f32 sums are nearly exact. */
static uint64_t noise_state = 1;
static double noise(void) {
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(noise_state >> 56) / 128 - 1;
}

static fl_tensor *random_tensor(fl_shape s, fl_dtype d) {
    fl_tensor *t = fl_empty(s, FL_F64);
    double *x = fl_map(t, FL_WRITE);
    for (int64_t i = 0; i < fl_numel(t); i++) x[i] = noise();
    fl_unmap(t, FL_WRITE);
    if (d == FL_I64) t = fl_mul(t, fl_num(100));
    return fl_cast(t, d);
}

/* The values of t, row-major, as f64; the caller frees them. */
static double *values(fl_tensor *t) {
    double *v = malloc((size_t)(fl_numel(t) + 1) * sizeof *v);
    if (!fl_to_host(fl_cast(t, FL_F64), v, (size_t)fl_numel(t) * sizeof *v)) CHECK(false);
    return v;
}

static bool same_value(double a, double b, double tol) {
    if (a != a || b != b) return a != a && b != b;
    return a == b || fabs(a - b) <= tol;
}

/* Compares t with `want`; reports the first difference only. */
static void check_values(const char *what, fl_tensor *t, const double *want, double tol) {
    if (!CHECK(t != NULL)) {
        printf("    %s: %s\n", what, fl_error() ? fl_error() : "?");
        return;
    }
    double *got = values(t);
    for (int64_t i = 0; i < fl_numel(t); i++)
        if (!same_value(got[i], want[i], tol)) {
            printf("    %s: element %lld is %g, not %g\n", what, (long long)i, got[i], want[i]);
            CHECK(same_value(got[i], want[i], tol));
            break;
        }
    free(got);
}

static double tolerance(fl_dtype d, double terms) {
    return d == FL_F32 ? 4e-7 * terms + 1e-6 : d == FL_F64 ? 1e-14 * terms + 1e-14 : 0;
}

/* >>levels: each test body runs at every level up to the processor's own */

static int levels(void) { return fl__level_cap(FL__AVX512); }
static const char *const level_name[] = {"portable", "avx2", "avx512"};

/* Ways to convolve for fl_cpu_force_algorithm; the first chooses by size. */
enum { AUTO, DIRECT, IM2COL, WINOGRAD };
static const char *const way_name[] = {NULL, "direct", "im2col", "winograd"};

/* >>matmul */

static void matmul_reference(const double *a, const double *b, double *y, int64_t m, int64_t n,
                             int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            y[i * n + j] = sum;
        }
}

/* layout bit 0: a is a transposed view, bit 1: b is. */
static void check_matmul(int64_t m, int64_t n, int64_t k, int layout, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = random_tensor(layout & 1 ? FL_SHAPE(k, m) : FL_SHAPE(m, k), d);
    fl_tensor *b = random_tensor(layout & 2 ? FL_SHAPE(n, k) : FL_SHAPE(k, n), d);
    if (layout & 1) a = fl_transpose(a, 0, 1);
    if (layout & 2) b = fl_transpose(b, 0, 1);
    double *va = values(a), *vb = values(b), *want = malloc((size_t)(m * n + 1) * sizeof *want);
    matmul_reference(va, vb, want, m, n, k);
    int top = levels();
    for (int level = 0; level <= top; level++) {
        char what[128];
        snprintf(what, sizeof what, "%lldx%lldx%lld layout %d %s %s", (long long)m, (long long)n,
                 (long long)k, layout, fl_dtype_name(d), level_name[level]);
        fl__level_cap(level);
        check_values(what, fl_matmul(a, b), want, tolerance(d, (double)k));
    }
    levels();
    free(va);
    free(vb);
    free(want);
    fl_scope_end(&s);
}

static void matmul_sizes(void) {
    static const int64_t size[] = {1, 2, 3, 7, 8, 13, 14, 15, 16, 17, 31, 32, 33, 47, 65};
    const int count = sizeof size / sizeof *size;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            for (int layout = 0; layout < 4; layout++)
                check_matmul(size[i], size[j], size[(i * 7 + j * 3) % count], layout, FL_F32);
}

/* Large enough for packing, several blocks, chunks of k, swapped operands, and splits of k. */
static void matmul_blocks(void) {
    static const int64_t size[][3] = {
        {65, 65, 63},   {64, 10, 1024},  {10, 64, 700},  {6, 300, 330},  {8, 513, 321},
        {9, 129, 641},  {201, 33, 65},   {415, 47, 97},  {97, 530, 80},  {3, 5, 20000},
        {31, 33, 8197}, {129, 257, 385}, {50, 400, 200}, {1, 1000, 300}, {1000, 1, 300},
        {7, 1030, 40},  {5, 41, 2100},   {8, 18, 1025},  {1, 3000, 17},  {2, 1025, 33},
        {20, 90, 2100}, {129, 70, 1025}, {1100, 40, 50}, {40, 10, 2049}, {300, 150, 140}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int layout = 0; layout < 4; layout++) {
            check_matmul(size[i][0], size[i][1], size[i][2], layout, FL_F32);
            check_matmul(size[i][0], size[i][1], size[i][2], layout, FL_F64);
        }
}

/* Products of up to 70 rows, columns and terms: every edge of a tile. */
static void matmul_edges(void) {
    fl_rng rng = {70, 0};
    double *size = values(fl_uniform(FL_SHAPE(200, 3), 1, 71, FL_F32, &rng));
    for (int i = 0; i < 200; i++)
        check_matmul((int64_t)size[3 * i], (int64_t)size[3 * i + 1], (int64_t)size[3 * i + 2], i % 4, FL_F32);
    free(size);
}

TEST(matmul_sizes) { matmul_sizes(); }
TEST(matmul_edges) { matmul_edges(); }
TEST(matmul_blocks) { matmul_blocks(); }

/* Linear layers whose products are packed, swapped, in one chunk and in several: the bias and the
   activation come once, after the last. */
TEST(linear_finishes_once) {
    static const int64_t size[][3] = {
        {20, 90, 2100}, {129, 70, 1025}, {65, 70, 64}, {40, 10, 2049}, {31, 33, 8197}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int level = 0, top = levels(); level <= top; level++) {
            fl_scope s = fl_scope_begin();
            int64_t m = size[i][0], n = size[i][1], k = size[i][2];
            fl_tensor *x = random_tensor(FL_SHAPE(m, k), FL_F32);
            fl_tensor *w = random_tensor(FL_SHAPE(n, k), FL_F32);
            fl_tensor *b = random_tensor(FL_SHAPE(n), FL_F32);
            fl__level_cap(FL__AVX512);
            double *want = values(fl_relu(fl_add(fl_matmul(x, fl_transpose(w, 0, 1)), b)));
            fl__level_cap(level);
            check_values(level_name[level], fl_linear_act(x, w, b, FL_OP_relu), want,
                         tolerance(FL_F32, (double)k));
            free(want);
            fl_scope_end(&s);
        }
    levels();
}

TEST(matmul_dtypes_and_empty) {
    for (int layout = 0; layout < 4; layout++) {
        check_matmul(17, 33, 9, layout, FL_I64);
        check_matmul(17, 33, 9, layout, FL_F64);
        check_matmul(5, 4, 0, layout, FL_F32);
        check_matmul(0, 4, 3, layout, FL_F32);
        check_matmul(5, 0, 3, layout, FL_I64);
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *big = fl_mul(fl_ones(FL_SHAPE(1, 1), FL_I64), fl_int(INT64_MAX));
    CHECK_EQ_INT(fl_item_int(fl_matmul(big, fl_mul(fl_ones(FL_SHAPE(1, 1), FL_I64), fl_int(3)))),
                 INT64_MAX - 2);
    fl_scope_end(&s);
}

TEST(matmul_without_openblas) {
    CHECK(fl_cpu_force_algorithm("tiles"));
    matmul_sizes();
    matmul_blocks();
    test_errors_return();
    CHECK(!fl_cpu_force_algorithm("no such algorithm"));
    CHECK_ERROR("fl_cpu_force_algorithm: no algorithm 'no such algorithm'");
    fl_error_clear();
    CHECK(fl_cpu_force_algorithm(NULL));
}

/* [2, 3, m, k] x [1, 3, k, n] and the like: broadcast batches, strided, small and large. */
static void check_batch(fl_shape sa, fl_shape sb, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = random_tensor(sa, d), *b = random_tensor(sb, d), *y = fl_matmul(a, b);
    int64_t m = sa.dim[2], k = sa.dim[3], n = sb.dim[3];
    double *va = values(a), *vb = values(b),
           *want = malloc((size_t)(fl_numel(y) + 1) * sizeof *want);
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < y->shape[1]; j++) {
            int64_t ia = (sa.dim[0] > 1 ? i : 0) * sa.dim[1] + (sa.dim[1] > 1 ? j : 0);
            int64_t ib = (sb.dim[0] > 1 ? i : 0) * sb.dim[1] + (sb.dim[1] > 1 ? j : 0);
            matmul_reference(va + ia * m * k, vb + ib * k * n, want + (i * y->shape[1] + j) * m * n,
                             m, n, k);
        }
    check_values("batch", y, want, tolerance(d, (double)k));
    free(va);
    free(vb);
    free(want);
    fl_scope_end(&s);
}

TEST(matmul_batches) {
    for (int level = 0, top = levels(); level <= top; level++) {
        fl__level_cap(level);
        check_batch(FL_SHAPE(2, 3, 5, 7), FL_SHAPE(2, 3, 7, 9), FL_F32);
        check_batch(FL_SHAPE(2, 1, 15, 17), FL_SHAPE(1, 3, 17, 33), FL_F32);
        check_batch(FL_SHAPE(1, 3, 70, 65), FL_SHAPE(2, 3, 65, 80), FL_F32);
        check_batch(FL_SHAPE(2, 3, 70, 65), FL_SHAPE(1, 1, 65, 80), FL_F64);
        check_batch(FL_SHAPE(2, 2, 4, 9000), FL_SHAPE(2, 2, 9000, 6), FL_F32);
        check_batch(FL_SHAPE(2, 2, 3, 4), FL_SHAPE(1, 2, 4, 5), FL_I64);
    }
    levels();
}

/* A slice with steps and negative strides, times its own transpose. */
TEST(matmul_any_strides) {
    fl_scope s = fl_scope_begin();
    for (int step = -2; step <= 2; step++) {
        if (step == 0) continue;
        fl_tensor *big = random_tensor(FL_SHAPE(150, 140), FL_F32);
        fl_tensor *a = step > 0 ? fl_slice(big, 1, 3, FL_SLICE_END, step)
                                : fl_slice(big, 1, -1, FL_SLICE_END, step);
        fl_tensor *b = fl_transpose(a, 0, 1);
        double *va = values(a), *vb = values(b), *want = malloc(150 * 150 * sizeof *want);
        matmul_reference(va, vb, want, 150, 150, a->shape[1]);
        check_values("strides", fl_matmul(a, b), want, tolerance(FL_F32, 140));
        free(va);
        free(vb);
        free(want);
    }
    fl_tensor *row =
        fl_expand(random_tensor(FL_SHAPE(1, 90), FL_F32), FL_SHAPE(80, 90)); /* stride 0 */
    fl_tensor *col = random_tensor(FL_SHAPE(90, 70), FL_F32);
    double *want = values(fl_matmul(fl_contiguous(row), col));
    check_values("broadcast row", fl_matmul(row, col), want, 1e-4);
    free(want);
    fl_scope_end(&s);
}

TEST(matmul_nan_and_infinity) {
    static const int64_t size[][3] = {{4, 40, 6}, {70, 70, 70}, {20, 300, 90}};
    for (int level = 0, top = levels(); level <= top; level++)
        for (int i = 0; i < 3; i++) {
            fl__level_cap(level);
            fl_scope s = fl_scope_begin();
            int64_t m = size[i][0], n = size[i][1], k = size[i][2];
            fl_tensor *a = random_tensor(FL_SHAPE(m, k), FL_F32),
                      *b = random_tensor(FL_SHAPE(k, n), FL_F32);
            float *x = fl_map(a, FL_WRITE);
            x[1 * k + 2] = NAN;
            x[2 * k + 3] = INFINITY;
            fl_unmap(a, FL_WRITE);
            x = fl_map(b, FL_WRITE);
            for (int64_t j = 0; j < n; j++)
                x[3 * n + j] = j % 3 == 0 ? 0.0f : j % 3 == 1 ? 1.0f : -1.0f;
            fl_unmap(b, FL_WRITE);
            double *va = values(a), *vb = values(b), *want = malloc((size_t)(m * n) * sizeof *want);
            matmul_reference(va, vb, want, m, n, k);
            CHECK(want[n] != want[n] && want[2 * n] != want[2 * n] && isinf(want[2 * n + 1]));
            check_values("nan", fl_matmul(a, b), want, 1e-4);
            free(va);
            free(vb);
            free(want);
            fl_scope_end(&s);
        }
    levels();
}

/* >>linear */

static double activated(fl_op act, double z) {
    const double u = 0.7978845608028654 * (z + 0.044715 * z * z * z);
    switch (act) {
    case FL_OP_relu: return z <= 0 ? 0 : z;
    case FL_OP_gelu: return isinf(z) ? (z < 0 ? NAN : z) : z * 0.5 * (1 + erf(z * sqrt(0.5)));
    case FL_OP_gelu_tanh: return isinf(z) ? (z < 0 ? 0 : z) : 0.5 * z * (1 + tanh(u));
    case FL_OP_silu: return z / (1 + exp(-z));
    case FL_OP_sigmoid: return 1 / (1 + exp(-z));
    case FL_OP_tanh: return tanh(z);
    default: return z;
    }
}

/* The record with and without z and a bias; layout bit 0: x is a transposed view, bit 1: w is. */
static void check_linear(int64_t m, int64_t n, int64_t k, int layout, fl_op act, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = random_tensor(layout & 1 ? FL_SHAPE(k, m) : FL_SHAPE(m, k), d);
    fl_tensor *w = random_tensor(layout & 2 ? FL_SHAPE(k, n) : FL_SHAPE(n, k), d);
    fl_tensor *b = random_tensor(FL_SHAPE(n), d);
    if (layout & 1) x = fl_transpose(x, 0, 1);
    if (layout & 2) w = fl_transpose(w, 0, 1);
    double *vx = values(x), *vw = values(fl_contiguous(fl_transpose(w, 0, 1))), *vb = values(b);
    double *z = malloc((size_t)(m * n + 1) * sizeof *z), *y = malloc((size_t)(m * n + 1) * sizeof *y);
    for (int form = 0; form < 4; form++) {
        matmul_reference(vx, vw, z, m, n, k);
        for (int64_t i = 0; i < m * n; i++) y[i] = activated(act, z[i] += form & 1 ? vb[i % n] : 0);
        for (int level = 0, top = levels(); level <= top; level++) {
            fl__level_cap(level);
            fl_linear_args a = {act};
            fl_tensor *out[] = {fl_out_on(x->backend, FL_SHAPE(m, n), d),
                                fl_out_on(x->backend, FL_SHAPE(m, n), d)};
            fl_call c = {.op = fl_op_linear, .n_out = form & 2 ? 2 : 1, .n_in = form & 1 ? 3 : 2,
                         .out = {out[0], out[1]}, .in = {x, w, b}, .args = &a};
            char what[128];
            snprintf(what, sizeof what, "linear %lldx%lldx%lld layout %d act %d form %d %s",
                     (long long)m, (long long)n, (long long)k, layout, (int)act, form,
                     level_name[level]);
            CHECK(fl_call_run(&c));
            check_values(what, out[0], y, 2 * tolerance(d, (double)k));
            if (form & 2) check_values(what, out[1], z, tolerance(d, (double)k));
        }
        levels();
    }
    free(vx), free(vw), free(vb), free(z), free(y);
    fl_scope_end(&s);
}

static const fl_op acts[] = {FL_OP_NONE, FL_OP_relu, FL_OP_gelu,   FL_OP_gelu_tanh,
                             FL_OP_silu,  FL_OP_tanh, FL_OP_sigmoid};

/* Few rows, one column, small, packed, swapped, cut along k: each has its own end. */
TEST(linear_paths) {
    static const int64_t size[][3] = {{3, 5, 7},     {1, 65, 80},  {4, 1030, 33}, {5, 7, 1500},
                                      {70, 1, 130},  {65, 64, 63}, {66, 97, 400}, {201, 33, 65},
                                      {20, 300, 90}, {31, 33, 8197}, {90, 10, 700}, {7, 3, 1}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int layout = 0; layout < 4; layout++) {
            fl_op act = acts[(i + (size_t)layout) % 7];
            check_linear(size[i][0], size[i][1], size[i][2], layout, act, FL_F32);
            if (size[i][2] < 500)
                check_linear(size[i][0], size[i][1], size[i][2], layout, act, FL_F64);
        }
    for (int i = 0; i < 7; i++) {
        check_linear(30, 40, 50, 0, acts[i], FL_F32);
        check_linear(5, 4, 0, 0, acts[i], FL_F32);
        check_linear(0, 4, 3, 0, acts[i], FL_F32);
    }
}

/* A NaN and infinities in x and the bias come out where they come out of the ops one by one. */
TEST(linear_nan_and_infinity) {
    static const int64_t size[][3] = {{4, 90, 60}, {70, 70, 70}, {20, 300, 90}};
    for (int level = 0, top = levels(); level <= top; level++)
        for (int i = 0; i < 21; i++) {
            fl__level_cap(level);
            fl_scope s = fl_scope_begin();
            int64_t m = size[i % 3][0], n = size[i % 3][1], k = size[i % 3][2];
            fl_tensor *x = random_tensor(FL_SHAPE(m, k), FL_F32);
            fl_tensor *w = random_tensor(FL_SHAPE(n, k), FL_F32), *b = fl_zeros(FL_SHAPE(n), FL_F32);
            float *p = fl_map(x, FL_WRITE), *q = fl_map(b, FL_WRITE);
            p[k + 2] = NAN;
            p[2 * k + 3] = INFINITY;
            q[1] = -INFINITY, q[2] = INFINITY, q[3] = NAN;
            fl_unmap(x, FL_WRITE);
            fl_unmap(b, FL_WRITE);
            fl_op act = acts[i / 3];
            fl_tensor *z = fl_add(fl_matmul(x, fl_transpose(w, 0, 1)), b);
            fl_tensor *y = fl_out_on(z->backend, FL_SHAPE(m, n), FL_F32), *want = z;
            fl_call one = {.op = act, .n_out = 1, .n_in = 1, .in = {z}};
            if (act != FL_OP_NONE)
                one.out[0] = want = fl_out_on(z->backend, FL_SHAPE(m, n), FL_F32);
            CHECK(act == FL_OP_NONE || fl_call_run(&one));
            fl_linear_args a = {act};
            fl_call c = {.op = fl_op_linear, .n_out = 1, .n_in = 3, .out = {y}, .in = {x, w, b},
                         .args = &a};
            CHECK(fl_call_run(&c));
            double *v = values(want);
            check_values("nan in linear", y, v, 1e-4);
            free(v);
            fl_scope_end(&s);
        }
    levels();
}

/* >>conv */

typedef struct conv_case {
    int64_t n, c, h, w, o, kh, kw;
    fl_conv2d_args a;
} conv_case;

static const conv_case conv_cases[] = {
    {2, 1, 28, 28, 32, 5, 5, {{1, 1}, {2, 2}, {2, 2}, {1, 1}, 1, false}},
    {3, 32, 14, 14, 20, 5, 5, {{1, 1}, {2, 2}, {2, 2}, {1, 1}, 1, false}},
    {1, 3, 9, 11, 4, 3, 3, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {2, 3, 9, 11, 5, 3, 2, {{2, 1}, {1, 0}, {0, 1}, {1, 1}, 1, false}},
    {2, 4, 13, 10, 6, 3, 3, {{2, 3}, {1, 2}, {2, 1}, {1, 1}, 2, false}},
    {1, 2, 17, 16, 3, 3, 3, {{1, 2}, {2, 2}, {2, 2}, {2, 3}, 1, false}},
    {2, 6, 8, 8, 6, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 6, false}},
    {2, 3, 10, 10, 9, 5, 3, {{3, 3}, {2, 1}, {2, 1}, {2, 1}, 3, false}},
    {3, 8, 7, 7, 16, 1, 1, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {2, 8, 20, 20, 17, 1, 1, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {2, 5, 9, 9, 4, 1, 1, {{2, 2}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {1, 3, 24, 25, 8, 7, 7, {{2, 2}, {3, 3}, {3, 3}, {1, 1}, 1, false}},
    {1, 2, 30, 30, 3, 11, 11, {{4, 4}, {2, 2}, {2, 2}, {1, 1}, 1, false}},
    {2, 2, 5, 6, 3, 5, 6, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {1, 1, 3, 3, 1, 3, 3, {{1, 1}, {4, 0}, {0, 4}, {1, 1}, 1, false}},
    {1, 1, 40, 1, 2, 3, 1, {{1, 1}, {1, 0}, {1, 0}, {1, 1}, 1, false}},
    {1, 3, 1, 300, 40, 1, 9, {{1, 1}, {0, 4}, {0, 4}, {1, 1}, 1, false}},
    {1, 40, 6, 6, 70, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {1, 2, 2, 2, 2, 2, 2, {{5, 5}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {1, 2, 8, 7, 2, 2, 2, {{3, 4}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    /* small images, channels that fill tiles: by pixel */
    {8, 32, 14, 14, 32, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {4, 64, 9, 37, 64, 3, 3, {{2, 3}, {1, 2}, {0, 1}, {1, 2}, 2, false}},
    /* each channel by itself */
    {3, 83, 9, 8, 83, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 83, false}},
    {2, 70, 12, 21, 70, 3, 5, {{2, 3}, {0, 2}, {1, 1}, {2, 1}, 70, false}},
    {2, 5, 8, 7, 5, 2, 2, {{3, 4}, {0, 0}, {0, 0}, {1, 1}, 5, false}},
    /* lines that strips of 4, 5 and 6 pixels divide; dy that is read in place, of several rows at a time */
    {2, 5, 8, 16, 32, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {2, 7, 10, 12, 64, 4, 4, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {1, 3, 4, 530, 32, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    /* channels over one register, columns that overlap, leave gaps and are the image */
    {3, 40, 7, 6, 33, 3, 3, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {2, 17, 9, 8, 48, 1, 1, {{2, 3}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {2, 48, 7, 7, 40, 1, 1, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    /* what Winograd's way takes, with tiles that stick out */
    {2, 16, 14, 14, 32, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {3, 32, 9, 11, 32, 3, 3, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {1, 64, 5, 7, 32, 3, 3, {{1, 1}, {2, 1}, {0, 3}, {1, 1}, 1, false}},
    {17, 32, 16, 12, 64, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {2, 16, 9, 8, 32, 5, 5, {{1, 1}, {2, 2}, {2, 2}, {1, 1}, 1, false}},
    {3, 32, 9, 6, 32, 5, 5, {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false}},
    {1, 64, 5, 7, 32, 5, 5, {{1, 1}, {2, 1}, {0, 5}, {1, 1}, 1, false}},
    {11, 32, 6, 5, 64, 5, 5, {{1, 1}, {2, 2}, {2, 2}, {1, 1}, 1, false}},
    {1, 352, 5, 4, 320, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}}, /* kernels in two chunks */
    /* weights whose rows and images go through in several chunks and blocks */
    {3, 100, 9, 31, 70, 3, 3, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false}},
    {2, 3, 23, 527, 20, 5, 4, {{3, 1}, {2, 2}, {1, 1}, {1, 1}, 1, false}},
};

/* Operands and results of a convolution and its gradients. */
typedef struct conv_sums {
    const double *x, *w, *dy;
    double *y, *dx, *dw;
} conv_sums;

static void conv_reference(const conv_case *t, int64_t oh, int64_t ow, const conv_sums *v) {
    const fl_conv2d_args *a = &t->a;
    int64_t cg = t->c / a->groups, og = t->o / a->groups;
    for (int64_t n = 0; n < t->n; n++) for (int64_t o = 0; o < t->o; o++)
        for (int64_t i = 0; i < oh; i++) for (int64_t j = 0; j < ow; j++)
            for (int64_t c = 0; c < cg; c++)
                for (int64_t p = 0; p < t->kh; p++) for (int64_t q = 0; q < t->kw; q++) {
                    int64_t y = i * a->stride[0] - a->pad_lo[0] + p * a->dilation[0];
                    int64_t x = j * a->stride[1] - a->pad_lo[1] + q * a->dilation[1];
                    if (y < 0 || y >= t->h || x < 0 || x >= t->w) continue;
                    int64_t ix = ((n * t->c + o / og * cg + c) * t->h + y) * t->w + x;
                    int64_t iw = ((o * cg + c) * t->kh + p) * t->kw + q,
                            iy = ((n * t->o + o) * oh + i) * ow + j;
                    v->y[iy] += v->x[ix] * v->w[iw];
                    v->dx[ix] += v->dy[iy] * v->w[iw];
                    v->dw[iw] += v->dy[iy] * v->x[ix];
                }
}

/* The same values stored in another way: row-major, channels-last, or with gaps. */
typedef enum storing { ROW_MAJOR, LAST, GAPS, STORINGS } storing;
static fl_tensor *stored(fl_tensor *t, storing how) {
    if (how == LAST) {
        fl_tensor *dense = fl_contiguous(fl_permute(t, 4, (int[]){0, 2, 3, 1}));
        return fl_permute(dense, 4, (int[]){0, 3, 1, 2});
    }
    if (how == ROW_MAJOR) return t;
    fl_tensor *twice = fl_stack((fl_tensor *[]){t, t}, 2, 4);
    return fl_select(twice, 4, 1);
}

static void check_conv(const conv_case *t, fl_dtype d, int which, storing how) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = random_tensor(FL_SHAPE(t->n, t->c, t->h, t->w), d);
    fl_tensor *w = random_tensor(FL_SHAPE(t->o, t->c / t->a.groups, t->kh, t->kw), d);
    fl_tensor *bias = random_tensor(FL_SHAPE(t->o), d), *y = fl_conv2d_run(x, w, NULL, t->a);
    if (!CHECK(y != NULL)) return;
    fl_tensor *dy = random_tensor(fl_shape_of(y), d);
    x = stored(x, how), w = stored(w, which % 4 < 3 ? how : ROW_MAJOR), dy = stored(dy, how);
    double *vb = values(bias);
    conv_sums v = {values(x), values(w), values(dy), calloc((size_t)fl_numel(y), 8),
                   calloc((size_t)fl_numel(x), 8), calloc((size_t)fl_numel(w), 8)};
    conv_reference(t, y->shape[2], y->shape[3], &v);
    double *biased = malloc((size_t)fl_numel(y) * 8);
    for (int64_t i = 0; i < fl_numel(y); i++)
        biased[i] = v.y[i] + vb[i / (y->shape[2] * y->shape[3]) % t->o];
    double *positive = malloc((size_t)fl_numel(y) * 8);
    for (int64_t i = 0; i < fl_numel(y); i++) positive[i] = fmax(0, biased[i]);
    fl_conv2d_args relu = t->a;
    relu.relu = true;
    const bool last = how == LAST;
    int top = levels();
    for (int level = 0; level <= top; level++)
        for (int way = last ? DIRECT : AUTO; way <= WINOGRAD; way++) {
            if (!last && way > AUTO) break;
            fl__level_cap(level);
            fl_cpu_force_algorithm(way_name[way]);
            char what[128];
            int len = snprintf(what, sizeof what, "conv %d %s %s stored %d way %d ", which,
                               fl_dtype_name(d), level_name[level], how, way);
            double slack = way == WINOGRAD ? 10 : 1;
            double few = slack * tolerance(d, (double)(t->c * t->kh * t->kw));
            double back = slack * tolerance(d, (double)(t->o * t->kh * t->kw));
            double many = slack * tolerance(d, (double)(t->n * y->shape[2] * y->shape[3]));
            snprintf(what + len, sizeof what - (size_t)len, "forward");
            check_values(what, fl_conv2d_run(x, w, NULL, t->a), v.y, few);
            check_values(what, fl_conv2d_run(x, w, bias, t->a), biased, few);
            check_values(what, fl_conv2d_run(x, w, bias, relu), positive, few);
            snprintf(what + len, sizeof what - (size_t)len, "data gradient");
            check_values(what, fl_conv2d_grad_input(dy, w, fl_shape_of(x), t->a), v.dx, back);
            snprintf(what + len, sizeof what - (size_t)len, "weight gradient");
            check_values(what, fl_conv2d_grad_weight(x, dy, fl_shape_of(w), t->a), v.dw, many);
        }
    fl_cpu_force_algorithm(NULL);
    levels();
    free((void *)v.x), free((void *)v.w), free((void *)v.dy), free(v.y), free(v.dx), free(v.dw);
    free(vb), free(biased), free(positive);
    fl_scope_end(&s);
}

TEST(conv_f32) {
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        for (int how = 0; how < STORINGS; how++)
            check_conv(&conv_cases[i], FL_F32, (int)i, (storing)how);
}

TEST(conv_f64) {
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        for (int how = 0; how < STORINGS; how++)
            check_conv(&conv_cases[i], FL_F64, (int)i, (storing)how);
}

/* A NaN and an infinity reach exactly the outputs whose windows hold them (not so by Winograd's
   way, which these sizes do not take), directly, by im2col, and each channel by itself. */
static void check_conv_nan(int way, bool relu) {
    fl_scope s = fl_scope_begin();
    const bool each = way == AUTO;
    const int64_t o = each ? 3 : 17;
    fl_tensor *x = random_tensor(FL_SHAPE(2, 3, 20, 20), FL_F32);
    fl_tensor *w = fl_add(fl_zeros(FL_SHAPE(o, each ? 1 : 3, 3, 3), FL_F32), fl_num(0.5));
    float *v = fl_map(x, FL_WRITE);
    v[10 * 20 + 10] = NAN;
    v[400 * !each + 2] = INFINITY;
    fl_unmap(x, FL_WRITE);
    fl_cpu_force_algorithm(way_name[way]);
    fl_tensor *bias = relu ? fl_zeros(FL_SHAPE(o), FL_F32) : NULL;
    fl_tensor *y = fl_conv(stored(x, LAST), stored(w, LAST), bias, .pad = {1}, .groups = each ? 3 : 1,
                           .relu = relu);
    double *got = values(y);
    for (int64_t i = 0; i < fl_numel(y); i++) {
        int64_t n = i / (o * 400), row = i / 20 % 20, col = i % 20;
        bool hit = n == 0 && (!each || i < 400);
        bool nan = hit && llabs(row - 10) <= 1 && llabs(col - 10) <= 1;
        bool inf = hit && row <= 1 && llabs(col - 2) <= 1;
        if (!CHECK((got[i] != got[i]) == nan) || !CHECK((isinf(got[i]) != 0) == inf)) break;
    }
    free(got);
    fl_scope_end(&s);
}

TEST(conv_nan_and_infinity) {
    for (int level = 0, top = levels(); level <= top; level++) {
        fl__level_cap(level);
        for (int way = AUTO; way < WINOGRAD; way++) check_conv_nan(way, false), check_conv_nan(way, true);
    }
    fl_cpu_force_algorithm(NULL);
    levels();
}

/* >>pool */

typedef struct pool_case {
    int64_t n, c, h, w;
    fl_pool2d_args a;
} pool_case;

static const pool_case pool_cases[] = {
    {2, 3, 28, 28, {{2, 2}, {2, 2}, {0, 0}, {0, 0}, true, false}},
    {1, 2, 7, 9, {{2, 2}, {2, 2}, {0, 0}, {0, 0}, true, false}},
    {2, 1, 11, 10, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false}},
    {2, 1, 11, 10, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, false, false}},
    {1, 1, 6, 600, {{2, 3}, {1, 2}, {0, 1}, {1, 0}, false, false}},
    {1, 2, 5, 5, {{5, 5}, {1, 1}, {2, 2}, {2, 2}, false, false}},
    {1, 1, 4, 4, {{1, 1}, {1, 1}, {0, 0}, {0, 0}, true, false}},
    {3, 1, 9, 8, {{3, 2}, {4, 3}, {0, 0}, {0, 0}, true, false}},
    {2, 37, 9, 12, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false}},
};

/* One window by plain loops: its maximum (first; NaN wins), where it is, its sum and its count of
   elements inside. */
typedef struct window {
    double best, sum;
    int64_t at, inside;
} window;

static window window_of(const pool_case *t, const double *plane, int64_t i, int64_t j) {
    window r = {-INFINITY, 0, -1, 0};
    for (int64_t p = 0; p < t->a.kernel[0]; p++)
        for (int64_t q = 0; q < t->a.kernel[1]; q++) {
            int64_t y = i * t->a.stride[0] - t->a.pad_lo[0] + p,
                    x = j * t->a.stride[1] - t->a.pad_lo[1] + q;
            if (y < 0 || y >= t->h || x < 0 || x >= t->w) continue;
            double v = plane[y * t->w + x];
            r.sum += v;
            r.inside++;
            if (r.at < 0 || (r.best == r.best && (v > r.best || v != v)))
                r.best = v, r.at = y * t->w + x;
        }
    return r;
}

/* The record, with an index of i64 places in the image, or of u8 places in the window; y. */
static fl_tensor *run_max_pool(const pool_case *t, fl_tensor *x, fl_dtype d, fl_tensor **index) {
    int64_t oh = (t->h + t->a.pad_lo[0] + t->a.pad_hi[0] - t->a.kernel[0]) / t->a.stride[0] + 1;
    int64_t ow = (t->w + t->a.pad_lo[1] + t->a.pad_hi[1] - t->a.kernel[1]) / t->a.stride[1] + 1;
    fl_shape out = FL_SHAPE(t->n, t->c, oh, ow);
    fl_pool2d_args a = t->a;
    a.in_window = d == FL_U8;
    fl_call c = {.op = fl_op_max_pool2d, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    c.out[0] = fl_out_order_as(fl_out_on(x->backend, out, x->dtype), x);
    c.out[1] = *index = fl_out_order_as(fl_out_on(x->backend, out, d), x);
    CHECK(fl_call_run(&c));
    return c.out[0];
}

/* dx by places in windows */
static fl_tensor *run_max_pool_grad(const pool_case *t, fl_tensor *dy, fl_tensor *tap) {
    fl_tensor *dx = fl_out_on(dy->backend, FL_SHAPE(t->n, t->c, t->h, t->w), dy->dtype);
    fl_pool2d_args a = t->a;
    a.in_window = true;
    return fl_call_into(fl_op_max_pool2d_grad, fl_out_order_as(dx, dy), dy, tap, &a);
}

/* Places in images of places in windows. */
static fl_tensor *image_places(const pool_case *t, fl_tensor *tap) {
    double *v = values(tap);
    const int64_t oh = tap->shape[2], ow = tap->shape[3];
    for (int64_t i = 0; i < fl_numel(tap); i++) {
        const int64_t k = (int64_t)v[i];
        const int64_t row = i / ow % oh * t->a.stride[0] - t->a.pad_lo[0] + k / t->a.kernel[1];
        v[i] = (double)(row * t->w + i % ow * t->a.stride[1] - t->a.pad_lo[1] + k % t->a.kernel[1]);
    }
    fl_tensor *at = fl_from_host(v, fl_shape_of(tap), FL_F64);
    free(v);
    return at;
}

static void check_pool(const pool_case *t, fl_dtype d, bool special) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = random_tensor(FL_SHAPE(t->n, t->c, t->h, t->w), d), *index = NULL;
    double *vx = values(x);
    if (special) { /* ties, NaN and a window of -inf */
        for (int64_t i = 0; i < fl_numel(x); i++)
            vx[i] = i % 13 == 5 ? NAN : i % 7 < 4 ? -INFINITY : floor(3 * vx[i]);
        x = fl_cast(fl_from_host(vx, fl_shape_of(x), FL_F64), d);
    }
    fl_tensor *y = run_max_pool(t, x, FL_I64, &index);
    fl_shape out = fl_shape_of(y);
    int64_t oh = out.dim[2], ow = out.dim[3];
    fl_tensor *dy = random_tensor(out, d);
    double *vdy = values(dy), *best = calloc((size_t)fl_numel(y), 8),
           *at = calloc((size_t)fl_numel(y), 8);
    double *mean = calloc((size_t)fl_numel(y), 8), *dmax = calloc((size_t)fl_numel(x), 8);
    double *dmean = calloc((size_t)fl_numel(x), 8);
    for (int64_t e = 0; e < fl_numel(y); e++) {
        int64_t plane = e / (oh * ow) * t->h * t->w, i = e / ow % oh, j = e % ow;
        window r = window_of(t, vx + plane, i, j);
        double count =
            t->a.count_pad ? (double)(t->a.kernel[0] * t->a.kernel[1]) : (double)r.inside;
        best[e] = r.best, at[e] = (double)r.at, mean[e] = r.sum / count;
        dmax[plane + r.at] += vdy[e];
        for (int64_t p = 0; p < t->a.kernel[0]; p++)
            for (int64_t q = 0; q < t->a.kernel[1]; q++) {
                int64_t yy = i * t->a.stride[0] - t->a.pad_lo[0] + p,
                        xx = j * t->a.stride[1] - t->a.pad_lo[1] + q;
                if (yy < 0 || yy >= t->h || xx < 0 || xx >= t->w) continue;
                dmean[plane + yy * t->w + xx] += vdy[e] / count;
            }
    }
    check_values("max", y, best, 0);
    check_values("max index", index, at, 0);
    if (d != FL_I64) {
        check_values("max gradient", fl_max_pool2d_grad(dy, index, fl_shape_of(x)), dmax, 1e-5);
        check_values("mean", fl_avg_pool2d_run(x, t->a), mean, tolerance(d, 9));
        check_values("mean gradient", fl_avg_pool2d_grad(dy, fl_shape_of(x), t->a), dmean,
                     tolerance(d, 9));
    }
    free(vx), free(vdy), free(best), free(at), free(mean), free(dmax), free(dmean);
    fl_scope_end(&s);
}

static void check_same(fl_tensor *got, fl_tensor *want) {
    double *v = values(want);
    check_values("pooling by places in windows", got, v, 0);
    free(v);
}

/* Places in windows, a byte each, and the gradient by them, are those of i64 indices, in both
   layouts and at every level. */
static void check_pool_taps(const pool_case *t, fl_dtype d, bool special) {
    fl_scope s = fl_scope_begin();
    fl_shape shape = FL_SHAPE(t->n, t->c, t->h, t->w);
    fl_tensor *x = random_tensor(shape, d), *index = NULL, *tap = NULL, *at = NULL;
    double *v = values(x);
    for (int64_t i = 0; special && i < fl_numel(x); i++)
        v[i] = i % 13 == 5 ? NAN : i % 7 < 4 ? -INFINITY : floor(3 * v[i]);
    x = fl_cast(fl_from_host(v, shape, FL_F64), d);
    fl__level_cap(FL__PORTABLE);
    fl_tensor *y = run_max_pool(t, x, FL_I64, &index);
    fl_tensor *dy = random_tensor(fl_shape_of(y), d), *dx = fl_max_pool2d_grad(dy, index, shape);
    for (int level = FL__PORTABLE; level <= FL__AVX512; level++)
        for (int last = 0; last < 2; last++) {
            fl__level_cap(level);
            fl_tensor *image = last ? fl_channels_last(x) : x, *g = last ? fl_channels_last(dy) : dy;
            check_same(run_max_pool(t, image, FL_I64, &at), y);
            check_same(at, index);
            check_same(run_max_pool(t, image, FL_U8, &tap), y);
            check_same(image_places(t, tap), index);
            check_same(run_max_pool_grad(t, g, tap), dx);
        }
    free(v);
    fl_scope_end(&s);
}

TEST(pooling) {
    for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
        check_pool(&pool_cases[i], FL_F32, false);
        check_pool(&pool_cases[i], FL_F64, false);
        check_pool(&pool_cases[i], FL_I64, false);
        check_pool(&pool_cases[i], FL_F32, true);
        check_pool(&pool_cases[i], FL_F64, true);
        for (int k = 0; k < 4; k++)
            check_pool_taps(&pool_cases[i], k & 1 ? FL_F32 : FL_F64, k & 2);
    }
}

/* >>threads */

/* The bits of products and convolutions large enough for many tasks, as one hash. */
static uint64_t hash_of(uint64_t h, fl_tensor *t) {
    size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    unsigned char *data = malloc(bytes);
    CHECK(fl_to_host(t, data, bytes));
    for (size_t i = 0; i < bytes; i++) h = (h ^ data[i]) * 1099511628211u;
    free(data);
    return h;
}

static uint64_t hash_of_everything(fl_dtype d) {
    fl_scope s = fl_scope_begin();
    noise_state = 7;
    uint64_t h = 14695981039346656037u;
    static const int64_t size[][3] = {
        {300, 600, 500}, {20, 30, 30000}, {64, 1000, 700}, {7, 2000, 300}, {64, 10, 1024}};
    for (int i = 0; i < 5; i++)
        for (int layout = 0; layout < 4; layout++) {
            int64_t m = size[i][0], n = size[i][1], k = size[i][2];
            fl_tensor *a =
                fl_div(random_tensor(layout & 1 ? FL_SHAPE(k, m) : FL_SHAPE(m, k), d), fl_num(3));
            fl_tensor *b =
                fl_div(random_tensor(layout & 2 ? FL_SHAPE(n, k) : FL_SHAPE(k, n), d), fl_num(7));
            h = hash_of(h, fl_matmul(layout & 1 ? fl_transpose(a, 0, 1) : a,
                                     layout & 2 ? fl_transpose(b, 0, 1) : b));
        }
    static const int cases[] = {1, 4, 17, 20};
    for (int i = 0; i < 4; i++) {
        const conv_case *t = &conv_cases[cases[i]];
        fl_tensor *x = fl_div(random_tensor(FL_SHAPE(9, t->c, t->h, t->w), d), fl_num(3));
        fl_tensor *w =
            fl_div(random_tensor(FL_SHAPE(t->o, t->c / t->a.groups, t->kh, t->kw), d), fl_num(7));
        fl_tensor *y = fl_conv2d_run(x, w, NULL, t->a);
        h = hash_of(h, y);
        h = hash_of(h, fl_conv2d_grad_input(y, w, fl_shape_of(x), t->a));
        h = hash_of(h, fl_conv2d_grad_weight(x, y, fl_shape_of(w), t->a));
        h = hash_of(h, fl_max_pool(y, NULL, .kernel = {2}));
    }
    for (int way = DIRECT; way <= WINOGRAD; way++) {
        fl_cpu_force_algorithm(way_name[way]);
        fl_conv2d_args args = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false};
        fl_tensor *x = stored(fl_div(random_tensor(FL_SHAPE(9, 32, 17, 19), d), fl_num(3)), LAST);
        fl_tensor *w = fl_div(random_tensor(FL_SHAPE(64, 32, 3, 3), d), fl_num(7));
        fl_tensor *y = fl_conv2d_run(x, w, NULL, args);
        CHECK(y->stride[1] == 1); /* the layout of x */
        h = hash_of(h, y);
        h = hash_of(h, fl_conv2d_grad_input(y, w, fl_shape_of(x), args));
        h = hash_of(h, fl_conv2d_grad_weight(x, y, fl_shape_of(w), args));
    }
    fl_cpu_force_algorithm(NULL);
    fl_conv2d_args each = {{1, 2}, {1, 1}, {1, 1}, {1, 1}, 70, false};
    fl_tensor *x = stored(fl_div(random_tensor(FL_SHAPE(9, 70, 17, 19), d), fl_num(3)), LAST);
    fl_tensor *w = fl_div(random_tensor(FL_SHAPE(70, 1, 3, 3), d), fl_num(7));
    fl_tensor *y = fl_conv2d_run(x, w, NULL, each);
    h = hash_of(h, y);
    h = hash_of(h, fl_conv2d_grad_input(y, w, fl_shape_of(x), each));
    h = hash_of(h, fl_conv2d_grad_weight(x, y, fl_shape_of(w), each));
    fl_scope_end(&s);
    return h;
}

/* A record with places in windows means the same where a backend has no slot that takes bytes. */
TEST(places_in_windows_go_without_a_slot) {
    for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
        const pool_case *t = &pool_cases[i];
        fl_scope s = fl_scope_begin();
        fl_tensor *x = random_tensor(FL_SHAPE(t->n, t->c, t->h, t->w), FL_F32), *tap, *mine;
        fl_tensor *y = run_max_pool(t, x, FL_U8, &tap), *dx = run_max_pool_grad(t, y, tap);
        fl_backend b = *fl_backend_cpu(), shipped;
        CHECK(fl_backend_set(&b, fl_op_max_pool2d, NULL, 0));
        CHECK(fl_backend_set(&b, fl_op_max_pool2d_grad, NULL, 0) && fl_backend_use(&b, &shipped));
        check_same(run_max_pool(t, x, FL_U8, &mine), y);
        check_same(mine, tap);
        check_same(run_max_pool_grad(t, y, tap), dx);
        CHECK(fl_backend_use(&shipped, NULL));
        fl_scope_end(&s);
    }
}

TEST(pooling_refuses_an_index_outside) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *dy = fl_ones(FL_SHAPE(1, 1, 1, 2), FL_F32);
    fl_tensor *index = fl_from_host((int64_t[]){3, 16}, FL_SHAPE(1, 1, 1, 2), FL_I64);
    CHECK(!fl_max_pool2d_grad(dy, index, FL_SHAPE(1, 1, 4, 4)));
    CHECK_ERROR("fl_max_pool2d_grad: an index is out of range for images of 4 x 4");
    fl_scope_end(&s);
}

TEST(threads_give_the_same_bits) {
    static const int counts[] = {1, 2, 3, 8};
    for (int level = 0, top = levels(); level <= top; level++) {
        fl__level_cap(level);
        uint64_t first[2] = {0, 0};
        for (int i = 0; i < 4; i++) {
            CHECK(fl_set_threads(counts[i]));
            uint64_t f32 = hash_of_everything(FL_F32), f64 = hash_of_everything(FL_F64);
            if (i == 0) first[0] = f32, first[1] = f64;
            CHECK(f32 == first[0]);
            CHECK(f64 == first[1]);
        }
    }
    levels();
    fl_set_threads(0);
}

/* >>memory: a scratch buffer that cannot be had is an error, and the next call works */

static void ignore_error(const char *text, void *user) {
    (void)text;
    (void)user;
}

TEST(scratch_may_fail) {
    fl_set_error_handler(ignore_error, NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *a = random_tensor(FL_SHAPE(100, 100), FL_F32),
              *b = random_tensor(FL_SHAPE(100, 100), FL_F32);
    fl_tensor *x = random_tensor(FL_SHAPE(2, 3, 12, 12), FL_F32),
              *w = random_tensor(FL_SHAPE(4, 3, 3, 3), FL_F32);
    fl_conv2d_args args = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false};
    fl_tensor *dy = random_tensor(FL_SHAPE(2, 4, 12, 12), FL_F32);
    bool worked = false;
    for (int op = 0; op < 4; op++, worked = false)
        for (int n = 1; n < 10 && !worked; n++) {
            fl_mem_manager *failing = fl_mem_failing(NULL, n, false), *old = fl_mem_set_current(failing);
            fl_tensor *y = op == 0 ? fl_matmul(a, b)
                         : op == 1 ? fl_conv2d_run(x, w, NULL, args)
                         : op == 2 ? fl_conv2d_grad_input(dy, w, fl_shape_of(x), args)
                                   : fl_conv2d_grad_weight(x, dy, fl_shape_of(w), args);
            fl_mem_set_current(old);
            fl_mem_close(failing);
            worked = y != NULL;
            CHECK(worked == (fl_error() == NULL));
            fl_error_clear();
            if (n == 2 && op > 0) CHECK(!worked); /* the output, then the scratch */
        }
    fl_scope_end(&s);
    fl_set_error_handler(NULL, NULL);
}

TEST(isa_is_capped) {
    int top = levels();
    CHECK_EQ_INT(fl__level(), top);
    CHECK_EQ_INT(fl__level_cap(FL__PORTABLE), FL__PORTABLE);
    CHECK_EQ_INT(fl__level(), FL__PORTABLE);
    CHECK_EQ_INT(levels(), top);
    const char *asked = getenv("FL_CPU_LEVEL");
    if (asked && strcmp(asked, "portable") == 0) CHECK_EQ_INT(top, FL__PORTABLE);
    if (asked && strcmp(asked, "avx2") == 0) CHECK(top <= FL__AVX2);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
