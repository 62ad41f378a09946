/* bench/mnist.c - training speed of the paper's MNIST network, batch 64, on random data

   make bench-mnist

     mnist_100_iterations  seconds of 100 iterations of forward, NLL, backward and SGD with momentum,
                           for 1 and 2 threads: the median over rounds, after a warm-up. Rounds of the
                           two alternate. */
#include "../examples/digits.h"
#include "bench.h"

typedef struct trainer {
    fl_nn_module *net;
    fl_optim *optim;
    fl_var *x;
    fl_tensor *target;
} trainer;

static void iterations(trainer *t, int n) {
    for (int i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *loss = fv_nll_loss(fl_nn_forward(t->net, t->x), t->target);
        fl_optim_zero_grad(t->optim);
        fl_backward(loss);
        fl_optim_step(t->optim);
        fl_scope_end(&s);
    }
}

int main(int argc, char **argv) {
    enum { ROUNDS = 5 };
    int n = argc > 1 ? atoi(argv[1]) : 100;
    double seconds[2][ROUNDS];
    fl_scope s = fl_scope_begin();
    trainer t = {.net = digits_net(),
                 .x = fv_const(fl_normal(FL_SHAPE(64, 28, 28), 0, 1, FL_F32, NULL)),
                 .target = fl_randint(FL_SHAPE(64), 0, 10, NULL)};
    t.optim = fl_optim_sgd(fl_nn_parameters(t.net), .lr = 0.01, .momentum = 0.9);
    for (int r = 0; r < ROUNDS; r++)
        for (int threads = 1; threads <= 2; threads++) {
            fl_set_threads(threads);
            iterations(&t, 3);
            double start = fl_data_now();
            iterations(&t, n);
            seconds[threads - 1][r] = (fl_data_now() - start) * 100 / n;
        }
    fl_mem_stats m = fl_mem_stats_of(NULL);
    bench_line("mnist_100_iterations_1_thread", bench_median(seconds[0], ROUNDS), "s",
               "batch 64; budget 5.0");
    bench_line("mnist_100_iterations_2_threads", bench_median(seconds[1], ROUNDS), "s",
               "batch 64; budget 2.8");
    bench_line("mnist_peak_memory", (double)m.peak_in_use / 1e6, "MB",
               "of the memory manager, parameters and state included");
    fl_optim_free(t.optim);
    fl_nn_free(t.net);
    fl_scope_end(&s);
    return 0;
}
/* MIT licence: see LICENSE. */
