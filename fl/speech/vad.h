/* fl/speech/vad.h - voice activity detection: the Silero detector, and speech segments */
#ifndef FL_SPEECH_VAD_H
#define FL_SPEECH_VAD_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { FL_SPEECH_VAD_RATE = 16000, FL_SPEECH_VAD_CHUNK = 512 };
/* Silero's voice activity detector (github.com/snakers4/silero-vad): an STFT by convolution, four
   convolutions, an LSTM cell. Loads the weights from a safetensors file with Silero's tensor names. Returns
   NULL after fl_fail if a tensor is missing or has another shape. */
typedef struct fl_speech_vad fl_speech_vad;
FL_API fl_speech_vad *fl_speech_vad_load(const char *path);
FL_API void fl_speech_vad_free(fl_speech_vad *v); /* NULL is allowed */
/* Takes the next n samples, at 16,000 Hz. Returns the number of 512-sample chunks completed, -1 after
   fl_fail; *p, valid until the next call, has the speech probability of each. `end` pads the last chunk with
   zeros and resets the detector. The cuts into pieces change the results by rounding only. */
FL_API int64_t fl_speech_vad_push(fl_speech_vad *v, const float *x, int64_t n, bool end, const float **p);

typedef struct fl_speech_segment {
    int64_t begin, end; /* samples */
} fl_speech_segment;
typedef struct fl_speech_segments_opts {
    fl_opts_guard guard_;
    double on, off;              /* speech starts at probability `on`, ends below `off`; 0 -> 0.5, 0.35 */
    double speech, silence, pad; /* seconds: shortest ones, and padding; 0 -> 0.25, 0.1, 0.03 */
    char _end;
} fl_speech_segments_opts;
/* Writes the speech segments of n probabilities, one per 512 samples, to out, which must have space for n.
   Returns the number of segments. */
#define fl_speech_segments(...) FL__SPEECH_SEGMENTS(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_SEGMENTS(p, n, out, ...) \
    fl_speech_segments_opt(p, n, out, FL_LITERAL(fl_speech_segments_opts, __VA_ARGS__))
FL_API int64_t fl_speech_segments_opt(const float *p, int64_t n, fl_speech_segment *out,
                                      fl_speech_segments_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_VAD_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_VAD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_VAD_IMPL
#define FL_SPEECH_VAD_IMPL
#include "../ops/activation.h"
#include "../ops/conv.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/recurrent.h"
#include "../ops/view.h"
#include <string.h>

enum {
    FL__VAD_WEIGHTS = 15,
    FL__VAD_BEFORE = 64,
    FL__VAD_MIRROR = 64,
    FL__VAD_BINS = 129,
    FL__VAD_HIDDEN = 128
};
static const struct { const char *name; fl_shape shape; } fl__vad_weights[FL__VAD_WEIGHTS] = {
    {"stft_conv.weight", {3, {258, 1, 256}}},  {"conv1.weight", {3, {128, 129, 3}}},
    {"conv1.bias", {1, {128}}},                {"conv2.weight", {3, {64, 128, 3}}},
    {"conv2.bias", {1, {64}}},                 {"conv3.weight", {3, {64, 64, 3}}},
    {"conv3.bias", {1, {64}}},                 {"conv4.weight", {3, {128, 64, 3}}},
    {"conv4.bias", {1, {128}}},                {"lstm_cell.weight_ih", {2, {512, 128}}},
    {"lstm_cell.weight_hh", {2, {512, 128}}},  {"lstm_cell.bias_ih", {1, {512}}},
    {"lstm_cell.bias_hh", {1, {512}}},         {"final_conv.weight", {3, {1, 128, 1}}},
    {"final_conv.bias", {1, {1}}}};

struct fl_speech_vad {
    fl_tensor *w[FL__VAD_WEIGHTS], *h, *c; /* h, c: the cell's state, NULL at the start */
    float *x, *p;                          /* x: the last 64 processed samples, then pending ones */
    int64_t n, cap, p_cap;
};

FL_API fl_speech_vad *fl_speech_vad_load(const char *path) {
    fl_data_file *f = fl_data_open_safetensors(path);
    fl_speech_vad *v = f ? fl_heap_alloc(sizeof *v) : NULL;
    bool ok = v != NULL;
    if (ok) *v = (fl_speech_vad){0};
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    for (int k = 0; ok && k < FL__VAD_WEIGHTS; k++) {
        fl_tensor *t = fl_data_read(f, fl__vad_weights[k].name);
        ok = t && (t = fl_cast(t, FL_F32));
        const fl_shape *want = &fl__vad_weights[k].shape;
        bool fits = ok && t->ndim == want->ndim;
        for (int d = 0; fits && d < want->ndim; d++) fits = t->shape[d] == want->dim[d];
        if (ok && !fits)
            ok = fl_fail("fl_speech_vad_load: %s: tensor %s has shape %s, expected %s", path,
                         fl__vad_weights[k].name, FL_SHAPE_TEXT(t), fl_text_of_shape(*want).s);
        if (ok) v->w[k] = fl_keep(t);
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    fl_data_close(f);
    if (ok) return v;
    fl_speech_vad_free(v);
    return NULL;
}

static void fl__vad_restart(fl_speech_vad *v) {
    fl_drop(v->h);
    fl_drop(v->c);
    v->h = v->c = NULL;
    v->n = 0;
}

FL_API void fl_speech_vad_free(fl_speech_vad *v) {
    if (!v) return;
    fl__vad_restart(v);
    for (int k = 0; k < FL__VAD_WEIGHTS; k++) fl_drop(v->w[k]);
    fl_heap_free(v->x);
    fl_heap_free(v->p);
    fl_heap_free(v);
}

/* Chunks preceded by 64 samples, with the last 64 reflected after them: [k, 1, 640]. */
static fl_tensor *fl__vad_chunks(const fl_speech_vad *v, int64_t k) {
    enum { WIDE = FL__VAD_BEFORE + FL_SPEECH_VAD_CHUNK };
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(k, 1, WIDE + FL__VAD_MIRROR), FL_F32);
    float *p = t ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; p && i < k; i++) {
        float *to = p + i * (WIDE + FL__VAD_MIRROR);
        memcpy(to, v->x + i * FL_SPEECH_VAD_CHUNK, WIDE * sizeof *to);
        for (int m = 0; m < FL__VAD_MIRROR; m++) to[WIDE + m] = to[WIDE - 2 - m];
    }
    if (p) fl_unmap(t, FL_WRITE);
    return p ? t : NULL;
}

/* Speech probabilities [k] of the chunks, and the state after the last one. */
static fl_tensor *fl__vad_run(const fl_speech_vad *v, fl_tensor *x, fl_tensor **h, fl_tensor **c) {
    const int64_t k = x->shape[0];
    fl_tensor *const *w = v->w;
    x = fl_conv(x, w[0], NULL, .stride = {128});
    fl_tensor *re = fl_slice(x, 1, 0, FL__VAD_BINS, 1),
              *im = fl_slice(x, 1, FL__VAD_BINS, 2 * FL__VAD_BINS, 1);
    x = fl_sqrt(fl_add(fl_square(re), fl_square(im)));
    for (int layer = 0; layer < 4; layer++)
        x = fl_relu(fl_conv(x, w[1 + 2 * layer], w[2 + 2 * layer], .pad = {1},
                            .stride = {layer == 1 || layer == 2 ? 2 : 1}));
    x = fl_rnn(FL_LSTM, fl_reshape(x, FL_SHAPE(k, 1, FL__VAD_HIDDEN)), w + 9, .h0 = v->h, .c0 = v->c,
               .h_out = h, .c_out = c);
    x = fl_relu(fl_reshape(x, FL_SHAPE(k, FL__VAD_HIDDEN)));
    x = fl_add(fl_matmul(x, fl_reshape(w[13], FL_SHAPE(FL__VAD_HIDDEN, 1))), w[14]);
    return fl_sigmoid(x);
}

FL_API int64_t fl_speech_vad_push(fl_speech_vad *v, const float *x, int64_t n, bool end, const float **p) {
    if (!fl_given(v, "fl_speech_vad_push", "the detector") ||
        !fl_given(p, "fl_speech_vad_push", "the result")) return -1;
    const int64_t before = v->n ? v->n : FL__VAD_BEFORE, most = before + n + FL_SPEECH_VAD_CHUNK;
    if (!fl_heap_grow(&v->x, &v->cap, most, sizeof *v->x)) return -1;
    if (!v->n) memset(v->x, 0, FL__VAD_BEFORE * sizeof *v->x);
    if (n) memcpy(v->x + before, x, (size_t)n * sizeof *x);
    const int64_t available = before + n - FL__VAD_BEFORE,
                  k = (available + (end ? FL_SPEECH_VAD_CHUNK - 1 : 0)) / FL_SPEECH_VAD_CHUNK;
    if (!fl_heap_grow(&v->p, &v->p_cap, k + 1, sizeof *v->p)) return -1;
    *p = v->p;
    memset(v->x + before + n, 0, FL_SPEECH_VAD_CHUNK * sizeof *v->x);
    if (k) {
        fl_quiet(1);
        fl_scope s = fl_scope_begin();
        fl_tensor *h = NULL, *c = NULL, *chunks = fl__vad_chunks(v, k),
                  *y = chunks ? fl__vad_run(v, chunks, &h, &c) : NULL;
        const bool ok = y && h && c && fl_to_host(y, v->p, (size_t)k * sizeof *v->p);
        if (ok) {
            fl_drop(v->h), fl_drop(v->c);
            v->h = fl_keep(h), v->c = fl_keep(c);
        }
        fl_scope_end(&s);
        fl_quiet(-1);
        if (!ok) return -1;
    }
    v->n = before + n;
    if (end) return fl__vad_restart(v), k;
    v->n -= k * FL_SPEECH_VAD_CHUNK;
    memmove(v->x, v->x + k * FL_SPEECH_VAD_CHUNK, (size_t)v->n * sizeof *v->x);
    return k;
}

FL_API int64_t fl_speech_segments_opt(const float *p, int64_t n, fl_speech_segment *out,
                                      fl_speech_segments_opts o) {
    const double rate = FL_SPEECH_VAD_RATE;
    const int64_t chunk = FL_SPEECH_VAD_CHUNK, speech = (int64_t)(fl_option(o.speech, 0.25) * rate),
                  silence = (int64_t)(fl_option(o.silence, 0.1) * rate),
                  pad = (int64_t)(fl_option(o.pad, 0.03) * rate);
    const double on = fl_option(o.on, 0.5), off = fl_option(o.off, 0.35);
    int64_t found = 0, begin = -1, quiet = -1; /* quiet: start of the current silence */
    for (int64_t i = 0; i <= n; i++) {
        const int64_t at = i * chunk;
        if (i < n && p[i] >= on) {
            if (begin < 0) begin = at;
            quiet = -1;
            continue;
        }
        if (begin < 0 || (i < n && p[i] >= off)) continue;
        if (quiet < 0) quiet = at;
        if (i < n && at + chunk - quiet < silence) continue;
        if (quiet - begin >= speech) out[found++] = (fl_speech_segment){begin, quiet};
        begin = quiet = -1;
    }
    for (int64_t k = 0; k < found; k++) { /* adjacent segments share the silence between them */
        const int64_t space = k + 1 < found ? (out[k + 1].begin - out[k].end) / 2 : n * chunk - out[k].end;
        const int64_t more = pad < space ? pad : space;
        out[k].end += more;
        if (k == 0) out[k].begin = out[k].begin > pad ? out[k].begin - pad : 0;
        if (k + 1 < found) out[k + 1].begin -= more;
    }
    return found;
}

#endif
#endif

/* MIT licence: see LICENSE. */
