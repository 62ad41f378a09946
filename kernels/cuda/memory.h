/* kernels/cuda/memory.h - the device of family cuda and the manager that caches its memory

   A request is rounded up to an eighth of its power of two, 512 bytes at least, and takes the smallest free
   block that is no more than a quarter larger; else the device is asked. All work is in one stream, so a
   block that comes back may go out again at once: what uses it next runs behind what used it last.
   Nothing is split and nothing merged: fl_mem_trim, which waits, gives the free blocks back. */
#ifndef FL_CUDA_MEMORY_H
#define FL_CUDA_MEMORY_H
#include "../../fl_mem.h"

/* Of the one device that there is. Its get fails, saying why, where driver or device are missing. */
FL_PRIVATE const fl_device *fl__cuda_device(void);
#endif

#if defined(FL_IMPL_ONLY_CUDA_MEMORY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_MEMORY_IMPL
#define FL_CUDA_MEMORY_IMPL
#include "flk.h"
#include <pthread.h>
#include <string.h>

typedef struct fl__cuda_block {
    void *p;
    size_t bytes;
} fl__cuda_block;

static struct {
    pthread_mutex_t lock;
    fl__cuda_block *spare; /* by size */
    int64_t n, cap;
    fl_mem_stats stats;
} fl__cuda_cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the device ---- */

static bool fl__cuda_ok(const char *why) {
    return !why || fl_fail("cuda: %s", why);
}

static void *fl__cuda_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self, (void)align; /* cudaMalloc's blocks start on 256 bytes */
    void *p = NULL;
    if (!fl__cuda_ok(flk_start())) return NULL;
    return flk_get(&p, bytes) ? NULL : p;
}

static void fl__cuda_put(const fl_device *self, void *p, size_t bytes) {
    (void)self, (void)bytes;
    flk_put(p);
}

static bool fl__cuda_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    return fl__cuda_ok(flk_copy(dst, src, bytes));
}

static size_t fl__cuda_limit(const fl_device *self) {
    (void)self;
    return flk_start() ? 0 : flk_limit();
}

/* ---- the manager ---- */

static size_t fl__cuda_rounded(size_t bytes) {
    size_t unit = 512;
    while (unit * 16 <= bytes) unit *= 2;
    return (bytes + unit - 1) / unit * unit;
}

/* The first spare block of so many bytes or more. */
static int64_t fl__cuda_spare_from(size_t bytes) {
    int64_t low = 0, high = fl__cuda_cache.n;
    while (low < high) {
        const int64_t half = (low + high) / 2;
        if (fl__cuda_cache.spare[half].bytes < bytes) low = half + 1;
        else high = half;
    }
    return low;
}

static void fl__cuda_count(int64_t in_use, int64_t reserved) {
    fl_mem_stats *s = &fl__cuda_cache.stats;
    s->in_use += in_use;
    s->reserved += reserved;
    if (s->in_use > s->peak_in_use) s->peak_in_use = s->in_use;
    if (s->reserved > s->peak_reserved) s->peak_reserved = s->reserved;
}

/* The tag of a buffer is its block's size. */
static bool fl__cuda_cache_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self, (void)info;
    size_t bytes = fl__cuda_rounded(b->bytes + FL_ALIGN);
    pthread_mutex_lock(&fl__cuda_cache.lock);
    const int64_t at = fl__cuda_spare_from(bytes);
    const bool fits = at < fl__cuda_cache.n && fl__cuda_cache.spare[at].bytes <= bytes + bytes / 4;
    if (fits) {
        fl__cuda_block *block = &fl__cuda_cache.spare[at];
        b->ptr = block->p;
        bytes = block->bytes;
        memmove(block, block + 1, (size_t)(--fl__cuda_cache.n - at) * sizeof *block);
        fl__cuda_cache.stats.reuses++;
    } else {
        b->ptr = b->device->get(b->device, bytes, FL_ALIGN);
        fl__cuda_cache.stats.device_gets += b->ptr != NULL;
    }
    fl__cuda_cache.stats.gets += b->ptr != NULL;
    if (b->ptr) fl__cuda_count((int64_t)bytes, fits ? 0 : (int64_t)bytes);
    pthread_mutex_unlock(&fl__cuda_cache.lock);
    b->tag = (void *)(uintptr_t)bytes;
    return b->ptr != NULL;
}

static void fl__cuda_cache_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    const size_t bytes = (size_t)(uintptr_t)b->tag;
    pthread_mutex_lock(&fl__cuda_cache.lock);
    const bool room = fl__grow_raw(&fl__cuda_cache.spare, &fl__cuda_cache.cap, fl__cuda_cache.n + 1,
                                   sizeof *fl__cuda_cache.spare);
    if (room) {
        fl__cuda_block *block = &fl__cuda_cache.spare[fl__cuda_spare_from(bytes)];
        memmove(block + 1, block,
                (size_t)(fl__cuda_cache.spare + fl__cuda_cache.n++ - block) * sizeof *block);
        *block = (fl__cuda_block){b->ptr, bytes};
    } else {
        flk_put(b->ptr);
    }
    fl__cuda_count(-(int64_t)bytes, room ? 0 : -(int64_t)bytes);
    fl__cuda_cache.stats.puts++;
    pthread_mutex_unlock(&fl__cuda_cache.lock);
}

static size_t fl__cuda_cache_trim(fl_mem_manager *self) {
    (void)self;
    size_t bytes = 0;
    pthread_mutex_lock(&fl__cuda_cache.lock);
    if (fl__cuda_cache.n) flk_sync();
    while (fl__cuda_cache.n > 0) {
        const fl__cuda_block *block = &fl__cuda_cache.spare[--fl__cuda_cache.n];
        bytes += block->bytes;
        flk_put(block->p);
    }
    fl_heap_free(fl__cuda_cache.spare);
    fl__cuda_cache.spare = NULL;
    fl__cuda_cache.cap = 0;
    fl__cuda_count(0, -(int64_t)bytes);
    pthread_mutex_unlock(&fl__cuda_cache.lock);
    return bytes;
}

static void fl__cuda_cache_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    pthread_mutex_lock(&fl__cuda_cache.lock);
    *out = fl__cuda_cache.stats;
    out->free_blocks = fl__cuda_cache.n;
    out->largest_free = fl__cuda_cache.n ? (int64_t)fl__cuda_cache.spare[fl__cuda_cache.n - 1].bytes : 0;
    pthread_mutex_unlock(&fl__cuda_cache.lock);
}

static void fl__cuda_cache_reset(fl_mem_manager *self) {
    (void)self;
    pthread_mutex_lock(&fl__cuda_cache.lock);
    fl__cuda_cache.stats.peak_in_use = fl__cuda_cache.stats.in_use;
    fl__cuda_cache.stats.peak_reserved = fl__cuda_cache.stats.reserved;
    pthread_mutex_unlock(&fl__cuda_cache.lock);
}

FL_PRIVATE const fl_device *fl__cuda_device(void) {
    static fl_mem_manager manager = {.name = "cuda",
                                     .get = fl__cuda_cache_get,
                                     .put = fl__cuda_cache_put,
                                     .trim = fl__cuda_cache_trim,
                                     .stats = fl__cuda_cache_stats,
                                     .reset_peak = fl__cuda_cache_reset};
    static const fl_device device = {.name = "cuda",
                                     .get = fl__cuda_get,
                                     .put = fl__cuda_put,
                                     .copy = fl__cuda_copy,
                                     .limit = fl__cuda_limit,
                                     .manager = &manager};
    return &device;
}

#endif
#endif
/* MIT licence: see LICENSE. */
