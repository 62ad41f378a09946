/* vision.c - images per second: decoding, resizing, training batches; assignments (make bench-vision)

   bench-vision [FOLDER]    of JPEG files in class folders, ../shared/data/imagenet-sample/val; with
                            PEER_PYTHON in the environment bench/peers/torch_vision.py does the same work
   Prints figure, value, unit, note: medians of ROUNDS rounds. */
#include "../fl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, FILES = 99 };

static fl_tensor *bytes[FILES], *image[FILES];
static int n_files;

static double now(void) {
    return fl_data_now();
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *figure, double count, double *seconds, const char *unit) {
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    printf("%s\t%.1f\t%s\tours\n", figure, count / seconds[ROUNDS / 2], unit);
    fflush(stdout);
}

static void decode(void) {
    for (int i = 0; i < n_files; i++) {
        fl_scope s = fl_scope_begin();
        fl_vision_decode(fl_data(bytes[i]), (size_t)fl_numel(bytes[i]), .as_stored = true);
        fl_scope_end(&s);
    }
}

static void resize(void) {
    for (int i = 0; i < n_files; i++) {
        fl_scope s = fl_scope_begin();
        fl_vision_resized(image[i], 224, 224);
        fl_scope_end(&s);
    }
}

/* Random resized crop 224, flip, normalise, in two threads. */
static void batches(const char *folder, bool region) {
    const fl_vision_step steps[] = {fl_vision_random_resized_crop(224, 0, 0, FL_VISION_BILINEAR),
                                    fl_vision_random_horizontal_flip(0.5)};
    fl_data_set *set =
        fl_vision_batch(fl_vision_folder(folder), 16, .steps = steps, .n_steps = 2, .region = region,
                        .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    set = fl_data_prefetch(set, 2, 4);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (!fl_data_get(set, i, &b)) fprintf(stderr, "%s\n", fl_error());
        fl_scope_end(&s);
    }
    fl_data_free(set);
}

static void assign(void) {
    static double cost[100 * 100];
    int64_t column[100];
    for (int k = 0; k < 100; k++) {
        uint64_t state = (uint64_t)k;
        for (int i = 0; i < 10000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            cost[i] = (double)(state >> 33);
        }
        fl_vision_assign(cost, 100, 100, column);
    }
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "../shared/data/imagenet-sample/val",
               *python = getenv("PEER_PYTHON");
    fl_scope s = fl_scope_begin();
    fl_data_set *set = fl_vision_folder(folder);
    if (!set) return printf("skipped: %s\n", fl_error()), 0;
    for (; n_files < FILES && n_files < fl_data_size(set); n_files++) {
        fl_data_sample one;
        if (!fl_data_get(set, n_files, &one)) return 1;
        bytes[n_files] = one.t[0];
        image[n_files] = fl_vision_decode(fl_data(one.t[0]), (size_t)fl_numel(one.t[0]));
    }
    fl_data_free(set);
    double seconds[5][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double t[6] = {now()};
        decode(), t[1] = now();
        resize(), t[2] = now();
        batches(folder, false), t[3] = now();
        batches(folder, true), t[4] = now();
        assign(), t[5] = now();
        for (int k = 0; k < 5; k++) seconds[k][r] = t[k + 1] - t[k];
    }
    print("decode", n_files, seconds[0], "images/s");
    print("resize 224", n_files, seconds[1], "images/s");
    print("training batches", n_files, seconds[2], "images/s");
    print("training batches, region", n_files, seconds[3], "images/s");
    print("assignment 100 x 100", 100, seconds[4], "1/s");
    fl_scope_end(&s);
    if (!python || !*python) return puts("skipped: PEER_PYTHON is not set"), 0;
    char command[1200];
    snprintf(command, sizeof command, "%s bench/peers/torch_vision.py '%s'", python, folder);
    return system(command) != 0;
}
/* MIT licence: see LICENSE. */
