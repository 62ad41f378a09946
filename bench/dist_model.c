/* dist_model.c - what training on many ranks would take, by formula: modelled, never measured (make
   bench-dist_model)

   A step on n ranks: forward, backward in which gradients get ready evenly, from the last parameter to
   the first, in
   buckets (the first of 1 MiB, then 25), and an all_reduce of each behind the other, by a ring or a tree.
   What is not
   hidden behind backward adds to the step. Per model: parameters, seconds of a step on one H100 without
   communication (fl's own figures are not on GPUs yet: these are assumptions, --seconds scales them).
     step_<model>_<n>  milliseconds; the note has the hidden share and the efficiency
     limit_<model>     the least n of which communication takes more than compute

   And the simulation (kernels/dist/sim.h) beside the formula: sim_to_formula. */
#define _GNU_SOURCE
#include "bench.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#include "../kernels/dist/sim.h"

typedef struct model {
    const char *name;
    double parameters, seconds; /* of a step, a third of it forward */
} model;
/* The six models of the paper: parameters as bench/peers/common.py has them. */
static const model models[] = {{"alexnet", 61100840, 0.005},  {"vgg16", 138357544, 0.032},
                               {"resnet50", 25557032, 0.037}, {"bert", 406828032, 0.065},
                               {"asr", 262946088, 0.126},     {"vit", 86567656, 0.130}};

typedef struct network {
    const char *name;
    double alpha, beta; /* seconds, bytes per second of a rank */
    bool tree;
} network;
static const network networks[] = {{"nvlink", 8e-6, 200e9, false},
                                   {"100GbE", 20e-6, 12.5e9, false},
                                   {"100GbE-tree", 20e-6, 12.5e9, true},
                                   {"10GbE", 40e-6, 1.25e9, false}};

static double reduce_seconds(const network *w, int n, double bytes) {
    return w->tree ? sim_tree_seconds(n, bytes, w->alpha, w->beta)
                   : sim_ring_seconds(n, bytes, w->alpha, w->beta);
}

/* Seconds of a step; *communication: of all buckets, one after the other. */
static double step_seconds(const model *m, const network *w, int n, double *communication) {
    const double bytes = 4 * m->parameters, forward = m->seconds / 3, backward = m->seconds - forward;
    double ready = 0, free_at = forward;
    *communication = 0;
    for (double bucket = 1 << 20; ready < bytes; bucket = 25 << 20) {
        const double size = fmin(bucket, bytes - ready);
        ready += size;
        const double start = fmax(free_at, forward + backward * ready / bytes),
                     t = reduce_seconds(w, n, size);
        free_at = start + t;
        *communication += t;
    }
    return fmax(free_at, m->seconds);
}

typedef struct job {
    sim_world *w;
    int rank, n;
    int64_t count;
} job;
static void *reduce(void *arg) {
    job *j = arg;
    float *x = calloc((size_t)j->count, sizeof *x);
    const fl_dist_call c = {.kind = FL_DIST_ALL_REDUCE,
                            .dtype = FL_F32,
                            .count = j->count,
                            .scale = 1,
                            .root = -1,
                            .out = x,
                            .deadline = fl_dist_now() + 100};
    if (x) fl_dist_run(&fl_dist_sim, sim_rank(j->w, j->rank), j->rank, j->n, &c);
    free(x);
    return NULL;
}

static void simulate(int n, int64_t count) {
    sim_world *w = sim_open(n, 2e-5, 1.25e9);
    pthread_t thread[SIM_MOST];
    job jobs[SIM_MOST];
    double slowest = 0;
    for (int i = 0; i < n; i++) {
        jobs[i] = (job){w, i, n, count};
        pthread_create(&thread[i], NULL, reduce, &jobs[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        slowest = fmax(slowest, sim_seconds(w, i));
    }
    char note[80];
    const double formula = sim_ring_seconds(n, 4 * (double)count, 2e-5, 1.25e9);
    snprintf(note, sizeof note, "%d ranks, %lld KB: %.4f ms", n, (long long)count / 256, 1e3 * slowest);
    bench_line("sim_to_formula", slowest / formula, "", note);
    sim_close(w);
}

int main(int argc, char **argv) {
    const double scale = argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 1;
    const int n_models = sizeof models / sizeof *models, n_networks = sizeof networks / sizeof *networks;
    for (int n = 2; n <= 64; n *= 2) simulate(n, n < 8 ? 131072 : n * 16384);
    for (int k = 0; k < n_networks; k++)
        for (int i = 0; i < n_models; i++) {
            model m = models[i];
            int limit = 0;
            m.seconds *= scale;
            for (int n = 2; n <= 4096; n *= 2) {
                double communication;
                const double s = step_seconds(&m, &networks[k], n, &communication);
                char figure[80], note[160];
                if (communication > m.seconds && !limit) limit = n;
                if (n < 8) continue;
                const double hidden = 100 * (1 - (s - m.seconds) / communication);
                snprintf(figure, sizeof figure, "step_%s_%s_%d", m.name, networks[k].name, n);
                snprintf(note, sizeof note, "modelled: %.0f %% of communication hidden, efficiency %.2f",
                         hidden, m.seconds / s);
                bench_line(figure, 1e3 * s, "ms", note);
            }
            char figure[80];
            snprintf(figure, sizeof figure, "limit_%s_%s", m.name, networks[k].name);
            bench_line(figure, limit, "ranks",
                       limit ? "modelled: from here on communication takes longer than compute"
                             : "modelled: not up to 4096");
        }
    return 0;
}
