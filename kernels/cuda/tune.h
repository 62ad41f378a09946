/* kernels/cuda/tune.h - choices that were made by timing, once, and are kept in a file

   FL_CUDA_TUNE=file: where a library offers several ways for a shape (dnn.h), each is timed when the shape is
   first met, and the fastest stands in the file from then on: the next run takes it, and gives its bits. Of
   the first line, which is the file's mark, and one for each choice: a key, which is of the shape, the GPU's
   model and the library's version, and the choice. A file that is none of these is ignored, with a warning,
   and stays as it is: then the library's first choice is taken, as without it. */
#ifndef FL_CUDA_TUNE_H
#define FL_CUDA_TUNE_H
#include "../../fl_mem.h"
/* The file is there, or will be: time what is not known. Calls are under the caller's lock. */
FL_PRIVATE bool fl__cuda_tunes(void);
FL_PRIVATE int fl__cuda_tuned(uint64_t key); /* -1: not known */
FL_PRIVATE void fl__cuda_tune_keep(uint64_t key, int choice);
#endif

#if defined(FL_IMPL_ONLY_CUDA_TUNE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_TUNE_IMPL
#define FL_CUDA_TUNE_IMPL
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char fl__cuda_tune_mark[] = "fl cuda tune 1\n";
static struct {
    bool looked;
    const char *path; /* NULL: nothing is tuned */
    struct {
        uint64_t key;
        int choice;
    } *entry;
    int64_t n, cap;
} fl__cuda_tune;

static bool fl__cuda_tune_add(uint64_t key, int choice) {
    if (!fl_heap_grow(&fl__cuda_tune.entry, &fl__cuda_tune.cap, fl__cuda_tune.n + 1,
                      sizeof *fl__cuda_tune.entry))
        return false;
    fl__cuda_tune.entry[fl__cuda_tune.n].key = key;
    fl__cuda_tune.entry[fl__cuda_tune.n++].choice = choice;
    return true;
}

/* Lines "0123456789abcdef 7"; one that was cut short makes the file none of ours. */
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
    if (fl__cuda_tune.looked) return fl__cuda_tune.path;
    fl__cuda_tune.looked = true;
    if (!path || !*path) return false;
    FILE *f = fopen(path, "r");
    const bool ok = f ? fl__cuda_tune_read(f) : errno == ENOENT;
    if (f) fclose(f);
    if (ok) fl__cuda_tune.path = path;
    else fl_message(FL_LOG_WARN, "cuda: %s is no file of FL_CUDA_TUNE, or cannot be read: ignored", path);
    return ok;
}

FL_PRIVATE int fl__cuda_tuned(uint64_t key) {
    int choice = -1;
    for (int64_t i = 0; fl__cuda_tunes() && i < fl__cuda_tune.n; i++)
        if (fl__cuda_tune.entry[i].key == key) choice = fl__cuda_tune.entry[i].choice;
    return choice;
}

FL_PRIVATE void fl__cuda_tune_keep(uint64_t key, int choice) {
    FILE *f = fopen(fl__cuda_tune.path, "a");
    bool ok = f && fl__cuda_tune_add(key, choice);
    if (ok && ftell(f) == 0) ok = fputs(fl__cuda_tune_mark, f) >= 0;
    ok = ok && fprintf(f, "%016" PRIx64 " %d\n", key, choice) > 0;
    if (f) ok = !fclose(f) && ok;
    if (ok) return;
    fl_message(FL_LOG_WARN, "cuda: cannot write to %s: nothing more is tuned", fl__cuda_tune.path);
    fl__cuda_tune.path = NULL;
}

#endif
#endif
/* MIT licence: see LICENSE. */
