/* bench/modes.c - what recording costs, and what replaying saves: one thread (make bench-modes)

     add_64     a chain of 50 adds of 64 floats, per op: eager, recorded, recorded and run
     mlp_step   forward, backward and SGD of three layers of width 32, batch 8: eager, lazy, rounds (begin ...
                end at each step), replay
     cnn_step   the CNN of examples/mnist.c, batch 32: the same

   make bench-modes ARGS="[PRESET] NAME ...": the same for models of bench/models, by the threads of
   FL_THREADS; PRESET is tiny or cpu, the default. The modes of a figure run in turn, round by round; each
   line has the median and the median of the ratios to eager of the same round. */
#include "bench.h"
#include "models/model.h"
#include "../examples/digits.h"

enum { ROUNDS = 51, MODEL_ROUNDS = 7, MODES = 4, CHAIN = 50 };
static const char *const names[MODES] = {"eager", "lazy", "rounds", "replay"};

typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_tensor *x, *target;
    const model *m; /* NULL: the loss is the negative log likelihood of classes, or the mean squared error */
    const model_preset *preset;
    model_batch batch;
    bool classes;
    fl_graph *graph, *kept; /* recorded at each step; replayed */
} training;

static fl_var *loss_of(const training *t) {
    if (t->m) return t->m->loss(t->net, t->preset, &t->batch);
    fl_var *y = fl_nn_forward(t->net, fv_const(t->x));
    return t->classes ? fv_nll_loss(y, t->target) : fv_mse_loss(y, fv_const(t->target), FL_MEAN);
}

static void step(training *t) {
    fl_scope s = fl_scope_begin(), inner = fl_scope_begin();
    fl_var *loss = fv_scope_return(&inner, loss_of(t));
    fl_optim_zero_grad(t->optim);
    fl_backward(loss);
    fl_optim_step(t->optim);
    fl_scope_end(&s);
}

static void run(training *t, int mode) {
    switch (mode) {
    case 0: step(t); break;
    case 1:
        fl_lazy(true);
        step(t);
        fl_lazy(false);
        break;
    case 2:
        fl_graph_begin(t->graph);
        step(t);
        fl_graph_end(t->graph);
        break;
    case 3: fl_graph_replay(t->kept);
    }
}

/* Records steps until they can be replayed. */
static bool get_ready(training *t) {
    for (int i = 0; i < 4 && !fl_graph_ready(t->kept); i++) {
        fl_graph_begin(t->kept);
        step(t);
        fl_graph_end(t->kept);
    }
    return fl_graph_ready(t->kept);
}

static void lines(const char *figure, double sample[][ROUNDS], const char *const *modes, int n, int rounds,
                  double scale, const char *unit) {
    for (int m = 0; m < n; m++) {
        double ratio[ROUNDS], seconds[ROUNDS];
        char name[64], note[64];
        for (int r = 0; r < rounds; r++) ratio[r] = sample[m][r] / sample[0][r], seconds[r] = sample[m][r];
        snprintf(name, sizeof name, "%s_%s", figure, modes[m]);
        snprintf(note, sizeof note, "%.2f of eager", bench_median(ratio, rounds));
        bench_line(name, bench_median(seconds, rounds) * scale, unit, note);
    }
}

static void bench_step(const char *figure, training *t, int rounds, int repeat) {
    static double sample[MODES][ROUNDS];
    t->graph = fl_graph_new(), t->kept = fl_graph_new();
    const int modes = get_ready(t) ? MODES : MODES - 1;
    if (modes < MODES) printf("%s: no replay: %s\n", figure, fl_graph_reason(t->kept));
    for (int r = -3; r < rounds; r++) /* the third round of begin ... end runs as the later ones do */
        for (int m = 0; m < modes; m++) {
            const double start = fl_data_now();
            for (int i = 0; i < repeat; i++) run(t, m);
            if (r >= 0) sample[m][r] = (fl_data_now() - start) / repeat;
        }
    lines(figure, sample, names, modes, rounds, 1e6, "us");
    printf("%s_calls\t%lld\tcalls\t\n", figure, (long long)fl_graph_calls(t->kept).n);
    fl_graph_free(t->graph), fl_graph_free(t->kept);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

static void bench_adds(void) {
    static const char *const modes[] = {"eager", "recorded", "recorded_run"};
    static double sample[3][ROUNDS];
    enum { REPEAT = 400 };
    fl_tensor *a = fl_ones(FL_SHAPE(64), FL_F32), *b = fl_ones(FL_SHAPE(64), FL_F32);
    for (int r = -1; r < ROUNDS; r++)
        for (int lazy = 0; lazy < 2; lazy++) {
            double recorded = 0, start = fl_data_now();
            for (int i = 0; i < REPEAT; i++) {
                fl_scope s = fl_scope_begin();
                const double from = fl_data_now();
                fl_lazy(lazy);
                fl_tensor *x = a;
                for (int k = 0; k < CHAIN; k++) x = fl_add(x, b);
                recorded += fl_data_now() - from;
                fl_eval();
                fl_scope_end(&s);
            }
            if (r < 0) continue;
            sample[2 * lazy][r] = (fl_data_now() - start) / REPEAT / CHAIN;
            if (lazy) sample[1][r] = recorded / REPEAT / CHAIN;
        }
    fl_lazy(false);
    lines("add_64", sample, modes, 3, ROUNDS, 1e9, "ns");
}

static bool bench_model(const char *preset, const char *name) {
    training t = {.m = model_find(name)};
    t.preset = t.m ? model_preset_find(t.m, preset) : NULL;
    if (!t.preset) return false;
    fl_scope s = fl_scope_begin();
    t.net = t.m->build(t.preset);
    t.batch = t.m->batch(t.preset);
    t.optim = fl_optim_sgd(fl_nn_parameters(t.net), .lr = 1e-4, .momentum = 0.9);
    bench_step(name, &t, MODEL_ROUNDS, 1);
    fl_scope_end(&s);
    return true;
}

int main(int argc, char **argv) {
    fl_seed(1);
    for (int i = 1; i < argc; i++) {
        const bool tiny = !strcmp(argv[1], "tiny"), named = tiny || !strcmp(argv[1], "cpu");
        if (i == 1 && named) continue;
        if (bench_model(tiny ? "tiny" : "cpu", argv[i])) continue;
        fprintf(stderr, "usage: modes [[tiny|cpu] MODEL ...]: no model '%s'\n", argv[i]);
        return 2;
    }
    if (argc > 1) return 0;
    fl_set_threads(1);
    fl_scope s = fl_scope_begin();
    bench_adds();
    training mlp = {.net = fl_nn_sequential(fl_nn_linear(32, 32), fl_nn_relu(), fl_nn_linear(32, 32),
                                            fl_nn_relu(), fl_nn_linear(32, 32)),
                    .x = fl_ones(FL_SHAPE(8, 32), FL_F32),
                    .target = fl_ones(FL_SHAPE(8, 32), FL_F32)};
    mlp.optim = fl_optim_sgd(fl_nn_parameters(mlp.net), .lr = 1e-3);
    bench_step("mlp_step", &mlp, ROUNDS, 500);
    training cnn = {.net = digits_net(), .classes = true,
                    .x = fl_normal(FL_SHAPE(32, DIGITS_SIDE, DIGITS_SIDE), 0, 1, FL_F32, NULL),
                    .target = fl_randint(FL_SHAPE(32), 0, 10, NULL)};
    cnn.optim = fl_optim_sgd(fl_nn_parameters(cnn.net), .lr = 1e-3);
    bench_step("cnn_step", &cnn, ROUNDS, 1);
    fl_scope_end(&s);
    return 0;
}
/* MIT licence: see LICENSE. */
