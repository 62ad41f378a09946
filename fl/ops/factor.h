/* fl/ops/factor.h - linear algebra: solvers, matrix factorisations, determinants, matrix norms

   Records: matrices are the last two dims of a batch; outputs in brackets are optional (out[i] NULL). There
   is no composition: a backend without the kernel uses the cpu's.
     lu_factor         x [m, n] -> l and u in one matrix, i64 pivot [min(m, n)]: row i was swapped with row
                       pivot[i], [i64 order [m]: row i of l u is row order[i] of x]
     solve             a [n, n], b [n, k] -> x = a^-1 b
     solve_triangular  the same, reading one triangle of a (args: fl_triangle_args)
     cholesky          x [n, n], of which the lower triangle is read -> l lower, zeros above
     qr                x [m, n] -> q [m, k], r [k, n], k = min(m, n)
     svd               x [m, n] -> [u [m, k]], s [k] descending, [vt [k, n]]
     eig               x [n, n] -> w [n], w_im [n], [v [n, n], v_im [n, n]]
     eigh              x [n, n], of which the lower triangle is read -> w [n] ascending, [v [n, n]]

   Gradients: M. Giles, "An extended collection of matrix derivative results" (2008). They are composed of fv_
   ops, so they can be differentiated again. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FACTOR_H
#define FL_OPS_FACTOR_H
#include "../records/factor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operands are float matrices, the last two dims of a batch; batch dims broadcast. LAPACK computes them:
   without FL_USE_LAPACK every function is an error, except triangular systems, matrix_exp, and the powers and
   norms that need no factorisation. If a matrix is singular (solve, inverse), not positive definite
   (cholesky) or does not converge, the error names the first one of the batch. Gradients of q, u, vt and v
   require distinct (singular) values. cholesky and eigh read the lower triangle; their gradients are
   symmetric. */
/* x = a^-1 b for a [..., n, n] and b [..., n, k], or one vector [n] per matrix */
FL_API fl_tensor *fl_solve(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_solve(fl_var *a, fl_var *b);
/* x = a^-1 b, b [..., n, k], reading only a's lower (or upper) triangle. unit: its diagonal counts as
   ones. */
FL_API fl_tensor *fl_solve_triangular(fl_tensor *a, fl_tensor *b, bool upper, bool unit);
FL_API fl_var *fv_solve_triangular(fl_var *a, fl_var *b, bool upper, bool unit);
/* x^-1 */
FL_API fl_tensor *fl_inverse(fl_tensor *x);
FL_API fl_var *fv_inverse(fl_var *x);
/* x to the power n: repeated products; the identity for n = 0; of the inverse for n < 0 */
FL_API fl_tensor *fl_matrix_power(fl_tensor *x, int64_t n);
FL_API fl_var *fv_matrix_power(fl_var *x, int64_t n);
/* The matrix exponential 1 + x + x x / 2! + x x x / 3! + ..., computed in f64 */
FL_API fl_tensor *fl_matrix_exp(fl_tensor *x);
FL_API fl_var *fv_matrix_exp(fl_var *x);
/* LU factorisation with partial pivoting, l and u in one matrix without l's diagonal of ones. l u is x after
   swapping row i with row pivot[i], i = 0, 1, ...; *pivot is i64 [..., min(m, n)], counted from 0. */
FL_API fl_tensor *fl_lu_factor(fl_tensor *x, fl_tensor **pivot);
/* p l u = x: returns l [..., m, k], lower with a diagonal of ones; *u [..., k, n], upper; *p [..., m, m], a
   permutation matrix of x's dtype; k = min(m, n). Gradients require that the first k rows of l u are not
   singular. */
FL_API fl_tensor *fl_lu(fl_tensor *x, fl_tensor **u, fl_tensor **p);
FL_API fl_var *fv_lu(fl_var *x, fl_var **u, fl_tensor **p);
/* Determinant [...]. Its gradient requires that x has an inverse. */
FL_API fl_tensor *fl_det(fl_tensor *x);
FL_API fl_var *fv_det(fl_var *x);
/* log |det x| [...], and *sign (may be NULL): -1, 0 or 1. Its gradient requires that x has an inverse. */
FL_API fl_tensor *fl_slogdet(fl_tensor *x, fl_tensor **sign);
FL_API fl_var *fv_slogdet(fl_var *x, fl_tensor **sign);
/* The lower triangular l with l l^T = x */
FL_API fl_tensor *fl_cholesky(fl_tensor *x);
FL_API fl_var *fv_cholesky(fl_var *x);
/* (l l^T)^-1 b for l [..., n, n], of which only the lower triangle is read, and b [..., n, k] */
FL_API fl_tensor *fl_cholesky_solve(fl_tensor *l, fl_tensor *b);
FL_API fl_var *fv_cholesky_solve(fl_var *l, fl_var *b);
/* q r = x: returns q [..., m, k], with orthonormal columns; *r [..., k, n], upper; k = min(m, n) */
FL_API fl_tensor *fl_qr(fl_tensor *x, fl_tensor **r);
FL_API fl_var *fv_qr(fl_var *x, fl_var **r);
/* u diag(s) vt = x: returns u [..., m, k]; *s [..., k], descending; *vt [..., k, n]; k = min(m, n) */
FL_API fl_tensor *fl_svd(fl_tensor *x, fl_tensor **s, fl_tensor **vt);
FL_API fl_var *fv_svd(fl_var *x, fl_var **s, fl_var **vt);
/* The singular values [..., k], descending */
FL_API fl_tensor *fl_svdvals(fl_tensor *x);
FL_API fl_var *fv_svdvals(fl_var *x);
/* Matrix norm [...]. p = 2 or -2: largest or smallest singular value; 1 or -1: largest or smallest column sum
   of |x|; inf or -inf: largest or smallest row sum; 0: the Frobenius norm sqrt(sum x^2). Other p are
   errors. */
FL_API fl_tensor *fl_matrix_norm(fl_tensor *x, double p);
FL_API fl_var *fv_matrix_norm(fl_var *x, double p);
/* The nuclear norm [...]: the sum of the singular values */
FL_API fl_tensor *fl_nuclear_norm(fl_tensor *x);
FL_API fl_var *fv_nuclear_norm(fl_var *x);
/* Condition number |x| |x^-1| in the norm p of fl_matrix_norm; inf if x has no inverse. p = 2 or -2: the
   largest singular value over the smallest, or its reciprocal, for any x [..., m, n]. 0 for empty
   matrices. */
FL_API fl_tensor *fl_cond(fl_tensor *x, double p);
FL_API fl_var *fv_cond(fl_var *x, double p);
/* i64 [...]: the number of singular values above both atol and rtol times the largest. If both are 0, rtol is
   max(m, n) eps, with f64's eps for f64, else f32's. */
FL_API fl_tensor *fl_matrix_rank(fl_tensor *x, double atol, double rtol);
/* Eigenvalues [..., n] of symmetric matrices, ascending; *v (may be NULL): the eigenvectors as columns */
FL_API fl_tensor *fl_eigh(fl_tensor *x, fl_tensor **v);
FL_API fl_var *fv_eigh(fl_var *x, fl_var **v);
/* Eigenvalues w + i *w_im [..., n] of square matrices in LAPACK's order, conjugates next to each other, and
   eigenvectors *v + i *v_im as columns: x v = v diag(w). Each has length 1, and its largest element is real.
   Gradients require distinct eigenvalues; for a matrix that is not diagonalisable they are an error or
   large. */
FL_API fl_tensor *fl_eig(fl_tensor *x, fl_tensor **w_im, fl_tensor **v, fl_tensor **v_im);
FL_API fl_var *fv_eig(fl_var *x, fl_var **w_im, fl_var **v, fl_var **v_im);
/* The eigenvalues w + i *w_im alone */
FL_API fl_tensor *fl_eigvals(fl_tensor *x, fl_tensor **w_im);
FL_API fl_var *fv_eigvals(fl_var *x, fl_var **w_im);
/* Least squares: the x [..., n, k] of least norm that minimises |a x - b|, for a [..., m, n] of full rank and
   b [..., m, k] */
FL_API fl_tensor *fl_lstsq(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_lstsq(fl_var *a, fl_var *b);
/* Moore-Penrose pseudoinverse [..., n, m]. Singular values up to rcond times the largest count as 0; rcond 0:
   max(m, n) eps. */
FL_API fl_tensor *fl_pinv(fl_tensor *x, double rcond);
FL_API fl_var *fv_pinv(fl_var *x, double rcond);

FL_PRIVATE void fl__register_factor(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_FACTOR_H */

#if defined(FL_IMPL_ONLY_OPS_FACTOR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_FACTOR_IMPL
#define FL_OPS_FACTOR_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "linear.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#define FL_EXPAND_FILE "factor.inc"
#include "expand.h"

/* ---- registration: the gradients of qr, svd, eigh and eig take all results' at once, see fv__factors
   ---- */

FL_DATA_DEFINED fl_op fl_op_lu_factor, fl_op_solve, fl_op_solve_triangular, fl_op_cholesky, fl_op_qr,
    fl_op_svd, fl_op_eigh, fl_op_eig;

FL_PRIVATE void fl__register_factor(void) {
    FL__REGISTER(lu_factor, .uses = "cpu");
    FL__REGISTER(solve, .uses = "cpu", .gradient = fv__solve_back);
    FL__REGISTER(solve_triangular, .args_size = sizeof(fl_triangle_args), .uses = "cpu",
                 .gradient = fv__solve_triangular_back);
    FL__REGISTER(cholesky, .uses = "cpu", .gradient = fv__cholesky_back);
    FL__REGISTER(qr, .uses = "cpu");
    FL__REGISTER(svd, .uses = "cpu");
    FL__REGISTER(eigh, .uses = "cpu");
    FL__REGISTER(eig, .uses = "cpu");
}
#endif
#endif
/* MIT licence: see LICENSE. */
