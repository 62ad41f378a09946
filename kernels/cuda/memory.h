/* kernels/cuda/memory.h - the devices of backends cuda, cuda:1 ..., and for each a manager, which caches its
   memory

   A request is rounded up to an eighth of its power of two, 512 bytes at least, and takes a free block that
   is no more than a quarter larger; else the device is asked. A block goes back to the stream, or the graph,
   that it was got for: what that one puts into it next runs behind what it put last. Where another stream
   used it last, an event says when that ends, and the next use waits for it. Nothing is split and nothing
   merged: fl_mem_trim, which waits, gives the free blocks back, but for those of graphs. Pinned memory of the
   host, through which bytes come and go, is cached likewise, for all devices. */
#ifndef FL_CUDA_MEMORY_H
#define FL_CUDA_MEMORY_H
#include "../../fl_mem.h"

/* Before anything else, once. */
FL_PRIVATE void fl__cuda_memory_init(void);
/* Of device `ordinal`, whose backend is called as it. Its get fails, saying why, where driver or device are
   missing; its wait makes a stream wait for what another, of any device, was given so far. */
FL_PRIVATE const fl_device *fl__cuda_device(int ordinal);
FL_PRIVATE bool fl__cuda_has(const fl_buffer *b); /* a device has the bytes */
/* Pinned memory of the host. A block that a stream uses (fl_buffer_use) comes again when that has ended. */
FL_PRIVATE const fl_device *fl__cuda_pinned(void);

/* For graph.h. What this thread gets of that device from now on is for `home` (NULL: the stream in use), and
   while it is captured only from what home has. */
FL_PRIVATE void fl__cuda_memory_for(const fl_device *device, const void *home, bool captured);
FL_PRIVATE bool fl__cuda_captures(void); /* this thread does */
/* Calls fn with each buffer that was got for home while this was captured, and is still held; then they are
   as any others. */
FL_PRIVATE void fl__cuda_memory_born(const fl_device *device, const void *home,
                                     void (*fn)(fl_buffer *b, void *user), void *user);
/* Was this one got so? */
FL_PRIVATE bool fl__cuda_is_born(const fl_buffer *b);
/* home ends, and all its work has: what is free is given back, what is in use belongs to that stream. */
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
    fl__cuda_block *next;          /* in its bin */
    fl__cuda_block *older, *newer; /* of all there are */
    void *p;
    size_t bytes;
    const void *home;  /* the stream, or the graph, that it is for */
    void *stream;      /* that it was got on last */
    void *event;       /* what another stream did last with it; NULL: none did */
    fl_buffer *holder; /* NULL: it is free */
    bool pooled, born; /* home is a graph; that was captured when the block was got */
};

enum { FL__CUDA_BINS = 400 };
typedef struct fl__cuda_cache {
    fl_mem_manager manager; /* first: a manager is its cache */
    fl_device device;
    int ordinal; /* FLK_DEVICES: pinned memory */
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

static void *fl__cuda_get(const fl_device *self, size_t bytes, size_t align) {
    (void)align; /* cudaMalloc's blocks start on 256 bytes */
    void *p = NULL;
    if (!fl__cuda_ok(flk_start(fl__cuda_cache_of(self)->ordinal))) return NULL;
    return flk_get(&p, bytes) ? NULL : p;
}

static void fl__cuda_put(const fl_device *self, void *p, size_t bytes) {
    (void)self, (void)bytes;
    flk_put(p);
}

static void *fl__cuda_pinned_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self, (void)align; /* on pages */
    void *p = NULL;
    return fl__cuda_ok(flk_start(flk_device())) && fl__cuda_ok(flk_host_get(&p, bytes)) ? p : NULL;
}

static void fl__cuda_pinned_put(const fl_device *self, void *p, size_t bytes) {
    (void)self, (void)bytes;
    flk_host_put(p);
}

static bool fl__cuda_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    return fl__cuda_ok(flk_copy(dst, src, bytes));
}

static size_t fl__cuda_limit(const fl_device *self) {
    return flk_start(fl__cuda_cache_of(self)->ordinal) ? 0 : flk_limit();
}

/* A capture began when all work had ended: it has nothing to wait for. */
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

/* Rounds *bytes, and tells its bin: those that follow hold larger ones. */
static int fl__cuda_bin(size_t *bytes) {
    size_t unit = 512;
    int doubled = 0;
    for (; unit * 16 <= *bytes; unit *= 2) doubled++;
    *bytes = (*bytes + unit - 1) / unit * unit;
    return doubled * 8 + (int)(*bytes / unit);
}

static void fl__cuda_count(fl_mem_stats *s, int64_t in_use, int64_t reserved) {
    s->in_use += in_use;
    s->reserved += reserved;
    if (s->in_use > s->peak_in_use) s->peak_in_use = s->in_use;
    if (s->reserved > s->peak_reserved) s->peak_reserved = s->reserved;
}

/* A free block of home's, which leaves its bin. The lock is held. */
static fl__cuda_block *fl__cuda_find(fl__cuda_cache *c, size_t bytes, int bin, const void *home) {
    for (int i = bin; i < bin + 3 && i < FL__CUDA_BINS; i++)
        for (fl__cuda_block **at = &c->bin[i]; *at; at = &(*at)->next) {
            fl__cuda_block *k = *at;
            if (k->bytes > bytes + bytes / 4) break;
            if (k->home != home) continue;
            *at = k->next;
            return k;
        }
    return NULL;
}

/* Another one, from the device. */
static fl__cuda_block *fl__cuda_block_new(fl__cuda_cache *c, size_t bytes) {
    fl__cuda_block *k = fl_heap_alloc(sizeof *k);
    if (!k) return NULL;
    memset(k, 0, sizeof *k);
    k->bytes = bytes;
    k->p = c->device.get(&c->device, bytes, FL_ALIGN);
    if (!k->p) return fl_heap_free(k), NULL;
    pthread_mutex_lock(&c->lock);
    k->older = c->newest;
    if (k->older) k->older->newer = k;
    c->newest = k;
    c->stats.device_gets++;
    fl__cuda_count(&c->stats, 0, (int64_t)bytes);
    pthread_mutex_unlock(&c->lock);
    return k;
}

/* To the device again. The lock is held, and it is in no bin. */
static void fl__cuda_block_end(fl__cuda_cache *c, fl__cuda_block *k) {
    if (k->newer) k->newer->older = k->older;
    else c->newest = k->older;
    if (k->older) k->older->newer = k->newer;
    fl__cuda_count(&c->stats, 0, -(int64_t)k->bytes);
    flk_unmark(k->event);
    c->device.put(&c->device, k->p, k->bytes);
    fl_heap_free(k);
}

/* Into its bin. The lock is held. */
static void fl__cuda_keep(fl__cuda_cache *c, fl__cuda_block *k) {
    fl__cuda_block **bin = &c->bin[fl__cuda_bin(&k->bytes)];
    k->next = *bin;
    *bin = k;
}

/* The tag of a buffer is its block. A stream that another one's use holds up waits; without a stream, so
   does the host. */
static bool fl__cuda_cache_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    size_t bytes = b->bytes + FL_ALIGN;
    const int bin = fl__cuda_bin(&bytes);
    const bool pooled = fl__cuda_home && b->device == fl__cuda_home_device;
    const void *home = c->ordinal == FLK_DEVICES ? self : pooled ? fl__cuda_home : info->stream;
    if (fl__cuda_captured && !pooled)
        return fl_fail("fl_%s: cuda: memory of '%s' while a graph of '%s' is captured",
                       info->op ? info->op : "buffer_new", c->device.name, fl__cuda_home_device->name);
    pthread_mutex_lock(&c->lock);
    fl__cuda_block *k = fl__cuda_find(c, bytes, bin, home);
    if (k) c->stats.reuses++;
    pthread_mutex_unlock(&c->lock);
    if (!k && fl__cuda_captured)
        return fl_fail("fl_%s: cuda: the graph that is captured has no %zu bytes more: its warm-up steps had "
                       "no such tensor", info->op ? info->op : "buffer_new", b->bytes);
    if (!k && !(k = fl__cuda_block_new(c, bytes))) return false;
    k->home = home;
    k->pooled = pooled;
    k->born = fl__cuda_captured;
    const bool moves = k->stream != info->stream; /* of a graph */
    const char *why = k->event && !fl__cuda_captured ? flk_wait(info->stream, k->event) : NULL;
    if (!why) flk_unmark(k->event), k->event = NULL;
    if (!why && moves && !fl__cuda_wait(b->device, info->stream, k->stream)) why = "a stream cannot wait";
    k->stream = why ? k->stream : info->stream;
    pthread_mutex_lock(&c->lock);
    if (why) {
        fl__cuda_keep(c, k);
    } else {
        k->holder = b;
        c->stats.gets++;
        fl__cuda_count(&c->stats, (int64_t)k->bytes, 0);
    }
    pthread_mutex_unlock(&c->lock);
    if (why) return fl__cuda_ok(why);
    b->ptr = k->p;
    b->tag = k;
    b->stream = info->stream;
    return true;
}

/* Should the event fail, all work is waited for. */
static void fl__cuda_cache_put(fl_mem_manager *self, fl_buffer *b) {
    fl__cuda_cache *c = (fl__cuda_cache *)(void *)self;
    fl__cuda_block *k = b->tag;
    void *event = NULL;
    const bool elsewhere = b->stream && b->stream != k->stream && !fl__cuda_captured;
    if (elsewhere && flk_mark(&event, b->stream)) flk_sync_all();
    pthread_mutex_lock(&c->lock);
    k->event = event;
    k->holder = NULL;
    fl__cuda_keep(c, k);
    fl__cuda_count(&c->stats, -(int64_t)k->bytes, 0);
    c->stats.puts++;
    pthread_mutex_unlock(&c->lock);
}

/* Gives back the free blocks of home's, or (NULL) all that are not of graphs. The lock is held. */
static size_t fl__cuda_give_back(fl__cuda_cache *c, const void *home) {
    size_t bytes = 0;
    for (int i = 0; i < FL__CUDA_BINS; i++)
        for (fl__cuda_block **at = &c->bin[i], *k; (k = *at);) {
            if (home ? k->home != home : k->pooled) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            bytes += k->bytes;
            fl__cuda_block_end(c, k);
        }
    return bytes;
}

/* Pinned memory goes with each device's. */
static size_t fl__cuda_cache_trim(fl_mem_manager *self) {
    fl__cuda_cache *const both[2] = {(fl__cuda_cache *)(void *)self, &fl__cuda_caches[FLK_DEVICES]};
    size_t bytes = 0;
    if (fl__cuda_captured || (!both[0]->newest && !both[1]->newest)) return 0;
    flk_sync_all();
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&both[i]->lock);
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
                                     void (*fn)(fl_buffer *b, void *user), void *user) {
    fl__cuda_cache *c = fl__cuda_cache_of(device);
    pthread_mutex_lock(&c->lock);
    for (fl__cuda_block *k = c->newest; k; k = k->older) {
        if (k->home != home) continue;
        if (k->born && k->holder) fn(k->holder, user);
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

/* ---- all of them ---- */

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
                                .get = host ? fl__cuda_pinned_get : fl__cuda_get,
                                .put = host ? fl__cuda_pinned_put : fl__cuda_put,
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
    return b->device->get == fl__cuda_get;
}

FL_PRIVATE const fl_device *fl__cuda_pinned(void) {
    return fl__cuda_device(FLK_DEVICES);
}

#endif
#endif
/* MIT licence: see LICENSE. */
