/* fl/text/tokenizers/steps.h - the pipeline of a tokenizer: steps, their double-buffered text, work limits */
#ifndef FL_TEXT_TOKENIZERS_STEPS_H
#define FL_TEXT_TOKENIZERS_STEPS_H
#include "../../data/file.h"
#include "pattern.h"
#include "tree.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_step fl_text_step;

typedef struct fl_text_piece {
    uint32_t begin, end; /* byte range in the current text */
    int32_t id;          /* of an added token, which steps do not change; -1: text */
} fl_text_piece;

typedef struct fl_text_token {
    int32_t id;
    uint32_t begin, end;
} fl_text_token;

/* Text written by a step, with the range of the original text for each byte. */
typedef struct fl_text_changed {
    char *p;
    uint32_t *from, *to;
    int64_t n, cap_, from_cap_, to_cap_;
} fl_text_changed;

/* What steps operate on. A normalizer rewrites the text, a pre-tokenizer splits it into pieces, for a
   decoder pieces are tokens. Double-buffered: a step reads the current text or pieces, writes the next ones,
   and swaps. Positions are below 2^31. */
typedef struct fl_text_work {
    const char *p; /* the current text */
    int64_t n;
    const uint32_t *from, *to; /* original range of each byte; NULL: byte i is base + i */
    uint32_t base;
    bool mapped; /* ranges are needed */
    bool first, last; /* this is the first, the last section of the whole text */
    fl_text_piece *piece;
    int64_t n_pieces, at; /* at: current piece of fl_text_work_each */
    fl_text_token *token; /* the model's output */
    int64_t n_tokens;
    void *memo, *cache; /* workspaces of the model and of the tokenizer, blocks of fl_heap_alloc */
    int64_t memo_bytes; /* heap memory of memo, proportional to a piece's length */
    double sum;         /* score of the tokens so far, for models that sum over the whole text */
    const char *original; /* the whole text */
    int64_t most, left; /* bytes that a step may write; remaining units of work; see fl_text_work_limit */
    /* private */
    fl_text_changed text_[2];
    fl_text_piece *pieces_[2];
    int64_t n_next_, piece_cap_[2], token_cap_;
    int text_at_, piece_at_;
} fl_text_work;

/* Sets the limits for a text of n bytes, independent of the tokenizer's file: a step may write at most 64 n
   + 8192 bytes, all steps together may spend 600 n + 2^20 units of work (about 1 ns each). Natural language
   takes less than 150 n. */
FL_API void fl_text_work_limit(fl_text_work *w, int64_t n);
/* Sets the limits and clears all state, for a new text. */
FL_API void fl_text_work_begin(fl_text_work *w, int64_t n);
/* Charges work that may exceed the text's length. Returns false after fl_fail, if the limit is exceeded. */
static inline bool fl_text_work_spend(fl_text_work *w, int64_t units) {
    w->left -= units;
    return w->left >= 0 || fl_text_work_exceeded();
}
/* As fl_heap_grow, but over-allocates by an eighth at most: for arrays as long as a text. */
FL_API bool fl_text_work_reserve(void *array, int64_t *cap, int64_t need, size_t size);
/* Appends bytes to the next text that stand for [from, to) of the original. Returns false after fl_fail. */
FL_API bool fl_text_work_put(fl_text_work *w, const char *bytes, int64_t n, uint32_t from, uint32_t to);
/* Appends a range of the current text, unchanged. */
FL_API bool fl_text_work_copy(fl_text_work *w, int64_t begin, int64_t end);
/* Restricts the current text to bytes [begin, end). */
FL_API void fl_text_work_keep(fl_text_work *w, int64_t begin, int64_t end);
/* Makes the next text the current one. */
FL_API void fl_text_work_swap(fl_text_work *w);
FL_API int64_t fl_text_work_next(const fl_text_work *w); /* length of the next text so far */
/* Appends a piece to the next pieces. */
FL_API bool fl_text_work_cut(fl_text_work *w, int64_t begin, int64_t end, int32_t id);
/* Makes the next pieces the current ones. */
FL_API void fl_text_work_swap_pieces(fl_text_work *w);
/* Appends a token. */
FL_API bool fl_text_work_token(fl_text_work *w, int32_t id, int64_t begin, int64_t end);
/* Calls `one` for each piece that is text, copies the others, and swaps the pieces. `one` splits the piece;
   or, with writes, appends the piece's new text, and the text is swapped too. */
typedef bool (*fl_text_piece_fn)(const fl_text_step *s, fl_text_work *w, fl_text_piece p);
FL_API bool fl_text_work_each(const fl_text_step *s, fl_text_work *w, bool writes, fl_text_piece_fn one);
/* The range [from, to) of the original that byte i stands for. */
static inline uint32_t fl_text_work_from(const fl_text_work *w, int64_t i) {
    return w->from ? w->from[i] : w->base + (uint32_t)i;
}
static inline uint32_t fl_text_work_to(const fl_text_work *w, int64_t i) {
    return w->to ? w->to[i] : w->base + (uint32_t)i + 1;
}
/* Fails for a character of the current text that is not in the vocabulary: "offset 7, line 2: ...". False. */
FL_API bool fl_text_work_unknown(const fl_text_work *w, uint32_t at);
/* Heap memory of the buffers in bytes. */
FL_API int64_t fl_text_work_bytes(const fl_text_work *w);
/* Frees the buffers; w can be used again. */
FL_API void fl_text_work_release(fl_text_work *w);
/* Frees everything in w. */
FL_API void fl_text_work_free(fl_text_work *w);

/* A kind of step, by the "type" of its object. One of: run, for the whole text; cut and write, for each
   piece; none: a step without effect. make (NULL: nothing to prepare) reads s->options; returns false after
   fl_fail, with `where` as the prefix of the error. */
typedef struct fl_text_kind {
    const char *type;
    bool (*run)(const fl_text_step *s, fl_text_work *w);
    fl_text_piece_fn cut, write;
    bool (*make)(fl_text_step *s, const char *where);
    int64_t value; /* initial value of its steps */
} fl_text_kind;
struct fl_text_step {
    const fl_text_kind *kind;
    const fl_text_tree *options; /* the object with its settings, borrowed */
    fl_text_pattern *pattern;    /* of the kind; freed with the step */
    void *data;                  /* of the kind, a block of fl_heap_alloc; freed with the step */
    int64_t value;
};
typedef struct fl_text_steps {
    fl_text_step *v;
    int64_t n, cap_;
} fl_text_steps;
/* The steps of an object {"type": ...}, of a "Sequence" with such objects in the list `list`, or of NULL:
   none. A key "exact" names a type of fl that replaces "type", with the object's other settings; other
   libraries ignore it and do what "type" says, which is close. Returns false after fl_fail. */
FL_API bool fl_text_steps_of(fl_text_steps *out, const fl_text_tree *t, const char *list,
                             const fl_text_kind *kind, const char *where);
/* Runs all steps. Returns false after fl_fail. */
FL_API bool fl_text_steps_run(const fl_text_steps *s, fl_text_work *w);
FL_API void fl_text_steps_free(fl_text_steps *s);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_STEPS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_STEPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_STEPS_IMPL
#define FL_TEXT_TOKENIZERS_STEPS_IMPL
#include "../utf8.h"
#include <string.h>

enum { FL__WORK_GROWTH = 64, FL__WORK_UNITS = 600, FL__WORK_PUT = 4, FL__WORK_STEP = 8, FL__WORK_TOKEN = 16 };

FL_API void fl_text_work_begin(fl_text_work *w, int64_t n) {
    if (!fl_given(w, "fl_text_work_begin", "the work")) return;
    w->text_at_ = w->piece_at_ = 0, w->n_pieces = w->n_next_ = w->text_[0].n = w->text_[1].n = 0;
    w->sum = 0;
    fl_text_work_limit(w, n);
}

FL_API void fl_text_work_limit(fl_text_work *w, int64_t n) {
    if (!fl_given(w, "fl_text_work_limit", "the work")) return;
    w->most = FL__WORK_GROWTH * n + (1 << 13);
    if (w->most > INT32_MAX) w->most = INT32_MAX;
    w->left = FL__WORK_UNITS * n + (1 << 20);
}

FL_API bool fl_text_work_reserve(void *array, int64_t *cap, int64_t need, size_t size) {
    if (!fl_given(array, "fl_text_work_reserve", "the array") ||
        !fl_given(cap, "fl_text_work_reserve", "the capacity")) return false;
    void *p;
    if (need <= *cap) return true;
    memcpy(&p, array, sizeof p); /* array is a T **, as in fl_heap_grow */
    need += need / 8;
    if (!(p = fl_heap_realloc(p, (size_t)need * size))) return false;
    memcpy(array, &p, sizeof p);
    *cap = need;
    return true;
}

FL_API bool fl_text_work_put(fl_text_work *w, const char *bytes, int64_t n, uint32_t from, uint32_t to) {
    if (!fl_given(w, "fl_text_work_put", "the work")) return false;
    fl_text_changed *t = &w->text_[w->text_at_];
    const int64_t need = t->n + n;
    if (need > w->most)
        return fl_fail("fl_text: a step of the tokenizer makes the text too long: got %lld bytes, expected "
                       "at most "
                       "%lld: %d times the text + 8 KiB", (long long)need, (long long)w->most,
                       (int)FL__WORK_GROWTH);
    if (!fl_text_work_spend(w, FL__WORK_PUT * n)) return false;
    if (need > t->cap_ && !fl_text_work_reserve(&t->p, &t->cap_, need, 1)) return false;
    if (w->mapped && need > t->to_cap_ &&
        (!fl_text_work_reserve(&t->from, &t->from_cap_, need, sizeof *t->from) ||
         !fl_text_work_reserve(&t->to, &t->to_cap_, need, sizeof *t->to)))
        return false;
    for (int64_t i = 0; i < n; i++) t->p[t->n + i] = bytes[i];
    for (int64_t i = t->n; w->mapped && i < need; i++) t->from[i] = from, t->to[i] = to;
    t->n = need;
    return true;
}

FL_API bool fl_text_work_copy(fl_text_work *w, int64_t begin, int64_t end) {
    if (!fl_given(w, "fl_text_work_copy", "the work")) return false;
    fl_text_changed *t = &w->text_[w->text_at_];
    const int64_t at = t->n;
    if (end <= begin) return true;
    if (!fl_text_work_put(w, w->p + begin, end - begin, 0, 0)) return false;
    for (int64_t i = begin; w->mapped && i < end; i++) {
        t->from[at + i - begin] = fl_text_work_from(w, i);
        t->to[at + i - begin] = fl_text_work_to(w, i);
    }
    return true;
}

FL_API int64_t fl_text_work_next(const fl_text_work *w) {
    return fl_given(w, "fl_text_work_next", "the work") ? w->text_[w->text_at_].n : 0;
}

FL_API void fl_text_work_keep(fl_text_work *w, int64_t begin, int64_t end) {
    if (!fl_given(w, "fl_text_work_keep", "the work")) return;
    w->p += begin, w->n = end > begin ? end - begin : 0, w->base += (uint32_t)begin;
    if (w->from) w->from += begin, w->to += begin;
}

FL_API void fl_text_work_swap(fl_text_work *w) {
    if (!fl_given(w, "fl_text_work_swap", "the work")) return;
    const fl_text_changed *t = &w->text_[w->text_at_];
    w->p = t->p ? t->p : "", w->n = t->n;
    w->from = w->mapped ? t->from : NULL, w->to = w->mapped ? t->to : NULL;
    w->text_at_ ^= 1;
    w->text_[w->text_at_].n = 0;
}

FL_API bool fl_text_work_cut(fl_text_work *w, int64_t begin, int64_t end, int32_t id) {
    if (!fl_given(w, "fl_text_work_cut", "the work")) return false;
    const int k = w->piece_at_;
    if (w->n_next_ >= w->piece_cap_[k] &&
        !fl_text_work_reserve(&w->pieces_[k], &w->piece_cap_[k], w->n_next_ + 8, sizeof *w->pieces_[k]))
        return false;
    w->pieces_[k][w->n_next_++] = (fl_text_piece){(uint32_t)begin, (uint32_t)end, id};
    return true;
}

FL_API void fl_text_work_swap_pieces(fl_text_work *w) {
    if (!fl_given(w, "fl_text_work_swap_pieces", "the work")) return;
    w->piece = w->pieces_[w->piece_at_], w->n_pieces = w->n_next_;
    w->piece_at_ ^= 1, w->n_next_ = 0;
}

FL_API bool fl_text_work_each(const fl_text_step *s, fl_text_work *w, bool writes, fl_text_piece_fn one) {
    if (!fl_given(s, "fl_text_work_each", "the step") || !fl_given(w, "fl_text_work_each", "the work"))
        return false;
    bool ok = true;
    for (w->at = 0; ok && w->at < w->n_pieces; w->at++) {
        const fl_text_piece p = w->piece[w->at];
        const int64_t from = fl_text_work_next(w);
        if (p.id < 0) ok = one(s, w, p);
        else ok = writes ? fl_text_work_copy(w, p.begin, p.end) : fl_text_work_cut(w, p.begin, p.end, p.id);
        ok = ok && (!writes || fl_text_work_cut(w, from, fl_text_work_next(w), p.id));
    }
    if (writes) fl_text_work_swap(w);
    fl_text_work_swap_pieces(w);
    return ok;
}

FL_API bool fl_text_work_token(fl_text_work *w, int32_t id, int64_t begin, int64_t end) {
    if (!fl_given(w, "fl_text_work_token", "the work")) return false;
    if (!fl_text_work_spend(w, FL__WORK_TOKEN)) return false;
    if (w->n_tokens >= w->token_cap_ &&
        !fl_text_work_reserve(&w->token, &w->token_cap_, w->n_tokens + 8, sizeof *w->token))
        return false;
    w->token[w->n_tokens++] = (fl_text_token){id, (uint32_t)begin, (uint32_t)end};
    return true;
}

FL_API bool fl_text_work_unknown(const fl_text_work *w, uint32_t at) {
    if (!fl_given(w, "fl_text_work_unknown", "the work")) return false;
    int len;
    const int64_t from = fl_text_work_from(w, at);
    const int32_t c = fl_text_utf8_decode(w->p + at, w->n - at, &len);
    int64_t line = 1;
    for (int64_t i = 0; w->original && i < from; i++) line += w->original[i] == '\n';
    return fl_fail("fl_text_encode: offset %lld, line %lld: character U+%04X '%.*s' is not in the "
                   "vocabulary, and "
                   "there is no unknown token",
                   (long long)from, (long long)line, (unsigned)c, len, w->p + at);
}

FL_API int64_t fl_text_work_bytes(const fl_text_work *w) {
    if (!fl_given(w, "fl_text_work_bytes", "the work")) return 0;
    int64_t bytes = 0;
    for (int k = 0; k < 2; k++)
        bytes += w->text_[k].cap_ + 4 * (w->text_[k].from_cap_ + w->text_[k].to_cap_) +
                 w->piece_cap_[k] * (int64_t)sizeof(fl_text_piece);
    return bytes;
}

FL_API void fl_text_work_release(fl_text_work *w) {
    if (!w) return;
    for (int k = 0; k < 2; k++) {
        fl_heap_free(w->text_[k].p);
        fl_heap_free(w->text_[k].from);
        fl_heap_free(w->text_[k].to);
        fl_heap_free(w->pieces_[k]);
        w->text_[k] = (fl_text_changed){0}, w->pieces_[k] = NULL, w->piece_cap_[k] = 0;
    }
}

FL_API void fl_text_work_free(fl_text_work *w) {
    if (!w) return;
    fl_text_work_release(w);
    fl_heap_free(w->token);
    fl_heap_free(w->cache);
    *w = (fl_text_work){0};
}

/* Limits settings, because steps read them for each piece, and their strings at each position. */
static bool fl__steps_limit(const fl_text_tree *t, const char *where) {
    enum { SETTINGS = 32, BYTES = 1024 };
    int n = 0;
    for (const fl_text_tree *s = t->first; s; s = s->next) {
        const bool any = s->key && (!strcmp(s->key, "Regex") || !strcmp(s->key, "precompiled_charsmap"));
        if (++n > SETTINGS)
            return fl_fail("%s: a step has too many settings, expected at most %d", where, (int)SETTINGS);
        if (s->n > BYTES && !any)
            return fl_fail("%s: \"%.60s\" is too long: got %lld bytes, expected at most %d", where,
                           s->key ? s->key : "", (long long)s->n, (int)BYTES);
        if (s->event == FL_DATA_JSON_OBJECT && !fl__steps_limit(s, where)) return false;
    }
    return true;
}

FL_API bool fl_text_steps_of(fl_text_steps *out, const fl_text_tree *t, const char *list,
                             const fl_text_kind *kind, const char *where) {
    if (!t || t->event == FL_DATA_JSON_NULL) return true;
    const char *type = fl_text_tree_string(t, "exact", NULL, fl_text_tree_string(t, "type", NULL, NULL));
    if (!type) return fl_fail("%s: a step of \"%s\" has no type", where, list);
    if (!strcmp(type, "Sequence")) {
        const fl_text_tree *steps = fl_text_tree_at(t, list);
        bool ok = steps && steps->event == FL_DATA_JSON_ARRAY;
        if (!ok) return fl_fail("%s: a Sequence has no \"%s\"", where, list);
        for (const fl_text_tree *s = steps->first; ok && s; s = s->next)
            ok = fl_text_steps_of(out, s, list, kind, where);
        return ok;
    }
    while (kind->type && strcmp(kind->type, type)) kind++;
    if (!kind->type) return fl_fail("%s: \"%s\" has unknown type \"%.60s\"", where, list, type);
    if (!fl__steps_limit(t, where)) return false;
    if (!fl_heap_grow(&out->v, &out->cap_, out->n + 1, sizeof *out->v)) return false;
    fl_text_step *s = &out->v[out->n++];
    *s = (fl_text_step){.kind = kind, .options = t, .value = kind->value};
    return !kind->make || kind->make(s, where);
}

FL_API bool fl_text_steps_run(const fl_text_steps *s, fl_text_work *w) {
    if (!fl_given(s, "fl_text_steps_run", "the steps") ||
        !fl_given(w, "fl_text_steps_run", "the work")) return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n; i++) {
        const fl_text_kind *k = s->v[i].kind;
        if (!fl_text_work_spend(w, FL__WORK_STEP * (w->n + w->n_pieces + 4))) return false;
        if (k->run) ok = k->run(&s->v[i], w);
        else if (k->cut) ok = fl_text_work_each(&s->v[i], w, false, k->cut);
        else if (k->write) ok = fl_text_work_each(&s->v[i], w, true, k->write);
    }
    return ok;
}

FL_API void fl_text_steps_free(fl_text_steps *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) fl_text_pattern_free(s->v[i].pattern), fl_heap_free(s->v[i].data);
    fl_heap_free(s->v);
    *s = (fl_text_steps){0};
}

#endif
#endif

/* MIT licence: see LICENSE. */
