/* fl/ops/image.h - image resampling: interpolate, unfold and fold (im2col, col2im), grid_sample, affine_grid

   interpolate works axis by axis, by the taps of taps.inc.

   Record (fl_resample_args): resample x, at, weight, inside (b8, or a number for all true) -> y */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_IMAGE_H
#define FL_OPS_IMAGE_H
#include "../records/image.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weighted sums along a.axis, whose size becomes a.size: y[o] = sum over j of weight[o, j] x[at[o, j]].
   weight [size, k] has x's dtype, f32 or f64; at is i64 [size k]; inside is b8 [size, k], false for terms to
   leave out, or NULL. With a.adjoint x is the gradient of y, and the gradient of x is returned. */
FL_API fl_tensor *fl_resample(fl_tensor *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                              fl_resample_args a);
FL_API fl_var *fv_resample(fl_var *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                           fl_resample_args a);

typedef enum fl_interpolation { FL_NEAREST, FL_LINEAR, FL_CUBIC, FL_AREA, FL_NEAREST_EXACT } fl_interpolation;
typedef struct fl_interpolate_opts {
    fl_opts_guard guard_;
    double scale[3]; /* PyTorch's scale_factor, instead of size (FL_SCALAR_SHAPE): dims of floor(n scale); per
                        spatial dim, 0: as the dim before */
    bool antialias;  /* low-pass filter when downsampling, as PIL; FL_LINEAR and FL_CUBIC (a = -0.5) only */
    char _end;
} fl_interpolate_opts;
/* PyTorch's interpolate: resamples a float x [n, c, 1 to 3 spatial dims] to size. FL_NEAREST rounds the
   source position down, FL_NEAREST_EXACT takes the nearest centre, FL_LINEAR is linear in each dim, FL_CUBIC
   uses Keys' kernel (a = -0.75), FL_AREA averages. align is align_corners: the centres of the corner elements
   are aligned, else their outer edges. Example: fl_interpolate(x, FL_SHAPE(8, 8), FL_LINEAR, false) */
#define fl_interpolate(...) FL__INTERPOLATE(fl_, __VA_ARGS__, ._end = 0)
#define fv_interpolate(...) FL__INTERPOLATE(fv_, __VA_ARGS__, ._end = 0)
#define FL__INTERPOLATE(p, x, size, mode, align, ...) \
    p##interpolate_opt(x, size, mode, align, FL_LITERAL(fl_interpolate_opts, __VA_ARGS__))
FL_API fl_tensor *fl_interpolate_opt(fl_tensor *x, fl_shape size, fl_interpolation mode, bool align,
                                     fl_interpolate_opts o);
FL_API fl_var *fv_interpolate_opt(fl_var *x, fl_shape size, fl_interpolation mode, bool align,
                                  fl_interpolate_opts o);

typedef struct fl_unfold_opts {
    fl_opts_guard guard_;
    int64_t kernel[3], stride[3], dilation[3], pad[3]; /* as in fl_conv_opts */
    char _end;
} fl_unfold_opts;
/* im2col: x [n, c, spatial...] -> [n, c kernel..., positions]: fl_unfold(x, .kernel = {3}) */
#define fl_unfold(...) FL__UNFOLD(fl_, __VA_ARGS__, ._end = 0)
#define fv_unfold(...) FL__UNFOLD(fv_, __VA_ARGS__, ._end = 0)
#define FL__UNFOLD(p, x, ...) p##unfold_opt(x, FL_LITERAL(fl_unfold_opts, __VA_ARGS__))
FL_API fl_tensor *fl_unfold_opt(fl_tensor *x, fl_unfold_opts o);
FL_API fl_var *fv_unfold_opt(fl_var *x, fl_unfold_opts o);
/* col2im, the adjoint: x [n, c kernel..., positions] -> [n, c, size...]; overlapping elements are added. */
#define fl_fold(...) FL__FOLD_TO(fl_, __VA_ARGS__, ._end = 0)
#define fv_fold(...) FL__FOLD_TO(fv_, __VA_ARGS__, ._end = 0)
#define FL__FOLD_TO(p, x, size, ...) p##fold_opt(x, size, FL_LITERAL(fl_unfold_opts, __VA_ARGS__))
FL_API fl_tensor *fl_fold_opt(fl_tensor *x, fl_shape size, fl_unfold_opts o);
FL_API fl_var *fv_fold_opt(fl_var *x, fl_shape size, fl_unfold_opts o);

typedef enum fl_grid_padding { FL_GRID_ZEROS, FL_GRID_BORDER, FL_GRID_REFLECT } fl_grid_padding;
typedef struct fl_grid_opts {
    fl_opts_guard guard_;
    bool nearest; /* nearest neighbour instead of (bi)linear */
    bool cubic;   /* bicubic, a = -0.75; only for two spatial dims */
    bool align;   /* align_corners: -1 and 1 are the centres of the corner elements, else their outer edges */
    fl_grid_padding outside; /* values outside the image */
    char _end;
} fl_grid_opts;
/* PyTorch's grid_sample: samples x [n, c, h, w] at the positions (x, y) in [-1, 1] of grid [n, oh, ow, 2] ->
   [n, c, oh, ow], or x [n, c, d, h, w] at the positions (x, y, z) of grid [n, od, oh, ow, 3]. x and grid are
   floats of one dtype. */
#define fl_grid_sample(...) FL__GRID_SAMPLE(fl_, __VA_ARGS__, ._end = 0)
#define fv_grid_sample(...) FL__GRID_SAMPLE(fv_, __VA_ARGS__, ._end = 0)
#define FL__GRID_SAMPLE(p, x, grid, ...) p##grid_sample_opt(x, grid, FL_LITERAL(fl_grid_opts, __VA_ARGS__))
FL_API fl_tensor *fl_grid_sample_opt(fl_tensor *x, fl_tensor *grid, fl_grid_opts o);
FL_API fl_var *fv_grid_sample_opt(fl_var *x, fl_var *grid, fl_grid_opts o);
/* PyTorch's affine_grid: the positions theta (x, y, 1), [n, h, w, 2] for theta [n, 2, 3] and size
   FL_SHAPE(h, w), or [n, d, h, w, 3] for theta [n, 3, 4] and FL_SHAPE(d, h, w); align as in fl_grid_opts. */
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
#define FL_EXPAND_FILE "image.inc"
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
