/* fl/tensor/memo.h - memo tables: what was made of some bytes is found again by these bytes

   A table is bounded and only filled, so that it is read without a lock. */
#ifndef FL_TENSOR_MEMO_H
#define FL_TENSOR_MEMO_H
#include "../../fl_mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A table, static or zeroed but for its size:
     static fl_memo_entry *slots[2 * 100];
     static fl_memo plans = {.most = 100, .size = sizeof(plan), .slot = slots}; */
typedef struct fl_memo_entry fl_memo_entry;
typedef struct fl_memo {
    int most;             /* entries */
    size_t size;          /* bytes of a value */
    fl_memo_entry **slot; /* 2 * most; atomic */
    int n;                /* entries so far; atomic */
} fl_memo;
/* The value made of these bytes and of the number `tag`; NULL: not made yet. */
FL_API void *fl_memo_find(const fl_memo *m, const void *key, size_t bytes, uint64_t tag);
/* Keeps a copy of the value, unless another thread was first; returns the one that is kept, aligned to 16
   bytes. NULL without an error if the table is full, after fl_fail without memory. */
FL_API void *fl_memo_add(fl_memo *m, const void *key, size_t bytes, uint64_t tag, const void *value);

/* Internal. */
/* The value at place i < 2 * most; NULL: none. */
FL_PRIVATE void *fl__memo_at(const fl_memo *m, int i);
/* Frees all values; no thread may use the table. */
FL_PRIVATE void fl__memo_clear(fl_memo *m);
/* Hash of bytes and a number, by words. */
FL_PRIVATE uint64_t fl__memo_hash(const void *key, size_t bytes, uint64_t tag);

/* FNV-1a (Fowler, Noll, Vo). h: FL__HASH, or the hash of what precedes the bytes. */
#define FL__HASH 0xcbf29ce484222325u
static inline uint64_t fl__hash(uint64_t h, const void *bytes, size_t n) {
    for (const unsigned char *p = (const unsigned char *)bytes; n; n--, p++) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_MEMO_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TENSOR_MEMO) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_MEMO_IMPL
#define FL_TENSOR_MEMO_IMPL
#include <pthread.h>
#include <string.h>

struct fl_memo_entry {
    uint64_t hash, tag;
    size_t bytes; /* of the key */
    _Alignas(16) char value[]; /* and the key behind it */
};

FL_PRIVATE uint64_t fl__memo_hash(const void *key, size_t bytes, uint64_t tag) {
    const char *at = key;
    uint64_t hash = tag + bytes, word;
    size_t left = bytes;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (; left; left--) hash = (hash ^ (unsigned char)*at++) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* The place of the entry, or a free one. */
static fl_memo_entry **fl__memo_place(const fl_memo *m, const void *key, size_t bytes, uint64_t tag,
                                      uint64_t hash) {
    for (uint64_t i = hash;; i++) {
        fl_memo_entry **at = &m->slot[i % (2 * (uint64_t)m->most)];
        const fl_memo_entry *e = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        if (!e || (e->hash == hash && e->tag == tag && e->bytes == bytes &&
                   !memcmp(e->value + m->size, key, bytes)))
            return at;
    }
}

static bool fl__memo_given(const char *fn, const fl_memo *m, const void *key) {
    return fl_given(m, fn, "the table") && fl_given(key, fn, "the key");
}

FL_API void *fl_memo_find(const fl_memo *m, const void *key, size_t bytes, uint64_t tag) {
    if (!fl__memo_given("fl_memo_find", m, key)) return NULL;
    fl_memo_entry *const *at = fl__memo_place(m, key, bytes, tag, fl__memo_hash(key, bytes, tag));
    fl_memo_entry *e = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    return e ? e->value : NULL;
}

FL_API void *fl_memo_add(fl_memo *m, const void *key, size_t bytes, uint64_t tag, const void *value) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!fl__memo_given("fl_memo_add", m, key) || !fl_given(value, "fl_memo_add", "the value")) return NULL;
    const uint64_t hash = fl__memo_hash(key, bytes, tag);
    pthread_mutex_lock(&lock);
    fl_memo_entry **at = fl__memo_place(m, key, bytes, tag, hash), *e = *at;
    if (!e && m->n < m->most && (e = fl_heap_alloc(sizeof *e + m->size + bytes))) {
        e->hash = hash;
        e->tag = tag;
        e->bytes = bytes;
        memcpy(e->value, value, m->size);
        memcpy(e->value + m->size, key, bytes);
        __atomic_store_n(at, e, __ATOMIC_RELEASE);
        __atomic_store_n(&m->n, m->n + 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    return e ? e->value : NULL;
}

FL_PRIVATE void *fl__memo_at(const fl_memo *m, int i) {
    fl_memo_entry *e = __atomic_load_n(&m->slot[i], __ATOMIC_ACQUIRE);
    return e ? e->value : NULL;
}

FL_PRIVATE void fl__memo_clear(fl_memo *m) {
    for (int i = 0; i < 2 * m->most; i++) {
        fl_heap_free(m->slot[i]);
        m->slot[i] = NULL;
    }
    m->n = 0;
}

#endif /* FL_TENSOR_MEMO_IMPL */
#endif
/* MIT licence: see LICENSE. */
