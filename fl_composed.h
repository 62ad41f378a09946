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
     >>elementwise >>index
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

#ifdef __cplusplus
}
#endif
#endif /* FL_COMPOSED_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY)
#ifndef FL_COMPOSED_IMPL
#define FL_COMPOSED_IMPL
#include "kernels/composed/elementwise.h"
#include "kernels/composed/index.h"
#endif
#endif
/* MIT licence: see LICENSE. */
