/* examples/activation.c - an activation of your own, as one line of text, in a network for digits

   cc -O2 -I. examples/activation.c fl.c -lm -lpthread
   ./a.out [steps]

   The network is trained four times, on the cpu and on the naive backend (extend/naive.h), with the
   activation as text (fv_apply) and as ops on variables. The text runs in one pass over memory, forward and
   backward, and gives the same losses to the last bit. The last line says whether it did. */
#include "extend/naive.h"

#include "extend/training.h"

enum { BATCH = 8, MAX_STEPS = 1000 };

static fl_var *as_text(fl_var *x) {
    return fv_apply("(x) { if (x < 0) x = 0.5 * (exp(x) - 1); return x; }", &x, 1);
}

static fl_var *as_ops(fl_var *x) {
    fl_var *below = fv_mul(fv_num(0.5), fv_sub(fv_exp(x), fv_num(1)));
    return fv_where(fv_lt(x, fv_num(0)), below, x);
}

/* Where the text is better: exp(1000) is infinite, and times a gradient of 0 it is no number. */
static double slope_far_out(fl_var *(*f)(fl_var *x)) {
    fl_var *x = fv_param(fl_full(FL_SHAPE(1), 1000, FL_F32));
    fl_backward(fv_sum(f(x), FL_ALL_AXES));
    return fl_item(fv_grad(x));
}

static fl_var *check(fl_var *const *x, void *user) {
    (void)user;
    return as_text(x[0]);
}

static fl_vars forward_text(fl_nn_module *m, fl_vars in) {
    (void)m;
    return FL_VARS(as_text(in.v[0]));
}

static fl_vars forward_ops(fl_nn_module *m, fl_vars in) {
    (void)m;
    return FL_VARS(as_ops(in.v[0]));
}

static fl_nn_module *activation(bool text) {
    return fl_nn_function(text ? "Text" : "Ops", text ? forward_text : forward_ops, NULL, NULL);
}

/* A small version of the network of mnist.c. */
static fl_nn_module *net_of(bool text) {
    return fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, 1, 28, 28)), fl_nn_conv2d(1, 8, 5, .pad = FL_SAME),
                            activation(text), fl_nn_pool2d(2), fl_nn_conv2d(8, 16, 5, .pad = FL_SAME),
                            activation(text), fl_nn_pool2d(2), fl_nn_view(FL_SHAPE(-1, 7 * 7 * 16)),
                            fl_nn_linear(7 * 7 * 16, 64), activation(text), fl_nn_linear(64, 10),
                            fl_nn_log_softmax(1));
}

/* The losses of `steps` steps. */
static bool train(const char *backend, bool text, int64_t steps, double *loss) {
    if (!fl_backend_set_default(backend)) return false;
    fl_scope s = fl_scope_begin();
    digits d;
    fl_data_sample b;
    fl_seed(1);
    fl_nn_module *net = net_of(text);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.02, .momentum = 0.9);
    bool ok = digits_draw(BATCH, 1, &d);
    fl_data_set *set = ok ? digits_batches(d, 0, BATCH, BATCH, 0) : NULL;
    double fastest = INFINITY;
    for (int64_t i = 0; set && ok && i < steps; i++) {
        fl_scope step = fl_scope_begin();
        const double start = fl_data_now();
        ok = fl_data_get(set, 0, &b);
        fl_var *y = ok ? fv_nll_loss(fl_nn_forward(net, fv_const(b.t[0])), b.t[1]) : NULL;
        fl_optim_zero_grad(optim);
        ok = y && fl_backward(y) && fl_optim_step(optim);
        loss[i] = ok ? fl_item(fv_value(y)) : 0;
        fl_scope_end(&step);
        fastest = fmin(fastest, fl_data_now() - start);
    }
    ok = ok && set && !fl_error();
    if (ok)
        printf("%-6s as %s: loss %.6f -> %.6f, %.2f ms a step\n", backend, text ? "text" : "ops ", loss[0],
               loss[steps - 1], 1e3 * fastest);
    fl_data_free(set);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok;
}

int main(int argc, char **argv) {
    static double text[2][MAX_STEPS], ops[2][MAX_STEPS];
    static const char *const backend[2] = {"cpu", "naive"};
    int64_t steps = training_steps(argc, argv, 12);
    if (steps > MAX_STEPS) steps = MAX_STEPS;
    bool ok = fl_backend_use(fl_backend_naive(), NULL);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_uniform(FL_SHAPE(3, 4), -3, 3, FL_F64, NULL));
    ok = ok && fl_gradcheck(check, FV_LIST(x)) && fl_gradgradcheck(check, FV_LIST(x));
    printf("the gradient of the text and the gradient's are %s\n", ok ? "right" : fl_error());
    const double slope = slope_far_out(as_text);
    printf("slope at 1000: %g as text, %g as ops\n", slope, slope_far_out(as_ops));
    ok = ok && slope == 1;
    for (int i = 0; ok && i < 2; i++) {
        ok = train(backend[i], true, steps, text[i]) && train(backend[i], false, steps, ops[i]);
        ok = ok && text[i][steps - 1] < text[i][0] && !memcmp(text[i], ops[i], (size_t)steps * sizeof **text);
    }
    fl_scope_end(&s);
    if (fl_error()) fprintf(stderr, "activation: %s\n", fl_error());
    puts(ok ? "same bits" : "FAILED");
    return !ok;
}
/* MIT licence: see LICENSE. */
