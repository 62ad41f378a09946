/* tests/bounds_speech.h - expensive files for the readers of fl_speech.h: rows of tests/test_bounds.c */
#include <sys/stat.h>

/* ---- sounds ---- */

static void put_number(FILE *f, int bytes, uint64_t v) {
    for (int i = 0; i < bytes; i++) fputc((int)(v >> 8 * i & 255), f);
}
static void put_bytes(FILE *f, int byte, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc(byte, f);
}
/* A WAV file whose data chunk promises `size` bytes; MS ADPCM has one pair of coefficients. */
static void put_wav(FILE *f, int tag, int channels, uint64_t rate, int block, int bits, uint64_t size,
                    int64_t n) {
    const bool ms = tag == 2;
    fputs("RIFF....WAVEfmt ", f);
    put_number(f, 4, ms ? 26 : 16), put_number(f, 2, (uint64_t)tag), put_number(f, 2, (uint64_t)channels);
    put_number(f, 4, rate), put_number(f, 4, 0), put_number(f, 2, (uint64_t)block);
    put_number(f, 2, (uint64_t)bits);
    if (ms) put_number(f, 4, 8), put_number(f, 2, 1), put_number(f, 4, 256);
    fputs("data", f), put_number(f, 4, size);
    put_bytes(f, 0, n - ftell(f));
}
static void write_wav_size(FILE *f, int64_t n) { put_wav(f, 1, 1, 8000, 2, 16, 0x7fffefff, n); }
static void write_wav_wide(FILE *f, int64_t n) {
    fputs("RF64....WAVEds64", f), put_number(f, 4, 28), put_bytes(f, 0, 8);
    put_number(f, 8, (uint64_t)1 << 60), put_bytes(f, 0, 12);
    fputs("fmt ", f), put_number(f, 4, 16), put_number(f, 4, 1 << 16 | 1), put_number(f, 4, 8000);
    put_number(f, 4, 0), put_number(f, 4, 16 << 16 | 2), fputs("data", f), put_number(f, 4, 0xffffffff);
    put_bytes(f, 0, n - ftell(f));
}
static void write_wav_chunks(FILE *f, int64_t n) {
    fputs("RIFF....WAVE", f);
    while (ftell(f) < n) fputs("fact", f), put_number(f, 4, 0);
}
static void write_wav_slow(FILE *f, int64_t n) { put_wav(f, 7, 1, 1, 1, 8, 0, n); }
static void write_wav_slower(FILE *f, int64_t n) { put_wav(f, 17, 2, 7407, 2048, 4, 0, n); }
static void write_wav_slowest(FILE *f, int64_t n) { put_wav(f, 7, 1, 3700, 1, 8, 0, n); }
static void write_wav_prime(FILE *f, int64_t n) { put_wav(f, 7, 1, 600011, 1, 8, 0, n); }
static void write_wav_primer(FILE *f, int64_t n) { put_wav(f, 7, 1, 479999, 1, 8, 0, n); }
static void write_wav_ima(FILE *f, int64_t n) { put_wav(f, 17, n > 4096 ? 1024 : 1, 8000, 4096, 4, 0, n); }
static void write_wav_ms(FILE *f, int64_t n) { put_wav(f, 2, 1, 8000, 7, 4, 0, n); }
static void write_sphere(FILE *f, int64_t n) {
    fputs("NIST_1A\n   1024\nsample_rate -i 8000\nsample_count -i 999999999999\nend_head\n", f);
    put_bytes(f, ' ', n - ftell(f));
}
/* What libsndfile reads: headers that promise 2^26 samples or more. */
static void put_flac(FILE *f, int channels, int high, int low, int64_t n) {
    const unsigned char info[] = {0x80, 0, 0,    34,   0x10, 0,   0x10, 0,   0,   0,   0,
                                  0,    0, 0,    0x0a, 0xc4, (unsigned char)(0x40 | (channels - 1) << 1),
                                  (unsigned char)(0xf0 | high), (unsigned char)low, 0, 0, 0};
    fputs("fLaC", f), fwrite(info, 1, sizeof info, f);
    put_bytes(f, 0, n - ftell(f));
}
static void write_flac(FILE *f, int64_t n) { put_flac(f, 8, 15, 255, n); }
static void write_flac_allowed(FILE *f, int64_t n) { put_flac(f, 1, 0, 4, n); }
static void write_au(FILE *f, int64_t n) {
    fwrite(".snd\0\0\0\x18\xff\xff\xff\xff\0\0\0\2\0\0\x1f\x40\0\0\0\1", 1, 24, f);
    put_bytes(f, 0, n - ftell(f));
}
static void write_aiff(FILE *f, int64_t n) {
    fwrite("FORM\x7f\xff\xff\xff" "AIFFCOMM\0\0\0\x12\0\1\xff\xff\xff\xff\0\x10"
           "\x40\x0b\xfa\0\0\0\0\0\0\0", 1, 38, f);
    fwrite("SSND\x7f\xff\xff\xf0\0\0\0\0\0\0\0\0", 1, 16, f);
    put_bytes(f, 0, n - ftell(f));
}
static void read_sound(const char *path) { fl_speech_load_audio(path); }
static void read_sound_at_16k(const char *path) { fl_speech_load_audio(path, .rate = 16000); }
static void read_sound_at_48k(const char *path) { fl_speech_load_audio(path, .rate = 48000, .channel = -1); }

/* ---- lexicons and lists ---- */

static void write_lexicon_spellings(FILE *f, int64_t n) {
    for (int64_t i = 0; 4 * i < n; i++) fputs("a b\n", f);
}
static void write_lexicon_words(FILE *f, int64_t n) {
    for (int64_t i = 0; ftell(f) < n; i++) fprintf(f, "%llx b\n", (long long)i);
}
static void write_lexicon_nodes(FILE *f, int64_t n) {
    for (int64_t i = 0; ftell(f) < n; i++) {
        fputs("a", f);
        for (int k = 0; k < 12; k++) fputs(i >> k & 1 ? " a" : " b", f);
        for (int k = 0; k < 4000; k++) fputs(" a", f);
        fputc('\n', f);
    }
}
static void read_lexicon(const char *path) {
    fl_text_dictionary *tokens = fl_text_dictionary_new();
    fl_text_dictionary_add(tokens, "a", 1), fl_text_dictionary_add(tokens, "b", 1);
    fl_speech_lexicon *l = fl_speech_lexicon_load(path, tokens, .skip = true);
    if (l) fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false);
    fl_speech_lexicon_free(l);
    fl_text_dictionary_free(tokens);
}

static void write_list(FILE *f, int64_t n) {
    for (int64_t i = 0; 6 * i < n; i++) fputs("a b 0\n", f);
}
static void read_list(const char *path) { fl_speech_list_free(fl_speech_list_load(path, "r")); }

/* ---- features ---- */

/* Options, then comments up to n bytes. */
static void put_conf(FILE *f, const char *options, int64_t n) {
    fputs(options, f);
    while (ftell(f) < n) fputs("#\n", f);
}
static void write_conf_cosines(FILE *f, int64_t n) {
    put_conf(f, "kind=mfcc\nbands=65536\ncepstra=65536\nn-fft=1048576\n", n);
}
static void write_conf_bands(FILE *f, int64_t n) { put_conf(f, "bands=60000\nn-fft=65536\nlow=9\n", n); }
static void write_conf_window(FILE *f, int64_t n) { put_conf(f, "n-fft=9e17\nwindow-length=9e17\n", n); }
static void write_conf_lines(FILE *f, int64_t n) {
    while (ftell(f) < n) fputs("hop=9\n", f);
}
static void write_conf_skipped(FILE *f, int64_t n) {
    while (ftell(f) < n) fputs("A=1\n", f);
}
static void use_conf(const char *path, int64_t max_numbers) {
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", 0);
    c.max_numbers = max_numbers;
    if (fl_speech_conf_load(&c, path)) fl_speech_features_free(fl_speech_features_new(&c));
}
static void read_conf(const char *path) { use_conf(path, 0); }
static void read_conf_limited(const char *path) { use_conf(path, 1 << 16); }

/* ---- networks ---- */

/* A line, and as many of them as there is room for. */
static void write_arch(FILE *f, const char *line) { fputs(line, f); }
static void write_arch_position(FILE *f, int64_t n) { (void)n, write_arch(f, "POSEMB 1 900000000\n"); }
static void write_arch_linear(FILE *f, int64_t n) { (void)n, write_arch(f, "L 999999999 999999999\n"); }
static void write_arch_recurrent(FILE *f, int64_t n) { (void)n, write_arch(f, "LSTM 9999 1 99999999 1\n"); }
static void write_arch_blocks(FILE *f, int64_t n) {
    (void)n, write_arch(f, "RES 1 0 1000\nRES 1 0 1000\nRES 1 0 1000\nR\n");
}
static void write_arch_layers(FILE *f, int64_t n) {
    for (int64_t i = 0; 18 * i < n; i++) write_arch(f, "CFR 1 1 1 1 1 0 0\n");
}
static void read_arch(const char *path) { fl_nn_free(fl_speech_arch(path, 1, 1)); }
static void read_arch_limited(const char *path) {
    fl_nn_free(fl_speech_arch(path, 1, 1, .max_parameters = 1 << 16, .max_layers = 32));
}

/* ---- models of folders ---- */

static void write_no_tensors(FILE *f, int64_t n) {
    put_number(f, 8, 2), fputs("{}", f);
    (void)n;
}
/* What is looked for before layers of one number are made, for as many layers as there is room for. */
static void write_layers(FILE *f, int64_t n) {
    static const char *const fixed[] = {
        "wav2vec2.feature_extractor.conv_layers.0.conv.weight\":{\"shape\":[1,1,1]",
        "wav2vec2.feature_projection.projection.weight\":{\"shape\":[1,1]",
        "lm_head.weight\":{\"shape\":[1,1]",
        "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original1\":{\"shape\":[1,1,1]"};
    static const char *const layer[] = {"attention.k_proj.weight\":{\"shape\":[1,1]",
                                        "feed_forward.intermediate_dense.weight\":{\"shape\":[1,1]",
                                        "feed_forward.output_dense.weight\":{\"shape\":[1,1]",
                                        "final_layer_norm.weight\":{\"shape\":[1]"};
    char *text = malloc((size_t)n + 4096);
    int64_t size = 0, tensors = 0;
    for (; tensors < 4 || (tensors < 40000 && (tensors % 4 || size + tensors * 2 < n - 600)); tensors++) {
        char name[64] = "";
        const int64_t i = tensors - 4;
        if (i >= 0) snprintf(name, sizeof name, "wav2vec2.encoder.layers.%lld.", (long long)(i / 4));
        size += sprintf(text + size, "%c\"%s%s,\"dtype\":\"F16\",\"data_offsets\":[%lld,%lld]}",
                        tensors ? ',' : '{', name, i < 0 ? fixed[tensors] : layer[i % 4],
                        (long long)(2 * tensors), (long long)(2 * tensors + 2));
    }
    text[size++] = '}';
    put_number(f, 8, (uint64_t)size), fwrite(text, 1, (size_t)size, f);
    put_bytes(f, 0, 2 * tensors);
    free(text);
}
static void read_folder(const char *path, const char *config) {
    char file[2][300], folder[200];
    snprintf(folder, sizeof folder, "%s", test_file("folder"));
    mkdir(folder, 0700);
    snprintf(file[0], sizeof file[0], "%s/config.json", folder);
    snprintf(file[1], sizeof file[1], "%s/model.safetensors", folder);
    FILE *f = fopen(file[0], "w");
    fputs(config, f), fclose(f);
    if (symlink(path, file[1])) perror(path);
    fl_nn_free(fl_speech_pretrained(folder));
    remove(file[0]), remove(file[1]), rmdir(folder);
}
static void read_large_wav2vec(const char *path) {
    read_folder(path, "{\"model_type\":\"wav2vec2\",\"hidden_size\":65536,\"num_hidden_layers\":9999,"
                      "\"conv_dim\":[16777216],\"conv_kernel\":[9],\"conv_stride\":[1]}");
}
static void read_deep_wav2vec(const char *path) {
    read_folder(path, "{\"model_type\":\"wav2vec2\",\"hidden_size\":1,\"num_hidden_layers\":16777216,"
                      "\"intermediate_size\":1,\"vocab_size\":1,\"num_attention_heads\":1,"
                      "\"num_conv_pos_embeddings\":1,\"num_conv_pos_embedding_groups\":1,"
                      "\"conv_dim\":[1],\"conv_kernel\":[1],\"conv_stride\":[1]}");
}
static void read_large_whisper(const char *path) {
    read_folder(path, "{\"model_type\":\"whisper\",\"d_model\":65536,\"vocab_size\":16777216}");
}
static void write_vad(FILE *f, int64_t n) {
    char text[300];
    const int head = snprintf(text, sizeof text,
                              "{\"stft_conv.weight\":{\"shape\":[%lld],\"dtype\":\"U8\","
                              "\"data_offsets\":[0,%lld]}}", (long long)n, (long long)n);
    put_number(f, 8, (uint64_t)head), fputs(text, f), put_bytes(f, 0, n);
}
static void read_vad(const char *path) { fl_speech_vad_free(fl_speech_vad_load(path)); }

/* ---- chains of effects ---- */

static void write_chain(FILE *f, int64_t n) {
    fputs("{\"soundEffectChain\":[{\"type\":\"Clip\"}", f);
    while (ftell(f) < n) fputs(",{\"type\":\"Clip\"}", f);
    fputs("]}", f);
}
/* A list that is read again and again: the file itself. */
static void write_chain_lists(FILE *f, int64_t n) {
    fputs("{\"soundEffectChain\":[{\"type\":\"Reverb\",\"reverbConfig\":{\"proba\":1", f);
    while (ftell(f) < n) fputs(",\"listFilePath\":\"bounds.list\"", f);
    fputs("}}]}", f);
}
static void read_chain(const char *path) { fl_speech_chain_free(fl_speech_chain_load(path)); }
static void read_chain_lists(const char *path) {
    char *folder = strdup(path), here[1000];
    *strrchr(folder, '/') = 0;
    if (!getcwd(here, sizeof here) || chdir(folder)) perror(folder);
    fl_speech_chain_free(fl_speech_chain_load(path, .max_list_bytes = 1 << 20));
    if (chdir(here)) perror(here);
    free(folder);
}

static const bounds_row speech_rows[] = {
    {"WAV: more bytes than there are", write_wav_size, read_sound, ".wav"},
    {"RF64: 2^60 bytes", write_wav_wide, read_sound, ".wav"},
    {"WAV: empty chunks", write_wav_chunks, read_sound, ".wav"},
    {"WAV: 1 sample a second at 48000", write_wav_slow, read_sound_at_48k, ".wav"},
    {"WAV: ADPCM of 7407 at 48000", write_wav_slower, read_sound_at_48k, ".wav"},
    {"WAV: 600011 samples a second at 16000", write_wav_prime, read_sound_at_16k, ".wav"},
    {"WAV: 479999 samples a second at 16000", write_wav_primer, read_sound_at_16k, ".wav"},
    {"WAV: 3700 samples a second at 48000", write_wav_slowest, read_sound_at_48k, ".wav"},
    {"WAV: IMA ADPCM of 1024 channels", write_wav_ima, read_sound, ".wav"},
    {"WAV: MS ADPCM of small blocks", write_wav_ms, read_sound, ".wav"},
    {"SPHERE: 10^12 samples", write_sphere, read_sound, ".sph"},
    {"FLAC: 2^36 samples", write_flac, read_sound, ".flac"},
    {"FLAC: 2^26 samples", write_flac_allowed, read_sound, ".flac"},
    {"AU: 2^32 samples", write_au, read_sound_at_48k, ".au"},
    {"AIFF: 2^32 samples", write_aiff, read_sound, ".aiff"},
    {"lexicon: one word, many spellings", write_lexicon_spellings, read_lexicon, NULL},
    {"lexicon: many words", write_lexicon_words, read_lexicon, NULL},
    {"lexicon: spellings of 4012 tokens", write_lexicon_nodes, read_lexicon, NULL},
    {"list: short lines", write_list, read_list, NULL},
    {"features: 65536 x 65536 cosines", write_conf_cosines, read_conf, NULL},
    {"features: 60000 bands", write_conf_bands, read_conf_limited, NULL},
    {"features: a window of 9e17", write_conf_window, read_conf, NULL},
    {"features: many lines", write_conf_lines, read_conf, NULL},
    {"features: many lines that are skipped", write_conf_skipped, read_conf, NULL},
    {"arch: a large table", write_arch_position, read_arch, NULL},
    {"arch: a large matrix", write_arch_linear, read_arch, NULL},
    {"arch: many recurrent layers", write_arch_recurrent, read_arch, NULL},
    {"arch: blocks of blocks", write_arch_blocks, read_arch_limited, NULL},
    {"arch: many layers", write_arch_layers, read_arch_limited, NULL},
    {"wav2vec 2.0: a config of large sizes", write_no_tensors, read_large_wav2vec, NULL},
    {"wav2vec 2.0: many layers of one number", write_layers, read_deep_wav2vec, NULL},
    {"Whisper: a config of large sizes", write_no_tensors, read_large_whisper, NULL},
    {"VAD: a weight of any size", write_vad, read_vad, NULL},
    {"chain: many effects", write_chain, read_chain, NULL},
    {"chain: a list again and again", write_chain_lists, read_chain_lists, ".list"},
};
/* MIT licence: see LICENSE. */
