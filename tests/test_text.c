/* test_text.c - characters, dictionaries, tokenizers: what goes in comes out, files, failing disks and
   memory */
#include "../fl_all.h"
#include "text.h"

/* ---- characters ---- */

TEST(utf8_ill_formed) {
    static const struct { const char *in, *out; int replaced; } cases[] = { /* as Python's errors="replace" */
        {"", "", 0},
        {"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", 0},
        {"\x80", "\xef\xbf\xbd", 1},
        {"\xc3", "\xef\xbf\xbd", 1},
        {"\xc3(", "\xef\xbf\xbd(", 1},
        {"\xe2\x82", "\xef\xbf\xbd", 1},
        {"\xe2\x28\xa1", "\xef\xbf\xbd(\xef\xbf\xbd", 2},
        {"\xf0\x9f\x99", "\xef\xbf\xbd", 1},
        {"\xf0\x9f\x99z", "\xef\xbf\xbdz", 1},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd", 2},
        {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 4},
        {"\xf5x\xff", "\xef\xbf\xbdx\xef\xbf\xbd", 2},
        {"12345678\xff" "12345678", "12345678\xef\xbf\xbd" "12345678", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fl_data_text t = {0};
        int64_t replaced = 0;
        CHECK(fl_text_utf8_append(&t, cases[i].in, (int64_t)strlen(cases[i].in), &replaced));
        if (!CHECK(same(t.p, t.n, cases[i].out) && replaced == cases[i].replaced))
            printf("  case %d\n", (int)i);
        CHECK_EQ_INT(fl_text_utf8_count(cases[i].in, (int64_t)strlen(cases[i].in)),
                     fl_text_utf8_count(t.p, t.n));
        fl_heap_free(t.p);
    }
    for (int32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        int len;
        const int n = fl_text_utf8_encode(bytes, c);
        const bool surrogate = c >= 0xd800 && c < 0xe000;
        if (!CHECK(fl_text_utf8_decode(bytes, n, &len) == (surrogate ? 0xfffd : c) && len == n)) break;
    }
}

/* ---- dictionaries ---- */

TEST(dictionary) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char text[] = "zero nought\n\n  one\ttwo  \r\nthree";
    disk_write("d", text, sizeof text - 1);
    fl_text_dictionary *d = fl_text_dictionary_load("d");
    REQUIRE(d);
    CHECK_EQ_INT(fl_text_dictionary_size(d), 3);
    CHECK_EQ_INT(fl_text_dictionary_entries(d), 5);
    CHECK_EQ_INT(fl_text_dictionary_find(d, "nought", 6), 0);
    CHECK_EQ_INT(fl_text_dictionary_find(d, "two", 3), 1);
    CHECK(!strcmp(fl_text_dictionary_entry(d, 1, NULL), "one"));
    CHECK_EQ_INT(fl_text_dictionary_index(d, "four", 4), -1);
    CHECK_ERROR("unknown entry 'four', and no default index is set");
    CHECK(fl_text_dictionary_set_default(d, 2) && fl_text_dictionary_index(d, "four", 4) == 2);
    CHECK(!fl_text_dictionary_set_default(d, 3) && CHECK_ERROR("got 3, expected [-1, 3)"));
    CHECK(!fl_text_dictionary_add_at(d, "one", 3, 7) && CHECK_ERROR("duplicate entry 'one'"));
    CHECK(fl_text_dictionary_add_at(d, "a\0b", 3, 4) && !fl_text_dictionary_contiguous(d));
    CHECK_EQ_INT(fl_text_dictionary_find(d, "a", 1), -1);
    CHECK(!fl_text_dictionary_save(d, "e", false) && CHECK_ERROR("index 3 has no entry"));
    CHECK(fl_text_dictionary_add_at(d, "x", 1, 3) && fl_text_dictionary_save(d, "e", false));
    CHECK(!fl_text_dictionary_add_at(d, "y", 1, -1) && CHECK_ERROR("index (-1)"));
    size_t n;
    unsigned char *bytes = disk_copy("e", &n);
    CHECK(n == 32 && !memcmp(bytes, "zero nought\none two\nthree\nx\na\0b\n", n));
    free(bytes);
    fl_text_dictionary_free(d);
    end(&s);
}

TEST(dictionary_counts) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_text_dictionary *d = fl_text_dictionary_new();
    static const char *const special[] = {"</s>", "<unk>"};
    for (int i = 0; i < 2; i++)
        CHECK(fl_text_dictionary_add(d, special[i], (int64_t)strlen(special[i])) == i);
    static const char text[] = "b a c a b a d e\xc2\xa0" "e";
    CHECK(fl_text_count_words(d, text, sizeof text - 1));
    fl_text_dictionary *p = fl_text_dictionary_pruned(d, 2, 2, 4);
    CHECK(p && fl_text_dictionary_save(p, "d", true));
    size_t n;
    unsigned char *bytes = disk_copy("d", &n);
    if (!CHECK(n == 23 && !memcmp(bytes, "</s> 0\n<unk> 0\na 3\nb 2\n", n))) printf("%.*s", (int)n, bytes);
    free(bytes);
    fl_text_dictionary_free(p);
    p = fl_text_dictionary_load("d", .counts = true, .min_count = 3);
    CHECK(p && fl_text_dictionary_size(p) == 1 && fl_text_dictionary_count_of(p, 0) == 3);
    fl_text_dictionary_free(p);
    p = fl_text_dictionary_load("d", .counts = true, .max_size = 3);
    CHECK(p && fl_text_dictionary_size(p) == 3);
    fl_text_dictionary_free(p);
    fl_text_dictionary_free(d);
    disk_write("d", "a 1\nb x\n", 8);
    CHECK(!fl_text_dictionary_load("d", .counts = true) &&
          CHECK_ERROR("fl_text_dictionary_load: d: line 2: expected a count after 'b'"));
    disk_write("d", "a 1\na 2\n", 8);
    CHECK(!fl_text_dictionary_load("d", .counts = true) && CHECK_ERROR("d: line 2: duplicate entry 'a'"));
    disk_write("d", "a b\nc a\n", 8);
    CHECK(!fl_text_dictionary_load("d") && CHECK_ERROR("d: line 2: duplicate entry 'a'"));
    CHECK(!fl_text_dictionary_load("none") && CHECK_ERROR("none: cannot open"));
    end(&s);
}

/* ---- simple tokenizers ---- */

static fl_text_encoding encode_of(const fl_text_tokenizer *t, const char *text) {
    fl_text_encoding e = {0};
    CHECK(fl_text_encode(t, text, (int64_t)strlen(text), &e));
    CHECK_NO_ERROR();
    return e;
}

static void check_ids(const fl_text_tokenizer *t, const char *text, int n, const int *id) {
    fl_text_encoding e = encode_of(t, text);
    bool equal = e.n == n;
    for (int i = 0; equal && i < n; i++) equal = e.id[i] == id[i];
    if (!CHECK(equal)) {
        printf("  %s ->", text);
        for (int i = 0; i < e.n; i++) printf(" %d", (int)e.id[i]);
        printf("\n");
    }
    fl_text_encoding_free(&e);
}
#define IDS(t, text, ...) check_ids(t, text, FL_COUNT(int, __VA_ARGS__), FL_ARRAY(int, __VA_ARGS__))

/* Text of ids, whole and one after the other. */
static bool decodes(const fl_text_tokenizer *t, const char *text) {
    fl_text_encoding e = encode_of(t, text);
    fl_data_text whole = {0}, parts = {0};
    fl_text_stream s = {.tokenizer = t};
    bool ok = fl_text_decode(t, e.id, e.n, false, &whole) && same(whole.p, whole.n, text);
    for (int64_t i = 0, n; i <= e.n; i++) {
        const char *p = i < e.n ? fl_text_stream_add(&s, e.id[i], &n) : fl_text_stream_end(&s, &n);
        ok = ok && p && fl_data_text_put(&parts, p, (size_t)n);
        ok = ok && (i == e.n || fl_text_utf8_valid_length(p, n) == n ||
                    fl_text_utf8_valid_length(text, (int64_t)strlen(text)) < (int64_t)strlen(text));
    }
    ok = ok && same(parts.p, parts.n, text);
    if (!ok) printf("  %s -> %s, %s\n", text, whole.p, parts.p);
    fl_heap_free(whole.p);
    fl_heap_free(parts.p);
    fl_text_stream_free(&s);
    fl_text_encoding_free(&e);
    return ok;
}

TEST(char_tokenizer) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_text_tokenizer *t = fl_text_char_tokenizer("b\xc3\xa9\na", 5);
    for (int again = 0; t && again < 2; again++, t = again < 2 ? reloaded(t) : t) {
        CHECK_EQ_INT(fl_text_vocab_size(t), 4);
        IDS(t, "ab\xc3\xa9\n", 1, 2, 3, 0);
        CHECK(decodes(t, "\nb\xc3\xa9" "a") && decodes(t, ""));
        fl_text_encoding e = {0};
        CHECK(!fl_text_encode(t, "a\nbx", 4, &e) &&
              CHECK_ERROR("offset 3, line 2: character U+0078 'x' is not in the vocabulary"));
        CHECK(!fl_text_encode(t, "a\xff", 2, &e, .strict = true) &&
              CHECK_ERROR("offset 1, line 1: ill-formed UTF-8"));
        fl_text_encoding_free(&e);
    }
    fl_data_text out = {0};
    CHECK(t && !fl_text_decode(t, FL_ARRAY(int32_t, 0, 4), 2, false, &out) &&
          CHECK_ERROR("id 4 at position 1 has no token: the vocabulary has 4 ids"));
    fl_heap_free(out.p);
    fl_text_tokenizer_free(t);
    end(&s);
}

TEST(word_tokenizer) {
    begin();
    fl_scope s = fl_scope_begin();
    disk_write("d", "<unk>\nthe\ncat\n", 14);
    fl_text_dictionary *d = fl_text_dictionary_load("d");
    CHECK(d && fl_text_dictionary_set_default(d, 0));
    fl_text_tokenizer *t = fl_text_word_tokenizer(d);
    for (int again = 0; t && again < 2; again++, t = again < 2 ? reloaded(t) : t) {
        IDS(t, " the\tdog the\xe3\x80\x80" "cat\n", 1, 0, 1, 2);
        CHECK(decodes(t, "the cat the"));
        fl_text_encoding e = encode_of(t, " a  cat \xff");
        CHECK(e.n == 3 && e.begin[1] == 4 && e.end[1] == 7 && e.begin[2] == 8 && e.end[2] == 9 &&
              e.replaced == 1);
        fl_text_encoding_free(&e);
    }
    fl_text_tokenizer_free(t);
    end(&s);
}

TEST(byte_tokenizer) {
    begin();
    fl_scope s = fl_scope_begin();
    char all[257] = {0};
    for (int i = 1; i < 256; i++) all[i - 1] = (char)i;
    fl_text_tokenizer *t = fl_text_byte_tokenizer();
    for (int again = 0; t && again < 2; again++, t = again < 2 ? reloaded(t) : t) {
        IDS(t, "a\xc3\xa9 ", 97, 0xc3, 0xa9, 32);
        CHECK(decodes(t, all) && decodes(t, "\xf0\x9f\x99\x82 \xe2\x82"));
        fl_text_encoding e = {0};
        CHECK(fl_text_encode(t, "\0\0", 2, &e) && e.n == 2 && e.id[1] == 0 && e.end[1] == 2);
        fl_text_encoding_free(&e);
    }
    fl_text_tokenizer_free(t);
    end(&s);
}

/* ---- byte-level BPE ---- */

static const char sample[] =
    "low lower lowest, newer newest wider: the low lows of the new lowlands, wide and low.\n";

/* Tokens that are put in later are cut out of the text, and shown or not. */
TEST(added_later) {
    const fl_text_added_token more[] = {{.text = "<s>", .n = 3, .id = -1, .special = true},
                                        {.text = "bc", .n = 2, .id = 900}},
                        bad[] = {{.text = "<s>", .n = 3, .id = 7}, {.text = "", .n = 0, .id = -1}};
    begin();
    fl_scope scope = fl_scope_begin();
    fl_text_tokenizer *t = fl_text_byte_tokenizer();
    fl_data_text out = {0};
    CHECK(t && fl_text_tokenizer_add(t, more, 2) && fl_text_vocab_size(t) == 901);
    IDS(t, "<s>abcd<s", 256, 'a', 900, 'd', '<', 's');
    CHECK(fl_text_is_special(t, 256) && !fl_text_is_special(t, 900));
    CHECK(fl_text_decode(t, (int32_t[]){256, 'a', 900}, 3, false, &out) && same(out.p, out.n, "abc"));
    static const char *const errors[] = {"added token '<s>' has id 7", "an added token has no text"};
    for (int i = 0; i < 2; i++) {
        CHECK(!fl_text_tokenizer_add(t, &bad[i], 1));
        CHECK_ERROR(errors[i]);
        fl_error_clear();
    }
    fl_heap_free(out.p);
    fl_text_tokenizer_free(t);
    end(&scope);
}

TEST(bpe_training) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char *const special[] = {"<|end|>"};
    fl_text_tokenizer *t = fl_text_bpe_train(sample, sizeof sample - 1, .size = 270,
                                             .special = special, .n_special = 1);
    for (int again = 0; t && again < 2; again++, t = again < 2 ? reloaded(t) : t) {
        CHECK_EQ_INT(fl_text_vocab_size(t), 270);
        CHECK(fl_text_id_of(t, " low", 4) > 256 && fl_text_id_of(t, "<|end|>", 7) == 0 &&
              fl_text_is_special(t, 0));
        CHECK(decodes(t, sample) && decodes(t, "\xf0\x9f\x99\x82\xff\xfe low"));
        fl_text_encoding e = encode_of(t, " low<|end|>low");
        CHECK(e.id[0] == fl_text_id_of(t, " low", 4) && e.id[1] == 0 && e.begin[1] == 4 && e.end[1] == 11);
        fl_text_encoding_free(&e);
    }
    fl_text_tokenizer_free(t);
    end(&s);
}

/* A piece that is a million letters long is joined in time that grows little faster than it. */
TEST(bpe_long_piece) {
    fl_text_tokenizer *t = fl_text_bpe_train(sample, sizeof sample - 1, .size = 280);
    const int64_t n = 10 << 20;
    char *text = malloc((size_t)n);
    fl_text_encoding e = {0};
    memset(text, 'w', (size_t)n);
    for (int64_t i = 0; i < n; i += 3) text[i] = 'o';
    CHECK(t && fl_text_encode(t, text, n, &e) && e.n > n / 4);
    CHECK(e.begin[0] == 0 && e.end[e.n - 1] == n);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
    free(text);
}

static bool train_save_load(void) {
    fl_text_tokenizer *t = fl_text_bpe_train(sample, sizeof sample - 1, .size = 262);
    fl_text_encoding e = {0};
    fl_data_text back = {0};
    bool ok = t && fl_text_tokenizer_save(t, "t.json");
    fl_text_tokenizer_free(t);
    t = ok ? fl_text_tokenizer_load("t.json") : NULL;
    ok = t && fl_text_encode(t, "the low", 7, &e) && fl_text_decode(t, e.id, e.n, false, &back);
    if (ok) CHECK(same(back.p, back.n, "the low"));
    fl_text_encoding_free(&e);
    fl_heap_free(back.p);
    fl_text_tokenizer_free(t);
    return ok;
}

/* The vocabulary that WordPiece learns: special tokens, characters by their code points, those within words,
   and what is joined. */
TEST(wordpiece_training) {
    static const char *const want[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a",
                                       "b",     "c",     "##a",   "##b",   "ab"};
    begin();
    fl_scope s = fl_scope_begin();
    fl_text_tokenizer *t = fl_text_wordpiece_train("ab ab ca b", 10, .size = 11);
    REQUIRE(t);
    CHECK_EQ_INT(fl_text_vocab_size(t), 11);
    for (int i = 0; i < 11; i++) {
        int64_t n;
        const char *token = fl_text_token_of(t, i, &n);
        if (!CHECK(same(token, n, want[i]))) printf("  %d: %s\n", i, token);
    }
    fl_text_tokenizer_free(t);
    end(&s);
}

/* The score of each id in a tokenizer.json of unigram pieces, a line each. */
static int read_scores(const char *json, double *score, int most) {
    int n = 0;
    const char *line = strstr(json, "\"vocab\":[");
    for (; line && n < most && (line = strstr(line, "[\"")); line++) {
        const char *stop = strstr(line, "]"), *comma = stop;
        while (comma && *comma != ',') comma--;
        if (stop) score[n++] = strtod(comma + 1, NULL);
    }
    return n;
}

/* The text is as probable with our pieces as with sentencepiece's. */
TEST(unigram_training) {
    static double score[300];
    int64_t n, unused;
    fl_text_encoding e = {0};
    double theirs = 0, ours = 0;
    begin();
    fl_scope scope = fl_scope_begin();
    char *text = golden("unigram_train.txt", &n), *tsv = golden("unigram_train.tsv", &unused);
    REQUIRE(text && tsv && sscanf(tsv, "%lf", &theirs) == 1);
    fl_text_tokenizer *t = fl_text_unigram_train(text, n, .size = 300);
    REQUIRE(t && fl_text_vocab_size(t) == 300 && fl_text_tokenizer_save(t, "t.json"));
    char *json = fl_text_read_file("test", "t.json", &unused);
    CHECK_EQ_INT(read_scores(json, score, 300), 300);
    for (const char *p = text, *word; (word = fl_text_field(&p, text + n, &unused));) {
        CHECK(fl_text_encode(t, word, unused, &e));
        for (int64_t i = 0; i < e.n; i++) ours += score[e.id[i]];
    }
    if (!CHECK(theirs < 0 && ours > 1.01 * theirs && ours < 0.95 * theirs))
        printf("%.0f nats, sentencepiece's pieces %.0f\n", ours, theirs);
    fl_text_tokenizer_free(t);
    CHECK(!fl_text_unigram_train(text, n, .size = 10));
    CHECK_ERROR("got 10, expected at least 20 characters + 3 reserved pieces");
    CHECK(!fl_text_unigram_train(" \n", 2, .size = 10));
    CHECK_ERROR("fl_text_unigram_train: the text has no words");
    CHECK(!fl_text_unigram_train(NULL, 2, .coverage = 2));
    CHECK_ERROR("text is NULL (2 bytes), size 8192 is not in [4, 2^31), or coverage 2");
    t = fl_text_unigram_train("a\0b \xff\xfe c a\0b", 13, .size = 300, .byte_fallback = true);
    CHECK(t && decodes(t, "a c \xe2\x82\xac"));
    fl_text_tokenizer_free(t);
    fl_text_encoding_free(&e);
    fl_heap_free(text), fl_heap_free(tsv), fl_heap_free(json);
    end(&scope);
}

static bool train_unigram(void) {
    fl_text_tokenizer *t = fl_text_unigram_train("to be or not to be bees", 23, .size = 18);
    fl_text_tokenizer_free(t);
    return t != NULL;
}

/* A SentencePiece model through a GGUF file. */
static bool through_gguf(void) {
    fl_text_gguf_vocab v = {0};
    fl_text_tokenizer *t = fl_text_tokenizer_open("v.model"), *again = NULL;
    if (t && fl_text_gguf_vocab_of(t, fl_text_vocab_size(t) + 1, -1, -1, NULL, &v) &&
        fl_text_save_gguf("v.gguf", NULL, 0, v.pair, v.n))
        again = fl_text_tokenizer_open("v.gguf");
    fl_text_gguf_vocab_free(&v);
    fl_text_tokenizer_free(t), fl_text_tokenizer_free(again);
    return again != NULL;
}

static bool merges_through_gguf(void) {
    fl_text_gguf_vocab v = {0};
    fl_text_tokenizer *t = fl_text_bpe_train("low lower lowest", 16, .size = 262), *again = NULL;
    if (t && fl_text_gguf_vocab_of(t, 270, -1, -1, NULL, &v) &&
        fl_text_save_gguf("v.gguf", NULL, 0, v.pair, v.n))
        again = fl_text_tokenizer_open("v.gguf");
    fl_text_gguf_vocab_free(&v);
    fl_text_tokenizer_free(t), fl_text_tokenizer_free(again);
    return again != NULL;
}

TEST(tokenizer_faults) {
    begin();
    fl_scope s = fl_scope_begin();
    const int64_t points = sweep_heap(train_save_load, false) + sweep_heap(train_save_load, true);
    CHECK(points > 100);
    CHECK(sweep_heap(train_unigram, false) > 20 && sweep_heap(train_unigram, true) > 20);
    CHECK(sweep_heap(merges_through_gguf, false) > 20 && sweep_heap(merges_through_gguf, true) > 20);
    CHECK(golden_to_disk("sp_bpe.model", "v.model") && sweep_heap(through_gguf, false) > 20);
    const int calls = count_calls(train_save_load);
    for (int at = 1; at < calls; at++) {
        disk_fault_at(at, FAULT_ERROR);
        if (train_save_load()) continue; /* closing lost nothing */
        CHECK_ERROR("cannot ");
    }
    disk_fault_at(0, FAULT_ERROR);
    end(&s);
}

/* ---- what a tokenizer may make of a text ---- */

#define UNIGRAM "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",-9],[\"a\",-1],[\"b\",-1]"

static fl_text_tokenizer *tokenizer_of(const char *json) {
    disk_write("t.json", json, strlen(json));
    return fl_text_tokenizer_load("t.json");
}

/* The error of a tokenizer.json. */
static void check_refused(const char *json, const char *error) {
    fl_text_tokenizer *t = tokenizer_of(json);
    CHECK(!t) && CHECK_ERROR(error);
    fl_error_clear();
    fl_text_tokenizer_free(t);
}

/* The bytes that the text becomes: of an unigram tokenizer without pieces for runs. */
static int64_t encoded(const fl_text_tokenizer *t, const char *text, int64_t n) {
    fl_text_encoding e = {0};
    const int64_t ids = fl_text_encode(t, text, n, &e) ? e.n : -1;
    fl_text_encoding_free(&e);
    return ids;
}

TEST(growth_is_limited) {
    char text[1000], json[1000];
    begin();
    fl_scope scope = fl_scope_begin();
    memset(text, 'a', sizeof text);
    /* 100 bytes become 100 k: up to 64 times as many, and 8 KiB */
    for (int k = 140; k <= 150; k++) {
        char content[200] = "";
        for (int i = 0; i < k; i++) strcat(content, "b");
        snprintf(json, sizeof json, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                 "\"content\":\"%s\"}," UNIGRAM "]}}", content);
        fl_text_tokenizer *t = tokenizer_of(json);
        REQUIRE(t);
        const bool fits = 100 * k <= 64 * 100 + 8192;
        CHECK_EQ_INT(encoded(t, text, 100), fits ? 100 * k : -1);
        if (!fits) CHECK_ERROR("bytes, expected at most 14592: 64 times the text + 8 KiB");
        fl_error_clear();
        CHECK_EQ_INT(encoded(t, text, 1), k); /* an error leaves nothing behind */
        fl_text_tokenizer_free(t);
    }
    /* 65 times 191 and 1 are 12,416, the limit of 66 bytes; 64 times 193 and 1 are one above that of 65 */
    for (int over = 0; over < 2; over++) {
        const int letters = over ? 64 : 65, k = over ? 193 : 191;
        snprintf(json, sizeof json,
                 "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                 "\"content\":\"%0*d\"}," UNIGRAM ",[\"0\",-1]]}}",
                 k, 0);
        fl_text_tokenizer *t = tokenizer_of(json);
        text[letters] = 'b';
        CHECK_EQ_INT(t ? encoded(t, text, letters + 1) : 0, over ? -1 : 12416);
        text[letters] = 'a';
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    /* 140 bytes for an id of one byte, each of which counts for two */
    snprintf(json, sizeof json, "{\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
             "\"content\":\"%0140d\"}," UNIGRAM "]}}", 0);
    fl_text_tokenizer *t = tokenizer_of(json);
    static int32_t id[4000];
    fl_data_text out = {0};
    for (int i = 0; i < 4000; i++) id[i] = 1;
    CHECK(t && fl_text_decode(t, id, 100, true, &out) && out.n == 100 * 140);
    CHECK(t && !fl_text_decode(t, id, 4000, true, &out) &&
          CHECK_ERROR("bytes, expected at most"));
    fl_error_clear();
    CHECK(t && out.n == 100 * 140 && fl_text_decode(t, id, 1, true, &out) && out.n == 101 * 140);
    fl_heap_free(out.p);
    fl_text_tokenizer_free(t);
    end(&scope);
}

TEST(work_is_limited) {
    enum { N = 200000 };
    static char text[N], json[N + 200];
    begin();
    fl_scope scope = fl_scope_begin();
    memset(text, 'a', sizeof text);
    static const char *const front[] = {
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"",
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"max_input_chars_per_word\":1000000,"
        "\"vocab\":"
        "{\"?\":0,\"a\":1,\"##a\":2,\"##",
        "{" UNIGRAM "]},\"added_tokens\":[{\"id\":3,\"content\":\""};
    static const char *const back[] = {"b\",-1]]}}", "b\":3}}}", "b\"}]}"};
    for (int i = 0; i < 3; i++) { /* a token of so many letters that never ends */
        for (int letters = 20; letters < N; letters *= 100) {
            snprintf(json, sizeof json, "%s%.*s%s", front[i], letters, text, back[i]);
            fl_text_tokenizer *t = tokenizer_of(json);
            const bool much = letters > 200;
            if (!CHECK(t && encoded(t, text, N) == (much ? -1 : N))) printf("  %d: %d letters\n", i, letters);
            if (much) CHECK_ERROR("expected at most 600 units of work per byte");
            fl_error_clear();
            CHECK_EQ_INT(t ? encoded(t, text, 100) : 0, 100); /* the next text begins anew */
            fl_text_tokenizer_free(t);
        }
    }
    end(&scope);
}

TEST(tokenizer_settings_are_limited) {
    static char json[80000], text[2000];
    begin();
    fl_scope scope = fl_scope_begin();
    memset(text, 'x', sizeof text - 1);
    static const char *const step[] = {
        "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"%.*s\"}",
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"%.*s\"},\"content\":\"\"}",
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"%.*s\"}",
        "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"%.*s\"}"};
    for (int i = 0; i < 4; i++)
        for (int n = 1024; n <= 1025; n++) {
            char part[1200];
            snprintf(part, sizeof part, step[i], n, text);
            snprintf(json, sizeof json, "{%s," UNIGRAM "]}}", part);
            fl_text_tokenizer *t = tokenizer_of(json);
            if (!CHECK((t != NULL) == (n == 1024))) printf("  %d of %d\n", i, n);
            if (!t) CHECK_ERROR("got 1025 bytes, expected at most 1024");
            fl_error_clear();
            fl_text_tokenizer_free(t);
        }
    for (int settings = 31; settings <= 32; settings++) { /* beside "type" */
        char *p = json + sprintf(json, "{\"normalizer\":{\"type\":\"NFC\"");
        for (int i = 0; i < settings; i++) p += sprintf(p, ",\"k%d\":0", i);
        sprintf(p, "}," UNIGRAM "]}}");
        fl_text_tokenizer *t = tokenizer_of(json);
        CHECK((t != NULL) == (settings == 31));
        if (!t) CHECK_ERROR("t.json: a step has too many settings, expected at most 32");
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    for (int settings = 62; settings <= 63; settings++) { /* beside "type" and "unk_id" */
        char *p = json + sprintf(json, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0");
        for (int i = 0; i < settings; i++) p += sprintf(p, ",\"k%d\":0", i);
        sprintf(p, ",\"vocab\":[[\"?\",0],[\"a\",0]]}}");
        fl_text_tokenizer *t = tokenizer_of(json);
        CHECK((t != NULL) == (settings == 62));
        if (!t) CHECK_ERROR("too many settings, expected at most 64");
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    check_refused("{\"padding\":{\"strategy\":{\"Fixed\":32769},\"pad_id\":0}," UNIGRAM "]}}",
                  "\"padding\" is too long: got length 32769, multiple 0, expected at most 32768");
    check_refused("{\"padding\":{\"pad_to_multiple_of\":32769,\"pad_id\":0}," UNIGRAM "]}}",
                  "\"padding\" is too long: got length 0, multiple 32769, expected at most 32768");
    fl_text_tokenizer *t = tokenizer_of(
        "{\"padding\":{\"strategy\":{\"Fixed\":32768},\"pad_to_multiple_of\":32768,\"pad_id\":0}," UNIGRAM
        "]}}");
    CHECK_EQ_INT(t ? encoded(t, "a", 1) : 0, 32768);
    fl_text_tokenizer_free(t);
    for (int names = 9; names <= 10; names++) { /* each of 100 ids */
        char *p =
            json +
            sprintf(json, "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"pair\":[],\"single\":[");
        for (int i = 0; i < names; i++) p += sprintf(p, "{\"SpecialToken\":{\"id\":\"s\"}},");
        p += sprintf(p, "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[0");
        for (int i = 1; i < 100; i++) p += sprintf(p, ",0");
        sprintf(p, "]}}}," UNIGRAM "]}}");
        t = tokenizer_of(json);
        CHECK_EQ_INT(t ? encoded(t, "a", 1) : -1, names == 9 ? 901 : -1);
        if (!t) CHECK_ERROR("t.json: a template has too many tokens, expected at most 1000");
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    /* Parts of 200 tokens, each of them two behind the last one. */
    memset(text, 'a', sizeof text);
    t = tokenizer_of("{" UNIGRAM "]}}");
    REQUIRE(t);
    CHECK(fl_text_tokenizer_truncate(t, (fl_text_truncation){.max_length = 200, .stride = 198}));
    fl_text_encoding e = {0};
    CHECK(fl_text_encode(t, text, 1000, &e) && e.n_overflow == 400);
    CHECK(!fl_text_encode(t, text, 2000, &e) &&
          CHECK_ERROR("stride or template make too many tokens, expected at most 64 per token"));
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* Wherever a normalizer puts characters, a token's offsets are a range of the text. */
TEST(offsets_are_ranges_of_the_text) {
    static const char *const normalizer[] = {
        "{\"type\":\"NFD\"}", "{\"type\":\"NFKC\"}", "{\"type\":\"Prepend\",\"prepend\":\" aa\"}",
        "{\"type\":\"Strip\"}", "{\"type\":\"BertNormalizer\"}", "{\"type\":\"ByteLevel\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\" bb  \"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}",
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},"
        "{\"type\":\"Strip\"},{\"type\":\"Prepend\",\"prepend\":\"  \"}]}"};
    static const char *const part[] = {"a",        "b",        " ",            "\xcc\x81",     "\xcc\x96",
                                       "\xcc\xb4", "\xc3\xa9", "\xef\xb7\xba", "\xea\xb0\x81", "\xff", "<s>"};
    char json[1000];
    begin();
    fl_scope scope = fl_scope_begin();
    for (int i = 0; i < 9 * 4; i++) {
        const bool trims = i & 1, spaced = i & 2;
        snprintf(json, sizeof json,
                 "{\"normalizer\":%s,\"post_processor\":{\"type\":\"ByteLevel\","
                 "\"trim_offsets\":%s,\"add_prefix_space\":%s},\"added_tokens\":[{\"id\":9,\"content\":\"<s>"
                 "\"}]," UNIGRAM ",[\" a\",-1],[\" \",-1],[\"  \",-1],[\"\xcc\xb4\xcc\x96\xcc\x81\",-1],"
                 "[\"a\xcc\xb4\xcc\x96\xcc\x81\",-1]]}}",
                 normalizer[i / 4], trims ? "true" : "false", spaced ? "true" : "false");
        fl_text_tokenizer *t = tokenizer_of(json);
        REQUIRE(t);
        uint32_t state = 1;
        for (int times = 0; times < 300; times++) {
            char text[200] = "";
            fl_text_encoding e = {0};
            for (int k = times % 12; k >= 0; k--)
                strcat(text, part[(state = state * 1664525 + 1013904223) >> 8 & 1 ? state >> 9 & 3
                                                                                  : (state >> 9) % 11]);
            const int64_t n = (int64_t)strlen(text);
            CHECK(fl_text_encode(t, text, n, &e));
            for (int64_t k = 0; k < e.n; k++)
                if (!CHECK(e.begin[k] >= 0 && e.begin[k] <= e.end[k] && e.end[k] <= n))
                    printf("  %d: %d-%d of '%s'\n", i, (int)e.begin[k], (int)e.end[k], text);
            fl_text_encoding_free(&e);
        }
        fl_text_tokenizer_free(t);
    }
    /* Three marks in the reverse of their canonical order, as one token. */
    fl_text_tokenizer *t = tokenizer_of("{\"normalizer\":{\"type\":\"NFD\"}," UNIGRAM
                                        ",[\"\xcc\xb4\xcc\x96\xcc\x81\",-1]]}}");
    fl_text_encoding e = {0};
    CHECK(t && fl_text_encode(t, "a\xcc\x81\xcc\x96\xcc\xb4", 7, &e) && e.n == 2 && e.id[1] == 3);
    CHECK(e.n == 2 && e.begin[1] == 1 && e.end[1] == 7);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* The canonical order of many marks: by class, those of one class as they were. */
TEST(marks_are_ordered) {
    static const struct { const char *text; int combining; } mark[] = { /* classes of UnicodeData.txt */
        {"\xcc\xb4", 1}, {"\xcc\xa1", 202}, {"\xcc\x96", 220}, {"\xcc\x97", 220}, {"\xcc\x80", 230},
        {"\xcc\x81", 230}, {"\xcc\x95", 232}, {"\xcd\x85", 240}};
    char text[500], want[500], *p;
    begin();
    fl_scope scope = fl_scope_begin();
    fl_text_tokenizer *t =
        tokenizer_of("{\"normalizer\":{\"type\":\"NFD\"},\"decoder\":{\"type\":\"Fuse\"},"
                     "\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":1},\"model\":"
                     "{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,"
                     "\"\xcc\xb4\":1,\"\xcc\xa1\":2,\"\xcc\x96\":3,\"\xcc\x97\":4,\"\xcc\x80\":5,"
                     "\"\xcc\x81\":6,\"\xcc\x95\":7,\"\xcd\x85\":8}}}");
    REQUIRE(t);
    uint32_t state = 7;
    for (int n = 0; n < 100; n++) {
        int of[100];
        strcpy(text, "a");
        for (int i = 0; i < n; i++)
            strcat(text, mark[of[i] = (state = state * 1664525 + 1013904223) >> 16 & 7].text);
        strcat(text, "a\xcc\x81\xcc\xb4");
        p = want + sprintf(want, "a");
        for (int c = 0; c < 256; c++)
            for (int i = 0; i < n; i++)
                if (mark[of[i]].combining == c) p += sprintf(p, "%s", mark[of[i]].text);
        sprintf(p, "a\xcc\xb4\xcc\x81");
        fl_text_encoding e = {0};
        fl_data_text out = {0};
        CHECK(fl_text_encode(t, text, (int64_t)strlen(text), &e) && fl_text_decode(t, e.id, e.n, true, &out));
        if (!CHECK(same(out.p, out.n, want))) printf("  %d marks\n", n);
        fl_text_encoding_free(&e);
        fl_heap_free(out.p);
    }
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* No token gives no text, by every decoder, and so does a blank alone; the sanitizer watches the first call
   of a tokenizer, when it has no buffer yet. */
TEST(decoders_of_nothing) {
    static const char *const decoder[] = {"WordPiece", "Metaspace", "BPEDecoder", "CTC", "Fuse", "Strip",
                                          "ByteFallback", "ByteLevel"};
    begin();
    fl_scope scope = fl_scope_begin();
    for (int i = 0; i < 8; i++) {
        char json[300];
        fl_data_text out = {0};
        snprintf(json, sizeof json,
                 "{\"decoder\":{\"type\":\"%s\"},\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\","
                 "\"vocab\":{\"a\":0,\"<pad>\":1}}}",
                 decoder[i]);
        fl_text_tokenizer *t = tokenizer_of(json);
        REQUIRE(t);
        CHECK(fl_text_decode(t, NULL, 0, true, &out) && same(out.p, out.n, ""));
        CHECK(fl_text_decode(t, (int32_t[]){0, 0, 1, 0}, 4, true, &out));
        if (!strcmp(decoder[i], "CTC")) CHECK(same(out.p, out.n, "aa"));
        fl_heap_free(out.p);
        fl_text_tokenizer_free(t);
    }
    end(&scope);
}

/* ---- charsmaps ---- */

/* A tokenizer.json with a normalizer of that type, whose map has these units of a Darts array, and these
   bytes behind it; `array`: the size that it says. Its pieces are characters. */
static fl_text_tokenizer *charsmap_of(const char *type, uint32_t array, const uint32_t *unit, int units,
                                      const char *text, int bytes) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static uint8_t map[8000];
    static char json[12000];
    const int size = 4 + 4 * units + bytes;
    memset(map, 0, sizeof map);
    memcpy(map, &array, 4), memcpy(map + 4, unit, 4 * (size_t)units),
        memcpy(map + 4 + 4 * units, text, (size_t)bytes);
    char *p = json + sprintf(json, "{\"normalizer\":{\"type\":\"%s\",\"add_dummy_prefix\":false,"
                             "\"escape_whitespaces\":false,\"precompiled_charsmap\":\"", type);
    for (int i = 0; i < size; i += 3) {
        const uint32_t v = (uint32_t)map[i] << 16 | (uint32_t)map[i + 1] << 8 | map[i + 2];
        for (int k = 0; k < 4; k++) *p++ = i + k > size ? '=' : digit[v >> (18 - 6 * k) & 63];
    }
    sprintf(p, "\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":"
            "[[\"?\",-9],[\"a\",-1],[\"b\",-1],[\"c\",-1],[\"d\",-1],[\" \",-1]]}}");
    return tokenizer_of(json);
}

/* What a text becomes. */
static void check_becomes(const fl_text_tokenizer *t, const char *text, const char *want) {
    fl_text_encoding e = {0};
    fl_data_text out = {0};
    CHECK(t && fl_text_encode(t, text, (int64_t)strlen(text), &e) &&
          fl_text_decode(t, e.id, e.n, true, &out));
    if (!CHECK(same(out.p, out.n, want))) printf("  %s -> %s, not %s\n", text, out.p, want);
    fl_text_encoding_free(&e);
    fl_heap_free(out.p);
}

TEST(charsmaps_are_bounded) {
    enum { UNITS = 512 };
    static const char text[] = "b\0cc"; /* at 0: b; at 2: cc */
    static uint32_t unit[UNITS];
    begin();
    fl_scope scope = fl_scope_begin();
    /* Node of c: its base is 256, so that its leaf is at c ^ 256; has a leaf: bit 8. */
    for (int value = 0; value < 8; value++) {
        memset(unit, 0, sizeof unit);
        unit['a'] = 'a' | 1u << 8 | 256u << 10, unit['a' ^ 256] = 1u << 31 | (uint32_t)value;
        static const char *const want[] = {"b", "",  "cc", "c",
                                           "",  "a", "a",  "a"}; /* from 5 on: behind the end */
        for (int own = 0; own < 2; own++) {
            fl_text_tokenizer *t =
                charsmap_of(own ? "SentencePiece" : "Precompiled", 4 * UNITS, unit, UNITS, text, 5);
            check_becomes(t, "a", want[value]);
            fl_text_tokenizer_free(t);
        }
    }
    /* "a" becomes b, "ab" cc: ours takes the longest key, tokenizers the shortest. */
    memset(unit, 0, sizeof unit);
    unit['a'] = 'a' | 1u << 8 | 256u << 10, unit['a' ^ 256] = 1u << 31;
    unit['a' ^ 256 ^ 'b'] = 'b' | 1u << 8 | 1u << 10, unit['a' ^ 256 ^ 'b' ^ 1] = 1u << 31 | 2;
    fl_text_tokenizer *t = charsmap_of("SentencePiece", 4 * UNITS, unit, UNITS, text, 5);
    check_becomes(t, "abaca", "ccbcb");
    fl_text_tokenizer_free(t);
    t = charsmap_of("Precompiled", 4 * UNITS, unit, UNITS, text, 5);
    check_becomes(t, "abaca", "bbbcb");
    fl_text_tokenizer_free(t);
    /* Indices behind the array: the node of "a" is its last unit, its leaf is not there. */
    t = charsmap_of("SentencePiece", 4 * ('a' + 1), unit, 'a' + 1, text, 5);
    check_becomes(t, "a", "b"); /* a unit that is not there is 0: the text at 0 */
    fl_text_tokenizer_free(t);
    t = charsmap_of("SentencePiece", 4 * 'a', unit, 'a', text, 5);
    check_becomes(t, "aab", "aab");
    fl_text_tokenizer_free(t);
    char as_unit[400] = "a\1"; /* where the unit would be: a leaf whose replacement is at 0x161 */
    as_unit[0x161] = 'b';
    t = charsmap_of("SentencePiece", 4 * 'a', unit, 'a', as_unit, sizeof as_unit);
    check_becomes(t, "aab", "aab");
    fl_text_tokenizer_free(t);
    t = charsmap_of("SentencePiece", 0, unit, 0, text, 5); /* no array: nothing is mapped */
    check_becomes(t, "aab", "aab");
    fl_text_tokenizer_free(t);
    static const struct { uint32_t array; int bytes; const char *error; } bad[] = {
        {4 * UNITS, 4, "its last replacement has no NUL"},
        {4 * UNITS, 0, "its last replacement has no NUL"},
        {4 * UNITS + 4, 0, "wrong size of its array"}, {4 * UNITS + 8, 5, "wrong size of its array"},
        {4 * UNITS + 1, 5, "wrong size of its array"},  {UINT32_MAX, 5, "wrong size of its array"}};
    for (int i = 0; i < 6; i++) {
        CHECK(!charsmap_of("Precompiled", bad[i].array, unit, UNITS, text, bad[i].bytes));
        if (!CHECK_ERROR(bad[i].error)) printf("  %d\n", i);
        fl_error_clear();
    }
    check_refused("{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}," UNIGRAM
                  "]}}",
                  "wrong size of its array");
    check_refused("{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A\"}," UNIGRAM "]}}",
                  "wrong size of its array");
    t = tokenizer_of("{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}," UNIGRAM
                     "]}}");
    CHECK(t && encoded(t, "ab", 2) == 2);
    fl_text_tokenizer_free(t);
    /* A key that never ends, and spaces that all go: work for each byte, though nothing is written. */
    static char long_text[20001];
    memset(long_text, 'a', sizeof long_text - 1);
    memset(unit, 0, sizeof unit);
    unit['a'] = 'a' | (uint32_t)'a' << 10; /* leads to itself */
    t = charsmap_of("SentencePiece", 4 * UNITS, unit, UNITS, text, 5);
    CHECK(t && encoded(t, long_text, 20000) == -1);
    CHECK_ERROR("expected at most 600 units of work per byte");
    fl_error_clear();
    fl_text_tokenizer_free(t);
    static char spaces[3000];
    memset(spaces, ' ', sizeof spaces - 1);
    memset(unit, 0, sizeof unit);
    unit['a'] = 'a' | 1u << 8 | 256u << 10, unit['a' ^ 256] = 1u << 31;
    t = charsmap_of("SentencePiece", 4 * UNITS, unit, UNITS, spaces, sizeof spaces);
    CHECK(t && encoded(t, long_text, 100) == 0);
    CHECK(t && encoded(t, long_text, 20000) == -1);
    CHECK_ERROR("expected at most 600 units of work per byte");
    fl_error_clear();
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* ---- patterns ---- */

/* A byte-level tokenizer that joins a b, b b and ab ab, with a Split by that pattern in front; NULL without
   PCRE2. */
static fl_text_tokenizer *split_by(const char *pattern, const char *behaviour) {
    char json[1000];
    snprintf(
        json, sizeof json,
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":%s,"
        "\"behavior\":\"%s\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"\xc3\xbf\":2,\"ab\":3,\"bb\":4,\"abab\":5},"
        "\"merges\":[\"a b\",\"b b\",\"ab ab\"]}}",
        pattern, behaviour);
    fl_text_tokenizer *t = tokenizer_of(json);
    if (!t) CHECK_ERROR("needs PCRE2"), fl_error_clear();
    return t;
}

TEST(patterns) {
    static const struct { const char *pattern, *behaviour, *text; int n, id[8]; } cases[] = {
        {"{\"String\":\"b\"}", "Isolated", "abab", 4, {0, 1, 0, 1}},
        {"{\"String\":\"ab\"}", "Isolated", "aabab", 3, {0, 3, 3}},
        {"{\"String\":\"ba\"}", "Isolated", "ababb", 4, {0, 1, 0, 4}},
        {"{\"String\":\"ba\"}", "Removed", "abab", 2, {0, 1}},
        {"{\"String\":\"bb\"}", "Isolated", "abb", 2, {0, 4}},
        {"{\"String\":\"bb\"}", "Isolated", "ab", 1, {3}},
        {"{\"String\":\"\"}", "Isolated", "ab", 1, {3}},
        {"{\"Regex\":\"b\"}", "Isolated", "abab\xff" "ab", 7, {0, 1, 0, 1, 2, 0, 1}},
        {"{\"Regex\":\"b+\"}", "MergedWithPrevious", "abbab", 3, {3, 1, 3}},
        {"{\"Regex\":\"^b\"}", "Isolated", "bb\xff" "bb", 4, {1, 1, 2, 4}},
        {"{\"Regex\":\"b$\"}", "Isolated", "bb\xff" "bb", 4, {4, 2, 1, 1}},
        {"{\"Regex\":\"a*\"}", "Isolated", "bbaabb", 4, {4, 0, 0, 4}}, /* the empty ones are passed over */
        {"{\"Regex\":\"(?<=a)b\"}", "Isolated", "a\xff" "babb", 6, {0, 2, 1, 0, 1, 1}},
        {"{\"Regex\":\"\\\\xff\"}", "Isolated", "ab\xff\xff" "ab", 4, {3, 2, 2, 3}},
    };
    static char text[20000];
    begin();
    fl_scope scope = fl_scope_begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_text_tokenizer *t = split_by(cases[i].pattern, cases[i].behaviour);
        fl_text_encoding e = {0};
        if (!t) continue;
        const int n = cases[i].n;
        CHECK(fl_text_encode(t, cases[i].text, (int64_t)strlen(cases[i].text), &e));
        bool equal = e.n == n;
        for (int k = 0; equal && k < n; k++) equal = e.id[k] == cases[i].id[k];
        if (!CHECK(equal)) {
            printf("  %s:", cases[i].pattern);
            for (int64_t k = 0; k < e.n; k++) printf(" %d", (int)e.id[k]);
            printf("\n");
        }
        fl_text_encoding_free(&e);
        fl_text_tokenizer_free(t);
    }
    /* The limit is for all matches of a text together, and for those that fail: each of these looks at all
       the letters behind its place, in one match or in many. */
    static const char *const expensive[] = {"{\"Regex\":\"a*c|a\"}", "{\"Regex\":\"a+(?=[bc])\"}",
                                            "{\"Regex\":\"a++(?=[bc])\"}", "{\"Regex\":\"(a+)+(?=[bc])\"}"};
    memset(text, 'a', sizeof text);
    for (int i = 0; i < 4; i++) {
        fl_text_tokenizer *t = split_by(expensive[i], "Isolated");
        if (!t) continue;
        CHECK_EQ_INT(encoded(t, text, i < 3 ? 100 : 10), i < 3 ? 100 : 10);
        CHECK_EQ_INT(encoded(t, text, sizeof text), -1);
        if (!CHECK_ERROR("expected at most 600 units of work per byte")) printf("  %s\n", expensive[i]);
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 5 ? 'a' : 'b';
    fl_text_tokenizer *t = split_by("{\"Regex\":\"a+|b+\"}", "Isolated");
    CHECK(!t || encoded(t, text, sizeof text) == sizeof text);
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* Symbols are always taken as a whole, and the text around them is normalised as one: the dummy prefix and
   the spaces next to them stay. As SentencePiece does, and the same tokenizer from its file. */
TEST(symbols_of_pieces) {
    static const char *const piece[] = {"<unk>", "<s>", "</s>", "<sep>", "\xe2\x96\x81", "a", "b",
                                        "\xe2\x96\x81" "b"};
    static const int32_t kind[] = {FL_TEXT_UNKNOWN, FL_TEXT_CONTROL, FL_TEXT_CONTROL, FL_TEXT_USER,
                                   FL_TEXT_NORMAL,  FL_TEXT_NORMAL,  FL_TEXT_NORMAL,  FL_TEXT_NORMAL};
    static const float score[] = {0, 0, 0, 0, -1, -2, -3, -2.5f};
    begin();
    fl_scope scope = fl_scope_begin();
    for (int bpe = 0; bpe < 2; bpe++) {
        fl_text_dictionary *d = fl_text_dictionary_new();
        CHECK(fl_text_dictionary_add_all(d, piece, 8));
        fl_text_tokenizer *t = fl_text_pieces(d, score, kind, (fl_text_pieces_opts){.bpe = bpe});
        for (int again = 0; again < 2 && CHECK(t); again++) {
            IDS(t, "<sep>", 4, 3);
            IDS(t, "<sep>a", 4, 3, 5);
            IDS(t, " <sep>  b ", 4, 3, 7);
            IDS(t, "a <sep> b", 4, 5, 4, 3, 7);
            IDS(t, "b<sep>b<sep> ", 7, 3, 6, 3);
            IDS(t, "</s>", 4, 0);
            if (!again) t = reloaded(t);
        }
        fl_text_tokenizer_free(t);
    }
    end(&scope);
}

/* White space of a regular expression is Unicode's White_Space, which U+180E left in Unicode 6.3, in whatever
   words: over all characters, the bytes that match. */
TEST(spaces_of_patterns) {
    static const struct { const char *pattern; bool spaces; } cases[] = {
        {"\\s", true},      {"[\\s]+", true},     {"[[:space:]]", true},  {"\\\\?\\s", true},
        {"\\S", false},     {"[^\\s]+", false},   {"[\\S]+", false},    {"[^[:space:]]+", false},
        {"(?:\\S+)", false}, {"[[:^space:]]+", false}};
    fl_data_text text = {0};
    int64_t spaces = 0;
    begin();
    fl_scope scope = fl_scope_begin();
    for (int32_t c = 1; c < 0x110000; c++) {
        char bytes[4];
        if (c >= 0xd800 && c < 0xe000) continue;
        const int n = fl_text_utf8_encode(bytes, c);
        CHECK(fl_data_text_put(&text, bytes, (size_t)n));
        if (fl_text_classes()[c] & FL_TEXT_WHITE_SPACE) spaces += n;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *pattern = cases[i].pattern;
        fl_text_pattern *p = fl_text_pattern_new(pattern, (int64_t)strlen(pattern), false, "test");
        int64_t left = INT64_MAX, bytes = 0;
        fl_text_matches m = {.pattern = p, .s = text.p, .n = text.n, .left = &left};
        if (!p) { /* without PCRE2 */
            fl_error_clear();
            continue;
        }
        while (fl_text_matches_next(&m) > 0) bytes += m.end - m.begin;
        if (!CHECK_EQ_INT(bytes, cases[i].spaces ? spaces : text.n - spaces)) printf("  %s\n", pattern);
        fl_text_matches_end(&m);
        fl_text_pattern_free(p);
    }
    fl_heap_free(text.p);
    end(&scope);
}

/* Unigram pieces: an index without one, scores that say never, and what is unknown. */
TEST(unigram_pieces) {
    static const double score[] = {-9, -1, -2, -1e30, -2.5, 0, -3};
    static const char *const piece[] = {"<unk>", "a", "b", "c", "ab", NULL, "<0x63>"};
    begin();
    fl_scope scope = fl_scope_begin();
    for (int bytes = 0; bytes < 2; bytes++) {
        fl_text_dictionary *d = fl_text_dictionary_new();
        for (int i = 0; i < 7; i++)
            CHECK(!piece[i] || fl_text_dictionary_add_at(d, piece[i], (int64_t)strlen(piece[i]), i));
        fl_text_model *m = fl_text_unigram(d, score, 0, bytes, false, "test");
        fl_text_tokenizer *t = fl_text_tokenizer_new(m, "{}", NULL, 0, "test");
        REQUIRE(t);
        IDS(t, "ab", 4); /* -2.5 > -3 */
        IDS(t, "ba", 2, 1);
        IDS(t, "aba", 4, 1);
        if (bytes) IDS(t, "acc", 1, 6, 6); /* c is never chosen */
        else IDS(t, "acc", 1, 0);
        if (bytes) IDS(t, "acd", 1, 0); /* d has no byte */
        CHECK_EQ_INT(encoded(t, "", 0), 0);
        fl_text_tokenizer_free(t);
    }
    /* An unknown character costs 10 more than the lowest score, which may be that of the unknown token: x and
       three letters, or pieces of two. */
    static const struct { double unk, xa, bc, abc; bool unknown;
    } costs[] = {{0, -20, -10.5, 0, true},
                 {0, -20, -9.5, 0, false},
                 {0, -9.5, -20, 0, false},
                 {-21, -20, -10.5, 0, false},
                 {1, 1, 1, 11.5, true},
                 {1, 1, 1, 10.5, false}};
    for (int i = 0; i < 6; i++) {
        char json[400];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",%g],[\"xa\",%g],"
                 "[\"bc\",%g],[\"abc\",%g],[\"z\",-1e30]]}}",
                 costs[i].unk, costs[i].xa, costs[i].bc, costs[i].abc);
        fl_text_tokenizer *t = tokenizer_of(json);
        REQUIRE(t);
        if (costs[i].unknown) IDS(t, "xabc", 0, 3);
        else IDS(t, "xabc", 1, 2);
        fl_text_tokenizer_free(t);
    }
    /* Text that spells the unknown token is that, and fuses with what is unknown; so does what a normalizer
       makes of an added token's text in another case, which the added token itself stays apart from. */
    fl_text_tokenizer *lower =
        tokenizer_of("{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[{\"id\":3,\"content\":"
                     "\"<UNK>\",\"special\":true}],\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":"
                     "[[\"<unk>\",0],[\"a\",-1],[\"k\",-2]]}}");
    REQUIRE(lower);
    IDS(lower, "<unk>", 0);
    IDS(lower, "a<Unk>k", 1, 0, 2);
    IDS(lower, "A<UNK>k", 1, 3, 2);
    IDS(lower, "x<unk><unk>a", 0, 1);
    IDS(lower, "<unk><UNK>x<unk>", 0, 3, 0);
    fl_text_tokenizer_free(lower);
    for (int unk = 6; unk <= 7; unk++) {
        fl_text_dictionary *d = fl_text_dictionary_new();
        for (int i = 0; i < 7; i++)
            CHECK(!piece[i] || fl_text_dictionary_add_at(d, piece[i], (int64_t)strlen(piece[i]), i));
        fl_text_model *m = fl_text_unigram(d, score, unk, false, false, "test");
        CHECK((m != NULL) == (unk == 6));
        if (!m) CHECK_ERROR("test: unk_id is out of range: got 7, expected < 7"), fl_error_clear();
        fl_text_model_free(m);
    }
    end(&scope);
}

/* Ids that show nothing do not wait for ever: each one's cost stays the same. */
TEST(silent_ids_are_not_kept) {
    begin();
    fl_scope scope = fl_scope_begin();
    fl_text_tokenizer *t = tokenizer_of("{\"decoder\":{\"type\":\"CTC\",\"pad_token\":\"?\"}," UNIGRAM "]}}");
    REQUIRE(t);
    fl_text_stream s = {.tokenizer = t};
    fl_data_text out = {0};
    int64_t n;
    for (int i = 0; i < 3000; i++) {
        const int32_t id = i == 0 ? 1 : i == 1000 ? 2 : i == 2000 || i == 2500 ? 1 : 0;
        const char *p = fl_text_stream_add(&s, id, &n);
        CHECK(p && n <= 1 && fl_data_text_put(&out, p, (size_t)n) && s.n_ <= 200);
    }
    const char *p = fl_text_stream_end(&s, &n);
    CHECK(p && n == 0 && same(out.p, out.n, "abaa"));
    fl_heap_free(out.p);
    fl_text_stream_free(&s);
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* Doubling merges up to a token of 4,096 spaces, whose halves have 2,048 characters of two bytes each in the
   file: as strings and as pairs of tokenizer.json, and as lines of merges.txt. */
TEST(long_merges) {
    static const char pipeline[] = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                   "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"vocab\":";
    enum { DOUBLED = 12, LONGEST = 1 << DOUBLED };
    static char spaces[LONGEST], mark[2 * LONGEST + 1];
    begin();
    fl_scope scope = fl_scope_begin();
    memset(spaces, ' ', sizeof spaces);
    for (int i = 0; i < LONGEST; i++) memcpy(mark + 2 * i, "\xc4\xa0", 2);
    for (int form = 0; form < 3; form++) {
        fl_data_text vocab = {0}, merges = {0};
        for (int i = 0; i <= DOUBLED; i++)
            CHECK(fl_data_text_print(&vocab, "%s\"%.*s\":%d", i ? "," : "{", 2 << i, mark, i));
        for (int i = 0; i < DOUBLED; i++)
            CHECK(fl_data_text_print(&merges,
                                     form == 0   ? "%s\"%.*s %.*s\""
                                     : form == 1 ? "%s[\"%.*s\",\"%.*s\"]"
                                                 : "%s%.*s %.*s",
                                     !i ? "" : form == 2 ? "\n" : ",", 2 << i, mark, 2 << i, mark));
        CHECK(fl_data_text_print(&vocab, "}"));
        fl_text_tokenizer *t;
        if (form == 2) {
            disk_write("v.json", vocab.p, (size_t)vocab.n);
            disk_write("m.txt", merges.p, (size_t)merges.n);
            t = fl_text_gpt2_load("v.json", "m.txt");
        } else {
            fl_data_text json = {0};
            CHECK(fl_data_text_print(&json, "%s%s,\"merges\":[%s]}}", pipeline, vocab.p, merges.p));
            disk_write("t.json", json.p, (size_t)json.n);
            t = fl_text_tokenizer_load("t.json");
            fl_heap_free(json.p);
        }
        CHECK_NO_ERROR();
        fl_text_encoding e = {0};
        if (CHECK(t && fl_text_encode(t, spaces, LONGEST, &e)))
            CHECK(e.n == 1 && e.id[0] == DOUBLED);
        fl_text_encoding_free(&e);
        fl_text_tokenizer_free(t);
        fl_heap_free(vocab.p);
        fl_heap_free(merges.p);
    }
    end(&scope);
}

/* The last line of Whisper's gpt2.tiktoken, "= 50256": a token without text, which only ids show. */
TEST(tiktoken_empty_token) {
    static const char ranks[] = "YQ== 0\nYg== 1\nYWI= 2\n= 3\n";
    begin();
    fl_scope scope = fl_scope_begin();
    disk_write("t.tiktoken", ranks, sizeof ranks - 1);
    fl_text_tokenizer *t = fl_text_tiktoken_load("t.tiktoken", FL_TEXT_SPLIT_GPT2, NULL, 0);
    CHECK_NO_ERROR();
    REQUIRE(t);
    for (int again = 0; again < 2 && t; again++) {
        fl_text_encoding e = {0};
        fl_data_text out = {0};
        int64_t n = -1;
        CHECK_EQ_INT(fl_text_vocab_size(t), 4);
        CHECK(fl_text_token_of(t, 3, &n) && n == 0);
        CHECK(fl_text_encode(t, "aab", 3, &e) && e.n == 2 && e.id[0] == 0 && e.id[1] == 2);
        CHECK(fl_text_decode(t, (const int32_t[]){3, 2, 3}, 3, true, &out) && same(out.p, out.n, "ab"));
        fl_text_encoding_free(&e);
        fl_heap_free(out.p);
        if (!again) t = reloaded(t);
    }
    fl_text_tokenizer_free(t);
    end(&scope);
}

/* ---- malformed files ---- */

/* Undoes \\n, \\t, \\xff and \\\\ in place; the bytes. */
static int64_t unescape(char *s) {
    char *to = s, *const start = s;
    for (; *s; s++) {
        if (*s != '\\') *to++ = *s;
        else if (*++s == 'x') *to++ = (char)strtol((char[]){s[1], s[2], 0}, NULL, 16), s += 2;
        else *to++ = *s == 'n' ? '\n' : *s == 't' ? '\t' : *s;
    }
    return to - start;
}

/* "12:ff00 40:01": bytes from these offsets on; "-7": so many are left. */
static void change(char *bytes, int64_t *n, const char *edits) {
    if (*edits == '-') *n = strtol(edits + 1, NULL, 10);
    for (char *p = (char *)(uintptr_t)edits; *edits != '-' && *p;) {
        for (long at = strtol(p, &p, 10), i = (p++, 0); *p && *p != ' '; p += 2, i++)
            bytes[at + i] = (char)strtol((char[]){p[0], p[1], 0}, NULL, 16);
        if (*p) p++;
    }
}

/* Whether a file of that kind with that content opens: the text itself, or changes of a golden file. */
static bool opens(const char *kind, char *body) {
    const bool gguf = !strcmp(kind, "gguf"), kenlm = !strcmp(kind, "kenlm"), sp = !strcmp(kind, "sp");
    char *space = strchr(body, ' '), *owned = NULL;
    int64_t n = 0;
    bool ok;
    if (gguf || kenlm || sp) {
        if (!gguf) *space = 0;
        owned = golden(gguf ? "../lm/llama.gguf" : body, &n);
        if (!owned) return true;
        change(owned, &n, gguf ? body : space + 1);
    } else n = unescape(body);
    const char *bytes = owned ? owned : body;
    if (!strcmp(kind, "tokens")) { /* a header of safetensors, and how many bytes follow */
        char file[2000] = {0};
        while (body[--n] != '|') {}
        for (int i = 0; i < 8; i++) file[i] = (char)(n >> 8 * i);
        memcpy(file + 8, body, (size_t)n);
        fl_data_replace("test", "t.tokens", file, (size_t)(8 + n + strtol(body + n + 1, NULL, 10)));
        fl_text_tokens *t =
            fl_text_tokens_open("t.tokens", .tokenizer = strstr(body, "other") ? "mine" : NULL);
        ok = t != NULL;
        fl_text_tokens_free(t);
        return ok;
    }
    const char *path = gguf ? "t.gguf" : kenlm ? "t.bin" : sp ? "t.model" : kind[0] == 'g' ? "v.json"
                       : !strcmp(kind, "tiktoken") ? "t.tiktoken" : "t.json";
    if (!strcmp(path, "v.json")) {
        const char *bar = memchr(bytes, '|', (size_t)n);
        fl_data_replace("test", "m.txt", bar + 1, (size_t)(bytes + n - bar - 1));
        n = bar - bytes;
    }
    fl_data_replace("test", path, bytes, (size_t)n);
    fl_heap_free(owned);
    fl_data_file *f = gguf ? fl_text_open_gguf(path) : NULL;
    fl_text_ngram *m = kenlm ? fl_text_ngram_load(path) : NULL;
    fl_text_tokenizer *t = gguf || kenlm             ? NULL
                           : !strcmp(path, "v.json") ? fl_text_gpt2_load(path, "m.txt")
                           : !strcmp(path, "t.tiktoken")
                               ? fl_text_tiktoken_load(path, FL_TEXT_SPLIT_CL100K, NULL, 0)
                               : fl_text_tokenizer_open(path);
    ok = f || m || t;
    fl_data_close(f), fl_text_ngram_free(m), fl_text_tokenizer_free(t);
    return ok;
}

/* A line each: kind, content, the error. Seven formats of 40 or more files that are none. */
TEST(malformed_files) {
    static char kind[20];
    int64_t n;
    int of_kind = 0, kinds = 0, lines = 0;
    begin();
    fl_scope scope = fl_scope_begin();
    char *tsv = golden("malformed.tsv", &n);
    REQUIRE(tsv);
    for (char *line = tsv, *stop; line && *line; line = stop) {
        stop = strchr(line, '\n');
        *stop++ = 0;
        char *body = strchr(line, '\t'), *error = body ? strchr(body + 1, '\t') : NULL;
        REQUIRE(error);
        *body++ = 0, *error++ = 0;
        error[unescape(error)] = 0;
        if (strcmp(kind, line)) kinds++, of_kind = 0;
        snprintf(kind, sizeof kind, "%s", line), of_kind++, lines++;
        const bool opened = opens(kind, body);
        if (!CHECK(!opened) || !CHECK_ERROR(error)) printf("%s %d: %s\n", kind, of_kind, error);
        fl_error_clear();
    }
    CHECK(kinds == 7 && lines >= 320);
    fl_heap_free(tsv);
    end(&scope);
}

/* The pair of the highest score is joined until there is none, as llama2.c does. */
TEST(llama2c_vocabulary) {
    static const struct { const char *text; float score; } pieces[] = {
        {" ", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {" a", -1}, {"ab", -0.5f}, {"bc", -2}, {" ab", -3},
        {"abc", -4}, {"\xc3\xa9", -9}};
    enum { SPACE = 259, A, B, C, SPACE_A, AB, BC, SPACE_AB, ABC, E_ACUTE, N };
    begin();
    fl_scope scope = fl_scope_begin();
    fl_data_text file = {0};
    int32_t n = 27; /* the longest piece, which nobody needs */
    CHECK(fl_data_text_put(&file, &n, 4));
    for (int i = 0; i < N; i++) {
        char text[16];
        if (i < 3) snprintf(text, sizeof text, "%s", i == 0 ? "<unk>" : i == 1 ? "\n<s>\n" : "\n</s>\n");
        else if (i < SPACE) snprintf(text, sizeof text, "<0x%02X>", i - 3);
        else snprintf(text, sizeof text, "%s", pieces[i - SPACE].text);
        const float score = i < SPACE ? 0 : pieces[i - SPACE].score;
        n = (int32_t)strlen(text);
        CHECK(fl_data_text_put(&file, &score, 4) && fl_data_text_put(&file, &n, 4) &&
              fl_data_text_put(&file, text, (size_t)n));
    }
    disk_write("v", file.p, (size_t)file.n);
    fl_text_tokenizer *t = fl_text_llama2c_load("v", N);
    REQUIRE(t);
    IDS(t, "abc", 1, SPACE_AB, C);
    IDS(t, "bca", 1, SPACE, BC, A);
    IDS(t, "a  b!", 1, SPACE_A, SPACE, SPACE, B, 3 + '!');
    IDS(t, "\xc3\xa9\xc3\xa8", 1, SPACE, E_ACUTE, 3 + 0xc3, 3 + 0xa8);
    CHECK(decodes(t, "abc  ab, \xf0\x9f\x99\x82 \xe4\xbd\xa0"));
    fl_text_tokenizer_free(t);
    fl_text_tokenizer_free(fl_text_llama2c_load("v", 0)); /* all that are there */
    CHECK_NO_ERROR();
    disk_write("v", file.p, (size_t)file.n - 1);
    CHECK(!fl_text_llama2c_load("v", 0) && CHECK_ERROR(": length of a piece exceeds the file: got 2"));
    CHECK(!fl_text_llama2c_load("v", N + 1) && CHECK_ERROR("length of a piece exceeds the file: got 2"));
    disk_write("v", file.p, (size_t)file.n - 10);
    CHECK(!fl_text_llama2c_load("v", N) && CHECK_ERROR("ends within a piece, or has too few: got 268"));
    fl_heap_free(file.p);
    end(&scope);
}

/* ---- n-grams ---- */

/* A line of ngram.tsv: words, and the score of each and of the end. */
static void check_scores(const fl_text_ngram *m, const char *words, const char *words_end,
                         const char *scores) {
    fl_text_state s;
    int64_t n;
    char *end;
    double want = strtod(scores, &end), got;
    fl_text_ngram_start(m, true, &s);
    for (const char *p = words, *word; (word = fl_text_field(&p, words_end, &n));) {
        got = fl_text_ngram_score(m, &s, fl_text_ngram_word(m, word, n), &s);
        if (!CHECK_NEAR(got, want, 2e-5 + 1e-6 * fabs(want)))
            printf("  %.*s at %.*s\n", (int)(words_end - words), words, (int)n, word);
        want = strtod(end, &end);
    }
    CHECK_NEAR(fl_text_ngram_score(m, &s, fl_text_ngram_word(m, "</s>", 4), &s), want,
               2e-5 + 1e-6 * fabs(want));
}

TEST(ngrams_as_kenlm) {
    begin();
    fl_scope scope = fl_scope_begin();
    int64_t n;
    char *tsv = golden("ngram.tsv", &n);
    REQUIRE(tsv);
    static const char *const kind[] = {"arpa", "nounk", "probing", "trie", "quant", "array", "both"};
    for (int k = 0; k < 7; k++) {
        char file[40];
        snprintf(file, sizeof file, k == 0 ? "ngram.arpa" : k == 1 ? "nounk.arpa" : "ngram.%s", kind[k]);
        if (!golden_to_disk(file, "m")) continue;
        fl_text_ngram *m = fl_text_ngram_load("m");
        int lines = 0;
        CHECK_NO_ERROR();
        for (const char *p = tsv, *stop; m && p < tsv + n; p = stop + 1) {
            stop = strchr(p, '\n');
            const char *words = strchr(p, '\t') + 1, *scores = strchr(words, '\t') + 1;
            if ((size_t)(words - 1 - p) != strlen(kind[k]) || memcmp(p, kind[k], strlen(kind[k]))) continue;
            check_scores(m, words, scores - 1, scores);
            lines++;
        }
        CHECK_EQ_INT(lines, 30);
        CHECK_EQ_INT(m ? fl_text_ngram_order(m) : 0, k == 1 ? 2 : 4);
        fl_text_ngram_free(m);
    }
    fl_heap_free(tsv);
    end(&scope);
}

/* What the definition says: the longest n-gram that is stored, and the back-offs of the longer contexts. */
static double brute(const char *const (*gram)[2], int n, const char *words) {
    char context[100];
    const char *tail = words;
    for (int i = 0; i < n; i++)
        if (!strcmp(gram[i][0], words)) return strtod(gram[i][1], NULL);
    if (!(tail = strchr(words, ' '))) return -100;
    snprintf(context, sizeof context, "%.*s", (int)(strrchr(words, ' ') - words), words);
    double backoff = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(gram[i][0], context) && strchr(gram[i][1], '\t'))
            backoff = strtod(strchr(gram[i][1], '\t'), NULL);
    return backoff + brute(gram, n, tail + 1);
}

/* Pruned: "b c" and the context "a b" are not there, "a b c" is. */
TEST(ngrams_with_holes) {
    begin();
    fl_scope scope = fl_scope_begin();
    static const char *const gram[][2] = {
        {"<s>", "-99\t-0.5"},    {"</s>", "-1"},     {"a", "-0.7\t-0.3"},
        {"b", "-0.8\t-0.2"},     {"c", "-0.9"},      {"<s> a", "-0.4\t-0.1"},
        {"c a", "-0.35\t-0.15"}, {"a b c", "-0.25"}, {"<s> a c", "-0.45"}};
    static const int order[] = {5, 2, 2};
    fl_data_text t = {0};
    const char *head = "words in front\n\\data\\\nngram 1=5\nngram 2=2\nngram 3=2\n";
    CHECK(fl_data_text_put(&t, head, strlen(head)));
    for (int k = 0, i = 0; k < 3; k++) {
        char line[100];
        snprintf(line, sizeof line, "\n\\%d-grams:\n", k + 1);
        fl_data_text_put(&t, line, strlen(line));
        for (int e = i + order[k]; i < e; i++) {
            const char *tab = strchr(gram[i][1], '\t');
            snprintf(line, sizeof line, "%.*s\t%s%s\n", (int)(tab ? tab - gram[i][1] : 20),
                     gram[i][1], gram[i][0], tab ? tab : "");
            fl_data_text_put(&t, line, strlen(line));
        }
    }
    fl_data_text_put(&t, "\\end\\\n", 6);
    disk_write("m", t.p, (size_t)t.n);
    fl_text_ngram *m = fl_text_ngram_load("m");
    CHECK_NO_ERROR();
    REQUIRE(m);
    static const char *const word[] = {"a", "b", "c", "</s>", "x"};
    for (int code = 0; code < 5 * 5 * 5 * 5; code++) { /* all texts of four words */
        fl_text_state s;
        char words[100] = "<s>";
        fl_text_ngram_start(m, true, &s);
        for (int i = 0, rest = code; i < 4; i++, rest /= 5) {
            const char *w = word[rest % 5];
            const double got = fl_text_ngram_score(m, &s, fl_text_ngram_word(m, w, (int64_t)strlen(w)), &s);
            strcat(strcat(words, " "), strcmp(w, "x") ? w : "<unk>");
            const char *last = words + strlen(words);
            for (int spaces = 0; last > words && (spaces += *last == ' ') < 3;) last--;
            if (!CHECK_NEAR(got, brute(gram, 9, last == words ? words : last + 1), 1e-6))
                printf("  %s\n", words);
        }
    }
    fl_text_ngram_sum sum = {0};
    fl_text_ngram_score_text(m, "a c\nx\n", 6, &sum);
    CHECK_EQ_INT(sum.words, 3);
    CHECK_EQ_INT(sum.unknown, 1);
    CHECK_NEAR(sum.log10, -0.4 - 0.45 - 1 - 100.5 - 1, 1e-5);
    fl_text_ngram_free(m);
    fl_heap_free(t.p);
    end(&scope);
}

TEST(arpa_malformed) {
    begin();
    fl_scope scope = fl_scope_begin();
    static const struct { const char *text, *error;
    } cases[] = {
        {"", "line 0: expected \\data\\"},
        {"ngram 1=1\n", "line 1: expected \\data\\"},
        {"\\data\\\n", "expected \"ngram 1=COUNT\""},
        {"\\data\\\nngram 2=1\n", "line 2: expected \"ngram N=COUNT\""},
        {"\\data\\\nngram 1=\n", "line 2: invalid count, or one too large for the file"},
        {"\\data\\\nngram 1=1e15\n", "line 2: invalid count"},
        {"\\data\\\nngram 1=1e300\n", "line 2: invalid count"},
        {"\\data\\\nngram 1=-1\n", "line 2: invalid count"},
        {"\\data\\\nngram 1=nan\n", "line 2: invalid count"},
        {"\\data\\\nngram 1=1\n\n\\2-grams:\n", "line 4: expected the section"},
        {"\\data\\\nngram 1=1\n\\1-grams:\nx a\n\\end\\\n", "line 4: expected a log probability"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n0.5 a\n\\end\\\n", "line 4: log probability must be <= 0"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1\n\\end\\\n", "line 4: too few words"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a x\n\\end\\\n",
         "line 4: invalid back-off weight"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a -1 -1\n\\end\\\n", "line 4: unexpected text after"},
        {"\\data\\\nngram 1=2\n\\1-grams:\n-1 a\n-1 a\n\\end\\\n", "line 5: duplicate n-gram"},
        {"\\data\\\nngram 1=2\n\\1-grams:\n-1 <unk>\n-1 <unk>\n\\end\\\n",
         "line 5: duplicate n-gram"},
        {"\\data\\\nngram 1=2\n\\1-grams:\n-1 a\n\\end\\\n", "line 5: fewer n-grams"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a\n-1 b\n\\end\\\n", "line 5: more n-grams"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a\n", "line 4: expected \\end\\"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a\n\\end\\\n", "has no '<s>'"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 <s>\n\\end\\\n", "has no '</s>'"},
        {"\\data\\\nngram 1=1\nngram 2=1\n\\1-grams:\n-1 a\n\\2-grams:\n-1 a b\n\\end\\\n",
         "line 7: a word is not a 1-gram"},
        {"\\data\\\nngram 1=1\nngram 2=2\n\\1-grams:\n-1 a\n\\2-grams:\n-1 a a\n-1 a a\n\\end\\\n",
         "line 8: duplicate n-gram"},
        {"\\1-grams:\n-1 a\n\\end\\\n", "line 3: expected \\data\\"},
        {"\\data\\\nngram 1=1\nngram 1=1\n", "line 3: expected \"ngram N=COUNT\""},
        {"\\data\\\nngram 1\n", "line 2: expected \"ngram N=COUNT\""},
        {"\\data\\\nngram x=1\n", "line 2: expected \"ngram N=COUNT\""},
        {"\\data\\\nngram 0=1\n", "line 2: expected \"ngram N=COUNT\""},
        {"\\data\\\nngram 1=0\nngram 2=0\nngram 3=0\nngram 4=0\nngram 5=0\nngram 6=0\nngram 7=0\nngram 8=0\n"
         "ngram 9=0\n",
         "line 10: expected \"ngram N=COUNT\" of the next order, 8 at most"},
        {"\\data\\\nngram 1=1.5\n                ", "line 2: invalid count"},
        {"\\data\\\nngram 1=\xff\n", "line 2: invalid count"},
        {"\\data\\\nngram 1=0\n", "line 2: expected the section"},
        {"\\data\\\nngram 1=0\n\\1-gram:\n", "line 3: expected the section"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n\\end\\\n", "line 4: fewer n-grams"},
        {"\\data\\\nngram 1=0\n\\1-grams:\n\\end\\\n", "has no '<s>'"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a\n\\2-grams:\n", "line 5: expected \\end\\"},
        {"\\data\\\nngram 1=1\n\\1-grams:\n-1 a 1e99\n\\end\\\n",
         "line 4: invalid back-off weight"},
        {"\\data\\\nngram 1=3\nngram 2=1\n\\1-grams:\n-1 a\n-1 <s>\n-1 </s>\n\\end\\\n",
         "line 8: expected the section"},
        {"\\data\\\nngram 1=1\nngram 2=1\n\\1-grams:\n-1 a\n\\2-grams:\n-1 a\n", "line 7: too few words"},
        {"mmap lm http://kheafield.com/code incomplete\n", "got \"incomplete\""},
        {"mmap lm http://kheafield.com/code format version 4\n", "got \"format version 4\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        disk_write("m", cases[i].text, strlen(cases[i].text));
        memory_mark();
        CHECK(!fl_text_ngram_load("m"));
        if (!CHECK_ERROR(cases[i].error)) printf("  %s", cases[i].text);
        memory_bounded(strlen(cases[i].text), 16);
    }
    end(&scope);
}

/* Over all words, after any context, probabilities are one in all; and a value by hand. */
TEST(ngram_training) {
    begin();
    fl_scope scope = fl_scope_begin();
    static const char text[] = "a b c a b\nb c a\na a b c c\nc b a b c\na b\n";
    static const char *const word[] = {"a", "b", "c", "</s>", "<unk>"};
    for (int order = 1; order <= 4; order++)
        for (int prune = 0; prune < 2; prune++) {
            CHECK(fl_text_ngram_train(text, sizeof text - 1, "m", .order = order,
                                      .prune = {0, prune, prune, prune}));
            fl_text_ngram *m = fl_text_ngram_load("m");
            CHECK_NO_ERROR();
            if (!CHECK(m)) continue;
            for (int code = 0; code < 5 * 5 * 5; code++) {
                fl_text_state s, to;
                fl_text_ngram_start(m, true, &s);
                for (int i = 0, rest = code; i < 3; i++, rest /= 5)
                    if (rest % 5 < 3)
                        fl_text_ngram_score(m, &s, fl_text_ngram_word(m, word[rest % 5], 1), &s);
                double sum = 0;
                for (int i = 0; i < 5; i++)
                    sum +=
                        pow(10, fl_text_ngram_score(
                                    m, &s, fl_text_ngram_word(m, word[i], (int64_t)strlen(word[i])),
                                    &to));
                if (!CHECK_NEAR(sum, 1, 1e-5))
                    printf("  order %d, pruned %d, context %d\n", order, prune, code);
            }
            fl_text_ngram_free(m);
        }
    CHECK(fl_text_ngram_train("x\nx\ny\n", 6, "m", .order = 1));
    fl_text_ngram *m = fl_text_ngram_load("m");
    fl_text_state s;
    fl_text_ngram_start(m, true, &s);
    /* counts x 2, y 1, </s> 3: n1 = n2 = n3 = 1, so Y = 1/3, D1 = 1/3, D2 = 1, D3 = 3; left (1/3 + 1 + 3) /
       6, for 4 words */
    CHECK_NEAR(fl_text_ngram_score(m, &s, fl_text_ngram_word(m, "x", 1), &s),
               log10((2 - 1 + (1.0 / 3 + 1 + 3) / 4) / 6), 1e-6);
    fl_text_ngram_free(m);
    CHECK(!fl_text_ngram_train("a <s>\n", 6, "m") && CHECK_ERROR("must not contain <s> or </s>"));
    CHECK(!fl_text_ngram_train("a", 1, "m", .order = 9) && CHECK_ERROR("got 9, expected 1 to 8"));
    CHECK(!fl_text_ngram_train("", 0, "m") && CHECK_ERROR("got 0 bytes"));
    end(&scope);
}

/* ---- damaged files ---- */

/* Opens the file "m", of that kind, in the memory that one of that size may take, and uses it; whether it is
   one. */
static bool use_file(char kind, int64_t size) {
    static const char text[] = "low the cat \xc3\xa9\xff 12";
    fl_text_encoding e = {0};
    fl_data_text back = {0};
    fl_text_tokenizer *t = NULL;
    bool ok = false;
    memory_mark();
    if (kind == 'n') {
        fl_text_ngram *m = fl_text_ngram_load("m");
        memory_bounded((size_t)size, 16);
        fl_text_ngram_sum sum = {0};
        if (m) fl_text_ngram_score_text(m, "the cat sees a red dog and\nquiet", 31, &sum);
        if ((ok = m != NULL)) CHECK(sum.words == 8);
        fl_text_ngram_free(m);
        return ok;
    }
    if (kind == 't') {
        fl_text_tokens *tokens = fl_text_tokens_open("m", .vocabulary = 300);
        memory_bounded((size_t)size, 16);
        int64_t id[4], begin, end;
        if ((ok = tokens != NULL)) {
            const int64_t n = fl_text_tokens_count(tokens);
            for (int64_t i = 0; i + 4 <= n; i += 4)
                if (fl_text_tokens_read(tokens, i, 4, id)) CHECK(id[0] >= 0 && id[0] < 300 && id[3] < 300);
            for (int64_t i = 0; i < fl_text_tokens_documents(tokens); i++)
                if (fl_text_tokens_span(tokens, i, &begin, &end))
                    CHECK(begin >= 0 && begin <= end && end <= n);
            fl_error_clear();
        }
        fl_text_tokens_free(tokens);
        return ok;
    }
    t = kind == 'j'   ? fl_text_tokenizer_load("m")
        : kind == 's' ? fl_text_sentencepiece_load("m")
        : kind == 'w' ? fl_text_wordpiece_load("m", false)
        : kind == 'l' ? fl_text_llama2c_load("m", 260)
                      : fl_text_tiktoken_load("m", FL_TEXT_SPLIT_CL100K, NULL, 0);
    ok = t != NULL;
    memory_bounded((size_t)size, 16);
    if (t && fl_text_encode(t, text, sizeof text - 1, &e)) {
        for (int64_t i = 0; i < e.n; i++)
            CHECK(e.id[i] >= 0 && e.id[i] < fl_text_vocab_size(t) && e.end[i] < (int64_t)sizeof text);
        fl_text_decode(t, e.id, e.n, true, &back);
    }
    if (t) fl_error_clear();
    fl_text_encoding_free(&e);
    fl_heap_free(back.p);
    fl_text_tokenizer_free(t);
    return ok;
}

/* A file of llama2.c, of ranks, of token ids: into "m". */
static void write_small(char kind) {
    fl_data_text t = {0};
    if (kind == 'l') {
        const int32_t longest = 4;
        CHECK(fl_data_text_put(&t, (const char *)&longest, 4));
        for (int32_t i = 0; i < 260; i++) {
            char text[8];
            const float score = (float)-i;
            const int32_t n = i < 3 || i == 259 ? snprintf(text, sizeof text, "<%d>", (int)i % 256)
                                                : snprintf(text, sizeof text, "%c", i - 3 ? i - 3 : ' ');
            CHECK(fl_data_text_put(&t, (const char *)&score, 4) &&
                  fl_data_text_put(&t, (const char *)&n, 4) && fl_data_text_put(&t, text, (size_t)n));
        }
    } else if (kind == 'k') {
        char line[100];
        for (int i = 0; i < 256; i++) {
            static const char d[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            snprintf(line, sizeof line, "%c%c== %d\n", d[i >> 2], d[(i & 3) << 4], i);
            CHECK(fl_data_text_put(&t, line, strlen(line)));
        }
        CHECK(fl_data_text_put(&t, "bG93 256\n", 9));
    } else {
        int64_t ids[200], starts[] = {0, 20, 20, 150};
        for (int i = 0; i < 200; i++) ids[i] = i * 7 % 300;
        CHECK(fl_text_tokens_save("m", fl_from_host(ids, FL_SHAPE(200), FL_I64),
                                  fl_from_host(starts, FL_SHAPE(4), FL_I64), "a tokenizer"));
        return;
    }
    disk_write("m", t.p, (size_t)t.n);
    fl_heap_free(t.p);
}

/* Files of four lines, each changed in each of these ways: % is what the line begins with, and the digit in
   front says how many lines behind it the error is. Dictionaries with counts (c) and with spellings (s),
   vocab.txt (v), ranks of tiktoken (k). */
static const struct { char kind; const char *who, *error, *line[4], *change[12];
} of_lines[] = {
    {'c',
     "fl_text_dictionary_load",
     "expected a count after '%'",
     {"the 12", "of 7", "to 5", "and 3"},
     {"0%", "0% x", "0% -1", "0% +1", "0% 1.5", "0% 1e3", "0% 0x10", "0% 12a", "0% 9999999999999999999",
      "0% '1'", "0% \xd9\xa1 2", "0%\t,5"}},
    {'c',
     "fl_text_dictionary_load",
     "duplicate entry '%'",
     {"the 12", "of 7", "to 5", "and 3"},
     {"1% 1\n% 1", "2% 1\n\n%\t2"}},
    {'s',
     "fl_text_dictionary_load",
     "duplicate entry '%'",
     {"the The", "of", "to 2", "and & u."},
     {"0% %", "0% x %", "1%\ty  z\n\t% w"}},
    {'v',
     "fl_text_wordpiece_load",
     "duplicate token '%'",
     {"[UNK]", "[CLS]", "##a", "b"},
     {"1%\n%", "1%\r\n%", "2%\nx\n%\ny", "3p\nq\n%\n%", "2%\n\xff\n%", "1%\n%\n%", "4r\n%\r\n\r\ns\n%",
      "2%\n \n%", "2%\n%x\n%", "2%\nX%\n%", "3%\r\n%\r\r\n1\n%\r\n", "2\t\n%\n%"}},
    {'k',
     "fl_text_tiktoken_load",
     "expected a token in base64 and its rank",
     {"YQ== 0", "Yg== 1", "Yw== 2", "ZA== 3"},
     {"0%", "0% x", "0% -1", "0% 1.5", "0% 1000", "0% nan", "0== 1", "0!Q== 1", "0Y 1", "0YQ= 1", "0%= 1",
      "0==== 1"}},
    {'k',
     "fl_text_tiktoken_load",
     "duplicate token or rank",
     {"YQ== 0", "Yg== 1", "Yw== 2", "ZA== 3"},
     {"1ZQ== 5\n% 5", "1% 6\n% 7"}},
};

static bool lines_open(char kind, const char *path) {
    fl_text_dictionary *d = kind == 'c'   ? fl_text_dictionary_load(path, .counts = true)
                            : kind == 's' ? fl_text_dictionary_load(path, .min_count = 0) : NULL;
    fl_text_tokenizer *t = kind == 'v'   ? fl_text_wordpiece_load(path, true)
                           : kind == 'k' ? fl_text_tiktoken_load(path, FL_TEXT_SPLIT_GPT2, NULL, 0) : NULL;
    const bool ok = d || t;
    fl_text_dictionary_free(d), fl_text_tokenizer_free(t);
    return ok;
}

/* Appends a text with % replaced by the first field of a line. */
static void put_with(char *out, const char *format, const char *line) {
    for (out += strlen(out); *format; format++)
        if (*format == '%') out += sprintf(out, "%.*s", (int)strcspn(line, " "), line);
        else *out++ = *format, *out = 0;
}

TEST(malformed_lines) {
    begin();
    fl_scope scope = fl_scope_begin();
    for (size_t k = 0; k < sizeof of_lines / sizeof *of_lines; k++)
        for (int line = 0; line < 4; line++)
            for (int c = -1; c < 12 && (c < 0 || of_lines[k].change[c]); c++) { /* -1: as it is */
                char body[1000] = "", error[300];
                const char *change = c < 0 ? "0" : of_lines[k].change[c];
                for (int i = 0; i < 4; i++) {
                    put_with(body, c >= 0 && i == line ? change + 1 : of_lines[k].line[i],
                             of_lines[k].line[i]);
                    strcat(body, "\n");
                }
                disk_write("m", body, strlen(body));
                snprintf(error, sizeof error, "%s: m: line %d: ", of_lines[k].who, line + 1 + *change - '0');
                put_with(error, of_lines[k].error, of_lines[k].line[line]);
                const bool opened = lines_open(of_lines[k].kind, "m");
                if (c < 0 ? !CHECK(opened && !fl_error()) : !CHECK(!opened) || !CHECK_ERROR(error))
                    printf("  %c %d, line %d, change %d: %s\n", of_lines[k].kind, (int)k, line, c, error);
                fl_error_clear();
            }
    static const char *const unk[] = {"",       "[unk]\n", " [UNK]\n", "[UNK] \n",
                                      "[UNK\n", "UNK]\n",  "[UNK]]\n", "<unk>\n"};
    for (size_t i = 0; i < sizeof unk / sizeof *unk; i++) {
        disk_write("m", unk[i], strlen(unk[i]));
        CHECK(!fl_text_wordpiece_load("m", false));
        CHECK_ERROR("fl_text_wordpiece_load: m: the unknown token '[UNK]' is not in the vocabulary");
        fl_error_clear();
    }
    end(&scope);
}

/* llama2.c's file of write_small('l') with four bytes changed, or cut off: 48 of them, and each names a
   place. */
TEST(malformed_llama2c) {
    static const uint32_t lengths[] = {0xffffffff, 0x80000000, 0x7fffffff, 4000}, /* none fits */
        scores[] = {0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000, 0x74000000}; /* NaN, infinite, 4e31 */
    char what[100];
    size_t size;
    begin();
    fl_scope scope = fl_scope_begin();
    write_small('l');
    char *bytes = (char *)disk_copy("m", &size);
    for (int64_t k = 0, at = 4; k < 260; k++) {
        int32_t len;
        memcpy(&len, bytes + at + 4, 4);
        for (int change = 0; k % 52 == 10 && change < 9; change++) {
            char before[8];
            memcpy(before, bytes + at, 8);
            if (change < 4) memcpy(bytes + at + 4, &lengths[change], 4);
            else memcpy(bytes + at, &scores[change - 4], 4);
            disk_write("m", bytes, size);
            memcpy(bytes + at, before, 8);
            if (change < 4)
                snprintf(what, sizeof what, "m: offset %d: length of a piece exceeds the file: got %d",
                         (int)at + 4, (int)lengths[change]);
            else snprintf(what, sizeof what, "m: score of piece %d is not finite", (int)k);
            CHECK(!fl_text_llama2c_load("m", 0));
            if (!CHECK_ERROR(what)) printf("  piece %d, change %d\n", (int)k, change);
            fl_error_clear();
        }
        if (k % 52 == 10) { /* with the byte before its end missing */
            disk_write("m", bytes, (size_t)(at + 7 + len));
            CHECK(!fl_text_llama2c_load("m", 0));
            snprintf(what, sizeof what,
                     len ? "m: offset %d: length of a piece exceeds the file: got %d"
                         : "m: offset %d: the file ends within a piece",
                     len ? (int)at + 4 : (int)at, (int)len);
            if (!CHECK_ERROR(what)) printf("  piece %d\n", (int)k);
            fl_error_clear();
        }
        at += 8 + len;
    }
    disk_write("m", bytes, size);
    CHECK(!fl_text_llama2c_load("m", 261));
    CHECK_ERROR("too few: got 260");
    free(bytes);
    fl_error_clear();
    disk_write("m", "\4", 1);
    CHECK(!fl_text_llama2c_load("m", 0));
    CHECK_ERROR("fl_text_llama2c_load: m: offset 4: the file ends within a piece, or has too few: got 0");
    fl_error_clear();
    end(&scope);
}

/* Prefixes and changed bytes of a file of each kind: an error that names it, or something that can be used.
   Of small files all, of others each 61st and, where a file takes long to read, fewer. */
TEST(damaged_files) {
    static const struct { const char *file; char kind; int step;
    } of[] = {{"nounk.arpa", 'n', 1},    {"ngram.probing", 'n', 61}, {"ngram.trie", 'n', 61},
              {"ngram.both", 'n', 61},   {"bert.json", 'j', 41},     {"unigram_bytes.json", 'j', 97},
              {"words.json", 'j', 61},   {"llama.json", 'j', 97},    {"sp_bpe.model", 's', 61},
              {"sp_raw.model", 's', 61}, {"sp_unigram.model", 's', 1973}, {"nounk.arpa", 'w', 31},
              {NULL, 'l', 3},            {NULL, 'k', 3},             {NULL, 't', 1}};
    begin();
    fl_scope scope = fl_scope_begin();
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        int64_t n = 0, opened = 0, refused = 0;
        size_t size;
        if (of[k].file && !golden_to_disk(of[k].file, "m")) continue;
        if (!of[k].file) write_small(of[k].kind);
        char *bytes = (char *)disk_copy("m", &size);
        n = (int64_t)size;
        if (of[k].kind != 'w' && !CHECK(use_file(of[k].kind, n)))
            printf("  %s: %s\n", of[k].file, fl_error());
        fl_error_clear();
        for (int64_t i = 0; i < n; i += i > 2000 && of[k].step < 61 ? 61 : of[k].step)
            for (int flip = 0; flip < 2; flip++) {
                const char before = bytes[i];
                if (flip) bytes[i] = (char)(before ^ (1 << i % 8));
                disk_write("m", bytes, (size_t)(flip ? n : i));
                bytes[i] = before;
                const bool ok = use_file(of[k].kind, flip ? n : i);
                opened += ok, refused += !ok;
                if (!CHECK(ok ? !fl_error() : fl_error() != NULL))
                    printf("  %s of kind %c, %s %d\n", of[k].file, of[k].kind, flip ? "bit" : "prefix",
                           (int)i);
                fl_error_clear();
            }
        if (!CHECK(opened + refused > 50 && (refused || of[k].kind == 'w')))
            printf("  %s: %d refused, %d not\n", of[k].file, (int)refused, (int)opened);
        free(bytes);
    }
    end(&scope);
}

static fl_text_dictionary *scored_words;
static bool train_and_score(void) {
    return fl_text_ngram_train("a b c\na c\n", 10, "new", .order = 3);
}

static bool load_and_score(void) {
    fl_text_ngram *m = fl_text_ngram_load("m");
    fl_text_scorer *s = m ? fl_text_ngram_scorer(m, scored_words) : NULL;
    fl_text_state from, to;
    double score = 0, end_score = 0;
    bool ok = s && s->start(s, &from) && s->score(s, &from, 1, &to, &score) && s->finish(s, &to, &end_score);
    if (ok) CHECK(score < 0 && end_score < 0 && !fl_text_state_equal(&from, &to) && !s->batch);
    fl_text_scorer_free(s);
    fl_text_ngram_free(m);
    return ok;
}

TEST(ngram_faults) {
    begin();
    fl_scope scope = fl_scope_begin();
    scored_words = fl_text_dictionary_new();
    CHECK(fl_text_dictionary_add(scored_words, "dog", 3) == 0 &&
          fl_text_dictionary_add(scored_words, "the", 3) == 1);
    for (int k = 0; k < 2; k++) {
        if (!golden_to_disk(k ? "ngram.trie" : "nounk.arpa", "m")) continue;
        int64_t points = sweep_heap(load_and_score, false) + sweep_heap(load_and_score, true);
        CHECK(points >= 4);
        const int calls = count_calls(load_and_score);
        for (int at = 1; at < calls; at++) {
            disk_fault_at(at, FAULT_ERROR);
            if (load_and_score()) continue; /* closing lost nothing */
            CHECK_ERROR("cannot ");
        }
        disk_fault_at(0, FAULT_ERROR);
    }
    CHECK(sweep_heap(train_and_score, false) + sweep_heap(train_and_score, true) > 10);
    fl_text_dictionary_free(scored_words);
    end(&scope);
}

static bool first_line(void) {
    fl_text_tokenizer *t = fl_text_char_tokenizer("\\dat", 4);
    fl_data_set *set = t ? fl_text_lines("m", t, 2) : NULL;
    fl_data_sample b;
    fl_scope s = fl_scope_begin();
    const bool ok = set && fl_data_get(set, 0, &b) && fl_numel(b.t[1]) == 7;
    fl_scope_end(&s);
    fl_data_free(set);
    fl_text_tokenizer_free(t);
    return ok;
}

TEST(lines_faults) {
    begin();
    fl_scope scope = fl_scope_begin();
    REQUIRE(golden_to_disk("nounk.arpa", "m"));
    CHECK(sweep_heap(first_line, false) + sweep_heap(first_line, true) > 4);
    const int calls = count_calls(first_line);
    for (int at = 1; at < calls; at++) {
        disk_fault_at(at, FAULT_ERROR);
        if (!first_line()) CHECK_ERROR("cannot ");
    }
    disk_fault_at(0, FAULT_ERROR);
    end(&scope);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
