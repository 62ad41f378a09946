/* fl/text/tokenizers/bytes.h - bytes as characters, as in byte-level vocabularies; base64 decoding */
#ifndef FL_TEXT_TOKENIZERS_BYTES_H
#define FL_TEXT_TOKENIZERS_BYTES_H
#include "../../data/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GPT-2's mapping: bytes 33-126, 161-172 and 174-255 are themselves, the others U+0100 and on, in order. */
FL_API int32_t fl_text_byte_char(uint8_t b);
FL_API int fl_text_char_byte(int32_t c); /* the byte of a character; -1: none */
/* Appends n bytes as characters to out. */
FL_API bool fl_text_bytes_put(fl_data_text *out, const char *bytes, int64_t n);
/* Converts n bytes of characters back to bytes in raw, of capacity n. Returns their number; -1 if a
   character stands for no byte. */
FL_API int64_t fl_text_bytes_get(const char *chars, int64_t n, char *raw);

/* Decodes n bytes of base64 (RFC 4648, with padding) into raw, of capacity 3 n / 4. Returns the number of
   bytes; -1 if the text is not base64. */
FL_API int64_t fl_text_base64_get(const char *text, int64_t n, char *raw);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_BYTES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_BYTES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_BYTES_IMPL
#define FL_TEXT_TOKENIZERS_BYTES_IMPL
#include "../utf8.h"

FL_API int32_t fl_text_byte_char(uint8_t b) {
    if (b <= 32) return 256 + b;
    if (b < 127) return b;
    return b <= 160 ? 256 + 33 + b - 127 : b == 173 ? 256 + 67 : b;
}

FL_API int fl_text_char_byte(int32_t c) {
    if (c >= 256 && c <= 256 + 67) return c <= 256 + 32 ? c - 256 : c < 256 + 67 ? c - 256 - 33 + 127 : 173;
    return c > 32 && c < 256 && fl_text_byte_char((uint8_t)c) == c ? c : -1;
}

FL_API bool fl_text_bytes_put(fl_data_text *out, const char *bytes, int64_t n) {
    char c[4];
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++)
        ok = fl_data_text_put(
            out, c, (size_t)fl_text_utf8_encode(c, fl_text_byte_char((uint8_t)bytes[i])));
    return ok;
}

FL_API int64_t fl_text_bytes_get(const char *chars, int64_t n, char *raw) {
    int64_t bytes = 0;
    int len;
    for (int64_t i = 0; i < n; i += len) {
        const int b = fl_text_char_byte(fl_text_utf8_decode(chars + i, n - i, &len));
        if (b < 0) return -1;
        raw[bytes++] = (char)b;
    }
    return bytes;
}

static int fl__bytes_digit(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

FL_API int64_t fl_text_base64_get(const char *text, int64_t n, char *raw) {
    uint32_t bits = 0;
    int64_t out = 0, digits = n;
    while (digits > 0 && n - digits < 2 && text[digits - 1] == '=') digits--;
    if (n % 4 || digits % 4 == 1) return -1;
    for (int64_t i = 0; i < digits; i++) {
        const int d = fl__bytes_digit(text[i]);
        if (d < 0) return -1;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4) raw[out++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return out;
}

#endif
#endif

/* MIT licence: see LICENSE. */
