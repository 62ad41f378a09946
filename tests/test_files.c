/* test_files.c - idx and safetensors files: round trips, hostile files, failing disks, failing
   memory, killed writers */
#include "disk.h"
#ifndef _WIN32
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#endif

/* ---- safetensors: what goes in comes out ---- */

TEST(safetensors_round_trip) {
    begin();
    fl_scope s = fl_scope_begin();
    const uint8_t truth[3] = {1, 0, 1};
    fl_tensor *m = fl_reshape(fl_arange(0, 6, 1, FL_F32), FL_SHAPE(2, 3));
    const fl_data_named_tensor in[] = {
        {"layer.0.weight", m},
        {"transposed", fl_transpose(m, 0, 1)},
        {"f64 \"quoted\" \\ \n \x01", fl_arange(0, 1, 0.125, FL_F64)},
        {"i64", fl_arange(-3, 3, 1, FL_I64)},
        {"i32", fl_cast(fl_arange(-3, 3, 1, FL_I64), FL_I32)},
        {"u8", fl_cast(fl_arange(0, 256, 1, FL_I64), FL_U8)},
        {"i8", fl_arange(-128, 128, 1, FL_I8)},
        {"i16", fl_arange(-3, 3, 1, FL_I16)},
        {"u16", fl_cast(fl_arange(0, 70000, 7, FL_I64), FL_U16)},
        {"u32", fl_cast(fl_arange(-3, 3, 1, FL_I64), FL_U32)},
        {"u64", fl_cast(fl_arange(-3, 3, 1, FL_I64), FL_U64)},
        {"f16", fl_arange(-3, 3, 0.125, FL_F16)},
        {"bf16", fl_arange(-3, 3, 0.125, FL_BF16)},
        {"b8", fl_from_host(truth, FL_SHAPE(3), FL_B8)},
        {"scalar", fl_full(FL_SCALAR_SHAPE, -2.5, FL_F32)},
        {"empty", fl_zeros(FL_SHAPE(3, 0), FL_F32)},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", fl_arange(0, 1, 1, FL_F32)},
        {"eight", fl_reshape(fl_arange(0, 4, 1, FL_I64), FL_SHAPE(1, 2, 1, 1, 1, 2, 1, 1))},
    };
    enum { N = sizeof in / sizeof in[0] };
    const fl_data_key_value meta[] = {{"step", "17"}, {"", "\t\"\\"}, {"config", ""}};
    REQUIRE(fl_data_save_safetensors("m", in, N, meta, 3));
    fl_data_file *f = fl_data_open_safetensors("m");
    REQUIRE(CHECK_NO_ERROR() && f);
    CHECK_EQ_INT(fl_data_count(f), N);
    for (int i = 0; i < N; i++) {
        fl_tensor *t = fl_data_read(f, in[i].name);
        CHECK(same_bits(t, in[i].tensor));
        CHECK(!strcmp(fl_data_name(f, i), in[i].name));
        CHECK_EQ_INT(fl_data_find(f, in[i].name), i);
        CHECK_EQ_INT(fl_data_dtype(f, i), in[i].tensor->dtype);
        CHECK_EQ_INT(fl_data_shape(f, i).ndim, in[i].tensor->ndim);
    }
    CHECK(!strcmp(fl_data_meta(f, "step"), "17"));
    CHECK(!strcmp(fl_data_meta(f, ""), "\t\"\\"));
    CHECK(!strcmp(fl_data_meta(f, "config"), ""));
    CHECK(!fl_data_meta(f, "none"));
    CHECK_EQ_INT(fl_data_find(f, "none"), -1);
    CHECK_NO_ERROR();
    CHECK(!fl_data_read(f, "none"));
    CHECK_ERROR("no tensor 'none'");
    CHECK(!fl_data_name(f, N));
    CHECK_ERROR("[0, 18), got");
    fl_data_close(f);
    end(&s);
}

TEST(safetensors_of_nothing) {
    begin();
    fl_scope s = fl_scope_begin();
    REQUIRE(fl_data_save_safetensors("m", NULL, 0, NULL, 0));
    fl_data_file *f = fl_data_open_safetensors("m");
    REQUIRE(f);
    CHECK_EQ_INT(fl_data_count(f), 0);
    fl_data_close(f);
    end(&s);
}

/* CRC32C, one bit at a time. */
static uint32_t slow_crc(const void *bytes, size_t n) {
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++) {
        c ^= ((const unsigned char *)bytes)[i];
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    }
    return ~c;
}

TEST(safetensors_bytes_are_as_documented) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *digits = fl_from_host("123456789", FL_SHAPE(9), FL_U8);
    REQUIRE(fl_data_save_safetensors("m", (fl_data_named_tensor[]){{"d", digits}}, 1, NULL, 0));
    const node *f = disk_find("m")->file;
    const char *want = "{\"__metadata__\":{\"crc32c\":\"????????\",\"crc32c.d\":\"e3069283\",\"format\":\"pt\"},"
                       "\"d\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}";
    CHECK_EQ_INT(slow_crc("123456789", 9), 0xe3069283u);
    CHECK_EQ_INT(f->bytes[0] + 256 * f->bytes[1], (strlen(want) + 7) / 8 * 8);
    for (size_t i = 0; i < strlen(want); i++)
        CHECK(want[i] == '?' || want[i] == (char)f->bytes[8 + i]);
    CHECK(!memcmp(f->bytes + f->size - 9, "123456789", 9));
    CHECK(!disk_find("m.tmp"));
    end(&s);
}

/* Sums of all lengths and alignments against the slow one. */
TEST(safetensors_checksums_of_all_lengths) {
    begin();
    fl_scope s = fl_scope_begin();
    uint8_t bytes[40];
    for (int i = 0; i < 40; i++) bytes[i] = (uint8_t)(i * 37 + 11);
    for (int n = 1; n <= 40; n++) {
        char want[9];
        fl_tensor *t = fl_from_host(bytes, FL_SHAPE(n), FL_U8);
        REQUIRE(fl_data_save_safetensors("m", (fl_data_named_tensor[]){{"t", t}}, 1, NULL, 0));
        fl_data_file *f = fl_data_open_safetensors("m");
        REQUIRE(f);
        snprintf(want, sizeof want, "%08x", (unsigned)slow_crc(bytes, (size_t)n));
        CHECK(!strcmp(fl_data_meta(f, "crc32c.t"), want));
        fl_data_close(f);
    }
    end(&s);
}

/* Long ones too, from any address, whole and of parts. */
TEST(long_checksums) {
    enum { MOST = 200001 };
    uint8_t *bytes = malloc(MOST);
    for (int i = 0; i < MOST; i++) bytes[i] = (uint8_t)((uint32_t)i * 2654435761u >> 21);
    const int sizes[] = {63, 64, 65, 1000, 24575, 24576, 24577, 49155, 100000, MOST - 8};
    for (int k = 0; k < 10; k++)
        for (int from = 0; from < 8; from++) {
            const uint32_t want = slow_crc(bytes + from, (size_t)sizes[k]);
            CHECK_EQ_INT(fl_data_crc32c(0, bytes + from, (size_t)sizes[k]), want);
            const size_t cut = (size_t)sizes[k] / 3, rest = (size_t)sizes[k] - cut;
            const uint32_t head = fl_data_crc32c(0, bytes + from, cut);
            CHECK_EQ_INT(fl_data_crc32c(head, bytes + from + cut, rest), want);
        }
    free(bytes);
}

/* A tensor of several pieces: a byte changed in any of them, or one that cannot be read or written, is an
   error. */
static fl_tensor *large;
static bool save_large(void) {
    return fl_data_save_safetensors("m", (fl_data_named_tensor[]){{"t", large}}, 1, NULL, 0);
}
static bool load_large(void) {
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_data_open_safetensors("m");
    const bool ok = f && same_bits(fl_data_read(f, "t"), large);
    fl_data_close(f);
    fl_scope_end(&s);
    return ok;
}

TEST(large_tensors) {
    begin();
    fl_scope s = fl_scope_begin();
    large = fl_randint(FL_SHAPE(100001), 0, 1 << 30, &(fl_rng){1, 0});
    const size_t bytes = 100001 * 8;
    char *copy = malloc(bytes), want[9];
    CHECK(fl_to_host(large, copy, bytes) && save_large());
    snprintf(want, sizeof want, "%08x", (unsigned)slow_crc(copy, bytes));
    free(copy);
    fl_data_file *f = fl_data_open_safetensors("m");
    CHECK(f && !strcmp(fl_data_meta(f, "crc32c.t"), want));
    fl_data_close(f);
    node *file = disk_find("m")->file;
    for (size_t at = 0; at < bytes; at += 70001) {
        file->bytes[file->size - bytes + at] ^= 1;
        CHECK(!load_large());
        CHECK_ERROR("the checksum of tensor 't' does not match");
        file->bytes[file->size - bytes + at] ^= 1;
    }
    sweep_reader(load_large);
    const int calls = count_calls(save_large);
    CHECK(calls > 8);
    for (int at = 1; at <= calls; at++) {
        disk_fault_at(at, FAULT_ERROR);
        CHECK(!save_large());
        CHECK_ERROR("cannot ");
    }
    end(&s);
}

/* Written by the Python package (safetensors 0.8.0): w f32 [2, 3], flag bool [2], n i64 []. No
   checksums. */
static const char python_file[] =
    "\xd8\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\":{\"note\":\"a \\\"quoted\\\" \xc3\xa9\\n\"},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"flag\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[32,34]}}    "
    "\xf9\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@\x00\x00"
    "\x80@\x00\x00\xa0@\x01";

TEST(safetensors_from_python) {
    begin();
    fl_scope s = fl_scope_begin();
    disk_write("p", python_file, sizeof python_file); /* its last byte is the string's NUL */
    fl_data_file *f = fl_data_open_safetensors("p");
    REQUIRE(CHECK_NO_ERROR() && f);
    CHECK(!strcmp(fl_data_meta(f, "note"), "a \"quoted\" \xc3\xa9\n"));
    CHECK_EQ_INT(fl_item_int(fl_data_read(f, "n")), -7);
    CHECK(same_bits(fl_data_read(f, "w"), fl_reshape(fl_arange(0, 6, 1, FL_F32), FL_SHAPE(2, 3))));
    CHECK(same_bits(fl_data_read(f, "flag"), fl_from_host("\1", FL_SHAPE(2), FL_B8)));
    fl_data_close(f);
    disk_find("p")->file->bytes[sizeof python_file - 2] = 2; /* neither false nor true */
    f = fl_data_open_safetensors("p");
    REQUIRE(f);
    CHECK(!fl_data_read(f, "flag"));
    CHECK_ERROR("offset 256: got 2 in the BOOL tensor 'flag'");
    fl_data_close(f);
    end(&s);
}

/* Another program may write the header in another order: the checksums are over what it says. */
TEST(safetensors_checksums_survive_reordering) {
    begin();
    fl_scope s = fl_scope_begin();
    const uint8_t bytes[2] = {7, 9};
    fl_data_named_tensor in[] = {{"a", fl_from_host(bytes, FL_SHAPE(1), FL_U8)},
                                 {"b", fl_from_host(bytes + 1, FL_SHAPE(1), FL_U8)}};
    REQUIRE(fl_data_save_safetensors("m", in, 2, NULL, 0));
    fl_data_file *f = fl_data_open_safetensors("m");
    REQUIRE(f);
    char file[400], *text = file + 8;
    int len = snprintf(
        text, sizeof file - 8,
        "{ \"b\" : {\"shape\":[1], \"data_offsets\":[0,1], \"dtype\":\"U8\"},\n"
        "\"__metadata__\":{\"crc32c.b\":\"%s\",\"crc32c\":\"%s\",\"\\u0063rc32c.a\":\"%s\","
        "\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        fl_data_meta(f, "crc32c.b"), fl_data_meta(f, "crc32c"), fl_data_meta(f, "crc32c.a"));
    memset(file, 0, 8);
    file[0] = (char)len, file[1] = (char)(len >> 8);
    text[len] = 9, text[len + 1] = 7;
    fl_data_close(f);
    disk_write("m", file, (size_t)len + 10);
    f = fl_data_open_safetensors("m");
    REQUIRE(CHECK_NO_ERROR() && f);
    CHECK_EQ_INT(fl_item_int(fl_data_read(f, "a")), 7);
    CHECK_EQ_INT(fl_item_int(fl_data_read(f, "b")), 9);
    fl_data_close(f);
    end(&s);
}

TEST(safetensors_save_refuses) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_arange(0, 3, 1, FL_F32);
    char *longest = malloc(FL_DATA_MAX_NAME + 2);
    memset(longest, 'x', FL_DATA_MAX_NAME + 1);
    longest[FL_DATA_MAX_NAME + 1] = 0;
    const struct {
        fl_data_named_tensor t[2];
        int n;
        fl_data_key_value meta[2];
        int n_meta;
        const char *error;
    } cases[] = {
        {{{"a", t}, {"a", t}}, 2, {{0}}, 0, "duplicate tensor name 'a'"},
        {{{"", t}}, 1, {{0}}, 0, "without name"},
        {{{NULL, t}}, 1, {{0}}, 0, "a name is NULL"},
        {{{"__metadata__", t}}, 1, {{0}}, 0, "__metadata__"},
        {{{"a\xff", t}}, 1, {{0}}, 0, "not UTF-8"},
        {{{"a\xed\xa0\x80", t}}, 1, {{0}}, 0, "not UTF-8"},
        {{{longest, t}}, 1, {{0}}, 0, "more than 4096"},
        {{{"a", NULL}}, 1, {{0}}, 0, "'a' is NULL"},
        {{{"a", fl_num(1)}}, 1, {{0}}, 0, "a scalar constant"},
        {{{"a", t}}, -1, {{0}}, 0, "negative"},
        {{{"a", t}}, 1, {{"crc32c", "x"}}, 1, "starts with crc32c"},
        {{{"a", t}}, 1, {{"k", "\x80"}}, 1, "not UTF-8"},
        {{{"a", t}}, 1, {{"k", NULL}}, 1, "has a NULL"},
        {{{"a", t}}, 1, {{"k", "1"}, {"k", "2"}}, 2, "duplicate metadata key 'k'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(
            !fl_data_save_safetensors("m", cases[i].t, cases[i].n, cases[i].meta, cases[i].n_meta));
        CHECK_ERROR(cases[i].error);
    }
    CHECK(!fl_data_save_safetensors(NULL, NULL, 0, NULL, 0));
    CHECK_ERROR("path");
    CHECK(!fl_data_open_safetensors(NULL));
    CHECK_ERROR("path is NULL");
    CHECK(!fl_data_open_safetensors("absent"));
    CHECK_ERROR("absent: cannot open: No such file");
    CHECK(!disk_find("m") && !disk_find("m.tmp"));
    longest[FL_DATA_MAX_NAME] = 0;
    CHECK(fl_data_save_safetensors("m", (fl_data_named_tensor[]){{longest, t}}, 1, NULL, 0));
    fl_data_file *f = fl_data_open_safetensors("m");
    CHECK(f && same_bits(fl_data_read(f, longest), t));
    fl_data_close(f);
    free(longest);
    end(&s);
}

TEST(safetensors_save_refuses_a_header_that_loading_would_refuse) {
    begin();
    fl_scope s = fl_scope_begin();
    char *value = malloc(FL_DATA_MAX_HEADER + 1);
    memset(value, 'v', FL_DATA_MAX_HEADER);
    value[FL_DATA_MAX_HEADER] = 0;
    CHECK(!fl_data_save_safetensors("m", NULL, 0, (fl_data_key_value[]){{"k", value}}, 1));
    CHECK_ERROR("the header is longer than 100000000 bytes");
    CHECK(!disk_find("m") && !disk_find("m.tmp"));
    free(value);
    end(&s);
}

/* ---- safetensors: hostile files ---- */

/* Opens "m" and reads all of its tensors: true if there was no error. Whatever comes, memory is
   bounded. */
static bool opens(void) {
    fl_scope s = fl_scope_begin();
    memory_mark();
    fl_data_file *f = fl_data_open_safetensors("m");
    bool ok = f != NULL;
    for (int64_t i = 0; ok && i < fl_data_count(f); i++)
        ok = fl_data_read(f, fl_data_name(f, i)) != NULL;
    CHECK(ok == !fl_error());
    memory_bounded(disk_find("m")->file->size, 16);
    fl_data_close(f);
    fl_scope_end(&s);
    return ok;
}

/* A file of that header and `data` bytes behind it. */
static void write_header(const char *header, size_t data) {
    size_t n = strlen(header);
    unsigned char *file = calloc(1, 8 + n + data);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    disk_write("m", file, 8 + n + data);
    free(file);
}

#define T(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape \
    "],\"data_offsets\":[" from "," to "]}"

TEST(safetensors_malformed_headers) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *header; size_t data; const char *error;
    } cases[] = {
        {"[]", 0, "offset 8, line 1: expected an object, got an array"},
        {" {}", 0, "expected '{'"},
        {"\xef\xbb\xbf{}", 0, "offset 8, line 1: expected a value"},
        {"{}{", 0, "after the header"},
        {"{}\n", 0, "after the header"},
        {"{", 0, "got 1"},
        {"{ ", 0, "expected '\"'"},
        {"{}", 1, "1 unexpected bytes after the last tensor"},
        {"{" T("a", "F32", "1", "0", "4") "}", 3, "4: 0 was next, 3 is the end"},
        {"{" T("a", "F32", "1", "0", "4") "}", 5, "1 unexpected bytes"},
        {"{" T("a", "F32", "1", "1", "5") "}", 5, "0 was next"},
        {"{" T("a", "F32", "2", "0", "4") "}", 4, "do not match its shape"},
        {"{" T("a", "F32", "1", "4", "0") "}", 4, "do not match its shape"},
        {"{" T("a", "F32", "4611686018427387904,4", "0", "0") "}", 0, "do not match its shape"},
        {"{" T("a", "F32", "4611686018427387904", "0", "0") "}", 0, "do not match its shape"},
        {"{" T("a", "F64", "2305843009213693952", "0", "0") "}", 0, "do not match its shape"},
        {"{" T("a", "U8", "9223372036854775807", "0", "9223372036854775807") "}", 0,
         "do not match its shape"},
        {"{" T("a", "U8", "4611686018427387904", "0", "4611686018427387904") "}", 0, "0 is the end"},
        {"{" T("a", "U8", "9223372036854775808", "0", "0") "}", 0, "out of range of int64"},
        {"{" T("a", "U8", "1", "0", "18446744073709551617") "}", 1, "out of range of int64"},
        {"{" T("a", "U8", "-1", "0", "1") "}", 1, "non-negative"},
        {"{" T("a", "U8", "1", "-1", "0") "}", 1, "non-negative"},
        {"{" T("a", "U8", "1.0", "0", "1") "}", 1, "integer, got '1.0'"},
        {"{" T("a", "U8", "1e0", "0", "1") "}", 1, "integer, got '1e0'"},
        {"{" T("a", "U8", "01", "0", "1") "}", 1, "'01' is not a number"},
        {"{" T("a", "U8", "null", "0", "1") "}", 1, "expected a number, got null"},
        {"{" T("a", "U8", "NaN", "0", "1") "}", 1, "expected a value"},
        {"{" T("a", "U8", "[1]", "0", "1") "}", 1, "expected a number, got an array"},
        {"{" T("a", "U8", "1,", "0", "1") "}", 1, "offset 38, line 1: expected a value"},
        {"{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0", "1") "}", 1, "expected at most"},
        {"{" T("a", "U8", "1", "0", "1,1") "}", 1, "expected at most"},
        {"{" T("a", "F8_E4M3", "1", "0", "1") "}", 1, "tensor 'a' has the dtype 'F8_E4M3'"},
        {"{" T("a", "F4", "1", "0", "1") "}", 1, "'F4'"},
        {"{" T("a", "f32", "1", "0", "4") "}", 4, "'f32'"},
        {"{" T("a", "", "1", "0", "4") "}", 4, "''"},
        {"{" T("", "U8", "1", "0", "1") "}", 1, "without name"},
        {"{" T("a", "U8", "1", "0", "1") "," T("a", "U8", "1", "1", "2") "}", 2,
         "duplicate tensor name 'a'"},
        {"{" T("a", "U8", "1", "0", "1") "," T("\\u0061", "U8", "1", "1", "2") "}", 2,
         "duplicate tensor name 'a'"},
        {"{" T("a", "U8", "2", "0", "2") "," T("b", "U8", "2", "1", "3") "}", 3, "2 was next"},
        {"{" T("a", "U8", "2", "0", "2") "," T("b", "U8", "2", "0", "2") "}", 2, "2 was next"},
        {"{" T("a", "U8", "1", "0", "1") "," T("b", "U8", "1", "2", "3") "}", 3, "1 was next"},
        {"{" T("a", "U8", "1", "0", "1") ",}", 1, "expected '\"'"},
        {"{" T("a", "U8", "1", "0", "1") "", 1, "expected ',' or '}'"},
        {"{" T("a", "U8", "1", "0", "1") "," T("__metadata__", "U8", "1", "1", "2") "}", 2,
         "expected a string, got an array"},
        {"{\"a\":{}}", 0, "lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0, "expected two numbers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
         "duplicate field"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0, "unknown field"},
        {"{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
         "expected a string, got a number"},
        {"{\"a\":1}", 0, "expected an object, got a number"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, "expected an object, got an array"},
        {"{\"__metadata__\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}}", 0,
         "expected a string, got an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string, got a number"},
        {"{\"__metadata__\":null}", 0, "expected an object, got null"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second __metadata__"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "duplicate metadata key 'k'"},
        {"{\"__metadata__\":{\"k\":\"1\"", 0, "expected ',' or '}'"},
        {"{\"__metadata__\":{\"k\":\"\\u0000\"}}", 0, "NUL"},
        {"{\"__metadata__\":{\"k\":\"\x01\"}}", 0, "control character"},
        {"{\"__metadata__\":{\"k\":\"\xc0\x80\"}}", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"k\":\"\xe0\x9f\x80\"}}", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"k\":\"\xed\xa0\x80\"}}", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"k\":\"\xf4\x90\x80\x80\"}}", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"k\":\"\xe2\x82", 0, "invalid UTF-8"},
        {"{\"__metadata__\":{\"k\":\"\\ud800\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\ud800\\u0041\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\udc00\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\u12g4\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\x41\"}}", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"\\u00", 0, "invalid escape"},
        {"{\"__metadata__\":{\"k\":\"a", 0, "not terminated"},
        {"{\"__metadata__\":{\"crc32c\":\"00000001\"}}", 0, "header's checksum does not match"},
        {"{\"__metadata__\":{\"crc32c\":\"0\"}}", 0, "invalid checksum entry"},
        {"{\"__metadata__\":{\"crc32c.a\":\"00000000\"}}", 0, "invalid checksum entry 'crc32c.a'"},
        {"{\"__metadata__\":{\"crc32cat\":\"00000000\"}}", 0, "invalid checksum entry"},
        {"{\"__metadata__\":{\"crc32c\":\"00000000\"}," T("a", "U8", "0", "0", "0") "}", 0,
         "for all tensors or none"},
        {"{\"__metadata__\":{\"crc32c.a\":\"00000000\"}," T("a", "U8", "0", "0", "0") "}", 0,
         "for all tensors or none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_header(cases[i].header, cases[i].data);
        if (!CHECK(!opens())) printf("  accepted: %s\n", cases[i].header);
        if (!CHECK_ERROR(cases[i].error)) printf("  header: %s\n", cases[i].header);
    }
    end(&s);
}

TEST(safetensors_unusual_but_valid_headers) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *header; size_t data; } cases[] = {
        {"{}", 0},
        {"{}      ", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{\"__metadata__\":{\"k\":\"\\ud83d\\ude42\\/\\b\\f\"}}", 0},
        {"{\r\n\t\"a\" : { \"data_offsets\" : [ 0 , 4 ] , \"shape\" : [ ] , \"dtype\" : \"F32\" } }", 4},
        {"{" T("a", "U8", "0,288230376151711744", "0", "0") "}", 0},
        {"{" T("b", "U8", "1", "1", "2") "," T("a", "U8", "1", "0", "1") ","
         T("c", "U8", "0", "1", "1") "}", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_header(cases[i].header, cases[i].data);
        if (!CHECK(opens())) printf("  refused: %s: %s\n", cases[i].header, fl_error());
        fl_error_clear();
    }
    end(&s);
}

TEST(safetensors_lying_lengths) {
    begin();
    fl_scope s = fl_scope_begin();
    static const uint64_t lengths[] = {
        0, 1, 3, 100000000, 100000001, INT32_MAX, UINT32_MAX, INT64_MAX,
        (uint64_t)INT64_MAX + 1, UINT64_MAX - 7, UINT64_MAX,
    };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char file[10] = "\0\0\0\0\0\0\0\0{}";
        for (int k = 0; k < 8; k++) file[k] = (unsigned char)(lengths[i] >> (8 * k));
        disk_write("m", file, sizeof file);
        CHECK(!opens());
        CHECK_ERROR("offset 0: the header's size");
    }
    for (size_t n = 0; n < 8; n++) {
        disk_write("m", "\2\0\0\0\0\0\0\0", n);
        CHECK(!opens());
        CHECK_ERROR("early");
    }
    end(&s);
}

/* A megabyte of header in the forms that cost most memory per byte. */
TEST(safetensors_large_headers_stay_bounded) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { MB = 1 << 20 };
    char *text = malloc(MB + 200);
    int len = snprintf(text, 100, "{\"");
    memset(text + len, 'n', MB);
    snprintf(text + len + MB, 100, "%s",
             "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    write_header(text, 0);
    CHECK(!opens());
    CHECK_ERROR("a name of more than 4096 bytes");
    len = snprintf(text, 100, "{\"__metadata__\":{");
    for (int i = 0; len < MB; i++)
        len += snprintf(text + len, 100, "%s\"%x\":\"\"", i ? "," : "", i);
    snprintf(text + len, 100, "}}");
    write_header(text, 0);
    CHECK(opens());
    len = snprintf(text, 100, "{");
    for (int i = 0; len < MB; i++)
        len += snprintf(text + len, 100,
                        "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                        i ? "," : "", i);
    snprintf(text + len, 100, "}");
    write_header(text, 0);
    memory_mark();
    fl_data_file *f = fl_data_open_safetensors("m");
    CHECK(f && fl_data_count(f) > 10000);
    memory_bounded((size_t)len, 16);
    fl_data_close(f);
    memset(text, '[', MB);
    text[0] = '{';
    text[MB] = 0;
    write_header(text, 0);
    CHECK(!opens());
    CHECK_ERROR("expected '\"'");
    free(text);
    end(&s);
}

/* The small valid file of the tests below; its bytes. */
static unsigned char *small_file(size_t *size) {
    fl_scope s = fl_scope_begin();
    const fl_data_named_tensor in[] = {{"a", fl_arange(0, 2, 1, FL_F32)},
                                       {"b", fl_ones(FL_SHAPE(1), FL_B8)}};
    const fl_data_key_value meta[] = {{"step", "17"}};
    CHECK(fl_data_save_safetensors("m", in, 2, meta, 1));
    fl_scope_end(&s);
    return disk_copy("m", size);
}

TEST(safetensors_every_truncation) {
    begin();
    fl_scope s = fl_scope_begin();
    size_t size;
    unsigned char *bytes = small_file(&size);
    CHECK(opens());
    for (size_t n = 0; n < size; n++) {
        disk_write("m", bytes, n);
        CHECK(!opens());
        CHECK_ERROR("m: ");
    }
    for (int extra = 1; extra <= 16; extra++) {
        unsigned char *more = calloc(1, size + (size_t)extra);
        memcpy(more, bytes, size);
        disk_write("m", more, size + (size_t)extra);
        CHECK(!opens());
        CHECK_ERROR("after the last tensor");
        free(more);
    }
    free(bytes);
    end(&s);
}

/* Every byte in turn takes every other value: the checksums leave none unnoticed. */
TEST(safetensors_every_byte_change) {
    begin();
    fl_scope s = fl_scope_begin();
    size_t size;
    unsigned char *bytes = small_file(&size);
    for (size_t i = 0; i < size; i++)
        for (int change = 1; change < 256; change++) {
            disk_find("m")->file->bytes[i] = (unsigned char)(bytes[i] ^ change);
            if (!CHECK(!opens()))
                printf("  byte %zu: %02x -> %02x\n", i, bytes[i], bytes[i] ^ change);
            fl_error_clear();
            disk_find("m")->file->bytes[i] = bytes[i];
        }
    CHECK(opens());
    free(bytes);
    end(&s);
}

/* ---- idx ---- */

static fl_tensor *load_idx(const void *bytes, size_t size) {
    disk_write("i", bytes, size);
    memory_mark();
    fl_tensor *t = fl_data_load_idx("i");
    CHECK((t != NULL) == !fl_error());
    return t;
}

TEST(idx_types) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *t = load_idx("\0\0\x08\2\0\0\0\2\0\0\0\3\0\1\2\3\4\xff", 18);
    CHECK(same_bits(t, fl_from_host("\0\1\2\3\4\xff", FL_SHAPE(2, 3), FL_U8)));
    t = load_idx("\0\0\x09\1\0\0\0\2\xfe\x7f", 10);
    CHECK(same_bits(t, fl_from_host("\xfe\x7f", FL_SHAPE(2), FL_I8)));
    t = load_idx("\0\0\x0b\1\0\0\0\2\xff\xfe\1\0", 12);
    CHECK(same_bits(t, fl_from_host((int16_t[]){-2, 256}, FL_SHAPE(2), FL_I16)));
    t = load_idx("\0\0\x0c\1\0\0\0\2\xff\xff\xff\xfe\0\1\0\0", 16);
    CHECK(same_bits(t, fl_from_host((int32_t[]){-2, 65536}, FL_SHAPE(2), FL_I32)));
    t = load_idx("\0\0\x0d\1\0\0\0\2\x3f\x80\0\0\xc0\x20\0\0", 16);
    CHECK(same_bits(t, fl_from_host((float[]){1, -2.5f}, FL_SHAPE(2), FL_F32)));
    t = load_idx("\0\0\x0e\1\0\0\0\1\xc0\x04\0\0\0\0\0\0", 16);
    CHECK(same_bits(t, fl_from_host((double[]){-2.5}, FL_SHAPE(1), FL_F64)));
    t = load_idx("\0\0\x08\2\0\0\0\0\0\0\0\3", 12);
    CHECK(t && fl_numel(t) == 0 && t->shape[1] == 3);
    end(&s);
}

TEST(idx_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    static const struct { const char *bytes; size_t size; const char *error; } cases[] = {
        {"", 0, "ends at offset 0"},
        {"\0", 1, "ends at offset 1"},
        {"\0\0\x08", 3, "early"},
        {"\1\0\x08\1\0\0\0\0", 8, "offset 0: not an idx file"},
        {"\0\1\x08\1\0\0\0\0", 8, "not an idx file"},
        {"PK\3\4\0\0\0\0", 8, "not an idx file (it starts with 50 4b)"},
        {"\0\0\x0a\1\0\0\0\0", 8, "element type 0x0a"},
        {"\0\0\0\1\0\0\0\0", 8, "element type 0x00"},
        {"\0\0\x08\0", 4, "got 0"},
        {"\0\0\x08\x09\0\0\0\0", 8, "got 9"},
        {"\0\0\x08\xff\0\0\0\0", 8, "got 255"},
        {"\0\0\x08\2\0\0\0\1", 8, "ends at offset 8"},
        {"\0\0\x08\1\0\0\0\2\1", 9, "offset 8: the header declares 2 bytes of data, but the file has 1"},
        {"\0\0\x08\1\0\0\0\1\1\2", 10, "declares 1 bytes of data, but the file has 2"},
        {"\0\0\x08\1\xff\xff\xff\xff\1", 9, "declares 4294967295 bytes"},
        {"\0\0\x08\2\xff\xff\xff\xff\xff\xff\xff\xff", 12, "exceeds 2^62"},
        {"\0\0\x0e\2\x7f\xff\xff\xff\x7f\xff\xff\xff", 12, "exceeds 2^62"},
        {"\0\0\x08\x08\x80\0\0\0\x80\0\0\0\x80\0\0\0"
         "\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0", 36, "exceeds 2^62"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(!load_idx(cases[i].bytes, cases[i].size));
        CHECK_ERROR(cases[i].error);
        memory_bounded(cases[i].size, 16);
    }
    CHECK(!fl_data_load_idx(NULL));
    CHECK_ERROR("path is NULL");
    CHECK(!fl_data_load_idx("absent"));
    CHECK_ERROR("fl_data_load_idx: absent: cannot open: No such file");
    end(&s);
}

static const unsigned char idx_file[] = {
    0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 4, /* u8 [3, 4] */
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
};
/* The same through gzip; and one that unpacks to 4,008 bytes and declares 4 GB. */
static const char idx_gz[] =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x63\x60\xe0\x60\x62\x60\x60\x60\x06\x62\x16\x06\x46\x26"
    "\x66\x16\x56\x36\x76\x0e\x4e\x2e\x6e\x00\x45\xd3\xc0\x84\x18\x00\x00";
static const char idx_bomb[] =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xed\xc1\x31\x01\x00\x00\x08\x03\xa0\xf9\xd9\xbf\xb0\xda"
    "\xc2\x07\x48\xba\xe6\x04\x00\x00\x00\x78\xb7\x27\xfc\x37\xf7\xa8\x0f\x00";

/* Truncations are errors; a changed byte is one too, or changes a value: idx has no checksum. */
TEST(idx_every_truncation_and_byte_change) {
    begin();
    fl_scope s = fl_scope_begin();
    for (size_t n = 0; n < sizeof idx_file; n++) {
        CHECK(!load_idx(idx_file, n));
        CHECK_ERROR("i: ");
        memory_bounded(n, 16);
    }
    for (size_t i = 0; i < sizeof idx_file; i++)
        for (int change = 1; change < 256; change++) {
            unsigned char bytes[sizeof idx_file];
            memcpy(bytes, idx_file, sizeof bytes);
            bytes[i] = (unsigned char)(bytes[i] ^ change);
            fl_tensor *t = load_idx(bytes, sizeof bytes);
            bool still_idx = i >= 12 || (i == 2 && change == 1); /* i8 in place of u8 */
            CHECK(!still_idx ? !t : t && t->ndim == 2 && t->shape[0] == 3 && t->shape[1] == 4);
            memory_bounded(sizeof bytes, 16);
            fl_error_clear();
        }
    end(&s);
}

/* False, and the error is checked, in a build without zlib. */
static bool have_zlib(void) {
    disk_write("gz", idx_gz, sizeof idx_gz);
    if (fl_data_load_idx("gz")) return true;
    CHECK_ERROR("install zlib");
    return false;
}

TEST(idx_gzip) {
    begin();
    fl_scope s = fl_scope_begin();
    if (!have_zlib()) {
        end(&s);
        SKIP("built without zlib");
    }
    CHECK(same_bits(load_idx(idx_gz, sizeof idx_gz), load_idx(idx_file, sizeof idx_file)));
    CHECK(!load_idx(idx_bomb, sizeof idx_bomb));
    CHECK_ERROR("declares 4294967295 bytes, more than its 43 compressed bytes can hold");
    memory_bounded(sizeof idx_bomb, 16);
    char more[sizeof idx_gz + 1] = {0};
    memcpy(more, idx_gz, sizeof idx_gz);
    CHECK(!load_idx(more, sizeof more));
    CHECK_ERROR("unexpected bytes after the data at offset 42");
    for (size_t n = 2; n < sizeof idx_gz; n++) {
        CHECK(!load_idx(idx_gz, n));
        CHECK_ERROR("i: ");
        memory_bounded(n, 16);
    }
    fl_tensor *want = load_idx(idx_file, sizeof idx_file);
    for (size_t i = 2; i < sizeof idx_gz; i++)
        for (int change = 1; change < 256; change++) {
            char bytes[sizeof idx_gz];
            memcpy(bytes, idx_gz, sizeof bytes);
            bytes[i] = (char)(bytes[i] ^ change);
            fl_tensor *t = load_idx(bytes, sizeof bytes);
            if (t && !same_bits(t, want)) CHECK(!"a damaged gzip file gave other values");
            memory_bounded(sizeof bytes, 1032);
            fl_error_clear();
        }
    end(&s);
}

/* Unpacked data of a shape that the stream does not have. */
TEST(idx_gzip_length_mismatch) {
    begin();
    fl_scope s = fl_scope_begin();
    if (!have_zlib()) {
        end(&s);
        SKIP("built without zlib");
    }
    /* gzip header, one stored block of 9 bytes (an idx header and one element), checksum, length */
    unsigned char gz[32] = "\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x09\0\xf6\xff"
                           "\0\0\x08\1\0\0\0?\7????\x09\0\0";
    const struct { unsigned char declared, crc[5]; const char *error; } cases[] = {
        {2, "\x4d\x7e\xe8\xb2", "the unpacked data ends at offset 9, 1 bytes early"},
        {0, "\xcf\x1c\xde\x80", "longer than its header declares, 8 bytes"},
        {1, "\x8e\x2d\xc5\x98", "incorrect data check"},
        {1, "\x8e\x2d\xc5\x99", NULL},
    };
    for (int i = 0; i < 4; i++) {
        gz[22] = cases[i].declared;
        memcpy(gz + 24, cases[i].crc, 4);
        fl_tensor *t = load_idx(gz, sizeof gz);
        if (cases[i].error) CHECK(!t && CHECK_ERROR(cases[i].error));
        else CHECK(t && fl_numel(t) == 1);
    }
    end(&s);
}

/* ---- failing disks ---- */

static bool save_version(int version) {
    fl_scope s = fl_scope_begin();
    char text[16];
    snprintf(text, sizeof text, "%d", version);
    const fl_data_named_tensor in[] = {{"w", fl_full(FL_SHAPE(50), version, FL_F32)},
                                       {"v", fl_transpose(fl_full(FL_SHAPE(3, 2), version, FL_F64), 0, 1)}};
    const fl_data_key_value meta[] = {{"version", text}};
    bool ok = in[0].tensor && in[1].tensor && fl_data_save_safetensors("m", in, 2, meta, 1);
    fl_scope_end(&s);
    return ok;
}

/* The version in "m": 0 if it is none, or not the same everywhere. */
static int load_version(const char *path) {
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_data_open_safetensors(path);
    int version = f && fl_data_meta(f, "version") ? atoi(fl_data_meta(f, "version")) : 0;
    for (int64_t i = 0; version && i < fl_data_count(f); i++) {
        double x[64];
        fl_tensor *t = fl_data_read(f, fl_data_name(f, i));
        t = t ? fl_cast(t, FL_F64) : NULL;
        if (!t || !fl_to_host(t, x, (size_t)fl_numel(t) * sizeof *x)) version = 0;
        for (int64_t k = 0; version && k < fl_numel(t); k++)
            if (x[k] != version) version = 0;
    }
    fl_data_close(f);
    fl_scope_end(&s);
    return version;
}

static bool save_2(void) { return save_version(2); }
static bool load_any(void) { return load_version("m") != 0; }
static bool load_idx_file(void) { return fl_data_load_idx("i") != NULL; }
static bool load_gz_file(void) { return fl_data_load_idx("gz") != NULL; }

TEST(save_on_a_failing_disk) {
    begin();
    fl_scope s = fl_scope_begin();
    int calls = count_calls(save_2), points = 0;
    CHECK(calls >= 8);
    for (int kind = FAULT_ERROR; kind <= FAULT_ERROR_FROM_HERE; kind++)
        for (int at = 1; at <= calls; at++, points++) {
            disk_fault_at(0, FAULT_ERROR);
            CHECK(save_version(1));
            disk_fault_at(at, (fault)kind);
            CHECK(!save_2());
            CHECK_ERROR("cannot ");
            disk_fault_at(0, FAULT_ERROR);
            int version = load_version("m");
            /* the last calls, close and sync_dir, follow the rename */
            CHECK_EQ_INT(version, at < calls - 1 ? 1 : 2);
            CHECK(save_2() && load_version("m") == 2);
            CHECK(!disk_find("m.tmp"));
            CHECK_NO_ERROR();
        }
    CHECK(points >= 16);
    end(&s);
}

/* Short counts and interruptions are no errors: the same bytes come out. */
TEST(short_and_interrupted_calls) {
    begin();
    fl_scope s = fl_scope_begin();
    int calls = count_calls(save_2);
    node *f = disk_find("m")->file;
    size_t size = f->size;
    unsigned char *want = malloc(size);
    memcpy(want, f->bytes, size);
    for (int kind = FAULT_EINTR; kind <= FAULT_SHORT; kind++)
        for (int at = 1; at <= calls; at++) {
            disk_fault_at(at, (fault)kind);
            CHECK(save_2());
            f = disk_find("m")->file;
            CHECK(f->size == size && !memcmp(f->bytes, want, size));
            disk_fault_at(at, (fault)kind);
            CHECK_EQ_INT(load_version("m"), 2);
            disk_write("i", idx_file, sizeof idx_file);
            disk_fault_at(at, (fault)kind);
            CHECK(load_idx_file());
        }
    free(want);
    end(&s);
}

TEST(readers_on_a_failing_disk) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_version(1));
    disk_write("i", idx_file, sizeof idx_file);
    sweep_reader(load_any);
    sweep_reader(load_idx_file);
    if (have_zlib()) sweep_reader(load_gz_file);
    end(&s);
}

/* The power fails at every call; what was not synced is gone. The folder may show the old names or
   the new ones. */
TEST(power_loss_at_every_call) {
    begin();
    fl_scope s = fl_scope_begin();
    int calls = count_calls(save_2);
    for (int at = 1; at <= calls + 1; at++)
        for (int old_names = 0; old_names < 2; old_names++) {
            disk_reset();
            CHECK(save_version(1));
            disk_sync_all();
            disk_fault_at(at, FAULT_POWER);
            bool ok = save_2();
            CHECK(ok == (at > calls));
            fl_error_clear();
            disk_power_loss(old_names);
            disk_fault_at(0, FAULT_ERROR);
            disk.open = 0;
            int version = load_version("m");
            CHECK(ok ? version == 2 : version == 1 || version == 2);
            CHECK_NO_ERROR();
            CHECK(save_version(3) && load_version("m") == 3 && !disk_find("m.tmp"));
        }
    end(&s);
}

/* ---- mapped files ---- */

TEST(mapped_tensors_are_those_of_the_file) {
    begin();
    fl_scope s = fl_scope_begin();
    const fl_data_named_tensor in[] = {
        {"one", fl_ones(FL_SHAPE(1), FL_U8)},
        {"odd", fl_arange(0, 5, 1, FL_F64)}, /* at an offset that is no multiple of 8 */
        {"empty", fl_zeros(FL_SHAPE(0, 3), FL_F32)},
        {"x", fl_reshape(fl_arange(0, 35, 1, FL_U8), FL_SHAPE(5, 7))},
        {"y", fl_arange(0, 9, 1, FL_F32)}};
    REQUIRE(fl_data_save_safetensors("m", in, 5, NULL, 0));
    for (int verify = 0; verify < 2; verify++) {
        fl_data_file *f = fl_data_map_safetensors("m", verify);
        REQUIRE(f && fl_data_count(f) == 5);
        fl_tensor *t[5], *again = fl_data_read(f, "x");
        for (int i = 0; i < 5; i++) CHECK(same_bits(t[i] = fl_data_read(f, in[i].name), in[i].tensor));
        CHECK(!strcmp(t[3]->buffer->manager->name, "mapped file") && t[3]->buffer != again->buffer);
        CHECK((uintptr_t)t[3]->buffer->ptr % FL_ALIGN == 0);
        CHECK(strcmp(t[1]->buffer->manager->name, "mapped file")); /* read: it is not aligned */
        fl_data_close(f);
        CHECK(same_bits(t[3], in[3].tensor)); /* outlives the file */
        CHECK(fl_assign(t[3], fl_full(FL_SHAPE(5, 7), 9, FL_U8)) && fl_version_of(t[3]) &&
              !fl_version_of(t[4]));
        CHECK(same_bits(t[4], in[4].tensor) &&
              same_bits(fl_data_read(f = fl_data_open_safetensors("m"), "x"), in[3].tensor));
        fl_data_close(f);
    }
    fl_data_file *f = fl_data_map_safetensors("m", true), *unverified = fl_data_map_safetensors("m", false);
    fl_data_close(f);
    node *file = disk_find("m")->file;
    file->bytes[file->size - 1] ^= 1;
    f = fl_data_map_safetensors("m", true);
    REQUIRE(f && unverified);
    CHECK(!fl_data_read(f, "y") && CHECK_ERROR("fl_data_read: m: the checksum of tensor 'y' does not match"));
    CHECK(fl_data_read(unverified, "y") != NULL);
    file->size -= 3;
    CHECK(!fl_data_read(f, "x") && CHECK_ERROR("fl_data_read: m: the file shrank from "));
    fl_data_close(f);
    fl_data_close(unverified);
    CHECK(!fl_data_map_safetensors("m", false) && CHECK_ERROR("is the end"));
    end(&s);
}

static bool map_any(void) {
    fl_data_file *f = fl_data_map_safetensors("m", true);
    fl_tensor *w = f ? fl_data_read(f, "w") : NULL, *v = w ? fl_data_read(f, "v") : NULL;
    fl_data_close(f);
    return v && fl_numel(w) == 50;
}

TEST(mapping_on_a_failing_disk_and_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_version(1));
    sweep_reader(map_any);
    for (int for_ever = 0; for_ever < 2; for_ever++) CHECK(sweep_heap(map_any, for_ever) >= 4);
    fl_data_io without = disk_io;
    without.map = NULL, without.unmap = NULL;
    fl_data_io_use(&without);
    sweep_reader(map_any); /* reads instead */
    end(&s);
}

/* ---- shards ---- */

#define INDEX "m.safetensors.index.json"

static bool save_shards_of(int version, int64_t max_shard) {
    fl_scope s = fl_scope_begin();
    char text[16];
    snprintf(text, sizeof text, "%d", version);
    const fl_data_named_tensor in[] = {{"w", fl_full(FL_SHAPE(50), version, FL_F32)},
                                       {"v", fl_transpose(fl_full(FL_SHAPE(3, 2), version, FL_F64), 0, 1)},
                                       {"a", fl_full(FL_SHAPE(7), version, FL_I64)}};
    const fl_data_key_value meta[] = {{"version", text}};
    const bool ok = in[0].tensor && in[1].tensor && in[2].tensor &&
                    fl_data_save_sharded(INDEX, in, 3, meta, 1, max_shard);
    fl_scope_end(&s);
    return ok;
}
static bool save_shards_2(void) { return save_shards_of(2, 110); }
static bool load_shards(void) { return load_version(INDEX) != 0; }

static int disk_names(void) {
    int n = 0;
    for (int i = 0; i < FILES; i++) n += disk.names[i].file != NULL;
    return n;
}

/* What Hugging Face's loaders ask of each file that has metadata, and ours has. */
static void expect_format(const char *path, const char *want) {
    fl_data_file *f = fl_data_open_safetensors(path);
    if (CHECK(f)) CHECK_STR(fl_data_meta(f, "format"), want);
    fl_data_close(f);
}

TEST(files_have_a_format) {
    begin();
    fl_scope s = fl_scope_begin();
    const fl_data_named_tensor in[] = {{"a", fl_ones(FL_SHAPE(3), FL_F32)},
                                       {"b", fl_ones(FL_SHAPE(2), FL_F32)}};
    const fl_data_key_value note = {"note", "n"}, numpy = {"format", "np"};
    CHECK(fl_data_save_safetensors("f.safetensors", in, 2, NULL, 0));
    expect_format("f.safetensors", "pt");
    CHECK(fl_data_save_safetensors("f.safetensors", in, 2, &note, 1));
    expect_format("f.safetensors", "pt");
    CHECK(fl_data_save_safetensors("f.safetensors", in, 2, &numpy, 1));
    expect_format("f.safetensors", "np");
    CHECK(fl_data_save_sharded(INDEX, in, 2, NULL, 0, 1));
    expect_format("m-v1-00001-of-00002.safetensors", "pt");
    expect_format("m-v1-00002-of-00002.safetensors", "pt");
    CHECK(fl_data_save_sharded(INDEX, in, 2, &numpy, 1, 1));
    expect_format("m-v2-00001-of-00002.safetensors", "np");
    expect_format(INDEX, "np");
    end(&s);
}

TEST(shards_round_trip) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_shards_of(1, 0) && load_version(INDEX) == 1 && disk_names() == 2); /* one shard */
    CHECK(disk_find("m-v1-00001-of-00001.safetensors") != NULL);
    CHECK(save_shards_of(2, 110) && load_version(INDEX) == 2 && disk_names() == 3); /* w has one of its own */
    CHECK(disk_find("m-v2-00001-of-00002.safetensors") && disk_find("m-v2-00002-of-00002.safetensors"));
    CHECK(save_shards_of(3, 1) && load_version(INDEX) == 3 && disk_names() == 4);
    fl_data_file *f = fl_data_map_safetensors(INDEX, false);
    REQUIRE(f && fl_data_count(f) == 3 && !strcmp(fl_data_name(f, 2), "a") && fl_data_dtype(f, 2) == FL_I64);
    fl_tensor *t = fl_data_read(f, "w");
    CHECK(t && !strcmp(t->buffer->manager->name, "mapped file"));
    CHECK(!fl_data_meta(f, "total_size") && !strcmp(fl_data_meta(f, "version"), "3"));
    fl_data_close(f);
    CHECK(fl_item(fl_slice(t, 0, 0, 1, 1)) == 3);
    CHECK(fl_data_save_safetensors(INDEX, NULL, 0, NULL, 0)); /* an index by its name */
    CHECK(disk_names() == 1 && (f = fl_data_open_safetensors(INDEX)) && fl_data_count(f) == 0);
    fl_data_close(f);
    fl_tensor *x = fl_ones(FL_SHAPE(1), FL_F32);
    const fl_data_named_tensor twice[] = {{"x", x}, {"x", x}, {NULL, x}, {"n", NULL}};
    CHECK(!fl_data_save_sharded(INDEX, twice, 2, NULL, 0, 1) && CHECK_ERROR("duplicate tensor name 'x'"));
    CHECK(!fl_data_save_sharded(INDEX, twice + 2, 1, NULL, 0, 1) && CHECK_ERROR("a name is NULL"));
    CHECK(!fl_data_save_sharded(INDEX, twice + 3, 1, NULL, 0, 1) && CHECK_ERROR("tensor 'n' is NULL"));
    CHECK(!fl_data_save_sharded("m.json", twice, 1, NULL, 0, 1) && CHECK_ERROR("m.json does not end with"));
    CHECK(!fl_data_save_sharded(INDEX, twice, 1, NULL, 0, -1) && CHECK_ERROR("negative"));
    CHECK(!fl_data_save_sharded(INDEX, twice, 1, (fl_data_key_value[]){{"total_size", "1"}}, 1, 0));
    CHECK_ERROR("the reserved key total_size");
    CHECK(disk_names() == 1);
    end(&s);
}

TEST(shards_malformed) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1), FL_F32);
    CHECK(fl_data_save_safetensors("s.safetensors", (fl_data_named_tensor[]){{"x", x}}, 1, NULL, 0));
    static const struct { const char *json, *error;
    } cases[] = {
        {"", "the text ends early"},
        {"[]", "expected an object, got an array"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\":[]}", "expected an object, got an array"},
        {"{\"weight_map\":{\"x\":1}}", "expected a string, got a number"},
        {"{\"weight_map\":{\"x\":\"../s.safetensors\"}}",
         "'../s.safetensors' is not the name of a .safetensors file"},
        {"{\"weight_map\":{\"x\":\"/s.safetensors\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"a\\\\s.safetensors\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"c:s.safetensors\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"..safetensors\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\".safetensors\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"m.safetensors.index.json\"}}", "not the name of"},
        {"{\"weight_map\":{\"x\":\"s.safetensors\\u0000\"}}", "a NUL in a string"},
        {"{\"weight_map\":{\"x\":\"absent.safetensors\"}}",
         "absent.safetensors: cannot open: No such file"},
        {"{\"weight_map\":{\"y\":\"s.safetensors\"}}",
         "offset 19, line 1: tensor 'y' is not in s.safetensors"},
        {"{\"weight_map\":{\"x\":\"s.safetensors\",\"x\":\"s.safetensors\"}}", "duplicate tensor name 'x'"},
        {"{\"weight_map\":{\"x\":\"s.safetensors\"},\"weight_map\":{}}", "duplicate weight_map"},
        {"{\"weight_map\":{},\"metadata\":{},\"metadata\":{}}", "duplicate metadata"},
        {"{\"weight_map\":{},\"metadata\":1}", "expected an object, got a number"},
        {"{\"weight_map\":{},\"metadata\":{\"a\":\"b\",\"a\":\"c\"}}", "duplicate metadata key 'a'"},
        {"{\"weight_map\":{}} x", "unexpected text after the value"},
        {"{\"weight_map\":{\"x\":\"s.safetensors\"", "expected ',' or '}'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        disk_write(INDEX, cases[i].json, strlen(cases[i].json));
        CHECK(!fl_data_open_safetensors(INDEX));
        if (!CHECK_ERROR(cases[i].error)) printf("  %s\n", cases[i].json);
    }
    const char *fine = "{\"other\":[{}],\"metadata\":{\"n\":1,\"o\":{\"p\":[1]},\"s\":\"t\"},\"weight_"
                       "map\":{\"x\":\"s.safetensors\"}}";
    disk_write(INDEX, fine, strlen(fine));
    fl_data_file *f = fl_data_open_safetensors(INDEX);
    REQUIRE(f && same_bits(fl_data_read(f, "x"), x));
    CHECK(!strcmp(fl_data_meta(f, "s"), "t") && !fl_data_meta(f, "n") && !fl_data_meta(f, "o"));
    fl_data_close(f);
    for (size_t n = 0; n < strlen(fine); n++) {
        disk_write(INDEX, fine, n);
        CHECK(!fl_data_open_safetensors(INDEX) && CHECK_ERROR(INDEX ": "));
    }
    for (size_t i = 0; i < strlen(fine); i++)
        for (int change = 1; change < 256; change++) {
            disk_write(INDEX, fine, strlen(fine));
            disk_find(INDEX)->file->bytes[i] ^= (unsigned char)change;
            fl_scope step = fl_scope_begin();
            f = fl_data_open_safetensors(INDEX);
            CHECK(!f == (fl_error() != NULL));
            CHECK(!f || same_bits(fl_data_read(f, "x"), x));
            fl_data_close(f);
            fl_error_clear();
            fl_scope_end(&step);
        }
    end(&s);
}

/* The bytes of one file as another. */
static void disk_put_copy(const char *from, const char *to) {
    size_t n;
    unsigned char *bytes = disk_copy(from, &n);
    disk_write(to, bytes, n);
    free(bytes);
}

/* A save removes what killed saves left, and nothing else. */
TEST(shards_that_no_index_names) {
    static const char *const others[] = {
        "m-v9-00001-of-00001.safetensors", "m-00001-of-00001.safetensors",
        "m-v01-00001-of-00001.safetensors", "n-v1-00001-of-00001.safetensors"};
    static const char *const stale[] = {
        "m-v7-00001-of-00009.safetensors", "m-v3-00001-of-00001.safetensors.tmp",
        "m-v4-00001-of-00001.safetensors.tmp"};
    begin();
    fl_scope s = fl_scope_begin();
    REQUIRE(save_shards_of(1, 110));
    disk_put_copy("m-v1-00001-of-00002.safetensors", stale[0]);
    disk_write(stale[1], (char[100]){0}, 100);
    disk_write(stale[2], "", 0);
    disk_write(others[0], (char[100]){"no file of ours"}, 100);
    for (int i = 1; i < 4; i++) disk_put_copy("m-v1-00001-of-00002.safetensors", others[i]);
    CHECK(save_shards_of(2, 110) && load_version(INDEX) == 2);
    for (int i = 0; i < 3; i++) CHECK(!disk_find(stale[i]));
    for (int i = 0; i < 4; i++) CHECK(disk_find(others[i]));
    CHECK(disk_find("m-v10-00001-of-00002.safetensors")); /* the version of no other file */
    CHECK_EQ_INT(disk_names(), 7);
    disk_write("m-v999999999-00001-of-00001.safetensors", "another", 7);
    CHECK(!save_shards_of(3, 110) && CHECK_ERROR("the last possible version, 999999999"));
    CHECK(load_version(INDEX) == 2 && disk_names() == 8);
    end(&s);
}

TEST(shards_of_another_save) {
    begin();
    fl_scope s = fl_scope_begin();
    const char *shard = "m-v1-00002-of-00002.safetensors";
    const fl_data_named_tensor plain[] = {{"v", fl_ones(FL_SHAPE(2, 3), FL_F64)},
                                          {"a", fl_ones(FL_SHAPE(7), FL_I64)}};
    REQUIRE(save_shards_of(1, 110));
    disk_put_copy(shard, "old");
    disk_remove(NULL, INDEX);
    REQUIRE(save_shards_of(2, 110) && disk_names() == 4 && load_version(INDEX) == 2);
    disk_put_copy(shard, "new");
    disk_put_copy("old", shard);
    CHECK(!load_version(INDEX) && CHECK_ERROR(shard) && !load_version(INDEX) &&
          CHECK_ERROR("is of another save than the index: save_id"));
    CHECK(fl_data_save_safetensors(shard, plain, 2, NULL, 0));
    CHECK(!load_version(INDEX) && CHECK_ERROR("another save than the index: save_id (none), expected"));
    disk_put_copy("new", shard);
    CHECK(load_version(INDEX) == 2);
    const char *index = "{\"weight_map\":{\"a\":\"m-v1-00002-of-00002.safetensors\"}}";
    disk_write(INDEX, index, strlen(index));
    CHECK(!load_version(INDEX) && CHECK_ERROR(", expected (none)"));
    index = "{\"save_id\":\"1\",\"weight_map\":{}}";
    disk_write(INDEX, index, strlen(index));
    CHECK(!load_version(INDEX) && CHECK_ERROR("got only one of save_id and crc32c"));
    index = "{\"save_id\":\"1\",\"weight_map\":{},\"crc32c\":\"00000000\"}";
    disk_write(INDEX, index, strlen(index));
    CHECK(!load_version(INDEX) && CHECK_ERROR("the index's checksum does not match"));
    CHECK(!fl_data_save_sharded(INDEX, plain, 1, (fl_data_key_value[]){{"k", "\xff"}}, 1, 0));
    CHECK_ERROR("metadata pair 0 is not UTF-8");
    end(&s);
}

static int open_at; /* the call of open before which another save replaces the index */

static void *open_beside_a_save(void *user, const char *path, fl_data_mode mode) {
    if (mode == FL_DATA_READ && open_at > 0 && --open_at == 0) CHECK(save_shards_2());
    return disk_open(user, path, mode);
}

/* A reader gets the old set or the new one, whenever a save replaces the index. */
TEST(shards_replaced_while_they_are_opened) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_io io = disk_io;
    int read[3] = {0};
    io.open = open_beside_a_save;
    fl_data_io_use(&io);
    for (int at = 1; at <= 4; at++) { /* the index, two shards, none */
        REQUIRE(save_shards_of(1, 110));
        open_at = at;
        const int version = load_version(INDEX);
        CHECK((version == 1 || version == 2) && CHECK_NO_ERROR());
        read[version]++;
        open_at = 0;
    }
    CHECK(read[1] == 1 && read[2] == 3);
    REQUIRE(save_shards_of(1, 110));
    open_at = 2;
    fl_fail("earlier"); /* an error of before stays */
    CHECK(load_version(INDEX) == 2 && CHECK_ERROR("earlier"));
    end(&s);
}

/* More shards than can be open are not written, nor read; the time of reading their names is bounded. */
TEST(too_many_shards) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { MANY = 4097 };
    static fl_data_named_tensor in[MANY];
    static char names[MANY][8];
    fl_tensor *x = fl_ones(FL_SHAPE(1), FL_F32);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        in[i] = (fl_data_named_tensor){names[i], x};
    }
    CHECK(!fl_data_save_sharded(INDEX, in, MANY, NULL, 0, 1) && disk_names() == 0);
    CHECK_ERROR(INDEX ": max_shard 1 needs 4097 shards");
    fl_data_text t = {0};
    fl_data_text_print(&t, "{\"weight_map\":{");
    for (int i = 0; i < MANY; i++)
        fl_data_text_print(&t, "%s\"%d\":\"%d.safetensors\"", i ? "," : "", i, i);
    fl_data_text_print(&t, "}}");
    disk_write(INDEX, t.p, (size_t)t.n);
    CHECK(!save_shards_of(1, 0) && CHECK_ERROR("line 1: more than 4096 shards"));
    fl_heap_free(t.p);
    end(&s);
}

TEST(shards_on_a_failing_disk_and_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_shards_of(1, 110));
    const int calls = count_calls(save_shards_2);
    for (int kind = FAULT_ERROR; kind <= FAULT_ERROR_FROM_HERE; kind++)
        for (int at = 1; at <= calls; at++) {
            disk_fault_at(0, FAULT_ERROR);
            REQUIRE(save_shards_of(1, 110));
            disk_fault_at(at, (fault)kind);
            const bool ok = save_shards_2(); /* what only cleans up may fail */
            CHECK(ok == !fl_error());
            fl_error_clear();
            disk_fault_at(0, FAULT_ERROR);
            const int version = load_version(INDEX);
            CHECK(ok ? version == 2 : version == 1 || version == 2);
            for (int i = 0; i < FILES; i++) /* besides temporary files that could not be removed */
                if (disk.names[i].file && strcmp(disk.names[i].text, INDEX) &&
                    !strstr(disk.names[i].text, ".tmp")) {
                    fl_data_file *f = fl_data_open_safetensors(disk.names[i].text);
                    CHECK(f != NULL);
                    fl_data_close(f);
                }
            CHECK(kind == FAULT_ERROR_FROM_HERE || disk_names() <= (ok ? 4 : 5));
            disk_reset();
        }
    CHECK(save_shards_of(1, 110));
    const int reads = count_calls(load_shards);
    for (int at = 1, failed = 0; at <= reads; at++) {
        disk_fault_at(at, FAULT_ERROR);
        const bool ok = load_shards(); /* closing may fail */
        CHECK(ok == !fl_error());
        failed += !ok;
        fl_error_clear();
        disk_fault_at(0, FAULT_ERROR);
        CHECK(load_shards() && (at < reads || failed > 10));
    }
    for (int for_ever = 0; for_ever < 2; for_ever++)
        CHECK(sweep_heap(save_shards_2, for_ever) > 10 && sweep_heap(load_shards, for_ever) > 10);
    end(&s);
}

TEST(shards_and_power_loss_at_every_call) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_shards_of(1, 110));
    const int calls = count_calls(save_shards_2);
    for (int at = 1; at <= calls + 1; at++)
        for (int old_names = 0; old_names < 2; old_names++) {
            disk_reset();
            REQUIRE(save_shards_of(1, 110));
            disk_sync_all();
            disk_fault_at(at, FAULT_POWER);
            const bool ok = save_shards_2();
            fl_error_clear();
            disk_power_loss(old_names);
            disk_fault_at(0, FAULT_ERROR);
            disk.open = 0;
            const int version = load_version(INDEX);
            CHECK(ok ? version == 2 : version == 1 || version == 2);
            CHECK_NO_ERROR();
            CHECK(save_shards_of(3, 110) && load_version(INDEX) == 3);
        }
    end(&s);
}

/* ---- failing memory ---- */

static bool save_and_load_2(void) { return save_2() && load_version("m") == 2; }

TEST(files_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    disk_write("i", idx_file, sizeof idx_file);
    int64_t points = 0, buffers = 0;
    bool gz = have_zlib();
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        points += sweep_heap(save_and_load_2, for_ever) + sweep_heap(load_idx_file, for_ever);
        buffers +=
            sweep_buffers(save_and_load_2, for_ever) + sweep_buffers(load_idx_file, for_ever);
        if (gz) points += sweep_heap(load_gz_file, for_ever);
    }
    CHECK(points >= 20);
    CHECK(buffers >= 6);
    end(&s);
}

/* A failed save leaves the file as it was. */
TEST(save_without_memory_keeps_the_old_file) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(save_version(1));
    for (int64_t n = 1; n < 1000; n++) {
        heap.calls = 0, heap.fail_at = n, heap.for_ever = true;
        bool ok = save_2(), reached = heap.calls >= n;
        heap.fail_at = 0;
        fl_error_clear();
        CHECK_EQ_INT(load_version("m"), ok ? 2 : 1);
        CHECK(!disk_find("m.tmp"));
        if (!reached) break;
    }
    CHECK_EQ_INT(load_version("m"), 2);
    end(&s);
}

/* ---- the system's files ---- */

#ifndef _WIN32
#include <dirent.h>

static char folder[200], target[240], temporary[250];

static void make_folder(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/fl-test-XXXXXX", base && *base ? base : P_tmpdir);
    if (!mkdtemp(folder)) folder[0] = 0;
    snprintf(target, sizeof target, "%s/m.safetensors", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", target);
}

static int files_in_folder(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void remove_folder(void) {
    unlink(target);
    unlink(temporary);
    CHECK_EQ_INT(rmdir(folder), 0);
}

static bool save_to_target(int version, int64_t n) {
    fl_scope s = fl_scope_begin();
    char text[16];
    snprintf(text, sizeof text, "%d", version);
    fl_data_named_tensor in[20];
    for (int i = 0; i < 20; i++) {
        in[i].name = (const char *[]){"a", "b", "c", "d", "e", "f", "g", "h", "i", "j",
                                      "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"}[i];
        in[i].tensor = fl_full(FL_SHAPE(n), version, FL_F32);
    }
    bool ok = fl_data_save_safetensors(target, in, 20, (fl_data_key_value[]){{"version", text}}, 1);
    fl_scope_end(&s);
    return ok;
}

/* Printed text is as long as it is, and what was there stays. */
TEST(text_is_printed_whole) {
    fl_data_text t = {0};
    CHECK(fl_data_text_print(&t, "%s", "") && t.n == 0 && t.p && !*t.p);
    CHECK(fl_data_text_print(&t, "%d:", 7) && fl_data_text_print(&t, "%5000d", 1));
    CHECK_EQ_INT(t.n, 5002);
    CHECK(!strncmp(t.p, "7:  ", 4) && !strcmp(t.p + 5000, " 1"));
    fl_heap_free(t.p);
}

TEST(system_files) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    CHECK(save_to_target(5, 60));
    CHECK_EQ_INT(load_version(target), 5);
    CHECK_EQ_INT(files_in_folder(), 1);
    CHECK(!fl_data_open_safetensors(folder));
    CHECK_ERROR("Is a directory");
    CHECK(!fl_data_load_idx(target));
    CHECK_ERROR("not an idx file");
    unlink(target);
    mkdir(target, 0700); /* the rename cannot succeed */
    CHECK(!save_to_target(6, 60));
    CHECK_ERROR("cannot rename");
    CHECK_EQ_INT(files_in_folder(), 1);
    rmdir(target);
    CHECK(!fl_data_save_safetensors("no-such-folder/m", NULL, 0, NULL, 0));
    CHECK_ERROR("no-such-folder/m.tmp: cannot open: No such file");
    remove_folder();
}

/* A name without a folder part. */
TEST(system_files_in_the_working_folder) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    char before[1000];
    REQUIRE(getcwd(before, sizeof before) && chdir(folder) == 0);
    CHECK(fl_data_save_safetensors("m.safetensors", NULL, 0, NULL, 0));
    CHECK_NO_ERROR();
    CHECK_EQ_INT(files_in_folder(), 1);
    CHECK_EQ_INT(chdir(before), 0);
    remove_folder();
}

TEST(second_writer_is_refused) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    const fl_data_io *io = fl_data_io_system();
    CHECK(save_to_target(1, 60));
    void *other = io->open(io->user, temporary, FL_DATA_REPLACE);
    REQUIRE(other);
    char junk[30000] = {1}, index[300], part[310];
    CHECK_EQ_INT(io->write(io->user, other, junk, sizeof junk, 0), sizeof junk); /* longer than ours */
    CHECK(!save_to_target(2, 60));
    CHECK_ERROR("the file is open for writing elsewhere");
    CHECK_EQ_INT(load_version(target), 1);
    CHECK_EQ_INT(io->close(io->user, other), 0);
    CHECK(save_to_target(2, 60)); /* the file that the other left is taken over */
    CHECK_EQ_INT(load_version(target), 2);
    CHECK_EQ_INT(files_in_folder(), 1);
    remove(target);
    snprintf(index, sizeof index, "%s/" INDEX, folder);
    snprintf(part, sizeof part, "%s.tmp", index);
    other = io->open(io->user, part, FL_DATA_REPLACE); /* from its start to its end */
    REQUIRE(other);
    CHECK(!fl_data_save_sharded(index, NULL, 0, NULL, 0, 0));
    CHECK_ERROR(INDEX ".tmp: the file is open for writing elsewhere");
    CHECK_EQ_INT(io->close(io->user, other), 0);
    CHECK(fl_data_save_sharded(index, NULL, 0, NULL, 0, 0) && files_in_folder() == 1);
    remove(index);
    remove_folder();
}

/* ---- files that are none, and links ---- */

static bool read_nothing(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    return (void)e, (void)out, (void)user, false;
}

/* Every reader refuses at once what is no regular file. */
TEST(pipes_sockets_and_devices) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    char path[5][300], index[300];
    const char *const names[] = {"pipe", "pipe.csv", "socket", "pipe.safetensors.index.json"};
    for (int i = 0; i < 4; i++) snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
    snprintf(path[4], sizeof path[4], "/dev/null");
    snprintf(index, sizeof index, "%s", path[3]);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    REQUIRE(strlen(path[2]) < sizeof address.sun_path);
    memcpy(address.sun_path, path[2], strlen(path[2]) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(!mkfifo(path[0], 0600) && !mkfifo(path[1], 0600) && !mkfifo(path[3], 0600));
    REQUIRE(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address));
    alarm(60); /* a reader that waits ends here */
    for (int i = 0; i < 5; i++) {
        const char *p = path[i], *text = "expected a regular file";
        fl_data_settings settings = {0};
        CHECK(!fl_data_load_idx(p) && CHECK_ERROR(text));
        CHECK(!fl_data_load_npy(p) && CHECK_ERROR(text));
        CHECK(!fl_data_open_npz(p) && CHECK_ERROR(text));
        CHECK(!fl_data_open_safetensors(p) && CHECK_ERROR(text));
        CHECK(!fl_data_map_safetensors(p, true) && CHECK_ERROR(text));
        CHECK(!fl_data_csv_open(p) && CHECK_ERROR(text));
        CHECK(!fl_data_json_open(p) && CHECK_ERROR(text));
        CHECK(!fl_data_settings_read(&settings, p, "settings") && CHECK_ERROR(text));
        CHECK(!fl_data_list(p, read_nothing) && CHECK_ERROR(text));
        CHECK(!fl_data_open_blob(p) && CHECK_ERROR(text));
        fl_data_settings_free(&settings);
    }
    CHECK(!fl_data_log_open(path[1]) && CHECK_ERROR("expected a regular file"));
    CHECK(!fl_data_save_sharded(index, NULL, 0, NULL, 0, 0) && CHECK_ERROR("expected a regular file"));
    mkfifo(temporary, 0600);
    CHECK(!save_to_target(1, 60) && CHECK_ERROR(".tmp: got a pipe, a socket or a device"));
    alarm(0);
    unlink(temporary);
    close(fd);
    for (int i = 0; i < 4; i++) unlink(path[i]);
    remove_folder();
}

/* Links at <path>.tmp are not written through. */
TEST(links_in_place_of_the_temporary_file) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    char other[300], text[8] = "";
    snprintf(other, sizeof other, "%s/other", folder);
    for (int hard = 0; hard < 2; hard++) {
        FILE *f = fopen(other, "wb");
        REQUIRE(f && fputs("text", f) >= 0 && !fclose(f));
        REQUIRE(!(hard ? link : symlink)(other, temporary));
        CHECK(!save_to_target(1, 60) && CHECK_ERROR("the path is a link to another file"));
        f = fopen(other, "rb");
        CHECK(f && fread(text, 1, 8, f) == 4 && !memcmp(text, "text", 4));
        if (f) fclose(f);
        CHECK(!unlink(temporary) && save_to_target(1, 60) && load_version(target) == 1);
    }
    remove(other);
    remove_folder();
}

static int permissions_of(const char *path) {
    struct stat s;
    return stat(path, &s) < 0 ? -1 : (int)(s.st_mode & 0777);
}

/* A file that is replaced keeps its permissions, also while it is written; a new one has those of the
   umask. */
TEST(permissions_are_kept) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    static const int modes[] = {0600, 0640, 0666, 0444};
    const mode_t before = umask(027);
    CHECK(save_to_target(1, 60));
    CHECK_EQ_INT(permissions_of(target), 0640);
    for (int i = 0; i < 4; i++) {
        FILE *f = fopen(temporary, "wb"); /* a dead writer's */
        REQUIRE(f && !fclose(f) && !chmod(temporary, 0666) && !chmod(target, (mode_t)modes[i]));
        fl_data_replacement r;
        REQUIRE(fl_data_replace_begin(&r, "test", target));
        CHECK_EQ_INT(permissions_of(temporary), modes[i] | 0600);
        CHECK(!fl_data_replace_end(&r, false));
        CHECK(save_to_target(i + 1, 60) && load_version(target) == i + 1);
        CHECK_EQ_INT(permissions_of(target), modes[i] | 0600);
    }
    CHECK_NO_ERROR();
    umask(before);
    remove(target);
    remove_folder();
}

TEST(bytes_are_swapped) {
    char bytes[] = "abcdefgh";
    fl_data_swap_bytes(bytes, 8, 0);
    fl_data_swap_bytes(bytes, 8, 1);
    CHECK(!strcmp(bytes, "abcdefgh"));
    fl_data_swap_bytes(bytes, 7, 3); /* the last byte is no number */
    CHECK(!strcmp(bytes, "cbafedgh"));
    fl_data_swap_bytes(bytes, 8, 8);
    CHECK(!strcmp(bytes, "hgdefabc"));
}

/* 2 GB of zeros that take no room on the disk: opening reads the header, whatever the size. */
TEST(mapped_file_of_2_gb_opens_at_once) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    char header[81];
    const uint64_t n = 80;
    snprintf(header, sizeof header, "%-80s",
             "{\"big\":{\"dtype\":\"F32\",\"shape\":[536870912],\"data_offsets\":[0,2147483648]}}");
    FILE *file = fopen(target, "wb");
    REQUIRE(file && n % 8 == 0 && fwrite(&n, 8, 1, file) == 1 && fwrite(header, n, 1, file) == 1);
    REQUIRE(fseek(file, (long)(8 + n + 2147483644), SEEK_SET) == 0 && fwrite(&(float){7}, 4, 1, file) == 1);
    fclose(file);
    double best = 1e9, first = 0;
    fl_tensor *t = NULL;
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < 20; i++) {
        const double start = fl_data_now();
        fl_data_file *f = fl_data_map_safetensors(target, false);
        t = f ? fl_data_read(f, "big") : NULL;
        const double seconds = fl_data_now() - start;
        if (seconds < best) best = seconds;
        if (i == 0) first = seconds;
        fl_data_close(f);
    }
    REQUIRE(CHECK_NO_ERROR() && t && fl_numel(t) == 536870912);
    printf("  2 GB opened, mapped and a tensor got: %.3f ms, the first time %.3f ms\n", best * 1e3,
           first * 1e3);
    CHECK(best < 0.005);
    CHECK(fl_item(fl_slice(t, 0, 536870911, 536870912, 1)) == 7);
    fl_tensor *head = fl_slice(t, 0, 0, 4, 1);
    CHECK(fl_assign(head, fl_ones(FL_SHAPE(4), FL_F32)) && fl_item(fl_sum(head, FL_ALL_AXES)) == 4);
    fl_data_file *f = fl_data_map_safetensors(target, false);
    t = f ? fl_data_read(f, "big") : NULL;
    CHECK(t && fl_item(fl_slice(t, 0, 0, 1, 1)) == 0); /* the file did not change */
    CHECK(truncate(target, 1000) == 0 && !fl_data_read(f, "big"));
    CHECK_ERROR("the file shrank from 2147483736 to 1000 bytes since it was opened");
    fl_data_close(f);
    fl_scope_end(&s);
    CHECK_EQ_INT(test_live_buffers(), 0);
    remove_folder();
}

/* Two writers at once: each save is done or refused, and whoever reads finds a whole file. */
TEST(racing_writers) {
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    CHECK(save_to_target(1, 60));
    pid_t pid[2];
    for (int k = 0; k < 2; k++)
        if (!(pid[k] = fork()))
            for (int v = 1;; v++)
                if (!save_to_target(2 * v + k, 60)) {
                    if (!strstr(fl_error(), "for writing elsewhere")) _exit(1);
                    fl_error_clear();
                }
    bool whole = true;
    for (int i = 0; whole && i < 1500; i++) whole = load_version(target) > 0;
    if (!CHECK(whole)) CHECK_NO_ERROR();
    for (int k = 0; k < 2; k++) {
        int status;
        kill(pid[k], SIGKILL);
        CHECK(waitpid(pid[k], &status, 0) == pid[k] && WIFSIGNALED(status));
    }
    remove_folder();
}

static void sleep_microseconds(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* A child saves version after version and is killed somewhere: the file is always one of them,
   never an older one than before. */
TEST(killed_writers) {
    enum { KILLS = 50, MOST = 1000 };
    test_errors_return();
    make_folder();
    REQUIRE(folder[0]);
    int version = 1, left = 0;
    uint32_t random = 12345;
    CHECK(save_to_target(version, 60));
    for (int k = 0; k < KILLS || (!left && k < MOST); k++) { /* until one died in mid-save */
        pid_t pid = fork();
        if (pid == 0)
            for (int v = version + 1;; v++)
                if (!save_to_target(v, 60)) _exit(1);
        random = random * 1664525u + 1013904223u;
        sleep_microseconds((long)(random >> 8) % 15000);
        CHECK_EQ_INT(kill(pid, SIGKILL), 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        left += files_in_folder() == 2;
        int found = load_version(target);
        CHECK_NO_ERROR();
        if (!CHECK(found >= version)) break;
        version = found;
    }
    CHECK(left > 0);
    CHECK(save_to_target(version + 1, 60));
    CHECK_EQ_INT(files_in_folder(), 1); /* the next save leaves nothing of theirs behind */
    remove_folder();
}
#endif

/* Images as those of MNIST, in stored blocks: more than a block and a buffer hold. */
TEST(idx_gzip_of_many_blocks) {
    enum { N = 1000, SIZE = 28 * 28 * N, HEADER = 16, BLOCK = 50000, ROOM = SIZE + 1000 };
    begin();
    fl_scope s = fl_scope_begin();
    if (!have_zlib()) {
        end(&s);
        SKIP("built without zlib");
    }
    unsigned char *idx = malloc(HEADER + SIZE), *gz = malloc(ROOM);
    memcpy(idx, "\0\0\x08\3\0\0\3\xe8\0\0\0\x1c\0\0\0\x1c", HEADER);
    for (int i = 0; i < SIZE; i++) idx[HEADER + i] = (unsigned char)(i * 31 + i / 784);
    size_t n = 10;
    memcpy(gz, "\x1f\x8b\x08\0\0\0\0\0\0\xff", n);
    for (int at = 0; at < HEADER + SIZE; at += BLOCK) {
        const int left = HEADER + SIZE - at, len = left < BLOCK ? left : BLOCK;
        const unsigned char head[5] = {len == left, (unsigned char)len, (unsigned char)(len >> 8),
                                       (unsigned char)~len, (unsigned char)(~len >> 8)};
        memcpy(gz + n, head, 5), memcpy(gz + n + 5, idx + at, (size_t)len);
        n += 5 + (size_t)len;
    }
    const uint32_t tail[2] = {fl_data_crc32(0, idx, HEADER + SIZE), HEADER + SIZE};
    for (int i = 0; i < 8; i++) gz[n++] = (unsigned char)(tail[i / 4] >> i % 4 * 8);
    CHECK(same_bits(load_idx(gz, n), fl_from_host(idx + HEADER, FL_SHAPE(N, 28, 28), FL_U8)));
    gz[ROOM / 2] ^= 1;
    CHECK(!load_idx(gz, n) && CHECK_ERROR("incorrect data check"));
    free(idx), free(gz);
    end(&s);
}

int main(int argc, char **argv) { return test_main(argc, argv); }

/* MIT licence: see LICENSE. */
