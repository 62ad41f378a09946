/* fl/mem/records.h - internal: small records on per-thread free lists; cleanup at thread and process exit */
#ifndef FL_MEM_RECORDS_H
#define FL_MEM_RECORDS_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Internal to fl, not for users. Small records come from per-thread free lists, so that getting and putting
   one takes neither a lock nor an atomic read-modify-write. The lists are bounded: the surplus moves to
   shared lists, in batches, and all of it when the thread ends. Kinds 0 to 15 are the sizes 64, 128 ... 1024
   bytes. */
enum {
    FL__RECORD_SIZES = 16,
    FL__RECORD_TENSOR = FL__RECORD_SIZES,
    FL__RECORD_BUFFER,
    FL__RECORD_KINDS,
    FL__RECORDS_MOST = 1024 /* capacity of each list of a thread */
};
typedef struct fl__record {
    struct fl__record *next;
} fl__record;
typedef struct fl__records {
    struct {
        fl__record *head;
        int64_t n; /* written by its thread, read by all */
    } list[FL__RECORD_KINDS];
    int64_t most; /* FL__RECORDS_MOST; 0 before the thread has its own lists */
} fl__records;
/* Slow path of fl__record_get, for an empty list. NULL after fl_fail. */
FL_PRIVATE void *fl__record_refill(int kind, size_t size);
/* Slow path of fl__record_put, for a full list. */
FL_PRIVATE void fl__record_overflow(int kind, void *record);
/* Records of that kind in use, over all threads. */
FL_PRIVATE int64_t fl__records_live(int kind);
/* Registers fn to run when this thread ends (for the first thread: the process), before its records are
   released. A later fn replaces it. False if out of memory. */
FL_PRIVATE bool fl__at_thread_end(void (*fn)(void));
#ifndef __cplusplus
FL__PRIVATE_VARIABLE _Thread_local fl__records *fl__self; /* never NULL */
/* An uninitialised record of `size` bytes; each kind has one size. */
static FL__HOT void *fl__record_get(int kind, size_t size) {
    fl__records *t = fl__self;
    fl__record *r = t->list[kind].head;
    if (__builtin_expect(!r, 0)) return fl__record_refill(kind, size);
    t->list[kind].head = r->next;
    __atomic_store_n(&t->list[kind].n, t->list[kind].n - 1, __ATOMIC_RELAXED);
    return r;
}
static FL__HOT void fl__record_put(int kind, void *record) {
    fl__records *t = fl__self;
    fl__record *r = record;
    if (__builtin_expect(t->list[kind].n >= t->most, 0)) {
        fl__record_overflow(kind, record);
        return;
    }
    r->next = t->list[kind].head;
    t->list[kind].head = r;
    __atomic_store_n(&t->list[kind].n, t->list[kind].n + 1, __ATOMIC_RELAXED);
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_RECORDS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_RECORDS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_RECORDS_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_RECORDS_IMPL
#include "thread_cache.h"
#include "errors.h"
#include "heap.h"
#include <string.h>

#define FL__BIN_BLOCKS 256               /* capacity of a thread's bin in buffers, */
#define FL__BIN_BYTES ((size_t)64 << 10) /* and in bytes; at least four blocks */

FL_PRIVATE fl__thread fl__no_thread;
FL_PRIVATE _Thread_local fl__records *fl__self = &fl__no_thread.records;
FL_PRIVATE struct fl__shared fl__shared = {.once = PTHREAD_ONCE_INIT};

static void fl__thread_end(void *thread);

#ifndef _WIN32
static void fl__fork_prepare(void) {
    pthread_mutex_lock(&fl__lock);
}

static void fl__fork_parent(void) {
    pthread_mutex_unlock(&fl__lock);
}

static void fl__fork_child(void) {
    fl__pool_forget();
    fl__restored = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&fl__lock);
}
#endif

static void fl__setup_once(void) {
    fl__shared.ready = pthread_key_create(&fl__shared.key, fl__thread_end) == 0;
#ifndef _WIN32
    pthread_atfork(fl__fork_prepare, fl__fork_parent, fl__fork_child);
#endif
}

void fl__setup(void) {
    pthread_once(&fl__shared.once, fl__setup_once);
}

/* NULL if out of memory, without recording an error, because fl_buffer_drop must not fail. */
static FL__COLD fl__thread *fl__thread_start(void) {
    fl__setup();
    fl__thread *t = fl__heap_raw(NULL, sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->records.most = FL__RECORDS_MOST;
    for (int c = 0; c < FL__SMALL_CLASSES; c++) {
        size_t size = fl__class_size(c), most = FL__BIN_BYTES / size;
        t->bins[c].size = (int)size;
        t->bins[c].most = most > FL__BIN_BLOCKS ? FL__BIN_BLOCKS : most < 4 ? 4 : (int)most;
    }
    if (fl__shared.ready) pthread_setspecific(fl__shared.key, t);
    pthread_mutex_lock(&fl__lock);
    t->id = ++fl__shared.last_id;
    t->next = fl__shared.threads;
    fl__shared.threads = t;
    pthread_mutex_unlock(&fl__lock);
    fl__self = &t->records;
    return t;
}

fl__thread *fl__thread_record(void) {
    return fl__this_thread() == &fl__no_thread ? fl__thread_start() : fl__this_thread();
}

FL_PRIVATE bool fl__at_thread_end(void (*fn)(void)) {
    fl__thread *t = fl__thread_record();
    if (t) t->end = fn;
    return t != NULL;
}

static void fl__thread_call_end(fl__thread *t) {
    void (*end)(void) = t->end;
    t->end = NULL;
    if (end) end();
}

/* At thread (or process) exit: its caches move to the shared lists. Key destructors that run later and use
   buffers start a new record, which ends the same way. */
static void fl__thread_end(void *thread) {
    fl__thread *t = thread, **link = &fl__shared.threads;
    fl__thread_call_end(t);
    pthread_mutex_lock(&fl__lock);
    fl__trim_thread(t);
    while (*link != t) link = &(*link)->next;
    *link = t->next;
    for (int k = 0; k < FL__RECORD_KINDS; k++) fl__shared.taken[k] += t->taken[k];
    fl__shared.gets += t->gets;
    pthread_mutex_unlock(&fl__lock);
    fl__self = &fl__no_thread.records;
    fl_heap_free(t);
}

/* Under fl__lock. */
void fl__record_share(int kind, void *record) {
    fl__record *r = record;
    r->next = fl__shared.records[kind];
    fl__shared.records[kind] = r;
}

/* Under fl__lock: moves records of a thread to the shared list until `keep` are left. */
void fl__records_share(fl__thread *t, int kind, int64_t keep) {
    while (t->records.list[kind].n > keep) {
        fl__record_share(kind, fl__record_get(kind, 0));
        fl__bump(&t->taken[kind], -1);
    }
}

/* Under fl__lock: adds a record to a thread's list, from the shared list or the heap. */
bool fl__record_take(fl__thread *t, int kind, size_t size) {
    fl__record *r = fl__shared.records[kind];
    if (r) fl__shared.records[kind] = r->next;
    else if (!(r = fl__heap_raw(NULL, size))) return false;
    fl__record_put(kind, r);
    fl__bump(&t->taken[kind], 1);
    return true;
}

FL_PRIVATE FL__COLD void *fl__record_refill(int kind, size_t size) {
    fl__thread *t = fl__thread_record();
    pthread_mutex_lock(&fl__lock);
    bool ok = t && fl__record_take(t, kind, size);
    while (ok && fl__shared.records[kind] && t->records.list[kind].n < FL__RECORDS_MOST / 4)
        fl__record_take(t, kind, size);
    pthread_mutex_unlock(&fl__lock);
    if (ok) return fl__record_get(kind, size);
    fl_fail("out of memory: cannot allocate a record of %zu bytes on the heap", size);
    return NULL;
}

FL_PRIVATE FL__COLD void fl__record_overflow(int kind, void *record) {
    fl__thread *t = fl__thread_record();
    pthread_mutex_lock(&fl__lock);
    if (t) {
        fl__records_share(t, kind, FL__RECORDS_MOST / 2);
        fl__record_put(kind, record);
    } else { /* no memory for the thread's own lists */
        fl__record_share(kind, record);
        fl__shared.taken[kind]--;
    }
    pthread_mutex_unlock(&fl__lock);
}

/* Under fl__lock: records in use, including buffers in thread bins. */
static int64_t fl__records_out(int kind) {
    int64_t n = fl__shared.taken[kind];
    for (const fl__thread *t = fl__shared.threads; t; t = t->next)
        n += fl__load(&t->taken[kind]) - fl__load(&t->records.list[kind].n);
    return n;
}

FL_PRIVATE int64_t fl__records_live(int kind) {
    pthread_mutex_lock(&fl__lock);
    int64_t n = fl__records_out(kind);
    pthread_mutex_unlock(&fl__lock);
    return n;
}

/* Under fl__lock: buffers in use. */
int64_t fl__live(void) {
    int64_t n = fl__records_out(FL__RECORD_BUFFER);
    for (const fl__thread *t = fl__shared.threads; t; t = t->next)
        for (int c = 0; c < FL__SMALL_CLASSES; c++) n -= fl__load(&t->bins[c].count);
    return n;
}

/* ---- exit of the process, or unloading of the shared library ---- */

/* Frees all memory, but only if it cannot be in use any more: no live buffer, no other thread, no heap
   hook. */
static void fl__free_everything(void) {
    fl__thread *t = fl__this_thread();
    pthread_mutex_lock(&fl__lock);
    bool mine = t != &fl__no_thread;
    bool alone = !fl__shared.threads || (mine && fl__shared.threads == t && !t->next);
    bool unused = fl__live() == 0;
    pthread_mutex_unlock(&fl__lock);
    if (!alone || !unused || __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE)) return;
    if (mine) fl__thread_end(t);
    fl__cache_trim(&fl__caching);
    fl_heap_free(fl__trace.events);
    fl__trace.events = NULL;
}

__attribute__((destructor)) static void fl__at_exit(void) {
    fl__thread_call_end(fl__this_thread());
#if defined(_WIN32) && defined(FL_BUILD_SHARED)
    return; /* joining threads under the loader's lock would hang */
#else
    fl__pool_end();
    fl__free_everything();
    if (fl__shared.ready) pthread_key_delete(fl__shared.key);
    fl__shared.ready = false;
#endif
}

#endif
#endif

/* MIT licence: see LICENSE. */
