/* examples/extend/naive_mnist.c - trains the MNIST network on the naive backend, beside the cpu

   cc -O2 -I../.. naive_mnist.c ../../fl.c -o naive_mnist -lm -lpthread
   ./naive_mnist [steps]

   Same seed, same drawn digits, fallbacks forbidden. The last line says whether the losses fall and
   agree. */
#include "naive.h"

#include "training.h"

enum { BATCH = 4, MAX_STEPS = 10000 };

static double mean(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

/* The losses of `steps` steps on a backend. */
static bool train(const char *backend, int64_t steps, double *loss) {
    if (!fl_backend_set_default(backend)) return false;
    fl_scope s = fl_scope_begin();
    training_run run;
    double start = fl_data_now();
    bool ok = training_begin(&run, BATCH, 2);
    for (int64_t i = 0; ok && i < steps; i++) ok = training_step(&run, i, &loss[i]);
    training_end(&run);
    fl_scope_end(&s);
    if (ok)
        printf("%-6s loss %.6f -> %.6f, %.1f s\n", backend, loss[0], loss[steps - 1],
               fl_data_now() - start);
    return ok;
}

int main(int argc, char **argv) {
    static double cpu[MAX_STEPS], naive[MAX_STEPS];
    int64_t steps = training_steps(argc, argv, 10);
    if (steps > MAX_STEPS) steps = MAX_STEPS;
    fl_backend_strict(true);
    bool ok = fl_backend_use(fl_backend_naive(), NULL) && train("cpu", steps, cpu) &&
              train("naive", steps, naive);
    if (!ok) return fprintf(stderr, "naive_mnist: %s\n", fl_error()), 1;
    double worst = 0;
    for (int64_t i = 0; i < steps; i++) worst = fmax(worst, fabs(naive[i] - cpu[i]) / cpu[i]);
    int64_t part = (steps + 3) / 4;
    double first = mean(naive, part), last = mean(naive + steps - part, part);
    ok = worst < 1e-3 && last < first && fl_backend_fallbacks() == 0 && fl_live_tensors() == 0;
    printf("%s: losses within %.1e of the cpu's, mean of a quarter %.3f -> %.3f, %lld fallbacks\n",
           ok ? "same training" : "FAILED", worst, first, last, (long long)fl_backend_fallbacks());
    return !ok;
}
/* MIT licence: see LICENSE. */
