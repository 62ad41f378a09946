/* bench/peer.h - a PEER_PYTHON process that answers line by line, measured alternately with fl */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

/* to is NULL where there is no peer. */
typedef struct bench_peer {
    FILE *to, *from;
} bench_peer;

static inline void bench_peer_end(bench_peer *p) {
    if (p->to) fclose(p->to);
    if (p->from) fclose(p->from);
    *p = (bench_peer){NULL, NULL};
}

/* Starts bench/peers/<script> with two arguments, of which b may be NULL; its first line says what answers.
   Without PEER_PYTHON, or an answer, there is no peer. */
static inline bench_peer bench_peer_begin(const char *script, const char *a, const char *b) {
    bench_peer p = {NULL, NULL};
    int to[2], from[2];
    char line[200], path[200];
    const char *python = getenv("PEER_PYTHON");
    if (!python || !*python || pipe(to) || pipe(from)) return p;
    snprintf(path, sizeof path, "bench/peers/%s", script);
    if (fork() == 0) {
        dup2(to[0], 0), dup2(from[1], 1);
        for (int i = 0; i < 2; i++) close(to[i]), close(from[i]);
        execlp(python, python, path, a, b, (char *)NULL);
        _exit(127);
    }
    close(to[0]), close(from[1]);
    p = (bench_peer){fdopen(to[1], "w"), fdopen(from[0], "r")};
    if (p.to && p.from && fgets(line, sizeof line, p.from)) printf("# peer: %s", line);
    else bench_peer_end(&p);
    return p;
}

/* The number that it answers to a line; NAN without a peer, or an answer. */
static inline double bench_peer_ask(const bench_peer *p, const char *format, ...) {
    char line[100];
    va_list list;
    if (!p->to) return (double)NAN;
    va_start(list, format);
    vfprintf(p->to, format, list);
    va_end(list);
    fputc('\n', p->to);
    fflush(p->to);
    return fgets(line, sizeof line, p->from) ? atof(line) : (double)NAN;
}

/* A job of ours and of some of theirs in turn, CPU seconds, medians of up to 9 rounds: lines `figure`,
   `figure:job` and `figure:job:ratio`, the median of the rounds' theirs / ours. scale: what a run gets done,
   or 0 for milliseconds. The first job's ratio, NAN without an answer. */
static inline double bench_beside(const bench_peer *peer, int rounds, const char *figure, void (*ours)(void),
                                  const char *const *theirs, double scale, const char *unit) {
    enum { MOST = 9, JOBS = 8 };
    double mine[MOST], other[JOBS][MOST], ratio[JOBS][MOST], first = (double)NAN;
    char name[200];
    if (rounds > 1) ours();
    for (int r = 0; r < rounds; r++) {
        const clock_t start = clock();
        ours();
        mine[r] = (double)(clock() - start) / CLOCKS_PER_SEC;
        for (int k = 0; theirs[k]; k++) {
            other[k][r] = bench_peer_ask(peer, "%s", theirs[k]);
            ratio[k][r] = other[k][r] / mine[r];
        }
    }
    const double median = bench_median(mine, rounds);
    bench_line(figure, scale > 0 ? scale / median : median * 1e3, unit, "ours");
    for (int k = 0; theirs[k]; k++) {
        const double value = bench_median(other[k], rounds), times = bench_median(ratio[k], rounds);
        if (!k) first = times;
        snprintf(name, sizeof name, "%s:%s", figure, theirs[k]);
        if (value != value) continue;
        bench_line(name, scale > 0 ? scale / value : value * 1e3, unit, "theirs");
        snprintf(name, sizeof name, "%s:%s:ratio", figure, theirs[k]);
        bench_line(name, times, "x", "theirs / ours");
    }
    return first;
}

#endif
/* MIT licence: see LICENSE. */
