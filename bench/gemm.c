/* bench/gemm.c - matrix products of the models against the roofline, with 1 and 2 threads

   make bench-gemm ARGS="bert dw 2". FMA peak and read bandwidth are measured in the same seconds. ARGS: words
   that a line must contain (of layer, form, threads), or a number of threads alone; bf16: products may round
   their operands, alternating with f32, whose rate is in the note. Forms of a layer of `in` to `out` for m
   rows: y = x w^T (forward), dx = dy w, dw = dy^T x; and of a batch of products: nn, nt. Each line: GFLOP/s;
   the note has its share of the roofline, min(FMA peak, operations * read bandwidth / bytes touched once),
   and the rate of OpenBLAS with its own threads on the same operands, if linked. */
#include "peaks.h"
#include <time.h>

typedef struct layer {
    const char *name;
    int64_t items, m, in, out;
} layer;

static const layer layers[] = {
    {"bert_128_1024_1024", 1, 128, 1024, 1024},    {"bert_128_1024_4096", 1, 128, 1024, 4096},
    {"bert_128_4096_1024", 1, 128, 4096, 1024},    {"bert_128_1024_50265", 1, 128, 1024, 50265},
    {"bert_1024_1024_1024", 1, 1024, 1024, 1024},  {"bert_1024_1024_4096", 1, 1024, 1024, 4096},
    {"bert_1024_4096_1024", 1, 1024, 4096, 1024},  {"bert_1024_1024_50265", 1, 1024, 1024, 50265},
    {"asr_600_768_768", 1, 600, 768, 768},         {"asr_600_768_3072", 1, 600, 768, 3072},
    {"asr_600_3072_768", 1, 600, 3072, 768},       {"asr_600_768_9999", 1, 600, 768, 9999},
    {"vit_788_768_768", 1, 788, 768, 768},         {"vit_788_768_3072", 1, 788, 768, 3072},
    {"vit_788_3072_768", 1, 788, 3072, 768},       {"alexnet_32_9216_4096", 1, 32, 9216, 4096},
    {"alexnet_32_4096_4096", 1, 32, 4096, 4096},   {"alexnet_32_4096_1000", 1, 32, 4096, 1000},
    {"vgg_4_25088_4096", 1, 4, 25088, 4096},       {"vgg_4_4096_4096", 1, 4, 4096, 4096},
    {"vgg_4_4096_1000", 1, 4, 4096, 1000},         {"resnet_32_2048_1000", 1, 32, 2048, 1000},
    {"gpt_3072_192_192", 1, 3072, 192, 192},       {"gpt_3072_192_576", 1, 3072, 192, 576},
    {"gpt_3072_192_768", 1, 3072, 192, 768},       {"gpt_3072_768_192", 1, 3072, 768, 192},
    {"row_1_4096_4096", 1, 1, 4096, 4096},         {"vit_heads_48_197_64", 48, 197, 64, 197},
    {"bert_heads_16_128_64", 16, 128, 64, 128},    {"asr_heads_4_600_192", 4, 600, 192, 600},
    {"lstm_700_256_10000", 1, 700, 256, 10000},    {"cube_128", 1, 128, 128, 128},
    {"cube_64", 1, 64, 64, 64},                    {"cube_32", 1, 32, 32, 32},
    {"cube_1024", 1, 1024, 1024, 1024},
};

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
    __attribute__((weak));
void openblas_set_num_threads(int n) __attribute__((weak));

/* One product c = a b, its operands seen through strides. */
typedef struct product {
    int64_t items, m, n, k, repeat;
    fl_tensor *a, *b;
    float *c; /* for OpenBLAS */
} product;

static void run_ours(const product *p) {
    for (int64_t r = 0; r < p->repeat; r++) {
        fl_scope s = fl_scope_begin();
        fl_matmul(p->a, p->b);
        fl_scope_end(&s);
    }
}

static void run_openblas(const product *p) {
    const float *a = fl_map(p->a, FL_READ), *b = fl_map(p->b, FL_READ);
    const int64_t *sa = p->a->stride + 1, *sb = p->b->stride + 1;
    int ta = sa[1] == 1 ? 111 : 112, tb = sb[1] == 1 ? 111 : 112;
    int lda = (int)(sa[1] == 1 ? sa[0] : sa[1]), ldb = (int)(sb[1] == 1 ? sb[0] : sb[1]);
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    for (int64_t r = 0; r < p->repeat; r++)
        for (int64_t i = 0; i < p->items; i++)
            cblas_sgemm(101, ta, tb, m, n, k, 1, a + i * p->a->stride[0], lda,
                        b + i * p->b->stride[0], ldb, 0, p->c + i * p->m * p->n, n);
    fl_unmap(p->a, FL_READ);
    fl_unmap(p->b, FL_READ);
}

/* Seconds: of this thread if it is the only one, else of the wall. */
static double now(void) {
    struct timespec t;
    if (fl_threads() > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return fl_data_now();
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* GFLOP/s */
static double rate_of(void (*run)(const product *), const product *p) {
    double start = now();
    run(p);
    double flops = 2.0 * (double)p->items * (double)p->m * (double)p->n * (double)p->k;
    return flops * (double)p->repeat / (now() - start) * 1e-9;
}

enum { ROUNDS = 5 };

/* OpenBLAS's own threads spin for a while after each product, and would halve what comes next. */
static void let_them_sleep(void) {
    if (fl_threads() > 1) nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
}

static bool rounded; /* ARGS has bf16 */

/* GFLOP/s of products that may round, and of f32 in turn; the best of each, so that what else runs counts
 * less. */
static void measure_rounded(const char *figure, product *p) {
    double rate[2] = {0};
    char note[160];
    for (int round = 0; round < 2 * ROUNDS; round++)
        for (int i = 0; i < 2; i++) {
            fl_set_matmul_precision(i ? FL_BF16 : FL_F32);
            const double now_rate = rate_of(run_ours, p);
            if (round > 0 && now_rate > rate[i]) rate[i] = now_rate;
        }
    snprintf(note, sizeof note, "f32 %.0f, ratio %.2f", rate[0], rate[1] / rate[0]);
    bench_line(figure, rate[1], "GFLOP/s", note);
}

/* Medians of a few rounds in which everything is measured in turn. */
static void measure(const char *figure, product *p) {
    double peak[ROUNDS], read[ROUNDS] = {0}, ours[ROUNDS], theirs[ROUNDS] = {0};
    double flops = 2.0 * (double)p->items * (double)p->m * (double)p->n * (double)p->k;
    double bytes = 4.0 * (double)p->items *
                   (double)(p->m * p->k + p->k * p->n + p->m * p->n);
    bool cached = bytes < 24e6, blas = cblas_sgemm && openblas_set_num_threads;
    p->repeat = flops > 5e8 ? 1 : (int64_t)(5e8 / flops);
    if (rounded) {
        measure_rounded(figure, p);
        return;
    }
    run_ours(p);
    for (int round = 0; round < ROUNDS; round++) {
        peak[round] = peak_fma_sample(now);
        if (!cached) read[round] = peak_read_sample(now);
        ours[round] = rate_of(run_ours, p);
        if (!blas) continue;
        theirs[round] = rate_of(run_openblas, p);
        let_them_sleep();
    }
    double fma = bench_median(peak, ROUNDS), rate = bench_median(ours, ROUNDS);
    double memory = bench_median(read, ROUNDS) * flops / bytes;
    bool bound = !cached && memory < fma;
    char note[160];
    snprintf(note, sizeof note, "%.0f %% of %s (peak %.0f, %.0f GB/s), OpenBLAS %.1f",
             100 * rate / (bound ? memory : fma), bound ? "reading" : "the peak", fma,
             read[ROUNDS / 2], bench_median(theirs, ROUNDS));
    bench_line(figure, rate, "GFLOP/s", note);
}

static fl_tensor *values_of(int64_t items, int64_t rows, int64_t columns) {
    fl_rng rng = {7, 0};
    return fl_uniform(FL_SHAPE(items, rows, columns), -1, 1, FL_F32, &rng);
}

static bool wanted(const char *figure, int n, char **words) {
    for (int i = 1; i < n; i++)
        if (strcmp(words[i], "bf16") && !strstr(figure, words[i])) return false;
    return true;
}

static const char *const forms[] = {"forward", "dx", "dw"};

static void run_form(const layer *l, int form, int threads, int n, char **words) {
    char figure[96];
    snprintf(figure, sizeof figure, "%s_%s_%dt", l->name, forms[form], threads);
    if (!wanted(figure, n, words)) return;
    fl_scope s = fl_scope_begin();
    int64_t m = form == 2 ? l->out : l->m, k = form == 0 ? l->in : form == 1 ? l->out : l->m;
    product p = {.items = l->items, .m = m, .n = form == 0 ? l->out : l->in, .k = k};
    p.a = form == 2 ? fl_transpose(values_of(p.items, k, m), 1, 2) : values_of(p.items, m, k);
    p.b = form == 0 ? fl_transpose(values_of(p.items, p.n, k), 1, 2) : values_of(p.items, k, p.n);
    fl_tensor *c = fl_zeros(FL_SHAPE(p.items, p.m, p.n), FL_F32);
    p.c = fl_map(c, FL_WRITE);
    measure(figure, &p);
    fl_unmap(c, FL_WRITE);
    fl_scope_end(&s);
}

int main(int n, char **words) {
    for (int i = 1; i < n; i++) rounded = rounded || !strcmp(words[i], "bf16");
    for (int threads = 1; threads <= 2; threads++) {
        fl_set_threads(threads);
        if (openblas_set_num_threads) openblas_set_num_threads(threads);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
            for (int form = 0; form < 3; form++) run_form(&layers[i], form, threads, n, words);
    }
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
