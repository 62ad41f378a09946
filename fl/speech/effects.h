/* fl/speech/effects.h - audio augmentation: noise, reverb, echo, speed, tempo, codecs, masks; JSON chains

   Deterministic given the random generator. */
#ifndef FL_SPEECH_EFFECTS_H
#define FL_SPEECH_EFFECTS_H
#include "audio.h"
#include "augment.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All functions take floats x [..., t] and return f32 of the same shape unless noted. All leading dimensions
   get the same random effect. */

/* Adds noise [n], n <= t, from sample `start` on, wrapping around at the end, `snr` decibels below x: scaled
   by rms(x) / (rms(noise) 10^(snr / 20)). Nothing is added if either is silent. */
FL_API fl_tensor *fl_speech_add_noise(fl_tensor *x, fl_tensor *noise, int64_t start, double snr);
/* Convolves by FFT: y[i] = sum over k of h[k] x[i + at - k]; h [taps], 0 <= at < taps. */
FL_API fl_tensor *fl_speech_convolve(fl_tensor *x, fl_tensor *h, int64_t at);
/* Convolves x with a room impulse response, whose loudest sample becomes time 0, and restores x's power. */
FL_API fl_tensor *fl_speech_reverb(fl_tensor *x, fl_tensor *response);
/* Resamples to play faster by a factor of 0.01 to 100, in hundredths; shifts the pitch: [..., t / factor]. */
FL_API fl_tensor *fl_speech_speed(fl_tensor *x, double factor);
/* Plays faster by a factor of 0.1 to 10 at the same pitch: overlapping windows of 30 ms are placed where they
   correlate best (WSOLA, Verhelst and Roelands 1993). [..., t / factor] */
FL_API fl_tensor *fl_speech_tempo(fl_tensor *x, double rate, double factor);
/* Simulates a telephone line: 8 kHz and the 256 levels of FL_SPEECH_MULAW or FL_SPEECH_ALAW. */
FL_API fl_tensor *fl_speech_telephone(fl_tensor *x, int64_t rate, fl_speech_coding coding);

typedef struct fl_speech_echo_opts {
    fl_opts_guard guard_;
    double initial, rt60, first_delay; /* gain of the first echo; seconds to -60 dB; seconds between echoes */
    int64_t repeat;                    /* number of trains of echoes */
    double jitter;                     /* each delay and decay is scaled by j, 1 - jitter to 1 + jitter */
    char _end;
} fl_speech_echo_opts;
/* Adds trains of echoes to x, each until it falls below 1e-3 of its first echo: every echo is 1 + j
   first_delay rate samples later and 10^(-3 j first_delay / rt60) times the one before, with j drawn each
   time. rt60 must be at most 10^4 first_delay, unless this is 0. */
FL_API fl_tensor *fl_speech_echo(fl_tensor *x, double rate, fl_rng *rng, fl_speech_echo_opts o);

typedef struct fl_speech_wave_augment_opts {
    fl_opts_guard guard_;
    double rate, low, high;    /* 0 -> 16000, 0, rate / 2 */
    int64_t bins;              /* mel bins between low and high; 0 -> 80 */
    int64_t band_width, bands; /* number of masks of 0 to band_width bins; FL_I0: none; 0 -> 27, 2 */
    int64_t width, masks;      /* number of masks of 0 to width samples; 0 -> one second, 2 */
    double share;              /* maximal fraction of samples per mask; 0 -> 1 */
    char _end;
} fl_speech_wave_augment_opts;
/* SpecAugment of a waveform: removes frequency bands by the difference of two Blackman-windowed sincs of at
   most 20,000 taps, and silences time intervals. */
#define fl_speech_wave_augment(x, ...) FL__SPEECH_WAVE_AUGMENT(x, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_WAVE_AUGMENT(x, rng, ...) \
    fl_speech_wave_augment_opt(x, rng, FL_LITERAL(fl_speech_wave_augment_opts, __VA_ARGS__))
FL_API fl_tensor *fl_speech_wave_augment_opt(fl_tensor *x, fl_rng *rng, fl_speech_wave_augment_opts o);

/* A chain of effects from Flashlight's JSON, {"soundEffectChain": [{"type": T, config}, ...]}, where the
   config of T is "tConfig". T is AdditiveNoise, Amplify, ClampAmplitude, Normalize, ReverbEcho or
   TimeStretch of Flashlight, or an extension: Reverb {proba, listFilePath}, Speed {proba, minFactor,
   maxFactor}, Clip {proba, minLevel, maxLevel}, Telephone {proba, alaw, sampleRate}, WaveAugment {proba,
   sampleRate, bandWidth, bands, width, masks}. File lists have a path per line, or "id path ...".
   Thread-safe. */
typedef struct fl_speech_chain fl_speech_chain;
typedef struct fl_speech_chain_opts {
    fl_opts_guard guard_;
    const char *root; /* folder of relative paths in file lists; NULL: the current folder */
    int64_t rate;     /* noise and impulse responses are resampled to it; 0: not resampled */
    int64_t max_list_bytes; /* limit for all file lists together, counted per use; 0 -> 2^28 */
    char _end;
} fl_speech_chain_opts;
/* Loads a chain. Returns NULL after fl_fail, with file, offset and line. */
#define fl_speech_chain_load(...) FL__SPEECH_CHAIN_LOAD(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_CHAIN_LOAD(path, ...) \
    fl_speech_chain_load_opt(path, FL_LITERAL(fl_speech_chain_opts, __VA_ARGS__))
FL_API fl_speech_chain *fl_speech_chain_load_opt(const char *path, fl_speech_chain_opts o);
FL_API void fl_speech_chain_free(fl_speech_chain *c); /* NULL is allowed */
/* Applies the chain: f32 [..., t']. Deterministic given x and rng. */
FL_API fl_tensor *fl_speech_chain_apply(const fl_speech_chain *c, fl_tensor *x, fl_rng *rng);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_EFFECTS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_EFFECTS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_EFFECTS_IMPL
#define FL_SPEECH_EFFECTS_IMPL
#include "features.h"
#include "resample.h"
#include "../ops/copy.h"
#include "../ops/fft.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include "../text/dictionary.h"
#include <math.h>
#include <string.h>

/* A copy of x as contiguous f32 on the host, for in-place changes. */
static fl_tensor *fl__effect_sound(const char *fn, fl_tensor *x) {
    if (fl_is_null_arg(fn, x)) return NULL;
    if (x->ndim < 1 || !fl_dtype_is_float(x->dtype))
        return fl_err_null("%s: got %s of shape %s, expected floats [..., t]", fn, fl_dtype_name(x->dtype),
                           FL_SHAPE_TEXT(x));
    fl_tensor *y = fl_data_host_tensor(fl_shape_of(x), FL_F32);
    fl_tensor *in = y ? fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F32)) : NULL;
    const float *from = in ? fl_map(in, FL_READ) : NULL;
    float *to = from ? fl_map(y, FL_WRITE) : NULL;
    if (to) memcpy(to, from, (size_t)fl_numel(in) * sizeof *to), fl_unmap(y, FL_WRITE);
    if (from) fl_unmap(in, FL_READ);
    return to ? y : NULL;
}

/* Root mean square; -1 after an error. */
static double fl__effect_rms(fl_tensor *x) {
    const float *p = fl_map(x, FL_READ);
    const int64_t n = fl_numel(x);
    double sum = 0;
    if (!p) return -1;
    for (int64_t i = 0; i < n; i++) sum += (double)p[i] * p[i];
    fl_unmap(x, FL_READ);
    return n ? sqrt(sum / (double)n) : 0;
}

static int64_t fl__effect_length(const fl_tensor *x) { return x->shape[x->ndim - 1]; }
static int64_t fl__effect_lines(const fl_tensor *x) {
    const int64_t t = fl__effect_length(x);
    return t ? fl_numel(x) / t : 0;
}

/* Multiplies y in place and returns it; NULL after an error. */
static fl_tensor *fl__effect_scale(fl_tensor *y, double by) {
    float *v = fl_map(y, FL_READ | FL_WRITE);
    for (int64_t i = 0; v && i < fl_numel(y); i++) v[i] *= (float)by;
    if (v) fl_unmap(y, FL_READ | FL_WRITE);
    return v ? y : NULL;
}

FL_API fl_tensor *fl_speech_add_noise(fl_tensor *x, fl_tensor *noise, int64_t start, double snr) {
    const char *fn = "fl_speech_add_noise";
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl__effect_sound(fn, x), *w = y ? fl__effect_sound(fn, noise) : NULL;
    if (!w) return fl_scope_return(&s, NULL);
    const int64_t t = fl__effect_length(y), n = fl_numel(w);
    if (n > t || start < 0 || (start && start >= t) || !isfinite(snr))
        return fl_scope_return(&s, fl_err_null("%s: got noise of %lld samples, start %lld, snr %g for %lld "
                                               "samples; expected no more noise than sound, 0 <= start < t, "
                                               "a finite snr", fn,
                                               (long long)n, (long long)start, snr, (long long)t));
    const double loud = fl__effect_rms(y), noisy = fl__effect_rms(w);
    const float gain = noisy > 0 ? (float)(loud / (noisy * pow(10, snr / 20))) : 0;
    const float *from = loud < 0 || noisy < 0 ? NULL : fl_map(w, FL_READ);
    float *to = from ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t k = 0; to && k < fl__effect_lines(y); k++)
        for (int64_t i = 0; i < n; i++) to[k * t + (start + i) % t] += gain * from[i];
    if (to) fl_unmap(y, FL_READ | FL_WRITE);
    if (from) fl_unmap(w, FL_READ);
    return fl_scope_return(&s, to ? y : NULL);
}

/* ---- filters ---- */

FL_API fl_tensor *fl_speech_convolve(fl_tensor *x, fl_tensor *h, int64_t at) {
    const char *fn = "fl_speech_convolve";
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl__effect_sound(fn, x), *w = in ? fl__effect_sound(fn, h) : NULL;
    if (!w) return fl_scope_return(&s, NULL);
    const int64_t t = fl__effect_length(in), taps = fl_numel(w);
    if (h->ndim != 1 || at < 0 || at >= taps)
        return fl_scope_return(&s, fl_err_null("%s: got filter %s, at %lld; expected [taps], 0 <= at < taps",
                                               fn, FL_SHAPE_TEXT(h), (long long)at));
    if (!fl_numel(in)) return fl_scope_return(&s, in);
    int64_t n = 2;
    while (n < t + taps) n *= 2;
    fl_tensor *a = fl_contiguous(fl_rfft(in, -1, .n = n)),
              *b = a ? fl_contiguous(fl_rfft(w, -1, .n = n)) : NULL;
    const float *q = b ? fl_map(b, FL_READ) : NULL;
    float *p = q ? fl_map(a, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0, bins = n / 2 + 1; p && i < fl_numel(a) / 2; i++) {
        const float re = p[2 * i], im = p[2 * i + 1], *r = q + i % bins * 2;
        p[2 * i] = re * r[0] - im * r[1], p[2 * i + 1] = re * r[1] + im * r[0];
    }
    if (p) fl_unmap(a, FL_READ | FL_WRITE);
    if (q) fl_unmap(b, FL_READ);
    if (!p) return fl_scope_return(&s, NULL);
    return fl_scope_return(&s, fl_contiguous(fl_slice(fl_irfft(a, n, -1), -1, at, at + t, 1)));
}

FL_API fl_tensor *fl_speech_reverb(fl_tensor *x, fl_tensor *response) {
    fl_scope s = fl_scope_begin();
    fl_tensor *h = fl__effect_sound("fl_speech_reverb", response);
    const float *p = h ? fl_map(h, FL_READ) : NULL;
    int64_t at = 0;
    for (int64_t k = 0; p && k < fl_numel(h); k++)
        if (fabsf(p[k]) > fabsf(p[at])) at = k;
    if (p) fl_unmap(h, FL_READ);
    fl_tensor *in = p ? fl__effect_sound("fl_speech_reverb", x) : NULL;
    fl_tensor *y = in ? fl_speech_convolve(in, h, at) : NULL;
    const double before = y ? fl__effect_rms(in) : -1, now = y ? fl__effect_rms(y) : -1;
    if (before < 0 || now < 0) return fl_scope_return(&s, NULL);
    return fl_scope_return(&s, now > 0 ? fl__effect_scale(y, before / now) : y);
}

FL_API fl_tensor *fl_speech_echo(fl_tensor *x, double rate, fl_rng *rng, fl_speech_echo_opts o) {
    const char *fn = "fl_speech_echo";
    fl_scope s = fl_scope_begin();
    if (!(rate > 0) || !(o.initial >= 0) || !(o.rt60 > 0) || !(o.first_delay >= 0) || o.repeat < 0 ||
        !(o.jitter >= 0 && o.jitter < 1) || (o.first_delay > 0 && o.rt60 > 1e4 * o.first_delay))
        return fl_scope_return(&s, fl_err_null("%s: got rate %g, initial %g, rt60 %g, first_delay %g, repeat "
                                               "%lld, jitter %g; expected rate and rt60 > 0, the others >= "
                                               "0, jitter < 1, rt60 <= 10^4 first_delay", fn, rate, o.initial,
                                               o.rt60, o.first_delay, (long long)o.repeat, o.jitter));
    fl_tensor *y = fl__effect_sound(fn, x), *in = y ? fl__effect_sound(fn, x) : NULL;
    const int64_t t = in ? fl__effect_length(in) : 0;
    const float *source = in ? fl_map(in, FL_READ) : NULL;
    float *sum = source ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t train = 0; sum && train < o.repeat; train++) {
        int64_t at = 0;
        for (double left = 1; left > 1e-3;) {
            at += 1 + (int64_t)(fl_speech_between(rng, 1 - o.jitter, 1 + o.jitter) * o.first_delay * rate);
            if (at >= t) break;
            const float gain = (float)(o.initial * left);
            for (int64_t k = 0; k < fl__effect_lines(in); k++) {
                const float *from = source + k * t;
                float *to = sum + k * t + at;
                for (int64_t i = 0; i < t - at; i++) to[i] += gain * from[i];
            }
            left *= pow(10, -3 * fl_speech_between(rng, 1 - o.jitter, 1 + o.jitter) * o.first_delay / o.rt60);
            if (o.first_delay == 0) break;
        }
    }
    if (sum) fl_unmap(y, FL_READ | FL_WRITE);
    if (source) fl_unmap(in, FL_READ);
    return fl_scope_return(&s, sum ? y : NULL);
}

/* Adds `gain` times a low-pass filter to h, centred at tap `middle`. `cut` is the cut-off as a fraction of
   the rate. */
static void fl__effect_low_pass(float *h, int64_t middle, int64_t half, double cut, double gain) {
    const double pi = 3.141592653589793;
    double sum = 0;
    for (int round = 0; round < 2; round++)
        for (int64_t i = -half; i <= half; i++) {
            const double u = (double)(i + half) / (double)(half ? 2 * half : 1);
            const double w = 0.42 - 0.5 * cos(2 * pi * u) + 0.08 * cos(4 * pi * u);
            const double v = w * (i ? sin(2 * pi * cut * (double)i) / (pi * (double)i) : 2 * cut);
            if (round) h[middle + i] += (float)(gain * v / sum);
            else sum += v;
        }
}

/* Half the number of taps of such a filter; -1 if it would need more than 20,000. */
static int64_t fl__effect_half_taps(double cut) {
    const double half = floor(2 / (cut / 4 + 1e-6));
    return 2 * half + 1 > 20000 ? -1 : (int64_t)half;
}

/* Removes the band between two frequencies, as fractions of the rate. */
static fl_tensor *fl__effect_band_stop(fl_tensor *x, double low, double high) {
    const int64_t a = fl__effect_half_taps(low), b = fl__effect_half_taps(high), middle = a > b ? a : b;
    if (b < 0 || low >= high) return x;
    fl_tensor *h = fl_data_host_tensor(FL_SHAPE(2 * middle + 1), FL_F32);
    float *tap = h ? fl_map(h, FL_WRITE) : NULL;
    if (!tap) return NULL;
    memset(tap, 0, (size_t)fl_numel(h) * sizeof *tap);
    tap[middle] = 1;
    fl__effect_low_pass(tap, middle, b, high, -1);
    if (a >= 0) fl__effect_low_pass(tap, middle, a, low, 1);
    fl_unmap(h, FL_WRITE);
    return fl_speech_convolve(x, h, middle);
}

FL_API fl_tensor *fl_speech_wave_augment_opt(fl_tensor *x, fl_rng *rng, fl_speech_wave_augment_opts o) {
    const char *fn = "fl_speech_wave_augment";
    o.rate = o.rate == 0 ? 16000 : o.rate, o.high = o.high == 0 ? o.rate / 2 : o.high;
    o.bins = o.bins ? o.bins : 80, o.share = fl_option(o.share, 1);
    o.band_width = fl_option_int(o.band_width, 27), o.bands = fl_option_int(o.bands, 2);
    o.width = fl_option_int(o.width, (int64_t)o.rate), o.masks = fl_option_int(o.masks, 2);
    fl_scope s = fl_scope_begin();
    if (!(o.rate > 0) || !(o.low >= 0 && o.low < o.high && o.high <= o.rate / 2) || o.bins < 1 ||
        o.band_width < 0 || o.bands < 0 || o.width < 0 || o.masks < 0 || !(o.share >= 0 && o.share <= 1))
        return fl_scope_return(&s, fl_err_null("%s: got %g to %g Hz at rate %g, %lld bins, %lld masks of up "
                                               "to %lld bins, %lld of up to %lld samples, share %g; expected "
                                               "0 <= low < high <= rate / 2, bins >= 1, share in [0, 1]", fn,
                                               o.low, o.high, o.rate,
                                               (long long)o.bins, (long long)o.bands, (long long)o.band_width,
                                               (long long)o.masks, (long long)o.width, o.share));
    fl_tensor *y = fl__effect_sound(fn, x);
    const double low = fl_speech_to_scale(FL_SPEECH_MEL, o.low),
                 step = (fl_speech_to_scale(FL_SPEECH_MEL, o.high) - low) / (double)o.bins;
    for (int64_t k = 0; y && k < o.bands; k++) {
        const int64_t n = fl_speech_draw(rng, 0, o.band_width < o.bins ? o.band_width : o.bins),
                      at = fl_speech_draw(rng, 0, o.bins - n);
        y = fl__effect_band_stop(y, fl_speech_to_hertz(FL_SPEECH_MEL, low + step * (double)at) / o.rate,
                                 fl_speech_to_hertz(FL_SPEECH_MEL, low + step * (double)(at + n)) / o.rate);
    }
    const int64_t t = y ? fl__effect_length(y) : 0, most = (int64_t)(o.share * (double)t);
    float *v = y ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t k = 0; v && k < o.masks; k++) {
        const int64_t n = fl_speech_draw(rng, 0, o.width < most ? o.width : most),
                      at = fl_speech_draw(rng, 0, t - n);
        for (int64_t line = 0; line < fl__effect_lines(y); line++)
            memset(v + line * t + at, 0, (size_t)n * sizeof *v);
    }
    if (v) fl_unmap(y, FL_READ | FL_WRITE);
    return fl_scope_return(&s, v ? y : NULL);
}

/* ---- time ---- */

FL_API fl_tensor *fl_speech_speed(fl_tensor *x, double factor) {
    if (!(factor >= 0.01 && factor <= 100))
        return fl_err_null("fl_speech_speed: factor must be in [0.01, 100], got %g", factor);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl__effect_sound("fl_speech_speed", x);
    return fl_scope_return(&s, in ? fl_speech_resample(in, (int64_t)(factor * 100 + 0.5), 100) : NULL);
}

/* The position around `at` where a window of x matches the one at `like` best: the highest correlation
   divided by the window's norm. */
static int64_t fl__effect_best_match(const float *x, int64_t like, int64_t at, int64_t window,
                                     int64_t search) {
    int64_t best = at;
    double most = -INFINITY;
    for (int64_t k = at - search; k <= at + search; k++) {
        float dot = 0, power = 1e-9f;
        for (int64_t i = 0; i < window; i += 2) /* every other sample is accurate enough */
            dot += x[like + i] * x[k + i], power += x[k + i] * x[k + i];
        const double score = dot / sqrt((double)power);
        if (score > most) most = score, best = k;
    }
    return best;
}

FL_API fl_tensor *fl_speech_tempo(fl_tensor *x, double rate, double factor) {
    const char *fn = "fl_speech_tempo";
    if (!(factor >= 0.1 && factor <= 10) || !(rate >= 1000 && rate <= 1e6))
        return fl_err_null("%s: got factor %g, rate %g; expected a factor in [0.1, 10], a rate in [1000, "
                           "1e6]", fn, factor, rate);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl__effect_sound(fn, x);
    if (!in || !fl_numel(in)) return fl_scope_return(&s, in);
    const int64_t t = fl__effect_length(in), lines = fl__effect_lines(in), hop = (int64_t)(rate * 0.015),
                  search = (int64_t)(rate * 0.01), pad = 3 * hop + search;
    const int64_t n = (int64_t)((double)t / factor + 0.5), wide = t + 2 * pad;
    fl_shape shape = fl_shape_of(in);
    shape.dim[shape.ndim - 1] = n;
    fl_tensor *y = fl_data_host_tensor(shape, FL_F32);
    float *mean = y ? fl_heap_alloc((size_t)wide * sizeof *mean) : NULL; /* sum of the lines, zero-padded */
    if (!mean) return fl_scope_return(&s, fl_raise());
    const float *source = fl_map(in, FL_READ);
    float *result = source ? fl_map(y, FL_WRITE) : NULL;
    memset(mean, 0, (size_t)wide * sizeof *mean);
    if (result) memset(result, 0, (size_t)fl_numel(y) * sizeof *result);
    for (int64_t i = 0; result && i < lines * t; i++) mean[pad + i % t] += source[i];
    int64_t from = 0;
    for (int64_t k = -1; result && k * hop < n; k++) { /* windows of two hops, overlapping by one */
        const int64_t ideal = (int64_t)((double)(k * hop) * factor);
        if (k < 0) from = -hop;
        else from = fl__effect_best_match(mean + pad, from + hop, ideal < t ? ideal : t, 2 * hop, search);
        for (int64_t i = 0; i < 2 * hop; i++) {
            const int64_t to = k * hop + i, at = from + i;
            const float w = (float)(0.5 - 0.5 * cos(3.141592653589793 * (double)i / (double)hop));
            if (to < 0 || to >= n || at < 0 || at >= t) continue;
            for (int64_t line = 0; line < lines; line++)
                result[line * n + to] += w * source[line * t + at];
        }
    }
    if (result) fl_unmap(y, FL_WRITE);
    if (source) fl_unmap(in, FL_READ);
    fl_heap_free(mean);
    return fl_scope_return(&s, result ? y : NULL);
}

FL_API fl_tensor *fl_speech_telephone(fl_tensor *x, int64_t rate, fl_speech_coding coding) {
    const char *fn = "fl_speech_telephone";
    if (rate < 1 || (coding != FL_SPEECH_MULAW && coding != FL_SPEECH_ALAW))
        return fl_err_null("%s: got rate %lld, encoding %d; expected a positive rate, FL_SPEECH_MULAW or "
                           "_ALAW", fn, (long long)rate, (int)coding);
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl__effect_sound(fn, x), *y = in ? fl_speech_resample(in, rate, 8000) : NULL;
    float *v = y ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; v && i < fl_numel(y); i++) {
        const float wide = v[i] * 32768, cut = wide > 32767 ? 32767 : wide < -32768 ? -32768 : wide;
        const int sample = (int)lrintf(cut);
        v[i] = (float)(coding == FL_SPEECH_MULAW ? fl_speech_mulaw_decode(fl_speech_mulaw_encode(sample))
                                                 : fl_speech_alaw_decode(fl_speech_alaw_encode(sample))) /
               32768;
    }
    if (v) fl_unmap(y, FL_READ | FL_WRITE);
    else y = NULL;
    if (y && rate != 8000) y = fl_speech_resample(y, 8000, rate);
    return fl_scope_return(&s, y ? fl_contiguous(fl_slice(y, -1, 0, fl__effect_length(in), 1)) : NULL);
}

/* ---- chains ---- */

enum { FL__EFFECT_VALUES = 10 };
typedef struct fl__effect fl__effect;
typedef struct fl__effect_kind {
    const char *type, *config;
    fl_tensor *(*run)(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng);
    struct {
        const char *name;
        double value;
    } field[FL__EFFECT_VALUES]; /* numeric fields of the config with defaults; value 0 is proba */
} fl__effect_kind;
struct fl__effect {
    const fl__effect_kind *kind;
    double v[FL__EFFECT_VALUES];
    char *list; /* file list: NUL-terminated paths; NULL if none is given */
    int64_t bytes, files;
};

struct fl_speech_chain {
    fl__effect *effect;
    int64_t n, cap, rate;
    int64_t list_bytes, max_list_bytes; /* read so far */
    char *root;
};

/* Loads a random file of the list: f32 [n]. */
static fl_tensor *fl__effect_file(const fl_speech_chain *c, const fl__effect *e, fl_rng *rng) {
    if (!e->files) return fl_fail("fl_speech_chain_apply: %s needs a listFilePath", e->kind->type),
    fl_raise();
    const char *line = e->list;
    for (int64_t k = fl_speech_draw(rng, 0, e->files - 1); k > 0; k--) line += strlen(line) + 1;
    const size_t root = c->root ? strlen(c->root) : 0, n = strlen(line);
    char *path = fl_heap_alloc(root + n + 2);
    if (!path) return fl_raise();
    if (root) memcpy(path, c->root, root), path[root] = '/';
    memcpy(path + root + (root > 0), line, n + 1);
    fl_tensor *t = fl_speech_load_audio(path, .channel = -1, .rate = c->rate);
    fl_heap_free(path);
    return t ? fl_select(t, 0, 0) : fl_raise();
}

static double fl__effect_draw(const fl__effect *e, int low, fl_rng *rng) {
    return fl_speech_between(rng, e->v[low], e->v[low + 1]);
}

static fl_tensor *fl__effect_noise(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    const int64_t t = fl__effect_length(x), n = (int64_t)((double)t * e->v[1]);
    const double snr = fl__effect_draw(e, 2, rng);
    const int64_t clips = fl_speech_draw(rng, (int64_t)e->v[4], (int64_t)e->v[5]),
                  start = t ? fl_speech_draw(rng, 0, t - 1) : 0;
    fl_tensor *sum = fl_data_host_tensor(FL_SHAPE(n), FL_F32);
    float *to = sum ? fl_map(sum, FL_WRITE) : NULL;
    if (to) memset(to, 0, (size_t)n * sizeof *to);
    bool ok = to != NULL;
    for (int64_t k = 0; ok && k < clips; k++) {
        fl_tensor *clip = fl__effect_file(c, e, rng);
        const float *from = clip ? fl_map(clip, FL_READ) : NULL;
        if (!(ok = from != NULL)) break;
        const int64_t m = fl_numel(clip), at = m ? fl_speech_draw(rng, 0, m - 1) : 0;
        for (int64_t i = 0; m && i < n; i++) to[i] += from[(at + i) % m];
        fl_unmap(clip, FL_READ);
    }
    if (to) fl_unmap(sum, FL_WRITE);
    return ok ? fl_speech_add_noise(x, sum, start, snr) : NULL;
}

static fl_tensor *fl__effect_amplify(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x,
                                     fl_rng *rng) {
    (void)c;
    fl_tensor *y = fl__effect_sound(e->kind->type, x);
    return y ? fl__effect_scale(y, fl__effect_draw(e, 1, rng)) : NULL;
}

/* The largest absolute value; -1 after an error. */
static float fl__effect_peak(fl_tensor *x) {
    const float *p = fl_map(x, FL_READ);
    float most = p ? 0 : -1;
    for (int64_t i = 0; p && i < fl_numel(x); i++) most = fmaxf(most, fabsf(p[i]));
    if (p) fl_unmap(x, FL_READ);
    return most;
}

static fl_tensor *fl__effect_limited(const fl__effect *e, fl_tensor *x, float most) {
    fl_tensor *y = fl__effect_sound(e->kind->type, x);
    float *v = y ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    for (int64_t i = 0; v && i < fl_numel(y); i++) v[i] = v[i] > most ? most : v[i] < -most ? -most : v[i];
    if (v) fl_unmap(y, FL_READ | FL_WRITE);
    return v ? y : NULL;
}

static fl_tensor *fl__effect_clamp(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    (void)c, (void)rng;
    return fl__effect_limited(e, x, 1);
}

static fl_tensor *fl__effect_clip(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    (void)c;
    const float peak = fl__effect_peak(x);
    return peak < 0 ? NULL : fl__effect_limited(e, x, peak * (float)fl__effect_draw(e, 1, rng));
}

static fl_tensor *fl__effect_normalize(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x,
                                       fl_rng *rng) {
    (void)c, (void)rng;
    fl_tensor *y = fl__effect_sound(e->kind->type, x);
    const float most = y ? fl__effect_peak(y) : -1;
    if (most < 0) return NULL;
    return most > (e->v[1] != 0 ? 1 : 0) ? fl__effect_scale(y, 1 / (double)most) : y;
}

static fl_tensor *fl__effect_echoes(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x,
                                    fl_rng *rng) {
    (void)c;
    fl_speech_echo_opts o = {.repeat = (int64_t)e->v[7], .jitter = e->v[8]};
    o.initial = fl__effect_draw(e, 1, rng), o.rt60 = fl__effect_draw(e, 3, rng);
    o.first_delay = fl__effect_draw(e, 5, rng);
    return fl_speech_echo(x, e->v[9], rng, o);
}

static fl_tensor *fl__effect_room(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    fl_tensor *response = fl__effect_file(c, e, rng);
    return response ? fl_speech_reverb(x, response) : NULL;
}

static fl_tensor *fl__effect_stretch(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x,
                                     fl_rng *rng) {
    (void)c;
    return fl_speech_tempo(x, e->v[3], 1 / fl__effect_draw(e, 1, rng));
}

static fl_tensor *fl__effect_speed(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    (void)c;
    return fl_speech_speed(x, fl__effect_draw(e, 1, rng));
}

static fl_tensor *fl__effect_telephone(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x,
                                       fl_rng *rng) {
    (void)c, (void)rng;
    return fl_speech_telephone(x, (int64_t)e->v[2], e->v[1] != 0 ? FL_SPEECH_ALAW : FL_SPEECH_MULAW);
}

static fl_tensor *fl__effect_wave(const fl_speech_chain *c, const fl__effect *e, fl_tensor *x, fl_rng *rng) {
    (void)c;
    int64_t n[4];
    for (int k = 0; k < 4; k++) n[k] = e->v[k + 2] > 0 ? (int64_t)e->v[k + 2] : FL_I0;
    return fl_speech_wave_augment(x, rng, .rate = e->v[1], .band_width = n[0], .bands = n[1], .width = n[2],
                                  .masks = n[3]);
}

static const fl__effect_kind fl__effect_kinds[] = {
    {"AdditiveNoise", "additiveNoiseConfig", fl__effect_noise,
     {{"proba", 1}, {"ratio", 1}, {"minSnr", 0}, {"maxSnr", 30}, {"nClipsMin", 1}, {"nClipsMax", 3}}},
    {"Amplify", "amplifyConfig", fl__effect_amplify, {{"proba", 1}, {"ratioMin", 0}, {"ratioMax", 1}}},
    {"ClampAmplitude", "clampAmplitudeConfig", fl__effect_clamp, {{"proba", 1}}},
    {"Normalize", "normalizeConfig", fl__effect_normalize, {{"proba", 1}, {"onlyIfTooHigh", 1}}},
    {"ReverbEcho", "reverbEchoConfig", fl__effect_echoes,
     {{"proba", 1}, {"initialMin", 0}, {"initialMax", .3}, {"rt60Min", .3}, {"rt60Max", 1.3},
      {"firstDelayMin", .01}, {"firstDelayMax", .03}, {"repeat", 3}, {"jitter", .1}, {"sampleRate", 16000}}},
    {"TimeStretch", "timeStretchConfig", fl__effect_stretch,
     {{"proba", 1}, {"minFactor", .8}, {"maxFactor", 1.25}, {"sampleRate", 16000}}},
    {"Reverb", "reverbConfig", fl__effect_room, {{"proba", 1}}},
    {"Speed", "speedConfig", fl__effect_speed, {{"proba", 1}, {"minFactor", .9}, {"maxFactor", 1.1}}},
    {"Clip", "clipConfig", fl__effect_clip, {{"proba", 1}, {"minLevel", .3}, {"maxLevel", 1}}},
    {"Telephone", "telephoneConfig", fl__effect_telephone,
     {{"proba", 1}, {"alaw", 0}, {"sampleRate", 16000}}},
    {"WaveAugment", "waveAugmentConfig", fl__effect_wave,
     {{"proba", 1}, {"sampleRate", 16000}, {"bandWidth", 27}, {"bands", 2}, {"width", 16000}, {"masks", 2}}},
};
enum { FL__EFFECT_KINDS = sizeof fl__effect_kinds / sizeof *fl__effect_kinds };

/* Reads a file list and compacts it in place to NUL-terminated paths. */
static bool fl__effect_list(fl_speech_chain *c, fl__effect *e, const char *path) {
    char *text = fl_text_read_file("fl_speech_chain_load", path, &e->bytes), *to = text;
    if (!text) return false;
    fl_heap_free(e->list);
    e->list = text, e->files = 0;
    c->list_bytes += e->bytes;
    if (c->list_bytes > c->max_list_bytes)
        return fl_fail("fl_speech_chain_load: %s: the file lists have %lld bytes, .max_list_bytes is %lld",
                       path, (long long)c->list_bytes, (long long)c->max_list_bytes);
    for (const char *p = text, *end = text + e->bytes; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p)), *at = p;
        int64_t n = 0, m = 0;
        if (!stop) stop = end;
        const char *first = fl_text_field(&at, stop, &n), *second = fl_text_field(&at, stop, &m);
        p = stop + 1;
        if (!first) continue;
        if (second) first = second, n = m;
        memmove(to, first, (size_t)n);
        to[n] = 0, to += n + 1, e->files++;
    }
    return e->files > 0 || fl_fail("fl_speech_chain_load: %s: the file list is empty", path);
}

/* Reads a number, or a boolean as 1 or 0. */
static bool fl__effect_number(fl_data_json *j, double *v) {
    const fl_data_json_event event = fl_data_json_next(j);
    if (event == FL_DATA_JSON_NUMBER) return fl_data_json_as_double(j, v);
    *v = event == FL_DATA_JSON_TRUE;
    return *v != 0 || event == FL_DATA_JSON_FALSE ||
           fl_data_json_fail(j, "expected a number, true or false");
}

/* The maximum of a field. The time to apply a chain is proportional to the counts. */
static double fl__effect_largest(const char *field) {
    static const char *const counts[] = {"nClipsMin", "nClipsMax", "repeat", "bands", "masks"};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        if (!strcmp(field, counts[k])) return 1000;
    return strcmp(field, "ratio") == 0 ? 1 : 1e9;
}

static bool fl__effect_config(fl_speech_chain *c, fl_data_json *j, fl__effect *e) {
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        int k = 0;
        if (!strcmp(j->text, "listFilePath")) {
            const char *path = fl_data_json_string(j);
            if (!path || !fl__effect_list(c, e, path)) return false;
            continue;
        }
        const char *name;
        while (k < FL__EFFECT_VALUES && (name = e->kind->field[k].name) && strcmp(name, j->text)) k++;
        if (k == FL__EFFECT_VALUES || !name)
            return fl_data_json_fail(j, "unknown field '%.99s' of %s", j->text, e->kind->type);
        if (!fl__effect_number(j, &e->v[k])) return false;
        const double largest = fl__effect_largest(name);
        if (!(fabs(e->v[k]) <= largest))
            return fl_data_json_fail(j, "%s of %s is too large: got %g, maximum %g", name, e->kind->type,
                                     e->v[k], largest);
    }
    return j->event != FL_DATA_JSON_ERROR;
}

static void fl__effect_init(fl__effect *e, const fl__effect_kind *kind) {
    e->kind = kind;
    for (int k = 0; k < FL__EFFECT_VALUES; k++) e->v[k] = kind->field[k].value;
}

static const fl__effect_kind *fl__effect_find(const char *name, bool config) {
    for (int k = 0; k < FL__EFFECT_KINDS; k++)
        if (!strcmp(name, config ? fl__effect_kinds[k].config : fl__effect_kinds[k].type))
            return &fl__effect_kinds[k];
    return NULL;
}

/* Reads an effect. Its config may precede its type, so the config selects the kind; the type must match. */
static bool fl__effect_read(fl_speech_chain *c, fl_data_json *j, fl__effect *e) {
    const fl__effect_kind *kind = NULL;
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        const fl__effect_kind *config = fl__effect_find(j->text, true);
        if (!strcmp(j->text, "type")) {
            const char *type = fl_data_json_string(j);
            if (!type) return false;
            if (!(kind = fl__effect_find(type, false)))
                return fl_data_json_fail(j, "unknown effect type '%.99s'", type);
            if (!e->kind) fl__effect_init(e, kind);
        } else if (!strcmp(j->text, "normalizeOnlyIfTooHigh")) {
            fl__effect_init(e, fl__effect_find("Normalize", false));
            if (!fl__effect_number(j, &e->v[1])) return false;
        } else if (config) {
            fl__effect_init(e, config);
            if (!fl__effect_config(c, j, e)) return false;
        } else
            return fl_data_json_fail(j, "unknown field '%.99s' of an effect", j->text);
    }
    if (j->event == FL_DATA_JSON_ERROR) return false;
    if (!kind) return fl_data_json_fail(j, "the effect has no type");
    return kind == e->kind || fl_data_json_fail(j, "type %s has the config of %s", kind->type, e->kind->type);
}

static bool fl__chain_read(fl_data_json *j, fl_speech_chain *c) {
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        if (strcmp(j->text, "soundEffectChain") != 0)
            return fl_data_json_fail(j, "unknown field '%.99s', expected soundEffectChain", j->text);
        if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY)) return false;
        while (fl_data_json_more(j)) {
            if (!fl_heap_grow(&c->effect, &c->cap, c->n + 1, sizeof *c->effect)) return false;
            c->effect[c->n] = (fl__effect){0};
            if (!fl__effect_read(c, j, &c->effect[c->n++])) return false;
        }
        if (j->event == FL_DATA_JSON_ERROR) return false;
    }
    return fl_data_json_next(j) == FL_DATA_JSON_END;
}

FL_API fl_speech_chain *fl_speech_chain_load_opt(const char *path, fl_speech_chain_opts o) {
    fl_speech_chain *c = fl_heap_alloc(sizeof *c);
    if (!c) return NULL;
    *c = (fl_speech_chain){.rate = o.rate, .max_list_bytes = o.max_list_bytes ? o.max_list_bytes : 1 << 28};
    if (o.root && (c->root = fl_heap_alloc(strlen(o.root) + 1))) memcpy(c->root, o.root, strlen(o.root) + 1);
    fl_data_json *j =
        o.root && !c->root ? NULL : fl_data_json_open(path, .who = "fl_speech_chain_load", .c_strings = true);
    const bool ok = j && fl__chain_read(j, c);
    fl_data_json_close(j);
    if (ok) return c;
    fl_speech_chain_free(c);
    return NULL;
}

FL_API void fl_speech_chain_free(fl_speech_chain *c) {
    if (!c) return;
    for (int64_t k = 0; k < c->n; k++) fl_heap_free(c->effect[k].list);
    fl_heap_free(c->effect);
    fl_heap_free(c->root);
    fl_heap_free(c);
}

FL_API fl_tensor *fl_speech_chain_apply(const fl_speech_chain *c, fl_tensor *x, fl_rng *rng) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl__effect_sound("fl_speech_chain_apply", x);
    for (int64_t k = 0; y && k < c->n; k++)
        if (fl_rng_uniform(rng) < c->effect[k].v[0]) y = c->effect[k].kind->run(c, &c->effect[k], y, rng);
    return fl_scope_return(&s, y);
}

#endif
#endif

/* MIT licence: see LICENSE. */
