/* tests/bounds_text.h - expensive tokenizer files and texts for fl_text.h: rows of tests/test_bounds.c

   A file is a tokenizer, which is opened, encodes a few words and decodes the ids; or it is a text, which a
   tokenizer of the row encodes. */
#include "../fl_all.h"

/* ---- files that are tokenizers ---- */

static void text_use(fl_text_tokenizer *t) {
    static const char text[] = "aaaaaaaaaaaaaaaaaaaa the low \xef\xb7\xba ab<s>";
    fl_text_encoding e = {0};
    fl_data_text out = {0};
    if (t && fl_text_encode(t, text, sizeof text - 1, &e)) fl_text_decode(t, e.id, e.n, true, &out);
    fl_text_encoding_free(&e);
    fl_heap_free(out.p);
    fl_text_tokenizer_free(t);
}

static void read_tokenizer(const char *path) { text_use(fl_text_tokenizer_open(path)); }
static void read_tiktoken(const char *path) {
    text_use(fl_text_tiktoken_load(path, FL_TEXT_SPLIT_O200K, NULL, 0));
}
static void read_llama2c(const char *path) { text_use(fl_text_llama2c_load(path, 0)); }
static void read_words(const char *path) { fl_text_dictionary_free(fl_text_dictionary_load(path)); }

/* Pseudorandom bytes, the same each time. */
static uint32_t text_state;
static int text_random(int n) {
    text_state = text_state * 1664525u + 1013904223u;
    return (int)((text_state >> 8) % (unsigned)n);
}

/* A tokenizer.json whose pieces are a and b, and what else it has; then spaces up to n bytes. */
static void put_json(FILE *f, int64_t n, const char *part) {
    fprintf(f,
            "{%s%s\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1]]}}",
            part, *part ? "," : "");
    while (ftell(f) < n) fputc(' ', f);
}
/* "key":{"type":"Sequence","list":[step, ...]} of `times` steps. */
static void put_steps(FILE *f, int64_t n, const char *key, const char *list, const char *step, int times) {
    static char part[60000];
    char *p = part + sprintf(part, "\"%s\":{\"type\":\"Sequence\",\"%s\":[", key, list);
    for (int i = 0; i < times; i++) p += sprintf(p, "%s%s", i ? "," : "", step);
    strcpy(p, "]}");
    put_json(f, n, part);
}

static void write_laughs(FILE *f, int64_t n) {
    put_steps(f, n, "normalizer", "normalizers",
              "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}", 25);
}
static void write_laughing_decoder(FILE *f, int64_t n) {
    put_steps(f, n, "decoder", "decoders",
              "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}", 25);
}
static void write_many_steps(FILE *f, int64_t n) {
    put_steps(f, n, "pre_tokenizer", "pretokenizers", "{\"type\":\"UnicodeScripts\"}", n > 10000 ? 490 : 60);
}
static void write_prepends(FILE *f, int64_t n) {
    static char step[3000], text[2000];
    memset(text, 'a', sizeof text - 1);
    sprintf(step, "{\"type\":\"Prepend\",\"prepend\":\"%s\"}", text);
    put_steps(f, n, "normalizer", "normalizers", step, n > 10000 ? 20 : 1);
}
static void write_padding(FILE *f, int64_t n) {
    put_json(f, n, "\"padding\":{\"strategy\":{\"Fixed\":2147483647},\"pad_id\":0}");
}
static void write_multiple(FILE *f, int64_t n) {
    put_json(f, n,
             "\"padding\":{\"strategy\":\"BatchLongest\",\"pad_to_multiple_of\":2147483647,\"pad_id\":0}");
}
static void write_template(FILE *f, int64_t n) {
    static char part[60000];
    const int names = n > 10000 ? 150 : 30, ids = n > 10000 ? 400 : 100;
    char *p =
        part + sprintf(part, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"pair\":[],\"single\":[");
    for (int i = 0; i < names; i++) p += sprintf(p, "{\"SpecialToken\":{\"id\":\"s\"}},");
    p += sprintf(p, "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[0");
    for (int i = 0; i < ids; i++) p += sprintf(p, ",0");
    strcpy(p, "]}}}");
    put_json(f, n, part);
}
static void write_text_settings(FILE *f, int64_t n) {
    fputc('{', f);
    while (ftell(f) + 100 < n) fprintf(f, "\"decoder\":null,");
    put_json(f, 0, "");
    fputc('}', f);
}
static void write_model_settings(FILE *f, int64_t n) {
    fprintf(f, "{\"model\":{");
    while (ftell(f) + 100 < n) fprintf(f, "\"a\":0,");
    fprintf(f, "\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}");
}
static void write_added(FILE *f, int64_t n) {
    fprintf(f, "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\"}");
    for (int i = 4; ftell(f) + 100 < n; i++) fprintf(f, ",{\"id\":%d,\"content\":\"%x\"}", i, (unsigned)i);
    fprintf(f,
            "],\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1]]}}");
}
/* Each is normalised to 8 KiB. */
static void write_added_long(FILE *f, int64_t n) {
    static char text[1025];
    memset(text, 'a', sizeof text - 1);
    fprintf(f, "{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"%s\"},\"added_tokens\":[", text);
    for (int i = 3; ftell(f) + 100 < n; i++)
        fprintf(f, "%s{\"id\":%d,\"content\":\"%x\",\"normalized\":true}", i > 3 ? "," : "", i, (unsigned)i);
    fprintf(f,
            "],\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1]]}}");
}
static void write_far_id(FILE *f, int64_t n) {
    fprintf(f, "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":%lld}}}",
            (long long)n - 1);
    while (ftell(f) < n) fputc(' ', f);
}
static void write_unigram(FILE *f, int64_t n) {
    text_state = 1;
    fprintf(f, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0]");
    for (unsigned i = 0; ftell(f) + 100 < n; i++)
        fprintf(f, ",[\"%x%c\",-1]", i * 2654435761u, 'a' + text_random(26));
    fprintf(f, "]}}");
}
/* A unigram vocabulary of a, aa, aaa, ... */
static void write_staircase(FILE *f, int64_t n) {
    fprintf(f, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0]");
    for (int i = 1; ftell(f) + i + 100 < n; i++) {
        fprintf(f, ",[\"");
        for (int k = 0; k < i; k++) fputc('a', f);
        fprintf(f, "\",-1]");
    }
    fprintf(f, "]}}");
}
/* Merges a b, ab a, aba b, ... */
static void write_merges(FILE *f, int64_t n) {
    int most = 1;
    while (4LL * most * most < n) most++;
    fprintf(f, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 1; i <= most; i++) {
        fprintf(f, "%s\"", i > 1 ? "," : "");
        for (int k = 0; k < i; k++) fputc('a', f);
        fprintf(f, "\":%d", i);
    }
    fprintf(f, "},\"merges\":[");
    for (int i = 1; i < most; i++) {
        fprintf(f, "%s[\"a\",\"", i > 1 ? "," : "");
        for (int k = 0; k < i; k++) fputc('a', f);
        fprintf(f, "\"]");
    }
    fprintf(f, "]}}");
}
/* Three random bytes each: 16 children of a node at random distances. */
static void write_pieces_txt(FILE *f, int64_t n) {
    text_state = 1;
    fprintf(f, "[UNK]\n");
    for (unsigned i = 0; ftell(f) < n; i++) {
        const int c = 32 + text_random(224);
        if (i / 16 >= 223 * 223) break;
        fprintf(f, "%c%c%c%c\n", 32 + (int)(i / 16 % 223), 32 + (int)(i / 16 / 223), c, 32 + (int)(i % 16));
    }
}
static void put_piece(FILE *f, const char *text, int n, float score, int kind) {
    const int size = 2 + n + 5 + 2 + (n > 127);
    fputc(10, f);
    if (size > 127) fputc((size & 127) | 128, f), fputc(size >> 7, f);
    else fputc(size, f);
    fputc(10, f);
    if (n > 127) fputc((n & 127) | 128, f), fputc(n >> 7, f);
    else fputc(n, f);
    fwrite(text, 1, (size_t)n, f);
    fputc(21, f), fwrite(&score, 4, 1, f), fputc(24, f), fputc(kind, f);
}
static void put_pieces(FILE *f, int64_t n, int kind) {
    text_state = 1;
    put_piece(f, "<unk>", 5, 0, 2);
    for (int i = 0; ftell(f) < n && i < 1 << 24; i++) {
        const char text[3] = {(char)(1 + i % 255), (char)(1 + i / 255 % 255), (char)(1 + i / 255 / 255)};
        put_piece(f, text, 3, (float)-i, kind);
    }
}
static void write_model(FILE *f, int64_t n) { put_pieces(f, n, 1); }
static void write_model_of_users(FILE *f, int64_t n) { put_pieces(f, n, 4); }
static void write_model_of_control(FILE *f, int64_t n) { put_pieces(f, n, 3); }
/* BPE by scores of a, aa, aaa, ..., whose ways to be cut are half the square of their number; or of one long
   piece. */
static void write_model_stairs(FILE *f, int64_t n) {
    static char text[16000];
    static const unsigned char trainer[] = {18, 2, 24, 2};
    memset(text, 'a', sizeof text);
    put_piece(f, "<unk>", 5, 0, 2);
    for (int i = 1; ftell(f) + i < n; i++) put_piece(f, text, i, (float)-i, 1);
    fwrite(trainer, 1, 4, f);
}
static void write_model_long(FILE *f, int64_t n) {
    static const unsigned char trainer[] = {18, 2, 24, 2};
    const int m = (int)n - 20, size = m + 4;
    put_piece(f, "<unk>", 5, 0, 2);
    put_piece(f, "a", 1, 0, 1);
    fputc(10, f), fputc((size & 127) | 128, f), fputc((size >> 7 & 127) | 128, f), fputc(size >> 14, f);
    fputc(10, f), fputc((m & 127) | 128, f), fputc((m >> 7 & 127) | 128, f), fputc(m >> 14, f);
    for (int i = 0; i < m; i++) fputc('a', f);
    fwrite(trainer, 1, 4, f);
}
static void write_ranks(FILE *f, int64_t n) {
    for (int i = 1; ftell(f) + 4 * i < n; i++) {
        for (int k = 0; k < i; k++) fprintf(f, "YWFh");
        fprintf(f, " %d\n", 3 * i - 1);
        for (int k = 0; k < i - 1; k++) fprintf(f, "YWFh");
        fprintf(f, "YQ== %d\n", 3 * i - 3);
    }
}
static void write_far_rank(FILE *f, int64_t n) {
    fprintf(f, "YQ== %lld\n", (long long)n - 20);
    while (ftell(f) < n) fputc('\n', f);
}
static void write_llama2c_tokenizer(FILE *f, int64_t n) {
    fwrite("\4\0\0\0", 1, 4, f);
    for (int32_t i = 0, len = 1; ftell(f) + 20 < n; i++) {
        const float score = (float)-i;
        const char text[3] = {(char)(33 + i % 200), (char)(33 + i / 200 % 200), (char)(33 + i / 200 / 200)};
        len = 3;
        fwrite(&score, 4, 1, f), fwrite(&len, 4, 1, f), fwrite(text, 1, 3, f);
    }
}
/* Entries whose fl_text_hash ends in 20 zero bits: three times its mixing, undone. */
static void write_collisions(FILE *f, int64_t n) {
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t inverse = k;
    for (int i = 0; i < 5; i++) inverse *= 2 - k * inverse;
    for (uint64_t i = 1; ftell(f) + 9 < n; i++) {
        char entry[8];
        uint64_t h = i << 20;
        for (int mixed = 0; mixed < 3; mixed++) h = (h ^ h >> 32) * inverse - !mixed;
        h ^= 8;
        memcpy(entry, &h, 8);
        bool bare = true;
        for (int b = 0; b < 8; b++) bare = bare && (unsigned char)entry[b] > ' ';
        if (bare) fwrite(entry, 1, 8, f), fputc('\n', f);
    }
}
static void write_charsmap(FILE *f, int64_t n, const uint32_t *unit, int units, const char *text, int bytes) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static uint8_t map[1 << 20];
    const uint32_t size = 4 * (uint32_t)units;
    memset(map, 0, sizeof map);
    memcpy(map, &size, 4), memcpy(map + 4, unit, size), memcpy(map + 4 + size, text, (size_t)bytes);
    const int all = (4 + (int)size + bytes + 2) / 3 * 3;
    fprintf(f, "{\"normalizer\":{\"type\":\"SentencePiece\",\"precompiled_charsmap\":\"");
    for (int i = 0; i < all; i += 3) {
        const uint32_t v = (uint32_t)map[i] << 16 | (uint32_t)map[i + 1] << 8 | map[i + 2];
        for (int k = 18; k >= 0; k -= 6) fputc(digit[v >> k & 63], f);
    }
    fprintf(f, "\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1]]}}");
    while (ftell(f) < n) fputc(' ', f);
}
/* "a" becomes spaces, which are joined to one. */
static void write_spaces(FILE *f, int64_t n) {
    static uint32_t unit[512];
    static char text[700000];
    const int bytes = (int)(n * 2 / 3);
    unit[0] = 0, unit['a'] = 'a' | 1u << 8 | 256u << 10, unit['a' ^ 256] = 1u << 31;
    memset(text, ' ', sizeof text), text[bytes - 1] = 0;
    write_charsmap(f, n, unit, 512, text, bytes);
}

/* ---- texts ---- */

/* The text at `path`, by a tokenizer.json. */
static void encode_by(const char *path, const char *json) {
    char file[400];
    int64_t n;
    fl_text_encoding e = {0};
    fl_data_text out = {0};
    snprintf(file, sizeof file, "%s.json", path);
    FILE *f = fopen(file, "wb");
    if (!f) return;
    fputs(json, f);
    fclose(f);
    fl_text_tokenizer *t = fl_text_tokenizer_load(file);
    char *text = fl_text_read_file("bounds", path, &n);
    if (!CHECK(t || strstr(fl_error(), "PCRE2")) || !text) printf("  %s\n", fl_error());
    else if (t && fl_text_encode(t, text, n, &e) && n < 10000) fl_text_decode(t, e.id, e.n, true, &out);
    fl_text_encoding_free(&e);
    fl_heap_free(out.p);
    fl_heap_free(text);
    fl_text_tokenizer_free(t);
    remove(file);
}
#define ENCODES(name, json)                                       \
    static void name(const char *path) { encode_by(path, json); }
#define TEXT_OF(name, what) \
    static void name(FILE *f, int64_t n) { for (int64_t i = 0; i < n; i += sizeof what - 1) fputs(what, f); }
TEXT_OF(write_a, "a")
TEXT_OF(write_ab, "ab")
TEXT_OF(write_marks, "!")
TEXT_OF(write_points, "A!")
TEXT_OF(write_combining, "\xcc\x81\xcc\x96") /* classes 230 and 220 */
TEXT_OF(write_cjk, "\xe4\xb8\x80")
TEXT_OF(write_ill_formed, "a\xff")
TEXT_OF(write_special, "<s>a")
TEXT_OF(write_spaced, "a ")

#define VOCAB "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1]]}}"
#define WORDS \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"##a\":2,\"!\":3}}}"
#define PAIRS \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"ab\":3,\"abab\":4},\
\"merges\":[\"a b\",\"ab ab\"]}}"
#define BERT "\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
#define SPLIT(regex)                                                                                   \
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" regex \
    "\"}}," VOCAB
ENCODES(encode_unigram, "{" VOCAB)
ENCODES(encode_pairs, "{" PAIRS)
ENCODES(encode_bert, "{" BERT WORDS)
ENCODES(encode_nfc, "{\"normalizer\":{\"type\":\"NFC\"}," VOCAB)
ENCODES(encode_special,
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\"}],\"normalizer\":{\"type\":\"Prepend\","
        "\"prepend\":\"a\"}," VOCAB)
ENCODES(encode_bytes,
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\","
        "\"vocab\":{\"a\":0},\"merges\":[]}}")
ENCODES(encode_template, "{\"truncation\":{\"max_length\":5,\"stride\":3},\"post_processor\":{\"type\":"
        "\"BertProcessing\",\"sep\":[\"a\",1],\"cls\":[\"b\",2]}," VOCAB)
/* What each of these does for n bytes is in proportion to n^2, or is exponential. */
ENCODES(encode_run, SPLIT("a+(?=[bc])"))
ENCODES(encode_runs, SPLIT("(a+)+(?=[bc])"))
ENCODES(encode_possessive, SPLIT("a++(?=[bc])"))
ENCODES(encode_pattern, SPLIT("a|\\\\s"))

/* Tokens of n / 3 letters that never end: a trie is followed to the end from each place. */
static void encode_by_long(const char *path, const char *front, const char *back) {
    int64_t n;
    fl_data_text json = {0};
    char *text = fl_text_read_file("bounds", path, &n);
    bool ok = text && fl_data_text_put(&json, front, strlen(front)) &&
              fl_data_text_put(&json, text, (size_t)n / 3) && fl_data_text_put(&json, back, strlen(back));
    fl_heap_free(text);
    if (ok) encode_by(path, json.p);
    fl_heap_free(json.p);
}
static void encode_long_unigram(const char *path) {
    encode_by_long(path, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"",
                   "b\",-1]]}}");
}
static void encode_long_word(const char *path) {
    encode_by_long(
        path,
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"max_input_chars_per_word\":1000000000,"
        "\"vocab\":{\"?\":0,\"a\":1,\"##a\":2,\"##",
        "b\":3}}}");
}
static void encode_long_added(const char *path) {
    encode_by_long(path, "{\"added_tokens\":[{\"id\":3,\"content\":\"", "b\"}]," VOCAB);
}

static const bounds_row text_rows[] = {
    {"tokenizer.json: texts that grow 8-fold", write_laughs, read_tokenizer, ".json"},
    {"tokenizer.json: decoded texts that grow", write_laughing_decoder, read_tokenizer, ".json"},
    {"tokenizer.json: many steps", write_many_steps, read_tokenizer, ".json"},
    {"tokenizer.json: long prepended texts", write_prepends, read_tokenizer, ".json"},
    {"tokenizer.json: padding to 2^31", write_padding, read_tokenizer, ".json"},
    {"tokenizer.json: padding to k 2^31", write_multiple, read_tokenizer, ".json"},
    {"tokenizer.json: a template of many ids", write_template, read_tokenizer, ".json"},
    {"tokenizer.json: a key many times", write_text_settings, read_tokenizer, ".json"},
    {"tokenizer.json: many settings of a model", write_model_settings, read_tokenizer, ".json"},
    {"tokenizer.json: many added tokens", write_added, read_tokenizer, ".json"},
    {"tokenizer.json: added tokens that grow", write_added_long, read_tokenizer, ".json"},
    {"tokenizer.json: an id as high as can be", write_far_id, read_tokenizer, ".json"},
    {"tokenizer.json: many unigram pieces", write_unigram, read_tokenizer, ".json"},
    {"tokenizer.json: pieces a, aa, aaa, ...", write_staircase, read_tokenizer, ".json"},
    {"tokenizer.json: merges to a, aa, aaa ...", write_merges, read_tokenizer, ".json"},
    {"tokenizer.json: a charsmap of spaces", write_spaces, read_tokenizer, ".json"},
    {"vocab.txt: many pieces", write_pieces_txt, read_tokenizer, ".txt"},
    {".model: many pieces", write_model, read_tokenizer, ".model"},
    {".model: many user-defined pieces", write_model_of_users, read_tokenizer, ".model"},
    {".model: many control pieces", write_model_of_control, read_tokenizer, ".model"},
    {".model: BPE of a, aa, aaa, ...", write_model_stairs, read_tokenizer, ".model"},
    {".model: BPE of a long piece", write_model_long, read_tokenizer, ".model"},
    {"tiktoken: a, aa, aaa, ...", write_ranks, read_tiktoken, ".tiktoken"},
    {"tiktoken: a rank as high as can be", write_far_rank, read_tiktoken, ".tiktoken"},
    {"llama2.c: many pieces", write_llama2c_tokenizer, read_llama2c, ".bin"},
    {"dictionary: entries of one hash", write_collisions, read_words, NULL},
    {"text: one unigram piece", write_ab, encode_unigram, NULL},
    {"text: one BPE piece", write_ab, encode_pairs, NULL},
    {"text: one BPE piece, no pairs", write_a, encode_pairs, NULL},
    {"text: BERT, punctuation", write_marks, encode_bert, NULL},
    {"text: BERT, letters and punctuation", write_points, encode_bert, NULL},
    {"text: BERT, marks", write_combining, encode_bert, NULL},
    {"text: BERT, Chinese", write_cjk, encode_bert, NULL},
    {"text: NFC of marks", write_combining, encode_nfc, NULL},
    {"text: bytes that are ill-formed", write_ill_formed, encode_bytes, NULL},
    {"text: ill-formed UTF-8", write_ill_formed, encode_unigram, NULL},
    {"text: many added tokens", write_special, encode_special, NULL},
    {"text: many overlapping parts", write_ab, encode_template, NULL},
    {"text: a piece that never ends", write_a, encode_long_unigram, NULL},
    {"text: a WordPiece token that never ends", write_a, encode_long_word, NULL},
    {"text: an added token that never ends", write_a, encode_long_added, NULL},
    {"text: a run at each place", write_a, encode_run, NULL},
    {"text: nested runs", write_a, encode_runs, NULL},
    {"text: a possessive run at each place", write_a, encode_possessive, NULL},
    {"text: a regular expression", write_spaced, encode_pattern, NULL},
};
/* MIT licence: see LICENSE. */
