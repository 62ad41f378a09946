/* test_meters.c - meters against their definitions, written out the slow way */
#include "../fl_data.h"
#include "../fl/ops/index.h"
#include "test.h"

static fl_rng rng;
static double uniform(void) {
    fl_scope s = fl_scope_begin();
    const double u = fl_item(fl_uniform(FL_SHAPE(1), 0, 1, FL_F64, &rng));
    fl_scope_end(&s);
    return u;
}
static int64_t below(int64_t n) {
    return (int64_t)(uniform() * (double)n);
}

static fl_tensor *reals(const double *x, int64_t n) {
    return fl_from_host(x, FL_SHAPE(n), FL_F64);
}
static fl_tensor *wholes(const int64_t *x, int64_t n) {
    return fl_from_host(x, FL_SHAPE(n), FL_I64);
}

static fl_scope begin(void) {
    test_errors_return();
    rng = (fl_rng){7, 0};
    return fl_scope_begin();
}
static void end(fl_scope *s) {
    fl_scope_end(s);
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

/* ---- averages, counts ---- */

TEST(averages_merge_into_what_one_would_have_been) {
    fl_scope s = begin();
    fl_data_average all = {0}, part[3] = {{0}};
    for (int i = 0; i < 60; i++) {
        const double x = 1e6 + uniform(), w = i % 7 + 0.5;
        fl_data_average_add(&all, x, w);
        fl_data_average_add(&part[i % 4 % 3], x, w);
    }
    for (int i = 1; i < 3; i++) fl_data_average_merge(&part[0], &part[i]);
    CHECK_NEAR(part[0].mean, all.mean, 1e-9);
    CHECK_NEAR(part[0].weight, all.weight, 1e-9);
    CHECK_NEAR(fl_data_average_variance(&part[0]), fl_data_average_variance(&all), 1e-9);
    fl_data_average empty = {0}, twice = all;
    fl_data_average_merge(&twice, &empty);
    CHECK(!memcmp(&twice, &all, sizeof all));
    fl_data_average_merge(&empty, &all);
    CHECK_NEAR(empty.mean, all.mean, 0);
    fl_data_average_merge(&twice, &twice); /* with itself: every weight again */
    CHECK_NEAR(twice.weight, 2 * all.weight, 1e-9);
    CHECK_NEAR(twice.mean, all.mean, 1e-9);
    end(&s);
}

TEST(mean_squared_error) {
    fl_scope s = begin();
    fl_data_average m = {0};
    fl_tensor *a = reals((double[]){1, 2, 3, 4}, 4), *b = wholes((int64_t[]){1, 4, 0, 4}, 4);
    CHECK(fl_data_average_add_squares(&m, a, b));
    CHECK_NEAR(m.mean, (0 + 4 + 9 + 0) / 4.0, 1e-15);
    CHECK(fl_data_average_add_squares(&m, fl_transpose(fl_reshape(a, FL_SHAPE(2, 2)), 0, 1),
                                      fl_cast(fl_reshape(b, FL_SHAPE(2, 2)), FL_F16)));
    CHECK_NEAR(m.mean, (13 + (0 + 1 + 4 + 0)) / 8.0, 1e-15);
    CHECK(!fl_data_average_add_squares(&m, a, fl_zeros(FL_SHAPE(3), FL_F64)));
    CHECK_ERROR("fl_data_average_add_squares: the shapes differ: [4] and [3]");
    CHECK(!fl_data_average_add_squares(&m, a, NULL));
    CHECK_ERROR("an argument is NULL");
    CHECK_NEAR(m.weight, 8, 0);
    end(&s);
}

TEST(tallies) {
    fl_scope s = begin();
    fl_data_counts a = {0}, b = {0};
    CHECK(fl_data_counts_add(&a, 0, 5) && fl_data_counts_add(&a, 0, -2) && fl_data_counts_add(&b, 15, 9));
    CHECK(fl_data_counts_merge(&a, &b));
    CHECK_EQ_INT(a.count[0], 3);
    CHECK_EQ_INT(a.count[15], 9);
    CHECK(!fl_data_counts_add(&a, 16, 1));
    CHECK_ERROR("fl_data_counts_add: the meter is NULL, or index");
    CHECK(!fl_data_counts_add(&a, -1, 1));
    CHECK_ERROR("got -1");
    b.count[0] = INT64_MAX;
    CHECK(!fl_data_counts_merge(&a, &b));
    CHECK_ERROR("count 0 overflows int64");
    CHECK_EQ_INT(a.count[15], 9); /* nothing of it was added */
    end(&s);
}

TEST(timers_merge) {
    fl_data_timer a = {.units = 2}, b = {.units = 3};
    fl_data_timer_start(&b);
    while (fl_data_timer_seconds(&b) < 0.002) continue;
    fl_data_timer_stop(&b);
    fl_data_timer_merge(&a, &b);
    CHECK_NEAR(fl_data_timer_seconds(&a), fl_data_timer_seconds(&b), 0);
    CHECK_EQ_INT(a.units, 5);
}

/* ---- top k ---- */

/* By sorting (class, score) pairs: the first k hold the target. */
static bool in_top(const double *s, int64_t classes, int64_t target, int64_t k) {
    bool taken[16] = {false};
    for (int64_t place = 0; place < k && place < classes; place++) {
        int64_t best = -1;
        for (int64_t c = 0; c < classes; c++)
            if (!taken[c] && (best < 0 || s[c] > s[best] || (isnan(s[c]) && !isnan(s[best])))) best = c;
        taken[best] = true;
    }
    return target >= 0 && target < classes && taken[target];
}

TEST(top_k) {
    fl_scope s = begin();
    enum { N = 300, C = 6 };
    double x[N * C];
    int64_t y[N], wrong[C + 2] = {0};
    for (int i = 0; i < N * C; i++) x[i] = below(20) == 0 ? (double)NAN : (double)below(5);
    for (int i = 0; i < N; i++) y[i] = below(C + 2) - 1; /* -1 and C are no classes */
    fl_tensor *scores = fl_reshape(reals(x, N * C), FL_SHAPE(10, N / 10, C));
    fl_tensor *target = fl_reshape(wholes(y, N), FL_SHAPE(10, N / 10));
    for (int64_t k = 1; k <= C + 1; k++) {
        for (int i = 0; i < N; i++) wrong[k] += !in_top(x + i * C, C, y[i], k);
        fl_data_frame_error m = {0}, top1 = {0};
        CHECK(fl_data_top_k_add(&m, scores, target, k));
        CHECK_EQ_INT(m.wrong, wrong[k]);
        CHECK_EQ_INT(m.total, N);
        CHECK_NEAR(fl_data_accuracy_percent(&m), 100.0 * (double)(N - wrong[k]) / N, 1e-12);
        if (k > 1) continue;
        CHECK(fl_data_frame_error_add(&top1, scores, target)); /* argmax: the same rule */
        CHECK_EQ_INT(top1.wrong, m.wrong);
        fl_data_frame_error_merge(&top1, &m);
        CHECK_EQ_INT(top1.total, 2 * N);
    }
    fl_data_frame_error m = {0};
    CHECK(fl_data_top_k_add(&m, fl_zeros(FL_SHAPE(0, 3), FL_F32), fl_zeros(FL_SHAPE(0), FL_I64), 1));
    CHECK(!fl_data_top_k_add(&m, scores, target, 0));
    CHECK_ERROR("fl_data_top_k_add: k must be positive, got 0");
    CHECK(!fl_data_top_k_add(&m, fl_zeros(FL_SHAPE(2, 0), FL_F32), fl_zeros(FL_SHAPE(2), FL_I64), 1));
    CHECK_ERROR("fl_data_top_k_add: got scores f32 [2, 0] and target i64 [2]");
    CHECK(!fl_data_frame_error_add(&m, fl_zeros(FL_SHAPE(2, 0), FL_F32), fl_zeros(FL_SHAPE(2), FL_I64)));
    CHECK_ERROR("scores f32 [2, 0] and target i64 [2]");
    CHECK_EQ_INT(m.total, 0);
    CHECK(isnan(fl_data_accuracy_percent(&m)));
    end(&s);
}

/* ---- confusion ---- */

TEST(confusion) {
    fl_scope s = begin();
    enum { N = 500, C = 5 };
    int64_t guess[N], target[N];
    for (int i = 0; i < N; i++) guess[i] = below(C - 1), target[i] = below(3) ? guess[i] : below(C - 1);
    fl_data_confusion m = {.classes = C}, halves[2] = {{.classes = C}, {0}};
    CHECK(isnan(fl_data_confusion_micro(&m).f1) && isnan(fl_data_confusion_macro(&m).f1));
    CHECK(isnan(fl_data_confusion_class(&m, 0).f1));
    CHECK(fl_data_confusion_add(&m, wholes(guess, N), wholes(target, N)));
    double macro[3] = {0};
    int64_t right = 0;
    for (int c = 0; c < C; c++) {
        double tp = 0, fp = 0, fn = 0;
        for (int i = 0; i < N; i++) {
            tp += guess[i] == c && target[i] == c;
            fp += guess[i] == c && target[i] != c;
            fn += guess[i] != c && target[i] == c;
        }
        const fl_data_f1 one = fl_data_confusion_class(&m, c);
        const double p = tp + fp > 0 ? tp / (tp + fp) : 0, r = tp + fn > 0 ? tp / (tp + fn) : 0;
        CHECK_NEAR(one.precision, p, 1e-15);
        CHECK_NEAR(one.recall, r, 1e-15);
        CHECK_NEAR(one.f1, p + r > 0 ? 2 * p * r / (p + r) : 0, 1e-15);
        CHECK_EQ_INT(one.support, (int64_t)(tp + fn));
        macro[0] += p / (C - 1), macro[1] += r / (C - 1), macro[2] += one.f1 / (C - 1);
        right += (int64_t)tp;
    }
    const fl_data_f1 mean = fl_data_confusion_macro(&m), sum = fl_data_confusion_micro(&m);
    CHECK_NEAR(mean.precision, macro[0], 1e-15); /* class C - 1 never occurs, and counts not */
    CHECK_NEAR(mean.recall, macro[1], 1e-15);
    CHECK_NEAR(mean.f1, macro[2], 1e-15);
    CHECK_EQ_INT(mean.support, N);
    CHECK_NEAR(sum.precision, (double)right / N, 1e-15);
    CHECK_NEAR(sum.f1, sum.recall, 0);

    CHECK(fl_data_confusion_add(&halves[0], fl_one_hot(wholes(guess, 200), C), wholes(target, 200)));
    fl_data_confusion rest = {.classes = C};
    CHECK(fl_data_confusion_add(&rest, wholes(guess + 200, N - 200), wholes(target + 200, N - 200)));
    CHECK(fl_data_confusion_merge(&halves[1], &halves[0]) && fl_data_confusion_merge(&halves[1], &rest));
    CHECK(!memcmp(halves[1].count, m.count, C * C * sizeof *m.count));

    CHECK(!fl_data_confusion_add(&m, wholes((int64_t[]){0, 1}, 2), wholes((int64_t[]){1, 5}, 2)));
    CHECK_ERROR("fl_data_confusion_add: the target of sample 1 must be in [0, 5), got 5");
    CHECK(!fl_data_confusion_add(&m, wholes((int64_t[]){0, -1}, 2), wholes((int64_t[]){1, 1}, 2)));
    CHECK_ERROR("the prediction of sample 1 must be in [0, 5), got -1");
    CHECK(!memcmp(halves[1].count, m.count, C * C * sizeof *m.count));
    fl_data_confusion other = {.classes = 3}, none = {0}, huge = {.classes = (int64_t)1 << 40};
    CHECK(fl_data_confusion_add(&other, wholes(target, 0), wholes(target, 0)));
    CHECK(!fl_data_confusion_merge(&m, &other));
    CHECK_ERROR("fl_data_confusion_merge: the numbers of classes differ: 5 and 3");
    CHECK(!fl_data_confusion_add(&none, wholes(guess, 1), wholes(target, 1)));
    CHECK_ERROR("fl_data_confusion_add: classes must be in [1, 16384], got 0");
    CHECK(!fl_data_confusion_add(&huge, wholes(guess, 1), wholes(target, 1)));
    CHECK_ERROR("got 1099511627776");
    fl_data_confusion_free(&m);
    CHECK(!m.count && !m.classes);
    for (int i = 0; i < 2; i++) fl_data_confusion_free(&halves[i]);
    fl_data_confusion_free(&rest);
    fl_data_confusion_free(&other);
    end(&s);
}

/* ---- ROC ---- */

/* Every pair compared; precision at every threshold. */
static void roc_slowly(const double *x, const int64_t *y, int n, double *auc, double *ap) {
    double wins = 0, pairs = 0, last = 0, positives = 0;
    for (int i = 0; i < n; i++) positives += (double)y[i];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (y[i] && !y[j]) pairs++, wins += x[i] > x[j] ? 1 : x[i] == x[j] ? 0.5 : 0;
    *auc = wins / pairs, *ap = 0;
    for (double t = 20; t >= -20; t--) { /* scores are whole */
        double tp = 0, all = 0;
        for (int i = 0; i < n; i++) all += x[i] >= t, tp += x[i] >= t && y[i];
        if (all > 0) *ap += (tp / positives - last) * (tp / all);
        last = tp / positives;
    }
}

TEST(roc) {
    fl_scope s = begin();
    enum { N = 200 };
    for (int round = 0; round < 20; round++) {
        double x[N], auc, ap;
        int64_t y[N];
        for (int i = 0; i < N; i++)
            y[i] = below(3) == 0, x[i] = (double)below(round + 1) + (double)(y[i] * below(4));
        roc_slowly(x, y, N, &auc, &ap);
        fl_data_roc m = {0}, other = {0};
        CHECK(fl_data_roc_add(&m, reals(x, 50), wholes(y, 50)));
        CHECK(fl_data_roc_add(&other, fl_cast(reals(x + 50, N - 50), FL_F32),
                              fl_cast(wholes(y + 50, N - 50), FL_B8)));
        CHECK(fl_data_roc_merge(&m, &other));
        CHECK_NEAR(fl_data_roc_auc(&m), auc, 1e-15);
        CHECK_NEAR(fl_data_roc_average_precision(&m), ap, 1e-14);
        CHECK_EQ_INT(m.n, N);
        CHECK(fl_data_roc_merge(&m, &m)); /* twice the same: the same curve */
        CHECK_NEAR(fl_data_roc_auc(&m), auc, 1e-15);
        fl_data_roc_free(&m);
        fl_data_roc_free(&other);
    }
    fl_data_roc m = {0};
    CHECK(isnan(fl_data_roc_auc(&m)) && isnan(fl_data_roc_average_precision(&m)));
    CHECK(fl_data_roc_add(&m, reals((double[]){0.1, 0.2}, 2), wholes((int64_t[]){0, 0}, 2)));
    CHECK(isnan(fl_data_roc_auc(&m)));
    CHECK(!fl_data_roc_add(&m, reals((double[]){0.1, NAN}, 2), wholes((int64_t[]){0, 1}, 2)));
    CHECK_ERROR("fl_data_roc_add: sample 1: expected a score other than NaN");
    CHECK(!fl_data_roc_add(&m, reals((double[]){0.1}, 1), wholes((int64_t[]){2}, 1)));
    CHECK_ERROR("sample 0: expected a score other than NaN and target 0 or 1, got 0.1 and 2");
    CHECK(!fl_data_roc_add(&m, reals((double[]){0.1}, 1), wholes((int64_t[]){1, 0}, 2)));
    CHECK_ERROR("fl_data_roc_add: got scores f64 [1] and target i64 [2]");
    CHECK_EQ_INT(m.n, 2);
    CHECK(fl_data_roc_add(&m, reals((double[]){INFINITY}, 1), wholes((int64_t[]){1}, 1)));
    CHECK_NEAR(fl_data_roc_auc(&m), 1, 0);
    fl_data_roc_free(&m);
    end(&s);
}

/* ---- calibration ---- */

TEST(calibration) {
    fl_scope s = begin();
    enum { N = 400, C = 3, BINS = 7 };
    double p[N * C], error = 0, worst = 0;
    int64_t y[N];
    for (int i = 0; i < N; i++) {
        const double a = (double)below(15) / 14, b = uniform() * (1 - a); /* many lie on the edge of a bin */
        p[i * C] = a, p[i * C + 1] = b, p[i * C + 2] = 1 - a - b;
        y[i] = below(C);
    }
    for (int k = 0; k < BINS; k++) {
        double n = 0, right = 0, sum = 0;
        for (int i = 0; i < N; i++) {
            int best = 0;
            for (int c = 1; c < C; c++) best = p[i * C + c] > p[i * C + best] ? c : best;
            const double q = p[i * C + best];
            const bool in = q * BINS > k && q * BINS <= k + 1;
            n += in, right += in && best == y[i], sum += in ? q : 0;
        }
        if (n > 0) error += n / N * fabs(right / n - sum / n), worst = fmax(worst, fabs(right / n - sum / n));
    }
    fl_data_calibration m = {.bins = BINS}, other = {.bins = BINS}, empty = {0};
    CHECK(isnan(fl_data_calibration_error(&m)) && isnan(fl_data_calibration_max(&m)));
    fl_tensor *probabilities = fl_reshape(reals(p, N * C), FL_SHAPE(N, C)), *target = wholes(y, N);
    CHECK(fl_data_calibration_add(&m, fl_slice(probabilities, 0, 0, 100, 1), fl_slice(target, 0, 0, 100, 1)));
    CHECK(fl_data_calibration_add(&other, fl_slice(probabilities, 0, 100, N, 1),
                                  fl_slice(target, 0, 100, N, 1)));
    CHECK(fl_data_calibration_merge(&m, &other) && fl_data_calibration_merge(&m, &empty));
    CHECK_NEAR(fl_data_calibration_error(&m), error, 1e-14);
    CHECK_NEAR(fl_data_calibration_max(&m), worst, 1e-14);
    CHECK(fl_data_calibration_merge(&empty, &m));
    CHECK_NEAR(fl_data_calibration_error(&empty), error, 1e-14);
    fl_data_calibration fresh = {0}, before = m, wide = {.bins = 101};
    CHECK(fl_data_calibration_add(&fresh, probabilities, target));
    CHECK_EQ_INT(fresh.bins, 15);
    CHECK(!fl_data_calibration_merge(&m, &fresh));
    CHECK_ERROR("fl_data_calibration_merge: the numbers of bins differ: 7 and 15");
    CHECK(!fl_data_calibration_add(&m, fl_mul(probabilities, fl_num(2)), target));
    CHECK_ERROR("fl_data_calibration_add: the largest probability of sample");
    CHECK(!fl_data_calibration_add(&m, fl_full(FL_SHAPE(1, 2), NAN, FL_F64), fl_zeros(FL_SHAPE(1), FL_I64)));
    CHECK_ERROR("the largest probability of sample 0 must be in [0, 1], got nan");
    CHECK(!fl_data_calibration_add(&wide, probabilities, target));
    CHECK_ERROR("bins must be in [1, 100], got 101");
    CHECK(!memcmp(&before, &m, sizeof m));
    end(&s);
}

/* ---- edit distance ---- */

/* By trying everything. */
static int64_t distance(const int64_t *a, int64_t n, const int64_t *b, int64_t m) {
    if (!n || !m) return n + m;
    const int64_t both = distance(a + 1, n - 1, b + 1, m - 1) + (*a != *b);
    const int64_t left = distance(a + 1, n - 1, b, m) + 1, right = distance(a, n, b + 1, m - 1) + 1;
    return both <= left && both <= right ? both : left <= right ? left : right;
}

/* The pairs go through both sequences in order, and are as many edits as were counted. */
static void check_alignment(const fl_data_aligned *pair, int64_t length, const int64_t *a, int64_t n,
                            const int64_t *b, int64_t m, const fl_data_edits *e) {
    int64_t i = 0, j = 0, substituted = 0, inserted = 0, deleted = 0;
    for (int64_t k = 0; k < length; k++) {
        CHECK(pair[k].guess == i || pair[k].guess == -1);
        CHECK(pair[k].target == j || pair[k].target == -1);
        if (pair[k].guess < 0) deleted++, j++;
        else if (pair[k].target < 0) inserted++, i++;
        else substituted += a[i++] != b[j++];
    }
    CHECK(i == n && j == m);
    CHECK(substituted == e->substitutions && inserted == e->insertions && deleted == e->deletions);
}

TEST(edit_distance) {
    fl_scope s = begin();
    fl_data_edits all = {0}, merged = {0};
    int64_t edits = 0;
    for (int round = 0; round < 400; round++) {
        int64_t a[6], b[6], n = below(7), m = below(7);
        for (int i = 0; i < 6; i++) a[i] = below(3), b[i] = below(3);
        fl_data_edits e = {0};
        fl_data_aligned pair[12];
        CHECK(fl_data_edits_add(&e, a, n, b, m));
        const int64_t want = distance(a, n, b, m), length = fl_data_align(a, n, b, m, pair);
        CHECK_EQ_INT(e.substitutions + e.insertions + e.deletions, want);
        CHECK_EQ_INT(e.insertions - e.deletions, n - m);
        check_alignment(pair, length, a, n, b, m, &e);
        CHECK(fl_data_edits_add_tensor(&all, fl_cast(wholes(a, n), FL_U8), wholes(b, m)));
        fl_data_edits_merge(&merged, &e);
        edits += want;
    }
    CHECK(!memcmp(&all, &merged, sizeof all));
    CHECK_NEAR(fl_data_edits_percent(&all), 100.0 * (double)edits / (double)all.tokens, 1e-12);
    end(&s);
}

TEST(edit_distance_of_words) {
    fl_scope s = begin();
    /* kitten -> sitting: k/s, e/i, and a g that the guess has not */
    const int64_t kitten[] = {'k', 'i', 't', 't', 'e', 'n'}, sitting[] = {'s', 'i', 't', 't', 'i', 'n', 'g'};
    fl_data_edits e = {0};
    CHECK(isnan(fl_data_edits_percent(&e)));
    CHECK(fl_data_edits_add(&e, kitten, 6, sitting, 7));
    CHECK_EQ_INT(e.substitutions, 2);
    CHECK_EQ_INT(e.insertions, 0);
    CHECK_EQ_INT(e.deletions, 1);
    CHECK_NEAR(fl_data_edits_percent(&e), 300.0 / 7, 1e-12);
    CHECK(fl_data_edits_add(&e, kitten, 6, NULL, 0)); /* all inserted, no tokens: past 100 % */
    CHECK_NEAR(fl_data_edits_percent(&e), 900.0 / 7, 1e-12);

    const fl_data_edits before = e;
    fl_data_aligned pair[1];
    const int64_t huge = INT64_MAX;
    CHECK(!fl_data_edits_add(&e, kitten, huge, sitting, 7));
    CHECK_ERROR("fl_data_edits_add: sequences of 9223372036854775807 and 7 tokens need too many cells");
    CHECK(!fl_data_edits_add(&e, kitten, (int64_t)1 << 32, sitting, (int64_t)1 << 32));
    CHECK_ERROR("4294967296 and 4294967296 tokens need too many cells, expected at most 68719476736");
    CHECK(!fl_data_edits_add(&e, NULL, 2, sitting, 7));
    CHECK_ERROR("a sequence is NULL or its length negative");
    CHECK(!fl_data_edits_add(&e, kitten, -1, sitting, 7));
    CHECK_ERROR("a sequence is NULL or its length negative");
    CHECK_EQ_INT(fl_data_align(kitten, 1 << 14, sitting, 1 << 14, pair), -1);
    CHECK_ERROR("fl_data_align: sequences of 16384 and 16384 tokens need too many cells");
    CHECK(!fl_data_edits_add_tensor(&e, fl_zeros(FL_SHAPE(2), FL_F32), wholes(sitting, 7)));
    CHECK_ERROR("must be integers of one dim, got f32 [2] and i64 [7]");
    CHECK(!memcmp(&before, &e, sizeof e));
    end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
