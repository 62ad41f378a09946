/* bench/data.c - shuffled batches of 64 MNIST images through prefetch, in batches per second

   make bench-data; if PEER_PYTHON names a Python with torch, alternating with PyTorch's DataLoader
   (bench/peers/torch_data.py). ARGS: the folder of MNIST's files; by default random bytes of that shape.
   Every figure is the median of ROUNDS epochs; ratios are medians of the rounds' ratios. */
#define _GNU_SOURCE
#include "bench.h"
#include "peer.h"

#include <math.h>
#include <string.h>

enum { BATCH = 64, ROUNDS = 5 };

/* One gather for a batch, or as many views as it has samples and a stack: a transform wants samples. */
static bool nothing(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)s, (void)rng, (void)user;
    return true;
}

static const char *const ours[] = {"prefetch_1", "prefetch_2", "no_threads", "in_order", "views_and_stack"};
enum { OURS = sizeof ours / sizeof *ours };
static fl_data_set *make(int kind, fl_tensor *const *t) {
    fl_data_set *set = fl_data_tensors(t, 2);
    if (kind != 3) set = fl_data_shuffle(set, 1);
    if (kind == 4) set = fl_data_transform(set, nothing, NULL);
    set = fl_data_batch(set, BATCH, false);
    return kind == 2 ? set : fl_data_prefetch(set, kind == 1 ? 2 : 1, 8);
}

static double epoch(fl_data_set *set, int64_t number, int64_t images) {
    const double start = fl_data_now();
    int64_t n = 0;
    bool ok = fl_data_set_epoch(set, number);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_data_get(set, i, &b);
        if (ok) n += b.t[1]->shape[0];
        fl_scope_end(&s);
    }
    if (n != images)
        fprintf(stderr, "data: %lld images of %lld: %s\n", (long long)n, (long long)images, fl_error());
    return fl_data_now() - start;
}

int main(int argc, char **argv) {
    static const char *const theirs[] = {"workers_0", "workers_0_single", "workers_1", "workers_2",
                                         "whole_0",   "whole_0_single",   "whole_1",   "whole_2"};
    enum { THEIRS = sizeof theirs / sizeof *theirs };
    const char *folder = argc > 1 ? argv[1] : "../shared/data/mnist";
    char path[1000], name[100], note[100];
    fl_scope s = fl_scope_begin();
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", folder);
    fl_tensor *t[2] = {fl_data_load_idx(path)};
    if (!t[0]) printf("# random bytes: %s\n", fl_error());
    fl_error_clear();
    if (!t[0]) t[0] = fl_cast(fl_uniform(FL_SHAPE(60000, 28, 28), 0, 255, FL_F32, NULL), FL_U8);
    t[1] = fl_arange(0, (double)t[0]->shape[0], 1, FL_I64);
    const int64_t n = t[0]->shape[0];
    const double batches = ceil((double)n / BATCH);
    snprintf(note, sizeof note, "%d", BATCH);
    bench_peer peer = bench_peer_begin("torch_data.py", folder, note);
    double us[OURS][ROUNDS], them[THEIRS][ROUNDS], ratio[ROUNDS];
    fl_data_set *set[OURS];
    for (int k = 0; k < OURS; k++) epoch(set[k] = make(k, t), 0, n);
    for (int v = 0; v < THEIRS; v++)
        for (int r = 0; r < ROUNDS; r++) {
            them[v][r] = bench_peer_ask(&peer, "%s", theirs[v]) / batches;
            for (int k = 0; k < OURS; k++) us[k][r] = epoch(set[k], r + 1, n) / batches;
            ratio[r] = them[v][r] / us[0][r];
            if (r + 1 < ROUNDS || !peer.to) continue;
            const double middle = bench_median(ratio, ROUNDS);
            snprintf(name, sizeof name, "data_torch_%s", theirs[v]);
            snprintf(note, sizeof note, "ours takes %.1f us beside it", 1e6 * bench_median(us[0], ROUNDS));
            bench_line(name, 1 / bench_median(them[v], ROUNDS), "batches/s", note);
            snprintf(name, sizeof name, "data_ratio_%s", theirs[v]);
            bench_line(name, middle, "times", "prefetch_1 over it, median of pairs");
        }
    for (int k = 0; k < OURS; k++) {
        const double seconds = bench_median(us[k], ROUNDS);
        snprintf(name, sizeof name, "data_%s", ours[k]);
        snprintf(note, sizeof note, "%.1f us a batch, %.2f GB/s", 1e6 * seconds,
                 (double)fl_numel(t[0]) / batches / seconds * 1e-9);
        bench_line(name, 1 / seconds, "batches/s", note);
        fl_data_free(set[k]);
    }
    fl_scope_end(&s);
    bench_peer_end(&peer);
    return 0;
}
/* MIT licence: see LICENSE. */
