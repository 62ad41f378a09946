/* test_pretrained.c - wav2vec 2.0 and Whisper of folders; beside transformers: tests/parity_pretrained.py */
#include "../fl.h"
#include "test.h"
#include <sys/stat.h>

static const char *folder(const char *config) {
    static char path[100], file[140];
    snprintf(path, sizeof path, "/tmp/test_pretrained.%d", (int)getpid());
    mkdir(path, 0777);
    snprintf(file, sizeof file, "%s/config.json", path);
    FILE *f = fopen(file, "w");
    fputs(config, f);
    fclose(f);
    return path;
}

static void clear(void) {
    char path[140];
    snprintf(path, sizeof path, "/tmp/test_pretrained.%d/model.safetensors", (int)getpid()), remove(path);
    snprintf(path, sizeof path, "/tmp/test_pretrained.%d/config.json", (int)getpid()), remove(path);
    snprintf(path, sizeof path, "/tmp/test_pretrained.%d", (int)getpid()), remove(path);
}

static void empty_weights(void) {
    char path[140];
    float x = 0;
    snprintf(path, sizeof path, "/tmp/test_pretrained.%d/model.safetensors", (int)getpid());
    fl_scope s = fl_scope_begin();
    const fl_data_named one = {"x", fl_from_host(&x, FL_SHAPE(1), FL_F32)};
    CHECK(fl_data_save_safetensors(path, &one, 1, NULL, 0));
    fl_scope_end(&s);
}

TEST(folders_that_are_wrong) {
    static const struct { const char *config, *text;
    } table[] = {
        {"", "config.json"},
        {"[1]", "config.json"},
        {"{\"model_type\": \"bert\"}", "model_type bert: wav2vec2 whisper"},
        {"{\"hidden_size\": 5}", "model_type is not there"},
        {"{\"model_type\": \"wav2vec2\", \"hidden_size\": -1}", "hidden_size is -1"},
        {"{\"model_type\": \"wav2vec2\", \"conv_dim\": []}", "no conv_dim"},
        {"{\"model_type\": \"wav2vec2\", \"hidden_act\": \"relu\"}", "hidden_act relu"},
        {"{\"model_type\": \"wav2vec2\", \"conv_dim\": [4], \"conv_kernel\": [3]}", "conv_stride.0 is 0"},
        {"{\"model_type\": \"whisper\", \"d_model\": 1e30}", "d_model is 1e+30"},
        {"{\"model_type\": \"whisper\", \"d_model\": 16, \"vocab_size\": 9, \"encoder_layers\": 1, "
         "\"decoder_layers\": 1}",
         "'x'"}};
    CHECK(!fl_speech_pretrained("/nowhere"));
    CHECK_ERROR("/nowhere/config.json");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *path = folder(table[i].config);
        empty_weights();
        CHECK(!fl_speech_pretrained(path));
        if (strcmp(table[i].text, "'x'") != 0) CHECK_ERROR(table[i].text);
        else CHECK(fl_error() != NULL), fl_error_clear();
    }
    clear();
    CHECK_NOTHING_LIVES();
}

/* ---- Whisper, tiny and at random: 100 frames a window, 60 places, times from token 100 on ---- */

enum { WIDE = 16, BANDS = 8, WINDOW = 100, PLACES = 60, VOCABULARY = 180, END = 90, TIMES = 100 };

typedef struct weights {
    fl_data_named all[128];
    char name[128][80];
    int n;
    fl_rng rng;
} weights;

static void put(weights *w, const char *where, const char *name, fl_shape s) {
    const bool norm = strstr(name, "norm.weight") != NULL;
    snprintf(w->name[w->n], sizeof w->name[0], "model.%s.%s", where, name);
    fl_tensor *t = fl_normal(s, norm, norm ? 0.1 : 0.6, FL_F32, &w->rng);
    w->all[w->n] = (fl_data_named){w->name[w->n], t};
    w->n++;
}

static void put_layers(weights *w, const char *half, int64_t places) {
    static const char *const norms[] = {"self_attn_layer_norm", "encoder_attn_layer_norm",
                                        "final_layer_norm"},
                             *const parts[] = {"self_attn", "encoder_attn"},
                             *const lines[] = {"k_proj", "v_proj", "q_proj", "out_proj"};
    const bool cross = *half == 'd';
    char layer[40], name[60];
    snprintf(layer, sizeof layer, "%s.layers.0", half);
    put(w, half, "embed_positions.weight", FL_SHAPE(places, WIDE));
    put(w, half, "layer_norm.weight", FL_SHAPE(WIDE)),
        put(w, half, "layer_norm.bias", FL_SHAPE(WIDE));
    for (int k = 0; k < 3; k++)
        for (int bias = 0; bias < 2 && (cross || k != 1); bias++) {
            snprintf(name, sizeof name, "%s.%s", norms[k], bias ? "bias" : "weight");
            put(w, layer, name, FL_SHAPE(WIDE));
        }
    for (int k = 0; k < 8 && (cross || k < 4); k++)
        for (int bias = 0; bias < 2 && (k % 4 || !bias); bias++) {
            snprintf(name, sizeof name, "%s.%s.%s", parts[k / 4], lines[k % 4],
                     bias ? "bias" : "weight");
            put(w, layer, name, bias ? FL_SHAPE(WIDE) : FL_SHAPE(WIDE, WIDE));
        }
    put(w, layer, "fc1.weight", FL_SHAPE(24, WIDE)), put(w, layer, "fc1.bias", FL_SHAPE(24));
    put(w, layer, "fc2.weight", FL_SHAPE(WIDE, 24)), put(w, layer, "fc2.bias", FL_SHAPE(WIDE));
}

static fl_nn_module *tiny_whisper(uint64_t seed) {
    static weights w;
    char path[200];
    const char *where = folder(
        "{\"model_type\": \"whisper\", \"d_model\": 16, \"encoder_layers\": 1, \"decoder_layers\": "
        "1, "
        "\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, \"encoder_ffn_dim\": 24, "
        "\"decoder_ffn_dim\": 24, \"num_mel_bins\": 8, \"max_source_positions\": 50, "
        "\"max_target_positions\": 60, \"vocab_size\": 180, \"eos_token_id\": 90, "
        "\"decoder_start_token_id\": 91}");
    fl_scope s = fl_scope_begin();
    w.n = 0, w.rng = fl_data_rng(seed, 0, 0);
    put(&w, "encoder", "conv1.weight", FL_SHAPE(WIDE, BANDS, 3)),
        put(&w, "encoder", "conv1.bias", FL_SHAPE(WIDE));
    put(&w, "encoder", "conv2.weight", FL_SHAPE(WIDE, WIDE, 3)),
        put(&w, "encoder", "conv2.bias", FL_SHAPE(WIDE));
    put(&w, "decoder", "embed_tokens.weight", FL_SHAPE(VOCABULARY, WIDE));
    put_layers(&w, "encoder", WINDOW / 2), put_layers(&w, "decoder", PLACES);
    snprintf(path, sizeof path, "%s/model.safetensors", where);
    CHECK(fl_data_save_safetensors(path, w.all, w.n, NULL, 0));
    fl_scope_end(&s);
    fl_nn_module *m = fl_speech_pretrained(where);
    if (!CHECK(m != NULL)) puts(fl_error());
    clear();
    return m;
}

typedef struct heard {
    fl_nn_module *m;
    fl_tensor *x;
    int64_t token[4096], n, segments;
    double end;
    fl_speech_whisper_result last;
} heard;

static bool hear(const fl_speech_whisper_segment *s, void *user) {
    heard *h = user;
    CHECK(s->n > 0 && s->begin < s->end && s->begin >= h->end - 1e-9 && h->n + s->n <= 4096);
    memcpy(h->token + h->n, s->token, (size_t)s->n * sizeof *s->token);
    h->n += s->n, h->end = s->end, h->last = s->window;
    return ++h->segments < 50;
}

/* Time stamps of one window come in pairs but the last, never fall, and the first is within a second. */
static void check_times(const int64_t *t, int64_t n) {
    int64_t newest = TIMES, in_a_row = 0;
    CHECK(n > 0 && t[0] >= TIMES && t[0] <= TIMES + 50);
    for (int64_t i = 0; i < n; i++) {
        in_a_row = t[i] >= TIMES ? in_a_row + 1 : 0;
        CHECK(in_a_row <= 2 && t[i] != TIMES - 1 && t[i] != END);
        if (t[i] >= TIMES) CHECK(t[i] >= newest), newest = t[i];
    }
}

TEST(whisper_goes_window_by_window) {
    int pairs = 0, singles = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = tiny_whisper(seed);
        fl_rng rng = fl_data_rng(seed, 1, 0);
        const int64_t all = 330;
        fl_tensor *x = fl_normal(FL_SHAPE(BANDS, all), 0, 1, FL_F32, &rng);
        static heard h;
        h = (heard){.m = m};
        const fl_speech_whisper_opts o = {
            .times = true, .first_time = TIMES, .least = FL_ZERO, .repeated = FL_ZERO, .most = 20};
        if (!CHECK(fl_speech_whisper_long_opt(m, x, hear, &h, o))) puts(fl_error());
        /* the same by hand: each window said alone, what was said before in front of the prompt */
        int64_t said[PLACES], prompt[PLACES], at = 0, told = 0, windows = 0;
        for (; at < all && windows < 60; windows++) {
            const int64_t frames = all - at < WINDOW ? all - at : WINDOW,
                          tail = told < 29 ? told : 29;
            fl_tensor *part =
                fl_pad(fl_slice(x, 1, at, at + frames, 1), .high = {0, WINDOW - frames});
            fl_speech_whisper_opts each = o;
            prompt[0] = TIMES - 3;
            memcpy(prompt + 1, h.token + told - tail, (size_t)tail * sizeof *prompt);
            prompt[tail + !!tail] = 91;
            each.prompt = prompt, each.n_prompt = tail + !!tail + 1;
            const int64_t n = fl_speech_whisper_opt(m, part, said, PLACES, NULL, each);
            check_times(said, n);
            int64_t kept = 0, by = frames;
            for (int64_t i = 0; i + 1 < n; i++)
                if (said[i] >= TIMES && said[i + 1] >= TIMES) kept = i + 1;
            const bool single = n > 1 && said[n - 1] >= TIMES && said[n - 2] < TIMES;
            pairs += kept && !single, singles += single;
            if (kept && !single)
                by = 2 * (said[kept - 1] - TIMES);
            else
                kept = n;
            for (int64_t i = 0, from = 0; i < kept;
                 i++) { /* segments with text are told, no others */
                if (i + 1 < kept && (said[i] < TIMES || said[i + 1] < TIMES)) continue;
                bool text = false;
                for (int64_t k = from; k <= i; k++) text |= said[k] < END;
                if (text) {
                    CHECK(told + i + 1 - from <= h.n &&
                          !memcmp(h.token + told, said + from,
                                  (size_t)(i + 1 - from) * sizeof *said));
                    told += i + 1 - from;
                }
                from = i + 1;
            }
            at += by;
        }
        CHECK_EQ_INT(told, h.n);
        CHECK(at >= all);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    printf("%d windows moved on to a pair, %d ended with one stamp\n", pairs, singles);
    CHECK(pairs > 0);
    CHECK_NOTHING_LIVES();
}

TEST(whisper_tries_again) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = tiny_whisper(2);
    fl_rng rng = fl_data_rng(2, 1, 0);
    fl_tensor *x = fl_normal(FL_SHAPE(BANDS, 250), 0, 1, FL_F32, &rng),
              *one = fl_slice(x, 1, 0, WINDOW, 1);
    int64_t said[3][PLACES], n[3], special[VOCABULARY - END];
    for (int i = 0; i < VOCABULARY - END; i++) special[i] = END + i;
    static const struct {
        double least, repeated, silent, temperature;
        bool silence;
    } table[] = {{FL_ZERO, FL_ZERO, 0, 0, false},      /* nothing is asked for */
                 {-1e9, 1e9, 0, 0, false},             /* what is asked for is there */
                 {1e-9, FL_ZERO, FL_ZERO, 1, false},   /* no log probability is above 0 */
                 {1e-9, FL_ZERO, 1e-30, 0, true},      /* ... and there is no speech */
                 {FL_ZERO, FL_ZERO, 1e-30, 0, false}}; /* silent, but likely */
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        fl_speech_whisper_result r;
        static heard h;
        h = (heard){.m = m};
        const fl_speech_whisper_opts o = {.first_time = TIMES,
                                          .least = table[k].least,
                                          .repeated = table[k].repeated,
                                          .silent = table[k].silent,
                                          .most = 12,
                                          .suppressed = special,
                                          .n_suppressed = VOCABULARY - END};
        n[0] = fl_speech_whisper_opt(m, one, said[0], PLACES, &r, o);
        CHECK_EQ_INT(n[0], 12);
        CHECK_NEAR(r.temperature, table[k].temperature, 1e-12);
        CHECK_EQ_INT(r.silence, table[k].silence);
        CHECK(r.no_speech > 0 && r.no_speech < 1);
        CHECK(fl_speech_whisper_long_opt(m, x, hear, &h, o));
        CHECK_EQ_INT(h.segments, table[k].silence ? 0 : 3);
        CHECK_NEAR(h.end, table[k].silence ? 0 : 2.5, 1e-9); /* without time stamps windows join */
    }
    fl_speech_whisper_result r;
    const bool zlib = fl_speech_whisper(m, one, said[0], PLACES, &r, .least = FL_ZERO,
                                        .repeated = 1e-9, .most = 12) &&
                      r.repeated > 0;
    if (zlib)
        CHECK_NEAR(r.temperature, 1, 1e-12);
    else
        test__skip("zlib: absent, repetitions are not looked for");
    /* what was said at a temperature is a function of the seed */
    for (int k = 0; k < 3; k++)
        n[k] = fl_speech_whisper(m, one, said[k], PLACES, &r, .least = 1e-9, .silent = FL_ZERO,
                                 .most = 40, .seed = (uint64_t)(k / 2));
    CHECK(n[0] == n[1] && !memcmp(said[0], said[1], (size_t)n[0] * sizeof **said));
    CHECK(n[0] != n[2] || memcmp(said[0], said[2], (size_t)n[0] * sizeof **said));
    CHECK(fl_speech_whisper(m, fl_zeros(FL_SHAPE(BANDS), FL_F32), said[0], PLACES, NULL) == -1);
    CHECK_ERROR("bands [8], not [bands, frames]");
    CHECK(fl_speech_whisper(m, one, said[0], PLACES, NULL, .prompt = said[0], .n_prompt = PLACES) ==
          -1);
    CHECK_ERROR("a prompt of 60 tokens in 60 places");
    CHECK(!fl_speech_whisper_long(m, one, hear, NULL, .prompt = said[0], .n_prompt = 30));
    CHECK_ERROR("a prompt of 30 tokens in 60 places");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Beside transformers: the folder has input.safetensors, whose `scores` and `tokens` are to be met. */
TEST(transformers_agree) {
    const char *path = getenv("PRETRAINED"), *out = getenv("PRETRAINED_OUT");
    char file[600];
    if (!path) {
        test__skip("PRETRAINED is not set (make parity-pretrained)");
        return;
    }
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_speech_pretrained(path);
    snprintf(file, sizeof file, "%s/input.safetensors", path);
    fl_data_file *f = fl_data_open_safetensors(file);
    if (!CHECK(m && f)) {
        puts(fl_error());
        return;
    }
    fl_no_grad(true);
    fl_tensor *x = fl_data_read(f, "x"), *want = fl_data_read(f, "scores"),
              *tokens = fl_data_find(f, "tokens") < 0 ? NULL : fl_data_read(f, "tokens");
    fl_var *y = tokens ? fl_speech_whisper_scores(m, fl_speech_whisper_encode(m, fv_const(x)), tokens)
                       : fl_speech_wav2vec2(m, fv_const(x), false);
    if (CHECK(y && want)) {
        const double off = fl_item(fl_amax(fl_abs(fl_sub(fv_value(y), want)), FL_ALL_AXES));
        printf("%s: %s, off by %.2g\n", path, FL_SHAPE_TEXT(want), off);
        CHECK(off <= 1e-4);
    } else puts(fl_error());
    for (int times = 0; tokens && times < 2; times++) {
        fl_tensor *said = fl_data_read(f, times ? "timed" : "said"),
                  *prompt = fl_data_read(f, times ? "timed_prompt" : "prompt");
        int64_t got[64];
        fl_speech_whisper_result r;
        const int64_t n =
            fl_speech_whisper(m, fl_select(x, 0, 0), got, 64, &r, .prompt = fl_data(prompt),
                              .n_prompt = prompt->shape[0], .most = said->shape[0], .times = times,
                              .first_time = 100, .least = FL_ZERO, .repeated = FL_ZERO);
        int64_t same = 0;
        while (same < n && same < said->shape[0] && got[same] == ((int64_t *)fl_data(said))[same]) same++;
        printf("%lld tokens, %lld of %lld the same\n", (long long)n, (long long)same,
               (long long)said->shape[0]);
        CHECK_EQ_INT(n, said->shape[0]);
        CHECK_EQ_INT(same, n);
    }
    if (out) CHECK(fl_speech_pretrained_save(m, out));
    fl_data_close(f);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_on_error(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
