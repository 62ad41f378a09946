/* bench/peaks.c - peak FLOP/s and bandwidth of this machine (make bench-peaks [ARGS="fma 2"])

   Without arguments all figures of peaks.h, with one thread and with all; with "fma" or "copy" and a number
   of threads that figure alone, as a bare number. */
#include "peaks.h"

static void threads_line(const char *figure, int threads, double value, const char *unit,
                         const char *note) {
    char name[64];
    snprintf(name, sizeof name, "%s_%dt", figure, threads);
    bench_line(name, value, unit, note);
}

static void all_figures(int threads) {
    threads_line("fma", threads, peak_fma(threads), "GFLOP/s", "f32 multiply-add");
    threads_line("bf16", threads, peak_bf16(threads), "GFLOP/s", "bf16 dot; 0: it has none");
    threads_line("read", threads, peak_read(threads), "GB/s", "");
    threads_line("copy", threads, peak_copy(threads), "GB/s", "plain stores");
    threads_line("copy_nt", threads, peak_copy_nt(threads), "GB/s", "stores around the cache");
    threads_line("triad", threads, peak_triad(threads), "GB/s", "plain stores");
}

int main(int argc, char **argv) {
    int all = fl_threads(), threads = argc > 2 ? atoi(argv[2]) : all;
    if (argc > 1 && strcmp(argv[1], "fma") == 0) return printf("%.4g\n", peak_fma(threads)) < 0;
    if (argc > 1 && strcmp(argv[1], "copy") == 0) return printf("%.4g\n", peak_copy(threads)) < 0;
    if (argc > 1) return fprintf(stderr, "usage: peaks [fma|copy [threads]]\n"), 2;
    all_figures(1);
    if (all > 1) all_figures(all);
    bench_line("first_touch_huge", peak_touch(true), "GB/s", "one thread, huge pages");
    bench_line("first_touch_small", peak_touch(false), "GB/s", "one thread, small pages");
    if (all > 1) threads_line("fork_join", all, peak_fork_join(all) * 1e6, "us", "pool warm");
    return 0;
}
/* MIT licence: see LICENSE. */
