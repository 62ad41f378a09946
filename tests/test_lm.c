/* test_lm.c - token files and sets over them, language models, their training, reading and writing */
#include "../fl_all.h"
#include "../bench/peers/llama_loop.c"
#include "heap.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#ifndef _WIN32
#include <sys/stat.h>
#include <unistd.h>
#endif

enum { V = 17 }; /* words of the models here */

static const char *temporary(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/fl_lm_%d_%s", P_tmpdir, (int)getpid(), name);
    return path;
}

/* n ids, a function of their place. */
static int64_t id_at(int64_t i) { return (i * i + 3 * i) % 13; }
static fl_tensor *ids(int64_t n, fl_dtype dtype) {
    fl_tensor *t = fl_empty(FL_SHAPE(n), FL_I64);
    int64_t *p = fl_map(t, FL_WRITE);
    for (int64_t i = 0; i < n; i++) p[i] = id_at(i);
    fl_unmap(t, FL_WRITE);
    return fl_cast(t, dtype);
}

static fl_text_tokens *tokens_of(int64_t n) {
    fl_scope s = fl_scope_begin();
    fl_text_tokens *t = fl_text_tokens_of(ids(n, FL_I32), NULL, V);
    fl_scope_end(&s);
    return t;
}

/* Field k of sample i, up to 4096 integers; how many. */
static int64_t field(fl_data_set *set, int64_t i, int k, int64_t *out) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    int64_t n = -1;
    if (fl_data_get(set, i, &b) && k < b.n && fl_numel(b.t[k]) <= 4096) {
        fl_tensor *t = fl_cast(b.t[k], FL_I64);
        n = fl_numel(t);
        if (n && !fl_to_host(t, out, (size_t)n * sizeof *out)) n = -1;
    }
    fl_scope_end(&s);
    return n;
}

/* ---- token files ---- */

TEST(token_files_come_back) {
    test_errors_return();
    const int64_t starts[] = {0, 10, 10, 60};
    const fl_dtype dtypes[] = {FL_U16, FL_I32, FL_I64};
    for (int i = 0; i < 6; i++) {
        fl_scope s = fl_scope_begin();
        const char *path = temporary("tokens");
        fl_tensor *t = ids(100, dtypes[i % 3]), *at = fl_from_host(starts, FL_SHAPE(4), FL_I64);
        if (i > 2) t = fl_add(fl_cast(t, FL_I64), fl_int(70000));
        REQUIRE(fl_text_tokens_save(path, t, at, "a tokenizer"));
        fl_data_file *f = fl_data_open_safetensors(path);
        CHECK_EQ_INT(fl_data_dtype(f, fl_data_find(f, "tokens")), i > 2 ? FL_I32 : FL_U16);
        fl_data_close(f);
        fl_text_tokens *tokens = fl_text_tokens_open(path, .tokenizer = "a tokenizer");
        REQUIRE(tokens);
        CHECK_EQ_INT(fl_text_tokens_count(tokens), 100);
        CHECK_EQ_INT(fl_text_tokens_documents(tokens), 4);
        int64_t got[100], begin, end;
        CHECK(fl_text_tokens_read(tokens, 0, 100, got));
        for (int64_t k = 0; k < 100; k++) CHECK_EQ_INT(got[k], id_at(k) + (i > 2 ? 70000 : 0));
        CHECK(fl_text_tokens_span(tokens, 2, &begin, &end) && begin == 10 && end == 60);
        CHECK(fl_text_tokens_span(tokens, 3, &begin, &end) && begin == 60 && end == 100);
        CHECK(!fl_text_tokens_read(tokens, 90, 11, got));
        CHECK_ERROR("[90, 101) of 100 tokens");
        fl_text_tokens_free(tokens);
        CHECK(!fl_text_tokens_open(path, .tokenizer = "another"));
        CHECK_ERROR("tokenizer differs: got 'a tokenizer', expected 'another'");
        tokens = fl_text_tokens_open(path, .vocabulary = 10);
        CHECK(tokens && !fl_text_tokens_read(tokens, 0, 100, got));
        CHECK_ERROR(i > 2 ? "token 0 is out of range: got id 70000" : "the vocabulary has 10");
        fl_text_tokens_free(tokens);
        remove(path);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(raw_and_bad_token_files) {
    test_errors_return();
    const char *path = temporary("raw");
    const unsigned char bytes[] = {1, 0, 255, 255, 0, 1, 9};
    int64_t got[3];
    CHECK(fl_data_replace("test", path, bytes, 6));
    fl_text_tokens *t = fl_text_tokens_open(path, .raw = true);
    CHECK(t && fl_text_tokens_count(t) == 3 && fl_text_tokens_read(t, 0, 3, got));
    CHECK(got[0] == 1 && got[1] == 65535 && got[2] == 256);
    fl_text_tokens_free(t);
    CHECK(fl_data_replace("test", path, bytes, 7) && !fl_text_tokens_open(path, .raw = true));
    CHECK_ERROR("7 bytes are not a multiple of 2");
    static const int64_t bad[][2] = {{5, 3}, {0, 101}, {-1, 50}};
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        int64_t begin, end;
        t = fl_text_tokens_of(ids(100, FL_I32), fl_from_host(bad[i], FL_SHAPE(2), FL_I64), V);
        CHECK(t && !fl_text_tokens_span(t, i == 1, &begin, &end));
        CHECK_ERROR("of 100 tokens");
        fl_text_tokens_free(t);
        CHECK(!fl_text_tokens_of(fl_zeros(FL_SHAPE(2, 2), FL_I32), NULL, V));
        CHECK_ERROR("tokens i32 [2, 2]");
        CHECK(!fl_text_tokens_save(path, fl_full(FL_SHAPE(2), -1, FL_I32), NULL, NULL));
        CHECK_ERROR("got -1 to -1");
        const fl_data_named_tensor named = {"tokens", fl_zeros(FL_SHAPE(3), FL_F32)};
        CHECK(fl_data_save_safetensors(path, &named, 1, NULL, 0) && !fl_text_tokens_open(path));
        CHECK_ERROR("tokens f32 [3]");
        fl_scope_end(&s);
    }
    remove(path);
    CHECK_NOTHING_LIVES();
}

/* ---- sets ---- */

/* Each token in one share, each share whole documents, whatever the numbers. */
TEST(shares_are_whole_documents) {
    static const int64_t starts[] = {0, 7, 7, 30, 31, 60, 99};
    fl_scope s = fl_scope_begin();
    fl_tensor *many = fl_from_host(starts, FL_SHAPE(7), FL_I64);
    for (int with = 0; with < 2; with++) {
        fl_text_tokens *t = fl_text_tokens_of(fl_zeros(FL_SHAPE(100), FL_I32), with ? many : NULL, 5);
        for (int64_t ranks = 1; ranks < 12; ranks++) {
            int64_t at = 0, begin, end;
            for (int64_t r = 0; r < ranks; r++, at = end) {
                REQUIRE(fl_text_tokens_shard(t, r, ranks, &begin, &end));
                CHECK_EQ_INT(begin, at);
                bool whole = !with || begin == 100;
                for (int i = 0; i < 7; i++) whole |= starts[i] == begin;
                CHECK(whole && (with || end - begin <= 100 / ranks + 1));
            }
            CHECK_EQ_INT(at, 100);
        }
        int64_t b, e;
        CHECK(!fl_text_tokens_shard(t, 3, 3, &b, &e));
        CHECK_ERROR("got 3 of 3 ranks");
        fl_text_tokens_free(t);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(blocks_have_each_token_once) {
    const int64_t n = 103;
    fl_text_tokens *t = tokens_of(n);
    for (int64_t length = 1; length <= 110; length += 9) {
        int64_t seen[103] = {0}, x[110], y[110];
        fl_data_set *set = fl_text_blocks(t, length, .begin = 3);
        for (int64_t i = 0, at = 3; i < fl_data_size(set); i++) {
            const int64_t k = field(set, i, 0, x);
            CHECK_EQ_INT(field(set, i, 1, y), k);
            for (int64_t j = 0; j < k; j++, at++) {
                CHECK_EQ_INT(x[j], id_at(at));
                CHECK_EQ_INT(y[j], id_at(at + 1));
                seen[at + 1]++;
            }
        }
        for (int64_t i = 0; i < n; i++) CHECK_EQ_INT(seen[i], i > 3);
        fl_data_free(set);
    }
    fl_text_tokens_free(t);
    CHECK_NOTHING_LIVES();
}

TEST(random_blocks_are_a_function_of_seed_and_epoch) {
    fl_text_tokens *t = tokens_of(1000);
    fl_data_set *a = fl_text_blocks(t, 8, .random = true, .seed = 5, .size = 50);
    fl_data_set *b = fl_data_prefetch(fl_text_blocks(t, 8, .random = true, .seed = 5, .size = 50), 2, 4);
    int64_t same = 0, x[8], y[8];
    for (int64_t e = 0; e < 3; e++) {
        CHECK(fl_data_set_epoch(a, e) && fl_data_set_epoch(b, e));
        for (int64_t i = 0; i < 50; i++) {
            CHECK(field(a, i, 0, x) == 8 && field(b, i, 0, y) == 8 && !memcmp(x, y, sizeof x));
            CHECK(fl_data_set_epoch(a, e + 1) && field(a, i, 0, y) == 8 && fl_data_set_epoch(a, e));
            same += !memcmp(x, y, sizeof x);
        }
    }
    CHECK(same < 30); /* of 150, ids repeat every 13 */
    fl_data_free(a);
    fl_data_free(b);
    fl_text_tokens_free(t);
    CHECK_NOTHING_LIVES();
}

TEST(documents_in_batches_by_a_budget) {
    fl_scope s = fl_scope_begin();
    int64_t starts[40], x[4096], y[4096], m[4096], total = 0;
    for (int64_t i = 0, at = 0; i < 40; i++) starts[i] = at, at += i % 7 + (i < 39);
    fl_text_tokens *t = fl_text_tokens_of(ids(200, FL_U16), fl_from_host(starts, FL_SHAPE(40), FL_I64), V);
    fl_data_set *set = fl_data_sort_by_length(fl_data_shuffle(fl_text_documents(t, 16), 1), 20);
    set = fl_data_batches(set, .budget = 64, .pad = true, .pad_value = {15, -100}, .masks = 1);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        const int64_t k = field(set, i, 0, x);
        CHECK(k <= 64 || fl_data_size(set) == 1);
        CHECK(field(set, i, 1, y) == k && field(set, i, 2, m) == k);
        for (int64_t j = 0; j < k; j++) {
            CHECK(m[j] ? x[j] != 15 && y[j] >= 0 : x[j] == 15 && y[j] == -100);
            total += m[j];
        }
    }
    CHECK_EQ_INT(total, 200 + 40); /* each token and each end once */
    fl_data_free(set);
    fl_text_tokens_free(t);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(masks_hide_what_they_should) {
    fl_text_tokens *t = tokens_of(40001);
    bool special[V] = {[0] = true, [4] = true};
    fl_data_set *set = fl_text_mask(fl_text_blocks(t, 200, .drop_last = true), .vocabulary = V, .mask = 14,
                                    .special = special, .seed = 3);
    double hidden = 0, masked = 0, kept = 0, other = 0, ordinary = 0;
    int64_t x[200], y[200], z[200];
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        int64_t here = 0;
        CHECK(field(set, i, 0, x) == 200 && field(set, i, 1, y) == 200);
        for (int64_t k = 0; k < 200; k++) {
            const int64_t was = id_at(200 * i + k);
            ordinary += !special[was];
            if (y[k] == -100) CHECK_EQ_INT(x[k], was);
            else {
                CHECK(y[k] == was && !special[was] && (x[k] == 14 || !special[x[k]]));
                here++, masked += x[k] == 14, kept += x[k] == was, other += x[k] != 14 && x[k] != was;
            }
        }
        CHECK(here > 0);
        hidden += (double)here;
    }
    CHECK_NEAR(hidden / ordinary, 0.15, 0.01);
    CHECK_NEAR(masked / hidden, 0.8, 0.025);
    CHECK_NEAR(other / hidden, 0.1 * 13 / 14, 0.02); /* a drawn id may be what it was */
    CHECK_NEAR(kept / hidden, 0.1 + 0.1 / 14, 0.02);
    CHECK(field(set, 3, 0, x) == 200 && field(set, 3, 0, z) == 200 && !memcmp(x, z, sizeof x));
    CHECK(fl_data_set_epoch(set, 1) && field(set, 3, 0, z) == 200 && memcmp(x, z, sizeof x));
    fl_data_free(set);
    set = fl_text_mask(fl_text_blocks(t, 2, .end = 2000), .vocabulary = V, .mask = 14, .part = 1e-9);
    for (int64_t i = 0; i < fl_data_size(set); i++) { /* one at least */
        const int64_t n = field(set, i, 1, y);
        CHECK(n < 1 || y[0] != -100 || (n == 2 && y[1] != -100));
    }
    fl_data_free(set);
    fl_text_tokens_free(t);
    CHECK_NOTHING_LIVES();
}

/* ---- models ---- */

static const struct kind { const char *name; fl_text_lm_opts o;
} kinds[] = {
    {"gpt2", {.layers = 2, .dim = 24, .heads = 4, .context = 32}},
    {"llama",
     {.layers = 2,
      .dim = 24,
      .heads = 4,
      .kv_heads = 2,
      .context = 32,
      .place = FL_LM_ROTARY,
      .rms = true,
      .gated = true,
      .no_bias = true,
      .untied = true,
      .hidden = 40}},
    {"one key head",
     {.layers = 1,
      .dim = 24,
      .heads = 4,
      .kv_heads = 1,
      .context = 32,
      .place = FL_LM_ROTARY,
      .rope = {.interleaved = true, .base = 500, .scale = 0.5}}},
    {"qwen2",
     {.layers = 1,
      .dim = 24,
      .heads = 4,
      .context = 32,
      .place = FL_LM_ROTARY,
      .no_bias = true,
      .qkv_bias = true,
      .window = 5}},
    {"yarn",
     {.layers = 1,
      .dim = 32,
      .heads = 2,
      .context = 32,
      .place = FL_LM_ROTARY,
      .rope = {.base = 100, .scale = 0.25, .kind = FL_ROTARY_YARN, .trained = 8}}},
    {"post-norm",
     {.layers = 2,
      .dim = 24,
      .heads = 4,
      .context = 32,
      .post_norm = true,
      .activation = fv_relu,
      .place = FL_LM_SINUSOID,
      .embedding_scale = 4.9,
      .embedding_norm = true}},
    {"adaptive", {.layers = 1, .dim = 24, .heads = 4, .context = 32, .cutoffs = {3, {5, 9, V}}}},
    {"gcnn", {.kind = FL_LM_GCNN, .layers = 3, .dim = 24, .context = 32, .untied = true}},
    {"lstm", {.kind = FL_LM_LSTM, .layers = 2, .dim = 24, .context = 32}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The model, its parameters far from what they begin as, so that all of them matter. */
static fl_nn_module *model_of(const struct kind *k) {
    fl_rng rng = {11, 0};
    fl_text_lm_opts o = k->o;
    o.rng = &rng;
    fl_nn_module *m = fl_text_lm_opt(V, o);
    fv_list all = fl_nn_parameters(m);
    for (int64_t i = 0; i < all.n; i++)
        fl_nn_init_normal(all.v[i], fv_value(all.v[i])->ndim == 1 ? 0.5 : 0, 0.3, &rng);
    return m;
}

static bool check_outline(const char *path, fl_var *p, fl_tensor *buffer, void *real) {
    const fl_tensor *want = buffer ? buffer : fv_value(fl_nn_get_param(real, path)), *t = buffer ? buffer : fv_value(p);
    CHECK(fl_same_shape(t, want) && t->dtype == want->dtype);
    for (int i = 0; !buffer && i < t->ndim; i++) CHECK(t->stride[i] == 0);
    return buffer || CHECK(fl_item(fl_amax(fl_abs(fv_value(p)), FL_ALL_AXES)) == 0);
}

/* Shapes and random numbers that are drawn are those of a model with values; memory is one element each. */
TEST(outlines_have_shapes_alone) {
    for (int i = 0; i < KINDS; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng[2] = {{11, 0}, {11, 0}};
        fl_text_lm_opts o = kinds[i].o;
        o.rng = &rng[0];
        fl_nn_module *real = fl_text_lm_opt(V, o);
        o.rng = &rng[1];
        fl_set_flags(fl_flags() | FL_SHAPES_ONLY);
        fl_nn_module *m = fl_text_lm_opt(V, o);
        fl_set_flags(fl_flags() & ~FL_SHAPES_ONLY);
        REQUIRE(real && m);
        if (o.kind == FL_LM_TRANSFORMER) CHECK(fl_nn_visit_tensors(m, check_outline, real));
        CHECK(rng[0].key == rng[1].key && rng[0].counter == rng[1].counter);
        fl_nn_free(real), fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(what_is_read_step_by_step_is_what_the_model_computes) {
    int compared = 0;
    for (int i = 0; i < KINDS; i++)
        for (int uncached = 0; uncached < 2; uncached++) {
            fl_scope s = fl_scope_begin();
            fl_nn_module *m = model_of(&kinds[i]);
            fl_nn_train(m, false);
            fl_text_decoder *r = fl_text_decoder_new(m, 3, .uncached = uncached);
            REQUIRE(r);
            /* texts of 20, 7 and 1 tokens, in steps of their own */
            static const int64_t of[] = {0, 0, 0,  1, 2, -1, 1,  1, 1, 0, 0, -1,
                                         1, 0, -1, 0, 0, 0,  -1, 1, 1, 0, -1};
            int64_t id[40], length[3] = {0}, text[3][32], rows = 0, who[40];
            for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
                if (of[k] >= 0) {
                    id[rows] = text[of[k]][length[of[k]]] = (int64_t)(k * 5 + 2) % V;
                    length[of[k]]++, who[rows++] = of[k];
                    continue;
                }
                REQUIRE(fl_text_decoder_read(r, rows, who, id));
                for (int64_t t = 0; t < 3; t++) {
                    const float *scores = fl_text_decoder_scores(r, t);
                    bool now = false;
                    for (int64_t j = 0; j < rows; j++) now = now || who[j] == t;
                    CHECK(now == (scores != NULL) && fl_text_decoder_position(r, t) == length[t]);
                    if (!scores) continue;
                    fl_tensor *x = fl_from_host(text[t], FL_SHAPE(1, length[t]), FL_I64);
                    fl_tensor *want = fv_value(fl_nn_forward(m, fv_const(x)));
                    want = fl_select(fl_select(want, 0, 0), 0, -1);
                    fl_tensor *got = fl_from_host(scores, FL_SHAPE(V), FL_F32);
                    const double off = fl_item(fl_amax(fl_abs(fl_sub(want, got)), FL_ALL_AXES));
                    if (!CHECK(off <= 2e-5 * (1 + fl_item(fl_amax(fl_abs(want), FL_ALL_AXES)))))
                        printf("  %s, text %d at %d: %g\n", kinds[i].name, (int)t, (int)length[t], off);
                    compared++;
                }
                rows = 0;
            }
            fl_text_decoder_free(r);
            fl_nn_free(m);
            fl_scope_end(&s);
        }
    printf("%d steps compared\n", compared);
    CHECK_NOTHING_LIVES();
}

/* The same by the modules' own cache. */
/* Beside transformers' ROPE_INIT_FUNCTIONS: base 100, 16 columns, trained for 64. */
TEST(rotary_scalings_are_those_of_transformers) {
    static const struct {
        fl_rotary_opts o;
        double gain, turn[8];
    } cases[] = {
        {{.base = 100, .scale = 0.125, .dim = 16, .kind = FL_ROTARY_LLAMA3, .trained = 64}, 1,
         {1, 0.56234133, 0.24438459, 0.064309873, 0.013042256, 0.0070292661, 0.0039528473, 0.0022228493}},
        {{.base = 100, .scale = 0.25, .dim = 16, .kind = FL_ROTARY_YARN, .trained = 64}, 1.138629436111989,
         {1, 0.47799012, 0.22135943, 0.097805366, 0.039999999, 0.014058532, 0.0079056947, 0.0044456986}},
        {{.base = 100, .scale = 0.25, .dim = 16}, 1,
         {0.25, 0.14058533, 0.079056942, 0.044456986, 0.025, 0.014058533, 0.0079056942, 0.0044456986}}};
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        CHECK_NEAR(fl_rotary_attention_factor(&cases[i].o), cases[i].gain, 1e-9);
        fl_rotary_opts o = cases[i].o;
        o.offset = 7;
        float y[16];
        CHECK(fl_to_host(fl_rotary_opt(fl_ones(FL_SHAPE(1, 16), FL_F32), o), y, sizeof y));
        for (int j = 0; j < 8; j++) {
            const double w = 7 * cases[i].turn[j];
            CHECK_NEAR(fl_rotary_frequency(&cases[i].o, j) / cases[i].turn[j], 1, 1e-6);
            CHECK_NEAR(y[j], cases[i].gain * (cos(w) - sin(w)), 1e-5);
        }
        fl_scope_end(&s);
    }
}

TEST(the_cache_of_modules_agrees) {
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].o.kind != FL_LM_TRANSFORMER) continue;
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = model_of(&kinds[i]);
        fl_nn_train(m, false);
        fl_tensor *x = fl_reshape(fl_remainder(fl_cast(fl_arange(0, 24, 1, FL_F32), FL_I64), fl_int(V)),
                                  FL_SHAPE(2, 12));
        fl_tensor *want = fv_value(fl_nn_forward(m, fv_const(x)));
        fl_nn_cache *c = fl_nn_cache_new(m, 2, 12);
        for (int64_t at = 0, n = 5; at < 12; at += n, n = at + n > 12 ? 12 - at : 3) {
            fl_tensor *part = fl_slice(x, 1, at, at + n, 1);
            fl_var *y = fl_nn_forward_cached(m, FL_VARS(fv_const(part)), c).v[0];
            REQUIRE(y);
            fl_tensor *off = fl_sub(fv_value(y), fl_slice(want, 1, at, at + n, 1));
            CHECK(fl_item(fl_amax(fl_abs(off), FL_ALL_AXES)) < 1e-4);
        }
        fl_nn_cache_free(c);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(a_mask_hides_padding) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    fl_nn_module *m =
        fl_text_lm(V, .layers = 2, .dim = 24, .heads = 4, .context = 16, .bidirectional = true,
                   .post_norm = true, .types = 2, .embedding_norm = true, .masked_head = true, .rng = &rng);
    fl_nn_train(m, false);
    const int64_t a[] = {1, 2, 3, 4, 0, 0}, b[] = {1, 2, 3, 4, 7, 9};
    fl_tensor *keep = fl_lt(fl_reshape(fl_arange(0, 6, 1, FL_F32), FL_SHAPE(1, 6)), fl_num(4)), *y[3];
    for (int i = 0; i < 3; i++) {
        fl_var *x = fv_const(fl_from_host(i ? b : a, FL_SHAPE(1, 6), FL_I64));
        y[i] =
            fl_slice(fv_value(fl_nn_forward_vars(m, i < 2 ? FL_VARS(x, fv_const(keep)) : FL_VARS(x)).v[0]),
                     1, 0, 4, 1);
    }
    CHECK(fl_item(fl_amax(fl_abs(fl_sub(y[0], y[1])), FL_ALL_AXES)) == 0);
    CHECK(fl_item(fl_amax(fl_abs(fl_sub(y[0], y[2])), FL_ALL_AXES)) > 1e-5);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- measuring and training ---- */

TEST(evaluation_predicts_each_token_once) {
    fl_text_tokens *t = tokens_of(101);
    fl_nn_module *m = model_of(&kinds[0]);
    for (int64_t stride = 1; stride <= 12; stride += 1 + (stride > 1) * 2) {
        fl_text_loss_sum r = {0};
        double nats = 0;
        CHECK(fl_text_evaluate(m, t, &r, .begin = 4, .context = 12, .stride = stride, .batch = 5));
        CHECK_EQ_INT(r.tokens, 96);
        /* by one window for each token: that of the first window that reaches it */
        fl_text_decoder *reader = fl_text_decoder_new(m, 1, .length = 12);
        for (int64_t target = 5; target < 101; target++) {
            const int64_t past = target - 5 - 12 + stride; /* behind the first window's last strides */
            const int64_t w = target < 5 + 12 ? 0 : (past / stride) * stride, n = target - 4 - w;
            int64_t of[12] = {0}, id[12];
            CHECK(fl_text_decoder_rewind(reader, 0, 0) && fl_text_tokens_read(t, 4 + w, n, id));
            CHECK(fl_text_decoder_read(reader, n, of, id));
            const float *x = fl_text_decoder_scores(reader, 0);
            double sum = 0;
            for (int k = 0; k < V; k++) sum += exp(x[k]);
            nats += log(sum) - x[id_at(target)];
        }
        CHECK_NEAR(r.nats, nats, 1e-4 * nats);
        fl_text_decoder_free(reader);
    }
    CHECK(m->train);
    fl_nn_free(m);
    fl_text_tokens_free(t);
    CHECK_NOTHING_LIVES();
}

static fl_text_training training_of(fl_text_tokens *t, fl_optim_schedule *schedule) {
    fl_text_lm_opts o = kinds[1].o;
    fl_rng rng = {1, 0};
    o.rng = &rng, o.dropout = 0.1;
    fl_nn_module *m = fl_text_lm_opt(V, o);
    fl_data_set *set = fl_data_batch(fl_text_blocks(t, 12, .random = true, .size = 40), 4, true);
    *schedule = (fl_optim_schedule){.kind = FL_LR_COSINE, .total = 60, .warmup = 5};
    fl_text_training r = {.model = m, .optim = fl_optim_adamw(fl_nn_parameters(m), .lr = 1e-2), .set = set,
                          .schedule = schedule, .clip = 1, .accumulate = 2};
    fl_optim_schedule_start(schedule, r.optim);
    return r;
}

static void training_free(fl_text_training *t) {
    fl_optim_free(t->optim);
    fl_nn_free(t->model);
    fl_data_free(t->set);
}

TEST(training_learns_and_resumes_with_the_same_bits) {
    const char *path = temporary("resume");
    fl_text_tokens *t = tokens_of(2000);
    fl_optim_schedule s[2];
    double loss[2] = {0}, first = 0;
    fl_seed(4);
    fl_text_training whole = training_of(t, &s[0]);
    for (int i = 0; i < 60; i++) {
        CHECK(fl_text_training_step(&whole, &loss[0]));
        if (!i) first = loss[0];
        if (i == 36) CHECK(fl_text_training_save(&whole, path));
    }
    CHECK_NEAR(first, log(V), 0.2);
    CHECK(loss[0] < 0.5); /* it is a function of the two before */
    CHECK_EQ_INT(whole.tokens, 60 * 2 * 4 * 12);
    fl_seed(99);
    fl_text_training part = training_of(t, &s[1]);
    CHECK(fl_text_training_load(&part, path));
    CHECK_EQ_INT(part.at.step, 37);
    while (part.at.step < 60) CHECK(fl_text_training_step(&part, &loss[1]));
    CHECK(loss[0] == loss[1]);
    training_free(&whole);
    training_free(&part);
    fl_text_tokens_free(t);
    remove(path);
    CHECK_NOTHING_LIVES();
}

/* ---- choosing ---- */

/* Pearson's statistic of draws against probabilities p. */
static double chi_square(const float *scores, int64_t n, const fl_text_sampler *s, const double *p,
                         int64_t draws) {
    fl_rng rng = {8, 0};
    fl_text_candidate scratch[16];
    int64_t count[16] = {0};
    double sum = 0;
    for (int64_t i = 0; i < draws; i++) {
        const int64_t id = fl_text_sample(scores, n, s, NULL, 0, &rng, scratch);
        if (!CHECK(id >= 0 && p[id] > 0)) return INFINITY;
        count[id]++;
    }
    for (int64_t i = 0; i < n; i++) {
        const double want = p[i] * (double)draws, off = (double)count[i] - want;
        if (p[i] > 0) sum += off * off / want;
    }
    return sum;
}

static double farthest(fl_tensor *a, fl_tensor *b) {
    return a && b ? fl_item(fl_amax(fl_abs(fl_sub(fl_cast(a, FL_F64), fl_cast(b, FL_F64))), FL_ALL_AXES))
                  : INFINITY;
}

/* Only what was added learns; merged, the model computes the same; files go there and back with peft's
   names. */
TEST(low_rank_additions_learn_and_merge) {
    fl_text_tokens *t = tokens_of(2000);
    fl_optim_schedule s;
    fl_seed(4);
    fl_text_training all = training_of(t, &s);
    fl_rng rng = {3, 0};
    const fv_list own = fl_nn_parameters(all.model);
    for (int i = 0; i < own.n; i++) /* a model that says something, and the wrong thing */
        if (fv_value(own.v[i])->ndim == 2) fl_nn_init_normal(own.v[i], 0, 0.3, &rng);
    fl_scope scope = fl_scope_begin();
    fl_tensor *before = fl_clone(fv_value(fl_nn_get_param(all.model, "layers.1.linear1.weight")));
    fl_text_lora *l = fl_text_lora_new(all.model, .rank = 4, .alpha = 8, .rng = &rng,
                                       .targets = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj");
    REQUIRE(l);
    CHECK_EQ_INT(fl_text_lora_parameters(l).n, 2 * 7 * 2);
    fl_optim_free(all.optim);
    fl_text_training r = {.model = all.model, .lora = l, .set = all.set,
                          .optim = fl_optim_adamw(fl_text_lora_parameters(l), .lr = 1e-2)};
    double first = 0, loss = 0;
    for (int i = 0; i < 60; i++) {
        CHECK(fl_text_training_step(&r, &loss));
        if (!i) first = loss;
    }
    if (!CHECK(loss < 0.8 * first)) printf("%g from %g\n", loss, first);
    const char *file = temporary("lora"); /* a checkpoint has what was added */
    CHECK(fl_text_training_save(&r, file));
    fl_tensor *a = fl_clone(fv_value(fl_text_lora_parameters(l).v[3]));
    CHECK(fl_text_training_step(&r, NULL) && farthest(a, fv_value(fl_text_lora_parameters(l).v[3])) > 0);
    CHECK(fl_text_training_load(&r, file) && farthest(a, fv_value(fl_text_lora_parameters(l).v[3])) == 0);
    CHECK(farthest(before, fv_value(fl_nn_get_param(all.model, "layers.1.linear1.weight"))) == 0);
    fl_nn_train(all.model, false);
    int64_t ids[12];
    CHECK(fl_text_tokens_read(t, 0, 12, ids));
    fl_var *x = fv_const(fl_from_host(ids, FL_SHAPE(1, 12), FL_I64));
    fl_tensor *plain = fv_value(fl_nn_forward(all.model, x));
    CHECK(fl_text_lora_begin(l));
    fl_tensor *with = fv_value(fl_nn_forward(all.model, x));
    fl_text_lora_end(l);
    CHECK(farthest(plain, with) > 0.1);
    char folder[300];
    snprintf(folder, sizeof folder, "%s", temporary("adapter"));
    mkdir(folder, 0700);
    CHECK(fl_text_lora_save(l, folder));
    CHECK(fl_text_lora_merge(l));
    CHECK(farthest(with, fv_value(fl_nn_forward(all.model, x))) < 1e-5);
    CHECK(fl_text_lora_begin(l));
    CHECK(farthest(with, fv_value(fl_nn_forward(all.model, x))) < 1e-5); /* B is 0 again */
    fl_text_lora_end(l);
    char path[400];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    fl_data_file *f = fl_data_open_safetensors(path);
    REQUIRE(f);
    CHECK(fl_data_find(f, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight") >= 0 &&
          fl_data_find(f, "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight") >= 0);
    CHECK(fl_text_lora_load(l, folder) &&
          farthest(fl_data_read(f, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"),
                   fv_value(fl_text_lora_parameters(l).v[1])) == 0);
    fl_data_close(f);
    fl_text_lora_free(l);
    test_errors_return();
    CHECK(!fl_text_lora_new(all.model, .targets = "q_proj x_proj"));
    CHECK_ERROR("fl_text_lora_new: got rank 8, alpha 16, targets 'q_proj x_proj' and a transformer");
    CHECK(!fl_text_lora_new(NULL));
    CHECK_ERROR("fl_text_lora_new: the model is NULL");
    l = fl_text_lora_new(all.model, .rank = 2);
    CHECK(l && !fl_text_lora_load(l, folder));
    CHECK_ERROR("got 28, expected 8");
    fl_text_lora_free(l);
    fl_scope_end(&scope);
    fl_optim_free(r.optim);
    fl_nn_free(all.model);
    fl_data_free(all.set);
    fl_text_tokens_free(t);
    CHECK_NOTHING_LIVES();
}

/* Names and shapes as peft has them for the other backends; merged, the sums stay. */
TEST(low_rank_additions_of_other_families) {
    static const struct {
        fl_text_lm_opts o;
        const char *targets, *config, *name;
        int64_t rows, parameters;
    } of[] = {{{.dim = 24, .heads = 4}, "attn.c_proj c_fc", "[\"attn.c_proj\", \"c_fc\"]",
               "transformer.h.1.mlp.c_fc.lora_B.weight", 96, 8},
              {{.dim = 24, .heads = 4}, NULL, "[\"c_attn\"]",
               "transformer.h.0.attn.c_attn.lora_B.weight", 72, 4},
              {{.dim = 24, .heads = 4, .bidirectional = true, .post_norm = true}, "query dense", "\"dense\"]",
               "bert.encoder.layer.1.attention.self.query.lora_B.weight", 24, 16}};
    test_errors_return();
    char folder[300], path[400], name[200];
    snprintf(folder, sizeof folder, "%s", temporary("adapters"));
    mkdir(folder, 0700);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fl_scope s = fl_scope_begin();
        fl_text_lm_opts o = of[i].o;
        o.layers = 2, o.context = 16;
        fl_nn_module *m = fl_text_lm_opt(V, o);
        fl_text_lora *l = fl_text_lora_new(m, .targets = of[i].targets);
        const fv_list all = fl_text_lora_parameters(l);
        CHECK_EQ_INT(all.n, of[i].parameters);
        for (int k = 1; k < all.n; k += 2) fl_nn_init_normal(all.v[k], 0, 0.1, NULL);
        CHECK(fl_text_lora_save(l, folder) && fl_text_lora_load(l, folder));
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
        snprintf(name, sizeof name, "base_model.model.%s", of[i].name);
        fl_data_file *f = fl_data_open_safetensors(path);
        const int64_t at = fl_data_find(f, name);
        CHECK(at >= 0 && fl_data_shape(f, at).dim[0] == of[i].rows && fl_data_shape(f, at).dim[1] == 8);
        fl_data_close(f);
        snprintf(path, sizeof path, "%s/adapter_config.json", folder);
        int64_t n = 0;
        char *config = fl_text_read_file("test", path, &n);
        CHECK(config && strstr(config, of[i].config));
        CHECK(config && (strstr(config, "\"fan_in_fan_out\": true") != NULL) == (i < 2));
        fl_heap_free(config);
        fl_nn_train(m, false);
        fl_var *x = fv_const(fl_cast(fl_reshape(ids(12, FL_I32), FL_SHAPE(1, 12)), FL_I64));
        CHECK(fl_text_lora_begin(l));
        fl_tensor *with = fv_value(fl_nn_forward(m, x));
        fl_text_lora_end(l);
        CHECK(farthest(with, fv_value(fl_nn_forward(m, x))) > 1e-4);
        CHECK(fl_text_lora_merge(l) && farthest(with, fv_value(fl_nn_forward(m, x))) < 1e-5);
        fl_text_lora_free(l);
        CHECK(!fl_text_lora_new(m, .targets = "q_proj"));
        CHECK_ERROR("targets 'q_proj'");
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(samplers_draw_as_they_say) {
    const int64_t draws = 1000000;
    const float x[] = {1, 3, 3, -1, 2, 2.5f, 3, -9};
    const fl_text_sampler all[] = {
        {.temperature = 1}, {.temperature = 0.5}, {.top_k = 2},   {.top_k = 5, .temperature = 2},
        {.top_p = 0.5},     {.top_p = 0.93},      {.min_p = 0.3}, {.top_k = 6, .top_p = 0.8, .min_p = 0.5}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        /* the order is by score, then by id: 1 2 6 5 4 0 3 7 */
        static const int order[] = {1, 2, 6, 5, 4, 0, 3, 7};
        const fl_text_sampler *s = &all[i];
        double p[8] = {0}, sum = 0, mass = 0, kept = 0;
        int n = s->top_k ? (int)s->top_k : 8, k = 0, freedom = -1;
        for (k = 0; k < n; k++)
            sum += p[order[k]] = exp((x[order[k]] - 3) / (s->temperature > 0 ? s->temperature : 1));
        for (k = 0; k < n && !(s->top_p > 0 && mass >= s->top_p * sum); k++) mass += p[order[k]];
        for (; k < n; k++) p[order[k]] = 0;
        for (k = 0; k < 8; k++) kept += p[k] = p[k] < s->min_p ? 0 : p[k];
        for (k = 0; k < 8; k++) p[k] /= kept, freedom += p[k] > 0;
        CHECK(chi_square(x, 8, s, p, draws) < freedom + 5 * sqrt(2.0 * freedom));
    }
    fl_text_candidate c[8];
    fl_rng rng = {1, 0};
    CHECK_EQ_INT(fl_text_sample(x, 8, &(fl_text_sampler){.temperature = FL_ZERO}, NULL, 0, &rng, c), 1);
    const int64_t seen[] = {1, 2, 6, 1};
    CHECK_EQ_INT(fl_text_sample(x, 8, &(fl_text_sampler){.temperature = FL_ZERO, .repetition = 1.3}, seen,
                                4, &rng, c),
                 5);
    const float nan[] = {0, NAN};
    CHECK_EQ_INT(fl_text_sample(nan, 2, &all[0], NULL, 0, &rng, c), -1);
    CHECK_ERROR("the score of id 1 is NaN");
    CHECK_EQ_INT(fl_text_sample(x, 8, &(fl_text_sampler){.top_p = 2}, NULL, 0, &rng, c), -1);
    CHECK_ERROR("top_p 2");
    CHECK_NOTHING_LIVES();
}

/* Texts that a model makes of prompts. */
static void write_texts(fl_nn_module *m, int64_t n, bool together, fl_text_sampler sampler,
                        fl_text_sequence *out) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t prompt[] = {i % V, (i * 3 + 1) % V, 5};
        fl_text_sequence_add(&out[i], prompt, 1 + i % 3);
    }
    fl_text_decoder *r = fl_text_decoder_new(m, together ? n : 1);
    const int64_t stop[] = {6};
    fl_text_generate_opts o = {.most = 40, .sampler = sampler, .stop = stop, .n_stop = 1, .slide = true};
    if (together) CHECK(fl_text_generate_opt(r, out, n, o));
    for (int64_t i = 0; !together && i < n; i++) CHECK(fl_text_generate_opt(r, &out[i], 1, o));
    fl_text_decoder_free(r);
}

TEST(texts_do_not_depend_on_others_or_threads) {
    enum { N = 8 };
    for (int i = 0; i < KINDS; i++) {
        fl_nn_module *m = model_of(&kinds[i]);
        fl_text_sequence a[N] = {{0}}, b[N] = {{0}}, c[N] = {{0}};
        fl_set_threads(1);
        write_texts(m, N, true, (fl_text_sampler){.temperature = FL_ZERO}, a);
        write_texts(m, N, false, (fl_text_sampler){.temperature = FL_ZERO}, b);
        fl_set_threads(3);
        write_texts(m, N, true, (fl_text_sampler){.temperature = FL_ZERO}, c);
        int64_t lengths = 0;
        for (int k = 0; k < N; k++) {
            CHECK(a[k].n == b[k].n && !memcmp(a[k].id, b[k].id, (size_t)a[k].n * sizeof(int64_t)));
            CHECK(a[k].n == c[k].n && !memcmp(a[k].id, c[k].id, (size_t)a[k].n * sizeof(int64_t)));
            lengths += a[k].n;
            fl_text_sequence_free(&a[k]), fl_text_sequence_free(&b[k]), fl_text_sequence_free(&c[k]);
        }
        CHECK(lengths > N * 3);
        fl_nn_free(m);
    }
    CHECK_NOTHING_LIVES();
}

static double text_score(fl_text_decoder *r, const int64_t *id, int64_t n) {
    double sum = 0;
    fl_text_decoder_rewind(r, 0, 0);
    for (int64_t i = 0; i + 1 < n; i++) {
        const int64_t of = 0;
        fl_text_decoder_read(r, 1, &of, &id[i]);
        const float *x = fl_text_decoder_scores(r, 0);
        double all = 0;
        for (int k = 0; k < V; k++) all += exp(x[k]);
        sum += i ? x[id[i + 1]] - log(all) : 0; /* the prompt is two tokens */
    }
    return sum;
}

TEST(beams_find_the_best_text) {
    enum { LENGTH = 3 };
    fl_nn_module *m = model_of(&kinds[1]);
    fl_text_decoder *r = fl_text_decoder_new(m, 64);
    fl_text_decoder *one = fl_text_decoder_new(m, 1);
    const int64_t prompt[] = {3, 1}, stop[] = {6};
    fl_text_sequence found[3] = {{0}};
    CHECK(fl_text_sequence_add(&found[0], prompt, 2));
    REQUIRE(fl_text_beam_search(r, found, 3, .most = LENGTH, .beams = 32, .stop = stop, .n_stop = 1,
                                .length_penalty = 0.7));
    /* all texts of three more tokens, or fewer that end with the stop */
    double best[3] = {-INFINITY, -INFINITY, -INFINITY};
    for (int64_t code = 0; code < V * V * V; code++) {
        int64_t id[5] = {3, 1, code % V, code / V % V, code / V / V}, n = 5;
        if (id[2] == 6) n = 3;
        else if (id[3] == 6) n = 4;
        if ((n < 5 && id[4]) || (n < 4 && id[3])) continue; /* each once */
        double score = text_score(one, id, n) / pow((double)n - 2, 0.7);
        for (int k = 0; k < 3; k++)
            if (score > best[k]) {
                const double t = best[k];
                best[k] = score, score = t;
            }
    }
    for (int k = 0; k < 3; k++) {
        CHECK_NEAR(found[k].score, best[k], 1e-4);
        fl_text_sequence_free(&found[k]);
    }
    fl_text_decoder_free(r);
    fl_text_decoder_free(one);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

TEST(no_memory_is_asked_for_per_token) {
    fl_nn_module *m = model_of(&kinds[1]);
    fl_text_decoder *r = fl_text_decoder_new(m, 2);
    const int64_t of[] = {0, 1}, id[] = {3, 4};
    for (int i = 0; i < 6; i++) CHECK(fl_text_decoder_read(r, 2, of, id));
    const int64_t reserved = fl_mem_stats_of(NULL).reserved;
    fl_heap_use(heap_fn, NULL);
    for (int i = 0; i < 20; i++) CHECK(fl_text_decoder_read(r, 2, of, id));
    fl_heap_use(NULL, NULL);
    CHECK_EQ_INT(heap.calls, 0);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, reserved);
    fl_text_decoder_free(r);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

/* ---- models of others ---- */

static const char *golden(const char *name) {
    static char path[4][300];
    static int at;
    char *p = path[at = (at + 1) % 4];
    for (int up = 0; up < 2; up++) {
        snprintf(p, 300, "%stests/golden/lm/%s", up ? "../../" : "", name);
        if (access(p, R_OK) == 0) return p;
    }
    return p;
}

static fl_vars inputs_of(fl_data_file *f) {
    fl_vars in = FL_VARS(fv_const(fl_data_read(f, "ids")));
    if (fl_data_find(f, "mask") < 0) return in;
    return FL_VARS(in.v[0], fv_const(fl_ne(fl_data_read(f, "mask"), fl_int(0))),
                   fv_const(fl_data_read(f, "types")));
}

/* Ten steps of AdamW on the ids: the largest distance from PyTorch's losses. */
static double train_apart(fl_nn_module *m, fl_data_file *f) {
    const bool masked = fl_data_find(f, "mask") >= 0;
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(m), .lr = 1e-3, .weight_decay = 0.01);
    double want[10], most = 0;
    CHECK(fl_to_host(fl_data_read(f, "losses"), want, sizeof want));
    for (int i = 0; i < 10; i++) {
        fl_scope s = fl_scope_begin();
        fl_vars in = inputs_of(f);
        fl_tensor *y = fl_data_read(f, "target");
        if (!masked) { /* what follows: the last place has no target */
            fl_tensor *x = fv_value(in.v[0]);
            in = FL_VARS(fv_const(fl_slice(x, 1, 0, 11, 1)));
            y = fl_contiguous(fl_slice(y, 1, 1, 12, 1));
        }
        fl_var *loss = fl_text_loss(m, in, y, FL_MEAN);
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss) && fl_optim_step(optim));
        const double off = fabs(fl_item(fv_value(loss)) - want[i]);
        most = off > most ? off : most;
        fl_scope_end(&s);
    }
    fl_optim_free(optim);
    return most;
}

static void check_ids(fl_data_file *f, const char *name, int64_t row, const fl_text_sequence *got) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_data_read(f, name);
    int64_t want[20], n = 0;
    CHECK(fl_to_host(fl_contiguous(fl_select(t, 0, row)), want, sizeof want));
    while (n < 20 && want[n] >= 0) n++;
    if (!CHECK(got->n == n && !memcmp(got->id, want, (size_t)n * sizeof *want)))
        for (int64_t i = 0; i < n || i < got->n; i++)
            printf("  %s %d: %d, want %d\n", name, (int)row, i < got->n ? (int)got->id[i] : -1,
                   i < n ? (int)want[i] : -1);
    fl_scope_end(&s);
}

static void check_generation(fl_nn_module *m, fl_data_file *f) {
    fl_scope s = fl_scope_begin();
    const int64_t stop[] = {2};
    int64_t ids[24];
    CHECK(fl_to_host(fl_data_read(f, "ids"), ids, sizeof ids));
    fl_text_sequence text[3] = {{0}}, greedy = {0};
    CHECK(fl_text_sequence_add(&greedy, ids, 5) && fl_text_sequence_add(&text[0], ids, 5));
    fl_text_decoder *r = fl_text_decoder_new(m, 8);
    CHECK(fl_text_generate(r, &greedy, 1, .most = 15, .sampler = {.temperature = FL_ZERO}, .stop = stop,
                           .n_stop = 1));
    check_ids(f, "greedy", 0, &greedy);
    CHECK(fl_text_beam_search(r, text, 3, .most = 15, .beams = 4, .length_penalty = 0.8, .stop = stop,
                              .n_stop = 1));
    for (int i = 0; i < 3; i++) check_ids(f, "beam", i, &text[i]), fl_text_sequence_free(&text[i]);
    fl_text_sequence_free(&greedy);
    fl_text_decoder_free(r);
    fl_scope_end(&s);
}

TEST(models_of_transformers_load_compute_train_and_save) {
    static const char *const names[] = {"gpt2", "llama", "mistral", "qwen2", "bert"};
    for (int i = 0; i < 5; i++) {
        fl_scope s = fl_scope_begin();
        char path[400], folder[300];
        fl_nn_module *m = fl_text_load(golden(names[i]));
        if (!CHECK(m)) printf("  %s: %s\n", names[i], fl_error()), fl_error_clear();
        if (!m) continue;
        fl_nn_train(m, false);
        snprintf(path, sizeof path, "%s/expect.safetensors", golden(names[i]));
        fl_data_file *f = fl_data_open_safetensors(path);
        REQUIRE(f);
        fl_tensor *want = fl_data_read(f, "logits"),
                  *got = fv_value(fl_nn_forward_vars(m, inputs_of(f)).v[0]);
        const double off = farthest(want, got);
        CHECK(off < 1e-4);
        if (i < 4) check_generation(m, f);
        /* what is saved gives the same numbers, names and shapes back */
        const char *kept = getenv("LM_SAVED"); /* where transformers reads them: make parity-text */
        if (kept) snprintf(folder, sizeof folder, "%.200s/%s", kept, names[i]);
        else snprintf(folder, sizeof folder, "%s", temporary("folder"));
        CHECK(mkdir(folder, 0700) == 0 && fl_text_save(m, folder));
        snprintf(path, sizeof path, "%s/model.safetensors", golden(names[i]));
        fl_data_file *theirs = fl_data_open_safetensors(path);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        fl_data_file *ours = fl_data_open_safetensors(path);
        CHECK(ours && theirs);
        CHECK_EQ_INT(fl_data_count(ours), fl_data_count(theirs));
        for (int64_t k = 0; k < fl_data_count(theirs); k++) {
            const char *name = fl_data_name(theirs, k);
            if (!CHECK(fl_data_find(ours, name) >= 0)) printf("  %s: no %s\n", names[i], name);
            else CHECK(farthest(fl_data_read(ours, name), fl_data_read(theirs, name)) == 0);
        }
        fl_data_close(theirs);
        fl_data_close(ours);
        fl_nn_module *again = fl_text_load(folder);
        CHECK(again);
        if (again) fl_nn_train(again, false);
        CHECK(again && farthest(fv_value(fl_nn_forward_vars(again, inputs_of(f)).v[0]), got) == 0);
        if (!kept) remove(path);
        snprintf(path, sizeof path, "%s/config.json", folder);
        if (!kept) remove(path), rmdir(folder);
        const double apart = train_apart(m, f);
        CHECK(apart < 1e-4);
        printf("%s: logits %.1e apart, losses %.1e\n", names[i], off, apart);
        fl_data_close(f);
        fl_nn_free(again);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* Written in PyTorch with our names: tests/lm_models.py. */
TEST(models_of_our_own_compute_and_train_as_pytorch) {
    static const struct kind own[] = {
        {"adaptive", {.layers = 1, .dim = 16, .heads = 2, .context = 16, .place = FL_LM_SINUSOID,
                      .post_norm = true, .embedding_scale = 4, .activation = fv_relu,
                      .cutoffs = {2, {9, V}}}},
        {"gcnn", {.kind = FL_LM_GCNN, .layers = 2, .dim = 16, .context = 16, .untied = true}},
        {"lstm", {.kind = FL_LM_LSTM, .layers = 2, .dim = 16, .context = 16, .untied = true}}};
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        char path[400];
        fl_nn_module *m = fl_text_lm_opt(V, own[i].o);
        snprintf(path, sizeof path, "%s/model.safetensors", golden(own[i].name));
        REQUIRE(fl_nn_load(m, path));
        fl_nn_train(m, false);
        snprintf(path, sizeof path, "%s/expect.safetensors", golden(own[i].name));
        fl_data_file *f = fl_data_open_safetensors(path);
        REQUIRE(f);
        const double off =
            farthest(fl_data_read(f, "logits"), fv_value(fl_nn_forward_vars(m, inputs_of(f)).v[0]));
        fl_nn_train(m, true); /* there is no dropout */
        const double apart = train_apart(m, f);
        CHECK(off < 1e-4 && apart < 1e-4);
        printf("%s: logits %.1e apart, losses %.1e\n", own[i].name, off, apart);
        fl_data_close(f);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* A model in llama2.c's form, of two layers with random weights; the words' embeddings are scores too unless
   untied. */
static bool write_llama2c(const char *path, bool untied) {
    enum { DIM = 64, HIDDEN = 96, LAYERS = 2, HEADS = 8, KV = 4, WORDS = 512, LENGTH = 256 };
    enum { EACH = DIM / HEADS, SQUARE = LAYERS * DIM * DIM, ROWS = SQUARE * KV / HEADS };
    enum { WIDE = LAYERS * HIDDEN * DIM };
    const int32_t head[7] = {DIM, HIDDEN, LAYERS, HEADS, KV, untied ? -WORDS : WORDS, LENGTH};
    const struct { int n; float mean, scale; } parts[] = {
        {WORDS * DIM, 0, 0.5f}, {LAYERS * DIM, 1, 0.3f}, {SQUARE, 0, 0.2f}, {ROWS, 0, 0.2f}, {ROWS, 0, 0.2f},
        {SQUARE, 0, 0.2f}, {LAYERS * DIM, 1, 0.3f}, {WIDE, 0, 0.2f}, {WIDE, 0, 0.2f}, {WIDE, 0, 0.2f},
        {DIM, 1, 0.3f}, {LENGTH * EACH, 1e9f, 0}, {untied ? WORDS * DIM : 0, 0, 0.3f}};
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(head, sizeof head, 1, f);
    uint32_t state = 1;
    for (size_t i = 0; ok && i < sizeof parts / sizeof *parts; i++)
        for (int k = 0; ok && k < parts[i].n; k++) {
            state = state * 1664525 + 1013904223;
            const float w = parts[i].mean + parts[i].scale * ((float)(state >> 8) / (1 << 23) - 1);
            ok = fwrite(&w, sizeof w, 1, f);
        }
    return f && !fclose(f) && ok;
}

/* llama2.c's file through the reader, beside a plain loop over it; and without a cache. */
TEST(llama2c_as_a_plain_loop_has_it) {
    for (int untied = 0; untied < 2; untied++) {
        char path[300];
        snprintf(path, sizeof path, "%s", test_file("words.bin"));
        REQUIRE(write_llama2c(path, untied));
        CHECK(write_llama2c(test_file("tok512.bin"), false)); /* a name of a vocabulary, no model */
        *strrchr(path, '/') = 0;
        fl_nn_module *m = fl_text_load(path);
        REQUIRE(m);
        fl_nn_train(m, false);
        llama_loop *loop = llama_loop_open(test_file("words.bin"));
        fl_text_decoder *r = fl_text_decoder_new(m, 1), *whole = fl_text_decoder_new(m, 1, .uncached = true);
        REQUIRE(loop && r && whole);
        double off = 0, apart = 0, most = 0;
        for (int i = 0; i < 200; i++) {
            const int64_t of = 0, id = i ? (i * 37 + 11) % 512 : 1;
            const float *want = llama_loop_step(loop, (int)id, i);
            const bool both = i % 40 == 39 || i < 3;
            CHECK(fl_text_decoder_read(r, 1, &of, &id));
            for (int k = 0; k < 512; k++) off = fmax(off, fabs(want[k] - fl_text_decoder_scores(r, 0)[k]));
            for (int k = 0; k < 512; k++) most = fmax(most, fabs(want[k]));
            CHECK(fl_text_decoder_read(whole, 1, &of, &id) || !both);
            for (int k = 0; both && k < 512; k++)
                apart = fmax(apart, fabs(want[k] - fl_text_decoder_scores(whole, 0)[k]));
        }
        CHECK(off < 1e-4 && apart < 1e-4 && most > 1);
        printf("cached %.1e, uncached %.1e from scores up to %.1f\n", off, apart, most);
        llama_loop_close(loop);
        fl_text_decoder_free(r), fl_text_decoder_free(whole);
        fl_nn_free(m);
    }
    CHECK_NOTHING_LIVES();
}

#define NAMED(call, part) (CHECK(!(call)), CHECK_ERROR(part))

/* The value of that key in a JSON file of a folder, and how often it is there: "" if it is not. */
static const char *value_of(const char *folder, const char *file, const char *key, int *times) {
    static char value[100];
    char path[400];
    fl_data_settings k = {0};
    snprintf(path, sizeof path, "%s/%s", folder, file);
    *value = 0, *times = 0;
    CHECK(fl_data_settings_read(&k, path, "test"));
    for (int64_t i = 0; i < k.n; i++)
        if (!strcmp(k.v[i].key, key)) ++*times, snprintf(value, sizeof value, "%s", k.v[i].value);
    fl_data_settings_free(&k);
    return value;
}

/* config.json says what the one that was read did of first and last tokens, and no key twice; a tokenizer is
   beside it if one is given. */
TEST(saved_models_keep_their_tokens) {
    static const char *const names[] = {"gpt2", "llama", "bert"};
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    test_errors_return();
    char folder[300];
    snprintf(folder, sizeof folder, "%s", temporary("tokens_folder"));
    fl_text_tokenizer *letters = fl_text_char_tokenizer("abc ", 4), *large = NULL;
    int times;
    CHECK(mkdir(folder, 0700) == 0);
    for (int i = 0; i < 3; i++) {
        fl_nn_module *m = fl_text_load(golden(names[i]));
        REQUIRE(m && fl_text_save(m, folder, .tokenizer = letters));
        for (int k = 0; k < 2; k++) {
            char want[100];
            snprintf(want, sizeof want, "%s", value_of(golden(names[i]), "config.json", keys[k], &times));
            CHECK(!strcmp(want, value_of(folder, "config.json", keys[k], &times)));
        }
        CHECK_EQ_INT(fl_text_lm_info(m, NULL)->eos.ndim, i < 2);
        if (i == 0) value_of(folder, "config.json", "n_head", &times), CHECK_EQ_INT(times, 1);
        fl_nn_free(m);
    }
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_text_lm(4, .layers = 1, .dim = 8, .heads = 2, .context = 4, .bos = FL_SHAPE(0),
                                 .eos = FL_SHAPE(3, 1), .rng = &rng);
    REQUIRE(m && fl_text_save(m, folder, .tokenizer = letters));
    fl_nn_free(m);
    REQUIRE(m = fl_text_load(folder));
    const fl_text_lm_opts *o = fl_text_lm_info(m, NULL);
    CHECK(o->bos.ndim == 1 && o->bos.dim[0] == 0);
    CHECK(o->eos.ndim == 2 && o->eos.dim[0] == 3 && o->eos.dim[1] == 1);
    CHECK(!strcmp(value_of(folder, "tokenizer_config.json", "bos_token", &times), " "));
    CHECK(!strcmp(value_of(folder, "tokenizer_config.json", "eos_token", &times), "c"));
    fl_text_tokenizer *read = fl_text_tokenizer_open(folder);
    CHECK(read && fl_text_tokenizer_hash(read) == fl_text_tokenizer_hash(letters));
    REQUIRE(large = fl_text_char_tokenizer("abcde", 5));
    NAMED(fl_text_save(m, folder, .tokenizer = large), "got 5, expected at most 4");
    fl_text_tokenizer_free(letters), fl_text_tokenizer_free(large), fl_text_tokenizer_free(read);
    fl_nn_free(m);
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    for (int i = 0; i < 4; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        CHECK(remove(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
    CHECK_NOTHING_LIVES();
}

TEST(gguf_files_hold_what_they_should) {
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_text_open_gguf(golden("llama.gguf"));
    fl_data_file *want = fl_data_open_safetensors(golden("llama_gguf.safetensors"));
    REQUIRE(f && want);
    CHECK(!strcmp(fl_data_meta(f, "general.architecture"), "llama") &&
          !strcmp(fl_data_meta(f, "llama.block_count"), "2"));
    CHECK_EQ_INT(fl_data_count(f), fl_data_count(want));
    unsigned types = 0;
    for (int64_t i = 0; i < fl_data_count(f); i++) {
        fl_tensor *t = fl_data_read(f, fl_data_name(f, i)), *w = fl_data_read(want, fl_data_name(f, i));
        types |= 1u << t->dtype % 32;
        if (!CHECK(farthest(fl_cast(t, FL_F32), w) == 0)) printf("  %s\n", fl_data_name(f, i));
    }
    CHECK_EQ_INT(__builtin_popcount(types), 5);
    fl_data_close(f);
    fl_data_close(want);
    /* near the model that it was made of, and the same with weights as they are stored */
    fl_data_file *e = fl_data_open_safetensors(golden("llama/expect.safetensors"));
    fl_nn_module *m = fl_text_load(golden("llama.gguf")),
                 *stored = fl_text_load(golden("llama.gguf"), .stored = true);
    REQUIRE(m && stored && e);
    fl_nn_train(m, false), fl_nn_train(stored, false);
    fl_tensor *logits = fv_value(fl_nn_forward(m, fv_const(fl_data_read(e, "ids"))));
    fl_tensor *same = fv_value(fl_nn_forward(stored, fv_const(fl_data_read(e, "ids"))));
    const double off = farthest(logits, fl_data_read(e, "logits")), apart = farthest(logits, same);
    printf("quantised: %.2g from the model it was, stored weights %.1e from f32\n", off, apart);
    CHECK(off < 2 && apart < 1e-4);
    fl_text_decoder *a = fl_text_decoder_new(m, 1), *b = fl_text_decoder_new(stored, 1);
    const int64_t of[3] = {0}, id[3] = {4, 9, 30};
    REQUIRE(a && b && fl_text_decoder_read(a, 3, of, id) && fl_text_decoder_read(b, 3, of, id));
    for (int i = 0; i < 40; i++)
        CHECK_NEAR(fl_text_decoder_scores(a, 0)[i], fl_text_decoder_scores(b, 0)[i], 1e-4);
    fl_text_decoder_free(a);
    fl_text_decoder_free(b);
    fl_nn_free(m);
    fl_nn_free(stored);
    fl_data_close(e);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- files that are not what they should be ---- */

/* The golden model of that name, some of its tensors changed and `from` of its config.json replaced by `to`,
   in a
   folder of its own; loaded. */
typedef struct changes {
    const char *drop;                 /* the tensor of that name is left out */
    const char *add;                  /* one of three numbers is added */
    const char *prefix;               /* is taken off names */
    const char *part, *instead;       /* in names */
    const char *of;                   /* the tensor that is resized along `axis`, or cast to dtype */
    int axis;
    int64_t more;
    fl_dtype dtype;
    const char *from, *to;
} changes;
static fl_nn_module *load_changed(const char *name, changes c) {
    fl_scope s = fl_scope_begin();
    char path[400], folder[300], names[80][100];
    fl_data_named_tensor list[80];
    int n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", golden(name));
    fl_data_file *f = fl_data_open_safetensors(path);
    for (int64_t i = 0; i < fl_data_count(f) && n < 79; i++) {
        const char *was = fl_data_name(f, i), *at = c.part ? strstr(was, c.part) : NULL;
        const size_t cut = c.prefix && !strncmp(was, c.prefix, strlen(c.prefix)) ? strlen(c.prefix) : 0;
        if (c.drop && !strcmp(was, c.drop)) continue;
        if (at) snprintf(names[n], sizeof names[n], "%.*s%s%s", (int)(at - was), was, c.instead,
                         at + strlen(c.part));
        else snprintf(names[n], sizeof names[n], "%s", was + cut);
        list[n] = (fl_data_named_tensor){names[n], fl_data_read(f, was)};
        if (c.of && !strcmp(was, c.of)) {
            fl_tensor *t = list[n].tensor;
            if (c.dtype) t = fl_cast(t, c.dtype);
            else if (c.more < 0) t = fl_contiguous(fl_slice(t, c.axis, 0, t->shape[c.axis] + c.more, 1));
            else t = fl_concat((fl_tensor *[]){t, fl_slice(t, c.axis, 0, c.more, 1)}, 2, c.axis);
            list[n].tensor = t;
        }
        n++;
    }
    if (c.add) list[n++] = (fl_data_named_tensor){c.add, fl_zeros(FL_SHAPE(3), FL_F32)};
    snprintf(folder, sizeof folder, "%s", temporary("changed"));
    mkdir(folder, 0700);
    fl_data_close(f);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    CHECK(fl_data_save_safetensors(path, list, n, NULL, 0));
    snprintf(path, sizeof path, "%s/config.json", golden(name));
    int64_t bytes;
    char *config = fl_text_read_file("test", path, &bytes), *text = fl_heap_alloc((size_t)bytes + 100);
    const char *at = c.from ? strstr(config, c.from) : NULL;
    CHECK(at || !c.from);
    const int whole = at ? snprintf(text, (size_t)bytes + 100, "%.*s%s%s", (int)(at - config), config, c.to,
                                    at + strlen(c.from))
                         : snprintf(text, (size_t)bytes + 100, "%s", config);
    snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK(fl_data_replace("test", path, text, (size_t)whole));
    fl_nn_module *m = fl_text_load(folder);
    remove(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    remove(path), rmdir(folder);
    fl_heap_free(config), fl_heap_free(text);
    fl_scope_end(&s);
    return m;
}

static bool check_equal_param(const char *path, fl_var *p, fl_tensor *buffer, void *other) {
    if (buffer) return true;
    if (!CHECK(farthest(fv_value(p), fv_value(fl_nn_get_param(other, path))) == 0)) printf("  %s\n", path);
    return true;
}

/* Names without the backend's prefix, of older versions, and tensors that nobody needs: the same model. */
TEST(tensors_of_other_names_load) {
    test_errors_return();
    static const struct { const char *name; changes c; } of[] = {
        {"gpt2", {.prefix = "transformer."}},
        {"llama", {.prefix = "model."}},
        {"bert", {.prefix = "bert."}},
        {"bert", {.part = "LayerNorm.weight", .instead = "LayerNorm.gamma"}},
        {"bert", {.part = "LayerNorm.bias", .instead = "LayerNorm.beta"}},
        {"llama", {.add = "model.layers.0.self_attn.rotary_emb.inv_freq"}},
        {"gpt2", {.add = "transformer.h.1.attn.bias"}},
        {"gpt2", {.add = "lm_head.weight"}}, /* tied */
        {"bert", {.add = "bert.pooler.dense.bias"}},
        {"llama", {.from = "\"silu\"", .to = "\"swish\""}},
        {"llama", {.from = "\"head_dim\": 8,", .to = ""}},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *want = fl_text_load(golden(of[i].name)), *m = load_changed(of[i].name, of[i].c);
        if (CHECK(want && m)) CHECK(fl_nn_visit_tensors(m, check_equal_param, want));
        else printf("  case %d: %s\n", (int)i, fl_error() ? fl_error() : "");
        fl_error_clear();
        fl_nn_free(want), fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(models_that_do_not_fit_their_description) {
    test_errors_return();
    static const struct { const char *name; changes c; const char *error; } of[] = {
        {"llama", {.drop = "model.norm.weight"}, "tensor 'model.norm.weight' is missing"},
        {"llama", {.drop = "model.norm.weight", .add = "eight"}, "tensor 'model.norm.weight' is missing"},
        {"llama", {.drop = "lm_head.weight"}, "tensor 'lm_head.weight' is missing"},
        {"llama", {.drop = "model.layers.1.self_attn.k_proj.weight"},
         "tensor 'model.layers.1.self_attn.k_proj.weight' is missing"},
        {"llama", {.drop = "model.layers.1.self_attn.v_proj.weight"},
         "tensor 'model.layers.1.self_attn.v_proj.weight' is missing"},
        {"gpt2", {.drop = "transformer.h.0.mlp.c_fc.bias"}, "tensor 'transformer.h.0.mlp.c_fc.bias'"},
        {"llama", {.add = "model.layers.2.input_layernorm.weight"},
         "unexpected tensor 'model.layers.2.input_layernorm.weight'"},
        {"qwen2", {.from = "\"num_hidden_layers\": 2", .to = "\"num_hidden_layers\": 3"}, "is missing"},
        {"llama", {.from = "\"num_hidden_layers\": 2", .to = "\"num_hidden_layers\": 3"},
         "tensor 'model.layers.2."},
        {"llama", {.from = "\"num_hidden_layers\": 2", .to = "\"num_hidden_layers\": 1"},
         "unexpected tensor 'model.layers.1."},
        {"llama", {.of = "model.norm.weight", .more = -1},
         "wrong shape of 'model.norm.weight', a tensor (norm.weight here): got [31], expected [32]"},
        {"llama", {.of = "model.embed_tokens.weight", .more = 1}, "got [41, 32], expected [40, 32]"},
        {"llama", {.of = "model.layers.1.mlp.up_proj.weight", .axis = 1, .more = 1},
         "'model.layers.1.mlp.up_proj.weight', a tensor (layers.1.linear1.weight here): got [64, 33], "
         "expected [64, 32]"},
        {"llama", {.of = "model.layers.0.self_attn.k_proj.weight", .more = 1},
         "got [65, 32], expected [64, 32]"},
        {"llama", {.of = "model.layers.0.self_attn.v_proj.weight", .axis = 1, .more = -1},
         "'model.layers.0.self_attn.q_proj.weight', part of a tensor (layers.0.self_attn.in_proj_weight "
         "here): got [16, 31], expected [64, 32]"},
        {"gpt2", {.of = "transformer.h.0.attn.c_attn.weight", .more = 1}, "got [96, 33], expected [96, 32]"},
        {"gpt2", {.of = "transformer.wpe.weight", .more = 1}, "got [33, 32], expected [32, 32]"},
        {"llama", {.of = "model.norm.weight", .dtype = FL_I32},
         "tensor 'model.norm.weight' is i32, expected a float"},
        {"llama", {.of = "model.layers.0.self_attn.v_proj.weight", .dtype = FL_I64},
         "tensor 'model.layers.0.self_attn.v_proj.weight' is i64, expected a float"},
        {"llama", {.from = "\"model_type\": \"llama\"", .to = "\"model_type\": \"llamas\""},
         "unknown model_type 'llamas'; known: gpt2, llama, mistral, qwen2, bert"},
        {"llama", {.from = "\"head_dim\": 8", .to = "\"head_dim\": 9"}, "head_dim: got 9, expected 32 / 4"},
        {"llama", {.from = "\"num_attention_heads\": 4", .to = "\"num_attention_heads\": 5"}, "integers > 0"},
        {"llama", {.from = "\"num_attention_heads\": 4", .to = "\"num_attention_heads\": 0"}, "integers > 0"},
        {"llama", {.from = "\"num_hidden_layers\": 2", .to = "\"num_hidden_layers\": 0"}, "integers > 0"},
        {"llama", {.from = "\"num_key_value_heads\": 2", .to = "\"num_key_value_heads\": 0"}, "integers > 0"},
        {"llama", {.from = "\"intermediate_size\": 64", .to = "\"intermediate_size\": 0"}, "integers > 0"},
        {"llama", {.from = "\"vocab_size\": 40", .to = "\"vocab_size\": 0"}, "integers > 0"},
        {"llama", {.from = "\"hidden_size\": 32", .to = "\"hidden_size\": 0"}, "integers > 0"},
        {"llama", {.from = "\"max_position_embeddings\": 32", .to = "\"max_position_embeddings\": -1"},
         "integers"},
        {"llama", {.from = "\"silu\"", .to = "\"mish\""}, "unknown activation 'mish'"},
        {"llama", {.from = "\"attention_bias\": false", .to = "\"attention_bias\": true"}, "_bias and"},
        {"llama", {.from = "\"mlp_bias\": false", .to = "\"mlp_bias\": true"}, "attention_bias and mlp_bias"},
        {"llama", {.from = "\"rope_type\": \"default\"", .to = "\"rope_type\": \"longrope\""},
         "rotary scaling 'longrope'"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fl_nn_module *m = load_changed(of[i].name, of[i].c);
        if (!CHECK(!m && fl_error() && strstr(fl_error(), of[i].error)))
            printf("  case %d: %s, not %s\n", (int)i, fl_error() ? fl_error() : "no error", of[i].error);
        fl_error_clear();
        fl_nn_free(m);
    }
    CHECK_NOTHING_LIVES();
}

/* A llama2.c file whose numbers count up: each parameter begins where the format says. */
TEST(llama2c_tensors_are_in_order) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    enum { NUMBERS = 32 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 128) + 8 + 32 };
    const int32_t head[] = {8, 16, 2, 2, 1, 4, 8};
    static char bytes[28 + 4 * NUMBERS];
    memcpy(bytes, head, sizeof head);
    for (int i = 0; i < NUMBERS; i++) memcpy(bytes + 28 + 4 * i, &(float){(float)i}, 4);
    CHECK(fl_data_replace("test", temporary("order.bin"), bytes, sizeof bytes));
    fl_nn_module *m = fl_text_load(temporary("order.bin"));
    REQUIRE(m);
    static const struct { const char *path; double first; } of[] = {
        {"embedding.weight", 0}, {"layers.0.norm1.weight", 32}, {"layers.1.norm1.weight", 40},
        {"layers.1.self_attn.in_proj_weight", 112}, {"layers.1.self_attn.out_proj.weight", 368},
        {"layers.1.norm2.weight", 440}, {"layers.1.gate.weight", 576}, {"layers.1.linear2.weight", 832},
        {"layers.1.linear1.weight", 1088}, {"norm.weight", 1216}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        CHECK_NEAR(fl_item(fl_amin(fv_value(fl_nn_get_param(m, of[i].path)), FL_ALL_AXES)), of[i].first, 0);
    fl_nn_free(m);
    remove(temporary("order.bin"));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* KenLM's tables end where its texts of words begin: all of a file up to there is needed, and no more. */
TEST(kenlm_tables_must_fit) {
    test_errors_return();
    static const char *const types[] = {"probing", "trie", "quant", "array", "both"};
    for (int k = 0; k < 5; k++) {
        char name[40];
        snprintf(name, sizeof name, "../text/ngram.%s", types[k]);
        int64_t n;
        char *bytes = fl_text_read_file("test", golden(name), &n);
        REQUIRE(bytes);
        int64_t end = n - 6;
        while (end > 0 && memcmp(bytes + end, "<unk>", 6)) end--;
        for (int64_t at = 0; at <= end; at += end - at > 24 && at > 200 ? 41 : 1) {
            CHECK(fl_data_replace("test", temporary("kenlm"), bytes, (size_t)at));
            fl_text_ngram *m = fl_text_ngram_load(temporary("kenlm"));
            if (!CHECK((m != NULL) == (at == end))) printf("  %s: %d of %d\n", types[k], (int)at, (int)end);
            if (!m && at > 120) CHECK_ERROR(at < 136 + 8 ? "" : "exceed the file");
            fl_error_clear();
            fl_text_ngram_free(m);
        }
        remove(temporary("kenlm"));
        fl_heap_free(bytes);
    }
    CHECK_NOTHING_LIVES();
}

/* Batches that training and evaluation take, and those that they name as wrong. */
TEST(batches_are_checked) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_text_lm(5, .layers = 1, .dim = 8, .heads = 2, .context = 4, .rng = &rng);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(m), .lr = 0.1);
    fl_tensor *x = fl_ones(FL_SHAPE(1, 2, 4), FL_I64), *mask = fl_ones(FL_SHAPE(1, 2, 4), FL_B8);
    const struct { fl_tensor *t[4]; int n; bool ok; } of[] = {
        {{x, x}, 2, true},
        {{x, x, mask}, 3, true},
        {{x}, 1, false},
        {{x, x, mask, mask}, 4, false},
        {{fl_ones(FL_SHAPE(1, 4), FL_I64), fl_ones(FL_SHAPE(1, 4), FL_I64)}, 2, false},
        {{fl_ones(FL_SHAPE(1, 1, 2, 4), FL_I64), fl_ones(FL_SHAPE(1, 1, 2, 4), FL_I64)}, 2, false},
        {{fl_cast(x, FL_I32), x}, 2, false},
        {{x, fl_cast(x, FL_I32)}, 2, false},
        {{x, fl_cast(x, FL_F32)}, 2, false},
        {{x, fl_ones(FL_SHAPE(1, 2, 3), FL_I64)}, 2, false},
        {{x, fl_ones(FL_SHAPE(1, 4, 2), FL_I64)}, 2, false},
        {{x, fl_ones(FL_SHAPE(1, 8), FL_I64)}, 2, false},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int evaluate = 0; evaluate < 2; evaluate++) {
            fl_data_set *set = fl_data_tensors(of[i].t, of[i].n);
            fl_text_training t = {.model = m, .optim = optim, .set = set};
            fl_text_loss_sum sum = {7, 7};
            double loss = 0;
            const bool ok = evaluate ? fl_text_evaluate_set(m, set, &sum, 0) : fl_text_training_step(&t,
                                                                                                     &loss);
            char want[40];
            snprintf(want, sizeof want, "optionally a mask: got %d fields", of[i].n);
            if (!CHECK(ok == of[i].ok)) printf("  case %d\n", (int)i);
            if (!of[i].ok) CHECK_ERROR(want);
            CHECK_NO_ERROR();
            if (evaluate) CHECK(ok ? sum.tokens == 8 && sum.nats > 0 && sum.nats < 80 : sum.tokens == 7);
            else CHECK(t.tokens == (ok ? 8 : 0) && t.at.step == ok && ok == (loss > 0));
            fl_data_free(set);
        }
    fl_optim_free(optim);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- as a scorer ---- */

/* Histories that branch, in any order, alone and in batches: as each is by itself. */
TEST(scorers_know_histories_that_branch) {
    fl_nn_module *m = model_of(&kinds[1]);
    fl_text_decoder *r = fl_text_decoder_new(m, 3), *one = fl_text_decoder_new(m, 1);
    fl_text_scorer *s = fl_text_lm_scorer(r, 3, 6);
    REQUIRE(r && one && s);
    enum { STATES = 40 };
    fl_text_state state[STATES];
    int64_t id[STATES][32], n[STATES];
    double sum[STATES] = {0}, score;
    CHECK(s->start(s, &state[0]));
    id[0][0] = 3, n[0] = 1;
    for (int i = 1; i < STATES; i++) {
        const int from = (i * 7 + 3) % i, next = (i * 5) % V;
        if (i % 3 == 0) CHECK(s->batch(s, state + (i > 8 ? i - 8 : 0), i > 8 ? 8 : i));
        CHECK(s->score(s, &state[from], next, &state[i], &score));
        memcpy(id[i], id[from], sizeof id[i]);
        id[i][n[from]] = next, n[i] = n[from] + 1, sum[i] = sum[from] + score;
        fl_text_decoder_rewind(one, 0, 0);
        double want = 0;
        for (int64_t k = 0; k + 1 < n[i]; k++) {
            const int64_t of = 0;
            CHECK(fl_text_decoder_read(one, 1, &of, &id[i][k]));
            const float *x = fl_text_decoder_scores(one, 0);
            double all = 0;
            for (int j = 0; j < V; j++) all += exp(x[j]);
            want += x[id[i][k + 1]] - log(all);
        }
        CHECK_NEAR(sum[i], want, 1e-4);
    }
    fl_text_state again;
    CHECK(s->score(s, &state[1], 4, &again, &score) && s->score(s, &state[1], 4, &state[2], &score));
    CHECK(fl_text_state_equal(&again, &state[2]) && !fl_text_state_equal(&state[1], &state[2]));
    CHECK(s->finish(s, &state[2], &score) && score < 0);
    CHECK(!s->score(s, &state[1], V, &again, &score));
    CHECK_ERROR("got 17, expected [0, 17)");
    fl_text_scorer_free(s);
    fl_text_decoder_free(r);
    fl_text_decoder_free(one);
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

/* ---- mistakes ---- */

TEST(mistakes_are_named) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_text_lm(5, .layers = 1, .dim = 8, .heads = 2, .context = 4, .rng = &rng);
    fl_nn_module *both = fl_text_lm(5, .layers = 1, .dim = 8, .heads = 2, .bidirectional = true, .rng = &rng);
    fl_nn_module *other = fl_nn_relu();
    fl_text_tokens *t = fl_text_tokens_of(ids(20, FL_I32), NULL, 100);
    fl_text_decoder *r = fl_text_decoder_new(m, 2);
    fl_text_loss_sum measure;
    fl_text_training training = {0};
    fl_text_sequence text = {0};
    fl_text_candidate scratch[4];
    const int64_t of[] = {0, 0, 0, 0, 0}, id[] = {1, 2, 3, 4, 9}, apart[] = {0, 1, 0};
    const float scores[] = {0, 1};
    fl_var *x = fv_const(fl_zeros(FL_SHAPE(1, 3), FL_I64));
    NAMED(fl_text_tokens_open("/nowhere/at/all"), "/nowhere/at/all");
    NAMED(fl_text_blocks(t, 0), "got 0 for tokens [0, 20) of 20");
    NAMED(fl_text_blocks(t, 30, .random = true), "got 30 for tokens");
    NAMED(fl_text_documents(t, 100), "an id: got 100");
    NAMED(fl_text_mask(fl_text_documents(t, -1), .vocabulary = 5, .mask = 5),
          "mask (5) is not in [0, vocabulary = 5)");
    NAMED(fl_text_lm(0), "vocabulary 0");
    NAMED(fl_text_lm(5, .dim = 9, .heads = 2), "dim (9) is not divisible by heads (2)");
    NAMED(fl_text_lm(5, .cutoffs = FL_SHAPE(2, 6)), "cutoffs up to 6");
    NAMED(fl_text_lm_info(other, NULL), "not one of fl_text_lm: got ReLU");
    NAMED(fl_nn_forward(m, fv_const(fl_zeros(FL_SHAPE(3), FL_I64))), "i64 [3], expected tokens i64 [n, t]");
    NAMED(fl_nn_forward(m, fv_const(fl_zeros(FL_SHAPE(1, 5), FL_I64))), "[1, 5, 8]");
    NAMED(fl_text_loss(m, FL_VARS(x), fl_zeros(FL_SHAPE(3), FL_I64), FL_MEAN),
          "got [3], expected [1, 3]");
    NAMED(fl_text_evaluate(m, t, &measure, .end = 21), "tokens [0, 21) of 20");
    NAMED(fl_text_evaluate(m, t, &measure, .stride = 5), "context 4, stride 5");
    NAMED(fl_text_training_step(&training, NULL), "model, optim or set is NULL");
    NAMED(fl_text_training_save(&training, "x"), "model, optim, set or path is NULL");
    NAMED(fl_text_load("/nowhere/at/all.bin"), "/nowhere/at/all.bin");
    NAMED(fl_text_load("/nowhere/at/all"), "/nowhere/at/all");
    NAMED(fl_text_save(m, "/nowhere/at/all"), "/nowhere/at/all");
    NAMED(fl_text_save(both, "x"), "no architecture has these options");
    NAMED(fl_text_save(NULL, "x"), "the model or path is NULL");
    NAMED(fl_text_save_gguf(NULL, NULL, 0, NULL, 0), "path, tensors or meta is NULL");
    NAMED(fl_text_save_gguf("x", NULL, 1, NULL, 0), "path, tensors or meta is NULL");
    NAMED(fl_text_save_gguf("x", NULL, 0, NULL, -1), "a count is negative");
    NAMED(fl_text_open_gguf("/nowhere/at/all"), "/nowhere/at/all");
    NAMED(fl_text_decoder_new(m, 0), "n (0) and length (4) must be >= 1");
    NAMED(fl_text_decoder_new(m, 1, .length = 9), "length (9) must be >= 1, and length at most 4");
    NAMED(fl_text_decoder_new(both, 1), "expected a causal one");
    NAMED(fl_text_decoder_read(r, 0, of, id), "got 0, or d");
    NAMED(fl_text_decoder_read(r, 1, of, id + 4), "got id 9 of sequence 0, expected ids < 5, sequences < 2");
    NAMED(fl_text_decoder_read(r, 5, of, of), "sequence 0 is full: length is 4 tokens");
    NAMED(fl_text_decoder_read(r, 3, apart, of), "got rows 0 and 2 of sequence 0");
    NAMED(fl_text_decoder_rewind(r, 0, 1), "got sequence 0, position 1 of 0");
    NAMED(fl_text_decoder_copy(r, 0, 2), "got 2 to 0, expected [0, 2)");
    NAMED(fl_text_sample(scores, 2, &(fl_text_sampler){.min_p = 3}, NULL, 0, &rng, scratch) >= 0, "min_p 3");
    NAMED(fl_text_generate(r, &text, 1), "text 0 is empty");
    NAMED(fl_text_beam_search(r, &text, 1, .beams = 2), "got 2 beams, n 1, 2 sequences");
    CHECK_EQ_INT(fl_text_decoder_position(r, 0), 0); /* nothing was read by the calls that failed */
    CHECK(fl_nn_init_constant(fl_nn_get_param(m, "norm.weight"), NAN));
    fl_text_decoder *broken = fl_text_decoder_new(m, 1);
    NAMED(fl_text_decoder_read(broken, 1, of, id), "the score of id 0 after token 0 of sequence 0 is NaN");
    fl_text_decoder_free(broken);
    fl_text_decoder_free(r);
    fl_text_tokens_free(t);
    fl_nn_free(m), fl_nn_free(both), fl_nn_free(other);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Is the relative error of the saved file's logits at most that? Gives the model that was read. */
static fl_nn_module *saved_as_gguf(fl_nn_module *m, const char *path, fl_dtype dtype, bool stored,
                                   double most) {
    fl_nn_module *again =
        CHECK(fl_text_save(m, path, .dtype = dtype)) ? fl_text_load(path, .stored = stored) : NULL;
    if (!CHECK(again)) return printf("  %s\n", fl_error()), NULL;
    fl_nn_train(m, false), fl_nn_train(again, false);
    fl_var *x = fv_const(fl_reshape(ids(10, FL_I64), FL_SHAPE(1, 10)));
    fl_tensor *want = fv_value(fl_nn_forward(m, x)), *off = fl_sub(want, fv_value(fl_nn_forward(again, x)));
    const double error = sqrt(fl_item(fl_mean(fl_mul(off, off), FL_ALL_AXES)) /
                              fl_item(fl_mean(fl_mul(want, want), FL_ALL_AXES)));
    if (!CHECK(error <= most)) printf("  %s: %g off\n", fl_dtype_name(dtype), error);
    return again;
}

/* WordPiece of six tokens, without [CLS] and [SEP]. */
static fl_text_tokenizer *tokenizer_of_pieces(void) {
    static const char text[] = "[PAD]\n[UNK]\na\n##a\nb\n##b\n";
    const char *path = temporary("vocab.txt");
    const bool ok = fl_data_replace("test", path, text, sizeof text - 1);
    fl_text_tokenizer *t = ok ? fl_text_tokenizer_open(path) : NULL;
    remove(path);
    return t;
}

/* Models of each architecture as one file: what is read is what was written, to the dtype. */
TEST(models_save_as_gguf) {
    static const char *const names[] = {"gpt2", "llama", "mistral", "qwen2"};
    test_errors_return();
    char path[300];
    snprintf(path, sizeof path, "%s", temporary("saved.gguf"));
    for (int i = 0; i < 4; i++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = fl_text_load(golden(names[i])), *again = saved_as_gguf(m, path, 0, false, 1e-5);
        const fl_text_lm_opts *a = fl_text_lm_info(m, NULL), *b = fl_text_lm_info(again, NULL);
        CHECK(a->eos.ndim == 1 && b->eos.ndim == 1 && a->eos.dim[0] == b->eos.dim[0]);
        CHECK(a->window == b->window);
        fl_nn_module *third = saved_as_gguf(again, path, FL_BF16, true, 0.05); /* from pairs, not halves */
        fl_nn_free(m), fl_nn_free(again), fl_nn_free(third);
        fl_scope_end(&s);
    }
    const fl_dtype dtypes[] = {FL_F16, fl_q8(), fl_q4(), fl_q4_k(), fl_q6_k()};
    static const double most[] = {2e-3, 0.03, 0.4, 0.25, 0.08};
    fl_rng rng = {3, 0};
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_text_lm(V, .layers = 2, .dim = 256, .heads = 4, .kv_heads = 2, .hidden = 96,
                                 .std = 0.03, .place = FL_LM_ROTARY, .rms = true, .gated = true, .no_bias = true,
                                 .untied = true, .rope = {.scale = 0.5}, .rng = &rng);
    REQUIRE(m);
    for (int i = 0; i < 5; i++) {
        fl_nn_free(saved_as_gguf(m, path, dtypes[i], true, most[i]));
        fl_data_file *f = fl_text_open_gguf(path);
        REQUIRE(f);
        CHECK(fl_data_dtype(f, fl_data_find(f, "blk.1.ffn_up.weight")) == dtypes[i]);
        CHECK(fl_data_dtype(f, fl_data_find(f, "blk.1.attn_norm.weight")) == FL_F32);
        CHECK(fl_data_dtype(f, fl_data_find(f, "blk.0.ffn_down.weight")) == (i < 3 ? dtypes[i] : fl_q8()));
        CHECK(!strcmp(fl_data_meta(f, "llama.rope.scaling.factor"), "2"));
        fl_data_close(f);
    }
    fl_text_tokenizer *letters = fl_text_char_tokenizer("abc", 3);
    NAMED(fl_text_save(m, path, .tokenizer = letters), "GGUF does not support a word-level model");
    NAMED(fl_text_save(m, path, .dtype = fl_q2_k()), "dtype q2_k cannot be written");
    NAMED(fl_text_save(m, "x", .dtype = FL_F16), "dtype applies to .gguf files only");
    fl_text_tokenizer_free(letters);
    fl_nn_free(m), m = fl_text_load(golden("llama"));
    fl_text_tokenizer *pieces = tokenizer_of_pieces(), *read = NULL;
    REQUIRE(m && pieces && CHECK(fl_text_save(m, path, .tokenizer = pieces)));
    fl_nn_module *again = fl_text_load(path);
    read = fl_text_tokenizer_open(path);
    CHECK(again && read && fl_text_vocab_size(read) == 6 && !strcmp(fl_text_token_of(read, 5, NULL), "##b"));
    const fl_text_lm_opts *with = fl_text_lm_info(m, NULL), *got = fl_text_lm_info(again, NULL);
    CHECK(with->eos.dim[0] == got->eos.dim[0] && with->bos.dim[0] == got->bos.dim[0]);
    fl_text_tokenizer_free(pieces), fl_text_tokenizer_free(read), fl_nn_free(again);
    fl_nn_free(m), m = fl_text_load(golden("bert"));
    NAMED(fl_text_save(m, path), "architecture bert");
    fl_nn_free(m);
    fl_scope_end(&s);
    remove(path);
    CHECK_NOTHING_LIVES();
}

static void hear_message(fl_log_level level, const char *text, void *user) {
    (void)level;
    snprintf(user, 300, "%s", text);
}

/* A tensor that the loader passes over is named by a line of the log. */
TEST(tensors_that_are_not_read_are_named) {
    char said[300] = "";
    test_errors_return();
    fl_log_set_sink(hear_message, said, FL_LOG_INFO);
    fl_nn_module *m = load_changed("gpt2", (changes){.add = "transformer.h.0.attn.masked_bias"});
    fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
    CHECK(m && strstr(said, "tensor 'transformer.h.0.attn.masked_bias' is ignored"));
    fl_nn_free(m);
    CHECK_NOTHING_LIVES();
}

/* Rotary scaling llama3, which GGUF has as factors: the same settings are read, and the same scores; and
   factors that are none are errors. */
TEST(gguf_has_factors_of_rotary_frequencies) {
    static const fl_rotary_opts ropes[] = {
        {.base = 500000, .scale = 0.125, .kind = FL_ROTARY_LLAMA3, .low = 1, .high = 4, .trained = 8192},
        {.base = 500000, .scale = 1. / 32, .kind = FL_ROTARY_LLAMA3, .low = 1, .high = 4, .trained = 8192},
        {.base = 500000, .scale = 0.25, .kind = FL_ROTARY_LLAMA3, .low = 1, .high = 6, .trained = 2048}};
    test_errors_return();
    char path[300];
    snprintf(path, sizeof path, "%s", temporary("factors.gguf"));
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {3, 0};
        fl_nn_module *m = fl_text_lm(V, .layers = 1, .dim = 256, .heads = 2, .hidden = 32, .std = 0.3,
                                     .context = 64, .place = FL_LM_ROTARY, .rms = true, .gated = true,
                                     .no_bias = true, .untied = true, .rope = ropes[i], .rng = &rng);
        REQUIRE(m);
        fl_nn_module *again = saved_as_gguf(m, path, 0, false, 1e-5);
        REQUIRE(again);
        const fl_rotary_opts got = fl_text_lm_info(again, NULL)->rope;
        CHECK(got.kind == FL_ROTARY_LLAMA3 && got.trained == ropes[i].trained && got.base == ropes[i].base);
        CHECK_NEAR(got.scale / ropes[i].scale, 1, 1e-6);
        CHECK_NEAR(got.high / got.low, ropes[i].high, 1e-3);
        fl_data_file *f = fl_text_open_gguf(path);
        float factor[64];
        REQUIRE(f && fl_to_host(fl_data_read(f, "rope_freqs.weight"), factor, sizeof factor));
        for (int j = 0; j < 64; j++) { /* as Llama's own code scales a frequency */
            const double w = pow(ropes[i].base, -j / 64.);
            const double turns = (double)ropes[i].trained * w / 6.283185307179586;
            const double part = (turns - ropes[i].low) / (ropes[i].high - ropes[i].low);
            const double want = turns < ropes[i].low ? w * ropes[i].scale : turns > ropes[i].high ? w
                                : (1 - part) * w * ropes[i].scale + part * w;
            CHECK_NEAR(w / factor[j] / want, 1, 1e-6);
        }
        fl_data_close(f);
        fl_nn_free(m), fl_nn_free(again);
        fl_scope_end(&s);
    }
    fl_scope s = fl_scope_begin();
    const fl_text_gguf_pair meta[] = {{"general.architecture", .text = "llama"},
                                      {"llama.block_count", .number = 1},
                                      {"llama.embedding_length", .number = 8},
                                      {"llama.attention.head_count", .number = 1},
                                      {"llama.rope.scaling.type", .text = "linear"},
                                      {"llama.rope.scaling.factor", .number = 2}};
    const float odd[] = {1, 3, 2, 8};
    const fl_data_named_tensor list[] = {{"token_embd.weight", fl_zeros(FL_SHAPE(5, 8), FL_F32)},
                                         {"rope_freqs.weight", fl_from_host(odd, FL_SHAPE(4), FL_F32)}},
                        few[] = {list[0], {"rope_freqs.weight", fl_ones(FL_SHAPE(3), FL_F32)}};
    REQUIRE(fl_text_save_gguf(path, list, 2, meta, 4));
    NAMED(fl_text_load(path), "'rope_freqs.weight' are not the factors of rotary scaling llama3");
    REQUIRE(fl_text_save_gguf(path, list, 2, meta, 6));
    NAMED(fl_text_load(path), "'rope_freqs.weight' requires rotary positions without another scaling");
    REQUIRE(fl_text_save_gguf(path, few, 2, meta, 4));
    NAMED(fl_text_load(path), "'rope_freqs.weight' is f32 [3], expected f32 [4]");
    fl_scope_end(&s);
    remove(path);
    CHECK_NOTHING_LIVES();
}

/* Keys and tensors of a file that fl_text_save_gguf writes, and what it refuses. */
TEST(gguf_files_are_written) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    char path[300];
    snprintf(path, sizeof path, "%s", temporary("made.gguf"));
    fl_tensor *x = fl_normal(FL_SHAPE(3, 256), 0, 1, FL_F32, &(fl_rng){1, 0}), *q = fl_cast(x, fl_q6_k());
    const fl_data_named_tensor list[] = {{"x", fl_transpose(x, 0, 1)}, {"q", q}, {"i", ids(5, FL_I64)},
                                         {"none", fl_zeros(FL_SHAPE(0, 3), FL_F32)}};
    const fl_text_gguf_pair meta[] = {
        {"text", .text = "a \"b\""}, {"n", .number = 4294967295.0}, {"minus", .number = -128, .dtype = FL_I8},
        {"real", .number = 0.5, .dtype = FL_F32}, {"yes", .number = 1, .dtype = FL_B8},
        {"large", .number = 0x1p63, .dtype = FL_U64}, {"double", .number = -1e300, .dtype = FL_F64}};
    static const char *const values[] = {"a \"b\"", "4294967295", "-128", "0.5", "1", "9223372036854775808",
                                         "-1.0000000000000001e+300"};
    CHECK(fl_text_save_gguf(path, list, 4, meta, 7));
    fl_data_file *f = fl_text_open_gguf(path);
    REQUIRE(f && fl_data_count(f) == 4);
    for (int i = 0; i < 7; i++) CHECK(!strcmp(fl_data_meta(f, meta[i].key), values[i]));
    CHECK(farthest(fl_data_read(f, "x"), list[0].tensor) == 0);
    CHECK(farthest(fl_cast(fl_data_read(f, "q"), FL_F32), fl_cast(q, FL_F32)) == 0);
    CHECK(farthest(fl_cast(fl_data_read(f, "i"), FL_F64), fl_cast(list[2].tensor, FL_F64)) == 0);
    fl_data_close(f);
    static const fl_text_gguf_pair bad[] = {
        {"n", .number = -1}, {"n", .number = 0.5}, {"n", .number = NAN}, {"n", .number = 256, .dtype = FL_U8},
        {"n", .number = 128, .dtype = FL_I8}, {"n", .number = 0x1p64, .dtype = FL_U64},
        {"n", .dtype = FL_F16}};
    for (int i = 0; i < 7; i++) NAMED(fl_text_save_gguf(path, NULL, 0, &bad[i], 1), "key 'n': ");
    const fl_text_gguf_pair twice[] = {meta[1], meta[1]}, alignment = {.key = "general.alignment"};
    const fl_data_named_tensor both[] = {{"x", x}, {"x", x}};
    NAMED(fl_text_save_gguf(path, NULL, 0, twice, 2), "duplicate metadata key 'n'");
    NAMED(fl_text_save_gguf(path, NULL, 0, &alignment, 1), "general.alignment");
    NAMED(fl_text_save_gguf(path, both, 2, NULL, 0), "duplicate tensor name 'x'");
    NAMED(fl_text_save_gguf(path, (fl_data_named_tensor[]){{"", x}}, 1, NULL, 0), "expected 1 to 63 bytes");
    const fl_data_named_tensor narrow = {"x", fl_cast(x, FL_U16)}, null = {"x", NULL};
    NAMED(fl_text_save_gguf(path, &narrow, 1, NULL, 0), "tensor 'x' is u16");
    NAMED(fl_text_save_gguf(path, &null, 1, NULL, 0), "tensor 'x' is NULL");
    NAMED(fl_text_save_gguf("/nowhere/at/all", NULL, 0, NULL, 0), "/nowhere/at/all");
    f = fl_text_open_gguf(path); /* what failed changed nothing */
    CHECK(f && fl_data_count(f) == 4);
    fl_data_close(f);
    remove(path);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Blocks of every type beside what the package gguf makes of them, bit for bit (tests/gguf_blocks.py). */
TEST(gguf_blocks_of_every_type) {
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_text_open_gguf(golden("blocks.gguf"));
    REQUIRE(f && fl_data_count(f) == 31);
    for (int64_t i = 0; i < 28; i += 2) {
        fl_tensor *t = fl_data_read(f, fl_data_name(f, i)), *got = fl_cast(t, FL_F32),
                  *want = fl_data_read(f, fl_data_name(f, i + 1));
        REQUIRE(got && want && fl_dtype_registered(t->dtype) && fl_same_shape(got, want));
        CHECK(!memcmp(fl_map(got, FL_READ), fl_map(want, FL_READ), (size_t)fl_numel(want) * 4) ||
              (printf("  %s\n", fl_data_name(f, i)), false));
        fl_unmap(got, FL_READ), fl_unmap(want, FL_READ);
    }
    for (int64_t i = 29; i < 31; i++) { /* f32 that become such blocks */
        fl_tensor *want = fl_data_read(f, fl_data_name(f, i));
        fl_tensor *got = fl_cast(fl_data_read(f, "made"), want ? want->dtype : FL_F32);
        REQUIRE(got && want && fl_same_shape(got, want));
        CHECK(!memcmp(fl_map(got, FL_READ), fl_map(want, FL_READ),
                      (size_t)fl_numel(want) * fl_dtype_size(want->dtype)));
        fl_unmap(got, FL_READ), fl_unmap(want, FL_READ);
    }
    fl_data_close(f);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A file with one tensor of that type and dims, and `bytes` bytes of it. */
static fl_data_file *gguf_of_one(uint32_t type, uint64_t inner, uint64_t outer, size_t bytes) {
    static char text[1 << 12];
    size_t n = 0;
    const uint64_t counts[] = {1, 0, 1}, dims[] = {inner, outer, 0};
    const uint32_t version = 3, two = 2;
    memset(text, 0, sizeof text);
    memcpy(text, "GGUF", 4), memcpy(text + 4, &version, 4), memcpy(text + 8, counts, 24), n = 32;
    text[n++] = 'w';
    memcpy(text + n, &two, 4), memcpy(text + n + 4, dims, 16), memcpy(text + n + 20, &type, 4), n += 32;
    n = (n + 31) / 32 * 32 + bytes;
    const char *path = temporary("one.gguf");
    return fl_data_replace("test", path, text, n) ? fl_text_open_gguf(path) : NULL;
}

/* A number may take less than a byte: dims are compared with the file in bytes. */
TEST(gguf_dims_beyond_the_bytes) {
    test_errors_return();
    static const struct {
        uint32_t type;
        uint64_t inner, outer;
        size_t bytes;
    } fits[] = {{2, 4096, 1, 2304}, {10, 8192, 1, 2688}, {12, 256, 8, 1152}, {39, 3200, 2, 3400},
                {0, 0, 1, 0}},
      beyond[] = {{2, 4096, 1, 2303},          {10, 8192, 1, 2687},        {0, UINT64_C(1) << 62, 4, 64},
                  {2, UINT64_MAX - 31, 1, 64}, {12, 256, UINT64_MAX, 144}, {0, 0, UINT64_C(1) << 40, 0}};
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
        fl_data_file *f = gguf_of_one(fits[i].type, fits[i].inner, fits[i].outer, fits[i].bytes);
        CHECK(f);
        CHECK_NO_ERROR();
        fl_data_close(f);
    }
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        NAMED(gguf_of_one(beyond[i].type, beyond[i].inner, beyond[i].outer, beyond[i].bytes),
              "tensor data exceeds the file");
    NAMED(gguf_of_one(12, 255, 1, 1000), "last dim is not a multiple of the block size");
    NAMED(gguf_of_one(16, 256, 1, 1000), "tensor 'w' has unsupported type 16, expected a float");
    remove(temporary("one.gguf"));
    CHECK_NOTHING_LIVES();
}

/* Each prefix, and each byte of the header changed: an error that names the file, or a file. */
TEST(gguf_files_that_are_none) {
    test_errors_return();
    static char bytes[40000];
    FILE *f = fopen(golden("llama.gguf"), "rb");
    REQUIRE(f);
    const size_t size = fread(bytes, 1, sizeof bytes, f), header = 2700;
    fclose(f);
    const char *path = temporary("bad.gguf");
    int refused = 0, opened = 0;
    for (size_t n = 0; n < header; n += n < 200 ? 1 : 7) {
        REQUIRE(fl_data_replace("test", path, bytes, n));
        NAMED(fl_text_open_gguf(path), path);
    }
    for (size_t i = 0; i < header; i += 3) {
        const char was = bytes[i];
        bytes[i] ^= (char)(1 << i % 8 | 0x80);
        REQUIRE(fl_data_replace("test", path, bytes, size));
        fl_data_file *g = fl_text_open_gguf(path);
        if (g) opened++;
        else refused += CHECK_ERROR(path);
        fl_data_close(g);
        bytes[i] = was;
    }
    printf("%d changed bytes refused, %d in names and values\n", refused, opened);
    CHECK(refused > 100);
    remove(path);
    CHECK_NOTHING_LIVES();
}

/* Lines as they are asked for, from any thread; the same as of a token file made of them. */
TEST(lines_of_a_text_file) {
    static const char text[] = "ab\n\nabc\r\nb\n\r\nca cb";
    static const char *const want[] = {"ab", "abc", "b", "ca cb"};
    test_errors_return();
    const char *path = temporary("lines");
    REQUIRE(fl_data_replace("test", path, text, sizeof text - 1));
    fl_text_tokenizer *t = fl_text_char_tokenizer("abc ", 4);
    fl_data_set *set = fl_data_prefetch(fl_text_lines(path, t, 3), 2, 2);
    CHECK_EQ_INT(fl_data_size(set), 4);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        int64_t x[16], y[16], n = (int64_t)strlen(want[i]);
        CHECK(field(set, i, 0, x) == n + 1 && field(set, i, 1, y) == n + 1 && x[0] == 3 && y[n] == 3);
        for (int64_t k = 0; k < n; k++) {
            int64_t bytes;
            const char *token = fl_text_token_of(t, (int32_t)y[k], &bytes);
            CHECK(token && *token == want[i][k] && x[k + 1] == y[k]);
        }
    }
    fl_data_free(set);
    fl_text_tokenizer_free(t);
    t = fl_text_char_tokenizer("ab ", 3);
    set = fl_text_lines(path, t, -1);
    int64_t x[8];
    CHECK(field(set, 0, 0, x) == 1);
    CHECK(field(set, 1, 0, x) < 0);
    CHECK_ERROR("offset 4: the line cannot be encoded: ");
    fl_data_free(set);
    NAMED(fl_text_lines(path, t, 3), "got 3");
    fl_text_tokenizer_free(t);
    remove(path);
    CHECK_NOTHING_LIVES();
}

/* ---- memory ---- */

/* Loads, reads, continues a text, searches, and takes a sample: false after an error. */
static bool use_all(void) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_text_load(golden("qwen2"));
    fl_text_decoder *r = m ? fl_text_decoder_new(m, 4) : NULL;
    fl_text_scorer *scorer = r ? fl_text_lm_scorer(r, 1, 2) : NULL;
    fl_text_sequence a = {0}, b[2] = {{0}};
    fl_text_state state;
    const int64_t prompt[] = {3, 4, 5};
    double score;
    bool ok = scorer && fl_text_sequence_add(&a, prompt, 3) && fl_text_sequence_add(&b[0], prompt, 3) &&
              fl_text_generate(r, &a, 1, .most = 3) && fl_text_beam_search(r, b, 2, .beams = 2, .most = 3) &&
              scorer->start(scorer, &state) && scorer->score(scorer, &state, 5, &state, &score);
    fl_text_tokens *t = ok ? fl_text_tokens_of(ids(50, FL_I32), NULL, V) : NULL;
    fl_data_set *set = t ? fl_text_mask(fl_text_blocks(t, 9), .vocabulary = V, .mask = 14) : NULL;
    fl_data_sample sample;
    ok = set && fl_text_save(m, temporary("fault.gguf"), .dtype = fl_q8());
    fl_data_file *g = ok ? fl_text_open_gguf(golden("llama.gguf")) : NULL;
    ok = ok && g && fl_data_get(set, 1, &sample) && fl_data_read(g, "token_embd.weight");
    fl_text_tokenizer *letters = ok ? fl_text_char_tokenizer("abc\n", 4) : NULL;
    fl_data_set *lines = letters ? fl_text_lines(temporary("lines"), letters, 3) : NULL;
    ok = lines && fl_data_get(lines, 1, &sample);
    fl_data_free(lines);
    fl_text_tokenizer_free(letters);
    fl_data_close(g);
    fl_data_free(set);
    fl_text_tokens_free(t);
    fl_text_sequence_free(&a), fl_text_sequence_free(&b[0]), fl_text_sequence_free(&b[1]);
    fl_text_scorer_free(scorer);
    fl_text_decoder_free(r);
    fl_nn_free(m);
    fl_scope_end(&s);
    return ok;
}

TEST(every_request_for_memory_may_fail) {
    test_errors_return();
    fl_set_threads(1);
    REQUIRE(fl_data_replace("test", temporary("lines"), "ab\nc", 4));
    CHECK(use_all()); /* what is made once is there */
    int64_t points = 0, total;
    heap_fail_at(0);
    fl_heap_use(heap_fn, NULL);
    CHECK(use_all());
    total = heap.calls;
    for (int64_t n = 1; n <= total; n += 1 + n / 150, points++) {
        heap_fail_at(n);
        const bool ok = use_all();
        heap_fail_at(0);
        if (!ok && !CHECK_ERROR("out of memory")) printf("  request %d\n", (int)n);
        CHECK_NO_ERROR();
        if (fl_live_tensors() || test_live_buffers()) {
            CHECK(false);
            printf("  request %d leaves something behind\n", (int)n);
            break;
        }
    }
    CHECK(use_all());
    fl_heap_use(NULL, NULL);
    printf("%d of %d requests failed\n", (int)points, (int)total);
    remove(temporary("lines"));
    CHECK(remove(temporary("fault.gguf")) == 0);
    CHECK_NOTHING_LIVES();
}

#ifdef __linux__
TEST(a_large_token_file_stays_on_the_disk) {
    const int64_t n = 5000000000;
    const char *path = temporary("sparse");
    char header[200];
    const int length = snprintf(header + 8, sizeof header - 8,
                                "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[%lld],"
                                "\"data_offsets\":[0,%lld]}}        ",
                                (long long)n, 2 * (long long)n);
    const uint64_t size = (uint64_t)length / 8 * 8; /* spaces at its end may go */
    memcpy(header, &size, 8);
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(header, 1, size + 8, f) == size + 8);
    const bool sparse = ftruncate(fileno(f), (off_t)(size + 8) + 2 * n) == 0;
    fclose(f);
    if (!sparse) {
        remove(path);
        SKIP("no sparse file of 10 GB here");
    }
    fl_text_tokens *t = fl_text_tokens_open(path, .vocabulary = 1);
    if (!CHECK(t)) printf("  %s\n", fl_error());
    fl_data_set *set = fl_text_blocks(t, 1024, .random = true, .size = 300);
    int64_t x[1024];
    for (int64_t i = 0; set && i < 300; i++) CHECK(field(set, i, 0, x) == 1024 && x[7] == 0);
    const int64_t resident = test_resident_bytes();
    printf("%.1f MB resident\n", (double)resident / 1e6);
    CHECK(resident < 64e6);
    fl_data_free(set);
    fl_text_tokens_free(t);
    remove(path);
    CHECK_NOTHING_LIVES();
}
#endif

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
