/* bench/dist_model.c - training time on many ranks by formula: modelled, never measured

   make bench-dist_model. A step on n ranks: forward; backward, in which gradients become ready evenly, from
   the last parameter to the first, in buckets (the first of 1 MiB, then 25); and an all_reduce of one bucket
   after another, by a ring or a tree. Communication that backward does not hide adds to the step. Per model:
   parameters, and measured seconds of a step without communication: of the Flashlight paper (Table 3, one
   V100; its 8 GPUs are in the notes), or, with --measured FILE, of fl in a table of make bench
   (bench/results).

     step_<model>_<n>  milliseconds; the note has the hidden share and the efficiency
     limit_<model>     the smallest n at which communication takes more than compute

   And the simulation (kernels/dist/sim.h) compared with the formula: sim_to_formula. */
#define _GNU_SOURCE
#include "bench.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#include "../kernels/dist/sim.h"

typedef struct model {
    const char *name;
    double parameters, seconds, eight; /* of a step on one GPU, a third of it forward; on eight */
} model;
/* The six models of the paper: parameters as bench/peers/common.py has them, seconds of its Table 3. */
static const model models[] = {
    {"alexnet", 61100840, 0.014, 0.021},  {"vgg16", 138357544, 0.132, 0.149},
    {"resnet50", 25557032, 0.103, 0.119}, {"bert", 406828032, 0.175, 0.192},
    {"asr", 262946088, 0.536, 0.575},     {"vit", 86567656, 1.293, 1.410}};

typedef struct network {
    const char *name;
    double alpha, beta; /* seconds, bytes per second of a rank */
    bool tree;
} network;
/* nvlink: of a V100, half of 130 GB/s in both directions */
static const network networks[] = {{"nvlink", 8e-6, 65e9, false},
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

/* The median of fl's rows of that model in a table of make bench; 0 if there is none. */
static double measured_seconds(const char *path, const char *name) {
    char line[1024], model_[64], framework[128];
    double all[64], v;
    int n = 0;
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (n < 64 && fgets(line, sizeof line, f))
        if (sscanf(line, "%*s %*s %63s %127s %*s %*s %*s %*s %*s %lf", model_, framework, &v) == 3 &&
            !strcmp(model_, name) && !strncmp(framework, "fl", 2))
            all[n++] = v;
    fclose(f);
    return n ? bench_median(all, n) : 0;
}

static void steps_of(const model *m, const network *w, bool paper) {
    char figure[80], note[200];
    int limit = 0;
    for (int n = 2; n <= 4096; n *= 2) {
        double communication;
        const double s = step_seconds(m, w, n, &communication);
        if (communication > m->seconds && !limit) limit = n;
        if (n < 8) continue;
        snprintf(figure, sizeof figure, "step_%s_%s_%d", m->name, w->name, n);
        int at = snprintf(note, sizeof note, "modelled: %.0f %% of communication hidden, efficiency %.2f",
                          100 * (1 - (s - m->seconds) / communication), m->seconds / s);
        if (paper && n == 8 && w == networks)
            snprintf(note + at, sizeof note - (size_t)at, "; the paper measured %.0f ms", 1e3 * m->eight);
        bench_line(figure, 1e3 * s, "ms", note);
    }
    snprintf(figure, sizeof figure, "limit_%s_%s", m->name, w->name);
    bench_line(figure, limit, "ranks",
               limit ? "modelled: from here on communication takes longer than compute"
                     : "modelled: not up to 4096");
}

int main(int argc, char **argv) {
    const char *path = argc == 3 && !strcmp(argv[1], "--measured") ? argv[2] : NULL;
    const int n_models = sizeof models / sizeof *models, n_networks = sizeof networks / sizeof *networks;
    for (int n = 2; n <= 64; n *= 2) simulate(n, n < 8 ? 131072 : n * 16384);
    for (int k = 0; k < n_networks; k++)
        for (int i = 0; i < n_models; i++) {
            model m = models[i];
            if (path && !((m.seconds = measured_seconds(path, m.name)) > 0)) {
                fprintf(stderr, "%s has no row of fl for %s\n", path, m.name);
                return 1;
            }
            steps_of(&m, &networks[k], !path);
        }
    return 0;
}
/* MIT licence: see LICENSE. */
