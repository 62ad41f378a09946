/* test_formats.c - JSON, npy, npz and CSV: what goes in comes out, hostile files, failing disks and memory */
#include "disk.h"
#include <locale.h>

static const char *data_path(const char *file) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", test_data_dir(), file);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f ? path : NULL;
}

/* ---- JSON ---- */

/* All events as letters with their texts, "!" at an error. Frees j. */
static const char *events(fl_data_json *j) {
    static char out[2000];
    static const char letters[] = "!.{}[]ksntfz";
    size_t n = 0;
    if (!j) return "NULL";
    do {
        fl_data_json_next(j);
        n += (size_t)snprintf(out + n, sizeof out - n, "%c", letters[j->event]);
        if (j->event >= FL_DATA_JSON_KEY && j->event <= FL_DATA_JSON_NUMBER)
            n += (size_t)snprintf(out + n, sizeof out - n, "<%s>", j->text);
    } while (j->event > FL_DATA_JSON_END && n < sizeof out);
    fl_data_json_close(j);
    return out;
}

static fl_data_json *json_of(const char *text) { return fl_data_json_of(text, strlen(text)); }

TEST(json_events) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *json, *events; } cases[] = {
        {"{}", "{}."},
        {" [ ] \n", "[]."},
        {"null", "z."},
        {"-0", "n<-0>."},
        {"\"\"", "s<>."},
        {"[true,false,null]", "[tfz]."},
        {"{\"a\":1,\"b\":[2,{\"c\":\"d\"}],\"a\":{}}", "{k<a>n<1>k<b>[n<2>{k<c>s<d>}]k<a>{}}."},
        {"[1.5e+3 , 0.0,\t1E-2]", "[n<1.5e+3>n<0.0>n<1E-2>]."},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "s<\"\\/\b\f\n\r\t>."},
        {"\"\\u00e9\\u20AC\\ud83d\\ude42\x7f\"", "s<\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\x7f>."},
        {"[[[[]]]]", "[[[[]]]]."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = events(json_of(cases[i].json));
        if (!CHECK(!strcmp(got, cases[i].events))) printf("  %s -> %s\n", cases[i].json, got);
        disk_write("j", cases[i].json, strlen(cases[i].json));
        CHECK(!strcmp(events(fl_data_json_open("j")), cases[i].events));
    }
    fl_data_json *j = json_of("\"a\\u0000b\"");
    CHECK(fl_data_json_string(j) && j->n == 3 && !memcmp(j->text, "a\0b", 4));
    fl_data_json_close(j);
    CHECK(!strcmp(events(fl_data_json_of("\"a\\u0000b\"", 10, .c_strings = true)), "!"));
    CHECK_ERROR("offset 2, line 1: a NUL in a string");
    CHECK(!strcmp(events(fl_data_json_of("1\n{\"a\":2}\n\n[]", 13, .many = true)), "n<1>{k<a>n<2>}[]."));
    CHECK(!strcmp(events(fl_data_json_of("", 0, .many = true)), "."));
    end(&s);
}

TEST(json_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *json, *error; } cases[] = {
        {"", "offset 0, line 1: the text ends early"},
        {" \n ", "offset 3, line 2: the text ends early"},
        {"\xef\xbb\xbf{}", "offset 0, line 1: expected a value"},
        {"{} {}", "offset 3, line 1: something behind the value"},
        {"[1,\n 2\n 3]", "offset 8, line 3: expected ',' or ']'"},
        {"[", "the text ends early"},
        {"[1", "expected ',' or ']'"},
        {"[1,]", "offset 3, line 1: expected a value"},
        {"[,1]", "expected a value"},
        {"[1}", "expected ',' or ']'"},
        {"{", "expected '\"' of a key"},
        {"{]", "expected '\"' of a key"},
        {"{\"a\":1,}", "offset 7, line 1: expected '\"' of a key"},
        {"{a:1}", "expected '\"' of a key"},
        {"{1:1}", "expected '\"' of a key"},
        {"{\"a\" 1}", "expected ':'"},
        {"{\"a\":}", "expected a value"},
        {"{\"a\":1]", "expected ',' or '}'"},
        {"]", "expected a value"},
        {"nul", "expected a value"},
        {"True", "expected a value"},
        {"truex", "something behind the value"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"'a'", "expected a value"},
        {"01", "'01' is no number"},
        {"-", "'-' is no number"},
        {"+1", "expected a value"},
        {"1.", "'1.' is no number"},
        {".5", "expected a value"},
        {"1e", "'1e' is no number"},
        {"1e+", "'1e+' is no number"},
        {"1.2.3", "'1.2.3' is no number"},
        {"1-2", "'1-2' is no number"},
        {"\"a", "offset 2, line 1: the string does not end"},
        {"\"\t\"", "a control character in a string"},
        {"\"\\x41\"", "a bad escape in a string"},
        {"\"\\u12g4\"", "a bad escape in a string"},
        {"\"\\ud800\"", "a bad escape in a string"},
        {"\"\\ud800\\u0041\"", "a bad escape in a string"},
        {"\"\\udc00\"", "a bad escape in a string"},
        {"\"\\", "a bad escape in a string"},
        {"\"\xff\"", "offset 1, line 1: invalid UTF-8"},
        {"\"\xc0\x80\"", "invalid UTF-8"},
        {"\"\xed\xa0\x80\"", "invalid UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "invalid UTF-8"},
        {"\"\xe2\x82", "invalid UTF-8"},
        {"[/**/1]", "expected a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = events(json_of(cases[i].json));
        if (!CHECK(got[strlen(got) - 1] == '!')) printf("  %s -> %s\n", cases[i].json, got);
        if (!CHECK_ERROR(cases[i].error)) printf("  %s\n", cases[i].json);
    }
    char deep[1100] = {0};
    memset(deep, '[', 1099);
    fl_data_json *j = fl_data_json_of(deep, 1099);
    CHECK(!fl_data_json_skip(j));
    CHECK_ERROR("text: offset 64, line 1: objects and arrays deeper than max_depth");
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_ERROR); /* stays one */
    CHECK(!fl_data_json_more(j) && !fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && !fl_error());
    fl_data_json_close(j);
    j = fl_data_json_of(deep, 1099, .max_depth = 1024, .name = "deep");
    CHECK(!fl_data_json_skip(j));
    CHECK_ERROR("fl_data_json_of: deep: offset 1024, line 1: objects and arrays deeper");
    fl_data_json_close(j);
    CHECK(!strcmp(events(fl_data_json_of("[\"12345\"]", 9, .max_text = 4, .who = "me")), "[!"));
    CHECK_ERROR("me: text: offset 7, line 1: a text longer than max_text");
    CHECK(!fl_data_json_of("1", 1, .max_depth = 1025) && CHECK_ERROR("max_depth 1025"));
    CHECK(!fl_data_json_of(NULL, 0) && CHECK_ERROR("the bytes are NULL"));
    CHECK(!fl_data_json_open(NULL) && CHECK_ERROR("fl_data_json_open: path is NULL"));
    CHECK(!fl_data_json_open("absent") && CHECK_ERROR("absent: cannot open: No such file"));
    end(&s);
}

static bool as_double(const char *text, double *x) {
    fl_data_json *j = json_of(text);
    const bool ok = fl_data_json_double(j, x);
    fl_data_json_close(j);
    return ok;
}

static bool as_int(const char *text, int64_t *x) {
    fl_data_json *j = json_of(text);
    const bool ok = fl_data_json_int(j, x);
    fl_data_json_close(j);
    return ok;
}

TEST(json_numbers) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char *const doubles[] = {
        "0", "-0", "1", "-1.5", "0.1", "123456789012345", "1234567890123456789", "9007199254740993", "1e22",
        "1e23", "1.7976931348623157e308", "2.2250738585072014e-308", "4.9e-324", "1e-400", "0.000001e-5",
        "123.456e-25", "2.2250738585072011e-308", "1e-22", "100e-2", "0e999999999999",
        "0.1000000000000000055511151231257827021181583404541015625",
        "179769313486231570000000000000000000000e270",
        "3.141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825"};
    int64_t i = 0;
    double x = 0;
    for (size_t k = 0; k < sizeof doubles / sizeof doubles[0]; k++) {
        const double want = strtod(doubles[k], NULL); /* in the C locale */
        CHECK(as_double(doubles[k], &x) && !memcmp(&x, &want, sizeof x));
        fl_data_text t = {0};
        CHECK(fl_data_json_put_double(&t, want) && as_double(t.p, &x) && x == want);
        fl_heap_free(t.p);
    }
    CHECK(!as_double("1e309", &x) && CHECK_ERROR("the number '1e309' is past the range of a double"));
    CHECK(!as_double("-1e999999999999", &x) && CHECK_ERROR("past the range of a double"));
    CHECK(!as_double("\"1\"", &x) && CHECK_ERROR("expected a number, not a string"));
    CHECK(as_int("9223372036854775807", &i) && i == INT64_MAX);
    CHECK(as_int("-9223372036854775808", &i) && i == INT64_MIN);
    CHECK(as_int("-0", &i) && i == 0);
    CHECK(!as_int("9223372036854775808", &i) && CHECK_ERROR("'9223372036854775808' is past 2^63"));
    CHECK(!as_int("-9223372036854775809", &i) && CHECK_ERROR("past 2^63"));
    CHECK(!as_int("1.0", &i) && CHECK_ERROR("expected a whole number, not '1.0'"));
    CHECK(!as_int("1e3", &i) && CHECK_ERROR("expected a whole number, not '1e3'"));
    CHECK(!as_int("{}", &i) && CHECK_ERROR("expected a number, not an object"));
    CHECK(!as_int("", &i) && CHECK_ERROR("the text ends early"));
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "de_DE")) {
        fl_data_text t = {0};
        CHECK(as_double("12345.678901234567", &x) && x == 12345.678901234567);
        CHECK(fl_data_json_put_double(&t, 0.5) && !strcmp(t.p, "0.5"));
        fl_heap_free(t.p);
        setlocale(LC_NUMERIC, "C");
    }
    static const char *const bad[] = {"", "-", ".", "1e", "1e+", "1 ", " 1", "1.2.3", "0x10", "inf", "e5"};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
        CHECK(!fl_data_parse_double(bad[k], strlen(bad[k]), &x));
    CHECK(fl_data_parse_double("+.5e+1", 6, &x) && x == 5 && fl_data_parse_double("3.", 2, &x) && x == 3);
    end(&s);
}

TEST(json_is_walked_by_its_keys) {
    begin();
    fl_scope s = fl_scope_begin();
    const char *text = "{\"skip\":[1,{\"a\":[{}]},\"]}\"],\"n\":42,\"yes\":true,\"list\":[1,2,3],"
                       "\"none\":[],\"last\":\"x\"}";
    fl_data_json *j = json_of(text);
    int64_t n = 0, sum = 0, i = 0;
    bool yes = false, last = false;
    REQUIRE(fl_data_json_expect(j, FL_DATA_JSON_OBJECT));
    while (fl_data_json_more(j)) {
        if (!strcmp(j->text, "n")) CHECK(fl_data_json_int(j, &n));
        else if (!strcmp(j->text, "yes")) CHECK(fl_data_json_bool(j, &yes));
        else if (!strcmp(j->text, "last")) last = !strcmp(fl_data_json_string(j), "x");
        else if (*j->text != 's') {
            CHECK(fl_data_json_expect(j, FL_DATA_JSON_ARRAY));
            while (fl_data_json_more(j)) CHECK(fl_data_json_int(j, &i) && (sum += i));
        } else CHECK(fl_data_json_skip(j));
    }
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_END);
    CHECK(n == 42 && yes && last && sum == 6);
    fl_data_json_close(j);
    j = json_of("{\"a\":1}");
    CHECK(fl_data_json_expect(j, FL_DATA_JSON_OBJECT) && fl_data_json_more(j));
    CHECK(!fl_data_json_bool(j, &yes));
    CHECK_ERROR("offset 5, line 1: expected true or false");
    fl_data_json_close(j);
    j = json_of("[]");
    CHECK(fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && !fl_data_json_skip(j));
    CHECK_ERROR("offset 1, line 1: expected a value");
    fl_data_json_close(j);
    j = json_of("[7]");
    CHECK(fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && fl_data_json_skip(j));
    CHECK(!fl_data_json_fail(j, "%d is odd", 7));
    CHECK_ERROR("fl_data_json_of: text: offset 1, line 1: 7 is odd");
    fl_data_json_close(j);
    end(&s);
}

/* A text that crosses the window at every place: the events are those of the text in memory. */
TEST(json_across_the_window) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { ROOM = 40000 };
    const char *tail = "[\"\\ud83d\\ude42\xf0\x9f\x99\x82\\n\",-12.5e-3,true,{\"key\":null}]";
    char *text = malloc(ROOM), *want = malloc(3000);
    snprintf(want, 3000, "%s", events(json_of(tail)));
    for (size_t pad = 16384 - strlen(tail); pad <= 16384; pad++) {
        memset(text, ' ', pad);
        memcpy(text + pad, tail, strlen(tail));
        disk_write("j", text, pad + strlen(tail));
        memory_mark();
        if (!CHECK(!strcmp(events(fl_data_json_open("j")), want))) printf("  at %zu\n", pad);
    }
    memset(text, 'x', ROOM);
    text[0] = text[ROOM - 1] = '"';
    disk_write("j", text, ROOM);
    memory_mark();
    fl_data_json *j = fl_data_json_open("j");
    CHECK(fl_data_json_string(j) && j->n == ROOM - 2);
    memory_bounded(ROOM, 16);
    fl_data_json_close(j);
    memset(text, ' ', ROOM);
    text[ROOM - 1] = '1';
    disk_write("j", text, ROOM);
    memory_mark();
    CHECK(!strcmp(events(fl_data_json_open("j")), "n<1>."));
    CHECK(heap.bytes < 20000); /* whatever the file's size */
    free(text);
    free(want);
    end(&s);
}

TEST(json_every_prefix_and_byte_change) {
    begin();
    fl_scope s = fl_scope_begin();
    const char *text = "{\"a\":[1,-2.5e3,\"\\u00e9\xc3\xa9\"],\"b\":{\"c\":null,\"d\":true}}";
    const size_t size = strlen(text);
    for (size_t n = 0; n < size; n++) {
        disk_write("j", text, n);
        const char *got = events(fl_data_json_open("j"));
        CHECK(got[strlen(got) - 1] == '!' && CHECK_ERROR("j: offset "));
    }
    int valid = 0;
    for (size_t i = 0; i < size; i++)
        for (int change = 1; change < 256; change++) {
            char bytes[100];
            memcpy(bytes, text, size);
            bytes[i] = (char)(bytes[i] ^ change);
            const char *got = events(fl_data_json_of(bytes, size));
            const bool ok = got[strlen(got) - 1] == '.';
            CHECK(ok == !fl_error());
            valid += ok;
            fl_error_clear();
        }
    CHECK(valid > 100 && valid < (int)size * 255 / 2);
    end(&s);
}

TEST(json_strings_are_written) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_text t = {0};
    CHECK(fl_data_json_put_string(&t, "a\"b\\c\n\x01\0\x7f\xc3\xa9\xff\xed\xa0\x80/", 16));
    CHECK(!strcmp(t.p, "\"a\\\"b\\\\c\\u000a\\u0001\\u0000\x7f\xc3\xa9\\ufffd\\ufffd\\ufffd\\ufffd/\""));
    t.n = 0;
    for (int i = 0; i < 256; i++)
        CHECK(fl_data_json_put_string(&t, (char[]){(char)i}, 1) && fl_data_text_put(&t, "\n", 1));
    fl_data_json *j = fl_data_json_of(t.p, (size_t)t.n, .many = true);
    for (int i = 0; i < 256; i++) {
        const char *want = i < 128 ? (char[]){(char)i, 0} : "\xef\xbf\xbd";
        CHECK(fl_data_json_string(j) && j->n == (i < 128 ? 1 : 3) && !memcmp(j->text, want, (size_t)j->n));
    }
    fl_data_json_close(j);
    t.n = 0;
    const double x[] = {0.1, 1e300, -2.5, 1.0 / 3, NAN, INFINITY, 123456789, 5e-324};
    for (int i = 0; i < 8; i++) CHECK(fl_data_json_put_double(&t, x[i]) && fl_data_text_put(&t, " ", 1));
    CHECK(!strcmp(t.p, "0.1 1e+300 -2.5 0.3333333333333333 null null 123456789 4.94065645841247e-324 "));
    fl_heap_free(t.p);
    end(&s);
}

static bool read_json_file(void) { return !strcmp(events(fl_data_json_open("j")), "{k<a>[n<1>s<two>]}."); }
static bool write_json(void) {
    fl_data_text t = {0};
    const bool ok = fl_data_json_put_string(&t, "a long \n string", 15) && fl_data_json_put_double(&t, 0.3);
    fl_heap_free(t.p);
    return ok;
}

TEST(json_on_a_failing_disk_and_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    disk_write("j", "{\"a\":[1,\"two\"]}", 16 - 1);
    sweep_reader(read_json_file);
    for (int kind = FAULT_EINTR; kind <= FAULT_SHORT; kind++)
        for (int at = 1; at < 6; at++) {
            disk_fault_at(at, (fault)kind);
            CHECK(read_json_file());
        }
    disk_fault_at(0, FAULT_ERROR);
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        CHECK(sweep_heap(read_json_file, for_ever) >= 3);
        CHECK(sweep_heap(write_json, for_ever) >= 2);
    }
    end(&s);
}

/* The real files: GPT-2's vocabulary and COCO's annotations. */
TEST(json_of_the_data_folder) {
    test_errors_return();
    const char *path = data_path("text/gpt2/encoder.json");
    if (!path) SKIP("no GPT-2 vocabulary in the data folder");
    fl_data_json *j = fl_data_json_open(path);
    int64_t tokens = 0, sum = 0, id = 0, bytes = 0;
    REQUIRE(j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT));
    for (; fl_data_json_more(j); tokens++) {
        bytes += j->n;
        CHECK(fl_data_json_int(j, &id));
        sum += id;
    }
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_END);
    fl_data_json_close(j);
    CHECK_EQ_INT(tokens, 50257);
    CHECK_EQ_INT(sum, (int64_t)50257 * 50256 / 2);
    CHECK_EQ_INT(bytes, 356735);
    path = data_path("coco/annotations/instances_all128_no_images.json");
    if (!path) SKIP("no COCO in the data folder");
    j = fl_data_json_open(path);
    int64_t annotations = 0;
    double area = 0, x;
    REQUIRE(j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT));
    while (fl_data_json_more(j)) {
        if (strcmp(j->text, "annotations")) {
            CHECK(fl_data_json_skip(j));
            continue;
        }
        CHECK(fl_data_json_expect(j, FL_DATA_JSON_ARRAY));
        for (; fl_data_json_more(j); annotations++) {
            CHECK(fl_data_json_expect(j, FL_DATA_JSON_OBJECT));
            while (fl_data_json_more(j))
                if (strcmp(j->text, "area")) CHECK(fl_data_json_skip(j));
                else if (CHECK(fl_data_json_double(j, &x))) area += x;
        }
    }
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_END);
    fl_data_json_close(j);
    CHECK_EQ_INT(annotations, 939);
    CHECK_NEAR(area, 12203345.333100013, 1e-6);
}

int main(int argc, char **argv) { return test_main(argc, argv); }

/* MIT licence: see LICENSE. */
