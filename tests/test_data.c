/* test_data.c - data sets, the prefetching loader, meters and the progress line */
#include "../fl_data.h"
#include "numbers.h"
#include "test.h"
#ifndef _WIN32
#include <pthread.h>
#include <time.h>
#endif

/* y of sample i, after checking that x belongs to it; -1 on failure. */
static int64_t label(fl_data_set *set, int64_t i) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    float x[2] = {0};
    int64_t y = -1;
    if (fl_data_get(set, i, &b) && b.n == 2) {
        y = fl_item_int(b.t[1]);
        CHECK(fl_to_host(b.t[0], x, sizeof x) && x[0] == (float)(2 * y) &&
              x[1] == (float)(2 * y + 1));
    }
    fl_scope_end(&s);
    return y;
}

TEST(tensors_are_sliced) {
    test_errors_return();
    fl_data_set *set = numbers(5);
    REQUIRE(set);
    CHECK_EQ_INT(fl_data_size(set), 5);
    for (int i = 0; i < 5; i++) CHECK_EQ_INT(label(set, i), i);
    fl_scope s = fl_scope_begin();
    fl_data_sample b = {.n = 77};
    CHECK(!fl_data_get(set, 5, &b));
    CHECK_ERROR("fl_data_get: sample index must be in [0, 5), got 5");
    CHECK(!fl_data_get(set, -1, &b));
    CHECK_ERROR("got -1");
    CHECK_EQ_INT(b.n, 77);
    fl_scope_end(&s);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* A sample belongs to the scope around the call, even below several wrappers. */
TEST(samples_belong_to_the_callers_scope) {
    test_errors_return();
    fl_data_set *set = fl_data_batch(fl_data_shuffle(numbers(6), 1), 2, false);
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    REQUIRE(fl_data_get(set, 0, &b));
    CHECK_EQ_INT(fl_scope_size(), 2);
    fl_data_free(set);
    CHECK_EQ_INT(fl_numel(b.t[0]), 4);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(index_sets) {
    test_errors_return();
    fl_data_set *set = fl_data_slice(numbers(10), 3, 4);
    CHECK_EQ_INT(fl_data_size(set), 4);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(label(set, i), 3 + i);
    fl_data_free(set);
    set = fl_data_slice(numbers(10), 10, 0);
    CHECK_EQ_INT(fl_data_size(set), 0);
    fl_data_free(set);
    const int64_t index[3] = {9, 0, 9};
    set = fl_data_subset(numbers(10), index, 3);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(label(set, i), index[i]);
    fl_data_free(set);
    for (int rank = 0; rank < 3; rank++) {
        set = fl_data_shard(numbers(10), rank, 3);
        CHECK_EQ_INT(fl_data_size(set), 3);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(label(set, i), rank + 3 * i);
        fl_data_free(set);
    }
    set = fl_data_concat((fl_data_set *[]){numbers(2), numbers(0), numbers(3)}, 3);
    CHECK_EQ_INT(fl_data_size(set), 5);
    for (int i = 0; i < 5; i++) CHECK_EQ_INT(label(set, i), i < 2 ? i : i - 2);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

TEST(zip_joins_fields) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_set *set =
        fl_data_zip((fl_data_set *[]){numbers(3), fl_data_slice(numbers(5), 2, 3)}, 2);
    fl_data_sample b;
    REQUIRE(fl_data_get(set, 1, &b));
    CHECK_EQ_INT(b.n, 4);
    CHECK_EQ_INT(fl_item_int(b.t[1]), 1);
    CHECK_EQ_INT(fl_item_int(b.t[3]), 3);
    fl_data_free(set);
    set = fl_data_zip((fl_data_set *[]){numbers(3), numbers(3), numbers(3), numbers(3), numbers(3)},
                      5);
    CHECK(!fl_data_get(set, 0, &b));
    CHECK_ERROR("more than 8 fields");
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(batches) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_set *set = fl_data_batch(numbers(7), 3, false);
    fl_data_sample b;
    CHECK_EQ_INT(fl_data_size(set), 3);
    REQUIRE(fl_data_get(set, 1, &b));
    float x[6];
    int64_t y[3];
    CHECK(b.t[0]->ndim == 2 && b.t[0]->shape[0] == 3 && b.t[0]->shape[1] == 2);
    CHECK(b.t[1]->ndim == 1 && b.t[1]->shape[0] == 3 && b.t[1]->dtype == FL_I64);
    CHECK(fl_to_host(b.t[0], x, sizeof x) && fl_to_host(b.t[1], y, sizeof y));
    for (int i = 0; i < 6; i++) CHECK(x[i] == (float)(6 + i));
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(y[i], 3 + i);
    REQUIRE(fl_data_get(set, 2, &b));
    CHECK_EQ_INT(b.t[0]->shape[0], 1);
    fl_data_free(set);
    set = fl_data_batch(numbers(7), 3, true);
    CHECK_EQ_INT(fl_data_size(set), 2);
    fl_data_free(set);
    set = fl_data_batch(numbers(2), 3, true);
    CHECK_EQ_INT(fl_data_size(set), 0);
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- shuffles ---- */

static bool is_permutation(fl_data_set *set, int64_t *order) {
    int64_t n = fl_data_size(set);
    bool seen[200] = {false}, ok = n <= 200;
    for (int64_t i = 0; ok && i < n; i++) {
        order[i] = label(set, i);
        ok = order[i] >= 0 && order[i] < n && !seen[order[i]];
        if (ok) seen[order[i]] = true;
    }
    return ok;
}

TEST(shuffle_is_a_function_of_seed_and_epoch) {
    test_errors_return();
    enum { N = 100 };
    int64_t a[N], b[N], other[N];
    fl_data_set *set = fl_data_shuffle(numbers(N), 7), *again = fl_data_shuffle(numbers(N), 7),
                *seed = fl_data_shuffle(numbers(N), 8);
    CHECK(is_permutation(set, a));
    CHECK(is_permutation(seed, other));
    CHECK(memcmp(a, other, sizeof a) != 0);
    CHECK(fl_data_set_epoch(set, 1));
    CHECK(is_permutation(set, b));
    CHECK(memcmp(a, b, sizeof a) != 0);
    /* not of the epochs before */
    CHECK(fl_data_set_epoch(again, 5) && fl_data_set_epoch(again, 1));
    CHECK(is_permutation(again, other));
    CHECK(!memcmp(b, other, sizeof b));
    CHECK(fl_data_set_epoch(set, 0));
    CHECK(is_permutation(set, b));
    CHECK(!memcmp(a, b, sizeof a));
    fl_data_free(set);
    fl_data_free(again);
    fl_data_free(seed);
    CHECK_NOTHING_LIVES();
}

/* Over many seeds, every sample comes to every place about equally often. */
TEST(shuffle_is_fair) {
    test_errors_return();
    enum { N = 5, SEEDS = 5000 };
    int count[N][N] = {{0}};
    fl_data_set *set = fl_data_shuffle(numbers(N), 3);
    for (int epoch = 0; epoch < SEEDS; epoch++) {
        fl_data_set_epoch(set, epoch);
        for (int i = 0; i < N; i++) count[i][label(set, i)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < N * N; i++) {
        double d = count[i / N][i % N] - SEEDS / (double)N;
        chi2 += d * d / (SEEDS / (double)N);
    }
    CHECK(chi2 < 40); /* 16 degrees of freedom: beyond 39.3 once in a thousand */
    CHECK(chi2 > 3);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* ---- sets of your own ---- */

static bool scale_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    s->t[0] = fl_cast(s->t[0], FL_F64);
    s->t[s->n++] = fl_full(FL_SCALAR_SHAPE, (double)(rng->key >> 40), FL_F64);
    ++*(int *)user;
    return s->t[0] != NULL;
}

static bool refuse_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)rng, (void)user;
    return fl_item_int(s->t[1]) != 3;
}

TEST(transforms) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    int calls = 0;
    fl_data_set *set = fl_data_transform(numbers(4), scale_fn, &calls);
    fl_data_sample a, b, c;
    REQUIRE(fl_data_get(set, 2, &a) && fl_data_get(set, 2, &b) && fl_data_get(set, 1, &c));
    CHECK_EQ_INT(calls, 3);
    CHECK_EQ_INT(a.n, 3);
    CHECK_EQ_INT(a.t[0]->dtype, FL_F64);
    CHECK(fl_item(a.t[2]) == fl_item(b.t[2]) && fl_item(a.t[2]) != fl_item(c.t[2]));
    CHECK(fl_data_set_epoch(set, 1) && fl_data_get(set, 2, &b));
    CHECK(fl_item(a.t[2]) != fl_item(b.t[2]));
    CHECK_EQ_INT(fl_scope_size(), 12);
    fl_data_free(set);
    set = fl_data_transform(numbers(4), refuse_fn, NULL);
    CHECK(fl_data_get(set, 2, &a) && !fl_data_get(set, 3, &a));
    CHECK_ERROR("fl_data_transform: fn returned false for sample 3");
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Sample i has i + 1 elements; sample 6 has two fields, 7 no tensor, 8 too many fields, 9 fails. */
static bool growing_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    (void)self;
    out->n = i == 8 ? 9 : i == 6 ? 2 : 1;
    out->t[0] = out->t[1] = i == 7 ? NULL : fl_zeros(FL_SHAPE(i + 1), FL_F32);
    return i == 9 ? false : true;
}

static bool no_second_epoch(fl_data_set *self, int64_t epoch) {
    (void)self;
    return epoch < 2;
}

static int closed;
static void count_close(fl_data_set *self) {
    (void)self;
    closed++;
}

static int starts;
static bool count_start(fl_data_set *self, int64_t epoch) {
    (void)self, (void)epoch;
    return ++starts;
}
static bool get_one(fl_data_set *self, int64_t i, fl_data_sample *out) {
    (void)self, (void)i;
    out->t[out->n++] = fl_ones(FL_SCALAR_SHAPE, FL_F32);
    return true;
}

/* A new set is started before its first sample, whatever the table says; epochs start once. */
TEST(sets_are_started) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    int64_t epoch = 0, index = 0;
    fl_data_set table = {.size = 2, .get = get_one, .start = count_start, .started_ = true};
    fl_data_set *set = fl_data_set_new(&table, NULL, 0);
    for (int i = 0; i < 4; i++) {
        CHECK(fl_data_next(set, &epoch, &index, &b));
        CHECK_EQ_INT(starts, 1 + i / 2);
    }
    CHECK(epoch == 2 && index == 0);
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(a_set_of_ones_own) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    fl_data_set table = {.size = 10, .get = growing_get, .start = no_second_epoch,
                         .close = count_close};
    fl_data_set *set = fl_data_set_new(&table, (fl_data_set *[]){numbers(3)}, 1);
    CHECK(fl_data_inner(set, 0) && !fl_data_inner(set, 1));
    CHECK(fl_data_get(set, 2, &b) && fl_numel(b.t[0]) == 3);
    CHECK(!fl_data_get(set, 7, &b));
    CHECK_ERROR("field 0 of sample 7 is NULL");
    CHECK(!fl_data_get(set, 8, &b));
    CHECK_ERROR("sample 8 has 9 fields");
    CHECK(!fl_data_get(set, 9, &b));
    CHECK_ERROR("sample 9: the set failed without an error message");
    set = fl_data_batch(set, 2, false);
    CHECK(!fl_data_get(set, 1, &b));
    CHECK_ERROR("field 0 of sample 3 is f32 [4], expected f32 [3]");
    CHECK(fl_data_set_epoch(set, 1) && !fl_data_set_epoch(set, 2));
    CHECK_ERROR("a set could not start epoch 2");
    set = fl_data_slice(fl_data_subset(set, (int64_t[]){0, 3}, 2), 0, 2);
    CHECK(!fl_data_get(set, 1, &b));
    CHECK_ERROR("field 0 of sample 7 is NULL"); /* from below four wrappers */
    closed = 0;
    fl_data_free(set);
    CHECK_EQ_INT(closed, 1);
    /* a failure takes and frees all the same */
    CHECK(!fl_data_set_new(&table, (fl_data_set *[]){numbers(3), NULL}, 2));
    CHECK_ERROR("inner set 1 is NULL");
    CHECK_EQ_INT(closed, 2);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(wrong_arguments) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(3, 2), FL_F32), *y = fl_zeros(FL_SHAPE(2), FL_F32);
#define REFUSES(call, text) (CHECK(!(call)), CHECK_ERROR(text))
    REFUSES(fl_data_tensors(NULL, 1), "fl_data_tensors: tensors is NULL");
    REFUSES(fl_data_tensors((fl_tensor *[]){x}, 0), "got 0");
    REFUSES(fl_data_tensors((fl_tensor *[]){x}, 9), "got 9");
    REFUSES(fl_data_tensors((fl_tensor *[]){x, y}, 2), "tensor 1");
    REFUSES(fl_data_tensors((fl_tensor *[]){x, NULL}, 2), "tensor 1");
    REFUSES(fl_data_tensors((fl_tensor *[]){fl_full(FL_SCALAR_SHAPE, 1, FL_F32)}, 1), "tensor 0");
    REFUSES(fl_data_slice(NULL, 0, 1), "fl_data_slice: the set is NULL");
    REFUSES(fl_data_slice(numbers(3), -1, 1), "must not be negative, got -1 and 1");
    REFUSES(fl_data_slice(numbers(3), 2, 2), "length 2 from offset 2 exceeds the 3 samples");
    REFUSES(fl_data_slice(numbers(3), 0, INT64_MAX), "the 3 samples");
    REFUSES(fl_data_slice(numbers(3), 0, -1), "got 0 and -1");
    REFUSES(fl_data_shard(NULL, 0, 1), "fl_data_shard: the set is NULL");
    REFUSES(fl_data_shard(numbers(3), 2, 2), "got 2 with ranks 2");
    REFUSES(fl_data_shard(numbers(3), 0, 0), "got 0 with ranks 0");
    REFUSES(fl_data_subset(NULL, NULL, 0), "fl_data_subset: the set is NULL");
    REFUSES(fl_data_subset(numbers(3), (int64_t[]){0, 3}, 2), "index[1] must be in [0, 3), got 3");
    REFUSES(fl_data_subset(numbers(3), (int64_t[]){-1}, 1), "got -1");
    REFUSES(fl_data_subset(numbers(3), NULL, 2), "index is NULL");
    REFUSES(fl_data_subset(numbers(3), (int64_t[]){0}, -1), "got n -1");
    REFUSES(fl_data_shuffle(NULL, 0), "fl_data_shuffle: the set is NULL");
    REFUSES(fl_data_concat(NULL, 1), "sets is NULL");
    REFUSES(fl_data_concat((fl_data_set *[]){numbers(2), NULL}, 2), "set 1");
    REFUSES(fl_data_zip((fl_data_set *[]){numbers(2), numbers(3)}, 2), "set 1");
    REFUSES(fl_data_zip(NULL, 0), "sets is NULL");
    REFUSES(fl_data_batch(NULL, 2, true), "fl_data_batch: the set is NULL");
    REFUSES(fl_data_batch(numbers(3), 0, true), "got 0");
    REFUSES(fl_data_transform(NULL, scale_fn, NULL), "fl_data_transform: the set is NULL");
    REFUSES(fl_data_transform(numbers(3), NULL, NULL), "fn is NULL");
    REFUSES(fl_data_prefetch(NULL, 1, 1), "fl_data_prefetch: the set is NULL");
    REFUSES(fl_data_prefetch(numbers(3), 0, 1), "got 0 and 1");
    REFUSES(fl_data_prefetch(numbers(3), 1, 0), "got 1 and 0");
    REFUSES(fl_data_set_new(NULL, NULL, 0), "the table is NULL");
    REFUSES(fl_data_set_epoch(NULL, 0), "the set is NULL");
    REFUSES(fl_data_get(NULL, 0, NULL), "the set, or out, is NULL");
    /* the first text stays */
    REFUSES(fl_data_slice(fl_data_batch(numbers(3), 0, true), 0, 0), "got 0");
    CHECK_EQ_INT(fl_data_size(NULL), 0);
    fl_data_free(NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(batches_of_unlike_samples) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    fl_data_set table = {.size = 10, .get = growing_get};
    fl_data_set *set = fl_data_subset(fl_data_set_new(&table, NULL, 0), (int64_t[]){4, 6, 6, 6}, 4);
    set = fl_data_batch(set, 2, true);
    CHECK(!fl_data_get(set, 0, &b));
    CHECK_ERROR("sample 6 has 2 fields, expected 1");
    CHECK(fl_data_get(set, 1, &b) && b.n == 2 && b.t[1]->shape[0] == 2 && b.t[1]->shape[1] == 7);
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- prefetch ---- */

/* Waits a while that depends on the sample, so that workers finish out of order. */
static bool slow_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)s, (void)user;
#ifndef _WIN32
    nanosleep(&(struct timespec){0, (long)(rng->key % 300) * 1000}, NULL);
#else
    (void)rng;
#endif
    return true;
}

TEST(prefetch_delivers_in_order) {
    test_errors_return();
    enum { N = 150 };
    int64_t want[N], got[N];
    fl_data_set *plain = fl_data_shuffle(numbers(N), 5);
    for (int threads = 1; threads <= 4; threads *= 2)
        for (int depth = 1; depth <= 9; depth += 4) {
            fl_data_set *set = fl_data_prefetch(
                fl_data_transform(fl_data_shuffle(numbers(N), 5), slow_fn, NULL), threads, depth);
            REQUIRE(set);
            for (int epoch = 0; epoch < 2; epoch++) {
                CHECK(fl_data_set_epoch(plain, epoch) && fl_data_set_epoch(set, epoch));
                CHECK(is_permutation(plain, want));
                CHECK(is_permutation(set, got));
                CHECK(!memcmp(want, got, sizeof want));
            }
            fl_data_free(set);
        }
    fl_data_free(plain);
    CHECK_NOTHING_LIVES();
}

TEST(prefetch_jumps) {
    test_errors_return();
    fl_data_set *set = fl_data_prefetch(fl_data_transform(numbers(50), slow_fn, NULL), 3, 4);
    uint32_t random = 1;
    for (int k = 0; k < 60; k++) {
        random = random * 1664525u + 1013904223u;
        int64_t from = (random >> 8) % 48;
        for (int64_t i = from; i < from + 1 + k % 3; i++) CHECK_EQ_INT(label(set, i), i);
    }
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* Ends in the middle, at any moment, also before anything was asked for. */
TEST(prefetch_stops_midway) {
    test_errors_return();
    for (int k = 0; k < 40; k++) {
        fl_data_set *set =
            fl_data_prefetch(fl_data_transform(numbers(100), slow_fn, NULL), 1 + k % 4, 1 + k % 7);
        for (int i = 0; i < k % 5; i++) CHECK_EQ_INT(label(set, i), i);
        if (k % 3 == 0) CHECK(fl_data_set_epoch(set, k));
        fl_data_free(set);
    }
    CHECK_NOTHING_LIVES();
}

static int fail_times; /* how often sample 3 still fails */
static bool flaky_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)rng, (void)user;
    if (fl_item_int(s->t[1]) != 3 || __atomic_fetch_sub(&fail_times, 1, __ATOMIC_RELAXED) <= 0)
        return true;
    return fl_fail("flaky_fn: sample 3 is bad today");
}

TEST(prefetch_carries_errors) {
    test_errors_return();
    fail_times = 1000000;
    fl_data_set *set = fl_data_prefetch(fl_data_transform(numbers(10), flaky_fn, NULL), 2, 4);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(label(set, i), i);
    for (int k = 0; k < 3; k++) {
        CHECK_EQ_INT(label(set, 3), -1);
        CHECK_ERROR("flaky_fn: sample 3 is bad today");
    }
    CHECK_EQ_INT(label(set, 4), 4); /* the others are not affected */
    CHECK_NO_ERROR();
    __atomic_store_n(&fail_times, 0, __ATOMIC_RELAXED);
    for (int i = 3; i < 10; i++) CHECK_EQ_INT(label(set, i), i);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* 10,000 batches through worker threads: handles, buffers and the process stay as they were after
   the first thousand. */
TEST(prefetch_memory_is_flat) {
    test_errors_return();
    enum { N = 512 };
    fl_data_set *set =
        fl_data_prefetch(fl_data_batch(fl_data_shuffle(numbers(N), 9), 8, true), 2, 4);
    REQUIRE(set);
    int64_t epochs = 10000 / fl_data_size(set) + 1, resident = 0, reserved = 0, batches = 0;
    for (int64_t e = 0; e < epochs; e++) {
        CHECK(fl_data_set_epoch(set, e));
        for (int64_t i = 0; i < fl_data_size(set); i++, batches++) {
            fl_scope s = fl_scope_begin();
            fl_data_sample b;
            CHECK(fl_data_get(set, i, &b) && b.t[0]->shape[0] == 8);
            fl_scope_end(&s);
        }
        if (e == epochs / 10) {
            resident = test_resident_bytes();
            reserved = fl_mem_stats_of(NULL).reserved;
        }
    }
    CHECK(batches >= 10000);
    CHECK(fl_live_tensors() <= 2 + 2 * (2 * 4 + 2 * 8)); /* the set's own, and what is on its way */
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, reserved);
    if (resident) CHECK(test_resident_bytes() - resident < resident / 50 + (1 << 20));
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* ---- failing memory ---- */

static struct {
    int64_t calls, fail_at;
    bool for_ever;
} heap;

static void *heap_fn(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) {
        free(p);
        return NULL;
    }
    int64_t n = __atomic_add_fetch(&heap.calls, 1, __ATOMIC_RELAXED);
    bool fails = heap.fail_at && (heap.for_ever ? n >= heap.fail_at : n == heap.fail_at);
    return fails ? NULL : realloc(p, bytes);
}

static bool use_sets(void) {
    fl_scope s = fl_scope_begin();
    const int64_t index[4] = {0, 5, 2, 3};
    fl_tensor *x = fl_arange(0, 12, 1, FL_F32);
    fl_data_set *set = x ? fl_data_tensors(&x, 1) : NULL;
    set = set ? fl_data_subset(fl_data_shuffle(set, 3), index, 4) : NULL;
    set = set ? fl_data_transform(fl_data_slice(set, 0, 4), slow_fn, NULL) : NULL;
    set = set ? fl_data_batch(set, 2, false) : NULL;
    double sum = 0;
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_data_sample b;
        float v[2];
        ok = fl_data_get(set, i, &b) && fl_to_host(b.t[0], v, sizeof v);
        if (ok) sum = 31 * sum + v[0] + 17 * v[1];
    }
    fl_data_free(set);
    fl_scope_end(&s);
    static double want;
    if (ok && want == 0) want = sum;
    return ok && CHECK(sum == want);
}

static bool use_prefetch(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_arange(0, 12, 1, FL_I64);
    fl_data_set *set = x ? fl_data_tensors(&x, 1) : NULL;
    set = set ? fl_data_prefetch(set, 1, 2) : NULL;
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < 4; i++) {
        fl_data_sample b;
        ok = fl_data_get(set, i, &b);
        if (ok) CHECK_EQ_INT(fl_item_int(b.t[0]), i);
    }
    fl_data_free(set);
    fl_scope_end(&s);
    return ok;
}

/* Fails the n-th request of the heap for n = 1, 2, ...; each time it is an error and doing it again
   works. */
static int64_t sweep(bool (*action)(void), int64_t most, bool for_ever) {
    int64_t n = 0;
    for (bool done = false; !done && n < most;) {
        heap.calls = 0, heap.fail_at = ++n, heap.for_ever = for_ever;
        bool ok = action();
        done = heap.calls < n;
        heap.fail_at = 0;
        CHECK(ok || fl_error());
        fl_error_clear();
        CHECK(action());
        CHECK_NO_ERROR();
        CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
    }
    return n;
}

TEST(sets_without_memory) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    int64_t points = 0;
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        heap.fail_at = 0;
        CHECK(use_sets() && use_prefetch());
        points += sweep(use_sets, 500, for_ever) + sweep(use_prefetch, 60, for_ever);
    }
    CHECK(points >= 40);
    CHECK_NOTHING_LIVES();
    fl_heap_use(NULL, NULL);
}

/* ---- meters ---- */

TEST(average) {
    test_errors_return();
    fl_data_average m = {0};
    CHECK(isnan(fl_data_average_variance(&m)));
    fl_data_average_add(&m, 3, 1);
    CHECK_NEAR(m.mean, 3, 0);
    CHECK(isnan(fl_data_average_variance(&m)));
    fl_data_average_add(&m, 5, 2);
    fl_data_average_add(&m, 100, 0); /* no weight, no effect */
    fl_data_average_add(&m, 100, NAN);
    CHECK_NEAR(m.mean, 13.0 / 3, 1e-14);
    CHECK_NEAR(m.weight, 3, 0);
    /* sum w (x - mean)^2 = 16/9 + 2 * 4/9 = 8/3;  W - sum w^2 / W = 3 - 5/3 = 4/3 */
    CHECK_NEAR(fl_data_average_variance(&m), 2, 1e-14);
    fl_data_average big = {0};
    for (int i = 0; i < 1000; i++) fl_data_average_add(&big, 1e9 + i % 2, 1);
    CHECK_NEAR(fl_data_average_variance(&big), 250.0 / 999, 1e-6);
    fl_scope s = fl_scope_begin();
    fl_data_average t = {0};
    CHECK(fl_data_average_add_tensor(
        &t, fl_transpose(fl_reshape(fl_arange(0, 6, 1, FL_I64), FL_SHAPE(2, 3)), 0, 1)));
    CHECK(fl_data_average_add_tensor(&t, fl_zeros(FL_SHAPE(0), FL_F32)));
    CHECK_NEAR(t.mean, 2.5, 1e-15);
    CHECK_NEAR(fl_data_average_variance(&t), 3.5, 1e-14);
    CHECK(!fl_data_average_add_tensor(&t, NULL));
    CHECK_ERROR("is NULL");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(frame_error) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_frame_error m = {0};
    CHECK(isnan(fl_data_frame_error_percent(&m)));
    const float scores[] = {0, 1, 0, 3, 2, 1, -5, -4, -3, 1, 1, 1};
    fl_tensor *x = fl_from_host(scores, FL_SHAPE(4, 3), FL_F32); /* classes 1 0 2 0 */
    CHECK(
        fl_data_frame_error_add(&m, x, fl_from_host((int64_t[]){1, 0, 0, 0}, FL_SHAPE(4), FL_I64)));
    CHECK(m.wrong == 1 && m.total == 4);
    CHECK(fl_data_frame_error_add(&m, x, fl_from_host("\0\1\2\0", FL_SHAPE(4), FL_U8)));
    CHECK(m.wrong == 3 && m.total == 8);
    CHECK_NEAR(fl_data_frame_error_percent(&m), 37.5, 0);
    fl_tensor *classes = fl_from_host((int32_t[]){1, 2}, FL_SHAPE(2), FL_I32);
    CHECK(
        fl_data_frame_error_add(&m, classes, fl_from_host((int64_t[]){1, 3}, FL_SHAPE(2), FL_I64)));
    CHECK(m.wrong == 4 && m.total == 10);
    CHECK(fl_data_frame_error_add(&m, fl_zeros(FL_SHAPE(0, 3), FL_F32),
                                  fl_zeros(FL_SHAPE(0), FL_I64)));
    CHECK(m.wrong == 4 && m.total == 10);
    CHECK(!fl_data_frame_error_add(&m, x, fl_zeros(FL_SHAPE(3), FL_I64)));
    CHECK_ERROR("got scores f32 [4, 3] and target i64 [3]");
    CHECK(!fl_data_frame_error_add(&m, x, fl_zeros(FL_SHAPE(4), FL_F32)));
    CHECK_ERROR("target f32 [4]");
    CHECK(!fl_data_frame_error_add(&m, x, fl_zeros(FL_SHAPE(4, 3), FL_I64)));
    CHECK_ERROR("scores f32");
    CHECK(!fl_data_frame_error_add(&m, NULL, NULL));
    CHECK_ERROR("is NULL");
    CHECK(m.wrong == 4 && m.total == 10);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(timer) {
    fl_data_timer m = {0};
    CHECK_NEAR(fl_data_timer_seconds(&m), 0, 0);
    CHECK(isnan(fl_data_timer_per_unit(&m)));
    fl_data_timer_start(&m);
    double from = fl_data_now();
    while (fl_data_now() - from < 0.02) {}
    CHECK(fl_data_timer_seconds(&m) >= 0.02); /* while it runs */
    fl_data_timer_stop(&m);
    double first = fl_data_timer_seconds(&m);
    from = fl_data_now();
    while (fl_data_now() - from < 0.005) {}
    CHECK_NEAR(fl_data_timer_seconds(&m), first, 0); /* stands still */
    fl_data_timer_start(&m);
    fl_data_timer_start(&m); /* starting twice is starting once */
    fl_data_timer_stop(&m);
    fl_data_timer_stop(&m);
    m.units = 4;
    CHECK(fl_data_timer_seconds(&m) >= first && fl_data_timer_seconds(&m) < first + 10);
    CHECK_NEAR(fl_data_timer_per_unit(&m), fl_data_timer_seconds(&m) / 4, 1e-15);
}

/* What `file` holds, into text. */
static void contents(FILE *file, char *text, size_t size) {
    rewind(file);
    text[fread(text, 1, size - 1, file)] = 0;
}

TEST(progress_in_a_log) {
    char text[2000];
    FILE *log = tmpfile();
    REQUIRE(log);
    fl_data_progress p = fl_data_progress_begin(log, "epoch 1", 50);
    CHECK(p.every == 10);
    for (int i = 1; i <= 50; i++) fl_data_progress_step(&p, i, "loss %.2f", 1.0 / i);
    fl_data_progress_end(&p);
    fl_data_progress_step(&p, 50, NULL);
    contents(log, text, sizeof text);
    CHECK_STR(text, "epoch 1 #################### 50/50 in 0:00  loss 0.02\n");
    /* fast work is one line */
    CHECK(strchr(text, '\n') == strrchr(text, '\n') && !strchr(text, '\r'));
    fclose(log);
    log = tmpfile();
    p = fl_data_progress_begin(log, "e", 4);
    p.every = 0;
    for (int i = 0; i <= 4; i++) fl_data_progress_step(&p, i, NULL);
    fl_data_progress_end(&p);
    contents(log, text, sizeof text);
    CHECK_STR(text, "e .................... 0/4 ETA -\n");
    CHECK_STR(text, "e #####............... 1/4 ETA 0:00\n");
    CHECK_STR(text, "e #################### 4/4 in 0:00\n");
    fclose(log);
}

TEST(progress_estimates) {
    char text[500];
    FILE *log = tmpfile();
    REQUIRE(log);
    fl_data_progress p = fl_data_progress_begin(log, "e", 100);
    p.every = 0;
    p.started_ -= 60; /* a minute ago */
    fl_data_progress_step(&p, 25, NULL);
    p.started_ -= 3600;
    fl_data_progress_step(&p, 50, NULL);
    contents(log, text, sizeof text);
    CHECK_STR(text, "25/100 ETA 3:00\n");
    CHECK_STR(text, "50/100 ETA 1:01:00\n");
    fclose(log);
}

/* A shorter line wipes what is left of the longer one before it; the end goes to a new line. */
TEST(progress_on_a_terminal) {
    char text[500];
    FILE *file = tmpfile();
    REQUIRE(file);
    fl_data_progress p = fl_data_progress_begin(file, "e", 2);
    p.terminal_ = true;
    p.every = 0;
    fl_data_progress_step(&p, 1, "loss %d", 12345);
    fl_data_progress_step(&p, 2, "loss %d", 1);
    fl_data_progress_end(&p);
    contents(file, text, sizeof text);
    CHECK(!strcmp(text, "\re ##########.......... 1/2 ETA 0:00  loss 12345"
                        "\re #################### 2/2 in 0:00  loss 1     \n"));
    fclose(file);
}

TEST(progress_off) {
    fl_data_progress p = fl_data_progress_begin(NULL, "e", 10);
    fl_data_progress_step(&p, 10, NULL);
    fl_data_progress_end(&p);
    CHECK(p.shown_ == 0); /* not even the clock was read */
}

int main(int argc, char **argv) { return test_main(argc, argv); }

/* MIT licence: see LICENSE. */
