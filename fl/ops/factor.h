/* fl/ops/factor.h - what solves and factorises matrices

   Records: matrices are the last two dims, in batches; outputs of svd and eigh may be absent (out[i]
   NULL). They have no composition: a backend without the slot borrows the cpu's.
     lu_factor         x [n, n] -> l u in one matrix, i64 pivot [n]: row i was swapped with row pivot[i]
     solve             a [n, n], b [n, k] -> x = a^-1 b
     solve_triangular  the same of one triangle of a (args: fl_triangle_args)
     cholesky          x [n, n], its lower triangle -> l lower, zeros above
     qr                x [m, n] -> q [m, k], r [k, n], k = min(m, n)
     svd               x [m, n] -> [u [m, k]], s [k] descending, [vt [k, n]]
     eigh              x [n, n], its lower triangle -> w [n] ascending, [v [n, n]]

   The gradients are those of M. Giles, "An extended collection of matrix derivative results" (2008),
   written in fv_ ops, so they have gradients themselves. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_FACTOR_H
#define FL_OPS_FACTOR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_triangle_args {
    bool upper; /* else the lower triangle: the other one is not read, */
    bool unit;  /* nor the diagonal, which counts as ones */
} fl_triangle_args;

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

FL_DATA fl_op fl_op_lu_factor, fl_op_solve, fl_op_solve_triangular, fl_op_cholesky, fl_op_qr, fl_op_svd,
    fl_op_eigh;
FL_PRIVATE void fl__register_factor(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_FACTOR_H */

#if defined(FL_IMPL_ONLY_OPS_FACTOR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_FACTOR_IMPL
#define FL_OPS_FACTOR_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "linear.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#define FL_TEXT "factor.h"
#include "expand.h"

/* ---- registration: qr, svd and eigh have gradients of all their results together, see fv__factors ---- */

FL_DATA_DEFINED fl_op fl_op_lu_factor, fl_op_solve, fl_op_solve_triangular, fl_op_cholesky, fl_op_qr,
    fl_op_svd, fl_op_eigh;

FL_PRIVATE void fl__register_factor(void) {
    static const fl_op_info lu_factor = {.name = "lu_factor", .contains = "cpu"},
                            solve = {.name = "solve", .contains = "cpu", .gradient = fv__solve_back},
                            solve_triangular = {.name = "solve_triangular",
                                                .args_size = sizeof(fl_triangle_args),
                                                .contains = "cpu",
                                                .gradient = fv__solve_triangular_back},
                            cholesky = {.name = "cholesky", .contains = "cpu", .gradient = fv__cholesky_back},
                            qr = {.name = "qr", .contains = "cpu"},
                            svd = {.name = "svd", .contains = "cpu"},
                            eigh = {.name = "eigh", .contains = "cpu"};
    fl_op_lu_factor = fl_op_register(&lu_factor);
    fl_op_solve = fl_op_register(&solve);
    fl_op_solve_triangular = fl_op_register(&solve_triangular);
    fl_op_cholesky = fl_op_register(&cholesky);
    fl_op_qr = fl_op_register(&qr);
    fl_op_svd = fl_op_register(&svd);
    fl_op_eigh = fl_op_register(&eigh);
}
#endif
#endif
#else /* the text: see expand.h */

static inline FL_T *FL_W(_transposed)(FL_T *x) {
    return FL_W(transpose)(x, -1, -2);
}

#ifdef FL_ON_TENSORS
/* x holds float matrices, square ones. */
static bool fl__are_matrices(const char *fn, const fl_tensor *x, bool square) {
    if (x->ndim < 2 || (square && x->shape[x->ndim - 1] != x->shape[x->ndim - 2]))
        return fl_refuse("%s: shape %s: no%s matrices", fn, FL_SHAPE_TEXT(x),
                       square ? " square" : "");
    if (!fl_dtype_is_float(x->dtype))
        return fl_refuse("%s: %s is not a float: cast it", fn, fl_dtype_name(x->dtype));
    return true;
}

/* t's shape with other last dims: `dims` of them, 0 to 2. */
static fl_shape fl__batch_of(const fl_tensor *t, int dims, int64_t rows, int64_t columns) {
    fl_shape s = fl_shape_of(t);
    s.ndim += dims - 2;
    if (dims > 0) s.dim[s.ndim - dims] = rows;
    if (dims > 1) s.dim[s.ndim - 1] = columns;
    return s;
}

/* Runs c, whose inputs are set, for outputs of these shapes, whose last dims these are. */
static bool fl__factor_call(fl_call *c, const fl_shape *out) {
    const fl_tensor *x = c->in[0];
    for (int i = 0; i < c->n_out; i++)
        if (out[i].ndim >= 0 && !(c->out[i] = fl_out_on(x->family, out[i], x->dtype)))
            return fl_raise() != NULL;
    return fl_call_run(c) || fl_raise() != NULL;
}
static const fl_shape fl__unwanted = {-1, {0}};

/* Batches of a and b as one shape, of no matrix dims. */
static bool fl__joint_batch(const char *fn, const fl_tensor *a, const fl_tensor *b, fl_shape *s) {
    fl_tensor short_b = *b; /* shape only */
    short_b.ndim -= 2;
    *s = fl__batch_of(a, 0, 0, 0);
    if (fl_broadcast_shape(s, &short_b)) return true;
    return fl_refuse("%s: shapes %s and %s: batches do not broadcast", fn, FL_SHAPE_TEXT(a),
                   FL_SHAPE_TEXT(b));
}

/* A constant of x's dtype and family: ones in the lower, upper triangle of n x n, or the diagonal;
   the first two with it or without it. */
enum { FL__LOWER, FL__UPPER, FL__DIAGONAL };
static fl_tensor *fl__ones_where(const fl_tensor *x, int64_t n, int which, bool strict) {
    fl_tensor *ones = fl_expand(fl_new_full(x, FL_SCALAR_SHAPE, 1), FL_SHAPE(n, n));
    if (!ones) return NULL;
    if (which == FL__DIAGONAL) return fl_tril(fl_triu(ones, 0), 0);
    return which == FL__UPPER ? fl_triu(ones, strict) : fl_tril(ones, -(int64_t)strict);
}
#endif

/* a and b of one dtype, their batches expanded to one. False after an error. */
static bool FL_W(_joined)(const char *fn, FL_T **a, FL_T **b) {
    fl_tensor *t[] = {FL_VALUE(*a), FL_VALUE(*b)};
    fl_dtype d = fl_result_type(2, t);
    fl_shape s;
    if (!fl__joint_batch(fn, t[0], t[1], &s)) return false;
    for (int i = 0; i < 2; i++) {
        fl_shape full = s;
        full.ndim += 2;
        full.dim[s.ndim] = t[i]->shape[t[i]->ndim - 2];
        full.dim[s.ndim + 1] = t[i]->shape[t[i]->ndim - 1];
        FL_T **x = i ? b : a;
        if (!(*x = FL_W(expand)(FL_W(cast)(*x, d), full))) return false;
    }
    return true;
}

/* >>solve */

#ifdef FL_ON_TENSORS
static fl_tensor *fl__solve(fl_tensor *a, fl_tensor *b) {
    fl_call c = {.op = fl_op_solve, .n_out = 1, .n_in = 2, .in = {a, b}};
    return fl__factor_call(&c, (fl_shape[]){fl_shape_of(b)}) ? c.out[0] : NULL;
}

static fl_tensor *fl__solve_triangular(fl_tensor *a, fl_tensor *b, fl_triangle_args t) {
    fl_call c = {.op = fl_op_solve_triangular, .n_out = 1, .n_in = 2, .in = {a, b}, .args = &t};
    return fl__factor_call(&c, (fl_shape[]){fl_shape_of(b)}) ? c.out[0] : NULL;
}
#endif

#ifdef FL_ON_VARS
/* db = a^-T dx, da = -db x^T */
static fl_var *fv__solve(fl_var *a, fl_var *b);
static void fv__solve_back(fl_node *n, fl_var *dx) {
    fl_var *db = fv__solve(fv__transposed(fv_saved(n, 0)), dx);
    fv_add_grad(n, 1, db);
    if (fv_needs(n, 0)) fv_add_grad(n, 0, NEG(fv_matmul(db, fv__transposed(fv_saved(n, 1)))));
}
static fl_var *fv__solve(fl_var *a, fl_var *b) {
    if (!a || !b) return NULL;
    fl_tensor *x = fl__solve(fv_value(a), fv_value(b));
    return fv_record_op(fl_op_solve, x, FV_IN(a, b), FV_SAVE(a, FV_OUT), NULL);
}

/* The same, but da is zero where a is not read. */
static fl_var *fv__solve_triangular(fl_var *a, fl_var *b, fl_triangle_args t);
static void fv__solve_triangular_back(fl_node *n, fl_var *dx) {
    fl_triangle_args t = *(const fl_triangle_args *)fv_args(n);
    fl_var *a = fv_saved(n, 0);
    fl_var *db = fv__solve_triangular(fv__transposed(a), dx, (fl_triangle_args){!t.upper, t.unit});
    fv_add_grad(n, 1, db);
    if (!fv_needs(n, 0) || !a) return;
    int64_t size = a->value->shape[a->value->ndim - 1];
    fl_tensor *read = fl__ones_where(a->value, size, t.upper ? FL__UPPER : FL__LOWER, t.unit);
    fl_var *da = fv_matmul(db, fv__transposed(fv_saved(n, 1)));
    fv_add_grad(n, 0, NEG(MUL(da, fv_const(read))));
}
static fl_var *fv__solve_triangular(fl_var *a, fl_var *b, fl_triangle_args t) {
    if (!a || !b) return NULL;
    fl_tensor *x = fl__solve_triangular(fv_value(a), fv_value(b), t);
    return fv_record_op(fl_op_solve_triangular, x, FV_IN(a, b), FV_SAVE(a, FV_OUT), &t);
}
#endif

/* b is one vector for each matrix of a: PyTorch's rule. */
static bool FL_W(_are_vectors)(const FL_T *a, const FL_T *b) {
    const fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    bool same = tb->ndim == ta->ndim - 1;
    for (int i = 0; same && i < tb->ndim; i++) same = tb->shape[i] == ta->shape[i];
    return tb->ndim == 1 || same;
}

FL_T *FL_W(solve)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("solve", a) || FL_ABSENT("solve", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    if (!fl__are_matrices("fl_solve", ta, true)) return NULL;
    bool vectors = FL_W(_are_vectors)(a, b);
    int rows = tb->ndim - (vectors ? 1 : 2);
    if (rows < 0 || tb->shape[rows] != ta->shape[ta->ndim - 1])
        return fl_bad("fl_solve: shapes %s and %s do not fit", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    fl_scope s = fl_scope_begin();
    if (vectors) b = FL_W(unsqueeze)(b, -1);
    FL_T *x = b && FL_W(_joined)("fl_solve", &a, &b) ? FL_W(_solve)(a, b) : NULL;
    return FL_GIVE(&s, vectors ? FL_W(squeeze)(x, -1) : x);
}

FL_T *FL_W(solve_triangular)(FL_T *a, FL_T *b, bool upper, bool unit) {
    if (FL_ABSENT("solve_triangular", a) || FL_ABSENT("solve_triangular", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    if (!fl__are_matrices("fl_solve_triangular", ta, true)) return NULL;
    if (tb->ndim < 2 || tb->shape[tb->ndim - 2] != ta->shape[ta->ndim - 1])
        return fl_bad("fl_solve_triangular: shapes %s and %s do not fit", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    fl_triangle_args t = {upper, unit};
    fl_scope s = fl_scope_begin();
    bool ok = FL_W(_joined)("fl_solve_triangular", &a, &b);
    return FL_GIVE(&s, ok ? FL_W(_solve_triangular)(a, b, t) : NULL);
}

FL_T *FL_W(inverse)(FL_T *x) {
    if (FL_ABSENT("inverse", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if (!fl__are_matrices("fl_inverse", t, true)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *ones = fl__ones_where(t, t->shape[t->ndim - 1], FL__DIAGONAL, false);
    ones = fl_expand(ones, fl_shape_of(t)); /* of x's dims: matrices, not a vector for each */
    return FL_GIVE(&s, ones ? FL_W(_solve)(x, FL_OF(ones)) : NULL);
}

FL_T *FL_W(matrix_power)(FL_T *x, int64_t n) {
    if (FL_ABSENT("matrix_power", x)) return NULL;
    fl_tensor *t = FL_VALUE(x);
    if (!fl__are_matrices("fl_matrix_power", t, true)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *power = n < 0 ? FL_W(inverse)(x) : x, *y = NULL;
    bool first = true;
    for (uint64_t rest = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; rest && power;) {
        if (rest & 1) y = first ? power : FL_W(matmul)(y, power);
        if (rest & 1) first = false;
        if (rest >>= 1) power = FL_W(matmul)(power, power);
    }
    if (n) return FL_GIVE(&s, power ? y : NULL);
    fl_tensor *ones = fl__ones_where(t, t->shape[t->ndim - 1], FL__DIAGONAL, false);
    return FL_GIVE(&s, FL_OF(fl_contiguous(fl_expand(ones, fl_shape_of(t)))));
}

/* >>determinants */

#ifdef FL_ON_TENSORS
fl_tensor *fl_lu_factor(fl_tensor *x, fl_tensor **pivot) {
    if (fl_absent("fl_lu_factor", x) || fl_absent("fl_lu_factor", pivot) ||
        !fl__are_matrices("fl_lu_factor", x, true))
        return NULL;
    fl_call c = {.op = fl_op_lu_factor, .n_out = 2, .n_in = 1, .in = {x}};
    c.out[0] = fl_out_on(x->family, fl_shape_of(x), x->dtype);
    c.out[1] = fl_out_on(x->family, fl__batch_of(x, 1, x->shape[x->ndim - 1], 0), FL_I64);
    if (!c.out[0] || !c.out[1] || !fl_call_run(&c)) return fl_raise();
    *pivot = c.out[1];
    return c.out[0];
}

/* u's diagonal; *sign: -1 for each swap of rows. */
static fl_tensor *fl__lu_diagonal(fl_tensor *x, fl_tensor **sign) {
    fl_tensor *pivot, *lu = fl_lu_factor(x, &pivot);
    if (!lu) return NULL;
    fl_tensor *places = fl_arange(0, (double)x->shape[x->ndim - 1], 1, FL_I64);
    places = fl_to(places, fl_backend_name(x));
    fl_tensor *swaps = fl_sum(fl_ne(pivot, places), FL_AXES(-1));
    fl_tensor *odd = fl_cast(fl_bitwise_and(swaps, fl_int(1)), lu->dtype);
    *sign = SUB(CONST(1), MUL(CONST(2), odd));
    return fl_diagonal(lu, 0, -2, -1);
}

fl_tensor *fl_det(fl_tensor *x) {
    if (fl_absent("fl_det", x) || !fl__are_matrices("fl_det", x, true)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *sign, *d = fl__lu_diagonal(x, &sign);
    return fl_scope_return(&s, d ? MUL(sign, fl_prod(d, FL_AXES(-1))) : NULL);
}

fl_tensor *fl_slogdet(fl_tensor *x, fl_tensor **sign) {
    if (fl_absent("fl_slogdet", x) || !fl__are_matrices("fl_slogdet", x, true)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *swaps, *d = fl__lu_diagonal(x, &swaps);
    fl_tensor *y = d ? fl_sum(LOG(ABS(d)), FL_AXES(-1)) : NULL;
    fl_tensor *signs = y ? MUL(swaps, fl_prod(fl_sign(d), FL_AXES(-1))) : NULL;
    if (sign && signs) *sign = fl_promote(&s, signs);
    return fl_scope_return(&s, signs ? y : NULL);
}
#endif

#ifdef FL_ON_VARS
/* dx = dy x^-T, times det x. */
static void fv__det_back(fl_node *n, fl_var *dy) {
    fl_var *det = fv_saved(n, 1), *scale = det ? MUL(dy, det) : dy;
    fl_var *inverse = fv__transposed(fv_inverse(fv_saved(n, 0)));
    fv_add_grad(n, 0, MUL(inverse, fv_unsqueeze(fv_unsqueeze(scale, -1), -1)));
}
fl_var *fv_det(fl_var *x) {
    return fv_record_args("det", fl_det(fv_value(x)), fv__det_back, FV_IN(x), FV_SAVE(x, FV_OUT),
                          NULL, 0);
}
fl_var *fv_slogdet(fl_var *x, fl_tensor **sign) {
    fl_tensor *s = NULL;
    fl_var *y = fv_record_args("slogdet", fl_slogdet(fv_value(x), &s), fv__det_back, FV_IN(x),
                               FV_SAVE(x, NULL), NULL, 0);
    if (y && sign) *sign = s;
    return y;
}
#endif

/* >>cholesky */

#ifdef FL_ON_TENSORS
fl_tensor *fl_cholesky(fl_tensor *x) {
    if (fl_absent("fl_cholesky", x) || !fl__are_matrices("fl_cholesky", x, true)) return NULL;
    fl_call c = {.op = fl_op_cholesky, .n_out = 1, .n_in = 1, .in = {x}};
    return fl__factor_call(&c, (fl_shape[]){fl_shape_of(x)}) ? c.out[0] : NULL;
}
#endif

#ifdef FL_ON_VARS
/* The symmetric matrix with m's lower triangle */
static fl_var *fv__mirrored(fl_var *m) {
    if (!m) return NULL;
    int64_t n = m->value->shape[m->value->ndim - 1];
    fl_var *with = fv_const(fl__ones_where(m->value, n, FL__LOWER, false));
    fl_var *without = fv_const(fl__ones_where(m->value, n, FL__LOWER, true));
    return with && without ? ADD(MUL(m, with), fv__transposed(MUL(m, without))) : NULL;
}

/* y r^-T, of an upper r, or y l^-1 as (l^-T y^T)^T for r = l^T */
static fl_var *fv__right_solve(fl_var *y, fl_var *r) {
    return fv__transposed(fv__solve_triangular(r, fv__transposed(y), (fl_triangle_args){true, false}));
}

/* dx = l^-T mirrored(l^T dl) l^-1 / 2 */
static void fv__cholesky_back(fl_node *n, fl_var *dl) {
    fl_var *u = fv__transposed(fv_saved(n, 0)), *m = fv__mirrored(fv_matmul(u, dl));
    fl_var *left = fv__solve_triangular(u, m, (fl_triangle_args){true, false});
    fv_add_grad(n, 0, MUL(CONST(0.5), fv__right_solve(left, u)));
}
fl_var *fv_cholesky(fl_var *x) {
    return fv_record_op(fl_op_cholesky, fl_cholesky(fv_value(x)), FV_IN(x), FV_SAVE(FV_OUT), NULL);
}
#endif

/* >>several results of one node */

#ifdef FL_ON_VARS
/* Variables of the n <= 3 results t of a factorisation of x, which all are saved. */
static bool fv__factors(const char *name, fl_var *x, fl_back_fn back, int n, fl_tensor **t, fl_var **y) {
    fl_var *const saved[] = {FV_OUT_OF(0), FV_OUT_OF(1), FV_OUT_OF(2)};
    return fv_record_several(n, t, y, &(fv_record_opts){.name = name, .back = back, .in = FV_IN(x),
                                                       .saved = fv_list_of(n, saved)});
}

/* The gradient of result k, whose variable is y */
static fl_var *fv__factor_grad(fl_node *n, int k, fl_var *y) {
    fl_var *dy = fv_grad_of(n, k);
    return dy || !y ? dy : fv_const(fl_full_like(y->value, 0));
}

/* x - p p^T x: what of x lies outside the columns of p */
static fl_var *fv__outside(fl_var *x, fl_var *p) {
    return SUB(x, fv_matmul(p, fv_matmul(fv__transposed(p), x)));
}

/* 1 / (s_j - s_i) beside the diagonal; 0 on it and where the two are equal */
static fl_var *fv__gaps(fl_var *s) {
    fl_var *apart = SUB(fv_unsqueeze(s, -2), fv_unsqueeze(s, -1)), *same = EQ(apart, CONST(0));
    return SELECT(same, CONST(0), DIV(CONST(1), SELECT(same, CONST(1), apart)));
}

/* Matrices with the diagonal d */
static fl_var *fv__spread(fl_var *d) {
    if (!d) return NULL;
    fl_tensor *t = d->value;
    fl_var *ones = fv_const(fl__ones_where(t, t->shape[t->ndim - 1], FL__DIAGONAL, false));
    return ones ? MUL(ones, fv_unsqueeze(d, -1)) : NULL;
}
#endif

/* >>qr */

#ifdef FL_ON_TENSORS
fl_tensor *fl_qr(fl_tensor *x, fl_tensor **r) {
    if (fl_absent("fl_qr", x) || fl_absent("fl_qr", r) || !fl__are_matrices("fl_qr", x, false))
        return NULL;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    fl_call c = {.op = fl_op_qr, .n_out = 2, .n_in = 1, .in = {x}};
    fl_shape out[] = {fl__batch_of(x, 2, m, k), fl__batch_of(x, 2, k, n)};
    if (!fl__factor_call(&c, out)) return NULL;
    *r = c.out[1];
    return c.out[0];
}
#endif

#ifdef FL_ON_VARS
/* dx = (dq + q mirrored(r dr^T - dq^T q)) r^-T */
static void fv__qr_back(fl_node *n, fl_var *dy) {
    (void)dy;
    fl_var *q = fv_saved(n, 0), *r = fv_saved(n, 1);
    fl_var *dq = fv__factor_grad(n, 0, q), *dr = fv__factor_grad(n, 1, r);
    fl_var *m = SUB(fv_matmul(r, fv__transposed(dr)), fv_matmul(fv__transposed(dq), q));
    fv_add_grad(n, 0, fv__right_solve(ADD(dq, fv_matmul(q, fv__mirrored(m))), r));
}

fl_var *fv_qr(fl_var *x, fl_var **r) {
    fl_tensor *t[2];
    fl_var *y[2];
    if (fl_absent("fv_qr", x) || fl_absent("fv_qr", r) ||
        !fl__are_matrices("fl_qr", x->value, false))
        return NULL;
    int64_t m = x->value->shape[x->value->ndim - 2], n = x->value->shape[x->value->ndim - 1];
    fl_scope s = fl_scope_begin();
    fl_var *square = fv_slice(x, -1, 0, m, 1), *rest = n > m ? fv_slice(x, -1, m, n, 1) : NULL;
    bool ok = square && (t[0] = fl_qr(fv_value(square), &t[1])) != NULL &&
              fv__factors("qr", square, fv__qr_back, 2, t, y);
    if (ok && rest) { /* r = q^T x */
        fl_var *both[] = {y[1], fv_matmul(fv__transposed(y[0]), rest)};
        ok = (y[1] = fv_concat(both, 2, -1)) != NULL;
    }
    if (ok) *r = fl_promote(&s, y[1]);
    return fv_scope_return(&s, ok ? y[0] : NULL);
}
#endif

/* >>svd */

#ifdef FL_ON_TENSORS
/* t: u, s, vt; or s alone. */
static bool fl__svd(const char *fn, fl_tensor *x, bool vectors, fl_tensor **t) {
    if (fl_absent(fn, x) || !fl__are_matrices(fn, x, false)) return false;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    fl_call c = {.op = fl_op_svd, .n_out = 3, .n_in = 1, .in = {x}};
    fl_shape out[] = {vectors ? fl__batch_of(x, 2, m, k) : fl__unwanted, fl__batch_of(x, 1, k, 0),
                      vectors ? fl__batch_of(x, 2, k, n) : fl__unwanted};
    if (!fl__factor_call(&c, out)) return false;
    for (int i = 0; i < 3; i++) t[i] = c.out[i];
    return true;
}

fl_tensor *fl_svd(fl_tensor *x, fl_tensor **s, fl_tensor **vt) {
    fl_tensor *t[3];
    if (fl_absent("fl_svd", s) || fl_absent("fl_svd", vt) || !fl__svd("fl_svd", x, true, t))
        return NULL;
    *s = t[1];
    *vt = t[2];
    return t[0];
}

fl_tensor *fl_svdvals(fl_tensor *x) {
    fl_tensor *t[3];
    return fl__svd("fl_svdvals", x, false, t) ? t[1] : NULL;
}
#endif

#ifdef FL_ON_VARS
/* x's tangent in the bases u and v: with w(a) = (a - a^T) / (s_j^2 - s_i^2),
   dx = u (w(u^T du) s + s w(v^T dv) + ds) v^T, and what of du and dv lies outside u and v. */
static void fv__svd_back(fl_node *n, fl_var *dy) {
    (void)dy;
    fl_var *u = fv_saved(n, 0), *s = fv_saved(n, 1), *vt = fv_saved(n, 2), *v = fv__transposed(vt);
    fl_var *du = fv__factor_grad(n, 0, u), *ds = fv__factor_grad(n, 1, s);
    fl_var *dv = fv__transposed(fv__factor_grad(n, 2, vt));
    fl_var *gaps = fv__gaps(MUL(s, s)), *row = fv_unsqueeze(s, -2), *column = fv_unsqueeze(s, -1);
    fl_var *a = fv_matmul(fv__transposed(u), du), *b = fv_matmul(fv__transposed(v), dv);
    a = MUL(MUL(SUB(a, fv__transposed(a)), gaps), row);
    b = MUL(MUL(SUB(b, fv__transposed(b)), gaps), column);
    fl_var *dx = fv_matmul(fv_matmul(u, ADD(ADD(a, b), fv__spread(ds))), vt);
    fl_var *safe = SELECT(EQ(row, CONST(0)), CONST(1), row);
    if (!dx) return;
    fl_shape x = fv_in_shape(n, 0), k = fl_shape_of(s->value);
    if (x.dim[x.ndim - 2] > k.dim[k.ndim - 1])
        dx = ADD(dx, fv_matmul(fv__outside(DIV(du, safe), u), vt));
    if (x.dim[x.ndim - 1] > k.dim[k.ndim - 1])
        dx = ADD(dx, fv_matmul(u, fv__transposed(fv__outside(DIV(dv, safe), v))));
    fv_add_grad(n, 0, dx);
}

fl_var *fv_svd(fl_var *x, fl_var **s, fl_var **vt) {
    fl_tensor *t[3];
    fl_var *y[3];
    if (fl_absent("fv_svd", x) || fl_absent("fv_svd", s) || fl_absent("fv_svd", vt)) return NULL;
    fl_scope scope = fl_scope_begin();
    bool ok = fl__svd("fl_svd", x->value, true, t) && fv__factors("svd", x, fv__svd_back, 3, t, y);
    if (ok) *s = fl_promote(&scope, y[1]);
    if (ok) *vt = fl_promote(&scope, y[2]);
    return fv_scope_return(&scope, ok ? y[0] : NULL);
}

fl_var *fv_svdvals(fl_var *x) {
    fl_var *s, *vt;
    if (fl_absent("fv_svdvals", x)) return NULL;
    if (!x->requires_grad || !fl_grad_enabled()) return fv_const(fl_svdvals(x->value));
    fl_scope scope = fl_scope_begin();
    return fv_scope_return(&scope, fv_svd(x, &s, &vt) ? s : NULL);
}
#endif

/* >>eigh */

#ifdef FL_ON_TENSORS
fl_tensor *fl_eigh(fl_tensor *x, fl_tensor **v) {
    if (fl_absent("fl_eigh", x) || !fl__are_matrices("fl_eigh", x, true)) return NULL;
    fl_call c = {.op = fl_op_eigh, .n_out = 2, .n_in = 1, .in = {x}};
    fl_shape out[] = {fl__batch_of(x, 1, x->shape[x->ndim - 1], 0),
                      v ? fl_shape_of(x) : fl__unwanted};
    if (!fl__factor_call(&c, out)) return NULL;
    if (v) *v = c.out[1];
    return c.out[0];
}
#endif

#ifdef FL_ON_VARS
/* dx = v (v^T dv / (w_j - w_i) + dw) v^T */
static void fv__eigh_back(fl_node *n, fl_var *dy) {
    (void)dy;
    fl_var *w = fv_saved(n, 0), *v = fv_saved(n, 1);
    fl_var *dw = fv__factor_grad(n, 0, w), *dv = fv__factor_grad(n, 1, v);
    fl_var *inner = ADD(MUL(fv_matmul(fv__transposed(v), dv), fv__gaps(w)), fv__spread(dw));
    fv_add_grad(n, 0, fv_matmul(v, fv_matmul(inner, fv__transposed(v))));
}

fl_var *fv_eigh(fl_var *x, fl_var **v) {
    fl_tensor *t[2];
    fl_var *y[2];
    if (fl_absent("fv_eigh", x)) return NULL;
    if (!v && (!x->requires_grad || !fl_grad_enabled())) return fv_const(fl_eigh(x->value, NULL));
    fl_scope s = fl_scope_begin();
    bool ok = (t[0] = fl_eigh(x->value, &t[1])) && fv__factors("eigh", x, fv__eigh_back, 2, t, y);
    if (ok && v) *v = fl_promote(&s, y[1]);
    return fv_scope_return(&s, ok ? y[0] : NULL);
}
#endif

/* >>least squares */

/* a = q r: x = r^-1 q^T b;  wide, a^T = q r: x = q r^-T b */
FL_T *FL_W(lstsq)(FL_T *a, FL_T *b) {
    if (FL_ABSENT("lstsq", a) || FL_ABSENT("lstsq", b)) return NULL;
    fl_tensor *ta = FL_VALUE(a), *tb = FL_VALUE(b);
    if (!fl__are_matrices("fl_lstsq", ta, false)) return NULL;
    bool wide = ta->shape[ta->ndim - 2] < ta->shape[ta->ndim - 1];
    if (tb->ndim < 2 || tb->shape[tb->ndim - 2] != ta->shape[ta->ndim - 2])
        return fl_bad("fl_lstsq: shapes %s and %s do not fit", FL_SHAPE_TEXT(ta),
                       FL_SHAPE_TEXT(tb));
    fl_scope s = fl_scope_begin();
    FL_T *r, *q = FL_W(qr)(wide ? FL_W(_transposed)(a) : a, &r), *x = NULL;
    if (q && wide) x = FL_W(matmul)(q, FL_W(solve_triangular)(FL_W(_transposed)(r), b, false, false));
    if (q && !wide)
        x = FL_W(solve_triangular)(r, FL_W(matmul)(FL_W(_transposed)(q), b), true, false);
    return FL_GIVE(&s, x);
}

#ifdef FL_ON_TENSORS
fl_tensor *fl_pinv(fl_tensor *x, double rcond) {
    if (fl_absent("fl_pinv", x) || !fl__are_matrices("fl_pinv", x, false)) return NULL;
    fl_scope scope = fl_scope_begin();
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1];
    if (m == 0 || n == 0) return fl_scope_return(&scope, fl_clone(fl__transposed(x)));
    fl_dtype d = x->dtype;
    fl_tensor *s, *vt, *u = fl_svd(FL_W(_widened)(x), &s, &vt);
    if (!u) return fl_scope_return(&scope, NULL);
    double eps = d == FL_F64 ? 0x1p-52 : 0x1p-23;
    if (rcond == 0) rcond = (double)(m > n ? m : n) * eps;
    fl_tensor *least = MUL(CONST(rcond), fl_amax(s, FL_AXES_KEEP(-1)));
    fl_tensor *counts = LT(least, s);
    fl_tensor *t = SELECT(counts, DIV(CONST(1), SELECT(counts, s, CONST(1))), CONST(0));
    fl_tensor *y = fl_matmul(MUL(fl__transposed(vt), fl_unsqueeze(t, -2)), fl__transposed(u));
    return fl_scope_return(&scope, y ? fl_cast(y, d) : NULL);
}
#endif

#ifdef FL_ON_VARS
/* y = x^+: dx = -y^T dy y^T + (1 - x y) dy^T y y^T + y^T y dy^T (1 - y x) */
static void fv__pinv_back(fl_node *n, fl_var *dy) {
    fl_var *x = fv_saved(n, 0), *y = fv_saved(n, 1), *yt = fv__transposed(y), *t = fv__transposed(dy);
    fl_var *inside = fv_matmul(fv_matmul(yt, dy), yt);
    fl_var *left = fv_matmul(fv_matmul(t, y), yt), *right = fv_matmul(fv_matmul(yt, y), t);
    left = SUB(left, fv_matmul(x, fv_matmul(y, left)));
    right = SUB(right, fv_matmul(fv_matmul(right, y), x));
    fv_add_grad(n, 0, SUB(ADD(left, right), inside));
}
fl_var *fv_pinv(fl_var *x, double rcond) {
    return fv_record_args("pinv", fl_pinv(fv_value(x), rcond), fv__pinv_back, FV_IN(x),
                          FV_SAVE(x, FV_OUT), NULL, 0);
}
#endif

#endif
/* MIT licence: see LICENSE. */
