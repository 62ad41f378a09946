/* checkpoint.c - saving and loading a checkpoint of ResNet-50 and SGD with momentum, beside plain calls of
   the system with as many bytes (make bench-checkpoint ARGS="FOLDER"; the folder says which disk, default .)

   save   ours; plain: write, fsync, rename
   load   ours: checked, then copied into the parameters; plain: read into one block of memory
   cold   the file's pages were dropped from the system's memory before, so that the disk is read

   In turn, ROUNDS times; medians, and the median of the ratios plain / ours of each round: 1 is the disk's
   rate. channels_last: of a net whose weights lie so in memory; files have them row-major. */
#include "bench.h"
#include "models/model.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 9 };

typedef struct job {
    fl_nn_module *net;
    fl_optim *optim;
    char ours[300], plain[300], temporary[310];
    char *bytes; /* as many as ours has */
    size_t size;
    bool ok;
} job;

static void save_ours(job *j) {
    j->ok = fl_optim_save_checkpoint(j->ours, j->net, j->optim, NULL) && j->ok;
}

static void load_ours(job *j) {
    j->ok = fl_optim_load_checkpoint(j->ours, j->net, j->optim, NULL) && j->ok;
}

static void save_plain(job *j) {
    const int f = open(j->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    size_t done = 0;
    for (ssize_t n; done < j->size && (n = write(f, j->bytes + done, j->size - done)) > 0;) done += (size_t)n;
    j->ok = f >= 0 && done == j->size && fsync(f) == 0 && close(f) == 0 &&
            rename(j->temporary, j->plain) == 0 && j->ok;
}

static void load_plain(job *j) {
    const int f = open(j->plain, O_RDONLY);
    size_t done = 0;
    for (ssize_t n; done < j->size && (n = read(f, j->bytes + done, j->size - done)) > 0;) done += (size_t)n;
    j->ok = f >= 0 && done == j->size && close(f) == 0 && j->ok;
}

static void forget(const char *path) {
    const int f = open(path, O_RDONLY);
    if (f < 0) return;
    posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED);
    close(f);
}

static void measure(const char *figure, job *j, void (*ours)(job *), void (*plain)(job *), bool cold) {
    double mine[ROUNDS], theirs[ROUNDS], ratio[ROUNDS];
    char name[80];
    for (int r = -1; r < ROUNDS; r++) {
        double seconds[2];
        for (int k = 0; k < 2; k++) {
            const bool first = (k ^ r) & 1; /* who is first changes */
            if (cold) forget(first ? j->ours : j->plain);
            const double start = fl_data_now();
            (first ? ours : plain)(j);
            seconds[first] = fl_data_now() - start;
        }
        if (r < 0) continue;
        mine[r] = seconds[1], theirs[r] = seconds[0], ratio[r] = seconds[0] / seconds[1];
    }
    const double a = bench_median(mine, ROUNDS), b = bench_median(theirs, ROUNDS);
    snprintf(name, sizeof name, "%s_seconds", figure);
    bench_line(name, a, "s", "");
    snprintf(name, sizeof name, "%s_plain_seconds", figure);
    bench_line(name, b, "s", "");
    snprintf(name, sizeof name, "%s_rate", figure);
    bench_line(name, (double)j->size / a / 1e6, "MB/s", "");
    snprintf(name, sizeof name, "%s_ratio", figure);
    bench_line(name, bench_median(ratio, ROUNDS), "x", "the plain calls' seconds over ours; target 0.9");
}

/* Momenta exist, and no number is the same. */
static void fill(job *j) {
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; i < j->optim->n; i++) {
        fl_tensor *v = j->optim->slot[i].state[0];
        fl_assign(v, fl_uniform(fl_shape_of(v), -1, 1, FL_F32, NULL));
    }
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    job j = {.net = model_resnet50.build(&model_resnet50.preset[0]), .ok = true};
    struct stat s;
    j.optim = fl_optim_sgd(fl_nn_parameters(j.net), .lr = 0.1, .momentum = 0.9);
    fill(&j);
    snprintf(j.ours, sizeof j.ours, "%.250s/bench_checkpoint.safetensors", folder);
    snprintf(j.plain, sizeof j.plain, "%.250s/bench_checkpoint.bin", folder);
    snprintf(j.temporary, sizeof j.temporary, "%s.tmp", j.plain);
    save_ours(&j);
    if (!j.ok || stat(j.ours, &s) != 0) return fprintf(stderr, "checkpoint: %s\n", fl_error()), 1;
    j.size = (size_t)s.st_size;
    j.bytes = malloc(j.size);
    if (!j.bytes) return 1;
    load_ours(&j);
    for (size_t i = 0; i < j.size; i++) j.bytes[i] = (char)(i * 2654435761u >> 24);
    bench_line("bytes", (double)j.size, "bytes", "");
    measure("save", &j, save_ours, save_plain, false);
    measure("load_cold", &j, load_ours, load_plain, true);
    measure("load", &j, load_ours, load_plain, false);
    fl_nn_channels_last(j.net);
    measure("save_channels_last", &j, save_ours, save_plain, false);
    measure("load_cold_channels_last", &j, load_ours, load_plain, true);
    remove(j.ours);
    remove(j.plain);
    free(j.bytes);
    fl_optim_free(j.optim);
    fl_nn_free(j.net);
    if (!j.ok) fprintf(stderr, "checkpoint: a call failed: %s\n", fl_error() ? fl_error() : "a plain one");
    return !j.ok;
}

/* MIT licence: see LICENSE. */
