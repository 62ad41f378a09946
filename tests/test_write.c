/* test_write.c - steps written out: opened into the ops that every backend has, as Graphviz and as C

   A step of each tiny model is opened, its calls are run one by one on copies of what the step reads, and
   parameters, state and outputs are compared with those of a replay: within 3e-5 of the largest or 1e-6, where
   Adam trains 1e-4 (a tenth of its step, as it makes steps of noise too), as a composition rounds where a fused
   kernel does not; integers must be equal. The step written as C is compiled
   by gcc or clang with warnings as errors and sanitizers, runs five times, and is compared in the same way. */
#include "../fl_backend.h"
#include "../fl_export.h"
#include "compiler.h"
#include "heap.h"
#include "training.h"

#include <math.h>

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
    const void *x = fl_buffer_map(got), *y = fl_buffer_map(v->buffer);
    double largest = 0, off = 0;
    if (!fl_dtype_is_float(d)) return !memcmp(x, y, (size_t)v->bytes);
    for (int64_t i = 0; i < n; i++) {
        const double a = d == FL_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
        const double b = d == FL_F32 ? (double)((const float *)y)[i] : ((const double *)y)[i];
        largest = fmax(largest, fabs(b));
        off = fmax(off, a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b));
    }
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


/* ---- C: compiled with sanitizers, run on the same state, and compared after five steps ---- */

enum { C_STEPS = 5 };

/* A program that opens the state, runs the step on the inputs in a file, and saves the state and the loss. */
static bool write_driver(const char *path, fl_tensor *const *x, int n) {
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, "#include \"step.c\"\nint main(int argc, char **argv) {\n    if (argc != 5) return 2;\n");
    fprintf(f, "    step_state *s = step_open(argv[1]);\n    FILE *from = fopen(argv[2], \"rb\");\n");
    fprintf(f, "    step_inputs in;\n    float loss[2] = {0};\n    step_outputs out = {.loss = loss};\n");
    fprintf(f, "    if (!s || !from) return 3;\n    memset(&in, 0, sizeof in);\n");
    for (int i = 0; i < n; i++)
        fprintf(
            f,
            "    _Alignas(64) static char x%d[%zu];\n    if (fread(x%d, 1, sizeof x%d, from) != sizeof x%d) return 4;\n"
            "    in.x%d = (const void *)x%d;\n",
            i, x[i]->buffer->bytes, i, i, i, i, i);
    fprintf(
        f,
        "    fclose(from);\n    for (int i = 0; i < %d; i++)\n        if (step_run(s, &in, &out)) return 5;\n",
        C_STEPS);
    fprintf(f, "    FILE *to = fopen(argv[4], \"wb\");\n    fwrite(loss, 4, 1, to);\n    fclose(to);\n");
    fprintf(f,
            "    const int bad = step_save(s, argv[3]);\n    step_close(s);\n    return bad ? 6 : 0;\n}\n");
    return !fclose(f);
}

static bool write_inputs(const char *path, fl_tensor *const *x, int n) {
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL;
    for (int i = 0; ok && i < n; i++)
        ok = fwrite(fl_buffer_map(x[i]->buffer), 1, x[i]->buffer->bytes, f) == x[i]->buffer->bytes;
    return (!f || !fclose(f)) && ok;
}

/* The numbers of two tensors in memory order are alike. */
static bool alike_in_file(fl_tensor *t, fl_data_file *f, const char *name, int *compared) {
    if (!t || fl_data_find(f, name) < 0) return true; /* the step does not use it */
    fl_tensor *got = fl_data_read(f, name);
    ++*compared;
    const fl_graph_value v = {.buffer = t->buffer, .bytes = (int64_t)t->buffer->bytes, .handle = t};
    return CHECK(got) && CHECK_EQ_INT(got->buffer->bytes, t->buffer->bytes) && alike(&v, got->buffer);
}

static bool is_read(const fl_graph *g, const fl_tensor *t) {
    const fl_graph_list l = fl_graph_calls(g);
    bool found = false;
    for (int64_t i = 0; i < l.n_values; i++) found |= l.value[i].buffer == t->buffer && l.value[i].first >= 0;
    return found;
}

static void check_c(const model *m, bool plain, bool adam, const char *cc) {
    static const char *const names[] = {"x0", "x1", "x2", "x3", "x4", "x5"};
    char command[3000], path[5][200];
    const char *const files[5] = {"step.c", "main.c", "inputs", "step.safetensors", "after.safetensors"};
    training t;
    fl_nn_state all = {0};
    fl_data_named_tensor in[6], out = {"loss", NULL};
    fl_tensor *x[6];
    int n = 0, compared = 0, differ = 0;
    for (int i = 0; i < 5; i++) snprintf(path[i], sizeof path[i], "%s", test_file(files[i]));
    fl_scope s = fl_scope_begin();
    REQUIRE(training_of(&t, m, plain, adam));
    REQUIRE(record(&t) && prepare(&t, 3));
    for (int k = 0; k < MODEL_TENSORS; k++)
        if (t.batch.t[k] && is_read(t.graph[0], t.batch.t[k]))
            in[n] = (fl_data_named_tensor){names[n], t.batch.t[k]}, x[n] = t.batch.t[k], n++;
    out.tensor = t.loss;
    CHECK(fl_nn_state_add_module(&all, "model.", t.net) && fl_optim_state(t.optim, "optim.", &all));
    REQUIRE(fl_graph_save_c(t.graph[0], path[0], .state = &all, .inputs = in, .n_inputs = n, .outputs = &out,
                            .n_outputs = 1));
    REQUIRE(write_driver(path[1], x, n) && write_inputs(path[2], x, n));
    snprintf(command, sizeof command,
             "%s -std=c11 -O0 -g -Wall -Wextra -Werror -fsanitize=address,undefined %s -o %s.out -lm && "
             "%s.out %s %s %s %s.loss", cc, path[1], path[1], path[1], path[3], path[2], path[4], path[4]);
    CHECK_EQ_INT(system(command), 0);
    for (int i = 0; i < C_STEPS; i++) CHECK(fl_graph_replay(t.graph[0]));
    fl_data_file *f = fl_data_open_safetensors(path[4]);
    for (int64_t i = 0; CHECK(f) && i < all.n; i++)
        differ += !alike_in_file(all.item[i].tensor, f, all.item[i].name, &compared);
    CHECK_EQ_INT(differ, 0);
    CHECK(compared > 12);
    float loss = 0;
    snprintf(command, sizeof command, "%s.loss", path[4]);
    FILE *l = fopen(command, "rb");
    CHECK(l && fread(&loss, 4, 1, l) == 1);
    if (l) fclose(l);
    CHECK(fabs(loss - fl_item(t.loss)) <= 1e-5 * fabs(fl_item(t.loss)));
    printf("  %s: loss %.7g, by C %.7g; %d tensors compared, by %s\n", m->name, fl_item(t.loss), (double)loss,
           compared, cc);
    fl_data_close(f);
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
    if (!test_has_compiler()) {
        printf("  skipped: C of %s (a C compiler called cc)\n", m->name);
        return;
    }
    check_c(m, plain, adam, clang ? "clang" : "cc");
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
    CHECK(!fl_graph_save_dot(small_graph, "/no/such/folder/step.dot"));
    CHECK_STR(fl_error(), "fl_graph_save_dot: cannot open /no/such/folder/step.dot");
    fl_error_clear();
    fl_heap_use(heap_fn, NULL);
    CHECK(sweep_heap(open_small, false) > 10);
    CHECK(sweep_heap(open_small, true) > 10);
    fl_graph_free(small_graph);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
