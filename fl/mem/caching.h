/* fl/mem/caching.h - the caching memory manager, the default: size classes, thread caches, slabs */
#ifndef FL_MEM_CACHING_H
#define FL_MEM_CACHING_H
#include "managers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The default manager. Small blocks (below 64 KiB): size classes with per-thread caches. Large blocks: best
   fit with splitting and merging, in slabs that are kept until a trim. Environment variable
   FL_MEM_SPLIT_LIMIT: blocks of more bytes are never split. */
FL_API fl_mem_manager *fl_mem_caching(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_CACHING_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_CACHING) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_CACHING_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_CACHING_IMPL
#include "thread_cache.h"
#include "heap.h"
#include <stdlib.h>
#include <string.h>

#define FL__CLASSES 224

#define FL__REFILL 8                        /* buffers per refill from the shared bins, */
#define FL__REFILL_BYTES ((size_t)16 << 10) /* and maximum of their bytes */

typedef struct fl__node {
    struct fl__node *next;
} fl__node;

typedef struct fl__bin {
    fl__node *head;
    int64_t count; /* blocks */
} fl__bin;

/* ---- the caching manager: state ----

   Small blocks are carved from runs: aligned chunks of device memory with a header, each for one size
   class. Large blocks lie in slabs; the header in front of each gives its size and its left neighbour's, so
   that free neighbours merge. All of it is under fl__lock. Under the address sanitizer free blocks are
   poisoned except for their links. */

#define FL__RUN ((size_t)512 << 10)
#define FL__SLAB ((size_t)32 << 20)
#define FL__HEADER ((size_t)FL_ALIGN)

typedef struct fl__run {
    struct fl__run *next;
    size_t carved; /* blocks carved so far, */
    size_t idle;   /* and, during a trim, how many of them are free */
} fl__run;

typedef struct fl__slab {
    struct fl__slab *next;
    size_t bytes;
} fl__slab;

typedef struct fl__block {
    size_t bytes, before; /* sizes, with header, of the block and of its left neighbour (0: none) */
    fl__slab *slab;
    struct fl__block *next, *prev; /* free blocks of the same class */
    bool is_free;
} fl__block;

_Static_assert(sizeof(fl__block) <= FL_ALIGN && sizeof(fl__run) <= FL_ALIGN,
               "headers fit before the bytes");

static struct {
    fl__bin bins[FL__SMALL_CLASSES];
    fl__run *runs;
    fl__run *fresh[FL__SMALL_CLASSES]; /* the run that is being carved */
    fl__slab *slabs;
    fl__block *free_lists[FL__CLASSES];
    size_t split_limit; /* 0: not read yet */
    int64_t small_out;  /* small blocks outside the shared bins */
    fl_mem_stats stats; /* in_use includes the thread bins; gets, puts: large blocks only */
} fl__cache;

/* ---- small blocks ---- */

static inline void fl__bin_push(fl__bin *bin, void *block, size_t bytes) {
    fl__node *node = block;
    fl__unpoison(node, sizeof *node);
    node->next = bin->head;
    fl__poison(node + 1, bytes - sizeof *node);
    bin->head = node;
    fl__bump(&bin->count, 1);
}

static inline fl__node *fl__bin_pop(fl__bin *bin) {
    fl__node *node = bin->head;
    bin->head = node->next;
    fl__bump(&bin->count, -1);
    return node;
}

/* Carves a block off the current run, or off a new one; NULL if out of memory. */
static void *fl__carve(int c) {
    size_t size = fl__class_size(c);
    fl__run *run = fl__cache.fresh[c];
    if (!run || FL__HEADER + (run->carved + 1) * size > FL__RUN) {
        run = fl__host.get(&fl__host, FL__RUN, FL__RUN);
        if (!run) return NULL;
        fl__stats_reserved(&fl__cache.stats, (int64_t)FL__RUN);
        run->carved = 0;
        run->next = fl__cache.runs;
        fl__cache.runs = run;
        fl__cache.fresh[c] = run;
    }
    return (char *)run + FL__HEADER + run->carved++ * size;
}

/* Refills this thread's bin of class c from the shared bin; only the first buffer record may come from the
   heap. NULL if out of memory. */
FL__COLD fl__thread_bin *fl__thread_bin_refill(int c) {
    fl__thread *t = fl__thread_record();
    if (!t) return NULL;
    fl__thread_bin *to = &t->bins[c];
    fl__bin *from = &fl__cache.bins[c];
    size_t size = (size_t)to->size;
    int n = size > FL__REFILL_BYTES / FL__REFILL ? 1 : FL__REFILL;
    pthread_mutex_lock(&fl__lock);
    while (to->count < n) {
        const bool may_take = to->count == 0 || fl__shared.records[FL__RECORD_BUFFER];
        if (!t->records.list[FL__RECORD_BUFFER].head &&
            !(may_take && fl__record_take(t, FL__RECORD_BUFFER, sizeof(fl_buffer))))
            break;
        void *block = from->head ? (void *)fl__bin_pop(from) : fl__carve(c);
        if (!block) break;
        fl_buffer *b = fl__record_get(FL__RECORD_BUFFER, sizeof *b);
        b->ptr = block;
        fl__thread_bin_push(to, b);
    }
    fl__cache.small_out += to->count;
    fl__stats_took(&fl__cache.stats, (int64_t)size * to->count);
    pthread_mutex_unlock(&fl__lock);
    return to->count > 0 ? to : NULL;
}

/* Moves a thread's buffers of class c to the shared lists, blocks and records apart, until `keep` are left.
   Under fl__lock. */
static void fl__thread_bin_share(fl__thread *t, int c, int64_t keep) {
    fl__thread_bin *from = &t->bins[c];
    size_t size = (size_t)from->size;
    int64_t moved = from->count > keep ? from->count - keep : 0;
    for (; from->count > keep; fl__bump(&t->taken[FL__RECORD_BUFFER], -1)) {
        fl_buffer *b = fl__thread_bin_pop(from);
        fl__bin_push(&fl__cache.bins[c], b->ptr, size);
        fl__record_share(FL__RECORD_BUFFER, b);
    }
    fl__cache.small_out -= moved;
    fl__cache.stats.in_use -= (int64_t)size * moved;
}

/* Moves all caches of a thread to the shared lists. Under fl__lock. */
void fl__trim_thread(fl__thread *t) {
    for (int k = 0; k < FL__RECORD_KINDS; k++) fl__records_share(t, k, 0);
    for (int c = 0; c < FL__SMALL_CLASSES; c++) fl__thread_bin_share(t, c, 0);
}

/* For a thread without a record (out of memory): returns a block to the shared bin. */
static FL__COLD void fl__small_put_shared(void *block, int c) {
    size_t size = fl__class_size(c);
    pthread_mutex_lock(&fl__lock);
    fl__bin_push(&fl__cache.bins[c], block, size);
    fl__cache.stats.in_use -= (int64_t)size;
    fl__cache.small_out--;
    pthread_mutex_unlock(&fl__lock);
}

/* Moves half of a full bin to the shared lists; NULL if this thread has no bins. */
FL__COLD fl__thread_bin *fl__thread_bin_overflow(int c) {
    fl__thread *t = fl__thread_record();
    if (!t) return NULL;
    pthread_mutex_lock(&fl__lock);
    if (t->bins[c].count >= t->bins[c].most) fl__thread_bin_share(t, c, t->bins[c].most / 2);
    pthread_mutex_unlock(&fl__lock);
    return &t->bins[c];
}

/* ---- large blocks: under fl__lock ---- */

static fl__block *fl__right_of(const fl__block *k) {
    char *end = (char *)k + k->bytes;
    return end < (char *)k->slab + k->slab->bytes ? (fl__block *)(void *)end : NULL;
}

static void fl__free_list_add(fl__block *k) {
    fl__block **head = &fl__cache.free_lists[fl__class(k->bytes)];
    k->is_free = true;
    k->prev = NULL;
    k->next = *head;
    if (k->next) k->next->prev = k;
    *head = k;
    fl__poison((char *)k + FL__HEADER, k->bytes - FL__HEADER);
}

static void fl__free_list_remove(fl__block *k) {
    if (k->prev)
        k->prev->next = k->next;
    else
        fl__cache.free_lists[fl__class(k->bytes)] = k->next;
    if (k->next) k->next->prev = k->prev;
    k->is_free = false;
}

static size_t fl__split_limit(void) {
    if (!fl__cache.split_limit) {
        const char *text = getenv("FL_MEM_SPLIT_LIMIT");
        long long n = text ? strtoll(text, NULL, 10) : 0;
        fl__cache.split_limit = n > 0 ? (size_t)n : SIZE_MAX;
    }
    return fl__cache.split_limit;
}

/* Best fit: the smallest free block that is large enough. Blocks above the split limit are used only for
   requests above it. */
static fl__block *fl__free_list_find(size_t need) {
    size_t limit = fl__split_limit(), most = need > limit ? SIZE_MAX : limit;
    for (int c = fl__class(need); c < FL__CLASSES; c++) {
        fl__block *best = NULL;
        for (fl__block *k = fl__cache.free_lists[c]; k; k = k->next)
            if (k->bytes >= need && k->bytes <= most && (!best || k->bytes < best->bytes)) best = k;
        if (best) return best;
    }
    return NULL;
}

/* Allocates a slab as one free block. */
static fl__block *fl__slab_new(size_t need) {
    size_t limit = fl__split_limit(), size = limit < FL__SLAB ? limit : FL__SLAB;
    if (size < need) size = need;
    size = (size + FL__HEADER + 63) & ~(size_t)63;
    fl__slab *slab = fl__host.get(&fl__host, size, FL_ALIGN);
    if (!slab && size > need + FL__HEADER) {
        size = need + FL__HEADER;
        slab = fl__host.get(&fl__host, size, FL_ALIGN);
    }
    if (!slab) return NULL;
    fl__stats_reserved(&fl__cache.stats, (int64_t)size);
    slab->bytes = size;
    slab->next = fl__cache.slabs;
    fl__cache.slabs = slab;
    fl__block *k = (fl__block *)(void *)((char *)slab + FL__HEADER);
    *k = (fl__block){.bytes = size - FL__HEADER, .slab = slab};
    fl__free_list_add(k);
    return k;
}

/* Splits the unneeded end off a block. */
static void fl__block_split(fl__block *k, size_t need) {
    if (k->bytes - need < FL__SMALL_MAX || k->bytes > fl__split_limit()) return;
    fl__block *rest = (fl__block *)(void *)((char *)k + need), *right = fl__right_of(k);
    fl__unpoison(rest, FL__HEADER);
    *rest = (fl__block){.bytes = k->bytes - need, .before = need, .slab = k->slab};
    if (right) right->before = rest->bytes;
    k->bytes = need;
    fl__free_list_add(rest);
}

/* Merges a block with its right neighbour; neither is in a free list. */
static void fl__block_merge(fl__block *k, fl__block *right) {
    k->bytes += right->bytes;
    fl__block *next = fl__right_of(k);
    if (next) next->before = k->bytes;
}

static FL__COLD bool fl__large_get(fl_buffer *b) {
    size_t need = (b->bytes + FL_ALIGN + FL__HEADER + 4095) & ~(size_t)4095;
    pthread_mutex_lock(&fl__lock);
    fl__block *k = fl__free_list_find(need);
    if (!k) k = fl__slab_new(need);
    if (k) {
        fl__free_list_remove(k);
        fl__block_split(k, need);
        fl__stats_took(&fl__cache.stats, (int64_t)k->bytes);
        fl__cache.stats.gets++;
        b->ptr = (char *)k + FL__HEADER;
        fl__unpoison(b->ptr, b->bytes + FL_ALIGN);
    }
    pthread_mutex_unlock(&fl__lock);
    return k != NULL;
}

static FL__COLD void fl__large_put(void *ptr) {
    fl__block *k = (fl__block *)(void *)((char *)ptr - FL__HEADER);
    pthread_mutex_lock(&fl__lock);
    fl__cache.stats.in_use -= (int64_t)k->bytes;
    fl__cache.stats.puts++;
    fl__block *right = fl__right_of(k);
    if (right && right->is_free) {
        fl__free_list_remove(right);
        fl__block_merge(k, right);
    }
    fl__block *left = k->before ? (fl__block *)(void *)((char *)k - k->before) : NULL;
    if (left && left->is_free) {
        fl__free_list_remove(left);
        fl__block_merge(left, k);
        k = left;
    }
    fl__free_list_add(k);
    pthread_mutex_unlock(&fl__lock);
}

/* ---- trim: under fl__lock ---- */

static fl__run *fl__run_of(void *block) {
    return (fl__run *)((uintptr_t)block & ~(uintptr_t)(FL__RUN - 1));
}

/* Removes the blocks of entirely idle runs from a shared bin. */
static void fl__bin_remove_idle(fl__bin *bin) {
    fl__node **link = &bin->head;
    while (*link) {
        const fl__run *run = fl__run_of(*link);
        if (run->idle < run->carved) {
            link = &(*link)->next;
        } else {
            *link = (*link)->next;
            bin->count--;
        }
    }
}

static size_t fl__trim_runs(void) {
    size_t freed = 0;
    for (fl__run *run = fl__cache.runs; run; run = run->next) run->idle = 0;
    for (int c = 0; c < FL__SMALL_CLASSES; c++)
        for (fl__node *node = fl__cache.bins[c].head; node; node = node->next)
            fl__run_of(node)->idle++;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) {
        fl__bin_remove_idle(&fl__cache.bins[c]);
        if (fl__cache.fresh[c] && fl__cache.fresh[c]->idle == fl__cache.fresh[c]->carved)
            fl__cache.fresh[c] = NULL;
    }
    for (fl__run **link = &fl__cache.runs, *run; (run = *link);) {
        if (run->idle < run->carved) {
            link = &run->next;
            continue;
        }
        *link = run->next;
        fl__unpoison(run, FL__RUN);
        fl__host.put(&fl__host, run, FL__RUN);
        freed += FL__RUN;
    }
    return freed;
}

static size_t fl__trim_slabs(void) {
    size_t freed = 0;
    for (fl__slab **link = &fl__cache.slabs, *slab; (slab = *link);) {
        fl__block *k = (fl__block *)(void *)((char *)slab + FL__HEADER);
        if (!k->is_free || k->bytes + FL__HEADER < slab->bytes) {
            link = &slab->next;
            continue;
        }
        fl__free_list_remove(k);
        *link = slab->next;
        size_t bytes = slab->bytes;
        fl__unpoison(slab, bytes);
        fl__host.put(&fl__host, slab, bytes);
        freed += bytes;
    }
    return freed;
}

static void fl__trim_records(void) {
    for (int k = 0; k < FL__RECORD_KINDS; k++)
        for (fl__record *r = fl__shared.records[k], *next; r; r = next) {
            next = r->next;
            fl_heap_free(r);
        }
    memset(fl__shared.records, 0, sizeof fl__shared.records);
}

size_t fl__cache_trim(fl_mem_manager *self) {
    (void)self;
    pthread_mutex_lock(&fl__lock);
    if (fl__this_thread() != &fl__no_thread) fl__trim_thread(fl__this_thread());
    size_t freed = fl__trim_runs() + fl__trim_slabs();
    fl__trim_records();
    fl__cache.stats.reserved -= (int64_t)freed;
    pthread_mutex_unlock(&fl__lock);
    return freed;
}

/* ---- the caching manager: its table ---- */

/* Delegates a buffer of another device to that device's manager, or to the native one. */
static bool fl__device_get(fl_buffer *b, const fl_mem_info *info) {
    b->manager = b->device->manager ? b->device->manager : &fl__native;
    return b->manager->get(b->manager, b, info);
}

/* Allocates for a buffer that already has a record, as fl_buffer_from and other managers do. */
static bool fl__cache_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self;
    if (b->device != &fl__host) return fl__device_get(b, info);
    if (!fl__is_small(b->bytes)) return fl__large_get(b);
    fl_buffer *ready = fl__small_take(b->bytes);
    if (!ready) return false;
    b->ptr = ready->ptr;
    fl__record_put(FL__RECORD_BUFFER, ready);
    return true;
}

static void fl__cache_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    if (b->ptr && !fl__is_small(b->bytes)) {
        fl__large_put(b->ptr);
    } else if (b->ptr) {
        fl_buffer *record = fl__record_get(FL__RECORD_BUFFER, sizeof(fl_buffer));
        if (record) {
            record->ptr = b->ptr;
            record->bytes = b->bytes;
            fl__small_put(record);
        } else {
            fl__small_put_shared(b->ptr, fl__class(b->bytes + FL_ALIGN));
        }
    }
}

/* Adds the small blocks: those in thread bins are not in use; those in thread or shared bins count as
   returned. Under fl__lock. */
static void fl__stats_add_small(fl_mem_stats *out) {
    int64_t gets = fl__shared.gets, used = fl__cache.small_out;
    for (const fl__thread *t = fl__shared.threads; t; t = t->next) {
        gets += fl__load(&t->gets);
        for (int c = 0; c < FL__SMALL_CLASSES; c++) {
            int64_t idle = fl__load(&t->bins[c].count);
            used -= idle;
            out->in_use -= idle * t->bins[c].size;
        }
    }
    out->gets += gets;
    out->puts += gets - used;
}

static void fl__cache_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    pthread_mutex_lock(&fl__lock);
    *out = fl__cache.stats;
    fl__stats_add_small(out);
    out->reuses = out->gets - out->device_gets;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) out->free_blocks += fl__cache.bins[c].count;
    for (int c = 0; c < FL__CLASSES; c++)
        for (const fl__block *k = fl__cache.free_lists[c]; k; k = k->next) {
            out->free_blocks++;
            if ((int64_t)k->bytes > out->largest_free) out->largest_free = (int64_t)k->bytes;
        }
    pthread_mutex_unlock(&fl__lock);
}

static void fl__cache_reset_peak(fl_mem_manager *self) {
    (void)self;
    fl__reset_peak(&fl__cache.stats);
}

FL_PRIVATE fl_mem_manager fl__caching = {.name = "caching",
                                         .get = fl__cache_get,
                                         .put = fl__cache_put,
                                         .trim = fl__cache_trim,
                                         .stats = fl__cache_stats,
                                         .reset_peak = fl__cache_reset_peak};

FL_API fl_mem_manager *fl_mem_caching(void) {
    return &fl__caching;
}

#endif
#endif

/* MIT licence: see LICENSE. */
