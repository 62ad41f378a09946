/* fl/speech/features.h - spectrogram, mel filter bank, MFCC, PLP, deltas, normalisation, whole or streamed

   Presets compute the same as HTK, Kaldi, torchaudio, librosa and Whisper. */
#ifndef FL_SPEECH_FEATURES_H
#define FL_SPEECH_FEATURES_H
#include "spectrum.h"
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* PLP: perceptual linear prediction (Hermansky, JASA 1990) as Kaldi and HTK compute it: mel bands are
   weighted by the equal-loudness curve, raised to a power and transformed to autocorrelations; the features
   are the cepstra of their linear predictor. C0 is the log of its error (Kaldi clips it at 0 from below). */
typedef enum fl_speech_kind {
    FL_SPEECH_SPECTROGRAM,
    FL_SPEECH_FBANK,
    FL_SPEECH_MFCC,
    FL_SPEECH_PLP
} fl_speech_kind;
/* Symmetric windows divide by n - 1, periodic ones by n. Povey's is the symmetric Hann^0.85. */
typedef enum fl_speech_window {
    FL_SPEECH_HAMMING,
    FL_SPEECH_HANN,
    FL_SPEECH_POVEY,
    FL_SPEECH_RECTANGULAR,
    FL_SPEECH_BLACKMAN,
    FL_SPEECH_HANN_PERIODIC
} fl_speech_window;
/* Padding at both ends: none, so all frames lie within the sound; the sound mirrored with its edge sample
   repeated (Kaldi without snip_edges); zeros, or the sound mirrored without repetition, both with centred
   frames. */
typedef enum fl_speech_edges {
    FL_SPEECH_SNIP,
    FL_SPEECH_MIRROR,
    FL_SPEECH_ZEROS,
    FL_SPEECH_REFLECT
} fl_speech_edges;
/* Frequency scales of f Hz: 2595 log10(1 + f / 700); the same as 1127 ln(1 + f / 700); Slaney's; f; log10. */
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

/* Configuration of features: start from a preset and change single fields. */
typedef struct fl_speech_conf {
    fl_speech_kind kind;
    double rate;                 /* samples per second */
    double gain;                 /* factor of the samples: 32768 for the scale of 16-bit integers */
    double dither;               /* standard deviation of the noise, which depends on seed and sample index */
    uint64_t seed;
    int64_t window_length, hop, n_fft; /* in samples */
    fl_speech_window window;
    double blackman;             /* b of Blackman's b - cos(a) / 2 + (1/2 - b) cos(2 a); 0 -> 0.42 */
    fl_speech_edges edges;
    bool drop_last;              /* omit the last frame */
    int64_t pad_to;              /* cut or zero-pad the sound to this many samples; 0: off */
    bool remove_mean;
    double preemphasis;
    bool magnitude;              /* use |X|, not |X|^2 */
    fl_speech_scale scale;
    bool mel_slopes;             /* triangles are linear in the scale, not in Hz */
    bool slaney_norm;            /* divide each triangle by half its width in Hz */
    bool below_nyquist;          /* omit the last bin */
    bool htk_bins;               /* omit bins <= low and >= high, each rounded to a bin */
    double low, high;            /* Hz; high <= 0 is an offset from rate / 2 */
    /* Vocal tract length normalisation of one speaker: band edges f become f / vtln_warp (about 1; 0 or 1:
       no warping). Below vtln_low and above vtln_high the map is linear too, such that low and high are
       fixed. The slope changes at vtln_low max(1, warp) and vtln_high min(1, warp), as in Kaldi; with
       vtln_htk at both times 2 warp / (1 + warp), as in HTK. */
    double vtln_warp, vtln_low, vtln_high; /* vtln_high <= 0 is an offset from rate / 2 */
    bool vtln_htk;
    int64_t bands, cepstra;
    double lifter;
    bool orthonormal;            /* row 0 of the cosine transform is scaled by sqrt(1/N), not sqrt(2/N) */
    bool c0_last;                /* Kaldi's htk_compat */
    bool no_c0;                  /* cepstra 1 to `cepstra`, not 0 to `cepstra` - 1 */
    int64_t lpc_order;           /* of PLP's linear predictor; 0 -> 12 */
    double compress;             /* exponent of PLP's compression; 0 -> 0.33333 (Kaldi's; HTK's is 0.33) */
    double cepstral_scale;       /* factor of the cepstra; 0 -> 1 */
    fl_speech_log log;
    double floor;
    fl_speech_energy energy;     /* its position; in cepstra and spectrograms it replaces feature 0 */
    bool energy_beside;          /* append the energy to the cepstra instead, as always with no_c0 */
    bool raw_energy;
    double energy_floor;
    bool energy_normalize;       /* 1 - energy_scale (maximum of the sound - energy): HTK's ENORMALISE */
    double energy_scale;         /* 0 -> 0.1 */
    double energy_range;         /* dB: energies are first raised to the maximum less this range; 0 -> 50 */
    bool subtract_mean;          /* subtract each feature's mean over the sound, not of energy: HTK's _Z */
    double range;                /* values are raised to the maximum of the sound less this range; 0: off */
    bool whisper;                /* finally (x + 4) / 4 */
    int64_t delta_window, deltas; /* orders of deltas, each over frames t - window, ..., t + window */
    int64_t acc_window;           /* window of the second and higher orders; 0 -> delta_window */
    int64_t max_numbers; /* limit for the sizes of window, bands and cosines, each; 0 -> 2^24 */
} fl_speech_conf;
/* Presets: "htk" (Flashlight's, with its application's defaults), "kaldi", "torchaudio", "librosa",
   "whisper". Times are converted to the rate; rate 0: the preset's. Returns false after fl_fail for an
   unknown name. Dither is 0 in all presets. */
FL_API bool fl_speech_preset(fl_speech_conf *c, const char *name, double rate);
/* Sets one option, given by Kaldi's name "num-mel-bins" (with or without "--"), HTK's "NUMCHANS", or the
   field's. HTK's times and SOURCERATE are in units of 100 ns. HTK's TARGETKIND (MFCC, PLP, FBANK, MELSPEC
   with _0 _E _D _A _T _Z) also resets every other field except rate and max_numbers to HTK's default: set it
   before others. */
FL_API bool fl_speech_conf_set(fl_speech_conf *c, const char *name, const char *value);
/* Reads a file of lines "--name=value", "NAME = value" or HTK's "MODULE: NAME = value"; # begins a comment.
   Whatever the order of lines, the rate is set first, then TARGETKIND, then the rest; lines of module HPARM
   override those without a module. Lines of other modules, HTK options unrelated to features, and unknown
   names in capitals are skipped, and listed in one message. */
FL_API bool fl_speech_conf_load(fl_speech_conf *c, const char *path);

/* Building blocks, f64: the window [n]; Hz to the scale and back; the triangles [bands, n_fft / 2 + 1]; the
   cosines [bands, cepstra] with the lifter 1 + L / 2 sin(pi n / L). */
FL_API fl_tensor *fl_speech_window_new(fl_speech_window w, int64_t n);
FL_API double fl_speech_to_scale(fl_speech_scale s, double hertz);
FL_API double fl_speech_to_hertz(fl_speech_scale s, double value);
FL_API fl_tensor *fl_speech_filter_bank(const fl_speech_conf *c);
FL_API fl_tensor *fl_speech_dct_matrix(const fl_speech_conf *c);
/* Concatenates x [..., frames, d] and its deltas: [..., frames, d (orders + 1)]. Delta of frame t with
   window w: sum over d of d (x[t + d] - x[t - d]) / (w (w + 1) (2 w + 1) / 3), with edge frames repeated. */
FL_API fl_tensor *fl_speech_deltas(fl_tensor *x, int64_t window, int64_t orders);

typedef struct fl_speech_normalize_opts {
    fl_opts_guard guard_;
    int64_t left, right; /* window around each frame for mean and deviation; both 0: all frames */
    bool by_column;      /* normalise each feature separately, not the frame as a whole */
    bool no_variance;    /* subtract the mean only */
    int64_t least;       /* at the ends, shift the window to contain this many frames; 0: cut it off */
    char _end;
} fl_speech_normalize_opts;
/* x [frames, d] less its mean, divided by its standard deviation (biased; 0 counts as 1): Flashlight's
   normalize and localNormalize, or with by_column CMVN per utterance; Kaldi's sliding CMVN is .left = 599,
   .least = 100, .no_variance = true. */
#define fl_speech_normalize(...) FL__SPEECH_NORMALIZE(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_NORMALIZE(x, ...) \
    fl_speech_normalize_opt(x, FL_LITERAL(fl_speech_normalize_opts, __VA_ARGS__))
FL_API fl_tensor *fl_speech_normalize_opt(fl_tensor *x, fl_speech_normalize_opts o);

/* Feature extractor: the precomputed windows, bands and cosines of a configuration. Thread-safe. Returns NULL
   after fl_fail. */
typedef struct fl_speech_features fl_speech_features;
FL_API fl_speech_features *fl_speech_features_new(const fl_speech_conf *c);
FL_API void fl_speech_features_free(fl_speech_features *f);
FL_API int64_t fl_speech_features_dims(const fl_speech_features *f);
FL_API const fl_speech_conf *fl_speech_features_conf(const fl_speech_features *f);
/* Features of floats x [..., t]: [..., frames, dims]. Too few samples for one frame give 0 frames. Raises on
   error. */
FL_API fl_tensor *fl_speech_features_compute(const fl_speech_features *f, fl_tensor *x);
/* As fl_speech_features_compute, differentiable, for trainable front ends. If x requires a gradient, PLP,
   dither,
   deltas, range, pad_to, drop_last and normalisation over the sound are errors. */
FL_API fl_var *fv_speech_features_compute(const fl_speech_features *f, fl_var *x);

/* Streaming features: each frame is returned as soon as its samples are available, bitwise equal to
   fl_speech_features_compute on the whole sound. Settings that need the whole sound (range, pad_to,
   drop_last, subtract_mean, energy_normalize) and deltas are errors. */
typedef struct fl_speech_stream fl_speech_stream;
FL_API fl_speech_stream *fl_speech_stream_new(const fl_speech_features *f);
FL_API void fl_speech_stream_free(fl_speech_stream *s);
/* Takes the next n samples; `end` marks the last piece and resets the stream. Returns f32 [frames, dims];
   NULL after fl_fail. */
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
    if (!fl_given(c, "fl_speech_preset", "the settings") ||
        !fl_given(name, "fl_speech_preset", "the name")) return false;
    const fl_speech_conf bands = {.kind = FL_SPEECH_FBANK,
                                  .rate = 16000,
                                  .gain = 1,
                                  .bands = 23,
                                  .cepstra = 13,
                                  .lifter = 22,
                                  .vtln_low = 100,
                                  .vtln_high = -500,
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
        return fl_fail("fl_speech_preset: no preset '%s'; known: htk, kaldi, torchaudio, librosa, whisper",
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
    FL__SPEECH_WORD,
    FL__SPEECH_TARGETKIND,
    FL__SPEECH_PERIOD,   /* SOURCERATE; 0: unchanged */
    FL__SPEECH_LIMIT,    /* LOFREQ, HIFREQ; negative: no limit */
    FL__SPEECH_NUMCEPS,  /* does not count cepstrum 0 */
    FL__SPEECH_HAMMING_OR_NONE,
    FL__SPEECH_NEVER     /* an unsupported flag: must be off */
} fl__speech_type;
typedef struct fl__speech_option {
    const char *name, *words; /* words: "a b c", enumerators 0, 1, 2 */
    fl__speech_type type;
    size_t at;
} fl__speech_option;

#define FL__SPEECH_AT(field) offsetof(fl_speech_conf, field)
static const fl__speech_option fl__speech_options[] = {
    {"targetkind", NULL, FL__SPEECH_TARGETKIND, 0},
    {"sourcerate", NULL, FL__SPEECH_PERIOD, FL__SPEECH_AT(rate)},
    {"lofreq", NULL, FL__SPEECH_LIMIT, FL__SPEECH_AT(low)},
    {"hifreq", NULL, FL__SPEECH_LIMIT, FL__SPEECH_AT(high)},
    {"numceps", NULL, FL__SPEECH_NUMCEPS, FL__SPEECH_AT(cepstra)},
    {"usehamming", NULL, FL__SPEECH_HAMMING_OR_NONE, FL__SPEECH_AT(window)},
    {"simplediffs doublefft v1compat", NULL, FL__SPEECH_NEVER, 0},
    {"htk-bins", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(htk_bins)},
    {"acc-window accwindow", NULL, FL__SPEECH_INT, FL__SPEECH_AT(acc_window)},
    {"kind", "spectrogram fbank mfcc plp", FL__SPEECH_WORD, FL__SPEECH_AT(kind)},
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
    {"low low-freq", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(low)},
    {"high high-freq", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(high)},
    {"vtln-warp warpfreq", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(vtln_warp)},
    {"vtln-low warplcutoff", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(vtln_low)},
    {"vtln-high warpucutoff", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(vtln_high)},
    {"vtln-htk", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(vtln_htk)},
    {"blackman blackman-coeff", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(blackman)},
    {"bands num-mel-bins numchans", NULL, FL__SPEECH_INT, FL__SPEECH_AT(bands)},
    {"cepstra num-ceps", NULL, FL__SPEECH_INT, FL__SPEECH_AT(cepstra)},
    {"lifter cepstral-lifter ceplifter", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(lifter)},
    {"orthonormal", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(orthonormal)},
    {"c0-last htk-compat", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(c0_last)},
    {"no-c0", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(no_c0)},
    {"lpc-order lpcorder", NULL, FL__SPEECH_INT, FL__SPEECH_AT(lpc_order)},
    {"compress compress-factor compressfact", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(compress)},
    {"cepstral-scale cepscale", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(cepstral_scale)},
    {"log", "none ln lg db", FL__SPEECH_WORD, FL__SPEECH_AT(log)},
    {"use-log-fbank", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(log)},
    {"floor", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(floor)},
    {"energy", "none first last", FL__SPEECH_WORD, FL__SPEECH_AT(energy)},
    {"use-energy", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(energy)},
    {"raw-energy rawenergy", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(raw_energy)},
    {"energy-beside", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(energy_beside)},
    {"energy-normalize enormalise", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(energy_normalize)},
    {"energy-scale escale", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(energy_scale)},
    {"energy-range silfloor", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(energy_range)},
    {"subtract-mean", NULL, FL__SPEECH_BOOL, FL__SPEECH_AT(subtract_mean)},
    {"energy-floor", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(energy_floor)},
    {"range", NULL, FL__SPEECH_DOUBLE, FL__SPEECH_AT(range)},
    {"deltas", NULL, FL__SPEECH_INT, FL__SPEECH_AT(deltas)},
    {"delta-window deltawindow", NULL, FL__SPEECH_INT, FL__SPEECH_AT(delta_window)},
};

#define FL__SPEECH_LARGEST 1e12 /* largest integer in a configuration */

/* Index of a word in a space-separated list, ignoring case, with - equal to _; -1 if it is not found. */
static int fl__speech_word(const char *list, const char *word) {
    for (int k = 0; *list; k++) {
        size_t n = strcspn(list, " "), i = 0;
        while (i < n && word[i] && tolower((uint8_t)word[i] == '_' ? '-' : word[i]) == list[i]) i++;
        if (i == n && !word[n]) return k;
        list += n + (list[n] == ' ');
    }
    return -1;
}

/* Parses the text as a value of the option's type into *n. Returns false if it is malformed. */
static bool fl__speech_parse(const fl__speech_option *o, const char *text, double *n) {
    static const char *const words = "false true f t no yes 0 1";
    char *end;
    const int word = fl__speech_word(o->words ? o->words : words, text);
    if (o->type == FL__SPEECH_BOOL || o->type == FL__SPEECH_NOT || o->type == FL__SPEECH_NEVER ||
        o->type == FL__SPEECH_HAMMING_OR_NONE) return *n = word & 1, word >= 0;
    if (o->type == FL__SPEECH_WORD && word >= 0) return *n = word, true;
    *n = strtod(text, &end);
    return o->type != FL__SPEECH_WORD && end != text && !*end && isfinite(*n);
}

/* Sets the features of an HTK TARGETKIND with its qualifiers, with the defaults of HTK's HParm. */
static bool fl__speech_targetkind(fl_speech_conf *c, const char *name, const char *value) {
    static const char kinds[] = "mfcc plp fbank melspec";
    const size_t n = strcspn(value, "_");
    char base[16] = "";
    bool has[128] = {false};
    if (n < sizeof base) memcpy(base, value, n);
    const int kind = fl__speech_word(kinds, base);
    if (kind < 0)
        return fl_fail("fl_speech_conf_set: %s: '%s' is not supported, expected MFCC, PLP, FBANK or MELSPEC",
                       name, value);
    for (const char *p = value + n; *p; p += 2) {
        const int q = toupper((uint8_t)p[1]);
        if (*p != '_' || !q || !strchr("0EDATZCK", q))
            return fl_fail("fl_speech_conf_set: %s: '%s': unknown qualifier _%c; known: 0 E D A T Z C K",
                           name, value, *p == '_' && q ? q : '?');
        has[q] = true;
    }
    if (has['0'] && kind > 1)
        return fl_fail("fl_speech_conf_set: %s: '%s': %s has no qualifier _0", name, value,
                       kind == 2 ? "FBANK" : "MELSPEC");
    const double rate = c->rate;
    const int64_t most = c->max_numbers;
    fl_speech_preset(c, "htk", 0);
    c->rate = rate, c->max_numbers = most;
    c->window_length = (int64_t)(rate * 0.0256), c->hop = (int64_t)(rate * 0.01);
    c->n_fft = fl__speech_power_of_2(c->window_length);
    c->kind = kind == 0 ? FL_SPEECH_MFCC : kind == 1 ? FL_SPEECH_PLP : FL_SPEECH_FBANK;
    c->log = kind == 3 ? FL_SPEECH_NO_LOG : FL_SPEECH_LN;
    c->scale = FL_SPEECH_MEL_1127, c->mel_slopes = c->htk_bins = c->vtln_htk = c->raw_energy = true;
    c->bands = 20, c->compress = 0.33, c->delta_window = 2;
    c->c0_last = true, c->no_c0 = kind < 2 && !has['0'] && !has['E'], c->cepstra = 13 - c->no_c0;
    c->energy = has['E'] ? FL_SPEECH_ENERGY_LAST : FL_SPEECH_NO_ENERGY, c->energy_beside = has['0'];
    c->energy_normalize = has['E'], c->subtract_mean = has['Z'];
    c->deltas = has['T'] ? 3 : has['A'] ? 2 : has['D'];
    return true;
}

/* The option of that name, with or without "--"; NULL if none. */
static const fl__speech_option *fl__speech_option_of(const char *name) {
    const size_t n = sizeof fl__speech_options / sizeof *fl__speech_options;
    for (size_t i = 0; i < n; i++)
        if (fl__speech_word(fl__speech_options[i].name, name) >= 0) return &fl__speech_options[i];
    return NULL;
}

FL_API bool fl_speech_conf_set(fl_speech_conf *c, const char *name, const char *value) {
    if (!fl_given(c, "fl_speech_conf_set", "the settings") ||
        !fl_given(name, "fl_speech_conf_set", "the name") ||
        !fl_given(value, "fl_speech_conf_set", "the value")) return false;
    if (!strncmp(name, "--", 2)) name += 2;
    const fl__speech_option *o = fl__speech_option_of(name);
    if (!o) return fl_fail("fl_speech_conf_set: no option '%s'", name);
    if (o->type == FL__SPEECH_TARGETKIND) return fl__speech_targetkind(c, name, value);
    double n;
    if (!fl__speech_parse(o, value, &n))
        return fl_fail("fl_speech_conf_set: %s: invalid value '%s', expected %s", name, value,
                       o->words ? o->words : "a number or, for flags, true or false");
    if (o->type == FL__SPEECH_NEVER)
        return n == 0 || fl_fail("fl_speech_conf_set: %s: '%s' is not supported", name, value);
    if (o->type == FL__SPEECH_PERIOD && n < 0)
        return fl_fail("fl_speech_conf_set: %s: invalid value '%s', expected a period >= 0 in units of 100 "
                       "ns", name, value);
    if (o->type == FL__SPEECH_PERIOD && n == 0) return true;
    char *at = (char *)c + o->at;
    const fl_speech_conf old = *c;
    if (o->type == FL__SPEECH_NOT) n = !n;
    if (o->type == FL__SPEECH_MS) n = floor(n * 0.001 * c->rate + 1e-6);
    if (o->type == FL__SPEECH_TICKS) n = floor(n * 1e-7 * c->rate + 1e-6);
    if (o->type == FL__SPEECH_PERIOD) n = rint(1e7 / n); /* 226.757 means 44,100 Hz */
    if (o->type == FL__SPEECH_LIMIT && n < 0) n = 0;
    if (o->type == FL__SPEECH_NUMCEPS) n += !c->no_c0;
    if (o->type == FL__SPEECH_HAMMING_OR_NONE) n = n != 0 ? FL_SPEECH_HAMMING : FL_SPEECH_RECTANGULAR;
    if (o->type != FL__SPEECH_DOUBLE && !(fabs(n) <= FL__SPEECH_LARGEST))
        return fl_fail("fl_speech_conf_set: %s: '%s' exceeds the maximum, 10^12", name, value);
    const bool flag = o->type == FL__SPEECH_BOOL || o->type == FL__SPEECH_NOT;
    if (o->type == FL__SPEECH_DOUBLE || o->type == FL__SPEECH_PERIOD || o->type == FL__SPEECH_LIMIT)
        *(double *)(void *)at = n;
    else if (flag && o->at != FL__SPEECH_AT(edges) && o->at != FL__SPEECH_AT(log) &&
             o->at != FL__SPEECH_AT(energy))
        *(bool *)(void *)at = n != 0;
    else if (flag || o->type == FL__SPEECH_WORD || o->type == FL__SPEECH_HAMMING_OR_NONE)
        *(int *)(void *)at = (int)n;
    else *(int64_t *)(void *)at = (int64_t)n;
    if (c->rate != old.rate && old.rate > 0) { /* keep times in seconds */
        const double by = c->rate / old.rate, length = (double)old.window_length * by,
                     hop = (double)old.hop * by;
        if (!(fabs(length) <= FL__SPEECH_LARGEST && fabs(hop) <= FL__SPEECH_LARGEST)) {
            *c = old;
            return fl_fail("fl_speech_conf_set: %s: '%s' makes window and hop %g and %g samples long, the "
                           "maximum is 10^12", name, value, length, hop);
        }
        c->window_length = (int64_t)length, c->hop = (int64_t)hop;
    }
    const int64_t power = fl__speech_power_of_2(old.window_length);
    if (c->window_length != old.window_length)
        c->n_fft = old.n_fft == power ? fl__speech_power_of_2(c->window_length) : c->window_length;
    return true;
}

/* A line of a configuration file: NUL-terminated strings; module is NULL if absent. */
typedef struct fl__speech_line {
    const char *module, *name, *value;
    int line, stage; /* stage: see fl__speech_stage */
} fl__speech_line;

/* Splits "[MODULE:] NAME = value" in place; the value may be quoted. Returns false if it is malformed. */
static bool fl__speech_split_line(char *p, fl__speech_line *l) {
    char *value = strchr(p, '='), *colon;
    if (!value) return false;
    *value++ = 0;
    value += strspn(value, " \t");
    p += strspn(p, " \t");
    l->module = NULL;
    if ((colon = strchr(p, ':'))) {
        l->module = p;
        p[strcspn(p, " \t:")] = 0;
        p = colon + 1 + strspn(colon + 1, " \t");
    }
    l->name = p;
    p[strcspn(p, " \t")] = 0;
    const char quote = *value == '"' || *value == '\'' ? *value++ : 0;
    l->value = value;
    value[strcspn(value, quote ? quote == '"' ? "\"" : "'" : " \t")] = 0;
    return *l->name && (quote || *l->value);
}

/* Removes the comment of a line: # outside quotes. */
static void fl__speech_uncomment(char *p) {
    for (char quote = 0; *p; p++) {
        if (quote ? *p == quote : *p == '"' || *p == '\'') quote = quote ? 0 : *p;
        if (!quote && (*p == '#' || *p == '\r')) {
            *p = 0;
            return;
        }
    }
}

/* HTK options that do not affect features. */
static const char fl__speech_ignored[] =
    "sourcekind sourceformat targetformat savecompressed savewithcrc byteorder naturalreadorder "
    "naturalwriteorder nonumescapes trace forcecxtexp allowxwrdexp allowcxtexp savebinary "
    "speechthresh spcseqcount spcglchcount silglchcount silseqcount sildiscard calwindow calperiod "
    "silupdaterate initialsil enableinhibit maxspcframes usesildet measuresil vqtable";

/* When a line is applied: 0 for the rate, 1 for TARGETKIND, 2 for the rest; -1 to skip it. */
static int fl__speech_stage(const fl__speech_line *l) {
    const char *name = l->name;
    const bool htk = *name != '-' && !name[strcspn(name, "abcdefghijklmnopqrstuvwxyz")];
    if (l->module && fl__speech_word("hparm", l->module) < 0) return -1;
    const fl__speech_option *o = fl__speech_option_of(strncmp(name, "--", 2) ? name : name + 2);
    if (!o) return htk ? -1 : 2;
    if (o->type == FL__SPEECH_TARGETKIND) return fl__speech_word("anon", l->value) < 0 ? 1 : -1;
    return o->at == FL__SPEECH_AT(rate) ? 0 : 2;
}

/* Applies the lines in order of stage. Returns false after fl_fail, which names the line. */
static bool fl__speech_apply(fl_speech_conf *c, const fl__speech_line *l, int64_t n, const char *path) {
    const char *fn = "fl_speech_conf_load";
    char skipped[512], why[256];
    fl_strbuf list = {.buf = skipped, .size = sizeof skipped};
    fl_log_level level = FL_LOG_INFO;
    for (int stage = 0; stage < 6; stage++) /* without a module, then with one */
        for (int64_t i = 0; i < n; i++) {
            if (l[i].stage != stage / 2 || (l[i].module != NULL) != stage % 2) continue;
            if (fl_speech_conf_set(c, l[i].name, l[i].value)) continue;
            snprintf(why, sizeof why, "%.255s", fl_error() ? fl_error() : "");
            fl_error_clear();
            return fl_fail("%s: %s: line %d: %s", fn, path, l[i].line, why);
        }
    for (int64_t i = 0; i < n; i++) {
        if (l[i].stage >= 0) continue;
        const bool known = l[i].module || fl__speech_word(fl__speech_ignored, l[i].name) >= 0;
        if (!known) level = FL_LOG_WARN;
        fl_strbuf_printf(&list, " %s%s%s", l[i].module ? l[i].module : "", l[i].module ? ":" : "", l[i].name);
    }
    if (list.n) fl_log_message(level, "%s: %s: skipped options that do not affect features:%s", fn, path,
                               skipped);
    return true;
}

FL_API bool fl_speech_conf_load(fl_speech_conf *c, const char *path) {
    const char *fn = "fl_speech_conf_load";
    fl_data_stream f;
    if (!fl_given(c, fn, "the settings") || !fl_data_stream_open(&f, fn, path, FL_DATA_READ)) return false;
    char *text = NULL;
    if (f.size >= 1 << 20)
        fl_fail("%s: %s: the file has %lld bytes, the maximum is 2^20 - 1", fn, path, (long long)f.size);
    else text = fl_heap_alloc((size_t)f.size + 1);
    bool ok = text && fl_data_stream_read(&f, text, (size_t)f.size, 0);
    f.io.close(f.io.user, f.file);
    fl_speech_conf to = *c;
    fl__speech_line *list = NULL;
    int64_t n = 0, cap = 0;
    int line = 0;
    if (ok) text[f.size] = 0;
    for (char *p = text, *next; ok && p; p = next) {
        line++;
        if ((next = strchr(p, '\n'))) *next++ = 0;
        fl__speech_uncomment(p);
        if (!p[strspn(p, " \t")]) continue;
        ok = fl_heap_grow(&list, &cap, n + 1, sizeof *list);
        if (ok && !fl__speech_split_line(p, &list[n]))
            ok = fl_fail("%s: %s: line %d: malformed, expected NAME = value", fn, path, line);
        if (ok) list[n].line = line, list[n].stage = fl__speech_stage(&list[n]), n++;
    }
    ok = ok && fl__speech_apply(&to, list, n, path);
    fl_heap_free(list);
    fl_heap_free(text);
    if (ok) *c = to;
    return ok;
}

/* ---- building blocks ---- */

static double fl__speech_window_at(fl_speech_window w, int64_t i, int64_t n, double blackman) {
    const double whole = w == FL_SPEECH_HANN_PERIODIC ? (double)n : (double)(n - 1);
    const double a = n > 1 ? 6.283185307179586 * (double)i / whole : 0, hann = 0.5 - 0.5 * cos(a);
    switch (w) {
    case FL_SPEECH_HAMMING: return 0.54 - 0.46 * cos(a);
    case FL_SPEECH_POVEY: return pow(hann, 0.85);
    case FL_SPEECH_RECTANGULAR: return 1;
    case FL_SPEECH_BLACKMAN: return blackman - 0.5 * cos(a) + (0.5 - blackman) * cos(2 * a);
    default: return hann;
    }
}

FL_API fl_tensor *fl_speech_window_new(fl_speech_window w, int64_t n) {
    if (n < 1 || n > 1 << 20)
        return fl_err_null("fl_speech_window_new: got %lld samples, expected 1 to 2^20", (long long)n);
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_F64);
    double *p = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < n; i++) p[i] = fl__speech_window_at(w, i, n, 0.42);
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

/* Slaney's scale is linear below 1 kHz, 200 / 3 Hz per unit; above, 27 units are a factor of 6.4. */
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

/* Converts a frequency option: 0 or negative is an offset from rate / 2. */
static double fl__speech_from_top(const fl_speech_conf *c, double f) { return f > 0 ? f : c->rate / 2 + f; }

static double fl__speech_high(const fl_speech_conf *c) { return fl__speech_from_top(c, c->high); }

static bool fl__speech_warps(const fl_speech_conf *c) { return c->vtln_warp != 0 && c->vtln_warp != 1; }

/* The end of the slope 1 / vtln_warp of the warping: the lower (upper = 0) or upper end (1). */
static double fl__speech_bend(const fl_speech_conf *c, int upper) {
    const double w = c->vtln_warp, f = upper ? fl__speech_from_top(c, c->vtln_high) : c->vtln_low;
    return f * (c->vtln_htk ? 2 * w / (1 + w) : upper ? fmin(1, w) : fmax(1, w));
}

static double fl__speech_warped(const fl_speech_conf *c, double f) {
    const double w = c->vtln_warp, l = fl__speech_bend(c, 0), h = fl__speech_bend(c, 1);
    const double end = f < l ? c->low : fl__speech_high(c), bend = f < l ? l : h;
    return f >= l && f < h ? f / w : end + (bend / w - end) / (bend - end) * (f - end);
}

/* Band edge k, 0 to bands + 1, in the scale. */
static double fl__speech_edge(const fl_speech_conf *c, int64_t k) {
    const double low = fl_speech_to_scale(c->scale, c->low),
                 high = fl_speech_to_scale(c->scale, fl__speech_high(c));
    const double edge = low + (high - low) * (double)k / (double)(c->bands + 1);
    if (!fl__speech_warps(c)) return edge;
    return fl_speech_to_scale(c->scale, fl__speech_warped(c, fl_speech_to_hertz(c->scale, edge)));
}

static double fl__speech_triangle(const fl_speech_conf *c, int64_t band, int64_t bin) {
    double f = (double)bin * c->rate / (double)c->n_fft, e[3], hertz[3];
    if (c->below_nyquist && bin >= c->n_fft / 2) return 0;
    const double bins = (double)c->n_fft / c->rate;
    if (c->htk_bins && ((double)bin <= floor(c->low * bins + 0.5) ||
                        (double)bin >= floor(fl__speech_high(c) * bins + 0.5))) return 0;
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

/* The range of bins in which a band may be non-zero: begin to end. */
static void fl__speech_bins_of(const fl_speech_conf *c, int64_t band, int64_t *begin, int64_t *end) {
    const double by = (double)c->n_fft / c->rate,
                 low = fl_speech_to_hertz(c->scale, fl__speech_edge(c, band)) * by,
                 high = fl_speech_to_hertz(c->scale, fl__speech_edge(c, band + 2)) * by;
    const int64_t bins = c->n_fft / 2 + 1;
    *begin = low > 1 ? low < (double)bins ? (int64_t)low - 1 : bins : 0;
    *end = high < (double)(bins - 2) ? (int64_t)high + 2 : bins;
}

static bool fl__speech_within(const char *fn, const fl_speech_conf *c, const char *what, int64_t n) {
    const int64_t most = c->max_numbers ? c->max_numbers : 1 << 24;
    return n <= most || fl_fail("%s: %s would have %lld elements, .max_numbers is %lld", fn, what,
                                (long long)n, (long long)most);
}

enum { FL__SPEECH_POLES = 128 };
static int64_t fl__speech_lpc_order(const fl_speech_conf *c) { return c->lpc_order ? c->lpc_order : 12; }

/* The index of the cepstrum that is feature `at`. */
static int64_t fl__speech_cepstrum(const fl_speech_conf *c, int64_t at) {
    return c->no_c0 ? at + 1 : c->c0_last ? (at + 1) % c->cepstra : at;
}
/* The lifter's factor of cepstrum k. */
static double fl__speech_lift(const fl_speech_conf *c, int64_t k) {
    return c->lifter > 0 ? 1 + c->lifter / 2 * sin(3.141592653589793 * (double)k / c->lifter) : 1;
}

static bool fl__speech_conf_check(const char *fn, const fl_speech_conf *c) {
    if (!fl_given(c, fn, "the settings")) return false;
    const double high = fl__speech_high(c);
    if (!(c->rate > 0) || c->window_length < 1 || c->n_fft < 2 || c->n_fft > 1 << 20 ||
        c->window_length > c->n_fft || c->hop < 1)
        return fl_fail("%s: got rate %g, window_length %lld, hop %lld, n_fft %lld; expected a positive rate "
                       "and hop, n_fft of 2 to 2^20, window_length of 1 to n_fft", fn, c->rate,
                       (long long)c->window_length, (long long)c->hop, (long long)c->n_fft);
    if (c->kind != FL_SPEECH_SPECTROGRAM &&
        (c->bands < 1 || c->bands > 1 << 16 || !(c->low >= 0) || !(high > c->low) ||
         high > c->rate / 2 + 1e-6 || (c->scale == FL_SPEECH_LOG10 && c->low <= 0)))
        return fl_fail("%s: got %lld bands from %g to %g Hz at a rate of %g Hz; expected 1 to 2^16 bands and "
                       "0 <= low < high <= rate / 2 (low > 0 for log10)", fn, (long long)c->bands, c->low,
                       high, c->rate);
    if (c->kind != FL_SPEECH_SPECTROGRAM && fl__speech_warps(c)) {
        const double w = c->vtln_warp, l = fl__speech_bend(c, 0), h = fl__speech_bend(c, 1);
        if (!(w > 0)) return fl_fail("%s: vtln_warp must be above 0, got %g", fn, w);
        if (!(l > c->low && l / w > c->low && h > l && high > h && high > h / w))
            return fl_fail("%s: vtln_low (%g) and vtln_high (%g) warped by %g must lie within %g to %g Hz",
                           fn, c->vtln_low, fl__speech_from_top(c, c->vtln_high), w, c->low, high);
    }
    if (c->kind == FL_SPEECH_MFCC && (c->cepstra < 1 || c->cepstra > c->bands - c->no_c0))
        return fl_fail("%s: %lld cepstra need more bands than %lld (MFCC)", fn, (long long)c->cepstra,
                       (long long)c->bands);
    const int64_t order = fl__speech_lpc_order(c);
    if (c->kind == FL_SPEECH_PLP && (order < 1 || order > FL__SPEECH_POLES))
        return fl_fail("%s: lpc_order must be 1 to %d, got %lld", fn, FL__SPEECH_POLES, (long long)order);
    if (c->kind == FL_SPEECH_PLP && (c->cepstra < 1 || c->cepstra > order + !c->no_c0))
        return fl_fail("%s: %lld cepstra need a higher lpc_order than %lld (PLP)", fn, (long long)c->cepstra,
                       (long long)order);
    if (c->deltas < 0 || c->deltas > 16 || (c->deltas && c->delta_window < 1) || c->delta_window > 1 << 10 ||
        c->acc_window < 0 || c->acc_window > 1 << 10)
        return fl_fail("%s: got deltas %lld, delta_window %lld, acc_window %lld; expected 0 to 16 deltas, "
                       "windows of 1 to 1024 frames", fn, (long long)c->deltas, (long long)c->delta_window,
                       (long long)c->acc_window);
    return fl__speech_within(fn, c, "the window", c->n_fft) &&
           (c->kind != FL_SPEECH_MFCC || fl__speech_within(fn, c, "the cosines", c->bands * c->cepstra)) &&
           (c->kind != FL_SPEECH_PLP || fl__speech_within(fn, c, "the cosines", c->bands * (order + 1)));
}

FL_API fl_tensor *fl_speech_filter_bank(const fl_speech_conf *c) {
    const int64_t bins = c ? c->n_fft / 2 + 1 : 0;
    if (!fl__speech_conf_check("fl_speech_filter_bank", c) ||
        !fl__speech_within("fl_speech_filter_bank", c, "the bands", c->bands * bins))
        return fl_raise();
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(c->bands, bins), FL_F64);
    double *p = t ? fl_map(t, FL_WRITE) : NULL;
    if (p) memset(p, 0, (size_t)(c->bands * bins) * sizeof *p);
    for (int64_t k = 0, begin, end; p && k < c->bands; k++) {
        fl__speech_bins_of(c, k, &begin, &end);
        for (int64_t i = begin; i < end; i++) p[k * bins + i] = fl__speech_triangle(c, k, i);
    }
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

FL_API fl_tensor *fl_speech_dct_matrix(const fl_speech_conf *c) {
    if (!fl__speech_conf_check("fl_speech_dct_matrix", c)) return fl_raise();
    const double n = (double)c->bands, pi = 3.141592653589793;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(c->bands, c->cepstra), FL_F64);
    double *p = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < c->bands * c->cepstra; i++) {
        const int64_t k = fl__speech_cepstrum(c, i % c->cepstra);
        double scale = sqrt(2 / n) * fl__speech_lift(c, k);
        if (k == 0 && c->orthonormal && !c->c0_last) scale = sqrt(1 / n);
        scale *= fl_option(c->cepstral_scale, 1);
        p[i] = scale * cos(pi * (double)k * ((double)(i / c->cepstra) + 0.5) / n);
    }
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

FL_API fl_tensor *fl_speech_deltas(fl_tensor *x, int64_t window, int64_t orders) {
    if (fl_is_null_arg("fl_speech_deltas", x)) return NULL;
    if (x->ndim < 2 || !fl_dtype_is_float(x->dtype) || window < 1 || orders < 0 || orders > 16)
        return fl_err_null("fl_speech_deltas: got %s of shape %s, window %lld, %lld orders; expected floats "
                           "[..., frames, d], a positive window, 0 to 16 orders", fl_dtype_name(x->dtype),
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

/* Uses prefix sums over frames: the sums over a window are their differences. */
FL_API fl_tensor *fl_speech_normalize_opt(fl_tensor *x, fl_speech_normalize_opts o) {
    if (fl_is_null_arg("fl_speech_normalize", x)) return NULL;
    if (x->ndim != 2 || !fl_dtype_is_float(x->dtype) || o.left < 0 || o.right < 0 || o.least < 0)
        return fl_err_null("fl_speech_normalize: got %s of shape %s, left %lld, right %lld, least %lld; "
                           "expected floats [frames, d] and numbers >= 0", fl_dtype_name(x->dtype),
                           FL_SHAPE_TEXT(x), (long long)o.left, (long long)o.right, (long long)o.least);
    const int64_t t = x->shape[0], d = x->shape[1], groups = o.by_column ? d : 1,
                  each = d / (groups ? groups : 1);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F64)), *y = NULL;
    double *sum = in ? fl_heap_alloc((size_t)((t + 1) * groups * 2) * sizeof *sum + 1) : NULL;
    if (in && !sum) fl_raise();
    if (sum) y = fl_data_host_tensor(FL_SHAPE(t, d), FL_F64);
    const double *v = y ? fl_map(in, FL_READ) : NULL;
    double *result = v ? fl_map(y, FL_WRITE) : NULL;
    for (int64_t i = 0; result && i < t * d; i++) {
        double *to = sum + ((i / d + 1) * groups + i % d / each) * 2;
        if (i % d % each == 0) to[0] = to[-groups * 2], to[1] = to[1 - groups * 2];
        to[0] += v[i], to[1] += v[i] * v[i];
    }
    for (int64_t i = 0; result && i < t * d; i++) {
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
        result[i] = (v[i] - mean) / (o.no_variance ? 1 : deviation);
    }
    if (result) fl_unmap(y, FL_WRITE);
    if (v) fl_unmap(in, FL_READ);
    fl_heap_free(sum);
    return fl_scope_return(&s, result ? fl_cast(y, x->dtype) : NULL);
}

/* ---- features ---- */

struct fl_speech_features {
    fl_speech_conf c;
    fl_spectrum_args a;
    int64_t dims, before, behind; /* padding at the start and at the end, in samples */
    int64_t energy_at;            /* index of the energy in dims; -1: no energy */
    fl_tensor *window, *bands, *first, *cosine;
    double *plp; /* [bands][order + 1]: compressed bands to autocorrelations */
};

/* The first bin and the end of each triangle; returns the number of bins of the widest. */
static int64_t fl__speech_triangle_bins(const fl_speech_conf *c, int64_t *at, int64_t *stop) {
    int64_t width = 1;
    for (int64_t k = 0; k < c->bands; k++) {
        int64_t begin, end;
        fl__speech_bins_of(c, k, &begin, &end);
        while (begin < end && fl__speech_triangle(c, k, begin) == 0) begin++;
        while (end > begin && fl__speech_triangle(c, k, end - 1) == 0) end--;
        at[k] = begin < end ? begin : c->n_fft / 2, stop[k] = end;
        width = end - begin > width ? end - begin : width;
    }
    return width;
}

/* Stores each triangle as its first bin and weights. */
static bool fl__speech_make_bands(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    const int64_t n = c->bands;
    fl_tensor *first = fl_data_host_tensor(FL_SHAPE(n), FL_I64), *bands = NULL;
    int64_t *at = first ? fl_map(first, FL_WRITE) : NULL,
            *stop = at ? fl_heap_alloc((size_t)n * sizeof *stop) : NULL;
    const int64_t width = stop ? fl__speech_triangle_bins(c, at, stop) : 0;
    if (stop && fl__speech_within("fl_speech_features_new", c, "the bands", n * width))
        bands = fl_data_host_tensor(FL_SHAPE(n, width), FL_F32);
    float *weight = bands ? fl_map(bands, FL_WRITE) : NULL;
    for (int64_t i = 0; weight && i < n * width; i++) {
        const int64_t k = i / width, bin = at[k] + i % width;
        weight[i] = bin < stop[k] ? (float)fl__speech_triangle(c, k, bin) : 0;
    }
    if (weight) fl_unmap(bands, FL_WRITE);
    if (at) fl_unmap(first, FL_WRITE);
    fl_heap_free(stop);
    if (weight) f->bands = fl_keep(bands), f->first = fl_keep(first);
    return weight != NULL;
}

/* The window, padded with zeros to n_fft on both sides if frames are centred. */
static bool fl__speech_make_window(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    const bool middle = c->edges == FL_SPEECH_ZEROS || c->edges == FL_SPEECH_REFLECT;
    const int64_t n = middle ? c->n_fft : c->window_length, at = middle ? (n - c->window_length) / 2 : 0;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_F32);
    float *p = t ? fl_map(t, FL_WRITE) : NULL;
    if (!p) return false;
    memset(p, 0, (size_t)n * sizeof *p);
    for (int64_t i = 0; i < c->window_length; i++)
        p[at + i] = (float)fl__speech_window_at(c->window, i, c->window_length, fl_option(c->blackman, 0.42));
    fl_unmap(t, FL_WRITE);
    f->before = middle ? n / 2 : c->edges == FL_SPEECH_MIRROR ? n / 2 - c->hop / 2 : 0;
    f->behind = middle ? n / 2 : 0;
    f->window = fl_keep(t);
    return true;
}

/* The inverse cosine transform of the bands, mirrored, with the first and last band duplicated. */
static bool fl__speech_plp_matrix(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    const int64_t n = fl__speech_lpc_order(c) + 1, b = c->bands;
    const double over = 1 / (2.0 * (double)(b + 1)), angle = 3.141592653589793 / (double)(b + 1);
    f->plp = fl_heap_alloc((size_t)(b * n) * sizeof *f->plp);
    for (int64_t i = 0; f->plp && i < b * n; i++) {
        const double k = (double)(i % n), j = (double)(i / n + 1);
        const double hertz = fl_speech_to_hertz(c->scale, fl__speech_edge(c, i / n + 1)), q = hertz * hertz;
        const double part = q / (q + 1.6e5), loudness = part * part * (q + 1.44e6) / (q + 9.61e6);
        double sum = 2 * cos(angle * k * j);
        if (i / n == 0) sum += 1;
        if (i / n == b - 1) sum += cos(angle * k * (j + 1));
        f->plp[i] = sum * over * pow(loudness, fl_option(c->compress, 0.33333));
    }
    return f->plp != NULL;
}

static void fl__speech_args(fl_speech_features *f) {
    const fl_speech_conf *c = &f->c;
    fl_spectrum_args *a = &f->a;
    const bool mfcc = c->kind == FL_SPEECH_MFCC, bands = c->kind == FL_SPEECH_FBANK;
    const bool plp = c->kind == FL_SPEECH_PLP, cepstra = mfcc || plp;
    const bool appended = bands || (cepstra && (c->no_c0 || c->energy_beside));
    const double scale[] = {1, 1, 0.4342944819032518, 4.342944819032518};
    *a = (fl_spectrum_args){.hop = c->hop, .n_fft = c->n_fft, .remove_mean = c->remove_mean,
                            .preemphasis = c->preemphasis, .magnitude = c->magnitude};
    a->log = cepstra || c->log != FL_SPEECH_NO_LOG;
    a->log_scale = plp ? 1 : scale[c->log], a->floor = c->floor;
    f->dims = cepstra ? c->cepstra : bands ? c->bands : c->n_fft / 2 + 1;
    if (c->energy) a->energy = c->raw_energy ? FL_ENERGY_RAW : FL_ENERGY_WINDOWED;
    a->energy_replaces = !appended && !plp;
    a->energy_floor = c->energy_floor > 0 ? c->energy_floor : 1.1754943508222875e-38;
    const bool last = c->energy == FL_SPEECH_ENERGY_LAST || (cepstra && c->c0_last && !appended);
    f->energy_at = !c->energy ? -1 : last ? f->dims - !appended : 0;
    a->energy_at = plp ? c->bands : f->energy_at < 0 ? 0 : f->energy_at; /* plp: after the bands */
    f->dims += appended && c->energy;
}

FL_API fl_speech_features *fl_speech_features_new(const fl_speech_conf *c) {
    if (!fl__speech_conf_check("fl_speech_features_new", c) || !fl_spectrum_register()) return NULL;
    fl_speech_features *f = fl_heap_alloc(sizeof *f);
    if (!f) return NULL;
    *f = (fl_speech_features){.c = *c};
    fl__speech_args(f);
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    bool ok = fl__speech_make_window(f) && (c->kind == FL_SPEECH_SPECTROGRAM || fl__speech_make_bands(f));
    if (ok && c->kind == FL_SPEECH_PLP) ok = fl__speech_plp_matrix(f);
    if (ok && c->kind == FL_SPEECH_MFCC)
        ok = (f->cosine = fl_keep(fl_cast(fl_speech_dct_matrix(c), FL_F32))) != NULL;
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
    fl_heap_free(f->plp);
    fl_heap_free(f);
}

FL_API int64_t fl_speech_features_dims(const fl_speech_features *f) {
    return fl_given(f, "fl_speech_features_dims", "the features") ? f->dims * (f->c.deltas + 1) : 0;
}
FL_API const fl_speech_conf *fl_speech_features_conf(const fl_speech_features *f) {
    return fl_given(f, "fl_speech_features_conf", "the features") ? &f->c : NULL;
}

/* The number of frames of n samples, including frames that reach beyond the last sample. */
static int64_t fl__speech_frames(const fl_speech_features *f, int64_t n) {
    const int64_t win = f->window->shape[0], hop = f->c.hop;
    if (f->c.edges == FL_SPEECH_MIRROR) return n ? (n + hop / 2) / hop : 0;
    if (f->c.edges == FL_SPEECH_REFLECT && n <= f->before) return 0;
    n += f->before + f->behind;
    return n < win || n == f->before + f->behind ? 0 : (n - win) / hop + 1;
}

/* The sample at position i of the padded sound of n samples, possibly mirrored; -1 for a zero. */
static int64_t fl__speech_sample_index(const fl_speech_features *f, int64_t i, int64_t n) {
    const bool twice = f->c.edges == FL_SPEECH_MIRROR;
    if (f->c.edges == FL_SPEECH_ZEROS) return i >= 0 && i < n ? i : -1;
    while (i < 0 || i >= n) i = i < 0 ? -i - twice : 2 * n - 2 + twice - i;
    return i;
}

/* Adds noise to samples at, ..., at + n - 1: independent of the cuts into pieces. */
static bool fl__speech_dither(const fl_speech_features *f, float *x, int64_t at, int64_t n) {
    enum { PIECE = 4096 };
    for (int64_t i = at / PIECE; f->c.dither > 0 && n && i * PIECE < at + n; i++) {
        fl_rng rng = fl_data_rng(f->c.seed, 0, i);
        fl_scope s = fl_scope_begin();
        fl_tensor *noise = fl_normal(FL_SHAPE(PIECE), 0, f->c.dither, FL_F32, &rng);
        const float *p = noise ? fl_map(noise, FL_READ) : NULL;
        for (int64_t k = 0; p && k < PIECE; k++)
            if (i * PIECE + k >= at && i * PIECE + k < at + n) x[i * PIECE + k - at] += p[k];
        if (p) fl_unmap(noise, FL_READ);
        fl_scope_end(&s);
        if (!p) return false;
    }
    return true;
}

/* Cepstra c[0 ... n] of the inverse of the linear predictor 1 + a[1] z^-1 + ... + a[n] z^-n computed from
   autocorrelations r[0 ... n] (Durbin's recursion); c[0] is the logarithm of the prediction error. */
static void fl__speech_lpc_cepstra(const double *r, int64_t n, double *c) {
    double a[FL__SPEECH_POLES + 1] = {1}, old[FL__SPEECH_POLES + 1], error = r[0];
    for (int64_t i = 1; i <= n; i++) {
        double k = 0;
        for (int64_t j = 0; j < i; j++) k -= a[j] * r[i - j];
        k = error > 0 ? k / error : 0;
        memcpy(old, a, sizeof a);
        for (int64_t j = 1; j < i; j++) a[j] = old[j] + k * old[i - j];
        a[i] = k;
        error *= fmax(1 - k * k, 1e-5);
    }
    c[0] = log(fmax(error, 1e-300));
    for (int64_t i = 1; i <= n; i++) {
        double sum = 0;
        for (int64_t j = 1; j < i; j++) sum += (double)(i - j) * a[j] * c[i - j];
        c[i] = -a[i] - sum / (double)i;
    }
}

/* PLP cepstra from the logarithms of the bands, followed by energies. */
static fl_tensor *fl__speech_plp(const fl_speech_features *f, fl_tensor *y) {
    const fl_speech_conf *c = &f->c;
    const int64_t n = fl__speech_lpc_order(c), from = y->shape[y->ndim - 1], b = c->bands;
    const double power = fl_option(c->compress, 0.33333), scale = fl_option(c->cepstral_scale, 1);
    fl_shape shape = fl_shape_of(y);
    shape.dim[shape.ndim - 1] = f->dims;
    fl_tensor *out = fl_data_host_tensor(shape, FL_F32);
    const float *source = out ? fl_map(y, FL_READ) : NULL;
    float *result = source ? fl_map(out, FL_WRITE) : NULL;
    const int64_t rows = result ? fl_numel(out) / f->dims : 0;
    for (int64_t t = 0; t < rows; t++) {
        const float *in = source + t * from;
        float *to = result + t * f->dims;
        double r[FL__SPEECH_POLES + 1] = {0}, cepstra[FL__SPEECH_POLES + 1];
        for (int64_t i = 0; i < b; i++) {
            const double v = exp(power * (double)in[i]);
            for (int64_t k = 0; k <= n; k++) r[k] += v * f->plp[i * (n + 1) + k];
        }
        fl__speech_lpc_cepstra(r, n, cepstra);
        const bool first = f->dims > c->cepstra && f->energy_at == 0;
        for (int64_t i = 0; i < c->cepstra; i++) {
            const int64_t k = fl__speech_cepstrum(c, i);
            to[i + first] = (float)(cepstra[k] * scale * fl__speech_lift(c, k));
        }
        if (c->energy) to[f->energy_at] = in[b];
    }
    if (result) fl_unmap(out, FL_WRITE);
    if (source) fl_unmap(y, FL_READ);
    return result ? out : NULL;
}

/* Normalises energies by their maximum, and subtracts the means of the other features, per sound. */
static fl_tensor *fl__speech_over_sound(const fl_speech_features *f, fl_tensor *y) {
    const fl_speech_conf *c = &f->c;
    fl_tensor *out = fl_contiguous(fl_clone(y));
    const int64_t t = y->shape[y->ndim - 2], d = f->dims, lines = t ? fl_numel(y) / (t * d) : 0;
    const double floor = fl_option(c->energy_range, 50) * log(10) / 10;
    const double scale = fl_option(c->energy_scale, 0.1);
    float *all = out ? fl_map(out, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; all && i < lines * d; i++) {
        float *p = all + i / d * t * d + i % d;
        double most = p[0], mean = 0;
        for (int64_t k = 0; k < t; k++) most = fmax(most, p[k * d]), mean += p[k * d] / (double)t;
        for (int64_t k = 0; k < t; k++) {
            if (i % d != f->energy_at) p[k * d] -= (float)(c->subtract_mean ? mean : 0);
            else if (c->energy_normalize) p[k * d] = (float)(1 - scale * fmin(most - p[k * d], floor));
        }
    }
    if (all) fl_unmap(out, FL_READ | FL_WRITE);
    return all ? out : NULL;
}

/* Steps after the kernel: PLP, and normalisation that needs the whole sound. */
static fl_tensor *fl__speech_finish(const fl_speech_features *f, fl_tensor *y) {
    if (f->plp) y = fl__speech_plp(f, y);
    if (y && (f->c.subtract_mean || f->c.energy_normalize)) y = fl__speech_over_sound(f, y);
    if (!y) return NULL;
    if (f->c.range > 0 && fl_numel(y)) {
        const fl_axes last = {2, {-2, -1}, true};
        y = fl_maximum(y, fl_sub(fl_amax(y, last), fl_num(f->c.range)));
    }
    if (f->c.whisper) y = fl_mul(fl_add(y, fl_num(4)), fl_num(0.25));
    const int64_t orders = f->c.deltas, window = f->c.delta_window, acc = f->c.acc_window;
    if (!orders) return y;
    if (orders == 1 || !acc || acc == window) return fl_speech_deltas(y, window, orders);
    y = fl_speech_deltas(y, window, 1);
    if (!y) return NULL;
    fl_tensor *part[] = {fl_slice(y, -1, 0, f->dims, 1), fl_slice(y, -1, f->dims, 2 * f->dims, 1)};
    part[1] = part[1] ? fl_speech_deltas(part[1], acc, orders - 1) : NULL;
    return part[0] && part[1] ? fl_concat(part, 2, -1) : NULL;
}

FL_API fl_tensor *fl_speech_features_compute(const fl_speech_features *f, fl_tensor *x) {
    const char *fn = "fl_speech_features_compute";
    if (fl_is_null_arg(fn, f) || fl_is_null_arg(fn, x)) return NULL;
    if (x->ndim < 1 || x->ndim > FL_MAX_DIMS - 1 || !fl_dtype_is_float(x->dtype))
        return fl_err_null("%s: got x %s of shape %s, expected floats [..., t]", fn, fl_dtype_name(x->dtype),
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
    const float *source = wide ? fl_map(in, FL_READ) : NULL;
    float *padded = source ? fl_map(wide, FL_WRITE) : NULL;
    float *noisy = padded && c->dither > 0 ? fl_heap_alloc((size_t)n * sizeof *noisy + 1) : NULL;
    bool ok = padded && (!(c->dither > 0) || noisy);
    if (padded && !ok) fl_raise();
    for (int64_t k = 0; ok && k < lines; k++) {
        const float *from = source + k * given;
        float *to = padded + k * need, gain = (float)c->gain;
        int64_t have = given < n ? given : n; /* zeros from there to n */
        if (noisy) {
            for (int64_t i = 0; i < n; i++) noisy[i] = i < have ? from[i] * gain : 0;
            ok = fl__speech_dither(f, noisy, 0, n);
            from = noisy, gain = 1, have = n;
        }
        for (int64_t i = 0; i < need && ok; i++) {
            const int64_t index = fl__speech_sample_index(f, i - f->before, n);
            to[i] = index < 0 || index >= have ? 0 : from[index] * gain;
            if (i != f->before) continue;
            const int64_t whole = have < need - i ? have : need - i; /* contiguous samples */
            for (int64_t j = 1; j < whole; j++) to[i + j] = from[j] * gain;
            if (whole) i += whole - 1;
        }
    }
    fl_heap_free(noisy);
    if (padded) fl_unmap(wide, FL_WRITE);
    if (source) fl_unmap(in, FL_READ);
    if (ok) y = fl_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a);
    return fl_scope_return(&s, y ? fl__speech_finish(f, y) : NULL);
}

FL_API fl_var *fv_speech_features_compute(const fl_speech_features *f, fl_var *x) {
    const char *fn = "fv_speech_features_compute";
    if (fl_is_null_arg(fn, f) || fl_is_null_arg(fn, x)) return NULL;
    if (!x->requires_grad || !fl_grad_enabled()) return fv_const(fl_speech_features_compute(f, fv_value(x)));
    const fl_tensor *v = fv_value(x);
    const fl_speech_conf *c = &f->c;
    if (v->ndim < 1 || v->dtype != FL_F32 || c->dither > 0 || c->deltas || c->range > 0 || c->pad_to ||
        c->drop_last || c->kind == FL_SPEECH_PLP || c->subtract_mean || c->energy_normalize)
        return fl_err_null("%s: got x %s of shape %s, expected f32 [..., t]; a gradient needs features "
                           "without PLP, normalisation over the sound, dither, deltas, range, pad_to and "
                           "drop_last", fn, fl_dtype_name(v->dtype), FL_SHAPE_TEXT(v));
    fl_scope s = fl_scope_begin();
    const int64_t n = v->shape[v->ndim - 1], frames = fl__speech_frames(f, n);
    const int64_t need = frames ? (frames - 1) * c->hop + f->window->shape[0] : 0;
    fl_tensor *at = fl_data_host_tensor(FL_SHAPE(need), FL_I64),
              *weight = fl_data_host_tensor(FL_SHAPE(need), FL_F32);
    int64_t *place = at && weight ? fl_map(at, FL_WRITE) : NULL;
    float *gain = place ? fl_map(weight, FL_WRITE) : NULL;
    for (int64_t i = 0; gain && i < need; i++) {
        const int64_t index = fl__speech_sample_index(f, i - f->before, n);
        place[i] = index < 0 ? 0 : index, gain[i] = index < 0 ? 0 : (float)c->gain;
    }
    if (gain) fl_unmap(weight, FL_WRITE);
    if (place) fl_unmap(at, FL_WRITE);
    fl_var *wide = gain ? fv_mul(fv_index_select(x, -1, at), fv_const(weight)) : NULL;
    return fv_scope_return(&s,
                           wide ? fv_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a) : NULL);
}

/* ---- streaming ---- */

struct fl_speech_stream {
    const fl_speech_features *f;
    int64_t seen, start, n, cap; /* samples received; x holds samples start, ..., start + n - 1 */
    int64_t done;                /* frames returned */
    float *x;
};

FL_API fl_speech_stream *fl_speech_stream_new(const fl_speech_features *f) {
    if (!fl_given(f, "fl_speech_stream_new", "the features")) return NULL;
    const fl_speech_conf *c = &f->c;
    const char *what = c->range > 0          ? "range"
                       : c->pad_to           ? "pad_to"
                       : c->drop_last        ? "drop_last"
                       : c->subtract_mean    ? "subtract_mean"
                       : c->energy_normalize ? "energy_normalize"
                       : c->deltas           ? "deltas"
                                             : NULL;
    if (what) return fl_fail("fl_speech_stream_new: .%s needs the whole sound", what), NULL;
    fl_speech_stream *s = fl_heap_alloc(sizeof *s);
    if (s) *s = (fl_speech_stream){.f = f};
    return s;
}

FL_API void fl_speech_stream_free(fl_speech_stream *s) {
    if (!s) return;
    fl_heap_free(s->x);
    fl_heap_free(s);
}

/* The number of frames whose samples, including mirrored ones, are available. */
static int64_t fl__speech_ready(const fl_speech_stream *s, int64_t seen, bool end) {
    const fl_speech_features *f = s->f;
    const int64_t win = f->window->shape[0];
    if (end) return fl__speech_frames(f, seen);
    if (seen <= f->before || seen + f->before < win) return 0;
    return (seen + f->before - win) / f->c.hop + 1;
}

/* Frames s->done to ready - 1, of a sound of which `seen` samples were received. */
static fl_tensor *fl__speech_stream_frames(const fl_speech_stream *s, int64_t ready, int64_t seen) {
    const fl_speech_features *f = s->f;
    const int64_t win = f->window->shape[0], frames = ready - s->done;
    const int64_t need = frames > 0 ? (frames - 1) * f->c.hop + win : 0;
    fl_tensor *wide = fl_data_host_tensor(FL_SHAPE(need), FL_F32);
    float *p = wide ? fl_map(wide, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < need; i++) {
        const int64_t at = s->done * f->c.hop - f->before + i, index = fl__speech_sample_index(f, at, seen);
        p[i] = index < 0 ? 0 : s->x[index - s->start];
    }
    if (p) fl_unmap(wide, FL_WRITE);
    fl_tensor *y = p ? fl_spectrum(wide, f->window, f->bands, f->first, f->cosine, f->a) : NULL;
    return y ? fl__speech_finish(f, y) : NULL;
}

FL_API fl_tensor *fl_speech_stream_push(fl_speech_stream *s, const float *x, int64_t n, bool end) {
    if (!fl_given(s, "fl_speech_stream_push", "the stream")) return NULL;
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
    if (fl__speech_dither(f, to, s->seen, n))
        y = fl__speech_stream_frames(s, ready > s->done ? ready : s->done, seen);
    y = fl_scope_return(&scope, y);
    fl_quiet(-1);
    if (!y) return s->n = kept, NULL;
    s->seen = seen, s->done = ready > s->done ? ready : s->done;
    if (end) return s->seen = s->start = s->n = s->done = 0, y;
    /* Samples that later frames need, and those the end may mirror. */
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
