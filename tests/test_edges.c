/* test_edges.c - what ops do at the edges, where PyTorch and NumPy say what is right */
#include "../fl.h"
#include "../examples/extend/naive.h"
#include "../examples/extend/recorder.h"
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

static void check_axes_on(const char *family) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_to(fl_full(FL_SCALAR_SHAPE, 2, FL_F32), family);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        fl_tensor *y = NULL;
        for (int axis = -1; axis < 1; axis++) {
            if (!CHECK((y = taken[i].fn(x, axis)) && y->ndim == 0 && is_row(y, 1, &taken[i].want)))
                printf("%s along axis %d on %s: %s\n", taken[i].name, axis, family,
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
    fl_on_error(let_return, NULL);
    check_axes_on("cpu");
    fl_backend_use(fl_backend_naive(), NULL);
    fl_backend_use(fl_backend_recorder(), NULL);
    check_axes_on("naive");
    check_axes_on("recorder");
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
    fl_on_error(let_return, NULL);
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
    fl_on_error(let_return, NULL);
    fl_nn_module *stem = fl_nn_sequential(fl_nn_conv2d(1, 2, 5)), *net = fl_nn_sequential(fl_nn_relu());
    fl_nn_add(net, "stem", stem);
    fl_scope s = fl_scope_begin();
    fl_var *image = fv_const(fl_ones(FL_SHAPE(1, 1, 3, 3), FL_F32));
    CHECK_FAILS(fl_nn_forward(net, image), "fl_nn_conv2d 'stem.0': fl_conv: x [1, 1, 3, 3], w [2, 1, 5, 5]");
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
    const fl_op op = fl_op_named("softmax");
    CHECK(!fl_backend_has(fl_backend_index("naive"), op));
    fl_call c = {.op = op, .n_out = 1, .n_in = 1, .in = {x}, .args = &(fl_axis_args){1}};
    c.out[0] = fl_out_like(x, FL_F32);
    CHECK(fl_call_run(&c));
    CHECK_ROW(c.out[0], 0.5, 0.5);
    for (fl_op i = FL_TABLE_OPS; i < fl_op_count(); i++) {
        const fl_op_info *info = fl_op_get_info(i);
        if (!CHECK(info->compose || !strcmp(info->contains, "cpu"))) printf("%s\n", info->name);
    }
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

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
