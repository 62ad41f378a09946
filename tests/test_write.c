/* test_write.c - steps written out: opened into the ops that every backend has, as Graphviz, C and StableHLO

   A step of each tiny model is opened, its calls are run one by one on copies of what the step reads, and
   parameters, state and outputs are compared with those of a replay: within 3e-5 of the largest or 1e-6,
   where Adam trains 1e-4 (a tenth of its step, as it makes steps of noise too), as a composition rounds where
   a fused kernel does not; integers must be equal. The step written as C is compiled by gcc or clang with
   warnings as errors and sanitizers, runs five times, and is compared likewise. With STABLEHLO=folder modules
   are written there instead, with what tests/python/test_stablehlo.py compares. */
#include "../fl_backend.h"
#include "../fl_export.h"
#include "compiler.h"
#include "heap.h"
#include "ops_alone.h"
#include "training.h"
#include "written.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- running a list's calls on copies of its values ---- */

/* Copies of what was there before the step, and memory for what it makes; freed by copies_free. */
static fl_buffer **copies_of(const fl_graph_list *l) {
    fl_buffer **copy = calloc((size_t)l->n_values, sizeof *copy);
    for (int64_t i = 0; copy && i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        copy[i] = fl_buffer_new((size_t)v->bytes, NULL);
        if (v->buffer && v->role <= FL_GRAPH_CONSTANT)
            memcpy(fl_buffer_map(copy[i]), fl_buffer_map(v->buffer), (size_t)v->bytes);
    }
    return copy;
}

static void copies_free(const fl_graph_list *l, fl_buffer **copy) {
    for (int64_t i = 0; i < l->n_values; i++) fl_buffer_drop(copy[i]);
    free(copy);
}

static bool run_call(const fl_graph_call *c, fl_buffer *const *copy, uint64_t later) {
    static _Alignas(16) char args[4096];
    fl_tensor t[12];
    fl_call d = c->call;
    const size_t size = d.args ? fl_op_get_info(d.op)->args_size : 0;
    for (int k = 0; k < 12; k++) {
        if ((k < 4 ? k >= d.n_out : k - 4 >= d.n_in) || !(k < 4 ? d.out[k] : d.in[k - 4])) continue;
        t[k] = k < 4 ? *d.out[k] : *d.in[k - 4];
        if (!t[k].weak) t[k].buffer = copy[c->value[k]];
        if (k < 4) d.out[k] = &t[k];
        else d.in[k - 4] = &t[k];
        for (int m = 0; k >= 4 && m < d.n_out; m++)
            if (c->call.in[k - 4] == c->call.out[m]) d.in[k - 4] = &t[m];
    }
    if (size) d.args = memcpy(args, d.args, size);
    fl_rng *rng = size ? fl_op_rng(d.op, args) : NULL;
    if (rng && !c->fixed_rng) rng->counter += later;
    return fl_call_run(&d);
}

static bool run_calls(const fl_graph_list *l, fl_buffer *const *copy, uint64_t later) {
    bool ok = true;
    for (int64_t i = 0; ok && i < l->n; i++) ok = CHECK(run_call(&l->call[i], copy, later));
    return ok;
}

static double floor_of_differences = 1e-6;

/* The value's numbers in both are alike. */
static bool alike(const fl_graph_value *v, fl_buffer *got) {
    const fl_dtype d = v->handle->dtype;
    const int64_t n = v->bytes / (int64_t)fl_dtype_size(d);
    double largest = 0;
    const double off = written_difference(fl_buffer_map(got), fl_buffer_map(v->buffer), d, n, &largest);
    const bool ok = off <= 3e-5 * largest || off <= floor_of_differences;
    if (!ok) printf("  %s of %lld: off by %g of %g\n", fl_dtype_name(d), (long long)n, off, largest);
    return ok;
}

/* ---- opening ---- */

static bool record(training *t) {
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) {
        fl_drop(t->loss);
        ok = CHECK(prepare(t, i)) && CHECK(fl_graph_begin(t->graph[0]));
        t->loss = step(t);
        ok = CHECK(fl_graph_end(t->graph[0])) && ok;
    }
    return ok && CHECK_STR(fl_graph_reason(t->graph[0]), "");
}

/* Where gradients are 0 but for rounding (biases of keys, or before norms), Adam steps by that noise: SGD. */
static bool training_of(training *t, const model *m, bool plain, bool adam) {
    if (!training_new(t, m, plain) || adam) return t->net;
    fl_optim_free(t->optim);
    return (t->optim = fl_optim_sgd(fl_nn_parameters(t->net), .lr = 1e-2, .momentum = 0.9)) != NULL;
}

static void check_opened(const model *m, bool plain, bool adam, const char *kept) {
    training t;
    fl_scope s = fl_scope_begin();
    REQUIRE(training_of(&t, m, plain, adam));
    const fl_rng before = fl_rng_state();
    bool ok = record(&t) && CHECK(prepare(&t, 3));
    const uint64_t draws = (fl_rng_state().counter - before.counter) / 3;
    fl_graph *g = ok ? fl_graph_open(t.graph[0], kept) : NULL;
    if (CHECK(g)) {
        const fl_graph_list l = fl_graph_calls(g);
        fl_buffer **copy = copies_of(&l);
        int64_t differ = 0, compared = 0;
        bool known = true;
        for (int64_t i = 0; i < l.n; i++)
            known &= kept || fl_op_get_info(l.call[i].call.op)->required;
        CHECK(known);
        ok = run_calls(&l, copy, draws) && CHECK(fl_graph_replay(t.graph[0]));
        for (int64_t i = 0; ok && i < l.n_values; i++)
            if (l.value[i].buffer && l.value[i].role != FL_GRAPH_CONSTANT)
                differ += !alike(&l.value[i], copy[i]), compared++;
        CHECK_EQ_INT(differ, 0);
        printf("  %s: %lld calls, %lld opened%s%s, %lld values alike\n", m->name,
               (long long)fl_graph_calls(t.graph[0]).n, (long long)l.n, kept ? " but " : "", kept ? kept : "",
               (long long)compared);
        copies_free(&l, copy);
        CHECK(!fl_graph_ready(g));
        fl_graph_free(g);
    }
    training_free(&t);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}


/* ---- models written: compiled with sanitizers, run on the same state, compared after the steps ---- */

static const char *folder_of(bool c) {
    static char folder[200];
    snprintf(folder, sizeof folder, "%s", c ? test_file("steps") : getenv("STABLEHLO"));
    if (c) mkdir(folder, 0777);
    return folder;
}

/* With sanitizers; cc also makes products and convolutions parallel, if it can. */
static const char *compiler(bool clang) {
    static const char probe[] = "echo 'int main(void) { return 0; }' | "
                                "cc -fopenmp -x c - -o /dev/null 2> /dev/null";
    if (clang) return "clang" WRITTEN_SANITIZED;
    if (!system(probe)) return "cc -fopenmp" WRITTEN_SANITIZED;
    printf("  skipped: C in parallel (OpenMP)\n");
    return "cc" WRITTEN_SANITIZED;
}

static void check_written(const model *m, bool plain, bool adam, bool clang) {
    static const char *const names[] = {"x0", "x1", "x2", "x3", "x4", "x5"};
    training t;
    fl_nn_state all = {0};
    fl_data_named_tensor in[6], out = {"loss", NULL};
    written *w = calloc(1, sizeof *w);
    const bool c = !getenv("STABLEHLO");
    const char *folder = folder_of(c);
    int n = 0;
    fl_scope s = fl_scope_begin();
    REQUIRE(w && training_of(&t, m, plain, adam));
    REQUIRE(record(&t) && prepare(&t, 3));
    for (int k = 0; k < MODEL_TENSORS; k++)
        if (t.batch.t[k] && is_read(t.graph[0], t.batch.t[k]))
            in[n] = (fl_data_named_tensor){names[n], t.batch.t[k]}, n++;
    out.tensor = t.loss;
    CHECK(fl_nn_state_add_module(&all, "model.", t.net) && fl_optim_state(t.optim, "optim.", &all));
    CHECK(fl_nn_state_add(&all, "optim.", "numbers", t.optim->group[0].numbers)); /* lr first */
    const fl_export_opts o = {.state = &all, .inputs = in, .n_inputs = n, .outputs = &out, .n_outputs = 1};
    w->steps = c ? 5 : 2;
    snprintf(w->name, sizeof w->name, "%s", m->name);
    CHECK(written_case(folder, w, t.graph[0], o, c));
    CHECK(w->n > 12);
    if (c)
        CHECK(
            written_run(folder, w, 1, compiler(clang)) &&
            written_agrees(folder, w, 3e-5, floor_of_differences));
    printf("  %s: loss %.7g, %d tensors come out of the step\n", m->name, fl_item(t.loss), w->n);
    free(w);
    fl_nn_state_free(&all);
    training_free(&t);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- the models ---- */

static void check_model(const model *m, bool plain, bool adam) {
    const bool clang = strlen(m->name) % 2 && !system("clang --version > /dev/null 2>&1");
    floor_of_differences = adam ? 1e-4 : 1e-6;
    check_opened(m, plain, adam, NULL);
    check_opened(m, plain, adam, "formulas softmax linear");
    if (!getenv("STABLEHLO") && !test_has_compiler()) {
        printf("  skipped: C of %s (a C compiler called cc)\n", m->name);
        return;
    }
    check_written(m, plain, adam, clang);
}

TEST(alexnet) { check_model(&model_alexnet, false, true); }
TEST(vgg16) { check_model(&model_vgg16, false, true); }
TEST(resnet50) { check_model(&model_resnet50, false, false); }
TEST(resnet34) { check_model(&model_resnet34, false, true); }
TEST(bert) { check_model(&model_bert, false, false); }
TEST(asr) { check_model(&model_asr, true, false); }
TEST(vit) { check_model(&model_vit, false, false); }
TEST(capsule) { check_model(&model_capsule, false, true); }
TEST(gpt_small) { check_model(&model_gpt_small, false, false); }
TEST(unet) { check_model(&model_unet, false, false); }
TEST(dcgan) { check_model(&model_dcgan, false, false); }
TEST(wgan) { check_model(&model_wgan, false, false); }
TEST(vit_tiny) { check_model(&model_vit_tiny, false, false); }
TEST(lstm_lm) { check_model(&model_lstm_lm, false, false); }

/* What the nets give in evaluation mode, by C; all in one program. */
TEST(inference) {
    static const model *const of[] = {&model_alexnet, &model_vgg16,    &model_resnet50,  &model_resnet34,
                                      &model_bert,    &model_asr,      &model_vit,       &model_capsule,
                                      &model_unet,    &model_vit_tiny, &model_gpt_small, &model_lstm_lm};
    enum { MODELS = sizeof of / sizeof *of };
    if (getenv("STABLEHLO") || !test_has_compiler()) SKIP("a C compiler called cc");
    const char *folder = folder_of(true);
    written *w = calloc(MODELS, sizeof *w);
    REQUIRE(w);
    fl_no_grad(true);
    for (int k = 0; k < MODELS; k++) {
        training t;
        fl_nn_state all = {0};
        fl_scope s = fl_scope_begin();
        REQUIRE(training_new(&t, of[k], true));
        fl_nn_train(t.net, false);
        for (int i = 0; i < 3; i++) {
            fl_scope step = fl_scope_begin();
            fl_drop(t.loss);
            CHECK(prepare(&t, i) && fl_graph_begin(t.graph[0]));
            t.loss = fl_keep(fv_value(fl_nn_forward(t.net, fv_const(t.batch.t[0]))));
            CHECK(fl_graph_end(t.graph[0]));
            fl_scope_end(&step);
        }
        CHECK(fl_nn_state_add_module(&all, "", t.net));
        const fl_data_named_tensor in = {"x", t.batch.t[0]}, out = {"y", t.loss};
        w[k].steps = 1;
        snprintf(w[k].name, sizeof w[k].name, "%s", of[k]->name);
        CHECK(written_case(folder, &w[k], t.graph[0],
                           (fl_export_opts){.state = &all, .inputs = &in, .n_inputs = 1, .outputs = &out,
                                            .n_outputs = 1}, true));
        fl_nn_state_free(&all);
        training_free(&t);
        fl_scope_end(&s);
    }
    CHECK(written_run(folder, w, MODELS, compiler(false)));
    for (int k = 0; k < MODELS; k++) CHECK(written_agrees(folder, &w[k], 1e-5, 0));
    free(w);
    CHECK_NOTHING_LIVES();
}

/* ---- ops alone, on views ---- */

/* A step of the n ops from `first` on. */
static void write_ops(int first, int n, const char *folder, written *w, bool c) {
    fl_tensor *x[OPERANDS], *y[N_OPS] = {NULL};
    fl_data_named_tensor in[OPERANDS], out[N_OPS];
    fl_nn_state state = {0};
    int n_in = 0, n_out = 0;
    fl_scope s = fl_scope_begin();
    fl_seed((uint64_t)first);
    REQUIRE(operands_new(x));
    fl_graph *g = ops_recorded(first, n, x, y);
    for (int k = 0; k < S; k++)
        if (is_read(g, x[k])) in[n_in++] = (fl_data_named_tensor){operand_names[k], x[k]};
    for (int k = 0; k < n; k++)
        if (y[k]) out[n_out++] = (fl_data_named_tensor){ops_alone[first + k].name, y[k]};
    CHECK(fl_nn_state_add(&state, "", "s", x[S]));
    snprintf(w->name, sizeof w->name, "op_%s", n > 1 ? "all" : ops_alone[first].name);
    w->steps = 2;
    const fl_export_opts o = {
        .state = &state, .inputs = in, .n_inputs = n_in, .outputs = out, .n_outputs = n_out};
    CHECK(written_case(folder, w, g, o, c));
    if (!CHECK_NO_ERROR()) printf("  %s\n", w->name);
    fl_nn_state_free(&state);
    fl_graph_free(g);
    for (int k = 0; k < n; k++) fl_drop(y[k]);
    fl_scope_end(&s);
}

/* As StableHLO each is a module, as C all are one step. */
TEST(ops_alone) {
    const bool c = !getenv("STABLEHLO");
    if (c && !test_has_compiler()) SKIP("a C compiler called cc");
    const char *folder = folder_of(c);
    written *w = calloc(1, sizeof *w);
    REQUIRE(w);
    test_errors_return();
    if (c) write_ops(0, N_OPS, folder, w, true);
    for (int n = 0; !c && n < N_OPS; n++) write_ops(n, 1, folder, w, false);
    if (c) CHECK(written_run(folder, w, 1, "cc" WRITTEN_SANITIZED) && written_agrees(folder, w, 1e-5, 0));
    free(w);
    CHECK_NOTHING_LIVES();
}

/* ---- errors ---- */

TEST(steps_that_are_not_ready) {
    const struct {
        const model *m;
        const char *reason;
    } steps[] = {{&model_lm, "fl_graph_open: the graph is not ready: fl_sum at "},
                 {&model_detr, "the host reads a tensor of shape [2, 96, 96]"}};
    for (int i = 0; i < 2; i++) {
        training t;
        fl_scope s = fl_scope_begin();
        REQUIRE(training_new(&t, steps[i].m, false));
        for (int k = 0; k < 2; k++) {
            fl_drop(t.loss);
            CHECK(prepare(&t, k) && fl_graph_begin(t.graph[0]));
            t.loss = step(&t);
            CHECK(fl_graph_end(t.graph[0]));
        }
        test_errors_return();
        CHECK(!fl_graph_open(t.graph[0], NULL));
        CHECK_STR(fl_error(), steps[i].reason);
        CHECK_STR(fl_error(), "training.h:");
        fl_error_clear();
        training_free(&t);
        fl_scope_end(&s);
    }
}

TEST(an_op_without_a_composition) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_eye(3, 3, FL_F32), *y = NULL;
    fl_graph *g = fl_graph_new();
    test_errors_return();
    for (int i = 0; i < 3; i++) {
        fl_drop(y);
        CHECK(fl_graph_begin(g));
        y = fl_keep(fl_cholesky(x));
        CHECK(fl_graph_end(g));
    }
    CHECK(!fl_graph_save_c(g, test_file("step.c")));
    CHECK_STR(fl_error(), "cholesky");
    CHECK(access(test_file("step.c"), F_OK) != 0);
    fl_error_clear();
    fl_drop(y);
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static fl_tensor *small_x, *small_y;
static fl_graph *small_graph;

/* Two rounds of y += softmax(dropout(x W)), W made by the host in the step. */
static bool small_rounds(bool (*host)(void *)) {
    const float w[6] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < 2; i++) {
        fl_scope s = fl_scope_begin();
        bool ok = fl_graph_begin(small_graph);
        fl_tensor *x = fl_matmul(small_x, fl_from_host(w, FL_SHAPE(3, 2), FL_F32));
        ok = ok && fl_assign(small_y, fl_add(small_y, fl_softmax(fl_dropout(x, 0.5, NULL), 1)));
        if (host) ok = ok && fl_graph_host(host, NULL);
        ok = fl_graph_end(small_graph) && ok;
        fl_scope_end(&s);
        if (!ok) return false;
    }
    return true;
}

static bool nothing(void *user) { return (void)user, true; }

static bool open_small(void) {
    fl_graph *g = fl_graph_open(small_graph, NULL);
    const bool ok = g && fl_graph_save_dot(g, test_file("step.dot"));
    fl_graph_free(g);
    return ok;
}

static bool save_small_c(void) { return fl_graph_save_c(small_graph, test_file("full.c")); }
static bool save_small_stablehlo(void) {
    return fl_graph_save_stablehlo(small_graph, test_file("full.mlir"));
}

/* No file may grow beyond 2 KiB: an error, and nothing is left behind. */
static void fill_disk(bool (*save)(void), const char *file) {
    struct rlimit before, full;
    REQUIRE(!getrlimit(RLIMIT_FSIZE, &before));
    full = before, full.rlim_cur = 2048;
    remove(test_file(file));
    fflush(stdout);
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &full));
    const bool ok = save();
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &before));
    CHECK(!ok);
    CHECK_STR(fl_error(), "cannot write");
    fl_error_clear();
    char command[300];
    snprintf(command, sizeof command, "! ls %s* 2> /dev/null", test_file(file));
    CHECK_EQ_INT(system(command), 0);
    CHECK(save());
}

/* The state within the text: two steps by C, from the generator as it is now, and two replays. */
static void run_embedded(void) {
    char command[2000], path[3][300];
    float got[8];
    const char *const files[] = {"small.c", "small_main.c", "small.out"}, name[] = "y \"\n\\*/";
    const fl_data_named_tensor in = {"x \"1\"\n*/ \\", small_x};
    for (int i = 0; i < 3; i++) snprintf(path[i], sizeof path[i], "%s", test_file(files[i]));
    fl_nn_state state = {0};
    CHECK(fl_nn_state_add(&state, "", name, small_y));
    REQUIRE(fl_graph_save_c(small_graph, path[0], .state = &state, .inputs = &in, .n_inputs = 1,
                            .embed = true));
    FILE *f = fopen(path[1], "w");
    fprintf(f,
            "#include \"small.c\"\nint main(int n, char **argv) {\n    float x[12];\n    "
            "small_state *s = small_open(NULL);\n"
            "    for (int i = 0; i < 12; i++) x[i] = 1;\n    const small_inputs in = {.x_1_ = x};\n"
            "    float o[4][8]; /* what the test's scope holds still when the step ends */\n"
            "    const small_outputs out = {o[0], o[1], o[2], o[3]};\n"
            "    if (!s || small_run(s, &in, &out) || small_run(s, &in, &out))\n"
            "        return 1;\n"
            "    if (n != 2 || small_save(s, argv[1])) return 2;\n    small_close(s);\n"
            "    if (!(s = small_open(argv[1]))) return 3;\n    fwrite(s->y_, 4, 8, stdout);\n"
            "    small_close(s);\n    return 0;\n}\n");
    fclose(f);
    snprintf(command, sizeof command,
             "cc -std=c11 -Wall -Wextra -Werror %s -o %s -lm && %s %s.st > %s.y", path[1], path[2],
             path[2], path[2], path[2]);
    CHECK_EQ_INT(system(command), 0);
    CHECK(fl_graph_replay(small_graph) && fl_graph_replay(small_graph));
    snprintf(command, sizeof command, "%s.st", path[2]);
    fl_data_file *saved = fl_data_open_safetensors(command);
    CHECK(saved && fl_data_find(saved, name) >= 0);
    fl_data_close(saved);
    snprintf(command, sizeof command, "%s.y", path[2]);
    f = fopen(command, "rb");
    CHECK(f && fread(got, 4, 8, f) == 8);
    if (f) fclose(f);
    const float *y = fl_map(small_y, FL_READ);
    for (int i = 0; i < 8; i++) CHECK(fabsf(got[i] - y[i]) <= 1e-6f);
    fl_unmap(small_y, FL_READ);
    fl_nn_state_free(&state);
}

TEST(a_small_step) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    small_x = fl_ones(FL_SHAPE(4, 3), FL_F32), small_y = fl_zeros(FL_SHAPE(4, 2), FL_F32);
    REQUIRE(small_graph = fl_graph_new());
    REQUIRE(small_rounds(nothing));
    CHECK(!open_small());
    CHECK_STR(fl_error(), "fl_graph_open: fl_graph_host: a function of the host");
    fl_error_clear();
    REQUIRE(small_rounds(NULL));
    fl_graph *g = fl_graph_open(small_graph, "softmax");
    REQUIRE(g);
    const fl_graph_list l = fl_graph_calls(g);
    int closed = 0, constants = 0;
    for (int64_t i = 0; i < l.n; i++) closed += l.call[i].call.op == fl_op_by_name("softmax");
    for (int64_t i = 0; i < l.n_values; i++) constants += l.value[i].role == FL_GRAPH_CONSTANT;
    CHECK_EQ_INT(closed, 1);
    CHECK_EQ_INT(constants, 1);
    CHECK(!fl_graph_replay(g));
    CHECK_STR(fl_error(), "an opened step is not replayed");
    fl_error_clear();
    CHECK(!fl_graph_open(g, NULL)); /* nor opened again */
    fl_error_clear();
    fl_graph_free(g);
    CHECK(!fl_graph_save_c(small_graph, "/no/such/folder/step.c", .embed = true));
    CHECK_STR(fl_error(), "fl_graph_save_c: cannot open /no/such/folder/step.c");
    fl_error_clear();
    const fl_data_named_tensor other = {"other", small_y};
    CHECK(!fl_graph_save_c(small_graph, test_file("step.c"), .inputs = &other, .n_inputs = 1));
    CHECK_STR(fl_error(), "fl_graph_save_c: the step writes the input 'other': make it part of the state");
    fl_error_clear();
    if (test_has_compiler()) run_embedded();
    CHECK(!fl_graph_save_dot(small_graph, "/no/such/folder/step.dot"));
    CHECK_STR(fl_error(), "fl_graph_save_dot: cannot open /no/such/folder/step.dot");
    fl_error_clear();
    fl_heap_use(heap_fn, NULL);
    CHECK(sweep_heap(open_small, false) > 10);
    CHECK(sweep_heap(open_small, true) > 10);
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        CHECK(sweep_heap(save_small_c, for_ever) > 10);
        CHECK(sweep_heap(save_small_stablehlo, for_ever) > 10);
    }
    fill_disk(save_small_c, "full.c");
    fill_disk(save_small_stablehlo, "full.mlir");
    fl_graph_free(small_graph);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
