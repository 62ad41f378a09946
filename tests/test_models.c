/* test_models.c - the models of bench/models: parameters, losses against PyTorch's, layouts

   A rate and the losses of ten steps of each tiny preset stand in tests/golden/models.tsv, written
   by tests/models.py, which makes the same weights and batches by the same formulas. */
#include "../fl_backend.h"
#include "../bench/models/model.h"
#include "../kernels/cpu/bf16.h"
#include "test.h"

enum { STEPS = 10 };

/* ---- a backend of tensors without numbers: the parameters of models that would not fit ---- */

static bool nothing_to_do(const fl_backend *self, const fl_call *c) {
    (void)self, (void)c;
    return true;
}

static bool nothing_to_make(const fl_backend *self, fl_tensor *out, const fl_mem_info *info) {
    (void)self, (void)out, (void)info;
    return true;
}

static bool any_view(const fl_backend *self, fl_tensor *out, fl_tensor *in) {
    (void)self, (void)out, (void)in;
    return true;
}

static void use_shapes_only(void) {
    fl_backend b = {.name = "shapes", .make = nothing_to_make, .view = any_view};
    for (int i = 1; i < FL_MAX_OPS; i++) b.op[i] = nothing_to_do;
    CHECK(fl_backend_use(&b, NULL));
    CHECK(fl_backend_set_default("shapes"));
}

TEST(parameters_of_the_full_models) {
    use_shapes_only();
    for (int i = 0; models[i]; i++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *net = models[i]->build(&models[i]->preset[0]);
        CHECK_STR(models[i]->preset[0].name, "cpu");
        if (!CHECK_EQ_INT(fl_nn_count(net), models[i]->parameters))
            printf("  %s\n", models[i]->name);
        fl_nn_free(net);
        fl_scope_end(&s);
    }
    CHECK(fl_mem_stats_of(NULL).peak_in_use < 1 << 20);
}

/* ---- training ---- */

static bool ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* As weight() of tests/models.py. */
static bool fill_by_formula(const char *path, fl_var *p, fl_tensor *buffer, void *user) {
    (void)buffer, (void)user;
    if (!p) return true;
    const fl_shape s = fl_shape_of(fv_value(p));
    const int64_t n = fl_shape_numel(s);
    const double bound = s.ndim > 1 ? sqrt(3 / (double)(n / s.dim[0])) : 0.1;
    const double centre = s.ndim == 1 && ends_in(path, "weight") ? 1 : 0;
    fl_scope scope = fl_scope_begin();
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; v && i < n; i++) v[i] = (float)(centre + bound * model_number(path, i));
    const bool ok = v && fl_assign(fv_value(p), fl_from_host(v, s, FL_F32));
    free(v);
    fl_scope_end(&scope);
    return ok;
}

/* The losses of STEPS steps of the tiny preset, from weights by the formula. */
static void train(const model *m, bool channels_last, double rate, double *losses) {
    model_preset p = *model_preset_find(m, "tiny");
    p.plain = true;
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = m->build(&p);
    CHECK(fl_nn_visit_tensors(net, fill_by_formula, NULL));
    if (channels_last) CHECK(fl_nn_channels_last(net));
    const model_batch batch = m->batch(&p);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = rate, .momentum = 0.9);
    for (int i = 0; i < STEPS; i++) {
        fl_scope step = fl_scope_begin();
        fl_var *loss = m->loss(net, &p, &batch);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        losses[i] = loss ? fl_item(fv_value(loss)) : NAN;
        fl_scope_end(&step);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* The rate and PyTorch's losses of that model; false if the file lacks them. */
static bool golden_losses(const char *name, double *rate, double *losses) {
    static const char *const paths[] = {"tests/golden/models.tsv", "golden/models.tsv",
                                        "../tests/golden/models.tsv"};
    char word[64];
    FILE *f = NULL;
    for (int i = 0; i < 3 && !f; i++) f = fopen(paths[i], "r");
    bool found = false;
    while (f && !found && fscanf(f, "%63s", word) == 1) {
        found = !strcmp(word, name);
        if (fscanf(f, "%lf", rate) != 1) found = false;
        for (int i = 0; i < STEPS; i++)
            if (fscanf(f, "%lf", &losses[i]) != 1) found = false;
    }
    if (f) fclose(f);
    return found;
}

/* With products of rounded operands, by whatever the processor has for them: within 2 % of the first loss.
   Batch norm of a few pixels and the matching of boxes magnify what rounding changes; there it is 6 %. */
static void check_rounded_losses(const model *m, double rate, const double *want) {
    const double part = m == &model_resnet50 || m == &model_detr ? 0.06 : 0.02;
    double losses[STEPS];
    CHECK(fl_set_matmul_precision(FL_BF16));
    train(m, true, rate, losses);
    CHECK(fl_set_matmul_precision(FL_F32));
    for (int i = 0; i < STEPS; i++)
        if (!CHECK_NEAR(losses[i], want[i], part * want[0])) printf("  %s in bf16, step %d\n", m->name, i);
}

static void check_losses(const model *m) {
    double rate, losses[STEPS], want[STEPS];
    /* dcgan: a unit's input in step 5 is 0 but for rounding, which decides 0.0025 of later losses */
    const double part = m == &model_dcgan ? 3e-3 : 1e-4;
    REQUIRE(golden_losses(m->name, &rate, want));
    train(m, false, rate, losses);
    for (int i = 0; i < STEPS; i++) {
        if (CHECK_NEAR(losses[i], want[i], part * fmax(1, want[i]))) continue;
        printf("  %s, step %d\n", m->name, i);
        break;
    }
    CHECK(losses[STEPS - 1] < 0.9 * losses[0]);
    if (strcmp(fl_cpu_bf16(), "f32")) check_rounded_losses(m, rate, want);
}

TEST(alexnet) { check_losses(&model_alexnet); }
TEST(vgg16) { check_losses(&model_vgg16); }
TEST(resnet50) { check_losses(&model_resnet50); }
TEST(resnet34) { check_losses(&model_resnet34); }
TEST(bert) { check_losses(&model_bert); }
TEST(asr) { check_losses(&model_asr); }
TEST(vit) { check_losses(&model_vit); }
TEST(lm) { check_losses(&model_lm); }
TEST(detr) { check_losses(&model_detr); }
TEST(capsule) { check_losses(&model_capsule); }
TEST(gpt_small) { check_losses(&model_gpt_small); }
TEST(unet) { check_losses(&model_unet); }
TEST(dcgan) { check_losses(&model_dcgan); }
TEST(wgan) { check_losses(&model_wgan); }
TEST(vit_tiny) { check_losses(&model_vit_tiny); }
TEST(lstm_lm) { check_losses(&model_lstm_lm); }

/* ---- an encoder and a decoder, of this test only ---- */

enum { WORDS = 50, WIDTH = 32 };

/* Words [n, s] and what was said so far [n, t] -> logits [n, t, WORDS] */
static fl_vars translate(fl_nn_module *m, fl_vars in) {
    fl_nn_module *const *child = m->child;
    fl_var *memory = fl_nn_forward(child[2], fl_nn_forward(child[0], in.v[0]));
    const fl_vars said = FL_VARS(fl_nn_forward(child[1], in.v[1]), memory);
    return FL_VARS(fl_nn_forward(child[4], fl_nn_forward_vars(child[3], said).v[0]));
}

static fl_nn_module *translator_build(const model_preset *p) {
    (void)p;
    fl_nn_module *net = fl_nn_function("Translator", translate, NULL, NULL);
    fl_nn_add(net, "source", fl_nn_embedding(WORDS, WIDTH));
    fl_nn_add(net, "target", fl_nn_embedding(WORDS, WIDTH));
    fl_nn_add(net, "encoder", fl_nn_transformer(WIDTH, 4, 64));
    fl_nn_add(net, "decoder", fl_nn_transformer_decoder(WIDTH, 4, 64, .activation = fv_gelu,
                                                        .norm_first = true, .causal = true));
    fl_nn_add(net, "output", fl_nn_linear(WIDTH, WORDS));
    return net;
}

static model_batch translator_batch(const model_preset *p) { return model_words(p, WORDS); }

static fl_var *translator_loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    const int64_t n = p->batch * (p->size - 1);
    fl_tensor *said = fl_slice(b->t[1], 1, 0, -1, 1), *next = fl_slice(b->t[1], 1, 1, p->size, 1);
    fl_var *y = fl_nn_forward_vars(net, FL_VARS(fv_const(b->t[0]), fv_const(said))).v[0];
    return fv_cross_entropy(fv_reshape(y, FL_SHAPE(n, WORDS)), fl_reshape(next, FL_SHAPE(n)));
}

static const model model_translator = {
    .name = "translator",
    .preset = {{"tiny", 2, 12, true, false}},
    .build = translator_build,
    .batch = translator_batch,
    .loss = translator_loss,
};

TEST(translator) { check_losses(&model_translator); }

/* Word by word behind a cache it says what it says of all at once. */
TEST(translator_with_cache_and_without) {
    fl_scope s = fl_scope_begin();
    const model_preset *p = &model_translator.preset[0];
    fl_nn_module *net = translator_build(p);
    CHECK(fl_nn_visit_tensors(net, fill_by_formula, NULL));
    const model_batch b = translator_batch(p);
    fl_nn_module *whole = net->child[3];
    fl_var *memory = fl_nn_forward(net->child[2], fl_nn_forward(net->child[0], fv_const(b.t[0])));
    fl_var *said = fl_nn_forward(net->child[1], fv_const(b.t[1]));
    fl_tensor *want = fv_value(fl_nn_forward_vars(whole, FL_VARS(said, memory)).v[0]);
    fl_nn_cache *cache = fl_nn_cache_new(whole, p->batch, p->size);
    for (int64_t i = 0; i < p->size; i++) {
        const fl_vars in = FL_VARS(fv_slice(said, 1, i, i + 1, 1), memory);
        fl_tensor *y = fv_value(fl_nn_forward_cached(whole, in, cache).v[0]);
        fl_tensor *far = fl_abs(fl_sub(y, fl_slice(want, 1, i, i + 1, 1)));
        CHECK_NEAR(fl_item(fl_amax(far, FL_ALL_AXES)), 0, 4e-6);
    }
    fl_nn_cache_free(cache);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

TEST(channels_last_trains_alike) {
    const model *const nets[] = {&model_alexnet, &model_resnet50, &model_vit};
    for (int k = 0; k < 3; k++) {
        double first[STEPS], last[STEPS];
        train(nets[k], false, 0.002, first);
        train(nets[k], true, 0.002, last);
        /* 3e-6 but for a relu at its kink: with the rate moved in its seventh digit, resnet50's
           differ by 2e-6 or by 1.1e-4 */
        for (int i = 0; i < STEPS; i++) CHECK_NEAR(last[i], first[i], 3e-4 * fmax(1, first[i]));
    }
}

/* As the benchmarks train: with dropout and layer drop, which change the loss; nothing waits for a device. */
TEST(dropout_and_layer_drop) {
    const char *only = getenv("MODELS"); /* for backends that are slow: make cuda-check */
    for (int i = 0; models[i]; i++) {
        const model *m = models[i];
        const model_preset *p = model_preset_find(m, "tiny");
        if (only && !strstr(only, m->name)) continue;
        fl_scope s = fl_scope_begin();
        fl_seed(1);
        fl_nn_module *net = m->build(p);
        const model_batch batch = m->batch(p);
        fl_optim *adam = fl_optim_adam(fl_nn_parameters(net), .lr = 1e-3);
        const int64_t reads = fl_host_reads();
        CHECK(fl_backward(m->loss(net, p, &batch)));
        CHECK(fl_optim_clip(adam, 1) && fl_optim_step(adam));
        /* lm's adaptive softmax looks for the rows of each band, detr pairs boxes on the host. */
        const bool reads_values = m == &model_lm || m == &model_detr;
        if (!CHECK((fl_host_reads() != reads) == reads_values)) printf("  %s\n", m->name);
        fl_optim_free(adam);
        fl_nn_train(net, false);
        const double once = fl_item(fv_value(m->loss(net, p, &batch)));
        CHECK_NEAR(fl_item(fv_value(m->loss(net, p, &batch))), once, 0);
        fl_nn_free(net);
        fl_scope_end(&s);
        CHECK_NO_ERROR();
    }
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
