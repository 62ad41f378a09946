/* bench/attention.c - attention, forward and with gradient, against the FMA peak and its composition

   make bench-attention; the peer: bench/peers/torch_attention.py. GFLOP/s of the products alone, half of them
   if causal: 4 n m d forward, 10 n m d for the gradient. The peak is sampled between the calls. For one token
   with a cache of 4,096 keys it prints GB/s of keys and values, next to reading alone.

   ARGS: "alone" skips the composition; "alone bf16": products may round their operands; "cpu" after them: one
   thread, measured in CPU time, for a busy machine. The name of a setting: only that one. */
#include "../fl_backend.h"
#include "peaks.h"

#include <math.h>
#include <string.h>
#include <time.h>

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }
static double (*now)(void) = fl_data_now;

typedef struct setting {
    const char *name;
    int64_t batch, heads, n, d;
    bool causal;
} setting;

static const setting settings[] = {{"bert", 8, 16, 128, 64, false},
                                   {"asr", 1, 4, 600, 192, false},
                                   {"vit", 4, 12, 197, 64, false},
                                   {"gpt_small", 24, 6, 128, 32, true},
                                   {"vit_tiny", 32, 3, 65, 64, false},
                                   {"lm", 8, 8, 2048, 128, true}};

typedef struct job {
    fl_var *x[3];
    fl_tensor *dy;
    bool causal, gradient;
} job;

static void run(void *arg) {
    job *j = arg;
    fl_scope s = fl_scope_begin();
    fl_var *h[3];
    for (int i = 0; i < 3; i++) h[i] = fv_transpose(j->x[i], 1, 2);
    fl_var *y = fv_attention(h[0], h[1], h[2], .causal = j->causal);
    if (j->gradient) {
        fl_backward(y, .grad = j->dy);
        for (int i = 0; i < 3; i++) fv_zero_grad(j->x[i]);
    }
    fl_scope_end(&s);
}

/* The best of a few samples, and its share of the peak measured beside it. */
static void measure(const setting *c, job *j, const char *how, int rounds) {
    char name[64], note[64];
    double flop = (j->gradient ? 14 : 4) * (double)(c->batch * c->heads * c->n * c->n * c->d);
    double best = INFINITY, share = 0, top = 0;
    if (c->causal) flop /= 2;
    run(j);
    for (int r = 0; r < rounds; r++) {
        double before = peak_fma_sample(now), start = now();
        run(j);
        double seconds = now() - start, after = peak_fma_sample(now);
        double most = before > after ? before : after;
        top = most > top ? most : top;
        if (seconds < best) best = seconds;
    }
    share = 1e-9 * flop / best / top;
    snprintf(name, sizeof name, "%s_%s%s", c->name, j->gradient ? "forward_backward" : "forward", how);
    snprintf(note, sizeof note, "%.3g ms, %.0f %% of the peak of %.0f", best * 1e3, 100 * share,
             top);
    bench_line(name, flop / best / 1e9, "GFLOP/s", note);
}

static void compare(const setting *c, bool composed) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    job j = {.causal = c->causal};
    fl_backend part = *fl_backend_cpu(), whole;
    part.op[fl_op_attention] = part.op[fl_op_attention_grad] = NULL;
    fl_shape shape = FL_SHAPE(c->batch, c->n, c->heads, c->d);
    for (int i = 0; i < 3; i++) j.x[i] = fv_param(fl_uniform(shape, -1, 1, FL_F32, &rng));
    j.dy = fl_transpose(fl_uniform(shape, -1, 1, FL_F32, &rng), 1, 2);
    for (int g = 0; g < 2; g++) {
        j.gradient = g;
        measure(c, &j, "", c->n > 1000 ? 3 : 15);
        if (!composed) continue;
        fl_backend_use(&part, &whole);
        measure(c, &j, "_composed", c->n > 1000 ? 1 : 5);
        fl_backend_use(&whole, NULL);
    }
    fl_scope_end(&s);
}

/* ---- one token behind a cache of keys ---- */

enum { KEYS = 4096, DIM = 128, LAYERS = 8 }; /* layers, one after the other, lie beyond the caches */

typedef struct step {
    fl_tensor *q, *k[LAYERS], *v[LAYERS];
    int layer;
} step;

static void decode(void *arg) {
    step *j = arg;
    fl_scope s = fl_scope_begin();
    fl_attention(j->q, j->k[j->layer], j->v[j->layer], .causal = true, .offset = KEYS - 1);
    j->layer = (j->layer + 1) % LAYERS;
    fl_scope_end(&s);
}

/* GB/s of keys and values read, the best of samples taken in turns with reading alone. */
static void measure_decode(int64_t heads, int64_t kv_heads) {
    char name[64], note[96];
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    const fl_shape shape = FL_SHAPE(1, kv_heads, KEYS, DIM);
    const double bytes = 2.0 * 4 * (double)(kv_heads * KEYS * DIM);
    step j = {.q = fl_uniform(FL_SHAPE(1, heads, 1, DIM), -1, 1, FL_F32, &rng)};
    for (int i = 0; i < LAYERS; i++) {
        j.k[i] = fl_uniform(shape, -1, 1, FL_F32, &rng);
        j.v[i] = fl_uniform(shape, -1, 1, FL_F32, &rng);
    }
    double best = 0, top = 0;
    for (int r = 0; r < 10; r++) {
        const double read = peak_read(fl_threads());
        const double rate = peak_rate(fl_threads(), decode, &j, bytes) * 1e-9;
        top = read > top ? read : top;
        best = rate > best ? rate : best;
    }
    snprintf(name, sizeof name, "decode_%lld_keys_%lldq_%lldkv", (long long)KEYS, (long long)heads,
             (long long)kv_heads);
    snprintf(note, sizeof note, "%.3g us, %.0f %% of reading at %.3g", bytes / best * 1e-3,
             100 * best / top, top);
    bench_line(name, best, "GB/s", note);
    fl_scope_end(&s);
}

/* "alone": the shapes without their compositions; "decode": one token only. */
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "bf16")) fl_set_matmul_precision(FL_BF16);
        if (!strcmp(argv[i], "cpu")) now = cpu_seconds, fl_set_threads(1);
    }
    const bool alone = argc > 1 && !strcmp(argv[1], "alone");
    const bool decode_only = argc > 1 && !strcmp(argv[1], "decode");
    const int count = (int)(sizeof settings / sizeof *settings);
    int only = -1;
    for (int i = 1; i < argc; i++)
        for (int k = 0; k < count; k++)
            if (!strcmp(argv[i], settings[k].name)) only = k;
    for (int i = 0; i < count && !decode_only; i++)
        if (only < 0 || only == i) compare(&settings[i], !alone);
    if (alone) return fl_error() != NULL;
    measure_decode(8, 8);
    measure_decode(32, 8);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
