/* fl/autograd/accumulate.h - cast, expand, sum to a shape on variables, for gradient accumulation

   fv_add_grad uses them to cast each gradient to its input's dtype and sum it to its shape, so that
   gradients are differentiable. */
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#ifndef FL_AUTOGRAD_ACCUMULATE_H
#define FL_AUTOGRAD_ACCUMULATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* fl_cast on a variable (fl/tensor/copy.h); the gradient is cast back. */
FL_API fl_var *fv_cast(fl_var *x, fl_dtype dtype);
/* fl_expand on a variable (fl/tensor/view.h); the gradient is summed. */
FL_API fl_var *fv_expand(fl_var *x, fl_shape shape);
/* Sums x over the axes along which shape broadcasts to x's shape: the gradient of a broadcast. Sums of
   integers are i64; returns x itself if the shapes are equal. An error if shape does not broadcast to
   x's. */
FL_API fl_var *fv_sum_to(fl_var *x, fl_shape shape);

#ifdef __cplusplus
}
#endif
#endif /* FL_AUTOGRAD_ACCUMULATE_H */

#if defined(FL_IMPL_ONLY_AUTOGRAD_ACCUMULATE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_AUTOGRAD_ACCUMULATE_IMPL
#define FL_AUTOGRAD_ACCUMULATE_IMPL
#include "../../fl_backend.h"
#include "../tensor/copy.h"
#include "../tensor/view.h"

/* fv_add_grad reverses casts and expansions. */
static void fv__pass_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, dy);
}

fl_var *fv_cast(fl_var *x, fl_dtype dtype) {
    fl_tensor *value = fl_cast(fv_value(x), dtype);
    if (value && value == x->value) return x;
    return fv_record_args("cast", value, fv__pass_back, FV_IN(x), FV_NONE, NULL, 0);
}

fl_var *fv_expand(fl_var *x, fl_shape shape) {
    return fv_record_args("expand", fl_expand(fv_value(x), shape), fv__pass_back, FV_IN(x), FV_NONE, NULL, 0);
}

static fl_tensor *fl__sum_to(fl_tensor *t, fl_shape shape) {
    fl_shape kept = fl_shape_of(t);
    bool fits = shape.ndim >= 0 && shape.ndim <= t->ndim;
    const int front = fits ? t->ndim - shape.ndim : 0;
    fl_reduce_args a = {.keepdim = true};
    for (int d = 0; fits && d < t->ndim; d++) {
        const int64_t want = d < front ? 1 : shape.dim[d - front];
        fits = kept.dim[d] == want || want == 1;
        if (d < front || kept.dim[d] != want) a.axes |= 1u << d, kept.dim[d] = 1;
    }
    if (!fits)
        return fl_err_null("fv_sum_to: shape %s does not broadcast to that of x, %s %s", FL_TEXT_OF(shape),
                           fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t));
    if (a.axes && !fl_dtype_is_float(t->dtype)) t = fl_cast(t, FL_I64);
    if (a.axes && t) t = fl_call_into(FL_OP_sum, fl_out_on(t->backend, kept, t->dtype), t, NULL, &a);
    return t ? fl_reshape(t, shape) : NULL;
}

static void fv__sum_to_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_expand(dy, fv_in_shape(n, 0)));
}

fl_var *fv_sum_to(fl_var *x, fl_shape shape) {
    if (fl_is_null_arg("fv_sum_to", x)) return NULL;
    fl_tensor *value = fl__sum_to(x->value, shape);
    if (value && value == x->value) return x;
    return fv_record_args("sum_to", value, fv__sum_to_back, FV_IN(x), FV_NONE, NULL, 0);
}

#endif /* FL_AUTOGRAD_ACCUMULATE_IMPL */
#endif
/* MIT licence: see LICENSE. */
