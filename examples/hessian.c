/* examples/hessian.c - Hessian-vector products of a network

   cc -O2 -I. examples/hessian.c fl.c -lm -lpthread

   The Hessian H of a loss by all parameters of a net is too large to write down; H v is one more pass.
   Reverse over reverse differentiates g . v, the gradient along a direction, once more backward;
   forward over reverse takes the derivative of g in the direction v. Both are shown and compared. Power
   iteration with H v then finds H's largest eigenvalue, the sharpness of the loss: plain gradient
   descent is stable with steps below 2 / sharpness only. */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>

enum { PARAMETERS = 6 };

static double dot(fl_var *const *a, fl_var *const *b) {
    double sum = 0;
    for (int i = 0; i < PARAMETERS; i++)
        sum += fl_item(fl_sum(fl_mul(fv_value(a[i]), fv_value(b[i])), FL_ALL_AXES));
    return sum;
}

/* a = b / |b|, of values alone, in place */
static void unit_of(fl_var **a, fl_var *const *b) {
    const double norm = sqrt(dot(b, b));
    for (int i = 0; i < PARAMETERS; i++)
        fl_assign(fv_value(a[i]), fl_div(fv_value(b[i]), fl_num(norm)));
}

/* hv = H v: the gradient g with its graph, then g . v, whose gradient is H v. */
static bool reverse_over_reverse(fl_var *loss, fv_list p, fl_var **v, fl_var **hv) {
    fl_var *g[PARAMETERS];
    return fl_grads(FV_LIST(loss), p, g, .create_graph = true) &&
           fl_grads(fv_list_of(p.n, g), p, hv, .given = fv_list_of(p.n, v), .retain_graph = true);
}

/* hv = H v: the derivative of g in the direction v. */
static bool forward_over_reverse(fl_var *loss, fv_list p, fl_var **v, fl_var **hv) {
    fl_var *g[PARAMETERS];
    return fl_grads(FV_LIST(loss), p, g, .create_graph = true) &&
           fl_jvps(fv_list_of(p.n, g), p, fv_list_of(p.n, v), hv, false);
}

static double largest_difference(fl_var *const *a, fl_var *const *b) {
    double most = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        fl_tensor *d = fl_abs(fl_sub(fv_value(a[i]), fv_value(b[i])));
        most = fmax(most, fl_item(fl_amax(d, FL_ALL_AXES)));
    }
    return most;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(2, 16, .dtype = FL_F64), fl_nn_tanh(),
                                         fl_nn_linear(16, 16, .dtype = FL_F64), fl_nn_tanh(),
                                         fl_nn_linear(16, 1, .dtype = FL_F64));
    const fv_list p = fl_nn_parameters(net);
    fl_scope all = fl_scope_begin();
    fl_var *x = fv_const(fl_uniform(FL_SHAPE(64, 2), -1, 1, FL_F64, NULL)); /* y = x0 x1 */
    fl_tensor *y = fl_mul(fl_slice(fv_value(x), 1, 0, 1, 1), fl_slice(fv_value(x), 1, 1, 2, 1));
    fl_var *v[PARAMETERS], *hv[PARAMETERS], *same[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++)
        v[i] = fv_const(fl_normal(fl_shape_of(fv_value(p.v[i])), 0, 1, FL_F64, NULL));
    unit_of(v, v);
    double sharpness = 0, apart = 0;
    for (int i = 0; i < 30 && !fl_error(); i++) {
        fl_scope s = fl_scope_begin();
        fl_var *loss = fv_mse_loss(fl_nn_forward(net, x), fv_const(y), FL_MEAN);
        if (reverse_over_reverse(loss, p, v, hv) && forward_over_reverse(loss, p, v, same)) {
            apart = fmax(apart, largest_difference(hv, same));
            sharpness = dot(v, hv);
            unit_of(v, hv);
        }
        fl_scope_end(&s);
    }
    printf("sharpness %.6f: gradient descent is stable below lr %.3f\n", sharpness, 2 / sharpness);
    printf("reverse over reverse and forward over reverse differ by %.1g at most\n", apart);
    fl_scope_end(&all);
    fl_nn_free(net);
    return fl_error() || !(apart < 1e-12) || !(sharpness > 0);
}
/* MIT licence: see LICENSE. */
