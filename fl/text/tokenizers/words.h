/* fl/text/tokenizers/words.h - word-level and character-level tokenizers */
#ifndef FL_TEXT_TOKENIZERS_WORDS_H
#define FL_TEXT_TOKENIZERS_WORDS_H
#include "../dictionary.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* WordLevel of tokenizer.json; takes the dictionary. A piece is one token, or unk (an index; -1: unknown
   pieces are errors). */
FL_API fl_text_model *fl_text_word_model(fl_text_dictionary *vocab, int64_t unk);

/* Words separated by white space, decoded with single spaces; unknown words are the dictionary's default
   index. Takes the dictionary. */
FL_API fl_text_tokenizer *fl_text_word_tokenizer(fl_text_dictionary *vocab);
/* Characters: the vocabulary is the characters of n bytes of text, in the order of code points. Other
   characters are errors. Decoding restores the text exactly. */
FL_API fl_text_tokenizer *fl_text_char_tokenizer(const char *text, int64_t n);
/* Counts the words of a text in d, for fl_text_dictionary_pruned. Returns false after fl_fail. */
FL_API bool fl_text_count_words(fl_text_dictionary *d, const char *text, int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_WORDS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_WORDS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_WORDS_IMPL
#define FL_TEXT_TOKENIZERS_WORDS_IMPL
#include "../../data/json.h"
#include "../unicode.h"
#include "../utf8.h"
#include "vocabulary.h"
#include <string.h>

typedef struct fl__words {
    fl_text_model m;
    int64_t unk;
} fl__words;

static bool fl__words_encode(const fl_text_model *m, fl_text_work *w, uint32_t begin, uint32_t end) {
    int64_t id = fl_text_dictionary_find(m->vocab, w->p + begin, end - begin);
    if (id < 0) id = ((const fl__words *)m)->unk;
    if (id >= 0) return fl_text_work_token(w, (int32_t)id, begin, end);
    int len;
    fl_text_utf8_decode(w->p + begin, end - begin, &len);
    if ((uint32_t)len == end - begin) return fl_text_work_unknown(w, begin);
    return fl_fail("fl_text_encode: offset %lld: word '%.*s' is not in the vocabulary, and there is no "
                   "unknown "
                   "token",
                   (long long)fl_text_work_from(w, begin),
                   end - begin < 100 ? (int)(end - begin) : 100, w->p + begin);
}

static bool fl__words_put(const fl_text_model *m, bool bytes, fl_data_text *out) {
    int64_t n;
    const char *unk = fl_text_dictionary_entry(m->vocab, ((const fl__words *)m)->unk, &n);
    return fl_text_put_vocab(m->vocab, bytes, out) && fl_data_text_put(out, ",\"unk_token\":", 13) &&
           fl_data_json_put_string(out, unk ? unk : "<unk>", unk ? (size_t)n : 5);
}

FL_API fl_text_model *fl_text_word_model(fl_text_dictionary *vocab, int64_t unk) {
    fl__words *w = fl_text_model_new(sizeof *w, (fl_text_model){"WordLevel", vocab, false, fl__words_encode,
                                                                fl__words_put, NULL, NULL});
    if (w) w->unk = unk;
    return (fl_text_model *)w;
}

FL_API fl_text_tokenizer *fl_text_word_tokenizer(fl_text_dictionary *vocab) {
    if (!fl_given(vocab, "fl_text_word_tokenizer", "the vocabulary")) return NULL;
    if (!vocab) return NULL;
    return fl_text_tokenizer_new(fl_text_word_model(vocab, fl_text_dictionary_default(vocab)),
                                 "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}}", NULL, 0,
                                 "fl_text_word_tokenizer");
}

FL_API fl_text_tokenizer *fl_text_char_tokenizer(const char *text, int64_t n) {
    uint8_t *seen = fl_heap_alloc(0x110000 / 8);
    fl_text_dictionary *d = seen ? fl_text_dictionary_new() : NULL;
    bool ok = d != NULL;
    int len;
    for (int64_t i = 0; ok && i < n; i += len) {
        const int32_t c = fl_text_utf8_decode(text + i, n - i, &len), k = c < 0 ? 0xfffd : c;
        seen[k / 8] |= (uint8_t)(1 << k % 8);
    }
    for (int32_t c = 0; ok && c < 0x110000; c++) {
        char bytes[4];
        if (seen[c / 8] >> c % 8 & 1) ok = fl_text_dictionary_add(d, bytes,
                                                                  fl_text_utf8_encode(bytes, c)) >= 0;
    }
    fl_heap_free(seen);
    return fl_text_tokenizer_new(fl_text_word_model(fl_text_dictionary_or_free(d, ok), -1),
                                 "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":1},"
                                 "\"decoder\":{\"type\":\"Fuse\"}}", NULL, 0, "fl_text_char_tokenizer");
}

FL_API bool fl_text_count_words(fl_text_dictionary *d, const char *text, int64_t n) {
    const uint8_t *cls = fl_text_classes();
    bool ok = true;
    int len;
    for (int64_t i = 0, begin = 0; ok && i <= n; i += len) {
        const int32_t c = i < n ? fl_text_utf8_decode(text + i, n - i, &len) : (len = 1, ' ');
        if (c < 0 || !(cls[c] & FL_TEXT_WHITE_SPACE)) continue;
        ok = begin == i || fl_text_dictionary_count(d, text + begin, i - begin, 1) >= 0;
        begin = i + len;
    }
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
