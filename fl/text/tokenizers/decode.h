/* fl/text/tokenizers/decode.h - decoders: from tokens to text */
#ifndef FL_TEXT_TOKENIZERS_DECODE_H
#define FL_TEXT_TOKENIZERS_DECODE_H
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps of a "decoder": ByteLevel, WordPiece, Metaspace, BPEDecoder, CTC, Replace, Fuse, Strip,
   ByteFallback, Sequence. bytes: tokens are bytes already and ByteLevel has no effect. Each token is a piece
   of the work. Returns false after fl_fail. */
FL_API bool fl_text_decoders_of(fl_text_steps *out, const fl_text_tree *t, bool bytes, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_DECODE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_DECODE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_DECODE_IMPL
#define FL_TEXT_TOKENIZERS_DECODE_IMPL
#include "bytes.h"
#include "../utf8.h"
#include <string.h>

static bool fl__dec_put(fl_text_work *w, const char *text, int64_t n) {
    return fl_text_work_put(w, text, n, 0, 0);
}

/* Converts a token to bytes if each of its characters stands for a byte. */
static bool fl__dec_bytes_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    int len;
    bool all = true, ok = true;
    for (int64_t i = p.begin; all && i < p.end; i += len)
        all = fl_text_char_byte(fl_text_utf8_decode(w->p + i, p.end - i, &len)) >= 0;
    for (int64_t i = p.begin; ok && i < p.end; i += len) {
        const int32_t c = fl_text_utf8_decode(w->p + i, p.end - i, &len);
        const char b = (char)fl_text_char_byte(c);
        ok = all ? fl__dec_put(w, &b, 1) : fl_text_work_copy(w, i, i + len);
    }
    return ok;
}

static bool fl__dec_fuse(const fl_text_step *s, fl_text_work *w) {
    (void)s;
    for (int64_t i = 0; i < w->n_pieces; i++)
        if (!fl_text_work_copy(w, w->piece[i].begin, w->piece[i].end)) return false;
    const bool ok = fl_text_work_cut(w, 0, fl_text_work_next(w), -1);
    fl_text_work_swap(w);
    fl_text_work_swap_pieces(w);
    return ok;
}

/* A replacement. */
typedef struct fl__dec_replacement {
    const char *from, *to;
} fl__dec_replacement;

/* Appends piece p after the replacements, a list that ends with `from` NULL. */
static bool fl__dec_replaced(fl_text_work *w, fl_text_piece p, const fl__dec_replacement *swap) {
    const char *s = w->p + p.begin;
    bool ok = true;
    for (int64_t n = p.end - p.begin, len; ok && n > 0; s += len, n -= len) {
        const fl__dec_replacement *k = swap;
        while (k->from && (!*k->from || (int64_t)strlen(k->from) > n || memcmp(s, k->from, strlen(k->from))))
            k++;
        len = k->from ? (int64_t)strlen(k->from) : 1;
        ok = fl__dec_put(w, k->from ? k->to : s, k->from ? (int64_t)strlen(k->to) : 1);
    }
    return ok;
}

static bool fl__dec_swap_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    return fl__dec_replaced(w, p, s->data);
}

/* transformers' clean_up_tokenization: the replacements are applied in this order, each to a whole token. */
static const fl__dec_replacement fl__dec_cleanup[] = {
    {" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
    {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}, {NULL, NULL},
};

static bool fl__dec_clean(const fl_text_step *s, fl_text_work *w) {
    bool ok = true;
    if (!fl_text_tree_true(s->options, "cleanup", true)) return true;
    for (const fl__dec_replacement *k = fl__dec_cleanup; ok && k->from; k++) {
        fl__dec_replacement one[2] = {*k, {NULL, NULL}};
        ok = fl_text_work_each(&(fl_text_step){.data = one}, w, true, fl__dec_swap_one);
    }
    return ok;
}

/* Does the piece start with `text`, n bytes? */
static bool fl__dec_starts_with(const fl_text_work *w, fl_text_piece p, const char *text, int64_t n) {
    return p.end - p.begin >= n && !memcmp(w->p + p.begin, text, (size_t)n);
}

/* Removes "##" from continuations; other pieces but the first get a space in front. */
static bool fl__dec_wordpiece_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    int64_t n;
    const char *prefix = fl_text_tree_string(s->options, "prefix", &n, "##");
    const bool inner = w->at && fl__dec_starts_with(w, p, prefix, n);
    return (!w->at || inner || fl__dec_put(w, " ", 1)) &&
           fl_text_work_copy(w, p.begin + (inner ? n : 0), p.end);
}

static bool fl__dec_wordpiece(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, true, fl__dec_wordpiece_one) && fl__dec_clean(s, w);
}

/* Replaces the mark by a space; the first token loses its leading space if one was prepended. */
static bool fl__dec_metaspace_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    int64_t n;
    const char *mark = fl_text_tree_string(s->options, "replacement", &n, "\xe2\x96\x81");
    const bool prepends = fl_text_tree_true(s->options, "add_prefix_space", true) &&
                          strcmp(fl_text_tree_string(s->options, "prepend_scheme", NULL, "always"), "never");
    if (!w->at && prepends && fl__dec_starts_with(w, p, mark, n)) p.begin += (uint32_t)n;
    return fl__dec_replaced(w, p, (fl__dec_replacement[]){{mark, " "}, {NULL, NULL}});
}

/* Replaces the end-of-word suffix by a space, for the last token by nothing. */
static bool fl__dec_bpe_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    const char *suffix = fl_text_tree_string(s->options, "suffix", NULL, "</w>");
    const fl__dec_replacement list[] = {{suffix, w->at + 1 < w->n_pieces ? " " : ""}, {NULL, NULL}};
    return fl__dec_replaced(w, p, list);
}

/* Merges repeated tokens and removes blanks. */
static bool fl__dec_ctc(const fl_text_step *s, fl_text_work *w) {
    const bool clean = fl_text_tree_true(s->options, "cleanup", true);
    const char *bar = fl_text_tree_string(s->options, "word_delimiter_token", NULL, "|");
    const fl__dec_replacement swap[3] = {{fl_text_tree_string(s->options, "pad_token", NULL, "<pad>"), ""},
                                         {clean ? bar : NULL, " "},
                                         {NULL, NULL}};
    bool ok = true;
    for (int64_t i = 0; ok && i < w->n_pieces; i++) {
        const fl_text_piece p = w->piece[i], before = w->piece[i ? i - 1 : 0];
        const int64_t at = fl_text_work_next(w), n = before.end - before.begin;
        if (i && p.end - p.begin == n && fl__dec_starts_with(w, p, w->p + before.begin, n)) continue;
        ok = fl__dec_replaced(w, p, swap);
        ok = ok && (at == fl_text_work_next(w) || fl_text_work_cut(w, at, fl_text_work_next(w), -1));
    }
    fl_text_work_swap(w);
    fl_text_work_swap_pieces(w);
    return ok && fl__dec_clean(s, w);
}

static bool fl__dec_replace_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    const fl_text_tree *pattern = fl_text_tree_at(s->options, "pattern");
    const fl__dec_replacement list[] = {{fl_text_tree_string(pattern, "String", NULL, ""),
                                         fl_text_tree_string(s->options, "content", NULL, "")}, {NULL, NULL}};
    return fl__dec_replaced(w, p, list);
}

static bool fl__dec_make_replace(fl_text_step *s, const char *where) {
    return fl_text_tree_string(fl_text_tree_at(s->options, "pattern"), "String", NULL, NULL) ||
           fl_fail("%s: Replace in a decoder needs a string pattern", where);
}

/* Strips up to `start` and `stop` characters `content` from the ends of each token. */
static bool fl__dec_strip_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    int64_t n, start = fl_text_tree_int(s->options, "start", 0),
               stop = fl_text_tree_int(s->options, "stop", 0);
    const char *c = fl_text_tree_string(s->options, "content", &n, " ");
    for (; n && start-- > 0 && fl__dec_starts_with(w, p, c, n);) p.begin += (uint32_t)n;
    for (; n && stop-- > 0 && p.end - p.begin >= n && !memcmp(w->p + p.end - n, c, (size_t)n);)
        p.end -= (uint32_t)n;
    return fl_text_work_cut(w, p.begin, p.end, -1);
}

static int fl__dec_hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of "<0x0A>"; -1 for other tokens. */
static int fl__dec_byte(const fl_text_work *w, fl_text_piece p) {
    const char *s = w->p + p.begin;
    if (p.end - p.begin != 6 || memcmp(s, "<0x", 3) || s[5] != '>' || fl__dec_hex(s[3]) < 0 ||
        fl__dec_hex(s[4]) < 0)
        return -1;
    return fl__dec_hex(s[3]) * 16 + fl__dec_hex(s[4]);
}

/* Merges consecutive byte tokens to one token if they are UTF-8, else each becomes U+FFFD. */
static bool fl__dec_fallback(const fl_text_step *s, fl_text_work *w) {
    (void)s;
    bool ok = true;
    for (int64_t i = 0, k; ok && i < w->n_pieces; i = k) {
        const int64_t at = fl_text_work_next(w);
        for (k = i; ok && k < w->n_pieces && fl__dec_byte(w, w->piece[k]) >= 0; k++) {
            const char b = (char)fl__dec_byte(w, w->piece[k]);
            ok = fl__dec_put(w, &b, 1);
        }
        if (k == i) {
            ok = fl_text_work_copy(w, w->piece[i].begin, w->piece[i].end) &&
                 fl_text_work_cut(w, at, fl_text_work_next(w), -1);
            k++;
            continue;
        }
        fl_text_changed *next = &w->text_[w->text_at_];
        if (ok && fl_text_utf8_valid_length(next->p + at, next->n - at) < next->n - at) {
            next->n = at;
            for (int64_t m = i; ok && m < k; m++) ok = fl__dec_put(w, "\xef\xbf\xbd", 3);
        }
        ok = ok && fl_text_work_cut(w, at, fl_text_work_next(w), -1);
    }
    fl_text_work_swap(w);
    fl_text_work_swap_pieces(w);
    return ok;
}

static const fl_text_kind fl__dec_kinds[] = {
    {.type = "ByteLevel"}, /* no effect, if tokens are bytes */
    {"ByteLevel", .write = fl__dec_bytes_one},
    {"WordPiece", .run = fl__dec_wordpiece},
    {"Metaspace", .write = fl__dec_metaspace_one},
    {"BPEDecoder", .write = fl__dec_bpe_one},
    {"CTC", .run = fl__dec_ctc},
    {"Replace", .write = fl__dec_replace_one, .make = fl__dec_make_replace},
    {"Fuse", .run = fl__dec_fuse},
    {"Strip", .cut = fl__dec_strip_one},
    {"ByteFallback", .run = fl__dec_fallback},
    {0},
};

FL_API bool fl_text_decoders_of(fl_text_steps *out, const fl_text_tree *t, bool bytes, const char *where) {
    return fl_text_steps_of(out, t, "decoders", fl__dec_kinds + !bytes, where);
}

#endif
#endif

/* MIT licence: see LICENSE. */
