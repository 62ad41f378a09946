/* fl/speech/augment.h - augmentation of features: SpecAugment (frequency and time masks, time warp)

   Deterministic given the generator: fl_data_transform passes one derived from (seed, epoch, index). */
#ifndef FL_SPEECH_AUGMENT_H
#define FL_SPEECH_AUGMENT_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_speech_spec_augment_opts {
    fl_opts_guard guard_;
    int64_t warp;                         /* a frame is moved by less than this; 0: no warp */
    int64_t band_width, bands; /* number of masks of 0 to band_width bands; FL_I0 -> none; 0 -> 27, 2 */
    int64_t frame_width, frames;          /* number of masks of 0 to frame_width frames; 0 -> 100, 2 */
    double share;                         /* maximal fraction of frames per mask; 0 -> 1 */
    bool mean;                            /* fill masks with the mean, not with 0 */
    char _end;
} fl_speech_spec_augment_opts;
/* SpecAugment (Park et al., arXiv 1904.08779) of floats x [frames, d]: a random frame of [W, t - W) is moved
   and both sides are stretched, then bands and frames are masked. Mask widths are uniform from 0 to the
   maximum, inclusive. */
#define fl_speech_spec_augment(x, ...) FL__SPEECH_SPEC_AUGMENT(x, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_SPEC_AUGMENT(x, rng, ...) \
    fl_speech_spec_augment_opt(x, rng, FL_LITERAL(fl_speech_spec_augment_opts, __VA_ARGS__))
FL_API fl_tensor *fl_speech_spec_augment_opt(fl_tensor *x, fl_rng *rng, fl_speech_spec_augment_opts o);

/* Draws a uniform integer from low to high, inclusive. */
FL_API int64_t fl_speech_draw(fl_rng *rng, int64_t low, int64_t high);
/* Draws a uniform number from [low, high). */
FL_API double fl_speech_between(fl_rng *rng, double low, double high);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_AUGMENT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_AUGMENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_AUGMENT_IMPL
#define FL_SPEECH_AUGMENT_IMPL
#include "../ops/copy.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <math.h>
#include <string.h>

FL_API int64_t fl_speech_draw(fl_rng *rng, int64_t low, int64_t high) {
    const int64_t n = high - low + 1, k = (int64_t)(fl_rng_uniform(rng) * (double)n);
    return low + (k < n ? k : n - 1);
}

FL_API double fl_speech_between(fl_rng *rng, double low, double high) {
    return low + (high - low) * fl_rng_uniform(rng);
}

/* ---- SpecAugment ---- */

/* Output frame i reads input frame from(i), piecewise linear through the moved frame. */
static void fl__speech_warp(const float *x, float *y, int64_t t, int64_t d, int64_t w, fl_rng *rng) {
    const int64_t from = fl_speech_draw(rng, w, t - w - 1), to = from + fl_speech_draw(rng, 1 - w, w - 1);
    for (int64_t i = 0; i < t; i++) {
        const double at =
            i < to ? (double)i * (double)from / (double)to
                   : (double)from + (double)(i - to) * (double)(t - 1 - from) / (double)(t - 1 - to);
        const int64_t k = at < (double)(t - 1) ? (int64_t)at : t - 2;
        const float part = (float)(at - (double)k);
        for (int64_t j = 0; j < d; j++)
            y[i * d + j] = x[k * d + j] + part * (x[(k + 1) * d + j] - x[k * d + j]);
    }
}

FL_API fl_tensor *fl_speech_spec_augment_opt(fl_tensor *x, fl_rng *rng, fl_speech_spec_augment_opts o) {
    if (fl_is_null_arg("fl_speech_spec_augment", x)) return NULL;
    o.band_width = fl_option_int(o.band_width, 27), o.bands = fl_option_int(o.bands, 2);
    o.frame_width = fl_option_int(o.frame_width, 100), o.frames = fl_option_int(o.frames, 2);
    o.share = fl_option(o.share, 1);
    if (x->ndim != 2 || !fl_dtype_is_float(x->dtype) || o.warp < 0 || o.band_width < 0 || o.bands < 0 ||
        o.frame_width < 0 || o.frames < 0 || o.share < 0 || o.share > 1)
        return fl_err_null(
            "fl_speech_spec_augment: got %s of shape %s, warp %lld, %lld masks of up to %lld bands, %lld of "
            "up to %lld frames, share %g; expected floats [frames, d], numbers >= 0, share <= 1",
            fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), (long long)o.warp, (long long)o.bands,
            (long long)o.band_width, (long long)o.frames, (long long)o.frame_width, o.share);
    const int64_t t = x->shape[0], d = x->shape[1];
    fl_scope s = fl_scope_begin();
    fl_tensor *in = fl_contiguous(fl_cast(fl_to(x, "cpu"), FL_F32));
    fl_tensor *y = in ? fl_data_host_tensor(FL_SHAPE(t, d), FL_F32) : NULL;
    float *v = y ? fl_map(y, FL_WRITE) : NULL, fill = 0;
    const float *from = v ? fl_map(in, FL_READ) : NULL;
    if (!from) {
        if (v) fl_unmap(y, FL_WRITE);
        return fl_scope_return(&s, NULL);
    }
    if (o.warp && t > 2 * o.warp) fl__speech_warp(from, v, t, d, o.warp, rng);
    else memcpy(v, from, (size_t)(t * d) * sizeof *v);
    fl_unmap(in, FL_READ);
    double sum = 0;
    for (int64_t i = 0; o.mean && i < t * d; i++) sum += v[i];
    if (o.mean && t && d) fill = (float)(sum / (double)(t * d));
    for (int64_t k = 0; t && k < o.bands; k++) {
        const int64_t n = fl_speech_draw(rng, 0, o.band_width < d ? o.band_width : d),
                      at = fl_speech_draw(rng, 0, d - n);
        for (int64_t i = 0; i < t * n; i++) v[i / n * d + at + i % n] = fill;
    }
    const int64_t most = (int64_t)(o.share * (double)t), width = o.frame_width < most ? o.frame_width : most;
    for (int64_t k = 0; d && k < o.frames; k++) {
        const int64_t n = fl_speech_draw(rng, 0, width), at = fl_speech_draw(rng, 0, t - n);
        for (int64_t i = 0; i < n * d; i++) v[at * d + i] = fill;
    }
    fl_unmap(y, FL_WRITE);
    return fl_scope_return(&s, fl_cast(y, x->dtype));
}

#endif
#endif

/* MIT licence: see LICENSE. */
