/* test_dist.c - ranks as processes: collectives against a serial reference, data-parallel training
   against one rank, and what each failure, mismatch and mistake says */
#include "../fl_backend.h"
#include "dist.h"
#include <dlfcn.h>
#include <net/if.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include "../examples/extend/naive.h"
#include "../kernels/cpu/bf16.h"
#include "../kernels/dist/sim.h"

/* ---- collectives ---- */

/* Element i of what rank `rank` brings: small integers, so that sums are exact in every dtype. */
static double brings(int rank, int64_t i) {
    return (double)((i * 7 + rank * 3) % 5);
}

static fl_tensor *brought(int rank, int64_t begin, int64_t n, fl_dtype dtype) {
    double *x = fl_heap_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = brings(rank, begin + i);
    fl_tensor *t = fl_cast(fl_from_host(x, FL_SHAPE(n), FL_F64), dtype);
    fl_heap_free(x);
    return t;
}

static double reference(fl_dist_reduction op, int n, int64_t i, bool truth) {
    double r = truth ? brings(0, i) != 0 : brings(0, i);
    for (int k = 1; k < n; k++) {
        const double x = brings(k, i);
        if (op == FL_DIST_MIN)
            r = x < r ? x : r;
        else if (op == FL_DIST_MAX)
            r = x > r ? x : r;
        else if (op == FL_DIST_AND)
            r = r != 0 && x != 0;
        else if (op == FL_DIST_OR)
            r = r != 0 || x != 0;
        else
            r += x;
    }
    return op == FL_DIST_AVG ? r / n : r;
}

/* Each element of t, begin + i of the whole, is what `want` says. */
static void check_reduced(const char *what, fl_tensor *t, fl_dist_reduction op, int n, int64_t begin,
                          double factor) {
    const fl_dtype d = t->dtype;
    const double tolerance = d == FL_F16 || d == FL_BF16 ? 0.02 : d == FL_F32 ? 1e-6 : 1e-12;
    const int64_t numel = fl_numel(t), step = numel > 1000 && !test_full() ? 7 : 1;
    const char *p = fl_map(t, FL_READ);
    for (int64_t i = 0; i < numel; i += step) {
        const double got = fl_number_load(d, p + (size_t)i * fl_dtype_size(d)).f;
        const double want = factor * reference(op, n, begin + i, d == FL_B8);
        if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
            printf("%s of %s, element %lld of %lld: %g, expected %g\n", what, fl_dtype_name(d),
                   (long long)i, (long long)numel, got, want);
            CHECK(false);
            break;
        }
    }
    if (p) fl_unmap(t, FL_READ);
}

static void check_brought(const char *what, fl_tensor *t, int rank, int64_t at, int64_t begin,
                          int64_t n) {
    fl_scope s = fl_scope_begin();
    fl_tensor *want = brought(rank, begin, n, t->dtype),
              *got = fl_slice(fl_flatten(t, 0, -1), 0, at, at + n, 1);
    if (n && !CHECK(fl_item_int(fl_all(fl_eq(got, want), FL_ALL_AXES))))
        printf("%s of %s: not what rank %d brought\n", what, fl_dtype_name(t->dtype), rank);
    fl_scope_end(&s);
}

static void reduces(fl_dist_group *d, int rank, int n, int64_t count, fl_dtype dtype) {
    for (int op = FL_DIST_SUM; op <= FL_DIST_OR; op++) {
        if ((dtype == FL_B8) != (op == FL_DIST_AND || op == FL_DIST_OR)) continue;
        if (op == FL_DIST_AVG && !fl_dtype_is_float(dtype)) continue;
        if (count > 1000 && op != FL_DIST_SUM && !test_full()) continue;
        fl_scope s = fl_scope_begin();
        const double scale = fl_dtype_is_float(dtype) && op == FL_DIST_SUM ? 0.5 : 0,
                     factor = scale ? scale : 1;
        fl_tensor *t = brought(rank, 0, count, dtype);
        if (CHECK(fl_dist_all_reduce(d, t, .op = (fl_dist_reduction)op, .scale = scale)))
            check_reduced("all_reduce", t, (fl_dist_reduction)op, n, 0, factor);
        fl_tensor *in = brought(rank, 0, count * n, dtype), *out = fl_zeros(FL_SHAPE(count), dtype);
        if (CHECK(fl_dist_reduce_scatter(d, out, in, .op = (fl_dist_reduction)op, .scale = scale)))
            check_reduced("reduce_scatter", out, (fl_dist_reduction)op, n, count * rank, factor);
        t = brought(rank, 0, count, dtype);
        if (CHECK(fl_dist_reduce(d, t, n - 1, .op = (fl_dist_reduction)op, .scale = scale)) &&
            rank == n - 1)
            check_reduced("reduce", t, (fl_dist_reduction)op, n, 0, factor);
        fl_scope_end(&s);
    }
}

/* A NaN of either side stays, of min and max too, in blocks of 16 and in the rest. */
TEST(nan_propagates_through_reductions) {
    enum { N = 37 };
    static const fl_dtype dtypes[] = {FL_F16, FL_BF16, FL_F32, FL_F64};
    for (size_t k = 0; k < 4; k++)
        for (int op = FL_DIST_SUM; op <= FL_DIST_MAX; op++)
            for (int nan = 0; nan < 3; nan++) { /* of acc, in, both */
                double acc[N], in[N]; /* room for each dtype */
                const size_t size = fl_dtype_size(dtypes[k]);
                for (size_t i = 0; i < N; i++) {
                    const bool bad = i % 3 == 1;
                    fl_number_store(dtypes[k], (char *)acc + i * size,
                                    (fl_number){.real = true, .f = bad && nan != 1 ? NAN : 1});
                    fl_number_store(dtypes[k], (char *)in + i * size,
                                    (fl_number){.real = true, .f = bad && nan != 0 ? NAN : 2});
                }
                fl_dist_accumulate((fl_dist_reduction)op, dtypes[k], acc, in, N);
                const double want = op == FL_DIST_MIN ? 1 : op == FL_DIST_MAX ? 2 : 3;
                for (size_t i = 0; i < N; i++) {
                    const double got = fl_number_load(dtypes[k], (char *)acc + i * size).f;
                    if (!CHECK(i % 3 == 1 ? isnan(got) : got == want))
                        printf("%s, reduction %d, element %zu: %g\n", fl_dtype_name(dtypes[k]), op, i, got);
                }
            }
}

static void moves(fl_dist_group *d, int rank, int n, int64_t count, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_tensor *in = brought(rank, 0, count, dtype), *all = fl_zeros(FL_SHAPE(n, count), dtype);
    CHECK(fl_dist_all_gather(d, all, in));
    for (int k = 0; k < n; k++) check_brought("all_gather", all, k, k * count, 0, count);
    fl_tensor *some = fl_zeros(FL_SHAPE(n, count), dtype);
    CHECK(fl_dist_gather(d, rank ? NULL : some, in, 0));
    for (int k = 0; k < n && !rank; k++) check_brought("gather", some, k, k * count, 0, count);
    fl_tensor *t = brought(rank, 0, count, dtype);
    CHECK(fl_dist_broadcast(d, t, n - 1));
    check_brought("broadcast", t, n - 1, 0, 0, count);
    fl_tensor *whole = brought(rank, 0, count * n, dtype), *part = fl_zeros(FL_SHAPE(count), dtype);
    CHECK(fl_dist_scatter(d, part, rank ? NULL : whole, 0));
    check_brought("scatter", part, 0, 0, count * rank, count);
    fl_tensor *mixed = fl_zeros(FL_SHAPE(n * count), dtype);
    CHECK(fl_dist_all_to_all(d, mixed, whole));
    for (int k = 0; k < n; k++) check_brought("all_to_all", mixed, k, k * count, count * rank, count);
    if (n > 1) { /* round the ring: even ranks send first */
        fl_tensor *got = fl_zeros(FL_SHAPE(count), dtype);
        const int to = (rank + 1) % n, from = (rank + n - 1) % n;
        bool ok = rank % 2 == 0 ? fl_dist_send(d, in, to) && fl_dist_recv(d, got, from)
                                : fl_dist_recv(d, got, from) && fl_dist_send(d, in, to);
        if (CHECK(ok)) check_brought("send", got, from, 0, 0, count);
    }
    CHECK(fl_dist_barrier(d));
    fl_scope_end(&s);
}

/* 64 MB in each rank's tensor. */
static void large(fl_dist_group *d, int rank, int n) {
    enum { COUNT = 16 << 20 };
    fl_scope s = fl_scope_begin();
    fl_tensor *t = brought(rank, 0, COUNT, FL_F32);
    if (CHECK(fl_dist_all_reduce(d, t))) check_reduced("all_reduce", t, FL_DIST_SUM, n, 0, 1);
    t = brought(rank, 0, COUNT, FL_F32);
    CHECK(fl_dist_broadcast(d, t, n - 1));
    check_brought("broadcast", t, n - 1, 0, 0, COUNT);
    fl_tensor *all = fl_zeros(FL_SHAPE(COUNT / n * n), FL_F32),
              *part = brought(rank, 0, COUNT / n, FL_F32);
    CHECK(fl_dist_all_gather(d, all, part));
    for (int k = 0; k < n; k++) check_brought("all_gather", all, k, COUNT / n * k, 0, COUNT / n);
    CHECK(fl_dist_reduce_scatter(d, part, brought(rank, 0, COUNT / n * n, FL_F32)));
    check_reduced("reduce_scatter", part, FL_DIST_SUM, n, COUNT / n * rank, 1);
    fl_scope_end(&s);
}

static void collectives(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    static const fl_dtype dtypes[] = {FL_B8,  FL_U8,  FL_I8,  FL_I16,  FL_I32, FL_I64, FL_U16,
                                      FL_U32, FL_U64, FL_F16, FL_BF16, FL_F32, FL_F64};
    const int64_t *counts = user;
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++)
        for (int c = 0; counts[c] >= 0; c++) {
            if (counts[c] > 1000 && dtypes[k] != FL_F32 && dtypes[k] != FL_BF16 && !test_full())
                continue;
            reduces(d, rank, r->n, counts[c], dtypes[k]);
            moves(d, rank, r->n, counts[c], dtypes[k]);
        }
    if (test_full()) large(d, rank, r->n);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_dist_failure(d).kind, FL_DIST_OK);
}

/* DIST_IMPL of the environment: that one only (make conformance-dist IMPL=gloo). */
TEST(collectives_of_all_dtypes) {
    static const int64_t few[] = {0, 1, 7, -1}, many[] = {0, 1, 7, 1000003, -1};
    const char *only = getenv("DIST_IMPL");
    if (only && *only) {
        for (int n = 1; n <= 8; n++) dist_run(only, n, collectives, (void *)(uintptr_t)many);
        return;
    }
    dist_run("ring", 1, collectives, (void *)(uintptr_t)few);
    for (int k = 0; k < dist_impls(); k++)
        for (int n = 2; n <= 4; n++)
            dist_run(dist_impl(k), n, collectives, (void *)(uintptr_t)(n == 3 ? many : few));
    dist_run("ring", 8, collectives, (void *)(uintptr_t)few);
}

/* Strided tensors, work that runs while others compute, a group within the group. */
static void forms(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)user;
    fl_tensor *t = fl_transpose(fl_full(FL_SHAPE(3, 5), rank + 1, FL_F32), 0, 1);
    fl_tensor *column = fl_slice(fl_zeros(FL_SHAPE(4, 4), FL_F64), 1, 1, 2, 1);
    CHECK(fl_dist_all_reduce(d, t) && fl_dist_broadcast(d, column, 0));
    CHECK_NEAR(fl_item(fl_amax(t, FL_ALL_AXES)), r->n * (r->n + 1) / 2, 0);
    CHECK_NEAR(fl_item(fl_amin(t, FL_ALL_AXES)), r->n * (r->n + 1) / 2, 0);
    fl_dist_work *w[20] = {NULL};
    fl_tensor *x[20];
    for (int k = 0; k < 20; k++)
        CHECK(fl_dist_all_reduce(d, x[k] = fl_full(FL_SHAPE(1000), k, FL_F32), .work = &w[k]));
    for (int k = 19; k >= 0; k -= 2)
        CHECK(fl_dist_wait(w[k]) && fl_item(fl_select(x[k], 0, 999)) == k * r->n);
    fl_tensor *several[] = {fl_ones(FL_SHAPE(3), FL_F32), fl_ones(FL_SHAPE(2), FL_I64)};
    CHECK(fl_dist_all_reduce_multiple(d, several, 2) && fl_item_int(fl_select(several[1], 0, 1)) == r->n);
    CHECK(fl_dist_sync(d));
    fl_dist_group *half = fl_dist_split(d, rank % 2, -rank);
    fl_tensor *sum = fl_full(FL_SHAPE(1), rank, FL_F32);
    int want = 0;
    for (int k = rank % 2; k < r->n; k += 2) want += k;
    CHECK(half && fl_dist_all_reduce(half, sum) && fl_item(sum) == want);
    if (r->n == 4) CHECK_EQ_INT(fl_dist_rank(half), rank < 2); /* key -rank: the last is first */
    fl_dist_close(half);
    CHECK(!fl_dist_split(d, -1, 0) && !fl_error());
}

TEST(strides_works_and_groups) {
    for (int k = 0; k < dist_impls(); k++)
        for (int n = 2; n <= 4; n += 2) dist_run(dist_impl(k), n, forms, NULL);
}

/* ---- training ---- */

enum { BATCH = 8 };
typedef struct way {
    fl_dtype dtype;
    int steps;
    bool shard, no_sync, adam;
    double tolerance, clip;
} way;

static fl_nn_module *small_net(fl_dtype dtype) {
    fl_seed(3);
    return fl_nn_sequential(fl_nn_conv2d(1, 4, 3, .pad = FL_SAME, .dtype = dtype), fl_nn_relu(),
                            fl_nn_view(FL_SHAPE(-1, 4 * 36)), fl_nn_linear(4 * 36, 17, .dtype = dtype),
                            fl_nn_activation("Tanh", fv_tanh), fl_nn_linear(17, 5, .dtype = dtype));
}

/* Rank `rank`'s part of joint batch `step`. */
static fl_var *loss_of(fl_nn_module *net, int step, int rank, int n, fl_dtype dtype) {
    const int64_t part = BATCH / n;
    fl_rng rng = {77, (uint64_t)step << 20};
    fl_tensor *x = fl_cast(fl_normal(FL_SHAPE(BATCH, 1, 6, 6), 0, 1, FL_F64, &rng), dtype),
              *y = fl_randint(FL_SHAPE(BATCH), 0, 5, &rng);
    x = fl_slice(x, 0, part * rank, part * rank + part, 1);
    return fv_cross_entropy(fl_nn_forward(net, fv_const(x)),
                            fl_slice(y, 0, part * rank, part * rank + part, 1));
}

/* Trains and returns the parameters, one after the other, as f64; d NULL: one rank, without a word of
   fl_dist. */
static double *train(fl_dist_group *d, const way *w, int64_t *count) {
    const int rank = fl_dist_rank(d), n = fl_dist_size(d);
    fl_nn_module *net = small_net(w->dtype);
    fl_dist_model *m = d ? fl_dist_data_parallel(d, net, .bucket_bytes = 2000, .first_bucket_bytes = 300,
                                                 .shard = w->shard)
                         : NULL;
    fv_list params = m ? fl_dist_parameters(m) : fl_nn_parameters(net);
    fl_optim *optim =
        w->adam ? fl_optim_adamw(params, .lr = 0.01) : fl_optim_sgd(params, .lr = 0.1, .momentum = 0.9);
    for (int i = 0; i < w->steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_optim_zero_grad(optim);
        fl_nn_zero_grad(net);
        if (w->no_sync) {
            if (m) fl_dist_no_sync(m, true);
            fl_backward(loss_of(net, 1000 + i, rank, n, w->dtype));
            if (m) fl_dist_no_sync(m, false);
        }
        fl_backward(loss_of(net, i, rank, n, w->dtype));
        if (m)
            CHECK(fl_dist_step(m, optim, w->clip));
        else
            CHECK((!w->clip || fl_optim_clip(optim, w->clip)) && fl_optim_step(optim));
        fl_scope_end(&s);
        if (fl_error()) break;
    }
    CHECK_NO_ERROR();
    *count = fl_nn_count(net);
    double *all = fl_heap_alloc((size_t)*count * sizeof *all), *at = all;
    params = fl_nn_parameters(net);
    for (int i = 0; i < params.n; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = fl_cast(params.v[i]->value, FL_F64);
        fl_to_host(t, at, (size_t)fl_numel(t) * sizeof *at);
        at += fl_numel(t);
        fl_scope_end(&s);
    }
    fl_optim_free(optim);
    fl_dist_model_free(m);
    fl_nn_free(net);
    return all;
}

static void trains_as_one(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const way *w = user;
    int64_t n;
    double *one = train(NULL, w, &n), *many = train(d, w, &n), *again = train(d, w, &n), worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs(one[i] - many[i]));
    if (!CHECK(worst <= w->tolerance))
        printf("rank %d of %d: %s, %d steps%s%s: off by %g\n", rank, r->n, fl_dtype_name(w->dtype),
               w->steps, w->shard ? ", shard" : "", w->no_sync ? ", no_sync" : "", worst);
    CHECK(!memcmp(many, again, (size_t)n * sizeof *many));
    fl_heap_free(one);
    fl_heap_free(many);
    fl_heap_free(again);
}

TEST(ranks_train_as_one_on_the_joint_batch) {
    way ways[] = {{FL_F64, 100, false, false, false, 1e-9, 0},
                  {FL_F32, 10, false, false, false, 1e-5, 0},
                  {FL_F64, 20, false, true, false, 1e-9, 0.5},
                  {FL_F64, 20, true, false, false, 1e-9, 0},
                  {FL_F64, 20, true, false, true, 1e-9, 0.5}};
    const int n_ways = sizeof ways / sizeof *ways;
    for (int k = 0; k < dist_impls(); k++)
        for (int i = 0; i < n_ways; i++) dist_run(dist_impl(k), i % 2 ? 4 : 2, trains_as_one, &ways[i]);
}

/* A backend without views: gradients of a bucket are joined, not written into it. */
static void trains_on_naive(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    CHECK(fl_backend_use(fl_backend_naive(), NULL) && fl_backend_set_default("naive"));
    trains_as_one(d, rank, r, user);
}

TEST(ranks_on_another_backend) {
    way w = {FL_F32, 2, false, false, false, 1e-5, 0};
    dist_run("ring", 2, trains_on_naive, &w);
}

/* A net with batch norms, and an image of its own on each rank. */
static fl_nn_module *normed_net(void) {
    fl_seed(5);
    return fl_nn_sequential(fl_nn_conv2d(1, 3, 3, .dtype = FL_F64),
                            fl_nn_batch_norm2d(3, .relu = true, .dtype = FL_F64),
                            fl_nn_view(FL_SHAPE(-1, 3 * 16)), fl_nn_linear(48, 6, .dtype = FL_F64),
                            fl_nn_batch_norm1d(6, .dtype = FL_F64), fl_nn_linear(6, 5, .dtype = FL_F64));
}

static double normed(fl_dist_group *d) {
    fl_nn_module *net = normed_net();
    fl_dist_model *m = d ? fl_dist_data_parallel(d, net) : NULL;
    if (d) CHECK(m && fl_dist_sync_batch_norm(d, net));
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.1);
    for (int i = 0; i < 10; i++) {
        fl_scope s = fl_scope_begin();
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss_of(net, i, fl_dist_rank(d), fl_dist_size(d), FL_F64)) &&
              fl_optim_step(optim));
        fl_scope_end(&s);
    }
    CHECK_NO_ERROR();
    const double sum =
        fl_item(fl_sum(fl_square(fv_value(fl_nn_get_param(net, "0.weight"))), FL_ALL_AXES)) +
        fl_item(fl_sum(fl_nn_get_buffer(net, "4.running_var"), FL_ALL_AXES));
    fl_optim_free(optim);
    fl_dist_model_free(m);
    fl_nn_free(net);
    return sum;
}

static void norms_as_one(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)rank, (void)r, (void)user;
    const double one = normed(NULL), many = normed(d);
    CHECK(one > 0);
    CHECK_NEAR(one, many, 1e-9);
}

TEST(batch_norm_over_all_ranks) {
    dist_run("ring", 2, norms_as_one, NULL);
    dist_run("ring", 8, norms_as_one, NULL); /* one sample each */
}

/* A file of 4 ranks with slices loads on 2 without and alone, and training goes on as if it had not
   stopped. */
static double resumed(fl_dist_group *d, const char *path, const way *w, bool save) {
    fl_nn_module *net = small_net(w->dtype);
    fl_dist_model *m = fl_dist_data_parallel(d, net, .bucket_bytes = 2000, .shard = w->shard);
    fl_optim *optim = fl_optim_adamw(fl_dist_parameters(m), .lr = 0.01);
    fl_optim_progress at = {.step = 3};
    if (!save) CHECK(fl_dist_load_checkpoint(m, path, optim, &at) && at.step == 3);
    for (int i = save ? 0 : 3; i < (save ? 3 : 6); i++) {
        fl_scope s = fl_scope_begin();
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss_of(net, i, fl_dist_rank(d), fl_dist_size(d), w->dtype)) &&
              fl_dist_step(m, optim, 0));
        fl_scope_end(&s);
    }
    if (save) CHECK(fl_dist_save_checkpoint(m, path, optim, &at));
    CHECK_NO_ERROR();
    const double sum =
        fl_item(fl_sum(fl_square(fv_value(fl_nn_get_param(net, "5.weight"))), FL_ALL_AXES));
    fl_optim_free(optim);
    fl_dist_model_free(m);
    fl_nn_free(net);
    return sum;
}

typedef struct passage {
    char path[80];
    bool shard, save;
    double *sum; /* shared */
} passage;
static void resumes(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const passage *p = user;
    const way w = {.dtype = FL_F64, .shard = p->shard};
    const double sum = resumed(d, p->path, &w, p->save);
    (void)r;
    if (!rank) *p->sum = sum;
}

TEST(checkpoints_load_with_any_number_of_ranks) {
    char folder[] = "/tmp/fl-test-XXXXXX";
    REQUIRE(mkdtemp(folder));
    passage p = {.sum = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    snprintf(p.path, sizeof p.path, "%s/checkpoint", folder);
    double first = 0;
    for (int saved = 0; saved < 2; saved++) { /* by slices, then whole */
        p.save = true, p.shard = !saved;
        dist_run("ring", 4, resumes, &p);
        p.save = false;
        for (int n = 1; n <= 4; n *= 2)
            for (int shard = 0; shard < 2; shard++) {
                p.shard = shard;
                *p.sum = 0;
                dist_run("ring", n, resumes, &p);
                if (!first) first = *p.sum;
                CHECK(first > 0);
                CHECK_NEAR(*p.sum, first, 1e-9);
            }
    }
    unlink(p.path);
    rmdir(folder);
}

/* What rank 0 could not write, no rank takes for saved. */
static void unsaved(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    fl_nn_module *net = small_net(FL_F32);
    fl_dist_model *m = fl_dist_data_parallel(d, net);
    fl_optim *optim = fl_optim_sgd(fl_dist_parameters(m), .lr = 0.1);
    CHECK(!fl_dist_save_checkpoint(m, "/nonexistent/folder/checkpoint", optim, NULL));
    CHECK_ERROR("/nonexistent/folder/checkpoint");
    const fl_dist_failure_info f = fl_dist_failure(d);
    if (!CHECK(f.kind == FL_DIST_ERROR && f.rank == 0)) printf("rank %d: %s\n", rank, f.text);
    fl_optim_free(optim);
    fl_dist_model_free(m);
    fl_nn_free(net);
}

TEST(a_checkpoint_that_fails_fails_everywhere) {
    dist_run("ring", 3, unsaved, NULL);
}

/* A parameter that one rank used, one that none did, one used twice, a hook of the user's, two losses. */
static void odd_nets(fl_dist_group *d, int rank, const dist_ranks *r, void *user);
static void count_call(fl_var *x, void *user) {
    (void)x;
    ++*(int *)user;
}
static fl_vars no_forward(fl_nn_module *m, fl_vars in) {
    (void)m;
    return in;
}
static void odd_nets(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)user;
    int calls = 0;
    fl_nn_module *net = fl_nn_function("Odd", no_forward, NULL, NULL);
    fl_var *p[4];
    for (int k = 0; k < 4; k++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", k);
        p[k] = fl_nn_add_param(net, name, fv_param(fl_full(FL_SHAPE(2), rank + k, FL_F32)));
    }
    fl_dist_model *m = fl_dist_data_parallel(d, net);
    if (!CHECK(m)) printf("%s\n", fl_error());
    for (int k = 0; k < 4; k++) CHECK_NEAR(fl_item(fl_select(p[k]->value, 0, 1)), k, 0); /* rank 0's */
    fv_hook(p[0], count_call, &calls);
    fl_var *loss = fv_sum(fv_add(p[0], p[3]), FL_ALL_AXES);
    if (rank == 1) loss = fv_add(loss, fv_sum(fv_mul(p[1], fv_num(3)), FL_ALL_AXES));
    CHECK(fl_backward(loss));
    CHECK_EQ_INT(calls, 1);
    CHECK_NEAR(fl_item(fl_select(fv_grad(p[0]), 0, 0)), 1, 1e-6);
    CHECK(fv_grad(p[1]) && fabs(fl_item(fl_select(fv_grad(p[1]), 0, 0)) - 3.0 / r->n) < 1e-6);
    CHECK(!fv_grad(p[2]));
    CHECK(fl_backward(fv_sum(fv_mul(p[0], fv_num(rank)), FL_ALL_AXES))); /* a second loss adds */
    CHECK_NEAR(fl_item(fl_select(fv_grad(p[0]), 0, 0)), 1 + (r->n - 1) / 2.0, 1e-6);
    fl_dist_model_free(m);
    CHECK(fl_backward(fv_sum(p[2], FL_ALL_AXES)));
    CHECK_NEAR(fl_item(fl_select(fv_grad(p[2]), 0, 0)), 1, 0); /* local again */
    fl_nn_free(net);
}

TEST(unused_shared_and_watched_parameters) {
    dist_run("ring", 2, odd_nets, NULL);
    dist_run("ring", 4, odd_nets, NULL);
}

/* ---- failures ---- */

/* A barrier that all ranks have left: a failure that follows at once may end it for some of them. */
static void together(fl_dist_group *d) {
    CHECK(fl_dist_barrier(d));
    usleep(100000);
}

typedef struct death {
    int victim, signal, before; /* calls before it */
    bool during;
    int64_t count; /* elements */
    double heartbeat;
    double *seconds; /* of each rank until it named the victim; shared by the ranks */
} death;

static void one_dies(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const death *w = user;
    if (!d) { /* it was still meeting the others */
        char name[16];
        snprintf(name, sizeof name, "rank %d ", w->victim);
        CHECK_STR(fl_error(), name);
        fl_error_clear();
        return;
    }
    fl_tensor *t = fl_ones(FL_SHAPE(w->count), FL_F32);
    bool ok = true;
    for (int i = 0; ok && i <= w->before; i++) {
        if (rank == w->victim && i == w->before) {
            if (w->during) usleep(1000); /* the others wait in the call */
            w->seconds[DIST_MOST] = fl_dist_now();
            kill(getpid(), w->signal);
            usleep(20000000); /* whoever was stopped does not come back in time */
        }
        ok = fl_dist_all_reduce(d, t);
    }
    const double now = fl_dist_now();
    const fl_dist_failure_info f = fl_dist_failure(d);
    const bool named =
        !ok && f.rank == w->victim && f.kind == (w->signal == SIGKILL ? FL_DIST_DEATH : FL_DIST_STALL);
    if (!CHECK(named))
        printf("rank %d of %d, victim %d: kind %d rank %d: %s\n", rank, r->n, w->victim, (int)f.kind,
               f.rank, f.text);
    w->seconds[rank] = now - w->seconds[DIST_MOST];
    CHECK_STR(fl_error(), "rank");
    fl_error_clear();
    CHECK(!fl_dist_barrier(d)); /* for good */
    fl_error_clear();
    usleep(300000); /* survivors live on */
}

/* Seconds until the last survivor named the victim. */
static double slowest_of(const char *impl, int n, death w) {
    double *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
           worst = 0;
    dist_ranks r = {.impl = impl, .n = n, .heartbeat = w.heartbeat, .may_fail = true};
    w.seconds = shared;
    dist_start(&r, one_dies, &w);
    for (int k = 0; k < n; k++)
        if (k != w.victim) {
            int status;
            waitpid(r.pid[k], &status, 0);
            CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
            worst = fmax(worst, shared[k]);
        }
    kill(r.pid[w.victim], SIGKILL);
    waitpid(r.pid[w.victim], NULL, 0);
    rmdir(r.folder);
    munmap(shared, 4096);
    return worst;
}

/* DIST_KILLS of the environment: so many runs (make dist-kill N=100). */
TEST(every_survivor_names_the_dead) {
    const int runs = getenv("DIST_KILLS") ? atoi(getenv("DIST_KILLS")) : 6;
    fl_rng rng = {17, 0};
    double slowest[2] = {0, 0};
    for (int i = 0; i < runs; i++) {
        const int n = runs > 6 ? 2 << fl_rng_take(&rng, 1).counter % 3 : 2 + i % 3;
        death w = {.signal = i % 2 ? SIGSTOP : SIGKILL, .before = i / 2 % 4, .during = i / 3 % 2};
        const double u = fl_rng_uniform(&rng);
        w.victim = i % 3 ? (int)(u * n) : 0;
        w.count = i % 4 == 3 ? 300000 : 1000;
        w.heartbeat = runs > 6 && i % 33 == 32 ? 5 : 0.5;
        const char *impl = dist_impl(i / 2 % dist_impls());
        const double s = slowest_of(impl, n, w), limit = w.signal == SIGKILL ? 1 : w.heartbeat + 1;
        if (!CHECK(s < limit))
            printf("%s, %d ranks, %s rank %d: %.3f s\n", impl, n, i % 2 ? "stop" : "kill", w.victim, s);
        if (w.heartbeat < 1) slowest[i % 2] = fmax(slowest[i % 2], s);
    }
    printf("%d runs, the slowest report of a death %.3f s, of a stall %.3f s (heartbeat 0.5 s)\n", runs,
           slowest[0], slowest[1]);
}

/* Ranks that are busy, all at once on few processors, are no dead ones. DIST_CALM: seconds. */
static void busy(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const double until = fl_dist_now() + *(const double *)user;
    fl_tensor *x = fl_ones(FL_SHAPE(200, 200), FL_F32);
    (void)rank, (void)r;
    int64_t steps = 0;
    for (bool on = true; on && !fl_error(); steps++) {
        fl_scope s = fl_scope_begin();
        fl_matmul(x, x);
        fl_tensor *go = fl_full(FL_SHAPE(1), fl_dist_now() < until || steps < 4, FL_F32);
        on = fl_dist_all_reduce(d, go, .op = FL_DIST_MIN) && fl_item(go) > 0;
        fl_scope_end(&s);
    }
    CHECK_NO_ERROR();
    CHECK(steps > 3);
}

TEST(no_false_alarm_of_busy_ranks) {
    double seconds = getenv("DIST_CALM") ? atof(getenv("DIST_CALM")) : 1;
    dist_ranks r = {.impl = "ring", .n = seconds > 5 ? 8 : 3, .heartbeat = seconds > 5 ? 5 : 1};
    dist_start(&r, busy, &seconds);
    dist_end(&r, -1);
}

/* Rank 1 calls something else: both are told what, and nobody hangs. */
static bool call_number(fl_dist_group *d, int which) {
    fl_tensor *a = fl_ones(FL_SHAPE(8), FL_F32), *b = fl_ones(FL_SHAPE(16), FL_F32),
              *c = fl_ones(FL_SHAPE(8), FL_I32), *wide = fl_ones(FL_SHAPE(64), FL_F32);
    switch (which) {
    case 0: return fl_dist_all_reduce(d, a);
    case 1: return fl_dist_all_reduce(d, b);
    case 2: return fl_dist_all_reduce(d, c);
    case 3: return fl_dist_all_reduce(d, a, .op = FL_DIST_MAX);
    case 4: return fl_dist_broadcast(d, a, 0);
    case 5: return fl_dist_broadcast(d, a, 1);
    case 6: return fl_dist_all_gather(d, wide, fl_ones(FL_SHAPE(64 / fl_dist_size(d)), FL_F32));
    case 7: return fl_dist_reduce_scatter(d, fl_ones(FL_SHAPE(64 / fl_dist_size(d)), FL_F32), wide);
    case 8: return fl_dist_barrier(d);
    case 9: return fl_dist_reduce(d, a, 0);
    case 10: return fl_dist_all_to_all(d, fl_ones(FL_SHAPE(64), FL_F32), wide);
    default:
        return fl_dist_gather(d, fl_ones(FL_SHAPE(64), FL_F32),
                              fl_ones(FL_SHAPE(64 / fl_dist_size(d)), FL_F32), 0);
    }
}
enum { CALLS = 12 };
static void calls_differ(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const int *which = user;
    (void)r;
    together(d);
    const bool ok = call_number(d, which[rank == 1]) && fl_dist_barrier(d);
    const fl_dist_failure_info f = fl_dist_failure(d);
    if (!CHECK(!ok && f.kind == FL_DIST_MISMATCH))
        printf("rank %d, calls %d and %d: kind %d, %s\n", rank, which[0], which[1], (int)f.kind, f.text);
    fl_error_clear();
}

TEST(calls_that_differ_are_told) {
    dist_jobs jobs = {.n = 0};
    const int impls = dist_impls();
    for (int a = 0; a < CALLS; a++)
        for (int b = a + 1; b < CALLS; b++) {
            int which[] = {a, b};
            dist_ranks *r = dist_job(&jobs);
            *r = (dist_ranks){
                .impl = dist_impl(jobs.n % impls), .n = 2 + jobs.n / impls % 2 * 2, .heartbeat = 5};
            dist_start(r, calls_differ, which);
        }
    dist_jobs_end(&jobs);
    printf("%d pairs\n", jobs.n);
}

static void one_has_an_error(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    together(d);
    if (rank == 1) fl_fail("my_loader: bad sample 17");
    CHECK(!fl_dist_barrier(d));
    const fl_dist_failure_info f = fl_dist_failure(d);
    CHECK(f.kind == FL_DIST_ERROR && f.rank == 1);
    CHECK_STR(f.text, "my_loader: bad sample 17");
    fl_error_clear();
}
static void one_leaves(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    together(d);
    if (rank == 1) return;
    CHECK(!fl_dist_barrier(d));
    const fl_dist_failure_info f = fl_dist_failure(d);
    if (!CHECK(f.kind == FL_DIST_LEFT && f.rank == 1))
        printf("kind %d rank %d %s\n", (int)f.kind, f.rank, f.text);
    fl_error_clear();
}
static void nets_differ(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(3, 4), fl_nn_linear(4, rank ? 5 : 6));
    CHECK(!fl_dist_data_parallel(d, net));
    CHECK_STR(rank ? fl_error() : fl_dist_failure(d).text,
              "1.weight f32 [5, 4], rank 0 has 1.weight f32 [6, 4]");
    fl_error_clear();
    fl_nn_free(net);
}

TEST(errors_reach_all_ranks) {
    for (int k = 0; k < dist_impls(); k++) {
        dist_run(dist_impl(k), 2, one_has_an_error, NULL);
        dist_run(dist_impl(k), 3, one_leaves, NULL);
    }
    dist_run("ring", 2, nets_differ, NULL);
}

static void hear_warning(fl_log_level level, const char *text, void *user) {
    if (level == FL_LOG_WARN) snprintf(user, 300, "%s", text);
}
static void ways_of_bf16_differ(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    char said[300] = "";
    (void)r, (void)user;
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(3, 4));
    fl_log_set_sink(hear_warning, said, FL_LOG_WARN);
    for (int round = 0; round < 3; round++) { /* no products of bf16, other ways, the same way */
        *said = 0;
        CHECK(fl_set_matmul_precision(round ? FL_BF16 : FL_F32));
        CHECK(fl_cpu_set_bf16(round < 2 && rank ? "emulated" : "f32"));
        fl_dist_model *m = fl_dist_data_parallel(d, net);
        CHECK(m != NULL);
        if (round == 1 && rank)
            CHECK_STR(said, "rank 1 rounds products to bf16 by 'emulated', rank 0 by 'f32'");
        else CHECK(!*said);
        fl_dist_model_free(m);
    }
    fl_nn_free(net);
}
TEST(ranks_that_round_otherwise_are_told) { dist_run("ring", 2, ways_of_bf16_differ, NULL); }

/* ---- mistakes ---- */

static void call_from_thread(void *arg, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    fl_quiet(+1);
    CHECK(!fl_dist_barrier(arg));
    CHECK_ERROR("within fl_parallel");
    fl_quiet(-1);
}

static void mistakes(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    fl_tensor *f = fl_ones(FL_SHAPE(4), FL_F32), *i = fl_ones(FL_SHAPE(4), FL_I32),
              *b = fl_ones(FL_SHAPE(4), FL_B8), *out = fl_ones(FL_SHAPE(7), FL_F32);
    CHECK(!fl_dist_all_reduce(d, NULL)), CHECK_ERROR("fl_dist_all_reduce: the tensor is NULL");
    CHECK(!fl_dist_all_reduce(NULL, f)), CHECK_ERROR("the group is NULL");
    CHECK(!fl_dist_all_reduce(d, i, .op = FL_DIST_AVG)), CHECK_ERROR("expected a float dtype");
    CHECK(!fl_dist_all_reduce(d, b)), CHECK_ERROR("b8 takes FL_DIST_AND");
    CHECK(!fl_dist_all_reduce(d, f, .op = FL_DIST_OR)), CHECK_ERROR("b8 takes");
    CHECK(!fl_dist_all_reduce(d, fl_num(2))), CHECK_ERROR("without memory");
    CHECK(!fl_dist_broadcast(d, f, 2)), CHECK_ERROR("got rank 2, expected 0 to 1");
    CHECK(!fl_dist_broadcast(d, f, -1)), CHECK_ERROR("got rank -1, expected 0 to 1");
    CHECK(!fl_dist_send(d, f, rank)), CHECK_ERROR("is this one");
    CHECK(!fl_dist_all_gather(d, out, f)), CHECK_ERROR("[7] does not match in f32 [4] with 2 ranks");
    CHECK(!fl_dist_all_gather(d, fl_ones(FL_SHAPE(8), FL_I32), f)), CHECK_ERROR("i32 [8] does not match in");
    CHECK(!fl_dist_reduce_scatter(d, fl_ones(FL_SHAPE(3), FL_F32), out)), CHECK_ERROR("2 ranks");
    CHECK(!fl_dist_all_reduce(d, fl_cast(fl_ones(FL_SHAPE(32), FL_F32), fl_q8()))),
        CHECK_ERROR("cannot be reduced");
    fl_parallel(4, 1, call_from_thread, d);
    CHECK(!fl_dist_data_parallel(d, NULL)), CHECK_ERROR("the net is NULL");
    CHECK(fl_dist_barrier(d)); /* the group is as it was */
    fflush(stdout);
    const pid_t child = fork();
    if (!child) _exit(!fl_dist_barrier(d) && strstr(fl_error(), "forked") ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ_INT(status, 0);
}

TEST(mistakes_are_errors) {
    dist_run("ring", 2, mistakes, NULL);
}

static void expect_init(const char *part, fl_dist_init_opts o) {
    fl_dist_group *d = fl_dist_init_opt(o);
    CHECK(!d);
    CHECK_ERROR(part);
}
#define EXPECT_INIT(part, ...) expect_init(part, (fl_dist_init_opts){.timeout = 0.3, __VA_ARGS__})

TEST(meeting_fails_with_a_reason) {
    char folder[] = "/tmp/fl-test-XXXXXX", file[64];
    test_errors_return();
    REQUIRE(mkdtemp(folder));
    fl_dist_impl_use(&fl_dist_ring);
    EXPECT_INIT("got rank 3, size 2", .rank = 3, .size = 2, .store = folder);
    EXPECT_INIT("got rank 1, size 0", .rank = 1);
    EXPECT_INIT("unknown implementation 'smoke'", .size = 2, .impl = "smoke", .store = folder);
    EXPECT_INIT("1, 2", .size = 3, .impl = "ring", .store = folder);
    EXPECT_INIT("port, expected 1 to 65535", .size = 2, .impl = "ring", .store = "here:99999");
    EXPECT_INIT("no.such.host.invalid", .rank = 1, .size = 2, .impl = "ring",
                .store = "no.such.host.invalid:4000");
    snprintf(file, sizeof file, "%s/rank0", folder);
    FILE *f = fopen(file, "w");
    REQUIRE(f && fputs("127.0.0.1 1", f) > 0 && !fclose(f));
    EXPECT_INIT("port 1", .rank = 1, .size = 2, .impl = "ring", .store = folder); /* a stale folder */
    unlink(file);
    setenv("RANK", "1", 1);
    EXPECT_INIT("WORLD_SIZE", .size = 0);
    setenv("WORLD_SIZE", "two", 1);
    EXPECT_INIT("'two', expected 0 to", .size = 0);
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
    fl_dist_group *alone = fl_dist_init();
    CHECK(alone && fl_dist_size(alone) == 1 && fl_dist_barrier(alone));
    fl_dist_close(alone);
    CHECK(!fl_dist_barrier(alone));
    CHECK_ERROR("closed");
    rmdir(folder);
}

/* Strangers that send nonsense are sent away, and the ranks meet. A rank that does ends the group. */
TEST(messages_that_are_none) {
    static const uint32_t other[] = {7, 7, 1, 2, 1, 2, 3, 4, 5, 6},
                          beat[] = {0x4c465d35, 24, 1, 2, 3, 4, 5, 6};
    const struct {
        const void *bytes;
        size_t n;
    } junk[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {other, sizeof other}, {beat, sizeof beat}, {"", 0}};
    const int n = sizeof junk / sizeof *junk;
    char folder[] = "/tmp/fl-test-XXXXXX", token[64];
    uint8_t secret[FL__DIST_SECRET];
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    fl_dist_impl_use(&fl_dist_ring);
    REQUIRE(mkdtemp(folder));
    for (int proved = 0; proved < 2; proved++) {
        fflush(stdout);
        const pid_t child = fork();
        if (!child) {
            bool ok = true;
            for (int i = 0; ok && i < n; i++) {
                const int fd = proved ? dist_call_as(folder, 1, 2, secret) : dist_call(folder, token);
                ok = fd >= 0 && (!junk[i].n || fl_dist_socket_io(fd, true, (void *)(uintptr_t)junk[i].bytes,
                                                                 junk[i].n, fl_dist_now() + 60));
                if (proved && ok) /* until rank 0 hangs up */
                    while (fl_dist_socket_io(fd, false, token, 1, fl_dist_now() + 60)) continue;
                fl_dist_socket_close(fd);
                if (proved) break;
            }
            fl_error_clear();
            fl_dist_group *d =
                proved ? NULL : fl_dist_init(.impl = "ring", .rank = 1, .size = 2, .store = folder);
            ok = ok && (proved || (d && fl_dist_barrier(d)));
            fl_dist_close(d);
            _exit(!ok);
        }
        fl_dist_group *d =
            fl_dist_init(.impl = "ring", .rank = 0, .size = 2, .store = folder, .timeout = 60);
        CHECK(proved ? !d : d && fl_dist_barrier(d));
        if (proved)
            CHECK_ERROR("rank 1 sent an invalid message");
        else if (!d)
            printf("%s\n", fl_error());
        fl_dist_close(d);
        int status = 1;
        waitpid(child, &status, 0);
        CHECK_EQ_INT(status, 0);
    }
    rmdir(folder);
}

/* ---- strangers ---- */

/* A store in a folder, a file for each key. */
static bool folder_set(const fl_dist_store *self, const char *key, const void *bytes, size_t n) {
    char path[200], *at = path + snprintf(path, sizeof path, "%s/", (const char *)self->user);
    snprintf(at, sizeof path - (size_t)(at - path), "%s", key);
    for (; *at; at++)
        if (*at == '/') *at = '-';
    return fl_data_replace("folder_set", path, bytes, n);
}
static int64_t folder_get(const fl_dist_store *self, const char *key, void *bytes, size_t size,
                          double deadline) {
    char path[200], *at = path + snprintf(path, sizeof path, "%s/", (const char *)self->user);
    snprintf(at, sizeof path - (size_t)(at - path), "%s", key);
    for (; *at; at++)
        if (*at == '/') *at = '-';
    FILE *f;
    while (!(f = fopen(path, "r")) && fl_dist_now() < deadline) usleep(1000);
    const size_t n = f ? fread(bytes, 1, size, f) : 0;
    if (f) fclose(f);
    return n ? (int64_t)n : -1;
}

/* Each with a rank of their own in a process of its own: rank k has token[k]; NULL: the environment's. */
static void meet_with_tokens(const char *const token[2], const char *store, int timeout,
                             const char *error[2]) {
    pid_t pid[2];
    fflush(stdout);
    for (int k = 0; k < 2; k++) {
        if ((pid[k] = fork())) continue;
        test__failures = 0;
        test_errors_return();
        fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
        fl_dist_group *d = fl_dist_init(.impl = "ring", .rank = k, .size = 2, .store = store,
                                        .token = token[k], .timeout = timeout);
        if (!error)
            CHECK(d && fl_dist_barrier(d));
        else if (CHECK(!d))
            CHECK_ERROR(error[k]);
        fl_dist_close(d);
        fflush(stdout);
        _exit(test__failures != 0);
    }
    for (int k = 0; k < 2; k++) {
        int status = 1;
        waitpid(pid[k], &status, 0);
        CHECK_EQ_INT(status, 0);
    }
}

/* A port that nobody has now. */
static void free_port(char store[64]) {
    int port = 0;
    fl_dist_socket_close(fl_dist_listen("127.0.0.1", &port));
    snprintf(store, 64, "127.0.0.1:%d", port);
}

TEST(ranks_meet_if_their_tokens_are_equal) {
    static const char *refused[] = {
        "did not connect within 2.0 s: 1; a connection was refused: its token is different",
        "rank 0 refused this connection: its token is different"};
    static const char *const same[] = {"open sesame", "open sesame"}, *const none[] = {"", ""};
    static const char *const differ[][2] = {{"open sesame", "open barley"}, {"open sesame", ""}, {"", "a"}};
    char folder[] = "/tmp/fl-test-XXXXXX", store[64], file[64];
    fl_dist_impl_use(&fl_dist_ring);
    REQUIRE(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/rank0", folder);
    for (int i = 0; i < 2; i++) {
        if (i) REQUIRE(!access(folder, F_OK) || !mkdir(folder, 0700));
        meet_with_tokens(i ? none : same, folder, 60, NULL);
        free_port(store);
        meet_with_tokens(i ? none : same, store, 60, NULL);
    }
    for (int i = 0; i < 3; i++) {
        free_port(store);
        meet_with_tokens(differ[i], store, 2, refused);
    }
    mkdir(folder, 0700);
    meet_with_tokens(differ[1], folder, 2, refused); /* a folder's token is there if nobody gave one */
    unlink(file);
    rmdir(folder);
}

/* As many silent connections as rank 0 has places, and more, do not keep a rank out, nor does what listened
   at rank 0's port before. */
TEST(unauthenticated_connections_to_rank_0) {
    enum { STRANGERS = 200 };
    char folder[] = "/tmp/fl-test-XXXXXX", token[64];
    uint8_t secret[FL__DIST_SECRET];
    static int fd[STRANGERS];
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    fl_dist_impl_use(&fl_dist_ring);
    REQUIRE(mkdtemp(folder));
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        fl_dist_group *d =
            fl_dist_init(.impl = "ring", .rank = 0, .size = 2, .store = folder, .timeout = 60);
        const bool ok = d && fl_dist_barrier(d);
        fl_dist_close(d);
        _exit(!ok);
    }
    for (int i = 0; i < STRANGERS; i++) CHECK((fd[i] = dist_call(folder, token)) >= 0);
    CHECK(dist_call_as(folder, 2, 3, secret) < 0); /* of another job, by its size */
    CHECK_ERROR("it is rank 2 of 3, expected a size of 2");
    fl_dist_group *d = fl_dist_init(.impl = "ring", .rank = 1, .size = 2, .store = folder, .timeout = 60);
    if (!CHECK(d && fl_dist_barrier(d))) printf("%s\n", fl_error());
    fl_dist_close(d);
    for (int i = 0; i < STRANGERS; i++) fl_dist_socket_close(fd[i]);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ_INT(status, 0);
    rmdir(folder);
}

TEST(a_second_rank_of_one_number_is_refused) {
    char folder[] = "/tmp/fl-test-XXXXXX", file[64];
    uint8_t secret[FL__DIST_SECRET];
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    fl_dist_impl_use(&fl_dist_ring);
    REQUIRE(mkdtemp(folder));
    fflush(stdout);
    const pid_t child = fork();
    if (!child) _exit(fl_dist_init(.impl = "ring", .rank = 0, .size = 3, .store = folder) != NULL);
    const int fd = dist_call_as(folder, 1, 3, secret);
    CHECK(fd >= 0);
    CHECK(!fl_dist_init(.impl = "ring", .rank = 1, .size = 3, .store = folder)); /* and at once */
    CHECK_ERROR("rank 1 is connected already: do two jobs share an address or folder?");
    fl_dist_socket_close(fd);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ_INT(status, 0); /* rank 1 died */
    snprintf(file, sizeof file, "%s/rank0", folder);
    unlink(file);
    rmdir(folder);
}

static bool meet_over(const fl_dist_store *store, int rank, const char *secret, double seconds, int *fd) {
    return fl_dist_connect_ranks(&(fl_dist_rendezvous){rank, 2, "127.0.0.1", "all", store,
                                                       fl_dist_now() + seconds, (const uint8_t *)secret,
                                                       rank},
                                 fd);
}
/* A stranger connects to rank 0 before rank 1 does, and 0 says nothing, 1 says that it is rank 1, 2 claims to
   be it without the secret, 3 sends claims of another layout. */
static bool attack_data_port(const fl_dist_store *store, int attack) {
    fl__dist_claim claim = {.version = 2, .rank = 1, .size = 2};
    const fl__dist_claim who = {.rank = 1, .size = 2};
    const int32_t me = 1;
    char address[64], text[129] = {0};
    bool refused;
    int port;
    const double end = fl_dist_now() + 60;
    if (store->get(store, "socket/all/0", text, 128, end) < 0 || sscanf(text, "%63s %d", address, &port) != 2)
        return false;
    const int fd = fl_dist_connect(address, port, end);
    if (fd < 0) return false;
    if (attack == 1) fl_dist_socket_io(fd, true, (void *)(uintptr_t)&me, sizeof me, end);
    if (attack == 2 &&
        fl__dist_authenticate(fd, &who, 0, "all", (const uint8_t *)"secret of others", NULL, end,
                                             end, &refused))
        return false;
    for (int i = 0; attack == 3 && i < 100; i++)
        if (!fl_dist_socket_io(fd, true, &claim, sizeof claim, end)) break;
    while (attack >= 2 && fl_dist_socket_io(fd, false, text, 1, end)) continue;
    fl_error_clear();
    return attack >= 2 ? (fl_dist_socket_close(fd), true) : true; /* others stay connected */
}

static fl_dist_answer declining_run(void *self, const fl_dist_call *c) {
    (void)self, (void)c;
    return FL_DIST_DECLINED;
}
static void *open_nothing(const fl_dist_rendezvous *p) {
    return (void)p, NULL;
}
static void end_nothing(void *self) {
    (void)self;
}

/* An implementation has exchange, or a run that declines nothing. */
TEST(an_implementation_may_lack_exchange_if_its_run_takes_all) {
    static fl_dist_impl impl = {
        .name = "declines", .open = open_nothing, .abort = end_nothing, .close = end_nothing};
    float x[4] = {0};
    const fl_dist_call c = {.kind = FL_DIST_ALL_REDUCE, .dtype = FL_F32, .count = 4, .scale = 1, .out = x};
    test_errors_return();
    CHECK(!fl_dist_impl_use(&impl));
    CHECK_ERROR("open, abort, close, or both exchange and run, is NULL");
    impl.run = declining_run;
    CHECK(fl_dist_impl_use(&impl));
    CHECK(!fl_dist_run(&impl, NULL, 0, 2, &c));
    CHECK_ERROR("fl_dist_all_reduce: declines has no exchange, and its run declined the call");
}

/* Two ranks of this test exchange their addresses in a new folder, whose name ends in XXXXXX before. */
static bool begin_meeting(char *folder) {
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    fflush(stdout); /* before a fork */
    return mkdtemp(folder) != NULL;
}
static void end_meeting(const char *folder) {
    char file[64];
    for (int k = 0; k < 2; k++) {
        snprintf(file, sizeof file, "%s/socket-all-%d", folder, k);
        unlink(file);
    }
    rmdir(folder);
}

TEST(unauthenticated_connections_to_data_ports) {
    static const char secret[] = "0123456789abcdef";
    for (int attack = 0; attack < 4; attack++) {
        char folder[] = "/tmp/fl-test-XXXXXX";
        const fl_dist_store store = {folder_set, folder_get, folder};
        REQUIRE(begin_meeting(folder));
        const pid_t child = fork();
        if (!child) { /* rank 1, after the unauthenticated connections */
            int fd[2];
            bool ok = true;
            for (int i = 0; i < 80; i++) ok = ok && attack_data_port(&store, attack);
            char word[4] = "two";
            ok = ok && meet_over(&store, 1, secret, 60, fd) &&
                 fl_dist_socket_io(fd[0], true, word, sizeof word, fl_dist_now() + 60);
            _exit(!ok);
        }
        int fd[2], status = 1;
        char word[4] = "";
        CHECK(meet_over(&store, 0, secret, 60, fd) && fd[0] == -1);
        CHECK(fl_dist_socket_io(fd[1], false, word, sizeof word, fl_dist_now() + 60));
        CHECK_STR(word, "two");
        fl_dist_socket_close(fd[1]);
        waitpid(child, &status, 0);
        if (!CHECK_EQ_INT(status, 0)) printf("attack %d\n", attack);
        end_meeting(folder);
    }
}

TEST(data_connections_need_the_secret) {
    char folder[] = "/tmp/fl-test-XXXXXX";
    const fl_dist_store store = {folder_set, folder_get, folder};
    REQUIRE(begin_meeting(folder));
    const pid_t child = fork();
    int fd[2];
    if (!child) {
        const bool met = meet_over(&store, 1, "another secret.", 2, fd);
        _exit(met || !strstr(fl_error(), "its token is different"));
    }
    CHECK(!meet_over(&store, 0, "0123456789abcdef", 2, fd) && fd[0] == -1 && fd[1] == -1);
    CHECK_ERROR("timeout: 1 ranks did not connect; a connection was refused: its token is different");
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ_INT(status, 0);
    end_meeting(folder);
}

static bool has_socket(pid_t pid, unsigned long inode) {
    char path[64], text[64], want[64];
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    for (int k = 3; k < 64; k++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, k);
        const ssize_t length = readlink(path, text, sizeof text - 1);
        if (length == (ssize_t)strlen(want) && !memcmp(text, want, (size_t)length)) return true;
    }
    return false;
}
/* Connects to each port at which one of n processes listens; how many connections that made. */
static int call_all_ports(const pid_t *pid, int n, int *fd, int room) {
    enum { LISTENS = 10 };
    FILE *f = fopen("/proc/net/tcp", "r");
    char line[256];
    int made = 0;
    while (f && made < room && fgets(line, sizeof line, f)) {
        unsigned port, state;
        unsigned long inode;
        bool theirs = false;
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*s %*s %*s %*s %*s %lu", &port, &state, &inode) != 3 ||
            state != LISTENS)
            continue;
        for (int i = 0; i < n; i++) theirs = theirs || has_socket(pid[i], inode);
        if (theirs && (fd[made] = fl_dist_connect("127.0.0.1", (int)port, fl_dist_now() + 0.05)) >= 0) made++;
        fl_error_clear();
    }
    if (f) fclose(f);
    return made;
}
static void meets(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)rank, (void)user;
    fl_tensor *t = fl_ones(FL_SHAPE(1000), FL_F32);
    CHECK(fl_dist_all_reduce(d, t) && fl_item(fl_select(t, 0, 999)) == r->n);
}

/* Strangers connect to every port of the ranks as soon as it is there, and say nothing: 70 before the last
   rank comes. */
static int start_among_strangers(const char *impl) {
    enum { LATE = 1, BEFORE = 70, MOST = 4000 };
    static int fd[MOST];
    dist_ranks r = {.impl = impl, .n = 3, .heartbeat = 5, .folder = "/tmp/fl-test-XXXXXX"};
    int n = 0, status;
    if (!CHECK(mkdtemp(r.folder))) return 0;
    fflush(stdout);
    for (int k = 0; k < r.n; k++)
        if (!(r.pid[k] = fork())) {
            if (k == LATE) raise(SIGSTOP);
            dist_rank(&r, k, meets, NULL);
        }
    waitpid(r.pid[LATE], &status, WUNTRACED);
    for (int left = r.n; left;) {
        left = 0;
        for (int i = 0; i < r.n; i++) {
            siginfo_t over = {.si_pid = 0};
            waitid(P_PID, (id_t)r.pid[i], &over, WEXITED | WNOHANG | WNOWAIT);
            left += !over.si_pid;
        }
        n += call_all_ports(r.pid, r.n, fd + n, MOST - n);
        if (n >= BEFORE || left == 1) kill(r.pid[LATE], SIGCONT);
    }
    dist_end(&r, -1);
    for (int i = 0; i < n; i++) fl_dist_socket_close(fd[i]);
    return n;
}

TEST(unauthenticated_connections_to_every_port) {
    enum { RUNS = 4 };
    int n = 0;
    test_errors_return();
    if (access("/proc/net/tcp", R_OK)) SKIP("no /proc/net/tcp");
    for (int k = 0; k < dist_impls() * RUNS; k++)
        n += start_among_strangers(dist_impl(k % dist_impls()));
    printf("%d connections of strangers\n", n);
    CHECK(n >= 70 * dist_impls() * RUNS);
}

/* ---- memory ---- */

/* Allocation number `at` of this rank fails, once. */
typedef struct scarce {
    int64_t n, at;
} scarce;
static void *scarce_heap(void *user, void *p, size_t bytes) {
    scarce *s = user;
    if (!bytes) return free(p), NULL;
    if (__atomic_add_fetch(&s->n, 1, __ATOMIC_RELAXED) == s->at) return NULL;
    return realloc(p, bytes);
}

/* Meeting, a net, two steps, the end; what fails is an error on both ranks, or on none. */
static bool session(const dist_ranks *r, int rank) {
    fl_dist_group *d = dist_meet(r, rank);
    fl_nn_module *net = d ? fl_nn_sequential(fl_nn_linear(4, 3), fl_nn_relu(), fl_nn_linear(3, 2)) : NULL;
    fl_dist_model *m = net ? fl_dist_data_parallel(d, net, .shard = true) : NULL;
    fl_optim *optim = m ? fl_optim_sgd(fl_dist_parameters(m), .lr = 0.1) : NULL;
    bool ok = optim != NULL;
    for (int i = 0; ok && i < 2; i++) {
        fl_scope s = fl_scope_begin();
        fl_optim_zero_grad(optim);
        fl_var *loss = fv_sum(fl_nn_forward(net, fv_const(fl_ones(FL_SHAPE(2, 4), FL_F32))), FL_ALL_AXES);
        ok = fl_backward(loss) && fl_dist_step(m, optim, 1);
        fl_scope_end(&s);
    }
    ok = ok && fl_dist_barrier(d);
    fl_optim_free(optim);
    fl_dist_model_free(m);
    fl_nn_free(net);
    fl_dist_close(d);
    return ok && !fl_error();
}

static void without_memory(const dist_ranks *r, int rank, int64_t at, int64_t *count) {
    scarce s = {0, rank == at % r->n ? at / r->n : 0};
    test__failures = 0;
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    fl_heap_use(scarce_heap, &s);
    const bool ok = session(r, rank);
    CHECK(ok || fl_error());
    if (!at) count[rank] = s.n, CHECK(ok);
    _exit(test__failures ? 1 : 0);
}

TEST(every_allocation_may_fail) {
    int64_t *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
            all = 0;
    dist_jobs jobs = {.n = 0};
    for (int64_t at = 0; at <= 2 * all + 1; at++) {
        dist_ranks *r = dist_job(&jobs);
        *r = (dist_ranks){.impl = "ring",
                          .n = 2,
                          .heartbeat = 0.5,
                          .timeout = at ? 2 : 20, /* the first of them meets, and counts */
                          .folder = "/tmp/fl-test-XXXXXX"};
        REQUIRE(mkdtemp(r->folder));
        fflush(stdout);
        for (int k = 0; k < 2; k++)
            if (!(r->pid[k] = fork())) without_memory(r, k, at, count);
        if (at) continue;
        dist_jobs_end(&jobs); /* nothing failed: now it is known how many there are */
        jobs.n = 0;
        all = count[0] > count[1] ? count[0] : count[1];
    }
    dist_jobs_end(&jobs);
    printf("%d runs, %lld allocations of a rank\n", jobs.n, (long long)all);
    CHECK(jobs.n > 3);
}

/* ---- ranks as threads, with a clock of their own ---- */

typedef struct sim_job {
    sim_world *w;
    int rank, n, scale;
    int64_t count;
    double compute;
    bool ok;
} sim_job;
static void *sim_work(void *arg) {
    sim_job *j = arg;
    float *x = fl_heap_alloc((size_t)j->count * sizeof *x);
    fl_quiet(+1);
    for (int64_t i = 0; i < j->count; i++) x[i] = (float)brings(j->rank, i);
    sim_compute(j->w, j->rank, j->compute);
    const fl_dist_call c = {.kind = FL_DIST_ALL_REDUCE,
                            .dtype = FL_F32,
                            .count = j->count,
                            .scale = 1,
                            .root = -1,
                            .tag = 9,
                            .out = x,
                            .deadline = fl_dist_now() + 60};
    j->ok = fl_dist_run(&fl_dist_sim, sim_rank(j->w, j->rank), j->rank, j->n, &c);
    for (int64_t i = 0; i < j->count && j->ok; i += 97)
        j->ok = x[i] == (float)reference(FL_DIST_SUM, j->n, i, false);
    fl_heap_free(x);
    return NULL;
}

/* What element j of rank `rank`'s result is, of n ranks and `count` elements; roots are 0 and n - 1. */
static double sim_wants(fl_dist_kind kind, int rank, int n, int64_t count, int64_t j, bool truth) {
    switch ((int)kind) {
    case FL_DIST_REDUCE_SCATTER: j += rank * count; /* fall through */
    case FL_DIST_ALL_REDUCE:
    case FL_DIST_REDUCE: return reference(truth ? FL_DIST_OR : FL_DIST_SUM, n, j, truth);
    case FL_DIST_BROADCAST: return brings(n - 1, j);
    case FL_DIST_SCATTER: return brings(0, rank * count + j);
    case FL_DIST_ALL_TO_ALL: return brings((int)(j / count), rank * count + j % count);
    default: return brings((int)(j / count), j % count); /* all_gather, gather */
    }
}

/* One call of a rank, checked; send and recv are the two halves of a pair. */
static bool sim_calls(const sim_job *j, fl_dist_kind kind, fl_dtype d) {
    const int64_t n = j->n, of_in = kind == FL_DIST_REDUCE_SCATTER || kind == FL_DIST_SCATTER ||
                                            kind == FL_DIST_ALL_TO_ALL ? n : 1,
                  of_out = kind == FL_DIST_ALL_GATHER || kind == FL_DIST_GATHER ||
                                   kind == FL_DIST_ALL_TO_ALL ? n : 1;
    const bool in_place = kind == FL_DIST_ALL_REDUCE || kind == FL_DIST_REDUCE || kind == FL_DIST_BROADCAST,
               pair = kind == FL_DIST_SEND, receives = pair && j->rank % 2;
    if (pair && j->rank == (j->n & ~1)) return true; /* the last of an odd number */
    const size_t size = fl_dtype_size(d);
    char *in = fl_heap_alloc((size_t)(j->count * of_in + 1) * size),
         *out = fl_heap_alloc((size_t)(j->count * of_out + 1) * size), *filled = in_place ? out : in;
    for (int64_t i = 0; i < j->count * of_in; i++) {
        const double x = brings(j->rank, i);
        fl_number_store(d, filled + (size_t)i * size, (fl_number){.real = true, .f = x});
    }
    const int root = pair ? j->rank ^ 1 : kind == FL_DIST_REDUCE || kind == FL_DIST_BROADCAST ? j->n - 1 : 0;
    const fl_dist_call c = {.kind = receives ? FL_DIST_RECV : kind,
                            .reduction = d == FL_B8 ? FL_DIST_OR : FL_DIST_SUM,
                            .dtype = d,
                            .count = j->count,
                            .scale = 1,
                            .root = root,
                            .tag = 10 + kind,
                            .in = in,
                            .out = out,
                            .deadline = fl_dist_now() + 60};
    bool ok = fl_dist_run(&fl_dist_sim, sim_rank(j->w, j->rank), j->rank, j->n, &c);
    const bool has = kind == FL_DIST_REDUCE || kind == FL_DIST_GATHER ? j->rank == root : !pair || receives;
    for (int64_t i = 0; ok && has && kind != FL_DIST_BARRIER && i < j->count * of_out; i++) {
        const double want = pair ? brings(root, i) : sim_wants(kind, j->rank, j->n, j->count, i, d == FL_B8),
                     got = fl_number_load(d, out + (size_t)i * size).f;
        ok = got == (d == FL_B8 ? want != 0 : want);
        if (!ok)
            printf("%s of %s, rank %d of %d, element %lld of %lld: %g, expected %g\n",
                   fl_dist_kind_name(kind), fl_dtype_name(d), j->rank, j->n, (long long)i,
                   (long long)(j->count * of_out), got, want);
    }
    fl_heap_free(in);
    fl_heap_free(out);
    return ok;
}

static void *sim_every_call(void *arg) {
    static const int64_t counts[] = {0, 1, 7, 3001, 1000003};
    const char *only = getenv("DIST_IMPL");
    const size_t n = sizeof counts / sizeof *counts - !(only && !strcmp(only, "sim"));
    sim_job *j = arg;
    fl_quiet(+1);
    j->ok = true;
    for (size_t c = 0; c < n; c++)
        for (int d = FL_B8; d <= FL_F64; d++)
            for (int kind = FL_DIST_ALL_REDUCE; kind <= FL_DIST_BARRIER; kind++) {
                j->count = counts[c];
                if (kind != FL_DIST_RECV) j->ok = j->ok && sim_calls(j, (fl_dist_kind)kind, (fl_dtype)d);
            }
    return NULL;
}

TEST(simulated_collectives_of_all_dtypes) {
    for (int n = 1; n <= 8; n++) {
        sim_world *w = sim_open(n, 5e-5, 1e9);
        pthread_t thread[SIM_MOST];
        sim_job job[SIM_MOST];
        REQUIRE(w);
        for (int i = 0; i < n; i++) {
            job[i] = (sim_job){.w = w, .rank = i, .n = n};
            REQUIRE(!pthread_create(&thread[i], NULL, sim_every_call, &job[i]));
        }
        for (int i = 0; i < n; i++) {
            pthread_join(thread[i], NULL);
            CHECK(job[i].ok);
        }
        sim_close(w);
    }
}

TEST(simulated_time_is_the_formula) {
    static const int sizes[] = {2, 3, 8, 16, 64};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int n = sizes[k];
        const int64_t count = n * 2000;
        sim_world *w = sim_open(n, 5e-5, 1e9);
        pthread_t thread[SIM_MOST];
        sim_job job[SIM_MOST];
        REQUIRE(w);
        for (int i = 0; i < n; i++) {
            job[i] = (sim_job){w, i, n, 1, count, 0, false};
            REQUIRE(!pthread_create(&thread[i], NULL, sim_work, &job[i]));
        }
        double slowest = 0;
        for (int i = 0; i < n; i++) {
            pthread_join(thread[i], NULL);
            CHECK(job[i].ok);
            slowest = fmax(slowest, sim_seconds(w, i));
        }
        const double want = 4.0 * (double)count <= 32768
                                ? (n - 1) * (5e-5 + 4.0 * (double)count / 1e9)
                                : sim_ring_seconds(n, 4.0 * (double)count, 5e-5, 1e9);
        CHECK_NEAR(slowest / want, 1, 0.01);
        sim_close(w);
    }
}

/* ---- NCCL between emulated devices, by the mock of tests/cuda/emu/nccl.c ---- */

extern void cuda_emu_seed(uint64_t seed) __attribute__((weak));
extern void cuda_emu_drop_waits(int drop) __attribute__((weak)); /* streams wait for nothing */
extern int64_t cuda_emu_launches(void) __attribute__((weak));
extern const fl_device *fl__cuda_pinned(void) __attribute__((weak));

/* A number of the mock; NULL: it is not there. */
static void *of_mock(const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/libnccl.so.2", getenv("FL_CUDA_LIBS") ? getenv("FL_CUDA_LIBS") : "");
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    return library ? dlsym(library, name) : NULL;
}
static int *mock(const char *name) {
    static int none;
    int *number = of_mock(name);
    return CHECK(number) ? number : &none;
}
/* Each rank has a device, and makes its tensors there. */
static bool has_nccl(const char *devices) {
    test_errors_return();
    setenv("CUDA_EMU_DEVICES", devices, 1);
    const bool there = cuda_emu_seed && of_mock("mock_nccl_calls") && fl_backend_set_default("cuda");
    fl_error_clear();
    return there;
}
#define NEEDS_NCCL(devices) \
    if (!has_nccl(devices)) SKIP("NCCL: make CUDA=emu test-programs, FL_CUDA_LIBS=build/gcc-cuda-emu/mock")

/* Sums of what a kernel has just written, which the next one reads. True if they are right. */
static bool sums_on_device(fl_dist_group *d, int rank) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_full(FL_SHAPE(1000), rank + 1, FL_F32);
    for (int i = 0; i < 3; i++) t = fl_mul(t, fl_num(2));
    CHECK(fl_dist_all_reduce(d, t));
    t = fl_add(t, fl_num(1));
    const double got = fl_item(fl_select(t, 0, 999));
    fl_scope_end(&s);
    return got == 25;
}

static void sums_by_nccl(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)user;
    CHECK_STR(fl_dist_impl_name(d), "nccl");
    fl_mem_manager *pinned = fl__cuda_pinned()->manager;
    fl_tensor *t = fl_full(FL_SHAPE(1 << 20), rank + 1, FL_F32);
    CHECK_STR(fl_backend_name(t), rank ? "cuda:1" : "cuda");
    const int64_t staged = fl_mem_stats_of(pinned).gets, reads = fl_host_reads();
    CHECK(fl_dist_all_reduce(d, t));
    CHECK(fl_mem_stats_of(pinned).gets == staged && fl_host_reads() == reads); /* nothing through the host */
    CHECK_NEAR(fl_item(fl_mean(t, FL_ALL_AXES)), r->n * (r->n + 1) / 2, 0);
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cuda_emu_seed(2 * seed + (uint64_t)rank);
        CHECK(sums_on_device(d, rank));
    }
    CHECK(fl_dist_barrier(d));
    cuda_emu_drop_waits(true); /* the check would notice */
    for (int i = 0; i < 20; i++) wrong += !sums_on_device(d, rank);
    cuda_emu_drop_waits(false);
    CHECK(wrong > 0);
    CHECK_EQ_INT(*mock("mock_nccl_refused"), 0);
}
TEST(nccl_sums_tensors_of_the_device_where_they_are) {
    NEEDS_NCCL("2");
    dist_run("nccl", 2, sums_by_nccl, NULL);
}

static void everything_by_nccl(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    for (int k = 0; k < 4; k++) {
        const fl_dtype dtype = (fl_dtype[]){FL_F32, FL_I16, FL_BF16, FL_I64}[k];
        moves(d, rank, r->n, 7, dtype);
        if (dtype == FL_I16) continue; /* of which NCCL has no sums */
        fl_scope s = fl_scope_begin();
        fl_tensor *t = brought(rank, 0, 7, dtype), *whole = brought(rank, 0, 7 * r->n, dtype),
                  *part = fl_zeros(FL_SHAPE(7), dtype);
        const fl_dist_reduction op = fl_dtype_is_float(dtype) ? FL_DIST_AVG : FL_DIST_MAX;
        if (CHECK(fl_dist_all_reduce(d, t, .op = op))) check_reduced("all_reduce", t, op, r->n, 0, 1);
        t = brought(rank, 0, 7, dtype);
        if (fl_dtype_is_float(dtype) && CHECK(fl_dist_all_reduce(d, t, .op = op, .scale = 0.5)))
            check_reduced("all_reduce, scaled", t, op, r->n, 0, 0.5);
        if (CHECK(fl_dist_reduce_scatter(d, part, whole)))
            check_reduced("reduce_scatter", part, FL_DIST_SUM, r->n, 7 * rank, 1);
        t = brought(rank, 0, 7, dtype);
        if (CHECK(fl_dist_reduce(d, t, 0)) && !rank) check_reduced("reduce", t, FL_DIST_SUM, r->n, 0, 1);
        fl_scope_end(&s);
    }
    forms(d, rank, r, NULL);
    trains_as_one(d, rank, r, user);
    CHECK_EQ_INT(*mock("mock_nccl_refused"), 0);
    CHECK_EQ_INT(*mock("mock_nccl_aborts"), 0);
}
TEST(nccl_has_every_collective_and_trains_as_one_rank) {
    NEEDS_NCCL("4");
    way w = {FL_F64, 5, false, false, false, 1e-9, 0};
    dist_run("nccl", 2, everything_by_nccl, &w);
    w.shard = true;
    dist_run("nccl", 4, everything_by_nccl, &w);
}

/* Buckets of so many bytes are summed while the device still works on the pass that fills later ones. */
static void overlaps(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r;
    const int64_t bytes = *(const int64_t *)user;
    int64_t *beside = of_mock("mock_nccl_beside");
    int seen = 0, *calls = mock("mock_nccl_calls");
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(40, 50), fl_nn_relu(), fl_nn_linear(50, 60),
                                         fl_nn_relu(), fl_nn_linear(60, 50), fl_nn_relu(),
                                         fl_nn_linear(50, 3));
    fl_dist_model *m = fl_dist_data_parallel(d, net, .bucket_bytes = bytes, .first_bucket_bytes = bytes);
    for (uint64_t seed = 1; seed <= 10; seed++) {
        fl_scope s = fl_scope_begin();
        cuda_emu_seed(2 * seed + (uint64_t)rank);
        fl_var *x = fv_const(fl_normal(FL_SHAPE(8, 40), 0, 1, FL_F32, NULL));
        fl_var *loss = fv_mean(fl_nn_forward(net, x), FL_ALL_AXES);
        fl_nn_zero_grad(net);
        CHECK(fl_sync(loss->value) && fl_dist_barrier(d));
        const int before = *calls;
        const int64_t reads = fl_host_reads();
        *beside = 0;
        CHECK(fl_backward(loss));
        CHECK((*calls - before >= 3) == (bytes < 1 << 20) && fl_host_reads() == reads);
        CHECK(fl_sync(loss->value));
        seen += *beside >= 3;
        fl_scope_end(&s);
    }
    CHECK((seen > 0) == (bytes < 1 << 20)); /* one bucket comes after the pass */
    fl_dist_model_free(m);
    fl_nn_free(net);
}
TEST(nccl_sums_a_bucket_during_the_pass) {
    NEEDS_NCCL("2");
    for (int64_t bytes = 9000; bytes <= 9000000; bytes *= 1000) dist_run("nccl", 2, overlaps, &bytes);
}

typedef enum spoiled { DIES, IS_LATE, ERRS, CALL_FAILS } spoiled;
/* Rank 1, or the network, does that; rank 0 waits for its device, and then learns the reason. */
static void spoils(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    static const char *const texts[] = {"rank 1 died", "the device has not run it in time",
                                        "remote process exited", "internal error"};
    static const fl_dist_failure_kind kinds[] = {FL_DIST_DEATH, FL_DIST_TIMEOUT, FL_DIST_BROKEN,
                                                 FL_DIST_BROKEN};
    const spoiled what = *(const spoiled *)user;
    fl_tensor *t = fl_ones(FL_SHAPE(1000), FL_F32);
    CHECK(fl_dist_all_reduce(d, t) && fl_item(fl_amax(t, FL_ALL_AXES)) == 2);
    if (rank && what == DIES) raise(SIGKILL);
    if (!rank && what == ERRS) *mock("mock_nccl_async_error") = 6;
    if (!rank && what == CALL_FAILS) *mock("mock_nccl_fail_at") = 1;
    const double begin = fl_dist_now();
    bool ok = true;
    if (rank) usleep(what == IS_LATE ? 3200000 : 1200000);
    for (int i = 0; i < 20 && ok; i++) {
        ok = fl_dist_all_reduce(d, t) && fl_sync(t);
        if (ok && what == ERRS) usleep(100000);
    }
    const fl_dist_failure_info f = fl_dist_failure(d);
    CHECK(!ok && fl_dist_now() - begin < r->timeout + 3);
    if (!CHECK(strstr(f.text, texts[what]) && f.kind == kinds[what]))
        printf("rank %d, %d: %s\n", rank, (int)f.kind, f.text);
    CHECK_ERROR(texts[what]);
    fl_error_clear();
}
TEST(nccl_names_what_spoils_a_call) {
    NEEDS_NCCL("2");
    for (int k = DIES; k <= CALL_FAILS; k++) {
        dist_ranks r = {.impl = "nccl", .n = 2, .heartbeat = 5, .timeout = 2};
        spoiled what = (spoiled)k;
        dist_start(&r, spoils, &what);
        dist_end(&r, k == DIES ? 1 : -1);
    }
}

/* Rank 1 dies in step 5, while rank 0 starts kernels, waits for them, or starts a bucket. */
static void dies_in_training(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    const int seed = *(const int *)user;
    (void)r;
    cuda_emu_seed((uint64_t)(2 * seed + rank));
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(40, 50), fl_nn_relu(), fl_nn_linear(50, 60),
                                         fl_nn_relu(), fl_nn_linear(60, 3));
    fl_dist_model *m = fl_dist_data_parallel(d, net, .bucket_bytes = 3000, .first_bucket_bytes = 3000);
    fl_optim *o = fl_optim_sgd(fl_dist_parameters(m), .lr = 0.01);
    double begin = 0;
    bool ok = true;
    for (int i = 0; i < 300 && ok; i++) {
        fl_scope s = fl_scope_begin();
        if (rank == 1 && i == 5) usleep((unsigned)seed * 1234567 % 7777), raise(SIGKILL);
        begin = fl_dist_now();
        fl_var *x = fv_const(fl_normal(FL_SHAPE(8, 40), 0, 1, FL_F32, NULL));
        fl_var *loss = fv_mean(fl_nn_forward(net, x), FL_ALL_AXES);
        fl_optim_zero_grad(o);
        ok = fl_backward(loss) && fl_dist_step(m, o, seed % 2) && (seed % 3 || fl_sync(loss->value));
        fl_scope_end(&s);
    }
    CHECK(!ok && fl_dist_now() - begin < 2);
    CHECK_ERROR("rank 1 died");
    fl_error_clear();
    fl_optim_free(o);
    fl_dist_model_free(m);
    fl_nn_free(net);
}
TEST(nccl_names_a_rank_that_dies_in_training) {
    NEEDS_NCCL("2");
    for (int seed = 1; seed <= (test_full() ? 100 : 8); seed++) {
        dist_ranks r = {.impl = "nccl", .n = 2, .heartbeat = 5, .timeout = 20};
        dist_start(&r, dies_in_training, &seed);
        dist_end(&r, 1);
    }
}

/* A group may be closed while the device still has its calls before it. */
static void closes_early(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        fl_scope s = fl_scope_begin();
        cuda_emu_seed(2 * seed + (uint64_t)rank);
        fl_dist_group *again = fl_dist_split(d, 0, rank);
        fl_tensor *t = fl_full(FL_SHAPE(1000), rank + 1, FL_F32);
        for (int i = 0; i < 3; i++) t = fl_mul(t, fl_num(2));
        CHECK(fl_dist_all_reduce(again, t));
        fl_dist_close(again);
        CHECK_EQ_INT(fl_item(fl_select(t, 0, 999)), 24);
        fl_scope_end(&s);
    }
    CHECK_EQ_INT(*mock("mock_nccl_refused"), 0);
    CHECK_EQ_INT(*mock("mock_nccl_aborts"), 0);
}
TEST(nccl_ends_after_its_calls) {
    NEEDS_NCCL("2");
    dist_run("nccl", 2, closes_early, NULL);
}

/* Libraries that hang at the end do not hang the program. */
static void ends_late(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)r, (void)user;
    for (int k = 0; k < 2; k++) {
        fl_dist_group *again = fl_dist_split(d, 0, rank);
        *mock("mock_nccl_finalize_hangs") = 1;
        __atomic_store_n(mock("mock_nccl_abort_hangs"), k, __ATOMIC_RELAXED);
        const double begin = fl_dist_now();
        fl_dist_close(again);
        CHECK(fl_dist_now() - begin < 6);
        CHECK_EQ_INT(*mock("mock_nccl_aborts"), k + 1);
        *mock("mock_nccl_finalize_hangs") = 0;
        __atomic_store_n(mock("mock_nccl_abort_hangs"), 0, __ATOMIC_RELAXED);
        CHECK(fl_dist_barrier(d));
    }
    fl_tensor *t = fl_to(fl_ones(FL_SHAPE(3), FL_F32), "cpu");
    char text[100];
    snprintf(text, sizeof text, "got a tensor on 'cpu', expected one on '%s', which nccl takes: fl_to",
             rank ? "cuda:1" : "cuda");
    CHECK(!fl_dist_all_reduce(d, t));
    CHECK_ERROR(text);
    fl_error_clear();
    CHECK(fl_dist_barrier(d));
}
TEST(nccl_cannot_hang_the_end) {
    NEEDS_NCCL("2");
    dist_run("nccl", 2, ends_late, NULL);
}

static void does_not_meet(fl_dist_group *d, int rank, const dist_ranks *r, void *user) {
    (void)rank, (void)r;
    CHECK(!d);
    CHECK_ERROR(user);
    fl_error_clear();
}
TEST(nccl_that_fails_to_start_is_an_error) {
    NEEDS_NCCL("2");
    for (int k = 0; k < 2; k++) {
        dist_ranks r = {.impl = "nccl", .n = 2, .heartbeat = 5, .timeout = 5, .may_fail = true};
        *mock("mock_nccl_fail_at") = 1;
        if (k) setenv("FL_CUDA_LIBS", "no", 1);
        dist_start(&r, does_not_meet, k ? "libnccl.so.2 of NCCL 2.14 or later is not found"
                                        : "internal error");
        dist_end(&r, -1);
    }
}

/* ---- what starts ranks ---- */

static char self[512];

/* Takes this host's link down. */
static bool off_the_net(void) {
    struct ifreq r = {.ifr_name = "eth0"};
    const int s = socket(AF_INET, SOCK_DGRAM, 0);
    bool ok = s >= 0 && ioctl(s, SIOCGIFFLAGS, &r) == 0;
    r.ifr_flags &= ~IFF_UP;
    ok = ok && ioctl(s, SIOCSIFFLAGS, &r) == 0;
    if (s >= 0) close(s);
    return ok;
}

/* As a rank of somebody's: the environment says which. cut: then rank 1's host goes off the net. */
static int as_rank(bool cut) {
    fl_set_error_handler(test__ignore_error, NULL);
    fl_dist_group *d = fl_dist_init(.timeout = 20, .heartbeat = cut ? 0.5 : 0);
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_ones(FL_SHAPE(3), FL_F32);
    bool ok = d && fl_dist_all_reduce(d, t) && fl_item(fl_select(t, 0, 2)) == 2 && fl_dist_size(d) == 2;
    if (ok && cut) {
        if (fl_dist_rank(d)) ok = off_the_net();
        const double begin = fl_dist_now();
        bool met = ok && fl_dist_barrier(d); /* the other's message may have come before */
        met = met && fl_dist_barrier(d);
        ok = ok && !met && fl_dist_now() - begin < 1.5;
        const fl_dist_failure_info f = fl_dist_failure(d);
        ok = ok && f.kind == FL_DIST_STALL && f.rank == 1 - fl_dist_rank(d);
        if (ok) fl_error_clear();
    }
    if (!ok)
        printf("rank %d of %d: %s\n", fl_dist_rank(d), fl_dist_size(d),
               fl_error() ? fl_error() : "other sum");
    fl_scope_end(&s);
    fl_dist_close(d);
    return ok ? 0 : 1;
}

static void starts(const char *what, const char *command) {
    char line[2048];
    snprintf(line, sizeof line, command, self, self);
    if (!CHECK(system(line) == 0)) printf("%s: %s\n", what, line);
}

static bool there(const char *program) {
    char line[600];
    snprintf(line, sizeof line, "command -v %s > /dev/null 2>&1", program);
    return system(line) == 0;
}

TEST(programs_that_start_ranks) {
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) SKIP("no /proc/self/exe");
    self[n] = '\0';
    starts("launch", "${LAUNCH:-examples/launch} 2 %s --as-rank");
    starts("torchrun's variables",
           "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ %% 9000)) WORLD_SIZE=2 "
           "TORCHELASTIC_USE_AGENT_STORE=True; RANK=0 %s --as-rank & RANK=1 %s --as-rank && wait $!");
    starts("Slurm's variables",
           "export SLURM_STEP_ID=0 SLURM_JOB_ID=test$$ SLURM_NTASKS=2 SLURM_STEP_NODELIST='n[1-2]'; "
           "SLURM_PROCID=0 %s --as-rank & SLURM_PROCID=1 %s --as-rank && wait $!");
    starts("MPICH's variables", "export PMI_SIZE=2 PMI_JOBID=test$$; PMI_RANK=0 %s --as-rank & "
                                "PMI_RANK=1 %s --as-rank && wait $!");
    starts("hosts", "bench/hosts 2 none %s --as-rank");
    starts("a host without a net", "bench/hosts 2 none %s --as-rank-cut");
    if (!there("mpirun")) SKIP("mpirun is not there (apt-get install openmpi-bin)");
    starts("mpirun", "mpirun --allow-run-as-root --oversubscribe -n 2 %s --as-rank");
    if (!test_full() || !getenv("PEER_PYTHON")) return;
    starts("torchrun",
           "$PEER_PYTHON -m torch.distributed.run --standalone --no-python --nproc-per-node 2 %s --as-rank");
}

/* Ranks write a byte each when they run; the pipe ends when none is left. */
static void launch_and_signal(int signal_number, const char *rank, int status_wanted) {
    int end[2], status = 0;
    char byte;
    REQUIRE(!pipe(end));
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        const char *launch = getenv("LAUNCH");
        signal(signal_number, SIG_DFL); /* a shell cannot catch what was ignored when it started */
        dup2(end[1], 1);
        close(end[0]);
        close(end[1]);
        execl(launch ? launch : "examples/launch", "launch", "3", "/bin/sh", "-c", rank, (char *)NULL);
        _exit(1);
    }
    close(end[1]);
    for (int i = 0; i < 3; i++) CHECK(read(end[0], &byte, 1) == 1);
    kill(child, signal_number);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WIFEXITED(status)) CHECK_EQ_INT(WEXITSTATUS(status), status_wanted);
    CHECK(read(end[0], &byte, 1) == 0); /* not before an orphan ends: after 60 s */
    close(end[0]);
}

TEST(launch_ends_its_ranks) {
    static const char plain[] = "printf .; exec sleep 60", stubborn[] = "trap '' TERM; printf .; exec sleep 60";
    const double begin = fl_dist_now();
    launch_and_signal(SIGHUP, plain, 129);
    launch_and_signal(SIGINT, plain, 130);
    launch_and_signal(SIGTERM, plain, 143);
    launch_and_signal(SIGTERM, stubborn, 143);
    CHECK(fl_dist_now() - begin < 50);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strncmp(argv[1], "--as-rank", 9)) return as_rank(argv[1][9]);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
