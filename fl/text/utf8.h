/* fl/text/utf8.h - UTF-8: decoding, encoding, validation, replacement of invalid bytes */
#ifndef FL_TEXT_UTF8_H
#define FL_TEXT_UTF8_H
#include "../data/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text is a pointer and a number of bytes; a NUL is an ordinary character. Decodes the character at s,
   where n >= 1 bytes are left; *len is its number of bytes. Returns -1 if it is ill-formed: one U+FFFD then
   replaces *len bytes, the longest prefix of a well-formed character (Unicode 15, 3.9, "maximal subpart";
   the same as Python's errors="replace"). */
FL_API int32_t fl_text_utf8_decode(const char *s, int64_t n, int *len);
/* Encodes a code point into d and returns its bytes, 1 to 4. Invalid code points are encoded as U+FFFD. */
FL_API int fl_text_utf8_encode(char d[4], int32_t c);
/* Returns the offset of the first ill-formed byte, n if the text is well-formed. */
FL_API int64_t fl_text_utf8_valid_length(const char *s, int64_t n);
/* Returns the number of characters in n bytes; an ill-formed part counts as one, its U+FFFD. */
FL_API int64_t fl_text_utf8_count(const char *s, int64_t n);
/* Appends n bytes to t with ill-formed parts replaced by U+FFFD; adds their number to *replaced. */
FL_API bool fl_text_utf8_append(fl_data_text *t, const char *s, int64_t n, int64_t *replaced);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_UTF8_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_UTF8) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_UTF8_IMPL
#define FL_TEXT_UTF8_IMPL
#include <string.h>

/* The range of the second byte depends on the first: no overlong forms, surrogates, code points above
   U+10FFFF. */
FL_API int32_t fl_text_utf8_decode(const char *text, int64_t n, int *len) {
    if (!fl_given(text, "fl_text_utf8_decode", "the text") ||
        !fl_given(len, "fl_text_utf8_decode", "the length")) return -1;
    const uint8_t *s = (const uint8_t *)text;
    const unsigned c = s[0];
    *len = 1;
    if (c < 0x80) return (int32_t)c;
    if (c < 0xc2 || c > 0xf4) return -1;
    const int tail = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    const unsigned low = c == 0xe0   ? 0xa0
                         : c == 0xf0 ? 0x90
                                     : 0x80,
                   high = c == 0xed   ? 0x9f
                          : c == 0xf4 ? 0x8f
                                      : 0xbf;
    int32_t v = (int32_t)(c & (0x3fu >> tail));
    for (int i = 1; i <= tail; i++) {
        if (i >= n || s[i] < (i == 1 ? low : 0x80) || s[i] > (i == 1 ? high : 0xbf)) return -1;
        v = v << 6 | (s[i] & 0x3f);
        *len = i + 1;
    }
    return v;
}

FL_API int fl_text_utf8_encode(char d[4], int32_t c) {
    if (!fl_given(d, "fl_text_utf8_encode", "the result")) return 0;
    static const uint8_t lead[4] = {0, 0xc0, 0xe0, 0xf0};
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    d[0] = (char)(lead[tail] | (c >> (6 * tail)));
    for (int i = 1; i <= tail; i++) d[i] = (char)(0x80 | ((c >> (6 * (tail - i))) & 0x3f));
    return tail + 1;
}

FL_API int64_t fl_text_utf8_valid_length(const char *s, int64_t n) {
    int64_t i = 0;
    uint64_t eight;
    for (int len; i < n; i += len) {
        for (; i + 8 <= n; i += 8) {
            memcpy(&eight, s + i, 8);
            if (eight & 0x8080808080808080u) break;
        }
        if (i == n || fl_text_utf8_decode(s + i, n - i, &len) < 0) break;
    }
    return i;
}

FL_API int64_t fl_text_utf8_count(const char *s, int64_t n) {
    int64_t chars = 0;
    int len;
    for (int64_t i = 0; i < n; i += len, chars++) fl_text_utf8_decode(s + i, n - i, &len);
    return chars;
}

FL_API bool fl_text_utf8_append(fl_data_text *t, const char *s, int64_t n, int64_t *replaced) {
    if (!fl_given(t, "fl_text_utf8_append", "the text")) return false;
    for (int len;;) {
        const int64_t good = fl_text_utf8_valid_length(s, n);
        if (!fl_data_text_put(t, s, (size_t)good)) return false;
        if (good == n) return true;
        fl_text_utf8_decode(s + good, n - good, &len);
        if (!fl_data_text_put(t, "\xef\xbf\xbd", 3)) return false;
        s += good + len, n -= good + len, ++*replaced;
    }
}

#endif
#endif

/* MIT licence: see LICENSE. */
