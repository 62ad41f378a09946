/* fl/data/set.h - data sets: views, orders, transforms */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_SET_H
#define FL_DATA_SET_H

#ifdef __cplusplus
extern "C" {
#endif

#define FL_DATA_FIELDS 8 /* most fields of a sample */
typedef struct fl_data_sample {
    int n;
    fl_tensor *t[FL_DATA_FIELDS]; /* owned by the innermost scope of fl_data_get's caller */
} fl_data_sample;

/* A data set: a table of functions. All but size and get are optional. */
typedef struct fl_data_set fl_data_set;
struct fl_data_set {
    int64_t size; /* samples */
    /* Fills *out with tensors of the innermost scope, or fails (fl_fail). 0 <= i < size. Called from several
       threads at once under fl_data_prefetch. */
    bool (*get)(fl_data_set *self, int64_t i, fl_data_sample *out);
    /* Called when the epoch changes, before the inner sets' start. */
    bool (*start)(fl_data_set *self, int64_t epoch);
    void (*close)(fl_data_set *self); /* releases user */
    void *user;
    /* Sets size and order from the inner sets: called when the set is made, and after the inner sets have
       started an epoch. */
    bool (*arrange)(fl_data_set *self, int64_t epoch);
    /* Stable id of sample i, to seed random numbers (fl_data_id). Default: the id in the inner set, if there
       is exactly one and it has the same size; else i. */
    int64_t (*id)(fl_data_set *self, int64_t i);
    /* fl_data_length without reading the sample; -1: unknown, less: failed (fl_fail). */
    int64_t (*length)(fl_data_set *self, int64_t i);
    /* Faster fl_data_get_many than one sample at a time; may change index. */
    bool (*many)(fl_data_set *self, int64_t *index, int64_t n, fl_data_sample *out);
    /* private */
    int64_t epoch_;
    bool started_; /* by fl_data_set_epoch */
    bool inside_;  /* belongs to another set, which frees it */
    int n_inner_;
    fl_data_set **inner_;
};
/* A custom set: copies the table and takes ownership of n inner sets (freed after close). Returns NULL on
   failure, or if an inner set is NULL; everything taken has then been freed. */
FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n);
/* Inner set k of a set made by fl_data_set_new. */
FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k);
/* Frees the set and its inner sets. NULL is allowed. */
FL_API void fl_data_free(fl_data_set *set);
FL_API int64_t fl_data_size(const fl_data_set *set); /* in this epoch; 0 for NULL */
/* Reads sample i into *out, owned by the caller's innermost scope. On failure *out is unchanged. */
FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out);
/* Reads samples index[0], ..., index[n - 1] in the same way, stacked along a new first dim, field by field;
   their shapes and dtypes must be the same. index may be overwritten. */
FL_API bool fl_data_get_many(fl_data_set *set, int64_t *index, int64_t n, fl_data_sample *out);
/* Starts an epoch (counted from 0) in this set and its inner sets: shuffles change their order, transforms
   their random numbers. No fl_data_get of the set may be running. */
FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch);
/* Endless iteration: reads sample *index of epoch *epoch, which it starts if needed, then advances *index,
   and at the end of the epoch *epoch. A checkpoint needs only these two numbers, whatever is shuffled,
   transformed or prefetched. */
FL_API bool fl_data_next(fl_data_set *set, int64_t *epoch, int64_t *index, fl_data_sample *out);
/* Stable id of sample i: its index in the innermost set, regardless of shuffles, shards, spans or batches
   (which have the id of their first sample); distinct for each repetition and each part of a concat. */
FL_API int64_t fl_data_id(fl_data_set *set, int64_t i);
/* Length of sample i (tokens, frames, ...): as given by fl_data_lengths, without reading; if no set knows it,
   the first dim of field 0 of the sample, which is read. Returns -1 on failure. */
FL_API int64_t fl_data_length(fl_data_set *set, int64_t i);
/* A generator that depends on its arguments only. For augmentation use a seed, the epoch and fl_data_id, so
   that a sample gets the same random numbers on any number of ranks. */
FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index);

/* Sample i is element i along the first dim of each of n tensors (references, not copies; samples are
   views). */
FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n);
/* Sample i is made by fn: tensors of the innermost scope, or false after fl_fail. */
typedef bool (*fl_data_get_fn)(int64_t i, fl_data_sample *out, void *user);
FL_API fl_data_set *fl_data_callback(int64_t size, fl_data_get_fn fn, void *user);
/* Samples offset, ..., offset + length - 1 of set. */
FL_API fl_data_set *fl_data_slice(fl_data_set *set, int64_t offset, int64_t length);
/* Sample i is sample index[i], n of them, of set (index is copied). */
FL_API fl_data_set *fl_data_subset(fl_data_set *set, const int64_t *index, int64_t n);
/* The samples for which keep returns true; it is called once per sample now, in the current epoch, and may
   fail (fl_fail). */
typedef bool (*fl_data_keep_fn)(const fl_data_sample *sample, void *user);
FL_API fl_data_set *fl_data_filter(fl_data_set *set, fl_data_keep_fn keep, void *user);
/* Random order determined by (seed, epoch); all permutations are equally likely. */
FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed);
/* Sorts each `window` samples (0: all) by length, ascending, stably. Over a shuffle and under batches:
   buckets of similar length that change with each epoch. */
FL_API fl_data_set *fl_data_sort_by_length(fl_data_set *set, int64_t window);
/* Every ranks-th sample from `rank` on, size / ranks of them, so that all ranks make the same number of
   steps. */
FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks);
/* All samples, `times` times in a row. */
FL_API fl_data_set *fl_data_repeat(fl_data_set *set, int64_t times);
/* The samples of the first set, then those of the next. */
FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n);
/* The fields of all sets side by side; they must have the same size. */
FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n);
/* Sets the lengths of samples: length[i], n = size of them (copied). */
FL_API fl_data_set *fl_data_lengths(fl_data_set *set, const int64_t *length, int64_t n);
/* Modifies a sample in place: replaces tensors, adds or drops fields. rng depends on (epoch, fl_data_id)
   only: mix your seed into rng->key. Called from several threads under fl_data_prefetch. */
typedef bool (*fl_data_fn)(fl_data_sample *sample, fl_rng *rng, void *user);
FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user);
/* Moves samples to another backend (fl_to) on stream 255 (fl_stream), concurrently with computation on other
   streams, which wait when they use the samples. Put it over batches to move whole batches, and under
   fl_data_prefetch to overlap the copies with other work. */
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

/* Whether inner set i can go into a new set. */
static bool fl__data_check_inner(const fl_data_set *set, int i) {
    if (!set) return fl_fail("fl_data_set_new: inner set %d is NULL", i);
    if (fl_is_freed(set, "fl_data_set_new", "an inner set")) return false;
    return !set->inside_ || fl_err_false("fl_data_set_new: inner set %d already belongs to another set", i);
}

FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n) {
    fl_data_set *s = NULL;
    int taken = 0;
    bool ok = table && table->get && table->size >= 0 && n >= 0;
    if (!ok) fl_fail("fl_data_set_new: the table is NULL, has no get, or a negative size");
    for (; ok && taken < n && (ok = fl__data_check_inner(inner[taken], taken)); taken++)
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
    for (int i = n; i-- > 0;) { /* not those of other sets, nor duplicates */
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
        fl_err_false("fl_data_free: the set belongs to another set, which frees it");
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

/* Hands one reference of each tensor to the innermost scope. */
static bool fl__data_adopt_sample(const fl_data_sample *s) {
    bool ok = true;
    for (int k = 0; k < s->n; k++) ok = fl_scope_adopt(&s->t[k]->obj) && ok;
    return ok;
}

static bool fl__data_same_kind(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && fl_same_shape(a, b);
}

/* Checks that sample i has the fields of the batch's first. */
static bool fl__data_check_like(const fl_data_sample *s, const fl_data_sample *first, int64_t i) {
    if (s->n != first->n)
        return fl_fail("fl_data_batch: sample %lld has %d fields, expected %d as the batch's first",
                       (long long)i, s->n, first->n);
    for (int k = 0; k < s->n; k++)
        if (!fl__data_same_kind(s->t[k], first->t[k]))
            return fl_fail(
                "fl_data_batch: field %d of sample %lld is %s %s, expected %s %s as the batch's first", k,
                (long long)i, fl_dtype_name(s->t[k]->dtype), FL_SHAPE_TEXT(s->t[k]),
                fl_dtype_name(first->t[k]->dtype), FL_SHAPE_TEXT(first->t[k]));
    return true;
}

/* Reads samples one at a time: column k of ts gets field k. */
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

/* Runs get (n = 0) or many in a scope and hands the results to the caller's scope. */
static bool fl__data_get_in_scope(fl_data_set *set, int64_t *index, int64_t n, fl_data_sample *out) {
    fl_data_sample r = {0};
    fl_scope scope = fl_scope_begin();
    const long long i = *index;
    bool ok = scope.depth_ > 0;
    if (ok && n) ok = set->many ? set->many(set, index, n, &r) : fl__data_stack(set, index, n, &r);
    else if (ok) ok = set->get(set, i, &r);
    if (ok && (r.n < 0 || r.n > FL_DATA_FIELDS))
        ok = fl_fail("fl_data_get: sample %lld has %d fields, expected 0 to %d", i, r.n, FL_DATA_FIELDS);
    for (int k = 0; ok && k < r.n; k++)
        ok = r.t[k] || fl_fail("fl_data_get: field %d of sample %lld is NULL", k, i);
    for (int k = 0; ok && k < r.n; k++) fl_keep(r.t[k]);
    fl_scope_end(&scope);
    ok = ok && fl__data_adopt_sample(&r);
    if (ok) *out = r;
    return ok || fl_fail("fl_data_get: sample %lld: the set failed without an error message", i);
}

static bool fl__data_has(const fl_data_set *set, int64_t i, const char *who) {
    if (!fl_given(set, who, "the set, or out,")) return false;
    return (i >= 0 && i < set->size) ||
           fl_fail("%s: sample index must be in [0, %lld), got %lld", who, (long long)set->size,
                   (long long)i);
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
        return fl_fail("fl_data_get_many: index is NULL, or n is not in [1, 2^31): got n %lld",
                       (long long)n);
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
        return fl_fail("fl_data_set_epoch: a set could not start epoch %lld", (long long)epoch);
    set->started_ = false; /* until all inner sets are */
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

/* The length as known to a set or its inner sets without reading; -1: unknown. */
static int64_t fl__data_known_length(fl_data_set *set, int64_t i) {
    return set->length ? set->length(set, i) : -1;
}

static int64_t fl__data_inner_length(fl_data_set *self, int64_t i) {
    return fl__data_known_length(self->inner_[0], i);
}

FL_API int64_t fl_data_length(fl_data_set *set, int64_t i) {
    if (!fl__data_has(set, i, "fl_data_length")) return -1;
    int64_t n = fl__data_known_length(set, i);
    if (n < -1) fl_fail("fl_data_length: sample %lld: the set failed without an error message", (long long)i);
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

/* A set over one other; table->user NULL means that its allocation failed. */
static fl_data_set *fl__data_over(fl_data_set *set, const fl_data_set *table) {
    if (table->user) return fl_data_set_new(table, &set, 1);
    fl_data_free(set);
    return NULL;
}

/* Checks a constructor's set and arguments (`ok`); frees the set and returns false if they are not valid. */
static bool fl__data_check_args(fl_data_set *set, const char *who, bool ok) {
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

/* Copies rows of a contiguous tensor on the host to a new tensor. */
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

/* One gather per batch for contiguous tensors on the cpu backend; else views and a stack. */
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
    if (!ok) fl_fail("fl_data_tensors: tensors is NULL, or n is not in [1, %d]: got %d", FL_DATA_FIELDS, n);
    for (int k = 0; ok && k < n; k++) {
        ok = tensors[k] && tensors[k]->ndim > 0 && tensors[k]->shape[0] == tensors[0]->shape[0];
        if (!ok) fl_fail("fl_data_tensors: tensor %d is NULL, a scalar, or its first dim is not that of "
                         "tensor 0", k);
    }
    fl__data_fields *f = ok ? fl_heap_alloc(sizeof *f) : NULL;
    if (!f) return NULL;
    for (; f->n < n; f->n++) f->t[f->n] = fl_keep(tensors[f->n]);
    return fl_data_set_new(&(fl_data_set){
        .size = tensors[0]->shape[0], .get = fl__data_tensors_get, .many = fl__data_tensors_many,
        .close = fl__data_tensors_close, .user = f}, NULL, 0);
}

/* A user's function. */
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
           fl_fail("fl_data_callback: fn returned false for sample %lld", (long long)i);
}

FL_API fl_data_set *fl_data_callback(int64_t size, fl_data_get_fn fn, void *user) {
    if (size < 0 || !fn) {
        fl_fail("fl_data_callback: fn is NULL, or size is negative: got size %lld",
                (long long)size);
        return NULL;
    }
    fl__data_call *c = fl__data_call_new((fl__data_call){.get = fn, .user = user});
    return c ? fl_data_set_new(&(fl_data_set){.size = size, .get = fl__data_callback_get,
                                              .close = fl__data_free_user, .user = c}, NULL, 0) : NULL;
}

/* Sets that reorder the inner set: sample i is index[i] of the inner set, or (offset + i * step) modulo its
   size. */
typedef struct fl__data_order {
    int64_t offset, step;
    int64_t n;   /* number of samples if fixed; else -1: inner size * times / step */
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
    return fl__data_known_length(self->inner_[0], fl__data_order_at(self, i));
}

/* A distinct id for repetition, or part, k; k = 0 keeps the id. */
static int64_t fl__data_distinct_id(int64_t id, int64_t k) {
    return k ? (int64_t)fl__data_mix((uint64_t)id + fl__data_mix((uint64_t)k)) : id;
}

static int64_t fl__data_order_id(fl_data_set *self, int64_t i) {
    const fl__data_order *o = self->user;
    int64_t id = fl_data_id(self->inner_[0], fl__data_order_at(self, i));
    const int64_t inner = self->inner_[0]->size;
    return fl__data_distinct_id(id, o->times > 1 && inner ? i / inner : 0);
}

static void fl__data_order_close(fl_data_set *self) {
    fl__data_order *o = self->user;
    if (o) fl_heap_free(o->index);
    fl_heap_free(o);
}

/* Reserves space for n indices. */
static bool fl__data_order_reserve(fl__data_order *o, int64_t n) {
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
        return fl_fail("fl_data_slice: length %lld from offset %lld exceeds the %lld samples",
                       (long long)o->n,
                       (long long)o->offset, (long long)inner);
    self->size = o->n;
    if (o->n < 0 && __builtin_mul_overflow(inner / o->step, o->times, &self->size))
        return fl_fail("fl_data_repeat: %lld times %lld samples overflow int64", (long long)o->times,
                       (long long)inner);
    return true;
}

/* Fisher-Yates; the bias of the remainder is n / 2^64. */
static bool fl__data_shuffle_arrange(fl_data_set *self, int64_t epoch) {
    fl__data_order *o = self->user;
    const int64_t n = self->inner_[0]->size;
    if (!fl__data_order_reserve(o, n)) return false;
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
    if (!fl__data_order_reserve(o, n)) return false;
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

/* Makes a reordering set; index, of o.n elements, is copied. */
static fl_data_set *fl__data_ordered(fl_data_set *set, fl__data_order o, const int64_t *index,
                                     bool (*arrange)(fl_data_set *self, int64_t epoch)) {
    fl__data_order *user = fl_heap_alloc(sizeof *user);
    if (user) *user = o;
    if (user && index && fl__data_order_reserve(user, o.n)) {
        memcpy(user->index, index, (size_t)o.n * sizeof *index);
    } else if (index) {
        fl_heap_free(user);
        user = NULL;
    }
    return fl__data_over(set, &(fl_data_set){
        .get = fl__data_order_get, .many = fl__data_order_many, .length = fl__data_order_length,
        .id = fl__data_order_id, .close = fl__data_order_close, .arrange = arrange, .user = user});
}

FL_API fl_data_set *fl_data_slice(fl_data_set *set, int64_t offset, int64_t length) {
    const bool ok = !set || (offset >= 0 && length >= 0) ||
                    fl_fail("fl_data_slice: offset and length must not be negative, got %lld and %lld",
                            (long long)offset, (long long)length);
    if (!fl__data_check_args(set, "fl_data_slice", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.offset = offset, .step = 1, .n = length}, NULL,
                            fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks) {
    const bool ok = (ranks >= 1 && rank >= 0 && rank < ranks) ||
                    fl_fail("fl_data_shard: rank must be in [0, ranks), got %d with ranks %d", rank, ranks);
    if (!fl__data_check_args(set, "fl_data_shard", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.offset = rank, .step = ranks, .n = -1, .times = 1},
                            NULL, fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_repeat(fl_data_set *set, int64_t times) {
    const bool ok = times >= 0 || fl_fail("fl_data_repeat: times must not be negative, got %lld",
                                          (long long)times);
    if (!fl__data_check_args(set, "fl_data_repeat", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.step = 1, .n = -1, .times = times}, NULL,
                            fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_subset(fl_data_set *set, const int64_t *index, int64_t n) {
    const int64_t none = 0, size = fl_data_size(set);
    bool ok = !set || (n >= 0 && (index || !n)) ||
              fl_fail("fl_data_subset: index is NULL, or n is negative: got n %lld",
                      (long long)n);
    for (int64_t i = 0; set && ok && i < n; i++)
        ok = (index[i] >= 0 && index[i] < size) ||
             fl_fail("fl_data_subset: index[%lld] must be in [0, %lld), got %lld", (long long)i,
                     (long long)size, (long long)index[i]);
    if (!fl__data_check_args(set, "fl_data_subset", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.n = n}, n ? index : &none, fl__data_order_arrange);
}

FL_API fl_data_set *fl_data_filter(fl_data_set *set, fl_data_keep_fn keep, void *user) {
    int64_t *index = NULL, cap = 0, n = 0;
    bool ok = keep || fl_fail("fl_data_filter: keep is NULL");
    if (!fl__data_check_args(set, "fl_data_filter", ok)) return NULL;
    for (int64_t i = 0; ok && i < set->size; i++) {
        fl_scope scope = fl_scope_begin();
        fl_data_sample s;
        ok = fl_data_get(set, i, &s) && fl_heap_grow(&index, &cap, n + 1, sizeof *index);
        if (ok && keep(&s, user)) index[n++] = i;
        ok = ok && !fl_error();
        fl_scope_end(&scope);
    }
    set = fl__data_check_args(set, "fl_data_filter", ok) ? fl_data_subset(set, index, n) : NULL;
    fl_heap_free(index);
    return set;
}

FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed) {
    if (!fl__data_check_args(set, "fl_data_shuffle", true)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.seed = seed}, NULL, fl__data_shuffle_arrange);
}

FL_API fl_data_set *fl_data_sort_by_length(fl_data_set *set, int64_t window) {
    const bool ok = window >= 0 ||
                    fl_fail("fl_data_sort_by_length: window must not be negative, got %lld",
                            (long long)window);
    if (!fl__data_check_args(set, "fl_data_sort_by_length", ok)) return NULL;
    return fl__data_ordered(set, (fl__data_order){.window = window}, NULL, fl__data_sort_arrange);
}

/* The part that contains sample *i; *i becomes its index in that part. */
static int fl__data_part_of(const fl_data_set *self, int64_t *i) {
    int k = 0;
    while (k + 1 < self->n_inner_ && *i >= self->inner_[k]->size) *i -= self->inner_[k++]->size;
    return k;
}

static bool fl__data_concat_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    int k = fl__data_part_of(self, &i);
    return fl_data_get(self->inner_[k], i, out);
}

static int64_t fl__data_concat_id(fl_data_set *self, int64_t i) {
    int k = fl__data_part_of(self, &i);
    return fl__data_distinct_id(fl_data_id(self->inner_[k], i), k);
}

static int64_t fl__data_concat_length(fl_data_set *self, int64_t i) {
    int k = fl__data_part_of(self, &i);
    return fl__data_known_length(self->inner_[k], i);
}

static bool fl__data_concat_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    int64_t size = 0;
    for (int i = 0; i < self->n_inner_; i++)
        if (__builtin_add_overflow(size, self->inner_[i]->size, &size))
            return fl_fail("fl_data_concat: the number of samples overflows int64 at set %d", i);
    self->size = size;
    return true;
}

/* A set over several, all freed if one is NULL. */
static fl_data_set *fl__data_over_all(fl_data_set *const *sets, int n, const char *who,
                                      const fl_data_set *table) {
    bool ok = (sets && n > 0) || fl_fail("%s: sets is NULL, or n is not positive: got n %d", who, n);
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
            return fl_fail("fl_data_zip: the sets have more than %d fields", FL_DATA_FIELDS);
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
            return fl_fail("fl_data_zip: set %d has %lld samples, expected %lld as set 0", i,
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
              fl_fail("fl_data_lengths: length is NULL, or n is not the number of samples: got n %lld, "
                      "expected %lld", (long long)n, (long long)set->size);
    for (int64_t i = 0; set && ok && i < n; i++)
        ok = length[i] >= 0 || fl_fail("fl_data_lengths: length[%lld] must not be negative, got %lld",
                                       (long long)i, (long long)length[i]);
    if (!fl__data_check_args(set, "fl_data_lengths", ok)) return NULL;
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
    if (!fl__data_check_args(set, "fl_data_to", index >= 0)) return NULL;
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
           fl_fail("fl_data_transform: fn returned false for sample %lld", (long long)i);
}

FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user) {
    const bool ok = !set || fn || fl_fail("fl_data_transform: fn is NULL");
    if (!fl__data_check_args(set, "fl_data_transform", ok)) return NULL;
    return fl__data_over(set, &(fl_data_set){
        .get = fl__data_transform_get, .length = fl__data_inner_length, .arrange = fl__data_inner_size,
        .close = fl__data_free_user,
        .user = fl__data_call_new((fl__data_call){.change = fn, .user = user})});
}

#endif
#endif

/* MIT licence: see LICENSE. */
