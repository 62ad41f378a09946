/* fl/ops/move.h - ops that rearrange elements: flip, roll, split, repeat, pad, windows, shuffles, diagonals

   Results are views where strides allow, else gathered copies. Any dtype; gradients are the inverse moves. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_MOVE_H
#define FL_OPS_MOVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Moves axis `from` to position `to`; the other axes keep their order. A view. */
FL_API fl_tensor *fl_movedim(fl_tensor *x, int from, int to);
FL_API fl_var *fv_movedim(fl_var *x, int from, int to);
/* `length` elements of axis from start on; error if they do not all exist. A view. */
FL_API fl_tensor *fl_narrow(fl_tensor *x, int axis, int64_t start, int64_t length);
FL_API fl_var *fv_narrow(fl_var *x, int axis, int64_t start, int64_t length);
/* Reverses the order of elements along the axes. A view. */
FL_API fl_tensor *fl_flip(fl_tensor *x, int naxes, const int *axes);
FL_API fl_var *fv_flip(fl_var *x, int naxes, const int *axes);
/* torch.roll: element i moves to i + shift modulo the size of axis. */
FL_API fl_tensor *fl_roll(fl_tensor *x, int64_t shift, int axis);
FL_API fl_var *fv_roll(fl_var *x, int64_t shift, int axis);
/* Rotates by k times 90 degrees from axis a towards axis b. A view. */
FL_API fl_tensor *fl_rot90(fl_tensor *x, int64_t k, int a, int b);
FL_API fl_var *fv_rot90(fl_var *x, int64_t k, int a, int b);
/* Splits axis into axes of these sizes, one of which may be -1. */
FL_API fl_tensor *fl_unflatten(fl_tensor *x, int axis, fl_shape shape);
FL_API fl_var *fv_unflatten(fl_var *x, int axis, fl_shape shape);
/* torch.split: parts of `size` along axis, the last may be smaller. out has capacity max. Returns the number
   of parts, 0 after an error. Views. */
FL_API int fl_split(fl_tensor *x, int axis, int64_t size, fl_tensor **out, int max);
FL_API int fv_split(fl_var *x, int axis, int64_t size, fl_var **out, int max);
/* torch.chunk: at most n parts of size ceil(d / n) along axis, the last may be smaller. out has capacity n.
   Returns the number of parts, 0 after an error. Views. */
FL_API int fl_chunk(fl_tensor *x, int axis, int n, fl_tensor **out);
FL_API int fv_chunk(fl_var *x, int axis, int n, fl_var **out);
/* n parts of the given sizes, whose sum must be the axis' size. Returns n, 0 after an error. Views. */
FL_API int fl_split_with_sizes(fl_tensor *x, int axis, const int64_t *sizes, int n, fl_tensor **out);
FL_API int fv_split_with_sizes(fl_var *x, int axis, const int64_t *sizes, int n, fl_var **out);
/* torch.unbind: the slices fl_select(x, axis, i) for all i. out has capacity max. Returns their number; 0 for
   an empty axis and after an error. Views. */
FL_API int fl_unbind(fl_tensor *x, int axis, fl_tensor **out, int max);
FL_API int fv_unbind(fl_var *x, int axis, fl_var **out, int max);
/* torch.tile: repeats x along each axis by the numbers of reps. reps and x are aligned at their last axes;
   missing numbers and axes are 1. */
FL_API fl_tensor *fl_tile(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_tile(fl_var *x, fl_shape reps);
/* The same with at least one number for each axis (Tensor.repeat). */
FL_API fl_tensor *fl_repeat(fl_tensor *x, fl_shape reps);
FL_API fl_var *fv_repeat(fl_var *x, fl_shape reps);
/* Repeats each element n times along axis: a b -> a a b b for n = 2. */
FL_API fl_tensor *fl_repeat_interleave(fl_tensor *x, int64_t n, int axis);
FL_API fl_var *fv_repeat_interleave(fl_var *x, int64_t n, int axis);
/* Repeats element i of axis times[i] times: times is a vector of integers >= 0, or one number for all. Waits
   for times, whose sum is the new size. */
FL_API fl_tensor *fl_repeat_interleave_each(fl_tensor *x, fl_tensor *times, int axis);
FL_API fl_var *fv_repeat_interleave_each(fl_var *x, fl_tensor *times, int axis);
/* What padding of a b c d contains (torch and NumPy names): */
typedef enum fl_pad_mode {
    FL_PAD_CONSTANT,  /* value */
    FL_PAD_EDGE,      /* "replicate": a a | a b c d | d d */
    FL_PAD_REFLECT,   /* c b | a b c d | c b */
    FL_PAD_SYMMETRIC, /* b a | a b c d | d c */
    FL_PAD_CIRCULAR   /* "wrap": c d | a b c d | a b */
} fl_pad_mode;
typedef struct fl_pad_opts {
    fl_opts_guard guard_;
    int64_t low[FL_MAX_DIMS], high[FL_MAX_DIMS]; /* elements to add before and after axis 0, 1, ... */
    fl_pad_mode mode;
    double value; /* for FL_PAD_CONSTANT */
    char _end;
} fl_pad_opts;
/* Pads x: fl_pad(x, .low = {0, 2}, .high = {0, 1}). Negative numbers crop (a circular axis before it is
   padded). Patterns repeat if the padding is longer than the axis. */
#define fl_pad(...) FL__PAD(fl_pad_opt, __VA_ARGS__, ._end = 0)
#define fv_pad(...) FL__PAD(fv_pad_opt, __VA_ARGS__, ._end = 0)
#define FL__PAD(fn, x, ...) fn(x, FL_LITERAL(fl_pad_opts, __VA_ARGS__))
FL_API fl_tensor *fl_pad_opt(fl_tensor *x, fl_pad_opts o);
FL_API fl_var *fv_pad_opt(fl_var *x, fl_pad_opts o);
/* Tensor.unfold with dilation: windows of `size` elements, `dilation` apart, one every `step` elements of
   axis. axis becomes the number of windows, a new last axis has size `size`. A view in which windows overlap;
   their gradients add up. */
FL_API fl_tensor *fl_sliding_windows(fl_tensor *x, int axis, int64_t size, int64_t step, int64_t dilation);
FL_API fl_var *fv_sliding_windows(fl_var *x, int axis, int64_t size, int64_t step, int64_t dilation);
/* Sub-pixel rearrangement: [..., c r r, h, w] -> [..., c, h r, w r] */
FL_API fl_tensor *fl_pixel_shuffle(fl_tensor *x, int64_t r);
FL_API fl_var *fv_pixel_shuffle(fl_var *x, int64_t r);
/* Its inverse: [..., c, h r, w r] -> [..., c r r, h, w] */
FL_API fl_tensor *fl_pixel_unshuffle(fl_tensor *x, int64_t r);
FL_API fl_var *fv_pixel_unshuffle(fl_var *x, int64_t r);
/* [n, c, ...]: channel i of group g becomes channel i groups + g; groups must divide c. */
FL_API fl_tensor *fl_channel_shuffle(fl_tensor *x, int64_t groups);
FL_API fl_var *fv_channel_shuffle(fl_var *x, int64_t groups);
/* torch.channels_last: the same shape [n, c, ...], stored as [n, ..., c]: movedim(y, 1, -1) is contiguous. */
FL_API fl_tensor *fl_channels_last(fl_tensor *x);
FL_API fl_var *fv_channels_last(fl_var *x);
/* Expands n operands to their broadcast shape. Views; out may be xs. Returns false after an error. */
FL_API bool fl_broadcast_tensors(fl_tensor *const *xs, int n, fl_tensor **out);
FL_API bool fv_broadcast_tensors(fl_var *const *xs, int n, fl_var **out);
/* torch.meshgrid with "ij" indexing of n <= 8 vectors (or scalars): out[i] varies along axis i as xs[i].
   Views; out may be xs. Returns false after an error. */
FL_API bool fl_meshgrid(fl_tensor *const *xs, int n, fl_tensor **out);
FL_API bool fv_meshgrid(fl_var *const *xs, int n, fl_var **out);
/* The diagonal of axes a and b, x[i, i + offset], as a new last axis. fl_diagonal returns a view. */
FL_API fl_tensor *fl_diagonal(fl_tensor *x, int64_t offset, int a, int b);
FL_API fl_var *fv_diagonal(fl_var *x, int64_t offset, int a, int b);
/* Matrices with the last axis on diagonal offset, else 0: [..., n] -> [..., n + |offset|, n + |offset|] */
FL_API fl_tensor *fl_diag_embed(fl_tensor *x, int64_t offset);
FL_API fl_var *fv_diag_embed(fl_var *x, int64_t offset);
/* Lower triangle of the last two axes: 0 above diagonal k */
FL_API fl_tensor *fl_tril(fl_tensor *x, int64_t k);
FL_API fl_var *fv_tril(fl_var *x, int64_t k);
/* Upper triangle of the last two axes: 0 below diagonal k */
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
#define FL_EXPAND_FILE "move.inc"
#include "expand.h"
#endif /* FL_OPS_MOVE_IMPL */
#endif
/* MIT licence: see LICENSE. */
