/* fl/distributed/group.h - process groups, collectives on tensors, timeouts and failures */
#ifndef FL_DIST_LINK_H
#include "link.h"
#endif
#ifndef FL_DIST_GROUP_H
#define FL_DIST_GROUP_H

#ifdef __cplusplus
extern "C" {
#endif

/* A process group. One thread calls its functions, and all ranks call them in the same order. They never
   abort the program or hang: they return false (or NULL) after fl_fail. */
typedef struct fl_dist_group fl_dist_group;
typedef struct fl_dist_init_opts {
    fl_opts_guard guard_;
    const char *impl;  /* "gloo", "nccl", ...; NULL: environment variable FL_DIST, else the default */
    int rank, size;    /* size 0: from the environment (torchrun, Slurm, Open MPI, MPICH), else one rank */
    const char *store; /* rendezvous: "host:port" of rank 0, or a shared folder that other users cannot write;
                          NULL: from the environment */
    const fl_dist_store *own_store; /* custom rendezvous store: rank 0 sets the key "rank0", others get it */
    const char *token;              /* shared secret: ranks without it are refused; NULL: FL_DIST_TOKEN */
    const char *iface;              /* interface or address to listen at; NULL: the one that reaches rank 0 */
    double timeout;   /* timeout of a call in seconds; 0 -> 1800. Rendezvous: the same, at most 300 */
    double heartbeat; /* seconds without a message after which a rank counts as stalled; 0 -> 5 */
    char _end;
} fl_dist_init_opts;
/* Connects all ranks and returns their group; a program on one rank gets a group without communication
   (implementation "single"). Sets the size of the thread pool to the host's processors divided by its ranks,
   unless FL_THREADS is set, and the default backend from cuda to the local rank's device, if it exists. NULL
   after fl_fail. */
#define fl_dist_init(...) fl_dist_init_opt(FL_LITERAL(fl_dist_init_opts, .guard_ = {0}, __VA_ARGS__))
FL_API fl_dist_group *fl_dist_init_opt(fl_dist_init_opts o);
/* Waits for outstanding calls and closes the group; all ranks call it. Close a split group before its parent.
   NULL is ignored. */
FL_API void fl_dist_close(fl_dist_group *d);
FL_API int fl_dist_rank(const fl_dist_group *d);       /* this rank; 0 for NULL */
FL_API int fl_dist_size(const fl_dist_group *d);       /* number of ranks; 1 for NULL */
FL_API int fl_dist_local_rank(const fl_dist_group *d); /* rank among those of this host */
FL_API const char *fl_dist_impl_name(const fl_dist_group *d); /* "gloo", ...; "single" for one rank */
/* Splits a group (MPI_Comm_split): ranks of the same color form a group, ordered by key, then rank. color <
   0: no group for this rank (NULL, no error). */
FL_API fl_dist_group *fl_dist_split(fl_dist_group *d, int color, int key);
/* The failure that ended the group permanently; kind FL_DIST_OK if none. */
FL_API fl_dist_failure_info fl_dist_failure(const fl_dist_group *d);
/* Ends the group: all ranks fail with this text. May be called from any thread. */
FL_API void fl_dist_abort(fl_dist_group *d, const char *text);

/* An asynchronous call: an object (fl_obj) owned by the scope it was made in. Freeing it, as at the end of
   the scope, waits for the call. */
typedef struct fl_dist_work fl_dist_work;
/* Waits until the call is done, or on the queue of a device that does it before later work on its tensors.
   False after fl_fail; further calls return the same. */
FL_API bool fl_dist_wait(fl_dist_work *w);
typedef struct fl_dist_opts {
    fl_opts_guard guard_;
    fl_dist_reduction op; /* FL_DIST_SUM */
    double scale;         /* factor for the result (floats); 0 -> 1 */
    fl_dist_work **work;  /* asynchronous: starts the call; outputs are valid after fl_dist_wait */
    char _end;
} fl_dist_opts;

/* Collectives. Tensors may have any strides and backend; NCCL takes those of its device. After an error
   outputs are undefined. */
#define FL_DIST__1(f, d, t, ...) f(d, t, FL_LITERAL(fl_dist_opts, __VA_ARGS__))
#define FL_DIST__2(f, d, t, u, ...) f(d, t, u, FL_LITERAL(fl_dist_opts, __VA_ARGS__))
#define FL_DIST__3(f, d, t, u, v, ...) f(d, t, u, v, FL_LITERAL(fl_dist_opts, __VA_ARGS__))

/* t = the reduction of all ranks' t, on each rank. f16 and bf16 accumulate in f32; the order of summation is
   fixed by rank. */
#define fl_dist_all_reduce(...) FL_DIST__1(fl_dist_all_reduce_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_all_reduce_opt(fl_dist_group *d, fl_tensor *t, fl_dist_opts o);
/* all_reduce of n tensors, one call each; without .work. */
#define fl_dist_all_reduce_multiple(...) FL_DIST__2(fl_dist_all_reduce_multiple_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_all_reduce_multiple_opt(fl_dist_group *d, fl_tensor *const *t, int n, fl_dist_opts o);
/* out = concatenation of in from rank 0, rank 1, ...: size times as many elements as in. */
#define fl_dist_all_gather(...) FL_DIST__2(fl_dist_all_gather_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_all_gather_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o);
/* out = chunk `rank` of the reduction of in, which has size times as many elements. */
#define fl_dist_reduce_scatter(...) FL_DIST__2(fl_dist_reduce_scatter_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_reduce_scatter_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o);
/* t = the root's t, on each rank. */
#define fl_dist_broadcast(...) FL_DIST__2(fl_dist_broadcast_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_broadcast_opt(fl_dist_group *d, fl_tensor *t, int root, fl_dist_opts o);
/* The root's t = the reduction of all ranks' t; on other ranks t is undefined afterwards. */
#define fl_dist_reduce(...) FL_DIST__2(fl_dist_reduce_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_reduce_opt(fl_dist_group *d, fl_tensor *t, int root, fl_dist_opts o);
/* all_gather whose result only the root gets; out is NULL on other ranks. */
#define fl_dist_gather(...) FL_DIST__3(fl_dist_gather_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_gather_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, int root, fl_dist_opts o);
/* out = chunk `rank` of the root's in; in is NULL on other ranks. */
#define fl_dist_scatter(...) FL_DIST__3(fl_dist_scatter_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_scatter_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, int root,
                                fl_dist_opts o);
/* Chunk k of out = chunk `rank` of rank k's in; both have size chunks. */
#define fl_dist_all_to_all(...) FL_DIST__2(fl_dist_all_to_all_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_all_to_all_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o);
/* Sends t to rank `to`, which calls fl_dist_recv. */
#define fl_dist_send(...) FL_DIST__2(fl_dist_send_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_send_opt(fl_dist_group *d, fl_tensor *t, int to, fl_dist_opts o);
/* Receives t from rank `from`, which calls fl_dist_send. */
#define fl_dist_recv(...) FL_DIST__2(fl_dist_recv_opt, __VA_ARGS__, ._end = 0)
FL_API bool fl_dist_recv_opt(fl_dist_group *d, fl_tensor *t, int from, fl_dist_opts o);
/* Waits until all ranks have called it. */
FL_API bool fl_dist_barrier(fl_dist_group *d);
/* Waits for all calls started by this rank, as fl_dist_wait does; not for other ranks. */
FL_API bool fl_dist_sync(fl_dist_group *d);

/* Registers an implementation under its name, before fl_dist_init. */
FL_API bool fl_dist_impl_use(const fl_dist_impl *impl);
/* The implementation of that name (NULL: the default), or NULL after fl_fail. */
FL_API const fl_dist_impl *fl_dist_impl_named(const char *name);

/* private */
/* A tensor for data of the group's own, on a backend whose tensors it takes. */
FL_PRIVATE fl_tensor *fl__dist_new_tensor(const fl_dist_group *d, fl_shape shape, fl_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_GROUP_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DISTRIBUTED_GROUP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_GROUP_IMPL
#define FL_DIST_GROUP_IMPL
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#ifndef _WIN32
#include <unistd.h>
#endif
#ifdef FL_DIST_IMPL_H
#include FL_DIST_IMPL_H
#endif
#ifdef FL_USE_CUDA
#include "../../kernels/dist/nccl.h"
#endif

/* A call maps its tensors on the calling thread and runs on the group's thread, which handles bytes only. An
   implementation for a device takes tensors where they are, and a call is done when the device has it. The
   caller waits on the link's condition variable, which failures signal too, and so never blocks inside a
   communication library; the exception is short calls of an implementation whose waits an abort ends
   (prompt). A group thread that hangs in a library is abandoned, with the call and its buffers. */

typedef enum fl__dist_state { FL__DIST_QUEUED_CALL, FL__DIST_RUNNING, FL__DIST_FINISHED } fl__dist_state;
typedef struct fl__dist_operand {
    fl_tensor *user, *dense; /* the caller's tensor; the same or a contiguous copy */
    int access;
} fl__dist_operand;
struct fl_dist_work {
    fl_obj obj;
    fl_dist_group *group,
        *held; /* group NULL: the call was never made; held: kept alive until the work is freed */
    fl_dist_call call;
    fl__dist_record record;
    fl__dist_operand in, out;
    fl__dist_state state;
    double scale; /* applied by fl_dist_wait */
    bool ok, taken, ended; /* taken: by fl_dist_device.take; ended: tensors are unmapped */
    fl_dist_work *next;
    char error[400];
};

struct fl_dist_group {
    fl__dist_abort_hook guard; /* first */
    int rank, size, local_rank;
    double timeout, began;    /* began: start time of the running call */
    const fl_dist_impl *impl; /* NULL: single */
    void *self;
    fl__dist_link *link;
    fl_dist_group *parent;
    fl_dist_rendezvous place;
    char prefix[64];
    uint64_t id, number, *paired; /* number of calls; of sends to, then of receives from each rank */
    fl_dist_call latest;          /* the latest that ran */
    int splits, works;            /* works: objects that refer to the group */
    bool closed;                  /* freed with the last work */
    bool open, opened, stop, ended, abandoned;
    char error[400]; /* error of impl->open, or of fl_dist_device.check */
    fl_dist_work *first, *last, *running;
    pthread_t thread, caller;
    bool called; /* by `caller` */
    int64_t process;
    fl_dist_group *next;
    fl_dist_failure_info failure; /* for one rank, and after the link is closed */
};

static fl_dist_group *fl__dist_groups; /* open groups */
static pthread_mutex_t fl__dist_groups_lock = PTHREAD_MUTEX_INITIALIZER;
static const fl_dist_impl *fl__dist_impls[8];

#define FL__DIST_PASTE_(a, b) a##b
#define FL__DIST_PASTE(a, b) FL__DIST_PASTE_(a, b)
#ifdef FL_USE_GLOO
extern __attribute__((visibility("hidden"))) const fl_dist_impl fl_dist_gloo; /* kernels/dist/gloo.cc */
#ifndef FL_DIST_IMPL
#define FL_DIST_IMPL gloo
#endif
#endif

static int64_t fl__dist_process(void) {
#ifdef _WIN32
    return 0;
#else
    return (int64_t)getpid();
#endif
}

FL_API bool fl_dist_impl_use(const fl_dist_impl *impl) {
    const int most = sizeof fl__dist_impls / sizeof *fl__dist_impls;
    if (!impl || !impl->name || !impl->open || !impl->abort || !impl->close ||
        (!impl->exchange && !impl->run))
        return fl_fail("fl_dist_impl_use: impl, or its name, open, abort, close, or both exchange and run, "
                       "is NULL");
    for (int i = 0; i < most; i++)
        if (!fl__dist_impls[i] || !strcmp(fl__dist_impls[i]->name, impl->name))
            return fl__dist_impls[i] = impl, true;
    return fl_fail("fl_dist_impl_use: too many implementations, expected at most %d", most);
}

FL_API const fl_dist_impl *fl_dist_impl_named(const char *name) {
    const int most = sizeof fl__dist_impls / sizeof *fl__dist_impls;
#ifdef FL_DIST_IMPL
    if (!name) return &FL__DIST_PASTE(fl_dist_, FL_DIST_IMPL);
#endif
    static const fl_dist_impl *const built_in[] = {
#ifdef FL_DIST_IMPL
        &FL__DIST_PASTE(fl_dist_, FL_DIST_IMPL),
#endif
#ifdef FL_USE_GLOO
        &fl_dist_gloo,
#endif
#ifdef FL_USE_CUDA
        &fl_dist_nccl,
#endif
        NULL};
    for (int i = 0; i < most && fl__dist_impls[i]; i++)
        if (!name || !strcmp(name, fl__dist_impls[i]->name)) return fl__dist_impls[i];
    for (const fl_dist_impl *const *i = built_in; name && *i; i++)
        if (!strcmp(name, (*i)->name)) return *i;
    if (!name || !strcmp(name, "gloo"))
        fl_fail(
            "fl_dist_init: this build has no Gloo: install libgloo-dev and run make, or build with "
            "-DFL_DIST_IMPL=ring -DFL_DIST_IMPL_H='\"examples/extend/ring.h\"'");
    else if (!strcmp(name, "nccl"))
        fl_fail("fl_dist_init: this build has no NCCL, which comes with backend cuda: make CUDA=1");
    else
        fl_fail("fl_dist_init: unknown implementation '%s'; known: gloo, nccl, and those of fl_dist_impl_use",
                name);
    return NULL;
}

/* ---- the group's thread ---- */

static void fl__dist_take_error(char *text, size_t size, const char *otherwise) {
    const char *error = fl_error();
    snprintf(text, size, "%.*s", (int)size - 1, error ? error : otherwise);
    fl_error_clear();
}

static int fl__dist_world_rank(const fl_dist_group *d) {
    while (d->parent) d = d->parent;
    return d->rank;
}

/* Reports an error of the data connection, after half a second in which the control channel may report the
   rank that caused it, such as one that died. Called with the lock held. */
static void fl__dist_report_failure(fl_dist_group *d, const fl_dist_call *c, const char *error) {
    const double until = fl_dist_now() + 0.5;
    const bool late = fl_dist_now() >= c->deadline;
    fl__dist_link_report(d->link);
    while (!late && !fl__dist_link_failure(d->link) && fl_dist_now() < until)
        fl__dist_link_wait(d->link, until);
    fl__dist_link_fail(d->link, late ? FL_DIST_TIMEOUT : FL_DIST_BROKEN, fl__dist_world_rank(d),
                       "rank %d in call %" PRIu64 ", %s: %s", fl__dist_world_rank(d), c->number,
                       fl_dist_kind_name(c->kind), error);
}

/* Runs the first call of the queue. Called with the lock held. */
static void fl__dist_run_first(fl_dist_group *d) {
    fl_dist_work *w = d->running = d->first;
    if (!(d->first = w->next)) d->last = NULL;
    w->state = FL__DIST_RUNNING;
    d->began = fl_dist_now();
    w->call.deadline = d->began + d->timeout;
    d->latest = w->call;
    fl__dist_link_record(d->link, &w->record);
    fl__dist_link_lock(d->link, false);
    const bool ok = fl_dist_run(d->impl, d->self, d->rank, d->size, &w->call);
    if (!ok) fl__dist_take_error(w->error, sizeof w->error, "the implementation gave no error text");
    fl__dist_link_lock(d->link, true);
    w->ok = ok;
    w->state = FL__DIST_FINISHED;
    d->running = NULL;
    fl__dist_link_changed(d->link);
}

/* Asks whether calls that a device runs go on. Called with the lock held. */
static void fl__dist_check_device(fl_dist_group *d) {
    fl__dist_link_lock(d->link, false);
    const bool ok = d->impl->device->check(d->self);
    if (!ok) fl__dist_take_error(d->error, sizeof d->error, "the implementation gave no error text");
    fl__dist_link_lock(d->link, true);
    if (!ok && !fl__dist_link_failure(d->link)) fl__dist_report_failure(d, &d->latest, d->error);
}

static void *fl__dist_group_thread(void *arg) {
    fl_dist_group *d = arg;
    fl_quiet(+1);
    void *self = d->impl->open(&d->place);
    if (!self)
        fl__dist_take_error(d->error, sizeof d->error, "the implementation's open gave no error text");
    fl__dist_link_lock(d->link, true);
    d->self = self;
    d->opened = true;
    fl__dist_link_changed(d->link);
    while (self && !d->stop) {
        const bool fine = !fl__dist_link_failure(d->link), checks = fine && d->impl->device;
        if (d->first && fine)
            fl__dist_run_first(d);
        else
            fl__dist_link_wait(d->link, fl_dist_now() + (checks ? 0.05 : 1));
        if (checks) fl__dist_check_device(d);
    }
    d->ended = true;
    fl__dist_link_changed(d->link);
    fl__dist_link_lock(d->link, false);
    return NULL;
}

/* ---- failures ---- */

FL_API fl_dist_failure_info fl_dist_failure(const fl_dist_group *d) {
    fl_dist_failure_info f = {FL_DIST_OK, 0, 0, ""};
    if (!d || !d->link) return d ? d->failure : f;
    fl__dist_link_lock(d->link, true);
    if (fl__dist_link_failure(d->link)) f = *fl__dist_link_failure(d->link);
    fl__dist_link_lock(d->link, false);
    return f;
}

/* Ends the group and tells all ranks. */
static void fl__dist_fail(fl_dist_group *d, fl_dist_failure_kind kind, int rank, const char *text) {
    if (!d->link) {
        if (d->failure.kind) return;
        d->failure = (fl_dist_failure_info){kind, rank, d->number, ""};
        snprintf(d->failure.text, sizeof d->failure.text, "%s", text);
        return;
    }
    fl__dist_link_lock(d->link, true);
    fl__dist_link_fail(d->link, kind, rank, "%s", text);
    fl__dist_link_lock(d->link, false);
}

FL_API void fl_dist_abort(fl_dist_group *d, const char *text) {
    char message[400];
    if (!d) return;
    const int rank = fl__dist_world_rank(d);
    snprintf(message, sizeof message, "rank %d: %.370s", rank, text ? text : "fl_dist_abort");
    fl__dist_fail(d, FL_DIST_ERROR, rank, message);
}

static void fl__dist_abort_impl(fl__dist_abort_hook *g) {
    fl_dist_group *d = (fl_dist_group *)g;
    fl__dist_link_lock(d->link, true);
    void *self = d->self;
    fl__dist_link_lock(d->link, false);
    if (self) d->impl->abort(self);
}

/* Checks that a call may be made: the group is open and has not failed, no error is pending, and the call
   comes from its thread and process. False after fl_fail. */
static bool fl__dist_check_call(fl_dist_group *d, const char *fn) {
    if (!d) return fl_error() ? false : fl_fail("%s: the group is NULL", fn);
    pthread_mutex_lock(&fl__dist_groups_lock);
    fl_dist_group *open = fl__dist_groups;
    while (open && open != d) open = open->next;
    pthread_mutex_unlock(&fl__dist_groups_lock);
    if (!open) return fl_fail("%s: the group is closed", fn);
    if (d->process != fl__dist_process())
        return fl_fail("%s: called in a forked process, expected the rank's own", fn);
    if (fl_in_parallel()) return fl_fail("%s: called within fl_parallel", fn);
    if (d->called && !pthread_equal(d->caller, pthread_self()))
        return fl_fail(
            "%s: called from a second thread, expected one thread per group, which orders its calls", fn);
    d->caller = pthread_self();
    d->called = true;
    if (fl_error()) return fl_dist_abort(d, fl_error()), false;
    const fl_dist_failure_info f = fl_dist_failure(d);
    return !f.kind || fl_fail("%s: %s", fn, f.text);
}

/* ---- works ---- */

static bool fl__dist_unmap(fl__dist_operand *side, bool ok) {
    if (side->dense) fl_unmap(side->dense, side->access);
    if (ok && side->dense != side->user && side->access & FL_WRITE)
        ok = fl_assign(side->user, side->dense) != NULL;
    fl_drop(side->dense);
    fl_drop(side->user);
    side->dense = side->user = NULL;
    return ok;
}

/* The backend whose tensors the group takes where they are; NULL: those of any, mapped to the host. */
static const char *fl__dist_backend(const fl_dist_group *d) {
    return d->self && d->impl->device ? d->impl->device->backend(d->self) : NULL;
}

FL_PRIVATE fl_tensor *fl__dist_new_tensor(const fl_dist_group *d, fl_shape shape, fl_dtype dtype) {
    const char *backend = fl__dist_backend(d);
    return backend ? fl_empty_on(backend, shape, dtype) : fl_empty(shape, dtype);
}

/* Maps the contiguous bytes of t until fl__dist_unmap; *bytes is NULL if t is. */
static bool fl__dist_map(fl__dist_operand *side, fl_tensor *t, int access, void **bytes) {
    *bytes = NULL;
    if (!t) return true;
    fl_scope s = fl_scope_begin();
    fl_tensor *dense = fl_is_contiguous(t) ? t : fl_contiguous(t);
    *bytes = dense ? fl_map(dense, access) : NULL;
    const bool ok = *bytes || (dense && !fl_numel(dense) && !fl_error());
    if (ok) side->user = fl_keep(t), side->dense = fl_keep(dense), side->access = access;
    fl_scope_end(&s);
    return ok;
}

static bool fl__dist_scale_tensor(fl_tensor *t, double scale) {
    fl_scope s = fl_scope_begin();
    const bool ok = !t || fl_assign_op(t, FL_OP_mul, t, fl_num(scale));
    fl_scope_end(&s);
    return ok;
}

/* The buffers of a work's tensors, as fl_dist_device takes them. */
static fl_buffer *const *fl__dist_buffers(const fl_dist_work *w, fl_buffer *b[2]) {
    b[0] = w->out.dense ? w->out.dense->buffer : NULL;
    b[1] = w->in.dense ? w->in.dense->buffer : NULL;
    return b;
}

/* Waits until the work is done or the group has failed; then waits another 0.2 s for a running call before
   the thread is abandoned. Called with the lock held. */
static void fl__dist_await_work(fl_dist_group *d, fl_dist_work *w) {
    double grace = 0;
    while (w->state != FL__DIST_FINISHED) {
        const double now = fl_dist_now();
        if (fl__dist_link_failure(d->link)) {
            for (; d->first; d->first = d->first->next) d->first->state = FL__DIST_FINISHED; /* never runs */
            d->last = NULL;
            if (w->state == FL__DIST_FINISHED) return;
            if (!grace) grace = now + (d->abandoned ? 0 : 0.2);
            if (now > grace) {
                d->abandoned = true;
                return;
            }
            fl__dist_link_wait(d->link, grace + 0.001);
        } else if (d->running && now > d->began + d->timeout + 1) {
            fl__dist_link_fail(d->link, FL_DIST_TIMEOUT, fl__dist_world_rank(d),
                               "timeout on rank %d: call %" PRIu64 ", %s, took more than %.1f s",
                               fl__dist_world_rank(d), d->running->call.number,
                               fl_dist_kind_name(d->running->call.kind), now - d->began);
        } else {
            fl__dist_link_wait(d->link, now + 1);
        }
    }
}

/* Waits until the queue is empty or the group has failed. Called with the lock held. */
static void fl__dist_drain(fl_dist_group *d) {
    while ((d->last || d->running) && !fl__dist_link_failure(d->link) && !d->abandoned)
        fl__dist_await_work(d, d->last ? d->last : d->running);
}

FL_API bool fl_dist_wait(fl_dist_work *w) {
    static const char fn[] = "fl_dist_wait";
    char text[512] = "";
    fl_buffer *b[2];
    if (!w) return fl_error() ? false : fl_fail("%s: w is NULL", fn);
    fl_dist_group *d = w->group;
    if (!w->ended && d && d->link) {
        fl__dist_link_lock(d->link, true);
        fl__dist_await_work(d, w);
        if (w->state == FL__DIST_FINISHED && !w->ok && *w->error && !fl__dist_link_failure(d->link))
            fl__dist_report_failure(d, &w->call, w->error);
        const fl_dist_failure_info *f = fl__dist_link_failure(d->link);
        if (!w->ok && f) snprintf(text, sizeof text, "%s", f->text);
        const bool over = w->state == FL__DIST_FINISHED;
        fl__dist_link_lock(d->link, false);
        if (*text) snprintf(w->error, sizeof w->error, "%.399s", text);
        if (!over) return fl_fail("%s: %s", fl_dist_kind_name(w->call.kind), w->error);
    }
    if (!w->ended) {
        w->ended = true;
        if (w->taken && !w->held->impl->device->release(&w->call, fl__dist_buffers(w, b))) w->ok = false;
        fl__dist_unmap(&w->in, false);
        if (w->ok && w->scale != 1) w->ok = fl__dist_scale_tensor(w->out.dense, w->scale);
        if (!fl__dist_unmap(&w->out, w->ok) && w->ok)
            w->ok = false, snprintf(w->error, sizeof w->error, "the result could not be copied");
    }
    return w->ok || fl_fail("fl_dist_%s: %s", fl_dist_kind_name(w->call.kind), w->error);
}

/* Frees a closed group, unless a work or a hanging thread refers to it. */
static void fl__dist_free(fl_dist_group *d) {
    d->closed = true;
    if (d->abandoned || d->works) return;
    fl_heap_free(d->paired);
    fl_heap_free(d);
}

/* Destructor of a work: waits for it. A hanging call keeps its buffers. */
static void fl__dist_drop_work(fl_obj *o) {
    fl_dist_work *w = (fl_dist_work *)o;
    fl_dist_group *d = w->held;
    fl_dist_wait(w);
    if (!w->ended) return;
    fl_obj_free(o);
    d->works--;
    if (d->closed) fl__dist_free(d);
}

/* Queues the call. A short synchronous call with an empty queue runs on the calling thread if the
   implementation is prompt. */
static bool fl__dist_submit(fl_dist_group *d, fl_dist_work *w, bool waits) {
    if (!d->link) {
        w->state = FL__DIST_FINISHED;
        w->ok = fl_dist_run(NULL, NULL, 0, 1, &w->call);
        return w->ok;
    }
    fl__dist_link_lock(d->link, true);
    const bool here = waits && !d->first && !d->running && d->impl->prompt &&
                      fl__dist_is_short(&w->call) && !fl__dist_link_failure(d->link);
    if (d->last)
        d->last->next = w;
    else
        d->first = w;
    d->last = w;
    if (here)
        fl_quiet(+1), fl__dist_run_first(d), fl_quiet(-1);
    else
        fl__dist_link_changed(d->link);
    fl__dist_link_lock(d->link, false);
    return true;
}

/* Numbers the call and computes its tag. Sends and receives are numbered per pair of ranks and direction. */
static void fl__dist_number(fl_dist_group *d, fl_dist_work *w) {
    fl_dist_call *c = &w->call;
    fl__dist_record *r = &w->record;
    const bool pair = c->kind == FL_DIST_SEND || c->kind == FL_DIST_RECV;
    const int from = c->kind == FL_DIST_SEND ? d->rank : c->root,
              to = c->kind == FL_DIST_SEND ? c->root : d->rank;
    *r = (fl__dist_record){.group = d->id,
                           .number = ++d->number,
                           .kind = (int32_t)c->kind,
                           .count = c->count,
                           .reduction = (int32_t)c->reduction,
                           .dtype = (int32_t)c->dtype,
                           .root = c->root};
    if (pair) {
        d->number--;
        r->group = (d->id * 65537 + (uint64_t)from) * 65537 + (uint64_t)to + (1ull << 63);
        r->number = ++d->paired[c->kind == FL_DIST_SEND ? c->root : d->size + c->root];
        r->kind = FL_DIST_SEND;
        r->root = -1;
    }
    c->number = r->number;
    c->tag = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof *r; i++)
        c->tag = (c->tag ^ ((const uint8_t *)r)[i]) * 0x100000001b3;
}

static bool fl__dist_reducible(const char *fn, fl_dtype dtype, const fl_dist_opts *o) {
    const bool logic = o->op == FL_DIST_AND || o->op == FL_DIST_OR;
    if (o->op >= FL_DIST_REDUCTIONS)
        return fl_fail("%s: unknown reduction %d, expected 0 to %d", fn, (int)o->op, FL_DIST_REDUCTIONS - 1);
    if (fl_dtype_registered(dtype))
        return fl_fail("%s: got registered dtype %s, which cannot be reduced: cast first", fn,
                       fl_dtype_name(dtype));
    if (logic != (dtype == FL_B8))
        return fl_fail("%s: reduction for %s: b8 takes FL_DIST_AND and FL_DIST_OR, numbers the others", fn,
                       fl_dtype_name(dtype));
    if (!fl_dtype_is_float(dtype) && (o->op == FL_DIST_AVG || o->scale))
        return fl_fail("%s: average or scale for %s, expected a float dtype: cast first", fn,
                       fl_dtype_name(dtype));
    return true;
}

/* Number of chunks of `count` elements of an operand on this rank; 0 if it is not used here. */
static int64_t fl__dist_parts(const fl_dist_group *d, char side, int root) {
    if (side == '-' || (side == 'r' && root != d->rank)) return 0;
    return side == 'n' || side == 'r' ? d->size : 1;
}

/* Checks the operands against the signature and returns the call's count, or -1 after fl_fail. */
static int64_t fl__dist_count(const fl_dist_group *d, const fl__dist_signature *f, bool pair,
                              const fl_tensor *out, const fl_tensor *in, int root, const fl_dist_opts *o) {
    const int64_t n_out = fl__dist_parts(d, f->out, root), n_in = fl__dist_parts(d, f->in, root);
    if (f->rooted && (root < 0 || root >= d->size))
        return fl_fail("%s: got rank %d, expected 0 to %d", f->fn, root, d->size - 1), -1;
    if (pair && root == d->rank) return fl_fail("%s: rank %d is this one, expected another", f->fn, root), -1;
    if ((n_out && !out) || (n_in && !in))
        return fl_fail("%s: %s is NULL", f->fn, n_out && !out && f->in != '-' ? "out" : "the tensor"), -1;
    if ((n_out && out->weak) || (n_in && in->weak))
        return fl_fail("%s: got a number without memory, expected a tensor (fl_full)", f->fn), -1;
    if (n_out && !fl_is_writable(f->fn, out)) return -1;
    if (!n_out && !n_in) return 0;
    const fl_tensor *one = n_out ? out : in;
    const char *backend = fl__dist_backend(d);
    for (int i = 0; i < 2 && backend; i++) {
        const fl_tensor *t = i ? in : out;
        if ((i ? n_in : n_out) && strcmp(fl_backend_name(t), backend))
            return fl_fail("%s: got a tensor on '%s', expected one on '%s', which %s takes: fl_to", f->fn,
                           fl_backend_name(t), backend, d->impl->name),
                   -1;
    }
    const int64_t parts = n_out ? n_out : n_in, n = fl_numel(one) / parts;
    if (n_out && n_in && (out->dtype != in->dtype || fl_numel(out) != n * n_out || fl_numel(in) != n * n_in))
        return fl_fail("%s: out %s %s does not match in %s %s with %d ranks", f->fn,
                       fl_dtype_name(out->dtype), FL_SHAPE_TEXT(out), fl_dtype_name(in->dtype),
                       FL_SHAPE_TEXT(in), d->size),
               -1;
    if (fl_numel(one) != n * parts)
        return fl_fail("%s: the number of elements of %s is not divisible by %d ranks", f->fn,
                       FL_SHAPE_TEXT(one), d->size), -1;
    return !f->reduces || fl__dist_reducible(f->fn, one->dtype, o) ? n : -1;
}

/* One call: checks and maps the operands, and runs it. Operands that this rank does not use are ignored. */
static bool fl__dist_call(fl_dist_group *d, fl_dist_kind kind, fl_tensor *out, fl_tensor *in, int root,
                          fl_dist_opts o) {
    const fl__dist_signature *f = fl__dist_signature_of((int)kind);
    if (!fl__dist_check_call(d, f->fn)) return false;
    const int64_t n = fl__dist_count(d, f, kind == FL_DIST_SEND || kind == FL_DIST_RECV, out, in, root, &o);
    if (n < 0) return false;
    if (!fl__dist_parts(d, f->out, root)) out = NULL;
    if (!fl__dist_parts(d, f->in, root)) in = NULL;
    const fl_tensor *one = out ? out : in;
    fl_scope s = fl_scope_begin();
    fl_dist_work *w = fl_obj_new(sizeof *w, fl__dist_drop_work);
    void *out_bytes = NULL, *in_bytes = NULL;
    fl_buffer *b[2];
    const char *backend = fl__dist_backend(d);
    const int access = backend ? FL_ON_DEVICE : 0;
    bool ok = w != NULL;
    if (ok) {
        w->group = w->held = d;
        d->works++;
        w->ended = w->ok = w->taken = false;
        w->scale = 1;
        w->state = FL__DIST_FINISHED;
        ok = fl__dist_map(&w->out, out, access | FL_WRITE | (f->out == '=' ? FL_READ : 0), &out_bytes) &&
             fl__dist_map(&w->in, in, access | FL_READ, &in_bytes);
        snprintf(w->error, sizeof w->error, "the tensors could not be mapped");
    }
    if (ok) {
        w->call = (fl_dist_call){.kind = kind,
                                 .reduction = o.op,
                                 .dtype = one ? one->dtype : FL_DTYPE_NONE,
                                 .root = root,
                                 .count = n,
                                 .scale = fl_option(o.scale, 1),
                                 .in = in_bytes,
                                 .out = out_bytes};
        if (backend) w->scale = w->call.scale, w->call.scale = 1;
        if (o.op == FL_DIST_AVG) w->call.scale /= d->size;
        if (backend) ok = w->taken = d->impl->device->take(d->self, &w->call, fl__dist_buffers(w, b));
    }
    if (w && !ok) w->group = NULL;
    if (ok) {
        w->error[0] = '\0';
        w->state = FL__DIST_QUEUED_CALL;
        fl__dist_number(d, w);
        ok = fl__dist_submit(d, w, !o.work);
        if (!o.work) ok = fl_dist_wait(w) && ok;
    }
    if (w && !o.work)
        fl_obj_drop(&w->obj);
    else if (w && (!fl_scope_adopt(&w->obj) || !ok || !fl_scope_escape(&s, w)))
        ok = false;
    else if (w)
        *o.work = w;
    fl_scope_end(&s);
    return ok;
}

FL_API bool fl_dist_all_reduce_opt(fl_dist_group *d, fl_tensor *t, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_ALL_REDUCE, t, NULL, -1, o);
}

FL_API bool fl_dist_all_reduce_multiple_opt(fl_dist_group *d, fl_tensor *const *t, int n,
                                            fl_dist_opts o) {
    bool ok = (t && n >= 0 && !o.work) ||
              fl_fail("fl_dist_all_reduce_multiple: %s",
                      o.work ? ".work is not supported" : "t is NULL, or n is negative");
    fl_scope s = fl_scope_begin();
    fl_dist_work *w = NULL;
    o.work = &w;
    for (int i = 0; ok && i < n; i++) ok = fl_dist_all_reduce_opt(d, t[i], o);
    ok = ok && (!w || fl_dist_wait(w)); /* calls run in order */
    fl_scope_end(&s);
    return ok && !fl_error();
}

FL_API bool fl_dist_all_gather_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_ALL_GATHER, out, in, -1, o);
}

FL_API bool fl_dist_reduce_scatter_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_REDUCE_SCATTER, out, in, -1, o);
}

FL_API bool fl_dist_broadcast_opt(fl_dist_group *d, fl_tensor *t, int root, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_BROADCAST, t, NULL, root, o);
}

FL_API bool fl_dist_reduce_opt(fl_dist_group *d, fl_tensor *t, int root, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_REDUCE, t, NULL, root, o);
}

FL_API bool fl_dist_gather_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, int root, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_GATHER, out, in, root, o);
}

FL_API bool fl_dist_scatter_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, int root, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_SCATTER, out, in, root, o);
}

FL_API bool fl_dist_all_to_all_opt(fl_dist_group *d, fl_tensor *out, fl_tensor *in, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_ALL_TO_ALL, out, in, -1, o);
}

FL_API bool fl_dist_send_opt(fl_dist_group *d, fl_tensor *t, int to, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_SEND, NULL, t, to, o);
}

FL_API bool fl_dist_recv_opt(fl_dist_group *d, fl_tensor *t, int from, fl_dist_opts o) {
    return fl__dist_call(d, FL_DIST_RECV, t, NULL, from, o);
}

FL_API bool fl_dist_barrier(fl_dist_group *d) {
    return fl__dist_call(d, FL_DIST_BARRIER, NULL, NULL, -1, (fl_dist_opts){.scale = 0});
}

FL_API bool fl_dist_sync(fl_dist_group *d) {
    if (!fl__dist_check_call(d, "fl_dist_sync")) return false;
    if (!d->link) return true;
    fl__dist_link_lock(d->link, true);
    fl__dist_drain(d);
    const bool fine = !fl__dist_link_failure(d->link);
    fl__dist_link_lock(d->link, false);
    return fine || fl_fail("fl_dist_sync: %s", fl_dist_failure(d).text);
}

/* ---- groups ---- */

FL_API int fl_dist_rank(const fl_dist_group *d) {
    return d ? d->rank : 0;
}

FL_API int fl_dist_size(const fl_dist_group *d) {
    return d ? d->size : 1;
}

FL_API int fl_dist_local_rank(const fl_dist_group *d) {
    return d ? d->local_rank : 0;
}

FL_API const char *fl_dist_impl_name(const fl_dist_group *d) {
    return d && d->impl ? d->impl->name : "single";
}

static void fl__dist_list(fl_dist_group *d, bool add) {
    pthread_mutex_lock(&fl__dist_groups_lock);
    fl_dist_group **at = &fl__dist_groups;
    while (*at && *at != d) at = &(*at)->next;
    if (add)
        d->next = fl__dist_groups, fl__dist_groups = d;
    else if (*at)
        *at = d->next;
    d->open = add;
    pthread_mutex_unlock(&fl__dist_groups_lock);
}

/* Starts the group's thread, which opens the implementation, and waits until that is done. */
static bool fl__dist_start(fl_dist_group *d, double deadline) {
    d->place = (fl_dist_rendezvous){.rank = d->rank,
                                    .size = d->size,
                                    .address = fl__dist_link_address(d->link),
                                    .prefix = d->prefix,
                                    .store = fl__dist_link_store(d->link),
                                    .deadline = deadline,
                                    .secret = fl__dist_link_secret(d->link),
                                    .local_rank = d->local_rank};
    if (!fl__dist_thread_start(&d->thread, fl__dist_group_thread, d)) return false;
    fl__dist_link_lock(d->link, true);
    while (!d->opened && !fl__dist_link_failure(d->link) && fl_dist_now() < deadline + 1)
        fl__dist_link_wait(d->link, deadline + 1);
    const bool failed = fl__dist_link_failure(d->link) != NULL;
    if (failed)
        fl_fail("fl_dist_init: %s", fl__dist_link_failure(d->link)->text);
    else if (!d->opened)
        fl_fail("fl_dist_init: %s did not connect before the timeout", d->impl->name);
    else if (!d->self)
        fl_fail("fl_dist_init: %s", d->error);
    const bool ok = d->opened && d->self && !failed;
    if (!ok) d->stop = true;
    fl__dist_link_lock(d->link, false);
    fl__dist_link_hook(d->link, &d->guard, true);
    return ok;
}

/* Ends the group's thread, unless it hangs. */
static void fl__dist_stop(fl_dist_group *d) {
    fl__dist_link_lock(d->link, true);
    d->stop = true;
    fl__dist_link_changed(d->link);
    const double until = fl_dist_now() + 2;
    while (!d->ended && fl_dist_now() < until) fl__dist_link_wait(d->link, until);
    if (!d->ended) d->abandoned = true;
    fl__dist_link_lock(d->link, false);
    fl__dist_link_hook(d->link, &d->guard, false);
    if (d->abandoned)
        pthread_detach(d->thread);
    else
        pthread_join(d->thread, NULL);
    if (!d->abandoned && d->self) d->impl->close(d->self);
}

static fl_dist_group *fl__dist_new(int rank, int size, double timeout) {
    fl_dist_group *d = fl_heap_alloc(sizeof *d);
    uint64_t *paired = fl_heap_alloc(2 * (size_t)size * sizeof *paired);
    if (!d || !paired) {
        fl_heap_free(d);
        fl_heap_free(paired);
        return NULL;
    }
    *d = (fl_dist_group){.guard = {.abort = fl__dist_abort_impl},
                         .rank = rank,
                         .size = size,
                         .timeout = timeout,
                         .id = 1,
                         .paired = paired,
                         .process = fl__dist_process()};
    return d;
}

static bool fl__dist_bad_seconds(const char *what, double v) {
    return (v != 0 && !(v > 0 && v < 1e7)) &&
           (fl_fail("fl_dist_init: .%s is %g seconds, expected 0 to 1e7", what, v), true);
}

FL_API fl_dist_group *fl_dist_init_opt(fl_dist_init_opts o) {
    fl__dist_world w = {.store = o.own_store};
    const char *token = o.token ? o.token : getenv("FL_DIST_TOKEN"),
               *name = o.impl ? o.impl : getenv("FL_DIST");
    if (fl_error()) return NULL;
    if (fl_in_parallel()) return fl_fail("fl_dist_init: called within fl_parallel"), NULL;
    if (fl__dist_bad_seconds("timeout", o.timeout) || fl__dist_bad_seconds("heartbeat", o.heartbeat))
        return NULL;
    if (o.size < 0 || (o.rank && !o.size))
        return fl_fail("fl_dist_init: got rank %d, size %d, expected 0 <= rank < size", o.rank, o.size), NULL;
    if (token && strlen(token) > 127)
        return fl_fail("fl_dist_init: the token is too long, expected at most 127 characters"), NULL;
    if (!fl__dist_world_of(&w, o.rank, o.size, o.store)) return NULL;
    const double timeout = fl_option(o.timeout, 1800),
                 deadline = fl_dist_now() + (timeout < 300 ? timeout : 300);
    const fl_dist_impl *impl = w.size > 1 ? fl_dist_impl_named(name && *name ? name : NULL) : NULL;
    fl_dist_group *d = w.size == 1 || impl ? fl__dist_new(w.rank, w.size, timeout) : NULL;
    if (!d) return NULL;
    d->local_rank = w.local_rank;
    d->impl = impl;
#ifdef FL_USE_CUDA
    if (!nccl__default_device())
        fl_backend_set_default(fl__cuda_device(nccl__local_device(d->local_rank))->name);
#endif
    snprintf(d->prefix, sizeof d->prefix, "all");
    bool ok = w.size == 1;
    if (!ok && (d->link = fl__dist_link_open(&w, token, o.iface, fl_option(o.heartbeat, 5), deadline))) {
        ok = fl__dist_start(d, deadline);
        if (!ok) {
            fl__dist_fail(d, FL_DIST_BROKEN, d->rank, fl_error());
            fl__dist_stop(d);
            if (!d->abandoned) fl__dist_link_close(d->link);
        }
    }
    if (!ok) return fl__dist_free(d), NULL;
    if (w.local_size > 1 && !getenv("FL_THREADS")) {
        fl_set_threads(0);
        const int share = fl_threads() / w.local_size;
        fl_set_threads(share > 1 ? share : 1);
    }
    fl__dist_list(d, true);
    return d;
}

FL_API void fl_dist_close(fl_dist_group *d) {
    if (!d || !d->open || d->process != fl__dist_process()) return;
    fl__dist_list(d, false);
    if (d->link) {
        const fl_dist_failure_info f = fl_dist_failure(d);
        if (fl_error() && !f.kind) fl_dist_abort(d, fl_error());
        fl__dist_link_lock(d->link, true);
        fl__dist_drain(d);
        fl__dist_link_lock(d->link, false);
        fl__dist_stop(d);
        d->failure = fl_dist_failure(d);
        if (!d->parent && !d->abandoned) fl__dist_link_close(d->link);
        if (!d->abandoned) d->link = NULL;
    }
    fl__dist_free(d);
}

/* This rank among those of its color, ordered by key, then rank; *count: their number. */
static int fl__dist_split_rank(const int64_t *all, int size, int me, int *count) {
    int before = 0;
    *count = 0;
    for (int k = 0; k < size; k++) {
        if (all[2 * k] != all[2 * me]) continue;
        ++*count;
        before += all[2 * k + 1] < all[2 * me + 1] || (all[2 * k + 1] == all[2 * me + 1] && k < me);
    }
    return before;
}

FL_API fl_dist_group *fl_dist_split(fl_dist_group *d, int color, int key) {
    static const char fn[] = "fl_dist_split";
    if (!fl__dist_check_call(d, fn)) return NULL;
    fl_scope s = fl_scope_begin();
    const int64_t mine[2] = {color, key};
    fl_tensor *in = fl__dist_new_tensor(d, FL_SHAPE(2), FL_I64),
              *out = fl__dist_new_tensor(d, FL_SHAPE(2 * d->size), FL_I64);
    int64_t *all = fl_heap_alloc(2 * (size_t)d->size * sizeof *all);
    bool ok = in && out && all && fl_set_host(in, mine, sizeof mine) && fl_dist_all_gather(d, out, in) &&
              fl_to_host(out, all, 2 * (size_t)d->size * sizeof *all);
    int size = 0;
    const int rank = ok ? fl__dist_split_rank(all, d->size, d->rank, &size) : 0;
    fl_heap_free(all);
    fl_scope_end(&s);
    d->splits++;
    fl_dist_group *g = ok && color >= 0 ? fl__dist_new(rank, size, d->timeout) : NULL;
    if (!g) return NULL;
    g->parent = d;
    g->local_rank = d->local_rank;
    g->id = d->id * 1000003 + (uint64_t)d->splits * 65537 + (uint64_t)color + 2;
    snprintf(g->prefix, sizeof g->prefix, "%016" PRIx64, g->id);
    if (size > 1) {
        g->link = d->link;
        g->impl = d->impl;
        if (!fl__dist_start(g, fl_dist_now() + (d->timeout < 300 ? d->timeout : 300))) {
            fl__dist_stop(g);
            fl__dist_free(g);
            return NULL;
        }
    }
    fl__dist_list(g, true);
    return g;
}

#endif
#endif
/* MIT licence: see LICENSE. */
