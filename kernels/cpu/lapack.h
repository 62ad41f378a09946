/* kernels/cpu/lapack.h - factorisations of batches of matrices by LAPACK; triangular systems

   LAPACK's matrices are column-major, fl's row-major, so some are transposed on the way in or out; the others
   are passed as they are, which LAPACK sees as the transpose. f32 is computed in f64 and rounded. The
   matrices of a batch run in parallel, each on one thread. Without FL_USE_LAPACK the slots fail. */
#ifndef FL_CPU_LAPACK_H
#define FL_CPU_LAPACK_H
#include "../../fl/records/factor.h"
#include "slots.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_lapack_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_LAPACK) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_LAPACK_IMPL
#define FL_CPU_LAPACK_IMPL
#include <limits.h>

enum { FL__MATRIX_TASKS = 64 };

typedef struct fl__factoring fl__factoring;
struct fl__factoring {
    const fl_call *c;
    int (*one)(const fl__factoring *f, int64_t i, double *scratch); /* returns LAPACK's info of matrix i */
    int64_t m, n, k;           /* rows, columns; the smaller of them, or the columns of b */
    int64_t work;              /* doubles of LAPACK's workspace, at the end of the scratch */
    int64_t scratch;           /* doubles that a task needs */
    int64_t batch, per_task;
    double *space;
    int64_t bad;               /* the first matrix with an info > 0, or -1; atomic */
};

/* ---- matrices in and out ---- */

static double fl__element(const fl_tensor *x, int64_t at) {
    const void *p = fl_data(x);
    return x->dtype == FL_F32 ? ((const float *)p)[at] : ((const double *)p)[at];
}

/* Copies matrix i of a dense tensor in, row-major or transposed. */
static void fl__matrix_in(const fl_tensor *x, int64_t i, int64_t rows, int64_t columns, bool transpose,
                          double *to) {
    int64_t at = i * rows * columns;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[transpose ? c * rows + r : r * columns + c] = fl__element(x, at++);
}

/* Copies a matrix back out; does nothing if y is NULL. */
static void fl__matrix_out(fl_tensor *y, int64_t i, int64_t rows, int64_t columns, bool transpose,
                           const double *from) {
    if (!y) return;
    int64_t at = i * rows * columns;
    float *f32 = y->dtype == FL_F32 ? fl_data(y) : NULL;
    double *f64 = fl_data(y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++, at++) {
            double v = from[transpose ? c * rows + r : r * columns + c];
            if (f32) f32[at] = (float)v;
            else f64[at] = v;
        }
}

/* ---- batches ---- */

static void fl__factor_task(void *arg, int64_t begin, int64_t end) {
    fl__factoring *f = arg;
    for (int64_t task = begin; task < end; task++) {
        double *scratch = f->space + task * f->scratch;
        int64_t i = task * f->per_task, last = fl__min(i + f->per_task, f->batch);
        for (; i < last; i++) {
            int64_t bad = __atomic_load_n(&f->bad, __ATOMIC_RELAXED);
            if (f->one(f, i, scratch) == 0) continue;
            while ((bad < 0 || i < bad) &&
                   !__atomic_compare_exchange_n(&f->bad, &bad, i, false, __ATOMIC_RELAXED,
                                                __ATOMIC_RELAXED)) {}
        }
    }
}

/* Runs all matrices; `refused` is the error text for LAPACK's info > 0. */
static bool fl__factor(fl__factoring *f, const char *refused) {
    const fl_call *c = f->c;
    const char *name = fl_op_get_info(c->op)->name;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    if (fl_numel(c->in[0]) == 0 || (c->n_in > 1 && fl_numel(c->in[1]) == 0)) return true;
    f->batch = fl_numel(c->in[0]) / (f->m * f->n);
    f->bad = -1;
    int64_t tasks = fl__min(f->batch, FL__MATRIX_TASKS);
    f->per_task = fl__ceil_div(f->batch, tasks);
    size_t bytes = (size_t)(tasks * f->scratch) * sizeof(double);
    if (f->m > INT_MAX || f->n > INT_MAX || f->k > INT_MAX || f->work > INT_MAX)
        return fl_fail("fl_%s: a matrix of %lld x %lld is too large for LAPACK", name,
                       (long long)f->m, (long long)f->n);
    if (!(f->space = fl_heap_alloc(bytes)))
        return fl_fail("fl_%s: out of memory: %zu bytes", name, bytes);
    fl_parallel(tasks, fl__ceil_div(FL__GRAIN, f->per_task * f->m * f->n), fl__factor_task, f);
    fl_heap_free(f->space);
    return f->bad < 0 || fl_fail("fl_%s: matrix %lld of %lld %s", name, (long long)f->bad,
                                 (long long)f->batch, refused);
}

static fl__factoring fl__factoring_of(const fl_call *c) {
    const fl_tensor *x = c->in[0];
    fl__factoring f = {.c = c, .m = x->shape[x->ndim - 2], .n = x->shape[x->ndim - 1]};
    f.k = c->n_in > 1 ? c->in[1]->shape[c->in[1]->ndim - 1] : fl__min(f.m, f.n);
    return f;
}

/* ---- triangular systems: rows of the solution by substitution ---- */

static int fl__triangle_one(const fl__factoring *f, int64_t i, double *scratch) {
    const fl_triangle_args *t = f->c->args;
    int64_t n = f->n, k = f->k;
    double *a = scratch, *x = a + n * n;
    fl__matrix_in(f->c->in[0], i, n, n, false, a);
    fl__matrix_in(f->c->in[1], i, n, k, false, x);
    for (int64_t step = 0; step < n; step++) {
        int64_t r = t->upper ? n - 1 - step : step;
        for (int64_t q = t->upper ? r + 1 : 0; q < (t->upper ? n : r); q++)
            for (int64_t j = 0; j < k; j++) x[r * k + j] -= a[r * n + q] * x[q * k + j];
        for (int64_t j = 0; j < k && !t->unit; j++) x[r * k + j] /= a[r * n + r];
    }
    fl__matrix_out(f->c->out[0], i, n, k, false, x);
    return 0;
}

static bool fl__cpu_solve_triangular(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__triangle_one;
    f.scratch = f.n * f.n + f.n * f.k;
    return fl__factor(&f, "");
}

#ifdef FL_USE_LAPACK
/* ---- LAPACK ---- */

void dgetrf_(const int *m, const int *n, double *a, const int *lda, int *pivot, int *info);
void dgesv_(const int *n, const int *k, double *a, const int *lda, int *pivot, double *b,
            const int *ldb, int *info);
void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t);
void dgeqrf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work,
             const int *size, int *info);
void dorgqr_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau,
             double *work, const int *size, int *info);
void dgesdd_(const char *job, const int *m, const int *n, double *a, const int *lda, double *s,
             double *u, const int *ldu, double *vt, const int *ldvt, double *work, const int *size,
             int *iwork, int *info, size_t);
void dsyevd_(const char *job, const char *uplo, const int *n, double *a, const int *lda, double *w,
             double *work, const int *size, int *iwork, const int *isize, int *info, size_t,
             size_t);

void dgeev_(const char *left, const char *right, const int *n, double *a, const int *lda, double *wr,
            double *wi, double *vl, const int *ldvl, double *vr, const int *ldvr, double *work,
            const int *size, int *info, size_t, size_t);

/* OpenBLAS's own threads would compete with the thread pool. */
static void fl__one_thread(void) {
#ifdef FL_USE_OPENBLAS
    static bool single;
    void openblas_set_num_threads(int n);
    if (!__atomic_exchange_n(&single, true, __ATOMIC_RELAXED)) openblas_set_num_threads(1);
#endif
}

static int fl__lu_one(const fl__factoring *f, int64_t i, double *scratch) {
    int m = (int)f->m, n = (int)f->n, info, *pivot = (int *)(void *)(scratch + f->m * f->n);
    int64_t *to = (int64_t *)fl_data(f->c->out[1]) + i * f->k;
    fl__matrix_in(f->c->in[0], i, m, n, true, scratch);
    dgetrf_(&m, &n, scratch, &m, pivot, &info); /* a pivot of 0 is not an error: the determinant is 0 */
    fl__matrix_out(f->c->out[0], i, m, n, true, scratch);
    for (int k = 0; k < f->k; k++) to[k] = pivot[k] - 1;
    if (!f->c->out[2]) return 0;
    int64_t *order = (int64_t *)fl_data(f->c->out[2]) + i * m;
    for (int r = 0; r < m; r++) order[r] = r;
    for (int r = 0; r < f->k; r++) {
        const int64_t row = order[r];
        order[r] = order[to[r]];
        order[to[r]] = row;
    }
    return 0;
}

static int fl__solve_one(const fl__factoring *f, int64_t i, double *scratch) {
    int n = (int)f->n, k = (int)f->k, info;
    double *b = scratch + f->n * f->n;
    fl__matrix_in(f->c->in[0], i, n, n, true, scratch);
    fl__matrix_in(f->c->in[1], i, n, k, true, b);
    dgesv_(&n, &k, scratch, &n, (int *)(void *)(b + f->n * f->k), b, &n, &info);
    fl__matrix_out(f->c->out[0], i, n, k, true, b);
    return info;
}

/* fl's lower triangle is LAPACK's upper one. */
static int fl__cholesky_one(const fl__factoring *f, int64_t i, double *scratch) {
    int n = (int)f->n, info;
    fl__matrix_in(f->c->in[0], i, n, n, false, scratch);
    dpotrf_("U", &n, scratch, &n, &info, 1);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = r + 1; c < n; c++) scratch[r * n + c] = 0;
    fl__matrix_out(f->c->out[0], i, n, n, false, scratch);
    return info;
}

static int fl__qr_one(const fl__factoring *f, int64_t i, double *scratch) {
    int m = (int)f->m, n = (int)f->n, k = (int)f->k, size = (int)f->work, info;
    double *r = scratch + f->m * f->n, *tau = r + f->k * f->n, *work = tau + f->k;
    fl__matrix_in(f->c->in[0], i, m, n, true, scratch);
    dgeqrf_(&m, &n, scratch, &m, tau, work, &size, &info);
    for (int64_t row = 0; row < k; row++)
        for (int64_t c = 0; c < n; c++) r[row * n + c] = c < row ? 0 : scratch[c * m + row];
    dorgqr_(&m, &k, &k, scratch, &m, tau, work, &size, &info);
    fl__matrix_out(f->c->out[0], i, m, k, true, scratch);
    fl__matrix_out(f->c->out[1], i, k, n, false, r);
    return info;
}

/* The iterations below may not terminate with an inf. */
static bool fl__all_finite(const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* LAPACK sees the transpose, v s u': its v is fl's vt, its u' fl's u, without transposing. */
static int fl__svd_one(const fl__factoring *f, int64_t i, double *scratch) {
    int m = (int)f->m, n = (int)f->n, k = (int)f->k, size = (int)f->work, info;
    fl_tensor *const *out = f->c->out;
    double *u = scratch + f->m * f->n, *vt = u + f->m * f->k, *s = vt + f->k * f->n;
    double *iwork = s + f->k, *work = iwork + 4 * f->k;
    fl__matrix_in(f->c->in[0], i, m, n, false, scratch);
    if (!fl__all_finite(scratch, f->m * f->n)) return 1;
    dgesdd_(out[0] || out[2] ? "S" : "N", &n, &m, scratch, &n, s, vt, &n, u, &k, work, &size,
            (int *)(void *)iwork, &info, 1);
    fl__matrix_out(out[0], i, m, k, false, u);
    fl__matrix_out(out[1], i, 1, k, false, s);
    fl__matrix_out(out[2], i, k, n, false, vt);
    return info;
}

/* The eigenvectors are LAPACK's columns, fl's rows: they are transposed. */
static int fl__eigh_one(const fl__factoring *f, int64_t i, double *scratch) {
    int n = (int)f->n, size = (int)f->work, isize = 5 * n + 3, info;
    double *w = scratch + f->n * f->n, *iwork = w + f->n, *work = iwork + 3 * f->n + 3;
    fl__matrix_in(f->c->in[0], i, n, n, false, scratch);
    if (!fl__all_finite(scratch, f->n * f->n)) return 1;
    dsyevd_(f->c->out[1] ? "V" : "N", "U", &n, scratch, &n, w, work, &size, (int *)(void *)iwork,
            &isize, &info, 1, 1);
    fl__matrix_out(f->c->out[0], i, 1, n, false, w);
    fl__matrix_out(f->c->out[1], i, n, n, true, scratch);
    return info;
}

/* By a Hessenberg form of the balanced matrix and shifted QR. For a conjugate pair LAPACK returns the real
   part of the first vector, then its imaginary part. */
static int fl__eig_one(const fl__factoring *f, int64_t i, double *scratch) {
    int n = (int)f->n, size = (int)f->work, info;
    fl_tensor *const *out = f->c->out;
    const int64_t elements = f->n * f->n;
    double *v = scratch + elements, *im = v + elements, *wr = im + elements, *wi = wr + n, *work = wi + n;
    const bool vectors = out[2] || out[3];
    fl__matrix_in(f->c->in[0], i, n, n, true, scratch);
    if (!fl__all_finite(scratch, elements)) return 1;
    dgeev_("N", vectors ? "V" : "N", &n, scratch, &n, wr, wi, v, &n, v, &n, work, &size, &info, 1, 1);
    for (int64_t k = 0; vectors && k < elements; k++) { /* scratch becomes the real part */
        const double w = wi[k / n];
        scratch[k] = w < 0 ? v[k - n] : v[k];
        im[k] = w > 0 ? v[k + n] : w < 0 ? -v[k] : 0;
    }
    fl__matrix_out(out[0], i, 1, n, false, wr);
    fl__matrix_out(out[1], i, 1, n, false, wi);
    fl__matrix_out(out[2], i, n, n, true, scratch);
    fl__matrix_out(out[3], i, n, n, true, im);
    return info;
}

static bool fl__cpu_lu_factor(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__lu_one;
    f.scratch = f.m * f.n + f.k;
    return fl__factor(&f, "");
}

static bool fl__cpu_solve(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__solve_one;
    f.scratch = f.n * f.n + f.n * f.k + f.n;
    return fl__factor(&f, "is singular");
}

static bool fl__cpu_cholesky(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__cholesky_one;
    f.scratch = f.n * f.n;
    return fl__factor(&f, "is not positive definite");
}

static bool fl__cpu_qr(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__qr_one;
    f.work = 64 * f.n;
    f.scratch = f.m * f.n + f.k * f.n + f.k + f.work;
    return fl__factor(&f, "has no QR");
}

static bool fl__cpu_svd(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__svd_one;
    f.work = 4 * f.k * f.k + 7 * f.k + 64 * (f.m + f.n);
    f.scratch = f.m * f.n + f.m * f.k + f.k * f.n + 5 * f.k + f.work;
    return fl__factor(&f, "did not converge, or has inf or NaN");
}

static bool fl__cpu_eigh(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__eigh_one;
    f.work = 2 * f.n * f.n + 70 * f.n + 1;
    f.scratch = f.n * f.n + 4 * f.n + 3 + f.work;
    return fl__factor(&f, "did not converge, or has inf or NaN");
}

static bool fl__cpu_eig(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl__one_thread();
    fl__factoring f = fl__factoring_of(c);
    f.one = fl__eig_one;
    f.work = 68 * f.n;
    f.scratch = 3 * f.n * f.n + 2 * f.n + f.work;
    return fl__factor(&f, "did not converge, or has inf or NaN");
}

#else
#define FL__WITHOUT_LAPACK(op) \
    static bool fl__cpu_##op(const fl_backend *self, const fl_call *c) { \
        (void)self, (void)c; \
        return fl_fail("fl_" #op ": built without LAPACK: install libopenblas-dev and rebuild"); \
    }
FL__WITHOUT_LAPACK(lu_factor)
FL__WITHOUT_LAPACK(solve)
FL__WITHOUT_LAPACK(cholesky)
FL__WITHOUT_LAPACK(qr)
FL__WITHOUT_LAPACK(svd)
FL__WITHOUT_LAPACK(eigh)
FL__WITHOUT_LAPACK(eig)
#undef FL__WITHOUT_LAPACK
#endif

FL_PRIVATE void fl__cpu_lapack_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_lu_factor, fl__cpu_lu_factor, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_solve, fl__cpu_solve, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_solve_triangular, fl__cpu_solve_triangular, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_cholesky, fl__cpu_cholesky, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_qr, fl__cpu_qr, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_svd, fl__cpu_svd, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_eigh, fl__cpu_eigh, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cpu, fl_op_eig, fl__cpu_eig, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
