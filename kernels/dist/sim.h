/* kernels/dist/sim.h - simulation of a network: ranks are threads, data is real, time is virtual

   Each rank has a virtual clock. A message of n bytes is sent when its sender has finished the previous one,
   and arrives alpha + n / beta later (latency and bandwidth of the link, which a topology may give); an
   exchange ends when both of its messages have arrived. Collectives run unchanged, and sim_seconds returns
   the time that they would have taken. Ranks are threads: each must use a random generator of its own, not
   the process's.

    sim_world *w = sim_open(8, 50e-6, 1e9);
    ... in thread r: fl_dist_run(&fl_dist_sim, sim_rank(w, r), r, 8, &call); ... sim_seconds(w, r) ...
    sim_close(w); */
#ifndef SIM_H
#define SIM_H
#include "../../fl/distributed/group.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { SIM_MOST = 64 };
typedef struct sim_world sim_world;
/* A link: a message of n bytes takes alpha + n / beta seconds (latency alpha in s, bandwidth beta in
   bytes/s). */
typedef struct sim_link {
    double alpha, beta;
} sim_link;
typedef sim_link (*sim_topology)(int from, int to, void *user);
#define SIM_FN static __attribute__((unused))

/* A message between two ranks; its bytes are the sender's buffer until received. */
typedef struct sim__message {
    const void *bytes;
    size_t n;
    uint64_t tag;
    double arrives;
    bool full;
} sim__message;
typedef struct sim__rank {
    sim_world *world;
    int rank;
    double time;
} sim__rank;
struct sim_world {
    int n;
    sim_link link;
    sim_topology topology;
    void *user;
    bool aborted;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sim__rank rank[SIM_MOST];
    sim__message message[SIM_MOST][SIM_MOST]; /* from, to */
};

/* A simulation of n ranks with equal links; close it with sim_close. NULL after fl_fail. */
SIM_FN sim_world *sim_open(int n, double alpha, double beta) {
    if (n < 1 || n > SIM_MOST || !(alpha >= 0) || !(beta > 0))
        return fl_fail("sim_open: got %d ranks, alpha %g, beta %g, expected 1 to %d ranks, alpha >= 0, beta "
                       "> 0", n, alpha, beta, SIM_MOST), NULL;
    sim_world *w = (sim_world *)fl_heap_alloc(sizeof *w);
    if (!w) return NULL;
    memset(w, 0, sizeof *w);
    w->n = n;
    w->link.alpha = alpha, w->link.beta = beta;
    for (int i = 0; i < n; i++) w->rank[i].world = w, w->rank[i].rank = i;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

/* Sets a function that gives the link between two ranks. */
SIM_FN void sim_use_topology(sim_world *w, sim_topology topology, void *user) {
    w->topology = topology;
    w->user = user;
}

SIM_FN void sim_close(sim_world *w) {
    if (!w) return;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    fl_heap_free(w);
}

/* The argument `self` of fl_dist_run for a rank. */
SIM_FN void *sim_rank(sim_world *w, int rank) {
    return &w->rank[rank];
}

/* Virtual time of a rank in seconds. */
SIM_FN double sim_seconds(const sim_world *w, int rank) {
    return w->rank[rank].time;
}

/* Advances a rank's clock by a computation of that many seconds. */
SIM_FN void sim_compute(sim_world *w, int rank, double seconds) {
    w->rank[rank].time += seconds;
}

/* Waits until b->full is `full`; false after fl_fail. Called with the lock held. */
static bool sim__await(sim_world *w, const sim__message *b, bool full, double deadline) {
    const struct timespec t = {(time_t)deadline, (long)(1e9 * (deadline - floor(deadline)))};
    while (b->full != full && !w->aborted)
        if (fl_dist_now() > deadline)
            return fl_fail("sim: timeout");
        else
            pthread_cond_timedwait(&w->changed, &w->lock, &t);
    return !w->aborted || fl_fail("sim: the group has failed");
}

static bool sim__exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                          size_t in_bytes, uint64_t tag, double deadline) {
    sim__rank *r = (sim__rank *)self;
    sim_world *w = r->world;
    sim__message *sent = to >= 0 ? &w->message[r->rank][to] : NULL,
             *got = from >= 0 ? &w->message[from][r->rank] : NULL;
    double end = r->time;
    bool ok = true;
    pthread_mutex_lock(&w->lock);
    if (sent) {
        const sim_link l = w->topology ? w->topology(r->rank, to, w->user) : w->link;
        const double arrives = r->time + l.alpha + (double)out_bytes / l.beta;
        if ((ok = sim__await(w, sent, false, deadline))) {
            sent->bytes = out, sent->n = out_bytes, sent->tag = tag, sent->arrives = arrives,
            sent->full = true;
            end = arrives; /* the sender uses the link until then */
        }
        pthread_cond_broadcast(&w->changed);
    }
    if (ok && got && (ok = sim__await(w, got, true, deadline))) {
        ok = (got->tag == tag && got->n == in_bytes) ||
             fl_fail("sim: rank %d sent %zu bytes of another call, expected %zu", from, got->n, in_bytes);
        if (ok) memcpy(in, got->bytes, in_bytes);
        if (got->arrives > end) end = got->arrives;
        got->full = false;
        pthread_cond_broadcast(&w->changed);
    }
    if (ok && sent) ok = sim__await(w, sent, false, deadline); /* then the buffer may be reused */
    if (!ok) w->aborted = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    r->time = end;
    return ok;
}

static void sim__abort(void *self) {
    sim_world *w = ((sim__rank *)self)->world;
    pthread_mutex_lock(&w->lock);
    w->aborted = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void *sim__open(const fl_dist_rendezvous *p) {
    return fl_fail("sim: rank %d cannot be opened: use sim_open and fl_dist_run", p->rank), NULL;
}

static void sim__close(void *self) {
    (void)self;
}

SIM_FN const fl_dist_impl fl_dist_sim = {.name = "sim",
                                         .open = sim__open,
                                         .exchange = sim__exchange,
                                         .abort = sim__abort,
                                         .close = sim__close};

/* Predicted time of a ring all_reduce: 2 (n - 1) consecutive messages of a chunk each. */
SIM_FN double sim_ring_seconds(int n, double bytes, double alpha, double beta) {
    return 2 * (n - 1) * (alpha + bytes / n / beta);
}

/* Predicted time of recursive halving and doubling: as many bytes in 2 log2 n messages. */
SIM_FN double sim_tree_seconds(int n, double bytes, double alpha, double beta) {
    return 2 * ceil(log2(n)) * alpha + 2 * (n - 1) * bytes / n / beta;
}

#endif
/* MIT licence: see LICENSE. */
