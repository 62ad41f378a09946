/* fl/text/tokenizers/gpt2.h - byte-level BPE: files of GPT-2 and tiktoken */
#ifndef FL_TEXT_TOKENIZERS_GPT2_H
#define FL_TEXT_TOKENIZERS_GPT2_H
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads "encoder.json" (or vocab.json) and "vocab.bpe" (or merges.txt) with GPT-2's split; <|endoftext|> is
   special if it is in the vocabulary. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_gpt2_load(const char *vocab, const char *merges);
/* Loads a .tiktoken file: one token per line, base64 ("=" for an empty one) and rank. split: a regular
   expression such as FL_TEXT_SPLIT_CL100K; special: special tokens with ids. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_tiktoken_load(const char *path, const char *split,
                                                const fl_text_added_token *special, int64_t n);
/* Appends the pipeline of byte-level tokenizers with that split, as JSON. */
FL_API bool fl_text_bytes_pipeline(fl_data_text *out, const char *split);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_GPT2_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_GPT2) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_GPT2_IMPL
#define FL_TEXT_TOKENIZERS_GPT2_IMPL
#include "../../data/json.h"
#include "bpe.h"
#include "bytes.h"
#include "pattern.h"
#include "vocabulary.h"
#include <stdio.h>
#include <string.h>

FL_API bool fl_text_bytes_pipeline(fl_data_text *out, const char *split) {
    if (!fl_given(out, "fl_text_bytes_pipeline", "the text") ||
        !fl_given(split, "fl_text_bytes_pipeline", "the pattern")) return false;
    const bool known = !strcmp(split, FL_TEXT_SPLIT_GPT2); /* the split that ByteLevel implements */
    return (known ? fl_data_text_print(out, "{\"pre_tokenizer\":")
                  : fl_data_text_print(out, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                                       "{\"type\":\"Split\",\"pattern\":{\"Regex\":") &&
                        fl_data_json_put_string(out, split, strlen(split)) &&
                        fl_data_text_print(out, "},\"behavior\":\"Isolated\",\"invert\":false},")) &&
           fl_data_text_print(out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                              "\"use_regex\":%s,\"decoder\":{\"type\":\"ByteLevel\","
                              "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}}",
                              known ? "true}" : "false}]}");
}

/* Parses a line "left right" of two tokens. */
static bool fl__gpt2_merge(const fl_text_dictionary *d, const char *p, const char *end,
                           const char *path, int64_t line, fl_data_text *raw, fl_text_merge *out) {
    int32_t id[2];
    for (int k = 0; k < 2; k++) {
        int64_t n;
        const char *text = fl_text_field(&p, end, &n);
        if (!text)
            return fl_fail("fl_text_gpt2_load: %s: line %lld: expected two tokens", path, (long long)line);
        const char *token = fl_text_token_bytes(text, &n, true, raw);
        if (!token) return false;
        id[k] = (int32_t)fl_text_dictionary_find(d, token, n);
        if (id[k] < 0)
            return fl_fail("fl_text_gpt2_load: %s: line %lld: '%.*s' is not in the vocabulary", path,
                           (long long)line, (int)(p - text < 60 ? p - text : 60), text);
    }
    int64_t n;
    if (fl_text_field(&p, end, &n))
        return fl_fail("fl_text_gpt2_load: %s: line %lld: more than two tokens", path, (long long)line);
    *out = (fl_text_merge){id[0], id[1]};
    return true;
}

static bool fl__gpt2_merges(const fl_text_dictionary *d, const char *path, fl_text_merge **merge,
                            int64_t *n) {
    int64_t size, len, cap = 0, line = 0;
    char *text = fl_text_read_file("fl_text_gpt2_load", path, &size);
    fl_data_text raw = {0};
    bool ok = text != NULL;
    for (const char *p = text, *s; ok && (s = fl_text_line(&p, text + size, &len));) {
        const bool comment = !line++ && len >= 8 && !memcmp(s, "#version", 8);
        if (!len || comment) continue;
        ok = fl_heap_grow(merge, &cap, *n + 1, sizeof **merge) &&
             fl__gpt2_merge(d, s, s + len, path, line, &raw, &(*merge)[*n]) && ++*n;
    }
    fl_heap_free(raw.p);
    fl_heap_free(text);
    return ok;
}

FL_API fl_text_tokenizer *fl_text_gpt2_load(const char *vocab, const char *merges) {
    fl_text_merge *merge = NULL;
    fl_data_text json = {0};
    int64_t n = 0;
    fl_data_json *j = fl_data_json_open(vocab, .who = "fl_text_gpt2_load");
    fl_text_dictionary *d = j ? fl_text_dictionary_new() : NULL;
    bool ok = d && fl_data_json_expect(j, FL_DATA_JSON_OBJECT) &&
              fl_text_read_vocab(j, true, j->f_.size, d) &&
              fl_data_json_next(j) == FL_DATA_JSON_END && fl__gpt2_merges(d, merges, &merge, &n);
    fl_data_json_close(j);
    ok = ok && fl_text_bytes_pipeline(&json, FL_TEXT_SPLIT_GPT2);
    fl_text_model *m = fl_text_bpe(fl_text_dictionary_or_free(d, ok), .merge = merge, .n_merges = n,
                                   .bytes = true, .where = "fl_text_gpt2_load");
    const fl_text_added_token end = {.text = "<|endoftext|>", .n = 13, .id = -1, .special = true};
    const bool ends = m && fl_text_dictionary_find(m->vocab, end.text, end.n) >= 0;
    fl_text_tokenizer *t = fl_text_tokenizer_new(m, json.p, &end, ends, "fl_text_gpt2_load");
    fl_heap_free(merge);
    fl_heap_free(json.p);
    return t;
}

static bool fl__gpt2_rank(fl_text_dictionary *d, const char *p, const char *end, const char *path,
                          int64_t line, int64_t most) {
    char small[256];
    int64_t n, digits;
    double rank;
    const char *text = fl_text_field(&p, end, &n), *number = fl_text_field(&p, end, &digits);
    if (!text) return true;
    char *raw = n <= (int64_t)sizeof small ? small : fl_heap_alloc((size_t)n);
    if (!raw) return false;
    const bool empty = n == 1 && *text == '='; /* a token with an id but no text */
    const int64_t size = empty ? 0 : fl_text_base64_get(text, n, raw);
    bool ok = (size + empty > 0 && number && fl_data_parse_double(number, (size_t)digits, &rank) &&
               rank >= 0 && rank <= (double)most && rank == (double)(int64_t)rank) ||
               fl_fail("fl_text_tiktoken_load: %s: line %lld: expected a token in base64 and its rank", path,
                       (long long)line);
    ok = ok &&
         ((!fl_text_dictionary_entry(d, (int64_t)rank, NULL) &&
           fl_text_dictionary_find(d, raw, size) < 0) ||
          fl_fail("fl_text_tiktoken_load: %s: line %lld: duplicate token or rank", path, (long long)line));
    ok = ok && fl_text_dictionary_add_at(d, raw, size, (int64_t)rank);
    if (raw != small) fl_heap_free(raw);
    return ok;
}

FL_API fl_text_tokenizer *fl_text_tiktoken_load(const char *path, const char *split,
                                                const fl_text_added_token *special, int64_t n) {
    int64_t size, len, line = 0;
    fl_data_text json = {0};
    char *text = fl_text_read_file("fl_text_tiktoken_load", path, &size);
    fl_text_dictionary *d = text ? fl_text_dictionary_new() : NULL;
    bool ok = d && fl_text_bytes_pipeline(&json, split);
    for (const char *p = text, *s; ok && (s = fl_text_line(&p, text + size, &len));)
        ok = fl__gpt2_rank(d, s, s + len, path, ++line, size);
    fl_heap_free(text);
    fl_text_model *m = fl_text_bpe(fl_text_dictionary_or_free(d, ok), .by_id = true, .bytes = true,
                                   .ignore_merges = true, .where = "fl_text_tiktoken_load");
    fl_text_tokenizer *t = fl_text_tokenizer_new(m, json.p, special, n, "fl_text_tiktoken_load");
    fl_heap_free(json.p);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
