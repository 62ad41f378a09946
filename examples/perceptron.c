/* examples/perceptron.c - Rosenblatt's perceptron

   cc -O2 -I. examples/perceptron.c fl.c -lm -lpthread

   One neuron separates two classes by a line. Its rule of 1958, "add y x to the weights for every x on the
   wrong side", is gradient descent on the loss max(0, -y (w x + b)): autograd finds it. If there is a line,
   it is found after finitely many mistakes (Novikoff 1962). */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>

enum { SAMPLES = 200, EPOCHS = 100 };

/* Points on both sides of x0 + 2 x1 = 0.5, none nearer than 0.1, and -1 or 1 for the side. */
static fl_data_set *points(void) {
    fl_rng rng = {1, 0};
    float x[SAMPLES][2], y[SAMPLES];
    for (int i = 0; i < SAMPLES;) {
        fl_scope s = fl_scope_begin();
        fl_to_host(fl_uniform(FL_SHAPE(2), -1, 1, FL_F32, &rng), x[i], sizeof x[i]);
        fl_scope_end(&s);
        const float side = (x[i][0] + 2 * x[i][1] - 0.5f) / 2.236f;
        y[i] = side > 0 ? 1 : -1;
        i += side * y[i] > 0.1f;
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *t[] = {fl_from_host(x, FL_SHAPE(SAMPLES, 2), FL_F32),
                      fl_from_host(y, FL_SHAPE(SAMPLES, 1), FL_F32)};
    fl_data_set *set = fl_data_batch(fl_data_shuffle(fl_data_tensors(t, 2), 1), 1, false);
    fl_scope_end(&s);
    return set;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_data_set *set = points();
    fl_nn_module *neuron = fl_nn_linear(2, 1);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(neuron), .lr = 1);
    int64_t mistakes = -1, all = 0;
    int epoch = 0;
    for (; epoch < EPOCHS && mistakes; epoch++) {
        mistakes = 0;
        fl_data_set_epoch(set, epoch);
        for (int64_t i = 0; i < fl_data_size(set); i++) {
            fl_scope s = fl_scope_begin();
            fl_data_sample b;
            if (!fl_data_get(set, i, &b)) return 1;
            fl_var *side = fv_mul(fl_nn_forward(neuron, fv_const(b.t[0])), fv_const(b.t[1]));
            if (fl_item(fv_value(side)) <= 0) {
                fl_optim_zero_grad(optim);
                fl_backward(fv_sum(fv_relu(fv_neg(side)), FL_ALL_AXES));
                fl_optim_step(optim);
                mistakes++;
            }
            fl_scope_end(&s);
        }
        all += mistakes;
        printf("epoch %d: %lld mistakes\n", epoch, (long long)mistakes);
    }
    fl_scope s = fl_scope_begin();
    puts("the line w x + b = 0:");
    fl_print(fv_value(fl_nn_get_param(neuron, "weight")));
    fl_print(fv_value(fl_nn_get_param(neuron, "bias")));
    fl_scope_end(&s);
    printf("%s after %d epochs and %lld mistakes\n", mistakes ? "not separated" : "separated", epoch,
           (long long)all);
    fl_optim_free(optim);
    fl_nn_free(neuron);
    fl_data_free(set);
    return mistakes != 0;
}
/* MIT licence: see LICENSE. */
