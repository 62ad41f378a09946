/* fl/data/meter.h - meters: averages, counts, timers; progress bar

   Every meter is a plain struct that starts with {0}, which also resets it; _merge accepts meters from other
   threads or ranks. Results are NaN before the first addition. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_METER_H
#define FL_DATA_METER_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For custom meters: a tensor's values on the host. */
typedef struct fl_data_host_view {
    int64_t n;
    const double *f;  /* row-major, for FL_F64; else NULL */
    const int64_t *i; /* row-major, for FL_I64; else NULL */
    /* private */
    fl_tensor *tensor_;
    fl_scope scope_;
} fl_data_host_view;
/* Reads t, of any dtype, layout and backend, once, as dtype FL_F64 or FL_I64. Opens a scope, and suppresses
   the error handler, until fl_data_host_end, which must follow every begin, last one first. Returns false
   after fl_fail. */
FL_API bool fl_data_host_begin(fl_data_host_view *h, fl_tensor *t, fl_dtype dtype);
FL_API void fl_data_host_end(fl_data_host_view *h);

/* Weighted mean and variance. */
typedef struct fl_data_average {
    double mean;   /* sum w x / sum w */
    double weight; /* sum w */
    /* private */
    double squares_, weight2_;
} fl_data_average;
/* Weights must be positive; others are ignored. */
FL_API void fl_data_average_add(fl_data_average *m, double value, double weight);
/* Adds every element of t with weight 1. */
FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t);
/* Adds (a - b)^2 of every element with weight 1: the mean is the mean squared error. Shapes must be equal. */
FL_API bool fl_data_average_add_squares(fl_data_average *m, fl_tensor *a, fl_tensor *b);
/* Adds everything that was added to other. */
FL_API void fl_data_average_merge(fl_data_average *m, const fl_data_average *other);
/* Unbiased variance: sum w (x - mean)^2 / (W - sum w^2 / W), W = sum w; NaN for less than two values. */
FL_API double fl_data_average_variance(const fl_data_average *m);

#define FL_DATA_COUNTS 16
/* Counters: samples, tokens, skipped steps, ... */
typedef struct fl_data_counts {
    int64_t count[FL_DATA_COUNTS];
} fl_data_counts;
/* Returns false after fl_fail: index out of range, or int64 overflow. */
FL_API bool fl_data_counts_add(fl_data_counts *m, int index, int64_t n);
FL_API bool fl_data_counts_merge(fl_data_counts *m, const fl_data_counts *other);

/* Seconds by a monotonic clock, summed over start/stop pairs. */
typedef struct fl_data_timer {
    int64_t units; /* counted by the caller: samples, batches, ... */
    /* private */
    double sum_, since_;
    bool running_;
} fl_data_timer;
FL_API void fl_data_timer_start(fl_data_timer *m);
FL_API void fl_data_timer_stop(fl_data_timer *m);
FL_API double fl_data_timer_seconds(const fl_data_timer *m); /* including a running interval */
/* Seconds / units; NaN without units. */
FL_API double fl_data_timer_per_unit(const fl_data_timer *m);
/* Adds seconds (including a running interval of other) and units. */
FL_API void fl_data_timer_merge(fl_data_timer *m, const fl_data_timer *other);
/* Seconds of the monotonic clock, from an arbitrary start. */
FL_API double fl_data_now(void);

/* A progress bar: a redrawn line on a terminal, an occasional line in a log. */
typedef struct fl_data_progress {
    FILE *out;    /* NULL: disabled */
    double every; /* seconds between updates: 0.1 on a terminal, 10 in a log; set it after begin */
    /* private */
    const char *label_;
    int64_t total_, done_;
    double started_, shown_;
    int width_;
    bool terminal_;
} fl_data_progress;
/* label is borrowed and must outlive the progress bar. */
FL_API fl_data_progress fl_data_progress_begin(FILE *out, const char *label, int64_t total);
/* Reports `done` of total; format (NULL: none) appends text, such as the loss. */
FL_API void fl_data_progress_step(fl_data_progress *p, int64_t done, const char *format, ...)
    FL_PRINTF(3, 4);
/* Ends the line on a terminal. */
FL_API void fl_data_progress_end(fl_data_progress *p);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_METER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_METER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_METER_IMPL
#define FL_DATA_METER_IMPL
#include "../ops/copy.h"
#include <math.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

/* ---- meters ---- */

FL_API void fl_data_average_add(fl_data_average *m, double value, double weight) {
    if (!m || !(weight > 0)) return;
    double d = value - m->mean;
    m->weight += weight;
    m->weight2_ += weight * weight;
    m->mean += d * (weight / m->weight);
    m->squares_ += weight * d * (value - m->mean); /* West 1979: no cancellation */
}

FL_API double fl_data_average_variance(const fl_data_average *m) {
    if (!fl_given(m, "fl_data_average_variance", "the meter")) return NAN;
    double d = m->weight - m->weight2_ / m->weight;
    return d > 0 ? m->squares_ / d : NAN;
}

FL_API void fl_data_average_merge(fl_data_average *m, const fl_data_average *other) {
    if (!m || !other || !(other->weight > 0)) return;
    const fl_data_average o = *other; /* a copy, because m may be other */
    double d = o.mean - m->mean, weight = m->weight + o.weight, share = o.weight / weight;
    m->squares_ += o.squares_ + d * d * m->weight * share; /* Chan, Golub, LeVeque 1979 */
    m->mean += d * share;
    m->weight2_ += o.weight2_;
    m->weight = weight;
}

FL_API bool fl_data_host_begin(fl_data_host_view *h, fl_tensor *t, fl_dtype dtype) {
    if (!fl_given(h, "fl_data_host_begin", "the handle")) return false;
    static const int64_t nothing;
    fl_quiet(+1);
    *h = (fl_data_host_view){.scope_ = fl_scope_begin()};
    if (!t) return fl_fail("fl_data_host_begin: the tensor is NULL");
    const void *p = &nothing;
    h->n = fl_numel(t);
    if (h->n) {
        fl_tensor *cast = fl_cast(t, dtype);
        h->tensor_ = cast ? fl_contiguous(cast) : NULL;
        p = h->tensor_ ? fl_map(h->tensor_, FL_READ) : NULL;
        if (!p) h->tensor_ = NULL;
    }
    if (dtype == FL_F64) h->f = p;
    else h->i = p;
    return p != NULL;
}

FL_API void fl_data_host_end(fl_data_host_view *h) {
    if (!fl_given(h, "fl_data_host_end", "the handle")) return;
    if (h->tensor_) fl_unmap(h->tensor_, FL_READ);
    fl_scope_end(&h->scope_);
    fl_quiet(-1);
}

FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t) {
    if (!m || !t) return fl_fail("fl_data_average_add_tensor: the meter or the tensor is NULL");
    fl_data_host_view x;
    const bool ok = fl_data_host_begin(&x, t, FL_F64);
    for (int64_t i = 0; ok && i < x.n; i++) fl_data_average_add(m, x.f[i], 1);
    fl_data_host_end(&x);
    return ok;
}

FL_API bool fl_data_average_add_squares(fl_data_average *m, fl_tensor *a, fl_tensor *b) {
    if (!m || !a || !b) return fl_fail("fl_data_average_add_squares: an argument is NULL");
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape))
        return fl_fail("fl_data_average_add_squares: the shapes differ: %s and %s", FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    fl_data_host_view x, y;
    const bool x_ok = fl_data_host_begin(&x, a, FL_F64), ok = fl_data_host_begin(&y, b, FL_F64) && x_ok;
    for (int64_t i = 0; ok && i < x.n; i++)
        fl_data_average_add(m, (x.f[i] - y.f[i]) * (x.f[i] - y.f[i]), 1);
    fl_data_host_end(&y);
    fl_data_host_end(&x);
    return ok;
}

FL_API bool fl_data_counts_add(fl_data_counts *m, int index, int64_t n) {
    if (!m || index < 0 || index >= FL_DATA_COUNTS)
        return fl_fail("fl_data_counts_add: the meter is NULL, or index is not in [0, %d): got %d",
                       FL_DATA_COUNTS, index);
    int64_t sum;
    if (__builtin_add_overflow(m->count[index], n, &sum))
        return fl_fail("fl_data_counts_add: count %d overflows int64", index);
    m->count[index] = sum;
    return true;
}

FL_API bool fl_data_counts_merge(fl_data_counts *m, const fl_data_counts *other) {
    if (!fl_given(m, "fl_data_counts_merge", "the meter") ||
        !fl_given(other, "fl_data_counts_merge", "the other meter")) return false;
    fl_data_counts sum = *m;
    for (int i = 0; i < FL_DATA_COUNTS; i++)
        if (__builtin_add_overflow(m->count[i], other->count[i], &sum.count[i]))
            return fl_fail("fl_data_counts_merge: count %d overflows int64", i);
    *m = sum;
    return true;
}

FL_API double fl_data_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

FL_API void fl_data_timer_start(fl_data_timer *m) {
    if (!fl_given(m, "fl_data_timer_start", "the meter")) return;
    if (m->running_) return;
    m->running_ = true;
    m->since_ = fl_data_now();
}

FL_API void fl_data_timer_stop(fl_data_timer *m) {
    if (!fl_given(m, "fl_data_timer_stop", "the meter")) return;
    if (m->running_) m->sum_ += fl_data_now() - m->since_;
    m->running_ = false;
}

FL_API double fl_data_timer_seconds(const fl_data_timer *m) {
    if (!fl_given(m, "fl_data_timer_seconds", "the meter")) return NAN;
    return m->sum_ + (m->running_ ? fl_data_now() - m->since_ : 0);
}

FL_API double fl_data_timer_per_unit(const fl_data_timer *m) {
    if (!fl_given(m, "fl_data_timer_per_unit", "the meter")) return NAN;
    return m->units ? fl_data_timer_seconds(m) / (double)m->units : NAN;
}

FL_API void fl_data_timer_merge(fl_data_timer *m, const fl_data_timer *other) {
    if (!fl_given(m, "fl_data_timer_merge", "the meter") ||
        !fl_given(other, "fl_data_timer_merge", "the other meter")) return;
    m->sum_ += fl_data_timer_seconds(other);
    m->units += other->units;
}

/* ---- progress ---- */

static bool fl__data_is_terminal(FILE *out) {
#ifdef _WIN32
    return _isatty(_fileno(out)) != 0;
#else
    return isatty(fileno(out)) != 0;
#endif
}

FL_API fl_data_progress fl_data_progress_begin(FILE *out, const char *label, int64_t total) {
    fl_data_progress p = {.out = out, .label_ = label ? label : "", .total_ = total};
    if (!out) return p;
    p.terminal_ = fl__data_is_terminal(out);
    p.every = p.terminal_ ? 0.1 : 10;
    p.started_ = p.shown_ = fl_data_now();
    return p;
}

/* "3:07", "1:02:03" */
static void fl__data_duration(double seconds, char *text, size_t size) {
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%lld:%02d:%02d", (long long)(s / 3600), (int)(s / 60 % 60),
                 (int)(s % 60));
    else snprintf(text, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void fl__data_progress_line(const fl_data_progress *p, double now, const char *extra,
                                   char *line, size_t size) {
    double share = p->total_ > 0 ? (double)p->done_ / (double)p->total_ : 1;
    double spent = now - p->started_, left = share > 0 ? spent / share - spent : 0;
    bool ended = p->done_ >= p->total_;
    char bar[21], time[32];
    for (int i = 0; i < 20; i++) bar[i] = i < (int)(share * 20) ? '#' : '.';
    bar[20] = 0;
    fl__data_duration(ended ? spent : left, time, sizeof time);
    snprintf(line, size, "%s %s %lld/%lld %s %s%s%s", p->label_, bar, (long long)p->done_,
             (long long)p->total_, ended ? "in" : "ETA", share > 0 ? time : "-", *extra ? "  " : "",
             extra);
}

FL_API void fl_data_progress_step(fl_data_progress *p, int64_t done, const char *format, ...) {
    if (!fl_given(p, "fl_data_progress_step", "the progress")) return;
    if (!p->out) return;
    p->done_ = done < 0 ? 0 : done > p->total_ ? p->total_ : done;
    double now = fl_data_now();
    if (p->done_ < p->total_ && now - p->shown_ < p->every) return;
    p->shown_ = now;
    char extra[64] = "", line[200];
    if (format) {
        va_list args;
        va_start(args, format);
        vsnprintf(extra, sizeof extra, format, args);
        va_end(args);
    }
    fl__data_progress_line(p, now, extra, line, sizeof line);
    if (p->terminal_) {
        int width = (int)strlen(line); /* padding erases a longer previous line */
        fprintf(p->out, "\r%s%*s", line, p->width_ > width ? p->width_ - width : 0, "");
        p->width_ = width;
    } else fprintf(p->out, "%s\n", line);
    fflush(p->out);
}

FL_API void fl_data_progress_end(fl_data_progress *p) {
    if (!fl_given(p, "fl_data_progress_end", "the progress")) return;
    if (p->out && p->terminal_ && p->width_) fprintf(p->out, "\n");
    if (p->out) fflush(p->out);
    p->out = NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
