/* test_onnx.c - steps written as ONNX models

   With ONNX=folder models are written there, with inputs and what fl computes for them, for
   tests/python/test_onnx.py, which runs them in ONNX Runtime. */
#include "../bench/models/model.h"
#include "../fl_backend.h"
#include "../fl_export.h"
#include "test.h"

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

/* The model with the sizes of a recording, and with free ones; checked with other sizes. last: channels last;
   sizes: of the dims of inputs that are free. */
static void check_model(const model *m, bool last, bool sizes) {
    const int64_t batches[3] = {2, 3, 5}, change[3] = {0, sizes ? -1 : 0, sizes ? -3 : 0};
    model_preset p = *model_preset_find(m, "tiny");
    recording r[2];
    fl_tensor *x[3];
    fl_nn_state state = {0};
    fl_scope s = fl_scope_begin();
    fl_seed(1);
    p.plain = true;
    fl_nn_module *net = m->build(&p);
    REQUIRE(net);
    fl_nn_train(net, false);
    const int64_t size = p.size;
    if (last) fl_nn_channels_last(net);
    for (int i = 0; i < 3; i++) {
        p.batch = batches[i], p.size = size + change[i];
        REQUIRE(x[i] = m->batch(&p).t[0]);
        if (last) x[i] = fl_channels_last(x[i]);
    }
    REQUIRE(record(&r[0], net, x[0]) && record(&r[1], net, x[1]));
    REQUIRE(fl_nn_state_add_module(&state, "", net));
    const fl_data_named_tensor in[2] = {{"x", r[0].x}, {"x", r[1].x}}, out[2] = {{"y", r[0].y}, {"y", r[1].y}};
    char name[64];
    snprintf(name, sizeof name, "%s%s", m->name, last ? "_last" : "");
    CHECK(fl_graph_save_onnx(r[0].g, file(name, ".onnx"), .state = &state, .inputs = in, .n_inputs = 1,
                             .outputs = out, .n_outputs = 1, .other = r[1].g, .other_inputs = in + 1,
                             .other_outputs = out + 1, .sizes = "batch length"));
    for (int i = 0; getenv("ONNX") && i < 3; i++) CHECK(write_case(name, i, net, x[i]));
    snprintf(name, sizeof name, "%s%s_fixed", m->name, last ? "_last" : "");
    CHECK(fl_graph_save_onnx(r[0].g, file(name, ".onnx"), .state = &state, .inputs = in, .n_inputs = 1,
                             .outputs = out, .n_outputs = 1, .embed = true));
    if (getenv("ONNX")) CHECK(write_case(name, 0, net, x[0]));
    fl_nn_state_free(&state);
    for (int i = 0; i < 2; i++) recording_free(&r[i]);
    fl_nn_free(net);
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

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
