/* fl/text/ngram/kenlm.h - KenLM's binary n-gram files, version 5, memory-mapped */
#ifndef FL_TEXT_NGRAM_KENLM_H
#define FL_TEXT_NGRAM_KENLM_H
#include "ngram.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is the file a KenLM binary? Returns 1 or 0; -1 after fl_fail, also if it cannot be read. */
FL_API int fl_text_kenlm_is(const char *path);
/* Loads types 0 (probing) and 2 to 5 (tries, also quantised or with compressed pointers); other types are
   errors. Every index in the file is checked when it is used. */
FL_API fl_text_ngram *fl_text_kenlm_load(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_NGRAM_KENLM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_NGRAM_KENLM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_NGRAM_KENLM_IMPL
#define FL_TEXT_NGRAM_KENLM_IMPL
#include <string.h>

enum { FL__KENLM_PROBING, FL__KENLM_REST, FL__KENLM_TRIE, FL__KENLM_QUANT, FL__KENLM_ARRAY, FL__KENLM_BOTH };

/* The n-grams of one order. Hash: slots. Trie: entries of `bits` bits: a word, probability and back-off (or
   their quantised codes), and the index of the first n-gram with one more word in front. */
typedef struct fl__kenlm_level {
    const char *base;
    uint64_t n;              /* slots or entries */
    uint32_t bits, word, next; /* widths in bits; next: the pointer */
    const char *prob, *backoff; /* quantisation tables */
    const char *high;        /* upper bits of pointers: for each value, the first entry that has it */
    uint64_t n_high;
} fl__kenlm_level;

typedef struct fl__kenlm {
    fl_text_ngram m;
    fl_data_io io;
    char *p; /* the file */
    int64_t size;
    uint64_t vocab_n;
    const char *vocab, *unigram;
    uint32_t prob_bits, backoff_bits;
    bool mapped, probing;
    fl__kenlm_level level[FL_TEXT_NGRAM_MOST];
} fl__kenlm;

static const char fl__kenlm_magic[] = "mmap lm http://kheafield.com/code format version 5\n";

static uint64_t fl__kenlm_u64(const char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float fl__kenlm_f32(const char *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Reads n <= 57 bits at bit offset `at`; the file has 8 bytes after the last entry. */
static uint64_t fl__kenlm_bits(const char *p, uint64_t at, uint32_t n) {
    return fl__kenlm_u64(p + at / 8) >> at % 8 & (((uint64_t)1 << n) - 1);
}

static uint32_t fl__kenlm_width(uint64_t most) {
    uint32_t n = 0;
    for (; most; most >>= 1) n++;
    return n;
}

/* MurmurHash64A (A. Appleby, public domain), seed 0. */
static uint64_t fl__kenlm_hash(const char *s, int64_t n) {
    const uint64_t m = 0xc6a4a7935bd1e995u;
    uint64_t h = (uint64_t)n * m;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t k = fl__kenlm_u64(s) * m;
        k ^= k >> 47;
        h = (h ^ k * m) * m;
    }
    uint64_t k = 0;
    for (int64_t i = 0; i < n; i++) k |= (uint64_t)(uint8_t)s[i] << 8 * i;
    if (n) h = (h ^ k) * m;
    h = (h ^ h >> 47) * m;
    return h ^ h >> 47;
}

/* ---- looking ---- */

static int32_t fl__kenlm_find_probing(const fl_text_ngram *m, const char *word, int64_t n) {
    const fl__kenlm *a = m->self;
    const uint64_t key = fl__kenlm_hash(word, n);
    uint32_t id = 0;
    const char *s = key ? fl_text_ngram_probe(a->vocab, a->vocab_n, 12, key) : NULL;
    if (s && fl__kenlm_u64(s)) memcpy(&id, s + 8, sizeof id);
    return id < (uint64_t)m->count[0] + 1 ? (int32_t)id : 0;
}

static int32_t fl__kenlm_find_sorted(const fl_text_ngram *m, const char *word, int64_t n) {
    const fl__kenlm *a = m->self;
    const uint64_t key = fl__kenlm_hash(word, n);
    uint64_t low = 0, high = a->vocab_n;
    while (low < high) {
        const uint64_t mid = (low + high) / 2, there = fl__kenlm_u64(a->vocab + 8 * mid);
        if (there == key) return (int32_t)mid + 1;
        if (there < key) low = mid + 1;
        else high = mid;
    }
    return 0;
}

/* A set sign bit means that no longer n-gram extends this one to the left. */
static fl_text_ngram_entry fl__kenlm_entry(float prob, float backoff) {
    uint32_t bits;
    memcpy(&bits, &prob, sizeof bits);
    const bool left = !(bits >> 31);
    bits |= 0x80000000u;
    memcpy(&prob, &bits, sizeof bits);
    return (fl_text_ngram_entry){prob, backoff, left};
}

static bool fl__kenlm_lookup_probing(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
                                     fl_text_ngram_entry *out) {
    const fl__kenlm *a = m->self;
    if (!k) {
        at->begin = (uint64_t)(uint32_t)word;
        if (word < 0 || word > m->count[0]) return false;
        *out = fl__kenlm_entry(fl__kenlm_f32(a->unigram + 8 * (int64_t)word),
                               fl__kenlm_f32(a->unigram + 8 * (int64_t)word + 4));
        return true;
    }
    const bool last = k + 1 == m->order;
    at->begin = fl_text_ngram_key(at->begin, word);
    const char *s = fl_text_ngram_probe(a->level[k].base, a->level[k].n, last ? 12 : 16, at->begin);
    if (!s || !fl__kenlm_u64(s)) return false;
    *out = fl__kenlm_entry(fl__kenlm_f32(s + 8), last ? -0.0f : fl__kenlm_f32(s + 12));
    if (last) out->left = false;
    return true;
}

/* Index of the first n-gram that extends entry i; that of entry i + 1 is the end of the range. */
static uint64_t fl__kenlm_next(const fl__kenlm_level *l, uint64_t i) {
    const uint64_t low = fl__kenlm_bits(l->base, i * l->bits + l->bits - l->next, l->next);
    uint64_t from = 0, to = l->n_high; /* binary search: the last upper value that starts at or before i */
    while (to - from > 1) {
        const uint64_t mid = (from + to) / 2;
        if (fl__kenlm_u64(l->high + 8 * mid) <= i) from = mid;
        else to = mid;
    }
    return l->n_high ? from << l->next | low : low;
}

static bool fl__kenlm_lookup_trie(const fl_text_ngram *m, int k, int32_t word, fl_text_ngram_state *at,
                                  fl_text_ngram_entry *out) {
    const fl__kenlm *a = m->self;
    const fl__kenlm_level *l = &a->level[k];
    const bool last = k + 1 == m->order;
    if (!k) {
        if (word < 0 || word >= m->count[0]) return false;
        const char *u = a->unigram + 16 * (int64_t)word;
        *out = (fl_text_ngram_entry){fl__kenlm_f32(u), fl__kenlm_f32(u + 4), true};
        *at = (fl_text_ngram_state){fl__kenlm_u64(u + 8), fl__kenlm_u64(u + 24)};
        return true;
    }
    uint64_t low = at->begin, high = at->end < l->n ? at->end : l->n, found = UINT64_MAX;
    while (low < high) {
        const uint64_t mid = (low + high) / 2, there = fl__kenlm_bits(l->base, mid * l->bits, l->word);
        if (there == (uint64_t)(uint32_t)word) {
            found = mid;
            break;
        }
        if (there < (uint64_t)(uint32_t)word) low = mid + 1;
        else high = mid;
    }
    if (found == UINT64_MAX) return false;
    const uint64_t bit = found * l->bits + l->word;
    uint32_t prob = (uint32_t)fl__kenlm_bits(l->base, bit, 31) | 0x80000000u, backoff = 0x80000000u;
    if (l->prob) {
        const uint32_t skip = last ? 0 : a->backoff_bits;
        *out = (fl_text_ngram_entry){
            fl__kenlm_f32(l->prob + 4 * fl__kenlm_bits(l->base, bit + skip, a->prob_bits)), -0.0f,
            !last};
        if (!last)
            out->backoff =
                fl__kenlm_f32(l->backoff + 4 * fl__kenlm_bits(l->base, bit, a->backoff_bits));
    } else {
        if (!last) backoff = (uint32_t)fl__kenlm_bits(l->base, bit + 31, 32);
        *out = (fl_text_ngram_entry){0, 0, !last};
        memcpy(&out->prob, &prob, sizeof prob);
        memcpy(&out->backoff, &backoff, sizeof backoff);
    }
    if (last) return true;
    *at = (fl_text_ngram_state){fl__kenlm_next(l, found), fl__kenlm_next(l, found + 1)};
    return true;
}

/* ---- the file ---- */

static void fl__kenlm_close(fl_text_ngram *m) {
    fl__kenlm *a = m->self;
    if (a->mapped) a->io.unmap(a->io.user, a->p, a->size);
    else fl_heap_free(a->p);
    fl_heap_free(a);
}

static uint64_t fl__kenlm_slots(uint64_t n, float multiplier) {
    const float more = multiplier * (float)n;
    const uint64_t m = more < 1e18f ? (uint64_t)more : 0;
    return m > n + 1 ? m : n + 1;
}

/* The next n * size bytes at *at, which is advanced; NULL if the file is too short. */
static const char *fl__kenlm_part(const fl__kenlm *a, uint64_t *at, uint64_t n, uint64_t size) {
    const uint64_t left = (uint64_t)a->size - *at;
    if (*at > (uint64_t)a->size || n > left / size) return NULL;
    const char *p = a->p + *at;
    *at += n * size;
    return p;
}

static bool fl__kenlm_probing(fl__kenlm *a, uint64_t at, float multiplier) {
    a->m.find = fl__kenlm_find_probing, a->m.look = fl__kenlm_lookup_probing;
    a->vocab_n = fl__kenlm_slots((uint64_t)a->m.count[0], multiplier);
    bool ok = fl__kenlm_part(a, &at, 1, 8) && (a->vocab = fl__kenlm_part(a, &at, a->vocab_n, 12)) &&
              (a->unigram = fl__kenlm_part(a, &at, (uint64_t)a->m.count[0] + 1, 8));
    for (int k = 1; ok && k < a->m.order; k++) {
        fl__kenlm_level *l = &a->level[k];
        l->n = fl__kenlm_slots((uint64_t)a->m.count[k], multiplier);
        l->base = fl__kenlm_part(a, &at, l->n, k + 1 < a->m.order ? 16 : 12);
        ok = l->base != NULL;
    }
    return ok;
}

/* Number of upper pointer bits that are moved to a table: the number that minimises the total size. */
static uint32_t fl__kenlm_chopped(uint64_t entries, uint64_t next, uint32_t most) {
    const uint32_t width = fl__kenlm_width(next);
    uint32_t best = 0;
    int64_t lowest = INT64_MAX;
    for (uint32_t chop = 0; chop <= (width < most ? width : most); chop++) {
        const int64_t change = (int64_t)(next >> (width - chop)) * 64 - (int64_t)entries * (int64_t)chop;
        if (change < lowest) lowest = change, best = chop;
    }
    return best;
}

static bool fl__kenlm_quantised(fl__kenlm *a, uint64_t *at) {
    const char *head = fl__kenlm_part(a, at, 8, 1);
    if (!head || head[0] != 2) return false;
    a->prob_bits = (uint8_t)head[1], a->backoff_bits = (uint8_t)head[2];
    if (!a->prob_bits || a->prob_bits > 25 || !a->backoff_bits || a->backoff_bits > 25) return false;
    bool ok = true;
    for (int k = 1; ok && k < a->m.order; k++) {
        a->level[k].prob = fl__kenlm_part(a, at, (uint64_t)1 << a->prob_bits, 4);
        if (k + 1 < a->m.order)
            a->level[k].backoff = fl__kenlm_part(a, at, (uint64_t)1 << a->backoff_bits, 4);
        ok = a->level[k].prob && (k + 1 == a->m.order || a->level[k].backoff);
    }
    return ok;
}

static bool fl__kenlm_trie(fl__kenlm *a, uint64_t at, int type) {
    const bool quant = type == FL__KENLM_QUANT || type == FL__KENLM_BOTH;
    const uint64_t words = (uint64_t)a->m.count[0];
    const char *head = fl__kenlm_part(a, &at, 1, 8);
    a->m.find = fl__kenlm_find_sorted, a->m.look = fl__kenlm_lookup_trie;
    a->vocab_n = head ? fl__kenlm_u64(head) : 0;
    a->vocab = fl__kenlm_part(a, &at, words, 8);
    if (!a->vocab || a->vocab_n > words || (quant && !fl__kenlm_quantised(a, &at))) return false;
    a->unigram = fl__kenlm_part(a, &at, words + 2, 16);
    bool ok = a->unigram != NULL;
    uint32_t most = 0; /* upper bits at most */
    for (int k = 1; ok && k < a->m.order; k++) {
        fl__kenlm_level *l = &a->level[k];
        const bool last = k + 1 == a->m.order;
        const uint64_t next = last ? 0 : (uint64_t)a->m.count[k + 1];
        l->n = (uint64_t)a->m.count[k], l->word = fl__kenlm_width(words), l->next = fl__kenlm_width(next);
        if (!last && type >= FL__KENLM_ARRAY) {
            const uint64_t aligned = (at + 7) / 8 * 8 + 8;
            if (aligned > (uint64_t)a->size) return false;
            if (k == 1) most = (uint8_t)a->p[at + 1];
            const uint32_t chop = fl__kenlm_chopped(l->n + 1, next, most);
            uint64_t from = aligned;
            l->n_high = (next >> (l->next - chop)) + 1;
            l->high = fl__kenlm_part(a, &from, l->n_high, 8);
            if (!l->high || !fl__kenlm_part(a, &at, (l->n_high + 1) * 8 + 7, 1)) return false;
            l->next -= chop;
        }
        l->bits = l->word + l->next + (quant ? a->prob_bits + (last ? 0 : a->backoff_bits) : last ? 31 : 63);
        ok = l->n < ((uint64_t)a->size + 1) * 8 && l->next < 57 &&
             (l->base = fl__kenlm_part(a, &at, ((1 + l->n) * l->bits + 7) / 8 + 8, 1));
    }
    return ok;
}

static bool fl__kenlm_open(fl__kenlm *a, const char *path) {
    static const char *const name[] = {
        "probing",        "probing with rest costs", "trie",
        "quantised trie", "array-compressed trie",   "quantised and array-compressed trie"};
    const size_t magic = (sizeof fl__kenlm_magic + 1 + 7) / 8 * 8, test = magic + 32;
    const uint32_t tests[6] = {0, 0x3f800000u, 0xbf000000u, 1, 0xffffffffu, 0};
    if ((size_t)a->size < test + 20 || memcmp(a->p + magic, tests, sizeof tests) ||
        fl__kenlm_u64(a->p + magic + 24) != 1)
        return fl_fail("fl_text_ngram_load: %s: offset %d: KenLM's test values differ: other byte order or "
                       "float "
                       "format", path, (int)magic);
    const char *h = a->p + test;
    const int order = (uint8_t)h[0];
    const float multiplier = fl__kenlm_f32(h + 4);
    uint32_t type, version;
    memcpy(&type, h + 8, 4);
    memcpy(&version, h + 16, 4);
    if (type > FL__KENLM_BOTH || type == FL__KENLM_REST)
        return fl_fail("fl_text_ngram_load: %s: offset %d: unsupported KenLM type %u%s%s%s, known: 0, 2 to 5",
                       path,
                       (int)test + 8, (unsigned)type, type == FL__KENLM_REST ? " (" : "",
                       type == FL__KENLM_REST ? name[type] : "", type == FL__KENLM_REST ? ")" : "");
    if (order < 2 || order > FL_TEXT_NGRAM_MOST || version != (type >= FL__KENLM_TRIE) || !(multiplier >= 1))
        return fl_fail("fl_text_ngram_load: %s: offset %d: invalid header of type %s: got order %d, version "
                       "%u, "
                       "multiplier %g, expected order 2 to %d, version %d, multiplier >= 1", path, (int)test,
                       name[type], order, (unsigned)version, (double)multiplier, FL_TEXT_NGRAM_MOST,
                       type >= FL__KENLM_TRIE);
    uint64_t at = (test + 20 + 8 * (uint64_t)order + 7) / 8 * 8;
    if (at > (uint64_t)a->size) return fl_fail("fl_text_ngram_load: %s: the file ends within its header",
                                               path);
    a->m.order = order;
    for (int k = 0; k < order; k++) {
        const uint64_t n = fl__kenlm_u64(h + 20 + 8 * k);
        if (n > (uint64_t)a->size * 8 || (!k && n >= INT32_MAX))
            return fl_fail("fl_text_ngram_load: %s: offset %d: too many %d-grams for the file: got %llu",
                           path,
                           (int)test + 20 + 8 * k, k + 1, (unsigned long long)n);
        a->m.count[k] = (int64_t)n;
    }
    if (!(type == FL__KENLM_PROBING ? fl__kenlm_probing(a, at, multiplier)
                                    : fl__kenlm_trie(a, at, (int)type)))
        return fl_fail("fl_text_ngram_load: %s: offset %lld: the tables of type %s exceed the file's %lld "
                       "bytes", path, (long long)at, name[type], (long long)a->size);
    a->m.begin = a->m.find(&a->m, "<s>", 3), a->m.end = a->m.find(&a->m, "</s>", 4);
    if (a->m.begin && a->m.end) return true;
    return fl_fail("fl_text_ngram_load: %s: the vocabulary has no '%s'", path, a->m.begin ? "</s>" : "<s>");
}

FL_API int fl_text_kenlm_is(const char *path) {
    static const char start[] = "mmap lm http://kheafield.com/code ";
    char head[80] = {0};
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "fl_text_ngram_load", path, FL_DATA_READ)) return -1;
    const bool ok = fl_data_stream_read(&f, head, (size_t)(f.size < 79 ? f.size : 79), 0);
    f.io.close(f.io.user, f.file);
    if (!ok) return -1;
    if (memcmp(head, start, sizeof start - 1)) return 0;
    if (!memcmp(head, fl__kenlm_magic, sizeof fl__kenlm_magic)) return 1;
    const char *what = head + sizeof start - 1;
    return fl_fail("fl_text_ngram_load: %s: unsupported KenLM file: got \"%.*s\", expected \"format version "
                   "5\"",
                   path, (int)strcspn(what, "\n"), what) - 1;
}

FL_API fl_text_ngram *fl_text_kenlm_load(const char *path) {
    fl_data_stream f;
    fl__kenlm *a = fl_heap_alloc(sizeof *a);
    if (!a) return NULL;
    a->m.self = a, a->m.close = fl__kenlm_close;
    bool ok = fl_data_stream_open(&f, "fl_text_ngram_load", path, FL_DATA_READ);
    if (ok) {
        a->io = f.io, a->size = f.size, a->mapped = f.io.map != NULL;
        a->p = a->mapped ? f.io.map(f.io.user, f.file, f.size) : fl_heap_alloc((size_t)f.size + FL_ALIGN);
        ok = a->p && (a->mapped || fl_data_stream_read(&f, a->p, (size_t)f.size, 0));
        if (!a->p && a->mapped) a->mapped = fl_data_stream_fail(&f, "cannot map");
        f.io.close(f.io.user, f.file);
    }
    if (ok && fl__kenlm_open(a, path)) return &a->m;
    fl__kenlm_close(&a->m);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
