/* examples/speech/voices.h - formant synthesis of the ten digits with a random voice, rate, echo and noise

   A source (glottal pulses or noise) is filtered by resonators at the formants, which glide from phone to
   phone (Klatt, 1980, simplified). Enough to train a recogniser without recordings. */
#ifndef VOICES_H
#define VOICES_H
#include "fl_speech.h"
#include "fl.h"
#include <math.h>
#include <string.h>

/* A phone: formants in Hz of a male voice, amplitudes of voice and noise, the noise's centre frequency,
   duration in seconds. */
typedef struct voices_phone {
    const char *name;
    float f1, f2, f3, voice, noise, centre, seconds;
} voices_phone;
static const voices_phone voices_phones[] = {
    {"z", 250, 1600, 2500, .25f, .25f, 3400, .09f}, {"s", 250, 1600, 2500, 0, .45f, 3500, .12f},
    {"f", 250, 1100, 2200, 0, .16f, 2300, .10f},    {"v", 250, 1100, 2200, .30f, .08f, 2300, .07f},
    {"T", 250, 1300, 2500, 0, .14f, 2800, .09f},    {"h", 500, 1500, 2500, 0, .12f, 1500, .06f},
    {"k", 250, 1900, 2400, 0, .0f, 1800, .06f},     {"K", 250, 1900, 2400, 0, .35f, 1800, .03f},
    {"t", 250, 1700, 2600, 0, .0f, 3300, .06f},     {"P", 250, 1700, 2600, 0, .40f, 3300, .03f},
    {"I", 400, 1950, 2550, 1, 0, 0, .08f},          {"i", 290, 2250, 2950, 1, 0, 0, .10f},
    {"e", 530, 1800, 2450, 1, 0, 0, .08f},          {"E", 450, 2050, 2650, 1, 0, 0, .09f},
    {"a", 730, 1150, 2450, 1, 0, 0, .10f},          {"A", 640, 1200, 2400, 1, 0, 0, .09f},
    {"o", 500, 900, 2400, 1, 0, 0, .12f},           {"O", 570, 850, 2400, 1, 0, 0, .11f},
    {"u", 310, 900, 2250, 1, 0, 0, .13f},           {"w", 300, 650, 2150, .6f, 0, 0, .07f},
    {"r", 330, 1100, 1500, .7f, 0, 0, .07f},        {"n", 250, 1500, 2500, .45f, 0, 0, .09f},
    {"@", 500, 1400, 2400, .8f, 0, 0, .05f}};
static const char *const voices_words[10] = {"zIro", "wAn",   "tPu",     "Tri",  "fOr",
                                             "faiv", "sIkKs", "sev@n",  "EitP", "nain"};

typedef struct voices_resonator {
    double a, b, c, y1, y2;
} voices_resonator;

static inline double voices_resonate(voices_resonator *r, double x, double f, double width, double rate) {
    const double e = exp(-3.141592653589793 * width / rate);
    r->c = -e * e, r->b = 2 * e * cos(6.283185307179586 * f / rate), r->a = 1 - r->b - r->c;
    const double y = r->a * x + r->b * r->y1 + r->c * r->y2;
    r->y2 = r->y1, r->y1 = y;
    return y;
}

/* xorshift noise, one sample. */
static inline double voices_noise(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return (double)(*s >> 11) * 0x1p-52 - 1;
}

/* Synthesises a digit into sound, at most `most` samples. Returns their number. */
static inline int64_t synthesise_digit(int digit, double rate, float *sound, int64_t most, fl_rng *rng) {
    const double tract = fl_speech_between(rng, 0.88, 1.28), pace = fl_speech_between(rng, 0.75, 1.35);
    const double pitch = tract > 1.08 ? fl_speech_between(rng, 150, 260) : fl_speech_between(rng, 85, 150);
    const double fall = fl_speech_between(rng, -0.3, 0.1), level = fl_speech_between(rng, 0.08, 0.5),
                 breath = fl_speech_between(rng, 0.01, 0.08);
    const double echo = fl_speech_between(rng, 0, 0.35),
                 hiss = pow(10, fl_speech_between(rng, -70, -40) / 20);
    const int64_t delay = (int64_t)(fl_speech_between(rng, 0.01, 0.04) * rate);
    uint64_t state = (uint64_t)(fl_rng_uniform(rng) * 1e15) | 1;
    const voices_phone *list[16];
    double wobble[16][3], seconds[16];
    int n = 0;
    for (const char *p = voices_words[digit]; *p; p++)
        for (size_t k = 0; k < sizeof voices_phones / sizeof *voices_phones; k++)
            if (voices_phones[k].name[0] == *p) {
                for (int i = 0; i < 3; i++) wobble[n][i] = tract * fl_speech_between(rng, 0.92, 1.08);
                seconds[n] = voices_phones[k].seconds * fl_speech_between(rng, 0.75, 1.3) * pace;
                list[n++] = &voices_phones[k];
            }
    voices_resonator r[4] = {{0}}, colour = {0};
    double phase = 0, whole = 0, done = 0, tilt = 0;
    for (int i = 0; i < n; i++) whole += seconds[i];
    int64_t t = 0;
    for (int i = 0; i < n; i++) {
        const int64_t length = (int64_t)(seconds[i] * rate);
        for (int64_t k = 0; k < length && t < most; k++, t++) {
            /* phones glide into their neighbours at both ends */
            const double at = (double)k / (double)length, g = at > 0.55 && i + 1 < n ? (at - 0.55) / 0.9 : 0;
            const double back = at < 0.45 && i ? (0.45 - at) / 0.9 : 0;
            const int j = g > 0 ? i + 1 : back > 0 ? i - 1 : i;
            const double m = g + back;
            const voices_phone *a = list[i], *b = list[j];
#define VOICES_MIX(field, w) \
    ((a->field) * (1 - m) * (w ? wobble[i][w - 1] : 1) + (b->field) * m * (w ? wobble[j][w - 1] : 1))
            const double f1 = VOICES_MIX(f1, 1), f2 = VOICES_MIX(f2, 2), f3 = VOICES_MIX(f3, 3);
            const double voice = VOICES_MIX(voice, 0), noise = VOICES_MIX(noise, 0),
                         centre = VOICES_MIX(centre, 0);
#undef VOICES_MIX
            const double where = (done + (double)k / rate) / whole;
            phase += pitch * (1 + fall * where + 0.01 * voices_noise(&state)) / rate;
            double pulse = 0;
            if (phase >= 1) phase -= 1, pulse = 1;
            tilt = 0.9 * tilt + pulse * 8 - 0.25 * pulse;
            const double ends = fmin(1, fmin((double)t / (0.015 * rate), (1 - where) * whole / 0.03));
            double y = voice * (tilt - 0.7) + breath * voice * voices_noise(&state);
            y = voices_resonate(&r[0], y, fmin(f1, 0.48 * rate), 70, rate);
            y = voices_resonate(&r[1], y, fmin(f2, 0.48 * rate), 100, rate);
            y = voices_resonate(&r[2], y, fmin(f3, 0.48 * rate), 160, rate);
            y = voices_resonate(&r[3], y, fmin(3400 * tract, 0.48 * rate), 250, rate);
            y += 1.5 * noise *
                 voices_resonate(&colour, voices_noise(&state), fmin(centre * tract + 1, 0.47 * rate), 900,
                                 rate);
            sound[t] = (float)(y * ends * level);
        }
        done += seconds[i];
    }
    for (int64_t k = delay; k < t; k++) sound[k] += (float)(echo * sound[k - delay]);
    for (int64_t k = 0; k < t; k++) sound[k] += (float)(hiss * voices_noise(&state));
    return t;
}

#endif
/* MIT licence: see LICENSE. */
