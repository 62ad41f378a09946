/* kernels/cuda/plan.h - plans of a library by shape: tables of fixed size with open addressing, and tuning

   An entry is at most FL__PLAN_PROBES places after that of its hash. If all of these are taken, the one that
   was used least recently is evicted, but none that a CUDA graph may contain.

   FL_CUDA_TUNE=file: if a library offers several algorithms for a shape, each is timed when its plan first
   runs, and the fastest is stored in the file: later runs use it, and get the same bits. After the first
   line, which identifies the format, there is one line per choice: a key of shape, GPU model and library
   version, and the choice. An invalid file is ignored with a warning, and left unchanged; then the library's
   first choice is used, as without tuning. */
#ifndef FL_CUDA_PLAN_H
#define FL_CUDA_PLAN_H
#include "../../fl_backend.h"
#include <pthread.h>
enum { FL__PLAN_PROBES = 64 };
/* The first field of an entry. The second one is its key, without padding, which begins with the device, an
   int64_t. */
typedef struct fl__cuda_plan {
    uint64_t hash, used; /* used: number of the last search; 0: free, UINT64_MAX: captured */
    int at;              /* index among the library's alternatives */
    bool can, fresh;     /* whether there is a plan; whether it is to be tuned */
} fl__cuda_plan;
typedef struct fl__cuda_plans {
    pthread_mutex_t lock; /* held in all functions below but fl__cuda_plan_run */
    void *entry;          /* n of them, zeroed at the start */
    uint64_t n;
    size_t entry_size, key_size;
    /* use: a call's arguments. Makes the plan's first possible alternative from `at` on, and sets `at`. */
    bool (*make)(void *plan, void *use);
    bool (*start)(void *plan, void *use); /* on the current stream, any number of times */
    void (*forget)(void *plan);           /* what was made, also by a make that failed */
    size_t (**version)(void);             /* of the library, once it is loaded */
} fl__cuda_plans;
/* The entry of a key, made for `use` if it is new. Returns NULL if the table is full, or after fl_fail with
   the shapes of c's operands if it would be made while a graph is captured: that may load code. */
FL_PRIVATE fl__cuda_plan *fl__cuda_plan_of(fl__cuda_plans *t, const void *key, const fl_call *c, void *use);
/* Starts the plan of a key, and sets *done; without a plan returns true, too. */
FL_PRIVATE bool fl__cuda_plan_run(fl__cuda_plans *t, const void *key, const fl_call *c, void *use,
                                  bool *done);
FL_PRIVATE int64_t fl__cuda_plan_evictions(void); /* of all tables so far */
#endif

#if defined(FL_IMPL_ONLY_CUDA_PLAN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_PLAN_IMPL
#define FL_CUDA_PLAN_IMPL
#include "../../fl/tensor/memo.h"
#include "flk.h"
#include "memory.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the file of choices ---- */

static const char fl__plan_choices_mark[] = "fl cuda tune 1\n";
static struct {
    bool looked;
    const char *path; /* NULL: tuning is off */
    struct {
        uint64_t key;
        int choice;
    } *entry;
    int64_t n, cap;
} fl__plan_choices;

static bool fl__plan_choices_add(uint64_t key, int choice) {
    if (!fl_heap_grow(&fl__plan_choices.entry, &fl__plan_choices.cap, fl__plan_choices.n + 1,
                      sizeof *fl__plan_choices.entry))
        return false;
    fl__plan_choices.entry[fl__plan_choices.n].key = key;
    fl__plan_choices.entry[fl__plan_choices.n++].choice = choice;
    return true;
}

/* Reads lines "0123456789abcdef 7"; a truncated line makes the file invalid. */
static bool fl__plan_choices_read(FILE *f) {
    char line[64], again[64];
    if (!fgets(line, sizeof line, f) || strcmp(line, fl__plan_choices_mark)) return false;
    while (fgets(line, sizeof line, f)) {
        uint64_t key;
        int choice;
        if (sscanf(line, "%16" SCNx64 " %2d", &key, &choice) != 2 || choice < 0) return false;
        snprintf(again, sizeof again, "%016" PRIx64 " %d\n", key, choice);
        if (strcmp(line, again) || !fl__plan_choices_add(key, choice)) return false;
    }
    return !ferror(f);
}

/* Whether tuning is on. Calls come from slots, one at a time. */
static bool fl__plan_tunes(void) {
    const char *path = getenv("FL_CUDA_TUNE");
    if (fl__plan_choices.looked) return fl__plan_choices.path;
    fl__plan_choices.looked = true;
    if (!path || !*path) return false;
    FILE *f = fopen(path, "r");
    const bool ok = f ? fl__plan_choices_read(f) : errno == ENOENT;
    if (f) fclose(f);
    if (ok) fl__plan_choices.path = path;
    else fl_log_message(FL_LOG_WARN, "cuda: FL_CUDA_TUNE: %s is not a valid file or not readable: ignored",
                        path);
    return ok;
}

/* The stored choice; -1: unknown, or tuning is off. */
static int fl__plan_choice(uint64_t key) {
    int choice = -1;
    for (int64_t i = 0; i < fl__plan_choices.n; i++)
        if (fl__plan_choices.entry[i].key == key) choice = fl__plan_choices.entry[i].choice;
    return choice;
}

static void fl__plan_store(uint64_t key, int choice) {
    FILE *f = fopen(fl__plan_choices.path, "a");
    bool ok = f && fl__plan_choices_add(key, choice);
    if (ok && ftell(f) == 0) ok = fputs(fl__plan_choices_mark, f) >= 0;
    ok = ok && fprintf(f, "%016" PRIx64 " %d\n", key, choice) > 0;
    if (f) ok = !fclose(f) && ok;
    if (ok) return;
    fl_log_message(FL_LOG_WARN, "cuda: cannot write %s: tuning is off from now on", fl__plan_choices.path);
    fl__plan_choices.path = NULL;
}

/* ---- tables ---- */

static int64_t fl__plan_evicted; /* atomic */

FL_PRIVATE int64_t fl__cuda_plan_evictions(void) {
    return __atomic_load_n(&fl__plan_evicted, __ATOMIC_RELAXED);
}

/* The entry of a key, or one to overwrite (*found: false), free or evicted. */
static fl__cuda_plan *fl__plan_find(const fl__cuda_plans *t, const void *key, const fl_call *c, bool *found) {
    static uint64_t searches; /* atomic */
    const uint64_t hash = fl__memo_hash(key, t->key_size, 0);
    const uint64_t now = __atomic_add_fetch(&searches, 1, __ATOMIC_RELAXED);
    fl__cuda_plan *at = NULL;
    *found = false;
    for (uint64_t i = 0; i < FL__PLAN_PROBES && !*found && (!at || at->used); i++) {
        fl__cuda_plan *p = (fl__cuda_plan *)(void *)((char *)t->entry + (hash + i) % t->n * t->entry_size);
        *found = p->used && p->hash == hash && !memcmp(p + 1, key, t->key_size);
        if (*found || !at || p->used < at->used) at = p;
    }
    if (!*found && fl__cuda_captures())
        return fl_fail("fl_%s: cuda: the plan for %s and %s is not made yet, and cannot be made while a "
                       "graph is captured", fl_op_get_info(c->op)->name, FL_SHAPE_TEXT(c->in[0]),
                       FL_SHAPE_TEXT(c->in[1])), NULL;
    if (!*found && at->used == UINT64_MAX) return NULL;
    if (!*found && at->used) __atomic_add_fetch(&fl__plan_evicted, 1, __ATOMIC_RELAXED);
    at->hash = hash;
    if (!*found || at->used != UINT64_MAX) at->used = fl__cuda_captures() ? UINT64_MAX : now;
    return at;
}

static bool fl__plan_make(const fl__cuda_plans *t, fl__cuda_plan *p, void *use, int at) {
    t->forget(p);
    p->at = at;
    return p->can = t->make(p, use);
}

/* The key of its shape, on any device of the current one's model. */
static uint64_t fl__plan_tune_key(const fl__cuda_plans *t, const void *key) {
    const uint64_t all[2] = {flk_model(), (*t->version)()};
    const size_t device = sizeof(int64_t);
    return fl__memo_hash(all, sizeof all, fl__memo_hash((const char *)key + device, t->key_size - device, 0));
}

FL_PRIVATE fl__cuda_plan *fl__cuda_plan_of(fl__cuda_plans *t, const void *key, const fl_call *c, void *use) {
    bool found;
    fl__cuda_plan *p = fl__plan_find(t, key, c, &found);
    if (!p || found) return p;
    const int tuned = fl__plan_tunes() ? fl__plan_choice(fl__plan_tune_key(t, key)) : -1;
    memcpy(p + 1, key, t->key_size);
    if (!fl__plan_make(t, p, use, tuned < 0 ? 0 : tuned) && tuned > 0) fl__plan_make(t, p, use, 0);
    p->fresh = fl__plan_tunes() && tuned < 0 && p->can;
    return p;
}

/* ---- tuning ---- */

/* The minimal time of a few runs in seconds; a large number if it fails. */
static double fl__plan_seconds(const fl__cuda_plans *t, fl__cuda_plan *p, void *use) {
    double least = 1e9;
    for (int i = 0; i < 4; i++) {
        struct timespec a, b;
        if (flk_sync_stream()) break;
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (!t->start(p, use) || flk_sync_stream()) break;
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double took = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
        if (i && took < least) least = took; /* the first run loads it */
    }
    return least;
}

/* Times the alternatives from `at` on, which is made, stores the fastest, and leaves that one made. */
static void fl__plan_tune(const fl__cuda_plans *t, fl__cuda_plan *p, void *use) {
    const bool failed = fl_error() != NULL; /* before */
    double least = 1e9;
    int best = p->at;
    do {
        const double took = fl__plan_seconds(t, p, use);
        if (took < least) least = took, best = p->at;
        if (!failed) fl_error_clear();
    } while (fl__plan_make(t, p, use, p->at + 1));
    fl__plan_make(t, p, use, best);
    fl__plan_store(fl__plan_tune_key(t, p + 1), best);
}

FL_PRIVATE bool fl__cuda_plan_run(fl__cuda_plans *t, const void *key, const fl_call *c, void *use,
                                  bool *done) {
    pthread_mutex_lock(&t->lock);
    fl__cuda_plan *p = fl__cuda_plan_of(t, key, c, use);
    bool ok = p || !fl__cuda_captures();
    if (p && p->can) {
        if (p->fresh && fl__plan_tunes() && !fl__cuda_captures()) p->fresh = false, fl__plan_tune(t, p, use);
        ok = *done = t->start(p, use);
    }
    pthread_mutex_unlock(&t->lock);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
