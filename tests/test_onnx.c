/* test_onnx.c - steps written as ONNX models

   With ONNX=folder models are written there, with inputs and what fl computes for them, for
   tests/python/test_onnx.py, which runs them in ONNX Runtime. */
#include "../bench/models/model.h"
#include "../fl_backend.h"
#include "../fl_export.h"
#include "heap.h"
#include "ops_alone.h"
#include <unistd.h>

/* A step of one input, recorded. */
typedef struct recording {
    fl_graph *g;
    fl_tensor *x, *y;
} recording;

static bool record(recording *r, fl_nn_module *net, fl_tensor *x) {
    *r = (recording){.g = fl_graph_new(), .x = fl_keep(x)};
    const bool before = fl_no_grad(true);
    bool ok = r->g != NULL;
    for (int i = 0; ok && i < 3 && !fl_graph_ready(r->g); i++) {
        fl_scope s = fl_scope_begin();
        fl_drop(r->y);
        ok = CHECK(fl_graph_begin(r->g));
        r->y = fl_keep(fv_value(fl_nn_forward(net, fv_const(x))));
        ok = CHECK(fl_graph_end(r->g)) && ok;
        fl_scope_end(&s);
    }
    fl_no_grad(before);
    return ok && CHECK(r->y) && CHECK_STR(fl_graph_reason(r->g), "");
}

static void recording_free(recording *r) {
    fl_graph_free(r->g);
    fl_drop(r->x);
    fl_drop(r->y);
}

static const char *file(const char *name, const char *ending) {
    static char path[600];
    const char *folder = getenv("ONNX");
    if (!folder) return snprintf(path, sizeof path, "%s", test_file("net")), strcat(path, ending);
    snprintf(path, sizeof path, "%s/%s%s", folder, name, ending);
    return path;
}

/* x and what the net makes of it. */
static bool write_case(const char *name, int number, fl_nn_module *net, fl_tensor *x) {
    char ending[40];
    const bool before = fl_no_grad(true);
    fl_tensor *y = fv_value(fl_nn_forward(net, fv_const(x)));
    fl_no_grad(before);
    snprintf(ending, sizeof ending, "-%d.safetensors", number);
    const fl_data_named_tensor both[2] = {{"x", fl_contiguous(x)}, {"y", fl_contiguous(y)}};
    return CHECK(y) && CHECK(fl_data_save_safetensors(file(name, ending), both, 2, NULL, 0));
}

/* The net's model with the sizes of x[0], and with free ones by x[1] as well, to be tried with x[2]. */
static void check_net(const char *name, fl_nn_module *net, fl_tensor *const *x) {
    recording r[2];
    fl_nn_state state = {0};
    char fixed[80];
    fl_nn_train(net, false);
    REQUIRE(record(&r[0], net, x[0]) && record(&r[1], net, x[1]));
    REQUIRE(fl_nn_state_add_module(&state, "", net));
    const fl_data_named_tensor in[2] = {{"x", r[0].x}, {"x", r[1].x}};
    const fl_data_named_tensor out[2] = {{"y", r[0].y}, {"y", r[1].y}};
    CHECK(fl_graph_save_onnx(r[0].g, file(name, ".onnx"), .state = &state, .inputs = in, .n_inputs = 1,
                             .outputs = out, .n_outputs = 1, .other = r[1].g, .other_inputs = in + 1,
                             .other_outputs = out + 1, .sizes = "batch length"));
    for (int i = 0; getenv("ONNX") && i < 3; i++) CHECK(write_case(name, i, net, x[i]));
    snprintf(fixed, sizeof fixed, "%s_fixed", name);
    CHECK(fl_graph_save_onnx(r[0].g, file(fixed, ".onnx"), .state = &state, .inputs = in, .n_inputs = 1,
                             .outputs = out, .n_outputs = 1, .embed = true));
    if (getenv("ONNX")) CHECK(write_case(fixed, 0, net, x[0]));
    fl_nn_state_free(&state);
    for (int i = 0; i < 2; i++) recording_free(&r[i]);
    fl_nn_free(net);
}

/* last: channels last; length: the size of a sample is free too. ONNX_PRESET: another size than tiny. */
static void check_model(const model *m, bool last, bool length) {
    const int64_t batches[3] = {2, 3, 5}, shorter[3] = {0, length ? 1 : 0, length ? 3 : 0};
    const char *preset = getenv("ONNX_PRESET");
    model_preset p = *model_preset_find(m, preset ? preset : "tiny");
    char name[64];
    fl_tensor *x[3];
    fl_scope s = fl_scope_begin();
    fl_seed(1);
    p.plain = true;
    fl_nn_module *net = m->build(&p);
    const int64_t size = p.size;
    if (last) fl_nn_channels_last(net);
    for (int i = 0; i < 3; i++) {
        p.batch = batches[i], p.size = size - shorter[i];
        REQUIRE(x[i] = m->batch(&p).t[0]);
        if (last) x[i] = fl_channels_last(x[i]);
    }
    snprintf(name, sizeof name, "%s%s", m->name, last ? "_last" : "");
    check_net(name, net, x);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(alexnet) { check_model(&model_alexnet, false, false); }
TEST(alexnet_last) { check_model(&model_alexnet, true, false); }
TEST(vgg16) { check_model(&model_vgg16, true, false); }
TEST(resnet50) { check_model(&model_resnet50, false, false); }
TEST(resnet34) { check_model(&model_resnet34, true, false); }
TEST(bert) { check_model(&model_bert, false, true); }
TEST(asr) { check_model(&model_asr, false, false); }
TEST(vit) { check_model(&model_vit, false, false); }
TEST(capsule) { check_model(&model_capsule, false, false); }
TEST(gpt_small) { check_model(&model_gpt_small, false, true); }
TEST(unet) { check_model(&model_unet, true, false); }
TEST(vit_tiny) { check_model(&model_vit_tiny, false, false); }
TEST(lstm_lm) { check_model(&model_lstm_lm, false, false); }

/* A language model of that path, tried with the ids of a file (that of transformers) or others; expected: its
   logits. */
static void check_pretrained(const char *name, const char *path, fl_tensor *ids, fl_tensor *expected) {
    fl_nn_module *net = fl_text_load(path);
    REQUIRE(net);
    fl_tensor *x[3] = {ids, fl_slice(fl_concat((fl_tensor *[]){ids, ids}, 2, 0), 0, 0, 3, 1),
                       fl_contiguous(fl_slice(ids, 1, 3, 10, 1))};
    x[1] = fl_contiguous(fl_slice(x[1], 1, 0, 11, 1));
    check_net(name, net, x);
    const fl_data_named_tensor both[2] = {{"x", ids}, {"y", expected}};
    if (expected && getenv("ONNX"))
        CHECK(fl_data_save_safetensors(file(name, "-3.safetensors"), both, 2, NULL, 0));
}

static const char *golden(const char *name) {
    static char path[300];
    const bool up = access("tests/golden/bits.tsv", R_OK) != 0;
    return snprintf(path, sizeof path, "%stests/golden/lm/%s", up ? "../../" : "", name), path;
}

TEST(models_of_transformers) {
    static const char *const names[] = {"gpt2", "llama", "mistral", "qwen2", "bert"};
    for (int i = 0; i < 5; i++) {
        char path[400];
        fl_scope s = fl_scope_begin();
        snprintf(path, sizeof path, "%s/expect.safetensors", golden(names[i]));
        fl_data_file *f = fl_data_open_safetensors(path);
        REQUIRE(f);
        fl_tensor *ids = fl_data_read(f, "ids"), *logits = i < 4 ? fl_data_read(f, "logits") : NULL;
        check_pretrained(names[i], golden(names[i]), ids, logits); /* bert's are those of a mask */
        fl_data_close(f);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(stories) {
    char path[400];
    snprintf(path, sizeof path, "%s/weights/stories260K/stories260K.bin", test_data_dir());
    FILE *f = fopen(path, "rb");
    if (!f) SKIP("the data folder's weights/stories260K");
    fclose(f);
    fl_scope s = fl_scope_begin();
    check_pretrained("stories260K", path, fl_randint(FL_SHAPE(2, 12), 0, 512, NULL), NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- ops alone ---- */

static bool begins_with(const char *name, const char *const *words) {
    for (; *words; words++)
        if (!strncmp(name, *words, strlen(*words))) return true;
    return false;
}

/* What is refused: it draws numbers, writes its state, or ONNX has no such op. */
static const char *const refused_ops[] = {"atan2",  "shift",   "cumprod",  "rand",             "uniform",
                                          "normal", "dropout", "in_place", "conv_grad_weight", NULL};
/* Their results are the runtime's matter: extremes with NaN, casts out of range. */
static const char *const open_ops[] = {"amax", "argmax", "argmin", "saturate", NULL};

TEST(ops_alone) {
    int refused = 0;
    test_errors_return();
    for (int i = 0; i < N_OPS; i++) {
        fl_tensor *x[OPERANDS], *y = NULL;
        fl_data_named_tensor in[OPERANDS + 1];
        int n = 0;
        char name[80];
        fl_scope s = fl_scope_begin();
        fl_seed((uint64_t)i);
        REQUIRE(operands_new(x));
        fl_graph *g = ops_recorded(i, 1, x, &y);
        for (int k = 0; k < OPERANDS; k++)
            if (is_read(g, x[k])) in[n++] = (fl_data_named_tensor){operand_names[k], x[k]};
        in[n] = (fl_data_named_tensor){"y", y};
        snprintf(name, sizeof name, "op_%s", ops_alone[i].name);
        const bool ok = fl_graph_save_onnx(g, file(name, ".onnx"), .inputs = in, .n_inputs = n,
                                           .outputs = in + n, .n_outputs = y != NULL, .embed = true);
        if (!CHECK_EQ_INT(ok, !begins_with(ops_alone[i].name, refused_ops)))
            printf("  %s: %s\n", name, fl_error());
        refused += !ok;
        fl_error_clear();
        for (int k = 0; k <= n && ok; k++) in[k].tensor = fl_contiguous(in[k].tensor);
        if (ok && getenv("ONNX") && !begins_with(ops_alone[i].name, open_ops))
            CHECK(fl_data_save_safetensors(file(name, "-0.safetensors"), in, n + 1, NULL, 0));
        fl_graph_free(g);
        fl_drop(y);
        fl_scope_end(&s);
    }
    printf("  %d ops, %d refused\n", N_OPS, refused);
    CHECK_NOTHING_LIVES();
}

/* ---- errors ---- */

/* A net of two layers on images [batch, 2, 4, 4], channels last, recorded; training: batch norm takes the
   batch's statistics. */
static bool small_net(recording *r, fl_nn_module **net, int64_t batch, bool norm, bool training) {
    if (!*net) {
        fl_seed(1);
        *net = fl_nn_sequential(fl_nn_conv2d(2, 3, 3), norm ? fl_nn_batch_norm2d(3) : fl_nn_gelu());
        fl_nn_train(*net, training);
        fl_nn_channels_last(*net);
    }
    return record(r, *net, fl_channels_last(fl_normal(FL_SHAPE(batch, 2, 4, 4), 0, 1, FL_F32, NULL)));
}

static recording small[2];
static fl_nn_state small_state;

static bool save_small(void) {
    const fl_data_named_tensor in[2] = {{"x", small[0].x}, {"x", small[1].x}};
    const fl_data_named_tensor y[2] = {{"y", small[0].y}, {"y", small[1].y}};
    return fl_graph_save_onnx(small[0].g, test_file("net.onnx"), .state = &small_state, .inputs = in,
                              .n_inputs = 1, .outputs = y, .n_outputs = 1, .other = small[1].g,
                              .other_inputs = in + 1, .other_outputs = y + 1);
}

TEST(every_allocation_fails) {
    fl_nn_module *net = NULL;
    fl_scope s = fl_scope_begin();
    test_errors_return();
    REQUIRE(small_net(&small[0], &net, 2, false, false) && small_net(&small[1], &net, 3, false, false));
    CHECK(fl_nn_state_add_module(&small_state, "", net)); /* weights that are copied when they are written */
    CHECK(save_small());
    fl_heap_use(heap_fn, NULL);
    CHECK(sweep_heap(save_small, false) > 10);
    CHECK(sweep_heap(save_small, true) > 10);
    fl_heap_use(NULL, NULL);
    fl_nn_state_free(&small_state);
    for (int i = 0; i < 2; i++) recording_free(&small[i]);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(what_cannot_be_written) {
    recording r[3];
    fl_nn_module *net = NULL, *norm = NULL, *trained = NULL;
    fl_scope s = fl_scope_begin();
    test_errors_return();
    REQUIRE(small_net(&r[0], &net, 2, false, false) && small_net(&r[1], &norm, 3, true, false));
    REQUIRE(small_net(&r[2], &trained, 3, true, true));
    CHECK(!fl_graph_save_onnx(r[0].g, "/no/such/folder/net.onnx"));
    CHECK_ERROR("fl_graph_save_onnx: cannot open /no/such/folder/net.onnx.data.part");
    CHECK(!fl_graph_save_onnx(r[0].g, test_file("net.onnx"), .other = r[1].g));
    CHECK_ERROR("fl_graph_save_onnx: the recordings differ in more than sizes");
    const fl_data_named_tensor twice[2] = {{"y", r[0].y}, {"z", r[0].y}}, nameless = {NULL, r[0].x};
    CHECK(!fl_graph_save_onnx(r[0].g, test_file("net.onnx"), .outputs = twice, .n_outputs = 2));
    CHECK_ERROR("fl_graph_save_onnx: 'z' and 'y' are the same memory");
    CHECK(!fl_graph_save_onnx(r[0].g, test_file("net.onnx"), .inputs = &nameless, .n_inputs = 1));
    CHECK_ERROR("fl_graph_save_onnx: input 0 has no name");
    CHECK(!fl_graph_save_onnx(r[0].g, test_file("net.onnx"), .n_inputs = 1));
    CHECK_ERROR("fl_graph_save_onnx: got 1 inputs, and no array of them");
    CHECK(!fl_graph_save_onnx(r[2].g, test_file("net.onnx")));
    CHECK_ERROR("the step writes its state 'state0': record it in evaluation mode");
    CHECK(access(test_file("net.onnx"), R_OK) != 0); /* nothing is left */
    for (int i = 0; i < 3; i++) recording_free(&r[i]);
    fl_nn_free(net), fl_nn_free(norm), fl_nn_free(trained);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
