/* fl/ops/fft.h - Fourier transforms of complex numbers, pairs along the last axis, and of frames of a signal

   fft    y_k = sum over j of x_j exp(-2 pi i j k / n) along one axis of [..., n, ..., 2]
   ifft   the same with + and 1 / n

   Record (args: fl_fft_args): fft x -> y, one transform without 1 / n; x holds floats. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FFT_H
#define FL_OPS_FFT_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_fft_args {
    int axis;
    bool inverse; /* with +, and without 1 / n */
} fl_fft_args;

/* Who divides by n: the inverse, both by its square root, or the other way. */
typedef enum fl_fft_norm { FL_NORM_BACKWARD, FL_NORM_ORTHO, FL_NORM_FORWARD } fl_fft_norm;
typedef struct fl_fft_opts {
    fl_named _positional;
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
#define FL__FFT(f, x, axis, ...) f(x, axis, (fl_fft_opts){__VA_ARGS__})
#define FL__FFT2(f, x, ...) f(x, (fl_fft_opts){__VA_ARGS__})
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
#define FL__IRFFT(f, x, n, axis, ...) f(x, n, axis, (fl_fft_opts){__VA_ARGS__})
FL_API fl_tensor *fl_rfft_opt(fl_tensor *x, int axis, fl_fft_opts o);
FL_API fl_var *fv_rfft_opt(fl_var *x, int axis, fl_fft_opts o);
FL_API fl_tensor *fl_irfft_opt(fl_tensor *x, int64_t n, int axis, fl_fft_opts o);
FL_API fl_var *fv_irfft_opt(fl_var *x, int64_t n, int axis, fl_fft_opts o);

typedef struct fl_stft_opts {
    fl_named _positional;
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
#define FL__STFT(f, x, n_fft, ...) f(x, n_fft, (fl_stft_opts){__VA_ARGS__})
FL_API fl_tensor *fl_stft_opt(fl_tensor *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_var *fv_stft_opt(fl_var *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_tensor *fl_istft_opt(fl_tensor *x, int64_t n_fft, fl_stft_opts o);
FL_API fl_var *fv_istft_opt(fl_var *x, int64_t n_fft, fl_stft_opts o);

FL_DATA fl_op fl_op_fft;
FL_PRIVATE void fl__register_fft(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_FFT_H */

#if defined(FL_IMPL_ONLY_OPS_FFT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_FFT_IMPL
#define FL_OPS_FFT_IMPL
#include "../../fl_autograd.h"
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
    return fl_bad("%s: axis %d of shape %s", fn, axis, FL_SHAPE_TEXT(x)), -1;
}

/* The same for pairs, whose own axis does not count. */
static int fl__pairs_axis(const char *fn, const fl_tensor *x, int axis) {
    if (x->ndim >= 2 && x->shape[x->ndim - 1] == 2) return fl__fft_axis(fn, x, axis, x->ndim - 1);
    return fl_bad("%s: shape %s: no pairs along the last axis", fn, FL_SHAPE_TEXT(x)), -1;
}

static fl_tensor *fl__fft_of(fl_tensor *x, fl_fft_args a) {
    return x ? fl_call_into(fl_op_fft, fl_out_like(x, x->dtype), x, NULL, &a) : NULL;
}

/* ---- composition: a product with the matrix of the transform ---- */

/* That matrix, [2 n, 2 n] of re and im: [[cos, sin], [-sin, cos]] of the angles. */
static fl_tensor *fl__fft_matrix(int64_t n, bool inverse, const fl_tensor *like) {
    fl_tensor *k = fl_arange(0, (double)n, 1, FL_I64);
    fl_tensor *jk = fl_remainder(fl_mul(fl_unsqueeze(k, 1), k), fl_int(n));
    double angle = (inverse ? 6.283185307179586 : -6.283185307179586) / (double)n;
    fl_tensor *a = fl_mul(fl_cast(jk, FL_F64), fl_num(angle)), *c = fl_cos(a), *s = fl_sin(a);
    fl_tensor *re[] = {c, s}, *im[] = {fl_neg(s), c};
    fl_tensor *rows[] = {fl_stack(re, 2, -1), fl_stack(im, 2, -1)};
    fl_tensor *w = fl_reshape(fl_stack(rows, 2, 1), FL_SHAPE(2 * n, 2 * n));
    return w ? fl_to(fl_cast(w, like->dtype), fl_backend_name(like)) : NULL;
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

#define FL_TEXT "fft.h"
#include "expand.h"

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_fft;

FL_PRIVATE void fl__register_fft(void) {
    static const fl_op_info fft = {.name = "fft",
                                   .args_size = sizeof(fl_fft_args),
                                   .contains = "iota mul remainder cos sin neg copy matmul",
                                   .compose = fl__compose_fft,
                                   .gradient = fv__fft_back};
    fl_op_fft = fl_op_register(&fft);
}

#endif /* FL_OPS_FFT_IMPL */
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
static bool fl__fft_options(const char *fn, fl_fft_opts o) {
    if (o.n >= 0 && o.n <= INT32_MAX && (int)o.norm >= FL_NORM_BACKWARD && (int)o.norm <= FL_NORM_FORWARD)
        return true;
    return fl_refuse("%s: n is %lld, norm %d", fn, (long long)o.n, (int)o.norm);
}
#endif

/* n elements along axis, in place of those there are. */
static FL_T *FL_W(_fft_length)(FL_T *x, int axis, int64_t n) {
    fl_pad_opts o = {.mode = FL_PAD_CONSTANT};
    if (!x || !n || n == FL_VALUE(x)->shape[axis]) return x;
    o.high[axis] = n - FL_VALUE(x)->shape[axis];
    return FL_W(pad_opt)(x, o);
}

static FL_T *FL_W(_fft_pairs)(const char *fn, FL_T *x, int axis, fl_fft_opts o, bool inverse) {
    if ((axis = fl__pairs_axis(fn, FL_VALUE(x), axis)) < 0 || !fl__fft_options(fn, o)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_fft_length)(FL_W(_floating)(x), axis, o.n);
    if (!given) return FL_GIVE(&s, NULL);
    const double n = (double)FL_VALUE(given)->shape[axis];
    const double factor = o.norm == FL_NORM_ORTHO                     ? 1 / sqrt(n)
                          : inverse == (o.norm == FL_NORM_BACKWARD) ? 1 / n
                                                                      : 1;
    if (factor == 1) return FL_GIVE(&s, FL_W(_fft_of)(given, (fl_fft_args){axis, inverse}));
    FL_T *wide = FL_W(_widened)(given);
    FL_T *y = MUL(CONST(factor), FL_W(_fft_of)(wide, (fl_fft_args){axis, inverse}));
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

FL_T *FL_W(fft_opt)(FL_T *x, int axis, fl_fft_opts o) {
    return FL_ABSENT("fft", x) ? NULL : FL_W(_fft_pairs)("fl_fft", x, axis, o, false);
}

FL_T *FL_W(ifft_opt)(FL_T *x, int axis, fl_fft_opts o) {
    return FL_ABSENT("ifft", x) ? NULL : FL_W(_fft_pairs)("fl_ifft", x, axis, o, true);
}

/* Along the last two axes. */
static FL_T *FL_W(_fft_plane)(const char *fn, FL_T *x, fl_fft_opts o, bool inverse) {
    if (fl__pairs_axis(fn, FL_VALUE(x), -2) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x), *wide = given ? FL_W(_widened)(given) : NULL;
    FL_T *y = wide ? FL_W(_fft_pairs)(fn, wide, -1, o, inverse) : NULL;
    y = y ? FL_W(_fft_pairs)(fn, y, -2, o, inverse) : NULL;
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

FL_T *FL_W(fft2_opt)(FL_T *x, fl_fft_opts o) {
    return FL_ABSENT("fft2", x) ? NULL : FL_W(_fft_plane)("fl_fft2", x, o, false);
}

FL_T *FL_W(ifft2_opt)(FL_T *x, fl_fft_opts o) {
    return FL_ABSENT("ifft2", x) ? NULL : FL_W(_fft_plane)("fl_ifft2", x, o, true);
}

/* Real numbers as complex ones. */
static FL_T *FL_W(_as_pairs)(FL_T *x) {
    FL_T *pair[] = {x, x ? FL_OF(fl_full_like(FL_VALUE(x), 0)) : NULL};
    return x && pair[1] ? FL_W(stack)(pair, 2, -1) : NULL;
}

FL_T *FL_W(rfft_opt)(FL_T *x, int axis, fl_fft_opts o) {
    if (FL_ABSENT("rfft", x)) return NULL;
    int at = fl__fft_axis("fl_rfft", FL_VALUE(x), axis, FL_VALUE(x)->ndim);
    if (at < 0 || !fl__fft_options("fl_rfft", o)) return NULL;
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_fft_length)(FL_W(_floating)(x), at, o.n))) return FL_GIVE(&s, NULL);
    int64_t n = FL_VALUE(x)->shape[at];
    FL_T *pairs = FL_W(_as_pairs)(x);
    FL_T *all = pairs ? FL_W(_fft_pairs)("fl_rfft", pairs, at, (fl_fft_opts){.norm = o.norm}, false) : NULL;
    return FL_GIVE(&s, all ? FL_W(slice)(all, at, 0, n / 2 + 1, 1) : NULL);
}

/* The frequencies that rfft leaves out are conjugates of those it has. */
FL_T *FL_W(irfft_opt)(FL_T *x, int64_t n, int axis, fl_fft_opts o) {
    if (FL_ABSENT("irfft", x) || (axis = fl__pairs_axis("fl_irfft", FL_VALUE(x), axis)) < 0 ||
        !fl__fft_options("fl_irfft", o))
        return NULL;
    fl_tensor *t = FL_VALUE(x);
    if (n < 1 || o.n || t->shape[axis] <= n / 2)
        return fl_bad("fl_irfft: %lld numbers of %lld frequencies: shape %s, axis %d",
                       (long long)n, (long long)t->shape[axis], FL_SHAPE_TEXT(t), axis);
    fl_scope s = fl_scope_begin();
    FL_T *half = FL_W(slice)(x, axis, 0, n / 2 + 1, 1);
    FL_T *back = FL_W(slice)(half, axis, (n - 1) / 2, 0, -1);
    FL_T *pair[] = {FL_W(slice)(back, -1, 0, 1, 1), NEG(FL_W(slice)(back, -1, 1, 2, 1))};
    FL_T *both[] = {half, FL_W(concat)(pair, 2, -1)};
    return FL_GIVE(&s, FL_W(select)(FL_W(ifft_opt)(FL_W(concat)(both, 2, axis), axis, o), -1, 0));
}

/* >>frames */

#ifdef FL_ON_TENSORS
/* The window [n_fft] of frames like t; o's defaults are filled in. NULL after an error. */
static fl_tensor *fl__stft_window(const char *fn, const fl_tensor *t, int64_t n_fft, fl_stft_opts *o) {
    if (!o->win_length) o->win_length = n_fft;
    if (!o->hop) o->hop = n_fft / 4;
    const fl_tensor *w = o->window;
    if (n_fft < 1 || n_fft > INT32_MAX || o->hop < 1 || o->hop > INT32_MAX || o->win_length < 1 ||
        o->win_length > n_fft || o->length < 0)
        return fl_bad("%s: n_fft %lld, hop %lld, win_length %lld, length %lld", fn, (long long)n_fft,
                      (long long)o->hop, (long long)o->win_length, (long long)o->length);
    if (w && (w->ndim != 1 || w->shape[0] != o->win_length || !fl_dtype_is_float(w->dtype)))
        return fl_bad("%s: window %s %s; want floats [%lld]", fn, fl_dtype_name(w->dtype), FL_SHAPE_TEXT(w),
                      (long long)o->win_length);
    fl_tensor *window = w ? fl_cast(o->window, t->dtype) : fl_new_full(t, FL_SHAPE(n_fft), 1);
    fl_pad_opts sides = {.low = {(n_fft - o->win_length) / 2}};
    sides.high[0] = n_fft - o->win_length - sides.low[0];
    if (!w && window) window = fl_slice(window, 0, 0, o->win_length, 1);
    return window ? fl_pad_opt(window, sides) : NULL;
}

/* i64 [frames n_fft]: where the elements of frames stand in what they cover. */
static fl_tensor *fl__frame_places(const fl_tensor *t, int64_t frames, int64_t n_fft, int64_t hop) {
    fl_tensor *start = fl_mul(fl_arange(0, (double)frames, 1, FL_I64), fl_int(hop));
    fl_tensor *at = fl_add(fl_unsqueeze(start, 1), fl_arange(0, (double)n_fft, 1, FL_I64));
    return fl_to(fl_reshape(at, FL_SHAPE(frames * n_fft)), fl_backend_name(t));
}
#endif

FL_T *FL_W(stft_opt)(FL_T *x, int64_t n_fft, fl_stft_opts o) {
    const char *fn = "fl_stft";
    if (FL_ABSENT("stft", x)) return NULL;
    const int last = FL_VALUE(x)->ndim - 1;
    if (last < 0 || last > FL_MAX_DIMS - 3 || !fl_dtype_is_float(FL_VALUE(x)->dtype))
        return fl_bad("%s: x is %s of shape %s, not floats [..., t]", fn, fl_dtype_name(FL_VALUE(x)->dtype),
                      FL_SHAPE_TEXT(FL_VALUE(x)));
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    fl_tensor *window = fl__stft_window(fn, FL_VALUE(x), n_fft, &o);
    if (!window) return FL_GIVE(&s, NULL);
    const int64_t n = FL_VALUE(x)->shape[last], side = o.no_center ? 0 : n_fft / 2;
    if (n + 2 * side < n_fft || side >= (n ? n : 1))
        return FL_GIVE(&s, fl_bad("%s: x %s is too short for frames of %lld", fn,
                                  FL_SHAPE_TEXT(FL_VALUE(given)), (long long)n_fft));
    fl_pad_opts ends = {.mode = FL_PAD_REFLECT};
    ends.low[last] = ends.high[last] = side;
    if (side) x = FL_W(pad_opt)(x, ends);
    x = x ? FL_W(sliding_windows)(x, last, n_fft, o.hop, 1) : NULL;
    x = x ? MUL(x, FL_OF(window)) : NULL;
    const fl_fft_opts how = {.norm = o.normalized ? FL_NORM_ORTHO : FL_NORM_BACKWARD};
    if (x && o.two_sided) x = FL_W(_as_pairs)(x);
    if (x) x = o.two_sided ? FL_W(fft_opt)(x, -1, how) : FL_W(rfft_opt)(x, -1, how);
    FL_T *y = x ? FL_W(transpose)(x, -2, -3) : NULL;
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

/* Frames [..., frames, n_fft], added where they overlap. */
static FL_T *FL_W(_overlapped)(FL_T *x, fl_tensor *places, int64_t covered) {
    fl_shape flat = fl_shape_of(FL_VALUE(x)), all;
    flat.ndim--;
    flat.dim[flat.ndim - 1] = places->shape[0];
    all = flat;
    all.dim[flat.ndim - 1] = covered;
    fl_tensor *zero = fl_new_full(FL_VALUE(x), FL_SCALAR_SHAPE, 0);
    fl_tensor *zeros = zero ? fl_expand(zero, all) : NULL, *at = fl_expand(places, flat);
    FL_T *line = zeros && at ? FL_W(reshape)(x, flat) : NULL;
    return line ? FL_W(scatter_add)(FL_OF(zeros), -1, at, line) : NULL;
}

FL_T *FL_W(istft_opt)(FL_T *x, int64_t n_fft, fl_stft_opts o) {
    const char *fn = "fl_istft";
    if (FL_ABSENT("istft", x)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    const int64_t frequencies = o.two_sided ? n_fft : n_fft / 2 + 1;
    if (t->ndim < 3 || t->shape[t->ndim - 1] != 2 || t->shape[t->ndim - 3] != frequencies ||
        t->shape[t->ndim - 2] < 1 || !fl_dtype_is_float(t->dtype))
        return fl_bad("%s: x is %s of shape %s, not pairs of floats [..., %lld, frames, 2]", fn,
                      fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), (long long)frequencies);
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    fl_tensor *window = fl__stft_window(fn, FL_VALUE(x), n_fft, &o);
    if (!window) return FL_GIVE(&s, NULL);
    const int64_t frames = t->shape[t->ndim - 2], covered = n_fft + o.hop * (frames - 1);
    const fl_fft_opts how = {.norm = o.normalized ? FL_NORM_ORTHO : FL_NORM_BACKWARD};
    x = FL_W(transpose)(x, -2, -3);
    x = x ? FL_W(irfft_opt)(x, n_fft, -1, how) : NULL; /* of half of them, as the other half is conjugate */
    x = x ? MUL(x, FL_OF(window)) : NULL;
    fl_tensor *places = x ? fl__frame_places(FL_VALUE(x), frames, n_fft, o.hop) : NULL;
    fl_tensor *power = fl_expand(fl_mul(window, window), FL_SHAPE(frames, n_fft));
    power = places && power ? fl__overlapped(power, places, covered) : NULL;
    x = power ? FL_W(_overlapped)(x, places, covered) : NULL;
    const int64_t start = o.no_center ? 0 : n_fft / 2;
    const int64_t end = o.length ? start + o.length : covered - start, stop = end < covered ? end : covered;
    power = x ? fl_slice(power, 0, start, stop, 1) : NULL;
    if (!power) return FL_GIVE(&s, NULL);
    if (stop > start && !(fl_item(fl_amin(power, FL_ALL_AXES)) > 1e-11))
        return FL_GIVE(&s, fl_bad("%s: the windows leave elements out: n_fft %lld, hop %lld", fn,
                                  (long long)n_fft, (long long)o.hop));
    x = DIV(FL_W(slice)(x, -1, start, stop, 1), FL_OF(power));
    FL_T *y = x ? FL_W(_fft_length)(x, FL_VALUE(x)->ndim - 1, o.length) : NULL;
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

#endif
/* MIT licence: see LICENSE. */
