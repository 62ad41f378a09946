/* fl/text/tokenizers/tree.h - JSON values as trees, for tokenizer.json without its vocabulary */
#ifndef FL_TEXT_TOKENIZERS_TREE_H
#define FL_TEXT_TOKENIZERS_TREE_H
#include "../../data/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A value: FL_DATA_JSON_OBJECT or _ARRAY with a list of values, _STRING, _NUMBER, _TRUE, _FALSE or _NULL. */
typedef struct fl_text_tree {
    fl_data_json_event event;
    char *key;  /* if in an object; else NULL */
    char *text; /* of a string or number: n bytes, NUL-terminated */
    int64_t n;
    struct fl_text_tree *first, *next; /* first value in it; next value in the same object or array */
} fl_text_tree;
/* Reads the next value of j, at most FL_TEXT_TREE_MAX values in total. Returns NULL after fl_fail. */
FL_API fl_text_tree *fl_text_tree_read(fl_data_json *j);
#define FL_TEXT_TREE_MAX 1000
FL_API void fl_text_tree_free(fl_text_tree *t); /* NULL is fine */
/* Appends it as JSON; NULL is null. */
FL_API bool fl_text_tree_put(fl_data_text *out, const fl_text_tree *t);

/* The value of a key in an object (NULL: an empty object); NULL if the key is missing or null. */
FL_API const fl_text_tree *fl_text_tree_at(const fl_text_tree *t, const char *key);
/* The string, its length in *n (may be NULL), of a key; `other` if it is missing or not a string. */
FL_API const char *fl_text_tree_string(const fl_text_tree *t, const char *key, int64_t *n, const char *other);
/* The truth value of a key; `other` if it is missing or not true or false. */
FL_API bool fl_text_tree_true(const fl_text_tree *t, const char *key, bool other);
/* The integer of a key; `other` if it is missing or not an integer. */
FL_API int64_t fl_text_tree_int(const fl_text_tree *t, const char *key, int64_t other);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_TREE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_TREE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_TREE_IMPL
#define FL_TEXT_TOKENIZERS_TREE_IMPL
#include <stdlib.h>
#include <string.h>

FL_API void fl_text_tree_free(fl_text_tree *t) {
    for (fl_text_tree *next; t; t = next) {
        next = t->next;
        fl_text_tree_free(t->first); /* recursion is bounded by the depth limit of the JSON reader */
        fl_heap_free(t->key);
        fl_heap_free(t->text);
        fl_heap_free(t);
    }
}

static char *fl__tree_copy(const char *text, int64_t n) {
    char *copy = fl_heap_alloc((size_t)n + 1);
    if (copy && n) memcpy(copy, text, (size_t)n);
    return copy;
}

static fl_text_tree *fl__tree_read(fl_data_json *j, int *left) {
    const fl_data_json_event e = fl_data_json_next(j);
    if (e == FL_DATA_JSON_ERROR || e == FL_DATA_JSON_END) return NULL;
    if (--*left < 0) {
        fl_data_json_fail(j, "too many values outside of the vocabulary, expected at most %d",
                          FL_TEXT_TREE_MAX);
        return NULL;
    }
    fl_text_tree *t = fl_heap_alloc(sizeof *t), **end = t ? &t->first : NULL;
    if (!t) return NULL;
    t->event = e, t->n = j->n;
    bool ok = true;
    if (e == FL_DATA_JSON_STRING || e == FL_DATA_JSON_NUMBER)
        ok = (t->text = fl__tree_copy(j->text, j->n)) != NULL;
    while (ok && (e == FL_DATA_JSON_OBJECT || e == FL_DATA_JSON_ARRAY) && fl_data_json_more(j)) {
        char *key = e == FL_DATA_JSON_OBJECT ? fl__tree_copy(j->text, j->n) : NULL;
        ok = key || e == FL_DATA_JSON_ARRAY;
        *end = ok ? fl__tree_read(j, left) : NULL;
        ok = *end != NULL;
        if (ok) (*end)->key = key, end = &(*end)->next;
        else fl_heap_free(key);
    }
    if (ok && j->event != FL_DATA_JSON_ERROR) return t;
    fl_text_tree_free(t);
    return NULL;
}

FL_API fl_text_tree *fl_text_tree_read(fl_data_json *j) {
    if (!fl_given(j, "fl_text_tree_read", "the reader")) return NULL;
    int left = FL_TEXT_TREE_MAX;
    return fl__tree_read(j, &left);
}

FL_API bool fl_text_tree_put(fl_data_text *out, const fl_text_tree *t) {
    if (!fl_given(out, "fl_text_tree_put", "the text")) return false;
    static const char *const word[] = {[FL_DATA_JSON_TRUE] = "true", [FL_DATA_JSON_FALSE] = "false",
                                       [FL_DATA_JSON_NULL] = "null"};
    const bool object = t && t->event == FL_DATA_JSON_OBJECT;
    if (!t) return fl_data_text_put(out, "null", 4);
    if (t->event == FL_DATA_JSON_STRING) return fl_data_json_put_string(out, t->text, (size_t)t->n);
    if (t->event == FL_DATA_JSON_NUMBER) return fl_data_text_put(out, t->text, (size_t)t->n);
    if (t->event >= FL_DATA_JSON_TRUE) return fl_data_text_put(out, word[t->event], strlen(word[t->event]));
    bool ok = fl_data_text_put(out, object ? "{" : "[", 1);
    for (const fl_text_tree *c = t->first; ok && c; c = c->next) {
        ok = c == t->first || fl_data_text_put(out, ",", 1);
        if (object)
            ok = ok && fl_data_json_put_string(out, c->key, strlen(c->key)) &&
                 fl_data_text_put(out, ":", 1);
        ok = ok && fl_text_tree_put(out, c);
    }
    return ok && fl_data_text_put(out, object ? "}" : "]", 1);
}

FL_API const fl_text_tree *fl_text_tree_at(const fl_text_tree *t, const char *key) {
    const fl_text_tree *c = t && t->event == FL_DATA_JSON_OBJECT ? t->first : NULL;
    while (c && strcmp(c->key, key)) c = c->next;
    return c && c->event != FL_DATA_JSON_NULL ? c : NULL;
}

FL_API const char *fl_text_tree_string(const fl_text_tree *t, const char *key, int64_t *n,
                                       const char *other) {
    const fl_text_tree *c = fl_text_tree_at(t, key);
    const bool there = c && c->event == FL_DATA_JSON_STRING;
    if (n) *n = there ? c->n : other ? (int64_t)strlen(other) : 0;
    return there ? c->text : other;
}

FL_API bool fl_text_tree_true(const fl_text_tree *t, const char *key, bool other) {
    const fl_text_tree *c = fl_text_tree_at(t, key);
    return c && c->event == FL_DATA_JSON_TRUE ? true : c && c->event == FL_DATA_JSON_FALSE ? false : other;
}

FL_API int64_t fl_text_tree_int(const fl_text_tree *t, const char *key, int64_t other) {
    const fl_text_tree *c = fl_text_tree_at(t, key);
    double x;
    if (!c || c->event != FL_DATA_JSON_NUMBER || !fl_data_parse_double(c->text, (size_t)c->n, &x))
        return other;
    return x >= -0x1p53 && x <= 0x1p53 && x == (double)(int64_t)x ? (int64_t)x : other;
}

#endif
#endif

/* MIT licence: see LICENSE. */
