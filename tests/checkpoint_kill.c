/* tests/checkpoint_kill.c - kills a program that saves checkpoints, and reads beside two that save

   checkpoint_kill [kills [loads]]   default 10 and 200, with FULL=1 in the environment 200 and 20000 (make
   checkpoint-kill); SEED repeats the waits. Each part is for one file and for a sharded checkpoint.
   Kills: the child says through a pipe when save k begins; the parent waits a random time, up to a quarter
   more than a save takes, and kills it. Then the checkpoint must load, whole, as k - 1 or k (or a later one
   that the child has begun meanwhile), and the next child goes on from there. A save that ends leaves no
   file of a killed one in the folder.
   Loads: two children save without end to one path while the parent loads it: each load is one save of one
   child, or an error. */
#include "../fl_all.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 256, LAYERS = 4 };
enum { NONE = -1, MIXED = -2 }; /* no checkpoint that loads, or one of parts of several */

/* Every number of training k is k: of the model, the optimizer, the generator and the progress. */
typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_progress at;
    bool (*save)(struct training *t, int64_t k);
    int64_t (*load)(struct training *t); /* which training is saved */
    const char *file;
    int files; /* of one checkpoint */
} training;

static char folder[200], file[240], index_file[240];

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

static bool save_file(training *t, int64_t k) {
    return fill(t, k) && fl_optim_save_checkpoint(file, t->net, t->optim, &t->at);
}

static int64_t load_file(training *t) {
    if (!fl_optim_load_checkpoint(file, t->net, t->optim, &t->at)) return NONE;
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
    return ok ? k : MIXED;
}

/* A shard for each tensor. */
static bool save_shards(training *t, int64_t k) {
    static const char *const name[LAYERS] = {"a", "b", "c", "d"};
    (void)t;
    char text[24];
    fl_scope s = fl_scope_begin();
    fl_data_named_tensor list[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        list[i] = (fl_data_named_tensor){name[i], fl_full(FL_SHAPE(WIDTH / 4, WIDTH / 4), (double)k, FL_F32)};
    snprintf(text, sizeof text, "%lld", (long long)k);
    const bool ok = fl_data_save_sharded(index_file, list, LAYERS, (fl_data_key_value[]){{"step", text}}, 1,
                                         1);
    fl_scope_end(&s);
    return ok;
}

static int64_t load_shards(training *t) {
    (void)t;
    fl_data_file *f = fl_data_open_safetensors(index_file);
    const char *step = f ? fl_data_meta(f, "step") : NULL;
    const int64_t k = step ? atoll(step) : -1;
    bool ok = step && fl_data_count(f) == LAYERS;
    fl_scope s = fl_scope_begin();
    for (int i = 0; ok && i < LAYERS; i++) {
        fl_tensor *x = fl_data_read(f, fl_data_name(f, i));
        ok = x && all_are(x, k);
    }
    fl_scope_end(&s);
    fl_data_close(f);
    return ok ? k : fl_error() ? NONE : MIXED;
}

/* The child: begins where the file is, and ends only by a kill. */
static void save_for_ever(training *t, int64_t k, int pipe) {
    for (;; k++)
        if (write(pipe, &k, sizeof k) != sizeof k || !t->save(t, k)) _exit(1);
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
    int old, new, later, more, failed; /* more: files than a checkpoint has */
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
    const int left = files_in_folder(); /* at most one set more, and two files that are not finished */
    const int64_t found = t->load(t);
    if (!WIFSIGNALED(status) || begun <= before || found < begun - 1 || found > last ||
        left > 2 * t->files + 1) {
        printf("begun %lld to %lld, found %lld, %d files: %s\n", (long long)begun, (long long)last,
               (long long)found, left, fl_error() ? fl_error() : "no error");
        fl_error_clear();
        c->failed++;
    } else if (found == begun - 1) c->old++;
    else if (found == begun) c->new++;
    else c->later++;
    c->more += left > t->files;
    return found < 0 ? before : found;
}

static void remove_files(void) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
}

/* How many failed. */
static int kills(training *t, int n, uint64_t *random) {
    double took = 0;
    int64_t k = 0;
    for (int i = 0; i < 5; i++) { /* the longest of five */
        const double start = fl_data_now();
        if (!t->save(t, ++k)) return printf("cannot save: %s\n", fl_error()), 1;
        took = fmax(took, fl_data_now() - start);
    }
    counts c = {0};
    for (int i = 0; i < n; i++)
        k = kill_one(t, k, 1.25 * took * random_number(random), (int)(3 * random_number(random)), &c);
    const bool saved = t->save(t, k + 1) && t->load(t) == k + 1;
    const int stale = files_in_folder() - t->files;
    if (!saved || stale) printf("the last save failed, or left something behind\n");
    printf("%s: %d kills within saves of %.1f ms: %d old, %d new, %d later, %d failed; %d with more files, "
           "%d stale files after the next save\n", strrchr(t->file, '/') + 1, n, took * 1e3, c.old, c.new,
           c.later, c.failed, c.more, stale);
    remove_files();
    return c.failed + !saved + (stale != 0);
}

static int sync_nothing(void *user, void *f) {
    return (void)user, (void)f, 0;
}

static int sync_no_folder(void *user, const char *path) {
    return (void)user, (void)path, 0;
}

/* Both children save at once: one at a time succeeds. Nothing waits for the disk, so there are many saves. */
static void save_beside(training *t, int64_t first, int pipe) {
    fl_data_io io = *fl_data_io_system();
    io.sync = sync_nothing, io.sync_dir = sync_no_folder;
    fl_data_io_use(&io);
    for (int64_t k = first;; k += 2) {
        const char saved = t->save(t, k);
        if (write(pipe, &saved, 1) != 1) _exit(1);
        if (!saved) sleep_for(1e-3); /* the other one is at it */
        fl_error_clear();
    }
}

static int loads(training *t, int n) {
    pid_t child[2];
    int ends[2], whole = 0, mixed = 0, refused = 0, saves = 0, changes = 0;
    int64_t last = 0;
    if (!t->save(t, 1) || pipe(ends) < 0) return 1;
    for (int i = 0; i < 2; i++)
        if (!(child[i] = fork())) save_beside(t, 2 + i, ends[1]);
    close(ends[1]);
    for (int i = 0; i < n; i++) {
        const int64_t k = t->load(t);
        whole += k >= 0, mixed += k == MIXED, refused += k == NONE;
        changes += k >= 0 && k != last;
        if (k >= 0) last = k;
        if (k == NONE && refused < 4) printf("refused: %s\n", fl_error());
        fl_error_clear();
    }
    for (int i = 0; i < 2; i++) kill(child[i], SIGKILL), waitpid(child[i], NULL, 0);
    for (char saved; read(ends[0], &saved, 1) == 1;) saves += saved;
    close(ends[0]);
    printf("%s: %d loads beside two writers that saved %d times: %d whole, of %d saves, %d mixed, "
           "%d refused\n", strrchr(t->file, '/') + 1, n, saves, whole, changes, mixed, refused);
    remove_files();
    return mixed + (whole == 0);
}

static void ignore(const char *text, void *user) {
    (void)text, (void)user;
}

int main(int argc, char **argv) {
    const char *text = getenv("SEED"), *full = getenv("FULL");
    const bool all = full && *full && strcmp(full, "0");
    const int n_kills = argc > 1 ? atoi(argv[1]) : all ? 200 : 10;
    const int n_loads = argc > 2 ? atoi(argv[2]) : all ? 20000 : 200;
    const uint64_t seed = text && atoll(text) ? (uint64_t)atoll(text) : (uint64_t)time(NULL);
    uint64_t random = seed;
    fl_set_error_handler(ignore, NULL);
    fl_set_threads(1); /* children fork */
    snprintf(folder, sizeof folder, "%s/fl-kill-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder)) return 1;
    snprintf(file, sizeof file, "%s/checkpoint.safetensors", folder);
    snprintf(index_file, sizeof index_file, "%s/model.safetensors.index.json", folder);
    training t = {.net = fl_nn_sequential(fl_nn_linear(WIDTH, WIDTH))};
    for (int i = 1; i < LAYERS; i++) fl_nn_add(t.net, NULL, fl_nn_linear(WIDTH, WIDTH));
    t.optim = fl_optim_adam(fl_nn_parameters(t.net));
    int failed = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 2; i++) {
        t.save = i ? save_shards : save_file, t.load = i ? load_shards : load_file;
        t.file = i ? index_file : file, t.files = i ? 1 + LAYERS : 1;
        failed += kills(&t, n_kills, &random);
        failed += loads(&t, n_loads);
    }
    remove(folder);
    fl_optim_free(t.optim);
    fl_nn_free(t.net);
    printf("%d passed, %d failed\n", failed ? 0 : 4, failed);
    return failed != 0;
}

/* MIT licence: see LICENSE. */
