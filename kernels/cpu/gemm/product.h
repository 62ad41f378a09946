/* kernels/cpu/gemm/product.h - operands and epilogue of a matmul or linear call, for matmul.h, amx.h,
   openblas.h */
#ifndef FL_CPU_GEMM_PRODUCT_H
#define FL_CPU_GEMM_PRODUCT_H
#include "../../../fl/records/linear.h"
#include "../common.h"

/* The epilogue of an element c of C after its sum: z = c + bias[j], stored too if z is not NULL, then c =
   act(z). add and act may be NULL. */
typedef struct fl__epilogue {
    fl__loop add, act;
    size_t size;
    const char *bias;
    char *z; /* NULL, or the pre-activations, rows n apart */
    int64_t n;
} fl__epilogue;

/* A matmul or linear call: `items` products C = A B of m x k by k x n each. Strides are in elements. */
typedef struct fl__product {
    fl_dtype dtype;
    int64_t m, n, k, items;
    const char *a; /* of the first item */
    int64_t rsa, csa;
    const char *b;
    int64_t rsb, csb;
    char *out; /* [items][m][n] of C */
    int ndim;  /* of the batch */
    const int64_t *shape, *a_stride, *b_stride;
    bool tight; /* an operand must not be read past its end */
    const fl_tensor *weight; /* B of a linear layer if it is frozen, else NULL */
    bool has_epilogue;
    fl__epilogue epilogue; /* if has_epilogue; for one item */
    char *sums; /* NULL, or where to store the sums of A's rows, if the kernel that runs gets them for free */
    bool summed; /* sums has been written */
} fl__product;
/* Fills p from a call, without `out` and `z`, which fl__product_make allocates (false after fl_fail).
   fl__product_of returns false if the bias is not dense: such calls are composed. */
FL_PRIVATE bool fl__product_of(fl__product *p, const fl_call *c);
FL_PRIVATE bool fl__product_make(fl__product *p, const fl_call *c);
/* The offset of batch item `item` of an operand, in elements. */
FL_PRIVATE int64_t fl__product_offset(const fl__product *p, const int64_t *stride, int64_t item);
/* Runs the epilogue on the first `rows` rows of C. */
FL_PRIVATE void fl__product_epilogue(fl__product *p, int64_t rows);
/* Runs the epilogue on rows i .. i + m, columns j .. j + n of C; c points to the first of them. */
FL_PRIVATE void fl__gemm_epilogue(const fl__epilogue *f, char *c, int64_t ldc, int64_t i, int64_t m,
                                  int64_t j, int64_t n);
/* The same for f32 sums c, then rounds them to f16 or bf16: to C, whose first row is at y, and z. */
FL_PRIVATE void fl__gemm_round(const fl__epilogue *f, fl__loop narrow, float *c, int64_t ldc, uint16_t *y,
                               int64_t i, int64_t m, int64_t j, int64_t n);

#define FL__SMALL_PRODUCT (64 * 64 * 64) /* m n k up to which packing and threads do not pay */
enum { FL__SKINNY_ROWS = 8 };            /* rows up to which a product is bound by reading B */

#endif /* FL_CPU_GEMM_PRODUCT_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_PRODUCT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_PRODUCT_IMPL
#define FL_CPU_GEMM_PRODUCT_IMPL
#include "../../../fl_backend.h"
#include <string.h>

FL_PRIVATE void fl__gemm_epilogue(const fl__epilogue *f, char *c, int64_t ldc, int64_t i, int64_t m,
                                  int64_t j, int64_t n) {
    const int64_t size = (int64_t)f->size;
    for (int64_t end = i + m; i < end; i++, c += ldc * size) {
        char *z = f->z ? f->z + (i * f->n + j) * size : c;
        if (f->add) f->add((void *[]){z, c, (char *)(uintptr_t)f->bias + j * size}, n, NULL);
        else if (z != c) memcpy(z, c, (size_t)(n * size));
        if (f->act) f->act((void *[]){c, z}, n, NULL);
        else if (f->add && z != c) memcpy(c, z, (size_t)(n * size));
    }
}

FL_PRIVATE int64_t fl__product_offset(const fl__product *p, const int64_t *stride, int64_t item) {
    int64_t at = 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
        at += item % p->shape[d] * stride[d];
        item /= p->shape[d];
    }
    return at;
}

FL_PRIVATE void fl__gemm_round(const fl__epilogue *f, fl__loop narrow, float *c, int64_t ldc, uint16_t *y,
                               int64_t i, int64_t m, int64_t j, int64_t n) {
    uint16_t *z = (uint16_t *)(void *)f->z;
    for (int64_t end = i + m; i < end; i++, c += ldc) {
        const int64_t at = i * f->n + j;
        if (f->add) f->add((void *[]){c, c, (char *)(uintptr_t)f->bias + j * (int64_t)sizeof *c}, n, NULL);
        if (z) narrow((void *[]){z + at, c}, n, NULL);
        if (f->act) f->act((void *[]){c, c}, n, NULL);
        narrow((void *[]){y + at, c}, n, NULL);
    }
}

static void fl__product_epilogue_task(void *arg, int64_t begin, int64_t end) {
    const fl__product *p = arg;
    const fl__epilogue *f = &p->epilogue;
    fl__gemm_epilogue(f, p->out + begin * f->n * (int64_t)f->size, f->n, begin, end - begin, 0, f->n);
}

FL_PRIVATE void fl__product_epilogue(fl__product *p, int64_t rows) {
    if (p->has_epilogue) fl_parallel(rows, fl__ceil_div(1 << 14, p->n), fl__product_epilogue_task, p);
}

/* Assigned field by field: clearing a struct of this size takes longer than the rest of a small product. */
FL_PRIVATE bool fl__product_of(fl__product *p, const fl_call *c) {
    const fl_tensor *y = c->out[0], *a = c->in[0], *b = c->in[1], *bias = c->n_in > 2 ? c->in[2] : NULL;
    const int nd = y->ndim, linear = c->op == fl_op_linear; /* w is [n][k] */
    const fl_dtype wide = fl_dtype_wide(y->dtype);
    const fl_op act = linear ? ((const fl_linear_args *)c->args)->act : FL_OP_NONE;
    p->dtype = y->dtype, p->ndim = nd - 2;
    p->m = y->shape[nd - 2], p->n = y->shape[nd - 1], p->k = a->shape[nd - 1], p->items = 1;
    for (int i = 0; i < nd - 2; i++) p->items *= y->shape[i];
    p->a = fl_data(a), p->rsa = a->stride[nd - 2], p->csa = a->stride[nd - 1];
    p->b = fl_data(b), p->rsb = b->stride[nd - 2 + linear], p->csb = b->stride[nd - 1 - linear];
    p->shape = y->shape, p->a_stride = a->stride, p->b_stride = b->stride;
    p->tight = a->buffer->tight || b->buffer->tight;
    p->sums = NULL, p->summed = false;
    p->weight = linear && fl_buffer_is_frozen(b->buffer) ? b : NULL;
    p->epilogue = (fl__epilogue){.size = fl_dtype_size(wide), .n = p->n, .bias = bias ? fl_data(bias) : NULL};
    if (bias) p->epilogue.add = fl__formula_loop(FL_OP_add, wide);
    if (act != FL_OP_NONE) p->epilogue.act = fl__formula_loop(act, wide);
    p->has_epilogue = bias || act != FL_OP_NONE || c->n_out > 1;
    return !bias || bias->shape[0] == 1 || bias->stride[0] == 1;
}

FL_PRIVATE bool fl__product_make(fl__product *p, const fl_call *c) {
    for (int i = 0; i < c->n_out; i++)
        if (!fl_out_make(c->out[i])) return false;
    p->out = fl_data(c->out[0]);
    p->epilogue.z = c->n_out > 1 ? fl_data(c->out[1]) : NULL;
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
