/* test_vad.c - the detector of speech: on a recording, in pieces, with bad weights; stretches by hand */
#include "../fl_all.h"
#include "paged.h"

enum { CHUNK = FL_SPEECH_VAD_CHUNK, MOST = 120 };

/* ---- a detector of weights of our own, beside the same in f64 with plain loops ---- */

typedef struct layer {
    const char *weight, *bias;
    int out, in, taps;
    double scale;
} layer;
enum { STFT, CONV1, CONV2, CONV3, CONV4, INPUT, STATE, LAST, LAYERS };
static const layer layers[LAYERS] = {{"stft_conv.weight", NULL, 258, 1, 256, 0.1},
                                     {"conv1.weight", "conv1.bias", 128, 129, 3, 0.1},
                                     {"conv2.weight", "conv2.bias", 64, 128, 3, 0.1},
                                     {"conv3.weight", "conv3.bias", 64, 64, 3, 0.1},
                                     {"conv4.weight", "conv4.bias", 128, 64, 3, 0.1},
                                     {"lstm_cell.weight_ih", "lstm_cell.bias_ih", 512, 128, 0, 0.2},
                                     {"lstm_cell.weight_hh", "lstm_cell.bias_hh", 512, 128, 0, 0.1},
                                     {"final_conv.weight", "final_conv.bias", 1, 128, 1, 0.5}};
static const float *weight[LAYERS], *bias[LAYERS];

/* Random weights in a file; they belong to the scope. */
static const char *save_weights(void) {
    fl_data_named_tensor t[2 * LAYERS];
    fl_rng rng = fl_data_rng(3, 0, 0);
    int n = 0;
    for (int k = 0; k < LAYERS; k++) {
        const layer *l = &layers[k];
        const fl_shape shape = l->taps ? FL_SHAPE(l->out, l->in, l->taps) : FL_SHAPE(l->out, l->in);
        t[n++] = (fl_data_named_tensor){l->weight, fl_normal(shape, 0, l->scale, FL_F32, &rng)};
        weight[k] = fl_data(t[n - 1].tensor);
        if (!l->bias) continue;
        t[n++] = (fl_data_named_tensor){l->bias, fl_normal(FL_SHAPE(l->out), 0, 0.1, FL_F32, &rng)};
        bias[k] = fl_data(t[n - 1].tensor);
    }
    CHECK(fl_data_save_safetensors(test_file("vad.safetensors"), t, n, NULL, 0));
    return test_file("vad.safetensors");
}

/* y [out][*frames] of x [in][*frames], with zeros around it. */
static void convolve(int k, int stride, const double *x, int *frames, double *y) {
    const layer *l = &layers[k];
    const int after = (*frames - 1) / stride + 1;
    for (int o = 0; o < l->out; o++)
        for (int t = 0; t < after; t++) {
            double sum = bias[k][o];
            for (int i = 0; i < l->in; i++)
                for (int j = 0; j < 3; j++) {
                    const int at = t * stride + j - 1;
                    if (at >= 0 && at < *frames)
                        sum += weight[k][(o * l->in + i) * 3 + j] * x[i * *frames + at];
                }
            y[o * after + t] = sum > 0 ? sum : 0;
        }
    *frames = after;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* The probability of a chunk, of which x[-64] to x[-1] stand before it. h and c are the cell's state. */
static double reference(const double *x, double h[128], double c[128]) {
    double in[640], a[258 * 8], b[258 * 8], gate[512], y = bias[LAST][0];
    int frames = 4;
    for (int i = 0; i < 576; i++) in[i] = x[i - 64];
    for (int i = 0; i < 64; i++) in[576 + i] = in[574 - i]; /* mirrored */
    for (int f = 0; f < 129; f++)
        for (int t = 0; t < 4; t++) {
            double re = 0, im = 0;
            for (int i = 0; i < 256; i++) {
                re += weight[STFT][f * 256 + i] * in[128 * t + i];
                im += weight[STFT][(129 + f) * 256 + i] * in[128 * t + i];
            }
            a[f * 4 + t] = sqrt(re * re + im * im);
        }
    convolve(CONV1, 1, a, &frames, b);
    convolve(CONV2, 2, b, &frames, a);
    convolve(CONV3, 2, a, &frames, b);
    convolve(CONV4, 1, b, &frames, a);
    CHECK_EQ_INT(frames, 1);
    for (int o = 0; o < 512; o++) {
        gate[o] = bias[INPUT][o] + bias[STATE][o];
        for (int i = 0; i < 128; i++)
            gate[o] += weight[INPUT][o * 128 + i] * a[i] + weight[STATE][o * 128 + i] * h[i];
    }
    for (int i = 0; i < 128; i++) {
        c[i] = sigmoid(gate[128 + i]) * c[i] + sigmoid(gate[i]) * tanh(gate[256 + i]);
        h[i] = sigmoid(gate[384 + i]) * tanh(c[i]);
        y += weight[LAST][i] * (h[i] > 0 ? h[i] : 0);
    }
    return sigmoid(y);
}

/* In one piece and in many, twice: each sound begins anew. The last chunk is filled up with zeros. */
static void check_pieces(fl_speech_vad *v, const float *sound, int64_t samples, float *whole) {
    const int64_t n = (samples + CHUNK - 1) / CHUNK;
    const float *p;
    CHECK_EQ_INT(fl_speech_vad_push(v, sound, samples, true, &p), n);
    memcpy(whole, p, (size_t)n * sizeof *p);
    for (int64_t round = 0; round < 2; round++) {
        double worst = 0;
        int64_t got = 0;
        for (int64_t at = 0, m = 1; at < samples; at += m, m = m * 7 % 3001 + 1) {
            if (m > samples - at) m = samples - at;
            const int64_t k = fl_speech_vad_push(v, sound + at, m, at + m == samples, &p);
            CHECK_EQ_INT(k, at + m == samples ? n - got : (at + m) / CHUNK - got);
            for (int64_t i = 0; i < k; i++) worst = fmax(worst, fabs((double)p[i] - (double)whole[got + i]));
            got += k;
        }
        CHECK_EQ_INT(got, n);
        CHECK(worst < 1e-5);
    }
    CHECK_EQ_INT(fl_speech_vad_push(v, NULL, 0, true, &p), 0);
}

TEST(the_network_is_the_plain_loops) {
    enum { SAMPLES = 11 * CHUNK + 100, BEFORE = 64 };
    static float sound[SAMPLES];
    static double wide[BEFORE + 12 * CHUNK];
    double h[128] = {0}, c[128] = {0}, low = 1, high = 0;
    float whole[MOST];
    uint64_t seed = 1;
    fl_scope s = fl_scope_begin();
    fl_speech_vad *v = fl_speech_vad_load(save_weights());
    REQUIRE(v);
    for (int i = 0; i < SAMPLES; i++) { /* bursts of tones in noise */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double loud = i / 1500 % 2 ? 0.5 : 0.01;
        sound[i] = (float)(loud * sin(0.1 * i) + 0.02 * ((double)(seed >> 11) * 0x1p-53 - 0.5));
        wide[BEFORE + i] = sound[i];
    }
    check_pieces(v, sound, SAMPLES, whole);
    for (int k = 0; k < 12; k++) {
        const double want = reference(wide + BEFORE + k * CHUNK, h, c);
        CHECK_NEAR(whole[k], want, 1e-4);
        low = fmin(low, want), high = fmax(high, want);
    }
    CHECK(high - low > 0.05); /* the sound matters */
    fl_speech_vad_free(v);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

PAGED(weights_and_state_out_of_memory) {
    static float sound[5 * CHUNK];
    const float *p;
    for (int i = 0; i < 5 * CHUNK; i++) sound[i] = (float)sin(0.1 * i);
    fl_speech_vad *v = fl_speech_vad_load(save_weights());
    if (!CHECK(v != NULL)) return;
    for (int k = 0; k < 2; k++) {
        page_out_all();
        const int64_t n = fl_speech_vad_push(v, sound + 2 * k * CHUNK, (2 + k) * CHUNK, k, &p);
        CHECK_EQ_INT(n, 2 + k);
        put_bytes(p, (size_t)n * sizeof *p);
    }
    fl_speech_vad_free(v);
}

/* Silero's weights and a recording, where they are. */
TEST(speech_is_where_it_is) {
    char path[2][300];
    snprintf(path[0], sizeof path[0], "%s/weights/silero_vad/silero_vad_16k.safetensors", test_data_dir());
    snprintf(path[1], sizeof path[1], "%s/speech/jfk/jfk_16k.wav", test_data_dir());
    fl_scope s = fl_scope_begin();
    fl_speech_vad *v = fl_speech_vad_load(path[0]);
    fl_tensor *x = v ? fl_speech_load_audio(path[1], .want_rate = 16000, .channel = -1) : NULL;
    if (x) {
        enum { SAMPLES = 60000, N = SAMPLES / CHUNK };
        const float *p;
        float whole[MOST], silence[5120] = {0};
        check_pieces(v, fl_data(x), SAMPLES, whole);
        fl_speech_segment part[MOST];
        const int64_t parts = fl_speech_segments(whole, N, part);
        CHECK(parts >= 1 && part[0].begin > 3000 && part[0].begin < 7000 && part[0].end > 30000);
        CHECK_EQ_INT(fl_speech_vad_push(v, silence, 5120, true, &p), 10);
        for (int i = 2; i < 10; i++) CHECK(p[i] < 0.3);
    } else CHECK_ERROR(v ? "jfk_16k.wav" : "silero_vad_16k.safetensors");
    fl_speech_vad_free(v);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(stretches_by_hand) {
    /* A chunk is 32 ms: pauses of 2 and of 4 chunks, which are silences; a word of 3 that is too short. */
    static const char *const text = "....########..#####....########-#-....###....";
    float p[64];
    const int64_t n = (int64_t)strlen(text);
    for (int64_t i = 0; i < n; i++) p[i] = text[i] == '#' ? 0.9f : text[i] == '-' ? 0.4f : 0.1f;
    fl_speech_segment s[64];
    CHECK_EQ_INT(fl_speech_segments(p, n, s, .pad = 1e-9), 2);
    CHECK(s[0].begin == 4 * 512 && s[0].end == 19 * 512);
    CHECK(s[1].begin == 23 * 512 && s[1].end == 34 * 512);
    CHECK_EQ_INT(fl_speech_segments(p, n, s), 2);
    CHECK(s[0].begin == 4 * 512 - 480 && s[0].end == 19 * 512 + 480);
    CHECK_EQ_INT(fl_speech_segments(p, n, s, .speech = 0.09, .pad = 10), 3); /* neighbours share the gap */
    CHECK(s[0].begin == 0 && s[0].end == s[1].begin && s[1].end == s[2].begin && s[2].end == n * 512);
    CHECK_EQ_INT(fl_speech_segments(p, 10, s, .pad = 1e-9, .speech = 0.1), 1); /* it goes on at the end */
    CHECK_EQ_INT(s[0].end, 10 * 512);
    CHECK_EQ_INT(fl_speech_segments(p, 0, s), 0);
}

TEST(weights_that_are_others) {
    char path[128];
    snprintf(path, sizeof path, "%s", test_file("vad.safetensors"));
    fl_scope s = fl_scope_begin();
    fl_data_named_tensor t[2] = {{"stft_conv.weight", fl_zeros(FL_SHAPE(258, 1, 256), FL_F32)},
                                 {"conv1.weight", fl_zeros(FL_SHAPE(128, 129, 2), FL_F32)}};
    for (int n = 1; n <= 2; n++) {
        CHECK(fl_data_save_safetensors(path, t, n, NULL, 0));
        CHECK(!fl_speech_vad_load(path));
        CHECK_ERROR(n == 1 ? "conv1.weight" : "conv1.weight has shape [128, 129, 2]");
    }
    fl_scope_end(&s);
    remove(path);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
