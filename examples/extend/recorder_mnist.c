/* examples/extend/recorder_mnist.c - records a training step of the MNIST network and replays it

   cc -O2 -I../.. recorder_mnist.c ../../fl.c -o recorder_mnist -lm -lpthread
   ./recorder_mnist [steps]

   First all steps eagerly on the cpu backend; then on the recorder: one as usual (it makes the
   momentum), one recorded, the others replayed with new batches. Dropout is on. The last line says
   whether all losses and the weights agree. */
#include "recorder.h"

#include "training.h"

enum { BATCH = 64, BATCHES = 8, MAX_STEPS = 10000 };

typedef struct outcome {
    double loss[MAX_STEPS];
    uint64_t weights; /* their hash */
    fl_rng rng;       /* where the generator ends */
} outcome;

static bool train_eager(training_run *run, int64_t steps, outcome *out) {
    bool ok = true;
    for (int64_t i = 0; ok && i < steps; i++) ok = training_step(run, i, &out->loss[i]);
    return ok;
}

/* The step that the tape is made of; *loss is kept: each replay writes it. */
static recorder_tape *record(training_run *run, fl_tensor **loss) {
    fl_scope s = fl_scope_begin();
    bool begun = recorder_begin();
    *loss = begun ? fl_keep(training_update(run)) : NULL;
    fl_scope_end(&s);
    return begun ? recorder_end() : NULL;
}

static bool train_recorded(training_run *run, int64_t steps, outcome *out) {
    fl_tensor *loss = NULL;
    if (!training_step(run, 0, &out->loss[0]) || !training_load(run, 1)) return false;
    recorder_tape *tape = record(run, &loss);
    bool ok = tape != NULL;
    if (ok) {
        printf("recorded %lld calls, planned %.1f MiB for temporaries of %.1f MiB\n",
               (long long)tape->list.n, (double)tape->planned / (1 << 20),
               (double)tape->unplanned / (1 << 20));
        out->loss[1] = fl_item(loss);
    }
    for (int64_t i = 2; ok && i < steps; i++) {
        ok = training_load(run, i) && recorder_replay(tape);
        out->loss[i] = ok ? fl_item(loss) : 0;
    }
    if (ok)
        printf("replayed %lld calls in %lld steps\n", (long long)recorder_count().replayed,
               (long long)(steps - 2));
    fl_drop(loss);
    recorder_free(tape);
    return ok;
}

static bool train(const char *backend, int64_t steps, outcome *out) {
    if (!fl_backend_set_default(backend)) return false;
    fl_scope s = fl_scope_begin();
    training_run run;
    double start = fl_data_now();
    bool ok = training_begin(&run, BATCH, BATCHES);
    ok = ok && (strcmp(backend, "recorder") ? train_eager : train_recorded)(&run, steps, out);
    ok = ok && training_hash(&run, &out->weights);
    out->rng = fl_rng_state();
    if (ok)
        printf("%-8s loss %.6f after %lld steps, %.1f s\n", backend, out->loss[steps - 1],
               (long long)steps, fl_data_now() - start);
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

int main(int argc, char **argv) {
    static outcome eager, replay;
    int64_t steps = training_steps(argc, argv, 20);
    steps = steps < 3 ? 3 : steps > MAX_STEPS ? MAX_STEPS : steps;
    bool ok = fl_backend_use(fl_backend_recorder(), NULL) && train("cpu", steps, &eager) &&
              train("recorder", steps, &replay);
    if (!ok) return fprintf(stderr, "recorder_mnist: %s\n", fl_error()), 1;
    bool same = !memcmp(eager.loss, replay.loss, sizeof eager.loss) &&
                eager.weights == replay.weights && eager.rng.counter == replay.rng.counter;
    ok = same && recorder_count().nodes == 0 && fl_live_tensors() == 0 && fl_mem_live_buffers() == 0;
    printf("%s: weights %016llx and %016llx, %lld nodes left\n", ok ? "same bits" : "FAILED",
           (unsigned long long)eager.weights, (unsigned long long)replay.weights,
           (long long)recorder_count().nodes);
    return !ok;
}
/* MIT licence: see LICENSE. */
