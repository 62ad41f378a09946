/* test_tokenizers.c - beside other people's tokenizers: strings, what is cut off, whole files, merges; and
   all of Unicode. tests/text.py writes what they say. */
#include "sample.h"
#include "text.h"
#include <inttypes.h>
#include <time.h>

/* ---- other people's tokenizers ---- */

static uint32_t crc_of_numbers(const int64_t *v, int64_t n) {
    fl_data_text t = {0};
    char number[32];
    fl_data_text_put(&t, "", 0);
    for (int64_t i = 0; i < n; i++) {
        snprintf(number, sizeof number, i ? " %lld" : "%lld", (long long)v[i]);
        fl_data_text_put(&t, number, strlen(number));
    }
    const uint32_t crc = fl_data_crc32(0, t.p, (size_t)t.n);
    fl_heap_free(t.p);
    return crc;
}

enum { STRINGS = 1000 };
static char *string[STRINGS];
static int64_t string_n[STRINGS];

static int read_strings(void) {
    int64_t n;
    char *text = golden("strings.json", &n);
    fl_data_json *j = text ? fl_data_json_of(text, (size_t)n) : NULL;
    int count = 0;
    if (j && fl_data_json_expect(j, FL_DATA_JSON_ARRAY))
        while (count < STRINGS && fl_data_json_more(j) && fl_data_json_string(j)) {
            string[count] = malloc((size_t)j->n + 1);
            memcpy(string[count], j->text, (size_t)j->n + 1);
            string_n[count++] = j->n;
        }
    fl_data_json_close(j);
    fl_heap_free(text);
    return count;
}

/* Offsets in characters, as the wheels count: all that a byte lies in. */
static void char_offsets(const fl_text_encoding *e, const char *a, int64_t n_a, const char *b, int64_t n_b,
                         int64_t *out) {
    int len;
    for (int64_t i = 0; i < e->n; i++) {
        const bool second = e->type[i] && b;
        const char *text = second ? b : a;
        const int64_t n = second ? n_b : n_a;
        int64_t chars = 0, begin = 0, end = 0;
        const bool empty = e->begin[i] == e->end[i];
        for (int64_t at = 0; at < n && (at < e->end[i] || (empty && at < e->begin[i])); at += len, chars++) {
            fl_text_utf8_decode(text + at, n - at, &len);
            if (at + len <= e->begin[i]) begin = chars + 1;
            end = chars + 1;
        }
        out[2 * i] = begin, out[2 * i + 1] = empty ? begin : end;
    }
}

static uint32_t crc_of_bytes(const uint8_t *v, int64_t n) {
    int64_t *wide = malloc((size_t)(n + 1) * sizeof *wide);
    for (int64_t i = 0; i < n; i++) wide[i] = v[i];
    const uint32_t crc = crc_of_numbers(wide, n);
    free(wide);
    return crc;
}

static uint32_t crc_of_ids(const int32_t *v, int64_t n) {
    int64_t *wide = malloc((size_t)(n + 1) * sizeof *wide);
    for (int64_t i = 0; i < n; i++) wide[i] = v[i];
    const uint32_t crc = crc_of_numbers(wide, n);
    free(wide);
    return crc;
}

static int show_differences; /* that are printed */

static void explain(const char *what, const char *file, const char *text, const fl_text_encoding *e,
                    const int64_t *offsets, const char *decoded) {
    if (show_differences-- <= 0) return;
    printf("  %s of %s: \"%.100s\" ->", what, file, text);
    for (int64_t i = 0; i < e->n && i < 40; i++)
        printf(" %d:%d-%d", (int)e->id[i], (int)offsets[2 * i], (int)offsets[2 * i + 1]);
    printf(" -> \"%.100s\"\n", decoded);
}

/* Lines of tokenizers.tsv: what it is of, which string or pair, sums of ids, offsets and decoded text (of
   pairs: types and mask). Differences that are allowed by name are counted. */
static void check_tokenizer(fl_text_tokenizer *t, const char *who, const char *tsv, int *lines, int *differ) {
    const size_t n_name = strlen(who);
    for (const char *p = tsv; *p; p = strchr(p, '\n') + 1) {
        if (strncmp(p, who, n_name) || p[n_name] != '\t') continue;
        const char *k = p + n_name + 1;
        const bool pair = *k == 'p';
        const int i = atoi(k + pair), a = pair ? i * 9 % 600 : i, b = (i + 1) * 9 % 600;
        unsigned want[5] = {0};
        sscanf(strchr(k, '\t'), "%x %x %x %x %x", &want[0], &want[1], &want[2], &want[3], &want[4]);
        fl_text_encoding e = {0};
        fl_data_text out = {0};
        ++*lines;
        fl_text_encode_opts o = {.pair = pair ? string[b] : NULL, .n_pair = pair ? string_n[b] : 0};
        if (!CHECK(fl_text_encode_opt(t, string[a], string_n[a], &e, o))) {
            printf("  %s: %s\n", who, fl_error());
            fl_error_clear();
            continue;
        }
        int64_t *offsets = malloc((size_t)(2 * e.n + 1) * sizeof *offsets);
        /* every text's offsets are asked of the one it came from; of roberta's pairs, whose texts both have
           type 0, they are not compared */
        char_offsets(&e, string[a], string_n[a], o.pair, o.n_pair, offsets);
        /* sentencepiece's ranges tile the text: of a character that is several pieces the last has it all */
        for (int64_t m = 0; !strncmp(who, "sp_", 3) && m + 1 < e.n; m++)
            offsets[2 * m + 1] = offsets[2 * m + 2];
        CHECK(fl_text_decode(t, e.id, e.n, true, &out));
        fl_data_text valid = {0};
        int64_t replaced = 0;
        fl_text_utf8_append(&valid, out.p, out.n, &replaced);
        bool same_all = crc_of_ids(e.id, e.n) == want[0];
        if (!same_all) explain("ids", who, string[a], &e, offsets, out.p);
        else if (!(pair && !strcmp(who, "roberta")) && crc_of_numbers(offsets, 2 * e.n) != want[1])
            explain("offsets", who, string[a], &e, offsets, out.p), same_all = false;
        else if (!pair && fl_data_crc32(0, valid.p, (size_t)valid.n) != want[2])
            explain("text", who, string[a], &e, offsets, out.p), same_all = false;
        else if (pair && (crc_of_bytes(e.type, e.n) != want[3] || crc_of_bytes(e.special, e.n) != want[4]))
            explain("pair", who, string[a], &e, offsets, ""), same_all = false;
        *differ += !same_all;
        free(offsets);
        fl_text_encoding_free(&e);
        fl_heap_free(out.p);
        fl_heap_free(valid.p);
    }
}

TEST(tokenizers_of_others) {
    static const char *const who[] = {"gpt2",    "llama3",        "qwen2",  "o200k",
                                      "cl100k",  "roberta",       "bert",   "bert_cased",
                                      "unigram", "unigram_bytes", "llama",  "suffix",
                                      "words",   "sp_unigram",    "sp_bpe", "sp_raw"};
    int64_t n;
    begin();
    fl_scope scope = fl_scope_begin();
    REQUIRE(read_strings() >= 600);
    char *tsv = golden("tokenizers.tsv", &n);
    REQUIRE(tsv);
    for (size_t i = 0; i < sizeof who / sizeof who[0]; i++) {
        char file[60], as[20];
        const bool model = !strncmp(who[i], "sp_", 3);
        snprintf(file, sizeof file, "%s.%s", who[i], model ? "model" : "json");
        snprintf(as, sizeof as, "t.%s", model ? "model" : "json");
        if (!golden_to_disk(file, as)) continue;
        /* Known: the range of a text of one unknown character; one string of format characters, which tables
           of another age class otherwise. */
        const int known = strstr("sp_unigram words", who[i]) != NULL;
        fl_text_tokenizer *t = fl_text_tokenizer_open(as);
        for (int again = 0; again < 2; again++) {
            int lines = 0, differ = 0;
            show_differences = again || known ? 0 : 4;
            CHECK_NO_ERROR();
            if (!CHECK(t)) continue;
            check_tokenizer(t, who[i], tsv, &lines, &differ);
            if (!CHECK(lines >= 600 && differ <= known))
                printf("%s: %d of %d lines differ\n", who[i], differ, lines);
            if (!again) t = reloaded(t);
        }
        fl_text_tokenizer_free(t);
    }
    fl_heap_free(tsv);
    end(&scope);
}

/* What is saved of a SentencePiece model, as a library reads it that does not know the keys "exact" and
   "unused": the same ids and text. Texts with names of control and unknown pieces, which are these there, are
   left out; a Precompiled map looks at clusters of characters, SentencePiece at the longest match. */
TEST(sentencepiece_for_others) {
    static const struct { const char *who; int known; } models[] = {
        {"sp_unigram", 3}, {"sp_bpe", 0}, {"sp_raw", 0}};
    begin();
    fl_scope scope = fl_scope_begin();
    const int strings = read_strings();
    REQUIRE(strings >= 600);
    for (int k = 0; k < 3; k++) {
        fl_data_text json = {0};
        char file[60];
        snprintf(file, sizeof file, "%s.model", models[k].who);
        if (!golden_to_disk(file, "t.model")) continue;
        fl_text_tokenizer *t = fl_text_tokenizer_open("t.model");
        REQUIRE(t && fl_text_tokenizer_json(t, &json));
        CHECK(!strstr(json.p, "\"type\":\"SentencePiece\""));
        for (int key = 0; key < 2; key++)
            for (char *p = json.p; (p = strstr(p, key ? "\"unused\":" : "\"exact\":")); p++) p[1] = '-';
        disk_write("t.json", json.p, (size_t)json.n);
        fl_heap_free(json.p);
        fl_text_tokenizer *other = fl_text_tokenizer_load("t.json");
        if (!other) printf("  %s\n", fl_error());
        int differ = 0;
        for (int i = 0; other && i < strings; i++) {
            if (strstr(string[i], "<unk>") || strstr(string[i], "<s>") || strstr(string[i], "</s>")) continue;
            fl_text_encoding a = {0}, b = {0};
            fl_data_text in = {0}, out = {0};
            REQUIRE(fl_text_encode(t, string[i], string_n[i], &a) &&
                    fl_text_encode(other, string[i], string_n[i], &b));
            const bool equal = a.n == b.n && (!a.n || !memcmp(a.id, b.id, (size_t)a.n * sizeof *a.id));
            if (!equal && differ++ >= models[k].known) printf("  %s: \"%.60s\"\n", models[k].who, string[i]);
            CHECK(fl_text_decode(t, a.id, a.n, false, &in) && fl_text_decode(other, a.id, a.n, false, &out) &&
                  in.n == out.n && !memcmp(in.p, out.p, (size_t)in.n));
            fl_text_encoding_free(&a);
            fl_text_encoding_free(&b);
            fl_heap_free(in.p);
            fl_heap_free(out.p);
        }
        CHECK(differ <= models[k].known);
        fl_error_clear(); /* without PCRE2 its expressions are not read */
        fl_text_tokenizer_free(other);
        fl_text_tokenizer_free(t);
    }
    end(&scope);
}

/* ---- tokenizers in GGUF files ---- */

/* t's keys as a file without tensors, for a model of that vocabulary, and what is read of them. */
static fl_text_tokenizer *through_gguf(const fl_text_tokenizer *t, int64_t size) {
    fl_text_gguf_vocab v = {0};
    const bool ok = fl_text_gguf_vocab_of(t, size, -1, -1, "test", &v) &&
                    fl_text_save_gguf("t.gguf", NULL, 0, v.pair, v.n);
    fl_text_gguf_vocab_free(&v);
    return ok ? fl_text_tokenizer_open("t.gguf") : NULL;
}

/* How many of the strings have other ids or another text. */
static int strings_that_differ(const fl_text_tokenizer *a, const fl_text_tokenizer *b, int strings) {
    fl_text_encoding x = {0}, y = {0};
    int differ = 0;
    for (int i = 0; i < strings; i++) {
        fl_data_text in = {0}, out = {0};
        const bool equal =
            fl_text_encode(a, string[i], string_n[i], &x) && fl_text_encode(b, string[i], string_n[i], &y) &&
            fl_text_decode(a, x.id, x.n, false, &in) && fl_text_decode(b, x.id, x.n, false, &out) &&
            x.n == y.n && (!x.n || !memcmp(x.id, y.id, (size_t)x.n * sizeof *x.id)) &&
                           in.n == out.n && (!in.n || !memcmp(in.p, out.p, (size_t)in.n));
        if (!equal && differ++ < 4) printf("  \"%.100s\"\n", string[i]);
        fl_heap_free(in.p), fl_heap_free(out.p);
    }
    fl_text_encoding_free(&x), fl_text_encoding_free(&y);
    return differ;
}

/* The pieces of a SentencePiece model as tokenizers has Llama's: with merges, and special tokens in texts. */
static fl_text_tokenizer *as_llama(const fl_text_tokenizer *t) {
    static const char pipeline[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
        "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
        "\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
        "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}}}";
    static const fl_text_added_token special[] = {{.text = "<unk>", .n = 5, .id = 0, .special = true},
                                                  {.text = "<s>", .n = 3, .id = 1, .special = true},
                                                  {.text = "</s>", .n = 4, .id = 2, .special = true}};
    fl_text_parts p = {0};
    const bool ok = fl_text_parts_of(t, &p);
    fl_text_dictionary *d = p.vocab;
    p.vocab = NULL;
    fl_text_model *m = fl_text_bpe(fl_text_dictionary_or_free(d, ok), .merge = p.merge,
                                   .n_merges = p.n_merges,
                                   .byte_fallback = true, .fuse_unk = true, .unk = "<unk>");
    fl_text_parts_free(&p);
    return fl_text_tokenizer_new(m, pipeline, special, 3, "test");
}

/* What is read is what was written: the same ids and text of all strings; keys as in public files. */
TEST(tokenizers_come_back_from_gguf) {
    static const struct { const char *file, *model, *pre; bool marked; } all[] = {
        {"gpt2.json", "gpt2", "gpt-2", false},     {"llama3.json", "gpt2", "smaug-bpe", false},
        {"qwen2.json", "gpt2", "qwen2", false},    {"o200k.json", "gpt2", "gpt-4o", false},
        {"sp_bpe.model", "llama", "default", true}, {"sp_bpe.model", "llama", "default", false},
        {"sp_raw.model", "t5", "default", false},  {"sp_unigram.model", "t5", "default", false},
        {"bert.json", "bert", "default", false},   {"bert_cased.json", "bert", "default", false}};
    begin();
    fl_scope scope = fl_scope_begin();
    const int strings = read_strings();
    REQUIRE(strings >= 600);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *as = strstr(all[i].file, ".json") ? "t.json" : "t.model";
        if (!golden_to_disk(all[i].file, as)) continue;
        fl_text_tokenizer *t = fl_text_tokenizer_open(as), *model = t;
        if (all[i].marked) t = as_llama(model), fl_text_tokenizer_free(model);
        REQUIRE(t);
        CHECK(fl_text_tokenizer_truncate(t, (fl_text_truncation){0}) &&
              fl_text_tokenizer_pad(t, (fl_text_padding){0})); /* which GGUF has no keys for */
        const int64_t size = fl_text_vocab_size(t);
        fl_text_tokenizer *again = through_gguf(t, size + 13);
        CHECK_NO_ERROR();
        REQUIRE(again);
        if (!CHECK(!strings_that_differ(t, again, strings) && fl_text_vocab_size(again) == size))
            printf("%s: %d tokens were %d\n", all[i].file, (int)fl_text_vocab_size(again), (int)size);
        for (int32_t id = 0; id < size; id++) {
            int64_t n, m;
            const char *a = fl_text_token_of(t, id, &n), *b = fl_text_token_of(again, id, &m);
            CHECK(a && b && n == m && !memcmp(a, b, (size_t)n) &&
                  fl_text_is_special(t, id) == fl_text_is_special(again, id));
        }
        fl_data_file *f = fl_text_open_gguf("t.gguf");
        REQUIRE(f);
        CHECK(!strcmp(fl_data_meta(f, "tokenizer.ggml.model"), all[i].model) &&
              !strcmp(fl_data_meta(f, "tokenizer.ggml.pre"), all[i].pre));
        fl_data_close(f);
        fl_text_tokenizer_free(t), fl_text_tokenizer_free(again);
    }
    end(&scope);
}

/* What GGUF has no key for is an error that says what. */
TEST(tokenizers_that_gguf_lacks) {
    static const struct { const char *file, *error; } all[] = {
        {"cl100k.json", "this normalizer, split"}, {"roberta.json", "this normalizer, split"},
        {"unigram.json", "this normalizer"},       {"unigram_bytes.json", "this normalizer"},
        {"suffix.json", "a token prefix or suffix"},     {"words.json", "a word-level model"},
        {"llama.json", "merges that omit"}};
    begin();
    fl_scope scope = fl_scope_begin();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!golden_to_disk(all[i].file, "t.json")) continue;
        fl_text_tokenizer *t = fl_text_tokenizer_open("t.json");
        CHECK(t && !through_gguf(t, fl_text_vocab_size(t)) && CHECK_ERROR(all[i].error));
        fl_text_tokenizer_free(t);
    }
    REQUIRE(golden_to_disk("sp_bpe.model", "t.model"));
    fl_text_tokenizer *model = fl_text_tokenizer_open("t.model"), *t = model ? as_llama(model) : NULL;
    fl_text_gguf_vocab v = {0};
    REQUIRE(t);
    CHECK(!through_gguf(t, 2) && CHECK_ERROR("expected at most 2"));
    CHECK(!fl_text_gguf_vocab_of(t, 2000, 5, -1, NULL, &v) &&
          CHECK_ERROR("fl_text_gguf_vocab_of: the tokenizer's bos or eos differs from the model's: got 1 and "
                      "-1, expected 5 and -1"));
    fl_text_gguf_vocab_free(&v);
    CHECK(!fl_text_gguf_vocab_of(NULL, 1, -1, -1, NULL, &v) && CHECK_ERROR("the tokenizer is NULL"));
    const fl_text_added_token wide = {.text = "<wide>", .n = 6, .id = -1, .lstrip = true},
                        seen = {.text = "<seen>", .n = 6, .id = -1, .special = true};
    CHECK(fl_text_tokenizer_add(t, &wide, 1) && !through_gguf(t, 2000) && CHECK_ERROR("absorb spaces"));
    CHECK(fl_text_tokenizer_add(model, &seen, 1) && !through_gguf(model, 2000) &&
          CHECK_ERROR("only some are recognised"));
    fl_text_tokenizer_free(t), fl_text_tokenizer_free(model);
    end(&scope);
}

/* A file of these keys; each line is one that is not what it should be. */
TEST(gguf_tokenizers_that_are_none) {
    static const char *const letters[] = {"a", "b", "ab", "<s>"}, *const twice[] = {"a", "b", "a", "<s>"},
                      *const merges[] = {"a b"}, *const unknown[] = {"a b", "a c"}, *const alone[] = {"ab"};
    static const int32_t kinds[] = {1, 1, 1, 3}, odd[] = {1, 1, 9, 3};
    static const float scores[] = {-1, -2, -3, NAN};
    const fl_text_gguf_pair gpt2 = {"tokenizer.ggml.model", .text = "gpt2"},
                            pre = {"tokenizer.ggml.pre", .text = "gpt-2"},
                            tokens = {"tokenizer.ggml.tokens", .array = letters, .n = 4},
                            kind = {"tokenizer.ggml.token_type", .array = kinds, .n = 4, .dtype = FL_I32},
                            merge = {"tokenizer.ggml.merges", .array = merges, .n = 1},
                            llama = {"tokenizer.ggml.model", .text = "llama"},
                            score = {"tokenizer.ggml.scores", .array = scores, .n = 4, .dtype = FL_F32};
    const struct { const char *error; fl_text_gguf_pair pair[6]; } all[] = {
        {NULL, {gpt2, pre, tokens, kind, merge}},
        {"unknown tokenizer.ggml.model ''", {pre, tokens, kind, merge}},
        {"tokenizer.ggml.model 'rwkv'; known: gpt2, llama, t5, bert", {{gpt2.key, .text = "rwkv"}, tokens}},
        {"tokenizer.ggml.pre ''; known: gpt-2, llama-bpe", {gpt2, tokens, kind, merge}},
        {"tokenizer.ggml.pre 'tekken'", {gpt2, tokens, {pre.key, .text = "tekken"}}},
        {"got 0, 0 and 0", {gpt2, pre}},
        {"got 4, 3 and 0",
         {gpt2, pre, tokens, {kind.key, .array = kinds, .n = 3, .dtype = FL_I32}}},
        {"got 9 at 2, expected 1 to 6",
         {gpt2, pre, tokens, {kind.key, .array = odd, .n = 4, .dtype = FL_I32}}},
        {"token_type: got 0 at 0", {gpt2, pre, tokens, {kind.key, .array = letters, .n = 4}}},
        {"expected strings", {gpt2, pre, {tokens.key, .array = kinds, .n = 4, .dtype = FL_I32}}},
        {"token 2: duplicate 'a'", {gpt2, pre, {tokens.key, .array = twice, .n = 4}, kind}},
        {"merge 1: got 'a c', expected two tokens",
         {gpt2, pre, tokens, kind, {merge.key, .array = unknown, .n = 2}}},
        {"merge 0: got 'ab', expected two tokens",
         {gpt2, pre, tokens, kind, {merge.key, .array = alone, .n = 1}}},
        {"bos_token_id is out of range: got 4, expected < 4",
         {gpt2, pre, tokens, kind, merge, {"tokenizer.ggml.bos_token_id", .number = 4}}},
        {"got 4, 4 and 0", {llama, tokens, kind}},
        {"score of piece 3 is not finite",
         {llama, tokens, kind, score, {"tokenizer.ggml.add_bos_token", .dtype = FL_B8}}},
        {"token 0 cannot begin or end",
         {llama, tokens, kind, score, {"tokenizer.ggml.bos_token_id", .number = 0}}},
        {"expected bytes",
         {llama, tokens, kind, score, {"tokenizer.ggml.precompiled_charsmap", .array = letters, .n = 1}}},
        {"score of token 3 is not finite",
         {llama, tokens, kind, score, {"tokenizer.fl.special_in_text", .number = 1, .dtype = FL_B8}}},
        {"'[UNK]' is not in the vocabulary", {{gpt2.key, .text = "bert"}, tokens, kind}}};
    begin();
    fl_scope scope = fl_scope_begin();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int n = 0;
        while (n < 6 && all[i].pair[n].key) n++;
        REQUIRE(fl_text_save_gguf("t.gguf", NULL, 0, all[i].pair, n));
        fl_text_tokenizer *t = fl_text_gguf_tokenizer_load("t.gguf");
        const char *got = fl_error();
        if (!CHECK(all[i].error ? !t && strstr(got, all[i].error) && strstr(got, "t.gguf: ") : t != NULL))
            printf("  row %d: %s\n", (int)i, fl_error() ? fl_error() : "opens");
        fl_error_clear();
        fl_text_tokenizer_free(t);
    }
    end(&scope);
}

/* ---- all of Unicode ---- */

/* Of integers, 32 bits each; starts 0. */
static void digest(uint32_t *crc, int64_t v) {
    const int32_t word = (int32_t)v;
    *crc = fl_data_crc32(*crc, &word, 4);
}

/* The field behind a name in a file of names and digests. */
static uint32_t digest_of(const char *tsv, const char *key) {
    const char *at = strstr(tsv, key);
    return at ? (uint32_t)strtoul(at + strlen(key), NULL, 16) : 0;
}

TEST(unicode_is_that_of_the_database) {
    enum { CATEGORY, WHITE, COMBINING, LOWER, CANONICAL, COMPATIBLE, COMPOSE, SCRIPT, ALL };
    static const char *const key[ALL] = {"category\t",  "white\t",      "combining\t", "lower\t",
                                          "canonical\t", "compatible\t", "compose\t",   "script\t"};
    uint32_t crc[ALL] = {0};
    const uint8_t *cls = fl_text_classes();
    int64_t n;
    begin();
    fl_scope scope = fl_scope_begin();
    char *tsv = golden("unicode.tsv", &n);
    REQUIRE(tsv);
    for (int32_t c = 0; c < 0x110000; c++) {
        int32_t part[FL_TEXT_PARTS], low[2];
        digest(&crc[CATEGORY], cls[c] & 31);
        if (cls[c] & FL_TEXT_WHITE_SPACE) digest(&crc[WHITE], c);
        digest(&crc[COMBINING], fl_text_combining(c));
        CHECK(fl_text_lower(c, low) == 1 + (c == 0x130));
        digest(&crc[LOWER], low[0]);
        for (int compatible = 0; compatible < 2; compatible++) {
            const int parts = fl_text_decompose(c, compatible, part);
            digest(&crc[CANONICAL + compatible], parts);
            for (int i = 0; i < parts; i++) digest(&crc[CANONICAL + compatible], part[i]);
        }
        for (const char *k = fl_text_script(c); *k; k++) digest(&crc[SCRIPT], *k);
    }
    /* pairs: of those with a decomposition of two */
    char *pairs = strstr(tsv, "pairs\t");
    for (char *p = pairs ? pairs + 6 : NULL, *end; p && *p && *p != '\n'; p = end) {
        const int32_t a = (int32_t)strtol(p, &end, 16), b = (int32_t)strtol(end, &end, 16);
        digest(&crc[COMPOSE], fl_text_compose(a, b));
        CHECK_EQ_INT(fl_text_compose(b, a), 0);
    }
    for (int i = 0; i < ALL; i++)
        if (!CHECK(crc[i] == digest_of(tsv, key[i]))) printf("  %s%08x\n", key[i], crc[i]);
    fl_heap_free(tsv);
    end(&scope);
}

#if defined(TEST_SANITIZED)
enum { SLOW = 1, LETTERS = 1 << 17 };
#else
enum { SLOW = 0, LETTERS = 10 << 20 };
#endif

/* ---- what they learn, cut off, and make of whole files ---- */

/* The strings, a line each. */
static char *strings_text(int count, int64_t *n) {
    fl_data_text t = {0};
    for (int i = 0; i < count; i++)
        CHECK(fl_data_text_put(&t, "\n", i > 0) && fl_data_text_put(&t, string[i], (size_t)string_n[i]));
    *n = t.n;
    return t.p;
}

static void check_merges(const char *row, int strings) {
    static const char *const special[] = {"<|end|>"};
    int64_t n, size = 0;
    unsigned want = 0;
    const bool words = !strncmp(row, "words", 5);
    char *text = words ? golden("unigram_train.txt", &n) : strings_text(strings, &n);
    fl_text_tokenizer *t = fl_text_bpe_train(text, n, .size = 1500, .min_count = 2, .special = special,
                                             .n_special = 1);
    fl_data_text chars = {0};
    uint32_t crc = 0;
    CHECK(t && sscanf(row, "%*s %" SCNd64 " %x", &size, &want) == 2 && fl_text_vocab_size(t) == size);
    for (int32_t i = 0; t && i < fl_text_vocab_size(t); i++) {
        const char *token = fl_text_token_of(t, i, &n);
        chars.n = 0; /* as tokenizer.json has them */
        CHECK(i ? fl_text_bytes_put(&chars, token, n) : fl_data_text_put(&chars, token, (size_t)n));
        if (i) digest(&crc, '\n');
        for (int64_t k = 0; k < chars.n; k++) digest(&crc, (uint8_t)chars.p[k]);
    }
    if (!CHECK(crc == want)) printf("  merges of %.20s\n", row);
    fl_heap_free(chars.p), fl_heap_free(text);
    fl_text_tokenizer_free(t);
}

/* The tokens that WordPiece joins, in the order of joining. Words as stems() of tests/text.py has them. */
static void check_pieces(const char *row) {
    uint32_t state = 12345, crc = 0;
    int64_t n, size = 0, joined = 0;
    unsigned want = 0;
    fl_data_text words = {0};
#define DRAW(n) ((int)(((state = (state * 1103515245u + 12345) & 0x7fffffff) >> 16) % (n)))
    for (int k = 0; k < 40; k++) {
        char stem[7];
        for (int i = 0; i < 7; i++) stem[i] = (char)('a' + DRAW(26));
        for (int length = 2; length < 8; length++)
            for (int i = 1 + DRAW(40); i > 0; i--) CHECK(fl_data_text_print(&words, "%.*s ", length, stem));
    }
#undef DRAW
    fl_text_tokenizer *t =
        fl_text_wordpiece_train(words.p, words.n, .size = 280, .min_count = 2, .cased = true);
    CHECK(t && sscanf(row, "%" SCNd64 " %x", &size, &want) == 2 && fl_text_vocab_size(t) == 280);
    for (int32_t i = 5; t && i < fl_text_vocab_size(t); i++) {
        const char *token = fl_text_token_of(t, i, &n);
        if (n - (*token == '#' ? 2 : 0) < 2) continue;
        if (joined++) digest(&crc, '\n');
        for (int64_t k = 0; k < n; k++) digest(&crc, (uint8_t)token[k]);
    }
    CHECK_EQ_INT(joined, size);
    CHECK(crc == want);
    fl_heap_free(words.p);
    fl_text_tokenizer_free(t);
}

static void check_cut(const char *row) {
    char who[20], file[40];
    int a, b, most, stride, strategy, left, pad_left, length, parts;
    unsigned want;
    if (!CHECK(sscanf(row, "%19s %d %d %d %d %d %d %d %d %d %x", who, &a, &b, &most, &stride, &strategy,
                      &left, &pad_left, &length, &parts, &want) == 11))
        return;
    snprintf(file, sizeof file, "%s.json", who);
    if (!golden_to_disk(file, "t.json")) return;
    fl_text_tokenizer *t = fl_text_tokenizer_load("t.json");
    fl_text_encoding e = {0};
    fl_text_encode_opts o = {.pair = b < 0 ? NULL : string[b], .n_pair = b < 0 ? 0 : string_n[b]};
    CHECK(t && fl_text_tokenizer_truncate(
                   t, (fl_text_truncation){most, stride, (fl_text_truncate)strategy, left}));
    CHECK(t && fl_text_tokenizer_pad(
                   t, (fl_text_padding){
                          .on = true, .length = length, .left = pad_left, .id = 3, .type = 1, .token = "?"}));
    uint32_t crc = 0;
    if (t && CHECK(fl_text_encode_opt(t, string[a], string_n[a], &e, o)))
        for (int64_t k = 0; k <= e.n_overflow; k++) {
            const fl_text_encoding *p = k ? &e.overflow[k - 1] : &e;
            for (int64_t i = 0; i < p->n; i++) digest(&crc, p->id[i]);
            for (int64_t i = 0; i < p->n; i++) digest(&crc, p->type[i]);
            for (int64_t i = 0; i < p->n; i++) digest(&crc, p->special[i]);
            for (int64_t i = 0; i < p->n; i++) digest(&crc, p->mask[i]);
        }
    if (!CHECK(e.n_overflow + 1 == parts && crc == want))
        printf("  %d parts of %.60s\n", (int)e.n_overflow + 1, row);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
}

/* A word of 10,010 letters: its ids. Ten million of one letter: in five seconds. */
static void check_long(const char *row) {
    char who[20], file[40];
    int64_t count;
    unsigned want;
    uint32_t crc = 0;
    fl_text_encoding e = {0};
    if (!CHECK(sscanf(row, "%19s %" SCNd64 " %x", who, &count, &want) == 3)) return;
    snprintf(file, sizeof file, "%s.json", who);
    if (!golden_to_disk(file, "t.json")) return;
    fl_text_tokenizer *t = fl_text_tokenizer_load("t.json");
    REQUIRE(t && fl_text_tokenizer_truncate(t, (fl_text_truncation){0}) &&
            fl_text_tokenizer_pad(t, (fl_text_padding){0}));
    char *text = malloc(LETTERS);
    for (int i = 0; i < 10010; i++) text[i] = (char)('a' + i % 7);
    CHECK(fl_text_encode(t, text, 10010, &e));
    for (int64_t i = 0; i < e.n; i++) digest(&crc, e.id[i]);
    if (!CHECK(e.n == count && crc == want)) printf("  %d ids of a long word by %s\n", (int)e.n, who);
    memset(text, 'w', LETTERS);
    const clock_t start = clock();
    if (strstr("gpt2 bert llama unigram", who)) CHECK(fl_text_encode(t, text, LETTERS, &e));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (!CHECK(seconds < 5)) printf("  %s: %.1f s\n", who, seconds);
    free(text);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
}

/* Ranks of tokenizer.json as tiktoken's file; its ids of all strings. */
static void check_tiktoken(const char *row, int strings) {
    char who[20], file[40];
    unsigned want;
    int64_t n;
    uint32_t crc = 0;
    fl_data_text ranks = {0};
    fl_text_encoding e = {0};
    if (!CHECK(sscanf(row, "%19s %*d %x", who, &want) == 2)) return;
    snprintf(file, sizeof file, "%s.json", who);
    if (!golden_to_disk(file, "t.json")) return;
    fl_text_tokenizer *t = fl_text_tokenizer_load("t.json");
    REQUIRE(t);
    for (int32_t i = 1; i < fl_text_vocab_size(t); i++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *token = fl_text_token_of(t, i, &n);
        char line[200], *p = line;
        for (int64_t k = 0; k < n; k += 3) {
            unsigned bits = 0;
            for (int64_t m = k; m < k + 3; m++) bits = bits << 8 | (m < n ? (uint8_t)token[m] : 0);
            for (int m = 0; m < 4; m++) *p++ = k + m > n ? '=' : digits[bits >> (18 - 6 * m) & 63];
        }
        p += snprintf(p, 20, " %d\n", (int)i - 1);
        CHECK(fl_data_text_put(&ranks, line, (size_t)(p - line)));
    }
    fl_text_tokenizer_free(t);
    disk_write("t.tiktoken", ranks.p, (size_t)ranks.n);
    t = fl_text_tiktoken_load("t.tiktoken", *who == 'c' ? FL_TEXT_SPLIT_CL100K : FL_TEXT_SPLIT_O200K, NULL,
                              0);
    CHECK_NO_ERROR();
    for (int i = 0; t && i < strings; i++, digest(&crc, -1)) {
        CHECK(fl_text_encode(t, string[i], string_n[i], &e));
        for (int64_t k = 0; k < e.n; k++) digest(&crc, e.id[k]);
    }
    if (!CHECK(crc == want)) printf("  %s\n", row);
    fl_heap_free(ranks.p);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
}

static const char *text_path(const char *file) {
    static char path[2][600];
    static int at;
    snprintf(path[at ^= 1], sizeof path[0], "%s/text/%s", test_data_dir(), file);
    return path[at];
}

static fl_text_tokenizer *real_tokenizer(const char *who) {
    char file[100];
    if (!strcmp(who, "gpt2"))
        return fl_text_gpt2_load(text_path("gpt2/encoder.json"), text_path("gpt2/vocab.bpe"));
    if (!strcmp(who, "bert"))
        return fl_text_wordpiece_load(text_path("bert/bert-base-uncased-vocab.txt"), false);
    snprintf(file, sizeof file, "sentencepiece/%s.model", who);
    return fl_text_sentencepiece_load(text_path(file));
}

/* A real file by a real vocabulary: whole, with offsets, or, as sentencepiece wants it, line by line. */
static void check_file(const char *row) {
    char who[40], file[100];
    long long count;
    unsigned want[2];
    int64_t n, ids = 0;
    uint32_t crc[2] = {0};
    if (!CHECK(sscanf(row, "%39s %99s %lld %x %x", who, file, &count, &want[0], &want[1]) == 5)) return;
    fl_data_io_use(NULL);
    fl_text_tokenizer *t = real_tokenizer(who);
    char *text = t ? fl_text_read_file("test", text_path(file), &n) : NULL;
    fl_data_io_use(&disk_io);
    if (!text) {
        printf("  no %s, or no %s\n", who, file);
        fl_error_clear(), fl_text_tokenizer_free(t);
        return;
    }
    const bool whole = want[1] != 0;
    int32_t *at = malloc(((size_t)n + 1) * sizeof *at); /* the character that a byte is of */
    for (int64_t i = 0, c = 0; i < n; c++) {
        int len;
        fl_text_utf8_decode(text + i, n - i, &len);
        while (len--) at[i++] = (int32_t)c;
    }
    fl_text_encoding e = {0};
    for (const char *p = text, *stop; p && p <= text + n; p = whole ? NULL : stop + 1) {
        stop = whole ? NULL : memchr(p, '\n', (size_t)(text + n - p));
        if (!stop) stop = text + n;
        CHECK(fl_text_encode(t, p, stop - p, &e, .plain = true));
        for (int64_t i = 0; i < e.n; i++) {
            digest(&crc[0], e.id[i]);
            if (whole) digest(&crc[1], at[e.begin[i]]), digest(&crc[1], at[e.end[i] - 1] + 1);
        }
        if (!whole) digest(&crc[0], -1);
        ids += e.n + !whole;
    }
    if (!CHECK(ids == count && crc[0] == want[0] && crc[1] == want[1]))
        printf("  %d ids of %s by %s\n", (int)ids, file, who);
    free(at);
    fl_heap_free(text);
    fl_text_encoding_free(&e);
    fl_text_tokenizer_free(t);
}

/* Runs of one character by a unigram model, whose ways of equal score rounding decides between; as runs() of
   tests/text.py has them. */
static void check_runs(const char *row) {
    static const char *const piece[] = {"<unk>", "<s>", "</s>", "\xe2\x96\x81", ".", "......", "-", "--"};
    static const float score[] = {0, 0, 0, -3.774301767349243f, -3.5008492469787598f, -7.288172721862793f,
                                  -5.132013320922852f, -7.80125617980957f};
    enum { LONG = 130000 };
    char *text = malloc(LONG);
    unsigned want = 0;
    int texts = 0;
    CHECK(sscanf(row, "%d %x", &texts, &want) == 2 && texts == 601);
    fl_text_dictionary *d = fl_text_dictionary_new();
    CHECK(fl_text_dictionary_add_all(d, piece, 8));
    fl_text_tokenizer *t = fl_text_pieces(d, score, NULL, (fl_text_pieces_opts){.where = "test"});
    for (int again = 0; again < 2 && CHECK(t); again++) {
        fl_text_encoding e = {0};
        uint32_t crc = 0;
        for (int i = 0; i < texts; i++, digest(&crc, -1)) {
            const int n = i == 600 ? LONG : i % 300 + 1;
            memset(text, i / 300 == 1 ? '-' : '.', (size_t)n);
            CHECK(fl_text_encode(t, text, n, &e));
            for (int64_t k = 0; k < e.n; k++) digest(&crc, e.id[k]);
        }
        CHECK(crc == want);
        fl_text_encoding_free(&e);
        if (!again) t = reloaded(t);
    }
    fl_text_tokenizer_free(t);
    free(text);
}

TEST(as_the_wheels_do) {
    int64_t n;
    int rows[7] = {0};
    begin();
    fl_scope scope = fl_scope_begin();
    const int strings = read_strings();
    char *tsv = golden("peers.tsv", &n);
    REQUIRE(tsv && strings >= 600);
    for (char *line = tsv, *stop; *line; line = stop) {
        static const char *const kinds[] = {"merges\t", "cut\t",  "tiktoken\t",
                                            "file\t",   "long\t", "pieces\t", "runs\t"};
        stop = strchr(line, '\n');
        *stop++ = 0;
        int k = 0;
        while (k < 7 && strncmp(line, kinds[k], strlen(kinds[k]))) k++;
        REQUIRE(k < 7);
        const char *row = line + strlen(kinds[k]);
        rows[k]++;
        if (k == 0) check_merges(row, strings);
        else if (k == 2) check_tiktoken(row, strings);
        else if (k == 4) check_long(row);
        else if (k == 5) check_pieces(row);
        else if (k == 6) check_runs(row);
        else if (k == 1 && in_sample(row, SLOW ? 5 : 1)) check_cut(row);
        else if (k == 3 && in_sample(row, SLOW ? 30 : 6)) check_file(row);
    }
    CHECK(rows[0] == 2 && rows[1] == 200 && rows[2] == 2 && rows[3] == 25 && rows[4] == 13 &&
          rows[5] == 1 && rows[6] == 1);
    fl_heap_free(tsv);
    end(&scope);
}

/* save A B: tokenizer A as tokenizer.json, for tests/python. */
static int save(const char *from, const char *to) {
    fl_text_tokenizer *t = fl_text_tokenizer_open(from);
    const bool ok = t && fl_text_tokenizer_save(t, to);
    if (!ok) printf("%s\n", fl_error());
    fl_text_tokenizer_free(t);
    return !ok;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "save")) return save(argv[2], argv[3]);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
