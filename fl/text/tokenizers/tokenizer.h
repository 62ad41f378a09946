/* fl/text/tokenizers/tokenizer.h - the tokenizer interface: encode, decode, stream, truncate, pad, save */
#ifndef FL_TEXT_TOKENIZERS_TOKENIZER_H
#define FL_TEXT_TOKENIZERS_TOKENIZER_H
#include "../../data/file.h"
#include "../../data/text.h"
#include "../dictionary.h"
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tokenizer has the stages of tokenizer.json: added tokens are cut out of the text; a normalizer rewrites
   the rest; a pre-tokenizer splits it into pieces; a model converts each piece to ids; a post-processor adds
   special tokens; a decoder converts ids back to text. Any number of threads may use one at the same time.
   Nothing here calls the error handler. */
typedef struct fl_text_tokenizer fl_text_tokenizer;

/* The encoding of a text. Starts zeroed, may be reused; free it with fl_text_encoding_free. */
typedef struct fl_text_encoding {
    int64_t n;
    int32_t *id;
    int64_t *begin, *end; /* byte range in the text; 0, 0 for tokens that were inserted */
    uint8_t *type;        /* segment: 0 first text, 1 second, unless the post-processor says otherwise */
    uint8_t *special;     /* 1: inserted by the post-processor or by padding */
    uint8_t *mask;        /* 0: padding */
    int64_t replaced;     /* number of ill-formed UTF-8 sequences that became U+FFFD */
    struct fl_text_encoding *overflow; /* what truncation cut off, in parts that overlap by stride */
    int64_t n_overflow;
    int64_t cap_[6], overflow_cap_;
} fl_text_encoding;
FL_API void fl_text_encoding_free(fl_text_encoding *e);

typedef struct fl_text_encode_opts {
    fl_opts_guard guard_;
    const char *pair; /* a second text; NULL: none */
    int64_t n_pair;   /* its bytes */
    bool plain;       /* without special tokens */
    bool strict;      /* ill-formed UTF-8 is an error with its offset */
    char _end;
} fl_text_encode_opts;
/* Encodes n bytes. Byte-level tokenizers accept any bytes; for others ill-formed UTF-8 becomes U+FFFD. A
   character that is not in the vocabulary is an error with offset and line, unless there is an unknown
   token. Returns false after fl_fail. */
#define fl_text_encode(...) FL__TEXT_ENCODE(__VA_ARGS__, ._end = 0)
#define FL__TEXT_ENCODE(t, text, n, out, ...) \
    fl_text_encode_opt(t, text, n, out, FL_LITERAL(fl_text_encode_opts, __VA_ARGS__))
FL_API bool fl_text_encode_opt(const fl_text_tokenizer *t, const char *text, int64_t n, fl_text_encoding *out,
                               fl_text_encode_opts o);
/* Encodes `count` texts in parallel; padding goes to the longest of them. Ignores the options pair and
   n_pair. Returns false after fl_fail. */
FL_API bool fl_text_encode_batch(const fl_text_tokenizer *t, const char *const *text, const int64_t *n,
                                 int64_t count, fl_text_encoding *out, fl_text_encode_opts o);

/* Appends the text of n ids to out, without special tokens unless keep_special. Returns false after fl_fail,
   also if an id is out of range. */
FL_API bool fl_text_decode(const fl_text_tokenizer *t, const int32_t *id, int64_t n, bool keep_special,
                           fl_data_text *out);
/* Incremental decoding: gives text in whole characters that no later id changes. Starts {.tokenizer = t}. */
typedef struct fl_text_stream {
    const fl_text_tokenizer *tokenizer;
    bool keep_special;
    /* private */
    int32_t *id_;
    int64_t n_, cap_, prefix_, given_; /* ids; ids whose text was returned; bytes of it */
    fl_data_text text_;
} fl_text_stream;
/* Adds an id; returns the new text, *n bytes, maybe none, valid until the next call. NULL after fl_fail. */
FL_API const char *fl_text_stream_add(fl_text_stream *s, int32_t id, int64_t *n);
/* Returns the text held back; the stream may then be reused. NULL after fl_fail. */
FL_API const char *fl_text_stream_end(fl_text_stream *s, int64_t *n);
FL_API void fl_text_stream_free(fl_text_stream *s);

/* Number of ids, 0 to size - 1; some may have no token. */
FL_API int64_t fl_text_vocab_size(const fl_text_tokenizer *t);
/* The bytes of a token, as in the text (for byte-level tokenizers the decoded bytes); NULL if it has none. */
FL_API const char *fl_text_token_of(const fl_text_tokenizer *t, int32_t id, int64_t *n);
/* The id of a token such as "</s>"; -1: none. */
FL_API int32_t fl_text_id_of(const fl_text_tokenizer *t, const char *token, int64_t n);
/* Is the id a special token, which decoding leaves out? */
FL_API bool fl_text_is_special(const fl_text_tokenizer *t, int32_t id);
/* A hash of the whole tokenizer, stored in token files to identify it. Returns 0 after fl_fail. */
FL_API uint64_t fl_text_tokenizer_hash(const fl_text_tokenizer *t);

/* An added token: cut out of the text before all other stages. */
typedef struct fl_text_added_token {
    const char *text;
    int64_t n;
    int32_t id;      /* -1: its id in the vocabulary, or a new one */
    bool special;    /* left out by decoding */
    bool single_word, lstrip, rstrip; /* matches whole words only; includes white space before, after */
    bool normalized;  /* matched in the normalised text */
    bool unreachable; /* never matched in text: only templates and callers insert it */
} fl_text_added_token;
/* Reads an object of "added_tokens" in tokenizer.json and borrows its text (NULL: it has no "content").
   *id is its "id", unchecked, or -1. */
FL_API fl_text_added_token fl_text_added_of(const fl_text_tree *e, int64_t *id);
/* Adds tokens; call it before other threads use the tokenizer. Returns false after fl_fail. */
FL_API bool fl_text_tokenizer_add(fl_text_tokenizer *t, const fl_text_added_token *added, int64_t n);

typedef enum fl_text_truncate {
    FL_TEXT_LONGEST_FIRST,
    FL_TEXT_ONLY_FIRST,
    FL_TEXT_ONLY_SECOND
} fl_text_truncate;
typedef struct fl_text_truncation {
    int64_t max_length; /* including special tokens; 0: no truncation */
    int64_t stride;     /* overlap of consecutive parts in tokens */
    fl_text_truncate strategy;
    bool left; /* cuts off the beginning instead of the end */
} fl_text_truncation;
typedef struct fl_text_padding {
    bool on;
    int64_t length;   /* 0: the longest of a batch */
    int64_t multiple; /* rounded up to a multiple of this; 0: not */
    bool left;
    int32_t id;
    uint8_t type;
    const char *token; /* its text in saved files, copied; NULL: that of the id */
} fl_text_padding;
/* Sets truncation. Returns false after fl_fail. */
FL_API bool fl_text_tokenizer_truncate(fl_text_tokenizer *t, fl_text_truncation o);
/* Sets padding. Returns false after fl_fail. */
FL_API bool fl_text_tokenizer_pad(fl_text_tokenizer *t, fl_text_padding o);

/* >>models: interface of models, which convert pieces to ids */

typedef struct fl_text_model fl_text_model;
struct fl_text_model {
    const char *type;          /* "BPE" */
    fl_text_dictionary *vocab; /* owned by the model */
    bool cached;               /* the tokens of short pieces are cached */
    /* Adds the tokens of [begin, end) of w->p with fl_text_work_token. */
    bool (*encode)(const fl_text_model *m, fl_text_work *w, uint32_t begin, uint32_t end);
    /* Writes the settings after "type", each with a leading comma, and the vocabulary as JSON. bytes: tokens
       are bytes, written as characters. */
    bool (*put)(const fl_text_model *m, bool bytes, fl_data_text *out);
    void (*free)(fl_text_model *m); /* frees m except its vocab; NULL: fl_heap_free(m) */
    void (*memo_free)(void *memo);  /* frees what encode stores in w->memo; NULL: nothing */
};
/* For constructors of models: allocates `size` bytes that begin with m, the rest 0. Takes ownership of the
   vocabulary, also on failure, for example if it is NULL. */
FL_API void *fl_text_model_new(size_t size, fl_text_model m);
FL_API void fl_text_model_free(fl_text_model *m); /* NULL is fine */
/* A tokenizer from a model, which it takes over (also on failure), and a JSON object with the keys
   "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "truncation", "padding" of
   tokenizer.json, all optional. added: further added tokens; where: prefix of errors. NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_tokenizer_new(fl_text_model *m, const char *json,
                                                const fl_text_added_token *added, int64_t n_added,
                                                const char *where);
/* The same from a parsed object, which it takes over. */
FL_API fl_text_tokenizer *fl_text_tokenizer_of(fl_text_model *m, fl_text_tree *pipeline,
                                               const fl_text_added_token *added, int64_t n_added,
                                               const char *where);
FL_API void fl_text_tokenizer_free(fl_text_tokenizer *t); /* NULL is fine */
/* Is the pipeline byte-level ("ByteLevel")? */
FL_API bool fl_text_pipeline_bytes(const fl_text_tree *pipeline);
/* Appends the tokenizer as tokenizer.json to out. Returns false after fl_fail. */
FL_API bool fl_text_tokenizer_json(const fl_text_tokenizer *t, fl_data_text *out);
/* Writes tokenizer.json. Returns false after fl_fail. */
FL_API bool fl_text_tokenizer_save(const fl_text_tokenizer *t, const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_TOKENIZER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_TOKENIZER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_TOKENIZER_IMPL
#define FL_TEXT_TOKENIZERS_TOKENIZER_IMPL
#include "bytes.h"
#include "decode.h"
#include "normalize.h"
#include "../pairs.h"
#include "split.h"
#include "trie.h"
#include "../unicode.h"
#include "../utf8.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { FL__TOK_A = -1, FL__TOK_B = -2 }; /* placeholders of the texts among the ids of a template */

typedef struct fl__tok_item {
    int32_t id;
    uint8_t type;
} fl__tok_item;

typedef struct fl__tok_template {
    fl__tok_item *v;
    int64_t n, cap, specials;
} fl__tok_template;

typedef struct fl__tok_work {
    fl_text_work w;
    struct fl__tok_work *next;
    fl_data_text clean; /* the text after replacement by U+FFFD */
    fl_text_piece *fix; /* ends of replacements: in the clean text, in the original */
    int64_t n_fix, fix_cap;
} fl__tok_work;

struct fl_text_tokenizer {
    fl_text_model *model;
    fl_text_tree *pipeline;
    fl_text_steps normalize, split, decode;
    fl_text_added_token *added;
    int64_t n_added, added_cap, size;
    fl_data_arena text;
    fl_text_dictionary *added_texts; /* text -> index in `added` */
    fl_text_pairs added_ids;         /* (id, 0) -> index in `added` */
    fl_text_trie raw, normal; /* tries of added tokens, values are indices in `added` */
    fl__tok_template single, pair;
    fl_text_truncation truncation;
    fl_text_padding padding;
    bool bytes, templated, trims, spaced; /* spaced: a space was prepended, which trimming leaves out */
    pthread_mutex_t lock;
    fl__tok_work *idle;
};

FL_API void *fl_text_model_new(size_t size, fl_text_model m) {
    if (!fl_given(m.vocab, "fl_text_model_new", "the vocabulary")) return NULL;
    if (fl__text_owner(m.vocab))
        return fl_err_null("fl_text_model_new: the vocabulary is owned by another model or tokenizer");
    fl_text_model *out = fl_heap_alloc(size);
    if (out) *out = m, fl__text_set_owner(m.vocab, out);
    else fl_text_dictionary_free(m.vocab);
    return out;
}

FL_API void fl_text_model_free(fl_text_model *m) {
    if (!m || fl_is_freed(m, "fl_text_model_free", "the model")) return;
    fl_text_dictionary *vocab = m->vocab;
    if (fl__text_owner(vocab) != m) {
        fl_err_false("fl_text_model_free: the model is owned by a tokenizer, which frees it");
        return;
    }
    fl__text_set_owner(vocab, NULL);
    if (m->free) m->free(m);
    else fl_object_free(m, m->type, "");
    fl_text_dictionary_free(vocab);
}

/* ---- workspaces, one per thread ---- */

static fl__tok_work *fl__tok_work_acquire(const fl_text_tokenizer *t) {
    fl_text_tokenizer *mine = (fl_text_tokenizer *)(uintptr_t)t; /* only its list of workspaces changes */
    pthread_mutex_lock(&mine->lock);
    fl__tok_work *k = mine->idle;
    if (k) mine->idle = k->next;
    pthread_mutex_unlock(&mine->lock);
    return k ? k : fl_heap_alloc(sizeof *k);
}

static void fl__tok_work_release(const fl_text_tokenizer *t, fl__tok_work *k) {
    fl_text_tokenizer *mine = (fl_text_tokenizer *)(uintptr_t)t;
    pthread_mutex_lock(&mine->lock);
    k->next = mine->idle;
    mine->idle = k;
    pthread_mutex_unlock(&mine->lock);
}

static void fl__tok_work_free(fl_text_tokenizer *t) {
    for (fl__tok_work *k = t->idle, *next; k; k = next) {
        next = k->next;
        if (t->model->memo_free && k->w.memo) t->model->memo_free(k->w.memo);
        fl_text_work_free(&k->w);
        fl_heap_free(k->clean.p);
        fl_heap_free(k->fix);
        fl_heap_free(k);
    }
    t->idle = NULL;
}

/* ---- encodings ---- */

FL_API void fl_text_encoding_free(fl_text_encoding *e) {
    if (!e) return;
    void *const array[] = {e->id, e->begin, e->end, e->type, e->special, e->mask};
    for (int i = 0; i < 6; i++) fl_heap_free(array[i]);
    for (int64_t i = 0; i < e->overflow_cap_; i++) fl_text_encoding_free(&e->overflow[i]);
    fl_heap_free(e->overflow);
    *e = (fl_text_encoding){0};
}

static bool fl__tok_reserve(fl_text_encoding *e, int64_t n) {
    return n <= e->cap_[5] || (fl_text_work_reserve(&e->id, &e->cap_[0], n, sizeof *e->id) &&
                               fl_text_work_reserve(&e->begin, &e->cap_[1], n, sizeof *e->begin) &&
                               fl_text_work_reserve(&e->end, &e->cap_[2], n, sizeof *e->end) &&
                               fl_text_work_reserve(&e->type, &e->cap_[3], n, 1) &&
                               fl_text_work_reserve(&e->special, &e->cap_[4], n, 1) &&
                               fl_text_work_reserve(&e->mask, &e->cap_[5], n, 1));
}

static void fl__tok_set(fl_text_encoding *e, int64_t i, int32_t id, uint8_t type, bool special, bool real) {
    e->id[i] = id, e->begin[i] = e->end[i] = 0, e->type[i] = type, e->special[i] = special, e->mask[i] = real;
}

/* Overlapping parts and inserted tokens may make this many tokens per token of the text, plus 512 tokens. */
enum { FL__TOK_COPIES = 64 };

/* Appends tokens [a.begin, a.end) of the first text and [b.begin, b.end) of the second with the template
   around them. *left: remaining budget of tokens. */
static bool fl__tok_assemble(const fl_text_tokenizer *t, const fl_text_work *w, fl_text_piece a,
                             fl_text_piece b, bool pair, bool plain, fl_text_encoding *e, int64_t *left) {
    static const fl__tok_item bare[2] = {{FL__TOK_A, 0}, {FL__TOK_B, 1}};
    const fl__tok_template *f = pair ? &t->pair : &t->single;
    const bool use = t->templated && !plain;
    const fl__tok_item *item = use ? f->v : bare;
    const int64_t items = use ? f->n : pair ? 2 : 1;
    int64_t n = 0;
    for (int64_t i = 0; i < items; i++)
        n += item[i].id >= 0 ? 1 : item[i].id == FL__TOK_A ? a.end - a.begin : b.end - b.begin;
    if ((*left -= n) < 0)
        return fl_fail("fl_text_encode: stride or template make too many tokens, expected at most %d per "
                       "token "
                       "of the text", (int)FL__TOK_COPIES);
    if (!fl__tok_reserve(e, n)) return false;
    for (int64_t i = e->n = 0; i < items; i++) {
        const fl_text_piece from = item[i].id == FL__TOK_A ? a : b;
        if (item[i].id >= 0) fl__tok_set(e, e->n++, item[i].id, item[i].type, true, true);
        else
            for (int64_t k = from.begin; k < from.end; k++) {
                const fl_text_token *token = &w->token[k];
                fl__tok_set(e, e->n, token->id, item[i].type, false, true);
                e->begin[e->n] = token->begin, e->end[e->n++] = token->end;
            }
    }
    return true;
}

static bool fl__tok_pad(const fl_text_padding *p, int64_t n, fl_text_encoding *e) {
    const int64_t more = n - e->n, at = p->left ? 0 : e->n;
    for (int64_t i = 0; i < e->n_overflow; i++)
        if (!fl__tok_pad(p, n, &e->overflow[i])) return false;
    if (more <= 0) return true;
    if (!fl__tok_reserve(e, n)) return false;
    const size_t size = (size_t)e->n;
    if (p->left && size) {
        memmove(e->id + more, e->id, size * sizeof *e->id);
        memmove(e->begin + more, e->begin, size * sizeof *e->begin);
        memmove(e->end + more, e->end, size * sizeof *e->end);
        memmove(e->type + more, e->type, size);
        memmove(e->special + more, e->special, size);
        memmove(e->mask + more, e->mask, size);
    }
    for (int64_t i = at; i < at + more; i++) fl__tok_set(e, i, p->id, p->type, true, false);
    e->n = n;
    return true;
}

static int64_t fl__tok_padded(const fl_text_padding *p, int64_t longest) {
    const int64_t n = p->length ? p->length : longest;
    return p->multiple > 0 ? (n + p->multiple - 1) / p->multiple * p->multiple : n;
}

/* Truncated lengths of both texts by longest_first, in total `most`. */
static void fl__tok_longest_first(int64_t *n1, int64_t *n2, int64_t most) {
    int64_t *low = *n1 > *n2 ? n2 : n1, *high = low == n1 ? n2 : n1;
    *high = *low > most ? *low : *low > most - *low ? *low : most - *low;
    if (*low + *high > most) *low = most / 2, *high = *low + most % 2;
}

/* Part i of `all` tokens in parts of `most`; returns false after the last one. */
static bool fl__tok_part(fl_text_piece all, int64_t most, const fl_text_truncation *o, int64_t i,
                         fl_text_piece *part) {
    const int64_t n = all.end - all.begin, from = i * (most - o->stride);
    *part = all;
    if (n <= most) return i == 0;
    if (i && from + o->stride >= n) return false;
    if (!o->left) {
        part->begin = all.begin + (uint32_t)from;
        if (n - from > most) part->end = part->begin + (uint32_t)most;
    } else {
        part->end = all.end - (uint32_t)from;
        if (n - from > most) part->begin = part->end - (uint32_t)most;
    }
    return true;
}

/* Truncates and applies the template; tokens [0, n1) are the first text's, [n1, n) the second's. */
static bool fl__tok_finish(const fl_text_tokenizer *t, const fl_text_work *w, int64_t n1,
                           fl_text_encode_opts o, fl_text_encoding *e) {
    const fl_text_truncation *c = &t->truncation;
    const bool pair = o.pair != NULL;
    fl_text_piece a = {0, (uint32_t)n1, -1}, b = {(uint32_t)n1, (uint32_t)w->n_tokens, -1}, pa, pb;
    int64_t la = n1, lb = w->n_tokens - n1;
    const int64_t specials = t->templated && !o.plain ? (pair ? t->pair : t->single).specials : 0;
    const int64_t most = c->max_length - specials, surplus = la + lb - most;
    if (c->max_length && most < 0)
        return fl_fail("fl_text_encode: max_length is too small: got %lld, expected at least the %lld "
                       "special "
                       "tokens", (long long)c->max_length, (long long)specials);
    if (c->max_length && surplus > 0) {
        int64_t *cut = c->strategy == FL_TEXT_ONLY_SECOND ? &lb : &la;
        if (c->strategy == FL_TEXT_LONGEST_FIRST && pair) fl__tok_longest_first(&la, &lb, most);
        else if (*cut < surplus || (*cut == surplus && most > 0 && pair))
            return fl_fail("fl_text_encode: cannot truncate by %lld tokens: the text to truncate has %lld",
                           (long long)surplus, (long long)*cut);
        else *cut -= surplus;
        if ((la < n1 && la && c->stride >= la) || (lb < w->n_tokens - n1 && lb && c->stride >= lb))
            return fl_fail("fl_text_encode: stride must be less than the length of parts: got %lld, "
                           "expected < "
                           "%lld", (long long)c->stride, (long long)(la < n1 ? la : lb));
    }
    e->n_overflow = 0;
    int64_t parts = 0, left = FL__TOK_COPIES * (w->n_tokens + 512);
    bool ok = true;
    /* in the order of Hugging Face's tokenizers: both first parts; then the other parts of the first text,
       each with all parts of the second; then the first part of the first text with the second's others */
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; ok && !(pass ? i : i && !la) && fl__tok_part(a, la, c, i, &pa); i++)
            for (int64_t k = pass; ok && (lb || !k) && (pass || i || !k) && fl__tok_part(b, lb, c, k, &pb);
                 k++, parts++) {
                const int64_t before = e->overflow_cap_;
                if (!la) pa.end = pa.begin;
                if (!lb) pb.end = pb.begin;
                ok = !parts || fl_heap_grow(&e->overflow, &e->overflow_cap_, parts, sizeof *e);
                for (int64_t m = before; ok && m < e->overflow_cap_; m++)
                    e->overflow[m] = (fl_text_encoding){0};
                ok = ok && fl__tok_assemble(t, w, pa, pb, pair, o.plain, parts ? &e->overflow[parts - 1] : e,
                                            &left);
                if (ok) e->n_overflow = parts;
            }
    return ok;
}

/* ---- from text to tokens ---- */

static bool fl__tok_is_word(const char *s, int64_t n) {
    int len;
    const int32_t c = n > 0 ? fl_text_utf8_decode(s, n, &len) : -1;
    const unsigned set =
        FL_TEXT_LETTERS | FL_TEXT_MARKS | 1u << FL_TEXT_ND | 1u << FL_TEXT_NL | 1u << FL_TEXT_PC;
    return c >= 0 && FL_TEXT_IS(fl_text_classes()[c], set);
}

/* Start of the character that ends at s + end. */
static int64_t fl__tok_before(const char *s, int64_t end) {
    int64_t at = end - 1;
    while (at > 0 && end - at < 4 && ((uint8_t)s[at] & 0xc0) == 0x80) at--;
    return at;
}

static bool fl__tok_is_space(const char *s, int64_t n, int *len) {
    const int32_t c = n > 0 ? fl_text_utf8_decode(s, n, len) : -1;
    return c >= 0 && (fl_text_classes()[c] & FL_TEXT_WHITE_SPACE);
}

/* The next added token that matches at or after `at`: its range in *begin, *end, including the white space it
   absorbs. NULL: none. */
static const fl_text_added_token *fl__tok_next(const fl_text_tokenizer *t, const fl_text_trie *trie,
                                               const char *s,
                                               int64_t n, int64_t at, int64_t *begin, int64_t *end, int64_t *left) {
    int64_t len = 0;
    int bytes;
    if (!trie->n) return NULL;
    for (int64_t i = at; i < n && *left >= 0; i++) {
        if (fl_text_trie_step(trie, 0, (uint8_t)s[i]) < 0) continue;
        const int32_t k = fl_text_trie_longest(trie, s + i, n - i, &len, left);
        if (k < 0) continue;
        const fl_text_added_token *a = &t->added[k];
        *begin = i, *end = i + len;
        if (a->single_word && ((i && fl__tok_is_word(s + fl__tok_before(s, i), i)) ||
                               fl__tok_is_word(s + *end, n - *end))) {
            i = *end - 1;
            continue;
        }
        while (a->lstrip && *begin > at && fl__tok_is_space(s + fl__tok_before(s, *begin), *begin, &bytes))
            *begin = fl__tok_before(s, *begin);
        while (a->rstrip && fl__tok_is_space(s + *end, n - *end, &bytes)) *end += bytes;
        return a;
    }
    return NULL;
}

/* Removes leading and trailing spaces of a token, n bytes at p, from its range (ByteLevel's trim_offsets); a
   prepended space has no range to remove. */
static void fl__tok_trim(const fl_text_tokenizer *t, const char *p, uint32_t n, fl_text_token *token) {
    uint32_t lead = 0, trail = 0;
    while (lead < n && p[lead] == ' ') lead++;
    while (trail < n && p[n - 1 - trail] == ' ') trail++;
    const bool all = lead == n;
    if (lead && token->begin == 0 && t->spaced) lead--;
    token->begin = lead < token->end - token->begin ? token->begin + lead : token->end;
    token->end = all || token->end - token->begin < trail ? token->begin : token->end - trail;
}

enum { FL__TOK_CACHE = 8192, FL__TOK_WORD = 18, FL__TOK_TOKENS = 8 };

/* The cached tokens of a short piece. */
typedef struct fl__tok_cached {
    uint32_t hash;
    uint8_t len, n, end[FL__TOK_TOKENS];
    char word[FL__TOK_WORD];
    int32_t id[FL__TOK_TOKENS];
} fl__tok_cached;

/* Encodes a piece with the model, or from the cache. */
static bool fl__tok_piece(const fl_text_model *m, fl_text_work *w, uint32_t begin, uint32_t end) {
    const uint32_t len = end - begin;
    if (!m->cached || len > FL__TOK_WORD) return m->encode(m, w, begin, end);
    if (!w->cache && !(w->cache = fl_heap_alloc(FL__TOK_CACHE * sizeof(fl__tok_cached)))) return false;
    const uint64_t h = fl_text_hash(w->p + begin, len);
    fl__tok_cached *c = (fl__tok_cached *)w->cache + h % FL__TOK_CACHE;
    const int64_t first = w->n_tokens;
    uint32_t at = begin;
    bool ok = true;
    if (c->hash == (uint32_t)(h >> 32) && c->len == len && !memcmp(c->word, w->p + begin, len)) {
        for (int i = 0; ok && i < c->n; at = begin + c->end[i++])
            ok = fl_text_work_token(w, c->id[i], at, begin + c->end[i]);
        return ok;
    }
    if (!m->encode(m, w, begin, end)) return false;
    const int64_t n = w->n_tokens - first;
    for (int64_t i = first; i < w->n_tokens; at = w->token[i++].end)
        if (w->token[i].begin != at || n > FL__TOK_TOKENS) return true; /* tokens of bytes overlap */
    c->hash = (uint32_t)(h >> 32), c->len = (uint8_t)len, c->n = (uint8_t)n;
    memcpy(c->word, w->p + begin, len);
    for (int64_t i = 0; i < n; i++)
        c->id[i] = w->token[first + i].id, c->end[i] = (uint8_t)(w->token[first + i].end - begin);
    return true;
}

/* Encodes section [begin, end) of the text, which contains no raw added token. */
static bool fl__tok_section(const fl_text_tokenizer *t, fl_text_work *w, const char *text,
                            int64_t n, int64_t begin, int64_t end) {
    const int64_t first = w->n_tokens;
    int64_t from, to, at = 0;
    w->p = text + begin, w->n = end - begin;
    w->from = w->to = NULL, w->base = (uint32_t)begin, w->first = begin == 0, w->last = end == n,
    w->original = text, w->n_pieces = 0;
    bool ok = fl_text_steps_run(&t->normalize, w);
    for (const fl_text_added_token *a;
         ok && (a = fl__tok_next(t, &t->normal, w->p, w->n, at, &from, &to, &w->left)); at = to)
        ok = (at >= from || fl_text_work_cut(w, at, from, -1)) && fl_text_work_cut(w, from, to, a->id);
    if (ok && at < w->n) ok = fl_text_work_cut(w, at, w->n, -1);
    fl_text_work_swap_pieces(w);
    ok = ok && fl_text_steps_run(&t->split, w);
    for (int64_t i = 0; ok && i < w->n_pieces; i++) {
        const fl_text_piece p = w->piece[i];
        if (p.id >= 0) ok = fl_text_work_token(w, p.id, p.begin, p.end);
        else if (p.begin < p.end) ok = fl__tok_piece(t->model, w, p.begin, p.end);
    }
    for (int64_t i = first; ok && w->mapped && i < w->n_tokens; i++) {
        fl_text_token *token = &w->token[i];
        const uint32_t b = token->begin, e = token->end;
        token->begin = b < w->n ? fl_text_work_from(w, b) : b ? fl_text_work_to(w, b - 1) : w->base;
        token->end = e > b ? fl_text_work_to(w, e - 1) : token->begin;
        if (t->trims) fl__tok_trim(t, w->p + b, e - b, token);
    }
    return ok;
}

/* Replaces ill-formed UTF-8 by U+FFFD and records where. */
static bool fl__tok_clean(fl__tok_work *k, const char *text, int64_t n, int64_t *replaced) {
    int64_t at = 0, good;
    int len;
    bool ok = true;
    k->clean.n = k->n_fix = 0;
    for (; ok && at < n; at += good + len) {
        good = fl_text_utf8_valid_length(text + at, n - at), len = 0;
        ok = fl_data_text_put(&k->clean, text + at, (size_t)good);
        if (!ok || at + good == n) break;
        fl_text_utf8_decode(text + at + good, n - at - good, &len);
        ok = fl_data_text_put(&k->clean, "\xef\xbf\xbd", 3) && k->clean.n <= INT32_MAX &&
             fl_heap_grow(&k->fix, &k->fix_cap, k->n_fix + 1, sizeof *k->fix);
        if (ok) k->fix[k->n_fix++] = (fl_text_piece){(uint32_t)k->clean.n, (uint32_t)(at + good + len), -1};
        ++*replaced;
    }
    return ok;
}

static uint32_t fl__tok_fixed(const fl__tok_work *k, uint32_t at) {
    int64_t low = 0, high = k->n_fix; /* the fixes before low end at or before it */
    while (low < high) {
        const int64_t mid = (low + high) / 2;
        if (k->fix[mid].begin <= at) low = mid + 1;
        else high = mid;
    }
    const uint32_t to = low ? at - k->fix[low - 1].begin + k->fix[low - 1].end : at;
    /* inside a U+FFFD, which may be longer than what it replaced */
    return low < k->n_fix && to > k->fix[low].end ? k->fix[low].end : to;
}

/* Line number for an error, from 1. */
static int64_t fl__tok_line(const char *text, int64_t at) {
    int64_t line = 1;
    for (int64_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

static bool fl__tok_text(const fl_text_tokenizer *t, fl__tok_work *k, const char *text, int64_t n,
                         bool strict, fl_text_encoding *e) {
    fl_text_work *w = &k->w;
    const int64_t first = w->n_tokens;
    int64_t from, to, at = 0;
    if (n < 0 || n > INT32_MAX || (n && !text))
        return fl_fail("fl_text_encode: text is NULL or its length out of range: got %lld bytes, expected "
                       "at most "
                       "2^31 - 1", (long long)n);
    const int64_t good = t->bytes && !strict ? n : fl_text_utf8_valid_length(text, n);
    if (good < n && strict)
        return fl_fail("fl_text_encode: offset %lld, line %lld: ill-formed UTF-8", (long long)good,
                       (long long)fl__tok_line(text, good));
    if (good < n) {
        if (!fl__tok_clean(k, text, n, &e->replaced)) return false;
        text = k->clean.p, n = k->clean.n;
    }
    bool ok = true;
    fl_text_work_begin(w, n);
    for (const fl_text_added_token *a; ok &&
         (a = fl__tok_next(t, &t->raw, text, n, at, &from, &to, &w->left));
         at = to) {
        if (at < from) ok = fl__tok_section(t, w, text, n, at, from);
        ok = ok && fl_text_work_token(w, a->id, from, to);
    }
    if (ok && at < n) ok = fl__tok_section(t, w, text, n, at, n);
    ok = ok && fl_text_work_spend(w, 0);
    for (int64_t i = first; ok && good < n && i < w->n_tokens; i++) {
        w->token[i].begin = fl__tok_fixed(k, w->token[i].begin);
        w->token[i].end = fl__tok_fixed(k, w->token[i].end);
    }
    k->n_fix = 0;
    return ok;
}

/* With unusually many tokens the buffers of steps and model are as large as what comes next: they are freed
   first, so that a text of n bytes takes at most 64 n of memory. */
static void fl__tok_release(const fl_text_tokenizer *t, fl_text_work *w, int64_t n) {
    const int64_t token = sizeof(fl_text_token) + 23, made = w->n_tokens * token * 9 / 8;
    if (fl_text_work_bytes(w) + w->memo_bytes + made < 60 * n + (1 << 19)) return;
    fl_text_work_release(w);
    if (t->model->memo_free && w->memo) t->model->memo_free(w->memo);
    w->memo = NULL, w->memo_bytes = 0;
}

static bool fl__tok_encode(const fl_text_tokenizer *t, const char *text, int64_t n, fl_text_encoding *out,
                           fl_text_encode_opts o) {
    fl__tok_work *k = fl__tok_work_acquire(t);
    if (!k) return false;
    fl_text_work *w = &k->w;
    w->n_tokens = 0, w->mapped = true, out->replaced = 0;
    bool ok = fl__tok_text(t, k, text, n, o.strict, out);
    const int64_t n1 = w->n_tokens;
    ok = ok && (!o.pair || fl__tok_text(t, k, o.pair, o.n_pair, o.strict, out));
    fl__tok_release(t, w, n + (o.pair ? o.n_pair : 0));
    ok = ok && fl__tok_finish(t, w, n1, o, out);
    fl__tok_work_release(t, k);
    return ok;
}

FL_API bool fl_text_encode_opt(const fl_text_tokenizer *t, const char *text, int64_t n, fl_text_encoding *out,
                               fl_text_encode_opts o) {
    if (!fl_given(t, "fl_text_encode", "the tokenizer") || !fl_given(out, "fl_text_encode", "out"))
        return false;
    if (!fl__tok_encode(t, text, n, out, o)) return false;
    return !t->padding.on || fl__tok_pad(&t->padding, fl__tok_padded(&t->padding, out->n), out);
}

typedef struct fl__tok_batch {
    const fl_text_tokenizer *t;
    const char *const *text;
    const int64_t *n;
    fl_text_encoding *out;
    fl_text_encode_opts o;
    pthread_mutex_t lock;
    char error[400];
    bool failed;
} fl__tok_batch;

static void fl__tok_batch_part(void *arg, int64_t begin, int64_t end) {
    fl__tok_batch *b = arg;
    for (int64_t i = begin; i < end; i++) {
        if (fl__tok_encode(b->t, b->text[i], b->n[i], &b->out[i], b->o)) continue;
        pthread_mutex_lock(&b->lock);
        if (!b->failed) snprintf(b->error, sizeof b->error, "%.399s", fl_error());
        b->failed = true;
        pthread_mutex_unlock(&b->lock);
        fl_error_clear();
        return;
    }
}

FL_API bool fl_text_encode_batch(const fl_text_tokenizer *t, const char *const *text, const int64_t *n,
                                 int64_t count, fl_text_encoding *out, fl_text_encode_opts o) {
    fl__tok_batch b = {.t = t, .text = text, .n = n, .out = out, .o = o};
    int64_t longest = 0;
    if (!fl_given(t, "fl_text_encode_batch", "the tokenizer")) return false;
    if (!text || !n || !out) return fl_fail("fl_text_encode_batch: text, n or out is NULL");
    b.o.pair = NULL;
    pthread_mutex_init(&b.lock, NULL);
    fl_parallel(count, count > 512 ? count / 128 : 1, fl__tok_batch_part, &b);
    pthread_mutex_destroy(&b.lock);
    if (b.failed) return fl_fail("%s", b.error);
    for (int64_t i = 0; i < count; i++) longest = out[i].n > longest ? out[i].n : longest;
    bool ok = true;
    for (int64_t i = 0; ok && t->padding.on && i < count; i++)
        ok = fl__tok_pad(&t->padding, fl__tok_padded(&t->padding, longest), &out[i]);
    return ok;
}

/* ---- decoding ---- */

/* The added token of an id; NULL: none. */
static fl_text_added_token *fl__tok_added(const fl_text_tokenizer *t, int32_t id) {
    const fl_text_pair *p = t->n_added ? fl_text_pairs_find(&t->added_ids, id, 0) : NULL;
    return p && p->rank != FL_TEXT_NO_RANK ? &t->added[p->id] : NULL;
}

FL_API const char *fl_text_token_of(const fl_text_tokenizer *t, int32_t id, int64_t *n) {
    if (!fl_given(t, "fl_text_token_of", "the tokenizer")) return NULL;
    const char *text = fl_text_dictionary_entry(t->model->vocab, id, n);
    const fl_text_added_token *a = text ? NULL : fl__tok_added(t, id);
    if (a && n) *n = a->n;
    return a ? a->text : text;
}

FL_API int32_t fl_text_id_of(const fl_text_tokenizer *t, const char *token, int64_t n) {
    if (!fl_given(t, "fl_text_id_of", "the tokenizer") || !fl_given(token, "fl_text_id_of", "the token"))
        return -1;
    const int64_t index = t->added_texts ? fl_text_dictionary_find(t->added_texts, token, n) : -1;
    if (index >= 0) return t->added[index].id;
    return (int32_t)fl_text_dictionary_find(t->model->vocab, token, n);
}

FL_API bool fl_text_is_special(const fl_text_tokenizer *t, int32_t id) {
    if (!fl_given(t, "fl_text_is_special", "the tokenizer")) return false;
    const fl_text_added_token *a = fl__tok_added(t, id);
    return a && a->special;
}

FL_API int64_t fl_text_vocab_size(const fl_text_tokenizer *t) {
    return fl_given(t, "fl_text_vocab_size", "the tokenizer") ? t->size : 0;
}

/* Runs the decoder on the tokens as pieces of one text. */
static bool fl__tok_decode(const fl_text_tokenizer *t, fl_text_work *w, const int32_t *id,
                           int64_t n, bool keep) {
    const bool spaced = !t->pipeline || !fl_text_tree_at(t->pipeline, "decoder");
    bool ok = true;
    w->mapped = false;
    w->from = w->to = NULL;
    fl_text_work_begin(w, 0);
    w->most = INT32_MAX,
    w->left = INT64_MAX; /* no limit: tokens may be as long as in the vocabulary */
    for (int64_t i = 0; ok && i < n; i++) {
        int64_t size;
        const char *text = fl_text_token_of(t, id[i], &size);
        const int64_t at = fl_text_work_next(w);
        if (!text)
            return fl_fail("fl_text_decode: id %d at position %lld has no token: the vocabulary has %lld ids",
                           (int)id[i], (long long)i, (long long)t->size);
        if (!keep && t->n_added && fl_text_is_special(t, id[i])) continue;
        ok = !spaced || !at || fl_text_work_put(w, " ", 1, 0, 0);
        ok = ok && fl_text_work_put(w, text, size, 0, 0) && fl_text_work_cut(w, at, fl_text_work_next(w), -1);
    }
    fl_text_work_swap(w);
    fl_text_work_swap_pieces(w);
    fl_text_work_limit(w, w->n + w->n_pieces);
    return ok && fl_text_steps_run(&t->decode, w);
}

FL_API bool fl_text_decode(const fl_text_tokenizer *t, const int32_t *id, int64_t n, bool keep_special,
                           fl_data_text *out) {
    if (!fl_given(t, "fl_text_decode", "the tokenizer")) return false;
    if (!out || (n && !id)) return fl_fail("fl_text_decode: id or out is NULL");
    fl__tok_work *k = fl__tok_work_acquire(t);
    if (!k) return false;
    fl_text_work *w = &k->w;
    const int64_t before = out->n;
    bool ok = fl__tok_decode(t, w, id, n, keep_special) && fl_data_text_put(out, "", 0);
    for (int64_t i = 0; ok && i < w->n_pieces; i++)
        ok = fl_data_text_put(out, w->p + w->piece[i].begin, w->piece[i].end - w->piece[i].begin);
    fl__tok_work_release(t, k);
    if (!ok && out->p) out->n = before, out->p[before] = 0;
    return ok;
}

/* Number of final bytes that may still become another character. */
static int64_t fl__tok_incomplete(const char *s, int64_t n) {
    int len;
    const int64_t at = n ? fl__tok_before(s, n) : 0;
    if (n >= 3 && !memcmp(s + n - 3, "\xef\xbf\xbd", 3)) return 3;
    return n && fl_text_utf8_decode(s + at, n - at, &len) < 0 && len == n - at &&
                   (uint8_t)s[at] >= 0xc2
               ? n - at
               : 0;
}

enum { FL__TOK_HELD = 16, FL__TOK_SILENT = 64 }; /* limits: ids held back; ids without text */

FL_API const char *fl_text_stream_add(fl_text_stream *s, int32_t id, int64_t *n) {
    if (!fl_given(s, "fl_text_stream_add", "the stream") ||
        !fl_given(n, "fl_text_stream_add", "the count")) return NULL;
    *n = 0;
    if (!s->tokenizer) return fl_fail("fl_text_stream_add: the tokenizer is NULL"), NULL;
    if (!fl_heap_grow(&s->id_, &s->cap_, s->n_ + 1, sizeof *s->id_)) return NULL;
    s->id_[s->n_] = id;
    s->text_.n = 0;
    if (!fl_text_decode(s->tokenizer, s->id_, s->n_ + 1, s->keep_special, &s->text_)) return NULL;
    s->n_++;
    const bool waits = s->n_ - s->prefix_ < FL__TOK_HELD && fl__tok_incomplete(s->text_.p, s->text_.n);
    const bool shows = s->text_.n > s->given_;
    if (waits || (!shows && s->n_ - s->prefix_ < FL__TOK_SILENT)) return "";
    /* Keep the ids of the text just returned: decoders treat the first tokens differently. */
    const int64_t given = s->given_, drop = s->prefix_;
    fl_data_text suffix_text = {0};
    if (!fl_text_decode(s->tokenizer, s->id_ + drop, s->n_ - drop, s->keep_special, &suffix_text)) {
        s->n_--;
        return NULL;
    }
    if (shows) *n = s->text_.n - given;
    memmove(s->id_, s->id_ + drop, (size_t)(s->n_ - drop) * sizeof *s->id_);
    s->n_ -= drop, s->prefix_ = s->n_, s->given_ = suffix_text.n;
    fl_heap_free(suffix_text.p);
    return shows ? s->text_.p + given : "";
}

FL_API const char *fl_text_stream_end(fl_text_stream *s, int64_t *n) {
    if (!fl_given(s, "fl_text_stream_end", "the stream") ||
        !fl_given(n, "fl_text_stream_end", "the count")) return NULL;
    s->text_.n = *n = 0;
    if (!s->tokenizer) return fl_fail("fl_text_stream_end: the tokenizer is NULL"), NULL;
    if (!fl_text_decode(s->tokenizer, s->id_, s->n_, s->keep_special, &s->text_)) return NULL;
    const int64_t given = s->given_;
    *n = s->text_.n > given ? s->text_.n - given : 0;
    s->n_ = s->prefix_ = s->given_ = 0;
    return *n ? s->text_.p + given : "";
}

FL_API void fl_text_stream_free(fl_text_stream *s) {
    if (!s) return;
    fl_heap_free(s->id_);
    fl_heap_free(s->text_.p);
    *s = (fl_text_stream){0};
}

/* ---- added tokens ---- */

/* Normalises the text of an added token, as other text will be; stored once in `texts`. */
static bool fl__tok_normal(const fl_text_tokenizer *t, fl_text_work *w, fl_text_dictionary *texts,
                           fl_text_key *key) {
    const int64_t index = fl_text_dictionary_size(texts);
    w->p = key->text, w->n = key->n, w->from = w->to = NULL, w->mapped = false, w->first = w->last = false,
    w->n_pieces = 0;
    if (!fl_text_steps_run(&t->normalize, w)) return false;
    key->n = 0; /* the first of equal ones wins */
    if (!w->n || fl_text_dictionary_find(texts, w->p, w->n) >= 0) return true;
    if (!fl_text_dictionary_add_at(texts, w->p, w->n, index)) return false;
    key->text = fl_text_dictionary_entry(texts, index, &key->n);
    return true;
}

static bool fl__tok_tries(fl_text_tokenizer *t) {
    fl_text_key *key = fl_heap_alloc((size_t)(t->n_added + 1) * sizeof *key);
    fl_text_dictionary *texts = fl_text_dictionary_new();
    fl_text_trie trie[2] = {{0}, {0}};
    fl__tok_work *k = key && texts ? fl__tok_work_acquire(t) : NULL;
    int64_t bytes = 0;
    bool ok = k != NULL;
    for (int64_t i = 0; i < t->n_added; i++) bytes += t->added[i].n;
    if (ok) fl_text_work_begin(&k->w, bytes);
    for (int normal = 0; ok && normal < 2; normal++) {
        int64_t n = 0;
        for (int64_t i = 0; ok && i < t->n_added; i++) {
            if (t->added[i].normalized != normal || t->added[i].unreachable) continue;
            key[n] = (fl_text_key){t->added[i].text, t->added[i].n, (int32_t)i};
            ok = !normal || fl__tok_normal(t, &k->w, texts, &key[n]);
            n += key[n].n > 0;
        }
        ok = ok && (!n || fl_text_trie_build(&trie[normal], key, n));
    }
    if (k) fl__tok_work_release(t, k);
    if (ok) {
        fl_text_trie_free(&t->raw);
        fl_text_trie_free(&t->normal);
        t->raw = trie[0], t->normal = trie[1];
    } else for (int i = 0; i < 2; i++) fl_text_trie_free(&trie[i]);
    fl_text_dictionary_free(texts);
    fl_heap_free(key);
    return ok;
}

static bool fl__tok_add(fl_text_tokenizer *t, fl_text_added_token a, const char *where) {
    const int32_t there = fl_text_id_of(t, a.text, a.n);
    int64_t n;
    if (!a.n) return fl_fail("%s: an added token has no text", where);
    if (a.id < 0) a.id = there >= 0 ? there : (int32_t)t->size;
    const char *other = fl_text_token_of(t, a.id, &n);
    if ((there >= 0 && there != a.id) || (other && (n != a.n || memcmp(other, a.text, (size_t)n))))
        return fl_fail("%s: conflicting ids: added token '%.60s' has id %d, '%.60s' has %d", where, a.text,
                       (int)a.id, there >= 0 ? a.text : other, there >= 0 ? (int)there : (int)a.id);
    if (a.id >= INT32_MAX - 1)
        return fl_fail("%s: added token '%.60s': id is out of range: got %d", where, a.text, (int)a.id);
    fl_text_added_token *before = fl__tok_added(t, a.id);
    if (before) {
        a.text = before->text;
        *before = a;
        return true;
    }
    if (!t->added_texts && !(t->added_texts = fl_text_dictionary_new())) return false;
    if (!fl_heap_grow(&t->added, &t->added_cap, t->n_added + 1, sizeof *t->added)) return false;
    fl_text_pair *p = fl_text_pairs_add(&t->added_ids, a.id, 0);
    if (!p || !fl_text_dictionary_add_at(t->added_texts, a.text, a.n, t->n_added)) return false;
    a.text = fl_text_dictionary_entry(t->added_texts, t->n_added, NULL);
    p->rank = 0, p->id = (int32_t)t->n_added;
    t->added[t->n_added++] = a;
    if (a.id >= t->size) t->size = a.id + 1;
    return true;
}

FL_API bool fl_text_tokenizer_add(fl_text_tokenizer *t, const fl_text_added_token *added, int64_t n) {
    if (!fl_given(t, "fl_text_tokenizer_add", "the tokenizer")) return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) ok = fl__tok_add(t, added[i], "fl_text_tokenizer_add");
    return ok && fl__tok_tries(t);
}

FL_API bool fl_text_tokenizer_truncate(fl_text_tokenizer *t, fl_text_truncation o) {
    if (!fl_given(t, "fl_text_tokenizer_truncate", "the tokenizer")) return false;
    if (o.max_length < 0 || o.stride < 0 || (o.max_length && o.stride >= o.max_length) ||
        o.strategy > FL_TEXT_ONLY_SECOND)
        return fl_fail("fl_text_tokenizer_truncate: invalid options: got max_length %lld, stride %lld, "
                       "expected "
                       ">= 0 and stride < max_length", (long long)o.max_length, (long long)o.stride);
    t->truncation = o;
    return true;
}

FL_API bool fl_text_tokenizer_pad(fl_text_tokenizer *t, fl_text_padding o) {
    if (!fl_given(t, "fl_text_tokenizer_pad", "the tokenizer")) return false;
    int64_t n;
    const char *token = o.token ? o.token : fl_text_token_of(t, o.id, &n);
    if (o.length < 0 || o.length > INT32_MAX || o.multiple < 0 || o.multiple > INT32_MAX || o.id < 0)
        return fl_fail("fl_text_tokenizer_pad: options are out of range: got length %lld, multiple %lld, id "
                       "%d, "
                       "expected 0 to 2^31 - 1", (long long)o.length, (long long)o.multiple, (int)o.id);
    o.token = fl_data_arena_add(&t->text, token ? token : "[PAD]", strlen(token ? token : "[PAD]"));
    if (!o.token) return false;
    t->padding = o;
    return true;
}

/* ---- from tokenizer.json ---- */

static bool fl__tok_item_add(fl__tok_template *f, int32_t id, int64_t type, const char *where) {
    if (f->n >= FL_TEXT_TREE_MAX)
        return fl_fail("%s: a template has too many tokens, expected at most %d", where, FL_TEXT_TREE_MAX);
    if (!fl_heap_grow(&f->v, &f->cap, f->n + 1, sizeof *f->v)) return false;
    f->v[f->n++] = (fl__tok_item){id, (uint8_t)type};
    f->specials += id >= 0;
    return true;
}

/* The id in the file; -1: none. */
static int32_t fl__tok_id(const fl_text_tree *e) {
    double x;
    return e && e->event == FL_DATA_JSON_NUMBER && fl_data_parse_double(e->text, (size_t)e->n, &x) &&
                   x >= 0 && x < 0x1p31 - 1
               ? (int32_t)x
               : -1;
}

/* TemplateProcessing: the name of a special token stands for one or more ids. */
static bool fl__tok_template_of(fl__tok_template *f, const fl_text_tree *list, const fl_text_tree *names,
                                const char *where) {
    bool ok = list && list->event == FL_DATA_JSON_ARRAY;
    if (!ok) return fl_fail("%s: a template is not a list", where);
    for (const fl_text_tree *e = list->first; ok && e; e = e->next) {
        const fl_text_tree *special = fl_text_tree_at(e, "SpecialToken"),
                           *text = fl_text_tree_at(e, "Sequence");
        const fl_text_tree *item = special ? special : text;
        const char *name = fl_text_tree_string(item, "id", NULL, "");
        const int64_t type = fl_text_tree_int(item, "type_id", 0);
        const fl_text_tree *ids = special ? fl_text_tree_at(fl_text_tree_at(names, name), "ids") : NULL;
        if (text && (!strcmp(name, "A") || !strcmp(name, "B")))
            ok = fl__tok_item_add(f, *name == 'A' ? FL__TOK_A : FL__TOK_B, type, where);
        else if (!ids) ok = fl_fail("%s: a template has unknown token '%.60s'", where, name);
        for (const fl_text_tree *id = ids ? ids->first : NULL; ok && id; id = id->next)
            ok = fl__tok_id(id) < 0 ? fl_fail("%s: a template's token '%.60s' has no id", where, name)
                                    : fl__tok_item_add(f, fl__tok_id(id), type, where);
    }
    return ok;
}

/* BERT: [CLS] A [SEP] B [SEP]; RoBERTa: <s> A </s> </s> B </s>. */
static bool fl__tok_fixed_template(fl_text_tokenizer *t, const fl_text_tree *p, bool roberta,
                                   const char *where) {
    int32_t id[2];
    static const char *const key[2] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const fl_text_tree *pair = fl_text_tree_at(p, key[i]);
        id[i] = fl__tok_id(pair && pair->first ? pair->first->next : NULL);
        if (id[i] < 0) return fl_fail("%s: post-processor: expected [\"%s\" token, id]", where, key[i]);
    }
    const fl__tok_item item[] = {{id[0], 0}, {FL__TOK_A, 0}, {id[1], 0}, {id[1], 0}, {FL__TOK_B, !roberta},
                                 {id[1], !roberta}};
    bool ok = t->templated = true;
    for (int i = 0; ok && i < 6; i++)
        ok = (i > 2 || fl__tok_item_add(&t->single, item[i].id, item[i].type, where)) &&
             ((i == 3 && !roberta) || fl__tok_item_add(&t->pair, item[i].id, item[i].type, where));
    return ok;
}

static bool fl__tok_post(fl_text_tokenizer *t, const fl_text_tree *p, const char *where) {
    const char *type = fl_text_tree_string(p, "type", NULL, "");
    bool ok = true;
    if (!p || p->event == FL_DATA_JSON_NULL) return true;
    if (!strcmp(type, "Sequence")) {
        const fl_text_tree *list = fl_text_tree_at(p, "processors");
        for (const fl_text_tree *e = list ? list->first : NULL; ok && e; e = e->next)
            ok = fl__tok_post(t, e, where);
        return ok;
    }
    if (!strcmp(type, "ByteLevel") || !strcmp(type, "RobertaProcessing"))
        t->trims |= fl_text_tree_true(p, "trim_offsets", true),
            t->spaced |= fl_text_tree_true(p, "add_prefix_space", true);
    if (!strcmp(type, "ByteLevel")) return true;
    if (t->templated) return fl_fail("%s: more than one post-processor inserts tokens", where);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        return fl__tok_fixed_template(t, p, *type == 'R', where);
    if (strcmp(type, "TemplateProcessing"))
        return fl_fail("%s: \"post_processor\" has unknown type \"%.60s\"", where, type);
    const fl_text_tree *names = fl_text_tree_at(p, "special_tokens");
    t->templated = true;
    return fl__tok_template_of(&t->single, fl_text_tree_at(p, "single"), names, where) &&
           fl__tok_template_of(&t->pair, fl_text_tree_at(p, "pair"), names, where);
}

enum { FL__TOK_PADDED = 1 << 15 }; /* a file may pad a short text to this many tokens at most */

static bool fl__tok_lengths(fl_text_tokenizer *t, const char *where) {
    const fl_text_tree *c = fl_text_tree_at(t->pipeline, "truncation"),
                       *p = fl_text_tree_at(t->pipeline, "padding");
    if (c) {
        const char *strategy = fl_text_tree_string(c, "strategy", NULL, "LongestFirst");
        fl_text_truncation o = {.max_length = fl_text_tree_int(c, "max_length", 0),
                                .stride = fl_text_tree_int(c, "stride", 0)};
        if (!strcmp(strategy, "OnlyFirst")) o.strategy = FL_TEXT_ONLY_FIRST;
        if (!strcmp(strategy, "OnlySecond")) o.strategy = FL_TEXT_ONLY_SECOND;
        o.left = !strcmp(fl_text_tree_string(c, "direction", NULL, "Right"), "Left");
        if (!fl_text_tokenizer_truncate(t, o)) return false;
    }
    if (p) {
        fl_text_padding o = {.on = true, .multiple = fl_text_tree_int(p, "pad_to_multiple_of", 0)};
        const fl_text_tree *strategy = fl_text_tree_at(p, "strategy");
        const int64_t id = fl_text_tree_int(p, "pad_id", 0);
        o.length = fl_text_tree_int(strategy, "Fixed", 0);
        o.left = !strcmp(fl_text_tree_string(p, "direction", NULL, "Right"), "Left");
        o.id = (int32_t)id, o.type = (uint8_t)fl_text_tree_int(p, "pad_type_id", 0);
        o.token = fl_text_tree_string(p, "pad_token", NULL, NULL);
        if (id < 0 || id >= INT32_MAX) return fl_fail("%s: \"pad_id\" is out of range: got %lld", where,
                                                      (long long)id);
        if (o.length > FL__TOK_PADDED || o.multiple > FL__TOK_PADDED)
            return fl_fail("%s: \"padding\" is too long: got length %lld, multiple %lld, expected at most "
                           "%d; "
                           "set more by fl_text_tokenizer_pad",
                           where, (long long)o.length, (long long)o.multiple, (int)FL__TOK_PADDED);
        return fl_text_tokenizer_pad(t, o);
    }
    return true;
}

FL_API fl_text_added_token fl_text_added_of(const fl_text_tree *e, int64_t *id) {
    if (!fl_given(e, "fl_text_added_of", "the object") ||
        !fl_given(id, "fl_text_added_of", "the id")) return (fl_text_added_token){0};
    fl_text_added_token a = {.special = fl_text_tree_true(e, "special", false),
                             .single_word = fl_text_tree_true(e, "single_word", false),
                             .lstrip = fl_text_tree_true(e, "lstrip", false),
                             .rstrip = fl_text_tree_true(e, "rstrip", false),
                             .unreachable = fl_text_tree_true(e, "unreachable", false)};
    a.normalized = fl_text_tree_true(e, "normalized", !a.special);
    a.text = fl_text_tree_string(e, "content", &a.n, NULL);
    *id = fl_text_tree_int(e, "id", -1);
    return a;
}

static bool fl__tok_add_listed(fl_text_tokenizer *t, const fl_text_tree *list, const char *where) {
    bool ok = true;
    for (const fl_text_tree *e = list ? list->first : NULL; ok && e; e = e->next) {
        int64_t id = -1;
        fl_text_added_token a = fl_text_added_of(e, &id);
        a.id = (int32_t)id;
        if (!a.text) a.text = "";
        ok = (id >= -1 && id < INT32_MAX) ||
             fl_fail("%s: added token: id is out of range: got %lld", where, (long long)id);
        ok = ok && fl__tok_add(t, a, where);
    }
    return ok;
}

FL_API bool fl_text_pipeline_bytes(const fl_text_tree *pipeline) {
    const fl_text_tree *p = fl_text_tree_at(pipeline, "pre_tokenizer"),
                       *list = fl_text_tree_at(p, "pretokenizers");
    if (list && !strcmp(fl_text_tree_string(p, "type", NULL, ""), "Sequence"))
        for (p = list->first; p && p->next;) p = p->next;
    return !strcmp(fl_text_tree_string(p, "type", NULL, ""), "ByteLevel");
}

FL_API fl_text_tokenizer *fl_text_tokenizer_of(fl_text_model *m, fl_text_tree *pipeline,
                                               const fl_text_added_token *added, int64_t n_added,
                                               const char *where) {
    const bool mine = fl_given(m, "fl_text_tokenizer_of", "the model") &&
                      (fl__text_owner(m->vocab) == m ||
                       fl_err_false("fl_text_tokenizer_of: the model is owned by another tokenizer"));
    fl_text_tokenizer *t = mine ? fl_heap_alloc(sizeof *t) : NULL;
    if (!t) {
        fl_text_model_free(m);
        fl_text_tree_free(pipeline);
        return NULL;
    }
    fl__text_set_owner(m->vocab, t);
    t->model = m, t->pipeline = pipeline, t->size = fl_text_dictionary_size(m->vocab);
    pthread_mutex_init(&t->lock, NULL);
    t->bytes = fl_text_pipeline_bytes(pipeline);
    bool ok = fl_text_normalizers_of(&t->normalize, fl_text_tree_at(pipeline, "normalizer"), where) &&
              fl_text_splits_of(&t->split, fl_text_tree_at(pipeline, "pre_tokenizer"), where) &&
              fl_text_decoders_of(&t->decode, fl_text_tree_at(pipeline, "decoder"), t->bytes, where) &&
              fl__tok_post(t, fl_text_tree_at(pipeline, "post_processor"), where) &&
              fl__tok_add_listed(t, fl_text_tree_at(pipeline, "added_tokens"), where);
    for (int64_t i = 0; ok && i < n_added; i++) ok = fl__tok_add(t, added[i], where);
    if (ok && fl__tok_tries(t) && fl__tok_lengths(t, where)) return t;
    fl_text_tokenizer_free(t);
    return NULL;
}

FL_API fl_text_tokenizer *fl_text_tokenizer_new(fl_text_model *m, const char *json,
                                                const fl_text_added_token *added, int64_t n_added,
                                                const char *where) {
    fl_data_json *j = NULL;
    if (fl_given(m, "fl_text_tokenizer_new", "the model") && fl_given(json, "fl_text_tokenizer_new", "json"))
        j = fl_data_json_of(json, strlen(json), .who = where, .name = "the pipeline");
    fl_text_tree *tree = j ? fl_text_tree_read(j) : NULL;
    fl_data_json_close(j);
    if (tree) return fl_text_tokenizer_of(m, tree, added, n_added, where);
    fl_text_model_free(m);
    return NULL;
}

FL_API void fl_text_tokenizer_free(fl_text_tokenizer *t) {
    if (!t || fl_is_freed(t, "fl_text_tokenizer_free", "the tokenizer")) return;
    fl__tok_work_free(t);
    fl__text_set_owner(t->model->vocab, t->model);
    fl_text_model_free(t->model);
    fl_text_steps_free(&t->normalize);
    fl_text_steps_free(&t->split);
    fl_text_steps_free(&t->decode);
    fl_text_tree_free(t->pipeline);
    fl_heap_free(t->added);
    fl_heap_free(t->added_ids.slot);
    fl_text_dictionary_free(t->added_texts);
    fl_data_arena_free(&t->text);
    fl_text_trie_free(&t->raw);
    fl_text_trie_free(&t->normal);
    fl_heap_free(t->single.v);
    fl_heap_free(t->pair.v);
    pthread_mutex_destroy(&t->lock);
    fl_object_free(t, "tokenizer", "");
}

/* ---- to tokenizer.json ---- */

static const char *fl__tok_bool(bool b) {
    return b ? "true" : "false";
}

static bool fl__tok_put_lengths(const fl_text_tokenizer *t, fl_data_text *out) {
    static const char *const strategy[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    const fl_text_truncation *c = &t->truncation;
    const fl_text_padding *p = &t->padding;
    bool ok = fl_data_text_print(out, "{\"version\":\"1.0\",\n\"truncation\":");
    if (!c->max_length) ok = ok && fl_data_text_print(out, "null");
    else
        ok = ok && fl_data_text_print(out,
                                      "{\"direction\":\"%s\",\"max_length\":%lld,\"strategy\":\"%s\","
                                      "\"stride\":%lld}",
                                      c->left ? "Left" : "Right", (long long)c->max_length,
                                      strategy[c->strategy], (long long)c->stride);
    if (!p->on) return ok && fl_data_text_print(out, ",\n\"padding\":null");
    ok = ok && fl_data_text_print(out, ",\n\"padding\":{\"strategy\":") &&
         (p->length ? fl_data_text_print(out, "{\"Fixed\":%lld}", (long long)p->length)
                    : fl_data_text_print(out, "\"BatchLongest\"")) &&
         fl_data_text_print(out, ",\"direction\":\"%s\",\"pad_to_multiple_of\":",
                            p->left ? "Left" : "Right") &&
         (p->multiple ? fl_data_text_print(out, "%lld", (long long)p->multiple)
                      : fl_data_text_print(out, "null"));
    return ok &&
           fl_data_text_print(out, ",\"pad_id\":%d,\"pad_type_id\":%d,\"pad_token\":", (int)p->id, p->type) &&
           fl_data_json_put_string(out, p->token, strlen(p->token)) && fl_data_text_print(out, "}");
}

FL_API bool fl_text_tokenizer_json(const fl_text_tokenizer *t, fl_data_text *out) {
    if (!fl_given(t, "fl_text_tokenizer_json", "the tokenizer") ||
        !fl_given(out, "fl_text_tokenizer_json", "the text")) return false;
    static const char *const part[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
    bool ok = fl__tok_put_lengths(t, out) && fl_data_text_print(out, ",\n\"added_tokens\":[");
    for (int64_t i = 0; ok && i < t->n_added; i++) {
        const fl_text_added_token *a = &t->added[i];
        ok = fl_data_text_print(out, "%s{\"id\":%d,\"content\":", i ? ",\n" : "", (int)a->id) &&
             fl_data_json_put_string(out, a->text, (size_t)a->n) &&
             fl_data_text_print(out,
                                ",\"single_word\":%s,\"lstrip\":%s,\"rstrip\":%s,\"normalized\":%s,"
                                "\"special\":%s%s}",
                                fl__tok_bool(a->single_word), fl__tok_bool(a->lstrip),
                                fl__tok_bool(a->rstrip), fl__tok_bool(a->normalized),
                                fl__tok_bool(a->special), a->unreachable ? ",\"unreachable\":true" : "");
    }
    ok = ok && fl_data_text_print(out, "]");
    for (int i = 0; ok && i < 4; i++)
        ok = fl_data_text_print(out, ",\n\"%s\":", part[i]) &&
             fl_text_tree_put(out, fl_text_tree_at(t->pipeline, part[i]));
    return ok && fl_data_text_print(out, ",\n\"model\":{\"type\":\"%s\"", t->model->type) &&
           t->model->put(t->model, t->bytes, out) && fl_data_text_print(out, "}}\n");
}

FL_API bool fl_text_tokenizer_save(const fl_text_tokenizer *t, const char *path) {
    fl_data_text out = {0};
    const bool ok = fl_text_tokenizer_json(t, &out) &&
                    fl_data_replace("fl_text_tokenizer_save", path, out.p, (size_t)out.n);
    fl_heap_free(out.p);
    return ok;
}

FL_API uint64_t fl_text_tokenizer_hash(const fl_text_tokenizer *t) {
    fl_data_text out = {0};
    const uint64_t hash = fl_text_tokenizer_json(t, &out) ? fl_text_hash(out.p, out.n) : 0;
    fl_heap_free(out.p);
    return hash;
}

#endif
#endif

/* MIT licence: see LICENSE. */
