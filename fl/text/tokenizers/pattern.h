/* fl/text/tokenizers/pattern.h - matching literals, the splits of known tokenizers, regular expressions */
#ifndef FL_TEXT_TOKENIZERS_PATTERN_H
#define FL_TEXT_TOKENIZERS_PATTERN_H
#include "tree.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The split patterns of GPT-2, cl100k (GPT-4), Llama 3, Qwen2 and o200k (GPT-4o), as in their files. */
#define FL_TEXT_SPLIT_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define FL_TEXT_SPLIT_LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define FL_TEXT_SPLIT_CL100K                                               \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| " \
    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|"                              \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define FL_TEXT_SPLIT_QWEN2 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define FL_TEXT_SPLIT_O200K                                                                       \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?" \
    "i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?" \
    "i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct fl_text_pattern fl_text_pattern;
/* Compiles a regular expression, or a literal string. Expressions other than those above need PCRE2
   (FL_USE_PCRE2); without it, and if PCRE2 rejects the expression, an error quotes it. \s and [:space:] are
   Unicode's White_Space (before PCRE2 10.40 also U+180E). where: prefix of errors. NULL after fl_fail. */
FL_API fl_text_pattern *fl_text_pattern_new(const char *text, int64_t n, bool literal, const char *where);
/* Compiles {"String": ...} or {"Regex": ...}. */
FL_API fl_text_pattern *fl_text_pattern_of(const fl_text_tree *t, const char *where);
FL_API void fl_text_pattern_free(fl_text_pattern *p); /* NULL is fine */
/* An iterator over the matches in n bytes at s: start with {.pattern = p, .s = s, .n = n, .left = &left}.
   *left is the remaining work, in units of about 1 ns. */
typedef struct fl_text_matches {
    const fl_text_pattern *pattern;
    const char *s;
    int64_t n, at; /* at: where the search for the next match starts */
    int64_t *left;
    int64_t begin, end; /* the last match */
    /* private */
    int64_t first_, valid_, place_; /* range where s is well-formed; position of the expression in it */
    void *data_, *context_;
} fl_text_matches;
/* Finds the next non-empty match. Returns 1; 0 at the end; -1 after fl_fail. */
FL_API int fl_text_matches_next(fl_text_matches *m);
/* Frees the iterator's buffers. */
FL_API void fl_text_matches_end(fl_text_matches *m);
/* Fails because *left is below 0; returns false. */
FL_API bool fl_text_work_exceeded(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_PATTERN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_PATTERN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_PATTERN_IMPL
#define FL_TEXT_TOKENIZERS_PATTERN_IMPL
#include "../unicode.h"
#include "../utf8.h"
#include <string.h>
#ifdef FL_USE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

enum { FL__PAT_LONGEST = 1024 }; /* bytes of a literal, which is compared at each position */

/* A known split: returns the end of the match that begins at `at`. */
typedef int64_t (*fl__pat_split)(const uint8_t *cls, const char *s, int64_t n, int64_t at);

struct fl_text_pattern {
    fl__pat_split split;
    const uint8_t *cls;
    char *text; /* of a literal */
    int64_t n;
    void *code; /* PCRE2's compiled expression */
};

#define FL__PAT_WORD (FL_TEXT_LETTERS | FL_TEXT_NUMBERS)
#define FL__PAT_UPPER \
    (1u << FL_TEXT_LU | 1u << FL_TEXT_LT | 1u << FL_TEXT_LM | 1u << FL_TEXT_LO | FL_TEXT_MARKS)
#define FL__PAT_LOWER (1u << FL_TEXT_LL | 1u << FL_TEXT_LM | 1u << FL_TEXT_LO | FL_TEXT_MARKS)

/* The class of the character at s + at; ill-formed bytes count as symbols. */
static inline unsigned fl__pat_class(const uint8_t *cls, const char *s, int64_t n, int64_t at,
                                     int *len) {
    const uint8_t b = (uint8_t)s[at];
    *len = 1;
    if (b < 0x80) return cls[b];
    const int32_t c = fl_text_utf8_decode(s + at, n - at, len);
    return c < 0 ? FL_TEXT_SO : cls[c];
}

/* Skips characters of a set, at most `most`. */
static inline int64_t fl__pat_run(const uint8_t *cls, const char *s, int64_t n, int64_t at,
                                  unsigned set, int64_t most) {
    for (int len; at < n && most > 0; at += len, most--)
        if (!FL_TEXT_IS(fl__pat_class(cls, s, n, at, &len), set)) break;
    return at;
}

static inline bool fl__pat_space(unsigned c) {
    return (c & FL_TEXT_WHITE_SPACE) != 0;
}

/* Skips characters that are neither space, letter nor number. */
static int64_t fl__pat_symbols(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    for (int len; at < n; at += len) {
        const unsigned c = fl__pat_class(cls, s, n, at, &len);
        if (fl__pat_space(c) || FL_TEXT_IS(c, FL__PAT_WORD)) break;
    }
    return at;
}

/* The end of 's 't 're 've 'm 'll 'd at `at`; `at` if none. U+017F is also an s, in any case. */
static int64_t fl__pat_contraction(const char *s, int64_t n, int64_t at, bool any_case) {
    char c[2] = {0, 0};
    if (at + 1 >= n || s[at] != '\'') return at;
    for (int i = 0; i < 2 && at + 1 + i < n; i++) {
        c[i] = s[at + 1 + i];
        if (any_case && c[i] >= 'A' && c[i] <= 'Z') c[i] = (char)(c[i] + 32);
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return at + 2;
    if ((c[0] == 'r' && c[1] == 'e') || (c[0] == 'v' && c[1] == 'e') ||
        (c[0] == 'l' && c[1] == 'l'))
        return at + 3;
    return any_case && c[0] == '\xc5' && c[1] == '\xbf' ? at + 3 : at;
}

/* \s+(?!\S)|\s+ at white space: a run, without its last character if text follows. */
static int64_t fl__pat_spaces(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    int64_t last = at, end = at;
    int len;
    for (; end < n && fl__pat_space(fl__pat_class(cls, s, n, end, &len)); end += len) last = end;
    return end == n || last == at ? end : last;
}

static int64_t fl__pat_gpt2(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    int len;
    const int64_t behind = fl__pat_contraction(s, n, at, false);
    if (behind > at) return behind;
    const int64_t from = s[at] == ' ' && at + 1 < n ? at + 1 : at;
    const unsigned c = fl__pat_class(cls, s, n, from, &len);
    if (FL_TEXT_IS(c, FL_TEXT_LETTERS)) return fl__pat_run(cls, s, n, from + len, FL_TEXT_LETTERS, n);
    if (FL_TEXT_IS(c, FL_TEXT_NUMBERS)) return fl__pat_run(cls, s, n, from + len, FL_TEXT_NUMBERS, n);
    return fl__pat_space(c) ? fl__pat_spaces(cls, s, n, at) : fl__pat_symbols(cls, s, n, from + len);
}

/* \s*[\r\n]+ at white space: up to the last line end of the run; `at` if it has none. */
static int64_t fl__pat_lines(const uint8_t *cls, const char *s, int64_t n, int64_t at, int64_t *run) {
    int64_t end = at;
    int len;
    for (*run = at; *run < n && fl__pat_space(fl__pat_class(cls, s, n, *run, &len)); *run += len)
        if (s[*run] == '\r' || s[*run] == '\n') end = *run + 1;
    return end;
}

/* The common rest of the patterns since cl100k: symbols with line ends (and o200k's '/'), lines, spaces. */
static int64_t fl__pat_rest(const uint8_t *cls, const char *s, int64_t n, int64_t at,
                            bool slash, bool whole) {
    int len;
    int64_t run;
    const int64_t from = s[at] == ' ' && at + 1 < n ? at + 1 : at;
    const unsigned c = fl__pat_class(cls, s, n, from, &len);
    if (!fl__pat_space(c) && !FL_TEXT_IS(c, FL__PAT_WORD)) {
        int64_t end = fl__pat_symbols(cls, s, n, from + len);
        while (end < n && (s[end] == '\r' || s[end] == '\n' || (slash && s[end] == '/'))) end++;
        return end;
    }
    const int64_t lines = fl__pat_lines(cls, s, n, at, &run);
    if (whole && run == n) return n;
    return lines > at ? lines : fl__pat_spaces(cls, s, n, at);
}

/* Letters, optionally after one character that is not a line end, letter or number: their end, or `at`. */
static int64_t fl__pat_word(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    int len, more;
    unsigned c = fl__pat_class(cls, s, n, at, &len);
    if (!FL_TEXT_IS(c, FL_TEXT_LETTERS)) {
        if (s[at] == '\r' || s[at] == '\n' || FL_TEXT_IS(c, FL_TEXT_NUMBERS) || at + len >= n) return at;
        c = fl__pat_class(cls, s, n, at + len, &more);
        if (!FL_TEXT_IS(c, FL_TEXT_LETTERS)) return at;
        len += more;
    }
    return fl__pat_run(cls, s, n, at + len, FL_TEXT_LETTERS, n);
}

static int64_t fl__pat_words(const uint8_t *cls, const char *s, int64_t n, int64_t at,
                             int64_t digits, bool whole) {
    int64_t end = fl__pat_contraction(s, n, at, true);
    if (end > at) return end;
    end = fl__pat_word(cls, s, n, at);
    if (end > at) return end;
    end = fl__pat_run(cls, s, n, at, FL_TEXT_NUMBERS, digits);
    return end > at ? end : fl__pat_rest(cls, s, n, at, false, whole);
}

static int64_t fl__pat_llama3(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    return fl__pat_words(cls, s, n, at, 3, false);
}

static int64_t fl__pat_cl100k(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    return fl__pat_words(cls, s, n, at, 3, true);
}

static int64_t fl__pat_qwen2(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    return fl__pat_words(cls, s, n, at, 1, false);
}

/* Capitals, then lower-case letters; at least one that counts as lower case (or, `upper`, as a capital).
   Letters without case count as both. Returns the end, or `at`. */
static int64_t fl__pat_cased(const uint8_t *cls, const char *s, int64_t n, int64_t at, bool upper) {
    int64_t end = at, both = at; /* both: after the last letter without case */
    int len;
    for (; end < n; end += len) {
        const unsigned c = fl__pat_class(cls, s, n, end, &len);
        if (!FL_TEXT_IS(c, FL__PAT_UPPER)) break;
        if (FL_TEXT_IS(c, FL__PAT_LOWER)) both = end + len;
    }
    const int64_t behind = fl__pat_run(cls, s, n, end, FL__PAT_LOWER, n);
    if (upper) return end > at ? behind : at;
    return behind > end ? behind : both;
}

static int64_t fl__pat_o200k(const uint8_t *cls, const char *s, int64_t n, int64_t at) {
    int len;
    const unsigned c = fl__pat_class(cls, s, n, at, &len);
    const bool may_lead = s[at] != '\r' && s[at] != '\n' && !FL_TEXT_IS(c, FL__PAT_WORD);
    for (int upper = 0; upper < 2; upper++)
        for (int lead = may_lead; lead >= 0; lead--) {
            const int64_t from = lead ? at + len : at, end = fl__pat_cased(cls, s, n, from, upper);
            if (end > from) return fl__pat_contraction(s, n, end, true);
        }
    const int64_t end = fl__pat_run(cls, s, n, at, FL_TEXT_NUMBERS, 3);
    return end > at ? end : fl__pat_rest(cls, s, n, at, true, false);
}

/* ---- others ---- */

FL_API bool fl_text_work_exceeded(void) {
    return fl_fail(
        "fl_text: the tokenizer takes too long for this text, expected at most 600 units of work per byte");
}

#ifdef FL_USE_PCRE2
/* A callout before each item of the expression counts the work: PCRE2's own limit applies to each start
   position separately, and does not count runs of characters. */
static bool fl__pat_compile_as(fl_text_pattern *p, const char *text, int64_t n, const char *where) {
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[120];
    pcre2_code_free(p->code);
    p->code = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &error, &at,
                            NULL);
    if (p->code) return true;
    pcre2_get_error_message(error, why, sizeof why);
    return fl_fail("%s: invalid regular expression '%.200s': at %d: %s", where, text, (int)at,
                   (const char *)why);
}

/* Compiles the file's expression, so that errors have its offsets; then, from PCRE2 10.40 on, with white
   space as a property: PCRE2's \s includes U+180E, unlike Unicode's and that of the libraries that write
   such files. */
static bool fl__pat_compile(fl_text_pattern *p, const char *text, int64_t n, const char *where) {
    static const char *const word[][2] = {{"\\s", "\\p{White_Space}"},
                                          {"\\S", "\\P{White_Space}"},
                                          {"[:space:]", "\\p{White_Space}"},
                                          {"[:^space:]", "\\P{White_Space}"}};
    fl_data_text exact = {0};
    bool ok = fl__pat_compile_as(p, text, n, where), same = PCRE2_MAJOR == 10 && PCRE2_MINOR < 40;
    if (!ok || same) return ok;
    same = true;
    for (int64_t i = 0, len; ok && i < n; i += len) {
        const char *put = NULL;
        len = text[i] == '\\' && i + 1 < n ? 2 : 1;
        for (int k = 0; !put && k < 4; k++)
            if ((int64_t)strlen(word[k][0]) <= n - i && !memcmp(text + i, word[k][0], strlen(word[k][0])))
                put = word[k][1], len = (int64_t)strlen(word[k][0]), same = false;
        ok = fl_data_text_put(&exact, put ? put : text + i, put ? strlen(put) : (size_t)len);
    }
    ok = ok && (same || fl__pat_compile_as(p, exact.p, exact.n, where));
    fl_heap_free(exact.p);
    return ok;
}

enum { FL__PAT_ITEM = 16, FL__PAT_CHAR = 4 }; /* units of work */

static int fl__pat_count(pcre2_callout_block *b, void *user) {
    fl_text_matches *m = user;
    const int64_t position = (int64_t)b->current_position, run = position - m->place_;
    m->place_ = position;
    *m->left -= FL__PAT_ITEM + FL__PAT_CHAR * (run < 0 ? -run : run);
    return *m->left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

static bool fl__pat_begin(fl_text_matches *m) {
    m->data_ = pcre2_match_data_create(1, NULL);
    m->context_ = pcre2_match_context_create(NULL);
    if (!m->data_ || !m->context_) return fl_fail("out of memory: match data of a regular expression");
    pcre2_set_callout(m->context_, fl__pat_count, m);
    pcre2_set_heap_limit(m->context_, (uint32_t)(m->n / 16 + 1024)); /* KiB */
    return true;
}

/* Matches each well-formed stretch of s as a text of its own, so that UTF-8 is checked once. */
static int fl__pat_next(fl_text_matches *m) {
    if (!m->data_ && !fl__pat_begin(m)) return -1;
    while (m->at < m->n) {
        int len;
        if (m->at >= m->valid_) {
            m->first_ = m->at;
            m->valid_ = m->at + fl_text_utf8_valid_length(m->s + m->at, m->n - m->at);
            if (m->at == m->valid_) fl_text_utf8_decode(m->s + m->at, m->n - m->at, &len), m->at += len;
            continue;
        }
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(m->data_);
        const uint32_t edges = (m->first_ ? PCRE2_NOTBOL : 0) | (m->valid_ < m->n ? PCRE2_NOTEOL : 0);
        m->place_ = m->at - m->first_;
        const int rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)m->s + m->first_,
                                   (PCRE2_SIZE)(m->valid_ - m->first_), (PCRE2_SIZE)m->place_,
                                   PCRE2_NO_UTF_CHECK | edges, m->data_, m->context_);
        if (rc == PCRE2_ERROR_NOMATCH) m->at = m->valid_;
        else if (rc == PCRE2_ERROR_CALLOUT) return fl_text_work_exceeded(), -1;
        else if (rc < 0)
            return fl_fail("fl_text: regular expression: PCRE2 fails with error %d", rc), -1;
        else {
            m->begin = m->first_ + (int64_t)o[0], m->at = m->end = m->first_ + (int64_t)o[1];
            if (m->end > m->begin) return 1;
            if (m->at < m->valid_) fl_text_utf8_decode(m->s + m->at, m->valid_ - m->at, &len), m->at += len;
        }
    }
    return 0;
}

FL_API void fl_text_matches_end(fl_text_matches *m) {
    if (!m) return;
    pcre2_match_context_free(m->context_);
    pcre2_match_data_free(m->data_);
}
#else
static bool fl__pat_compile(fl_text_pattern *p, const char *text, int64_t n, const char *where) {
    (void)p;
    return fl_fail("%s: the regular expression '%.*s' needs PCRE2: build with FL_USE_PCRE2 (libpcre2-dev)",
                   where, (int)(n < 200 ? n : 200), text);
}

static int fl__pat_next(fl_text_matches *m) {
    (void)m;
    return 0;
}

FL_API void fl_text_matches_end(fl_text_matches *m) {
    (void)m;
}
#endif

FL_API fl_text_pattern *fl_text_pattern_new(const char *text, int64_t n, bool literal, const char *where) {
    static const struct { const char *text; fl__pat_split split;
    } known[] = {
        {FL_TEXT_SPLIT_GPT2, fl__pat_gpt2},
        {FL_TEXT_SPLIT_LLAMA3, fl__pat_llama3},
        {FL_TEXT_SPLIT_CL100K, fl__pat_cl100k},
        {FL_TEXT_SPLIT_QWEN2, fl__pat_qwen2},
        {FL_TEXT_SPLIT_O200K, fl__pat_o200k},
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
         fl__pat_gpt2},
    };
    if (literal && n > FL__PAT_LONGEST)
        return fl_fail("%s: the pattern is too long: got %lld bytes, expected at most %d", where,
                       (long long)n,
                       FL__PAT_LONGEST), NULL;
    fl_text_pattern *p = fl_heap_alloc(sizeof *p);
    if (!p) return NULL;
    p->cls = fl_text_classes();
    for (size_t i = 0; !literal && i < sizeof known / sizeof known[0]; i++)
        if ((size_t)n == strlen(known[i].text) && !memcmp(text, known[i].text, (size_t)n))
            p->split = known[i].split;
    bool ok = true;
    if (literal) {
        p->text = fl_heap_alloc((size_t)n + 1);
        ok = p->text != NULL;
        if (ok) memcpy(p->text, text, (size_t)n), p->n = n;
    } else if (!p->split) ok = fl__pat_compile(p, text, n, where);
    if (ok) return p;
    fl_text_pattern_free(p);
    return NULL;
}

FL_API fl_text_pattern *fl_text_pattern_of(const fl_text_tree *t, const char *where) {
    int64_t n;
    const char *text = fl_text_tree_string(t, "String", &n, NULL), *regex = NULL;
    if (!text) regex = fl_text_tree_string(t, "Regex", &n, NULL);
    if (text || regex) return fl_text_pattern_new(text ? text : regex, n, text != NULL, where);
    fl_fail("%s: a pattern has neither \"String\" nor \"Regex\"", where);
    return NULL;
}

FL_API void fl_text_pattern_free(fl_text_pattern *p) {
    if (!p) return;
#ifdef FL_USE_PCRE2
    pcre2_code_free(p->code);
#endif
    fl_heap_free(p->text);
    fl_heap_free(p);
}

FL_API int fl_text_matches_next(fl_text_matches *m) {
    if (!fl_given(m, "fl_text_matches_next", "the matches")) return -1;
    const fl_text_pattern *p = m->pattern;
    if (m->at >= m->n) return 0;
    if (p->split) m->begin = m->at, m->end = p->split(p->cls, m->s, m->n, m->at);
    else if (!p->text) return fl__pat_next(m);
    else {
        const char *q = m->s + m->at, *last = m->s + m->n - p->n; /* last possible start of a match */
        while (p->n && q <= last && (q = memchr(q, p->text[0], (size_t)(last - q + 1))) &&
               memcmp(q, p->text, (size_t)p->n))
            q++;
        if (!p->n || !q || q > last) return 0;
        m->begin = q - m->s, m->end = m->begin + p->n;
    }
    m->at = m->end;
    return 1;
}

#endif
#endif

/* MIT licence: see LICENSE. */
