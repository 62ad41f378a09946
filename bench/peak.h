/* peak.h - what the machine can do: multiply-adds and bytes read a second, by the pool's threads

   Both are to be measured beside what they are compared with: shared machines drift. With one
   thread the clock is that of the thread, which other programs do not stretch. */
#ifndef PEAK_H
#define PEAK_H

#include "bench.h"

#include <string.h>
#include <time.h>

/* Seconds: of this thread if it is the only one, else of the wall. */
static inline double peak_now(void) {
    struct timespec t;
    if (fl_threads() > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return fl_data_now();
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { PEAK_STEPS = 400000, PEAK_REGISTERS = 12, PEAK_BYTES = 1 << 28 };

/* Floating-point operations of one thread: PEAK_STEPS multiply-adds in each of 12 registers. */
#define PEAK_LOOP(name, lanes, ...)                                                                \
    typedef float name##_vec __attribute__((vector_size(lanes * 4)));                              \
    __VA_ARGS__ static double name(volatile float *seed) {                                         \
        name##_vec acc[PEAK_REGISTERS], x = (name##_vec){0} + *seed, y = x * x;                    \
        for (int j = 0; j < PEAK_REGISTERS; j++) acc[j] = x + (float)j;                            \
        for (int i = 0; i < PEAK_STEPS; i++)                                                       \
            _Pragma("GCC unroll 12") for (int j = 0; j < PEAK_REGISTERS; j++) acc[j] =             \
                acc[j] * x + y;                                                                    \
        for (int j = 1; j < PEAK_REGISTERS; j++) acc[0] += acc[j];                                 \
        *seed = acc[0][0];                                                                         \
        return 2.0 * lanes * PEAK_REGISTERS * PEAK_STEPS;                                          \
    }

PEAK_LOOP(peak_portable, 4)
#ifdef __x86_64__
PEAK_LOOP(peak_avx2, 8, __attribute__((target("avx2,fma"))))
PEAK_LOOP(peak_avx512, 16, __attribute__((target("avx512f"))))
#endif

static double peak_flops[64]; /* of each task */

static void peak_multiply(void *arg, int64_t begin, int64_t end) {
    (void)arg;
    for (int64_t i = begin; i < end; i++) {
        volatile float seed = 1e-3f;
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx512f")) peak_flops[i] = peak_avx512(&seed);
        else if (__builtin_cpu_supports("fma")) peak_flops[i] = peak_avx2(&seed);
        else
#endif
            peak_flops[i] = peak_portable(&seed);
    }
}

/* Floating-point operations a second of all threads: one sample, a few milliseconds. */
static inline double peak_fma(void) {
    int n = fl_threads() < 64 ? fl_threads() : 64;
    double start = peak_now(), sum = 0;
    fl_parallel(n, 1, peak_multiply, NULL);
    double seconds = peak_now() - start;
    for (int i = 0; i < n; i++) sum += peak_flops[i];
    return sum / seconds;
}

static void *peak_words;
static uint64_t peak_sum;

static void peak_read_part(void *arg, int64_t begin, int64_t end) {
    typedef uint64_t words __attribute__((vector_size(64)));
    const words *x = arg;
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t i = begin; i + 4 <= end; i += 4) {
        a += x[i];
        b += x[i + 1];
        c += x[i + 2];
        d += x[i + 3];
    }
    a += b + c + d;
    __atomic_fetch_xor(&peak_sum, a[0] ^ a[5], __ATOMIC_RELAXED);
}

/* Bytes a second that all threads read from memory beyond the caches: one sample. */
static inline double peak_read(void) {
    if (!peak_words) {
        peak_words = fl_buffer_map(fl_buffer_new(PEAK_BYTES, NULL));
        memset(peak_words, 1, PEAK_BYTES);
    }
    double start = peak_now();
    fl_parallel(PEAK_BYTES / 64, 1 << 14, peak_read_part, peak_words);
    double seconds = peak_now() - start;
    return PEAK_BYTES / seconds;
}

#endif
/* MIT licence: see LICENSE. */
