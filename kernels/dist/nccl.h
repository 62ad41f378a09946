/* nccl.h - NCCL as an implementation for fl_dist.h: loaded when it is asked for, never linked

   Calls take pointers of the device; `stream` is a cudaStream_t. All of NCCL runs non-blocking: what is
   under way is polled, so that a failure elsewhere, or the deadline, ends a call. ncclCommAbort may hang:
   it runs in a thread of its own, for which closing waits a while. Prototypes are by hand, of NCCL 2.14 and
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
typedef struct nccl_config { /* as of 2.14: later ones read no further */
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;
enum { NCCL_SUCCESS, NCCL_IN_PROGRESS = 7, NCCL_NOT_READY = 600 };

/* What is used of it, and of the driver. Tests give one of their own. */
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

static const nccl_table *nccl__use; /* NULL: the library's */

typedef struct nccl__group {
    const nccl_table *t;
    struct nccl__group *next; /* of those left behind */
    void *comm;
    int rank, size;
    uintptr_t word;      /* of the device, for barriers; 0: none yet */
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
        return fl_fail("nccl: %s: apt-get install libnccl2, and a driver",
                       nccl ? "libcuda.so.1" : "libnccl.so.2"),
               NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(at[i] = dlsym(names[i][0] == 'c' ? cuda : nccl, names[i])))
            return fl_fail("nccl: the library has no %s", names[i]), NULL;
    memcpy(&t, at, sizeof t);
    return &t;
}

/* ---- waiting ---- */

static bool nccl__fail(const nccl__group *g, const char *what, int error) {
    return fl_fail("nccl: %s: %s", what, g->t->text(error));
}

static bool nccl__may_go_on(const nccl__group *g, const char *what, double deadline) {
    if (__atomic_load_n(&g->aborted, __ATOMIC_ACQUIRE))
        return fl_fail("nccl: %s: the group has failed", what);
    if (fl_dist_now() > deadline) return fl_fail("nccl: %s: no time left", what);
    usleep(20);
    return true;
}

/* Until what returned `result` is started. */
static bool nccl__started(const nccl__group *g, const char *what, int result, double deadline) {
    while (result == NCCL_IN_PROGRESS) {
        const int asked = g->t->async_error(g->comm, &result);
        if (asked) return nccl__fail(g, what, asked);
        if (result == NCCL_IN_PROGRESS && !nccl__may_go_on(g, what, deadline)) return false;
    }
    return !result || nccl__fail(g, what, result);
}

/* Until the stream has done it; what goes wrong on another rank shows in the communicator. */
static bool nccl__done(const nccl__group *g, const char *what, int result, void *stream,
                       double deadline) {
    if (!nccl__started(g, what, result, deadline)) return false;
    for (int state; (state = g->t->query(stream)) != 0;) {
        int error = 0;
        if (state != NCCL_NOT_READY) return fl_fail("nccl: %s: the stream has error %d", what, state);
        const int asked = g->t->async_error(g->comm, &error);
        if (asked || (error && error != NCCL_IN_PROGRESS))
            return nccl__fail(g, what, asked ? asked : error);
        if (!nccl__may_go_on(g, what, deadline)) return false;
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

static nccl__group *nccl__left_behind; /* their abort hangs, and may yet come back */

/* Ends the communicator; the group stays if that hangs. */
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
        if (g->word) g->t->free(g->word);
        fl_heap_free(g);
        return;
    }
    g->next = __atomic_exchange_n(&nccl__left_behind, g, __ATOMIC_ACQ_REL);
    fl_message(FL_LOG_WARN, "fl_dist: nccl: ncclCommAbort hangs: its communicator is left behind");
}

static void *nccl__open(const fl_dist_place *p) {
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
        ok = nccl__started(g, "ncclCommInitRankConfig", t->init(&g->comm, p->size, id, p->rank, &config),
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
    if (g->word) g->t->free(g->word);
    fl_heap_free(g);
}

/* The device's memory, which is all that NCCL takes. */
static bool nccl__on_device(const nccl__group *g, const void *p) {
    enum { MEMORY_TYPE = 2, DEVICE = 2 };
    unsigned type = 0;
    if (!p || (!g->t->pointer(&type, MEMORY_TYPE, (uintptr_t)p) && type == DEVICE)) return true;
    return fl_fail("nccl: memory of the host: tensors of a GPU are wanted");
}

enum { NCCL_INT8 = 0, NCCL__NOBODY = -1, NCCL__ALL = -2 };

/* Messages in one group: `in`, of `sent` bytes, to rank `to` (part k of it to each rank k, if that is
   all), and `out` from rank `from` the same. */
static int nccl__move(nccl__group *g, int to, const char *in, size_t sent, int from, char *out,
                      size_t taken, void *stream) {
    int result = g->t->begin();
    for (int k = 0; k < g->size && (!result || result == NCCL_IN_PROGRESS); k++) {
        const size_t part = to == NCCL__ALL ? (size_t)k * sent : 0,
                     room = from == NCCL__ALL ? (size_t)k * taken : 0;
        if (to == k || to == NCCL__ALL)
            result = g->t->send(in + part, sent, NCCL_INT8, k, g->comm, stream);
        if ((!result || result == NCCL_IN_PROGRESS) && (from == k || from == NCCL__ALL))
            result = g->t->recv(out + room, taken, NCCL_INT8, k, g->comm, stream);
    }
    const int end = g->t->end();
    return result && result != NCCL_IN_PROGRESS ? result : end;
}

static bool nccl__exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                           size_t in_bytes, uint64_t tag, double deadline) {
    nccl__group *g = (nccl__group *)self;
    (void)tag;
    if ((to >= 0 && !nccl__on_device(g, out)) || (from >= 0 && !nccl__on_device(g, in))) return false;
    return nccl__done(g, "exchange",
                      nccl__move(g, to, (const char *)out, out_bytes, from, (char *)in, in_bytes, NULL), NULL,
                      deadline);
}

/* A sum of a byte, which no rank has before all have come. */
static bool nccl__barrier(nccl__group *g, const fl_dist_call *c) {
    const int failed = g->word ? 0 : g->t->alloc(&g->word, 1);
    if (failed) return fl_fail("nccl: no memory of the device for barriers: error %d", failed);
    void *word = (void *)g->word;
    const int result = g->t->all_reduce(word, word, 1, NCCL_INT8, 0, g->comm, c->stream);
    return nccl__done(g, "barrier", result, c->stream, c->deadline);
}

static fl_dist_answer nccl__run(void *self, const fl_dist_call *c) {
    static const int8_t dtypes[FL_DTYPE_COUNT] = {
        [FL_I8] = 0 + 1,  [FL_U8] = 1 + 1,  [FL_B8] = 1 + 1,  [FL_I32] = 2 + 1,
        [FL_U32] = 3 + 1, [FL_I64] = 4 + 1, [FL_U64] = 5 + 1, [FL_F16] = 6 + 1,
        [FL_F32] = 7 + 1, [FL_F64] = 8 + 1, [FL_BF16] = 9 + 1}; /* one more than NCCL's */
    static const int8_t ops[FL_DIST_REDUCTIONS] = {0, 0, 3, 2, 3, 2};
    enum { AVG = 4 };
    nccl__group *g = (nccl__group *)self;
    const int dtype = (int)c->dtype < FL_DTYPE_COUNT ? dtypes[c->dtype] - 1 : -1,
              op = c->reduction == FL_DIST_AVG && c->scale != 1 ? AVG : ops[c->reduction];
    const size_t n = (size_t)c->count, bytes = n * (c->dtype ? fl_dtype_size(c->dtype) : 1);
    const bool sums = c->kind == FL_DIST_ALL_REDUCE || c->kind == FL_DIST_REDUCE ||
                      c->kind == FL_DIST_REDUCE_SCATTER,
               here = c->root == g->rank, every = c->kind == FL_DIST_ALL_TO_ALL;
    const char *in = (const char *)c->in;
    char *out = (char *)c->out;
    int result, to = NCCL__NOBODY, from = NCCL__NOBODY;
    if (c->kind == FL_DIST_BARRIER) return nccl__barrier(g, c) ? FL_DIST_DONE : FL_DIST_FAILED;
    if (!n) return FL_DIST_DECLINED;
    const bool mean = c->reduction == FL_DIST_AVG && c->scale * g->size == 1;
    if (sums && (dtype < 0 || (c->scale != 1 && !mean)))
        return fl_fail("nccl: there is no %s of %s%s", fl_dist_kind_name(c->kind),
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
    default: /* what NCCL composes of messages */
        if (c->kind == FL_DIST_GATHER || c->kind == FL_DIST_SEND) to = c->root;
        if (c->kind == FL_DIST_SCATTER || c->kind == FL_DIST_RECV) from = c->root;
        if (every || (c->kind == FL_DIST_SCATTER && here)) to = NCCL__ALL;
        if (every || (c->kind == FL_DIST_GATHER && here)) from = NCCL__ALL;
        result = nccl__move(g, to, in, bytes, from, out, bytes, c->stream);
    }
    if (!nccl__done(g, fl_dist_kind_name(c->kind), result, c->stream, c->deadline)) return FL_DIST_FAILED;
    return mean ? FL_DIST_SCALED : FL_DIST_DONE;
}

static const fl_dist_impl fl_dist_nccl = {.name = "nccl",
                                          .open = nccl__open,
                                          .exchange = nccl__exchange,
                                          .abort = nccl__abort,
                                          .close = nccl__close,
                                          .run = nccl__run};

/* For tests: what stands for the library; NULL: itself. */
static __attribute__((unused)) void nccl_use(const nccl_table *t) {
    nccl__use = t;
}

#endif
/* MIT licence: see LICENSE. */
