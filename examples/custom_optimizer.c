/* examples/custom_optimizer.c - a custom optimizer: AdaBelief beside Adam

   cc -O2 -I. examples/custom_optimizer.c fl.c -lm -lpthread

   A kind of optimizer is a table: names of what it remembers and of its numbers, and a rule, which says as
   formulas what parameter and memory become. From these come the step, in one pass over memory, state that
   is allocated, checkpoints, groups and schedules. Here AdaBelief, whose step is long where the gradient is
   as expected and short where it surprises: Adam with (g - m)^2 instead of g^2. It is compared with the
   same written as a loop, then with Adam. (Zhuang et al., 2020: AdaBelief Optimizer.) */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>

/* m = beta1 m + (1 - beta1) g;  s = beta2 s + (1 - beta2) (g - m)^2 + eps
   p -= lr m / (1 - beta1^t) / (sqrt(s / (1 - beta2^t)) + eps)

   Words are those of fl/tensor/formula.h. `factor` is what gradients are to be multiplied with (of loss
   scaling and clipping), `t` counts the steps before this one; both come with every rule, as lr does. What
   occurs twice is computed once. */
#define G "MUL(factor, g)"
#define M "ADD(MUL(beta1, m), MUL(SUB(CONST(1), beta1), " G "))"
#define SURPRISE "SUB(" G ", " M ")"
#define S "ADD(ADD(MUL(beta2, s), MUL(SUB(CONST(1), beta2), MUL(" SURPRISE ", " SURPRISE "))), eps)"
#define UNBIASED(x, beta) "DIV(" x ", SUB(CONST(1), POW(" beta ", ADD(t, CONST(1)))))"
#define P "SUB(p, DIV(MUL(lr, " UNBIASED(M, "beta1") "), ADD(SQRT(" UNBIASED(S, "beta2") "), eps)))"

static fl_step_rule belief_rule = {.reads = "g", .writes = "p m s", .numbers = "factor t lr beta1 beta2 eps",
                                   .formula = P "," M "," S};
static const fl_optim_type belief_type = {.name = "adabelief", .state = {"exp_avg", "exp_avg_var"},
                                          .hyper = {"beta1", "beta2", "eps"},
                                          .limits = "ffn", /* f: in [0, 1), n: not negative */
                                          .rule = &belief_rule};

static fl_optim *optim_adabelief(fv_list params, double lr) {
    return fl_optim_new(&belief_type, params, lr, (double[]){0.9, 0.999, 1e-16});
}

/* The largest difference between ten steps of the rule and of a loop, on p^4 / 4. */
static double apart_from_loop(void) {
    enum { N = 4 };
    double p[N] = {1, -0.5, 0.25, 2}, m[N] = {0}, s[N] = {0}, found[N], most = 0;
    fl_var *x = fv_param(fl_from_host(p, FL_SHAPE(N), FL_F64));
    fl_optim *optim = optim_adabelief(FV_LIST(x), 0.1);
    for (int t = 1; t <= 10; t++) {
        fl_optim_zero_grad(optim);
        fl_backward(fv_sum(fv_div(fv_square(fv_square(x)), fv_num(4)), FL_ALL_AXES));
        fl_optim_step(optim);
        for (int i = 0; i < N; i++) {
            const double g = p[i] * p[i] * p[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            s[i] = 0.999 * s[i] + 0.001 * (g - m[i]) * (g - m[i]) + 1e-16;
            p[i] -= 0.1 * m[i] / (1 - pow(0.9, t)) / (sqrt(s[i] / (1 - pow(0.999, t))) + 1e-16);
        }
    }
    fl_to_host(fv_value(x), found, sizeof found);
    for (int i = 0; i < N; i++) most = fmax(most, fabs(found[i] - p[i]));
    fl_optim_free(optim);
    return most;
}

/* The loss at the end of a training: a wave, by a small net. */
static double trained(const char *name, fl_optim *(*make)(fv_list params, double lr)) {
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *x = fl_reshape(fl_linspace(-3, 3, 200, FL_F32), FL_SHAPE(200, 1));
    fl_tensor *y = fl_sin(fl_mul(x, fl_num(3)));
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(1, 32), fl_nn_tanh(), fl_nn_linear(32, 32),
                                         fl_nn_tanh(), fl_nn_linear(32, 1));
    fl_optim *optim = make(fl_nn_parameters(net), 5e-3);
    double last = NAN;
    printf("%-10s", name);
    for (int step = 1; step <= 600; step++) {
        fl_scope s = fl_scope_begin();
        fl_var *loss = fv_mse_loss(fl_nn_forward(net, fv_const(x)), fv_const(y), FL_MEAN);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        last = fl_item(fv_value(loss));
        if (step % 100 == 0) printf("  %.5f", last);
        fl_scope_end(&s);
    }
    putchar('\n');
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&all);
    return last;
}

static fl_optim *optim_adam(fv_list params, double lr) {
    return fl_optim_adam(params, .lr = lr);
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_scope all = fl_scope_begin();
    const double apart = apart_from_loop();
    fl_scope_end(&all);
    printf("the rule and the loop are %.1g apart after ten steps\n", apart);
    puts("loss after 100, 200, ... steps");
    const double adam = trained("Adam", optim_adam), belief = trained("AdaBelief", optim_adabelief);
    return !(apart < 1e-12 && adam < 0.05 && belief < 0.05);
}
/* MIT licence: see LICENSE. */
