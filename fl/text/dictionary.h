/* fl/text/dictionary.h - dictionary: words and their indices, as Flashlight's; a tokenizer's vocabulary */
#ifndef FL_TEXT_DICTIONARY_H
#define FL_TEXT_DICTIONARY_H
#include "../data/file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Entries are unique byte strings, each with an index; several entries (spellings) may share one. Any number
   of threads may look up; only one may add. Nothing here calls the error handler. */
typedef struct fl_text_dictionary fl_text_dictionary;
FL_API fl_text_dictionary *fl_text_dictionary_new(void);
FL_API void fl_text_dictionary_free(fl_text_dictionary *d); /* NULL is fine */
/* The owner, a model or tokenizer that frees the dictionary; NULL: the user. */
FL_PRIVATE const void *fl__text_owner(const fl_text_dictionary *d);
FL_PRIVATE void fl__text_set_owner(fl_text_dictionary *d, const void *owner);
/* For constructors: returns d if ok; else frees it and returns NULL. */
FL_API fl_text_dictionary *fl_text_dictionary_or_free(fl_text_dictionary *d, bool ok);

/* Adds an entry of n bytes at the next index (highest index + 1) and returns it; -1 after fl_fail,
   also if the entry exists. */
FL_API int64_t fl_text_dictionary_add(fl_text_dictionary *d, const char *entry, int64_t n);
/* The same with an index >= 0 of your choice. The first spelling of an index represents it. */
FL_API bool fl_text_dictionary_add_at(fl_text_dictionary *d, const char *entry, int64_t n, int64_t index);
/* Adds those of n strings that are not in the dictionary yet. */
FL_API bool fl_text_dictionary_add_all(fl_text_dictionary *d, const char *const *entry, int64_t n);
/* Reserves capacity for that many entries. */
FL_API bool fl_text_dictionary_reserve(fl_text_dictionary *d, int64_t entries);
/* Adds `times` to the count of an entry, which is added if missing. Returns its index; -1 after fl_fail. */
FL_API int64_t fl_text_dictionary_count(fl_text_dictionary *d, const char *entry, int64_t n, int64_t times);

/* Returns the index of an entry; -1, without an error, if it is missing, whatever the default is. */
FL_API int64_t fl_text_dictionary_find(const fl_text_dictionary *d, const char *entry, int64_t n);
/* Returns the index of an entry, the default if it is missing; -1 after fl_fail if there is no default. */
FL_API int64_t fl_text_dictionary_index(const fl_text_dictionary *d, const char *entry, int64_t n);
/* Sets the index of unknown entries; -1: unknown entries are errors. */
FL_API bool fl_text_dictionary_set_default(fl_text_dictionary *d, int64_t index);
/* The default index, -1 if none. */
FL_API int64_t fl_text_dictionary_default(const fl_text_dictionary *d);
/* The first spelling of an index, NUL-terminated, its length in *n (may be NULL). Valid as long as the
   dictionary. Returns NULL, without an error, for an index without an entry. */
FL_API const char *fl_text_dictionary_entry(const fl_text_dictionary *d, int64_t index, int64_t *n);
/* The count of an index, see fl_text_dictionary_count. */
FL_API int64_t fl_text_dictionary_count_of(const fl_text_dictionary *d, int64_t index);
FL_API int64_t fl_text_dictionary_size(const fl_text_dictionary *d);    /* highest index + 1 */
FL_API int64_t fl_text_dictionary_entries(const fl_text_dictionary *d); /* number of spellings */
FL_API bool fl_text_dictionary_contiguous(const fl_text_dictionary *d); /* does every index have an entry? */
/* Spelling k in the order of insertion; NULL with length 0 and index -1 past the last one. */
FL_API const char *fl_text_dictionary_spelling(const fl_text_dictionary *d, int64_t k, int64_t *n,
                                               int64_t *index);

/* A new dictionary: the first `keep` indices of d unchanged, then the others by descending count (ties: by
   their bytes), without those counted less than min_count; max_size indices at most (0: no limit). */
FL_API fl_text_dictionary *fl_text_dictionary_pruned(const fl_text_dictionary *d, int64_t keep,
                                                     int64_t min_count, int64_t max_size);

typedef struct fl_text_dictionary_opts {
    fl_opts_guard guard_;
    bool counts;       /* a line is an entry and its count; else all spellings of one index */
    int64_t min_count; /* skips entries with a lower count; needs counts */
    int64_t max_size;  /* indices at most, further lines are not read; 0: no limit */
    char _end;
} fl_text_dictionary_opts;
/* Loads a text file with one line per index and fields separated by white space; empty lines are skipped.
   Duplicate entries and invalid counts are errors with path and line. */
#define fl_text_dictionary_load(...) FL__TEXT_DICTIONARY_LOAD(__VA_ARGS__, ._end = 0)
#define FL__TEXT_DICTIONARY_LOAD(path, ...) \
    fl_text_dictionary_load_opt(path, FL_LITERAL(fl_text_dictionary_opts, __VA_ARGS__))
FL_API fl_text_dictionary *fl_text_dictionary_load_opt(const char *path, fl_text_dictionary_opts o);
/* Saves such a file, with counts or with all spellings. Indices without an entry, and entries that are empty
   or contain white space, cannot be represented: an error, and no file is written. */
FL_API bool fl_text_dictionary_save(const fl_text_dictionary *d, const char *path, bool counts);

/* For parsers: returns the next field of [*p, end), delimited by ASCII white space, and its length; NULL at
   the end. */
FL_API const char *fl_text_field(const char **p, const char *end, int64_t *n);
/* Returns the next line of [*p, end) without LF or CR LF, its length in *n; NULL at the end. */
FL_API const char *fl_text_line(const char **p, const char *end, int64_t *n);
/* A 64-bit hash of n bytes, the same on every machine. */
FL_API uint64_t fl_text_hash(const char *s, int64_t n);
/* A hash of n bytes that differs between processes, for tables whose keys come from files. */
FL_API uint64_t fl_text_seeded_hash(const char *s, int64_t n);
/* Reads a whole file, NUL-terminated; free it with fl_heap_free. Returns NULL after fl_fail. */
FL_API char *fl_text_read_file(const char *fn, const char *path, int64_t *n);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_DICTIONARY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_DICTIONARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_DICTIONARY_IMPL
#define FL_TEXT_DICTIONARY_IMPL
#include "../data/text.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct fl__text_entry {
    const char *text;
    uint32_t n;
    int32_t index;
} fl__text_entry;

typedef struct fl__text_slot {
    uint32_t hash;
    int32_t entry; /* index of the entry + 1; 0: free */
} fl__text_slot;

struct fl_text_dictionary {
    fl_data_arena text;
    fl__text_entry *entry;
    int32_t *first; /* per index: its first entry + 1; 0: none */
    int64_t *count; /* per index; NULL: nothing counted */
    fl__text_slot *slot;
    int64_t n, cap, size, size_cap, count_cap, mask, missing; /* mask: slots - 1; missing: default index */
    const void *owner; /* the model or tokenizer that frees it; NULL: the user */
};

FL_PRIVATE const void *fl__text_owner(const fl_text_dictionary *d) { return d->owner; }
FL_PRIVATE void fl__text_set_owner(fl_text_dictionary *d, const void *owner) { d->owner = owner; }

/* ---- bytes ---- */

static inline uint64_t fl__text_mix(uint64_t h) {
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

FL_API uint64_t fl_text_hash(const char *s, int64_t n) {
    uint64_t h = (uint64_t)n, w = 0;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = fl__text_mix(h ^ w);
    }
    for (w = 0; n > 0; n--) w = w << 8 | (uint8_t)s[n - 1];
    return fl__text_mix(fl__text_mix(h ^ w) + 1);
}

/* Seeds that a file cannot predict, so that it cannot choose colliding entries: from the system, else from
   the clock and from addresses. The order of entries does not depend on them. */
static uint64_t fl__text_seeds[2];
static pthread_once_t fl__text_seeded = PTHREAD_ONCE_INIT;

static void fl__text_seed(void) {
    FILE *f = fopen("/dev/urandom", "rb");
    const size_t n = f ? fread(fl__text_seeds, 1, sizeof fl__text_seeds, f) : 0;
    if (f) fclose(f);
    if (n == sizeof fl__text_seeds) return;
    fl__text_seeds[0] = fl__text_mix((uint64_t)(uintptr_t)&f ^ (uint64_t)time(NULL) << 32);
    fl__text_seeds[1] =
        fl__text_mix(fl__text_seeds[0] + (uint64_t)clock() + (uint64_t)(uintptr_t)&fl__text_seed);
}

FL_API uint64_t fl_text_seeded_hash(const char *s, int64_t n) {
    pthread_once(&fl__text_seeded, fl__text_seed);
    const uint64_t x = fl__text_seeds[0], y = fl__text_seeds[1];
    uint64_t h = x + (uint64_t)n, w = 0;
    for (; n > 0; s += 8, n -= 8) {
        if (n >= 8) memcpy(&w, s, 8);
        else for (int64_t i = w = 0; i < n; i++) w = w << 8 | (uint8_t)s[n - 1 - i];
        w ^= h; /* both halves of the product depend on the seeds */
        h = (uint64_t)(uint32_t)(w ^ x) * (uint32_t)(w >> 32 ^ y) + (w << 32 | w >> 32);
    }
    return fl__text_mix(fl__text_mix(h ^ y) + 1);
}

static bool fl__text_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

FL_API const char *fl_text_field(const char **p, const char *end, int64_t *n) {
    if (!fl_given(p, "fl_text_field", "the position") ||
        !fl_given(n, "fl_text_field", "the count")) return NULL;
    const char *s = *p;
    while (s < end && fl__text_space(*s)) s++;
    const char *stop = s;
    while (stop < end && !fl__text_space(*stop)) stop++;
    *p = stop;
    *n = stop - s;
    return *n ? s : NULL;
}

FL_API const char *fl_text_line(const char **p, const char *end, int64_t *n) {
    if (!fl_given(p, "fl_text_line", "the position") ||
        !fl_given(n, "fl_text_line", "the count")) return NULL;
    const char *s = *p, *stop = s < end ? memchr(s, '\n', (size_t)(end - s)) : NULL;
    if (s >= end) return NULL;
    if (!stop) stop = end;
    *p = stop + 1;
    *n = stop - s - (stop > s && stop[-1] == '\r');
    return s;
}

FL_API char *fl_text_read_file(const char *fn, const char *path, int64_t *n) {
    fl_data_stream f;
    if (!fl_data_stream_open(&f, fn, path, FL_DATA_READ)) return NULL;
    char *text = fl_heap_alloc((size_t)f.size + 1);
    const bool ok = text && fl_data_stream_read(&f, text, (size_t)f.size, 0);
    f.io.close(f.io.user, f.file);
    *n = f.size;
    if (ok) return text;
    fl_heap_free(text);
    return NULL;
}

/* ---- entries ---- */

FL_API fl_text_dictionary *fl_text_dictionary_new(void) {
    fl_text_dictionary *d = fl_heap_alloc(sizeof *d);
    if (d) d->missing = -1;
    return d;
}

FL_API void fl_text_dictionary_free(fl_text_dictionary *d) {
    if (!d || fl_is_freed(d, "fl_text_dictionary_free", "the dictionary")) return;
    if (d->owner) {
        fl_err_false("fl_text_dictionary_free: the dictionary is owned by a model or tokenizer, which frees "
                     "it");
        return;
    }
    fl_data_arena_free(&d->text);
    fl_heap_free(d->entry);
    fl_heap_free(d->first);
    fl_heap_free(d->count);
    fl_heap_free(d->slot);
    fl_object_free(d, "dictionary", "");
}

FL_API fl_text_dictionary *fl_text_dictionary_or_free(fl_text_dictionary *d, bool ok) {
    if (!ok) fl_text_dictionary_free(d);
    return ok ? d : NULL;
}

static void fl__text_insert_slot(fl__text_slot *slot, int64_t mask, uint64_t hash, int64_t entry) {
    uint64_t at = hash & (uint64_t)mask;
    while (slot[at].entry) at = (at + 1) & (uint64_t)mask;
    slot[at] = (fl__text_slot){(uint32_t)(hash >> 32), (int32_t)entry + 1};
}

FL_API bool fl_text_dictionary_reserve(fl_text_dictionary *d, int64_t entries) {
    if (!fl_given(d, "fl_text_dictionary_reserve", "the dictionary")) return false;
    int64_t slots = d->mask + 1;
    if (entries >= INT32_MAX)
        return fl_fail("fl_text_dictionary_reserve: too many entries: got %lld, expected less than 2^31 - 1",
                       (long long)entries);
    while (slots < entries + entries / 2 + 8) slots = slots < 8 ? 16 : slots * 2;
    if (!fl_heap_grow(&d->entry, &d->cap, entries, sizeof *d->entry)) return false;
    if (slots == d->mask + 1) return true;
    fl__text_slot *slot = fl_heap_alloc((size_t)slots * sizeof *slot);
    if (!slot) return false;
    for (int64_t i = 0; i < d->n; i++)
        fl__text_insert_slot(slot, slots - 1, fl_text_seeded_hash(d->entry[i].text, d->entry[i].n), i);
    fl_heap_free(d->slot);
    d->slot = slot, d->mask = slots - 1;
    return true;
}

static int64_t fl__text_find(const fl_text_dictionary *d, const char *s, int64_t n, uint64_t hash) {
    if (!d->slot) return -1;
    for (uint64_t at = hash & (uint64_t)d->mask;; at = (at + 1) & (uint64_t)d->mask) {
        const fl__text_slot slot = d->slot[at];
        if (!slot.entry) return -1;
        const fl__text_entry *e = &d->entry[slot.entry - 1];
        if (slot.hash == (uint32_t)(hash >> 32) && e->n == n && !memcmp(e->text, s, (size_t)n))
            return e->index;
    }
}

FL_API int64_t fl_text_dictionary_find(const fl_text_dictionary *d, const char *entry, int64_t n) {
    if (!fl_given(d, "fl_text_dictionary_find", "the dictionary")) return -1;
    return fl__text_find(d, entry, n, fl_text_seeded_hash(entry, n));
}

FL_API bool fl_text_dictionary_add_at(fl_text_dictionary *d, const char *entry, int64_t n, int64_t index) {
    if (!fl_given(d, "fl_text_dictionary_add_at", "the dictionary") ||
        !fl_given(entry, "fl_text_dictionary_add_at", "the entry")) return false;
    if (index < 0 || index >= INT32_MAX || n < 0 || n > UINT32_MAX)
        return fl_fail("fl_text_dictionary_add_at: index (%lld) is not in [0, 2^31 - 1), or length (%lld) "
                       "not in "
                       "[0, 2^32)", (long long)index, (long long)n);
    const uint64_t hash = fl_text_seeded_hash(entry, n);
    if (fl__text_find(d, entry, n, hash) >= 0)
        return fl_fail("fl_text_dictionary_add_at: duplicate entry '%.*s'", n < 100 ? (int)n : 100, entry);
    if (3 * (d->n + 1) > 2 * d->mask && !fl_text_dictionary_reserve(d, d->n + d->n / 8 + 8))
        return false;
    if (!fl_heap_grow(&d->entry, &d->cap, d->n + 1, sizeof *d->entry) ||
        !fl_heap_grow(&d->first, &d->size_cap, index + 1, sizeof *d->first))
        return false;
    const char *text = fl_data_arena_add(&d->text, entry, (size_t)n);
    if (!text) return false;
    for (; d->size <= index; d->size++) d->first[d->size] = 0;
    d->entry[d->n] = (fl__text_entry){text, (uint32_t)n, (int32_t)index};
    fl__text_insert_slot(d->slot, d->mask, hash, d->n++);
    if (!d->first[index]) d->first[index] = (int32_t)d->n;
    return true;
}

FL_API int64_t fl_text_dictionary_add(fl_text_dictionary *d, const char *entry, int64_t n) {
    if (!fl_given(d, "fl_text_dictionary_add", "the dictionary")) return -1;
    const int64_t index = d->size;
    return fl_text_dictionary_add_at(d, entry, n, index) ? index : -1;
}

FL_API bool fl_text_dictionary_add_all(fl_text_dictionary *d, const char *const *entry, int64_t n) {
    bool ok = true;
    for (int64_t i = 0, len; ok && i < n; i++)
        len = (int64_t)strlen(entry[i]), ok = fl_text_dictionary_find(d, entry[i], len) >= 0 ||
                                              fl_text_dictionary_add(d, entry[i], len) >= 0;
    return ok;
}

FL_API int64_t fl_text_dictionary_count(fl_text_dictionary *d, const char *entry, int64_t n, int64_t times) {
    if (!fl_given(d, "fl_text_dictionary_count", "the dictionary")) return -1;
    int64_t index = fl_text_dictionary_find(d, entry, n);
    if (index < 0) index = fl_text_dictionary_add(d, entry, n);
    const int64_t before = d->count_cap;
    if (index < 0 || !fl_heap_grow(&d->count, &d->count_cap, d->size, sizeof *d->count)) return -1;
    for (int64_t i = before; i < d->count_cap; i++) d->count[i] = 0;
    d->count[index] += times;
    return index;
}

FL_API int64_t fl_text_dictionary_index(const fl_text_dictionary *d, const char *entry, int64_t n) {
    if (!fl_given(d, "fl_text_dictionary_index", "the dictionary")) return -1;
    const int64_t index = fl_text_dictionary_find(d, entry, n);
    if (index >= 0 || d->missing >= 0) return index >= 0 ? index : d->missing;
    return fl_fail("fl_text_dictionary_index: unknown entry '%.*s', and no default index is set",
                   n < 100 ? (int)n : 100, entry) - 1;
}

FL_API bool fl_text_dictionary_set_default(fl_text_dictionary *d, int64_t index) {
    if (!fl_given(d, "fl_text_dictionary_set_default", "the dictionary")) return false;
    if (index < -1 || index >= d->size)
        return fl_fail("fl_text_dictionary_set_default: index is out of range: got %lld, expected [-1, %lld)",
                       (long long)index, (long long)d->size);
    d->missing = index;
    return true;
}

FL_API int64_t fl_text_dictionary_default(const fl_text_dictionary *d) {
    return fl_given(d, "fl_text_dictionary_default", "the dictionary") ? d->missing : -1;
}

FL_API const char *fl_text_dictionary_spelling(const fl_text_dictionary *d, int64_t k, int64_t *n,
                                               int64_t *index) {
    if (!fl_given(d, "fl_text_dictionary_spelling", "the dictionary")) return NULL;
    const bool there = k >= 0 && k < d->n;
    if (n) *n = there ? d->entry[k].n : 0;
    if (index) *index = there ? d->entry[k].index : -1;
    return there ? d->entry[k].text : NULL;
}

FL_API const char *fl_text_dictionary_entry(const fl_text_dictionary *d, int64_t index, int64_t *n) {
    if (!fl_given(d, "fl_text_dictionary_entry", "the dictionary")) return NULL;
    const bool there = index >= 0 && index < d->size;
    return fl_text_dictionary_spelling(d, there ? d->first[index] - 1 : -1, n, NULL);
}

FL_API int64_t fl_text_dictionary_count_of(const fl_text_dictionary *d, int64_t index) {
    if (!fl_given(d, "fl_text_dictionary_count_of", "the dictionary")) return 0;
    return index >= 0 && index < d->size && index < d->count_cap ? d->count[index] : 0;
}

FL_API int64_t fl_text_dictionary_size(const fl_text_dictionary *d) {
    return fl_given(d, "fl_text_dictionary_size", "the dictionary") ? d->size : 0;
}

FL_API int64_t fl_text_dictionary_entries(const fl_text_dictionary *d) {
    return fl_given(d, "fl_text_dictionary_entries", "the dictionary") ? d->n : 0;
}

FL_API bool fl_text_dictionary_contiguous(const fl_text_dictionary *d) {
    if (!fl_given(d, "fl_text_dictionary_contiguous", "the dictionary")) return false;
    for (int64_t i = 0; i < d->size; i++)
        if (!d->first[i]) return false;
    return true;
}

/* ---- pruning ---- */

typedef struct fl__text_counted {
    const char *text;
    int64_t n, count;
} fl__text_counted;

static int fl__text_by_count(const void *a, const void *b) {
    const fl__text_counted *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    const int order = memcmp(x->text, y->text, (size_t)(x->n < y->n ? x->n : y->n));
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

FL_API fl_text_dictionary *fl_text_dictionary_pruned(const fl_text_dictionary *d, int64_t keep,
                                                     int64_t min_count, int64_t max_size) {
    if (!fl_given(d, "fl_text_dictionary_pruned", "the dictionary")) return NULL;
    fl__text_counted *list = fl_heap_alloc((size_t)(d->size + 1) * sizeof *list);
    fl_text_dictionary *out = list ? fl_text_dictionary_new() : NULL;
    int64_t n = 0;
    for (int64_t i = 0; out && i < d->size; i++) {
        fl__text_counted c = {.count = i < keep ? INT64_MAX : fl_text_dictionary_count_of(d, i)};
        c.text = fl_text_dictionary_entry(d, i, &c.n);
        if (c.text && (i < keep || c.count >= min_count)) list[n++] = c;
    }
    if (keep > n) keep = n;
    if (out && n > keep)
        qsort(list + (keep > 0 ? keep : 0), (size_t)(n - (keep > 0 ? keep : 0)), sizeof *list,
              fl__text_by_count);
    bool ok = out != NULL;
    for (int64_t i = 0; ok && i < n && (!max_size || i < max_size); i++) {
        const int64_t times = list[i].count == INT64_MAX ? 0 : list[i].count;
        ok = fl_text_dictionary_count(out, list[i].text, list[i].n, times) >= 0;
    }
    fl_heap_free(list);
    return fl_text_dictionary_or_free(out, ok);
}

/* ---- files ---- */

/* Parses one line; returns false after fl_fail. */
static bool fl__text_parse_line(fl_text_dictionary *d, const char *p, const char *end, const char *path,
                                int64_t line, const fl_text_dictionary_opts *o) {
    int64_t n, digits, count = 0;
    const int64_t index = d->size;
    bool ok = true;
    for (const char *entry; ok && (entry = fl_text_field(&p, end, &n)); p = o->counts ? end : p) {
        const char *number = o->counts ? fl_text_field(&p, end, &digits) : "", *stop = number;
        for (; number && o->counts && stop < number + digits && *stop >= '0' && *stop <= '9'; stop++)
            if (count < INT64_MAX / 16) count = count * 10 + (*stop - '0');
        if (o->counts && (!number || stop != number + digits || count >= INT64_MAX / 16))
            return fl_fail("fl_text_dictionary_load: %s: line %lld: expected a count after '%.*s'", path,
                           (long long)line, n < 100 ? (int)n : 100, entry);
        if (fl_text_dictionary_find(d, entry, n) >= 0)
            return fl_fail("fl_text_dictionary_load: %s: line %lld: duplicate entry '%.*s'", path,
                           (long long)line, n < 100 ? (int)n : 100, entry);
        if (!o->counts) ok = fl_text_dictionary_add_at(d, entry, n, index);
        else ok = count < o->min_count || fl_text_dictionary_count(d, entry, n, count) >= 0;
    }
    return ok;
}

FL_API fl_text_dictionary *fl_text_dictionary_load_opt(const char *path, fl_text_dictionary_opts o) {
    int64_t n, line = 0;
    char *text = fl_text_read_file("fl_text_dictionary_load", path, &n);
    fl_text_dictionary *d = text ? fl_text_dictionary_new() : NULL;
    bool ok = d != NULL;
    int64_t len;
    for (const char *p = text, *s; ok && (!o.max_size || d->size < o.max_size) &&
                                   (s = fl_text_line(&p, text + n, &len));)
        ok = fl__text_parse_line(d, s, s + len, path, ++line, &o);
    fl_heap_free(text);
    return fl_text_dictionary_or_free(d, ok);
}

static bool fl__text_put_index(const fl_text_dictionary *d, int64_t i, bool counts, fl_data_text *out) {
    int64_t n, index, end;
    const char *text = fl_text_dictionary_entry(d, i, &n);
    if (!text) return fl_fail("fl_text_dictionary_save: index %lld has no entry", (long long)i);
    bool ok = true;
    for (int64_t k = d->first[i] - 1; ok && k < d->n; k++) {
        text = fl_text_dictionary_spelling(d, k, &n, &index);
        if (index != i) { /* spellings of one index are adjacent, unless they were added in another order */
            if (!counts) continue;
            break;
        }
        const char *p = text;
        ok = (fl_text_field(&p, text + n, &end) == text && end == n) ||
              fl_fail("fl_text_dictionary_save: entry %lld is empty or contains white space", (long long)i);
        ok = ok && (k == d->first[i] - 1 || fl_data_text_put(out, " ", 1)) &&
             fl_data_text_put(out, text, (size_t)n);
        if (counts || fl_text_dictionary_entries(d) == d->size) break;
    }
    return ok && (!counts ||
                  fl_data_text_print(out, " %lld", (long long)fl_text_dictionary_count_of(d, i))) &&
           fl_data_text_put(out, "\n", 1);
}

FL_API bool fl_text_dictionary_save(const fl_text_dictionary *d, const char *path, bool counts) {
    if (!fl_given(d, "fl_text_dictionary_save", "the dictionary") ||
        !fl_given(path, "fl_text_dictionary_save", "the path")) return false;
    fl_data_text out = {0};
    bool ok = fl_data_text_put(&out, "", 0);
    for (int64_t i = 0; ok && i < d->size; i++) ok = fl__text_put_index(d, i, counts, &out);
    ok = ok && fl_data_replace("fl_text_dictionary_save", path, out.p, (size_t)out.n);
    fl_heap_free(out.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
