/* test_autograd.c - the tape: life time, accumulation, hooks, versions, errors, double backward */
#include "../fl_all.h"
#include "test.h"

#include <pthread.h>
#include <sys/resource.h>

/* ---- helpers ---- */

static fl_tensor *tensor(fl_shape shape, const double *v) { return fl_from_host(v, shape, FL_F64); }

#define TENSOR(shape, ...) tensor(shape, (double[]){__VA_ARGS__})
#define PARAM(shape, ...) fv_param(TENSOR(shape, __VA_ARGS__))

/* Some numbers between -2 and 2, the same on every call. */
static fl_tensor *sample(fl_shape shape, uint64_t key) {
    fl_rng rng = {key, 0};
    return fl_uniform(shape, -2, 2, FL_F64, &rng);
}

static double element(fl_tensor *t, int64_t i) {
    double v[1024];
    fl_scope s = fl_scope_begin();
    fl_tensor *d = fl_cast(t, FL_F64);
    bool ok =
        d && fl_numel(d) <= 1024 && i < fl_numel(d) && fl_to_host(d, v, (size_t)fl_numel(d) * 8);
    fl_scope_end(&s);
    return ok ? v[i] : NAN;
}

static bool has_values(fl_tensor *t, int64_t n, const double *want, double tol, const char *file,
                       int line) {
    bool ok = t && fl_numel(t) == n;
    if (!ok) test__fail(file, line, "number of elements", t ? "differs" : "no tensor");
    for (int64_t i = 0; ok && i < n; i++)
        ok = test__near(element(t, i), want[i], tol, file, line, "element");
    return ok;
}

#define CHECK_VALUES(t, tol, ...)                                                                 \
    has_values((t), (int64_t)(sizeof((double[]){__VA_ARGS__}) / 8), (double[]){__VA_ARGS__}, tol, \
               __FILE__, __LINE__)

/* Nothing of this process is alive. */
static fl_var *total(fl_var *x) { return fv_sum(x, FL_ALL_AXES); }

static int raised;
static bool raised_in_pass; /* no gradients are recorded in the midst of a backward pass */
static char last_error[512];
static void count_errors(const char *text, void *user) {
    (void)user;
    raised++;
    raised_in_pass |= !fl_grad_enabled();
    snprintf(last_error, sizeof last_error, "%s", text);
}

/* ---- gradients by differences, of first and second order ---- */

typedef fl_var *(*scalar_fn)(fl_var *x);

/* d/dx by central differences of f's value, or of sum(df/dx * weights) if `second`. */
static fl_var *slope(scalar_fn f, fl_var *x) {
    fl_var *g = fl_grad(f(x), x, true);
    return g ? total(fv_mul(g, fv_const(sample(fl_shape_of(x->value), 77)))) : NULL;
}

static double value_at(scalar_fn f, bool second, fl_tensor *t) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(t), *y = second ? slope(f, x) : f(x);
    double v = y ? fl_item(y->value) : 0;
    fl_scope_end(&s);
    return v;
}

static void check_order(const char *name, scalar_fn f, fl_tensor *at, bool second) {
    const double h = 1e-5;
    fl_scope s = fl_scope_begin();
    int64_t n = fl_numel(at);
    double x[256], worst = 0;
    fl_var *p = fv_param(fl_clone(at)), *y = second ? slope(f, p) : f(p);
    fl_var *g = y && y->requires_grad ? fl_grad(y, p, false) : NULL;
    CHECK_NO_ERROR();
    fl_to_host(at, x, (size_t)n * 8);
    for (int64_t i = 0; i < n; i++) {
        double old = x[i], d[2];
        for (int side = 0; side < 2; side++) {
            x[i] = old + (side ? h : -h);
            d[side] = value_at(f, second, tensor(fl_shape_of(at), x));
        }
        x[i] = old;
        double want = (d[1] - d[0]) / (2 * h), got = g ? element(g->value, i) : 0;
        worst = fmax(worst, fabs(want - got) / fmax(1, fabs(want)));
        if (isnan(got)) worst = INFINITY;
    }
    if (!(worst < 2e-7)) {
        char detail[100];
        snprintf(detail, sizeof detail, "%s, order %d: off by %g", name, second ? 2 : 1, worst);
        test__fail(__FILE__, __LINE__, "gradient", detail);
    }
    fl_scope_end(&s);
}

#define CHECK_GRADIENTS(f, at) (check_order(#f, f, at, false), check_order(#f, f, at, true))

/* Weighted sums, so that no gradient is constant. */
static fl_var *weigh(fl_var *y) {
    if (!y) return NULL;
    fl_var *w = fv_const(sample(fl_shape_of(y->value), 5));
    return total(fv_mul(fv_mul(y, y), w));
}

static fl_var *f_cubic(fl_var *x) { return total(fv_mul(x, fv_mul(x, x))); }
static fl_var *f_tanh(fl_var *x) { return weigh(fv_tanh(x)); }
static fl_var *f_gelu(fl_var *x) { return weigh(fv_gelu(x)); }
static fl_var *f_div(fl_var *x) {
    return weigh(fv_div(fv_select(x, 0, 0), fv_add(fv_square(x), fv_num(1))));
}
static fl_var *f_pow(fl_var *x) { return weigh(fv_pow(fv_exp(x), fv_num(2.3))); }
static fl_var *f_maximum(fl_var *x) { return weigh(fv_maximum(x, fv_num(0.3))); }
static fl_var *f_where(fl_var *x) {
    return weigh(fv_where(fv_lt(x, fv_num(0)), fv_exp(x), fv_sin(x)));
}
static fl_var *f_clip(fl_var *x) { return weigh(fv_clamp(x, fv_num(-1), fv_num(0.7))); }
static fl_var *f_reshape(fl_var *x) { return weigh(fv_reshape(x, FL_SHAPE(4, 3))); }
static fl_var *f_permute(fl_var *x) {
    return weigh(fv_permute(fv_reshape(x, FL_SHAPE(3, 2, 2)), 3, (int[]){2, 0, -2}));
}
static fl_var *f_transpose(fl_var *x) { return weigh(fv_transpose(x, 0, -1)); }
static fl_var *f_expand(fl_var *x) {
    return weigh(fv_expand(fv_unsqueeze(x, 0), FL_SHAPE(3, 3, 4)));
}
static fl_var *f_slice(fl_var *x) { return weigh(fv_slice(x, 1, 1, 4, 2)); }
static fl_var *f_slice_back(fl_var *x) { return weigh(fv_slice(x, -1, -1, FL_SLICE_END, -2)); }
static fl_var *f_select(fl_var *x) { return weigh(fv_select(x, -1, -2)); }
static fl_var *f_squeeze(fl_var *x) {
    return weigh(fv_flatten(fv_squeeze(fv_unsqueeze(x, 1), 1), 0, -1));
}
static fl_var *f_concat(fl_var *x) {
    return weigh(
        fv_concat((fl_var *[]){x, fv_exp(x), fv_const(fl_ones(FL_SHAPE(3, 2), FL_F64))}, 3, -1));
}
static fl_var *f_stack(fl_var *x) { return weigh(fv_stack((fl_var *[]){x, fv_sin(x)}, 2, -1)); }
static fl_var *f_sum(fl_var *x) { return weigh(fv_sum(x, FL_AXES(-1))); }
static fl_var *f_mean(fl_var *x) { return weigh(fv_mean(x, FL_AXES_KEEP(0))); }
static fl_var *f_variance(fl_var *x) { return weigh(fv_variance(x, FL_AXES(1), 1)); }
static fl_var *f_amax(fl_var *x) { return weigh(fv_amax(x, FL_AXES(1))); }
static fl_var *f_amin(fl_var *x) { return weigh(fv_amin(x, FL_ALL_AXES)); }
static fl_var *f_logsumexp(fl_var *x) { return weigh(fv_logsumexp(x, FL_AXES(0))); }
static fl_var *f_prod(fl_var *x) { return weigh(fv_prod(x, FL_AXES(1))); }
static fl_var *f_prod_first(fl_var *x) { return weigh(fv_prod(x, FL_AXES_KEEP(0))); }
static fl_var *f_prod_all(fl_var *x) { return weigh(fv_prod(x, FL_ALL_AXES)); }
static fl_var *f_sum_to(fl_var *x) { return weigh(fv_sum_to(x, FL_SHAPE(3, 1))); }
static fl_var *f_softmax(fl_var *x) { return weigh(fv_softmax(x, -1)); }
static fl_var *f_log_softmax(fl_var *x) { return weigh(fv_log_softmax(x, 0)); }
static fl_var *f_matmul(fl_var *x) { return weigh(fv_matmul(x, fv_transpose(x, 0, 1))); }
static fl_var *f_matmul_rows(fl_var *x) {
    fl_var *a = fv_select(x, 0, 0), *m = fv_transpose(x, 0, 1);
    return fv_add(weigh(fv_matmul(a, m)), fv_add(weigh(fv_matmul(x, a)), weigh(fv_matmul(a, a))));
}
static fl_var *f_matmul_batch(fl_var *x) {
    fl_var *a = fv_stack((fl_var *[]){x, fv_sin(x)}, 2, 0), *b = fv_transpose(x, 0, 1);
    fl_var *batch =
        fv_expand(fv_unsqueeze(fv_reshape(x, FL_SHAPE(1, 4, 3)), 0), FL_SHAPE(2, 1, 4, 3));
    return fv_add(weigh(fv_matmul(a, b)),
                  fv_add(weigh(fv_matmul(a, batch)), weigh(fv_matmul(fv_select(x, 0, 1), batch))));
}
static fl_var *f_gather(fl_var *x) {
    int64_t at[] = {1, 1, 3, 0, 2, 2};
    return weigh(fv_gather(x, 1, fl_from_host(at, FL_SHAPE(2, 3), FL_I64)));
}
static fl_var *f_index_select(fl_var *x) {
    int64_t at[] = {2, 0, 2, 2};
    return weigh(fv_index_select(x, -1, fl_from_host(at, FL_SHAPE(4), FL_I64)));
}
static fl_var *f_scatter_add(fl_var *x) {
    int64_t at[] = {1, 1, 2, 0, 0, 0, 0, 0};
    return weigh(fv_scatter_add(x, 0, fl_from_host(at, FL_SHAPE(2, 4), FL_I64),
                                fv_sin(fv_slice(x, 0, 1, 3, 1))));
}
static fl_var *f_dropout(fl_var *x) {
    fl_rng rng = {3, 1};
    return weigh(fv_dropout(x, 0.4, &rng));
}

static const struct {
    const char *name;
    scalar_fn f;
} functions[] = {
#define F(name) {#name, f_##name}
    F(cubic), F(tanh), F(gelu), F(div), F(pow), F(maximum), F(where), F(clip), F(reshape),
    F(permute), F(transpose), F(expand), F(slice), F(slice_back), F(select), F(squeeze),
    F(concat), F(stack), F(sum), F(mean), F(variance), F(amax), F(amin), F(logsumexp), F(prod),
    F(prod_first), F(prod_all), F(sum_to), F(softmax), F(log_softmax), F(matmul),
    F(matmul_rows), F(matmul_batch), F(gather), F(index_select), F(scatter_add), F(dropout),
#undef F
};

static void check_functions(void) {
    fl_scope s = fl_scope_begin();
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        for (int order = 0; order < 2; order++)
            check_order(functions[i].name, functions[i].f, sample(FL_SHAPE(3, 4), i + 1), order);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(first_and_second_derivatives) { check_functions(); }

static bool refuse_view(const fl_backend *self, fl_tensor *out, fl_tensor *in) {
    (void)self, (void)out, (void)in;
    return false;
}

TEST(a_backend_without_views) {
    fl_backend b = *fl_backend_cpu();
    b.name = "viewless";
    b.view = refuse_view;
    REQUIRE(fl_backend_use(&b, NULL) && fl_backend_set_default("viewless"));
    check_functions();
}

TEST(a_backend_without_fused_gradients) {
    fl_backend b = *fl_backend_cpu();
    b.op[FL_OP_grad1] = b.op[FL_OP_grad2] = NULL;
    REQUIRE(fl_backend_use(&b, NULL));
    check_functions();
}

static fl_var *f_conv(fl_var *x) {
    fl_var *w = fv_mul(
        fv_reshape(fv_slice(fv_flatten(x, 0, -1), 0, 0, 36, 1), FL_SHAPE(2, 2, 3, 3)), fv_num(0.5));
    fl_var *b = fv_slice(fv_flatten(x, 0, -1), 0, 3, 5, 1);
    return weigh(fv_conv(x, w, b, .stride = {2}, .pad = {1}, .dilation = {1, 2}));
}
static fl_var *f_conv_groups(fl_var *x) {
    fl_var *w = fv_reshape(fv_slice(fv_flatten(x, 0, -1), 0, 0, 16, 1), FL_SHAPE(4, 1, 2, 2));
    return weigh(fv_conv(x, w, NULL, .groups = 2));
}
static fl_var *f_max_pool(fl_var *x) {
    return weigh(fv_max_pool(x, NULL, .kernel = {2}, .stride = {1}, .pad = {1}));
}
static fl_var *f_avg_pool(fl_var *x) {
    return weigh(fv_avg_pool(x, .kernel = {2, 3}, .stride = {2}, .pad = {1}, .ignore_pad = true));
}

TEST(convolution_and_pooling_twice) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = sample(FL_SHAPE(1, 2, 5, 5), 8);
    CHECK_GRADIENTS(f_conv, x);
    CHECK_GRADIENTS(f_conv_groups, x);
    CHECK_GRADIENTS(f_max_pool, x);
    CHECK_GRADIENTS(f_avg_pool, x);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(product_with_zeros) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(3, 3), 2, 3, 4, 2, 0, 4, 0, 3, 0);
    fl_backward(total(fv_prod(x, FL_AXES(1))));
    CHECK_VALUES(fv_grad(x), 0, 12, 8, 6, 0, 8, 0, 0, 0, 0);
    CHECK_GRADIENTS(f_prod, fv_value(x));
    CHECK_GRADIENTS(f_prod_first, fv_value(x));
    CHECK_GRADIENTS(f_prod_all, TENSOR(FL_SHAPE(5), 1, 0, 2, 0, 3));
    CHECK_GRADIENTS(f_prod_all, TENSOR(FL_SHAPE(1), 0));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- rules of single ops ---- */

TEST(a_number_counts_in_full_precision) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, 3);
    fl_backward(total(fv_pow(x, fv_num(2.3))));
    CHECK_VALUES(fv_grad(x), 1e-13, 2.3 * pow(2, 1.3), 2.3 * pow(3, 1.3));
    fl_scope_end(&s);
}

TEST(ties_share) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2, 3), 1, 5, 5, 2, 2, 2);
    fl_backward(total(fv_amax(x, FL_AXES(1))));
    CHECK_VALUES(fv_grad(x), 1e-15, 0, 0.5, 0.5, 1. / 3, 1. / 3, 1. / 3);
    fl_var *a = PARAM(FL_SHAPE(3), 1, 2, 3), *b = PARAM(FL_SHAPE(3), 3, 2, 1);
    fl_backward(total(fv_maximum(a, b)));
    CHECK_VALUES(fv_grad(a), 0, 0, 0.5, 1);
    CHECK_VALUES(fv_grad(b), 0, 1, 0.5, 0);
    fl_scope_end(&s);
}

TEST(broadcast_gradients_are_summed) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *row = PARAM(FL_SHAPE(3), 1, 2, 3),
           *one = PARAM(FL_SCALAR_SHAPE, 2);
    fl_var *column = PARAM(FL_SHAPE(2, 1), 1, 10);
    fl_backward(total(fv_mul(fv_add(x, row), fv_mul(one, column))));
    CHECK_VALUES(fv_grad(row), 0, 22, 22, 22);
    CHECK_VALUES(fv_grad(one), 0, 12 + 210);
    CHECK_VALUES(fv_grad(column), 0, 24, 42);
    CHECK_EQ_INT(fv_grad(column)->ndim, 2);
    fl_scope_end(&s);
}

TEST(gradients_have_the_dtype_of_the_variable) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_ones(FL_SHAPE(3), FL_F32)), *y = fv_param(fl_ones(FL_SHAPE(3), FL_F64));
    fl_backward(total(fv_div(x, fv_mul(y, fv_const(fl_arange(1, 4, 1, FL_I64))))));
    CHECK_EQ_INT(fv_grad(x)->dtype, FL_F32);
    CHECK_EQ_INT(fv_grad(y)->dtype, FL_F64);
    CHECK_VALUES(fv_grad(y), 1e-15, -1, -0.5, -1. / 3);
    fv_zero_grad(x);
    fl_backward(total(fv_square(fv_cast(fv_mul(x, fv_num(3)), FL_F64))));
    CHECK_EQ_INT(fv_grad(x)->dtype, FL_F32);
    CHECK_VALUES(fv_grad(x), 0, 18, 18, 18);
    fv_zero_grad(x);
    fl_var *g = fl_grad(total(fv_square(fv_cast(fv_square(x), FL_F64))), x, true); /* 4 x^3 */
    CHECK_EQ_INT(g->value->dtype, FL_F32);
    CHECK_VALUES(fv_value(fl_grad(total(g), x, false)), 0, 12, 12, 12);
    fl_scope_end(&s);
}

TEST(what_is_constant_has_no_gradient) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1.5, -2.5);
    CHECK(!fv_gt(x, fv_num(0))->requires_grad);
    CHECK(!fv_cast(x, FL_I64)->requires_grad);
    CHECK(fl_backward(total(fv_floor(x))));
    CHECK(fv_grad(x) == NULL);
    CHECK(fl_backward(total(fv_add(fv_sign(x), fv_mul(x, fv_num(3))))));
    CHECK_VALUES(fv_grad(x), 0, 3, 3);
    CHECK(fl_grad(total(fv_rint(x)), x, false) == NULL);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
}

TEST(dropout_replays_its_mask) {
    fl_scope s = fl_scope_begin();
    fl_rng a = {9, 0}, b = {9, 0};
    fl_var *x = fv_param(fl_ones(FL_SHAPE(200), FL_F64)), *y = fv_dropout(x, 0.25, &a);
    fl_tensor *same = fl_dropout(x->value, 0.25, &b);
    CHECK(a.counter == b.counter && a.counter > 0);
    fl_backward(total(y));
    int64_t dropped = 0;
    for (int i = 0; i < 200; i++) {
        CHECK_NEAR(element(y->value, i), element(same, i), 0);
        CHECK_NEAR(element(fv_grad(x), i), element(same, i), 0);
        dropped += element(same, i) == 0;
    }
    CHECK(dropped > 20 && dropped < 90);
    fl_scope_end(&s);
}

/* ---- custom gradients ---- */

static void cos_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_neg(fv_mul(dy, fv_sin(fv_saved(n, 0)))));
}
static fl_var *my_cos(fl_var *x) {
    return fv_record(fl_cos(fv_value(x)), cos_back, FV_IN(x), FV_SAVE(x));
}
static fl_var *f_my_cos(fl_var *x) { return weigh(my_cos(x)); }

static void exp_back(fl_node *n, fl_var *dy) { fv_add_grad(n, 0, fv_mul(dy, fv_saved(n, 0))); }
static fl_var *my_exp(fl_var *x) {
    return fv_record(fl_exp(fv_value(x)), exp_back, FV_IN(x), FV_SAVE(FV_OUT));
}
static fl_var *f_my_exp(fl_var *x) { return weigh(my_exp(x)); }

TEST(custom_gradients) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_arange(0, 4, 1, FL_F32));
    fl_backward(total(my_cos(x)));
    CHECK_VALUES(fv_grad(x), 1e-6, 0, -sin(1), -sin(2), -sin(3));
    CHECK_GRADIENTS(f_my_cos, sample(FL_SHAPE(4), 1));
    CHECK_GRADIENTS(f_my_exp, sample(FL_SHAPE(4), 2));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

typedef struct many {
    int n;
    double weight[200];
} many;

static void many_back(fl_node *n, fl_var *dy) {
    const many *m = fv_args(n);
    for (int i = 0; i < m->n; i++) {
        CHECK_EQ_INT(fv_in_shape(n, i).ndim, 1);
        CHECK_EQ_INT(fv_in_shape(n, i).dim[0], 2);
        CHECK(fv_needs(n, i) == (i != 3));
        fv_add_grad(n, i, fv_mul(dy, fv_num(m->weight[i])));
    }
    CHECK(fv_in_shape(n, 99).ndim == 0 && !fv_needs(n, 99));
}

TEST(eight_inputs_and_large_arguments) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *x[9];
    many m = {.n = 8};
    for (int i = 0; i < 9; i++) {
        m.weight[i] = i + 1;
        x[i] = i == 3 ? fv_const(TENSOR(FL_SHAPE(2), 1, 1)) : PARAM(FL_SHAPE(2), 1, 1);
    }
    fl_tensor *value = fl_ones(FL_SHAPE(2), FL_F64);
    fl_var *y =
        fv_record_args("many", value, many_back, (fv_list){8, x}, (fv_list){8, x}, &m, sizeof m);
    CHECK(fl_backward(total(y)));
    CHECK_VALUES(fv_grad(x[7]), 0, 8, 8);
    CHECK(fv_grad(x[3]) == NULL);
    CHECK(fv_record_args("many", value, many_back, (fv_list){9, x}, FV_NONE, &m, sizeof m) == NULL);
    CHECK_ERROR("many has 9 inputs and 0 saved values, expected at most 8");
    CHECK(fv_record(value, NULL, FV_IN(x[0]), FV_NONE) == NULL);
    CHECK_ERROR("no backward function");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void number_back(fl_node *n, fl_var *dy) {
    (void)dy;
    fv_add_grad(n, 0, fv_num(2)); /* a number is a gradient everywhere */
    fv_add_grad(n, 0, fv_saved(n, 0));
}

TEST(a_gradient_may_be_a_number_or_a_saved_value) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(3), 1, 2, 3), *c = fv_const(TENSOR(FL_SHAPE(3), 10, 20, 30));
    fl_backward(total(fv_record(fl_clone(x->value), number_back, FV_IN(x), FV_SAVE(c))));
    CHECK_VALUES(fv_grad(x), 0, 12, 22, 32);
    fl_scope_end(&s);
}

/* ---- leaves ---- */

TEST(leaves_accumulate) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2);
    CHECK(fv_grad(x) == NULL);
    for (int i = 1; i <= 3; i++) {
        CHECK(fl_backward(total(fv_square(x))));
        CHECK_VALUES(fv_grad(x), 0, 2 * i, 4 * i);
    }
    fv_zero_grad(x);
    CHECK(fv_grad(x) == NULL && x->grad == NULL);
    fl_var *twice = fv_add(x, x);
    CHECK(fl_backward(total(fv_mul(twice, x))));
    CHECK_VALUES(fv_grad(x), 0, 4, 8);
    CHECK(twice->grad == NULL);
    CHECK(fl_backward(x, .grad = TENSOR(FL_SHAPE(2), 1, -1)));
    CHECK_VALUES(fv_grad(x), 0, 5, 7);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void infinite_back(fl_node *n, fl_var *dy) {
    (void)dy;
    fv_add_grad(n, 0, fv_num(-INFINITY));
}

TEST(a_number_may_be_a_gradient) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2);
    CHECK(fl_backward(total(fv_record(fl_neg(x->value), infinite_back, FV_IN(x), FV_NONE))));
    CHECK_VALUES(fv_grad(x), 0, -INFINITY, -INFINITY);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static bool same(fl_tensor *a, fl_tensor *b) {
    return fl_item(fl_all(fl_eq(a, b), FL_ALL_AXES)) == 1;
}

/* More than a node has inputs */
TEST(long_lists_are_joined) {
    enum { N = 83 };
    fl_scope s = fl_scope_begin();
    fl_var *xs[N], *all = fv_param(fl_cast(fl_arange(0, 2 * N, 1, FL_I64), FL_F64));
    for (int i = 0; i < N; i++) xs[i] = fv_slice(all, 0, 2 * i, 2 * i + 2, 1);
    fl_var *line = fv_concat(xs, N, -1), *columns = fv_stack(xs, N, -1);
    CHECK(same(line->value, all->value));
    CHECK(same(fl_transpose(columns->value, 0, 1),
                       fl_reshape(all->value, FL_SHAPE(N, 2))));
    CHECK(fl_backward(total(fv_add(fv_square(line), fv_reshape(columns, FL_SHAPE(2 * N))))));
    CHECK(same(fv_grad(all), fl_add(fl_mul(all->value, fl_num(2)), fl_num(1))));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(gradients_of_leaves_have_storage_of_their_own) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2, 2), 1, 2, 3, 4), *y = PARAM(FL_SHAPE(2, 2), 1, 2, 3, 4),
           *z = PARAM(FL_SHAPE(2, 2), 0, 0, 0, 0);
    fl_tensor *seed = TENSOR(FL_SHAPE(2, 2), 1, 2, 3, 4);
    fl_backward(fv_add(fv_add(x, y), fv_transpose(z, 0, 1)), .grad = seed);
    fl_backward(z, .grad = fl_zeros(FL_SHAPE(2, 2), FL_F64));
    CHECK(fl_is_contiguous(fv_grad(z)));
    fl_assign(fv_grad(x), fl_num(7));
    CHECK_VALUES(seed, 0, 1, 2, 3, 4);
    CHECK_VALUES(fv_grad(y), 0, 1, 2, 3, 4);
    CHECK_VALUES(fv_grad(z), 0, 1, 3, 2, 4);
    fl_backward(total(x));
    CHECK_VALUES(fv_grad(x), 0, 8, 8, 8, 8);
    fl_var *w = PARAM(FL_SHAPE(3), 1, 2, 3);
    fl_backward(total(w));
    CHECK(fl_is_contiguous(fv_grad(w)) && fl_assign(fv_grad(w), fl_num(0)));
    fl_var *wide = PARAM(FL_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    fl_backward(total(fv_prod(wide, FL_AXES(0)))); /* comes out permuted */
    CHECK(fl_is_contiguous(fv_grad(wide)));
    CHECK_VALUES(fv_grad(wide), 0, 4, 5, 6, 1, 2, 3);
    fl_scope_end(&s);
}

static void count_copies(const fl_call *c, void *user) { *(int *)user += c->op == FL_OP_copy; }

/* The gradient of a weight comes through a transpose: its storage is handed on, not copied. */
TEST(gradients_are_handed_on_through_views) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_const(sample(FL_SHAPE(5, 3), 1)), *w = fv_param(sample(FL_SHAPE(4, 3), 2));
    int copies = 0;
    fl_var *y = fv_sum(fv_square(fv_matmul(x, fv_transpose(w, 0, 1))), FL_ALL_AXES);
    fl_call_hook(NULL, count_copies, &copies);
    CHECK(fl_backward(y));
    fl_call_hook(NULL, NULL, NULL);
    CHECK_EQ_INT(copies, 0);
    CHECK(fl_is_contiguous(fv_grad(w)));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void keep_gradient(fl_var *x, void *user) { *(fl_var **)user = fv_keep(x->grad); }

/* Gradients add up in place, but not in what a sum handed to two operands, a hook kept, or the
   caller gave. */
TEST(sums_in_place_are_not_seen_elsewhere) {
    fl_scope s = fl_scope_begin();
    fl_var *kept = NULL, *x = PARAM(FL_SHAPE(2), 1, 2);
    fl_var *u = fv_mul(x, fv_num(2)), *v = fv_mul(x, fv_num(3)), *z = fv_add(u, v);
    fl_tensor *given = TENSOR(FL_SHAPE(2), 1, 10);
    fv_hook(z, keep_gradient, &kept);
    fl_var *w = fv_add(fv_add(fv_mul(u, fv_num(5)), fv_mul(u, fv_num(7))), z);
    CHECK(fl_backward(w, .grad = given));
    CHECK_VALUES(fv_grad(x), 0, 2 * 13 + 3, 290);
    CHECK_VALUES(given, 0, 1, 10);
    CHECK_VALUES(kept ? kept->value : NULL, 0, 1, 10);
    fl_var *first = fv_keep(x->grad);
    CHECK(fl_backward(fv_mul(x, fv_num(4)), .grad = given));
    CHECK_VALUES(fv_grad(x), 0, 33, 330);
    CHECK_VALUES(first->value, 0, 29, 290);
    fv_drop(first);
    fv_drop(kept);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* What the gradients of parts cost: each its own elements, and the whole once. */
typedef struct traffic {
    int64_t whole, elements;
} traffic;
static void count_elements(const fl_call *c, void *user) {
    traffic *t = user;
    if (c->out[0]) t->elements += fl_numel(c->out[0]);
}

TEST(parts_add_up_in_place) {
    enum { STEPS = 64, WIDTH = 32 };
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(sample(FL_SHAPE(STEPS, WIDTH), 1)), *row[STEPS], *sum = NULL, *part[3];
    CHECK_EQ_INT(fv_unbind(x, 0, row, STEPS), STEPS);
    for (int i = 0; i < STEPS; i++) sum = i ? fv_add(sum, fv_mul(row[i], fv_num(i))) : fv_square(row[0]);
    CHECK_EQ_INT(fv_split(x, 1, 12, part, 3), 3);
    fl_var *y = fv_add(total(sum), fv_add(total(fv_square(part[2])), fv_add(total(x), total(part[0]))));
    traffic t = {0};
    fl_call_hook(NULL, count_elements, &t);
    CHECK(fl_backward(y));
    fl_call_hook(NULL, NULL, NULL);
    CHECK(t.elements < 10 * STEPS * WIDTH);
    for (int i = 0; i < STEPS; i += 7)
        for (int k = 0; k < WIDTH; k += 5) {
            double v = element(fl_reshape(fl_slice(x->value, 0, i, i + 1, 1), FL_SHAPE(WIDTH)), k);
            double want = (i ? i : 2 * v) + 1 + (k < 12) + (k >= 24 ? 2 * v : 0);
            CHECK_NEAR(element(fl_select(fv_grad(x), 0, i), k), want, 1e-14);
        }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Not in place into what a hook kept, what another node shares, or a broadcast gradient. */
TEST(parts_are_not_added_to_what_others_see) {
    fl_scope s = fl_scope_begin();
    fl_var *kept = NULL, *x = PARAM(FL_SHAPE(2, 2), 1, 2, 3, 4), *h = fv_mul(x, fv_num(1)),
           *other = fv_mul(x, fv_num(1)), *both = fv_add(h, other), *first = fv_select(h, 0, 0);
    fv_hook(both, keep_gradient, &kept);
    fl_var *y = fv_add(total(fv_mul(both, fv_num(3))), fv_mul(fv_select(first, 0, 1), fv_num(5)));
    CHECK(fl_backward(y));
    CHECK_VALUES(fv_grad(x), 0, 6, 11, 6, 6);
    CHECK_VALUES(kept ? kept->value : NULL, 0, 3, 3, 3, 3);
    fv_zero_grad(x);
    CHECK(fl_backward(fv_add(total(x), fv_select(fv_select(x, 1, 0), 0, 1)))); /* total's is broadcast */
    CHECK_VALUES(fv_grad(x), 0, 1, 1, 2, 1);
    fv_zero_grad(x);
    h = fv_mul(x, fv_num(1));
    CHECK(fl_backward(fv_add(fv_mul(total(h), fv_num(1)), fv_select(fv_select(h, 1, 0), 0, 1))));
    CHECK_VALUES(fv_grad(x), 0, 1, 1, 2, 1);
    fv_drop(kept);
    fl_var *narrow = fv_cast(x, FL_F32), *odd = fv_slice(narrow, 1, -1, FL_SLICE_END, -2);
    fv_zero_grad(x);
    CHECK(fl_backward(total(fv_mul(odd, fv_const(fl_full(FL_SHAPE(2, 1), 2.5, FL_F64))))));
    CHECK_VALUES(fv_grad(x), 0, 0, 2.5, 0, 2.5);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(frozen_leaves_and_dropped_leaves) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *w = PARAM(FL_SHAPE(2), 3, 4);
    fl_var *y = total(fv_add(fv_mul(x, w), w));
    x->requires_grad = false; /* after it was used */
    CHECK(fl_backward(y));
    CHECK(fv_grad(x) == NULL);
    CHECK_VALUES(fv_grad(w), 0, 2, 3);
    CHECK(!fv_mul(x, fv_num(2))->requires_grad);
    fl_scope inner = fl_scope_begin();
    fl_var *gone = PARAM(FL_SHAPE(2), 1, 1);
    y = fv_scope_return(&inner, total(fv_add(gone, w)));
    CHECK(fl_backward(y));
    CHECK_VALUES(fv_grad(w), 0, 3, 4);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- hooks ---- */

typedef struct seen {
    int calls;
    double first;
    fl_var *x;
} seen;

static void look(fl_var *x, void *user) {
    seen *to = user;
    to->calls++;
    to->x = x;
    to->first = element(fv_grad(x), 0);
}

static void tenfold(fl_var *x, void *user) {
    look(x, user);
    CHECK(x->value != NULL);
    CHECK(fv_set_grad(x, fv_mul(x->grad, fv_num(10))));
}

TEST(hooks_see_complete_gradients) {
    fl_scope s = fl_scope_begin();
    seen at = {0};
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2);
    fv_hook(x, look, &at);
    fl_backward(total(fv_mul(x, fv_mul(x, x))));
    CHECK(at.calls == 1 && at.first == 3 && at.x == x);
    fl_backward(total(x));
    CHECK(at.calls == 2 && at.first == 4);
    fv_hook(x, NULL, NULL);
    fv_hook(x, tenfold, &at);
    fl_backward(total(x));
    CHECK_VALUES(fv_grad(x), 0, 50, 140);
    fv_hook(x, NULL, NULL);
    fl_backward(total(x));
    CHECK(at.calls == 3);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void stop_here(fl_var *x, void *user) {
    (void)user;
    fv_zero_grad(x);
}

TEST(hooks_of_intermediates) {
    fl_scope s = fl_scope_begin();
    seen at = {0};
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *h = fv_mul(x, x);
    fv_hook(h, tenfold, &at);
    fl_backward(total(fv_mul(h, fv_num(2))));
    CHECK(at.calls == 1 && at.first == 2 && at.x == h && h->grad == NULL);
    CHECK_VALUES(fv_grad(x), 0, 40, 80);
    fl_scope inner = fl_scope_begin();
    fl_var *mid = fv_mul(x, x);
    fv_hook(mid, tenfold, &at);
    fl_var *y = fv_scope_return(&inner, total(mid)); /* mid is gone, its hook is not */
    fv_zero_grad(x);
    fl_backward(y);
    CHECK(at.calls == 2);
    CHECK_VALUES(fv_grad(x), 0, 20, 40);
    h = fv_mul(x, x);
    fv_unhook(h, fv_hook(h, look, &at));
    fl_backward(total(h));
    CHECK(at.calls == 2);
    fv_zero_grad(x);
    h = fv_exp(x);
    fv_hook(h, stop_here, NULL);
    CHECK(fl_backward(total(h)));
    CHECK(fv_grad(x) == NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

typedef struct twice_hooked {
    int calls, other;
    seen added; /* of the hook that the first call adds, which outlives that call */
} twice_hooked;

static void leave_and_add(fl_var *x, void *user) {
    twice_hooked *h = user;
    h->calls++;
    fv_unhook(x, h->other); /* one that has been called, and this one */
    fv_unhook(x, h->other + 1);
    CHECK(fv_hook(x, tenfold, &h->added) > h->other + 1);
}

TEST(several_hooks) {
    fl_scope s = fl_scope_begin();
    for (int leaf = 0; leaf < 2; leaf++) {
        seen at = {0}, last = {0};
        fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *h = leaf ? x : fv_mul(x, fv_num(1));
        const int first = fv_hook(h, tenfold, &at), second = fv_hook(h, tenfold, &at);
        CHECK(first == 1 && second == 2 && fv_hook(h, look, &last) == 3);
        CHECK(fl_backward(total(h), .retain_graph = true));
        CHECK(at.calls == 2 && last.first == 100);
        CHECK_VALUES(fv_grad(x), 0, 100, 100);
        fv_unhook(h, first);
        fv_unhook(h, 99);
        fv_zero_grad(x);
        CHECK(fl_backward(total(h)));
        CHECK(at.calls == 3 && last.first == 10);
        fv_zero_grad(x);
        fl_var *y = leaf ? PARAM(FL_SHAPE(1), 1) : fv_exp(PARAM(FL_SHAPE(1), 0));
        twice_hooked both = {.other = fv_hook(y, look, &at)};
        fv_hook(y, leave_and_add, &both);
        fv_hook(y, look, &last);
        CHECK(fl_backward(y));
        CHECK(both.calls == 1 && last.first == 1);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- arguments that own memory ---- */

/* y = x * table[0]; the record owns the table. */
typedef struct table_args {
    double *table;
    char more[2000]; /* too long for a node */
} table_args;
static int tables_freed;
static void table_free(void *args) {
    double **table = args;
    tables_freed += *table != NULL;
    free(*table);
    *table = NULL;
}
static void table_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_mul(dy, fv_num(((const table_args *)fv_args(n))->table[0])));
}
static fl_var *times_table(fl_var *x, bool large, int results) {
    table_args a = {.table = malloc(sizeof(double))};
    if (!CHECK(a.table != NULL)) return NULL;
    *a.table = 3;
    const fv_record_opts o = {.name = "table", .back = table_back, .in = FV_IN(x), .args = &a,
                              .bytes = large ? sizeof a : sizeof a.table, .free_args = table_free};
    fl_tensor *value = fl_mul(fv_value(x), fl_num(3));
    fl_var *y = NULL;
    if (!results) return fv_record_opt(value, &o);
    return fv_record_several(results, &value, &y, &o) ? y : NULL;
}

TEST(a_record_frees_what_its_arguments_own) {
    test_errors_return();
    for (int results = 0; results < 2; results++)
        for (int large = 0; large < 2; large++) {
            fl_scope s = fl_scope_begin();
            fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *y;
            tables_freed = 0;
            y = fv_sum(times_table(x, large, results), FL_ALL_AXES);
            CHECK(fl_backward(y, .retain_graph = true));
            CHECK_EQ_INT(tables_freed, 0);
            CHECK(fl_backward(y)); /* spent */
            CHECK_EQ_INT(tables_freed, 1);
            if (!results) CHECK_VALUES(fv_grad(x), 0, 6, 6);
            fl_scope inner = fl_scope_begin();
            CHECK(times_table(x, large, results) != NULL); /* a graph that nothing differentiates */
            fl_scope_end(&inner);
            CHECK_EQ_INT(tables_freed, 2);
            CHECK(times_table(fv_const(x->value), large, results) != NULL); /* not recorded */
            CHECK_EQ_INT(tables_freed, 3);
            CHECK(!times_table(NULL, large, results)); /* an error before it is */
            CHECK_EQ_INT(tables_freed, 4);
            fl_error_clear();
            fl_scope_end(&s);
            CHECK_EQ_INT(tables_freed, 4);
            CHECK_NOTHING_LIVES();
        }
}

/* ---- several results ---- */

/* x -> x^2 and x^3, with a whole number beside them */
static void powers_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0), *square = fv_saved(n, 1), *d[] = {fv_grad_of(n, 0), fv_grad_of(n, 1)};
    CHECK(dy == (d[0] ? d[0] : d[1]) || (d[0] && d[1]));
    CHECK(fv_grad_of(n, 2) == NULL && fv_grad_of(n, 99) == NULL && fv_grad_of(n, -1) == NULL);
    if (d[0]) fv_add_grad(n, 0, fv_mul(d[0], fv_mul(fv_num(2), x)));
    if (d[1]) fv_add_grad(n, 0, fv_mul(d[1], fv_mul(fv_num(3), square)));
}
static bool powers(fl_var *x, fl_var **y) {
    fl_tensor *square = fl_square(x->value), *value[] = {square, fl_mul(square, x->value), fl_num(1)};
    value[2] = fl_cast(fl_sign(x->value), FL_I64);
    return fv_record_several(3, value, y, &(fv_record_opts){.name = "powers", .back = powers_back,
                                                           .in = FV_IN(x),
                                                           .saved = FV_SAVE(x, FV_OUT)});
}
static fl_var *f_powers(fl_var *x) {
    fl_var *y[3];
    return powers(x, y) ? fv_add(weigh(y[0]), fv_add(weigh(y[1]), total(fv_mul(y[0], y[1])))) : NULL;
}
static fl_var *f_power_two(fl_var *x) {
    fl_var *y[3];
    return powers(x, y) ? weigh(y[0]) : NULL;
}
static fl_var *f_power_three(fl_var *x) {
    fl_var *y[3];
    return powers(x, y) ? weigh(y[1]) : NULL;
}

static void twins_back(fl_node *n, fl_var *dy) {
    (void)dy;
    for (int k = 0; k < 2; k++) fv_add_grad(n, k, fv_grad_of(n, k));
}

/* A gradient that reaches two leaves, of one through a node of several results, is not one storage. */
TEST(gradients_of_several_results_are_not_shared) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *w = PARAM(FL_SHAPE(2), 3, 4), *z = PARAM(FL_SHAPE(2), 5, 6), *y[2];
    fl_tensor *value[] = {fl_clone(x->value), fl_clone(w->value)};
    REQUIRE(fv_record_several(2, value, y, &(fv_record_opts){.name = "twins", .back = twins_back,
                                                            .in = FV_IN(x, w)}));
    fl_var *sum = fv_mul(fv_add(z, y[1]), fv_num(1));
    CHECK(fl_backward(fv_add(fv_mul(y[0], fv_num(2)), sum), .grad = TENSOR(FL_SHAPE(2), 1, 2)));
    fl_assign(fv_grad(z), fl_num(7));
    CHECK_VALUES(fv_grad(w), 0, 1, 2);
    CHECK_VALUES(fv_grad(x), 0, 2, 4);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(several_results_of_one_node) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    CHECK_GRADIENTS(f_powers, sample(FL_SHAPE(3), 3));
    CHECK_GRADIENTS(f_power_two, sample(FL_SHAPE(3), 4));
    CHECK_GRADIENTS(f_power_three, sample(FL_SHAPE(3), 5));
    seen at = {0};
    fl_var *x = PARAM(FL_SHAPE(2), 2, -3), *y[3], *g;
    REQUIRE(powers(x, y));
    CHECK(y[0]->requires_grad && y[1]->requires_grad && !y[2]->requires_grad);
    fv_hook(y[1], tenfold, &at);
    fl_var *loss = total(fv_add(fv_add(y[0], y[0]), y[1]));
    CHECK_VALUES(fv_value(fl_grad(loss, y[0], false)), 0, 2, 2);
    CHECK(fl_backward(loss, .retain_graph = true));
    CHECK_VALUES(fv_grad(x), 0, 8 + 120, -12 + 270);
    fl_var *e0 = fv_const(TENSOR(FL_SHAPE(2), 1, 0)), *e1 = fv_const(TENSOR(FL_SHAPE(2), 0, 1));
    CHECK(fl_grads(FV_LIST(y[0], y[1]), FV_LIST(x), &g, .given = FV_LIST(e0, e1)));
    CHECK_VALUES(g->value, 0, 4, 270);
    CHECK(!fl_backward(loss));
    CHECK_ERROR("the graph behind powers was freed");
    REQUIRE(powers(x, y));
    fl_assign(y[0]->value, fl_num(0));
    CHECK(!fl_backward(total(y[1])));
    CHECK_ERROR("the result of powers, f64 [2], was written in place after it was saved");
    bool before = fl_no_grad(true);
    CHECK(powers(x, y) && !y[0]->requires_grad && !y[1]->requires_grad);
    fl_no_grad(before);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- watchers of passes ---- */

typedef struct watched {
    fv_watcher w;
    int ready, ends;
    fl_var *leaf[8];
    double first[8]; /* of its gradient when it was ready; NAN: none */
    char error[200];
    bool fail, leave;
} watched;

static void note_ready(fv_watcher *w, fl_var *x) {
    watched *to = w->user;
    CHECK(!fl_grad_enabled());
    to->first[to->ready] = fv_grad(x) ? element(fv_grad(x), 0) : NAN;
    to->leaf[to->ready++] = x;
    if (to->fail) fl_fail("note_ready: on purpose");
    if (to->leave) fv_unwatch(w);
}

static void note_end(fv_watcher *w, const char *error) {
    watched *to = w->user;
    to->ends++;
    snprintf(to->error, sizeof to->error, "%s", error ? error : "");
}

static watched *watch(watched *to) {
    *to = (watched){.w = {note_ready, note_end, to, NULL}};
    fv_watch(&to->w);
    return to;
}

static void zero_back(fl_node *n, fl_var *dy) { (void)n, (void)dy; }

/* Each leaf once, when nothing can add to it any more; the frozen one never, the one that no
   gradient reaches too. */
TEST(watchers_see_each_leaf_and_the_end) {
    fl_scope s = fl_scope_begin();
    watched one, two;
    watch(&one), watch(&two);
    fv_watch(&one.w); /* twice is once, and then after the other */
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *w = PARAM(FL_SHAPE(2), 3, 4), *out = PARAM(FL_SHAPE(2), 0, 0),
           *frozen = PARAM(FL_SHAPE(2), 1, 1), *nowhere = PARAM(FL_SHAPE(2), 1, 1);
    fl_var *cut = fv_record(fl_clone(nowhere->value), zero_back, FV_IN(nowhere), FV_NONE);
    fl_var *y = total(fv_mul(fv_add(fv_mul(x, w), fv_add(x, frozen)), fv_add(w, cut)));
    fv_hook(x, tenfold, &(seen){0});
    frozen->requires_grad = false;
    CHECK(fl_backward(y, .retain_graph = true));
    CHECK_EQ_INT(one.ready, 3);
    CHECK_EQ_INT(two.ready, 3);
    CHECK_EQ_INT(one.ends, 1);
    CHECK_STR(one.error, "");
    for (int i = 0; i < 3; i++) {
        fl_var *leaf = one.leaf[i];
        CHECK(leaf == x || leaf == w || leaf == nowhere);
        CHECK(leaf == nowhere ? isnan(one.first[i]) : one.first[i] == element(fv_grad(leaf), 0));
        CHECK(leaf == two.leaf[i] && leaf != out);
    }
    CHECK(fv_grad(nowhere) == NULL);
    CHECK(fl_grad(y, x, true) != NULL); /* not watched */
    CHECK(one.ready == 3 && one.ends == 1);
    one.leave = true; /* at the first leaf */
    CHECK(fl_backward(y));
    CHECK(one.ready == 4 && one.ends == 1 && two.ready == 6 && two.ends == 2);
    fv_unwatch(&two.w);
    fv_unwatch(&two.w);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(watchers_hear_of_errors) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    watched one;
    watch(&one);
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *w = PARAM(FL_SHAPE(2), 3, 4), *y = total(fv_mul(fv_exp(x), w));
    one.fail = true;
    CHECK(!fl_backward(y));
    CHECK(one.ready == 1 && one.ends == 1);
    CHECK_STR(one.error, "on purpose");
    CHECK_ERROR("note_ready: on purpose");
    one.fail = false;
    CHECK(!fl_backward(y));
    CHECK(one.ready == 1 && one.ends == 2);
    CHECK_STR(one.error, "was freed by an earlier backward");
    CHECK_ERROR("freed");
    CHECK(!fl_backward(fv_mul(x, w)));
    CHECK_STR(one.error, "reduce it to one element");
    CHECK_EQ_INT(one.ends, 3);
    CHECK_ERROR("reduce it");
    CHECK(!fl_backward(fv_num(1))); /* no pass */
    CHECK_EQ_INT(one.ends, 3);
    CHECK_ERROR("does not depend");
    fv_unwatch(&one.w);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- modes ---- */

TEST(no_grad_regions) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2);
    CHECK(fl_grad_enabled());
    fl_scope inner = fl_scope_begin();
    CHECK(!fl_no_grad(true));
    CHECK(!fl_grad_enabled());
    fl_var *y = fv_mul(x, x);
    CHECK(!y->requires_grad && y->node == NULL);
    CHECK(fl_no_grad(true));
    fl_scope_end(&inner);
    CHECK(fl_grad_enabled() && fv_mul(x, x)->requires_grad);
    bool before = fl_no_grad(true);
    CHECK(!fv_mul(x, x)->requires_grad);
    fl_no_grad(before);
    fl_var *z = total(fv_square(x));
    fl_no_grad(true);
    CHECK(fl_backward(z) && !fl_grad_enabled());
    fl_no_grad(false);
    CHECK(x->grad->requires_grad == false);
    fl_scope_end(&s);
}

TEST(detach) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 3, 4), *y = fv_square(x), *d = fv_detach(y);
    CHECK(!d->requires_grad && d->node == NULL && d->value == y->value);
    fl_backward(total(fv_mul(d, x)));
    CHECK_VALUES(fv_grad(x), 0, 9, 16);
    fl_scope_end(&s);
}

TEST(kept_variables_keep_their_graph) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_keep(PARAM(FL_SHAPE(2), 3, 4)), *y = fv_keep(total(fv_square(x)));
    fl_scope_end(&s);
    CHECK(fl_live_tensors() > 0);
    s = fl_scope_begin();
    CHECK(fl_backward(y));
    CHECK_VALUES(fv_grad(x), 0, 6, 8);
    fl_scope_end(&s);
    fv_drop(y);
    fv_drop(x);
    CHECK_NOTHING_LIVES();
}

TEST(retained_graphs) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *h = fv_exp(x), *y = total(fv_mul(h, h));
    CHECK(fl_backward(y, .retain_graph = true));
    double first = element(fv_grad(x), 0);
    CHECK(fl_backward(y));
    CHECK_NEAR(element(fv_grad(x), 0), 2 * first, 1e-12);
    CHECK(!fl_backward(y));
    CHECK_ERROR(
        "the graph behind sum was freed by an earlier backward; pass .retain_graph = true to it");
    CHECK_NEAR(element(fv_grad(x), 0), 2 * first, 1e-12);
    CHECK_NEAR(element(h->value, 0), exp(1), 1e-15); /* handles stay valid */
    CHECK(!fl_backward(total(h)));                   /* a new root on a freed part */
    CHECK_ERROR("the graph behind exp was freed");
    CHECK(fl_backward(total(fv_square(x)))); /* the leaf is as good as before */
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- fl_grad and double backward ---- */

TEST(fl_grad_touches_no_gradient) {
    fl_scope s = fl_scope_begin();
    seen at = {0};
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *w = PARAM(FL_SHAPE(2), 5, 6), *h = fv_mul(x, w),
           *y = total(fv_square(h));
    fv_hook(w, look, &at);
    CHECK_VALUES(fv_value(fl_grad(y, h, false)), 0, 10, 24);
    CHECK_VALUES(fv_value(fl_grad(y, x, false)), 0, 50, 144);
    CHECK_VALUES(fv_value(fl_grad(y, y, false)), 0, 1);
    CHECK(fv_grad(x) == NULL && fv_grad(w) == NULL && at.calls == 0);
    CHECK(fl_grad(y, PARAM(FL_SHAPE(1), 1), false) == NULL);
    CHECK(fl_grad(y, fv_num(1), false) == NULL);
    CHECK(fl_grad(total(x), w, false) == NULL);
    CHECK_NO_ERROR();
    CHECK(fl_backward(y)); /* the graph was kept */
    CHECK_VALUES(fv_grad(w), 0, 10, 48);
    CHECK_EQ_INT(at.calls, 1);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(double_backward_of_a_cubic) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, -3);
    fl_var *g = fl_grad(total(fv_mul(x, fv_mul(x, x))), x, true);
    CHECK_VALUES(fv_value(g), 1e-12, 12, 27);
    fl_var *g2 = fl_grad(total(g), x, true);
    CHECK_VALUES(fv_value(g2), 1e-12, 12, -18);
    fl_var *g3 = fl_grad(total(g2), x, true);
    CHECK_VALUES(fv_value(g3), 1e-12, 6, 6);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* y = x^3 w by elements: J v = 3 x^2 w v; its own gradient, and a direction through it again. */
TEST(forward_mode_of_a_cubic) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, -3), *w = PARAM(FL_SHAPE(2), 5, 1), *v = PARAM(FL_SHAPE(2), 1, 10);
    fl_var *y = fv_mul(fv_mul(x, fv_mul(x, x)), w);
    fl_var *jv = fl_jvp(y, x, v, true);
    CHECK_VALUES(fv_value(jv), 1e-12, 60, 270);
    CHECK_VALUES(fv_value(fl_grad(total(jv), x, false)), 1e-12, 60, -180);
    CHECK_VALUES(fv_value(fl_grad(total(jv), v, false)), 1e-12, 60, 27);
    CHECK_VALUES(fv_value(fl_jvp(jv, x, v, false)), 1e-12, 60, -1800);
    CHECK(fv_grad(x) == NULL && fv_grad(w) == NULL && fv_grad(v) == NULL);
    CHECK(fl_jvp(y, PARAM(FL_SHAPE(2), 1, 1), v, false) == NULL);
    CHECK(fl_jvp(fv_const(fv_value(y)), x, v, false) == NULL);
    CHECK_NO_ERROR();
    CHECK(fl_backward(total(y))); /* the graph was kept */
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(gradients_of_lists) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    seen at = {0};
    fl_var *x = PARAM(FL_SHAPE(2), 2, 3), *w = PARAM(FL_SHAPE(2), 5, 7), *alone = PARAM(FL_SHAPE(2), 1, 1);
    fl_var *h = fv_mul(x, w), *y = total(fv_square(h)), *z = total(fv_mul(h, fv_exp(x)));
    fl_var *g[5] = {alone, alone, alone, alone, alone};
    fv_hook(w, look, &at);
    CHECK(fl_grads(FV_LIST(y, z), FV_LIST(x, h, w, x), g, .retain_graph = true));
    const double e2 = exp(2), e3 = exp(3);
    CHECK_VALUES(g[0]->value, 1e-12, 5 * (20 + e2) + 10 * e2, 7 * (42 + e3) + 21 * e3);
    CHECK_VALUES(g[1]->value, 1e-12, 20 + e2, 42 + e3); /* h, and x behind it */
    CHECK_VALUES(g[2]->value, 1e-12, 2 * (20 + e2), 3 * (42 + e3));
    CHECK_VALUES(g[3]->value, 0, element(g[0]->value, 0), element(g[0]->value, 1));
    CHECK(!fv_grad(x) && !fv_grad(w) && !at.calls);
    g[0] = alone;
    CHECK(!fl_grads(FV_LIST(y), FV_LIST(x, alone), g, .retain_graph = true));
    CHECK_ERROR("fl_grads: no output depends on input 1");
    CHECK(g[0] == alone);
    CHECK(fl_grads(FV_LIST(y, fv_num(3)), FV_LIST(x, alone, fv_num(2)), g, .allow_unused = true,
                   .retain_graph = true));
    CHECK(g[0] && !g[1] && !g[2]);
    fl_var *t = fv_tanh(fv_exp(x)); /* whose backward may write over its gradient */
    CHECK(fl_grads(FV_LIST(total(fv_mul(t, w))), FV_LIST(t, x), g, .retain_graph = true));
    CHECK_VALUES(g[0]->value, 0, 5, 7);
    /* an output that is an input; given gradients, of a dtype of their own */
    fl_var *two = fv_const(fl_full(FL_SHAPE(2), 2, FL_F32)), *odd = fv_const(TENSOR(FL_SHAPE(2), 1, 3));
    CHECK(fl_grads(FV_LIST(h, x), FV_LIST(x, h), g, .retain_graph = true, .given = FV_LIST(two, odd)));
    CHECK_VALUES(g[0]->value, 0, 11, 17);
    CHECK_VALUES(g[1]->value, 0, 2, 2);
    CHECK(fl_grads(FV_LIST(y), FV_LIST(h), g)); /* frees what it went through, not what is behind h */
    CHECK(!fl_backward(y));
    CHECK_ERROR("was freed");
    CHECK(fl_backward(z));
    CHECK_EQ_INT(at.calls, 1);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A backward function that asks for gradients with respect to what the pass around it runs through:
   neither disturbs the other. */
static void asking_back(fl_node *n, fl_var *dy) {
    fl_var *h = fv_saved(n, 0), *x = fv_saved(n, 1), *g[2];
    const bool before = fl_no_grad(false);
    fl_var *y = fv_mul(fv_square(h), x);
    CHECK(fl_grads(FV_LIST(y), FV_LIST(x), g, .given = FV_LIST(dy), .create_graph = true));
    CHECK(fl_grads(FV_LIST(y), FV_LIST(h, x), g, .given = FV_LIST(dy), .create_graph = true));
    fl_no_grad(before);
    fv_add_grad(n, 0, fv_mul(dy, fv_mul(fv_num(2), fv_mul(h, x))));
    fv_add_grad(n, 1, fv_mul(dy, fv_square(h)));
}

TEST(gradients_asked_for_within_a_pass) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, 3), *h = fv_exp(x), *g[2], *want[2];
    fl_tensor *value = fl_mul(fl_square(h->value), x->value);
    fl_var *asked = fv_record(value, asking_back, FV_IN(h, x), FV_SAVE(h, x));
    fl_var *plain = fv_mul(fv_square(h), x), *rest = fv_mul(h, x); /* rest's gradients come first */
    CHECK(fl_grads(FV_LIST(total(fv_add(rest, asked))), FV_LIST(h, x), g, .create_graph = true));
    CHECK(fl_grads(FV_LIST(total(fv_add(rest, plain))), FV_LIST(h, x), want, .retain_graph = true));
    for (int i = 0; i < 2; i++)
        CHECK_VALUES(g[i]->value, 1e-9, element(want[i]->value, 0), element(want[i]->value, 1));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void freeing_back(fl_node *n, fl_var *dy) {
    fl_var *h = fv_saved(n, 0);
    const bool before = fl_no_grad(false);
    CHECK(fl_backward(total(fv_square(h)), .retain_graph = *(const bool *)fv_args(n)));
    fl_no_grad(before);
    fv_add_grad(n, 0, dy);
}

/* A backward function goes through nodes that the pass around it comes to later: kept, both add to x's
   gradient; freed, that is an error, and no node is touched that went. */
TEST(a_graph_freed_within_a_pass) {
    test_errors_return();
    for (int retain = 0; retain < 2; retain++) {
        fl_scope s = fl_scope_begin();
        const bool keeps = retain;
        fl_var *x = PARAM(FL_SHAPE(2), 1, -1), *h = fv_exp(fv_mul(x, fv_num(2)));
        fl_var *y = fv_record_args("freeing", fl_clone(h->value), freeing_back, FV_IN(h), FV_SAVE(h), &keeps,
                                   sizeof keeps);
        CHECK(fl_backward(total(fv_mul(y, fv_num(3)))) == keeps);
        if (!keeps) CHECK_ERROR("fl_backward: the graph behind exp was freed by an earlier backward; pass "
                                ".retain_graph = true to it");
        else CHECK_VALUES(fv_grad(x), 1e-12, 4 * exp(4) + 6 * exp(2), 4 * exp(-4) + 6 * exp(-2));
        fl_scope_end(&s);
        CHECK_NOTHING_LIVES();
    }
}

/* f = x^2 w, g = sin w: directions of both at once, by the rules by hand; then Hessian-vector products of
   a net by both ways. */
TEST(forward_mode_of_lists) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, -3), *w = PARAM(FL_SHAPE(2), 5, 1), *jv[3];
    fl_var *v = fv_const(TENSOR(FL_SHAPE(2), 1, 10)), *u = fv_const(TENSOR(FL_SHAPE(2), 3, 4));
    fl_var *f = fv_mul(fv_square(x), w), *g = fv_sin(w), *none = fv_exp(PARAM(FL_SHAPE(2), 0, 0));
    CHECK(fl_jvps(FV_LIST(f, none, g), FV_LIST(x, w), FV_LIST(v, u), jv, false));
    CHECK_VALUES(jv[0]->value, 1e-12, 20 + 12, -60 + 36);
    CHECK(jv[1] == NULL);
    CHECK_VALUES(jv[2]->value, 1e-12, 3 * cos(5), 4 * cos(1));
    CHECK(fl_jvps(FV_LIST(f), FV_LIST(x, w), FV_LIST(NULL, u), jv, false));
    CHECK_VALUES(jv[0]->value, 1e-12, 12, 36);
    CHECK(fl_jvps(FV_LIST(f), FV_LIST(x), FV_LIST(NULL), jv, false) && !jv[0]);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(hessian_vector_products_of_a_net) {
    fl_scope s = fl_scope_begin();
    enum { N = 6 };
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(3, 4, .dtype = FL_F64), fl_nn_tanh(),
                                         fl_nn_linear(4, 4, .dtype = FL_F64), fl_nn_sigmoid(),
                                         fl_nn_linear(4, 2, .dtype = FL_F64));
    const fv_list p = fl_nn_parameters(net);
    REQUIRE(p.n == N);
    fl_var *g[N], *v[N], *twice[N], *mixed[N];
    for (int i = 0; i < N; i++) v[i] = fv_const(sample(fl_shape_of(p.v[i]->value), 50 + (uint64_t)i));
    fl_var *y = fl_nn_forward(net, fv_const(sample(FL_SHAPE(5, 3), 9))), *loss = total(fv_square(y));
    CHECK(fl_grads(FV_LIST(loss), p, g, .create_graph = true));
    CHECK(fl_grads(fv_list_of(N, g), p, twice, .given = fv_list_of(N, v), .retain_graph = true));
    CHECK(fl_jvps(fv_list_of(N, g), p, fv_list_of(N, v), mixed, false));
    for (int i = 0; i < N; i++)
        for (int64_t k = 0; k < fl_numel(twice[i]->value); k++)
            CHECK_NEAR(element(twice[i]->value, k), element(mixed[i]->value, k), 1e-12);
    CHECK(fabs(element(twice[0]->value, 0)) > 1e-6);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(create_graph_in_backward) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, -3), *y = total(fv_mul(x, fv_mul(x, x)));
    CHECK(fl_backward(y, .create_graph = true));
    fl_var *penalty = total(fv_square(x->grad)); /* 9 x^4 */
    fv_zero_grad(x);
    CHECK(fl_backward(penalty));
    CHECK_VALUES(fv_grad(x), 1e-10, 36 * 8, 36 * -27);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void
inner_pass_back(fl_node *n,
                fl_var *dy) { /* a checkpoint: the graph of x^3 w is made again in backward */
    fl_var *x = fv_param(fv_value(fv_saved(n, 0))), *w = fv_saved(n, 1);
    fl_no_grad(false);
    fl_var *y = fv_mul(fv_mul(x, fv_square(x)), w);
    CHECK(fl_backward(y, .grad = fv_value(dy)));
    CHECK_NEAR(element(fv_value(fl_grad(total(fv_mul(x, w)), x, false)), 0), 5, 0);
    fv_add_grad(n, 0, x->grad);
}

TEST(a_pass_inside_a_pass) {
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 2, 3), *w = PARAM(FL_SHAPE(2), 5, 7), *h = fv_mul(x, w);
    fl_tensor *value = fl_mul(fl_mul(h->value, fl_square(h->value)), w->value);
    fl_var *y = fv_record(value, inner_pass_back, FV_IN(h), FV_SAVE(h, w));
    CHECK(fl_backward(total(fv_add(y, w))));
    CHECK_VALUES(fv_grad(x), 1e-6, 3 * 4 * pow(5, 4), 3 * 9 * pow(7, 4));
    CHECK_VALUES(fv_grad(w), 1e-6, 1 + 4 * 8 * pow(5, 3), 1 + 4 * 27 * pow(7, 3));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- versions ---- */

TEST(writes_after_saving_are_found) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *a = PARAM(FL_SHAPE(2, 3), 1, 2, 3, 4, 5, 6),
           *b = PARAM(FL_SHAPE(2, 3), 1, 1, 1, 1, 1, 1);
    fl_var *y = total(fv_mul(a, b));
    fl_assign(fl_select(fl_slice(a->value, 1, 1, 3, 1), 0, 0), fl_num(0)); /* through two views */
    CHECK(!fl_backward(y));
    CHECK_ERROR(
        "fl_backward: operand 0 of mul, f64 [2, 3], was written in place after it was saved");
    CHECK(fv_grad(b) == NULL);

    fl_var *e = fv_exp(a);
    y = total(e);
    fl_assign(e->value, fl_num(1));
    CHECK(!fl_backward(y));
    CHECK_ERROR("the result of exp, f64 [2, 3], was written");

    fl_var *c = fv_const(fl_zeros(FL_SHAPE(2), FL_F64));
    y = total(fv_record(fl_ones(FL_SHAPE(2), FL_F64), number_back, FV_IN(PARAM(FL_SHAPE(2), 1, 1)),
                        FV_SAVE(c)));
    fl_set_host(c->value, (double[]){1, 2}, 16);
    CHECK(!fl_backward(y));
    CHECK_ERROR("saved value 0 of a custom op, f64 [2]");

    y = total(fv_add(a, b)); /* add reads neither */
    fl_assign(a->value, fl_num(0));
    CHECK(fl_backward(y));
    y = total(fv_mul(a, fv_const(b->value))); /* reads b only */
    fl_assign(a->value, fl_num(1));
    CHECK(fl_backward(y));
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Layer norm, written out; other small tensors come and go between forward and backward. */
static fl_var *layer_norm(fl_var *x, fl_var *w) {
    fl_var *d = fv_sub(x, fv_mean(x, FL_AXES_KEEP(-1)));
    fl_var *var = fv_mean(fv_square(d), FL_AXES_KEEP(-1));
    return fv_mul(fv_mul(d, fv_rsqrt(fv_add(var, fv_num(1e-5)))), w);
}

static void layer_norm_gradients(bool disturb, double *out) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(sample(FL_SHAPE(4, 6), 1)), *w = fv_param(sample(FL_SHAPE(6), 2));
    fl_scope inner = fl_scope_begin();
    fl_var *y = fv_scope_return(&inner, total(fv_square(layer_norm(x, w))));
    for (int i = 0; disturb && i < 2000; i++) {
        fl_scope small = fl_scope_begin();
        fl_full(FL_SHAPE(1 + i % 24), NAN, FL_F64);
        fl_full(FL_SHAPE(4, 1), NAN, FL_F64);
        fl_scope_end(&small);
    }
    CHECK(fl_backward(y));
    CHECK(fl_to_host(fv_grad(x), out, 24 * 8) && fl_to_host(fv_grad(w), out + 24, 6 * 8));
    fl_scope_end(&s);
}

TEST(small_tensors_between_forward_and_backward) {
    double quiet[30], noisy[30];
    layer_norm_gradients(false, quiet);
    layer_norm_gradients(true, noisy);
    CHECK(memcmp(quiet, noisy, sizeof quiet) == 0 && !isnan(quiet[7]));
    CHECK_NOTHING_LIVES();
}

/* ---- errors ---- */

TEST(roots_and_operands_are_checked) {
    fl_set_error_handler(count_errors, NULL);
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y = fv_square(x);
    CHECK(!fl_backward(y));
    CHECK_ERROR("fl_backward: the root is f64 [2, 3]; reduce it to one element or pass .grad");
    CHECK_EQ_INT(raised, 1);
    CHECK(!fl_backward(y, .grad = fl_ones(FL_SHAPE(3, 2), FL_F64)));
    CHECK_ERROR("fl_backward: .grad is f64 [3, 2], expected the shape of the root, f64 [2, 3]");
    CHECK(!fl_backward(NULL));
    CHECK_ERROR("the root is NULL");
    CHECK(!fl_backward(fv_num(3)));
    CHECK_ERROR("does not depend on anything that requires a gradient");
    CHECK(fl_grad(y, x, false) == NULL);
    CHECK_ERROR("fl_grad: the root is f64 [2, 3]");
    CHECK(fl_grad(NULL, x, false) == NULL);
    CHECK_ERROR("fl_grad: the root is NULL");
    CHECK(fv_param(fl_zeros(FL_SHAPE(2), FL_I64)) == NULL);
    CHECK_ERROR("fv_param: i64 [2] cannot have a gradient");
    CHECK(!fv_set_grad(x, fv_num(1)));
    CHECK_ERROR("fv_set_grad: the gradient is");
    CHECK(!fv_set_grad(x, NULL));
    CHECK_ERROR("fv_set_grad: the gradient is NULL");
    CHECK(fv_sum_to(x, FL_SHAPE(4)) == NULL);
    CHECK_ERROR("fv_sum_to: shape [4] does not broadcast to that of x, f64 [2, 3]");
    CHECK(fv_sum_to(NULL, FL_SHAPE(4)) == NULL);
    CHECK_ERROR("fv_sum_to");
    CHECK(fv_tanh(NULL) == NULL &&
          fv_add(x, NULL) == NULL); /* the second passes: an error is pending */
    CHECK_ERROR("tanh");
    CHECK_EQ_INT(raised, 12);
    CHECK(fl_backward(y, .grad = fl_ones(FL_SHAPE(2, 3), FL_F32))); /* nothing was damaged */
    CHECK_VALUES(fv_grad(x), 0, 2, 4, 6, 8, 10, 12);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(backward_refuses_while_an_error_is_pending) {
    fl_set_error_handler(count_errors, NULL);
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *y = total(x);
    fv_add(x, fv_const(fl_ones(FL_SHAPE(3), FL_F64)));
    CHECK_EQ_INT(raised, 1);
    CHECK(!fl_backward(y) && fl_grad(y, x, false) == NULL && fv_grad(x) == NULL);
    CHECK_EQ_INT(raised, 1);
    CHECK_ERROR("do not broadcast");
    CHECK(fl_backward(y));
    fl_scope_end(&s);
}

static void failing_back(fl_node *n, fl_var *dy) {
    (void)n, (void)dy;
    fl_fail("failing_back: on purpose");
    fl_raise();
}

TEST(an_error_in_the_middle) {
    fl_set_error_handler(count_errors, NULL);
    fl_scope s = fl_scope_begin();
    fl_var *x = PARAM(FL_SHAPE(2), 1, 2), *h = fv_exp(x);
    for (int i = 0; i < 10; i++) h = fv_tanh(h);
    fl_var *bad = fv_record(fl_clone(h->value), failing_back, FV_IN(h), FV_SAVE(h));
    fl_var *y = total(fv_mul(fv_exp(bad), h));
    CHECK(!fl_backward(y));
    CHECK_EQ_INT(raised, 1);
    CHECK(!raised_in_pass);
    CHECK_STR(last_error, "failing_back: on purpose");
    CHECK_ERROR("on purpose");
    CHECK(fv_grad(x) == NULL && fl_grad_enabled());
    CHECK(!fl_backward(y));
    CHECK_ERROR("was freed by an earlier backward");
    CHECK(fl_backward(total(h))); /* this part was not reached */
    CHECK(fv_grad(x) != NULL);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- size ---- */

/* A million nodes forward, backward and released without ever being walked. */
static int chain(void) {
    int64_t n = 1000000;
    for (int walked = 1; walked >= 0; walked--) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_ones(FL_SHAPE(2), FL_F64)), *y = x;
        for (int64_t i = 0; i < n; i++) {
            fl_scope step = fl_scope_begin();
            fl_var *next = fv_keep(fv_neg(y));
            fl_scope_end(&step);
            if (y != x) fv_drop(y);
            y = next;
        }
        if (walked && (!fl_backward(total(y)) || element(fv_grad(x), 0) != 1)) return 1;
        fv_drop(y);
        fl_scope_end(&s);
    }
    return fl_live_tensors() != 0 || test_live_buffers() != 0;
}

TEST(a_million_nodes_on_a_small_stack) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit small = {256 << 10, 256 << 10};
        setrlimit(RLIMIT_STACK, &small);
        execl("/proc/self/exe", "test_autograd", "--chain", (char *)NULL);
        _exit(2);
    }
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- training ---- */

/* A small step with views, broadcast, products, reductions, a hook and both orders of derivatives;
   sums up its gradients. */
static bool step(uint64_t key, double out[4]) {
    fl_scope s = fl_scope_begin();
    if (fl_error()) return false; /* no scope: what follows would belong to the one around it */
    seen at = {0};
    fl_var *x = fv_const(sample(FL_SHAPE(5, 4), key)),
           *w = fv_param(sample(FL_SHAPE(4, 3), key + 1));
    fl_var *b = fv_param(sample(FL_SHAPE(3), key + 2)), *h = fv_tanh(fv_add(fv_matmul(x, w), b));
    if (h) fv_hook(h, look, &at);
    fl_var *p = fv_log_softmax(fv_concat((fl_var *[]){h, fv_slice(h, 1, 0, 2, 1)}, 2, 1), -1);
    fl_var *loss = fv_mean(
        fv_square(fv_sub(p, fv_select(x, 1, 0) ? fv_unsqueeze(fv_select(x, 1, 0), 1) : NULL)),
        FL_ALL_AXES);
    fl_var *slope_of = fl_grad(loss, b, true);
    bool ok = fl_backward(fv_add(loss, total(fv_square(slope_of))));
    fl_tensor *sums[] = {fl_sum(fv_grad(w), FL_ALL_AXES), fl_sum(fv_grad(b), FL_ALL_AXES),
                         fv_value(loss)};
    for (int i = 0; i < 3; i++) out[i] = fl_item(sums[i]);
    out[3] = at.first;
    ok = ok && !fl_error();
    fl_scope_end(&s);
    return ok;
}

static int64_t heap_blocks, heap_left;
static bool heap_once;
static bool heap_failed;

/* Counts blocks; fails the heap_left-th request from now, and all after it unless heap_once. */
static void *counting_heap(void *user, void *p, size_t bytes) {
    (void)user;
    if (bytes == 0) {
        if (p) __atomic_sub_fetch(&heap_blocks, 1, __ATOMIC_RELAXED);
        free(p);
        return NULL;
    }
    int64_t left = __atomic_sub_fetch(&heap_left, 1, __ATOMIC_RELAXED);
    if (heap_once ? left == 0 : left <= 0) {
        heap_failed = true;
        return NULL;
    }
    void *q = realloc(p, bytes);
    if (q && !p) __atomic_add_fetch(&heap_blocks, 1, __ATOMIC_RELAXED);
    return q;
}

TEST(ten_thousand_steps_in_flat_memory) {
    heap_left = INT64_MAX;
    fl_heap_use(counting_heap, NULL);
    double out[4];
    for (int i = 0; i < 200; i++) CHECK(step(1, out));
    int64_t blocks = heap_blocks, bytes = fl_mem_stats_of(NULL).reserved;
    for (int i = 0; i < 10000; i++)
        if (!CHECK(step(1, out))) break;
    CHECK_EQ_INT(heap_blocks, blocks);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, bytes);
    CHECK_NOTHING_LIVES();
}

static void *train(void *arg) {
    double *out = arg;
    for (int i = 0; i < 300; i++)
        if (!step((uint64_t)out[4], out)) out[0] = NAN;
    return NULL;
}

TEST(two_threads_two_models) {
    double alone[2][5] = {{0, 0, 0, 0, 10}, {0, 0, 0, 0, 20}},
           both[2][5] = {{0, 0, 0, 0, 10}, {0, 0, 0, 0, 20}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) train(alone[i]);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&t[i], NULL, train, both[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    CHECK(memcmp(alone, both, sizeof alone) == 0 && memcmp(alone[0], alone[1], 4 * 8) != 0);
    CHECK(!isnan(both[0][0]) && !isnan(both[1][0]));
    CHECK_NOTHING_LIVES();
}

/* ---- memory runs out ---- */

typedef struct attempt {
    int64_t n;
    bool buffers, once, failed, ok;
    double out[4];
} attempt;

/* One step in a thread of its own, whose caches are empty, with the n-th request failing;
   then the same step again. */
static void *attempt_step(void *arg) {
    attempt *a = arg;
    double ignored[4];
    fl_mem_manager *failing = a->buffers ? fl_mem_failing(NULL, a->n, !a->once) : NULL;
    fl_mem_manager *before = failing ? fl_mem_set_current(failing) : NULL;
    heap_once = a->once;
    heap_failed = false;
    if (!a->buffers) __atomic_store_n(&heap_left, a->n, __ATOMIC_RELAXED);
    bool ok = step(1, ignored);
    __atomic_store_n(&heap_left, INT64_MAX, __ATOMIC_RELAXED);
    if (failing) {
        fl_mem_set_current(before);
        fl_mem_close(failing);
    }
    a->failed = !ok;
    CHECK(ok == !fl_error());
    fl_error_clear();
    CHECK_NOTHING_LIVES();
    CHECK(fl_grad_enabled());
    a->ok = step(1, a->out);
    return NULL;
}

static void sweep(bool buffers, bool once) {
    double want[4];
    CHECK(step(1, want));
    int64_t failures = 0, misses = 0;
    for (int64_t n = 1; misses < 3 && n < 5000; n++) {
        attempt a = {.n = n, .buffers = buffers, .once = once};
        pthread_t t;
        fl_mem_trim();
        REQUIRE(pthread_create(&t, NULL, attempt_step, &a) == 0);
        pthread_join(t, NULL);
        failures += a.failed;
        bool reached =
            a.failed ||
            (!buffers && heap_failed); /* a request that was tried again does not count as a miss */
        misses = reached || (buffers && once && n < 200) ? 0 : misses + 1;
        if (!CHECK(a.ok && memcmp(a.out, want, sizeof want) == 0)) break;
    }
    CHECK(once || failures > 50);
    CHECK_NOTHING_LIVES();
}

TEST(memory_runs_out_anywhere) {
    test_errors_return();
    heap_left = INT64_MAX;
    fl_heap_use(counting_heap, NULL);
    sweep(false, false);
    sweep(false, true);
    sweep(true, false);
    sweep(true, true);
}

/* What is computed again is a choice by bytes, and the gradients are the same bits. */
TEST(values_are_computed_again_from_a_size_on) {
    static const struct {
        int64_t from;
        bool small, large;
    } rows[] = {{-1, false, true}, {0, false, false}, {1, true, true}, {1 << 20, false, false}};
    const fl_shape shapes[] = {FL_SHAPE(8, 16), FL_SHAPE(128, 256)}; /* 512 bytes, 128 KiB */
    for (int k = 0; k < 2; k++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {1, 0};
        fl_tensor *data = fl_normal(shapes[k], 0, 1, FL_F32, &rng), *first = NULL;
        for (int i = 0; i < 4; i++) {
            CHECK_EQ_INT(fl_set_recompute(rows[i].from), -1);
            fl_var *x = fv_param(data), *n = fv_layer_norm(x, 1, NULL, NULL, 1e-5), *y = fv_square(n);
            CHECK(fv_recomputed(n) == (k ? rows[i].large : rows[i].small));
            CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
            CHECK_EQ_INT(fl_set_recompute(-1), rows[i].from);
            if (!first) first = fl_clone(fv_grad(x));
            CHECK(fl_item(fl_all(fl_eq(fv_grad(x), first), FL_ALL_AXES)) == 1);
        }
        fl_scope_end(&s);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--chain")) return chain();
    return test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
