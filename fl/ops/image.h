/* fl/ops/image.h - resampling, windows as columns, and sampling at places

   interpolate goes axis by axis, through the taps of taps.inc; unfold and fold are im2col and its
   adjoint; grid_sample reads at given places, affine_grid makes them.

   Record (fl_resample_args): resample x, at, weight, inside (b8, or a number) -> y */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_IMAGE_H
#define FL_OPS_IMAGE_H
#include "../records/image.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sums along an axis of x: element o of the result is the sum over j of weight[o, j] times element at[o, j]
   of x. weight [size, k] of x's dtype, f32 or f64; at i64 [size k]; inside b8 [size, k], those that count,
   or NULL: all. adjoint: the gradient of that for x, given that of the result, which is x here. */
FL_API fl_tensor *fl_resample(fl_tensor *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                              fl_resample_args a);
FL_API fl_var *fv_resample(fl_var *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                           fl_resample_args a);

typedef enum fl_interpolation { FL_NEAREST, FL_LINEAR, FL_CUBIC, FL_AREA, FL_NEAREST_EXACT } fl_interpolation;
typedef struct fl_interpolate_opts {
    fl_opts_guard guard_;
    double scale[3]; /* in place of size, FL_SCALAR_SHAPE: floor(n scale) elements, scale apart; as kernels,
                        0 -> that of the dim before */
    bool antialias;  /* linear and cubic (then with a = -0.5, as PIL): smaller images blur what they skip */
    char _end;
} fl_interpolate_opts;
/* Resamples a float x [n, c, 1 to 3 dims] to size: nearest (rounded down; exact: the nearest centre), linear
   in each dim, cubic (a = -0.75), or the mean over areas. align: the centres of the corners stay where they
   are, else the edges do: fl_interpolate(x, FL_SHAPE(8, 8), FL_LINEAR, false) */
#define fl_interpolate(...) FL__INTERPOLATE(fl_, __VA_ARGS__, ._end = 0)
#define fv_interpolate(...) FL__INTERPOLATE(fv_, __VA_ARGS__, ._end = 0)
#define FL__INTERPOLATE(p, x, size, mode, align, ...) \
    p##interpolate_opt(x, size, mode, align, FL_LITERAL(fl_interpolate_opts, __VA_ARGS__))
FL_API fl_tensor *fl_interpolate_opt(fl_tensor *x, fl_shape size, fl_interpolation mode, bool align,
                                     fl_interpolate_opts o);
FL_API fl_var *fv_interpolate_opt(fl_var *x, fl_shape size, fl_interpolation mode, bool align,
                                  fl_interpolate_opts o);

typedef struct fl_window_opts {
    fl_opts_guard guard_;
    int64_t kernel[3], stride[3], dilation[3], pad[3]; /* as in fl_conv_opts */
    char _end;
} fl_window_opts;
/* im2col: x [n, c, spatial...] -> [n, c kernel..., positions], and its adjoint, which sums what
   overlaps to an image of size: fl_unfold(x, .kernel = {3}) */
#define fl_unfold(...) FL__UNFOLD(fl_, __VA_ARGS__, ._end = 0)
#define fv_unfold(...) FL__UNFOLD(fv_, __VA_ARGS__, ._end = 0)
#define FL__UNFOLD(p, x, ...) p##unfold_opt(x, FL_LITERAL(fl_window_opts, __VA_ARGS__))
FL_API fl_tensor *fl_unfold_opt(fl_tensor *x, fl_window_opts o);
FL_API fl_var *fv_unfold_opt(fl_var *x, fl_window_opts o);
#define fl_fold(...) FL__FOLD_TO(fl_, __VA_ARGS__, ._end = 0)
#define fv_fold(...) FL__FOLD_TO(fv_, __VA_ARGS__, ._end = 0)
#define FL__FOLD_TO(p, x, size, ...) p##fold_opt(x, size, FL_LITERAL(fl_window_opts, __VA_ARGS__))
FL_API fl_tensor *fl_fold_opt(fl_tensor *x, fl_shape size, fl_window_opts o);
FL_API fl_var *fv_fold_opt(fl_var *x, fl_shape size, fl_window_opts o);

typedef enum fl_grid_padding { FL_GRID_ZEROS, FL_GRID_BORDER, FL_GRID_REFLECT } fl_grid_padding;
typedef struct fl_grid_opts {
    fl_opts_guard guard_;
    bool nearest; /* else linear */
    bool cubic;   /* a = -0.75; of images of two dims */
    bool align;   /* -1 and 1 are the centres of the corners, else the edges */
    fl_grid_padding outside;
    char _end;
} fl_grid_opts;
/* x [n, c, h, w] at the places (x, y) in [-1, 1] of grid [n, oh, ow, 2] -> [n, c, oh, ow];  or x [n, c, d, h,
   w] at the places (x, y, z) of grid [n, od, oh, ow, 3] */
#define fl_grid_sample(...) FL__GRID_SAMPLE(fl_, __VA_ARGS__, ._end = 0)
#define fv_grid_sample(...) FL__GRID_SAMPLE(fv_, __VA_ARGS__, ._end = 0)
#define FL__GRID_SAMPLE(p, x, grid, ...) p##grid_sample_opt(x, grid, FL_LITERAL(fl_grid_opts, __VA_ARGS__))
FL_API fl_tensor *fl_grid_sample_opt(fl_tensor *x, fl_tensor *grid, fl_grid_opts o);
FL_API fl_var *fv_grid_sample_opt(fl_var *x, fl_var *grid, fl_grid_opts o);
/* The grid [n, h, w, 2] of theta [n, 2, 3]: theta (x, y, 1);  or [n, d, h, w, 3] of theta [n, 3, 4]. size:
   FL_SHAPE(h, w) or FL_SHAPE(d, h, w) */
FL_API fl_tensor *fl_affine_grid(fl_tensor *theta, fl_shape size, bool align);
FL_API fl_var *fv_affine_grid(fl_var *theta, fl_shape size, bool align);

FL_PRIVATE void fl__register_image(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_IMAGE_H */

#if defined(FL_IMPL_ONLY_OPS_IMAGE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_IMAGE_IMPL
#define FL_OPS_IMAGE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "image.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_resample;

FL_PRIVATE void fl__register_image(void) {
    FL__REGISTER(resample, .args_size = sizeof(fl_resample_args),
                 .uses = "gather mul sum where scatter_add fill", .compose = fl__compose_resample,
                 .gradient = fv__resample_back);
}
#endif
#endif
/* MIT licence: see LICENSE. */
