/* examples/extend/own_op.h - a fused op outside of fl: snake(x) = x + sin(a x)^2 / a

   Kernel, composition, gradient and registration; fl is not edited, and only files that include this
   one are compiled again. Every backend has the op from then on: the cpu by the kernel, cuda by that of
   own_op.cu if it is linked, others by the composition, so that an overridden sin is seen too. (Ziyin et al., 2020: Neural Networks Fail
   to Learn Periodic Functions.) */
#ifndef OWN_OP_H
#define OWN_OP_H
#include "../../fl_backend.h"
#include "../../fl.h"
#include <math.h>

typedef struct snake_args {
    double a; /* not 0 */
} snake_args;
static fl_op op_snake;

/* y[i] = snake(x[i]) for n elements: one pass over memory instead of four. */
static void snake_f32(void *const p[], int64_t n, const void *args) {
    const float *x = p[1], a = (float)((const snake_args *)args)->a;
    float *y = p[0];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + sinf(a * x[i]) * sinf(a * x[i]) / a;
}
static void snake_f64(void *const p[], int64_t n, const void *args) {
    const double *x = p[1], a = ((const snake_args *)args)->a;
    double *y = p[0];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + sin(a * x[i]) * sin(a * x[i]) / a;
}
static bool snake_kernel(const fl_backend *self, const fl_call *c) {
    (void)self;
    return fl_cpu_loop(c, c->in[0]->dtype == FL_F64 ? snake_f64 : snake_f32, c->args);
}

static bool snake_compose(const fl_call *c, fl_tensor **y) {
    fl_tensor *x = c->in[0], *a = fl_num(((const snake_args *)c->args)->a);
    y[0] = fl_add(x, fl_div(fl_square(fl_sin(fl_mul(x, a))), a));
    return y[0] != NULL;
}

/* dx = dy (1 + sin(2 a x)) */
static void snake_back(fl_node *n, fl_var *dy) {
    const double a = ((const snake_args *)fv_args(n))->a;
    fl_var *slope = fv_add(fv_sin(fv_mul(fv_saved(n, 0), fv_num(2 * a))), fv_num(1));
    fv_add_grad(n, 0, fv_mul(dy, slope));
}

/* x a float; NULL after an error. */
static fl_tensor *snake(fl_tensor *x, double a) {
    if (fl_is_null_arg("snake", x) || !(x = fl_materialise(x))) return NULL;
    if (!fl_dtype_is_float(x->dtype) || a == 0)
        return fl_err_null("snake: a %g, x %s", a, fl_dtype_name(x->dtype));
    return fl_call_into(op_snake, fl_out_like(x, x->dtype), x, NULL, &(snake_args){a});
}

static fl_var *snake_var(fl_var *x, double a) {
    return fv_record_op(op_snake, snake(fv_value(x), a), FV_IN(x), FV_SAVE(x), &(snake_args){a});
}

/* Of own_op.cu; NULL in programs without it. */
extern bool snake_on_cuda(fl_op op) __attribute__((weak));

/* Before other threads start. */
static bool snake_register(void) {
    static const fl_op_info info = {.name = "snake",
                                    .args_size = sizeof(snake_args),
                                    .uses = "add div mul sin square",
                                    .compose = snake_compose,
                                    .gradient = snake_back};
    fl_backend cpu = *fl_backend_at(fl_backend_index("cpu"));
    op_snake = fl_op_register(&info);
    if (snake_on_cuda && !snake_on_cuda(op_snake)) return false;
    return fl_backend_set(&cpu, op_snake, snake_kernel, FL_SLOT_NARROW) && fl_backend_use(&cpu, NULL);
}

/* What the suites try, and what is right: make conformance gradcheck OPS_H=examples/extend/own_op.h
   (own_op: tests/backends.h) */
#ifdef OWN_OPS
static fl_var *snake_call(fl_var **x) { return snake_var(x[0], 1.5); }

static void snake_expect(double *const *x, double *y) {
    for (int i = 0; i < 24; i++) y[i] = x[0][i] + sin(1.5 * x[0][i]) * sin(1.5 * x[0][i]) / 1.5;
}

static const own_op own_ops[] = {
    {"snake", snake_register, snake_call, 1, {{2, {3, 8}}}, {2, {3, 8}}, snake_expect, .slack = 8},
    {"snake", snake_register, snake_call, 1, {{3, {2, 3, 4}}}, {3, {2, 3, 4}}, snake_expect, .slack = 8},
};
#endif
#endif

/* MIT licence: see LICENSE. */
