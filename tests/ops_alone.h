/* ops_alone.h - ops on awkward views, each to be written alone or all in one step */
#ifndef OPS_ALONE_H
#define OPS_ALONE_H
#include "../fl_backend.h"
#include "../fl_graph.h"
#include "test.h"

enum { F, G, D, I, J, B, C, U, K, S, OPERANDS };
static const char *const operand_names[OPERANDS] = {"f", "g", "d", "i", "j", "b", "c", "u", "k", "s"};

/* [3, 4, 6] each, but for k, an index [3, 2, 6]; s is written in place. */
static bool operands_new(fl_tensor **x) {
    const fl_shape s = FL_SHAPE(3, 4, 6);
    fl_tensor *f = fl_normal(s, 0, 2, FL_F32, NULL), *g = fl_normal(s, 0, 2, FL_F32, NULL);
    fl_tensor *nan = fl_full(s, NAN, FL_F32), *rare = fl_lt(fl_uniform(s, 0, 1, FL_F32, NULL), fl_num(0.1));
    x[F] = fl_where(rare, nan, f), x[G] = g;
    x[D] = fl_cast(fl_normal(s, 0, 1, FL_F32, NULL), FL_F64);
    x[I] = fl_randint(s, -9, 10, NULL),
    x[J] = fl_add(fl_mul(fl_randint(s, -3, 4, NULL), fl_int(2)), fl_int(1));
    x[B] = fl_gt(f, g), x[C] = fl_gt(g, fl_num(0));
    x[U] = fl_cast(fl_randint(s, 0, 256, NULL), FL_U8);
    x[K] = fl_randint(FL_SHAPE(3, 2, 6), 0, 4, NULL);
    x[S] = fl_normal(s, 0, 1, FL_F32, NULL);
    return x[K] && x[S];
}

#define SWAPPED(t) fl_transpose(t, 0, 2)
#define EVERY_OTHER(t) fl_slice(t, 2, 1, 6, 2)
#define TURNED(t) fl_flip(fl_slice(t, 1, 1, 4, 1), 2, (int[]){0, 2})
#define WINDOWS(t) fl_as_strided(fl_slice(t, 0, 1, 2, 1), FL_SHAPE(5, 3), (int64_t[]){1, 1}, 24)
#define TURNED_BACK(t) fl_flip(t, 2, (int[]){0, 2})
#define WIDE_2(t) fl_expand(fl_slice(t, 1, 1, 2, 1), FL_SHAPE(3, 2, 6))
#define WORDS(t) fl_cast(t, FL_U64)
#define WIDE(t) fl_expand(fl_slice(t, 1, 2, 3, 1), FL_SHAPE(3, 4, 6))
/* [2, 2, 3, 6] with two groups, stride 2 and 1, padding 1 and 0, dilation 1 and 2 -> [2, 4, 2, 4]. */
#define IMAGES(t) fl_reshape(t, FL_SHAPE(2, 2, 3, 6))
#define IMAGES_OUT(t) fl_reshape(fl_slice(fl_reshape(t, FL_SHAPE(72)), 0, 4, 68, 1), FL_SHAPE(2, 4, 2, 4))
#define KERNEL(t) fl_reshape(fl_slice(fl_reshape(t, FL_SHAPE(72)), 0, 0, 16, 1), FL_SHAPE(4, 1, 2, 2))
#define WINDOW ((fl_conv2d_args){{2, 1}, {1, 0}, {0, 0}, {1, 2}, 2, 0})
/* X(name, result): NULL if it writes s in place */
#define OPS_ALONE(X) \
    X(neg, fl_neg(x[F])) X(abs, fl_abs(SWAPPED(x[F]))) X(exp, fl_exp(EVERY_OTHER(x[F]))) \
    X(log, fl_log(fl_abs(x[G]))) X(sqrt, fl_sqrt(fl_abs(TURNED(x[G])))) X(sin, fl_sin(WINDOWS(x[G]))) \
    X(cos, fl_cos(x[D])) X(tanh, fl_tanh(x[F])) X(erf, fl_erf(WIDE(x[F]))) \
    X(log1p, fl_log1p(fl_abs(x[G]))) X(expm1, fl_expm1(x[D])) X(floor, fl_floor(x[G])) \
    X(rint, fl_rint(x[G])) X(bits, fl_bitwise_not(x[I])) X(not_b8, fl_bitwise_not(x[B])) \
    X(abs_i64, fl_abs(x[I])) X(add, fl_add(SWAPPED(x[F]), SWAPPED(x[G]))) \
    X(sub, fl_sub(x[F], fl_num(1.5))) X(mul, fl_mul(x[I], x[J])) X(div, fl_div(x[F], x[G])) \
    X(div_i64, fl_floor_divide(x[I], x[J])) X(mod, fl_remainder(x[F], x[G])) \
    X(mod_i64, fl_remainder(x[I], x[J])) X(pow, fl_pow(fl_abs(x[G]), x[G])) \
    X(maximum, fl_maximum(x[F], x[G])) X(minimum, fl_minimum(x[I], x[J])) X(eq, fl_eq(x[I], x[J])) \
    X(lt, fl_lt(x[F], x[G])) X(le, fl_le(x[D], fl_num(0.25))) X(and_b8, fl_bitwise_and(x[B], x[C])) \
    X(xor_i64, fl_bitwise_xor(x[I], x[J])) X(shift, fl_shift_right(x[I], fl_int(1))) \
    X(atan2, fl_atan2(x[F], x[G])) X(copy, fl_contiguous(TURNED(x[F]))) X(to_i64, fl_cast(x[G], FL_I64)) \
    X(to_b8, fl_cast(x[I], FL_B8)) X(to_f32, fl_cast(x[B], FL_F32)) X(to_u8, fl_cast(fl_abs(x[I]), FL_U8)) \
    X(u8, fl_add(x[U], fl_int(200))) X(f64, fl_cast(x[F], FL_F64)) \
    X(fill, fl_mul(fl_full(FL_SHAPE(2, 3), -INFINITY, FL_F32), fl_num(-1))) \
    X(minus_0, fl_add(fl_full(FL_SHAPE(2), -0.0, FL_F32), fl_num(-0.0))) \
    X(iota, fl_arange(3, 10, 0.5, FL_F32)) X(iota_i64, fl_arange(9, 0, -2, FL_I64)) \
    X(where, fl_where(x[B], SWAPPED(fl_contiguous(SWAPPED(x[F]))), fl_num(-1))) \
    X(sum, fl_sum(x[G], FL_AXES(1))) X(sum_all, fl_sum(EVERY_OTHER(x[G]), FL_ALL_AXES)) \
    X(sum_i64, fl_sum(x[I], FL_AXES(0))) X(sum_b8, fl_sum(x[B], FL_AXES(2))) \
    X(amax, fl_amax(x[F], FL_AXES(2))) X(amin, fl_amin(SWAPPED(x[I]), FL_AXES(0))) \
    X(argmax, fl_argmax(x[F], 2, true)) X(argmax_i64, fl_argmax(x[J], 1, false)) \
    X(argmin, fl_argmin(TURNED(x[F]), 0, false)) X(gather, fl_gather(x[F], 1, x[K])) \
    X(gather_view, fl_gather(SWAPPED(fl_contiguous(SWAPPED(x[G]))), 1, x[K])) \
    X(scatter_add, fl_scatter_add(x[G], 1, x[K], fl_slice(x[F], 1, 0, 2, 1))) \
    X(cumsum, fl_cumsum(SWAPPED(x[G]), 1)) X(cumsum_i64, fl_cumsum(x[I], 2)) \
    X(cumprod, fl_cumprod(TURNED(x[D]), 0)) X(prod, fl_prod(EVERY_OTHER(x[G]), FL_AXES(1))) \
    X(prod_i64, fl_prod(SWAPPED(x[J]), FL_AXES(2))) \
    X(scatter, fl_scatter(SWAPPED(fl_contiguous(SWAPPED(x[G]))), 1, x[K], WIDE_2(x[F]))) \
    X(scatter_i32, fl_scatter(fl_cast(x[I], FL_I32), 1, x[K], fl_cast(fl_slice(x[J], 1, 1, 3, 1), \
      FL_I32))) X(scatter_add_u8, fl_scatter_add(x[U], 1, x[K], fl_slice(x[U], 1, 0, 2, 1))) \
    X(gather_b8, fl_gather(TURNED_BACK(x[B]), 1, x[K])) \
    X(argmax_view, fl_argmax(EVERY_OTHER(x[F]), 1, false)) X(argmax_u8, fl_argmax(SWAPPED(x[U]), 2, true)) \
    X(amax_u8, fl_amax(x[U], FL_AXES(1))) X(sort, fl_sort(SWAPPED(x[F]), 1, false, NULL)) \
    X(argsort, fl_argsort(EVERY_OTHER(x[F]), 1, true)) X(sort_i64, fl_sort(TURNED(x[I]), 2, true, NULL)) \
    X(topk, fl_topk(x[G], 3, 2, true, NULL)) X(pow_i64, fl_pow(TURNED(x[J]), TURNED(x[I]))) \
    X(pow_number, fl_pow(x[I], fl_int(3))) X(mod_view, fl_remainder(SWAPPED(x[I]), SWAPPED(x[J]))) \
    X(div_min, fl_floor_divide(fl_full(FL_SHAPE(2), INT64_MIN, FL_I64), fl_int(-1))) \
    X(randint, fl_randint(FL_SHAPE(3, 5), -7, 1000, NULL)) \
    X(randint_wide, fl_randint(FL_SHAPE(7), INT64_MIN, INT64_MAX, NULL)) \
    X(uniform_f64, fl_uniform(FL_SHAPE(5), -1, 2, FL_F64, NULL)) \
    X(normal_f64, fl_normal(FL_SHAPE(7), 1, 2, FL_F64, NULL)) \
    X(saturate_u8, fl_cast(fl_mul(x[G], fl_num(200)), FL_U8)) \
    X(saturate_i16, fl_cast(fl_mul(x[F], fl_num(3e4)), FL_I16)) \
    X(saturate_i64, fl_cast(fl_mul(x[F], fl_num(1e19)), FL_I64)) \
    X(saturate_u64, fl_cast(fl_mul(x[F], fl_num(1e19)), FL_U64)) \
    X(wrap_i8, fl_cast(fl_mul(x[I], fl_int(100)), FL_I8)) X(u64_to_f32, fl_cast(WORDS(x[I]), FL_F32)) \
    X(u64_to_f64, fl_cast(SWAPPED(WORDS(x[I])), FL_F64)) X(lt_u64, fl_lt(WORDS(x[I]), WORDS(x[J]))) \
    X(max_u64, fl_maximum(WORDS(x[I]), WORDS(x[J]))) X(sum_u64, fl_sum(WORDS(x[I]), FL_AXES(1))) \
    X(where_u64, fl_where(x[B], WORDS(x[I]), WORDS(x[J]))) \
    X(where_b8, fl_where(SWAPPED(x[B]), SWAPPED(x[C]), SWAPPED(x[B]))) \
    X(where_big, fl_where(x[B], fl_full(FL_SHAPE(3, 4, 6), (double)(INT64_C(1) << 60), FL_I64), \
      fl_int((INT64_C(1) << 60) + 1))) X(big_number, fl_add(x[I], fl_int(INT64_MAX))) \
    X(any, fl_amax(EVERY_OTHER(x[B]), FL_AXES(2))) X(all, fl_amin(x[B], FL_AXES(0))) \
    X(max_b8, fl_maximum(x[B], TURNED_BACK(x[C]))) X(lt_b8, fl_lt(x[B], x[C])) \
    X(eq_u8, fl_eq(x[U], fl_int(7))) X(nan, fl_maximum(x[G], fl_num((double)NAN))) \
    X(huge, fl_mul(x[D], fl_num(1e300))) X(tiny, fl_add(x[G], fl_num(1e-42))) \
    X(minus_0_i, fl_div(fl_num(1), fl_mul(fl_abs(x[G]), fl_num(-0.0)))) \
    X(sum_empty, fl_sum(fl_slice(x[F], 0, 0, 0, 1), FL_AXES(0))) \
    X(prod_empty, fl_prod(fl_slice(x[F], 2, 3, 3, 1), FL_ALL_AXES)) \
    X(matmul_empty, fl_matmul(fl_slice(x[G], 2, 0, 0, 1), fl_transpose(fl_slice(x[G], 2, 0, 0, 1), 1, 2))) \
    X(matmul, fl_matmul(x[G], fl_transpose(x[G], 1, 2))) \
    X(matmul_f64, fl_matmul(fl_transpose(x[D], 1, 2), x[D])) \
    X(matmul_2d, fl_matmul(fl_reshape(x[G], FL_SHAPE(12, 6)), fl_slice(fl_reshape(x[G], FL_SHAPE(12, \
      6)), 0, 2, 8, 1))) X(conv, fl_conv2d_run(IMAGES(x[G]), KERNEL(x[S]), NULL, WINDOW)) \
    X(conv_grad_input, fl_conv2d_grad_input(IMAGES_OUT(x[F]), KERNEL(x[S]), FL_SHAPE(2, 2, 3, 6), WINDOW)) \
    X(conv_grad_weight, fl_conv2d_grad_weight(IMAGES(x[G]), IMAGES_OUT(x[S]), FL_SHAPE(4, 1, 2, 2), \
      WINDOW)) X(uniform, fl_uniform(FL_SHAPE(3, 5), -1, 2, FL_F32, NULL)) \
    X(normal, fl_normal(FL_SHAPE(7), 1, 2, FL_F32, NULL)) X(dropout, fl_dropout(x[G], 0.4, NULL)) \
    X(empty, fl_add(fl_slice(x[F], 0, 0, 0, 1), fl_num(1))) \
    X(scalar, fl_mul(fl_reshape(fl_slice(fl_reshape(x[G], FL_SHAPE(72)), 0, 5, 6, 1), FL_SCALAR_SHAPE), \
      fl_num(2))) X(in_place, (fl_assign(x[S], fl_mul(x[S], fl_num(0.5))), NULL)) \
    X(in_place_part, (fl_assign(fl_slice(x[S], 1, 1, 3, 1), fl_slice(x[G], 1, 0, 2, 1)), NULL)) \
    X(in_place_steps, (fl_assign(EVERY_OTHER(x[S]), fl_neg(EVERY_OTHER(x[G]))), NULL)) \
    X(in_place_turned, (fl_assign(TURNED(x[S]), fl_add(TURNED(x[S]), fl_num(1))), NULL)) \
    X(in_place_swapped, (fl_assign(SWAPPED(x[S]), fl_exp(SWAPPED(x[G]))), NULL)) \
    X(in_place_diagonal, (fl_assign(fl_as_strided(x[S], FL_SHAPE(4), (int64_t[]){7}, 2), fl_num(3)), \
      NULL)) X(in_place_number, (fl_assign(x[S], fl_num(-2)), NULL))

#define OP_ALONE(name, result) \
    static fl_tensor *alone_##name(fl_tensor **x) { (void)x; return result; }
OPS_ALONE(OP_ALONE)
#undef OP_ALONE
static const struct {
    const char *name;
    fl_tensor *(*result)(fl_tensor **x);
} ops_alone[] = {
#define OP_ALONE(name, result) {#name, alone_##name},
    OPS_ALONE(OP_ALONE)
#undef OP_ALONE
};

enum { N_OPS = sizeof ops_alone / sizeof *ops_alone };

/* A step of the n ops from `first` on; y: their results. */
static inline fl_graph *ops_recorded(int first, int n, fl_tensor **x, fl_tensor **y) {
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 3 && !fl_graph_ready(g); i++) {
        fl_scope step = fl_scope_begin();
        for (int k = 0; k < n; k++) fl_drop(y[k]);
        CHECK(fl_graph_begin(g));
        for (int k = 0; k < n; k++) y[k] = fl_keep(ops_alone[first + k].result(x));
        fl_scope_end(&step);
        CHECK(fl_graph_end(g));
    }
    return g;
}

static inline bool is_read(const fl_graph *g, const fl_tensor *t) {
    const fl_graph_list l = fl_graph_calls(g);
    bool found = false;
    for (int64_t i = 0; i < l.n_values; i++) found |= l.value[i].buffer == t->buffer && l.value[i].first >= 0;
    return found;
}

#endif
/* MIT licence: see LICENSE. */
