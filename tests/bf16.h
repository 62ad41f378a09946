/* bf16.h - tests of products whose operands may be rounded to bf16, against f64 loops over operands
   that were, and of vdpbf16ps and the tiles of AMX against plain C */
#include "../fl_all.h"
#include "../kernels/cpu/bf16.h"
#include "../kernels/cpu/levels.h"
#include "test.h"

#include <float.h>

static void bf16_end(void) {
    CHECK(fl_set_matmul_precision(FL_F32));
    CHECK(fl_cpu_set_bf16(NULL));
    fl__level_cap(FL__AVX512);
}

/* Rounding is allowed from here on, by one way; false where there is none of it. */
static bool bf16_begin(const char *way) {
    test_errors_return();
    fl__level_cap(FL__TOP_LEVEL);
    const bool has = fl_cpu_set_bf16(way);
    fl_error_clear();
    return has && CHECK(fl_set_matmul_precision(FL_BF16));
}

#define BF16_BY(way, name) \
    TEST(name##_by_##way) { \
        if (!bf16_begin(#way)) SKIP("no products of bf16 by " #way " here"); \
        name(); \
        bf16_end(); \
    }
#define TEST_BF16(name) static void name(void); BF16_BY(vdpbf16, name) BF16_BY(amx, name) static void name(void)

/* What the processor has, and its emulation. */
static const struct {
    const char *real, *plain;
} bf16_ways[] = {{"vdpbf16", "emulated_vdpbf16"}, {"amx", "emulated"}};

/* To the nearest bf16, ties to even; NaN stays. */
static double bf16_of(double x) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (isnan(f)) return x;
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* f32 in [-1, 1) with all bits in use; `turned`: a view whose last two axes are exchanged. */
static fl_tensor *bf16_operand(fl_shape s, bool turned, uint64_t seed) {
    const int n = s.ndim;
    if (turned) {
        int64_t rows = s.dim[n - 2];
        s.dim[n - 2] = s.dim[n - 1], s.dim[n - 1] = rows;
    }
    fl_tensor *t = fl_uniform(s, -1, 1, FL_F32, &(fl_rng){seed, 0});
    return turned ? fl_transpose(t, n - 2, n - 1) : t;
}

/* Row-major values as f64, which the caller frees. */
static double *bf16_values(fl_tensor *t) {
    double *v = malloc((size_t)(fl_numel(t) + 1) * sizeof *v);
    CHECK(fl_to_host(fl_cast(t, FL_F64), v, (size_t)fl_numel(t) * sizeof *v));
    return v;
}

/* How far y [m, n] is from a [m, k] b [k, n], both rounded or not, at most: in 2^-24 of the sum of
   the absolute terms. */
static double bf16_distance(const double *y, const double *a, const double *b, int64_t m, int64_t n,
                            int64_t k, bool rounded) {
    double worst = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < k; p++) {
                double u = a[i * k + p], v = b[p * n + j];
                double term = rounded ? bf16_of(u) * bf16_of(v) : u * v;
                sum += term, size += fabs(term);
            }
            worst = fmax(worst, fabs(y[i * n + j] - sum) / size);
        }
    return worst * 0x1p24;
}

/* A product is of rounded operands altogether, or of the operands themselves; large ones must be
   rounded. layout bit 0: a is a transposed view, bit 1: b is. */
static void check_bf16_product(int64_t m, int64_t n, int64_t k, int layout, bool must) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = bf16_operand(FL_SHAPE(m, k), layout & 1, 1);
    fl_tensor *b = bf16_operand(FL_SHAPE(k, n), layout & 2, 2);
    double *va = bf16_values(a), *vb = bf16_values(b), *vy = bf16_values(fl_matmul(a, b));
    const double most = 4 + sqrt((double)k), far = bf16_distance(vy, va, vb, m, n, k, true);
    if (!CHECK(far <= most || (!must && bf16_distance(vy, va, vb, m, n, k, false) <= most)))
        printf("    %lldx%lldx%lld layout %d: %g of at most %g\n", (long long)m, (long long)n,
               (long long)k, layout, far, most);
    free(va), free(vb), free(vy);
    fl_scope_end(&s);
}

TEST_BF16(bf16_products_around_every_block) {
    static const int64_t rows[] = {9, 13, 14, 15, 16, 28, 29, 43, 65};
    static const int64_t columns[] = {9, 15, 16, 17, 31, 32, 33, 47, 49, 65};
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 10; j++) {
            int64_t k = 64 * 64 * 64 / (rows[i] * columns[j]) + 1 + (i + j) % 3;
            for (int layout = 0; layout < 4; layout++)
                check_bf16_product(rows[i], columns[j], k, layout, false);
        }
}

/* Several blocks, chunks and splits of k, odd ones too; swapped operands. */
TEST_BF16(bf16_products_of_many_blocks) {
    static const int64_t size[][3] = {{66, 64, 65},   {530, 500, 1},  {300, 900, 2}, {300, 900, 3},
                                      {201, 133, 65}, {1030, 40, 17}, {97, 530, 80}, {64, 10, 1024},
                                      {70, 600, 33},  {33, 35, 2049}, {40, 44, 4097},
                                      {20, 30, 20001}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int layout = 0; layout < 4; layout++)
            check_bf16_product(size[i][0], size[i][1], size[i][2], layout,
                               size[i][0] > 32 && size[i][2] >= 16);
}

/* Products that read their operands in place keep all their bits. */
TEST_BF16(bf16_leaves_small_products_alone) {
    static const int64_t size[][3] = {{64, 64, 64}, {5, 300, 900}, {300, 1, 900}, {300, 8, 200}};
    for (int i = 0; i < 4; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *a = bf16_operand(FL_SHAPE(size[i][0], size[i][2]), false, 1);
        fl_tensor *b = bf16_operand(FL_SHAPE(size[i][2], size[i][1]), false, 2);
        fl_tensor *y = fl_matmul(a, b);
        CHECK(fl_set_matmul_precision(FL_F32));
        CHECK(fl_item(fl_all(fl_eq(y, fl_matmul(a, b)), FL_ALL_AXES)) == 1);
        CHECK(fl_set_matmul_precision(FL_BF16));
        fl_scope_end(&s);
    }
}

TEST(bf16_is_off_by_default) {
    CHECK_EQ_INT(fl_matmul_precision(), FL_F32);
}

/* The setting, the level and the dtype decide; what is off stays off. */
TEST_BF16(bf16_is_a_permission) {
    CHECK_EQ_INT(fl_matmul_precision(), FL_BF16);
    fl_scope s = fl_scope_begin();
    fl_tensor *a = bf16_operand(FL_SHAPE(100, 100), false, 1), *wide = fl_cast(a, FL_F64);
    fl_tensor *rounded = fl_matmul(a, a), *f64 = fl_matmul(wide, wide);
    fl__level_cap(FL__AVX512);
    fl_tensor *capped = fl_matmul(a, a);
    fl__level_cap(FL__TOP_LEVEL);
    CHECK(fl_set_matmul_precision(FL_F32));
    fl_tensor *plain = fl_matmul(a, a);
    CHECK(fl_item(fl_all(fl_eq(plain, capped), FL_ALL_AXES)) == 1);
    CHECK(fl_item(fl_all(fl_eq(plain, rounded), FL_ALL_AXES)) == 0);
    CHECK(fl_item(fl_all(fl_eq(f64, fl_matmul(wide, wide)), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

/* Times the identity, on either side and in any layout: exactly what a cast gives, for values of
   all sizes, ties among them. */
TEST_BF16(bf16_rounds_like_a_cast) {
    enum { N = 67 };
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_empty(FL_SHAPE(N, N), FL_F32), *one = fl_eye(N, N, FL_F32);
    uint32_t *bits = fl_map(x, FL_WRITE), state = 1;
    for (int i = 0; i < N * N; i++) {
        state = state * 1664525u + 1013904223u;
        bits[i] = (state & 0x80ffffffu) + ((state >> 9) % 200 + 20) * 0x800000u;
        if (i % 3 == 0) bits[i] = (bits[i] & 0xffff0000u) | 0x8000u;
    }
    fl_unmap(x, FL_WRITE);
    fl_tensor *want = fl_cast(fl_cast(x, FL_BF16), FL_F32), *turned = fl_transpose(want, 0, 1);
    fl_tensor *y[] = {fl_matmul(x, one), fl_matmul(one, x), fl_matmul(fl_transpose(x, 0, 1), one),
                      fl_matmul(one, fl_transpose(x, 0, 1))};
    for (int i = 0; i < 4; i++)
        CHECK(fl_item(fl_all(fl_eq(y[i], i < 2 ? want : turned), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

/* A NaN of low bits only stays one, infinities and what rounds to one meet 0 as they should. */
TEST_BF16(bf16_nan_and_infinity) {
    enum { N = 70 };
    const uint32_t nan_bits = 0x7f800001u;
    for (int layout = 0; layout < 4; layout++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *a = fl_zeros(FL_SHAPE(N, N), FL_F32), *b = fl_ones(FL_SHAPE(N, N), FL_F32);
        float *x = fl_map(a, FL_WRITE), *z = fl_map(b, FL_WRITE);
        memcpy(&x[1 * N + 2], &nan_bits, 4);
        x[2 * N + 69] = INFINITY;
        x[3 * N + 5] = -FLT_MAX;
        z[69 * N + 4] = 0;
        fl_unmap(a, FL_WRITE), fl_unmap(b, FL_WRITE);
        if (layout & 1) a = fl_transpose(fl_contiguous(fl_transpose(a, 0, 1)), 0, 1);
        if (layout & 2) b = fl_transpose(fl_contiguous(fl_transpose(b, 0, 1)), 0, 1);
        double *y = bf16_values(fl_matmul(a, b));
        for (int j = 0; j < N; j++) {
            CHECK(y[j] == 0 && isnan(y[N + j]) && y[3 * N + j] == -INFINITY);
            CHECK(j == 4 ? isnan(y[2 * N + j]) : y[2 * N + j] == INFINITY);
        }
        free(y);
        fl_scope_end(&s);
    }
}

/* Batches, and the bias and activation of a linear layer, which come after the last chunk. */
TEST_BF16(bf16_batches_and_layers) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = bf16_operand(FL_SHAPE(3, 70, 65), false, 1);
    fl_tensor *b = bf16_operand(FL_SHAPE(3, 65, 80), true, 2), *y = fl_matmul(a, b);
    for (int i = 0; i < 3; i++) {
        fl_tensor *item = fl_matmul(fl_select(a, 0, i), fl_select(b, 0, i));
        CHECK(fl_item(fl_all(fl_eq(fl_select(y, 0, i), item), FL_ALL_AXES)) == 1);
    }
    fl_tensor *x = bf16_operand(FL_SHAPE(90, 4101), false, 3);
    fl_tensor *w = bf16_operand(FL_SHAPE(70, 4101), false, 4);
    fl_tensor *bias = bf16_operand(FL_SHAPE(70), false, 5);
    fl_tensor *want = fl_relu(fl_add(fl_matmul(x, fl_transpose(w, 0, 1)), bias));
    CHECK(fl_item(fl_all(fl_eq(fl_linear_act(x, w, bias, FL_OP_relu), want), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

/* [n side side, channels] as images, and back. */
static fl_tensor *bf16_images(fl_tensor *t, int64_t n, int64_t side) {
    return fl_permute(fl_reshape(t, FL_SHAPE(n, side, side, -1)), 4, (int[]){0, 3, 1, 2});
}

static fl_tensor *bf16_pixels(fl_tensor *t) {
    return fl_reshape(fl_permute(t, 4, (int[]){0, 2, 3, 1}), FL_SHAPE(-1, t->shape[1]));
}

/* A 1 x 1 convolution and its gradients are the products of matrices. */
TEST_BF16(bf16_convolutions_of_pixels) {
    enum { N = 2, SIDE = 9, C = 128, O = 512 };
    const fl_conv2d_args a = {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = bf16_operand(FL_SHAPE(N * SIDE * SIDE, C), false, 1);
    fl_tensor *g = bf16_operand(FL_SHAPE(N * SIDE * SIDE, O), false, 2);
    fl_tensor *w = bf16_operand(FL_SHAPE(O, C), false, 3);
    fl_tensor *x4 = bf16_images(x, N, SIDE), *g4 = bf16_images(g, N, SIDE);
    fl_tensor *w4 = fl_reshape(w, FL_SHAPE(O, C, 1, 1));
    fl_tensor *y = bf16_pixels(fl_conv2d_run(x4, w4, NULL, a));
    fl_tensor *dx = bf16_pixels(fl_conv2d_grad_input(g4, w4, fl_shape_of(x4), a));
    fl_tensor *dw = fl_reshape(fl_conv2d_grad_weight(x4, g4, fl_shape_of(w4), a), FL_SHAPE(O, C));
    fl_tensor *pair[][2] = {{y, fl_matmul(x, fl_transpose(w, 0, 1))},
                            {dx, fl_matmul(g, w)},
                            {dw, fl_matmul(fl_transpose(g, 0, 1), x)}};
    for (int i = 0; i < 3; i++)
        CHECK(fl_item(fl_all(fl_eq(pair[i][0], pair[i][1]), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

static uint64_t bf16_hash(void) {
    fl_scope s = fl_scope_begin();
    uint64_t h = 14695981039346656037u;
    static const int64_t size[][3] = {{300, 600, 501}, {20, 30, 30001}, {64, 1000, 700}};
    for (int i = 0; i < 3; i++)
        for (int layout = 0; layout < 4; layout++) {
            fl_tensor *a = bf16_operand(FL_SHAPE(size[i][0], size[i][2]), layout & 1, 1);
            fl_tensor *b = bf16_operand(FL_SHAPE(size[i][2], size[i][1]), layout & 2, 2);
            fl_tensor *y = fl_matmul(a, b);
            const unsigned char *p = fl_map(y, FL_READ);
            for (int64_t k = 0; k < 4 * fl_numel(y); k++) h = (h ^ p[k]) * 1099511628211u;
            fl_unmap(y, FL_READ);
        }
    fl_scope_end(&s);
    return h;
}

TEST_BF16(bf16_threads_give_the_same_bits) {
    uint64_t first = 0;
    for (int threads = 1; threads <= 4; threads++) {
        CHECK(fl_set_threads(threads));
        if (threads == 1) first = bf16_hash();
        else CHECK(bf16_hash() == first);
    }
    fl_set_threads(0);
}

TEST(bf16_level_is_capped) {
    const int top = fl__level_cap(FL__AVX512_BF16);
    CHECK(fl__level_has_bf16() == (top == FL__AVX512_BF16));
    CHECK(fl__level() <= FL__AVX512);
    CHECK(fl__level_cap(FL__AVX512) <= FL__AVX512);
    CHECK(!fl__level_has_bf16());
}

/* ---- vdpbf16ps and the tiles of AMX, and what they compute in plain C on any processor ---- */

/* Hash of the bits of y. */
static uint64_t bf16_bits(fl_tensor *y) {
    fl_tensor *rows = fl_contiguous(y);
    const unsigned char *p = fl_map(rows, FL_READ);
    uint64_t h = 14695981039346656037u;
    const int64_t bytes = fl_numel(rows) * (int64_t)fl_dtype_size(y->dtype);
    for (int64_t k = 0; k < bytes; k++) h = (h ^ p[k]) * 1099511628211u;
    fl_unmap(rows, FL_READ);
    return h;
}

/* Values of all kinds: as uniform ones, of any exponent, denormals, infinities, NaN of both signs. */
static fl_tensor *amx_operand(int64_t rows, int64_t columns, bool turned, uint32_t *state, bool wild) {
    fl_tensor *t = fl_empty(turned ? FL_SHAPE(columns, rows) : FL_SHAPE(rows, columns), FL_F32);
    uint32_t *bits = fl_map(t, FL_WRITE);
    for (int64_t i = 0; i < rows * columns; i++) {
        *state = *state * 1664525u + 1013904223u;
        const uint32_t u = *state, kind = wild ? u >> 20 & 0xff : 99;
        bits[i] = kind == 0   ? (u & 0x80000000u) | 0x7f800000u
                  : kind == 1 ? (u & 0x80000000u) | 0x7f800001u | (u & 0x3fffff)
                  : kind < 6  ? u & 0x807fffffu
                  : kind < 20 ? u
                              : (u & 0x80ffffffu) + 0x3f000000u;
    }
    fl_unmap(t, FL_WRITE);
    return turned ? fl_transpose(t, 0, 1) : t;
}

/* Every m, n, k up to 70 at random, operands in all layouts: of plain values against f64, and the same bits
   in plain C as by the processor, of wild ones too. */
static void amx_all_sizes(int way) {
    uint32_t state = 1;
    const bool real = bf16_begin(bf16_ways[way].real);
    const int64_t rounds = test_full() ? 400 : 60;
    int64_t compared = 0;
    for (int64_t round = 0; round < rounds; round++) {
        fl_scope s = fl_scope_begin();
        int64_t size[3];
        for (int d = 0; d < 3; d++) state = state * 1664525u + 1013904223u, size[d] = 1 + (state >> 8) % 70;
        if (round % 4 == 0) size[round / 4 % 3] *= 20; /* groups, passes and panels of several */
        const int64_t m = size[0], n = size[1], k = size[2];
        const bool wild = round % 3 == 2;
        fl_tensor *a = amx_operand(m, k, round & 1, &state, wild),
                  *b = amx_operand(k, n, round & 2, &state, wild);
        if (!CHECK(bf16_begin(bf16_ways[way].plain))) break;
        fl_tensor *y = fl_matmul(a, b);
        if (!wild) {
            double *va = bf16_values(a), *vb = bf16_values(b), *vy = bf16_values(y);
            const double most = 4 + sqrt((double)k), far = bf16_distance(vy, va, vb, m, n, k, true);
            if (!CHECK(far <= most || bf16_distance(vy, va, vb, m, n, k, false) <= most))
                printf("    %lldx%lldx%lld: %g of at most %g\n", (long long)m, (long long)n, (long long)k,
                       far, most);
            free(va), free(vb), free(vy);
        }
        if (real && bf16_begin(bf16_ways[way].real))
            compared += CHECK(bf16_bits(fl_matmul(a, b)) == bf16_bits(y));
        fl_scope_end(&s);
    }
    bf16_end();
    if (real) CHECK_EQ_INT(compared, rounds);
    else SKIP("not on this processor: plain C alone was tested");
}

TEST(amx_tiles_of_all_sizes) { amx_all_sizes(1); }
TEST(vdpbf16_of_all_sizes) { amx_all_sizes(0); }

/* Convolutions and both gradients, channels-last: of rounded values the f64 convolution of them, and the same
   bits in plain C as by the processor. Channels that fill no panel, strides, dilation, padding, and images
   smaller than it. */
static void amx_all_convolutions(int by) {
    static const struct {
        int64_t n, c, h, w, o, kh, kw, stride, pad, dilation;
    } size[] = {{2, 16, 7, 9, 16, 3, 3, 1, 1, 1},   {1, 40, 9, 8, 24, 3, 2, 2, 1, 1},
                {3, 33, 5, 5, 70, 1, 1, 1, 0, 1},   {2, 64, 8, 6, 32, 1, 1, 2, 0, 1},
                {1, 20, 11, 10, 17, 3, 3, 1, 2, 2}, {1, 16, 2, 3, 48, 5, 5, 1, 2, 1}};
    bool real = true;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        fl_scope s = fl_scope_begin();
        const fl_conv2d_args a = {{size[i].stride, size[i].stride}, {size[i].pad, size[i].pad},
                                  {size[i].pad, size[i].pad}, {size[i].dilation, size[i].dilation}, 1, false};
        const fl_shape xs = FL_SHAPE(size[i].n, size[i].c, size[i].h, size[i].w);
        const fl_shape ws = FL_SHAPE(size[i].o, size[i].c, size[i].kh, size[i].kw);
        fl_tensor *x = fl_channels_last(fl_uniform(xs, -1, 1, FL_F32, &(fl_rng){i, 0}));
        fl_tensor *w = fl_channels_last(fl_uniform(ws, -1, 1, FL_F32, &(fl_rng){i, 99}));
        fl_tensor *bias = fl_uniform(FL_SHAPE(size[i].o), -1, 1, FL_F32, &(fl_rng){i, 999});
        fl_tensor *y[3][3], *dy = NULL; /* [f64, plain C, processor] */
        for (int way = 0; way < 3; way++) {
            fl_tensor *xi = x, *wi = w, *bi = bias, *di;
            if (way == 0)
                xi = fl_cast(fl_cast(x, FL_BF16), FL_F64), wi = fl_cast(fl_cast(w, FL_BF16), FL_F64);
            if (way == 0) bi = fl_cast(bias, FL_F64);
            if (way == 1) CHECK(bf16_begin(bf16_ways[by].plain));
            if (way == 2 && !(real = bf16_begin(bf16_ways[by].real))) break;
            y[way][0] = fl_conv2d_run(xi, wi, bi, a);
            if (!dy)
                dy = fl_channels_last(fl_uniform(fl_shape_of(y[0][0]), -1, 1, FL_F32, &(fl_rng){i, 9999}));
            di = way == 0 ? fl_cast(fl_cast(dy, FL_BF16), FL_F64) : dy;
            const bool whole = way == 0 && by == 0 && size[i].stride > 1; /* vdpbf16 leaves these to f32 */
            y[way][1] = whole ? fl_conv2d_grad_input(fl_cast(dy, FL_F64), fl_cast(w, FL_F64), xs, a)
                              : fl_conv2d_grad_input(di, wi, xs, a);
            y[way][2] = fl_conv2d_grad_weight(xi, di, ws, a);
        }
        for (int d = 0; d < 3; d++) {
            const double far = fl_item(fl_amax(fl_abs(fl_sub(y[1][d], y[0][d])), FL_ALL_AXES));
            if (!CHECK(far < 2e-5)) printf("    case %zu, direction %d: %g\n", i, d, far);
            CHECK(!real || bf16_bits(y[1][d]) == bf16_bits(y[2][d]));
        }
        fl_scope_end(&s);
        bf16_end();
    }
}

TEST(amx_convolutions) { amx_all_convolutions(1); }
TEST(vdpbf16_convolutions) { amx_all_convolutions(0); }

/* y, dq, dk and dv of attention in one tensor, of q [b, h, n, d], k and v [b, h, m, ...] as views of [b, n,
 * h, d]. */
static fl_tensor *amx_attend(const int64_t size[4], fl_dtype d, bool causal, double p) {
    const int64_t n = size[0], m = size[1], h = 2;
    const fl_shape shape[] = {FL_SHAPE(2, n, h, size[2]), FL_SHAPE(2, m, h, size[2]),
                              FL_SHAPE(2, m, h, size[3])};
    fl_var *x[3];
    for (int i = 0; i < 3; i++) {
        fl_tensor *t = fl_uniform(shape[i], -1, 1, FL_F32, &(fl_rng){(uint64_t)i, 0});
        x[i] = fv_param(fl_transpose(fl_cast(t, d), 1, 2));
    }
    fl_var *y = fv_attention(x[0], x[1], x[2], .causal = causal, .dropout = p, .rng = &(fl_rng){5, 0});
    fl_tensor *dy = fl_uniform(fl_shape_of(fv_value(y)), -1, 1, FL_F32, &(fl_rng){9, 0});
    fl_backward(fv_sum(fv_mul(y, fv_const(fl_cast(dy, d))), FL_ALL_AXES));
    fl_tensor *all[4] = {fv_value(y), fv_grad(x[0]), fv_grad(x[1]), fv_grad(x[2])};
    for (int i = 0; i < 4; i++) all[i] = fl_reshape(fl_contiguous(all[i]), FL_SHAPE(-1));
    return fl_concat(all, 4, 0);
}

/* Attention, causal or not, with dropout and several blocks of queries and keys: near f64 of what was not
   rounded, and the same bits in plain C as by the processor. */
static void amx_all_attention(int way) {
    static const int64_t size[][4] = {
        {17, 33, 16, 16}, {40, 300, 20, 50}, {270, 70, 64, 32}, {64, 64, 33, 48}, {140, 150, 64, 64}};
    bool real = true;
    for (int i = 0; i < 10; i++) {
        fl_scope s = fl_scope_begin();
        const bool causal = i >= 5 && size[i % 5][0] <= size[i % 5][1], rounds = way == 1 || i == 4;
        const double p = i == 3 || i == 6 ? 0.25 : 0;
        fl_tensor *exact = amx_attend(size[i % 5], FL_F64, causal, p), *y;
        CHECK(bf16_begin(bf16_ways[way].plain));
        y = amx_attend(size[i % 5], FL_F32, causal, p);
        const double far = fl_item(fl_amax(fl_abs(fl_sub(y, exact)), FL_ALL_AXES));
        const double most = fl_item(fl_amax(fl_abs(exact), FL_ALL_AXES));
        if (!CHECK(far < 0.02 * most) || !CHECK(far > 1e-5 * most || !rounds))
            printf("    case %d: %g of %g\n", i, far, most);
        if ((real = real && bf16_begin(bf16_ways[way].real)))
            CHECK(bf16_bits(amx_attend(size[i % 5], FL_F32, causal, p)) == bf16_bits(y));
        fl_scope_end(&s);
        bf16_end();
    }
}

TEST(amx_attention) { amx_all_attention(1); }
TEST(vdpbf16_attention) { amx_all_attention(0); }

/* Tensors of bf16 need no permission: their products are those of f32 operands that round, rounded at the
 * end. */
TEST(amx_products_of_bf16_tensors) {
    CHECK(bf16_begin("emulated"));
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_cast(bf16_operand(FL_SHAPE(70, 90), false, 1), FL_BF16);
    fl_tensor *b = fl_cast(bf16_operand(FL_SHAPE(90, 80), false, 2), FL_BF16);
    fl_tensor *want = fl_cast(fl_matmul(fl_cast(a, FL_F32), fl_cast(b, FL_F32)), FL_BF16);
    CHECK(fl_set_matmul_precision(FL_F32));
    CHECK(fl_item(fl_all(fl_eq(fl_matmul(a, b), want), FL_ALL_AXES)) == 1);
    fl_tensor *f32 =
        fl_matmul(fl_uniform(FL_SHAPE(70, 90), -1, 1, FL_F32, &(fl_rng){1, 0}), fl_cast(b, FL_F32));
    CHECK(fl_cpu_set_bf16("f32"));
    fl_tensor *same =
        fl_matmul(fl_uniform(FL_SHAPE(70, 90), -1, 1, FL_F32, &(fl_rng){1, 0}), fl_cast(b, FL_F32));
    CHECK(fl_item(fl_all(fl_eq(f32, same), FL_ALL_AXES)) == 1); /* f32 itself does need it */
    fl_scope_end(&s);
    bf16_end();
}

static fl_tensor *bf16_of_shape(fl_shape s, uint64_t seed) {
    return fl_uniform(s, -1, 1, FL_BF16, &(fl_rng){seed, 0});
}

/* Hashes of what kernels compute of bf16: a part in a workspace and several passes along k, groups of either
   operand, batches, a layer whose bias, z and activation come last; convolutions; attention in several blocks
   and parts, of queries that see no key too. */
static int bf16_tensors(uint64_t *hash, bool fast) {
    static const int64_t size[][3] = {{70, 90, 80}, {130, 40, 1100}, {40, 130, 2060}, {9, 33, 900}};
    int n = 0;
    for (int i = 0; i < 4; i++)
        for (int layout = 0; layout < 4; layout++) {
            fl_tensor *a = fl_cast(bf16_operand(FL_SHAPE(size[i][0], size[i][2]), layout & 1, 1), FL_BF16);
            fl_tensor *b = fl_cast(bf16_operand(FL_SHAPE(size[i][2], size[i][1]), layout & 2, 2), FL_BF16);
            hash[n++] = bf16_bits(fl_matmul(a, b));
        }
    hash[n++] = bf16_bits(fl_matmul(bf16_of_shape(FL_SHAPE(3, 40, 70), 3), bf16_of_shape(FL_SHAPE(3, 70,
            90), 4)));
    fl_var *x = fv_param(bf16_of_shape(FL_SHAPE(130, 70), 5)), *w = fv_param(bf16_of_shape(FL_SHAPE(45,
            70), 6)),
           *b = fv_param(bf16_of_shape(FL_SHAPE(45), 7)), *y = fv_linear_act(x, w, b, FL_OP_gelu);
    fl_backward(fv_sum(fv_mul(y, y), FL_ALL_AXES));
    hash[n++] = bf16_bits(fv_value(y)), hash[n++] = bf16_bits(fv_grad(x)), hash[n++] = bf16_bits(fv_grad(w));
    const fl_conv2d_args a = {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, false};
    const fl_shape xs = FL_SHAPE(2, 40, 9, 8), ws = FL_SHAPE(24, 40, 3, 3);
    fl_tensor *image = fl_channels_last(bf16_of_shape(xs, 8)), *kernel = fl_channels_last(bf16_of_shape(ws,
            9));
    fl_tensor *conv = fl_conv2d_run(image, kernel, bf16_of_shape(FL_SHAPE(24), 10), a);
    hash[n++] = bf16_bits(conv);
    hash[n++] = bf16_bits(fl_conv2d_grad_input(conv, kernel, xs, a));
    hash[n++] = bf16_bits(fl_conv2d_grad_weight(image, conv, ws, a));
    hash[n++] = bf16_bits(amx_attend((int64_t[]){40, 70, 20, 50}, FL_BF16, false, 0));
    hash[n++] = bf16_bits(amx_attend((int64_t[]){33, 40, 16, 16}, FL_BF16, true, 0.25));
    if (fast) hash[n++] = bf16_bits(amx_attend((int64_t[]){1100, 300, 24, 16}, FL_BF16, false, 0));
    fl_tensor *q = bf16_of_shape(FL_SHAPE(2, 300, 16), 11), *k = bf16_of_shape(FL_SHAPE(2, 20, 16), 12);
    hash[n++] = bf16_bits(fl_attention(q, k, k, .window = 8, .offset = 4));
    return n;
}

/* Tiles read and write bf16 as it is: the bits are those of operands that the core casts to f32 and results
   that it rounds, with any number of threads. */
TEST(amx_reads_bf16_as_it_is) {
    static const char *const ways[] = {"emulated", "emulated_vdpbf16", "vdpbf16", "amx"};
    const fl_op ops[] = {FL_OP_matmul, FL_OP_conv2d, FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight,
                         fl_op_linear, fl_op_conv2d_bias, fl_op_attention, fl_op_attention_grad};
    fl_backend wide = *fl_backend_cpu(), old;
    for (int i = 0; i < 8; i++) {
        CHECK(wide.flags[ops[i]] & FL_SLOT_NARROW);
        fl_backend_set(&wide, ops[i], wide.op[ops[i]], wide.flags[ops[i]] & ~FL_SLOT_NARROW);
    }
    uint64_t want[40], got[40];
    for (int way = 0; way < 4 && bf16_begin(ways[way]); way++) {
        CHECK(fl_set_matmul_precision(FL_F32)); /* bf16 needs no permission */
        for (int threads = 0; threads < 5; threads++) { /* 0: cast */
            fl_scope s = fl_scope_begin();
            fl_set_threads(threads == 4 ? 8 : threads ? threads : 1);
            if (threads == 0) CHECK(fl_backend_use(&wide, &old));
            const int n = bf16_tensors(threads ? got : want, way > 1);
            if (threads == 0) CHECK(fl_backend_use(&old, NULL));
            for (int i = 0; threads && i < n; i++)
                if (!CHECK(got[i] == want[i])) printf("    %s: result %d, case %d of threads\n", ways[way],
                        i, threads);
            fl_scope_end(&s);
        }
    }
    fl_set_threads(0);
    bf16_end();
}

/* Hashes of products of several chunks of k and layouts, a layer with bias and gelu and its gradients, and
   convolutions of 3 x 3 and 5 x 5 with theirs, of tensors of dtype d. */
static int halves_on_their_way(fl_dtype d, uint64_t *hash) {
    static const int64_t size[][3] = {{70, 90, 80}, {130, 90, 2300}, {9, 330, 900}, {100, 700, 300}};
    int n = 0;
    for (int i = 0; i < 4; i++)
        for (int layout = 0; layout < 4; layout++) {
            fl_tensor *a = fl_cast(bf16_operand(FL_SHAPE(size[i][0], size[i][2]), layout & 1, 1), d);
            fl_tensor *b = fl_cast(bf16_operand(FL_SHAPE(size[i][2], size[i][1]), layout & 2, 2), d);
            hash[n++] = bf16_bits(fl_matmul(a, b));
        }
    fl_tensor *sparse = fl_narrow(fl_uniform(FL_SHAPE(900, 230, 2), -1, 1, d, &(fl_rng){3, 0}), 2, 0, 1);
    hash[n++] = bf16_bits(fl_matmul(fl_uniform(FL_SHAPE(2, 40, 900), -1, 1, d, &(fl_rng){4, 0}),
                                    fl_squeeze(sparse, 2)));
    fl_var *x = fv_param(fl_uniform(FL_SHAPE(300, 700), -1, 1, d, &(fl_rng){5, 0}));
    fl_var *w = fv_param(fl_uniform(FL_SHAPE(300, 700), -1, 1, d, &(fl_rng){6, 0}));
    fl_var *b = fv_param(fl_uniform(FL_SHAPE(300), -1, 1, d, &(fl_rng){7, 0}));
    fl_var *y = fv_linear_act(x, w, b, FL_OP_gelu);
    fl_backward(fv_sum(fv_mul(y, y), FL_ALL_AXES));
    fl_tensor *each[] = {fv_value(y), fv_grad(x), fv_grad(w), fv_grad(b)};
    for (int i = 0; i < 4; i++) hash[n++] = bf16_bits(each[i]);
    for (int k = 3; k <= 5; k += 2) {
        const fl_conv2d_args a = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false};
        const fl_shape xs = FL_SHAPE(4, 48, 23, 24), ws = FL_SHAPE(96, 48, k, k);
        fl_tensor *image = fl_channels_last(fl_uniform(xs, -1, 1, d, &(fl_rng){8, 0}));
        fl_tensor *kernel = fl_channels_last(fl_uniform(ws, -1, 1, d, &(fl_rng){9, 0}));
        fl_tensor *bias = fl_uniform(FL_SHAPE(96), -1, 1, d, &(fl_rng){1, 0});
        fl_tensor *conv = fl_conv2d_run(image, kernel, bias, a);
        hash[n++] = bf16_bits(conv);
        hash[n++] = bf16_bits(fl_conv2d_grad_input(conv, kernel, xs, a));
        hash[n++] = bf16_bits(fl_conv2d_grad_weight(image, conv, ws, a));
    }
    return n;
}

/* Where f32 computes, bf16 and f16 become f32 while they are packed or transformed, and sums are rounded
   once: the bits are those of tensors that the core casts, with any number of threads, at each level. */
TEST(halves_become_f32_on_their_way) {
    const fl_op ops[] = {FL_OP_matmul, FL_OP_conv2d, FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight,
                         fl_op_linear, fl_op_linear_grad, fl_op_conv2d_bias};
    fl_backend wide = *fl_backend_cpu(), old;
    for (int i = 0; i < 7; i++)
        fl_backend_set(&wide, ops[i], wide.op[ops[i]], wide.flags[ops[i]] & ~FL_SLOT_NARROW);
    uint64_t want[40], got[40];
    for (int at = 0; at < 6; at++) {
        const fl_dtype d = at & 1 ? FL_F16 : FL_BF16;
        fl__level_cap(at / 2);
        CHECK(fl_cpu_set_bf16("f32") && fl_cpu_force_algorithm("tiles"));
        for (int threads = 0; threads < 5; threads++) { /* 0: cast */
            fl_scope s = fl_scope_begin();
            fl_set_threads(threads == 4 ? 8 : threads ? threads : 1);
            if (threads == 0) CHECK(fl_backend_use(&wide, &old));
            const int n = halves_on_their_way(d, threads ? got : want);
            if (threads == 0) CHECK(fl_backend_use(&old, NULL));
            for (int i = 0; threads && i < n; i++)
                if (!CHECK(got[i] == want[i]))
                    printf("    %s, level %d: result %d, case %d of threads\n", fl_dtype_name(d), at / 2, i,
                           threads);
            fl_scope_end(&s);
        }
    }
    CHECK(fl_cpu_force_algorithm(NULL));
    fl_set_threads(0);
    bf16_end();
}

/* Errors of the setting; what is measured is one of the ways, and allowed or not, it is told. */
TEST(amx_is_chosen_by_measurement) {
    test_errors_return();
    fl__level_cap(FL__TOP_LEVEL);
    CHECK(!fl_cpu_set_bf16("vdpbf16ps"));
    CHECK_ERROR("fl_cpu_set_bf16: 'vdpbf16ps' is unknown");
    fl__level_cap(FL__PORTABLE);
    CHECK(!fl_cpu_set_bf16("amx"));
    CHECK_ERROR("fl_cpu_set_bf16: 'amx' is unknown or not supported here");
    CHECK(fl_cpu_set_bf16(NULL));
    if (fl__level() == FL__PORTABLE) CHECK_STR(fl_cpu_bf16(), "f32");
    fl__level_cap(FL__TOP_LEVEL);
    const char *fastest = fl_cpu_bf16();
    CHECK(!strcmp(fastest, "f32") || !strcmp(fastest, "vdpbf16") || !strcmp(fastest, "amx"));
    CHECK(fl_cpu_set_bf16("f32"));
    CHECK_STR(fl_cpu_bf16(), "f32");
    bf16_end();
}
/* MIT licence: see LICENSE. */
