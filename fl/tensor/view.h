/* fl/tensor/view.h - views: reshape, permute, slice, expand and others that share storage

   A view shares the storage of its tensor. A copy is made only if fl_reshape cannot express the result by
   strides, or if the backend does not support views. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_VIEW_H
#define FL_TENSOR_VIEW_H

#ifdef __cplusplus
extern "C" {
#endif

/* The same elements in row-major order with another shape; one dim may be -1 and is inferred. A view if the
   strides permit, otherwise a copy. */
FL_API fl_tensor *fl_reshape(fl_tensor *t, fl_shape shape);
/* Permutes the axes: axis i of the result is axis axes[i] of t; naxes must be ndim. A view. */
FL_API fl_tensor *fl_permute(fl_tensor *t, int naxes, const int *axes);
/* Swaps two axes; negative ones count from the end. A view. */
FL_API fl_tensor *fl_transpose(fl_tensor *t, int a, int b);
/* Broadcasts to shape; -1 keeps a dim. A view. */
FL_API fl_tensor *fl_expand(fl_tensor *t, fl_shape shape);
/* t[start:stop:step] along axis as in Python: negative bounds count from the end, bounds are clamped. step
   may be negative; stop = FL_SLICE_END then includes element 0. A view. */
#define FL_SLICE_END INT64_MAX
FL_API fl_tensor *fl_slice(fl_tensor *t, int axis, int64_t start, int64_t stop, int64_t step);
/* Element i along axis; the axis is removed. A view. */
FL_API fl_tensor *fl_select(fl_tensor *t, int axis, int64_t i);
/* Removes an axis of size 1. A view. */
FL_API fl_tensor *fl_squeeze(fl_tensor *t, int axis);
/* Inserts an axis of size 1 before `axis`. A view. */
FL_API fl_tensor *fl_unsqueeze(fl_tensor *t, int axis);
/* Merges axes first to last, inclusive. A view if the strides permit, otherwise a copy. */
FL_API fl_tensor *fl_flatten(fl_tensor *t, int first, int last);
/* As torch.as_strided: element [i, j, ...] is element offset + i stride[0] + j stride[1] + ... of t's
   storage, independent of t's shape and offset; stride NULL: row-major. An error if an element lies outside.
   A view. */
FL_API fl_tensor *fl_as_strided(fl_tensor *t, fl_shape shape, const int64_t *stride, int64_t offset);
/* A tensor of backend "cpu" on a buffer in host memory, without a copy; arguments as for fl_as_strided.
   Takes the caller's reference to b, except after an error. */
FL_API fl_tensor *fl_from_buffer(fl_buffer *b, fl_dtype dtype, fl_shape shape, const int64_t *stride,
                                 int64_t offset);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_VIEW_H */

#if defined(FL_IMPL_ONLY_TENSOR_VIEW) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_VIEW_IMPL
#define FL_TENSOR_VIEW_IMPL
#include "../../fl_backend.h"
#include "copy.h"
#include <string.h>

/* Strides that give t's elements the given shape in row-major order; false if there are none. */
static bool fl__reshape_strides(const fl_tensor *t, fl_shape shape, int64_t *stride) {
    int64_t old[FL_MAX_DIMS], old_stride[FL_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != 1) {
            old[n] = t->shape[i];
            old_stride[n++] = t->stride[i];
        }
    int i = 0;
    for (int j = 0; j < shape.ndim;) { /* match groups of dims with equal products */
        if (shape.dim[j] == 1) {
            stride[j++] = 1;
            continue;
        }
        int first_old = i, first_new = j;
        int64_t a = old[i++], b = shape.dim[j++];
        while (a != b) {
            if (a < b)
                a *= old[i++];
            else
                b *= shape.dim[j++];
        }
        for (int k = first_old; k + 1 < i; k++)
            if (old_stride[k] != old[k + 1] * old_stride[k + 1]) return false;
        int64_t s = old_stride[i - 1];
        for (int k = j - 1; k >= first_new; k--) {
            stride[k] = s;
            s *= shape.dim[k];
        }
    }
    return true;
}

static void fl__dense_strides(fl_shape shape, int64_t *stride) {
    int64_t n = 1;
    for (int i = shape.ndim - 1; i >= 0; i--) {
        stride[i] = n;
        n *= shape.dim[i] ? shape.dim[i] : 1;
    }
}

fl_tensor *fl_reshape(fl_tensor *t, fl_shape shape) {
    if (fl_is_null_arg("fl_reshape", t) || !(t = fl_materialise(t))) return NULL;
    fl_shape asked = shape;
    int64_t n = fl_numel(t), known = 1, infer = -1;
    if (shape.ndim < 0 || shape.ndim > FL_MAX_DIMS)
        return fl_err_null("fl_reshape: the number of dims must be 0 to %d, got %d", FL_MAX_DIMS, shape.ndim);
    for (int i = 0; i < shape.ndim; i++) {
        if (shape.dim[i] == -1 && infer < 0)
            infer = i;
        else if (__builtin_mul_overflow(known, shape.dim[i], &known))
            known = -1;
    }
    if (infer >= 0) shape.dim[infer] = known > 0 && n % known == 0 ? n / known : -1;
    if (fl_shape_numel(shape) != n)
        return fl_err_null("fl_reshape: shape %s (%lld elements) cannot become %s", FL_SHAPE_TEXT(t),
                       (long long)n, FL_TEXT_OF(asked));
    if (fl_shape_is(t, shape)) return t;
    int64_t stride[FL_MAX_DIMS];
    if (n == 0 || fl_is_contiguous(t))
        fl__dense_strides(shape, stride);
    else if (!fl__reshape_strides(t, shape, stride)) {
        t = fl_contiguous(t);
        if (!t) return NULL;
        fl__dense_strides(shape, stride);
    }
    return fl_view_of(t, shape, stride, t->offset);
}

fl_tensor *fl_permute(fl_tensor *t, int naxes, const int *axes) {
    if (fl_is_null_arg("fl_permute", t) || fl_is_null_arg("fl_permute", axes) || !(t = fl_materialise(t)))
        return NULL;
    fl_shape shape = {t->ndim, {0}};
    int64_t stride[FL_MAX_DIMS];
    uint32_t seen = 0;
    if (naxes != t->ndim)
        return fl_err_null("fl_permute: got %d axes for shape %s, expected %d", naxes, FL_SHAPE_TEXT(t),
                           t->ndim);
    for (int i = 0; i < naxes; i++) {
        int a = fl_axis_of("fl_permute", t, axes[i]);
        if (a < 0) return NULL;
        if (seen & 1u << a) return fl_err_null("fl_permute: axis %d appears twice", a);
        seen |= 1u << a;
        shape.dim[i] = t->shape[a];
        stride[i] = t->stride[a];
    }
    return fl_view_of(t, shape, stride, t->offset);
}

fl_tensor *fl_transpose(fl_tensor *t, int a, int b) {
    int axes[FL_MAX_DIMS];
    if (fl_is_null_arg("fl_transpose", t) || (a = fl_axis_of("fl_transpose", t, a)) < 0 ||
        (b = fl_axis_of("fl_transpose", t, b)) < 0)
        return NULL;
    for (int i = 0; i < t->ndim; i++) axes[i] = i == a ? b : i == b ? a : i;
    return fl_permute(t, t->ndim, axes);
}

fl_tensor *fl_expand(fl_tensor *t, fl_shape shape) {
    if (fl_is_null_arg("fl_expand", t) || !(t = fl_materialise(t))) return NULL;
    if (fl_shape_is(t, shape)) return t;
    int64_t stride[FL_MAX_DIMS] = {0};
    bool ok = shape.ndim >= t->ndim && shape.ndim <= FL_MAX_DIMS;
    int extra = ok ? shape.ndim - t->ndim : 0;
    for (int i = 0; ok && i < t->ndim; i++) {
        int64_t *d = &shape.dim[extra + i];
        if (*d == -1) *d = t->shape[i];
        ok = t->shape[i] == *d || t->shape[i] == 1;
        stride[extra + i] = t->shape[i] == *d ? t->stride[i] : 0;
    }
    if (!ok || fl_shape_numel(shape) < 0)
        return fl_err_null("fl_expand: shape %s does not broadcast to %s", FL_SHAPE_TEXT(t),
                       FL_TEXT_OF(shape));
    return fl_view_of(t, shape, stride, t->offset);
}

/* Row-major strides. */
static void fl__row_major(fl_shape shape, int64_t *stride) {
    int64_t n = 1;
    for (int i = shape.ndim - 1; i >= 0; i--) {
        stride[i] = n;
        n *= shape.dim[i] ? shape.dim[i] : 1;
    }
}

/* Checks that all elements are within the `limit` elements of the storage; false with an error. */
static bool fl__within(const char *fn, fl_shape shape, const int64_t *stride, int64_t offset, int64_t limit) {
    int64_t low = offset, high = offset, step;
    bool ok = true;
    for (int i = 0; ok && i < shape.ndim; i++)
        ok = !__builtin_mul_overflow(shape.dim[i] - 1, stride[i], &step) &&
             !__builtin_add_overflow(step < 0 ? low : high, step, step < 0 ? &low : &high);
    ok = fl_shape_numel(shape) ? ok && low >= 0 && high < limit : offset >= 0;
    return ok || fl_err_false("%s: shape %s from element %lld leaves the storage, which has %lld", fn,
                              FL_TEXT_OF(shape), (long long)offset, (long long)limit);
}

fl_tensor *fl_as_strided(fl_tensor *t, fl_shape shape, const int64_t *stride, int64_t offset) {
    static const char fn[] = "fl_as_strided";
    int64_t row_major[FL_MAX_DIMS];
    if (fl_is_null_arg(fn, t) || !(t = fl_materialise(t))) return NULL;
    if (fl_shape_numel(shape) < 0)
        return fl_err_null("%s: shape %s is not valid: expected up to %d dims >= 0, numel <= 2^62", fn,
                           FL_TEXT_OF(shape), FL_MAX_DIMS);
    if (!stride) fl__row_major(shape, row_major), stride = row_major;
    const int64_t size = (int64_t)fl_dtype_size(t->dtype);
    const int64_t limit = t->buffer ? (int64_t)t->buffer->bytes / size : fl_numel(t->base_ ? t->base_ : t);
    return fl__within(fn, shape, stride, offset, limit) ? fl_view_of(t, shape, stride, offset) : NULL;
}

fl_tensor *fl_from_buffer(fl_buffer *b, fl_dtype dtype, fl_shape shape, const int64_t *stride,
                          int64_t offset) {
    static const char fn[] = "fl_from_buffer";
    const int64_t size = (int64_t)fl_dtype_size(dtype);
    if (!fl_given(b, fn, "the buffer")) return fl_raise();
    if (!size) return fl_err_null("%s: unknown dtype %d", fn, (int)dtype);
    if (!b->device->host) return fl_err_null("%s: the buffer is not in the host's memory", fn);
    fl_tensor *t = fl_out_on(fl_backend_index("cpu"), shape, dtype);
    if (!t) return fl_raise();
    if (stride) memcpy(t->stride, stride, (size_t)shape.ndim * sizeof *stride);
    if (!fl__within(fn, shape, t->stride, offset, (int64_t)b->bytes / size)) return NULL;
    t->offset = offset;
    t->buffer = b;
    return t;
}

/* Clamps a slice as Python does: *start becomes the first index; returns the number of elements. */
static int64_t fl__slice_count(int64_t n, int64_t *start, int64_t stop, int64_t step) {
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    bool to_end = stop == FL_SLICE_END && step < 0;
    if (*start < 0) *start += n;
    *start = *start < low ? low : *start > high ? high : *start;
    if (stop < 0) stop += n;
    stop = to_end ? -1 : stop < low ? low : stop > high ? high : stop;
    if (step > 0) return stop > *start ? (stop - *start - 1) / step + 1 : 0;
    return *start > stop ? (*start - stop - 1) / -step + 1 : 0;
}

fl_tensor *fl_slice(fl_tensor *t, int axis, int64_t start, int64_t stop, int64_t step) {
    if (fl_is_null_arg("fl_slice", t) || (axis = fl_own_axis_of("fl_slice", t, axis)) < 0) return NULL;
    if (step == 0 || step == INT64_MIN)
        return fl_err_null("fl_slice: step must not be 0 or INT64_MIN, got %lld", (long long)step);
    fl_shape shape = fl_shape_of(t);
    int64_t stride[FL_MAX_DIMS];
    memcpy(stride, t->stride, sizeof stride);
    int64_t count = fl__slice_count(shape.dim[axis], &start, stop, step);
    if (count == shape.dim[axis] && step == 1) return t;
    shape.dim[axis] = count;
    stride[axis] = count > 1 ? t->stride[axis] * step : t->stride[axis];
    return fl_view_of(t, shape, stride, t->offset + (count ? start * t->stride[axis] : 0));
}

/* t without axis. */
static fl_tensor *fl__drop_axis(fl_tensor *t, int axis, int64_t offset) {
    fl_shape shape = {t->ndim - 1, {0}};
    int64_t stride[FL_MAX_DIMS];
    for (int i = 0; i < shape.ndim; i++) {
        shape.dim[i] = t->shape[i + (i >= axis)];
        stride[i] = t->stride[i + (i >= axis)];
    }
    return fl_view_of(t, shape, stride, offset);
}

fl_tensor *fl_select(fl_tensor *t, int axis, int64_t i) {
    if (fl_is_null_arg("fl_select", t) || (axis = fl_own_axis_of("fl_select", t, axis)) < 0) return NULL;
    int64_t at = i < 0 ? i + t->shape[axis] : i;
    if (at < 0 || at >= t->shape[axis])
        return fl_err_null("fl_select: index %lld is out of range for axis %d of shape %s",
                       (long long)i, axis, FL_SHAPE_TEXT(t));
    return fl__drop_axis(t, axis, t->offset + at * t->stride[axis]);
}

fl_tensor *fl_squeeze(fl_tensor *t, int axis) {
    if (fl_is_null_arg("fl_squeeze", t) || (axis = fl_axis_of("fl_squeeze", t, axis)) < 0) return NULL;
    if (t->ndim == 0) return t;
    if (t->shape[axis] != 1)
        return fl_err_null("fl_squeeze: axis %d of shape %s must have size 1", axis, FL_SHAPE_TEXT(t));
    return fl__drop_axis(t, axis, t->offset);
}

fl_tensor *fl_unsqueeze(fl_tensor *t, int axis) {
    if (fl_is_null_arg("fl_unsqueeze", t) || !(t = fl_materialise(t))) return NULL;
    int at = axis < 0 ? axis + t->ndim + 1 : axis;
    if (at < 0 || at > t->ndim || t->ndim == FL_MAX_DIMS)
        return fl_err_null("fl_unsqueeze: axis %d is out of range, or shape %s has %d dims already", axis,
                           FL_SHAPE_TEXT(t), FL_MAX_DIMS);
    fl_shape shape = {t->ndim + 1, {0}};
    int64_t stride[FL_MAX_DIMS];
    for (int i = 0; i < shape.ndim; i++) {
        shape.dim[i] = i == at ? 1 : t->shape[i - (i > at)];
        stride[i] = i == at ? 1 : t->stride[i - (i > at)];
    }
    return fl_view_of(t, shape, stride, t->offset);
}

fl_tensor *fl_flatten(fl_tensor *t, int first, int last) {
    if (fl_is_null_arg("fl_flatten", t) || !(t = fl_materialise(t))) return NULL;
    if ((first = fl_axis_of("fl_flatten", t, first)) < 0 ||
        (last = fl_axis_of("fl_flatten", t, last)) < 0)
        return NULL;
    if (last < first)
        return fl_err_null("fl_flatten: the last axis, %d, is before the first, %d", last, first);
    if (t->ndim == 0) return fl_reshape(t, FL_SHAPE(1));
    fl_shape shape = {0, {0}};
    for (int i = 0; i < t->ndim; i++) {
        if (i <= first || i > last)
            shape.dim[shape.ndim++] = t->shape[i];
        else
            shape.dim[first] *= t->shape[i];
    }
    return fl_reshape(t, shape);
}
#endif /* FL_TENSOR_VIEW_IMPL */
#endif
/* MIT licence: see LICENSE. */
