/* examples/xor.c - learns exclusive or

   cc -O2 -I. examples/xor.c fl.c -lm -lpthread

   What no single linear layer can: two of them with a nonlinearity between. The table has four rows, so every
   step sees all of them. */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_var *x = fv_const(fl_from_host((float[]){0, 0, 0, 1, 1, 0, 1, 1}, FL_SHAPE(4, 2), FL_F32));
    fl_var *y = fv_const(fl_from_host((float[]){0, 1, 1, 0}, FL_SHAPE(4, 1), FL_F32));
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(2, 8), fl_nn_tanh(), fl_nn_linear(8, 1));
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.05);

    for (int i = 0; i < 300; i++) {
        fl_scope s = fl_scope_begin(); /* owns every temporary of the step */
        fl_var *loss = fv_binary_cross_entropy_with_logits(fl_nn_forward(net, x), y, FL_MEAN);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        if (i % 75 == 74) printf("step %3d: loss %.4f\n", i + 1, fl_item(fv_value(loss)));
        fl_scope_end(&s);
    }

    fl_tensor *p = fl_sigmoid(fv_value(fl_nn_forward(net, x)));
    puts("probability of 1 for 00, 01, 10, 11:");
    fl_print(p);
    const double worst = fl_item(fl_amax(fl_abs(fl_sub(p, fv_value(y))), FL_ALL_AXES));
    printf("largest error %.3f\n", worst);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&all);
    return !(worst < 0.2);
}
/* MIT licence: see LICENSE. */
