/* fl/ops/quantize.h - affine quantisation: x = scale (q - zero_point), q integers

   scale is a float, 0-d (per tensor) or [n] (one per slice along axis); zero_point is integers of scale's
   shape, NULL: 0. Composed of other ops, without records. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_QUANTIZE_H
#define FL_OPS_QUANTIZE_H

#ifdef __cplusplus
extern "C" {
#endif

/* torch.quantize_per_tensor and quantize_per_channel: rint(x / scale) + zero_point, clamped to the range of
   dtype (u8, i8, i16 or i32); x is a float. */
FL_API fl_tensor *fl_quantize(fl_tensor *x, fl_tensor *scale, fl_tensor *zero_point, int axis,
                              fl_dtype dtype);
/* scale (q - zero_point), in scale's dtype; q is integers. */
FL_API fl_tensor *fl_dequantize(fl_tensor *q, fl_tensor *scale, fl_tensor *zero_point, int axis);
/* torch.fake_quantize_per_tensor_affine and per_channel: quantises to integers in [low, high] and
   dequantises, in x's dtype, for quantisation-aware training. Straight-through gradient: dy where nothing was
   clamped, else 0. */
FL_API fl_tensor *fl_fake_quantize(fl_tensor *x, fl_tensor *scale, fl_tensor *zero_point, int axis,
                                   int64_t low, int64_t high);
FL_API fl_var *fv_fake_quantize(fl_var *x, fl_tensor *scale, fl_tensor *zero_point, int axis, int64_t low,
                                int64_t high);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_QUANTIZE_H */

#if defined(FL_IMPL_ONLY_OPS_QUANTIZE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_QUANTIZE_IMPL
#define FL_OPS_QUANTIZE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "view.h"

/* Reshapes scale and zero point to floats that broadcast with x along axis; *zero stays NULL for 0. */
static bool fl__quantizer(const char *fn, const fl_tensor *x, fl_tensor **scale, fl_tensor **zero, int axis) {
    fl_tensor *s = *scale, *z = *zero;
    const int n = s->ndim;
    if (n == 1 && (axis = fl_axis_of(fn, x, axis)) < 0) return false;
    if (n > 1 || (n && s->shape[0] != x->shape[axis]) || (z && !fl_same_shape(s, z)) ||
        !fl_dtype_is_float(s->dtype) || (z && fl_dtype_is_float(z->dtype)))
        return fl_err_false("%s: x %s with scale %s %s and zero point %s %s: expected float scale and "
                            "integer zero point, 0-d or [n] along axis %d", fn, FL_SHAPE_TEXT(x),
                            fl_dtype_name(s->dtype), FL_SHAPE_TEXT(s),
                            z ? fl_dtype_name(z->dtype) : "0", z ? FL_SHAPE_TEXT(z) : "", axis);
    fl_shape along = {n ? x->ndim - axis : 0, {n ? s->shape[0] : 0, 1, 1, 1, 1, 1, 1, 1}};
    *scale = fl_reshape(fl_materialise(s), along);
    *zero = z && *scale ? fl_reshape(fl_cast(fl_materialise(z), (*scale)->dtype), along) : NULL;
    return *scale && (!z || *zero);
}

/* rint(x / scale) + zero as a float, not clamped; scale and zero of fl__quantizer. */
static fl_tensor *fl__quantized(fl_tensor *x, fl_tensor *scale, fl_tensor *zero) {
    fl_tensor *q = fl_rint(fl_mul(fl_cast(x, scale->dtype), fl_reciprocal(scale)));
    return zero ? fl_add(q, zero) : q;
}

fl_tensor *fl_quantize(fl_tensor *x, fl_tensor *scale, fl_tensor *zero_point, int axis, fl_dtype dtype) {
    const char *fn = "fl_quantize";
    if (fl_is_null_arg(fn, x) || fl_is_null_arg(fn, scale)) return NULL;
    if (dtype != FL_I8 && dtype != FL_U8 && dtype != FL_I16 && dtype != FL_I32)
        return fl_err_null("%s: dtype must be u8, i8, i16 or i32, got %s", fn, fl_dtype_name(dtype));
    if (!fl_dtype_is_float(x->dtype)) return fl_err_null("%s: x is %s, expected a float", fn,
                                                         fl_dtype_name(x->dtype));
    fl_scope s = fl_scope_begin();
    if (!fl__quantizer(fn, x, &scale, &zero_point, axis)) return fl_scope_return(&s, NULL);
    fl_tensor *q = fl__quantized(x, scale, zero_point);
    return fl_scope_return(&s, q ? fl_cast(q, dtype) : NULL); /* saturates */
}

fl_tensor *fl_dequantize(fl_tensor *q, fl_tensor *scale, fl_tensor *zero_point, int axis) {
    const char *fn = "fl_dequantize";
    if (fl_is_null_arg(fn, q) || fl_is_null_arg(fn, scale)) return NULL;
    if (fl_dtype_is_float(q->dtype)) return fl_err_null("%s: q is %s, expected integers", fn,
                                                        fl_dtype_name(q->dtype));
    fl_scope s = fl_scope_begin();
    if (!fl__quantizer(fn, q, &scale, &zero_point, axis)) return fl_scope_return(&s, NULL);
    fl_tensor *y = fl_cast(q, scale->dtype);
    if (zero_point) y = fl_sub(y, zero_point);
    return fl_scope_return(&s, fl_mul(y, scale));
}

/* *inside (may be NULL): b8, true where nothing was clamped, owned by the caller's scope */
static fl_tensor *fl__fake_quantize(fl_tensor *x, fl_tensor *scale, fl_tensor *zero, int axis, int64_t low,
                                    int64_t high, fl_tensor **inside) {
    const char *fn = "fl_fake_quantize";
    if (!fl_dtype_is_float(x->dtype) || low > high || low < INT32_MIN || high > INT32_MAX)
        return fl_err_null("%s: expected a float x and low <= high in i32: x is %s, integers from %lld to "
                           "%lld", fn,
                           fl_dtype_name(x->dtype), (long long)low, (long long)high);
    fl_scope s = fl_scope_begin();
    if (!fl__quantizer(fn, x, &scale, &zero, axis)) return fl_scope_return(&s, NULL);
    fl_tensor *from = fl_num((double)low), *to = fl_num((double)high), *q = fl__quantized(x, scale, zero);
    fl_tensor *y = fl_clamp(q, from, to);
    if (zero) y = fl_sub(y, zero);
    y = fl_mul(y, scale);
    y = y ? fl_cast(y, x->dtype) : NULL;
    if (y && inside &&
        !(*inside = fl_scope_escape(&s, fl_logical_and(fl_le(from, q), fl_le(q, to))))) y = NULL;
    return fl_scope_return(&s, y);
}

fl_tensor *fl_fake_quantize(fl_tensor *x, fl_tensor *scale, fl_tensor *zero_point, int axis, int64_t low,
                            int64_t high) {
    if (fl_is_null_arg("fl_fake_quantize", x) || fl_is_null_arg("fl_fake_quantize", scale)) return NULL;
    return fl__fake_quantize(x, scale, zero_point, axis, low, high, NULL);
}

static void fv__fake_quantize_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, fv_where(fv_saved(n, 0), dy, fv_num(0)));
}

fl_var *fv_fake_quantize(fl_var *x, fl_tensor *scale, fl_tensor *zero_point, int axis, int64_t low,
                         int64_t high) {
    if (fl_is_null_arg("fv_fake_quantize", x) || fl_is_null_arg("fv_fake_quantize", scale)) return NULL;
    fl_tensor *inside = NULL;
    fl_tensor *y = fl__fake_quantize(x->value, scale, zero_point, axis, low, high, &inside);
    fl_var *saved = y ? fv_const(inside) : NULL;
    if (!saved) return NULL;
    return fv_record_args("fake_quantize", y, fv__fake_quantize_back, FV_IN(x), FV_SAVE(saved), NULL, 0);
}

#endif /* FL_OPS_QUANTIZE_IMPL */
#endif
/* MIT licence: see LICENSE. */
