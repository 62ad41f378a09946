/* bench/apply.c - functions written as text (fl_apply) beside the same in ops: values, gradients, small calls

   make bench-apply     (ARGS=elements of the large case; 16 M)
   Each pair runs in turn; the figures are the fastest of the rounds. */
#include "bench.h"

#include <math.h>

typedef fl_var *(*function)(fl_var *x, fl_var *y);

static fl_var *chain_text(fl_var *x, fl_var *y) {
    return fv_apply("(x, y) { float t = x * y + 1; t = t * t - x; t = maximum(t * 0.5, y);"
                    " t = abs(t) + t * 0.1; return -t; }", (fl_var *[]){x, y}, 2);
}
static fl_var *chain_ops(fl_var *x, fl_var *y) {
    fl_var *t = fv_add(fv_mul(x, y), fv_num(1));
    t = fv_sub(fv_mul(t, t), x);
    t = fv_maximum(fv_mul(t, fv_num(0.5)), y);
    return fv_neg(fv_add(fv_abs(t), fv_mul(t, fv_num(0.1))));
}
static fl_var *gelu_text(fl_var *x, fl_var *y) {
    (void)y;
    return fv_apply("(x) { float u = x * x * (x * 0.044715); u = (x + u) * 0.7978845608;"
                    " return x * 0.5 * (tanh(u) + 1); }", &x, 1);
}
static fl_var *gelu_ops(fl_var *x, fl_var *y) {
    fl_var *u = fv_mul(fv_mul(x, x), fv_mul(x, fv_num(0.044715)));
    (void)y;
    u = fv_mul(fv_add(x, u), fv_num(0.7978845608));
    return fv_mul(fv_mul(x, fv_num(0.5)), fv_add(fv_tanh(u), fv_num(1)));
}
static fl_var *one_text(fl_var *x, fl_var *y) {
    return fv_apply("(x, y) { return x + y; }", (fl_var *[]){x, y}, 2);
}

/* Fastest seconds of n calls of f, and with a gradient of backward alone too. */
static double seconds_of(function f, fl_var *x, fl_var *y, fl_tensor *dy, int n) {
    double spent = 0;
    for (int i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        double start = fl_data_now();
        fl_var *z = f(x, y);
        if (dy) {
            start = fl_data_now();
            fl_backward(z, .grad = dy);
        }
        spent += fl_data_now() - start;
        fv_zero_grad(x), fv_zero_grad(y);
        fl_scope_end(&s);
    }
    return spent / n;
}

static void compare(const char *what, function text, function ops, fl_var *x, fl_var *y, fl_tensor *dy,
                    int n) {
    double best[2] = {INFINITY, INFINITY};
    char figure[80];
    for (int round = 0; round < 7; round++) {
        best[0] = fmin(best[0], seconds_of(text, x, y, dy, n));
        best[1] = fmin(best[1], seconds_of(ops, x, y, dy, n));
    }
    snprintf(figure, sizeof figure, "%s %s %lld", what, dy ? "gradient" : "value",
             (long long)fl_numel(x->value));
    printf("%s\t%.4g\tus\tops %.4g us, %.2f times\n", figure, 1e6 * best[0], 1e6 * best[1],
           best[1] / best[0]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const int64_t sizes[] = {argc > 1 ? atoll(argv[1]) : 1 << 24, 1 << 14};
    fl_scope all = fl_scope_begin();
    for (int i = 0; i < 2; i++) {
        const int n = sizes[i] > 1 << 20 ? 2 : 500;
        fl_tensor *t[3];
        for (int k = 0; k < 3; k++) t[k] = fl_normal(FL_SHAPE(sizes[i]), 0, 1, FL_F32, NULL);
        fl_var *x = fv_param(t[0]), *y = fv_param(t[1]), *a = fv_const(t[0]), *b = fv_const(t[1]);
        compare("chain", chain_text, chain_ops, a, b, NULL, n);
        compare("gelu", gelu_text, gelu_ops, a, b, NULL, n);
        compare("chain", chain_text, chain_ops, x, y, t[2], n);
        compare("gelu", gelu_text, gelu_ops, x, y, t[2], n);
    }
    fl_var *x = fv_const(fl_ones(FL_SHAPE(64), FL_F32));
    compare("add", one_text, fv_add, x, x, NULL, 20000);
    fl_scope_end(&all);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
