/* fl/ops/factor.h - what solves and factorises matrices

   Records: matrices are the last two dims, in batches; outputs in brackets may be absent (out[i]
   NULL). They have no composition: a backend without the slot borrows the cpu's.
     lu_factor         x [m, n] -> l u in one matrix, i64 pivot [min(m, n)]: row i was swapped with row
                       pivot[i], [i64 order [m]: the row of x that row i of the product l u is]
     solve             a [n, n], b [n, k] -> x = a^-1 b
     solve_triangular  the same of one triangle of a (args: fl_triangle_args)
     cholesky          x [n, n], its lower triangle -> l lower, zeros above
     qr                x [m, n] -> q [m, k], r [k, n], k = min(m, n)
     svd               x [m, n] -> [u [m, k]], s [k] descending, [vt [k, n]]
     eig               x [n, n] -> w [n], w_im [n], [v [n, n], v_im [n, n]]
     eigh              x [n, n], its lower triangle -> w [n] ascending, [v [n, n]]

   The gradients are those of M. Giles, "An extended collection of matrix derivative results" (2008),
   written in fv_ ops, so they have gradients themselves. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FACTOR_H
#define FL_OPS_FACTOR_H
#include "../records/factor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of float matrices, the last two dims, in batches; by LAPACK, without which (FL_USE_LAPACK) all is an
   error but triangular systems, matrix_exp, and powers and norms that need no factors. The first matrix
   of a batch that has no answer is an error that names it. Gradients of q, u, vt, v hold for distinct
   (singular) values only, and of cholesky and eigh, which read the lower triangle, are symmetric. */
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
/* 1 + x + x x / 2! + x x x / 3! + ..., computed in f64 */
FL_API fl_tensor *fl_matrix_exp(fl_tensor *x);
FL_API fl_var *fv_matrix_exp(fl_var *x);
/* l and u in one matrix, l's diagonal of ones left out: l u = x with row i and row pivot[i] swapped,
   i = 0, 1, ...; *pivot i64 [..., min(m, n)] */
FL_API fl_tensor *fl_lu_factor(fl_tensor *x, fl_tensor **pivot);
/* l [..., m, k] lower with ones on its diagonal, *u [..., k, n] upper, *p [..., m, m] a permutation of x's
   dtype: p l u = x; k = min(m, n). Gradients hold where the first k rows of l u are not singular. */
FL_API fl_tensor *fl_lu(fl_tensor *x, fl_tensor **u, fl_tensor **p);
FL_API fl_var *fv_lu(fl_var *x, fl_var **u, fl_tensor **p);
/* Determinants; log |det| with *sign (-1, 0, 1; may be NULL). Their gradients need an inverse. */
FL_API fl_tensor *fl_det(fl_tensor *x);
FL_API fl_var *fv_det(fl_var *x);
FL_API fl_tensor *fl_slogdet(fl_tensor *x, fl_tensor **sign);
FL_API fl_var *fv_slogdet(fl_var *x, fl_tensor **sign);
/* l lower: l l^T = x */
FL_API fl_tensor *fl_cholesky(fl_tensor *x);
FL_API fl_var *fv_cholesky(fl_var *x);
/* (l l^T)^-1 b: l [..., n, n], of which only the lower triangle is read, b [..., n, k] */
FL_API fl_tensor *fl_cholesky_solve(fl_tensor *l, fl_tensor *b);
FL_API fl_var *fv_cholesky_solve(fl_var *l, fl_var *b);
/* q [..., m, k] with orthonormal columns, *r [..., k, n] upper: q r = x; k = min(m, n) */
FL_API fl_tensor *fl_qr(fl_tensor *x, fl_tensor **r);
FL_API fl_var *fv_qr(fl_var *x, fl_var **r);
/* u [..., m, k], *s [..., k] descending, *vt [..., k, n]: u diag(s) vt = x;  s alone */
FL_API fl_tensor *fl_svd(fl_tensor *x, fl_tensor **s, fl_tensor **vt);
FL_API fl_var *fv_svd(fl_var *x, fl_var **s, fl_var **vt);
FL_API fl_tensor *fl_svdvals(fl_tensor *x);
FL_API fl_var *fv_svdvals(fl_var *x);
/* Norms of matrices. p = 2, -2: the largest, smallest singular value; 1, -1: the largest, smallest sum |x|
   of a column; inf, -inf: of a row; 0: Frobenius' norm, sqrt(sum x^2). Nuclear: the sum of the singular
   values */
FL_API fl_tensor *fl_matrix_norm(fl_tensor *x, double p);
FL_API fl_var *fv_matrix_norm(fl_var *x, double p);
FL_API fl_tensor *fl_nuclear_norm(fl_tensor *x);
FL_API fl_var *fv_nuclear_norm(fl_var *x);
/* Condition numbers |x| |x^-1| in the norm p of fl_matrix_norm, inf where x has no inverse; p = 2, -2: the
   largest singular value over the smallest, the smallest over the largest, of any x [..., m, n]. 0 of empty
   matrices */
FL_API fl_tensor *fl_cond(fl_tensor *x, double p);
FL_API fl_var *fv_cond(fl_var *x, double p);
/* i64 [...]: how many singular values are past both atol and rtol times the largest; both 0: rtol is
   max(m, n) eps */
FL_API fl_tensor *fl_matrix_rank(fl_tensor *x, double atol, double rtol);
/* Eigenvalues of symmetric matrices, ascending; *v (may be NULL): their vectors as columns */
FL_API fl_tensor *fl_eigh(fl_tensor *x, fl_tensor **v);
FL_API fl_var *fv_eigh(fl_var *x, fl_var **v);
/* Eigenvalues of any square matrices, real part w and *w_im, in LAPACK's order, with a complex one and its
   conjugate side by side; their vectors as columns, *v + i *v_im, each of length 1 and with a real largest
   element. x v = v diag(w). Gradients hold for distinct eigenvalues; of a matrix that lacks vectors (which is
   not similar to a diagonal one) they are an error or large. */
FL_API fl_tensor *fl_eig(fl_tensor *x, fl_tensor **w_im, fl_tensor **v, fl_tensor **v_im);
FL_API fl_var *fv_eig(fl_var *x, fl_var **w_im, fl_var **v, fl_var **v_im);
FL_API fl_tensor *fl_eigvals(fl_tensor *x, fl_tensor **w_im);
FL_API fl_var *fv_eigvals(fl_var *x, fl_var **w_im);
/* The x of least norm with the least |a x - b|, a of full rank;  Moore and Penrose's inverse, of
   singular values past rcond (0: max(m, n) eps) times the largest */
FL_API fl_tensor *fl_lstsq(fl_tensor *a, fl_tensor *b);
FL_API fl_var *fv_lstsq(fl_var *a, fl_var *b);
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
#define FL_TEXT "factor.inc"
#include "expand.h"

/* ---- registration: qr, svd, eigh and eig have gradients of all results together, see fv__factors ---- */

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
