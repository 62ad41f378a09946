/* examples/extend/evictor.h - a memory manager with a byte budget that pages buffers to a file

   What it shows: a manager may take bytes away, because they are reached only between fl_buffer_map
   and fl_buffer_unmap. When a request would pass the budget, the least recently mapped buffers that
   nobody has mapped go to a file; mapping brings them back. Models, ops and backends notice nothing
   but the time, and compute the same bits.

   The contract it exercises
     get      Frees space, sets b->ptr (FL_ALIGN spare bytes behind the end), and declares itself:
              pageable, restore, tag.
     claim    fl_buffer_claim fails for a buffer that is mapped or away: those stay. From a claim
              until the state is FL_EVICTED, and in restore and put, the lock is held: a thread
              that maps or drops a claimed buffer waits there.
     restore  Runs in the thread that maps. It finds b->ptr set when a claim was given back
              (another victim was older, the file could not be written).
     put      Takes the buffer back, in memory or in the file.
     errors   False after fl_fail: nothing evictable is left (one op needs more than the budget),
              or the file fails.

     fl_mem_manager *m = evictor_new(64 << 20, "swap.bin"); // 64 MiB
     fl_mem_set_current(m);
     ...
     fl_mem_set_current(NULL);
     fl_mem_close(m); // after the last buffer

   Space in the file is taken first-fit between the pages that are there. Lists are walked: fine for
   thousands of buffers. */
#ifndef EVICTOR_H
#define EVICTOR_H

#include "../../fl_mem.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct evictor_page evictor_page;
struct evictor_page { /* one for each buffer, in its tag */
    fl_buffer *buffer;
    int64_t at; /* in the file, while it is away */
    evictor_page *next;
};

typedef struct evictor {
    fl_mem_manager table; /* first: the manager is the evictor */
    pthread_mutex_t lock; /* of all below */
    size_t budget;        /* bytes that may be in memory */
    FILE *file;
    evictor_page *here, *away;  /* in memory; in the file, sorted by their place */
    fl_mem_stats stats;         /* in_use: all buffers; reserved: those in memory */
    int64_t written, read, end; /* pages so far; the file's largest size */
} evictor;

/* ---- the file ---- */

static inline bool evictor_seek(evictor *e, const evictor_page *p) {
    return p->at <= LONG_MAX && fseek(e->file, (long)p->at, SEEK_SET) == 0;
}

/* Gives p the first place in the file that is large enough. */
static inline void evictor_place(evictor *e, evictor_page *p) {
    evictor_page **link = &e->away;
    p->at = 0;
    for (; *link && (*link)->at - p->at < (int64_t)p->buffer->bytes; link = &(*link)->next)
        p->at = (*link)->at + (int64_t)(*link)->buffer->bytes;
    p->next = *link;
    *link = p;
    int64_t end = p->at + (int64_t)p->buffer->bytes;
    e->end = end > e->end ? end : e->end;
}

static inline void evictor_unlink(evictor_page **list, const evictor_page *p) {
    while (*list != p) list = &(*list)->next;
    *list = p->next;
}

static inline void evictor_push(evictor *e, evictor_page *p) {
    p->next = e->here;
    e->here = p;
}

/* ---- memory ---- */

/* Claims the least recently used buffer that is in memory and unmapped. NULL if none. */
static inline evictor_page *evictor_victim(evictor *e) {
    evictor_page *best = NULL;
    uint64_t oldest = UINT64_MAX;
    for (evictor_page *p = e->here; p; p = p->next) {
        uint64_t use = __atomic_load_n(&p->buffer->last_use, __ATOMIC_RELAXED);
        if (use >= oldest || !fl_buffer_claim(p->buffer)) continue;
        if (best) fl_buffer_resident(best->buffer);
        best = p;
        oldest = use;
    }
    return best;
}

static inline void evictor_release(evictor *e, fl_buffer *b) {
    free(b->ptr);
    b->ptr = NULL;
    e->stats.reserved -= (int64_t)b->bytes;
}

/* Moves one buffer to the file. False if none to move, or after fl_fail. */
static inline bool evictor_page_out(evictor *e) {
    evictor_page *p = evictor_victim(e);
    if (!p) return false;
    fl_buffer *b = p->buffer;
    evictor_unlink(&e->here, p);
    evictor_place(e, p);
    if (!evictor_seek(e, p) || fwrite(b->ptr, 1, b->bytes, e->file) != b->bytes) {
        evictor_unlink(&e->away, p);
        evictor_push(e, p);
        fl_buffer_resident(b);
        return fl_fail("evictor: cannot write %zu bytes at %lld of the file", b->bytes,
                       (long long)p->at);
    }
    evictor_release(e, b);
    b->state = FL_EVICTED;
    e->written++;
    return true;
}

/* Memory for b within the budget. False if nothing more can be paged out, or after fl_fail. */
static inline bool evictor_take(evictor *e, fl_buffer *b) {
    if (b->bytes > e->budget) return false;
    while ((size_t)e->stats.reserved > e->budget - b->bytes)
        if (!evictor_page_out(e)) return false;
    b->ptr = aligned_alloc(FL_ALIGN, (b->bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN);
    if (!b->ptr) return false;
    e->stats.reserved += (int64_t)b->bytes;
    if (e->stats.reserved > e->stats.peak_reserved) e->stats.peak_reserved = e->stats.reserved;
    return true;
}

static inline bool evictor_page_in(evictor *e, evictor_page *p) {
    fl_buffer *b = p->buffer;
    if (!evictor_take(e, b))
        return fl_fail("evictor: no space for %zu bytes: %lld of the budget's %zu are mapped or "
                       "cannot be moved",
                       b->bytes, (long long)e->stats.reserved, e->budget);
    if (!evictor_seek(e, p) || fread(b->ptr, 1, b->bytes, e->file) != b->bytes) {
        evictor_release(e, b);
        return fl_fail("evictor: cannot read %zu bytes at %lld of the file", b->bytes,
                       (long long)p->at);
    }
    evictor_unlink(&e->away, p);
    evictor_push(e, p);
    fl_buffer_resident(b);
    e->read++;
    return true;
}

/* ---- the table ---- */

static inline bool evictor_restore(fl_buffer *b) {
    evictor *e = (evictor *)(void *)b->manager;
    pthread_mutex_lock(&e->lock);
    bool ok = b->ptr || evictor_page_in(e, b->tag);
    pthread_mutex_unlock(&e->lock);
    return ok;
}

static inline bool evictor_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    if (b->device != fl_device_host()) return fl_mem_delegate(self, fl_mem_caching(), b, info);
    evictor *e = (evictor *)(void *)self;
    evictor_page *p = malloc(sizeof *p);
    if (!p) return false;
    pthread_mutex_lock(&e->lock);
    bool ok = evictor_take(e, b);
    if (ok) {
        p->buffer = b;
        b->tag = p;
        b->restore = evictor_restore;
        b->pageable = true;
        evictor_push(e, p);
        e->stats.gets++;
        e->stats.in_use += (int64_t)b->bytes;
        if (e->stats.in_use > e->stats.peak_in_use) e->stats.peak_in_use = e->stats.in_use;
    }
    pthread_mutex_unlock(&e->lock);
    if (!ok) free(p);
    return ok;
}

static inline void evictor_put(fl_mem_manager *self, fl_buffer *b) {
    evictor *e = (evictor *)(void *)self;
    evictor_page *p = b->tag;
    pthread_mutex_lock(&e->lock);
    evictor_unlink(b->ptr ? &e->here : &e->away, p);
    if (b->ptr) evictor_release(e, b);
    e->stats.puts++;
    e->stats.in_use -= (int64_t)b->bytes;
    pthread_mutex_unlock(&e->lock);
    free(p);
}

static inline void evictor_stats(fl_mem_manager *self, fl_mem_stats *out) {
    evictor *e = (evictor *)(void *)self;
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

static inline void evictor_close(fl_mem_manager *self) {
    evictor *e = (evictor *)(void *)self;
    fclose(e->file);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* A manager that keeps at most `budget` bytes in memory (0: all) and the rest in a new file at
   path, which loses its name at once, so that nothing stays behind. NULL after fl_fail: no memory,
   or the file exists or cannot be made. */
static inline fl_mem_manager *evictor_new(size_t budget, const char *path) {
    evictor *e = calloc(1, sizeof *e);
    if (!e) {
        fl_fail("evictor_new: out of memory");
        return NULL;
    }
    e->file = fopen(path, "w+bx");
    if (!e->file) {
        fl_fail("evictor_new: cannot make the file %s", path);
        free(e);
        return NULL;
    }
    remove(path);
    setvbuf(e->file, NULL, _IONBF, 0);
    pthread_mutex_init(&e->lock, NULL);
    e->budget = budget ? budget : SIZE_MAX;
    e->table = (fl_mem_manager){.name = "evictor",
                                .get = evictor_get,
                                .put = evictor_put,
                                .stats = evictor_stats,
                                .close = evictor_close,
                                .user = e};
    return &e->table;
}

#endif
/* MIT licence: see LICENSE. */
