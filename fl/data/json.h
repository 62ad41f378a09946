/* fl/data/json.h - streaming JSON reader and writer */
#ifndef FL_DATA_JSON_H
#define FL_DATA_JSON_H
#include "file.h"
#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A pull parser (RFC 8259): it returns one event after the other and holds no more than a window of the file
   and one text, so that files may be larger than memory. Anything that is not JSON, not UTF-8, too deep or
   too long is an error with file, offset and line; after it every call fails. Duplicate keys are not
   detected.

    fl_data_json *j = fl_data_json_open("config.json");
    int64_t hidden = 0;
    if (j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT))
        while (fl_data_json_more(j)) // at a key
            if (!strcmp(j->text, "hidden_size")) fl_data_json_int(j, &hidden);
            else fl_data_json_skip(j);
    bool ok = j && fl_data_json_next(j) == FL_DATA_JSON_END; // no error, and nothing follows
    fl_data_json_close(j); */
typedef enum fl_data_json_event {
    FL_DATA_JSON_ERROR, /* after fl_fail */
    FL_DATA_JSON_END,   /* end of the text */
    FL_DATA_JSON_OBJECT,
    FL_DATA_JSON_OBJECT_END,
    FL_DATA_JSON_ARRAY,
    FL_DATA_JSON_ARRAY_END,
    FL_DATA_JSON_KEY,
    FL_DATA_JSON_STRING,
    FL_DATA_JSON_NUMBER,
    FL_DATA_JSON_TRUE,
    FL_DATA_JSON_FALSE,
    FL_DATA_JSON_NULL
} fl_data_json_event;

typedef struct fl_data_json {
    fl_data_json_event event; /* the last one */
    const char *text;         /* of a key, string (unescaped) or number (as written), until the next event;
                                 "" after fl_data_json_int or _double */
    int64_t n;                /* its length in bytes; a NUL follows; \u0000 is a byte of it */
    int depth;                /* number of open objects and arrays */
    int64_t at, line;         /* start of the event: offset in the file, line from 1 */
    /* private */
    fl_data_stream f_;
    char *window_;
    const char *start_, *p_, *end_; /* buffered bytes: of the window or the caller */
    int64_t start_at_, left_;       /* offset of start_; bytes of the file after end_ */
    int64_t line_, max_text_;
    int max_depth_, expects_;
    uint64_t arrays_[16]; /* one bit per level: 1 for an array */
    fl_data_text text_;
    bool c_strings_, many_, broken_; /* broken_: reading the file failed */
} fl_data_json;

typedef struct fl_data_json_opts {
    fl_opts_guard guard_;
    int max_depth;    /* most nested objects and arrays: 0 -> 64, at most 1024 */
    int64_t max_text; /* most bytes of a string or number: 0 -> 16 MiB */
    bool c_strings;   /* reject \u0000, which would end a C string */
    bool many;        /* several values in sequence, as the lines of a JSONL file */
    const char *who;  /* function name for errors, borrowed; NULL -> the function that opened */
    const char *name; /* name of the text of fl_data_json_of for errors, borrowed; NULL -> "text" */
    char _end;
} fl_data_json_opts;
/* Opens a file. Returns NULL after fl_fail, which the functions below accept as a reader with an error. */
#define fl_data_json_open(...) FL__DATA_JSON_OPEN(__VA_ARGS__, ._end = 0)
#define FL__DATA_JSON_OPEN(path, ...) fl_data_json_open_opt(path, FL_LITERAL(fl_data_json_opts, __VA_ARGS__))
FL_API fl_data_json *fl_data_json_open_opt(const char *path, fl_data_json_opts o);
/* Reads n bytes in memory, which must outlive the reader. */
#define fl_data_json_of(...) FL__DATA_JSON_OF(__VA_ARGS__, ._end = 0)
#define FL__DATA_JSON_OF(bytes, n, ...) \
    fl_data_json_of_opt(bytes, n, FL_LITERAL(fl_data_json_opts, __VA_ARGS__))
FL_API fl_data_json *fl_data_json_of_opt(const void *bytes, size_t n, fl_data_json_opts o);
/* Reads n bytes at offset `at` of an open file, which must stay open; closing the reader does not close
   it. */
FL_API fl_data_json *fl_data_json_in(const fl_data_stream *f, int64_t at, int64_t n, fl_data_json_opts o);
FL_API void fl_data_json_close(fl_data_json *j); /* NULL is allowed */

FL_API fl_data_json_event fl_data_json_next(fl_data_json *j);
/* Whether there is another element. In an object it advances to its KEY, in an array to just before the
   element; at the end it consumes the end and returns false. At the outermost level: whether there is another
   value. */
FL_API bool fl_data_json_more(fl_data_json *j);
/* Reads the next event, which must be e. */
FL_API bool fl_data_json_expect(fl_data_json *j, fl_data_json_event e);
/* Read the next value, which must have that type. A string is valid until the next event; NULL after an
   error. Integers are exact; more than 64 bits are an error. Doubles are correctly rounded, in every locale;
   an overflow is an error. */
FL_API const char *fl_data_json_string(fl_data_json *j);
FL_API bool fl_data_json_int(fl_data_json *j, int64_t *out);
FL_API bool fl_data_json_double(fl_data_json *j, double *out);
FL_API bool fl_data_json_bool(fl_data_json *j, bool *out);
/* Convert the NUMBER of the last event. */
FL_API bool fl_data_json_as_int(fl_data_json *j, int64_t *out);
FL_API bool fl_data_json_as_double(fl_data_json *j, double *out);
/* Skips the next value with everything in it. */
FL_API bool fl_data_json_skip(fl_data_json *j);
/* Reports an error at the last event: "who: path: offset 12, line 3: text"; returns false. */
FL_API bool fl_data_json_fail(fl_data_json *j, const char *format, ...) FL_PRINTF(2, 3);

/* Appends n bytes to t as a quoted JSON string. Invalid UTF-8 becomes U+FFFD. */
FL_API bool fl_data_json_put_string(fl_data_text *t, const char *text, size_t n);
/* Appends the shortest decimal that reads back as x; null if x is not finite, which JSON cannot express. */
FL_API bool fl_data_json_put_double(fl_data_text *t, double x);

/* Length of the UTF-8 character at s, of which n bytes are left; 0 if it is not valid. */
FL_API size_t fl_data_utf8(const char *s, size_t n);
/* Parses n bytes like "-12.5e3" as the nearest double, in every locale (infinite on overflow). Returns false
   if they are not a number. */
FL_API bool fl_data_parse_double(const char *s, size_t n, double *out);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_JSON_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_JSON) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_JSON_IMPL
#define FL_DATA_JSON_IMPL
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FL__JSON_WINDOW 16384

/* What may come next: a value; an element or the end (after [ or {); a key (after a comma); a comma or the
   end (after an element). */
enum { FL__JSON_VALUE, FL__JSON_FIRST, FL__JSON_KEY, FL__JSON_AFTER };

/* ---- bytes ---- */

FL_API size_t fl_data_utf8(const char *text, size_t n) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    if (!n) return 0;
    if (s[0] < 0x80) return 1;
    const size_t len = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (!len || len > n) return 0;
    uint32_t c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    return c < least[len] || c > 0x10ffff || surrogate ? 0 : len;
}

static int64_t fl__json_position(const fl_data_json *j) {
    return j->start_at_ + (j->p_ - j->start_);
}

FL_API bool fl_data_json_fail(fl_data_json *j, const char *format, ...) {
    if (!fl_given(j, "fl_data_json_fail", "the reader")) return false;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    j->event = FL_DATA_JSON_ERROR;
    return fl_fail("%s: %s: offset %lld, line %lld: %s", j->f_.who, j->f_.path, (long long)j->at,
                   (long long)j->line, text);
}

/* Reports an error at the current position. */
static bool fl__json_bad(fl_data_json *j, const char *what) {
    j->at = fl__json_position(j), j->line = j->line_;
    return fl_data_json_fail(j, "%s", what);
}

/* Fills the window with n bytes, if so many are left; returns the number of bytes buffered. A read error
   looks like the end of the file: the first error text is kept. */
static int64_t fl__json_fill(fl_data_json *j, int64_t n) {
    const int64_t have = j->end_ - j->p_;
    if (have >= n || !j->left_) return have;
    if (have) memmove(j->window_, j->p_, (size_t)have);
    j->start_at_ = fl__json_position(j);
    j->start_ = j->p_ = j->window_;
    j->end_ = j->window_ + have;
    const int64_t room = FL__JSON_WINDOW - have, more = j->left_ < room ? j->left_ : room;
    const bool ok = fl_data_stream_read(&j->f_, j->window_ + have, (size_t)more, j->start_at_ + have);
    j->left_ = ok ? j->left_ - more : 0;
    j->broken_ = !ok;
    j->end_ += ok ? more : 0;
    return j->end_ - j->p_;
}

/* The next byte that is not white space; -1 at the end. */
static int fl__json_space(fl_data_json *j) {
    for (;; j->p_++) {
        if (j->p_ == j->end_ && !fl__json_fill(j, 1)) return -1;
        const char c = *j->p_;
        if (c == '\n') j->line_++;
        else if (c != ' ' && c != '\t' && c != '\r') return (unsigned char)c;
    }
}

static bool fl__json_put(fl_data_json *j, const char *bytes, int64_t n) {
    if (n > j->max_text_ - j->text_.n) return fl__json_bad(j, "a text is longer than max_text");
    if (fl_data_text_put(&j->text_, bytes, (size_t)n)) return true;
    j->event = FL_DATA_JSON_ERROR;
    return false;
}

static fl_data_json_event fl__json_give(fl_data_json *j, fl_data_json_event e) {
    j->text = j->text_.p, j->n = j->text_.n;
    return j->event = j->broken_ ? FL_DATA_JSON_ERROR : e;
}

/* ---- strings ---- */

/* The value of four hexadecimal digits at s; -1 if they are not. */
static int32_t fl__json_hex4(const char *s) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        const char c = s[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                          c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* The character of \uXXXX, or of a surrogate pair, at s; *len bytes were read. -1 if it is not valid. */
static int32_t fl__json_unicode(const char *s, int64_t n, int *len) {
    const int32_t c = n < 6 ? -1 : fl__json_hex4(s + 2);
    *len = 6;
    if (c < 0xd800 || c >= 0xe000) return c;
    const bool pair = c < 0xdc00 && n >= 12 && s[6] == '\\' && s[7] == 'u';
    const int32_t low = pair ? fl__json_hex4(s + 8) : -1;
    *len = 12;
    return low < 0xdc00 || low >= 0xe000 ? -1 : 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

static int64_t fl__json_utf8(char d[4], int32_t c) {
    static const unsigned char lead[4] = {0, 0xc0, 0xe0, 0xf0};
    const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    d[0] = (char)(lead[tail] | (c >> (6 * tail)));
    for (int i = 1; i <= tail; i++) d[i] = (char)(0x80 | ((c >> (6 * (tail - i))) & 0x3f));
    return tail + 1;
}

/* The character that the escape at p_ stands for. */
static bool fl__json_escape(fl_data_json *j) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int64_t n = fl__json_fill(j, 12);
    const char c = n > 1 ? j->p_[1] : 0, *k = c ? strchr(from, c) : NULL;
    char bytes[4];
    int len = 2;
    const int32_t u = k ? to[k - from] : c == 'u' ? fl__json_unicode(j->p_, n, &len) : -1;
    if (u < 0) return fl__json_bad(j, "invalid escape in a string");
    if (!u && j->c_strings_) return fl__json_bad(j, "a NUL in a string");
    if (!fl__json_put(j, bytes, fl__json_utf8(bytes, u))) return false;
    j->p_ += len;
    return true;
}

/* Copies the string at p_ to text_: runs of plain bytes, and the escapes between them. */
static bool fl__json_read_string(fl_data_json *j) {
    j->p_++;
    for (;;) {
        const char *run = j->p_;
        while (j->p_ < j->end_ && (unsigned char)(*j->p_ - 0x20) < 0x60 && *j->p_ != '"' && *j->p_ != '\\')
            j->p_++;
        if (!fl__json_put(j, run, j->p_ - run)) return false;
        if (j->p_ == j->end_ && fl__json_fill(j, 1)) continue;
        if (j->p_ == j->end_) return fl__json_bad(j, "the string is not terminated");
        if (*j->p_ == '"') break;
        if ((unsigned char)*j->p_ < 0x20) return fl__json_bad(j, "a control character in a string");
        if (*j->p_ == '\\') {
            if (!fl__json_escape(j)) return false;
            continue;
        }
        const int64_t left = fl__json_fill(j, 4); /* may move p_ */
        const size_t len = fl_data_utf8(j->p_, (size_t)left);
        if (!len) return fl__json_bad(j, "invalid UTF-8");
        if (!fl__json_put(j, j->p_, (int64_t)len)) return false;
        j->p_ += len;
    }
    j->p_++;
    return true;
}

/* ---- numbers ---- */

static const char *fl__json_digits(const char *s) {
    while (*s >= '0' && *s <= '9') s++;
    return s;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][-+]?[0-9]+)? */
static bool fl__json_is_number(const char *s) {
    if (*s == '-') s++;
    const char *end = *s == '0' ? s + 1 : fl__json_digits(s);
    if (end == s) return false;
    if (*end == '.') {
        s = end + 1;
        end = fl__json_digits(s);
        if (end == s) return false;
    }
    if (*end == 'e' || *end == 'E') {
        s = end[1] == '-' || end[1] == '+' ? end + 2 : end + 1;
        end = fl__json_digits(s);
        if (end == s) return false;
    }
    return !*end;
}

static bool fl__json_in_number(char c) {
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static bool fl__json_read_number(fl_data_json *j) {
    do {
        const char *run = j->p_;
        while (j->p_ < j->end_ && fl__json_in_number(*j->p_)) j->p_++;
        if (!fl__json_put(j, run, j->p_ - run)) return false;
    } while (j->p_ == j->end_ && fl__json_fill(j, 1));
    return fl__json_is_number(j->text_.p) || fl_data_json_fail(j, "'%.40s' is not a number", j->text_.p);
}

static const double fl__json_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Converts the digits without the point, whose character depends on the locale: "-12.5e3" is "-125e2". With
   few digits and a small exponent one exact operation suffices. */
FL_API bool fl_data_parse_double(const char *s, size_t n, double *out) {
    if (!fl_given(s, "fl_data_parse_double", "the text") ||
        !fl_given(out, "fl_data_parse_double", "the result")) return false;
    const double *const ten = fl__json_ten;
    const char *end = s + n;
    const bool negative = s < end && *s == '-';
    if (s < end && (*s == '-' || *s == '+')) s++;
    char small[64], *digits = n + 24 <= sizeof small ? small : fl_heap_alloc(n + 24);
    int64_t exponent = 0, e = 0, mantissa = 0;
    int n_digits = 0;
    bool point = false, any = false;
    if (!digits) return false;
    for (; s < end && ((*s >= '0' && *s <= '9') || (*s == '.' && !point)); s++) {
        if (*s == '.') point = true;
        else {
            any = true, exponent -= point;
            if (n_digits || *s != '0') digits[n_digits++] = *s;
            if (n_digits <= 15) mantissa = mantissa * 10 + (*s - '0');
        }
    }
    if (any && s < end && (*s == 'e' || *s == 'E')) {
        const bool minus = ++s < end && *s == '-';
        if (s < end && (*s == '-' || *s == '+')) s++;
        any = s < end;
        for (; s < end && *s >= '0' && *s <= '9'; s++) e = e < 100000000 ? e * 10 + (*s - '0') : e;
        exponent += minus ? -e : e;
    }
    any = any && s == end;
    double x = (double)mantissa;
    if (n_digits > 15 || (n_digits && (exponent < -22 || exponent > 22))) {
        snprintf(digits + n_digits, 24, "e%lld", (long long)exponent);
        x = any ? strtod(digits, NULL) : 0;
    } else if (n_digits) x = exponent < 0 ? x / ten[-exponent] : x * ten[exponent];
    if (digits != small) fl_heap_free(digits);
    if (any) *out = negative ? -x : x;
    return any;
}

static bool fl__json_at_number(fl_data_json *j) {
    return j->event == FL_DATA_JSON_NUMBER || (j->event && fl_data_json_fail(j, "expected a number"));
}

FL_API bool fl_data_json_as_double(fl_data_json *j, double *out) {
    if (!fl_given(j, "fl_data_json_as_double", "the reader")) return false;
    double x;
    if (!fl__json_at_number(j)) return false;
    if (!fl_data_parse_double(j->text, (size_t)j->n, &x)) {
        j->event = FL_DATA_JSON_ERROR; /* out of memory: the text is a number */
        return false;
    }
    if (!isfinite(x))
        return fl_data_json_fail(j, "the number '%.40s' is out of range of a double", j->text);
    *out = x;
    return true;
}

FL_API bool fl_data_json_as_int(fl_data_json *j, int64_t *out) {
    if (!fl_given(j, "fl_data_json_as_int", "the reader")) return false;
    if (!fl__json_at_number(j)) return false;
    const bool negative = *j->text == '-';
    const char *s = j->text + negative;
    int64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, negative ? '0' - *s : *s - '0', &v))
            return fl_data_json_fail(j, "the number '%.40s' is out of range of int64", j->text);
    if (*s) return fl_data_json_fail(j, "expected an integer, got '%.40s'", j->text);
    *out = v;
    return true;
}

/* ---- events ---- */

static bool fl__json_in_array(const fl_data_json *j) {
    const int level = j->depth - 1;
    return level >= 0 && (j->arrays_[level / 64] >> level % 64 & 1);
}

/* The first byte of what comes next, after white space and a comma; -1 at the end of the text, or after an
   error. */
static int fl__json_ready(fl_data_json *j) {
    const int c = fl__json_space(j);
    if (j->expects_ != FL__JSON_AFTER || !j->depth) return c;
    const bool array = fl__json_in_array(j);
    if (c == (array ? ']' : '}')) return c;
    if (c != ',') {
        fl__json_bad(j, array ? "expected ',' or ']'" : "expected ',' or '}'");
        return -1;
    }
    j->p_++;
    j->expects_ = array ? FL__JSON_VALUE : FL__JSON_KEY;
    return fl__json_space(j);
}

/* Whether the object or array ends here, with the byte c. */
static bool fl__json_is_end(const fl_data_json *j, int c) {
    const bool may = j->expects_ == FL__JSON_FIRST || j->expects_ == FL__JSON_AFTER;
    return j->depth && may && c == (fl__json_in_array(j) ? ']' : '}');
}

static bool fl__json_enter(fl_data_json *j, bool array) {
    if (j->depth == j->max_depth_) return fl__json_bad(j, "objects and arrays are nested deeper than "
                                                       "max_depth");
    const uint64_t bit = (uint64_t)1 << j->depth % 64, word = j->arrays_[j->depth / 64];
    j->arrays_[j->depth / 64] = array ? word | bit : word & ~bit;
    j->depth++;
    j->p_++;
    j->expects_ = FL__JSON_FIRST;
    return true;
}

static bool fl__json_read_key(fl_data_json *j, int c) {
    if (c != '"') return fl__json_bad(j, "expected '\"' of a key");
    if (!fl__json_read_string(j)) return false;
    if (fl__json_space(j) != ':') return fl__json_bad(j, "expected ':'");
    j->p_++;
    j->expects_ = FL__JSON_VALUE;
    return true;
}

static bool fl__json_word(fl_data_json *j, const char *word) {
    const int64_t n = (int64_t)strlen(word);
    if (fl__json_fill(j, n) < n || memcmp(j->p_, word, (size_t)n)) return fl__json_bad(j, "expected a value");
    j->p_ += n;
    return true;
}

/* Reads the value that begins with the byte c. */
static fl_data_json_event fl__json_value(fl_data_json *j, int c) {
    static const struct {
        char first;
        const char *text;
        fl_data_json_event event;
    } words[] = {{'t', "true", FL_DATA_JSON_TRUE},
                 {'f', "false", FL_DATA_JSON_FALSE},
                 {'n', "null", FL_DATA_JSON_NULL}};
    if (c == '{' || c == '[') {
        if (!fl__json_enter(j, c == '[')) return FL_DATA_JSON_ERROR;
        return c == '[' ? FL_DATA_JSON_ARRAY : FL_DATA_JSON_OBJECT;
    }
    j->expects_ = FL__JSON_AFTER;
    if (c == '"') return fl__json_read_string(j) ? FL_DATA_JSON_STRING : FL_DATA_JSON_ERROR;
    if (c == '-' || (c >= '0' && c <= '9'))
        return fl__json_read_number(j) ? FL_DATA_JSON_NUMBER : FL_DATA_JSON_ERROR;
    for (int i = 0; i < 3; i++)
        if (c == words[i].first) return fl__json_word(j, words[i].text) ? words[i].event : FL_DATA_JSON_ERROR;
    fl__json_bad(j, c < 0 ? "the text ends early" : "expected a value");
    return FL_DATA_JSON_ERROR;
}

FL_API fl_data_json_event fl_data_json_next(fl_data_json *j) {
    if (!fl_given(j, "fl_data_json_next", "the reader") || j->event == FL_DATA_JSON_ERROR)
        return FL_DATA_JSON_ERROR;
    const int c = fl__json_ready(j);
    if (j->event == FL_DATA_JSON_ERROR) return j->event;
    j->at = fl__json_position(j), j->line = j->line_;
    j->text_.n = 0;
    if (!fl__json_put(j, "", 0)) return FL_DATA_JSON_ERROR;
    if (!j->depth && j->expects_ == FL__JSON_AFTER) {
        if (c < 0) return fl__json_give(j, FL_DATA_JSON_END);
        if (!j->many_) return fl__json_bad(j, "unexpected text after the value"), FL_DATA_JSON_ERROR;
    }
    if (fl__json_is_end(j, c)) {
        const bool array = fl__json_in_array(j);
        j->depth--;
        j->p_++;
        j->expects_ = FL__JSON_AFTER;
        return fl__json_give(j, array ? FL_DATA_JSON_ARRAY_END : FL_DATA_JSON_OBJECT_END);
    }
    if (j->depth && !fl__json_in_array(j) && j->expects_ != FL__JSON_VALUE)
        return fl__json_give(j, fl__json_read_key(j, c) ? FL_DATA_JSON_KEY : FL_DATA_JSON_ERROR);
    return fl__json_give(j, fl__json_value(j, c));
}

FL_API bool fl_data_json_more(fl_data_json *j) {
    if (!fl_given(j, "fl_data_json_more", "the reader") || j->event == FL_DATA_JSON_ERROR) return false;
    const int c = fl__json_ready(j);
    if (j->event == FL_DATA_JSON_ERROR || (!j->depth && c < 0)) {
        if (j->broken_) j->event = FL_DATA_JSON_ERROR;
        return false;
    }
    const bool in_array = fl__json_in_array(j);
    if (j->depth && (!in_array || fl__json_is_end(j, c))) return fl_data_json_next(j) == FL_DATA_JSON_KEY;
    if (in_array) j->expects_ = FL__JSON_VALUE;
    return true;
}

FL_API bool fl_data_json_expect(fl_data_json *j, fl_data_json_event e) {
    static const char *const names[] = {
        "an error", "the end of the text", "an object", "the end of an object",
        "an array", "the end of an array", "a key",     "a string",
        "a number", "true",                "false",     "null"};
    if (fl_data_json_next(j) == e) return true;
    return j && j->event && fl_data_json_fail(j, "expected %s, got %s", names[e], names[j->event]);
}

FL_API const char *fl_data_json_string(fl_data_json *j) {
    return fl_data_json_expect(j, FL_DATA_JSON_STRING) ? j->text : NULL;
}

/* Fast path: a number of at most 15 digits that is completely in the window, as digits / 10^places (NULL: 0).
   Returns false, without consuming anything, for everything else. */
static bool fl__json_plain_number(fl_data_json *j, int64_t *digits, int *places) {
    if (!j || j->event == FL_DATA_JSON_ERROR || j->broken_ || fl__json_ready(j) < 0 ||
        j->expects_ != FL__JSON_VALUE) return false;
    const bool negative = *j->p_ == '-';
    const char *first = j->p_ + negative, *s = first, *point = NULL;
    const char *last = j->end_ - s > 16 ? s + 16 : j->end_ - 1; /* the byte after the number is there too */
    int64_t v = 0;
    for (; s < last; s++) {
        if (*s >= '0' && *s <= '9') v = v * 10 + (*s - '0');
        else if (*s == '.' && !point && s > first) point = s;
        else break;
    }
    const int64_t whole = (point ? point : s) - first;
    if (s >= last || fl__json_in_number(*s) || !whole || (*first == '0' && whole > 1) || (negative && !v) ||
        (point && (!places || s == point + 1))) return false;
    j->at = fl__json_position(j), j->line = j->line_;
    j->p_ = s, j->expects_ = FL__JSON_AFTER, j->event = FL_DATA_JSON_NUMBER, j->text = "", j->n = 0;
    *digits = negative ? -v : v;
    if (places) *places = point ? (int)(s - point - 1) : 0;
    return true;
}

FL_API bool fl_data_json_int(fl_data_json *j, int64_t *out) {
    if (fl__json_plain_number(j, out, NULL)) return true;
    return fl_data_json_expect(j, FL_DATA_JSON_NUMBER) && fl_data_json_as_int(j, out);
}

FL_API bool fl_data_json_double(fl_data_json *j, double *out) {
    int64_t v;
    int places;
    if (fl__json_plain_number(j, &v, &places)) return *out = (double)v / fl__json_ten[places], true;
    return fl_data_json_expect(j, FL_DATA_JSON_NUMBER) && fl_data_json_as_double(j, out);
}

FL_API bool fl_data_json_bool(fl_data_json *j, bool *out) {
    if (fl_data_json_next(j) != FL_DATA_JSON_TRUE && (!j || j->event != FL_DATA_JSON_FALSE))
        return j && j->event && fl_data_json_fail(j, "expected true or false");
    *out = j->event == FL_DATA_JSON_TRUE;
    return true;
}

FL_API bool fl_data_json_skip(fl_data_json *j) {
    if (!fl_given(j, "fl_data_json_skip", "the reader")) return false;
    const int depth = j->depth;
    do fl_data_json_next(j);
    while (j->event && j->depth > depth);
    if (j->depth == depth && j->event > FL_DATA_JSON_END) return true;
    return j->event && fl_data_json_fail(j, "expected a value");
}

/* ---- opening ---- */

/* path: copied to memory after the reader. */
static fl_data_json *fl__json_new(const char *who, const char *path, fl_data_json_opts o) {
    const size_t n = strlen(path) + 1;
    if (o.max_depth < 0 || o.max_depth > 1024 || o.max_text < 0) {
        fl_fail("%s: max_depth %d or max_text %lld is out of range", who, o.max_depth, (long long)o.max_text);
        return NULL;
    }
    fl_data_json *j = fl_heap_alloc(sizeof *j + n);
    if (!j) return NULL;
    memcpy(j + 1, path, n);
    j->f_.who = o.who ? o.who : who;
    j->f_.path = (const char *)(j + 1);
    j->event = FL_DATA_JSON_END;
    j->line = j->line_ = 1;
    j->max_depth_ = o.max_depth ? o.max_depth : 64;
    j->max_text_ = o.max_text ? o.max_text : (int64_t)1 << 24;
    j->many_ = o.many;
    j->c_strings_ = o.c_strings;
    j->expects_ = o.many ? FL__JSON_AFTER : FL__JSON_VALUE;
    return j;
}

FL_API fl_data_json *fl_data_json_of_opt(const void *bytes, size_t n, fl_data_json_opts o) {
    if (!bytes) return fl_fail("fl_data_json_of: the bytes are NULL"), NULL;
    fl_data_json *j = fl__json_new("fl_data_json_of", o.name ? o.name : "text", o);
    if (j) j->start_ = j->p_ = bytes, j->end_ = j->p_ + n;
    return j;
}

static bool fl__json_window(fl_data_json *j, int64_t at, int64_t n) {
    j->window_ = fl_heap_alloc(n < FL__JSON_WINDOW ? (size_t)n : FL__JSON_WINDOW);
    j->start_ = j->p_ = j->end_ = j->window_;
    j->start_at_ = at;
    j->left_ = n;
    return j->window_ != NULL;
}

FL_API fl_data_json *fl_data_json_in(const fl_data_stream *f, int64_t at, int64_t n, fl_data_json_opts o) {
    if (!fl_given(f, "fl_data_json_in", "the stream")) return NULL;
    fl_data_json *j = fl__json_new(f->who, f->path, o);
    if (!j) return NULL;
    j->f_.io = f->io, j->f_.file = f->file, j->f_.size = -1; /* -1: not closed with the reader */
    if (fl__json_window(j, at, n)) return j;
    fl_data_json_close(j);
    return NULL;
}

FL_API fl_data_json *fl_data_json_open_opt(const char *path, fl_data_json_opts o) {
    const char *who = o.who ? o.who : "fl_data_json_open";
    if (!path) return fl_fail("%s: path is NULL", who), NULL;
    fl_data_json *j = fl__json_new(who, path, o);
    if (j && fl_data_stream_open(&j->f_, who, (const char *)(j + 1), FL_DATA_READ) &&
        fl__json_window(j, 0, j->f_.size))
        return j;
    fl_data_json_close(j);
    return NULL;
}

FL_API void fl_data_json_close(fl_data_json *j) {
    if (!j || fl_is_freed(j, "fl_data_json_close", "the reader")) return;
    if (j->f_.file && j->f_.size >= 0) j->f_.io.close(j->f_.io.user, j->f_.file);
    fl_heap_free(j->window_);
    fl_heap_free(j->text_.p);
    fl_object_free(j, "JSON reader", "");
}

/* ---- writing ---- */

FL_API bool fl_data_json_put_string(fl_data_text *t, const char *text, size_t n) {
    bool ok = fl_data_text_put(t, "\"", 1);
    for (size_t i = 0, len; ok && i < n; i += len) {
        char code[8] = "\\ufffd";
        for (len = 0; i + len < n && (unsigned char)(text[i + len] - 0x20) < 0x5f; len++)
            if (text[i + len] == '"' || text[i + len] == '\\') break;
        if (!len && (unsigned char)text[i] >= 0x7f) len = fl_data_utf8(text + i, n - i);
        ok = fl_data_text_put(t, text + i, len);
        if (len) continue;
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20) snprintf(code, sizeof code, "\\u%04x", c);
        else if (c < 0x7f) snprintf(code, sizeof code, "\\%c", c);
        len = 1;
        ok = ok && fl_data_text_put(t, code, strlen(code));
    }
    return ok && fl_data_text_put(t, "\"", 1);
}

FL_API bool fl_data_json_put_double(fl_data_text *t, double x) {
    char text[48];
    double back = 0;
    if (!isfinite(x)) return fl_data_text_put(t, "null", 4);
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        char *d = text;
        for (const char *s = text; *s; s++) { /* the decimal point depends on the locale */
            const bool plain = (*s >= '0' && *s <= '9') || *s == '-' || *s == '+' || *s == 'e';
            if (plain) *d++ = *s;
            else if (d[-1] != '.') *d++ = '.';
        }
        *d = 0;
        if (fl_data_parse_double(text, strlen(text), &back) && back == x) break;
    }
    return fl_data_text_put(t, text, strlen(text));
}

#endif
#endif

/* MIT licence: see LICENSE. */
