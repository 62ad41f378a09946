/* fl/text/tokenizers/vocabulary.h - vocabularies in tokenizer.json: read and write */
#ifndef FL_TEXT_TOKENIZERS_VOCABULARY_H
#define FL_TEXT_TOKENIZERS_VOCABULARY_H
#include "../../data/json.h"
#include "../dictionary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends a token as a JSON string; bytes: written as characters. */
FL_API bool fl_text_put_token(const char *text, int64_t n, bool bytes, fl_data_text *out);
/* Appends ,"vocab":{"token":id, ...} */
FL_API bool fl_text_put_vocab(const fl_text_dictionary *d, bool bytes, fl_data_text *out);
/* Reads an object {"token": id, ...}, whose beginning was read, into d. bytes: tokens whose characters all
   stand for bytes become bytes; others stay text. Ids that are duplicate or above `most` are errors. */
FL_API bool fl_text_read_vocab(fl_data_json *j, bool bytes, int64_t most, fl_text_dictionary *d);
/* The bytes of a token of such a vocabulary: in raw, which is overwritten, if it stands for bytes; else text
   itself. Returns NULL after fl_fail. */
FL_API const char *fl_text_token_bytes(const char *text, int64_t *n, bool bytes, fl_data_text *raw);
/* Appends ,"post_processor":{...} that adds the tokens bos and eos of d (-1: none) around each text; nothing
   if both are -1. */
FL_API bool fl_text_put_template(const fl_text_dictionary *d, int64_t bos, int64_t eos, fl_data_text *out);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_VOCABULARY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_VOCABULARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_VOCABULARY_IMPL
#define FL_TEXT_TOKENIZERS_VOCABULARY_IMPL
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
    if (!fl_given(d, "fl_text_put_vocab", "the dictionary") ||
        !fl_given(out, "fl_text_put_vocab", "the text")) return false;
    int64_t n, index;
    bool ok = fl_data_text_print(out, ",\n\"vocab\":{");
    const char *text;
    for (int64_t k = 0; ok && (text = fl_text_dictionary_spelling(d, k, &n, &index)); k++)
        ok = fl_data_text_print(out, "%s", k ? ",\n" : "") && fl_text_put_token(text, n, bytes, out) &&
             fl_data_text_print(out, ":%lld", (long long)index);
    return ok && fl_data_text_print(out, "}");
}

FL_API const char *fl_text_token_bytes(const char *text, int64_t *n, bool bytes, fl_data_text *raw) {
    if (!fl_given(text, "fl_text_token_bytes", "the text") ||
        !fl_given(n, "fl_text_token_bytes", "the count") ||
        !fl_given(raw, "fl_text_token_bytes", "the buffer")) return NULL;
    if (!bytes) return text;
    if (!fl_heap_grow(&raw->p, &raw->cap_, *n + 1, 1)) return NULL;
    const int64_t size = fl_text_bytes_get(text, *n, raw->p);
    if (size < 0) return text;
    *n = raw->n = size;
    return raw->p;
}

FL_API bool fl_text_read_vocab(fl_data_json *j, bool bytes, int64_t most, fl_text_dictionary *d) {
    if (!fl_given(j, "fl_text_read_vocab", "the reader") ||
        !fl_given(d, "fl_text_read_vocab", "the dictionary")) return false;
    fl_data_text raw = {0};
    bool ok = true;
    while (ok && fl_data_json_more(j)) {
        int64_t n = j->n, id = -1;
        const char *text = fl_text_token_bytes(j->text, &n, bytes, &raw);
        if (text && text == j->text) /* the number's event will overwrite it */
            raw.n = 0, text = fl_data_text_put(&raw, text, (size_t)n) ? raw.p : NULL;
        const int shown = n < 60 ? (int)n : 60;
        ok = text && fl_data_json_int(j, &id);
        if (ok && (id < 0 || id > most))
            ok = fl_data_json_fail(j, "id of '%.*s' is out of range: got %lld", shown, text, (long long)id);
        if (ok && fl_text_dictionary_entry(d, id, NULL))
            ok = fl_data_json_fail(j, "duplicate id %lld of '%.*s'", (long long)id, shown, text);
        if (ok && fl_text_dictionary_find(d, text, n) >= 0)
            ok = fl_data_json_fail(j, "duplicate token '%.*s'", shown, text);
        ok = ok && fl_text_dictionary_add_at(d, text, n, id);
    }
    fl_heap_free(raw.p);
    return ok && j->event != FL_DATA_JSON_ERROR;
}

/* Appends a format in which % is the token as JSON and # its id; nothing for id -1. */
static bool fl__vocab_put(fl_data_text *t, const char *format, const fl_text_dictionary *d, int64_t id) {
    int64_t n;
    const char *name = fl_text_dictionary_entry(d, id, &n);
    bool ok = true;
    for (; ok && id >= 0 && *format; format++)
        ok = *format == '%'   ? fl_data_json_put_string(t, name, (size_t)n)
             : *format == '#' ? fl_data_text_print(t, "%lld", (long long)id)
                              : fl_data_text_put(t, format, 1);
    return ok;
}

FL_API bool fl_text_put_template(const fl_text_dictionary *d, int64_t bos, int64_t eos, fl_data_text *out) {
    static const char fn[] = "fl_text_put_template";
    static const char *const item[] = {"{\"SpecialToken\":{\"id\":%,\"type_id\":0}},",
                                       "{\"SpecialToken\":{\"id\":%,\"type_id\":1}},"};
    static const char known[] = "%:{\"id\":%,\"ids\":[#],\"tokens\":[%]},";
    if (!fl_given(d, fn, "the dictionary") || !fl_given(out, fn, "the text")) return false;
    if (bos < 0 && eos < 0) return true;
    if ((bos >= 0 && !fl_text_dictionary_entry(d, bos, NULL)) ||
        (eos >= 0 && !fl_text_dictionary_entry(d, eos, NULL)))
        return fl_fail("%s: bos (%lld) and eos (%lld) must be ids of the dictionary, or -1", fn,
                       (long long)bos,
                       (long long)eos);
    bool ok = fl_data_text_print(out, ",\"post_processor\":{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; ok && pair < 2; pair++) {
        ok = fl_data_text_print(out, ",\"%s\":[", pair ? "pair" : "single");
        for (int k = 0; ok && k <= pair; k++)
            ok = fl__vocab_put(out, item[k], d, bos) &&
                 fl_data_text_print(out, "{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}},", 'A' + k,
                                    k) &&
                 fl__vocab_put(out, item[k], d, eos);
        if (ok) out->n--; /* the final comma */
        ok = ok && fl_data_text_print(out, "]");
    }
    ok = ok && fl_data_text_print(out, ",\"special_tokens\":{") && fl__vocab_put(out, known, d, bos) &&
         (eos == bos || fl__vocab_put(out, known, d, eos));
    if (ok) out->n--;
    return ok && fl_data_text_print(out, "}}");
}

#endif
#endif

/* MIT licence: see LICENSE. */
