/* test_cuda.c - backend cuda where a program may trip over it: no device, failing calls, late errors,
   mappings, memory. What its ops compute is for conformance, gradcheck and random (make CUDA=emu
   test-cuda). */
#include "../fl_all.h"
#include "../examples/extend/own_op.h"
#include "heap.h"
#include "test.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

/* The emulation's; a build for a GPU has none. */
extern void cuda_emu_fail_in(int64_t n) __attribute__((weak));
extern void cuda_emu_break(void) __attribute__((weak));
extern void cuda_emu_break_next(void) __attribute__((weak)); /* the work that runs next breaks the device */
extern void cuda_emu_set_device(int device) __attribute__((weak));
extern void cuda_emu_limit(int64_t bytes)
    __attribute__((weak)); /* of device memory; 0: as at the start */
extern int64_t cuda_emu_launches(void) __attribute__((weak));
extern void cuda_emu_seed(uint64_t seed) __attribute__((weak));
extern int64_t cuda_emu_waiting(void) __attribute__((weak));
extern void cuda_emu_drop_waits(int drop) __attribute__((weak)); /* streams wait for nothing */


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
    if (!use_cuda()) SKIP("backend cuda: make CUDA=emu test-cuda"); \
    if (!has_device()) SKIP("backend cuda: no device")
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
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(no_device_no_driver_an_old_one_another_architecture_are_errors_that_name_the_way_out) {
    NEEDS_EMULATION;
    setenv("CUDA_EMU_DEVICES", "0", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "no CUDA device; FL_DEVICE=cpu");
    fl_error_clear();
    setenv("CUDA_EMU_DEVICES", "-1", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "no CUDA driver; FL_DEVICE=cpu");
    fl_error_clear();
    setenv("CUDA_EMU_DRIVER", "11040", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "the driver is of CUDA 11.4, which is too old for 13.0; FL_DEVICE=cpu");
    fl_error_clear();
    setenv("CUDA_EMU_DEVICES", "1", 1);
    setenv("CUDA_EMU_OTHER", "1", 1);
    CHECK(!fl_zeros(FL_SHAPE(2), FL_F32));
    CHECK_STR(fl_error(), "the kernels were built for sm_90, device 0 is sm_10 (emulation): make CUDA=1 "
                          "CUDA_ARCH=10 (by nvcc 12: 13 cannot); FL_DEVICE=cpu runs without it");
    fl_error_clear();
    unsetenv("CUDA_EMU_OTHER");
    CHECK(fl_backend_set_default("cpu"));
    CHECK_EQ_INT(small_work(), 72);
    setenv("CUDA_EMU_DEVICES", "1", 1); /* plugged in: the next call finds it */
    CHECK(fl_backend_set_default("cuda"));
    CHECK_EQ_INT(small_work(), 72);
}

TEST(any_call_of_the_runtime_may_fail_and_the_next_try_works) {
    NEEDS_EMULATION;
    bool failed = true;
    int failures = 0;
    for (int64_t n = 1; n < 60; n++) {
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
        CHECK_EQ_INT(test_live_buffers(), 0);
        failures += failed; /* not where memory is asked for again */
    }
    CHECK(!failed && failures > 10);
}

/* They are read as they lie: no copy in f32 comes first. */
TEST(a_sum_of_halves_is_one_launch) {
    NEEDS_EMULATION;
    fl_tensor *x = fl_ones(FL_SHAPE(300, 5), FL_BF16);
    CHECK(fl_sync(x));
    const int64_t before = cuda_emu_launches();
    fl_tensor *y = fl_sum(x, FL_AXES(0));
    CHECK(y && fl_sync(y) && y->dtype == FL_BF16);
    CHECK_EQ_INT(cuda_emu_launches() - before, 1);
    CHECK_EQ_INT(fl_item(fl_select(y, 0, 4)), 300);
}

/* Losses and the logits' gradient, f32: first of x as it is, then of its copy in f32. */
static fl_tensor *entropy_of(fl_tensor *x, bool wide, fl_tensor **dx, int64_t launches[2]) {
    fl_tensor *target = fl_remainder(fl_arange(0, x->shape[0], 1, FL_I64), fl_int(9));
    fl_var *v = fv_param(wide ? fl_cast(x, FL_F32) : x);
    CHECK(fl_sync(fv_value(v)) && fl_sync(target));
    launches[0] = cuda_emu_launches();
    fl_var *y = fv_cross_entropy(v, target, .smoothing = 0.1, .reduction = FL_NONE);
    CHECK(y && fl_sync(fv_value(y)));
    launches[0] = cuda_emu_launches() - launches[0];
    fl_tensor *dy = fl_full(FL_SHAPE(x->shape[0]), 0.5, fv_value(y)->dtype);
    CHECK(fl_sync(dy));
    launches[1] = cuda_emu_launches();
    CHECK(fl_backward(y, .grad = dy) && fl_sync(*dx = fv_grad(v)));
    launches[1] = cuda_emu_launches() - launches[1];
    return fv_value(y);
}

/* Rows of an odd number of halves, and a first row of an odd address, are read and written as they lie: one
   launch, and one for the losses or their gradients in the other dtype. */
TEST(cross_entropy_of_halves_copies_no_logits) {
    NEEDS_EMULATION;
    fl_rng rng = {4, 2};
    for (int skip = 0; skip < 2; skip++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_slice(fl_normal(FL_SHAPE(40, 1003), 0, 3, FL_BF16, &rng), 0, skip, 40, 1), *dx, *dw;
        int64_t launches[2], more[2];
        fl_tensor *y = entropy_of(x, false, &dx, launches), *w = entropy_of(x, true, &dw, more);
        CHECK(launches[0] == 2 && launches[1] == 2);
        CHECK(y->dtype == FL_BF16 && dx->dtype == FL_BF16);
        fl_tensor *off = fl_le(fl_abs(fl_sub(dx, dw)), fl_mul(fl_abs(dw), fl_num(0.004)));
        CHECK_EQ_INT(fl_item(fl_all(off, FL_ALL_AXES)), 1);
        off = fl_le(fl_abs(fl_sub(y, w)), fl_mul(w, fl_num(0.004)));
        CHECK_EQ_INT(fl_item(fl_all(off, FL_ALL_AXES)), 1);
        fl_scope_end(&s);
    }
}

/* Rows at indices are copied 16 bytes at once where they can be. */
TEST(rows_at_indices_are_those_of_the_cpu) {
    NEEDS_CUDA;
    static const fl_dtype types[] = {FL_B8, FL_BF16, FL_F32, FL_I64};
    for (int i = 0; i < 4 * 2 * 3; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_cast(fl_remainder(fl_arange(0, 3 * 50 * 33, 1, FL_I64), fl_int(251)), types[i % 4]);
        const int axis = i / 8 != 1;
        fl_tensor *rows = fl_mul(fl_arange(0, 70, 1, FL_I64), fl_int(13));
        rows = fl_remainder(rows, fl_int(axis ? 50 : 3));
        x = fl_reshape(x, FL_SHAPE(3, 50, 33));
        if (i / 4 % 2) x = fl_contiguous(fl_slice(x, 2, 0, 32, 1));
        if (i / 8 == 2) x = fl_slice(x, 2, 1, 17, 1); /* 16, not at a multiple of 16 bytes */
        fl_tensor *y = fl_index_select(x, axis, rows);
        fl_tensor *want = fl_index_select(fl_to(x, "cpu"), axis, fl_to(rows, "cpu"));
        if (!CHECK(fl_item(fl_all(fl_eq(fl_to(y, "cpu"), want), FL_ALL_AXES)) == 1)) printf("  case %d\n", i);
        fl_scope_end(&s);
    }
}

/* A row that is read 8192 times, and others: each gradient is a sum of parts, in order. One running sum in
   f32 is off by 6e-5 of it. */
TEST(gradients_of_a_row_read_often_are_summed_in_segments) {
    NEEDS_CUDA;
    enum { TIMES = 8192, OTHERS = 45, WIDTH = 12 };
    float got[2][60 * WIDTH];
    for (int run = 0; run < 2; run++) {
        fl_scope s = fl_scope_begin();
        if (cuda_emu_seed) cuda_emu_seed(run);
        fl_tensor *index = fl_concat(FL_ARRAY(fl_tensor *, fl_full(FL_SHAPE(TIMES), 7, FL_I64),
                                              fl_arange(0, OTHERS, 1, FL_I64)), 2, 0);
        fl_var *w = fv_param(fl_zeros(FL_SHAPE(60, WIDTH), FL_F32)), *y = fv_embedding(index, w, -1);
        CHECK(fl_backward(y, .grad = fl_full(FL_SHAPE(TIMES + OTHERS, WIDTH), 0.1, FL_F32)));
        CHECK(fl_to_host(fv_grad(w), got[run], sizeof got[run]));
        fl_scope_end(&s);
    }
    for (int i = 0; i < 60 * WIDTH; i++) {
        const double want = i / WIDTH == 7 ? 0.1f * (TIMES + 1.0) : i / WIDTH < OTHERS ? 0.1f : 0;
        CHECK_NEAR(got[0][i], want, 4e-6 * want);
    }
    CHECK(!memcmp(got[0], got[1], sizeof got[0]));
}

/* Up to eight are one launch. */
TEST(tensors_side_by_side_are_one_launch) {
    NEEDS_EMULATION;
    fl_tensor *t[20], *host[20], *y;
    for (int i = 0; i < 20; i++) {
        t[i] = fl_transpose(fl_reshape(fl_arange(i, 3 * i + i, 1, FL_BF16), FL_SHAPE(3, i)), 0, 1);
        host[i] = fl_to(t[i], "cpu");
    }
    for (int n = 2; n <= 20; n++) {
        const int64_t before = cuda_emu_launches();
        CHECK((y = fl_concat(t, n, 0)) && fl_sync(y));
        CHECK_EQ_INT(cuda_emu_launches() - before, (n + 7) / 8);
        CHECK(fl_item(fl_all(fl_eq(fl_to(y, "cpu"), fl_concat(host, n, 0)), FL_ALL_AXES)) == 1);
    }
    fl_tensor *large[] = {fl_full(FL_SHAPE(1 << 18), 2, FL_F32), fl_full(FL_SHAPE(1 << 19), 3, FL_F32)};
    const int64_t before = cuda_emu_launches();
    CHECK((y = fl_concat(large, 2, 0)) && fl_sync(y));
    CHECK_EQ_INT(cuda_emu_launches() - before, 0); /* copies */
    CHECK_EQ_INT(fl_item(fl_sum(y, FL_ALL_AXES)), (2 << 18) + (3 << 19));
}

/* A block with dropout whose norms are behind or before its branches: sum, norm and gradients of its input.
   */
static int64_t block_bytes(bool first, float *got) {
    fl_rng rng = {3, 5};
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_transformer(16, 2, 24, .dropout = 0.3, .norm_first = first, .rms = first,
                                        .rng = &rng);
    fl_var *x = fv_param(fl_normal(FL_SHAPE(2, 5, 16), 0, 1, FL_F32, &rng));
    fl_seed(11);
    CHECK(fl_sync(fv_value(x)));
    const int64_t before = cuda_emu_launches();
    fl_var *y = fl_nn_forward(m, x);
    CHECK(y && fl_sync(fv_value(y)));
    const int64_t launches = cuda_emu_launches() - before;
    CHECK(fl_backward(fv_sum(fv_square(y), FL_ALL_AXES)));
    CHECK(fl_to_host(fv_value(y), got, 640) && fl_to_host(fv_grad(x), got + 160, 640));
    fl_nn_free(m);
    fl_scope_end(&s);
    return launches;
}

/* Dropout, sum and norm: the same bits as those of three records, in one launch. */
TEST(a_branch_ends_in_one_launch) {
    NEEDS_EMULATION;
    for (int first = 0; first < 2; first++) {
        float one[320], three[320];
        const int64_t launches = block_bytes(first, one);
        fl_backend before, without = *fl_backend_at(fl_backend_default());
        without.op[fl_op_add_layer_norm] = NULL;
        CHECK(fl_backend_use(&without, &before));
        CHECK_EQ_INT(block_bytes(first, three) - launches, first ? 2 : 4); /* its last sum has no norm */
        CHECK(!memcmp(one, three, sizeof one));
        CHECK(fl_backend_use(&before, NULL));
    }
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
    CHECK(fl_assign(fl_slice(x, 1, 0, 4, 2), fl_int(50))); /* what lies between stays as others leave it */
    fl_unmap(gaps, FL_WRITE);
    int32_t all[12];
    CHECK(fl_to_host(x, all, sizeof all));
    for (int k = 0; k < 12; k++) CHECK_EQ_INT(all[k], k % 4 == 1 ? -1 : k % 4 == 3 ? -2 : 50);
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
    m->trim(m);
    CHECK_EQ_INT(fl_mem_stats_of(m).reserved, 2 << 20); /* the block that x is in */
    CHECK_EQ_INT(small_work(), 72);
}

/* A free block serves smaller requests, and is whole again when they end, in any order. */
TEST(large_blocks_are_split_and_joined) {
    NEEDS_CUDA;
    fl_mem_manager *m = fl_zeros(FL_SHAPE(1), FL_U8)->buffer->device->manager;
    m->trim(m);
    const int64_t reserved = fl_mem_stats_of(m).reserved;
    fl_buffer *whole = fl_buffer_from(m, 16 << 20, NULL), *part[6];
    for (int round = 0; round < 6; round++) {
        const int64_t trips = fl_mem_stats_of(m).device_gets;
        fl_buffer_drop(whole);
        for (int i = 0; i < 6; i++) part[i] = fl_buffer_from(m, (2 << 20) + (size_t)i * 1000, NULL);
        for (int i = 0; i < 6; i++) fl_buffer_drop(part[(i * (round < 3 ? 1 : 5) + round) % 6]);
        whole = fl_buffer_from(m, 16 << 20, NULL);
        CHECK_EQ_INT(fl_mem_stats_of(m).device_gets, trips);
    }
    fl_buffer_drop(whole);
    const int64_t trips = fl_mem_stats_of(m).device_gets;
    fl_buffer *small[1000];
    for (int i = 0; i < 1000; i++) small[i] = fl_buffer_from(m, 1000, NULL);
    CHECK(fl_mem_stats_of(m).device_gets <= trips + 1);
    for (int i = 0; i < 1000; i++) fl_buffer_drop(small[i * 7 % 1000]);
    CHECK(m->trim(m) >= 16 << 20);
    CHECK_EQ_INT(fl_mem_stats_of(m).reserved, reserved);
}

/* Blocks of any size on two streams, used by the other one too: none overlap, and all go back. */
TEST(blocks_never_overlap) {
    NEEDS_CUDA;
    enum { LIVE = 40 };
    fl_buffer *live[LIVE] = {0};
    fl_tensor *on[2];
    for (int i = 0; i < 2; i++) {
        fl_stream(i);
        on[i] = fl_zeros(FL_SHAPE(1), FL_U8);
    }
    fl_stream(0);
    fl_mem_manager *m = on[0]->buffer->device->manager;
    void *const stream[2] = {on[0]->buffer->stream, on[1]->buffer->stream};
    CHECK(stream[0] != stream[1]);
    m->trim(m);
    const int64_t in_use = fl_mem_stats_of(m).in_use, reserved = fl_mem_stats_of(m).reserved;
    for (int step = 0; step < 4000; step++) {
        fl_buffer **at = &live[rand() % LIVE];
        if (*at) {
            CHECK(fl_buffer_use(*at, stream[rand() % 2]));
            fl_buffer_drop(*at);
            *at = NULL;
        } else {
            const size_t bytes = 1 + ((size_t)(rand() % 1000) << rand() % 14);
            fl_buffer *b = fl_buffer_from(m, bytes, &(fl_mem_info){.stream = stream[rand() % 2]});
            for (int i = 0; i < LIVE; i++)
                if (live[i])
                    CHECK((char *)b->ptr + bytes <= (char *)live[i]->ptr ||
                          (char *)live[i]->ptr + live[i]->bytes <= (char *)b->ptr);
            *at = b;
        }
        if (step % 500 == 0) m->trim(m);
    }
    for (int i = 0; i < LIVE; i++) fl_buffer_drop(live[i]);
    CHECK_EQ_INT(fl_mem_stats_of(m).in_use, in_use);
    m->trim(m);
    CHECK_EQ_INT(fl_mem_stats_of(m).reserved, reserved);
}

TEST(backends_move_to_each_other) {
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

/* The draws are the same numbers on both backends. */
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
    const fl_norm_args norm = {1, 1e-5, false};
    CHECK(fv_recomputed(fv_add_layer_norm(x, x, NULL, NULL, norm, 0.5, NULL, &x)) && !fv_recomputed(x));
    CHECK_EQ_INT(fl_set_recompute(-1), 1 << 10);
}

/* What kernels take in vectors of 16 bytes: dense operands, rows and columns that repeat, starts that are
   aligned and not, ends that fill no vector. */
enum { VECTOR_KINDS = 13 };
static fl_tensor *vector_result(int kind, fl_dtype d, int64_t rows, int64_t n, int64_t start) {
    fl_tensor *x = fl_remainder(fl_mul(fl_arange(0, rows * n + 40, 1, FL_I64), fl_int(37)), fl_int(101));
    x = fl_cast(fl_sub(x, fl_int(kind == 2 ? -1 : 50)), d);
    fl_tensor *a = fl_reshape(fl_slice(x, 0, start, start + rows * n, 1), FL_SHAPE(rows, n));
    fl_tensor *b = fl_reshape(fl_slice(x, 0, 16, 16 + rows * n, 1), FL_SHAPE(rows, n));
    fl_tensor *row = fl_slice(x, 0, start, start + n, 1), *column = fl_slice(b, 1, 0, 1, 1);
    fl_tensor *c = fl_lt(a, b);
    switch (kind) {
    case 0: return fl_add(a, b);
    case 1: return fl_mul(a, row);
    case 2: return fl_remainder(a, b);
    case 3: return fl_where(c, a, row);
    case 4: return fl_logical_and(c, fl_lt(row, b));
    case 5: return fl_concat((fl_tensor *[]){a, b, a}, 3, 1);
    case 6: return fl_cast(a, d == FL_BF16 ? FL_F16 : FL_BF16);
    case 7: return fl_cast(a, FL_F32);
    case 8: return fl_maximum(column, fl_abs(a));
    case 9: return fl_full(FL_SHAPE(rows, n), 7, d);
    case 10: return fl_where(c, fl_num(1), a);
    case 11: return fl_dropout(fl_dtype_is_float(d) ? a : fl_cast(a, FL_F32), 0.3, &(fl_rng){5, 1});
    default: return fl_bitwise_xor(c, fl_lt(column, b));
    }
}

TEST(vectors_give_what_single_elements_give) {
    NEEDS_CUDA;
    static const fl_dtype dtypes[] = {FL_BF16, FL_F16, FL_F32, FL_F64, FL_I64, FL_I32, FL_U8};
    for (int i = 0; i < 7 * VECTOR_KINDS * 12; i++) {
        const int kind = i % VECTOR_KINDS, at = i / VECTOR_KINDS % 12;
        const int64_t n = at % 3 == 0 ? 48 : at % 3 == 1 ? 61 : 4, start = at / 3 % 2 ? 8 : 3;
        fl_scope s = fl_scope_begin();
        CHECK(fl_backend_set_default("cuda"));
        fl_tensor *y = vector_result(kind, dtypes[i / VECTOR_KINDS / 12], at < 6 ? 1 : 5, n, start);
        y = y ? fl_to(y, "cpu") : NULL;
        CHECK(fl_backend_set_default("cpu"));
        fl_tensor *want = vector_result(kind, dtypes[i / VECTOR_KINDS / 12], at < 6 ? 1 : 5, n, start);
        if (!CHECK(y && fl_item(fl_all(fl_eq(y, want), FL_ALL_AXES)) == 1))
            printf("  kind %d, %s, %lld from %lld\n", kind, fl_dtype_name(dtypes[i / VECTOR_KINDS / 12]),
                   (long long)n, (long long)start);
        fl_scope_end(&s);
    }
}

/* How far a bf16 number is from y, in the last place of bf16 at y; 0 where both are NaN or infinite alike. */
static double bf16_off(double got, double y) {
    int e;
    if (isnan(y) || isnan(got)) return isnan(y) && isnan(got) ? 0 : INFINITY;
    if (fabs(y) >= 0x1.fep127) return got * y > 0 && fabs(got) >= 0x1.fep127 ? 0 : INFINITY;
    frexp(y, &e);
    return fabs(got - y) / ldexp(1, (e - 1 < -126 ? -126 : e - 1) - 7);
}

/* Op k of bf16 in a dtype, or its gradient at the y in bf16 and dy = 1. */
static bool bf16_values(fl_op op, int grad, fl_tensor *x, fl_tensor *y, fl_dtype d, double *to) {
    fl_tensor *in = fl_cast(x, d), *f = grad ? fl_grad1(op, in, fl_cast(y, d), fl_ones_like(in), NULL)
                                             : fl_unary_op(op, in);
    f = fl_to(d == FL_F64 ? f : fl_cast(f, FL_BF16), "cpu");
    return fl_to_host(fl_cast(f, FL_F64), to, sizeof(double) << 16);
}

/* Formulas of the machine's 2^x and 1/x, which results in bf16 may have, of all bf16: off by 1/2 by rounding
   and by 1/8, or what f32 gives, which may overflow. What sums with 1 lose in f32 is allowed beside that. */
TEST(formulas_near_bf16_round_all_of_it_well) {
    NEEDS_CUDA;
    enum { ALL = 1 << 16 };
    static const struct {
        fl_op op;
        int grad;
        double beside; /* of 1, or of x where that is more */
    } of[] = {{FL_OP_exp, 0, 0},           {FL_OP_tanh, 0, 0},         {FL_OP_sigmoid, 0, 0},
              {FL_OP_silu, 0, 0},          {FL_OP_gelu, 0, 0x1p-22},   {FL_OP_gelu_tanh, 0, 0},
              {FL_OP_silu, 1, 0x1p-22},    {FL_OP_gelu, 1, 0x1p-22},   {FL_OP_gelu_tanh, 1, 0x1p-22}};
    static uint16_t bits[ALL];
    static double x[ALL], got[ALL], want[ALL], plain[ALL];
    for (int i = 0; i < ALL; i++) bits[i] = (uint16_t)i;
    for (int k = 0; k < 9; k++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *in = fl_from_host(bits, FL_SHAPE(ALL), FL_BF16), *y = fl_unary_op(of[k].op, in);
        CHECK(bf16_values(of[k].op, of[k].grad, in, y, FL_BF16, got));
        in = fl_to(in, "cpu");
        y = fl_to(y, "cpu");
        CHECK(bf16_values(of[k].op, of[k].grad, in, y, FL_F32, plain));
        CHECK(bf16_values(of[k].op, of[k].grad, in, y, FL_F64, want));
        CHECK(fl_to_host(fl_cast(in, FL_F64), x, sizeof x));
        double worst = 0, at = 0;
        for (int i = 0; i < ALL; i++) {
            const double beside = of[k].beside * fmax(1, fabs(x[i])), off = bf16_off(got[i], want[i]);
            if (off <= worst || fabs(got[i] - want[i]) <= beside || !bf16_off(got[i], plain[i])) continue;
            worst = off, at = x[i];
        }
        if (!CHECK(worst <= 0.625))
            printf("  %s%s: %g at %g\n", fl_op_get_info(of[k].op)->name, of[k].grad ? "'s gradient" : "",
                   worst, at);
        fl_scope_end(&s);
    }
}

/* Sums that blocks share: of all, of channels innermost and outermost, of few columns, of dims apart;
   integers and places exactly. */
TEST(reductions_in_parts_give_the_cpus) {
    NEEDS_CUDA;
    static const struct {
        int64_t shape[4];
        uint32_t kept; /* the dims, as bits */
        bool last;     /* the second dim is innermost */
    } of[] = {{{4, 40, 33, 31}, 2, true}, {{4, 40, 33, 31}, 2, false}, {{4, 3, 65, 64}, 2, true},
              {{5, 20, 43, 41}, 0, false}, {{5, 20, 43, 41}, 0, true}, {{6, 35, 40, 20}, 9, true}};
    for (int i = 0; i < 6 * 5; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {3, 0};
        double got = 0;
        fl_tensor *y[2], *x = NULL;
        CHECK(fl_backend_set_default("cpu"));
        const int64_t *n = of[i / 5].shape;
        fl_tensor *all = fl_normal(FL_SHAPE(n[0], n[1], n[2], n[3]), 2, 70, FL_F32, &rng);
        all = fl_cast(all, i % 5 == 2 ? FL_I64 : i % 5 == 1 ? FL_BF16 : i % 5 == 3 ? FL_F64 : FL_F32);
        for (int on = 0; on < 2; on++) {
            x = fl_to(all, on ? "cuda" : "cpu");
            if (of[i / 5].last)
                x = fl_permute(fl_contiguous(fl_permute(x, 4, FL_ARRAY(int, 0, 2, 3, 1))), 4,
                               FL_ARRAY(int, 0, 3, 1, 2));
            fl_axes axes = {0};
            for (int d = 0; d < 4; d++)
                if (!(of[i / 5].kept >> d & 1)) axes.axis[axes.n++] = d;
            y[on] = i % 5 == 4 ? fl_argmax(fl_reshape(x, FL_SHAPE(n[0], n[1] * n[2] * n[3])), 1, false)
                               : fl_sum(x, axes);
            y[on] = y[on] ? fl_cast(fl_to(y[on], "cpu"), FL_F64) : NULL;
        }
        if (y[0] && y[1]) got = fl_item(fl_amax(fl_abs(fl_sub(y[0], y[1])), FL_ALL_AXES));
        const double size = y[0] ? fl_item(fl_amax(fl_abs(y[0]), FL_ALL_AXES)) : 0;
        const double allowed[] = {1e-5, 0x1p-8, 0, 1e-12, 0};
        if (!CHECK(y[0] && y[1] && got <= allowed[i % 5] * size))
            printf("  case %d, kind %d: off by %g of %g\n", i / 5, i % 5, got, size);
        fl_scope_end(&s);
    }
}

/* Lines, channels and windows too many for conformance: those that a block of threads shares, and sums that
   are taken in parts. Each gives a few numbers, which are the cpu's. */
enum { LARGE_KINDS = 19 };
/* More places than a block has threads. */
static fl_var *large_ctc(fl_var *x) {
    const int64_t steps[2] = {300, 290}, lengths[2] = {140, 131};
    fl_tensor *label = fl_remainder(fl_mul(fl_arange(0, 280, 1, FL_I64), fl_int(7)), fl_int(29));
    fl_var *logp = fv_log_softmax(fv_reshape(fv_slice(x, 1, 0, 2000, 1), FL_SHAPE(300, 2, 30)), -1);
    return fv_ctc_loss(logp, fl_reshape(fl_add(label, fl_int(1)), FL_SHAPE(2, 140)),
                       fl_from_host(steps, FL_SHAPE(2), FL_I64),
                       fl_from_host(lengths, FL_SHAPE(2), FL_I64), .reduction = FL_NONE);
}

/* A transducer's lattice; ASG's of all paths, and of a target with its repeats. */
static fl_var *large_lattice(int which, fl_var *x) {
    const int64_t steps[3] = {20, 17, 1}, lengths[3] = {6, 5, 0};
    fl_tensor *t = fl_from_host(steps, FL_SHAPE(3), FL_I64), *l = fl_from_host(lengths, FL_SHAPE(3), FL_I64);
    fl_tensor *target = fl_remainder(fl_mul(fl_arange(0, 18, 1, FL_I64), fl_int(3)), fl_int(4));
    fl_var *score = fv_reshape(fv_slice(x, 1, 0, 280, 1), FL_SHAPE(3, 20, 7, 6));
    target = fl_reshape(target, FL_SHAPE(3, 6));
    if (!which) return fv_transducer_loss(score, target, t, l, .reduction = FL_NONE);
    score = fv_reshape(fv_slice(x, 1, 0, 100, 1), FL_SHAPE(20, 3, 15));
    fl_var *w = fv_reshape(fv_slice(x, 1, 100, 125, 1), FL_SHAPE(15, 15));
    return which == 1 ? fv_asg_full(score, w, t) : fv_asg_forced(score, w, target, t, l);
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
    case 16:
    case 17:
    case 18: return large_lattice(kind - 16, x);
    case 13: return fv_ifft(fv_reshape(fv_slice(x, 1, 0, 2402, 1), FL_SHAPE(9, 1201, 2)), 1);
    case 7:
        return fv_max_pool(fv_reshape(x, FL_SHAPE(3, 3, 151, 151)), NULL, .kernel = {3},
                           .stride = {2}, .pad = {1});
    default:
        return fv_avg_pool(fv_reshape(x, FL_SHAPE(3, 3, 151, 151)), .kernel = {3}, .stride = {2},
                           .pad = {1}, .ignore_pad = true);
    }
}

static void large_results(const char *backend, double got[LARGE_KINDS][3]) {
    CHECK(fl_backend_set_default(backend));
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

/* Channels-last images, whose channels are read as vectors if there are 8 n of them and they are aligned. */
static const struct {
    int64_t channels, skip; /* skip: channels of the memory before the first one */
    fl_dtype dtype;
} image_kinds[] = {{8, 0, FL_F32},    {24, 0, FL_F16}, {264, 0, FL_BF16}, {64, 0, FL_BF16},
                   {2056, 0, FL_F32}, {12, 0, FL_F32}, {16, 3, FL_F32},   {16, 8, FL_BF16}};
enum { IMAGE_KINDS = sizeof image_kinds / sizeof *image_kinds, IMAGE_RESULTS = 6 };

static fl_tensor *image_of(int kind, uint64_t key) {
    const int64_t c = image_kinds[kind].channels, skip = image_kinds[kind].skip;
    fl_tensor *t = fl_normal(FL_SHAPE(3, 9, 13, c + skip), 1, 2, FL_F32, &(fl_rng){key, 0});
    t = fl_permute(fl_cast(t, image_kinds[kind].dtype), 4, FL_ARRAY(int, 0, 3, 1, 2));
    return skip ? fl_slice(t, 1, skip, c + skip, 1) : t;
}

/* Result and gradients of one op. */
static void image_results(int op, int kind, fl_tensor **out) {
    const int64_t c = image_kinds[kind].channels;
    fl_rng rng = {9, 0};
    fl_var *x = fv_param(image_of(kind, 3)), *add = fv_param(image_of(kind, 4));
    fl_var *w = fv_param(fl_normal(FL_SHAPE(c), 1, 0.3, FL_F32, &rng));
    fl_var *b = fv_param(fl_normal(FL_SHAPE(c), 0, 1, FL_F32, &rng));
    fl_tensor *mean = fl_zeros(FL_SHAPE(c), FL_F32), *var = fl_ones(FL_SHAPE(c), FL_F32);
    fl_tensor *batches = fl_zeros(FL_SCALAR_SHAPE, FL_I64), *index = NULL;
    fl_var *y = op == 0 ? fv_batch_norm(x, w, b, .train = true, .mean = mean, .var = var, .batches = batches)
              : op == 1 ? fv_batch_norm_add(x, w, b, add, .train = true, .relu = true)
              : op < 4 ? fv_max_pool(x, op == 2 ? &index : NULL, .kernel = {3, 2}, .stride = {2}, .pad = {1})
                       : fv_avg_pool(x, .kernel = {3, 2}, .stride = {2}, .pad = {1}, .ignore_pad = op == 4);
    fl_tensor *dy = y ? fl_channels_last(fl_normal(fl_shape_of(fv_value(y)), 0, 1, FL_F32, &rng)) : NULL;
    CHECK(y && fl_backward(y, .grad = fl_cast(dy, image_kinds[kind].dtype)));
    fl_tensor *all[IMAGE_RESULTS] = {fv_value(y), fv_grad(x), fv_grad(w), fv_grad(b), fv_grad(add), NULL};
    if (op == 0) all[4] = mean, all[5] = fl_add(var, batches);
    all[5] = index ? index : all[5];
    for (int i = 0; i < IMAGE_RESULTS; i++)
        out[i] = all[i] ? fl_cast(fl_to(fl_contiguous(all[i]), "cpu"), FL_F32) : NULL;
}

TEST(channels_last_gives_what_the_cpu_gives_and_the_same_bits_twice) {
    NEEDS_CUDA;
    for (int i = 0; i < 6 * IMAGE_KINDS; i++) {
        const int op = i / IMAGE_KINDS, kind = i % IMAGE_KINDS;
        fl_scope s = fl_scope_begin();
        fl_tensor *got[2][IMAGE_RESULTS], *want[IMAGE_RESULTS];
        CHECK(fl_backend_set_default("cuda"));
        for (int run = 0; run < 2; run++) image_results(op, kind, got[run]);
        CHECK(fl_backend_set_default("cpu"));
        image_results(op, kind, want);
        for (int k = 0; k < IMAGE_RESULTS; k++) {
            if (!want[k] && !got[0][k]) continue;
            REQUIRE(want[k] && got[0][k] && got[1][k]);
            const double size = fl_item(fl_amax(fl_abs(want[k]), FL_ALL_AXES));
            const double off = fl_item(fl_amax(fl_abs(fl_sub(got[0][k], want[k])), FL_ALL_AXES));
            const double allowed = image_kinds[kind].dtype == FL_F32 ? 1e-5 : 0x1p-7;
            const bool same = fl_item(fl_all(fl_eq(got[0][k], got[1][k]), FL_ALL_AXES)) == 1;
            if (!CHECK(off <= allowed * size && same))
                printf("  op %d, kind %d, result %d: off by %g of %g\n", op, kind, k, off, size);
        }
        fl_scope_end(&s);
    }
}

/* Statistics are two launches; the one that normalises updates the running ones. Convolutions are cuDNN's. */
TEST(a_batch_norm_is_three_launches_forward_and_three_backward) {
    NEEDS_EMULATION;
    fl_rng rng = {3, 0};
    fl_nn_module *net = fl_nn_sequential(fl_nn_conv2d(8, 16, 3, .pad = 1, .no_bias = true, .rng = &rng),
                                         fl_nn_batch_norm2d(16, .relu = true), fl_nn_pool2d(2));
    CHECK(net && fl_nn_channels_last(net));
    fl_var *x = fv_const(fl_channels_last(fl_normal(FL_SHAPE(2, 8, 6, 6), 0, 1, FL_F32, &rng)));
    CHECK(fl_sync(fv_value(fl_nn_forward(net, x))));
    int64_t before = cuda_emu_launches();
    fl_var *y = fl_nn_forward(net, x);
    CHECK(y && fl_sync(fv_value(y)));
    CHECK_EQ_INT(cuda_emu_launches() - before, 4);
    fl_tensor *dy = fl_ones_like(fv_value(y));
    CHECK(fl_sync(dy));
    before = cuda_emu_launches();
    CHECK(fl_backward(y, .grad = dy) && fl_sync(fv_grad(fl_nn_get_param(net, "1.weight"))));
    CHECK_EQ_INT(cuda_emu_launches() - before, 4);
    CHECK_EQ_INT(fl_item_int(fl_nn_get_buffer(net, "1.num_batches_tracked")), 2);
    fl_nn_free(net);
}

/* By cuDNN, in training too: no kernel of ours runs. NaN stays NaN. */
TEST(a_convolution_with_bias_and_relu_is_one_plan) {
    NEEDS_EMULATION;
    const char *const backends[] = {"cpu", "cuda"};
    fl_tensor *y[2];
    int64_t launches = 0;
    for (int on = 0; on < 2; on++) {
        fl_rng rng = {5, 0};
        CHECK(fl_backend_set_default(backends[on]));
        fl_tensor *x = fl_channels_last(fl_normal(FL_SHAPE(2, 8, 7, 6), 0, 1, FL_F32, &rng));
        fl_tensor *w = fl_channels_last(fl_normal(FL_SHAPE(16, 8, 3, 3), 0, 0.1, FL_F32, &rng));
        fl_tensor *b = fl_normal(FL_SHAPE(16), 0, 1, FL_F32, &rng);
        CHECK(fl_assign(fl_slice(b, 0, 3, 4, 1), fl_num(NAN)) && fl_sync(x) && fl_sync(w) && fl_sync(b));
        launches = cuda_emu_launches();
        y[on] = fv_value(fv_conv(fv_param(x), fv_param(w), fv_param(b), .pad = {1, 1}, .relu = true));
        CHECK(y[on] && fl_sync(y[on]));
        launches = cuda_emu_launches() - launches;
        y[on] = fl_to(y[on], "cpu");
    }
    CHECK_EQ_INT(launches, 0);
    CHECK(fl_backend_set_default("cpu"));
    fl_tensor *nan = fl_isnan(y[0]), *off = fl_abs(fl_sub(y[1], y[0]));
    CHECK(fl_item(fl_all(fl_eq(nan, fl_isnan(y[1])), FL_ALL_AXES)) == 1);
    CHECK_EQ_INT(fl_item(fl_sum(fl_cast(nan, FL_F32), FL_ALL_AXES)), 2 * 7 * 6);
    CHECK(fl_item(fl_amax(fl_where(nan, fl_num(0), off), FL_ALL_AXES)) < 1e-5);
    CHECK(fl_item(fl_amin(fl_where(nan, fl_num(0), y[1]), FL_ALL_AXES)) >= 0);
}

/* bench/README.md has this list. Only what has no composition is copied to the cpu. */
TEST(what_the_cpu_alone_has_a_kernel_for_is_known) {
    static const char *const known[] = {"lu_factor", "solve", "solve_triangular", "cholesky", "qr",
                                        "svd", "eigh", "eig"};
    NEEDS_CUDA;
    const int cuda = fl_backend_default();
    CHECK(fl_lattice_register());
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK(!fl_backend_has(cuda, fl_op_by_name(known[i])));
    for (fl_op op = 1; op < fl_op_count(); op++) {
        bool listed = !fl_backend_has(0, op) || fl_backend_has(cuda, op);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            listed |= !strcmp(fl_op_get_info(op)->name, known[i]);
        if (!CHECK(listed)) printf("  %s\n", fl_op_get_info(op)->name);
    }
}

/* Of the library that compiles programs, which the emulation replaces; -1: it is not loaded. */
static int programs_compiled(void) {
    int (*count)(void) = NULL;
    void *at = dlsym(RTLD_DEFAULT, "mock_nvrtc_programs");
    memcpy(&count, &at, sizeof count);
    return count ? count() : -1;
}
static bool compiles_programs(void) {
    const char *libraries = getenv("FL_CUDA_LIBS");
    return !cuda_emu_fail_in || (libraries && strcmp(libraries, "no"));
}

enum { APPLIED_TEXTS = 7, APPLIED_OPERANDS = 5 };
static const char *const applied_texts[APPLIED_TEXTS] = {
    "(x, y) { float t = x * y; if (t < 0) t = exp(t) - 1.5; return t; }",
    "(x, y) { float t = x * y; if (t < 0) t = exp(t) - 2.5; return t; }", /* the program above */
    "(x, y) { return tanh(x) * erf(y) + atan2(x, y) - pow(abs(x), y) / maximum(x, y); }",
    "(x, y) { return where(x < y || y == 0, sin(x) / y, cos(y) + floor(x)) + remainder(x, y); }",
    "(x, y) { return gelu(x) + silu(y) * sqrt(abs(x)) + log1p(abs(y)) + expm1(x) + rint(y); }",
    "(x, y) { return x <= y && !(y < 0.25); }",
    "(x, y) { return minimum(x, 3) * (y - x) + log(abs(x)) - -y; }"};

/* Text i of operands of kind j: dense, transposed, broadcast, halves or with a condition. */
static fl_tensor *applied(int i, int j, fl_dtype d) {
    fl_rng rng = {7, 0};
    const fl_shape shape = j == 1 ? FL_SHAPE(33, 70) : FL_SHAPE(70, 33);
    fl_tensor *x = fl_cast(fl_normal(shape, 0, 2, FL_F64, &rng), j == 3 ? FL_BF16 : d);
    fl_tensor *y = fl_cast(fl_normal(j == 2 ? FL_SHAPE(33) : FL_SHAPE(70, 33), 0, 2, FL_F64, &rng), d);
    if (j == 1) x = fl_transpose(x, 0, 1);
    if (j == 3) y = fl_cast(y, FL_BF16);
    if (j == 4) y = fl_lt(y, fl_num(0.5));
    return fl_apply(applied_texts[i], (fl_tensor *[]){x, y}, 2);
}

/* By a kernel per program and dtype. */
TEST(compiled_programs_have_the_bits_of_their_ops) {
    NEEDS_CUDA;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    static char got[2][70 * 33 * 8];
    for (int k = 0; k < APPLIED_TEXTS * APPLIED_OPERANDS * 2; k++) {
        const int i = k / APPLIED_OPERANDS % APPLIED_TEXTS, j = k % APPLIED_OPERANDS;
        const fl_dtype d = k < APPLIED_TEXTS * APPLIED_OPERANDS ? FL_F32 : FL_F64;
        int64_t launches[2] = {0, 0};
        size_t bytes = 0;
        for (int now = 0; now < 2; now++) {
            fl_compile(now ? FL_COMPILE_NOW : FL_COMPILE_NEVER);
            fl_scope s = fl_scope_begin();
            const int64_t before = cuda_emu_launches ? cuda_emu_launches() : 0;
            fl_tensor *y = applied(i, j, d);
            if (cuda_emu_launches) launches[now] = cuda_emu_launches() - before;
            bytes = y ? (size_t)fl_numel(y) * fl_dtype_size(y->dtype) : 0;
            if (!CHECK(bytes > 0 && bytes <= sizeof *got && fl_to_host(y, got[now], bytes)))
                printf("  %s\n", fl_error());
            fl_scope_end(&s);
        }
        fl_compile(FL_COMPILE_NEVER);
        if (!CHECK(!memcmp(got[0], got[1], bytes)))
            printf("  text %d, operands %d, %s\n", i, j, fl_dtype_name(d));
        if (cuda_emu_launches && !CHECK(launches[1] < launches[0]))
            printf("  text %d, operands %d: %d launches, %d\n", i, j, (int)launches[0], (int)launches[1]);
    }
    if (cuda_emu_launches) CHECK_EQ_INT(programs_compiled(), 4 * (APPLIED_TEXTS - 1)); /* y: a condition */
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* Also the first call, which loads the kernel: then it runs op by op. */
TEST(any_call_may_fail_around_a_compiled_program) {
    NEEDS_EMULATION;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    int failures = 0;
    for (bool failed = true; failed;) {
        fl_compile(FL_COMPILE_NOW);
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_full(FL_SHAPE(300), 2, FL_F32);
        CHECK(fl_sync(x));
        cuda_emu_fail_in(++failures);
        fl_tensor *y = fl_apply("(x) { return x * x * x + 1; }", &x, 1);
        const double sum = y ? fl_item(fl_sum(y, FL_ALL_AXES)) : (double)NAN;
        cuda_emu_fail_in(0);
        failed = fl_error() != NULL;
        if (!failed) CHECK_EQ_INT(sum, 2700);
        failed |= failures < 4;
        fl_error_clear();
        fl_scope_end(&s);
        fl_compile(FL_COMPILE_NEVER);
    }
    CHECK(failures > 4);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* A few steps of eight parameters with their gradients clipped: the last
   parameter's elements, and the launches of the last step. */
static double train_family(const char *backend, float *last, int64_t *launches) {
    enum { PARAMS = 8, ROWS = 301, COLUMNS = 33 };
    double norm = 0;
    fl_rng rng = {7, 0};
    CHECK(fl_backend_set_default(backend));
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
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    float a[33], b[33];
    int64_t launches = 0;
    const double got = train_family("cuda", a, &launches), want = train_family("cpu", b, NULL);
    CHECK_NEAR(got, want, 1e-6 * want);
    for (int i = 0; i < 33; i++) CHECK_NEAR(a[i], b[i], 1e-6);
    CHECK_EQ_INT(launches, 6);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* Weights in bf16 with f32 masters, and between them norms in f32: a rule each. */
TEST(a_step_of_two_dtypes_is_a_launch_of_each) {
    NEEDS_EMULATION;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    enum { PARAMS = 30 };
    fl_var *p[PARAMS];
    for (int i = 0; i < PARAMS; i++) p[i] = fv_param(fl_ones(FL_SHAPE(40 + i), i % 2 ? FL_F32 : FL_BF16));
    fl_optim *o = fl_optim_sgd(((fv_list){PARAMS, p}), .lr = 0.5, .momentum = 0.9, .master = true);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < PARAMS; i++)
            CHECK(fv_set_grad(p[i], fv_const(fl_full(FL_SHAPE(40 + i), 0.25, fv_value(p[i])->dtype))));
        CHECK(fl_sync(fv_value(p[0])));
        const int64_t before = cuda_emu_launches();
        CHECK(fl_optim_step(o) && fl_sync(fv_value(p[0])));
        CHECK_EQ_INT(cuda_emu_launches() - before, 3); /* and the counts of steps */
    }
    for (int i = 0; i < PARAMS; i++) /* 1 - 0.125 (1 + 1.9 + 2.71) */
        CHECK_NEAR(fl_item(fl_mean(fv_value(p[i]), FL_ALL_AXES)), 0.29875, i % 2 ? 1e-6 : 2e-3);
    fl_optim_free(o);
}

enum { RULE_ELEMENTS = 20001 };
/* Three steps of a parameter, or of the same numbers as two, with its states. */
static void train_rule(bool adam, fl_dtype d, int parts, float *last) {
    fl_rng rng = {9, 1};
    fl_scope s = fl_scope_begin();
    fl_tensor *all = fl_normal(FL_SHAPE(RULE_ELEMENTS), 0, 1, FL_F32, &rng);
    fl_var *p[2];
    for (int i = 0; i < parts; i++)
        p[i] = fv_param(fl_cast(fl_slice(all, 0, i * 10000, i + 1 < parts ? 10000 : RULE_ELEMENTS, 1), d));
    const fv_list list = {parts, p};
    fl_optim *o = adam ? fl_optim_adamw(list, .lr = 1e-2, .master = true)
                       : fl_optim_sgd(list, .lr = 0.1, .momentum = 0.9, .nesterov = true, .master = true);
    for (int step = 0; step < 3; step++) {
        fl_tensor *g = fl_cast(fl_normal(FL_SHAPE(RULE_ELEMENTS), 0, 1, FL_F32, &rng), d);
        for (int i = 0; i < parts; i++)
            CHECK(fv_set_grad(p[i], fv_const(fl_contiguous(
                fl_slice(g, 0, i * 10000, i + 1 < parts ? 10000 : RULE_ELEMENTS, 1)))));
        CHECK(fl_optim_step(o));
    }
    for (int i = 0; i < parts; i++)
        CHECK(fl_to_host(fl_cast(fv_value(p[i]), FL_F32), last + i * 10000,
                         sizeof *last * (size_t)(i + 1 < parts ? 10000 : RULE_ELEMENTS - i * 10000)));
    fl_optim_free(o);
    fl_scope_end(&s);
}

/* A rule is compiled once, whatever the sizes. */
TEST(a_rule_has_the_same_bits_for_parts_of_a_tensor) {
    NEEDS_EMULATION;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    static float got[RULE_ELEMENTS], parts[RULE_ELEMENTS], host[RULE_ELEMENTS];
    for (int i = 0; i < 4; i++) {
        const fl_dtype d = i & 2 ? FL_BF16 : FL_F32;
        train_rule(i & 1, d, 2, parts);
        const int compiled = programs_compiled();
        train_rule(i & 1, d, 1, got);
        CHECK_EQ_INT(programs_compiled(), compiled);
        CHECK(!memcmp(got, parts, sizeof got));
        CHECK(fl_backend_set_default("cpu"));
        train_rule(i & 1, d, 1, host);
        CHECK(use_cuda());
        for (int k = 0; k < RULE_ELEMENTS; k += 101) CHECK_NEAR(got[k], host[k], d == FL_F32 ? 1e-5 : 0.04);
    }
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
    fl_tensor *large = fl_zeros(FL_SHAPE(4 << 20), FL_F32);
    REQUIRE(large != NULL);
    fl_mem_manager *m = large->buffer->device->manager;
    cuda_emu_limit(64 << 20);
    fl_scope s = fl_scope_begin();
    CHECK(fl_zeros(FL_SHAPE(10 << 20), FL_F32)); /* 40 MiB, beside 16 and 2 */
    fl_scope_end(&s);                            /* they are cached, */
    CHECK(fl_mem_stats_of(m).reserved > 56 << 20);
    s = fl_scope_begin();
    CHECK(fl_zeros(FL_SHAPE(41, 1 << 18), FL_F32)); /* and trimmed for 41, */
    CHECK(!fl_zeros(FL_SHAPE(10 << 20), FL_F32));   /* beside which there are no 40 */
    CHECK_STR(fl_error(), "out of memory: asked for 41943040 bytes, in use");
    fl_error_clear();
    fl_scope_end(&s);
    CHECK(fl_zeros(FL_SHAPE(10 << 20), FL_F32));
    cuda_emu_limit(0);
}

/* A manager that may take bytes away: pins are counted. */
static bool paged_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    b->pageable = true;
    return fl_mem_delegate(self, fl_mem_caching(), b, info);
}
static void paged_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self, (void)b;
}

/* A layer whose activation runs over the library's product, in both dtypes. */
TEST(slots_leave_no_pin_behind) {
    NEEDS_CUDA;
    fl_mem_manager paged = {.name = "paged", .get = paged_get, .put = paged_put};
    fl_mem_set_current(&paged);
    for (int narrow = 0; narrow < 2; narrow++) {
        fl_scope s = fl_scope_begin();
        const fl_dtype d = narrow ? FL_BF16 : FL_F32;
        fl_tensor *x = fl_ones(FL_SHAPE(3, 8), d), *w = fl_ones(FL_SHAPE(5, 8), d);
        fl_tensor *b = fl_ones(FL_SHAPE(5), d);
        fl_tensor *y[] = {fl_matmul(x, fl_transpose(w, 0, 1)), fl_linear(x, w, b),
                          fl_linear_act(x, w, b, FL_OP_tanh), fl_sum(x, FL_AXES(0)), fl_softmax(x, 1),
                          fv_value(fv_linear_act(fv_param(x), fv_const(w), NULL, FL_OP_gelu))};
        for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
            const bool free = CHECK(y[i]) && CHECK(fl_buffer_claim(y[i]->buffer));
            if (free) fl_buffer_resident(y[i]->buffer);
            if (!free) printf("  op %d, narrow %d\n", (int)i, narrow);
        }
        CHECK_NEAR(fl_item(fl_select(fl_select(y[2], 0, 0), 0, 0)), 1, 1e-3);
        fl_scope_end(&s);
    }
    fl_mem_set_current(NULL);
}

/* ---- streams ---- */

/* A drawn walk over eight tensors on four streams of one device or two: differences, which take the place of
   a tensor that another stream may still read, steps in place, which wait in a queue, copies, moves. True if
   each holds what the same walk gives on the host. */
static bool walk_streams(uint64_t seed, int devices) {
    enum { TENSORS = 8, N = 33, STEPS = 120 };
    static const char *const on[2] = {"cuda", "cuda:1"};
    static fl_step_rule rule = {
        .reads = "g", .writes = "p", .numbers = "lr", .formula = "SUB(p, MUL(lr, g))"};
    fl_tensor *t[TENSORS], *half[2][4];
    float want[TENSORS], got[N];
    bool same = true;
    fl_rng rng = {seed, 0};
    cuda_emu_seed(seed);
    for (int i = 0; i < 4 * devices; i++)
        half[i / 4][i % 4] = fl_keep(fl_to(fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64), on[i / 4]));
    for (int i = 0; i < TENSORS; i++)
        t[i] = fl_keep(fl_to(fl_full(FL_SHAPE(N), want[i] = (float)i, FL_F32), on[i % devices]));
    for (int step = 0; step < STEPS; step++) {
        fl_scope s = fl_scope_begin();
        const int a = (int)(8 * fl_rng_uniform(&rng)), b = (int)(8 * fl_rng_uniform(&rng));
        const int c = (int)(8 * fl_rng_uniform(&rng)), kind = (int)(9 * fl_rng_uniform(&rng));
        const int stream = (int)(4 * fl_rng_uniform(&rng));
        fl_stream(stream);
        const char *home = on[a % devices];
        fl_tensor *x = fl_to(t[b], home);
        fl_tensor *now = kind < 3    ? fl_sub(x, fl_to(t[c], home))
                         : kind == 3 ? fl_to(fl_to(t[b], "cpu"), home)
                                     : NULL;
        if (now) {
            want[a] = kind < 3 ? want[b] - want[c] : want[b];
            fl_drop(t[a]);
            t[a] = fl_keep(now);
        } else if (kind == 8) {
            for (int k = 0; k < N; k++) got[k] = (float)step;
            CHECK(fl_set_host(t[a], got, sizeof got));
            want[a] = (float)step;
        } else if (kind < 6 && a != b) {
            CHECK(fl_step(&rule, (fl_tensor *[]){x, t[a]}, 1, &half[a % devices][stream], NULL));
            want[a] -= 0.5f * want[b];
        } else if (a != b) {
            CHECK(fl_assign(t[a], x));
            want[a] = want[b];
        }
        fl_scope_end(&s);
    }
    for (int i = 0; i < TENSORS; i++) {
        CHECK(fl_to_host(t[i], got, sizeof got));
        for (int k = 0; k < N; k++) same &= got[k] == want[i];
        fl_drop(t[i]);
    }
    for (int i = 0; i < 4 * devices; i++) fl_drop(half[i / 4][i % 4]);
    return same;
}

TEST(streams_wait_for_what_others_did_with_their_tensors) {
    NEEDS_EMULATION;
    for (int devices = 1; devices <= 2; devices++) {
        int wrong = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) CHECK(walk_streams(seed, devices));
        cuda_emu_drop_waits(true); /* the walk would notice */
        for (uint64_t seed = 1; seed <= 20; seed++) wrong += !walk_streams(seed, devices);
        cuda_emu_drop_waits(false);
        CHECK(wrong > 10);
    }
    CHECK_EQ_INT(fl_stream(3), 0);
    CHECK_EQ_INT(fl_stream(0), 3);
}

/* Steps of two streams that wait in the queue leave each on its own. */
TEST(what_waits_leaves_on_its_stream) {
    NEEDS_EMULATION;
    static fl_step_rule rule = {
        .reads = "g", .writes = "p", .numbers = "lr", .formula = "SUB(p, MUL(lr, g))"};
    for (uint64_t seed = 0; seed < 20; seed++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *p[2], *g[2], *lr[2];
        cuda_emu_seed(seed);
        for (int k = 0; k < 2; k++) {
            fl_stream(k);
            p[k] = fl_full(FL_SHAPE(50), 1, FL_F32), g[k] = fl_full(FL_SHAPE(50), 6, FL_F32);
            lr[k] = fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64);
        }
        for (int k = 0; k < 2; k++) {
            fl_stream(k);
            CHECK(fl_step(&rule, (fl_tensor *[]){g[k], p[k]}, 1, &lr[k], NULL));
        }
        fl_stream(0);
        fl_tensor *y = fl_neg(p[0]);
        CHECK_EQ_INT(fl_item(fl_sum(y, FL_ALL_AXES)), 100);
        fl_scope_end(&s);
    }
}

/* Batches that move on a stream of their own while others are worked on: the sum of all that was in them. */
static double sum_batches(fl_data_set *set) {
    fl_scope s = fl_scope_begin();
    fl_tensor *w = fl_full(FL_SHAPE(1, 7), 2, FL_F32), *all = fl_zeros(FL_SCALAR_SHAPE, FL_F32);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope step = fl_scope_begin();
        fl_data_sample b;
        CHECK(fl_data_get(set, i, &b));
        CHECK(b.n == 2 && !strcmp(fl_backend_name(b.t[1]), fl_backend_name(w)));
        CHECK(fl_assign(all, fl_add(all, fl_sum(fl_mul(b.t[0], w), FL_ALL_AXES))));
        fl_scope_end(&step);
    }
    const double y = fl_item(all);
    fl_scope_end(&s);
    return y;
}

static fl_data_set *batches_for(const char *backend) {
    const char *was = fl_backend_at(fl_backend_default())->name;
    CHECK(fl_backend_set_default("cpu"));
    fl_tensor *x = fl_reshape(fl_arange(0, 40 * 7, 1, FL_F32), FL_SHAPE(40, 7));
    fl_tensor *y = fl_arange(0, 40, 1, FL_I64);
    CHECK(fl_backend_set_default(was));
    return fl_data_to(fl_data_batch(fl_data_tensors((fl_tensor *[]){x, y}, 2), 4, false), backend);
}

TEST(batches_move_beside_what_is_computed) {
    NEEDS_EMULATION;
    enum { SUM = 279 * 280 };
    int wrong = 0;
    for (int threads = 0; threads < 3; threads++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            fl_scope s = fl_scope_begin();
            fl_data_set *set = batches_for("cuda");
            if (threads) set = fl_data_prefetch(set, threads, 3);
            cuda_emu_seed(seed);
            CHECK_EQ_INT(sum_batches(set), SUM);
            cuda_emu_drop_waits(threads == 0);
            if (threads == 0) wrong += sum_batches(set) != SUM;
            cuda_emu_drop_waits(false);
            fl_data_free(set);
            fl_scope_end(&s);
        }
    CHECK(wrong > 5);
    fl_data_set *set = batches_for("cuda");
    int64_t waiting = 0;
    for (int i = 0; i < 10; i++) { /* nobody waited for the batch, but where the seed says so */
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        CHECK(fl_data_get(set, i, &b));
        waiting += cuda_emu_waiting() > 0;
        fl_scope_end(&s);
    }
    CHECK(waiting > 5);
    fl_data_free(set);
    CHECK(fl_backend_set_default("cpu"));
    set = batches_for("cpu");
    CHECK_EQ_INT(sum_batches(set), SUM);
    fl_data_free(set);
}

/* A block that another stream used last serves again at once, and what comes into it waits. */
TEST(memory_goes_back_to_its_stream) {
    NEEDS_EMULATION;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(5000), 2, FL_F32), *y = NULL;
    fl_mem_manager *m = x->buffer->device->manager;
    int64_t trips = 0;
    for (int step = 0; step < 20; step++) {
        fl_scope inner = fl_scope_begin();
        fl_stream(1);
        fl_tensor *batch = fl_full(FL_SHAPE(5000), step, FL_F32);
        fl_stream(0);
        y = fl_scope_escape(&inner, fl_mul(batch, x));
        fl_scope_end(&inner);
        if (step == 2) trips = fl_mem_stats_of(m).device_gets;
        CHECK_EQ_INT(fl_item(fl_sum(y, FL_ALL_AXES)), step * 10000);
    }
    CHECK_EQ_INT(fl_mem_stats_of(m).device_gets, trips);
    fl_scope_end(&s);
}

TEST(reductions_without_outputs_end) {
    NEEDS_CUDA;
    fl_tensor *x = fl_slice(fl_zeros(FL_SHAPE(77, 8), FL_F32), 1, 0, 0, 1);
    CHECK_EQ_INT(fl_numel(fl_argmax(x, 0, false)), 0);
    CHECK_EQ_INT(fl_item(fl_sum(fl_sum(x, FL_AXES(0)), FL_ALL_AXES)), 0);
}

/* ---- graphs ---- */

enum { GRAPH_STEPS = 10, GRAPH_NUMBERS = 40 };
typedef struct graph_run {
    float loss[GRAPH_STEPS], drawn[GRAPH_STEPS], weight[GRAPH_NUMBERS];
} graph_run;

/* Ten steps of a network with dropout, its gradients clipped, by AdamW, whose rate changes; each behind a
   number that the same generator draws. g: NULL, or the graph of the steps, which is replayed where it is
   ready; *launches: of the steps 6 to 9. */
static void train_graph(graph_run *r, fl_graph *g, bool replays, int64_t *launches) {
    memset(r, 0, sizeof *r);
    fl_seed(11);
    fl_scope outer = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(6, 16), fl_nn_dropout(0.5), fl_nn_relu(),
                                         fl_nn_layer_norm(FL_SHAPE(16)), fl_nn_linear(16, 4));
    fl_var *w = fl_nn_parameters(net).v[0];
    fl_optim *o = fl_optim_adamw(fl_nn_parameters(net), .lr = 1e-2);
    fl_tensor *x = fl_empty(FL_SHAPE(9, 6), FL_F32), *loss = NULL, *other[64] = {NULL};
    fl_tensor *label = fl_remainder(fl_arange(0, 9, 1, FL_I64), fl_int(4));
    fl_rng rng = {3, 0};
    for (int step = 0; step < GRAPH_STEPS; step++) {
        fl_scope s = fl_scope_begin();
        r->drawn[step] = (float)fl_item(fl_uniform(FL_SCALAR_SHAPE, 0, 1, FL_F32, NULL));
        fl_stream(step & 1); /* another one's work is waited for */
        CHECK(fl_assign(x, fl_normal(FL_SHAPE(9, 6), 0, 1, FL_F32, &rng)));
        fl_stream(0);
        if (step == 6) CHECK(fl_optim_set_lr(o, 3e-2));
        const uint32_t version = fl_version_of(fv_value(w));
        const int64_t before = cuda_emu_launches ? cuda_emu_launches() : 0;
        if (replays && fl_graph_ready(g)) {
            CHECK(fl_graph_replay(g));
        } else {
            if (!replays) fl_drop(loss), loss = NULL;
            CHECK(!g || fl_graph_begin(g));
            fl_optim_zero_grad(o);
            fl_var *y = fv_cross_entropy(fl_nn_forward(net, fv_const(x)), label);
            CHECK(fl_backward(y));
            fl_optim_clip(o, 0.5);
            CHECK(fl_optim_step(o));
            fl_drop(loss);
            loss = fl_keep(fv_value(y));
            CHECK(!g || fl_graph_end(g));
            if (g && step > 1 && !CHECK(fl_graph_ready(g)))
                printf("  step %d: %s\n", step, fl_graph_reason(g));
        }
        if (cuda_emu_launches && step > 5) *launches += cuda_emu_launches() - before;
        CHECK(fl_version_of(fv_value(w)) > version);
        if (step == 4) { /* the graph's memory stays its own */
            fl_mem_manager *m = x->buffer->device->manager;
            if (m) m->trim(m);
            for (int i = 0; i < 64; i++) other[i] = fl_scope_escape(&s, fl_full(FL_SHAPE(100), 7, FL_F32));
        }
        r->loss[step] = (float)fl_item(loss);
        fl_scope_end(&s);
    }
    for (int i = 0; i < 64; i++) CHECK_EQ_INT(fl_item(fl_sum(other[i], FL_ALL_AXES)), 700);
    CHECK(fl_to_host(fl_slice(fl_reshape(fv_value(w), FL_SHAPE(-1)), 0, 0, GRAPH_NUMBERS, 1), r->weight,
                     sizeof r->weight));
    fl_drop(loss);
    fl_optim_free(o);
    fl_nn_free(net);
    fl_scope_end(&outer);
}

/* Replays, and rounds that repeat, are a launch of the graph, one of its random numbers' word, and copies. */
TEST(a_step_of_a_graph_is_one_launch_with_the_bits_of_eager_steps) {
    NEEDS_CUDA;
    graph_run eager, run[2];
    int64_t launches[3] = {0, 0, 0};
    for (int replays = 0; replays < 2; replays++) {
        fl_graph *g = fl_graph_new();
        train_graph(&run[replays], g, replays, &launches[replays]);
        CHECK(fl_graph_ready(g));
        fl_graph_free(g);
    }
    train_graph(&eager, NULL, false, &launches[2]);
    for (int i = 0; i < 2; i++) CHECK(!memcmp(&eager, &run[i], sizeof eager));
    for (int i = 1; i < GRAPH_STEPS; i++) CHECK(eager.loss[i] != eager.loss[i - 1]);
    printf("  launches of four steps: %lld eager, %lld in rounds, %lld replayed\n", (long long)launches[2],
           (long long)launches[0], (long long)launches[1]);
    if (cuda_emu_launches) CHECK(launches[0] == 8 && launches[1] == 8 && launches[2] > 80);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* tanh(where(x < 0.3, exp(x / 2), x - 2)) + x in rounds of a graph, of which the last ones are launches of a
   CUDA graph. Returns the launches of the second round. */
enum { CHAIN_ROUNDS = 6, CHAIN = 501 };
static int64_t chain_rounds(fl_compile_mode mode, float got[CHAIN_ROUNDS][CHAIN]) {
    fl_rng rng = {7, 0};
    int64_t launches = 0;
    const fl_compile_mode was = fl_compile(mode);
    fl_scope outer = fl_scope_begin();
    fl_graph *g = fl_graph_new();
    fl_tensor *x = fl_normal(FL_SHAPE(CHAIN), 0, 1, FL_F32, &rng), *y = NULL;
    for (int round = 0; round < CHAIN_ROUNDS; round++) {
        CHECK(fl_graph_begin(g));
        fl_drop(y);
        fl_scope s = fl_scope_begin();
        fl_tensor *c = fl_lt(x, fl_num(0.3));
        fl_tensor *chosen = fl_where(c, fl_exp(fl_mul(x, fl_num(0.5))), fl_sub(x, fl_num(2)));
        y = fl_keep(fl_add(fl_tanh(chosen), x));
        fl_scope_end(&s);
        const int64_t before = cuda_emu_launches ? cuda_emu_launches() : 0;
        CHECK(fl_graph_end(g));
        if (cuda_emu_launches && round == 1) launches = cuda_emu_launches() - before;
        CHECK(fl_to_host(y, got[round], sizeof got[round]));
    }
    fl_drop(y);
    fl_graph_free(g);
    fl_scope_end(&outer);
    fl_compile(was);
    return launches;
}

TEST(groups_of_calls_are_one_launch_while_programs_are_compiled) {
    NEEDS_CUDA;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    static float want[CHAIN_ROUNDS][CHAIN], got[CHAIN_ROUNDS][CHAIN];
    const int64_t plain = chain_rounds(FL_COMPILE_NEVER, want);
    const int64_t grouped = chain_rounds(FL_COMPILE_LATER, got);
    CHECK(!memcmp(want, got, sizeof want));
    if (cuda_emu_launches) CHECK(plain == 7 && grouped == 1);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(deferred_steps_give_the_bits_of_eager_ones) {
    NEEDS_CUDA;
    graph_run eager, deferred;
    int64_t launches = 0;
    train_graph(&eager, NULL, false, &launches);
    fl_lazy(true);
    train_graph(&deferred, NULL, false, &launches);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_exp(fl_zeros(FL_SHAPE(5), FL_F32));
    CHECK(x->buffer && !x->buffer->ptr && fl_lazy_calls().n == 2);
    CHECK_EQ_INT(fl_item(fl_sum(x, FL_ALL_AXES)), 5);
    const int64_t at = 7;
    fl_tensor *wrong = fl_gather(x, 0, fl_from_host(&at, FL_SHAPE(1), FL_I64));
    CHECK(wrong && !fl_sync(wrong)); /* as of an eager one, known at the next wait */
    CHECK_ERROR("fl_gather: index 7 is out of range for axis 0 of size 5");
    fl_scope_end(&s);
    fl_lazy(false);
    CHECK(!memcmp(&eager, &deferred, sizeof eager));
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* Steps of one kind, y = dropout(x) of kind 0, that one launch can be or not. */
typedef struct odd {
    int kind;
    fl_tensor *x, *y;
    fl_graph *g;   /* NULL: eager */
    bool replays;  /* where g is ready */
    fl_rng rng;    /* a generator of the program */
    double sum;    /* of all results */
} odd;

static fl_tensor *odd_step(odd *o) {
    fl_tensor *x = o->x;
    fl_rng same = {5, 0};
    switch (o->kind) {
    case 1: return fl_add(fl_dropout(x, 0.5, NULL), fl_num(fl_item(fl_sum(x, FL_ALL_AXES))));
    case 2: return fl_dropout(x, 0.5, &o->rng);
    case 3: fl_stream(1); return fl_exp(x);
    case 4: return fl_exp(fl_expand(x, FL_SHAPE(5000, 12)));
    case 5: return fl_set_host(x, "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcd", 48) ? fl_exp(x) : NULL;
    case 6: x = fl_dropout(x, 0.5, NULL); return fl_sync(x) ? fl_exp(x) : NULL;
    case 7: return fl_exp(fl_to(fl_to(x, "cpu"), fl_backend_name(x)));
    case 8: return fl_cast(fl_nonzero(x), FL_F32);
    case 9: return fl_dropout(x, 0.5, &same);
    case 10: x = fl_exp(x); fl_stream(1); return fl_exp(x);
    case 11: return fl_sort(x, 0, false, NULL);
    default: return fl_dropout(x, 0.5, NULL);
    }
}
enum { ODD_KINDS = 12, ODD_ROUNDS = 6 };

static bool odd_begin(odd *o, int kind, bool graph, bool replays) {
    fl_rng rng = {7, 0};
    *o = (odd){.kind = kind, .replays = replays, .rng = {5, 0}};
    if (graph) o->g = fl_graph_new();
    if (graph && !o->g) return false;
    fl_seed((uint64_t)kind);
    fl_scope s = fl_scope_begin();
    o->x = fl_keep(fl_normal(FL_SHAPE(12), 0, 1, FL_F32, &rng));
    fl_scope_end(&s);
    return o->x != NULL;
}

static void odd_end(odd *o) {
    fl_graph_free(o->g);
    fl_drop(o->x);
    fl_drop(o->y);
}

static bool odd_round(odd *o) {
    fl_scope s = fl_scope_begin();
    bool ok;
    if (o->replays && fl_graph_ready(o->g)) {
        ok = fl_graph_replay(o->g);
    } else {
        fl_drop(o->y);
        o->y = NULL;
        ok = !o->g || fl_graph_begin(o->g);
        fl_tensor *y = ok ? odd_step(o) : NULL;
        if (ok && o->g) ok = fl_graph_end(o->g);
        if (ok && y) o->y = fl_keep(y);
    }
    fl_stream(0);
    if (ok && o->y) o->sum += fl_item(fl_sum(o->y, FL_ALL_AXES));
    fl_scope_end(&s);
    return ok && o->y && !fl_error();
}

TEST(every_step_is_right_whether_or_not_it_can_be_one_launch) {
    NEEDS_CUDA;
    static const char *const why[ODD_KINDS] = {
        "", "the host reads a tensor", "random numbers of a generator of the program", "", "",
        "the host writes a tensor", "calls of the step ran before its end", "the host reads a tensor",
        "the host reads a tensor", "", "calls of the step are on two streams", ""};
    for (int kind = 0; kind < ODD_KINDS; kind++)
        for (int replays = 0; replays < 2; replays++) {
            odd o[2];
            for (int graph = 0; graph < 2; graph++) {
                CHECK(odd_begin(&o[graph], kind, graph, replays));
                for (int i = 0; i < ODD_ROUNDS; i++)
                    if (!CHECK(odd_round(&o[graph])))
                        printf("  kind %d, round %d: %s\n", kind, i, fl_error() ? fl_error() : "no result");
            }
            CHECK_STR(fl_graph_reason(o[1].g), why[kind]);
            CHECK(fl_graph_ready(o[1].g) == !why[kind][0]);
            CHECK(o[0].sum == o[1].sum && o[0].sum != 0);
            for (int i = 0; i < 2; i++) odd_end(&o[i]);
        }
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(any_call_may_fail_around_a_graph) {
    NEEDS_EMULATION;
    bool failed = true;
    int failures = 0;
    CHECK_EQ_INT(small_work(), 72);
    for (int64_t n = 1; n < 200; n++)
        for (int replays = 0; replays < 2; replays++) {
            odd o;
            CHECK(odd_begin(&o, 0, true, replays));
            cuda_emu_fail_in(n);
            for (int i = 0; i < ODD_ROUNDS && !fl_error(); i++) odd_round(&o);
            failed = fl_error() != NULL;
            cuda_emu_fail_in(0);
            fl_error_clear();
            for (int i = 0; i < ODD_ROUNDS; i++) CHECK(odd_round(&o));
            odd_end(&o);
            CHECK_EQ_INT(test_live_buffers(), 0);
            failures += failed;
        }
    printf("  %d of the calls failed\n", failures);
    CHECK(!failed && failures > 10);
}

/* Work of all kinds, none of whose memory is cached before. */
static bool all_kinds(void) {
    fl_tensor *x = fl_ones(FL_SHAPE(12), FL_F32);
    odd o;
    if (x) x->buffer->device->manager->trim(x->buffer->device->manager);
    bool ok = odd_begin(&o, 0, true, true) && x;
    for (int i = 0; i < ODD_ROUNDS && ok; i++) ok = odd_round(&o);
    odd_end(&o);
    ok = ok && small_work() == 72;
    fl_tensor *y = ok ? fl_to(fl_sum_squares(fl_to(x, "cuda:1")), "cuda") : NULL;
    return y && fl_item(y) == 12 && !fl_error();
}

TEST(any_request_of_the_heap_may_fail) {
    NEEDS_EMULATION;
    fl_heap_use(heap_fn, NULL);
    CHECK(sweep_heap(all_kinds, false) > 10);
    fl_heap_use(NULL, NULL);
}

/* ---- kernels of users ---- */

static double largest_difference(fl_tensor *a, fl_tensor *b) {
    return fl_item(fl_to(fl_amax(fl_abs(fl_sub(fl_to(a, "cpu"), fl_to(b, "cpu"))), FL_ALL_AXES), "cpu"));
}

/* examples/extend/own_op.cu */
TEST(an_op_of_a_user_is_one_launch_on_every_device) {
    NEEDS_EMULATION;
    static const char *const on[2] = {"cuda", "cuda:1"};
    fl_rng rng = {7, 0};
    bool named = false;
    REQUIRE(snake_register() && snake_on_cuda);
    for (int i = 0; i < 2; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_to(fl_normal(FL_SHAPE(70, 33), 0, 1, FL_F32, &rng), on[i]);
        const int64_t before = cuda_emu_launches();
        fl_var *v = fv_param(x), *y = snake_var(v, 1.5);
        CHECK_EQ_INT(cuda_emu_launches() - before, 1);
        CHECK(largest_difference(fv_value(y), snake(fl_to(x, "cpu"), 1.5)) < 1e-6);
        CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
        CHECK(largest_difference(fv_grad(v), fl_add(fl_sin(fl_mul(x, fl_num(3))), fl_num(1))) < 1e-6);
        CHECK(snake(fl_empty(FL_SHAPE(0, 3), FL_F32), 2) != NULL);
        for (int call = 1; call < 8; call++) {
            cuda_emu_fail_in(call);
            if (!snake(x, 2)) named |= strstr(fl_error(), "fl_snake: cuda: a launch: unknown error") != NULL;
            cuda_emu_fail_in(0);
            fl_error_clear();
            CHECK(snake(x, 2) != NULL);
        }
        fl_scope_end(&s);
    }
    CHECK(named);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* A step waits in a queue, which a kernel of fl launches first. */
TEST(an_op_of_a_user_sees_the_step_before_it) {
    NEEDS_EMULATION;
    static fl_step_rule rule = {
        .reads = "g", .writes = "p", .numbers = "lr", .formula = "SUB(p, MUL(lr, g))"};
    fl_tensor *lr = fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64);
    REQUIRE(snake_register());
    for (uint64_t seed = 0; seed < 20; seed++) {
        fl_scope s = fl_scope_begin();
        cuda_emu_seed(seed);
        fl_var *p = fv_param(fl_full(FL_SHAPE(300), 1, FL_F32));
        fl_optim *o = fl_optim_sgd(((fv_list){1, &p}), .lr = 0.5);
        CHECK(fv_set_grad(p, fv_const(fl_full(FL_SHAPE(300), -2, FL_F32))) && fl_optim_step(o));
        fl_tensor *y = snake(fv_value(p), 1), *g = fl_full(FL_SHAPE(300), 4, FL_F32);
        CHECK_NEAR(fl_item(fl_sum(y, FL_ALL_AXES)), 300 * (2 + sin(2) * sin(2)), 1e-3);
        const int64_t before = cuda_emu_launches();
        CHECK(fl_step(&rule, (fl_tensor *[]){g, fv_value(p)}, 1, &lr, NULL));
        y = snake(fv_value(p), 1);
        if (compiles_programs()) CHECK_EQ_INT(cuda_emu_launches() - before, 2); /* the step's, then its own */
        CHECK_NEAR(fl_item(fl_sum(y, FL_ALL_AXES)), 0, 1e-3);
        fl_optim_free(o);
        fl_scope_end(&s);
    }
}

/* x = snake(y) on one stream, y = -x on the other, and so on: wrong if a stream does not wait. */
static double snakes_on_streams(uint64_t seed) {
    fl_scope s = fl_scope_begin();
    cuda_emu_seed(seed);
    fl_tensor *x = fl_full(FL_SHAPE(100), 0.25, FL_F32);
    for (int i = 0; i < 12; i++) {
        fl_stream(i % 2);
        CHECK(fl_assign(x, i % 3 ? snake(x, 1) : fl_neg(x)));
    }
    fl_stream(0);
    const double sum = fl_item(fl_sum(x, FL_ALL_AXES));
    fl_scope_end(&s);
    return sum;
}

TEST(streams_wait_for_an_op_of_a_user) {
    NEEDS_EMULATION;
    int wrong = 0;
    REQUIRE(snake_register() && fl_backend_set_default("cpu"));
    const double want = snakes_on_streams(0);
    CHECK(fl_backend_set_default("cuda"));
    for (uint64_t seed = 1; seed <= 20; seed++) CHECK_NEAR(snakes_on_streams(seed), want, 1e-4);
    cuda_emu_drop_waits(true);
    for (uint64_t seed = 1; seed <= 20; seed++) wrong += fabs(snakes_on_streams(seed) - want) > 1e-4;
    cuda_emu_drop_waits(false);
    CHECK(wrong > 10);
}

/* An op whose kernel is text: y = k x + 1. */
static fl_op op_line;
static const char *line_text;
static bool line_compose(const fl_call *c, fl_tensor **y) {
    y[0] = fl_add(fl_mul(c->in[0], fl_num(*(const double *)c->args)), fl_num(1));
    return y[0] != NULL;
}
FL_CUDA_SLOT(line_slot) {
    if (!fl_out_make(c->out[0])) return false;
    void *y = fl_data(c->out[0]), *x = fl_data(c->in[0]);
    int64_t n = fl_numel(c->in[0]);
    double k = *(const double *)c->args;
    return fl_cuda_launch(c, line_text, "line", (n + 63) / 64, 64, (void *[]){&y, &x, &n, &k});
}
static bool line_register(const char *text) {
    static const fl_op_info info = {
        .name = "line", .args_size = sizeof(double), .uses = "add mul", .compose = line_compose};
    line_text = text;
    if (!op_line) op_line = fl_op_register(&info);
    return fl_cuda_set(op_line, line_slot, FL_SLOT_CONTIGUOUS);
}
static fl_tensor *line(fl_tensor *x, double k) {
    return fl_call_into(op_line, fl_out_like(x, FL_F32), x, NULL, &k);
}
#define LINE_OF(index) \
    "extern \"C\" __global__ void line(float *y, const float *x, int64_t n, double k) {\n" \
    "    const int64_t i = " index ";\n" \
    "    if (i < n) y[i] = flm_add_f32(flm_mul_f32(x[i], (float)k), 1.0f);\n}\n"
static const char line_of_source[] = LINE_OF("(int64_t)blockIdx.x * blockDim.x + threadIdx.x");

TEST(a_kernel_of_a_user_is_compiled_from_source_once) {
    NEEDS_CUDA;
    if (!compiles_programs()) SKIP("NVRTC: FL_CUDA_LIBS");
    REQUIRE(line_register(line_of_source));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_arange(0, 1000, 1, FL_F32);
    for (int i = 0; i < 4; i++) {
        fl_tensor *y = line(i % 2 && cuda_emu_fail_in ? fl_to(x, "cuda:1") : x, i);
        CHECK(y && fl_item(fl_sum(y, FL_ALL_AXES)) == 499500.0 * i + 1000);
    }
    if (cuda_emu_fail_in) CHECK_EQ_INT(programs_compiled(), 1);
    CHECK(line(fl_empty(FL_SHAPE(0), FL_F32), 2) != NULL);
    CHECK(line_register(LINE_OF("other")));
    CHECK(!line(x, 2));
    CHECK_STR(fl_error(), "fl_line: cuda: kernel 'line': ");
    CHECK_STR(fl_error(), "other"); /* what the compiler says */
    fl_error_clear();
    fl_scope_end(&s);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* During a capture of stream 0 another thread drops a tensor that was allocated on stream 1 and used on 0,
   and waits for the device. */
static fl_tensor *dropped_elsewhere;
static int captures_refused;
static void *drop_it(void *t) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_drop(t);
    fl_stream(1);
    fl_tensor *x = fl_empty(FL_SHAPE(3000), FL_F32); /* where it was */
    const bool ok = x && fl_sync(x) && !fl_error();
    fl_scope_end(&s);
    return ok ? t : NULL;
}
static void count_refused(fl_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    captures_refused += strstr(text, "cannot be captured") != NULL;
}
/* A graph whose steps run `line` by that slot, and its end: each step was captured. */
static fl_graph *begin_captures(fl_slot slot) {
    fl_log_set_sink(count_refused, NULL, FL_LOG_INFO);
    captures_refused = 0;
    return line_register("") && fl_cuda_set(op_line, slot, FL_SLOT_CONTIGUOUS) ? fl_graph_new() : NULL;
}
static void end_captures(fl_graph *g, fl_tensor *y) {
    CHECK_EQ_INT(captures_refused, 0);
    fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
    fl_drop(y);
    fl_graph_free(g);
}
FL_CUDA_SLOT(dropping_slot) {
    pthread_t other;
    void *ok = dropped_elsewhere;
    if (ok && (pthread_create(&other, NULL, drop_it, ok) || pthread_join(other, &ok) || !ok)) return false;
    dropped_elsewhere = NULL;
    return fl_call_compose(c);
}

TEST(another_thread_may_drop_a_tensor_and_wait_during_a_capture) {
    NEEDS_EMULATION;
    fl_graph *g = begin_captures(dropping_slot);
    REQUIRE(g != NULL);
    fl_tensor *x = fl_ones(FL_SHAPE(50), FL_F32), *y = NULL;
    for (int round = 0; round < 6; round++) {
        fl_scope s = fl_scope_begin();
        fl_stream(1);
        dropped_elsewhere = fl_keep(fl_full(FL_SHAPE(3000), 3, FL_F32));
        fl_stream(0);
        CHECK(fl_neg(dropped_elsewhere) && fl_graph_begin(g));
        fl_drop(y);
        y = fl_keep(line(x, 3));
        fl_scope_end(&s);
        CHECK(fl_graph_end(g));
        CHECK(round > 3 || !dropped_elsewhere); /* round 3 is the capture; a replay runs no slot */
        fl_drop(dropped_elsewhere);
        dropped_elsewhere = NULL;
        s = fl_scope_begin();
        fl_stream(1);
        CHECK_EQ_INT(fl_item(fl_sum(fl_full(FL_SHAPE(3000), 5, FL_F32), FL_ALL_AXES)), 15000);
        fl_stream(0);
        CHECK(fl_item(fl_sum(y, FL_ALL_AXES)) == 200 && !fl_error());
        fl_scope_end(&s);
    }
    end_captures(g, y);
}

/* Between two calls of a capture another thread computes on the same stream. */
static double sum_beside;
static bool starts_beside;
static pthread_t beside;
static void *compute_beside(void *unused) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    sum_beside = fl_item(fl_sum(fl_add(fl_full(FL_SHAPE(3000), 2, FL_F32), fl_num(3)), FL_ALL_AXES));
    fl_scope_end(&s);
    return unused;
}
static bool starting_slot(const fl_backend *self, const fl_call *c) {
    (void)self;
    if (starts_beside) {
        starts_beside = false;
        if (pthread_create(&beside, NULL, compute_beside, NULL)) return false;
        usleep(50000); /* enough for it to launch, if it is not made to wait */
    }
    return fl_call_compose(c);
}

TEST(another_thread_may_compute_on_the_stream_of_a_capture) {
    NEEDS_EMULATION;
    fl_graph *g = begin_captures(starting_slot);
    REQUIRE(g != NULL);
    fl_tensor *x = fl_ones(FL_SHAPE(50), FL_F32), *y = NULL;
    for (int round = 0; round < 6; round++) {
        starts_beside = true;
        sum_beside = 0;
        CHECK(fl_graph_begin(g));
        fl_drop(y);
        fl_scope s = fl_scope_begin();
        y = fl_keep(line(x, 3));
        fl_scope_end(&s);
        CHECK(fl_graph_end(g));
        CHECK(round > 3 || !starts_beside);
        if (!starts_beside) CHECK(!pthread_join(beside, NULL) && sum_beside == 15000);
        s = fl_scope_begin();
        CHECK(fl_item(fl_sum(y, FL_ALL_AXES)) == 200 && !fl_error());
        fl_scope_end(&s);
    }
    end_captures(g, y);
}

/* A generator of the program's, which starts at the same place in each round. */
TEST(a_graph_draws_what_eager_calls_draw_from_other_generators) {
    NEEDS_EMULATION;
    fl_graph *g = fl_graph_new();
    const fl_norm_args norm = {.dims = 1, .eps = 1e-5};
    fl_tensor *x = fl_ones(FL_SHAPE(4, 64), FL_F32), *y = NULL, *noise = NULL, *first = NULL;
    for (int round = 0; round < 6; round++) {
        fl_scope s = fl_scope_begin();
        fl_rng own = {5, 7};
        CHECK(fl_graph_begin(g));
        fl_drop(y), fl_drop(noise);
        noise = fl_keep(fl_uniform(FL_SHAPE(64), 0, 1, FL_F32, NULL));
        y = fl_keep(fl_add_layer_norm(x, x, NULL, NULL, norm, 0.5, &own, NULL));
        CHECK(fl_graph_end(g));
        if (!first) first = fl_keep(fl_add(y, fl_num(0)));
        CHECK(fl_item(fl_all(fl_eq(y, first), FL_ALL_AXES)) == 1);
        fl_scope_end(&s);
    }
    fl_drop(y), fl_drop(noise), fl_drop(first);
    fl_graph_free(g);
}

/* ---- two devices ---- */

static bool has_two(void) {
    fl_scope s = fl_scope_begin();
    const bool there = fl_to(fl_zeros(FL_SCALAR_SHAPE, FL_F32), "cuda:1");
    if (!there) CHECK_ERROR("there is no CUDA device 1");
    fl_scope_end(&s);
    return there;
}
#define NEEDS_TWO \
    NEEDS_CUDA;   \
    if (!has_two()) SKIP("backend cuda:1: one device")

TEST(each_device_works_by_itself) {
    NEEDS_TWO;
    float drawn[2][1001];
    graph_run run[2];
    for (int i = 0; i < 2; i++) {
        CHECK(fl_backend_set_default(i ? "cuda:1" : "cuda"));
        CHECK_EQ_INT(small_work(), 72);
        fl_scope s = fl_scope_begin();
        fl_seed(5);
        fl_tensor *x = fl_uniform(FL_SHAPE(1001), 0, 1, FL_F32, NULL);
        CHECK_STR(fl_backend_name(x), i ? "cuda:1" : "cuda");
        CHECK(fl_to_host(x, drawn[i], sizeof drawn[i]));
        fl_scope_end(&s);
        fl_graph *g = fl_graph_new();
        int64_t launches = 0;
        train_graph(&run[i], g, true, &launches);
        CHECK(fl_graph_ready(g));
        fl_graph_free(g);
    }
    CHECK(!memcmp(drawn[0], drawn[1], sizeof drawn[0]));
    CHECK(!memcmp(&run[0], &run[1], sizeof run[0]));
}

TEST(each_device_has_its_own_memory_and_figures) {
    NEEDS_TWO;
    fl_tensor *x = fl_zeros(FL_SHAPE(1000), FL_F32), *y = fl_to(x, "cuda:1");
    fl_mem_manager *m[2] = {x->buffer->device->manager, y->buffer->device->manager};
    CHECK(m[0] != m[1] && !strcmp(m[1]->name, "cuda:1"));
    fl_mem_stats before[2] = {fl_mem_stats_of(m[0]), fl_mem_stats_of(m[1])};
    fl_tensor *z = fl_to(fl_zeros(FL_SHAPE(300, 1000), FL_F32), "cpu"), *w = fl_to(z, "cuda:1");
    const int64_t gained = fl_mem_stats_of(m[1]).in_use - before[1].in_use;
    CHECK(w && gained >= 1200000 && gained < 1400000);
    CHECK_EQ_INT(fl_mem_stats_of(m[0]).in_use - before[0].in_use, gained); /* the zeros */
    fl_mem_stats_reset_peak(m[0]);
    CHECK(fl_to(z, "cuda:1") && fl_to(w, "cuda:1") == w);
    CHECK_EQ_INT(fl_mem_stats_of(m[0]).peak_in_use, fl_mem_stats_of(m[0]).in_use);
    CHECK_EQ_INT(fl_mem_stats_of(m[1]).in_use - before[1].in_use, 2 * gained);
    if (cuda_emu_limit) { /* one is full, the other is not touched */
        fl_tensor *large = fl_to(fl_zeros(FL_SHAPE(4 << 20), FL_F32), "cpu"); /* 16 MiB */
        const int64_t kept = fl_mem_stats_of(m[0]).reserved;
        cuda_emu_limit(32 << 20);
        CHECK(fl_to(large, "cuda:1") && !fl_to(large, "cuda:1"));
        CHECK_ERROR("(manager cuda:1)");
        CHECK_EQ_INT(fl_mem_stats_of(m[0]).reserved, kept);
        cuda_emu_limit(0);
        CHECK(fl_to(large, "cuda:1"));
    }
}

/* No host in between: nothing is read, nobody waits. */
TEST(devices_move_to_each_other) {
    NEEDS_TWO;
    int waiting = 0;
    for (int i = 0; i < 10; i++) {
        fl_scope s = fl_scope_begin();
        double got[6];
        fl_tensor *x = fl_reshape(fl_arange(i, i + 6, 1, FL_F64), FL_SHAPE(2, 3));
        fl_tensor *y = fl_to(fl_transpose(x, 0, 1), "cuda:1");
        fl_tensor *z = fl_to(fl_add(y, fl_num(10)), "cuda");
        if (cuda_emu_waiting) waiting += cuda_emu_waiting() > 0;
        CHECK(fl_to_host(z, got, sizeof got));
        CHECK_EQ_INT(got[1], i + 13);
        CHECK_EQ_INT(got[5], i + 15);
        fl_scope_end(&s);
    }
    CHECK(!cuda_emu_waiting || waiting > 5);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(operands_of_two_devices_are_an_error_that_names_both) {
    NEEDS_TWO;
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *y = fl_to(x, "cuda:1");
    fl_tensor *label = fl_to(fl_zeros(FL_SHAPE(2), FL_I64), "cuda:1");
    for (int kind = 0; kind < 6; kind++) {
        CHECK(!(kind == 0   ? fl_add(x, y)
                : kind == 1 ? fl_layer_norm(x, 1, fl_select(y, 0, 0), NULL, 1e-5)
                : kind == 2 ? fl_cross_entropy(x, label)
                : kind == 3 ? fl_matmul(y, fl_transpose(x, 0, 1))
                : kind == 4 ? fl_where(fl_gt(x, x), y, y)
                            : fl_linear(x, y, NULL)));
        if (!CHECK(fl_error() && strstr(fl_error(), "'cuda'") && strstr(fl_error(), "'cuda:1'")))
            printf("  kind %d: %s\n", kind, fl_error() ? fl_error() : "no error");
        fl_error_clear();
    }
    CHECK(!fl_to(x, "cuda:8"));
    CHECK_STR(fl_error(), "no backend 'cuda:8'");
    fl_error_clear();
    if (cuda_emu_limit) {
        CHECK(!fl_to(x, "cuda:2"));
        CHECK_STR(fl_error(), "there is no CUDA device 2: they are 2, counted from 0; FL_DEVICE=cpu");
        fl_error_clear();
    }
    CHECK_EQ_INT(fl_item(fl_sum(fl_add(y, y), FL_ALL_AXES)), 12);
}

TEST(what_the_data_of_one_device_shows_is_not_the_others) {
    NEEDS_TWO;
    const int64_t at[2] = {1, 7};
    fl_tensor *i = fl_from_host(at, FL_SHAPE(2), FL_I64), *x = fl_arange(0, 3, 1, FL_F32);
    fl_tensor *y = fl_gather(fl_to(x, "cuda:1"), 0, fl_to(i, "cuda:1"));
    CHECK(y && fl_sync(x));
    CHECK(!fl_sync(y));
    CHECK_STR(fl_error(), "fl_gather: index 7 is out of range for axis 0 of size 3");
    fl_error_clear();
    CHECK(fl_sync(y));
}

/* A graph's memory, streams and work are of its device; what is done on another one beside it stays. */
TEST(a_graph_of_one_device_does_not_meet_the_other) {
    NEEDS_TWO;
    fl_tensor *x = fl_zeros(FL_SHAPE(12), FL_F32), *y = fl_to(fl_ones(FL_SHAPE(12), FL_F32), "cuda:1");
    fl_graph *g = fl_graph_new(), *both = fl_graph_new();
    for (int i = 0; i < 8; i++) {
        fl_scope s = fl_scope_begin();
        CHECK(fl_assign(y, fl_add(y, fl_num(1)))); /* a round and a replay wait for the other device's work */
        CHECK(fl_assign(x, fl_to(y, "cuda")));
        if (i > 4) CHECK(fl_graph_replay(g));
        else CHECK(fl_graph_begin(g) && fl_assign(x, fl_mul(x, x)) && fl_graph_end(g));
        CHECK_EQ_INT(fl_item(fl_sum(fl_to(x, "cuda:1"), FL_ALL_AXES)), 12 * (i + 2) * (i + 2));
        fl_scope_end(&s);
    }
    fl_tensor *z = NULL, *w = NULL;
    for (int i = 0; i < 8; i++) { /* of two devices: calls one by one */
        fl_scope s = fl_scope_begin();
        if (i > 4) {
            CHECK(fl_graph_replay(both));
        } else {
            fl_drop(z), fl_drop(w);
            CHECK(fl_graph_begin(both));
            z = fl_keep(fl_add(fl_mul(x, x), fl_num(1)));
            w = fl_keep(fl_add(fl_mul(y, y), fl_num(1)));
            CHECK(fl_graph_end(both));
        }
        CHECK_EQ_INT(fl_item(fl_sum(z, FL_ALL_AXES)), 12 * (81 * 81 + 1));
        CHECK_EQ_INT(fl_item(fl_sum(w, FL_ALL_AXES)), 12 * (81 + 1));
        fl_scope_end(&s);
    }
    fl_drop(z), fl_drop(w);
    fl_graph_free(g);
    fl_graph_free(both);
}

TEST(any_call_may_fail_between_two_devices) {
    NEEDS_TWO;
    if (!cuda_emu_fail_in) SKIP("the emulation's failing calls");
    bool failed = true;
    int failures = 0;
    for (int64_t n = 1; n < 90; n++)
        for (int again = 0; again < 2; again++) {
            fl_scope s = fl_scope_begin();
            cuda_emu_fail_in(again ? 0 : n);
            fl_tensor *x = fl_full(FL_SHAPE(50), 2, FL_F32), *y = fl_to(x, "cuda:1");
            fl_stream(1);
            fl_tensor *z = fl_to(fl_mul(y, y), "cuda");
            fl_stream(0);
            const double got = fl_item(fl_sum(fl_add(z, x), FL_ALL_AXES));
            const bool bad = fl_error() != NULL;
            cuda_emu_fail_in(0);
            fl_error_clear();
            CHECK(bad ? !again : got == 300);
            if (!again) failures += failed = bad;
            fl_scope_end(&s);
            CHECK_EQ_INT(test_live_buffers(), 0);
        }
    CHECK(!failed && failures > 10);
}

static void *work_on(void *backend) {
    test_errors_return();
    bool ok = true;
    for (int i = 0; i < 30 && ok; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_to(fl_full(FL_SHAPE(50), i, FL_F32), backend);
        fl_tensor *y = fl_to(fl_add(x, x), i % 2 ? "cuda" : "cuda:1");
        fl_tensor *sum = fl_sum_squares(fl_to(y, backend));
        ok = fl_item(sum) == 50.0 * 4 * i * i && !fl_error();
        fl_scope_end(&s);
    }
    return ok ? backend : NULL;
}

TEST(threads_work_on_two_devices) {
    NEEDS_TWO;
    static char name[2][8] = {"cuda", "cuda:1"};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) REQUIRE(!pthread_create(&thread[i], NULL, work_on, name[i % 2]));
    for (int i = 0; i < 4; i++) {
        void *ok = NULL;
        CHECK(!pthread_join(thread[i], &ok) && ok == name[i % 2]);
    }
    CHECK_EQ_INT(test_live_buffers(), 0);
}

static void *sync_until(void *end) {
    test_errors_return();
    bool ok = true;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1), FL_F32);
    while (ok && !__atomic_load_n((bool *)end, __ATOMIC_ACQUIRE)) ok = fl_sync(x) && !sched_yield();
    fl_scope_end(&s);
    return ok ? end : NULL;
}

/* Queued calls that another thread is launching must be launched before their results are read. */
TEST(threads_wait_for_each_others_launch) {
    bool end = false;
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) REQUIRE(!pthread_create(&thread[i], NULL, sync_until, &end));
    for (int i = 0; i < 20000; i++) {
        const int n = i % 100;
        fl_scope s = fl_scope_begin();
        CHECK_EQ_INT(fl_item(fl_sum_squares(fl_full(FL_SHAPE(50), n, FL_F32))), 50 * n * n);
        fl_scope_end(&s);
    }
    __atomic_store_n(&end, true, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++) {
        void *ok = NULL;
        CHECK(!pthread_join(thread[i], &ok) && ok);
    }
}

/* As another library on the same thread does. */
TEST(code_beside_fl_may_change_the_current_device) {
    NEEDS_TWO;
    if (!cuda_emu_set_device) SKIP("the emulation's cudaSetDevice");
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(small_work(), 72);
        cuda_emu_set_device(1 - i % 2);
    }
    CHECK_EQ_INT(fl_item(fl_sum(fl_to(fl_ones(FL_SHAPE(3), FL_F32), "cuda:1"), FL_ALL_AXES)), 3);
    CHECK(!fl_error());
}

static void break_in_add(const char *error) {
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    CHECK(fl_sync(x));
    cuda_emu_break_next();
    CHECK(!fl_add(x, x) || !fl_sync(x));
    CHECK_STR(fl_error(), error);
}
TEST(the_error_of_a_later_call_says_how_to_learn_the_kernel) {
    NEEDS_EMULATION;
    break_in_add("cudaEventSynchronize: unspecified launch failure (cudaErrorLaunchFailure); "
                 "CUDA_LAUNCH_BLOCKING=1 names the kernel");
}
TEST(a_kernel_that_fails_is_named_if_launches_wait) {
    NEEDS_EMULATION;
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    break_in_add("fl_add: cuda: flk_formula");
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
