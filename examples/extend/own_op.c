/* examples/extend/own_op.c - trains a network with the op of own_op.h

   cc -O2 -I. examples/extend/own_op.c fl.c -lm -lpthread

   A periodic function, which nets of tanh or relu do not continue: the last line is the error outside of
   what was seen. */
#include "own_op.h"
#include "../arguments.h"
#include <stdio.h>

static fl_var *activation(fl_var *x) {
    return snake_var(x, 1);
}

/* sin(x) + x for x in [low, high), n of them */
static fl_tensor *points(double low, double high, int64_t n) {
    return fl_reshape(fl_linspace(low, high, n, FL_F32), FL_SHAPE(n, 1));
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    if (!snake_register()) return 1;
    fl_seed(1);
    fl_nn_module *net =
        fl_nn_sequential(fl_nn_linear(1, 64), fl_nn_activation("Snake", activation), fl_nn_linear(64, 1));
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.01);
    for (int i = 0; i < 1000; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = points(-5, 5, 100);
        fl_var *loss = fv_mse_loss(fl_nn_forward(net, fv_const(x)), fv_const(fl_add(x, fl_sin(x))), FL_MEAN);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        if (i % 250 == 249) printf("step %d: loss %.5f\n", i + 1, fl_item(fv_value(loss)));
        fl_scope_end(&s);
    }
    fl_tensor *x = points(5, 7, 20), *y = fv_value(fl_nn_forward(net, fv_const(x)));
    fl_tensor *error = fl_mean(fl_abs(fl_sub(y, fl_add(x, fl_sin(x)))), FL_ALL_AXES);
    printf("mean error on [5, 7): %.3f\n", fl_item(error));
    fl_optim_free(optim);
    fl_nn_free(net);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
