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
        const int64_t n = fl_speech_whisper(m, fl_select(x, 0, 0), got, 64, &r, .prompt = fl_data(prompt),
                                            .n_prompt = prompt->shape[0], .most = said->shape[0],
                                            .times = times, .first_time = 100, .least = FL_ZERO);
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
