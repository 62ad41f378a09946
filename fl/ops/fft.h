/* fl/ops/fft.h - discrete and short-time Fourier transforms

   Complex numbers are pairs (re, im) along the last axis, as torch.view_as_real gives: [..., n, ..., 2].
   fft    y_k = sum over j of x_j exp(-2 pi i j k / n) along one axis
   ifft   y_k = 1 / n sum over j of x_j exp(+2 pi i j k / n)

   Record (args: fl_fft_args): fft x -> y, one transform without the factor 1 / n; x is a float. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FFT_H
#define FL_OPS_FFT_H
#include "../records/fft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Normalisation: the inverse divides by n, both transforms by sqrt(n), or the forward one by n. */
typedef enum fl_fft_norm { FL_FFT_BACKWARD, FL_FFT_ORTHO, FL_FFT_FORWARD } fl_fft_norm;
typedef struct fl_fft_opts {
    fl_opts_guard guard_;
    int64_t n; /* size along the axis: x is cut or padded with zeros at the end; 0: x's size. Not for irfft */
    fl_fft_norm norm;
    char _end;
} fl_fft_opts;
/* torch.fft.fft, ifft, fft2 and ifft2 of complex pairs [..., n, ..., 2]. axis is counted without the axis of
   the pairs: -1 is the one before it. fft2 and ifft2 transform the last two axes, .n sets the size of both.
   Any n > 0. Floats; integers become f32. Example: fl_fft(x, -1, .n = 512, .norm = FL_FFT_ORTHO) */
#define fl_fft(...) FL__FFT(fl_fft_opt, __VA_ARGS__, ._end = 0)
#define fv_fft(...) FL__FFT(fv_fft_opt, __VA_ARGS__, ._end = 0)
#define fl_ifft(...) FL__FFT(fl_ifft_opt, __VA_ARGS__, ._end = 0)
#define fv_ifft(...) FL__FFT(fv_ifft_opt, __VA_ARGS__, ._end = 0)
#define fl_fft2(...) FL__FFT2(fl_fft2_opt, __VA_ARGS__, ._end = 0)
#define fv_fft2(...) FL__FFT2(fv_fft2_opt, __VA_ARGS__, ._end = 0)
#define fl_ifft2(...) FL__FFT2(fl_ifft2_opt, __VA_ARGS__, ._end = 0)
#define fv_ifft2(...) FL__FFT2(fv_ifft2_opt, __VA_ARGS__, ._end = 0)
#define FL__FFT(f, x, axis, ...) f(x, axis, FL_LITERAL(fl_fft_opts, __VA_ARGS__))
#define FL__FFT2(f, x, ...) f(x, FL_LITERAL(fl_fft_opts, __VA_ARGS__))
FL_API fl_tensor *fl_fft_opt(fl_tensor *x, int axis, fl_fft_opts o);
FL_API fl_var *fv_fft_opt(fl_var *x, int axis, fl_fft_opts o);
FL_API fl_tensor *fl_ifft_opt(fl_tensor *x, int axis, fl_fft_opts o);
FL_API fl_var *fv_ifft_opt(fl_var *x, int axis, fl_fft_opts o);
FL_API fl_tensor *fl_fft2_opt(fl_tensor *x, fl_fft_opts o);
FL_API fl_var *fv_fft2_opt(fl_var *x, fl_fft_opts o);
FL_API fl_tensor *fl_ifft2_opt(fl_tensor *x, fl_fft_opts o);
FL_API fl_var *fv_ifft2_opt(fl_var *x, fl_fft_opts o);
/* rfft: n real numbers along axis -> the frequencies 0 to n / 2 as pairs. irfft: at least n / 2 + 1
   frequencies (the rest is ignored) -> n real numbers along axis. */
#define fl_rfft(...) FL__FFT(fl_rfft_opt, __VA_ARGS__, ._end = 0)
#define fv_rfft(...) FL__FFT(fv_rfft_opt, __VA_ARGS__, ._end = 0)
#define fl_irfft(...) FL__IRFFT(fl_irfft_opt, __VA_ARGS__, ._end = 0)
#define fv_irfft(...) FL__IRFFT(fv_irfft_opt, __VA_ARGS__, ._end = 0)
#define FL__IRFFT(f, x, n, axis, ...) f(x, n, axis, FL_LITERAL(fl_fft_opts, __VA_ARGS__))
FL_API fl_tensor *fl_rfft_opt(fl_tensor *x, int axis, fl_fft_opts o);
FL_API fl_var *fv_rfft_opt(fl_var *x, int axis, fl_fft_opts o);
FL_API fl_tensor *fl_irfft_opt(fl_tensor *x, int64_t n, int axis, fl_fft_opts o);
FL_API fl_var *fv_irfft_opt(fl_var *x, int64_t n, int axis, fl_fft_opts o);

typedef struct fl_fftn_opts {
    fl_opts_guard guard_;
    fl_axes axes; /* axes to transform, each once, without that of the pairs; none: the last s.ndim, or all */
    fl_shape s;   /* size along each of them: cut or padded with zeros; 0, or no s: x's size */
    fl_fft_norm norm;
    char _end;
} fl_fftn_opts;
/* torch.fft.fftn and ifftn of pairs: fl_fftn(x, .axes = FL_AXES(0, 2), .s = FL_SHAPE(8, 16)) */
#define fl_fftn(...) FL__FFTN(fl_fftn_opt, __VA_ARGS__, ._end = 0)
#define fv_fftn(...) FL__FFTN(fv_fftn_opt, __VA_ARGS__, ._end = 0)
#define fl_ifftn(...) FL__FFTN(fl_ifftn_opt, __VA_ARGS__, ._end = 0)
#define fv_ifftn(...) FL__FFTN(fv_ifftn_opt, __VA_ARGS__, ._end = 0)
#define FL__FFTN(f, x, ...) f(x, FL_LITERAL(fl_fftn_opts, __VA_ARGS__))
FL_API fl_tensor *fl_fftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_fftn_opt(fl_var *x, fl_fftn_opts o);
FL_API fl_tensor *fl_ifftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_ifftn_opt(fl_var *x, fl_fftn_opts o);
/* torch.fft.rfftn of real numbers: rfft along the last of the axes (frequencies 0 to n / 2), fft along the
   others. rfft2 transforms the last two axes if none are given. */
#define fl_rfftn(...) FL__FFTN(fl_rfftn_opt, __VA_ARGS__, ._end = 0)
#define fv_rfftn(...) FL__FFTN(fv_rfftn_opt, __VA_ARGS__, ._end = 0)
#define fl_rfft2(...) FL__FFTN(fl_rfft2_opt, __VA_ARGS__, ._end = 0)
#define fv_rfft2(...) FL__FFTN(fv_rfft2_opt, __VA_ARGS__, ._end = 0)
FL_API fl_tensor *fl_rfftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_rfftn_opt(fl_var *x, fl_fftn_opts o);
FL_API fl_tensor *fl_rfft2_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_rfft2_opt(fl_var *x, fl_fftn_opts o);
/* The inverses, with real results: s has their sizes. The last axis, of m frequencies, becomes 2 (m - 1)
   numbers unless s says otherwise; missing frequencies are 0. */
#define fl_irfftn(...) FL__FFTN(fl_irfftn_opt, __VA_ARGS__, ._end = 0)
#define fv_irfftn(...) FL__FFTN(fv_irfftn_opt, __VA_ARGS__, ._end = 0)
#define fl_irfft2(...) FL__FFTN(fl_irfft2_opt, __VA_ARGS__, ._end = 0)
#define fv_irfft2(...) FL__FFTN(fv_irfft2_opt, __VA_ARGS__, ._end = 0)
FL_API fl_tensor *fl_irfftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_irfftn_opt(fl_var *x, fl_fftn_opts o);
FL_API fl_tensor *fl_irfft2_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_irfft2_opt(fl_var *x, fl_fftn_opts o);

typedef struct fl_stft_opts {
    fl_opts_guard guard_;
    int64_t hop;        /* samples between frames; 0: n_fft / 4 */
    int64_t win_length; /* window size, padded with zeros on both sides to n_fft; 0: n_fft */
    fl_tensor *window;  /* [win_length], floats; NULL: ones */
    bool no_center;     /* frame k starts at sample k hop; else it is centred there, with x padded by
                           reflection */
    bool normalized;    /* divide by sqrt(n_fft) */
    bool two_sided;     /* all n_fft frequencies, not n_fft / 2 + 1 */
    int64_t length;     /* istft: samples of the result; 0: all that the frames cover */
    char _end;
} fl_stft_opts;
/* torch.stft: x [..., t] -> pairs [..., frequencies, frames, 2], and its inverse torch.istft: overlap-add of
   the windowed frames over the sum of the squared windows, which must not be 0 anywhere (error).
   Example: fl_stft(x, 512, .window = w) */
#define fl_stft(...) FL__STFT(fl_stft_opt, __VA_ARGS__, ._end = 0)
#define fv_stft(...) FL__STFT(fv_stft_opt, __VA_ARGS__, ._end = 0)
#define fl_istft(...) FL__STFT(fl_istft_opt, __VA_ARGS__, ._end = 0)
#define fv_istft(...) FL__STFT(fv_istft_opt, __VA_ARGS__, ._end = 0)
#define FL__STFT(f, x, n_fft, ...) f(x, n_fft, FL_LITERAL(fl_stft_opts, __VA_ARGS__))
FL_API fl_tensor *fl_stft_opt(fl_tensor *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_var *fv_stft_opt(fl_var *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_tensor *fl_istft_opt(fl_tensor *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_var *fv_istft_opt(fl_var *x, int64_t n_fft, fl_stft_opts o);

FL_PRIVATE void fl__register_fft(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_FFT_H */

#if defined(FL_IMPL_ONLY_OPS_FFT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_FFT_IMPL
#define FL_OPS_FFT_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "linear.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
/* ---- shape rules ---- */

/* The axis in [0, dims); -1 after an error, also if its size is 0. */
static int fl__fft_axis(const char *fn, const fl_tensor *x, int axis, int dims) {
    int at = axis < 0 ? axis + dims : axis;
    if (at >= 0 && at < dims && x->shape[at] > 0) return at;
    return fl_err_null("%s: axis %d of shape %s does not exist or is empty", fn, axis, FL_SHAPE_TEXT(x)), -1;
}

static bool fl__has_pairs(const char *fn, const fl_tensor *x) {
    return (x->ndim >= 2 && x->shape[x->ndim - 1] == 2) ||
           fl_err_false("%s: shape %s has no pairs along the last axis, expected [..., 2]", fn,
                        FL_SHAPE_TEXT(x));
}

/* The same for complex x, without the axis of the pairs. */
static int fl__pairs_axis(const char *fn, const fl_tensor *x, int axis) {
    return fl__has_pairs(fn, x) ? fl__fft_axis(fn, x, axis, x->ndim - 1) : -1;
}

static fl_tensor *fl__fft_of(fl_tensor *x, fl_fft_args a) {
    return x ? fl_call_into(fl_op_fft, fl_out_like(x, x->dtype), x, NULL, &a) : NULL;
}

/* ---- composition: a product with the matrix of the transform ---- */

/* The matrix [2 n, 2 n] of the transform of interleaved (re, im): blocks [[cos, sin], [-sin, cos]]. */
static fl_tensor *fl__fft_matrix(int64_t n, bool inverse, const fl_tensor *like) {
    fl_tensor *k = fl_new_arange(like, 0, (double)n, 1, FL_I64);
    fl_tensor *jk = fl_remainder(fl_mul(fl_unsqueeze(k, 1), k), fl_int(n));
    double angle = (inverse ? 6.283185307179586 : -6.283185307179586) / (double)n;
    fl_tensor *a = fl_mul(fl_cast(jk, FL_F64), fl_num(angle)), *c = fl_cos(a), *s = fl_sin(a);
    fl_tensor *re[] = {c, s}, *im[] = {fl_neg(s), c};
    fl_tensor *rows[] = {fl_stack(re, 2, -1), fl_stack(im, 2, -1)};
    fl_tensor *w = fl_reshape(fl_stack(rows, 2, 1), FL_SHAPE(2 * n, 2 * n));
    return w ? fl_cast(w, like->dtype) : NULL;
}

static bool fl__compose_fft(const fl_call *c, fl_tensor **y) {
    const fl_fft_args *a = c->args;
    fl_tensor *x = c->in[0];
    int last = x->ndim - 2;
    fl_tensor *lines = fl_contiguous(fl_transpose(x, a->axis, last));
    if (!lines) return false;
    fl_shape pairs = fl_shape_of(lines), flat = pairs;
    int64_t n = pairs.dim[last];
    flat.dim[--flat.ndim - 1] = 2 * n;
    fl_tensor *product = fl_matmul(fl_reshape(lines, flat), fl__fft_matrix(n, a->inverse, x));
    return (y[0] = fl_transpose(fl_reshape(product, pairs), a->axis, last)) != NULL;
}

/* ---- gradient: the matrix is symmetric, so it is the transform with the conjugate matrix ---- */

static fl_var *fv__fft_of(fl_var *x, fl_fft_args a) {
    return fv_record_op(fl_op_fft, fl__fft_of(fv_value(x), a), FV_IN(x), FV_NONE, &a);
}

static void fv__fft_back(fl_node *n, fl_var *dy) {
    const fl_fft_args *a = fv_args(n);
    fv_add_grad(n, 0, fv__fft_of(dy, (fl_fft_args){a->axis, !a->inverse}));
}

/* ---- the functions, on tensors and on variables ---- */

#define FL_EXPAND_FILE "fft.inc"
#include "expand.h"

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_fft;

FL_PRIVATE void fl__register_fft(void) {
    FL__REGISTER(fft, .args_size = sizeof(fl_fft_args),
                 .uses = "iota mul remainder cos sin neg copy concat matmul", .compose = fl__compose_fft,
                 .gradient = fv__fft_back);
}

#endif /* FL_OPS_FFT_IMPL */
#endif
/* MIT licence: see LICENSE. */
