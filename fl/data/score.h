/* fl/data/score.h - classification metrics: error rate, top k, confusion matrix, ROC, calibration

   Every meter starts with {0}; those with a _free own memory, and _free resets them to {0}. Classes are
   integers from 0. Targets are integers [...]; scores are [..., classes], of any float dtype. A failed
   addition changes nothing. Results are NaN before the first addition. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_SCORE_H
#define FL_DATA_SCORE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Error rate: percentage of wrong predictions. */
typedef struct fl_data_frame_error {
    int64_t wrong, total;
} fl_data_frame_error;
/* The prediction is the class with the largest score. Integer predictions [...] may be given instead of
   scores. */
FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target);
/* Top k: wrong if the target is not among the k largest scores. Of equal scores the lower class counts as
   larger, NaN as the largest. */
FL_API bool fl_data_top_k_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target, int64_t k);
FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m);
FL_API double fl_data_accuracy_percent(const fl_data_frame_error *m); /* 100 - the error */
FL_API void fl_data_frame_error_merge(fl_data_frame_error *m, const fl_data_frame_error *other);

/* Confusion matrix. Set classes before the first addition. */
typedef struct fl_data_confusion {
    int64_t classes; /* at most 16,384 */
    int64_t *count;  /* count[target * classes + prediction]; NULL before the first addition */
} fl_data_confusion;
/* scores as in fl_data_frame_error_add. Classes out of range are an error. */
FL_API bool fl_data_confusion_add(fl_data_confusion *m, fl_tensor *scores, fl_tensor *target);
FL_API bool fl_data_confusion_merge(fl_data_confusion *m, const fl_data_confusion *other);
FL_API void fl_data_confusion_free(fl_data_confusion *m);
/* Figures of one class, from true and false positives and negatives: precision tp / (tp + fp), recall tp /
   (tp + fn), f1 2 tp / (2 tp + fp + fn), their harmonic mean; 0 if the denominator is 0. support: tp + fn. */
typedef struct fl_data_f1 {
    double precision, recall, f1;
    int64_t support;
} fl_data_f1;
FL_API fl_data_f1 fl_data_confusion_class(const fl_data_confusion *m, int64_t c);
/* Macro average: mean over the classes that occur as target or prediction (as scikit-learn). */
FL_API fl_data_f1 fl_data_confusion_macro(const fl_data_confusion *m);
/* Micro average: from sums over the classes. With one class per sample all three figures equal the
   accuracy. */
FL_API fl_data_f1 fl_data_confusion_micro(const fl_data_confusion *m);

/* Receiver operating characteristic of a binary classifier; stores every score. */
typedef struct fl_data_roc {
    int64_t n, positives;
    /* private */
    int64_t cap_;
    struct fl_data_roc_point *point_;
} fl_data_roc;
/* scores and target [...]. It is an error if a target is not 0 or 1, or a score is NaN. */
FL_API bool fl_data_roc_add(fl_data_roc *m, fl_tensor *scores, fl_tensor *target);
FL_API bool fl_data_roc_merge(fl_data_roc *m, const fl_data_roc *other);
FL_API void fl_data_roc_free(fl_data_roc *m);
/* Area under the curve: the probability that a positive has a larger score than a negative, ties counting
   half (Mann-Whitney U / (positives negatives)). Exact up to the last rounding. NaN if there is only one
   class. */
FL_API double fl_data_roc_auc(fl_data_roc *m);
/* Average precision: sum over thresholds of (recall_k - recall_{k-1}) precision_k, equal scores together; NaN
   without positives. */
FL_API double fl_data_roc_average_precision(fl_data_roc *m);

#define FL_DATA_BINS 100
/* Calibration: whether predictions of confidence p are right with frequency p. Set bins, 1 to FL_DATA_BINS,
   before the first addition; 0 -> 15. Bin b has confidences in (b / bins, (b + 1) / bins]. */
typedef struct fl_data_calibration {
    int bins;
    int64_t total, n[FL_DATA_BINS], right[FL_DATA_BINS];
    double confidence[FL_DATA_BINS]; /* sums */
} fl_data_calibration;
/* The confidence is the largest of the probabilities [..., classes]. It must be in [0, 1]. */
FL_API bool fl_data_calibration_add(fl_data_calibration *m, fl_tensor *probabilities, fl_tensor *target);
FL_API bool fl_data_calibration_merge(fl_data_calibration *m, const fl_data_calibration *other);
/* Expected calibration error (Guo et al. 2017): sum over bins of n / total |right / n - confidence / n|. */
FL_API double fl_data_calibration_error(const fl_data_calibration *m);
/* The largest |right / n - confidence / n|. */
FL_API double fl_data_calibration_max(const fl_data_calibration *m);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SCORE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SCORE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SCORE_IMPL
#define FL_DATA_SCORE_IMPL
#include "../ops/reduce.h"
#include "meter.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- scores against targets ---- */

/* Checks shapes and dtypes. extra: number of dims that scores have more than target; 2: 0 or 1. */
static bool fl__score_fits(const char *who, const void *m, fl_tensor *scores, fl_tensor *target, int extra) {
    if (!m || !scores || !target) return fl_fail("%s: an argument is NULL", who);
    const int more = scores->ndim - target->ndim;
    const bool classes = more == 0 && extra == 2; /* predictions, not scores */
    bool ok = !fl_dtype_is_float(target->dtype) && (extra == 2 ? more == 0 || more == 1 : more == extra);
    ok = ok && !(classes && fl_dtype_is_float(scores->dtype)) &&
         !memcmp(scores->shape, target->shape, (size_t)target->ndim * sizeof *target->shape);
    ok = ok && !(more && scores->shape[target->ndim] == 0 && fl_numel(target));
    static const char *const expected[] = {"[...]", "[..., classes]", "[..., classes] or integers [...]"};
    return ok || fl_fail("%s: got scores %s %s and target %s %s, expected scores %s and a target of integers "
                         "[...]", who, fl_dtype_name(scores->dtype), FL_SHAPE_TEXT(scores),
                         fl_dtype_name(target->dtype), FL_SHAPE_TEXT(target), expected[extra]);
}

/* Reads both on the host. fl__score_end must follow, whatever this returns. */
static bool fl__score_begin(fl_data_host_view v[2], fl_tensor *scores, fl_dtype dtype, fl_tensor *target) {
    const bool ok = fl_data_host_begin(&v[1], target, FL_I64);
    return fl_data_host_begin(&v[0], scores, dtype) && ok;
}

/* The same with the predicted class of each row of scores, computed on their backend. */
static bool fl__score_begin_predictions(fl_data_host_view v[2], fl_tensor *scores, fl_tensor *target) {
    const bool ok = fl_data_host_begin(&v[1], target, FL_I64);
    fl_tensor *guess = scores;
    if (scores->ndim > target->ndim && v[1].n) guess = fl_argmax(scores, -1, false);
    return fl_data_host_begin(&v[0], v[1].n ? guess : target, FL_I64) && ok;
}

static bool fl__score_end(fl_data_host_view v[2], bool ok) {
    fl_data_host_end(&v[0]);
    fl_data_host_end(&v[1]);
    return ok;
}

FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target) {
    fl_data_host_view v[2];
    if (!fl__score_fits("fl_data_frame_error_add", m, scores, target, 2)) return false;
    if (!fl__score_begin_predictions(v, scores, target)) return fl__score_end(v, false);
    for (int64_t r = 0; r < v[1].n; r++) m->wrong += v[0].i[r] != v[1].i[r];
    m->total += v[1].n;
    return fl__score_end(v, true);
}

FL_API bool fl_data_top_k_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target, int64_t k) {
    fl_data_host_view v[2];
    if (!fl__score_fits("fl_data_top_k_add", m, scores, target, 1)) return false;
    if (k < 1) return fl_fail("fl_data_top_k_add: k must be positive, got %lld", (long long)k);
    if (!fl__score_begin(v, scores, FL_F64, target)) return fl__score_end(v, false);
    const int64_t classes = v[1].n ? v[0].n / v[1].n : 0;
    for (int64_t r = 0; r < v[1].n; r++) {
        const double *s = v[0].f + r * classes;
        const int64_t t = v[1].i[r];
        int64_t before = t >= 0 && t < classes ? 0 : k; /* scores that rank before the target's */
        for (int64_t c = 0; before < k && c < classes; c++) {
            const bool tie = s[c] == s[t] || (isnan(s[c]) && isnan(s[t]));
            before += tie ? c < t : s[c] > s[t] || (isnan(s[c]) && !isnan(s[t]));
        }
        m->wrong += before >= k;
    }
    m->total += v[1].n;
    return fl__score_end(v, true);
}

FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m) {
    if (!fl_given(m, "fl_data_frame_error_percent", "the meter")) return NAN;
    return m->total ? 100.0 * (double)m->wrong / (double)m->total : NAN;
}

FL_API double fl_data_accuracy_percent(const fl_data_frame_error *m) {
    if (!fl_given(m, "fl_data_accuracy_percent", "the meter")) return NAN;
    return m->total ? 100.0 * (double)(m->total - m->wrong) / (double)m->total : NAN;
}

FL_API void fl_data_frame_error_merge(fl_data_frame_error *m, const fl_data_frame_error *other) {
    if (!fl_given(m, "fl_data_frame_error_merge", "the meter") ||
        !fl_given(other, "fl_data_frame_error_merge", "the other meter")) return;
    m->wrong += other->wrong;
    m->total += other->total;
}

/* ---- confusion matrix ---- */

static bool fl__score_make_counts(fl_data_confusion *m, const char *who) {
    if (m->classes < 1 || m->classes > 16384)
        return fl_fail("%s: classes must be in [1, 16384], got %lld", who, (long long)m->classes);
    if (!m->count) m->count = fl_heap_alloc((size_t)(m->classes * m->classes) * sizeof *m->count);
    return m->count != NULL;
}

FL_API bool fl_data_confusion_add(fl_data_confusion *m, fl_tensor *scores, fl_tensor *target) {
    const char *who = "fl_data_confusion_add";
    fl_data_host_view v[2];
    if (!fl__score_fits(who, m, scores, target, 2) || !fl__score_make_counts(m, who)) return false;
    if (!fl__score_begin_predictions(v, scores, target)) return fl__score_end(v, false);
    const int64_t n = m->classes;
    for (int64_t r = 0; r < 2 * v[1].n; r++) {
        const int64_t c = v[r & 1].i[r / 2];
        if (c < 0 || c >= n) {
            fl_fail("%s: the %s of sample %lld must be in [0, %lld), got %lld", who,
                    r & 1 ? "target" : "prediction", (long long)(r / 2), (long long)n, (long long)c);
            return fl__score_end(v, false);
        }
    }
    for (int64_t r = 0; r < v[1].n; r++) m->count[v[1].i[r] * n + v[0].i[r]]++;
    return fl__score_end(v, true);
}

FL_API bool fl_data_confusion_merge(fl_data_confusion *m, const fl_data_confusion *other) {
    if (!fl_given(m, "fl_data_confusion_merge", "the meter") ||
        !fl_given(other, "fl_data_confusion_merge", "the other meter")) return false;
    if (!other->count) return true;
    if (!m->classes) m->classes = other->classes;
    if (m->classes != other->classes)
        return fl_fail("fl_data_confusion_merge: the numbers of classes differ: %lld and %lld",
                       (long long)m->classes, (long long)other->classes);
    if (!fl__score_make_counts(m, "fl_data_confusion_merge")) return false;
    for (int64_t k = 0; k < m->classes * m->classes; k++) m->count[k] += other->count[k];
    return true;
}

FL_API void fl_data_confusion_free(fl_data_confusion *m) {
    if (!m) return;
    fl_heap_free(m->count);
    *m = (fl_data_confusion){0};
}

static double fl__score_ratio(int64_t a, int64_t b) {
    return b ? (double)a / (double)b : 0;
}

FL_API fl_data_f1 fl_data_confusion_class(const fl_data_confusion *m, int64_t c) {
    if (!fl_given(m, "fl_data_confusion_class", "the meter")) return (fl_data_f1){NAN, NAN, NAN, 0};
    int64_t targets = 0, guesses = 0;
    if (!m->count || c < 0 || c >= m->classes) return (fl_data_f1){NAN, NAN, NAN, 0};
    for (int64_t k = 0; k < m->classes; k++) {
        targets += m->count[c * m->classes + k];
        guesses += m->count[k * m->classes + c];
    }
    const int64_t right = m->count[c * m->classes + c];
    return (fl_data_f1){fl__score_ratio(right, guesses), fl__score_ratio(right, targets),
                        fl__score_ratio(2 * right, targets + guesses), targets};
}

FL_API fl_data_f1 fl_data_confusion_macro(const fl_data_confusion *m) {
    if (!fl_given(m, "fl_data_confusion_macro", "the meter")) return (fl_data_f1){NAN, NAN, NAN, 0};
    fl_data_f1 sum = {0};
    int64_t n = 0;
    for (int64_t c = 0; m->count && c < m->classes; c++) {
        const fl_data_f1 one = fl_data_confusion_class(m, c);
        bool guessed = false;
        for (int64_t k = 0; !guessed && k < m->classes; k++) guessed = m->count[k * m->classes + c] > 0;
        n += one.support > 0 || guessed;
        sum.precision += one.precision, sum.recall += one.recall, sum.f1 += one.f1;
        sum.support += one.support;
    }
    const double w = n ? 1 / (double)n : (double)NAN;
    return (fl_data_f1){sum.precision * w, sum.recall * w, sum.f1 * w, sum.support};
}

FL_API fl_data_f1 fl_data_confusion_micro(const fl_data_confusion *m) {
    if (!fl_given(m, "fl_data_confusion_micro", "the meter")) return (fl_data_f1){NAN, NAN, NAN, 0};
    int64_t right = 0, total = 0;
    for (int64_t k = 0; m->count && k < m->classes * m->classes; k++) {
        total += m->count[k];
        right += k % (m->classes + 1) ? 0 : m->count[k];
    }
    const double a = total ? (double)right / (double)total : (double)NAN;
    return (fl_data_f1){a, a, a, total};
}

/* ---- receiver operating characteristic ---- */

struct fl_data_roc_point {
    double score;
    bool positive;
};

FL_API bool fl_data_roc_add(fl_data_roc *m, fl_tensor *scores, fl_tensor *target) {
    const char *who = "fl_data_roc_add";
    fl_data_host_view v[2];
    if (!fl__score_fits(who, m, scores, target, 0)) return false;
    bool ok = fl__score_begin(v, scores, FL_F64, target) &&
              fl_heap_grow(&m->point_, &m->cap_, m->n + v[1].n, sizeof *m->point_);
    int64_t positives = 0;
    for (int64_t r = 0; ok && r < v[1].n; r++) {
        const double s = v[0].f[r];
        const int64_t t = v[1].i[r];
        ok = (t == 0 || t == 1) && !isnan(s);
        if (!ok) fl_fail("%s: sample %lld: expected a score other than NaN and target 0 or 1, got %g "
                         "and %lld", who, (long long)r, s, (long long)t);
        m->point_[m->n + r] = (struct fl_data_roc_point){s, t == 1};
        positives += t == 1;
    }
    if (ok) m->n += v[1].n, m->positives += positives;
    return fl__score_end(v, ok);
}

FL_API bool fl_data_roc_merge(fl_data_roc *m, const fl_data_roc *other) {
    if (!fl_given(m, "fl_data_roc_merge", "the meter") ||
        !fl_given(other, "fl_data_roc_merge", "the other meter")) return false;
    if (!fl_heap_grow(&m->point_, &m->cap_, m->n + other->n, sizeof *m->point_)) return false;
    const int64_t n = other->n; /* m may be equal to other */
    if (n) memcpy(m->point_ + m->n, other->point_, (size_t)n * sizeof *m->point_);
    m->n += n;
    m->positives += other->positives;
    return true;
}

FL_API void fl_data_roc_free(fl_data_roc *m) {
    if (!m) return;
    fl_heap_free(m->point_);
    *m = (fl_data_roc){0};
}

/* Sorts by descending score. */
static int fl__roc_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Computes both figures in one pass over the thresholds. */
static void fl__roc_compute(fl_data_roc *m, double *auc, double *precision) {
    int64_t above[2] = {0}; /* negatives and positives with larger scores */
    uint64_t twice = 0;     /* 2 U: pairs with the positive above, ties half */
    double sum = 0;
    if (m->n > 1) qsort(m->point_, (size_t)m->n, sizeof *m->point_, fl__roc_order);
    for (int64_t i = 0, j; i < m->n; i = j) {
        int64_t here[2] = {0};
        for (j = i; j < m->n && m->point_[j].score == m->point_[i].score; j++) here[m->point_[j].positive]++;
        twice += (uint64_t)here[0] * (uint64_t)(2 * above[1] + here[1]);
        above[0] += here[0], above[1] += here[1];
        sum += (double)here[1] * fl__score_ratio(above[1], above[0] + above[1]);
    }
    const bool both = above[0] && above[1];
    *auc = both ? (double)twice / (2.0 * (double)above[0] * (double)above[1]) : (double)NAN;
    *precision = above[1] ? sum / (double)above[1] : (double)NAN;
}

FL_API double fl_data_roc_auc(fl_data_roc *m) {
    if (!fl_given(m, "fl_data_roc_auc", "the meter")) return NAN;
    double auc, precision;
    fl__roc_compute(m, &auc, &precision);
    return auc;
}

FL_API double fl_data_roc_average_precision(fl_data_roc *m) {
    if (!fl_given(m, "fl_data_roc_average_precision", "the meter")) return NAN;
    double auc, precision;
    fl__roc_compute(m, &auc, &precision);
    return precision;
}

/* ---- calibration ---- */

FL_API bool fl_data_calibration_add(fl_data_calibration *m, fl_tensor *probabilities, fl_tensor *target) {
    const char *who = "fl_data_calibration_add";
    fl_data_host_view v[2];
    if (!fl__score_fits(who, m, probabilities, target, 1)) return false;
    fl_data_calibration sum = *m;
    if (!sum.bins) sum.bins = 15;
    if (sum.bins < 0 || sum.bins > FL_DATA_BINS)
        return fl_fail("%s: bins must be in [1, %d], got %d", who, FL_DATA_BINS, sum.bins);
    bool ok = fl__score_begin(v, probabilities, FL_F64, target);
    const int64_t classes = ok && v[1].n ? v[0].n / v[1].n : 0;
    for (int64_t r = 0; ok && r < v[1].n; r++) {
        const double *p = v[0].f + r * classes;
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++) best = p[c] > p[best] || isnan(p[c]) ? c : best;
        ok = (p[best] >= 0 && p[best] <= 1) ||
             fl_fail("%s: the largest probability of sample %lld must be in [0, 1], got %g", who,
                     (long long)r, p[best]);
        if (!ok) break;
        const int b = p[best] > 0 ? (int)ceil(p[best] * sum.bins) - 1 : 0;
        sum.n[b]++;
        sum.right[b] += best == v[1].i[r];
        sum.confidence[b] += p[best];
    }
    sum.total += v[1].n;
    if (ok) *m = sum;
    return fl__score_end(v, ok);
}

FL_API bool fl_data_calibration_merge(fl_data_calibration *m, const fl_data_calibration *other) {
    if (!fl_given(m, "fl_data_calibration_merge", "the meter") ||
        !fl_given(other, "fl_data_calibration_merge", "the other meter")) return false;
    if (!m->total && other->total) m->bins = other->bins;
    if (other->total && m->bins != other->bins)
        return fl_fail("fl_data_calibration_merge: the numbers of bins differ: %d and %d", m->bins,
                       other->bins);
    m->total += other->total;
    for (int b = 0; b < FL_DATA_BINS; b++) {
        m->n[b] += other->n[b];
        m->right[b] += other->right[b];
        m->confidence[b] += other->confidence[b];
    }
    return true;
}

FL_API double fl_data_calibration_error(const fl_data_calibration *m) {
    if (!fl_given(m, "fl_data_calibration_error", "the meter")) return NAN;
    double sum = 0;
    for (int b = 0; b < FL_DATA_BINS; b++) sum += fabs((double)m->right[b] - m->confidence[b]);
    return m->total ? sum / (double)m->total : (double)NAN;
}

FL_API double fl_data_calibration_max(const fl_data_calibration *m) {
    if (!fl_given(m, "fl_data_calibration_max", "the meter")) return NAN;
    double worst = m->total ? 0 : (double)NAN;
    for (int b = 0; b < FL_DATA_BINS; b++)
        if (m->n[b]) worst = fmax(worst, fabs((double)m->right[b] - m->confidence[b]) / (double)m->n[b]);
    return worst;
}

#endif
#endif

/* MIT licence: see LICENSE. */
