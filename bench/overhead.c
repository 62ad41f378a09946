/* bench/overhead.c - framework overhead around a kernel: tiny tensors, one thread (make bench-overhead)

     add_1, add_64        one add of two f32 tensors, including allocation and release of the result
     add_record           the same on variables that require a gradient
     add_record_backward  recorded and run backward, per op, in a chain of 20
     mlp_step             forward, backward and SGD of three layers of width 32, batch 8
     mlp_forward          only the forward pass of one sample, without recording */
#include "bench.h"

enum { CHAIN = 20, ADDS = 10 };

static void add_chain(void *arg) {
    fl_tensor **ab = arg;
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < ADDS; i++) fl_add(ab[0], ab[1]);
    fl_scope_end(&s);
}

static fl_var *record_chain(fl_var **ab) {
    fl_var *x = ab[0];
    for (int i = 0; i < CHAIN; i++) x = fv_add(x, ab[1]);
    return x;
}

static void record(void *arg) {
    fl_scope s = fl_scope_begin();
    record_chain(arg);
    fl_scope_end(&s);
}

static fl_tensor *ones;

static void record_backward(void *arg) {
    fl_var **ab = arg;
    fl_scope s = fl_scope_begin();
    fl_backward(record_chain(ab), .grad = ones);
    fv_zero_grad(ab[0]);
    fl_scope_end(&s);
}

typedef struct mlp {
    fl_nn_module *net;
    fl_optim *optim;
    fl_var *x, *row;
    fl_tensor *target;
} mlp;

static void mlp_step(void *arg) {
    mlp *m = arg;
    fl_scope s = fl_scope_begin();
    fl_var *loss = fv_mse_loss(fl_nn_forward(m->net, m->x), fv_const(m->target), FL_MEAN);
    fl_optim_zero_grad(m->optim);
    fl_backward(loss);
    fl_optim_step(m->optim);
    fl_scope_end(&s);
}

static void mlp_forward(void *arg) {
    mlp *m = arg;
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_nn_forward(m->net, m->row);
    fl_scope_end(&s);
}

static void bench_add(const char *figure, int64_t n) {
    fl_scope s = fl_scope_begin();
    fl_tensor *ab[2] = {fl_ones(FL_SHAPE(n), FL_F32), fl_ones(FL_SHAPE(n), FL_F32)};
    double t = bench_time(add_chain, ab, 51, 20000) / ADDS;
    bench_line(figure, t * 1e9, "ns", "f32, allocation and release included; budget 40");
    fl_scope_end(&s);
}

static void bench_record(void) {
    fl_scope s = fl_scope_begin();
    ones = fl_ones(FL_SHAPE(64), FL_F32);
    fl_var *ab[2] = {fv_param(fl_ones(FL_SHAPE(64), FL_F32)),
                     fv_const(fl_ones(FL_SHAPE(64), FL_F32))};
    bench_line("add_record", bench_time(record, ab, 51, 5000) / CHAIN * 1e9, "ns",
               "64 floats, forward with recording, per op");
    bench_line("add_record_backward", bench_time(record_backward, ab, 51, 5000) / CHAIN * 1e9, "ns",
               "64 floats, forward and backward, per op; budget 150");
    fl_scope_end(&s);
}

static void bench_mlp(void) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(32, 32), fl_nn_relu(), fl_nn_linear(32, 32),
                                         fl_nn_relu(), fl_nn_linear(32, 32));
    mlp m = {net, fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-3),
             fv_const(fl_ones(FL_SHAPE(8, 32), FL_F32)), fv_const(fl_ones(FL_SHAPE(1, 32), FL_F32)),
             fl_ones(FL_SHAPE(8, 32), FL_F32)};
    bench_line("mlp_step", bench_time(mlp_step, &m, 51, 2000) * 1e6, "us",
               "3 layers, width 32, batch 8, MSE, SGD; budget 10");
    bench_line("mlp_forward", bench_time(mlp_forward, &m, 51, 5000) * 1e6, "us",
               "the same net, one sample, nothing recorded");
    fl_optim_free(m.optim);
    fl_nn_free(net);
    fl_scope_end(&s);
}

int main(void) {
    fl_set_threads(1);
    bench_add("add_1", 1);
    bench_add("add_64", 64);
    bench_record();
    bench_mlp();
    return 0;
}
/* MIT licence: see LICENSE. */
