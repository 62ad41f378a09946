/* test_formats.c - JSON, npy, npz and CSV: what goes in comes out, hostile files, failing disks and memory */
#include "disk.h"
#include <locale.h>

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
        {"{} {}", "offset 3, line 1: unexpected text after the value"},
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
        {"truex", "unexpected text after the value"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"'a'", "expected a value"},
        {"01", "'01' is not a number"},
        {"-", "'-' is not a number"},
        {"+1", "expected a value"},
        {"1.", "'1.' is not a number"},
        {".5", "expected a value"},
        {"1e", "'1e' is not a number"},
        {"1e+", "'1e+' is not a number"},
        {"1.2.3", "'1.2.3' is not a number"},
        {"1-2", "'1-2' is not a number"},
        {"\"a", "offset 2, line 1: the string is not terminated"},
        {"\"\t\"", "a control character in a string"},
        {"\"\\x41\"", "invalid escape in a string"},
        {"\"\\u12g4\"", "invalid escape in a string"},
        {"\"\\ud800\"", "invalid escape in a string"},
        {"\"\\ud800\\u0041\"", "invalid escape in a string"},
        {"\"\\udc00\"", "invalid escape in a string"},
        {"\"\\", "invalid escape in a string"},
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
    CHECK_ERROR("text: offset 64, line 1: objects and arrays are nested deeper than max_depth");
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_ERROR); /* stays one */
    CHECK(!fl_data_json_more(j) && !fl_data_json_expect(j, FL_DATA_JSON_ARRAY) && !fl_error());
    fl_data_json_close(j);
    j = fl_data_json_of(deep, 1099, .max_depth = 1024, .name = "deep");
    CHECK(!fl_data_json_skip(j));
    CHECK_ERROR("fl_data_json_of: deep: offset 1024, line 1: objects and arrays are nested deeper");
    fl_data_json_close(j);
    CHECK(!strcmp(events(fl_data_json_of("[\"12345\"]", 9, .max_text = 4, .who = "me")), "[!"));
    CHECK_ERROR("me: text: offset 7, line 1: a text is longer than max_text");
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
    CHECK(!as_double("1e309", &x) && CHECK_ERROR("the number '1e309' is out of range of a double"));
    CHECK(!as_double("-1e999999999999", &x) && CHECK_ERROR("out of range of a double"));
    CHECK(!as_double("\"1\"", &x) && CHECK_ERROR("expected a number, got a string"));
    CHECK(as_int("9223372036854775807", &i) && i == INT64_MAX);
    CHECK(as_int("-9223372036854775808", &i) && i == INT64_MIN);
    CHECK(as_int("-0", &i) && i == 0);
    CHECK(!as_int("9223372036854775808", &i) && CHECK_ERROR("'9223372036854775808' is out of range"));
    CHECK(!as_int("-9223372036854775809", &i) && CHECK_ERROR("out of range of int64"));
    CHECK(!as_int("1.0", &i) && CHECK_ERROR("expected an integer, got '1.0'"));
    CHECK(!as_int("1e3", &i) && CHECK_ERROR("expected an integer, got '1e3'"));
    CHECK(!as_int("{}", &i) && CHECK_ERROR("expected a number, got an object"));
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
static bool read_settings(void) {
    fl_data_settings c = {0};
    const bool ok = fl_data_settings_read(&c, "s", "test") && c.n == 5;
    fl_data_settings_free(&c);
    return ok;
}

TEST(settings) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char text[] = "{\"type\": \"x\", \"heads\": 4, \"rope\": {\"base\": 1e4, \"on\": true},"
                               " \"none\": null, \"sizes\": [3, []]}";
    disk_write("s", text, sizeof text - 1);
    fl_data_settings c = {0};
    REQUIRE(fl_data_settings_read(&c, "s", "test") && fl_data_settings_add(&c, "more", "2.5"));
    CHECK(!strcmp(fl_data_settings_text(&c, "type"), "x") && !strcmp(c.path, "s"));
    CHECK(!fl_data_settings_text(&c, "none") && !fl_data_settings_text(&c, "rope"));
    CHECK(fl_data_settings_size(&c, "heads", 7) == 4 && fl_data_settings_size(&c, "absent", 7) == 7);
    CHECK(fl_data_settings_size(&c, "more", 7) == -1 && fl_data_settings_number(&c, "more", 7) == 2.5);
    CHECK(fl_data_settings_number(&c, "rope.base", 0) == 1e4 &&
          fl_data_settings_number(&c, "rope.on", 0) == 1);
    CHECK(fl_data_settings_size(&c, "sizes.0", 0) == 3 && fl_data_settings_number(&c, "type", -2) == -2);
    fl_data_settings_free(&c);
    static const struct { const char *json, *error; } bad[] = {
        {"[1]", "expected an object, got an array"},
        {"{\"a\": {\"b\": ", "test: s: offset"},
        {"{\"a\": 1} 2", "line 1"},
        {"{\"a\": {\"%0150d\": {\"%0150d\": 1}}}", "'000000"},
        {"{\"a\": \"\\u0000\"}", "a NUL in a string"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[400];
        snprintf(json, sizeof json, bad[i].json, 0, 0);
        disk_write("s", json, strlen(json));
        if (!CHECK(!fl_data_settings_read(&c, "s", "test"))) printf("  %s\n", bad[i].json);
        CHECK_ERROR(bad[i].error);
        fl_data_settings_free(&c);
    }
    fl_data_text array = {0}; /* two bytes for each value, and a name of 185 */
    fl_data_text_print(&array, "{\"%0180d\": [1", 0);
    for (int i = 1; i < 6000; i++) fl_data_text_put(&array, ",1", 2);
    fl_data_text_put(&array, "]}", 2);
    disk_write("s", array.p, (size_t)array.n);
    CHECK(!fl_data_settings_read(&c, "s", "test"));
    CHECK_ERROR("the flattened names take more than 40 times the file's bytes");
    fl_data_settings_free(&c);
    fl_heap_free(array.p);
    disk_write("s", text, sizeof text - 1);
    sweep_reader(read_settings);
    for (int for_ever = 0; for_ever < 2; for_ever++) CHECK(sweep_heap(read_settings, for_ever) >= 3);
    end(&s);
}

/* A vocabulary as GPT-2's, and annotations as COCO's: files of many buffers. */
TEST(json_of_many_values) {
    enum { TOKENS = 50257, ANNOTATIONS = 900 };
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_text text = {0};
    char want[20];
    int64_t tokens = 0, annotations = 0, id = 0;
    for (int i = 0; i < TOKENS; i++)
        CHECK(fl_data_text_print(&text, "%c\"%s%d\": %d", i ? ',' : '{', i % 7 ? "word" : "\\u0120", i, i));
    CHECK(fl_data_text_print(&text, "}"));
    disk_write("j", text.p, (size_t)text.n);
    fl_data_json *j = fl_data_json_open("j");
    REQUIRE(j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT));
    for (; fl_data_json_more(j); tokens++) {
        snprintf(want, sizeof want, "%s%d", tokens % 7 ? "word" : "\xc4\xa0", (int)tokens);
        if (!CHECK(!strcmp(j->text, want) && fl_data_json_int(j, &id) && id == tokens)) break;
    }
    CHECK_EQ_INT(fl_data_json_next(j), FL_DATA_JSON_END);
    fl_data_json_close(j);
    CHECK_EQ_INT(tokens, TOKENS);

    text.n = 0;
    CHECK(fl_data_text_print(&text, "{\"info\": {\"year\": 2017}, \"annotations\": ["));
    for (int i = 0; i < ANNOTATIONS; i++)
        CHECK(fl_data_text_print(&text, "%s{\"segmentation\": [[%d.5, 2, [3]]], \"area\": %d.25, \"id\": %d}",
                                 i ? ", " : "", i, i, i));
    CHECK(fl_data_text_print(&text, "], \"categories\": []}"));
    disk_write("j", text.p, (size_t)text.n);
    j = fl_data_json_open("j");
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
    CHECK_EQ_INT(annotations, ANNOTATIONS);
    CHECK(area == ANNOTATIONS * (ANNOTATIONS - 1) / 2 + ANNOTATIONS * 0.25);
    fl_heap_free(text.p);
    end(&s);
}

/* ---- npy and npz ---- */

/* A header of that version for the data behind it. */
static void write_npy(const char *path, int version, const char *dict, const void *data, size_t bytes) {
    unsigned char file[4000];
    size_t n = strlen(dict), at = version == 1 ? 10 : 12;
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)version, file[7] = 0;
    for (size_t i = 8; i < at; i++) file[i] = (unsigned char)(n >> 8 * (i - 8));
    memcpy(file + at, dict, n);
    memcpy(file + at + n, data, bytes);
    disk_write(path, file, at + n + bytes);
}

static fl_tensor *load_npy(const char *dict, const void *data, size_t bytes) {
    write_npy("n", 1, dict, data, bytes);
    memory_mark();
    fl_tensor *t = fl_data_load_npy("n");
    CHECK((t != NULL) == !fl_error());
    memory_bounded(disk_find("n")->file->size, 16);
    return t;
}

#define DICT(descr, order, shape) \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': (" shape "), }  \n"

static const fl_dtype npy_dtypes[] = {FL_F16, FL_F32, FL_F64, FL_B8,  FL_U8,  FL_U16, FL_U32,
                                      FL_U64, FL_I8,  FL_I16, FL_I32, FL_I64};
enum { NPY_DTYPES = sizeof npy_dtypes / sizeof npy_dtypes[0] };

TEST(npy_round_trip) {
    begin();
    fl_scope s = fl_scope_begin();
    const fl_shape shapes[] = {FL_SCALAR_SHAPE, FL_SHAPE(5), FL_SHAPE(2, 3), FL_SHAPE(0), FL_SHAPE(3, 0, 2),
                               FL_SHAPE(1, 2, 1, 2, 1, 1, 2, 1)};
    for (int d = 0; d < NPY_DTYPES; d++)
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
            fl_tensor *t =
                fl_cast(fl_reshape(fl_arange(0, (double)fl_shape_numel(shapes[k]), 1, FL_I64), shapes[k]),
                        npy_dtypes[d]);
            REQUIRE(fl_data_save_npy("n", t));
            CHECK(same_bits(fl_data_load_npy("n"), t));
            CHECK(disk_find("n")->file->size % 64 == (size_t)fl_numel(t) * fl_dtype_size(t->dtype) % 64);
        }
    fl_tensor *m = fl_reshape(fl_arange(0, 6, 1, FL_F32), FL_SHAPE(2, 3));
    CHECK(fl_data_save_npy("n", fl_transpose(m, 0, 1)) &&
          same_bits(fl_data_load_npy("n"), fl_transpose(m, 0, 1)));
    CHECK(fl_data_save_npy("n", fl_cast(m, FL_BF16)) && same_bits(fl_data_load_npy("n"), m)); /* as f32 */
    CHECK(!fl_data_save_npy("n", NULL) &&
          CHECK_ERROR("fl_data_save_npy: n.tmp: tensor '' is NULL or a scalar constant"));
    CHECK(!fl_data_save_npy("n", fl_num(1)) && CHECK_ERROR("is NULL or a scalar constant"));
    CHECK(!fl_data_save_npy(NULL, m) && CHECK_ERROR("fl_data_save_npy: path is NULL"));
    CHECK(same_bits(fl_data_load_npy("n"), m) && !disk_find("n.tmp"));
    end(&s);
}

TEST(npy_of_numpy) {
    begin();
    fl_scope s = fl_scope_begin();
    const unsigned char big[] = {0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
    CHECK(same_bits(load_npy(DICT(">f4", "False", "2,"), big, 8),
                    fl_from_host((float[]){1, -2.5f}, FL_SHAPE(2), FL_F32)));
    const uint8_t six[] = {0, 1, 2, 3, 4, 5};
    fl_tensor *rows = fl_from_host(six, FL_SHAPE(3, 2), FL_U8);
    CHECK(same_bits(load_npy(DICT("|u1", "True", "2, 3"), six, 6), fl_transpose(rows, 0, 1)));
    CHECK(same_bits(load_npy(DICT("|u1", "True", "6,"), six, 6), fl_from_host(six, FL_SHAPE(6), FL_U8)));
    const int16_t cube[] = {0, 1, 2, 3, 4, 5, 6, 7};
    fl_tensor *turned = fl_permute(fl_from_host(cube, FL_SHAPE(2, 2, 2), FL_I16), 3, (int[]){2, 1, 0});
    CHECK(same_bits(load_npy(DICT("<i2", "True", "2, 2, 2"), cube, 16), turned));
    CHECK(fl_item(load_npy(DICT("=f8", "False", ""), &(double){-2.5}, 8)) == -2.5);
    for (int version = 1; version <= 3; version++) {
        write_npy("n", version, "{'shape':(2L,),'descr':\"|b1\",'fortran_order':False}", "\1\0", 2);
        CHECK(same_bits(fl_data_load_npy("n"), fl_from_host("\1\0", FL_SHAPE(2), FL_B8)));
    }
    end(&s);
}

TEST(npy_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *dict; size_t bytes; const char *error; } cases[] = {
        {DICT("<c8", "False", "1,"), 8, "it holds complex numbers (descr '<c8')"},
        {DICT("|O", "False", "1,"), 8, "it holds Python objects (descr '|O')"},
        {DICT("<U3", "False", "1,"), 12, "it holds text (descr '<U3')"},
        {DICT("|S3", "False", "1,"), 3, "it holds text"},
        {DICT("<f16", "False", "1,"), 16, "numbers that fl has no dtype for (descr '<f16')"},
        {DICT("<M8[ns]", "False", "1,"), 8, "numbers that fl has no dtype for (descr '<M8[ns]')"},
        {DICT("<V2", "False", "1,"), 2, "no dtype for"},
        {DICT("f4", "False", "1,"), 4, "no dtype for"},
        {DICT("<f44444444444", "False", "1,"), 4, "no dtype for"},
        {DICT("", "False", "1,"), 4, "no dtype for"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, "arrays of records"},
        {"{'descr': <f4, 'fortran_order': False, 'shape': (1,)}", 4, "descr is not a string"},
        {"{'descr': '<f4, ", 4, "descr is not a string"},
        {DICT("<f4", "false", "1,"), 4, "neither True nor False"},
        {DICT("<f4", "1", "1,"), 4, "neither True nor False"},
        {DICT("<f4", "False", "-1,"), 4, "tuple of integers"},
        {DICT("<f4", "False", "1.0,"), 4, "shape is not a tuple"},
        {DICT("<f4", "False", "1 1"), 4, "shape is not a tuple"},
        {DICT("<f4", "False", ",1"), 4, "tuple of integers"},
        {DICT("<f4", "False", "9223372036854775808,"), 4, "a dim overflows int64"},
        {DICT("<f4", "False", "1,1,1,1,1,1,1,1,1"), 4, "more than 8 dims"},
        {DICT("<f4", "False", "4611686018427387904,4"), 0, "the shape does not match the 0 bytes"},
        {DICT("<f8", "False", "2305843009213693952,"), 0, "the shape does not match the 0 bytes"},
        {DICT("<f4", "False", "9223372036854775807,"), 4, "the shape does not match the 4 bytes"},
        {DICT("<f4", "False", "2,"), 7, "the shape does not match the 7 bytes"},
        {DICT("<f4", "False", "2,"), 9, "the shape does not match the 9 bytes"},
        {DICT("|b1", "False", "1,"), 1, "a bool is neither 0 nor 1"},
        {"[]", 0, "the header is not a dict"},
        {"", 0, "the header is not a dict"},
        {"{}", 0, "lacks descr, fortran_order or shape"},
        {"{'descr': '<f4', 'shape': (1,)}", 4, "lacks descr, fortran_order or shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", 4, "an unknown or duplicate key"},
        {"{'shape': (1,), 'x': 1}", 4, "an unknown or duplicate key"},
        {"{'shape' (1,)}", 4, "lacks a ':'"},
        {"{'shape': 1}", 4, "shape is not a tuple"},
        {"{'shape': (1,) 'descr': '<f4'}", 4, "lacks a ','"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", 4, "unexpected text"},
        {"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}", 4, "descr is not a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!CHECK(!load_npy(cases[i].dict, "\2xxxxxxxxxxxxxxx", cases[i].bytes)))
            printf("  %s\n", cases[i].dict);
        if (!CHECK_ERROR(cases[i].error)) printf("  %s\n", cases[i].dict);
    }
    static const struct { const char *bytes; size_t size; const char *error; } raw[] = {
        {"", 0, "early"},
        {"\x93NUMPZ\1\0\0\0", 10, "does not start with \\x93NUMPY"},
        {"PK\3\4xxxxxx", 10, "not an npy file"},
        {"\x93NUMPY\0\0\0\0", 10, "the npy version is not"},
        {"\x93NUMPY\4\0\0\0", 10, "the npy version is not"},
        {"\x93NUMPY\1\1\0\0", 10, "the npy version is not"},
        {"\x93NUMPY\1\0\1\0", 10, "the header is longer than the file"},
        {"\x93NUMPY\2\0\377\377\377\377", 12, "the header is longer than the file"},
        {"\x93NUMPY\2\0\0", 9, "early"},
    };
    for (size_t i = 0; i < sizeof raw / sizeof raw[0]; i++) {
        disk_write("n", raw[i].bytes, raw[i].size);
        CHECK(!fl_data_load_npy("n") && CHECK_ERROR(raw[i].error));
    }
    CHECK(!fl_data_load_npy("absent") && CHECK_ERROR("fl_data_load_npy: absent: cannot open"));
    end(&s);
}

static bool have_deflate(void) {
    fl_tensor *t = fl_zeros(FL_SHAPE(1), FL_F32);
    if (fl_data_save_npz("z", (fl_data_named_tensor[]){{"a", t}}, 1, true)) return true;
    CHECK_ERROR("install zlib");
    return false;
}

TEST(npz_round_trip) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *m = fl_reshape(fl_arange(0, 6000, 1, FL_F32), FL_SHAPE(60, 100));
    fl_data_named_tensor in[NPY_DTYPES + 3] = {
        {"folder/name", m}, {"\xc3\xa9", fl_transpose(m, 0, 1)}, {"", fl_zeros(FL_SHAPE(0), FL_F64)}};
    for (int d = 0; d < NPY_DTYPES; d++)
        in[d + 3] = (fl_data_named_tensor){fl_dtype_name(npy_dtypes[d]),
                                           fl_cast(fl_arange(0, 7, 1, FL_I64), npy_dtypes[d])};
    for (int deflate = 0; deflate <= have_deflate(); deflate++) {
        REQUIRE(fl_data_save_npz("z", in, NPY_DTYPES + 3, deflate));
        CHECK(disk_find("z")->file->size < 48000 || !deflate);
        fl_data_file *f = fl_data_open_npz("z");
        REQUIRE(CHECK_NO_ERROR() && f);
        CHECK_EQ_INT(fl_data_count(f), NPY_DTYPES + 3);
        for (int i = 0; i < NPY_DTYPES + 3; i++) {
            CHECK(!strcmp(fl_data_name(f, i), in[i].name) && fl_data_find(f, in[i].name) == i);
            CHECK(same_bits(fl_data_read(f, in[i].name), in[i].tensor));
        }
        CHECK(!fl_data_meta(f, "x") && !fl_data_read(f, "x") && CHECK_ERROR("no tensor 'x'"));
        fl_data_close(f);
    }
    REQUIRE(fl_data_save_npz("z", NULL, 0, false));
    fl_data_file *f = fl_data_open_npz("z");
    CHECK(f && fl_data_count(f) == 0);
    fl_data_close(f);
    CHECK(!fl_data_save_npz("y", (fl_data_named_tensor[]){{"a", m}, {"a", m}}, 2, false) &&
          CHECK_ERROR("duplicate tensor name 'a'"));
    CHECK(!fl_data_save_npz("y", (fl_data_named_tensor[]){{NULL, m}}, 1, false) &&
          CHECK_ERROR("a name is NULL"));
    CHECK(!fl_data_save_npz("y", (fl_data_named_tensor[]){{"a", NULL}}, 1, false) &&
          CHECK_ERROR("tensor 'a' is NULL"));
    CHECK(!fl_data_save_npz("y", NULL, 1, false) && CHECK_ERROR("tensors is NULL"));
    CHECK(!disk_find("y") && !disk_find("y.tmp"));
    end(&s);
}

/* Opens "z" and reads all of it: true if there was no error. */
static bool opens_npz(void) {
    fl_scope s = fl_scope_begin();
    memory_mark();
    fl_data_file *f = fl_data_open_npz("z");
    bool ok = f != NULL;
    for (int64_t i = 0; ok && i < fl_data_count(f); i++) ok = fl_data_read(f, fl_data_name(f, i)) != NULL;
    CHECK(ok == !fl_error());
    memory_bounded(disk_find("z")->file->size, 1032);
    fl_data_close(f);
    fl_scope_end(&s);
    return ok;
}

/* An archive of a and b as this library writes it; its bytes. */
static unsigned char *small_npz(size_t *size, bool deflate) {
    fl_scope s = fl_scope_begin();
    const fl_data_named_tensor in[] = {{"a", fl_arange(0, 2, 1, FL_F32)}, {"b", fl_ones(FL_SHAPE(1), FL_B8)}};
    CHECK(fl_data_save_npz("z", in, 2, deflate));
    fl_scope_end(&s);
    return disk_copy("z", size);
}

/* Every prefix is refused; a changed byte too, or it gives the same tensors (a date, a version) or other
   names. */
TEST(npz_every_truncation_and_byte_change) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_arange(0, 2, 1, FL_F32), *b = fl_ones(FL_SHAPE(1), FL_B8);
    for (int deflate = 0; deflate <= have_deflate(); deflate++) {
        size_t size;
        unsigned char *bytes = small_npz(&size, deflate);
        CHECK(opens_npz());
        for (size_t n = 0; n < size; n++) {
            disk_write("z", bytes, n);
            CHECK(!opens_npz() && CHECK_ERROR("z: "));
        }
        disk_write("z", bytes, size);
        for (size_t i = 0; i < size; i++)
            for (int change = 1; change < 256; change++) {
                disk_find("z")->file->bytes[i] = (unsigned char)(bytes[i] ^ change);
                fl_scope step = fl_scope_begin();
                if (opens_npz()) {
                    fl_data_file *f = fl_data_open_npz("z");
                    for (int64_t k = 0; k < fl_data_count(f); k++)
                        CHECK(same_bits(fl_data_read(f, fl_data_name(f, k)),
                                        fl_data_dtype(f, k) == FL_F32 ? a : b));
                    fl_data_close(f);
                }
                fl_error_clear();
                fl_scope_end(&step);
                disk_find("z")->file->bytes[i] = bytes[i];
            }
        free(bytes);
    }
    end(&s);
}

/* What is written at an offset of the small archive, and what that is. */
TEST(npz_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    size_t size;
    unsigned char *bytes = small_npz(&size, false);
    const size_t second = 30 + 5 + 20 + 128 + 8, directory = 2 * second - 7, record = 46 + 5 + 28;
    const size_t end64 = directory + 2 * record, locator = end64 + 56, tail = locator + 20;
    REQUIRE(tail + 22 == size);
    const struct { size_t at; const char *bytes; size_t n; const char *error;
    } cases[] = {
        {0, "x", 1, "the member's header differs from the directory"},
        {8, "\10", 1, "the member's header differs"},
        {14, "xxxx", 4, "the member's header differs"},
        {26, "\4", 1, "the member's header differs"},
        {28, "\377\377", 2, "the member's header differs"},
        {30, "b", 1, "the member's header differs"},
        {second - 1, "x", 1, "a.npy: the checksum does not match"},
        {directory, "x", 1, "the directory is damaged"},
        {directory + 8, "\1", 1, "an encrypted member"},
        {directory + 9, "\40", 1, "an encrypted member"},
        {directory + 10, "\14", 1, "a member neither stored nor deflated"},
        {directory + 10, "\10", 1, "the member's header differs"},
        {directory + 16, "xxxx", 4, "the member's header differs"},
        {directory + 28, "\377\377", 2, "the directory is damaged"},
        {directory + 46, "\377", 1, "a name that is not UTF-8"},
        {directory + 46, "\0", 1, "a name that is not UTF-8"},
        {directory + 51, "\2", 1, "a zip64 size is missing"},
        {directory + 53, "\10", 1, "a zip64 size is missing"},
        {directory + 55, "\377\377\377\377", 4, "a member larger than its bytes can hold"},
        {directory + 55, "\377\377\377\377\377\377\377\177\377\377\377\377\377\377\377\177", 16,
         "outside of the file"},
        {directory + 55, "\0\0\0\0\0\0\0\200\0\0\0\0\0\0\0\200", 16, "outside of the file"},
        {directory + 71, "\377\377\377\377\377\377\377\377", 8, "outside of the file"},
        {directory + 71, "\1", 1, "unexpected bytes before the first member"},
        {directory + record + 71, "\0", 1, "members overlap"},
        {directory + record + 71, "\1", 1, "members overlap"},
        {end64, "x", 1, "several disks, or its end record is damaged"},
        {end64 + 16, "\1", 1, "several disks"},
        {end64 + 24, "\1", 1, "several disks"},
        {end64 + 24, "\377\377\377\377\377\377\377\177\377\377\377\377\377\377\377\177", 16,
         "more members than"},
        {end64 + 24, "\1\0\0\0\0\0\0\0\1", 9, "unexpected bytes after the directory"},
        {end64 + 40, "\0", 1, "does not reach from its offset"},
        {end64 + 48, "\377\377\377\377\377\377\377\377", 8, "does not reach from its offset"},
        {locator, "x", 1, "does not reach from its offset"},
        {locator + 8, "\0", 1, "the zip64 end record is not before its locator"},
        {tail, "x", 1, "not a zip archive: it has no end record"},
        {tail + 20, "\1", 1, "it has no end record"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        disk_write("z", bytes, size);
        memcpy(disk_find("z")->file->bytes + cases[i].at, cases[i].bytes, cases[i].n);
        if (!CHECK(!opens_npz())) printf("  case %zu\n", i);
        if (!CHECK_ERROR(cases[i].error)) printf("  case %zu\n", i);
    }
    unsigned char *moved = malloc(size + 1);
    memcpy(moved + 1, bytes, size);
    moved[0] = 'x';
    disk_write("z", moved, size + 1);
    CHECK(!opens_npz() && CHECK_ERROR("the zip64 end record is not before its locator"));
    CHECK(!fl_data_open_npz("absent") && CHECK_ERROR("fl_data_open_npz: absent: cannot open"));
    CHECK(!fl_data_open_npz(NULL) && CHECK_ERROR("path is NULL"));
    free(moved);
    free(bytes);
    end(&s);
}

static bool save_npy_file(void) {
    fl_tensor *t = fl_full(FL_SHAPE(30), 3, FL_F32);
    return t && fl_data_save_npy("n", t);
}
static bool load_npy_file(void) { return fl_data_load_npy("n") != NULL; }
static bool npz_deflates;
static bool save_npz_file(void) {
    fl_tensor *t = fl_full(FL_SHAPE(30), 3, FL_F32);
    return t && fl_data_save_npz("z", (fl_data_named_tensor[]){{"a", t}, {"b", t}}, 2, npz_deflates);
}
TEST(npz_limits_what_it_unpacks) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *zeros = fl_zeros(FL_SHAPE(1000000), FL_U8);
    if (!fl_data_save_npz("z", (fl_data_named_tensor[]){{"a", zeros}, {"b", zeros}}, 2, true)) {
        CHECK_ERROR("install zlib");
        end(&s);
        SKIP("built without zlib");
    }
    CHECK(!fl_data_open_npz("z") && CHECK_ERROR("bytes unpack to 2000256, more than .max_bytes, "));
    CHECK(!fl_data_open_npz("z", .max_bytes = 2000255) && CHECK_ERROR(".max_bytes, 2000255"));
    fl_data_file *f = fl_data_open_npz("z", .max_bytes = 2000256);
    CHECK(f && fl_numel(fl_data_read(f, "b")) == 1000000);
    fl_data_close(f);
    CHECK(fl_data_save_npz("z", (fl_data_named_tensor[]){{"a", zeros}}, 1, false)); /* stored: nothing is unpacked */
    CHECK((f = fl_data_open_npz("z", .max_bytes = 1)) != NULL);
    fl_data_close(f);
    end(&s);
}

static bool load_npz_file(void) {
    fl_data_file *f = fl_data_open_npz("z");
    fl_tensor *a = f ? fl_data_read(f, "a") : NULL, *b = a ? fl_data_read(f, "b") : NULL;
    fl_data_close(f);
    return b != NULL;
}

/* A save that fails leaves the old file, up to the rename. */
static void sweep_writer(bool (*save)(void), bool (*load)(void), const char *temp) {
    const int calls = count_calls(save);
    for (int kind = FAULT_ERROR; kind <= FAULT_ERROR_FROM_HERE; kind++)
        for (int at = 1; at <= calls; at++) {
            disk_fault_at(at, (fault)kind);
            CHECK(!save() && CHECK_ERROR("cannot "));
            disk_fault_at(0, FAULT_ERROR);
            CHECK(load() && save() && !disk_find(temp));
        }
    for (int kind = FAULT_EINTR; kind <= FAULT_SHORT; kind++)
        for (int at = 1; at <= calls; at++) {
            disk_fault_at(at, (fault)kind);
            CHECK(save());
            disk_fault_at(at, (fault)kind);
            CHECK(load());
        }
    disk_fault_at(0, FAULT_ERROR);
    sweep_reader(load);
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        CHECK(sweep_heap(save, for_ever) > 0 && sweep_heap(load, for_ever) > 0);
        CHECK(sweep_buffers(save, for_ever) > 0 && sweep_buffers(load, for_ever) > 0);
    }
}

TEST(npy_and_npz_on_a_failing_disk_and_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    sweep_writer(save_npy_file, load_npy_file, "n.tmp");
    for (int deflate = 0; deflate <= have_deflate(); deflate++) {
        npz_deflates = deflate;
        sweep_writer(save_npz_file, load_npz_file, "z.tmp");
    }
    end(&s);
}

/* float and double, vector and matrix, of either byte order, all with the values 0, 1, 2, ... */
TEST(npy_of_either_byte_order) {
    enum { N = 6 };
    static const char *const dicts[] = {DICT("<f4", "False", "6,"), DICT("<f8", "False", "6,"),
                                        DICT("<f4", "False", "2, 3"), DICT("<f8", "False", "2, 3"),
                                        DICT(">f4", "False", "6,"), DICT(">f8", "False", "6,"),
                                        DICT(">f4", "False", "2, 3"), DICT(">f8", "False", "2, 3")};
    begin();
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < 8; i++) {
        const size_t size = i & 1 ? 8 : 4;
        unsigned char bytes[N * 8];
        for (int k = 0; k < N; k++) {
            const float x = (float)k;
            const double wide = k;
            memcpy(bytes + (size_t)k * size, i & 1 ? (const void *)&wide : &x, size);
            for (size_t b = 0; i >= 4 && b < size / 2; b++) {
                unsigned char *at = bytes + (size_t)k * size, keep = at[b];
                at[b] = at[size - 1 - b], at[size - 1 - b] = keep;
            }
        }
        fl_tensor *t = load_npy(dicts[i], bytes, N * size);
        REQUIRE(t && t->dtype == (i & 1 ? FL_F64 : FL_F32) && t->ndim == 1 + (i >> 1 & 1));
        CHECK_EQ_INT(fl_numel(t), N);
        for (int64_t k = 0; k < N; k++)
            CHECK(fl_item(fl_slice(fl_reshape(t, FL_SHAPE(-1)), 0, k, k + 1, 1)) == (double)k);
    }
    end(&s);
}

/* ---- CSV ---- */

/* All rows of "c", fields in <>, or "!" at the end. */
static const char *rows_of(fl_data_csv *c) {
    static char out[3000];
    size_t n = 0;
    out[0] = 0;
    for (int64_t i = 0; c && c->name && i < c->n; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "(%s)", c->name[i]);
    while (fl_data_csv_next(c)) {
        for (int64_t i = 0; i < c->n; i++)
            n += (size_t)snprintf(out + n, sizeof out - n, "<%s>", c->field[i]);
        n += (size_t)snprintf(out + n, sizeof out - n, ";");
    }
    if (!c || !c->ended) snprintf(out + n, sizeof out - n, "!");
    fl_data_csv_close(c);
    return out;
}

static void write_csv(const char *text) { disk_write("c", text, strlen(text)); }

TEST(csv_rows) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *csv, *rows; } cases[] = {
        {"", ""},
        {"\xef\xbb\xbf", ""},
        {"\n\r\n", ""},
        {"a,b", "(a)(b)"},
        {"a,b\n", "(a)(b)"},
        {"\xef\xbb\xbf" "a,b\r\n1,2\r\n3,4", "(a)(b)<1><2>;<3><4>;"},
        {"a,b\n,\n\n\"\",x\n", "(a)(b)<><>;<><x>;"},
        {"a\n1\n\n2\n", "(a)<1>;<>;<2>;"},
        {"\"a\",\"b \"\"c\"\"\"\n\"1,\n2\",\"\"\"\"\n", "(a)(b \"c\")<1,\n2><\">;"},
        {"a,b\n 1 , 2\n", "(a)(b)< 1 >< 2>;"},
        {"\xc3\xa9,b\n\xf0\x9f\x99\x82,\n", "(\xc3\xa9)(b)<\xf0\x9f\x99\x82><>;"},
        {"a\n\"\"", "(a)<>;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_csv(cases[i].csv);
        const char *got = rows_of(fl_data_csv_open("c"));
        if (!CHECK(!strcmp(got, cases[i].rows)) || !CHECK_NO_ERROR())
            printf("  %s -> %s\n", cases[i].csv, got);
    }
    write_csv("1;2,x\n3;4\n");
    CHECK(!strcmp(rows_of(fl_data_csv_open("c", .delimiter = ';', .no_header = true)), "<1><2,x>;<3><4>;"));
    end(&s);
}

TEST(csv_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *csv, *error; } cases[] = {
        {"a,b\n1\n", "fl_data_csv_open: c: line 2: got 1 fields, expected 2"},
        {"a,b\n1,2,3\n", "line 2: got 3 fields, expected 2"},
        {"a,b\n1,2\n\n\n1,\"x\n\ny\"\n3\n", "line 8: got 1 fields, expected 2"},
        {"a,b\n1,\"2\n3,4\n", "line 2: a quoted field is not terminated"},
        {"\"", "line 1: a quoted field is not terminated"},
        {"a,b\n1,2\"3\n", "line 2: a quote inside an unquoted field"},
        {"a,b\n1,\"2\"3\n", "line 2: text after a closing quote"},
        {"a,b\n1,\"2\" ,3\n", "line 2: text after a closing quote"},
        {"a,b\n1,\"2\"\"\n", "line 2: a quoted field is not terminated"},
        {"a,b\r1,2\r", "line 1: a CR without LF"},
        {"a,b\n1,2\r", "line 2: a CR without LF"},
        {"a,b\n1,\xff\n", "line 2: a field is not valid UTF-8"},
        {"a,b\n1,\"\xe2\x82\"\n", "line 2: a field is not valid UTF-8"},
        {"a,b\n\"\"\n", "line 2: got 1 fields"},
        {"a,b\n\"\n\",\"\n\"\n1\n", "line 5: got 1 fields"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_csv(cases[i].csv);
        const char *got = rows_of(fl_data_csv_open("c"));
        if (!CHECK(strlen(got) && got[strlen(got) - 1] == '!')) printf("  %s -> %s\n", cases[i].csv, got);
        if (!CHECK_ERROR(cases[i].error)) printf("  %s\n", cases[i].csv);
    }
    disk_write("c", "a\nb\0c\n", 6);
    CHECK(!strcmp(rows_of(fl_data_csv_open("c")), "(a)!") && CHECK_ERROR("line 2: a NUL"));
    CHECK(!fl_data_csv_open("c", .delimiter = '"') && CHECK_ERROR("the delimiter must not be"));
    CHECK(!fl_data_csv_open("absent") && CHECK_ERROR("fl_data_csv_open: absent: cannot open: No such file"));
    end(&s);
}

/* A file of 20 MB of the letter x. */
static int64_t endless_size(void *user, void *handle) { return (void)user, (void)handle, 20000000; }
static int64_t endless_read(void *user, void *handle, void *dst, size_t n, int64_t at) {
    (void)user, (void)handle, (void)at;
    memset(dst, 'x', n);
    return (int64_t)n;
}

TEST(csv_of_an_endless_row) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_io io = disk_io;
    io.size = endless_size, io.read = endless_read;
    fl_data_io_use(&io);
    write_csv("");
    CHECK(!fl_data_csv_open("c") && CHECK_ERROR("c: line 1: the row is longer than 16 MiB"));
    end(&s);
}

TEST(csv_numbers) {
    begin();
    fl_scope s = fl_scope_begin();
    write_csv(
        "name,x,n\nfirst,1.5,-3\n\"the, second\", -2e-3 ,9223372036854775807\nthird,nan,x\nfourth,,1.0\n");
    fl_data_csv *c = fl_data_csv_open("c");
    REQUIRE(c && c->n == 3);
    const int64_t x = fl_data_csv_column(c, "x"), n = fl_data_csv_column(c, "n");
    double d = 0;
    int64_t i = 0;
    CHECK(x == 1 && n == 2 && fl_data_csv_column(c, "y") == -1 &&
          CHECK_ERROR("fl_data_csv_column: c: there is no column 'y'"));
    CHECK(!fl_data_csv_double(c, x, &d) && CHECK_ERROR("line 1, column 1: there is no such field"));
    CHECK(fl_data_csv_next(c) && c->row == 1 && c->line == 2 && fl_data_csv_double(c, x, &d) && d == 1.5);
    CHECK(fl_data_csv_int(c, n, &i) && i == -3 && fl_data_csv_double(c, n, &d) && d == -3);
    CHECK(!fl_data_csv_double(c, 0, &d) && CHECK_ERROR("c: line 2, column 0: 'first': not a number"));
    CHECK(!fl_data_csv_double(c, 3, &d) && CHECK_ERROR("column 3: there is no such field"));
    CHECK(fl_data_csv_next(c) && !strcmp(c->field[0], "the, second") && fl_data_csv_double(c, x, &d) &&
          d == -0.002);
    CHECK(fl_data_csv_int(c, n, &i) && i == INT64_MAX);
    CHECK(fl_data_csv_next(c) && fl_data_csv_double(c, x, &d) && isnan(d));
    CHECK(!fl_data_csv_int(c, n, &i) && CHECK_ERROR("line 4, column 2: 'x': not an integer"));
    CHECK(fl_data_csv_next(c) && !fl_data_csv_double(c, x, &d) && CHECK_ERROR("'': not a number"));
    CHECK(!fl_data_csv_int(c, n, &i) && CHECK_ERROR("'1.0': not an integer"));
    CHECK(!fl_data_csv_next(c) && c->ended && !fl_data_csv_next(c) && c->row == 4);
    fl_data_csv_close(c);
    static const struct { const char *csv; fl_dtype dtype; const char *error; } cases[] = {
        {"a\n256\n", FL_U8, "line 2, column 0: '256': the number is out of range of the dtype"},
        {"a\n1\n-1\n", FL_U64, "line 3, column 0: '-1': the number is out of range of the dtype"},
        {"a\n2\n", FL_B8, "out of range of the dtype"},
        {"a\n9223372036854775808\n", FL_I64, "the number overflows int64"},
        {"a\n1.5\n", FL_I32, "not an integer"},
        {"a\none\n", FL_F32, "not a number"},
        {"a\n1\n2,3\n", FL_F32, "line 3: got 2 fields, expected 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        write_csv(cases[k].csv);
        c = fl_data_csv_open("c");
        CHECK(!fl_data_csv_tensor(c, (int64_t[]){0}, 1, cases[k].dtype) && CHECK_ERROR(cases[k].error));
        fl_data_csv_close(c);
    }
    write_csv("a,b,c\n1,x,-1\n2,y,-2\n");
    c = fl_data_csv_open("c");
    CHECK(same_bits(fl_data_csv_tensor(c, (int64_t[]){2, 0}, 2, FL_I16),
                    fl_from_host((int16_t[]){-1, 1, -2, 2}, FL_SHAPE(2, 2), FL_I16)));
    CHECK(same_bits(fl_data_csv_tensor(c, (int64_t[]){2, 0}, 2, FL_F32), fl_zeros(FL_SHAPE(0, 2), FL_F32)));
    CHECK(!fl_data_csv_tensor(c, NULL, 2, FL_F32) && CHECK_ERROR("the table or the columns are NULL"));
    fl_data_csv_close(c);
    end(&s);
}

TEST(csv_round_trip) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int d = 0; d < NPY_DTYPES; d++) {
        fl_tensor *t = fl_cast(fl_reshape(fl_arange(-2, 6, 1, FL_I64), FL_SHAPE(4, 2)), npy_dtypes[d]);
        if (npy_dtypes[d] == FL_U64) t = fl_abs(fl_reshape(fl_arange(-2, 6, 1, FL_I64), FL_SHAPE(4, 2)));
        for (int names = 0; names < 2; names++) {
            REQUIRE(fl_data_save_csv(
                "c", names ? (const char *[]){"first", "a \"second\", longer\nname"} : NULL, t));
            fl_data_csv *c = fl_data_csv_open("c", .no_header = !names);
            CHECK(c && (!names || !strcmp(c->name[1], "a \"second\", longer\nname")));
            CHECK(same_bits(fl_data_csv_tensor(c, (int64_t[]){0, 1}, 2, t->dtype), t));
            fl_data_csv_close(c);
        }
    }
    const double numbers[] = {0.1, 1e300, -5e-324, INFINITY, -INFINITY, 1.0 / 3};
    fl_tensor *t = fl_from_host(numbers, FL_SHAPE(6, 1), FL_F64);
    fl_tensor *many = fl_reshape(fl_arange(0, 9000, 1, FL_F32), FL_SHAPE(3000, 3)); /* many windows */
    REQUIRE(fl_data_save_csv("c", NULL, t));
    fl_data_csv *c = fl_data_csv_open("c", .no_header = true);
    CHECK(same_bits(fl_data_csv_tensor(c, (int64_t[]){0}, 1, FL_F64), t));
    fl_data_csv_close(c);
    REQUIRE(fl_data_save_csv("c", NULL, fl_transpose(fl_contiguous(fl_transpose(many, 0, 1)), 0, 1)));
    memory_mark();
    c = fl_data_csv_open("c", .no_header = true);
    CHECK(same_bits(fl_data_csv_tensor(c, (int64_t[]){0, 1, 2}, 3, FL_F32), many));
    memory_bounded(disk_find("c")->file->size, 16);
    fl_data_csv_close(c);
    CHECK(!fl_data_save_csv("c", NULL, fl_ones(FL_SHAPE(3), FL_F32)) && CHECK_ERROR("not [rows, columns]"));
    CHECK(!fl_data_save_csv("c", (const char *[]){"a", NULL, "b"}, many) && CHECK_ERROR("name 1 is NULL"));
    fl_data_text text = {0};
    const char *fields[] = {"", "a;b", "c,d", "\"", "\r", "x\"\"y", " "};
    CHECK(fl_data_csv_put(&text, fields, 7, ';') && fl_data_csv_put(&text, fields, 1, ';'));
    CHECK(!strcmp(text.p, ";\"a;b\";c,d;\"\"\"\";\"\r\";\"x\"\"\"\"y\"; \r\n\"\"\r\n"));
    text.n = 0;
    CHECK(fl_data_csv_put(&text, (const char *[]){"\xef\xbb\xbf" "a"}, 1, ','));
    write_csv(text.p);
    CHECK(!strcmp(rows_of(fl_data_csv_open("c")), "(\xef\xbb\xbf" "a)"));
    fl_heap_free(text.p);
    end(&s);
}

TEST(csv_every_prefix_and_byte_change) {
    begin();
    fl_scope s = fl_scope_begin();
    const char *text = "\xef\xbb\xbf" "a,\"b \"\"\"\r\n1,\"x\ny\"\n2,\xc3\xa9\n";
    const size_t size = strlen(text);
    int rows[3] = {0};
    for (size_t n = 0; n <= size; n++) {
        disk_write("c", text, n);
        const char *got = rows_of(fl_data_csv_open("c"));
        CHECK((*got && got[strlen(got) - 1] == '!') == (fl_error() != NULL));
        rows[fl_error() != NULL]++;
        fl_error_clear();
    }
    for (size_t i = 0; i < size; i++)
        for (int change = 1; change < 256; change++) {
            write_csv(text);
            disk_find("c")->file->bytes[i] ^= (unsigned char)change;
            memory_mark();
            const char *got = rows_of(fl_data_csv_open("c"));
            CHECK((*got && got[strlen(got) - 1] == '!' && fl_error()) || !fl_error());
            rows[fl_error() != NULL]++;
            memory_bounded(size, 16);
            fl_error_clear();
        }
    CHECK(rows[0] > 1000 && rows[1] > 1000);
    end(&s);
}

/* A row that crosses the window at every place. */
TEST(csv_across_the_window) {
    begin();
    fl_scope s = fl_scope_begin();
    const char *tail = "\",\"q \"\"\r\n\",\xf0\x9f\x99\x82\r\n1,2,\"3\"";
    char *text = malloc(20000);
    for (size_t pad = 16384 - strlen(tail) - 2; pad <= 16384; pad++) {
        memset(text, 'x', pad);
        text[0] = '"';
        memcpy(text + pad, tail, strlen(tail) + 1);
        write_csv(text);
        fl_data_csv *c = fl_data_csv_open("c", .no_header = true);
        CHECK(fl_data_csv_next(c) && c->n == 3 && strlen(c->field[0]) == pad - 1);
        CHECK(!strcmp(c->field[1], "q \"\r\n") && !strcmp(c->field[2], "\xf0\x9f\x99\x82"));
        CHECK(fl_data_csv_next(c) && !strcmp(c->field[2], "3") && c->line == 3 && !fl_data_csv_next(c) &&
              c->ended);
        fl_data_csv_close(c);
    }
    free(text);
    end(&s);
}

static bool save_csv_file(void) {
    fl_tensor *t = fl_full(FL_SHAPE(30, 2), 3, FL_F32);
    return t && fl_data_save_csv("c", (const char *[]){"a", "b"}, t);
}
static bool load_csv_file(void) {
    fl_data_csv *c = fl_data_csv_open("c");
    fl_tensor *t = c ? fl_data_csv_tensor(c, (int64_t[]){1}, 1, FL_F32) : NULL;
    fl_data_csv_close(c);
    return t && fl_numel(t) == 30;
}

TEST(csv_on_a_failing_disk_and_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    sweep_writer(save_csv_file, load_csv_file, "c.tmp");
    end(&s);
}

/* ---- for tests/python: `test_formats copy FROM TO` reads one format and writes another, by their ends
   ---- */

static bool ends(const char *path, const char *end) {
    const size_t n = strlen(path), k = strlen(end);
    return n >= k && !strcmp(path + n - k, end);
}

static bool copy_list(fl_data_file *f, const char *to) {
    static fl_data_named_tensor list[200];
    int n = 0;
    for (; f && n < 200 && n < fl_data_count(f); n++) {
        list[n] = (fl_data_named_tensor){fl_data_name(f, n), fl_data_read(f, fl_data_name(f, n))};
        if (!list[n].tensor) return false;
    }
    if (!f) return false;
    if (ends(to, ".npy")) return n == 1 && fl_data_save_npy(to, list[0].tensor);
    if (ends(to, ".npz")) return fl_data_save_npz(to, list, n, ends(to, ".deflated.npz"));
    if (ends(to, ".json"))
        return fl_data_save_sharded(to, list, n, (fl_data_key_value[]){{"format", "pt"}}, 1, 100);
    return fl_data_save_safetensors(to, list, n, (fl_data_key_value[]){{"format", "pt"}}, 1);
}

static bool copy(const char *from, const char *to, int64_t max_bytes) {
    fl_scope s = fl_scope_begin();
    bool ok = false;
    if (ends(from, ".npy")) {
        fl_tensor *t = fl_data_load_npy(from);
        ok = t && (ends(to, ".npy")
                       ? fl_data_save_npy(to, t)
                       : fl_data_save_npz(to, (fl_data_named_tensor[]){{"a", t}}, 1,
                                          ends(to, ".deflated.npz")));
    } else {
        fl_data_file *f = ends(from, ".npz") ? fl_data_open_npz(from, .max_bytes = max_bytes)
                                             : fl_data_open_safetensors(from);
        ok = copy_list(f, to);
        fl_data_close(f);
    }
    fl_scope_end(&s);
    if (!ok) printf("%s\n", fl_error());
    return ok;
}

int main(int argc, char **argv) {
    if (argc >= 4 && !strcmp(argv[1], "copy")) return !copy(argv[2], argv[3], argc > 4 ? atoll(argv[4]) : 0);
    return test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
