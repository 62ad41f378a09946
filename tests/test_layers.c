/* test_layers.c - the layers of fl/nn and channels-last networks: what parity with PyTorch
   (tests/parity.c) does not see, which is modes, randomness, masks, layouts and printing */
#include "../fl_all.h"
#include "test.h"
#include <pthread.h>

static double item(fl_tensor *t) { return t ? fl_item(t) : NAN; }

/* The largest difference; NaN if there is none to tell. */
static double apart(fl_tensor *a, fl_tensor *b) {
    return item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES));
}

static fl_var *reals(fl_shape s, uint64_t key) {
    fl_rng rng = {key, 0};
    return fv_param(fl_normal(s, 0, 1, FL_F64, &rng));
}

static void ignore(const char *text, void *user) {
    (void)text, (void)user;
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
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
}

TEST(squash_of_nothing) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_zeros(FL_SHAPE(2, 3), FL_F64));
    CHECK(fl_backward(fv_sum(fl_nn_squash(x), FL_ALL_AXES)));
    CHECK_NEAR(item(fl_amax(fl_abs(fv_grad(x)), FL_ALL_AXES)), 0, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
}

/* In evaluation one pass where nothing is recorded, a composition where something is. */
TEST(batch_norm_by_running_statistics) {
    fl_nn_module *m = fl_nn_batch_norm2d(16, .relu = true);
    fl_scope s = fl_scope_begin();
    fl_rng rng = {4, 0};
    fl_var *x = fv_const(fl_normal(FL_SHAPE(3, 16, 5, 5), 1, 2, FL_F32, &rng));
    fl_var *add = fv_const(fl_normal(FL_SHAPE(3, 16, 5, 5), 0, 1, FL_F32, &rng));
    for (int i = 0; i < 3; i++) fl_nn_forward(m, x); /* learns statistics */
    fl_nn_train(m, false);
    for (int last = 0; last < 2; last++) {
        fl_var *in = last ? fv_channels_last(x) : x, *want[2], *y[2];
        for (int quiet = 0; quiet < 2; quiet++) {
            fl_var **to = quiet ? y : want;
            fl_no_grad(quiet);
            to[0] = fl_nn_forward(m, in);
            to[1] = fl_nn_forward_vars(m, FL_VARS(in, add)).v[0];
        }
        fl_no_grad(false);
        for (int i = 0; i < 2; i++) CHECK_NEAR(apart(fv_value(y[i]), fv_value(want[i])), 0, 1e-5);
    }
    fl_scope_end(&s);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

/* Frozen weights are packed and transformed once, for inputs of any size; what is written to one ends that.
   */
TEST(frozen_network) {
    fl_rng rng = {5, 0};
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_conv2d(32, 64, 3, .pad = 1, .rng = &rng), fl_nn_conv2d(64, 32, 5, .pad = 2, .rng = &rng),
        fl_nn_conv2d(32, 300, 1, .rng = &rng), fl_nn_permute(FL_AXES(0, 2, 3, 1)),
        fl_nn_linear(300, 1100, .act = FL_OP_relu, .rng = &rng), fl_nn_linear(1100, 70, .rng = &rng));
    fl_scope s = fl_scope_begin();
    fl_nn_channels_last(net);
    fl_var *x = fv_const(fl_channels_last(fl_normal(FL_SHAPE(1, 32, 17, 18), 0, 1, FL_F32, &rng)));
    fl_tensor *want = fv_value(fl_nn_forward(net, x)), *bound = fl_mul(fl_amax(fl_abs(want), FL_ALL_AXES),
                                                                      fl_num(1e-4));
    fl_var *other = fv_const(fl_channels_last(fl_normal(FL_SHAPE(5, 32, 29, 31), 0, 1, FL_F32, &rng)));
    fl_tensor *others = fv_value(fl_nn_forward(net, other));
    CHECK(fl_nn_freeze(net, true));
    for (int i = 0; i < 2; i++) {
        fl_tensor *y = fv_value(fl_nn_forward(net, x));
        CHECK(apart(y, want) < item(bound));
    }
    fl_tensor *first = fv_value(fl_nn_forward(net, x)), *again = fv_value(fl_nn_forward(net, x));
    CHECK_NEAR(apart(first, again), 0, 0);
    CHECK(apart(fv_value(fl_nn_forward(net, other)), others) < item(bound));
    for (int64_t i = 0; i < 6; i++) { /* weights of twice the size */
        fl_var *w = fl_nn_param_at(net->child[i], 0);
        if (w) CHECK(fl_assign(fv_value(w), fl_mul(fv_value(w), fl_num(2))));
    }
    want = fv_value(fl_nn_forward(net, x));
    CHECK(fl_nn_freeze(net, true));
    CHECK(apart(fv_value(fl_nn_forward(net, x)), want) < 32 * item(bound));
    CHECK(fl_nn_freeze(net, false));
    fl_scope_end(&s);
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
}

/* The largest difference of a frozen net's answer from want, of the largest number in it. */
static double apart_frozen(fl_nn_module *net, fl_var *x, fl_tensor *want) {
    fl_tensor *y = fv_value(fl_nn_forward(net, x));
    return y ? apart(y, want) / item(fl_amax(fl_abs(want), FL_ALL_AXES)) : INFINITY;
}

static int calls_seen;
static void count_call(const fl_call *c, void *user) {
    (void)c, (void)user;
    calls_seen++;
}

static int64_t modules_seen;
static void see_call(fl_nn_module *m, const fl_vars *out, void *user) {
    (void)m, (void)user;
    modules_seen += out != NULL;
}

static fl_nn_module *norm_net(fl_rng *rng) {
    return fl_nn_sequential(
        fl_nn_conv2d(32, 64, 3, .pad = 1, .no_bias = true, .rng = rng), fl_nn_batch_norm2d(64), fl_nn_relu(),
        fl_nn_conv2d(64, 40, 1, .rng = rng), fl_nn_batch_norm2d(40, .relu = true),
        fl_nn_conv2d(40, 40, 3, .stride = 2, .pad = 1, .groups = 40, .rng = rng),
        fl_nn_batch_norm2d(40, .frozen = true), fl_nn_relu(), /* and: */
        fl_nn_conv2d(40, 64, 1, .rng = rng), fl_nn_relu(), /* and: */
        fl_nn_conv2d(64, 24, 3, .pad = 1, .rng = rng), fl_nn_batch_norm2d(24, .no_affine = true),
        fl_nn_relu6());
}

/* The calls of a forward pass. g[0..3]: x's gradient, the first weight's and bias's, and the gradient with
   respect to that weight of the sum of squares of x's. */
static int conv_gradients(fl_nn_module *net, fl_var *x, fl_tensor *g[4]) {
    fl_var *w = fl_nn_param_at(net->child[0], 0), *b = fl_nn_param_at(net->child[0], 1);
    fl_call_hook(count_call, NULL, NULL);
    calls_seen = 0;
    fl_var *y = fl_nn_forward(net, x);
    fl_call_hook(NULL, NULL, NULL);
    fl_var *loss = fv_sum(fv_square(y), FL_ALL_AXES), *d[3];
    if (!fl_grads(FV_LIST(loss), FV_LIST(x, w, b), d, .create_graph = true)) return -1;
    for (int i = 0; i < 3; i++) g[i] = fv_value(d[i]);
    g[3] = fv_value(fl_grad(fv_sum(fv_square(d[0]), FL_ALL_AXES), w, false));
    return calls_seen;
}

/* The same numbers as while a hook watches each module. */
TEST(a_relu_joins_its_convolution_in_training) {
    fl_rng rng = {7, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_conv2d(3, 8, 3, .pad = 1, .rng = &rng), fl_nn_relu(),
                                         fl_nn_conv2d(8, 5, 3, .stride = 2, .rng = &rng), fl_nn_relu());
    fl_var *x = fv_param(fl_normal(FL_SHAPE(2, 3, 9, 10), 0, 1, FL_F32, &rng));
    fl_tensor *joined[4], *want[4];
    CHECK_EQ_INT(conv_gradients(net, x, joined), 2);
    fl_nn_call_hook before = fl_nn_set_call_hook((fl_nn_call_hook){see_call, NULL});
    CHECK_EQ_INT(conv_gradients(net, x, want), 4);
    fl_nn_set_call_hook(before);
    for (int i = 0; i < 4; i++)
        CHECK(apart(joined[i], want[i]) <= 1e-6 * item(fl_amax(fl_abs(want[i]), FL_ALL_AXES)));
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* Batch norms and ReLUs go into frozen convolutions, while nobody looks in between. */
TEST(frozen_norms) {
    fl_rng rng = {7, 0};
    fl_nn_module *net = norm_net(&rng);
    fl_scope s = fl_scope_begin();
    for (int last = 0; last < 2; last++) {
        fl_var *x = fv_const(fl_normal(FL_SHAPE(2, 32, 18, 17), 0.3, 1, FL_F32, &rng));
        if (last) fl_nn_channels_last(net), x = fv_channels_last(x);
        fl_nn_train(net, true);
        for (int i = 0; i < 3; i++) fl_nn_forward(net, x); /* norms learn statistics */
        fl_nn_train(net, false);
        fl_no_grad(true);
        fl_tensor *want = fv_value(fl_nn_forward(net, x));
        CHECK(fl_nn_freeze(net, true));
        for (int i = 0; i < 2; i++) CHECK(apart_frozen(net, x, want) < 1e-5);
        fl_call_hook(count_call, NULL, NULL);
        calls_seen = 0;
        fl_nn_forward(net, x);
        fl_call_hook(NULL, NULL, NULL);
        CHECK_EQ_INT(calls_seen, 6); /* five convolutions and relu6 */
        fl_nn_call_hook before = fl_nn_set_call_hook((fl_nn_call_hook){see_call, NULL});
        modules_seen = 0;
        CHECK(apart_frozen(net, x, want) < 1e-5);
        CHECK_EQ_INT(modules_seen, 14);
        fl_nn_set_call_hook(before);
        fl_tensor *mean = fl_nn_get_buffer(net, "1.running_mean"); /* of which nothing was promised */
        CHECK(fl_assign(mean, fl_add(mean, fl_num(0.5))));
        fl_tensor *w = fv_value(fl_nn_get_param(net, "3.weight")); /* nor is this kept any more */
        CHECK(fl_assign(w, fl_mul(w, fl_num(-1))));
        fl_nn_set_call_hook((fl_nn_call_hook){see_call, NULL});
        want = fv_value(fl_nn_forward(net, x));
        fl_nn_set_call_hook(before);
        CHECK(apart_frozen(net, x, want) < 1e-5);
        fl_no_grad(false);
        CHECK(apart_frozen(net, x, want) < 1e-5);
        CHECK(fl_nn_freeze(net, false) && apart_frozen(net, x, want) < 1e-5);
    }
    CHECK(fl_nn_run_sequence(net->child, 0, FL_VARS(NULL)).n == 1);
    fl_scope_end(&s);
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
}

typedef struct frozen_job {
    fl_nn_module *net;
    const float *x;
    float y[6 * 300];
    bool ok;
} frozen_job;

static void *answer_frozen(void *arg) {
    frozen_job *j = arg;
    fl_no_grad(true);
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *y = fl_nn_forward(j->net, fv_const(fl_from_host(j->x, FL_SHAPE(6, 400), FL_F32)));
        j->ok = y && fl_to_host(fv_value(y), j->y, sizeof j->y);
        fl_scope_end(&s);
    }
    return NULL;
}

/* Four threads ask a frozen net at once, none of which was first by agreement. */
TEST(frozen_network_of_threads) {
    fl_rng rng = {6, 0};
    fl_nn_module *net = fl_nn_linear(400, 300, .rng = &rng);
    float x[6 * 400];
    frozen_job job[4], whole = {.net = net, .x = x};
    pthread_t thread[4];
    for (int i = 0; i < 6 * 400; i++) x[i] = (float)(i % 37) / 37;
    answer_frozen(&whole);
    fl_no_grad(false);
    CHECK(whole.ok && fl_nn_freeze(net, true));
    for (int i = 0; i < 4; i++) {
        job[i] = (frozen_job){.net = net, .x = x};
        REQUIRE(!pthread_create(&thread[i], NULL, answer_frozen, &job[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(job[i].ok);
        for (int k = 0; k < 6 * 300; k++) CHECK_NEAR(job[i].y[k], whole.y[k], 1e-4);
    }
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
}

/* Bit for bit, and stored as x is. */
static void check_pooling(fl_tensor *x, fl_pool_opts o) {
    fl_scope s = fl_scope_begin();
    fl_tensor *at, *at_last, *last = fl_channels_last(x);
    fl_tensor *y = fl_max_pool_opt(x, &at, o);
    fl_tensor *y_last = fl_max_pool_opt(last, &at_last, o);
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
            check_pooling(x, (fl_pool_opts){.kernel = {2}});
            check_pooling(x, (fl_pool_opts){.kernel = {3}, .stride = {2}, .pad = {1}});
            check_pooling(x, (fl_pool_opts){.kernel = {3, 2}, .stride = {1}});
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
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
    CHECK_NOTHING_LIVES();
}

TEST(recurrent_layers) {
    static const char *const names[] = {"weight_ih_l0",        "weight_hh_l0", "bias_ih_l0",
                                        "bias_hh_l0",          "weight_hr_l0", "weight_ih_l0_reverse",
                                        "weight_hr_l1_reverse"};
    fl_rng rng = {9, 0};
    fl_nn_module *m = fl_nn_lstm(3, 9, .layers = 2, .bidirectional = true, .projection = 4, .dropout = 0.5,
                                 .dtype = FL_F64, .rng = &rng);
    fl_scope s = fl_scope_begin();
    CHECK_EQ_INT(m->n_param, 2 * 2 * 5);
    for (int i = 0; i < 7; i++) CHECK(fl_nn_get_param(m, names[i]) != NULL);
    for (int i = 0; i < m->n_param; i++) { /* within 1 / sqrt(9), and not much less */
        const double most = item(fl_amax(fl_abs(fv_value(m->param[i].var)), FL_ALL_AXES));
        CHECK(most <= 1.0 / 3 && most > 0.25);
    }
    fl_var *x = reals(FL_SHAPE(2, 5, 3), 10);
    fl_var *lengths = fv_const(fl_from_host((int64_t[]){3, 5}, FL_SHAPE(2), FL_I64));
    const fl_vars first = fl_nn_forward_vars(m, FL_VARS(x, lengths)),
                  second = fl_nn_forward_vars(m, FL_VARS(x, lengths));
    CHECK(first.n == 3 && second.n == 3);
    CHECK(apart(fv_value(first.v[0]), fv_value(second.v[0])) > 0.01); /* dropout */
    fl_nn_train(m, false);
    const fl_vars still = fl_nn_forward_vars(m, FL_VARS(x, lengths));
    CHECK(fl_shape_is(fv_value(still.v[0]), FL_SHAPE(2, 5, 8)));
    CHECK(fl_shape_is(fv_value(still.v[1]), FL_SHAPE(4, 2, 4)));
    CHECK(fl_shape_is(fv_value(still.v[2]), FL_SHAPE(4, 2, 9)));
    /* No states are zeros, and nothing sees what stands behind a sequence's end. */
    fl_var *h = fv_const(fl_zeros(FL_SHAPE(4, 2, 4), FL_F64)),
           *c = fv_const(fl_zeros(FL_SHAPE(4, 2, 9), FL_F64));
    fl_tensor *other = fl_clone(fv_value(x));
    CHECK(fl_assign(fl_slice(fl_select(other, 0, 0), 0, 3, 5, 1), fl_num(NAN)) != NULL);
    const fl_vars same = fl_nn_forward_vars(m, FL_VARS(fv_const(other), h, c, lengths));
    for (int i = 0; i < 3; i++) CHECK_NEAR(apart(fv_value(still.v[i]), fv_value(same.v[i])), 0, 0);
    fl_tensor *behind = fl_slice(fl_select(fv_value(still.v[0]), 0, 0), 0, 3, 5, 1);
    CHECK_NEAR(item(fl_amax(fl_abs(behind), FL_ALL_AXES)), 0, 0);
    fl_scope_end(&s);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

TEST(printing) {
    char text[2048];
    fl_nn_module *m = fl_nn_sequential(
        fl_nn_embedding(9, 4, .padding = 2), fl_nn_position(8, 4), fl_nn_sinusoid(4, 2),
        fl_nn_transformer(4, 2, 6, .norm_first = true, .drop_path = 0.1),
        fl_nn_conv1d(4, 6, 3, .pad = 1), fl_nn_glu(1), fl_nn_transpose(1, -1),
        fl_nn_group_norm(2, 4), fl_nn_rms_norm(FL_SHAPE(4)), fl_nn_capsules(2, 3, 4, 5),
        fl_nn_adaptive_softmax(8, FL_SHAPE(2, 4)), fl_nn_adaptive_avg_pool2d(1, 2),
        fl_nn_layer_drop(0.2),
        fl_nn_lstm(5, 6, .layers = 2, .projection = 3, .bidirectional = true, .dropout = 0.5),
        fl_nn_gru(6, 2, .time_first = true, .no_bias = true), fl_nn_rnn(2, 2));
    static const char *const parts[] = {
        "(0): Embedding(9, 4, padding_idx=2)",
        "(1): Position(8, 4)",
        "(2): Sinusoid(4, scale=2)",
        "(3): TransformerEncoderLayer(norm_first=True",
        "(self_attn): MultiheadAttention(4, 2, dropout=0",
        "(out_proj): Linear(in_features=4, out_features=4, bias=True)",
        "(drop_path): DropPath(p=0.1)",
        "(4): Conv1d(4, 6, kernel_size=(3,), stride=(1,), padding=(1,))",
        "(5): GLU(dim=1)",
        "(6): Transpose(1, -1)",
        "(7): GroupNorm(2, 4, eps=1e-05, affine=True)",
        "(8): RMSNorm((4,), eps=None, elementwise_affine=True)",
        "(9): Capsules(2 x 3 to 4 x 5, rounds=3)",
        "AdaptiveLogSoftmaxWithLoss(8, cutoffs=(2, 4), div_value=4",
        "AdaptiveAvgPool2d(output_size=(1, 2))",
        "LayerDrop(p=0.2)",
        "LSTM(5, 6, proj_size=3, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)",
        "GRU(6, 2, bias=False)",
        "RNN(2, 2, batch_first=True)"};
    CHECK(fl_nn_format(m, text, sizeof text) < (int64_t)sizeof text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) CHECK_STR(text, parts[i]);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

static fl_var *twice_plus(fl_var *x, double factor, double shift) {
    return fv_add(fv_mul(x, fv_num(factor)), fv_num(shift));
}

TEST(printing_as_pytorch_does) {
    fl_rng rng = {1, 0};
    fl_nn_module *list = fl_nn_module_list(
        fl_nn_conv3d(2, 4, 3, .kernel_h = 2, .stride_w = 2, .pad = 1, .groups = 2),
        fl_nn_conv1d(2, 4, 3, .causal = true, .dilation = 2),
        fl_nn_conv2d(2, 4, 3, .pad = FL_SAME, .no_bias = true),
        fl_nn_conv_transpose2d(2, 4, 3, .stride = 2, .output_pad = 1),
        fl_nn_conv1d(2, 4, 3, .pad = 1, .pad_mode = FL_PAD_REFLECT),
        fl_nn_pool3d(2), fl_nn_pool1d(3, .stride = 2, .norm = 2), fl_nn_adaptive_max_pool(FL_SHAPE(3)),
        fl_nn_batch_norm1d(3), fl_nn_batch_norm2d(3, .frozen = true), fl_nn_instance_norm(3),
        fl_nn_softplus(0, 0), fl_nn_softmax(1),
        fl_nn_leaky_relu(FL_ZERO), fl_nn_prelu(2), fl_nn_rrelu(0, 0, &rng),
        fl_nn_activation_2("Scale", "factor, shift", twice_plus, 2, 1), fl_nn_bilinear(2, 3, 4),
        fl_nn_permute(FL_AXES(0, 2, 1)), fl_nn_flatten(1, -1), fl_nn_normalize(FL_AXES(1)),
        fl_nn_pad(FL_PAD_EDGE, .low = {0, 1}), fl_nn_precision_cast(FL_BF16),
        fl_nn_weight_norm(fl_nn_linear(2, 3), "weight", 0), fl_nn_identity());
    fl_nn_module *residual = fl_nn_add(list, NULL, fl_nn_residual(fl_nn_relu()));
    CHECK(fl_nn_shortcut(residual, NULL, NULL, "down", fl_nn_linear(1, 1)));
    static const char *const lines[] = {
        "ModuleList(",
        "  (0): Conv3d(2, 4, kernel_size=(3, 2, 2), stride=(1, 1, 2), padding=(1, 1, 1), groups=2)",
        "  (1): Conv1d(2, 4, kernel_size=(3,), stride=(1,), padding=(4, 0), dilation=(2,))",
        "  (2): Conv2d(2, 4, kernel_size=(3, 3), stride=(1, 1), padding=same, bias=False)",
        "  (3): ConvTranspose2d(2, 4, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 1))",
        "  (4): Conv1d(2, 4, kernel_size=(3,), stride=(1,), padding=(1,), padding_mode=reflect)",
        "  (5): MaxPool3d(kernel_size=2, stride=2, padding=0)",
        "  (6): LPPool1d(norm_type=2, kernel_size=3, stride=2, padding=0)",
        "  (7): AdaptiveMaxPool1d(output_size=(3,))",
        "  (8): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)",
        "  (9): FrozenBatchNorm2d(3, eps=1e-05)",
        "  (10): InstanceNorm(3, eps=1e-05, affine=False)",
        "  (11): Softplus(beta=1, threshold=20)",
        "  (12): Softmax(dim=1)",
        "  (13): LeakyReLU(negative_slope=0)",
        "  (14): PReLU(num_parameters=2)",
        "  (15): RReLU(lower=0.125, upper=0.333333)",
        "  (16): Scale(factor=2, shift=1)",
        "  (17): Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)",
        "  (18): Permute(0, 2, 1)",
        "  (19): Flatten(start_dim=1, end_dim=-1)",
        "  (20): Normalize(p=2, dim=(1), eps=1e-12)",
        "  (21): Pad((0, 0), (1, 0), mode=replicate)",
        "  (22): PrecisionCast(bf16)",
        "  (23): Linear(in_features=2, out_features=3, bias=True)",
        "  (24): Identity()",
        "  (25): Residual(input to result by down",
        "    (0): ReLU()",
        "    (down): Linear(in_features=1, out_features=1, bias=True)",
        "  )",
        ")"};
    char text[4096], want[4096] = "";
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%s", i ? "\n" : "", lines[i]);
    fl_nn_format(list, text, sizeof text);
    CHECK_STR(text, want);
    CHECK_EQ_INT(strlen(text), strlen(want));
    fl_nn_free(list);
    CHECK_NOTHING_LIVES();
}

/* Uniform within bound of 0, and really as far as that. */
static void check_uniform(fl_nn_module *m, const char *name, double bound) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fv_value(fl_nn_get_param(m, name));
    const double n = (double)fl_numel(t);
    const double far = item(fl_amax(fl_abs(t), FL_ALL_AXES));
    CHECK(far <= bound && far > bound * (1 - 12 / n));
    CHECK_NEAR(item(fl_mean(t, FL_ALL_AXES)), 0, 5 * bound / sqrt(3 * n));
    CHECK_NEAR(item(fl_mean(fl_square(t), FL_ALL_AXES)), bound * bound / 3,
               5 * bound * bound * sqrt(4 / (45 * n)));
    fl_scope_end(&s);
}

static void check_constant(fl_tensor *t, double value) {
    fl_scope s = fl_scope_begin();
    CHECK(t && item(fl_amin(t, FL_ALL_AXES)) == value && item(fl_amax(t, FL_ALL_AXES)) == value);
    fl_scope_end(&s);
}

TEST(initial_values_are_pytorchs) {
    fl_rng rng = {21, 0};
    fl_nn_module *all[] = {fl_nn_conv1d(8, 40, 5, .groups = 2, .dtype = FL_F64, .rng = &rng),
                           fl_nn_conv3d(4, 30, 3, .dtype = FL_F64, .rng = &rng),
                           fl_nn_conv_transpose1d(30, 8, 5, .groups = 2, .dtype = FL_F64, .rng = &rng),
                           fl_nn_conv_transpose2d(20, 10, 3, .dtype = FL_F64, .rng = &rng),
                           fl_nn_conv_transpose3d(10, 6, 3, .dtype = FL_F64, .rng = &rng),
                           fl_nn_bilinear(9, 16, 20, .dtype = FL_F64, .rng = &rng)};
    static const double fan[] = {4 * 5, 4 * 27, 4 * 5, 10 * 9, 6 * 27, 9};
    static const int64_t bias[] = {40, 30, 8, 10, 6, 20};
    for (int i = 0; i < 6; i++) {
        check_uniform(all[i], "weight", 1 / sqrt(fan[i]));
        fl_scope s = fl_scope_begin();
        fl_tensor *b = fv_value(fl_nn_get_param(all[i], "bias"));
        CHECK_EQ_INT(fl_numel(b), bias[i]);
        CHECK(item(fl_amax(fl_abs(b), FL_ALL_AXES)) <= 1 / sqrt(fan[i]));
        CHECK(item(fl_amax(fl_abs(b), FL_ALL_AXES)) > 0.5 / sqrt(fan[i]));
        fl_scope_end(&s);
        fl_nn_free(all[i]);
    }
    fl_nn_module *frozen = fl_nn_batch_norm3d(3, .frozen = true);
    fl_nn_module *p = fl_nn_prelu(4), *q = fl_nn_prelu(1, .init = FL_ZERO);
    fl_nn_module *affine = fl_nn_instance_norm(2, .affine = true), *plain = fl_nn_instance_norm(2);
    check_constant(fl_nn_get_buffer(frozen, "weight"), 1);
    check_constant(fl_nn_get_buffer(frozen, "bias"), 0);
    check_constant(fl_nn_get_buffer(frozen, "running_mean"), 0);
    check_constant(fl_nn_get_buffer(frozen, "running_var"), 1);
    CHECK_EQ_INT(frozen->n_buffer, 4);
    CHECK_EQ_INT(frozen->n_param, 0);
    check_constant(fv_value(fl_nn_get_param(p, "weight")), 0.25);
    check_constant(fv_value(fl_nn_get_param(q, "weight")), 0);
    check_constant(fv_value(fl_nn_get_param(affine, "weight")), 1);
    CHECK_EQ_INT(plain->n_param, 0);
    fl_nn_module *others[] = {frozen, p, q, affine, plain};
    for (int i = 0; i < 5; i++) fl_nn_free(others[i]);
    CHECK_NOTHING_LIVES();
}

TEST(weight_norm_starts_where_the_layer_was) {
    fl_rng rng = {2, 0};
    fl_nn_module *m = fl_nn_conv2d(3, 4, 3, .dtype = FL_F64, .rng = &rng);
    fl_nn_module *net = fl_nn_sequential(m, fl_nn_relu());
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(1, 3, 5, 5), 6), *before = fl_nn_forward(net, x);
    CHECK(fl_nn_weight_norm(m, "weight", -4) == m);
    CHECK_NEAR(apart(fv_value(fl_nn_forward(net, x)), fv_value(before)), 0, 1e-14);
    static const char *const names[] = {"0.weight_v", "0.bias", "0.weight_g"};
    for (int i = 0; i < 3; i++) CHECK(fl_nn_get_param(net, names[i]) == m->param[i].var);
    CHECK(!fl_nn_get_param(net, "0.weight"));
    char text[64];
    CHECK_STR(fl_nn_shape_text(m->param[2].var, text), "[4, 1, 1, 1]");
    /* twice as long: twice the output, without the bias */
    fl_assign(fv_value(m->param[1].var), fl_num(0));
    before = fl_nn_forward(net, x);
    fl_assign(fv_value(m->param[2].var), fl_mul(fv_value(m->param[2].var), fl_num(2)));
    CHECK_NEAR(apart(fv_value(fl_nn_forward(net, x)), fl_mul(fv_value(before), fl_num(2))), 0, 1e-13);
    fl_scope_end(&s);
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
}

TEST(rrelu_draws_a_slope_for_each_number) {
    enum { N = 10000 };
    fl_rng rng = {4, 0};
    fl_nn_module *m = fl_nn_rrelu(0.2, 0.4, &rng);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_full(FL_SHAPE(N), -1, FL_F64)), *y = fl_nn_forward(m, x);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    fl_tensor *slope = fv_grad(x);
    CHECK_NEAR(apart(slope, fl_neg(fv_value(y))), 0, 0);
    CHECK_NEAR(item(fl_mean(slope, FL_ALL_AXES)), 0.3, 5 * 0.2 / sqrt(12.0 * N));
    CHECK(item(fl_amin(slope, FL_ALL_AXES)) >= 0.2 && item(fl_amax(slope, FL_ALL_AXES)) < 0.4);
    CHECK(item(fl_std(slope, FL_ALL_AXES, 1)) > 0.05);
    fl_nn_train(m, false);
    check_constant(fv_value(fl_nn_forward(m, x)), -(0.2 + 0.4) / 2);
    fl_scope_end(&s);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

TEST(layers_that_move_numbers) {
    fl_scope s = fl_scope_begin();
    fl_var *x = reals(FL_SHAPE(2, 3, 4), 1);
    char text[64];
    fl_nn_module *flat = fl_nn_flatten(1, -1), *order = fl_nn_permute(FL_AXES(2, 0, 1));
    fl_nn_module *same = fl_nn_identity();
    fl_nn_module *narrow = fl_nn_precision_cast(FL_F32);
    CHECK_STR(fl_nn_shape_text(fl_nn_forward(flat, x), text), "[2, 12]");
    CHECK_STR(fl_nn_shape_text(fl_nn_forward(order, x), text), "[4, 2, 3]");
    CHECK(fl_nn_forward(same, x) == x);
    const fl_vars two = fl_nn_forward_vars(narrow, FL_VARS(x, x));
    CHECK_EQ_INT(two.n, 2);
    CHECK_EQ_INT(fv_value(two.v[1])->dtype, FL_F32);
    fl_nn_module *all[] = {flat, order, same, narrow};
    for (int i = 0; i < 4; i++) fl_nn_free(all[i]);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* hardtanh's gradient is 0 at its bounds, as PyTorch's. */
TEST(hardtanh_at_its_bounds) {
    fl_nn_module *m = fl_nn_hardtanh(0, 0);
    fl_scope s = fl_scope_begin();
    static const float in[] = {-2, -1, 0, 1, NAN}, out[] = {-1, -1, 0, 1, NAN}, slope[] = {0, 0, 1, 0, 0};
    fl_var *x = fv_param(fl_from_host(in, FL_SHAPE(5), FL_F32)), *y = fl_nn_forward(m, x);
    CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
    float got[2][5];
    fl_to_host(fv_value(y), got[0], sizeof got[0]);
    fl_to_host(fv_grad(x), got[1], sizeof got[1]);
    for (int i = 0; i < 5; i++) {
        CHECK(got[0][i] == out[i] || (isnan(got[0][i]) && isnan(out[i])));
        CHECK(got[1][i] == slope[i]);
    }
    fl_scope_end(&s);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

/* ---- the summary ---- */

/* A module that writes to its buffer and draws from the process's generator, whatever its mode. */
static fl_vars noisy_forward(fl_nn_module *m, fl_vars in) {
    fl_assign(m->buffer[0].tensor, fl_add(m->buffer[0].tensor, fl_num(1)));
    return FL_VARS(fv_add(in.v[0], fv_const(fl_normal(FL_SHAPE(1), 0, 1, FL_F32, NULL))));
}

TEST(summary_says_what_runs_and_leaves_no_trace) {
    fl_nn_module *noisy = fl_nn_function("Noisy", noisy_forward, NULL, NULL);
    fl_scope s = fl_scope_begin();
    fl_nn_add_buffer(noisy, "calls", fl_zeros(FL_SHAPE(1), FL_F32));
    fl_nn_module *block =
        fl_nn_residual(fl_nn_conv2d(4, 4, 3, .pad = 1, .no_bias = true), fl_nn_batch_norm2d(4));
    CHECK(fl_nn_shortcut(block, NULL, NULL, NULL, NULL));
    fl_nn_module *net = fl_nn_sequential(fl_nn_conv2d(1, 4, 3, .stride = 2), fl_nn_relu(), block,
                                         fl_nn_conv_transpose2d(4, 2, 2), fl_nn_flatten(1, -1),
                                         fl_nn_linear(32, 5), noisy);
    fl_nn_add(noisy, "unused", fl_nn_linear(2, 2));
    fl_nn_add(net, "tied", fl_nn_sequential_of(0, NULL));
    fl_nn_add_param(fl_nn_find(net, "tied"), "weight", fl_nn_get_param(net, "5.weight"));
    fl_nn_train(block, false); /* a mode of its own */
    fl_seed(5);
    const fl_rng rng = fl_rng_state();
    fl_call_hook(count_call, NULL, NULL);
    fl_nn_train(fl_nn_find(net, "2.1"), true);
    char *text = fl_nn_summary_text(net, FL_VARS(fv_const(fl_zeros(FL_SHAPE(2, 1, 7, 7), FL_F32))));
    static const char *const want =
        "Module                Output            Parameters   Multiply-adds    Output bytes\n"
        "Sequential            (2, 5)                     -               -              40\n"
        "  0: Conv2d           (2, 4, 3, 3)              40             648             288\n"
        "  1: ReLU             (2, 4, 3, 3)               -               -             288\n"
        "  2: Residual         (2, 4, 3, 3)               -               -             288\n"
        "    0: Conv2d         (2, 4, 3, 3)             144            2592             288\n"
        "    1: BatchNorm2d    (2, 4, 3, 3)               8               -             288\n"
        "  3: ConvTranspose2d  (2, 2, 4, 4)              34             576             256\n"
        "  4: Flatten          (2, 32)                    -               -             256\n"
        "  5: Linear           (2, 5)                   165             320              40\n"
        "  6: Noisy            (2, 5)                     -               -              40\n"
        "    unused: Linear    not called                 6               -               -\n"
        "  tied: Sequential    (2, 5)                     -               -              40\n"
        "Total                                          397            4136            1744\n"
        "Bytes: input 392, parameters 1588, buffers 44\n";
    CHECK(text != NULL);
    CHECK_STR(text ? text : "", want);
    if (text && strcmp(text, want)) printf("%s", text);
    fl_heap_free(text);
    const fl_rng after = fl_rng_state();
    CHECK(after.key == rng.key && after.counter == rng.counter);
    check_constant(fl_nn_get_buffer(net, "6.calls"), 0);
    check_constant(fl_nn_get_buffer(net, "2.1.running_mean"), 0);
    CHECK(net->train && !block->train && fl_nn_find(net, "2.1")->train && !fl_nn_find(net, "2.0")->train);
    CHECK(fl_grad_enabled());
    calls_seen = 0;
    fl_neg(fl_zeros(FL_SHAPE(3), FL_F32));
    CHECK(calls_seen > 0); /* the user's hook is back */
    fl_call_hook(NULL, NULL, NULL);
    FILE *out = tmpfile();
    CHECK(out && fl_nn_summary(net, FL_SHAPE(2, 1, 7, 7), .out = out));
    if (out) {
        char again[4096];
        rewind(out);
        again[fread(again, 1, sizeof again - 1, out)] = '\0';
        CHECK_STR(again, want);
        fclose(out);
    }
    fl_scope_end(&s);
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
}

/* A failed run puts everything back too. */
TEST(summary_of_what_does_not_fit) {
    fl_nn_module *net = fl_nn_sequential(fl_nn_dropout(0.5), fl_nn_linear(4, 2));
    fl_set_error_handler(ignore, NULL);
    CHECK(!fl_nn_summary(net, FL_SHAPE(2, 3)));
    CHECK_STR(fl_error() ? fl_error() : "", "fl_nn_linear '1'");
    fl_error_clear();
    fl_set_error_handler(NULL, NULL);
    CHECK(net->train && net->child[0]->train && fl_grad_enabled());
    fl_nn_free(net);
    CHECK_NOTHING_LIVES();
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
        both[i] = i ? fl_nn_forward(net, x)
                    : fv_max_pool(fv_relu(x), NULL, .kernel = {3}, .stride = {2}, .pad = {1});
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
/* MIT licence: see LICENSE. */
