/* bench/checkpoint.c - saving and loading a checkpoint of ResNet-50 and SGD with momentum

   Compared with plain system calls for as many bytes (make bench-checkpoint ARGS="FOLDER"; the folder selects
   the disk, default .).

     save   ours; plain: write, fsync, rename
     load   ours: checked, then copied into the parameters; plain: read into one block of memory
     cold   after dropping the file's pages from the page cache, so that the disk is read

   Alternating, ROUNDS times; medians, and the median of the ratios plain / ours of each round: 1 is the
   disk's rate. On a busy machine use the fastest rounds, and CPU seconds. channels_last: a net whose weights
   have that layout in memory; files have them row-major. */
#include "bench.h"
#include "models/model.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
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

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void report(const char *figure, const char *what, double value, const char *unit, const char *note) {
    char name[80];
    snprintf(name, sizeof name, "%s_%s", figure, what);
    bench_line(name, value, unit, note);
}

/* [0] plain, [1] ours */
static void measure(const char *figure, job *j, void (*ours)(job *), void (*plain)(job *), bool cold) {
    double seconds[2][ROUNDS], cpu[2][ROUNDS], ratio[ROUNDS];
    char note[100];
    for (int r = -1; r < ROUNDS; r++) {
        for (int k = 0; k < 2; k++) {
            const int which = (k ^ r) & 1, at = r < 0 ? 0 : r; /* who is first changes */
            if (cold) forget(which ? j->ours : j->plain);
            const double start = fl_data_now(), start_cpu = cpu_seconds();
            (which ? ours : plain)(j);
            seconds[which][at] = fl_data_now() - start;
            cpu[which][at] = cpu_seconds() - start_cpu;
        }
        if (r >= 0) ratio[r] = seconds[0][r] / seconds[1][r];
    }
    const double a = bench_median(seconds[1], ROUNDS), b = bench_median(seconds[0], ROUNDS);
    snprintf(note, sizeof note, "CPU %.3f s; the fastest %.4g s", bench_median(cpu[1], ROUNDS),
             seconds[1][0]);
    report(figure, "seconds", a, "s", note);
    snprintf(note, sizeof note, "CPU %.3f s; the fastest %.4g s", bench_median(cpu[0], ROUNDS),
             seconds[0][0]);
    report(figure, "plain_seconds", b, "s", note);
    report(figure, "rate", (double)j->size / a / 1e6, "MB/s", "");
    snprintf(note, sizeof note, "plain seconds over ours, target 0.9; of the fastest rounds %.2f",
             seconds[0][0] / seconds[1][0]);
    report(figure, "ratio", bench_median(ratio, ROUNDS), "x", note);
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
