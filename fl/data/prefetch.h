/* fl/data/prefetch.h - prefetching of samples by worker threads */
#ifndef FL_DATA_PREFETCH_H
#define FL_DATA_PREFETCH_H
#include "set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The same samples, prefetched by worker threads: up to `depth` samples are ready in advance. For sequential
   reading from one thread; reading any other index than the next restarts there, so that an epoch resumed at
   i does not make earlier samples. A worker's error is reported by fl_data_get of its sample, which may be
   retried. fl_data_free and fl_data_set_epoch wait for the samples in progress. */
FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_PREFETCH_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_PREFETCH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_PREFETCH_IMPL
#define FL_DATA_PREFETCH_IMPL
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Workers make samples from `next` on while they are less than depth ahead of `want`, the reader's next
   index, and store sample i in slot i % depth. A jump starts a new run: slots are emptied, and results of an
   older run are dropped. Waking a thread costs as much as a small batch: hence a reader that must wait spins
   for a while before it sleeps, and workers that are ahead sleep until half of the ready samples are
   consumed. */

typedef struct fl__data_slot {
    bool full, ok;
    fl_data_sample sample; /* owned references */
    char error[1024];
} fl__data_slot;

typedef struct fl__data_loader {
    fl_data_set *inner;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for workers, for the reader */
    int64_t want, next;        /* want -1: idle */
    uint64_t run;
    int busy, ready;           /* workers making a sample; full slots */
    int made;                  /* samples so far: atomic */
    bool stop;
    int depth, threads;
    pthread_t *thread;
    fl__data_slot slot[];
} fl__data_loader;

static void fl__data_drop_sample(fl_data_sample *s) {
    for (int k = 0; k < s->n; k++) fl_drop(s->t[k]);
    s->n = 0;
}

/* Makes sample i: keeps references to its tensors, stores its error as text. */
static void fl__data_make(fl_data_set *inner, int64_t i, fl__data_slot *s) {
    fl_scope scope = fl_scope_begin();
    s->sample.n = 0;
    s->ok = scope.depth_ > 0 && fl_data_get(inner, i, &s->sample);
    for (int k = 0; k < s->sample.n; k++) fl_keep(s->sample.t[k]);
    const char *text = fl_error();
    if (!s->ok)
        snprintf(s->error, sizeof s->error, "%.*s", (int)sizeof s->error - 1,
                 text ? text : "fl_data_prefetch: a sample failed without an error message");
    fl_error_clear();
    fl_scope_end(&scope);
}

static bool fl__data_has_work(const fl__data_loader *l) {
    return l->want >= 0 && l->next < l->inner->size && l->next < l->want + l->depth;
}

static void *fl__data_worker(void *arg) {
    fl__data_loader *l = arg;
    fl__data_slot made = {0};
    fl_quiet(+1);
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (!fl__data_has_work(l)) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        int64_t i = l->next++;
        uint64_t run = l->run;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        fl__data_make(l->inner, i, &made);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        made.full = true;
        if (run == l->run) l->slot[i % l->depth] = made, l->ready++;
        else fl__data_drop_sample(&made.sample);
        __atomic_add_fetch(&l->made, 1, __ATOMIC_RELAXED);
        if (i == l->want || !l->busy) pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Ends the run and starts another at `want` (-1: none). The lock is held. */
static void fl__data_jump(fl__data_loader *l, int64_t want) {
    for (int i = 0; i < l->depth; i++) {
        if (l->slot[i].full) fl__data_drop_sample(&l->slot[i].sample);
        l->slot[i].full = false;
    }
    l->run++;
    l->ready = 0;
    l->want = l->next = want;
    pthread_cond_broadcast(&l->work);
}

/* Spins until another sample is made, for at most some microseconds. The lock is held before and after. */
static void fl__data_spin(fl__data_loader *l) {
    const int made = __atomic_load_n(&l->made, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&l->lock);
    for (int k = 0; k < 1 << 15 && made == __atomic_load_n(&l->made, __ATOMIC_RELAXED); k++)
        if (k % 512 == 511) sched_yield(); /* lets a worker on this processor run */
    pthread_mutex_lock(&l->lock);
}

static bool fl__data_prefetch_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    fl__data_slot *slot = &l->slot[i % l->depth];
    if (l->want != i) fl__data_jump(l, i);
    else if (!slot->full) fl__data_spin(l);
    while (!slot->full) pthread_cond_wait(&l->done, &l->lock);
    bool ok = slot->ok, owned = true;
    *out = slot->sample;
    slot->full = false;
    l->ready--;
    if (ok) {
        l->want = i + 1;
        if (l->ready <= l->depth / 2) pthread_cond_signal(&l->work);
    } else {
        fl_fail("%s", slot->error);
        fl__data_jump(l, -1);
    }
    pthread_mutex_unlock(&l->lock);
    for (int k = 0; ok && k < out->n; k++) owned = fl_scope_adopt(&out->t[k]->obj) && owned;
    return ok && owned;
}

static bool fl__data_prefetch_start(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    fl__data_jump(l, -1);
    while (l->busy) pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void fl__data_prefetch_close(fl_data_set *self) {
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    fl__data_jump(l, -1);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++) pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    fl_heap_free(l->thread);
    fl_heap_free(l);
}

static fl__data_loader *fl__data_loader_new(fl_data_set *set, int threads, int depth) {
    fl__data_loader *l = fl_heap_alloc(sizeof *l + (size_t)depth * sizeof *l->slot);
    if (!l) return NULL;
    *l = (fl__data_loader){.inner = set, .want = -1, .next = -1, .depth = depth};
    l->thread = fl_heap_alloc((size_t)threads * sizeof *l->thread);
    if (!l->thread) {
        fl_heap_free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    return l;
}

static bool fl__data_prefetch_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    self->size = fl_data_size(fl_data_inner(self, 0));
    return true;
}

static int64_t fl__data_prefetch_length(fl_data_set *self, int64_t i) {
    fl_data_set *inner = fl_data_inner(self, 0);
    return inner->length ? inner->length(inner, i) : -1;
}

FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth) {
    bool ok = fl_given(set, "fl_data_prefetch", "the set");
    if (threads < 1 || threads > 1024 || depth < 1 || depth > 1 << 20)
        ok = fl_fail("fl_data_prefetch: threads must be in [1, 1024] and depth in [1, 2^20], got %d and %d",
                     threads, depth);
    fl__data_loader *l = ok ? fl__data_loader_new(set, threads, depth) : NULL;
    if (!l) {
        fl_data_free(set);
        return NULL;
    }
    fl_data_set *s = fl_data_set_new(&(fl_data_set){
        .get = fl__data_prefetch_get, .start = fl__data_prefetch_start, .arrange = fl__data_prefetch_arrange,
        .length = fl__data_prefetch_length, .close = fl__data_prefetch_close, .user = l}, &set, 1);
    if (!s) return NULL;
    while (l->threads < threads) {
        int reason = pthread_create(&l->thread[l->threads], NULL, fl__data_worker, l);
        if (reason) {
            fl_fail("fl_data_prefetch: cannot start thread %d of %d: %s", l->threads + 1, threads,
                    strerror(reason));
            fl_data_free(s);
            return NULL;
        }
        l->threads++;
    }
    return s;
}

#endif
#endif

/* MIT licence: see LICENSE. */
