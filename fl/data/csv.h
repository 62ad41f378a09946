/* fl/data/csv.h - reading CSV files row by row, and writing them */
#ifndef FL_DATA_CSV_H
#define FL_DATA_CSV_H
#include "file.h"
#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A CSV reader (RFC 4180: fields may be quoted and then contain delimiters, line ends and, doubled, quotes;
   lines end with LF or CR LF; a byte order mark is skipped). The file must be UTF-8, and every row must have
   as many fields as the first. One row is in memory at a time. Empty lines are skipped, unless rows have one
   field. Errors name file, line and, where it matters, column. */
typedef struct fl_data_csv {
    const char **name;  /* of the columns, from the first row; NULL with no_header */
    const char **field; /* of the row, valid until the next one */
    int64_t n;          /* number of columns; 0 before the first row */
    int64_t row, line;  /* number of rows read; line where the last one begins, from 1 */
    bool ended;         /* next returned false because the file ended */
    /* private */
    fl_data_stream f_;
    char *window_, *p_, *end_;
    int64_t at_, line_, cap_;
    fl_data_text text_;
    fl_data_arena names_;
    char delimiter_;
} fl_data_csv;
typedef struct fl_data_csv_opts {
    fl_opts_guard guard_;
    char delimiter; /* 0 -> ',' */
    bool no_header; /* the first row is data */
    char _end;
} fl_data_csv_opts;
/* Opens a file and reads the names. Returns NULL after fl_fail; an empty file has no names and no rows. */
#define fl_data_csv_open(...) FL__DATA_CSV_OPEN(__VA_ARGS__, ._end = 0)
#define FL__DATA_CSV_OPEN(path, ...) fl_data_csv_open_opt(path, FL_LITERAL(fl_data_csv_opts, __VA_ARGS__))
FL_API fl_data_csv *fl_data_csv_open_opt(const char *path, fl_data_csv_opts o);
FL_API void fl_data_csv_close(fl_data_csv *c); /* NULL is allowed */
/* Advances to the next row. Returns false at the end, and after fl_fail, which ends reading. */
FL_API bool fl_data_csv_next(fl_data_csv *c);
/* The index of the column of that name; -1 after fl_fail if none. */
FL_API int64_t fl_data_csv_column(const fl_data_csv *c, const char *name);
/* Parses the row's field as a number, independently of the locale: "-1.5e3", "nan", "inf". False after
   fl_fail if it is not one. */
FL_API bool fl_data_csv_double(const fl_data_csv *c, int64_t column, double *out);
/* The same for an integer. */
FL_API bool fl_data_csv_int(const fl_data_csv *c, int64_t column, int64_t *out);
/* The numbers of n columns in all remaining rows: [rows, n] on the host. Integer dtypes require integers in
   their range. */
FL_API fl_tensor *fl_data_csv_tensor(fl_data_csv *c, const int64_t *column, int n, fl_dtype dtype);

/* Appends one row of n fields to t, quoted where necessary, with CR LF. */
FL_API bool fl_data_csv_put(fl_data_text *t, const char *const *field, int64_t n, char delimiter);
/* Writes a tensor [rows, n] after the names (NULL: none); numbers read back exactly. The file is replaced
   atomically. */
FL_API bool fl_data_save_csv(const char *path, const char *const *names, fl_tensor *t);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_CSV_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_CSV) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_CSV_IMPL
#define FL_DATA_CSV_IMPL
#include "../ops/copy.h"
#include "json.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FL__CSV_WINDOW = 16384, FL__CSV_ROW = 1 << 24 }; /* the most bytes of a row */

static bool fl__csv_bad(const fl_data_csv *c, int64_t line, const char *what) {
    return fl_fail("%s: %s: line %lld: %s", c->f_.who, c->f_.path, (long long)line, what);
}

/* The next byte, without consuming it; -1 at the end, -2 after fl_fail. */
static int fl__csv_peek(fl_data_csv *c) {
    if (c->p_ < c->end_) return (unsigned char)*c->p_;
    const int64_t left = c->f_.size - c->at_, n = left < FL__CSV_WINDOW ? left : FL__CSV_WINDOW;
    if (n <= 0) return n < 0 ? -2 : -1;
    if (!fl_data_stream_read(&c->f_, c->window_, (size_t)n, c->at_)) {
        c->at_ = INT64_MAX; /* permanently */
        return -2;
    }
    c->at_ += n;
    c->p_ = c->window_, c->end_ = c->p_ + n;
    return (unsigned char)*c->p_;
}

/* Appends plain bytes from p_ on, up to a special character, to the row's text. */
static bool fl__csv_run(fl_data_csv *c, bool quoted) {
    const char *from = c->p_;
    for (; c->p_ < c->end_; c->p_++) {
        if (*c->p_ == '"' || !*c->p_) break;
        if (*c->p_ == '\n') c->line_ += quoted;
        if (!quoted && (*c->p_ == c->delimiter_ || *c->p_ == '\n' || *c->p_ == '\r')) break;
    }
    if (c->text_.n + (c->p_ - from) > FL__CSV_ROW)
        return fl__csv_bad(c, c->line, "the row is longer than 16 MiB");
    return fl_data_text_put(&c->text_, from, (size_t)(c->p_ - from));
}

/* Appends the field at p_ to the row's text, with a NUL. Returns the byte after it, consumed; -1 at the end,
   -2 after fl_fail. */
static int fl__csv_field(fl_data_csv *c) {
    const int64_t from = c->text_.n;
    bool quoted = fl__csv_peek(c) == '"', closed = false;
    int next;
    if (quoted) c->p_++;
    for (;;) {
        next = fl__csv_peek(c);
        if (next == -2) return -2;
        if (quoted && next < 0) return fl__csv_bad(c, c->line, "a quoted field is not terminated") - 2;
        if (next == 0) return fl__csv_bad(c, c->line_, "a NUL byte") - 2;
        if (quoted && next == '"') {
            c->p_++;
            if (fl__csv_peek(c) != '"') {
                quoted = false, closed = true;
                continue;
            }
            if (!fl_data_text_put(&c->text_, c->p_++, 1)) return -2;
        } else if (next == '"') return fl__csv_bad(c, c->line_, "a quote inside an unquoted field") - 2;
        else if (!quoted && (next < 0 || next == c->delimiter_ || next == '\n' || next == '\r')) break;
        else if (closed) return fl__csv_bad(c, c->line_, "text after a closing quote") - 2;
        else if (!fl__csv_run(c, quoted)) return -2;
    }
    if (next >= 0) c->p_++;
    if (next == '\r') {
        next = fl__csv_peek(c);
        if (next != '\n') return next == -2 ? -2 : fl__csv_bad(c, c->line_, "a CR without LF") - 2;
        c->p_++;
    }
    c->line_ += next == '\n';
    for (int64_t i = from, len; i < c->text_.n; i += len)
        if (!(len = (int64_t)fl_data_utf8(c->text_.p + i, (size_t)(c->text_.n - i))))
            return fl__csv_bad(c, c->line, "a field is not valid UTF-8") - 2;
    return fl_data_text_put(&c->text_, "", 1) ? next : -2;
}

/* Sets the field pointers into the row's text, where the fields follow one another. */
static bool fl__csv_fields(fl_data_csv *c, int64_t n) {
    char text[80];
    if (!c->n) c->n = n;
    snprintf(text, sizeof text, "got %lld fields, expected %lld as in the first row", (long long)n,
             (long long)c->n);
    if (n != c->n) return fl__csv_bad(c, c->line, text);
    if (!fl_heap_grow(&c->field, &c->cap_, n, sizeof *c->field)) return false;
    const char *p = c->text_.p;
    for (int64_t i = 0; i < n; i++, p += strlen(p) + 1) c->field[i] = p;
    return true;
}

FL_API bool fl_data_csv_next(fl_data_csv *c) {
    if (!c || c->ended || !c->window_) return false;
    int64_t n;
    int next;
    do {
        c->text_.n = n = 0;
        c->line = c->line_;
        next = fl__csv_peek(c);
        if (next == -1) return c->ended = true, false;
        const bool quoted = next == '"';
        do next = fl__csv_field(c), n++;
        while (next >= 0 && next != '\n');
        if (quoted) break;
    } while (next != -2 && n == 1 && c->text_.n == 1 && c->n != 1);
    if (next != -2 && fl__csv_fields(c, n)) {
        c->row++;
        return true;
    }
    fl_heap_free(c->window_);
    c->window_ = NULL; /* reading cannot continue */
    return false;
}

static bool fl__csv_header(fl_data_csv *c, bool no_header) {
    const int64_t most = c->f_.size < 3 ? c->f_.size : 3;
    c->window_ = fl_heap_alloc(FL__CSV_WINDOW);
    if (!c->window_ || !fl_data_stream_read(&c->f_, c->window_, (size_t)most, 0)) return false;
    if (most == 3 && !memcmp(c->window_, "\xef\xbb\xbf", 3)) c->at_ = 3;
    if (no_header) return true;
    if (!fl_data_csv_next(c)) return c->ended;
    c->row = 0;
    c->name = fl_heap_alloc((size_t)c->n * sizeof *c->name);
    for (int64_t i = 0; c->name && i < c->n; i++)
        if (!(c->name[i] = fl_data_arena_add(&c->names_, c->field[i], strlen(c->field[i])))) return false;
    return c->name != NULL;
}

FL_API fl_data_csv *fl_data_csv_open_opt(const char *path, fl_data_csv_opts o) {
    static const char who[] = "fl_data_csv_open";
    if (!path) return fl_fail("%s: path is NULL", who), NULL;
    if (o.delimiter && strchr("\"\r\n", o.delimiter))
        return fl_fail("%s: the delimiter must not be a quote, CR or LF", who), NULL;
    fl_data_csv *c = fl_heap_alloc(sizeof *c);
    if (!c) return NULL;
    const char *own = fl_data_arena_add(&c->names_, path, strlen(path));
    c->line_ = 1;
    c->delimiter_ = o.delimiter ? o.delimiter : ',';
    if (own && fl_data_stream_open(&c->f_, who, own, FL_DATA_READ) && fl__csv_header(c, o.no_header))
        return c;
    fl_data_csv_close(c);
    return NULL;
}

FL_API void fl_data_csv_close(fl_data_csv *c) {
    if (!c) return;
    if (c->f_.file) c->f_.io.close(c->f_.io.user, c->f_.file);
    fl_heap_free(c->window_);
    fl_heap_free(c->text_.p);
    fl_heap_free(c->field);
    fl_heap_free(c->name);
    fl_data_arena_free(&c->names_);
    fl_heap_free(c);
}

/* ---- numbers ---- */

FL_API int64_t fl_data_csv_column(const fl_data_csv *c, const char *name) {
    for (int64_t i = 0; c && c->name && name && i < c->n; i++)
        if (!strcmp(c->name[i], name)) return i;
    return fl_fail("fl_data_csv_column: %s: there is no column '%.100s'", c ? c->f_.path : "no file",
                   name ? name : "(null)") -
           1;
}

static bool fl__csv_field_fail(const fl_data_csv *c, int64_t column, const char *what) {
    const bool there = c && c->row && column >= 0 && column < c->n;
    return fl_fail("%s: %s: line %lld, column %lld%s%.60s%s: %s", c ? c->f_.who : "fl_data_csv",
                   c ? c->f_.path : "no file", c ? (long long)c->line : 0, (long long)column,
                   there ? ": '" : "", there ? c->field[column] : "", there ? "'" : "",
                   there ? what : "there is no such field");
}

/* Parses what NumPy and Python write for infinities and NaN. */
static bool fl__csv_not_finite(const char *s, double *out) {
    const bool minus = *s == '-';
    s += minus || *s == '+';
    const bool nan = !strcmp(s, "nan") || !strcmp(s, "NaN") || !strcmp(s, "NAN");
    if (!nan && strcmp(s, "inf") && strcmp(s, "Inf") && strcmp(s, "INF") && strcmp(s, "Infinity"))
        return false;
    *out = nan ? (double)NAN : minus ? -(double)INFINITY : (double)INFINITY;
    return true;
}

/* The field without surrounding spaces, n bytes; NULL if there is no such field. */
static const char *fl__csv_trimmed(const fl_data_csv *c, int64_t column, size_t *n) {
    if (!c || !c->row || column < 0 || column >= c->n) return NULL;
    const char *s = c->field[column] + strspn(c->field[column], " ");
    for (*n = strlen(s); *n && s[*n - 1] == ' ';) --*n;
    return s;
}

FL_API bool fl_data_csv_double(const fl_data_csv *c, int64_t column, double *out) {
    size_t n;
    const char *s = fl__csv_trimmed(c, column, &n);
    return (s && (fl_data_parse_double(s, n, out) || fl__csv_not_finite(s, out))) ||
           fl__csv_field_fail(c, column, "not a number");
}

FL_API bool fl_data_csv_int(const fl_data_csv *c, int64_t column, int64_t *out) {
    size_t n, i = 0;
    const char *s = fl__csv_trimmed(c, column, &n);
    const bool minus = s && n > 1 && *s == '-';
    int64_t v = 0;
    for (i = s && n > 1 && (*s == '-' || *s == '+'); s && i < n && s[i] >= '0' && s[i] <= '9'; i++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, minus ? '0' - s[i] : s[i] - '0', &v))
            return fl__csv_field_fail(c, column, "the number overflows int64");
    if (!s || !n || i < n) return fl__csv_field_fail(c, column, "not an integer");
    *out = v;
    return true;
}

/* Stores a field at p; fails if the dtype cannot hold the number. */
static bool fl__csv_store(const fl_data_csv *c, int64_t column, fl_dtype dtype, char *p) {
    fl_number v = {.real = fl_dtype_is_float(dtype)};
    if (v.real ? !fl_data_csv_double(c, column, &v.f) : !fl_data_csv_int(c, column, &v.i)) return false;
    if (!v.real) v.f = (double)v.i;
    fl_number_store(dtype, p, v);
    const bool fits = v.real || (fl_number_load(dtype, p).i == v.i && (dtype != FL_U64 || v.i >= 0));
    return fits || fl__csv_field_fail(c, column, "the number is out of range of the dtype");
}

FL_API fl_tensor *fl_data_csv_tensor(fl_data_csv *c, const int64_t *column, int n, fl_dtype dtype) {
    const size_t size = fl_dtype_size(dtype);
    fl_data_text bytes = {0};
    int64_t rows = 0;
    if (!c || !column || n < 1 || !size)
        return fl_fail("fl_data_csv_tensor: the table or the columns are NULL, or n or dtype is not valid: "
                       "got n %d, dtype %d", n, (int)dtype), NULL;
    bool ok = true;
    for (; ok && fl_data_csv_next(c); rows++)
        for (int i = 0; ok && i < n; i++) {
            char number[16];
            ok = fl__csv_store(c, column[i], dtype, number) && fl_data_text_put(&bytes, number, size);
        }
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = ok && c->ended && scope.depth_ > 0 ? fl_data_host_tensor(FL_SHAPE(rows, n), dtype) : NULL;
    void *p = t ? fl_map(t, FL_WRITE) : NULL;
    if (p && bytes.n) memcpy(p, bytes.p, (size_t)bytes.n);
    if (p) fl_unmap(t, FL_WRITE);
    t = fl_scope_return(&scope, p ? t : NULL);
    fl_quiet(-1);
    fl_heap_free(bytes.p);
    return t;
}

/* ---- writing ---- */

FL_API bool fl_data_csv_put(fl_data_text *t, const char *const *field, int64_t n, char delimiter) {
    if (!fl_given(t, "fl_data_csv_put", "the text")) return false;
    const char stops[] = {'"', '\r', '\n', delimiter, 0};
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        const char *s = field[i];
        if (i) ok = fl_data_text_put(t, &delimiter, 1);
        const bool mark = !strncmp(s, "\xef\xbb\xbf", 3); /* would be skipped at the beginning of a file */
        if ((n > 1 || *s) && !s[strcspn(s, stops)] && !mark) {
            ok = ok && fl_data_text_put(t, s, strlen(s));
            continue;
        }
        ok = ok && fl_data_text_put(t, "\"", 1);
        for (size_t k; ok && *s; s += k) {
            k = strcspn(s + 1, "\"") + 1; /* every run but the first begins with a quote, which is doubled */
            ok = (*s != '"' || fl_data_text_put(t, "\"", 1)) && fl_data_text_put(t, s, k);
        }
        ok = ok && fl_data_text_put(t, "\"", 1);
    }
    return ok && fl_data_text_put(t, "\r\n", 2);
}

/* Appends a number as text that reads back exactly. */
static bool fl__csv_put_number(fl_data_text *t, fl_number v, fl_dtype dtype) {
    char text[32];
    if (v.real && isfinite(v.f)) return fl_data_json_put_double(t, v.f);
    if (v.real) snprintf(text, sizeof text, isnan(v.f) ? "nan" : v.f < 0 ? "-inf" : "inf");
    else snprintf(text, sizeof text, dtype == FL_U64 ? "%llu" : "%lld", (long long)v.i);
    return fl_data_text_put(t, text, strlen(text));
}

/* Writes rows to the file whenever the text has become long. */
static bool fl__csv_write(const fl_data_stream *f, const char *const *names, const fl_tensor *t,
                          const char *p) {
    fl_data_text text = {0};
    int64_t at = 0;
    bool ok = !names || fl_data_csv_put(&text, names, t->shape[1], ',');
    for (int64_t i = 0; ok && i < t->shape[0]; i++) {
        for (int64_t k = 0; ok && k < t->shape[1]; k++, p += fl_dtype_size(t->dtype))
            ok = (!k || fl_data_text_put(&text, ",", 1)) &&
                 fl__csv_put_number(&text, fl_number_load(t->dtype, p), t->dtype);
        ok = ok && fl_data_text_put(&text, "\r\n", 2);
        if (!ok || text.n < FL__CSV_WINDOW) continue;
        ok = fl_data_stream_write(f, text.p, (size_t)text.n, at);
        at += text.n;
        text.n = 0;
    }
    ok = ok && fl_data_stream_write(f, text.p, (size_t)text.n, at);
    fl_heap_free(text.p);
    return ok;
}

FL_API bool fl_data_save_csv(const char *path, const char *const *names, fl_tensor *t) {
    static const char who[] = "fl_data_save_csv";
    fl_data_replacement r;
    if (!t || t->weak || t->ndim != 2) return fl_fail("%s: the tensor is NULL or not [rows, columns]", who);
    for (int64_t i = 0; names && i < t->shape[1]; i++)
        if (!names[i]) return fl_fail("%s: name %lld is NULL", who, (long long)i);
    if (!fl_data_replace_begin(&r, who, path)) return false;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *dense = scope.depth_ > 0 ? fl_contiguous(t) : NULL;
    const void *p = dense ? fl_map(dense, FL_READ) : NULL;
    const bool ok = p && fl__csv_write(&r.f, names, dense, p);
    if (p) fl_unmap(dense, FL_READ);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return fl_data_replace_end(&r, ok);
}

#endif
#endif

/* MIT licence: see LICENSE. */
