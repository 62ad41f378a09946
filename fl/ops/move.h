/* fl/ops/move.h - ops that move elements: views where strides allow, else by index */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_MOVE_H
#define FL_OPS_MOVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Axis `from` becomes axis `to`, the others keep their order. A view. */
FL_API fl_tensor *fl_movedim(fl_tensor *x, int from, int to);
FL_API fl_var *fv_movedim(fl_var *x, int from, int to);
/* length elements from start on, all of them within axis. A view. */
FL_API fl_tensor *fl_narrow(fl_tensor *x, int axis, int64_t start, int64_t length);
FL_API fl_var *fv_narrow(fl_var *x, int axis, int64_t start, int64_t length);
/* The other way round along the axes. A view. */
FL_API fl_tensor *fl_flip(fl_tensor *x, int naxes, const int *axes);
FL_API fl_var *fv_flip(fl_var *x, int naxes, const int *axes);
/* Element i goes to i + shift, around the end. */
FL_API fl_tensor *fl_roll(fl_tensor *x, int64_t shift, int axis);
FL_API fl_var *fv_roll(fl_var *x, int64_t shift, int axis);
/* k quarter turns from axis a to axis b. A view. */
FL_API fl_tensor *fl_rot90(fl_tensor *x, int64_t k, int a, int b);
FL_API fl_var *fv_rot90(fl_var *x, int64_t k, int a, int b);
/* axis becomes axes of these sizes, one of which may be -1. */
FL_API fl_tensor *fl_unflatten(fl_tensor *x, int axis, fl_shape shape);
FL_API fl_var *fv_unflatten(fl_var *x, int axis, fl_shape shape);
/* Parts of `size` along axis, the last may be smaller, or n parts as equal as those can be, maybe
   fewer. out has room for max, or n, of them. Returns their number; 0: an error. Views. */
FL_API int fl_split(fl_tensor *x, int axis, int64_t size, fl_tensor **out, int max);
FL_API int fv_split(fl_var *x, int axis, int64_t size, fl_var **out, int max);
FL_API int fl_chunk(fl_tensor *x, int axis, int n, fl_tensor **out);
FL_API int fv_chunk(fl_var *x, int axis, int n, fl_var **out);
/* Parts of n sizes, which add up to the axis: returns n, or 0. Views. */
FL_API int fl_split_with_sizes(fl_tensor *x, int axis, const int64_t *sizes, int n, fl_tensor **out);
FL_API int fv_split_with_sizes(fl_var *x, int axis, const int64_t *sizes, int n, fl_var **out);
/* Every element along axis as fl_select gives it; out has room for max. Returns their number; 0 for an
   empty axis, and after an error. Views. */
FL_API int fl_unbind(fl_tensor *x, int axis, fl_tensor **out, int max);
FL_API int fv_unbind(fl_var *x, int axis, fl_var **out, int max);
/* x reps.dim[i] times along axis i; missing numbers are 1, missing axes go before. repeat wants a
   number for each axis; repeat_interleave repeats each element by itself. */
FL_API fl_tensor *fl_tile(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_tile(fl_var *x, fl_shape reps);
FL_API fl_tensor *fl_repeat(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_repeat(fl_var *x, fl_shape reps);
FL_API fl_tensor *fl_repeat_interleave(fl_tensor *x, int64_t n, int axis);
FL_API fl_var *fv_repeat_interleave(fl_var *x, int64_t n, int axis);
/* So many elements before and after each axis, negative: that many fewer. What they hold, of a b c:
   value;  a and c;  b before a and b after c;  a before a and c after c;  c before a and a after c;
   and so on around, as often as it takes. fl_pad(x, .low = {0, 2}, .high = {0, 1}). */
typedef enum fl_pad_mode {
    FL_PAD_CONSTANT,
    FL_PAD_EDGE,
    FL_PAD_REFLECT,
    FL_PAD_SYMMETRIC,
    FL_PAD_CIRCULAR
} fl_pad_mode;
typedef struct fl_pad_opts {
    fl_named _positional;
    int64_t low[FL_MAX_DIMS], high[FL_MAX_DIMS]; /* of axis 0, 1, ... */
    fl_pad_mode mode;
    double value;
    char _end;
} fl_pad_opts;
#define fl_pad(...) FL__PAD(fl_pad_opt, __VA_ARGS__, ._end = 0)
#define fv_pad(...) FL__PAD(fv_pad_opt, __VA_ARGS__, ._end = 0)
#define FL__PAD(fn, x, ...) fn(x, (fl_pad_opts){__VA_ARGS__})
FL_API fl_tensor *fl_pad_opt(fl_tensor *x, fl_pad_opts o);
FL_API fl_var *fv_pad_opt(fl_var *x, fl_pad_opts o);
/* Windows of `size` elements, `dilation` apart, every `step` elements of axis: axis counts them, a
   new last axis holds them. A view, whose overlaps share elements; gradients add up. */
FL_API fl_tensor *fl_sliding_windows(fl_tensor *x, int axis, int64_t size, int64_t step, int64_t dilation);
FL_API fl_var *fv_sliding_windows(fl_var *x, int axis, int64_t size, int64_t step, int64_t dilation);
/* [..., c r r, h, w] -> [..., c, h r, w r] and back;  [n, c, ...]: channel i of group g comes to
   place i groups + g */
FL_API fl_tensor *fl_pixel_shuffle(fl_tensor *x, int64_t r);
FL_API fl_var *fv_pixel_shuffle(fl_var *x, int64_t r);
FL_API fl_tensor *fl_pixel_unshuffle(fl_tensor *x, int64_t r);
FL_API fl_var *fv_pixel_unshuffle(fl_var *x, int64_t r);
FL_API fl_tensor *fl_channel_shuffle(fl_tensor *x, int64_t groups);
FL_API fl_var *fv_channel_shuffle(fl_var *x, int64_t groups);
/* The same shape [n, c, ...], stored [n, ..., c]: movedim(y, 1, -1) is contiguous. */
FL_API fl_tensor *fl_channels_last(fl_tensor *x);
FL_API fl_var *fv_channels_last(fl_var *x);
/* n operands with the shape of all; n <= 8 vectors as coordinates, out[i] with axis i along xs[i].
   Views; out may be xs. */
FL_API bool fl_broadcast_tensors(fl_tensor *const *xs, int n, fl_tensor **out);
FL_API bool fv_broadcast_tensors(fl_var *const *xs, int n, fl_var **out);
FL_API bool fl_meshgrid(fl_tensor *const *xs, int n, fl_tensor **out);
FL_API bool fv_meshgrid(fl_var *const *xs, int n, fl_var **out);
/* The entries whose coordinate along b is that along a plus offset, as a new last axis. A view of
   tensors. */
FL_API fl_tensor *fl_diagonal(fl_tensor *x, int64_t offset, int a, int b);
FL_API fl_var *fv_diagonal(fl_var *x, int64_t offset, int a, int b);
/* Matrices with the last axis as that diagonal, else 0: [..., n] -> [..., n + |offset|, the same] */
FL_API fl_tensor *fl_diag_embed(fl_tensor *x, int64_t offset);
FL_API fl_var *fv_diag_embed(fl_var *x, int64_t offset);
/* Matrices of the last two axes, 0 above, or below, diagonal k */
FL_API fl_tensor *fl_tril(fl_tensor *x, int64_t k);
FL_API fl_var *fv_tril(fl_var *x, int64_t k);
FL_API fl_tensor *fl_triu(fl_tensor *x, int64_t k);
FL_API fl_var *fv_triu(fl_var *x, int64_t k);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_MOVE_H */

#if defined(FL_IMPL_ONLY_OPS_MOVE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_MOVE_IMPL
#define FL_OPS_MOVE_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "view.h"
#define FL_TEXT "move.h"
#include "expand.h"
#endif /* FL_OPS_MOVE_IMPL */
#endif
#else /* the text: see expand.h */

/* >>order of axes and of elements */

FL_T *FL_W(movedim)(FL_T *x, int from, int to) {
    if (FL_ABSENT("movedim", x)) return NULL;
    int axes[FL_MAX_DIMS], next = 0, ndim = FL_VALUE(x)->ndim;
    if ((from = fl_axis_of("fl_movedim", FL_VALUE(x), from)) < 0 ||
        (to = fl_axis_of("fl_movedim", FL_VALUE(x), to)) < 0)
        return NULL;
    for (int i = 0; i < ndim; i++) {
        next += next == from;
        axes[i] = i == to ? from : next++;
    }
    return FL_W(permute)(x, ndim, axes);
}

FL_T *FL_W(narrow)(FL_T *x, int axis, int64_t start, int64_t length) {
    if (FL_ABSENT("narrow", x)) return NULL;
    if ((axis = fl_own_axis_of("fl_narrow", FL_VALUE(x), axis)) < 0) return NULL;
    int64_t n = FL_VALUE(x)->shape[axis], first = start < 0 ? start + n : start;
    if (first < 0 || first > n || length < 0 || length > n - first)
        return fl_bad("fl_narrow: %lld elements from %lld on axis %d of shape %s",
                       (long long)length, (long long)start, axis, FL_SHAPE_TEXT(FL_VALUE(x)));
    return FL_W(slice)(x, axis, first, first + length, 1);
}

FL_T *FL_W(flip)(FL_T *x, int naxes, const int *axes) {
    if (FL_ABSENT("flip", x) || (naxes && FL_ABSENT("flip", axes))) return NULL;
    uint32_t seen = 0;
    fl_scope s = fl_scope_begin();
    for (int i = 0; x && i < naxes; i++) {
        int axis = fl_axis_of("fl_flip", FL_VALUE(x), axes[i]);
        if (axis >= 0 && seen & 1u << axis) axis = (fl_bad("fl_flip: axis %d appears twice", axis), -1);
        seen |= axis < 0 ? 0 : 1u << axis;
        if (axis < 0) x = NULL;
        else if (FL_VALUE(x)->ndim) x = FL_W(slice)(x, axis, -1, FL_SLICE_END, -1);
    }
    return FL_GIVE(&s, x);
}

FL_T *FL_W(roll)(FL_T *x, int64_t shift, int axis) {
    if (FL_ABSENT("roll", x) || (axis = fl_own_axis_of("fl_roll", FL_VALUE(x), axis)) < 0) return NULL;
    int64_t n = FL_VALUE(x)->shape[axis], by = n ? shift % n : 0;
    if (by == 0) return x;
    if (by < 0) by += n;
    fl_scope s = fl_scope_begin();
    FL_T *parts[] = {FL_W(slice)(x, axis, n - by, n, 1), FL_W(slice)(x, axis, 0, n - by, 1)};
    return FL_GIVE(&s, FL_W(concat)(parts, 2, axis));
}

FL_T *FL_W(rot90)(FL_T *x, int64_t k, int a, int b) {
    if (FL_ABSENT("rot90", x)) return NULL;
    if ((a = fl_axis_of("fl_rot90", FL_VALUE(x), a)) < 0 ||
        (b = fl_axis_of("fl_rot90", FL_VALUE(x), b)) < 0)
        return NULL;
    if (a == b) return fl_bad("fl_rot90: axis %d appears twice", a);
    fl_scope s = fl_scope_begin();
    int axes[] = {a, b}, turns = (int)((k % 4 + 4) % 4);
    if (turns == 2) x = FL_W(flip)(x, 2, axes);
    if (turns % 2) x = FL_W(transpose)(FL_W(flip)(x, 1, &axes[turns == 1]), a, b);
    return FL_GIVE(&s, x);
}

FL_T *FL_W(unflatten)(FL_T *x, int axis, fl_shape shape) {
    if (FL_ABSENT("unflatten", x)) return NULL;
    if ((axis = fl_own_axis_of("fl_unflatten", FL_VALUE(x), axis)) < 0) return NULL;
    fl_shape from = fl_shape_of(FL_VALUE(x)), to = from;
    int64_t known = 1, unknown = -1;
    bool fits = shape.ndim >= 1 && shape.ndim <= FL_MAX_DIMS - from.ndim + 1;
    to.ndim += fits ? shape.ndim - 1 : 0;
    if (!fits)
        return fl_bad("fl_unflatten: %d dims for an axis of shape %s", shape.ndim,
                       FL_SHAPE_TEXT(FL_VALUE(x)));
    for (int i = 0; i < shape.ndim; i++) {
        if (shape.dim[i] == -1 && unknown < 0) unknown = i;
        else if (__builtin_mul_overflow(known, shape.dim[i], &known)) known = -1;
    }
    if (unknown >= 0) shape.dim[unknown] = known > 0 ? from.dim[axis] / known : -1;
    if (fl_shape_numel(shape) != from.dim[axis])
        return fl_bad("fl_unflatten: axis %d of shape %s cannot become %s", axis,
                       FL_SHAPE_TEXT(FL_VALUE(x)), FL_TEXT_OF(shape));
    for (int i = from.ndim - 1; i > axis; i--) to.dim[i + shape.ndim - 1] = from.dim[i];
    for (int i = 0; i < shape.ndim; i++) to.dim[axis + i] = shape.dim[i];
    return FL_W(reshape)(x, to);
}

/* >>parts */

int FL_W(split)(FL_T *x, int axis, int64_t size, FL_T **out, int max) {
    if (FL_ABSENT("split", x) || FL_ABSENT("split", out)) return 0;
    if ((axis = fl_own_axis_of("fl_split", FL_VALUE(x), axis)) < 0) return 0;
    int64_t n = FL_VALUE(x)->shape[axis], parts = n && size > 0 ? (n - 1) / size + 1 : 1;
    if (size < 0 || (size == 0 && n) || parts > max) {
        fl_bad("fl_split: axis %d of shape %s in parts of %lld, room for %d", axis,
                      FL_SHAPE_TEXT(FL_VALUE(x)), (long long)size, max);
        return 0;
    }
    for (int64_t i = 0; i < parts; i++) {
        int64_t stop = size < n - i * size ? (i + 1) * size : n;
        if (!(out[i] = FL_W(slice)(x, axis, i * size, stop, 1))) return 0;
    }
    return (int)parts;
}

int FL_W(split_with_sizes)(FL_T *x, int axis, const int64_t *sizes, int n, FL_T **out) {
    const char *fn = "fl_split_with_sizes";
    if (FL_ABSENT("split_with_sizes", x) || FL_ABSENT("split_with_sizes", sizes) ||
        FL_ABSENT("split_with_sizes", out) || (axis = fl_axis_of(fn, FL_VALUE(x), axis)) < 0)
        return 0;
    int64_t all = 0;
    for (int i = 0; i < n && all >= 0; i++)
        if (sizes[i] < 0 || __builtin_add_overflow(all, sizes[i], &all)) all = -1;
    if (n < 1 || all != FL_VALUE(x)->shape[axis]) {
        fl_bad("%s: %d sizes, the first %lld, that add up to %lld, for axis %d of shape %s", fn, n,
               (long long)(n > 0 ? sizes[0] : 0), (long long)all, axis, FL_SHAPE_TEXT(FL_VALUE(x)));
        return 0;
    }
    for (int64_t i = 0, start = 0; i < n; start += sizes[i++])
        if (!(out[i] = FL_W(slice)(x, axis, start, start + sizes[i], 1))) return 0;
    return n;
}

int FL_W(chunk)(FL_T *x, int axis, int n, FL_T **out) {
    if (FL_ABSENT("chunk", x) || FL_ABSENT("chunk", out)) return 0;
    if ((axis = fl_own_axis_of("fl_chunk", FL_VALUE(x), axis)) < 0) return 0;
    if (n < 1) {
        fl_bad("fl_chunk: %d parts", n);
        return 0;
    }
    int64_t length = FL_VALUE(x)->shape[axis];
    return FL_W(split)(x, axis, length ? (length - 1) / n + 1 : 0, out, n);
}

int FL_W(unbind)(FL_T *x, int axis, FL_T **out, int max) {
    if (FL_ABSENT("unbind", x) || FL_ABSENT("unbind", out)) return 0;
    if ((axis = fl_axis_of("fl_unbind", FL_VALUE(x), axis)) < 0) return 0;
    int64_t n = FL_VALUE(x)->ndim ? FL_VALUE(x)->shape[axis] : -1;
    if (n < 0 || n > max) {
        fl_bad("fl_unbind: axis %d of shape %s, room for %d", axis, FL_SHAPE_TEXT(FL_VALUE(x)), max);
        return 0;
    }
    for (int64_t i = 0; i < n; i++)
        if (!(out[i] = FL_W(select)(x, axis, i))) return 0;
    return (int)n;
}

/* >>repetition */

/* Repeats n times what the axes from `cut` on hold, so that dim `axis` grows n-fold. */
static FL_T *FL_W(_times)(FL_T *x, int axis, int64_t n, int cut, const char *fn) {
    fl_shape to = fl_shape_of(FL_VALUE(x)), wide = {3, {1, n, 1}}, narrow = {3, {1, 1, 1}};
    if (n == 1) return x;
    for (int i = 0; i < to.ndim; i++) wide.dim[i < cut ? 0 : 2] *= to.dim[i];
    narrow.dim[0] = wide.dim[0], narrow.dim[2] = wide.dim[2];
    if (n < 0 || __builtin_mul_overflow(to.dim[axis], n, &to.dim[axis]) || fl_shape_numel(to) < 0)
        return fl_bad("fl_%s: %lld times axis %d of shape %s", fn, (long long)n, axis,
                       FL_SHAPE_TEXT(FL_VALUE(x)));
    return FL_W(reshape)(FL_W(expand)(FL_W(reshape)(x, narrow), wide), to);
}

static FL_T *FL_W(_repeated)(FL_T *x, fl_shape reps, const char *fn) {
    fl_shape to = {reps.ndim, {0}}, from = fl_shape_of(FL_VALUE(x));
    int extra = reps.ndim - from.ndim;
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < reps.ndim; i++) to.dim[i] = i < extra ? 1 : from.dim[i - extra];
    x = FL_W(reshape)(x, to);
    for (int i = 0; x && i < reps.ndim; i++) x = FL_W(_times)(x, i, reps.dim[i], i, fn);
    return FL_GIVE(&s, x);
}

FL_T *FL_W(repeat)(FL_T *x, fl_shape reps) {
    if (FL_ABSENT("repeat", x)) return NULL;
    if (reps.ndim < FL_VALUE(x)->ndim || reps.ndim > FL_MAX_DIMS)
        return fl_bad("fl_repeat: %d numbers for shape %s", reps.ndim,
                       FL_SHAPE_TEXT(FL_VALUE(x)));
    return FL_W(_repeated)(x, reps, "repeat");
}

FL_T *FL_W(tile)(FL_T *x, fl_shape reps) {
    if (FL_ABSENT("tile", x)) return NULL;
    if (reps.ndim < 0 || reps.ndim > FL_MAX_DIMS) return fl_bad("fl_tile: %d numbers", reps.ndim);
    int ndim = FL_VALUE(x)->ndim, missing = ndim > reps.ndim ? ndim - reps.ndim : 0;
    fl_shape all = {missing + reps.ndim, {0}};
    for (int i = 0; i < all.ndim; i++) all.dim[i] = i < missing ? 1 : reps.dim[i - missing];
    return FL_W(_repeated)(x, all, "tile");
}

FL_T *FL_W(repeat_interleave)(FL_T *x, int64_t n, int axis) {
    if (FL_ABSENT("repeat_interleave", x)) return NULL;
    if ((axis = fl_own_axis_of("fl_repeat_interleave", FL_VALUE(x), axis)) < 0) return NULL;
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, FL_W(_times)(x, axis, n, axis + 1, "repeat_interleave"));
}

/* >>padding */

#ifdef FL_ON_TENSORS
/* For places -low ... n + high - 1 of an axis of n > 0 elements, the elements that stand there. */
static fl_tensor *fl__pad_index(fl_tensor *like, int64_t n, int64_t low, int64_t high,
                                fl_pad_mode mode) {
    fl_tensor *p = fl_arange((double)-low, (double)(n + high), 1, FL_I64);
    int64_t period = mode == FL_PAD_CIRCULAR ? n : mode == FL_PAD_SYMMETRIC ? 2 * n : 2 * (n - 1);
    if (mode == FL_PAD_EDGE || period == 0)
        p = fl_minimum(fl_maximum(p, fl_int(0)), fl_int(n - 1));
    else
        p = fl_remainder(p, fl_int(period));
    if (mode == FL_PAD_SYMMETRIC || (mode == FL_PAD_REFLECT && period))
        p = fl_minimum(p, fl_sub(fl_int(mode == FL_PAD_SYMMETRIC ? period - 1 : period), p));
    return fl_to(p, fl_backend_name(like));
}

/* Length n of an axis after padding; -1 after an error. */
static int64_t fl__padded_length(const fl_tensor *x, int axis, const fl_pad_opts *o) {
    int64_t n = x->shape[axis], low = o->low[axis], high = o->high[axis], sum;
    bool ok = low >= -n && high >= -n && !__builtin_add_overflow(low, high, &sum) &&
              !__builtin_add_overflow(sum, n, &sum) && sum >= 0 && sum < (int64_t)1 << 53;
    if (ok && n == 0 && sum && o->mode != FL_PAD_CONSTANT) ok = false;
    if (ok) return sum;
    fl_bad("fl_pad: %lld before and %lld after axis %d of shape %s", (long long)low,
                  (long long)high, axis, FL_SHAPE_TEXT(x));
    return -1;
}
#endif

/* x with constants before and after it along axis; negative numbers crop. */
static FL_T *FL_W(_pad_constant)(FL_T *x, int axis, int64_t low, int64_t high, double value) {
    int64_t n = FL_VALUE(x)->shape[axis];
    x = FL_W(slice)(x, axis, low < 0 ? -low : 0, high < 0 ? n + high : n, 1);
    if (!x || (low <= 0 && high <= 0)) return x;
    fl_shape before = fl_shape_of(FL_VALUE(x)), after = before;
    before.dim[axis] = low > 0 ? low : 0, after.dim[axis] = high > 0 ? high : 0;
    fl_tensor *number = fl__number_beside(FL_VALUE(x), value, FL_VALUE(x)->dtype);
    FL_T *parts[] = {FL_OF(fl_expand(number, before)), x, FL_OF(fl_expand(number, after))};
    return parts[0] && parts[2] ? FL_W(concat)(parts, 3, axis) : NULL;
}

FL_T *FL_W(pad_opt)(FL_T *x, fl_pad_opts o) {
    if (FL_ABSENT("pad", x)) return NULL;
    if ((unsigned)o.mode > FL_PAD_CIRCULAR) return fl_bad("fl_pad: mode %d", (int)o.mode);
    for (int i = FL_VALUE(x)->ndim; i < FL_MAX_DIMS; i++)
        if (o.low[i] || o.high[i])
            return fl_bad("fl_pad: axis %d of shape %s", i, FL_SHAPE_TEXT(FL_VALUE(x)));
    fl_scope s = fl_scope_begin();
    for (int i = 0; x && i < FL_VALUE(x)->ndim; i++) {
        int64_t n = FL_VALUE(x)->shape[i], low = o.low[i], high = o.high[i];
        if (low == 0 && high == 0) continue;
        if (fl__padded_length(FL_VALUE(x), i, &o) < 0) x = NULL;
        else if (o.mode == FL_PAD_CONSTANT) x = FL_W(_pad_constant)(x, i, low, high, o.value);
        else x = FL_W(index_select)(x, i, fl__pad_index(FL_VALUE(x), n, low, high, o.mode));
    }
    return FL_GIVE(&s, x);
}

/* >>windows of an axis */

#ifdef FL_ON_TENSORS
fl_tensor *fl_sliding_windows(fl_tensor *x, int axis, int64_t size, int64_t step,
                              int64_t dilation) {
    if (FL_ABSENT("sliding_windows", x) || !(x = fl_stored(x))) return NULL;
    if ((axis = fl_axis_of("fl_sliding_windows", x, axis)) < 0) return NULL;
    fl_shape shape = fl_shape_of(x);
    int64_t stride[FL_MAX_DIMS], n = shape.dim[axis];
    if (size < 1 || step < 1 || dilation < 1 || n == 0 || (size - 1) > (n - 1) / dilation ||
        shape.ndim == FL_MAX_DIMS)
        return fl_bad("fl_sliding_windows: size %lld, step %lld, dilation %lld on axis %d of "
                       "shape %s", (long long)size, (long long)step, (long long)dilation, axis,
                       FL_SHAPE_TEXT(x));
    for (int i = 0; i < shape.ndim; i++) stride[i] = x->stride[i];
    shape.dim[axis] = (n - 1 - (size - 1) * dilation) / step + 1;
    shape.dim[shape.ndim] = size;
    stride[shape.ndim++] = size > 1 ? stride[axis] * dilation : 1;
    stride[axis] *= shape.dim[axis] > 1 ? step : 1;
    return fl_view_of(x, shape, stride, x->offset);
}
#else
typedef struct fv__windows {
    int axis;
    int64_t size, step, dilation;
} fv__windows;

/* The gradients of a window go to the elements that it showed; where windows overlap they add up. */
static void fv__windows_back(fl_node *n, fl_var *dy) {
    const fv__windows *w = fv_args(n);
    fl_shape in = fv_in_shape(n, 0), column = {in.ndim, {1, 1, 1, 1, 1, 1, 1, 1}};
    const char *family = fl_backend_name(fv_value(dy));
    fl_tensor *index = fl_arange(0, (double)in.dim[w->axis], 1, FL_I64);
    index = fl_sliding_windows(index, 0, w->size, w->step, w->dilation);
    dy = fv_flatten(fv_movedim(dy, -1, w->axis + 1), w->axis, w->axis + 1);
    if (!index || !dy) return;
    column.dim[w->axis] = fl_numel(index);
    index = fl_to(fl_expand(fl_reshape(index, column), fl_shape_of(fv_value(dy))), family);
    fl_tensor *zeros = fl_to(fl_zeros(in, fv_value(dy)->dtype), family);
    fv_add_grad(n, 0, fv_scatter_add(fv_const(zeros), w->axis, index, dy));
}

fl_var *fv_sliding_windows(fl_var *x, int axis, int64_t size, int64_t step, int64_t dilation) {
    if (FL_ABSENT("sliding_windows", x)) return NULL;
    fl_tensor *y = fl_sliding_windows(x->value, axis, size, step, dilation);
    fv__windows w = {y ? fl_axis_of("fl_sliding_windows", x->value, axis) : 0, size, step, dilation};
    return fv_record_args("sliding_windows", y, fv__windows_back, FV_IN(x), FV_NONE, &w, sizeof w);
}
#endif

/* >>channels */

FL_T *FL_W(pixel_shuffle)(FL_T *x, int64_t r) {
    if (FL_ABSENT("pixel_shuffle", x)) return NULL;
    fl_shape to = fl_shape_of(FL_VALUE(x));
    int64_t *d = &to.dim[to.ndim < 3 ? 0 : to.ndim - 3], lead = 1;
    if (to.ndim < 3 || r < 1 || r > INT32_MAX || d[0] % (r * r) || d[1] > INT64_MAX / r ||
        d[2] > INT64_MAX / r)
        return fl_bad("fl_pixel_shuffle: shape %s by %lld", FL_SHAPE_TEXT(FL_VALUE(x)),
                       (long long)r);
    for (int i = 0; i + 3 < to.ndim; i++) lead *= to.dim[i];
    fl_shape parts = FL_SHAPE(lead, d[0] / (r * r), r, r, d[1], d[2]);
    d[0] /= r * r, d[1] *= r, d[2] *= r;
    fl_scope s = fl_scope_begin();
    x = FL_W(permute)(FL_W(reshape)(x, parts), 6, (int[]){0, 1, 4, 2, 5, 3});
    return FL_GIVE(&s, FL_W(reshape)(x, to));
}

FL_T *FL_W(pixel_unshuffle)(FL_T *x, int64_t r) {
    if (FL_ABSENT("pixel_unshuffle", x)) return NULL;
    fl_shape to = fl_shape_of(FL_VALUE(x));
    int64_t *d = &to.dim[to.ndim < 3 ? 0 : to.ndim - 3], lead = 1, c;
    if (to.ndim < 3 || r < 1 || r > INT32_MAX || d[1] % r || d[2] % r ||
        __builtin_mul_overflow(d[0], r * r, &c))
        return fl_bad("fl_pixel_unshuffle: shape %s by %lld", FL_SHAPE_TEXT(FL_VALUE(x)),
                       (long long)r);
    for (int i = 0; i + 3 < to.ndim; i++) lead *= to.dim[i];
    fl_shape parts = FL_SHAPE(lead, d[0], d[1] / r, r, d[2] / r, r);
    d[0] = c, d[1] /= r, d[2] /= r;
    fl_scope s = fl_scope_begin();
    x = FL_W(permute)(FL_W(reshape)(x, parts), 6, (int[]){0, 1, 3, 5, 2, 4});
    return FL_GIVE(&s, FL_W(reshape)(x, to));
}

FL_T *FL_W(channel_shuffle)(FL_T *x, int64_t groups) {
    if (FL_ABSENT("channel_shuffle", x)) return NULL;
    fl_shape to = fl_shape_of(FL_VALUE(x));
    if (to.ndim < 2 || groups < 1 || to.dim[1] % groups)
        return fl_bad("fl_channel_shuffle: shape %s in %lld groups", FL_SHAPE_TEXT(FL_VALUE(x)),
                       (long long)groups);
    fl_shape parts = {4, {to.dim[0], groups, to.dim[1] / groups, 1}};
    for (int i = 2; i < to.ndim; i++) parts.dim[3] *= to.dim[i];
    fl_scope s = fl_scope_begin();
    x = FL_W(transpose)(FL_W(reshape)(x, parts), 1, 2);
    return FL_GIVE(&s, FL_W(reshape)(x, to));
}

FL_T *FL_W(channels_last)(FL_T *x) {
    if (FL_ABSENT("channels_last", x)) return NULL;
    if (FL_VALUE(x)->ndim < 3)
        return fl_bad("fl_channels_last: shape %s", FL_SHAPE_TEXT(FL_VALUE(x)));
    fl_scope s = fl_scope_begin();
    return FL_GIVE(&s, FL_W(movedim)(FL_W(contiguous)(FL_W(movedim)(x, 1, -1)), -1, 1));
}

/* >>several tensors */

bool FL_W(broadcast_tensors)(FL_T *const *xs, int n, FL_T **out) {
    if (FL_ABSENT("broadcast_tensors", xs) || FL_ABSENT("broadcast_tensors", out)) return false;
    fl_shape shape = FL_SCALAR_SHAPE;
    for (int i = 0; i < n; i++) {
        if (FL_ABSENT("broadcast_tensors", xs[i])) return false;
        if (fl_broadcast_shape(&shape, FL_VALUE(xs[i]))) continue;
        return fl_refuse("fl_broadcast_tensors: %s does not broadcast with %s",
                       FL_SHAPE_TEXT(FL_VALUE(xs[i])), FL_TEXT_OF(shape));
    }
    for (int i = 0; i < n; i++)
        if (!(out[i] = FL_W(expand)(xs[i], shape))) return false;
    return true;
}

bool FL_W(meshgrid)(FL_T *const *xs, int n, FL_T **out) {
    if (FL_ABSENT("meshgrid", xs) || FL_ABSENT("meshgrid", out)) return false;
    fl_shape shape = {n, {0}};
    if (n < 1 || n > FL_MAX_DIMS) return fl_refuse("fl_meshgrid: %d axes", n);
    for (int i = 0; i < n; i++) {
        if (FL_ABSENT("meshgrid", xs[i])) return false;
        if (FL_VALUE(xs[i])->ndim > 1)
            return fl_bad("fl_meshgrid: an axis of shape %s", FL_SHAPE_TEXT(FL_VALUE(xs[i]))) !=
                   NULL;
        shape.dim[i] = fl_numel(FL_VALUE(xs[i]));
    }
    for (int i = 0; i < n; i++) {
        fl_shape column = {n, {1, 1, 1, 1, 1, 1, 1, 1}};
        column.dim[i] = shape.dim[i];
        if (!(out[i] = FL_W(expand)(FL_W(reshape)(xs[i], column), shape))) return false;
    }
    return true;
}

/* >>diagonals and triangles */

#ifdef FL_ON_TENSORS
/* For entries of [rows, columns]: column - row, one i64 each. */
static fl_tensor *fl__diagonal_numbers(fl_tensor *like, int64_t rows, int64_t columns) {
    fl_tensor *row = fl_unsqueeze(fl_arange(0, (double)rows, 1, FL_I64), 1);
    return fl_to(fl_sub(fl_arange(0, (double)columns, 1, FL_I64), row), fl_backend_name(like));
}

/* Checks the axes of a diagonal; its length, -1 after an error. */
static int64_t fl__diagonal_length(const fl_tensor *x, int64_t offset, int *a, int *b) {
    if ((*a = fl_axis_of("fl_diagonal", x, *a)) < 0 || (*b = fl_axis_of("fl_diagonal", x, *b)) < 0)
        return -1;
    if (*a == *b) return fl_bad("fl_diagonal: axis %d appears twice", *a), -1;
    int64_t n = x->shape[*a], m = x->shape[*b];
    if (offset <= -n || offset >= m) return 0;
    n += offset < 0 ? offset : 0, m -= offset > 0 ? offset : 0;
    return n < m ? n : m;
}

fl_tensor *fl_diagonal(fl_tensor *x, int64_t offset, int a, int b) {
    if (FL_ABSENT("diagonal", x)) return NULL;
    int64_t n = fl__diagonal_length(x, offset, &a, &b), stride[FL_MAX_DIMS], at = x->offset;
    fl_shape shape = {0, {0}};
    if (n < 0) return NULL;
    for (int i = 0; i < x->ndim; i++) {
        if (i == a || i == b) continue;
        stride[shape.ndim] = x->stride[i];
        shape.dim[shape.ndim++] = x->shape[i];
    }
    stride[shape.ndim] = x->stride[a] + x->stride[b];
    shape.dim[shape.ndim++] = n;
    if (n) at += offset < 0 ? -offset * x->stride[a] : offset * x->stride[b];
    return fl_view_of(x, shape, stride, at);
}
#else
/* With the two axes as one: every m + 1-th element. */
fl_var *fv_diagonal(fl_var *x, int64_t offset, int a, int b) {
    if (FL_ABSENT("diagonal", x)) return NULL;
    int64_t n = fl__diagonal_length(x->value, offset, &a, &b);
    if (n < 0) return NULL;
    int64_t m = x->value->shape[b], first = n == 0 ? 0 : offset < 0 ? -offset * m : offset;
    fl_scope s = fl_scope_begin();
    x = fv_movedim(fv_movedim(x, a, -1), b - (b > a), -1);
    x = fv_flatten(x, -2, -1);
    return fv_scope_return(&s, fv_slice(x, -1, first, n ? first + (n - 1) * (m + 1) + 1 : 0, m + 1));
}
#endif

FL_T *FL_W(diag_embed)(FL_T *x, int64_t offset) {
    if (FL_ABSENT("diag_embed", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    int64_t most = (int64_t)1 << 31, more = offset < 0 ? -(offset + 1) : offset;
    if (t->ndim < 1 || t->ndim == FL_MAX_DIMS || more >= most || t->shape[t->ndim - 1] >= most)
        return fl_bad("fl_diag_embed: shape %s at %lld", FL_SHAPE_TEXT(t), (long long)offset);
    more += offset < 0;
    fl_scope s = fl_scope_begin();
    int64_t n = t->shape[t->ndim - 1] + more;
    fl_tensor *on = fl_eq(fl__diagonal_numbers(t, n, n), fl_int(offset));
    FL_T *zero = FL_OF(fl__number_beside(t, 0, t->dtype));
    FL_T *row = FL_W(_pad_constant)(x, t->ndim - 1, 0, more, 0);
    row = FL_W(unsqueeze)(row, offset < 0 ? -2 : -1);
    return FL_GIVE(&s, SELECT(FL_OF(on), row, zero));
}

/* x where column - row <= k (lower) or >= k, else 0 */
static FL_T *FL_W(_kept_triangle)(FL_T *x, int64_t k, bool lower) {
    fl_tensor *t = FL_VALUE(x);
    if (t->ndim < 2)
        return fl_bad("fl_tri%c: shape %s", lower ? 'l' : 'u', FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    fl_tensor *d = fl__diagonal_numbers(t, t->shape[t->ndim - 2], t->shape[t->ndim - 1]);
    fl_tensor *kept = lower ? fl_le(d, fl_int(k)) : fl_ge(d, fl_int(k));
    return FL_GIVE(&s, SELECT(FL_OF(kept), x, FL_OF(fl__number_beside(t, 0, t->dtype))));
}

FL_T *FL_W(tril)(FL_T *x, int64_t k) {
    return FL_ABSENT("tril", x) ? NULL : FL_W(_kept_triangle)(x, k, true);
}

FL_T *FL_W(triu)(FL_T *x, int64_t k) {
    return FL_ABSENT("triu", x) ? NULL : FL_W(_kept_triangle)(x, k, false);
}

#endif
/* MIT licence: see LICENSE. */
