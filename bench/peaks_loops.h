/* bench/peaks_loops.h - the loops of peaks.h at one instruction-set level

   Included once per level by peaks.h, which defines PEAK_LEVEL (the suffix of the names), PEAK_TARGET (the
   attribute), PEAK_BYTES (of a vector register) and PEAK_STREAM(p, v) (a non-temporal store). */
#define PEAK_JOIN_(a, b) a##_##b
#define PEAK_JOIN(a, b) PEAK_JOIN_(a, b)
#define PEAK_NAME(name) PEAK_JOIN(name, PEAK_LEVEL)
#define PEAK_V PEAK_NAME(peak_v)

typedef float PEAK_V __attribute__((vector_size(PEAK_BYTES), may_alias));

/* Independent chains of multiply-add: enough of them to hide the latency of both units. */
PEAK_TARGET static inline void PEAK_NAME(peak_fma_loop)(const float *factor, float *out) {
    PEAK_V x = {0}, chain[PEAK_CHAINS] = {{0}};
    x += factor[0];
    for (int c = 0; c < PEAK_CHAINS; c++) chain[c] = x * (float)c; /* alike, they would be merged */
    for (int64_t i = 0; i < PEAK_FMA_ROUNDS; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < PEAK_CHAINS; c++) chain[c] = chain[c] * x + x;
    }
    for (int c = 0; c < PEAK_CHAINS; c++) *out += chain[c][0];
}

/* `n` counts floats and is a multiple of PEAK_BLOCK. */
PEAK_TARGET static inline void PEAK_NAME(peak_read_loop)(const peak_buffers *b, int64_t begin,
                                                         int64_t n, float *out) {
    const PEAK_V *x = (const PEAK_V *)(b->x + begin);
    PEAK_V sum[8] = {{0}};
    for (int64_t i = 0; i < n / (PEAK_BYTES / 4); i += 8) {
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) sum[k] += x[i + k];
    }
    for (int k = 0; k < 8; k++) *out += sum[k][0];
}

#define PEAK_PASS(name, store) \
    PEAK_TARGET static inline void PEAK_NAME(name)(const peak_buffers *b, int64_t begin, \
                                                   int64_t n) { \
        const PEAK_V *x = (const PEAK_V *)(b->x + begin), *z = (const PEAK_V *)(b->z + begin); \
        PEAK_V *y = (PEAK_V *)(b->y + begin); \
        (void)z; \
        for (int64_t i = 0; i < n / (PEAK_BYTES / 4); i++) store; \
    }
PEAK_PASS(peak_copy_loop, y[i] = x[i])
PEAK_PASS(peak_triad_loop, y[i] = x[i] * 3.0f + z[i])
PEAK_PASS(peak_stream_loop, PEAK_STREAM(y + i, x[i]))
#undef PEAK_PASS

static const peak_loops PEAK_NAME(peak_loops_of) = {
    PEAK_NAME(peak_fma_loop),   PEAK_NAME(peak_read_loop),   PEAK_NAME(peak_copy_loop),
    PEAK_NAME(peak_triad_loop), PEAK_NAME(peak_stream_loop), PEAK_BYTES / 4 * 2};

#undef PEAK_LEVEL
#undef PEAK_TARGET
#undef PEAK_BYTES
#undef PEAK_STREAM
/* MIT licence: see LICENSE. */
