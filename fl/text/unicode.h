/* fl/text/unicode.h - what kind of character one is, its lower case, and normal forms */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_UNICODE_H
#define FL_TEXT_UNICODE_H

#ifdef __cplusplus
extern "C" {
#endif

/* General categories (Unicode 15.0, from Debian's unicode-data; tests/unicode.py wrote the table). */
enum {
    FL_TEXT_CN,
    FL_TEXT_LU,
    FL_TEXT_LL,
    FL_TEXT_LT,
    FL_TEXT_LM,
    FL_TEXT_LO,
    FL_TEXT_MN,
    FL_TEXT_MC,
    FL_TEXT_ME,
    FL_TEXT_ND,
    FL_TEXT_NL,
    FL_TEXT_NO,
    FL_TEXT_PC,
    FL_TEXT_PD,
    FL_TEXT_PS,
    FL_TEXT_PE,
    FL_TEXT_PI,
    FL_TEXT_PF,
    FL_TEXT_PO,
    FL_TEXT_SM,
    FL_TEXT_SC,
    FL_TEXT_SK,
    FL_TEXT_SO,
    FL_TEXT_ZS,
    FL_TEXT_ZL,
    FL_TEXT_ZP,
    FL_TEXT_CC,
    FL_TEXT_CF,
    FL_TEXT_CS,
    FL_TEXT_CO,
    FL_TEXT_WHITE_SPACE = 32 /* added to the category */
};
/* Sets of categories: a bit for each. */
#define FL_TEXT_LETTERS 0x3eu
#define FL_TEXT_MARKS 0x1c0u
#define FL_TEXT_NUMBERS 0xe00u
#define FL_TEXT_PUNCTUATION 0x7f000u
/* Of a class, which fl_text_classes has at each code point up to U+10FFFF. */
#define FL_TEXT_IS(class, set) ((1u << ((class) & 31) & (set)) != 0)
FL_API const uint8_t *fl_text_classes(void);
/* The script's name as in Scripts.txt, "Unknown" where there is none; a pointer that is the same for the same
   script. */
FL_API const char *fl_text_script(int32_t c);
/* Lower case, one character or (of U+0130) two; their number. */
FL_API int fl_text_lower(int32_t c, int32_t out[2]);

/* Normal forms (UAX 15). The canonical combining class; the whole decomposition, FL_TEXT_PARTS characters at
   most (their number; 1: c itself); the character that a and b are composed to, 0: none. */
#define FL_TEXT_PARTS 18
FL_API int fl_text_combining(int32_t c);
FL_API int fl_text_decompose(int32_t c, bool compatible, int32_t out[FL_TEXT_PARTS]);
FL_API int32_t fl_text_compose(int32_t a, int32_t b);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_UNICODE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_UNICODE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_UNICODE_IMPL
#define FL_TEXT_UNICODE_IMPL
#include "unicode.inc"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FL__UNICODE_END 0x110000
#define FL__UNICODE_COMBINING_END 0x20000 /* no mark that is reordered is behind it */

typedef struct fl__unicode_part {
    int32_t c, at;  /* at: of its parts, in fl__unicode_part_list */
    uint8_t n, excluded;
} fl__unicode_part;

typedef struct fl__unicode_pair {
    int32_t a, b, c;
} fl__unicode_pair;

/* The packed tables, unpacked at first use. Pages that nothing is written to take no memory. */
static uint8_t fl__unicode_classes[FL__UNICODE_END], fl__unicode_script_of[FL__UNICODE_END];
static uint8_t fl__unicode_combining_of[FL__UNICODE_COMBINING_END];
static int32_t fl__unicode_lowers[FL__UNICODE_LOWER][2], fl__unicode_part_list[FL__UNICODE_PARTS];
static fl__unicode_part fl__unicode_canonicals[FL__UNICODE_CANONICAL],
    fl__unicode_compatibles[FL__UNICODE_COMPATIBLE];
static fl__unicode_pair fl__unicode_pairs[FL__UNICODE_CANONICAL];
static int fl__unicode_n_pairs;
static int32_t fl__unicode_n_parts;
static pthread_once_t fl__unicode_once = PTHREAD_ONCE_INIT, fl__unicode_script_once = PTHREAD_ONCE_INIT;

static int32_t fl__unicode_number(const uint8_t **p) {
    int32_t v = 0;
    for (int shift = 0;; shift += 7) {
        v |= (**p & 127) << shift;
        if (*(*p)++ < 128) return v;
    }
}

static int32_t fl__unicode_signed(const uint8_t **p) {
    const int32_t v = fl__unicode_number(p);
    return v & 1 ? -(v >> 1) - 1 : v >> 1;
}

static void fl__unicode_runs(const uint8_t *p, uint8_t *out, int32_t end) {
    for (int32_t c = 0; c < end;) {
        const int32_t n = fl__unicode_number(&p);
        if (*p) memset(out + c, *p, (size_t)(n < end - c ? n : end - c));
        c += n, p++;
    }
}

static void fl__unicode_parts(const uint8_t *p, fl__unicode_part *out, int n) {
    int32_t before[20] = {0}, c = 0;
    for (int i = 0; i < n; i++) {
        c += fl__unicode_number(&p);
        const int32_t head = fl__unicode_number(&p);
        out[i] = (fl__unicode_part){c, fl__unicode_n_parts, (uint8_t)(head >> 1), head & 1};
        for (int k = 0; k < head >> 1; k++)
            fl__unicode_part_list[fl__unicode_n_parts++] = before[k] += fl__unicode_signed(&p);
    }
}

static int fl__unicode_by_pair(const void *x, const void *y) {
    const fl__unicode_pair *u = x, *v = y;
    return u->a != v->a ? (u->a > v->a) - (u->a < v->a) : (u->b > v->b) - (u->b < v->b);
}

static void fl__unicode_fill(void) {
    const uint8_t *p = fl__unicode_lower;
    fl__unicode_runs(fl__unicode_class, fl__unicode_classes, FL__UNICODE_END);
    fl__unicode_runs(fl__unicode_combining, fl__unicode_combining_of, FL__UNICODE_COMBINING_END);
    for (int32_t i = 0, c = 0, shift = 0; i < FL__UNICODE_LOWER; i++) {
        c += fl__unicode_number(&p), shift += fl__unicode_signed(&p);
        fl__unicode_lowers[i][0] = c, fl__unicode_lowers[i][1] = c + shift;
    }
    fl__unicode_parts(fl__unicode_canonical, fl__unicode_canonicals, FL__UNICODE_CANONICAL);
    fl__unicode_parts(fl__unicode_compatible, fl__unicode_compatibles, FL__UNICODE_COMPATIBLE);
    for (int i = 0; i < FL__UNICODE_CANONICAL; i++) {
        const fl__unicode_part *d = &fl__unicode_canonicals[i];
        const int32_t *part = fl__unicode_part_list + d->at;
        if (d->n == 2 && !d->excluded)
            fl__unicode_pairs[fl__unicode_n_pairs++] = (fl__unicode_pair){part[0], part[1], d->c};
    }
    qsort(fl__unicode_pairs, (size_t)fl__unicode_n_pairs, sizeof fl__unicode_pairs[0], fl__unicode_by_pair);
}

static void fl__unicode_fill_scripts(void) {
    fl__unicode_runs(fl__unicode_script, fl__unicode_script_of, FL__UNICODE_END);
}

FL_API const uint8_t *fl_text_classes(void) {
    pthread_once(&fl__unicode_once, fl__unicode_fill);
    return fl__unicode_classes;
}

FL_API const char *fl_text_script(int32_t c) {
    pthread_once(&fl__unicode_script_once, fl__unicode_fill_scripts);
    return fl__unicode_scripts[c < 0 || c >= FL__UNICODE_END ? 0 : fl__unicode_script_of[c]];
}

/* Both kinds of list start with the code point that they are sorted by. */
static int fl__unicode_by_first(const void *x, const void *y) {
    int32_t a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

FL_API int fl_text_lower(int32_t c, int32_t out[2]) {
    if (!fl_given(out, "fl_text_lower", "the result")) return 0;
    out[0] = c;
    if (c < 0x80) return out[0] += c >= 'A' && c <= 'Z' ? 32 : 0, 1;
    fl_text_classes();
    const int32_t(*found)[2] = bsearch(&c, fl__unicode_lowers, FL__UNICODE_LOWER,
                                       sizeof fl__unicode_lowers[0], fl__unicode_by_first);
    if (found) out[0] = (*found)[1];
    out[1] = 0x307; /* the dot of a capital I, the one character that becomes two (SpecialCasing.txt) */
    return c == 0x130 ? 2 : 1;
}

FL_API int fl_text_combining(int32_t c) {
    fl_text_classes();
    return c < 0 || c >= FL__UNICODE_COMBINING_END ? 0 : fl__unicode_combining_of[c];
}

/* Hangul syllables are sums of their letters (Unicode 15, 3.12). */
enum {
    FL__HANGUL = 0xac00,
    FL__HANGUL_L = 0x1100,
    FL__HANGUL_V = 0x1161,
    FL__HANGUL_T = 0x11a7,
    FL__HANGUL_N = 11172
};

FL_API int fl_text_decompose(int32_t c, bool compatible, int32_t out[FL_TEXT_PARTS]) {
    if (!fl_given(out, "fl_text_decompose", "the result")) return 0;
    const int32_t s = c - FL__HANGUL;
    int n = 0;
    if (s >= 0 && s < FL__HANGUL_N) {
        out[0] = FL__HANGUL_L + s / 588, out[1] = FL__HANGUL_V + s % 588 / 28, out[2] = FL__HANGUL_T + s % 28;
        return s % 28 ? 3 : 2;
    }
    fl_text_classes();
    const size_t size = sizeof(fl__unicode_part);
    const fl__unicode_part *d = c < 0xa0
                                    ? NULL
                                    : bsearch(&c, fl__unicode_canonicals, FL__UNICODE_CANONICAL,
                                              size, fl__unicode_by_first);
    if (!d && compatible && c >= 0xa0)
        d = bsearch(&c, fl__unicode_compatibles, FL__UNICODE_COMPATIBLE, size,
                    fl__unicode_by_first);
    if (!d) return out[0] = c, 1;
    for (int i = 0; i < d->n; i++)
        n += fl_text_decompose(fl__unicode_part_list[d->at + i], compatible, out + n);
    return n;
}

FL_API int32_t fl_text_compose(int32_t a, int32_t b) {
    const int32_t l = a - FL__HANGUL_L, v = b - FL__HANGUL_V, s = a - FL__HANGUL, t = b - FL__HANGUL_T;
    if (l >= 0 && l < 19 && v >= 0 && v < 21) return FL__HANGUL + (l * 21 + v) * 28;
    if (s >= 0 && s < FL__HANGUL_N && s % 28 == 0 && t > 0 && t < 28) return a + t;
    fl_text_classes();
    const fl__unicode_pair key = {a, b, 0},
                           *found = bsearch(&key, fl__unicode_pairs, (size_t)fl__unicode_n_pairs,
                                            sizeof key, fl__unicode_by_pair);
    return found ? found->c : 0;
}

#endif
#endif

/* MIT licence: see LICENSE. */
