/* test_precision.c - mixed precision: narrow operands of records, casts of modules, ops by policy, loss
   scaling, and that training comes to the same */
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
        {"batch_norm", "hwwhww", "hww"},    {"batch_norm_grad", "hwwwhh", "hwwh"},
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

TEST(slots_get_narrow_operands) {
    static const char *const ops[] = {"layer_norm", "layer_norm_grad", "batch_norm",
                                      "batch_norm_grad", "ctc", "ctc_grad"};
    fl_backend mock = *fl_backend_cpu(), old;
    fl_tensor *want[NORM_RESULTS] = {0}, *got[NORM_RESULTS] = {0};
    fl_scope s = fl_scope_begin();
    narrow_work(want);
    for (int i = 0; i < 6; i++)
        REQUIRE(fl_backend_set(&mock, fl_op_named(ops[i]), takes_halves, FL_SLOT_NARROW));
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

/* ---- modules in another dtype, on another family, from files of another dtype ---- */

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
    const char *family = fl_backend_name(fv_value(fl_nn_get_param(net, "0.weight")));
    fl_tensor *x = fl_to(fl_randint(FL_SHAPE(3, 6), 0, 12, &rng), family);
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
    CHECK_EQ_INT(fl_live(), 0);
}

TEST(a_module_on_another_family) {
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
    CHECK_ERROR("no backend family 'moon'");
    CHECK(!fl_nn_to(net, NULL));
    CHECK_ERROR("fl_nn_to: the family is NULL");
    CHECK(!fl_nn_cast(NULL, FL_BF16));
    CHECK_ERROR("fl_nn_cast: the module is NULL");
    CHECK(!fl_nn_cast(net, FL_I64));
    CHECK_ERROR("fl_nn_cast: dtype i64, parameters are float");
    CHECK_STR(fl_backend_name(fv_value(fl_nn_get_param(net, "0.weight"))), "other");
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live(), 0);
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
    CHECK_ERROR("'0.weight' is bf16 [12, 8], the file has f32 [12, 8]");
    CHECK(param_sum(b, "2.weight") == before);
    CHECK(fl_nn_load(b, file, .cast = true, .ignore = "nothing 2.*"));
    CHECK(param_sum(b, "2.weight") == before && fabs(param_sum(b, "7.weight") - tied) < 0.05);
    CHECK(fl_nn_load(b, file, .cast = true));
    CHECK_NEAR(param_sum(b, "2.weight"), conv, 0.02);
    /* Another net: the second name of the tied weight alone, and names that it lacks. */
    fl_tensor *w = fl_full(FL_SHAPE(12, 8), 2, FL_F32);
    fl_data_named some[] = {{"net.7.weight", w}, {"net.head.bias", w}};
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
    CHECK_EQ_INT(fl_live(), 0);
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
            const fl_op op = fl_op_named(name);
            if (!CHECK(op && fl_autocast_policy_of(op) == rows[r].policy)) puts(name);
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
    CHECK_EQ_INT(fl_live(), 0);
    CHECK_EQ_INT(fl_mem_live(), 0);
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
    CHECK_EQ_INT(fl_live(), 0);
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
    CHECK_ERROR("fl_autocast_set_policy: there is no op 0");
    CHECK(!fl_autocast_set_policy(FL_OP_mul, (fl_autocast_policy)4));
    CHECK_ERROR("no policy 4");
    CHECK(fl_autocast_policy_of(-1) == FL_AUTOCAST_NONE);
    CHECK(!fl_autocast(FL_F64));
    CHECK_ERROR("fl_autocast: f64: f16, bf16, or f32 for off");
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

/* ---- training reaches the loss of f32 ---- */

enum { STEPS = 100 };
typedef struct precision {
    fl_dtype dtype;
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

/* The mean loss of STEPS steps, and of the last ten. */
static void train(const task *t, precision p, double mean[2]) {
    fl_scope s = fl_scope_begin();
    fl_seed(7);
    mean[0] = mean[1] = 0;
    fl_nn_module *net = t->build();
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = t->lr, .momentum = 0.9);
    for (int i = 0; i < STEPS; i++) {
        fl_scope step = fl_scope_begin();
        CHECK(fl_autocast(p.dtype));
        fl_var *loss = t->loss(net, i, FL_F32);
        const double v = fl_item(fv_value(loss));
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss) && fl_optim_step(optim));
        mean[0] += v / STEPS;
        mean[1] += i < STEPS - 10 ? 0 : v / 10;
        fl_scope_end(&step);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

static void check_training(const task *t) {
    static const precision all[] = {{FL_BF16}, {FL_F16}};
    double want[2], got[2];
    train(t, (precision){FL_F32}, want);
    for (int i = 0; i < 2; i++) {
        train(t, all[i], got);
        for (int k = 0; k < 2; k++) CHECK_NEAR(got[k], want[k], 0.02 * want[k]);
    }
}

TEST(digits_reach_the_loss_of_f32) {
    digits all;
    fl_scope s = fl_scope_begin();
    REQUIRE(digits_draw(16 * STEPS, 3, &all) && (digit_set = digits_batches(all, 0, 16 * STEPS, 16, 5)));
    check_training(&digits_task);
    fl_data_free(digit_set);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live(), 0);
}

TEST(vit_reaches_the_loss_of_f32) { check_training(&vit_task); }

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
