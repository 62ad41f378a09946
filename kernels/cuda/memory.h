/* kernels/cuda/memory.h - devices of the backends cuda, cuda:1 ..., each with a caching memory manager

   The device is asked for blocks of 2 MiB for requests below 1 MiB, of 20 MiB for those below 10 MiB, and for
   a block of its own for a larger one. A request takes a part of a free block, in multiples of 512 bytes; the
   rest stays free, and free neighbours are joined. A freed block returns to the stream, or graph, that it was
   allocated for, whose later work runs after its earlier uses. If another stream used it last, an event marks
   the end of that use, and the next use waits for it. fl_mem_trim waits and releases the free blocks, except
   those of graphs.

   Blocks of graphs are not split, since a capture must find what its warm-up took, nor is pinned host memory
   for transfers, which all devices share and which is taken only after its last use. There requests are
   rounded up to an eighth of their power of two, and take a free block that is at most a quarter larger. */
#ifndef FL_CUDA_MEMORY_H
#define FL_CUDA_MEMORY_H
#include "../../fl_mem.h"

/* Must be called first, once. */
FL_PRIVATE void fl__cuda_memory_init(void);
/* Device number `ordinal`, named as its backend. Its get fails with a reason if driver or device are
   missing; its wait makes a stream wait for the earlier work of another one, on any device. */
FL_PRIVATE const fl_device *fl__cuda_device(int ordinal);
FL_PRIVATE bool fl__cuda_has(const fl_buffer *b); /* whether the bytes are on a device */
/* Pinned host memory. A block used by a stream (fl_buffer_use) is reused after that work. */
FL_PRIVATE const fl_device *fl__cuda_pinned(void);

/* For a library's work on a stream of its own (backend.h): *event comes after all work on the buffers, two or
   NULL, and their later uses wait for that stream. When the work is started, they are taken back: a stream
   that used them meanwhile waits too; also ends the event. False after fl_fail. */
FL_PRIVATE bool fl__cuda_lend(int device, fl_buffer *const b[2], void *stream, void **event);
FL_PRIVATE bool fl__cuda_take_back(fl_buffer *const b[2], void *stream, void *event);

/* For graph.h: this thread's allocations on the device are now for `home` (NULL: the current stream), and
   during capture only from home's free blocks. */
FL_PRIVATE void fl__cuda_memory_for(const fl_device *device, const void *home, bool captured);
FL_PRIVATE bool fl__cuda_captures(void); /* whether this thread captures */
/* Calls fn for each buffer allocated for home during capture that is still held, and then treats them as
   ordinary ones. */
FL_PRIVATE void fl__cuda_memory_born(const fl_device *device, const void *home,
                                     bool (*fn)(void *user, fl_buffer *b), void *user);
/* Whether b was allocated during capture. */
FL_PRIVATE bool fl__cuda_is_born(const fl_buffer *b);
/* Ends home after all its work: releases its free blocks; blocks in use move to the stream. */
FL_PRIVATE void fl__cuda_memory_end(const fl_device *device, const void *home, void *stream);
#endif

#if defined(FL_IMPL_ONLY_CUDA_MEMORY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_MEMORY_IMPL
#define FL_CUDA_MEMORY_IMPL
#include "flk.h"
#include <pthread.h>
#include <string.h>

typedef struct fl__cuda_block fl__cuda_block;
struct fl__cuda_block {
    fl__cuda_block *next;           /* in its bin */
    fl__cuda_block *older, *newer;  /* list of all blocks */
    fl__cuda_block *before, *after; /* the blocks beside it that it was split from; NULL: none */
    void *p;
    size_t bytes;
    const void *home;  /* the stream or graph it belongs to */
    void *stream;      /* the stream of the last allocation */
    void *event;       /* end of the last use by another stream; NULL: none */
    fl_buffer *holder; /* NULL: the block is free */
    bool pooled, born; /* home is a graph; allocated during its capture */
    bool small;        /* for requests below FL__CUDA_SMALL */
};

enum {
    FL__CUDA_BINS = 400,
    FL__CUDA_SMALL = 1 << 20 /* smaller requests have blocks of their own */
};
typedef struct fl__cuda_cache {
    fl_mem_manager manager; /* must be the first field */
    fl_device device;
    int ordinal; /* FLK_DEVICES for pinned memory */
    pthread_mutex_t lock;
    fl__cuda_block *bin[FL__CUDA_BINS], *newest;
    fl_mem_stats stats;
} fl__cuda_cache;
static fl__cuda_cache fl__cuda_caches[FLK_DEVICES + 1];

static fl__cuda_cache *fl__cuda_cache_of(const fl_device *device) {
    return (fl__cuda_cache *)(void *)device->manager;
}

static _Thread_local const fl_device *fl__cuda_home_device;
static _Thread_local const void *fl__cuda_home;
static _Thread_local bool fl__cuda_captured;

FL_PRIVATE void fl__cuda_memory_for(const fl_device *device, const void *home, bool captured) {
    fl__cuda_home_device = device;
    fl__cuda_home = home;
    fl__cuda_captured = captured;
}

FL_PRIVATE bool fl__cuda_captures(void) {
    return fl__cuda_captured;
}

/* ---- the device ---- */

static bool fl__cuda_ok(const char *why) {
    return !why || fl_fail("cuda: %s", why);
}

/* Memory of the device, aligned to 256 bytes, or pinned, aligned to pages. A device without free memory is
   no error yet. */
static void *fl__cuda_get(const fl_device *self, size_t bytes, size_t align) {
    (void)align;
    void *p = NULL;
    const char *why = flk_start(self->host ? flk_device() : fl__cuda_cache_of(self)->ordinal);
    if (!why && self->host) why = flk_host_get(&p, bytes);
    if (!fl__cuda_ok(why)) return NULL;
    return self->host || !flk_get(&p, bytes) ? p : NULL;
}

static void fl__cuda_put(const fl_device *self, void *p, size_t bytes) {
    (void)bytes;
    if (self->host) flk_host_put(p);
    else flk_put(p);
}

static bool fl__cuda_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    return fl__cuda_ok(flk_copy(dst, src, bytes));
}

static size_t fl__cuda_limit(const fl_device *self) {
    return flk_start(fl__cuda_cache_of(self)->ordinal) ? 0 : flk_limit();
}

/* Waits, except during capture, which begins after all work has ended. */
static bool fl__cuda_wait(const fl_device *self, void *stream, void *before) {
    (void)self;
    if (!before || fl__cuda_captured) return true;
    void *event = NULL;
    const char *why = flk_mark(&event, before);
    if (!why) why = flk_wait(stream, event);
    flk_unmark(event);
    return fl__cuda_ok(why);
}

/* ---- the manager ---- */

/* An eighth of the power of two at or below bytes, at least 512. */
static size_t fl__cuda_unit(size_t bytes) {
    size_t unit = 512;
    while (unit * 16 <= bytes) unit *= 2;
    return unit;
}

/* The bin of a block; later bins have larger ones. */
static int fl__cuda_bin(size_t bytes) {
    const size_t unit = fl__cuda_unit(bytes);
    return __builtin_ctzll(unit / 512) * 8 + (int)(bytes / unit);
}

static void fl__cuda_count(fl_mem_stats *s, int64_t in_use, int64_t reserved) {
    s->in_use += in_use;
    s->reserved += reserved;
    if (s->in_use > s->peak_in_use) s->peak_in_use = s->in_use;
    if (s->reserved > s->peak_reserved) s->peak_reserved = s->reserved;
}

/* Takes a free block of home's out of its bin for b; pinned memory, for which the host would wait, only after
   its last use has ended. The lock is held. */
static fl__cuda_block *fl__cuda_find(fl__cuda_cache *c, size_t bytes, const void *home, bool split,
                                     fl_buffer *b) {
    const int bin = fl__cuda_bin(bytes);
    for (int i = bin; i < FL__CUDA_BINS && (split || i < bin + 3); i++)
        for (fl__cuda_block **at = &c->bin[i]; *at; at = &(*at)->next) {
            fl__cuda_block *k = *at;
            if (!split && k->bytes > bytes + bytes / 4) break;
            if (k->home != home || k->bytes < bytes) continue;
            if (split && k->small != (bytes < FL__CUDA_SMALL)) continue;
            if (c->ordinal == FLK_DEVICES && flk_waits(k->event)) continue;
            *at = k->next;
            k->holder = b;
            return k;
        }
    return NULL;
}

/* Adds a block to the list of all, and takes one out. The lock is held. */
static void fl__cuda_link(fl__cuda_cache *c, fl__cuda_block *k) {
    k->older = c->newest;
    if (k->older) k->older->newer = k;
    c->newest = k;
}

static void fl__cuda_unlink(fl__cuda_cache *c, fl__cuda_block *k) {
    if (k->newer) k->newer->older = k->older;
    else c->newest = k->older;
    if (k->older) k->older->newer = k->newer;
}

/* Allocates a block from the device. */
static fl__cuda_block *fl__cuda_block_new(fl__cuda_cache *c, size_t bytes) {
    fl__cuda_block *k = fl_heap_alloc(sizeof *k);
    if (!k) return NULL;
    memset(k, 0, sizeof *k);
    k->bytes = bytes;
    k->p = c->device.get(&c->device, bytes, FL_ALIGN);
    if (!k->p) return fl_heap_free(k), NULL;
    pthread_mutex_lock(&c->lock);
    fl__cuda_link(c, k);
    c->stats.device_gets++;
    fl__cuda_count(&c->stats, 0, (int64_t)bytes);
    pthread_mutex_unlock(&c->lock);
    return k;
}

/* Releases a block, which is in no bin, to the device. The lock is held. */
static void fl__cuda_block_end(fl__cuda_cache *c, fl__cuda_block *k) {
    fl__cuda_unlink(c, k);
    fl__cuda_count(&c->stats, 0, -(int64_t)k->bytes);
    flk_unmark(k->event);
    c->device.put(&c->device, k->p, k->bytes);
    fl_heap_free(k);
}

/* Puts a block into its bin. The lock is held. */
static void fl__cuda_keep(fl__cuda_cache *c, fl__cuda_block *k) {
    fl__cuda_block **bin = &c->bin[fl__cuda_bin(k->bytes)];
    k->next = *bin;
    *bin = k;
}

/* Takes a block out of its bin. The lock is held. */
static void fl__cuda_take(fl__cuda_cache *c, fl__cuda_block *k) {
    fl__cuda_block **at = &c->bin[fl__cuda_bin(k->bytes)];
    while (*at != k) at = &(*at)->next;
    *at = k->next;
}

/* Splits what block k has beyond bytes off, as block rest. The lock is held. */
static void fl__cuda_split(fl__cuda_cache *c, fl__cuda_block *k, size_t bytes, fl__cuda_block *rest) {
    *rest = (fl__cuda_block){.p = (char *)k->p + bytes,
                             .bytes = k->bytes - bytes,
                             .home = k->home,
                             .small = k->small,
                             .stream = k->stream,
                             .before = k,
                             .after = k->after};
    if (k->after) k->after->before = rest;
    k->after = rest;
    k->bytes = bytes;
    fl__cuda_link(c, rest);
    fl__cuda_keep(c, rest);
}

/* Whether the block is free and waits for nothing. */
static bool fl__cuda_joins(const fl__cuda_block *k) {
    return k && !k->holder && !k->event;
}

/* Joins block k, which is in no bin, with the free blocks beside it, and returns the whole. The lock is
   held. */
static fl__cuda_block *fl__cuda_join(fl__cuda_cache *c, fl__cuda_block *k) {
    if (k->event) return k;
    while (fl__cuda_joins(k->before) || fl__cuda_joins(k->after)) {
        const bool back = fl__cuda_joins(k->before);
        fl__cuda_block *beside = back ? k->before : k->after, *first = back ? beside : k,
                       *gone = first->after;
        fl__cuda_take(c, beside);
        first->bytes += gone->bytes;
        first->after = gone->after;
        if (first->after) first->after->before = first;
        fl__cuda_unlink(c, gone);
        fl_heap_free(gone);
        k = first;
    }
    return k;
}

/* The tag of a buffer is its block. If another stream's use must end first, the stream waits, or, without a
   stream, the host. */
static bool fl__cuda_cache_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    const bool pooled = fl__cuda_home && b->device == fl__cuda_home_device;
    const bool split = !pooled && c->ordinal != FLK_DEVICES;
    const size_t unit = split ? 512 : fl__cuda_unit(b->bytes + FL_ALIGN);
    const size_t bytes = (b->bytes + FL_ALIGN + unit - 1) / unit * unit;
    const bool small = bytes < FL__CUDA_SMALL;
    const void *home = c->ordinal == FLK_DEVICES ? self : pooled ? fl__cuda_home : info->stream;
    if (fl__cuda_captured && !pooled)
        return fl_fail("fl_%s: cuda: memory of '%s' is needed while a graph of '%s' is captured",
                       info->op ? info->op : "buffer_new", c->device.name, fl__cuda_home_device->name);
    pthread_mutex_lock(&c->lock);
    fl__cuda_block *k = fl__cuda_find(c, bytes, home, split, b);
    if (k) c->stats.reuses++;
    pthread_mutex_unlock(&c->lock);
    if (!k && fl__cuda_captured)
        return fl_fail("fl_%s: cuda: the captured graph has no free block of %zu bytes: its warm-up steps "
                       "did not allocate it", info->op ? info->op : "buffer_new", b->bytes);
    if (!k && split) k = fl__cuda_block_new(c, small ? 2 << 20 : bytes < 10 << 20 ? 20 << 20 : bytes);
    if (!k && !(k = fl__cuda_block_new(c, bytes))) return false;
    k->small = small;
    k->home = home;
    k->pooled = pooled;
    k->born = fl__cuda_captured;
    const bool cut = split && k->bytes - bytes >= (small ? unit : FL__CUDA_SMALL);
    fl__cuda_block *rest = cut ? fl_heap_alloc(sizeof *rest) : NULL;
    const bool moves = k->stream != info->stream; /* for blocks of graphs */
    bool ok = rest || !cut;
    if (ok && k->event && !fl__cuda_captured) ok = fl__cuda_ok(flk_wait(info->stream, k->event));
    if (ok) flk_unmark(k->event), k->event = NULL;
    if (ok && moves) ok = fl__cuda_wait(b->device, info->stream, k->stream);
    pthread_mutex_lock(&c->lock);
    if (ok) {
        k->stream = info->stream;
        k->holder = b;
        if (rest) fl__cuda_split(c, k, bytes, rest);
        c->stats.gets++;
        fl__cuda_count(&c->stats, (int64_t)k->bytes, 0);
    } else {
        k->holder = NULL;
        fl__cuda_keep(c, k);
    }
    pthread_mutex_unlock(&c->lock);
    if (!ok) return fl_heap_free(rest), false;
    b->ptr = k->p;
    b->tag = k;
    b->stream = info->stream;
    return true;
}

/* If the event cannot be recorded, waits for all work. */
static void fl__cuda_cache_put(fl_mem_manager *self, fl_buffer *b) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    fl__cuda_block *k = b->tag;
    void *event = NULL;
    const bool elsewhere = b->stream && b->stream != k->stream && !fl__cuda_captured;
    if (elsewhere && flk_mark(&event, b->stream)) flk_sync_all();
    pthread_mutex_lock(&c->lock);
    fl__cuda_count(&c->stats, -(int64_t)k->bytes, 0);
    c->stats.puts++;
    k->event = event;
    k->holder = NULL;
    fl__cuda_keep(c, fl__cuda_join(c, k));
    pthread_mutex_unlock(&c->lock);
}

/* Joins all free blocks whose last use has ended. The lock is held. */
static void fl__cuda_join_all(fl__cuda_cache *c) {
    for (fl__cuda_block *k = c->newest; k; k = k->older)
        if (!k->holder && k->event && !flk_waits(k->event)) flk_unmark(k->event), k->event = NULL;
    for (fl__cuda_block *k = c->newest; k; k = k->older) /* the first one of several: the whole stays it */
        if (fl__cuda_joins(k) && fl__cuda_joins(k->after) && !fl__cuda_joins(k->before)) {
            fl__cuda_take(c, k);
            fl__cuda_keep(c, fl__cuda_join(c, k));
        }
}

/* Releases the free blocks of home, or (NULL) all that do not belong to graphs, but not parts of blocks. The
   lock is held. */
static size_t fl__cuda_give_back(fl__cuda_cache *c, const void *home) {
    size_t bytes = 0;
    for (int i = 0; i < FL__CUDA_BINS; i++)
        for (fl__cuda_block **at = &c->bin[i], *k; (k = *at);) {
            if ((home ? k->home != home : k->pooled) || k->before || k->after) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            bytes += k->bytes;
            fl__cuda_block_end(c, k);
        }
    return bytes;
}

/* Also trims pinned memory. */
static size_t fl__cuda_cache_trim(fl_mem_manager *self) {
    fl__cuda_cache *const both[2] = {(fl__cuda_cache *)(void *)self, &fl__cuda_caches[FLK_DEVICES]};
    size_t bytes = 0;
    if (fl__cuda_captured || (!both[0]->newest && !both[1]->newest)) return 0;
    flk_sync_all();
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&both[i]->lock);
        fl__cuda_join_all(both[i]);
        bytes += fl__cuda_give_back(both[i], NULL);
        pthread_mutex_unlock(&both[i]->lock);
    }
    return bytes;
}

static void fl__cuda_cache_stats(fl_mem_manager *self, fl_mem_stats *out) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    for (const fl__cuda_block *k = c->newest; k; k = k->older) {
        if (k->holder) continue;
        out->free_blocks++;
        if ((int64_t)k->bytes > out->largest_free) out->largest_free = (int64_t)k->bytes;
    }
    pthread_mutex_unlock(&c->lock);
}

static void fl__cuda_cache_reset(fl_mem_manager *self) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    pthread_mutex_lock(&c->lock);
    c->stats.peak_in_use = c->stats.in_use;
    c->stats.peak_reserved = c->stats.reserved;
    pthread_mutex_unlock(&c->lock);
}

/* ---- graphs ---- */

FL_PRIVATE bool fl__cuda_is_born(const fl_buffer *b) {
    return fl__cuda_has(b) && b->tag && ((const fl__cuda_block *)b->tag)->born;
}

FL_PRIVATE void fl__cuda_memory_born(const fl_device *device, const void *home,
                                     bool (*fn)(void *user, fl_buffer *b), void *user) {
    fl__cuda_cache *c = fl__cuda_cache_of(device);
    pthread_mutex_lock(&c->lock);
    for (fl__cuda_block *k = c->newest; k; k = k->older) {
        if (k->home != home) continue;
        if (k->born && k->holder) fn(user, k->holder);
        k->born = false;
    }
    pthread_mutex_unlock(&c->lock);
}

FL_PRIVATE void fl__cuda_memory_end(const fl_device *device, const void *home, void *stream) {
    fl__cuda_cache *c = fl__cuda_cache_of(device);
    pthread_mutex_lock(&c->lock);
    fl__cuda_give_back(c, home);
    for (fl__cuda_block *k = c->newest; k; k = k->older)
        if (k->home == home) k->home = k->stream = stream, k->pooled = false;
    pthread_mutex_unlock(&c->lock);
}

/* ---- all devices ---- */

FL_PRIVATE void fl__cuda_memory_init(void) {
    static const char *const name[FLK_DEVICES + 1] = {"cuda",   "cuda:1", "cuda:2", "cuda:3",     "cuda:4",
                                                      "cuda:5", "cuda:6", "cuda:7", "cuda-pinned"};
    for (int i = 0; i <= FLK_DEVICES; i++) {
        fl__cuda_cache *c = &fl__cuda_caches[i];
        const bool host = i == FLK_DEVICES;
        pthread_mutex_init(&c->lock, NULL);
        c->ordinal = i;
        c->manager = (fl_mem_manager){.name = name[i],
                                      .get = fl__cuda_cache_get,
                                      .put = fl__cuda_cache_put,
                                      .trim = fl__cuda_cache_trim,
                                      .stats = fl__cuda_cache_stats,
                                      .reset_peak = fl__cuda_cache_reset};
        c->device = (fl_device){.name = name[i],
                                .get = fl__cuda_get,
                                .put = fl__cuda_put,
                                .copy = host ? NULL : fl__cuda_copy,
                                .limit = host ? NULL : fl__cuda_limit,
                                .wait = fl__cuda_wait,
                                .manager = &c->manager,
                                .host = host};
    }
}

FL_PRIVATE const fl_device *fl__cuda_device(int ordinal) {
    return &fl__cuda_caches[ordinal].device;
}

FL_PRIVATE bool fl__cuda_has(const fl_buffer *b) {
    return b->device->get == fl__cuda_get && !b->device->host;
}

FL_PRIVATE const fl_device *fl__cuda_pinned(void) {
    return fl__cuda_device(FLK_DEVICES);
}

#endif
#endif
/* MIT licence: see LICENSE. */
