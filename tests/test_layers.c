/* test_layers.c - the layers of fl/nn and channels-last networks: what parity with PyTorch
   (tests/parity.c) does not see, which is modes, randomness, masks, layouts and printing */
#include "../fl.h"
#include "test.h"

static double item(fl_tensor *t) { return t ? fl_item(t) : NAN; }

/* The largest difference; NaN if there is none to tell. */
static double apart(fl_tensor *a, fl_tensor *b) {
    return item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES));
}

static fl_var *reals(fl_shape s, uint64_t key) {
    fl_rng rng = {key, 0};
    return fv_param(fl_normal(s, 0, 1, FL_F64, &rng));
}

static void check_nothing_live(void) {
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live(), 0);
    CHECK_EQ_INT(fl_mem_live(), 0);
}

static fl_var *plus_one(fl_var *x) { return fv_add(x, fv_num(1)); }

TEST(layer_drop_leaves_out_children) {
    enum { N = 400 };
    fl_rng rng = {7, 0};
    fl_nn_module *m = fl_nn_layer_drop(0.4, .rng = &rng), *all = fl_nn_layer_drop(1);
    for (int i = 0; i < N; i++) fl_nn_add(m, NULL, fl_nn_activation("PlusOne", plus_one));
    fl_nn_add(all, NULL, fl_nn_activation("PlusOne", plus_one));
    CHECK(fl_nn_find(m, "399") != NULL);
    fl_scope s = fl_scope_begin();
    fl_var *zero = fv_const(fl_zeros(FL_SHAPE(2), FL_F64));
    const double first = item(fl_amax(fv_value(fl_nn_forward(m, zero)), FL_ALL_AXES));
    CHECK_NEAR(first, 0.6 * N, 5 * sqrt(N * 0.24));
    const double second = item(fl_amax(fv_value(fl_nn_forward(m, zero)), FL_ALL_AXES));
    rng = (fl_rng){7, 0}; /* the same numbers leave out the same children */
    CHECK_NEAR(item(fl_amax(fv_value(fl_nn_forward(m, zero)), FL_ALL_AXES)), first, 0);
    CHECK(first != second);
    CHECK(fl_nn_forward(all, zero) == zero);
    fl_nn_train(m, false);
    CHECK_NEAR(item(fl_amin(fv_value(fl_nn_forward(m, zero)), FL_ALL_AXES)), N, 0);
    fl_scope_end(&s);
    fl_nn_free(m);
    fl_nn_free(all);
    check_nothing_live();
}

TEST(drop_path_leaves_out_samples) {
    enum { N = 1000 };
    fl_rng rng = {3, 0};
    fl_nn_module *m = fl_nn_drop_path(0.25, .rng = &rng);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_ones(FL_SHAPE(N, 2, 3), FL_F64)), *y = fl_nn_forward(m, x);
    fl_tensor *low = fl_amin(fv_value(y), FL_AXES(1, 2)),
              *high = fl_amax(fv_value(y), FL_AXES(1, 2));
    CHECK_NEAR(apart(low, high), 0, 0);
    CHECK_NEAR(item(fl_amax(high, FL_ALL_AXES)), 1 / 0.75, 1e-15);
    CHECK_NEAR(item(fl_mean(high, FL_ALL_AXES)), 1, 5 * sqrt(0.25 / 0.75 / N));
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    CHECK_NEAR(apart(fv_grad(x), fv_value(y)), 0, 0);
    fl_nn_train(m, false);
    CHECK(fl_nn_forward(m, x) == x);
    fl_scope_end(&s);
    fl_nn_free(m);
    check_nothing_live();
}

TEST(embedding_starts_and_stays_zero_at_the_padding) {
    fl_nn_module *m = fl_nn_embedding(200, 50, .std = 0.5, .padding = FL_I0, .dtype = FL_F64);
    fl_scope s = fl_scope_begin();
    fl_tensor *w = fv_value(fl_nn_get_param(m, "weight"));
    CHECK_NEAR(item(fl_amax(fl_abs(fl_select(w, 0, 0)), FL_ALL_AXES)), 0, 0);
    CHECK_NEAR(item(fl_std(w, FL_ALL_AXES, 1)), 0.5, 0.02);
    const int64_t words[] = {0, 3, 0, 3};
    fl_var *y = fl_nn_forward(m, fv_const(fl_from_host(words, FL_SHAPE(2, 2), FL_I64)));
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    fl_tensor *g = fv_grad(fl_nn_get_param(m, "weight"));
    CHECK_NEAR(item(fl_sum(g, FL_ALL_AXES)), 2 * 50, 0);
    CHECK_NEAR(item(fl_sum(fl_select(g, 0, 3), FL_ALL_AXES)), 2 * 50, 0);
    fl_nn_free(m);
    fl_scope_end(&s);
    check_nothing_live();
}

TEST(masks_pass_through_a_stack_of_transformers) {
    enum { N = 2, T = 5, DIM = 8 };
    fl_rng rng = {1, 0};
    fl_nn_module *plain = fl_nn_sequential_of(0, NULL), *causal = fl_nn_sequential_of(0, NULL);
    for (int i = 0; i < 2; i++) {
        fl_rng again = rng;
        fl_nn_add(plain, NULL, fl_nn_transformer(DIM, 2, 16, .dtype = FL_F64, .rng = &rng));
        fl_nn_add(causal, NULL,
                  fl_nn_transformer(DIM, 2, 16, .causal = true, .dtype = FL_F64, .rng = &again));
    }
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(N, T, DIM), 5);
    fl_var *past = fv_const(fl_tril(fl_ones(FL_SHAPE(T, T), FL_B8), 0));
    const fl_vars masked = fl_nn_forward_vars(plain, FL_VARS(x, past));
    CHECK_EQ_INT(masked.n, 2);
    CHECK(masked.v[1] == past);
    fl_var *y = fl_nn_forward(causal, x);
    CHECK_NEAR(apart(fv_value(masked.v[0]), fv_value(y)), 0, 1e-13);
    CHECK(apart(fv_value(fl_nn_forward(plain, x)), fv_value(y)) > 1e-3);
    /* no step depends on a later one */
    CHECK(fl_backward(fv_sum(fv_slice(y, 1, 0, 3, 1), FL_ALL_AXES)));
    fl_tensor *later = fl_slice(fv_grad(x), 1, 3, T, 1);
    CHECK_NEAR(item(fl_amax(fl_abs(later), FL_ALL_AXES)), 0, 0);
    fl_scope_end(&s);
    fl_nn_free(plain);
    fl_nn_free(causal);
    check_nothing_live();
}

TEST(dropout_of_attention_is_for_training) {
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_nn_attention(8, 2, .dropout = 0.5, .dtype = FL_F64, .rng = &rng);
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(2, 6, 8), 2), *one = fl_nn_forward(m, x), *two = fl_nn_forward(m, x);
    CHECK(apart(fv_value(one), fv_value(two)) > 1e-3);
    fl_nn_train(m, false);
    one = fl_nn_forward(m, x), two = fl_nn_forward(m, x);
    CHECK_NEAR(apart(fv_value(one), fv_value(two)), 0, 0);
    fl_scope_end(&s);
    fl_nn_free(m);
    check_nothing_live();
}

TEST(adaptive_softmax_shares_add_up) {
    enum { WORDS = 12, DIM = 8 };
    fl_nn_module *m =
        fl_nn_adaptive_softmax(DIM, FL_SHAPE(3, 7, WORDS), .divide = 2, .dtype = FL_F64);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_expand(reals(FL_SHAPE(1, DIM), 4), FL_SHAPE(WORDS, DIM));
    fl_tensor *words = fl_arange(0, WORDS, 1, FL_I64);
    fl_var *logp = fl_nn_forward_vars(m, FL_VARS(x, fv_const(words))).v[0];
    CHECK_NEAR(item(fl_sum(fl_exp(fv_value(logp)), FL_ALL_AXES)), 1, 1e-14);
    fl_scope_end(&s);
    fl_nn_free(m);
    check_nothing_live();
}

TEST(squash_of_nothing) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(2, 3), FL_F64));
    CHECK(fl_backward(fv_sum(fl_nn_squash(x), FL_ALL_AXES)));
    CHECK_NEAR(item(fl_amax(fl_abs(fv_grad(x)), FL_ALL_AXES)), 0, 0);
    fl_scope_end(&s);
    check_nothing_live();
}

TEST(batch_norm_with_relu) {
    fl_nn_module *plain = fl_nn_batch_norm2d(3, .dtype = FL_F64);
    fl_nn_module *both = fl_nn_batch_norm2d(3, .relu = true, .dtype = FL_F64);
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(4, 3, 5, 5), 9);
    for (int train = 1; train >= 0; train--) {
        fl_nn_train(plain, train);
        fl_nn_train(both, train);
        fl_var *want = fv_relu(fl_nn_forward(plain, x));
        CHECK_NEAR(apart(fv_value(fl_nn_forward(both, x)), fv_value(want)), 0, 1e-14);
    }
    fl_scope_end(&s);
    fl_nn_free(plain);
    fl_nn_free(both);
    check_nothing_live();
}

/* ---- channels-last ---- */

static fl_nn_module *image_net(void) {
    fl_rng rng = {1, 0};
    return fl_nn_sequential(
        fl_nn_conv2d(3, 4, 3, .pad = 1, .dtype = FL_F64, .rng = &rng), fl_nn_relu(),
        fl_nn_conv2d(4, 6, 3, .stride = 2, .no_bias = true, .dtype = FL_F64, .rng = &rng),
        fl_nn_adaptive_avg_pool2d(1, 1), fl_nn_view(FL_SHAPE(-1, 6)));
}

static bool has_channels_last(const fl_tensor *t) {
    return t->ndim == 4 && t->stride[1] == 1 && t->stride[3] == t->shape[1];
}

TEST(channels_last_network) {
    fl_nn_module *first = image_net(), *last = image_net();
    CHECK(fl_nn_channels_last(last));
    CHECK_EQ_INT(fl_nn_count(last), fl_nn_count(first));
    fl_var *w = fl_nn_get_param(last, "0.weight");
    CHECK(has_channels_last(fv_value(w)));
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(last), .lr = 0.1, .momentum = 0.9);
    CHECK(has_channels_last(optim->slot[0].state[0]));
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(2, 3, 8, 7), 3), *y = fl_nn_forward(first, x),
           *z = fl_nn_forward(last, x);
    CHECK_NEAR(apart(fv_value(y), fv_value(z)), 0, 1e-13);
    fl_backward(fv_sum(fv_square(y), FL_ALL_AXES));
    fl_backward(fv_sum(fv_square(z), FL_ALL_AXES));
    CHECK_NEAR(apart(fv_grad(fl_nn_get_param(first, "0.weight")), fv_grad(w)), 0, 1e-12);
    CHECK(fl_optim_step(optim));
    CHECK(has_channels_last(fv_value(w)));
    fl_scope_end(&s);
    fl_optim_free(optim);
    fl_nn_free(first);
    fl_nn_free(last);
    check_nothing_live();
}

/* Bit for bit, and stored as x is. */
static void check_pooling(fl_tensor *x, int64_t kernel, fl_pool2d_opts o) {
    fl_scope s = fl_scope_begin();
    fl_tensor *at, *at_last, *last = fl_channels_last(x);
    fl_tensor *y = fl_max_pool2d_opt(x, kernel, &at, o);
    fl_tensor *y_last = fl_max_pool2d_opt(last, kernel, &at_last, o);
    CHECK(has_channels_last(y_last) && has_channels_last(at_last));
    CHECK(fl_item(fl_all(fl_isclose(y, y_last, 0, 0, true), FL_ALL_AXES)) == 1);
    CHECK(fl_item(fl_all(fl_eq(at, at_last), FL_ALL_AXES)) == 1);
    fl_rng rng = {3, 0};
    fl_tensor *dy = fl_uniform(fl_shape_of(y), -1, 1, x->dtype, &rng);
    fl_tensor *dx = fl_max_pool2d_grad(dy, at, fl_shape_of(x));
    fl_tensor *dx_last = fl_max_pool2d_grad(dy, at_last, fl_shape_of(x));
    CHECK(has_channels_last(dx_last));
    CHECK(fl_item(fl_all(fl_eq(dx, dx_last), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

TEST(max_pool_channels_last) {
    static const fl_dtype dtypes[] = {FL_F32, FL_F64};
    static const int64_t channels[] = {2, 15, 17, 256, 300};
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < 5; k++) {
            fl_rng rng = {(uint64_t)k, 0};
            fl_scope s = fl_scope_begin();
            fl_tensor *x = fl_rint(fl_uniform(FL_SHAPE(2, channels[k], 7, 6), -3, 3, dtypes[d], &rng));
            x = fl_where(fl_eq(x, fl_num(-3)), fl_num(-INFINITY), x);
            x = fl_where(fl_eq(x, fl_num(-2)), fl_num(NAN), x);
            check_pooling(x, 2, (fl_pool2d_opts){0});
            check_pooling(x, 3, (fl_pool2d_opts){.stride = 2, .pad = 1});
            check_pooling(x, 3, (fl_pool2d_opts){.kernel_w = 2, .stride = 1});
            fl_scope_end(&s);
        }
    check_nothing_live();
}

TEST(channels_last_files_are_alike) {
    char path[64];
    snprintf(path, sizeof path, "%s/fl_layers_%d.safetensors", P_tmpdir, (int)getpid());
    fl_nn_module *first = image_net(), *last = image_net();
    fl_scope s = fl_scope_begin();
    CHECK(fl_nn_channels_last(last));
    CHECK(fl_nn_save(last, path));
    CHECK(fl_nn_init_constant(fl_nn_get_param(first, "0.weight"), 0));
    CHECK(fl_nn_load(first, path));
    fl_tensor *a = fv_value(fl_nn_get_param(first, "0.weight"));
    fl_tensor *b = fv_value(fl_nn_get_param(last, "0.weight"));
    CHECK_NEAR(apart(a, b), 0, 0);
    CHECK(fl_is_contiguous(a) && has_channels_last(b));
    CHECK(fl_nn_load(last, path));
    CHECK(has_channels_last(b));
    CHECK_NEAR(apart(a, b), 0, 0);
    remove(path);
    fl_scope_end(&s);
    fl_nn_free(first);
    fl_nn_free(last);
    check_nothing_live();
}

TEST(printing) {
    char text[2048];
    fl_nn_module *m = fl_nn_sequential(
        fl_nn_embedding(9, 4, .padding = 2), fl_nn_position(8, 4), fl_nn_sinusoid(4, 2),
        fl_nn_transformer(4, 2, 6, .norm_first = true, .drop_path = 0.1),
        fl_nn_conv1d(4, 6, 3, .pad = 1), fl_nn_glu(1), fl_nn_transpose(1, -1),
        fl_nn_group_norm(2, 4), fl_nn_rms_norm(FL_SHAPE(4)), fl_nn_capsules(2, 3, 4, 5),
        fl_nn_adaptive_softmax(8, FL_SHAPE(2, 4)), fl_nn_adaptive_avg_pool2d(1, 2),
        fl_nn_layer_drop(0.2));
    static const char *const parts[] = {
        "(0): Embedding(9, 4, padding_idx=2)",
        "(1): Position(8, 4)",
        "(2): Sinusoid(4, scale=2)",
        "(3): TransformerEncoderLayer(norm_first=True",
        "(self_attn): MultiheadAttention(4, 2, dropout=0",
        "(out_proj): Linear(in_features=4, out_features=4, bias=True)",
        "(drop_path): DropPath(p=0.1)",
        "(4): Conv1d(4, 6, kernel_size=(3,), stride=(1,), padding=1)",
        "(5): GLU(dim=1)",
        "(6): Transpose(1, -1)",
        "(7): GroupNorm(2, 4, eps=1e-05, affine=True)",
        "(8): RMSNorm((4,), eps=1e-05, elementwise_affine=True)",
        "(9): Capsules(2 x 3 to 4 x 5, rounds=3)",
        "AdaptiveLogSoftmaxWithLoss(8, cutoffs=(2, 4), div_value=4",
        "AdaptiveAvgPool2d(output_size=(1, 2))",
        "LayerDrop(p=0.2)"};
    CHECK(fl_nn_format(m, text, sizeof text) < (int64_t)sizeof text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) CHECK_STR(text, parts[i]);
    fl_nn_free(m);
    check_nothing_live();
}

/* ---- large values that are computed again in backward ---- */

/* The gradient of sum gelu(x)^2 and that of its sum, of x [rows, 8192]. */
static void twice_through_gelu(fl_tensor *x, fl_tensor **first, fl_tensor **second) {
    fl_var *v = fv_param(x), *y = fv_gelu(v);
    fl_var *g = fl_grad(fv_sum(fv_mul(y, y), FL_ALL_AXES), v, true);
    *first = fv_value(g);
    *second = fv_value(fl_grad(fv_sum(g, FL_ALL_AXES), v, false));
}

TEST(outputs_that_are_computed_again) {
    fl_rng rng = {11, 0};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(4, 8192), 0, 1, FL_F32, &rng), *all[2], *row[2];
    twice_through_gelu(x, &all[0], &all[1]);
    for (int r = 0; r < 4; r++) { /* a row is too small to be computed again */
        twice_through_gelu(fl_slice(x, 0, r, r + 1, 1), &row[0], &row[1]);
        for (int i = 0; i < 2; i++)
            CHECK(apart(row[i], fl_slice(all[i], 0, r, r + 1, 1)) == 0);
    }
    fl_var *v = fv_param(x), *y = v; /* a chain: not each from the start */
    for (int i = 0; i < 3000; i++) y = fv_sin(y);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* What somebody wrote into an output counts for those who read it after that. */
TEST(outputs_that_were_written_to_are_kept) {
    fl_rng rng = {12, 0};
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_normal(FL_SHAPE(4, 8192), 0, 1, FL_F32, &rng));
    fl_var *w = fv_param(fl_ones(FL_SHAPE(4, 8192), FL_F32)), *y = fv_gelu(x);
    fl_assign(fv_value(y), fl_mul(fl_gelu(fv_value(x)), fl_num(3)));
    CHECK(fl_backward(fv_sum(fv_mul(y, w), FL_ALL_AXES)));
    CHECK_NEAR(apart(fv_grad(w), fl_mul(fl_gelu(fv_value(x)), fl_num(3))), 0, 1e-6);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

TEST(norms_and_activations_are_not_kept) {
    fl_rng rng = {5, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_layer_norm(FL_SHAPE(256)),
                                         fl_nn_linear(256, 256, .act = FL_OP_gelu, .rng = &rng),
                                         fl_nn_linear(256, 8, .rng = &rng));
    const int64_t bytes = 512 * 256 * 4, before = fl_mem_stats_of(NULL).in_use;
    fl_var *x = fv_param(fl_normal(FL_SHAPE(512, 256), 0, 1, FL_F32, &rng));
    fl_var *y = fl_nn_forward(net, fv_reshape(x, FL_SHAPE(4, 128, 256))); /* views in between */
    y = fv_reshape(y, FL_SHAPE(512, 8));
    CHECK(fl_mem_stats_of(NULL).in_use - before < 5 * bytes / 2); /* x, and what gelu reads */
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    fl_tensor *n = fl_layer_norm(fv_value(x), 1, NULL, NULL, 1e-5);
    fl_tensor *h = fl_linear_act(n, fv_value(fl_nn_get_param(net, "1.weight")),
                                 fv_value(fl_nn_get_param(net, "1.bias")), FL_OP_gelu);
    fl_tensor *want = fl_sum(h, FL_AXES(0)), *dw = fv_grad(fl_nn_get_param(net, "2.weight"));
    for (int i = 0; i < 8; i++) CHECK_NEAR(apart(fl_select(dw, 0, i), want), 0, 1e-4);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* relu(norm(x_0)), then of the others relu(norm(x_i) + what came before), each weighed by u_i and
   summed; norms as one op or as the ops they are. */
static fl_var *residual_sum(fl_var *const *x, fl_var *const *u, int n, fl_var *w, fl_var *b,
                            bool fused) {
    fl_scope s = fl_scope_begin();
    fl_var *y = NULL, *sum = fv_num(0);
    for (int i = 0; i < n; i++) {
        if (fused) {
            y = i ? fv_batch_norm_add(x[i], w, b, y, .train = true, .relu = true)
                  : fv_batch_norm(x[i], w, b, .train = true, .relu = true);
        } else {
            const fl_axes axes = FL_AXES_KEEP(0, 2, 3);
            fl_var *gap = fv_sub(x[i], fv_mean(x[i], axes));
            fl_var *rstd = fv_rsqrt(fv_add(fv_mean(fv_square(gap), axes), fv_num(1e-5)));
            const fl_shape channels = FL_SHAPE(fv_value(w)->shape[0], 1, 1);
            fl_var *z = fv_add(fv_mul(fv_mul(gap, rstd), fv_reshape(w, channels)),
                               fv_reshape(b, channels));
            y = fv_relu(i ? fv_add(z, y) : z);
        }
        sum = fv_add(sum, fv_sum(fv_mul(y, u[i]), FL_ALL_AXES));
    }
    return fv_scope_return(&s, sum);
}

TEST(norms_of_images_are_not_kept) {
    enum { N = 5 };
    fl_rng rng = {15, 0};
    const fl_shape image = FL_SHAPE(4, 16, 32, 32);
    const int64_t bytes = fl_shape_numel(image) * 4;
    fl_scope s = fl_scope_begin();
    fl_var *w = fv_param(fl_uniform(FL_SHAPE(16), 0.5, 2, FL_F32, &rng));
    fl_var *b = fv_param(fl_normal(FL_SHAPE(16), 0, 1, FL_F32, &rng)), *x[N], *u[N], *d[2 * N + 2];
    for (int i = 0; i < N; i++) {
        x[i] = fv_param(fl_channels_last(fl_normal(image, 0, 1, FL_F32, &rng)));
        u[i] = fv_param(fl_channels_last(fl_normal(image, 0, 1, FL_F32, &rng)));
    }
    fl_var *all[2 * N + 2] = {w, b};
    for (int i = 0; i < 2 * N; i++) all[2 + i] = i < N ? x[i] : u[i - N];
    CHECK(fl_backward(residual_sum(x, u, N, w, b, false)));
    for (int i = 0; i < 2 * N + 2; i++) {
        d[i] = fv_keep(all[i]->grad);
        fv_zero_grad(all[i]);
    }
    const int64_t before = fl_mem_stats_of(NULL).in_use;
    fl_var *sum = residual_sum(x, u, N, w, b, true);
    CHECK(fl_mem_stats_of(NULL).in_use - before < 3 * bytes / 2); /* one of the five */
    CHECK(fl_backward(sum, .retain_graph = true));
    for (int i = 0; i < 2 * N + 2; i++)
        CHECK_NEAR(apart(fv_grad(all[i]), d[i]->value), 0, i < 2 ? 1e-2 : 1e-4);
    for (int i = 0; i < 2 * N + 2; i++) {
        fv_drop(d[i]);
        d[i] = fv_keep(all[i]->grad);
        fv_zero_grad(all[i]);
    }
    CHECK(fl_backward(sum)); /* once more gives the same bits */
    for (int i = 0; i < 2 * N + 2; i++) {
        CHECK_NEAR(apart(fv_grad(all[i]), d[i]->value), 0, 0);
        fv_drop(d[i]);
    }
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

TEST(pooling_goes_before_relu_where_it_follows) {
    fl_nn_module *inner = fl_nn_sequential(fl_nn_relu(), fl_nn_pool2d(2), fl_nn_relu(),
                                           fl_nn_pool2d(2, .average = true), fl_nn_gelu(), fl_nn_pool2d(3));
    fl_nn_module *net = fl_nn_sequential(fl_nn_pool2d(2), inner, fl_nn_relu());
    CHECK(fl_nn_pool_before_relu(net) && fl_nn_pool_before_relu(net)); /* twice is as once */
    static const char *const kinds[] = {"MaxPool2d", "ReLU", "ReLU", "AvgPool2d", "GELU", "MaxPool2d"};
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        CHECK_STR(inner->child[i]->kind, kinds[i]);
        CHECK(fl_nn_find(inner, name) == inner->child[i]);
    }
    CHECK_STR(net->child[0]->kind, "MaxPool2d");
    CHECK_STR(net->child[2]->kind, "ReLU");
    fl_nn_free(net);
    CHECK_NO_ERROR();
}

/* ReLU and max pooling in a row: the same values and gradients as one after the other, but only the
   pooled numbers are kept, and a byte for each. */
TEST(max_pooling_keeps_little) {
    fl_rng rng = {16, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_relu(), fl_nn_pool2d(3, .stride = 2, .pad = 1));
    CHECK(fl_nn_pool_before_relu(net));
    const fl_shape image = FL_SHAPE(2, 24, 64, 64);
    const int64_t bytes = fl_shape_numel(image) * 4;
    fl_tensor *values = fl_channels_last(fl_normal(image, 0, 1, FL_F32, &rng));
    fl_assign(fl_select(values, 3, 5), fl_num(NAN));
    fl_assign(fl_select(values, 3, 6), fl_num(2)); /* equal maxima */
    fl_var *x = fv_param(values), *both[2] = {NULL};
    fl_tensor *d[2], *g = fl_normal(FL_SHAPE(2, 24, 32, 32), 0, 1, FL_F32, &rng);
    for (int i = 0; i < 2; i++) {
        const int64_t before = fl_mem_stats_of(NULL).in_use;
        both[i] = i ? fl_nn_forward(net, x) : fv_max_pool2d(fv_relu(x), 3, .stride = 2, .pad = 1);
        if (i) CHECK(fl_mem_stats_of(NULL).in_use - before < 2 * bytes / 5); /* 1/4 + 1/16 */
        CHECK(fl_backward(both[i], .grad = g));
        d[i] = fl_keep(fv_grad(x));
        fv_zero_grad(x);
    }
    CHECK(item(fl_sum(fl_isnan(fv_value(both[0])), FL_ALL_AXES)) > 0);
    fl_tensor *same = fl_eq(fv_value(both[0]), fv_value(both[1]));
    same = fl_logical_or(same, fl_isnan(fv_value(both[1])));
    CHECK(item(fl_amin(fl_cast(same, FL_F32), FL_ALL_AXES)) == 1);
    CHECK_NEAR(apart(d[0], d[1]), 0, 0);
    for (int i = 0; i < 2; i++) fl_drop(d[i]);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
