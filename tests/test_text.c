/* test_text.c - characters, dictionaries, tokenizers: what goes in comes out, files, failing disks and memory */
#include "../fl.h"
#include "disk.h"

static bool same(const char *a, int64_t n, const char *b) {
    return a && n == (int64_t)strlen(b) && !memcmp(a, b, (size_t)n);
}

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
        CHECK(fl_text_put_replaced(&t, cases[i].in, (int64_t)strlen(cases[i].in), &replaced));
        if (!CHECK(same(t.p, t.n, cases[i].out) && replaced == cases[i].replaced)) printf("  case %d\n", (int)i);
        CHECK_EQ_INT(fl_text_chars(cases[i].in, (int64_t)strlen(cases[i].in)), fl_text_chars(t.p, t.n));
        fl_heap_free(t.p);
    }
    for (int32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        int len;
        const int n = fl_text_char_put(bytes, c);
        const bool surrogate = c >= 0xd800 && c < 0xe000;
        if (!CHECK(fl_text_char(bytes, n, &len) == (surrogate ? 0xfffd : c) && len == n)) break;
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
    CHECK_ERROR("'four' is unknown, and there is no default");
    CHECK(fl_text_dictionary_set_default(d, 2) && fl_text_dictionary_index(d, "four", 4) == 2);
    CHECK(!fl_text_dictionary_set_default(d, 3) && CHECK_ERROR("index 3, of 3"));
    CHECK(!fl_text_dictionary_add_at(d, "one", 3, 7) && CHECK_ERROR("'one' is there twice"));
    CHECK(fl_text_dictionary_add_at(d, "a\0b", 3, 4) && !fl_text_dictionary_contiguous(d));
    CHECK_EQ_INT(fl_text_dictionary_find(d, "a", 1), -1);
    CHECK(!fl_text_dictionary_save(d, "e", false) && CHECK_ERROR("index 3 has no entry"));
    CHECK(fl_text_dictionary_add_at(d, "x", 1, 3) && fl_text_dictionary_save(d, "e", false));
    CHECK(!fl_text_dictionary_add_at(d, "y", 1, -1) && CHECK_ERROR("index -1"));
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
    for (int i = 0; i < 2; i++) CHECK(fl_text_dictionary_add(d, special[i], (int64_t)strlen(special[i])) == i);
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
    CHECK(p && fl_text_dictionary_size(p) == 1 && fl_text_dictionary_counted(p, 0) == 3);
    fl_text_dictionary_free(p);
    p = fl_text_dictionary_load("d", .counts = true, .max_size = 3);
    CHECK(p && fl_text_dictionary_size(p) == 3);
    fl_text_dictionary_free(p);
    fl_text_dictionary_free(d);
    disk_write("d", "a 1\nb x\n", 8);
    CHECK(!fl_text_dictionary_load("d", .counts = true) && CHECK_ERROR("fl_text_dictionary_load: d: line 2: no count behind 'b'"));
    disk_write("d", "a 1\na 2\n", 8);
    CHECK(!fl_text_dictionary_load("d", .counts = true) && CHECK_ERROR("d: line 2: 'a' is there twice"));
    disk_write("d", "a b\nc a\n", 8);
    CHECK(!fl_text_dictionary_load("d") && CHECK_ERROR("d: line 2: 'a' is there twice"));
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
        ok = ok && (i == e.n || fl_text_ill_formed(p, n) == n || fl_text_ill_formed(text, (int64_t)strlen(text)) < (int64_t)strlen(text));
    }
    ok = ok && same(parts.p, parts.n, text);
    if (!ok) printf("  %s -> %s, %s\n", text, whole.p, parts.p);
    fl_heap_free(whole.p);
    fl_heap_free(parts.p);
    fl_text_stream_free(&s);
    fl_text_encoding_free(&e);
    return ok;
}

/* The same tokenizer from its file. */
static fl_text_tokenizer *reloaded(fl_text_tokenizer *t) {
    const uint64_t hash = fl_text_tokenizer_hash(t);
    CHECK(fl_text_tokenizer_save(t, "t.json"));
    fl_text_tokenizer_free(t);
    t = fl_text_tokenizer_load("t.json");
    CHECK_NO_ERROR();
    CHECK(t && fl_text_tokenizer_hash(t) == hash);
    return t;
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
        CHECK(!fl_text_encode(t, "a\nbx", 4, &e) && CHECK_ERROR("offset 3, line 2: the character U+0078 'x' is not in the vocabulary"));
        CHECK(!fl_text_encode(t, "a\xff", 2, &e, .strict = true) && CHECK_ERROR("offset 1, line 1: ill-formed UTF-8"));
        fl_text_encoding_free(&e);
    }
    fl_data_text out = {0};
    CHECK(t && !fl_text_decode(t, FL_ARRAY(int32_t, 0, 4), 2, false, &out) && CHECK_ERROR("id 4 at 1 is no token, of 4"));
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
        CHECK(e.n == 3 && e.begin[1] == 4 && e.end[1] == 7 && e.begin[2] == 8 && e.end[2] == 9 && e.replaced == 1);
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

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
