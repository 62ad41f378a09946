/* bench/peaks.h - peak FLOP/s and bandwidth of this machine, measured in a fifth of a second each

     #include "peaks.h"

     double gflops = peak_fma(2);  // two threads, at the best instruction-set level
     double gbytes = peak_copy(2); // bytes loaded and stored, without the read for ownership of a store

   Each figure is the best of many short samples on fl's own pool, so measure it in the same minute as what is
   compared with it: shared machines drift. The bandwidths use buffers larger than the caches, on huge pages
   if the system has them; while one is measured the process holds 3 x PEAK_BUFFER bytes more, outside fl's
   allocator. A figure that the machine lacks is 0. */
#ifndef BENCH_PEAKS_H
#define BENCH_PEAKS_H

#include "bench.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define PEAK_SECONDS 0.2
#define PEAK_BUFFER ((int64_t)96 << 20) /* bytes, of each buffer */
#define PEAK_TOUCH ((size_t)16 << 20)   /* bytes of one first touch */
#define PEAK_WINDOW ((int64_t)1 << 20)  /* floats that a round of a bandwidth moves */
#define PEAK_BLOCK ((int64_t)1 << 16)   /* and one task of it */
enum { PEAK_CHAINS = 12, PEAK_FMA_ROUNDS = 1 << 17, PEAK_TASKS = 3, PEAK_MEETINGS = 50 };

typedef struct peak_buffers {
    float *x, *y, *z;
    void *memory[3]; /* what to free */
} peak_buffers;

typedef struct peak_loops {
    void (*fma)(const float *factor, float *out);
    void (*read)(const peak_buffers *b, int64_t begin, int64_t n, float *out);
    void (*copy)(const peak_buffers *b, int64_t begin, int64_t n);
    void (*triad)(const peak_buffers *b, int64_t begin, int64_t n);
    void (*stream)(const peak_buffers *b, int64_t begin, int64_t n);
    int flops; /* of one multiply-add of a vector */
} peak_loops;

/* ---- the loops at every level ---- */

#define PEAK_LEVEL portable
#define PEAK_TARGET
#define PEAK_BYTES 16
#if defined(__x86_64__)
#define PEAK_STREAM(p, v) _mm_stream_ps((float *)(p), (__m128)(v))
#else
#define PEAK_STREAM(p, v) *(p) = (v)
#endif
#include "peaks_loops.h"

#if defined(__x86_64__)
#define PEAK_LEVEL avx2
#define PEAK_TARGET __attribute__((target("avx2,fma")))
#define PEAK_BYTES 32
#define PEAK_STREAM(p, v) _mm256_stream_ps((float *)(p), (__m256)(v))
#include "peaks_loops.h"

#define PEAK_LEVEL avx512
#define PEAK_TARGET __attribute__((target("avx512f")))
#define PEAK_BYTES 64
#define PEAK_STREAM(p, v) _mm512_stream_ps((float *)(p), (__m512)(v))
#include "peaks_loops.h"

__attribute__((target("avx512f,avx512bf16"))) static inline void peak_bf16_loop(const float *factor,
                                                                                float *out) {
    __m512 chain[PEAK_CHAINS];
    union {
        float f[16];
        __m512bh v;
    } x;
    for (int i = 0; i < 16; i++) x.f[i] = *factor;
    for (int c = 0; c < PEAK_CHAINS; c++) chain[c] = _mm512_set1_ps(x.f[0] * (float)c);
    for (int64_t i = 0; i < PEAK_FMA_ROUNDS; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < PEAK_CHAINS; c++) chain[c] = _mm512_dpbf16_ps(chain[c], x.v, x.v);
    }
    for (int c = 0; c < PEAK_CHAINS; c++) *out += chain[c][0];
}
#endif

static inline const peak_loops *peak_best_loops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return &peak_loops_of_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &peak_loops_of_avx2;
#endif
    return &peak_loops_of_portable;
}

/* ---- sampling ---- */

/* Best amount per second of round(arg), which does `amount` on `threads` threads. Rounds are kept
   at some milliseconds, so that on a busy machine some of them run undisturbed. */
static inline double peak_rate(int threads, bench_fn round, void *arg, double amount) {
    int before = fl_threads();
    if (threads != before) fl_set_threads(threads);
    round(arg);
    double best = 0, start = fl_data_now();
    while (fl_data_now() - start < PEAK_SECONDS) {
        double begin = fl_data_now();
        round(arg);
        double rate = amount / (fl_data_now() - begin);
        if (rate > best) best = rate;
    }
    if (threads != before) fl_set_threads(before);
    return best;
}

static volatile float peak_sink; /* keeps the loops whose result nobody wants */

/* ---- arithmetic ---- */

typedef struct peak_compute {
    void (*loop)(const float *factor, float *out);
    int threads;
} peak_compute;

static inline void peak_compute_task(void *arg, int64_t begin, int64_t end) {
    volatile float one = 1e-3f;
    float factor = one, out = 0;
    for (int64_t i = begin; i < end; i++) ((peak_compute *)arg)->loop(&factor, &out);
    peak_sink = out;
}

static inline void peak_compute_round(void *arg) {
    fl_parallel(PEAK_TASKS * ((peak_compute *)arg)->threads, 1, peak_compute_task, arg);
}

/* Operations of a round. */
static inline double peak_work(peak_compute p, double flops_of_one) {
    return flops_of_one * PEAK_CHAINS * PEAK_FMA_ROUNDS * PEAK_TASKS * p.threads;
}

static inline double peak_flops(peak_compute p, double flops_of_one) {
    return peak_rate(p.threads, peak_compute_round, &p, peak_work(p, flops_of_one)) * 1e-9;
}

/* f32 multiply-add, GFLOP/s. */
static inline double peak_fma(int threads) {
    const peak_loops *best = peak_best_loops();
    return peak_flops((peak_compute){best->fma, threads}, best->flops);
}

/* One sample of it, a few milliseconds by `clock` on the threads there are: for what is measured in
   turns with the machine. */
static inline double peak_fma_sample(double (*clock)(void)) {
    const peak_loops *best = peak_best_loops();
    peak_compute p = {best->fma, fl_threads()};
    double start = clock();
    peak_compute_round(&p);
    return peak_work(p, best->flops) / (clock() - start) * 1e-9;
}

/* Dot products of bf16 pairs added to f32, GFLOP/s. */
static inline double peak_bf16(int threads) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16"))
        return peak_flops((peak_compute){peak_bf16_loop, threads}, 64);
#endif
    return (void)threads, 0;
}

/* ---- memory ---- */

enum { PEAK_READ, PEAK_COPY, PEAK_TRIAD, PEAK_STREAM_COPY };

typedef struct peak_pass {
    peak_buffers buffers;
    int64_t offset; /* where this round begins */
    int what;
} peak_pass;

static inline void peak_pass_task(void *arg, int64_t begin, int64_t end) {
    const peak_pass *p = arg;
    const peak_loops *best = peak_best_loops();
    int64_t first = p->offset + begin, n = end - begin;
    float out = 0;
    switch (p->what) {
    case PEAK_READ: best->read(&p->buffers, first, n, &out); break;
    case PEAK_COPY: best->copy(&p->buffers, first, n); break;
    case PEAK_TRIAD: best->triad(&p->buffers, first, n); break;
    default: best->stream(&p->buffers, first, n);
    }
    peak_sink = out;
}

/* One window of the buffers after the other, so that nothing is still in a cache. */
static inline void peak_pass_round(void *arg) {
    peak_pass *p = arg;
    fl_parallel(PEAK_WINDOW, PEAK_BLOCK, peak_pass_task, p);
    p->offset = (p->offset + PEAK_WINDOW) % (PEAK_BUFFER / 4);
}

/* A buffer on a 2 MiB boundary, not touched yet; *memory is what to free. */
static inline float *peak_buffer(void **memory, bool huge) {
    const uintptr_t page = (uintptr_t)2 << 20;
    *memory = malloc((size_t)PEAK_BUFFER + page);
    if (!*memory) return NULL;
    void *p = (void *)(((uintptr_t)*memory + page - 1) & ~(page - 1));
#ifdef MADV_HUGEPAGE
    madvise(p, (size_t)PEAK_BUFFER, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    return (void)huge, p;
}

/* GB/s of a loop that moves `bytes` bytes per float. */
static inline double peak_bandwidth(int threads, int what, int bytes) {
    peak_pass p = {.what = what};
    float **buffer[3] = {&p.buffers.x, &p.buffers.y, &p.buffers.z};
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        *buffer[i] = peak_buffer(&p.buffers.memory[i], true);
        if (*buffer[i]) memset(*buffer[i], 0, (size_t)PEAK_BUFFER);
        else ok = false;
    }
    double rate = ok ? peak_rate(threads, peak_pass_round, &p, (double)PEAK_WINDOW * bytes) : 0;
    for (int i = 0; i < 3; i++) free(p.buffers.memory[i]);
    return rate * 1e-9;
}

static inline double peak_read(int threads) {
    return peak_bandwidth(threads, PEAK_READ, 4);
}

/* One sample: once through a buffer, which stays. */
static inline double peak_read_sample(double (*clock)(void)) {
    static peak_pass p = {.what = PEAK_READ};
    if (!p.buffers.x && (p.buffers.x = peak_buffer(&p.buffers.memory[0], true)))
        memset(p.buffers.x, 0, (size_t)PEAK_BUFFER);
    double start = clock();
    for (int64_t i = 0; p.buffers.x && i < PEAK_BUFFER / 4; i += PEAK_WINDOW) peak_pass_round(&p);
    return p.buffers.x ? (double)PEAK_BUFFER / (clock() - start) * 1e-9 : 0;
}

/* Plain stores, which read the line that they overwrite. */
static inline double peak_copy(int threads) {
    return peak_bandwidth(threads, PEAK_COPY, 8);
}

/* Stores around the cache. */
static inline double peak_copy_nt(int threads) {
    return peak_bandwidth(threads, PEAK_STREAM_COPY, 8);
}

/* y = 3 x + z, plain stores. */
static inline double peak_triad(int threads) {
    return peak_bandwidth(threads, PEAK_TRIAD, 12);
}

/* GB/s of writing memory for the first time, one thread, on huge or on small pages. */
static inline double peak_touch(bool huge) {
    double best = 0, start = fl_data_now();
    while (fl_data_now() - start < PEAK_SECONDS) {
        void *memory;
        float *p = peak_buffer(&memory, huge);
        double begin = fl_data_now();
        if (p) memset(p, 1, PEAK_TOUCH);
        double rate = (double)PEAK_TOUCH / (fl_data_now() - begin);
        if (p && rate > best) best = rate;
        peak_sink = p ? p[PEAK_TOUCH / 8] : 0;
        free(memory);
    }
    return best * 1e-9;
}

/* ---- threads ---- */

typedef struct peak_meeting {
    int here, threads;
} peak_meeting;

/* Waits for the other tasks, at most a millisecond: where they must run one after another none
   comes. */
static inline void peak_meet_task(void *arg, int64_t begin, int64_t end) {
    peak_meeting *m = arg;
    double start = fl_data_now();
    __atomic_add_fetch(&m->here, (int)(end - begin), __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&m->here, __ATOMIC_ACQUIRE) % m->threads)
        if (fl_data_now() - start > 1e-3) break;
}

static inline void peak_meet_round(void *arg) {
    for (int i = 0; i < PEAK_MEETINGS; i++) {
        peak_meeting m = {.threads = *(int *)arg};
        fl_parallel(m.threads, 1, peak_meet_task, &m);
    }
}

/* Seconds of an fl_parallel in which every thread comes in once, the pool warm. */
static inline double peak_fork_join(int threads) {
    return 1 / peak_rate(threads, peak_meet_round, &threads, PEAK_MEETINGS);
}

#endif
/* MIT licence: see LICENSE. */
