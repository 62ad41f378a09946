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
FL_PRIVATE bool fl__dist_short(const fl_dist_call *c);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_IMPL_H_: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DIST_IMPL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
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

FL_API const char *fl_dist_kind_name(fl_dist_kind kind) {
    static const char *const names[] = {
        "nothing", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather",
        "scatter", "all_to_all", "send",       "recv",           "barrier"};
    return kind >= 0 && kind < FL_DIST_KINDS ? names[kind] : "?";
}

/* ---- sums and the like ---- */

#define FL__DIST_ADD(a, b) ((a) + (b))
#define FL__DIST_LESS(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define FL__DIST_MORE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
/* In blocks of a constant length, which compilers turn into vectors. `wide` is unsigned where sums wrap. */
#define FL__DIST_LOOP(T, wide, load, store, f)                                                      \
    for (int64_t i = 0; i < n; i += 16) {                                                           \
        if (n - i >= 16)                                                                            \
            for (int k = 0; k < 16; k++)                                                            \
                a[i + k] = (T)store(f((wide)load(a[i + k]), (wide)load(b[i + k])));                 \
        else                                                                                        \
            for (int64_t k = i; k < n; k++) a[k] = (T)store(f((wide)load(a[k]), (wide)load(b[k]))); \
    }
#define FL__DIST_FOLD(name, T, sum, wide, load, store)                                            \
    static void fl__dist_fold_##name(fl_dist_reduction r, void *acc, const void *in, int64_t n) { \
        T *restrict a = acc;                                                                      \
        const T *restrict b = in;                                                                 \
        if (r == FL_DIST_MIN)                                                                     \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_LESS)                                    \
        else if (r == FL_DIST_MAX)                                                                \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_MORE)                                    \
        else                                                                                      \
            FL__DIST_LOOP(T, sum, load, store, FL__DIST_ADD)                                      \
    }
#define FL__DIST_AS_IS(x) (x)
FL__DIST_FOLD(u8, uint8_t, uint8_t, uint8_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(i8, int8_t, uint8_t, int8_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(i16, int16_t, uint16_t, int16_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(u16, uint16_t, uint16_t, uint16_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(i32, int32_t, uint32_t, int32_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(u32, uint32_t, uint32_t, uint32_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(i64, int64_t, uint64_t, int64_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(u64, uint64_t, uint64_t, uint64_t, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(f32, float, float, float, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(f64, double, double, double, FL__DIST_AS_IS, FL__DIST_AS_IS)
FL__DIST_FOLD(f16, uint16_t, float, float, flm_f16_to_f32, flm_f32_to_f16)
FL__DIST_FOLD(bf16, uint16_t, float, float, flm_bf16_to_f32, flm_f32_to_bf16)

static void fl__dist_fold_b8(fl_dist_reduction r, void *acc, const void *in, int64_t n) {
    uint8_t *a = acc;
    const uint8_t *b = in;
    for (int64_t i = 0; i < n; i++) a[i] = r == FL_DIST_AND ? a[i] & b[i] : a[i] | b[i];
}

FL_API void fl_dist_fold(fl_dist_reduction reduction, fl_dtype dtype, void *acc, const void *in,
                         int64_t n) {
    static void (*const fold[FL_DTYPE_COUNT])(fl_dist_reduction, void *, const void *, int64_t) = {
        [FL_B8] = fl__dist_fold_b8,   [FL_U8] = fl__dist_fold_u8,     [FL_I8] = fl__dist_fold_i8,
        [FL_I16] = fl__dist_fold_i16, [FL_I32] = fl__dist_fold_i32,   [FL_I64] = fl__dist_fold_i64,
        [FL_U16] = fl__dist_fold_u16, [FL_U32] = fl__dist_fold_u32,   [FL_U64] = fl__dist_fold_u64,
        [FL_F16] = fl__dist_fold_f16, [FL_BF16] = fl__dist_fold_bf16, [FL_F32] = fl__dist_fold_f32,
        [FL_F64] = fl__dist_fold_f64};
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

static bool fl__dist_swap(const fl__dist_run *r, int to, const void *out, size_t out_bytes, int from,
                          void *in, size_t in_bytes) {
    if (!out_bytes) to = -1;
    if (!in_bytes) from = -1;
    return (to < 0 && from < 0) ||
           r->impl->exchange(r->self, to, out, out_bytes, from, in, in_bytes, r->c->tag, r->c->deadline);
}

/* Rank `by` further in the ring. */
static int fl__dist_next(const fl__dist_run *r, int by) {
    return (r->rank + by % r->size + r->size) % r->size;
}

/* Where part i of n elements begins. */
static int64_t fl__dist_begin(const fl__dist_run *r, int i, int64_t n) {
    return n / r->size * i + (n % r->size < i ? n % r->size : i);
}

static size_t fl__dist_least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Sends `out` to the next rank, and adds what comes from the one before to `acc`, segment by segment. */
static bool fl__dist_step(const fl__dist_run *r, const char *out, size_t out_bytes, char *acc,
                          size_t acc_bytes, char *scratch) {
    for (size_t at = 0; at < out_bytes || at < acc_bytes; at += FL__DIST_SEGMENT) {
        const size_t o = at < out_bytes ? fl__dist_least(out_bytes - at, FL__DIST_SEGMENT) : 0;
        const size_t i = at < acc_bytes ? fl__dist_least(acc_bytes - at, FL__DIST_SEGMENT) : 0;
        if (!fl__dist_swap(r, fl__dist_next(r, 1), out + at, o, fl__dist_next(r, -1), scratch, i))
            return false;
        fl_dist_fold(r->c->reduction, r->c->dtype, acc + at, scratch, (int64_t)(i / r->element));
    }
    return true;
}

/* Of n elements at p, in place: afterwards this rank has the sum of its part. Part k starts at rank k + 1
   and goes round: that order is the sum's. */
static bool fl__dist_ring_reduce(const fl__dist_run *r, char *p, int64_t n) {
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch != NULL;
    for (int s = 0; ok && s < r->size - 1; s++) {
        const int o = fl__dist_next(r, -s - 1), i = fl__dist_next(r, -s - 2);
        const int64_t o0 = fl__dist_begin(r, o, n), o1 = fl__dist_begin(r, o + 1, n);
        const int64_t i0 = fl__dist_begin(r, i, n), i1 = fl__dist_begin(r, i + 1, n);
        ok = fl__dist_step(r, p + (size_t)o0 * r->element, (size_t)(o1 - o0) * r->element,
                           p + (size_t)i0 * r->element, (size_t)(i1 - i0) * r->element, scratch);
    }
    fl_heap_free(scratch);
    return ok;
}

/* Of n elements at p, of which each rank has its part: afterwards all have all. */
static bool fl__dist_ring_gather(const fl__dist_run *r, char *p, int64_t n) {
    bool ok = true;
    for (int s = 0; ok && s < r->size - 1; s++) {
        const int o = fl__dist_next(r, -s), i = fl__dist_next(r, -s - 1);
        const int64_t o0 = fl__dist_begin(r, o, n), o1 = fl__dist_begin(r, o + 1, n);
        const int64_t i0 = fl__dist_begin(r, i, n), i1 = fl__dist_begin(r, i + 1, n);
        ok = fl__dist_swap(r, fl__dist_next(r, 1), p + (size_t)o0 * r->element,
                           (size_t)(o1 - o0) * r->element, fl__dist_next(r, -1),
                           p + (size_t)i0 * r->element, (size_t)(i1 - i0) * r->element);
    }
    return ok;
}

/* All to all, added in the order of the ranks: half as many messages as the ring has; of two ranks no more
   bytes. */
static bool fl__dist_all_reduce_small(const fl__dist_run *r, char *p, size_t bytes) {
    char *all = fl_heap_alloc((size_t)r->size * bytes);
    bool ok = all != NULL;
    if (ok) memcpy(all + (size_t)r->rank * bytes, p, bytes);
    for (int s = 1; ok && s < r->size; s++)
        ok = fl__dist_swap(r, fl__dist_next(r, s), p, bytes, fl__dist_next(r, -s),
                           all + (size_t)fl__dist_next(r, -s) * bytes, bytes);
    for (int k = 1; ok && k < r->size; k++)
        fl_dist_fold(r->c->reduction, r->c->dtype, all, all + (size_t)k * bytes, r->c->count);
    if (ok) memcpy(p, all, bytes);
    fl_heap_free(all);
    return ok;
}

static bool fl__dist_all_reduce(const fl__dist_run *r) {
    const size_t bytes = (size_t)r->c->count * r->element;
    if (bytes <= FL__DIST_SMALL || (r->size == 2 && bytes <= FL__DIST_SEGMENT))
        return fl__dist_all_reduce_small(r, r->c->out, bytes);
    return fl__dist_ring_reduce(r, r->c->out, r->c->count) &&
           fl__dist_ring_gather(r, r->c->out, r->c->count);
}

/* The sum of this rank's part travels in two buffers, one of them `out`. */
static bool fl__dist_reduce_scatter(const fl__dist_run *r) {
    const size_t bytes = (size_t)r->c->count * r->element;
    const char *in = r->c->in, *have = in + (size_t)fl__dist_next(r, -1) * bytes;
    char *sum[2] = {r->c->out, r->size > 2 ? fl_heap_alloc(bytes) : NULL};
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch && (sum[1] || r->size <= 2);
    for (int s = 0; ok && s < r->size - 1; s++) {
        char *to = sum[(r->size - 2 - s) % 2];
        memcpy(to, in + (size_t)fl__dist_next(r, -s - 2) * bytes, bytes);
        ok = fl__dist_step(r, have, bytes, to, bytes, scratch);
        have = to;
    }
    fl_heap_free(scratch);
    fl_heap_free(sum[1]);
    return ok;
}

/* Along the ring from the root, a segment behind the other. */
static bool fl__dist_broadcast_chain(const fl__dist_run *r, char *p, size_t bytes) {
    const int place = fl__dist_next(r, -r->c->root);
    const bool first = place == 0, last = place == r->size - 1;
    const size_t segments = (bytes + FL__DIST_SEGMENT - 1) / FL__DIST_SEGMENT;
    for (size_t k = 0; k < segments + !first; k++) {
        const size_t o = first ? k : k - 1; /* the segment to send on; none at first */
        const bool sends = !last && (first || k), takes = !first && k < segments;
        const size_t o_at = o * FL__DIST_SEGMENT, i_at = k * FL__DIST_SEGMENT;
        if (!fl__dist_swap(r, fl__dist_next(r, 1), p + (sends ? o_at : 0),
                           sends ? fl__dist_least(bytes - o_at, FL__DIST_SEGMENT) : 0,
                           fl__dist_next(r, -1), p + (takes ? i_at : 0),
                           takes ? fl__dist_least(bytes - i_at, FL__DIST_SEGMENT) : 0))
            return false;
    }
    return true;
}

/* In each round those who have it send it as far again. */
static bool fl__dist_broadcast_tree(const fl__dist_run *r, char *p, size_t bytes) {
    const int place = (r->rank - r->c->root + r->size) % r->size;
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2) {
        if (place < d && place + d < r->size)
            ok = fl__dist_swap(r, fl__dist_next(r, d), p, bytes, -1, NULL, 0);
        else if (place >= d && place < 2 * d)
            ok = fl__dist_swap(r, -1, NULL, 0, fl__dist_next(r, -d), p, bytes);
    }
    return ok;
}

static bool fl__dist_broadcast(const fl__dist_run *r) {
    const size_t bytes = (size_t)r->c->count * r->element;
    return bytes > FL__DIST_SEGMENT ? fl__dist_broadcast_chain(r, r->c->out, bytes)
                                    : fl__dist_broadcast_tree(r, r->c->out, bytes);
}

/* Each rank's part of the result goes to the root. */
static bool fl__dist_reduce(const fl__dist_run *r) {
    char *p = r->c->out;
    const int64_t n = r->c->count;
    bool ok = fl__dist_ring_reduce(r, p, n);
    for (int k = 0; ok && k < r->size; k++) {
        const size_t begin = (size_t)fl__dist_begin(r, k, n) * r->element;
        const size_t bytes = (size_t)fl__dist_begin(r, k + 1, n) * r->element - begin;
        if (k == r->c->root) continue;
        if (r->rank == k)
            ok = fl__dist_swap(r, r->c->root, p + begin, bytes, -1, NULL, 0);
        else if (r->rank == r->c->root)
            ok = fl__dist_swap(r, -1, NULL, 0, k, p + begin, bytes);
    }
    return ok;
}

/* Parts of all ranks to the root, or from it. */
static bool fl__dist_star(const fl__dist_run *r, bool gather) {
    const size_t bytes = (size_t)r->c->count * r->element;
    const char *in = r->c->in;
    char *out = r->c->out;
    const int root = r->c->root;
    if (r->rank != root)
        return gather ? fl__dist_swap(r, root, in, bytes, -1, NULL, 0)
                      : fl__dist_swap(r, -1, NULL, 0, root, out, bytes);
    bool ok = true;
    for (int k = 0; ok && k < r->size; k++) {
        const size_t at = (size_t)k * bytes;
        if (k == root && bytes)
            memcpy(gather ? out + at : out, gather ? in : in + at, bytes);
        else if (gather)
            ok = fl__dist_swap(r, -1, NULL, 0, k, out + at, bytes);
        else
            ok = fl__dist_swap(r, k, in + at, bytes, -1, NULL, 0);
    }
    return ok;
}

static bool fl__dist_all_to_all(const fl__dist_run *r) {
    const size_t bytes = (size_t)r->c->count * r->element;
    const char *in = r->c->in;
    char *out = r->c->out;
    bool ok = true;
    if (bytes) memcpy(out + (size_t)r->rank * bytes, in + (size_t)r->rank * bytes, bytes);
    for (int s = 1; ok && s < r->size; s++) {
        const size_t to = (size_t)fl__dist_next(r, s), from = (size_t)fl__dist_next(r, -s);
        ok = fl__dist_swap(r, (int)to, in + to * bytes, bytes, (int)from, out + from * bytes, bytes);
    }
    return ok;
}

/* After the round of distance d each rank knows that 2 d ranks before it have come. */
static bool fl__dist_barrier(const fl__dist_run *r) {
    char out = 0, in;
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2)
        ok = fl__dist_swap(r, fl__dist_next(r, d), &out, 1, fl__dist_next(r, -d), &in, 1);
    return ok;
}

static bool fl__dist_compose(const fl__dist_run *r) {
    const fl_dist_call *c = r->c;
    const size_t bytes = (size_t)c->count * r->element;
    const bool alone = r->size == 1;
    switch (c->kind) {
    case FL_DIST_ALL_REDUCE: return alone || fl__dist_all_reduce(r);
    case FL_DIST_REDUCE: return alone || fl__dist_reduce(r);
    case FL_DIST_REDUCE_SCATTER:
        if (alone && bytes) memcpy(c->out, c->in, bytes);
        return alone || fl__dist_reduce_scatter(r);
    case FL_DIST_ALL_GATHER:
        if (bytes) memcpy((char *)c->out + (size_t)r->rank * bytes, c->in, bytes);
        return fl__dist_ring_gather(r, c->out, c->count * r->size);
    case FL_DIST_BROADCAST: return fl__dist_broadcast(r);
    case FL_DIST_GATHER: return fl__dist_star(r, true);
    case FL_DIST_SCATTER: return fl__dist_star(r, false);
    case FL_DIST_ALL_TO_ALL: return fl__dist_all_to_all(r);
    case FL_DIST_SEND: return fl__dist_swap(r, c->root, c->in, bytes, -1, NULL, 0);
    case FL_DIST_RECV: return fl__dist_swap(r, -1, NULL, 0, c->root, c->out, bytes);
    case FL_DIST_BARRIER: return fl__dist_barrier(r);
    default: return fl_fail("fl_dist_run: call of kind %d", (int)c->kind);
    }
}

FL_PRIVATE bool fl__dist_short(const fl_dist_call *c) {
    return (size_t)c->count * (c->dtype ? fl_dtype_size(c->dtype) : 1) < FL_DIST_SHORT;
}

FL_API bool fl_dist_run(const fl_dist_impl *impl, void *self, int rank, int size, const fl_dist_call *c) {
    const fl__dist_run r = {impl, self, rank, size, c, c->dtype ? fl_dtype_size(c->dtype) : 1};
    const bool own = impl && impl->run && size > 1 && !(impl->prompt && fl__dist_short(c));
    const fl_dist_answer answer = own ? impl->run(self, c) : FL_DIST_DECLINED;
    if (answer == FL_DIST_FAILED || (answer == FL_DIST_DECLINED && !fl__dist_compose(&r))) return false;
    const bool sums = c->kind == FL_DIST_ALL_REDUCE || c->kind == FL_DIST_REDUCE_SCATTER ||
                      (c->kind == FL_DIST_REDUCE && rank == c->root);
    if (sums && c->scale != 1 && answer != FL_DIST_SCALED)
        fl__dist_scale(c->dtype, c->out, c->count, c->scale);
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
