/* bench/dist.c - ranks on one host: collectives compared with Gloo, training steps, overlap of communication

   make bench-dist

     all_reduce, all_gather, broadcast   GB/s of one rank's tensor, 2 ranks, medians of alternating pairs:
                                         ours over Gloo, over sockets (ring), and bench/peers/gloo.cc; below
                                         256 KB us
     hidden                              of communication that takes half of backward (a wrapper that sleeps),
                                         the part that costs no time: 1 - (both - compute) / communication
     one_rank                            a step of the MNIST net through fl_dist on one rank, and one without

   BENCH_DIST_BYTES: sizes up to that; BENCH_DIST_TRACE: a file for the timeline of an overlapping step. With
   arguments the program is a rank of bench/dist_steps or bench/hosts. */
#include "bench.h"
#include "../examples/digits.h"
#include "models/model.h"
#include "../examples/extend/ring.h"
#include "../kernels/dist/sim.h"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((weak)) int peer_open(int rank, int size, const char *folder);
__attribute__((weak)) void peer_all_reduce(float *p, size_t n, unsigned tag);
__attribute__((weak)) void peer_all_gather(float *out, float *in, size_t n, unsigned tag);
__attribute__((weak)) void peer_broadcast(float *p, size_t n, unsigned tag);

enum { WAYS = 3, ROUNDS = 15 };
static const char *const kinds[] = {"all_reduce", "all_gather", "broadcast"};

/* Seconds of `times` calls of kind k: of d, or of the peer. */
static double seconds(fl_dist_group *d, int k, fl_tensor *t, fl_tensor *all, int times) {
    static unsigned tag;
    float *p = fl_map(t, FL_READ | FL_WRITE), *q = fl_map(all, FL_READ | FL_WRITE);
    const size_t n = (size_t)fl_numel(t);
    fl_unmap(t, FL_READ | FL_WRITE);
    fl_unmap(all, FL_READ | FL_WRITE);
    const double begin = fl_dist_now();
    for (int i = 0; i < times; i++) {
        if (d && k == 0)
            fl_dist_all_reduce(d, t);
        else if (d && k == 1)
            fl_dist_all_gather(d, all, t);
        else if (d)
            fl_dist_broadcast(d, t, 0);
        else if (k == 0)
            peer_all_reduce(p, n, ++tag);
        else if (k == 1)
            peer_all_gather(q, p, n, ++tag);
        else
            peer_broadcast(p, n, ++tag);
    }
    return (fl_dist_now() - begin) / times;
}

static void collectives(fl_dist_group **way, int rank) {
    static const char *const names[] = {"gloo", "ring", "peer"};
    const int64_t most = getenv("BENCH_DIST_BYTES") ? atoll(getenv("BENCH_DIST_BYTES")) : 64 << 20;
    for (int k = 0; k < 3; k++)
        for (int64_t bytes = 4096; bytes <= most; bytes *= 4) {
            fl_scope s = fl_scope_begin();
            fl_tensor *t = fl_zeros(FL_SHAPE(bytes / 4), FL_F32),
                      *all = fl_zeros(FL_SHAPE(bytes / 2), FL_F32);
            double v[WAYS][ROUNDS], m[WAYS] = {0};
            const int times = bytes < 1 << 18 ? 20 : bytes < 1 << 24 ? 3 : 1;
            for (int r = -1; r < ROUNDS; r++)
                for (int w = 0; w < WAYS; w++)
                    if (way[w] || (w == 2 && peer_open)) {
                        const double x = seconds(w == 2 ? NULL : way[w], k, t, all, times);
                        if (r >= 0) v[w][r] = x;
                    }
            char figure[80], note[160];
            for (int w = 0; w < WAYS && !rank; w++) {
                if (!way[w] && !(w == 2 && peer_open)) continue;
                m[w] = bench_median(v[w], ROUNDS);
                snprintf(figure, sizeof figure, "%s_%lld_%s", kinds[k], (long long)bytes, names[w]);
                snprintf(note, sizeof note, "%.3f GB/s", 1e-9 * (double)bytes / m[w]);
                bench_line(figure, 1e6 * m[w], "us", note);
            }
            if (!rank && m[0] > 0 && m[2] > 0) {
                snprintf(figure, sizeof figure, "%s_%lld_gloo_to_peer", kinds[k], (long long)bytes);
                snprintf(note, sizeof note, "%+.1f us", 1e6 * (m[0] - m[2]));
                bench_line(figure, m[2] / m[0], "of its speed", note);
            }
            fl_scope_end(&s);
        }
}

/* ---- overlap: an implementation that sleeps alpha + bytes / beta in each all_reduce, and moves nothing
   ---- */

static double alpha, beta, slept;
static bool tracing;
static void *sleep_open(const fl_dist_rendezvous *p) {
    return (void *)(uintptr_t)p;
}
static bool sleep_exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                           size_t in_bytes, uint64_t tag, double deadline) {
    (void)self, (void)to, (void)out, (void)out_bytes, (void)from, (void)tag, (void)deadline;
    if (in_bytes) memset(in, 0, in_bytes);
    return true;
}
static void sleep_end(void *self) {
    (void)self;
}
static fl_dist_answer sleep_run(void *self, const fl_dist_call *c) {
    (void)self;
    const double s = c->kind == FL_DIST_ALL_REDUCE && beta > 0
                         ? alpha + (double)c->count * (double)fl_dtype_size(c->dtype) / beta
                         : 0;
    const double begin = fl_dist_now();
    if (s > 0) usleep((useconds_t)(1e6 * s));
    slept += fl_dist_now() - begin;
    if (tracing)
        fl_profile_add("communication", fl_dist_kind_name(c->kind), (int64_t)(1e9 * begin),
                       (int64_t)(1e9 * fl_dist_now()));
    return c->kind == FL_DIST_ALL_REDUCE || c->kind == FL_DIST_BROADCAST ? FL_DIST_DONE
                                                                         : FL_DIST_DECLINED;
}
static const fl_dist_impl sleeper = {.name = "sleeper",
                                     .open = sleep_open,
                                     .exchange = sleep_exchange,
                                     .abort = sleep_end,
                                     .close = sleep_end,
                                     .run = sleep_run};

typedef struct net {
    fl_nn_module *m;
    fl_optim *optim;
    fl_tensor *x, *y;
} net;

/* Wide enough that backward takes a while, deep enough for several buckets. */
static net make_net(int layers) {
    net n = {.m = fl_nn_sequential(fl_nn_linear(784, 1024))};
    for (int i = 0; i < layers; i++) {
        fl_nn_add(n.m, NULL, fl_nn_relu());
        fl_nn_add(n.m, NULL, fl_nn_linear(1024, 1024));
    }
    fl_nn_add(n.m, NULL, fl_nn_linear(1024, 10));
    n.optim = fl_optim_sgd(fl_nn_parameters(n.m), .lr = 0.01);
    n.x = fl_keep(fl_normal(FL_SHAPE(128, 784), 0, 1, FL_F32, NULL));
    n.y = fl_keep(fl_randint(FL_SHAPE(128), 0, 10, NULL));
    return n;
}

/* Seconds of backward, and of the whole step. */
static double backward_of(net *n, double *step) {
    fl_scope s = fl_scope_begin();
    const double begin = fl_dist_now();
    fl_optim_zero_grad(n->optim);
    fl_var *loss = fv_cross_entropy(fl_nn_forward(n->m, fv_const(n->x)), n->y);
    const double middle = fl_dist_now();
    fl_backward(loss);
    const double end = fl_dist_now();
    fl_optim_step(n->optim);
    *step = fl_dist_now() - begin;
    fl_scope_end(&s);
    return end - middle;
}

static double median_backward(net *n, double *step) {
    double v[ROUNDS], w[ROUNDS];
    for (int r = -2; r < ROUNDS; r++) {
        double t;
        const double b = backward_of(n, &t);
        if (r >= 0) v[r] = b, w[r] = t;
    }
    *step = bench_median(w, ROUNDS);
    return bench_median(v, ROUNDS);
}

static void overlap(fl_dist_group *d, int rank) {
    double step;
    fl_set_threads(1);
    net n = make_net(6);
    fl_dist_model *m =
        fl_dist_data_parallel(d, n.m, .bucket_bytes = 4 << 20, .first_bucket_bytes = 1 << 20);
    if (!m) return;
    const double alone = median_backward(&n, &step);
    const double bytes = 4 * (double)fl_nn_count(n.m);
    alpha = 5e-5, beta = bytes / (alone / 2);
    slept = 0;
    const double both = median_backward(&n, &step), communication = slept / (ROUNDS + 2);
    char note[160];
    snprintf(note, sizeof note, "backward %.1f ms alone, %.1f ms with %.1f ms of communication",
             1e3 * alone, 1e3 * both, 1e3 * communication);
    if (!rank) bench_line("hidden", 100 * (1 - (both - alone) / communication), "%", note);
    if (getenv("BENCH_DIST_TRACE") && fl_profile_begin(0)) { /* one step, for a timeline */
        tracing = true;
        backward_of(&n, &step);
        tracing = false;
        fl_profile_save(getenv("BENCH_DIST_TRACE"));
        fl_profile_end();
    }
    fl_dist_model_free(m);
}

static double cpu_seconds(net *n) {
    struct timespec t[2];
    double step;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t[0]);
    backward_of(n, &step);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t[1]);
    return (double)(t[1].tv_sec - t[0].tv_sec) + 1e-9 * (double)(t[1].tv_nsec - t[0].tv_nsec);
}

/* The same net with and without, in turn, in CPU seconds. */
static void one_rank(void) {
    double without[ROUNDS], with[ROUNDS];
    fl_set_threads(1);
    net n = make_net(2);
    fl_dist_group *d = fl_dist_init(.size = 1);
    for (int r = -2; r < ROUNDS; r++) {
        const double x = cpu_seconds(&n);
        fl_dist_model *m = d ? fl_dist_data_parallel(d, n.m) : NULL;
        const double y = cpu_seconds(&n);
        fl_dist_model_free(m);
        if (r >= 0) without[r] = x, with[r] = y;
    }
    const double x = bench_median(without, ROUNDS), y = bench_median(with, ROUNDS);
    bench_line("one_rank_overhead", 100 * (y / x - 1), "%",
               "CPU seconds of a step through fl_dist on one rank beside one without");
    fl_dist_close(d);
}

/* ---- steps of a model, on the ranks that examples/launch started, a thread each (bench/dist_steps) ---- */

typedef struct job {
    const char *name;
    fl_nn_module *net;
    const model *m; /* NULL: the net of MNIST, 32 samples a rank */
    const model_preset *p;
} job;
static fl_var *job_loss(const job *j) {
    if (j->m) {
        const model_batch b = j->m->batch(j->p);
        return j->m->loss(j->net, j->p, &b);
    }
    fl_tensor *x = fl_normal(FL_SHAPE(32, 28, 28), 0, 1, FL_F32, NULL),
              *y = fl_randint(FL_SHAPE(32), 0, 10, NULL);
    return fv_nll_loss(fl_nn_forward(j->net, fv_const(x)), y);
}

static double state_bytes(const fl_optim *o) {
    double bytes = 0;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < FL_OPTIM_STATES; k++) {
            const fl_tensor *t = o->slot[i].state[k];
            if (t) bytes += (double)fl_numel(t) * (double)fl_dtype_size(t->dtype);
        }
    return bytes;
}

static int steps(const char *name, bool shard) {
    job j = {.name = name, .m = strcmp(name, "mnist") ? model_find(name) : NULL};
    char figure[80], note[200];
    double v[ROUNDS], cpu[ROUNDS];
    fl_set_threads(1);
    j.p = j.m ? model_preset_find(j.m, "cpu") : NULL;
    if (strcmp(name, "mnist") && !j.p) return fprintf(stderr, "there is no model %s\n", name), 1;
    fl_dist_group *d = fl_dist_init();
    j.net = j.m ? j.m->build(j.p) : digits_net_of(0);
    const int rounds = j.m ? 5 : ROUNDS, times = j.m ? 1 : 5, n = fl_dist_size(d);
    const double parameters = 4 * (double)fl_nn_count(j.net);
    fl_dist_model *dm = n > 1 ? fl_dist_data_parallel(d, j.net, .shard = shard) : NULL;
    const fv_list params = dm ? fl_dist_parameters(dm) : fl_nn_parameters(j.net);
    fl_optim *o = shard ? fl_optim_adamw(params, .lr = 1e-4)
                        : fl_optim_sgd(params, .lr = 0.01, .momentum = 0.9);
    for (int r = -2; r < rounds && o && !fl_error(); r++) {
        const double begin = fl_dist_now(), c = (double)clock() / CLOCKS_PER_SEC;
        for (int k = 0; k < times; k++) {
            fl_scope s = fl_scope_begin();
            fl_optim_zero_grad(o);
            fl_backward(job_loss(&j));
            if (dm)
                fl_dist_step(dm, o, 0);
            else
                fl_optim_step(o);
            fl_scope_end(&s);
        }
        if (r < 0) fl_mem_stats_reset_peak(NULL);
        if (r < 0) continue;
        v[r] = (fl_dist_now() - begin) / times;
        cpu[r] = ((double)clock() / CLOCKS_PER_SEC - c) / times;
    }
    snprintf(figure, sizeof figure, "step_%s_%d_ranks_fl%s", name, n, shard ? "_zero1" : "");
    snprintf(note, sizeof note,
             "%.1f ms of CPU; peak memory %.1f MB, states %.1f MB, gradients %.1f MB; over %s",
             1e3 * bench_median(cpu, rounds), 1e-6 * (double)fl_mem_stats_of(NULL).peak_in_use,
             o ? 1e-6 * state_bytes(o) : 0, 1e-6 * parameters, fl_dist_impl_name(d));
    if (fl_error()) fprintf(stderr, "%s\n", fl_error());
    if (!fl_dist_rank(d) && !fl_error()) bench_line(figure, 1e3 * bench_median(v, rounds), "ms", note);
    fl_optim_free(o);
    fl_dist_model_free(dm);
    fl_nn_free(j.net);
    fl_dist_close(d);
    return fl_error() != NULL;
}

static void rank_of_two(int rank, const char *folder) {
    char path[3][128];
    fl_dist_group *way[WAYS] = {NULL};
    fl_dist_impl_use(&fl_dist_ring);
    fl_dist_impl_use(&sleeper);
    for (int i = 0; i < 3; i++) snprintf(path[i], sizeof path[i], "%s/%d", folder, i);
    if (fl_dist_impl_named("gloo"))
        way[0] = fl_dist_init(.impl = "gloo", .rank = rank, .size = 2, .store = path[0]);
    fl_error_clear();
    way[1] = fl_dist_init(.impl = "ring", .rank = rank, .size = 2, .store = path[1]);
    if (peer_open && !peer_open(rank, 2, folder)) exit(1);
    collectives(way, rank);
    fl_dist_close(way[0]);
    fl_dist_close(way[1]);
    /* two ranks of which each has a core for itself fill the machine: one computes, the other waits */
    fl_dist_group *d = fl_dist_init(.impl = "sleeper", .rank = rank, .size = 2, .store = path[2]);
    if (!d)
        fprintf(stderr, "%s\n", fl_error());
    else if (!rank)
        overlap(d, rank);
    else
        pause(); /* until rank 0 is done, and this one is told to end */
    fl_dist_close(d);
    if (!rank) one_rank();
    exit(0);
}

/* ---- hosts: the formula of a ring beside all_reduce over links that something else limits ---- */

/* Seconds that n bytes take from rank 0 to 1 and one byte back. */
static double there_and_back(fl_dist_group *d, int64_t n) {
    double v[ROUNDS];
    fl_tensor *t = fl_zeros(FL_SHAPE(n), FL_U8), *ack = fl_zeros(FL_SHAPE(1), FL_U8);
    for (int r = 0; r < ROUNDS; r++) {
        const double begin = fl_dist_now();
        if (fl_dist_rank(d) == 0)
            fl_dist_send(d, t, 1), fl_dist_recv(d, ack, 1);
        else if (fl_dist_rank(d) == 1)
            fl_dist_recv(d, t, 0), fl_dist_send(d, ack, 0);
        v[r] = fl_dist_now() - begin;
    }
    return bench_median(v, ROUNDS);
}

/* As a rank that bench/hosts started: alpha and beta are measured between two, the rest is the formula. */
static int on_a_host(void) {
    enum { LONG = 1 << 20, TIMES = 5 };
    fl_dist_impl_use(&fl_dist_ring);
    fl_dist_group *d = fl_dist_init(.impl = "ring");
    if (!d) return 1;
    const int n = fl_dist_size(d);
    fl_scope s = fl_scope_begin();
    const double back = there_and_back(d, 1);
    alpha = back / 2, beta = LONG / (there_and_back(d, LONG) - back);
    for (int64_t bytes = 1 << 20; bytes <= 4 << 20; bytes *= 2) {
        fl_tensor *t = fl_zeros(FL_SHAPE(bytes / 4), FL_F32);
        double v[TIMES];
        char figure[80], note[200];
        for (int r = 0; r < TIMES; r++) {
            fl_dist_barrier(d);
            const double begin = fl_dist_now();
            fl_dist_all_reduce(d, t);
            v[r] = fl_dist_now() - begin;
        }
        const double measured = bench_median(v, TIMES),
                     formula = sim_ring_seconds(n, (double)bytes, alpha, beta);
        snprintf(figure, sizeof figure, "hosts_all_reduce_%lld_%d_ranks", (long long)bytes, n);
        snprintf(note, sizeof note,
                 "formula %.2f ms, %+.1f %% off; alpha %.0f us, beta %.2f MB/s, measured between two",
                 1e3 * formula, 100 * (formula / measured - 1), 1e6 * alpha, 1e-6 * beta);
        if (!fl_dist_rank(d)) bench_line(figure, 1e3 * measured, "ms", note);
    }
    fl_scope_end(&s);
    fl_dist_close(d);
    return fl_error() != NULL;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--host")) return on_a_host();
    if (argc == 4 && !strcmp(argv[1], "--steps")) return steps(argv[2], !strcmp(argv[3], "zero1"));
    char folder[] = "/tmp/fl-bench-XXXXXX", command[80];
    if (!mkdtemp(folder)) return 1;
    setenv("FL_THREADS", "1", 0);
    const pid_t other = fork();
    if (!other) {
        if (!freopen("/dev/null", "w", stdout)) return 1;
        rank_of_two(1, folder);
    }
    const pid_t first = fork();
    if (!first) rank_of_two(0, folder);
    int status;
    waitpid(first, &status, 0);
    kill(other, SIGTERM);
    waitpid(other, NULL, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) || status;
}
/* MIT licence: see LICENSE. */
