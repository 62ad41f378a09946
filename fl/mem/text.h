/* fl/mem/text.h - string builder on a buffer or a file; writing a file atomically */
#ifndef FL_MEM_TEXT_H
#define FL_MEM_TEXT_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* String builder. Text that does not fit into buf is dropped but counted, as by snprintf. With a file, text
   is written there instead. */
typedef struct fl_strbuf {
    char *buf;
    size_t size;
    int64_t n;  /* characters so far, written or not */
    void *file; /* a FILE *; NULL: write to buf */
    bool failed; /* set by fl_write_file_atomic's put after fl_fail */
} fl_strbuf;
/* Appends formatted text (printf format). */
FL_API void fl_strbuf_printf(fl_strbuf *t, const char *format, ...) FL_PRINTF(2, 3);
FL_API void fl_strbuf_vprintf(fl_strbuf *t, const char *format, va_list args) FL_PRINTF(2, 0);
/* Appends text escaped as the contents of a JSON string, without the quotes. */
FL_API void fl_strbuf_put_json(fl_strbuf *t, const char *text);
/* Writes a file through `put`, atomically: an existing file is replaced only once all is written, and not if
   put sets t->failed. False after fl_fail, whose text names the public function fn. */
FL_API bool fl_write_file_atomic(const char *fn, const char *path, void (*put)(fl_strbuf *t, void *user),
                                 void *user);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_TEXT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_TEXT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_TEXT_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_TEXT_IMPL
#include "shared.h"
#include "errors.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

FL_API void fl_strbuf_vprintf(fl_strbuf *t, const char *format, va_list args) {
    if (!fl_given(t, "fl_strbuf_vprintf", "the string builder") ||
        !fl_given(format, "fl_strbuf_vprintf", "the format")) return;
    const size_t at = (size_t)t->n < t->size ? (size_t)t->n : t->size;
    const int n = t->file ? vfprintf((FILE *)t->file, format, args)
                          : vsnprintf(t->buf ? t->buf + at : NULL, t->buf ? t->size - at : 0, format, args);
    t->n += n > 0 ? n : 0;
}

FL_API void fl_strbuf_printf(fl_strbuf *t, const char *format, ...) {
    if (!fl_given(t, "fl_strbuf_printf", "the string builder") ||
        !fl_given(format, "fl_strbuf_printf", "the format")) return;
    va_list args;
    va_start(args, format);
    fl_strbuf_vprintf(t, format, args);
    va_end(args);
}

FL_API void fl_strbuf_put_json(fl_strbuf *t, const char *text) {
    if (!fl_given(t, "fl_strbuf_put_json", "the string builder") ||
        !fl_given(text, "fl_strbuf_put_json", "the string"))
        return;
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126) fl_strbuf_printf(t, "\\u%04x", c);
        else fl_strbuf_printf(t, "%s%c", c == '"' || c == '\\' ? "\\" : "", c);
    }
}

FL_API bool fl_write_file_atomic(const char *fn, const char *path, void (*put)(fl_strbuf *t, void *user),
                                 void *user) {
    if (!fl_given(path, "fl_write_file_atomic", "the path")) return false;
    if (!put) return fl_fail("fl_write_file_atomic: put is NULL");
    char temporary[1024];
    if (snprintf(temporary, sizeof temporary, "%s.part", path) >= (int)sizeof temporary)
        return fl_fail("%s: the path is too long: got %zu characters, expected at most %zu", fn,
                       strlen(path), sizeof temporary - 6);
    FILE *f = fopen(temporary, "w");
    if (!f) return fl_fail("%s: cannot open %s: %s", fn, temporary, strerror(errno));
    fl_strbuf t = {.file = f};
    put(&t, user);
    const bool bad = ferror(f) != 0;
    if (!fclose(f) && !bad && !t.failed && !rename(temporary, path)) return true;
    if (!t.failed) fl_fail("%s: cannot write %s: %s", fn, path, strerror(errno));
    remove(temporary);
    return false;
}

#endif
#endif

/* MIT licence: see LICENSE. */
