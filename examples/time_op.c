/* examples/time_op.c - times custom kernels and a fused op beside the built-in ones

   cc -O2 -I. examples/time_op.c fl.c -lm -lpthread

   Custom kernels instead of two of fl's, and the fused op of examples/extend/own_op.h beside the same as a
   composition. Another kernel for an op is a slot of the backend's table: the call is the same, whose table
   is in use is all that changes. How to compare: first the results, then the times, round by round one after
   the other, so that both meet the same weather; the best round counts, as whatever disturbs only adds. A
   small tensor shows what a call costs, a large one what memory gives. fl's kernels use all threads, these
   one: FL_THREADS=1 ./time_op compares the loops alone.

   ./time_op [ROUNDS] */
#include "arguments.h"
#include "extend/own_op.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL = 1 << 12, LARGE = 1 << 20 };

static int64_t own_calls; /* of the slots below */

/* What the slots begin with: a slot gets checked operands, and makes its output. */
static bool begin(const fl_call *c, int64_t *n, const float **x, float **y) {
    if (c->in[0]->dtype != FL_F32 || !fl_is_contiguous(c->in[0]))
        return fl_fail("time_op: %s, or has strides", fl_dtype_name(c->in[0]->dtype));
    if (!fl_out_make(c->out[0])) return false;
    *n = fl_numel(c->in[0]);
    *x = fl_data(c->in[0]);
    *y = fl_data(c->out[0]);
    own_calls++;
    return true;
}

static bool own_relu(const fl_backend *self, const fl_call *c) {
    int64_t n;
    const float *x;
    float *y;
    (void)self;
    if (!begin(c, &n, &x, &y)) return false;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0;
    return true;
}

static bool own_tanh(const fl_backend *self, const fl_call *c) {
    int64_t n;
    const float *x;
    float *y;
    (void)self;
    if (!begin(c, &n, &x, &y)) return false;
    for (int64_t i = 0; i < n; i++) y[i] = tanhf(x[i]);
    return true;
}

static fl_tensor *fused_snake(fl_tensor *x) {
    return fv_value(snake_var(fv_const(x), 1)); /* as nets call it */
}
static fl_tensor *composed_snake(fl_tensor *x) {
    return fl_add(x, fl_square(fl_sin(x)));
}

/* One of the two sides: a function, run with that table in use. */
typedef struct side {
    const fl_backend *table;
    fl_tensor *(*run)(fl_tensor *x);
} side;

/* Seconds of one call. */
static double timed(const side *s, fl_tensor *x, int repeat) {
    fl_backend_use(s->table, NULL);
    const double start = fl_data_now();
    for (int i = 0; i < repeat; i++) {
        fl_scope scope = fl_scope_begin();
        s->run(x);
        fl_scope_end(&scope);
    }
    return (fl_data_now() - start) / repeat;
}

static double largest_difference(const side *a, const side *b, fl_tensor *x) {
    fl_backend_use(a->table, NULL);
    fl_tensor *y = a->run(x);
    fl_backend_use(b->table, NULL);
    fl_tensor *z = b->run(x);
    fl_backend_use(a->table, NULL);
    return fl_item(fl_amax(fl_abs(fl_sub(y, z)), FL_ALL_AXES));
}

/* A line of the table; false if the results differ. */
static bool compare(const char *name, const side *ours, const side *own, int64_t n, int rounds) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_to(fl_uniform(FL_SHAPE(n), -4, 4, FL_F32, NULL), "cpu");
    const double apart = largest_difference(ours, own, x);
    double best[2] = {HUGE_VAL, HUGE_VAL};
    for (int r = 0; r < rounds; r++) {
        best[0] = fmin(best[0], timed(ours, x, (int)(LARGE / n)));
        best[1] = fmin(best[1], timed(own, x, (int)(LARGE / n)));
    }
    fl_backend_use(ours->table, NULL);
    fl_scope_end(&s);
    const double bytes = 2 * 4 * (double)n; /* read and written at least */
    printf("%-6s %8lld   %7.3f %6.1f   %7.3f %6.1f   %5.2f   %.1g\n", name, (long long)n,
           1e9 * best[0] / (double)n, 1e-9 * bytes / best[0], 1e9 * best[1] / (double)n,
           1e-9 * bytes / best[1], best[1] / best[0], apart);
    return apart < 2e-6;
}

int main(int argc, char **argv) {
    arguments_help(argc, argv, "[ROUNDS]", NULL);
    const int rounds = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 5;
    if (!snake_register()) return 1;
    fl_seed(1);
    static fl_backend table, changed;
    table = changed = *fl_backend_at(fl_backend_index("cpu"));
    if (!fl_backend_override(&changed, FL_OP_relu, own_relu)) return 1;
    if (!fl_backend_override(&changed, FL_OP_tanh, own_tanh)) return 1;
    const struct {
        const char *name;
        side ours, own;
    } row[] = {{"relu", {&table, fl_relu}, {&changed, fl_relu}},
               {"tanh", {&table, fl_tanh}, {&changed, fl_tanh}},
               {"snake", {&table, composed_snake}, {&table, fused_snake}}};
    bool same = true;
    puts("                       ours               own\n"
         "op     elements   ns/elem   GB/s   ns/elem   GB/s   ratio   largest difference");
    for (int i = 0; i < 6; i++)
        same &= compare(row[i / 2].name, &row[i / 2].ours, &row[i / 2].own, i % 2 ? LARGE : SMALL, rounds);
    return !(same && own_calls > 0);
}
/* MIT licence: see LICENSE. */
