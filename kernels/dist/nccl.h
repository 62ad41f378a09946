/* kernels/dist/nccl.h - NCCL as an implementation for fl_dist.h: tensors of the rank's GPU, where they are

   NCCL is loaded at run time, not linked. The calls of a group run on a stream of its own: it waits for the
   work on the tensors that was started before the call, and their later uses wait for it. The host waits in
   barriers only. NCCL is used in non-blocking mode: calls are polled until they are on the stream, and
   between them the group's thread asks for errors of other ranks. A failure ends calls that wait on the
   device by ncclCommAbort, which may hang, as may the end of a communicator: both run in threads of their
   own, for which closing waits 2 s. */
#ifndef NCCL_FL_H
#define NCCL_FL_H
#include "../../fl/distributed/group.h"
#include "../cuda/flk.h"
#include "../cuda/library.h"
#include "../cuda/memory.h"
#include "nccl_calls.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct nccl__group {
    struct nccl__group *next; /* list of abandoned groups */
    fl__nccl_comm comm;       /* atomic; NULL: ended, by the thread that took it */
    int device, rank, size;
    void *stream;
    fl_buffer *barrier_word; /* on the device */
    void *event;             /* on the stream, after calls up to some; NULL: none is known to run */
    bool more;               /* calls were started after the event was recorded */
    fl_dist_call latest;
    bool aborted;        /* atomic, as the next two */
    int inside, threads; /* threads that may use comm; threads that end it */
} nccl__group;

static struct {
    FL__NCCL_CALLS(FL__CUDA_FIELD)
} nccl__call;
static fl__cuda_library nccl__library = {.file = "libnccl.so.2", .instead = "fl_dist_init: nccl fails",
                                         .functions = &nccl__call,
                                         .name = {FL__NCCL_CALLS(FL__CUDA_NAME)}};

/* ---- the rank's device ---- */

/* The device of the default backend; -1: it is another one. */
static int nccl__default_device(void) {
    const char *name = fl_backend_name_of(fl_backend_default());
    for (int i = 0; i < FLK_DEVICES; i++)
        if (!strcmp(name, fl__cuda_device(i)->name)) return i;
    return -1;
}

/* That of the local rank, unless there are fewer: a launcher may show each rank its own alone. */
static int nccl__local_device(int local_rank) {
    return local_rank < FLK_DEVICES && !flk_start(local_rank) ? local_rank : 0;
}

/* ---- waiting ---- */

static bool nccl__fail(const char *what, fl__nccl_status error) {
    return fl_fail("nccl: %s: %s", what, nccl__call.ncclGetErrorString(error));
}

/* Between nccl__enter and nccl__leave comm is not ended, but for a thread that hangs. False after fl_fail. */
static void nccl__leave(nccl__group *g) {
    __atomic_fetch_sub(&g->inside, 1, __ATOMIC_SEQ_CST);
}
static bool nccl__enter(nccl__group *g) {
    __atomic_fetch_add(&g->inside, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&g->aborted, __ATOMIC_SEQ_CST)) return true;
    nccl__leave(g);
    return fl_fail("nccl: the group has failed");
}

/* Records the event after the calls so far, if more were started. */
static const char *nccl__mark(nccl__group *g) {
    flk_unmark(g->event);
    g->event = NULL;
    const char *why = g->more ? flk_mark(&g->event, g->stream) : NULL;
    g->more = false;
    return why;
}

/* Polls until what returned `result` is done, or a call is on the stream. */
static bool nccl__finish(const nccl__group *g, const char *what, fl__nccl_status result, double deadline) {
    while (result == FL__NCCL_IN_PROGRESS) {
        if (__atomic_load_n(&g->aborted, __ATOMIC_SEQ_CST))
            return fl_fail("nccl: %s: the group has failed", what); /* comm may be NULL */
        const fl__nccl_status asked = nccl__call.ncclCommGetAsyncError(g->comm, &result);
        if (asked) return nccl__fail(what, asked);
        if (result != FL__NCCL_IN_PROGRESS) break;
        if (fl_dist_now() > deadline) return fl_fail("nccl: %s: timeout", what);
        usleep(20);
    }
    return !result || nccl__fail(what, result);
}

/* ---- the end ---- */

static void nccl__start_thread(void *(*run)(void *), nccl__group *g) {
    pthread_t thread;
    __atomic_fetch_add(&g->threads, 1, __ATOMIC_SEQ_CST);
    if (pthread_create(&thread, NULL, run, g)) __atomic_fetch_sub(&g->threads, 1, __ATOMIC_SEQ_CST);
    else pthread_detach(thread);
}

/* Waits until no thread ends the communicator, 2 s after its calls. Whether it has ended. */
static bool nccl__await_end(const nccl__group *g) {
    double now = fl_dist_now();
    for (double until = now + 2; __atomic_load_n(&g->threads, __ATOMIC_SEQ_CST) && now < until;) {
        usleep(1000);
        now = fl_dist_now();
        const bool runs = !__atomic_load_n(&g->aborted, __ATOMIC_SEQ_CST) && flk_waits(g->event);
        if (runs && now < g->latest.deadline) until = now + 2;
    }
    return !__atomic_load_n(&g->threads, __ATOMIC_SEQ_CST) && !__atomic_load_n(&g->comm, __ATOMIC_SEQ_CST);
}

/* Aborts the communicator when no call uses it, or after 0.1 s those that hang in it. */
static void *nccl__abort_thread(void *arg) {
    nccl__group *g = (nccl__group *)arg;
    const double deadline = fl_dist_now() + 0.1;
    while (__atomic_load_n(&g->inside, __ATOMIC_SEQ_CST) && fl_dist_now() < deadline) usleep(1000);
    fl__nccl_comm comm = __atomic_exchange_n(&g->comm, NULL, __ATOMIC_SEQ_CST);
    if (comm) nccl__call.ncclCommAbort(comm);
    __atomic_fetch_sub(&g->threads, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void nccl__abort(void *self) {
    nccl__group *g = (nccl__group *)self;
    if (!__atomic_exchange_n(&g->aborted, true, __ATOMIC_SEQ_CST)) nccl__start_thread(nccl__abort_thread, g);
}

/* Ends the communicator after its calls. */
static void *nccl__close_thread(void *arg) {
    nccl__group *g = (nccl__group *)arg;
    fl_quiet(+1);
    if (!flk_start(g->device) && !flk_wait(NULL, g->event) && nccl__enter(g)) {
        const bool ok = nccl__finish(g, "ncclCommFinalize", nccl__call.ncclCommFinalize(g->comm), INFINITY);
        fl__nccl_comm comm = ok ? __atomic_exchange_n(&g->comm, NULL, __ATOMIC_SEQ_CST) : NULL;
        if (comm) nccl__call.ncclCommDestroy(comm);
        nccl__leave(g);
    }
    fl_error_clear();
    __atomic_fetch_sub(&g->threads, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static nccl__group *nccl__abandoned; /* their threads hang, and may still return */

static void nccl__close(void *self) {
    nccl__group *g = (nccl__group *)self;
    if (g->more) nccl__mark(g);
    if (!__atomic_load_n(&g->aborted, __ATOMIC_SEQ_CST)) {
        nccl__start_thread(nccl__close_thread, g);
        if (!nccl__await_end(g)) nccl__abort(g);
    }
    if (!nccl__await_end(g)) {
        g->next = __atomic_exchange_n(&nccl__abandoned, g, __ATOMIC_ACQ_REL);
        fl_log_message(FL_LOG_WARN, "fl_dist: nccl: ncclCommAbort hangs: the communicator is leaked");
        return;
    }
    flk_unmark(g->event);
    fl_buffer_drop(g->barrier_word);
    fl_heap_free(g);
}

/* ---- the start ---- */

static void *nccl__open(const fl_dist_rendezvous *p) {
    static int streams;
    if (!fl__cuda_load(&nccl__library))
        return fl_fail("nccl: libnccl.so.2 of NCCL 2.14 or later is not found: install it (libnccl2, or "
                       "nvidia-nccl-cu13 of pip), or name its folder in FL_CUDA_LIBS"), NULL;
    nccl__group *g = (nccl__group *)fl_heap_alloc(sizeof *g);
    if (!g) return NULL;
    const int chosen = nccl__default_device();
    *g = (nccl__group){.device = chosen < 0 ? nccl__local_device(p->local_rank) : chosen,
                       .rank = p->rank,
                       .size = p->size};
    const int number = __atomic_fetch_add(&streams, 1, __ATOMIC_RELAXED) % FLK_GROUP_STREAMS;
    const char *why = flk_use_stream(g->device, FLK_GROUP_STREAM + number, &g->stream);
    fl__nccl_id id;
    fl__nccl_config config = {.size = sizeof config, .magic = 0xcafebeef, .version = 21400, .blocking = 0};
    char key[128];
    snprintf(key, sizeof key, "nccl/%s", p->prefix);
    const fl_mem_info info = {.device = fl__cuda_device(g->device), .op = "dist_init", .lifetime = 2,
                              .stream = g->stream};
    if (!why) g->barrier_word = fl_buffer_new(1, &info);
    fl__nccl_status result = why || p->rank ? 0 : nccl__call.ncclGetUniqueId(&id);
    const bool ok = (!why || fl_fail("nccl: %s", why)) && g->barrier_word &&
                    (!result || nccl__fail("ncclGetUniqueId", result)) &&
                    (p->rank ? p->store->get(p->store, key, &id, sizeof id, p->deadline) == (int64_t)sizeof id
                             : p->store->set(p->store, key, &id, sizeof id)) &&
                    nccl__finish(g, "ncclCommInitRankConfig",
                                 nccl__call.ncclCommInitRankConfig(&g->comm, p->size, id, p->rank, &config),
                                 p->deadline);
    if (ok) return g;
    nccl__abort(g);
    nccl__close(g);
    return NULL;
}

/* ---- calls ---- */

static const char *nccl__backend(void *self) {
    return fl__cuda_device(((nccl__group *)self)->device)->name;
}

static bool nccl__take(void *self, fl_dist_call *c, fl_buffer *const b[2]) {
    nccl__group *g = (nccl__group *)self;
    c->stream = g->stream;
    return fl__cuda_lend(g->device, b, g->stream, &c->ready);
}

static bool nccl__release(const fl_dist_call *c, fl_buffer *const b[2]) {
    return fl__cuda_take_back(b, c->stream, c->ready);
}

/* Sends and receives in one group call: `sent` bytes of `in` to rank `to` (NCCL__ALL: chunk k to rank k), and
   `taken` bytes of `out` from rank `from` likewise. */
enum { NCCL__NONE = -1, NCCL__ALL = -2 };
static fl__nccl_status nccl__move(nccl__group *g, int to, const char *in, size_t sent, int from, char *out,
                                  size_t taken) {
    const fl__nccl_stream stream = (fl__nccl_stream)g->stream;
    fl__nccl_status result = nccl__call.ncclGroupStart();
    for (int k = 0; k < g->size && (!result || result == FL__NCCL_IN_PROGRESS); k++) {
        const size_t part = to == NCCL__ALL ? (size_t)k * sent : 0,
                     offset = from == NCCL__ALL ? (size_t)k * taken : 0;
        if (to == k || to == NCCL__ALL)
            result = nccl__call.ncclSend(in + part, sent, FL__NCCL_I8, k, g->comm, stream);
        if ((!result || result == FL__NCCL_IN_PROGRESS) && (from == k || from == NCCL__ALL))
            result = nccl__call.ncclRecv(out + offset, taken, FL__NCCL_I8, k, g->comm, stream);
    }
    const fl__nccl_status end = nccl__call.ncclGroupEnd();
    return result && result != FL__NCCL_IN_PROGRESS ? result : end;
}

static fl__nccl_status nccl__start(nccl__group *g, const fl_dist_call *c, fl__nccl_dtype dtype,
                                   fl__nccl_op op) {
    const fl__nccl_stream stream = (fl__nccl_stream)g->stream;
    const bool is_root = c->root == g->rank, all_to_all = c->kind == FL_DIST_ALL_TO_ALL;
    const size_t n = (size_t)c->count, bytes = n * (c->dtype ? fl_dtype_size(c->dtype) : 1);
    const char *in = (const char *)c->in;
    char *out = (char *)c->out;
    int to = NCCL__NONE, from = NCCL__NONE;
    switch (c->kind) {
    case FL_DIST_BARRIER: /* completes only when all ranks have started it */
        out = (char *)g->barrier_word->ptr;
        return nccl__call.ncclAllReduce(out, out, 1, FL__NCCL_I8, FL__NCCL_SUM, g->comm, stream);
    case FL_DIST_ALL_REDUCE: return nccl__call.ncclAllReduce(out, out, n, dtype, op, g->comm, stream);
    case FL_DIST_REDUCE: return nccl__call.ncclReduce(out, out, n, dtype, op, c->root, g->comm, stream);
    case FL_DIST_REDUCE_SCATTER:
        return nccl__call.ncclReduceScatter(in, out, n, dtype, op, g->comm, stream);
    case FL_DIST_BROADCAST:
        return nccl__call.ncclBroadcast(out, out, bytes, FL__NCCL_I8, c->root, g->comm, stream);
    case FL_DIST_ALL_GATHER: return nccl__call.ncclAllGather(in, out, bytes, FL__NCCL_I8, g->comm, stream);
    default: /* composed of sends and receives */
        if (c->kind == FL_DIST_GATHER || c->kind == FL_DIST_SEND) to = c->root;
        if (c->kind == FL_DIST_SCATTER || c->kind == FL_DIST_RECV) from = c->root;
        if (all_to_all || (c->kind == FL_DIST_SCATTER && is_root)) to = NCCL__ALL;
        if (all_to_all || (c->kind == FL_DIST_GATHER && is_root)) from = NCCL__ALL;
        return nccl__move(g, to, in, bytes, from, out, bytes);
    }
}

/* Starts the call on the stream behind its event; a barrier is waited for. */
static bool nccl__run_on_stream(nccl__group *g, const fl_dist_call *c, fl__nccl_dtype dtype, fl__nccl_op op) {
    const char *what = fl_dist_kind_name(c->kind), *why = flk_wait(g->stream, c->ready);
    const bool barrier = c->kind == FL_DIST_BARRIER;
    if (why) return fl_fail("nccl: %s: %s", what, why);
    if (!nccl__enter(g)) return false;
    const bool ok = nccl__finish(g, what, nccl__start(g, c, dtype, op), c->deadline);
    nccl__leave(g);
    if (!ok) return false;
    g->latest = *c;
    g->more = true;
    if (g->event && !barrier) return true;
    why = nccl__mark(g);
    if (!why && barrier) why = flk_wait(NULL, g->event);
    if (why) return fl_fail("nccl: %s: %s", what, why);
    return !__atomic_load_n(&g->aborted, __ATOMIC_SEQ_CST) || fl_fail("nccl: %s: the group has failed", what);
}

static fl_dist_answer nccl__run(void *self, const fl_dist_call *c) {
    static const int8_t dtypes[FL_DTYPE_COUNT] = {
        [FL_I8] = FL__NCCL_I8 + 1,   [FL_U8] = FL__NCCL_U8 + 1,   [FL_B8] = FL__NCCL_U8 + 1,
        [FL_I32] = FL__NCCL_I32 + 1, [FL_U32] = FL__NCCL_U32 + 1, [FL_I64] = FL__NCCL_I64 + 1,
        [FL_U64] = FL__NCCL_U64 + 1, [FL_F16] = FL__NCCL_F16 + 1, [FL_F32] = FL__NCCL_F32 + 1,
        [FL_F64] = FL__NCCL_F64 + 1, [FL_BF16] = FL__NCCL_BF16 + 1}; /* plus 1; 0: not supported */
    static const int8_t ops[FL_DIST_REDUCTIONS] = {FL__NCCL_SUM, FL__NCCL_SUM, FL__NCCL_MIN,
                                                   FL__NCCL_MAX, FL__NCCL_MIN, FL__NCCL_MAX};
    nccl__group *g = (nccl__group *)self;
    const int dtype = (int)c->dtype < FL_DTYPE_COUNT ? dtypes[c->dtype] - 1 : -1;
    const bool sums = c->kind == FL_DIST_ALL_REDUCE || c->kind == FL_DIST_REDUCE ||
                      c->kind == FL_DIST_REDUCE_SCATTER,
               mean = sums && c->reduction == FL_DIST_AVG;
    if (!c->count && c->kind != FL_DIST_BARRIER) return FL_DIST_SCALED;
    if (sums && dtype < 0)
        return fl_fail("nccl: %s of %s is not supported: cast first", fl_dist_kind_name(c->kind),
                       fl_dtype_name(c->dtype)),
               FL_DIST_FAILED;
    const fl__nccl_op op = mean ? FL__NCCL_AVG : (fl__nccl_op)ops[c->reduction];
    if (!nccl__run_on_stream(g, c, (fl__nccl_dtype)dtype, op)) return FL_DIST_FAILED;
    return mean ? FL_DIST_SCALED : FL_DIST_DONE;
}

/* Whether calls on the stream go on: no rank has failed, and those of the event are done by the deadline. */
static bool nccl__check(void *self) {
    nccl__group *g = (nccl__group *)self;
    fl__nccl_status error = 0;
    if (!nccl__enter(g)) return false;
    const fl__nccl_status asked = nccl__call.ncclCommGetAsyncError(g->comm, &error);
    nccl__leave(g);
    if (asked || (error && error != FL__NCCL_IN_PROGRESS))
        return nccl__fail("ncclCommGetAsyncError", asked ? asked : error);
    if (!g->event) return true;
    if (flk_waits(g->event))
        return fl_dist_now() <= g->latest.deadline || fl_fail("nccl: the device has not run it in time");
    const char *why = nccl__mark(g);
    return !why || fl_fail("nccl: %s", why);
}

static const fl_dist_device nccl__device = {nccl__backend, nccl__take, nccl__release, nccl__check};
static const fl_dist_impl fl_dist_nccl = {.name = "nccl",
                                          .open = nccl__open,
                                          .abort = nccl__abort,
                                          .close = nccl__close,
                                          .run = nccl__run,
                                          .device = &nccl__device};

#endif
/* MIT licence: see LICENSE. */
