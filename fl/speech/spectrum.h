/* fl/speech/spectrum.h - spectra, filter banks and cepstra of the frames of a sound, as one op

   spectrum   per frame of x: (subtract mean), pre-emphasis, window, |DFT|^2, bands, log, cosine transform

   Operands (args: fl_spectrum_args): x [n, t], window [win], if args.bands: bands [b, width] and first i64
   [b], if args.cosine: cosine [b, d] -> [n, frames, d]. Frame k starts at sample k hop. All of x's dtype,
   any float. */
#ifndef FL_SPEECH_SPECTRUM_H
#define FL_SPEECH_SPECTRUM_H
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_energy { FL_ENERGY_NONE, FL_ENERGY_RAW, FL_ENERGY_WINDOWED } fl_energy;
typedef struct fl_spectrum_args {
    int64_t hop, n_fft;       /* window <= n_fft; frames are zero-padded to n_fft */
    int64_t remove_mean;      /* subtract each frame's mean */
    double preemphasis;       /* x[i] -= c x[i - 1]; the first sample uses itself as predecessor */
    int magnitude;            /* use |DFT|, not |DFT|^2 */
    int bands, cosine;        /* whether these operands are present */
    int log;                  /* log_scale ln(max(v, floor)) */
    double floor, log_scale;
    fl_energy energy; /* ln(max(sum x^2, energy_floor)), before pre-emphasis or after the window */
    int energy_replaces;      /* the energy replaces feature energy_at; default: it is inserted before it */
    int64_t energy_at;
    double energy_floor;
} fl_spectrum_args;
/* The spectrum op for x [..., t]: [..., frames, d]; no frames if x has fewer samples than the window. Band k
   is the sum of bins first[k], first[k] + 1, ... weighted by bands[k]. Bands and cosine may be NULL. */
FL_API fl_tensor *fl_spectrum(fl_tensor *x, fl_tensor *window, fl_tensor *bands, fl_tensor *first,
                              fl_tensor *cosine, fl_spectrum_args a);
FL_API fl_var *fv_spectrum(fl_var *x, fl_tensor *window, fl_tensor *bands, fl_tensor *first,
                           fl_tensor *cosine, fl_spectrum_args a);
/* Pre-emphasis of a whole sound, floats x [..., t]: y[t] = x[t] - coefficient x[t - 1], y[0] = x[0]
   (torchaudio.functional.preemphasis). For pre-emphasis per frame see fl_speech_conf. */
FL_API fl_tensor *fl_speech_preemphasis(fl_tensor *x, double coefficient);
FL_API fl_var *fv_speech_preemphasis(fl_var *x, double coefficient);
/* Registers the op and its kernel once. Called by the functions above; call it before starting threads. */
FL_API bool fl_spectrum_register(void);
FL_DATA fl_op fl_op_spectrum;

/* Maximal number of rows, one value per frame each, in a kernel's buffer. */
static inline int64_t fl__spectrum_rows(const fl_spectrum_args *a, int64_t win, int64_t bands, int64_t dims) {
    int64_t rows = 2 * a->n_fft;
    if (rows < win) rows = win;
    if (rows < bands) rows = bands;
    return rows < dims ? dims : rows;
}

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_SPECTRUM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_SPECTRUM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_SPECTRUM_IMPL
#define FL_SPEECH_SPECTRUM_IMPL
#include "../../fl_backend.h"
#include "../../kernels/speech/spectrum_loops.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/fft.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/move.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <pthread.h>

FL_DATA_DEFINED fl_op fl_op_spectrum;

/* i64 [frames win]: sample indices of the frames. */
static fl_tensor *fl__spectrum_indices(const fl_tensor *x, int64_t win, int64_t hop) {
    const int64_t frames = (x->shape[1] - win) / hop + 1;
    fl_tensor *start = fl_mul(fl_new_arange(x, 0, (double)frames, 1, FL_I64), fl_int(hop));
    fl_tensor *at = fl_add(fl_unsqueeze(start, 1), fl_new_arange(x, 0, (double)win, 1, FL_I64));
    return fl_reshape(at, FL_SHAPE(frames * win));
}

/* i64 [b width]: bin indices of the bands, limited to the last bin. */
static fl_tensor *fl__spectrum_bins(fl_tensor *first, int64_t width, int64_t bins) {
    fl_tensor *k = fl_new_arange(first, 0, (double)width, 1, FL_I64);
    fl_tensor *at = fl_minimum(fl_add(fl_unsqueeze(first, 1), k), fl_int(bins - 1));
    return fl_reshape(at, FL_SHAPE(first->shape[0] * width));
}

#define FL_EXPAND_FILE "../speech/spectrum.inc"
#include "../ops/expand.h"

static bool fl__compose_spectrum(const fl_call *c, fl_tensor **y) {
    const fl_spectrum_args *a = c->args;
    fl_tensor *const *in = c->in;
    fl_tensor *bands = a->bands ? in[2] : NULL, *first = a->bands ? in[3] : NULL;
    y[0] = fl__spectrum_composed(in[0], in[1], bands, first, a->cosine ? in[a->bands ? 4 : 2] : NULL, a);
    return y[0] != NULL;
}

static pthread_once_t fl__spectrum_once = PTHREAD_ONCE_INIT;
static bool fl__spectrum_known;

static void fl__spectrum_register(void) {
    fl_backend cpu = *fl_backend_at(fl_backend_index(fl_backend_cpu()->name));
    FL__REGISTER(spectrum, .args_size = sizeof(fl_spectrum_args),
                 .uses = "gather sum add sub mul div concat fft sqrt maximum minimum log matmul iota",
                 .compose = fl__compose_spectrum);
    if (fl_op_spectrum == FL_OP_NONE) return;
    fl__cpu_spectrum_slots(&cpu);
    fl__spectrum_known = fl_backend_use(&cpu, NULL);
}

FL_API bool fl_spectrum_register(void) {
    pthread_once(&fl__spectrum_once, fl__spectrum_register);
    return fl__spectrum_known;
}

static bool fl__spectrum_check(const fl_tensor *x, const fl_tensor *window, const fl_tensor *bands,
                               const fl_tensor *first, const fl_tensor *cosine, const fl_spectrum_args *a) {
    const fl_dtype d = x->dtype;
    const int64_t b = bands ? bands->shape[0] : a->n_fft / 2 + 1;
    if (x->ndim < 1 || x->ndim > FL_MAX_DIMS - 1 || !fl_dtype_is_float(d))
        return fl_err_false("fl_spectrum: got x %s of shape %s, expected floats [..., t]", fl_dtype_name(d),
                            FL_SHAPE_TEXT(x));
    if (!window || window->ndim != 1 || window->dtype != d || a->n_fft < 2 || a->n_fft > 1 << 20 ||
        a->hop < 1 || window->shape[0] < 1 || window->shape[0] > a->n_fft)
        return fl_err_false("fl_spectrum: got n_fft %lld, hop %lld, window %s %s; expected n_fft of 2 to "
                            "2^20, hop >= 1, window %s [1 to n_fft]", (long long)a->n_fft, (long long)a->hop,
                            window ? fl_dtype_name(window->dtype) : "NULL",
                            window ? FL_SHAPE_TEXT(window) : "", fl_dtype_name(d));
    if (bands && (bands->ndim != 2 || bands->dtype != d || !first || first->dtype != FL_I64 ||
                  first->ndim != 1 || first->shape[0] != b))
        return fl_err_false("fl_spectrum: got bands %s, first %s; expected %s [b, width] and i64 [b]",
                            FL_SHAPE_TEXT(bands), first ? FL_SHAPE_TEXT(first) : "NULL", fl_dtype_name(d));
    if (cosine && (cosine->ndim != 2 || cosine->dtype != d || cosine->shape[0] != b))
        return fl_err_false("fl_spectrum: got cosine %s %s, expected %s [%lld, d]",
                            fl_dtype_name(cosine->dtype),
                            FL_SHAPE_TEXT(cosine), fl_dtype_name(d), (long long)b);
    const int64_t dims = cosine ? cosine->shape[1] : b;
    if (a->energy && (a->energy_at < 0 || a->energy_at > dims - a->energy_replaces))
        return fl_err_false("fl_spectrum: energy_at must be in [0, %lld], got %lld",
                            (long long)(dims - a->energy_replaces), (long long)a->energy_at);
    return true;
}

FL_API fl_tensor *fl_spectrum(fl_tensor *x, fl_tensor *window, fl_tensor *bands, fl_tensor *first,
                              fl_tensor *cosine, fl_spectrum_args a) {
    if (fl_is_null_arg("fl_spectrum", x) || !(x = fl_materialise(x))) return NULL;
    if (!fl_spectrum_register()) return fl_raise();
    if (!fl__spectrum_check(x, window, bands, first, cosine, &a)) return NULL;
    fl_scope s = fl_scope_begin();
    a.bands = bands != NULL, a.cosine = cosine != NULL;
    const int64_t win = window->shape[0], t = x->shape[x->ndim - 1];
    const int64_t b = bands ? bands->shape[0] : a.n_fft / 2 + 1;
    fl_shape shape = fl_shape_of(x);
    shape.dim[shape.ndim - 1] = t < win ? 0 : (t - win) / a.hop + 1;
    shape.dim[shape.ndim++] = (cosine ? cosine->shape[1] : b) + (a.energy && !a.energy_replaces);
    int64_t lines = 1;
    for (int d = 0; d < x->ndim - 1; d++) lines *= x->shape[d];
    fl_shape flat = FL_SHAPE(lines, shape.dim[shape.ndim - 2], shape.dim[shape.ndim - 1]);
    if (fl_shape_numel(flat) == 0) return fl_scope_return(&s, fl_new_full(x, shape, 0));
    fl_tensor *y = fl_out_new("fl_spectrum", flat, x->dtype, x->dtype),
              *line = fl_reshape(x, FL_SHAPE(lines, t));
    fl_call c = {.op = fl_op_spectrum, .n_out = 1, .n_in = 2, .out = {y}, .in = {line, window}, .args = &a};
    if (bands) c.in[c.n_in++] = bands, c.in[c.n_in++] = first;
    if (cosine) c.in[c.n_in++] = cosine;
    y = y && line ? fl_call_result(&c) : NULL;
    return fl_scope_return(&s, y ? fl_reshape(y, shape) : NULL);
}

FL_API fl_var *fv_spectrum(fl_var *x, fl_tensor *window, fl_tensor *bands, fl_tensor *first,
                           fl_tensor *cosine, fl_spectrum_args a) {
    if (fl_is_null_arg("fv_spectrum", x) || !fl__spectrum_check(fv_value(x), window, bands, first, cosine,
                                                                &a))
        return NULL;
    fl_scope s = fl_scope_begin();
    const fl_tensor *v = fv_value(x);
    const int64_t t = v->shape[v->ndim - 1], lines = t ? fl_numel(v) / t : 0;
    fl_shape shape = fl_shape_of(v);
    fl_var *y = fv_reshape(x, FL_SHAPE(lines, t));
    if (t < window->shape[0] || !lines)
        return fv_scope_return(&s, fv_const(fl_spectrum(fv_value(x), window, bands, first, cosine, a)));
    y = y ? fv__spectrum_composed(y, window, bands, first, cosine, &a) : NULL;
    if (!y) return fv_scope_return(&s, NULL);
    shape.dim[shape.ndim - 1] = fv_value(y)->shape[1];
    shape.dim[shape.ndim++] = fv_value(y)->shape[2];
    return fv_scope_return(&s, fv_reshape(y, shape));
}

#endif
#endif
/* MIT licence: see LICENSE. */
