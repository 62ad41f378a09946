/* examples/speech/vad.c - voice activity detection: probabilities or segments of speech

   make speech-vad FILE=a.wav [WEIGHTS=../shared/data/weights/silero_vad/silero_vad_16k.safetensors]
        [ARGS="--segments --on 0.5 --off 0.35 --speech 0.25 --silence 0.1 --pad 0.03"]

   Prints a probability per 512 samples at 16 kHz; with --segments lines "begin end" in seconds. FILE: any
   file that fl_speech_load_audio reads, or - for standard input. */
#include "../arguments.h"
#include "fl_speech.h"
#include "fl.h"
#include <stdio.h>

int main(int argc, char **argv) {
    const char *file = NULL, *weights = NULL;
    bool segments = false;
    fl_speech_segments_opts o = {.on = 0};
    const argument list[] = {{"file", .text = &file},
                             {"weights", .text = &weights},
                             {"segments", .on = &segments},
                             {"on", .number = &o.on, .low = 1e-6, .high = 1},
                             {"off", .number = &o.off, .low = 1e-6, .high = 1},
                             {"speech", .number = &o.speech, .low = 1e-6, .high = 1e6},
                             {"silence", .number = &o.silence, .low = 1e-6, .high = 1e6},
                             {"pad", .number = &o.pad, .low = 1e-6, .high = 1e6},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (!file || !weights) return fprintf(stderr, "vad: --file FILE --weights FILE are required\n"), 2;
    fl_scope s = fl_scope_begin();
    const float *p = NULL;
    fl_speech_vad *v = fl_speech_vad_load(weights);
    fl_tensor *x = v ? fl_speech_load_audio(file, .rate = FL_SPEECH_VAD_RATE, .channel = -1) : NULL;
    const float *sound = x ? fl_map(x, FL_READ) : NULL;
    const int64_t n = sound ? fl_speech_vad_push(v, sound, fl_numel(x), true, &p) : -1;
    if (sound) fl_unmap(x, FL_READ);
    for (int64_t i = 0; i < n && !segments; i++) printf("%.6f\n", (double)p[i]);
    fl_speech_segment *out = n >= 0 && segments ? fl_heap_alloc((size_t)n * sizeof *out + 1) : NULL;
    for (int64_t k = 0, found = out ? fl_speech_segments_opt(p, n, out, o) : 0; k < found; k++)
        printf("%.3f %.3f\n", (double)out[k].begin / FL_SPEECH_VAD_RATE,
               (double)out[k].end / FL_SPEECH_VAD_RATE);
    fl_heap_free(out);
    if (n < 0) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "vad: failed");
    fl_speech_vad_free(v);
    fl_scope_end(&s);
    return n < 0;
}
/* MIT licence: see LICENSE. */
