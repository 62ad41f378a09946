/* fl/text/tokenizers/split.h - pre-tokenizers: splitting text into pieces before the model */
#ifndef FL_TEXT_TOKENIZERS_SPLIT_H
#define FL_TEXT_TOKENIZERS_SPLIT_H
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps of a "pre_tokenizer": BertPreTokenizer, ByteLevel (must be last), CharDelimiterSplit, Digits,
   FixedLength, Metaspace, Punctuation, Split, UnicodeScripts, Whitespace, WhitespaceSplit, Sequence; and
   fl's own SentencePiece, which splits before U+2581. Returns false after fl_fail. */
FL_API bool fl_text_splits_of(fl_text_steps *out, const fl_text_tree *t, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_SPLIT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_SPLIT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_SPLIT_IMPL
#define FL_TEXT_TOKENIZERS_SPLIT_IMPL
#include "pattern.h"
#include "../unicode.h"
#include "../utf8.h"
#include <string.h>

/* ---- behaviours: how matches and the text between them become pieces ---- */

typedef enum fl__split_behaviour {
    FL__SPLIT_REMOVED, FL__SPLIT_ISOLATED, FL__SPLIT_PREVIOUS, FL__SPLIT_NEXT, FL__SPLIT_CONTIGUOUS
} fl__split_behaviour;

typedef struct fl__split_parts {
    fl_text_work *w;
    fl__split_behaviour behaviour;
    bool invert, there, match; /* there: a part is pending; match: the pending part is a match */
    int64_t begin, end;
} fl__split_parts;

static bool fl__split_flush(fl__split_parts *p) {
    const bool cut = p->there && p->begin < p->end;
    p->there = false;
    return !cut || fl_text_work_cut(p->w, p->begin, p->end, -1);
}

/* Adds the next part of a piece. */
static bool fl__split_part(fl__split_parts *p, int64_t begin, int64_t end, bool match) {
    match ^= p->invert;
    if (begin == end || (match && p->behaviour == FL__SPLIT_REMOVED)) return true;
    if (p->behaviour <= FL__SPLIT_ISOLATED) return fl_text_work_cut(p->w, begin, end, -1);
    const bool joins = p->there && (p->behaviour == FL__SPLIT_CONTIGUOUS ? match == p->match
                                    : p->behaviour == FL__SPLIT_PREVIOUS ? match && !p->match
                                                                         : p->match && !match);
    if (!joins && !fl__split_flush(p)) return false;
    if (!joins) p->begin = begin;
    p->end = end, p->match = match, p->there = true;
    return true;
}

/* ---- character classes ---- */

typedef bool (*fl__split_is)(int32_t c, unsigned cls);

static bool fl__split_is_space(int32_t c, unsigned cls) {
    (void)c;
    return (cls & FL_TEXT_WHITE_SPACE) != 0;
}

static bool fl__split_is_digit(int32_t c, unsigned cls) {
    (void)c;
    return FL_TEXT_IS(cls, FL_TEXT_NUMBERS);
}

static bool fl__split_is_punctuation(int32_t c, unsigned cls) {
    return FL_TEXT_IS(cls, FL_TEXT_PUNCTUATION) ||
           (c < 128 && c > 32 && !FL_TEXT_IS(cls, FL_TEXT_LETTERS | FL_TEXT_NUMBERS) && c != 127);
}

/* \w: includes enclosed letters, which are symbols but alphabetic, and the joiners. */
static bool fl__split_is_word(int32_t c, unsigned cls) {
    return FL_TEXT_IS(cls, FL_TEXT_LETTERS | FL_TEXT_MARKS | 1u << FL_TEXT_ND | 1u << FL_TEXT_NL |
                               1u << FL_TEXT_PC) ||
           (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
           c == 0x200d;
}

/* Splits at characters of a class; each is a match. */
static bool fl__split_chars(fl_text_work *w, fl_text_piece piece, fl__split_is is, fl__split_behaviour b) {
    fl__split_parts p = {.w = w, .behaviour = b};
    const uint8_t *cls = fl_text_classes();
    int64_t begin = piece.begin;
    int len;
    bool ok = true;
    for (int64_t i = piece.begin; ok && i < piece.end; i += len) {
        const int32_t c = fl_text_utf8_decode(w->p + i, piece.end - i, &len);
        if (c < 0 || !is(c, cls[c])) continue;
        ok = fl__split_part(&p, begin, i, false) && fl__split_part(&p, i, i + len, true);
        begin = i + len;
    }
    return ok && fl__split_part(&p, begin, piece.end, false) && fl__split_flush(&p);
}

static bool fl__split_space_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    return fl__split_chars(w, p, fl__split_is_space, FL__SPLIT_REMOVED);
}

static bool fl__split_digits_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    return fl__split_chars(w, p, fl__split_is_digit,
                           fl_text_tree_true(s->options, "individual_digits", false)
                               ? FL__SPLIT_ISOLATED
                               : FL__SPLIT_CONTIGUOUS);
}

static bool fl__split_punctuation_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    return fl__split_chars(w, p, fl__split_is_punctuation, (fl__split_behaviour)s->value);
}

/* Splits at white space and isolates punctuation characters. */
static bool fl__split_bert(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, false, fl__split_space_one) &&
           fl_text_work_each(s, w, false, fl__split_punctuation_one);
}

/* Splits into runs of word characters and of others; removes white space. */
static bool fl__split_words_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    return fl__split_chars(w, p, fl__split_is_word, FL__SPLIT_CONTIGUOUS);
}

static bool fl__split_words(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, false, fl__split_space_one) &&
           fl_text_work_each(s, w, false, fl__split_words_one);
}

/* Splits where the script changes; Hiragana and Katakana count as Han, characters without
   a script as the one before. */
static bool fl__split_scripts_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    const char *han = fl_text_script(0x4e00), *last = NULL, *none = fl_text_script(-1);
    int64_t begin = p.begin;
    int len;
    bool ok = true;
    for (int64_t i = p.begin; ok && i < p.end; i += len) {
        const int32_t c = fl_text_utf8_decode(w->p + i, p.end - i, &len);
        const char *script = c == ' ' ? none : fl_text_script(c);
        if (c == 0x30fc || script == fl_text_script(0x3042) || script == fl_text_script(0x30a2)) script = han;
        if (script == none) continue;
        if (last && last != script && i > begin) ok = fl_text_work_cut(w, begin, i, -1), begin = i;
        last = script;
    }
    return ok && (begin == p.end || fl_text_work_cut(w, begin, p.end, -1));
}

/* ---- lengths ---- */

static bool fl__split_length_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    int64_t begin = p.begin, chars = 0;
    int len;
    bool ok = true;
    for (int64_t i = p.begin; ok && i < p.end; i += len) {
        fl_text_utf8_decode(w->p + i, p.end - i, &len);
        if (++chars % s->value) continue;
        ok = fl_text_work_cut(w, begin, i + len, -1);
        begin = i + len;
    }
    return ok && (begin == p.end || fl_text_work_cut(w, begin, p.end, -1));
}

static bool fl__split_make_length(fl_text_step *s, const char *where) {
    s->value = fl_text_tree_int(s->options, "length", 5);
    return s->value > 0 ||
           fl_fail("%s: FixedLength: length must be > 0: got %lld", where, (long long)s->value);
}

/* ---- patterns ---- */

/* Splits at the matches of the pattern inside the piece. */
static bool fl__split_pattern_one(const fl_text_step *s, fl_text_work *w, fl_text_piece piece) {
    fl__split_parts p = {.w = w, .behaviour = (fl__split_behaviour)s->value,
                         .invert = fl_text_tree_true(s->options, "invert", false)};
    fl_text_matches m = {.pattern = s->pattern, .s = w->p + piece.begin, .n = piece.end - piece.begin,
                         .left = &w->left};
    int64_t at = piece.begin;
    int found = 0;
    bool ok = true;
    while (ok && (found = fl_text_matches_next(&m)) > 0) {
        ok = fl__split_part(&p, at, piece.begin + m.begin, false) &&
             fl__split_part(&p, piece.begin + m.begin, piece.begin + m.end, true);
        at = piece.begin + m.end;
    }
    fl_text_matches_end(&m);
    return ok && found == 0 && fl__split_part(&p, at, piece.end, false) && fl__split_flush(&p);
}

static bool fl__split_make_behaviour(fl_text_step *s, const char *where) {
    static const char *const name[] = {"Removed", "Isolated", "MergedWithPrevious",
                                       "MergedWithNext", "Contiguous"};
    const char *text = fl_text_tree_string(s->options, "behavior", NULL, "Isolated");
    for (int i = 0; i < 5; i++)
        if (!strcmp(text, name[i])) return s->value = i, true;
    return fl_fail("%s: unknown split behavior \"%.40s\"; known: Removed, Isolated, MergedWithPrevious, "
                   "MergedWithNext, Contiguous", where, text);
}

static bool fl__split_make_pattern(fl_text_step *s, const char *where) {
    if (!fl__split_make_behaviour(s, where)) return false;
    return (s->pattern = fl_text_pattern_of(fl_text_tree_at(s->options, "pattern"), where)) != NULL;
}

static bool fl__split_make_delimiter(fl_text_step *s, const char *where) {
    int64_t n;
    const char *text = fl_text_tree_string(s->options, "delimiter", &n, NULL);
    s->pattern = text ? fl_text_pattern_new(text, n, true, where) : NULL;
    return s->pattern || fl_fail("%s: CharDelimiterSplit has no \"delimiter\"", where);
}

/* ---- bytes ---- */

/* Prepends `mark` to a piece; it stands for the first character. */
static bool fl__split_prepend(fl_text_work *w, fl_text_piece p, const char *mark, int64_t n) {
    int len = 1;
    if (p.end == p.begin) return true;
    fl_text_utf8_decode(w->p + p.begin, p.end - p.begin, &len);
    return fl_text_work_put(w, mark, n, fl_text_work_from(w, p.begin),
                            fl_text_work_to(w, p.begin + (uint32_t)len - 1));
}

static bool fl__split_spaced_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    return (w->p[p.begin] == ' ' || fl__split_prepend(w, p, " ", 1)) &&
           fl_text_work_copy(w, p.begin, p.end);
}

static bool fl__split_bytes(const fl_text_step *s, fl_text_work *w) {
    const bool spaced = fl_text_tree_true(s->options, "add_prefix_space", true);
    return (!spaced || fl_text_work_each(s, w, true, fl__split_spaced_one)) &&
           (!s->pattern || fl_text_work_each(s, w, false, fl__split_pattern_one));
}

static bool fl__split_make_bytes(fl_text_step *s, const char *where) {
    if (!fl_text_tree_true(s->options, "use_regex", true)) return true;
    s->pattern = fl_text_pattern_new(FL_TEXT_SPLIT_GPT2, sizeof FL_TEXT_SPLIT_GPT2 - 1, false, where);
    return s->pattern != NULL;
}

/* ---- SentencePiece's spaces ---- */

typedef struct fl__split_mark {
    const char *text; /* borrowed */
    int64_t n;
    int scheme; /* 0 never, 1 first, 2 always */
} fl__split_mark;

static bool fl__split_metaspace_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    const fl__split_mark *m = s->data;
    const bool has = w->p[p.begin] == ' ' ||
                     (p.end - p.begin >= m->n && !memcmp(w->p + p.begin, m->text, (size_t)m->n));
    bool ok = has || !(m->scheme == 2 || (m->scheme == 1 && fl_text_work_from(w, p.begin) == 0)) ||
              fl__split_prepend(w, p, m->text, m->n);
    for (int64_t i = p.begin, end; ok && i < p.end; i = end) {
        const char *space = memchr(w->p + i, ' ', (size_t)(p.end - i));
        end = space ? space - w->p : p.end;
        ok = fl_text_work_copy(w, i, end);
        if (ok && space)
            ok = fl_text_work_put(w, m->text, m->n, fl_text_work_from(w, end),
                                  fl_text_work_to(w, end)),
            end++;
    }
    return ok;
}

static bool fl__split_metaspace(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, true, fl__split_metaspace_one) &&
           (!s->pattern || fl_text_work_each(s, w, false, fl__split_pattern_one));
}

/* Older files have "add_prefix_space" instead of "prepend_scheme". */
static bool fl__split_make_metaspace(fl_text_step *s, const char *where) {
    fl__split_mark *m = s->data = fl_heap_alloc(sizeof *m);
    const bool prefix = fl_text_tree_true(s->options, "add_prefix_space", true);
    const char *scheme = fl_text_tree_string(s->options, "prepend_scheme", NULL, prefix ? "always" : "never");
    if (!m) return false;
    m->text = fl_text_tree_string(s->options, "replacement", &m->n, "\xe2\x96\x81");
    m->scheme = !strcmp(scheme, "always") ? 2 : !strcmp(scheme, "first") ? 1 : 0;
    if (!m->scheme && strcmp(scheme, "never"))
        return fl_fail("%s: Metaspace: unknown prepend_scheme \"%.40s\"; known: always, first, never", where,
                       scheme);
    if (!fl_text_tree_true(s->options, "split", true)) return true;
    return (s->pattern = fl_text_pattern_new(m->text, m->n, true, where)) != NULL;
}

/* fl's SentencePiece: splits before each mark that does not follow one, for vocabularies whose pieces have
   marks only at the start. */
static bool fl__split_marks_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    static const char mark[] = "\xe2\x96\x81";
    int64_t begin = p.begin;
    bool ok = true, before = true;
    for (int64_t i = p.begin; ok && i < p.end;) {
        const bool is = w->p[i] == mark[0] && i + 3 <= p.end && !memcmp(w->p + i, mark, 3);
        if (is && !before) ok = fl_text_work_cut(w, begin, i, -1), begin = i;
        before = is, i += is ? 3 : 1;
    }
    return ok && (begin == p.end || fl_text_work_cut(w, begin, p.end, -1));
}

static const fl_text_kind fl__split_kinds[] = {
    {"BertPreTokenizer", .run = fl__split_bert, .value = FL__SPLIT_ISOLATED},
    {"ByteLevel", .run = fl__split_bytes, .make = fl__split_make_bytes, .value = FL__SPLIT_ISOLATED},
    {"CharDelimiterSplit", .cut = fl__split_pattern_one, .make = fl__split_make_delimiter},
    {"Digits", .cut = fl__split_digits_one},
    {"FixedLength", .cut = fl__split_length_one, .make = fl__split_make_length},
    {"Metaspace", .run = fl__split_metaspace, .make = fl__split_make_metaspace, .value = FL__SPLIT_NEXT},
    {"Punctuation", .cut = fl__split_punctuation_one, .make = fl__split_make_behaviour},
    {"SentencePiece", .cut = fl__split_marks_one},
    {"Split", .cut = fl__split_pattern_one, .make = fl__split_make_pattern},
    {"UnicodeScripts", .cut = fl__split_scripts_one},
    {"Whitespace", .run = fl__split_words},
    {"WhitespaceSplit", .cut = fl__split_space_one},
    {0},
};

FL_API bool fl_text_splits_of(fl_text_steps *out, const fl_text_tree *t, const char *where) {
    if (!fl_given(out, "fl_text_splits_of", "the steps")) return false;
    bool ok = fl_text_steps_of(out, t, "pretokenizers", fl__split_kinds, where);
    for (int64_t i = 0; ok && i + 1 < out->n; i++)
        if (out->v[i].kind->run == fl__split_bytes)
            ok = fl_fail("%s: ByteLevel must be the last pre-tokenizer", where);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
