/* fl/text/ngram/ngram.h - n-gram language models with back-off; ARPA files */
#ifndef FL_TEXT_NGRAM_NGRAM_H
#define FL_TEXT_NGRAM_NGRAM_H
#include "../../data/file.h"
#include "../dictionary.h"
#include "../scorer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An n-gram model with back-off (Katz 1987): log P(w | h) is the log probability of the longest stored n-gram
   that ends h w, plus the back-off weights of the longer stored contexts. Words have ids; 0 is <unk>. */
typedef struct fl_text_ngram fl_text_ngram;
/* Loads an ARPA file, or a KenLM binary (version 5, types probing and trie, also quantised and with
   array-compressed pointers), which is memory-mapped. A missing <unk> gets log10 probability -100. Returns
   NULL after fl_fail, with path and line or offset. */
FL_API fl_text_ngram *fl_text_ngram_load(const char *path);
FL_API void fl_text_ngram_free(fl_text_ngram *m); /* NULL is fine */
/* The highest order n, 1 to FL_TEXT_NGRAM_MOST. */
FL_API int fl_text_ngram_order(const fl_text_ngram *m);
/* The id of a word; 0: unknown. */
FL_API int32_t fl_text_ngram_word(const fl_text_ngram *m, const char *word, int64_t n);
/* The state at the start of a sentence, after <s>; or with `sentence` false, with an empty history. */
FL_API void fl_text_ngram_start(const fl_text_ngram *m, bool sentence, fl_text_state *out);
/* Returns log10 of the word's probability and the next state; to may be from. */
FL_API double fl_text_ngram_score(const fl_text_ngram *m, const fl_text_state *from, int32_t word,
                                  fl_text_state *to);
typedef struct fl_text_ngram_sum {
    double log10;           /* sum over all words, unknown words and sentence ends included */
    double log10_unknown;   /* sum over the unknown words alone */
    int64_t words, unknown, sentences;
} fl_text_ngram_sum;
/* Adds the lines of n bytes of text to the sums: words separated by white space, each line from <s> to </s>.
   Perplexity is 10 ^ (-log10 / (words + sentences)). */
FL_API void fl_text_ngram_score_text(const fl_text_ngram *m, const char *text, int64_t n,
                                     fl_text_ngram_sum *sum);
/* A scorer for decoders: tokens are indices of a dictionary whose first spellings are words. Borrows m. */
FL_API fl_text_scorer *fl_text_ngram_scorer(const fl_text_ngram *m, const fl_text_dictionary *tokens);

/* >>storage: interface for other file formats */

typedef struct fl_text_ngram_entry {
    float prob, backoff; /* log10; a back-off of -0.0: no longer n-gram starts with this one */
    bool left;           /* longer n-grams that end with this one may be stored */
} fl_text_ngram_entry;
typedef struct fl_text_ngram_state {
    uint64_t begin, end; /* position of the search, defined by the storage */
} fl_text_ngram_state;
struct fl_text_ngram {
    int order;
    int64_t count[FL_TEXT_NGRAM_MOST];
    int32_t begin, end; /* <s> and </s> */
    void *self;
    int32_t (*find)(const fl_text_ngram *m, const char *word, int64_t n);
    /* Looks up the n-gram of k + 1 words that extends *at by `word` in front (k 0: the empty one). */
    bool (*look)(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
                 fl_text_ngram_entry *out);
    void (*close)(fl_text_ngram *m);
};
/* KenLM's hash of n-grams. */
FL_API uint64_t fl_text_ngram_key(uint64_t key, int32_t word);
/* KenLM's hash table with linear probing: n slots of `size` bytes that start with the key; key 0 is free.
   Returns the slot with the key, or the free slot where it would be; NULL if the table is full. */
FL_API const char *fl_text_ngram_probe(const char *slots, uint64_t n, size_t size, uint64_t key);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_NGRAM_NGRAM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_NGRAM_NGRAM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_NGRAM_NGRAM_IMPL
#define FL_TEXT_NGRAM_NGRAM_IMPL
#include "../../data/json.h"
#include "kenlm.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- scores ---- */

static bool fl__ngram_extends(float backoff) {
    uint32_t bits;
    memcpy(&bits, &backoff, sizeof bits);
    return bits != 0x80000000u;
}

/* Looks up longer and longer n-grams that end with the word. The new state is the longest one that can
   be extended. */
FL_API double fl_text_ngram_score(const fl_text_ngram *m, const fl_text_state *from, int32_t word,
                                  fl_text_state *to) {
    if (!fl_given(m, "fl_text_ngram_score", "the model") ||
        !fl_given(from, "fl_text_ngram_score", "the state") ||
        !fl_given(to, "fl_text_ngram_score", "the next state")) return NAN;
    const fl_text_state s = *from;
    fl_text_ngram_state at = {0, 0};
    fl_text_ngram_entry e;
    int32_t found = 1, keep = 0;
    double prob;
    if (!m->look(m, 0, word, &at, &e)) m->look(m, 0, word = 0, &at, &e);
    prob = (double)e.prob;
    to->backoff[0] = e.backoff;
    if (fl__ngram_extends(e.backoff)) keep = 1;
    while (e.left && found <= s.n && found < m->order && m->look(m, found, s.word[found - 1], &at, &e)) {
        prob = (double)e.prob;
        if (found < FL_TEXT_NGRAM_MOST - 1) to->backoff[found] = e.backoff;
        found++;
        if (found < m->order && fl__ngram_extends(e.backoff)) keep = found;
    }
    for (int32_t i = found - 1; i < s.n; i++) prob += (double)s.backoff[i];
    to->n = keep;
    for (int32_t i = keep - 1; i > 0; i--) to->word[i] = s.word[i - 1];
    if (keep) to->word[0] = word;
    return prob;
}

FL_API void fl_text_ngram_start(const fl_text_ngram *m, bool sentence, fl_text_state *out) {
    if (!fl_given(m, "fl_text_ngram_start", "the model") ||
        !fl_given(out, "fl_text_ngram_start", "the state")) return;
    fl_text_ngram_state at = {0, 0};
    fl_text_ngram_entry e;
    *out = (fl_text_state){0};
    if (!sentence || m->order < 2 || !m->look(m, 0, m->begin, &at, &e)) return;
    out->n = 1, out->word[0] = m->begin, out->backoff[0] = e.backoff;
}

FL_API int fl_text_ngram_order(const fl_text_ngram *m) {
    return fl_given(m, "fl_text_ngram_order", "the model") ? m->order : 0;
}

FL_API int32_t fl_text_ngram_word(const fl_text_ngram *m, const char *word, int64_t n) {
    return fl_given(m, "fl_text_ngram_word", "the model") ? m->find(m, word, n) : -1;
}

FL_API void fl_text_ngram_score_text(const fl_text_ngram *m, const char *text, int64_t n,
                                     fl_text_ngram_sum *sum) {
    int64_t size, len;
    for (const char *p = text, *line, *word; (line = fl_text_line(&p, text + n, &size));) {
        fl_text_state s;
        const char *stop = line + size;
        for (fl_text_ngram_start(m, true, &s); (word = fl_text_field(&line, stop, &len)); sum->words++) {
            const int32_t id = m->find(m, word, len);
            const double prob = fl_text_ngram_score(m, &s, id, &s);
            sum->log10 += prob;
            if (!id) sum->unknown++, sum->log10_unknown += prob;
        }
        sum->log10 += fl_text_ngram_score(m, &s, m->end, &s), sum->sentences++;
    }
}

FL_API void fl_text_ngram_free(fl_text_ngram *m) {
    if (m) m->close(m);
}

/* ---- as a scorer ---- */

typedef struct fl__ngram_scorer {
    fl_text_scorer s;
    const fl_text_ngram *m;
    int64_t n;
    int32_t word[];
} fl__ngram_scorer;

static const double fl__ngram_ln10 = 2.302585092994045684;

static bool fl__ngram_scorer_start(const fl_text_scorer *s, fl_text_state *out) {
    fl_text_ngram_start(((const fl__ngram_scorer *)s->self)->m, true, out);
    return true;
}

static bool fl__ngram_scorer_score(const fl_text_scorer *s, const fl_text_state *from,
                                   int64_t token, fl_text_state *to, double *score) {
    const fl__ngram_scorer *k = s->self;
    if (token < 0 || token >= k->n)
        return fl_fail("fl_text_ngram_scorer: token is out of range: got %lld, expected [0, %lld)",
                       (long long)token, (long long)k->n);
    *score = fl__ngram_ln10 * fl_text_ngram_score(k->m, from, k->word[token], to);
    return true;
}

static bool fl__ngram_scorer_finish(const fl_text_scorer *s, const fl_text_state *from, double *score) {
    const fl__ngram_scorer *k = s->self;
    fl_text_state to;
    *score = fl__ngram_ln10 * fl_text_ngram_score(k->m, from, k->m->end, &to);
    return true;
}

static void fl__ngram_scorer_free(fl_text_scorer *s) {
    fl_heap_free(s->self);
}

FL_API fl_text_scorer *fl_text_ngram_scorer(const fl_text_ngram *m, const fl_text_dictionary *tokens) {
    if (!m || !tokens) return fl_fail("fl_text_ngram_scorer: %s is NULL", m ? "tokens" : "m"), NULL;
    const int64_t n = fl_text_dictionary_size(tokens);
    fl__ngram_scorer *k = fl_heap_alloc(sizeof *k + (size_t)n * sizeof *k->word);
    if (!k) return NULL;
    k->s = (fl_text_scorer){k,    fl__ngram_scorer_start,  fl__ngram_scorer_score,
                            NULL, fl__ngram_scorer_finish, fl__ngram_scorer_free};
    k->m = m, k->n = n;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const char *word = fl_text_dictionary_entry(tokens, i, &len);
        k->word[i] = word ? m->find(m, word, len) : 0;
    }
    return &k->s;
}

/* ---- ARPA ---- */

typedef struct fl__ngram_slot {
    uint64_t key;
    float prob, backoff;
} fl__ngram_slot;

/* Storage in memory: unigrams by id, one hash table per higher order. Probabilities have no sign bit: any
   n-gram may be extended to the left. */
typedef struct fl__ngram_memory {
    fl_text_ngram m;
    fl_text_dictionary *words;
    fl__ngram_slot *slot[FL_TEXT_NGRAM_MOST];
    uint64_t slots[FL_TEXT_NGRAM_MOST];
    int64_t used[FL_TEXT_NGRAM_MOST];
    uint64_t seed;
} fl__ngram_memory;

FL_API uint64_t fl_text_ngram_key(uint64_t key, int32_t word) {
    return key * 8978948897894561157u ^ (uint64_t)(1 + (uint32_t)word) * 17894857484156487943u;
}

FL_API const char *fl_text_ngram_probe(const char *slots, uint64_t n, size_t size, uint64_t key) {
    if (!fl_given(slots, "fl_text_ngram_probe", "the table")) return NULL;
    uint64_t at = n ? key % n : 0, there;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&there, slots + at * size, sizeof there);
        if (there == key || !there) return slots + at * size;
        at = at + 1 == n ? 0 : at + 1;
    }
    return NULL;
}

/* The key of a slot: injective, not 0, and seeded, so that a file cannot choose colliding n-grams. */
static uint64_t fl__ngram_slot_key(const fl__ngram_memory *a, uint64_t key) {
    uint64_t h = key ^ a->seed;
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    return h ? h : 1;
}

static fl__ngram_slot *fl__ngram_slot_of(const fl__ngram_memory *a, int k, uint64_t key) {
    return (fl__ngram_slot *)(uintptr_t)fl_text_ngram_probe((const char *)a->slot[k], a->slots[k],
                                                            sizeof(fl__ngram_slot), key);
}

static bool fl__ngram_memory_lookup(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
                                    fl_text_ngram_entry *out) {
    const fl__ngram_memory *a = m->self;
    at->begin = k ? fl_text_ngram_key(at->begin, word) : (uint64_t)(uint32_t)word;
    if (!k && (word < 0 || (uint64_t)word >= a->slots[0])) return false;
    const fl__ngram_slot *s =
        k ? fl__ngram_slot_of(a, k, fl__ngram_slot_key(a, at->begin)) : &a->slot[0][word];
    if (!s || (k && !s->key)) return false;
    *out = (fl_text_ngram_entry){-s->prob, s->backoff, true};
    return true;
}

static int32_t fl__ngram_memory_find(const fl_text_ngram *m, const char *word, int64_t n) {
    const int64_t id = fl_text_dictionary_find(((const fl__ngram_memory *)m->self)->words, word, n);
    return id < 0 ? 0 : (int32_t)id;
}

static void fl__ngram_memory_close(fl_text_ngram *m) {
    fl__ngram_memory *a = m->self;
    fl_text_dictionary_free(a->words);
    for (int k = 0; k < FL_TEXT_NGRAM_MOST; k++) fl_heap_free(a->slot[k]);
    fl_heap_free(a);
}

static bool fl__ngram_reserve(fl__ngram_memory *a, int k, int64_t n) {
    const uint64_t need = (uint64_t)n + (uint64_t)n / 2 + 8;
    fl__ngram_slot *old = a->slot[k], *table = fl_heap_alloc(need * sizeof *table);
    const uint64_t before = a->slots[k];
    if (!table) return false;
    a->slot[k] = table, a->slots[k] = need;
    for (uint64_t i = 0; i < before; i++)
        if (old[i].key) *fl__ngram_slot_of(a, k, old[i].key) = old[i];
    fl_heap_free(old);
    return true;
}

/* The n-gram of k + 1 words, the last one first; inserted if missing, then *made is true. Returns NULL after
   fl_fail. */
static fl__ngram_slot *fl__ngram_at(fl__ngram_memory *a, int k, const int32_t *word, bool *made) {
    uint64_t key = (uint64_t)(uint32_t)word[0];
    *made = false;
    if (!k) return &a->slot[0][word[0]];
    for (int i = 1; i <= k; i++) key = fl_text_ngram_key(key, word[i]);
    key = fl__ngram_slot_key(a, key);
    if ((uint64_t)a->used[k] * 5 >= a->slots[k] * 4 && !fl__ngram_reserve(a, k, 2 * a->used[k] + 8))
        return NULL;
    fl__ngram_slot *s = fl__ngram_slot_of(a, k, key);
    *made = !s->key;
    if (*made) a->used[k]++, *s = (fl__ngram_slot){key, 0, -0.0f};
    return s;
}

/* Lookup goes through all shorter n-grams with the same ending, and contexts are n-grams too: those that a
   pruned model lacks, of up to k + 1 words, are inserted with their back-off score. */
static bool fl__ngram_ensure(fl__ngram_memory *a, int k, const int32_t *word) {
    bool made;
    for (int n = 1; n <= k; n++) {
        fl__ngram_slot *s = fl__ngram_at(a, n, word, &made);
        if (!s) return false;
        if (!made) continue;
        fl_text_state from = {.n = n}, to;
        fl_text_ngram_state at = {0, 0};
        fl_text_ngram_entry e;
        for (int i = 0; i < n; i++) {
            from.word[i] = word[i + 1];
            if (from.n == n && a->m.look(&a->m, i, word[i + 1], &at, &e)) from.backoff[i] = e.backoff;
            else if (from.n == n) from.n = i;
        }
        const uint64_t key = s->key;
        s->key = 0; /* not in the table yet when its score is computed */
        s->prob = (float)-fl_text_ngram_score(&a->m, &from, word[0], &to);
        s->key = key;
    }
    return true;
}

typedef struct fl__ngram_text {
    const char *path, *p, *end; /* p: after the current line */
    int64_t line;
} fl__ngram_text;

static bool fl__ngram_fail(const fl__ngram_text *t, const char *message) {
    return fl_fail("fl_text_ngram_load: %s: line %lld: %s", t->path, (long long)t->line, message);
}

/* The next line without its line end; false at the end of the text. */
static bool fl__ngram_line(fl__ngram_text *t, const char **begin, const char **end) {
    int64_t n;
    const char *s = fl_text_line(&t->p, t->end, &n);
    if (!s) return false;
    *begin = s, *end = s + n, t->line++;
    while (*end > *begin && ((*end)[-1] == ' ' || (*end)[-1] == '\t')) --*end;
    return true;
}

static bool fl__ngram_is(const char *begin, const char *end, const char *text) {
    return (size_t)(end - begin) == strlen(text) && !memcmp(begin, text, strlen(text));
}

/* Reads "ngram 2=17" lines up to the first other non-empty line, which *begin, *end then are. */
static bool fl__ngram_counts(fl__ngram_memory *a, fl__ngram_text *t, const char **begin, const char **end) {
    do if (!fl__ngram_line(t, begin, end)) return fl__ngram_fail(t, "expected \\data\\, got the end of the "
                                                                 "file");
    while (!fl__ngram_is(*begin, *end, "\\data\\"));
    while (fl__ngram_line(t, begin, end)) {
        double order, count;
        const char *p = *begin, *equals = memchr(p, '=', (size_t)(*end - p));
        if (p == *end) continue;
        if (*end - p < 6 || memcmp(p, "ngram ", 6)) break;
        int64_t n;
        const char *value = equals ? equals + 1 : *end, *number;
        p += 6;
        number = equals ? fl_text_field(&p, equals, &n) : NULL;
        if (!number || !fl_data_parse_double(number, (size_t)n, &order) ||
            order != a->m.order + 1 || order > FL_TEXT_NGRAM_MOST)
            return fl__ngram_fail(t, "expected \"ngram N=COUNT\" of the next order, 8 at most");
        number = fl_text_field(&value, *end, &n);
        if (!number || !fl_data_parse_double(number, (size_t)n, &count) ||
            !(count >= 0 && count <= (double)(t->end - t->p) / (2 * order + 1)) ||
            count != (double)(int64_t)count)
            return fl__ngram_fail(t, "invalid count, or one too large for the file");
        a->m.count[a->m.order++] = (int64_t)count;
    }
    return a->m.order > 0 || fl__ngram_fail(t, "expected \"ngram 1=COUNT\" after \\data\\");
}

/* Reads one n-gram of k + 1 words. */
static bool fl__ngram_entry_of(fl__ngram_memory *a, fl__ngram_text *t, int k, const char *p,
                               const char *end) {
    int32_t word[FL_TEXT_NGRAM_MOST];
    double prob, backoff = 0;
    int64_t n;
    bool made = false;
    const char *field = fl_text_field(&p, end, &n);
    if (!field || !fl_data_parse_double(field, (size_t)n, &prob))
        return fl__ngram_fail(t, "expected a log probability in the first field");
    if (!(prob <= 0)) return fl__ngram_fail(t, "log probability must be <= 0");
    for (int i = k; i >= 0; i--) {
        field = fl_text_field(&p, end, &n);
        if (!field) return fl__ngram_fail(t, "too few words for the order");
        if (!k && (fl__ngram_is(field, field + n, "<unk>") || fl__ngram_is(field, field + n, "<UNK>"))) {
            made = !a->slot[0][0].key;
            word[0] = 0;
        } else if (!k) {
            made = fl_text_dictionary_find(a->words, field, n) < 0;
            if (made && fl_text_dictionary_size(a->words) >= (int64_t)a->slots[0])
                return fl__ngram_fail(t, "more words than \\data\\ declares");
            word[0] = made ? (int32_t)fl_text_dictionary_add(a->words, field, n) : 0;
            if (made && word[0] < 0) return false;
        } else {
            word[i] = fl__ngram_memory_find(&a->m, field, n);
            if (!word[i] && !fl__ngram_is(field, field + n, "<unk>") &&
                !fl__ngram_is(field, field + n, "<UNK>"))
                return fl__ngram_fail(t, "a word is not a 1-gram");
        }
    }
    field = fl_text_field(&p, end, &n);
    if (field && (!fl_data_parse_double(field, (size_t)n, &backoff) || !(backoff > -1e30 && backoff < 1e30)))
        return fl__ngram_fail(t, "invalid back-off weight");
    if (field && fl_text_field(&p, end, &n)) return fl__ngram_fail(t, "unexpected text after the back-off "
                                                                   "weight");
    if (k && !(fl__ngram_ensure(a, k - 1, word) && fl__ngram_ensure(a, k - 1, word + 1))) return false;
    fl__ngram_slot *context = k ? fl__ngram_at(a, k - 1, word + 1, &made) : NULL;
    if (context && !fl__ngram_extends(context->backoff)) context->backoff = 0.0f;
    fl__ngram_slot *s = k && !context ? NULL : fl__ngram_at(a, k, word, k ? &made : (bool[]){0});
    if (!s) return false;
    if (!made) return fl__ngram_fail(t, "duplicate n-gram");
    s->key = s->key ? s->key : 1; /* marks a 1-gram as present */
    s->prob = (float)-prob, s->backoff = backoff != 0 ? (float)backoff : -0.0f;
    return true;
}

static bool fl__ngram_sections(fl__ngram_memory *a, fl__ngram_text *t, const char *begin, const char *end) {
    char title[32];
    bool more = true;
    for (int k = 0; k < a->m.order; k++) {
        int64_t n = 0;
        const int64_t capacity = a->m.count[k] + (k ? 0 : 1);
        if (k) {
            if (!fl__ngram_reserve(a, k, capacity)) return false;
        } else {
            a->slots[0] = (uint64_t)capacity;
            a->slot[0] = fl_heap_alloc((size_t)capacity * sizeof **a->slot);
            if (!a->slot[0] || !fl_text_dictionary_reserve(a->words, capacity)) return false;
        }
        while (more && begin == end) more = fl__ngram_line(t, &begin, &end);
        snprintf(title, sizeof title, "\\%d-grams:", k + 1);
        if (!more || !fl__ngram_is(begin, end, title))
            return fl__ngram_fail(t, "expected the section of the next order");
        while ((more = fl__ngram_line(t, &begin, &end)) && (begin == end || *begin != '\\')) {
            if (begin == end) continue;
            if (++n > a->m.count[k]) return fl__ngram_fail(t, "more n-grams than \\data\\ declares");
            if (!fl__ngram_entry_of(a, t, k, begin, end)) return false;
        }
        if (n < a->m.count[k]) return fl__ngram_fail(t, "fewer n-grams than \\data\\ declares");
    }
    return (more && fl__ngram_is(begin, end, "\\end\\")) || fl__ngram_fail(t, "expected \\end\\");
}

static bool fl__ngram_arpa(fl__ngram_memory *a, fl__ngram_text *t) {
    const char *begin = t->p, *end = t->p;
    if (!a->words || fl_text_dictionary_add(a->words, "<unk>", 5) < 0) return false;
    if (!fl__ngram_counts(a, t, &begin, &end) || !fl__ngram_sections(a, t, begin, end)) return false;
    if (!a->slot[0][0].key) a->slot[0][0] = (fl__ngram_slot){1, 100, -0.0f};
    a->m.begin = fl__ngram_memory_find(&a->m, "<s>", 3), a->m.end = fl__ngram_memory_find(&a->m, "</s>", 4);
    if (a->m.begin && a->m.end) return true;
    return fl_fail("fl_text_ngram_load: %s: the vocabulary has no '%s'", t->path,
                   a->m.begin ? "</s>" : "<s>");
}

FL_API fl_text_ngram *fl_text_ngram_load(const char *path) {
    int64_t n;
    const int kenlm = fl_text_kenlm_is(path);
    if (kenlm) return kenlm < 0 ? NULL : fl_text_kenlm_load(path);
    char *text = fl_text_read_file("fl_text_ngram_load", path, &n);
    if (!text) return NULL;
    fl__ngram_memory *a = fl_heap_alloc(sizeof *a);
    if (a) {
        a->m = (fl_text_ngram){.self = a,
                               .find = fl__ngram_memory_find,
                               .look = fl__ngram_memory_lookup,
                               .close = fl__ngram_memory_close};
        a->words = fl_text_dictionary_new();
        a->seed = (uint64_t)(uintptr_t)a ^ (uint64_t)time(NULL) << 32;
    }
    fl__ngram_text t = {path, text, text + n, 0};
    const bool ok = a && fl__ngram_arpa(a, &t);
    fl_heap_free(text);
    if (ok) return &a->m;
    if (a) fl_text_ngram_free(&a->m);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
