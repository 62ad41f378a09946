/* kernels/cuda/lt.h - matrix products and linear layers on backend cuda by cuBLASLt

   Overrides the slots of matmul and linear. Operands that the library cannot read (neither rows nor columns
   contiguous), integers, and all calls without the library use the slot that this one replaced: our own
   kernel. The library is column-major: row-major y = a b is its y^T = b^T a^T, with bias and activation as a
   linear layer has them. One batch dim with strides is passed to the library, others are a loop.

   f32 is computed in f32, unless fl_matmul_precision permits TF32. The library's first choice for a shape,
   or with FL_CUDA_TUNE (plan.h) the fastest of a few, is cached (plan.h); split sums are added in f32 in a
   fixed order: one GPU model gives the same bits in every run. */
#ifndef FL_CUDA_LT_H
#define FL_CUDA_LT_H
#include "../../fl_backend.h"
#include "../../fl/tensor/copy.h"
#include "../../fl/records/linear.h"
/* Overrides slots of the table. */
FL_PRIVATE void fl__cuda_lt_slots(fl_backend *cuda);
/* Runs our own slot; if it supports wide dtypes only, on widened operands. */
FL_PRIVATE bool fl__cuda_widely(fl_slot own, const fl_backend *self, const fl_call *c);
#endif

#if defined(FL_IMPL_ONLY_CUDA_LT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_LT_IMPL
#define FL_CUDA_LT_IMPL
#include "../linear_grad.h"
#include "backend.h"
#include "library.h"
#include "lt_calls.h"
#include "plan.h"
#include <string.h>

enum { FL__LT_PLANS = 2048, FL__LT_MOST = 64 /* products per call */, FL__LT_CHOICES = 8 };
static const size_t fl__lt_workspace = (size_t)32 << 20; /* NVIDIA's recommendation for Hopper */

/* Cache key of a plan, compared bytewise. Operands a, b and d as the library sees them: d = op(a) op(b). */
typedef struct fl__lt_shape {
    int64_t device, m, n, k, ld[3], batch, step[3];
    int32_t type, type_d, compute, epilogue, align, transpose[3]; /* no padding */
} fl__lt_shape;

typedef struct fl__lt_plan {
    fl__cuda_plan plan;
    fl__lt_shape of;
    fl__lt_desc op;
    fl__lt_layout layout[3];
    fl__lt_algo algo;
    size_t workspace;
} fl__lt_plan;

/* A product with its batch dims, of which the last is passed to the library. */
typedef struct fl__lt_product {
    fl__lt_shape shape;
    const fl_call *call;
    const void *bias;
    flk_pass batch; /* a, b, d */
} fl__lt_product;

static fl_slot fl__lt_own_matmul;

/* ---- the library ---- */

static struct {
    FL__LT_CALLS(FL__CUDA_FIELD)
} fl__lt;

static const char *fl__lt_open(void **handle) {
    fl__lt_handle h;
    const fl__lt_status s = fl__lt.cublasLtCreate(&h);
    if (s) return fl__lt.cublasLtGetStatusString(s);
    *handle = h;
    return NULL;
}

static fl__cuda_library fl__lt_library = {.file = "libcublasLt.so.13",
                                          .instead = "matrix products use our own slower kernels",
                                          .functions = &fl__lt,
                                          .name = {FL__LT_CALLS(FL__CUDA_NAME)},
                                          .opened_by = "cublasLtCreate",
                                          .open = fl__lt_open};

/* ---- plans ---- */

static void fl__lt_forget(void *plan) {
    fl__lt_plan *p = plan;
    if (p->op) fl__lt.cublasLtMatmulDescDestroy(p->op);
    p->op = NULL;
    for (int i = 0; i < 3; i++) {
        if (p->layout[i]) fl__lt.cublasLtMatrixLayoutDestroy(p->layout[i]);
        p->layout[i] = NULL;
    }
}

static bool fl__lt_make_layout(fl__lt_plan *p, int i) {
    const fl__lt_shape *s = &p->of;
    const uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    const uint64_t size[3][2] = {{m, k}, {k, n}, {m, n}};
    const int crossed = s->transpose[i] != 0;
    const int32_t batch = (int32_t)s->batch;
    return !fl__lt.cublasLtMatrixLayoutCreate(&p->layout[i], (unsigned)(i < 2 ? s->type : s->type_d),
                                              size[i][crossed], size[i][!crossed], s->ld[i]) &&
           !fl__lt.cublasLtMatrixLayoutSetAttribute(p->layout[i], FL__LT_BATCH_COUNT, &batch, sizeof batch) &&
           !fl__lt.cublasLtMatrixLayoutSetAttribute(p->layout[i], FL__LT_BATCH_OFFSET, &s->step[i],
                                                    sizeof s->step[i]);
}

static bool fl__lt_set(const fl__lt_plan *p, unsigned attribute, const void *value, size_t bytes) {
    return !fl__lt.cublasLtMatmulDescSetAttribute(p->op, attribute, value, bytes);
}

static bool fl__lt_make_op(fl__lt_plan *p, const void *const *bias) {
    const fl__lt_shape *s = &p->of;
    const unsigned scale = s->type == FL__LT_F64 ? FL__LT_F64 : FL__LT_F32;
    return !fl__lt.cublasLtMatmulDescCreate(&p->op, (unsigned)s->compute, scale) &&
           fl__lt_set(p, FL__LT_TRANSA, &s->transpose[0], sizeof(int32_t)) &&
           fl__lt_set(p, FL__LT_TRANSB, &s->transpose[1], sizeof(int32_t)) &&
           fl__lt_set(p, FL__LT_EPILOGUE, &s->epilogue, sizeof(int32_t)) &&
           (!*bias || fl__lt_set(p, FL__LT_BIAS_POINTER, bias, sizeof *bias));
}

/* Applies the library's choice number `at`. Returns false if none. */
static bool fl__lt_choose(fl__lt_plan *p) {
    const uint32_t reduction = FL__LT_REDUCE_IN_F32;
    const int at = p->plan.at;
    fl__lt_pref pref = NULL;
    fl__lt_choice choice[FL__LT_CHOICES];
    int n = 0;
    if (at >= FL__LT_CHOICES || fl__lt.cublasLtMatmulPreferenceCreate(&pref)) return false;
    bool ok = !fl__lt.cublasLtMatmulPreferenceSetAttribute(pref, FL__LT_PREF_WORKSPACE, &fl__lt_workspace,
                                                           sizeof fl__lt_workspace) &&
              !fl__lt.cublasLtMatmulPreferenceSetAttribute(pref, FL__LT_PREF_REDUCTION, &reduction,
                                                           sizeof reduction);
    for (unsigned a = FL__LT_PREF_ALIGN_A; a <= FL__LT_PREF_ALIGN_D && ok; a++)
        ok = !fl__lt.cublasLtMatmulPreferenceSetAttribute(pref, a, &p->of.align, sizeof p->of.align);
    const fl__lt_layout *l = p->layout;
    ok = ok && !fl__lt.cublasLtMatmulAlgoGetHeuristic(fl__lt_library.handle[p->of.device], p->op, l[0], l[1],
                                                      l[2], l[2], pref, at + 1, choice, &n);
    fl__lt.cublasLtMatmulPreferenceDestroy(pref);
    if (!ok || n <= at || choice[at].state) return false;
    p->algo = choice[at].algo;
    p->workspace = choice[at].workspaceSize;
    return true;
}

static bool fl__lt_make(void *plan, void *product) {
    bool ok = fl__lt_make_op(plan, &((fl__lt_product *)product)->bias);
    for (int i = 0; i < 3 && ok; i++) ok = fl__lt_make_layout(plan, i);
    return ok && fl__lt_choose(plan);
}

/* ---- from calls to shapes ---- */

/* Describes the row-major matrix [rows, columns] as the library's [columns, rows], or its transpose. Returns
   false if neither rows nor columns are contiguous. */
static bool fl__lt_reads(int64_t rows, int64_t columns, int64_t row, int64_t column, int32_t *transpose,
                         int64_t *ld) {
    *transpose = 0;
    *ld = rows == 1 ? columns : row;
    if ((column == 1 || columns == 1) && *ld >= columns) return true;
    *transpose = FL__LT_TRANSPOSE;
    *ld = columns == 1 ? rows : column;
    return (row == 1 || rows == 1) && *ld >= rows;
}

static int32_t fl__lt_type_of(fl_dtype d) {
    return d == FL_F32 ? FL__LT_F32 : d == FL_F64 ? FL__LT_F64 : d == FL_F16 ? FL__LT_F16 : FL__LT_BF16;
}

/* Describes the batch, whose dims are merged where all operands are contiguous, the longest one last. Returns
   false if it is too large. */
static bool fl__lt_batch(fl__lt_product *p, const fl_tensor *a, const fl_tensor *b, const fl_tensor *d) {
    fl_tensor part[3] = {*b, *a, *d}, *const t[3] = {&part[0], &part[1], &part[2]};
    flk_pass *of = &p->batch;
    for (int k = 0; k < 3; k++) part[k].ndim = d->ndim - 2;
    fl__cuda_pass(of, p->call->op, 3, t, 2, -1, true);
    const int last = of->ndim - 1;
    int longest = 0;
    for (int i = 1; i <= last; i++)
        if (of->shape[i] > of->shape[longest]) longest = i;
    for (int k = -1; k < 3 && last > 0; k++) {
        int64_t *v = k < 0 ? of->shape : of->t[k].stride;
        const int64_t was = v[last];
        v[last] = v[longest];
        v[longest] = was;
    }
    p->shape.batch = last < 0 ? 1 : of->shape[last];
    for (int k = 0; k < 3; k++) p->shape.step[k] = last < 0 ? 0 : of->t[k].stride[last];
    return of->n / p->shape.batch <= FL__LT_MOST && p->shape.batch <= INT32_MAX;
}

/* Addresses of the operands of library call i of a batch; false if there are fewer. */
static bool fl__lt_place(const fl__lt_product *p, int64_t i, char *at[3]) {
    const flk_pass *of = &p->batch;
    if (i >= of->n / p->shape.batch) return false;
    for (int k = 0; k < 3; k++) at[k] = of->t[k].p;
    for (int d = of->ndim - 2; d >= 0; i /= of->shape[d--])
        for (int k = 0; k < 3; k++)
            at[k] += i % of->shape[d] * of->t[k].stride[d] * (int64_t)fl_dtype_size((fl_dtype)of->t[k].dtype);
    return true;
}

/* The largest power of two up to 256 that divides all addresses. */
static int32_t fl__lt_alignment(const fl__lt_product *p) {
    uintptr_t all = (uintptr_t)p->bias | 256;
    char *at[3];
    for (int64_t i = 0; fl__lt_place(p, i, at); i++)
        all |= (uintptr_t)at[0] | (uintptr_t)at[1] | (uintptr_t)at[2];
    return (int32_t)(all & -all);
}

/* Describes y = a b, or a b^T of a linear layer. Returns false if the library does not support it. y has no
   storage yet; the batch follows. */
static bool fl__lt_product_of(const fl_call *c, const fl_tensor *y, fl__lt_product *p) {
    const fl_tensor *a = c->in[0], *b = c->in[1];
    const int nd = y->ndim, b_row = c->op == FL_OP_matmul ? nd - 2 : 1,
              b_column = c->op == FL_OP_matmul ? nd - 1 : 0;
    fl__lt_shape *s = &p->shape;
    memset(p, 0, sizeof *p);
    p->call = c;
    s->device = flk_device();
    s->m = y->shape[nd - 1], s->n = y->shape[nd - 2], s->k = a->shape[nd - 1];
    if (!fl_dtype_is_float(y->dtype) || y->dtype >= FL_DTYPE_COUNT || !fl_numel(y) || !s->k) return false;
    if ((y->stride[nd - 1] != 1 && s->m > 1) || (s->n > 1 && y->stride[nd - 2] < s->m)) return false;
    if (!fl__lt_reads(s->k, s->m, b->stride[b_row], b->stride[b_column], &s->transpose[0], &s->ld[0]) ||
        !fl__lt_reads(s->n, s->k, a->stride[nd - 2], a->stride[nd - 1], &s->transpose[1], &s->ld[1]))
        return false;
    s->ld[2] = s->n > 1 ? y->stride[nd - 2] : s->m;
    s->type = fl__lt_type_of(a->dtype);
    s->type_d = fl__lt_type_of(y->dtype);
    const bool tf32 = a->dtype == FL_F32 && fl_matmul_precision() == FL_BF16;
    s->compute = y->dtype == FL_F64 ? FL__LT_COMPUTE_F64 : tf32 ? FL__LT_COMPUTE_TF32 : FL__LT_COMPUTE_F32;
    s->epilogue = FL__LT_NO_EPILOGUE;
    return true;
}

/* ---- running ---- */

static bool fl__lt_start(void *entry, void *product) {
    const fl__lt_plan *plan = entry;
    const fl__lt_product *p = product;
    const fl__lt_layout *l = plan->layout;
    const float numbers[2] = {1, 0};
    const double numbers_f64[2] = {1, 0};
    const bool f64 = plan->of.type == FL__LT_F64;
    const void *one = f64 ? (const void *)numbers_f64 : numbers;
    const void *zero = f64 ? (const void *)&numbers_f64[1] : &numbers[1];
    const char *name = fl_op_get_info(p->call->op)->name;
    fl_buffer *work = NULL;
    fl__lt_status s = 0;
    char *at[3];
    if (p->bias && !fl__lt_set(plan, FL__LT_BIAS_POINTER, &p->bias, sizeof p->bias))
        return fl_fail("fl_%s: cuda: cuBLASLt rejects the bias", name);
    if (plan->workspace && !(work = fl__cuda_scratch(p->call, plan->workspace))) return false;
    for (int64_t i = 0; !s && fl__lt_place(p, i, at); i++)
        s = fl__lt.cublasLtMatmul(fl__lt_library.handle[plan->of.device], plan->op, one, at[0], l[0], at[1],
                                  l[1], zero, at[2], l[2], at[2], l[2], &plan->algo, work ? work->ptr : NULL,
                                  plan->workspace, (fl__lt_stream)flk_stream_now());
    fl_buffer_drop(work);
    return !s || fl_fail("fl_%s: cuda: cublasLtMatmul: %s", name, fl__lt.cublasLtGetStatusString(s));
}

static fl__lt_plan fl__lt_entries[FL__LT_PLANS];
static fl__cuda_plans fl__lt_plans = {PTHREAD_MUTEX_INITIALIZER, fl__lt_entries, FL__LT_PLANS,
                                      sizeof(fl__lt_plan), sizeof(fl__lt_shape), fl__lt_make,
                                      fl__lt_start, fl__lt_forget, &fl__lt.cublasLtGetVersion};

/* Allocates y and computes the product if the library supports it, and sets *done. */
static bool fl__lt_run(const fl_call *c, fl_tensor *y, int32_t epilogue, const fl_tensor *bias, bool *done) {
    fl__lt_product p;
    *done = false;
    if (!fl__lt_product_of(c, y, &p) || !fl__cuda_load(&fl__lt_library)) return true;
    if (!fl_out_make(y)) return false;
    if (!fl__lt_batch(&p, c->in[0], c->in[1], y)) return true;
    p.bias = bias ? fl_data(bias) : NULL;
    p.shape.epilogue = epilogue;
    p.shape.align = fl__lt_alignment(&p);
    return fl__cuda_plan_run(&fl__lt_plans, &p.shape, c, &p, done);
}

FL_PRIVATE bool fl__cuda_widely(fl_slot own, const fl_backend *self, const fl_call *c) {
    return fl_is_narrow(c->out[0]) || fl_is_narrow(c->in[0]) ? fl__call_widen(c) : own(self, c);
}

FL_CUDA_SLOT(fl__lt_matmul) {
    bool done;
    if (!fl__lt_run(c, c->out[0], FL__LT_NO_EPILOGUE, NULL, &done)) return false;
    return done || fl__cuda_widely(fl__lt_own_matmul, self, c);
}

/* The epilogue that computes act; 0 if none. Its gelu is the tanh approximation. */
static int32_t fl__lt_epilogue_of(fl_op act) {
    return act == FL_OP_NONE        ? FL__LT_NO_EPILOGUE
           : act == FL_OP_relu      ? FL__LT_RELU
           : act == FL_OP_gelu_tanh ? FL__LT_GELU_TANH
                                    : 0;
}

/* x [m, k], w [n, k], bias [n] -> act(z), z = x w^T + bias. Activations without an epilogue are computed
   from z, in place, or from a z of the wide dtype, so that rounding occurs once. */
FL_CUDA_SLOT(fl__lt_linear) {
    const fl_op act = ((const fl_linear_args *)c->args)->act;
    fl_tensor *bias = c->n_in > 2 ? c->in[2] : NULL, *y = c->out[0], *z = c->n_out > 1 ? c->out[1] : NULL;
    const bool fused = !z && fl__lt_epilogue_of(act), ours = !z && !fused;
    fl_scope s = fl_scope_begin();
    int32_t epilogue = fused ? fl__lt_epilogue_of(act) : FL__LT_NO_EPILOGUE;
    bool done = false, ok = true;
    if (ours) {
        z = fl_out_on(y->backend, fl_shape_of(y), fl_dtype_wide(y->dtype));
        if (bias) bias = fl_cast(bias, fl_dtype_wide(y->dtype));
        ok = z && (bias || c->n_in < 3);
    }
    if (bias) epilogue = (epilogue == FL__LT_NO_EPILOGUE ? 0 : epilogue) | FL__LT_BIAS;
    const bool takes = y->dtype != FL_F64 && (!bias || bias->shape[0] == 1 || bias->stride[0] == 1);
    if (ok && takes) ok = fl__lt_run(c, fused ? y : z, epilogue, bias, &done);
    fl_call rest = {.op = act == FL_OP_NONE ? FL_OP_copy : act, .n_out = 1, .n_in = 1, .out = {y}, .in = {z}};
    if (ok && done && !fused) ok = self->op[rest.op](self, &rest); /* y stays mapped for the caller */
    if (ok && !done) ok = fl_call_compose(c);
    if (ours && z && z->buffer) fl_buffer_unmap(z->buffer); /* as fl_out_make mapped it */
    fl_scope_end(&s);
    return ok;
}

/* db is fused into the product for dw: for the library it is a bias gradient. */
FL_CUDA_SLOT(fl__lt_linear_grad) {
    fl_tensor *dw = c->out[1], *db = c->out[2];
    fl__linear_grad part;
    bool done = false;
    fl__linear_grad_parts(&part, c);
    if ((c->out[0] && !fl__lt_matmul(self, &part.dx)) || (db && !fl_out_make(db))) return false;
    const bool both = dw && db && dw->dtype != FL_F64;
    if (both && !fl__lt_run(&part.dw, dw, FL__LT_SUMS_OF_B, db, &done)) return false;
    if (done) return true;
    return (!dw || fl__lt_matmul(self, &part.dw)) &&
           (!db || fl__cuda_widely(self->op[FL_OP_sum], self, &part.db));
}

FL_PRIVATE void fl__cuda_lt_slots(fl_backend *cuda) {
    fl__lt_own_matmul = cuda->op[FL_OP_matmul];
    fl_backend_set(cuda, FL_OP_matmul, fl__lt_matmul, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_linear, fl__lt_linear, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_linear_grad, fl__lt_linear_grad, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
