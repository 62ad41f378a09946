/* test_precision.c - mixed precision: narrow operands of records, casts of modules, ops by policy, loss
   scaling, and that training comes to the same */
#include "../fl_backend.h"
#include "../examples/digits.h"
#include "../bench/models/model.h"
#include "test.h"
#include <pthread.h>

/* ---- records keep narrow operands where a slot takes them; statistics are f32 ---- */

static int seen; /* calls of the slots below */

/* A slot of a device that reads and writes halves: it checks what it gets, and composes. */
static bool takes_halves(const fl_backend *self, const fl_call *c) {
    static const struct { const char *op, *in, *out; } rows[] = { /* h: bf16, w: f32, i: i64 */
        {"layer_norm", "hww", "hww"},       {"layer_norm_grad", "hwwwh", "hww"},
        {"batch_norm", "hwwhww", "h"},      {"batch_norm_grad", "hwwwhh", "hwwh"},
        {"ctc", "hiii", "w"},               {"ctc_grad", "hiiiww", "h"},
    };
    (void)self;
    fl_scope s = fl_scope_begin();
    fl_call wide = *c;
    for (int r = 0; r < 6; r++) {
        if (strcmp(rows[r].op, fl_op_get_info(c->op)->name)) continue;
        seen |= 1 << r;
        for (int i = 0; i < c->n_in; i++) {
            const char k = rows[r].in[i];
            if (!c->in[i]->weak) CHECK(c->in[i]->dtype == (k == 'h' ? FL_BF16 : k == 'w' ? FL_F32 : FL_I64));
            if (c->in[i]->dtype == FL_BF16) wide.in[i] = fl_cast(c->in[i], FL_F32);
        }
        for (int i = 0; i < c->n_out; i++)
            if (c->out[i]) CHECK(c->out[i]->dtype == (rows[r].out[i] == 'h' ? FL_BF16 : FL_F32));
    }
    const bool ok = fl_call_compose(&wide);
    fl_scope_end(&s);
    return ok;
}

enum { NORMS = 5, NORM_RESULTS = 4 * NORMS };

/* Results and gradients of each norm and of ctc in bf16. */
static void narrow_work(fl_tensor **out) {
    fl_rng rng = {3, 0};
    fl_tensor *steps = fl_full(FL_SHAPE(2), 5, FL_I64), *lengths = fl_full(FL_SHAPE(2), 2, FL_I64);
    fl_tensor *labels = fl_add(fl_reshape(fl_arange(0, 4, 1, FL_I64), FL_SHAPE(2, 2)), fl_int(1));
    for (int i = 0; i < NORMS; i++) {
        fl_shape shape = i < 4 ? FL_SHAPE(5, 2, 6, 6) : FL_SHAPE(5, 2, 6);
        fl_var *x = fv_param(fl_normal(shape, 0.5, 2, FL_BF16, &rng));
        fl_var *add = fv_param(fl_normal(shape, 0, 1, FL_BF16, &rng));
        fl_var *w = fv_param(fl_normal(FL_SHAPE(i < 2 ? 6 : 2), 1, 0.2, FL_F32, &rng));
        fl_var *y = i == 0   ? fv_layer_norm(x, 1, w, NULL, 1e-5)
                    : i == 1 ? fv_rms_norm(x, 1, w, 1e-5)
                    : i == 2 ? fv_batch_norm(x, w, w, .train = true)
                    : i == 3 ? fv_batch_norm_add(x, w, w, add, .train = true, .relu = true)
                             : fv_ctc_loss(fv_log_softmax(x, 2), labels, steps, lengths);
        CHECK(y && y->value->dtype == FL_BF16);
        CHECK(fl_backward(y, .grad = y ? fl_full_like(y->value, 0.5) : NULL));
        out[4 * i] = fv_value(y);
        out[4 * i + 1] = fv_grad(x);
        out[4 * i + 2] = fv_grad(w);
        out[4 * i + 3] = fv_grad(add);
    }
}

/* A part of a channels-last image stays one when it is cast, so that what takes it needs no copy. */
TEST(a_cast_part_of_an_image_keeps_its_layout) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_channels_last(fl_uniform(FL_SHAPE(2, 24, 5, 6), -1, 1, FL_BF16, &(fl_rng){1, 0}));
    fl_tensor *part = fl_narrow(x, 1, 8, 16), *wide = fl_cast(part, FL_F32);
    CHECK(fl_is_channels_last(wide) && !fl_is_contiguous(wide));
    CHECK(fl_item(fl_all(fl_eq(wide, fl_cast(fl_contiguous(part), FL_F32)), FL_ALL_AXES)) == 1);
    fl_scope_end(&s);
}

TEST(slots_get_narrow_operands) {
    static const char *const ops[] = {"layer_norm", "layer_norm_grad", "batch_norm",
                                      "batch_norm_grad", "ctc", "ctc_grad"};
    fl_backend mock = *fl_backend_cpu(), old;
    fl_tensor *want[NORM_RESULTS] = {0}, *got[NORM_RESULTS] = {0};
    fl_scope s = fl_scope_begin();
    narrow_work(want);
    for (int i = 0; i < 6; i++)
        REQUIRE(fl_backend_set(&mock, fl_op_by_name(ops[i]), takes_halves, FL_SLOT_NARROW));
    REQUIRE(fl_backend_use(&mock, &old));
    narrow_work(got);
    REQUIRE(fl_backend_use(&old, NULL));
    CHECK_EQ_INT(seen, 63);
    for (int i = 0; i < NORM_RESULTS; i++) {
        if (!want[i] && !got[i]) continue;
        REQUIRE(want[i] && got[i] && want[i]->dtype == got[i]->dtype);
        fl_tensor *off = fl_abs(fl_sub(fl_cast(got[i], FL_F32), fl_cast(want[i], FL_F32)));
        const double size = fl_item(fl_amax(fl_abs(fl_cast(want[i], FL_F32)), FL_ALL_AXES));
        if (!CHECK(fl_item(fl_amax(off, FL_ALL_AXES)) <= 0.008 * (1 + size))) printf("  result %d\n", i);
    }
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* ---- modules in another dtype, on another backend, from files of another dtype ---- */

/* An embedding whose weight is the last layer's too, a convolution channels-last, and norms. */
static fl_nn_module *mixed_net(void) {
    fl_nn_module *conv = fl_nn_conv2d(4, 1, 3, .pad = FL_SAME), *last = fl_nn_linear(8, 12, .no_bias = true);
    fl_nn_channels_last(conv);
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_embedding(12, 8), fl_nn_view(FL_SHAPE(-1, 1, 6, 8)),
        fl_nn_conv2d(1, 4, 3, .pad = FL_SAME), fl_nn_batch_norm2d(4), conv,
        fl_nn_view(FL_SHAPE(-1, 6, 8)), fl_nn_layer_norm(FL_SHAPE(8)), last);
    fv_drop(last->param[0].var);
    last->param[0].var = fv_keep(fl_nn_get_param(net, "0.weight"));
    return net;
}

static fl_var *mixed_loss(fl_nn_module *net) {
    fl_rng rng = {5, 0};
    const char *backend = fl_backend_name(fv_value(fl_nn_get_param(net, "0.weight")));
    fl_tensor *x = fl_to(fl_randint(FL_SHAPE(3, 6), 0, 12, &rng), backend);
    fl_var *y = fl_nn_forward(net, fv_const(x));
    return fv_cross_entropy(fv_cast(fv_reshape(y, FL_SHAPE(18, 12)), FL_F32), fl_reshape(x, FL_SHAPE(18)));
}

TEST(a_module_in_another_dtype) {
    static const fl_dtype dtypes[] = {FL_BF16, FL_F16, FL_F64, FL_F32};
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = mixed_net();
    const double loss = fl_item(fv_value(mixed_loss(net)));
    for (int k = 0; k < 4; k++) {
        const fl_dtype d = dtypes[k], wide = fl_dtype_wide(d);
        REQUIRE(fl_backward(mixed_loss(net)));
        REQUIRE(fl_nn_cast(net, d));
        CHECK(fl_nn_get_param(net, "0.weight") == fl_nn_get_param(net, "7.weight"));
        CHECK(!fv_grad(fl_nn_get_param(net, "0.weight")));
        const fl_tensor *conv = fv_value(fl_nn_get_param(net, "4.weight"));
        CHECK(conv->dtype == d && conv->stride[1] == 1);
        CHECK(fv_value(fl_nn_get_param(net, "6.weight"))->dtype == wide);
        CHECK(fl_nn_get_buffer(net, "3.running_var")->dtype == wide);
        CHECK(fl_nn_get_buffer(net, "3.num_batches_tracked")->dtype == FL_I64);
        fl_var *now = mixed_loss(net);
        CHECK_NEAR(fl_item(fv_value(now)), loss, d == FL_BF16 ? 0.05 : 0.01);
        CHECK(fl_backward(now));
        const fv_list p = fl_nn_parameters(net);
        for (int i = 0; i < p.n; i++)
            CHECK(fv_grad(p.v[i]) && fv_grad(p.v[i])->dtype == p.v[i]->value->dtype);
    }
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(a_module_on_another_backend) {
    fl_backend other = *fl_backend_cpu();
    other.name = "other";
    REQUIRE(fl_backend_use(&other, NULL));
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = mixed_net();
    const double loss = fl_item(fv_value(mixed_loss(net)));
    REQUIRE(fl_nn_to(net, "other"));
    CHECK(fl_nn_get_param(net, "0.weight") == fl_nn_get_param(net, "7.weight"));
    CHECK_STR(fl_backend_name(fl_nn_get_buffer(net, "3.running_var")), "other");
    fl_var *now = mixed_loss(net);
    CHECK_NEAR(fl_item(fv_value(now)), loss, 1e-5);
    CHECK(fl_backward(now));
    test_errors_return();
    CHECK(!fl_nn_to(net, "moon"));
    CHECK_ERROR("no backend 'moon'");
    CHECK(!fl_nn_to(net, NULL));
    CHECK_ERROR("fl_nn_to: the backend is NULL");
    CHECK(!fl_nn_cast(NULL, FL_BF16));
    CHECK_ERROR("fl_nn_cast: the module is NULL");
    CHECK(!fl_nn_cast(net, FL_I64));
    CHECK_ERROR("fl_nn_cast: dtype must be a float or registered, got i64");
    CHECK_STR(fl_backend_name(fv_value(fl_nn_get_param(net, "0.weight"))), "other");
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* Sums of a module's output and of its gradients after a step of the optimizer. */
static bool module_figures(fl_nn_module *m, fl_tensor *x, fl_tensor *second, fl_optim *o, double figure[3]) {
    fl_seed(7);
    fl_var *in = fl_dtype_is_float(x->dtype) ? fv_param(x) : fv_const(x);
    fl_var *y = second ? fl_nn_forward_vars(m, FL_VARS(in, fv_const(second))).v[0] : fl_nn_forward(m, in);
    fl_var *loss = y ? fv_sum(fv_square(y), FL_ALL_AXES) : NULL;
    if (!loss || (loss->requires_grad && !fl_backward(loss))) return false;
    figure[0] = fl_item(loss->value);
    figure[1] = fv_grad(in) ? fl_item(fl_sum(fl_square(fv_grad(in)), FL_ALL_AXES)) : 0;
    figure[2] = 0;
    if (o && (!fl_optim_clip(o, 0.5) || !fl_optim_step(o))) return false;
    const fv_list p = fl_nn_parameters(m);
    for (int i = 0; i < p.n; i++) figure[2] += fl_item(fl_sum(fl_square(p.v[i]->value), FL_ALL_AXES));
    return !fl_error();
}

/* Layers make their constants on the backend of x, optimizers their state on that of the parameters. */
TEST(layers_off_the_default_backend) {
    fl_backend other = *fl_backend_cpu();
    other.name = "other";
    REQUIRE(fl_backend_use(&other, NULL));
    test_errors_return();
    fl_scope s = fl_scope_begin();
    const struct {
        const char *name;
        fl_nn_module *m;
        int x, second; /* of the inputs below; 0: none */
    } rows[] = {{"dropout", fl_nn_dropout(0.5), 1, 0},
                {"drop_path", fl_nn_drop_path(0.5), 1, 0},
                {"rrelu", fl_nn_rrelu(0.1, 0.3, NULL), 1, 0},
                {"prelu", fl_nn_prelu(3), 1, 0},
                {"glu", fl_nn_glu(-1), 1, 0},
                {"position", fl_nn_position(5, 4), 1, 0},
                {"sinusoid", fl_nn_sinusoid(4, 2), 1, 0},
                {"attention relative", fl_nn_attention(4, 2, .relative = 4, .dropout = 0.2), 1, 0},
                {"attention buckets", fl_nn_attention(4, 2, .buckets = 4, .max_distance = 8), 1, 0},
                {"attention alibi", fl_nn_attention(4, 2, .alibi = true, .causal = true), 1, 0},
                {"attention rotary", fl_nn_attention(4, 2, .rotary = true, .window = 2, .softcap = 3), 1, 0},
                {"transformer", fl_nn_transformer(4, 2, 8, .dropout = 0.1, .gated = true), 1, 0},
                {"capsules", fl_nn_capsules(3, 4, 2, 5), 1, 0},
                {"batch_norm", fl_nn_batch_norm1d(3), 1, 0},
                {"group_norm", fl_nn_group_norm(1, 3), 1, 0},
                {"instance_norm", fl_nn_instance_norm(3), 1, 0},
                {"normalize", fl_nn_normalize(FL_AXES(-1)), 1, 0},
                {"rnn", fl_nn_rnn(4, 3, .layers = 2, .dropout = 0.3), 1, 0},
                {"lstm", fl_nn_lstm(4, 3, .bidirectional = true), 1, 0},
                {"gru", fl_nn_gru(4, 3), 1, 0},
                {"conv1d", fl_nn_conv1d(3, 4, 3, .pad = 1), 1, 0},
                {"conv_transpose1d", fl_nn_conv_transpose1d(3, 4, 3, .stride = 2), 1, 0},
                {"pad", fl_nn_pad(FL_PAD_REFLECT, .low = {0, 0, 1}, .high = {0, 0, 2}), 1, 0},
                {"pool1d", fl_nn_pool1d(2), 1, 0},
                {"adaptive_max_pool", fl_nn_adaptive_max_pool(FL_SHAPE(3)), 1, 0},
                {"weight_norm", fl_nn_weight_norm(fl_nn_linear(4, 2), "weight", 0), 1, 0},
                {"bilinear", fl_nn_bilinear(4, 4, 2), 1, 1},
                {"embedding", fl_nn_embedding(9, 4, .padding = 2), 2, 0},
                {"adaptive_embedding", fl_nn_adaptive_embedding(8, FL_SHAPE(3, 5, 9), .divide = 2), 2, 0},
                {"adaptive_softmax", fl_nn_adaptive_softmax(4, FL_SHAPE(2, 4, 9), .divide = 2), 3, 2}};
    fl_rng rng = {5, 0};
    fl_tensor *float_x = fl_uniform(FL_SHAPE(2, 3, 4), -1, 1, FL_F32, &rng);
    fl_tensor *words = fl_arange(0, 9, 1, FL_I64);
    fl_tensor *lines = fl_uniform(FL_SHAPE(9, 4), -1, 1, FL_F32, &rng);
    fl_tensor *in[] = {NULL, float_x, words, lines};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fl_nn_module *m = rows[i].m;
        fl_tensor *x = in[rows[i].x], *second = rows[i].second == 1 ? x : in[rows[i].second];
        double here[3], there[3];
        fl_scope each = fl_scope_begin();
        bool ok = m && module_figures(m, x, second, NULL, here);
        ok = ok && fl_nn_to(m, "other") &&
             module_figures(m, fl_to(x, "other"), second ? fl_to(second, "other") : NULL, NULL, there);
        for (int k = 0; ok && k < 3; k++) ok = fabs(here[k] - there[k]) <= 1e-4 * (1 + fabs(here[k]));
        if (!ok) printf("%s: %s\n", rows[i].name, fl_error() ? fl_error() : "other values");
        CHECK(ok);
        fl_error_clear();
        fl_scope_end(&each);
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(optimizers_off_the_default_backend) {
    static const char *const names[] = {"sgd", "adam", "adamw", "adamax", "nadam", "adadelta", "adagrad",
                                        "rmsprop", "lamb", "novograd", "lion", "muon"};
    fl_backend other = *fl_backend_cpu();
    other.name = "other";
    REQUIRE(fl_backend_use(&other, NULL));
    test_errors_return();
    for (int k = 0; k < 12; k++) {
        double figure[2][3] = {{0}};
        fl_scope s = fl_scope_begin();
        for (int there = 0; there < 2; there++) {
            fl_seed(3);
            fl_nn_module *m = k == 11 ? fl_nn_linear(4, 3, .no_bias = true) /* muon is for matrices */
                                      : fl_nn_sequential(fl_nn_linear(4, 3), fl_nn_layer_norm(FL_SHAPE(3)));
            fl_tensor *x = fl_uniform(FL_SHAPE(5, 4), -1, 1, FL_F32, NULL);
            if (there) CHECK(fl_nn_to(m, "other") && (x = fl_to(x, "other")));
            const fv_list p = fl_nn_parameters(m);
            fl_optim *o = k == 0   ? fl_optim_sgd(p, .lr = 0.1, .momentum = 0.9)
                          : k == 1 ? fl_optim_adam(p, .amsgrad = true)
                          : k == 2 ? fl_optim_adamw(p)
                          : k == 3 ? fl_optim_adamax(p)
                          : k == 4 ? fl_optim_nadam(p)
                          : k == 5 ? fl_optim_adadelta(p)
                          : k == 6 ? fl_optim_adagrad(p)
                          : k == 7 ? fl_optim_rmsprop(p, .centered = true)
                          : k == 8 ? fl_optim_lamb(p)
                          : k == 9 ? fl_optim_novograd(p)
                          : k == 10 ? fl_optim_lion(p)
                                    : fl_optim_muon(p);
            fl_optim_ema *e = fl_optim_ema_new(p, 0.9);
            for (int step = 0; step < 2; step++) {
                const bool ok = o && module_figures(m, x, NULL, o, figure[there]) && fl_optim_ema_update(e);
                if (!ok) printf("%s: %s\n", names[k], fl_error());
                CHECK(ok);
            }
            fl_error_clear();
            fl_optim_ema_free(e);
            fl_optim_free(o);
            fl_nn_free(m);
        }
        for (int i = 0; i < 3; i++) CHECK_NEAR(figure[1][i], figure[0][i], 1e-4);
        fl_scope_end(&s);
    }
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

static double param_sum(fl_nn_module *net, const char *path) {
    return fl_item(fl_sum(fl_cast(fv_value(fl_nn_get_param(net, path)), FL_F64), FL_ALL_AXES));
}

TEST(loading_converts_ties_and_ignores) {
    static const char file[] = "build/test_precision.safetensors";
    fl_scope s = fl_scope_begin();
    fl_seed(4);
    fl_nn_module *a = mixed_net(), *b = mixed_net();
    const double conv = param_sum(a, "2.weight"), tied = param_sum(a, "0.weight");
    test_errors_return();
    REQUIRE(fl_nn_save(a, file) && fl_nn_cast(b, FL_BF16));
    fl_data_file *f = fl_data_open_safetensors(file);
    CHECK(fl_data_find(f, "0.weight") >= 0 && fl_data_find(f, "7.weight") < 0);
    fl_data_close(f);
    const double before = param_sum(b, "2.weight");
    CHECK(!fl_nn_load(b, file));
    CHECK_ERROR("'0.weight' is bf16 [12, 8], but the file has f32 [12, 8]");
    CHECK(param_sum(b, "2.weight") == before);
    CHECK(fl_nn_load(b, file, .cast = true, .ignore = "nothing 2.*"));
    CHECK(param_sum(b, "2.weight") == before && fabs(param_sum(b, "7.weight") - tied) < 0.05);
    CHECK(fl_nn_load(b, file, .cast = true));
    CHECK_NEAR(param_sum(b, "2.weight"), conv, 0.02);
    /* Another net: the second name of the tied weight alone, and names that it lacks. */
    fl_tensor *w = fl_full(FL_SHAPE(12, 8), 2, FL_F32);
    fl_data_named_tensor some[] = {{"net.7.weight", w}, {"net.head.bias", w}};
    REQUIRE(fl_data_save_safetensors(file, some, 2, NULL, 0));
    CHECK(!fl_nn_load(a, file, .prefix = "net.", .ignore = "2.* 3.* 4.* 6.weigh?"));
    CHECK_ERROR("1 names missing: net.6.bias; 1 unexpected: net.head.bias");
    CHECK(param_sum(a, "0.weight") == tied);
    CHECK(fl_nn_load(a, file, .prefix = "net.", .ignore = " 2.* 3.*  4.* 6.* *.b*as"));
    CHECK(param_sum(a, "0.weight") == 192);
    remove(file);
    fl_nn_free(a);
    fl_nn_free(b);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* ---- ops by policy ---- */

TEST(policies_are_pytorchs) {
    static const struct { fl_autocast_policy policy; const char *ops; } rows[] = {
        {FL_AUTOCAST_NARROW, "matmul linear conv2d attention"},
        {FL_AUTOCAST_WIDE, "exp expm1 exp2 log log1p log2 log10 pow reciprocal rsqrt acos asin cosh sinh "
                           "tan softplus sum prod cumsum cumprod softmax log_softmax layer_norm "
                           "cross_entropy ctc"},
        {FL_AUTOCAST_WIDEST, "atan2"},
        {FL_AUTOCAST_NONE, "add mul relu gelu batch_norm max_pool2d where maximum"}};
    for (int r = 0; r < 4; r++)
        for (const char *p = rows[r].ops; *p; p += strspn(p, " ")) {
            char name[32] = "";
            memcpy(name, p, strcspn(p, " "));
            p += strlen(name);
            const fl_op op = fl_op_by_name(name);
            if (!CHECK(op && fl_autocast_get_policy(op) == rows[r].policy)) puts(name);
        }
}

static fl_var *gave[32];
static int n_gave;
static void give(fl_dtype want, fl_var *y) {
    gave[n_gave++] = y;
    if (!CHECK(y && y->value->dtype == want)) printf("  result %d\n", n_gave - 1);
}

/* Each listed kind of op, of f32 or of what the narrow ones gave. */
static void listed(fl_dtype n, fl_var *x, fl_var *w, fl_var *image, fl_var *kernel) {
    const fl_dtype wide = FL_F32;
    fl_tensor *target = fl_full(FL_SHAPE(6), 2, FL_I64);
    n_gave = 0;
    fl_var *y = fv_matmul(x, w);
    give(n, y);
    give(n, fv_linear(x, w, NULL));
    give(n, fv_linear_act(x, w, fv_reshape(fv_slice(w, 0, 0, 1, 1), FL_SHAPE(6)), FL_OP_gelu));
    give(n, fv_conv(image, kernel, NULL, .pad = {1}));
    give(n, fv_conv_transpose(image, kernel, NULL, .stride = {2}));
    give(n, fv_attention(x, w, w));
    give(n, fv_attention_packed(fv_reshape(image, FL_SHAPE(3, 2, 9, 1))));
    give(n, fv_einsum("ij,kj->ik", (fl_var *[]){x, w}, 2));
    give(n, fv_relu(y));
    give(n, fv_mul(y, y));
    give(wide, fv_add(y, x));
    give(wide, fv_exp(y));
    give(wide, fv_pow(y, fv_num(2)));
    give(wide, fv_softmax(y, 1));
    give(wide, fv_log_softmax(y, 1));
    give(wide, fv_sum(y, FL_AXES(0)));
    give(wide, fv_prod(y, FL_AXES(0)));
    give(wide, fv_cumsum(y, 0));
    give(wide, fv_cumprod(y, 0));
    give(wide, fv_logsumexp(y, FL_AXES(0)));
    give(wide, fv_norm(y, 2, FL_AXES(0)));
    give(wide, fv_cdist(y, y, 2));
    give(wide, fv_cosine_similarity(y, fv_relu(y), 1, 1e-8));
    give(wide, fv_layer_norm(y, 1, NULL, NULL, 1e-5));
    give(wide, fv_rms_norm(y, 1, NULL, 1e-5));
    give(wide, fv_group_norm(y, 2, NULL, NULL, 1e-5));
    give(wide, fv_cross_entropy(y, target));
    give(wide, fv_nll_loss(y, target));
    give(wide, fv_mse_loss(y, fv_relu(y), FL_MEAN));
    give(wide, fv_soft_margin_loss(y, fv_relu(y), FL_SUM));
    give(wide, fv_atan2(y, x));
    give(wide, fv_cross_entropy(y, fl_softmax(fv_value(y), 1))); /* probabilities as the target */
}

TEST(ops_run_as_their_policy_says) {
    static const fl_dtype dtypes[] = {FL_BF16, FL_F16, FL_F32};
    double f32[32];
    fl_rng rng = {9, 0};
    for (int k = 3; k-- > 0;) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_normal(FL_SHAPE(6, 6), 0, 1, FL_F32, &(fl_rng){1, 0}));
        fl_var *w = fv_param(fl_normal(FL_SHAPE(6, 6), 0, 1, FL_F32, &(fl_rng){2, 0}));
        fl_tensor *images = fl_normal(FL_SHAPE(3, 2, 3, 3), 0, 1, FL_F32, &(fl_rng){3, 0});
        fl_var *image = fv_param(fl_channels_last(images));
        fl_var *kernel = fv_param(fl_normal(FL_SHAPE(2, 2, 3, 3), 0, 1, FL_F32, &rng));
        rng = (fl_rng){9, 0};
        CHECK(fl_autocast_dtype() == FL_F32);
        REQUIRE(fl_autocast(dtypes[k]));
        CHECK(fl_autocast_dtype() == dtypes[k]);
        listed(dtypes[k], x, w, image, kernel);
        CHECK(gave[3]->value->stride[1] == 1); /* the casts keep channels-last */
        for (int i = 0; i < n_gave; i++) {
            CHECK(fl_backend_name(gave[i]->value) && gave[i]->requires_grad);
            const double v = fl_item(fl_sum(fl_cast(gave[i]->value, FL_F32), FL_ALL_AXES));
            if (k == 2) f32[i] = v;
            const double size = fabs(f32[i]) + (double)fl_numel(gave[i]->value);
            const bool product = i == 16 || i == 18; /* of six rounded numbers: far off */
            if (!product && !CHECK_NEAR(v, f32[i], 0.05 * size)) printf("  result %d\n", i);
            fv_zero_grad(x);
            CHECK(fl_backward(gave[i], .grad = fl_full_like(gave[i]->value, 0.1), .retain_graph = true));
        }
        CHECK(fv_grad(w)->dtype == FL_F32 && fv_grad(x)->dtype == FL_F32 && fv_grad(kernel)->dtype == FL_F32);
        fl_scope_end(&s);
        CHECK(fl_autocast_dtype() == FL_F32);
        CHECK_NO_ERROR();
    }
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

static int casts;
static void count_casts(const fl_call *c, void *user) {
    (void)user;
    casts += c->op == FL_OP_copy && c->in[0]->dtype == FL_F32 && c->out[0]->dtype == FL_BF16;
}

TEST(weights_are_cast_once) {
    fl_scope s = fl_scope_begin();
    fl_var *w = fv_param(fl_ones(FL_SHAPE(4, 4), FL_F32)), *x = fv_const(fl_ones(FL_SHAPE(4, 4), FL_F32));
    fl_call_hook(count_casts, NULL, NULL);
    for (int k = 1; k <= 2; k++) {
        fl_scope step = fl_scope_begin();
        casts = 0;
        CHECK(fl_autocast(FL_BF16));
        fl_var *y = fv_matmul(fv_matmul(fv_matmul(x, w), w), w);
        CHECK_EQ_INT(casts, 2); /* x, and w once for three products */
        fl_scope inner = fl_scope_begin();
        CHECK(fl_autocast(FL_BF16));
        fv_matmul(y, w);
        fl_scope_end(&inner);
        CHECK(fl_autocast_dtype() == FL_BF16);
        CHECK_EQ_INT(casts, 2);
        CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
        CHECK_NEAR(fl_item(fl_select(fl_select(fv_grad(w), 0, 0), 0, 0)), k * 192, 0);
        fl_no_grad(true);
        CHECK(fl_assign(fv_value(w), fl_num(1)));
        casts = 0;
        fl_var *z = fv_matmul(y, w); /* written: cast again, and not twice */
        CHECK(fv_matmul(y, w) && fl_item(fl_select(fl_select(z->value, 0, 0), 0, 0)) == 256);
        CHECK_EQ_INT(casts, 1);
        CHECK(fl_autocast(FL_F16) && fv_matmul(y, w)->value->dtype == FL_F16);
        CHECK(fl_autocast(FL_F32) && fv_matmul(x, w)->value->dtype == FL_F32);
        fl_scope_end(&step);
    }
    fl_call_hook(NULL, NULL, NULL);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(the_table_can_be_edited) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_ones(FL_SHAPE(4, 4), FL_F32)), *d = fv_param(fl_ones(FL_SHAPE(4, 4), FL_F64));
    fl_var *i = fv_const(fl_ones(FL_SHAPE(4, 4), FL_I64));
    test_errors_return();
    REQUIRE(fl_autocast(FL_BF16));
    CHECK(fv_matmul(x, d)->value->dtype == FL_F64 && fv_matmul(i, i)->value->dtype == FL_I64);
    CHECK(fv_matmul(x, i)->value->dtype == FL_BF16 && fv_exp(d)->value->dtype == FL_F64);
    CHECK(fl_autocast_set_policy(FL_OP_mul, FL_AUTOCAST_NARROW) &&
          fl_autocast_set_policy(FL_OP_matmul, FL_AUTOCAST_WIDE));
    fl_var *y = fv_mul(x, x);
    CHECK(y->value->dtype == FL_BF16 && fv_matmul(y, y)->value->dtype == FL_F32);
    CHECK(fl_autocast_set_policy(FL_OP_mul, FL_AUTOCAST_NONE) &&
          fl_autocast_set_policy(FL_OP_matmul, FL_AUTOCAST_NARROW));
    CHECK(!fl_autocast_set_policy(0, FL_AUTOCAST_WIDE));
    CHECK_ERROR("fl_autocast_set_policy: op 0 or policy 2 does not exist");
    CHECK(!fl_autocast_set_policy(FL_OP_mul, (fl_autocast_policy)4));
    CHECK_ERROR("policy 4 does not exist");
    CHECK(fl_autocast_get_policy(-1) == FL_AUTOCAST_NONE);
    CHECK(!fl_autocast(FL_F64));
    CHECK_ERROR("fl_autocast: dtype must be f16 or bf16, or f32 to turn it off, got f64");
    CHECK(!fv_matmul(NULL, x));
    CHECK_ERROR("an operand is NULL");
    fl_scope_end(&s);
}

static void *other_thread(void *dtype) {
    fl_scope s = fl_scope_begin();
    CHECK(fl_autocast_dtype() == FL_F32);
    fl_var *x = fv_param(fl_ones(FL_SHAPE(8, 8), FL_F32));
    CHECK(fv_matmul(x, x)->value->dtype == FL_F32);
    for (int i = 0; i < 20; i++) {
        CHECK(fl_autocast(*(fl_dtype *)dtype));
        CHECK(fl_backward(fv_sum(fv_matmul(x, x), FL_ALL_AXES)));
        CHECK(fv_matmul(x, x)->value->dtype == *(fl_dtype *)dtype);
    }
    fl_scope_end(&s);
    return NULL;
}

TEST(each_thread_has_its_own) {
    fl_dtype dtypes[] = {FL_BF16, FL_F16};
    pthread_t thread[2];
    CHECK(fl_autocast(FL_F16));
    for (int i = 0; i < 2; i++) REQUIRE(!pthread_create(&thread[i], NULL, other_thread, &dtypes[i]));
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    CHECK(fl_autocast_dtype() == FL_F16);
    CHECK_NO_ERROR();
}

/* ---- loss scaling ---- */

typedef struct scaled {
    fl_optim *optim;
    fl_optim_scaler *scaler;
    fl_var *w;
} scaled;

static scaled scaled_new(bool scaling) {
    fl_scope s = fl_scope_begin();
    scaled t = {.w = fv_keep(fv_param(fl_full(FL_SHAPE(8), 0.5, FL_F32)))};
    t.optim = fl_optim_adam(FV_LIST(t.w), .lr = 0.1);
    if (scaling) t.scaler = fl_optim_scaler_new(1024, .interval = 4);
    fl_scope_end(&s);
    return t;
}

static void scaled_free(scaled *t) {
    fl_optim_free(t->optim);
    fl_optim_scaler_free(t->scaler);
    fv_drop(t->w);
}

/* sum (w - i)^2, and where it is to overflow 1e38 times that. */
static bool scaled_step(scaled *t, int i, bool overflow) {
    fl_scope s = fl_scope_begin();
    fl_var *loss = fv_sum(fv_square(fv_sub(t->w, fv_num(i))), FL_ALL_AXES);
    if (overflow) loss = fv_mul(loss, fv_num(1e38));
    fl_optim_zero_grad(t->optim);
    bool ok = fl_backward(t->scaler ? fl_optim_scaler_scale(t->scaler, loss) : loss);
    if (t->scaler) ok = ok && fl_optim_scaler_unscale(t->scaler, t->optim) && fl_optim_clip(t->optim, 3);
    else ok = ok && fl_optim_clip(t->optim, 3);
    ok = ok && fl_optim_step(t->optim) && (!t->scaler || fl_optim_scaler_update(t->scaler));
    fl_scope_end(&s);
    return ok;
}

static double scale_of(const scaled *t) { return fl_item(t->scaler->scale); }

static bool same_numbers(fl_var *a, fl_var *b) {
    float x[8], y[8];
    return fl_to_host(fv_value(a), x, sizeof x) && fl_to_host(fv_value(b), y, sizeof y) &&
           !memcmp(x, y, sizeof x);
}

/* With an overflow in step k the same bits as without that step: the parameters, and what Adam counts. */
TEST(an_overflow_skips_its_step_and_no_other) {
    for (int k = 0; k < 12; k++) {
        scaled with = scaled_new(true), without = scaled_new(false);
        for (int i = 0; i < 12; i++) {
            const double before = scale_of(&with);
            REQUIRE(scaled_step(&with, i, i == k));
            if (i != k) REQUIRE(scaled_step(&without, i, false));
            if (!CHECK(same_numbers(with.w, without.w))) printf("  overflow in step %d, step %d\n", k, i);
            const int run = i < k ? i + 1 : i - k; /* good steps in a row */
            CHECK_NEAR(scale_of(&with), i == k ? before / 2 : run % 4 ? before : before * 2, 0);
        }
        scaled_free(&with);
        scaled_free(&without);
    }
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(a_scale_that_sinks_is_an_error) {
    fl_scope scope = fl_scope_begin();
    fl_optim_scaler *s = fl_optim_scaler_new(4, .least = 1, .interval = 1, .growth = 1e30);
    scaled t = scaled_new(false);
    test_errors_return();
    t.scaler = s;
    for (int i = 0; i < 2; i++) CHECK(scaled_step(&t, i, true)); /* 4, 2 */
    CHECK_NEAR(scale_of(&t), 1, 0);
    CHECK(!scaled_step(&t, 2, true));
    CHECK_ERROR("the scale is at its lower bound, 1, and gradients are still infinite or NaN");
    CHECK_NEAR(fl_item(fl_select(fv_value(t.w), 0, 0)), 0.5, 0);
    CHECK(scaled_step(&t, 0, false) && scale_of(&t) > 1e29);
    CHECK(!scaled_step(&t, 0, false) || scale_of(&t) > 1e29); /* squares of such gradients are infinite */
    while (scale_of(&t) > 1e30) CHECK(scaled_step(&t, 0, false));
    CHECK(!fl_optim_scaler_update(s));
    CHECK_ERROR("no gradients were unscaled since the last one");
    CHECK(!fl_optim_scaler_new(0, .growth = 0.5));
    CHECK_ERROR("growth 0.5");
    CHECK(!fl_optim_scaler_new(NAN));
    CHECK_ERROR("got init nan");
    CHECK(!fl_optim_scaler_new(1, .least = 2));
    CHECK_ERROR("got init 1, least 2");
    CHECK(!fl_optim_scaler_scale(s, NULL) && fl_error());
    fl_error_clear();
    CHECK(!fl_optim_scaler_unscale(NULL, t.optim) && fl_error());
    fl_error_clear();
    scaled_free(&t);
    fl_scope_end(&scope);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* Halves of any loss, f64, and two optimizers of which one overflows: each is its own. */
TEST(scaling_several_optimizers) {
    fl_scope scope = fl_scope_begin();
    scaled a = scaled_new(true), b = scaled_new(false);
    fl_var *half = fl_optim_scaler_scale(a.scaler, fv_const(fl_full(FL_SCALAR_SHAPE, 2000, FL_F16)));
    CHECK(half->value->dtype == FL_F32 && fl_item(half->value) == 2048000);
    fl_var *twice = fl_optim_scaler_scale(a.scaler, fv_const(fl_ones(FL_SCALAR_SHAPE, FL_F64)));
    CHECK(twice->value->dtype == FL_F64);
    fl_var *both = fv_add(fv_sum(a.w, FL_ALL_AXES), fv_mul(fv_sum(b.w, FL_ALL_AXES), fv_num(1e38)));
    CHECK(fl_backward(fl_optim_scaler_scale(a.scaler, both)));
    CHECK(fl_optim_scaler_unscale(a.scaler, b.optim) && fl_optim_scaler_unscale(a.scaler, a.optim));
    CHECK(fl_optim_step(a.optim) && fl_optim_step(b.optim) && fl_optim_scaler_update(a.scaler));
    CHECK_NEAR(fl_item(fl_select(fv_value(a.w), 0, 0)), 0.4, 1e-6);
    CHECK_NEAR(fl_item(fl_select(fv_value(b.w), 0, 0)), 0.5, 0);
    CHECK_NEAR(scale_of(&a), 512, 0);
    scaled_free(&a);
    scaled_free(&b);
    fl_scope_end(&scope);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(the_scaler_is_in_checkpoints) {
    static const char file[] = "build/test_precision_scaler.safetensors";
    fl_scope scope = fl_scope_begin();
    scaled a = scaled_new(true), b = scaled_new(true);
    for (int i = 0; i < 6; i++) REQUIRE(scaled_step(&a, i, i == 1));
    for (int k = 0; k < 2; k++) {
        scaled *t = k ? &b : &a;
        fl_optim_checkpoint c = {0};
        CHECK(fl_optim_checkpoint_add(&c, "adam.", t->optim) &&
              fl_nn_state_add(&c.state, "", "w", fv_value(t->w)) &&
              fl_optim_scaler_state(t->scaler, "scaler.", &c.state));
        CHECK(k ? fl_optim_checkpoint_load(&c, file) : fl_optim_checkpoint_save(&c, file));
        fl_optim_checkpoint_free(&c);
    }
    CHECK(scale_of(&b) == scale_of(&a));
    for (int i = 6; i < 12; i++) CHECK(scaled_step(&a, i, i == 9) && scaled_step(&b, i, i == 9));
    CHECK(scale_of(&b) == scale_of(&a) && same_numbers(a.w, b.w));
    remove(file);
    scaled_free(&a);
    scaled_free(&b);
    fl_scope_end(&scope);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* ---- training reaches the loss of f32 ---- */

enum { STEPS = 100 };
typedef struct precision {
    fl_dtype dtype;
    bool parameters; /* of that dtype, with f32 masters; else autocast */
} precision;

/* Input and target of step i. */
typedef struct task {
    fl_nn_module *(*build)(void);
    fl_var *(*loss)(fl_nn_module *net, int i, fl_dtype dtype);
    double lr;
} task;

static fl_data_set *digit_set;
static fl_var *digits_loss(fl_nn_module *net, int i, fl_dtype dtype) {
    fl_data_sample b;
    if (!fl_data_get(digit_set, i, &b)) return NULL;
    fl_var *y = fl_nn_forward(net, fv_const(fl_cast(b.t[0], dtype)));
    return fv_nll_loss(fv_cast(y, FL_F32), b.t[1]);
}

static fl_nn_module *vit_net(void) {
    return model_vit.build(model_preset_find(&model_vit, "tiny"));
}
static fl_var *vit_loss(fl_nn_module *net, int i, fl_dtype dtype) {
    model_batch b = model_vit.batch(model_preset_find(&model_vit, "tiny"));
    (void)i;
    b.t[0] = fl_cast(b.t[0], dtype);
    return model_vit.loss(net, model_preset_find(&model_vit, "tiny"), &b);
}

static const task digits_task = {digits_net, digits_loss, 0.01}, vit_task = {vit_net, vit_loss, 0.002};

/* The mean loss of STEPS steps, and of the last quarter; of fewer it is noise: with a rate that differs by
   1e-4 f32's own last ten are 1 % off. */
static void train(const task *t, precision p, double mean[2]) {
    fl_scope s = fl_scope_begin();
    fl_seed(7);
    mean[0] = mean[1] = 0;
    fl_nn_module *net = t->build();
    if (p.parameters) CHECK(fl_nn_cast(net, p.dtype));
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = t->lr, .momentum = 0.9, .master = true);
    fl_optim_scaler *scaler = fl_optim_scaler_new(1024); /* 65536 costs the first steps */
    for (int i = 0; i < STEPS; i++) {
        fl_scope step = fl_scope_begin();
        CHECK(fl_autocast(p.parameters ? FL_F32 : p.dtype));
        fl_var *loss = t->loss(net, i, p.parameters ? p.dtype : FL_F32);
        const double v = fl_item(fv_value(loss));
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(p.dtype == FL_F16 ? fl_optim_scaler_scale(scaler, loss) : loss));
        if (p.dtype == FL_F16)
            CHECK(fl_optim_scaler_unscale(scaler, optim) && fl_optim_scaler_update(scaler));
        CHECK(fl_optim_step(optim));
        mean[0] += v / STEPS;
        mean[1] += i < STEPS * 3 / 4 ? 0 : v / (STEPS / 4);
        fl_scope_end(&step);
    }
    fl_optim_scaler_free(scaler);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

static void check_training(const task *t) {
    static const precision all[] = {{FL_BF16, false}, {FL_F16, false}, {FL_BF16, true}, {FL_F16, true}};
    double want[2], got[2];
    train(t, (precision){FL_F32, false}, want);
    for (int i = 0; i < 4; i++) {
        train(t, all[i], got);
        for (int k = 0; k < 2; k++) CHECK_NEAR(got[k], want[k], 0.02 * want[k]);
    }
}

TEST(numbers_are_assigned_to_f64_in_full) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_zeros(FL_SHAPE(3), FL_F64);
    CHECK(fl_assign(fl_select(t, 0, 1), fl_num(0.1)) && fl_assign(fl_select(t, 0, 2), fl_int(7)));
    CHECK(fl_item(fl_select(t, 0, 1)) == 0.1 && fl_item(fl_select(t, 0, 2)) == 7);
    fl_scope_end(&s);
}

TEST(digits_reach_the_loss_of_f32) {
    digits all;
    fl_scope s = fl_scope_begin();
    REQUIRE(digits_draw(32 * STEPS, 3, &all) && (digit_set = digits_batches(all, 0, 32 * STEPS, 32, 5)));
    check_training(&digits_task);
    fl_data_free(digit_set);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(vit_reaches_the_loss_of_f32) { check_training(&vit_task); }

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
