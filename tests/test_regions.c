/* test_regions.c - RoIAlign and deformable convolution beside loops over their definitions, in f64 */
#include "../fl_all.h"
#include "heap.h"

static uint64_t seed = 88172645463325252ull;
/* In [-1, 1). */
static double noise(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (double)(seed >> 11) * 0x1p-52 - 1;
}

static fl_tensor *numbers(fl_shape s, fl_dtype d, double scale) {
    double v[4096];
    for (int64_t i = 0; i < fl_shape_numel(s); i++) v[i] = scale * noise();
    return fl_cast(fl_from_host(v, s, FL_F64), d);
}

/* Without kernels the compositions run. */
static bool kernels(bool on) {
    static fl_backend whole;
    if (on) return fl_backend_use(&whole, NULL);
    whole = *fl_backend_at(fl_backend_index("cpu"));
    fl_backend b = whole;
    b.op[fl_op_roi_align] = b.op[fl_op_deform_columns] = b.op[fl_op_deform_columns_grad] = NULL;
    return fl_backend_use(&b, NULL);
}

static double distance(fl_tensor *got, const double *want) {
    fl_tensor *g = got ? fl_contiguous(fl_cast(got, FL_F64)) : NULL;
    double worst = g ? 0 : INFINITY;
    for (int64_t i = 0; g && i < fl_numel(g); i++) {
        const double off = fabs(((const double *)fl_data(g))[i] - want[i]);
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static const double *doubles(fl_tensor *t) {
    return fl_data(fl_contiguous(fl_cast(t, FL_F64)));
}

/* A plane x [h, w] between pixels, 0 outside of it; adds dy times its derivative to dx. */
static double between(const double *x, int h, int w, double y, double at, double dy, double *dx) {
    const int top = (int)floor(y), low = (int)floor(at);
    double sum = 0;
    for (int i = top; i <= top + 1; i++)
        for (int j = low; j <= low + 1; j++) {
            const double weight = (1 - fabs(y - i)) * (1 - fabs(at - j));
            if (i < 0 || i >= h || j < 0 || j >= w) continue;
            sum += weight * x[i * w + j];
            if (dx) dx[i * w + j] += dy * weight;
        }
    return sum;
}

/* ---- RoIAlign ---- */

enum { IMAGES = 2, CHANNELS = 3, H = 9, W = 7, BOXES = 7, ROWS = 3, COLUMNS = 2 };
static const double boxes_given[BOXES][5] = {{0, 1, 2, 10, 14},   {1, 0, 0, 13.5, 17.5},
                                             {0, -9, -7, 6, 30},  {1, 5.25, 3.5, 5.5, 4},
                                             {1, 9, 9, 3, 4},     {0, 40, 40, 50, 60},
                                             {0, 3, 3, 12.75, 9}};

/* As torchvision's kernel, sample by sample; dx gets the gradient of sum(y * dy). */
static void roi_reference(const double *x, const double *dy, fl_vision_roi_opts o, double *y, double *dx) {
    for (int e = 0; e < BOXES * CHANNELS * ROWS * COLUMNS; e++) {
        const int q = e % COLUMNS, p = e / COLUMNS % ROWS, c = e / (COLUMNS * ROWS) % CHANNELS;
        const double *b = boxes_given[e / (COLUMNS * ROWS * CHANNELS)], move = o.aligned ? 0.5 : 0;
        const double left = b[1] * o.scale - move, top = b[2] * o.scale - move;
        double width = b[3] * o.scale - move - left, height = b[4] * o.scale - move - top;
        if (!o.aligned) width = fmax(width, 1), height = fmax(height, 1);
        const double bin_h = height / ROWS, bin_w = width / COLUMNS;
        const int nh = o.sampling_ratio ? (int)o.sampling_ratio : (int)ceil(bin_h);
        const int nw = o.sampling_ratio ? (int)o.sampling_ratio : (int)ceil(bin_w);
        const int plane = (((int)b[0]) * CHANNELS + c) * H * W, count = nh * nw > 1 ? nh * nw : 1;
        y[e] = 0;
        for (int i = 0; i < nh; i++)
            for (int j = 0; j < nw; j++) {
                double v = top + p * bin_h + (i + 0.5) * bin_h / nh;
                double u = left + q * bin_w + (j + 0.5) * bin_w / nw;
                if (v < -1 || v > H || u < -1 || u > W) continue;
                v = fmin(fmax(v, 0), H - 1), u = fmin(fmax(u, 0), W - 1);
                y[e] += between(x + plane, H, W, v, u, dy[e] / count, dx + plane) / count;
            }
    }
}

static fl_tensor *the_boxes(fl_dtype d) {
    return fl_cast(fl_from_host(boxes_given, FL_SHAPE(BOXES, 5), FL_F64), d);
}

static double roi_round(fl_dtype d, fl_vision_roi_opts o) {
    fl_scope s = fl_scope_begin();
    double y[BOXES * CHANNELS * ROWS * COLUMNS], dx[IMAGES * CHANNELS * H * W] = {0};
    fl_tensor *x = numbers(FL_SHAPE(IMAGES, CHANNELS, H, W), d, 2);
    fl_tensor *dy = numbers(FL_SHAPE(BOXES, CHANNELS, ROWS, COLUMNS), d, 2);
    roi_reference(doubles(x), doubles(dy), o, y, dx);
    fl_var *v = fv_param(x), *got = fv_vision_roi_align_opt(v, the_boxes(FL_F32), ROWS, COLUMNS, o);
    CHECK(fl_backward(fv_sum(fv_mul(got, fv_const(dy)), FL_ALL_AXES)));
    double worst = got ? fmax(distance(fv_value(got), y), distance(fv_grad(v), dx)) : INFINITY;
    worst = fmax(worst, distance(fl_vision_roi_align_opt(x, the_boxes(FL_F64), ROWS, COLUMNS, o), y));
    fl_scope_end(&s);
    return worst;
}

TEST(roi_align_is_the_mean_of_its_samples) {
    REQUIRE(fl_roi_align_register() && fl_deform_register());
    for (int kernel = 1; kernel >= 0; kernel--) {
        if (!kernel) kernels(false);
        for (int i = 0; i < 8; i++) {
            const fl_vision_roi_opts o = {.scale = i & 1 ? 0.5 : 0.75, .sampling_ratio = i & 2 ? 2 : 0,
                                          .aligned = i & 4};
            CHECK(roi_round(FL_F64, o) < 1e-13);
            CHECK(roi_round(FL_F32, o) < 2e-6);
            CHECK(roi_round(FL_BF16, o) < 0.05);
        }
        if (!kernel) kernels(true);
    }
    CHECK_NO_ERROR();
    CHECK_NOTHING_LIVES();
}

static fl_var *roi_of(fl_var *const *x, void *user) {
    (void)user;
    fl_tensor *boxes = the_boxes(FL_F64);
    return fv_square(fv_vision_roi_align(x[0], boxes, ROWS, COLUMNS, .scale = 0.5, .aligned = true));
}

/* ---- deformable convolution ---- */

enum { N = 2, C = 4, OUT = 6, KH = 3, KW = 2, GROUPS = 2, OFFSETS = 2 };
typedef struct deform_case {
    fl_vision_deform_opts o;
    bool masked;
    int oh, ow;
} deform_case;
static deform_case deform_cases[] = {{{.pad = {1}}, true, 9, 8},
                                     {{.stride = {2, 1}, .pad = {2, 1}, .dilation = {1, 2}}, false, 6, 7},
                                     {{.stride = {2}, .pad = {1, FL_I0}, .dilation = {2}}, true, 4, 3}};

/* x, offset, weight, bias, mask */
static void deform_operands(const deform_case *k, fl_dtype d, fl_var **in) {
    const fl_shape shape[] = {FL_SHAPE(N, C, H, W), FL_SHAPE(N, 2 * OFFSETS * KH * KW, k->oh, k->ow),
                              FL_SHAPE(OUT, C / GROUPS, KH, KW), FL_SHAPE(OUT),
                              FL_SHAPE(N, OFFSETS * KH * KW, k->oh, k->ow)};
    for (int i = 0; i < 5; i++) in[i] = fv_param(numbers(shape[i], d, i == 1 ? 3 : 1));
    if (!k->masked) in[4] = NULL;
}

static int64_t of(int64_t v, int64_t otherwise) { return fl_option_int(v, otherwise); }

/* y, and the gradient of sum(y * dy) by x */
static void deform_reference(const deform_case *k, fl_var *const *in, const double *dy, double *y,
                             double *dx) {
    const double *v[5] = {NULL};
    for (int i = 0; i < 4 + k->masked; i++) v[i] = doubles(fv_value(in[i]));
    const int sh = (int)of(k->o.stride[0], 1), sw = (int)of(k->o.stride[1], sh);
    const int ph = (int)of(k->o.pad[0], 0), pw = (int)of(k->o.pad[1], ph);
    const int dh = (int)of(k->o.dilation[0], 1), dw = (int)of(k->o.dilation[1], dh);
    for (int e = 0; e < N * OUT * k->oh * k->ow; e++) {
        const int j = e % k->ow, i = e / k->ow % k->oh;
        const int o = e / (k->ow * k->oh) % OUT, n = e / (k->ow * k->oh * OUT);
        y[e] = v[3][o];
        for (int c = 0; c < C / GROUPS; c++)
            for (int a = 0; a < KH * KW; a++) {
                const int channel = o / (OUT / GROUPS) * (C / GROUPS) + c, g = channel / (C / OFFSETS);
                const int at = (n * OFFSETS + g) * KH * KW + a, plane = (n * C + channel) * H * W;
                const double *move = v[1] + (2 * at * k->oh + i) * k->ow + j;
                const double m = k->masked ? v[4][(at * k->oh + i) * k->ow + j] : 1;
                const double w = v[2][(o * (C / GROUPS) + c) * KH * KW + a] * m;
                y[e] += w * between(v[0] + plane, H, W, i * sh - ph + a / KW * dh + move[0],
                                    j * sw - pw + a % KW * dw + move[k->oh * k->ow], dy[e] * w, dx + plane);
            }
    }
}

static fl_var *deform_of(fl_var *const *in, void *user) {
    const deform_case *k = user;
    return fv_vision_deform_conv2d_opt(in[0], in[1], in[2], in[3], k->masked ? in[4] : NULL, k->o);
}

static double deform_round(deform_case *k, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    double y[N * OUT * H * (W + 1)], dx[N * C * H * W] = {0};
    fl_var *in[5];
    deform_operands(k, d, in);
    fl_tensor *dy = numbers(FL_SHAPE(N, OUT, k->oh, k->ow), d, 1);
    deform_reference(k, in, doubles(dy), y, dx);
    fl_var *got = deform_of(in, k);
    CHECK(fl_backward(fv_sum(fv_mul(got, fv_const(dy)), FL_ALL_AXES)));
    double worst = got ? fmax(distance(fv_value(got), y), distance(fv_grad(in[0]), dx)) : INFINITY;
    fl_tensor *t[5] = {NULL};
    for (int i = 0; i < 5; i++) t[i] = in[i] ? fv_value(in[i]) : NULL;
    worst = fmax(worst, distance(fl_vision_deform_conv2d_opt(t[0], t[1], t[2], t[3], t[4], k->o), y));
    fl_scope_end(&s);
    return worst;
}

TEST(deformable_convolution_is_a_sum_of_samples) {
    for (int kernel = 1; kernel >= 0; kernel--) {
        if (!kernel) kernels(false);
        for (int i = 0; i < 3; i++) {
            CHECK(deform_round(deform_cases + i, FL_F64) < 1e-13);
            CHECK(deform_round(deform_cases + i, FL_F32) < 1e-5);
        }
        if (!kernel) kernels(true);
    }
    CHECK_NO_ERROR();
    CHECK_NOTHING_LIVES();
}

TEST(without_offsets_it_is_convolution) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = numbers(FL_SHAPE(N, C, H, W), FL_F32, 1), *w = numbers(FL_SHAPE(OUT, 2, 3, 3), FL_F32, 1);
    fl_tensor *bias = numbers(FL_SHAPE(OUT), FL_F32, 1), *none = fl_zeros(FL_SHAPE(N, 18, 5, 4), FL_F32);
    fl_tensor *want = fl_conv(x, w, bias, .stride = {2}, .pad = {1}, .groups = 2);
    fl_tensor *y = fl_vision_deform_conv2d(x, none, w, bias, NULL, .stride = {2}, .pad = {1});
    CHECK(distance(y, doubles(want)) < 2e-6);
    fl_tensor *ones = fl_ones(FL_SHAPE(N, 9, 5, 4), FL_F32);
    y = fl_vision_deform_conv2d(x, none, w, bias, ones, .stride = {2}, .pad = {1});
    CHECK(distance(y, doubles(want)) < 2e-6);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(gradients_are_those_of_differences) {
    for (int kernel = 1; kernel >= 0; kernel--) {
        if (!kernel) kernels(false);
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(numbers(FL_SHAPE(IMAGES, 1, H, W), FL_F64, 1)), *in[5];
        CHECK(fl_gradcheck(roi_of, FV_LIST(x)) && fl_gradgradcheck(roi_of, FV_LIST(x)));
        deform_case small = {{.stride = {4}}, true, 2, 2};
        for (int masked = 0; masked < 2; masked++) {
            small.masked = masked;
            deform_operands(&small, FL_F64, in);
            CHECK(fl_gradcheck(deform_of, fv_list_of(4 + masked, in), .user = &small));
            CHECK(fl_gradgradcheck(deform_of, fv_list_of(4 + masked, in), .user = &small));
        }
        fl_scope_end(&s);
        if (!kernel) kernels(true);
    }
    CHECK_NO_ERROR();
    CHECK_NOTHING_LIVES();
}

/* The first calls after an override compare the compositions with what the ops' `contains` names. */
TEST(ops_name_what_they_run) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    const fl_backend whole = *fl_backend_at(fl_backend_index("cpu"));
    fl_backend mine = whole;
    REQUIRE(fl_backend_override(&mine, FL_OP_erf, mine.op[FL_OP_erf]) && fl_backend_use(&mine, NULL));
    fl_var *x = fv_param(numbers(FL_SHAPE(IMAGES, 1, H, W), FL_F64, 1)), *in[5];
    CHECK(fl_backward(fv_sum(roi_of(&x, NULL), FL_ALL_AXES)));
    deform_operands(deform_cases, FL_F64, in);
    CHECK(fl_backward(fv_sum(deform_of(in, deform_cases), FL_ALL_AXES)));
    CHECK_NO_ERROR();
    fl_backend_use(&whole, NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- bits and extremes ---- */

static uint64_t hash(uint64_t h, fl_tensor *t) {
    const unsigned char *p = fl_data(fl_contiguous(t));
    const int64_t bytes = fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
    for (int64_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Of results and gradients, of a size that several tasks share. */
static uint64_t bits_of(int threads) {
    uint64_t h = 1469598103934665603u;
    fl_rng rng = {3, 0};
    fl_scope s = fl_scope_begin();
    fl_set_threads(threads);
    fl_var *x = fv_param(fl_normal(FL_SHAPE(2, 40, 33, 31), 0, 1, FL_F32, &rng));
    fl_var *offset = fv_param(fl_normal(FL_SHAPE(2, 36, 33, 31), 0, 2, FL_F32, &rng));
    fl_var *mask = fv_param(fl_normal(FL_SHAPE(2, 18, 33, 31), 0, 1, FL_F32, &rng));
    fl_tensor *w = fl_normal(FL_SHAPE(8, 40, 3, 3), 0, 1, FL_F32, &rng);
    fl_tensor *corner = fl_uniform(FL_SHAPE(50, 2), 0, 20, FL_F32, &rng);
    fl_tensor *part[] = {fl_cast(fl_randint(FL_SHAPE(50, 1), 0, 2, &rng), FL_F32), corner,
                         fl_add(corner, fl_uniform(FL_SHAPE(50, 2), 0, 20, FL_F32, &rng))};
    fl_var *y = fv_vision_deform_conv2d(x, offset, fv_const(w), NULL, mask, .pad = {1});
    fl_var *r = fv_vision_roi_align(x, fl_concat(part, 3, 1), 7, 7);
    CHECK(fl_backward(fv_add(fv_sum(fv_square(y), FL_ALL_AXES), fv_sum(fv_square(r), FL_ALL_AXES))));
    h = hash(hash(h, fv_value(y)), fv_value(r));
    h = hash(hash(hash(h, fv_grad(x)), fv_grad(offset)), fv_grad(mask));
    fl_scope_end(&s);
    return h;
}

TEST(bits_do_not_depend_on_threads) {
    const int threads = fl_threads();
    const uint64_t one = bits_of(1);
    for (int k = 2; k < 6; k++) CHECK(bits_of(k) == one);
    fl_set_threads(threads);
    CHECK_NOTHING_LIVES();
}

TEST(samples_far_outside_and_nans) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = numbers(FL_SHAPE(1, 2, 5, 5), FL_F32, 1), *w = fl_ones(FL_SHAPE(1, 2, 1, 1), FL_F32);
    const float far_away[] = {NAN, 1e30f, -1e30f, INFINITY, 0, -1, 5, 4.9999995f};
    for (size_t i = 0; i < sizeof far_away / sizeof *far_away; i++)
        for (int kernel = 1; kernel >= 0; kernel--) {
            if (!kernel) kernels(false);
            const double v = (double)far_away[i];
            fl_tensor *offset = fl_full(FL_SHAPE(1, 2, 5, 5), v, FL_F32);
            fl_tensor *box = fl_full(FL_SHAPE(1, 5), v, FL_F32);
            fl_tensor *y = fl_vision_deform_conv2d(x, offset, w, NULL, NULL);
            CHECK(y && fl_item(fl_amax(fl_abs(y), FL_ALL_AXES)) < 3);
            box = fl_index_fill(box, 1, fl_zeros(FL_SHAPE(1), FL_I64), 0);
            CHECK(fl_vision_roi_align(x, box, 2, 2, .sampling_ratio = 2));
            if (!kernel) kernels(true);
        }
    CHECK(fl_numel(fl_vision_roi_align(x, fl_zeros(FL_SHAPE(0, 5), FL_F32), 2, 2)) == 0);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
    CHECK_NOTHING_LIVES();
}

static bool sampled(void) {
    fl_var *x = fv_param(fl_ones(FL_SHAPE(2, 4, H, W), FL_F32)), *in[5];
    deform_operands(deform_cases, FL_F32, in);
    fl_var *y = fv_vision_roi_align(x, the_boxes(FL_F32), 2, 2);
    fl_var *z = in[4] ? deform_of(in, deform_cases) : NULL;
    return fl_backward(fv_add(fv_sum(y, FL_ALL_AXES), fv_sum(z, FL_ALL_AXES)));
}

TEST(any_request_for_memory_may_fail) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_heap_use(heap_fn, NULL);
    CHECK(sampled());
    int64_t points = sweep_heap(sampled, false);
    fl_heap_use(NULL, NULL);
    /* and of the memory manager, whose blocks the heap does not see again */
    for (int64_t n = 1, ok = 0; !ok && n < 1000; n++, points++) {
        fl_scope inner = fl_scope_begin();
        fl_mem_manager *failing = fl_mem_failing(NULL, n, true), *before = fl_mem_set_current(failing);
        ok = sampled();
        fl_mem_set_current(before);
        fl_mem_close(failing);
        CHECK(ok ? !fl_error() : fl_error() != NULL);
        fl_error_clear();
        fl_scope_end(&inner);
    }
    CHECK(points > 20);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
