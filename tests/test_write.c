/* test_write.c - steps written out: opened into the ops that every backend has, as Graphviz, C and StableHLO

   A step of each tiny model is opened, its calls are run one by one on copies of what the step reads, and
   parameters, state and outputs are compared with those of a replay: within 3e-5 of the largest or 1e-6, where
   Adam trains 1e-4 (a tenth of its step, as it makes steps of noise too), as a composition rounds where a fused
   kernel does not; integers must be equal. The step written as C is compiled
   by gcc or clang with warnings as errors and sanitizers, runs five times, and is compared likewise. With
   STABLEHLO=folder modules are written there instead, with what tests/python/test_stablehlo.py compares. */
#include "../fl_backend.h"
#include "../fl_export.h"
#include "compiler.h"
#include "heap.h"
#include "training.h"
#include "written.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

static bool is_read(const fl_graph *g, const fl_tensor *t) {
    const fl_graph_list l = fl_graph_calls(g);
    bool found = false;
    for (int64_t i = 0; i < l.n_values; i++) found |= l.value[i].buffer == t->buffer && l.value[i].first >= 0;
    return found;
}

static const char *folder_of(bool c) {
    static char folder[200];
    snprintf(folder, sizeof folder, "%s", c ? test_file("steps") : getenv("STABLEHLO"));
    if (c) mkdir(folder, 0777);
    return folder;
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
            written_run(folder, w, 1, clang ? "clang" WRITTEN_SANITIZED : "cc" WRITTEN_SANITIZED) &&
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

/* ---- ops alone, on views ---- */

enum { F, G, D, I, J, B, C, U, K, S, OPERANDS };
static const char *const operand_names[OPERANDS] = {"f", "g", "d", "i", "j", "b", "c", "u", "k", "s"};

/* [3, 4, 6] each, but for k, an index [3, 2, 6]; s is written in place. */
static bool operands_new(fl_tensor **x) {
    const fl_shape s = FL_SHAPE(3, 4, 6);
    fl_tensor *f = fl_normal(s, 0, 2, FL_F32, NULL), *g = fl_normal(s, 0, 2, FL_F32, NULL);
    fl_tensor *nan = fl_full(s, NAN, FL_F32), *rare = fl_lt(fl_uniform(s, 0, 1, FL_F32, NULL), fl_num(0.1));
    x[F] = fl_where(rare, nan, f), x[G] = g;
    x[D] = fl_cast(fl_normal(s, 0, 1, FL_F32, NULL), FL_F64);
    x[I] = fl_randint(s, -9, 10, NULL),
    x[J] = fl_add(fl_mul(fl_randint(s, -3, 4, NULL), fl_int(2)), fl_int(1));
    x[B] = fl_gt(f, g), x[C] = fl_gt(g, fl_num(0));
    x[U] = fl_cast(fl_randint(s, 0, 256, NULL), FL_U8);
    x[K] = fl_randint(FL_SHAPE(3, 2, 6), 0, 4, NULL);
    x[S] = fl_normal(s, 0, 1, FL_F32, NULL);
    return x[K] && x[S];
}

#define SWAPPED(t) fl_transpose(t, 0, 2)
#define EVERY_OTHER(t) fl_slice(t, 2, 1, 6, 2)
#define TURNED(t) fl_flip(fl_slice(t, 1, 1, 4, 1), 2, (int[]){0, 2})
#define WINDOWS(t) fl_as_strided(fl_slice(t, 0, 1, 2, 1), FL_SHAPE(5, 3), (int64_t[]){1, 1}, 24)
#define TURNED_BACK(t) fl_flip(t, 2, (int[]){0, 2})
#define WIDE_2(t) fl_expand(fl_slice(t, 1, 1, 2, 1), FL_SHAPE(3, 2, 6))
#define WORDS(t) fl_cast(t, FL_U64)
#define WIDE(t) fl_expand(fl_slice(t, 1, 2, 3, 1), FL_SHAPE(3, 4, 6))
/* [2, 2, 3, 6] with two groups, stride 2 and 1, padding 1 and 0, dilation 1 and 2 -> [2, 4, 2, 4]. */
#define IMAGES(t) fl_reshape(t, FL_SHAPE(2, 2, 3, 6))
#define IMAGES_OUT(t) fl_reshape(fl_slice(fl_reshape(t, FL_SHAPE(72)), 0, 4, 68, 1), FL_SHAPE(2, 4, 2, 4))
#define KERNEL(t) fl_reshape(fl_slice(fl_reshape(t, FL_SHAPE(72)), 0, 0, 16, 1), FL_SHAPE(4, 1, 2, 2))
#define WINDOW ((fl_conv2d_args){{2, 1}, {1, 0}, {0, 0}, {1, 2}, 2, 0})
/* X(name, result): NULL if it writes s in place */
#define OPS_ALONE(X) \
    X(neg, fl_neg(x[F])) X(abs, fl_abs(SWAPPED(x[F]))) X(exp, fl_exp(EVERY_OTHER(x[F]))) \
    X(log, fl_log(fl_abs(x[G]))) X(sqrt, fl_sqrt(fl_abs(TURNED(x[G])))) X(sin, fl_sin(WINDOWS(x[G]))) \
    X(cos, fl_cos(x[D])) X(tanh, fl_tanh(x[F])) X(erf, fl_erf(WIDE(x[F]))) \
    X(log1p, fl_log1p(fl_abs(x[G]))) X(expm1, fl_expm1(x[D])) X(floor, fl_floor(x[G])) \
    X(rint, fl_rint(x[G])) X(bits, fl_bitwise_not(x[I])) X(not_b8, fl_bitwise_not(x[B])) \
    X(abs_i64, fl_abs(x[I])) X(add, fl_add(SWAPPED(x[F]), SWAPPED(x[G]))) \
    X(sub, fl_sub(x[F], fl_num(1.5))) X(mul, fl_mul(x[I], x[J])) X(div, fl_div(x[F], x[G])) \
    X(div_i64, fl_floor_divide(x[I], x[J])) X(mod, fl_remainder(x[F], x[G])) \
    X(mod_i64, fl_remainder(x[I], x[J])) X(pow, fl_pow(fl_abs(x[G]), x[G])) \
    X(maximum, fl_maximum(x[F], x[G])) X(minimum, fl_minimum(x[I], x[J])) X(eq, fl_eq(x[I], x[J])) \
    X(lt, fl_lt(x[F], x[G])) X(le, fl_le(x[D], fl_num(0.25))) X(and_b8, fl_bitwise_and(x[B], x[C])) \
    X(xor_i64, fl_bitwise_xor(x[I], x[J])) X(shift, fl_shift_right(x[I], fl_int(1))) \
    X(atan2, fl_atan2(x[F], x[G])) X(copy, fl_contiguous(TURNED(x[F]))) X(to_i64, fl_cast(x[G], FL_I64)) \
    X(to_b8, fl_cast(x[I], FL_B8)) X(to_f32, fl_cast(x[B], FL_F32)) X(to_u8, fl_cast(fl_abs(x[I]), FL_U8)) \
    X(u8, fl_add(x[U], fl_int(200))) X(f64, fl_cast(x[F], FL_F64)) \
    X(fill, fl_mul(fl_full(FL_SHAPE(2, 3), -INFINITY, FL_F32), fl_num(-1))) \
    X(minus_0, fl_add(fl_full(FL_SHAPE(2), -0.0, FL_F32), fl_num(-0.0))) \
    X(iota, fl_arange(3, 10, 0.5, FL_F32)) X(iota_i64, fl_arange(9, 0, -2, FL_I64)) \
    X(where, fl_where(x[B], SWAPPED(fl_contiguous(SWAPPED(x[F]))), fl_num(-1))) \
    X(sum, fl_sum(x[G], FL_AXES(1))) X(sum_all, fl_sum(EVERY_OTHER(x[G]), FL_ALL_AXES)) \
    X(sum_i64, fl_sum(x[I], FL_AXES(0))) X(sum_b8, fl_sum(x[B], FL_AXES(2))) \
    X(amax, fl_amax(x[F], FL_AXES(2))) X(amin, fl_amin(SWAPPED(x[I]), FL_AXES(0))) \
    X(argmax, fl_argmax(x[F], 2, true)) X(argmax_i64, fl_argmax(x[J], 1, false)) \
    X(argmin, fl_argmin(TURNED(x[F]), 0, false)) X(gather, fl_gather(x[F], 1, x[K])) \
    X(gather_view, fl_gather(SWAPPED(fl_contiguous(SWAPPED(x[G]))), 1, x[K])) \
    X(scatter_add, fl_scatter_add(x[G], 1, x[K], fl_slice(x[F], 1, 0, 2, 1))) \
    X(cumsum, fl_cumsum(SWAPPED(x[G]), 1)) X(cumsum_i64, fl_cumsum(x[I], 2)) \
    X(cumprod, fl_cumprod(TURNED(x[D]), 0)) X(prod, fl_prod(EVERY_OTHER(x[G]), FL_AXES(1))) \
    X(prod_i64, fl_prod(SWAPPED(x[J]), FL_AXES(2))) \
    X(scatter, fl_scatter(SWAPPED(fl_contiguous(SWAPPED(x[G]))), 1, x[K], WIDE_2(x[F]))) \
    X(scatter_i32, fl_scatter(fl_cast(x[I], FL_I32), 1, x[K], fl_cast(fl_slice(x[J], 1, 1, 3, 1), \
      FL_I32))) X(scatter_add_u8, fl_scatter_add(x[U], 1, x[K], fl_slice(x[U], 1, 0, 2, 1))) \
    X(gather_b8, fl_gather(TURNED_BACK(x[B]), 1, x[K])) \
    X(argmax_view, fl_argmax(EVERY_OTHER(x[F]), 1, false)) X(argmax_u8, fl_argmax(SWAPPED(x[U]), 2, true)) \
    X(amax_u8, fl_amax(x[U], FL_AXES(1))) X(sort, fl_sort(SWAPPED(x[F]), 1, false, NULL)) \
    X(argsort, fl_argsort(EVERY_OTHER(x[F]), 1, true)) X(sort_i64, fl_sort(TURNED(x[I]), 2, true, NULL)) \
    X(topk, fl_topk(x[G], 3, 2, true, NULL)) X(pow_i64, fl_pow(TURNED(x[J]), TURNED(x[I]))) \
    X(pow_number, fl_pow(x[I], fl_int(3))) X(mod_view, fl_remainder(SWAPPED(x[I]), SWAPPED(x[J]))) \
    X(div_min, fl_floor_divide(fl_full(FL_SHAPE(2), INT64_MIN, FL_I64), fl_int(-1))) \
    X(randint, fl_randint(FL_SHAPE(3, 5), -7, 1000, NULL)) \
    X(randint_wide, fl_randint(FL_SHAPE(7), INT64_MIN, INT64_MAX, NULL)) \
    X(uniform_f64, fl_uniform(FL_SHAPE(5), -1, 2, FL_F64, NULL)) \
    X(normal_f64, fl_normal(FL_SHAPE(7), 1, 2, FL_F64, NULL)) \
    X(saturate_u8, fl_cast(fl_mul(x[G], fl_num(200)), FL_U8)) \
    X(saturate_i16, fl_cast(fl_mul(x[F], fl_num(3e4)), FL_I16)) \
    X(saturate_i64, fl_cast(fl_mul(x[F], fl_num(1e19)), FL_I64)) \
    X(saturate_u64, fl_cast(fl_mul(x[F], fl_num(1e19)), FL_U64)) \
    X(wrap_i8, fl_cast(fl_mul(x[I], fl_int(100)), FL_I8)) X(u64_to_f32, fl_cast(WORDS(x[I]), FL_F32)) \
    X(u64_to_f64, fl_cast(SWAPPED(WORDS(x[I])), FL_F64)) X(lt_u64, fl_lt(WORDS(x[I]), WORDS(x[J]))) \
    X(max_u64, fl_maximum(WORDS(x[I]), WORDS(x[J]))) X(sum_u64, fl_sum(WORDS(x[I]), FL_AXES(1))) \
    X(where_u64, fl_where(x[B], WORDS(x[I]), WORDS(x[J]))) \
    X(where_b8, fl_where(SWAPPED(x[B]), SWAPPED(x[C]), SWAPPED(x[B]))) \
    X(where_big, fl_where(x[B], fl_full(FL_SHAPE(3, 4, 6), (double)(INT64_C(1) << 60), FL_I64), \
      fl_int((INT64_C(1) << 60) + 1))) X(big_number, fl_add(x[I], fl_int(INT64_MAX))) \
    X(any, fl_amax(EVERY_OTHER(x[B]), FL_AXES(2))) X(all, fl_amin(x[B], FL_AXES(0))) \
    X(max_b8, fl_maximum(x[B], TURNED_BACK(x[C]))) X(lt_b8, fl_lt(x[B], x[C])) \
    X(eq_u8, fl_eq(x[U], fl_int(7))) X(nan, fl_maximum(x[G], fl_num((double)NAN))) \
    X(huge, fl_mul(x[D], fl_num(1e300))) X(tiny, fl_add(x[G], fl_num(1e-42))) \
    X(minus_0_i, fl_div(fl_num(1), fl_mul(fl_abs(x[G]), fl_num(-0.0)))) \
    X(sum_empty, fl_sum(fl_slice(x[F], 0, 0, 0, 1), FL_AXES(0))) \
    X(prod_empty, fl_prod(fl_slice(x[F], 2, 3, 3, 1), FL_ALL_AXES)) \
    X(matmul_empty, fl_matmul(fl_slice(x[G], 2, 0, 0, 1), fl_transpose(fl_slice(x[G], 2, 0, 0, 1), 1, 2))) \
    X(matmul, fl_matmul(x[G], fl_transpose(x[G], 1, 2))) \
    X(matmul_f64, fl_matmul(fl_transpose(x[D], 1, 2), x[D])) \
    X(matmul_2d, fl_matmul(fl_reshape(x[G], FL_SHAPE(12, 6)), fl_slice(fl_reshape(x[G], FL_SHAPE(12, \
      6)), 0, 2, 8, 1))) X(conv, fl_conv2d_run(IMAGES(x[G]), KERNEL(x[S]), NULL, WINDOW)) \
    X(conv_grad_input, fl_conv2d_grad_input(IMAGES_OUT(x[F]), KERNEL(x[S]), FL_SHAPE(2, 2, 3, 6), WINDOW)) \
    X(conv_grad_weight, fl_conv2d_grad_weight(IMAGES(x[G]), IMAGES_OUT(x[S]), FL_SHAPE(4, 1, 2, 2), \
      WINDOW)) X(uniform, fl_uniform(FL_SHAPE(3, 5), -1, 2, FL_F32, NULL)) \
    X(normal, fl_normal(FL_SHAPE(7), 1, 2, FL_F32, NULL)) X(dropout, fl_dropout(x[G], 0.4, NULL)) \
    X(empty, fl_add(fl_slice(x[F], 0, 0, 0, 1), fl_num(1))) \
    X(scalar, fl_mul(fl_reshape(fl_slice(fl_reshape(x[G], FL_SHAPE(72)), 0, 5, 6, 1), FL_SCALAR_SHAPE), \
      fl_num(2))) X(in_place, (fl_assign(x[S], fl_mul(x[S], fl_num(0.5))), NULL)) \
    X(in_place_part, (fl_assign(fl_slice(x[S], 1, 1, 3, 1), fl_slice(x[G], 1, 0, 2, 1)), NULL)) \
    X(in_place_steps, (fl_assign(EVERY_OTHER(x[S]), fl_neg(EVERY_OTHER(x[G]))), NULL)) \
    X(in_place_turned, (fl_assign(TURNED(x[S]), fl_add(TURNED(x[S]), fl_num(1))), NULL)) \
    X(in_place_swapped, (fl_assign(SWAPPED(x[S]), fl_exp(SWAPPED(x[G]))), NULL)) \
    X(in_place_diagonal, (fl_assign(fl_as_strided(x[S], FL_SHAPE(4), (int64_t[]){7}, 2), fl_num(3)), \
      NULL)) X(in_place_number, (fl_assign(x[S], fl_num(-2)), NULL))

#define OP_ALONE(name, result) \
    static fl_tensor *alone_##name(fl_tensor **x) { (void)x; return result; }
OPS_ALONE(OP_ALONE)
#undef OP_ALONE
static const struct {
    const char *name;
    fl_tensor *(*result)(fl_tensor **x);
} ops_alone[] = {
#define OP_ALONE(name, result) {#name, alone_##name},
    OPS_ALONE(OP_ALONE)
#undef OP_ALONE
};

enum { N_OPS = sizeof ops_alone / sizeof *ops_alone };

/* A step of the n ops from `first` on. */
static void write_ops(int first, int n, const char *folder, written *w, bool c) {
    fl_tensor *x[OPERANDS], *y[N_OPS] = {NULL};
    fl_data_named_tensor in[OPERANDS], out[N_OPS];
    fl_nn_state state = {0};
    int n_in = 0, n_out = 0;
    fl_scope s = fl_scope_begin();
    fl_seed((uint64_t)first);
    REQUIRE(operands_new(x));
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 3 && !fl_graph_ready(g); i++) {
        fl_scope step = fl_scope_begin();
        for (int k = 0; k < n; k++) fl_drop(y[k]);
        CHECK(fl_graph_begin(g));
        for (int k = 0; k < n; k++) y[k] = fl_keep(ops_alone[first + k].result(x));
        fl_scope_end(&step);
        CHECK(fl_graph_end(g));
    }
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
