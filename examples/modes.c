/* examples/modes.c - one training step run four ways: eager, deferred, static, hybrid; with the same bits

   cc -O2 -I.. modes.c ../fl.c -o modes -lm -lpthread
   ./modes --data dir            with MNIST's four idx files in dir; without: on digits that it draws itself
   ./modes --steps 200

   Trains the CNN of mnist.c with dropout, Adam and a learning rate that changes at each step, from the same
   seed in every mode. The model and the step are written once:
     eager   each op runs when it is called
     lazy    ops are recorded, and run when the loss is read (fl_lazy)
     static  the step is recorded, compared with the one before and run (fl_graph_begin, fl_graph_end); once
             two agree, it is replayed without its host code (fl_graph_replay)
     hybrid  the forward pass is lazy, the loss is read in the middle, the backward pass and Adam are eager
   Prints for each the loss, milliseconds of the first step and the median of the others, peak bytes above the
   start, and a digest of weights, optimizer state and generator. Exits with 1 if losses or digests differ. */
#include "../fl_graph.h"
#include "../fl.h"
#include "arguments.h"
#include "digits.h"

enum { BATCH = 64, BATCHES = 16, MAX_STEPS = 100000, MODES = 4 };
typedef enum mode { EAGER, LAZY, STATIC, HYBRID } mode;
static const char *const names[MODES] = {"eager", "lazy", "static", "hybrid"};

typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_data_set *batches;
    fl_tensor *x, *target; /* the batch of a step */
    fl_graph *graph;       /* of mode STATIC */
    fl_tensor *loss;       /* of the last recorded step: replays write it */
    int64_t replays;
} training;

typedef struct outcome {
    double first_ms, step_ms, *loss;
    int64_t peak;
    uint64_t digest;
} outcome;

/* ---- the model and the step, for all modes ---- */

static fl_var *forward(training *t) {
    return fv_nll_loss(fl_nn_forward(t->net, fv_const(t->x)), t->target);
}

static bool update(training *t, fl_var *loss) {
    fl_optim_zero_grad(t->optim);
    return fl_backward(loss) && fl_optim_step(t->optim);
}

/* ---- the modes ---- */

static double step_static(training *t) {
    if (fl_graph_ready(t->graph)) {
        t->replays++;
        return fl_graph_replay(t->graph) ? fl_item(t->loss) : (double)NAN;
    }
    fl_scope s = fl_scope_begin();
    fl_drop(t->loss);
    t->loss = NULL;
    bool ok = fl_graph_begin(t->graph);
    fl_var *loss = ok ? forward(t) : NULL;
    ok = loss && update(t, loss);
    if (ok) t->loss = fl_keep(fv_value(loss));
    fl_scope_end(&s); /* before the end: what the step has finished with needs no memory */
    ok = fl_graph_end(t->graph) && ok;
    return ok ? fl_item(t->loss) : (double)NAN;
}

static double step(training *t, mode m) {
    if (m == STATIC) return step_static(t);
    fl_scope s = fl_scope_begin();
    fl_lazy(m != EAGER);
    fl_var *loss = forward(t);
    double value = m == HYBRID ? fl_item(fv_value(loss)) : 0;
    if (m == HYBRID) fl_lazy(false);
    const bool ok = loss && update(t, loss);
    fl_tensor *kept = ok ? fl_keep(fv_value(loss)) : NULL;
    fl_scope_end(&s);
    if (kept && m != HYBRID) value = fl_item(kept);
    fl_drop(kept);
    return ok ? value : (double)NAN;
}

/* The batch and the learning rate of step i. */
static bool prepare(training *t, int64_t i) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    const bool ok = fl_optim_set_lr(t->optim, 5e-4 / (1 + 0.02 * (double)i)) &&
                    fl_data_get(t->batches, i % fl_data_size(t->batches), &b) && fl_assign(t->x, b.t[0]) &&
                    fl_assign(t->target, b.t[1]);
    fl_scope_end(&s);
    return ok;
}

/* FNV-1a over the bytes of t. */
static bool digest(uint64_t *h, fl_tensor *t) {
    const uint8_t *p = fl_map(t, FL_READ);
    for (size_t i = 0; p && i < (size_t)fl_numel(t) * fl_dtype_size(t->dtype); i++)
        *h = (*h ^ p[i]) * 0x100000001b3u;
    if (p) fl_unmap(t, FL_READ);
    return p;
}

/* Of weights, buffers of the layers, the optimizer's state and the generator. */
static bool digest_all(training *t, uint64_t *h) {
    fl_nn_state all = {0};
    bool ok = fl_nn_state_add_module(&all, "model.", t->net) && fl_optim_state(t->optim, "optim.", &all);
    *h = 0xcbf29ce484222325u ^ fl_rng_state().counter;
    for (int64_t i = 0; ok && i < all.n; i++)
        if (all.item[i].tensor) ok = digest(h, all.item[i].tensor);
    fl_nn_state_free(&all);
    return ok;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool train(digits all, mode m, int64_t steps, outcome *out) {
    training t = {0};
    double *ms = malloc((size_t)steps * sizeof *ms);
    fl_scope s = fl_scope_begin();
    fl_seed(1);
    bool ok = ms && (t.net = digits_net_of(0.25)) &&
              (t.optim = fl_optim_adam(fl_nn_parameters(t.net), .lr = 5e-4)) &&
              (t.batches = digits_batches(all, 0, BATCH * BATCHES, BATCH, 0)) &&
              (t.x = fl_empty(FL_SHAPE(BATCH, DIGITS_SIDE, DIGITS_SIDE), FL_F32)) &&
              (t.target = fl_empty(FL_SHAPE(BATCH), FL_I64)) && (t.graph = fl_graph_new());
    fl_mem_trim();
    fl_mem_stats_reset_peak(NULL);
    const int64_t start = fl_mem_stats_of(NULL).in_use;
    for (int64_t i = 0; ok && i < steps; i++) {
        ok = prepare(&t, i);
        const double from = fl_data_now();
        out->loss[i] = ok ? step(&t, m) : (double)NAN;
        ms[i] = (fl_data_now() - from) * 1e3;
        ok = ok && !fl_error();
    }
    out->peak = fl_mem_stats_of(NULL).peak_in_use - start;
    out->first_ms = ok ? ms[0] : 0;
    if (ok && steps > 1) qsort(ms + 1, (size_t)steps - 1, sizeof *ms, by_value);
    out->step_ms = ok ? ms[steps / 2] : 0;
    ok = ok && digest_all(&t, &out->digest);
    if (ok)
        printf("%-7s loss %.6f, first step %7.2f ms, others %7.2f ms, peak %6.2f MiB, digest %016llx",
               names[m], out->loss[steps - 1], out->first_ms, out->step_ms, (double)out->peak / (1 << 20),
               (unsigned long long)out->digest);
    if (ok && m == STATIC) printf(", %lld steps replayed", (long long)t.replays);
    if (ok && m == STATIC && !t.replays) printf(" (%s)", fl_graph_reason(t.graph));
    if (ok) putchar('\n');
    fl_drop(t.loss);
    fl_graph_free(t.graph);
    fl_optim_free(t.optim);
    fl_nn_free(t.net);
    fl_data_free(t.batches);
    fl_scope_end(&s);
    free(ms);
    return ok;
}

int main(int argc, char **argv) {
    const char *data = NULL;
    int64_t steps = 60;
    const argument list[] = {{"data", .text = &data, .about = "folder of MNIST's idx files"},
                             {"steps", .whole = &steps, .low = 2, .high = MAX_STEPS},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    outcome out[MODES] = {{0}};
    digits all = {0};
    fl_scope s = fl_scope_begin();
    bool ok = data ? digits_load(data, "train", &all) : digits_draw(BATCH * BATCHES, 1, &all);
    for (int m = 0; ok && m < MODES; m++) {
        out[m].loss = calloc((size_t)steps, sizeof *out[m].loss);
        ok = out[m].loss && train(all, (mode)m, steps, &out[m]);
    }
    if (!ok) fprintf(stderr, "modes: %s\n", fl_error() ? fl_error() : "out of memory");
    bool same = ok;
    for (int m = 1; ok && m < MODES; m++) {
        const bool equal = !memcmp(out[0].loss, out[m].loss, (size_t)steps * sizeof *out[0].loss) &&
                           out[0].digest == out[m].digest;
        if (!equal) fprintf(stderr, "modes: %s differs from eager\n", names[m]);
        same &= equal;
    }
    for (int m = 0; m < MODES; m++) free(out[m].loss);
    fl_scope_end(&s);
    if (same) printf("the same losses and bits in all modes\n");
    return !same;
}
/* MIT licence: see LICENSE. */
