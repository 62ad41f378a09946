/* fl/ops/fft.h - Fourier transforms of complex numbers: pairs along the last axis

   Prototypes stand in fl_composed.h, the slot in kernels/cpu/fft.h. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_FFT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_FFT_IMPL
#define FL_OPS_FFT_IMPL
#define FL_TEXT "fft.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
static fl_tensor *fl__fft_of(fl_tensor *x, fl_fft_args a) {
    if (!x) return NULL;
    return fl_run_to(FL_OP_fft, fl_call_out(x->family, fl_shape_of(x), x->dtype), x, NULL, &a);
}

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
#endif

#ifdef FL_ON_VARS
/* The matrix of the transform is symmetric: its gradient is by the conjugate one. */
static fl_var *fv__fft_of(fl_var *x, fl_fft_args a);
static void fv__fft_back(fl_node *n, fl_var *dy) {
    fl_fft_args a = *(const fl_fft_args *)fv_args(n);
    fv_add_grad(n, 0, fv__fft_of(dy, (fl_fft_args){a.axis, !a.inverse}));
}
static fl_var *fv__fft_of(fl_var *x, fl_fft_args a) {
    return fv_record_args("fft", fl__fft_of(fv_value(x), a), fv__fft_back, FV_IN(x), FV_NONE, &a,
                          sizeof a);
}
#endif

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
