/* fl/text/tokenizers/bpe.h - byte-pair encoding: merges, ranks, byte fallback; the byte tokenizer */
#ifndef FL_TEXT_TOKENIZERS_BPE_H
#define FL_TEXT_TOKENIZERS_BPE_H
#include "../dictionary.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_merge {
    int32_t left, right;
} fl_text_merge;

/* Symbols, bytes or characters, are merged in pairs: first the pair of the lowest rank, the leftmost of equal
   ones, until no pair has a rank (Sennrich 2016). */
typedef struct fl_text_bpe_opts {
    fl_opts_guard guard_;
    const fl_text_merge *merge; /* by rank: merges two tokens to the token of their concatenated text */
    int64_t n_merges;
    const float *score;   /* per token, instead of merges: any two tokens that spell a token are merged, */
    bool by_id;           /* to the one with the highest score; or the lowest id (tiktoken) */
    bool bytes;           /* symbols are bytes */
    bool byte_fallback;   /* unknown characters become the tokens of their bytes, "<0x0A>" */
    bool fuse_unk;        /* consecutive unknown characters are one token */
    bool ignore_merges;   /* a piece that is a token is taken as it is */
    const char *unk;      /* token of unknown characters; NULL: they are errors */
    const char *prefix;   /* of tokens that continue a piece; NULL: none */
    const char *suffix;   /* of tokens that end a piece; NULL: none */
    const char *where;    /* prefix of error texts */
    char _end;
} fl_text_bpe_opts;
/* A BPE model; takes vocab, also on failure. Returns NULL after fl_fail. */
FL_API fl_text_model *fl_text_bpe_opt(fl_text_dictionary *vocab, fl_text_bpe_opts o);
#define fl_text_bpe(...) FL__TEXT_BPE(__VA_ARGS__, ._end = 0)
#define FL__TEXT_BPE(vocab, ...) fl_text_bpe_opt(vocab, FL_LITERAL(fl_text_bpe_opts, __VA_ARGS__))

/* A tokenizer with the 256 bytes as tokens; an id is the byte's value. */
FL_API fl_text_tokenizer *fl_text_byte_tokenizer(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_BPE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_BPE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_BPE_IMPL
#define FL_TEXT_TOKENIZERS_BPE_IMPL
#include "../../data/json.h"
#include "bytes.h"
#include "../pairs.h"
#include "../utf8.h"
#include "vocabulary.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fl__bpe {
    fl_text_model m;
    fl_text_bpe_opts o; /* strings are copies; merge and score are NULL */
    fl_text_pairs pairs; /* pair -> rank and merged token */
    uint8_t *whole; /* per token: 0 unknown, 1 merging its bytes gives the token, 2 it does not */
    int32_t unk, byte[256]; /* ids of bytes or their fallback tokens; -1: none */
    fl_data_arena text;
} fl__bpe;

/* A symbol of a piece, in a doubly linked list of the remaining ones. */
typedef struct fl__bpe_symbol {
    int32_t id, next, before; /* -1: end of the list */
    uint32_t begin, rank; /* rank: of the pair with the next symbol */
    int32_t joined;
} fl__bpe_symbol;

enum { FL__BPE_SHORT = 48, FL__BPE_LONG = 64 }; /* bytes; units of work per byte of a longer piece */

typedef struct fl__bpe_heap {
    uint32_t rank;
    int32_t at; /* left symbol of the pair; the entry is stale if its rank has changed */
} fl__bpe_heap;

typedef struct fl__bpe_memo {
    fl__bpe_symbol *symbol, few[FL__BPE_SHORT];
    fl__bpe_heap *heap;
    int64_t cap, heap_cap, n_heap;
} fl__bpe_memo;

/* ---- pairs ---- */

/* Of duplicate pairs the lower rank wins. */
static bool fl__bpe_add(fl__bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    fl_text_pair *p = fl_text_pairs_add(&b->pairs, left, right);
    if (p && rank < p->rank) p->rank = rank, p->id = id;
    return p != NULL;
}

/* Merge k has rank k: it concatenates two tokens, without the prefix of the second. */
static bool fl__bpe_take_merges(fl__bpe *b, const fl_text_merge *merge, int64_t n) {
    char small[256];
    const int64_t prefix = b->o.prefix ? (int64_t)strlen(b->o.prefix) : 0;
    bool ok = fl_text_pairs_reserve(&b->pairs, n);
    for (int64_t i = 0; ok && i < n; i++) {
        int64_t left, right;
        const char *l = fl_text_dictionary_entry(b->m.vocab, merge[i].left, &left);
        const char *r = fl_text_dictionary_entry(b->m.vocab, merge[i].right, &right);
        if (!l || !r || right < prefix)
            return fl_fail("%s: merge %lld: a side is not a token", b->o.where, (long long)i);
        char *both = left + right <= (int64_t)sizeof small ? small : fl_heap_alloc((size_t)(left + right));
        if (!both) return false;
        memcpy(both, l, (size_t)left);
        memcpy(both + left, r + prefix, (size_t)(right - prefix));
        const int64_t id = fl_text_dictionary_find(b->m.vocab, both, left + right - prefix);
        if (both != small) fl_heap_free(both);
        if (id < 0)
            return fl_fail("%s: merge %lld: '%.60s' and '%.60s' do not make a token", b->o.where,
                           (long long)i, l, r);
        ok = fl__bpe_add(b, merge[i].left, merge[i].right, (uint32_t)i, (int32_t)id);
    }
    return ok;
}

typedef struct fl__bpe_scored {
    float score;
    int32_t id;
} fl__bpe_scored;

static int fl__bpe_by_score(const void *x, const void *y) {
    const fl__bpe_scored *a = x, *b = y;
    return a->score != b->score ? (a->score < b->score) - (a->score > b->score)
                                : (a->id > b->id) - (a->id < b->id);
}

/* Adds all ways to split a token in two tokens, with the rank of the whole; only lengths that tokens have are
   tried, so that long tokens are not split at every byte. */
static bool fl__bpe_take_splits(fl__bpe *b) {
    const int64_t n = fl_text_dictionary_size(b->m.vocab);
    int64_t len, longest = 0;
    uint32_t rank = 0;
    for (int64_t i = 0; i < n; i++) {
        fl_text_dictionary_entry(b->m.vocab, i, &len);
        if (len > longest) longest = len;
    }
    fl__bpe_scored *order = fl_heap_alloc((size_t)(n + 1) * sizeof *order);
    uint8_t *has = order ? fl_heap_alloc((size_t)longest + 1) : NULL; /* is there a token of that length? */
    bool ok = has != NULL && fl_text_pairs_reserve(&b->pairs, n);
    for (int64_t i = 0; ok && i < n; i++) {
        order[i] = (fl__bpe_scored){b->o.score ? b->o.score[i] : 0, (int32_t)i};
        fl_text_dictionary_entry(b->m.vocab, i, &len);
        has[len] = 1;
    }
    if (ok && b->o.score) qsort(order, (size_t)n, sizeof *order, fl__bpe_by_score);
    for (int64_t i = 0; ok && i < n; i++) {
        const char *text = fl_text_dictionary_entry(b->m.vocab, order[i].id, &len);
        rank = b->o.score && i && order[i].score == order[i - 1].score ? rank : (uint32_t)i;
        for (int64_t k = 1; ok && text && k < len; k++) {
            if (!has[k] || !has[len - k] || (!b->o.bytes && ((uint8_t)text[k] & 0xc0) == 0x80)) continue;
            const int64_t left = fl_text_dictionary_find(b->m.vocab, text, k);
            const int64_t right = left < 0 ? -1 : fl_text_dictionary_find(b->m.vocab, text + k, len - k);
            if (right >= 0) ok = fl__bpe_add(b, (int32_t)left, (int32_t)right, rank, order[i].id);
        }
    }
    fl_heap_free(has);
    fl_heap_free(order);
    return ok;
}

/* ---- symbols ---- */

static inline void fl__bpe_put(fl__bpe_symbol *s, int32_t *n, int32_t id, uint32_t begin) {
    s[*n] = (fl__bpe_symbol){id, *n + 1, *n - 1, begin, FL_TEXT_NO_RANK, 0};
    ++*n;
}

/* Adds symbols for the unknown character at [i, i + len): its bytes, the unknown token, or an error. */
static bool fl__bpe_unknown(const fl__bpe *b, const fl_text_work *w, fl__bpe_symbol *s, int32_t *n,
                            uint32_t i, int len) {
    bool all = b->o.byte_fallback;
    for (int k = 0; all && k < len; k++) all = b->byte[(uint8_t)w->p[i + (uint32_t)k]] >= 0;
    for (int k = 0; all && k < len; k++)
        fl__bpe_put(s, n, b->byte[(uint8_t)w->p[i + (uint32_t)k]], i + (uint32_t)k);
    if (all) return true;
    if (b->unk < 0) return fl_text_work_unknown(w, i);
    if (!b->o.fuse_unk || !*n || s[*n - 1].id != b->unk) fl__bpe_put(s, n, b->unk, i);
    return true;
}

/* Splits a piece into *n symbols. */
static bool fl__bpe_symbols(const fl__bpe *b, const fl_text_work *w, fl__bpe_symbol *s,
                            uint32_t begin, uint32_t end, int32_t *n) {
    const size_t prefix = b->o.prefix ? strlen(b->o.prefix) : 0,
                 suffix = b->o.suffix ? strlen(b->o.suffix) : 0;
    char text[256];
    int len = 1;
    *n = 0;
    for (uint32_t i = begin; i < end; i += (uint32_t)len) {
        int32_t id;
        if (b->o.bytes) id = b->byte[(uint8_t)w->p[i]];
        else {
            fl_text_utf8_decode(w->p + i, end - i, &len);
            size_t size = i > begin ? prefix : 0;
            if (size) memcpy(text, b->o.prefix, size);
            memcpy(text + size, w->p + i, (size_t)len);
            size += (size_t)len;
            if (suffix && i + (uint32_t)len == end) memcpy(text + size, b->o.suffix, suffix), size += suffix;
            id = (int32_t)fl_text_dictionary_find(b->m.vocab, text, (int64_t)size);
        }
        if (id >= 0) fl__bpe_put(s, n, id, i);
        else if (!fl__bpe_unknown(b, w, s, n, i, len)) return false;
    }
    s[*n - 1].next = -1;
    return true;
}

/* ---- merging ---- */

static inline void fl__bpe_lookup(const fl__bpe *b, fl__bpe_symbol *s, int32_t i) {
    if (i < 0) return;
    const fl_text_pair *p = s[i].next < 0 ? NULL : fl_text_pairs_find(&b->pairs, s[i].id, s[s[i].next].id);
    s[i].rank = p ? p->rank : FL_TEXT_NO_RANK;
    s[i].joined = p ? p->id : 0;
}

static inline void fl__bpe_join(const fl__bpe *b, fl__bpe_symbol *s, int32_t i) {
    const int32_t gone = s[i].next;
    s[i].id = s[i].joined, s[i].next = s[gone].next;
    if (s[i].next >= 0) s[s[i].next].before = i;
    s[gone].rank = FL_TEXT_NO_RANK;
    fl__bpe_lookup(b, s, i);
    fl__bpe_lookup(b, s, s[i].before);
}

/* Few symbols: each merge scans all pairs. */
static void fl__bpe_join_few(const fl__bpe *b, fl__bpe_symbol *s) {
    for (;;) {
        uint32_t rank = FL_TEXT_NO_RANK;
        int32_t best = -1;
        for (int32_t i = 0; i >= 0; i = s[i].next)
            if (s[i].rank < rank) rank = s[i].rank, best = i;
        if (best < 0) return;
        fl__bpe_join(b, s, best);
    }
}

static inline bool fl__bpe_less(fl__bpe_heap a, fl__bpe_heap b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static bool fl__bpe_push(fl__bpe_memo *m, const fl__bpe_symbol *s, int32_t i) {
    if (i < 0 || s[i].rank == FL_TEXT_NO_RANK) return true;
    if (!fl_text_work_reserve(&m->heap, &m->heap_cap, m->n_heap + 8, sizeof *m->heap)) return false;
    const fl__bpe_heap e = {s[i].rank, i};
    int64_t at = m->n_heap++;
    for (; at && fl__bpe_less(e, m->heap[(at - 1) / 2]); at = (at - 1) / 2)
        m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = e;
    return true;
}

static fl__bpe_heap fl__bpe_pop(fl__bpe_memo *m) {
    const fl__bpe_heap top = m->heap[0], e = m->heap[--m->n_heap];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < m->n_heap; at = child) {
        if (child + 1 < m->n_heap && fl__bpe_less(m->heap[child + 1], m->heap[child])) child++;
        if (!fl__bpe_less(m->heap[child], e)) break;
        m->heap[at] = m->heap[child];
    }
    m->heap[at] = e;
    return top;
}

/* Many symbols: a heap of pairs. Entries whose symbols were merged otherwise stay in it and are skipped,
   unless the new pair there has the same rank: it is then the next one too. */
static bool fl__bpe_join_many(const fl__bpe *b, fl__bpe_memo *m, fl__bpe_symbol *s, int32_t n) {
    bool ok = true;
    m->n_heap = 0;
    for (int32_t i = 0; ok && i < n; i++) ok = fl__bpe_push(m, s, i);
    while (ok && m->n_heap) {
        const fl__bpe_heap e = fl__bpe_pop(m);
        if (s[e.at].rank != e.rank) continue;
        fl__bpe_join(b, s, e.at);
        ok = fl__bpe_push(m, s, e.at) && fl__bpe_push(m, s, s[e.at].before);
    }
    return ok;
}

/* The merged symbols of a piece, a list that starts at symbol 0; NULL after fl_fail. */
static const fl__bpe_symbol *fl__bpe_joined(const fl__bpe *b, const fl_text_work *w, uint32_t begin,
                                            uint32_t end) {
    fl__bpe_memo *m = w->memo;
    fl__bpe_symbol *s = m->few;
    int32_t n;
    if (end - begin > FL__BPE_SHORT) {
        if (!fl_text_work_reserve(&m->symbol, &m->cap, end - begin, sizeof *m->symbol)) return NULL;
        s = m->symbol;
    }
    if (!fl__bpe_symbols(b, w, s, begin, end, &n)) return NULL;
    for (int32_t i = 0; i < n; i++) fl__bpe_lookup(b, s, i);
    if (n <= FL__BPE_SHORT) fl__bpe_join_few(b, s);
    else if (!fl__bpe_join_many(b, m, s, n)) return NULL;
    return s;
}

/* ---- pieces ---- */

/* The id of a piece that is a token and the result of merging too; -1: none. */
static int32_t fl__bpe_whole(const fl__bpe *b, const fl_text_work *w, uint32_t begin, uint32_t end) {
    const int32_t id =
        b->o.prefix || b->o.suffix
            ? -1
            : (int32_t)fl_text_dictionary_find(b->m.vocab, w->p + begin, end - begin);
    if (id < 0 || b->o.ignore_merges) return id;
    uint8_t state = __atomic_load_n(&b->whole[id], __ATOMIC_RELAXED);
    if (!state) {
        const fl__bpe_symbol *s = fl__bpe_joined(b, w, begin, end);
        if (!s) return -1;
        state = s->id == id && s->next < 0 ? 1 : 2;
        __atomic_store_n(&b->whole[id], state, __ATOMIC_RELAXED);
    }
    return state == 1 ? id : -1;
}

static bool fl__bpe_encode(const fl_text_model *model, fl_text_work *w, uint32_t begin, uint32_t end) {
    const fl__bpe *b = (const fl__bpe *)model;
    if (!w->memo && !(w->memo = fl_heap_alloc(sizeof(fl__bpe_memo)))) return false;
    if (end - begin > FL__BPE_SHORT && !fl_text_work_spend(w, FL__BPE_LONG * (int64_t)(end - begin)))
        return false;
    const int32_t id = fl__bpe_whole(b, w, begin, end);
    if (id >= 0) return fl_text_work_token(w, id, begin, end);
    const fl__bpe_symbol *s = fl__bpe_joined(b, w, begin, end);
    const fl__bpe_memo *m = w->memo;
    bool ok = s != NULL;
    w->memo_bytes = m->cap * (int64_t)sizeof *m->symbol + m->heap_cap * (int64_t)sizeof *m->heap;
    for (int32_t i = 0; ok && i >= 0; i = s[i].next)
        ok = fl_text_work_token(w, s[i].id, s[i].begin, s[i].next < 0 ? end : s[s[i].next].begin);
    return ok;
}

static void fl__bpe_memo_free(void *memo) {
    fl__bpe_memo *m = memo;
    fl_heap_free(m->symbol);
    fl_heap_free(m->heap);
    fl_heap_free(m);
}

/* ---- the model ---- */

static int fl__bpe_by_rank(const void *x, const void *y) {
    const fl_text_pair *a = x, *b = y;
    if (a->rank != b->rank) return (a->rank > b->rank) - (a->rank < b->rank);
    return a->left != b->left ? (a->left > b->left) - (a->left < b->left)
                              : (a->right > b->right) - (a->right < b->right);
}

static bool fl__bpe_put_token(const fl_text_dictionary *d, int64_t id, bool bytes, fl_data_text *out) {
    int64_t n;
    const char *text = fl_text_dictionary_entry(d, id, &n);
    return fl_text_put_token(text, n, bytes, out);
}

static bool fl__bpe_put_text(fl_data_text *out, const char *key, const char *text) {
    if (!fl_data_text_print(out, ",\"%s\":", key)) return false;
    return text ? fl_data_json_put_string(out, text, strlen(text)) : fl_data_text_put(out, "null", 4);
}

static bool fl__bpe_save(const fl_text_model *m, bool bytes, fl_data_text *out) {
    const fl__bpe *b = (const fl__bpe *)m;
    fl_text_pair *order = fl_heap_alloc((size_t)(b->pairs.n + 1) * sizeof *order);
    bool ok = order && fl__bpe_put_text(out, "dropout", NULL) &&
              fl__bpe_put_text(out, "unk_token", b->o.unk) &&
              fl__bpe_put_text(out, "continuing_subword_prefix", b->o.prefix) &&
              fl__bpe_put_text(out, "end_of_word_suffix", b->o.suffix) &&
              fl_data_text_print(out, ",\"fuse_unk\":%s,\"byte_fallback\":%s,\"ignore_merges\":%s",
                                 b->o.fuse_unk ? "true" : "false", b->o.byte_fallback ? "true" : "false",
                                 b->o.ignore_merges ? "true" : "false") &&
              fl_text_put_vocab(m->vocab, bytes, out) &&
              fl_data_text_put(out, ",\n\"merges\":[", 12);
    int64_t n = 0;
    for (int64_t i = 0; ok && i <= b->pairs.mask; i++)
        if (b->pairs.slot[i].rank != FL_TEXT_NO_RANK) order[n++] = b->pairs.slot[i];
    if (ok && n) qsort(order, (size_t)n, sizeof *order, fl__bpe_by_rank);
    for (int64_t i = 0; ok && i < n; i++)
        ok = fl_data_text_put(out, i ? ",\n[" : "[", i ? 3 : 1) &&
             fl__bpe_put_token(m->vocab, order[i].left, bytes, out) &&
             fl_data_text_put(out, ",", 1) &&
             fl__bpe_put_token(m->vocab, order[i].right, bytes, out) &&
             fl_data_text_put(out, "]", 1);
    fl_heap_free(order);
    return ok && fl_data_text_put(out, "]", 1);
}

static void fl__bpe_free(fl_text_model *m) {
    fl__bpe *b = (fl__bpe *)m;
    fl_heap_free(b->pairs.slot);
    fl_heap_free(b->whole);
    fl_data_arena_free(&b->text);
    fl_object_free(b, m->type, "");
}

static bool fl__bpe_copy(fl__bpe *b, const char **text) {
    if (!*text) return true;
    *text = fl_data_arena_add(&b->text, *text, strlen(*text));
    return *text != NULL;
}

static bool fl__bpe_bytes(fl__bpe *b) {
    char text[8];
    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        const char one = (char)i;
        b->byte[i] = (int32_t)(b->o.bytes ? fl_text_dictionary_find(b->m.vocab, &one, 1)
                               : b->o.byte_fallback ? fl_text_dictionary_find(b->m.vocab, text, 6) : -1);
    }
    b->unk = b->o.unk
                 ? (int32_t)fl_text_dictionary_find(b->m.vocab, b->o.unk, (int64_t)strlen(b->o.unk))
                 : -1;
    if (b->o.unk && b->unk < 0)
        return fl_fail("%s: the unknown token '%.60s' is not in the vocabulary", b->o.where,
                       b->o.unk);
    return true;
}

FL_API fl_text_model *fl_text_bpe_opt(fl_text_dictionary *vocab, fl_text_bpe_opts o) {
    fl__bpe *b = fl_text_model_new(sizeof *b, (fl_text_model){"BPE", vocab, true, fl__bpe_encode,
                                                              fl__bpe_save, fl__bpe_free, fl__bpe_memo_free});
    if (!b) return NULL;
    if (!o.where) o.where = "fl_text_bpe";
    b->o = o;
    b->whole = fl_heap_alloc((size_t)fl_text_dictionary_size(vocab) + 1);
    bool ok = b->whole && fl__bpe_copy(b, &b->o.unk) && fl__bpe_copy(b, &b->o.prefix) &&
              fl__bpe_copy(b, &b->o.suffix);
    if (ok && ((o.prefix && strlen(o.prefix) > 100) || (o.suffix && strlen(o.suffix) > 100)))
        ok = fl_fail("%s: prefix or suffix is longer than 100 bytes", o.where);
    ok = ok && fl_text_pairs_reserve(&b->pairs, 8) && fl__bpe_bytes(b) &&
         (o.score || o.by_id ? fl__bpe_take_splits(b) : fl__bpe_take_merges(b, o.merge, o.n_merges));
    b->o.merge = NULL, b->o.score = NULL, b->o.where = NULL;
    if (ok) return &b->m;
    fl_text_model_free(&b->m);
    return NULL;
}

FL_API fl_text_tokenizer *fl_text_byte_tokenizer(void) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    bool ok = d != NULL;
    for (int i = 0; ok && i < 256; i++) {
        const char one = (char)i;
        ok = fl_text_dictionary_add(d, &one, 1) >= 0;
    }
    return fl_text_tokenizer_new(
        fl_text_bpe(fl_text_dictionary_or_free(d, ok), .bytes = true),
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,"
        "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"}}",
        NULL, 0, "fl_text_byte_tokenizer");
}

#endif
#endif

/* MIT licence: see LICENSE. */
