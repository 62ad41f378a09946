/* test_vendor.c - NVIDIA's libraries behind backend cuda, by mocks that compute with plain loops
   (tests/cuda/emu): what they compute is for conformance; here: that they are used, how often, what they
   may round, what happens where they refuse or are absent. make CUDA=emu test-cuda */
#include "../fl_all.h"
#include "../kernels/cuda/dnn.h"
#include "../kernels/cuda/library.h"
#include "../kernels/cuda/plan.h"
#include "test.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern void cuda_emu_fail_in(int64_t n) __attribute__((weak));
#pragma weak fl__cuda_library_open
#pragma weak fl__cuda_plan_evictions
#pragma weak fl__cuda_dnn_declined
#pragma weak fl__cuda_dnn_plans

/* Of the mock; NULL before it was loaded. */
static int *counter(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}
static int counted(const char *name) {
    return counter(name) ? *counter(name) : -1;
}

static bool use_cuda(void) {
    test_errors_return();
    const bool there = cuda_emu_fail_in && fl_backend_index("cuda") >= 0;
    fl_error_clear();
    return there && fl_backend_set_default("cuda");
}
static bool has_mocks(void) {
    const char *where = getenv("FL_CUDA_LIBS");
    return where && strcmp(where, "no");
}
#define NEEDS_MOCK \
    if (!use_cuda() || !has_mocks()) SKIP("mock libraries: make CUDA=emu test-cuda")

static char said[4][200];
static int n_said;
static void listen(fl_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    if (n_said < 4) snprintf(said[n_said++], sizeof said[0], "%s", text);
}

/* Numbers of few bits, whose products and sums are exact in any order. */
static fl_tensor *whole(fl_shape shape, int64_t seed) {
    const int64_t n = fl_shape_numel(shape);
    float *v = malloc((size_t)n * sizeof *v + 1);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 7 + seed * 3) % 11 - 5);
    fl_tensor *t = fl_from_host(v, shape, FL_F32);
    free(v);
    return t;
}

static bool same_as_cpu(fl_tensor *y, fl_tensor *a, fl_tensor *b) {
    fl_tensor *want = fl_matmul(fl_to(a, "cpu"), fl_to(b, "cpu"));
    return y && want && fl_item(fl_to(fl_all(fl_eq(fl_to(y, "cpu"), want), FL_ALL_AXES), "cpu")) == 1;
}

TEST(products_are_one_call_of_the_library_where_it_can_read_them) {
    NEEDS_MOCK;
    const int order[4] = {0, 2, 1, 3};
    fl_tensor *heads =
        fl_permute(whole(FL_SHAPE(2, 5, 3, 4), 1), 4, order); /* [2, 3, 5, 4] of [2, 5, 3, 4] */
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    const struct {
        fl_tensor *a, *b;
        int calls;
    } cases[] = {
        {a, b, 1},
        {a, fl_transpose(whole(FL_SHAPE(6, 8), 3), 0, 1), 1},
        {fl_transpose(whole(FL_SHAPE(8, 5), 3), 0, 1), b, 1},
        {whole(FL_SHAPE(2, 3, 5, 8), 4), whole(FL_SHAPE(2, 3, 8, 6), 5), 1}, /* both batch dims are one */
        {whole(FL_SHAPE(2, 3, 5, 8), 4), b, 1},                              /* every batch has the same b */
        {heads, fl_transpose(heads, -1, -2), 2},                             /* a loop over the shorter dim */
        {fl_slice(whole(FL_SHAPE(5, 16), 2), 1, 0, 16, 2), b, 0},            /* rows with gaps */
        {whole(FL_SHAPE(5, 13), 2), whole(FL_SHAPE(13, 6), 2), 0}, /* the library has nothing for it */
    };
    CHECK(same_as_cpu(fl_matmul(a, b), a, b));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int before = counted("mock_products");
        fl_tensor *y = fl_matmul(cases[i].a, cases[i].b);
        CHECK_EQ_INT(counted("mock_products") - before, cases[i].calls);
        CHECK(same_as_cpu(y, cases[i].a, cases[i].b));
        CHECK(!fl_error());
    }
    CHECK_EQ_INT(counted("mock_mistakes"), 0);
}

/* The sums for the bias come with the product for the weight. */
TEST(gradients_of_a_linear_layer_are_two_calls) {
    NEEDS_MOCK;
    fl_var *x = fv_param(whole(FL_SHAPE(6, 8), 2)), *w = fv_param(whole(FL_SHAPE(4, 8), 3));
    fl_var *b = fv_param(whole(FL_SHAPE(4), 1)), *y = fv_linear(x, w, b);
    fl_tensor *dy = whole(FL_SHAPE(6, 4), 5), *want = fl_sum(fl_to(dy, "cpu"), FL_AXES(0));
    const int before = counted("mock_products");
    CHECK(fl_backward(y, .grad = dy));
    CHECK_EQ_INT(counted("mock_products") - before, 2);
    CHECK(same_as_cpu(fv_grad(x), dy, fv_value(w)));
    CHECK(same_as_cpu(fv_grad(w), fl_transpose(dy, 0, 1), fv_value(x)));
    CHECK(fl_item(fl_all(fl_eq(fl_to(fv_grad(b), "cpu"), want), FL_ALL_AXES)) == 1);
    CHECK_EQ_INT(counted("mock_mistakes"), 0);
}

TEST(a_shape_is_asked_for_once) {
    NEEDS_MOCK;
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    fl_matmul(a, b);
    const int asked = counted("mock_choices");
    for (int i = 0; i < 3; i++) fl_matmul(a, b);
    CHECK_EQ_INT(counted("mock_choices"), asked);
    fl_matmul(a, whole(FL_SHAPE(8, 7), 3));
    CHECK_EQ_INT(counted("mock_choices"), asked + 1);
    for (int64_t n = 1; n < 40; n++) /* plans take each other's places */
        for (int64_t k = 1; k < 60; k++) fl_matmul(whole(FL_SHAPE(n, k), 1), whole(FL_SHAPE(k, 3), 1));
    CHECK(same_as_cpu(fl_matmul(a, b), a, b));
    CHECK_EQ_INT(counted("mock_mistakes"), 0);
}

/* 1 + 2^-12 has more bits than TF32 keeps. */
TEST(f32_is_rounded_only_where_the_program_allows_it) {
    NEEDS_MOCK;
    fl_tensor *a = fl_full(FL_SHAPE(4, 4), 1 + 0x1p-12, FL_F32), *b = fl_ones(FL_SHAPE(4, 4), FL_F32);
    CHECK_EQ_INT(fl_item(fl_amax(fl_matmul(a, b), FL_ALL_AXES)) == 4 + 0x1p-10, 1);
    CHECK(fl_set_matmul_precision(FL_BF16));
    CHECK_EQ_INT(fl_item(fl_amax(fl_matmul(a, b), FL_ALL_AXES)) == 4, 1);
    CHECK_EQ_INT(fl_item(fl_amax(fl_linear(a, b, NULL), FL_ALL_AXES)) == 4, 1);
    CHECK(fl_set_matmul_precision(FL_F32));
    CHECK_EQ_INT(fl_item(fl_amax(fl_matmul(a, b), FL_ALL_AXES)) == 4 + 0x1p-10, 1);
}

TEST(a_call_of_the_library_that_fails_is_an_error_and_the_next_works) {
    NEEDS_MOCK;
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    bool said_so = false;
    fl_scope first = fl_scope_begin();
    fl_matmul(a, b);
    fl_scope_end(&first);             /* its memory is there for the next */
    for (int64_t i = 0; i < 8; i++) { /* a request for memory that fails is tried again: no error */
        fl_scope s = fl_scope_begin();
        cuda_emu_fail_in(1 + i / 2);
        fl_tensor *y = fl_matmul(a, b);
        cuda_emu_fail_in(0);
        const bool failed = fl_error() != NULL;
        if (failed)
            said_so |= strstr(fl_error(), "fl_matmul: cuda: cublasLtMatmul: execution failed") != NULL;
        fl_error_clear();
        if (!failed) CHECK(same_as_cpu(y, a, b));
        CHECK(same_as_cpu(fl_matmul(a, b), a, b));
        fl_scope_end(&s);
    }
    CHECK(said_so);
}

/* A convolution with its bias, and its gradients; one whose images lie backwards is none for the library. */
TEST(convolutions_are_plans_that_are_kept) {
    NEEDS_MOCK;
    fl_tensor *x = whole(FL_SHAPE(2, 3, 5, 5), 1), *w = whole(FL_SHAPE(4, 3, 3, 3), 2),
              *b = whole(FL_SHAPE(4), 3);
    fl_tensor *want = fl_conv(fl_to(x, "cpu"), fl_to(w, "cpu"), fl_to(b, "cpu"), .pad = {1}, .stride = {2});
    for (int i = 0; i < 3; i++) {
        fl_tensor *y = fl_to(fl_conv(x, w, b, .pad = {1}, .stride = {2}), "cpu");
        CHECK(y && fl_item(fl_all(fl_eq(y, want), FL_ALL_AXES)) == 1);
    }
    CHECK_EQ_INT(counted("mock_plans"), 1);
    CHECK_EQ_INT(counted("mock_runs"), 3);
    fl_var *in[2] = {fv_param(x), fv_param(w)};
    fl_var *y = fv_conv(in[0], in[1], NULL);
    CHECK(fl_backward(fv_sum(fv_mul(y, y), FL_ALL_AXES)));
    CHECK_EQ_INT(counted("mock_runs"), 6);
    CHECK(fl_conv(fl_flip(x, 1, FL_ARRAY(int, 3)), w, NULL) && !fl_error());
    CHECK_EQ_INT(counted("mock_faults"), 0);
}

/* As many shapes as tests/cuda/plans.c has. */
static void plan_shapes(int n) {
    for (int64_t i = 1; i <= n; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_ones(FL_SHAPE(1, 1, 1, i), FL_F32), *w = fl_ones(FL_SHAPE(1, 1, 1, 1), FL_F32);
        CHECK_EQ_INT(fl_item(fl_sum(fl_conv(x, w, NULL), FL_ALL_AXES)), i);
        CHECK(fl_matmul(fl_ones(FL_SHAPE(i, 2), FL_F32), fl_ones(FL_SHAPE(2, 3), FL_F32)) != NULL);
        fl_scope_end(&s);
    }
}

TEST(plans_of_a_model_stay_and_a_full_table_evicts) {
    NEEDS_MOCK;
    for (int i = 0; i < 2; i++) plan_shapes(604);
    CHECK_EQ_INT(counted("mock_plans"), 604);
    CHECK_EQ_INT(counted("mock_choices"), 604);
    CHECK_EQ_INT(fl__cuda_plan_evictions(), 0);
    plan_shapes(1100);
    CHECK(fl__cuda_plan_evictions() >= 1100 - 1024);
    CHECK_EQ_INT(counted("mock_choices"), 1100);
    CHECK_EQ_INT(counted("mock_mistakes") + counted("mock_faults"), 0);
}

/* The precision is part of a plan's key: the capture, in round 3, meets one that no round needed before. */
TEST(a_plan_that_a_capture_would_make_is_named_and_the_calls_run_one_by_one) {
    NEEDS_MOCK;
    fl_log_set_sink(listen, NULL, FL_LOG_INFO);
    fl_tensor *x = whole(FL_SHAPE(2, 3, 5, 5), 1), *w = whole(FL_SHAPE(4, 3, 3, 3), 2), *y = NULL;
    fl_tensor *want = fl_conv(fl_to(x, "cpu"), fl_to(w, "cpu"), NULL);
    fl_graph *g = fl_graph_new();
    for (int round = 0; round < 6; round++) {
        if (round == 3) CHECK(fl_set_matmul_precision(FL_BF16));
        CHECK(fl_graph_begin(g));
        fl_drop(y);
        fl_scope s = fl_scope_begin();
        y = fl_keep(fl_conv(x, w, NULL));
        fl_scope_end(&s);
        CHECK(fl_graph_end(g));
        CHECK(fl_item(fl_to(fl_all(fl_eq(fl_to(y, "cpu"), want), FL_ALL_AXES), "cpu")) == 1 && !fl_error());
    }
    CHECK_EQ_INT(counted("mock_plans"), 2);
    CHECK_EQ_INT(n_said, 1);
    CHECK_STR(said[0], "fl_conv2d: cuda: the plan for [2, 3, 5, 5] and [4, 3, 3, 3] is not made yet");
    CHECK_EQ_INT(counted("mock_faults"), 0);
    fl_drop(y);
    fl_graph_free(g);
}

TEST(attention_of_halves_is_the_librarys) {
    NEEDS_MOCK;
    fl_tensor *q = fl_cast(whole(FL_SHAPE(2, 2, 4, 8), 1), FL_BF16),
              *k = fl_cast(whole(FL_SHAPE(2, 2, 6, 8), 2), FL_BF16);
    fl_tensor *y = fl_attention(q, k, k);
    CHECK(y && y->dtype == FL_BF16);
    CHECK_EQ_INT(counted("mock_runs"), 1);
    CHECK(fl_attention(q, k, k, .dropout = 0.5) != NULL);
    CHECK_EQ_INT(counted("mock_runs"), 2);
    CHECK_EQ_INT(fl__cuda_dnn_declined(), 0);
    CHECK(fl_attention(q, k, k, .window = 2) && fl_attention(q, k, k, .softcap = 3));
    CHECK(fl_attention(fl_cast(q, FL_F32), fl_cast(k, FL_F32), fl_cast(k, FL_F32)) != NULL);
    CHECK_EQ_INT(fl_item(fl_amax(fl_abs(fl_attention(q, k, k, .dropout = 1)), FL_ALL_AXES)), 0);
    CHECK_EQ_INT(counted("mock_runs"), 2);
    CHECK_EQ_INT(fl__cuda_dnn_declined(), 4);
    CHECK_EQ_INT(counted("mock_faults"), 0);
}

/* Masks of attention, in the ways in which they repeat. */
enum { MASKS = 7 };
static fl_tensor *mask_of(int kind) {
    static const float hides[4] = {0, -2, -INFINITY, 1};
    fl_tensor *some = fl_lt(whole(FL_SHAPE(2, 1, 1, 6), 4), fl_num(2)); /* keys */
    fl_tensor *bias = fl_mul(whole(FL_SHAPE(2, 4, 6), 5), fl_num(0.25));
    fl_tensor *rows = fl_reshape(fl_from_host(hides, FL_SHAPE(4), FL_F32), FL_SHAPE(4, 1));
    switch (kind) {
    case 1: return some;
    case 2: return fl_lt(whole(FL_SHAPE(2, 2, 4, 6), 4), fl_num(1));
    case 3: return bias;
    case 4: return fl_add(bias, rows); /* a query that sees nothing */
    case 5: return fl_zeros(FL_SHAPE(4, 6), FL_B8);
    case 6: return fl_cast(fl_transpose(fl_reshape(bias, FL_SHAPE(2, 6, 4)), -1, -2), FL_BF16);
    default: return NULL;
    }
}

typedef struct attention_case {
    int64_t queries, keys;
    int mask;
    bool causal;
    int64_t offset;
    double dropout;
    fl_dtype dtype; /* 0: bf16 */
} attention_case;

/* y and the gradients by q, k and v; false where one is missing. */
static bool attend(const char *backend, const attention_case *c, fl_tensor *got[4]) {
    CHECK(fl_backend_set_default(backend));
    const fl_shape q = FL_SHAPE(2, 2, c->queries, 8), k = FL_SHAPE(2, 2, c->keys, 8);
    const fl_dtype d = c->dtype ? c->dtype : FL_BF16;
    fl_tensor *half = fl_num(0.5), *mask = mask_of(c->mask);
    fl_var *x[3] = {fv_param(fl_cast(fl_mul(whole(q, 1), half), d)),
                    fv_param(fl_cast(fl_mul(whole(k, 2), half), d)),
                    fv_param(fl_cast(whole(k, 3), d))};
    fl_var *y = fv_attention(x[0], x[1], x[2], .causal = c->causal, .offset = c->offset,
                             .mask = mask ? fv_const(mask) : NULL, .dropout = c->dropout,
                             .rng = &(fl_rng){5, 1});
    if (!y || !fl_backward(y, .grad = fl_cast(whole(q, 6), d))) return false;
    got[0] = fl_to(fl_cast(fv_value(y), FL_F32), "cpu");
    for (int i = 0; i < 3; i++) got[i + 1] = fl_to(fl_cast(fv_grad(x[i]), FL_F32), "cpu");
    return got[0] && got[1] && got[2] && got[3];
}

/* On cuda as on the cpu, forward and gradient by so many runs of the library, the others by our kernels. */
static void attends(attention_case c, int runs) {
    fl_scope s = fl_scope_begin();
    const int before = counted("mock_runs") < 0 ? 0 : counted("mock_runs");
    const int64_t declined = fl__cuda_dnn_declined();
    fl_tensor *got[4], *want[4];
    REQUIRE(attend("cuda", &c, got));
    CHECK_EQ_INT(counted("mock_runs") - before, runs);
    CHECK_EQ_INT(fl__cuda_dnn_declined() - declined, 2 - runs);
    REQUIRE(attend("cpu", &c, want));
    for (int i = 0; i < 4; i++) {
        fl_tensor *off = fl_amax(fl_abs(fl_sub(got[i], want[i])), FL_ALL_AXES);
        fl_tensor *size = fl_amax(fl_abs(want[i]), FL_ALL_AXES);
        if (!CHECK(fl_item(off) <= 0.025 * (0.2 + fl_item(size)))) /* false of NaN */
            printf("  %d x %d, mask %d, causal %d, offset %d, dropout %g, result %d: %g of %g\n",
                   (int)c.queries, (int)c.keys, c.mask, c.causal, (int)c.offset, c.dropout, i, fl_item(off),
                   fl_item(size));
    }
    fl_scope_end(&s);
    CHECK_EQ_INT(counted("mock_faults") + counted("mock_mistakes"), 0);
}

TEST(attention_with_masks_and_dropout_is_the_librarys_and_the_cpus) {
    NEEDS_MOCK;
    for (int kind = 0; kind < MASKS; kind++)
        for (int causal = 0; causal < 3; causal++)
            for (int drops = 0; drops < 2; drops++)
                attends((attention_case){4, 6, kind, causal > 0, causal > 1 ? 2 : 0, .dropout = drops * 0.3},
                        causal > 1 && (kind || drops) ? 0 : 2);
    for (int64_t keys = 127; keys < 130; keys++)
        attends((attention_case){5, keys, .dropout = 0.1, .dtype = FL_F16}, 2);
}

/* Of equal scores and one-hot values y is the weights: zero exactly where the cpu drops. */
TEST(attention_drops_the_weights_that_the_cpu_drops) {
    NEEDS_MOCK;
    fl_tensor *dropped[2];
    for (int i = 0; i < 2; i++) {
        CHECK(fl_backend_set_default(i ? "cpu" : "cuda"));
        fl_tensor *q = fl_zeros(FL_SHAPE(2, 3, 5, 8), FL_BF16), *k = fl_zeros(FL_SHAPE(2, 3, 7, 8), FL_BF16);
        fl_tensor *v = fl_contiguous(fl_expand(fl_cast(fl_eye(7, 8, FL_F32), FL_BF16), fl_shape_of(k)));
        fl_tensor *y = fl_attention(q, k, v, .dropout = 0.4, .rng = &(fl_rng){7, 3});
        dropped[i] = fl_to(fl_eq(y, fl_num(0)), "cpu");
    }
    CHECK_EQ_INT(counted("mock_runs"), 1);
    CHECK(fl_item(fl_all(fl_eq(dropped[0], dropped[1]), FL_ALL_AXES)) == 1);
    const double n = fl_item(fl_sum(fl_cast(fl_slice(dropped[0], 3, 0, 7, 1), FL_F32), FL_ALL_AXES));
    CHECK(n > 0.2 * 210 && n < 0.6 * 210);
}

/* Whether there is a plan for [8, 8, n, 64]; nothing is allocated. */
static int plans_of_attention(int64_t n) {
    const int cuda = fl_backend_index("cuda");
    fl_tensor *t[4];
    for (int i = 0; i < 4; i++) t[i] = fl_out_on(cuda, FL_SHAPE(8, 8, n, 64), FL_BF16);
    fl_tensor *lse = fl_out_on(cuda, FL_SHAPE(8, 8, n, 1), FL_F32);
    fl_attention_args a = {.scale = 0.125};
    return fl__cuda_dnn_plans(&(fl_call){.op = fl_op_attention, .n_out = 2, .n_in = 4, .out = {t[0], lse},
                                         .in = {t[1], t[2], t[3], fl_num(0)}, .args = &a});
}

TEST(attention_that_the_library_cannot_is_computed_by_our_kernels_and_counted) {
    NEEDS_MOCK;
    fl_log_set_sink(listen, NULL, FL_LOG_WARN);
    REQUIRE(fl__cuda_library_open("libcudnn.so.9") != NULL);
    static const int versions[][2] = {{91501, 0}, {90600, 0}, {91000, 0}, {91001, 0}, {91600, 2}, {92600, 2}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        *counter("mock_version") = versions[i][0];
        attends((attention_case){5, 197, .dropout = 0.1, .dtype = FL_F16}, versions[i][1]);
        attends((attention_case){5, 128, .dtype = FL_F16}, versions[i][1]);
    }
    CHECK_EQ_INT(n_said, 1);
    CHECK_STR(said[0], "attention is computed in parts: got cuDNN 9.15.1, expected 9.16");
    attends((attention_case){1, .keys = 1}, 0);
    attends((attention_case){1, .keys = 2}, 2);
    setenv("CUDA_EMU_MAJOR", "10", 1); /* its gradient with dropout is in no fixed order */
    attends((attention_case){5, 7, .dropout = 0.1}, 1);
    attends((attention_case){5, .keys = 7}, 2);
    *counter("mock_version") = 91701;
    attends((attention_case){5, .keys = 8}, 1);
    *counter("mock_workspace") = (1 << 30) + 1;
    attends((attention_case){5, .keys = 6}, 0);
    attends((attention_case){1, .keys = 2}, 2); /* a plan made before */
    CHECK_EQ_INT(plans_of_attention(4096), 1);  /* 12.9 GB with our own kernels */
    CHECK_EQ_INT(plans_of_attention(1152), 0);  /* 1.02 GB */
    CHECK_EQ_INT(plans_of_attention(1200), 1);
}

/* What is tuned: by which counter of the mocks it is made, what ran last, and the ways that they have for it.
   Tensor cores are allowed. */
static const struct {
    const char *made, *ran;
    int first, ways;
} tuned[] = {{"mock_plans", "mock_engine", 2, 2},
             {"mock_choices", "mock_way", 0, 3},
             {"mock_plans", "mock_engine", 2, 2}};

static fl_tensor *tuned_work(int what) {
    fl_tensor *x = whole(FL_SHAPE(1, 4, 3, 3), 1), *w = whole(FL_SHAPE(1, 4, 3, 3), 2);
    if (!what) return fl_conv(x, w, NULL);
    if (what == 1) return fl_matmul(x, w);
    x = fl_cast(x, FL_BF16);
    return fl_attention(x, x, x, .mask = fl_zeros(FL_SHAPE(3, 3), FL_F32));
}

/* In a process of its own, as it reads the file once, by that way (-1: any), of which so many were made. */
static bool tuned_child(int what, const char *path, int way, int made, const char *warning) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        setenv("FL_CUDA_TUNE", path, 1);
        fl_log_set_sink(listen, NULL, FL_LOG_WARN);
        fl_set_matmul_precision(FL_BF16);
        const double a = fl_item(fl_sum(tuned_work(what), FL_ALL_AXES));
        const double b = fl_item(fl_sum(tuned_work(what), FL_ALL_AXES));
        const bool told = warning ? n_said == 1 && strstr(said[0], warning) : !n_said;
        const int ran = counted(tuned[what].ran) - tuned[what].first;
        const bool as_asked = way < 0 ? ran >= 0 && ran < tuned[what].ways : ran == way;
        fl_backend_set_default("cpu");
        const double want = fl_item(fl_sum(tuned_work(what), FL_ALL_AXES));
        _exit(!(fabs(a - want) <= (what == 2) * 0.1 && a == b && told && !fl_error() &&
                counted(tuned[what].made) == made && as_asked &&
                counted("mock_faults") <= 0 && counted("mock_mistakes") <= 0));
    }
    int status = 1;
    return waitpid(child, &status, 0) == child && !status;
}

static bool write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    return f && fputs(text, f) >= 0 && !fclose(f);
}

/* The first run makes all ways, times them and makes the fastest again. */
static void tune_in(const char *path, int what) {
    static const char *const broken[] = {"", "other\n", "fl cuda tune 1\n0123456789abcdef",
                                         "fl cuda tune 1\nx 1\n", "fl cuda tune 1\n0123456789abcdef -1\n"};
    char text[200] = "", again[200] = "";
    const int first = tuned[what].first, ways = tuned[what].ways, asked = what == 1 ? ways + 2 : ways + 1;
    unlink(path);
    CHECK(tuned_child(what, path, -1, asked, NULL));
    FILE *f = fopen(path, "r");
    REQUIRE(f && fread(text, 1, sizeof text - 1, f) == 34 && !fclose(f));
    CHECK(!strncmp(text, "fl cuda tune 1\n", 15));
    for (int way = 0; way < ways; way++) {
        text[32] = (char)('0' + first + way);
        CHECK(write_text(path, text));
        CHECK(tuned_child(what, path, way, 1, NULL));
    }
    text[32] = '9'; /* it has none of that number any more: the first */
    CHECK(write_text(path, text));
    CHECK(tuned_child(what, path, 0, 1, NULL));
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        CHECK(write_text(path, broken[i]));
        CHECK(tuned_child(what, path, 0, 1, "is not a valid file"));
        f = fopen(path, "r");
        CHECK(f && fread(again, 1, sizeof again, f) == strlen(broken[i]) && !fclose(f)); /* it stays */
    }
    CHECK(tuned_child(what, "/tmp/absent/tune", -1, asked, "cannot write /tmp/absent/tune"));
}

TEST(what_libraries_offer_is_tuned_once_and_the_file_fixes_the_choice) {
    NEEDS_MOCK;
    char folder[] = "/tmp/fl-tune-XXXXXX", path[64];
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/tune", folder);
    for (int what = 0; what < 3; what++) tune_in(path, what);
    unlink(path);
    rmdir(folder);
}

/* A plan and a handle of one are none of the other's: the mocks would say so. */
TEST(each_device_has_handles_and_plans_of_its_own) {
    NEEDS_MOCK;
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    fl_tensor *x = whole(FL_SHAPE(2, 3, 5, 5), 1), *w = whole(FL_SHAPE(4, 3, 3, 3), 2);
    fl_tensor *want = fl_conv(fl_to(x, "cpu"), fl_to(w, "cpu"), NULL);
    static const char *const on[] = {"cuda", "cuda:1", "cuda", "cuda:1"};
    for (int i = 0; i < 4; i++) {
        fl_tensor *y = fl_to(fl_conv(fl_to(x, on[i]), fl_to(w, on[i]), NULL), "cpu");
        CHECK(same_as_cpu(fl_matmul(fl_to(a, on[i]), fl_to(b, on[i])), a, b));
        CHECK(y && fl_item(fl_all(fl_eq(y, want), FL_ALL_AXES)) == 1);
    }
    CHECK_EQ_INT(counted("mock_choices"), 2);
    CHECK_EQ_INT(counted("mock_products"), 4);
    CHECK_EQ_INT(counted("mock_plans"), 2);
    CHECK_EQ_INT(counted("mock_runs"), 4);
    CHECK_EQ_INT(counted("mock_mistakes") + counted("mock_faults"), 0);
}

/* Under a name that the loader does not know: in the packages of the first Python of PATH, of one that a link
   leads to, of VIRTUAL_ENV, in the toolkit's folder; a file that is no library is passed over. */
TEST(libraries_are_looked_for_where_they_may_lie) {
    NEEDS_MOCK;
#define PACKAGES "lib/python3.11/site-packages"
    static const char *const folders[] = {"bin", "other", "lib64", "lib", "lib/python3.11", PACKAGES,
                                          PACKAGES "/nvidia", PACKAGES "/nvidia/x", PACKAGES "/nvidia/x/lib"};
    const char *file = "libflmock.so.1";
    char where[] = "/tmp/fl-python-XXXXXX", path[PATH_MAX], to[PATH_MAX + 32], mock[PATH_MAX];
    snprintf(path, sizeof path, "%s/libcublasLt.so.13", getenv("FL_CUDA_LIBS"));
    REQUIRE(realpath(path, mock) && mkdtemp(where));
    const int n = (int)(sizeof folders / sizeof *folders);
#define AT(name) (snprintf(path, sizeof path, "%s/%s", where, name), path)
    for (int i = 0; i < n; i++) CHECK(!mkdir(AT(folders[i]), 0700));
    unsetenv("FL_CUDA_LIBS"), unsetenv("VIRTUAL_ENV");
    setenv("CUDA_HOME", where, 1), setenv("PATH", AT("other"), 1);
    CHECK(!fl__cuda_library_open(file));
    snprintf(to, sizeof to, "%s/libflmock.so.1", AT(PACKAGES "/nvidia/x/lib"));
    CHECK(!symlink(mock, to) && close(open(AT("bin/python3"), O_CREAT | O_WRONLY, 0700)) == 0);
    CHECK(!fl__cuda_library_open(file));
    setenv("PATH", AT("bin"), 1);
    CHECK(fl__cuda_library_open(file));
    CHECK(!symlink("../bin/python3", AT("other/python3")));
    setenv("PATH", AT("other"), 1);
    CHECK(fl__cuda_library_open(file));
    setenv("PATH", "/absent", 1), setenv("VIRTUAL_ENV", where, 1);
    CHECK(fl__cuda_library_open(file));
    unsetenv("VIRTUAL_ENV");
    CHECK(!fl__cuda_library_open(file));
    /* relative folders are skipped: the current one may be anybody's */
    char before[PATH_MAX];
    REQUIRE(getcwd(before, sizeof before) && !chdir(where));
    setenv("PATH", "bin:./other:.", 1), setenv("VIRTUAL_ENV", ".", 1);
    CHECK(!symlink(mock, "lib64/libflmock.so.1"));
    setenv("CUDA_HOME", ".", 1);
    CHECK(!fl__cuda_library_open(file));
    CHECK(!unlink("lib64/libflmock.so.1") && !chdir(before));
    unsetenv("VIRTUAL_ENV"), setenv("CUDA_HOME", where, 1), setenv("PATH", "/absent", 1);
    CHECK(close(open(AT("lib64/libflmock.so.1"), O_CREAT | O_WRONLY, 0700)) == 0);
    CHECK(!fl__cuda_library_open(file)); /* no library */
    CHECK(!unlink(AT("lib64/libflmock.so.1")) && !symlink(mock, AT("lib64/libflmock.so.1")));
    CHECK(fl__cuda_library_open(file));
    CHECK(!fl__cuda_library_open("libflmock.so.13") && !symlink(mock, AT("lib64/libflmock.so.12")));
    CHECK(fl__cuda_library_open("libflmock.so.13")); /* CUDA 12's in place of 13's */
    CHECK(!unlink(AT("lib64/libflmock.so.12")));
    unlink(AT("lib64/libflmock.so.1")), unlink(AT("other/python3")), unlink(AT("bin/python3")), unlink(to);
    for (int i = n - 1; i >= 0; i--) CHECK(!rmdir(AT(folders[i])));
    CHECK(!rmdir(where));
#undef AT
#undef PACKAGES
}

/* Tests run in processes of their own, so that this one finds nothing. */
TEST(without_the_library_there_is_one_warning_and_our_own_kernel) {
    NEEDS_MOCK;
    char where[] = "/tmp/fl-vendor-XXXXXX", path[64];
    REQUIRE(mkdtemp(where) != NULL);
    snprintf(path, sizeof path, "%s/libcublasLt.so.13", where); /* no library, though of that name */
    FILE *f = fopen(path, "w");
    REQUIRE(f && fputs("no library", f) >= 0 && !fclose(f));
    setenv("FL_CUDA_LIBS", where, 1);
    setenv("PATH", where, 1);
    setenv("CUDA_HOME", where, 1);
    unsetenv("VIRTUAL_ENV");
    void *installed = dlopen("libcublasLt.so.13", RTLD_LAZY); /* the loader's path is not for us to change */
    fl_log_set_sink(listen, NULL, FL_LOG_WARN);
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    for (int i = 0; i < 3; i++) CHECK(same_as_cpu(fl_matmul(a, b), a, b));
    CHECK(!fl_error());
    CHECK_EQ_INT(n_said, 1);
    CHECK_STR(said[0], installed ? "cublasLtCreate" : "cuda: libcublasLt.so.13 is not found");
    CHECK_STR(said[0], "our own slower kernels");
    unlink(path);
    rmdir(where);
}

TEST(no_library_is_looked_for_where_the_environment_says_so) {
    NEEDS_MOCK;
    setenv("FL_CUDA_LIBS", "no", 1);
    fl_log_set_sink(listen, NULL, FL_LOG_WARN);
    fl_tensor *a = whole(FL_SHAPE(5, 8), 2), *b = whole(FL_SHAPE(8, 6), 3);
    CHECK(same_as_cpu(fl_matmul(a, b), a, b));
    CHECK_EQ_INT(counted("mock_products"), -1);
    CHECK_EQ_INT(n_said, 1);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
