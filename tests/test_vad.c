/* test_vad.c - the detector of speech: on a recording, in pieces, with bad weights; stretches by hand */
#include "../fl.h"
#include "test.h"

#define WEIGHTS "../shared/data/weights/silero_vad/silero_vad_16k.safetensors"
#define SPEECH "../shared/data/speech/jfk/jfk_16k.wav"

TEST(speech_is_where_it_is) {
    fl_speech_vad *v = fl_speech_vad_load(WEIGHTS);
    if (!v) {
        CHECK_ERROR("silero_vad_16k.safetensors");
        fl_error_clear();
        SKIP("../shared/data/weights is absent");
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_speech_load_audio(SPEECH, .want_rate = 16000, .channel = -1);
    if (!x) SKIP("../shared/data/speech is absent");
    const int64_t samples = 60000, n = samples / FL_SPEECH_VAD_CHUNK;
    const float *p, *sound = fl_data(x);
    float whole[200];
    CHECK_EQ_INT(fl_speech_vad_push(v, sound, samples, true, &p), n + 1);
    memcpy(whole, p, (size_t)(n + 1) * sizeof *p);
    int64_t got = 0;
    double worst = 0;
    for (int64_t at = 0, m = 1; at < samples; at += m, m = m * 7 % 3001 + 1) {
        if (m > samples - at) m = samples - at;
        const int64_t k = fl_speech_vad_push(v, sound + at, m, at + m == samples, &p);
        for (int64_t i = 0; i < k; i++) worst = fmax(worst, fabs((double)p[i] - (double)whole[got + i]));
        got += k;
    }
    CHECK_EQ_INT(got, n + 1);
    CHECK(worst < 1e-5);
    CHECK_EQ_INT(fl_speech_vad_push(v, NULL, 0, true, &p), 0);
    fl_speech_segment part[200];
    const int64_t parts = fl_speech_segments(whole, n, part);
    CHECK(parts >= 1 && part[0].begin > 3000 && part[0].begin < 7000 && part[0].end > 30000);
    float silence[5120] = {0};
    CHECK_EQ_INT(fl_speech_vad_push(v, silence, 5120, true, &p), 10);
    for (int i = 2; i < 10; i++) CHECK(p[i] < 0.3);
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
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_vad.%d.safetensors", (int)getpid());
    fl_scope s = fl_scope_begin();
    fl_data_named t[2] = {{"stft_conv.weight", fl_zeros(FL_SHAPE(258, 1, 256), FL_F32)},
                          {"conv1.weight", fl_zeros(FL_SHAPE(128, 129, 2), FL_F32)}};
    for (int n = 1; n <= 2; n++) {
        CHECK(fl_data_save_safetensors(path, t, n, NULL, 0));
        CHECK(!fl_speech_vad_load(path));
        CHECK_ERROR(n == 1 ? "conv1.weight" : "conv1.weight of shape [128, 129, 2]");
    }
    fl_scope_end(&s);
    remove(path);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_on_error(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
