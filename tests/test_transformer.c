/* test_transformer.c - attention layers step by step: a cache beside none, whatever the options; what a full
   cache does; positions by their formulas; half floats */
#include "../fl_all.h"
#include "test.h"

enum { N = 2, T = 9, S = 5, DIM = 12, HEADS = 6 };

static double apart(fl_tensor *a, fl_tensor *b) {
    fl_tensor *most = fl_amax(fl_abs(fl_sub(fl_cast(a, FL_F64), fl_cast(b, FL_F64))), FL_ALL_AXES);
    return most ? fl_item(most) : NAN;
}

static fl_var *reals(fl_shape s, fl_dtype d, uint64_t key) {
    fl_rng rng = {key, 0};
    return fv_const(fl_cast(fl_normal(s, 0, 1, FL_F64, &rng), d));
}

static const fl_nn_attention_opts kinds[] = {
    {.causal = true},
    {.n_kv_heads = 2},
    {.n_kv_heads = 1, .window = 3},
    {.window = 4, .softcap = 1.5},
    {.rotary = true},
    {.rotary = true, .n_kv_heads = 3, .rope = {.interleaved = true, .base = 100, .scale = 0.5}},
    {.relative = 4},
    {.relative = 20, .scale = 1, .window = 5},
    {.buckets = 6, .max_distance = 7, .n_kv_heads = 3},
    {.alibi = true, .softcap = 2},
    {.relative = 3, .buckets = 4, .alibi = true, .rotary = true},
    {.bias_kv = true, .zero_attn = true, .n_kv_heads = 2},
    {.bias_kv = true, .rotary = true, .softcap = 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Two layers of a kind, all parameters (biases too) random. */
static fl_nn_module *stack(int kind, bool decoder, fl_dtype d, fl_rng *rng) {
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    for (int i = 0; i < 2; i++) {
        const fl_nn_transformer_opts o = {.causal = true, .norm_first = i == 0, .attention = kinds[kind],
                                          .no_bias = kind == 6, .dtype = d, .rng = rng};
        CHECK(fl_nn_add(net, NULL, decoder ? fl_nn_transformer_decoder_opt(DIM, HEADS, 16, o)
                                           : fl_nn_transformer_opt(DIM, HEADS, 16, o)));
    }
    const fv_list p = fl_nn_parameters(net);
    for (int i = 0; i < p.n; i++)
        CHECK(fl_assign(fv_value(p.v[i]), fl_normal(fl_shape_of(fv_value(p.v[i])), 0, 0.4, d, rng)));
    fl_nn_train(net, false);
    return net;
}

static fl_vars inputs(fl_var *x, fl_var *memory) { return (fl_vars){memory ? 2 : 1, {x, memory}}; }

/* The places [from, to) of x, behind what the cache holds. */
static fl_tensor *step(fl_nn_module *net, fl_nn_cache *c, fl_var *x, fl_var *memory, int64_t from,
                       int64_t to) {
    return fv_value(fl_nn_forward_cached(net, inputs(fv_slice(x, 1, from, to, 1), memory), c).v[0]);
}

static void check_cached(int kind, bool decoder, fl_dtype d, double tolerance) {
    fl_rng rng = {11, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = stack(kind, decoder, d, &rng);
    fl_nn_cache *c = fl_nn_cache_new(net, N, T);
    fl_var *x = reals(FL_SHAPE(N, T, DIM), d, 3), *memory = decoder ? reals(FL_SHAPE(N, S, DIM), d, 4) : NULL;
    fl_tensor *want = fv_value(fl_nn_forward_vars(net, inputs(x, memory)).v[0]);
    for (int round = 0; round < 2; round++) {
        /* a prompt, single places, a block, and some of it again */
        static const int64_t at[][2] = {{0, 3}, {3, 4}, {4, 5}, {5, 8}, {6, 7}, {7, 9}};
        for (int i = 0; i < 6; i++) {
            CHECK(fl_nn_cache_rewind(c, at[i][0]));
            fl_tensor *y = step(net, c, x, memory, at[i][0], at[i][1]);
            const double far = apart(y, fl_slice(want, 1, at[i][0], at[i][1], 1));
            if (!CHECK(far <= tolerance)) printf("    kind %d %d step %d: %g\n", kind, decoder, i, far);
            CHECK_EQ_INT(fl_nn_cache_position(c), at[i][1]);
        }
        CHECK(fl_nn_cache_reset(c));
    }
    fl_nn_cache_free(c);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(cached_steps_are_the_whole) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int decoder = 0; decoder < 2; decoder++) {
            check_cached(kind, decoder, FL_F64, 1e-11);
            check_cached(kind, decoder, FL_F32, 2e-5);
        }
}

/* Each option of the layer says what the mask made of its formula does. */
TEST(options_are_masks) {
    fl_rng rng = {5, 0}, again = {5, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *a = fl_nn_attention(DIM, HEADS, .window = 3, .causal = true, .dtype = FL_F64, .rng = &rng);
    fl_nn_module *b = fl_nn_attention(DIM, HEADS, .dtype = FL_F64, .rng = &again);
    fl_var *x = reals(FL_SHAPE(N, T, DIM), FL_F64, 7);
    fl_tensor *band = fl_triu(fl_tril(fl_ones(FL_SHAPE(T, T), FL_B8), 0), -2);
    fl_tensor *masked = fv_value(fl_nn_forward_vars(b, FL_VARS(x, fv_const(band))).v[0]);
    fl_tensor *whole = fv_value(fl_nn_forward_vars(b, FL_VARS(x, fv_num(0))).v[0]);
    CHECK_NEAR(apart(fv_value(fl_nn_forward(a, x)), masked), 0, 1e-14);
    CHECK_NEAR(apart(fv_value(fl_nn_forward(b, x)), whole), 0, 0);
    fl_nn_free(a);
    fl_nn_free(b);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}


TEST(a_full_cache_stays_as_it_is) {
    fl_rng rng = {2, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = stack(4, true, FL_F64, &rng), *other = fl_nn_attention(DIM, HEADS, .dtype = FL_F64);
    fl_nn_cache *c = fl_nn_cache_new(net, N, 4);
    fl_var *x = reals(FL_SHAPE(N, T, DIM), FL_F64, 3), *memory = reals(FL_SHAPE(N, S, DIM), FL_F64, 4);
    fl_tensor *want = fv_value(fl_nn_forward_vars(net, FL_VARS(fv_slice(x, 1, 0, 4, 1), memory)).v[0]);
    CHECK(step(net, c, x, memory, 0, 3));
    CHECK(!step(net, c, x, memory, 3, 5));
    CHECK_ERROR("fl_nn_attention '0.self_attn': the cache of 2 sequences of 4 positions holds 3: "
                "no space for 2 sequences of 2 more");
    CHECK_EQ_INT(fl_nn_cache_position(c), 3);
    CHECK(!step(net, c, fv_slice(x, 0, 0, 1, 1), fv_slice(memory, 0, 0, 1, 1), 3, 4));
    CHECK_ERROR("no space for 1 sequences of 1 more");
    CHECK(!fl_nn_forward_cached(other, FL_VARS(x), c).n);
    CHECK_ERROR("is not in the tree that the cache was made for");
    CHECK(!fl_nn_cache_rewind(c, 4));
    CHECK_ERROR("position must be in 0 to 3, got 4");
    CHECK_NEAR(apart(step(net, c, x, memory, 3, 4), fl_slice(want, 1, 3, 4, 1)), 0, 1e-12);
    CHECK(!step(net, c, x, memory, 4, 5));
    CHECK_ERROR("holds 4");
    CHECK(!fl_nn_forward_cached(NULL, FL_VARS(x), c).n);
    CHECK_ERROR("the module is NULL");
    CHECK(!fl_nn_forward_cached(net, FL_VARS(x, memory), NULL).n);
    CHECK_ERROR("the cache is NULL");
    CHECK(!fl_nn_cache_new(net, 0, 3));
    CHECK_ERROR("n and length must be positive, got 0 and 3");
    CHECK(!fl_nn_cache_new(net, 1, 3, .dtype = FL_I64));
    CHECK_ERROR("i64");
    CHECK(!fl_nn_cache_new(other->child[0], 1, 3));
    CHECK_ERROR("contains no attention");
    CHECK(fl_nn_forward(other, x) && fl_grad_enabled()); /* no cache is left in use */
    fl_nn_cache_free(c);
    fl_nn_cache_free(NULL);
    fl_nn_free(net);
    fl_nn_free(other);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(beams_are_reordered) {
    fl_rng rng = {2, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = stack(1, true, FL_F64, &rng);
    fl_nn_cache *c = fl_nn_cache_new(net, N, T);
    fl_var *x = reals(FL_SHAPE(N, T, DIM), FL_F64, 3), *memory = reals(FL_SHAPE(N, S, DIM), FL_F64, 4);
    fl_tensor *swap = fl_from_host((int64_t[]){1, 0}, FL_SHAPE(2), FL_I64);
    fl_tensor *want = fv_value(fl_nn_forward_vars(net, FL_VARS(x, memory)).v[0]);
    CHECK(step(net, c, x, memory, 0, 5));
    CHECK(fl_nn_cache_reorder(c, swap));
    fl_var *turned = fv_index_select(x, 0, swap);
    fl_tensor *y = fl_index_select(step(net, c, turned, memory, 5, 6), 0, swap);
    CHECK_NEAR(apart(y, fl_slice(want, 1, 5, 6, 1)), 0, 1e-12);
    CHECK(!fl_nn_cache_reorder(c, fl_arange(0, 3, 1, FL_I64)));
    CHECK_ERROR("index must be [2], got [3]");
    fl_nn_cache_free(c);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Two caches of one tree do not know of each other; nothing is recorded, and no parameter is touched. */
TEST(caches_are_apart) {
    fl_rng rng = {2, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = stack(0, false, FL_F64, &rng);
    fl_nn_cache *c[2] = {fl_nn_cache_new(net, N, T), fl_nn_cache_new(net, N, T, .dtype = FL_F32)};
    fl_var *x = reals(FL_SHAPE(N, T, DIM), FL_F64, 3);
    fl_tensor *want = fv_value(fl_nn_forward(net, x));
    CHECK(step(net, c[0], x, NULL, 0, 4));
    CHECK_NEAR(apart(step(net, c[1], x, NULL, 0, 2), fl_slice(want, 1, 0, 2, 1)), 0, 1e-5);
    fl_vars y = fl_nn_forward_cached(net, FL_VARS(fv_slice(x, 1, 4, 5, 1)), c[0]);
    CHECK(y.n == 1 && !y.v[0]->requires_grad);
    CHECK_NEAR(apart(fv_value(y.v[0]), fl_slice(want, 1, 4, 5, 1)), 0, 1e-12);
    for (int i = 0; i < 2; i++) fl_nn_cache_free(c[i]);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The record of half floats keeps them, and one f32 per query. */
TEST(half_floats_stay_narrow) {
    static const fl_dtype narrow[] = {FL_BF16, FL_F16};
    for (int i = 0; i < 2; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {3, 0};
        fl_var *x[3], *wide[3];
        for (int k = 0; k < 3; k++) {
            fl_tensor *t = fl_cast(fl_uniform(FL_SHAPE(2, 64, 32), -1, 1, FL_F32, &rng), narrow[i]);
            x[k] = fv_param(t), wide[k] = fv_param(fl_cast(t, FL_F32));
        }
        const int64_t before = fl_mem_stats_of(NULL).in_use;
        fl_scope inner = fl_scope_begin();
        fl_var *y = fv_scope_return(&inner, fv_attention(x[0], x[1], x[2], .causal = true));
        CHECK(y && y->value->dtype == narrow[i]);
        CHECK(fl_mem_stats_of(NULL).in_use - before < 2 * 64 * 32 * 2 + 2 * 64 * 4 + 4096); /* y, and lse */
        fl_var *z = fv_attention(wide[0], wide[1], wide[2], .causal = true);
        fl_tensor *dy = fl_uniform(FL_SHAPE(2, 64, 32), -1, 1, FL_F32, &rng);
        CHECK(fl_backward(y, .grad = fl_cast(dy, narrow[i])) && fl_backward(z, .grad = dy));
        CHECK_NEAR(apart(y->value, z->value), 0, 8e-3);
        for (int k = 0; k < 3; k++) {
            CHECK(fv_grad(x[k])->dtype == narrow[i]);
            CHECK_NEAR(apart(fv_grad(x[k]), fv_grad(wide[k])), 0, 3e-2);
        }
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(lengths_become_masks) {
    fl_scope s = fl_scope_begin();
    fl_tensor *mask = fl_length_mask(fl_from_host((int64_t[]){3, 1}, FL_SHAPE(2), FL_I64), 3);
    const uint8_t want[] = {1, 1, 1, 1, 0, 0};
    uint8_t got[6];
    CHECK(mask && fl_shape_is(mask, FL_SHAPE(2, 1, 1, 3)) && fl_to_host(mask, got, sizeof got));
    CHECK(!memcmp(want, got, sizeof got));
    static const int64_t bad[][2] = {{4, 1}, {3, 0}, {-1, 2}};
    static const char *const text[] = {"got lengths from 1 to 4, expected 1 to 3", "lengths from 0 to 3",
                                       "from -1 to 2"};
    for (int i = 0; i < 3; i++) {
        CHECK(!fl_length_mask(fl_from_host(bad[i], FL_SHAPE(2), FL_I64), 3));
        CHECK_ERROR(text[i]);
    }
    CHECK(!fl_length_mask(fl_ones(FL_SHAPE(2), FL_F32), 3));
    CHECK_ERROR("f32 [2]");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    test_errors_return();
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
