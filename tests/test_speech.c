/* test_speech.c - sound in files, resampling, features whole and in pieces, masks */
#include "../fl_all.h"
#include "heap.h"

static const char *file(void) { return test_file("sound.wav"); }

/* A path of the real data's folder speech, which need not be there. */
static const char *shared(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/speech/%s", test_data_dir(), name);
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
    fl_heap_use(heap_fn, NULL); /* which sees writes beyond a block */
    for (int odd = 1; odd < 4; odd += 2)
        CHECK(fl_speech_save_audio(file(), sound(odd, 1), 8000, FL_SPEECH_U8));
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
    fl_heap_use(NULL, NULL);
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
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_speech_load_audio(shared("formats/jfk1s_s16.wav"), .want_rate = 16000);
    if (!x) {
        CHECK_ERROR("jfk1s_s16.wav");
        fl_scope_end(&s);
        return; /* the codings of these files are tested by hand above and below */
    }
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
    CHECK_ERROR("got 16000 Hz, expected .want_rate 8000");
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
    CHECK_ERROR("ima: offset 48: the ADPCM block is invalid");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A WAV header, its format chunk of 16 bytes and `size` more, for n bytes of samples; where these begin. */
static int64_t put_wav(int tag, int channels, int block, int bits, const void *extra, int size, int n) {
    static const char head[] = "RIFF....WAVEfmt ";
    memset(tiny, 0, sizeof tiny);
    memcpy(tiny, head, 16);
    put16(tiny + 16, 16 + size), put16(tiny + 20, tag), put16(tiny + 22, channels), put16(tiny + 24, 8000);
    put16(tiny + 32, block), put16(tiny + 34, bits);
    if (size) memcpy(tiny + 36, extra, (size_t)size);
    memcpy(tiny + 36 + size, "data", 4), put16(tiny + 40 + size, n);
    return 44 + size;
}

static int clamped(int v) { return v < -32768 ? -32768 : v > 32767 ? 32767 : v; }

/* MS ADPCM as the standard says it, one channel of a block after the other: the nibble of frame t. */
static int ms_reference(const unsigned char *p, int channels, int c, const int16_t coef[][2], int frames,
                        int16_t *out) {
    static const int adapt[] = {230, 230, 230, 230, 307, 409, 512, 614,
                                768, 614, 512, 409, 307, 230, 230, 230};
    const unsigned char *head = p + channels;
    const int16_t *k = coef[p[c]];
    int delta = (int16_t)(head[2 * c] | head[2 * c + 1] << 8);
    head += 2 * channels, out[1] = (int16_t)(head[2 * c] | head[2 * c + 1] << 8);
    head += 2 * channels, out[0] = (int16_t)(head[2 * c] | head[2 * c + 1] << 8);
    head += 2 * channels;
    for (int t = 2; t < frames; t++) {
        const int at = (t - 2) * channels + c, nibble = at % 2 ? head[at / 2] & 15 : head[at / 2] >> 4;
        const int guess = (out[t - 1] * k[0] + out[t - 2] * k[1]) / 256;
        out[t] = (int16_t)clamped(guess + (nibble < 8 ? nibble : nibble - 16) * delta);
        delta = clamped(adapt[nibble] * delta / 256);
        if (delta < 16) delta = 16;
    }
    return frames;
}

static int ima_reference(const unsigned char *p, int channels, int c, int frames, int16_t *out) {
    static const int16_t table[] = {
        7,    8,    9,    10,   11,   12,   13,   14,   16,   17,    19,    21,    23,    25,    28,
        31,   34,   37,   41,   45,   50,   55,   60,   66,   73,    80,    88,    97,    107,   118,
        130,  143,  157,  173,  190,  209,  230,  253,  279,  307,   337,   371,   408,   449,   494,
        544,  598,  658,  724,  796,  876,  963,  1060, 1166, 1282,  1411,  1552,  1707,  1878,  2066,
        2272, 2499, 2749, 3024, 3327, 3660, 4026, 4428, 4871, 5358,  5894,  6484,  7132,  7845,  8630,
        9493, 10442, 11487, 12635, 13899, 15289, 16818, 18500, 20350, 22385, 24623, 27086, 29794, 32767};
    int index = p[4 * c + 2], v = out[0] = (int16_t)(p[4 * c] | p[4 * c + 1] << 8);
    for (int t = 1; t < frames; t++) {
        const int word = (t - 1) / 8, in = (t - 1) % 8;
        const int byte = p[4 * channels + (word * channels + c) * 4 + in / 2];
        const int nibble = in % 2 ? byte >> 4 : byte & 15, step = table[index];
        int change = step >> 3;
        for (int bit = 0; bit < 3; bit++)
            if (nibble >> bit & 1) change += step >> (2 - bit);
        v = clamped(nibble & 8 ? v - change : v + change);
        out[t] = (int16_t)v;
        index += (nibble & 7) < 4 ? -1 : 2 * ((nibble & 7) - 3);
        index = index < 0 ? 0 : index > 88 ? 88 : index;
    }
    return frames;
}

/* Blocks of any nibbles, mono and stereo, whole and cut by the header's number of frames, which counts where
   it ends in the last block: encoders of stereo IMA ADPCM have written half of it. */
TEST(adpcm_is_what_the_formulas_say) {
    static const int16_t coef[][2] = {{256, 0}, {512, -256}, {0, 0}, {192, 64}, {-300, 77}, {460, -208}};
    enum { BLOCKS = 3 };
    unsigned char extra[64] = {0};
    uint64_t seed = 5;
    put16(extra, 4 + (int)sizeof coef), put16(extra + 4, 6);
    for (int i = 0; i < 12; i++) put16(extra + 6 + 2 * i, coef[i / 2][i % 2]);
    for (int round = 0; round < 28; round++) {
        const int channels = 1 + round % 2, ms = round / 2 % 2, block = (ms ? 23 : 20) * channels;
        const int frames = ms ? 2 + 32 : 1 + 32;
        const int cut = round >= 24 ? frames * BLOCKS / 2 : round >= 20 ? 70 : 0;
        const int extra_size = ms ? 6 + (int)sizeof coef : 0;
        int64_t at = put_wav(ms ? 2 : 17, channels, block, 4, extra, extra_size, BLOCKS * block);
        if (cut) { /* a chunk of the number of frames before the samples */
            memmove(tiny + at + 4, tiny + at - 8, 8), memcpy(tiny + at - 8, "fact\4\0\0\0", 8);
            put16(tiny + at, cut), put16(tiny + at + 2, 0), at += 12;
        }
        for (int i = 0; i < BLOCKS * block; i++) tiny[at + i] = (unsigned char)(128 * (noise(&seed) + 1));
        for (int k = 0; k < BLOCKS; k++)
            for (int c = 0; c < channels; c++) {
                if (ms) tiny[at + k * block + c] = (unsigned char)((k + c + round / 4) % 6);
                else tiny[at + k * block + 4 * c + 2] %= 89;
            }
        fl_scope s = fl_scope_begin();
        fl_speech_sound info = {0};
        fl_tensor *x = fl_speech_read_audio("adpcm", tiny, at + BLOCKS * block,
                                            (fl_speech_audio_opts){.info = &info});
        const int64_t all = cut == 70 ? cut : BLOCKS * frames;
        CHECK_EQ_INT(x ? x->shape[0] : 0, channels);
        CHECK_EQ_INT(x ? x->shape[1] : 0, all);
        CHECK_EQ_INT(info.coding, ms ? FL_SPEECH_MS_ADPCM : FL_SPEECH_IMA_ADPCM);
        for (int k = 0; x && k < BLOCKS; k++)
            for (int c = 0; c < channels; c++) {
                int16_t want[64];
                const unsigned char *p = tiny + at + k * block;
                if (ms) ms_reference(p, channels, c, coef, frames, want);
                else ima_reference(p, channels, c, frames, want);
                for (int t = 0; t < frames && k * frames + t < all; t++)
                    CHECK_NEAR(32768 * ((float *)fl_data(x))[c * all + k * frames + t], want[t], 0);
            }
        if (ms) {
            tiny[at + block] = 6;
            CHECK(!fl_speech_read_audio("adpcm", tiny, at + BLOCKS * block, (fl_speech_audio_opts){0}));
            CHECK_ERROR("the ADPCM block is invalid");
        }
        fl_scope_end(&s);
    }
    for (int pairs = 255; pairs < 258; pairs++) { /* 256 of them at most */
        static unsigned char many[6 + 4 * 257];
        put16(many, 4 + 4 * pairs), put16(many + 4, pairs);
        for (int i = 0; i < 2 * pairs; i++) put16(many + 6 + 2 * i, i % 2 ? 0 : i);
        const int64_t at = put_wav(2, 1, 8, 4, many, 6 + 4 * pairs, 8);
        tiny[at] = (unsigned char)(pairs - 1), put16(tiny + at + 3, 256); /* its coefficient is over 256 */
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_speech_read_audio("many", tiny, at + 8, (fl_speech_audio_opts){0});
        CHECK(pairs > 256 ? !x : x && x->shape[1] == 4);
        if (pairs > 256) CHECK_ERROR("the MS ADPCM coefficients are missing");
        else if (x) CHECK_NEAR(32768 * ((float *)fl_data(x))[2], 2 * (pairs - 1), 0);
        fl_scope_end(&s);
    }
    static const struct { int tag, channels, block, bits, n; const char *text; } bad[] = {
        {2, 1, 6, 4, 0, "the ADPCM block size is invalid"},
        {17, 2, 7, 4, 0, "the ADPCM block size is invalid"},
        {17, 0, 8, 4, 0, "the ADPCM block size is invalid"},
        {2, 1, 7, 4, 0, "the MS ADPCM coefficients are missing"},
        {2, 1, 7, 4, 7, "the MS ADPCM coefficients are missing"}, {2, 1, 7, 4, 6, NULL},
        {17, 2, 8, 4, 0, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_scope s = fl_scope_begin();
        put16(extra + 4, bad[i].n);
        const int64_t at =
            put_wav(bad[i].tag, bad[i].channels, bad[i].block, bad[i].bits, extra, bad[i].n ? 30 : 0, 16);
        fl_tensor *x = fl_speech_read_audio("bad", tiny, at + 16, (fl_speech_audio_opts){0});
        CHECK(bad[i].text ? !x : x != NULL);
        if (bad[i].text) CHECK_ERROR(bad[i].text);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* Samples 0, 1, ... 3 of each coding, in SPHERE and without a header, of one and two channels. */
TEST(sphere_and_raw_samples) {
    static const unsigned char bytes[] = {0, 0x80, 1, 0, 0xfe, 0x7f, 0xff, 0xff};
    static const struct { const char *lines; fl_speech_coding coding; double want[4]; int channels;
    } table[] = {
        {"sample_n_bytes -i 2\nsample_byte_format -s2 01", FL_SPEECH_S16, {-32768, 1, 32766, -1}, 1},
        {"sample_n_bytes -i 2\nsample_byte_format -s2 10", FL_SPEECH_S16_BIG, {128, 256, -385, -1}, 1},
        {"sample_coding -s3 pcm", FL_SPEECH_S16, {-32768, 32766, 1, -1}, 2},
        {"sample_n_bytes -i 1", FL_SPEECH_S8, {0, -32768, 256, 0}, 1},
        {"sample_n_bytes -i 1\nsample_coding -s4 ulaw", FL_SPEECH_MULAW,
         {-32124, 32124, -31100, -32124}, 1},
        {"sample_n_bytes -i 1\nsample_coding -s6 mu-law", FL_SPEECH_MULAW,
         {-32124, 32124, -31100, -32124}, 1},
        {"sample_n_bytes -i 1\nsample_coding -s4 alaw", FL_SPEECH_ALAW, {-5504, 5504, -5248, -5504}, 1},
        {"sample_n_bytes -i 1\nsample_coding -s5 a-law", FL_SPEECH_ALAW, {-5504, 5504, -5248, -5504}, 1},
        {"sample_n_bytes -i 3\nsample_byte_format -s3 01", FL_SPEECH_S24, {384, 32766}, 1},
        {"sample_n_bytes -i 3\nsample_byte_format -s3 210", FL_SPEECH_S24_BIG,
         {128.00390625, 254.49609375}, 1},
        {"sample_n_bytes -i 4\nsample_byte_format -s4 0123", FL_SPEECH_S32, {1.5, -0.500030517578125}, 1},
        {"sample_n_bytes -i 4\nsample_byte_format -s4 10", FL_SPEECH_S32_BIG, {128.00390625, -384}, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int raw = 0; raw < 2; raw++) {
            const int64_t head = raw ? 0 : 1024 + 512 * (int64_t)(i % 2), n = table[i].want[2] ? 4 : 2;
            const fl_speech_sound kind = {11025, table[i].channels, 0, table[i].coding};
            memset(tiny, 0, sizeof tiny);
            snprintf((char *)tiny, 1024, "NIST_1A\n   %lld\nsample_rate -i 11025\nchannel_count -i %d\n%s\n"
                     "sample_count -i %lld\nend_head\n", (long long)head, table[i].channels, table[i].lines,
                     (long long)n / table[i].channels);
            memcpy(tiny + head, bytes, sizeof bytes);
            fl_scope s = fl_scope_begin();
            fl_speech_sound info = {0};
            fl_speech_audio_opts o = {.info = &info};
            if (raw) o.raw = kind;
            fl_tensor *x = fl_speech_read_audio("x", tiny, head + (int64_t)sizeof bytes, o);
            const bool bytes_only = strstr(table[i].lines, "n_bytes -i 1") != NULL;
            CHECK_EQ_INT(x ? fl_numel(x) : 0, raw && bytes_only ? 8 : n); /* not cut by sample_count */
            CHECK(x && x->shape[0] == table[i].channels && info.coding == table[i].coding);
            CHECK_EQ_INT(info.rate, 11025);
            for (int k = 0; x && k < n; k++)
                CHECK_NEAR(32768 * ((float *)fl_data(x))[k], table[i].want[k], 0);
            fl_scope_end(&s);
        }
    fl_scope s = fl_scope_begin();
    CHECK(fl_speech_read_audio("x", bytes, 8, (fl_speech_audio_opts){.raw = {.rate = 8000}})->shape[1] == 4);
    CHECK(!fl_speech_read_audio("x", bytes, 8,
                                (fl_speech_audio_opts){.raw = {.rate = 8000, .coding = FL_SPEECH_OTHER}}));
    CHECK_ERROR("14 is not a raw encoding");
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
    {8, 4, 0, "tiny: offset 0: "}, {12, 1, 'g', "offset 36: the data chunk precedes fmt"},
    {12, 4, 0, "the data chunk precedes fmt"},
    {16, 4, 8, "offset 20: the format chunk has fewer than 16 bytes"},
    {16, 4, 0, "fewer than 16"}, {16, 4, 15, "fewer than 16"},
    {16, 4, 26, "offset 46: truncated chunk: its size is 527841045, 0 bytes are left"},
    {16, 4, 34, "the file ends before the data chunk"},
    {16, 4, 35, "chunk: its size is 35, 34 bytes are left"},
    {16, 4, 0x7fffffff, "chunk: its size is 2147483647, 34 bytes are left"},
    {16, 4, 0xffffffff, "chunk: its size is 4294967295, 34 bytes are left"},
    {16, 4, 0xfffffff0, "chunk: its size is 4294967280"}, {20, 2, 0, "format tag 0 with 16 bits"},
    {20, 2, 4, "format tag 4"}, {20, 2, 5, "format tag 5"},
    {20, 2, 9, "format tag 9 with 16 bits"},
    {20, 2, 0x55, "format tag 85"}, {20, 2, 0xffff, "format tag 65535"},
    {20, 2, 3, "format tag 3 with 16 bits"},
    {20, 2, 6, "format tag 6 with 16 bits"}, {20, 2, 7, "format tag 7 with 16 bits"},
    {20, 2, 2, "format tag 2 with 16 bits"}, {20, 2, 17, "format tag 17 with 16 bits"},
    {20, 2, 0xfffe, "the extensible format chunk has fewer than 40 bytes"},
    {22, 2, 0, "got 0 channels at 8000 Hz"},
    {22, 2, 1025, "1025 channels"}, {22, 2, 65535, "65535 channels"},
    {24, 4, 0, "1 channels at 0 Hz"}, {24, 4, 0x80000000, "at 2147483648 Hz"},
    {24, 4, 0xffffffff, "at 4294967295 Hz"}, {34, 2, 0, "format tag 1 with 0 bits"},
    {34, 2, 4, "format tag 1 with 4 bits"}, {34, 2, 33, "format tag 1 with 33 bits"},
    {34, 2, 64, "format tag 1 with 64 bits"}, {34, 2, 65535, "format tag 1 with 65535 bits"},
    {36, 1, 'x', "offset 54: the file ends before the data chunk"},
    {36, 4, 0, "the file ends before the data chunk"},
    {40, 4, 200, "offset 36: truncated chunk: its size is 200, 10 bytes are left"},
    {40, 4, 11, "chunk: its size is 11, 10 bytes are left"},
    {40, 4, 0x7fffefff, "chunk: its size is 2147479551, 10 bytes are left"}};

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
    CHECK_ERROR("rate 0, encoding 0");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Lines of a SPHERE header, 10 bytes of samples behind it. */
TEST(bad_headers_of_sphere) {
    static const struct { const char *size, *lines, *text; } bad[] = {
        {"1024", "", "the header has no end"},
        {"1024", "end_hea", "the header has no end"},
        {"1024", "end_head", "1 channels at 0 Hz"},
        {"1024", "sample_rate 8000\nend_head", "1 channels at 0 Hz"},
        {"1024", "sample_rate -i\nend_head", "at 0 Hz"},
        {"1024", "sample_rate -i -8000\nend_head", "-8000 Hz"},
        {"1024", "sample_rate -i 99999999999\nend_head", "at 99999999999 Hz"},
        {"1024", "sample_rate -i 99999999999999999999\nend_head", "at 9223372036854775807 Hz"},
        {"1024", "sample_rate -i 8000\nchannel_count -i 0\nend_head", "0 channels"},
        {"1024", "sample_rate -i 8000\nchannel_count -i -2\nend_head", "-2 channels"},
        {"1024", "sample_rate -i 8000\nchannel_count -i 1025\nend_head", "1025 channels"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i 0\nend_head", "'pcm' with 0 bytes per sample"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i 5\nend_head", "5 bytes per sample"},
        {"1024", "sample_rate -i 8000\nsample_n_bytes -i -1\nend_head", "-1 bytes per sample"},
        {"1024", "sample_rate -i 8000\nsample_coding -s5 adpcm\nend_head", "encoding 'adpcm' with 2"},
        {"1024", "sample_rate -i 8000\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head",
         "pcm,embedded"},
        {"1024", "sample_rate -i 8000\nsample_count -i 6\nend_head", "gives 6 samples, the file has 5"},
        {"1024", "sample_rate -i 8000\nsample_count -i -1\nend_head", "the header gives -1 samples"},
        {"1023", "sample_rate -i 8000\nend_head", "the header size is invalid"},
        {"1035", "sample_rate -i 8000\nend_head", "the header size is invalid"},
        {"0", "sample_rate -i 8000\nend_head", "the header size is invalid"},
        {"x", "sample_rate -i 8000\nend_head", "the header size is invalid"},
        {"-9223372036854775808", "sample_rate -i 8000\nend_head", "the header size is invalid"},
        {"99999999999999999999", "sample_rate -i 8000\nend_head", "the header size is invalid"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(tiny, 0, 1034);
        snprintf((char *)tiny, 1024, "NIST_1A\n%s\n%s\n", bad[i].size, bad[i].lines);
        fl_tensor *x = fl_speech_read_audio("tiny", tiny, 1034, (fl_speech_audio_opts){0});
        if (!CHECK(!x) || !CHECK_ERROR(bad[i].text))
            printf("  %s %s\n", bad[i].size, bad[i].lines);
    }
    CHECK(!fl_speech_read_audio("tiny", tiny, 1023, (fl_speech_audio_opts){0}));
    CHECK_ERROR("the header is truncated");
    CHECK_NOTHING_LIVES();
}

/* ---- limits ---- */

static fl_tensor *read_at(int64_t n, int64_t rate, int64_t max_samples) {
    const fl_speech_audio_opts o = {.rate = rate, .max_samples = max_samples};
    return fl_speech_read_audio("x", tiny, n, o);
}

TEST(headers_do_not_choose_how_much_memory_is_taken) {
    fl_scope s = fl_scope_begin();
    const int64_t n = put_wav(7, 1, 1, 8, NULL, 0, 1000) + 1000;
    CHECK(!fl_speech_read_audio("x", tiny, -1, (fl_speech_audio_opts){0}));
    CHECK_ERROR("fl_speech_read_audio: x: invalid buffer: -1 bytes");
    CHECK(!fl_speech_read_audio("x", NULL, 5, (fl_speech_audio_opts){0}));
    CHECK_ERROR("fl_speech_read_audio: x: invalid buffer: 5 bytes");
    CHECK(read_at(n, 8000, 1000) && read_at(n, 16000, 2000));
    CHECK(!read_at(n, 8000, 999));
    CHECK_ERROR("x: 1000 samples at 8000 Hz exceed .max_samples, 999");
    CHECK(!read_at(n, 16000, 1999));
    CHECK_ERROR("x: 2000 samples at 16000 Hz exceed .max_samples, 1999");
    put(tiny + 24, 4, 1); /* one sample a second */
    CHECK(!read_at(n, 48000, 0));
    CHECK_ERROR("x: 48000000 samples at 48000 Hz exceed .max_samples, 79108"); /* 13 of 1044 and 2^16 */
    fl_tensor *x = read_at(n, 79, 0);
    CHECK_EQ_INT(x ? x->shape[1] : 0, 79000);
    CHECK(!read_at(n, 80, 0));
    CHECK_ERROR("x: 80000 samples at 80");
    CHECK_EQ_INT((x = read_at(n, 80, 80000)) ? x->shape[1] : 0, 80000);
    put16(tiny + 22, 2);
    CHECK(!read_at(n, 0, 999)); /* of all channels */
    CHECK_ERROR("x: 1000 samples at 1 Hz exceed .max_samples");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- FLAC, which libsndfile reads ---- */

/* Bits of the whole, and the checks of a frame: polynomials 0x07 and 0x8005. */
static int crc(const unsigned char *p, int64_t n, int bits, int polynomial) {
    int v = 0;
    for (int64_t i = 0; i < n; i++) {
        v ^= p[i] << (bits - 8);
        for (int k = 0; k < 8; k++) v = v << 1 ^ (v >> (bits - 1) & 1 ? polynomial | 1 << bits : 0);
    }
    return v;
}

static void put_big16(unsigned char *p, int v) { p[0] = (unsigned char)(v >> 8), p[1] = (unsigned char)v; }

/* Frames of 16 samples of two channels: the left one verbatim, 100 t + frame, the right one always -frame.
   The header promises so many samples. */
static int64_t flac_file(int frames, uint32_t promised) {
    static const unsigned char head[] = {'f', 'L', 'a', 'C', 0x80, 0, 0, 34, 0, 16, 0, 16, 0, 0, 0, 0, 0, 0,
                                         0x0a, 0xc4, 0x42, 0xf0};
    int64_t n = 42;
    memset(tiny, 0, sizeof tiny);
    memcpy(tiny, head, sizeof head);
    for (int i = 0; i < 4; i++) tiny[22 + i] = (unsigned char)(promised >> (24 - 8 * i));
    for (int k = 0; k < frames; k++) {
        unsigned char *p = tiny + n, *q = p;
        *q++ = 0xff, *q++ = 0xf8, *q++ = 0x69, *q++ = 0x18, *q++ = (unsigned char)k, *q++ = 15;
        *q = (unsigned char)crc(p, q - p, 8, 0x07), q++;
        *q++ = 2;
        for (int t = 0; t < 16; t++, q += 2) put_big16(q, 100 * t + k);
        *q++ = 0, put_big16(q, -k), q += 2;
        put_big16(q, crc(p, q - p, 16, 0x8005)), q += 2;
        n += q - p;
    }
    return n;
}

TEST(flac_by_hand) {
    enum { FRAMES = 60 };
    fl_scope s = fl_scope_begin();
    fl_speech_sound info = {0};
    int64_t n = flac_file(FRAMES, 16 * FRAMES);
    fl_tensor *x = fl_speech_read_audio("flac", tiny, n, (fl_speech_audio_opts){.info = &info});
    if (!x && fl_error() && strstr(fl_error(), "a build with FL_USE_SNDFILE")) {
        fl_error_clear();
        fl_scope_end(&s);
        SKIP("libsndfile: absent");
    }
    if (!CHECK(x && x->shape[0] == 2 && x->shape[1] == 16 * FRAMES)) puts(fl_error() ? fl_error() : "");
    CHECK(info.rate == 44100 && info.channels == 2 && info.frames == 16 * FRAMES);
    CHECK_EQ_INT(info.coding, FL_SPEECH_OTHER);
    for (int64_t i = 0; x && i < 16 * FRAMES; i++) {
        CHECK_NEAR(32768 * ((float *)fl_data(x))[i], 100 * (i % 16) + i / 16, 0);
        CHECK_NEAR(32768 * ((float *)fl_data(x))[16 * FRAMES + i], -(double)(i / 16), 0);
    }
    CHECK(read_at(n, 0, 32 * FRAMES) && !read_at(n, 0, 32 * FRAMES - 1));
    CHECK_ERROR("x: 1920 samples at 44100 Hz exceed .max_samples, 1919");
    /* A promise is kept or refused, and costs what is there: 2^25 frames would be 256 MiB. */
    n = flac_file(FRAMES, 1 << 25);
    const int64_t before = test_resident_bytes();
    CHECK(!read_at(n, 0, 0));
    CHECK_ERROR("too few samples");
    CHECK(test_resident_bytes() - before < 16 << 20);
    n = flac_file(FRAMES, (1 << 25) + 1);
    CHECK(!read_at(n, 0, 0));
    CHECK_ERROR("67108866 samples at 44100 Hz exceed .max_samples, 67108864");
    fl_scope_end(&s);
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
    static const int64_t rate[][2] = {{16000, 8000}, {8000, 16000}, {44100, 16000}, {3, 7},   {7, 3},
                                      {100, 1},      {9, 10},       {16000, 15999}, {401, 9}, {350, 351}};
    fl_scope s = fl_scope_begin();
    for (int r = 0; r < 10; r++) {
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
    /* Equal rates: the samples themselves, as they come. */
    const float odd[] = {0.5f, -0.0f, 1e-30f, -3}, *out;
    fl_speech_resampler *same = fl_speech_resampler_new(8000, 8000);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(fl_speech_resampler_push(same, odd + i, 1, i == 3, &out), 1);
        CHECK(!memcmp(out, odd + i, sizeof *out));
    }
    CHECK_EQ_INT(fl_speech_resampler_push(same, odd, 4, true, &out), 4);
    CHECK(!memcmp(out, odd, sizeof odd));
    fl_speech_resampler_free(same);
    CHECK(!fl_speech_resampler_new(0, 5));
    CHECK_ERROR("got rates 0 and 5");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- features ---- */

/* Number k of frame t of x as the definition says, in f64: the transform by its sum. */
typedef struct reference {
    double row[512], energy;
} reference;

/* Cepstra of the all-pole model of order p whose autocorrelations are those of the compressed bands: the
   predictor by Gaussian elimination, its cepstra as the transform of its log spectrum. */
static void reference_plp(const fl_speech_conf *c, const double *band, double *y) {
    enum { POINTS = 4096 };
    const int p = c->lpc_order ? (int)c->lpc_order : 12, b = (int)c->bands, ring = 2 * (b + 1);
    double s[64] = {0}, r[32], m[32][33], pi = 3.141592653589793;
    const double low = fl_speech_to_scale(c->scale, c->low);
    const double step = (fl_speech_to_scale(c->scale, c->rate / 2 + c->high) - low) / (b + 1);
    for (int j = 1; j <= b; j++) {
        const double f = fl_speech_to_hertz(c->scale, low + step * j), q = f * f, part = q / (q + 1.6e5);
        const double loud = part * part * (q + 1.44e6) / (q + 9.61e6);
        s[j] = pow(fmax(band[j - 1], c->floor) * loud, c->compress ? c->compress : 0.33333);
    }
    s[0] = s[1], s[b + 1] = s[b];
    for (int j = 1; j <= b; j++) s[ring - j] = s[j];
    for (int k = 0; k <= p; k++) {
        r[k] = 0;
        for (int j = 0; j < ring; j++) r[k] += s[j] * cos(2 * pi * k * j / ring) / ring;
    }
    for (int i = 0; i < p; i++)
        for (int j = 0; j <= p; j++) m[i][j] = j < p ? r[abs(i - j)] : -r[i + 1];
    for (int i = 0; i < p; i++)
        for (int k = 0; k < p; k++) {
            const double by = k == i ? 0 : m[k][i] / m[i][i];
            for (int j = 0; j <= p; j++) m[k][j] -= by * m[i][j];
        }
    double gain = r[0], a[33] = {1};
    for (int i = 0; i < p; i++) a[i + 1] = m[i][p] / m[i][i], gain += a[i + 1] * r[i + 1];
    for (int n = 0; n < c->cepstra; n++) y[n] = 0;
    for (int k = 0; k < POINTS; k++) {
        const double w = 2 * pi * (k + 0.5) / POINTS;
        double re = 0, im = 0;
        for (int i = 0; i <= p; i++) re += a[i] * cos(w * i), im += a[i] * sin(w * i);
        for (int64_t n = 0; n < c->cepstra; n++) {
            const int64_t at = c->no_c0 ? n + 1 : c->c0_last ? (n + 1) % c->cepstra : n;
            const double lift = c->lifter ? 1 + c->lifter / 2 * sin(pi * (double)at / c->lifter) : 1;
            const double scale = c->cepstral_scale ? c->cepstral_scale : 1;
            y[n] += lift * scale * log(gain / (re * re + im * im)) * cos(w * (double)at) / POINTS;
        }
    }
}

static void reference_frame(const fl_speech_conf *c, const double *x, reference *r) {
    const int64_t n = c->window_length, bins = c->n_fft / 2 + 1;
    const bool middle = c->edges >= FL_SPEECH_ZEROS;
    double v[512] = {0}, mean = 0, raw = 0, power[512];
    for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) v[i] = x[i] - (c->remove_mean ? mean : 0), raw += v[i] * v[i];
    for (int64_t i = n - 1; i >= 0; i--) v[i] -= c->preemphasis * v[i ? i - 1 : 0];
    fl_tensor *w = fl_speech_window_new(c->window, n);
    const double blackman = c->blackman ? c->blackman : 0.42;
    for (int64_t i = 0; i < n; i++) {
        const double a = 6.283185307179586 * (double)i / (double)(n - 1);
        v[i] *= c->window != FL_SPEECH_BLACKMAN
                    ? ((double *)fl_data(w))[i]
                    : blackman - 0.5 * cos(a) + (0.5 - blackman) * cos(2 * a);
    }
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
        const double *b = fl_data(fl_speech_filter_bank(c));
        d = c->bands;
        for (int64_t k = 0; k < d; k++) {
            r->row[k] = 0;
            for (int64_t i = 0; i < bins; i++) r->row[k] += b[k * bins + i] * power[i];
        }
    }
    const double scale[] = {1, 1, 1 / log(10), 10 / log(10)};
    if (c->kind == FL_SPEECH_PLP) {
        double y[512];
        reference_plp(c, r->row, y);
        memcpy(r->row, y, sizeof y);
    } else if (c->log || c->kind == FL_SPEECH_MFCC)
        for (int64_t k = 0; k < d; k++) r->row[k] = scale[c->log] * log(fmax(r->row[k], c->floor));
    if (c->kind == FL_SPEECH_MFCC) {
        const double *m = fl_data(fl_speech_dct_matrix(c));
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
    c.kind = (fl_speech_kind)fl_speech_draw(rng, 0, 3);
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
    c.blackman = fl_speech_draw(rng, 0, 1) ? 0 : 0.3 + 0.2 * fl_rng_uniform(rng);
    c.no_c0 = fl_speech_draw(rng, 0, 2) == 0, c.energy_beside = fl_speech_draw(rng, 0, 1);
    c.cepstra -= c.cepstra > 1 && c.no_c0;
    if (c.bands == 1) c.no_c0 = false;
    if (c.kind == FL_SPEECH_PLP) { /* of more bands than poles: else the last poles are those of rounding */
        c.bands = fl_speech_draw(rng, 16, 22), c.lpc_order = fl_speech_draw(rng, 1, 8), c.low = 0;
        c.floor = 1e-3, c.cepstra = fl_speech_draw(rng, 1, c.lpc_order);
        c.compress = fl_speech_draw(rng, 0, 1) ? 0 : 0.3;
        c.cepstral_scale = fl_speech_draw(rng, 0, 1) ? 0 : 2;
        return c;
    }
    if (fl_speech_draw(rng, 0, 1))
        c.vtln_warp = 0.8 + 0.4 * fl_rng_uniform(rng), c.vtln_low = 400, c.vtln_high = -1200;
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
        fl_tensor *y = f ? fl_speech_features_compute(f, x) : NULL;
        const int64_t before = c.edges >= FL_SPEECH_ZEROS ? c.n_fft / 2
                               : c.edges                  ? c.window_length / 2 - c.hop / 2 /* Kaldi's */
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
            const bool mfcc = c.kind >= FL_SPEECH_MFCC; /* or plp */
            const bool beside = c.kind == FL_SPEECH_FBANK || (mfcc && (c.no_c0 || c.energy_beside));
            const int64_t d = y->shape[1],
                          last = c.energy == FL_SPEECH_ENERGY_LAST || (mfcc && c.c0_last && !beside);
            const int64_t place = c.energy ? (last ? d - 1 : 0) : -1;
            for (int64_t k = 0; k < d; k++) {
                const double got = ((float *)fl_data(y))[t * d + k];
                const int64_t from = beside && place == 0 ? k - 1 : k;
                const double should = k == place ? r.energy : r.row[from];
                /* near the rounding of f32 sums of large numbers a logarithm says nothing */
                const double scale = c.log || mfcc ? fmax(1, mfcc ? 20 * c.lifter : 4)
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

/* Windows, scales and bands by their formulas. */
TEST(windows_scales_and_bands) {
    const double pi = 3.141592653589793;
    fl_scope s = fl_scope_begin();
    for (int64_t n = 1; n < 12; n += 5)
        for (int64_t i = 0; i < n; i++) {
            const double a = n > 1 ? 2 * pi * (double)i / (double)(n - 1) : 0;
            const double want[] = {0.54 - 0.46 * cos(a), 0.5 - 0.5 * cos(a), pow(0.5 - 0.5 * cos(a), 0.85), 1,
                                   0.42 - 0.5 * cos(a) + 0.08 * cos(2 * a),
                                   0.5 - 0.5 * cos(n > 1 ? 2 * pi * (double)i / (double)n : 0)};
            for (int w = 0; w < 6; w++) {
                const double *got = fl_data(fl_speech_window_new((fl_speech_window)w, n));
                CHECK_NEAR(got[i], want[w], 1e-12);
            }
        }
    for (double f = 10; f < 9000; f *= 1.7) {
        const double slaney = f < 1000 ? f * 3 / 200 : 15 + 27 * log(f / 1000) / log(6.4);
        const double want[] = {2595 * log10(1 + f / 700), 1127 * log(1 + f / 700), slaney, f, log10(f)};
        for (int k = 0; k < 5; k++) {
            CHECK_NEAR(fl_speech_to_scale((fl_speech_scale)k, f), want[k], 1e-9 * want[k]);
            CHECK_NEAR(fl_speech_to_hertz((fl_speech_scale)k, want[k]), f, 1e-9 * f);
        }
    }
    for (int kind = 0; kind < 8; kind++) {
        fl_speech_conf c;
        fl_speech_preset(&c, "kaldi", 8000);
        c.kind = FL_SPEECH_MFCC, c.bands = 7, c.cepstra = 4;
        c.orthonormal = kind & 1, c.c0_last = kind & 2, c.lifter = kind & 4 ? 9 : 0;
        const double *m = fl_data(fl_speech_dct_matrix(&c));
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 4; j++) {
                const int k = c.c0_last ? (j == 3 ? 0 : j + 1) : j;
                const double lift = kind & 4 ? 1 + 4.5 * sin(pi * k / 9) : 1;
                const bool first = k == 0 && c.orthonormal && !c.c0_last;
                const double scale = lift * sqrt((first ? 1 : 2) / 7.);
                CHECK_NEAR(m[i * 4 + j], scale * cos(pi * k * (i + 0.5) / 7), 1e-12);
            }
    }
    for (int kind = 0; kind < 128; kind++) {
        fl_speech_conf c;
        fl_speech_preset(&c, "htk", 8000);
        c.htk_bins = kind & 64;
        c.vtln_warp = kind & 16 ? kind & 1 ? 1.15 : 0.85 : kind & 32 ? 1 : 0;
        c.vtln_low = 400, c.vtln_high = kind & 2 ? 3000 : -1000, c.vtln_htk = kind & 32;
        c.kind = FL_SPEECH_FBANK, c.n_fft = 64, c.window_length = 64, c.bands = 5, c.low = 150, c.high = -300;
        c.scale = kind & 1 ? FL_SPEECH_SLANEY : FL_SPEECH_MEL;
        c.mel_slopes = kind & 2, c.slaney_norm = kind & 4, c.below_nyquist = kind & 8;
        const double *b = fl_data(fl_speech_filter_bank(&c));
        const double low = fl_speech_to_scale(c.scale, 150), high = fl_speech_to_scale(c.scale, 3700);
        for (int k = 0; k < 5; k++)
            for (int i = 0; i <= 32; i++) {
                double f = i * 125., at[3], hertz[3];
                for (int j = 0; j < 3; j++) at[j] = low + (high - low) * (k + j) / 6;
                for (int j = 0; j < 3; j++) hertz[j] = fl_speech_to_hertz(c.scale, at[j]);
                for (int j = 0; j < 3 && kind & 16; j++) {
                    /* of slope 1 / w between the bends, and such that both ends of the band stay */
                    const double w = c.vtln_warp, middle = 2 * w / (1 + w), top = 3000;
                    const double bend[] = {400 * (kind & 32 ? middle : fmax(1, w)),
                                           top * (kind & 32 ? middle : fmin(1, w))};
                    const double p = hertz[j], end = p < bend[0] ? 150 : 3700, turn = bend[p >= bend[0]];
                    hertz[j] = p >= bend[0] && p < bend[1]
                                   ? p / w
                                   : end + (p - end) * (turn / w - end) / (turn - end);
                    at[j] = fl_speech_to_scale(c.scale, hertz[j]);
                }
                if (c.mel_slopes) f = fl_speech_to_scale(c.scale, f);
                const double *e = c.mel_slopes ? at : hertz;
                double want = fmax(0, fmin((f - e[0]) / (e[1] - e[0]), (e[2] - f) / (e[2] - e[1])));
                if (c.slaney_norm) want *= 2 / (hertz[2] - hertz[0]);
                if (c.below_nyquist && i == 32) want = 0;
                if (c.htk_bins && (i <= 1 || i >= 30)) want = 0; /* bins 150 / 125 and 3700 / 125, rounded */
                CHECK_NEAR(b[k * 33 + i], want, 1e-12);
            }
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(presets_at_16000) {
    static const struct { const char *name; int64_t n_fft, window, hop, bands, cepstra, pad;
        double gain, pre, low, high, lifter, floor, range; int scale, log, edges, shape;
    } table[] = {
        {"htk", 512, 400, 160, 23, 13, 0, 32768, 0.97, 0, 8000, 22, 1, 0, 0, 1, 0, 0},
        {"kaldi", 512, 400, 160, 23, 13, 0, 1, 0.97, 20, 8000, 22, 1.1920928955078125e-07, 0, 1, 1, 0, 2},
        {"torchaudio", 400, 400, 200, 128, 40, 0, 1, 0, 0, 8000, 0, 1e-10, 0, 0, 0, 3, 5},
        {"librosa", 2048, 2048, 512, 128, 20, 0, 1, 0, 0, 8000, 0, 1e-10, 80, 2, 3, 2, 5},
        {"whisper", 400, 400, 160, 80, 40, 480000, 1, 0, 0, 8000, 0, 1e-10, 8, 2, 2, 3, 5}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fl_speech_conf c;
        CHECK(fl_speech_preset(&c, table[i].name, 16000));
        const bool htk = i == 0, kaldi = i == 1, whisper = i == 4;
        const double high = c.high > 0 ? c.high : c.rate / 2 + c.high;
        CHECK(c.kind == FL_SPEECH_FBANK && c.rate == 16000 && c.n_fft == table[i].n_fft);
        CHECK(c.window_length == table[i].window && c.hop == table[i].hop && c.bands == table[i].bands);
        CHECK(c.cepstra == table[i].cepstra && c.pad_to == table[i].pad && c.gain == table[i].gain);
        CHECK(c.preemphasis == table[i].pre && c.low == table[i].low && high == table[i].high);
        CHECK(c.lifter == table[i].lifter && c.floor == table[i].floor && c.energy_floor == 0x1p-23);
        CHECK(c.range == table[i].range && (int)c.scale == table[i].scale && (int)c.log == table[i].log);
        CHECK((int)c.edges == table[i].edges && (int)c.window == table[i].shape && c.dither == 0);
        CHECK(c.magnitude == htk && c.remove_mean == kaldi && c.mel_slopes == kaldi);
        CHECK(c.below_nyquist == kaldi);
        CHECK(c.raw_energy == kaldi && c.orthonormal == !htk && c.slaney_norm == (i > 2) && !c.c0_last);
        CHECK(c.whisper == whisper && c.drop_last == whisper && c.deltas == 0 && c.energy == 0);
        CHECK(fl_speech_preset(&c, table[i].name, 0) && c.rate == (i == 3 ? 22050 : 16000));
    }
}

/* Energies below the largest by more than a range are raised to it, and 1 is the largest; means over a sound
   of what is no energy are 0: HTK's ENORMALISE and _Z. */
TEST(normalised_over_the_sound) {
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 8; k++) {
        fl_speech_conf c;
        fl_speech_preset(&c, "htk", 8000);
        c.kind = k & 1 ? FL_SPEECH_PLP : FL_SPEECH_MFCC;
        c.energy = k & 2 ? FL_SPEECH_ENERGY_LAST : FL_SPEECH_ENERGY_FIRST, c.energy_beside = k & 4;
        fl_tensor *x = fl_reshape(sound(1600, 5), FL_SHAPE(2, 800));
        for (int i = 0; i < 1600; i++) ((float *)fl_data(x))[i] *= (float)exp(-i % 800 / 60.);
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_tensor *plain = fl_speech_features_compute(f, x);
        fl_speech_features_free(f);
        c.subtract_mean = c.energy_normalize = true, c.energy_range = 40, c.energy_scale = 0.2;
        f = fl_speech_features_new(&c);
        fl_tensor *y = fl_speech_features_compute(f, x);
        fl_speech_stream *none = fl_speech_stream_new(f);
        CHECK(!none);
        CHECK_ERROR(".subtract_mean needs the whole sound");
        fl_speech_features_free(f);
        if (!CHECK(plain && y && fl_same_shape(plain, y))) continue;
        const int64_t t = y->shape[1], d = y->shape[2], e = k & 2 ? d - 1 : 0;
        CHECK_EQ_INT(d, 13 + !!(k & 4));
        for (int64_t i = 0; i < 2 * d; i++) {
            const int64_t at = i / d * t * d + i % d;
            const float *p = (float *)fl_data(plain) + at, *q = (float *)fl_data(y) + at;
            double most = -INFINITY, mean = 0;
            for (int64_t j = 0; j < t; j++) most = fmax(most, p[j * d]), mean += p[j * d] / (double)t;
            for (int64_t j = 0; j < t; j++) {
                const double energy = 1 - 0.2 * fmin(most - p[j * d], 4 * log(10));
                CHECK_NEAR(q[j * d], i % d == e ? energy : p[j * d] - mean, 2e-5 * fmax(1, fabs(mean)));
            }
        }
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* What needs the whole sound, or has no gradient, is refused where a gradient is wanted, and only there. */
TEST(features_of_variables) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(sound(900, 1));
    for (int k = 0; k < 11; k++) {
        fl_speech_conf c;
        fl_speech_preset(&c, "kaldi", 8000);
        if (k == 8) c.kind = FL_SPEECH_PLP;
        if (k == 9) c.subtract_mean = true;
        if (k == 10) c.energy = FL_SPEECH_ENERGY_LAST, c.energy_normalize = true;
        if (k == 1) c.dither = 1e-6;
        if (k == 2) c.deltas = 1, c.delta_window = 2;
        if (k == 3) c.range = 8;
        if (k == 4) c.pad_to = 1000;
        if (k == 5) c.drop_last = true;
        fl_var *in = k == 6 ? fv_param(fl_cast(fv_value(x), FL_F64)) : k == 7 ? fv_const(fl_num(1)) : x;
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_var *y = fv_speech_features_compute(f, in);
        CHECK(k ? !y : y != NULL);
        if (k) CHECK_ERROR("speech_features_compute: got x ");
        if (k != 7) {
            fl_tensor *plain = fl_speech_features_compute(f, fv_value(in));
            fl_var *constant = fv_speech_features_compute(f, fv_detach(in));
            CHECK_NEAR(distance(fv_value(k ? constant : y), plain), 0, 1e-4);
        }
        fl_speech_features_free(f);
    }
    fl_scope_end(&s);
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
        fl_tensor *y = fl_speech_features_compute(f, x);
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
        if (c.kind == FL_SPEECH_PLP) c.kind = FL_SPEECH_MFCC; /* which has no composition */
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_tensor *x = fl_reshape(sound(800, 3), FL_SHAPE(2, 400)), *y = fl_speech_features_compute(f, x);
        fl_var *z = fv_speech_features_compute(f, fv_const(x));
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
    fl_tensor *w = fl_speech_window_new(FL_SPEECH_HAMMING, 12);
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
            fl_tensor *y = fl_speech_features_compute(f, sound(n, 1));
            CHECK_EQ_INT(y ? y->shape[0] : -1, k == 3 && n);
            CHECK_EQ_INT(y ? y->shape[1] : -1, fl_speech_features_dims(f));
        }
        fl_speech_features_free(f);
    }
    static const struct { const char *name, *value, *text; } bad[] = {
        {"num-mel-bins", "0", "0 bands"}, {"low-freq", "9000", "from 9000"}, {"hop", "0", "hop 0"},
        {"n-fft", "1", "n_fft 1"},        {"deltas", "2", "got deltas 2"},       {"rate", "-1", "rate -1"},
        {"vtln-warp", "-1", "vtln_warp must be above 0, got -1"},
        {"vtln-low", "10", "vtln_low (10) and vtln_high (7500) warped by 1.1 must lie within 20 to 8000"},
        {"vtln-high", "0", "vtln_low (100) and vtln_high (8000) warped by 1.1"},
        {"vtln-high", "50", "vtln_low (100) and vtln_high (50) warped by 1.1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_speech_preset(&c, "kaldi", 16000);
        c.vtln_warp = 1.1;
        CHECK(fl_speech_conf_set(&c, bad[i].name, bad[i].value));
        CHECK(!fl_speech_features_new(&c));
        CHECK_ERROR(bad[i].text);
    }
    static const struct { int64_t order, cepstra; bool no_c0; const char *text; } plp[] = {
        {129, 13, false, "lpc_order must be 1 to 128, got 129"}, {-1, 1, false, "lpc_order must be 1 to 128"},
        {0, 14, false, "14 cepstra need a higher lpc_order than 12 (PLP)"},
        {7, 8, true, "8 cepstra need a higher"},
        {0, 13, false, NULL}, {7, 7, true, NULL}};
    for (size_t i = 0; i < sizeof plp / sizeof *plp; i++) {
        fl_speech_preset(&c, "kaldi", 16000);
        c.kind = FL_SPEECH_PLP, c.no_c0 = plp[i].no_c0;
        c.lpc_order = plp[i].order, c.cepstra = plp[i].cepstra;
        fl_speech_features *f = fl_speech_features_new(&c);
        CHECK(plp[i].text ? !f : f != NULL);
        if (plp[i].text) CHECK_ERROR(plp[i].text);
        fl_speech_features_free(f);
    }
    CHECK(!fl_speech_conf_set(&c, "num-mel-bands", "4"));
    CHECK_ERROR("no option 'num-mel-bands'");
    CHECK(!fl_speech_conf_set(&c, "window-type", "kaiser"));
    CHECK_ERROR("hamming hanning povey");
    /* What a configuration of a few bytes may allocate. */
    static const struct { const char *kind; int64_t n_fft, bands, cepstra,
                         most; const char *text; } large[] = {
        {"mfcc", 1 << 20, 65536, 65536, 0, "cosines would have 4294967296 elements"},
        {"mfcc", 1 << 10, 4097, 4096, 0, "cosines would have 16781312 elements"},
        {"spectrogram", 4096, 1, 1, 4095, "window would have 4096 elements, .max_numbers is 4095"},
        {"spectrogram", 4096, 1, 1, 4096, NULL},
        {"fbank", 256, 40, 1, 599, "bands would have 600 elements"},
        {"fbank", 256, 40, 1, 600, NULL},
        {"mfcc", 256, 40, 12, 479, "cosines would have 480 elements"}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        fl_speech_preset(&c, "kaldi", 16000);
        CHECK(fl_speech_conf_set(&c, "kind", large[i].kind));
        c.n_fft = large[i].n_fft, c.window_length = 200, c.hop = 100, c.bands = large[i].bands;
        c.cepstra = large[i].cepstra, c.max_numbers = large[i].most;
        fl_speech_features *f = fl_speech_features_new(&c);
        CHECK(large[i].text ? !f : f != NULL);
        if (large[i].text) CHECK_ERROR(large[i].text);
        fl_speech_features_free(f);
    }
    static const struct { const char *name, *value, *text; } wide[] = {
        {"window-length", "2e12", "'2e12' exceeds the maximum, 10^12"},
        {"frame-length", "1e300", "exceeds the maximum, 10^12"},
        {"windowsize", "-1e300", "exceeds the maximum, 10^12"},
        {"bands", "1e19", "exceeds the maximum, 10^12"},
        {"rate", "1e300", "makes window and hop"}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        fl_speech_preset(&c, "kaldi", 16000);
        const fl_speech_conf old = c;
        CHECK(!fl_speech_conf_set(&c, wide[i].name, wide[i].value));
        CHECK_ERROR(wide[i].text);
        CHECK(c.rate == old.rate && c.window_length == old.window_length && c.bands == old.bands);
    }
    fl_speech_preset(&c, "whisper", 0);
    fl_speech_features *f = fl_speech_features_new(&c);
    CHECK(!fl_speech_stream_new(f));
    CHECK_ERROR(".range needs the whole sound");
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
    f = fopen(file(), "w");
    for (int i = 0; i < 1 << 19; i++) fputs("#\n", f);
    fclose(f);
    CHECK(!fl_speech_conf_load(&c, file()));
    CHECK_ERROR("sound.wav: the file has 1048576 bytes, the maximum is 2^20 - 1");
    remove(file());
}

/* y[t] = x[t] - c x[t - 1], y[0] = x[0]: torchaudio's; and its gradient. */
static fl_var *emphasised(fl_var *const *x, void *user) {
    (void)user;
    return fv_speech_preemphasis(x[0], 0.9);
}

TEST(preemphasis_alone) {
    fl_scope s = fl_scope_begin();
    const float v[] = {1, 2, -3, 4, 0, 8}, want[] = {1, 1.5f, -4, 4, -2, 8};
    fl_tensor *x = fl_from_host(v, FL_SHAPE(2, 3), FL_F32);
    CHECK_NEAR(distance(fl_speech_preemphasis(x, 0.5), fl_from_host(want, FL_SHAPE(2, 3), FL_F32)), 0, 0);
    CHECK(fl_numel(fl_speech_preemphasis(fl_zeros(FL_SHAPE(2, 0), FL_F32), 0.5)) == 0);
    CHECK(fl_gradcheck(emphasised, FV_LIST(fv_param(fl_cast(x, FL_F64)))));
    CHECK(!fl_speech_preemphasis(fl_zeros(FL_SHAPE(3), FL_I64), 0.5));
    CHECK_ERROR("fl_speech_preemphasis: got x i64 of shape [3], expected floats [..., t]");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static bool load_conf(fl_speech_conf *c, const char *text) {
    FILE *f = fopen(file(), "wb");
    fputs(text, f);
    fclose(f);
    const bool ok = fl_speech_conf_load(c, file());
    remove(file());
    return ok;
}

static char said_line[512];
static int said_lines;
static void hear(fl_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    snprintf(said_line, sizeof said_line, "%s", text);
    said_lines++;
}

/* Configurations in the forms that recipes use. dims: of what HCopy writes. */
TEST(configurations_of_htk) {
    static const struct { const char *text; int64_t dims, window, hop, bands, cepstra; double rate, low, high;
        const char *skipped;
    } table[] = {
        /* the HTK book's */
        {"# Coding parameters\nTARGETKIND = MFCC_0\nTARGETRATE = 100000.0\nSAVECOMPRESSED = T\n"
         "SAVEWITHCRC = T\nWINDOWSIZE = 250000.0\nUSEHAMMING = T\nPREEMCOEF = 0.97\nNUMCHANS = 26\nCEPLIFTER = 22\n"
         "NUMCEPS = 12\nENORMALISE = F\n", 13, 400, 160, 26, 13, 16000, 0, 8000,
         "SAVECOMPRESSED SAVEWITHCRC"},
        {"SOURCEKIND     = WAVEFORM\r\nSOURCEFORMAT   = NIST\r\nTARGETKIND     = MFCC_E_D_A_Z\r\n"
         "TARGETRATE     = 100000\r\nSOURCERATE     = 625\r\nWINDOWSIZE = 250000.0\r\nZMEANSOURCE = TRUE\r\n"
         "USEHAMMING = TRUE\r\nNUMCHANS = 26\r\nNUMCEPS = 12\r\nENORMALISE = TRUE\r\nESCALE = 1.0\r\n",
         39, 400, 160, 26, 13, 16000, 0, 8000, "SOURCEKIND SOURCEFORMAT"},
        {"HPARM: TARGETKIND = MFCC_0_D_A\nFORCECXTEXP = T\nALLOWXWRDEXP = T\nHNET:TRACE = 19\n"
         "HNETFILTER = \"gunzip -c < $.gz # really\"\n", 39, 409, 160, 20, 13, 16000, 0, 8000,
         "FORCECXTEXP ALLOWXWRDEXP HNET:TRACE HNETFILTER"},
        {"WINDOWSIZE=250000\nTARGETRATE=100000\nNUMCEPS=10\nSOURCERATE=1250\nHIFREQ=3400\nLOFREQ=300\n"
         "TARGETKIND=PLP_0\nUSEPOWER=T\nLPCORDER=10\n", 11, 200, 80, 20, 11, 8000, 300, 3400, NULL},
        {"TARGETKIND = MFCC\nLOFREQ = -1\nHIFREQ = -1.0\n", 12, 409, 160, 20, 12, 16000, 0, 8000, NULL},
        {"TARGETKIND = MFCC_0_E_D\nSOURCERATE = 226.757\n", 28, 1128, 441, 20, 13, 44100, 0, 22050, NULL},
        {"TARGETKIND = FBANK_D_A_T\nNUMCHANS = 24\n", 96, 409, 160, 24, 13, 16000, 0, 8000, NULL},
        {"TARGETKIND = MELSPEC_E_C_K\n", 21, 409, 160, 20, 13, 16000, 0, 8000, NULL},
        {"TARGETKIND = PLP_E_D_A\nHPARM: NUMCHANS = 22\nNUMCHANS = 30\nHCOPY: NUMCHANS = 31\n", 39, 409, 160,
         22, 13, 16000, 0, 8000, "HCOPY:NUMCHANS"},
        {"NUMCHANS = 26\nSOURCEKIND = MFCC_0\n", 23 + 3, 400, 160, 26, 13, 16000, 0, 8000, "SOURCEKIND"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fl_speech_conf c;
        fl_speech_preset(&c, i % 2 ? "kaldi" : "htk", 16000);
        if (i + 1 == sizeof table / sizeof *table) fl_speech_preset(&c, "htk", 16000);
        said_lines = 0;
        fl_log_set_sink(hear, NULL, FL_LOG_INFO);
        if (!CHECK(load_conf(&c, table[i].text))) puts(fl_error());
        fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
        CHECK_EQ_INT(said_lines, table[i].skipped != NULL);
        if (table[i].skipped && !CHECK(strstr(said_line, table[i].skipped) != NULL)) puts(said_line);
        CHECK_EQ_INT(c.window_length, table[i].window);
        CHECK_EQ_INT(c.hop, table[i].hop);
        CHECK_EQ_INT(c.bands, table[i].bands);
        CHECK_EQ_INT(c.cepstra, table[i].cepstra);
        CHECK(c.rate == table[i].rate && c.low == table[i].low);
        CHECK((c.high > 0 ? c.high : c.rate / 2 + c.high) == table[i].high);
        CHECK(c.gain == 32768 && c.window == FL_SPEECH_HAMMING && c.preemphasis == 0.97 && c.floor == 1);
        CHECK(c.magnitude == (i != 3) && c.remove_mean == (i == 1));
        fl_speech_features *f = fl_speech_features_new(&c);
        CHECK_EQ_INT(f ? fl_speech_features_dims(f) : -1, table[i].dims);
        fl_speech_features_free(f);
    }
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", 16000);
    CHECK(load_conf(&c, "TARGETKIND = MFCC_E_D\nUSEHAMMING = F\nSILFLOOR = 40\nACCWINDOW = 3\n"
                        "WARPFREQ = 1.1\nWARPLCUTOFF = 300\nWARPUCUTOFF = 3000\nRAWENERGY = F\nCEPSCALE = 10\n"));
    CHECK(c.kind == FL_SPEECH_MFCC && c.window == FL_SPEECH_RECTANGULAR && c.mel_slopes && !c.raw_energy);
    CHECK(c.energy == FL_SPEECH_ENERGY_LAST && c.energy_normalize && c.energy_range == 40);
    CHECK_EQ_INT(c.acc_window, 3);
    CHECK(c.vtln_warp == 1.1 && c.vtln_low == 300 && c.vtln_high == 3000 && c.vtln_htk && c.htk_bins);
    CHECK(c.cepstral_scale == 10 && c.log == FL_SPEECH_LN && c.c0_last && !c.no_c0 && !c.energy_beside);
    CHECK(load_conf(&c, "TARGETKIND = MELSPEC\n") && c.kind == FL_SPEECH_FBANK && c.log == FL_SPEECH_NO_LOG);
    static const struct { const char *text, *why; } bad[] = {
        {"TARGETKIND = LPC\n", "line 1: fl_speech_conf_set: TARGETKIND: 'LPC' is not supported, expected M"},
        {"NUMCHANS = 3\nTARGETKIND = MFCC_Q\n", "line 2: fl_speech_conf_set: TARGETKIND: 'MFCC_Q': unknown"},
        {"TARGETKIND = MFCC_0_N\n", "unknown qualifier _N"},
        {"TARGETKIND = FBANK_0\n", "FBANK has no qualifier _0"},
        {"SIMPLEDIFFS = T\n", "SIMPLEDIFFS: 'T' is not supported"},
        {"SOURCERATE = -5\n", "SOURCERATE: invalid value '-5', expected a period"},
        {"NUMCHANS = many\n", "line 1: fl_speech_conf_set: NUMCHANS: invalid value 'many'"},
        {"NUMCHANS 26\n", "line 1: malformed, expected NAME = value"},
        {"NUMCHANS =\n", "line 1: malformed, expected NAME = value"},
        {"numchannels = 26\n", "no option 'numchannels'"},
        {"--NUMCHANNELS=26\n", "no option 'NUMCHANNELS'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c.bands = 77;
        CHECK(!load_conf(&c, bad[i].text));
        CHECK_ERROR(bad[i].why);
        CHECK_EQ_INT(c.bands, 77);
    }
    /* A rate below the times of a file counts for them too. */
    fl_speech_preset(&c, "kaldi", 16000);
    CHECK(load_conf(&c, "--frame-length=25\n--frame-shift=10\n--sample-frequency=11025\n"));
    CHECK(c.window_length == 275 && c.hop == 110);
    CHECK_NOTHING_LIVES();
}

/* Accelerations over a window of their own. */
TEST(windows_of_deltas) {
    fl_scope s = fl_scope_begin();
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", 8000);
    fl_tensor *y[3];
    for (int k = 0; k < 3; k++) {
        c.deltas = k ? 2 : 0, c.delta_window = 2, c.acc_window = k == 2 ? 3 : 0;
        fl_speech_features *f = fl_speech_features_new(&c);
        y[k] = fl_speech_features_compute(f, sound(2000, 3));
        fl_speech_features_free(f);
    }
    fl_tensor *same = fl_speech_deltas(y[0], 2, 2), *first = fl_slice(same, 1, 23, 46, 1);
    CHECK_NEAR(distance(y[1], same), 0, 0);
    fl_tensor *part[] = {fl_slice(same, 1, 0, 46, 1), fl_slice(fl_speech_deltas(first, 3, 1), 1, 23, 46, 1)};
    CHECK_NEAR(distance(y[2], fl_concat(part, 2, 1)), 0, 1e-6);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(deltas_and_normalisations) {
    fl_scope s = fl_scope_begin();
    double v[12] = {1, 5, 2, 4, 4, 4, 8, 1, 3, 0, 7, 2};
    fl_tensor *x = fl_from_host(v, FL_SHAPE(6, 2), FL_F64), *y = fl_speech_deltas(x, 2, 1);
    const double *d = fl_data(y);
    CHECK_EQ_INT(y->shape[1], 4);
    static const struct { int64_t window, orders; } bad[] = {{0, 1}, {2, -1}, {2, 17}};
    for (int i = 0; i < 3; i++) {
        CHECK(!fl_speech_deltas(x, bad[i].window, bad[i].orders));
        CHECK_ERROR("fl_speech_deltas: got f64 of shape [6, 2]");
    }
    CHECK(!fl_speech_deltas(fl_reshape(x, FL_SHAPE(12)), 2, 1));
    CHECK_ERROR("fl_speech_deltas: got f64 of shape [12]");
    CHECK(!fl_speech_deltas(fl_zeros(FL_SHAPE(6, 2), FL_I64), 2, 1));
    CHECK_ERROR("fl_speech_deltas: got i64");
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
    const int64_t minutes = test_full() ? 60 : 6, piece = 1103;
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
        if (i + 1 == 600) grown = 0, tensors = test_live_buffers();
    }
    printf("%lld frames, %lld arrays grew\n", (long long)frames, (long long)grown);
    CHECK(grown == 0 && test_live_buffers() == tensors);
    CHECK(frames > minutes * 5990);
    fl_speech_stream_free(p);
    fl_speech_resampler_free(r);
    fl_speech_features_free(f);
    fl_heap_use(NULL, NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The first call after an override compares the composition with what the op's `contains` names. */
TEST(spectrum_names_what_it_runs) {
    test_errors_return();
    REQUIRE(fl_spectrum_register());
    fl_scope s = fl_scope_begin();
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu"));
    REQUIRE(fl_backend_override(&mine, FL_OP_erf, mine.op[FL_OP_erf]) && fl_backend_use(&mine, NULL));
    fl_tensor *x = fl_normal(FL_SHAPE(1, 400), 0, 1, FL_F32, NULL);
    fl_tensor *window = fl_hann_window(100, false, FL_F32);
    fl_spectrum_args a = {.hop = 40, .n_fft = 128, .remove_mean = true, .preemphasis = 0.97,
                          .magnitude = true, .log = true, .floor = 1e-6, .log_scale = 1,
                          .energy = FL_ENERGY_RAW, .energy_floor = 1e-6};
    fl_tensor *bands = fl_ones(FL_SHAPE(3, 8), FL_F32), *first = fl_full(FL_SHAPE(3), 5, FL_I64);
    CHECK(fl_spectrum(x, window, NULL, NULL, NULL, a));
    CHECK_NO_ERROR();
    REQUIRE(fl_backend_use(&mine, NULL)); /* asks again */
    a.bands = a.cosine = true;
    CHECK(fl_spectrum(x, window, bands, first, fl_ones(FL_SHAPE(3, 2), FL_F32), a));
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
