/* bench/bench.h - clock, medians, and the line `figure <tab> value <tab> unit <tab> note` of all
   benchmarks */
#ifndef BENCH_H
#define BENCH_H

#include "fl_all.h"

#include <stdio.h>
#include <stdlib.h>

typedef void (*bench_fn)(void *arg);

static inline int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, bench_compare);
    return seconds[n / 2];
}

/* Median seconds of one call: `rounds` samples of `repeat` calls each, after one that is not
   counted. */
static inline double bench_time(bench_fn fn, void *arg, int rounds, int repeat) {
    double sample[101];
    for (int r = -1; r < rounds; r++) {
        double start = fl_data_now();
        for (int k = 0; k < repeat; k++) fn(arg);
        if (r >= 0) sample[r] = (fl_data_now() - start) / repeat;
    }
    return bench_median(sample, rounds);
}

static inline void bench_line(const char *figure, double value, const char *unit,
                              const char *note) {
    printf("%s\t%.4g\t%s\t%s\n", figure, value, unit, note);
    fflush(stdout);
}

#endif
/* MIT licence: see LICENSE. */
