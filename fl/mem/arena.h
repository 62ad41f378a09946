/* fl/mem/arena.h - the arena memory manager: plans the offsets of a training step and replays them */
#ifndef FL_MEM_ARENA_H
#define FL_MEM_ARENA_H
#include "managers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Static memory planning for steps that repeat the same allocations. The first step records sizes and
   lifetimes; then one block is laid out (greedy by size), and the requests of later steps get the planned
   offsets in order. Requests that depart from the plan go to `inner` (NULL: the current manager). Free it by
   fl_mem_close. NULL after fl_fail, also if inner is an arena. */
FL_API fl_mem_manager *fl_mem_arena(fl_mem_manager *inner);
/* Begins a step, which ends the one before. False after fl_fail if it is no arena or out of memory. */
FL_API bool fl_mem_arena_begin(fl_mem_manager *arena);
/* Bytes of the planned block, 0 before it is planned. */
FL_API size_t fl_mem_arena_bytes(fl_mem_manager *arena);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_ARENA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_ARENA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_ARENA_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_ARENA_IMPL
#include "errors.h"
#include "heap.h"
#include <pthread.h>
#include <stdlib.h>

/* ---- the arena ----

   The first step is served by the inner manager, while sizes and lifetimes are recorded on a clock that
   ticks at every get and put. Requests that outlive the step are left out of the plan. In later steps the
   k-th request of the plan gets its offset if its size matches (up to FL__ARENA_SKIP planned requests may
   be skipped, to resynchronise) and no live buffer overlaps it; all other requests are delegated to the
   inner manager. */

typedef struct fl__request {
    size_t bytes, offset;
    int64_t born, died; /* clock times of get and put; died -1: outlives the step */
    fl_mem_manager *owner;
} fl__request;

typedef enum fl__phase { FL__IDLE, FL__RECORDING, FL__PLANNED } fl__phase;

typedef struct fl__arena {
    fl_mem_manager table;
    fl_mem_manager *inner;
    pthread_mutex_t lock; /* for all fields below */
    fl__phase phase;
    fl__request *requests;
    int64_t n, cap, clock, cursor;
    int64_t *live; /* planned requests whose buffers exist */
    int64_t n_live;
    int64_t held; /* live buffers that this arena must free */
    bool closing;
    fl_buffer *block;
    char *base;
    size_t bytes;
    fl_mem_stats stats;
} fl__arena;

#define FL__ARENA_SKIP 8

static size_t fl__request_size(const fl__request *r) {
    return (r->bytes + FL_ALIGN + FL_ALIGN - 1) & ~(size_t)(FL_ALIGN - 1);
}

static bool fl__arena_holds(const fl__arena *a, const void *p) {
    return a->base && (uintptr_t)p - (uintptr_t)a->base < a->bytes;
}

static void fl__arena_free(fl__arena *a) {
    if (a->base) fl_buffer_unmap(a->block);
    fl_buffer_drop(a->block);
    pthread_mutex_destroy(&a->lock);
    fl_heap_free(a->requests);
    fl_heap_free(a->live);
    fl_heap_free(a);
}

/* Under the arena's lock: index of the planned request that matches, -1 if none does. */
static int64_t fl__arena_match(fl__arena *a, size_t bytes) {
    for (int64_t i = a->cursor; i < a->n && i < a->cursor + FL__ARENA_SKIP; i++)
        if (a->requests[i].bytes == bytes) {
            a->cursor = i + 1;
            return i;
        }
    return -1;
}

/* True if no live buffer overlaps r. */
static bool fl__arena_clear(const fl__arena *a, const fl__request *r) {
    for (int64_t i = 0; i < a->n_live; i++) {
        const fl__request *other = &a->requests[a->live[i]];
        if (r->offset < other->offset + fl__request_size(other) &&
            other->offset < r->offset + fl__request_size(r))
            return false;
    }
    return true;
}

/* Serves a planned request from the block; false if it is not in the plan. */
static bool fl__arena_replay(fl__arena *a, fl_buffer *b) {
    pthread_mutex_lock(&a->lock);
    int64_t i = a->phase == FL__PLANNED && a->base ? fl__arena_match(a, b->bytes) : -1;
    const fl__request *r = i < 0 ? NULL : &a->requests[i];
    bool planned = r && r->died >= 0 && fl__arena_clear(a, r);
    if (planned) {
        b->ptr = a->base + r->offset;
        b->slot_ = i;
        a->live[a->n_live++] = i;
        a->held++;
        a->stats.gets++;
        a->stats.reuses++;
        a->stats.in_use += (int64_t)b->bytes;
        if (a->stats.in_use > a->stats.peak_in_use) a->stats.peak_in_use = a->stats.in_use;
    }
    pthread_mutex_unlock(&a->lock);
    return planned;
}

/* Records a buffer that the inner manager has just served, and becomes its manager to see it freed. */
static void fl__arena_record(fl__arena *a, fl_buffer *b) {
    pthread_mutex_lock(&a->lock);
    if (a->phase == FL__RECORDING &&
        fl__grow_raw(&a->requests, &a->cap, a->n + 1, sizeof *a->requests)) {
        b->slot_ = a->n;
        a->requests[a->n++] =
            (fl__request){.bytes = b->bytes, .born = a->clock++, .died = -1, .owner = b->manager};
        b->manager = &a->table;
        a->held++;
    }
    pthread_mutex_unlock(&a->lock);
}

static bool fl__arena_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    fl__arena *a = self->user;
    if (b->device != fl_device_host()) return fl_mem_delegate(self, a->inner, b, info);
    if (fl__arena_replay(a, b)) return true;
    if (!fl_mem_delegate(self, a->inner, b, info)) return false;
    fl__arena_record(a, b);
    return true;
}

/* Under the arena's lock. */
static void fl__arena_release(fl__arena *a, const fl_buffer *b) {
    for (int64_t i = 0; i < a->n_live; i++)
        if (a->live[i] == b->slot_) {
            a->live[i] = a->live[--a->n_live];
            break;
        }
    a->stats.puts++;
    a->stats.in_use -= (int64_t)b->bytes;
}

static void fl__arena_put(fl_mem_manager *self, fl_buffer *b) {
    fl__arena *a = self->user;
    fl_mem_manager *owner = NULL;
    pthread_mutex_lock(&a->lock);
    if (fl__arena_holds(a, b->ptr)) {
        fl__arena_release(a, b);
    } else {
        fl__request *r = &a->requests[b->slot_];
        owner = r->owner;
        if (a->phase == FL__RECORDING) r->died = a->clock++;
    }
    bool last = --a->held == 0 && a->closing;
    pthread_mutex_unlock(&a->lock);
    if (owner) owner->put(owner, b);
    if (last) fl__arena_free(a);
}

static size_t fl__arena_trim(fl_mem_manager *self) {
    fl__arena *a = self->user;
    return a->inner->trim ? a->inner->trim(a->inner) : 0;
}

static void fl__arena_stats(fl_mem_manager *self, fl_mem_stats *out) {
    fl__arena *a = self->user;
    pthread_mutex_lock(&a->lock);
    *out = a->stats;
    pthread_mutex_unlock(&a->lock);
}

static void fl__arena_reset_peak(fl_mem_manager *self) {
    fl__arena *a = self->user;
    pthread_mutex_lock(&a->lock);
    a->stats.peak_in_use = a->stats.in_use;
    pthread_mutex_unlock(&a->lock);
}

/* The arena is freed with the last of its buffers. */
static void fl__arena_close(fl_mem_manager *self) {
    fl__arena *a = self->user;
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    bool idle = a->held == 0;
    pthread_mutex_unlock(&a->lock);
    if (idle) fl__arena_free(a);
}

FL_API fl_mem_manager *fl_mem_arena(fl_mem_manager *inner) {
    if (!inner) inner = fl_mem_current();
    if (inner->get == fl__arena_get) {
        fl_fail("fl_mem_arena: the inner manager is an arena itself, which is not supported");
        return NULL;
    }
    fl__arena *a = fl_heap_alloc(sizeof *a);
    if (!a) return NULL;
    pthread_mutex_init(&a->lock, NULL);
    a->table = (fl_mem_manager){.name = "arena",
                                .get = fl__arena_get,
                                .put = fl__arena_put,
                                .trim = fl__arena_trim,
                                .stats = fl__arena_stats,
                                .reset_peak = fl__arena_reset_peak,
                                .close = fl__arena_close,
                                .user = a};
    a->inner = inner;
    return &a->table;
}

/* By size, descending, then by time. */
static int fl__by_size(const void *x, const void *y) {
    const fl__request *a = *(fl__request *const *)x, *b = *(fl__request *const *)y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return a->born < b->born ? -1 : a->born > b->born;
}

/* First fit: the lowest offset at which r does not overlap a placed request (sorted by offset) with an
   overlapping lifetime; then inserts r. */
static void fl__arena_place(fl__request **placed, int64_t n, fl__request *r) {
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const fl__request *p = placed[i];
        if (p->died < r->born || r->died < p->born) continue;
        if (p->offset >= at && p->offset - at >= fl__request_size(r)) break;
        size_t end = p->offset + fl__request_size(p);
        at = end > at ? end : at;
    }
    r->offset = at;
    int64_t k = n;
    for (; k > 0 && placed[k - 1]->offset > at; k--) placed[k] = placed[k - 1];
    placed[k] = r;
}

/* Lays out the block. Under the arena's lock. */
static bool fl__arena_plan(fl__arena *a) {
    int64_t n = 0;
    size_t count = (size_t)a->n + 1;
    fl__request **order = fl_heap_alloc(2 * count * sizeof(fl__request *));
    a->live = fl_heap_alloc(count * sizeof *a->live);
    if (!order || !a->live) {
        fl_heap_free(order);
        fl_heap_free(a->live);
        a->live = NULL;
        return false;
    }
    fl__request **placed = order + count;
    for (int64_t i = 0; i < a->n; i++)
        if (a->requests[i].died >= 0) order[n++] = &a->requests[i];
    qsort(order, (size_t)n, sizeof *order, fl__by_size);
    for (int64_t i = 0; i < n; i++) {
        fl__arena_place(placed, i, order[i]);
        size_t end = order[i]->offset + fl__request_size(order[i]);
        a->bytes = end > a->bytes ? end : a->bytes;
    }
    fl_heap_free(order);
    a->phase = FL__PLANNED;
    return true;
}

/* Allocates the planned block from the inner manager. */
static bool fl__arena_take_block(fl__arena *a) {
    if (!a->block) a->block = fl_buffer_from(a->inner, a->bytes, NULL);
    a->base = a->block ? fl_buffer_map(a->block) : NULL;
    if (!a->base) return false;
    a->stats.reserved = a->stats.peak_reserved = (int64_t)a->bytes;
    a->stats.device_gets++;
    return true;
}

FL_API bool fl_mem_arena_begin(fl_mem_manager *arena) {
    if (!arena || arena->get != fl__arena_get)
        return fl_fail("fl_mem_arena_begin: the manager is not an arena");
    fl__arena *a = arena->user;
    bool ok = true;
    pthread_mutex_lock(&a->lock);
    if (a->phase == FL__IDLE)
        a->phase = FL__RECORDING;
    else if (a->phase == FL__RECORDING)
        ok = fl__arena_plan(a);
    if (ok && a->bytes && !a->base) ok = fl__arena_take_block(a);
    a->cursor = 0;
    pthread_mutex_unlock(&a->lock);
    return ok;
}

FL_API size_t fl_mem_arena_bytes(fl_mem_manager *arena) {
    if (!arena || arena->get != fl__arena_get) return 0;
    fl__arena *a = arena->user;
    pthread_mutex_lock(&a->lock);
    size_t bytes = a->bytes;
    pthread_mutex_unlock(&a->lock);
    return bytes;
}

#endif
#endif

/* MIT licence: see LICENSE. */
