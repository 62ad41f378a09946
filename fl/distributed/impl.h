/* impl.h - what carries bytes between ranks: the table of an implementation, its calls, their compositions

   An implementation moves bytes from rank to rank. All that it must bring is `exchange`; collectives are
   composed of that here, in an order that ranks alone decide, so that a sum has the same bits each time. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DIST_IMPL_H_
#define FL_DIST_IMPL_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_dist_kind {
    FL_DIST_NONE,
    FL_DIST_ALL_REDUCE,
    FL_DIST_ALL_GATHER,
    FL_DIST_REDUCE_SCATTER,
    FL_DIST_BROADCAST,
    FL_DIST_REDUCE,
    FL_DIST_GATHER,
    FL_DIST_SCATTER,
    FL_DIST_ALL_TO_ALL,
    FL_DIST_SEND,
    FL_DIST_RECV,
    FL_DIST_BARRIER,
    FL_DIST_KINDS
} fl_dist_kind;
/* AVG is of floats; AND and OR are of b8, the others of numbers. NaN propagates through MIN and MAX. */
typedef enum fl_dist_reduction {
    FL_DIST_SUM,
    FL_DIST_AVG,
    FL_DIST_MIN,
    FL_DIST_MAX,
    FL_DIST_AND,
    FL_DIST_OR,
    FL_DIST_REDUCTIONS
} fl_dist_reduction;

/* One call of a rank: plain values, and bytes without gaps. `count` elements are
     ALL_REDUCE, REDUCE, BROADCAST   out, in place; of REDUCE only the root's is defined afterwards
     ALL_GATHER, GATHER              in; out has `size` times as many (GATHER: at the root)
     REDUCE_SCATTER, SCATTER         out; in has `size` times as many (SCATTER: at the root)
     ALL_TO_ALL                      each of the `size` parts of in, and of out
     SEND, RECV                      in, out; root is the other rank */
typedef struct fl_dist_call {
    fl_dist_kind kind;
    fl_dist_reduction reduction;
    fl_dtype dtype;
    int root;
    int64_t count;
    double scale;    /* the result is multiplied by it */
    uint64_t number; /* of the call in its group, from 1 */
    uint64_t tag;    /* of its bytes: equal calls have equal ones, and hardly any others */
    const void *in;
    void *out;
    void *stream;    /* of the device that has the bytes; NULL: the host's */
    double deadline; /* fl_dist_now */
} fl_dist_call;

/* Where ranks find each other: a value for each key, set once. get waits for it until the deadline, gives
   its bytes, at most `size`, and returns how many there are; -1 after fl_fail. */
typedef struct fl_dist_store fl_dist_store;
struct fl_dist_store {
    bool (*set)(const fl_dist_store *self, const char *key, const void *bytes, size_t n);
    int64_t (*get)(const fl_dist_store *self, const char *key, void *bytes, size_t size, double deadline);
    void *user;
};

/* What an implementation is told when it opens. */
typedef struct fl_dist_place {
    int rank, size;
    const char *address; /* of this rank: the only one to listen at */
    const char *prefix;  /* of keys, unique for the group */
    const fl_dist_store *store;
    double deadline;
    /* 16 random bytes that the ranks of this job share, and nobody else: rank 0 hands them out to those who
       proved the token. Data connections prove them, as fl_dist_connect_ranks does. */
    const uint8_t *secret;
} fl_dist_place;

typedef enum fl_dist_answer {
    FL_DIST_FAILED,
    FL_DIST_DONE,
    FL_DIST_SCALED, /* the same, and `scale` is done too */
    FL_DIST_DECLINED
} fl_dist_answer;
typedef struct fl_dist_impl {
    const char *name;
    void *(*open)(const fl_dist_place *place); /* NULL after fl_fail */
    /* Sends out_bytes to rank `to` while in_bytes come from rank `from`, of the same tag; -1: not. Until
       both are done, or the deadline: false after fl_fail. A message of another tag or length is an
       error. */
    bool (*exchange)(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                     size_t in_bytes, uint64_t tag, double deadline);
    /* From any thread, at any time, without waiting: what runs fails soon, what comes fails. */
    void (*abort)(void *self);
    void (*close)(void *self); /* after the last call */
    /* A whole call by a way of its own; NULL, or DECLINED: the composition. */
    fl_dist_answer (*run)(void *self, const fl_dist_call *c);
    /* abort ends any exchange at once, also one that is half transferred: then short calls that nobody else
       waits for are composed on the caller's thread, which saves two changes of threads. */
    bool prompt;
} fl_dist_impl;
/* Bytes of one rank in a short call, less than these. */
enum { FL_DIST_SHORT = 1 << 18 };

/* Seconds of the clock of deadlines. */
FL_API double fl_dist_now(void);
FL_API const char *fl_dist_kind_name(fl_dist_kind kind); /* "all_reduce" */
/* acc = reduction(acc, in), element by element; halves are computed in f32, integers wrap, AVG adds. For
   implementations. */
FL_API void fl_dist_fold(fl_dist_reduction reduction, fl_dtype dtype, void *acc, const void *in,
                         int64_t n);
/* Runs c on rank `rank` of `size`: by impl's own way or composed of its exchange; size 1 needs none. */
FL_API bool fl_dist_run(const fl_dist_impl *impl, void *self, int rank, int size, const fl_dist_call *c);

/* private */
/* What a kind of call takes: a side has a part of `count` elements ('1'), one for each rank ('n'), those at
   the root only ('r'), a part in place ('='), or nothing ('-'). */
typedef struct fl__dist_form {
    const char *fn; /* "fl_dist_all_reduce" */
    char out, in;
    bool rooted, reduces;
} fl__dist_form;
FL_PRIVATE const fl__dist_form *fl__dist_form_of(int kind);
FL_PRIVATE bool fl__dist_short(const fl_dist_call *c);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_IMPL_H_: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DISTRIBUTED_IMPL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_IMPL_IMPL
#define FL_DIST_IMPL_IMPL
#include <string.h>
#include <time.h>
#include "../../kernels/fl_math.h"

FL_API double fl_dist_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

FL_PRIVATE const fl__dist_form *fl__dist_form_of(int kind) {
    static const fl__dist_form forms[FL_DIST_KINDS] = {
        [FL_DIST_NONE] = {"fl_dist_?", '-', '-', false, false},
        [FL_DIST_ALL_REDUCE] = {"fl_dist_all_reduce", '=', '-', false, true},
        [FL_DIST_ALL_GATHER] = {"fl_dist_all_gather", 'n', '1', false, false},
        [FL_DIST_REDUCE_SCATTER] = {"fl_dist_reduce_scatter", '1', 'n', false, true},
        [FL_DIST_BROADCAST] = {"fl_dist_broadcast", '=', '-', true, false},
        [FL_DIST_REDUCE] = {"fl_dist_reduce", '=', '-', true, true},
        [FL_DIST_GATHER] = {"fl_dist_gather", 'r', '1', true, false},
        [FL_DIST_SCATTER] = {"fl_dist_scatter", '1', 'r', true, false},
        [FL_DIST_ALL_TO_ALL] = {"fl_dist_all_to_all", 'n', 'n', false, false},
        [FL_DIST_SEND] = {"fl_dist_send", '-', '1', true, false},
        [FL_DIST_RECV] = {"fl_dist_recv", '1', '-', true, false},
        [FL_DIST_BARRIER] = {"fl_dist_barrier", '-', '-', false, false}};
    return &forms[kind >= 0 && kind < FL_DIST_KINDS ? kind : FL_DIST_NONE];
}

FL_API const char *fl_dist_kind_name(fl_dist_kind kind) {
    return fl__dist_form_of((int)kind)->fn + sizeof "fl_dist_" - 1;
}

/* ---- sums and the like ---- */

#define FL__DIST_ADD(a, b) ((a) + (b))
#define FL__DIST_LESS(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define FL__DIST_MORE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
/* In blocks of a constant length, which compilers turn into vectors. */
#define FL__DIST_LOOP(T, wide, load, store, f)                                                      \
    for (int64_t i = 0; i < n; i += 16) {                                                           \
        if (n - i >= 16)                                                                            \
            for (int k = 0; k < 16; k++)                                                            \
                a[i + k] = (T)store(f((wide)load(a[i + k]), (wide)load(b[i + k])));                 \
        else                                                                                        \
            for (int64_t k = i; k < n; k++) a[k] = (T)store(f((wide)load(a[k]), (wide)load(b[k]))); \
    }
#define FL__DIST_FOLD(D, T, sum, wide, load, store)                                            \
    static void fl__dist_fold_##D(fl_dist_reduction r, void *acc, const void *in, int64_t n) { \
        T *restrict a = acc;                                                                   \
        const T *restrict b = in;                                                              \
        if (r == FL_DIST_MIN)                                                                  \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_LESS)                                 \
        else if (r == FL_DIST_MAX)                                                             \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_MORE)                                 \
        else                                                                                   \
            FL__DIST_LOOP(T, sum, load, store, FL__DIST_ADD)                                   \
    }
/* X(dtype, its type, that of sums, which is unsigned where they wrap, that of comparisons, load, store) */
#define FL__DIST_DTYPES(X)                                         \
    X(U8, uint8_t, uint8_t, uint8_t, , )                           \
    X(I8, int8_t, uint8_t, int8_t, , )                             \
    X(I16, int16_t, uint16_t, int16_t, , )                         \
    X(U16, uint16_t, uint16_t, uint16_t, , )                       \
    X(I32, int32_t, uint32_t, int32_t, , )                         \
    X(U32, uint32_t, uint32_t, uint32_t, , )                       \
    X(I64, int64_t, uint64_t, int64_t, , )                         \
    X(U64, uint64_t, uint64_t, uint64_t, , )                       \
    X(F32, float, float, float, , )                                \
    X(F64, double, double, double, , )                             \
    X(F16, uint16_t, float, float, flm_f16_to_f32, flm_f32_to_f16) \
    X(BF16, uint16_t, float, float, flm_bf16_to_f32, flm_f32_to_bf16)
FL__DIST_DTYPES(FL__DIST_FOLD)

static void fl__dist_fold_b8(fl_dist_reduction r, void *acc, const void *in, int64_t n) {
    uint8_t *a = acc;
    const uint8_t *b = in;
    for (int64_t i = 0; i < n; i++) a[i] = r == FL_DIST_AND ? a[i] & b[i] : a[i] | b[i];
}

FL_API void fl_dist_fold(fl_dist_reduction reduction, fl_dtype dtype, void *acc, const void *in,
                         int64_t n) {
#define FL__DIST_ENTRY(D, T, sum, wide, load, store) [FL_##D] = fl__dist_fold_##D,
    static void (*const fold[FL_DTYPE_COUNT])(fl_dist_reduction, void *, const void *, int64_t) = {
        FL__DIST_DTYPES(FL__DIST_ENTRY)[FL_B8] = fl__dist_fold_b8};
    if (n > 0) fold[dtype](reduction, acc, in, n);
}

/* Floats only: the callers see to it. */
static void fl__dist_scale(fl_dtype dtype, void *p, int64_t n, double factor) {
    const float f = (float)factor;
    if (factor == 1) return;
    if (dtype == FL_F64)
        for (int64_t i = 0; i < n; i++) ((double *)p)[i] *= factor;
    else if (dtype == FL_F32)
        for (int64_t i = 0; i < n; i++) ((float *)p)[i] *= f;
    else
        for (int64_t i = 0; i < n; i++) {
            uint16_t *x = (uint16_t *)p + i;
            if (dtype == FL_F16)
                *x = flm_f32_to_f16(flm_f16_to_f32(*x) * f);
            else
                *x = flm_f32_to_bf16(flm_bf16_to_f32(*x) * f);
        }
}

/* ---- compositions ---- */

enum {
    FL__DIST_SEGMENT = 1 << 18, /* bytes that are sent while others are added */
    FL__DIST_SMALL = 1 << 15    /* up to here an all_reduce sends everything to everybody */
};

typedef struct fl__dist_run {
    const fl_dist_impl *impl;
    void *self;
    int rank, size;
    const fl_dist_call *c;
    size_t element; /* bytes */
} fl__dist_run;

typedef struct fl__dist_span {
    char *p;
    size_t n; /* bytes; 0: nothing is sent or comes */
} fl__dist_span;

static fl__dist_span fl__dist_bytes(const void *p, size_t n) {
    return (fl__dist_span){(char *)(uintptr_t)p, n};
}

/* Sends `out` to rank `to` while `in` comes from rank `from`. */
static bool fl__dist_swap(const fl__dist_run *r, int to, fl__dist_span out, int from, fl__dist_span in) {
    return (!out.n && !in.n) ||
           r->impl->exchange(r->self, out.n ? to : -1, out.p, out.n, in.n ? from : -1, in.p, in.n,
                             r->c->tag, r->c->deadline);
}

static bool fl__dist_give(const fl__dist_run *r, int to, fl__dist_span out) {
    return fl__dist_swap(r, to, out, -1, fl__dist_bytes(NULL, 0));
}

static bool fl__dist_get(const fl__dist_run *r, int from, fl__dist_span in) {
    return fl__dist_swap(r, -1, fl__dist_bytes(NULL, 0), from, in);
}

/* Rank `by` further in the ring. */
static int fl__dist_next(const fl__dist_run *r, int by) {
    return (r->rank + by % r->size + r->size) % r->size;
}

/* Part i of n elements at p. */
static fl__dist_span fl__dist_part_of(const fl__dist_run *r, const void *p, int64_t n, int i) {
    const int64_t least = n / r->size, more = n % r->size, begin = least * i + (more < i ? more : i);
    return fl__dist_bytes((const char *)p + (size_t)begin * r->element,
                          (size_t)(least + (i < more)) * r->element);
}

/* Segment k of s; none past its end. */
static fl__dist_span fl__dist_segment(fl__dist_span s, size_t k) {
    const size_t at = k * FL__DIST_SEGMENT, left = at < s.n ? s.n - at : 0;
    return fl__dist_bytes(s.p + (left ? at : 0), left < FL__DIST_SEGMENT ? left : FL__DIST_SEGMENT);
}

/* Sends `out` to the next rank, and adds what comes from the one before to `acc`, segment by segment. */
static bool fl__dist_step(const fl__dist_run *r, fl__dist_span out, fl__dist_span acc, char *scratch) {
    for (size_t k = 0;; k++) {
        const fl__dist_span o = fl__dist_segment(out, k), i = fl__dist_segment(acc, k);
        if (!o.n && !i.n) return true;
        if (!fl__dist_swap(r, fl__dist_next(r, 1), o, fl__dist_next(r, -1), fl__dist_bytes(scratch, i.n)))
            return false;
        fl_dist_fold(r->c->reduction, r->c->dtype, i.p, scratch, (int64_t)(i.n / r->element));
    }
}

/* Of n elements at p, in place: afterwards this rank has the sum of its part. Part k starts at rank k + 1
   and goes round: that order is the sum's. */
static bool fl__dist_ring_reduce(const fl__dist_run *r, char *p, int64_t n) {
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch != NULL;
    for (int s = 1; ok && s < r->size; s++)
        ok = fl__dist_step(r, fl__dist_part_of(r, p, n, fl__dist_next(r, -s)),
                           fl__dist_part_of(r, p, n, fl__dist_next(r, -s - 1)), scratch);
    fl_heap_free(scratch);
    return ok;
}

/* Of n elements at p, of which each rank has its part: afterwards all have all. */
static bool fl__dist_ring_gather(const fl__dist_run *r, char *p, int64_t n) {
    bool ok = true;
    for (int s = 0; ok && s < r->size - 1; s++)
        ok = fl__dist_swap(r, fl__dist_next(r, 1), fl__dist_part_of(r, p, n, fl__dist_next(r, -s)),
                           fl__dist_next(r, -1), fl__dist_part_of(r, p, n, fl__dist_next(r, -s - 1)));
    return ok;
}

/* Part k of out is what rank k has for this one: `bytes` at in + k * apart. */
static bool fl__dist_pairs(const fl__dist_run *r, char *out, const char *in, size_t bytes, size_t apart) {
    bool ok = true;
    for (int s = 0; ok && s < r->size; s++) {
        const size_t to = (size_t)fl__dist_next(r, s), from = (size_t)fl__dist_next(r, -s);
        if (s)
            ok = fl__dist_swap(r, (int)to, fl__dist_bytes(in + to * apart, bytes), (int)from,
                               fl__dist_bytes(out + from * bytes, bytes));
        else if (bytes)
            memcpy(out + from * bytes, in + to * apart, bytes);
    }
    return ok;
}

/* All to all, added in the order of the ranks: half as many messages as the ring has; of two ranks no more
   bytes. */
static bool fl__dist_all_reduce_small(const fl__dist_run *r, char *p, size_t bytes) {
    char *all = fl_heap_alloc((size_t)r->size * bytes);
    const bool ok = all && fl__dist_pairs(r, all, p, bytes, 0);
    for (int k = 1; ok && k < r->size; k++)
        fl_dist_fold(r->c->reduction, r->c->dtype, all, all + (size_t)k * bytes, r->c->count);
    if (ok) memcpy(p, all, bytes);
    fl_heap_free(all);
    return ok;
}

/* The sum of this rank's part travels in two buffers, one of them `out`. */
static bool fl__dist_reduce_scatter(const fl__dist_run *r, size_t bytes) {
    const char *in = r->c->in, *have = in + (size_t)fl__dist_next(r, -1) * bytes;
    char *sum[2] = {r->c->out, r->size > 2 ? fl_heap_alloc(bytes) : NULL};
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch && (sum[1] || r->size <= 2);
    for (int s = 0; ok && s < r->size - 1; s++) {
        char *to = sum[(r->size - 2 - s) % 2];
        memcpy(to, in + (size_t)fl__dist_next(r, -s - 2) * bytes, bytes);
        ok = fl__dist_step(r, fl__dist_bytes(have, bytes), fl__dist_bytes(to, bytes), scratch);
        have = to;
    }
    fl_heap_free(scratch);
    fl_heap_free(sum[1]);
    return ok;
}

/* Along the ring from the root, a segment behind the other. */
static bool fl__dist_broadcast_chain(const fl__dist_run *r, fl__dist_span all) {
    const int place = fl__dist_next(r, -r->c->root);
    const bool first = place == 0, last = place == r->size - 1;
    bool ok = true;
    for (size_t k = 0; ok && k * FL__DIST_SEGMENT < all.n + (first ? 0 : FL__DIST_SEGMENT); k++) {
        fl__dist_span out = {0}, in = {0};
        if (!last && (first || k)) out = fl__dist_segment(all, k - !first);
        if (!first) in = fl__dist_segment(all, k);
        ok = fl__dist_swap(r, fl__dist_next(r, 1), out, fl__dist_next(r, -1), in);
    }
    return ok;
}

/* In each round those who have it send it as far again. */
static bool fl__dist_broadcast_tree(const fl__dist_run *r, fl__dist_span all) {
    const int place = fl__dist_next(r, -r->c->root);
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2) {
        if (place < d && place + d < r->size)
            ok = fl__dist_give(r, fl__dist_next(r, d), all);
        else if (place >= d && place < 2 * d)
            ok = fl__dist_get(r, fl__dist_next(r, -d), all);
    }
    return ok;
}

/* The parts of n elements, of which this rank has `own`, to the root's `whole`, or from there. */
static bool fl__dist_star(const fl__dist_run *r, const void *whole, int64_t n, fl__dist_span own,
                          bool gather) {
    const int root = r->c->root;
    if (r->rank != root) return gather ? fl__dist_give(r, root, own) : fl__dist_get(r, root, own);
    bool ok = true;
    for (int k = 0; ok && k < r->size; k++) {
        const fl__dist_span part = fl__dist_part_of(r, whole, n, k);
        if (k != root)
            ok = gather ? fl__dist_get(r, k, part) : fl__dist_give(r, k, part);
        else if (part.n && part.p != own.p)
            memcpy(gather ? part.p : own.p, gather ? own.p : part.p, part.n);
    }
    return ok;
}

/* After the round of distance d each rank knows that 2 d ranks before it have come. */
static bool fl__dist_barrier(const fl__dist_run *r) {
    char out = 0, in;
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2)
        ok = fl__dist_swap(r, fl__dist_next(r, d), fl__dist_bytes(&out, 1), fl__dist_next(r, -d),
                           fl__dist_bytes(&in, 1));
    return ok;
}

static bool fl__dist_compose(const fl__dist_run *r) {
    const fl_dist_call *c = r->c;
    const int64_t all = c->count * r->size;
    const size_t bytes = (size_t)c->count * r->element;
    const fl__dist_span in = fl__dist_bytes(c->in, bytes), out = fl__dist_bytes(c->out, bytes);
    const bool alone = r->size == 1;
    switch (c->kind) {
    case FL_DIST_ALL_REDUCE:
        if (alone) return true;
        if (bytes <= FL__DIST_SMALL || (r->size == 2 && bytes <= FL__DIST_SEGMENT))
            return fl__dist_all_reduce_small(r, out.p, bytes);
        return fl__dist_ring_reduce(r, out.p, c->count) && fl__dist_ring_gather(r, out.p, c->count);
    case FL_DIST_REDUCE: /* each rank's part of the result goes to the root */
        if (alone || !fl__dist_ring_reduce(r, out.p, c->count)) return alone;
        return fl__dist_star(r, out.p, c->count, fl__dist_part_of(r, out.p, c->count, r->rank), true);
    case FL_DIST_REDUCE_SCATTER:
        if (alone && bytes) memcpy(c->out, c->in, bytes);
        return alone || fl__dist_reduce_scatter(r, bytes);
    case FL_DIST_ALL_GATHER:
        if (bytes) memcpy(out.p + (size_t)r->rank * bytes, in.p, bytes);
        return fl__dist_ring_gather(r, out.p, all);
    case FL_DIST_BROADCAST:
        return bytes > FL__DIST_SEGMENT ? fl__dist_broadcast_chain(r, out) : fl__dist_broadcast_tree(r, out);
    case FL_DIST_GATHER: return fl__dist_star(r, c->out, all, in, true);
    case FL_DIST_SCATTER: return fl__dist_star(r, c->in, all, out, false);
    case FL_DIST_ALL_TO_ALL: return fl__dist_pairs(r, out.p, in.p, bytes, bytes);
    case FL_DIST_SEND: return fl__dist_give(r, c->root, in);
    case FL_DIST_RECV: return fl__dist_get(r, c->root, out);
    case FL_DIST_BARRIER: return fl__dist_barrier(r);
    default: return fl_fail("fl_dist_run: call of kind %d", (int)c->kind);
    }
}

FL_PRIVATE bool fl__dist_short(const fl_dist_call *c) {
    return (size_t)c->count * (c->dtype ? fl_dtype_size(c->dtype) : 1) < FL_DIST_SHORT;
}

FL_API bool fl_dist_run(const fl_dist_impl *impl, void *self, int rank, int size, const fl_dist_call *c) {
    if (!fl_given(c, "fl_dist_run", "the call")) return false;
    const fl__dist_run r = {impl, self, rank, size, c, c->dtype ? fl_dtype_size(c->dtype) : 1};
    const bool own = impl && impl->run && size > 1 && !(impl->prompt && fl__dist_short(c));
    const fl_dist_answer answer = own ? impl->run(self, c) : FL_DIST_DECLINED;
    if (answer == FL_DIST_FAILED || (answer == FL_DIST_DECLINED && !fl__dist_compose(&r))) return false;
    const bool has = c->kind != FL_DIST_REDUCE || rank == c->root;
    if (fl__dist_form_of((int)c->kind)->reduces && has && c->scale != 1 && answer != FL_DIST_SCALED)
        fl__dist_scale(c->dtype, c->out, c->count, c->scale);
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
