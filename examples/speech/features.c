/* examples/speech/features.c - computes features of a sound into a safetensors file

   make speech-features FILE=a.wav OUT=x.safetensors KIND=spectrogram|fbank|mfcc|mfsc|plp
        [PRESET=kaldi] [CONF=f] [ARGS="--name=value ..."]

   FILE is a sound, a safetensors file whose first tensor has the samples, or a text file of numbers (.txt).
   For the presets htk and kaldi, sounds are scaled as 16-bit integers. CONF is a configuration of Kaldi or
   HTK, with lines "--name=value" or "NAME = value". The output tensor "features" is [frames, dims]. */
#include "../arguments.h"
#include "fl_speech.h"
#include "fl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends(const char *path, const char *with) {
    const size_t n = strlen(path), m = strlen(with);
    return n >= m && !strcmp(path + n - m, with);
}

static fl_tensor *read_text(const char *path) {
    int64_t size, n = 0, cap = 0;
    char *text = fl_text_read_file("features", path, &size), *p = text, *end;
    float *v = NULL;
    bool ok = text != NULL;
    for (double x; ok && (x = strtod(p, &end), end != p); p = end)
        if ((ok = fl_heap_grow(&v, &cap, n + 1, sizeof *v))) v[n++] = (float)x;
    if (ok && p[strspn(p, " \t\r\n")])
        ok = fl_fail("features: %s: offset %lld: expected a number", path, (long long)(p - text));
    fl_tensor *t = ok ? fl_from_host(v, FL_SHAPE(n), FL_F32) : NULL;
    fl_heap_free(text);
    fl_heap_free(v);
    return t;
}

/* Reads samples [t], and their rate if the file has it. */
static fl_tensor *read_samples(const char *path, fl_speech_sound *info) {
    if (ends(path, ".txt")) return read_text(path);
    if (ends(path, ".safetensors")) {
        fl_data_file *f = fl_data_open_safetensors(path);
        fl_tensor *t = f && fl_data_count(f) ? fl_data_read(f, fl_data_name(f, 0)) : NULL;
        fl_data_close(f);
        return t ? fl_reshape(fl_cast(t, FL_F32), FL_SHAPE(-1)) : NULL;
    }
    fl_tensor *t = fl_speech_load_audio(path, .channel = 1, .info = info);
    return t ? fl_select(t, 0, 0) : NULL;
}

static bool run(int argc, char **argv) {
    const char *file = NULL, *out = NULL, *preset = "kaldi", *conf = NULL, *kind = "fbank";
    static const char how[] = "--file=FILE --out=FILE [--preset=NAME] [--conf=FILE] [--kind=KIND] "
                              "[--name=value ...]";
    fl_speech_sound info = {0};
    fl_speech_conf c;
    arguments_help(argc, argv, how, NULL);
    const struct { const char *name; const char **to; } known[] = {
        {"--file=", &file}, {"--out=", &out}, {"--preset=", &preset}, {"--conf=", &conf}, {"--kind=", &kind}};
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strncmp(argv[i], known[k].name, strlen(known[k].name)))
                *known[k].to = argv[i] + strlen(known[k].name);
    if (!file || !out) return fl_fail("features: %s", how);
    fl_tensor *x = read_samples(file, &info);
    if (!x || !fl_speech_preset(&c, preset, (double)info.rate)) return false;
    if (info.rate && (!strcmp(preset, "kaldi") || !strcmp(preset, "htk"))) c.gain = 32768;
    if (!fl_speech_conf_set(&c, "kind", strcmp(kind, "mfsc") ? kind : "fbank")) return false;
    if (conf && !fl_speech_conf_load(&c, conf)) return false;
    for (int i = 1; i < argc; i++) {
        char name[64];
        bool mine = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            mine |= !strncmp(argv[i], known[k].name, strlen(known[k].name));
        const char *value = strchr(argv[i], '=');
        if (mine) continue;
        if (!value || value - argv[i] >= (long)sizeof name)
            return fl_fail("features: '%s' is not --name=value", argv[i]);
        snprintf(name, sizeof name, "%.*s", (int)(value - argv[i]), argv[i]);
        if (!fl_speech_conf_set(&c, name, value + 1)) return false;
    }
    fl_speech_features *f = fl_speech_features_new(&c);
    fl_tensor *y = f ? fl_speech_features_compute(f, x) : NULL;
    fl_speech_features_free(f);
    if (y) printf("%lld frames of %lld\n", (long long)y->shape[0], (long long)y->shape[1]);
    return y && fl_data_save_safetensors(out, &(fl_data_named_tensor){.name = "features", .tensor = y}, 1,
                                         NULL, 0);
}

int main(int argc, char **argv) {
    fl_scope s = fl_scope_begin();
    const bool ok = run(argc, argv);
    if (!ok) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "features: failed");
    fl_scope_end(&s);
    return !ok;
}
/* MIT licence: see LICENSE. */
