/* test_cuda.c - family cuda where a program may trip over it: no device, failing calls, late errors,
   mappings, memory. What its ops compute is for conformance, gradcheck and random (make CUDA=emu
   test-cuda). */
#include "../fl.h"
#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

/* The emulation's; a build for a GPU has none. */
extern void cuda_emu_fail_in(int64_t n) __attribute__((weak));
extern void cuda_emu_break(void) __attribute__((weak));
extern void cuda_emu_limit(int64_t bytes)
    __attribute__((weak)); /* of device memory; 0: as at the start */
extern int64_t cuda_emu_launches(void) __attribute__((weak));

static bool use_cuda(void) {
    test_errors_return();
    const bool there = fl_backend_index("cuda") >= 0;
    fl_error_clear();
    return there && fl_backend_set_default("cuda");
}
/* The emulation's device is there unless a test says otherwise; a GPU may be absent. */
static bool has_device(void) {
    fl_scope s = fl_scope_begin();
    const bool there = cuda_emu_fail_in || fl_zeros(FL_SCALAR_SHAPE, FL_F32);
    if (!there) CHECK_ERROR("FL_DEVICE=cpu");
    fl_scope_end(&s);
    return there;
}
#define NEEDS_CUDA                                                 \
    if (!use_cuda()) SKIP("family cuda: make CUDA=emu test-cuda"); \
    if (!has_device()) SKIP("family cuda: no device")
#define NEEDS_EMULATION \
    NEEDS_CUDA;         \
    if (!cuda_emu_fail_in) SKIP("the emulation's failing calls: make CUDA=emu test-cuda")

/* sum((a b)[:, ::2]) of ones [3, 4] and twos [4, 6]: 3 x 3 elements of 8. NaN after an error. */
static double small_work(void) {
    fl_scope s = fl_scope_begin();
    const float one[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    fl_tensor *a = fl_from_host(one, FL_SHAPE(3, 4), FL_F32);
    fl_tensor *y = fl_matmul(a, fl_full(FL_SHAPE(4, 6), 2, FL_F32));
    fl_tensor *sorted = fl_sort(fl_slice(y, 1, 0, 6, 2), 0, false, NULL);
    const double sum = sorted ? fl_item(fl_sum(sorted, FL_ALL_AXES)) : (double)NAN;
    fl_scope_end(&s);
    return fl_error() ? (double)NAN : sum;
}

TEST(works_and_leaves_nothing) {
    NEEDS_CUDA;
    CHECK_EQ_INT(small_work(), 72);
    CHECK_EQ_INT(fl_mem_live(), 0);
}

TEST(no_device_and_no_driver_are_errors_that_name_the_way_out) {
    NEEDS_EMULATION;
    setenv("CUDA_EMU_DEVICES", "0", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "no CUDA device; FL_DEVICE=cpu");
    fl_error_clear();
    setenv("CUDA_EMU_DEVICES", "-1", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "no CUDA driver; FL_DEVICE=cpu");
    fl_error_clear();
    CHECK(fl_backend_set_default("cpu"));
    CHECK_EQ_INT(small_work(), 72);
    setenv("CUDA_EMU_DEVICES", "1", 1); /* plugged in: the next call finds it */
    CHECK(fl_backend_set_default("cuda"));
    CHECK_EQ_INT(small_work(), 72);
}

TEST(any_call_of_the_runtime_may_fail_and_the_next_try_works) {
    NEEDS_EMULATION;
    bool failed = true;
    for (int64_t n = 1; failed && n < 200; n++) {
        cuda_emu_fail_in(n);
        const double y = small_work();
        failed = fl_error() != NULL;
        cuda_emu_fail_in(0);
        if (failed)
            CHECK_STR(fl_error(), "c");
        else
            CHECK_EQ_INT(y, 72);
        fl_error_clear();
        CHECK_EQ_INT(small_work(), 72);
        CHECK_EQ_INT(fl_mem_live(), 0);
        if (n < 8) CHECK(failed); /* it starts, allocates, copies and launches */
    }
    CHECK(!failed);
}

TEST(what_only_the_data_shows_is_an_error_of_the_next_read) {
    NEEDS_CUDA;
    const int64_t at[2] = {1, 7};
    fl_tensor *i = fl_from_host(at, FL_SHAPE(2), FL_I64), *x = fl_arange(0, 3, 1, FL_F32);
    fl_tensor *y = fl_gather(x, 0, i);
    CHECK(y && !fl_error());
    CHECK(!fl_sync(y));
    CHECK_STR(fl_error(), "fl_gather: index 7 is out of range for axis 0 of size 3");
    fl_error_clear();
    CHECK(fl_sync(y)); /* it was reported */
    fl_tensor *r = fl_remainder(i, fl_int(0));
    double got[2];
    CHECK(!fl_to_host(r, got, 16));
    CHECK_STR(fl_error(), "fl_remainder: integer division by zero");
    fl_error_clear();
    fl_tensor *one = fl_full(FL_SHAPE(1), 1, FL_I64), *target = fl_full(FL_SHAPE(1, 1), 3, FL_I64);
    fl_tensor *logp = fl_zeros(FL_SHAPE(2, 1, 3), FL_F32);
    CHECK(!fl_to_host(fl_ctc_loss(logp, target, one, one), got, 4));
    CHECK_STR(fl_error(), "fl_gather: index 3 is out of range for axis 2 of size 3");
    fl_error_clear();
    fl_tensor *two = fl_full(FL_SHAPE(1), 2, FL_I64);
    CHECK(!fl_to_host(fl_ctc_loss(logp, fl_sub(target, two), one, two), got, 4));
    CHECK_STR(fl_error(), "fl_gather: index 2 is out of range for axis 1 of size 2");
    fl_error_clear();
    CHECK_EQ_INT(small_work(), 72);
}

TEST(mappings_reach_views_with_gaps_and_backwards) {
    NEEDS_CUDA;
    fl_tensor *x = fl_reshape(fl_arange(0, 12, 1, FL_I32), FL_SHAPE(3, 4));
    fl_tensor *v = fl_flip(fl_slice(x, 1, 0, 4, 2), 1,
                           FL_ARRAY(int, 0)); /* a copy or a view: both are mapped */
    const int32_t *p = fl_map(v, FL_READ);
    REQUIRE(p != NULL);
    CHECK_EQ_INT(p[0], 8);
    CHECK_EQ_INT(p[v->stride[0] + v->stride[1]], 6);
    fl_unmap(v, FL_READ);
    fl_tensor *gaps = fl_slice(x, 1, 1, 4, 2);
    int32_t *w = fl_map(gaps, FL_WRITE);
    REQUIRE(w != NULL);
    for (int64_t k = 0; k < 3; k++)
        w[k * gaps->stride[0]] = -1, w[k * gaps->stride[0] + gaps->stride[1]] = -2;
    fl_unmap(gaps, FL_WRITE);
    int32_t all[12];
    CHECK(fl_to_host(x, all, sizeof all));
    for (int k = 0; k < 12; k++) CHECK_EQ_INT(all[k], k % 4 == 1 ? -1 : k % 4 == 3 ? -2 : k);
}

TEST(memory_is_kept_and_given_back) {
    NEEDS_CUDA;
    CHECK_EQ_INT(small_work(), 72);
    fl_tensor *x = fl_zeros(FL_SHAPE(1000), FL_F32);
    fl_mem_manager *m = x->buffer->device->manager;
    const int64_t trips = fl_mem_stats_of(m).device_gets;
    CHECK_EQ_INT(small_work(), 72);
    CHECK_EQ_INT(fl_mem_stats_of(m).device_gets, trips);
    CHECK(fl_mem_stats_of(m).free_blocks > 0);
    CHECK(m->trim(m) > 0);
    CHECK_EQ_INT(fl_mem_stats_of(m).free_blocks, 0);
    CHECK_EQ_INT(fl_mem_stats_of(m).reserved, fl_mem_stats_of(m).in_use);
    CHECK_EQ_INT(small_work(), 72);
}

TEST(families_move_to_each_other) {
    NEEDS_CUDA;
    fl_tensor *x = fl_transpose(fl_reshape(fl_arange(0, 6, 1, FL_F64), FL_SHAPE(2, 3)), 0, 1);
    fl_tensor *host = fl_to(x, "cpu"), *back = fl_to(host, "cuda");
    double a[6], b[6];
    CHECK(host && back && !strcmp(fl_backend_name(host), "cpu") &&
          !strcmp(fl_backend_name(back), "cuda"));
    CHECK(fl_to_host(host, a, sizeof a) && fl_to_host(back, b, sizeof b));
    CHECK_EQ_INT(a[1], 3);
    CHECK(!memcmp(a, b, sizeof a));
}

/* The draws are the same numbers on both families. */
TEST(draws_are_the_cpus) {
    NEEDS_CUDA;
    float a[1001], b[1001];
    fl_seed(5);
    CHECK(fl_to_host(fl_uniform(FL_SHAPE(1001), 0, 1, FL_F32, NULL), a, sizeof a));
    CHECK(fl_backend_set_default("cpu"));
    fl_seed(5);
    CHECK(fl_to_host(fl_uniform(FL_SHAPE(1001), 0, 1, FL_F32, NULL), b, sizeof b));
    CHECK(!memcmp(a, b, sizeof a));
}

/* Bandwidth is dear there: values are kept, unless asked otherwise. */
TEST(nothing_is_computed_again_unless_asked) {
    NEEDS_CUDA;
    fl_var *x = fv_param(fl_ones(FL_SHAPE(128, 256), FL_F32));
    CHECK(!fv_recomputed(fv_layer_norm(x, 1, NULL, NULL, 1e-5)));
    CHECK_EQ_INT(fl_set_recompute(1 << 10), -1);
    CHECK(fv_recomputed(fv_layer_norm(x, 1, NULL, NULL, 1e-5)));
    CHECK_EQ_INT(fl_set_recompute(-1), 1 << 10);
}

/* Lines, channels and windows too many for conformance: those that a block of threads shares, and sums that
   are taken in parts. Each gives a few numbers, which are the cpu's. */
enum { LARGE_KINDS = 16 };
/* More places than a block has threads. */
static fl_var *large_ctc(fl_var *x) {
    const int64_t steps[2] = {300, 290}, lengths[2] = {140, 131};
    fl_tensor *label = fl_remainder(fl_mul(fl_arange(0, 280, 1, FL_I64), fl_int(7)), fl_int(29));
    fl_var *logp = fv_log_softmax(fv_reshape(fv_slice(x, 1, 0, 2000, 1), FL_SHAPE(300, 2, 30)), -1);
    return fv_ctc_loss(logp, fl_reshape(fl_add(label, fl_int(1)), FL_SHAPE(2, 140)),
                       fl_from_host(steps, FL_SHAPE(2), FL_I64),
                       fl_from_host(lengths, FL_SHAPE(2), FL_I64), .reduction = FL_NONE);
}

static fl_var *large_value(int kind, fl_var *x, fl_var *w) {
    fl_tensor *target = fl_full(FL_SHAPE(9), 3, FL_I64);
    fl_tensor *rows = fl_remainder(fl_mul(fl_arange(0, 300, 1, FL_I64), fl_int(7)), fl_int(9));
    switch (kind) {
    case 0:
        return fv_softmax(x, 1);
    case 1:
        return fv_log_softmax(x, 0);
    case 2:
        return fv_layer_norm(x, 1, w, w, 1e-5);
    case 3:
        return fv_rms_norm(x, 1, w, 1e-5);
    case 4:
        return fv_cross_entropy(x, target, .smoothing = 0.1, .reduction = FL_NONE);
    case 5:
        return fv_batch_norm(fv_reshape(x, FL_SHAPE(1, 9, 151, 151)), NULL, NULL, .train = true);
    case 6:
        return fv_batch_norm(
            fv_permute(fv_reshape(x, FL_SHAPE(3, 151, 151, 3)), 4, FL_ARRAY(int, 0, 3, 1, 2)), NULL,
            NULL, .train = true, .relu = true);
    case 9: return fv_embedding(rows, fv_slice(x, 1, 0, 500, 1), -1);
    case 10: /* rows of scores end within a draw of four numbers */
        x = fv_reshape(fv_slice(x, 1, 0, 2120, 1), FL_SHAPE(3, 530, 12));
        return fv_attention_packed(x, .causal = true, .window = 523, .softcap = 3, .scale = 0.02,
                                   .dropout = 0.3, .rng = &(fl_rng){5, 1});
    case 11: return large_ctc(x);
    case 12: return fv_fft(fv_reshape(fv_slice(x, 1, 0, 6600, 1), FL_SHAPE(9, 1100, 3, 2)), 1);
    case 14: /* planes, then channels innermost */
    case 15:
        x = fv_reshape(fv_slice(x, 1, 0, 7200, 1), FL_SHAPE(9, 30, 40, 6));
        x = kind == 14 ? fv_reshape(x, FL_SHAPE(9, 6, 30, 40))
                       : fv_permute(x, 4, FL_ARRAY(int, 0, 3, 1, 2));
        w = fv_slice(w, 0, 0, 6, 1);
        return fv_group_norm(x, 3, w, w, 1e-5);
    case 13: return fv_ifft(fv_reshape(fv_slice(x, 1, 0, 2402, 1), FL_SHAPE(9, 1201, 2)), 1);
    case 7:
        return fv_max_pool(fv_reshape(x, FL_SHAPE(3, 3, 151, 151)), NULL, .kernel = {3},
                           .stride = {2}, .pad = {1});
    default:
        return fv_avg_pool(fv_reshape(x, FL_SHAPE(3, 3, 151, 151)), .kernel = {3}, .stride = {2},
                           .pad = {1}, .ignore_pad = true);
    }
}

static void large_results(const char *family, double got[LARGE_KINDS][3]) {
    CHECK(fl_backend_set_default(family));
    for (int kind = 0; kind < LARGE_KINDS; kind++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {3, 0};
        const int64_t columns = 151 * 151;
        fl_var *x = fv_param(fl_normal(FL_SHAPE(9, columns), 4, 2, FL_F32, &rng));
        fl_var *w = fv_param(fl_normal(FL_SHAPE(columns), 1, 0.3, FL_F32, &rng));
        fl_var *y = large_value(kind, x, w);
        fl_tensor *dy = y ? fl_normal(fl_shape_of(fv_value(y)), 0, 1, FL_F32, &rng) : NULL;
        CHECK(y && fl_backward(y, .grad = dy));
        fl_tensor *dw = fv_grad(w);
        got[kind][0] = fl_item(fl_sum(fl_mul(fv_value(y), dy), FL_ALL_AXES));
        got[kind][1] = fl_item(fl_sum(fl_mul(fl_abs(fv_grad(x)), fv_value(x)), FL_ALL_AXES));
        got[kind][2] = dw ? fl_item(fl_sum(fl_abs(dw), FL_ALL_AXES)) : 0;
        fl_scope_end(&s);
    }
}

TEST(large_operands_give_what_the_cpu_gives) {
    NEEDS_CUDA;
    double want[LARGE_KINDS][3], got[LARGE_KINDS][3];
    large_results("cuda", got);
    large_results("cpu", want);
    for (int kind = 0; kind < LARGE_KINDS; kind++)
        for (int i = 0; i < 3; i++)
            if (!CHECK(fabs(got[kind][i] - want[kind][i]) <= 1e-3 * (0.01 + fabs(want[kind][i]))))
                printf("  kind %d, number %d: %g, not %g\n", kind, i, got[kind][i], want[kind][i]);
}

/* A few steps of eight parameters with their gradients clipped: the last
   parameter's elements, and the launches of the last step. */
static double train_family(const char *family, float *last, int64_t *launches) {
    enum { PARAMS = 8, ROWS = 301, COLUMNS = 33 };
    double norm = 0;
    fl_rng rng = {7, 0};
    CHECK(fl_backend_set_default(family));
    fl_scope s = fl_scope_begin();
    fl_var *p[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        p[i] = fv_param(fl_normal(FL_SHAPE(i ? ROWS : 1, COLUMNS), 0, 1, FL_F32, &rng));
    fl_optim *o = fl_optim_adamw(((fv_list){PARAMS, p}), .lr = 1e-2);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < PARAMS; i++)
            CHECK(fv_set_grad(
                p[i], fv_const(fl_normal(fl_shape_of(fv_value(p[i])), 0, 1, FL_F32, &rng))));
        const int64_t before = cuda_emu_launches ? cuda_emu_launches() : 0;
        fl_tensor *n = fl_optim_clip(o, 2);
        CHECK(fl_optim_step(o) && fl_sync(fv_value(p[0])));
        if (launches) *launches = cuda_emu_launches() - before;
        norm = fl_item(n);
    }
    CHECK(fl_to_host(fv_value(p[0]), last, COLUMNS * sizeof *last));
    fl_optim_free(o);
    fl_scope_end(&s);
    return norm;
}

TEST(clipping_and_a_step_of_all_parameters_are_six_launches) {
    NEEDS_EMULATION;
    float a[33], b[33];
    int64_t launches = 0;
    const double got = train_family("cuda", a, &launches), want = train_family("cpu", b, NULL);
    CHECK_NEAR(got, want, 1e-6 * want);
    for (int i = 0; i < 33; i++) CHECK_NEAR(a[i], b[i], 1e-6);
    CHECK_EQ_INT(launches, 6);
    CHECK_EQ_INT(fl_mem_live(), 0);
}

/* What waits in the queue is as if it had run: a step that reads what one before wrote, a tensor that is
   dropped, one that is read. */
TEST(what_waits_is_seen_by_nobody) {
    NEEDS_CUDA;
    static fl_step_rule rule = {
        .reads = "g", .writes = "p", .numbers = "lr", .formula = "SUB(p, MUL(lr, g))"};
    fl_tensor *p = fl_full(FL_SHAPE(700), 1, FL_F32), *q = fl_full(FL_SHAPE(700), 2, FL_F32);
    fl_tensor *lr = fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64);
    CHECK(fl_step(&rule, (fl_tensor *[]){q, p}, 1, &lr, NULL)); /* p = 0 */
    CHECK(fl_step(&rule, (fl_tensor *[]){p, q}, 1, &lr, NULL)); /* q = 2, not 1.5 */
    fl_scope s = fl_scope_begin();
    fl_tensor *g = fl_full(FL_SHAPE(700), 8, FL_F32);
    CHECK(fl_step(&rule, (fl_tensor *[]){g, q}, 1, &lr, NULL)); /* q = -2 */
    fl_scope_end(&s);
    fl_tensor *other = fl_full(FL_SHAPE(700), 100, FL_F32); /* perhaps where g was */
    CHECK_EQ_INT(fl_item(fl_sum(p, FL_ALL_AXES)), 0);
    CHECK_EQ_INT(fl_item(fl_sum(q, FL_ALL_AXES)), -1400);
    CHECK_EQ_INT(fl_item(fl_add_squares(fl_sum_squares(q), other)), 2800 + 7000000);
    CHECK(fl_step(&rule, (fl_tensor *[]){q, p}, 1, &lr, NULL));
    const double late[1] = {1000}; /* after the step: it used 0.5 */
    CHECK(fl_set_host(lr, late, sizeof late));
    CHECK_EQ_INT(fl_item(fl_sum(p, FL_ALL_AXES)), 700);
}

TEST(out_of_memory_says_so_and_the_same_call_succeeds_later) {
    NEEDS_EMULATION;
    CHECK_EQ_INT(small_work(), 72);
    fl_tensor *large = fl_zeros(FL_SHAPE(1 << 20), FL_F32);
    REQUIRE(large != NULL);
    fl_mem_manager *m = large->buffer->device->manager;
    cuda_emu_limit(24 << 20);
    fl_scope s = fl_scope_begin();
    CHECK(fl_zeros(FL_SHAPE(4 << 20), FL_F32)); /* 16 MiB, beside 4 */
    fl_scope_end(&s);                           /* they are cached, */
    CHECK(fl_mem_stats_of(m).reserved > 16 << 20);
    s = fl_scope_begin();
    CHECK(fl_zeros(FL_SHAPE(17, 1 << 18), FL_F32)); /* and trimmed for 17 */
    CHECK(!fl_zeros(FL_SHAPE(4 << 20), FL_F32));    /* with these 17 there is no room for 16 */
    CHECK_STR(fl_error(), "out of memory: asked for 16777216 bytes, in use");
    fl_error_clear();
    fl_scope_end(&s);
    CHECK(fl_zeros(FL_SHAPE(4 << 20), FL_F32));
    cuda_emu_limit(0);
}

/* In a process of its own, as every test: the device stays broken. */
TEST(a_broken_device_says_the_first_error_for_ever) {
    NEEDS_EMULATION;
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    cuda_emu_break();
    for (int i = 0; i < 3; i++) {
        CHECK(!fl_add(x, x) || !fl_sync(x));
        CHECK_STR(fl_error(), "unspecified launch failure");
        fl_error_clear();
    }
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "unspecified launch failure");
    fl_error_clear();
    CHECK(fl_backend_set_default("cpu"));
    CHECK_EQ_INT(small_work(), 72);
}

TEST(a_child_of_fork_is_told_to_exec) {
    NEEDS_CUDA;
    CHECK_EQ_INT(small_work(), 72);
    setenv("CUDA_EMU_FORK", "1", 1); /* the emulation's memory would be there */
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(!fl_zeros(FL_SHAPE(2), FL_F32) && strstr(fl_error(), "forked") ? 0 : 1);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
