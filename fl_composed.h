/* fl_composed.h - the ops that are composed of others, on tensors and on variables

   Each composition is one text in fl/ops/, expanded twice: fl_ on tensors and fv_ on
   variables, whose gradients of any order are those of the ops it runs. So whatever you put in
   place of an op of the tables works in all of these.

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
     >>elementwise >>create >>random >>move >>image
     >>neural >>recurrent >>losses
     >>implementation

   Errors, life time, broadcasting and dtypes are those of fl_tensor.h. */
#include "fl_autograd.h"
#include "fl/ops/ops.h"
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
/* prelu with a number w [1], or w [c] with one for each place along axis 1 of x */
FL_API fl_tensor *fl_prelu_channels(fl_tensor *x, fl_tensor *w);
FL_API fl_var *fv_prelu_channels(fl_var *x, fl_var *w);
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
/* The largest of each `pieces` neighbours along axis, whose size they divide. */
FL_API fl_tensor *fl_maxout(fl_tensor *x, int64_t pieces, int axis);
FL_API fl_var *fv_maxout(fl_var *x, int64_t pieces, int axis);
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
/* beta x > threshold ? x : log(1 + exp(beta x)) / beta */
FL_API fl_tensor *fl_softplus_beta(fl_tensor *x, double beta, double threshold);
FL_API fl_var *fv_softplus_beta(fl_var *x, double beta, double threshold);
/* a log(1 + b), 0 where a is 0;  a^b in f64 */
FL_API fl_tensor *fl_xlog1py(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_xlog1py(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_float_power(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_float_power(fl_var *a, fl_var *b);
/* -x log(x), 0 at 0, -inf below */
FL_API fl_tensor *fl_entr(fl_tensor *x);
FL_API fl_var *fv_entr(fl_var *x);
/* The normal distribution's integral up to x, and its logarithm, for very small x too. */
FL_API fl_tensor *fl_ndtr(fl_tensor *x);
FL_API fl_var *fv_ndtr(fl_var *x);
FL_API fl_tensor *fl_log_ndtr(fl_tensor *x);
FL_API fl_var *fv_log_ndtr(fl_var *x);
/* The modified Bessel function of the first kind, of order 0. Computed in f64. */
FL_API fl_tensor *fl_i0(fl_tensor *x);
FL_API fl_var *fv_i0(fl_var *x);
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
/* Greatest common divisor and least common multiple of integers, not negative; wrap as * does. */
FL_API fl_tensor *fl_gcd(fl_tensor *a, fl_tensor *b);
FL_API fl_tensor *fl_lcm(fl_tensor *a, fl_tensor *b);
/* The float next to a on the way to b, and b if they are equal. Waits for a and b. */
FL_API fl_tensor *fl_nextafter(fl_tensor *a, fl_tensor *b);
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
/* >>neural ------------------------------------------------------------------------------------- */

/* (x - mean) / sqrt(var + eps) * weight + bias, mean and biased variance over the last `dims` dims,
   the shape of weight and bias (either may be NULL). rms: x / sqrt(mean(x^2) + eps) * weight. */
FL_API fl_tensor *fl_layer_norm(fl_tensor *x, int dims, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_layer_norm(fl_var *x, int dims, fl_var *weight, fl_var *bias, double eps);
FL_API fl_tensor *fl_rms_norm(fl_tensor *x, int dims, fl_tensor *weight, double eps);
FL_API fl_var *fv_rms_norm(fl_var *x, int dims, fl_var *weight, double eps);
/* The same over groups of channels of x [n, c, ...], over single channels; weight, bias: [c] or
   NULL. */
FL_API fl_tensor *fl_group_norm(fl_tensor *x, int64_t groups, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_group_norm(fl_var *x, int64_t groups, fl_var *weight, fl_var *bias, double eps);
FL_API fl_tensor *fl_instance_norm(fl_tensor *x, fl_tensor *weight, fl_tensor *bias, double eps);
FL_API fl_var *fv_instance_norm(fl_var *x, fl_var *weight, fl_var *bias, double eps);
typedef struct fl_batch_norm_opts {
    char _;
    fl_tensor *mean, *var; /* [c], running statistics; without train they are wanted */
    bool train;            /* statistics of the batch, at least 2 values; updates mean and var */
    double momentum;       /* 0 -> 0.1; mean = (1 - momentum) mean + momentum batch, var unbiased */
    double eps;            /* 0 -> 1e-5 */
    bool relu;             /* the result, at least 0 */
} fl_batch_norm_opts;
/* The same per channel of x [n, c, ...] over all else, or with running statistics. */
#define fl_batch_norm(...) FL__BATCH_NORM(fl_, __VA_ARGS__, ._ = 0)
#define fv_batch_norm(...) FL__BATCH_NORM(fv_, __VA_ARGS__, ._ = 0)
#define FL__BATCH_NORM(p, x, weight, bias, ...) \
    p##batch_norm_opt(x, weight, bias, (fl_batch_norm_opts){__VA_ARGS__})
FL_API fl_tensor *fl_batch_norm_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                    fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_batch_norm_opts o);
/* The same plus y, which has x's shape, before the relu: the end of a residual block. */
#define fl_batch_norm_add(...) FL__BATCH_NORM_ADD(fl_, __VA_ARGS__, ._ = 0)
#define fv_batch_norm_add(...) FL__BATCH_NORM_ADD(fv_, __VA_ARGS__, ._ = 0)
#define FL__BATCH_NORM_ADD(p, x, weight, bias, y, ...) \
    p##batch_norm_add_opt(x, weight, bias, y, (fl_batch_norm_opts){__VA_ARGS__})
FL_API fl_tensor *fl_batch_norm_add_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                        fl_tensor *y, fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_add_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_var *y,
                                     fl_batch_norm_opts o);
/* x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta, zeros outside; x
   [n, c, ...] */
FL_API fl_tensor *fl_local_response_norm(fl_tensor *x, int64_t size, double alpha, double beta,
                                         double k);
FL_API fl_var *fv_local_response_norm(fl_var *x, int64_t size, double alpha, double beta, double k);
/* x / max(|x|_p, eps) along axis;  v g / |v|_2 over all axes but one, to which g broadcasts */
FL_API fl_tensor *fl_normalize(fl_tensor *x, double p, int axis, double eps);
FL_API fl_var *fv_normalize(fl_var *x, double p, int axis, double eps);
FL_API fl_tensor *fl_weight_norm(fl_tensor *v, fl_tensor *g, int axis);
FL_API fl_var *fv_weight_norm(fl_var *v, fl_var *g, int axis);
/* a b / (max(|a|, eps) max(|b|, eps)) along axis;  |a - b + eps|_p along the last axis */
FL_API fl_tensor *fl_cosine_similarity(fl_tensor *a, fl_tensor *b, int axis, double eps);
FL_API fl_var *fv_cosine_similarity(fl_var *a, fl_var *b, int axis, double eps);
FL_API fl_tensor *fl_pairwise_distance(fl_tensor *a, fl_tensor *b, double p, double eps);
FL_API fl_var *fv_pairwise_distance(fl_var *a, fl_var *b, double p, double eps);
/* Rows of weight [n, d] by index i64: [...] -> [..., d]. The row `padding` gets no gradient; -1:
   none. */
FL_API fl_tensor *fl_embedding(fl_tensor *index, fl_tensor *weight, int64_t padding);
FL_API fl_var *fv_embedding(fl_tensor *index, fl_var *weight, int64_t padding);
/* Their sum, or mean, along the last axis of index: [..., k] -> [..., d] */
FL_API fl_tensor *fl_embedding_bag(fl_tensor *index, fl_tensor *weight, bool mean);
FL_API fl_var *fv_embedding_bag(fl_tensor *index, fl_var *weight, bool mean);
/* softmax(scale q k^T, masked) v: q [..., n, d], k [..., m, d], v [..., m, e] -> [..., n, e]. scale
   0: 1 / sqrt(d). mask, which broadcasts to [..., n, m]: NULL, b8 (true takes part) or added.
   causal: query i sees keys 0 to i. A query that sees no key gives 0. */
FL_API fl_tensor *fl_attention(fl_tensor *q, fl_tensor *k, fl_tensor *v, fl_tensor *mask,
                               bool causal, double scale);
FL_API fl_var *fv_attention(fl_var *q, fl_var *k, fl_var *v, fl_var *mask, bool causal,
                            double scale);
typedef struct fl_attention_opts {
    bool causal;
    double scale;   /* 0: 1 / sqrt(d) */
    double dropout; /* share of the softmax's results that become 0; the others grow by 1 / (1 - p) */
    fl_rng *rng;    /* NULL: the process's */
} fl_attention_opts;
/* The same with dropout. The record saves one number per query, not the scores; from the cpu's
   slot, in a causal product, NaN and infinities among the values of hidden keys may stay unseen. */
FL_API fl_tensor *fl_attention_opt(fl_tensor *q, fl_tensor *k, fl_tensor *v, fl_tensor *mask,
                                   fl_attention_opts o);
FL_API fl_var *fv_attention_opt(fl_var *q, fl_var *k, fl_var *v, fl_var *mask,
                                fl_attention_opts o);
/* The same of qkv [3, ..., n, d], whose parts are q, k and v: so is the gradient, in one piece. */
FL_API fl_tensor *fl_attention_packed(fl_tensor *qkv, fl_tensor *mask, fl_attention_opts o);
FL_API fl_var *fv_attention_packed(fl_var *qkv, fl_var *mask, fl_attention_opts o);

/* >>recurrent ---------------------------------------------------------------------------------- */

/* The next state of x [n, in] and h [n, hidden]. w: W_ih [gates hidden, in], W_hh [gates hidden,
   hidden], b_ih, b_hh [gates hidden] (either may be NULL), gates in PyTorch's order: gru r z n,
   lstm i f g o. *c_out: the LSTM's next cell. */
FL_API fl_tensor *fl_rnn_tanh_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_rnn_tanh_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_rnn_relu_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_rnn_relu_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_gru_cell(fl_tensor *x, fl_tensor *h, fl_tensor *const w[4]);
FL_API fl_var *fv_gru_cell(fl_var *x, fl_var *h, fl_var *const w[4]);
FL_API fl_tensor *fl_lstm_cell(fl_tensor *x, fl_tensor *h, fl_tensor *c, fl_tensor *const w[4],
                               fl_tensor **c_out);
FL_API fl_var *fv_lstm_cell(fl_var *x, fl_var *h, fl_var *c, fl_var *const w[4], fl_var **c_out);
/* Sequences: x [steps, n, in] -> [steps, n, ways hidden], ways = 1 + bidirectional. h0, c0 and
   *h_out, *c_out (NULL: not wanted): [layers ways, n, hidden]. w: four weights per layer and
   direction. */
FL_API fl_tensor *fl_rnn_tanh(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                              bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_rnn_tanh(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                           fl_var **h_out);
FL_API fl_tensor *fl_rnn_relu(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                              bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_rnn_relu(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                           fl_var **h_out);
FL_API fl_tensor *fl_gru(fl_tensor *x, fl_tensor *h0, fl_tensor *const *w, int layers,
                         bool bidirectional, fl_tensor **h_out);
FL_API fl_var *fv_gru(fl_var *x, fl_var *h0, fl_var *const *w, int layers, bool bidirectional,
                      fl_var **h_out);
FL_API fl_tensor *fl_lstm(fl_tensor *x, fl_tensor *h0, fl_tensor *c0, fl_tensor *const *w,
                          int layers, bool bidirectional, fl_tensor **h_out, fl_tensor **c_out);
FL_API fl_var *fv_lstm(fl_var *x, fl_var *h0, fl_var *c0, fl_var *const *w, int layers,
                       bool bidirectional, fl_var **h_out, fl_var **c_out);

/* >>losses ------------------------------------------------------------------------------------- */

/* The mean or sum over all elements, or each by itself. Operands broadcast. */
typedef enum fl_reduction { FL_MEAN, FL_SUM, FL_NONE } fl_reduction;
/* (x - y)^2;  |x - y| */
FL_API fl_tensor *fl_mse_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_mse_loss(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_l1_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_l1_loss(fl_var *x, fl_var *y, fl_reduction r);
/* d = |x - y|: d < delta ? d^2 / 2 : delta (d - delta / 2);  the same over beta, beta 0: l1 */
FL_API fl_tensor *fl_huber_loss(fl_tensor *x, fl_tensor *y, double delta, fl_reduction r);
FL_API fl_var *fv_huber_loss(fl_var *x, fl_var *y, double delta, fl_reduction r);
FL_API fl_tensor *fl_smooth_l1_loss(fl_tensor *x, fl_tensor *y, double beta, fl_reduction r);
FL_API fl_var *fv_smooth_l1_loss(fl_var *x, fl_var *y, double beta, fl_reduction r);
/* -y log p - (1 - y) log(1 - p), logs at least -100;  of p = sigmoid(x) */
FL_API fl_tensor *fl_binary_cross_entropy(fl_tensor *p, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_binary_cross_entropy(fl_var *p, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_binary_cross_entropy_with_logits(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_binary_cross_entropy_with_logits(fl_var *x, fl_var *y, fl_reduction r);
/* y (log y - x);  exp(x) - y x, or x - y log(x + 1e-8);  (log v + (x - y)^2 / v) / 2, v >= 1e-6 */
FL_API fl_tensor *fl_kl_div(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_kl_div(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_poisson_nll_loss(fl_tensor *x, fl_tensor *y, bool log_input, fl_reduction r);
FL_API fl_var *fv_poisson_nll_loss(fl_var *x, fl_var *y, bool log_input, fl_reduction r);
FL_API fl_tensor *fl_gaussian_nll_loss(fl_tensor *x, fl_tensor *y, fl_tensor *var, fl_reduction r);
FL_API fl_var *fv_gaussian_nll_loss(fl_var *x, fl_var *y, fl_var *var, fl_reduction r);
/* With y = 1 or -1: log(1 + exp(-y x));  y > 0 ? x : relu(margin - x);  relu(margin - y (a - b));
   y > 0 ? 1 - cos : relu(cos - margin), cos along the last axis, 1e-12 added to |a|^2 and |b|^2 */
FL_API fl_tensor *fl_soft_margin_loss(fl_tensor *x, fl_tensor *y, fl_reduction r);
FL_API fl_var *fv_soft_margin_loss(fl_var *x, fl_var *y, fl_reduction r);
FL_API fl_tensor *fl_hinge_embedding_loss(fl_tensor *x, fl_tensor *y, double margin,
                                          fl_reduction r);
FL_API fl_var *fv_hinge_embedding_loss(fl_var *x, fl_var *y, double margin, fl_reduction r);
FL_API fl_tensor *fl_margin_ranking_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                         fl_reduction r);
FL_API fl_var *fv_margin_ranking_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                      fl_reduction r);
FL_API fl_tensor *fl_cosine_embedding_loss(fl_tensor *a, fl_tensor *b, fl_tensor *y, double margin,
                                           fl_reduction r);
FL_API fl_var *fv_cosine_embedding_loss(fl_var *a, fl_var *b, fl_var *y, double margin,
                                        fl_reduction r);
/* relu(margin + |anchor - positive| - |anchor - negative|), along the last axis */
FL_API fl_tensor *fl_triplet_margin_loss(fl_tensor *anchor, fl_tensor *positive,
                                         fl_tensor *negative, double margin, fl_reduction r);
FL_API fl_var *fv_triplet_margin_loss(fl_var *anchor, fl_var *positive, fl_var *negative,
                                      double margin, fl_reduction r);
/* x [n, c], target i64 [n]: sum over the other classes j of relu(margin - x[target] + x[j]) / c */
FL_API fl_tensor *fl_multi_margin_loss(fl_tensor *x, fl_tensor *target, double margin,
                                       fl_reduction r);
FL_API fl_var *fv_multi_margin_loss(fl_var *x, fl_tensor *target, double margin, fl_reduction r);
typedef struct fl_ctc_loss_opts {
    char _;
    int64_t blank;          /* its class */
    fl_reduction reduction; /* FL_MEAN: each loss by its target's length, then over the batch */
    bool zero_infinity;     /* 0 instead of inf for targets that no alignment gives */
} fl_ctc_loss_opts;
/* -log P(target), summed over all alignments: log probabilities [t, n, c]; i64: target [n, l], and
   of each sequence the steps (beyond t: t) and the target's length, [n]. Gradient of inf: 0. That of
   PyTorch holds a log softmax's before it. */
#define fl_ctc_loss(...) FL__CTC_LOSS(fl_, __VA_ARGS__, ._ = 0)
#define fv_ctc_loss(...) FL__CTC_LOSS(fv_, __VA_ARGS__, ._ = 0)
#define FL__CTC_LOSS(p, logp, target, steps, lengths, ...) \
    p##ctc_loss_opt(logp, target, steps, lengths, (fl_ctc_loss_opts){__VA_ARGS__})
FL_API fl_tensor *fl_ctc_loss_opt(fl_tensor *logp, fl_tensor *target, fl_tensor *steps,
                                  fl_tensor *lengths, fl_ctc_loss_opts o);
FL_API fl_var *fv_ctc_loss_opt(fl_var *logp, fl_tensor *target, fl_tensor *steps,
                               fl_tensor *lengths, fl_ctc_loss_opts o);

/* private: the loss of each row, see FL_OP_cross_entropy; x [n, c] is f32 or f64 and not empty */
FL_PRIVATE fl_var *fv__cross_entropy(fl_var *x, fl_tensor *target, fl_cross_entropy_args a);

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "fl/ops/special.h"
#include "fl/ops/create.h"
#include "fl/ops/move.h"
#include "fl/ops/image.h"
#include "fl/ops/neural.h"
#include "fl/ops/loss.h"
#endif
#endif
/* MIT licence: see LICENSE. */
