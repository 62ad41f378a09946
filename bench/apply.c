/* bench/apply.c - functions as text (fl_apply), groups, optimizer steps: by the executor, compiled, in ops

   make bench-apply     (ARGS=elements of the large case; 16 M)
   The ways run in turn; the figures are the fastest of the rounds. */
#include "bench.h"
#include "fl_graph.h"

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

/* Fastest seconds of n calls of f in groups of deferred calls, of which only the result is kept. */
static double seconds_in_groups(function f, fl_var *x, fl_var *y, int n) {
    const double start = fl_data_now();
    fl_lazy(true);
    for (int i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *z = fl_keep(f(x, y)->value);
        fl_scope_end(&s);
        fl_eval();
        fl_drop(z);
    }
    fl_lazy(false);
    return (fl_data_now() - start) / n;
}

static void print(const char *figure, const double best[3], const char *other) {
    printf("%s\t%.4g\tus\tcompiled %.4g us, %s %.4g us: %.2f and %.2f times\n", figure, 1e6 * best[0],
           1e6 * best[1], other, 1e6 * best[2], best[2] / best[0], best[2] / best[1]);
    fflush(stdout);
}

static void compare(const char *what, function text, function ops, fl_var *x, fl_var *y, fl_tensor *dy,
                    int n) {
    double best[2][3] = {{INFINITY, INFINITY, INFINITY}, {INFINITY, INFINITY, INFINITY}};
    char figure[80];
    for (int round = 0; round < 7; round++)
        for (int way = 0; way < 3; way++) {
            fl_compile(way == 1 ? FL_COMPILE_NOW : FL_COMPILE_NEVER);
            best[0][way] = fmin(best[0][way], seconds_of(way < 2 ? text : ops, x, y, dy, n));
            if (!dy && way < 2) best[1][way] = fmin(best[1][way], seconds_in_groups(ops, x, y, n));
        }
    best[1][2] = best[0][2];
    for (int groups = 0; groups < (dy ? 1 : 2); groups++) {
        snprintf(figure, sizeof figure, "%s %s %lld", what, groups ? "in groups" : dy ? "gradient" : "value",
                 (long long)fl_numel(x->value));
        print(figure, best[groups], "ops");
    }
}

/* Adam (Kingma and Ba, 2015) in ops. */
static void adam_ops(fl_tensor *p, fl_tensor *g, fl_tensor *m, fl_tensor *v) {
    fl_scope s = fl_scope_begin();
    fl_tensor *m1 = fl_add(fl_mul(m, fl_num(0.9)), fl_mul(g, fl_num(0.1)));
    fl_tensor *v1 = fl_add(fl_mul(v, fl_num(0.999)), fl_mul(fl_mul(g, g), fl_num(0.001)));
    fl_tensor *by = fl_add(fl_sqrt(fl_div(v1, fl_num(0.3))), fl_num(1e-8));
    fl_tensor *p1 = fl_sub(p, fl_mul(fl_div(fl_div(m1, fl_num(0.7)), by), fl_num(1e-3)));
    fl_assign(m, m1), fl_assign(v, v1), fl_assign(p, p1);
    fl_scope_end(&s);
}

/* Adam as the step of an optimizer, by the executor and compiled, and in ops. */
static void compare_adam(int64_t n, int runs) {
    double best[3] = {INFINITY, INFINITY, INFINITY};
    char figure[80];
    fl_scope s = fl_scope_begin();
    fl_tensor *t[4];
    for (int k = 0; k < 4; k++) t[k] = fl_uniform(FL_SHAPE(n), 0, 1, FL_F32, NULL);
    fl_var *p = fv_param(t[0]);
    fl_optim *o = fl_optim_adam(FV_LIST(p), .lr = 1e-3);
    fv_set_grad(p, fv_const(t[1]));
    for (int round = 0; round < 7; round++)
        for (int way = 0; way < 3; way++) {
            fl_compile(way == 1 ? FL_COMPILE_NOW : FL_COMPILE_NEVER);
            if (way == 1 && !round) fl_optim_step(o);
            const double start = fl_data_now();
            for (int i = 0; i < runs; i++)
                if (way < 2) fl_optim_step(o);
                else adam_ops(t[0], t[1], t[2], t[3]);
            best[way] = fmin(best[way], (fl_data_now() - start) / runs);
        }
    snprintf(figure, sizeof figure, "adam step %lld", (long long)n);
    print(figure, best, "ops");
    fl_optim_free(o);
    fl_scope_end(&s);
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
        compare_adam(sizes[i], n);
    }
    fl_var *x = fv_const(fl_ones(FL_SHAPE(64), FL_F32));
    compare("add", one_text, fv_add, x, x, NULL, 20000);
    const fl_compile_counts c = fl_compile_stats();
    printf("kernels\t%lld\t\t%.0f ms by the compiler, %lld from the cache\n", (long long)c.compiled,
           1e3 * c.seconds, (long long)c.cached);
    fl_scope_end(&all);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
