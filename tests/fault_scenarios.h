/* fault_scenarios.h - small jobs of every kind, for test_faults.c to run with requests for memory
   failing

   A scenario takes x, f32 [4, 6] in (0.1, 1.9), and may overwrite `written`, of the same shape. It
   returns what it computed, or NULL with an error pending; what it did not hand out is dropped. */
#ifndef FAULT_SCENARIOS_H
#define FAULT_SCENARIOS_H

#include "../examples/digits.h"
#include "../fl_all.h"
#include <string.h>

typedef fl_tensor *T;
static T written;            /* what a scenario may write in place */
static char fault_file[300]; /* what it may write to disk */

static T either(bool ok, T t) {
    return ok ? t : NULL;
}
/* Of several results, as one row. */
static T row_of(int n, const T *t) {
    T flat[8];
    for (int i = 0; i < n; i++) {
        T f = t[i] ? fl_cast(t[i], FL_F64) : NULL;
        if (!f || !(flat[i] = fl_reshape(f, FL_SHAPE(-1)))) return NULL;
    }
    return fl_concat(flat, n, 0);
}
#define ROW(...) row_of((int)(sizeof((T[]){__VA_ARGS__}) / sizeof(T)), (T[]){__VA_ARGS__})
static T whole(T x) {
    return fl_cast(fl_mul(x, fl_num(9)), FL_I32);
}
static T index_of_x(T x) {
    return fl_cast(x, FL_I64);
} /* 0 and 1 */
static T image_of(T x) {
    return fl_reshape(fl_concat((T[]){x, x, x}, 3, 1), FL_SHAPE(1, 2, 6, 6));
}

/* >>views and writes */

static T views(T x) {
    T t = fl_slice(fl_transpose(x, 0, 1), 0, -1, FL_SLICE_END, -2);
    return ROW(fl_select(t, 0, 1), fl_squeeze(fl_unsqueeze(t, 1), 1),
               fl_expand(t, FL_SHAPE(2, 3, 4)));
}
static T lent(T x) { /* by DLPack, there and back */
    fl_dlpack *now = fl_to_dlpack(x = fl_to(x, "cpu"));
    T a = now ? fl_from_dlpack(now) : NULL;
    if (now && !a) now->deleter(now);
    fl_dlpack_old *old = a ? fl_to_dlpack_old(a) : NULL;
    T b = old ? fl_from_dlpack_old(old) : NULL;
    if (old && !b) old->deleter(old);
    return b ? fl_mul(a, b) : NULL;
}
static T reshaped(T x) {
    return fl_flatten(fl_reshape(fl_transpose(x, 0, 1), FL_SHAPE(3, -1)), 0, 1);
}
static T copies(T x) {
    return fl_clone(fl_contiguous(fl_permute(x, 2, (int[]){1, 0})));
}
static T joined(T x) {
    return fl_concat((T[]){x, fl_cast(x, FL_F64), fl_cast(x, FL_U8)}, 3, 1);
}
static T stacked(T x) {
    return fl_stack((T[]){x, fl_transpose(fl_transpose(x, 0, 1), 0, 1)}, 2, 1);
}
static T casts(T x) {
    return fl_cast(fl_cast(fl_cast(fl_cast(x, FL_F16), FL_BF16), FL_I8), FL_F64);
}
static T assigned(T x) {
    return fl_assign(fl_transpose(written, 0, 1), fl_transpose(x, 0, 1));
}
static T assigned_cast(T x) {
    return fl_assign(written, fl_cast(x, FL_I32));
}
static T assigned_over_itself(T x) {
    T flipped = fl_slice(written, 1, -1, FL_SLICE_END, -1);
    return x ? fl_assign(written, flipped) : NULL;
}
static T set_through_a_view(T x) {
    static const float row[6] = {1, 2, 3, 4, 5, 6};
    T to = fl_slice(fl_select(written, 0, 1), 0, -1, FL_SLICE_END, -1);
    return either(x && to && fl_set_host(to, row, sizeof row), to);
}
static T read_back(T x) {
    float data[24];
    T t = fl_transpose(x, 0, 1);
    return t && fl_to_host(t, data, sizeof data) ? fl_from_host(data, FL_SHAPE(24), FL_F32) : NULL;
}

/* >>element-wise */

static T unary(T x) {
    return fl_exp(fl_sin(fl_sqrt(fl_neg(fl_log(fl_mul(x, fl_num(0.5)))))));
}
static T formulas(T x) {
    return ROW(fl_sinc(x), fl_mish(x), fl_asinh(x), fl_log10(x), fl_ldexp(x, x));
}
static T broadcasts(T x) {
    return fl_div(fl_select(x, 0, 1), fl_add(x, fl_slice(x, 1, 0, 1, 1)));
}
static T half(T x) {
    T h = fl_cast(x, FL_F16);
    return fl_maximum(fl_mul(h, fl_num(2)), fl_pow(h, h));
}
static T integers(T x) {
    T i = whole(x), b = fl_cast(i, FL_U8);
    return ROW(fl_remainder(i, fl_int(3)), fl_bitwise_xor(b, fl_int(5)), fl_shift_left(b, b));
}
static T chosen(T x) {
    return fl_where(fl_gt(x, fl_num(1)), fl_clamp(x, fl_num(0.5), fl_num(1.5)), fl_num(7));
}
static T composed(T x) {
    return ROW(fl_hypot(x, x), fl_lerp(x, fl_neg(x), x), fl_addcmul(x, x, x, 2), fl_elu(x, 1));
}
static T composed_wide(T x) {
    return ROW(fl_lgamma(x), fl_digamma(x), fl_erfc(x), fl_erfinv(fl_frac(x)));
}
static T composed_more(T x) {
    return ROW(fl_glu(x, 1), fl_round(x, 2), fl_floor_divide(whole(x), fl_int(2)),
               fl_cast(fl_isclose(x, x, 0, 0, true), FL_F32));
}

/* >>reductions, order and index */

static T sums(T x) {
    return ROW(fl_sum(x, FL_AXES(0)), fl_mean(x, FL_ALL_AXES), fl_variance(x, FL_AXES(1), 1));
}
static T extremes_of(T x) {
    return ROW(fl_amax(x, FL_AXES(0)), fl_amin(x, FL_ALL_AXES), fl_prod(x, FL_AXES(1)));
}
static T truths(T x) {
    T t = fl_lt(x, fl_num(1));
    return ROW(fl_all(t, FL_AXES(0)), fl_any(t, FL_AXES(1)), fl_logsumexp(x, FL_AXES(1)));
}
static T scans(T x) {
    return ROW(fl_argmax(x, 1, true), fl_cumsum(x, 0), fl_cumprod(x, 1), fl_argmin(x, 0, false));
}
static T sorts(T x) {
    T places = NULL, y = fl_sort(x, 1, true, &places);
    return y ? ROW(y, places, fl_argsort(x, 0, false)) : NULL;
}
static T tops(T x) {
    T places = NULL, y = fl_topk(fl_transpose(x, 0, 1), 3, 0, false, &places);
    return y ? ROW(y, places) : NULL;
}
static T nonzeros(T x) {
    return fl_nonzero(index_of_x(x));
}
static T gathers(T x) {
    return ROW(fl_gather(x, 0, index_of_x(x)), fl_index_select(x, 1, fl_arange(0, 6, 2, FL_I64)));
}
static T scatters(T x) {
    return ROW(fl_scatter(x, 1, index_of_x(x), x), fl_scatter_add(x, 0, index_of_x(x), x));
}
static T found_more(T x) {
    T back = NULL, times = NULL, part[2];
    T rows = fl_unique_dim(index_of_x(x), 0, &back, &times);
    const bool ok = rows && fl_split_with_sizes(x, 1, (int64_t[]){2, 4}, 2, part) == 2;
    return ok ? ROW(rows, back, times, part[1], fl_median_axes(x, FL_AXES(0, 1)),
                    fl_trunc_divide(whole(x), fl_int(2))) : NULL;
}
static T found_in_order(T x) {
    T back = NULL, times = NULL, line = fl_reshape(x, FL_SHAPE(-1));
    T runs = line ? fl_unique_consecutive_dim(x, 1, &back, &times) : NULL;
    T order = runs ? fl_argsort(line, 0, false) : NULL;
    T at = order ? fl_searchsorted(line, x, true, .sorter = order) : NULL;
    return at ? ROW(runs, back, times, at, fl_repeat_interleave_each(x, times, 1), fl_trapezoid_x(x, x, 0),
                    fl_matrix_norm(x, 1), fl_matrix_norm(x, 0)) : NULL;
}
/* What needs no LAPACK */
static T factored(T x) {
    T square = fl_slice(x, 1, 0, 4, 1);
    fl_var *v = square ? fv_param(square) : NULL, *y = v ? fv_cholesky_solve(v, fv_matrix_exp(v)) : NULL;
    return y && fl_backward(fv_sum(y, FL_ALL_AXES)) ? fv_grad(v) : NULL;
}
static T reduced_at_places(T x) {
    T place = index_of_x(x);
    fl_var *v = place ? fv_param(x) : NULL;
    fl_var *most = fv_scatter_reduce(v, 0, place, v, FL_SCATTER_AMAX, false);
    fl_var *mean = most ? fv_scatter_reduce(most, 1, place, v, FL_SCATTER_MEAN, true) : NULL;
    fl_var *y = mean ? fv_scatter_reduce(mean, 1, place, v, FL_SCATTER_PROD, true) : NULL;
    return y && fl_backward(fv_sum(y, FL_ALL_AXES)) ? ROW(fv_grad(v), fv_value(y)) : NULL;
}
static T quantized(T x) {
    T scale = fl_full(FL_SHAPE(4), 0.1, FL_F32), zero = fl_full(FL_SHAPE(4), 2, FL_I32);
    T q = scale && zero ? fl_quantize(x, scale, zero, 0, FL_U8) : NULL;
    fl_var *v = q ? fv_param(x) : NULL, *y = v ? fv_fake_quantize(v, scale, zero, 0, 0, 15) : NULL;
    return y && fl_backward(fv_sum(y, FL_ALL_AXES))
               ? ROW(fl_dequantize(q, scale, zero, 0), fv_value(y), fv_grad(v)) : NULL;
}
static T framed(T x) {
    T line = fl_reshape(x, FL_SHAPE(24)), window = fl_hann_window(8, true, FL_F32);
    T y = line && window ? fl_stft(line, 8, .window = window, .hop = 2) : NULL;
    return y ? ROW(y, fl_istft(y, 8, .window = window, .hop = 2),
                   fl_rfft(x, 1, .n = 8, .norm = FL_FFT_ORTHO)) : NULL;
}
static T one_hots(T x) {
    return fl_one_hot(index_of_x(x), 3);
}

/* >>linear and neural */

static T products(T x) {
    return ROW(fl_matmul(x, fl_transpose(x, 0, 1)),
               fl_matmul(whole(x), fl_arange(0, 6, 1, FL_I64)));
}
static T batches(T x) {
    T a = fl_reshape(x, FL_SHAPE(2, 2, 6));
    return fl_matmul(a, fl_transpose(a, 1, 2));
}
static T convolved(T x) {
    T w = fl_uniform(FL_SHAPE(3, 2, 3, 3), -1, 1, FL_F32, &(fl_rng){1, 0});
    return fl_conv(image_of(x), w, fl_ones(FL_SHAPE(3), FL_F32), .pad = {1});
}
static T grouped(T x) {
    T w = fl_uniform(FL_SHAPE(4, 1, 2, 2), -1, 1, FL_F16, &(fl_rng){1, 0});
    return fl_conv(fl_cast(image_of(x), FL_F16), w, NULL, .stride = {2}, .groups = 2, .dilation = {2});
}
static T max_pooled(T x) {
    T places = NULL, y = fl_max_pool(image_of(x), &places, .kernel = {2}, .stride = {1});
    return y ? ROW(y, places, fl_max_pool2d_grad(y, places, FL_SHAPE(1, 2, 6, 6))) : NULL;
}
static T avg_pooled(T x) {
    return fl_avg_pool(image_of(x), .kernel = {3}, .pad = {1}, .ignore_pad = true);
}
static T pooled_more(T x) {
    T places = NULL, y = fl_max_pool(image_of(x), &places, .kernel = {2}, .stride = {2}, .dilation = {2});
    return y ? ROW(y, fl_max_unpool(y, places, FL_SHAPE(6, 6)),
                   fl_avg_pool(image_of(x), .kernel = {4}, .pad = {1}, .ceil_mode = true)) : NULL;
}
static T resampled(T x) {
    T theta = fl_slice(x, 0, 0, 1, 1), image = theta ? image_of(x) : NULL;
    T grid = image ? fl_affine_grid(fl_reshape(theta, FL_SHAPE(1, 2, 3)), FL_SHAPE(2, 3), false) : NULL;
    return grid ? ROW(fl_grid_sample(image, grid, .cubic = true, .outside = FL_GRID_REFLECT),
                      fl_interpolate(image, FL_SCALAR_SHAPE, FL_LINEAR, false, .scale = {0.5},
                                     .antialias = true),
                      fl_interpolate(image, FL_SHAPE(3, 4), FL_NEAREST_EXACT, false)) : NULL;
}
static T softmaxes(T x) {
    return ROW(fl_softmax(x, 0), fl_log_softmax(x, 1), fl_softmax(fl_cast(x, FL_BF16), 1));
}

/* >>creation and randomness */

static T created(T x) {
    return ROW(fl_full(FL_SHAPE(2, 3), 7, FL_I16), fl_arange(0, 9, 2, FL_F32), fl_eye(3, 4, FL_F64),
               fl_full_like(x, 2), fl_zeros(FL_SHAPE(0, 3), FL_F32), fl_new_arange(x, 0, 3, 1, FL_I64));
}
static T drawn(T x) {
    fl_rng r = {4, 0};
    T u = fl_uniform(FL_SHAPE(5), 0, 1, FL_F64, &r), n = fl_normal(FL_SHAPE(7), 0, 1, FL_F32, &r);
    return ROW(u, n, fl_randint(FL_SHAPE(3), -5, 5, &r), fl_dropout(x, 0.5, &r));
}
static T scoped(T x) {
    fl_scope outer = fl_scope_begin();
    T kept[8];
    int n = 0;
    for (; n < 8; n++) {
        fl_scope inner = fl_scope_begin();
        if (!(kept[n] = fl_scope_return(&inner, fl_add(x, fl_num(n))))) break;
        if (!fl_scope_escape(&outer, kept[n])) break;
    }
    fl_scope_end(&outer);
    return n == 8 ? row_of(8, kept) : NULL;
}
static T printed(T x) {
    char text[4000];
    T large = fl_expand(x, FL_SHAPE(60, 4, 6));
    int64_t n = large ? fl_format(large, text, sizeof text) : -1;
    return n > 0 && n < 4000 ? fl_from_host(text, FL_SHAPE(n), FL_U8) : NULL;
}

/* >>gradients */

static fl_var *chain(fl_var *v) {
    fl_var *y = fv_tanh(fv_matmul(v, fv_transpose(v, 0, 1)));
    return fv_sum(fv_mul(fv_softmax(y, 1), fv_sqrt(fv_square(y))), FL_ALL_AXES);
}
static T backward(T x) {
    fl_var *v = fv_param(x);
    return v && fl_backward(chain(v)) ? fv_grad(v) : NULL;
}
static T backward_of_moves(T x) {
    fl_var *v = fv_param(x);
    fl_var *y = fv_concat(
        (fl_var *[]){fv_slice(v, 1, -1, FL_SLICE_END, -2), fv_sort(v, 1, true, NULL)}, 2, 1);
    y = fv_gather(fv_cumsum(fv_expand(fv_unsqueeze(y, 0), FL_SHAPE(2, 4, 9)), 2), 0,
                  index_of_x(fl_reshape(x, FL_SHAPE(2, 4, 3))));
    return v && fl_backward(fv_sum(fv_square(y), FL_ALL_AXES)) ? fv_grad(v) : NULL;
}
static T twice(T x) {
    fl_var *v = fv_param(x), *g = v ? fl_grad(chain(v), v, true) : NULL;
    fl_var *h = g ? fl_grad(fv_sum(fv_square(g), FL_ALL_AXES), v, false) : NULL;
    return fv_value(h);
}
static T forward_mode(T x) {
    fl_var *v = fv_param(x), *y = v ? chain(v) : NULL;
    fl_var *d = y ? fl_jvp(y, v, fv_const(x), false) : NULL;
    return fv_value(d);
}
/* Parts in place, hooks that come and go, a node of several results, lists both ways. */
static void note_hook(fl_var *x, void *user) { (void)x, ++*(int *)user; }
static void pair_back(fl_node *n, fl_var *dy) {
    (void)dy;
    for (int k = 0; k < 2; k++)
        if (fv_grad_of(n, k)) fv_add_grad(n, 0, fv_mul(fv_grad_of(n, k), fv_num(2 + k)));
}
static bool pair_of(fl_var *x, fl_var *y[2]) { /* 2 x and 3 x */
    const fv_record_opts o = {.name = "pair", .back = pair_back, .in = FV_LIST(x)};
    fl_tensor *value[] = {fl_mul(fv_value(x), fl_num(2)), fl_mul(fv_value(x), fl_num(3))};
    return fv_record_several(2, value, y, &o);
}
static T passes_over_lists(T x) {
    int calls = 0;
    fl_var *v = fv_param(x), *row[4], *u[2], *g[2], *jv[2], *pair[2];
    if (!v || fv_unbind(v, 0, row, 4) != 4 || !fv_hook(row[1], note_hook, &calls)) return NULL;
    fv_unhook(v, fv_hook(v, note_hook, &calls));
    u[0] = fv_mul(fv_add(row[0], row[1]), row[3]);
    if (!pair_of(fv_slice(v, 0, 0, 3, 1), pair)) return NULL;
    if (!(u[1] = fv_matmul(pair[0], fv_transpose(pair[1], 0, 1))) || !u[0]) return NULL;
    const fv_list of = fv_list_of(2, u), to = FV_LIST(v, row[1]), along = FV_LIST(v, row[0]);
    return fl_grads(of, to, g, .given = FV_LIST(u[0], u[1]), .create_graph = true) &&
                   fl_jvps(of, to, along, jv, false) && calls > 0
               ? ROW(g[0]->value, g[1]->value, jv[0]->value, jv[1]->value)
               : NULL;
}
static T backward_of_images(T x) {
    fl_var *v = fv_param(image_of(x));
    fl_var *w =
        v ? fv_param(fl_uniform(FL_SHAPE(3, 2, 3, 3), -1, 1, FL_F32, &(fl_rng){1, 0})) : NULL;
    fl_var *y = fv_max_pool(fv_relu(fv_conv(v, w, NULL, .pad = {1})), NULL, .kernel = {2});
    y = fv_avg_pool(fv_dropout(y, 0.2, &(fl_rng){3, 0}), .kernel = {2});
    return w && fl_backward(fv_sum(y, FL_ALL_AXES)) ? ROW(fv_grad(v), fv_grad(w)) : NULL;
}
static T backward_of_compositions(T x) {
    fl_var *v = fv_param(x);
    fl_var *y = fv_add(fv_lgamma(v), fv_hypot(fv_elu(v, 1), fv_swish(v, 2)));
    return v && fl_backward(fv_mean(y, FL_ALL_AXES)) ? fv_grad(v) : NULL;
}

/* >>modules, optimizers */

/* The value and all gradients of a module's loss; frees m. */
static T through(fl_nn_module *m, T in) {
    fl_var *v = m ? fv_param(in) : NULL, *y = v ? fl_nn_forward(m, v) : NULL;
    T t = y && fl_backward(fv_sum(fv_square(y), FL_ALL_AXES)) ? ROW(fv_value(y), fv_grad(v)) : NULL;
    const fv_list p = m ? fl_nn_parameters(m) : (fv_list){0, NULL};
    for (int i = 0; i < p.n && t; i++) t = ROW(t, fv_grad(p.v[i]));
    fl_nn_free(m);
    return either(!fl_error(), t); /* the list of parameters may be what failed */
}
static fl_nn_module *dense(fl_rng *r) {
    return fl_nn_sequential(fl_nn_linear(6, 5, .rng = r), fl_nn_tanh(),
                            fl_nn_layer_norm(FL_SHAPE(5)), fl_nn_linear(5, 3, .rng = r));
}
static T layers(T x) {
    return through(dense(&(fl_rng){2, 0}), x);
}
static T converted(T x) {
    fl_nn_module *m = dense(&(fl_rng){2, 0});
    if (m && fl_nn_cast(m, FL_BF16) && fl_nn_to(m, fl_backend_name(x))) return through(m, x);
    fl_nn_free(m);
    return NULL;
}
static T autocast(T x) {
    return fl_autocast(FL_BF16) ? layers(x) : NULL;
}
static T image_layers(T x) {
    fl_rng r = {2, 0};
    return through(fl_nn_sequential(fl_nn_conv2d(2, 4, 3, .rng = &r), fl_nn_batch_norm2d(4),
                                    fl_nn_gelu(), fl_nn_pool2d(2), fl_nn_view(FL_SHAPE(1, -1))),
                   image_of(x));
}
static T more_layers(T x) {
    fl_rng r = {2, 0};
    fl_nn_module *down = fl_nn_conv2d(3, 4, 1, .rng = &r);
    fl_nn_module *block = fl_nn_residual(fl_nn_conv2d(3, 4, 3, .pad = 1, .pad_mode = FL_PAD_EDGE, .rng = &r),
                                         fl_nn_prelu(4), fl_nn_instance_norm(4, .affine = true));
    const bool ok = block && fl_nn_shortcut(block, NULL, NULL, "down", down);
    if (!block) fl_nn_free(down);
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_weight_norm(fl_nn_conv_transpose2d(2, 3, 2, .rng = &r), "weight", 0), block,
        fl_nn_batch_norm2d(4, .frozen = true), fl_nn_adaptive_max_pool(FL_SHAPE(2, 1)), fl_nn_flatten(1, -1),
        fl_nn_normalize(FL_AXES(1)), fl_nn_softplus(0, 0));
    return either(ok || !block || fl_error(), through(net, image_of(x)));
}
static T summarised(T x) {
    fl_nn_module *m = x ? dense(&(fl_rng){2, 0}) : NULL;
    char *text = m ? fl_nn_summary_text(m, FL_VARS(fv_const(fl_zeros(FL_SHAPE(2, 6), FL_F32)))) : NULL;
    T t = text ? fl_from_host(text, FL_SHAPE((int64_t)strlen(text)), FL_U8) : NULL;
    fl_heap_free(text);
    fl_nn_free(m);
    return t;
}
/* x as two sequences, one of which ends early. */
static fl_vars recurred(fl_nn_module *m, fl_vars in) {
    fl_var *v = fv_reshape(in.v[0], FL_SHAPE(2, 4, 3));
    fl_tensor *lengths = fl_from_host((int64_t[]){2, 4}, FL_SHAPE(2), FL_I64);
    fl_var *l = lengths ? fv_const(lengths) : NULL;
    return v && l ? fl_nn_forward_vars(m->child[0], FL_VARS(v, l)) : (fl_vars){0};
}
static T recurrent_layers(T x) {
    fl_rng r = {2, 0};
    fl_nn_module *m = fl_nn_function("Recurred", recurred, NULL, NULL);
    fl_nn_module *lstm = m ? fl_nn_lstm(3, 4, .layers = 2, .bidirectional = true, .projection = 2,
                                        .dropout = 0.2, .output_only = true, .rng = &r)
                           : NULL;
    if (m && !(lstm && fl_nn_add(m, NULL, lstm))) fl_nn_free(m), m = NULL;
    return through(m, x);
}
/* Results come together: a part of them without the others is neither a failure nor what was wanted. */
static T recurrent_states(T x) {
    fl_rng r = {5, 0};
    T half = fl_cast(x, FL_F16), w_ih = fl_uniform(FL_SHAPE(8, 6), -1, 1, FL_F32, &r);
    fl_var *w[] = {fv_const(w_ih), fv_const(fl_uniform(FL_SHAPE(8, 2), -1, 1, FL_F32, &r)), NULL, NULL};
    fl_var *v = fv_param(half), *steps = fv_reshape(v, FL_SHAPE(2, 2, 6)), *h = v, *c = v, *next = v;
    fl_var *y = fv_rnn(FL_LSTM, steps, w, .h_out = &h, .c_out = &c);
    fl_var *state = y ? fv_reshape(y, FL_SHAPE(4, 2)) : NULL;
    fl_var *last = fv_lstm_cell(v, state, state, w, &next);
    if (!y == !h && !y == !c && !last == !next)
        return last ? ROW(fv_value(h), fv_value(c), fv_value(last), fv_value(next)) : NULL;
    fl_error_clear();
    return x;
}
static T formatted(T x) {
    char text[2000] = "";
    fl_nn_module *m = x ? dense(&(fl_rng){2, 0}) : NULL;
    int64_t n = m ? fl_nn_format(m, text, sizeof text) : -1;
    fl_nn_free(m);
    return n > 0 && n < 2000 ? fl_from_host(text, FL_SHAPE(n), FL_U8) : NULL;
}
static T losses(T x) {
    T target = fl_randint(FL_SHAPE(4), 0, 6, &(fl_rng){3, 0});
    fl_var *v = target ? fv_param(x) : NULL;
    fl_var *loss = fv_add(fv_cross_entropy(v, target), fv_mse_loss(v, fv_const(fl_neg(x)), FL_MEAN));
    return v && fl_backward(loss) ? ROW(fv_grad(v), fv_value(loss)) : NULL;
}
static T weighted_losses(T x) {
    T target = fl_cast(fl_randint(FL_SHAPE(4), 0, 6, &(fl_rng){3, 0}), FL_U8);
    T weight = target ? fl_arange(1, 7, 1, FL_F32) : NULL, soft = weight ? fl_softmax(x, 1) : NULL;
    fl_var *v = soft ? fv_param(x) : NULL;
    fl_var *hard = fv_cross_entropy(v, target, .weight = weight, .smoothing = 0.1);
    fl_var *mild = hard ? fv_cross_entropy(v, soft, .weight = weight) : NULL;
    fl_var *bits = mild ? fv_binary_cross_entropy_with_logits(v, fv_const(soft), FL_MEAN,
                                                              .pos_weight = weight) : NULL;
    fl_var *loss = bits ? fv_add(fv_add(hard, mild),
                                 fv_add(bits, fv_nll_loss(v, target, .weight = weight))) : NULL;
    return loss && fl_backward(loss) ? ROW(fv_grad(v), fv_value(loss)) : NULL;
}
static T losses_with_options(T x) {
    T target = fl_randint(FL_SHAPE(4), 0, 6, &(fl_rng){3, 0});
    T weight = target ? fl_arange(1, 7, 1, FL_F32) : NULL;
    fl_var *v = weight ? fv_param(x) : NULL, *y = fv_const(fl_exp(x));
    fl_var *part[] = {fv_kl_div(v, y, FL_MEAN, .log_target = true, .batch_mean = true),
                      fv_poisson_nll_loss(v, y, true, FL_SUM, .full = true),
                      fv_gaussian_nll_loss(v, y, y, FL_SUM, .full = true),
                      fv_triplet_margin_loss(v, y, v, 1, FL_SUM, .swap = true),
                      fv_multi_margin_loss(v, target, 1, FL_SUM, .p = 2, .weight = weight)};
    fl_var *loss = part[0];
    for (int i = 1; loss && i < 5; i++) loss = fv_add(loss, part[i]);
    return v && fl_backward(loss) ? ROW(fv_grad(v), fv_value(loss)) : NULL;
}
static T initialised(T x) {
    fl_rng r = {8, 0};
    fl_var *p = fv_param(fl_clone(x));
    bool ok = p && fl_nn_init_kaiming_normal(p, 0, &r) && fl_nn_init_glorot_uniform(p, 1, &r) &&
              fl_nn_init_constant(p, 0.5) && fl_nn_init_normal(p, 0, 1, &r);
    return either(ok, fv_value(p));
}
/* Two steps; each may fail. Frees o. */
static T optimized(fl_optim *o, fl_var *p) {
    bool ok = o != NULL;
    for (int i = 0; ok && i < 2; i++) {
        fl_optim_zero_grad(o);
        ok = fl_backward(fv_sum(fv_exp(p), FL_ALL_AXES)) && fl_optim_step(o);
    }
    fl_optim_free(o);
    return either(ok, fv_value(p));
}
static T sgd(T x) {
    fl_var *p = fv_param(fl_clone(x));
    return p ? optimized(fl_optim_sgd(FV_LIST(p), .lr = 0.1, .momentum = 0.9), p) : NULL;
}
static T adam(T x) {
    fl_var *p = fv_param(fl_clone(x));
    return p ? optimized(fl_optim_adamw(FV_LIST(p), .lr = 0.1), p) : NULL;
}
static T scaled(T x) {
    fl_var *p = fv_param(fl_clone(x));
    fl_optim *o = p ? fl_optim_sgd(FV_LIST(p), .lr = 0.1) : NULL;
    fl_optim_scaler *s = o ? fl_optim_scaler_new(4, .interval = 1) : NULL;
    bool ok = s && fl_backward(fl_optim_scaler_scale(s, fv_sum(fv_exp(p), FL_ALL_AXES))) &&
              fl_optim_scaler_unscale(s, o) && fl_optim_step(o) && fl_optim_scaler_update(s);
    T y = ok ? ROW(fv_value(p), s->scale) : NULL;
    fl_optim_scaler_free(s);
    fl_optim_free(o);
    return y;
}
static T more_optimizers(T x) { /* prepared, in pieces, on a narrow parameter with a master */
    fl_var *p = fv_param(fl_clone(fl_cast(x, FL_BF16)));
    fl_var *q = fv_param(fl_clone(x)), *r = fv_param(fl_clone(x));
    T t[] = {p ? optimized(fl_optim_adam(FV_LIST(p), .amsgrad = true, .master = true), p) : NULL,
             q ? optimized(fl_optim_lamb(FV_LIST(q), .lr = 0.1), q) : NULL,
             r ? optimized(fl_optim_muon(FV_LIST(r), .lr = 0.1), r) : NULL};
    return t[0] && t[1] && t[2] ? ROW(t[0], t[1], t[2]) : NULL;
}
/* Loss and gradients of the parameter behind user; the gradient of the step before is dropped. */
static fl_var *summed_exp(void *user) {
    fl_var *p = user, *loss = fv_sum(fv_exp(p), FL_ALL_AXES);
    fv_zero_grad(p);
    return fl_backward(loss) ? loss : NULL;
}
static T whole_tensors(T x) { /* states of other shapes; a line search, which remembers */
    fl_var *p = fv_param(fl_clone(x)), *q = fv_param(fl_clone(x));
    T first = p ? optimized(fl_optim_adafactor(FV_LIST(p), .lr = 0.1), p) : NULL;
    fl_optim *o = q ? fl_optim_lbfgs(FV_LIST(q), .max_iter = 3, .history = 2, .strong_wolfe = true) : NULL;
    const bool ok = o && first && fl_optim_step_closure(o, summed_exp, q, NULL);
    T second = either(ok, q ? fv_value(q) : NULL);
    fl_optim_free(o);
    return first && second ? ROW(first, second) : NULL;
}
static T averaged(T x) {
    fl_var *p = fv_param(fl_clone(x));
    fl_optim_ema *e = p ? fl_optim_ema_new(FV_LIST(p), 0.5) : NULL;
    bool ok = e && fl_assign(fv_value(p), fl_neg(x)) && fl_optim_ema_update(e) && fl_optim_ema_swap(e);
    fl_optim_ema_free(e);
    return either(ok, fv_value(p));
}
static T in_groups(T x) {
    fl_nn_module *m = dense(&(fl_rng){2, 0});
    fl_optim *o = m ? fl_optim_novograd(fl_nn_parameters(m), .lr = 0.1) : NULL;
    fl_optim_schedule s = {.kind = FL_LR_COSINE, .total = 10};
    fl_var *y = o && fl_optim_group_of(o, m, "*.bias", .lr = 0.5, .weight_decay = FL_ZERO) == 1 &&
                        fl_optim_schedule_start(&s, o)
                    ? fl_nn_forward(m, fv_const(x))
                    : NULL;
    bool ok = y && fl_backward(fv_sum(y, FL_ALL_AXES)) && fl_optim_clip(o, 0.1) && fl_optim_step(o) &&
              fl_optim_schedule_step(&s);
    fl_optim_checkpoint c = {.at = NULL};
    ok = ok && fl_nn_state_add_module(&c.state, "model.", m) && fl_optim_checkpoint_add(&c, "optim.", o) &&
         fl_optim_schedule_state(&s, "lr.", &c.state) && fl_optim_checkpoint_save(&c, fault_file) &&
         fl_optim_checkpoint_load(&c, fault_file);
    fl_optim_checkpoint_free(&c);
    y = ok ? fl_nn_forward(m, fv_const(x)) : NULL;
    fl_optim_free(o);
    fl_nn_free(m);
    return fv_value(y);
}
static T clipped(T x) {
    fl_var *p = fv_param(x);
    bool ok = p && fl_backward(chain(p)) && fl_optim_clip_grad_norm(FV_LIST(p), 0.01) != NULL;
    return either(ok, p ? fv_grad(p) : NULL);
}

/* >>data and files */

static bool scale_sample(fl_data_sample *s, fl_rng *rng, void *user) {
    T noise = fl_uniform(FL_SHAPE(6), 0, 1, FL_F32, rng);
    (void)user;
    return (s->t[0] = fl_add(s->t[0], noise)) != NULL;
}
/* All batches of a set, as one tensor; frees it. */
static T all_batches(fl_data_set *set) {
    T t[4];
    int n = 0;
    fl_data_sample s;
    for (; set && n < fl_data_size(set) && n < 4 && fl_data_get(set, n, &s); n++) t[n] = s.t[0];
    bool complete = set && n == fl_data_size(set);
    fl_data_free(set);
    return complete ? row_of(n, t) : NULL;
}
static fl_data_set *shuffled(T x) {
    fl_data_set *set = fl_data_tensors((T[]){x, x}, 2);
    set = fl_data_transform(fl_data_shuffle(set, 3), scale_sample, NULL);
    return fl_data_batch(fl_data_concat((fl_data_set *[]){set}, 1), 2, false);
}
static T data(T x) {
    return all_batches(shuffled(x));
}
static T loaded_ahead(T x) {
    return all_batches(fl_data_prefetch(shuffled(x), 2, 2));
}
static bool ragged_sample(int64_t i, fl_data_sample *s, void *user) {
    s->n = 2;
    s->t[0] = fl_full(FL_SHAPE(i % 4 + 1, 2), (double)i, FL_F32);
    s->t[1] = fl_slice((T)user, 0, 0, i % 3, 1);
    return s->t[0] && s->t[1];
}
static bool small_sample(const fl_data_sample *s, void *user) {
    (void)user;
    return s->t[0]->shape[0] < 4;
}
static T ragged(T x) {
    fl_data_set *set = fl_data_filter(fl_data_callback(6, ragged_sample, x), small_sample, NULL);
    set = set ? fl_data_repeat(fl_data_sort_by_length(set, 3), 2) : NULL;
    if (set) set = fl_data_batches(set, .budget = 9, .pad = true, .lengths = 3, .masks = 1);
    return all_batches(set ? fl_data_to(set, "cpu") : NULL);
}
static T in_a_blob(T x) {
    fl_data_set *set = x ? fl_data_tensors(&x, 1) : NULL;
    bool ok = set && fl_data_save_blob(fault_file, set);
    fl_data_free(set);
    set = ok ? fl_data_open_blob(fault_file) : NULL;
    if (set) set = fl_data_lengths(set, (int64_t[]){2, 1, 1, 2}, 4);
    return all_batches(set ? fl_data_batches(set, .sizes = (int64_t[]){3, 1}, .n_sizes = 2) : NULL);
}
static bool path_sample(const fl_data_list_entry *e, fl_data_sample *s, void *user) {
    (void)user;
    s->n = 1;
    return (s->t[0] = fl_full(FL_SCALAR_SHAPE, (double)e->path[strlen(e->path) - 1], FL_F64)) != NULL;
}
static T listed(T x) {
    char folder[sizeof fault_file];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(fault_file, '/') - fault_file), fault_file);
    FILE *f = fopen(fault_file, "w");
    if (f) fputs("a\t1\nb\t2\nc\t3\n", f);
    if (!f || fclose(f)) return NULL;
    fl_data_set *set = x ? fl_data_folder(folder, path_sample) : NULL;
    T one = all_batches(set);
    set = one ? fl_data_list(fault_file, path_sample, .root = "r", .length = 2) : NULL;
    T three = all_batches(set);
    return three ? ROW(one, three) : NULL;
}
static T metered(T x) {
    fl_data_average a = {0};
    fl_data_frame_error e = {0};
    fl_data_confusion c = {.classes = 6};
    fl_data_roc r = {0}, both = {0};
    fl_data_edits d = {0};
    fl_data_calibration p = {0};
    T least = fl_argmin(x, 1, false), row = least ? fl_reshape(x, FL_SHAPE(-1)) : NULL;
    T truth = row ? fl_cast(fl_gt(row, fl_num(1)), FL_I64) : NULL;
    bool ok = truth && fl_data_average_add_tensor(&a, x) && fl_data_average_add_squares(&a, x, fl_neg(x)) &&
              fl_data_frame_error_add(&e, x, least) && fl_data_top_k_add(&e, x, least, 2) &&
              fl_data_confusion_add(&c, x, least) && fl_data_roc_add(&r, row, truth) &&
              fl_data_roc_merge(&both, &r) && fl_data_edits_add_tensor(&d, truth, least) &&
              fl_data_align((int64_t[]){1, 2}, 2, (int64_t[]){2}, 1, (fl_data_aligned[3]){{0}}) == 2 &&
              fl_data_calibration_add(&p, fl_softmax(x, 1), least);
    const double v[] = {a.mean, (double)e.wrong, fl_data_confusion_micro(&c).f1, fl_data_roc_auc(&both),
                        fl_data_edits_percent(&d), fl_data_calibration_error(&p)};
    fl_data_confusion_free(&c);
    fl_data_roc_free(&r);
    fl_data_roc_free(&both);
    return ok ? fl_from_host(v, FL_SHAPE(6), FL_F64) : NULL;
}
static T saved(T x) {
    fl_data_named_tensor named[] = {{"x", x}, {"y", fl_transpose(x, 0, 1)}};
    if (!named[1].tensor || !fl_data_save_safetensors(fault_file, named, 2, NULL, 0)) return NULL;
    fl_data_file *f = fl_data_open_safetensors(fault_file);
    T t = f ? fl_data_read(f, "y") : NULL;
    fl_data_close(f);
    return t;
}
static T saved_module(T x) {
    fl_nn_module *m = dense(&(fl_rng){2, 0}), *other = m ? dense(&(fl_rng){5, 0}) : NULL;
    bool ok = x && other && fl_nn_save(m, fault_file) && fl_nn_load(other, fault_file);
    fl_var *y = ok ? fl_nn_forward(other, fv_const(x)) : NULL;
    fl_nn_free(m);
    fl_nn_free(other);
    return fv_value(y);
}
static T checkpoint(T x) {
    fl_nn_module *m = dense(&(fl_rng){2, 0});
    fl_optim *o = m ? fl_optim_adam(fl_nn_parameters(m)) : NULL;
    fl_optim_progress at = {1, 2, 3};
    fl_var *y = o ? fl_nn_forward(m, fv_const(x)) : NULL;
    bool ok = y && fl_backward(fv_sum(y, FL_ALL_AXES)) && fl_optim_step(o) &&
              fl_optim_save_checkpoint(fault_file, m, o, &at) &&
              fl_optim_load_checkpoint(fault_file, m, o, &at);
    y = ok ? fl_nn_forward(m, fv_const(x)) : NULL;
    fl_optim_free(o);
    fl_nn_free(m);
    return fv_value(y);
}

/* All the options of attention, with the gradient; and a query alone. */
static T attended(T x) {
    fl_var *q = fv_param(fl_reshape(x, FL_SHAPE(4, 3, 2))), *k = fv_param(fl_reshape(x, FL_SHAPE(2, 6, 2)));
    fl_var *table = k ? fv_select(fv_slice(k, 1, 0, 3, 1), 0, 0) : NULL;
    fl_var *far = table ? fv_relative_scores(fv_rotary(q, .offset = 1), table, 6, 2) : NULL;
    fl_var *y = far ? fv_attention(q, k, k, .causal = true, .offset = 2, .window = 3, .softcap = 2,
                                   .mask = far)
                    : NULL;
    fl_var *z = y ? fv_attention(fv_slice(q, 1, 0, 1, 1), k, k, .window = 4) : NULL;
    if (!z || !fl_backward(fv_sum(fv_add(y, z), FL_ALL_AXES))) return NULL;
    return row_of(3, (T[]){fv_value(y), fv_grad(q), fv_grad(k)});
}
/* Two steps of a decoder layer behind a cache, with its sequences exchanged between them. */
static T decoded(T x) {
    fl_rng rng = {2, 0};
    fl_nn_module *m = fl_nn_transformer_decoder(
        6, 3, 4, .causal = true, .rng = &rng,
        .attention = {.n_kv_heads = 1, .rotary = true, .buckets = 4, .alibi = true});
    fl_nn_cache *c = m ? fl_nn_cache_new(m, 2, 2) : NULL;
    fl_var *rows = c ? fv_const(fl_reshape(x, FL_SHAPE(2, 2, 6))) : NULL;
    T y[2] = {NULL}, turned = rows ? fl_from_host((int64_t[]){1, 0}, FL_SHAPE(2), FL_I64) : NULL;
    for (int i = 0; i < 2 && turned && (i == 0 || (y[0] && fl_nn_cache_reorder(c, turned))); i++) {
        fl_var *now = fv_slice(rows, 1, i, i + 1, 1);
        y[i] = now ? fv_value(fl_nn_forward_cached(m, FL_VARS(now, rows), c).v[0]) : NULL;
    }
    fl_nn_cache_free(c);
    fl_nn_free(m);
    return y[1] ? row_of(2, y) : NULL;
}

static const struct {
    const char *name;
    T (*run)(T x);
} scenarios[] = {
#define S(name) \
    { #name, name }
    S(views),
    S(lent),
    S(reshaped),
    S(copies),
    S(joined),
    S(stacked),
    S(casts),
    S(assigned),
    S(assigned_cast),
    S(assigned_over_itself),
    S(attended),
    S(decoded),
    S(set_through_a_view),
    S(read_back),
    S(unary),
    S(formulas),
    S(broadcasts),
    S(half),
    S(integers),
    S(chosen),
    S(composed),
    S(composed_wide),
    S(composed_more),
    S(sums),
    S(extremes_of),
    S(truths),
    S(scans),
    S(sorts),
    S(tops),
    S(nonzeros),
    S(gathers),
    S(scatters),
    S(found_more), S(found_in_order), S(factored),
    S(reduced_at_places),
    S(quantized),
    S(framed),
    S(one_hots),
    S(products),
    S(batches),
    S(convolved),
    S(grouped),
    S(max_pooled),
    S(avg_pooled),
    S(pooled_more),
    S(resampled),
    S(softmaxes),
    S(created),
    S(drawn),
    S(scoped),
    S(printed),
    S(backward),
    S(backward_of_moves),
    S(twice),
    S(forward_mode),
    S(passes_over_lists),
    S(backward_of_images),
    S(backward_of_compositions),
    S(layers),
    S(converted),
    S(autocast),
    S(image_layers),
    S(more_layers),
    S(summarised),
    S(recurrent_layers),
    S(recurrent_states),
    S(formatted),
    S(losses),
    S(weighted_losses), S(losses_with_options),
    S(initialised),
    S(sgd),
    S(adam),
    S(scaled),
    S(more_optimizers),
    S(whole_tensors),
    S(averaged),
    S(in_groups),
    S(clipped),
    S(data),
    S(ragged),
    S(in_a_blob),
    S(listed),
    S(loaded_ahead),
    S(metered),
    S(saved),
    S(saved_module),
    S(checkpoint),
#undef S
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

#endif /* MIT licence: see LICENSE. */
