/* examples/custom_gradient.c - gradients written by hand

   cc -O2 -I. examples/custom_gradient.c fl.c -lm -lpthread

   fv_record makes a variable of a value that was computed in any way, and of a function that computes
   its gradient. There are two reasons to do that: the derivative that follows from the formula is right but
   useless as numbers (log(1 + exp(x)) for large x), or it does not exist and another replaces it (rounding).
   Both are tried with fl_gradcheck, which accepts the first and names the second. */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>

/* log(1 + exp(x)), as one writes it: where exp(x) overflows the gradient is inf / inf. */
static fl_var *plain_log1pexp(fl_var *x) {
    return fv_log(fv_add(fv_num(1), fv_exp(x)));
}

/* dx = dy sigmoid(x). Written with variables, so that it has a gradient too. */
static void log1pexp_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_mul(dy, fv_sigmoid(fv_saved(n, 0))));
}

/* max(x, 0) + log1p(exp(-|x|)), where nothing overflows; x is an input, and backward reads it. */
static fl_var *log1pexp(fl_var *x) {
    fl_tensor *t = fv_value(x), *far = fl_neg(fl_abs(t));
    fl_tensor *y = fl_add(fl_maximum(t, fl_num(0)), fl_log1p(fl_exp(far)));
    return fv_record(y, log1pexp_back, FV_IN(x), FV_SAVE(x));
}

/* The slope of steps is 0 or nowhere: let it be 1 ("straight through": Bengio et al., 2013), within limits
   that are arguments. */
typedef struct limits {
    double low, high;
} limits;

static void round_back(fl_node *n, fl_var *dy) {
    const limits *l = fv_args(n);
    fl_tensor *x = fv_value(fv_saved(n, 0));
    fl_tensor *in = fl_bitwise_and(fl_ge(x, fl_num(l->low)), fl_le(x, fl_num(l->high)));
    fv_add_grad(n, 0, fv_mul(dy, fv_const(fl_cast(in, x->dtype))));
}

static fl_var *round_through(fl_var *x, double low, double high) {
    fl_tensor *y = fl_rint(fl_clamp(fv_value(x), fl_num(low), fl_num(high)));
    const limits l = {low, high};
    return fv_record_args("round_through", y, round_back, FV_IN(x), FV_SAVE(x), &l, sizeof l);
}

/* For fl_gradcheck. */
static fl_var *check_log1pexp(fl_var *const *x, void *user) {
    (void)user;
    return log1pexp(x[0]);
}
static fl_var *check_round(fl_var *const *x, void *user) {
    (void)user;
    return round_through(x[0], -4, 4);
}

/* The gradient of f at 1000, in f32. */
static double slope_far_out(fl_var *(*f)(fl_var *x)) {
    fl_var *x = fv_param(fl_full(FL_SHAPE(1), 1000, FL_F32));
    fl_backward(fv_sum(f(x), FL_ALL_AXES));
    return fl_item(fv_grad(x));
}

/* Looks for whole weights, of which only x w is seen, by gradient descent through the rounding, or through
   fv_rint, whose gradient is 0. Returns how many are right. */
static int weights_found(bool through) {
    enum { N = 6 };
    const float truth[N] = {3, -2, 0, 1, -4, 2};
    float found[N];
    fl_tensor *x = fl_normal(FL_SHAPE(64, N), 0, 1, FL_F32, NULL);
    fl_tensor *y = fl_matmul(x, fl_from_host(truth, FL_SHAPE(N, 1), FL_F32));
    fl_var *w = fv_param(fl_zeros(FL_SHAPE(N, 1), FL_F32));
    fl_optim *optim = fl_optim_sgd(FV_LIST(w), .lr = 0.02);
    for (int i = 0; i < 200; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *whole = through ? round_through(w, -4.4, 4.4) : fv_rint(w);
        fl_optim_zero_grad(optim);
        fl_backward(fv_mse_loss(fv_matmul(fv_const(x), whole), fv_const(y), FL_MEAN));
        fl_optim_step(optim);
        fl_scope_end(&s);
    }
    fl_to_host(fl_rint(fv_value(w)), found, sizeof found);
    fl_optim_free(optim);
    int right = 0;
    for (int i = 0; i < N; i++) right += found[i] == truth[i];
    return right;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_var *x = fv_param(fl_uniform(FL_SHAPE(3, 4), -3, 3, FL_F64, NULL));
    const bool right =
        fl_gradcheck(check_log1pexp, FV_LIST(x)) && fl_gradgradcheck(check_log1pexp, FV_LIST(x));
    printf("log1pexp: its gradient and the gradient's are %s\n", right ? "right" : fl_error());
    const double plain = slope_far_out(plain_log1pexp), own = slope_far_out(log1pexp);
    printf("slope at 1000: %g as one writes it, %g by hand\n", plain, own);

    const bool accepted = fl_gradcheck(check_round, FV_LIST(x)); /* not raised, but pending */
    printf("round_through: %s\n", accepted ? "right?" : fl_error());
    fl_error_clear();
    const int without = weights_found(false), with = weights_found(true);
    printf("whole weights found: %d of 6 by the gradient of rint, %d straight through\n", without, with);
    fl_scope_end(&all);
    return !(right && isnan(plain) && own == 1 && !accepted && without < 6 && with == 6);
}
/* MIT licence: see LICENSE. */
