/* fuzz_text.c - text of any bytes through byte-level tokenizers, and files of theirs and of n-gram models

   What is encoded comes back byte for byte, whole and id by id, and offsets tile the text. A file in memory
   is the input itself, one that we wrote with bytes changed, or a tokenizer.json of any steps; whatever is
   read is then used. Reading and using take no more than tests/cost.h allows; nothing calls the error
   handler. */
#include "fuzz.h"

static const char arpa[] =
    "\\data\\\nngram 1=4\nngram "
    "2=3\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\t-0.3\n-0.5\t</s>\n-0.4\ta\t-0.2\n\n"
    "\\2-grams:\n-0.3\t<s> a\n-0.2\ta a\n-0.9\ta </s>\n\n\\end\\\n";
static const char sample[] = "low lower lowest: the low lows of the new lowlands, wide and low; a b c d";

static const char *const kenlm[] = {"tests/golden/text/ngram.probing", "tests/golden/text/ngram.trie",
                                    "tests/golden/text/ngram.both", ""};

/* Appends a golden file's beginning; where there is none the input is the file. */
static void file_of(const char *golden) {
    FILE *f = fopen(golden, "rb");
    if (f) fuzz_mem.size = fread(fuzz_mem.bytes, 1, FUZZ_MEM_ROOM, f), fclose(f);
}

/* A tokenizer.json of up to three normalizers, and one of each other kind of step. */
static void file_of_steps(void) {
    static const char *const normalizer[] = {
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "Nmt",
        "StripAccents",
        "Strip",
        "BertNormalizer",
        "ByteLevel",
        "Prepend\",\"prepend\":\" x\",\"a\":\"",
        "SentencePiece",
        "Sequence\",\"exact\":\"SentencePiece\",\"normalizers\":[],\"a\":\"",
        "Replace\",\"pattern\":{\"String\":\"o\"},\"content\":\"  lo\",\"a\":\"",
        "Replace\",\"pattern\":{\"Regex\":\"[a-m]+\"},\"content\":\"\",\"a\":\""};
    static const char *const split[] = {"Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel", "Digits",
                                        "BertPreTokenizer", "Punctuation", "UnicodeScripts", "FixedLength",
                                        "Split\",\"pattern\":{\"Regex\":\"(l|o)+\"},\"a\":\""};
    static const char *const decoder[] = {"WordPiece", "Metaspace", "BPEDecoder", "CTC", "Fuse", "Strip",
                                          "ByteFallback", "ByteLevel"};
    static const char *const model[] = {
        "Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",-9],[\"lo\",-1],[\" \",-1],[\"\xe2\x96\x81\",-1]]",
        "Unigram\",\"unk_id\":0,\"float32\":true,\"vocab\":[[\"?\",-9],[\"l\",-4e4],[\"lo\",-5e4]],"
        "\"unused\":[0]",
        "WordPiece\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"l\":1,\"##o\":2}",
        "BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"l\":1,\"o\":2,\"lo\":3},\"merges\":[\"l o\"]"};
    const char *n[3], *s = split[fuzz_below(10)], *d = decoder[fuzz_below(8)], *m = model[fuzz_below(4)];
    for (int i = 0; i < 3; i++) n[i] = normalizer[fuzz_below(15)];
    const int flags = (int)fuzz_byte();
    fuzz_mem.size = (size_t)snprintf(
        fuzz_mem.bytes, FUZZ_MEM_ROOM,
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"%s\"},{\"type\":\"%s\"},"
        "{\"type\":\"%s\"}]},\"pre_tokenizer\":{\"type\":\"%s\"},\"decoder\":{\"type\":\"%s\"},"
        "\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":%s,\"add_prefix_space\":%s},"
        "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"normalized\":%s}],\"model\":{\"type\":\"%s}}",
        n[0], n[1], n[2], s, d, flags & 1 ? "true" : "false", flags & 2 ? "true" : "false",
        flags & 4 ? "true" : "false", m);
}

static void put_key(const char *key, unsigned type) { fuzz_append_text(key), fuzz_append_int(type, 4); }

/* A GGUF file of a tokenizer of each kind, without tensors; rarely any score, token type or token. */
static void file_of_gguf(void) {
    static const char *const model[] = {"gpt2", "llama", "t5", "bert"};
    static const char *const pre[] = {"gpt-2", "qwen2", "gpt-4o"};
    static const char *const token[] = {"[UNK]", "<s>",          "l",              "o",
                                        "lo",    "\xe2\x96\x81", "\xe2\x96\x81lo", "<0x6C>"};
    static const unsigned type[] = {2, 3, 1, 1, 1, 1, 4, 6};
    static const char *const yes[] = {"fl.special_in_text", "ggml.add_bos_token", "ggml.add_eos_token",
                                      "ggml.add_space_prefix", "ggml.remove_extra_whitespaces",
                                      "ggml.normalizer.lowercase"};
    char key[80];
    fuzz_append("GGUF", 4), fuzz_append_int(3, 4), fuzz_append_int(0, 8), fuzz_append_int(13, 8);
    put_key("tokenizer.ggml.model", 8), fuzz_append_text(model[fuzz_below(4)]);
    put_key("tokenizer.ggml.pre", 8), fuzz_append_text(pre[fuzz_below(3)]);
    put_key("tokenizer.ggml.token_type", 9), fuzz_append_int(5, 4), fuzz_append_int(8, 8);
    for (int i = 0; i < 8; i++) fuzz_append_int(fuzz_rarely(8) ? fuzz_byte() % 8 : type[i], 4);
    put_key("tokenizer.ggml.scores", 9), fuzz_append_int(6, 4), fuzz_append_int(8, 8);
    for (int i = 0; i < 8; i++) fuzz_append_int(fuzz_rarely(8) ? fuzz_word(4) : 0xbf800000u + (unsigned)i, 4);
    put_key("tokenizer.ggml.tokens", 9), fuzz_append_int(8, 4), fuzz_append_int(8, 8);
    for (int i = 0; i < 8; i++) fuzz_append_text(fuzz_rarely(16) ? token[fuzz_below(8)] : token[i]);
    put_key("tokenizer.ggml.merges", 9), fuzz_append_int(8, 4), fuzz_append_int(1,
                                                                                8), fuzz_append_text("l o");
    put_key("tokenizer.ggml.bos_token_id", 4), fuzz_append_int(fuzz_rarely(8) ? fuzz_byte() : 1, 4);
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "tokenizer.%s", yes[i]);
        put_key(key, 7), fuzz_append_int((unsigned)fuzz_below(2), 1);
    }
}

/* What a file starts from; then some bytes are changed, or it is cut. */
static void file_fill(fl_text_tokenizer *t, int kind) {
    fl_data_text json = {0};
    fuzz_mem.size = 0;
    if (kind == 0 && fuzz_below(2)) {
        file_of_steps();
        if (fuzz_below(4)) return;
    } else if (kind == 0 && fl_text_tokenizer_json(t, &json) && json.n < FUZZ_MEM_ROOM)
        memcpy(fuzz_mem.bytes, json.p, fuzz_mem.size = (size_t)json.n);
    if (kind == 1) memcpy(fuzz_mem.bytes, arpa, fuzz_mem.size = sizeof arpa - 1);
    fl_heap_free(json.p);
    if (kind == 2 && fuzz_below(2)) file_of("tests/golden/text/sp_bpe.model");
    if (kind == 7) file_of(kenlm[fuzz_below(4)]);
    if (kind == 8) {
        file_of_gguf();
        if (fuzz_below(4)) return;
    }
    if (!fuzz_mem.size)
        while (fuzz_input.left && fuzz_mem.size < FUZZ_MEM_ROOM)
            fuzz_mem.bytes[fuzz_mem.size++] = (char)fuzz_byte();
    for (int changes = fuzz_below(6); fuzz_mem.size && changes > 0; changes--)
        fuzz_mem.bytes[fuzz_word(2) % fuzz_mem.size] =
            fuzz_rarely(2) ? (char)fuzz_byte() : "0123456789{}[]\",: \\\n\t-.eE"[fuzz_below(26)];
    if (fuzz_mem.size && fuzz_rarely(4)) fuzz_mem.size = fuzz_word(2) % fuzz_mem.size;
}

static void use_tokenizer(fl_text_tokenizer *t) {
    static const char fixed[] = "low \xe2\x96\x81 the\n\xff <s> 12",
                      *const part[] = {"lo",           " ",    "o",   "\xcc\x81", "\xcc\x96", "\xc3\xa9",
                                       "\xef\xb7\xba", "\xff", "<s>", "\xe2\x82", "1",        "\xe4\xb8\x80"};
    char text[200] = "";
    for (int parts = fuzz_below(20); parts > 0; parts--) strcat(text, part[fuzz_below(12)]);
    if (!*text) strcpy(text, fixed);
    const int64_t n = (int64_t)strlen(text);
    fl_text_encoding e = {0};
    fl_data_text back = {0};
    if (t && fl_text_encode(t, text, n, &e)) {
        for (int64_t i = 0; i < e.n; i++)
            if (e.id[i] < 0 || e.id[i] >= fl_text_vocab_size(t) || e.begin[i] > e.end[i] ||
                e.begin[i] < 0 || e.end[i] > n)
                fuzz_bug("token %d at %d to %d", (int)e.id[i], (int)e.begin[i], (int)e.end[i]);
        fl_text_decode(t, e.id, e.n, true, &back);
    }
    if (t) fl_error_clear();
    else if (!fl_error()) fuzz_bug("a file was refused without an error");
    fl_text_encoding_free(&e);
    fl_heap_free(back.p);
    fl_text_tokenizer_free(t);
}

static void read_file(fl_text_tokenizer *t) {
    static const char *const name[] = {"t.json",     "m.arpa", "t.model", "t.txt",
                                       "t.tiktoken", "t.bin",  "d",       "m",    "t.gguf"};
    const int which = fuzz_below(9);
    fuzz_doing = name[which];
    file_fill(t, which);
    fl_error_clear();
    fuzz_cost_begin();
    if (which == 0 || which == 2 || which == 3 ||
        which == 8) use_tokenizer(fl_text_tokenizer_open(name[which]));
    if (which == 4) use_tokenizer(fl_text_tiktoken_load("t", FL_TEXT_SPLIT_O200K, NULL, 0));
    if (which == 5) use_tokenizer(fl_text_llama2c_load("t", fuzz_below(4)));
    if (which == 6) fl_text_dictionary_free(fl_text_dictionary_load("d", .counts = fuzz_below(2)));
    if (which != 1 && which != 7) {
        fuzz_cost_end(fuzz_mem.size);
        return;
    }
    fl_text_ngram *m = fl_text_ngram_load("m");
    fl_text_ngram_sum sum = {0};
    if (m) fl_text_ngram_score_text(m, "a b\na a\n", 8, &sum);
    else if (!fl_error()) fuzz_bug("a model was refused without an error");
    fl_text_ngram_free(m);
    fuzz_cost_end(fuzz_mem.size);
}

/* Any bytes come back. */
static void round_trip(fl_text_tokenizer *t) {
    char text[300];
    fl_text_encoding e = {0};
    fl_data_text back = {0};
    fl_text_stream s = {.tokenizer = t, .keep_special = true};
    int64_t n = 0, at = 0, given = 0;
    fuzz_doing = "round trip";
    while (fuzz_input.left && n < (int64_t)sizeof text) text[n++] = (char)fuzz_byte();
    if (!fl_text_encode(t, text, n, &e)) fuzz_bug("bytes were refused");
    for (int64_t i = 0, got; i <= e.n; i++) {
        if (i < e.n && e.begin[i] != at)
            fuzz_bug("token %d begins at %d, %d was next", (int)i, (int)e.begin[i], (int)at);
        if (i < e.n) at = e.end[i];
        const char *p = i < e.n ? fl_text_stream_add(&s, e.id[i], &got) : fl_text_stream_end(&s, &got);
        if (!p || got > n - given || memcmp(p, text + given, (size_t)got))
            fuzz_bug("the stream gave other bytes at %d", (int)given);
        given += got;
    }
    if (at != n || given != n)
        fuzz_bug("offsets end at %d, the stream at %d, of %d", (int)at, (int)given, (int)n);
    if (!fl_text_decode(t, e.id, e.n, true, &back) || back.n != n ||
        (n && memcmp(back.p, text, (size_t)n)))
        fuzz_bug("other bytes came back");
    fl_text_stream_free(&s);
    fl_text_encoding_free(&e);
    fl_heap_free(back.p);
}

static void fuzz_one(void) {
    static const char *const split[] = {FL_TEXT_SPLIT_GPT2, FL_TEXT_SPLIT_LLAMA3,
                                        FL_TEXT_SPLIT_CL100K, FL_TEXT_SPLIT_QWEN2,
                                        FL_TEXT_SPLIT_O200K};
    fl_data_io_use(&fuzz_disk);
    fuzz_doing = "training";
    fl_text_tokenizer *t =
        fl_text_bpe_train(sample, sizeof sample - 1, .size = 270, .split = split[fuzz_below(5)]);
    if (!t) fuzz_bug("no tokenizer");
    if (fuzz_below(2)) round_trip(t);
    else read_file(t);
    fl_text_tokenizer_free(t);
    fl_data_io_use(NULL);
}
/* MIT licence: see LICENSE. */
