/* fl/ops/move.h - ops that move elements: views where strides allow, else by index */
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
   number for each axis; repeat_interleave repeats each element by itself; _each: element i of the axis
   times[i] times, a vector of integers that are at least 0 (or one for all), and waits for their sum. */
FL_API fl_tensor *fl_tile(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_tile(fl_var *x, fl_shape reps);
FL_API fl_tensor *fl_repeat(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_repeat(fl_var *x, fl_shape reps);
FL_API fl_tensor *fl_repeat_interleave(fl_tensor *x, int64_t n, int axis);
FL_API fl_var *fv_repeat_interleave(fl_var *x, int64_t n, int axis);
FL_API fl_tensor *fl_repeat_interleave_each(fl_tensor *x, fl_tensor *times, int axis);
FL_API fl_var *fv_repeat_interleave_each(fl_var *x, fl_tensor *times, int axis);
/* So many elements before and after each axis, negative: that many fewer (before a circular axis is closed).
   What they hold, of a b c:
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
    fl_opts_guard guard_;
    int64_t low[FL_MAX_DIMS], high[FL_MAX_DIMS]; /* of axis 0, 1, ... */
    fl_pad_mode mode;
    double value;
    char _end;
} fl_pad_opts;
#define fl_pad(...) FL__PAD(fl_pad_opt, __VA_ARGS__, ._end = 0)
#define fv_pad(...) FL__PAD(fv_pad_opt, __VA_ARGS__, ._end = 0)
#define FL__PAD(fn, x, ...) fn(x, FL_LITERAL(fl_pad_opts, __VA_ARGS__))
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
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "scan.h"
#include "view.h"
#define FL_TEXT "move.inc"
#include "expand.h"
#endif /* FL_OPS_MOVE_IMPL */
#endif
/* MIT licence: see LICENSE. */
