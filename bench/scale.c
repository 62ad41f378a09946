/* bench/scale.c - predicts scaling to more threads by replaying the pool's chunks

   usage: make bench-scale ARGS="vit resnet50"

   A training step of each model, cut for 2 to 64 threads, runs in one, which times each chunk. Then the same
   chunks are assigned to threads as the pool does: in order, each to the first free one. A region takes as
   long as its last thread, plus the measured cost of starting and ending one; code between regions stays
   serial. Lines: seconds and speed-up of a step for each number of threads; for 64 the shares of what limits
   the speed-up; and for 2 threads the measured speed-up, if there are two.

   The replay gives every thread the full bandwidth and cache of the measured one: it is an upper bound, what
   the cut into chunks allows. ARGS: replay skips the measurement with 2 threads, which is meaningless on a
   busy machine; rounded lets products round to bf16; inference makes a step the forward pass of one image or
   text with frozen weights. Linked with --wrap=fl_parallel. */
#include "models/model.h"
#include "peaks.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { MOST = 64, CHUNKS = 1 << 22 };

typedef struct region {
    int64_t first, n; /* chunks */
} region;

static float *chunk_seconds;
static region *regions;
static int64_t n_chunks, n_regions;
static double in_regions; /* seconds */
static bool recording, inside;
static int processors;
static bool replay_only, answering;

/* Processor seconds of this thread: what else the machine does counts less. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void __real_fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg);
void __wrap_fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg);

/* In the place of fl_parallel: chunks of `grain`, one after the other, each with its time. */
void __wrap_fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg) {
    grain = grain < 1 ? 1 : grain;
    if (!recording || inside || n <= grain || n_chunks + n / grain + 1 > CHUNKS || n_regions == CHUNKS) {
        __real_fl_parallel(n, grain, task, arg);
        return;
    }
    region *r = &regions[n_regions++];
    *r = (region){n_chunks, 0};
    inside = true;
    for (int64_t at = 0; at < n; at += grain, r->n++) {
        const double start = now();
        task(arg, at, at + grain < n ? at + grain : n);
        chunk_seconds[n_chunks] = (float)(now() - start);
        in_regions += chunk_seconds[n_chunks++];
    }
    inside = false;
}

/* Seconds until the last of the threads is through with the region. */
static double replay(const region *r, int threads) {
    double busy[MOST] = {0}, end = 0;
    for (int64_t i = 0; i < r->n; i++) {
        int free = 0;
        for (int t = 1; t < threads; t++)
            if (busy[t] < busy[free]) free = t;
        busy[free] += chunk_seconds[r->first + i];
        end = busy[free] > end ? busy[free] : end;
    }
    return end;
}

typedef struct trainer {
    const model *m;
    model_preset preset;
    fl_nn_module *net;
    model_batch batch;
    fl_optim *optim;
} trainer;

/* Seconds by that clock. */
static double step(const trainer *t, double (*clock)(void)) {
    fl_scope s = fl_scope_begin();
    const double start = clock();
    if (answering) {
        fl_nn_forward(t->net, fv_const(t->batch.t[0]));
    } else {
        fl_optim_zero_grad(t->optim);
        fl_backward(t->m->loss(t->net, &t->preset, &t->batch));
        fl_optim_step(t->optim);
    }
    fl_scope_end(&s);
    return clock() - start;
}

/* The least of three steps. */
static double measured(const trainer *t, int threads) {
    double least = HUGE_VAL;
    fl_set_threads(threads);
    step(t, fl_data_now);
    for (int i = 0; i < 3; i++) least = fmin(least, step(t, fl_data_now));
    return least;
}

static void line(const char *name, const char *what, int threads, double value, const char *unit,
                 const char *note) {
    char figure[96];
    snprintf(figure, sizeof figure, "%s_%s_%dt", name, what, threads);
    bench_line(figure, value, unit, note);
}

/* Processor seconds of a step in one thread, which finds `threads` of them and cuts its loops for so many. */
static double record(const trainer *t, int threads) {
    fl_set_threads(threads);
    recording = true;
    step(t, now);
    n_chunks = n_regions = 0;
    in_regions = 0;
    const double seconds = step(t, now);
    recording = false;
    return seconds;
}

static void figures(const trainer *t, double fork_join) {
    const char *name = t->m->name;
    const double whole = record(t, 1);
    double serial = 0, taken[MOST + 1] = {[1] = whole};
    for (int threads = 2; threads <= MOST; threads *= 2) {
        char note[96];
        serial = record(t, threads) - in_regions;
        taken[threads] = serial + (double)n_regions * fork_join;
        for (int64_t i = 0; i < n_regions; i++) taken[threads] += replay(&regions[i], threads);
        snprintf(note, sizeof note, "%.2f times as fast as one thread", whole / taken[threads]);
        line(name, "replayed", threads, taken[threads], "s", note);
    }
    const double ends = (double)n_regions * fork_join, last = taken[MOST];
    line(name, "serial", MOST, 100 * serial / last, "%", "of the step lies between regions");
    line(name, "fork_join", MOST, 100 * ends / last, "%", "starts and ends regions");
    line(name, "imbalance", MOST, 100 * (last - ends - serial - in_regions / MOST) / last, "%",
         "waits for the last chunks of a region");
    if (processors < 2 || replay_only) return;
    const double one = measured(t, 1), two = measured(t, 2);
    line(name, "measured", 2, two, "s", "of the wall");
    line(name, "speedup_measured", 2, one / two, "", "");
    line(name, "speedup_replayed", 2, whole / taken[2], "", "");
}

int main(int argc, char **argv) {
    chunk_seconds = malloc(CHUNKS * sizeof *chunk_seconds);
    regions = malloc(CHUNKS * sizeof *regions);
    if (!chunk_seconds || !regions) return 1;
    processors = fl_threads();
    const double fork_join = processors > 1 ? peak_fork_join(2) : 5e-6;
    for (int i = 1; i < argc; i++) {
        const bool rounded = !strcmp(argv[i], "rounded"), replay = !strcmp(argv[i], "replay");
        const bool answer = !strcmp(argv[i], "inference");
        if (rounded) fl_set_matmul_precision(FL_BF16);
        replay_only |= replay;
        answering |= answer;
        if (rounded || replay || answer) continue;
        fl_scope s = fl_scope_begin();
        trainer t = {.m = model_find(argv[i])};
        if (!t.m)
            return fprintf(stderr, "usage: scale [replay] [rounded] [inference] MODEL...; no model '%s'\n",
                           argv[i]), 2;
        fl_seed(1);
        t.preset = t.m->preset[0];
        if (answering) t.preset.batch = 1;
        t.net = t.m->build(&t.preset);
        t.batch = t.m->batch(&t.preset);
        if (t.batch.t[0]->ndim == 4) {
            fl_nn_channels_last(t.net);
            t.batch.t[0] = fl_channels_last(t.batch.t[0]);
        }
        fl_no_grad(answering);
        if (answering && !fl_nn_freeze(t.net, true)) break;
        t.optim = fl_optim_sgd(fl_nn_parameters(t.net), .lr = 1e-4, .momentum = 0.9);
        figures(&t, fork_join);
        fl_optim_free(t.optim);
        fl_nn_free(t.net);
        fl_scope_end(&s);
    }
    free(regions);
    free(chunk_seconds);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
