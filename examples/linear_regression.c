/* examples/linear_regression.c - fits a line

   cc -O2 -I. examples/linear_regression.c fl.c -lm -lpthread

   The smallest complete training: y = x w + b with noise, a data set in shuffled batches, a linear layer,
   SGD. The last line says how far from the truth it came to rest. */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>

enum { SAMPLES = 1000, FEATURES = 3, BATCH = 50, STEPS = 400 };

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *w = fl_from_host((float[]){2, -3.4f, 0.7f}, FL_SHAPE(FEATURES, 1), FL_F32);
    fl_tensor *x = fl_normal(FL_SHAPE(SAMPLES, FEATURES), 0, 1, FL_F32, NULL);
    fl_tensor *noise = fl_normal(FL_SHAPE(SAMPLES, 1), 0, 0.1, FL_F32, NULL);
    fl_tensor *y = fl_add(fl_add(fl_matmul(x, w), fl_num(4.2)), noise);

    fl_data_set *set = fl_data_tensors((fl_tensor *[]){x, y}, 2);
    set = fl_data_batch(fl_data_shuffle(set, 1), BATCH, true);
    fl_nn_module *model = fl_nn_linear(FEATURES, 1);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(model), .lr = 0.05);

    int64_t epoch = 0, index = 0;
    fl_data_sample batch;
    for (int step = 0; step < STEPS; step++) {
        fl_scope s = fl_scope_begin();
        if (!fl_data_next(set, &epoch, &index, &batch)) break;
        fl_var *loss = fv_mse_loss(fl_nn_forward(model, fv_const(batch.t[0])), fv_const(batch.t[1]), FL_MEAN);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        if (step % 80 == 79) printf("step %3d: loss %.4f\n", step + 1, fl_item(fv_value(loss)));
        fl_scope_end(&s);
    }

    fl_tensor *found = fv_value(fl_nn_get_param(model, "weight")),
              *bias = fv_value(fl_nn_get_param(model, "bias"));
    puts("weights and bias, found by SGD:");
    fl_print(found);
    fl_print(bias);
    const double apart = fmax(fl_item(fl_amax(fl_abs(fl_sub(found, fl_transpose(w, 0, 1))), FL_ALL_AXES)),
                              fabs(fl_item(bias) - 4.2));
    printf("the truth is %.4f away\n", apart);

    fl_optim_free(optim);
    fl_nn_free(model);
    fl_data_free(set);
    fl_scope_end(&all);
    return !(apart < 0.02);
}
/* MIT licence: see LICENSE. */
