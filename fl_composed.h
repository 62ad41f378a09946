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
     >>create >>random >>move >>reduce >>index >>linear >>factor >>fft
     >>implementation

   Errors, life time, broadcasting and dtypes are those of fl_tensor.h. */
#include "fl_autograd.h"
#include "fl/ops/ops.h"
#ifndef FL_COMPOSED_H
#define FL_COMPOSED_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>index -------------------------------------------------------------------------------------- */

/* Index tensors are i64, masks b8, src of x's dtype. Of repeated indices the last one stays; where
   things add up, they do so in order. An index outside its axis is an error; those below 0 count
   from the end where it says so. */
/* Elements index of x as a vector, in index's shape. [-n, n) */
FL_API fl_tensor *fl_take(fl_tensor *x, fl_tensor *index);
FL_API fl_var *fv_take(fl_var *x, fl_tensor *index);
/* fl_gather with x and index broadcast in the dims besides axis */
FL_API fl_tensor *fl_take_along(fl_tensor *x, fl_tensor *index, int axis);
FL_API fl_var *fv_take_along(fl_var *x, fl_tensor *index, int axis);
/* x[i, j, ...]: n indices, broadcast with each other, one for each leading axis; what is left of
   x's dims follows theirs. [-size, size). index_put: a copy of x with values (a number, or of a
   shape that broadcasts to that) written there, or added. */
FL_API fl_tensor *fl_index(fl_tensor *x, fl_tensor *const *index, int n);
FL_API fl_var *fv_index(fl_var *x, fl_tensor *const *index, int n);
FL_API fl_tensor *fl_index_put(fl_tensor *x, fl_tensor *const *index, int n, fl_tensor *values,
                               bool accumulate);
FL_API fl_var *fv_index_put(fl_var *x, fl_tensor *const *index, int n, fl_var *values,
                            bool accumulate);
/* n vectors of indices become grid[0 .. n), with which the two above read and write the Cartesian
   product, as numpy.ix_ does. */
FL_API bool fl_ix(fl_tensor *const *index, int n, fl_tensor **grid);
/* Copies of x with alpha src added to, src written to, or value in the places index (a vector)
   along axis. src has x's shape but for axis. index_fill: [-size, size) */
FL_API fl_tensor *fl_index_add(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src,
                               double alpha);
FL_API fl_var *fv_index_add(fl_var *x, int axis, fl_tensor *index, fl_var *src, double alpha);
FL_API fl_tensor *fl_index_copy(fl_tensor *x, int axis, fl_tensor *index, fl_tensor *src);
FL_API fl_var *fv_index_copy(fl_var *x, int axis, fl_tensor *index, fl_var *src);
FL_API fl_tensor *fl_index_fill(fl_tensor *x, int axis, fl_tensor *index, double value);
FL_API fl_var *fv_index_fill(fl_var *x, int axis, fl_tensor *index, double value);
/* With x and mask broadcast: value where it is true;  the elements where it is true, a vector;  the
   first elements of src in turn where it is true, which must be enough */
FL_API fl_tensor *fl_masked_fill(fl_tensor *x, fl_tensor *mask, double value);
FL_API fl_var *fv_masked_fill(fl_var *x, fl_tensor *mask, double value);
FL_API fl_tensor *fl_masked_select(fl_tensor *x, fl_tensor *mask);
FL_API fl_var *fv_masked_select(fl_var *x, fl_tensor *mask);
FL_API fl_tensor *fl_masked_scatter(fl_tensor *x, fl_tensor *mask, fl_tensor *src);
FL_API fl_var *fv_masked_scatter(fl_var *x, fl_tensor *mask, fl_var *src);
/* How often 0, 1, ... appear in a vector of integers, none below 0, in at least so many bins: i64;
   or the sums of their weights (or NULL): f32 for f32, else f64. */
FL_API fl_tensor *fl_bincount(fl_tensor *x, fl_tensor *weights, int64_t least);
FL_API fl_var *fv_bincount(fl_tensor *x, fl_var *weights, int64_t least);
/* Elements in each of equal bins from low to high (low = high: of the least and largest element),
   the last one closed; others do not count. In x's dtype, of integers f32. */
FL_API fl_tensor *fl_histc(fl_tensor *x, int64_t bins, double low, double high);
/* The distinct elements, sorted (each NaN is one), or one of each run of equal neighbours in
   row-major order; *inverse (of x's shape) and *counts, which may be NULL: the place of each
   element of x among them, and how many are equal to each. Waits for x. */
FL_API fl_tensor *fl_unique(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts);
FL_API fl_tensor *fl_unique_consecutive(fl_tensor *x, fl_tensor **inverse, fl_tensor **counts);
/* Where v would be inserted among elements in ascending order (NaN last): before those equal to it,
   or after (right). sorted: a vector, or lines [..., n] for v's lines [..., m]. */
FL_API fl_tensor *fl_searchsorted(fl_tensor *sorted, fl_tensor *v, bool right);
/* x is one of `among`'s elements -> b8 */
FL_API fl_tensor *fl_isin(fl_tensor *x, fl_tensor *among);
/* >>reduce ------------------------------------------------------------------------------------- */

/* sqrt of fl_variance. Computed in f64: the terms of its second derivative cancel. */
FL_API fl_tensor *fl_std(fl_tensor *x, fl_axes axes, int64_t correction);
FL_API fl_var *fv_std(fl_var *x, fl_axes axes, int64_t correction);
/* (sum |x|^p)^(1/p); p = inf, -inf: the largest, smallest |x|; 0: the number of x != 0.
   Gradient 0 at 0. */
FL_API fl_tensor *fl_norm(fl_tensor *x, double p, fl_axes axes);
FL_API fl_var *fv_norm(fl_var *x, double p, fl_axes axes);
/* How many are not 0 -> i64 */
FL_API fl_tensor *fl_count_nonzero(fl_tensor *x, fl_axes axes);
/* Sum and mean of what is not NaN; of nothing: 0 and NaN */
FL_API fl_tensor *fl_nansum(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nansum(fl_var *x, fl_axes axes);
FL_API fl_tensor *fl_nanmean(fl_tensor *x, fl_axes axes);
FL_API fl_var *fv_nanmean(fl_var *x, fl_axes axes);
/* The first extreme along axis, NaN wins; *index (may be NULL) gets its place. */
FL_API fl_tensor *fl_max_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_max_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_tensor *fl_min_along(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_min_along(fl_var *x, int axis, bool keepdim, fl_tensor **index);
/* Number k, from 1, in ascending order along axis; NaN last. */
FL_API fl_tensor *fl_kthvalue(fl_tensor *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_kthvalue(fl_var *x, int64_t k, int axis, bool keepdim, fl_tensor **index);
/* The middle one along axis, of an even number the lower; a NaN wins, or is passed by. */
FL_API fl_tensor *fl_median(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_median(fl_var *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_tensor *fl_nanmedian(fl_tensor *x, int axis, bool keepdim, fl_tensor **index);
FL_API fl_var *fv_nanmedian(fl_var *x, int axis, bool keepdim, fl_tensor **index);
typedef enum fl_between {
    FL_BETWEEN_LINEAR,
    FL_BETWEEN_LOWER,
    FL_BETWEEN_HIGHER,
    FL_BETWEEN_NEAREST,
    FL_BETWEEN_MIDPOINT
} fl_between;
/* The place q (n - 1) in ascending order along axis, 0 <= q <= 1; between two elements by method. */
FL_API fl_tensor *fl_quantile(fl_tensor *x, double q, int axis, bool keepdim,
                               fl_between method);
FL_API fl_var *fv_quantile(fl_var *x, double q, int axis, bool keepdim,
                            fl_between method);
FL_API fl_tensor *fl_nanquantile(fl_tensor *x, double q, int axis, bool keepdim,
                                 fl_between method);
FL_API fl_var *fv_nanquantile(fl_var *x, double q, int axis, bool keepdim,
                            fl_between method);
/* The extreme of the elements up to each along axis, of equals the last; *index as above. */
FL_API fl_tensor *fl_cummax(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummax(fl_var *x, int axis, fl_tensor **index);
FL_API fl_tensor *fl_cummin(fl_tensor *x, int axis, fl_tensor **index);
FL_API fl_var *fv_cummin(fl_var *x, int axis, fl_tensor **index);
/* log of the sums of exp(x) up to each along axis. Computed in f64. */
FL_API fl_tensor *fl_logcumsumexp(fl_tensor *x, int axis);
FL_API fl_var *fv_logcumsumexp(fl_var *x, int axis);
/* x[1:] - x[:-1] along axis;  dx / 2 times the sum of y[1:] + y[:-1] */
FL_API fl_tensor *fl_diff(fl_tensor *x, int axis);
FL_API fl_var *fv_diff(fl_var *x, int axis);
FL_API fl_tensor *fl_trapezoid(fl_tensor *y, double dx, int axis);
FL_API fl_var *fv_trapezoid(fl_var *y, double dx, int axis);
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
/* linear: x [..., in], w [out, in], or [out, in / 32] of blocks such as fl_q8 -> x w^T + bias;
   bilinear: a [..., i], b [..., j], w [out, i, j] -> a w b + bias; bias [out] may be NULL */
FL_API fl_tensor *fl_linear(fl_tensor *x, fl_tensor *w, fl_tensor *bias);
FL_API fl_var *fv_linear(fl_var *x, fl_var *w, fl_var *bias);
/* act(linear(x, w, bias)) in one pass, act one of FL_OP_relu, gelu, gelu_tanh, silu, sigmoid, tanh */
FL_API fl_tensor *fl_linear_act(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_op act);
FL_API fl_var *fv_linear_act(fl_var *x, fl_var *w, fl_var *bias, fl_op act);
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
/* >>fft ---------------------------------------------------------------------------------------- */

/* Discrete Fourier transforms along one axis of complex numbers, which are pairs along the last axis:
   [..., n, ..., 2]; the pairs' axis does not count. y_k = sum x_j exp(-2 pi i j k / n), its inverse
   with + and 1 / n, and both along the last two axes. Any n > 0. */
FL_API fl_tensor *fl_fft(fl_tensor *x, int axis);
FL_API fl_var *fv_fft(fl_var *x, int axis);
FL_API fl_tensor *fl_ifft(fl_tensor *x, int axis);
FL_API fl_var *fv_ifft(fl_var *x, int axis);
FL_API fl_tensor *fl_fft2(fl_tensor *x);
FL_API fl_var *fv_fft2(fl_var *x);
FL_API fl_tensor *fl_ifft2(fl_tensor *x);
FL_API fl_var *fv_ifft2(fl_var *x);
/* Of n real numbers: frequencies 0 to n / 2 as pairs;  and back, to n numbers (n / 2 + 1 pairs or
   more, of which the rest is left out). */
FL_API fl_tensor *fl_rfft(fl_tensor *x, int axis);
FL_API fl_var *fv_rfft(fl_var *x, int axis);
FL_API fl_tensor *fl_irfft(fl_tensor *x, int64_t n, int axis);
FL_API fl_var *fv_irfft(fl_var *x, int64_t n, int axis);
/* private */
/* Whether fl_linear_act takes act; the op that it takes for fn, FL_OP_NONE if none. */
FL_PRIVATE bool fl__is_activation(fl_op act);
FL_PRIVATE fl_op fv__activation_of(fl_var *(*fn)(fl_var *x));

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "fl/ops/create.h"
#include "fl/ops/move.h"
#include "fl/ops/reduce.h"
#include "fl/ops/index.h"
#include "fl/ops/linear.h"
#include "fl/ops/factor.h"
#include "fl/ops/fft.h"
#endif
#endif
/* MIT licence: see LICENSE. */
