/* test_speech.c - sound in files, resampling, features whole and in pieces, masks */
#include "../fl.h"
#include "test.h"

static const char *file(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_speech.%d.wav", (int)getpid());
    return path;
}

/* A path of ../shared/data/speech; NULL, and the test is skipped, if it is not there. */
static const char *shared(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "../shared/data/speech/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f) return test__skip("../shared/data/speech is absent"), NULL;
    fclose(f);
    return path;
}

static double noise(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return (double)(*s >> 11) * 0x1p-52 - 1;
}

/* Tones and noise within (-0.8, 0.8). */
static fl_tensor *sound(int64_t n, uint64_t seed) {
    float *p = malloc((size_t)n * sizeof *p + 1);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(0.4 * sin(0.05 * (double)i) + 0.2 * sin(0.31 * (double)i + 1) + 0.2 * noise(&seed));
    fl_tensor *x = fl_from_host(p, FL_SHAPE(n), FL_F32);
    free(p);
    return x;
}

static double distance(fl_tensor *a, fl_tensor *b) {
    if (!a || !b || !fl_same_shape(a, b)) return INFINITY;
    return fl_numel(a) ? fl_item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES)) : 0;
}

/* ---- audio ---- */

TEST(every_coding_comes_back) {
    static const double step[] = {0x1p-15, 0x1p-7, 0x1p-23, 0x1p-31, 0, 0, 0.04, 0.04};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_reshape(sound(2002, 3), FL_SHAPE(2, 1001));
    for (int k = FL_SPEECH_S16; k <= FL_SPEECH_ALAW; k++) {
        fl_speech_sound info;
        CHECK(fl_speech_save_audio(file(), x, 8000, (fl_speech_coding)k));
        fl_tensor *y = fl_speech_load_audio(file(), .info = &info);
        CHECK(distance(x, y) <= step[k] * 0.5 + 1e-7);
        CHECK_EQ_INT(info.rate, 8000);
        CHECK_EQ_INT(info.coding, k);
        CHECK(distance(fl_slice(x, 0, 1, 2, 1), fl_speech_load_audio(file(), .channel = 2)) <=
              step[k] * 0.5 + 1e-7);
        CHECK(distance(fl_unsqueeze(fl_mean(x, FL_AXES(0)), 0),
                       fl_speech_load_audio(file(), .channel = -1)) <= step[k] + 1e-7);
    }
    fl_scope_end(&s);
    remove(file());
    CHECK_NOTHING_LIVES();
}

TEST(telephone_codes_are_their_own_inverse) {
    for (int b = 0; b < 256; b++) {
        const int mu = fl_speech_mulaw_decode((unsigned char)b), a = fl_speech_alaw_decode((unsigned char)b);
        CHECK_EQ_INT(fl_speech_mulaw_decode(fl_speech_mulaw_encode(mu)), mu);
        CHECK_EQ_INT(fl_speech_alaw_encode(a), b);
    }
    CHECK_EQ_INT(fl_speech_mulaw_decode(0), -32124);
    CHECK_EQ_INT(fl_speech_alaw_decode(0x2a), -32256);
}

/* One second of speech in many formats, as ffmpeg wrote them: within the step of each. */
TEST(files_of_others) {
    static const struct { const char *name; double step;
    } table[] = {{"s24", 2e-5}, {"s32", 2e-5},   {"f32", 2e-5}, {"f64", 2e-5},
                 {"u8", 0.01},  {"mulaw", 0.02}, {"alaw", 0.02}};
    char path[64];
    if (!shared("formats/jfk1s_s16.wav")) return;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_speech_load_audio(shared("formats/jfk1s_s16.wav"), .want_rate = 16000);
    CHECK_EQ_INT(x ? x->shape[1] : 0, 16000);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(path, sizeof path, "formats/jfk1s_%s.wav", table[i].name);
        CHECK(distance(x, fl_speech_load_audio(shared(path))) <= table[i].step);
    }
    fl_speech_sound info = {0};
    CHECK(fl_speech_load_audio(shared("formats/ms_adpcm.wav"), .info = &info) != NULL);
    CHECK_EQ_INT(info.coding, FL_SPEECH_MS_ADPCM);
    CHECK(fl_speech_load_audio(shared("formats/example3.sph"), .info = &info) != NULL);
    CHECK_EQ_INT(info.frames, 47266 - 1024);
    fl_tensor *raw = fl_speech_load_audio(shared("formats/example4.raw"), .raw = {.rate = 16000});
    CHECK_EQ_INT(raw ? raw->shape[1] : 0, 35012);
    CHECK_NO_ERROR();
    CHECK(!fl_speech_load_audio(shared("formats/jfk1s_s16.wav"), .want_rate = 8000));
    CHECK_ERROR("16000 samples a second, not 8000");
    fl_tensor *flac = fl_speech_load_audio(shared("formats/jfk1s_s16.flac"));
    if (!flac) CHECK_ERROR("libsndfile"); /* this build has none */
    else CHECK(distance(x, flac) == 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static unsigned char tiny[4096];
static int64_t tiny_size(fl_speech_coding coding) {
    fl_scope s = fl_scope_begin();
    fl_speech_save_audio(file(), sound(5, 1), 8000, coding);
    fl_scope_end(&s);
    FILE *f = fopen(file(), "rb");
    const int64_t n = (int64_t)fread(tiny, 1, sizeof tiny, f);
    fclose(f);
    remove(file());
    return n;
}

static void put16(unsigned char *p, int v) { p[0] = (unsigned char)v, p[1] = (unsigned char)(v >> 8); }

/* An IMA ADPCM file of one block of one channel: sample 100, index 0, then nibbles. */
static int64_t ima_file(void) {
    static const unsigned char head[] =
        "RIFF\0\0\0\0WAVEfmt \x14\0\0\0\x11\0\1\0\x40\x1f\0\0\0\0\0\0\x08\0\4\0\2\0\x09\0data\x08\0\0\0";
    memcpy(tiny, head, sizeof head - 1);
    static const unsigned char block[] = {100, 0, 0, 0, 0x70, 0x08, 0, 0};
    memcpy(tiny + sizeof head - 1, block, sizeof block);
    return (int64_t)(sizeof head - 1 + sizeof block);
}

TEST(adpcm_by_hand) {
    /* step 7: nibble 0 adds 0; 7: 0 + 1 + 3 + 7 = 11, index 8, step 16: nibble 8 takes 2, index 7; nibble 0
       adds 14 >> 3 = 1 */
    static const int want[] = {100, 100, 111, 109, 110};
    fl_scope s = fl_scope_begin();
    const int64_t n = ima_file();
    fl_tensor *x = fl_speech_read_audio("ima", tiny, n, (fl_speech_audio_opts){0});
    CHECK_EQ_INT(x ? x->shape[1] : 0, 9);
    for (int i = 0; x && i < 5; i++) CHECK_NEAR(32768 * ((float *)fl_data(x))[i], want[i], 0);
    tiny[n - 6] = 99;
    CHECK(!fl_speech_read_audio("ima", tiny, n, (fl_speech_audio_opts){0}));
    CHECK_ERROR("ima: offset 48: an ADPCM block that cannot be");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Little-endian, `bytes` of them. */
static void put(unsigned char *p, int bytes, uint32_t v) {
    for (int i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
}

/* Changes of a header of 44 bytes, 5 samples behind it, and what is said about them. */
static const struct { int at, bytes; uint32_t value; const char *text; } bad_wav[] = {
    {0, 1, 'r', "tiny: offset 0: "}, {0, 4, 0, "tiny: offset 0: "}, {8, 1, 'w', "tiny: offset 0: "},
    {8, 4, 0, "tiny: offset 0: "}, {12, 1, 'g', "offset 36: samples before their format"},
    {12, 4, 0, "samples before their format"}, {16, 4, 8, "offset 20: a format chunk of fewer than 16"},
    {16, 4, 0, "fewer than 16"}, {16, 4, 15, "fewer than 16"},
    {16, 4, 26, "offset 46: a chunk of 527841045 bytes, 0 are left"},
    {16, 4, 34, "it ends before the samples"}, {16, 4, 35, "a chunk of 35 bytes, 34 are left"},
    {16, 4, 0x7fffffff, "a chunk of 2147483647 bytes"},
    {16, 4, 0xffffffff, "a chunk of 4294967295 bytes, 34 are left"},
    {16, 4, 0xfffffff0, "a chunk of 4294967280"}, {20, 2, 0, "format 0 of 16 bits is not known"},
    {20, 2, 4, "format 4"}, {20, 2, 5, "format 5"}, {20, 2, 9, "format 9 of 16 bits"},
    {20, 2, 0x55, "format 85"}, {20, 2, 0xffff, "format 65535"}, {20, 2, 3, "format 3 of 16 bits"},
    {20, 2, 6, "format 6 of 16 bits"}, {20, 2, 7, "format 7 of 16 bits"},
    {20, 2, 2, "format 2 of 16 bits"}, {20, 2, 17, "format 17 of 16 bits"},
    {20, 2, 0xfffe, "an extensible format chunk that is cut"}, {22, 2, 0, "0 channels of 8000"},
    {22, 2, 1025, "1025 channels"}, {22, 2, 65535, "65535 channels"},
    {24, 4, 0, "1 channels of 0 samples a second"}, {24, 4, 0x80000000, "2147483648 samples"},
    {24, 4, 0xffffffff, "4294967295 samples a second"}, {34, 2, 0, "format 1 of 0 bits"},
    {34, 2, 4, "format 1 of 4 bits"}, {34, 2, 33, "format 1 of 33 bits"},
    {34, 2, 64, "format 1 of 64 bits"}, {34, 2, 65535, "format 1 of 65535 bits"},
    {36, 1, 'x', "offset 54: it ends before the samples"}, {36, 4, 0, "it ends before the samples"},
    {40, 4, 200, "offset 36: a chunk of 200 bytes, 10 are left"}, {40, 4, 11, "a chunk of 11 bytes"},
    {40, 4, 0x7fffefff, "a chunk of 2147479551 bytes"}};

TEST(bad_files_say_what_is_wrong) {
    for (size_t i = 0; i < sizeof bad_wav / sizeof *bad_wav; i++) {
        const int64_t n = tiny_size(FL_SPEECH_S16);
        put(tiny + bad_wav[i].at, bad_wav[i].bytes, bad_wav[i].value);
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_speech_read_audio("tiny", tiny, n, (fl_speech_audio_opts){0});
        if (!CHECK(!x) || !CHECK_ERROR(bad_wav[i].text))
            printf("  %d at %d\n", (int)bad_wav[i].value, bad_wav[i].at);
        fl_scope_end(&s);
    }
    put16(tiny + 20, 3); /* a float that is none */
    const int64_t n = tiny_size(FL_SPEECH_F32);
    memset(tiny + 44 + 8, 0xff, 4);
    CHECK(!fl_speech_read_audio("tiny", tiny, n, (fl_speech_audio_opts){0}));
    CHECK_ERROR("sample 2 of channel 1 is");
    fl_scope s = fl_scope_begin();
    CHECK(!fl_speech_save_audio(file(), sound(4, 1), 0, FL_SPEECH_S16));
    CHECK_ERROR("0 samples a second");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Lines of a SPHERE header, 10 bytes of samples behind it. */
TEST(bad_headers_of_sphere) {
    static const struct { const char *size, *lines, *text; } bad[] = {
        {"1024", "", "the header has no end"},
        {"1024", "end_hea", "the header has no end"},
        {"1024", "end_head", "1 channels of 0 samples a second"},
        {"1024", "sample_rate 8000\nend_head", "1 channels of 0 samples"},
        {"1024", "sample_rate -i\nend_head", "0 samples a second"},
        {"1024", "sample_rate -i -8000\nend_head", "-8000 samples a second"},
        {"1024", "sample_rate -i 99999999999\nend_head", "99999999999 samples a second"},
        {"1024", "sample_rate -i 99999999999999999999\nend_head", "9223372036854775807 samples"},
        {"1024", "sample_rate -i 8000\nchannel_count -i 0\nend_head", "0 channels"},
        {"1024", "sample_rate -i 8000\nchannel_count -i -2\nend_head", "-2 channels"},
        {"1024", "sample_rate -i 8000\nchannel_count -i 1025\nend_head", "1025 channels"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i 0\nend_head", "samples of 0 bytes coded as pcm"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i 3\nend_head", "samples of 3 bytes"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i -1\nend_head", "samples of -1 bytes"},
        {"1024", "sample_rate -i 8000\nsample_coding -s5 alaw\nend_head", "coded as alaw"},
        {"1024", "sample_rate -i 8000\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head",
         "coded as pcm,embedded"},
        {"1024", "sample_rate -i 8000\nsample_count -i 6\nend_head", "6 samples are promised, 5 are there"},
        {"1024", "sample_rate -i 8000\nsample_count -i -1\nend_head", "-1 samples are promised"},
        {"1023", "sample_rate -i 8000\nend_head", "a header of that size cannot be"},
        {"1035", "sample_rate -i 8000\nend_head", "a header of that size cannot be"},
        {"0", "sample_rate -i 8000\nend_head", "a header of that size cannot be"},
        {"x", "sample_rate -i 8000\nend_head", "a header of that size cannot be"},
        {"-9223372036854775808", "sample_rate -i 8000\nend_head", "a header of that size cannot be"},
        {"99999999999999999999", "sample_rate -i 8000\nend_head", "a header of that size cannot be"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(tiny, 0, 1034);
        snprintf((char *)tiny, 1024, "NIST_1A\n%s\n%s\n", bad[i].size, bad[i].lines);
        fl_tensor *x = fl_speech_read_audio("tiny", tiny, 1034, (fl_speech_audio_opts){0});
        if (!CHECK(!x) || !CHECK_ERROR(bad[i].text))
            printf("  %s %s\n", bad[i].size, bad[i].lines);
    }
    CHECK(!fl_speech_read_audio("tiny", tiny, 1023, (fl_speech_audio_opts){0}));
    CHECK_ERROR("the header is cut");
    CHECK_NOTHING_LIVES();
}

/* Streams do not know their size: 0 and the largest stand for what is there. */
TEST(sizes_that_streams_leave) {
    static const uint32_t size[] = {0, 0xffffffff, 0x7fffffff, 10};
    for (int i = 0; i < 4; i++) {
        const int64_t n = tiny_size(FL_SPEECH_S16);
        for (int k = 0; k < 4; k++) tiny[40 + k] = (unsigned char)(size[i] >> 8 * k);
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_speech_read_audio("stream", tiny, n, (fl_speech_audio_opts){0});
        CHECK_EQ_INT(x ? x->shape[1] : 0, 5);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(prefixes_and_flips) {
    int64_t read = 0, refused = 0;
    for (int kind = 0; kind < 3; kind++) {
        const int64_t n = kind == 2 ? ima_file() : tiny_size(kind ? FL_SPEECH_F64 : FL_SPEECH_S16);
        static unsigned char copy[4096];
        for (int64_t i = 0; i < n + 8 * n; i++) {
            memcpy(copy, tiny, (size_t)n);
            if (i >= n) copy[(i - n) / 8] ^= (unsigned char)(1 << (i - n) % 8);
            fl_scope s = fl_scope_begin();
            fl_tensor *x = fl_speech_read_audio("flip", copy, i < n ? i : n, (fl_speech_audio_opts){0});
            CHECK(x || fl_error());
            x ? read++ : refused++;
            fl_error_clear();
            fl_scope_end(&s);
        }
    }
    printf("%lld read, %lld refused\n", (long long)read, (long long)refused);
    CHECK(read > 100 && refused > 300);
    CHECK_NOTHING_LIVES();
}

/* ---- resampling ---- */

/* The sum as it is written, in f64. */
static double resampled(const float *x, int64_t n, int64_t i, double from, double to) {
    const double base = (from < to ? from : to) * 0.99, pi = 3.141592653589793;
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const double t = ((double)i / to - (double)k / from) * base;
        if (fabs(t) >= 6) continue;
        const double w = cos(t * pi / 12);
        sum += x[k] * w * w * (t == 0 ? 1 : sin(pi * t) / (pi * t)) * base / from;
    }
    return sum;
}

TEST(resampling_is_the_sum_and_pieces_are_the_whole) {
    static const int64_t rate[][2] = {{16000, 8000}, {8000, 16000}, {44100, 16000}, {3, 7},
                                      {7, 3},        {100, 1},      {9, 10}};
    fl_scope s = fl_scope_begin();
    for (int r = 0; r < 7; r++) {
        const int64_t from = rate[r][0], to = rate[r][1];
        const int64_t n = r == 2 ? 16000 : 700; /* long ones go in groups */
        fl_tensor *x = sound(n, 5), *y = fl_speech_resample(x, from, to);
        if (!CHECK(y != NULL)) continue;
        CHECK_EQ_INT(y->shape[0], (n * to + from - 1) / from);
        double worst = 0;
        for (int64_t i = 0; i < y->shape[0]; i += n / 200)
            worst = fmax(worst, fabs(resampled(fl_data(x), n, i, (double)from, (double)to) -
                                     ((float *)fl_data(y))[i]));
        CHECK(worst < 2e-6);
        fl_speech_resampler *p = fl_speech_resampler_new(from, to);
        for (int round = 0; round < 2; round++) {
            int64_t at = 0, got = 0, piece = 1 + round;
            const float *out;
            for (; at < n; piece = piece * 5 % 97 + 1) {
                const int64_t m = piece < n - at ? piece : n - at;
                const int64_t k = fl_speech_resampler_push(p, (float *)fl_data(x) + at, m, at + m == n, &out);
                CHECK(k >= 0 && got + k <= y->shape[0] &&
                      !memcmp(out, (float *)fl_data(y) + got, (size_t)k * 4));
                at += m, got += k;
            }
            CHECK_EQ_INT(got, y->shape[0]);
        }
        fl_speech_resampler_free(p);
    }
    CHECK(!fl_speech_resampler_new(0, 5));
    CHECK_ERROR("from 0 to 5");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- features ---- */

/* Number k of frame t of x as the definition says, in f64: the transform by its sum. */
typedef struct reference {
    double row[512], energy;
} reference;

static void reference_frame(const fl_speech_conf *c, const double *x, reference *r) {
    const int64_t n = c->window_length, bins = c->n_fft / 2 + 1;
    const bool middle = c->edges >= FL_SPEECH_ZEROS;
    double v[512] = {0}, mean = 0, raw = 0, power[512];
    for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) v[i] = x[i] - (c->remove_mean ? mean : 0), raw += v[i] * v[i];
    for (int64_t i = n - 1; i >= 0; i--) v[i] -= c->preemphasis * v[i ? i - 1 : 0];
    fl_tensor *w = fl_speech_window_of(c->window, n);
    for (int64_t i = 0; i < n; i++) v[i] *= ((double *)fl_data(w))[i];
    double windowed = 0;
    for (int64_t i = 0; i < n; i++) windowed += v[i] * v[i];
    (void)middle;
    for (int64_t k = 0; k < bins; k++) {
        double re = 0, im = 0;
        for (int64_t i = 0; i < n; i++) {
            const double a = 6.283185307179586 * (double)(i * k % c->n_fft) / (double)c->n_fft;
            re += v[i] * cos(a), im -= v[i] * sin(a);
        }
        power[k] = c->magnitude ? sqrt(re * re + im * im) : re * re + im * im;
    }
    int64_t d = bins;
    memcpy(r->row, power, (size_t)bins * sizeof *power);
    if (c->kind != FL_SPEECH_SPECTROGRAM) {
        const double *b = fl_data(fl_speech_bands_of(c));
        d = c->bands;
        for (int64_t k = 0; k < d; k++) {
            r->row[k] = 0;
            for (int64_t i = 0; i < bins; i++) r->row[k] += b[k * bins + i] * power[i];
        }
    }
    const double scale[] = {1, 1, 1 / log(10), 10 / log(10)};
    if (c->log || c->kind == FL_SPEECH_MFCC)
        for (int64_t k = 0; k < d; k++) r->row[k] = scale[c->log] * log(fmax(r->row[k], c->floor));
    if (c->kind == FL_SPEECH_MFCC) {
        const double *m = fl_data(fl_speech_cosines_of(c));
        double y[512] = {0};
        for (int64_t k = 0; k < c->cepstra; k++)
            for (int64_t i = 0; i < d; i++) y[k] += m[i * c->cepstra + k] * r->row[i];
        memcpy(r->row, y, sizeof y);
    }
    r->energy = log(fmax(c->raw_energy ? raw : windowed, c->energy_floor));
}

/* A random choice of options. */
static fl_speech_conf random_conf(fl_rng *rng) {
    static const char *const preset[] = {"htk", "kaldi", "torchaudio", "librosa", "whisper"};
    fl_speech_conf c;
    fl_speech_preset(&c, preset[fl_speech_draw(rng, 0, 4)], 8000);
    c.range = 0, c.pad_to = 0, c.drop_last = c.whisper = false;
    c.kind = (fl_speech_kind)fl_speech_draw(rng, 0, 2);
    c.window = (fl_speech_window)fl_speech_draw(rng, 0, 5);
    c.edges = (fl_speech_edges)fl_speech_draw(rng, 0, 3);
    c.n_fft = fl_speech_draw(rng, 16, 40) * (c.n_fft > 400 ? 5 : 3);
    c.window_length = c.edges >= FL_SPEECH_ZEROS ? c.n_fft : fl_speech_draw(rng, 10, c.n_fft);
    c.hop = fl_speech_draw(rng, 1, c.window_length);
    c.remove_mean = fl_speech_draw(rng, 0, 1), c.magnitude = fl_speech_draw(rng, 0, 1);
    c.preemphasis = fl_rng_uniform(rng);
    c.scale = (fl_speech_scale)fl_speech_draw(rng, 0, 3);
    c.mel_slopes = fl_speech_draw(rng, 0, 1), c.slaney_norm = fl_speech_draw(rng, 0, 1);
    c.below_nyquist = fl_speech_draw(rng, 0, 1);
    c.bands = fl_speech_draw(rng, 1, 20), c.cepstra = fl_speech_draw(rng, 1, c.bands);
    c.low = fl_rng_uniform(rng) * 300, c.high = fl_speech_draw(rng, 0, 1) ? 0 : -fl_rng_uniform(rng) * 900;
    c.log = (fl_speech_log)fl_speech_draw(rng, 0, 3), c.floor = 1e-5;
    c.energy = (fl_speech_energy)fl_speech_draw(rng, 0, 2), c.raw_energy = fl_speech_draw(rng, 0, 1);
    c.orthonormal = fl_speech_draw(rng, 0, 1), c.c0_last = fl_speech_draw(rng, 0, 1);
    return c;
}

static int64_t mirrored(const fl_speech_conf *c, int64_t i, int64_t n) {
    const int twice = c->edges == FL_SPEECH_MIRROR;
    while (i < 0 || i >= n) i = i < 0 ? -i - twice : 2 * n - 2 + twice - i;
    return i;
}

TEST(features_are_what_they_are_defined_to_be) {
    fl_rng rng = fl_data_rng(7, 0, 0);
    double worst = 0;
    int64_t count = 0;
    for (int round = 0; round < 60; round++) {
        fl_scope s = fl_scope_begin();
        const fl_speech_conf c = random_conf(&rng);
        const int64_t n = fl_speech_draw(&rng, 300, 700);
        fl_tensor *x = sound(n, (uint64_t)round + 1);
        fl_speech_features *f = fl_speech_features_new(&c);
        if (!CHECK(f != NULL)) puts(fl_error());
        fl_tensor *y = f ? fl_speech_features_of(f, x) : NULL;
        const int64_t before = c.edges >= FL_SPEECH_ZEROS ? c.n_fft / 2
                               : c.edges                  ? (c.window_length - c.hop) / 2
                                                          : 0;
        const int64_t want = c.edges == FL_SPEECH_SNIP
                                 ? n < c.window_length ? 0 : (n - c.window_length) / c.hop + 1
                             : c.edges == FL_SPEECH_MIRROR ? (n + c.hop / 2) / c.hop
                                                           : (n + c.n_fft / 2 * 2 - c.n_fft) / c.hop + 1;
        CHECK_EQ_INT(y ? y->shape[0] : -1, want);
        for (int64_t t = 0; y && t < want; t += 1 + want / 4) {
            static double v[512];
            reference r;
            for (int64_t i = 0; i < c.window_length; i++) {
                const int64_t at = t * c.hop - before + i;
                const bool out = c.edges == FL_SPEECH_ZEROS && (at < 0 || at >= n);
                v[i] = out ? 0 : (double)((float *)fl_data(x))[mirrored(&c, at, n)] * c.gain;
            }
            reference_frame(&c, v, &r);
            const bool bands = c.kind == FL_SPEECH_FBANK, mfcc = c.kind == FL_SPEECH_MFCC;
            const int64_t d = y->shape[1], last = c.energy == FL_SPEECH_ENERGY_LAST || (mfcc && c.c0_last);
            const int64_t place = c.energy ? (last ? d - 1 : 0) : -1;
            for (int64_t k = 0; k < d; k++) {
                const double got = ((float *)fl_data(y))[t * d + k];
                const int64_t from = bands && place == 0 ? k - 1 : k;
                const double should = k == place ? r.energy : r.row[from];
                /* near the rounding of f32 sums of large numbers a logarithm says nothing */
                const double scale = c.log || mfcc ? fmax(1, c.kind == FL_SPEECH_MFCC ? 20 * c.lifter : 4)
                                                   : fmax(1e-3, fabs(should));
                const double error = fabs(got - should) / scale;
                worst = fmax(worst, error), count++;
            }
        }
        fl_speech_features_free(f);
        fl_scope_end(&s);
    }
    printf("%lld numbers, worst %g\n", (long long)count, worst);
    CHECK(worst < 1e-3 && count > 3000);
    CHECK_NOTHING_LIVES();
}

TEST(pieces_give_the_bits_of_the_whole) {
    fl_rng rng = fl_data_rng(11, 0, 0);
    int64_t frames = 0;
    for (int round = 0; round < 60; round++) {
        fl_scope s = fl_scope_begin();
        fl_speech_conf c = random_conf(&rng);
        c.dither = round % 3 ? 0 : 0.01;
        const int64_t n = fl_speech_draw(&rng, 1, 900), most = round % 5 ? 200 : 1;
        fl_tensor *x = sound(n, (uint64_t)round + 1);
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_tensor *y = fl_speech_features_of(f, x);
        fl_speech_stream *p = fl_speech_stream_new(f);
        for (int again = 0; again < 2; again++) {
            int64_t got = 0, bad = 0;
            for (int64_t at = 0; at < n;) {
                int64_t m = fl_speech_draw(&rng, 1, most);
                m = m < n - at ? m : n - at;
                fl_tensor *z = fl_speech_stream_push(p, (float *)fl_data(x) + at, m, at + m == n);
                if (!CHECK(z != NULL)) break;
                bad += got + z->shape[0] > y->shape[0] ||
                       memcmp(fl_data(z), (float *)fl_data(y) + got * y->shape[1], (size_t)fl_numel(z) * 4);
                at += m, got += z->shape[0];
            }
            CHECK_EQ_INT(bad, 0);
            CHECK_EQ_INT(got, y->shape[0]);
            frames += got;
        }
        fl_speech_stream_free(p);
        fl_speech_features_free(f);
        fl_scope_end(&s);
    }
    printf("%lld frames\n", (long long)frames);
    CHECK(frames > 1000);
    CHECK_NOTHING_LIVES();
}

TEST(the_kernel_and_the_composition_agree) {
    fl_rng rng = fl_data_rng(13, 0, 0);
    double worst = 0;
    for (int round = 0; round < 20; round++) {
        fl_scope s = fl_scope_begin();
        fl_speech_conf c = random_conf(&rng);
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_tensor *x = fl_reshape(sound(800, 3), FL_SHAPE(2, 400)), *y = fl_speech_features_of(f, x);
        fl_var *z = fv_speech_features_of(f, fv_const(x));
        worst = fmax(worst,
                     distance(y, z ? fv_value(z) : NULL) / fmax(1, fl_item(fl_amax(fl_abs(y), FL_ALL_AXES))));
        fl_speech_features_free(f);
        fl_scope_end(&s);
    }
    printf("worst %g\n", worst);
    CHECK(worst < 2e-3);
    CHECK_NOTHING_LIVES();
}

static fl_var *spectrum_of(fl_var *const *x, void *user) {
    (void)user;
    fl_tensor *w = fl_speech_window_of(FL_SPEECH_HAMMING, 12);
    static const double weight[] = {.5, 1, .5, .3, .9, .2};
    static const int64_t first[] = {1, 4};
    fl_spectrum_args a = {.hop = 5,
                          .n_fft = 16,
                          .remove_mean = true,
                          .preemphasis = 0.9,
                          .log = true,
                          .floor = 1e-9,
                          .log_scale = 1,
                          .energy = FL_ENERGY_RAW,
                          .energy_floor = 1e-9};
    return fv_spectrum(x[0], w, fl_from_host(weight, FL_SHAPE(2, 3), FL_F64),
                       fl_from_host(first, FL_SHAPE(2), FL_I64), NULL, a);
}

TEST(features_have_a_gradient) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_cast(sound(40, 9), FL_F64));
    CHECK(fl_gradcheck(spectrum_of, FV_LIST(x)));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(short_sounds_and_bad_options) {
    fl_scope s = fl_scope_begin();
    fl_speech_conf c;
    CHECK(!fl_speech_preset(&c, "praat", 0));
    CHECK_ERROR("htk, kaldi, torchaudio, librosa, whisper");
    static const char *const preset[] = {"htk", "kaldi", "torchaudio", "librosa"};
    for (int k = 0; k < 4; k++) {
        CHECK(fl_speech_preset(&c, preset[k], 16000));
        fl_speech_features *f = fl_speech_features_new(&c);
        for (int64_t n = 0; n < 3; n++) {
            fl_tensor *y = fl_speech_features_of(f, sound(n, 1));
            CHECK_EQ_INT(y ? y->shape[0] : -1, k == 3 && n);
            CHECK_EQ_INT(y ? y->shape[1] : -1, fl_speech_features_dims(f));
        }
        fl_speech_features_free(f);
    }
    static const struct { const char *name, *value, *text; } bad[] = {
        {"num-mel-bins", "0", "0 bands"}, {"low-freq", "9000", "from 9000"}, {"hop", "0", "hop 0"},
        {"n-fft", "1", "n_fft 1"},        {"deltas", "2", "2 deltas"},       {"rate", "-1", "rate -1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_speech_preset(&c, "kaldi", 16000);
        CHECK(fl_speech_conf_set(&c, bad[i].name, bad[i].value));
        CHECK(!fl_speech_features_new(&c));
        CHECK_ERROR(bad[i].text);
    }
    CHECK(!fl_speech_conf_set(&c, "num-mel-bands", "4"));
    CHECK_ERROR("no option 'num-mel-bands'");
    CHECK(!fl_speech_conf_set(&c, "window-type", "kaiser"));
    CHECK_ERROR("hamming hanning povey");
    fl_speech_preset(&c, "whisper", 0);
    fl_speech_features *f = fl_speech_features_new(&c);
    CHECK(!fl_speech_stream_new(f));
    CHECK_ERROR("range looks ahead");
    fl_speech_features_free(f);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(configurations_of_kaldi_and_htk) {
    FILE *f = fopen(file(), "w");
    fputs("# Kaldi's\n--num-mel-bins=40 # bands\n--frame-length=32\n--use-energy=true\n\nNUMCHANS = "
          "26\nTARGETRATE = 125000.0\n",
          f);
    fclose(f);
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", 16000);
    CHECK(fl_speech_conf_load(&c, file()));
    CHECK_EQ_INT(c.bands, 26);
    CHECK_EQ_INT(c.window_length, 512);
    CHECK_EQ_INT(c.hop, 200);
    CHECK_EQ_INT(c.energy, FL_SPEECH_ENERGY_FIRST);
    f = fopen(file(), "w");
    fputs("--num-mel-bins=10\n--nonsense=1\n", f);
    fclose(f);
    CHECK(!fl_speech_conf_load(&c, file()));
    CHECK_ERROR("line 2: ");
    CHECK_EQ_INT(c.bands, 26);
    remove(file());
}

TEST(deltas_and_normalisations) {
    fl_scope s = fl_scope_begin();
    double v[12] = {1, 5, 2, 4, 4, 4, 8, 1, 3, 0, 7, 2};
    fl_tensor *x = fl_from_host(v, FL_SHAPE(6, 2), FL_F64), *y = fl_speech_deltas(x, 2, 1);
    const double *d = fl_data(y);
    CHECK_EQ_INT(y->shape[1], 4);
    CHECK_NEAR(d[2 * 4 + 2], (1 * (8 - 2) + 2 * (3 - 1)) / 10., 1e-12);
    CHECK_NEAR(d[2], (1 * (2 - 1) + 2 * (4 - 1)) / 10., 1e-12);
    fl_tensor *n = fl_speech_normalize(x);
    CHECK_NEAR(fl_item(fl_mean(n, FL_ALL_AXES)), 0, 1e-12);
    CHECK_NEAR(fl_item(fl_variance(n, FL_ALL_AXES, 0)), 1, 1e-12);
    n = fl_speech_normalize(x, .by_column = true, .no_variance = true, .left = 1, .right = 1);
    CHECK_NEAR(((double *)fl_data(n))[4], 4 - (2 + 4 + 8) / 3., 1e-12);
    CHECK_NEAR(((double *)fl_data(n))[0], 1 - (1 + 2) / 2., 1e-12);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- masks ---- */

TEST(spec_augment_masks_what_it_says) {
    int64_t seen[6] = {0}, widest = 0;
    for (int i = 0; i < 3000; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(3, 0, i);
        fl_tensor *x = fl_ones(FL_SHAPE(20, 10), FL_F32);
        fl_tensor *y = fl_speech_spec_augment(x, &rng, .band_width = 5, .bands = 1, .frames = FL_I0);
        int64_t masked = 0;
        for (int k = 0; k < 10; k++) masked += ((float *)fl_data(y))[k] == 0;
        CHECK(masked <= 5);
        seen[masked < 6 ? masked : 5]++;
        rng = fl_data_rng(4, 0, i);
        y = fl_speech_spec_augment(x, &rng, .bands = FL_I0, .frame_width = 9, .frames = 1, .share = 0.2,
                                   .warp = 3);
        masked = 0;
        for (int t = 0; t < 20; t++) masked += ((float *)fl_data(y))[t * 10] == 0;
        widest = masked > widest ? masked : widest;
        fl_scope_end(&s);
    }
    for (int k = 0; k < 6; k++) CHECK(seen[k] > 400 && seen[k] < 600); /* 500 each */
    CHECK_EQ_INT(widest, 4);
    CHECK_NOTHING_LIVES();
}

/* ---- hours ---- */

static int64_t grown;
static void *growing(void *user, void *p, size_t bytes) {
    (void)user;
    grown += p && bytes;
    if (bytes) return realloc(p, bytes);
    free(p);
    return NULL;
}

/* A sound at 11,025 samples a second, brought to 8,000, its features: no array grows behind the first minute,
   and as many tensors live (a tenth of an hour; FULL=1: an hour). */
TEST(an_hour_of_stream_takes_no_more_memory_than_a_minute) {
    const int64_t minutes = getenv("FULL") && *getenv("FULL") ? 60 : 6, piece = 1103;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = sound(11025, 3);
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", 8000);
    int64_t frames = 0, tensors = 0;
    fl_heap_use(growing, NULL);
    fl_speech_features *f = fl_speech_features_new(&c);
    fl_speech_resampler *r = fl_speech_resampler_new(11025, 8000);
    fl_speech_stream *p = fl_speech_stream_new(f);
    for (int64_t i = 0; i < minutes * 600; i++) {
        fl_scope inner = fl_scope_begin();
        const float *y, *from = (const float *)fl_data(x) + i * 7919 % (11025 - piece);
        const int64_t n = fl_speech_resampler_push(r, from, piece, false, &y);
        fl_tensor *z = n >= 0 ? fl_speech_stream_push(p, y, n, false) : NULL;
        if (CHECK(z != NULL)) frames += z->shape[0];
        fl_scope_end(&inner);
        if (i + 1 == 600) grown = 0, tensors = fl_mem_live();
    }
    printf("%lld frames, %lld arrays grew\n", (long long)frames, (long long)grown);
    CHECK(grown == 0 && fl_mem_live() == tensors);
    CHECK(frames > minutes * 5990);
    fl_speech_stream_free(p);
    fl_speech_resampler_free(r);
    fl_speech_features_free(f);
    fl_heap_use(NULL, NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_on_error(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
