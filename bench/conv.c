/* bench/conv.c - convolutions of AlexNet, VGG16, ResNet-50, DCGAN and the MNIST network against the FMA peak

   make bench-conv. One line for each shape, direction (forward, data, weight), layout (last: every operand
   channels-last; nchw) and number of threads: GFLOP/s of the direct convolution's operations, and in the note
   the percentage of the FMA peak. Operation and peak are sampled alternately: the best time counts, and the
   median of the ratios to the peak just before and after.

     make bench-conv ARGS="r50 last 2"       shapes whose name contains r50, one layout, two threads
     make bench-conv ARGS="vgg all 1 cpu"    one thread in CPU time: for a busy machine
     make bench-conv ARGS="vgg last 2 wall direct"    or im2col, winograd: that algorithm only
     make bench-conv ARGS="vgg last 1 cpu bf16"       operands may be rounded; alternating with f32 */
#include "../fl_backend.h"
#include "peaks.h"
#include "kernels/cpu/force.h"
#include "kernels/cpu/levels.h"
#include <string.h>
#include <time.h>

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }
static double (*now)(void) = fl_data_now;

/* >>shapes */

typedef struct shape {
    const char *name;
    int64_t n, c, size, o, kernel, stride, pad, groups;
} shape;

static const shape shapes[] = {
    {"alex_11x11s4_3_64", 32, 3, 224, 64, 11, 4, 2, 1},
    {"alex_5x5_64_192_27", 32, 64, 27, 192, 5, 1, 2, 1},
    {"alex_3x3_192_384_13", 32, 192, 13, 384, 3, 1, 1, 1},
    {"alex_3x3_384_256_13", 32, 384, 13, 256, 3, 1, 1, 1},
    {"alex_3x3_256_256_13", 32, 256, 13, 256, 3, 1, 1, 1},
    {"vgg_3x3_3_64_224", 4, 3, 224, 64, 3, 1, 1, 1},
    {"vgg_3x3_64_64_224", 4, 64, 224, 64, 3, 1, 1, 1},
    {"vgg_3x3_64_128_112", 4, 64, 112, 128, 3, 1, 1, 1},
    {"vgg_3x3_128_128_112", 4, 128, 112, 128, 3, 1, 1, 1},
    {"vgg_3x3_128_256_56", 4, 128, 56, 256, 3, 1, 1, 1},
    {"vgg_3x3_256_256_56", 4, 256, 56, 256, 3, 1, 1, 1},
    {"vgg_3x3_256_512_28", 4, 256, 28, 512, 3, 1, 1, 1},
    {"vgg_3x3_512_512_28", 4, 512, 28, 512, 3, 1, 1, 1},
    {"vgg_3x3_512_512_14", 4, 512, 14, 512, 3, 1, 1, 1},
    {"r50_7x7s2_3_64", 4, 3, 224, 64, 7, 2, 3, 1},
    {"r50_1x1_64_64_56", 4, 64, 56, 64, 1, 1, 0, 1},
    {"r50_3x3_64_64_56", 4, 64, 56, 64, 3, 1, 1, 1},
    {"r50_1x1_64_256_56", 4, 64, 56, 256, 1, 1, 0, 1},
    {"r50_1x1_256_64_56", 4, 256, 56, 64, 1, 1, 0, 1},
    {"r50_1x1_256_128_56", 4, 256, 56, 128, 1, 1, 0, 1},
    {"r50_3x3s2_128_128_56", 4, 128, 56, 128, 3, 2, 1, 1},
    {"r50_1x1s2_256_512_56", 4, 256, 56, 512, 1, 2, 0, 1},
    {"r50_1x1_128_512_28", 4, 128, 28, 512, 1, 1, 0, 1},
    {"r50_1x1_512_128_28", 4, 512, 28, 128, 1, 1, 0, 1},
    {"r50_3x3_128_128_28", 4, 128, 28, 128, 3, 1, 1, 1},
    {"r50_1x1_512_256_28", 4, 512, 28, 256, 1, 1, 0, 1},
    {"r50_3x3s2_256_256_28", 4, 256, 28, 256, 3, 2, 1, 1},
    {"r50_1x1s2_512_1024_28", 4, 512, 28, 1024, 1, 2, 0, 1},
    {"r50_1x1_256_1024_14", 4, 256, 14, 1024, 1, 1, 0, 1},
    {"r50_1x1_1024_256_14", 4, 1024, 14, 256, 1, 1, 0, 1},
    {"r50_3x3_256_256_14", 4, 256, 14, 256, 3, 1, 1, 1},
    {"r50_1x1_1024_512_14", 4, 1024, 14, 512, 1, 1, 0, 1},
    {"r50_3x3s2_512_512_14", 4, 512, 14, 512, 3, 2, 1, 1},
    {"r50_1x1s2_1024_2048_14", 4, 1024, 14, 2048, 1, 2, 0, 1},
    {"r50_1x1_512_2048_7", 4, 512, 7, 2048, 1, 1, 0, 1},
    {"r50_1x1_2048_512_7", 4, 2048, 7, 512, 1, 1, 0, 1},
    {"r50_3x3_512_512_7", 4, 512, 7, 512, 3, 1, 1, 1},
    {"gan_4x4s2_3_64_64", 8, 3, 64, 64, 4, 2, 1, 1},
    {"gan_4x4s2_64_128_32", 8, 64, 32, 128, 4, 2, 1, 1},
    {"gan_4x4s2_128_256_16", 8, 128, 16, 256, 4, 2, 1, 1},
    {"gan_4x4s2_256_512_8", 8, 256, 8, 512, 4, 2, 1, 1},
    {"gan_4x4_512_100_4", 8, 512, 4, 100, 4, 1, 0, 1},
    {"gan_4x4_512_1_4", 8, 512, 4, 1, 4, 1, 0, 1},
    {"mnist_5x5_1_32_28", 64, 1, 28, 32, 5, 1, 2, 1},
    {"mnist_5x5_32_64_14", 64, 32, 14, 64, 5, 1, 2, 1},
    {"depthwise_3x3_128_56", 4, 128, 56, 128, 3, 1, 1, 128},
    {"depthwise_3x3s2_128_56", 4, 128, 56, 128, 3, 2, 1, 128},
};

typedef enum direction { FORWARD, DATA, WEIGHT } direction;
static const char *const directions[] = {"forward", "data", "weight"};

typedef struct job {
    direction direction;
    fl_tensor *x, *w, *dy;
    fl_conv2d_args args;
} job;

static double job_sample(const job *j) {
    fl_scope s = fl_scope_begin();
    double start = now();
    if (j->direction == FORWARD) fl_conv2d_run(j->x, j->w, NULL, j->args);
    if (j->direction == DATA) fl_conv2d_grad_input(j->dy, j->w, fl_shape_of(j->x), j->args);
    if (j->direction == WEIGHT) fl_conv2d_grad_weight(j->x, j->dy, fl_shape_of(j->w), j->args);
    double seconds = now() - start;
    fl_scope_end(&s);
    return seconds;
}

static bool rounded;

/* GFLOP/s of a convolution that may round its operands, beside f32's: best times, in turns. */
static void measure_rounded(const char *figure, double work, const job *j) {
    double best[2] = {1e9, 1e9}, spent = 0;
    char note[60];
    for (int i = 0; i < 10 || (spent < 0.05 && i < 200); i++) {
        fl_set_matmul_precision(i % 2 ? FL_BF16 : FL_F32);
        const double seconds = job_sample(j);
        spent += seconds;
        best[i % 2] = seconds < best[i % 2] ? seconds : best[i % 2];
    }
    fl_set_matmul_precision(FL_F32);
    snprintf(note, sizeof note, "f32 %.0f, ratio %.2f", work / best[0] / 1e9, best[0] / best[1]);
    bench_line(figure, work / best[1] / 1e9, "GFLOP/s", note);
}

static void measure(const shape *t, const job *j, const char *layout, int threads) {
    enum { ROUNDS = 5 };
    double best = 1e9, part[50], spent = 0;
    int rounds = 0;
    job_sample(j);
    double pixels = (double)(j->dy->shape[0] * j->dy->shape[2] * j->dy->shape[3] * t->o);
    double work = 2 * pixels * (double)(t->c / t->groups * t->kernel * t->kernel);
    char figure[100], note[60];
    snprintf(figure, sizeof figure, "%s_%s_%s_%dt", t->name, directions[j->direction], layout,
             threads);
    if (rounded) {
        measure_rounded(figure, work, j);
        return;
    }
    for (double before = peak_fma_sample(now); rounds < ROUNDS || (spent < 0.02 && rounds < 50);) {
        double seconds = job_sample(j), after = peak_fma_sample(now);
        part[rounds++] = 2e-9 * work / seconds / (before + after);
        spent += seconds;
        best = seconds < best ? seconds : best;
        before = after;
    }
    snprintf(note, sizeof note, "%3.0f %% of peak, %.3f ms", 100 * bench_median(part, rounds),
             best * 1e3);
    bench_line(figure, work / best / 1e9, "GFLOP/s", note);
}

/* All directions of a shape in one layout. */
static void run_shape(const shape *t, bool last, int threads) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    job j = {.args = {{t->stride, t->stride}, {t->pad, t->pad}, {t->pad, t->pad}, {1, 1}, t->groups, false}};
    j.x = fl_uniform(FL_SHAPE(t->n, t->c, t->size, t->size), -1, 1, FL_F32, &rng);
    j.w = fl_uniform(FL_SHAPE(t->o, t->c / t->groups, t->kernel, t->kernel), -1, 1, FL_F32, &rng);
    j.dy = fl_conv2d_run(j.x, j.w, NULL, j.args);
    if (last) {
        j.x = fl_channels_last(j.x);
        j.w = fl_channels_last(j.w);
        j.dy = fl_channels_last(j.dy);
    }
    for (int d = FORWARD; d <= WEIGHT; d++) {
        j.direction = (direction)d;
        measure(t, &j, last ? "last" : "nchw", threads);
    }
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *layout = argc > 2 ? argv[2] : "";
    int only = argc > 3 ? atoi(argv[3]) : 0;
    if (argc > 4 && !strcmp(argv[4], "cpu")) now = cpu_seconds;
    rounded = argc > 5 && !strcmp(argv[5], "bf16");
    if (argc > 5 && !rounded && !fl_cpu_force_algorithm(argv[5])) return 2;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int last = 1; last >= 0; last--)
            for (int threads = 1; threads <= 2; threads++) {
                bool wanted = strstr(shapes[i].name, name) && (only == 0 || only == threads);
                if (!wanted || !strstr(last ? "last" : "nchw", strcmp(layout, "all") ? layout : ""))
                    continue;
                fl_set_threads(threads);
                run_shape(&shapes[i], last, threads);
            }
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
