/* fl/speech/audio.h - audio files: reading WAV, NIST SPHERE, raw and (with libsndfile) others; writing WAV */
#ifndef FL_SPEECH_AUDIO_H
#define FL_SPEECH_AUDIO_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Sample encodings in files. Integers of b bits are divided by 2^(b - 1): samples are within [-1, 1). */
typedef enum fl_speech_coding {
    FL_SPEECH_S16, /* little-endian, as all without a suffix */
    FL_SPEECH_U8,
    FL_SPEECH_S24,
    FL_SPEECH_S32,
    FL_SPEECH_F32,
    FL_SPEECH_F64,
    FL_SPEECH_MULAW,
    FL_SPEECH_ALAW,
    FL_SPEECH_S16_BIG, /* big-endian */
    FL_SPEECH_S24_BIG,
    FL_SPEECH_S32_BIG,
    FL_SPEECH_S8,
    FL_SPEECH_MS_ADPCM,
    FL_SPEECH_IMA_ADPCM,
    FL_SPEECH_OTHER /* decoded by libsndfile */
} fl_speech_coding;

typedef struct fl_speech_sound {
    int64_t rate; /* samples per second */
    int64_t channels, frames;
    fl_speech_coding coding;
} fl_speech_sound;

typedef struct fl_speech_audio_opts {
    fl_opts_guard guard_;
    int64_t rate;        /* resample to this rate; 0: keep the file's */
    int64_t want_rate;   /* fail if the file has another rate; 0: accept any */
    int channel;         /* 1, 2, ...: only that channel; -1: the mean of all channels; 0: all */
    fl_speech_sound raw; /* if raw.rate > 0: the bytes have no header and are samples in this format */
    fl_speech_sound *info; /* output: the format of the file */
    /* Fails if all channels together have more samples than this, before or after resampling. 0 -> 13 per
       byte of the file, plus 2^16; for files read by libsndfile 64 per byte, but at least 2^26. */
    int64_t max_samples;
    char _end;
} fl_speech_audio_opts;
/* Reads an audio file. Returns its samples, f32 [channels, frames] in host memory; NULL after fl_fail. WAV:
   RIFF, RF64 and streamed files without sizes, with PCM of 8 to 32 bits, floats, mu-law, A-law, MS and IMA
   ADPCM; NIST SPHERE with PCM of 8 to 32 bits, mu-law and A-law; with FL_USE_SNDFILE also FLAC, Ogg, Opus,
   MP3 and everything else libsndfile reads. The path "-" reads standard input to its end. */
#define fl_speech_load_audio(...) FL__SPEECH_LOAD(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_LOAD(path, ...) \
    fl_speech_load_audio_opt(path, FL_LITERAL(fl_speech_audio_opts, __VA_ARGS__))
FL_API fl_tensor *fl_speech_load_audio_opt(const char *path, fl_speech_audio_opts o);
/* As fl_speech_load_audio, for a file of n bytes in memory; errors show `name` in place of the path. */
FL_API fl_tensor *fl_speech_read_audio(const char *name, const void *bytes, int64_t n,
                                       fl_speech_audio_opts o);

/* Writes floats x, [frames] or [channels, frames], as WAV. Integers are rounded to nearest and clipped to the
   range of the encoding. Supported: u8, s16, s24, s32, f32, f64, mu-law, A-law. */
FL_API bool fl_speech_save_audio(const char *path, fl_tensor *x, int64_t rate, fl_speech_coding coding);

/* ITU-T G.711 companding: decodes a byte to a sample, and encodes a sample to a byte. */
FL_API int fl_speech_mulaw_decode(uint8_t byte);
FL_API int fl_speech_alaw_decode(uint8_t byte);
FL_API uint8_t fl_speech_mulaw_encode(int sample);
FL_API uint8_t fl_speech_alaw_encode(int sample);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_AUDIO_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_AUDIO) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_AUDIO_IMPL
#define FL_SPEECH_AUDIO_IMPL
#include "resample.h"
#include "../ops/copy.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef FL_USE_SNDFILE
#include <sndfile.h>
#endif

/* ---- companded samples ---- */

FL_API int fl_speech_mulaw_decode(uint8_t byte) {
    const int v = ~byte & 255, magnitude = (((v & 15) << 3) + 132) << (v >> 4 & 7);
    return v & 128 ? 132 - magnitude : magnitude - 132;
}

FL_API int fl_speech_alaw_decode(uint8_t byte) {
    const int v = byte ^ 0x55, exponent = v >> 4 & 7, mantissa = (v & 15) << 4;
    const int magnitude = exponent ? (mantissa + 264) << (exponent - 1) : mantissa + 8;
    return v & 128 ? magnitude : -magnitude;
}

static int fl__speech_exponent(int magnitude, int first) {
    int e = 0;
    while (e < 7 && magnitude >= first << (e + 1)) e++;
    return e;
}

FL_API uint8_t fl_speech_mulaw_encode(int sample) {
    const int sign = sample < 0 ? 128 : 0;
    int magnitude = (sign ? -sample : sample) + 132;
    if (magnitude > 32767) magnitude = 32767;
    const int e = fl__speech_exponent(magnitude, 128);
    return (uint8_t)~(sign | e << 4 | (magnitude >> (e + 3) & 15));
}

FL_API uint8_t fl_speech_alaw_encode(int sample) {
    const int sign = sample < 0 ? 0 : 128;
    int magnitude = sign ? sample : -sample - 1;
    if (magnitude > 32767) magnitude = 32767;
    const int e = fl__speech_exponent(magnitude, 128);
    return (uint8_t)((sign | e << 4 | (magnitude >> (e ? e + 3 : 4) & 15)) ^ 0x55);
}

/* ---- bytes ---- */

typedef struct fl__speech_bytes {
    const char *name;
    const uint8_t *p;
    int64_t n;
} fl__speech_bytes;

static uint32_t fl__speech_u(const uint8_t *p, int bytes) {
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static int fl__speech_s16(const uint8_t *p) { return (int16_t)fl__speech_u(p, 2); }

static void *fl__speech_fail(const fl__speech_bytes *b, int64_t at, const char *what) {
    fl_fail("fl_speech_load_audio: %s: offset %lld: %s", b->name, (long long)at, what);
    return NULL;
}

/* The position of the samples in a file, and the parameters of their encoding. */
typedef struct fl__speech_layout {
    fl_speech_sound s;
    int64_t at, bytes;          /* position and length of the samples */
    int64_t block, per_block;   /* ADPCM: bytes and frames per block */
    int64_t fact;               /* frames according to the header; 0: not given */
    int n_coef;
    int16_t coef[256][2];
} fl__speech_layout;

static int fl__speech_width(fl_speech_coding c) {
    static const char width[] = {2, 1, 3, 4, 4, 8, 1, 1, 2, 3, 4, 1, 0, 0, 0};
    return width[c];
}

/* Checks rate and channels, and computes s.frames from the number of bytes present. */
static bool fl__speech_count(const fl__speech_bytes *b, fl__speech_layout *l) {
    const int width = fl__speech_width(l->s.coding);
    if (l->s.rate < 1 || l->s.rate > INT32_MAX || l->s.channels < 1 || l->s.channels > 1024)
        return fl_fail("fl_speech_load_audio: %s: got %lld channels at %lld Hz, expected 1 to 1024 channels "
                       "and a positive rate", b->name, (long long)l->s.channels, (long long)l->s.rate);
    if (width) {
        l->s.frames = l->bytes / (width * l->s.channels);
        return true;
    }
    l->s.frames = l->bytes / l->block * l->per_block;
    /* Only the last block may be partly filled. Smaller counts are wrong, as libsndfile's for stereo IMA. */
    if (l->fact > l->s.frames - l->per_block && l->fact < l->s.frames) l->s.frames = l->fact;
    return true;
}

/* ---- WAV ---- */

/* Reads the ADPCM parameters from the format chunk, n bytes at `at`. */
static bool fl__speech_adpcm(const fl__speech_bytes *b, fl__speech_layout *l, int64_t at, int64_t n) {
    const uint8_t *p = b->p + at;
    const bool ms = l->s.coding == FL_SPEECH_MS_ADPCM;
    const int64_t ch = l->s.channels, head = (ms ? 7 : 4) * ch;
    l->block = fl__speech_u(p + 12, 2);
    if (l->s.channels < 1 || fl__speech_u(p + 14, 2) != 4 || l->block < head || l->block > INT16_MAX * 2)
        return fl__speech_fail(b, at, "the ADPCM block size is invalid") != NULL;
    l->per_block = (l->block - head) * 2 / ch + (ms ? 2 : 1);
    if (!ms) l->per_block = (l->block - head) / (4 * ch) * 8 + 1;
    if (!ms) return true;
    l->n_coef = n >= 22 ? (int)fl__speech_u(p + 20, 2) : 0;
    if (l->n_coef < 1 || l->n_coef > 256 || n < 22 + 4 * l->n_coef)
        return fl__speech_fail(b, at, "the MS ADPCM coefficients are missing") != NULL;
    for (int i = 0; i < 2 * l->n_coef; i++) l->coef[i / 2][i % 2] = (int16_t)fl__speech_s16(p + 22 + 2 * i);
    return true;
}

static bool fl__speech_format(const fl__speech_bytes *b, fl__speech_layout *l, int64_t at, int64_t n) {
    const uint8_t *p = b->p + at;
    if (n < 16) return fl__speech_fail(b, at, "the format chunk has fewer than 16 bytes") != NULL;
    uint32_t tag = fl__speech_u(p, 2);
    const uint32_t bits = fl__speech_u(p + 14, 2);
    if (tag == 0xfffe && n < 40)
        return fl__speech_fail(b, at, "the extensible format chunk has fewer than 40 bytes") != NULL;
    if (tag == 0xfffe) tag = fl__speech_u(p + 24, 2);
    l->s.channels = fl__speech_u(p + 2, 2), l->s.rate = fl__speech_u(p + 4, 4);
    const struct { uint32_t tag, bits; fl_speech_coding coding; } known[] = {
        {1, 8, FL_SPEECH_U8}, {1, 16, FL_SPEECH_S16}, {1, 24, FL_SPEECH_S24}, {1, 32, FL_SPEECH_S32},
        {3, 32, FL_SPEECH_F32}, {3, 64, FL_SPEECH_F64}, {6, 8, FL_SPEECH_ALAW}, {7, 8, FL_SPEECH_MULAW},
        {2, 4, FL_SPEECH_MS_ADPCM}, {17, 4, FL_SPEECH_IMA_ADPCM}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].tag == tag && known[i].bits == (bits + 7) / 8 * 8 * (bits != 4) + 4 * (bits == 4)) {
            l->s.coding = known[i].coding;
            return fl__speech_width(l->s.coding) || fl__speech_adpcm(b, l, at, n);
        }
    return fl_fail("fl_speech_load_audio: %s: offset %lld: unknown WAV format tag %u with %u bits per "
                   "sample; known: PCM, float, mu-law, A-law, MS and IMA ADPCM", b->name, (long long)at, tag,
                   bits);
}

/* Streaming writers leave 0 or a maximal number in a size that they do not know yet. */
static bool fl__speech_wav(const fl__speech_bytes *b, fl__speech_layout *l) {
    bool format = false;
    int64_t wide = -1;
    for (int64_t at = 12; at + 8 <= b->n;) {
        const uint8_t *p = b->p + at;
        const bool data = !memcmp(p, "data", 4);
        int64_t size = fl__speech_u(p + 4, 4), left = b->n - at - 8;
        if (data && wide >= 0 && size == 0xffffffff) size = wide;
        else if (data && (size == 0 || size >= 0x7ffff000)) size = left;
        if (size > left)
            return fl_fail("fl_speech_load_audio: %s: offset %lld: truncated chunk: its size is %lld, %lld "
                           "bytes are left", b->name, (long long)at, (long long)size, (long long)left);
        at += 8;
        if (!memcmp(p, "fmt ", 4) && !(format = fl__speech_format(b, l, at, size))) return false;
        if (!memcmp(p, "fact", 4) && size >= 4) l->fact = fl__speech_u(b->p + at, 4);
        if (!memcmp(p, "ds64", 4) && size >= 16)
            wide =
                (int64_t)((uint64_t)fl__speech_u(b->p + at + 12, 4) << 32 | fl__speech_u(b->p + at + 8, 4));
        if (data && !format) return fl__speech_fail(b, at - 8, "the data chunk precedes fmt") != NULL;
        if (data) {
            l->at = at, l->bytes = size;
            return fl__speech_count(b, l);
        }
        at += size + size % 2;
    }
    return fl__speech_fail(b, b->n, "the file ends before the data chunk") != NULL;
}

/* ---- NIST SPHERE ---- */

/* Returns the value of a header line "name -type value", or NULL if there is no such line. */
static const char *fl__speech_sphere_field(const char *head, const char *name) {
    const size_t n = strlen(name);
    for (const char *p = head; (p = strchr(p, '\n')); p++)
        if (!strncmp(p + 1, name, n) && p[1 + n] == ' ' && p[2 + n] == '-') {
            p = strchr(p + 2 + n, ' ');
            return p ? p + 1 : NULL;
        }
    return NULL;
}

static int64_t fl__speech_sphere_int(const char *head, const char *name, int64_t otherwise) {
    const char *p = fl__speech_sphere_field(head, name);
    return p ? strtol(p, NULL, 10) : otherwise;
}

static bool fl__speech_sphere(const fl__speech_bytes *b, fl__speech_layout *l) {
    char head[1025] = "";
    if (b->n < 1024) return fl__speech_fail(b, b->n, "the header is truncated, it needs 1024 bytes") != NULL;
    memcpy(head, b->p, 1024);
    const char *coding = fl__speech_sphere_field(head, "sample_coding"),
               *order = fl__speech_sphere_field(head, "sample_byte_format");
    const int64_t bytes = fl__speech_sphere_int(head, "sample_n_bytes", 2);
    const bool mulaw = coding && (!strncmp(coding, "ulaw\n", 5) || !strncmp(coding, "mu-law\n", 7)),
               alaw = coding && (!strncmp(coding, "alaw\n", 5) || !strncmp(coding, "a-law\n", 6)),
               big = order && *order >= '1' && *order <= '3'; /* "10", "210" */
    const fl_speech_coding pcm[][2] = {{FL_SPEECH_S8, FL_SPEECH_S8},
                                       {FL_SPEECH_S16, FL_SPEECH_S16_BIG},
                                       {FL_SPEECH_S24, FL_SPEECH_S24_BIG},
                                       {FL_SPEECH_S32, FL_SPEECH_S32_BIG}};
    if (!strstr(head, "\nend_head")) return fl__speech_fail(b, 1024, "the header has no end_head") != NULL;
    if ((coding && !mulaw && !alaw && strncmp(coding, "pcm\n", 4)) || bytes < 1 || bytes > 4)
        return fl_fail("fl_speech_load_audio: %s: unknown encoding '%.*s' with %lld bytes per sample; known: "
                       "pcm with 1 to 4, ulaw, alaw", b->name, (int)strcspn(coding ? coding : "pcm", "\n"),
                       coding ? coding : "pcm", (long long)bytes);
    l->s.coding = mulaw ? FL_SPEECH_MULAW : alaw ? FL_SPEECH_ALAW : pcm[bytes - 1][big];
    l->s.rate = fl__speech_sphere_int(head, "sample_rate", 0);
    l->s.channels = fl__speech_sphere_int(head, "channel_count", 1);
    l->at = strtol(head + 8, NULL, 10);
    if (l->at < 1024 || l->at > b->n) return fl__speech_fail(b, 8, "the header size is invalid") != NULL;
    l->bytes = b->n - l->at;
    if (!fl__speech_count(b, l)) return false;
    const int64_t declared = fl__speech_sphere_int(head, "sample_count", l->s.frames);
    if (declared < 0 || declared > l->s.frames)
        return fl_fail("fl_speech_load_audio: %s: truncated: the header gives %lld samples, the file has "
                       "%lld", b->name, (long long)declared, (long long)l->s.frames);
    l->s.frames = declared;
    return true;
}

/* ---- samples ---- */

static float fl__speech_sample(const uint8_t *p, fl_speech_coding c) {
    float f;
    double d;
    switch (c) {
    case FL_SPEECH_U8: return (float)(*p - 128) / 128;
    case FL_SPEECH_S8: return (float)(signed char)*p / 128;
    case FL_SPEECH_S24: return (float)((int32_t)(fl__speech_u(p, 3) << 8) / 256) / 8388608;
    case FL_SPEECH_S32: return (float)(int32_t)fl__speech_u(p, 4) / 2147483648.0f;
    case FL_SPEECH_F32: memcpy(&f, p, 4); return f;
    case FL_SPEECH_F64: memcpy(&d, p, 8); return (float)d;
    case FL_SPEECH_MULAW: return (float)fl_speech_mulaw_decode(*p) / 32768;
    case FL_SPEECH_ALAW: return (float)fl_speech_alaw_decode(*p) / 32768;
    case FL_SPEECH_S16_BIG: return (float)(int16_t)(p[0] << 8 | p[1]) / 32768;
    case FL_SPEECH_S24_BIG: return fl__speech_sample((uint8_t[]){p[2], p[1], p[0]}, FL_SPEECH_S24);
    case FL_SPEECH_S32_BIG: return fl__speech_sample((uint8_t[]){p[3], p[2], p[1], p[0]}, FL_SPEECH_S32);
    default: return (float)fl__speech_s16(p) / 32768;
    }
}

static int fl__speech_clamp16(int v) { return v < -32768 ? -32768 : v > 32767 ? 32767 : v; }

/* Writes frame t of channel c, unless it lies in the unused rest of the last block. */
static void fl__speech_put(const fl__speech_layout *l, float *out, int64_t c, int64_t t, int sample) {
    if (t < l->s.frames) out[c * l->s.frames + t] = (float)sample / 32768;
}

static bool fl__speech_ms_block(const fl__speech_layout *l, const uint8_t *p, int64_t frame,
                                float *out) {
    static const int adapt[16] = {230, 230, 230, 230, 307, 409, 512, 614,
                                  768, 614, 512, 409, 307, 230, 230, 230};
    const int64_t ch = l->s.channels;
    for (int64_t c = 0; c < ch; c++) {
        if (p[c] >= l->n_coef) return false;
        const int16_t *k = l->coef[p[c]];
        int delta = fl__speech_s16(p + ch + 2 * c), a = fl__speech_s16(p + 3 * ch + 2 * c);
        int b = fl__speech_s16(p + 5 * ch + 2 * c);
        fl__speech_put(l, out, c, frame, b), fl__speech_put(l, out, c, frame + 1, a);
        for (int64_t t = 2; t < l->per_block; t++) {
            const int64_t i = (t - 2) * ch + c;
            const int byte = p[7 * ch + i / 2], code = i % 2 ? byte & 15 : byte >> 4;
            const int64_t next =
                ((int64_t)a * k[0] + (int64_t)b * k[1]) / 256 + (int64_t)(code - (code & 8) * 2) * delta;
            b = a, a = next < -32768 ? -32768 : next > 32767 ? 32767 : (int)next;
            fl__speech_put(l, out, c, frame + t, a);
            delta = fl__speech_clamp16((int)((int64_t)adapt[code] * delta / 256));
            if (delta < 16) delta = 16;
        }
    }
    return true;
}

static bool fl__speech_ima_block(const fl__speech_layout *l, const uint8_t *p, int64_t frame,
                                 float *out) {
    static const int index_step[8] = {-1, -1, -1, -1, 2, 4, 6, 8};
    static const int16_t step[89] = {
        7,    8,     9,     10,    11,    12,    13,    14,    16,    17,    19,    21,    23,    25,   28,
        31,   34,    37,    41,    45,    50,    55,    60,    66,    73,    80,    88,    97,    107,  118,
        130,  143,   157,   173,   190,   209,   230,   253,   279,   307,   337,   371,   408,   449,  494,
        544,  598,   658,   724,   796,   876,   963,   1060,  1166,  1282,  1411,  1552,  1707,  1878, 2066,
        2272, 2499,  2749,  3024,  3327,  3660,  4026,  4428,  4871,  5358,  5894,  6484,  7132,  7845, 8630,
        9493, 10442, 11487, 12635, 13899, 15289, 16818, 18500, 20350, 22385, 24623, 27086, 29794, 32767};
    const int64_t ch = l->s.channels;
    for (int64_t c = 0; c < ch; c++) {
        int v = fl__speech_s16(p + 4 * c), index = p[4 * c + 2];
        if (index > 88) return false;
        fl__speech_put(l, out, c, frame, v);
        for (int64_t t = 1; t < l->per_block; t++) {
            const int64_t i = t - 1, byte = 4 * ch + i / 8 * 4 * ch + 4 * c + i % 8 / 2;
            const int code = i % 2 ? p[byte] >> 4 : p[byte] & 15, s = step[index];
            const int d = (s >> 3) + (code & 1 ? s >> 2 : 0) + (code & 2 ? s >> 1 : 0) + (code & 4 ? s : 0);
            v = fl__speech_clamp16(code & 8 ? v - d : v + d);
            index += index_step[code & 7];
            index = index < 0 ? 0 : index > 88 ? 88 : index;
            fl__speech_put(l, out, c, frame + t, v);
        }
    }
    return true;
}

static bool fl__speech_decode(const fl__speech_bytes *b, const fl__speech_layout *l, float *out) {
    const uint8_t *p = b->p + l->at;
    const int64_t ch = l->s.channels, width = fl__speech_width(l->s.coding);
    for (int64_t t = 0; width && t < l->s.frames; t++)
        for (int64_t c = 0; c < ch; c++, p += width)
            out[c * l->s.frames + t] = fl__speech_sample(p, l->s.coding);
    for (int64_t k = 0; !width && k < l->bytes / l->block; k++, p += l->block)
        if (!(l->s.coding == FL_SPEECH_MS_ADPCM ? fl__speech_ms_block
                                                : fl__speech_ima_block)(l, p, k * l->per_block, out))
            return fl__speech_fail(b, p - b->p, "the ADPCM block is invalid") != NULL;
    return true;
}

/* Checks the number of samples, at the given rate, against .max_samples. */
static bool fl__speech_fits(const fl__speech_bytes *b, const fl_speech_audio_opts *o,
                            const fl_speech_sound *s, double samples, int64_t rate) {
    const double n = (double)b->n, packed = 64 * n > 1 << 26 ? 64 * n : 1 << 26;
    const double most = o->max_samples                   ? (double)o->max_samples
                        : s->coding == FL_SPEECH_OTHER ? packed
                                                         : 13 * n + (1 << 16);
    return samples <= most ||
           fl_fail("fl_speech_load_audio: %s: %.0f samples at %lld Hz exceed .max_samples, %.0f", b->name,
                   samples, (long long)rate, most);
}

/* ---- libsndfile ---- */

#ifdef FL_USE_SNDFILE
typedef struct fl__speech_virtual {
    const fl__speech_bytes *b;
    sf_count_t at;
} fl__speech_virtual;

static sf_count_t fl__speech_sf_length(void *user) { return ((fl__speech_virtual *)user)->b->n; }

static sf_count_t fl__speech_sf_seek(sf_count_t offset, int whence, void *user) {
    fl__speech_virtual *v = user;
    const sf_count_t at = offset + (whence == SEEK_CUR ? v->at : whence == SEEK_END ? v->b->n : 0);
    return at < 0 || at > v->b->n ? -1 : (v->at = at);
}

static sf_count_t fl__speech_sf_read(void *to, sf_count_t n, void *user) {
    fl__speech_virtual *v = user;
    if (n > v->b->n - v->at) n = v->b->n - v->at;
    memcpy(to, v->b->p + v->at, (size_t)n);
    v->at += n;
    return n;
}

static sf_count_t fl__speech_sf_tell(void *user) { return ((fl__speech_virtual *)user)->at; }

/* The frame count of a compressed file is not trusted: memory grows with the frames decoded. */
static fl_tensor *fl__speech_sndfile(const fl__speech_bytes *b, const fl_speech_audio_opts *o,
                                     fl_speech_sound *s) {
    fl__speech_virtual file = {b, 0};
    SF_VIRTUAL_IO io = {.get_filelen = fl__speech_sf_length, .seek = fl__speech_sf_seek,
                        .read = fl__speech_sf_read, .tell = fl__speech_sf_tell};
    SF_INFO info = {0};
    SNDFILE *f = sf_open_virtual(&io, SFM_READ, &info, &file);
    if (!f) return fl__speech_fail(b, 0, sf_strerror(NULL));
    *s = (fl_speech_sound){info.samplerate, info.channels, info.frames, FL_SPEECH_OTHER};
    const int64_t ch = info.channels, frames = info.frames;
    int64_t got = 0, capacity = 0;
    float *v = NULL, *p;
    bool ok = ch < 1 || frames < 0 ? fl__speech_fail(b, 0, "no channels, or negative frames") != NULL
                                   : fl__speech_fits(b, o, s, (double)frames * (double)ch, s->rate);
    while (ok && got < frames) {
        capacity = capacity ? 2 * capacity : 1 + 65536 / ch;
        if (capacity > frames) capacity = frames;
        ok = (p = fl_heap_realloc(v, (size_t)(capacity * ch) * sizeof *v)) != NULL;
        if (!ok) break;
        v = p, got += sf_readf_float(f, v + got * ch, capacity - got);
        ok = got == capacity || fl__speech_fail(b, file.at, "truncated: too few samples") != NULL;
    }
    sf_close(f);
    fl_tensor *x = ok ? fl_data_host_tensor(FL_SHAPE(ch, frames), FL_F32) : NULL;
    float *to = x ? fl_map(x, FL_WRITE) : NULL;
    for (int64_t c = 0; to && c < ch; c++)
        for (int64_t t = 0; t < frames; t++) to[c * frames + t] = v[t * ch + c];
    if (to) fl_unmap(x, FL_WRITE);
    fl_heap_free(v);
    return to ? x : NULL;
}
#else
static fl_tensor *fl__speech_sndfile(const fl__speech_bytes *b, const fl_speech_audio_opts *o,
                                     fl_speech_sound *s) {
    (void)o, (void)s;
    return fl__speech_fail(b, 0, "not WAV or SPHERE; other formats need a build with FL_USE_SNDFILE");
}
#endif

/* ---- reading ---- */

static fl_tensor *fl__speech_samples(const fl__speech_bytes *b, fl_speech_audio_opts o, fl_speech_sound *s) {
    fl__speech_layout *l = fl_heap_alloc(sizeof *l);
    if (!l) return NULL;
    *l = (fl__speech_layout){.s = o.raw, .bytes = b->n};
    const bool wav = b->n >= 12 && (!memcmp(b->p, "RIFF", 4) || !memcmp(b->p, "RF64", 4)) &&
                     !memcmp(b->p + 8, "WAVE", 4);
    const bool sphere = b->n >= 8 && !memcmp(b->p, "NIST_1A\n", 8), raw = o.raw.rate > 0;
    fl_tensor *x = NULL;
    if (raw && !o.raw.channels) l->s.channels = 1;
    if (raw && (o.raw.coding < FL_SPEECH_S16 || o.raw.coding > FL_SPEECH_S8))
        fl_fail("fl_speech_load_audio: %s: .raw.coding %d is not a raw encoding", b->name, (int)o.raw.coding);
    else if (!raw && !wav && !sphere) x = fl__speech_sndfile(b, &o, s);
    else if (raw ? fl__speech_count(b, l) : wav ? fl__speech_wav(b, l) : fl__speech_sphere(b, l)) {
        *s = l->s;
        if (fl__speech_fits(b, &o, s, (double)(l->s.channels * l->s.frames), s->rate))
            x = fl_data_host_tensor(FL_SHAPE(l->s.channels, l->s.frames), FL_F32);
        float *to = x ? fl_map(x, FL_WRITE) : NULL;
        const bool decoded = to && fl__speech_decode(b, l, to);
        if (to) fl_unmap(x, FL_WRITE);
        if (!decoded) x = NULL;
    }
    fl_heap_free(l);
    return x;
}

static bool fl__speech_finite(const fl__speech_bytes *b, fl_tensor *x) {
    const float *p = fl_map(x, FL_READ);
    const int64_t n = fl_numel(x), frames = x->shape[1];
    bool ok = p != NULL;
    for (int64_t i = 0; ok && i < n; i++)
        if (!isfinite(p[i]))
            ok = fl_fail("fl_speech_load_audio: %s: sample %lld of channel %lld is not finite: %g", b->name,
                         (long long)(i % frames), (long long)(i / frames + 1), (double)p[i]);
    if (p) fl_unmap(x, FL_READ);
    return ok;
}

static bool fl__speech_wanted(const fl__speech_bytes *b, const fl_speech_audio_opts *o,
                              const fl_speech_sound *s) {
    if (o->want_rate && o->want_rate != s->rate)
        return fl_fail("fl_speech_load_audio: %s: wrong rate: got %lld Hz, expected .want_rate %lld", b->name,
                       (long long)s->rate, (long long)o->want_rate);
    return (o->channel >= -1 && o->channel <= s->channels) ||
           fl_fail("fl_speech_load_audio: %s: no channel %d, the file has %lld", b->name, o->channel,
                   (long long)s->channels);
}

FL_API fl_tensor *fl_speech_read_audio(const char *name, const void *bytes, int64_t n,
                                       fl_speech_audio_opts o) {
    const fl__speech_bytes b = {name ? name : "memory", bytes, n};
    fl_speech_sound s = {0};
    if (n < 0 || (n && !bytes)) {
        fl_fail("fl_speech_read_audio: %s: invalid buffer: %lld bytes at %p", b.name, (long long)n, bytes);
        return NULL;
    }
    fl_quiet(1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *x = fl__speech_samples(&b, o, &s);
    if (x && !fl__speech_finite(&b, x)) x = NULL;
    if (x && !fl__speech_wanted(&b, &o, &s)) x = NULL;
    if (x && o.channel) x = o.channel > 0 ? fl_contiguous(fl_slice(x, 0, o.channel - 1, o.channel, 1))
                                          : fl_unsqueeze(fl_mean(x, FL_AXES(0)), 0);
    if (x && o.rate && o.rate != s.rate) {
        const double samples = ceil((double)x->shape[1] * (double)o.rate / (double)s.rate);
        x = fl__speech_fits(&b, &o, &s, samples * (double)x->shape[0], o.rate)
                ? fl_speech_resample(x, s.rate, o.rate) : NULL;
    }
    if (x && o.info) *o.info = s;
    x = fl_scope_return(&scope, x);
    fl_quiet(-1);
    return x;
}

static bool fl__speech_read_input(fl_data_text *t) {
    char buf[4096];
    for (size_t n; (n = fread(buf, 1, sizeof buf, stdin)) > 0;)
        if (!fl_data_text_put(t, buf, n)) return false;
    return !ferror(stdin) || fl_fail("fl_speech_load_audio: cannot read standard input");
}

FL_API fl_tensor *fl_speech_load_audio_opt(const char *path, fl_speech_audio_opts o) {
    fl_data_text t = {0};
    fl_data_stream f;
    bool ok;
    if (path && !strcmp(path, "-")) ok = fl__speech_read_input(&t);
    else {
        if (!fl_data_stream_open(&f, "fl_speech_load_audio", path, FL_DATA_READ)) return NULL;
        t.n = f.size;
        t.p = fl_heap_alloc((size_t)f.size + 1);
        ok = t.p && fl_data_stream_read(&f, t.p, (size_t)f.size, 0);
        f.io.close(f.io.user, f.file);
    }
    fl_tensor *x = ok ? fl_speech_read_audio(path, t.p ? t.p : "", t.n, o) : NULL;
    fl_heap_free(t.p);
    return x;
}

/* ---- writing ---- */

static void fl__speech_store(uint8_t *p, int bytes, uint64_t v) {
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static void fl__speech_encode(uint8_t *p, fl_speech_coding c, double v) {
    const int width = fl__speech_width(c),
              bits = c == FL_SPEECH_MULAW || c == FL_SPEECH_ALAW ? 16 : 8 * width;
    const double most = ldexp(1, bits - 1);
    double r = rint(v * most);
    r = r > most - 1 ? most - 1 : r < -most ? -most : r == r ? r : 0;
    const int64_t i = (int64_t)r;
    const float f = (float)v;
    if (c == FL_SPEECH_F32) memcpy(p, &f, 4);
    else if (c == FL_SPEECH_F64) memcpy(p, &v, 8);
    else if (c == FL_SPEECH_MULAW) *p = fl_speech_mulaw_encode((int)i);
    else if (c == FL_SPEECH_ALAW) *p = fl_speech_alaw_encode((int)i);
    else fl__speech_store(p, width, (uint64_t)(c == FL_SPEECH_U8 ? i + 128 : i));
}

FL_API bool fl_speech_save_audio(const char *path, fl_tensor *x, int64_t rate, fl_speech_coding coding) {
    enum { HEAD = 44 };
    const char *fn = "fl_speech_save_audio";
    if (!x || x->ndim < 1 || x->ndim > 2 || !fl_dtype_is_float(x->dtype) || rate < 1 || rate > INT32_MAX ||
        coding < FL_SPEECH_S16 || coding > FL_SPEECH_ALAW)
        return fl_fail("%s: %s: got %s of shape %s, rate %lld, encoding %d; expected floats [frames] or "
                       "[channels, frames], a positive rate, an encoding up to FL_SPEECH_ALAW", fn,
                       path ? path : "NULL", x ? fl_dtype_name(x->dtype) : "NULL", x ? FL_SHAPE_TEXT(x) : "",
                       (long long)rate, (int)coding);
    const int width = fl__speech_width(coding);
    const int64_t frames = x->shape[x->ndim - 1], ch = x->ndim == 2 ? x->shape[0] : 1,
                  size = frames * ch * width;
    if (ch < 1 || ch > 1024 || size > UINT32_MAX - HEAD)
        return fl_fail("%s: %s: got %lld channels and %lld bytes of samples; expected 1 to 1024 channels and "
                       "less than 4 GiB", fn, path, (long long)ch, (long long)size);
    double *v = fl_heap_alloc((size_t)(frames * ch) * sizeof *v + 1);
    uint8_t *p = v ? fl_heap_alloc((size_t)size + HEAD + 1) : NULL;
    fl_scope scope = fl_scope_begin();
    fl_quiet(1);
    fl_tensor *wide = p ? fl_cast(x, FL_F64) : NULL;
    bool ok = wide && fl_to_host(wide, v, (size_t)(frames * ch) * sizeof *v);
    fl_quiet(-1);
    fl_scope_end(&scope);
    if (ok) {
        const bool law = coding == FL_SPEECH_MULAW || coding == FL_SPEECH_ALAW;
        const uint32_t tag = coding == FL_SPEECH_MULAW ? 7 : law ? 6 : coding >= FL_SPEECH_F32 ? 3 : 1;
        const uint32_t n = (uint32_t)size, field[][2] = {
            {4, n + n % 2 + HEAD - 8}, {16, 16}, {20, tag | (uint32_t)ch << 16}, {24, (uint32_t)rate},
            {28, (uint32_t)(rate * ch * width)}, {32, (uint32_t)(ch * width | width * 8 << 16)}, {40, n}};
        memcpy(p, "RIFF....WAVEfmt ....................data", 40);
        for (size_t i = 0; i < sizeof field / sizeof *field; i++)
            fl__speech_store(p + field[i][0], 4, field[i][1]);
        for (int64_t t = 0, i = HEAD; t < frames; t++)
            for (int64_t c = 0; c < ch; c++, i += width) fl__speech_encode(p + i, coding, v[c * frames + t]);
        p[HEAD + size] = 0; /* chunks are of even size */
        ok = fl_data_replace(fn, path, p, (size_t)(HEAD + size + size % 2));
    }
    fl_heap_free(v);
    fl_heap_free(p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
