/* fl/ops/fft.h - Fourier transforms of complex numbers: pairs along the last axis

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

/* Discrete Fourier transforms along one axis of complex numbers, which are pairs along the last axis:
   [..., n, ..., 2]; the pairs' axis does not count. fft2 and ifft2: both along the last two axes.
   Floats, of integers f32; any n > 0. */
FL_API fl_tensor *fl_fft(fl_tensor *x, int axis);
FL_API fl_var *fv_fft(fl_var *x, int axis);
FL_API fl_tensor *fl_ifft(fl_tensor *x, int axis);
FL_API fl_var *fv_ifft(fl_var *x, int axis);
FL_API fl_tensor *fl_fft2(fl_tensor *x);
FL_API fl_var *fv_fft2(fl_var *x);
FL_API fl_tensor *fl_ifft2(fl_tensor *x);
FL_API fl_var *fv_ifft2(fl_var *x);
/* Of n real numbers: frequencies 0 to n / 2 as pairs;  and back, to n numbers (n / 2 + 1 pairs or
   more, of which the rest is left out). */
FL_API fl_tensor *fl_rfft(fl_tensor *x, int axis);
FL_API fl_var *fv_rfft(fl_var *x, int axis);
FL_API fl_tensor *fl_irfft(fl_tensor *x, int64_t n, int axis);
FL_API fl_var *fv_irfft(fl_var *x, int64_t n, int axis);

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
#include "linear.h"
#include "view.h"
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
    return x ? fl_run_to(fl_op_fft, fl_out_like(x, x->dtype), x, NULL, &a) : NULL;
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
    return w ? fl_to(fl_cast(w, like->dtype), fl_family_name(like)) : NULL;
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

FL_T *FL_W(fft)(FL_T *x, int axis) {
    if (FL_ABSENT("fft", x) || (axis = fl__pairs_axis("fl_fft", FL_VALUE(x), axis)) < 0)
        return NULL;
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, FL_W(_fft_of)(FL_W(_floating)(x), (fl_fft_args){axis, false}));
}

FL_T *FL_W(ifft)(FL_T *x, int axis) {
    if (FL_ABSENT("ifft", x) || (axis = fl__pairs_axis("fl_ifft", FL_VALUE(x), axis)) < 0)
        return NULL;
    fl_scope s = fl_scope_begin();
    double n = (double)FL_VALUE(x)->shape[axis];
    FL_T *given = FL_W(_floating)(x), *wide = given ? FL_W(_widened)(given) : NULL;
    FL_T *y = MUL(CONST(1 / n), FL_W(_fft_of)(wide, (fl_fft_args){axis, true}));
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

FL_T *FL_W(fft2)(FL_T *x) {
    if (FL_ABSENT("fft2", x) || fl__pairs_axis("fl_fft2", FL_VALUE(x), -2) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x), *wide = given ? FL_W(_widened)(given) : NULL;
    FL_T *y = wide ? FL_W(fft)(FL_W(fft)(wide, -1), -2) : NULL;
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

FL_T *FL_W(ifft2)(FL_T *x) {
    if (FL_ABSENT("ifft2", x) || fl__pairs_axis("fl_ifft2", FL_VALUE(x), -2) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = FL_W(_floating)(x), *wide = given ? FL_W(_widened)(given) : NULL;
    FL_T *y = wide ? FL_W(ifft)(FL_W(ifft)(wide, -1), -2) : NULL;
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, given) : NULL);
}

FL_T *FL_W(rfft)(FL_T *x, int axis) {
    if (FL_ABSENT("rfft", x)) return NULL;
    int at = fl__fft_axis("fl_rfft", FL_VALUE(x), axis, FL_VALUE(x)->ndim);
    if (at < 0) return NULL;
    int64_t n = FL_VALUE(x)->shape[at];
    fl_scope s = fl_scope_begin();
    if (!(x = FL_W(_floating)(x))) return FL_GIVE(&s, NULL);
    FL_T *pair[] = {x, FL_OF(fl_full_like(FL_VALUE(x), 0))};
    FL_T *all = FL_W(fft)(FL_W(stack)(pair, 2, -1), at);
    return FL_GIVE(&s, FL_W(slice)(all, at, 0, n / 2 + 1, 1));
}

/* The frequencies that rfft leaves out are conjugates of those it has. */
FL_T *FL_W(irfft)(FL_T *x, int64_t n, int axis) {
    if (FL_ABSENT("irfft", x) || (axis = fl__pairs_axis("fl_irfft", FL_VALUE(x), axis)) < 0)
        return NULL;
    fl_tensor *t = FL_VALUE(x);
    if (n < 1 || t->shape[axis] <= n / 2)
        return fl_bad("fl_irfft: %lld numbers of %lld frequencies: shape %s, axis %d",
                       (long long)n, (long long)t->shape[axis], FL_SHAPE_TEXT(t), axis);
    fl_scope s = fl_scope_begin();
    FL_T *half = FL_W(slice)(x, axis, 0, n / 2 + 1, 1);
    FL_T *back = FL_W(slice)(half, axis, (n - 1) / 2, 0, -1);
    FL_T *pair[] = {FL_W(slice)(back, -1, 0, 1, 1), NEG(FL_W(slice)(back, -1, 1, 2, 1))};
    FL_T *both[] = {half, FL_W(concat)(pair, 2, -1)};
    return FL_GIVE(&s, FL_W(select)(FL_W(ifft)(FL_W(concat)(both, 2, axis), axis), -1, 0));
}

#endif
/* MIT licence: see LICENSE. */
