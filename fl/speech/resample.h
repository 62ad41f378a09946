/* fl/speech/resample.h - sample-rate conversion: a polyphase windowed-sinc filter, whole or streamed */
#ifndef FL_SPEECH_RESAMPLE_H
#define FL_SPEECH_RESAMPLE_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_speech_resample_opts {
    fl_opts_guard guard_;
    int64_t crossings; /* zero crossings of the sinc on each side; 0 -> 6 */
    double rolloff;    /* cut-off as a fraction of the lower Nyquist frequency; 0 -> 0.99 */
    bool kaiser;       /* use a Kaiser window; default: Hann */
    double beta;       /* parameter of the Kaiser window; 0 -> 14.769656459379492 */
    char _end;
} fl_speech_resample_opts;
/* Resamples floats x [..., t] from rate `from` to rate `to` (samples per second): [..., ceil(t to / from)].
   y[i] = sum over k of x[k] h(i / to - k / from), h a windowed sinc (J. O. Smith), computed in f32. Equals
   torchaudio.functional.resample, whose "kaiser_best" is .crossings = 64, .rolloff = 0.9475937167399596,
   .kaiser = true. Returns x itself if the rates are equal. */
#define fl_speech_resample(x, ...) FL__SPEECH_RESAMPLE(x, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_RESAMPLE(x, from, to, ...) \
    fl_speech_resample_opt(x, from, to, FL_LITERAL(fl_speech_resample_opts, __VA_ARGS__))
FL_API fl_tensor *fl_speech_resample_opt(fl_tensor *x, int64_t from, int64_t to, fl_speech_resample_opts o);

/* Streaming resampler: the same bits as fl_speech_resample, however the sound is cut into pieces. */
typedef struct fl_speech_resampler fl_speech_resampler;
#define fl_speech_resampler_new(...) FL__SPEECH_RESAMPLER(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_RESAMPLER(from, to, ...) \
    fl_speech_resampler_new_opt(from, to, FL_LITERAL(fl_speech_resample_opts, __VA_ARGS__))
FL_API fl_speech_resampler *fl_speech_resampler_new_opt(int64_t from, int64_t to, fl_speech_resample_opts o);
FL_API void fl_speech_resampler_free(fl_speech_resampler *r);
/* Takes the next n samples. `end` marks the last piece and resets the resampler. Returns the number of
   samples now available at *y, which is valid until the next call; -1 after fl_fail. */
FL_API int64_t fl_speech_resampler_push(fl_speech_resampler *r, const float *x, int64_t n, bool end,
                                        const float **y);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_RESAMPLE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_RESAMPLE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_RESAMPLE_IMPL
#define FL_SPEECH_RESAMPLE_IMPL
#include "../../kernels/cpu/loops.h"
#include "../ops/copy.h"
#include "../ops/view.h"
#include <math.h>
#include <string.h>

/* Output i = j to + p is the dot product of phase p's taps with x from sample j from + first(p) on. The taps
   are tabulated, or, if there are few outputs per phase, computed for each output. */
struct fl_speech_resampler {
    fl_speech_resample_opts o;
    int64_t from, to; /* rates divided by their greatest common divisor */
    double base, reach; /* cut-off; half the filter length, in samples of x */
    int64_t taps;     /* per phase */
    int64_t *first;   /* [to]; NULL if there is no table */
    float *tap;       /* [to][taps], or [taps] */
    int64_t seen, done; /* samples received and produced */
    int64_t start, n, cap, out_cap; /* x holds samples start, ..., start + n - 1; before 0 there are zeros */
    float *x, *out;
    float *split; /* [from][split_row]: x deinterleaved, row m has samples m, m + from, ... */
    int64_t split_row, split_cap;
};

enum { FL__SPEECH_MOST_TAPS = 1 << 23 }; /* 32 MiB: coprime rates need many taps */

static int64_t fl__speech_gcd(int64_t a, int64_t b) { return b ? fl__speech_gcd(b, a % b) : a; }

/* The modified Bessel function of order 0. */
static double fl__speech_bessel(double x) {
    double sum = 1, term = 1;
    for (int k = 1; term > 1e-18 * sum; k++) sum += term *= x * x / (4.0 * k * k);
    return sum;
}

/* The windowed sinc at t zero crossings from its centre. */
static double fl__speech_filter(double t, const fl_speech_resample_opts *o) {
    const double width = (double)o->crossings, pi = 3.141592653589793;
    if (fabs(t) >= width) return 0;
    const double u = t / width, c = cos(u * pi / 2);
    const double w =
        o->kaiser ? fl__speech_bessel(o->beta * sqrt(1 - u * u)) / fl__speech_bessel(o->beta) : c * c;
    return t == 0 ? w : w * sin(pi * t) / (pi * t);
}

static int64_t fl__speech_first(const fl_speech_resampler *r, int64_t phase) {
    return r->first ? r->first[phase]
                    : (int64_t)ceil((double)phase * (double)r->from / (double)r->to - r->reach);
}

static void fl__speech_phase(const fl_speech_resampler *r, int64_t phase, float *tap) {
    const int64_t first = fl__speech_first(r, phase);
    for (int64_t k = 0; k < r->taps; k++) {
        const double t =
            ((double)(first + k) / (double)r->from - (double)phase / (double)r->to) * r->base;
        tap[k] = (float)(fl__speech_filter(t, &r->o) * r->base / (double)r->from);
    }
}

static bool fl__speech_taps(fl_speech_resampler *r, bool table) {
    r->base = (double)(r->from < r->to ? r->from : r->to) * r->o.rolloff;
    r->reach = (double)r->o.crossings * (double)r->from / r->base;
    r->taps = (int64_t)(2 * r->reach) + 2;
    if (!(r->reach < 1e6) || r->taps > FL__SPEECH_MOST_TAPS / r->to)
        return fl_fail("fl_speech_resample: the filter from %lld to %lld needs %lld taps, the maximum is %d",
                       (long long)r->from, (long long)r->to, (long long)(r->taps * r->to),
                       FL__SPEECH_MOST_TAPS);
    r->tap = fl_heap_alloc((size_t)((table ? r->to : 1) * r->taps) * sizeof *r->tap);
    int64_t *first = r->tap && table ? fl_heap_alloc((size_t)r->to * sizeof *first) : NULL;
    for (int64_t p = 0; first && p < r->to; p++) first[p] = fl__speech_first(r, p);
    r->first = first;
    for (int64_t p = 0; first && p < r->to; p++) fl__speech_phase(r, p, r->tap + p * r->taps);
    return r->tap && (first || !table);
}

/* Creates a resampler for a sound of n samples; n = -1: of unknown length. */
static fl_speech_resampler *fl__speech_resampler_for(int64_t from, int64_t to, int64_t n,
                                                     fl_speech_resample_opts o) {
    if (from < 1 || to < 1 || o.crossings < 0 || o.rolloff < 0 || o.rolloff > 1 || o.beta < 0) {
        fl_fail("fl_speech_resample: got rates %lld and %lld, crossings %lld, rolloff %g, beta %g; expected "
                "positive rates, crossings >= 0, rolloff in [0, 1], beta >= 0", (long long)from,
                (long long)to, (long long)o.crossings, o.rolloff, o.beta);
        return NULL;
    }
    o.crossings = o.crossings ? o.crossings : 6;
    o.rolloff = fl_option(o.rolloff, 0.99), o.beta = fl_option(o.beta, 14.769656459379492);
    fl_speech_resampler *r = fl_heap_alloc(sizeof *r);
    if (!r) return NULL;
    const int64_t common = fl__speech_gcd(from, to);
    *r = (fl_speech_resampler){.o = o, .from = from / common, .to = to / common};
    if (fl__speech_taps(r, n < 0 || n / r->from >= 2)) return r;
    fl_speech_resampler_free(r);
    return NULL;
}

FL_API fl_speech_resampler *fl_speech_resampler_new_opt(int64_t from, int64_t to, fl_speech_resample_opts o) {
    return fl__speech_resampler_for(from, to, -1, o);
}

FL_API void fl_speech_resampler_free(fl_speech_resampler *r) {
    if (!r) return;
    fl_heap_free(r->first);
    fl_heap_free(r->tap);
    fl_heap_free(r->x);
    fl_heap_free(r->split);
    fl_heap_free(r->out);
    fl_heap_free(r);
}

/* The first sample that output i reads. */
static int64_t fl__speech_reads(const fl_speech_resampler *r, int64_t i) {
    return i / r->to * r->from + fl__speech_first(r, i % r->to);
}

enum { FL__SPEECH_LANES = 32 };

FL__LOOPS_BEGIN
/* The next n outputs one by one, where r->x holds all the samples they read. */
FL__INLINE void fl__speech_filter_each(const fl_speech_resampler *r, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) {
        const float *x = r->x + (fl__speech_reads(r, r->done + i) - r->start);
        const float *tap = r->first ? r->tap + (r->done + i) % r->to * r->taps : r->tap;
        float sum = 0;
        for (int64_t k = 0; k < r->taps; k++) sum += x[k] * tap[k];
        y[i] = sum;
    }
}

/* `groups` outputs of every phase, starting at phase 0: outputs of one phase are vectorised. Sample
   q from + m is split[m][q], counted from the first sample read. */
FL__INLINE void fl__speech_filter_split(const fl_speech_resampler *r, int64_t groups, float *y) {
    for (int64_t p = 0; p < r->to; p++)
        for (int64_t j = 0; j < groups; j += FL__SPEECH_LANES) {
            float sum[FL__SPEECH_LANES] = {0};
            int64_t m = (r->first[p] - r->first[0]) % r->from, q = (r->first[p] - r->first[0]) / r->from;
            for (int64_t k = 0; k < r->taps; k++) {
                const float *x = r->split + m * r->split_row + q + j, tap = r->tap[p * r->taps + k];
                for (int i = 0; i < FL__SPEECH_LANES; i++) sum[i] += x[i] * tap;
                if (++m == r->from) m = 0, q++;
            }
            for (int64_t i = 0; i < FL__SPEECH_LANES && j + i < groups; i++) y[(j + i) * r->to + p] = sum[i];
        }
}

#define FL__SPEECH_FILTER(level)                                                                            \
    FL__TARGET_##level static void fl__speech_filter_##level(const fl_speech_resampler *r, int64_t groups, \
                                                             int64_t n, float *y) {                        \
        if (groups) fl__speech_filter_split(r, groups, y);                                                 \
        else fl__speech_filter_each(r, n, y);                                                              \
    }
FL__EACH_LEVEL(FL__SPEECH_FILTER)
#undef FL__SPEECH_FILTER
FL__LOOPS_END

typedef void (*fl__speech_filter_fn)(const fl_speech_resampler *r, int64_t groups, int64_t n, float *y);
static const fl__speech_filter_fn fl__speech_filters[FL__LEVEL_COUNT] = {FL__AT_LEVELS(fl__speech_filter)};

/* Deinterleaves the samples read by `groups` outputs of each phase. Returns false if out of memory. */
static bool fl__speech_split(fl_speech_resampler *r, int64_t groups) {
    const int64_t all = r->first[r->to - 1] - r->first[0] + r->taps; /* samples read by one group */
    r->split_row = (groups + FL__SPEECH_LANES) / FL__SPEECH_LANES * FL__SPEECH_LANES + all / r->from + 1;
    if (!fl_heap_grow(&r->split, &r->split_cap, r->split_row * r->from, sizeof *r->split)) return false;
    const float *x = r->x + (fl__speech_reads(r, r->done) - r->start);
    const int64_t n = (groups - 1) * r->from + all;
    for (int64_t m = 0; m < r->from; m++) {
        float *row = r->split + m * r->split_row;
        int64_t q = 0;
        for (int64_t k = m; k < n; k += r->from) row[q++] = x[k];
        memset(row + q, 0, (size_t)(r->split_row - q) * sizeof *row);
    }
    return true;
}

/* Computes outputs up to `end`, in groups of all phases if there are enough. */
static bool fl__speech_filter_to(fl_speech_resampler *r, int64_t end, float *y) {
    const fl__speech_filter_fn filter = fl__speech_filters[fl__level()];
    while (r->done < end) {
        const int64_t partial = (r->to - r->done % r->to) % r->to, groups = (end - r->done) / r->to;
        int64_t n = partial && partial < end - r->done ? partial : end - r->done;
        const bool many = r->first && !partial && groups >= FL__SPEECH_LANES / 2;
        if (!r->first) fl__speech_phase(r, r->done % r->to, r->tap), n = 1;
        if (many && !fl__speech_split(r, groups)) return false;
        if (many) n = groups * r->to;
        filter(r, many ? groups : 0, n, y);
        y += n, r->done += n;
    }
    return true;
}

static void fl__speech_resampler_reset(fl_speech_resampler *r) { r->seen = r->done = r->n = r->start = 0; }

FL_API int64_t fl_speech_resampler_push(fl_speech_resampler *r, const float *x, int64_t n, bool end,
                                        const float **y) {
    if (!fl_given(r, "fl_speech_resampler_push", "the resampler") ||
        !fl_given(y, "fl_speech_resampler_push", "the result")) return -1;
    if (r->from == r->to) { /* no filter, as in fl_speech_resample */
        if (!fl_heap_grow(&r->out, &r->out_cap, n + 1, sizeof *r->out)) return -1;
        if (n) memcpy(r->out, x, (size_t)n * sizeof *x);
        return *y = r->out, n;
    }
    const int64_t tail = end ? r->taps : 0;
    if (r->seen == 0 && r->n == 0) { /* zeros that the first output reads before the sound */
        r->start = fl__speech_first(r, 0);
        if (!fl_heap_grow(&r->x, &r->cap, -r->start, sizeof *r->x)) return -1;
        memset(r->x, 0, (size_t)-r->start * sizeof *r->x);
        r->n = -r->start;
    }
    if (!fl_heap_grow(&r->x, &r->cap, r->n + n + tail + 16, sizeof *r->x)) return -1;
    const int64_t seen = r->seen + n;
    int64_t ready = r->done;
    if (end) ready = (seen * r->to + r->from - 1) / r->from;
    else {
        const int64_t left = seen - r->taps - fl__speech_reads(r, ready);
        if (left > 0) ready += left / r->from * r->to; /* whole groups of phases, then one by one */
        while (fl__speech_reads(r, ready) + r->taps <= seen) ready++;
    }
    const int64_t made = ready - r->done;
    if (!fl_heap_grow(&r->out, &r->out_cap, made + 1, sizeof *r->out)) return -1;
    if (n) memcpy(r->x + r->n, x, (size_t)n * sizeof *x);
    memset(r->x + r->n + n, 0, (size_t)(tail + 16) * sizeof *x);
    r->n += n, r->seen = seen;
    if (!fl__speech_filter_to(r, ready, r->out)) return -1;
    *y = r->out;
    if (end) {
        fl__speech_resampler_reset(r);
        return made;
    }
    const int64_t drop = fl__speech_reads(r, r->done) - r->start;
    if (drop > 0) {
        r->n -= drop, r->start += drop;
        memmove(r->x, r->x + drop, (size_t)r->n * sizeof *r->x);
    }
    return made;
}

FL_API fl_tensor *fl_speech_resample_opt(fl_tensor *x, int64_t from, int64_t to, fl_speech_resample_opts o) {
    if (fl_is_null_arg("fl_speech_resample", x)) return NULL;
    if (x->ndim < 1 || !fl_dtype_is_float(x->dtype))
        return fl_err_null("fl_speech_resample: got %s of shape %s, expected floats [..., t]",
                           fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x));
    if (from == to) return x;
    enum { PIECE = 32768 }; /* fits in the cache */
    fl_speech_resampler *r = fl__speech_resampler_for(from, to, fl_numel(x), o);
    if (!r) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F32)), *y = NULL;
    const int64_t t = x->shape[x->ndim - 1], lines = t ? fl_numel(x) / t : 0;
    fl_shape shape = fl_shape_of(x);
    const int64_t n = shape.dim[shape.ndim - 1] = (t * r->to + r->from - 1) / r->from;
    /* Each piece completes whole groups of all phases; the first also has the overlap of the filters. */
    const int64_t group = FL__SPEECH_LANES * r->from, overlap = fl__speech_first(r, 0) + r->taps - 1,
                  piece = PIECE > group ? PIECE / group * group : group;
    const float *source = in ? fl_map(in, FL_READ) : NULL; /* first: deferred calls drop what they read */
    if (source) y = fl_data_host_tensor(shape, FL_F32);
    float *result = y ? fl_map(y, FL_WRITE) : NULL;
    bool ok = result != NULL;
    for (int64_t i = 0; ok && i < lines; i++) {
        float *to_line = result + i * n;
        for (int64_t at = 0, more; ok && at < t; at += more) {
            const float *out;
            more = at ? piece : piece + overlap;
            if (more > t - at) more = t - at;
            const int64_t made =
                fl_speech_resampler_push(r, source + i * t + at, more, at + more == t, &out);
            if (made < 0) ok = fl_raise();
            else memcpy(to_line, out, (size_t)made * sizeof *out), to_line += made;
        }
    }
    if (result) fl_unmap(y, FL_WRITE);
    if (source) fl_unmap(in, FL_READ);
    fl_speech_resampler_free(r);
    return fl_scope_return(&s, ok ? y : NULL);
}

#endif
#endif

/* MIT licence: see LICENSE. */
