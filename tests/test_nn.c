/* test_nn.c - modules, layers, losses, initialisation, saving; references are loops in double */
#include "../fl_all.h"
#include "heap.h"

#include <pthread.h>
#include <unistd.h>

/* helpers */

static fl_tensor *f64(const double *v, fl_shape s) { return fl_from_host(v, s, FL_F64); }

/* n numbers in [-1, 1) that look random and are the same every time. */
static const double *numbers(int n, int seed) {
    static double pool[16][4096];
    static int next;
    double *v = pool[next++ % 16];
    uint32_t state = 12345u + 977u * (uint32_t)seed;
    for (int i = 0; i < n && i < 4096; i++) {
        state = state * 1664525u + 1013904223u;
        v[i] = (double)(state >> 8) / 8388608.0 - 1;
    }
    return v;
}

/* t's elements as doubles. */
static double *values(fl_tensor *t) {
    static double pool[8][65536];
    static int next;
    double *v = pool[next++ % 8];
    fl_tensor *d = fl_cast(t, FL_F64);
    memset(v, 0xff, sizeof pool[0]); /* NaN: near nothing */
    if (d) fl_to_host(d, v, (size_t)fl_numel(d) * sizeof *v);
    return v;
}

static void check_values(fl_tensor *t, const double *want, int64_t n, double tol, int line) {
    if (!CHECK_EQ_INT(fl_numel(t), n)) {
        printf("  called from line %d\n", line);
        return;
    }
    const double *have = values(t);
    for (int64_t i = 0; i < n; i++) {
        if (CHECK_NEAR(have[i], want[i], tol)) continue;
        printf("  element %lld, called from line %d\n", (long long)i, line);
        return;
    }
}
#define CHECK_VALUES(t, want, n, tol) check_values((t), (want), (n), (tol), __LINE__)

static bool has_shape(fl_tensor *t, fl_shape s) {
    bool ok = t && t->ndim == s.ndim;
    for (int i = 0; ok && i < s.ndim; i++) ok = t->shape[i] == s.dim[i];
    return ok;
}

static void set(fl_var *p, const double *v) {
    fl_scope s = fl_scope_begin();
    CHECK(fl_assign(fv_value(p), f64(v, fl_shape_of(fv_value(p)))));
    fl_scope_end(&s);
}

/* sum(y * c) backward: c is the gradient of y. */
static void backward_with(fl_var *y, const double *c) {
    CHECK(fl_backward(y, .grad = f64(c, fl_shape_of(fv_value(y)))));
}

/* layers against references */

TEST(linear_values_and_gradients) {
    enum { N = 4, IN = 3, OUT = 2 };
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_linear(IN, OUT, .dtype = FL_F64);
    const double *x = numbers(N * IN, 1), *w = numbers(OUT * IN, 2), *b = numbers(OUT, 3),
                 *c = numbers(N * OUT, 4);
    set(fl_nn_get_param(m, "weight"), w);
    set(fl_nn_get_param(m, "bias"), b);
    double y[N * OUT] = {0}, dx[N * IN] = {0}, dw[OUT * IN] = {0}, db[OUT] = {0};
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OUT; o++) {
            y[n * OUT + o] += b[o];
            db[o] += c[n * OUT + o];
            for (int i = 0; i < IN; i++) {
                y[n * OUT + o] += w[o * IN + i] * x[n * IN + i];
                dx[n * IN + i] += w[o * IN + i] * c[n * OUT + o];
                dw[o * IN + i] += x[n * IN + i] * c[n * OUT + o];
            }
        }
    /* The same rows as a matrix, with two leading dims, and (the first) as a vector. */
    const fl_shape shapes[] = {FL_SHAPE(N, IN), FL_SHAPE(2, N / 2, IN), FL_SHAPE(IN)};
    const fl_shape results[] = {FL_SHAPE(N, OUT), FL_SHAPE(2, N / 2, OUT), FL_SHAPE(OUT)};
    for (int k = 0; k < 3; k++) {
        const int rows = k < 2 ? N : 1;
        fl_nn_zero_grad(m);
        fl_var *v = fv_param(f64(x, shapes[k])), *out = fl_nn_forward(m, v);
        CHECK(has_shape(fv_value(out), results[k]));
        CHECK_VALUES(fv_value(out), y, rows * OUT, 1e-14);
        backward_with(out, c);
        CHECK_VALUES(fv_grad(v), dx, rows * IN, 1e-14);
        if (k == 2) continue;
        CHECK_VALUES(fv_grad(fl_nn_get_param(m, "weight")), dw, OUT * IN, 1e-14);
        CHECK_VALUES(fv_grad(fl_nn_get_param(m, "bias")), db, OUT, 1e-14);
    }
    fl_nn_module *plain = fl_nn_linear(IN, OUT, .no_bias = true, .dtype = FL_F64);
    CHECK(!fl_nn_get_param(plain, "bias"));
    CHECK_EQ_INT(fl_nn_count(plain), IN * OUT);
    fl_nn_free(plain);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Cross-correlation and its gradients as sums over everything. */
typedef struct conv_case {
    int n, in, out, h, w, kh, kw, sh, sw, ph, pw, dh, dw, groups;
} conv_case;

static void conv_reference(const conv_case *k, const double *x, const double *w, const double *c,
                           int oh, int ow, double *y, double *dx, double *dw) {
    const int per = k->in / k->groups, out_per = k->out / k->groups;
    for (int i = 0; i < k->n * k->out * oh * ow; i++) {
        const int q = i % ow, p = i / ow % oh, o = i / ow / oh % k->out, n = i / ow / oh / k->out;
        for (int j = 0; j < per * k->kh * k->kw; j++) {
            const int b = j % k->kw, a = j / k->kw % k->kh, ch = j / k->kw / k->kh;
            const int r = p * k->sh - k->ph + a * k->dh, s = q * k->sw - k->pw + b * k->dw;
            if (r < 0 || r >= k->h || s < 0 || s >= k->w) continue;
            const int at = ((n * k->in + o / out_per * per + ch) * k->h + r) * k->w + s;
            const int wt = ((o * per + ch) * k->kh + a) * k->kw + b;
            y[i] += x[at] * w[wt];
            dx[at] += c[i] * w[wt];
            dw[wt] += c[i] * x[at];
        }
    }
}

TEST(conv2d_values_and_gradients) {
    static const conv_case cases[] = {
        {2, 3, 4, 5, 6, 3, 3, 1, 1, 0, 0, 1, 1, 1},
        {2, 4, 6, 7, 6, 3, 2, 2, 1, 1, 2, 1, 2, 2},
        {1, 2, 2, 6, 6, 2, 2, 2, 2, 1, 0, 2, 2, 1},
    };
    for (int i = 0; i < 3; i++) {
        const conv_case *k = &cases[i];
        const int oh = (k->h + 2 * k->ph - k->dh * (k->kh - 1) - 1) / k->sh + 1;
        const int ow = (k->w + 2 * k->pw - k->dw * (k->kw - 1) - 1) / k->sw + 1;
        const int nx = k->n * k->in * k->h * k->w, nw = k->out * k->in / k->groups * k->kh * k->kw;
        const int ny = k->n * k->out * oh * ow;
        double y[1024] = {0}, dx[1024] = {0}, dw[1024] = {0}, db[16] = {0};
        const double *x = numbers(nx, i), *w = numbers(nw, i + 10), *b = numbers(k->out, i + 20),
                     *c = numbers(ny, i + 30);
        conv_reference(k, x, w, c, oh, ow, y, dx, dw);
        for (int j = 0; j < ny; j++) {
            const int o = j / (oh * ow) % k->out;
            y[j] += b[o];
            db[o] += c[j];
        }
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = fl_nn_conv2d(k->in, k->out, k->kh, .kernel_w = k->kw, .stride = k->sh,
                                       .stride_w = k->sw, .pad = k->ph,
                                       .pad_w = k->pw ? k->pw : FL_I0, .dilation = k->dh,
                                       .dilation_w = k->dw, .groups = k->groups, .dtype = FL_F64);
        set(fl_nn_get_param(m, "weight"), w);
        set(fl_nn_get_param(m, "bias"), b);
        fl_var *v = fv_param(f64(x, FL_SHAPE(k->n, k->in, k->h, k->w))), *out = fl_nn_forward(m, v);
        CHECK(has_shape(fv_value(out), FL_SHAPE(k->n, k->out, oh, ow)));
        CHECK_VALUES(fv_value(out), y, ny, 1e-13);
        backward_with(out, c);
        CHECK_VALUES(fv_grad(v), dx, nx, 1e-13);
        CHECK_VALUES(fv_grad(fl_nn_get_param(m, "weight")), dw, nw, 1e-13);
        CHECK_VALUES(fv_grad(fl_nn_get_param(m, "bias")), db, k->out, 1e-13);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(conv2d_same_keeps_the_image) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_conv2d(1, 2, 4, .pad = FL_SAME, .no_bias = true, .dtype = FL_F64);
    fl_nn_init_constant(fl_nn_get_param(m, "weight"), 1);
    fl_var *y = fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(1, 1, 5, 7), FL_F64)));
    CHECK(has_shape(fv_value(y), FL_SHAPE(1, 2, 5, 7)));
    /* A kernel of 4 has one zero before and two behind: the first corner sees 3 x 3 ones, the last
       2 x 2. */
    const double *v = values(fv_value(y));
    CHECK_NEAR(v[0], 9, 0);
    CHECK_NEAR(v[34], 4, 0);
    CHECK_NEAR(v[8], 16, 0);
    CHECK_EQ_INT(fl_nn_count(m), 32);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(pool2d_values_and_gradients) {
    fl_scope s = fl_scope_begin();
    const double x[] = {1, 5, 2, 0, 3, 4, 8, 7, -1, -2, 6, -9, -3, -4, -5, 9}, c[] = {1, 2, 3, 4};
    fl_nn_module *max = fl_nn_pool2d(2), *mean = fl_nn_pool2d(2, .average = true);
    fl_var *v = fv_param(f64(x, FL_SHAPE(1, 1, 4, 4))), *y = fl_nn_forward(max, v);
    CHECK_VALUES(fv_value(y), ((double[]){5, 8, -1, 9}), 4, 0);
    backward_with(y, c);
    CHECK_VALUES(fv_grad(v), ((double[]){0, 1, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 4}), 16, 0);
    fv_zero_grad(v);
    y = fl_nn_forward(mean, v);
    CHECK_VALUES(fv_value(y), ((double[]){3.25, 4.25, -2.5, .25}), 4, 0);
    backward_with(y, c);
    CHECK_VALUES(fv_grad(v),
                 ((double[]){.25, .25, .5, .5, .25, .25, .5, .5, .75, .75, 1, 1, .75, .75, 1, 1}),
                 16, 0);
    fl_nn_free(max);
    fl_nn_free(mean);
    /* Windows of 3 with stride 1 and padding 1 over ones: the corner has 4 of 9. */
    fl_var *ones = fv_const(fl_ones(FL_SHAPE(1, 1, 3, 3), FL_F64));
    max = fl_nn_pool2d(3, .stride = 1, .pad = 1, .average = true);
    mean = fl_nn_pool2d(3, .stride = 1, .pad = 1, .average = true, .ignore_pad = true);
    CHECK_NEAR(values(fv_value(fl_nn_forward(max, ones)))[0], 4.0 / 9, 1e-15);
    CHECK_NEAR(values(fv_value(fl_nn_forward(mean, ones)))[0], 1, 0);
    fl_nn_free(max);
    fl_nn_free(mean);
    max = fl_nn_pool2d(2, .kernel_w = 3, .stride = 1, .stride_w = 2, .pad = 1, .pad_w = FL_I0);
    y = fl_nn_forward(max, fv_const(fl_ones(FL_SHAPE(2, 3, 4, 7), FL_F32)));
    CHECK(has_shape(fv_value(y), FL_SHAPE(2, 3, 5, 3)));
    fl_nn_free(max);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(view_keeps_the_batch) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_view(FL_SHAPE(-1, 2, 6)), *flat = fl_nn_view(FL_SHAPE(-1, -1)),
                 *fixed = fl_nn_view(FL_SHAPE(3, -1));
    fl_var *x = fv_const(fl_ones(FL_SHAPE(3, 4, 3), FL_F32));
    CHECK(has_shape(fv_value(fl_nn_forward(m, x)), FL_SHAPE(3, 2, 6)));
    CHECK(has_shape(fv_value(fl_nn_forward(flat, x)), FL_SHAPE(3, 12)));
    CHECK(has_shape(fv_value(fl_nn_forward(fixed, fv_const(fl_ones(FL_SHAPE(6), FL_F32)))),
                    FL_SHAPE(3, 2)));
    CHECK(has_shape(fv_value(fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(0, 12), FL_F32)))),
                    FL_SHAPE(0, 2, 6)));
    /* 36 elements would fit [3, 2, 6], but the batch is 1. */
    CHECK(!fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(1, 36), FL_F32))));
    CHECK_ERROR("fl_nn_view: cannot reshape input [1, 36] to [-1, 2, 6]");
    CHECK(!fl_nn_view(FL_SHAPE(-1, -1, -1)));
    CHECK_ERROR("fl_nn_view: shape [-1, -1, -1] is not valid");
    CHECK(!fl_nn_view(FL_SHAPE(-1, -2)));
    CHECK_ERROR("fl_nn_view");
    fl_nn_free(m);
    fl_nn_free(flat);
    fl_nn_free(fixed);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(activations) {
    const double x[] = {-3, -0.5, 0, 0.25, 2};
    double relu[5], gelu[5], th[5], sig[5], silu[5];
    for (int i = 0; i < 5; i++) {
        relu[i] = x[i] > 0 ? x[i] : 0;
        gelu[i] = x[i] * 0.5 * (1 + erf(x[i] / sqrt(2)));
        th[i] = tanh(x[i]);
        sig[i] = 1 / (1 + exp(-x[i]));
        silu[i] = x[i] * sig[i];
    }
    fl_scope s = fl_scope_begin();
    fl_nn_module *m[] = {fl_nn_relu(), fl_nn_gelu(), fl_nn_tanh(), fl_nn_sigmoid(),
                         fl_nn_activation("SiLU", fv_silu)};
    const double *want[] = {relu, gelu, th, sig, silu};
    const char *text[] = {"ReLU()", "GELU()", "Tanh()", "Sigmoid()", "SiLU()"};
    for (int k = 0; k < 5; k++) {
        char buf[64];
        CHECK_VALUES(fv_value(fl_nn_forward(m[k], fv_const(f64(x, FL_SHAPE(5))))), want[k], 5,
                     1e-15);
        fl_nn_format(m[k], buf, sizeof buf);
        CHECK(!strcmp(buf, text[k]));
        fl_nn_free(m[k]);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(log_softmax_values_and_gradients) {
    enum { N = 2, C = 4 };
    fl_scope s = fl_scope_begin();
    const double *x = numbers(N * C, 7), *c = numbers(N * C, 8);
    double y[N * C], dx[N * C];
    for (int n = 0; n < N; n++) {
        double sum = 0, total = 0;
        for (int i = 0; i < C; i++) sum += exp(x[n * C + i]), total += c[n * C + i];
        for (int i = 0; i < C; i++) {
            y[n * C + i] = x[n * C + i] - log(sum);
            dx[n * C + i] = c[n * C + i] - exp(x[n * C + i]) / sum * total;
        }
    }
    fl_nn_module *m = fl_nn_log_softmax(-1);
    fl_var *v = fv_param(f64(x, FL_SHAPE(N, C))), *out = fl_nn_forward(m, v);
    CHECK_VALUES(fv_value(out), y, N * C, 1e-14);
    backward_with(out, c);
    CHECK_VALUES(fv_grad(v), dx, N * C, 1e-14);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(dropout_in_both_modes) {
    enum { N = 4000 };
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    fl_nn_module *m = fl_nn_dropout(.25, .rng = &rng);
    fl_var *x = fv_param(fl_full(FL_SHAPE(N), 3, FL_F32)), *y = fl_nn_forward(m, x);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    double *v = values(fv_value(y)), *g = values(fv_grad(x));
    int kept = 0;
    for (int i = 0; i < N; i++) {
        if (!CHECK(v[i] == 0 || v[i] == 4)) break;
        if (!CHECK_NEAR(g[i], v[i] == 0 ? 0 : 4.0 / 3, 1e-6)) break;
        kept += v[i] != 0;
    }
    CHECK_NEAR((double)kept / N, .75, .03); /* four deviations */
    fl_var *other = fl_nn_forward(m, x);
    CHECK(memcmp(values(fv_value(other)), v, N * sizeof *v)); /* the generator went on */
    rng = (fl_rng){5, 0};
    CHECK(!memcmp(values(fv_value(fl_nn_forward(m, x))), v, N * sizeof *v));
    fl_nn_train(m, false);
    const uint64_t counter = rng.counter;
    CHECK(fl_nn_forward(m, x) == x);
    CHECK(rng.counter == counter);
    fl_nn_free(m);
    m = fl_nn_dropout(0);
    CHECK(fl_nn_forward(m, x) == x);
    fl_nn_free(m);
    m = fl_nn_dropout(1);
    CHECK_NEAR(fl_item(fl_sum(fl_abs(fv_value(fl_nn_forward(m, x))), FL_ALL_AXES)), 0, 0);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Normalisation of `groups` groups of n numbers, group and place of element i given by functions:
   forward and gradient. */
typedef struct norm_case {
    int n, groups;
    int (*group)(int i);
    double eps;
} norm_case;

static void norm_reference(const norm_case *k, int total, const double *x, const double *dy,
                           double *hat, double *dx, double *mean, double *var) {
    double sum_dy[16] = {0}, sum_dyh[16] = {0};
    for (int g = 0; g < k->groups; g++) mean[g] = var[g] = 0;
    for (int i = 0; i < total; i++) mean[k->group(i)] += x[i] / k->n;
    for (int i = 0; i < total; i++)
        var[k->group(i)] += (x[i] - mean[k->group(i)]) * (x[i] - mean[k->group(i)]) / k->n;
    for (int i = 0; i < total; i++) {
        const int g = k->group(i);
        hat[i] = (x[i] - mean[g]) / sqrt(var[g] + k->eps);
        sum_dy[g] += dy[i];
        sum_dyh[g] += dy[i] * hat[i];
    }
    for (int i = 0; i < total; i++) {
        const int g = k->group(i);
        dx[i] = (dy[i] - sum_dy[g] / k->n - hat[i] * sum_dyh[g] / k->n) / sqrt(var[g] + k->eps);
    }
}

enum { BN_N = 3, BN_C = 2, BN_S = 4, BN_ALL = BN_N * BN_C * BN_S };
static int channel_of(int i) { return i / BN_S % BN_C; }

TEST(batch_norm_values_and_gradients) {
    const double *x = numbers(BN_ALL, 1), *c = numbers(BN_ALL, 2), *w = numbers(BN_C, 3),
                 *b = numbers(BN_C, 4);
    double dy[BN_ALL], hat[BN_ALL], dx[BN_ALL], y[BN_ALL], dw[BN_C] = {0}, db[BN_C] = {0}, mean[16],
                                                           var[16];
    for (int i = 0; i < BN_ALL; i++) dy[i] = c[i] * w[channel_of(i)];
    norm_reference(&(norm_case){BN_N * BN_S, BN_C, channel_of, 1e-3}, BN_ALL, x, dy, hat, dx, mean,
                   var);
    for (int i = 0; i < BN_ALL; i++) {
        y[i] = hat[i] * w[channel_of(i)] + b[channel_of(i)];
        dw[channel_of(i)] += c[i] * hat[i];
        db[channel_of(i)] += c[i];
    }
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_batch_norm2d(BN_C, .eps = 1e-3, .dtype = FL_F64);
    set(fl_nn_get_param(m, "weight"), w);
    set(fl_nn_get_param(m, "bias"), b);
    fl_var *v = fv_param(f64(x, FL_SHAPE(BN_N, BN_C, 2, 2))), *out = fl_nn_forward(m, v);
    CHECK_VALUES(fv_value(out), y, BN_ALL, 1e-13);
    backward_with(out, c);
    CHECK_VALUES(fv_grad(v), dx, BN_ALL, 1e-13);
    CHECK_VALUES(fv_grad(fl_nn_get_param(m, "weight")), dw, BN_C, 1e-13);
    CHECK_VALUES(fv_grad(fl_nn_get_param(m, "bias")), db, BN_C, 1e-13);
    /* Evaluation uses the running statistics, and leaves them alone: y is linear in x. */
    fl_nn_train(m, false);
    const double *rm = values(fl_nn_get_buffer(m, "running_mean")),
                 *rv = values(fl_nn_get_buffer(m, "running_var"));
    for (int i = 0; i < BN_ALL; i++) {
        const int k = channel_of(i);
        y[i] = (x[i] - rm[k]) / sqrt(rv[k] + 1e-3) * w[k] + b[k];
        dx[i] = c[i] * w[k] / sqrt(rv[k] + 1e-3);
    }
    fv_zero_grad(v);
    out = fl_nn_forward(m, v);
    CHECK_VALUES(fv_value(out), y, BN_ALL, 1e-13);
    backward_with(out, c);
    CHECK_VALUES(fv_grad(v), dx, BN_ALL, 1e-13);
    CHECK_EQ_INT(fl_item_int(fl_nn_get_buffer(m, "num_batches_tracked")), 1);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The running mean and variance after two batches, blended by factor (<= 0: 1 / batches). */
static void check_running(fl_nn_module *m, double factor) {
    double rm[BN_C] = {0}, rv[BN_C] = {1, 1}, hat[BN_ALL], dx[BN_ALL], mean[16], var[16];
    for (int step = 1; step <= 2; step++) {
        const double *x = numbers(BN_ALL, 40 + step), a = factor >= 0 ? factor : 1.0 / step;
        fl_scope s = fl_scope_begin();
        norm_reference(&(norm_case){BN_N * BN_S, BN_C, channel_of, 1e-5}, BN_ALL, x, x, hat, dx,
                       mean, var);
        for (int k = 0; k < BN_C; k++) {
            rm[k] = (1 - a) * rm[k] + a * mean[k];
            rv[k] = (1 - a) * rv[k] + a * var[k] * (BN_N * BN_S) / (BN_N * BN_S - 1.0);
        }
        CHECK_VALUES(fv_value(fl_nn_forward(m, fv_const(f64(x, FL_SHAPE(BN_N, BN_C, 1, 4))))), hat,
                     BN_ALL, 1e-13);
        fl_scope_end(&s);
    }
    fl_scope s = fl_scope_begin();
    CHECK_VALUES(fl_nn_get_buffer(m, "running_mean"), rm, BN_C, 1e-14);
    CHECK_VALUES(fl_nn_get_buffer(m, "running_var"), rv, BN_C, 1e-14);
    CHECK_EQ_INT(fl_item_int(fl_nn_get_buffer(m, "num_batches_tracked")), 2);
    fl_scope_end(&s);
    fl_nn_free(m);
}

TEST(batch_norm_running_statistics) {
    check_running(fl_nn_batch_norm2d(BN_C, .dtype = FL_F64), .1);
    check_running(fl_nn_batch_norm2d(BN_C, .momentum = .7, .no_affine = true, .dtype = FL_F64), .7);
    check_running(fl_nn_batch_norm2d(BN_C, .momentum = FL_ZERO, .dtype = FL_F64), 0);
    check_running(fl_nn_batch_norm2d(BN_C, .cumulative = true, .dtype = FL_F64), -1);
    /* Without statistics evaluation uses the batch's. */
    double hat[BN_ALL], dx[BN_ALL], mean[16], var[16];
    const double *x = numbers(BN_ALL, 9);
    norm_reference(&(norm_case){BN_N * BN_S, BN_C, channel_of, 1e-5}, BN_ALL, x, x, hat, dx, mean,
                   var);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_batch_norm2d(BN_C, .no_track = true, .dtype = FL_F64);
    CHECK_EQ_INT(m->n_buffer, 0);
    fl_nn_train(m, false);
    CHECK_VALUES(fv_value(fl_nn_forward(m, fv_const(f64(x, FL_SHAPE(BN_N, BN_C, 4, 1))))), hat,
                 BN_ALL, 1e-13);
    fl_nn_free(m);
    /* eps FL_ZERO: a channel without spread divides by zero. */
    m = fl_nn_batch_norm2d(1, .eps = FL_ZERO, .dtype = FL_F64);
    CHECK(isnan(
        values(fv_value(fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(2, 1, 1, 1), FL_F64)))))[0]));
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(batch_norm_wants_two_values) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_sequential(fl_nn_batch_norm2d(3));
    fl_var *one = fv_const(fl_ones(FL_SHAPE(1, 3, 1, 1), FL_F32));
    CHECK(!fl_nn_forward(m, one));
    CHECK_ERROR("fl_nn_batch_norm2d '0': input [1, 3, 1, 1] has 1 value per channel");
    CHECK_EQ_INT(fl_item_int(fl_nn_get_buffer(m, "0.num_batches_tracked")), 0);
    fl_nn_train(m, false);
    CHECK(fl_nn_forward(m, one));
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

enum { LN_ROWS = 4, LN_W = 6, LN_ALL = LN_ROWS * LN_W };
static int row_of(int i) { return i / LN_W; }

TEST(layer_norm_values_and_gradients) {
    const double *x = numbers(LN_ALL, 1), *c = numbers(LN_ALL, 2), *w = numbers(LN_W, 3),
                 *b = numbers(LN_W, 4);
    double dy[LN_ALL], hat[LN_ALL], dx[LN_ALL], y[LN_ALL], dw[LN_W] = {0}, db[LN_W] = {0}, mean[16],
                                                           var[16];
    for (int i = 0; i < LN_ALL; i++) dy[i] = c[i] * w[i % LN_W];
    norm_reference(&(norm_case){LN_W, LN_ROWS, row_of, 1e-5}, LN_ALL, x, dy, hat, dx, mean, var);
    for (int i = 0; i < LN_ALL; i++) {
        y[i] = hat[i] * w[i % LN_W] + b[i % LN_W];
        dw[i % LN_W] += c[i] * hat[i];
        db[i % LN_W] += c[i];
    }
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_layer_norm(FL_SHAPE(2, 3), .dtype = FL_F64);
    set(fl_nn_get_param(m, "weight"), w);
    set(fl_nn_get_param(m, "bias"), b);
    fl_var *v = fv_param(f64(x, FL_SHAPE(2, 2, 2, 3))), *out = fl_nn_forward(m, v);
    CHECK_VALUES(fv_value(out), y, LN_ALL, 1e-13);
    backward_with(out, c);
    CHECK_VALUES(fv_grad(v), dx, LN_ALL, 1e-13);
    CHECK_VALUES(fv_grad(fl_nn_get_param(m, "weight")), dw, LN_W, 1e-13);
    CHECK_VALUES(fv_grad(fl_nn_get_param(m, "bias")), db, LN_W, 1e-13);
    fl_nn_free(m);
    m = fl_nn_layer_norm(FL_SHAPE(LN_W), .no_affine = true, .dtype = FL_F64);
    CHECK_EQ_INT(fl_nn_count(m), 0);
    CHECK_VALUES(fv_value(fl_nn_forward(m, fv_const(f64(x, FL_SHAPE(LN_ROWS, LN_W))))), hat, LN_ALL,
                 1e-13);
    fl_nn_free(m);
    m = fl_nn_layer_norm(FL_SHAPE(LN_W), .no_bias = true);
    CHECK_EQ_INT(fl_nn_count(m), LN_W);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* initialisation */

/* p is uniform within bound of 0: none outside, the extremes near it, mean and variance of the
   uniform distribution. */
static void check_uniform(fl_var *p, double bound) {
    const int64_t n = fl_numel(fv_value(p));
    const double *v = values(fv_value(p));
    double most = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(v[i])), sum += v[i], squares += v[i] * v[i];
    CHECK(most <= bound * (1 + 1e-6));
    CHECK(most > bound * (1 - 20.0 / (double)n));
    CHECK_NEAR(sum / (double)n, 0, 4 * bound / sqrt(3.0 * (double)n));
    CHECK_NEAR(squares / (double)n, bound * bound / 3, 4 * .3 * bound * bound / sqrt((double)n));
}

static void check_normal(fl_var *p, double std) {
    const int64_t n = fl_numel(fv_value(p));
    const double *v = values(fv_value(p));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += v[i], squares += v[i] * v[i];
    CHECK_NEAR(sum / (double)n, 0, 4 * std / sqrt((double)n));
    CHECK_NEAR(squares / (double)n, std * std, 4 * 1.5 * std * std / sqrt((double)n));
}

TEST(layers_are_initialised_as_in_pytorch) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_linear(100, 300);
    check_uniform(fl_nn_get_param(m, "weight"), .1);
    check_uniform(fl_nn_get_param(m, "bias"), .1);
    CHECK(fl_nn_get_param(m, "weight")->requires_grad);
    CHECK_EQ_INT(fv_value(fl_nn_get_param(m, "weight"))->dtype, FL_F32);
    fl_nn_free(m);
    m = fl_nn_conv2d(8, 64, 5, .groups = 2);
    CHECK(has_shape(fv_value(fl_nn_get_param(m, "weight")), FL_SHAPE(64, 4, 5, 5)));
    check_uniform(fl_nn_get_param(m, "weight"), .1);
    check_uniform(fl_nn_get_param(m, "bias"), .1);
    fl_nn_free(m);
    m = fl_nn_batch_norm2d(2);
    CHECK_VALUES(fv_value(fl_nn_get_param(m, "weight")), ((double[]){1, 1}), 2, 0);
    CHECK_VALUES(fv_value(fl_nn_get_param(m, "bias")), ((double[]){0, 0}), 2, 0);
    CHECK_VALUES(fl_nn_get_buffer(m, "running_mean"), ((double[]){0, 0}), 2, 0);
    CHECK_VALUES(fl_nn_get_buffer(m, "running_var"), ((double[]){1, 1}), 2, 0);
    CHECK_EQ_INT(fl_nn_get_buffer(m, "num_batches_tracked")->dtype, FL_I64);
    CHECK_EQ_INT(fl_nn_get_buffer(m, "num_batches_tracked")->ndim, 0);
    fl_nn_free(m);
    /* The same seed, or a generator of one's own, gives the same bits. */
    double w[3][12];
    for (int k = 0; k < 3; k++) {
        fl_rng rng = {9, 0};
        fl_seed(9);
        m = k == 2 ? fl_nn_linear(3, 4, .rng = &rng) : fl_nn_linear(3, 4);
        memcpy(w[k], values(fv_value(fl_nn_get_param(m, "weight"))), sizeof w[k]);
        fl_nn_free(m);
    }
    CHECK(!memcmp(w[0], w[1], sizeof w[0]) && !memcmp(w[0], w[2], sizeof w[0]));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(init_functions) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *w = fv_param(fl_zeros(FL_SHAPE(40, 20, 2, 5), FL_F32)),
           *v = fv_param(fl_zeros(FL_SHAPE(3), FL_F64));
    int64_t in = 0, out = 0;
    CHECK(fl_nn_fan(w, &in, &out));
    CHECK_EQ_INT(in, 200);
    CHECK_EQ_INT(out, 400);
    CHECK(fl_nn_init_kaiming_uniform(w, 0, NULL));
    check_uniform(w, sqrt(6.0 / 200));
    CHECK(fl_nn_init_kaiming_uniform(w, sqrt(5), NULL));
    check_uniform(w, 1 / sqrt(200));
    CHECK(fl_nn_init_kaiming_normal(w, 0, NULL));
    check_normal(w, sqrt(2.0 / 200));
    CHECK(fl_nn_init_glorot_uniform(w, 2, NULL));
    check_uniform(w, 2 * sqrt(6.0 / 600));
    CHECK(fl_nn_init_glorot_normal(w, 1, NULL));
    check_normal(w, sqrt(2.0 / 600));
    CHECK(fl_nn_init_uniform(w, -3, 3, NULL));
    check_uniform(w, 3);
    CHECK(fl_nn_init_normal(w, 0, .5, NULL));
    check_normal(w, .5);
    CHECK(fl_nn_init_constant(v, 7));
    CHECK_VALUES(fv_value(v), ((double[]){7, 7, 7}), 3, 0);
    CHECK(!fl_nn_init_kaiming_normal(v, 0, NULL));
    CHECK_ERROR("fl_nn_fan: the weight must have at least 2 dims, got [3]");
    CHECK(!fl_nn_init_glorot_uniform(NULL, 1, NULL));
    CHECK_ERROR("the parameter is NULL");
    CHECK(!fl_nn_init_constant(NULL, 1) && !fl_nn_init_uniform(NULL, 0, 1, NULL) &&
          !fl_nn_init_normal(NULL, 0, 1, NULL));
    CHECK_ERROR("fl_nn_init_constant: the parameter is NULL");
    CHECK_VALUES(fv_value(v), ((double[]){7, 7, 7}), 3, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* trees */

static fl_nn_module *mnist_net(void) {
    return fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, 1, 28, 28)),
                            fl_nn_conv2d(1, 32, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
                            fl_nn_conv2d(32, 64, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
                            fl_nn_view(FL_SHAPE(-1, 3136)), fl_nn_linear(3136, 1024), fl_nn_relu(),
                            fl_nn_dropout(.5), fl_nn_linear(1024, 10), fl_nn_log_softmax(1));
}

TEST(the_mnist_net_learns_one_batch) {
    fl_seed(1);
    fl_nn_module *net = mnist_net();
    CHECK_EQ_INT(fl_nn_count(net), 832 + 51264 + 3212288 + 10250);
    fl_scope all = fl_scope_begin();
    fl_tensor *image = fl_uniform(FL_SHAPE(4, 784), 0, 1, FL_F32, NULL);
    const int64_t digits[] = {3, 1, 4, 1};
    double first = 0, last = 0;
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = .01, .momentum = .9);
    for (int step = 0; step < 8; step++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *target = fl_from_host(digits, FL_SHAPE(4), FL_I64);
        fl_var *loss = fv_nll_loss(fl_nn_forward(net, fv_const(image)), target);
        last = fl_item(fv_value(loss));
        if (!step) first = last;
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss) && fl_optim_step(optim));
        fl_scope_end(&s);
    }
    CHECK_NEAR(first, log(10), .3);
    CHECK(last < first / 2);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&all);
    CHECK_NOTHING_LIVES();
}

TEST(forward_lets_only_results_out) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_sequential(fl_nn_linear(4, 4), fl_nn_layer_norm(FL_SHAPE(4)),
                                       fl_nn_gelu(), fl_nn_linear(4, 2));
    fl_var *x = fv_const(fl_ones(FL_SHAPE(3, 4), FL_F32));
    const int64_t before = fl_scope_size(), live = fl_live_tensors();
    const bool was = fl_no_grad(true);
    CHECK(fl_nn_forward(m, x));
    CHECK_EQ_INT(fl_scope_size(), before + 1);
    CHECK_EQ_INT(fl_live_tensors(), live + 1); /* nothing else is held without a graph */
    fl_no_grad(was);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static bool collect_name(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    char *text = user;
    CHECK(!param != !buffer);
    snprintf(text + strlen(text), 400 - strlen(text), "%s%s ", path, buffer ? "*" : "");
    return strcmp(path, "conv1.bias") != 0 || !strchr(text, '!');
}

static fl_vars residual(fl_nn_module *m, fl_vars in) {
    fl_var *y = fl_nn_forward(fl_nn_find(m, "bn1"), fl_nn_forward(fl_nn_find(m, "conv1"), in.v[0]));
    return FL_VARS(fv_add(y, in.v[0]));
}

TEST(names_are_paths) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_function("Block", residual, NULL, NULL);
    fl_nn_add(net, "conv1", fl_nn_conv2d(2, 2, 3, .pad = 1));
    fl_nn_add(net, "bn1", fl_nn_batch_norm2d(2));
    fl_nn_add(net, "tail", fl_nn_sequential(fl_nn_relu(), fl_nn_linear(2, 2, .no_bias = true)));
    char text[400] = "";
    CHECK(fl_nn_visit_tensors(net, collect_name, text));
    CHECK(!strcmp(text,
                  "conv1.weight conv1.bias bn1.weight bn1.bias bn1.running_mean* bn1.running_var* "
                  "bn1.num_batches_tracked* tail.1.weight "));
    snprintf(text, sizeof text, "!");
    CHECK(!fl_nn_visit_tensors(net, collect_name, text)); /* the visitor ends the walk */
    CHECK(!strcmp(text, "!conv1.weight conv1.bias "));
    CHECK(fl_nn_find(net, "tail.1") && !fl_nn_find(net, "tail.2") && !fl_nn_find(net, "no.1") &&
          fl_nn_find(net, "") == net);
    CHECK(fl_nn_get_param(net, "tail.1.weight") && !fl_nn_get_param(net, "tail.1.bias") &&
          !fl_nn_get_param(net, "weight"));
    CHECK(fl_nn_get_buffer(net, "bn1.running_var") && !fl_nn_get_buffer(net, "bn1.weight"));
    CHECK_EQ_INT(fl_nn_parameters(net).n, 5);
    CHECK_EQ_INT(fl_nn_count(net), 2 * 2 * 9 + 2 + 4 + 4);
    fl_var *y = fl_nn_forward(net, fv_const(fl_ones(FL_SHAPE(1, 2, 4, 4), FL_F32)));
    CHECK(has_shape(fv_value(y), FL_SHAPE(1, 2, 4, 4)));
    fl_nn_free(fl_nn_find(net, "tail")); /* takes itself out of the tree */
    CHECK_EQ_INT(net->n_child, 2);
    CHECK_EQ_INT(fl_nn_parameters(net).n, 4);
    fl_nn_free(net);
    fl_nn_free(NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(shared_parameters_count_once) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *a = fl_nn_linear(3, 3, .no_bias = true);
    fl_nn_module *net = fl_nn_sequential(a);
    fl_nn_add_param(net, "tied", fl_nn_get_param(a, "weight"));
    CHECK_EQ_INT(fl_nn_parameters(net).n, 1);
    CHECK_EQ_INT(fl_nn_count(net), 9);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(prints_as_pytorch) {
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_conv2d(2, 4, 3, .stride = 2, .pad = 1, .dilation = 2, .groups = 2, .no_bias = true),
        fl_nn_sequential(fl_nn_batch_norm2d(4), fl_nn_pool2d(2)),
        fl_nn_pool2d(3, .kernel_w = 2, .stride = 1, .average = true), fl_nn_view(FL_SHAPE(-1, 12)),
        fl_nn_linear(12, 5), fl_nn_layer_norm(FL_SHAPE(5)), fl_nn_dropout(.5),
        fl_nn_conv2d(1, 1, 5, .pad = FL_SAME), fl_nn_log_softmax(1));
    const char *want =
        "Sequential(\n"
        "  (0): Conv2d(2, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(2, 2), "
        "groups=2, bias=False)\n"
        "  (1): Sequential(\n"
        "    (0): BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"
        "    (1): MaxPool2d(kernel_size=2, stride=2, padding=0)\n"
        "  )\n"
        "  (2): AvgPool2d(kernel_size=(3, 2), stride=1, padding=0)\n"
        "  (3): View((-1, 12))\n"
        "  (4): Linear(in_features=12, out_features=5, bias=True)\n"
        "  (5): LayerNorm((5,), eps=1e-05, elementwise_affine=True)\n"
        "  (6): Dropout(p=0.5)\n"
        "  (7): Conv2d(1, 1, kernel_size=(5, 5), stride=(1, 1), padding=same)\n"
        "  (8): LogSoftmax(dim=1)\n"
        ")";
    char text[2000], cut[10];
    CHECK_EQ_INT(fl_nn_format(net, text, sizeof text), strlen(want));
    if (!CHECK(!strcmp(text, want))) puts(text);
    CHECK_EQ_INT(fl_nn_format(net, cut, sizeof cut), strlen(want));
    CHECK(!strcmp(cut, "Sequentia"));
    CHECK_EQ_INT(fl_nn_format(NULL, cut, sizeof cut), 0);
    fl_nn_free(net);
}

TEST(train_sets_the_tree) {
    fl_nn_module *net = fl_nn_sequential(fl_nn_sequential(fl_nn_dropout(.5)), fl_nn_relu());
    CHECK(net->train && fl_nn_find(net, "0.0")->train);
    fl_nn_train(net, false);
    CHECK(!net->train && !fl_nn_find(net, "0.0")->train && !fl_nn_find(net, "1")->train);
    fl_nn_train(net, true);
    CHECK(fl_nn_find(net, "0.0")->train);
    fl_nn_train(NULL, true);
    fl_nn_zero_grad(NULL);
    fl_nn_free(net);
}

static int released;
static void count_release(void *user) { released += *(int *)user; }

static fl_vars swap_two(fl_nn_module *m, fl_vars in) {
    ++*(int *)fl_nn_user(m);
    return FL_VARS(in.v[1], in.v[0]);
}

TEST(modules_made_of_functions) {
    int calls = 0;
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_function("Swap", swap_two, &calls, count_release),
                 *two = fl_nn_sequential(m, fl_nn_function("Swap", swap_two, &calls, NULL));
    fl_var *a = fv_num(1), *b = fv_num(2);
    fl_vars out = fl_nn_forward_vars(m, FL_VARS(a, b));
    CHECK_EQ_INT(out.n, 2);
    CHECK(out.v[0] == b && out.v[1] == a);
    out = fl_nn_forward_vars(two, FL_VARS(a, b));
    CHECK(out.v[0] == a && out.v[1] == b);
    CHECK_EQ_INT(calls, 3);
    CHECK(!fl_nn_user(two));
    fl_nn_free(two);
    CHECK_EQ_INT(released, 3);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* losses */

typedef struct class_case {
    const char *what;
    int64_t target[4];
    int64_t ignore;
    double smoothing;
} class_case;

TEST(cross_entropy_values_and_gradients) {
    enum { N = 4, C = 3 };
    static const class_case cases[] = {
        {"plain", {2, 0, 1, 1}, 0, 0},
        {"ignored by default", {2, -100, 1, -100}, 0, 0},
        {"ignore 0", {2, 0, 1, 0}, FL_I0, 0},
        {"ignore 1", {2, 0, 1, 0}, 1, 0},
        {"smoothed", {2, 0, 1, 1}, 0, .2},
        {"smoothed and ignored", {2, 0, 1, 1}, 1, .3},
    };
    for (int k = 0; k < 6; k++) {
        const class_case *c = &cases[k];
        const int64_t ignore = c->ignore == FL_I0 ? 0 : c->ignore ? c->ignore : -100;
        const double *x = numbers(N * C, k);
        double each[N], dx[N * C] = {0}, sum = 0, count = 0;
        for (int n = 0; n < N; n++) {
            double z = 0;
            for (int i = 0; i < C; i++) z += exp(x[n * C + i]);
            each[n] = 0;
            if (c->target[n] == ignore) continue;
            count++;
            for (int i = 0; i < C; i++) {
                const double q = (i == c->target[n] ? 1 - c->smoothing : 0) + c->smoothing / C;
                each[n] -= q * (x[n * C + i] - log(z));
                dx[n * C + i] = exp(x[n * C + i]) / z - q;
            }
            sum += each[n];
        }
        fl_scope s = fl_scope_begin();
        fl_tensor *target = fl_from_host(c->target, FL_SHAPE(N), FL_I64);
        fl_var *v = fv_param(f64(x, FL_SHAPE(N, C)));
        fl_cross_entropy_opts o = {.ignore = c->ignore, .smoothing = c->smoothing};
        fl_var *mean = fv_cross_entropy_opt(v, target, o);
        CHECK(has_shape(fv_value(mean), FL_SCALAR_SHAPE));
        CHECK_NEAR(fl_item(fv_value(mean)), sum / count, 1e-14);
        o.reduction = FL_NONE;
        CHECK_VALUES(fv_value(fv_cross_entropy_opt(v, target, o)), each, N, 1e-14);
        o.reduction = FL_SUM;
        fl_var *total = fv_cross_entropy_opt(v, target, o);
        CHECK_NEAR(fl_item(fv_value(total)), sum, 1e-14);
        CHECK(fl_backward(total));
        CHECK_VALUES(fv_grad(v), dx, N * C, 1e-14);
        fv_zero_grad(v);
        CHECK(fl_backward(mean));
        for (int i = 0; i < N * C; i++) dx[i] /= count;
        CHECK_VALUES(fv_grad(v), dx, N * C, 1e-14);
        if (c->smoothing == 0)
            CHECK_NEAR(fl_item(fv_value(
                           fv_nll_loss(fv_log_softmax(v, 1), target, .ignore = c->ignore))),
                       sum / count, 1e-14);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(losses_over_images_and_edges) {
    fl_scope s = fl_scope_begin();
    /* [n, c, h, w] with targets [n, h, w]: as many rows. */
    const double *x = numbers(2 * 3 * 4, 5);
    const int64_t t[] = {0, 2, 1, 1, 2, 2, 0, 1};
    double want[8];
    for (int i = 0; i < 8; i++) {
        const int n = i / 4, p = i % 4;
        double z = 0;
        for (int c = 0; c < 3; c++) z += exp(x[(n * 3 + c) * 4 + p]);
        want[i] = log(z) - x[(n * 3 + t[i]) * 4 + p];
    }
    fl_var *v = fv_param(f64(x, FL_SHAPE(2, 3, 2, 2)));
    fl_var *each =
        fv_cross_entropy(v, fl_from_host(t, FL_SHAPE(2, 2, 2), FL_I64), .reduction = FL_NONE);
    CHECK(has_shape(fv_value(each), FL_SHAPE(2, 2, 2)));
    CHECK_VALUES(fv_value(each), want, 8, 1e-14);
    /* Equal logits: ln c, in f32 too; large ones stay finite. */
    fl_tensor *zero = fl_zeros(FL_SHAPE(5), FL_I64);
    CHECK_NEAR(
        fl_item(fv_value(fv_cross_entropy(fv_const(fl_zeros(FL_SHAPE(5, 10), FL_F32)), zero))),
        log(10), 1e-6);
    CHECK_NEAR(fl_item(fv_value(
                   fv_cross_entropy(fv_const(fl_full(FL_SHAPE(5, 10), 1e4, FL_F32)), zero))),
               log(10), 1e-3);
    CHECK_NEAR(fl_item(fv_value(fv_nll_loss(fv_const(fl_full(FL_SHAPE(5, 2), -.5, FL_F64)), zero,
                                          .reduction = FL_SUM))),
               2.5, 1e-15);
    /* Nothing counts: 0 / 0, as in PyTorch. */
    CHECK(isnan(fl_item(fv_value(
        fv_nll_loss(fv_const(fl_zeros(FL_SHAPE(5, 2), FL_F64)), zero, .ignore = FL_I0)))));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(mse_values_and_gradients) {
    const double a[] = {1, 2, -3}, b[] = {0, 4, -3.5};
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(f64(a, FL_SHAPE(3))), *y = fv_param(f64(b, FL_SHAPE(3))),
           *loss = fv_mse_loss(x, y, FL_MEAN);
    CHECK_NEAR(fl_item(fv_value(loss)), 5.25 / 3, 1e-15);
    CHECK(fl_backward(loss));
    CHECK_VALUES(fv_grad(x), ((double[]){2.0 / 3, -4.0 / 3, 1.0 / 3}), 3, 1e-15);
    CHECK_VALUES(fv_grad(y), ((double[]){-2.0 / 3, 4.0 / 3, -1.0 / 3}), 3, 1e-15);
    CHECK_NEAR(fl_item(fv_value(fv_mse_loss(x, y, FL_SUM))), 5.25, 1e-15);
    CHECK_VALUES(fv_value(fv_mse_loss(x, y, FL_NONE)), ((double[]){1, 4, .25}), 3, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* saving */

typedef struct counter {
    int32_t calls;
    float last;
} counter;

static fl_vars count_forward(fl_nn_module *m, fl_vars in) {
    counter *c = m->data;
    c->calls++;
    return in;
}
static void *counter_state(fl_nn_module *m, size_t *bytes) {
    *bytes = sizeof(counter);
    return m->data;
}
static const fl_nn_type counter_type = {
    .name = "Counter", .inputs = 1, .forward = count_forward, .state = counter_state};

static fl_nn_module *saved_net(uint64_t seed, int64_t width) {
    const counter c = {(int32_t)seed, (float)seed};
    fl_seed(seed);
    fl_nn_module *net = fl_nn_sequential(fl_nn_conv2d(1, width, 3), fl_nn_batch_norm2d(width),
                                         fl_nn_new(&counter_type, &c, sizeof c));
    fl_nn_add(net, "head", fl_nn_linear(4, 2, .dtype = FL_F64));
    return net;
}

/* All parameters and buffers, one after the other. */
typedef struct dump {
    double v[512];
    int64_t n;
} dump;
static bool dump_value(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    dump *d = user;
    fl_tensor *t = param ? fv_value(param) : buffer;
    (void)path;
    memcpy(d->v + d->n, values(t), (size_t)fl_numel(t) * sizeof *d->v);
    d->n += fl_numel(t);
    return true;
}
static dump dump_of(fl_nn_module *m) {
    dump d = {.n = 0};
    fl_scope s = fl_scope_begin();
    fl_nn_visit_tensors(m, dump_value, &d);
    counter *c = fl_nn_find(m, "2") ? fl_nn_find(m, "2")->data : NULL;
    if (c) d.v[d.n++] = c->calls, d.v[d.n++] = c->last;
    fl_scope_end(&s);
    return d;
}
static bool same_dump(const dump *a, const dump *b) {
    return a->n == b->n && !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

TEST(save_and_load_round_trip) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *a = saved_net(1, 3), *b = saved_net(2, 3);
    fl_var *x = fv_const(fl_uniform(FL_SHAPE(2, 1, 5, 5), 0, 1, FL_F32, NULL));
    CHECK(fl_nn_forward(fl_nn_find(a, "1"),
                        fl_nn_forward(fl_nn_find(a, "0"), x))); /* statistics of its own */
    const dump before = dump_of(a), other = dump_of(b);
    CHECK(!same_dump(&before, &other));
    CHECK(fl_nn_save(a, test_file("a")));
    fl_tensor *weight = fv_value(fl_nn_get_param(b, "0.weight"));
    const uint32_t version = fl_version_of(weight);
    CHECK(fl_nn_load(b, test_file("a")));
    const dump after = dump_of(b);
    CHECK(same_dump(&before, &after));
    CHECK(fv_value(fl_nn_get_param(b, "0.weight")) == weight); /* in place: optimizers stay valid */
    CHECK(fl_version_of(weight) > version);
    const char *index = test_file("a.safetensors.index.json"); /* shards, where a file is taken */
    fl_nn_module *c = saved_net(3, 3);
    CHECK(fl_nn_save(a, index) && fl_nn_load(c, index));
    const dump sharded = dump_of(c);
    CHECK(same_dump(&before, &sharded));
    fl_nn_free(c);
    remove(index);
    remove(test_file("a-v1-00001-of-00001.safetensors"));
    /* The file is plain safetensors, with Hugging Face's mark. */
    fl_data_file *f = fl_data_open_safetensors(test_file("a"));
    CHECK_EQ_INT(fl_data_count(f), 10);
    CHECK(fl_data_find(f, "head.weight") >= 0 && fl_data_find(f, "1.num_batches_tracked") >= 0);
    CHECK(fl_data_find(f, "2._extra_state") >= 0);
    CHECK_STR(fl_data_meta(f, "format"), "pt");
    fl_data_close(f);
    fl_nn_free(a);
    fl_nn_free(b);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Loading path into m must fail with that text and leave m as it is. */
static void check_load_fails(fl_nn_module *m, const char *path, const char *text, int line) {
    const dump before = dump_of(m);
    bool ok = CHECK(!fl_nn_load(m, path)) && CHECK_ERROR(text);
    const dump after = dump_of(m);
    ok = CHECK(same_dump(&before, &after)) && ok;
    if (!ok) printf("  called from line %d\n", line);
}
#define CHECK_LOAD_FAILS(m, path, text) check_load_fails(m, path, text, __LINE__)

TEST(load_checks_before_it_touches) {
    fl_nn_module *a = saved_net(1, 3), *wide = saved_net(2, 4), *b = saved_net(3, 3);
    /* No handler is set here: loading never stops. */
    CHECK(fl_nn_save(a, test_file("a")));
    CHECK_LOAD_FAILS(wide, test_file("a"),
                     "'0.weight' is f32 [4, 1, 3, 3], but the file has f32 [3, 1, 3, 3]");
    fl_nn_free(fl_nn_find(b, "head"));
    CHECK_LOAD_FAILS(b, test_file("a"), "0 names missing; 2 unexpected: head.");
    fl_nn_add(b, "tail", fl_nn_linear(4, 2, .dtype = FL_F64));
    CHECK_LOAD_FAILS(b, test_file("a"),
                     "2 names missing: tail.weight, tail.bias; 2 unexpected: head.");
    fl_nn_free(fl_nn_find(b, "tail"));
    fl_nn_add(b, "head", fl_nn_linear(4, 2));
    CHECK_LOAD_FAILS(b, test_file("a"), "'head.weight' is f32 [2, 4], but the file has f64 [2, 4]");
    CHECK_LOAD_FAILS(a, test_file("b"), "b");
    CHECK_LOAD_FAILS(a, NULL, "NULL");
    CHECK(!fl_nn_save(a, test_file("none/a")));
    CHECK_ERROR("none/a");
    CHECK(!fl_nn_save(a, NULL));
    CHECK_ERROR("NULL");
    CHECK(!fl_nn_save(NULL, test_file("b")));
    CHECK_ERROR("the module is NULL");
    CHECK(!fl_nn_load(NULL, test_file("a")));
    CHECK_ERROR("the module is NULL");
    fl_nn_free(a);
    fl_nn_free(b);
    fl_nn_free(wide);
    CHECK_NOTHING_LIVES();
}

TEST(load_partial_and_prefix) {
    fl_nn_module *a = saved_net(1, 3), *b = saved_net(2, 3);
    fl_nn_free(fl_nn_find(b, "head"));
    fl_nn_add(b, "tail", fl_nn_linear(4, 2));
    const dump tail = dump_of(fl_nn_find(b, "tail"));
    CHECK(fl_nn_save(a, test_file("a")));
    CHECK(fl_nn_load(b, test_file("a"), .partial = true));
    const dump from = dump_of(fl_nn_find(a, "0")), to = dump_of(fl_nn_find(b, "0")),
               kept = dump_of(fl_nn_find(b, "tail"));
    CHECK(same_dump(&from, &to) && same_dump(&tail, &kept));
    /* One layer's names are those below its prefix. */
    fl_nn_module *head = fl_nn_linear(4, 2, .dtype = FL_F64);
    CHECK(fl_nn_load(head, test_file("a"), .prefix = "head."));
    const dump theirs = dump_of(fl_nn_find(a, "head")), mine = dump_of(head);
    CHECK(same_dump(&theirs, &mine));
    CHECK(!fl_nn_load(head, test_file("a"), .prefix = "1."));
    CHECK_ERROR("3 unexpected: 1.");
    fl_nn_free(a);
    fl_nn_free(b);
    fl_nn_free(head);
    CHECK_NOTHING_LIVES();
}

static int64_t read_file(const char *path, char *buf, int64_t size) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    const int64_t n = (int64_t)fread(buf, 1, (size_t)size, f);
    fclose(f);
    return n;
}
static void write_file(const char *path, const char *buf, int64_t n) {
    FILE *f = fopen(path, "wb");
    if (!CHECK(f)) return;
    CHECK(fwrite(buf, 1, (size_t)n, f) == (size_t)n);
    fclose(f);
}

TEST(damaged_files_leave_the_model) {
    static char file[1 << 16];
    fl_nn_module *a = saved_net(1, 3), *b = saved_net(2, 3);
    CHECK(fl_nn_save(a, test_file("a")));
    const int64_t n = read_file(test_file("a"), file, sizeof file);
    CHECK(n > 1000);
    for (int64_t cut = 0; cut < n; cut += cut < 64 ? 1 : 37) { /* truncated */
        write_file(test_file("b"), file, cut);
        CHECK_LOAD_FAILS(b, test_file("b"), "b");
    }
    file[n - 1] ^= 1; /* one bit of the last tensor: its checksum tells */
    write_file(test_file("b"), file, n);
    CHECK_LOAD_FAILS(b, test_file("b"), "b");
    fl_nn_free(a);
    fl_nn_free(b);
    CHECK_NOTHING_LIVES();
}

/* errors */

static fl_vars no_result(fl_nn_module *m, fl_vars in) {
    (void)m, (void)in;
    return (fl_vars){0};
}

TEST(wrong_makers) {
    test_errors_return();
    CHECK(!fl_nn_linear(0, 3));
    CHECK_ERROR("fl_nn_linear: in and out must be positive, got 0 and 3");
    CHECK(!fl_nn_linear(2, 3, .dtype = FL_I64));
    CHECK_ERROR("fl_nn_linear: parameters must be a float dtype, got i64");
    CHECK(!fl_nn_conv2d(3, -1, 3));
    CHECK_ERROR("fl_nn_conv2d: in, out, kernel, stride and dilation must be positive, got in 3, out -1");
    CHECK(!fl_nn_conv2d(3, 4, 3, .groups = 2));
    CHECK_ERROR("fl_nn_conv2d: in (3) and out (4) must be divisible by groups (2)");
    CHECK(!fl_nn_conv2d(3, 4, 3, .dtype = FL_B8));
    CHECK_ERROR("fl_nn_conv2d: parameters must be a float dtype, got b8");
    CHECK(!fl_nn_pool2d(0));
    CHECK_ERROR("fl_nn_pool2d: kernel and stride must be positive");
    CHECK(!fl_nn_dropout(1.5));
    CHECK_ERROR("fl_nn_dropout: p must be in [0, 1], got 1.5");
    CHECK(!fl_nn_batch_norm2d(0));
    CHECK_ERROR("fl_nn_batch_norm2d: channels must be positive");
    CHECK(!fl_nn_batch_norm2d(3, .momentum = 2));
    CHECK_ERROR("got 3, 2 and");
    CHECK(!fl_nn_batch_norm2d(3, .dtype = FL_I64));
    CHECK_ERROR("fl_nn_batch_norm2d: parameters must be a float dtype, got i64");
    CHECK(!fl_nn_layer_norm(FL_SCALAR_SHAPE));
    CHECK_ERROR("fl_nn_layer_norm: dims must be positive");
    CHECK(!fl_nn_layer_norm(FL_SHAPE(3), .eps = -1));
    CHECK_ERROR("got [3] and -1");
    CHECK(!fl_nn_layer_norm(FL_SHAPE(3), .dtype = FL_I64));
    CHECK_ERROR("fl_nn_layer_norm: parameters must be a float dtype, got i64");
    CHECK(!fl_nn_activation("Nothing", NULL));
    CHECK_ERROR("fl_nn_activation: the function is NULL");
    int user = 1;
    released = 0;
    CHECK(!fl_nn_function("Nothing", NULL, &user, count_release));
    CHECK_ERROR("fl_nn_function: forward is NULL");
    CHECK_EQ_INT(released, 1);
    /* A child that could not be made takes its siblings along, whatever its place. */
    CHECK(!fl_nn_sequential(fl_nn_linear(2, 2), fl_nn_linear(0, 2), fl_nn_linear(2, 2)));
    CHECK_ERROR("fl_nn_linear: in and out must be positive, got 0 and 2");
    CHECK(!fl_nn_sequential(NULL, fl_nn_relu()));
    CHECK_ERROR("fl_nn_add: the child is NULL");
    CHECK_NOTHING_LIVES();
}

TEST(wrong_trees) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_relu()), *in = fl_nn_find(net, "0"),
                 *other = fl_nn_sequential_of(0, NULL);
    fl_var *p = fv_param(fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK(!fl_nn_add(net, "a.b", fl_nn_relu()));
    CHECK_ERROR("fl_nn_add: name 'a.b' is not valid");
    CHECK(!fl_nn_add(net, "", fl_nn_relu()));
    CHECK_ERROR("is not valid");
    CHECK(!fl_nn_add(net, "0", fl_nn_relu()));
    CHECK_ERROR("fl_nn_add: the module already has a '0'");
    CHECK(!fl_nn_add(other, "x", in));
    CHECK_ERROR("fl_nn_add: 'x' already belongs to another module");
    CHECK(!fl_nn_add(in, "x", net));
    CHECK_ERROR("fl_nn_add: 'x' is an ancestor of its new parent");
    CHECK(!fl_nn_add(NULL, "x", fl_nn_relu()));
    CHECK_ERROR("fl_nn_add: the parent is NULL");
    CHECK(!fl_nn_add(net, "x", NULL));
    CHECK_ERROR("fl_nn_add: the child is NULL");
    CHECK_EQ_INT(net->n_child, 1);
    CHECK(fl_nn_add_param(net, "p", p) == p);
    CHECK(!fl_nn_add_param(net, "p", p) && !fl_nn_add_buffer(net, "p", fv_value(p)));
    CHECK_ERROR("fl_nn_add_param: the module already has a 'p'");
    CHECK(!fl_nn_add_param(net, "q", NULL));
    CHECK_ERROR("fl_nn_add_param: the parameter is NULL");
    CHECK(!fl_nn_add_buffer(net, "q", NULL));
    CHECK_ERROR("fl_nn_add_buffer: the tensor is NULL");
    CHECK(!fl_nn_add_param(NULL, "q", p) && !fl_nn_add_buffer(NULL, "q", fv_value(p)));
    CHECK_ERROR("fl_nn_add_param: the module is NULL");
    CHECK_EQ_INT(net->n_param, 1);
    CHECK_EQ_INT(net->n_buffer, 0);
    CHECK_EQ_INT(fl_nn_parameters(NULL).n, 0);
    CHECK_ERROR("fl_nn_parameters: the module is NULL");
    CHECK_EQ_INT(fl_nn_count(NULL), 0);
    CHECK_ERROR("the module is NULL");
    CHECK(!fl_nn_visit_tensors(NULL, collect_name, NULL));
    CHECK_ERROR("fl_nn_visit_tensors: the module is NULL");
    CHECK(!fl_nn_find(NULL, "a") && !fl_nn_get_param(NULL, "a") && !fl_nn_get_buffer(NULL, "a"));
    fl_nn_free(net);
    fl_nn_free(other);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(wrong_inputs_name_the_module) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential_of(0, NULL), *inner = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "body", inner);
    fl_nn_module *fc = fl_nn_add(inner, "fc1", fl_nn_linear(784, 10)),
                 *conv = fl_nn_add(inner, "conv1", fl_nn_conv2d(3, 4, 3));
    fl_nn_module *norm = fl_nn_add(inner, "norm", fl_nn_layer_norm(FL_SHAPE(5))),
                 *bn = fl_nn_add(inner, "bn", fl_nn_batch_norm2d(3));
    fl_nn_module *pool = fl_nn_add(inner, "pool", fl_nn_pool2d(2)),
                 *soft = fl_nn_add(inner, "soft", fl_nn_log_softmax(2));
    fl_var *x = fv_const(fl_zeros(FL_SHAPE(64, 3136), FL_F32));
    CHECK(!fl_nn_forward(net, x));
    CHECK_ERROR("fl_nn_linear 'body.fc1': input [64, 3136], weight [10, 784]");
    CHECK(!fl_nn_forward(fc, fv_num(1)));
    CHECK_ERROR("fl_nn_linear 'body.fc1': input []");
    CHECK(!fl_nn_forward(conv, x));
    CHECK_ERROR(
        "fl_nn_conv2d 'body.conv1': input [64, 3136], weight [4, 3, 3, 3], expected [n, 3, h, w]");
    CHECK(!fl_nn_forward(norm, x));
    CHECK_ERROR("fl_nn_layer_norm 'body.norm': input [64, 3136] does not end in [5]");
    CHECK(!fl_nn_forward(norm, fv_num(1)));
    CHECK_ERROR("does not end in [5]");
    CHECK(!fl_nn_forward(bn, x));
    CHECK_ERROR("fl_nn_batch_norm2d 'body.bn': input [64, 3136], expected [n, 3, h, w]");
    CHECK(!fl_nn_forward(pool, x));
    CHECK_ERROR("fl_nn_pool2d 'body.pool': input [64, 3136]");
    CHECK(!fl_nn_forward(soft, x));
    CHECK_ERROR("LogSoftmax 'body.soft': axis 2 is out of range for input [64, 3136]");
    CHECK(!fl_nn_forward(fc, NULL));
    CHECK_ERROR("fl_nn_linear 'body.fc1': input 0 is NULL");
    CHECK(!fl_nn_forward(NULL, x));
    CHECK_ERROR("fl_nn_forward: the module is NULL");
    CHECK_EQ_INT(fl_nn_forward_vars(fc, FL_VARS(x, x)).n, 0);
    CHECK_ERROR("fl_nn_linear 'body.fc1': got 2 inputs, expected 1");
    fl_nn_module *none = fl_nn_function("None", no_result, NULL, NULL);
    CHECK(!fl_nn_forward(none, x));
    CHECK_ERROR("None: forward returned no result");
    /* While an error is pending NULL passes and the first text stays. */
    CHECK(!fl_nn_forward(fc, fl_nn_forward(conv, x)));
    CHECK_ERROR("fl_nn_conv2d 'body.conv1'");
    fl_nn_free(none);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(wrong_losses) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(3, 4), FL_F32));
    fl_tensor *t = fl_from_host((int64_t[]){0, 4, 1}, FL_SHAPE(3), FL_I64);
    CHECK(!fv_cross_entropy(x, t));
    CHECK_ERROR("fl_cross_entropy: index 4 is out of range for axis 1 of size 4");
    CHECK(!fv_nll_loss(x, fl_neg(t)));
    CHECK_ERROR("fl_nll_loss: index -4 is out of range for axis 1 of size 4");
    CHECK(fv_nll_loss(x, t, .ignore = 4));
    CHECK(!fv_nll_loss(x, fl_zeros(FL_SHAPE(2), FL_I64)));
    CHECK_ERROR("target integers [n, ...], got input f32 [3, 4], target i64 [2]");
    CHECK(!fv_nll_loss(x, fl_zeros(FL_SHAPE(3), FL_F32)));
    CHECK_ERROR("target f32 [3]");
    CHECK(!fv_nll_loss(fv_const(t), t));
    CHECK_ERROR("input i64 [3]");
    CHECK(!fv_nll_loss(NULL, t) && !fv_cross_entropy(NULL, t));
    CHECK_ERROR("fv_nll_loss: an operand is NULL");
    CHECK(!fv_cross_entropy(x, NULL));
    CHECK_ERROR("fv_cross_entropy: an operand is NULL");
    CHECK(!fv_cross_entropy(x, t, .smoothing = 2));
    CHECK_ERROR("smoothing must be in [0, 1], got 2");
    CHECK(!fv_mse_loss(x, fv_const(fl_cast(t, FL_F32)), FL_MEAN));
    CHECK_ERROR("fl_mse_loss: shapes [3, 4] and [3]");
    CHECK(!fv_mse_loss(NULL, x, FL_MEAN) && !fv_mse_loss(x, NULL, FL_MEAN));
    CHECK_ERROR("fl_mse_loss: an operand is NULL");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static fl_nn_module *small_net(void) {
    fl_nn_module *net =
        fl_nn_sequential(fl_nn_conv2d(1, 2, 2), fl_nn_batch_norm2d(2), fl_nn_view(FL_SHAPE(-1, 8)));
    if (net && !fl_nn_add(net, "norm", fl_nn_layer_norm(FL_SHAPE(8)))) {
        fl_nn_free(net);
        return NULL;
    }
    return net;
}

TEST(memory_runs_out_anywhere) {
    test_errors_return();
    fl_nn_free(small_net()); /* gives the thread its scopes: without one values stay in the root */
    fl_heap_use(heap_fn, NULL);
    int64_t n = 0;
    bool done = false;
    for (n = 1; !done && n < 2000; n++) {
        heap_fail_at(n);
        fl_scope s = fl_scope_begin();
        fl_nn_module *net = small_net();
        fl_var *x = fv_const(fl_ones(FL_SHAPE(2, 1, 3, 3), FL_F32));
        fl_var *loss = net ? fv_sum(fl_nn_forward(net, x), FL_ALL_AXES) : NULL;
        done = loss && fl_backward(loss) && fl_nn_save(net, test_file("a")) &&
               fl_nn_load(net, test_file("a")) && heap.calls < n;
        const bool failed = heap.calls >= n;
        heap_fail_at(0);
        if (!CHECK(done || fl_error() || failed)) break;
        fl_nn_free(net);
        fl_scope_end(&s);
        fl_error_clear();
        if (!CHECK_EQ_INT(fl_live_tensors(), 0)) break;
    }
    CHECK(done);
    CHECK(n > 20);
    fl_heap_use(NULL, NULL);
    CHECK_NOTHING_LIVES();
}

/* ---- threads ---- */

typedef struct evaluation {
    fl_nn_module *net;
    fl_tensor *x;
    float y[6];
    const fl_var *first;
    bool ok;
} evaluation;

static void *evaluate(void *arg) {
    evaluation *e = arg;
    e->ok = true;
    for (int i = 0; i < 20; i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(i % 2); /* recording is safe too */
        fl_var *y = fl_nn_forward(e->net, fv_const(e->x));
        const fv_list p = fl_nn_parameters(e->net);
        e->ok = e->ok && y && fl_to_host(fv_value(y), e->y, sizeof e->y) && p.n == 6;
        e->first = p.v[0];
        fl_scope_end(&s);
    }
    return NULL;
}

TEST(four_threads_evaluate_one_net) {
    enum { N = 4 };
    fl_seed(1);
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(4, 8), fl_nn_relu(), fl_nn_linear(8, 8),
                                         fl_nn_dropout(0.5), fl_nn_linear(8, 3));
    fl_nn_train(net, false);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_uniform(FL_SHAPE(2, 4), -1, 1, FL_F32, NULL);
    evaluation e[N];
    pthread_t t[N];
    for (int i = 0; i < N; i++) e[i] = (evaluation){.net = net, .x = x};
    for (int i = 0; i < N; i++) REQUIRE(pthread_create(&t[i], NULL, evaluate, &e[i]) == 0);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < N; i++)
        CHECK(e[i].ok && e[i].first == fl_nn_get_param(net, "0.weight") &&
              !memcmp(e[i].y, e[0].y, sizeof e[0].y));
    fl_scope_end(&s);
    fl_nn_free(net);
}

/* While one thread is inside a pass, which its hook says, another one's through the same leaf is refused. */
typedef struct meeting {
    fl_var *leaf;
    int stage; /* atomic: 1: the first pass is at its hook, 2: the second has ended */
    bool refused;
} meeting;

static void wait_for_stage(meeting *m, int stage) {
    while (__atomic_load_n(&m->stage, __ATOMIC_ACQUIRE) < stage) usleep(100);
}

static void wait_in_hook(fl_var *x, void *user) {
    (void)x;
    __atomic_store_n(&((meeting *)user)->stage, 1, __ATOMIC_RELEASE);
    wait_for_stage(user, 2);
}

static void *second_pass(void *arg) {
    meeting *m = arg;
    wait_for_stage(m, 1);
    fl_scope s = fl_scope_begin();
    fl_quiet(+1);
    m->refused = !fl_backward(fv_sum(fv_mul(m->leaf, m->leaf), FL_ALL_AXES)) && fl_error() &&
                 strstr(fl_error(), "another thread runs backward through the same leaf");
    fl_quiet(-1);
    fl_error_clear();
    fl_scope_end(&s);
    __atomic_store_n(&m->stage, 2, __ATOMIC_RELEASE);
    return NULL;
}

TEST(backward_of_one_net_in_two_threads) {
    fl_scope s = fl_scope_begin();
    meeting m = {.leaf = fv_param(fl_ones(FL_SHAPE(3), FL_F32))};
    fl_var *y = fv_exp(m.leaf);
    fv_hook(y, wait_in_hook, &m);
    pthread_t t;
    REQUIRE(pthread_create(&t, NULL, second_pass, &m) == 0);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    pthread_join(t, NULL);
    CHECK(m.refused);
    CHECK(fl_backward(fv_sum(m.leaf, FL_ALL_AXES))); /* nothing is left behind */
    CHECK_NEAR(fl_item(fl_select(fv_grad(m.leaf), 0, 0)), exp(1) + 1, 1e-5);
    fl_scope_end(&s);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
