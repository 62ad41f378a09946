/* examples/extend/int4.c - trains a classifier in f32, stores its weights as int4, compares the two

   cc -O2 -I. examples/extend/int4.c fl.c -lm -lpthread

   The classes are those of a random network. The program fails if a weight is further off than half a step of
   its block, or if the accuracy falls by more than two points. */
#include "int4.h"
#include "../arguments.h"

#include <stdio.h>

enum { INPUTS = 64, HIDDEN = 256, CLASSES = 4, TRAINED = 4096, TESTED = 2048, BATCH = 128 };

static fl_nn_module *network(void) {
    return fl_nn_sequential(fl_nn_linear(INPUTS, HIDDEN), fl_nn_relu(), fl_nn_linear(HIDDEN, CLASSES));
}

/* Class of each row of x, as the network says. */
static fl_tensor *classes(fl_nn_module *net, fl_tensor *x) {
    return fl_argmax(fv_value(fl_nn_forward(net, fv_const(x))), 1, false);
}

static double accuracy(fl_nn_module *net, fl_tensor *x, fl_tensor *y) {
    return 100 * fl_item(fl_mean(fl_cast(fl_eq(classes(net, x), y), FL_F32), FL_ALL_AXES));
}

static void train(fl_nn_module *net, fl_tensor *x, fl_tensor *y) {
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.002);
    for (int64_t i = 0; i < 10 * TRAINED / BATCH; i++) {
        fl_scope s = fl_scope_begin();
        const int64_t at = i * BATCH % TRAINED;
        fl_var *logits = fl_nn_forward(net, fv_const(fl_narrow(x, 0, at, BATCH)));
        fl_optim_zero_grad(optim);
        fl_backward(fv_cross_entropy(logits, fl_narrow(y, 0, at, BATCH)));
        fl_optim_step(optim);
        fl_scope_end(&s);
    }
    fl_optim_free(optim);
}

/* Largest distance of packed numbers from w, in steps of their block. */
static double error_in_steps(fl_tensor *w, fl_dtype int4) {
    const int64_t blocks = fl_numel(w) / INT4_BLOCK;
    fl_tensor *x = fl_reshape(w, FL_SHAPE(blocks, INT4_BLOCK));
    fl_tensor *off = fl_abs(fl_sub(fl_cast(fl_cast(x, int4), FL_F32), x));
    fl_tensor *step = fl_div(fl_amax(fl_abs(x), FL_AXES_KEEP(1)), fl_num(7));
    return fl_item(fl_amax(fl_div(off, step), FL_ALL_AXES));
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    const fl_dtype int4 = int4_dtype();
    fl_seed(1);
    fl_nn_module *teacher = network(), *net = network();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(TRAINED + TESTED, INPUTS), 0, 1, FL_F32, NULL);
    fl_tensor *y = classes(teacher, x);
    fl_tensor *test_x = fl_narrow(x, 0, TRAINED, TESTED), *test_y = fl_narrow(y, 0, TRAINED, TESTED);
    train(net, x, y);
    fl_nn_train(net, false);

    fl_tensor *w = fv_value(fl_nn_get_param(net, "0.weight"));
    const double steps = error_in_steps(w, int4), before = accuracy(net, test_x, test_y);
    const double bytes = (double)fl_numel(w) * 4;
    bool ok = fl_nn_store(net, int4); /* the weights of linear layers; biases stay f32 */
    const double after = accuracy(net, test_x, test_y);
    w = fv_value(fl_nn_get_param(net, "0.weight"));
    const double small = (double)fl_numel(w) * (double)fl_dtype_size(w->dtype);

    printf("first weight: %.0f bytes as f32, %.0f as int4; largest error %.3f steps\n", bytes, small, steps);
    printf("accuracy on %d rows: %.2f %% as f32, %.2f %% as int4\n", TESTED, before, after);
    ok = ok && steps < 0.51 && before > 60 && after > before - 2;
    fl_scope_end(&s);
    fl_nn_free(teacher), fl_nn_free(net);
    if (fl_error()) fprintf(stderr, "int4: %s\n", fl_error());
    return !ok;
}
/* MIT licence: see LICENSE. */
