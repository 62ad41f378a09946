/* fuzz_speech.c - sounds, lists, tokens, lexicons, chains of effects and configurations of any content

   One file lies in memory behind fl_data's table of file operations: the input itself, or a whole file of its
   kind with bytes changed. The first byte switches between the kinds. What is read is used; reading takes no
   more memory and time than tests/cost.h allows. */
#include "fuzz.h"

enum { KINDS = 8 };

/* A whole file of a kind, in little-endian. */
static void put_wav(int tag) {
    static const unsigned char head[] = "RIFF\0\0\0\0WAVEfmt \x14\0\0\0\1\0\1\0\x40\x1f\0\0"
                                        "\0\0\0\0\2\0\x10\0\2\0\x09\0data\x10\0\0\0";
    memcpy(fuzz_mem.bytes, head, fuzz_mem.size = sizeof head - 1);
    fuzz_mem.bytes[20] = (char)tag;
    if (tag == 0x11) fuzz_mem.bytes[32] = 8, fuzz_mem.bytes[34] = 4;
    if (tag == 3) fuzz_mem.bytes[34] = 32, fuzz_mem.bytes[32] = 4;
    memset(fuzz_mem.bytes + fuzz_mem.size, 0, 16);
    fuzz_mem.size += 16;
}

static void put_sphere(void) {
    static const char head[] = "NIST_1A\n   1024\nsample_count -i 20\nsample_n_bytes -i 2\n"
                               "channel_count -i 1\nsample_byte_format -s2 01\nsample_rate -i 8000\n"
                               "sample_coding -s3 pcm\nend_head\n";
    memset(fuzz_mem.bytes, ' ', fuzz_mem.size = 1064);
    memcpy(fuzz_mem.bytes, head, sizeof head - 1);
    fuzz_mem.bytes[strstr(head, "bytes -i 2") + 9 - head] = "1234"[fuzz_below(4)];
}

static const char *const texts[KINDS] = {
    NULL, NULL, "id x 12.5 a b\nid2 x 3\n", "a\nb B\n|\n", "ab a b\nb b\nab b a a |\n",
    "{\"soundEffectChain\": [{\"type\": \"ReverbEcho\", \"reverbEchoConfig\": {\"repeat\": 1}}, "
    "{\"type\": \"TimeStretch\"}, {\"type\": \"WaveAugment\"}, {\"type\": \"Speed\", \"speedConfig\": "
    "{\"minFactor\": 1}}, {\"type\": \"Normalize\", \"normalizeOnlyIfTooHigh\": true}, "
    "{\"type\": \"Reverb\", \"reverbConfig\": {\"listFilePath\": \"x\"}}]}",
    "# c\n--num-mel-bins=12 # bands\n--frame-length=32\n--use-energy=true\n\nNUMCHANS = 9\n"
    "TARGETRATE = 1e5\n",
    "--window-type=hamming\nWINDOWSIZE = 250000\nHPARM: TARGETKIND = PLP_0_E_D_A_Z # x\nCEPLIFTER=22\n"
    "--snip-edges=false\n--dither=0.5\nSOURCERATE = 1250.0\nHNETFILTER = \"a # b\"\nWARPFREQ = 1.1\n"};

static void fill(int kind) {
    fuzz_mem.size = 0;
    if (fuzz_rarely(8))
        while (fuzz_input.left && fuzz_mem.size < FUZZ_MEM_ROOM)
            fuzz_mem.bytes[fuzz_mem.size++] = (char)fuzz_byte();
    else if (kind == 0) put_wav("\1\3\6\7\2\x11"[fuzz_below(6)]);
    else if (kind == 1) put_sphere();
    else memcpy(fuzz_mem.bytes, texts[kind], fuzz_mem.size = strlen(texts[kind]));
    for (int changes = fuzz_below(8); fuzz_mem.size && changes > 0; changes--) {
        const size_t at = fuzz_word(2) % fuzz_mem.size;
        const char likely = "0123456789{}[]\",: \n\t-.=#"[fuzz_below(24)];
        fuzz_mem.bytes[at] = fuzz_rarely(3) ? (char)likely : (char)fuzz_byte();
    }
    if (fuzz_mem.size && fuzz_rarely(4)) fuzz_mem.size = fuzz_word(2) % fuzz_mem.size;
}

/* The rate of what was read; 0: nothing was. */
static int64_t use_sound(void) {
    fl_speech_sound info;
    const bool raw = fuzz_rarely(6);
    fl_speech_audio_opts o = {.info = &info, .channel = fuzz_below(4) - 1};
    if (fuzz_below(2)) o.rate = 16000;
    if (raw) o.raw = (fl_speech_sound){8000, 1 + fuzz_below(3), 0, (fl_speech_coding)fuzz_below(14)};
    fuzz_cost_begin();
    fl_tensor *x = fl_speech_load_audio_opt("x", o);
    fuzz_cost_end(fuzz_mem.size);
    if (!x && !fl_error()) fuzz_bug("no sound and no error");
    const float *p = x ? fl_data(x) : NULL;
    for (int64_t i = 0; x && i < fl_numel(x); i++)
        if (!isfinite(p[i])) fuzz_bug("sample %" PRId64 " is %g", i, (double)p[i]);
    return x ? info.rate : 0;
}

static void use_list(void) {
    const char *root = fuzz_below(2) ? "root" : NULL;
    fuzz_cost_begin();
    fl_speech_list *l = fl_speech_list_load("x", root);
    fuzz_cost_end(fuzz_mem.size);
    if (!l && !fl_error()) fuzz_bug("no list and no error");
    for (int64_t i = 0; l && i < fl_speech_list_size(l); i++) {
        const fl_speech_list_entry *e = fl_speech_list_get(l, i);
        const bool ok = *e->id && *e->path && e->ms >= 0 && strlen(e->transcript) <= fuzz_mem.size;
        if (!ok) fuzz_bug("a bad line");
    }
    fl_speech_list_free(l);
}

static void use_tokens(void) {
    fuzz_cost_begin();
    fl_text_dictionary *d = fl_text_dictionary_load("x");
    fuzz_cost_end(fuzz_mem.size);
    int64_t *t = NULL, cap = 0;
    fl_data_text back = {0};
    if (!d && !fl_error()) fuzz_bug("no tokens and no error");
    const fl_speech_target_opts o = {.skip = true, .replabels = fuzz_below(3)};
    const int64_t n = d ? fl_speech_target_opt(d, "ab ba bb", &t, &cap, o) : -1;
    for (int64_t i = 0; i < n; i++)
        if (t[i] < 0 || t[i] >= fl_text_dictionary_size(d)) fuzz_bug("token %" PRId64, t[i]);
    if (n >= 0) fl_speech_target_text(d, t, n, &back, .separator = "|", .replabels = 2);
    fl_heap_free(t);
    fl_heap_free(back.p);
    fl_text_dictionary_free(d);
}

static void use_lexicon(void) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    for (const char *p = "ab|"; d && *p; p++) fl_text_dictionary_add(d, p, 1);
    const bool skip = fuzz_below(2);
    fuzz_cost_begin();
    fl_speech_lexicon *l = d ? fl_speech_lexicon_load("x", d, .skip = skip) : NULL;
    if (d && !l && !fl_error()) fuzz_bug("no lexicon and no error");
    const bool finished = l && fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false);
    fuzz_cost_end(fuzz_mem.size);
    if (finished) {
        static const float e[5 * 4] = {0,  -1, -2, -1, -1, 0, -3, -4, 0,  0,
                                       -1, -1, -2, -2, 0,  0, 0,  -1, -2, -1};
        fl_speech_decoder *decoder = fl_speech_decoder_new(4, l, .beam = 9, .separator = 2);
        fl_speech_result r;
        if (decoder && fl_speech_decoder_step(decoder, e, 5) && fl_speech_decoder_end(decoder))
            fl_speech_decoder_best(decoder, 1, &r);
        fl_speech_decoder_free(decoder);
    }
    fl_speech_lexicon_free(l);
    fl_text_dictionary_free(d);
}

static void use_chain(void) {
    fuzz_cost_begin();
    fl_speech_chain *c = fl_speech_chain_load("x");
    fuzz_cost_end(fuzz_mem.size);
    if (!c && !fl_error()) fuzz_bug("no chain and no error");
    fl_rng rng = fl_data_rng(1, 0, 0);
    fl_tensor *x = c ? fl_ones(FL_SHAPE(300), FL_F32) : NULL;
    if (x && !fl_speech_chain_apply(c, x, &rng) && !fl_error()) fuzz_bug("no sound and no error");
    fl_speech_chain_free(c);
}

static void use_conf(void) {
    fl_speech_conf c;
    fl_speech_preset(&c, fuzz_below(2) ? "kaldi" : "htk", 16000);
    c.max_numbers = 1 << 14;
    fuzz_cost_begin();
    const bool loaded = fl_speech_conf_load(&c, "x");
    if (!loaded && !fl_error()) fuzz_bug("no configuration and no error");
    fl_speech_features *f = loaded ? fl_speech_features_new(&c) : NULL;
    fuzz_cost_end(fuzz_mem.size);
    fl_tensor *x = f ? fl_ones(FL_SHAPE(3000), FL_F32) : NULL;
    if (x && c.hop > 0 && !fl_speech_features_compute(f, x) &&
        !fl_error()) fuzz_bug("no features and no error");
    fl_speech_features_free(f);
}

static void fuzz_one(void) {
    static const char *const name[KINDS] = {"WAV",     "SPHERE", "list", "tokens",
                                            "lexicon", "chain",  "conf", "conf"};
    const int kind = fuzz_below(KINDS);
    fuzz_doing = name[kind];
    fuzz_mem.path = "x";
    fl_data_io_use(&fuzz_disk);
    fill(kind);
    fl_error_clear();
    fl_scope s = fl_scope_begin();
    const int64_t rate = kind < 2 ? use_sound() : 0;
    if (kind == 2) use_list();
    if (kind == 3) use_tokens();
    if (kind == 4) use_lexicon();
    if (rate) fl_speech_resampler_free(fl_speech_resampler_new(rate, 11025));
    if (kind == 5) use_chain();
    if (kind > 5) use_conf();
    fl_error_clear();
    fl_scope_end(&s);
    fl_data_io_use(NULL);
}
/* MIT licence: see LICENSE. */
