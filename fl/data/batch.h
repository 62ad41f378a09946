/* fl/data/batch.h - batching: by size, by token budget, by given sizes; stacking, padding, custom
   collation */
#ifndef FL_DATA_BATCH_H
#define FL_DATA_BATCH_H
#include "set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stacks `size` samples along a new first dim, field by field; they must have the same shapes and dtypes. The
   last batch may be smaller; drop_last leaves it out. */
FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last);

/* Collates n samples into one. Called from several threads under fl_data_prefetch. */
typedef bool (*fl_data_collate_fn)(const fl_data_sample *samples, int64_t n, fl_data_sample *out, void *user);

typedef struct fl_data_batches_opts {
    fl_opts_guard guard_;
    /* Which samples form a batch (their order is kept): */
    int64_t size;         /* samples per batch, or at most with a budget; 0: as many as the budget allows */
    bool drop_last;       /* leave out a smaller last batch, or the samples after the last of sizes */
    const int64_t *sizes; /* size of each batch (copied), instead of size and budget */
    int64_t n_sizes;
    int64_t budget;       /* most tokens, frames, ... (fl_data_length) per batch, counted as the longest
                             sample times the number of samples, i.e. with padding */
    bool sum;             /* the budget counts the sum of lengths instead */
    /* How they are collated: */
    bool pad;        /* pad every dim to the longest; dtype and number of dims must be the same */
    double pad_value[FL_DATA_FIELDS]; /* of each field */
    unsigned lengths; /* bit k: append i64 [n], the first dims of field k, after the fields */
    unsigned masks;   /* bit k: append b8 [n, t], true where field k is not padding, after those */
    fl_data_collate_fn join; /* custom collation, instead of all that */
    void *user;
    char _end;
} fl_data_batches_opts;
/* Batches of samples of any length. fl_ctc_loss and fl_rnn take the lengths as they are; fl_attention takes
   the mask as [n, 1, 1, t] (fl_unsqueeze twice). If lengths change with the epoch, as over a shuffle, so does
   the number of batches. A sample longer than the budget is an error. */
#define fl_data_batches(...) FL__DATA_BATCHES(__VA_ARGS__, ._end = 0)
#define FL__DATA_BATCHES(set, ...) fl_data_batches_opt(set, FL_LITERAL(fl_data_batches_opts, __VA_ARGS__))
FL_API fl_data_set *fl_data_batches_opt(fl_data_set *set, fl_data_batches_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_BATCH_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_BATCH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_BATCH_IMPL
#define FL_DATA_BATCH_IMPL
#include "file.h"
#include "../ops/copy.h"
#include "../ops/view.h"
#include <string.h>

/* ---- grouping ---- */

typedef struct fl__data_batches {
    fl_data_batches_opts o; /* sizes is a copy */
    int64_t *end, cap;      /* end of each batch, with sizes or a budget */
} fl__data_batches;

static int64_t fl__data_batch_end(const fl_data_set *self, int64_t b) {
    const fl__data_batches *p = self->user;
    const int64_t inner = fl_data_size(fl_data_inner(self, 0));
    if (b < 0) return 0;
    if (p->end) return p->end[b];
    return b >= inner / p->o.size ? inner : (b + 1) * p->o.size;
}

static bool fl__data_add_batch(fl_data_set *self, int64_t end) {
    fl__data_batches *p = self->user;
    if (!fl_heap_grow(&p->end, &p->cap, self->size + 1, sizeof *p->end)) return false;
    p->end[self->size++] = end;
    return true;
}

static bool fl__data_group_sizes(fl_data_set *self, const fl_data_batches_opts *o, int64_t inner) {
    int64_t end = 0;
    for (int64_t b = 0; b < o->n_sizes; b++) {
        if (o->sizes[b] < 1 || o->sizes[b] > inner - end)
            return fl_fail("fl_data_batches: sizes[%lld] must be in [1, %lld] (the remaining samples), "
                           "got %lld", (long long)b, (long long)(inner - end), (long long)o->sizes[b]);
        if (!fl__data_add_batch(self, end += o->sizes[b])) return false;
    }
    return end == inner || o->drop_last ||
           fl_fail("fl_data_batches: the sizes must sum to %lld, got %lld (or set drop_last)",
                   (long long)inner, (long long)end);
}

static bool fl__data_group_budget(fl_data_set *self, const fl_data_batches_opts *o, int64_t inner) {
    int64_t begin = 0, sum = 0, longest = 0;
    for (int64_t i = 0; i < inner; i++) {
        const int64_t length = fl_data_length(fl_data_inner(self, 0), i);
        if (length < 0) return false;
        if (length > o->budget)
            return fl_fail("fl_data_batches: sample %lld has length %lld, more than the budget %lld",
                           (long long)i, (long long)length, (long long)o->budget);
        const int64_t most = length > longest ? length : longest, n = i - begin + 1;
        const bool over = o->sum ? sum > o->budget - length : most && n > o->budget / most;
        if (over || (o->size && n > o->size)) {
            if (!fl__data_add_batch(self, i)) return false;
            begin = i, sum = length, longest = length;
        } else sum += length, longest = most;
    }
    return begin == inner || fl__data_add_batch(self, inner);
}

static bool fl__data_batches_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    const fl__data_batches *p = self->user;
    const int64_t inner = fl_data_size(fl_data_inner(self, 0)), size = p->o.size;
    self->size = 0;
    bool ok = true;
    if (p->o.sizes) ok = fl__data_group_sizes(self, &p->o, inner);
    else if (p->o.budget) ok = fl__data_group_budget(self, &p->o, inner);
    else self->size = inner / size + (!p->o.drop_last && inner % size != 0);
    if (!ok) self->size = 0;
    return ok;
}

static int64_t fl__data_batches_id(fl_data_set *self, int64_t b) {
    return fl_data_id(fl_data_inner(self, 0), fl__data_batch_end(self, b - 1));
}

/* ---- collation ---- */

/* Checks that field k of sample i can be padded with that of the first. */
static bool fl__data_check_pad(const fl_data_sample *first, const fl_data_sample *s, int k, int64_t i) {
    if (s->n != first->n)
        return fl_fail("fl_data_batches: sample %lld has %d fields, expected %d as the batch's first",
                       (long long)i, s->n, first->n);
    const fl_tensor *t = s->t[k], *like = first->t[k];
    return (t->dtype == like->dtype && t->ndim == like->ndim) ||
           fl_fail("fl_data_batches: field %d of sample %lld is %s %s, expected dtype and number of dims of "
                   "the batch's first, %s %s", k, (long long)i, fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t),
                   fl_dtype_name(like->dtype), FL_SHAPE_TEXT(like));
}

/* Field k of n samples (`at`: index of the first), padded: [n, longest...]. */
static fl_tensor *fl__data_pad_field(const fl_data_sample *s, int64_t n, int k, int64_t at,
                                     const fl_data_batches_opts *o) {
    fl_shape most = fl_shape_of(s[0].t[k]), shape;
    for (int64_t i = 1; i < n; i++) {
        const fl_tensor *t = s[i].t[k];
        if (!fl__data_check_pad(s, s + i, k, at + i)) return NULL;
        for (int d = 0; d < t->ndim; d++)
            if (t->shape[d] > most.dim[d]) most.dim[d] = t->shape[d];
    }
    if (most.ndim == FL_MAX_DIMS) {
        fl_fail("fl_data_batches: field %d has %d dims, expected at most %d", k, most.ndim, FL_MAX_DIMS - 1);
        return NULL;
    }
    shape = (fl_shape){most.ndim + 1, {n}};
    memcpy(shape.dim + 1, most.dim, (size_t)most.ndim * sizeof *most.dim);
    fl_tensor *y = fl_new_full(s[0].t[k], shape, o->pad_value[k]);
    for (int64_t i = 0; y && i < n; i++) {
        fl_scope scope = fl_scope_begin();
        fl_tensor *part = fl_select(y, 0, i);
        for (int d = 0; part && d < most.ndim; d++)
            if (s[i].t[k]->shape[d] < most.dim[d]) part = fl_slice(part, d, 0, s[i].t[k]->shape[d], 1);
        if (!part || !fl_assign(part, s[i].t[k])) y = NULL;
        fl_scope_end(&scope);
    }
    return y;
}

/* Lengths of field k, i64 [n], or its mask, b8 [n, steps of joined]. */
static fl_tensor *fl__data_lengths_or_mask(const fl_data_sample *s, int64_t n, int k, const fl_tensor *joined,
                                           bool mask) {
    const int64_t steps = mask ? joined->shape[1] : 1;
    fl_tensor *y =
        mask ? fl_data_host_tensor(FL_SHAPE(n, steps), FL_B8) : fl_data_host_tensor(FL_SHAPE(n), FL_I64);
    void *to = y && fl_numel(y) ? fl_map(y, FL_WRITE) : NULL;
    for (int64_t i = 0; to && i < n; i++)
        if (mask)
            for (int64_t t = 0; t < steps; t++) ((char *)to)[i * steps + t] = t < s[i].t[k]->shape[0];
        else ((int64_t *)to)[i] = s[i].t[k]->shape[0];
    if (to) fl_unmap(y, FL_WRITE);
    return to || (y && !fl_numel(y)) ? y : NULL;
}

static bool fl__data_pad(const fl_data_sample *s, int64_t n, int64_t at, const fl_data_batches_opts *o,
                         fl_data_sample *out) {
    const int fields = s[0].n;
    for (int k = 0; k < fields; k++)
        if (!(out->t[k] = fl__data_pad_field(s, n, k, at, o))) return false;
    out->n = fields;
    for (int bit = 0; bit < 2 * FL_DATA_FIELDS; bit++) {
        const int k = bit % FL_DATA_FIELDS;
        const bool mask = bit >= FL_DATA_FIELDS;
        if (!((mask ? o->masks : o->lengths) >> k & 1)) continue;
        if (k >= fields || !s[0].t[k]->ndim)
            return fl_fail("fl_data_batches: lengths or masks of field %d: sample %lld has %d fields, or it "
                           "is a scalar", k, (long long)at, fields);
        if (out->n == FL_DATA_FIELDS)
            return fl_fail("fl_data_batches: fields, lengths and masks together are more than %d",
                           FL_DATA_FIELDS);
        fl_tensor *y = fl__data_lengths_or_mask(s, n, k, out->t[k], mask);
        if (!y || !(y = fl_to(y, fl_backend_name(out->t[k])))) return false;
        out->t[out->n++] = y;
    }
    return true;
}

/* Reads samples one by one, to pad them or for a custom collation. */
static bool fl__data_join(fl_data_set *self, int64_t begin, int64_t n, fl_data_sample *out) {
    const fl__data_batches *p = self->user;
    fl_data_sample *s = fl_heap_alloc((size_t)n * sizeof *s);
    bool ok = s != NULL;
    for (int64_t i = 0; ok && i < n; i++) ok = fl_data_get(fl_data_inner(self, 0), begin + i, &s[i]);
    if (ok && !p->o.join) ok = fl__data_pad(s, n, begin, &p->o, out);
    else if (ok)
        ok = p->o.join(s, n, out, p->o.user) ||
             fl_fail("fl_data_batches: join returned false for samples %lld to %lld", (long long)begin,
                     (long long)(begin + n - 1));
    fl_heap_free(s);
    return ok;
}

static bool fl__data_batches_get(fl_data_set *self, int64_t b, fl_data_sample *out) {
    const fl__data_batches *p = self->user;
    const int64_t begin = fl__data_batch_end(self, b - 1), n = fl__data_batch_end(self, b) - begin;
    if (p->o.join || p->o.pad) return fl__data_join(self, begin, n, out);
    int64_t few[64], *index = n <= 64 ? few : fl_heap_alloc((size_t)n * sizeof *index);
    for (int64_t i = 0; index && i < n; i++) index[i] = begin + i;
    bool ok = index && fl_data_get_many(fl_data_inner(self, 0), index, n, out);
    if (index != few) fl_heap_free(index);
    return ok;
}

/* ---- construction ---- */

static void fl__data_batches_close(fl_data_set *self) {
    fl__data_batches *p = self->user;
    if (p) fl_heap_free((void *)(uintptr_t)p->o.sizes);
    if (p) fl_heap_free(p->end);
    fl_heap_free(p);
}

static fl__data_batches *fl__data_batches_new(const fl_data_batches_opts *o) {
    fl__data_batches *p = fl_heap_alloc(sizeof *p);
    if (!p) return NULL;
    p->o = *o;
    if (!o->sizes) return p;
    int64_t *sizes = fl_heap_alloc((size_t)o->n_sizes * sizeof *sizes + 1);
    if (sizes) memcpy(sizes, o->sizes, (size_t)o->n_sizes * sizeof *sizes);
    p->o.sizes = sizes;
    if (sizes) return p;
    fl_heap_free(p);
    return NULL;
}

static bool fl__data_check_batches(const fl_data_batches_opts *o) {
    const bool measured = o->size || o->budget;
    if (o->size < 0 || o->size > INT32_MAX || o->budget < 0 || o->n_sizes < 0 || o->n_sizes > INT32_MAX)
        return fl_fail("fl_data_batches: size and n_sizes must be in [0, 2^31), budget not negative, "
                       "got %lld, %lld and %lld", (long long)o->size, (long long)o->n_sizes,
                       (long long)o->budget);
    if (o->sizes ? measured : !measured)
        return fl_fail("fl_data_batches: expected a size, a budget or both, or else sizes");
    if (o->budget && o->drop_last) return fl_fail("fl_data_batches: drop_last requires size or sizes, not a "
                                                  "budget");
    if (!o->pad && (o->lengths || o->masks))
        return fl_fail("fl_data_batches: lengths and masks require pad");
    return !((o->lengths | o->masks) >> FL_DATA_FIELDS) ||
           fl_fail("fl_data_batches: lengths and masks are for fields 0 to %d", FL_DATA_FIELDS - 1);
}

FL_API fl_data_set *fl_data_batches_opt(fl_data_set *set, fl_data_batches_opts o) {
    const bool given = fl_given(set, "fl_data_batches", "the set");
    fl__data_batches *p = given && fl__data_check_batches(&o) ? fl__data_batches_new(&o) : NULL;
    if (p)
        return fl_data_set_new(&(fl_data_set){
            .get = fl__data_batches_get, .id = fl__data_batches_id, .arrange = fl__data_batches_arrange,
            .close = fl__data_batches_close, .user = p}, &set, 1);
    fl_data_free(set);
    return NULL;
}

FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last) {
    if (set && size >= 1 && size <= INT32_MAX)
        return fl_data_batches_opt(set, (fl_data_batches_opts){.size = size, .drop_last = drop_last});
    if (!set) fl_fail("fl_data_batch: the set is NULL");
    else fl_fail("fl_data_batch: size must be in [1, 2^31), got %lld", (long long)size);
    fl_data_free(set);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
