/* fl_composed.h - the ops that are composed of others, on tensors and on variables

   Each composition is one text in kernels/composed/, expanded twice: fl_ on tensors and fv_ on
   variables, whose gradients of any order are those of the ops it runs. So whatever you put in place
   of an op of the tables works in all of these.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_composed.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_arange(-2, 3, 1, FL_F32));
        fl_backward(fv_sum(fv_elu(x, 1), FL_ALL_AXES));
        fl_print(fl_elu(fv_value(x), 1));
        fl_print(fv_grad(x));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>elementwise >>image
     >>implementation

   Errors, life time, broadcasting and dtypes are those of fl_tensor.h. */
#include "fl_autograd.h"
#ifndef FL_COMPOSED_H
#define FL_COMPOSED_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>elementwise -------------------------------------------------------------------------------- */

/* The same with tensors as bounds, either may be NULL. */
FL_API fl_tensor *fl_clamp(fl_tensor *x, fl_tensor *low, fl_tensor *high);
FL_API fl_var *fv_clamp(fl_var *x, fl_var *low, fl_var *high);
/* x > 0 ? x : alpha expm1(x);  x > 0 ? x : alpha expm1(x / alpha);  x > 0 ? x : slope x */
FL_API fl_tensor *fl_elu(fl_tensor *x, double alpha);
FL_API fl_var *fv_elu(fl_var *x, double alpha);
FL_API fl_tensor *fl_celu(fl_tensor *x, double alpha);
FL_API fl_var *fv_celu(fl_var *x, double alpha);
FL_API fl_tensor *fl_leaky_relu(fl_tensor *x, double slope);
FL_API fl_var *fv_leaky_relu(fl_var *x, double slope);
/* x > limit ? x : value;  |x| > lambda ? x : 0;  x less the part of it in [-lambda, lambda] */
FL_API fl_tensor *fl_threshold(fl_tensor *x, double limit, double value);
FL_API fl_var *fv_threshold(fl_var *x, double limit, double value);
FL_API fl_tensor *fl_hardshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_hardshrink(fl_var *x, double lambda);
FL_API fl_tensor *fl_softshrink(fl_tensor *x, double lambda);
FL_API fl_var *fv_softshrink(fl_var *x, double lambda);
/* x sigmoid(beta x);  a sigmoid(b) of the halves a, b of x along axis */
FL_API fl_tensor *fl_swish(fl_tensor *x, double beta);
FL_API fl_var *fv_swish(fl_var *x, double beta);
FL_API fl_tensor *fl_glu(fl_tensor *x, int axis);
FL_API fl_var *fv_glu(fl_var *x, int axis);
/* To that many decimals, which may be negative, halves to even; gradient 0. */
FL_API fl_tensor *fl_round(fl_tensor *x, int decimals);
FL_API fl_var *fv_round(fl_var *x, int decimals);
/* NaN, inf and -inf become nan, above and below; integers pass. */
FL_API fl_tensor *fl_nan_to_num(fl_tensor *x, double nan, double above, double below);
FL_API fl_var *fv_nan_to_num(fl_var *x, double nan, double above, double below);
/* sqrt(a^2 + b^2) without overflow; inf beside NaN too */
FL_API fl_tensor *fl_hypot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_hypot(fl_var *a, fl_var *b);
/* a + w (b - a);  x + value a b;  x + value a / b */
FL_API fl_tensor *fl_lerp(fl_tensor *a, fl_tensor *b, fl_tensor *w);
FL_API fl_var *fv_lerp(fl_var *a, fl_var *b, fl_var *w);
FL_API fl_tensor *fl_addcmul(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcmul(fl_var *x, fl_var *a, fl_var *b, double value);
FL_API fl_tensor *fl_addcdiv(fl_tensor *x, fl_tensor *a, fl_tensor *b, double value);
FL_API fl_var *fv_addcdiv(fl_var *x, fl_var *a, fl_var *b, double value);
/* log |gamma(x)|, within 1e-14 near its zeros, and its derivative. Computed in f64. */
FL_API fl_tensor *fl_lgamma(fl_tensor *x);
FL_API fl_var *fv_lgamma(fl_var *x);
FL_API fl_tensor *fl_digamma(fl_tensor *x);
FL_API fl_var *fv_digamma(fl_var *x);
/* erf's complement, for large x too, and its inverse. Computed in f64. */
FL_API fl_tensor *fl_erfc(fl_tensor *x);
FL_API fl_var *fv_erfc(fl_var *x);
FL_API fl_tensor *fl_erfinv(fl_tensor *y);
FL_API fl_var *fv_erfinv(fl_var *y);
/* floor(a / b), of integers exactly; integer x / 0: an error. Gradient 0. */
FL_API fl_tensor *fl_floor_divide(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_floor_divide(fl_var *a, fl_var *b);
/* |a - b| <= atol + rtol |b|, or a = b, or both NaN with equal_nan -> b8 */
FL_API fl_tensor *fl_isclose(fl_tensor *a, fl_tensor *b, double rtol, double atol, bool equal_nan);

/* >>image -------------------------------------------------------------------------------------- */

typedef struct fl_conv_opts {
    char _;
    int64_t stride[3], dilation[3]; /* per spatial dim, 0 -> that of the dim before, the first: 1 */
    int64_t pad[3];                 /* zeros on both sides, or FL_SAME; FL_I0: 0 after others */
    int64_t output_pad[3];          /* transposed: more elements at the end, fewer than the stride */
    int64_t groups;                 /* 0 -> 1 */
} fl_conv_opts;
/* Cross-correlation of 1 to 3 spatial dims: x [n, c, spatial...], w [o, c / groups, kernel...], bias
   [o] or NULL, floats of one dtype -> [n, o, ...], as fl_conv2d: fl_conv(x, w, NULL, .pad = {1}). */
#define fl_conv(...) FL__CONV(__VA_ARGS__, ._ = 0)
#define FL__CONV(x, w, bias, ...) fl_conv_opt(x, w, bias, (fl_conv_opts){__VA_ARGS__})
FL_API fl_tensor *fl_conv_opt(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv_opts o);
#define fv_conv(...) FV__CONV(__VA_ARGS__, ._ = 0)
#define FV__CONV(x, w, bias, ...) fv_conv_opt(x, w, bias, (fl_conv_opts){__VA_ARGS__})
FL_API fl_var *fv_conv_opt(fl_var *x, fl_var *w, fl_var *bias, fl_conv_opts o);
/* Its gradient with regard to x: x [n, c, ...], w [c, o / groups, kernel...] -> [n, o, ...] of
   (d - 1) stride - 2 pad + dilation (k - 1) + output_pad + 1 elements in a dim of d; no FL_SAME. */
#define fl_conv_transpose(...) FL__CONV_TRANSPOSE(__VA_ARGS__, ._ = 0)
#define FL__CONV_TRANSPOSE(x, w, bias, ...) fl_conv_transpose_opt(x, w, bias, (fl_conv_opts){__VA_ARGS__})
FL_API fl_tensor *fl_conv_transpose_opt(fl_tensor *x, fl_tensor *w, fl_tensor *bias,
                                        fl_conv_opts o);
#define fv_conv_transpose(...) FV__CONV_TRANSPOSE(__VA_ARGS__, ._ = 0)
#define FV__CONV_TRANSPOSE(x, w, bias, ...) fv_conv_transpose_opt(x, w, bias, (fl_conv_opts){__VA_ARGS__})
FL_API fl_var *fv_conv_transpose_opt(fl_var *x, fl_var *w, fl_var *bias, fl_conv_opts o);

/* Pooling and resampling of a float x [n, c, spatial...] of 1 to 3 spatial dims. */
typedef struct fl_pool_opts {
    char _;
    int64_t kernel[3], stride[3]; /* per dim, 0 -> that of the dim before; no stride: the kernel */
    int64_t pad[3];               /* on both sides, at most half a window, or FL_SAME; FL_I0: 0 */
    bool ignore_pad;              /* average over the elements inside the image only */
} fl_pool_opts;
/* The largest of each window; padding counts as -inf, NaN wins. *index (may be NULL) gets the i64
   row-major place of the first maximum in its image: fl_max_pool(x, NULL, .kernel = {3, 2}). */
#define fl_max_pool(...) FL__MAX_POOL(__VA_ARGS__, ._ = 0)
#define FL__MAX_POOL(x, index, ...) fl_max_pool_opt(x, index, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_max_pool_opt(fl_tensor *x, fl_tensor **index, fl_pool_opts o);
#define fv_max_pool(...) FV__MAX_POOL(__VA_ARGS__, ._ = 0)
#define FV__MAX_POOL(x, index, ...) fv_max_pool_opt(x, index, (fl_pool_opts){__VA_ARGS__})
FL_API fl_var *fv_max_pool_opt(fl_var *x, fl_tensor **index, fl_pool_opts o);
/* The mean of each window, padding counted as 0. */
#define fl_avg_pool(...) FL__AVG_POOL(__VA_ARGS__, ._ = 0)
#define FL__AVG_POOL(x, ...) fl_avg_pool_opt(x, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_avg_pool_opt(fl_tensor *x, fl_pool_opts o);
#define fv_avg_pool(...) FV__AVG_POOL(__VA_ARGS__, ._ = 0)
#define FV__AVG_POOL(x, ...) fv_avg_pool_opt(x, (fl_pool_opts){__VA_ARGS__})
FL_API fl_var *fv_avg_pool_opt(fl_var *x, fl_pool_opts o);
/* (sum x^p)^(1 / p) of each window, p > 0 */
#define fl_lp_pool(...) FL__LP_POOL(__VA_ARGS__, ._ = 0)
#define FL__LP_POOL(x, p, ...) fl_lp_pool_opt(x, p, (fl_pool_opts){__VA_ARGS__})
FL_API fl_tensor *fl_lp_pool_opt(fl_tensor *x, double p, fl_pool_opts o);
#define fv_lp_pool(...) FV__LP_POOL(__VA_ARGS__, ._ = 0)
#define FV__LP_POOL(x, p, ...) fv_lp_pool_opt(x, p, (fl_pool_opts){__VA_ARGS__})
FL_API fl_var *fv_lp_pool_opt(fl_var *x, double p, fl_pool_opts o);
/* Windows i n / size to (i + 1) n / size, rounded outwards: size has one entry per spatial dim. */
FL_API fl_tensor *fl_adaptive_max_pool(fl_tensor *x, fl_shape size, fl_tensor **index);
FL_API fl_var *fv_adaptive_max_pool(fl_var *x, fl_shape size, fl_tensor **index);
FL_API fl_tensor *fl_adaptive_avg_pool(fl_tensor *x, fl_shape size);
FL_API fl_var *fv_adaptive_avg_pool(fl_var *x, fl_shape size);
/* Resamples x to size: nearest (rounded down), linear in each dim, cubic (a = -0.75), or the mean
   over areas. align: the centres of the corners stay where they are, else the edges do. */
typedef enum fl_interpolation { FL_NEAREST, FL_LINEAR, FL_CUBIC, FL_AREA } fl_interpolation;
FL_API fl_tensor *fl_interpolate(fl_tensor *x, fl_shape size, fl_interpolation mode, bool align);
FL_API fl_var *fv_interpolate(fl_var *x, fl_shape size, fl_interpolation mode, bool align);

typedef struct fl_window_opts {
    char _;
    int64_t kernel[3], stride[3], dilation[3], pad[3]; /* as in fl_conv_opts */
} fl_window_opts;
/* im2col: x [n, c, spatial...] -> [n, c kernel..., positions], and its adjoint, which sums what
   overlaps to an image of size: fl_unfold(x, .kernel = {3}) */
#define fl_unfold(...) FL__UNFOLD(__VA_ARGS__, ._ = 0)
#define FL__UNFOLD(x, ...) fl_unfold_opt(x, (fl_window_opts){__VA_ARGS__})
FL_API fl_tensor *fl_unfold_opt(fl_tensor *x, fl_window_opts o);
#define fv_unfold(...) FV__UNFOLD(__VA_ARGS__, ._ = 0)
#define FV__UNFOLD(x, ...) fv_unfold_opt(x, (fl_window_opts){__VA_ARGS__})
FL_API fl_var *fv_unfold_opt(fl_var *x, fl_window_opts o);
#define fl_fold(...) FL__FOLD(__VA_ARGS__, ._ = 0)
#define FL__FOLD(x, size, ...) fl_fold_opt(x, size, (fl_window_opts){__VA_ARGS__})
FL_API fl_tensor *fl_fold_opt(fl_tensor *x, fl_shape size, fl_window_opts o);
#define fv_fold(...) FV__FOLD(__VA_ARGS__, ._ = 0)
#define FV__FOLD(x, size, ...) fv_fold_opt(x, size, (fl_window_opts){__VA_ARGS__})
FL_API fl_var *fv_fold_opt(fl_var *x, fl_shape size, fl_window_opts o);

typedef enum fl_grid_outside { FL_GRID_ZEROS, FL_GRID_BORDER, FL_GRID_REFLECT } fl_grid_outside;
typedef struct fl_grid_opts {
    char _;
    bool nearest; /* else linear */
    bool align;   /* -1 and 1 are the centres of the corners, else the edges */
    fl_grid_outside outside;
} fl_grid_opts;
/* x [n, c, h, w] at the places (x, y) in [-1, 1] of grid [n, oh, ow, 2] -> [n, c, oh, ow] */
#define fl_grid_sample(...) FL__GRID_SAMPLE(__VA_ARGS__, ._ = 0)
#define FL__GRID_SAMPLE(x, grid, ...) fl_grid_sample_opt(x, grid, (fl_grid_opts){__VA_ARGS__})
FL_API fl_tensor *fl_grid_sample_opt(fl_tensor *x, fl_tensor *grid, fl_grid_opts o);
#define fv_grid_sample(...) FV__GRID_SAMPLE(__VA_ARGS__, ._ = 0)
#define FV__GRID_SAMPLE(x, grid, ...) fv_grid_sample_opt(x, grid, (fl_grid_opts){__VA_ARGS__})
FL_API fl_var *fv_grid_sample_opt(fl_var *x, fl_var *grid, fl_grid_opts o);
/* The grid [n, h, w, 2] of theta [n, 2, 3]: theta (x, y, 1) */
FL_API fl_tensor *fl_affine_grid(fl_tensor *theta, int64_t h, int64_t w, bool align);
FL_API fl_var *fv_affine_grid(fl_var *theta, int64_t h, int64_t w, bool align);

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "kernels/composed/elementwise.h"
#include "kernels/composed/image.h"
#endif
#endif
/* MIT licence: see LICENSE. */
