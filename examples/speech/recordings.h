/* examples/speech/recordings.h - recordings of spoken digits, strings of them, and a network for them

   Recordings are those of a list, DATA/fsdd/NAME.lst, or synthesised (voices.h). A string is several of one
   speaker with gaps between, spelled in letters. Not part of the library. */
#ifndef RECORDINGS_H
#define RECORDINGS_H
#include "fl_speech.h"
#include "fl.h"
#include "voices.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    RATE = 8000,
    BANDS = 40,
    LETTERS = 16,
    BLANK = LETTERS,
    CLASSES,
    DIGITS = 10,
    SUBSAMPLING = 2,
    MAX_STRING = 7,
    REACH = 42 /* receptive field: input frames on each side that an output depends on */
};
#define SILENCE (-16.0) /* about the logarithm of the floor: the padding value */
static const char letters[LETTERS + 1] = "|efghinorstuvwxz"; /* | separates words */
static const char *const words[DIGITS] = {"zero", "one", "two",   "three", "four",
                                          "five", "six", "seven", "eight", "nine"};

/* ---- recordings ---- */

typedef struct recording {
    float *sound;
    int64_t n;
    int digit, speaker;
} recording;

enum { MAX_SPEAKERS = 64 };
typedef struct corpus {
    recording *r;
    int64_t n, cap;
} corpus;
static char speakers[MAX_SPEAKERS][32];

static inline int speaker_of(const char *name, size_t n) {
    int k = 0;
    while (k < MAX_SPEAKERS - 1 && *speakers[k] && (strncmp(speakers[k], name, n) || speakers[k][n])) k++;
    if (!*speakers[k]) snprintf(speakers[k], sizeof speakers[k], "%.*s", (int)n, name);
    return k;
}

static inline bool corpus_add(corpus *c, const float *sound, int64_t n, int digit, int speaker) {
    if (!fl_heap_grow(&c->r, &c->cap, c->n + 1, sizeof *c->r)) return false;
    recording r = {fl_heap_alloc((size_t)n * sizeof(float) + 1), n, digit, speaker};
    if (!r.sound) return false;
    memcpy(r.sound, sound, (size_t)n * sizeof(float));
    c->r[c->n++] = r;
    return true;
}

static inline void corpus_free(corpus *c) {
    for (int64_t i = 0; i < c->n; i++) fl_heap_free(c->r[i].sound);
    fl_heap_free(c->r);
}

/* Loads a line "0_george_10 path duration zero". */
static inline bool read_line(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    const char *name = strchr(e->field[0], '_');
    int digit = 0;
    while (digit < DIGITS && strcmp(words[digit], e->field[3])) digit++;
    if (!name || digit == DIGITS)
        return fl_fail("recordings: line %lld: '%s' is not a digit, or the id has no speaker",
                       (long long)e->line, e->field[3]);
    fl_tensor *x = fl_speech_load_audio(e->path, .rate = RATE, .channel = -1);
    const float *sound = x ? fl_map(x, FL_READ) : NULL;
    const bool ok = sound && corpus_add(user, sound, x->shape[1], digit,
                                        speaker_of(name + 1, strcspn(name + 1, "_")));
    if (sound) fl_unmap(x, FL_READ);
    out->n = 1;
    out->t[0] = x;
    return ok;
}

static inline bool load_list(const char *dir, const char *name, corpus *c) {
    char path[1024], root[1024];
    snprintf(path, sizeof path, "%s/fsdd/%s", dir, name);
    snprintf(root, sizeof root, "%s/..", dir);
    fl_data_set *set =
        fl_data_list(path, read_line, .user = c, .root = root, .separator = ' ', .columns = 4, .path = 1);
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_data_get(set, i, &b);
        fl_scope_end(&s);
    }
    fl_data_free(set);
    return ok;
}

/* Synthesises recordings of every digit, each with a random voice. */
static inline bool synthesise_corpus(corpus *c, int64_t takes, uint64_t seed) {
    static float sound[2 * RATE];
    for (int64_t i = 0; i < takes * DIGITS; i++) {
        fl_rng rng = fl_data_rng(seed, 0, i);
        const int64_t n = synthesise_digit((int)(i % DIGITS), RATE, sound, 2 * RATE, &rng);
        if (!corpus_add(c, sound, n, (int)(i % DIGITS), speaker_of("synthetic", 9))) return false;
    }
    return true;
}

/* ---- strings of recordings ---- */

typedef struct utterance {
    float *sound;
    int64_t n, letter_count;
    int64_t letter[8 * MAX_STRING];
    int digit[MAX_STRING], digits, speaker;
} utterance;

/* A random recording of the same speaker. */
static inline int64_t another(const corpus *c, int64_t i, fl_rng *rng) {
    for (;;) {
        const int64_t k = fl_speech_draw(rng, 0, c->n - 1);
        if (c->r[k].speaker == c->r[i].speaker) return k;
    }
}

static inline void spell(utterance *u, int digit) {
    if (u->digits) u->letter[u->letter_count++] = 0;
    for (const char *p = words[digit]; *p; p++) u->letter[u->letter_count++] = strchr(letters, *p) - letters;
    u->digit[u->digits++] = digit;
}

/* Concatenates recordings, with gaps around them. The caller frees u->sound. */
static inline bool join(const corpus *c, const int64_t *index, int count, const double *gap, utterance *u) {
    *u = (utterance){.speaker = c->r[index[0]].speaker};
    int64_t n = (int64_t)(gap[0] * RATE), at = n;
    for (int k = 0; k < count; k++) n += c->r[index[k]].n + (int64_t)(gap[k + 1] * RATE);
    if (!(u->sound = fl_heap_alloc((size_t)n * sizeof(float) + 1))) return false;
    memset(u->sound, 0, (size_t)n * sizeof(float));
    u->n = n;
    for (int k = 0; k < count; k++) {
        const recording *r = &c->r[index[k]];
        memcpy(u->sound + at, r->sound, (size_t)r->n * sizeof(float));
        at += r->n + (int64_t)(gap[k + 1] * RATE);
        spell(u, r->digit);
    }
    return true;
}

/* Augments: random speed and level, and noise 10 to 50 dB below the signal. */
static inline fl_tensor *augmented(const utterance *u, fl_rng *rng) {
    static const int64_t speed[] = {17, 18, 19, 20, 21, 22, 23};
    fl_tensor *x = fl_from_host(u->sound, FL_SHAPE(u->n), FL_F32);
    x = fl_speech_resample(x, speed[fl_speech_draw(rng, 0, 6)], 20);
    const double gain = pow(10, fl_speech_between(rng, -6, 6) / 20), snr = fl_speech_between(rng, 10, 50);
    const double level = fl_item(fl_sqrt(fl_mean(fl_square(x), FL_ALL_AXES)));
    x = fl_add(x, fl_normal(fl_shape_of(x), 0, level * pow(10, -snr / 20), FL_F32, rng));
    return fl_mul(x, fl_num(gain));
}

/* Scales features to about -2 to 2. */
static inline fl_tensor *scaled(fl_tensor *features) {
    return fl_add(fl_mul(features, fl_num(0.25)), fl_num(2));
}

/* The caller frees them; NULL after an error. */
static inline fl_speech_features *recordings_features(void) {
    fl_speech_conf conf;
    if (!fl_speech_preset(&conf, "kaldi", RATE)) return NULL;
    conf.bands = BANDS, conf.floor = exp(SILENCE);
    return fl_speech_features_new(&conf);
}

static inline fl_tensor *features_of(const fl_speech_features *f, fl_tensor *x) {
    return scaled(fl_speech_features_compute(f, x));
}

/* ---- the net ---- */

static inline fl_nn_module *block(int64_t width, int64_t kernel, int64_t dilation) {
    fl_nn_module *conv =
        fl_nn_conv1d(width, width, kernel, .pad = FL_SAME, .dilation = dilation, .no_bias = true);
    return fl_nn_residual(
        fl_nn_sequential(conv, fl_nn_batch_norm1d(width), fl_nn_relu(), fl_nn_dropout(0.05)));
}

/* [n, frames, BANDS] -> logits [n, frames / 2, CLASSES]. Only convolutions over time: can be streamed. */
static inline fl_nn_module *recordings_net(int64_t width, int blocks) {
    fl_nn_module *net =
        fl_nn_sequential(fl_nn_transpose(1, 2),
                         fl_nn_conv1d(BANDS, width, 5, .stride = SUBSAMPLING, .pad = 2, .no_bias = true),
                         fl_nn_batch_norm1d(width), fl_nn_relu());
    static const int64_t dilation[] = {1, 1, 2, 2, 4};
    for (int i = 0; i < blocks; i++) fl_nn_add(net, NULL, block(width, 5, dilation[i]));
    fl_nn_add(net, NULL, fl_nn_conv1d(width, CLASSES, 1));
    fl_nn_add(net, NULL, fl_nn_transpose(1, 2));
    return net;
}

#endif
/* MIT licence: see LICENSE. */
