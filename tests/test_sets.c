/* test_sets.c - data sets: who a sample is, lengths, joins of ragged samples, lists, folders, blobs */
#include "../fl_all.h"
#include "../examples/extend/naive.h"
#include "numbers.h"
#include "test.h"
#include <errno.h>
#ifndef _WIN32
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

/* Field k of sample i as integers, up to 64 of them; their number, -1 on failure. */
static int64_t values(fl_data_set *set, int64_t i, int k, int64_t *out) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    int64_t n = -1;
    if (fl_data_get(set, i, &b) && k < b.n && fl_numel(b.t[k]) <= 64) {
        fl_tensor *t = fl_cast(b.t[k], FL_I64);
        n = fl_numel(t);
        if (!fl_to_host(t, out, (size_t)n * sizeof *out)) n = -1;
    }
    fl_scope_end(&s);
    return n;
}

/* Sample i is i64 [i % 7], all i, and f32 [i % 5 + 1, 2]. */
static bool ragged_get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 2;
    out->t[0] = fl_full(FL_SHAPE(i % 7), (double)i, FL_I64);
    out->t[1] = fl_full(FL_SHAPE(i % 5 + 1, 2), (double)i, FL_F32);
    return out->t[0] && out->t[1];
}

/* ---- who a sample is ---- */

static bool noise_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)user;
    s->t[s->n++] = fl_full(FL_SCALAR_SHAPE, (double)(rng->key >> 12), FL_F64);
    return true;
}

enum { N = 24 };

/* The noise of each sample, by its label, of a set of batches or samples. */
static bool collect(fl_data_set *set, double *noise) {
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        int64_t y[N];
        double v[N];
        ok = fl_data_get(set, i, &b) && b.n == 3;
        const size_t n = ok ? (size_t)fl_numel(b.t[1]) : 0;
        ok = ok && fl_to_host(b.t[1], y, n * sizeof *y) && fl_to_host(b.t[2], v, n * sizeof *v);
        for (size_t k = 0; ok && k < n; k++) noise[y[k]] = v[k];
        fl_scope_end(&s);
    }
    fl_data_free(set);
    return ok;
}

static fl_data_set *noisy(fl_data_set *set) { return fl_data_transform(set, noise_fn, NULL); }

/* Sets of all N samples on `ranks` ranks, with the transform at another place each time. */
static fl_data_set *arrangement(int kind, int rank, int ranks, int64_t epoch) {
    fl_data_set *set = numbers(N);
    switch (kind) {
    case 0: set = fl_data_shard(noisy(set), rank, ranks); break;
    case 1: set = noisy(fl_data_shard(set, rank, ranks)); break;
    case 2: set = noisy(fl_data_shard(fl_data_shuffle(set, 5), rank, ranks)); break;
    case 3: set = fl_data_shard(noisy(fl_data_shuffle(set, 5)), rank, ranks); break;
    case 4: set = noisy(fl_data_shuffle(fl_data_shard(set, rank, ranks), 5)); break;
    case 5: set = noisy(fl_data_slice(set, N / ranks * rank, N / ranks)); break;
    case 6: set = fl_data_slice(noisy(set), N / ranks * rank, N / ranks); break;
    case 7: set = fl_data_batch(noisy(fl_data_shard(fl_data_shuffle(set, 5), rank, ranks)), 4, false); break;
    case 8:
        set = fl_data_prefetch(fl_data_batch(noisy(fl_data_shard(set, rank, ranks)), 5, false), 2, 3);
        break;
    case 9: set = noisy(fl_data_prefetch(fl_data_shard(fl_data_shuffle(set, 9), rank, ranks), 2, 3)); break;
    case 10: set = noisy(fl_data_lengths(fl_data_repeat(fl_data_shard(set, rank, ranks), 1),
                                         (int64_t[N]){0}, N / ranks)); break;
    default: set = noisy(fl_data_sort_by_length(fl_data_shard(fl_data_shuffle(set, 9), rank, ranks), 3));
    }
    CHECK(fl_data_set_epoch(set, epoch));
    return set;
}

/* Random numbers are a function of (seed, epoch, sample): on one rank and on four, whatever stands
   before or after the transform. */
TEST(a_sample_has_the_same_numbers_everywhere) {
    test_errors_return();
    double want[2][N], got[N];
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK(collect(arrangement(0, 0, 1, epoch), want[epoch]));
        for (int i = 0; i < N; i++)
            for (int k = 0; k < i; k++) CHECK(want[epoch][i] != want[epoch][k]);
    }
    for (int i = 0; i < N; i++) CHECK(want[0][i] != want[1][i]);
    for (int kind = 0; kind < 12; kind++)
        for (int ranks = 1; ranks <= 4; ranks += 3)
            for (int epoch = 0; epoch < 2; epoch++) {
                memset(got, 0, sizeof got);
                for (int rank = 0; rank < ranks; rank++)
                    CHECK(collect(arrangement(kind, rank, ranks, epoch), got));
                if (!CHECK(!memcmp(want[epoch], got, sizeof got)))
                    printf("  kind %d, %d ranks, epoch %d\n", kind, ranks, epoch);
            }
    CHECK_NOTHING_LIVES();
}

/* Whole batches get numbers too: those of their first sample. Repetitions and parts differ. */
TEST(ids) {
    test_errors_return();
    fl_data_set *set = fl_data_batch(fl_data_slice(numbers(20), 3, 17), 4, false);
    for (int64_t i = 0; i < fl_data_size(set); i++) CHECK_EQ_INT(fl_data_id(set, i), 3 + 4 * i);
    CHECK_EQ_INT(fl_data_id(set, 5), 5); /* no such batch */
    CHECK_EQ_INT(fl_data_id(set, -1), -1);
    fl_data_free(set);
    set = fl_data_repeat(numbers(3), 4);
    CHECK_EQ_INT(fl_data_size(set), 12);
    for (int i = 0; i < 12; i++) {
        int64_t y;
        CHECK(values(set, i, 1, &y) == 1 && y == i % 3);
        for (int k = 0; k < i; k++) CHECK(fl_data_id(set, i) != fl_data_id(set, k));
    }
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(fl_data_id(set, i), i);
    fl_data_free(set);
    set = fl_data_concat((fl_data_set *[]){fl_data_slice(numbers(9), 6, 3), numbers(9)}, 2);
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < i; k++) CHECK(fl_data_id(set, i) != fl_data_id(set, k));
    CHECK_EQ_INT(fl_data_id(set, 0), 6);
    fl_data_free(set);
    set = fl_data_zip((fl_data_set *[]){fl_data_shard(numbers(9), 1, 2), numbers(4)}, 2);
    CHECK_EQ_INT(fl_data_id(set, 2), 5);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* ---- lengths and orders ---- */

static int64_t length_fn(fl_data_set *self, int64_t i) {
    ++*(int *)self->user;
    return i == 90 ? -1 : i == 91 ? -2 : i == 92 ? fl_fail("length_fn: 92"), -2 : i % 7;
}

static bool inner_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    return fl_data_get(fl_data_inner(self, 0), i, out);
}

static bool counted_get(int64_t i, fl_data_sample *out, void *user) {
    __atomic_add_fetch((int *)user, 1, __ATOMIC_RELAXED);
    return i < 95 ? ragged_get(i, out, NULL) : false;
}

TEST(lengths_are_asked_without_reading) {
    test_errors_return();
    int reads = 0, asked = 0;
    fl_data_set *set = fl_data_callback(100, counted_get, &reads);
    set = fl_data_set_new(&(fl_data_set){.size = 100, .get = inner_get, .length = length_fn, .user = &asked},
                          &set, 1);
    set = fl_data_shuffle(fl_data_transform(fl_data_repeat(set, 2), noise_fn, NULL), 3);
    set = fl_data_concat(&set, 1);
    int64_t sum = 0;
    for (int64_t i = 0; i < 200; i++) {
        int64_t n = fl_data_length(set, i);
        if (fl_error()) {
            CHECK(n == -1 &&
                  (strstr(fl_error(), "length_fn: 92") || strstr(fl_error(), "without an error message")));
            fl_error_clear();
        } else sum += n;
    }
    CHECK_EQ_INT(asked, 200);
    CHECK_EQ_INT(reads, 2); /* only 90, which length_fn does not know */
    int64_t want = 0;
    for (int i = 0; i < 100; i++) want += i == 91 || i == 92 ? 0 : 2 * (i % 7);
    CHECK_EQ_INT(sum, want);
    fl_data_free(set);
    reads = 0;
    set = fl_data_slice(fl_data_callback(100, counted_get, &reads), 10, 90);
    CHECK_EQ_INT(fl_data_length(set, 3), 13 % 7);
    CHECK_EQ_INT(reads, 1);
    CHECK_EQ_INT(fl_data_length(set, 90), -1);
    CHECK_ERROR("fl_data_length: sample index must be in [0, 90), got 90");
    CHECK_EQ_INT(fl_data_length(set, 88), -1);
    CHECK_ERROR("fl_data_callback: fn returned false for sample 98");
    CHECK_EQ_INT(fl_data_length(NULL, 0), -1);
    CHECK_ERROR("the set");
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

TEST(sorted_within_windows) {
    test_errors_return();
    fl_data_set *set = fl_data_sort_by_length(fl_data_callback(20, ragged_get, NULL), 10);
    int64_t last = -1, at = -1, seen = 0;
    for (int64_t i = 0; i < 20; i++) {
        int64_t n = fl_data_length(set, i), id = fl_data_id(set, i);
        if (i % 10 == 0) last = at = -1;
        CHECK(n > last || (n == last && id > at)); /* stable */
        CHECK(id / 10 == i / 10 && n == id % 7);
        last = n, at = id;
        seen |= (int64_t)1 << id;
    }
    CHECK_EQ_INT(seen, (1 << 20) - 1);
    fl_data_free(set);
    set = fl_data_sort_by_length(fl_data_callback(20, ragged_get, NULL), 0);
    for (int64_t i = 1; i < 20; i++) CHECK(fl_data_length(set, i - 1) <= fl_data_length(set, i));
    fl_data_free(set);
    /* over a shuffle: other buckets in each epoch, and another number of batches of a budget */
    set =
        fl_data_batches(fl_data_sort_by_length(fl_data_shuffle(fl_data_callback(40, ragged_get, NULL), 1), 8),
                        .budget = 12, .pad = true);
    set = fl_data_prefetch(fl_data_shuffle(set, 2), 2, 2);
    int64_t sizes[8], other = 0;
    for (int epoch = 0; epoch < 8; epoch++) {
        CHECK(fl_data_set_epoch(set, epoch));
        sizes[epoch] = fl_data_size(set);
        other += sizes[epoch] != sizes[0];
        int64_t samples = 0;
        for (int64_t i = 0; i < sizes[epoch]; i++) {
            fl_scope s = fl_scope_begin();
            fl_data_sample b;
            if (CHECK(fl_data_get(set, i, &b))) {
                samples += b.t[0]->shape[0];
                CHECK(fl_numel(b.t[0]) <= 12);
            }
            fl_scope_end(&s);
        }
        CHECK_EQ_INT(samples, 40);
    }
    CHECK(other > 0);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

static bool even_fn(const fl_data_sample *s, void *user) {
    (void)user;
    return fl_item_int(s->t[1]) % 2 == 0;
}

TEST(filter_and_repeat) {
    test_errors_return();
    int64_t y;
    fl_data_set *set = fl_data_filter(numbers(9), even_fn, NULL);
    CHECK_EQ_INT(fl_data_size(set), 5);
    for (int i = 0; i < 5; i++)
        CHECK(values(set, i, 1, &y) == 1 && y == 2 * i && fl_data_id(set, i) == 2 * i);
    fl_data_free(set);
    set = fl_data_repeat(numbers(4), 0);
    CHECK_EQ_INT(fl_data_size(set), 0);
    fl_data_free(set);
    set = fl_data_repeat(numbers(0), 3);
    CHECK_EQ_INT(fl_data_size(set), 0);
    fl_data_free(set);
    int reads = 0;
    CHECK(!fl_data_filter(fl_data_callback(100, counted_get, &reads), even_fn, NULL));
    CHECK_ERROR("fl_item_int: shape [1, 2]");
    CHECK_EQ_INT(reads, 1); /* the first failure ends it */
    CHECK_NOTHING_LIVES();
}

/* ---- joins ---- */

TEST(padding_lengths_and_masks) {
    test_errors_return();
    fl_data_set *set = fl_data_batches(fl_data_callback(20, ragged_get, NULL), .size = 6, .pad = true,
                                       .pad_value = {-100, 0.5}, .lengths = 1 | 2, .masks = 2);
    CHECK_EQ_INT(fl_data_size(set), 4);
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    for (int64_t batch = 0; batch < 4; batch++) {
        const int64_t n = batch < 3 ? 6 : 2;
        REQUIRE(fl_data_get(set, batch, &b));
        CHECK_EQ_INT(b.n, 5);
        CHECK(b.t[0]->ndim == 2 && b.t[1]->ndim == 3 && b.t[1]->shape[2] == 2);
        CHECK(b.t[2]->dtype == FL_I64 && b.t[3]->dtype == FL_I64 && b.t[4]->dtype == FL_B8);
        int64_t x[64], steps[6], rows[6], longest = 0, widest = 0;
        float y[64];
        unsigned char mask[32];
        REQUIRE(fl_to_host(b.t[2], steps, (size_t)n * 8) && fl_to_host(b.t[3], rows, (size_t)n * 8));
        for (int64_t i = 0; i < n; i++) {
            CHECK_EQ_INT(steps[i], (6 * batch + i) % 7);
            CHECK_EQ_INT(rows[i], (6 * batch + i) % 5 + 1);
            if (steps[i] > longest) longest = steps[i];
            if (rows[i] > widest) widest = rows[i];
        }
        CHECK(b.t[0]->shape[1] == longest && b.t[1]->shape[1] == widest && b.t[4]->shape[1] == widest);
        REQUIRE(fl_to_host(b.t[0], x, (size_t)(n * longest) * 8) &&
                fl_to_host(b.t[1], y, (size_t)(n * widest) * 8) &&
                fl_to_host(b.t[4], mask, (size_t)(n * widest)));
        for (int64_t i = 0; i < n; i++) {
            for (int64_t t = 0; t < longest; t++)
                CHECK_EQ_INT(x[i * longest + t], t < steps[i] ? 6 * batch + i : -100);
            for (int64_t t = 0; t < widest; t++) {
                CHECK_EQ_INT(mask[i * widest + t], t < rows[i]);
                CHECK_NEAR(y[2 * (i * widest + t) + 1], t < rows[i] ? (double)(6 * batch + i) : 0.5, 0);
            }
        }
    }
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Images of any size, and numbers without dims. */
static bool images_get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 2;
    out->t[0] = fl_full(FL_SHAPE(3, i + 1, 5 - i), (double)i, FL_U8);
    out->t[1] = fl_full(FL_SCALAR_SHAPE, (double)i, FL_I64);
    return true;
}

TEST(padding_along_every_dim) {
    test_errors_return();
    fl_data_set *set = fl_data_batches(fl_data_callback(4, images_get, NULL), .size = 4, .pad = true,
                                       .pad_value = {9});
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    REQUIRE(fl_data_get(set, 0, &b));
    CHECK(fl_shape_is(b.t[0], FL_SHAPE(4, 3, 4, 5)) && fl_shape_is(b.t[1], FL_SHAPE(4)));
    unsigned char v[4 * 3 * 4 * 5];
    REQUIRE(fl_to_host(b.t[0], v, sizeof v));
    for (int i = 0; i < 4 * 3 * 20; i++) {
        int n = i / 60, y = i / 5 % 4, x = i % 5;
        CHECK_EQ_INT(v[i], y <= n && x < 5 - n ? n : 9);
    }
    fl_data_free(set);
    set = fl_data_batches(fl_data_callback(4, images_get, NULL), .size = 4, .pad = true, .lengths = 2);
    CHECK(!fl_data_get(set, 0, &b));
    CHECK_ERROR("lengths or masks of field 1: sample 0");
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* What comes out is what attention, CTC and recurrence take: each sequence of a padded batch gives what
   it gives alone. */
static bool speech_get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    const int64_t steps = 6 + i * 5 % 4, labels = 1 + i % 3;
    out->n = 2;
    out->t[0] = fl_normal(FL_SHAPE(steps, 4), 0, 1, FL_F32, &(fl_rng){7, (uint64_t)i << 20});
    out->t[1] = fl_add(fl_remainder(fl_arange(0, (double)labels, 1, FL_I64), fl_int(3)), fl_int(1));
    return out->t[0] && out->t[1];
}

static double difference(fl_tensor *a, fl_tensor *b) {
    return fl_item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES));
}

TEST(joined_batches_fit_attention_ctc_and_recurrence) {
    test_errors_return();
    enum { B = 5 };
    fl_scope s = fl_scope_begin();
    fl_data_set *samples = fl_data_callback(B, speech_get, NULL);
    fl_data_set *set = fl_data_batches(fl_data_callback(B, speech_get, NULL), .size = B, .pad = true,
                                       .pad_value = {1e3}, .lengths = 1 | 2, .masks = 1);
    fl_data_sample b, one;
    REQUIRE(fl_data_get(set, 0, &b) && b.n == 5);
    fl_tensor *key_mask = fl_unsqueeze(fl_unsqueeze(b.t[4], 1), 1), *heads = fl_unsqueeze(b.t[0], 1);
    fl_tensor *seen = fl_attention(heads, heads, heads, .mask = key_mask);
    fl_tensor *scores = fl_transpose(fl_log_softmax(b.t[0], -1), 0, 1);
    fl_tensor *loss = fl_ctc_loss(scores, b.t[1], b.t[2], b.t[3], .reduction = FL_NONE);
    REQUIRE(seen && loss);
    fl_rng rng = {3, 0};
    fl_tensor *w[4] = {fl_normal(FL_SHAPE(12, 4), 0, 1, FL_F32, &rng),
                       fl_normal(FL_SHAPE(12, 4), 0, 1, FL_F32, &rng), NULL, NULL};
    fl_tensor *states = fl_rnn(FL_GRU, b.t[0], w, .batch_first = true, .lengths = b.t[2]);
    REQUIRE(states);
    for (int i = 0; i < B; i++) {
        REQUIRE(fl_data_get(samples, i, &one));
        const int64_t steps = one.t[0]->shape[0];
        fl_tensor *head = fl_unsqueeze(one.t[0], 0);
        fl_tensor *alone = fl_attention(head, head, head);
        CHECK(difference(alone, fl_slice(fl_select(seen, 0, i), 1, 0, steps, 1)) < 1e-5);
        fl_tensor *run = fl_rnn(FL_GRU, head, w, .batch_first = true);
        CHECK(difference(run, fl_slice(fl_slice(states, 0, i, i + 1, 1), 1, 0, steps, 1)) < 1e-5);
        fl_tensor *logp = fl_unsqueeze(fl_log_softmax(one.t[0], -1), 1);
        fl_tensor *mine = fl_ctc_loss(logp, fl_unsqueeze(one.t[1], 0),
                                      fl_from_host(&steps, FL_SHAPE(1), FL_I64),
                                      fl_from_host(&one.t[1]->shape[0], FL_SHAPE(1), FL_I64),
                                      .reduction = FL_NONE);
        CHECK(difference(fl_select(loss, 0, i), fl_select(mine, 0, 0)) < 1e-4);
    }
    fl_data_free(set);
    fl_data_free(samples);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static bool join_fn(const fl_data_sample *s, int64_t n, fl_data_sample *out, void *user) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fl_numel(s[i].t[0]);
    if (sum == *(int64_t *)user) return false;
    out->n = 1;
    out->t[0] = fl_full(FL_SHAPE(n), (double)sum, FL_I64);
    return true;
}

TEST(a_join_of_ones_own) {
    test_errors_return();
    int64_t bad = 6, v[64];
    fl_data_set *set = fl_data_batches(fl_data_callback(10, ragged_get, NULL), .size = 4, .join = join_fn,
                                       .user = &bad);
    CHECK(values(set, 1, 0, v) == 4 && v[0] == 4 + 5 + 6 && v[3] == v[0]);
    CHECK_EQ_INT(values(set, 0, 0, v), -1);
    CHECK_ERROR("fl_data_batches: join returned false for samples 0 to 3");
    bad = -1;
    CHECK(values(set, 0, 0, v) == 4 && v[0] == 6);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* ---- which samples ---- */

TEST(budgets) {
    test_errors_return();
    const int64_t length[10] = {3, 1, 4, 1, 5, 9, 2, 6, 0, 3};
    const int64_t padded[] = {2, 2, 1, 1, 1, 3}, summed[] = {4, 1, 1, 4}, few[] = {2, 2, 1, 1, 2, 2};
    /* at most 9: 3 1 | 4 1 | 5 | 9 | 2 | 6 0 -> 6 fits once only */
    for (int kind = 0; kind < 3; kind++) {
        fl_data_set *set = fl_data_batches(fl_data_lengths(numbers(10), length, 10), .budget = 9,
                                           .sum = kind > 0, .size = kind == 2 ? 2 : 0);
        int64_t at = 0, v[64];
        for (int64_t b = 0; b < fl_data_size(set); b++) {
            int64_t n = values(set, b, 1, v), most = 0, sum = 0;
            REQUIRE(n > 0);
            for (int64_t i = 0; i < n; i++, at++) {
                CHECK_EQ_INT(v[i], at);
                sum += length[at];
                if (length[at] > most) most = length[at];
            }
            CHECK(kind ? sum <= 9 : n * most <= 9);
            CHECK(kind < 2 || n <= 2);
            if (at == 10) break;
            /* greedy: the next one would not have fitted */
            sum += length[at];
            if (length[at] > most) most = length[at];
            CHECK(kind == 0 ? (n + 1) * most > 9 : sum > 9 || (kind == 2 && n == 2));
        }
        CHECK_EQ_INT(at, 10);
        fl_data_free(set);
    }
    (void)padded, (void)summed, (void)few;
    CHECK(!fl_data_batches(fl_data_lengths(numbers(10), length, 10), .budget = 8));
    CHECK_ERROR("fl_data_batches: sample 5 has length 9, more than the budget 8");
    fl_data_set *set = fl_data_batches(fl_data_lengths(numbers(0), length, 0), .budget = 8);
    CHECK(set && fl_data_size(set) == 0);
    fl_data_free(set);
    set = fl_data_batches(fl_data_lengths(numbers(3), (int64_t[3]){0}, 3), .budget = 1);
    CHECK_EQ_INT(fl_data_size(set), 1); /* nothing weighs nothing */
    fl_data_free(set);
    set = fl_data_batches(fl_data_lengths(numbers(3), (int64_t[]){INT64_MAX, INT64_MAX, 1}, 3),
                          .budget = INT64_MAX, .sum = true);
    CHECK_EQ_INT(fl_data_size(set), 3); /* no overflow */
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

TEST(explicit_sizes) {
    test_errors_return();
    int64_t v[64], sizes[3] = {1, 4, 2};
    fl_data_set *set = fl_data_batches(numbers(7), .sizes = sizes, .n_sizes = 3);
    sizes[0] = 99; /* copied */
    CHECK_EQ_INT(fl_data_size(set), 3);
    CHECK(values(set, 1, 1, v) == 4 && v[0] == 1 && v[3] == 4);
    CHECK(values(set, 2, 1, v) == 2 && v[1] == 6);
    fl_data_free(set);
    sizes[0] = 1;
    set = fl_data_batches(numbers(9), .sizes = sizes, .n_sizes = 3, .drop_last = true);
    CHECK_EQ_INT(fl_data_size(set), 3);
    fl_data_free(set);
    CHECK(!fl_data_batches(numbers(9), .sizes = sizes, .n_sizes = 3));
    CHECK_ERROR("the sizes must sum to 9, got 7");
    CHECK(!fl_data_batches(numbers(6), .sizes = sizes, .n_sizes = 3));
    CHECK_ERROR("sizes[2] must be in [1, 1] (the remaining samples), got 2");
    sizes[1] = 0;
    CHECK(!fl_data_batches(numbers(6), .sizes = sizes, .n_sizes = 3));
    CHECK_ERROR("sizes[1] must be in [1, 5]");
    CHECK_NOTHING_LIVES();
}

/* One gather and 64 views with a stack give the same bits, whatever order is asked for. */
TEST(gathers_are_stacks) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    const int64_t index[9] = {3, 4, 5, 5, 0, 11, 10, 3, 4};
    for (int dtype = FL_B8; dtype < FL_DTYPE_COUNT; dtype++) {
        fl_tensor *x = fl_cast(fl_remainder(fl_arange(0, 72, 1, FL_I64), fl_int(dtype == FL_B8 ? 2 : 100)),
                               (fl_dtype)dtype);
        fl_tensor *t[4] = {fl_reshape(x, FL_SHAPE(12, 2, 3)), fl_slice(x, 0, 0, 12, 1),
                           fl_zeros(FL_SHAPE(12, 0), (fl_dtype)dtype), NULL};
        for (int layout = 0; layout < 2; layout++) {
            t[3] = fl_reshape(x, FL_SHAPE(12, 6));
            if (layout) t[3] = fl_transpose(fl_reshape(x, FL_SHAPE(6, 12)), 0, 1); /* views and a stack */
            fl_data_set *fast = fl_data_subset(fl_data_tensors(t, 4), index, 9);
            fl_data_set *slow =
                fl_data_transform(fl_data_subset(fl_data_tensors(t, 4), index, 9), noise_fn, NULL);
            fl_data_set *batches[2] = {fl_data_batch(fast, 4, false), fl_data_batch(slow, 4, false)};
            for (int64_t b = 0; b < 3; b++) {
                fl_data_sample got, want;
                REQUIRE(fl_data_get(batches[0], b, &got) && fl_data_get(batches[1], b, &want) && got.n == 4);
                for (int k = 0; k < 4; k++) {
                    char a[1000], c[1000];
                    size_t bytes = (size_t)fl_numel(want.t[k]) * fl_dtype_size((fl_dtype)dtype);
                    CHECK(fl_same_shape(got.t[k], want.t[k]) && got.t[k]->dtype == want.t[k]->dtype);
                    CHECK(bytes <= 1000 && fl_to_host(got.t[k], a, bytes) &&
                          fl_to_host(want.t[k], c, bytes) && !memcmp(a, c, bytes));
                }
            }
            fl_data_free(batches[0]);
            fl_data_free(batches[1]);
        }
    }
    /* what comes out is a copy: writing into it leaves the set alone */
    fl_tensor *x = fl_arange(0, 6, 1, FL_F32);
    fl_data_set *set = fl_data_batch(fl_data_tensors(&x, 1), 3, false);
    fl_data_sample b;
    CHECK(fl_data_get(set, 0, &b) && fl_assign(b.t[0], fl_num(9)) && fl_item(fl_select(x, 0, 1)) == 1);
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(wrong_arguments) {
    test_errors_return();
    int64_t index[2] = {0, 5};
    fl_data_sample b;
    fl_scope s = fl_scope_begin();
#define REFUSES(call, text) (CHECK(!(call)), CHECK_ERROR(text))
    REFUSES(fl_data_callback(-1, ragged_get, NULL), "or size is negative: got size -1");
    REFUSES(fl_data_callback(1, NULL, NULL), "fn is NULL");
    REFUSES(fl_data_filter(NULL, even_fn, NULL), "fl_data_filter: the set is NULL");
    REFUSES(fl_data_filter(numbers(1), NULL, NULL), "keep is NULL");
    REFUSES(fl_data_sort_by_length(NULL, 0), "the set is NULL");
    REFUSES(fl_data_sort_by_length(numbers(1), -1), "window must not be negative, got -1");
    REFUSES(fl_data_repeat(NULL, 1), "fl_data_repeat: the set is NULL");
    REFUSES(fl_data_repeat(numbers(2), -1), "got -1");
    REFUSES(fl_data_repeat(numbers(2), INT64_MAX), "times 2 samples");
    REFUSES(fl_data_lengths(NULL, index, 2), "fl_data_lengths: the set is NULL");
    REFUSES(fl_data_lengths(numbers(3), index, 2), "got n 2, expected 3");
    REFUSES(fl_data_lengths(numbers(2), NULL, 2), "length is NULL");
    REFUSES(fl_data_lengths(numbers(1), (int64_t[]){-4}, 1), "length[0] must not be negative, got -4");
    REFUSES(fl_data_to(NULL, "cpu"), "fl_data_to: the set is NULL");
    REFUSES(fl_data_to(numbers(1), "nowhere"), "nowhere");
    REFUSES(fl_data_to(numbers(1), NULL), "the backend is NULL");
    REFUSES(fl_data_batches(NULL, .size = 1), "fl_data_batches: the set is NULL");
    REFUSES(fl_data_batches(numbers(1)), "expected a size, a budget or both, or else sizes");
    REFUSES(fl_data_batches(numbers(1), .size = 1, .sizes = index, .n_sizes = 1), "or else sizes");
    REFUSES(fl_data_batches(numbers(1), .size = -1), "got -1");
    REFUSES(fl_data_batches(numbers(1), .budget = -2), "and -2");
    REFUSES(fl_data_batches(numbers(1), .budget = 2, .drop_last = true), "drop_last requires");
    REFUSES(fl_data_batches(numbers(1), .size = 1, .lengths = 1), "require pad");
    REFUSES(fl_data_batches(numbers(1), .size = 1, .pad = true, .masks = 256), "are for fields 0 to 7");
    REFUSES(fl_data_get_many(NULL, index, 1, &b), "fl_data_get_many: the set, or out, is NULL");
    fl_data_set *set = numbers(5);
    REFUSES(fl_data_get_many(set, index, 2, &b), "must be in [0, 5), got 5");
    REFUSES(fl_data_get_many(set, index, 0, &b), "got n 0");
    REFUSES(fl_data_get_many(set, NULL, 1, &b), "index is NULL");
    fl_data_free(set);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Sample 3 has another number of fields, 4 another dtype, 5 another rank. */
static bool unlike_get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = i == 3 ? 2 : 1;
    out->t[0] = out->t[1] =
        i == 5 ? fl_zeros(FL_SHAPE(2, 2), FL_F32) : fl_zeros(FL_SHAPE(i), i == 4 ? FL_I32 : FL_F32);
    return true;
}

TEST(joins_of_unlike_samples) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    for (int64_t i = 3; i <= 5; i++) {
        static const char *const text[] = {
            "fl_data_batches: sample 1 has 2 fields, expected 1",
            "field 0 of sample 1 is i32 [4], expected dtype and number of dims of the batch's first, f32 [2]",
            "field 0 of sample 1 is f32 [2, 2], expected dtype"};
        fl_data_set *set = fl_data_subset(fl_data_callback(6, unlike_get, NULL), (int64_t[]){2, i}, 2);
        set = fl_data_batches(set, .size = 2, .pad = true);
        CHECK(!fl_data_get(set, 0, &b));
        CHECK_ERROR(text[i - 3]);
        fl_data_free(set);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- backends ---- */

static bool on_cpu(const fl_data_sample *b) {
    bool ok = true;
    for (int k = 0; k < b->n; k++) ok = ok && !strcmp(fl_backend_name(b->t[k]), "cpu");
    return ok;
}

/* A set on the host, made before another backend became the default. */
static void check_backend(const char *name) {
    test_errors_return();
    fl_data_set *made = numbers(12);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32);
    char path[] = P_tmpdir "/fl-sets-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    CHECK(fl_data_save_safetensors(path, &(fl_data_named_tensor){"x", x}, 1, NULL, 0));
    REQUIRE(fl_backend_set_default(name));
    fl_data_file *f = fl_data_open_safetensors(path);
    fl_tensor *t = fl_data_read(f, "x");
    fl_data_close(f);
    CHECK(t && !strcmp(fl_backend_name(t), "cpu"));
    FILE *idx = fopen(path, "wb");
    CHECK(idx && fwrite("\0\0\x08\1\0\0\0\3\1\2\3", 1, 11, idx) == 11);
    if (idx) fclose(idx);
    CHECK((t = fl_data_load_idx(path)) && !strcmp(fl_backend_name(t), "cpu"));
    CHECK(fl_data_save_blob(path, made));
    fl_data_set *set = fl_data_concat((fl_data_set *[]){made, fl_data_open_blob(path)}, 2);
    set = fl_data_batches(fl_data_shuffle(set, 4), .size = 5, .pad = true, .lengths = 1, .masks = 1);
    fl_data_set *there =
        fl_data_prefetch(fl_data_to(fl_data_batch(fl_data_shuffle(numbers(12), 4), 5, false), name), 2,
                         2); /* of the default backend: numbers made there */
    fl_data_sample b;
    for (int64_t i = 0; i < fl_data_size(set); i++) CHECK(fl_data_get(set, i, &b) && b.n == 4 && on_cpu(&b));
    for (int64_t i = 0; i < fl_data_size(there); i++) {
        CHECK(fl_data_get(there, i, &b) && !strcmp(fl_backend_name(b.t[0]), name));
        CHECK(fl_item(fl_sum(b.t[0], FL_ALL_AXES)) >= 0);
    }
    fl_data_free(there);
    set = fl_data_prefetch(fl_data_to(set, name), 2, 2);
    int64_t sum = 0;
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        CHECK(fl_data_get(set, i, &b) && b.n == 4 && !strcmp(fl_backend_name(b.t[3]), name));
        sum += fl_item_int(fl_sum(b.t[1], FL_ALL_AXES));
    }
    CHECK_EQ_INT(sum, 2 * 66);
    fl_data_free(set);
    remove(path);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(host_tensors_beside_naive) {
    REQUIRE(fl_backend_use(fl_backend_naive(), NULL));
    check_backend("naive");
}

/* ---- position ---- */

static bool made_get(int64_t i, fl_data_sample *out, void *user) {
    __atomic_fetch_or((uint64_t *)user, (uint64_t)1 << i, __ATOMIC_RELAXED);
    out->n = 1;
    out->t[0] = fl_full(FL_SCALAR_SHAPE, (double)i, FL_I64);
    return out->t[0] != NULL;
}

/* An epoch that goes on at batch 7 makes what is from there on, and nothing before. */
TEST(prefetch_starts_in_the_middle) {
    test_errors_return();
    uint64_t made = 0;
    int64_t v[64];
    fl_data_set *set = fl_data_prefetch(fl_data_batch(fl_data_callback(60, made_get, &made), 4, false), 3, 4);
    for (int epoch = 0; epoch < 3; epoch++) {
        CHECK(fl_data_set_epoch(set, epoch));
        __atomic_store_n(&made, 0, __ATOMIC_RELAXED);
        for (int64_t i = 7; i < 15; i++) CHECK(values(set, i, 0, v) == 4 && v[0] == 4 * i);
        CHECK(__atomic_load_n(&made, __ATOMIC_RELAXED) == ((uint64_t)1 << 60) - ((uint64_t)1 << 28));
    }
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

static bool noisy_first(fl_data_sample *s, fl_rng *rng, void *user) {
    (void)user;
    return (s->t[1] = fl_add(s->t[1], fl_uniform(fl_shape_of(s->t[1]), 0, 1, FL_F32, rng))) != NULL;
}

static fl_data_set *pipeline(void) {
    fl_data_set *set = fl_data_transform(fl_data_callback(60, ragged_get, NULL), noisy_first, NULL);
    set = fl_data_sort_by_length(fl_data_shuffle(set, 1), 16);
    set = fl_data_batches(set, .budget = 20, .pad = true, .lengths = 3, .masks = 2);
    return fl_data_prefetch(fl_data_shuffle(set, 2), 3, 4);
}

/* A number that depends on all of a sample. */
static double digest(const fl_data_sample *b) {
    double sum = b->n;
    for (int k = 0; k < b->n; k++)
        sum = 1.25 * sum + fl_item(fl_sum(fl_cast(b->t[k], FL_F64), FL_ALL_AXES)) + (double)fl_numel(b->t[k]);
    return sum;
}

/* Buckets that change with the epoch, random numbers and threads: (epoch, index) is all that resuming
   needs. */
TEST(epochs_go_on_where_they_stopped) {
    test_errors_return();
    enum { STEPS = 80 };
    double want[STEPS];
    int64_t at[STEPS][2];
    fl_data_set *set = pipeline();
    int64_t epoch = 0, index = 0;
    fl_data_sample b;
    for (int i = 0; i < STEPS; i++) {
        fl_scope s = fl_scope_begin();
        at[i][0] = epoch, at[i][1] = index;
        REQUIRE(fl_data_next(set, &epoch, &index, &b));
        want[i] = digest(&b);
        fl_scope_end(&s);
    }
    CHECK(epoch >= 2);
    fl_data_free(set);
    for (int from = 3; from < STEPS - 4; from += 13) {
        set = pipeline();
        epoch = at[from][0], index = at[from][1];
        for (int i = from; i < from + 4; i++) {
            fl_scope s = fl_scope_begin();
            CHECK(fl_data_next(set, &epoch, &index, &b) && digest(&b) == want[i]);
            fl_scope_end(&s);
        }
        fl_data_free(set);
    }
    CHECK_NOTHING_LIVES();
}

#ifndef _WIN32

/* ---- lists and folders ---- */

static char folder[300]; /* of the test that runs */

static const char *in_folder(const char *name) {
    static char path[4][600];
    static int k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", folder, name);
    return path[k];
}

static bool make_folder(void) {
    snprintf(folder, sizeof folder, "%s/fl-sets-XXXXXX", P_tmpdir);
    return mkdtemp(folder) != NULL;
}

static const char *write_file(const char *name, const char *bytes, size_t n) {
    FILE *f = fopen(in_folder(name), "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n);
    if (f) fclose(f);
    return in_folder(name);
}

static void remove_folder(void) {
    char command[400];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK(system(command) == 0);
}

/* The sample is the entry's path as bytes; fields and numbers go into the last of them. */
static char last_fields[200];
static int64_t last_line, last_label;
static bool text_read(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    size_t at = 0;
    for (int k = 0; k < e->n; k++)
        at += (size_t)snprintf(last_fields + at, sizeof last_fields - at, "%s|", e->field[k]);
    last_line = e->line, last_label = e->label;
    out->n = 1;
    out->t[0] = fl_from_host(e->path, FL_SHAPE((int64_t)strlen(e->path)), FL_U8);
    return user ? fl_fail("text_read: %s: cannot read", e->path) : out->t[0] != NULL;
}

/* The path that sample i was read from, and its class (-1: one field). */
static const char *path_of(fl_data_set *set, int64_t i, int64_t *label) {
    static char path[600];
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    bool ok = fl_data_get(set, i, &b) && fl_numel(b.t[0]) < 600;
    memset(path, 0, sizeof path);
    ok = ok && fl_to_host(b.t[0], path, (size_t)fl_numel(b.t[0]));
    if (label) *label = ok && b.n == 2 ? fl_item_int(b.t[1]) : -1;
    fl_scope_end(&s);
    return ok ? path : "";
}

TEST(lists) {
    test_errors_return();
    REQUIRE(make_folder());
    const char text[] = "\xef\xbb\xbf" "a b\t3\tx\r\n\n  \nc\t4.25\ty\tz\nd\t0\t\n";
    const char *path = write_file("list", text, sizeof text - 1);
    fl_data_set *set = fl_data_list(path, text_read, .root = "/data", .columns = 3, .length = 2);
    REQUIRE(set);
    CHECK_EQ_INT(fl_data_size(set), 3);
    CHECK_STR(path_of(set, 0, NULL), "/data/a b");
    CHECK_STR(last_fields, "a b|3|x|");
    CHECK(last_line == 1 && last_label == -1);
    CHECK_STR(path_of(set, 1, NULL), "/data/c");
    CHECK_STR(last_fields, "c|4.25|y\tz|");
    CHECK_EQ_INT(last_line, 4);
    CHECK_STR(path_of(set, 2, NULL), "/data/d");
    CHECK_STR(last_fields, "d|0||");
    CHECK(fl_data_length(set, 0) == 3 && fl_data_length(set, 1) == 5 && fl_data_length(set, 2) == 0);
    CHECK(!fl_data_class_name(set, 0) && !fl_data_class_name(NULL, 0));
    fl_data_free(set);
    /* wav2letter's: id, path, duration, words */
    path = write_file("list", "id1 x.wav 744.750 zero one\nid2 y.wav 2 two", 42);
    set = fl_data_list(path, text_read, .separator = ' ', .columns = 4, .path = 1, .length = 3);
    REQUIRE(set);
    CHECK_STR(path_of(set, 1, NULL), "y.wav");
    CHECK_STR(last_fields, "id2|y.wav|2|two|");
    CHECK_STR(path_of(set, 0, NULL), "x.wav");
    CHECK_STR(last_fields, "zero one|");
    CHECK_EQ_INT(fl_data_length(set, 0), 745);
    fl_data_free(set);
    set = fl_data_list(path, text_read, .user = &path);
    CHECK_STR(path_of(set, 0, NULL), "");
    CHECK_ERROR("text_read: id1 x.wav 744.750 zero one: cannot read");
    CHECK_EQ_INT(fl_data_length(set, 1), -1); /* nobody says, so it is read */
    CHECK_ERROR("text_read: id2");
    fl_data_free(set);
    remove_folder();
    CHECK_NOTHING_LIVES();
}

TEST(bad_lists) {
    test_errors_return();
    REQUIRE(make_folder());
    static const struct { const char *text; size_t n; const char *want; } bad[] = {
        {"a\t1\nb\n", 6, "list: line 2: got 1 fields, expected at least 2"},
        {"a\t1\n\t2\n", 7, "list: line 2: field 0, the path, is empty"},
        {"a\tx\n", 4, "list: line 1: field 1 is not a length"},
        {"a\t1\nb\t-2\n", 9, "list: line 2: field 1 is not a length"},
        {"a\t1e99\n", 7, "field 1 is not a length"},
        {"a\tnan\n", 6, "field 1 is not a length"},
        {"a\t1x\n", 5, "field 1 is not a length"},
        {"a\t\n", 3, "field 1 is not a length"},
        {"a\t0000000000000000000000000000000000000000000000000000000000000000000001\n", 74, "not a length"},
        {"a\t1\nb\0c\t2\n", 10, "list: line 2: the line contains a NUL byte"},
        {"", 0, "list: no samples found"},
        {"\n \t\n\r\n", 6, "list: no samples found"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!fl_data_list(write_file("list", bad[i].text, bad[i].n), text_read, .length = 2));
        CHECK_ERROR(bad[i].want);
    }
    CHECK(!fl_data_list(in_folder("none"), text_read));
    CHECK_ERROR("none: cannot open: No such file");
    CHECK(!fl_data_list(folder, text_read));
    CHECK_ERROR("Is a directory");
    CHECK(!fl_data_list(NULL, text_read));
    CHECK_ERROR("path is NULL");
    CHECK(!fl_data_list("x", NULL));
    CHECK_ERROR("fl_data_list: read is NULL");
    CHECK(!fl_data_list("x", text_read, .columns = 2, .path = 2));
    CHECK_ERROR("got path 2");
    CHECK(!fl_data_list("x", text_read, .columns = 2, .length = 3));
    CHECK_ERROR("length 3, columns 2");
    remove_folder();
    CHECK_NOTHING_LIVES();
}

TEST(folders) {
    test_errors_return();
    REQUIRE(make_folder());
    static const char *const dirs[] = {"cat", "cat/old", "ant", "bee", ".git", "ant-2"};
    for (int i = 0; i < 6; i++) CHECK(mkdir(in_folder(dirs[i]), 0777) == 0);
    static const char *const files[] = {"cat/b.PNG",  "cat/a.jpg",  "cat/old/c.png", "ant/x.png",
                                        "bee/y.jpeg", "bee/z.png",  "top.png",       ".git/h.png",
                                        "cat/.a.png", "ant-2/w.png"};
    for (int i = 0; i < 10; i++) write_file(files[i], "x", 1);
    static const char *const all[] = {"ant/x.png", "ant-2/w.png", "bee/y.jpeg", "bee/z.png", "cat/a.jpg",
                                      "cat/b.PNG", "cat/old/c.png", "top.png"};
    fl_data_set *set = fl_data_folder(folder, text_read);
    REQUIRE(set);
    CHECK_EQ_INT(fl_data_size(set), 8);
    for (int i = 0; i < 8; i++) {
        CHECK(!strcmp(path_of(set, i, NULL), in_folder(all[i])));
        CHECK(!strncmp(last_fields, all[i], strlen(all[i])) && last_line == 0 && last_label == -1);
    }
    fl_data_free(set);
    set = fl_data_folder(folder, text_read, .extensions = "jpg,png", .classes = true);
    REQUIRE(set);
    static const char *const some[] = {"ant/x.png", "ant-2/w.png", "bee/z.png", "cat/a.jpg", "cat/b.PNG",
                                       "cat/old/c.png"};
    static const int64_t want[] = {0, 1, 2, 3, 3, 3};
    CHECK_EQ_INT(fl_data_size(set), 6);
    for (int i = 0; i < 6; i++) {
        int64_t label;
        CHECK(!strcmp(path_of(set, i, &label), in_folder(some[i])));
        CHECK(label == want[i] && last_label == want[i]);
    }
    CHECK_STR(fl_data_class_name(set, 0), "ant");
    CHECK_STR(fl_data_class_name(set, 3), "cat");
    CHECK(!fl_data_class_name(set, 4) && !fl_data_class_name(set, -1));
    fl_data_free(set);
    set = fl_data_folder(folder, text_read, .flat = true);
    CHECK(fl_data_size(set) == 1);
    fl_data_free(set);
    set = fl_data_folder(folder, text_read, .flat = true, .classes = true);
    CHECK(fl_data_size(set) == 6);
    fl_data_free(set);
    CHECK(!fl_data_folder(folder, text_read, .extensions = "jpg", .classes = true));
    CHECK_ERROR("class 'ant' has no file");
    CHECK(!fl_data_folder(folder, text_read, .extensions = "gif,pn"));
    CHECK_ERROR("no samples found");
    CHECK(symlink(".", in_folder("loop")) == 0);
    CHECK(!fl_data_folder(folder, text_read));
    /* 64 folders deep, or as many links as the system follows */
    CHECK(fl_error() &&
          (strstr(fl_error(), "more than 64 nested folders") || strstr(fl_error(), "Too many levels")));
    fl_error_clear();
    CHECK(!fl_data_folder(in_folder("none"), text_read));
    CHECK_ERROR("none: cannot list the folder: No such file");
    CHECK(!fl_data_folder(in_folder("top.png"), text_read));
    CHECK_ERROR("Not a directory");
    CHECK(!fl_data_folder(NULL, text_read));
    CHECK_ERROR("fl_data_folder: path is NULL");
    CHECK(!fl_data_folder(folder, NULL));
    CHECK_ERROR("read is NULL");
    fl_data_io io = *fl_data_io_system();
    io.list = NULL;
    fl_data_io_use(&io);
    CHECK(!fl_data_folder(folder, text_read));
    CHECK_ERROR("the table of file operations cannot list folders");
    fl_data_io_use(NULL);
    remove_folder();
    CHECK_NOTHING_LIVES();
}

static bool idx_read(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 1;
    return (out->t[0] = fl_data_load_idx(e->path)) != NULL;
}

/* Files that go while an epoch runs are errors of their samples, through threads too. */
TEST(folders_that_vanish) {
    test_errors_return();
    REQUIRE(make_folder());
    char name[20];
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "%d.idx", i);
        write_file(name, "\0\0\x08\1\0\0\0\1\7", 9);
    }
    fl_data_set *set = fl_data_prefetch(fl_data_folder(folder, idx_read), 2, 3);
    REQUIRE(set);
    CHECK(remove(in_folder("3.idx")) == 0);
    int64_t v[64];
    for (int i = 0; i < 8; i++)
        if (i != 3) CHECK(values(set, i, 0, v) == 1 && v[0] == 7);
        else CHECK(values(set, i, 0, v) == -1), CHECK_ERROR("3.idx: cannot open: No such file");
    CHECK(fl_data_set_epoch(set, 1));
    remove_folder();
    CHECK(values(set, 0, 0, v) == -1);
    CHECK_ERROR("0.idx: cannot open");
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

/* ---- blobs ---- */

static bool mixed_get(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = (int)(i % 4);
    out->t[0] =
        fl_transpose(fl_reshape(fl_arange(0, 6 * (double)(i + 1), 1, FL_F32), FL_SHAPE(i + 1, 2, 3)), 0, 2);
    out->t[1] = fl_full(FL_SCALAR_SHAPE, i == 1, FL_B8);
    out->t[2] = fl_full(FL_SHAPE(0, i), 0, FL_I16);
    return out->t[0] && out->t[1] && out->t[2];
}

/* 0, or what tells two sets apart. */
static const char *differ(fl_data_set *a, fl_data_set *b) {
    if (fl_data_size(a) != fl_data_size(b)) return "size";
    const char *what = NULL;
    for (int64_t i = 0; !what && i < fl_data_size(a); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample x, y;
        if (!fl_data_get(a, i, &x) || !fl_data_get(b, i, &y)) what = "an error";
        else if (x.n != y.n) what = "fields";
        for (int k = 0; !what && k < x.n; k++) {
            char v[2000], w[2000];
            size_t n = (size_t)fl_numel(x.t[k]) * fl_dtype_size(x.t[k]->dtype);
            if (x.t[k]->dtype != y.t[k]->dtype || !fl_same_shape(x.t[k], y.t[k])) what = "dtype or shape";
            else if (n > 2000 || !fl_to_host(x.t[k], v, n) || !fl_to_host(y.t[k], w, n) || memcmp(v, w, n))
                what = "values";
        }
        fl_scope_end(&s);
    }
    return what;
}

static char *read_bytes(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    static char bytes[1 << 16];
    *n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) fclose(f);
    return bytes;
}

TEST(blobs) {
    test_errors_return();
    REQUIRE(make_folder());
    const char *path = in_folder("blob");
    fl_data_set *set = fl_data_callback(9, mixed_get, NULL), *empty = numbers(0);
    CHECK(fl_data_save_blob(path, empty));
    fl_data_set *back = fl_data_open_blob(path);
    CHECK(back && fl_data_size(back) == 0);
    fl_data_free(back);
    CHECK(fl_data_save_blob(path, set)); /* over the old one */
    back = fl_data_open_blob(path);
    REQUIRE(back);
    CHECK_STR(differ(set, back) ? differ(set, back) : "same", "same");
    CHECK_EQ_INT(fl_data_length(back, 6), 3); /* from the index */
    CHECK_EQ_INT(fl_data_length(back, 4), 1); /* no field: read, and one */
    /* in any order, by several threads */
    fl_data_set *far = fl_data_prefetch(fl_data_shuffle(back, 1), 3, 4), *near = fl_data_shuffle(set, 1);
    CHECK_STR(differ(far, near) ? differ(far, near) : "same", "same");
    size_t n;
    char *bytes = read_bytes(path, &n), *copy = malloc(n);
    CHECK(n > 100 && n % 8 == 0);
    memcpy(copy, bytes, n);
    back = fl_data_shuffle(fl_data_blob_of(copy, n), 1);
    CHECK_STR(differ(back, near) ? differ(back, near) : "same", "same");
    fl_data_free(back);
    fl_data_free(far);
    free(copy);
    /* a set that fails leaves the old file */
    int reads = 0;
    fl_data_set *fails = fl_data_callback(100, counted_get, &reads);
    CHECK(!fl_data_save_blob(path, fails));
    CHECK_ERROR("fl_data_callback: fn returned false for sample 95");
    fl_data_free(fails);
    back = fl_data_open_blob(path);
    CHECK(fl_data_size(back) == 9);
    fl_data_free(back);
    CHECK(access(in_folder("blob.tmp"), F_OK) != 0);
    CHECK(!fl_data_save_blob(in_folder("none/blob"), near));
    CHECK_ERROR("cannot open");
    CHECK(!fl_data_save_blob(NULL, near));
    CHECK_ERROR("fl_data_save_blob: path or set is NULL");
    CHECK(!fl_data_open_blob(NULL));
    CHECK_ERROR("path is NULL");
    CHECK(!fl_data_open_blob(in_folder("none")));
    CHECK_ERROR("none: cannot open");
    CHECK(!fl_data_blob_of(NULL, 4));
    CHECK_ERROR("bytes is NULL");
    fl_data_free(near);
    fl_data_free(empty);
    remove_folder();
    CHECK_NOTHING_LIVES();
}

/* Opens and reads all of it: what is not refused is sound. */
static bool try_blob(const char *bytes, size_t n) {
    char *copy = malloc(n ? n : 1); /* ends where it ends: for the address sanitizer */
    memcpy(copy, bytes, n);
    fl_data_set *set = fl_data_blob_of(copy, n);
    bool ok = set != NULL;
    CHECK(set || fl_error());
    fl_error_clear();
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        bool got = fl_data_get(set, i, &b);
        CHECK(got || fl_error());
        ok = ok && got;
        fl_error_clear();
        fl_data_length(set, i);
        fl_error_clear();
        fl_scope_end(&s);
    }
    fl_data_free(set);
    free(copy);
    return ok;
}

TEST(hostile_blobs) {
    test_errors_return();
    REQUIRE(make_folder());
    fl_data_set *set = fl_data_callback(4, mixed_get, NULL);
    CHECK(fl_data_save_blob(in_folder("blob"), set));
    fl_data_free(set);
    size_t n;
    char *bytes = read_bytes(in_folder("blob"), &n);
    CHECK(try_blob(bytes, n));
    for (size_t k = 0; k < n; k++) CHECK(!try_blob(bytes, k)); /* every prefix */
    int refused = 0;
    for (size_t k = 0; k < n; k++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[k] = (char)(bytes[k] ^ 1 << bit);
            refused += !try_blob(bytes, n);
            bytes[k] = (char)(bytes[k] ^ 1 << bit);
        }
    CHECK(refused > 1000);
    int64_t *w = (int64_t *)(void *)bytes, words = (int64_t)n / 8, index = w[words - 3] / 8;
    static const struct { int at; int64_t value; const char *want; } bad[] = {
        {0, 0, "memory: offset 0: not a blob"},
        {-1, 0, "the end marker is missing"},
        {-2, INT64_MAX, "not a valid index: 9223372036854775807 samples"},
        {-2, -1, "not a valid index: -1 samples"},
        {-2, 3, "unexpected words after the index of the last sample"},
        {-2, 5, "sample 4 is not valid"},
        {-3, 9, "samples at offset 9"},
        {-3, INT64_MIN, "samples at offset -9223372036854775808"},
        {1000, 9, "sample 0 is not valid"}, /* 1000 + k: word k of the index: fields of sample 0, of 1 */
        {1001, 9, "sample 1 is not valid"},
        {1002, 0x3939393939393939, "sample 1 is not valid"}, /* a dtype "99999999" */
        {1003, 9, "sample 1 is not valid"},                  /* 9 dims */
        {1003, -1, "sample 1 is not valid"},
        {1004, 0, "sample 1 is not valid"}, /* bytes over the head */
        {1004, INT64_MAX, "sample 1 is not valid"},
        {1005, INT64_MAX, "sample 1 is not valid"},
        {1005, -3, "sample 1 is not valid"},
        {1005, (int64_t)1 << 60, "sample 1 is not valid"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t *at = bad[i].at >= 1000 ? w + index + bad[i].at - 1000
                      : bad[i].at < 0   ? w + words + bad[i].at
                                        : w;
        const int64_t was = *at;
        *at = bad[i].value;
        CHECK(!fl_data_blob_of(bytes, n));
        CHECK_ERROR(bad[i].want);
        *at = was;
    }
    CHECK(!fl_data_blob_of(bytes, 31));
    CHECK_ERROR("not a blob: got 31 bytes");
    remove_folder();
    CHECK_NOTHING_LIVES();
}

/* A truth value that is none comes out at its sample. */
TEST(blobs_with_wrong_truths) {
    test_errors_return();
    REQUIRE(make_folder());
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_B8);
    fl_data_set *set = fl_data_tensors(&x, 1);
    CHECK(fl_data_save_blob(in_folder("blob"), set));
    fl_data_free(set);
    size_t n;
    char *bytes = read_bytes(in_folder("blob"), &n);
    bytes[16] = 2; /* of sample 1 */
    set = fl_data_blob_of(bytes, n);
    fl_data_sample b;
    CHECK(fl_data_get(set, 0, &b) && !fl_data_get(set, 1, &b));
    CHECK_ERROR("memory: offset 16: a bool must be 0 or 1, got 2");
    fl_data_free(set);
    fl_scope_end(&s);
    remove_folder();
    CHECK_NOTHING_LIVES();
}

/* ---- failing files ---- */

static struct {
    int64_t calls, fail_at;
} disk;
static bool disk_fails(void) {
    if (__atomic_add_fetch(&disk.calls, 1, __ATOMIC_RELAXED) != disk.fail_at) return false;
    errno = EIO;
    return true;
}
static const fl_data_io *real;
static void *bad_open(void *u, const char *path, fl_data_mode m) {
    return disk_fails() ? NULL : real->open(u, path, m);
}
static int64_t bad_read(void *u, void *f, void *p, size_t n, int64_t at) {
    return disk_fails() ? -1 : real->read(u, f, p, n, at);
}
static int64_t bad_write(void *u, void *f, const void *p, size_t n, int64_t at) {
    return disk_fails() ? -1 : real->write(u, f, p, n, at);
}
static int64_t bad_size(void *u, void *f) { return disk_fails() ? -1 : real->size(u, f); }
static int bad_sync(void *u, void *f) { return disk_fails() ? -1 : real->sync(u, f); }
static int bad_rename(void *u, const char *a, const char *b) {
    return disk_fails() ? -1 : real->rename(u, a, b);
}
static int bad_sync_dir(void *u, const char *p) { return disk_fails() ? -1 : real->sync_dir(u, p); }
static int bad_list(void *u, const char *p, fl_data_name_fn e, void *a) {
    return disk_fails() ? -1 : real->list(u, p, e, a);
}

static bool save_and_read(fl_data_set *set) {
    if (!fl_data_save_blob(in_folder("blob"), set)) return false;
    fl_data_set *back = fl_data_open_blob(in_folder("blob"));
    bool ok = back && !differ(set, back);
    fl_data_free(back);
    return ok;
}

static bool list_and_read(fl_data_set *set) {
    (void)set;
    fl_data_set *one = fl_data_list(in_folder("list"), idx_read, .root = folder);
    fl_data_set *two = one ? fl_data_folder(folder, idx_read, .extensions = "idx") : NULL;
    bool ok = one && two && !differ(one, two);
    fl_data_free(one);
    fl_data_free(two);
    return ok;
}

/* Every operation on files fails once: an error, an old blob or a new one, and the same call succeeds
   afterwards. */
TEST(files_fail_at_every_operation) {
    test_errors_return();
    REQUIRE(make_folder());
    write_file("a.idx", "\0\0\x08\1\0\0\0\1\7", 9);
    write_file("list", "a.idx\n", 6);
    fl_data_set *set = fl_data_callback(3, mixed_get, NULL);
    CHECK(fl_data_save_blob(in_folder("blob"), set));
    real = fl_data_io_system();
    fl_data_io io = *real;
    io.open = bad_open, io.read = bad_read, io.write = bad_write, io.size = bad_size, io.sync = bad_sync;
    io.rename = bad_rename, io.sync_dir = bad_sync_dir, io.list = bad_list;
    fl_data_io_use(&io);
    int64_t points = 0;
    for (int kind = 0; kind < 2; kind++) {
        bool (*action)(fl_data_set *) = kind ? list_and_read : save_and_read;
        for (int64_t n = 1;; n++, points++) {
            disk.calls = 0, disk.fail_at = n;
            bool ok = action(set);
            bool done = disk.calls < n;
            disk.fail_at = 0;
            CHECK(ok == done);
            CHECK(ok || strstr(fl_error(), "Input/output error"));
            fl_error_clear();
            fl_data_set *old = fl_data_open_blob(in_folder("blob"));
            CHECK(old && !differ(set, old));
            fl_data_free(old);
            CHECK(action(set));
            CHECK_NO_ERROR();
            if (done) break;
        }
    }
    CHECK(points >= 30);
    fl_data_io_use(NULL);
    fl_data_free(set);
    remove_folder();
    CHECK_NOTHING_LIVES();
}

/* ---- real data ---- */

static bool bytes_read(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    (void)user;
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "bytes_read", e->path, FL_DATA_READ)) return false;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(f.size), FL_U8);
    void *p = t ? fl_map(t, FL_WRITE) : NULL;
    const bool ok = p && fl_data_stream_read(&f, p, (size_t)f.size, 0);
    if (p) fl_unmap(t, FL_WRITE);
    f.io.close(f.io.user, f.file);
    out->n = 1, out->t[0] = t;
    return ok;
}

/* Recordings in batches of up to 8 seconds, whose lengths the list says: in buckets, through threads. */
static void check_recordings(fl_data_set *set, int64_t n) {
    CHECK_EQ_INT(fl_data_size(set), n);
    set = fl_data_sort_by_length(fl_data_shuffle(set, 1), 300);
    set = fl_data_batches(set, .budget = 8000, .size = 32, .pad = true, .lengths = 1);
    const int64_t batches = fl_data_size(set);
    set = fl_data_prefetch(fl_data_shuffle(set, 2), 2, 4);
    int64_t samples = 0, sounds = 0, padded = 0;
    for (int64_t i = 0; i < batches; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (CHECK(fl_data_get(set, i, &b))) {
            samples += b.t[0]->shape[0];
            padded += fl_numel(b.t[0]);
            sounds += fl_item_int(fl_sum(b.t[1], FL_ALL_AXES));
            CHECK(fl_numel(b.t[0]) <= 8001 * 16 + 64 * 32); /* 16 bytes a millisecond, and a header */
        }
        fl_scope_end(&s);
    }
    CHECK_EQ_INT(samples, n);
    CHECK((double)sounds > 0.9 * (double)padded); /* like lengths are together */
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

TEST(recordings_of_a_list) {
    enum { RECORDINGS = 300, HEADER = 44 };
    static char bytes[HEADER + 16 * 1000];
    test_errors_return();
    REQUIRE(make_folder());
    fl_data_text list = {0};
    for (int i = 0; i < RECORDINGS; i++) {
        char name[40];
        const int ms = 150 + i * 7919 % 850;
        snprintf(name, sizeof name, "%d.wav", i);
        write_file(name, bytes, HEADER + 16 * (size_t)ms);
        CHECK(fl_data_text_print(&list, "%d %s %d seven\n", i, name, ms));
    }
    write_file("train.lst", list.p, (size_t)list.n);
    fl_heap_free(list.p);
    check_recordings(fl_data_list(in_folder("train.lst"), bytes_read, .root = folder, .separator = ' ',
                                  .columns = 4, .path = 1, .length = 3), RECORDINGS);
    remove_folder();
    fl_data_set *set = fl_data_list("../shared/data/speech/fsdd/train.lst", bytes_read,
                                    .root = "../shared/data",
                                    .separator = ' ', .columns = 4, .path = 1, .length = 3);
    if (set) check_recordings(set, 2700);
    fl_error_clear();
}

/* 16 images in each of ten folders. */
static void check_folders(const char *path) {
    fl_data_set *set = fl_data_folder(path, bytes_read, .extensions = "png", .classes = true);
    REQUIRE(set);
    CHECK_EQ_INT(fl_data_size(set), 160);
    CHECK_STR(fl_data_class_name(set, 0), "airplane");
    CHECK_STR(fl_data_class_name(set, 9), "truck");
    CHECK(!fl_data_class_name(set, 10));
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    for (int64_t i = 0; i < 160; i++) CHECK(fl_data_get(set, i, &b) && fl_item_int(b.t[1]) == i / 16);
    CHECK(b.n == 2 && fl_item_int(fl_select(b.t[0], 0, 1)) == 'P');
    fl_scope_end(&s);
    fl_data_free(set);
    CHECK_NOTHING_LIVES();
}

TEST(folders_of_images) {
    static const char *const name[] = {"airplane", "automobile", "bird", "cat", "deer",
                                       "dog", "frog", "horse", "ship", "truck"};
    test_errors_return();
    REQUIRE(make_folder());
    for (int k = 0; k < 10; k++) {
        CHECK(!mkdir(in_folder(name[k]), 0700));
        for (int i = 0; i < 16; i++) {
            char file[40];
            snprintf(file, sizeof file, "%s/%04d.png", name[k], 37 * i % 200);
            write_file(file, "\x89PNG", 4);
        }
    }
    write_file("ship/notes.txt", "x", 1), write_file("list.png", "x", 1);
    check_folders(folder);
    remove_folder();
    if (!access("../shared/data/cifar10/png/train", F_OK)) check_folders("../shared/data/cifar10/png/train");
}

#endif

int main(int argc, char **argv) { return test_main(argc, argv); }

/* MIT licence: see LICENSE. */
