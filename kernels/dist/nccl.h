/* kernels/dist/nccl.h - NCCL as an implementation for fl_dist.h: loaded at run time, not linked

   Calls take device pointers; `stream` is a cudaStream_t. NCCL is used in non-blocking mode: operations are
   polled, so that a failure on another rank, or the deadline, ends a call. ncclCommAbort may hang: it runs in
   a separate thread, for which closing waits up to 2 s. Prototypes are written by hand for NCCL 2.14 and
   later. */
#ifndef NCCL_FL_H
#define NCCL_FL_H
#include "../../fl/distributed/group.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct nccl_id {
    char bytes[128];
} nccl_id;
typedef struct nccl_config { /* ncclConfig_t of 2.14: later versions read no more, by its size and version */
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;
enum { NCCL_SUCCESS, NCCL_IN_PROGRESS = 7, NCCL_NOT_READY = 600 };

/* Functions used of NCCL and of the CUDA driver; tests provide a mock. */
typedef struct nccl_table {
    int (*get_id)(nccl_id *id);
    int (*init)(void **comm, int size, nccl_id id, int rank, nccl_config *config);
    int (*async_error)(void *comm, int *error);
    int (*abort)(void *comm);
    int (*destroy)(void *comm);
    const char *(*text)(int error);
    int (*all_reduce)(const void *in, void *out, size_t n, int dtype, int op, void *comm, void *stream);
    int (*broadcast)(const void *in, void *out, size_t n, int dtype, int root, void *comm, void *stream);
    int (*reduce)(const void *in, void *out, size_t n, int dtype, int op, int root, void *comm,
                  void *stream);
    int (*all_gather)(const void *in, void *out, size_t n, int dtype, void *comm, void *stream);
    int (*reduce_scatter)(const void *in, void *out, size_t n, int dtype, int op, void *comm,
                          void *stream);
    int (*send)(const void *in, size_t n, int dtype, int to, void *comm, void *stream);
    int (*recv)(void *out, size_t n, int dtype, int from, void *comm, void *stream);
    int (*begin)(void);
    int (*end)(void);
    int (*query)(void *stream);                                    /* cuStreamQuery */
    int (*pointer)(void *value, int attribute, uintptr_t pointer); /* cuPointerGetAttribute */
    int (*alloc)(uintptr_t *pointer, size_t bytes);                /* cuMemAlloc */
    int (*free)(uintptr_t pointer);
} nccl_table;

static const nccl_table *nccl__use; /* NULL: the real library */

typedef struct nccl__group {
    const nccl_table *t;
    struct nccl__group *next; /* list of abandoned groups */
    void *comm;
    int rank, size;
    uintptr_t barrier_word;      /* device memory for barriers; 0: not allocated */
    bool aborted, ended; /* atomic */
} nccl__group;

/* The table of libnccl.so.2 and libcuda.so.1; NULL after fl_fail. */
static const nccl_table *nccl__load(void) {
    static nccl_table t;
    static const char *const names[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
        "ncclCommAbort",   "ncclCommDestroy",        "ncclGetErrorString",
        "ncclAllReduce",   "ncclBroadcast",          "ncclReduce",
        "ncclAllGather",   "ncclReduceScatter",      "ncclSend",
        "ncclRecv",        "ncclGroupStart",         "ncclGroupEnd",
        "cuStreamQuery",   "cuPointerGetAttribute",  "cuMemAlloc_v2",
        "cuMemFree_v2"};
    void *at[sizeof names / sizeof *names];
    if (nccl__use) return nccl__use;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    void *cuda = nccl ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!nccl || !cuda)
        return fl_fail("nccl: cannot load %s: install libnccl2 and an NVIDIA driver",
                       nccl ? "libcuda.so.1" : "libnccl.so.2"),
               NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(at[i] = dlsym(names[i][0] == 'c' ? cuda : nccl, names[i])))
            return fl_fail("nccl: function %s is missing, expected NCCL 2.14 or later", names[i]), NULL;
    memcpy(&t, at, sizeof t);
    return &t;
}

/* ---- waiting ---- */

static bool nccl__fail(const nccl__group *g, const char *what, int error) {
    return fl_fail("nccl: %s: %s", what, g->t->text(error));
}

/* Between polls: false after fl_fail if the group has failed or the deadline has passed. */
static bool nccl__check_time(const nccl__group *g, const char *what, double deadline) {
    if (__atomic_load_n(&g->aborted, __ATOMIC_ACQUIRE))
        return fl_fail("nccl: %s: the group has failed", what);
    if (fl_dist_now() > deadline) return fl_fail("nccl: %s: timeout", what);
    usleep(20);
    return true;
}

/* Waits until the operation that returned `result` is enqueued. */
static bool nccl__wait_enqueued(const nccl__group *g, const char *what, int result, double deadline) {
    while (result == NCCL_IN_PROGRESS) {
        const int asked = g->t->async_error(g->comm, &result);
        if (asked) return nccl__fail(g, what, asked);
        if (result == NCCL_IN_PROGRESS && !nccl__check_time(g, what, deadline)) return false;
    }
    return !result || nccl__fail(g, what, result);
}

/* Waits until the stream has completed it; errors of other ranks appear in the communicator. */
static bool nccl__wait_done(const nccl__group *g, const char *what, int result, void *stream,
                            double deadline) {
    if (!nccl__wait_enqueued(g, what, result, deadline)) return false;
    for (int state; (state = g->t->query(stream)) != 0;) {
        int error = 0;
        if (state != NCCL_NOT_READY) return fl_fail("nccl: %s: CUDA error %d in the stream", what, state);
        const int asked = g->t->async_error(g->comm, &error);
        if (asked || (error && error != NCCL_IN_PROGRESS))
            return nccl__fail(g, what, asked ? asked : error);
        if (!nccl__check_time(g, what, deadline)) return false;
    }
    return true;
}

/* ---- the implementation ---- */

static void *nccl__end_thread(void *arg) {
    nccl__group *g = (nccl__group *)arg;
    g->t->abort(g->comm);
    __atomic_store_n(&g->ended, true, __ATOMIC_RELEASE);
    return NULL;
}

static nccl__group *nccl__abandoned; /* abandoned: ncclCommAbort hangs, and may still return */

/* Aborts the communicator and frees the group, unless the abort hangs. */
static void nccl__end(nccl__group *g) {
    pthread_t thread;
    if (!g->comm) {
        fl_heap_free(g);
        return;
    }
    const double deadline = fl_dist_now() + 2;
    if (pthread_create(&thread, NULL, nccl__end_thread, g)) return;
    pthread_detach(thread);
    while (!__atomic_load_n(&g->ended, __ATOMIC_ACQUIRE) && fl_dist_now() < deadline) usleep(1000);
    if (__atomic_load_n(&g->ended, __ATOMIC_ACQUIRE)) {
        if (g->barrier_word) g->t->free(g->barrier_word);
        fl_heap_free(g);
        return;
    }
    g->next = __atomic_exchange_n(&nccl__abandoned, g, __ATOMIC_ACQ_REL);
    fl_log_message(FL_LOG_WARN, "fl_dist: nccl: ncclCommAbort hangs: the communicator is leaked");
}

static void *nccl__open(const fl_dist_rendezvous *p) {
    const nccl_table *t = nccl__load();
    nccl__group *g = t ? (nccl__group *)fl_heap_alloc(sizeof *g) : NULL;
    nccl_id id;
    nccl_config config = {sizeof config, 0xcafebeef, 21400, 0};
    char key[128];
    if (!g) return NULL;
    *g = (nccl__group){.t = t, .rank = p->rank, .size = p->size};
    snprintf(key, sizeof key, "nccl/%s", p->prefix);
    int result = p->rank ? 0 : t->get_id(&id);
    bool ok = !result || nccl__fail(g, "ncclGetUniqueId", result);
    if (ok && !p->rank)
        ok = p->store->set(p->store, key, &id, sizeof id);
    else if (ok)
        ok = p->store->get(p->store, key, &id, sizeof id, p->deadline) == (int64_t)sizeof id;
    if (ok)
        ok = nccl__wait_enqueued(g, "ncclCommInitRankConfig",
                                 t->init(&g->comm, p->size, id, p->rank, &config),
                                 p->deadline);
    if (ok) return g;
    nccl__end(g);
    return NULL;
}

static void nccl__abort(void *self) {
    __atomic_store_n(&((nccl__group *)self)->aborted, true, __ATOMIC_RELEASE);
}

static void nccl__close(void *self) {
    nccl__group *g = (nccl__group *)self;
    if (__atomic_load_n(&g->aborted, __ATOMIC_ACQUIRE)) {
        nccl__end(g);
        return;
    }
    g->t->destroy(g->comm);
    if (g->barrier_word) g->t->free(g->barrier_word);
    fl_heap_free(g);
}

/* Checks that p is device memory, as NCCL requires. */
static bool nccl__on_device(const nccl__group *g, const void *p) {
    enum { MEMORY_TYPE = 2, DEVICE = 2 };
    unsigned type = 0;
    if (!p || (!g->t->pointer(&type, MEMORY_TYPE, (uintptr_t)p) && type == DEVICE)) return true;
    return fl_fail("nccl: got host memory, expected tensors on a GPU");
}

enum { NCCL_INT8 = 0, NCCL__NONE = -1, NCCL__ALL = -2 };

/* Sends and receives in one group call: `sent` bytes of `in` to rank `to` (NCCL__ALL: chunk k to rank k), and
   `taken` bytes of `out` from rank `from` likewise. */
static int nccl__move(nccl__group *g, int to, const char *in, size_t sent, int from, char *out,
                      size_t taken, void *stream) {
    int result = g->t->begin();
    for (int k = 0; k < g->size && (!result || result == NCCL_IN_PROGRESS); k++) {
        const size_t part = to == NCCL__ALL ? (size_t)k * sent : 0,
                     offset = from == NCCL__ALL ? (size_t)k * taken : 0;
        if (to == k || to == NCCL__ALL)
            result = g->t->send(in + part, sent, NCCL_INT8, k, g->comm, stream);
        if ((!result || result == NCCL_IN_PROGRESS) && (from == k || from == NCCL__ALL))
            result = g->t->recv(out + offset, taken, NCCL_INT8, k, g->comm, stream);
    }
    const int end = g->t->end();
    return result && result != NCCL_IN_PROGRESS ? result : end;
}

static bool nccl__exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                           size_t in_bytes, uint64_t tag, double deadline) {
    nccl__group *g = (nccl__group *)self;
    (void)tag;
    if ((to >= 0 && !nccl__on_device(g, out)) || (from >= 0 && !nccl__on_device(g, in))) return false;
    return nccl__wait_done(g, "exchange",
                           nccl__move(g, to, (const char *)out, out_bytes, from, (char *)in, in_bytes, NULL),
                           NULL, deadline);
}

/* An all-reduce of a byte, which completes only when all ranks have started it. */
static bool nccl__barrier(nccl__group *g, const fl_dist_call *c) {
    const int failed = g->barrier_word ? 0 : g->t->alloc(&g->barrier_word, 1);
    if (failed) return fl_fail("nccl: cannot allocate device memory for barriers: CUDA error %d", failed);
    void *barrier_word = (void *)g->barrier_word;
    const int result = g->t->all_reduce(barrier_word, barrier_word, 1, NCCL_INT8, 0, g->comm, c->stream);
    return nccl__wait_done(g, "barrier", result, c->stream, c->deadline);
}

static fl_dist_answer nccl__run(void *self, const fl_dist_call *c) {
    static const int8_t dtypes[FL_DTYPE_COUNT] = {
        [FL_I8] = 0 + 1,  [FL_U8] = 1 + 1,  [FL_B8] = 1 + 1,  [FL_I32] = 2 + 1,
        [FL_U32] = 3 + 1, [FL_I64] = 4 + 1, [FL_U64] = 5 + 1, [FL_F16] = 6 + 1,
        [FL_F32] = 7 + 1, [FL_F64] = 8 + 1, [FL_BF16] = 9 + 1}; /* NCCL's plus 1; 0: not supported */
    static const int8_t ops[FL_DIST_REDUCTIONS] = {0, 0, 3, 2, 3, 2};
    enum { AVG = 4 };
    nccl__group *g = (nccl__group *)self;
    const int dtype = (int)c->dtype < FL_DTYPE_COUNT ? dtypes[c->dtype] - 1 : -1,
              op = c->reduction == FL_DIST_AVG && c->scale != 1 ? AVG : ops[c->reduction];
    const size_t n = (size_t)c->count, bytes = n * (c->dtype ? fl_dtype_size(c->dtype) : 1);
    const bool sums = c->kind == FL_DIST_ALL_REDUCE || c->kind == FL_DIST_REDUCE ||
                      c->kind == FL_DIST_REDUCE_SCATTER,
               is_root = c->root == g->rank, all_to_all = c->kind == FL_DIST_ALL_TO_ALL;
    const char *in = (const char *)c->in;
    char *out = (char *)c->out;
    int result, to = NCCL__NONE, from = NCCL__NONE;
    if (c->kind == FL_DIST_BARRIER) return nccl__barrier(g, c) ? FL_DIST_DONE : FL_DIST_FAILED;
    if (!n) return FL_DIST_DECLINED;
    const bool mean = c->reduction == FL_DIST_AVG && c->scale * g->size == 1;
    if (sums && (dtype < 0 || (c->scale != 1 && !mean)))
        return fl_fail("nccl: %s of %s%s is not supported", fl_dist_kind_name(c->kind),
                       fl_dtype_name(c->dtype), dtype < 0 ? "" : " with a scale"),
               FL_DIST_FAILED;
    if (!nccl__on_device(g, c->in) || !nccl__on_device(g, c->out)) return FL_DIST_FAILED;
    switch (c->kind) {
    case FL_DIST_ALL_REDUCE:
        result = g->t->all_reduce(out, out, n, dtype, op, g->comm, c->stream);
        break;
    case FL_DIST_REDUCE:
        result = g->t->reduce(out, out, n, dtype, op, c->root, g->comm, c->stream);
        break;
    case FL_DIST_BROADCAST:
        result = g->t->broadcast(out, out, bytes, NCCL_INT8, c->root, g->comm, c->stream);
        break;
    case FL_DIST_ALL_GATHER:
        result = g->t->all_gather(in, out, bytes, NCCL_INT8, g->comm, c->stream);
        break;
    case FL_DIST_REDUCE_SCATTER:
        result = g->t->reduce_scatter(in, out, n, dtype, op, g->comm, c->stream);
        break;
    default: /* collectives composed of sends and receives */
        if (c->kind == FL_DIST_GATHER || c->kind == FL_DIST_SEND) to = c->root;
        if (c->kind == FL_DIST_SCATTER || c->kind == FL_DIST_RECV) from = c->root;
        if (all_to_all || (c->kind == FL_DIST_SCATTER && is_root)) to = NCCL__ALL;
        if (all_to_all || (c->kind == FL_DIST_GATHER && is_root)) from = NCCL__ALL;
        result = nccl__move(g, to, in, bytes, from, out, bytes, c->stream);
    }
    if (!nccl__wait_done(g, fl_dist_kind_name(c->kind), result, c->stream, c->deadline))
        return FL_DIST_FAILED;
    return mean ? FL_DIST_SCALED : FL_DIST_DONE;
}

static const fl_dist_impl fl_dist_nccl = {.name = "nccl",
                                          .open = nccl__open,
                                          .exchange = nccl__exchange,
                                          .abort = nccl__abort,
                                          .close = nccl__close,
                                          .run = nccl__run};

/* For tests: a mock of the library; NULL: the real one. */
static __attribute__((unused)) void nccl_use(const nccl_table *t) {
    nccl__use = t;
}

#endif
/* MIT licence: see LICENSE. */
