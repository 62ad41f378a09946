/* examples/deploy.c - a training step written as one C file, which trains without fl

   cc -O2 -I.. deploy.c ../fl.c -o deploy -lm -lpthread
   ./deploy --data dir            with MNIST's four idx files in dir; without: on digits that it draws itself
   ./deploy --to folder           where the files go, which stay; without: a temporary folder

   The CNN of mnist.c takes two training steps (dropout on, Adam) as a graph. fl_graph_save_c writes the step
   as step.c, with weights, optimizer state and generator in step.safetensors. A program of 30 lines, compiled
   with it by cc, trains for an epoch; the same epoch is trained here by replays. Then both weights are evaluated
   on the test set: the last two lines are "Test accuracy: 98.xx %, of the weights by C 98.xx %" and seconds.
   Exits with 1 if the two differ by more than 2 %: sums are rounded in another order, which an epoch
   magnifies. */
#include "fl_export.h"
#include "arguments.h"
#include "digits.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 64, DRAWN = 1920, TESTED = 1000 };

static const char program[] =
    "#include \"step.c\"\n"
    "int main(int argc, char **argv) {\n"
    "    enum { BATCH = 64 };\n"
    "    static float x[BATCH * 28 * 28], loss;\n"
    "    static int64_t target[BATCH];\n"
    "    const step_inputs in = {.x = x, .target = target};\n"
    "    const step_outputs out = {.loss = &loss};\n"
    "    step_state *s = argc == 4 ? step_open(argv[1]) : NULL;\n"
    "    FILE *batches = s ? fopen(argv[2], \"rb\") : NULL;\n"
    "    if (!batches) return 2;\n"
    "    double sum = 0;\n"
    "    int n = 0;\n"
    "    while (fread(x, sizeof x, 1, batches) == 1 && fread(target, sizeof target, 1, batches) == 1) {\n"
    "        if (step_run(s, &in, &out)) return 3;\n"
    "        sum += loss, n++;\n"
    "    }\n"
    "    fclose(batches);\n"
    "    printf(\"by C:  %d steps, mean loss %.6f\\n\", n, sum / n);\n"
    "    const int bad = step_save(s, argv[3]);\n"
    "    step_close(s);\n"
    "    return bad ? 4 : 0;\n"
    "}\n";

typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_tensor *x, *target, *loss; /* loss: of the last recorded step, replays write it */
    fl_graph *graph;
} training;

static bool step(training *t) {
    if (fl_graph_ready(t->graph)) return fl_graph_replay(t->graph);
    fl_scope s = fl_scope_begin();
    fl_drop(t->loss);
    t->loss = NULL;
    bool ok = fl_graph_begin(t->graph);
    fl_var *loss = ok ? fv_nll_loss(fl_nn_forward(t->net, fv_const(t->x)), t->target) : NULL;
    fl_optim_zero_grad(t->optim);
    ok = loss && fl_backward(loss) && fl_optim_step(t->optim);
    if (ok) t->loss = fl_keep(fv_value(loss));
    fl_scope_end(&s);
    return fl_graph_end(t->graph) && ok;
}

static bool load_batch(training *t, fl_data_set *batches, int64_t i) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    const bool ok = fl_data_get(batches, i, &b) && fl_assign(t->x, b.t[0]) && fl_assign(t->target, b.t[1]);
    fl_scope_end(&s);
    return ok;
}

/* The batches of the epoch, one behind the other: x, then target. */
static bool write_batches(training *t, fl_data_set *batches, int64_t n, const char *path) {
    FILE *f = fopen(path, "wb");
    bool ok = f || fl_fail("deploy: cannot open %s", path);
    fl_tensor *const part[2] = {t->x, t->target};
    for (int64_t i = 0; ok && i < n; i++) {
        ok = load_batch(t, batches, i);
        for (int k = 0; ok && k < 2; k++) {
            const size_t bytes = (size_t)fl_numel(part[k]) * fl_dtype_size(part[k]->dtype);
            const void *p = fl_map(part[k], FL_READ);
            ok = p && fwrite(p, 1, bytes, f) == bytes;
            if (p) fl_unmap(part[k], FL_READ);
        }
    }
    if (f && fclose(f)) ok = fl_fail("deploy: cannot write %s", path);
    return ok;
}

static bool write_step(training *t, const char *path) {
    fl_nn_state all = {0};
    const fl_data_named_tensor in[] = {{"x", t->x}, {"target", t->target}}, out[] = {{"loss", t->loss}};
    const bool ok = fl_nn_state_add_module(&all, "", t->net) && fl_optim_state(t->optim, "optim.", &all) &&
                    fl_nn_state_add(&all, "optim.", "numbers", t->optim->group[0].numbers) &&
                    fl_graph_save_c(t->graph, path, .state = &all, .inputs = in, .n_inputs = 2,
                                    .outputs = out, .n_outputs = 1);
    fl_nn_state_free(&all);
    return ok;
}

static bool write_program(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) return fl_fail("deploy: cannot open %s", path);
    fputs(program, f);
    return !fclose(f) || fl_fail("deploy: cannot write %s", path);
}

__attribute__((format(printf, 1, 2))) static bool command(const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    return !system(text) || fl_fail("deploy: failed: %s", text);
}

static double accuracy(fl_nn_module *net, fl_data_set *tests) {
    int64_t right = 0, all = 0;
    fl_nn_train(net, false);
    for (int64_t i = 0; i < fl_data_size(tests); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (fl_data_get(tests, i, &b)) {
            fl_tensor *y = fv_value(fl_nn_forward(net, fv_const(b.t[0])));
            right += fl_item_int(fl_sum(fl_eq(fl_argmax(y, -1, false), b.t[1]), FL_ALL_AXES));
            all += b.t[1]->shape[0];
        }
        fl_scope_end(&s);
    }
    return 100.0 * (double)right / (double)all;
}

static bool run(const char *folder, digits train, digits test) {
    char path[1024];
    double mine = 0, theirs = 0, seconds[2] = {0}, sum = 0;
    training t = {0};
    fl_seed(1);
    fl_data_set *batches = digits_batches(train, 0, train.label->shape[0], BATCH, 0);
    fl_data_set *tests = digits_batches(test, 0, test.label->shape[0], 500, 0);
    bool ok = batches && tests && (t.net = digits_net_of(0.25)) &&
              (t.optim = fl_optim_adam(fl_nn_parameters(t.net), .lr = 1e-3)) &&
              (t.x = fl_empty(FL_SHAPE(BATCH, DIGITS_SIDE, DIGITS_SIDE), FL_F32)) &&
              (t.target = fl_empty(FL_SHAPE(BATCH), FL_I64)) && (t.graph = fl_graph_new());
    const int64_t n = train.label->shape[0] / BATCH; /* a last, smaller batch is left out */
    for (int64_t i = 0; ok && i < 2; i++) ok = load_batch(&t, batches, i) && step(&t);
    snprintf(path, sizeof path, "%s/step.c", folder);
    ok = ok && write_step(&t, path);
    snprintf(path, sizeof path, "%s/main.c", folder);
    ok = ok && write_program(path);
    snprintf(path, sizeof path, "%s/batches", folder);
    ok = ok && write_batches(&t, batches, n, path);
    ok = ok && command("cc -std=c11 -O3 -march=native -o %s/run %s/main.c -lm", folder, folder);
    double from = fl_data_now();
    ok = ok && command("%s/run %s/step.safetensors %s/batches %s/after.safetensors", folder, folder, folder,
                       folder);
    seconds[1] = fl_data_now() - from;
    from = fl_data_now();
    for (int64_t i = 0; ok && i < n; i++) {
        ok = load_batch(&t, batches, i) && step(&t);
        if (ok) sum += fl_item(t.loss);
    }
    seconds[0] = fl_data_now() - from;
    if (ok) printf("by fl: %lld steps, mean loss %.6f\n", (long long)n, sum / (double)n);
    if (ok) mine = accuracy(t.net, tests);
    snprintf(path, sizeof path, "%s/after.safetensors", folder);
    ok = ok && fl_nn_load(t.net, path, .partial = true);
    if (ok) theirs = accuracy(t.net, tests);
    if (ok) printf("Test accuracy: %.2f %%, of the weights by C %.2f %%\n", mine, theirs);
    if (ok) printf("the epoch: %.2f s by fl, %.2f s by C\n", seconds[0], seconds[1]);
    if (ok && !(mine - theirs < 2 && theirs - mine < 2)) ok = fl_fail("deploy: the accuracies differ");
    fl_drop(t.loss);
    fl_graph_free(t.graph);
    fl_optim_free(t.optim);
    fl_nn_free(t.net);
    fl_data_free(batches);
    fl_data_free(tests);
    return ok;
}

int main(int argc, char **argv) {
    const char *data = NULL, *folder = NULL;
    char temporary[] = "/tmp/fl-deploy-XXXXXX";
    const argument list[] = {{"data", .text = &data, .about = "folder of MNIST's idx files"},
                             {"to", .text = &folder, .about = "folder for the files, which stay"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (system("cc --version > /dev/null 2>&1")) {
        printf("skipped: a C compiler called cc\n");
        return 0;
    }
    fl_scope s = fl_scope_begin();
    digits train = {0}, test = {0};
    if (folder) mkdir(folder, 0777);
    else folder = mkdtemp(temporary);
    bool ok = folder && (data ? digits_load(data, "train", &train) && digits_load(data, "t10k", &test)
                              : digits_draw(DRAWN, 1, &train) && digits_draw(TESTED, 2, &test));
    ok = ok && run(folder, train, test);
    if (folder == temporary) {
        static const char *const files[] = {"step.c", "step.safetensors", "main.c",
                                            "run",    "batches",          "after.safetensors"};
        char path[1024];
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, files[i]);
            unlink(path);
        }
        rmdir(folder);
    }
    if (!ok) fprintf(stderr, "deploy: %s\n", fl_error() ? fl_error() : "out of memory");
    fl_scope_end(&s);
    return !ok;
}
/* MIT licence: see LICENSE. */
