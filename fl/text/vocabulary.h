/* vocabulary.h - vocabularies in tokenizer.json */
#ifndef FL_TEXT_VOCABULARY_H
#define FL_TEXT_VOCABULARY_H
#include "../data/json.h"
#include "dictionary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A token as a JSON string; bytes: as characters. */
FL_API bool fl_text_put_token(const char *text, int64_t n, bool bytes, fl_data_text *out);
/* ,"vocab":{"token":id, ...} */
FL_API bool fl_text_put_vocab(const fl_text_dictionary *d, bool bytes, fl_data_text *out);
/* The object {"token": id, ...} that has begun, into d. bytes: tokens whose characters all stand for bytes
   are these bytes; others stay text. An id that comes twice, or is above the file's size, is an error. */
FL_API bool fl_text_read_vocab(fl_data_json *j, bool bytes, int64_t most, fl_text_dictionary *d);
/* Bytes of a token of such a vocabulary, in raw if it stands for bytes: n bytes of room; else text itself. */
FL_API const char *fl_text_token_bytes(const char *text, int64_t *n, bool bytes, char *raw);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_VOCABULARY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_VOCABULARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_VOCABULARY_IMPL
#define FL_TEXT_VOCABULARY_IMPL
#include "bytes.h"
#include <stdio.h>
#include <string.h>

FL_API bool fl_text_put_token(const char *text, int64_t n, bool bytes, fl_data_text *out) {
    fl_data_text chars = {0};
    bool ok = !bytes || fl_text_bytes_put(&chars, text, n);
    ok = ok && fl_data_json_put_string(out, bytes ? chars.p : text, (size_t)(bytes ? chars.n : n));
    fl_heap_free(chars.p);
    return ok;
}

FL_API bool fl_text_put_vocab(const fl_text_dictionary *d, bool bytes, fl_data_text *out) {
    int64_t n, index;
    bool ok = fl_data_text_print(out, ",\n\"vocab\":{");
    const char *text;
    for (int64_t k = 0; ok && (text = fl_text_dictionary_spelling(d, k, &n, &index)); k++)
        ok = fl_data_text_print(out, "%s", k ? ",\n" : "") && fl_text_put_token(text, n, bytes, out) &&
             fl_data_text_print(out, ":%lld", (long long)index);
    return ok && fl_data_text_print(out, "}");
}

FL_API const char *fl_text_token_bytes(const char *text, int64_t *n, bool bytes, char *raw) {
    const int64_t size = bytes ? fl_text_bytes_get(text, *n, raw) : -1;
    if (size < 0) return text;
    *n = size;
    return raw;
}

FL_API bool fl_text_read_vocab(fl_data_json *j, bool bytes, int64_t most, fl_text_dictionary *d) {
    char small[256];
    bool ok = true;
    while (ok && fl_data_json_more(j)) {
        char *raw = j->n <= (int64_t)sizeof small ? small : fl_heap_alloc((size_t)j->n + 1), *copy = NULL;
        int64_t n = j->n, id = -1;
        const char *text = raw ? fl_text_token_bytes(j->text, &n, bytes, raw) : NULL;
        if (text && text != raw) { /* the number's event takes its place */
            copy = fl_heap_alloc((size_t)n + 1);
            if (copy) memcpy(copy, text, (size_t)n);
            text = copy;
        }
        const int shown = n < 60 ? (int)n : 60;
        ok = text && fl_data_json_int(j, &id);
        if (ok && (id < 0 || id > most))
            ok = fl_data_json_fail(j, "'%.*s' has id %lld", shown, text, (long long)id);
        if (ok && fl_text_dictionary_entry(d, id, NULL))
            ok = fl_data_json_fail(j, "'%.*s' has id %lld, as another one", shown, text, (long long)id);
        if (ok && fl_text_dictionary_find(d, text, n) >= 0)
            ok = fl_data_json_fail(j, "'%.*s' is there twice", shown, text);
        ok = ok && fl_text_dictionary_add_at(d, text, n, id);
        if (raw != small) fl_heap_free(raw);
        fl_heap_free(copy);
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

#endif
#endif

/* MIT licence: see LICENSE. */
