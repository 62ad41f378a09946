/* fl/data/settings.h - small JSON configuration files (config.json) as flat names and values */
#ifndef FL_DATA_SETTINGS_H
#define FL_DATA_SETTINGS_H
#include "json.h"
#include "named.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A JSON object, flattened: values inside objects and arrays are named "outer.inner" and "array.0"; true is
   "1", false "0", null is left out. Initialise with {0}.

    fl_data_settings s = {0};
    bool ok = fl_data_settings_read(&s, "config.json", "my_load");
    const char *type = fl_data_settings_text(&s, "model_type"); // NULL if absent
    int64_t heads = fl_data_settings_size(&s, "num_attention_heads", 12);
    fl_data_settings_free(&s); */
typedef struct fl_data_settings {
    fl_data_key_value *v;
    int64_t n, cap;
    fl_data_arena texts;
    const char *path; /* of the file read, for error messages; borrowed */
    /* private */
    int64_t names_; /* total bytes of the names read */
} fl_data_settings;

/* Adds the contents of a file. Returns false after fl_fail (who: the function it names) if the file is not
   JSON, a name has more than 200 bytes, an array more than 10,000 values, or the flattened names more than 40
   times the file's bytes. */
FL_API bool fl_data_settings_read(fl_data_settings *s, const char *path, const char *who);
/* Adds one name and text (copied). Returns false if out of memory. */
FL_API bool fl_data_settings_add(fl_data_settings *s, const char *name, const char *text);
/* The text of the first entry of that name; NULL if absent. */
FL_API const char *fl_data_settings_text(const fl_data_settings *s, const char *name);
/* Its value as a number; `otherwise` if absent or not a number. */
FL_API double fl_data_settings_number(const fl_data_settings *s, const char *name,
                                      double otherwise);
/* Its value as an integer from 0 to INT32_MAX; `otherwise` if absent or not a number; -1: not a valid
   size. */
FL_API int64_t fl_data_settings_size(const fl_data_settings *s, const char *name,
                                     int64_t otherwise);
FL_API void fl_data_settings_free(fl_data_settings *s);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SETTINGS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SETTINGS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SETTINGS_IMPL
#define FL_DATA_SETTINGS_IMPL
#include <stdio.h>
#include <string.h>

enum { FL__SETTING_NAME = 200, FL__SETTING_ARRAY = 10000 };

FL_API bool fl_data_settings_add(fl_data_settings *s, const char *name, const char *text) {
    if (!fl_given(s, "fl_data_settings_add", "the settings") ||
        !fl_given(name, "fl_data_settings_add", "the name") ||
        !fl_given(text, "fl_data_settings_add", "the text")) return false;
    if (!fl_heap_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v)) return false;
    const fl_data_key_value p = {fl_data_arena_add(&s->texts, name, strlen(name)),
                                 fl_data_arena_add(&s->texts, text, strlen(text))};
    s->v[s->n] = p;
    s->n += p.key && p.value;
    return p.key && p.value;
}

/* Bounds the memory for names: a two-byte array element may get a name of 200 bytes. */
static bool fl__settings_append(fl_data_settings *s, fl_data_json *j, const char *name, const char *text) {
    s->names_ += (int64_t)strlen(name);
    if (s->names_ > 40 * j->at + 65536)
        return fl_data_json_fail(j, "the flattened names take more than 40 times the file's bytes");
    return fl_data_settings_add(s, name, text);
}

/* Adds the reader's current value; the names inside it are appended to `name`, which is restored. */
static bool fl__settings_value(fl_data_settings *s, fl_data_json *j, char *name) {
    const size_t end = strlen(name), space = FL__SETTING_NAME - end;
    const bool array = j->event == FL_DATA_JSON_ARRAY;
    switch (j->event) {
    case FL_DATA_JSON_STRING:
    case FL_DATA_JSON_NUMBER:
        return fl__settings_append(s, j, name, j->text);
    case FL_DATA_JSON_TRUE:
        return fl__settings_append(s, j, name, "1");
    case FL_DATA_JSON_FALSE:
        return fl__settings_append(s, j, name, "0");
    case FL_DATA_JSON_NULL:
        return true;
    case FL_DATA_JSON_OBJECT:
    case FL_DATA_JSON_ARRAY:
        break;
    default:
        return false; /* the reader has reported the error */
    }
    for (int i = 0; fl_data_json_more(j); i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const int n = snprintf(name + end, space, "%s%s", end ? "." : "", array ? number : j->text);
        if (n >= (int)space || (array && i >= FL__SETTING_ARRAY))
            return fl_data_json_fail(j, "a name of more than %d bytes or an array of more than %d values: "
                                     "'%.60s' in '%.60s'", FL__SETTING_NAME - 1, FL__SETTING_ARRAY,
                                     array ? number : j->text, name);
        fl_data_json_next(j);
        if (!fl__settings_value(s, j, name)) return false;
        name[end] = 0;
    }
    return j->event != FL_DATA_JSON_ERROR;
}

FL_API bool fl_data_settings_read(fl_data_settings *s, const char *path, const char *who) {
    if (!fl_given(s, "fl_data_settings_read", "the settings") ||
        !fl_given(path, "fl_data_settings_read", "the path")) return false;
    char name[FL__SETTING_NAME] = "";
    s->path = path, s->names_ = 0;
    fl_data_json *j = fl_data_json_open(path, .who = who, .c_strings = true);
    const bool ok = j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT) &&
                    fl__settings_value(s, j, name) && fl_data_json_next(j) == FL_DATA_JSON_END;
    fl_data_json_close(j);
    return ok;
}

FL_API const char *fl_data_settings_text(const fl_data_settings *s, const char *name) {
    if (!fl_given(s, "fl_data_settings_text", "the settings") ||
        !fl_given(name, "fl_data_settings_text", "the name")) return NULL;
    for (int64_t i = 0; i < s->n; i++)
        if (!strcmp(s->v[i].key, name)) return s->v[i].value;
    return NULL;
}

FL_API double fl_data_settings_number(const fl_data_settings *s, const char *name,
                                      double otherwise) {
    const char *text = fl_data_settings_text(s, name);
    double x;
    return text && fl_data_parse_double(text, strlen(text), &x) ? x : otherwise;
}

FL_API int64_t fl_data_settings_size(const fl_data_settings *s, const char *name,
                                     int64_t otherwise) {
    const double x = fl_data_settings_number(s, name, (double)otherwise);
    return x >= 0 && x <= INT32_MAX && x == (double)(int64_t)x ? (int64_t)x : -1;
}

FL_API void fl_data_settings_free(fl_data_settings *s) {
    if (!s) return;
    fl_heap_free(s->v);
    fl_data_arena_free(&s->texts);
    *s = (fl_data_settings){0};
}

#endif
#endif

/* MIT licence: see LICENSE. */
