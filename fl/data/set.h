/* set.h - data sets: views, orders, transforms */
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

/* A data set is this table. All but size and get may be left out. */
typedef struct fl_data_set fl_data_set;
struct fl_data_set {
    int64_t size; /* samples */
    /* Fills *out with values of the innermost scope, or fails (fl_fail). 0 <= i < size. Called from
       several threads at once below fl_data_prefetch. */
    bool (*get)(fl_data_set *self, int64_t i, fl_data_sample *out);
    /* The epoch changes: called before the inner sets' own. */
    bool (*start)(fl_data_set *self, int64_t epoch);
    void (*close)(fl_data_set *self); /* releases user */
    void *user;
    /* Takes size and order from the inner sets: called when the set is made, and after they have
       started an epoch. */
    bool (*arrange)(fl_data_set *self, int64_t epoch);
    /* Who sample i is, for random numbers (fl_data_id). Without it: the id in the inner set, where
       there is one, of the same size; else i. */
    int64_t (*id)(fl_data_set *self, int64_t i);
    /* fl_data_length without reading: -1: cannot say, less: failed (fl_fail). */
    int64_t (*length)(fl_data_set *self, int64_t i);
    /* fl_data_get_many by a shorter way than one sample at a time; may change index. */
    bool (*many)(fl_data_set *self, int64_t *index, int64_t n, fl_data_sample *out);
    /* private */
    int64_t epoch_;
    bool started_; /* by fl_data_set_epoch */
    bool inside_;  /* another set, which frees it */
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
FL_API int64_t fl_data_size(const fl_data_set *set); /* 0 for NULL; of this epoch */
/* Sample i into *out, owned by the caller's innermost scope. On failure *out stays as it was. */
FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out);
/* Samples index[0], ..., index[n - 1] stacked along a new first dim, field by field, likewise; their
   shapes and dtypes must be the same. index may be overwritten. */
FL_API bool fl_data_get_many(fl_data_set *set, int64_t *index, int64_t n, fl_data_sample *out);
/* Starts an epoch (they begin at 0) in this set and all below: another order of shuffles, other
   numbers for transforms. No fl_data_get of the set may be under way. */
FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch);
/* The next sample of an endless iteration: sample *index of epoch *epoch, which it starts. Then *index is one
   more, behind the last sample 0 of the next epoch. The two numbers are all that a checkpoint must hold,
   whatever is shuffled, transformed or made ahead. */
FL_API bool fl_data_next(fl_data_set *set, int64_t *epoch, int64_t *index, fl_data_sample *out);
/* Who sample i is: its index in the set that reads it, whatever shuffles, shards, spans or batches
   (their first sample's) stand between; another number in each repetition and part of a concat. */
FL_API int64_t fl_data_id(fl_data_set *set, int64_t i);
/* Size of sample i, in what the set below counts (tokens, frames): as fl_data_lengths says, without
   reading; where nobody says, the first dim of field 0 of the sample, which is read. -1 on failure. */
FL_API int64_t fl_data_length(fl_data_set *set, int64_t i);
/* A generator that is a function of its arguments alone. For augmentation: of a seed, the epoch and
   fl_data_id, so that a sample gets the same numbers on one rank and on many. */
FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index);

/* Sample i is element i along the first dim of each of n tensors (kept, not copied; views come
   out). */
FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n);
/* Sample i is what fn makes: tensors of the innermost scope, or false after fl_fail. */
typedef bool (*fl_data_get_fn)(int64_t i, fl_data_sample *out, void *user);
FL_API fl_data_set *fl_data_callback(int64_t size, fl_data_get_fn fn, void *user);
/* Samples offset, ..., offset + length - 1. */
FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length);
/* Sample i is sample index[i], n of them, of set (index is copied). */
FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n);
/* The samples for which keep is true; it sees each once, in the epoch of the moment, and may fail
   (fl_fail). */
typedef bool (*fl_data_keep_fn)(const fl_data_sample *sample, void *user);
FL_API fl_data_set *fl_data_filter(fl_data_set *set, fl_data_keep_fn keep, void *user);
/* In an order that is a function of (seed, epoch): all permutations alike. */
FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed);
/* Within each `window` samples (0: in all) by length, the shorter first, equal ones as they were. Over
   a shuffle and below batches: buckets of like length, others in each epoch. */
FL_API fl_data_set *fl_data_sort_by_length(fl_data_set *set, int64_t window);
/* Every ranks-th sample from `rank`; size / ranks of them, so that all ranks make the same number
   of steps. */
FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks);
/* All samples `times` times, one pass after the other. */
FL_API fl_data_set *fl_data_repeat(fl_data_set *set, int64_t times);
/* One set after the other. */
FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n);
/* The fields of all sets side by side; they have one size. */
FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n);
/* Says how long the samples are: length[i], n = size of them (copied). */
FL_API fl_data_set *fl_data_lengths(fl_data_set *set, const int64_t *length, int64_t n);
/* Changes a sample in place: replaces tensors, adds or drops fields. rng is a function of (epoch,
   fl_data_id): mix your seed into rng->key. Called from several threads below fl_data_prefetch. */
typedef bool (*fl_data_fn)(fl_data_sample *sample, fl_rng *rng, void *user);
FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user);
/* The same values on another backend (fl_to), where they are moved on stream 255 (fl_stream): beside
   what is computed on others, which wait for them when they use them. Above batches whole batches move; below
   fl_data_prefetch in its threads, while others are worked on. */
FL_API fl_data_set *fl_data_to(fl_data_set *set, const char *backend);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SET_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SET) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SET_IMPL
#define FL_DATA_SET_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include "file.h"
#include <stdlib.h>
#include <string.h>

/* ---- sets ---- */

/* Can inner set i go into a new set? */
static bool fl__data_may_take(const fl_data_set *set, int i) {
    if (!set) return fl_fail("fl_data_set_new: inner set %d is NULL", i);
    if (fl_is_freed(set, "fl_data_set_new", "an inner set")) return false;
    return !set->inside_ || fl_err_false("fl_data_set_new: inner set %d is inside another one", i);
}

FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n) {
    fl_data_set *s = NULL;
    int taken = 0;
    bool ok = table && table->get && table->size >= 0 && n >= 0;
    if (!ok) fl_fail("fl_data_set_new: the table is NULL, has no get, or a negative size");
    for (; ok && taken < n && (ok = fl__data_may_take(inner[taken], taken)); taken++)
        inner[taken]->inside_ = true;
    if (ok) s = fl_heap_alloc(sizeof *s + (size_t)n * sizeof *inner);
    if (s) {
        *s = *table;
        s->started_ = s->inside_ = false;
        s->n_inner_ = n;
        s->inner_ = (fl_data_set **)(s + 1);
        for (int i = 0; i < n; i++) s->inner_[i] = inner[i];
        s->epoch_ = n ? inner[0]->epoch_ : 0;
        if (!s->arrange || s->arrange(s, s->epoch_)) return s;
        fl_data_free(s);
        return NULL;
    }
    fl_data_set mine = table ? *table : (fl_data_set){0};
    if (mine.close) mine.close(&mine);
    for (int i = n; i-- > 0;) { /* those of other sets, and one that is there twice, are not freed */
        if (i < taken) inner[i]->inside_ = false;
        fl_data_free(inner[i]);
    }
    return NULL;
}

FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k) {
    return set && k >= 0 && k < set->n_inner_ ? set->inner_[k] : NULL;
}

FL_API void fl_data_free(fl_data_set *set) {
    if (!set || fl_is_freed(set, "fl_data_free", "the set")) return;
    if (set->inside_) {
        fl_err_false("fl_data_free: the set is inside another one, which frees it");
        return;
    }
    if (set->close) set->close(set);
    for (int i = 0; i < set->n_inner_; i++) {
        set->inner_[i]->inside_ = false;
        fl_data_free(set->inner_[i]);
    }
    fl_object_free(set, "data set", "");
}

FL_API int64_t fl_data_size(const fl_data_set *set) {
    return set && !fl_is_freed(set, "fl_data_size", "the set") ? set->size : 0;
}

/* Gives one reference of each tensor to the innermost scope. */
static bool fl__data_own_sample(const fl_data_sample *s) {
    bool ok = true;
    for (int k = 0; k < s->n; k++) ok = fl_scope_adopt(&s->t[k]->obj) && ok;
    return ok;
}

static bool fl__data_same_kind(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && fl_same_shape(a, b);
}

/* Sample i may follow the batch's first one. */
static bool fl__data_check_like(const fl_data_sample *s, const fl_data_sample *first, int64_t i) {
    if (s->n != first->n)
        return fl_fail("fl_data_batch: sample %lld has %d fields, the batch's first %d",
                       (long long)i, s->n, first->n);
    for (int k = 0; k < s->n; k++)
        if (!fl__data_same_kind(s->t[k], first->t[k]))
            return fl_fail(
                "fl_data_batch: field %d of sample %lld is %s %s, of the batch's first %s %s", k,
                (long long)i, fl_dtype_name(s->t[k]->dtype), FL_SHAPE_TEXT(s->t[k]),
                fl_dtype_name(first->t[k]->dtype), FL_SHAPE_TEXT(first->t[k]));
    return true;
}

/* Samples one at a time: column k of ts takes field k. */
static bool fl__data_columns(fl_data_set *set, const int64_t *index, int64_t n, fl_tensor **ts,
                             fl_data_sample *like) {
    for (int64_t i = 0; i < n; i++) {
        fl_data_sample s;
        if (!fl_data_get(set, index[i], &s)) return false;
        if (i == 0) *like = s;
        if (!fl__data_check_like(&s, like, index[i])) return false;
        for (int k = 0; k < s.n; k++) ts[k * n + i] = s.t[k];
    }
    return true;
}

static bool fl__data_stack(fl_data_set *set, const int64_t *index, int64_t n, fl_data_sample *out) {
    fl_data_sample like = {0};
    fl_tensor **ts = fl_heap_alloc((size_t)n * FL_DATA_FIELDS * sizeof *ts);
    bool ok = ts && fl__data_columns(set, index, n, ts, &like);
    for (int k = 0; ok && k < like.n; k++)
        ok = (out->t[k] = fl_stack(ts + k * n, (int)n, 0)) != NULL;
    out->n = like.n;
    fl_heap_free(ts);
    return ok;
}

/* Runs get (n 0), or many, inside a scope and hands the results out. */
static bool fl__data_get_in_scope(fl_data_set *set, int64_t *index, int64_t n, fl_data_sample *out) {
    fl_data_sample r = {0};
    fl_scope scope = fl_scope_begin();
    const long long i = *index;
    bool ok = scope.depth_ > 0;
    if (ok && n) ok = set->many ? set->many(set, index, n, &r) : fl__data_stack(set, index, n, &r);
    else if (ok) ok = set->get(set, i, &r);
    if (ok && (r.n < 0 || r.n > FL_DATA_FIELDS))
        ok = fl_fail("fl_data_get: sample %lld has %d fields", i, r.n);
    for (int k = 0; ok && k < r.n; k++)
        ok = r.t[k] || fl_fail("fl_data_get: field %d of sample %lld is NULL", k, i);
    for (int k = 0; ok && k < r.n; k++) fl_keep(r.t[k]);
    fl_scope_end(&scope);
    ok = ok && fl__data_own_sample(&r);
    if (ok) *out = r;
    return ok || fl_fail("fl_data_get: sample %lld: the set gave no reason", i);
}

static bool fl__data_has(const fl_data_set *set, int64_t i, const char *who) {
    if (!fl_given(set, who, "the set, or out,")) return false;
    return (i >= 0 && i < set->size) ||
           fl_fail("%s: sample %lld of %lld", who, (long long)i, (long long)set->size);
}

FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out) {
    if (!fl__data_has(out ? set : NULL, i, "fl_data_get")) return false;
    fl_quiet(+1);
    bool ok = fl__data_get_in_scope(set, &i, 0, out);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_data_get_many(fl_data_set *set, int64_t *index, int64_t n, fl_data_sample *out) {
    if (n < 1 || n > INT32_MAX || !index)
        return fl_fail("fl_data_get_many: %lld samples, or index is NULL", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (!fl__data_has(out ? set : NULL, index[i], "fl_data_get_many")) return false;
    fl_quiet(+1);
    bool ok = fl__data_get_in_scope(set, index, n, out);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch) {
    if (!fl_given(set, "fl_data_set_epoch", "the set")) return false;
    if (set->start && !set->start(set, epoch))
        return fl_fail("fl_data_set_epoch: a set does not start epoch %lld", (long long)epoch);
    set->started_ = false; /* until all below are */
    set->epoch_ = epoch;
    for (int i = 0; i < set->n_inner_; i++)
        if (!fl_data_set_epoch(set->inner_[i], epoch)) return false;
    if (set->arrange && !set->arrange(set, epoch))
        return fl_fail("fl_data_set_epoch: a set cannot be arranged for epoch %lld", (long long)epoch);
    return set->started_ = true;
}

FL_API bool fl_data_next(fl_data_set *set, int64_t *epoch, int64_t *index, fl_data_sample *out) {
    if (!fl_given(set, "fl_data_next", "the set") || !fl_given(epoch, "fl_data_next", "epoch") ||
        !fl_given(index, "fl_data_next", "index")) return false;
    if ((!set->started_ || set->epoch_ != *epoch) && !fl_data_set_epoch(set, *epoch)) return false;
    if (!fl_data_get(set, *index, out)) return false;
    if (++*index == set->size) *index = 0, ++*epoch;
    return true;
}

FL_API int64_t fl_data_id(fl_data_set *set, int64_t i) {
    if (!set || fl_is_freed(set, "fl_data_id", "the set") || i < 0 || i >= set->size) return i;
    if (set->id) return set->id(set, i);
    return set->n_inner_ == 1 && set->inner_[0]->size == set->size ? fl_data_id(set->inner_[0], i) : i;
}

/* What a set, or those below it, says of a length without reading. */
static int64_t fl__data_said(fl_data_set *set, int64_t i) {
    return set->length ? set->length(set, i) : -1;
}

static int64_t fl__data_inner_length(fl_data_set *self, int64_t i) {
    return fl__data_said(self->inner_[0], i);
}

FL_API int64_t fl_data_length(fl_data_set *set, int64_t i) {
    if (!fl__data_has(set, i, "fl_data_length")) return -1;
    int64_t n = fl__data_said(set, i);
    if (n < -1) fl_fail("fl_data_length: sample %lld: the set gave no reason", (long long)i);
    if (n != -1) return n < 0 ? -1 : n;
    fl_scope scope = fl_scope_begin();
    fl_data_sample s;
    if (fl_data_get(set, i, &s)) n = s.n && s.t[0]->ndim ? s.t[0]->shape[0] : 1;
    fl_scope_end(&scope);
    return n;
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

/* A set that a constructor took is freed unless its arguments are right, `ok`; false then. */
static bool fl__data_take(fl_data_set *set, const char *who, bool ok) {
    const bool given = fl_given(set, who, "the set");
    if (!ok) fl_data_free(set);
    return given && ok;
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

/* Rows of a contiguous tensor on the host, copied into one of their own. */
static fl_tensor *fl__data_rows(fl_tensor *t, const int64_t *index, int64_t n) {
    fl_shape shape = fl_shape_of(t);
    shape.dim[0] = n;
    fl_tensor *y = fl_data_host_tensor(shape, t->dtype);
    if (!y) return NULL;
    const size_t row = (size_t)(fl_numel(y) / n) * fl_dtype_size(t->dtype);
    char *from = row ? fl_map(t, FL_READ) : NULL, *to = from ? fl_map(y, FL_WRITE) : NULL;
    for (int64_t i = 0, run = 1; to && i < n; i += run, run = 1) {
        while (i + run < n && index[i + run] == index[i] + run) run++;
        memcpy(to + (size_t)i * row, from + (size_t)index[i] * row, (size_t)run * row);
    }
    if (to) fl_unmap(y, FL_WRITE);
    if (from) fl_unmap(t, FL_READ);
    return to || !row ? y : NULL;
}

/* One gather for a batch; views and a stack for what lies otherwise, or elsewhere. */
static bool fl__data_tensors_many(fl_data_set *self, int64_t *index, int64_t n, fl_data_sample *out) {
    const fl__data_fields *f = self->user;
    for (int k = 0; k < f->n; k++)
        if (strcmp(fl_backend_name(f->t[k]), "cpu") != 0 || !fl_is_contiguous(f->t[k]))
            return fl__data_stack(self, index, n, out);
    out->n = f->n;
    for (int k = 0; k < f->n; k++)
        if (!(out->t[k] = fl__data_rows(f->t[k], index, n))) return false;
    return true;
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
    return fl_data_set_new(&(fl_data_set){
        .size = tensors[0]->shape[0], .get = fl__data_tensors_get, .many = fl__data_tensors_many,
        .close = fl__data_tensors_close, .user = f}, NULL, 0);
}

/* A function of the user's. */
typedef struct fl__data_call {
    fl_data_get_fn get;
    fl_data_fn change;
    void *user;
} fl__data_call;

static fl__data_call *fl__data_call_new(fl__data_call c) {
    fl__data_call *call = fl_heap_alloc(sizeof *call);
    if (call) *call = c;
    return call;
}

static bool fl__data_callback_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_call *c = self->user;
    return c->get(i, out, c->user) ||
           fl_fail("fl_data_callback: sample %lld was refused", (long long)i);
}

FL_API fl_data_set *fl_data_callback(int64_t size, fl_data_get_fn fn, void *user) {
    if (size < 0 || !fn) {
        fl_fail("fl_data_callback: %lld samples, or fn is NULL", (long long)size);
        return NULL;
    }
    fl__data_call *c = fl__data_call_new((fl__data_call){.get = fn, .user = user});
    return c ? fl_data_set_new(&(fl_data_set){.size = size, .get = fl__data_callback_get,
                                              .close = fl__data_free_user, .user = c}, NULL, 0) : NULL;
}

/* Sets that give the inner samples in another order: sample i is index[i] of the inner set, or
   offset + i * step, counted round. */
typedef struct fl__data_order {
    int64_t offset, step;
    int64_t n;   /* samples, where that is fixed; else -1: inner size * times / step */
    int64_t times, window;
    uint64_t seed;
    int64_t *index, cap;
} fl__data_order;

static int64_t fl__data_order_at(const fl_data_set *self, int64_t i) {
    const fl__data_order *o = self->user;
    const int64_t inner = self->inner_[0]->size;
    return o->index ? o->index[i] : inner ? (o->offset + i * o->step) % inner : 0;
}

static bool fl__data_order_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    return fl_data_get(self->inner_[0], fl__data_order_at(self, i), out);
}

static bool fl__data_order_many(fl_data_set *self, int64_t *index, int64_t n, fl_data_sample *out) {
    for (int64_t i = 0; i < n; i++) index[i] = fl__data_order_at(self, index[i]);
    return fl_data_get_many(self->inner_[0], index, n, out);
}

static int64_t fl__data_order_length(fl_data_set *self, int64_t i) {
    return fl__data_said(self->inner_[0], fl__data_order_at(self, i));
}

/* Another id for repetition, or part, k of what has that id; the first keeps it. */
static int64_t fl__data_other_id(int64_t id, int64_t k) {
    return k ? (int64_t)fl__data_mix((uint64_t)id + fl__data_mix((uint64_t)k)) : id;
}

static int64_t fl__data_order_id(fl_data_set *self, int64_t i) {
    const fl__data_order *o = self->user;
    int64_t id = fl_data_id(self->inner_[0], fl__data_order_at(self, i));
    const int64_t inner = self->inner_[0]->size;
    return fl__data_other_id(id, o->times > 1 && inner ? i / inner : 0);
}

static void fl__data_order_close(fl_data_set *self) {
    fl__data_order *o = self->user;
    if (o) fl_heap_free(o->index);
    fl_heap_free(o);
}

/* Room for n indices. */
static bool fl__data_order_room(fl__data_order *o, int64_t n) {
    size_t bytes;
    if (n <= o->cap && o->index) return true;
    if (!fl__mul_size((size_t)n, sizeof *o->index, &bytes))
        return fl_fail("out of memory: %lld indices", (long long)n);
    int64_t *index = fl_heap_realloc(o->index, bytes ? bytes : 1);
    if (index) o->index = index, o->cap = n;
    return index != NULL;
}

static bool fl__data_order_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    const fl__data_order *o = self->user;
    const int64_t inner = self->inner_[0]->size;
    if (o->n >= 0 && !o->index && o->offset > inner - o->n)
        return fl_fail("fl_data_span: %lld samples from %lld of %lld", (long long)o->n,
                       (long long)o->offset, (long long)inner);
    self->size = o->n;
    if (o->n < 0 && __builtin_mul_overflow(inner / o->step, o->times, &self->size))
        return fl_fail("fl_data_repeat: %lld times %lld samples", (long long)o->times, (long long)inner);
    return true;
}

/* Fisher-Yates; the remainder's bias is n / 2^64. */
static bool fl__data_shuffle_arrange(fl_data_set *self, int64_t epoch) {
    fl__data_order *o = self->user;
    const int64_t n = self->inner_[0]->size;
    if (!fl__data_order_room(o, n)) return false;
    uint64_t state = fl_data_rng(o->seed, epoch, 0).key;
    for (int64_t i = 0; i < n; i++) o->index[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)(fl__data_mix(state + (uint64_t)i) % ((uint64_t)i + 1)),
                t = o->index[i];
        o->index[i] = o->index[k];
        o->index[k] = t;
    }
    self->size = n;
    return true;
}

typedef struct fl__data_measured {
    int64_t length, at;
} fl__data_measured;

static int fl__data_by_length(const void *a, const void *b) {
    const fl__data_measured *x = a, *y = b;
    return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                  : (x->at > y->at) - (x->at < y->at);
}

static bool fl__data_sort_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    fl__data_order *o = self->user;
    const int64_t n = self->inner_[0]->size;
    size_t bytes;
    if (!fl__data_order_room(o, n)) return false;
    if (!fl__mul_size((size_t)n, sizeof(fl__data_measured), &bytes)) return fl_fail("out of memory");
    fl__data_measured *m = fl_heap_alloc(bytes ? bytes : 1);
    bool ok = m != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        m[i] = (fl__data_measured){fl_data_length(self->inner_[0], i), i};
        ok = m[i].length >= 0;
    }
    const int64_t window = o->window ? o->window : n;
    for (int64_t i = 0; ok && i < n; i += window)
        qsort(m + i, (size_t)(window < n - i ? window : n - i), sizeof *m, fl__data_by_length);
    for (int64_t i = 0; ok && i < n; i++) o->index[i] = m[i].at;
    fl_heap_free(m);
    self->size = n;
    return ok;
}

/* Over one set in an order; index, of o.n, is copied. */
static fl_data_set *fl__data_ordered(fl_data_set *set, fl__data_order o, const int64_t *index,
                                     bool (*arrange)(fl_data_set *self, int64_t epoch)) {
    fl__data_order *user = fl_heap_alloc(sizeof *user);
    if (user) *user = o;
    if (user && index && fl__data_order_room(user, o.n)) {
        memcpy(user->index, index, (size_t)o.n * sizeof *index);
    } else if (index) {
        fl_heap_free(user);
        user = NULL;
    }
    return fl__data_over(set, &(fl_data_set){
        .get = fl__data_order_get, .many = fl__data_order_many, .length = fl__data_order_length,
        .id = fl__data_order_id, .close = fl__data_order_close, .arrange = arrange, .user = user});
}

FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length) {
    const bool ok = !set || (offset >= 0 && length >= 0) ||
                    fl_fail("fl_data_span: %lld samples from %lld of %lld", (long long)length,
                            (long long)offset, (long long)fl_data_size(set));
    if (!fl__data_take(set, "fl_data_span", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.offset = offset, .step = 1, .n = length}, NULL,
                            fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks) {
    const bool ok = (ranks >= 1 && rank >= 0 && rank < ranks) ||
                    fl_fail("fl_data_shard: rank %d of %d", rank, ranks);
    if (!fl__data_take(set, "fl_data_shard", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.offset = rank, .step = ranks, .n = -1, .times = 1},
                            NULL, fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_repeat(fl_data_set *set, int64_t times) {
    const bool ok = times >= 0 || fl_fail("fl_data_repeat: %lld times", (long long)times);
    if (!fl__data_take(set, "fl_data_repeat", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.step = 1, .n = -1, .times = times}, NULL,
                            fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n) {
    const int64_t none = 0, size = fl_data_size(set);
    bool ok = !set || (n >= 0 && (index || !n)) ||
              fl_fail("fl_data_resample: %lld indices, or index is NULL", (long long)n);
    for (int64_t i = 0; set && ok && i < n; i++)
        ok = (index[i] >= 0 && index[i] < size) ||
             fl_fail("fl_data_resample: index %lld is %lld, the set has %lld samples", (long long)i,
                     (long long)index[i], (long long)size);
    if (!fl__data_take(set, "fl_data_resample", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.n = n}, n ? index : &none, fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_filter(fl_data_set *set, fl_data_keep_fn keep, void *user) {
    int64_t *index = NULL, cap = 0, n = 0;
    bool ok = keep || fl_fail("fl_data_filter: keep is NULL");
    if (!fl__data_take(set, "fl_data_filter", ok)) return NULL;
    for (int64_t i = 0; ok && i < set->size; i++) {
        fl_scope scope = fl_scope_begin();
        fl_data_sample s;
        ok = fl_data_get(set, i, &s) && fl_heap_grow(&index, &cap, n + 1, sizeof *index);
        if (ok && keep(&s, user)) index[n++] = i;
        ok = ok && !fl_error();
        fl_scope_end(&scope);
    }
    set = fl__data_take(set, "fl_data_filter", ok) ? fl_data_resample(set, index, n) : NULL;
    fl_heap_free(index);
    return set;
}

FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed) {
    if (!fl__data_take(set, "fl_data_shuffle", true)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.seed = seed}, NULL, fl__data_shuffle_arrange);
}

FL_API fl_data_set *fl_data_sort_by_length(fl_data_set *set, int64_t window) {
    const bool ok = window >= 0 ||
                    fl_fail("fl_data_sort_by_length: a window of %lld samples", (long long)window);
    if (!fl__data_take(set, "fl_data_sort_by_length", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.window = window}, NULL, fl__data_sort_arrange);
}

/* The part that sample *i is in, and its place there. */
static int fl__data_part(const fl_data_set *self, int64_t *i) {
    int k = 0;
    while (k + 1 < self->n_inner_ && *i >= self->inner_[k]->size) *i -= self->inner_[k++]->size;
    return k;
}

static bool fl__data_concat_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    int k = fl__data_part(self, &i);
    return fl_data_get(self->inner_[k], i, out);
}

static int64_t fl__data_concat_id(fl_data_set *self, int64_t i) {
    int k = fl__data_part(self, &i);
    return fl__data_other_id(fl_data_id(self->inner_[k], i), k);
}

static int64_t fl__data_concat_length(fl_data_set *self, int64_t i) {
    int k = fl__data_part(self, &i);
    return fl__data_said(self->inner_[k], i);
}

static bool fl__data_concat_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    int64_t size = 0;
    for (int i = 0; i < self->n_inner_; i++)
        if (__builtin_add_overflow(size, self->inner_[i]->size, &size))
            return fl_fail("fl_data_concat: set %d is too large", i);
    self->size = size;
    return true;
}

/* A set over several, freed if one is NULL. */
static fl_data_set *fl__data_over_all(fl_data_set *const *sets, int n, const char *who,
                                      const fl_data_set *table) {
    bool ok = (sets && n > 0) || fl_fail("%s: no sets", who);
    for (int i = 0; ok && i < n; i++) ok = sets[i] || fl_fail("%s: set %d is NULL", who, i);
    if (ok) return fl_data_set_new(table, sets, n);
    for (int i = 0; sets && i < n; i++) fl_data_free(sets[i]);
    return NULL;
}

FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n) {
    return fl__data_over_all(sets, n, "fl_data_concat", &(fl_data_set){
        .get = fl__data_concat_get, .id = fl__data_concat_id, .length = fl__data_concat_length,
        .arrange = fl__data_concat_arrange});
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

static int64_t fl__data_zip_id(fl_data_set *self, int64_t i) {
    return fl_data_id(self->inner_[0], i);
}

static bool fl__data_zip_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    self->size = self->inner_[0]->size;
    for (int i = 1; i < self->n_inner_; i++)
        if (self->inner_[i]->size != self->size)
            return fl_fail("fl_data_zip: set %d has %lld samples, set 0 %lld", i,
                           (long long)self->inner_[i]->size, (long long)self->size);
    return true;
}

FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n) {
    return fl__data_over_all(sets, n, "fl_data_zip", &(fl_data_set){
        .get = fl__data_zip_get, .id = fl__data_zip_id, .length = fl__data_inner_length,
        .arrange = fl__data_zip_arrange});
}

/* ---- sets over one other, sample by sample ---- */

static bool fl__data_inner_size(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    self->size = self->inner_[0]->size;
    return true;
}

static bool fl__data_inner_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    return fl_data_get(self->inner_[0], i, out);
}

static bool fl__data_inner_many(fl_data_set *self, int64_t *index, int64_t n, fl_data_sample *out) {
    return fl_data_get_many(self->inner_[0], index, n, out);
}

static int64_t fl__data_lengths_at(fl_data_set *self, int64_t i) {
    return ((const int64_t *)self->user)[i];
}

FL_API fl_data_set *fl_data_lengths(fl_data_set *set, const int64_t *length, int64_t n) {
    bool ok = !set || (length && n == set->size) ||
              fl_fail("fl_data_lengths: %lld lengths of %lld samples, or length is NULL", (long long)n,
                      (long long)set->size);
    for (int64_t i = 0; set && ok && i < n; i++)
        ok = length[i] >= 0 || fl_fail("fl_data_lengths: length %lld is %lld", (long long)i,
                                       (long long)length[i]);
    if (!fl__data_take(set, "fl_data_lengths", ok)) return NULL;
    int64_t *user = fl_heap_alloc((size_t)n * sizeof *user + 1);
    if (user) memcpy(user, length, (size_t)n * sizeof *user);
    return fl__data_over(set, &(fl_data_set){
        .size = n, .get = fl__data_inner_get, .many = fl__data_inner_many,
        .length = fl__data_lengths_at, .close = fl__data_free_user, .user = user});
}

static bool fl__data_to_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const char *backend = fl_backend_name_of(*(int *)self->user);
    bool ok = fl_data_get(self->inner_[0], i, out);
    const int stream = fl_stream(255);
    for (int k = 0; ok && k < out->n; k++) ok = (out->t[k] = fl_to(out->t[k], backend)) != NULL;
    fl_stream(stream);
    return ok;
}

FL_API fl_data_set *fl_data_to(fl_data_set *set, const char *backend) {
    fl_quiet(+1);
    const int index = backend ? fl_backend_index(backend) : (fl_fail("fl_data_to: the backend is NULL"), -1);
    fl_quiet(-1);
    if (!fl__data_take(set, "fl_data_to", index >= 0)) return NULL;
    int *user = fl_heap_alloc(sizeof *user);
    if (user) *user = index;
    return fl__data_over(set, &(fl_data_set){
        .get = fl__data_to_get, .length = fl__data_inner_length, .arrange = fl__data_inner_size,
        .close = fl__data_free_user, .user = user});
}

static bool fl__data_transform_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_call *c = self->user;
    fl_rng rng = fl_data_rng(0, self->epoch_, fl_data_id(self->inner_[0], i));
    if (!fl_data_get(self->inner_[0], i, out)) return false;
    return c->change(out, &rng, c->user) ||
           fl_fail("fl_data_transform: sample %lld was refused", (long long)i);
}

FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user) {
    const bool ok = !set || fn || fl_fail("fl_data_transform: fn is NULL");
    if (!fl__data_take(set, "fl_data_transform", ok)) return NULL;
    return fl__data_over(set, &(fl_data_set){
        .get = fl__data_transform_get, .length = fl__data_inner_length, .arrange = fl__data_inner_size,
        .close = fl__data_free_user,
        .user = fl__data_call_new((fl__data_call){.change = fn, .user = user})});
}

#endif
#endif

/* MIT licence: see LICENSE. */
