/* test_edges.c - what ops do at the edges, where PyTorch and NumPy say what is right */
#include "../fl_all.h"
#include "../examples/extend/naive.h"
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

/* One row without an axis of rows: the loss has the target's shape, as PyTorch's. */
TEST(multi_margin_of_one_row) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_from_host((double[]){0.5, -1, 0.25}, FL_SHAPE(3), FL_F64));
    fl_tensor *one = fl_full(FL_SHAPE(1), 2, FL_I64), *none = fl_full(FL_SCALAR_SHAPE, 2, FL_I64);
    fl_tensor *rows = fl_multi_margin_loss(fl_unsqueeze(fv_value(x), 0), one, 1, FL_NONE, .p = 2);
    for (int dims = 0; dims < 2; dims++)
        for (int r = 0; r < 3; r++) {
            fl_var *y = fv_multi_margin_loss(x, dims ? one : none, 1, (fl_reduction)r, .p = 2);
            REQUIRE(y);
            CHECK(fv_value(y)->ndim == (dims && r == FL_NONE));
            CHECK_NEAR(fl_item(fv_value(y)), fl_item(rows), 0);
        }
    CHECK(fl_backward(fv_multi_margin_loss(x, none, 1, FL_SUM)));
    CHECK_NEAR(fl_item(fl_select(fv_grad(x), 0, 0)), 1.0 / 3, 1e-16);
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

/* ---- a 0-d tensor takes the axes 0 and -1: along them it has one element ---- */

typedef fl_tensor *(*along_fn)(fl_tensor *x, int axis);
typedef struct along {
    const char *name;
    along_fn fn;
    double want; /* of x = 2 */
} along;

#define ALONG(name, ...) \
    static fl_tensor *along_##name(fl_tensor *x, int axis) { return __VA_ARGS__; }
ALONG(sum, fl_sum(x, FL_AXES(axis)))
ALONG(sum_kept, fl_sum(x, FL_AXES_KEEP(axis)))
ALONG(prod, fl_prod(x, FL_AXES(axis)))
ALONG(amax, fl_amax(x, FL_AXES(axis)))
ALONG(mean, fl_mean(x, FL_AXES(axis)))
ALONG(variance, fl_variance(x, FL_AXES(axis), 1))
ALONG(std, fl_std(x, FL_AXES(axis), 0))
ALONG(all, fl_all(x, FL_AXES(axis)))
ALONG(any, fl_any(x, FL_AXES(axis)))
ALONG(count_nonzero, fl_count_nonzero(x, FL_AXES(axis)))
ALONG(logsumexp, fl_logsumexp(x, FL_AXES(axis)))
ALONG(norm, fl_norm(x, 2, FL_AXES(axis)))
ALONG(nansum, fl_nansum(x, FL_AXES(axis)))
ALONG(nanmean, fl_nanmean(x, FL_AXES(axis)))
ALONG(argmax, fl_argmax(x, axis, false))
ALONG(argmin, fl_argmin(x, axis, true))
ALONG(max_along, fl_max_along(x, axis, false, NULL))
ALONG(min_along, fl_min_along(x, axis, true, NULL))
ALONG(kthvalue, fl_kthvalue(x, 1, axis, false, NULL))
ALONG(median, fl_median(x, axis, false, NULL))
ALONG(nanmedian, fl_nanmedian(x, axis, false, NULL))
ALONG(quantile, fl_quantile(x, 0.5, axis, false, FL_QUANTILE_LINEAR))
ALONG(nanquantile, fl_nanquantile(x, 0.5, axis, false, FL_QUANTILE_LINEAR))
ALONG(cumsum, fl_cumsum(x, axis))
ALONG(cumprod, fl_cumprod(x, axis))
ALONG(cummax, fl_cummax(x, axis, NULL))
ALONG(cummin, fl_cummin(x, axis, NULL))
ALONG(logcumsumexp, fl_logcumsumexp(x, axis))
ALONG(sort, fl_sort(x, axis, true, NULL))
ALONG(argsort, fl_argsort(x, axis, false))
ALONG(topk, fl_topk(x, 1, axis, false, NULL))
ALONG(softmax, fl_softmax(x, axis))
ALONG(log_softmax, fl_log_softmax(x, axis))
ALONG(gather, fl_gather(x, axis, fl_to(fl_zeros(FL_SCALAR_SHAPE, FL_I64), fl_backend_name(x))))
ALONG(scatter, fl_scatter(x, axis, fl_cast(fl_sub(x, x), FL_I64), fl_mul(x, x)))
ALONG(scatter_add, fl_scatter_add(x, axis, fl_cast(fl_sub(x, x), FL_I64), x))
ALONG(index_select, fl_index_select(x, axis, fl_to(fl_zeros(FL_SHAPE(1), FL_I64), fl_backend_name(x))))
ALONG(index_fill, fl_index_fill(x, axis, fl_to(fl_zeros(FL_SHAPE(1), FL_I64), fl_backend_name(x)), 3))
ALONG(flip, fl_flip(x, 1, &axis))
ALONG(movedim, fl_movedim(x, axis, 0))
ALONG(transpose, fl_transpose(x, 0, axis))
ALONG(squeeze, fl_squeeze(x, axis))
ALONG(normalize, fl_normalize(x, 2, axis, 1e-12))
ALONG(cosine_similarity, fl_cosine_similarity(x, x, axis, 1e-8))
ALONG(slice, fl_slice(x, axis, 0, 1, 1))
ALONG(select, fl_select(x, axis, 0))
ALONG(narrow, fl_narrow(x, axis, 0, 1))
ALONG(concat, fl_concat((fl_tensor *[]){x, x}, 2, axis))
ALONG(diff, fl_diff(x, axis))
ALONG(trapezoid, fl_trapezoid(x, 1, axis))
ALONG(roll, fl_roll(x, 1, axis))
ALONG(unflatten, fl_unflatten(x, axis, FL_SHAPE(1, 1)))
ALONG(repeat_interleave, fl_repeat_interleave(x, 3, axis))
ALONG(glu, fl_glu(x, axis))

#define TAKES(name, want) {#name, along_##name, want}
static const along taken[] = {
    TAKES(sum, 2), {"sum", along_sum_kept, 2}, TAKES(prod, 2), TAKES(amax, 2), TAKES(mean, 2),
    TAKES(variance, NAN), TAKES(std, 0), TAKES(all, 1), TAKES(any, 1), TAKES(count_nonzero, 1),
    TAKES(logsumexp, 2), TAKES(norm, 2), TAKES(nansum, 2), TAKES(nanmean, 2), TAKES(argmax, 0),
    TAKES(argmin, 0), TAKES(max_along, 2), TAKES(min_along, 2), TAKES(kthvalue, 2), TAKES(median, 2),
    TAKES(nanmedian, 2), TAKES(quantile, 2), TAKES(nanquantile, 2), TAKES(cumsum, 2), TAKES(cumprod, 2),
    TAKES(cummax, 2), TAKES(cummin, 2), TAKES(logcumsumexp, 2), TAKES(sort, 2), TAKES(argsort, 0),
    TAKES(topk, 2), TAKES(softmax, 1), TAKES(log_softmax, 0), TAKES(gather, 2), TAKES(scatter, 4),
    TAKES(scatter_add, 4), TAKES(index_select, 2), TAKES(index_fill, 3), TAKES(flip, 2),
    TAKES(movedim, 2), TAKES(transpose, 2), TAKES(squeeze, 2), TAKES(normalize, 1),
    TAKES(cosine_similarity, 1),
};
/* PyTorch refuses to cut and to join what has no axis. */
static const along refused[] = {
    TAKES(slice, 0), TAKES(select, 0), TAKES(narrow, 0), TAKES(concat, 0), TAKES(diff, 0),
    TAKES(trapezoid, 0), TAKES(roll, 0), TAKES(unflatten, 0), TAKES(repeat_interleave, 0), TAKES(glu, 0),
};

static void let_return(const char *text, void *user) { (void)text, (void)user; }

static bool fails(const along *a, fl_tensor *x, int axis) {
    const bool failed = !a->fn(x, axis) && fl_error() && strstr(fl_error(), a->name);
    fl_error_clear();
    return failed;
}

static void check_axes_on(const char *backend) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_to(fl_full(FL_SCALAR_SHAPE, 2, FL_F32), backend);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        fl_tensor *y = NULL;
        for (int axis = -1; axis < 1; axis++) {
            if (!CHECK((y = taken[i].fn(x, axis)) && y->ndim == 0 && is_row(y, 1, &taken[i].want)))
                printf("%s along axis %d on %s: %s\n", taken[i].name, axis, backend,
                       fl_error() ? fl_error() : "");
            fl_error_clear();
        }
        if (!CHECK(fails(&taken[i], x, 1) && fails(&taken[i], x, -2))) printf("%s\n", taken[i].name);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!CHECK(fails(&refused[i], x, 0) && fails(&refused[i], x, -1))) printf("%s\n", refused[i].name);
    fl_scope_end(&s);
}

TEST(axes_of_a_number) {
    fl_set_error_handler(let_return, NULL);
    check_axes_on("cpu");
    fl_backend_use(fl_backend_naive(), NULL);
    check_axes_on("naive");
}

TEST(gradients_along_an_axis_of_a_number) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_full(FL_SCALAR_SHAPE, 2, FL_F64));
    fl_tensor *zero = fl_zeros(FL_SCALAR_SHAPE, FL_I64), *first = fl_zeros(FL_SHAPE(1), FL_I64);
    const int axes[] = {-1};
    fl_var *y[] = {fv_sum(x, FL_AXES(-1)), fv_prod(x, FL_AXES(0)), fv_mean(x, FL_AXES(0)),
                   fv_amax(x, FL_AXES(-1)), fv_logsumexp(x, FL_AXES(0)), fv_norm(x, 2, FL_AXES(0)),
                   fv_max_along(x, -1, false, NULL),
                   fv_median(x, 0, false, NULL), fv_cumsum(x, -1), fv_cumprod(x, -1), fv_cummax(x, 0, NULL),
                   fv_logcumsumexp(x, -1), fv_sort(x, -1, false, NULL), fv_topk(x, 1, 0, false, NULL),
                   fv_gather(x, -1, zero), fv_index_select(x, -1, first), fv_flip(x, 1, axes),
                   fv_transpose(x, 0, -1), fv_squeeze(x, -1), fv_flatten(x, 0, -1)};
    for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
        fv_zero_grad(x);
        if (!CHECK(fl_backward(y[i]) && fl_item(fv_grad(x)) == 1)) printf("number %d\n", (int)i);
    }
    fl_scope_end(&s);
}

/* ---- an error names the function that was called, and the module that called it ---- */

static bool fails_with(bool failed, const char *start) {
    const bool ok = failed && fl_error() && !strncmp(fl_error(), start, strlen(start));
    if (!ok) printf("%s, wanted %s\n", fl_error() ? fl_error() : "no error", start);
    fl_error_clear();
    return ok;
}
#define CHECK_FAILS(call, start) CHECK(fails_with(!(call), start))

TEST(errors_name_what_was_called) {
    fl_set_error_handler(let_return, NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *none = fl_ones(FL_SHAPE(2, 0), FL_F32);
    fl_var *v = fv_param(x);
    CHECK_FAILS(fl_logsumexp(x, FL_AXES(5)), "fl_logsumexp: axis 5 is out of range for shape [2, 3]");
    CHECK_FAILS(fl_norm(x, 2, FL_AXES(5)), "fl_norm: axis 5 is out of range for shape [2, 3]");
    CHECK_FAILS(fv_norm(fv_param(none), INFINITY, FL_AXES(1)), "fl_norm: no elements");
    CHECK_FAILS(fl_argsort(x, 5, false), "fl_argsort: axis 5");
    CHECK_FAILS(fl_max_along(x, 5, false, NULL), "fl_max_along: axis 5");
    CHECK_FAILS(fv_min_along(v, 5, false, NULL), "fl_min_along: axis 5");
    fl_tensor *target = fl_full(FL_SHAPE(2), 3, FL_I64);
    CHECK_FAILS(fl_nll_loss(x, target), "fl_nll_loss: index 3 is out of range for axis 1 of size 3");
    CHECK_FAILS(fv_cross_entropy(v, target), "fl_cross_entropy: index 3 is out of range");
    CHECK_FAILS(fl_embedding(target, x, -1), "fl_embedding: index 3 is out of range");
    CHECK_FAILS(fl_add(x, fl_ones(FL_SHAPE(2), FL_F32)), "fl_add: shapes [2, 3] and [2]");
    fl_scope_end(&s);
}

TEST(errors_name_the_module) {
    fl_set_error_handler(let_return, NULL);
    fl_nn_module *stem = fl_nn_sequential(fl_nn_conv2d(1, 2, 5)), *net = fl_nn_sequential(fl_nn_relu());
    fl_nn_add(net, "stem", stem);
    fl_scope s = fl_scope_begin();
    fl_var *image = fv_const(fl_ones(FL_SHAPE(1, 1, 3, 3), FL_F32));
    CHECK_FAILS(fl_nn_forward(net, image),
                "fl_nn_conv2d 'stem.0': fl_conv: the kernel of w [2, 1, 5, 5] does not "
                                            "fit x [1, 1, 3, 3]");
    CHECK_FAILS(fl_nn_forward(net, fv_const(fl_ones(FL_SHAPE(3), FL_F32))),
                "fl_nn_conv2d 'stem.0': input [3]");
    CHECK_FAILS(fl_matmul(fv_value(image), fl_ones(FL_SHAPE(2), FL_F32)), "fl_matmul: ");
    fl_scope_end(&s);
    fl_nn_free(net);
}

/* Compositions are registered when the library starts: a record runs on a backend without its slot though
   nobody has called the public function. */
TEST(a_fused_record_has_its_composition_from_the_start) {
    fl_backend_use(fl_backend_naive(), NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_to(fl_zeros(FL_SHAPE(1, 2), FL_F32), "naive");
    const fl_op op = fl_op_by_name("softmax");
    CHECK(!fl_backend_has(fl_backend_index("naive"), op));
    fl_call c = {.op = op, .n_out = 1, .n_in = 1, .in = {x}, .args = &(fl_axis_args){1}};
    c.out[0] = fl_out_like(x, FL_F32);
    CHECK(fl_call_run(&c));
    CHECK_ROW(c.out[0], 0.5, 0.5);
    for (fl_op i = FL_TABLE_OPS; i < fl_op_count(); i++) {
        const fl_op_info *info = fl_op_get_info(i);
        if (!CHECK(info->compose || !strcmp(info->uses, "cpu"))) printf("%s\n", info->name);
    }
    fl_scope_end(&s);
}

/* An operand that broadcasts along the axis counts once for each line of the other. */
TEST(cosine_similarity_broadcasts_along_its_axis) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_const(fl_from_host((double[]){1, 2}, FL_SHAPE(1, 1, 2), FL_F64));
    fl_var *y = fv_const(fl_from_host((double[]){1, 2, 3, -1}, FL_SHAPE(2, 1, 2), FL_F64));
    const double want[] = {4 / sqrt(2 * 10.0), 2 / sqrt(8 * 5.0)};
    for (int swap = 0; swap < 2; swap++)
        for (int axis = -3; axis < 1; axis += 3) {
            fl_var *z = fv_cosine_similarity(swap ? y : x, swap ? x : y, axis, 1e-8);
            REQUIRE(z && fl_numel(fv_value(z)) == 2);
            for (int i = 0; i < 2; i++) CHECK_NEAR(((double *)fl_data(fv_value(z)))[i], want[i], 1e-15);
        }
    /* fewer dims: the axis is of the broadcast shape */
    fl_tensor *row = fl_from_host((double[]){1, 1, 1}, FL_SHAPE(3), FL_F64);
    fl_tensor *other = fl_from_host((double[]){2, 5, 0, 3, 1, -1}, FL_SHAPE(2, 3), FL_F64);
    fl_tensor *z = fl_cosine_similarity(row, other, 1, 1e-8);
    REQUIRE(z && fl_numel(z) == 2);
    CHECK_NEAR(((double *)fl_data(z))[0], 7 / sqrt(3 * 29.0), 1e-15);
    z = fl_cosine_similarity(row, other, 0, 1e-8); /* row twice: (1, 1) beside (2, 3), (5, 1), (0, -1) */
    REQUIRE(z && fl_numel(z) == 3);
    CHECK_NEAR(((double *)fl_data(z))[1], 6 / sqrt(2 * 26.0), 1e-15);
    z = fl_cosine_similarity(fl_num(1), fl_from_host((double[]){1, 2, 4, 0}, FL_SHAPE(4), FL_F64), 0, 1e-8);
    REQUIRE(z);
    CHECK_NEAR(fl_item(z), 7 / sqrt(4 * 21.0), 1e-15);
    fl_scope_end(&s);
}

/* An option that could not be made is no option left out: the loss is not one without weights. */
TEST(a_weight_that_failed_is_not_left_out) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *target = fl_zeros(FL_SHAPE(2), FL_I64);
    test_errors_return();
    fl_tensor *weight = fl_ones(FL_SHAPE(-1), FL_F32);
    CHECK(!fl_binary_cross_entropy(x, x, FL_MEAN, .weight = weight));
    CHECK(!fl_binary_cross_entropy_with_logits(x, x, FL_MEAN, .pos_weight = weight));
    CHECK(!fl_cross_entropy(x, target, .weight = weight));
    CHECK(!fl_nll_loss(x, target, .weight = weight));
    CHECK_ERROR("fl_ones: shape [-1]");
    fl_scope_end(&s);
}

/* ---- arguments that PyTorch takes, or refuses ---- */

TEST(softmax_modules_take_a_number) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_const(fl_full(FL_SCALAR_SHAPE, 3, FL_F32));
    fl_nn_module *m[] = {fl_nn_softmax(0), fl_nn_softmin(-1), fl_nn_log_softmax(-1), fl_nn_softmax(1)};
    for (int i = 0; i < 3; i++) {
        fl_var *y = fl_nn_forward(m[i], x);
        CHECK(y && fv_value(y)->ndim == 0 && fl_item(fv_value(y)) == (i < 2));
    }
    test_errors_return();
    CHECK(!fl_nn_forward(m[3], x));
    CHECK_ERROR("axis 1 is out of range for input []");
    for (int i = 0; i < 4; i++) fl_nn_free(m[i]);
    fl_scope_end(&s);
}

/* Indices are i64 or i32; where they count from the end, in both. */
TEST(indices_of_32_bits) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_reshape(ROW(FL_F32, 1, 2, 3, 4, 5, 6), FL_SHAPE(2, 3)));
    fl_var *one = fv_const(fl_ones(FL_SHAPE(1, 3), FL_F32));
    fl_tensor *v = fv_value(x), *ones = fv_value(one), *places = ROW(FL_I32, 1, 0, 1);
    fl_tensor *at = fl_unsqueeze(places, 0);
    fl_var *y = fv_gather(x, 0, at);
    CHECK_ROW(fv_value(y), 4, 2, 6);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    CHECK_ROW(fv_grad(x), 0, 1, 0, 1, 0, 1);
    CHECK_ROW(fl_scatter(v, 0, at, ones), 1, 1, 3, 1, 5, 1);
    CHECK_ROW(fl_scatter_add(v, 0, at, ones), 1, 3, 3, 5, 5, 7);
    CHECK_ROW(fl_scatter_reduce(v, 0, at, ones, FL_SCATTER_AMIN, true), 1, 1, 3, 1, 5, 1);
    CHECK_ROW(fl_index_select(v, 0, ROW(FL_I32, 1)), 4, 5, 6);
    CHECK_ROW(fl_take(v, ROW(FL_I32, -1, 0)), 6, 1);
    CHECK_ROW(fl_take_along(v, at, 0), 4, 2, 6);
    CHECK_ROW(fl_index(v, (fl_tensor *[]){ROW(FL_I32, -1)}, 1), 4, 5, 6);
    CHECK_ROW(fl_index_add(v, 0, ROW(FL_I32, 0), ones, 2), 3, 4, 5, 4, 5, 6);
    CHECK_ROW(fl_index_fill(v, 1, ROW(FL_I32, -1), 9), 1, 2, 9, 4, 5, 9);
    fl_tensor *grid[2];
    CHECK(fl_ix((fl_tensor *[]){ROW(FL_I32, 1), ROW(FL_I32, 2, 0)}, 2, grid));
    CHECK_ROW(fl_index(v, grid, 2), 6, 4);
    test_errors_return();
    CHECK(!fl_gather(v, 0, fl_cast(at, FL_I16)));
    CHECK_ERROR("fl_gather: the index is i16, expected i64 or i32");
    CHECK(!fl_scatter_add(v, 0, fl_sub(at, fl_int(1)), ones));
    CHECK_ERROR("index -1 is out of range for axis 0 of size 2");
    fl_scope_end(&s);
}

/* Those of take_along count from the end below 0, and so do their gradients. */
TEST(take_along_from_the_end) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_reshape(ROW(FL_F32, 1, 2, 3, 4, 5, 6), FL_SHAPE(2, 3)));
    fl_tensor *at = fl_reshape(ROW(FL_I64, -1, 0, -3, -3), FL_SHAPE(2, 2));
    fl_var *y = fv_take_along(x, at, 1);
    CHECK_ROW(fv_value(y), 3, 1, 4, 4);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    CHECK_ROW(fv_grad(x), 1, 0, 1, 2, 0, 0);
    test_errors_return();
    CHECK(!fl_take_along(fv_value(x), fl_sub(at, fl_int(1)), 1));
    CHECK_ERROR("fl_take_along: index -4 is out of range for axis 1 of size 3");
    fl_scope_end(&s);
}

/* Elements at the end that no window reaches are those of the bias; fewer than the stride or the dilation. */
TEST(output_pad_below_the_dilation) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_reshape(ROW(FL_F32, 1, 2), FL_SHAPE(1, 1, 2)));
    fl_var *w = fv_param(fl_reshape(ROW(FL_F32, 1, 10), FL_SHAPE(1, 1, 2)));
    fl_var *b = fv_param(ROW(FL_F32, 0.5));
    fl_var *y = fv_conv_transpose(x, w, b, .dilation = {3}, .output_pad = {2});
    CHECK_ROW(fv_value(y), 1.5, 2.5, 0.5, 10.5, 20.5, 0.5, 0.5);
    CHECK(y && fl_backward(fv_sum(fv_mul(y, fv_const(ROW(FL_F32, 1, 2, 3, 4, 5, 6, 7))), FL_ALL_AXES)));
    CHECK_ROW(fv_grad(x), 41, 52);
    CHECK_ROW(fv_grad(w), 5, 14);
    CHECK_ROW(fv_grad(b), 28);
    fl_tensor *ones = fl_ones(FL_SHAPE(1, 1, 2, 2), FL_F32);
    fl_tensor *wide =
        fl_conv_transpose(ones, ones, NULL, .dilation = {3, 1}, .stride = {1, 4}, .output_pad = {2, 3});
    CHECK(wide && wide->shape[2] == 7 && wide->shape[3] == 9);
    /* elements that the padding would cut off, and one behind them */
    fl_tensor *v = fv_value(x), *k = fv_value(w);
    CHECK_ROW(fl_conv_transpose(v, k, NULL, .dilation = {3}, .pad = {1}, .output_pad = {1}), 2, 0, 10, 20);
    CHECK_ROW(fl_conv_transpose(v, k, NULL, .dilation = {3}, .pad = {1}, .output_pad = {2}), 2, 0, 10, 20, 0);
    CHECK_ROW(fl_conv_transpose(v, k, NULL, .dilation = {4}, .pad = {2}, .output_pad = {1}), 0, 0, 10);
    test_errors_return();
    CHECK(!fl_conv_transpose(v, k, NULL, .dilation = {3}, .output_pad = {3}));
    CHECK_ERROR("output_pad 3 (expected less than the stride or the dilation)");
    fl_scope_end(&s);
}

/* An empty batch has no statistics: those that run stay, and the gradients are zeros. */
TEST(batch_norm_of_an_empty_batch) {
    fl_scope s = fl_scope_begin();
    const fl_shape shapes[] = {FL_SHAPE(0, 3, 2, 2), FL_SHAPE(2, 3, 0, 2)};
    fl_nn_module *m = fl_nn_batch_norm2d(3);
    for (int i = 0; i < 4; i++) {
        fl_nn_train(m, i < 2);
        fl_var *x = fv_param(fl_zeros(shapes[i % 2], FL_F32)), *y = fl_nn_forward(m, x);
        REQUIRE(y && fl_shape_is(fv_value(y), shapes[i % 2]));
        CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)) && fv_grad(x) && fl_same_shape(fv_grad(x), fv_value(x)));
        CHECK_ROW(fv_grad(fl_nn_param_at(m, 0)), 0, 0, 0);
        CHECK_ROW(fv_grad(fl_nn_param_at(m, 1)), 0, 0, 0);
        CHECK(!fl_nn_param_at(m, -1) && !fl_nn_param_at(m, 99));
    }
    CHECK_ROW(m->buffer[0].tensor, 0, 0, 0);
    CHECK_ROW(m->buffer[1].tensor, 1, 1, 1);
    CHECK_ROW(m->buffer[2].tensor, 2);
    fl_nn_free(m);
    fl_tensor *none = fl_zeros(FL_SHAPE(0, 2), FL_F16);
    CHECK(fl_same_shape(fl_batch_norm(none, NULL, NULL, .train = true, .relu = true), none));
    fl_scope_end(&s);
}

/* Adds the sums of another part of the batch, 4 values per channel of mean 3 and mean square 10. */
static bool other_part(fl_tensor *sums, void *user) {
    static const double sum[] = {12, 12, 40, 40, 4};
    ++*(int *)user;
    for (int i = 0; i < 5; i++) ((double *)fl_data(sums))[i] += sum[i];
    return true;
}

TEST(batch_norm_of_an_empty_part) {
    fl_scope s = fl_scope_begin();
    int calls = 0;
    fl_tensor *mean = fl_zeros(FL_SHAPE(2), FL_F32), *var = fl_zeros(FL_SHAPE(2), FL_F32);
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(0, 2), FL_F32));
    fl_var *y = fv_batch_norm(x, NULL, NULL, .train = true, .mean = mean, .var = var, .momentum = 1,
                              .reduce = other_part, .reduce_user = &calls);
    CHECK(y && fl_numel(fv_value(y)) == 0 && fl_backward(fv_sum(y, FL_ALL_AXES)) && calls == 2);
    CHECK_ROW(mean, 3, 3);
    CHECK_NEAR(fl_item(fl_select(var, 0, 1)), 4 / 3.0, 1e-6);
    fl_scope_end(&s);
}

/* A weak number does not promote, whatever the operands' dims. */
TEST(lerp_of_numbers_keeps_the_dtype) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_full(FL_SCALAR_SHAPE, 1, FL_BF16), *b = fl_full(FL_SCALAR_SHAPE, 2.5, FL_BF16);
    for (int i = 0; i < 3; i++) {
        fl_tensor *y = fl_lerp(i == 1 ? fl_num(1) : a, i == 2 ? fl_num(2.5) : b, fl_num(0.3));
        CHECK(y && y->dtype == FL_BF16 && fl_item(y) == 1.453125);
    }
    fl_var *x = fv_param(a), *y = fv_lerp(x, fv_const(b), fv_num(0.75));
    CHECK(fv_value(y)->dtype == FL_BF16 && fl_backward(y) && fl_item(fv_grad(x)) == 0.25);
    fl_tensor *zero = fl_zeros(FL_SCALAR_SHAPE, FL_I32), *four = fl_full(FL_SCALAR_SHAPE, 4, FL_I32);
    fl_tensor *whole = fl_lerp(zero, four, fl_num(0.25));
    CHECK(whole && whole->dtype == FL_F32 && fl_item(whole) == 1);
    fl_scope_end(&s);
}

/* A negative side crops first, as in PyTorch: what it takes away is not wrapped in. */
TEST(circular_pad_with_a_negative_side) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = ROW(FL_F32, 0, 1, 2, 3);
    CHECK_ROW(fl_pad(x, .low = {-1}, .high = {2}, .mode = FL_PAD_CIRCULAR), 1, 2, 3, 1, 2);
    CHECK_ROW(fl_pad(x, .low = {2}, .high = {-1}, .mode = FL_PAD_CIRCULAR), 1, 2, 0, 1, 2);
    CHECK_ROW(fl_pad(x, .low = {-3}, .high = {4}, .mode = FL_PAD_CIRCULAR), 3, 3, 3, 3, 3);
    CHECK_ROW(fl_pad(x, .low = {-1}, .high = {-2}, .mode = FL_PAD_CIRCULAR), 1);
    CHECK(fl_numel(fl_pad(x, .low = {-1}, .high = {-3}, .mode = FL_PAD_CIRCULAR)) == 0);
    fl_var *v = fv_param(x);
    CHECK(fl_backward(fv_sum(fv_pad(v, .low = {-1}, .high = {2}, .mode = FL_PAD_CIRCULAR), FL_ALL_AXES)));
    CHECK_ROW(fv_grad(v), 0, 2, 2, 1);
    test_errors_return();
    CHECK(!fl_pad(x, .low = {-4}, .high = {2}, .mode = FL_PAD_CIRCULAR));
    CHECK_ERROR("fl_pad: padding crops too much or overflows: -4 before and 2 after axis 0 of shape [4]");
    fl_scope_end(&s);
}

/* An axis of one element is that element at each place of the other operand's. */
TEST(tensordot_broadcasts_an_axis_of_one) {
    fl_scope s = fl_scope_begin();
    fl_var *a = fv_param(fl_reshape(ROW(FL_F32, 1, 2), FL_SHAPE(2, 1)));
    fl_var *b = fv_param(fl_reshape(ROW(FL_F32, 1, 2, 3, 4, 5, 6), FL_SHAPE(3, 2)));
    fl_var *y = fv_tensordot(a, b, 1, NULL, NULL);
    CHECK_ROW(fv_value(y), 9, 12, 18, 24);
    CHECK(y && fl_backward(fv_sum(y, FL_ALL_AXES)));
    CHECK_ROW(fv_grad(a), 21, 21);
    CHECK_ROW(fv_grad(b), 3, 3, 3, 3, 3, 3);
    CHECK_ROW(fl_tensordot(fv_value(b), fv_value(a), 1, NULL, (int[]){1}), 3, 6, 7, 14, 11, 22);
    test_errors_return();
    CHECK(!fl_tensordot(fv_value(b), fv_value(b), 1, NULL, NULL));
    CHECK_ERROR("shapes [3, 2] and [3, 2]");
    fl_scope_end(&s);
}

static fl_tensor *row_u64(int64_t n, const uint64_t *v) {
    return fl_from_host(v, FL_SHAPE(n), FL_U64);
}
static bool is_row_u64(fl_tensor *t, int64_t n, const uint64_t *v) {
    uint64_t got[8];
    return t && t->dtype == FL_U64 && fl_numel(t) == n && fl_to_host(t, got, (size_t)n * 8) &&
           !memcmp(got, v, (size_t)n * 8);
}

/* Whole numbers of 64 bits, above INT64_MAX too. */
TEST(u64_remainders_and_order) {
    fl_scope s = fl_scope_begin();
    const uint64_t top = UINT64_C(1) << 63, most = UINT64_MAX;
    const uint64_t x[] = {top + 5, 7, most, most, top, 3, most, top - 1};
    const uint64_t y[] = {10, 3, top, top - 1, top, top, 1, most};
    uint64_t want[8];
    for (int i = 0; i < 8; i++) want[i] = x[i] % y[i];
    CHECK(is_row_u64(fl_remainder(row_u64(8, x), row_u64(8, y)), 8, want));
    CHECK(is_row_u64(fl_fmod(row_u64(8, x), row_u64(8, y)), 8, want));
    for (int i = 0; i < 8; i++) want[i] = x[i] % 10;
    CHECK(is_row_u64(fl_fmod(row_u64(8, x), fl_int(10)), 8, want));
    const uint64_t largest[] = {most, most, most}, least[] = {3, 7, top - 1};
    fl_tensor *at;
    CHECK(is_row_u64(fl_topk(row_u64(8, x), 3, 0, false, &at), 3, largest));
    CHECK_ROW(at, 2, 3, 6);
    CHECK(is_row_u64(fl_topk(row_u64(8, x), 3, 0, true, &at), 3, least));
    CHECK_ROW(at, 5, 1, 7);
    CHECK(is_row_u64(fl_sort(row_u64(3, y), 0, false, NULL), 3, (uint64_t[]){3, 10, top}));
    CHECK_ROW(fl_argsort(row_u64(3, y), -1, true), 2, 0, 1);
    for (fl_dtype d = FL_U16; d <= FL_U32; d++) {
        CHECK_ROW(fl_fmod(ROW(d, 65535, 7), ROW(d, 10, 3)), 5, 1);
        CHECK_ROW(fl_remainder(ROW(d, 65535, 7), ROW(d, 10, 3)), 5, 1);
        CHECK_ROW(fl_topk(ROW(d, 1, 65535, 7), 2, 0, false, NULL), 65535, 7);
    }
    test_errors_return();
    CHECK(!fl_remainder(row_u64(2, x), row_u64(2, (uint64_t[]){1, 0})));
    CHECK_ERROR("integer division by zero");
    CHECK(!fl_floor_divide(row_u64(2, x), row_u64(2, y)));
    CHECK_ERROR("fl_floor_divide: u64 is not supported");
    fl_scope_end(&s);
}

TEST(one_hot_is_of_integers) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_one_hot(ROW(FL_U8, 2, 0, 5), 3);
    CHECK(y && y->dtype == FL_I64);
    CHECK_ROW(y, 0, 0, 1, 1, 0, 0, 0, 0, 0);
    fl_scope_end(&s);
}

TEST(what_may_not_be_negative) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = ROW(FL_F32, 1, 2);
    test_errors_return();
    for (int i = 0; i < 2; i++) {
        const double below = i ? NAN : -1;
        CHECK(!fl_isclose(x, x, below, 0, false));
        CHECK_ERROR("fl_isclose: rtol and atol must be at least 0, got");
        CHECK(!fl_isclose(x, x, 0, below, false));
        CHECK_ERROR("fl_isclose: rtol and atol must be at least 0, got 0 and");
        CHECK(!fl_softshrink(x, below));
        CHECK_ERROR("fl_softshrink: lambda must be at least 0, got");
        CHECK(!fl_huber_loss(x, x, below, FL_MEAN));
        CHECK_ERROR("fl_huber_loss: delta must be above 0, got");
        CHECK(!fl_smooth_l1_loss(x, x, below, FL_MEAN));
        CHECK_ERROR("fl_smooth_l1_loss: beta must be at least 0, got");
        CHECK(!fl_triplet_margin_loss(x, x, x, below, FL_MEAN));
        CHECK_ERROR("fl_triplet_margin_loss: margin must be at least 0, got");
    }
    CHECK(!fl_huber_loss(x, x, 0, FL_MEAN));
    CHECK_ERROR("fl_huber_loss: delta must be above 0, got 0");
    CHECK(fl_margin_ranking_loss(x, x, x, -1, FL_MEAN)); /* a negative margin that means something */
    fl_scope_end(&s);
}

/* Elements written through a view of any strides are those of the storage. */
TEST(views_of_any_strides) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = ROW(FL_F32, 0, 1, 2, 3, 4, 5, 6, 7);
    CHECK_ROW(fl_flatten(fl_as_strided(x, FL_SHAPE(2, 3), NULL, 1), 0, -1), 1, 2, 3, 4, 5, 6);
    const int64_t stride[] = {1, -2};
    fl_tensor *v = fl_as_strided(fl_slice(x, 0, 0, 2, 1), FL_SHAPE(2, 3), stride, 5); /* beyond the slice */
    CHECK_ROW(fl_flatten(v, 0, -1), 5, 3, 1, 6, 4, 2);
    CHECK(fl_assign(fl_as_strided(x, FL_SHAPE(2), stride, 6), fl_num(9)));
    CHECK_ROW(x, 0, 1, 2, 3, 4, 5, 9, 9);
    CHECK(fl_numel(fl_as_strided(x, FL_SHAPE(0, 3), NULL, 0)) == 0);
    CHECK(fl_is_dense(fl_transpose(fl_reshape(x, FL_SHAPE(2, 4)), 0, 1)) && fl_is_dense(x) &&
          !fl_is_dense(fl_slice(x, 0, 0, 8, 2)) && !fl_is_dense(fl_expand(x, FL_SHAPE(2, 8))));
    fl_scope_end(&s);
}

static int guests; /* buffers over bytes of this file that are alive */
static float guest_bytes[6] = {1, 2, 3, 4, 5, 6};
static bool guest_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self, (void)info;
    b->ptr = guest_bytes;
    b->tight = true;
    guests++;
    return true;
}
static void guest_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    b->ptr = NULL;
    guests--;
}

TEST(tensors_over_bytes_of_yours) {
    fl_scope s = fl_scope_begin();
    fl_mem_manager guest = {.name = "guest", .get = guest_get, .put = guest_put};
    const int64_t stride[] = {1, 2};
    fl_buffer *b = fl_buffer_from(&guest, sizeof guest_bytes, NULL);
    fl_tensor *t = fl_from_buffer(b, FL_F32, FL_SHAPE(2, 2), stride, 2);
    CHECK(t && !strcmp(fl_backend_name(t), "cpu") && fl_data(t) == guest_bytes + 2 && guests == 1);
    CHECK_ROW(fl_flatten(t, 0, -1), 3, 5, 4, 6);
    CHECK(fl_assign(t, fl_num(7)) && guest_bytes[5] == 7 && guest_bytes[1] == 2);
    fl_scope_end(&s);
    CHECK(guests == 0);
    s = fl_scope_begin();
    b = fl_buffer_from(&guest, sizeof guest_bytes, NULL);
    fl_quiet(+1);
    CHECK(!fl_from_buffer(b, FL_F32, FL_SHAPE(7), NULL, 0) && guests == 1);
    fl_quiet(-1);
    CHECK_ERROR("fl_from_buffer: shape [7] from element 0 leaves the storage, which has 6");
    fl_buffer_drop(b);
    CHECK(guests == 0);
    fl_scope_end(&s);
}

TEST(ops_in_place) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = ROW(FL_F32, 1, 2, 3, 4), *view = fl_slice(x, 0, 1, 3, 1);
    const uint32_t version = fl_version_of(x);
    CHECK(fl_assign_op(x, FL_OP_mul, x, fl_num(2)) == x && fl_version_of(x) == version + 1);
    CHECK_ROW(x, 2, 4, 6, 8);
    CHECK(fl_assign_op(view, FL_OP_sub, view, ROW(FL_I32, 1, 2))); /* cast */
    CHECK_ROW(x, 2, 3, 4, 8);
    CHECK(fl_assign_op(fl_slice(x, 0, 1, 4, 1), FL_OP_add, fl_slice(x, 0, 0, 3, 1), fl_num(0))); /* overlaps */
    CHECK_ROW(x, 2, 2, 3, 4);
    CHECK(fl_assign_op(x, FL_OP_div, fl_num(1), fl_num(4)));
    CHECK_ROW(x, 0.25, 0.25, 0.25, 0.25);
    fl_tensor *half = ROW(FL_F16, 1, 2), *count = ROW(FL_I64, 1, 2);
    CHECK(fl_assign_op(half, FL_OP_add, half, ROW(FL_F16, 0.5, 1)));
    CHECK(fl_assign_op(count, FL_OP_add, count, fl_int(1)));
    CHECK_ROW(half, 1.5, 3);
    CHECK_ROW(count, 2, 3);
    fl_scope_end(&s);
}

/* Storage moves where both are whole; other values are copied. */
TEST(values_that_move) {
    fl_scope s = fl_scope_begin();
    enum { N = 1 << 16 };
    fl_tensor *to = fl_zeros(FL_SHAPE(N), FL_F32), *from = fl_full(FL_SHAPE(N), 2, FL_F32);
    const void *was = fl_data(from);
    CHECK(fl_move_into(to, from) == to && fl_data(to) == was && fl_item(fl_sum(to, FL_ALL_AXES)) == 2 * N);
    CHECK(fl_move_into(to, fl_full(FL_SHAPE(N), 3, FL_F64)) && fl_data(to) == was);
    CHECK(fl_item(fl_sum(to, FL_ALL_AXES)) == 3 * N);
    CHECK(fl_move_into(fl_slice(to, 0, 0, 1, 1), fl_num(9)) && fl_item(fl_sum(to, FL_ALL_AXES)) == 3 * N + 6);
    fl_scope_end(&s);
}

TEST(multiply_adds_of_what_ran) {
    fl_scope s = fl_scope_begin();
    fl_cost_counter outer = {0}, inner = {0};
    fl_tensor *a = fl_ones(FL_SHAPE(2, 3), FL_F32), *b = fl_ones(FL_SHAPE(3, 5), FL_F32);
    fl_cost_begin(&outer);
    CHECK(fl_matmul(a, b) && outer.macs == 30);
    fl_cost_begin(&inner);
    CHECK(fl_add(a, a) && fl_linear(a, fl_transpose(b, 0, 1), NULL));
    fl_cost_end(&inner);
    CHECK(inner.macs == 30 && outer.macs == 30);
    CHECK(fl_matmul(a, b));
    fl_cost_end(&outer);
    CHECK(fl_matmul(a, b) && outer.macs == 60 && inner.macs == 30);
    fl_scope_end(&s);
}

TEST(backends_and_ops_by_name) {
    int n = 0;
    while (fl_backend_name_of(n)) n++;
    CHECK(n >= 1 && fl_backend_index(fl_backend_name_of(n - 1)) == n - 1);
    CHECK_STR(fl_backend_name_of(fl_backend_index("cpu")), "cpu");
    CHECK(!strcmp(fl_op_name(FL_OP_gelu), "gelu") && !strcmp(fl_op_name(FL_OP_matmul), "matmul"));
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_empty_on("cpu", FL_SHAPE(2, 3), FL_DTYPE_NONE);
    CHECK(t && t->dtype == FL_F32 && fl_numel(t) == 6 && !fl_is_async(t) && fl_map(t, FL_WRITE));
    fl_unmap(t, FL_WRITE);
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
