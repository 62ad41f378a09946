/* checkpoint_kill.c - a program that saves without end is killed: it leaves the old file or the new one

   checkpoint_kill [N]   kills N times (default 10; make checkpoint-kill N=200); SEED of the environment
   repeats the waits. The child says through a pipe when save k begins; the parent waits a random time, up
   to a quarter more than a save takes, and kills it. Then the file must load, whole, as k - 1 or k (or a
   later one that the child has begun meanwhile), and the next child goes on from there. In the folder are
   the file and at most one temporary one, which the last save takes away. */
#include "../fl.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <dirent.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 256, LAYERS = 4 };

/* Every number of training k is k: of the model, the optimizer, the generator and the progress. */
typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_progress at;
} training;

static char folder[200], file[240];

static training training_new(void) {
    training t = {.net = fl_nn_sequential(fl_nn_linear(WIDTH, WIDTH))};
    for (int i = 1; i < LAYERS; i++) fl_nn_add(t.net, NULL, fl_nn_linear(WIDTH, WIDTH));
    t.optim = fl_optim_adam(fl_nn_parameters(t.net));
    return t;
}

static bool fill(training *t, int64_t k) {
    fl_scope s = fl_scope_begin();
    fl_tensor *number = fl_int(k);
    bool ok = true;
    for (int64_t i = 0; ok && i < t->optim->n; i++) {
        const fl_optim_slot *slot = &t->optim->slot[i];
        ok = fl_assign(fv_value(slot->param), number) && fl_assign(slot->steps, number);
        for (int n = 0; ok && n < 2; n++) ok = fl_assign(slot->state[n], number) != NULL;
    }
    fl_scope_end(&s);
    t->at = (fl_optim_progress){k, k, k};
    fl_rng_set_state((fl_rng){(uint64_t)k, (uint64_t)k});
    return ok;
}

static bool all_are(fl_tensor *t, int64_t k) {
    return fl_item_int(fl_all(fl_eq(t, fl_int(k)), FL_ALL_AXES)) == 1;
}

/* Which training the file is; -1: none, or not one in all its parts. */
static int64_t load(training *t) {
    if (!fl_optim_load_checkpoint(file, t->net, t->optim, &t->at)) return -1;
    const int64_t k = t->at.step;
    const fl_rng rng = fl_rng_state();
    fl_scope s = fl_scope_begin();
    bool ok = t->at.epoch == k && t->at.position == k && rng.key == (uint64_t)k && rng.counter == (uint64_t)k;
    for (int64_t i = 0; ok && i < t->optim->n; i++) {
        const fl_optim_slot *slot = &t->optim->slot[i];
        ok = all_are(fv_value(slot->param), k) && all_are(slot->steps, k) && all_are(slot->state[0], k) &&
             all_are(slot->state[1], k);
    }
    fl_scope_end(&s);
    return ok ? k : -1;
}

static bool save(training *t, int64_t k) {
    return fill(t, k) && fl_optim_save_checkpoint(file, t->net, t->optim, &t->at);
}

/* The child: begins where the file is, and ends only by a kill. */
static void save_for_ever(training *t, int64_t k, int pipe) {
    for (;; k++) {
        if (!fill(t, k) || write(pipe, &k, sizeof k) != sizeof k) _exit(1);
        if (!fl_optim_save_checkpoint(file, t->net, t->optim, &t->at)) _exit(1);
    }
}

static void sleep_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) continue;
}

static int files_in_folder(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static double random_number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

typedef struct counts {
    int old, new, later, temporary, failed;
} counts;

/* Kills one child in the midst of a save; the training that the file is then, which was `before`. */
static int64_t kill_one(training *t, int64_t before, double wait, int saves, counts *c) {
    int ends[2];
    int64_t begun = 0;
    if (pipe(ends) < 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        save_for_ever(t, before + 1, ends[1]);
    }
    close(ends[1]);
    while (saves-- >= 0)
        if (read(ends[0], &begun, sizeof begun) != sizeof begun) break;
    sleep_for(wait);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    int64_t last = begun;
    for (int64_t k; read(ends[0], &k, sizeof k) == sizeof k;) last = k;
    close(ends[0]);
    const int left = files_in_folder();
    const int64_t found = load(t);
    if (!WIFSIGNALED(status) || begun <= before || found < begun - 1 || found > last || left > 2) {
        printf("begun %lld to %lld, found %lld, %d files: %s\n", (long long)begun, (long long)last,
               (long long)found, left, fl_error() ? fl_error() : "no error");
        fl_error_clear();
        c->failed++;
    } else if (found == begun - 1) c->old++;
    else if (found == begun) c->new++;
    else c->later++;
    c->temporary += left == 2;
    return found < 0 ? before : found;
}

static void ignore(const char *text, void *user) {
    (void)text, (void)user;
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 10;
    const char *text = getenv("SEED");
    const uint64_t seed = text && atoll(text) ? (uint64_t)atoll(text) : (uint64_t)time(NULL);
    uint64_t state = seed;
    fl_on_error(ignore, NULL);
    fl_set_threads(1); /* children fork */
    snprintf(folder, sizeof folder, "%s/fl-kill-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder)) return 1;
    snprintf(file, sizeof file, "%s/checkpoint.safetensors", folder);
    training t = training_new();
    double took = 0;
    int64_t k = 0;
    for (int i = 0; i < 5; i++) { /* the longest of five */
        const double start = fl_data_now();
        if (!save(&t, ++k)) return printf("cannot save: %s\n", fl_error()), 1;
        took = fmax(took, fl_data_now() - start);
    }
    counts c = {0};
    for (int i = 0; i < n; i++)
        k = kill_one(&t, k, 1.25 * took * random_number(&state), (int)(3 * random_number(&state)), &c);
    const bool clean = save(&t, k + 1) && load(&t) == k + 1 && files_in_folder() == 1;
    if (!clean) printf("the last save failed, or left something behind\n");
    printf("seed %llu: %d kills within saves of %.1f ms: %d old, %d new, %d later, %d temporary files left\n",
           (unsigned long long)seed, n, took * 1e3, c.old, c.new, c.later, c.temporary);
    remove(file);
    remove(folder);
    fl_optim_free(t.optim);
    fl_nn_free(t.net);
    printf("%d passed, %d failed\n", n - c.failed + clean, c.failed + !clean);
    return c.failed || !clean;
}

/* MIT licence: see LICENSE. */
