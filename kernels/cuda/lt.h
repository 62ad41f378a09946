/* kernels/cuda/lt.h - matrix products and linear layers on backend cuda by cuBLASLt

   Overrides the slots of matmul and linear. Operands that the library cannot read (neither rows nor columns
   contiguous), integers, and all calls without the library use the slot that this one replaced: our own
   kernel. The library is column-major: row-major y = a b is its y^T = b^T a^T, with bias and activation as a
   linear layer has them. One batch dim with strides is passed to the library, others are a loop.

   f32 is computed in f32, unless fl_matmul_precision permits TF32. The library's first choice for a shape,
   or with FL_CUDA_TUNE (tune.h) the fastest of a few, is cached in a table of fixed size; split sums are
   added in f32 in a fixed order: one GPU model gives the same bits in every run. */
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
#include "tune.h"
#include <pthread.h>
#include <string.h>

enum { FL__LT_PLANS = 2048, FL__LT_MOST = 64 /* products per call */, FL__LT_CHOICES = 8 };
static const size_t fl__lt_workspace = (size_t)32 << 20; /* NVIDIA's recommendation for Hopper */

/* Cache key of a plan, compared bytewise. Operands as the library sees them: d = op(a) op(b). */
typedef struct fl__lt_shape {
    int64_t m, n, k, lda, ldb, ldd, batch, step_a, step_b, step_d;
    int32_t type, type_d, compute, epilogue, align, transpose_a, transpose_b;
    int32_t device; /* no padding: keys are compared bytewise */
} fl__lt_shape;

typedef struct fl__lt_plan {
    fl__cuda_plan entry;
    fl__lt_shape of;
    bool can, fresh; /* fresh: as in dnn.h */
    int at;          /* index among the library's choices */
    fl__lt_desc op;
    fl__lt_layout a, b, d;
    fl__lt_algo algo;
    size_t workspace;
} fl__lt_plan;

static struct {
    pthread_mutex_t lock;
    int state; /* 0: not loaded yet, 1: loaded, -1: missing */
    fl__lt_handle handle[FLK_DEVICES]; /* NULL: not created yet */
    struct {
#define FL__LT_FIELD(result, name, args) result(*name) args;
        FL__LT_CALLS(FL__LT_FIELD)
#undef FL__LT_FIELD
    } call;
} fl__lt = {.lock = PTHREAD_MUTEX_INITIALIZER};
static fl__lt_plan fl__lt_entries[FL__LT_PLANS];
static const fl__cuda_plans fl__lt_table = {fl__lt_entries, FL__LT_PLANS, sizeof(fl__lt_plan),
                                            sizeof(fl__lt_shape)};
static fl_slot fl__lt_own_matmul;

/* ---- the library ---- */

static void fl__lt_look(void) {
#define FL__LT_NAME(result, name, args) #name,
    static const char *const names[] = {FL__LT_CALLS(FL__LT_NAME)};
#undef FL__LT_NAME
    const char *instead = "matrix products use our own slower kernels";
    if (!fl__lt.state)
        fl__lt.state = fl__cuda_library("libcublasLt.so.13", instead, names, &fl__lt.call,
                                        (int)(sizeof names / sizeof *names)) ? 1 : -1;
    if (fl__lt.state < 0) return;
    const fl__lt_status s = fl__lt.call.cublasLtCreate(&fl__lt.handle[flk_device()]);
    if (!s) return;
    fl__lt.state = -1;
    fl_log_message(FL_LOG_WARN, "cuda: cublasLtCreate: %s: %s", fl__lt.call.cublasLtGetStatusString(s),
                   instead);
}

/* Loads the library for the current device. The lock is held. */
static bool fl__lt_there(void) {
    if (fl__lt.state >= 0 && !fl__lt.handle[flk_device()]) fl__lt_look();
    return fl__lt.state > 0;
}

/* ---- plans; the lock is held in all functions ---- */

static void fl__lt_forget(fl__lt_plan *p) {
    if (p->op) fl__lt.call.cublasLtMatmulDescDestroy(p->op);
    if (p->a) fl__lt.call.cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) fl__lt.call.cublasLtMatrixLayoutDestroy(p->b);
    if (p->d) fl__lt.call.cublasLtMatrixLayoutDestroy(p->d);
}

static bool fl__lt_make_layout(fl__lt_layout *to, const fl__lt_shape *s, int32_t type, bool transposed,
                               int64_t rows, int64_t columns, int64_t ld, int64_t step) {
    const int32_t batch = (int32_t)s->batch;
    if (transposed) {
        const int64_t n = rows;
        rows = columns;
        columns = n;
    }
    return !fl__lt.call.cublasLtMatrixLayoutCreate(to, (unsigned)type, (uint64_t)rows, (uint64_t)columns,
                                                   ld) &&
           !fl__lt.call.cublasLtMatrixLayoutSetAttribute(*to, FL__LT_BATCH_COUNT, &batch, sizeof batch) &&
           !fl__lt.call.cublasLtMatrixLayoutSetAttribute(*to, FL__LT_BATCH_OFFSET, &step, sizeof step);
}

static bool fl__lt_make_op(fl__lt_plan *p, const void *bias) {
    const fl__lt_shape *s = &p->of;
    const unsigned scale = s->type == FL__LT_F64 ? FL__LT_F64 : FL__LT_F32;
    bool ok = !fl__lt.call.cublasLtMatmulDescCreate(&p->op, (unsigned)s->compute, scale);
    const struct {
        unsigned attribute;
        int32_t value;
    } set[] = {
        {FL__LT_TRANSA, s->transpose_a}, {FL__LT_TRANSB, s->transpose_b}, {FL__LT_EPILOGUE, s->epilogue}};
    for (int i = 0; i < 3 && ok; i++)
        ok = !fl__lt.call.cublasLtMatmulDescSetAttribute(p->op, set[i].attribute, &set[i].value,
                                                         sizeof(int32_t));
    return ok && (!bias || !fl__lt.call.cublasLtMatmulDescSetAttribute(p->op, FL__LT_BIAS_POINTER, &bias,
                                                                       sizeof bias));
}

/* Applies the library's choice p->at. Returns false if none. */
static bool fl__lt_choose(fl__lt_plan *p) {
    const uint32_t reduction = FL__LT_REDUCE_IN_F32, align = (uint32_t)p->of.align;
    fl__lt_pref want = NULL;
    fl__lt_choice choice[FL__LT_CHOICES];
    int n = 0;
    bool ok = p->at < FL__LT_CHOICES && !fl__lt.call.cublasLtMatmulPreferenceCreate(&want);
    ok = ok && !fl__lt.call.cublasLtMatmulPreferenceSetAttribute(want, FL__LT_PREF_WORKSPACE,
                                                                 &fl__lt_workspace, sizeof fl__lt_workspace);
    ok = ok && !fl__lt.call.cublasLtMatmulPreferenceSetAttribute(want, FL__LT_PREF_REDUCTION, &reduction,
                                                                 sizeof reduction);
    for (unsigned a = FL__LT_PREF_ALIGN_A; a <= FL__LT_PREF_ALIGN_D && ok; a++)
        ok = !fl__lt.call.cublasLtMatmulPreferenceSetAttribute(want, a, &align, sizeof align);
    ok = ok && !fl__lt.call.cublasLtMatmulAlgoGetHeuristic(fl__lt.handle[p->of.device], p->op, p->a,
                                                           p->b, p->d, p->d, want, p->at + 1, choice, &n);
    ok = ok && n > p->at && !choice[p->at].state;
    if (want) fl__lt.call.cublasLtMatmulPreferenceDestroy(want);
    if (!ok) return false;
    p->algo = choice[p->at].algo;
    p->workspace = choice[p->at].workspaceSize;
    return true;
}

static uint64_t fl__lt_key(const fl__lt_shape *s) {
    fl__lt_shape any = *s;
    any.device = 0;
    return fl__cuda_tune_key(&any, sizeof any, fl__lt.call.cublasLtGetVersion());
}

/* The cached plan of a shape, which may be that it is unsupported; NULL as of fl__cuda_plan_find. */
static fl__lt_plan *fl__lt_plan_of(const fl_call *c, const fl__lt_shape *s, const void *bias) {
    bool found;
    fl__lt_plan *p = fl__cuda_plan_find(&fl__lt_table, s, c, &found);
    if (!p || found) return p;
    fl__lt_forget(p);
    *p = (fl__lt_plan){.entry = p->entry, .of = *s};
    const int tuned = fl__cuda_tunes() ? fl__cuda_tuned(fl__lt_key(s)) : -1;
    p->at = tuned < 0 ? 0 : tuned;
    p->can = fl__lt_make_op(p, bias) &&
             fl__lt_make_layout(&p->a, s, s->type, s->transpose_a, s->m, s->k, s->lda, s->step_a) &&
             fl__lt_make_layout(&p->b, s, s->type, s->transpose_b, s->k, s->n, s->ldb, s->step_b) &&
             fl__lt_make_layout(&p->d, s, s->type_d, false, s->m, s->n, s->ldd, s->step_d) &&
             (fl__lt_choose(p) || (p->at && (p->at = 0, fl__lt_choose(p))));
    p->fresh = fl__cuda_tunes() && tuned < 0 && p->can;
    return p;
}

/* ---- from calls to shapes ---- */

/* A product with its batch dims, of which the last is passed to the library. */
typedef struct fl__lt_product {
    fl__lt_shape shape;
    const char *a, *b, *bias;
    char *d;
    int ndim;
    int64_t dim[FL_MAX_DIMS], step[3][FL_MAX_DIMS]; /* of a, b, d */
} fl__lt_product;

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

/* Merges batch dims that are contiguous in all three operands; puts the longest last. */
static void fl__lt_batch(fl__lt_product *p, const fl_tensor *a, const fl_tensor *b, const fl_tensor *y) {
    const fl_tensor *const t[3] = {b, a, y};
    for (int d = 0; d < y->ndim - 2; d++) {
        const int at = p->ndim - 1;
        bool joins = at >= 0;
        if (y->shape[d] == 1) continue;
        for (int k = 0; k < 3 && joins; k++) joins = p->step[k][at] == t[k]->stride[d] * y->shape[d];
        if (!joins) p->dim[p->ndim++] = 1;
        p->dim[p->ndim - 1] *= y->shape[d];
        for (int k = 0; k < 3; k++) p->step[k][p->ndim - 1] = t[k]->stride[d];
    }
    int longest = 0;
    const int last = p->ndim - 1;
    for (int d = 1; d < p->ndim; d++)
        if (p->dim[d] > p->dim[longest]) longest = d;
    for (int k = -1; k < 3 && p->ndim > 1; k++) {
        int64_t *v = k < 0 ? p->dim : p->step[k];
        const int64_t was = v[last];
        v[last] = v[longest];
        v[longest] = was;
    }
}

static int64_t fl__lt_size(int32_t type) {
    return type == FL__LT_F64 ? 8 : type == FL__LT_F32 ? 4 : 2;
}

/* Byte offsets of the operands of product i of a batch. */
static void fl__lt_place(const fl__lt_product *p, int64_t i, int64_t at[3]) {
    at[0] = at[1] = at[2] = 0;
    for (int d = p->ndim - 2; d >= 0; i /= p->dim[d--])
        for (int k = 0; k < 3; k++)
            at[k] += i % p->dim[d] * p->step[k][d] * fl__lt_size(k < 2 ? p->shape.type : p->shape.type_d);
}

/* Number of library calls for a batch. */
static int64_t fl__lt_loop(const fl__lt_product *p) {
    int64_t n = 1;
    for (int d = 0; d + 1 < p->ndim; d++) n *= p->dim[d];
    return n;
}

/* The largest power of two up to 256 that divides all addresses. */
static int32_t fl__lt_alignment(const fl__lt_product *p) {
    uintptr_t all = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->d | (uintptr_t)p->bias | 256;
    for (int64_t i = 1, at[3]; i < fl__lt_loop(p); i++) {
        fl__lt_place(p, i, at);
        all |= (uintptr_t)at[0] | (uintptr_t)at[1] | (uintptr_t)at[2];
    }
    return (int32_t)(all & -all);
}

/* Describes y = a b, or a b^T of a linear layer. Returns false if the library does not support it. y has no
   storage yet. */
static bool fl__lt_product_of(const fl_call *c, const fl_tensor *y, fl__lt_product *p) {
    const fl_tensor *a = c->in[0], *b = c->in[1];
    const int nd = y->ndim, b_row = c->op == FL_OP_matmul ? nd - 2 : 1,
              b_column = c->op == FL_OP_matmul ? nd - 1 : 0;
    fl__lt_shape *s = &p->shape;
    memset(p, 0, sizeof *p);
    s->device = flk_device();
    s->m = y->shape[nd - 1], s->n = y->shape[nd - 2], s->k = a->shape[nd - 1];
    if (!fl_dtype_is_float(y->dtype) || y->dtype >= FL_DTYPE_COUNT || !fl_numel(y) || !s->k) return false;
    if ((y->stride[nd - 1] != 1 && s->m > 1) || (s->n > 1 && y->stride[nd - 2] < s->m)) return false;
    if (!fl__lt_reads(s->k, s->m, b->stride[b_row], b->stride[b_column], &s->transpose_a, &s->lda) ||
        !fl__lt_reads(s->n, s->k, a->stride[nd - 2], a->stride[nd - 1], &s->transpose_b, &s->ldb))
        return false;
    s->ldd = s->n > 1 ? y->stride[nd - 2] : s->m;
    s->type = fl__lt_type_of(a->dtype);
    s->type_d = fl__lt_type_of(y->dtype);
    const bool tf32 = a->dtype == FL_F32 && fl_matmul_precision() == FL_BF16;
    s->compute = y->dtype == FL_F64 ? FL__LT_COMPUTE_F64 : tf32 ? FL__LT_COMPUTE_TF32 : FL__LT_COMPUTE_F32;
    s->epilogue = FL__LT_NO_EPILOGUE;
    if (nd > 2) fl__lt_batch(p, a, b, y);
    s->batch = p->ndim ? p->dim[p->ndim - 1] : 1;
    if (p->ndim) {
        s->step_a = p->step[0][p->ndim - 1];
        s->step_b = p->step[1][p->ndim - 1];
        s->step_d = p->step[2][p->ndim - 1];
    }
    return fl__lt_loop(p) <= FL__LT_MOST && s->batch <= INT32_MAX;
}

/* ---- running ---- */

static bool fl__lt_failed(const fl_call *c, fl__lt_status s) {
    return fl_fail("fl_%s: cuda: cublasLtMatmul: %s", fl_op_get_info(c->op)->name,
                   fl__lt.call.cublasLtGetStatusString(s));
}

static bool fl__lt_start(const fl_call *c, const fl__lt_plan *plan, const fl__lt_product *p) {
    const float one = 1, zero = 0;
    const double one_f64 = 1, zero_f64 = 0;
    const bool f64 = plan->of.type == FL__LT_F64;
    fl_buffer *work = NULL;
    fl__lt_status s = 0;
    if (p->bias &&
        fl__lt.call.cublasLtMatmulDescSetAttribute(plan->op, FL__LT_BIAS_POINTER, &p->bias, sizeof p->bias))
        return fl_fail("fl_%s: cuda: cuBLASLt rejects the bias", fl_op_get_info(c->op)->name);
    if (plan->workspace && !(work = fl__cuda_scratch(c, plan->workspace))) return false;
    for (int64_t i = 0, at[3]; i < fl__lt_loop(p) && !s; i++) {
        fl__lt_place(p, i, at);
        s = fl__lt.call.cublasLtMatmul(
            fl__lt.handle[plan->of.device], plan->op, f64 ? (const void *)&one_f64 : &one, p->a + at[0],
            plan->a, p->b + at[1], plan->b, f64 ? (const void *)&zero_f64 : &zero, p->d + at[2], plan->d,
            p->d + at[2], plan->d, &plan->algo, work ? work->ptr : NULL, plan->workspace,
            (fl__lt_stream)flk_stream_now());
    }
    fl_buffer_drop(work);
    return !s || fl__lt_failed(c, s);
}

/* ---- tuning ---- */

typedef struct fl__lt_trial {
    const fl_call *call;
    fl__lt_plan *plan;
    const fl__lt_product *product;
} fl__lt_trial;

static int fl__lt_try(void *trial, int at) {
    fl__lt_plan *p = ((fl__lt_trial *)trial)->plan;
    p->at = at;
    return fl__lt_choose(p) ? at : -1;
}
static bool fl__lt_try_start(void *trial) {
    const fl__lt_trial *t = trial;
    return fl__lt_start(t->call, t->plan, t->product);
}

static bool fl__lt_run_plan(const fl_call *c, fl__lt_plan *plan, const fl__lt_product *p) {
    if (plan->fresh && !fl__cuda_captures()) {
        plan->fresh = false;
        fl__cuda_tune(fl__lt_key(&plan->of), plan->at, fl__lt_try, fl__lt_try_start,
                      &(fl__lt_trial){c, plan, p});
    }
    return fl__lt_start(c, plan, p);
}

/* Allocates y and computes the product if the library supports it, and sets *done. */
static bool fl__lt_run(const fl_call *c, fl_tensor *y, int32_t epilogue, const fl_tensor *bias, bool *done) {
    fl__lt_product p;
    *done = false;
    if (!fl__lt_product_of(c, y, &p)) return true;
    pthread_mutex_lock(&fl__lt.lock);
    const bool there = fl__lt_there();
    pthread_mutex_unlock(&fl__lt.lock);
    if (!there) return true;
    if (!fl_out_make(y)) return false;
    p.a = fl_data(c->in[1]), p.b = fl_data(c->in[0]), p.d = fl_data(y), p.bias = bias ? fl_data(bias) : NULL;
    p.shape.epilogue = epilogue;
    p.shape.align = fl__lt_alignment(&p);
    pthread_mutex_lock(&fl__lt.lock);
    fl__lt_plan *plan = fl__lt_plan_of(c, &p.shape, p.bias);
    const bool ok = plan && plan->can ? (*done = fl__lt_run_plan(c, plan, &p)) : plan || !fl__cuda_captures();
    pthread_mutex_unlock(&fl__lt.lock);
    return ok;
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
