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
     >>elementwise >>linear >>factor >>move >>neural >>recurrent >>losses
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

/* >>linear ------------------------------------------------------------------------------------- */

/* sum a b of two vectors;  [m], [n] -> [m, n]: a_i b_j;  blocks a_ij b of at most 4 dims */
FL_API fl_tensor *fl_dot(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_dot(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_outer(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_outer(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_kron(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_kron(fl_var *a, fl_var *b);
/* The vector product along axis, of 3 elements in both; the other dims broadcast. */
FL_API fl_tensor *fl_cross(fl_tensor *a, fl_tensor *b, int axis);
FL_API fl_var *fv_cross(fl_var *a, fl_var *b, int axis);
/* Sums over n axes of a and as many of b, in pairs; NULL, NULL: the last of a, the first of b. */
FL_API fl_tensor *fl_tensordot(fl_tensor *a, fl_tensor *b, int n, const int *axes_a,
                               const int *axes_b);
FL_API fl_var *fv_tensordot(fl_var *a, fl_var *b, int n, const int *axes_a, const int *axes_b);
/* Einstein's sum of 1 to 8 operands: "ij,jk->ik". A letter names a dim, twice in one operand its
   diagonal; without "->" the result has what appears once, in the alphabet's order (capitals
   first); "..." stands for dims that broadcast. What the result lacks is summed: from left to
   right, by matmul; letters of one operand alone as by fl_sum. */
FL_API fl_tensor *fl_einsum(const char *equation, fl_tensor *const *xs, int n);
FL_API fl_var *fv_einsum(const char *equation, fl_var *const *xs, int n);
/* Sum of the diagonal of a matrix. */
FL_API fl_tensor *fl_trace(fl_tensor *x);
FL_API fl_var *fv_trace(fl_var *x);
/* beta c + alpha a b, c broadcast; c is not read where beta is 0 */
FL_API fl_tensor *fl_addmm(fl_tensor *c, fl_tensor *a, fl_tensor *b, double beta, double alpha);
FL_API fl_var *fv_addmm(fl_var *c, fl_var *a, fl_var *b, double beta, double alpha);
/* [..., m, k], [..., n, k] -> [..., m, n]: the p-norm of a_i - b_j, p >= 0, INFINITY too */
FL_API fl_tensor *fl_cdist(fl_tensor *a, fl_tensor *b, double p);
FL_API fl_var *fv_cdist(fl_var *a, fl_var *b, double p);
/* x [..., in], w [out, in] -> x w^T + bias;  a [..., i], b [..., j], w [out, i, j] -> a w b + bias;
   bias [out] may be NULL */
FL_API fl_tensor *fl_linear(fl_tensor *x, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_linear(fl_var *x, fl_var *w, fl_var *bias);
FL_API fl_tensor *fl_bilinear(fl_tensor *a, fl_tensor *b, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_bilinear(fl_var *a, fl_var *b, fl_var *w, fl_var *bias);

/* >>factor ------------------------------------------------------------------------------------- */

/* Of float matrices, the last two dims, in batches; by LAPACK, without which all but
   solve_triangular are an error (FL_USE_LAPACK). The first matrix of a batch that has no answer is
   an error that names it. Gradients of q, u, vt, v hold for distinct (singular) values only, and of
   cholesky and eigh, which read the lower triangle, are symmetric. */
/* a^-1 b: b [..., n, k], or a vector [n] for each matrix */
FL_API fl_tensor *fl_solve(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_solve(fl_var *a, fl_var *b);
/* The same, reading only a's lower (upper) triangle; with `unit` its diagonal is taken as ones. */
FL_API fl_tensor *fl_solve_triangular(fl_tensor *a, fl_tensor *b, bool upper, bool unit);
FL_API fl_var *fv_solve_triangular(fl_var *a, fl_var *b, bool upper, bool unit);
/* x^-1;  x x ... x, of the inverse for n < 0 */
FL_API fl_tensor *fl_inverse(fl_tensor *x);
FL_API fl_var *fv_inverse(fl_var *x);
FL_API fl_tensor *fl_matrix_power(fl_tensor *x, int64_t n);
FL_API fl_var *fv_matrix_power(fl_var *x, int64_t n);
/* l and u in one matrix, l's diagonal of ones left out: l u = x with row i and row pivot[i] swapped,
   i = 0, 1, ...; *pivot i64 [..., n] */
FL_API fl_tensor *fl_lu_factor(fl_tensor *x, fl_tensor **pivot);
/* Determinants; log |det| with *sign (-1, 0, 1; may be NULL). Their gradients need an inverse. */
FL_API fl_tensor *fl_det(fl_tensor *x);
FL_API fl_var *fv_det(fl_var *x);
FL_API fl_tensor *fl_slogdet(fl_tensor *x, fl_tensor **sign);
FL_API fl_var *fv_slogdet(fl_var *x, fl_tensor **sign);
/* l lower: l l^T = x */
FL_API fl_tensor *fl_cholesky(fl_tensor *x);
FL_API fl_var *fv_cholesky(fl_var *x);
/* q [..., m, k] with orthonormal columns, *r [..., k, n] upper: q r = x; k = min(m, n) */
FL_API fl_tensor *fl_qr(fl_tensor *x, fl_tensor **r);
FL_API fl_var *fv_qr(fl_var *x, fl_var **r);
/* u [..., m, k], *s [..., k] descending, *vt [..., k, n]: u diag(s) vt = x;  s alone */
FL_API fl_tensor *fl_svd(fl_tensor *x, fl_tensor **s, fl_tensor **vt);
FL_API fl_var *fv_svd(fl_var *x, fl_var **s, fl_var **vt);
FL_API fl_tensor *fl_svdvals(fl_tensor *x);
FL_API fl_var *fv_svdvals(fl_var *x);
/* Eigenvalues of symmetric matrices, ascending; *v (may be NULL): their vectors as columns */
FL_API fl_tensor *fl_eigh(fl_tensor *x, fl_tensor **v);
FL_API fl_var *fv_eigh(fl_var *x, fl_var **v);
/* The x of least norm with the least |a x - b|, a of full rank;  Moore and Penrose's inverse, of
   singular values past rcond (0: max(m, n) eps) times the largest */
FL_API fl_tensor *fl_lstsq(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_lstsq(fl_var *a, fl_var *b);
FL_API fl_tensor *fl_pinv(fl_tensor *x, double rcond);
FL_API fl_var *fv_pinv(fl_var *x, double rcond);
/* >>move --------------------------------------------------------------------------------------- */

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
    char _;
    int64_t low[FL_MAX_DIMS], high[FL_MAX_DIMS]; /* of axis 0, 1, ... */
    fl_pad_mode mode;
    double value;
} fl_pad_opts;
#define fl_pad(...) FL__PAD(fl_pad_opt, __VA_ARGS__, ._ = 0)
#define fv_pad(...) FL__PAD(fv_pad_opt, __VA_ARGS__, ._ = 0)
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
FL_API fl_var *fv_contiguous(fl_var *x);
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
/* dst += src (broadcast, cast) through dst into what it views; returns dst. */
FL_API fl_tensor *fl_accumulate(fl_tensor *dst, fl_tensor *src);

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
} fl_batch_norm_opts;
/* The same per channel of x [n, c, ...] over all else, or with running statistics. */
#define fl_batch_norm(...) FL__BATCH_NORM(fl_, __VA_ARGS__, ._ = 0)
#define fv_batch_norm(...) FL__BATCH_NORM(fv_, __VA_ARGS__, ._ = 0)
#define FL__BATCH_NORM(p, x, weight, bias, ...) \
    p##batch_norm_opt(x, weight, bias, (fl_batch_norm_opts){__VA_ARGS__})
FL_API fl_tensor *fl_batch_norm_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                    fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_batch_norm_opts o);
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

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "kernels/composed/elementwise.h"
#include "kernels/composed/linear.h"
#include "kernels/composed/factor.h"
#include "kernels/composed/move.h"
#include "kernels/composed/neural.h"
#include "kernels/composed/loss.h"
#endif
#endif
/* MIT licence: see LICENSE. */
