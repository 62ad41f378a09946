/* examples/extend/taker.c - counts the calls of a training step, as a taker sees them

   cc -O2 -I. examples/extend/taker.c fl.c -lm -lpthread

   A taker (fl_take_calls) receives each call of its thread where the kernel would run: after promotion,
   widening, composition and copies for contiguity. It may keep the record and run it later, as fl_graph.h
   does; this one declines, so that the kernel runs at once. Trains the digits network for one step and prints
   the most frequent ops. Exits with 1 if the taker changes a bit of the loss or of the weights, or misses the
   weight gradient of one of the two convolutions. */
#include "training.h"

enum { BATCH = 32, SHOWN = 10 };

static int64_t count[FL_MAX_OPS];

static fl_taken take(const fl_call *c, void *user) {
    (void)user;
    count[c->op]++;
    return FL_DECLINED;
}

/* One step from the same numbers each time; t NULL: without a taker. */
static bool step(const fl_taker *t, double *loss, uint64_t *weights) {
    training_run run;
    fl_scope s = fl_scope_begin();
    bool ok = training_begin(&run, BATCH, 1) && training_load(&run, 0);
    fl_take_calls(t);
    fl_tensor *value = ok ? training_update(&run) : NULL;
    fl_take_calls(NULL);
    if (value) *loss = fl_item(value);
    ok = value && training_hash(&run, weights);
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

static int most_frequent(const void *a, const void *b) {
    const int64_t x = count[*(const fl_op *)a], y = count[*(const fl_op *)b];
    return x == y ? *(const fl_op *)a - *(const fl_op *)b : x < y ? 1 : -1;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    double loss[2];
    uint64_t weights[2];
    if (!step(NULL, &loss[0], &weights[0]) || !step(&(fl_taker){.call = take}, &loss[1], &weights[1]))
        return fprintf(stderr, "taker: %s\n", fl_error()), 1;
    fl_op op[FL_MAX_OPS];
    int64_t calls = 0, n = 0;
    for (int i = 0; i < fl_op_count(); i++) {
        calls += count[i];
        if (count[i]) op[n++] = (fl_op)i;
    }
    qsort(op, (size_t)n, sizeof *op, most_frequent);
    printf("%lld calls of %lld ops\n", (long long)calls, (long long)n);
    for (int64_t i = 0; i < n && i < SHOWN; i++)
        printf("%4lld %s\n", (long long)count[op[i]], fl_op_name(op[i]));
    const bool same = !memcmp(&loss[0], &loss[1], sizeof *loss) && weights[0] == weights[1];
    printf("loss %.6f without the taker, %.6f with it: %s\n", loss[0], loss[1],
           same ? "the same bits" : "FAILED");
    return !same || count[FL_OP_conv2d_grad_weight] != 2;
}
/* MIT licence: see LICENSE. */
