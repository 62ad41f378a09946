/* test_effects.c - what is done to sounds: measured, repeatable, and refused where it cannot be */
#include "../fl_all.h"
#include "heap.h"
#include <errno.h>

enum { RATE = 16000 };

static const char *file(const char *name) { return test_file(name); }

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

static fl_tensor *tone(double hertz, int64_t n) {
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_F32);
    for (int64_t i = 0; i < n; i++)
        ((float *)fl_data(t))[i] = (float)(0.5 * sin(6.283185307179586 * hertz * (double)i / RATE));
    return t;
}

static fl_tensor *white(int64_t n, int64_t seed) {
    fl_rng rng = fl_data_rng((uint64_t)seed, 0, 0);
    return fl_normal(FL_SHAPE(n), 0, 0.1, FL_F32, &rng);
}

static double power(fl_tensor *x) { return fl_item(fl_mean(fl_square(x), FL_ALL_AXES)); }

/* Power of x between two frequencies. */
static double power_between(fl_tensor *x, double low, double high) {
    const double n = (double)fl_numel(x);
    fl_tensor *f = fl_rfft(x, -1);
    fl_tensor *part = fl_slice(f, 0, (int64_t)(low / RATE * n), (int64_t)(high / RATE * n) + 1, 1);
    return fl_item(fl_sum(fl_square(part), FL_ALL_AXES)) * 2 / n / n;
}

/* Hertz of the loudest frequency. */
static double pitch(fl_tensor *x) {
    fl_tensor *f = fl_sum(fl_square(fl_rfft(x, -1)), FL_AXES(-1));
    return (double)fl_item_int(fl_argmax(f, 0, false)) * RATE / (double)fl_numel(x);
}

TEST(noise_has_the_ratio_that_was_asked_for) {
    static const double snr[] = {-10, 0, 12, 30};
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 4; k++) {
        fl_tensor *x = tone(440, 8000), *w = white(8000 - 1000 * k, 3);
        fl_tensor *added = fl_sub(fl_speech_add_noise(x, w, 7000, snr[k]), x);
        const double share = (double)(8000 - 1000 * k) / 8000;
        CHECK_NEAR(10 * log10(power(x) / (power(added) / share)), snr[k], 1e-3);
        CHECK(((float *)fl_data(added))[0] != 0); /* around the end */
    }
    fl_tensor *x = tone(440, 100), *zero = fl_zeros(FL_SHAPE(50), FL_F32);
    CHECK(power(fl_sub(fl_speech_add_noise(x, zero, 0, 3), x)) == 0);
    CHECK(!fl_speech_add_noise(x, fl_zeros(FL_SHAPE(101), FL_F32), 0, 3));
    CHECK_ERROR("noise of 101 samples, start 0");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(a_convolution_is_its_sum) {
    fl_scope s = fl_scope_begin();
    for (int64_t taps = 1; taps < 40; taps += 7) {
        const int64_t t = 53, at = taps / 2;
        fl_tensor *x = fl_reshape(white(2 * t, 5), FL_SHAPE(2, t)), *h = white(taps, 6);
        const float *a = fl_data(x), *b = fl_data(h), *y = fl_data(fl_speech_convolve(x, h, at));
        double worst = 0;
        for (int64_t line = 0; line < 2; line++)
            for (int64_t i = 0; i < t; i++) {
                double sum = 0;
                for (int64_t k = 0; k < taps; k++)
                    if (i + at - k >= 0 && i + at - k < t) sum += (double)b[k] * a[line * t + i + at - k];
                worst = fmax(worst, fabs(sum - y[line * t + i]));
            }
        CHECK(worst < 1e-6);
    }
    CHECK(!fl_speech_convolve(white(5, 1), white(3, 1), 3));
    CHECK_ERROR("filter [3], at 3");
    /* A response that comes late and loud neither delays nor amplifies. */
    fl_tensor *x = white(3000, 9), *late = fl_zeros(FL_SHAPE(200), FL_F32);
    ((float *)fl_data(late))[150] = -4;
    CHECK(power(fl_add(fl_speech_reverb(x, late), x)) < 1e-10);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(echoes_fall_as_the_room_says) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(RATE), FL_F32);
    ((float *)fl_data(x))[0] = 1;
    fl_rng rng = fl_data_rng(1, 0, 0);
    const fl_speech_echo_opts still = {.initial = 0.5, .rt60 = 0.3, .first_delay = 0.02, .repeat = 1};
    const float *y = fl_data(fl_speech_echo(x, RATE, &rng, still));
    int64_t heard = 0;
    for (int64_t i = 1; i < RATE; i++)
        if (y[i] != 0) {
            heard++;
            CHECK_EQ_INT(i, heard * 321);
            CHECK_NEAR(y[i], 0.5 * pow(10, -3 * (double)(heard - 1) * 0.02 / 0.3), 1e-6);
        }
    CHECK_EQ_INT(heard, 15); /* down to 1e-3 */
    fl_speech_echo_opts wild = still;
    wild.jitter = 0.3, wild.repeat = 3;
    y = fl_data(fl_speech_echo(x, RATE, &rng, wild));
    heard = 0;
    for (int64_t i = 1; i < RATE; i++) heard += y[i] != 0;
    CHECK(heard > 35 && heard < 60);
    wild.rt60 = 0;
    CHECK(!fl_speech_echo(x, RATE, &rng, wild));
    CHECK_ERROR("initial 0.5, rt60 0,");
    wild.rt60 = 1, wild.first_delay = 0.9e-4; /* 11,111 echoes in a train, a sample from each other */
    CHECK(!fl_speech_echo(x, RATE, &rng, wild));
    CHECK_ERROR("rt60 1, first_delay 9e-05");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(speed_moves_the_pitch_and_tempo_does_not) {
    static const double factor[] = {0.5, 0.8, 1.25, 2};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = tone(440, RATE);
    for (int k = 0; k < 4; k++) {
        fl_tensor *fast = fl_speech_speed(x, factor[k]), *steady = fl_speech_tempo(x, RATE, factor[k]);
        CHECK_NEAR((double)fl_numel(fast), RATE / factor[k], 1);
        CHECK_NEAR((double)fl_numel(steady), RATE / factor[k], 1);
        CHECK_NEAR(pitch(fast), 440 * factor[k], 3);
        CHECK_NEAR(pitch(steady), 440, 3);
        CHECK_NEAR(power(steady) / power(x), 1, 0.05); /* windows go on in phase */
    }
    CHECK(power(fl_sub(fl_speech_tempo(x, RATE, 1), x)) < 1e-9);
    CHECK_EQ_INT(fl_speech_tempo(fl_reshape(x, FL_SHAPE(2, -1)), RATE, 2)->shape[1], RATE / 4);
    CHECK(!fl_speech_tempo(x, RATE, 0));
    CHECK_ERROR("got factor 0, rate 16000");
    CHECK(!fl_speech_speed(x, 1e9));
    CHECK_ERROR("got 1e+09");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(a_telephone_has_few_levels_and_no_highs) {
    fl_scope s = fl_scope_begin();
    fl_tensor *low = tone(500, RATE), *high = tone(6000, RATE);
    fl_tensor *both = fl_mul(fl_add(low, high), fl_num(0.9));
    for (int k = 0; k < 2; k++) {
        fl_tensor *y = fl_speech_telephone(both, RATE, k ? FL_SPEECH_ALAW : FL_SPEECH_MULAW);
        CHECK_EQ_INT(fl_numel(y), RATE);
        CHECK_NEAR(power_between(y, 450, 550) / power_between(both, 450, 550), 1, 0.05);
        CHECK(power_between(y, 5000, 8000) < 1e-4 * power_between(both, 5000, 8000));
    }
    CHECK(!fl_speech_telephone(low, RATE, FL_SPEECH_S16));
    CHECK_ERROR("coding 0");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Of white noise a band is missing, and whole stretches; widths and places are drawn evenly. */
TEST(masks_of_the_wave) {
    double removed = 0, silent = 0;
    int64_t first = 0, last = 0;
    for (int i = 0; i < 300; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = white(4000, i + 1);
        fl_rng rng = fl_data_rng(3, 0, i);
        fl_tensor *y =
            fl_speech_wave_augment(x, &rng, .bins = 20, .band_width = 10, .bands = 1, .masks = FL_I0);
        removed += 1 - power(y) / power(x);
        y = fl_speech_wave_augment(x, &rng, .bands = FL_I0, .width = 2000, .masks = 1, .share = 0.25);
        const float *v = fl_data(y);
        int64_t zeros = 0;
        for (int64_t k = 0; k < 4000; k++) zeros += v[k] == 0;
        CHECK(zeros <= 1000);
        silent += (double)zeros;
        first += v[0] == 0, last += v[3999] == 0;
        fl_scope_end(&s);
    }
    printf("%.3f of the power, %.1f samples\n", removed / 300, silent / 300);
    CHECK(removed / 300 > 0.12 && removed / 300 < 0.3); /* 5 of 20 bins, fewer hertz than that low down */
    CHECK(silent / 300 > 450 && silent / 300 < 550);
    CHECK(first < 5 && last < 5);
    CHECK_NOTHING_LIVES();
}

static const char chain[] =
    "{\"soundEffectChain\": [\n"
    " {\"type\": \"Speed\", \"speedConfig\": {\"minFactor\": 0.9, \"maxFactor\": 1.1}},\n"
    " {\"type\": \"Reverb\", \"reverbConfig\": {\"proba\": 0.3, \"listFilePath\": \"%s\"}},\n"
    " {\"additiveNoiseConfig\": {\"proba\": 0.5, \"ratio\": 0.8, \"minSnr\": 5, \"maxSnr\": 20,\n"
    "   \"nClipsMin\": 1, \"nClipsMax\": 3, \"listFilePath\": \"%s\"}, \"type\": \"AdditiveNoise\"},\n"
    " {\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"proba\": 0.5, \"repeat\": 2}},\n"
    " {\"type\": \"TimeStretch\", \"timeStretchConfig\": {\"proba\": 0.2, \"minFactor\": 0.8}},\n"
    " {\"type\": \"Clip\"},\n"
    " {\"type\": \"Telephone\", \"telephoneConfig\": {\"proba\": 0.3, \"alaw\": true}},\n"
    " {\"type\": \"WaveAugment\", \"waveAugmentConfig\": {\"proba\": 0.2, \"width\": 500}},\n"
    " {\"type\": \"Amplify\", \"amplifyConfig\": {\"ratioMin\": 0.5, \"ratioMax\": 3}},\n"
    " {\"type\": \"Normalize\", \"normalizeOnlyIfTooHigh\": true}, {\"type\": \"ClampAmplitude\"}]}\n";

/* Where the files of this test are. */
static const char *folder(void) {
    static char path[128];
    snprintf(path, sizeof path, "%s", file(""));
    path[strlen(path) - 1] = 0;
    return path;
}

static fl_speech_chain *whole_chain(void) {
    char json[2048];
    fl_scope s = fl_scope_begin();
    CHECK(fl_speech_save_audio(file("a.wav"), white(3000, 1), RATE, FL_SPEECH_S16));
    CHECK(fl_speech_save_audio(file("b.wav"), white(900, 2), 8000, FL_SPEECH_S16));
    char list[256];
    snprintf(list, sizeof list, "a.wav\n\nb b.wav 12.5\n");
    write_text(file("list"), list);
    snprintf(json, sizeof json, chain, file("list"), file("list"));
    write_text(file("json"), json);
    fl_scope_end(&s);
    return fl_speech_chain_load(file("json"), .root = folder(), .rate = RATE);
}

static void remove_files(void) {
    static const char *const name[] = {"a.wav", "b.wav", "list", "json"};
    for (int k = 0; k < 4; k++) remove(file(name[k]));
}

static bool get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 1;
    return (out->t[0] = white(2000 + i % 7, i + 1)) != NULL;
}
static bool change(fl_data_sample *sample, fl_rng *rng, void *user) {
    return (sample->t[0] = fl_speech_chain_apply(user, sample->t[0], rng)) != NULL;
}

/* A function of (seed, epoch, index): the same bits by any number of threads, others in another epoch. */
TEST(chains_are_functions_of_seed_epoch_and_index) {
    enum { N = 40 };
    fl_speech_chain *c = whole_chain();
    uint64_t sum[5] = {0};
    static const int threads[] = {0, 1, 2, 3, 8};
    for (int k = 0; c && k < 5; k++) {
        fl_data_set *set = fl_data_transform(fl_data_callback(N, get, NULL), change, c);
        if (threads[k]) set = fl_data_prefetch(set, threads[k], 4);
        int64_t epoch = 0, index = 0, low = INT64_MAX, high = 0;
        for (int64_t i = 0; i < 2 * N; i++) {
            fl_scope s = fl_scope_begin();
            fl_data_sample b;
            if (!CHECK(fl_data_next(set, &epoch, &index, &b))) break;
            const int64_t n = fl_numel(b.t[0]);
            low = n < low ? n : low, high = n > high ? n : high;
            for (int64_t t = 0; t < n; t++) CHECK(fabsf(((float *)fl_data(b.t[0]))[t]) <= 1);
            sum[k] = sum[k] * 31 + fl_text_hash(fl_data(b.t[0]), n * 4);
            fl_scope_end(&s);
        }
        CHECK(low < 1700 && high > 2300); /* other lengths */
        CHECK(sum[k] == sum[0]);
        fl_data_free(set);
    }
    /* How often an effect comes: proba. */
    fl_speech_chain_free(c);
    write_text(file("json"), "{\"soundEffectChain\": [{\"type\": \"Clip\", \"clipConfig\": {\"proba\": 0.3, "
                             "\"minLevel\": 0.1, \"maxLevel\": 0.2}}]}");
    c = fl_speech_chain_load(file("json"));
    int64_t clipped = 0;
    for (int i = 0; c && i < 1000; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 2, i);
        fl_tensor *y = fl_speech_chain_apply(c, tone(100, 200), &rng);
        clipped += fl_item(fl_amax(fl_abs(y), FL_ALL_AXES)) < 0.2;
        fl_scope_end(&s);
    }
    printf("%lld of 1000 clipped\n", (long long)clipped);
    CHECK(clipped > 250 && clipped < 350);
    fl_speech_chain_free(c);
    remove_files();
    CHECK_NOTHING_LIVES();
}

TEST(bad_chains_say_what_is_wrong) {
#define ONE(text) "{\"soundEffectChain\": [" text "]}"
    static const struct { const char *json, *text; } table[] = {
        {"", "offset 0, line 1"},
        {"[]", "line 1"},
        {"{\"chain\": []}", "unknown field 'chain', expected soundEffectChain"},
        {"{\"soundEffectChain\": {}}", "line 1"},
        {ONE("{}"), "the effect has no type"},
        {ONE("7"), "line 1"},
        {ONE("{\"type\": 3}"), "line 1"},
        {ONE("{\"type\": \"Echo\"}"), "unknown effect type 'Echo'"},
        {ONE("{\"type\": \"Clip\", \"clip\": {}}"), "unknown field 'clip' of an effect"},
        {ONE("{\"type\": \"Clip\", \"clipConfig\": []}"), "line 1"},
        {ONE("{\"type\": \"Clip\", \"clipConfig\": {\"level\": 1}}"), "unknown field 'level' of Clip"},
        {ONE("{\"type\": \"Clip\", \"clipConfig\": {\"proba\": \"1\"}}"), "a number, true or false"},
        {ONE("{\"type\": \"Clip\", \"clipConfig\": {\"proba\": 1e999}}"), "line 1"},
        {ONE("{\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"repeat\": 1001}}"),
         "repeat of ReverbEcho is too large: got 1001, maximum 1000"},
        {ONE("{\"type\": \"AdditiveNoise\", \"additiveNoiseConfig\": {\"ratio\": 1.5}}"),
         "ratio of AdditiveNoise is too large: got 1.5, maximum 1"},
        {ONE("{\"type\": \"Speed\", \"speedConfig\": {\"maxFactor\": -1e300}}"),
         "maxFactor of Speed is too large: got -1e+300, maximum 1e+09"},
        {ONE("{\"type\": \"Clip\", \"speedConfig\": {}}"), "Clip has the config of Speed"},
        {ONE("{\"type\": \"Clip\", \"normalizeOnlyIfTooHigh\": 1}"), "Clip has the config of Normalize"},
        {ONE("{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"/nowhere/x\"}}"), "/nowhere/x"},
        {ONE("{\"type\": \"Clip\"}") " x", "line 1"},
        {"{\"soundEffectChain\": [{\"type\": \"Clip\"}", "line 1"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        write_text(file("json"), table[i].json);
        CHECK(!fl_speech_chain_load(file("json")));
        CHECK_ERROR(table[i].text);
    }
    /* What only shows when it is used: no list, no such sound, factors that cannot be. */
    static const struct { const char *json, *text; } late[] = {
        {ONE("{\"type\": \"Reverb\"}"), "Reverb needs a listFilePath"},
        {ONE("{\"type\": \"Speed\", \"speedConfig\": {\"minFactor\": 0, \"maxFactor\": 0}}"), "got 0"},
        {ONE("{\"type\": \"TimeStretch\", \"timeStretchConfig\": {\"sampleRate\": 0}}"), "rate 0;"},
        {ONE("{\"type\": \"Telephone\", \"telephoneConfig\": {\"sampleRate\": -1}}"), "got rate -1"},
        {ONE("{\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"rt60Min\": 0, \"rt60Max\": 0}}"),
         "rt60 0,"}};
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 0, 0);
        write_text(file("json"), late[i].json);
        fl_speech_chain *c = fl_speech_chain_load(file("json"));
        CHECK(c && !fl_speech_chain_apply(c, white(100, 1), &rng));
        CHECK_ERROR(late[i].text);
        fl_speech_chain_free(c);
        fl_scope_end(&s);
    }
    remove_files();
    CHECK_NOTHING_LIVES();
}

/* What an effect does by hand, with the draws that the chain makes. */
static fl_tensor *by_hand(int kind, fl_tensor *x, fl_rng *rng) {
    if (fl_rng_uniform(rng) >= 1) return NULL; /* proba */
    if (kind == 0) return fl_mul(x, fl_num((float)fl_speech_between(rng, 0.5, 3)));
    if (kind == 1) {
        const float peak = (float)fl_item(fl_amax(fl_abs(x), FL_ALL_AXES)),
                    top = peak * (float)fl_speech_between(rng, 0.2, 0.4);
        return fl_maximum(fl_minimum(x, fl_num(top)), fl_num(-top));
    }
    if (kind == 2) return fl_mul(x, fl_num((float)(1 / fl_item(fl_amax(fl_abs(x), FL_ALL_AXES)))));
    if (kind == 3) return x;
    if (kind == 4) {
        fl_speech_echo_opts o = {.repeat = 2, .jitter = 0.3};
        o.initial = fl_speech_between(rng, 0.1, 0.2), o.rt60 = fl_speech_between(rng, 0.3, 0.5);
        o.first_delay = fl_speech_between(rng, 0.02, 0.04);
        return fl_speech_echo(x, 8000, rng, o);
    }
    if (kind == 5) return fl_speech_tempo(x, 8000, 1 / fl_speech_between(rng, 0.7, 0.8));
    if (kind == 6) return fl_speech_speed(x, fl_speech_between(rng, 1.2, 1.4));
    if (kind == 7) return fl_speech_telephone(x, 16000, FL_SPEECH_ALAW);
    if (kind == 8) return fl_speech_telephone(x, 11025, FL_SPEECH_MULAW);
    if (kind == 9)
        return fl_speech_wave_augment(x, rng, .rate = 8000, .band_width = 9, .bands = 3, .width = 200,
                                      .masks = 4);
    if (kind == 10) return fl_speech_wave_augment(x, rng, .bands = FL_I0, .masks = FL_I0);
    if (kind == 11) return fl_maximum(fl_minimum(x, fl_num(1)), fl_num(-1));
    const char *const name[] = {"a.wav", "b.wav"};
    if (kind == 12) {
        fl_tensor *room = fl_speech_load_audio(file(name[fl_speech_draw(rng, 0, 1)]), .rate = RATE);
        return fl_speech_reverb(x, fl_select(room, 0, 0));
    }
    const int64_t t = fl_numel(x), n = (int64_t)((double)t * 0.75);
    const double snr = fl_speech_between(rng, -5, 5);
    const int64_t clips = fl_speech_draw(rng, 2, 4), start = fl_speech_draw(rng, 0, t - 1);
    fl_tensor *sum = fl_zeros(FL_SHAPE(n), FL_F32);
    for (int64_t k = 0; k < clips; k++) {
        fl_tensor *clip = fl_speech_load_audio(file(name[fl_speech_draw(rng, 0, 1)]), .rate = RATE);
        const int64_t m = fl_numel(clip), at = fl_speech_draw(rng, 0, m - 1);
        for (int64_t i = 0; i < n; i++)
            ((float *)fl_data(sum))[i] += ((const float *)fl_data(clip))[(at + i) % m];
    }
    return fl_speech_add_noise(x, sum, start, snr);
}

TEST(an_effect_of_a_chain_is_its_function) {
    static const char *const effect[] = {
        "{\"type\": \"Amplify\", \"amplifyConfig\": {\"ratioMin\": 0.5, \"ratioMax\": 3}}",
        "{\"type\": \"Clip\", \"clipConfig\": {\"minLevel\": 0.2, \"maxLevel\": 0.4}}",
        "{\"type\": \"Normalize\", \"normalizeConfig\": {\"onlyIfTooHigh\": false}}",
        "{\"type\": \"Normalize\"}",
        "{\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"initialMin\": 0.1, \"initialMax\": 0.2, "
        "\"rt60Min\": 0.3, \"rt60Max\": 0.5, \"firstDelayMin\": 0.02, \"firstDelayMax\": 0.04, "
        "\"repeat\": 2, \"jitter\": 0.3, \"sampleRate\": 8000}}",
        "{\"type\": \"TimeStretch\", \"timeStretchConfig\": {\"minFactor\": 0.7, \"maxFactor\": 0.8, "
        "\"sampleRate\": 8000}}",
        "{\"type\": \"Speed\", \"speedConfig\": {\"minFactor\": 1.2, \"maxFactor\": 1.4}}",
        "{\"type\": \"Telephone\", \"telephoneConfig\": {\"alaw\": true}}",
        "{\"type\": \"Telephone\", \"telephoneConfig\": {\"sampleRate\": 11025}}",
        "{\"type\": \"WaveAugment\", \"waveAugmentConfig\": {\"sampleRate\": 8000, \"bandWidth\": 9, "
        "\"bands\": 3, \"width\": 200, \"masks\": 4}}",
        "{\"type\": \"WaveAugment\", \"waveAugmentConfig\": {\"bands\": 0, \"masks\": 0}}",
        "{\"type\": \"ClampAmplitude\"}",
        "{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"%s\"}}",
        "{\"type\": \"AdditiveNoise\", \"additiveNoiseConfig\": {\"ratio\": 0.75, \"minSnr\": -5, "
        "\"maxSnr\": 5, \"nClipsMin\": 2, \"nClipsMax\": 4, \"listFilePath\": \"%s\"}}"};
    fl_speech_chain_free(whole_chain());
    for (int kind = 0; kind < (int)(sizeof effect / sizeof *effect); kind++) {
        fl_scope s = fl_scope_begin();
        char one[600], json[700];
        snprintf(one, sizeof one, effect[kind], file("list"));
        snprintf(json, sizeof json, ONE("%s"), one);
        write_text(file("json"), json);
        fl_speech_chain *c = fl_speech_chain_load(file("json"), .root = folder(), .rate = RATE);
        REQUIRE(c);
        for (int i = 0; i < 3; i++) {
            fl_rng rng = fl_data_rng(4, kind, i), same = rng;
            fl_tensor *x = fl_mul(white(3000, i + 1), fl_num(kind == 11 ? 20 : 2)),
                      *y = fl_speech_chain_apply(c, x, &rng), *want = by_hand(kind, x, &same);
            if (!CHECK(y && want && fl_same_shape(y, want) &&
                       !memcmp(fl_data(y), fl_data(fl_contiguous(want)), (size_t)fl_numel(y) * 4)))
                printf("%s: %s\n", effect[kind], fl_error() ? fl_error() : "");
            CHECK(fl_rng_uniform(&rng) == fl_rng_uniform(&same)); /* as many draws */
        }
        fl_speech_chain_free(c);
        fl_scope_end(&s);
    }
    remove_files();
    CHECK_NOTHING_LIVES();
}

TEST(lists_of_a_chain_are_limited) {
    write_text(file("list"), "a.wav\nb.wav\n"); /* 12 bytes */
    char json[600];
    snprintf(json, sizeof json,
             ONE("{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"%s\"}}, "
                 "{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"%s\"}}"),
             file("list"), file("list"));
    write_text(file("json"), json);
    fl_speech_chain *c = fl_speech_chain_load(file("json"), .max_list_bytes = 24);
    CHECK(c != NULL);
    fl_speech_chain_free(c);
    CHECK(!fl_speech_chain_load(file("json"), .max_list_bytes = 23));
    CHECK_ERROR("the file lists have 24 bytes, .max_list_bytes is 23");
    remove_files();
    CHECK_NOTHING_LIVES();
}

/* Every prefix and every flipped bit of a chain is read or refused, and what is read can be used. */
TEST(prefixes_and_flips_of_a_chain) {
    static const char json[] = ONE("{\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"repeat\": 1}}, "
                                   "{\"type\": \"Amplify\", \"amplifyConfig\": {\"ratioMax\": 2}}");
    enum { N = sizeof json - 1 };
    int64_t read = 0, refused = 0;
    for (int i = 0; i < N + 8 * N; i++) {
        char copy[N + 1];
        memcpy(copy, json, sizeof copy);
        if (i < N) copy[i] = 0;
        else copy[(i - N) / 8] ^= (char)(1 << (i - N) % 8);
        write_text(file("json"), copy);
        fl_speech_chain *c = fl_speech_chain_load(file("json"));
        CHECK(c || fl_error());
        c ? read++ : refused++;
        fl_error_clear();
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 0, 0);
        if (c && !fl_speech_chain_apply(c, white(50, 1), &rng)) CHECK(fl_error()), fl_error_clear();
        fl_scope_end(&s);
        fl_speech_chain_free(c);
    }
    printf("%lld read, %lld refused\n", (long long)read, (long long)refused);
    CHECK(refused > 700 && read > 4);
    remove_files();
    CHECK_NOTHING_LIVES();
}

/* The n-th request for memory fails, for every n: a named error, nothing lost, and the same bits later. */
static bool load_and_apply(uint64_t *hash) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = fl_data_rng(5, 0, 3);
    fl_speech_chain *c = fl_speech_chain_load(file("json"), .root = folder(), .rate = RATE);
    fl_tensor *x = c ? white(1500, 4) : NULL, *y = x ? fl_speech_chain_apply(c, x, &rng) : NULL;
    if (y) *hash = fl_text_hash(fl_data(y), fl_numel(y) * 4);
    fl_speech_chain_free(c);
    fl_scope_end(&s);
    return y != NULL;
}

TEST(any_request_for_memory_may_fail) {
    fl_speech_chain_free(whole_chain());
    uint64_t want = 0, got = 0;
    CHECK(load_and_apply(&want));
    int64_t n = 0;
    for (bool done = false; !done && n < 5000; n++) {
        heap_fail_at(n + 1);
        fl_heap_use(heap_fn, NULL);
        const bool ok = load_and_apply(&got);
        fl_heap_use(NULL, NULL);
        done = heap.calls <= n;
        CHECK(ok ? got == want : fl_error() != NULL);
        fl_error_clear();
    }
    printf("%lld requests\n", (long long)n);
    CHECK(n > 30 && n < 5000);
    CHECK(load_and_apply(&got) && got == want);
    remove_files();
    CHECK_NOTHING_LIVES();
}

/* The n-th operation on files fails, for every n: an error, nothing lost, the same bits later. */
static int64_t operations;
static bool broken(void) { return operations-- == 0; }
static void *io_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    errno = EIO;
    return broken() ? NULL : fopen(path, mode == FL_DATA_READ ? "rb" : "wb");
}
static int64_t io_read(void *user, void *f, void *dst, size_t n, int64_t at) {
    (void)user;
    errno = EIO;
    return broken() || fseek(f, (long)at, SEEK_SET) ? -1 : (int64_t)fread(dst, 1, n, f);
}
static int64_t io_size(void *user, void *f) {
    (void)user;
    errno = EIO;
    return broken() || fseek(f, 0, SEEK_END) ? -1 : ftell(f);
}
static int io_close(void *user, void *f) { return (void)user, fclose(f); }

static bool read_all(uint64_t *hash) {
    fl_speech_list *l = fl_speech_list_load(file("lst"), NULL);
    fl_text_dictionary *d = l ? fl_text_dictionary_load(file("lst")) : NULL;
    const bool ok = d && load_and_apply(hash);
    fl_text_dictionary_free(d);
    fl_speech_list_free(l);
    return ok;
}

TEST(any_operation_on_files_may_fail) {
    static const fl_data_io io = {.open = io_open, .read = io_read, .size = io_size, .close = io_close};
    fl_speech_chain_free(whole_chain());
    write_text(file("lst"), "id path 3 words\n");
    uint64_t want = 0, got = 0;
    CHECK(read_all(&want));
    int64_t n = 0, failed = 0;
    for (bool done = false; !done && n < 1000; n++) {
        operations = n;
        fl_data_io_use(&io);
        const bool ok = read_all(&got);
        fl_data_io_use(NULL);
        done = operations >= 0;
        failed += !ok;
        CHECK(ok ? got == want : fl_error() != NULL);
        fl_error_clear();
    }
    printf("%lld operations, %lld fail\n", (long long)n - 1, (long long)failed);
    CHECK(failed == n - 1 && n > 12);
    CHECK(read_all(&got) && got == want);
    remove_files();
    remove(file("lst"));
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
