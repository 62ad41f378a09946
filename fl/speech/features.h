/* features.h - spectra, mel bands and cepstra as HTK, Kaldi, torchaudio, librosa and Whisper compute them,
   whole or in pieces; deltas, normalisations */
#ifndef FL_SPEECH_FEATURES_H
#define FL_SPEECH_FEATURES_H
#include "spectrum.h"
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_speech_kind { FL_SPEECH_SPECTROGRAM, FL_SPEECH_FBANK, FL_SPEECH_MFCC } fl_speech_kind;
/* symmetric: over n - 1; periodic: over n. Povey's is the symmetric Hann^0.85. */
typedef enum fl_speech_window {
    FL_SPEECH_HAMMING,
    FL_SPEECH_HANN,
    FL_SPEECH_POVEY,
    FL_SPEECH_RECTANGULAR,
    FL_SPEECH_BLACKMAN,
    FL_SPEECH_HANN_PERIODIC
} fl_speech_window;
/* What stands beyond both ends: nothing, so that frames lie within; the sound mirrored, its last sample
   repeated (Kaldi without snip_edges); zeros, or the sound mirrored without repeating, and frames in the
   middle. */
typedef enum fl_speech_edges {
    FL_SPEECH_SNIP,
    FL_SPEECH_MIRROR,
    FL_SPEECH_ZEROS,
    FL_SPEECH_REFLECT
} fl_speech_edges;
/* Hertz to: 2595 log10(1 + f / 700), the same to other digits (1127 ln), Slaney's, hertz, log10. */
typedef enum fl_speech_scale {
    FL_SPEECH_MEL,
    FL_SPEECH_MEL_1127,
    FL_SPEECH_SLANEY,
    FL_SPEECH_LINEAR,
    FL_SPEECH_LOG10
} fl_speech_scale;
typedef enum fl_speech_log { FL_SPEECH_NO_LOG, FL_SPEECH_LN, FL_SPEECH_LG, FL_SPEECH_DB } fl_speech_log;
typedef enum fl_speech_energy {
    FL_SPEECH_NO_ENERGY,
    FL_SPEECH_ENERGY_FIRST,
    FL_SPEECH_ENERGY_LAST
} fl_speech_energy;

/* All that features depend on: take a preset and change what differs. */
typedef struct fl_speech_conf {
    fl_speech_kind kind;
    double rate;                 /* samples a second */
    double gain;                 /* samples are multiplied by it: 32768 for the scale of 16-bit integers */
    double dither;               /* deviation of normal noise, a function of seed and the sample's number */
    uint64_t seed;
    int64_t window_length, hop, n_fft; /* in samples */
    fl_speech_window window;
    fl_speech_edges edges;
    bool drop_last;              /* leaves out the last frame */
    int64_t pad_to;              /* the sound is cut or filled with zeros to so many samples; 0: as it is */
    bool remove_mean;
    double preemphasis;
    bool magnitude;              /* |X| for |X|^2 */
    fl_speech_scale scale;
    bool mel_slopes;             /* triangles are straight in the scale, not in hertz */
    bool slaney_norm;            /* each triangle over half its width in hertz */
    bool below_nyquist;          /* the last bin is left out */
    double low, high;            /* hertz; high 0 or negative: so far from rate / 2 */
    int64_t bands, cepstra;
    double lifter;
    bool orthonormal;            /* row 0 of the cosine transform by sqrt(1/N), not sqrt(2/N) */
    bool c0_last;                /* Kaldi's htk_compat */
    fl_speech_log log;
    double floor;
    fl_speech_energy energy;     /* where it stands; in MFCC and spectrograms it replaces number 0 */
    bool raw_energy;
    double energy_floor;
    double range;                /* values below the largest of the sound - range are raised to it; 0: none */
    bool whisper;                /* (x + 4) / 4 in the end */
    int64_t delta_window, deltas; /* each of `deltas` orders over frames t - window, ..., t + window */
} fl_speech_conf;
/* "htk" (Flashlight's, at its application's defaults), "kaldi", "torchaudio", "librosa", "whisper"; times
   follow the rate, 0: that of the preset. False after fl_fail for another name. The presets' dither is 0. */
FL_API bool fl_speech_preset(fl_speech_conf *c, const char *name, double rate);
/* Sets one option: Kaldi's "num-mel-bins" (with or without "--"), HTK's "NUMCHANS", or a field's name. */
FL_API bool fl_speech_conf_set(fl_speech_conf *c, const char *name, const char *value);
/* Reads a file of lines "--name=value" or "NAME = value"; # begins a comment. */
FL_API bool fl_speech_conf_load(fl_speech_conf *c, const char *path);

/* Pieces: the window [n]; hertz to the scale and back; rows of triangles [bands, n_fft / 2 + 1]; cosines
   [bands, cepstra] with the lifter 1 + L / 2 sin(pi n / L). f64. */
FL_API fl_tensor *fl_speech_window_of(fl_speech_window w, int64_t n);
FL_API double fl_speech_to_scale(fl_speech_scale s, double hertz);
FL_API double fl_speech_to_hertz(fl_speech_scale s, double value);
FL_API fl_tensor *fl_speech_bands_of(const fl_speech_conf *c);
FL_API fl_tensor *fl_speech_cosines_of(const fl_speech_conf *c);
/* x [..., frames, d] and its deltas: [..., frames, d (orders + 1)]. Delta of frame t: sum over d of
   d (x[t + d] - x[t - d]) / (w (w + 1) (2 w + 1) / 3), edge frames repeated. */
FL_API fl_tensor *fl_speech_deltas(fl_tensor *x, int64_t window, int64_t orders);

typedef struct fl_speech_normalize_opts {
    fl_named _positional;
    int64_t left, right; /* frames around each whose mean (and deviation) count; both 0: all */
    bool by_column;      /* each feature for itself, not all of a frame together */
    bool no_variance;
    int64_t least;       /* at the ends the window is moved, so that it has so many frames; 0: it is cut */
    char _end;
} fl_speech_normalize_opts;
/* x [frames, d] less its mean, over its deviation (biased; 0 counts as 1): Flashlight's normalize and
   localNormalize, or with by_column the utterance's CMVN; Kaldi's sliding one is .left = 599, .least =
   100, .no_variance = true. */
#define fl_speech_normalize(...) FL__SPEECH_NORMALIZE(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_NORMALIZE(x, ...) fl_speech_normalize_opt(x, (fl_speech_normalize_opts){__VA_ARGS__})
FL_API fl_tensor *fl_speech_normalize_opt(fl_tensor *x, fl_speech_normalize_opts o);

/* Windows, bands and cosines of a configuration, made once. Use from any thread. NULL after fl_fail. */
typedef struct fl_speech_features fl_speech_features;
FL_API fl_speech_features *fl_speech_features_new(const fl_speech_conf *c);
FL_API void fl_speech_features_free(fl_speech_features *f);
FL_API int64_t fl_speech_features_dims(const fl_speech_features *f);
FL_API const fl_speech_conf *fl_speech_features_conf(const fl_speech_features *f);
/* Floats x [..., t] -> [..., frames, dims]. Too few samples for a frame: none. NULL raises. */
FL_API fl_tensor *fl_speech_features_of(const fl_speech_features *f, fl_tensor *x);
/* The same with a gradient, for a front end that is trained through; no dither, deltas or range. */
FL_API fl_var *fv_speech_features_of(const fl_speech_features *f, fl_var *x);

/* A sound that comes in pieces: frames as soon as their samples are there, and the bits of the whole whatever
   the pieces. Refused, by name: what looks at the whole sound (range, pad_to, drop_last) and deltas. */
typedef struct fl_speech_stream fl_speech_stream;
FL_API fl_speech_stream *fl_speech_stream_new(const fl_speech_features *f);
FL_API void fl_speech_stream_free(fl_speech_stream *s);
/* Takes n samples, the last if `end`, after which the stream is as new. f32 [frames, dims]; NULL after
   fl_fail. */
FL_API fl_tensor *fl_speech_stream_push(fl_speech_stream *s, const float *x, int64_t n, bool end);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_FEATURES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_FEATURES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_FEATURES_IMPL
#define FL_SPEECH_FEATURES_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- presets ---- */

static int64_t fl__speech_power_of_2(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

FL_API bool fl_speech_preset(fl_speech_conf *c, const char *name, double rate) {
    const fl_speech_conf bands = {.kind = FL_SPEECH_FBANK,
                                  .rate = 16000,
                                  .gain = 1,
                                  .bands = 23,
                                  .cepstra = 13,
                                  .lifter = 22,
                                  .floor = 1e-10,
                                  .energy_floor = 1.1920928955078125e-07};
    *c = bands;
    if (!strcmp(name, "htk")) {
        c->gain = 32768, c->preemphasis = 0.97, c->magnitude = true, c->log = FL_SPEECH_LN, c->floor = 1;
    } else if (!strcmp(name, "kaldi")) {
        c->window = FL_SPEECH_POVEY, c->remove_mean = c->mel_slopes = c->below_nyquist = true;
        c->preemphasis = 0.97, c->scale = FL_SPEECH_MEL_1127, c->low = 20, c->orthonormal = true,
        c->raw_energy = true;
        c->log = FL_SPEECH_LN, c->floor = 1.1920928955078125e-07;
    } else if (!strcmp(name, "torchaudio") || !strcmp(name, "librosa") || !strcmp(name, "whisper")) {
        c->window = FL_SPEECH_HANN_PERIODIC, c->edges = FL_SPEECH_REFLECT, c->bands = 128;
        c->n_fft = c->window_length = 400, c->hop = 200, c->cepstra = 40, c->lifter = 0,
        c->orthonormal = true;
        if (*name == 'l') {
            c->rate = 22050, c->n_fft = c->window_length = 2048, c->hop = 512, c->edges = FL_SPEECH_ZEROS;
            c->log = FL_SPEECH_DB, c->range = 80, c->cepstra = 20;
        }
        if (*name == 'w')
            c->hop = 160, c->bands = 80, c->log = FL_SPEECH_LG, c->range = 8,
            c->whisper = c->drop_last = true, c->pad_to = 480000;
        if (*name != 't') c->scale = FL_SPEECH_SLANEY, c->slaney_norm = true;
    } else
        return fl_fail("fl_speech_preset: there is no preset '%s': htk, kaldi, torchaudio, librosa, whisper",
                       name);
    if (rate > 0) c->rate = rate;
    if (!c->n_fft) {
        c->window_length = (int64_t)(c->rate * 0.025), c->hop = (int64_t)(c->rate * 0.01);
        c->n_fft = fl__speech_power_of_2(c->window_length);
    }
    return true;
}

/* ---- options by name ---- */

typedef enum fl__speech_type {
    FL__SPEECH_DOUBLE,
    FL__SPEECH_INT,
    FL__SPEECH_BOOL,
    FL__SPEECH_NOT,
    FL__SPEECH_MS,
    FL__SPEECH_TICKS,
    FL__SPEECH_WORD
} fl__speech_type;
typedef struct fl__speech_option {
    const char *name, *words; /* words: "a b c", enumerators 0, 1, 2 */
    fl__speech_type type;
    size_t at;
} fl__speech_option;

#define FL__SPEECH_AT(field) offsetof(fl_speech_conf, field)
static const fl__speech_option fl__speech_options[] = {
    {"kind", "spectrogram fbank mfcc", FL__SPEECH_WORD, FL__SPEECH_AT(kind)},
    {"rate sample-frequency", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(rate)},
    {"gain", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(gain)},
    {"dither", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(dither)},
    {"window-length", NULL, FL__SPEECH_INT, FL__SPEECH_AT(window_length)},
    {"frame-length", NULL, FL__SPEECH_MS, FL__SPEECH_AT(window_length)},
    {"windowsize", NULL, FL__SPEECH_TICKS, FL__SPEECH_AT(window_length)},
    {"hop", NULL, FL__SPEECH_INT, FL__SPEECH_AT(hop)},
    {"frame-shift", NULL, FL__SPEECH_MS, FL__SPEECH_AT(hop)},
    {"targetrate", NULL, FL__SPEECH_TICKS, FL__SPEECH_AT(hop)},
    {"n-fft", NULL, FL__SPEECH_INT, FL__SPEECH_AT(n_fft)},
    {"window window-type", "hamming hanning povey rectangular blackman hann-periodic", FL__SPEECH_WORD,
     FL__SPEECH_AT(window)},
    {"edges", "snip mirror zeros reflect", FL__SPEECH_WORD, FL__SPEECH_AT(edges)},
    {"snip-edges", NULL, FL__SPEECH_NOT, FL__SPEECH_AT(edges)},
    {"remove-mean remove-dc-offset zmeansource", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(remove_mean)},
    {"preemphasis preemphasis-coefficient preemcoef", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(preemphasis)},
    {"magnitude", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(magnitude)},
    {"use-power usepower", NULL, FL__SPEECH_NOT, FL__SPEECH_AT(magnitude)},
    {"scale", "mel mel-1127 slaney linear log10", FL__SPEECH_WORD, FL__SPEECH_AT(scale)},
    {"mel-slopes", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(mel_slopes)},
    {"slaney-norm", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(slaney_norm)},
    {"below-nyquist", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(below_nyquist)},
    {"low low-freq lofreq", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(low)},
    {"high high-freq hifreq", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(high)},
    {"bands num-mel-bins numchans", NULL, FL__SPEECH_INT, FL__SPEECH_AT(bands)},
    {"cepstra num-ceps", NULL, FL__SPEECH_INT, FL__SPEECH_AT(cepstra)},
    {"lifter cepstral-lifter ceplifter", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(lifter)},
    {"orthonormal", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(orthonormal)},
    {"c0-last htk-compat", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(c0_last)},
    {"log", "none ln lg db", FL__SPEECH_WORD, FL__SPEECH_AT(log)},
    {"use-log-fbank", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(log)},
    {"floor", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(floor)},
    {"energy", "none first last", FL__SPEECH_WORD, FL__SPEECH_AT(energy)},
    {"use-energy", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(energy)},
    {"raw-energy rawenergy", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(raw_energy)},
    {"energy-floor", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(energy_floor)},
    {"range", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(range)},
    {"deltas", NULL, FL__SPEECH_INT, FL__SPEECH_AT(deltas)},
    {"delta-window deltawindow", NULL, FL__SPEECH_INT, FL__SPEECH_AT(delta_window)},
};

/* The place of a word in a list, any case, - and _ alike; -1: it is not there. */
static int fl__speech_word(const char *list, const char *word) {
    for (int k = 0; *list; k++) {
        size_t n = strcspn(list, " "), i = 0;
        while (i < n && word[i] && tolower((uint8_t)word[i] == '_' ? '-' : word[i]) == list[i]) i++;
        if (i == n && !word[n]) return k;
        list += n + (list[n] == ' ');
    }
    return -1;
}

/* n: what the text says, of the option's type; false if it says nothing of it. */
static bool fl__speech_parse(const fl__speech_option *o, const char *text, double *n) {
    static const char *const words = "false true f t no yes 0 1";
    char *end;
    const int word = fl__speech_word(o->words ? o->words : words, text);
    if (o->type == FL__SPEECH_BOOL || o->type == FL__SPEECH_NOT) return *n = word & 1, word >= 0;
    if (o->type == FL__SPEECH_WORD && word >= 0) return *n = word, true;
    *n = strtod(text, &end);
    return o->type != FL__SPEECH_WORD && end != text && !*end && isfinite(*n);
}

FL_API bool fl_speech_conf_set(fl_speech_conf *c, const char *name, const char *value) {
    if (!strncmp(name, "--", 2)) name += 2;
    for (size_t i = 0; i < sizeof fl__speech_options / sizeof *fl__speech_options; i++) {
        const fl__speech_option *o = &fl__speech_options[i];
        double n;
        if (fl__speech_word(o->name, name) < 0) continue;
        if (!fl__speech_parse(o, value, &n))
            return fl_fail("fl_speech_conf_set: %s: '%s' is not of it%s%s", name, value, o->words ? ": " : "",
                           o->words ? o->words : "");
        char *at = (char *)c + o->at;
        const fl_speech_conf old = *c;
        if (o->type == FL__SPEECH_NOT) n = !n;
        if (o->type == FL__SPEECH_MS) n = floor(n * 0.001 * c->rate + 1e-6);
        if (o->type == FL__SPEECH_TICKS) n = floor(n * 1e-7 * c->rate + 1e-6);
        const bool flag = o->type == FL__SPEECH_BOOL || o->type == FL__SPEECH_NOT;
        if (o->type == FL__SPEECH_DOUBLE) *(double *)(void *)at = n;
        else if (flag && o->at != FL__SPEECH_AT(edges) && o->at != FL__SPEECH_AT(log) &&
                 o->at != FL__SPEECH_AT(energy))
            *(bool *)(void *)at = n != 0;
        else if (flag || o->type == FL__SPEECH_WORD) *(int *)(void *)at = (int)n;
        else *(int64_t *)(void *)at = (int64_t)n;
        if (c->rate != old.rate && old.rate > 0) { /* times stay */
            c->window_length = (int64_t)((double)old.window_length * c->rate / old.rate);
            c->hop = (int64_t)((double)old.hop * c->rate / old.rate);
        }
        const int64_t power = fl__speech_power_of_2(old.window_length);
        if (c->window_length != old.window_length)
            c->n_fft = old.n_fft == power ? fl__speech_power_of_2(c->window_length) : c->window_length;
        return true;
    }
    return fl_fail("fl_speech_conf_set: there is no option '%s'", name);
}

FL_API bool fl_speech_conf_load(fl_speech_conf *c, const char *path) {
    const char *fn = "fl_speech_conf_load";
    fl_data_stream f;
    if (!fl_data_stream_open(&f, fn, path, FL_DATA_READ)) return false;
    char *text = f.size < 1 << 20 ? fl_heap_alloc((size_t)f.size + 1) : NULL;
    bool ok = text && fl_data_stream_read(&f, text, (size_t)f.size, 0);
    f.io.close(f.io.user, f.file);
    fl_speech_conf to = *c;
    int line = 0;
    if (ok) text[f.size] = 0;
    for (char *p = text, *next; ok && p; p = next) {
        char name[64], value[64];
        line++;
        if ((next = strchr(p, '\n'))) *next++ = 0;
        p[strcspn(p, "#\r")] = 0;
        if (!p[strspn(p, " \t")]) continue;
        if (sscanf(p, " %63[^= \t] = %63s", name, value) != 2)
            ok = fl_fail("%s: %s: line %d: no name and value", fn, path, line);
        else if (!fl_speech_conf_set(&to, name, value)) {
            char why[256];
            snprintf(why, sizeof why, "%.255s", fl_error() ? fl_error() : "");
            fl_error_clear();
            ok = fl_fail("%s: %s: line %d: %s", fn, path, line, why);
        }
    }
    fl_heap_free(text);
    if (ok) *c = to;
    return ok;
}

/* ---- pieces ---- */

static double fl__speech_window_at(fl_speech_window w, int64_t i, int64_t n) {
    const double whole = w == FL_SPEECH_HANN_PERIODIC ? (double)n : (double)(n - 1);
    const double a = n > 1 ? 6.283185307179586 * (double)i / whole : 0, hann = 0.5 - 0.5 * cos(a);
    switch (w) {
    case FL_SPEECH_HAMMING: return 0.54 - 0.46 * cos(a);
    case FL_SPEECH_POVEY: return pow(hann, 0.85);
    case FL_SPEECH_RECTANGULAR: return 1;
    case FL_SPEECH_BLACKMAN: return 0.42 - 0.5 * cos(a) + 0.08 * cos(2 * a);
    default: return hann;
    }
}

FL_API fl_tensor *fl_speech_window_of(fl_speech_window w, int64_t n) {
    if (n < 1 || n > 1 << 20) return fl_bad("fl_speech_window_of: %lld samples", (long long)n);
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_F64);
    for (int64_t i = 0; t && i < n; i++) ((double *)fl_data(t))[i] = fl__speech_window_at(w, i, n);
    return t;
}

/* Slaney's: straight below 1 kHz, 200 / 3 Hz a step; above, a factor of 6.4 in 27 steps. */
FL_API double fl_speech_to_scale(fl_speech_scale s, double hertz) {
    switch (s) {
    case FL_SPEECH_MEL: return 2595 * log10(1 + hertz / 700);
    case FL_SPEECH_MEL_1127: return 1127 * log1p(hertz / 700);
    case FL_SPEECH_SLANEY: return hertz < 1000 ? hertz * 3 / 200 : 15 + 27 * log(hertz / 1000) / log(6.4);
    case FL_SPEECH_LOG10: return log10(hertz);
    default: return hertz;
    }
}

FL_API double fl_speech_to_hertz(fl_speech_scale s, double value) {
    switch (s) {
    case FL_SPEECH_MEL: return 700 * (pow(10, value / 2595) - 1);
    case FL_SPEECH_MEL_1127: return 700 * expm1(value / 1127);
    case FL_SPEECH_SLANEY: return value < 15 ? value * 200 / 3 : 1000 * exp((value - 15) * log(6.4) / 27);
    case FL_SPEECH_LOG10: return pow(10, value);
    default: return value;
    }
}

static double fl__speech_high(const fl_speech_conf *c) {
    return c->high > 0 ? c->high : c->rate / 2 + c->high;
}

/* Edge k of the bands, 0 to bands + 1, in the scale. */
static double fl__speech_edge(const fl_speech_conf *c, int64_t k) {
    const double low = fl_speech_to_scale(c->scale, c->low),
                 high = fl_speech_to_scale(c->scale, fl__speech_high(c));
    return low + (high - low) * (double)k / (double)(c->bands + 1);
}

static double fl__speech_triangle(const fl_speech_conf *c, int64_t band, int64_t bin) {
    double f = (double)bin * c->rate / (double)c->n_fft, e[3], hertz[3];
    if (c->below_nyquist && bin >= c->n_fft / 2) return 0;
    for (int i = 0; i < 3; i++) {
        e[i] = fl__speech_edge(c, band + i);
        hertz[i] = fl_speech_to_hertz(c->scale, e[i]);
        if (!c->mel_slopes) e[i] = hertz[i];
    }
    if (c->mel_slopes) f = fl_speech_to_scale(c->scale, f);
    const double up = (f - e[0]) / (e[1] - e[0]), down = (e[2] - f) / (e[2] - e[1]),
                 v = up < down ? up : down;
    return v <= 0 ? 0 : c->slaney_norm ? v * 2 / (hertz[2] - hertz[0]) : v;
}

static bool fl__speech_conf_check(const char *fn, const fl_speech_conf *c) {
    const double high = fl__speech_high(c);
    if (!(c->rate > 0) || c->window_length < 1 || c->n_fft < 2 || c->n_fft > 1 << 20 ||
        c->window_length > c->n_fft || c->hop < 1)
        return fl_fail("%s: rate %g, window of %lld samples, hop %lld, n_fft %lld", fn, c->rate,
                       (long long)c->window_length, (long long)c->hop, (long long)c->n_fft);
    if (c->kind != FL_SPEECH_SPECTROGRAM &&
        (c->bands < 1 || c->bands > 1 << 16 || !(c->low >= 0) || !(high > c->low) ||
         high > c->rate / 2 + 1e-6 || (c->scale == FL_SPEECH_LOG10 && c->low <= 0)))
        return fl_fail("%s: %lld bands from %g to %g Hz at %g samples a second", fn, (long long)c->bands,
                       c->low, high, c->rate);
    if (c->kind == FL_SPEECH_MFCC && (c->cepstra < 1 || c->cepstra > c->bands))
        return fl_fail("%s: %lld cepstra of %lld bands", fn, (long long)c->cepstra, (long long)c->bands);
    if (c->deltas < 0 || c->deltas > 16 || (c->deltas && c->delta_window < 1) || c->delta_window > 1 << 16)
        return fl_fail("%s: %lld deltas over a window of %lld", fn, (long long)c->deltas,
                       (long long)c->delta_window);
    return true;
}

FL_API fl_tensor *fl_speech_bands_of(const fl_speech_conf *c) {
    if (!fl__speech_conf_check("fl_speech_bands_of", c)) return fl_raise();
    const int64_t bins = c->n_fft / 2 + 1;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(c->bands, bins), FL_F64);
    for (int64_t i = 0; t && i < c->bands * bins; i++)
        ((double *)fl_data(t))[i] = fl__speech_triangle(c, i / bins, i % bins);
    return t;
}

FL_API fl_tensor *fl_speech_cosines_of(const fl_speech_conf *c) {
    if (!fl__speech_conf_check("fl_speech_cosines_of", c)) return fl_raise();
    const double n = (double)c->bands, pi = 3.141592653589793;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(c->bands, c->cepstra), FL_F64);
    for (int64_t i = 0; t && i < c->bands * c->cepstra; i++) {
        const int64_t at = i % c->cepstra, k = c->c0_last ? (at + 1) % c->cepstra : at;
        const double lift = c->lifter > 0 ? 1 + c->lifter / 2 * sin(pi * (double)k / c->lifter) : 1;
        double scale = sqrt(2 / n) * lift;
        if (k == 0 && c->orthonormal && !c->c0_last) scale = sqrt(1 / n);
        ((double *)fl_data(t))[i] = scale * cos(pi * (double)k * ((double)(i / c->cepstra) + 0.5) / n);
    }
    return t;
}

FL_API fl_tensor *fl_speech_deltas(fl_tensor *x, int64_t window, int64_t orders) {
    if (fl_absent("fl_speech_deltas", x)) return NULL;
    if (x->ndim < 2 || !fl_dtype_is_float(x->dtype) || window < 1 || orders < 0 || orders > 16)
        return fl_bad("fl_speech_deltas: %s of shape %s, window %lld, %lld orders", fl_dtype_name(x->dtype),
                      FL_SHAPE_TEXT(x), (long long)window, (long long)orders);
    fl_tensor *all[17] = {x};
    const int64_t t = x->shape[x->ndim - 2];
    const double over = (double)(window * (window + 1) * (2 * window + 1)) / 3;
    fl_scope s = fl_scope_begin();
    fl_tensor *at = fl_arange(0, (double)t, 1, FL_I64);
    for (int64_t k = 1; t && at && k <= orders; k++) {
        for (int64_t d = 1; d <= window; d++) {
            fl_tensor *ahead = fl_minimum(fl_add(at, fl_int(d)), fl_int(t - 1));
            fl_tensor *back = fl_maximum(fl_sub(at, fl_int(d)), fl_int(0));
            fl_tensor *slope =
                fl_sub(fl_index_select(all[k - 1], -2, ahead), fl_index_select(all[k - 1], -2, back));
            slope = fl_mul(slope, fl_num((double)d / over));
            all[k] = d > 1 ? fl_add(all[k], slope) : slope;
        }
        if (!all[k]) return fl_scope_return(&s, NULL);
    }
    for (int64_t k = 1; !t && k <= orders; k++) all[k] = x;
    return fl_scope_return(&s, fl_concat(all, (int)orders + 1, -1));
}

/* Sums over the frames before t, from which windows have differences. */
FL_API fl_tensor *fl_speech_normalize_opt(fl_tensor *x, fl_speech_normalize_opts o) {
    if (fl_absent("fl_speech_normalize", x)) return NULL;
    if (x->ndim != 2 || !fl_dtype_is_float(x->dtype) || o.left < 0 || o.right < 0 || o.least < 0)
        return fl_bad("fl_speech_normalize: %s of shape %s, %lld frames before and %lld behind",
                      fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), (long long)o.left, (long long)o.right);
    const int64_t t = x->shape[0], d = x->shape[1], groups = o.by_column ? d : 1,
                  each = d / (groups ? groups : 1);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F64)), *y = NULL;
    double *sum = in ? fl_heap_alloc((size_t)((t + 1) * groups * 2) * sizeof *sum + 1) : NULL;
    if (in && !sum) fl_raise();
    if (sum) y = fl_data_host_tensor(FL_SHAPE(t, d), FL_F64);
    const double *v = y ? fl_data(in) : NULL;
    for (int64_t i = 0; y && i < t * d; i++) {
        double *to = sum + ((i / d + 1) * groups + i % d / each) * 2;
        if (i % d % each == 0) to[0] = to[-groups * 2], to[1] = to[1 - groups * 2];
        to[0] += v[i], to[1] += v[i] * v[i];
    }
    for (int64_t i = 0; y && i < t * d; i++) {
        const int64_t at = i / d, whole = o.left + o.right == 0;
        int64_t begin = whole ? 0 : at - o.left, end = whole ? t : at + o.right + 1;
        begin = begin < 0 ? 0 : begin;
        if (end - begin < o.least) end = begin + o.least;
        end = end > t ? t : end;
        const double *a = sum + (begin * groups + i % d / each) * 2,
                     *b = sum + (end * groups + i % d / each) * 2;
        const double n = (double)((end - begin) * each), mean = (b[0] - a[0]) / n;
        const double variance = (b[1] - a[1]) / n - mean * mean,
                     deviation = variance > 1e-20 ? sqrt(variance) : 1;
        ((double *)fl_data(y))[i] = (v[i] - mean) / (o.no_variance ? 1 : deviation);
    }
    fl_heap_free(sum);
    return fl_scope_return(&s, y ? fl_cast(y, x->dtype) : NULL);
}

/* ---- features ---- */

struct fl_speech_features {
    fl_speech_conf c;
    fl_spectrum_args a;
    int64_t dims, before, behind; /* samples beyond the ends */
    fl_tensor *window, *bands, *first, *cosine;
};

/* The triangles as first bins and weights. */
static bool fl__speech_banded(fl_speech_features *f) {
    fl_tensor *full = fl_speech_bands_of(&f->c);
    const int64_t bins = f->c.n_fft / 2 + 1, n = f->c.bands;
    fl_tensor *first = full ? fl_data_host_tensor(FL_SHAPE(n), FL_I64) : NULL;
    if (!first) return false;
    const double *w = fl_data(full);
    int64_t width = 1, *at = fl_data(first);
    for (int64_t k = 0; k < n; k++) {
        int64_t begin = 0, end = bins;
        while (begin < bins - 1 && w[k * bins + begin] == 0) begin++;
        while (end > begin && w[k * bins + end - 1] == 0) end--;
        at[k] = begin;
        width = end - begin > width ? end - begin : width;
    }
    fl_tensor *bands = fl_data_host_tensor(FL_SHAPE(n, width), FL_F32);
    if (!bands) return false;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < width; i++)
            ((float *)fl_data(bands))[k * width + i] = at[k] + i < bins ? (float)w[k * bins + at[k] + i] : 0;
    f->bands = fl_keep(bands), f->first = fl_keep(first);
    return true;
}

/* The window, with its zeros on both sides where frames have their sample in the middle. */
static bool fl__speech_windowed(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    const bool middle = c->edges == FL_SPEECH_ZEROS || c->edges == FL_SPEECH_REFLECT;
    const int64_t n = middle ? c->n_fft : c->window_length, at = middle ? (n - c->window_length) / 2 : 0;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_F32);
    if (!t) return false;
    memset(fl_data(t), 0, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < c->window_length; i++)
        ((float *)fl_data(t))[at + i] = (float)fl__speech_window_at(c->window, i, c->window_length);
    f->before = middle ? n / 2 : c->edges == FL_SPEECH_MIRROR ? (n - c->hop) / 2 : 0;
    f->behind = middle ? n / 2 : 0;
    f->window = fl_keep(t);
    return true;
}

static void fl__speech_args(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    fl_spectrum_args *a = &f->a;
    const bool mfcc = c->kind == FL_SPEECH_MFCC, bands = c->kind == FL_SPEECH_FBANK;
    const double scale[] = {1, 1, 0.4342944819032518, 4.342944819032518};
    *a = (fl_spectrum_args){.hop = c->hop, .n_fft = c->n_fft, .remove_mean = c->remove_mean,
                            .preemphasis = c->preemphasis, .magnitude = c->magnitude};
    a->log = mfcc || c->log != FL_SPEECH_NO_LOG;
    a->log_scale = scale[c->log], a->floor = c->floor;
    f->dims = mfcc ? c->cepstra : bands ? c->bands : c->n_fft / 2 + 1;
    if (c->energy) a->energy = c->raw_energy ? FL_ENERGY_RAW : FL_ENERGY_WINDOWED;
    a->energy_replaces = !bands,
    a->energy_floor = c->energy_floor > 0 ? c->energy_floor : 1.1754943508222875e-38;
    a->energy_at = c->energy == FL_SPEECH_ENERGY_LAST || (mfcc && c->c0_last) ? f->dims - !bands : 0;
    f->dims += bands && c->energy;
}

FL_API fl_speech_features *fl_speech_features_new(const fl_speech_conf *c) {
    if (!fl__speech_conf_check("fl_speech_features_new", c) || !fl_spectrum_register()) return NULL;
    fl_speech_features *f = fl_heap_alloc(sizeof *f);
    if (!f) return NULL;
    *f = (fl_speech_features){.c = *c};
    fl__speech_args(f);
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    bool ok = fl__speech_windowed(f) && (c->kind == FL_SPEECH_SPECTROGRAM || fl__speech_banded(f));
    if (ok && c->kind == FL_SPEECH_MFCC)
        ok = (f->cosine = fl_keep(fl_cast(fl_speech_cosines_of(c), FL_F32))) != NULL;
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return f;
    fl_speech_features_free(f);
    return NULL;
}

FL_API void fl_speech_features_free(fl_speech_features *f) {
    if (!f) return;
    fl_drop(f->window);
    fl_drop(f->bands);
    fl_drop(f->first);
    fl_drop(f->cosine);
    fl_heap_free(f);
}

FL_API int64_t fl_speech_features_dims(const fl_speech_features *f) { return f->dims * (f->c.deltas + 1); }
FL_API const fl_speech_conf *fl_speech_features_conf(const fl_speech_features *f) { return &f->c; }

/* Frames of n samples; their ends may lie beyond the last one. */
static int64_t fl__speech_frames(const fl_speech_features *f, int64_t n) {
    const int64_t win = f->window->shape[0], hop = f->c.hop;
    if (f->c.edges == FL_SPEECH_MIRROR) return n ? (n + hop / 2) / hop : 0;
    if (f->c.edges == FL_SPEECH_REFLECT && n <= f->before) return 0;
    n += f->before + f->behind;
    return n < win || n == f->before + f->behind ? 0 : (n - win) / hop + 1;
}

/* The sample that stands at place i of a sound of n, itself or its mirror image; -1: a zero. */
static int64_t fl__speech_place(const fl_speech_features *f, int64_t i, int64_t n) {
    const bool twice = f->c.edges == FL_SPEECH_MIRROR;
    if (f->c.edges == FL_SPEECH_ZEROS) return i >= 0 && i < n ? i : -1;
    while (i < 0 || i >= n) i = i < 0 ? -i - twice : 2 * n - 2 + twice - i;
    return i;
}

/* Noise for n samples from number `at` on: the same numbers whatever the pieces. */
static bool fl__speech_dither(const fl_speech_features *f, float *x, int64_t at, int64_t n) {
    enum { PIECE = 4096 };
    for (int64_t i = at / PIECE; f->c.dither > 0 && n && i * PIECE < at + n; i++) {
        fl_rng rng = fl_data_rng(f->c.seed, 0, i);
        fl_scope s = fl_scope_begin();
        const fl_tensor *noise = fl_normal(FL_SHAPE(PIECE), 0, f->c.dither, FL_F32, &rng);
        for (int64_t k = 0; noise && k < PIECE; k++)
            if (i * PIECE + k >= at && i * PIECE + k < at + n)
                x[i * PIECE + k - at] += ((const float *)fl_data(noise))[k];
        fl_scope_end(&s);
        if (!noise) return false;
    }
    return true;
}

/* What looks at the whole sound. */
static fl_tensor *fl__speech_finish(const fl_speech_features *f, fl_tensor *y) {
    if (f->c.range > 0 && fl_numel(y)) {
        const fl_axes last = {2, {-2, -1}, true};
        y = fl_maximum(y, fl_sub(fl_amax(y, last), fl_num(f->c.range)));
    }
    if (f->c.whisper) y = fl_mul(fl_add(y, fl_num(4)), fl_num(0.25));
    return f->c.deltas ? fl_speech_deltas(y, f->c.delta_window, f->c.deltas) : y;
}

FL_API fl_tensor *fl_speech_features_of(const fl_speech_features *f, fl_tensor *x) {
    const char *fn = "fl_speech_features_of";
    if (fl_absent(fn, f) || fl_absent(fn, x)) return NULL;
    if (x->ndim < 1 || x->ndim > FL_MAX_DIMS - 1 || !fl_dtype_is_float(x->dtype))
        return fl_bad("%s: x is %s of shape %s, not floats [..., t]", fn, fl_dtype_name(x->dtype),
                      FL_SHAPE_TEXT(x));
    fl_scope s = fl_scope_begin();
    const fl_speech_conf *c = &f->c;
    fl_tensor *in = fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F32)), *y = NULL;
    const int64_t given = x->shape[x->ndim - 1], lines = given ? fl_numel(x) / given : 0;
    const int64_t n = c->pad_to ? c->pad_to : given, win = f->window->shape[0];
    int64_t frames = given ? fl__speech_frames(f, n) : 0;
    frames -= c->drop_last && frames > 0;
    const int64_t need = frames ? (frames - 1) * c->hop + win : 0;
    fl_shape shape = fl_shape_of(x);
    shape.dim[shape.ndim - 1] = need;
    fl_tensor *wide = in ? fl_data_host_tensor(shape, FL_F32) : NULL;
    float *noisy = wide && c->dither > 0 ? fl_heap_alloc((size_t)n * sizeof *noisy + 1) : NULL;
    if (wide && c->dither > 0 && !noisy) wide = fl_raise();
    for (int64_t k = 0; wide && k < lines; k++) {
        const float *from = (const float *)fl_data(in) + k * given;
        float *to = (float *)fl_data(wide) + k * need, gain = (float)c->gain;
        int64_t have = given < n ? given : n; /* zeros up to n */
        if (noisy) {
            for (int64_t i = 0; i < n; i++) noisy[i] = i < have ? from[i] * gain : 0;
            if (!fl__speech_dither(f, noisy, 0, n)) wide = NULL;
            from = noisy, gain = 1, have = n;
        }
        for (int64_t i = 0; i < need && wide; i++) {
            const int64_t place = fl__speech_place(f, i - f->before, n);
            to[i] = place < 0 || place >= have ? 0 : from[place] * gain;
            if (i != f->before) continue;
            const int64_t whole = have < need - i ? have : need - i; /* in a row */
            for (int64_t j = 1; j < whole; j++) to[i + j] = from[j] * gain;
            if (whole) i += whole - 1;
        }
    }
    fl_heap_free(noisy);
    if (wide) y = fl_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a);
    return fl_scope_return(&s, y ? fl__speech_finish(f, y) : NULL);
}

FL_API fl_var *fv_speech_features_of(const fl_speech_features *f, fl_var *x) {
    const char *fn = "fv_speech_features_of";
    if (fl_absent(fn, f) || fl_absent(fn, x)) return NULL;
    const fl_tensor *v = fv_value(x);
    const fl_speech_conf *c = &f->c;
    if (v->ndim < 1 || v->dtype != FL_F32 || c->dither > 0 || c->deltas || c->range > 0 || c->pad_to ||
        c->drop_last)
        return fl_bad(
            "%s: x is %s of shape %s, not f32 [..., t], or the features have dither, deltas, range or a "
            "length",
            fn, fl_dtype_name(v->dtype), FL_SHAPE_TEXT(v));
    fl_scope s = fl_scope_begin();
    const int64_t n = v->shape[v->ndim - 1], frames = fl__speech_frames(f, n);
    const int64_t need = frames ? (frames - 1) * c->hop + f->window->shape[0] : 0;
    fl_tensor *at = fl_data_host_tensor(FL_SHAPE(need), FL_I64),
              *there = fl_data_host_tensor(FL_SHAPE(need), FL_F32);
    for (int64_t i = 0; at && there && i < need; i++) {
        const int64_t place = fl__speech_place(f, i - f->before, n);
        ((int64_t *)fl_data(at))[i] = place < 0 ? 0 : place;
        ((float *)fl_data(there))[i] = place < 0 ? 0 : (float)c->gain;
    }
    fl_var *wide = at && there ? fv_mul(fv_index_select(x, -1, at), fv_const(there)) : NULL;
    return fv_scope_return(&s,
                           wide ? fv_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a) : NULL);
}

/* ---- pieces ---- */

struct fl_speech_stream {
    const fl_speech_features *f;
    int64_t seen, start, n,
        cap; /* samples that came; x holds places start, ..., start + n - 1 of the sound */
    int64_t done;                /* frames that were given */
    float *x;
};

FL_API fl_speech_stream *fl_speech_stream_new(const fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    const char *what = c->range > 0   ? "range"
                       : c->pad_to    ? "pad_to"
                       : c->drop_last ? "drop_last"
                       : c->deltas    ? "deltas"
                                      : NULL;
    if (what) return fl_fail("fl_speech_stream_new: %s looks ahead", what), NULL;
    fl_speech_stream *s = fl_heap_alloc(sizeof *s);
    if (s) *s = (fl_speech_stream){.f = f};
    return s;
}

FL_API void fl_speech_stream_free(fl_speech_stream *s) {
    if (!s) return;
    fl_heap_free(s->x);
    fl_heap_free(s);
}

/* Frames whose samples are there, and those before the first one, which mirror what follows. */
static int64_t fl__speech_ready(const fl_speech_stream *s, int64_t seen, bool end) {
    const fl_speech_features *f = s->f;
    const int64_t win = f->window->shape[0];
    if (end) return fl__speech_frames(f, seen);
    if (seen <= f->before || seen + f->before < win) return 0;
    return (seen + f->before - win) / f->c.hop + 1;
}

/* The frames from s->done to ready, of a sound of which `seen` samples came. */
static fl_tensor *fl__speech_give(const fl_speech_stream *s, int64_t ready, int64_t seen) {
    const fl_speech_features *f = s->f;
    const int64_t win = f->window->shape[0], frames = ready - s->done;
    const int64_t need = frames > 0 ? (frames - 1) * f->c.hop + win : 0;
    fl_tensor *wide = fl_data_host_tensor(FL_SHAPE(need), FL_F32);
    for (int64_t i = 0; wide && i < need; i++) {
        const int64_t at = s->done * f->c.hop - f->before + i, place = fl__speech_place(f, at, seen);
        ((float *)fl_data(wide))[i] = place < 0 ? 0 : s->x[place - s->start];
    }
    fl_tensor *y = wide ? fl_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a) : NULL;
    return y ? fl__speech_finish(f, y) : NULL;
}

FL_API fl_tensor *fl_speech_stream_push(fl_speech_stream *s, const float *x, int64_t n, bool end) {
    const fl_speech_features *f = s->f;
    if (n < 0 || !fl_heap_grow(&s->x, &s->cap, s->n + n + 1, sizeof *s->x)) return NULL;
    float *to = s->x + s->n;
    for (int64_t i = 0; i < n; i++) to[i] = x[i] * (float)f->c.gain;
    fl_quiet(1);
    fl_scope scope = fl_scope_begin();
    const int64_t seen = s->seen + n, ready = fl__speech_ready(s, seen, end);
    const int64_t kept = s->n;
    s->n += n;
    fl_tensor *y = NULL;
    if (fl__speech_dither(f, to, s->seen, n)) y = fl__speech_give(s, ready > s->done ? ready : s->done, seen);
    y = fl_scope_return(&scope, y);
    fl_quiet(-1);
    if (!y) return s->n = kept, NULL;
    s->seen = seen, s->done = ready > s->done ? ready : s->done;
    if (end) return s->seen = s->start = s->n = s->done = 0, y;
    /* What later frames read, and what the end may mirror. */
    int64_t keep = s->done * f->c.hop - f->before, mirrored = seen - f->window->shape[0] - 1;
    if (f->c.edges != FL_SPEECH_SNIP && mirrored < keep) keep = mirrored;
    if (keep > s->start && s->done) {
        s->n -= keep - s->start;
        memmove(s->x, s->x + (keep - s->start), (size_t)s->n * sizeof *s->x);
        s->start = keep;
    }
    return y;
}

#endif
#endif

/* MIT licence: see LICENSE. */
