/* fl/distributed/impl.h - communication implementations: their table, and collectives composed from exchanges

   An implementation moves bytes between ranks. It must provide `exchange`, or a `run` of every collective;
   collectives (ring, tree, pairwise) are composed from exchanges here. The order of a sum depends on ranks
   only, so results are bitwise reproducible. */
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
/* AVG: floats; AND and OR: b8; the others: numbers. MIN and MAX propagate NaN. */
typedef enum fl_dist_reduction {
    FL_DIST_SUM,
    FL_DIST_AVG,
    FL_DIST_MIN,
    FL_DIST_MAX,
    FL_DIST_AND,
    FL_DIST_OR,
    FL_DIST_REDUCTIONS
} fl_dist_reduction;

/* One call on one rank, with contiguous buffers. `count` is the number of elements of
     ALL_REDUCE, REDUCE, BROADCAST   out, in place; after REDUCE only the root's is defined
     ALL_GATHER, GATHER              in; out has `size` times as many (GATHER: at the root)
     REDUCE_SCATTER, SCATTER         out; in has `size` times as many (SCATTER: at the root)
     ALL_TO_ALL                      each of the `size` chunks of in and of out
     SEND, RECV                      in, out; root is the other rank */
typedef struct fl_dist_call {
    fl_dist_kind kind;
    fl_dist_reduction reduction;
    fl_dtype dtype;
    int root;
    int64_t count;
    double scale;    /* factor for the result */
    uint64_t number; /* number of the call in its group, from 1 */
    uint64_t tag;    /* hash of the call: equal on all ranks that make the same call */
    const void *in;
    void *out;
    double deadline; /* on fl_dist_now's clock */
    void *stream, *ready; /* set by fl_dist_device.take */
} fl_dist_call;

/* Rendezvous key-value store; a key is set once. set returns false after fl_fail. get waits for the key until
   the deadline, copies its value, at most `size` bytes, and returns its size, or -1 after fl_fail. */
typedef struct fl_dist_store fl_dist_store;
struct fl_dist_store {
    bool (*set)(const fl_dist_store *self, const char *key, const void *bytes, size_t n);
    int64_t (*get)(const fl_dist_store *self, const char *key, void *bytes, size_t size, double deadline);
    void *user;
};

/* Rendezvous information passed to an implementation's open. */
typedef struct fl_dist_rendezvous {
    int rank, size;
    const char *address; /* address of this rank, the only one to listen at */
    const char *prefix;  /* prefix of store keys, unique to the group */
    const fl_dist_store *store;
    double deadline;
    /* The job's secret, 16 random bytes that only its ranks know: rank 0 sends them to ranks that proved the
       token. Both ends of a data connection must prove them, as fl_dist_connect_ranks does. */
    const uint8_t *secret;
    int local_rank;
} fl_dist_rendezvous;

typedef enum fl_dist_answer {
    FL_DIST_FAILED,
    FL_DIST_DONE,
    FL_DIST_SCALED,  /* done, and the result is already multiplied by `scale` */
    FL_DIST_DECLINED /* not supported: the composition is used */
} fl_dist_answer;
/* Functions of an implementation whose run takes addresses of a device and returns when the call is on the
   device's queue; scale is 1, or that of an average. The calling thread calls take before run, for the
   buffers of tensors (out, in; or NULL) of that backend: it orders the call after earlier work on them, and
   sets stream and ready of c. It calls release after run, or after a failure: later work on them comes after
   the call. The group's thread calls check every 0.05 s between calls: false after fl_fail if those on the
   queue will not end. */
typedef struct fl_dist_device {
    const char *(*backend)(void *self);
    bool (*take)(void *self, fl_dist_call *c, fl_buffer *const b[2]);
    bool (*release)(const fl_dist_call *c, fl_buffer *const b[2]);
    bool (*check)(void *self);
} fl_dist_device;
typedef struct fl_dist_impl {
    const char *name;
    void *(*open)(const fl_dist_rendezvous *distance); /* connects; NULL after fl_fail("<name>: ...") */
    /* Sends out_bytes to rank `to` and receives in_bytes from rank `from` at the same time; -1: no such rank.
       Returns when both are done, or false after fl_fail, at the latest at the deadline. A received message
       with another tag or length is an error. NULL: run declines nothing. */
    bool (*exchange)(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                     size_t in_bytes, uint64_t tag, double deadline);
    /* Makes running calls fail soon and later calls fail at once. Called from any thread at any time; must
       not block. */
    void (*abort)(void *self);
    void (*close)(void *self); /* after the last call */
    /* Optional: runs a whole call natively. NULL, or FL_DIST_DECLINED: it is composed from exchanges. */
    fl_dist_answer (*run)(void *self, const fl_dist_call *c);
    /* Whether abort ends any exchange at once, even a half-transferred one. Short synchronous calls then run
       on the calling thread, which saves two thread switches. */
    bool prompt;
    const fl_dist_device *device; /* optional */
} fl_dist_impl;
/* A call is short if its bytes on a rank are below this. */
enum { FL_DIST_SHORT = 1 << 18 };

/* Current time in seconds on the clock of deadlines (monotonic). */
FL_API double fl_dist_now(void);
FL_API const char *fl_dist_kind_name(fl_dist_kind kind); /* such as "all_reduce" */
/* acc = reduction(acc, in) elementwise, for implementations: half precision is computed in f32, integers
   wrap, AVG adds. */
FL_API void fl_dist_accumulate(fl_dist_reduction reduction, fl_dtype dtype, void *acc, const void *in,
                               int64_t n);
/* Runs c on rank `rank` of `size`, by impl->run or composed from impl->exchange; impl is not used for size 1.
   False after fl_fail. */
FL_API bool fl_dist_run(const fl_dist_impl *impl, void *self, int rank, int size, const fl_dist_call *c);

/* private */
/* Signature of a kind of call. An operand has one chunk of `count` elements ('1'), one per rank ('n'), one
   per rank at the root only ('r'), one in place ('='), or does not exist ('-'). */
typedef struct fl__dist_signature {
    const char *fn; /* "fl_dist_all_reduce" */
    char out, in;
    bool rooted, reduces;
} fl__dist_signature;
FL_PRIVATE const fl__dist_signature *fl__dist_signature_of(int kind);
FL_PRIVATE bool fl__dist_is_short(const fl_dist_call *c); /* below FL_DIST_SHORT */

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

FL_PRIVATE const fl__dist_signature *fl__dist_signature_of(int kind) {
    static const fl__dist_signature forms[FL_DIST_KINDS] = {
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
    return fl__dist_signature_of((int)kind)->fn + sizeof "fl_dist_" - 1;
}

/* ---- reductions ---- */

#define FL__DIST_ADD(a, b) ((a) + (b))
#define FL__DIST_MINIMUM(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define FL__DIST_MAXIMUM(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
/* In blocks of constant length, which compilers vectorise. */
#define FL__DIST_LOOP(T, wide, load, store, f)                                                      \
    for (int64_t i = 0; i < n; i += 16) {                                                           \
        if (n - i >= 16)                                                                            \
            for (int k = 0; k < 16; k++)                                                            \
                a[i + k] = (T)store(f((wide)load(a[i + k]), (wide)load(b[i + k])));                 \
        else                                                                                        \
            for (int64_t k = i; k < n; k++) a[k] = (T)store(f((wide)load(a[k]), (wide)load(b[k]))); \
    }
#define FL__DIST_ACCUMULATE(D, T, sum, wide, load, store)                                            \
    static void fl__dist_fold_##D(fl_dist_reduction r, void *acc, const void *in, int64_t n) { \
        T *restrict a = acc;                                                                   \
        const T *restrict b = in;                                                              \
        if (r == FL_DIST_MIN)                                                                  \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_MINIMUM)                                 \
        else if (r == FL_DIST_MAX)                                                             \
            FL__DIST_LOOP(T, wide, load, store, FL__DIST_MAXIMUM)                                 \
        else                                                                                   \
            FL__DIST_LOOP(T, sum, load, store, FL__DIST_ADD)                                   \
    }
/* X(dtype, C type, type of sums (unsigned where they wrap), type of comparisons, load, store) */
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
FL__DIST_DTYPES(FL__DIST_ACCUMULATE)

static void fl__dist_fold_b8(fl_dist_reduction r, void *acc, const void *in, int64_t n) {
    uint8_t *a = acc;
    const uint8_t *b = in;
    for (int64_t i = 0; i < n; i++) a[i] = r == FL_DIST_AND ? a[i] & b[i] : a[i] | b[i];
}

FL_API void fl_dist_accumulate(fl_dist_reduction reduction, fl_dtype dtype, void *acc, const void *in,
                               int64_t n) {
#define FL__DIST_ENTRY(D, T, sum, wide, load, store) [FL_##D] = fl__dist_fold_##D,
    static void (*const fold[FL_DTYPE_COUNT])(fl_dist_reduction, void *, const void *, int64_t) = {
        FL__DIST_DTYPES(FL__DIST_ENTRY)[FL_B8] = fl__dist_fold_b8};
    if (n > 0) fold[dtype](reduction, acc, in, n);
}

/* p *= factor; float dtypes only. */
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

/* ---- composed collectives ---- */

enum {
    FL__DIST_SEGMENT = 1 << 18, /* pipeline segment in bytes */
    FL__DIST_SMALL = 1 << 15    /* up to this many bytes an all_reduce is pairwise */
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
    size_t n; /* bytes; 0: no transfer */
} fl__dist_span;

static fl__dist_span fl__dist_span_of(const void *p, size_t n) {
    return (fl__dist_span){(char *)(uintptr_t)p, n};
}

/* Sends `out` to rank `to` and receives `in` from rank `from`. */
static bool fl__dist_exchange(const fl__dist_run *r, int to, fl__dist_span out, int from, fl__dist_span in) {
    return (!out.n && !in.n) ||
           r->impl->exchange(r->self, out.n ? to : -1, out.p, out.n, in.n ? from : -1, in.p, in.n,
                             r->c->tag, r->c->deadline);
}

static bool fl__dist_send_span(const fl__dist_run *r, int to, fl__dist_span out) {
    return fl__dist_exchange(r, to, out, -1, fl__dist_span_of(NULL, 0));
}

static bool fl__dist_recv_span(const fl__dist_run *r, int from, fl__dist_span in) {
    return fl__dist_exchange(r, -1, fl__dist_span_of(NULL, 0), from, in);
}

/* The rank at distance `by` in the ring. */
static int fl__dist_neighbour(const fl__dist_run *r, int by) {
    return (r->rank + by % r->size + r->size) % r->size;
}

/* Chunk i of n elements at p; the first n % size chunks have one element more. */
static fl__dist_span fl__dist_chunk(const fl__dist_run *r, const void *p, int64_t n, int i) {
    const int64_t least = n / r->size, more = n % r->size, begin = least * i + (more < i ? more : i);
    return fl__dist_span_of((const char *)p + (size_t)begin * r->element,
                            (size_t)(least + (i < more)) * r->element);
}

/* Segment k of s; empty past its end. */
static fl__dist_span fl__dist_segment(fl__dist_span s, size_t k) {
    const size_t at = k * FL__DIST_SEGMENT, left = at < s.n ? s.n - at : 0;
    return fl__dist_span_of(s.p + (left ? at : 0), left < FL__DIST_SEGMENT ? left : FL__DIST_SEGMENT);
}

/* Sends `out` to the next rank and adds what the previous one sends to `acc`, segment by segment. */
static bool fl__dist_ring_step(const fl__dist_run *r, fl__dist_span out, fl__dist_span acc, char *scratch) {
    for (size_t k = 0;; k++) {
        const fl__dist_span o = fl__dist_segment(out, k), i = fl__dist_segment(acc, k);
        if (!o.n && !i.n) return true;
        if (!fl__dist_exchange(r, fl__dist_neighbour(r, 1), o, fl__dist_neighbour(r, -1),
                               fl__dist_span_of(scratch, i.n)))
            return false;
        fl_dist_accumulate(r->c->reduction, r->c->dtype, i.p, scratch, (int64_t)(i.n / r->element));
    }
}

/* Ring reduce-scatter of n elements at p, in place: afterwards this rank has the sum of its chunk. Chunk k
   starts at rank k + 1 and passes through the ring, which is the order of its sum. */
static bool fl__dist_ring_reduce(const fl__dist_run *r, char *p, int64_t n) {
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch != NULL;
    for (int s = 1; ok && s < r->size; s++)
        ok = fl__dist_ring_step(r, fl__dist_chunk(r, p, n, fl__dist_neighbour(r, -s)),
                                fl__dist_chunk(r, p, n, fl__dist_neighbour(r, -s - 1)), scratch);
    fl_heap_free(scratch);
    return ok;
}

/* Ring all-gather of n elements at p, of which each rank has its chunk. */
static bool fl__dist_ring_gather(const fl__dist_run *r, char *p, int64_t n) {
    bool ok = true;
    for (int s = 0; ok && s < r->size - 1; s++)
        ok = fl__dist_exchange(
            r, fl__dist_neighbour(r, 1), fl__dist_chunk(r, p, n, fl__dist_neighbour(r, -s)),
            fl__dist_neighbour(r, -1), fl__dist_chunk(r, p, n, fl__dist_neighbour(r, -s - 1)));
    return ok;
}

/* Pairwise exchange: chunk k of out comes from rank k, which gets `bytes` at in + k * apart. */
static bool fl__dist_pairwise(const fl__dist_run *r, char *out, const char *in, size_t bytes, size_t apart) {
    bool ok = true;
    for (int s = 0; ok && s < r->size; s++) {
        const size_t to = (size_t)fl__dist_neighbour(r, s), from = (size_t)fl__dist_neighbour(r, -s);
        if (s)
            ok = fl__dist_exchange(r, (int)to, fl__dist_span_of(in + to * apart, bytes), (int)from,
                                   fl__dist_span_of(out + from * bytes, bytes));
        else if (bytes)
            memcpy(out + from * bytes, in + to * apart, bytes);
    }
    return ok;
}

/* All-reduce of a small buffer: pairwise exchange, then a sum in rank order. Half as many messages as the
   ring; with two ranks not more bytes. */
static bool fl__dist_all_reduce_small(const fl__dist_run *r, char *p, size_t bytes) {
    char *all = fl_heap_alloc((size_t)r->size * bytes);
    const bool ok = all && fl__dist_pairwise(r, all, p, bytes, 0);
    for (int k = 1; ok && k < r->size; k++)
        fl_dist_accumulate(r->c->reduction, r->c->dtype, all, all + (size_t)k * bytes, r->c->count);
    if (ok) memcpy(p, all, bytes);
    fl_heap_free(all);
    return ok;
}

/* Ring reduce-scatter into `out`; partial sums alternate between two buffers, one of them `out`. */
static bool fl__dist_reduce_scatter(const fl__dist_run *r, size_t bytes) {
    const char *in = r->c->in, *have = in + (size_t)fl__dist_neighbour(r, -1) * bytes;
    char *sum[2] = {r->c->out, r->size > 2 ? fl_heap_alloc(bytes) : NULL};
    char *scratch = fl_heap_alloc(FL__DIST_SEGMENT);
    bool ok = scratch && (sum[1] || r->size <= 2);
    for (int s = 0; ok && s < r->size - 1; s++) {
        char *to = sum[(r->size - 2 - s) % 2];
        memcpy(to, in + (size_t)fl__dist_neighbour(r, -s - 2) * bytes, bytes);
        ok = fl__dist_ring_step(r, fl__dist_span_of(have, bytes), fl__dist_span_of(to, bytes), scratch);
        have = to;
    }
    fl_heap_free(scratch);
    fl_heap_free(sum[1]);
    return ok;
}

/* Pipelined broadcast along the ring from the root, by segments. */
static bool fl__dist_broadcast_chain(const fl__dist_run *r, fl__dist_span all) {
    const int distance = fl__dist_neighbour(r, -r->c->root);
    const bool first = distance == 0, last = distance == r->size - 1;
    bool ok = true;
    for (size_t k = 0; ok && k * FL__DIST_SEGMENT < all.n + (first ? 0 : FL__DIST_SEGMENT); k++) {
        fl__dist_span out = {0}, in = {0};
        if (!last && (first || k)) out = fl__dist_segment(all, k - !first);
        if (!first) in = fl__dist_segment(all, k);
        ok = fl__dist_exchange(r, fl__dist_neighbour(r, 1), out, fl__dist_neighbour(r, -1), in);
    }
    return ok;
}

/* Binomial tree broadcast: in round d, ranks at distance below d from the root send to distance d more. */
static bool fl__dist_broadcast_tree(const fl__dist_run *r, fl__dist_span all) {
    const int distance = fl__dist_neighbour(r, -r->c->root);
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2) {
        if (distance < d && distance + d < r->size)
            ok = fl__dist_send_span(r, fl__dist_neighbour(r, d), all);
        else if (distance >= d && distance < 2 * d)
            ok = fl__dist_recv_span(r, fl__dist_neighbour(r, -d), all);
    }
    return ok;
}

/* Gather or scatter through the root: the chunks of n elements, `own` on this rank, to or from the root's
   `whole`. */
static bool fl__dist_through_root(const fl__dist_run *r, const void *whole, int64_t n, fl__dist_span own,
                                  bool gather) {
    const int root = r->c->root;
    if (r->rank != root) return gather ? fl__dist_send_span(r, root, own) : fl__dist_recv_span(r, root, own);
    bool ok = true;
    for (int k = 0; ok && k < r->size; k++) {
        const fl__dist_span part = fl__dist_chunk(r, whole, n, k);
        if (k != root)
            ok = gather ? fl__dist_recv_span(r, k, part) : fl__dist_send_span(r, k, part);
        else if (part.n && part.p != own.p)
            memcpy(gather ? part.p : own.p, gather ? own.p : part.p, part.n);
    }
    return ok;
}

/* Dissemination barrier: after the round of distance d each rank knows that the 2 d ranks before it have
   arrived. */
static bool fl__dist_barrier(const fl__dist_run *r) {
    char out = 0, in;
    bool ok = true;
    for (int d = 1; ok && d < r->size; d *= 2)
        ok = fl__dist_exchange(r, fl__dist_neighbour(r, d), fl__dist_span_of(&out, 1),
                               fl__dist_neighbour(r, -d), fl__dist_span_of(&in, 1));
    return ok;
}

static bool fl__dist_compose(const fl__dist_run *r) {
    const fl_dist_call *c = r->c;
    const int64_t all = c->count * r->size;
    const size_t bytes = (size_t)c->count * r->element;
    const fl__dist_span in = fl__dist_span_of(c->in, bytes), out = fl__dist_span_of(c->out, bytes);
    const bool single = r->size == 1;
    switch (c->kind) {
    case FL_DIST_ALL_REDUCE:
        if (single) return true;
        if (bytes <= FL__DIST_SMALL || (r->size == 2 && bytes <= FL__DIST_SEGMENT))
            return fl__dist_all_reduce_small(r, out.p, bytes);
        return fl__dist_ring_reduce(r, out.p, c->count) && fl__dist_ring_gather(r, out.p, c->count);
    case FL_DIST_REDUCE: /* reduce-scatter, then gather to the root */
        if (single || !fl__dist_ring_reduce(r, out.p, c->count)) return single;
        return fl__dist_through_root(r, out.p, c->count, fl__dist_chunk(r, out.p, c->count, r->rank), true);
    case FL_DIST_REDUCE_SCATTER:
        if (single && bytes) memcpy(c->out, c->in, bytes);
        return single || fl__dist_reduce_scatter(r, bytes);
    case FL_DIST_ALL_GATHER:
        if (bytes) memcpy(out.p + (size_t)r->rank * bytes, in.p, bytes);
        return fl__dist_ring_gather(r, out.p, all);
    case FL_DIST_BROADCAST:
        return bytes > FL__DIST_SEGMENT ? fl__dist_broadcast_chain(r, out) : fl__dist_broadcast_tree(r, out);
    case FL_DIST_GATHER: return fl__dist_through_root(r, c->out, all, in, true);
    case FL_DIST_SCATTER: return fl__dist_through_root(r, c->in, all, out, false);
    case FL_DIST_ALL_TO_ALL: return fl__dist_pairwise(r, out.p, in.p, bytes, bytes);
    case FL_DIST_SEND: return fl__dist_send_span(r, c->root, in);
    case FL_DIST_RECV: return fl__dist_recv_span(r, c->root, out);
    case FL_DIST_BARRIER: return fl__dist_barrier(r);
    default:
        return fl_fail("fl_dist_run: unknown kind %d, expected 1 to %d", (int)c->kind, FL_DIST_KINDS - 1);
    }
}

FL_PRIVATE bool fl__dist_is_short(const fl_dist_call *c) {
    return (size_t)c->count * (c->dtype ? fl_dtype_size(c->dtype) : 1) < FL_DIST_SHORT;
}

FL_API bool fl_dist_run(const fl_dist_impl *impl, void *self, int rank, int size, const fl_dist_call *c) {
    if (!fl_given(c, "fl_dist_run", "the call")) return false;
    const fl__dist_run r = {impl, self, rank, size, c, c->dtype ? fl_dtype_size(c->dtype) : 1};
    const bool simple = impl && impl->prompt && impl->exchange && fl__dist_is_short(c);
    const bool own = impl && impl->run && size > 1 && !simple;
    const fl_dist_answer answer = own ? impl->run(self, c) : FL_DIST_DECLINED;
    if (answer == FL_DIST_DECLINED && impl && !impl->exchange && size > 1)
        return fl_fail("%s: %s has no exchange, and its run declined the call",
                       fl__dist_signature_of((int)c->kind)->fn, impl->name);
    if (answer == FL_DIST_FAILED || (answer == FL_DIST_DECLINED && !fl__dist_compose(&r))) return false;
    const bool has = c->kind != FL_DIST_REDUCE || rank == c->root;
    if (fl__dist_signature_of((int)c->kind)->reduces && has && c->scale != 1 && answer != FL_DIST_SCALED)
        fl__dist_scale(c->dtype, c->out, c->count, c->scale);
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
