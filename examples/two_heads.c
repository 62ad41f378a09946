/* examples/two_heads.c - domain adaptation: two heads on one trunk, a reversed gradient

   cc -O2 -I. examples/two_heads.c fl.c -lm -lpthread

   A classifier is trained on one domain, whose labels are known, and used in another, where they are not.
   Half of what it goes by means nothing there. So a second head on the same trunk learns to tell the domains
   apart, and its gradient is reversed on the way to the trunk: the head does its best, the trunk does its
   best against it, and what differs between the domains goes from what the first head sees. One loss, one
   backward pass, one optimizer. (Ganin et al., 2016: Domain-Adversarial Training of Neural Networks.) */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>

enum { SAMPLES = 1000, BATCH = 100, EPOCHS = 40, FEATURES = 8, TRUNK_WIDTH = 4, HIDDEN = 32 };
enum { TRUNK, CLASS, DOMAIN }; /* the net's children */

/* Points [n, FEATURES] and their class i64 [n]: two noisy traces of the class in the first domain, of which
   the second is a constant in the other; both mixed into all features. */
static void draw(bool other, fl_tensor *mix, fl_tensor **x, fl_tensor **y) {
    *y = fl_randint(FL_SHAPE(SAMPLES), 0, 2, NULL);
    fl_tensor *sign = fl_sub(fl_mul(fl_cast(*y, FL_F32), fl_num(2)), fl_num(1));
    fl_tensor *second = other ? fl_full_like(sign, 2) : sign;
    fl_tensor *trace = fl_stack((fl_tensor *[]){sign, second}, 2, 1);
    *x = fl_matmul(fl_add(trace, fl_normal(FL_SHAPE(SAMPLES, 2), 0, 0.5, FL_F32, NULL)), mix);
}

/* y = x, and dx = -strength dy */
static void reverse_back(fl_node *n, fl_var *dy) {
    const double strength = *(const double *)fv_args(n);
    fv_add_grad(n, 0, fv_mul(dy, fv_num(-strength)));
}

static fl_var *reversed(fl_var *x, double strength) {
    return fv_record_args("reversed", fv_value(x), reverse_back, FV_IN(x), FV_NONE, &strength,
                          sizeof strength);
}

/* Percent of x [n, FEATURES] that a head puts into class y. */
static double right(fl_nn_module *net, int head, fl_tensor *x, fl_tensor *y) {
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_var *features = fl_nn_forward(net->child[TRUNK], fv_const(x));
    fl_data_frame_error error = {0};
    fl_data_frame_error_add(&error, fv_value(fl_nn_forward(net->child[head], features)), y);
    fl_scope_end(&s);
    return fl_data_accuracy_percent(&error);
}

static fl_nn_module *make_net(void) {
    return fl_nn_module_list(fl_nn_linear(FEATURES, TRUNK_WIDTH), fl_nn_linear(TRUNK_WIDTH, 2),
                             fl_nn_sequential(fl_nn_linear(TRUNK_WIDTH, HIDDEN), fl_nn_relu(),
                                              fl_nn_linear(HIDDEN, 2)));
}

/* Trains on the first domain with its labels, and, if strength > 0, against the second head on both.
   Returns how many percent of the other domain's classes are right then. */
static double trained(double strength) {
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *mix = fl_normal(FL_SHAPE(2, FEATURES), 0, 1, FL_F32, NULL), *x[2], *y[2];
    for (int domain = 0; domain < 2; domain++) draw(domain, mix, &x[domain], &y[domain]);
    /* Batches of: points and classes of the first domain, points of the other. */
    fl_data_set *set = fl_data_tensors((fl_tensor *[]){x[0], y[0], x[1]}, 3);
    set = fl_data_batch(fl_data_shuffle(set, 1), BATCH, true);
    fl_tensor *half = fl_zeros(FL_SHAPE(BATCH), FL_I64), *rest = fl_ones(FL_SHAPE(BATCH), FL_I64);
    fl_tensor *domains = fl_concat((fl_tensor *[]){half, rest}, 2, 0);
    fl_nn_module *net = make_net();
    /* A short memory: opponents change. With beta1 0.9 they circle each other. */
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 2e-3, .beta1 = 0.5);

    fl_data_sample b;
    for (int64_t epoch = 0, index = 0; epoch < EPOCHS;) {
        fl_scope s = fl_scope_begin();
        if (!fl_data_next(set, &epoch, &index, &b)) break;
        fl_tensor *both = fl_concat((fl_tensor *[]){b.t[0], b.t[2]}, 2, 0);
        fl_var *features = fl_nn_forward(net->child[TRUNK], fv_const(both));
        fl_var *first = fl_nn_forward(net->child[CLASS], fv_slice(features, 0, 0, BATCH, 1));
        fl_var *loss = fv_cross_entropy(first, b.t[1]);
        fl_var *guess = fl_nn_forward(net->child[DOMAIN], reversed(features, strength));
        loss = fv_add(loss, fv_cross_entropy(guess, domains));
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        fl_scope_end(&s);
    }

    const double first = right(net, CLASS, x[0], y[0]), other = right(net, CLASS, x[1], y[1]);
    fl_tensor *domain = fl_concat((fl_tensor *[]){fl_full_like(y[0], 0), fl_full_like(y[1], 1)}, 2, 0);
    printf("%s: classes %5.1f %% right in the first domain, %5.1f %% in the other; domains %5.1f %%\n",
           strength > 0 ? "reversed" : "alone   ", first, other,
           right(net, DOMAIN, fl_concat(x, 2, 0), domain));
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_data_free(set);
    fl_scope_end(&all);
    return other;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    const double alone = trained(0), against = trained(2);
    return !(alone < 75 && against > 90);
}
/* MIT licence: see LICENSE. */
