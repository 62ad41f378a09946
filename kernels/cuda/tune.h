/* kernels/cuda/tune.h - autotuning: choices made by timing, cached in a file

   FL_CUDA_TUNE=file: if a library offers several algorithms for a shape (lt.h, dnn.h), each is timed when
   the shape is first used, and the fastest is stored in the file: later runs use it, and get the same bits.
   After the first line, which identifies the format, there is one line per choice: a key of shape, GPU model
   and library version, and the choice. An invalid file is ignored with a warning, and left unchanged; then
   the library's first choice is used, as without tuning. */
#ifndef FL_CUDA_TUNE_H
#define FL_CUDA_TUNE_H
#include "../../fl_mem.h"
/* Whether tuning is on. Calls come from slots, one at a time. */
FL_PRIVATE bool fl__cuda_tunes(void);
/* Key of a shape on this GPU model with a library version. */
FL_PRIVATE uint64_t fl__cuda_tune_key(const void *shape, size_t bytes, uint64_t version);
FL_PRIVATE int fl__cuda_tuned(uint64_t key); /* the stored choice; -1: unknown */
/* Times the alternatives, stores the fastest, and leaves that one made. `at` is already made; make: makes
   the first possible alternative from `at` on and returns its index, -1 if none; start: starts its
   work on the current stream, any number of times. Alternatives that fail count as slow. */
FL_PRIVATE void fl__cuda_tune(uint64_t key, int at, int (*make)(void *user, int at),
                              bool (*start)(void *user), void *user);
#endif

#if defined(FL_IMPL_ONLY_CUDA_TUNE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_TUNE_IMPL
#define FL_CUDA_TUNE_IMPL
#include "../../fl/tensor/memo.h"
#include "flk.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char fl__cuda_tune_mark[] = "fl cuda tune 1\n";
static struct {
    bool looked;
    const char *path; /* NULL: tuning is off */
    struct {
        uint64_t key;
        int choice;
    } *entry;
    int64_t n, cap;
} fl__cuda_choices;

static bool fl__cuda_tune_add(uint64_t key, int choice) {
    if (!fl_heap_grow(&fl__cuda_choices.entry, &fl__cuda_choices.cap, fl__cuda_choices.n + 1,
                      sizeof *fl__cuda_choices.entry))
        return false;
    fl__cuda_choices.entry[fl__cuda_choices.n].key = key;
    fl__cuda_choices.entry[fl__cuda_choices.n++].choice = choice;
    return true;
}

/* Reads lines "0123456789abcdef 7"; a truncated line makes the file invalid. */
static bool fl__cuda_tune_read(FILE *f) {
    char line[64], again[64];
    if (!fgets(line, sizeof line, f) || strcmp(line, fl__cuda_tune_mark)) return false;
    while (fgets(line, sizeof line, f)) {
        uint64_t key;
        int choice;
        if (sscanf(line, "%16" SCNx64 " %2d", &key, &choice) != 2 || choice < 0) return false;
        snprintf(again, sizeof again, "%016" PRIx64 " %d\n", key, choice);
        if (strcmp(line, again) || !fl__cuda_tune_add(key, choice)) return false;
    }
    return !ferror(f);
}

FL_PRIVATE bool fl__cuda_tunes(void) {
    const char *path = getenv("FL_CUDA_TUNE");
    if (fl__cuda_choices.looked) return fl__cuda_choices.path;
    fl__cuda_choices.looked = true;
    if (!path || !*path) return false;
    FILE *f = fopen(path, "r");
    const bool ok = f ? fl__cuda_tune_read(f) : errno == ENOENT;
    if (f) fclose(f);
    if (ok) fl__cuda_choices.path = path;
    else fl_log_message(FL_LOG_WARN, "cuda: FL_CUDA_TUNE: %s is not a valid file or not readable: ignored",
                        path);
    return ok;
}

FL_PRIVATE uint64_t fl__cuda_tune_key(const void *shape, size_t bytes, uint64_t version) {
    const uint64_t all[2] = {flk_model(), version};
    return fl__memo_hash(all, sizeof all, fl__memo_hash(shape, bytes, 0));
}

FL_PRIVATE int fl__cuda_tuned(uint64_t key) {
    int choice = -1;
    for (int64_t i = 0; fl__cuda_tunes() && i < fl__cuda_choices.n; i++)
        if (fl__cuda_choices.entry[i].key == key) choice = fl__cuda_choices.entry[i].choice;
    return choice;
}

static void fl__cuda_tune_keep(uint64_t key, int choice) {
    FILE *f = fopen(fl__cuda_choices.path, "a");
    bool ok = f && fl__cuda_tune_add(key, choice);
    if (ok && ftell(f) == 0) ok = fputs(fl__cuda_tune_mark, f) >= 0;
    ok = ok && fprintf(f, "%016" PRIx64 " %d\n", key, choice) > 0;
    if (f) ok = !fclose(f) && ok;
    if (ok) return;
    fl_log_message(FL_LOG_WARN, "cuda: cannot write %s: tuning is off from now on", fl__cuda_choices.path);
    fl__cuda_choices.path = NULL;
}

/* The minimal time of a few runs in seconds; a large number if it fails. */
static double fl__cuda_seconds(bool (*start)(void *user), void *user) {
    double least = 1e9;
    for (int i = 0; i < 4; i++) {
        struct timespec a, b;
        if (flk_sync_stream()) break;
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (!start(user) || flk_sync_stream()) break;
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double took = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
        if (i && took < least) least = took; /* the first run loads it */
    }
    return least;
}

FL_PRIVATE void fl__cuda_tune(uint64_t key, int at, int (*make)(void *user, int at),
                              bool (*start)(void *user), void *user) {
    const bool failed = fl_error() != NULL; /* before */
    int best = at;
    for (double least = 1e9; at >= 0; at = make(user, at + 1)) {
        const double took = fl__cuda_seconds(start, user);
        if (took < least) least = took, best = at;
        if (!failed) fl_error_clear();
    }
    make(user, best);
    fl__cuda_tune_keep(key, best);
}

#endif
#endif
/* MIT licence: see LICENSE. */
