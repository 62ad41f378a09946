/* test_edges.c - what ops do at the edges, where PyTorch and NumPy say what is right */
#include "../fl.h"
#include "test.h"

#include <math.h>

static fl_tensor *row_of(fl_dtype d, int64_t n, const double *v) {
    return fl_cast(fl_from_host(v, FL_SHAPE(n), FL_F64), d);
}
#define ROW(d, ...) row_of(d, FL_COUNT(double, __VA_ARGS__), FL_ARRAY(double, __VA_ARGS__))

static bool is_row(fl_tensor *t, int64_t n, const double *v) {
    double got[16];
    t = t ? fl_cast(t, FL_F64) : NULL;
    if (!t || fl_numel(t) != n || !fl_to_host(t, got, (size_t)n * sizeof *got)) return false;
    for (int64_t i = 0; i < n; i++)
        if (got[i] != v[i] && !(isnan(got[i]) && isnan(v[i]))) return false;
    return true;
}
#define CHECK_ROW(t, ...) CHECK(is_row(t, FL_COUNT(double, __VA_ARGS__), FL_ARRAY(double, __VA_ARGS__)))

/* x >> width and more keeps the sign, x << width nothing, for every width and wherever the number stands. */
TEST(shifts_past_the_width) {
    fl_scope s = fl_scope_begin();
    CHECK_ROW(fl_shift_right(ROW(FL_I32, -8, -1), ROW(FL_I32, 32, 40)), -1, -1);
    static const fl_dtype dtypes[] = {FL_I8, FL_I16, FL_I32, FL_I64, FL_U8};
    for (int i = 0; i < 5; i++) {
        const fl_dtype d = dtypes[i];
        const double bits = 8 * (double)fl_dtype_size(d), sign = d == FL_U8 ? 0 : -1;
        fl_tensor *x = ROW(d, 100, 100, 100), *by = ROW(d, bits - 1, bits, 127), *negative = fl_neg(x);
        CHECK_ROW(fl_shift_right(x, by), 0, 0, 0);
        CHECK_ROW(fl_shift_right(negative, by), d == FL_U8 ? 1 : -1, sign, sign);
        CHECK_ROW(fl_shift_left(negative, ROW(d, bits, bits + 1, 127)), 0, 0, 0);
        CHECK_ROW(fl_shift_right(negative, fl_int((int64_t)bits)), sign, sign, sign);
    }
    fl_scope_end(&s);
}

TEST(logsumexp_of_nothing) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(2, 0), FL_F32)), *y = fv_logsumexp(x, FL_AXES(1));
    CHECK_ROW(fv_value(y), -INFINITY, -INFINITY);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)) && fl_same_shape(fv_grad(x), fv_value(x)));
    CHECK_ROW(fl_logsumexp(fl_zeros(FL_SHAPE(0), FL_F64), FL_ALL_AXES), -INFINITY);
    CHECK(fl_numel(fl_logsumexp(fl_zeros(FL_SHAPE(0, 3), FL_F32), FL_AXES(1))) == 0);
    fl_scope_end(&s);
}

TEST(gradient_of_a_product_of_nothing) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(2, 0), FL_F32));
    CHECK(fl_backward(fv_sum(fv_prod(x, FL_AXES(1)), FL_ALL_AXES)));
    CHECK(fv_grad(x) && fl_same_shape(fv_grad(x), fv_value(x)));
    fl_scope_end(&s);
}

/* The margin is a number of the operands' dtype, whatever is chosen between it and 0. */
TEST(multi_margin_keeps_the_digits_of_its_margin) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_reshape(ROW(FL_F64, 0.25, 0.5, 0.125), FL_SHAPE(1, 3));
    const double want = ((0.1 - 0.25 + 0.5) + (0.1 - 0.25 + 0.125 > 0 ? 0.1 - 0.25 + 0.125 : 0)) / 3;
    CHECK_NEAR(fl_item(fl_multi_margin_loss(x, fl_zeros(FL_SHAPE(1), FL_I64), 0.1, FL_MEAN)), want, 1e-16);
    fl_scope_end(&s);
}

TEST(output_pad_is_of_its_dim) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1, 1, 3, 3), FL_F32), *w = fl_ones(FL_SHAPE(1, 1, 3, 3), FL_F32);
    fl_tensor *y = fl_conv_transpose(x, w, NULL, .stride = {2}, .output_pad = {1, 0});
    CHECK(y && y->shape[2] == 8 && y->shape[3] == 7);
    fl_scope_end(&s);
}

TEST(a_shape_of_nine_dims_says_so) {
    char text[200];
    fl_shape s = {9, {1, 2, 3, 4, 5, 6, 7, 8}};
    CHECK_STR(fl_shape_text(s, text, sizeof text), "[1, 2, 3, 4, 5, 6, 7, 8, ... of 9 dims]");
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
