/* fl/mem/thread_cache.h - lock-free per-thread caches of records and small buffers

   The inline functions are on the fast path of every small buffer. */
#ifndef FL_MEM_THREAD_CACHE_H
#define FL_MEM_THREAD_CACHE_H
#include "shared.h"

#if defined(__SANITIZE_ADDRESS__)
#define FL__ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FL__ASAN
#endif
#endif
#ifdef FL__ASAN
#include <sanitizer/asan_interface.h>
#endif

static inline void fl__poison(const void *p, size_t bytes) {
#ifdef FL__ASAN
    __asan_poison_memory_region(p, bytes);
#endif
    (void)p;
    (void)bytes;
}

static inline void fl__unpoison(const void *p, size_t bytes) {
#ifdef FL__ASAN
    __asan_unpoison_memory_region(p, bytes);
#endif
    (void)p;
    (void)bytes;
}

/* ---- size classes ----

   Sizes are multiples of 64 bytes. The first eight classes are 64 apart, then there are four per
   doubling, so at most a fifth of a block is wasted. Small blocks have exactly the size of their class;
   free large blocks are only binned by it. */

#define FL__SMALL_MAX ((size_t)64 << 10)
#define FL__SMALL_CLASSES 36

static inline int fl__class(size_t bytes) {
    size_t q = (bytes - 1) >> 6;
    if (q < 8) return (int)q;
    int e = 63 - __builtin_clzll((unsigned long long)q);
    return 8 + (e - 3) * 4 + (int)((q >> (e - 2)) & 3);
}

static inline size_t fl__class_size(int c) {
    if (c < 8) return ((size_t)c + 1) << 6;
    return (size_t)(5 + (c & 3)) << ((c - 8) / 4 + 1) << 6;
}

static inline bool fl__is_small(size_t bytes) {
    return bytes <= FL__SMALL_MAX - FL_ALIGN;
}

/* ---- threads and their records ----

   Per-thread state: free records, bins of ready-made small buffers (a record with its block, as it was
   dropped), counters. It is allocated on the heap and linked in a list, so that counters can be summed and
   a forked child still finds the caches of the threads it lost. */

typedef struct fl__thread_bin {
    fl_buffer *head;
    int64_t count;
    int size; /* bytes per block */
    int most; /* capacity in buffers */
} fl__thread_bin;

/* Counters are written by their thread and read by all. There are few, because each costs a store on the hot
   path. */
typedef struct fl__thread {
    fl__records records; /* first: fl__self points there */
    int64_t taken[FL__RECORD_KINDS]; /* records received minus records given away; those not free are in
                                        use */
    int64_t gets; /* small blocks allocated */
    fl__thread_bin bins[FL__SMALL_CLASSES];
    fl_mem_info info;  /* passed to managers if the caller gives none */
    void (*end)(void); /* see fl__at_thread_end */
    int id;            /* 1, 2, ...: for traces */
    struct fl__thread *next;
} fl__thread;

/* Used by a thread that has no record yet: its lists are empty and have no capacity. */
FL__PRIVATE_VARIABLE fl__thread fl__no_thread;
struct fl__shared {
    fl__thread *threads;
    int last_id;
    int64_t taken[FL__RECORD_KINDS], gets; /* of threads that have ended */
    fl__record *records[FL__RECORD_KINDS];
    pthread_key_t key;
    bool ready;
    pthread_once_t once;
};
FL__PRIVATE_VARIABLE struct fl__shared fl__shared; /* under fl__lock */
FL__PRIVATE_VARIABLE pthread_cond_t fl__restored;

static inline fl__thread *fl__this_thread(void) {
    return (fl__thread *)(void *)fl__self;
}

/* records.h */
FL_PRIVATE fl__thread *fl__thread_record(void);
FL_PRIVATE void fl__record_share(int kind, void *record);
FL_PRIVATE void fl__records_share(fl__thread *t, int kind, int64_t keep);
FL_PRIVATE bool fl__record_take(fl__thread *t, int kind, size_t size);
FL_PRIVATE int64_t fl__live(void);

/* caching.h */
FL_PRIVATE fl__thread_bin *fl__thread_bin_refill(int c);
FL_PRIVATE fl__thread_bin *fl__thread_bin_overflow(int c);
FL_PRIVATE void fl__trim_thread(fl__thread *t);

static inline void fl__thread_bin_push(fl__thread_bin *bin, fl_buffer *b) {
    fl__poison(b->ptr, (size_t)bin->size);
    b->next_ = bin->head;
    bin->head = b;
    fl__bump(&bin->count, 1);
}

static inline fl_buffer *fl__thread_bin_pop(fl__thread_bin *bin) {
    fl_buffer *b = bin->head;
    bin->head = b->next_;
    fl__bump(&bin->count, -1);
    return b;
}

/* A ready-made buffer from this thread's bin, with ptr set; NULL if out of memory. */
static FL__HOT fl_buffer *fl__small_take(size_t bytes) {
    int c = fl__class(bytes + FL_ALIGN);
    fl__thread_bin *bin = &fl__this_thread()->bins[c];
    if (!bin->head && !(bin = fl__thread_bin_refill(c))) return NULL;
    fl_buffer *b = fl__thread_bin_pop(bin);
    fl__unpoison(b->ptr, bytes + FL_ALIGN);
    fl__bump(&fl__this_thread()->gets, 1);
    return b;
}

/* Puts a dropped buffer, record and block, into this thread's bin. False: the thread has none. */
static FL__HOT bool fl__small_put(fl_buffer *b) {
    int c = fl__class(b->bytes + FL_ALIGN);
    fl__thread_bin *bin = &fl__this_thread()->bins[c];
    if (bin->count >= bin->most && !(bin = fl__thread_bin_overflow(c))) return false;
    fl__thread_bin_push(bin, b);
    return true;
}

#endif /* FL_MEM_THREAD_CACHE_H */

/* MIT licence: see LICENSE. */
