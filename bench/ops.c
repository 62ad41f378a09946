/* ops.c - ops bound by memory, against the copy bandwidth of the same run (make bench-ops)

   Each line: GB/s of the bytes that the op must read and write, and in the note the copy's GB/s
   divided by it (issue: at most 2 for element-wise ops and reductions in contiguous, channels-last
   and inner-contiguous layouts). The copy is memcpy by the pool's threads between warm buffers.
   Sorting and scattering: millions of elements a second. */
#include "bench.h"
#include <string.h>

enum { N = 1 << 24 }; /* elements: 64 MiB of f32, past the caches */

static double copy_rate; /* bytes a second */

typedef struct copying {
    char *to, *from;
} copying;

static void copy_part(void *arg, int64_t begin, int64_t end) {
    const copying *c = arg;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

static void copy_all(void *arg) {
    fl_parallel((int64_t)N * 4, 1 << 20, copy_part, arg);
}

static void measure_copy(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_ones(FL_SHAPE(N), FL_F32), *b = fl_ones(FL_SHAPE(N), FL_F32);
    copying c = {fl_map(a, FL_WRITE), fl_map(b, FL_READ)};
    copy_rate = 2.0 * N * 4 / bench_time(copy_all, &c, 15, 1);
    fl_unmap(a, FL_WRITE);
    fl_unmap(b, FL_READ);
    bench_line("copy", copy_rate / 1e9, "GB/s", "memcpy, read and written bytes");
    fl_scope_end(&s);
}

typedef struct job {
    fl_tensor *x, *y;
    fl_tensor *(*unary)(fl_tensor *);
    fl_tensor *(*binary)(fl_tensor *, fl_tensor *);
    fl_tensor *(*reduce)(fl_tensor *, fl_axes);
    fl_axes axes;
    fl_dtype to;
} job;

static void run_job(void *arg) {
    const job *j = arg;
    fl_scope s = fl_scope_begin();
    if (j->unary) j->unary(j->x);
    if (j->binary) j->binary(j->x, j->y);
    if (j->reduce) j->reduce(j->x, j->axes);
    if (j->to) fl_cast(j->x, j->to);
    fl_scope_end(&s);
}

static void report(const char *figure, job j, double bytes) {
    char note[60];
    double rate = bytes / bench_time(run_job, &j, 9, 1);
    snprintf(note, sizeof note, "copy / this = %.2f", copy_rate / rate);
    bench_line(figure, rate / 1e9, "GB/s", note);
}

/* x of about N elements in a layout: dense, [16, 64, 128, 128] with channels innermost, or rows
   that leave a gap. */
typedef enum arrangement { DENSE, CHANNELS_LAST, ROWS } arrangement;
static const char *const names[] = {"", "_channels_last", "_rows"};

static fl_tensor *arranged(arrangement a, fl_dtype d) {
    fl_rng rng = {3, 0};
    fl_tensor *x = fl_cast(fl_uniform(FL_SHAPE(16, 128, 128, 64), 0, 100, FL_F32, &rng), d);
    if (a == CHANNELS_LAST) return fl_permute(x, 4, (int[]){0, 3, 1, 2});
    if (a == ROWS) return fl_slice(fl_reshape(x, FL_SHAPE(4096, 4096)), 1, 0, 4000, 1);
    return fl_reshape(x, FL_SHAPE(4096, 4096));
}

static void layouts(fl_dtype d) {
    char figure[80];
    double size = (double)fl_dtype_size(d);
    for (int a = 0; a < 3; a++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = arranged((arrangement)a, d), *y = fl_clone(x);
        y = a == CHANNELS_LAST ? arranged(CHANNELS_LAST, d) : y;
        double n = (double)fl_numel(x);
#define FIGURE(op) (snprintf(figure, sizeof figure, op "_%s%s", fl_dtype_name(d), names[a]), figure)
        report(FIGURE("relu"), (job){.x = x, .unary = fl_relu}, 2 * n * size);
        report(FIGURE("add"), (job){.x = x, .y = y, .binary = fl_add}, 3 * n * size);
        report(FIGURE("sum_all"), (job){.x = x, .reduce = fl_sum}, n * size);
        report(FIGURE("amax_all"), (job){.x = x, .reduce = fl_amax}, n * size);
        report(FIGURE("sum_axis0"), (job){.x = x, .reduce = fl_sum, .axes = FL_AXES(0)}, n * size);
        report(FIGURE("sum_axis1"), (job){.x = x, .reduce = fl_sum, .axes = FL_AXES(1)}, n * size);
#undef FIGURE
        fl_scope_end(&s);
    }
}

static void moves(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = arranged(DENSE, FL_F32);
    double n = (double)fl_numel(x);
    report("transpose_f32", (job){.x = fl_transpose(x, 0, 1), .unary = fl_clone}, 8 * n);
    report("channels_last_to_dense_f32",
           (job){.x = arranged(CHANNELS_LAST, FL_F32), .unary = fl_clone}, 8 * n);
    report("cast_f32_bf16", (job){.x = x, .to = FL_BF16}, 6 * n);
    report("cast_bf16_f32", (job){.x = fl_cast(x, FL_BF16), .to = FL_F32}, 6 * n);
    report("broadcast_row_f32",
           (job){.x = x, .y = fl_clone(fl_select(x, 0, 0)), .binary = fl_mul}, 8 * n);
    report("broadcast_column_f32",
           (job){.x = x, .y = fl_clone(fl_slice(x, 1, 0, 1, 1)), .binary = fl_mul}, 8 * n);
    fl_scope_end(&s);
}

typedef struct order_job {
    fl_tensor *x, *index, *src;
    int kind;
} order_job;

static void run_order(void *arg) {
    const order_job *j = arg;
    fl_scope s = fl_scope_begin();
    if (j->kind == 0) fl_sort(j->x, -1, false, NULL);
    if (j->kind == 1) fl_topk(j->x, 50, -1, false, NULL);
    if (j->kind == 2) fl_scatter_add(j->x, 0, j->index, j->src);
    if (j->kind == 3) fl_cumsum(j->x, -1);
    if (j->kind == 4) fl_argmax(j->x, -1, false);
    fl_scope_end(&s);
}

static void orders(void) {
    static const char *const figures[] = {"sort", "topk_50", "scatter_add", "cumsum", "argmax"};
    fl_rng rng = {4, 0};
    for (int k = 0; k < 5; k++)
        for (int line = 0; line < 2; line++) {
            fl_scope s = fl_scope_begin();
            char figure[60];
            int64_t n = 1 << 22, rows = line ? 1 : 1024;
            fl_shape shape = FL_SHAPE(rows, n / rows);
            order_job j = {.kind = k, .x = fl_uniform(shape, 0, 1, FL_F32, &rng)};
            if (k == 2) {
                j.x = fl_zeros(FL_SHAPE(1 << 16, line ? 1 : 64), FL_F32);
                shape = FL_SHAPE(line ? n : n / 64, line ? 1 : 64);
                j.index = fl_randint(shape, 0, 1 << 16, &rng);
                j.src = fl_uniform(shape, 0, 1, FL_F32, &rng);
            }
            snprintf(figure, sizeof figure, "%s_%s", figures[k], line ? "one_line" : "lines");
            bench_line(figure, (double)n / bench_time(run_order, &j, 5, 1) / 1e6, "M/s",
                       "2^22 f32 elements");
            fl_scope_end(&s);
        }
}

int main(void) {
    measure_copy();
    layouts(FL_F32);
    layouts(FL_BF16);
    layouts(FL_I8);
    moves();
    orders();
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
