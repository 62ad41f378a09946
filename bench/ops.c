/* bench/ops.c - memory-bound ops against the copy bandwidth of the same run (make bench-ops)

   Each line: GB/s of the bytes that the op must read and write, and in the note the copy's GB/s divided by it
   (target: at most 2 for element-wise ops and reductions in contiguous, channels-last and inner-contiguous
   layouts). The copy is memcpy by the pool's threads between warm buffers. Sorting and scattering: millions
   of elements per second. Network ops, forward and with their gradients, on tensors larger than the
   last-level cache and of 1.5 MiB: their note has the share of a copy of as many bytes with plain stores,
   timed between the same calls, minima of both.

   ARGS=nets: these only; bench/peers/torch_ops.py prints the same rows. ARGS=formulas: every line of the op
   tables and its gradients, ns per f32 element in one thread, at 16 Ki elements (in the caches) and 1 Mi; the
   minimum of many calls. ARGS="formulas mish": that one. ARGS=folds: reductions of rows in the second-level
   cache, in one thread, likewise. */
#include "../fl_backend.h"
#include "bench.h"
#include <math.h>
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

/* An op of networks: y of x, with or without gradients, that moves so many bytes per element of x
   when nothing is read or written twice that need not be (batch norm reads x and dy twice). */
typedef struct net net;
struct net {
    const char *figure;
    fl_var *(*run)(const net *job);
    fl_shape shape;
    double forward, both;
    bool channels_last;
    fl_var *x, *weight, *bias;
    fl_tensor *dy, *target;
    bool backward;
};

static fl_var *run_add(const net *j) { return fv_add(j->x, j->x); }
static fl_var *run_relu(const net *j) { return fv_relu(j->x); }
static fl_var *run_gelu(const net *j) { return fv_gelu(j->x); }
static fl_var *run_gelu_tanh(const net *j) { return fv_gelu_tanh(j->x); }
static fl_var *run_softmax(const net *j) { return fv_softmax(j->x, -1); }
static fl_var *run_dropout(const net *j) { return fv_dropout(j->x, 0.1, NULL); }
static fl_var *run_max_pool(const net *j) {
    return fv_max_pool(j->x, NULL, .kernel = {3}, .stride = {2}, .pad = {1});
}
static fl_var *run_avg_pool(const net *j) { return fv_avg_pool(j->x, .kernel = {2}); }
static fl_var *run_cross_entropy(const net *j) { return fv_cross_entropy(j->x, j->target); }
static fl_var *run_layer_norm(const net *j) {
    return fv_layer_norm(j->x, 1, j->weight, j->bias, 1e-5);
}
static fl_var *run_batch_norm(const net *j) {
    return fv_batch_norm(j->x, j->weight, j->bias, .train = true);
}

#define ROWS_OF(n) {2, {n, 768}}
static const net nets[] = {
    {.figure = "add", .run = run_add, .shape = ROWS_OF(16384), .forward = 12},
    {.figure = "relu", .run = run_relu, .shape = ROWS_OF(16384), .forward = 8, .both = 20},
    {.figure = "gelu", .run = run_gelu, .shape = ROWS_OF(16384), .forward = 8, .both = 20},
    {.figure = "gelu_tanh", .run = run_gelu_tanh, .shape = ROWS_OF(16384), .forward = 8, .both = 20},
    {.figure = "softmax", .run = run_softmax, .shape = ROWS_OF(16384), .forward = 8, .both = 20},
    {.figure = "dropout", .run = run_dropout, .shape = ROWS_OF(16384), .forward = 8, .both = 16},
    {.figure = "layer_norm", .run = run_layer_norm, .shape = ROWS_OF(16384), .forward = 8, .both = 20},
    {.figure = "batch_norm", .run = run_batch_norm, .shape = {4, {32, 64, 56, 56}}, .forward = 12,
     .both = 32},
    {.figure = "batch_norm_cl", .run = run_batch_norm, .shape = {4, {32, 64, 56, 56}}, .forward = 12,
     .both = 32, .channels_last = true},
    {.figure = "max_pool", .run = run_max_pool, .shape = {4, {32, 64, 112, 112}}, .forward = 5.25,
     .both = 10.5},
    {.figure = "max_pool_cl", .run = run_max_pool, .shape = {4, {32, 64, 112, 112}},
     .forward = 5.25, .both = 10.5, .channels_last = true},
    {.figure = "avg_pool", .run = run_avg_pool, .shape = {4, {32, 64, 112, 112}}, .forward = 5,
     .both = 10},
    {.figure = "avg_pool_cl", .run = run_avg_pool, .shape = {4, {32, 64, 112, 112}}, .forward = 5,
     .both = 10, .channels_last = true},
    {.figure = "cross_entropy", .run = run_cross_entropy, .shape = {2, {2048, 50265}}, .forward = 4,
     .both = 12},
    {.figure = "relu_small", .run = run_relu, .shape = ROWS_OF(512), .forward = 8, .both = 20},
    {.figure = "gelu_small", .run = run_gelu, .shape = ROWS_OF(512), .forward = 8, .both = 20},
    {.figure = "softmax_small", .run = run_softmax, .shape = ROWS_OF(512), .forward = 8, .both = 20},
    {.figure = "dropout_small", .run = run_dropout, .shape = ROWS_OF(512), .forward = 8, .both = 16},
    {.figure = "layer_norm_small", .run = run_layer_norm, .shape = ROWS_OF(512), .forward = 8,
     .both = 20},
    {.figure = "batch_norm_small", .run = run_batch_norm, .shape = {4, {4, 64, 39, 39}},
     .forward = 12, .both = 32},
    {.figure = "batch_norm_cl_small", .run = run_batch_norm, .shape = {4, {4, 64, 39, 39}},
     .forward = 12, .both = 32, .channels_last = true},
};

/* The leaf of a channels-last image is dense, as its gradient is. */
static void run_net(void *arg) {
    net j = *(const net *)arg;
    fl_scope s = fl_scope_begin();
    fl_no_grad(!j.backward);
    fl_var *leaf = j.x;
    if (j.channels_last) j.x = fv_permute(leaf, 4, (int[]){0, 3, 1, 2});
    fl_var *y = j.run(&j);
    if (j.backward) {
        fl_backward(y, .grad = j.dy);
        fv_zero_grad(leaf);
        fv_zero_grad(j.weight);
        fv_zero_grad(j.bias);
    }
    fl_scope_end(&s);
}

static fl_shape channels_behind(fl_shape s) {
    return FL_SHAPE(s.dim[0], s.dim[2], s.dim[3], s.dim[1]);
}

/* In plain stores: memcpy goes past the caches where the copy is large. */
static void copy_plain(void *arg, int64_t begin, int64_t end) {
    typedef float vector __attribute__((vector_size(32)));
    const copying *c = arg;
    vector *to = (vector *)(void *)c->to;
    const vector *from = (const vector *)(const void *)c->from;
    for (int64_t i = begin; i < end; i++) {
        to[i] = from[i];
        __asm__ volatile("" ::: "memory");
    }
}

typedef struct plain {
    copying c;
    int64_t bytes;
} plain;

static void copy_plainly(void *arg) {
    plain *p = arg;
    fl_parallel(p->bytes / 32, 1 << 12, copy_plain, &p->c);
}

static double once(bench_fn fn, void *arg) {
    double start = fl_data_now();
    fn(arg);
    return fl_data_now() - start;
}

/* Seconds of the job, and of copying as many bytes as it moves: the least of `rounds`. */
static double share_of_copy(net *j, double bytes, double *seconds) {
    fl_tensor *x = j->x->value, *to = fl_empty_like(x), *from = fl_ones_like(x);
    plain p = {{fl_map(to, FL_WRITE), fl_map(from, FL_READ)}, fl_numel(x) * 4};
    if (p.bytes > 1 << 26) p.bytes = 1 << 26;
    double copy = 1e9, least = 1e9;
    const int rounds = p.bytes < 1 << 22 ? 200 : 9;
    for (int r = 0; r < rounds; r++) {
        copy = fmin(copy, once(copy_plainly, &p));
        least = fmin(least, once(run_net, j));
    }
    fl_unmap(to, FL_WRITE);
    fl_unmap(from, FL_READ);
    *seconds = least;
    return copy * bytes / (2.0 * (double)p.bytes) / least;
}

static void net_operands(net *j) {
    fl_rng rng = {6, 0};
    fl_shape s = j->shape;
    int64_t channels = s.dim[1];
    bool behind = j->channels_last;
    j->x = fv_param(fl_normal(behind ? channels_behind(s) : s, 0, 1, FL_F32, &rng));
    j->weight = fv_param(fl_ones(FL_SHAPE(channels), FL_F32));
    j->bias = fv_param(fl_zeros(FL_SHAPE(channels), FL_F32));
    if (j->run == run_cross_entropy)
        j->target = fl_randint(FL_SHAPE(s.dim[0]), 0, channels, &rng);
    net wide = *j;
    if (behind) wide.x = fv_permute(j->x, 4, (int[]){0, 3, 1, 2});
    fl_shape y = fl_shape_of(fv_value(j->run(&wide)));
    j->dy = fl_normal(behind ? channels_behind(y) : y, 0, 1, FL_F32, &rng);
    if (behind) j->dy = fl_permute(j->dy, 4, (int[]){0, 3, 1, 2});
}

/* Of the ops whose names start with `only`. */
static void networks(const char *only) {
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        for (int backward = 0; backward < 2; backward++) {
            net j = nets[i];
            double bytes = backward ? j.both : j.forward, seconds;
            if (bytes == 0 || strncmp(j.figure, only, strlen(only)) != 0) continue;
            fl_scope s = fl_scope_begin();
            char figure[60], note[60];
            net_operands(&j);
            j.backward = backward;
            bytes *= (double)fl_shape_numel(j.shape);
            double share = share_of_copy(&j, bytes, &seconds);
            snprintf(figure, sizeof figure, "%s_%s", j.figure, backward ? "both" : "forward");
            snprintf(note, sizeof note, "%.0f %% of the copy, %.3g ms", 100 * share, seconds * 1e3);
            bench_line(figure, bytes / seconds / 1e9, "GB/s", note);
            fl_scope_end(&s);
        }
}

/* >>formulas */

static const struct {
    const char *name;
    fl_op_class cls;
    fl_var *(*unary)(fl_var *);
    fl_var *(*binary)(fl_var *, fl_var *);
} formulas[] = {
#define UNARY(op, cls, ...) {#op, FL_CLASS_##cls, fv_##op, NULL},
#define BINARY(op, cls, ...) {#op, FL_CLASS_##cls, NULL, fv_##op},
    FL_UNARY_OPS(UNARY) FL_BINARY_OPS(BINARY)
#undef UNARY
#undef BINARY
};

/* Least seconds of y = f(a, b) in s[0], and of its backward pass, all gradients, in s[1]. */
static void time_formula(size_t k, int64_t n, double s[2]) {
    fl_scope all = fl_scope_begin();
    fl_var *a = fv_param(fl_uniform(FL_SHAPE(n), 0.1, 0.9, FL_F32, &(fl_rng){1, 0}));
    fl_var *b = fv_param(fl_uniform(FL_SHAPE(n), 0.1, 0.9, FL_F32, &(fl_rng){2, 0}));
    fl_tensor *dy = fl_uniform(FL_SHAPE(n), -1, 1, FL_F32, &(fl_rng){3, 0});
    const double end = fl_data_now() + 0.1;
    s[0] = s[1] = 1e9;
    for (int r = 0; r < 5 || fl_data_now() < end; r++) {
        fl_scope one = fl_scope_begin();
        double start = fl_data_now();
        fl_var *y = formulas[k].unary ? formulas[k].unary(a) : formulas[k].binary(a, b);
        s[0] = fmin(s[0], fl_data_now() - start);
        start = fl_data_now();
        if (y->requires_grad) fl_backward(y, .grad = dy);
        if (y->requires_grad) s[1] = fmin(s[1], fl_data_now() - start);
        fv_zero_grad(a);
        fv_zero_grad(b);
        fl_scope_end(&one);
    }
    fl_scope_end(&all);
}

static void measure_formulas(const char *only) {
    fl_set_threads(1);
    for (size_t k = 0; k < sizeof formulas / sizeof *formulas; k++)
        for (int64_t n = 1 << 14; n <= 1 << 20; n <<= 6) {
            double s[2];
            char note[40];
            if (formulas[k].cls == FL_CLASS_INT || (*only && strcmp(only, formulas[k].name))) continue;
            time_formula(k, n, s);
            snprintf(note, sizeof note, "%lld elements", (long long)n);
            bench_line(formulas[k].name, s[0] / (double)n * 1e9, "ns", note);
            snprintf(note, sizeof note, "%lld elements, gradients", (long long)n);
            if (s[1] < 1e9) bench_line(formulas[k].name, s[1] / (double)n * 1e9, "ns", note);
        }
}

/* >>folds */

static fl_tensor *argmax_of(fl_tensor *x, fl_axes axes) { return fl_argmax(x, axes.axis[0], false); }

/* Rows of 64 Ki elements, reduced one after the other. */
static void measure_folds(void) {
    static const struct {
        const char *name;
        fl_tensor *(*reduce)(fl_tensor *, fl_axes);
    } folds[] = {{"sum", fl_sum}, {"mean", fl_mean}, {"amax", fl_amax}, {"amin", fl_amin},
                 {"argmax", argmax_of}};
    enum { ELEMENTS = 1 << 16 };
    fl_set_threads(1);
    for (size_t k = 0; k < sizeof folds / sizeof *folds; k++)
        for (int64_t n = 16; n <= 4096; n *= n < 64 ? 2 : 4) {
            fl_scope s = fl_scope_begin();
            fl_tensor *x = fl_uniform(FL_SHAPE(ELEMENTS / n, n), -1, 1, FL_F32, &(fl_rng){1, 0});
            job j = {.x = x, .reduce = folds[k].reduce, .axes = FL_AXES(1)};
            char note[40];
            double least = 1e9;
            for (int r = 0; r < 500; r++) least = fmin(least, once(run_job, &j));
            snprintf(note, sizeof note, "rows of %lld, %s", (long long)n, fl_cpu_level());
            bench_line(folds[k].name, least / ELEMENTS * 1e9, "ns", note);
            fl_scope_end(&s);
        }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "folds") == 0) {
        measure_folds();
        return fl_error() != NULL;
    }
    if (argc > 1 && strcmp(argv[1], "formulas") == 0) {
        measure_formulas(argc > 2 ? argv[2] : "");
        return fl_error() != NULL;
    }
    if (argc > 1 && strcmp(argv[1], "nets") == 0) {
        networks(argc > 2 ? argv[2] : "");
        return fl_error() != NULL;
    }
    measure_copy();
    layouts(FL_F32);
    layouts(FL_BF16);
    layouts(FL_I8);
    moves();
    orders();
    networks("");
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
