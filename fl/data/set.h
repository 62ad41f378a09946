/* set.h - data sets: views, batches, transforms, and samples made ahead of time */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_SET_H
#define FL_DATA_SET_H

#ifdef __cplusplus
extern "C" {
#endif

#define FL_DATA_FIELDS 8
typedef struct fl_data_sample {
    int n;
    fl_tensor *t[FL_DATA_FIELDS]; /* owned by the scope of whoever called fl_data_get */
} fl_data_sample;

/* A data set is this table. */
typedef struct fl_data_set fl_data_set;
struct fl_data_set {
    int64_t size; /* samples */
    /* Fills *out with values of the innermost scope, or fails (fl_fail). 0 <= i < size. Called from
       several threads at once below fl_data_prefetch. */
    bool (*get)(fl_data_set *self, int64_t i, fl_data_sample *out);
    /* The epoch changes: called before the inner sets' own. NULL: no matter. */
    bool (*start)(fl_data_set *self, int64_t epoch);
    void (*close)(fl_data_set *self); /* releases user; NULL: nothing to do */
    void *user;
    /* private */
    int64_t epoch_;
    bool started_; /* by fl_data_set_epoch */
    int n_inner_;
    fl_data_set **inner_;
};
/* A set of your own: copies the table and takes ownership of n inner sets (freed after close). NULL
   on failure, or if an inner set is NULL; then everything taken has been freed. */
FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n);
/* Inner set k of a set made by fl_data_set_new. */
FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k);
/* Frees the set and all below it. NULL is fine. */
FL_API void fl_data_free(fl_data_set *set);
FL_API int64_t fl_data_size(const fl_data_set *set); /* 0 for NULL */
/* Sample i into *out, owned by the caller's innermost scope. On failure *out stays as it was. */
FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out);
/* Starts an epoch (they begin at 0) in this set and all below: another order of shuffles, other
   numbers for transforms. No fl_data_get of the set may be under way. */
FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch);
/* The next sample of an endless iteration: sample *index of epoch *epoch, which it starts. Then *index is one
   more, behind the last sample 0 of the next epoch. The two numbers are all that a checkpoint must hold,
   whatever is shuffled, transformed or made ahead. */
FL_API bool fl_data_next(fl_data_set *set, int64_t *epoch, int64_t *index, fl_data_sample *out);
/* A generator that is a function of its arguments alone. */
FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index);

/* Sample i is element i along the first dim of each of n tensors (kept, not copied; views come
   out). */
FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n);
/* Samples offset, ..., offset + length - 1. */
FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length);
/* Sample i is sample index[i], n of them, of set (index is copied). */
FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n);
/* In an order that is a function of (seed, epoch): all permutations alike. */
FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed);
/* Every ranks-th sample from `rank`; size / ranks of them, so that all ranks make the same number
   of steps. */
FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks);
/* One set after the other. */
FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n);
/* The fields of all sets side by side; they have one size. */
FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n);
/* Stacks `size` samples along a new first dim, field by field; shapes and dtypes must be the same.
   The last batch is shorter, or left out if drop_last. */
FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last);
/* Changes a sample in place: replaces tensors, adds or drops fields. rng is a function of (epoch,
   index): mix your seed into rng->key. Called from several threads below fl_data_prefetch. */
typedef bool (*fl_data_fn)(fl_data_sample *sample, fl_rng *rng, void *user);
FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user);

/* The same samples, made ahead of time by worker threads: up to `depth` of them wait. For reading
   in order, from one thread; asking for another index than the next starts anew there. A worker's
   error comes out of fl_data_get of its sample, which may be asked again. fl_data_free and
   fl_data_set_epoch wait for the samples being made. */
FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SET_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SET) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SET_IMPL
#define FL_DATA_SET_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- sets ---- */

FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n) {
    fl_data_set *s = NULL;
    bool ok = table && table->get && table->size >= 0 && n >= 0;
    if (!ok) fl_fail("fl_data_set_new: the table is NULL, has no get, or a negative size");
    for (int i = 0; ok && i < n; i++)
        ok = inner[i] || fl_fail("fl_data_set_new: inner set %d is NULL", i);
    if (ok) s = fl_heap_alloc(sizeof *s + (size_t)n * sizeof *inner);
    if (s) {
        *s = *table;
        s->epoch_ = 0;
        s->started_ = false;
        s->n_inner_ = n;
        s->inner_ = (fl_data_set **)(s + 1);
        for (int i = 0; i < n; i++) s->inner_[i] = inner[i];
        return s;
    }
    fl_data_set mine = table ? *table : (fl_data_set){0};
    if (mine.close) mine.close(&mine);
    for (int i = 0; i < n; i++) fl_data_free(inner[i]);
    return NULL;
}

FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k) {
    return set && k >= 0 && k < set->n_inner_ ? set->inner_[k] : NULL;
}

FL_API void fl_data_free(fl_data_set *set) {
    if (!set) return;
    if (set->close) set->close(set);
    for (int i = 0; i < set->n_inner_; i++) fl_data_free(set->inner_[i]);
    fl_heap_free(set);
}

FL_API int64_t fl_data_size(const fl_data_set *set) {
    return set ? set->size : 0;
}

/* Gives one reference of each tensor to the innermost scope. */
static bool fl__data_own_sample(const fl_data_sample *s) {
    bool ok = true;
    for (int k = 0; k < s->n; k++) ok = fl_obj_own(&s->t[k]->obj) && ok;
    return ok;
}

/* Runs set->get inside a scope and hands its results out. */
static bool fl__data_get_in_scope(fl_data_set *set, int64_t i, fl_data_sample *out) {
    fl_data_sample r = {0};
    fl_scope scope = fl_scope_begin();
    bool ok = scope.depth_ > 0 && set->get(set, i, &r);
    if (ok && (r.n < 0 || r.n > FL_DATA_FIELDS))
        ok = fl_fail("fl_data_get: sample %lld has %d fields", (long long)i, r.n);
    for (int k = 0; ok && k < r.n; k++)
        ok = r.t[k] || fl_fail("fl_data_get: field %d of sample %lld is NULL", k, (long long)i);
    for (int k = 0; ok && k < r.n; k++) fl_keep(r.t[k]);
    fl_scope_end(&scope);
    ok = ok && fl__data_own_sample(&r);
    if (ok) *out = r;
    return ok;
}

FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out) {
    if (!set || !out) return fl_fail("fl_data_get: the set, or out, is NULL");
    if (i < 0 || i >= set->size)
        return fl_fail("fl_data_get: sample %lld of %lld", (long long)i, (long long)set->size);
    fl_quiet(+1);
    bool ok = fl__data_get_in_scope(set, i, out);
    fl_quiet(-1);
    return ok || fl_fail("fl_data_get: sample %lld: the set gave no reason", (long long)i);
}

FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch) {
    if (!set) return fl_fail("fl_data_set_epoch: the set is NULL");
    if (set->start && !set->start(set, epoch))
        return fl_fail("fl_data_set_epoch: a set does not start epoch %lld", (long long)epoch);
    set->started_ = false; /* until all below are */
    set->epoch_ = epoch;
    for (int i = 0; i < set->n_inner_; i++)
        if (!fl_data_set_epoch(set->inner_[i], epoch)) return false;
    return set->started_ = true;
}

FL_API bool fl_data_next(fl_data_set *set, int64_t *epoch, int64_t *index, fl_data_sample *out) {
    if (!set || !epoch || !index) return fl_fail("fl_data_next: the set, epoch or index is NULL");
    if ((!set->started_ || set->epoch_ != *epoch) && !fl_data_set_epoch(set, *epoch)) return false;
    if (!fl_data_get(set, *index, out)) return false;
    if (++*index == set->size) *index = 0, ++*epoch;
    return true;
}

/* splitmix64: a counter and a bijection that mixes it. */
static uint64_t fl__data_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index) {
    uint64_t key =
        fl__data_mix(fl__data_mix(fl__data_mix(seed) + (uint64_t)epoch) + (uint64_t)index);
    return (fl_rng){key, 0};
}

static void fl__data_free_user(fl_data_set *self) {
    fl_heap_free(self->user);
}

/* A set over one other; a table without user is one whose allocation failed. */
static fl_data_set *fl__data_over(fl_data_set *set, const fl_data_set *table) {
    if (table->user) return fl_data_set_new(table, &set, 1);
    fl_data_free(set);
    return NULL;
}

/* Frees what a constructor took, after a failure. */
static fl_data_set *fl__data_refuse(fl_data_set *const *sets, int n) {
    for (int i = 0; sets && i < n; i++) fl_data_free(sets[i]);
    return NULL;
}

typedef struct fl__data_fields {
    int n;
    fl_tensor *t[FL_DATA_FIELDS];
} fl__data_fields;

static bool fl__data_tensors_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_fields *f = self->user;
    out->n = f->n;
    for (int k = 0; k < f->n; k++)
        if (!(out->t[k] = fl_select(f->t[k], 0, i))) return false;
    return true;
}

static void fl__data_tensors_close(fl_data_set *self) {
    fl__data_fields *f = self->user;
    for (int k = 0; k < f->n; k++) fl_drop(f->t[k]);
    fl_heap_free(f);
}

FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n) {
    bool ok = tensors && n >= 1 && n <= FL_DATA_FIELDS;
    if (!ok) fl_fail("fl_data_tensors: %d tensors, 1 to %d are possible", n, FL_DATA_FIELDS);
    for (int k = 0; ok && k < n; k++) {
        ok = tensors[k] && tensors[k]->ndim > 0 && tensors[k]->shape[0] == tensors[0]->shape[0];
        if (!ok) fl_fail("fl_data_tensors: tensor %d is NULL, or not as long as tensor 0", k);
    }
    fl__data_fields *f = ok ? fl_heap_alloc(sizeof *f) : NULL;
    if (!f) return NULL;
    for (; f->n < n; f->n++) f->t[f->n] = fl_keep(tensors[f->n]);
    return fl_data_set_new(&(fl_data_set){.size = tensors[0]->shape[0], .get = fl__data_tensors_get,
                                          .close = fl__data_tensors_close, .user = f}, NULL, 0);
}

/* Sets that give the inner samples in another order: sample i is index[i] of the inner set, or
   offset + i * step. */
typedef struct fl__data_order {
    int64_t offset, step, n;
    uint64_t seed;
    int64_t index[];
} fl__data_order;

static bool fl__data_order_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_order *o = self->user;
    return fl_data_get(self->inner_[0], o->n ? o->index[i] : o->offset + i * o->step, out);
}

/* For n indices. */
static fl__data_order *fl__data_order_new(int64_t offset, int64_t step, int64_t n) {
    size_t bytes;
    fl__data_order *o = NULL;
    if (!fl__mul_size((size_t)n, sizeof *o->index, &bytes) || bytes > SIZE_MAX - sizeof *o)
        fl_fail("out of memory: %lld indices", (long long)n);
    else o = fl_heap_alloc(sizeof *o + bytes);
    if (o) o->offset = offset, o->step = step, o->n = n;
    return o;
}

static fl_data_set *fl__data_in_order(fl_data_set *set, int64_t size, fl__data_order *o) {
    return fl__data_over(set, &(fl_data_set){.size = size, .get = fl__data_order_get,
                                             .close = fl__data_free_user, .user = o});
}

static fl_data_set *fl__data_no_set(const char *who) {
    fl_fail("%s: the set is NULL", who);
    return NULL;
}

FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length) {
    if (!set) return fl__data_no_set("fl_data_span");
    if (offset < 0 || length < 0 || length > set->size || offset > set->size - length) {
        fl_fail("fl_data_span: %lld samples from %lld of %lld", (long long)length, (long long)offset,
                (long long)set->size);
        return fl__data_refuse(&set, 1);
    }
    return fl__data_in_order(set, length, fl__data_order_new(offset, 1, 0));
}

FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks) {
    if (!set) return fl__data_no_set("fl_data_shard");
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        fl_fail("fl_data_shard: rank %d of %d", rank, ranks);
        return fl__data_refuse(&set, 1);
    }
    return fl__data_in_order(set, set->size / ranks, fl__data_order_new(rank, ranks, 0));
}

FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n) {
    if (!set) return fl__data_no_set("fl_data_resample");
    bool ok = n >= 0 && (index || !n);
    if (!ok) fl_fail("fl_data_resample: %lld indices, or index is NULL", (long long)n);
    for (int64_t i = 0; ok && i < n; i++)
        if (index[i] < 0 || index[i] >= set->size)
            ok = fl_fail("fl_data_resample: index %lld is %lld, the set has %lld samples",
                         (long long)i, (long long)index[i], (long long)set->size);
    if (!ok) return fl__data_refuse(&set, 1);
    fl__data_order *o = fl__data_order_new(0, 1, n);
    if (o && n) memcpy(o->index, index, (size_t)n * sizeof *index);
    return fl__data_in_order(set, n, o);
}

/* Fisher-Yates; the remainder's bias is n / 2^64. */
static bool fl__data_shuffle_start(fl_data_set *self, int64_t epoch) {
    fl__data_order *o = self->user;
    uint64_t state = fl_data_rng(o->seed, epoch, 0).key;
    for (int64_t i = 0; i < o->n; i++) o->index[i] = i;
    for (int64_t i = o->n - 1; i > 0; i--) {
        int64_t k = (int64_t)(fl__data_mix(state + (uint64_t)i) % ((uint64_t)i + 1)),
                t = o->index[i];
        o->index[i] = o->index[k];
        o->index[k] = t;
    }
    return true;
}

FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed) {
    if (!set) return fl__data_no_set("fl_data_shuffle");
    fl__data_order *o = fl__data_order_new(0, 1, set->size);
    if (o) o->seed = seed;
    set = fl__data_in_order(set, set->size, o);
    if (set) {
        set->start = fl__data_shuffle_start;
        fl__data_shuffle_start(set, 0);
    }
    return set;
}

static bool fl__data_concat_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    int k = 0;
    while (i >= self->inner_[k]->size) i -= self->inner_[k++]->size;
    return fl_data_get(self->inner_[k], i, out);
}

FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n) {
    int64_t size = 0;
    bool ok = (sets && n > 0) || fl_fail("fl_data_concat: no sets");
    for (int i = 0; ok && i < n; i++)
        if (!sets[i] || __builtin_add_overflow(size, sets[i]->size, &size))
            ok = fl_fail("fl_data_concat: set %d is NULL, or too large", i);
    if (!ok) return fl__data_refuse(sets, n);
    return fl_data_set_new(&(fl_data_set){.size = size, .get = fl__data_concat_get}, sets, n);
}

static bool fl__data_zip_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    for (int k = 0; k < self->n_inner_; k++) {
        fl_data_sample part;
        if (!fl_data_get(self->inner_[k], i, &part)) return false;
        if (out->n + part.n > FL_DATA_FIELDS)
            return fl_fail("fl_data_zip: more than %d fields", FL_DATA_FIELDS);
        for (int f = 0; f < part.n; f++) out->t[out->n++] = part.t[f];
    }
    return true;
}

FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n) {
    bool ok = (sets && n > 0) || fl_fail("fl_data_zip: no sets");
    for (int i = 0; ok && i < n; i++)
        if (!sets[i] || sets[i]->size != sets[0]->size)
            ok = fl_fail("fl_data_zip: set %d is NULL, or not of the size of set 0", i);
    if (!ok) return fl__data_refuse(sets, n);
    return fl_data_set_new(&(fl_data_set){.size = sets[0]->size, .get = fl__data_zip_get}, sets, n);
}

/* ---- batches ---- */

static bool fl__data_same_kind(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

/* Sample i may follow the batch's first one. */
static bool fl__data_check_like(const fl_data_sample *s, const fl_data_sample *first, int64_t i) {
    char a[96], b[96];
    if (s->n != first->n)
        return fl_fail("fl_data_batch: sample %lld has %d fields, the batch's first %d",
                       (long long)i, s->n, first->n);
    for (int k = 0; k < s->n; k++) {
        const fl_tensor *t = s->t[k], *like = first->t[k];
        if (!fl__data_same_kind(t, like))
            return fl_fail(
                "fl_data_batch: field %d of sample %lld is %s %s, of the batch's first %s %s", k,
                (long long)i, fl_dtype_name(t->dtype), fl_shape_text(fl_shape_of(t), a, sizeof a),
                fl_dtype_name(like->dtype), fl_shape_text(fl_shape_of(like), b, sizeof b));
    }
    return true;
}

/* Sample `at` of count, n fields each: column k of ts takes field k. */
static bool fl__data_batch_fill(fl_data_set *inner, int64_t first, int64_t count, fl_tensor **ts,
                                fl_data_sample *like) {
    for (int64_t i = 0; i < count; i++) {
        fl_data_sample s;
        if (!fl_data_get(inner, first + i, &s)) return false;
        if (i == 0) *like = s;
        if (!fl__data_check_like(&s, like, first + i)) return false;
        for (int k = 0; k < s.n; k++) ts[k * count + i] = s.t[k];
    }
    return true;
}

static bool fl__data_batch_get(fl_data_set *self, int64_t b, fl_data_sample *out) {
    fl_data_set *inner = self->inner_[0];
    int64_t size = *(int64_t *)self->user, first = b * size;
    int64_t count = size < inner->size - first ? size : inner->size - first;
    fl_data_sample like = {0};
    fl_tensor **ts = fl_heap_alloc((size_t)count * FL_DATA_FIELDS * sizeof *ts);
    bool ok = ts && fl__data_batch_fill(inner, first, count, ts, &like);
    for (int k = 0; ok && k < like.n; k++)
        ok = (out->t[k] = fl_stack(ts + k * count, (int)count, 0)) != NULL;
    out->n = like.n;
    fl_heap_free(ts);
    return ok;
}

FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last) {
    if (!set) return fl__data_no_set("fl_data_batch");
    if (size < 1 || size > INT32_MAX) {
        fl_fail("fl_data_batch: batches of %lld", (long long)size);
        return fl__data_refuse(&set, 1);
    }
    int64_t *user = fl_heap_alloc(sizeof *user);
    if (user) *user = size;
    int64_t n = set->size / size + (!drop_last && set->size % size != 0);
    return fl__data_over(set, &(fl_data_set){.size = n, .get = fl__data_batch_get,
                                             .close = fl__data_free_user, .user = user});
}

/* ---- transforms ---- */

typedef struct fl__data_change {
    fl_data_fn fn;
    void *user;
} fl__data_change;

static bool fl__data_transform_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_change *c = self->user;
    fl_rng rng = fl_data_rng(0, self->epoch_, i);
    if (!fl_data_get(self->inner_[0], i, out)) return false;
    return c->fn(out, &rng, c->user) ||
           fl_fail("fl_data_transform: sample %lld was refused", (long long)i);
}

FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user) {
    if (!set) return fl__data_no_set("fl_data_transform");
    if (!fn) {
        fl_fail("fl_data_transform: fn is NULL");
        return fl__data_refuse(&set, 1);
    }
    fl__data_change *c = fl_heap_alloc(sizeof *c);
    if (c) *c = (fl__data_change){fn, user};
    return fl__data_over(set, &(fl_data_set){.size = set->size, .get = fl__data_transform_get,
                                             .close = fl__data_free_user, .user = c});
}

/* ---- prefetch ----

   Workers take the numbers from `next` on while they are less than depth ahead of `want`, which the
   reader asks for next, and leave sample i in slot i % depth. A jump starts a new run: slots are
   emptied, and a worker that comes back from an older run drops what it made. */

typedef struct fl__data_slot {
    bool full, ok;
    fl_data_sample sample; /* kept */
    char error[1024];
} fl__data_slot;

typedef struct fl__data_loader {
    fl_data_set *inner;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for workers, for the reader */
    int64_t want, next;        /* want -1: no run */
    uint64_t run;
    int busy;                  /* workers making a sample */
    bool stop;
    int depth, threads;
    pthread_t *thread;
    fl__data_slot slot[];
} fl__data_loader;

static void fl__data_drop_sample(fl_data_sample *s) {
    for (int k = 0; k < s->n; k++) fl_drop(s->t[k]);
    s->n = 0;
}

/* Makes sample i; its tensors are kept, its error is text. */
static void fl__data_make(fl_data_set *inner, int64_t i, fl__data_slot *s) {
    fl_scope scope = fl_scope_begin();
    s->sample.n = 0;
    s->ok = scope.depth_ > 0 && fl_data_get(inner, i, &s->sample);
    for (int k = 0; k < s->sample.n; k++) fl_keep(s->sample.t[k]);
    const char *text = fl_error();
    snprintf(s->error, sizeof s->error, "%.*s", (int)sizeof s->error - 1,
             text ? text : "fl_data_prefetch: a sample failed");
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
        if (run == l->run) l->slot[i % l->depth] = made;
        else fl__data_drop_sample(&made.sample);
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Ends the run; `want` starts another (-1: none). The lock is held. */
static void fl__data_jump(fl__data_loader *l, int64_t want) {
    for (int i = 0; i < l->depth; i++) {
        if (l->slot[i].full) fl__data_drop_sample(&l->slot[i].sample);
        l->slot[i].full = false;
    }
    l->run++;
    l->want = l->next = want;
    pthread_cond_broadcast(&l->work);
}

static bool fl__data_prefetch_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    fl__data_slot *slot = &l->slot[i % l->depth];
    while (l->want != i || !slot->full) {
        if (l->want != i) fl__data_jump(l, i);
        else pthread_cond_wait(&l->done, &l->lock);
    }
    bool ok = slot->ok;
    *out = slot->sample;
    slot->full = false;
    if (ok) {
        l->want = i + 1;
        pthread_cond_signal(&l->work);
    } else {
        fl_fail("%s", slot->error);
        fl__data_jump(l, -1);
    }
    pthread_mutex_unlock(&l->lock);
    return ok && fl__data_own_sample(out);
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

FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth) {
    if (!set) return fl__data_no_set("fl_data_prefetch");
    if (threads < 1 || threads > 1024 || depth < 1 || depth > 1 << 20) {
        fl_fail("fl_data_prefetch: %d threads (1 to 1024), depth %d (1 to 2^20)", threads, depth);
        return fl__data_refuse(&set, 1);
    }
    fl__data_loader *l = fl__data_loader_new(set, threads, depth);
    fl_data_set *s = fl__data_over(set, &(fl_data_set){
        .size = set->size, .get = fl__data_prefetch_get, .start = fl__data_prefetch_start,
        .close = fl__data_prefetch_close, .user = l});
    if (!s) return NULL;
    while (l->threads < threads) {
        int reason = pthread_create(&l->thread[l->threads], NULL, fl__data_worker, l);
        if (reason) {
            fl_fail("fl_data_prefetch: thread %d of %d: %s", l->threads + 1, threads,
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
