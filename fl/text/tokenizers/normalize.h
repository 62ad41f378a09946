/* fl/text/tokenizers/normalize.h - normalizers: Unicode forms, case, accents, replacement, SentencePiece */
#ifndef FL_TEXT_TOKENIZERS_NORMALIZE_H
#define FL_TEXT_TOKENIZERS_NORMALIZE_H
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps of a "normalizer": BertNormalizer, Strip, StripAccents, NFC, NFD, NFKC, NFKD, Lowercase, Nmt,
   Precompiled, Replace, Prepend, ByteLevel, Sequence; and fl's own SentencePiece, which reproduces that
   library: its character map (the step's own, or the first in its list "normalizers"), dummy prefix, merging
   and escaping of spaces. Returns false after fl_fail. */
FL_API bool fl_text_normalizers_of(fl_text_steps *out, const fl_text_tree *t, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_NORMALIZE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_NORMALIZE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_NORMALIZE_IMPL
#define FL_TEXT_TOKENIZERS_NORMALIZE_IMPL
#include "bytes.h"
#include "pattern.h"
#include "../unicode.h"
#include "../utf8.h"
#include <stdlib.h>
#include <string.h>

/* ---- per character ---- */

/* Maps a character: writes the result to out and returns its length; -1: unchanged. */
typedef int (*fl__norm_map)(int64_t flags, int32_t c, unsigned cls, int32_t *out);

static int fl__norm_lower_one(int64_t flags, int32_t c, unsigned cls, int32_t *out) {
    (void)flags, (void)cls;
    return fl_text_lower(c, out);
}

static int fl__norm_unaccented_one(int64_t flags, int32_t c, unsigned cls, int32_t *out) {
    (void)flags, (void)c, (void)out;
    return FL_TEXT_IS(cls, FL_TEXT_MARKS) ? 0 : -1;
}

static bool fl__norm_in(int32_t c, int32_t low, int32_t high) {
    return c >= low && c <= high;
}

static int fl__norm_nmt_one(int64_t flags, int32_t c, unsigned cls, int32_t *out) {
    (void)flags, (void)cls;
    out[0] = ' ';
    if (fl__norm_in(c, 1, 8) || c == 0xb || fl__norm_in(c, 0xe, 0x1f) || c == 0x7f || c == 0x8f ||
        c == 0x9f)
        return 0;
    return c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                   fl__norm_in(c, 0x200b, 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                   c == 0xfeff || c == 0xfffd
               ? 1
               : -1;
}

/* BertNormalizer's flags */
enum { FL__NORM_CLEAN = 1, FL__NORM_CJK = 2, FL__NORM_ACCENTS = 4, FL__NORM_LOWER = 8 };

static bool fl__norm_is_cjk(int32_t c) {
    return fl__norm_in(c, 0x4e00, 0x9fff) || fl__norm_in(c, 0x3400, 0x4dbf) ||
           fl__norm_in(c, 0x20000, 0x2a6df) || fl__norm_in(c, 0x2a700, 0x2b73f) ||
           fl__norm_in(c, 0x2b740, 0x2b81f) || fl__norm_in(c, 0x2b920, 0x2ceaf) ||
           fl__norm_in(c, 0xf900, 0xfaff) || fl__norm_in(c, 0x2f800, 0x2fa1f);
}

static int fl__norm_bert_one(int64_t flags, int32_t c, unsigned cls, int32_t *out) {
    const bool space = c == '\t' || c == '\n' || c == '\r' || (cls & FL_TEXT_WHITE_SPACE);
    const unsigned control = 1u << FL_TEXT_CC | 1u << FL_TEXT_CF | 1u << FL_TEXT_CO;
    int32_t part[FL_TEXT_PARTS] = {c};
    int n = 0, parts = 1;
    if (flags & FL__NORM_CLEAN) {
        if (c == 0 || c == 0xfffd ||
            (c != '\t' && c != '\n' && c != '\r' && FL_TEXT_IS(cls, control)))
            return 0;
        if (space) return out[0] = ' ', 1;
    }
    const bool apart = flags & FL__NORM_CJK && fl__norm_is_cjk(c);
    if (flags & FL__NORM_ACCENTS) parts = fl_text_decompose(c, false, part);
    if (apart) out[n++] = ' ';
    for (int i = 0; i < parts; i++) {
        if (flags & FL__NORM_ACCENTS && FL_TEXT_IS(fl_text_classes()[part[i]], 1u << FL_TEXT_MN)) continue;
        if (flags & FL__NORM_LOWER) n += fl_text_lower(part[i], out + n);
        else out[n++] = part[i];
    }
    if (apart) out[n++] = ' ';
    return n;
}

static bool fl__norm_make_bert(fl_text_step *s, const char *where) {
    (void)where;
    const bool lower = fl_text_tree_true(s->options, "lowercase", true);
    s->value = (fl_text_tree_true(s->options, "clean_text", true) ? FL__NORM_CLEAN : 0) |
               (fl_text_tree_true(s->options, "handle_chinese_chars", true) ? FL__NORM_CJK : 0) |
               (fl_text_tree_true(s->options, "strip_accents", lower) ? FL__NORM_ACCENTS : 0) |
               (lower ? FL__NORM_LOWER : 0);
    return true;
}

static const fl__norm_map fl__norm_maps[] = {fl__norm_lower_one, fl__norm_unaccented_one, fl__norm_nmt_one,
                                             fl__norm_bert_one}; /* by the value of the kind */
enum { FL__NORM_LOWERCASE, FL__NORM_UNACCENTED, FL__NORM_NMT, FL__NORM_BERT };

enum { FL__NORM_CAPACITY = 2 * FL_TEXT_PARTS + 2 };

static bool fl__norm_chars(const fl_text_step *s, fl_text_work *w) {
    const uint8_t *cls = fl_text_classes();
    const fl__norm_map map = fl__norm_maps[s->kind->value];
    int32_t out[FL__NORM_CAPACITY];
    int64_t same = 0;
    int len;
    bool ok = true;
    for (int64_t i = 0; ok && i < w->n; i += len) {
        char bytes[4 * FL__NORM_CAPACITY];
        const int32_t c = fl_text_utf8_decode(w->p + i, w->n - i, &len);
        const int n = c < 0 ? -1 : map(s->value, c, cls[c], out);
        if (n < 0 || (n == 1 && out[0] == c)) continue;
        int size = 0;
        for (int k = 0; k < n; k++) size += fl_text_utf8_encode(bytes + size, out[k]);
        ok = fl_text_work_copy(w, same, i) &&
             fl_text_work_put(w, bytes, size, fl_text_work_from(w, i), fl_text_work_to(w, i + len - 1));
        same = i + len;
    }
    if (!same) return ok; /* no character changed */
    ok = ok && fl_text_work_copy(w, same, w->n);
    fl_text_work_swap(w);
    return ok;
}

/* ---- normal forms ---- */

/* more: not the first character of a decomposition; joined: characters of the text composed into this one. */
typedef struct fl__norm_char {
    int32_t c, combining;
    bool more;
    int joined;
} fl__norm_char;

typedef struct fl__norm_chain {
    fl__norm_char *v;
    int64_t n, cap;
} fl__norm_chain;

static bool fl__norm_decomposed(fl__norm_chain *k, int32_t c, bool compatible) {
    int32_t part[FL_TEXT_PARTS];
    const int n = fl_text_decompose(c, compatible, part);
    if (!fl_heap_grow(&k->v, &k->cap, k->n + n, sizeof *k->v)) return false;
    for (int j = 0; j < n; j++)
        k->v[k->n++] = (fl__norm_char){part[j], fl_text_combining(part[j]), j > 0, 0};
    return true;
}

/* Stable sort of n marks by combining class; spare: workspace of n. */
static void fl__norm_sort(fl__norm_char *v, int64_t n, fl__norm_char *spare) {
    const int64_t half = n / 2;
    if (n < 16) {
        for (int64_t i = 1, at; i < n; i++) {
            const fl__norm_char e = v[i];
            for (at = i; at && v[at - 1].combining > e.combining; at--) v[at] = v[at - 1];
            v[at] = e;
        }
        return;
    }
    fl__norm_sort(v, half, spare);
    fl__norm_sort(v + half, n - half, spare);
    memcpy(spare, v, (size_t)half * sizeof *v);
    for (int64_t i = 0, k = half, out = 0; i < half; out++)
        v[out] = k < n && v[k].combining < spare[i].combining ? v[k++] : spare[i++];
}

/* Canonical order: sorts the marks between two starters by combining class. */
static bool fl__norm_order(fl__norm_chain *k) {
    int64_t longest = 0;
    for (int64_t i = 0, begin = 0; i < k->n; i++) {
        if (!k->v[i].combining) begin = i + 1;
        if (i + 1 - begin > longest) longest = i + 1 - begin;
    }
    if (longest < 2) return true;
    if (!fl_heap_grow(&k->v, &k->cap, k->n + longest, sizeof *k->v)) return false;
    for (int64_t i = 0, end; i < k->n; i = end + 1) {
        for (end = i; end < k->n && k->v[end].combining;) end++;
        fl__norm_sort(k->v + i, end - i, k->v + k->n);
    }
    return true;
}

/* Canonical composition: joins characters with the last starter unless blocked. Returns the new length. */
static int64_t fl__norm_composed(fl__norm_char *v, int64_t n) {
    int64_t out = 0, starter = -1;
    for (int64_t i = 0; i < n; i++) {
        const fl__norm_char e = v[i];
        const bool blocked = starter < 0 || (out - 1 > starter && v[out - 1].combining >= e.combining);
        const int32_t c = blocked ? 0 : fl_text_compose(v[starter].c, e.c);
        if (c) {
            v[starter].c = c, v[starter].joined += !e.more;
            continue;
        }
        if (!e.combining) starter = out;
        v[out++] = e;
    }
    return out;
}

/* Writes the characters. Each stands for the next one of the text, further ones of a decomposition for the
   last one; characters that were composed have no range. These are tokenizers' offsets. */
static bool fl__norm_write(fl_text_work *w, const fl__norm_chain *k, const fl_text_piece *source, int64_t n) {
    int64_t at = -1, next = 0;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        char bytes[4];
        if (!k->v[i].more) at = next, next += 1 + k->v[i].joined;
        const fl_text_piece s = source[at < 0 ? 0 : at];
        ok = fl_text_work_put(w, bytes, fl_text_utf8_encode(bytes, k->v[i].c), s.begin, s.end);
    }
    return ok;
}

enum { FL__NORM_COMPATIBLE = 1, FL__NORM_COMPOSE = 2 };

/* ASCII is copied; stretches of other characters are normalised together with the character before them. */
static bool fl__norm_form(const fl_text_step *s, fl_text_work *w) {
    const bool compatible = s->value & FL__NORM_COMPATIBLE, compose = s->value & FL__NORM_COMPOSE;
    fl__norm_chain k = {0};
    fl_text_piece *source = NULL; /* ranges of the stretch's characters */
    int64_t cap = 0;
    bool ok = true;
    int len;
    for (int64_t i = 0, begin = 0; ok && begin < w->n;) {
        for (i = begin; i < w->n && (uint8_t)w->p[i] < 0x80;) i++;
        if (i - begin == w->n) return true; /* all ASCII */
        const int64_t from = i > begin && i < w->n ? i - 1 : i;
        int64_t n = 0;
        ok = fl_text_work_copy(w, begin, from);
        k.n = 0;
        for (begin = from;
             ok && begin < w->n && (begin == from || (uint8_t)w->p[begin] >= 0x80);
             begin += len) {
            const int32_t c = fl_text_utf8_decode(w->p + begin, w->n - begin, &len);
            if (c < 0) break;
            ok = fl_heap_grow(&source, &cap, n + 1, sizeof *source) && fl__norm_decomposed(&k, c, compatible);
            if (ok)
                source[n++] = (fl_text_piece){fl_text_work_from(w, begin),
                                              fl_text_work_to(w, begin + len - 1), -1};
        }
        ok = ok && fl__norm_order(&k);
        const int64_t left = compose ? fl__norm_composed(k.v, k.n) : k.n;
        ok = ok && fl__norm_write(w, &k, source, left);
        const int64_t bad = begin; /* ill-formed bytes are copied */
        while (begin < w->n && fl_text_utf8_decode(w->p + begin, w->n - begin, &len) < 0) begin += len;
        ok = ok && fl_text_work_copy(w, bad, begin);
    }
    fl_heap_free(k.v);
    fl_heap_free(source);
    fl_text_work_swap(w);
    return ok;
}

/* ---- strings ---- */

static bool fl__norm_strip(const fl_text_step *s, fl_text_work *w) {
    const uint8_t *cls = fl_text_classes();
    int64_t begin = w->n, end = 0;
    int len;
    for (int64_t i = 0; i < w->n; i += len) {
        const int32_t c = fl_text_utf8_decode(w->p + i, w->n - i, &len);
        if (c >= 0 && (cls[c] & FL_TEXT_WHITE_SPACE)) continue;
        if (begin == w->n) begin = i;
        end = i + len;
    }
    if (!fl_text_tree_true(s->options, "strip_left", true)) begin = 0;
    if (!fl_text_tree_true(s->options, "strip_right", true)) end = w->n;
    fl_text_work_keep(w, begin, end);
    return true;
}

static bool fl__norm_prepend(const fl_text_step *s, fl_text_work *w) {
    int64_t n;
    int len = 1;
    const char *text = fl_text_tree_string(s->options, "prepend", &n, "");
    if (!w->n) return true;
    fl_text_utf8_decode(w->p, w->n, &len);
    const bool ok =
        fl_text_work_put(w, text, n, fl_text_work_from(w, 0), fl_text_work_to(w, len - 1)) &&
        fl_text_work_copy(w, 0, w->n);
    fl_text_work_swap(w);
    return ok;
}

/* A replacement stands for the last character of its match. */
static bool fl__norm_replace(const fl_text_step *s, fl_text_work *w) {
    fl_text_matches m = {.pattern = s->pattern, .s = w->p, .n = w->n, .left = &w->left};
    int64_t n, at = 0, last;
    const char *text = fl_text_tree_string(s->options, "content", &n, "");
    int found = 0;
    bool ok = true;
    while (ok && (found = fl_text_matches_next(&m)) > 0) {
        for (last = m.end - 1; last > m.begin && ((uint8_t)w->p[last] & 0xc0) == 0x80;) last--;
        ok = fl_text_work_copy(w, at, m.begin) &&
             fl_text_work_put(w, text, n, fl_text_work_from(w, last), fl_text_work_to(w, m.end - 1));
        at = m.end;
    }
    fl_text_matches_end(&m);
    if (!at) return found == 0; /* no match */
    ok = ok && found == 0 && fl_text_work_copy(w, at, w->n);
    fl_text_work_swap(w);
    return ok;
}

static bool fl__norm_make_replace(fl_text_step *s, const char *where) {
    return (s->pattern = fl_text_pattern_of(fl_text_tree_at(s->options, "pattern"), where)) != NULL;
}

/* Writes bytes as characters; each stands for its whole character. */
static bool fl__norm_bytes(const fl_text_step *s, fl_text_work *w) {
    (void)s;
    int len;
    bool ok = true;
    for (int64_t i = 0; ok && i < w->n; i += len) {
        fl_text_utf8_decode(w->p + i, w->n - i, &len);
        for (int k = 0; ok && k < len; k++) {
            char c[4];
            const int n = fl_text_utf8_encode(c, fl_text_byte_char((uint8_t)w->p[i + k]));
            ok = fl_text_work_put(w, c, n, fl_text_work_from(w, i), fl_text_work_to(w, i + len - 1));
        }
    }
    fl_text_work_swap(w);
    return ok;
}

/* ---- SentencePiece's character map ---- */

/* Format: a u32 with the size in bytes of a double array (Darts) of u32, the array, NUL-terminated
   replacements. Every index is checked when it is used. */
typedef struct fl__norm_charsmap {
    const char *text; /* replacements */
    int64_t units, n; /* number of u32 in the array, bytes of replacements */
    bool prefix, extra, escape,
        suffix; /* of "SentencePiece": dummy prefix, merging of spaces, U+2581 for spaces */
    bool plain[128]; /* ASCII except the space: no key starts with it and ends or continues with ASCII */
    char bytes[];
} fl__norm_charsmap;

enum { FL__NORM_MAPPED = 4 }; /* units of work per byte of a key: a malformed array may loop */

static uint32_t fl__norm_unit(const fl__norm_charsmap *m, uint64_t i) {
    uint32_t u = 0;
    if (i < (uint64_t)m->units) memcpy(&u, m->bytes + 4 + 4 * i, sizeof u);
    return u;
}

/* Follows byte c in the double array; at the root *at is 0. Returns false if no key continues so. */
static inline bool fl__norm_step(const fl__norm_charsmap *m, uint32_t *unit, uint64_t *at, uint8_t c) {
    *at ^= (uint64_t)(*unit >> 10) << ((*unit & 512) >> 6) ^ c;
    *unit = fl__norm_unit(m, *at);
    return (*unit & 0x800000ffu) == c;
}

static bool fl__norm_is_plain(const fl__norm_charsmap *m, uint8_t c) {
    uint64_t at = 0;
    uint32_t unit = fl__norm_unit(m, 0);
    bool plain = c != ' ';
    if (!plain || !m->units || !fl__norm_step(m, &unit, &at, c)) return plain;
    plain = !(unit >> 8 & 1);
    for (uint8_t next = 0; plain && next < 128; next++)
        plain = !fl__norm_step(m, &(uint32_t){unit}, &(uint64_t){at}, next);
    return plain;
}

/* The replacement of the shortest or longest key that is a prefix of s, its length in *len; NULL: none. */
static const char *fl__norm_mapped(const fl__norm_charsmap *m, const char *s, int64_t n,
                                   bool longest, int64_t *len, int64_t *left) {
    const char *found = NULL;
    uint32_t unit = fl__norm_unit(m, 0);
    uint64_t at = 0;
    for (int64_t i = 0; m->units && i < n && *left >= 0; i++) {
        *left -= FL__NORM_MAPPED;
        if (!fl__norm_step(m, &unit, &at, (uint8_t)s[i])) break;
        if (!(unit >> 8 & 1)) continue;
        const uint64_t leaf = at ^ (uint64_t)(unit >> 10) << ((unit & 512) >> 6);
        const uint32_t value = fl__norm_unit(m, leaf) & 0x7fffffffu;
        if (value >= (uint64_t)m->n) break;
        found = m->text + value, *len = i + 1;
        if (!longest) break;
    }
    return found;
}

static bool fl__norm_make_charsmap(fl_text_step *s, const char *where) {
    int64_t n;
    const fl_text_tree *list = fl_text_tree_at(s->options, "normalizers");
    const char *text = fl_text_tree_string(list ? list->first : s->options, "precompiled_charsmap", &n, "");
    fl__norm_charsmap *m = s->data = fl_heap_alloc(sizeof *m + (size_t)n);
    if (!m) return false;
    m->prefix = fl_text_tree_true(s->options, "add_dummy_prefix", true);
    m->extra = fl_text_tree_true(s->options, "remove_extra_whitespaces", true);
    m->escape = fl_text_tree_true(s->options, "escape_whitespaces", true);
    m->suffix = fl_text_tree_true(s->options, "treat_whitespace_as_suffix", false);
    const int64_t size = fl_text_base64_get(text, n, m->bytes);
    uint32_t array = 0;
    if (size >= 4) memcpy(&array, m->bytes, 4);
    if (size && (size < 4 || array % 4 || array > (uint64_t)size - 4))
        return fl_fail("%s: precompiled_charsmap is malformed: wrong size of its array", where);
    if (size) m->units = array / 4, m->text = m->bytes + 4 + array, m->n = size - 4 - array;
    for (uint8_t c = 0; c < 128; c++) m->plain[c] = fl__norm_is_plain(m, c);
    if (size == 0) return true;
    return (m->n && !m->text[m->n - 1]) ||
           fl_fail("%s: precompiled_charsmap is malformed: its last replacement has no NUL", where);
}

/* Length of a grapheme cluster: a character, not a control, with the marks and joiners after it (UAX 29). */
static int64_t fl__norm_cluster(const fl_text_work *w, int64_t at) {
    const unsigned control = 1u << FL_TEXT_CC | 1u << FL_TEXT_CF | 1u << FL_TEXT_ZL | 1u << FL_TEXT_ZP;
    int len, more;
    const int32_t first = fl_text_utf8_decode(w->p + at, w->n - at, &len);
    int64_t end = at + len;
    if (first == '\r' && end < w->n && w->p[end] == '\n') return 2;
    if (first < 0 || (FL_TEXT_IS(fl_text_classes()[first], control) && first != 0x200c && first != 0x200d))
        return len;
    for (; end < w->n; end += more) {
        const int32_t c = fl_text_utf8_decode(w->p + end, w->n - end, &more);
        const bool extends = c == 0xe33 || c == 0xeb3 || c == 0xff9e || c == 0xff9f || /* not marks */
                             (c >= 0x1f3fb && c <= 0x1f3ff) || c == 0x200c || c == 0x200d;
        if (c < 0 || !(extends || FL_TEXT_IS(fl_text_classes()[c], FL_TEXT_MARKS))) break;
    }
    return end - at;
}

/* As Hugging Face's tokenizers: grapheme clusters first, then characters; the shortest key wins. */
static bool fl__norm_precompiled(const fl_text_step *s, fl_text_work *w) {
    bool ok = true;
    for (int64_t i = 0, len, key; ok && i < w->n; i += len) {
        len = fl__norm_cluster(w, i);
        const char *to = len < 6 ? fl__norm_mapped(s->data, w->p + i, len, false, &key, &w->left) : NULL;
        const int64_t end = i + len;
        if (to) {
            ok = fl_text_work_put(w, to, (int64_t)strlen(to), fl_text_work_from(w, i),
                                  fl_text_work_to(w, end - 1));
            continue;
        }
        for (int64_t k = i; ok && k < end; k += len) {
            int size;
            fl_text_utf8_decode(w->p + k, w->n - k, &size);
            len = size;
            to = fl__norm_mapped(s->data, w->p + k, len, false, &key, &w->left);
            ok = to ? fl_text_work_put(w, to, (int64_t)strlen(to), fl_text_work_from(w, k),
                                       fl_text_work_to(w, k + len - 1))
                    : fl_text_work_copy(w, k, k + len);
        }
        len = end - i;
    }
    fl_text_work_swap(w);
    return ok;
}

/* As the SentencePiece library: the longest key at each position, with spaces merged and escaped in one
   pass. A final mark is dropped, even a U+2581 of the text. */
static bool fl__norm_sentencepiece(const fl_text_step *s, fl_text_work *w) {
    const fl__norm_charsmap *m = s->data;
    const char *mark = m->escape ? "\xe2\x96\x81" : " ";
    const int64_t n_mark = m->escape ? 3 : 1;
    bool space = m->extra && w->first, started = !w->first, ok = true;
    for (int64_t i = 0, len; ok && i < w->n; i += len) {
        int size;
        for (len = 0; started && i + len < w->n; len++) {
            const uint8_t c = (uint8_t)w->p[i + len];
            if (c > 127 || !m->plain[c] || (i + len + 1 < w->n && (uint8_t)w->p[i + len + 1] > 127)) break;
        }
        if (len) {
            ok = fl_text_work_copy(w, i, i + len), space = false;
            continue;
        }
        const char *to = fl__norm_mapped(m, w->p + i, w->n - i, true, &len, &w->left);
        if (!to) fl_text_utf8_decode(w->p + i, w->n - i, &size), len = size;
        int64_t n = to ? (int64_t)strlen(to) : len;
        const char *p = to ? to : w->p + i;
        ok = fl_text_work_spend(w, n);
        const uint32_t from = fl_text_work_from(w, i), until = fl_text_work_to(w, i + len - 1);
        if (!started && m->extra && n == 1 && *p == ' ') continue;
        if (ok && !started && m->prefix && !m->suffix) ok = fl_text_work_put(w, mark, n_mark, from, from);
        started = true;
        while (space && n && *p == ' ') p++, n--;
        if (n) space = p[n - 1] == ' ';
        for (int64_t k = 0; ok && k < n; k++)
            ok = p[k] == ' ' ? fl_text_work_put(w, mark, n_mark, from, until)
                             : fl_text_work_put(w, p + k, 1, from, until);
        if (!m->extra) space = false;
    }
    fl_text_changed *next = &w->text_[w->text_at_];
    while (m->extra && w->last && next->n >= n_mark &&
           !memcmp(next->p + next->n - n_mark, mark, (size_t)n_mark))
        next->n -= n_mark;
    if (ok && started && w->last && w->n && m->prefix && m->suffix)
        ok = fl_text_work_put(w, mark, n_mark, fl_text_work_to(w, w->n - 1),
                              fl_text_work_to(w, w->n - 1));
    fl_text_work_swap(w);
    return ok;
}

static const fl_text_kind fl__norm_kinds[] = {
    {"BertNormalizer", .run = fl__norm_chars, .make = fl__norm_make_bert, .value = FL__NORM_BERT},
    {"ByteLevel", .run = fl__norm_bytes},
    {"Lowercase", .run = fl__norm_chars, .value = FL__NORM_LOWERCASE},
    {"NFC", .run = fl__norm_form, .value = FL__NORM_COMPOSE},
    {"NFD", .run = fl__norm_form},
    {"NFKC", .run = fl__norm_form, .value = FL__NORM_COMPATIBLE | FL__NORM_COMPOSE},
    {"NFKD", .run = fl__norm_form, .value = FL__NORM_COMPATIBLE},
    {"Nmt", .run = fl__norm_chars, .value = FL__NORM_NMT},
    {"Precompiled", .run = fl__norm_precompiled, .make = fl__norm_make_charsmap},
    {"Prepend", .run = fl__norm_prepend},
    {"Replace", .run = fl__norm_replace, .make = fl__norm_make_replace},
    {"SentencePiece", .run = fl__norm_sentencepiece, .make = fl__norm_make_charsmap},
    {"Strip", .run = fl__norm_strip},
    {"StripAccents", .run = fl__norm_chars, .value = FL__NORM_UNACCENTED},
    {0},
};

FL_API bool fl_text_normalizers_of(fl_text_steps *out, const fl_text_tree *t, const char *where) {
    return fl_text_steps_of(out, t, "normalizers", fl__norm_kinds, where);
}

#endif
#endif

/* MIT licence: see LICENSE. */
