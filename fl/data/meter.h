/* meter.h - averages, errors, timers, and a line of progress */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_METER_H
#define FL_DATA_METER_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weighted mean and variance. Start with {0}. */
typedef struct fl_data_average {
    double mean;   /* sum w x / sum w */
    double weight; /* sum w */
    /* private */
    double squares_, weight2_;
} fl_data_average;
/* Weights must be positive, others are ignored. */
FL_API void fl_data_average_add(fl_data_average *m, double value, double weight);
/* Every element of t with weight 1. */
FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t);
/* Unbiased: sum w (x - mean)^2 / (W - sum w^2 / W); NaN below two values. */
FL_API double fl_data_average_variance(const fl_data_average *m);

/* Percentage of wrong classes. Start with {0}. */
typedef struct fl_data_frame_error {
    int64_t wrong, total;
} fl_data_frame_error;
/* scores [..., classes] (the largest wins) or classes [...], against target [...] of integers. */
FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target);
FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m); /* NaN before the first */

/* Seconds by a monotonic clock, summed over start/stop pairs. Start with {0}. */
typedef struct fl_data_timer {
    int64_t units; /* yours to count: samples, batches, ... */
    /* private */
    double sum_, since_;
    bool running_;
} fl_data_timer;
FL_API void fl_data_timer_start(fl_data_timer *m);
FL_API void fl_data_timer_stop(fl_data_timer *m);
FL_API double fl_data_timer_seconds(const fl_data_timer *m); /* the running part included */
/* Seconds / units; NaN without units. */
FL_API double fl_data_timer_per_unit(const fl_data_timer *m);
/* Seconds of the monotonic clock, from an arbitrary start. */
FL_API double fl_data_now(void);

/* One line, redrawn, on a terminal; a plain line now and then in a log. */
typedef struct fl_data_progress {
    FILE *out;    /* NULL: off, every call returns at once */
    double every; /* seconds between lines: 0.1 on a terminal, 10 in a log; set it after begin */
    /* private */
    const char *label_;
    int64_t total_, done_;
    double started_, shown_;
    int width_;
    bool terminal_;
} fl_data_progress;
/* label stays the caller's and must live as long. */
FL_API fl_data_progress fl_data_progress_begin(FILE *out, const char *label, int64_t total);
/* `done` of total are done; format (NULL: nothing) adds text, such as the loss. */
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
#include "../ops/reduce.h"
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
    double d = m->weight - m->weight2_ / m->weight;
    return d > 0 ? m->squares_ / d : NAN;
}

/* t as a row-major array of dtype d, until fl_unmap(*host, FL_READ); NULL after fl_fail. */
static const void *fl__data_map(fl_tensor *t, fl_dtype d, fl_tensor **host) {
    fl_tensor *cast = fl_cast(t, d);
    *host = cast ? fl_contiguous(cast) : NULL;
    return *host ? fl_map(*host, FL_READ) : NULL;
}

FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t) {
    if (!m || !t) return fl_fail("fl_data_average_add_tensor: the meter or the tensor is NULL");
    if (fl_numel(t) == 0) return true;
    fl_tensor *host;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const double *x = fl__data_map(t, FL_F64, &host);
    for (int64_t i = 0; x && i < fl_numel(t); i++) fl_data_average_add(m, x[i], 1);
    if (x) fl_unmap(host, FL_READ);
    fl_scope_end(&s);
    fl_quiet(-1);
    return x != NULL;
}

/* Both as i64 arrays of n, compared. */
static bool fl__data_count_wrong(fl_data_frame_error *m, fl_tensor *guess, fl_tensor *target) {
    fl_tensor *a, *b;
    int64_t n = fl_numel(target), wrong = 0;
    if (n == 0) return true;
    const int64_t *x = fl__data_map(guess, FL_I64, &a), *y = NULL;
    if (x) y = fl__data_map(target, FL_I64, &b);
    for (int64_t i = 0; y && i < n; i++) wrong += x[i] != y[i];
    if (y) fl_unmap(b, FL_READ);
    if (x) fl_unmap(a, FL_READ);
    if (!y) return false;
    m->wrong += wrong;
    m->total += n;
    return true;
}

FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target) {
    if (!m || !scores || !target) return fl_fail("fl_data_frame_error_add: an argument is NULL");
    int extra = scores->ndim - target->ndim;
    char a[96], b[96];
    if (fl_dtype_is_float(target->dtype) || extra < 0 || extra > 1 ||
        (!extra && fl_dtype_is_float(scores->dtype)) ||
        memcmp(scores->shape, target->shape, (size_t)target->ndim * sizeof *target->shape))
        return fl_fail(
            "fl_data_frame_error_add: scores %s %s, target %s %s", fl_dtype_name(scores->dtype),
            fl_shape_text(fl_shape_of(scores), a, sizeof a), fl_dtype_name(target->dtype),
            fl_shape_text(fl_shape_of(target), b, sizeof b));
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_tensor *guess = extra && fl_numel(target) ? fl_argmax(scores, -1, false) : scores;
    bool ok = guess && fl__data_count_wrong(m, guess, target);
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok;
}

FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m) {
    return m->total ? 100.0 * (double)m->wrong / (double)m->total : NAN;
}

FL_API double fl_data_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

FL_API void fl_data_timer_start(fl_data_timer *m) {
    if (m->running_) return;
    m->running_ = true;
    m->since_ = fl_data_now();
}

FL_API void fl_data_timer_stop(fl_data_timer *m) {
    if (m->running_) m->sum_ += fl_data_now() - m->since_;
    m->running_ = false;
}

FL_API double fl_data_timer_seconds(const fl_data_timer *m) {
    return m->sum_ + (m->running_ ? fl_data_now() - m->since_ : 0);
}

FL_API double fl_data_timer_per_unit(const fl_data_timer *m) {
    return m->units ? fl_data_timer_seconds(m) / (double)m->units : NAN;
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
        int width = (int)strlen(line); /* the rest of a longer line before is wiped */
        fprintf(p->out, "\r%s%*s", line, p->width_ > width ? p->width_ - width : 0, "");
        p->width_ = width;
    } else fprintf(p->out, "%s\n", line);
    fflush(p->out);
}

FL_API void fl_data_progress_end(fl_data_progress *p) {
    if (p->out && p->terminal_ && p->width_) fprintf(p->out, "\n");
    if (p->out) fflush(p->out);
    p->out = NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
