/* examples/extend/evictor_mnist.c - trains the MNIST network of the Flashlight paper in half of its memory

   cc -O2 -I../.. -I.. evictor_mnist.c ../../fl.c -o evictor_mnist -lm -lpthread
   ./evictor_mnist [steps]

   Once without a budget, to measure the peak; once with half of it. The last line says whether the
   weights agree. The floor is what one op maps at once: the optimizer's step on the large linear
   layer, three tensors of 12.25 MiB. */
#include "evictor.h"

#include "training.h"

typedef struct outcome {
    uint64_t weights; /* their hash */
    double loss;
    fl_mem_stats stats;
    int64_t written, read, file;
} outcome;

/* One training with at most `budget` bytes in memory (0: all). */
static bool train(size_t budget, int64_t steps, outcome *out) {
    fl_mem_manager *m = evictor_new(budget, "evictor_mnist.swap");
    if (!m) return false;
    fl_mem_set_current(m);
    fl_scope s = fl_scope_begin();
    training_run run;
    bool ok = training_begin(&run, 288, 4);
    for (int64_t i = 0; ok && i < steps; i++) ok = training_step(&run, i, &out->loss);
    ok = ok && training_hash(&run, &out->weights);
    training_end(&run);
    fl_scope_end(&s);
    fl_mem_set_current(NULL);
    const evictor *e = m->user;
    out->stats = fl_mem_stats_of(m);
    out->written = e->written, out->read = e->read, out->file = e->end;
    fl_mem_close(m);
    return ok;
}

int main(int argc, char **argv) {
    const double MIB = 1 << 20;
    int64_t steps = training_steps(argc, argv, 12);
    outcome all = {0}, half = {0};
    bool ok = train(0, steps, &all) && train((size_t)all.stats.peak_in_use / 2, steps, &half);
    if (!ok) return fprintf(stderr, "evictor_mnist: %s\n", fl_error()), 1;
    printf("all in memory: peak %.1f MiB, loss %.6f after %lld steps\n",
           (double)all.stats.peak_in_use / MIB, all.loss, (long long)steps);
    printf("budget:        peak %.1f MiB of %.1f MiB in use, loss %.6f\n",
           (double)half.stats.peak_reserved / MIB, (double)half.stats.peak_in_use / MIB, half.loss);
    printf("paging:        %lld buffers written, %lld read, file of %.1f MiB\n",
           (long long)half.written, (long long)half.read, (double)half.file / MIB);
    ok = all.weights == half.weights && 2 * half.stats.peak_reserved <= all.stats.peak_in_use &&
         half.written > 0 && half.read > 0 && fl_mem_live_buffers() == 0;
    printf("%s: weights %016llx and %016llx in %.0f %% of the memory\n",
           ok ? "same bits" : "FAILED", (unsigned long long)all.weights,
           (unsigned long long)half.weights,
           100 * (double)half.stats.peak_reserved / (double)all.stats.peak_in_use);
    return !ok;
}
/* MIT licence: see LICENSE. */
