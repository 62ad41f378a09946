/* kernels/cpu/gemm/openblas.h - matrix products by OpenBLAS, where it is faster than the tiles of matmul.h

   With FL_USE_OPENBLAS fl__openblas_matmul takes the slots of matmul and linear. It computes products of f64,
   and of f32 if registers have at most four lanes, whose operands OpenBLAS can read in place. It delegates to
   matmul.h: other dtypes, small products, products bound by reading one operand, narrow results, and long
   sums for few results, which matmul.h splits. OpenBLAS's own threads stay off: blocks of the results, whose
   size depends on the shape alone, run on fl's thread pool. */
#ifndef FL_CPU_GEMM_OPENBLAS_H
#define FL_CPU_GEMM_OPENBLAS_H
#include "../force.h"
#include "matmul.h"

/* Takes over the slots; does nothing without FL_USE_OPENBLAS. */
FL_PRIVATE void fl__cpu_openblas_slots(fl_backend *cpu);
/* Whether OpenBLAS computes p. */
FL_PRIVATE bool fl__openblas_takes(const fl__product *p);

#endif /* FL_CPU_GEMM_OPENBLAS_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_OPENBLAS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_OPENBLAS_IMPL
#define FL_CPU_GEMM_OPENBLAS_IMPL
#include "../../../fl/records/linear.h"
#include "amx.h"
#ifdef FL_USE_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int n);

enum { FL__OPENBLAS_TASKS = 6 }; /* fewest tasks to aim at */

/* A product in blocks: task = (item * row_blocks + row block) * column_blocks + column block. */
typedef struct fl__openblas {
    fl__product of;
    int64_t rows, columns, row_blocks, column_blocks; /* per block; blocks per item */
} fl__openblas;

/* Cuts C into blocks, smaller ones if there are few; returns their number. */
static int64_t fl__openblas_cut(fl__openblas *p) {
    const fl__product *of = &p->of;
    p->rows = 1024, p->columns = 512;
    for (;;) {
        p->row_blocks = fl__ceil_div(of->m, p->rows);
        p->column_blocks = fl__ceil_div(of->n, p->columns);
        const int64_t tasks = of->items * p->row_blocks * p->column_blocks;
        if (tasks >= FL__OPENBLAS_TASKS || p->rows <= 32) return tasks;
        if (p->columns > 64) p->columns /= 2;
        else p->rows /= 2;
    }
}

/* Whether rows or columns are dense and all sizes fit 32 bits. */
static bool fl__openblas_reads(int64_t rows, int64_t columns, int64_t rs, int64_t cs) {
    int64_t ld = cs == 1 ? rs : cs, least = cs == 1 ? columns : rows;
    return (cs == 1 || rs == 1) && ld >= least && ld <= INT32_MAX && rows <= INT32_MAX &&
           columns <= INT32_MAX;
}

FL_PRIVATE bool fl__openblas_takes(const fl__product *p) {
    const int64_t lanes = fl__gemm_kernels(p->dtype)->lanes;
    const bool type = p->dtype == FL_F64 || (p->dtype == FL_F32 && lanes <= 4);
    const bool small = p->m * p->n <= FL__SMALL_PRODUCT && p->m * p->n * p->k <= FL__SMALL_PRODUCT;
    const bool skinny = p->m <= FL__SKINNY_ROWS || p->n == 1 ||
                        (p->csb != 1 && p->m <= 128 && p->n >= 2 * p->m);
    const bool narrow = 3 * p->n < 4 * lanes * fl__ceil_div(p->n, 2 * lanes); /* matmul.h computes C^T */
    return type && !small && !skinny && !fl__amx_takes(p) && !narrow && fl__cpu_forced() != FL__TILES &&
           fl__openblas_reads(p->m, p->k, p->rsa, p->csa) && fl__openblas_reads(p->k, p->n, p->rsb, p->csb);
}

static void fl__openblas_task(void *arg, int64_t begin, int64_t end) {
    const fl__openblas *p = arg;
    const fl__product *of = &p->of;
    const int64_t size = (int64_t)fl_dtype_size(of->dtype);
    const int k = (int)of->k, ldc = (int)of->n, lda = (int)(of->csa == 1 ? of->rsa : of->csa);
    const int ldb = (int)(of->csb == 1 ? of->rsb : of->csb);
    const int ta = of->csa == 1 ? CblasNoTrans : CblasTrans, tb = of->csb == 1 ? CblasNoTrans : CblasTrans;
    for (int64_t task = begin; task < end; task++) {
        const int64_t block = task / p->column_blocks, item = block / p->row_blocks;
        const int64_t i = block % p->row_blocks * p->rows, j = task % p->column_blocks * p->columns;
        const int m = (int)fl__min(p->rows, of->m - i), n = (int)fl__min(p->columns, of->n - j);
        const void *a = of->a + (fl__product_offset(of, of->a_stride, item) + i * of->rsa) * size;
        const void *b = of->b + (fl__product_offset(of, of->b_stride, item) + j * of->csb) * size;
        void *c = of->out + ((item * of->m + i) * of->n + j) * size;
        if (size == 4) cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
        else cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
    }
}

static bool fl__openblas_matmul(const fl_backend *self, const fl_call *c) {
    static bool single;
    fl__openblas p;
    (void)self;
    if (!fl__product_of(&p.of, c)) return fl_call_compose(c);
    const int64_t tasks = fl__openblas_takes(&p.of) ? fl__openblas_cut(&p) : 0;
    if (tasks == 0 || (tasks < FL__OPENBLAS_TASKS && p.of.k >= 4096)) return fl__cpu_product(&p.of, c);
    if (!__atomic_exchange_n(&single, true, __ATOMIC_RELAXED)) openblas_set_num_threads(1);
    if (!fl__product_make(&p.of, c)) return false;
    fl_parallel(tasks, 1, fl__openblas_task, &p);
    fl__product_epilogue(&p.of, p.of.m);
    return true;
}
#else
FL_PRIVATE bool fl__openblas_takes(const fl__product *p) {
    return (void)p, false;
}
#endif

FL_PRIVATE void fl__cpu_openblas_slots(fl_backend *cpu) {
#ifdef FL_USE_OPENBLAS
    cpu->op[FL_OP_matmul] = cpu->op[fl_op_linear] = fl__openblas_matmul;
#endif
    (void)cpu;
}

#endif
#endif
/* MIT licence: see LICENSE. */
