/* fl/ops/fft.h - Fourier transforms of complex numbers, pairs along the last axis, and of frames of a signal

   fft    y_k = sum over j of x_j exp(-2 pi i j k / n) along one axis of [..., n, ..., 2]
   ifft   the same with + and 1 / n

   Record (args: fl_fft_args): fft x -> y, one transform without 1 / n; x holds floats. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FFT_H
#define FL_OPS_FFT_H
#include "../records/fft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who divides by n: the inverse, both by its square root, or the other way. */
typedef enum fl_fft_norm { FL_NORM_BACKWARD, FL_NORM_ORTHO, FL_NORM_FORWARD } fl_fft_norm;
typedef struct fl_fft_opts {
    fl_opts_guard guard_;
    int64_t n; /* elements along the axis, cut or followed by zeros; 0: as they are. Not of irfft */
    fl_fft_norm norm;
    char _end;
} fl_fft_opts;
/* Discrete Fourier transforms along one axis of complex numbers, which are pairs along the last axis:
   [..., n, ..., 2]; the pairs' axis does not count. fft2 and ifft2: both along the last two axes.
   Floats, of integers f32; any n > 0: fl_fft(x, -1, .n = 512, .norm = FL_NORM_ORTHO) */
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
/* Of n real numbers: frequencies 0 to n / 2 as pairs;  and back, to n numbers (n / 2 + 1 pairs or
   more, of which the rest is left out). */
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
    fl_axes axes; /* to transform, each once, not the pairs' own; none: the last s.ndim, or all without s */
    fl_shape s;   /* elements along each of them, cut or followed by zeros; a 0, or no s: as they are */
    fl_fft_norm norm;
    char _end;
} fl_fftn_opts;
/* Discrete Fourier transforms along several axes, as torch.fft.fftn and ifftn of pairs:
   fl_fftn(x, .axes = FL_AXES(0, 2), .s = FL_SHAPE(8, 16)) */
#define fl_fftn(...) FL__FFTN(fl_fftn_opt, __VA_ARGS__, ._end = 0)
#define fv_fftn(...) FL__FFTN(fv_fftn_opt, __VA_ARGS__, ._end = 0)
#define fl_ifftn(...) FL__FFTN(fl_ifftn_opt, __VA_ARGS__, ._end = 0)
#define fv_ifftn(...) FL__FFTN(fv_ifftn_opt, __VA_ARGS__, ._end = 0)
#define FL__FFTN(f, x, ...) f(x, FL_LITERAL(fl_fftn_opts, __VA_ARGS__))
FL_API fl_tensor *fl_fftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_fftn_opt(fl_var *x, fl_fftn_opts o);
FL_API fl_tensor *fl_ifftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_ifftn_opt(fl_var *x, fl_fftn_opts o);
/* Those of real numbers: rfft along the last one of the axes, whose frequencies are 0 to n / 2, and fft along
   the others. rfft2: of the last two axes if none are given. */
#define fl_rfftn(...) FL__FFTN(fl_rfftn_opt, __VA_ARGS__, ._end = 0)
#define fv_rfftn(...) FL__FFTN(fv_rfftn_opt, __VA_ARGS__, ._end = 0)
#define fl_rfft2(...) FL__FFTN(fl_rfft2_opt, __VA_ARGS__, ._end = 0)
#define fv_rfft2(...) FL__FFTN(fv_rfft2_opt, __VA_ARGS__, ._end = 0)
FL_API fl_tensor *fl_rfftn_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_rfftn_opt(fl_var *x, fl_fftn_opts o);
FL_API fl_tensor *fl_rfft2_opt(fl_tensor *x, fl_fftn_opts o);
FL_API fl_var *fv_rfft2_opt(fl_var *x, fl_fftn_opts o);
/* And back, to real numbers: s counts these. Of m frequencies the last axis becomes 2 (m - 1) numbers unless
   s gives another size; frequencies that are missing are 0. */
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
    int64_t hop;        /* between frames; 0: n_fft / 4 */
    int64_t win_length; /* of the window, which stands in the middle of n_fft; 0: n_fft */
    fl_tensor *window;  /* [win_length], floats; NULL: ones */
    bool no_center;     /* frame k begins at k hop; else it has it in its middle, x being mirrored */
    bool normalized;    /* over sqrt(n_fft) */
    bool two_sided;     /* all n_fft frequencies, not n_fft / 2 + 1 */
    int64_t length;     /* of istft's result; 0: what the frames cover */
    char _end;
} fl_stft_opts;
/* The short-time Fourier transform of the windows of x [..., t] -> pairs [..., frequencies, frames, 2];  and
   its inverse: the frames' overlapping windows over the sum of the squared windows, which may be 0 nowhere:
   fl_stft(x, 512, .window = w). As torch.stft and torch.istft. */
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

/* The axis in [0, dims); -1 after an error, also if nothing lies along it. */
static int fl__fft_axis(const char *fn, const fl_tensor *x, int axis, int dims) {
    int at = axis < 0 ? axis + dims : axis;
    if (at >= 0 && at < dims && x->shape[at] > 0) return at;
    return fl_err_null("%s: axis %d of shape %s", fn, axis, FL_SHAPE_TEXT(x)), -1;
}

static bool fl__has_pairs(const char *fn, const fl_tensor *x) {
    return (x->ndim >= 2 && x->shape[x->ndim - 1] == 2) ||
           fl_err_false("%s: shape %s: no pairs along the last axis", fn, FL_SHAPE_TEXT(x));
}

/* The same for pairs, whose own axis does not count. */
static int fl__pairs_axis(const char *fn, const fl_tensor *x, int axis) {
    return fl__has_pairs(fn, x) ? fl__fft_axis(fn, x, axis, x->ndim - 1) : -1;
}

static fl_tensor *fl__fft_of(fl_tensor *x, fl_fft_args a) {
    return x ? fl_call_into(fl_op_fft, fl_out_like(x, x->dtype), x, NULL, &a) : NULL;
}

/* ---- composition: a product with the matrix of the transform ---- */

/* That matrix, [2 n, 2 n] of re and im: [[cos, sin], [-sin, cos]] of the angles. */
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

/* ---- gradient: the matrix is symmetric, so it is by the conjugate one ---- */

static fl_var *fv__fft_of(fl_var *x, fl_fft_args a) {
    return fv_record_op(fl_op_fft, fl__fft_of(fv_value(x), a), FV_IN(x), FV_NONE, &a);
}

static void fv__fft_back(fl_node *n, fl_var *dy) {
    const fl_fft_args *a = fv_args(n);
    fv_add_grad(n, 0, fv__fft_of(dy, (fl_fft_args){a->axis, !a->inverse}));
}

/* ---- the functions, on tensors and on variables ---- */

#define FL_TEXT "fft.inc"
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
