/* bench/written.c - steps written as C beside fl's own: seconds of a step, of writing and of compiling it

   ./written [rounds]      default 15; FL_THREADS=1 OPENBLAS_NUM_THREADS=1 in the environment

   MNIST's CNN (batch 64) and a multi-layer perceptron 784-512-512-10 (batch 64), inference and a training
   step with Adam: eager, as a replay, by C with its own products, by C with cblas. Medians; each round runs
   all four once, in turn. Then the time to write ResNet-50's training step (preset tiny: all layers, fewer
   channels); with KEEP in the environment the files stay. */
#include "../examples/digits.h"
#include "../fl_export.h"
#include "models/model.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCH = 64, MOST_ROUNDS = 1000, WAYS = 4 };
static const char *const way_names[WAYS] = {"eager", "replay", "C", "C, cblas"};

typedef struct work {
    const char *name;
    bool trains;
    fl_nn_module *net;
    fl_optim *optim;
    fl_tensor *x, *target, *result;
    fl_graph *graph;
    struct {
        void *state;
        int (*run)(void *state, const void *const *in, void *const *out);
    } c[2];
} work;

static bool step(work *w) {
    fl_scope s = fl_scope_begin();
    fl_drop(w->result);
    const bool was = fl_no_grad(!w->trains);
    fl_var *y = fl_nn_forward(w->net, fv_const(w->x));
    if (w->trains) {
        y = fv_nll_loss(y, w->target);
        fl_optim_zero_grad(w->optim);
        fl_backward(y);
        fl_optim_step(w->optim);
    }
    fl_no_grad(was);
    w->result = y ? fl_keep(fv_value(y)) : NULL;
    fl_scope_end(&s);
    return y != NULL && !fl_error();
}

/* Compiles folder/name.c as a library and opens its state. */
static bool load(work *w, const char *folder, int blas) {
    char text[1000], path[300];
    snprintf(path, sizeof path, "%s/%s%d.so", folder, w->name, blas);
    snprintf(text, sizeof text,
             "cc -std=c11 -O3 -march=native -shared -fPIC -D%s_%s -o %s %s/%s.c -lopenblas -lm",
             w->name, blas ? "BLAS" : "LOOPS", path, folder, w->name);
    const double from = fl_data_now();
    if (system(text)) return fl_fail("written: failed: %s", text);
    printf("%s: compiled%s in %.2f s\n", w->name, blas ? " with cblas" : "", fl_data_now() - from);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fl_fail("written: %s", dlerror());
    void *(*open)(const char *);
    snprintf(text, sizeof text, "%s_open", w->name);
    void *symbol = dlsym(library, text);
    memcpy(&open, &symbol, sizeof open);
    snprintf(text, sizeof text, "%s_run", w->name);
    symbol = dlsym(library, text);
    memcpy(&w->c[blas].run, &symbol, sizeof symbol);
    snprintf(text, sizeof text, "%s/%s.safetensors", folder, w->name);
    return (w->c[blas].state = open(text)) != NULL || fl_fail("written: cannot open %s", text);
}

static bool prepare(work *w, const char *folder, bool convolutions) {
    char path[300];
    w->net = convolutions ? digits_net_of(0.25)
                          : fl_nn_sequential(fl_nn_linear(784, 512), fl_nn_relu(), fl_nn_linear(512, 512),
                                             fl_nn_relu(), fl_nn_linear(512, 10), fl_nn_log_softmax(1));
    fl_nn_train(w->net, w->trains);
    w->optim = fl_optim_adam(fl_nn_parameters(w->net), .lr = 1e-3);
    w->x = convolutions ? fl_uniform(FL_SHAPE(BATCH, 28, 28), 0, 1, FL_F32, NULL)
                        : fl_uniform(FL_SHAPE(BATCH, 784), 0, 1, FL_F32, NULL);
    w->target = fl_randint(FL_SHAPE(BATCH), 0, 10, NULL);
    w->graph = fl_graph_new();
    for (int i = 0; i < 3 && !fl_graph_ready(w->graph); i++) {
        if (!fl_graph_begin(w->graph)) return false;
        const bool ok = step(w);
        if (!fl_graph_end(w->graph) || !ok) return false;
    }
    const fl_data_named_tensor in[] = {{"x", w->x}, {"target", w->target}}, out[] = {{"result", w->result}};
    snprintf(path, sizeof path, "%s/%s.c", folder, w->name);
    const double from = fl_data_now();
    if (!fl_graph_save_c(w->graph, path, .inputs = in, .n_inputs = w->trains ? 2 : 1,
                         .outputs = out, .n_outputs = 1))
        return false;
    printf("%s: written in %.3f s\n", w->name, fl_data_now() - from);
    return load(w, folder, 0) && load(w, folder, 1);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool measure(work *w, int rounds) {
    static double seconds[WAYS][MOST_ROUNDS];
    static float result[BATCH * 10];
    const void *const in[2] = {fl_map(w->x, FL_READ), fl_map(w->target, FL_READ)};
    void *const out[1] = {result};
    for (int i = -2; i < rounds; i++)
        for (int way = 0; way < WAYS; way++) {
            const double from = fl_data_now();
            const bool ok = way == 0   ? step(w)
                            : way == 1 ? fl_graph_replay(w->graph)
                                       : !w->c[way - 2].run(w->c[way - 2].state, in, out);
            if (!ok) return false;
            if (i >= 0) seconds[way][i] = fl_data_now() - from;
        }
    for (int way = 0; way < WAYS; way++) {
        qsort(seconds[way], (size_t)rounds, sizeof **seconds, compare);
        printf("%-16s %-9s %9.3f ms  %.2f\n", w->name, way_names[way], 1e3 * seconds[way][rounds / 2],
               seconds[way][rounds / 2] / seconds[0][rounds / 2]);
    }
    return true;
}

static bool write_resnet(const char *folder) {
    const model *m = model_find("resnet50");
    const model_preset *p = model_preset_find(m, "tiny");
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = m->build(p);
    model_batch batch = m->batch(p);
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 1e-3);
    fl_graph *g = fl_graph_new();
    char path[300];
    double first = fl_data_now();
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        ok = fl_graph_begin(g);
        fl_var *loss = m->loss(net, p, &batch);
        fl_optim_zero_grad(optim);
        ok = fl_backward(loss) && fl_optim_step(optim) && ok;
        ok = fl_graph_end(g) && ok;
        if (!i) printf("resnet50: first step in %.3f s\n", fl_data_now() - first);
    }
    for (int c = 1; ok && c >= 0; c--) {
        snprintf(path, sizeof path, "%s/resnet50.%s", folder, c ? "c" : "mlir");
        first = fl_data_now();
        ok = c ? fl_graph_save_c(g, path) : fl_graph_save_stablehlo(g, path);
        printf("resnet50: written as %s in %.3f s\n", c ? "C" : "StableHLO", fl_data_now() - first);
    }
    fl_graph_free(g);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 15;
    char folder[] = "/tmp/fl-written-XXXXXX", command[100];
    work list[] = {{.name = "cnn"}, {.name = "cnn_trains", .trains = true}, {.name = "mlp"},
                   {.name = "mlp_trains", .trains = true}};
    if (rounds < 1 || rounds > MOST_ROUNDS || !mkdtemp(folder)) return 2;
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof list / sizeof *list; i++)
        ok = prepare(&list[i], folder, i < 2) && measure(&list[i], rounds);
    ok = ok && write_resnet(folder);
    if (!ok) fprintf(stderr, "written: %s\n", fl_error() ? fl_error() : "out of memory");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (!getenv("KEEP") && system(command)) perror(folder);
    return !ok;
}
/* MIT licence: see LICENSE. */
