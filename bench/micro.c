/* bench/micro.c - start-up time, and the gain of a second thread (make bench-micro [ARGS=threads])

     first_step, later_step   a network 784-1024-1024-10 in training, batch 64: construction and first step;
                              a step afterwards
     scaling_product, _add    seconds of one thread / of all: a product 1024^3, a sum of 2^24 floats
     peak_memory              of the memory manager, over all of these */
#include "bench.h"

typedef struct trainer {
    fl_nn_module *net;
    fl_optim *optim;
    fl_var *x;
    fl_tensor *target;
} trainer;

static void train(void *arg) {
    trainer *t = arg;
    fl_scope s = fl_scope_begin();
    fl_optim_zero_grad(t->optim);
    fl_backward(fv_cross_entropy(fl_nn_forward(t->net, t->x), t->target));
    fl_optim_step(t->optim);
    fl_scope_end(&s);
}

static void bench_steps(void) {
    fl_scope s = fl_scope_begin();
    double start = fl_data_now();
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(784, 1024), fl_nn_relu(),
                                         fl_nn_linear(1024, 1024), fl_nn_relu(),
                                         fl_nn_linear(1024, 10));
    trainer t = {net, fl_optim_sgd(fl_nn_parameters(net), .lr = 0.01, .momentum = 0.9),
                 fv_const(fl_normal(FL_SHAPE(64, 784), 0, 1, FL_F32, NULL)),
                 fl_randint(FL_SHAPE(64), 0, 10, NULL)};
    train(&t);
    bench_line("first_step", (fl_data_now() - start) * 1e3, "ms", "parameters drawn too");
    bench_line("later_step", bench_time(train, &t, 11, 5) * 1e3, "ms", "");
    fl_optim_free(t.optim);
    fl_nn_free(net);
    fl_scope_end(&s);
}

static void product(void *arg) {
    fl_scope s = fl_scope_begin();
    fl_matmul(arg, arg);
    fl_scope_end(&s);
}

static void sum(void *arg) {
    fl_scope s = fl_scope_begin();
    fl_add(arg, arg);
    fl_scope_end(&s);
}

/* The least of a few seconds each way, in turn. */
static void bench_scaling(const char *figure, bench_fn fn, fl_tensor *x, int threads) {
    double least[2] = {1e30, 1e30};
    for (int round = 0; round < 10; round++) {
        fl_set_threads(round % 2 ? threads : 1);
        double seconds = bench_time(fn, x, 3, 1);
        if (seconds < least[round % 2]) least[round % 2] = seconds;
    }
    bench_line(figure, least[0] / least[1], "x", "one thread / all");
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : fl_threads();
    fl_set_threads(threads);
    bench_steps();
    fl_scope s = fl_scope_begin();
    bench_scaling("scaling_product", product, fl_ones(FL_SHAPE(1024, 1024), FL_F32), threads);
    bench_scaling("scaling_add", sum, fl_ones(FL_SHAPE(1 << 24), FL_F32), threads);
    fl_scope_end(&s);
    bench_line("peak_memory", (double)fl_mem_stats_of(NULL).peak_in_use / 1e6, "MB", "");
    return 0;
}
/* MIT licence: see LICENSE. */
