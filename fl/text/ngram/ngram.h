/* fl/text/ngram/ngram.h - n-gram language models */
#ifndef FL_TEXT_NGRAM_NGRAM_H
#define FL_TEXT_NGRAM_NGRAM_H
#include "../../data/file.h"
#include "../dictionary.h"
#include "../scorer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An n-gram model with back-off (Katz 1987): the score of w after h is that of the longest n-gram of both
   that is stored, and the back-off weights of the longer contexts that are. Words have numbers, 0 is
   <unk>. */
typedef struct fl_text_ngram fl_text_ngram;
/* A file of ARPA's format, or KenLM's binary (version 5, types probing and trie, the latter quantised and
   array-compressed too), which is mapped. NULL after fl_fail with file and line, or file and offset. A
   missing <unk> has -100. */
FL_API fl_text_ngram *fl_text_ngram_load(const char *path);
FL_API void fl_text_ngram_free(fl_text_ngram *m); /* NULL is fine */
FL_API int fl_text_ngram_order(const fl_text_ngram *m);
/* A word's number; 0: unknown. */
FL_API int32_t fl_text_ngram_word(const fl_text_ngram *m, const char *word, int64_t n);
/* The state behind <s>, or behind nothing. */
FL_API void fl_text_ngram_start(const fl_text_ngram *m, bool sentence, fl_text_state *out);
/* log10 of a word's probability; *to may be *from. */
FL_API double fl_text_ngram_score(const fl_text_ngram *m, const fl_text_state *from, int32_t word,
                                  fl_text_state *to);
typedef struct fl_text_ngram_sum {
    double log10;           /* of all, unknown words and ends included */
    double log10_unknown;   /* of the unknown ones alone */
    int64_t words, unknown, sentences;
} fl_text_ngram_sum;
/* Adds the lines of n bytes of text, words apart by white space, each from <s> to </s>. Perplexity is
   10 ^ (-log10 / (words + sentences)). */
FL_API void fl_text_ngram_text(const fl_text_ngram *m, const char *text, int64_t n, fl_text_ngram_sum *sum);
/* As a scorer of the indices of a dictionary, whose entries' first spellings are the words. It borrows m. */
FL_API fl_text_scorer *fl_text_ngram_scorer(const fl_text_ngram *m, const fl_text_dictionary *tokens);

/* >>storage: for readers of other formats */

typedef struct fl_text_ngram_entry {
    float prob, backoff; /* log10; a back-off of -0.0: nothing goes on from here */
    bool left;           /* longer ones that end so may be stored */
} fl_text_ngram_entry;
typedef struct fl_text_ngram_state {
    uint64_t begin, end; /* where the search is: the storage's own */
} fl_text_ngram_state;
struct fl_text_ngram {
    int order;
    int64_t count[FL_TEXT_NGRAM_MOST];
    int32_t begin, end; /* <s> and </s> */
    void *self;
    int32_t (*find)(const fl_text_ngram *m, const char *word, int64_t n);
    /* The n-gram of k + 1 words that has `word` in front of what *at is the place of (k 0: of nothing). */
    bool (*look)(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
                 fl_text_ngram_entry *out);
    void (*close)(fl_text_ngram *m);
};
/* KenLM's hash of n-grams, and its table of them: slots of `size` bytes, the key first, key 0 is free. The
   slot with the key, or the free one where it would stand; NULL: there is neither. */
FL_API uint64_t fl_text_ngram_key(uint64_t key, int32_t word);
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

static bool fl__ngram_goes_on(float backoff) {
    uint32_t bits;
    memcpy(&bits, &backoff, sizeof bits);
    return bits != 0x80000000u;
}

/* Longer and longer n-grams that end with the word. The new state is as long as the longest that may go
   on. */
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
    if (fl__ngram_goes_on(e.backoff)) keep = 1;
    while (e.left && found <= s.n && found < m->order && m->look(m, found, s.word[found - 1], &at, &e)) {
        prob = (double)e.prob;
        if (found < FL_TEXT_NGRAM_MOST - 1) to->backoff[found] = e.backoff;
        found++;
        if (found < m->order && fl__ngram_goes_on(e.backoff)) keep = found;
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

FL_API void fl_text_ngram_text(const fl_text_ngram *m, const char *text, int64_t n, fl_text_ngram_sum *sum) {
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
        return fl_fail("fl_text_ngram_scorer: token %lld, of %lld", (long long)token,
                       (long long)k->n);
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
    if (!m || !tokens) return fl_fail("fl_text_ngram_scorer: %s is NULL", m ? "tokens" : "the model"), NULL;
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

/* In memory: unigrams by number, one table for each higher order. Probabilities have no sign: each may be
   extended. */
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

/* The key of a slot: one for each key, not 0, and in an order that no file can know and fill in one place. */
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

static bool fl__ngram_memory_look(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
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

static bool fl__ngram_room(fl__ngram_memory *a, int k, int64_t n) {
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

/* The n-gram of k + 1 words, the last one first; made if it is not there, *made says so. NULL after
   fl_fail. */
static fl__ngram_slot *fl__ngram_at(fl__ngram_memory *a, int k, const int32_t *word, bool *made) {
    uint64_t key = (uint64_t)(uint32_t)word[0];
    *made = false;
    if (!k) return &a->slot[0][word[0]];
    for (int i = 1; i <= k; i++) key = fl_text_ngram_key(key, word[i]);
    key = fl__ngram_slot_key(a, key);
    if ((uint64_t)a->used[k] * 5 >= a->slots[k] * 4 && !fl__ngram_room(a, k, 2 * a->used[k] + 8)) return NULL;
    fl__ngram_slot *s = fl__ngram_slot_of(a, k, key);
    *made = !s->key;
    if (*made) a->used[k]++, *s = (fl__ngram_slot){key, 0, -0.0f};
    return s;
}

/* Looking goes over all shorter n-grams that end alike, and contexts are n-grams: those that a pruned model
   lacks, of up to k + 1 words, are put in with the score that backing off gives them. */
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
        s->key = 0; /* for the score it is not there yet */
        s->prob = (float)-fl_text_ngram_score(&a->m, &from, word[0], &to);
        s->key = key;
    }
    return true;
}

typedef struct fl__ngram_text {
    const char *path, *p, *end; /* p: behind the line */
    int64_t line;
} fl__ngram_text;

static bool fl__ngram_bad(const fl__ngram_text *t, const char *what) {
    return fl_fail("fl_text_ngram_load: %s: line %lld: %s", t->path, (long long)t->line, what);
}

/* The next line without its end; false at the end of the text. */
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

/* "ngram 2=17" lines up to the first other one that is not empty, which *begin, *end are then. */
static bool fl__ngram_counts(fl__ngram_memory *a, fl__ngram_text *t, const char **begin, const char **end) {
    do if (!fl__ngram_line(t, begin, end)) return fl__ngram_bad(t, "there is no \\data\\");
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
            return fl__ngram_bad(t, "not the count of the next order, of at most 8");
        number = fl_text_field(&value, *end, &n);
        if (!number || !fl_data_parse_double(number, (size_t)n, &count) ||
            !(count >= 0 && count <= (double)(t->end - t->p) / (2 * order + 1)) ||
            count != (double)(int64_t)count)
            return fl__ngram_bad(t, "a count that the rest of the file has no room for");
        a->m.count[a->m.order++] = (int64_t)count;
    }
    return a->m.order > 0 || fl__ngram_bad(t, "no \"ngram 1=\" behind \\data\\");
}

/* One n-gram of k + 1 words. */
static bool fl__ngram_entry_of(fl__ngram_memory *a, fl__ngram_text *t, int k, const char *p,
                               const char *end) {
    int32_t word[FL_TEXT_NGRAM_MOST];
    double prob, backoff = 0;
    int64_t n;
    bool made = false;
    const char *field = fl_text_field(&p, end, &n);
    if (!field || !fl_data_parse_double(field, (size_t)n, &prob))
        return fl__ngram_bad(t, "no log probability in front");
    if (!(prob <= 0)) return fl__ngram_bad(t, "a positive log probability");
    for (int i = k; i >= 0; i--) {
        field = fl_text_field(&p, end, &n);
        if (!field) return fl__ngram_bad(t, "too few words");
        if (!k && (fl__ngram_is(field, field + n, "<unk>") || fl__ngram_is(field, field + n, "<UNK>"))) {
            made = !a->slot[0][0].key;
            word[0] = 0;
        } else if (!k) {
            made = fl_text_dictionary_find(a->words, field, n) < 0;
            if (made && fl_text_dictionary_size(a->words) >= (int64_t)a->slots[0])
                return fl__ngram_bad(t, "more words than \\data\\ says");
            word[0] = made ? (int32_t)fl_text_dictionary_add(a->words, field, n) : 0;
            if (made && word[0] < 0) return false;
        } else {
            word[i] = fl__ngram_memory_find(&a->m, field, n);
            if (!word[i] && !fl__ngram_is(field, field + n, "<unk>") &&
                !fl__ngram_is(field, field + n, "<UNK>"))
                return fl__ngram_bad(t, "a word that is no 1-gram");
        }
    }
    field = fl_text_field(&p, end, &n);
    if (field && (!fl_data_parse_double(field, (size_t)n, &backoff) || !(backoff > -1e30 && backoff < 1e30)))
        return fl__ngram_bad(t, "a back-off weight that is no number");
    if (field && fl_text_field(&p, end, &n)) return fl__ngram_bad(t, "something behind the back-off weight");
    if (k && !(fl__ngram_ensure(a, k - 1, word) && fl__ngram_ensure(a, k - 1, word + 1))) return false;
    fl__ngram_slot *context = k ? fl__ngram_at(a, k - 1, word + 1, &made) : NULL;
    if (context && !fl__ngram_goes_on(context->backoff)) context->backoff = 0.0f;
    fl__ngram_slot *s = k && !context ? NULL : fl__ngram_at(a, k, word, k ? &made : (bool[]){0});
    if (!s) return false;
    if (!made) return fl__ngram_bad(t, "an n-gram that was there before");
    s->key = s->key ? s->key : 1; /* of a 1-gram: that it is there */
    s->prob = (float)-prob, s->backoff = backoff != 0 ? (float)backoff : -0.0f;
    return true;
}

static bool fl__ngram_sections(fl__ngram_memory *a, fl__ngram_text *t, const char *begin, const char *end) {
    char title[32];
    bool more = true;
    for (int k = 0; k < a->m.order; k++) {
        int64_t n = 0;
        const int64_t room = a->m.count[k] + (k ? 0 : 1);
        if (k) {
            if (!fl__ngram_room(a, k, room)) return false;
        } else {
            a->slots[0] = (uint64_t)room;
            a->slot[0] = fl_heap_alloc((size_t)room * sizeof **a->slot);
            if (!a->slot[0] || !fl_text_dictionary_reserve(a->words, room)) return false;
        }
        while (more && begin == end) more = fl__ngram_line(t, &begin, &end);
        snprintf(title, sizeof title, "\\%d-grams:", k + 1);
        if (!more || !fl__ngram_is(begin, end, title))
            return fl__ngram_bad(t, "expected the section of the next order");
        while ((more = fl__ngram_line(t, &begin, &end)) && (begin == end || *begin != '\\')) {
            if (begin == end) continue;
            if (++n > a->m.count[k]) return fl__ngram_bad(t, "more n-grams than \\data\\ says");
            if (!fl__ngram_entry_of(a, t, k, begin, end)) return false;
        }
        if (n < a->m.count[k]) return fl__ngram_bad(t, "fewer n-grams than \\data\\ says");
    }
    return (more && fl__ngram_is(begin, end, "\\end\\")) || fl__ngram_bad(t, "expected \\end\\");
}

static bool fl__ngram_arpa(fl__ngram_memory *a, fl__ngram_text *t) {
    const char *begin = t->p, *end = t->p;
    if (!a->words || fl_text_dictionary_add(a->words, "<unk>", 5) < 0) return false;
    if (!fl__ngram_counts(a, t, &begin, &end) || !fl__ngram_sections(a, t, begin, end)) return false;
    if (!a->slot[0][0].key) a->slot[0][0] = (fl__ngram_slot){1, 100, -0.0f};
    a->m.begin = fl__ngram_memory_find(&a->m, "<s>", 3), a->m.end = fl__ngram_memory_find(&a->m, "</s>", 4);
    if (a->m.begin && a->m.end) return true;
    return fl_fail("fl_text_ngram_load: %s: there is no %s", t->path, a->m.begin ? "</s>" : "<s>");
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
                               .look = fl__ngram_memory_look,
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
