/* test_pretrained.c - wav2vec 2.0 and Whisper of folders; beside transformers: tests/parity_pretrained.py */
#include "../fl_all.h"
#include "paged.h"
#include <sys/stat.h>

static const char *folder(const char *config) {
    static char path[128];
    snprintf(path, sizeof path, "%s", test_file("model"));
    mkdir(path, 0700);
    FILE *f = fopen(test_file("model/config.json"), "w");
    fputs(config, f);
    fclose(f);
    return path;
}

static void clear(void) {
    remove(test_file("model/model.safetensors"));
    remove(test_file("model/config.json"));
    remove(test_file("model"));
}

static void empty_weights(void) {
    float x = 0;
    fl_scope s = fl_scope_begin();
    const fl_data_named_tensor one = {"x", fl_from_host(&x, FL_SHAPE(1), FL_F32)};
    CHECK(fl_data_save_safetensors(test_file("model/model.safetensors"), &one, 1, NULL, 0));
    fl_scope_end(&s);
}

TEST(folders_that_are_wrong) {
    static const struct { const char *config, *text;
    } table[] = {
        {"", "config.json"},
        {"[1]", "config.json"},
        {"{\"model_type\": \"bert\"}", "unsupported model_type 'bert'; known: wav2vec2, whisper"},
        {"{\"hidden_size\": 5}", "unsupported model_type '(missing)'"},
        {"{\"model_type\": \"wav2vec2\", \"hidden_size\": -1}", "2^24], got -1"},
        {"{\"model_type\": \"wav2vec2\", \"conv_dim\": []}", "conv_dim is missing"},
        {"{\"model_type\": \"wav2vec2\", \"hidden_act\": \"relu\"}", "unsupported hidden_act 'relu'"},
        {"{\"model_type\": \"wav2vec2\", \"conv_dim\": [4], \"conv_kernel\": [3]}",
         "conv_stride.0 must be an"},
        {"{\"model_type\": \"whisper\", \"d_model\": 1e30}", "2^24], got 1e+30"},
        {"{\"model_type\": \"whisper\", \"d_model\": 16, \"vocab_size\": 9, \"encoder_layers\": 1, "
         "\"decoder_layers\": 1}",
         "model.safetensors: no tensor 'model.encoder.conv1.weight'"}};
    CHECK(!fl_speech_pretrained("/nowhere"));
    CHECK_ERROR("/nowhere/config.json");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *path = folder(table[i].config);
        empty_weights();
        CHECK(!fl_speech_pretrained(path));
        CHECK_ERROR(table[i].text);
    }
    clear();
    CHECK_NOTHING_LIVES();
}

/* ---- Whisper, tiny and at random: 100 frames a window, 60 places, times from token 100 on ---- */

enum { WIDE = 16, BANDS = 8, WINDOW = 100, PLACES = 60, VOCABULARY = 180, END = 90, TIMES = 100 };

typedef struct weights {
    fl_data_named_tensor all[128];
    char name[128][80];
    int n;
    fl_rng rng;
} weights;

static void put(weights *w, const char *where, const char *name, fl_shape s) {
    const bool norm = strstr(name, "norm.weight") != NULL;
    snprintf(w->name[w->n], sizeof w->name[0], "model.%s.%s", where, name);
    fl_tensor *t = fl_normal(s, norm, norm ? 0.1 : 0.6, FL_F32, &w->rng);
    w->all[w->n] = (fl_data_named_tensor){w->name[w->n], t};
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

#define WHISPER \
    "{\"model_type\": \"whisper\", \"d_model\": 16, \"encoder_layers\": 1, \"decoder_layers\": 1, " \
    "\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, \"encoder_ffn_dim\": 24, " \
    "\"decoder_ffn_dim\": 24, \"num_mel_bins\": 8, \"max_source_positions\": 50, " \
    "\"max_target_positions\": 60, \"vocab_size\": 180, \"eos_token_id\": 90, \"decoder_start_token_id\": 91}"

/* The model of a folder of such weights; NULL after an error. */
static fl_nn_module *whisper(const char *config, uint64_t seed) {
    static weights w;
    char path[200];
    const char *where = folder(config);
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
    clear();
    return m;
}

static fl_nn_module *tiny_whisper(uint64_t seed) {
    fl_nn_module *m = whisper(WHISPER, seed);
    if (!CHECK(m != NULL)) puts(fl_error());
    return m;
}

/* Sizes of the config that the file's tensors have not: the first that is looked for is named. */
TEST(configs_that_the_weights_do_not_fit) {
    static const struct { const char *from, *to, *error;
    } table[] = {
        {"\"d_model\": 16", "\"d_model\": 32", "conv1.weight has shape [16, 8, 3], expected [32, 8, 3]"},
        {"\"num_mel_bins\": 8", "\"num_mel_bins\": 9", "[16, 8, 3], expected [16, 9, 3] by config.json"},
        {"\"vocab_size\": 180", "\"vocab_size\": 9999999", "embed_tokens.weight has shape [180, 16]"},
        {"source_positions\": 50", "source_positions\": 51", "encoder.embed_positions.weight has shape [50"},
        {"target_positions\": 60", "target_positions\": 61", "decoder.embed_positions.weight has shape [60"},
        {"encoder_ffn_dim\": 24", "encoder_ffn_dim\": 25",
         "encoder.layers.0.fc1.weight has shape [24, 16], expected [25, 16]"},
        {"decoder_ffn_dim\": 24", "decoder_ffn_dim\": 23", "decoder.layers.0.fc1.weight has shape [24"},
        {"encoder_layers\": 1", "encoder_layers\": 9999", "'model.encoder.layers.1.self_attn.k_proj.w"},
        {"decoder_layers\": 1", "decoder_layers\": 2", "'model.decoder.layers.1.self_attn.k_proj.w"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char config[700];
        const char *at = strstr(WHISPER, table[i].from);
        REQUIRE(at);
        snprintf(config, sizeof config, "%.*s%s%s", (int)(at - WHISPER), WHISPER, table[i].to,
                 at + strlen(table[i].from));
        CHECK(!whisper(config, 1));
        CHECK_ERROR(table[i].error);
    }
    CHECK_NOTHING_LIVES();
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

PAGED(whisper_out_of_memory) {
    fl_nn_module *m = tiny_whisper(2);
    fl_rng rng = fl_data_rng(2, 1, 0);
    int64_t said[PLACES];
    fl_speech_whisper_result r;
    fl_tensor *x = away(fl_normal(FL_SHAPE(BANDS, WINDOW), 0, 1, FL_F32, &rng));
    const int64_t n =
        fl_speech_whisper(m, x, said, PLACES, &r, .times = true, .first_time = TIMES, .most = 12);
    CHECK(n > 0);
    put_bytes(said, (size_t)n * sizeof *said), put_number(r.mean), put_number(r.no_speech);
    fl_nn_free(m);
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
    /* Tokens that are never said, and not at first: of numbers that are no tokens nothing is hidden. */
    const int64_t odd[] = {-1, VOCABULARY, VOCABULARY - 1};
    n[0] = fl_speech_whisper(m, one, said[0], PLACES, NULL, .least = FL_ZERO, .repeated = FL_ZERO, .most = 12,
                             .suppressed = odd, .n_suppressed = 3, .suppressed_first = odd,
                             .n_suppressed_first = 3);
    CHECK(n[0] > 1);
    const int64_t first = said[0][0], second = said[0][1];
    n[1] = fl_speech_whisper(m, one, said[1], PLACES, NULL, .least = FL_ZERO, .repeated = FL_ZERO, .most = 12,
                             .suppressed_first = &first, .n_suppressed_first = 1);
    CHECK(n[1] > 0 && said[1][0] != first);
    n[1] = fl_speech_whisper(m, one, said[1], PLACES, NULL, .least = FL_ZERO, .repeated = FL_ZERO, .most = 12,
                             .suppressed = &second, .n_suppressed = 1);
    for (int64_t i = 0; i < n[1]; i++) CHECK(said[1][i] != second);
    CHECK(n[1] > 0 && (said[1][0] == first || first == second));
    CHECK(fl_speech_whisper(m, fl_zeros(FL_SHAPE(BANDS), FL_F32), said[0], PLACES, NULL) == -1);
    CHECK_ERROR("got features [8], expected [bands, frames]");
    CHECK(fl_speech_whisper(m, one, said[0], PLACES, NULL, .prompt = said[0], .n_prompt = PLACES) ==
          -1);
    CHECK_ERROR("a prompt of 60 tokens");
    CHECK(!fl_speech_whisper_long(m, one, hear, NULL, .prompt = said[0], .n_prompt = 30));
    CHECK_ERROR("a prompt of 30 tokens");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- wav2vec 2.0, tiny and at random, beside the same in f64 with plain loops ---- */

enum {
    W_CONVS = 3,
    W_DIM = 12,
    W_HIDDEN = 20,
    W_HEADS = 2,
    W_LAYERS = 2,
    W_LABELS = 7,
    W_GROUPS = 3,
    W_PLACES = 6
};
static const int conv_dim[W_CONVS] = {6, 8, 10}, conv_kernel[W_CONVS] = {5, 3, 2},
                 conv_stride[W_CONVS] = {3, 2, 1};

/* A tensor of the weights, or NULL; a format %.0d leaves out the 0 of what is there once. */
static fl_tensor *tensor_of(const weights *w, const char *format, const char *part, int i) {
    char name[80];
    snprintf(name, sizeof name, format, i, part);
    for (int k = 0; k < w->n; k++)
        if (!strcmp(w->name[k], name)) return (fl_tensor *)w->all[k].tensor;
    return NULL;
}

static void put_named(weights *w, const char *name, fl_shape s) {
    const bool gain = strstr(name, "norm.weight") || strstr(name, "weight_g");
    snprintf(w->name[w->n], sizeof w->name[0], "%s", name);
    fl_tensor *t = fl_normal(s, gain, gain ? 0.2 : 0.4, FL_F32, &w->rng);
    w->all[w->n] = (fl_data_named_tensor){w->name[w->n], t};
    w->n++;
}

static void put_pair(weights *w, const char *name, fl_shape s, bool bias) {
    char text[80];
    snprintf(text, sizeof text, "%s.weight", name), put_named(w, text, s);
    snprintf(text, sizeof text, "%s.bias", name);
    if (bias) put_named(w, text, FL_SHAPE(s.dim[0]));
}

/* y[t][d] of x: (x - mean) / deviation * gain + bias over d. */
static void norm_rows(const fl_tensor *gain, const fl_tensor *bias, double eps, int t, int d, double *x) {
    for (double *row = x; row < x + t * d; row += d) {
        double mean = 0, variance = 0;
        for (int i = 0; i < d; i++) mean += row[i] / d;
        for (int i = 0; i < d; i++) variance += (row[i] - mean) * (row[i] - mean) / d;
        for (int i = 0; i < d; i++) {
            row[i] = (row[i] - mean) / sqrt(variance + eps);
            if (gain) row[i] = row[i] * ((float *)fl_data(gain))[i] + ((float *)fl_data(bias))[i];
        }
    }
}

static double gelu(double x) { return x / 2 * (1 + erf(x / sqrt(2))); }

/* y[t][out] = x[t][in] w^T + b */
static void linear(const weights *w, const char *format, int layer, int t, int in, int out, const double *x,
                   double *y) {
    const float *a = fl_data(tensor_of(w, format, "weight", layer)),
                *b = fl_data(tensor_of(w, format, "bias", layer));
    for (int k = 0; k < t; k++)
        for (int o = 0; o < out; o++) {
            y[k * out + o] = b[o];
            for (int i = 0; i < in; i++) y[k * out + o] += a[o * in + i] * x[k * in + i];
        }
}

static void norm(const weights *w, const char *format, int layer, int t, int d, double *x) {
    norm_rows(tensor_of(w, format, "weight", layer), tensor_of(w, format, "bias", layer), 1e-5, t, d, x);
}

#define ATTENTION "wav2vec2.encoder.layers.%d.attention."
static void attend(const weights *w, int layer, int t, const double *x, double *y) {
    static double q[600], k[600], v[600], sum[600];
    const int d = W_DIM, each = W_DIM / W_HEADS;
    linear(w, ATTENTION "q_proj.%s", layer, t, d, d, x, q);
    linear(w, ATTENTION "k_proj.%s", layer, t, d, d, x, k);
    linear(w, ATTENTION "v_proj.%s", layer, t, d, d, x, v);
    for (int head = 0; head < W_HEADS; head++)
        for (int i = 0; i < t; i++) {
            double p[64], all = 0;
            for (int j = 0; j < t; j++) {
                double dot = 0;
                for (int e = head * each; e < (head + 1) * each; e++) dot += q[i * d + e] * k[j * d + e];
                all += p[j] = exp(dot / sqrt(each));
            }
            for (int e = head * each; e < (head + 1) * each; e++) {
                sum[i * d + e] = 0;
                for (int j = 0; j < t; j++) sum[i * d + e] += p[j] / all * v[j * d + e];
            }
        }
    linear(w, ATTENTION "out_proj.%s", layer, t, d, d, sum, y);
}

/* Scores [frames][W_LABELS] of n samples x; how many frames. */
static int wav2vec_reference(const weights *w, int group, int stable, bool raw, const float *sound, int n,
                             double *out) {
    static double x[2000], y[2000], hidden[2000];
    int channels = 1, t = n;
    for (int i = 0; i < n; i++) x[i] = sound[i];
    if (!raw) norm_rows(NULL, NULL, 1e-7, 1, n, x);
    for (int layer = 0; layer < W_CONVS; layer++) { /* x [t][channels] */
        const int wide = conv_dim[layer], taps = conv_kernel[layer], stride = conv_stride[layer];
        const char *conv = "wav2vec2.feature_extractor.conv_layers.%d.conv.%s",
                   *scale = "wav2vec2.feature_extractor.conv_layers.%d.layer_norm.%s";
        const fl_tensor *a = tensor_of(w, conv, "weight", layer), *b = tensor_of(w, conv, "bias", layer);
        const fl_tensor *g = tensor_of(w, scale, "weight", layer), *c = tensor_of(w, scale, "bias", layer);
        const int after = (t - taps) / stride + 1;
        for (int k = 0; k < after; k++)
            for (int o = 0; o < wide; o++) {
                double sum = b ? ((float *)fl_data(b))[o] : 0;
                for (int i = 0; i < channels; i++)
                    for (int j = 0; j < taps; j++)
                        sum += ((float *)fl_data(a))[(o * channels + i) * taps + j] *
                               x[(k * stride + j) * channels + i];
                y[k * wide + o] = sum;
            }
        if (!group) norm_rows(g, c, 1e-5, after, wide, y);
        for (int o = 0; group && !layer && o < wide; o++) { /* each channel over time */
            double mean = 0, variance = 0;
            for (int k = 0; k < after; k++) mean += y[k * wide + o] / after;
            for (int k = 0; k < after; k++) variance += pow(y[k * wide + o] - mean, 2) / after;
            for (int k = 0; k < after; k++)
                y[k * wide + o] = (y[k * wide + o] - mean) / sqrt(variance + 1e-5) *
                                      ((float *)fl_data(g))[o] + ((float *)fl_data(c))[o];
        }
        for (int i = 0; i < after * wide; i++) x[i] = gelu(y[i]);
        channels = wide, t = after;
    }
    norm(w, "wav2vec2.feature_projection.layer_norm.%.0d%s", 0, t, channels, x);
    linear(w, "wav2vec2.feature_projection.projection.%.0d%s", 0, t, channels, W_DIM, x, y);
    /* Places: a grouped convolution whose weight is normed for each tap. */
    const char *old = "wav2vec2.encoder.pos_conv_embed.conv.%.0d%s",
               *now = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.%.0d%s";
    const fl_tensor *g = tensor_of(w, old, "weight_g", 0), *v = tensor_of(w, old, "weight_v", 0);
    if (!g) g = tensor_of(w, now, "original0", 0), v = tensor_of(w, now, "original1", 0);
    const fl_tensor *bias = tensor_of(w, old, "bias", 0);
    const int each = W_DIM / W_GROUPS;
    double length[W_PLACES] = {0};
    for (int i = 0; i < W_DIM * each * W_PLACES; i++)
        length[i % W_PLACES] += pow(((float *)fl_data(v))[i], 2);
    for (int k = 0; k < t; k++)
        for (int o = 0; o < W_DIM; o++) {
            double sum = ((float *)fl_data(bias))[o];
            for (int i = 0; i < each; i++)
                for (int j = 0; j < W_PLACES; j++) {
                    const int at = k + j - W_PLACES / 2;
                    if (at < 0 || at >= t) continue;
                    sum += ((float *)fl_data(v))[(o * each + i) * W_PLACES + j] / sqrt(length[j]) *
                           ((float *)fl_data(g))[j] * y[at * W_DIM + o / each * each + i];
                }
            x[k * W_DIM + o] = y[k * W_DIM + o] + gelu(sum);
        }
    if (!stable) norm(w, "wav2vec2.encoder.layer_norm.%.0d%s", 0, t, W_DIM, x);
    for (int layer = 0; layer < W_LAYERS; layer++) {
        static double in[600], part[600];
        memcpy(in, x, (size_t)(t * W_DIM) * sizeof *x);
        if (stable) norm(w, "wav2vec2.encoder.layers.%d.layer_norm.%s", layer, t, W_DIM, in);
        attend(w, layer, t, in, part);
        for (int i = 0; i < t * W_DIM; i++) x[i] += part[i];
        if (!stable) norm(w, "wav2vec2.encoder.layers.%d.layer_norm.%s", layer, t, W_DIM, x);
        memcpy(in, x, (size_t)(t * W_DIM) * sizeof *x);
        if (stable) norm(w, "wav2vec2.encoder.layers.%d.final_layer_norm.%s", layer, t, W_DIM, in);
        linear(w, "wav2vec2.encoder.layers.%d.feed_forward.intermediate_dense.%s", layer, t, W_DIM, W_HIDDEN,
               in, hidden);
        for (int i = 0; i < t * W_HIDDEN; i++) hidden[i] = gelu(hidden[i]);
        linear(w, "wav2vec2.encoder.layers.%d.feed_forward.output_dense.%s", layer, t, W_HIDDEN, W_DIM,
               hidden, part);
        for (int i = 0; i < t * W_DIM; i++) x[i] += part[i];
        if (!stable) norm(w, "wav2vec2.encoder.layers.%d.final_layer_norm.%s", layer, t, W_DIM, x);
    }
    if (stable) norm(w, "wav2vec2.encoder.layer_norm.%.0d%s", 0, t, W_DIM, x);
    linear(w, "lm_head.%.0d%s", 0, t, W_DIM, W_LABELS, x, out);
    return t;
}

static void put_wav2vec(weights *w, int group, bool bias, bool old) {
    char name[80];
    for (int k = 0; k < W_CONVS; k++) {
        snprintf(name, sizeof name, "wav2vec2.feature_extractor.conv_layers.%d.conv", k);
        put_pair(w, name, FL_SHAPE(conv_dim[k], k ? conv_dim[k - 1] : 1, conv_kernel[k]), bias);
        snprintf(name, sizeof name, "wav2vec2.feature_extractor.conv_layers.%d.layer_norm", k);
        if (!group || !k) put_pair(w, name, FL_SHAPE(conv_dim[k]), true);
    }
    put_pair(w, "wav2vec2.feature_projection.layer_norm", FL_SHAPE(conv_dim[W_CONVS - 1]), true);
    put_pair(w, "wav2vec2.feature_projection.projection", FL_SHAPE(W_DIM, conv_dim[W_CONVS - 1]), true);
    put_pair(w, "wav2vec2.encoder.layer_norm", FL_SHAPE(W_DIM), true);
    put_named(w, "wav2vec2.encoder.pos_conv_embed.conv.bias", FL_SHAPE(W_DIM));
    put_named(w, old ? "wav2vec2.encoder.pos_conv_embed.conv.weight_g"
                     : "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0",
              FL_SHAPE(1, 1, W_PLACES));
    put_named(w, old ? "wav2vec2.encoder.pos_conv_embed.conv.weight_v"
                     : "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original1",
              FL_SHAPE(W_DIM, W_DIM / W_GROUPS, W_PLACES));
    if (old) put_named(w, "wav2vec2.masked_spec_embed", FL_SHAPE(W_DIM));
    static const struct { const char *name; int out, in; } part[] = {
        {"attention.q_proj", W_DIM, W_DIM}, {"attention.k_proj", W_DIM, W_DIM},
        {"attention.v_proj", W_DIM, W_DIM}, {"attention.out_proj", W_DIM, W_DIM},
        {"feed_forward.intermediate_dense", W_HIDDEN, W_DIM}, {"feed_forward.output_dense", W_DIM, W_HIDDEN},
        {"layer_norm", W_DIM, 0}, {"final_layer_norm", W_DIM, 0}};
    for (int k = 0; k < W_LAYERS * 8; k++) {
        snprintf(name, sizeof name, "wav2vec2.encoder.layers.%d.%s", k / 8, part[k % 8].name);
        put_pair(w, name, part[k % 8].in ? FL_SHAPE(part[k % 8].out, part[k % 8].in) : FL_SHAPE(W_DIM), true);
    }
    put_pair(w, "lm_head", FL_SHAPE(W_LABELS, W_DIM), true);
}

static bool same_scores(fl_nn_module *a, fl_nn_module *b, fl_tensor *x) {
    fl_var *y[] = {fl_speech_wav2vec2(a, fv_const(x), false), fl_speech_wav2vec2(b, fv_const(x), false)};
    return y[0] && y[1] && fl_same_shape(fv_value(y[0]), fv_value(y[1])) &&
           fl_item(fl_amax(fl_abs(fl_sub(fv_value(y[0]), fv_value(y[1]))), FL_ALL_AXES)) == 0;
}

TEST(wav2vec_is_the_plain_loops) {
    enum { N = 131 };
    static weights w;
    for (int k = 0; k < 8; k++) {
        const int group = k & 1, stable = k >> 1 & 1, old = k >> 2;
        char config[700];
        fl_scope s = fl_scope_begin();
        snprintf(config, sizeof config,
                 "{\"model_type\": \"wav2vec2\", \"hidden_size\": 12, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 2, \"intermediate_size\": 20, \"vocab_size\": 7, "
                 "\"hidden_act\": \"gelu\", "
                 "\"conv_dim\": [6, 8, 10], \"conv_kernel\": [5, 3, 2], \"conv_stride\": [3, 2, 1], "
                 "\"conv_bias\": %s, \"feat_extract_norm\": \"%s\", \"do_stable_layer_norm\": %s, "
                 "\"num_conv_pos_embeddings\": 6, \"num_conv_pos_embedding_groups\": 3, "
                 "\"layer_norm_eps\": 1e-5}",
                 k % 3 ? "true" : "false", group ? "group" : "layer", stable ? "true" : "false");
        const char *where = folder(config);
        w.n = 0, w.rng = fl_data_rng(11, 0, k);
        put_wav2vec(&w, group, k % 3 != 0, old);
        CHECK(fl_data_save_safetensors(test_file("model/model.safetensors"), w.all, w.n, NULL, 0));
        fl_nn_module *m = fl_speech_pretrained(where);
        if (!CHECK(m != NULL)) puts(fl_error());
        REQUIRE(m);
        fl_tensor *x = fl_uniform(FL_SHAPE(2, N), -0.3, 0.5, FL_F32, &w.rng);
        for (int raw = 0; raw < 2; raw++) {
            double want[64 * W_LABELS], worst = 0;
            fl_var *y = fl_speech_wav2vec2(m, fv_const(x), raw);
            REQUIRE(y);
            for (int i = 0; i < 2; i++) {
                const int t = wav2vec_reference(&w, group, stable, raw, (float *)fl_data(x) + i * N, N, want);
                CHECK(fv_value(y)->shape[1] == t && fv_value(y)->shape[2] == W_LABELS);
                const float *got = (const float *)fl_data(fl_contiguous(fv_value(y))) + i * t * W_LABELS;
                for (int j = 0; j < t * W_LABELS; j++) worst = fmax(worst, fabs(got[j] - want[j]));
            }
            if (!CHECK(worst < 1e-4)) printf("kind %d, raw %d: off by %g\n", k, raw, worst);
        }
        /* It comes back as it was saved, and has other labels for fine-tuning. */
        clear();
        CHECK(mkdir(where, 0700) == 0 && fl_speech_pretrained_save(m, where));
        fl_nn_module *again = fl_speech_pretrained(where);
        CHECK(again && same_scores(m, again, x));
        CHECK(fl_speech_wav2vec2_labels(m, 4, &w.rng));
        fl_var *y = fl_speech_wav2vec2(m, fv_const(x), false);
        CHECK(y && fv_value(y)->shape[2] == 4);
        CHECK(fl_speech_pretrained_save(m, where));
        fl_nn_free(again);
        again = fl_speech_pretrained(where);
        CHECK(again && same_scores(m, again, x));
        fl_nn_free(again);
        CHECK(!fl_speech_wav2vec2(m, fv_const(fl_select(x, 0, 0)), false));
        CHECK_ERROR("fl_speech_wav2vec2: got sounds [131], expected [n, t]");
        fl_nn_free(m);
        clear();
        fl_scope_end(&s);
    }
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
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
