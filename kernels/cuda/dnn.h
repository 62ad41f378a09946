/* kernels/cuda/dnn.h - convolution and attention on backend cuda by cuDNN 9's graph API

   A call becomes a graph of operations on tensors with their actual shapes and strides, so that images may
   be channels-first or channels-last. cuDNN's heuristics propose engines; the first one that is allowed and
   can be built makes the plan, which is cached in a table of fixed size. Allowed engines are deterministic,
   and for f32 compute in f32, unless fl_matmul_precision permits less ("compute in float" means TF32 to most
   engines). Calls without a plan use the slot that this one replaced. With FL_CUDA_TUNE (tune.h) the fastest
   allowed engine is used.

   Attention is a composite of products, pointwise operations and reductions that cuDNN recognises: f16 and
   bf16, causal or not, without window and softcap. A mask is passed as a finite bias: a query without any
   visible key gets a tiny lse instead of NaN, and our own kernel corrects y and lse. Dropout multiplies by a
   mask of our own random numbers, so that it drops what the cpu drops; it takes 2 bytes per weight during the
   call, and the gradient draws it again. The gradient's sums go straight into dq: through an accumulator in
   f32 their order would not be fixed.

   FL_CUDA_DEVICE_JSON=file builds plans for an absent device, without running them (cuda-plans). */
#ifndef FL_CUDA_DNN_H
#define FL_CUDA_DNN_H
#include "../../fl_backend.h"
#include "../../fl/records/attention.h"
#include "../../fl/records/conv.h"
/* Overrides slots of the table. */
FL_PRIVATE void fl__cuda_dnn_slots(fl_backend *cuda);
/* Returns 1 if cuDNN has a plan for the call, 0 if not, -1 if cuDNN is missing. Runs nothing. */
FL_PRIVATE int fl__cuda_dnn_plans(const fl_call *c);
/* Number of calls of attention and its gradient so far that our own kernels computed. */
FL_PRIVATE int64_t fl__cuda_dnn_declined(void);
#endif

#if defined(FL_IMPL_ONLY_CUDA_DNN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_DNN_IMPL
#define FL_CUDA_DNN_IMPL
#include "../../fl/records/linear.h"
#include "../../fl/tensor/view.h"
#include "backend.h"
#include "dnn_calls.h"
#include "library.h"
#include "lt.h"
#include "plan.h"
#include "tune.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FL__DNN_PLANS = 1024,
    FL__DNN_TENSORS = 17, /* inputs and outputs of a plan */
    FL__DNN_PARTS = 192,  /* descriptors per graph */
    FL__DNN_CONFIGS = 16  /* engines tried */
};
static const int64_t fl__dnn_workspace = (int64_t)1 << 30;

/* A tensor of a graph: 4 dims, indexed as the plan's pointers. */
typedef struct fl__dnn_tensor {
    int64_t dim[4], stride[4], type;
} fl__dnn_tensor;

/* Cache key of a plan, compared bytewise. */
enum { FL__DNN_CONV, FL__DNN_GRAD_INPUT, FL__DNN_GRAD_WEIGHT, FL__DNN_CONV_BIAS, FL__DNN_ATTENTION,
       FL__DNN_ATTENTION_GRAD, FL__DNN_OPS };
typedef struct fl__dnn_shape {
    int64_t op, ordinal, align, exact, relu, pad_lo[2], pad_hi[2], stride[2], dilation[2];
    fl__dnn_tensor t[FL__DNN_TENSORS]; /* dims all 0: absent */
} fl__dnn_shape;

typedef struct fl__dnn_plan {
    fl__cuda_plan entry;
    fl__dnn_shape of;
    bool can, fresh; /* fresh: not tuned yet, but to be tuned */
    int at;          /* index among the heuristics' engines */
    fl__dnn_desc plan;
    int64_t workspace;
} fl__dnn_plan;

static struct {
    pthread_mutex_t lock;
    int state; /* 0: not loaded yet, 1: loaded, 2: loaded for plans only; -1: missing */
    fl__dnn_handle handle[FLK_DEVICES]; /* NULL: not created yet */
    fl__dnn_desc device;                /* from the JSON; NULL: the handle's */
    struct {
#define FL__DNN_FIELD(result, name, args) result(*name) args;
        FL__DNN_CALLS(FL__DNN_FIELD)
#undef FL__DNN_FIELD
    } call;
} fl__dnn = {.lock = PTHREAD_MUTEX_INITIALIZER};
static fl__dnn_plan fl__dnn_entries[FL__DNN_PLANS];
static const fl__cuda_plans fl__dnn_table = {fl__dnn_entries, FL__DNN_PLANS, sizeof(fl__dnn_plan),
                                             sizeof(fl__dnn_shape)};
static fl_slot fl__dnn_own[FL__DNN_OPS];

/* ---- descriptors; the lock is held in all functions below ---- */

/* A graph under construction, which owns its descriptors. */
typedef struct fl__dnn_graph {
    const fl__dnn_shape *of;
    bool failed;
    int n, ops;
    fl__dnn_desc part[FL__DNN_PARTS], op[32], place[FL__DNN_TENSORS];
} fl__dnn_graph;

static fl__dnn_desc fl__dnn_new(fl__dnn_graph *g, fl__dnn_kind kind) {
    fl__dnn_desc d = NULL;
    g->failed = g->failed || g->n == FL__DNN_PARTS || fl__dnn.call.cudnnBackendCreateDescriptor(kind, &d);
    if (!g->failed) g->part[g->n++] = d;
    return d;
}

static void fl__dnn_set(fl__dnn_graph *g, fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_type type, int64_t n,
                        const void *v) {
    g->failed = g->failed || fl__dnn.call.cudnnBackendSetAttribute(d, a, type, n, v);
}

static void fl__dnn_link(fl__dnn_graph *g, fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_desc to) {
    fl__dnn_set(g, d, a, FL__TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

static fl__dnn_desc fl__dnn_done(fl__dnn_graph *g, fl__dnn_desc d) {
    g->failed = g->failed || fl__dnn.call.cudnnBackendFinalize(d);
    return d;
}

static void fl__dnn_drop(fl__dnn_graph *g) {
    while (g->n > 0) fl__dnn.call.cudnnBackendDestroyDescriptor(g->part[--g->n]);
}

/* ---- operations of a graph ---- */

enum { FL__DNN_REAL, FL__DNN_VIRTUAL, FL__DNN_NUMBER };

static fl__dnn_desc fl__dnn_tensor_of(fl__dnn_graph *g, int64_t id, const fl__dnn_tensor *t, int where) {
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_TENSOR_DESCRIPTOR);
    const int32_t type = (int32_t)t->type;
    const bool yes = true;
    fl__dnn_set(g, d, FL__ATTR_TENSOR_DATA_TYPE, FL__TYPE_DATA_TYPE, 1, &type);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_DIMENSIONS, FL__TYPE_INT64, 4, t->dim);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_STRIDES, FL__TYPE_INT64, 4, t->stride);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_UNIQUE_ID, FL__TYPE_INT64, 1, &id);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_BYTE_ALIGNMENT, FL__TYPE_INT64, 1, &g->of->align);
    if (where == FL__DNN_VIRTUAL) fl__dnn_set(g, d, FL__ATTR_TENSOR_IS_VIRTUAL, FL__TYPE_BOOLEAN, 1, &yes);
    if (where == FL__DNN_NUMBER) fl__dnn_set(g, d, FL__ATTR_TENSOR_IS_BY_VALUE, FL__TYPE_BOOLEAN, 1, &yes);
    return fl__dnn_done(g, d);
}

/* The descriptor of tensor or number i of the shape, with id i + 1; created once. */
static fl__dnn_desc fl__dnn_placed(fl__dnn_graph *g, int i, int where) {
    if (!g->place[i]) g->place[i] = fl__dnn_tensor_of(g, i + 1, &g->of->t[i], where);
    return g->place[i];
}
static fl__dnn_desc fl__dnn_real(fl__dnn_graph *g, int i) {
    return fl__dnn_placed(g, i, FL__DNN_REAL);
}
static fl__dnn_desc fl__dnn_number(fl__dnn_graph *g, int i) {
    return fl__dnn_placed(g, i, FL__DNN_NUMBER);
}

/* A virtual tensor inside the plan: of t's dims, contiguous or with given strides. */
static fl__dnn_desc fl__dnn_inner(fl__dnn_graph *g, const int64_t dim[4], const int64_t *stride,
                                  int64_t type) {
    fl__dnn_tensor t = {.type = type};
    int64_t step = 1;
    for (int i = 3; i >= 0; step *= dim[i--]) {
        t.dim[i] = dim[i];
        t.stride[i] = stride ? stride[i] : step;
    }
    return fl__dnn_tensor_of(g, 100 + g->n, &t, FL__DNN_VIRTUAL);
}

static void fl__dnn_add_op(fl__dnn_graph *g, fl__dnn_desc d) {
    g->op[g->ops++] = fl__dnn_done(g, d);
}

/* y = f(x), f(x, b) or f(x, b, t), computed in `type`; index functions count along `axis`. */
static fl__dnn_desc fl__dnn_compute(fl__dnn_graph *g, int mode, int32_t type, int64_t axis,
                                    const fl__dnn_desc in[3], fl__dnn_desc y) {
    const int propagates = FL__PROPAGATE_NAN;
    const fl__dnn_desc f = fl__dnn_new(g, FL__BACKEND_POINTWISE_DESCRIPTOR);
    fl__dnn_set(g, f, FL__ATTR_POINTWISE_MODE, FL__TYPE_POINTWISE_MODE, 1, &mode);
    fl__dnn_set(g, f, FL__ATTR_POINTWISE_MATH_PREC, FL__TYPE_DATA_TYPE, 1, &type);
    if (mode == FL__POINTWISE_GEN_INDEX)
        fl__dnn_set(g, f, FL__ATTR_POINTWISE_AXIS, FL__TYPE_INT64, 1, &axis);
    if (mode == FL__POINTWISE_RELU_FWD)
        fl__dnn_set(g, f, FL__ATTR_POINTWISE_NAN_PROPAGATION, FL__TYPE_NAN_PROPOGATION, 1, &propagates);
    fl__dnn_done(g, f);
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, f);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_POINTWISE_XDESC, in[0]);
    if (in[1]) fl__dnn_link(g, d, FL__ATTR_OPERATION_POINTWISE_BDESC, in[1]);
    if (in[2]) fl__dnn_link(g, d, FL__ATTR_OPERATION_POINTWISE_TDESC, in[2]);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_POINTWISE_YDESC, y);
    fl__dnn_add_op(g, d);
    return y;
}

static fl__dnn_desc fl__dnn_pointwise(fl__dnn_graph *g, int mode, fl__dnn_desc x, fl__dnn_desc b,
                                      fl__dnn_desc y) {
    return fl__dnn_compute(g, mode, FL__DATA_FLOAT, 0, (fl__dnn_desc[]){x, b, NULL}, y);
}

static fl__dnn_desc fl__dnn_product(fl__dnn_graph *g, fl__dnn_desc a, fl__dnn_desc b, fl__dnn_desc c) {
    const int32_t type = FL__DATA_FLOAT;
    const fl__dnn_desc f = fl__dnn_new(g, FL__BACKEND_MATMUL_DESCRIPTOR);
    fl__dnn_set(g, f, FL__ATTR_MATMUL_COMP_TYPE, FL__TYPE_DATA_TYPE, 1, &type);
    fl__dnn_done(g, f);
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_MATMUL_ADESC, a);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_MATMUL_BDESC, b);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_MATMUL_CDESC, c);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_MATMUL_DESC, f);
    fl__dnn_add_op(g, d);
    return c;
}

static fl__dnn_desc fl__dnn_reduced(fl__dnn_graph *g, int how, fl__dnn_desc x, fl__dnn_desc y) {
    const int32_t type = FL__DATA_FLOAT;
    const fl__dnn_desc f = fl__dnn_new(g, FL__BACKEND_REDUCTION_DESCRIPTOR);
    fl__dnn_set(g, f, FL__ATTR_REDUCTION_OPERATOR, FL__TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    fl__dnn_set(g, f, FL__ATTR_REDUCTION_COMP_TYPE, FL__TYPE_DATA_TYPE, 1, &type);
    fl__dnn_done(g, f);
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_REDUCTION_XDESC, x);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_REDUCTION_YDESC, y);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_REDUCTION_DESC, f);
    fl__dnn_add_op(g, d);
    return y;
}

static fl__dnn_desc fl__dnn_reshaped(fl__dnn_graph *g, fl__dnn_desc x, fl__dnn_desc y) {
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_RESHAPE_XDESC, x);
    fl__dnn_link(g, d, FL__ATTR_OPERATION_RESHAPE_YDESC, y);
    fl__dnn_add_op(g, d);
    return y;
}

/* ---- graphs ---- */

/* y = conv(x, w) [+ bias, [at least 0]]. t: x, w, y, or the gradient in place of one of them; [bias]. */
static void fl__dnn_conv(fl__dnn_graph *g) {
    static const struct {
        unsigned kind, alpha; /* then beta and the convolution */
        unsigned x, w, y;
    } ops[] = {{FL__BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                FL__ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, FL__ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                FL__ATTR_OPERATION_CONVOLUTION_FORWARD_W, FL__ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
               {FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                FL__ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, FL__ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                FL__ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, FL__ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
               {FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                FL__ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, FL__ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                FL__ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, FL__ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
    const fl__dnn_shape *s = g->of;
    const int32_t type = FL__DATA_FLOAT, mode = FL__CROSS_CORRELATION;
    const int64_t dims = 2;
    const float one = 1, zero = 0;
    const fl__dnn_desc x = fl__dnn_real(g, 0), w = fl__dnn_real(g, 1), y = fl__dnn_real(g, 2);
    const bool bias = s->t[3].dim[0];
    const fl__dnn_desc sum = bias ? fl__dnn_inner(g, s->t[2].dim, s->t[2].stride, FL__DATA_FLOAT) : y;
    const fl__dnn_desc c = fl__dnn_new(g, FL__BACKEND_CONVOLUTION_DESCRIPTOR);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_SPATIAL_DIMS, FL__TYPE_INT64, 1, &dims);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_COMP_TYPE, FL__TYPE_DATA_TYPE, 1, &type);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_CONV_MODE, FL__TYPE_CONVOLUTION_MODE, 1, &mode);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_PRE_PADDINGS, FL__TYPE_INT64, 2, s->pad_lo);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_POST_PADDINGS, FL__TYPE_INT64, 2, s->pad_hi);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_DILATIONS, FL__TYPE_INT64, 2, s->dilation);
    fl__dnn_set(g, c, FL__ATTR_CONVOLUTION_FILTER_STRIDES, FL__TYPE_INT64, 2, s->stride);
    fl__dnn_done(g, c);
    const fl__dnn_desc d = fl__dnn_new(g, ops[s->op].kind);
    fl__dnn_set(g, d, ops[s->op].alpha, FL__TYPE_FLOAT, 1, &one);
    fl__dnn_set(g, d, ops[s->op].alpha + 1, FL__TYPE_FLOAT, 1, &zero);
    fl__dnn_link(g, d, ops[s->op].alpha + 2, c);
    fl__dnn_link(g, d, ops[s->op].x, x);
    fl__dnn_link(g, d, ops[s->op].w, w);
    fl__dnn_link(g, d, ops[s->op].y, sum);
    fl__dnn_add_op(g, d);
    if (!bias) return;
    const fl__dnn_desc biased = s->relu ? fl__dnn_inner(g, s->t[2].dim, s->t[2].stride, FL__DATA_FLOAT) : y;
    fl__dnn_pointwise(g, FL__POINTWISE_ADD, sum, fl__dnn_real(g, 3), biased);
    if (s->relu) fl__dnn_pointwise(g, FL__POINTWISE_RELU_FWD, biased, NULL, y);
}

/* Indices of the tensors of attention and its gradient, K and V transposed where needed, and of numbers. */
enum {
    FL__Q,
    FL__KT,
    FL__V,
    FL__Y,
    FL__LSE,
    FL__BIAS,
    FL__DY,
    FL__DQ,
    FL__DK,
    FL__DV,
    FL__DROPOUT, /* [batch, heads, queries, keys]: 1, or 0 where a weight is dropped */
    FL__ROW_SUM,
    FL__SCALE,
    FL__HIDDEN, /* score of keys hidden by causal */
    FL__OFFSET,
    FL__KEEP,   /* 1 - p of dropout */
    FL__DROPOUT_SCALE
};

/* Swaps t's last two dims, without moving data. */
static void fl__dnn_swap(int64_t dim[4], int64_t stride[4], const fl__dnn_tensor *t) {
    static const int order[4] = {0, 1, 3, 2};
    for (int i = 0; i < 4; i++) dim[i] = t->dim[order[i]], stride[i] = t->stride[order[i]];
}

static void fl__dnn_score_dims(const fl__dnn_graph *g, int64_t all[4]) {
    for (int i = 0; i < 4; i++) all[i] = g->of->t[i < 3 ? FL__Q : FL__KT].dim[i];
}

/* Hides scores by the causal mask: keys after the query's position. */
static fl__dnn_desc fl__dnn_causal(fl__dnn_graph *g, fl__dnn_desc s) {
    int64_t all[4];
    fl__dnn_score_dims(g, all);
#define FL__OF(type) fl__dnn_inner(g, all, NULL, FL__DATA_##type)
#define FL__STEP(mode, type, axis, y, ...) \
    fl__dnn_compute(g, FL__POINTWISE_##mode, FL__DATA_##type, axis, (fl__dnn_desc[3]){__VA_ARGS__}, y)
    fl__dnn_desc row = FL__STEP(GEN_INDEX, FLOAT, 2, FL__OF(INT32), s);
    const fl__dnn_desc column = FL__STEP(GEN_INDEX, FLOAT, 3, FL__OF(INT32), s);
    if (g->of->t[FL__OFFSET].dim[0])
        row = FL__STEP(ADD, INT32, 0, FL__OF(INT32), row, fl__dnn_number(g, FL__OFFSET));
    const fl__dnn_desc sees = FL__STEP(CMP_GE, BOOLEAN, 0, FL__OF(BOOLEAN), row, column);
    return FL__STEP(BINARY_SELECT, FLOAT, 0, FL__OF(FLOAT), s, fl__dnn_number(g, FL__HIDDEN), sees);
#undef FL__STEP
#undef FL__OF
}

/* scale q k^T with the masks applied. */
static fl__dnn_desc fl__dnn_scores(fl__dnn_graph *g, fl__dnn_desc q, fl__dnn_desc k) {
    int64_t all[4];
    fl__dnn_score_dims(g, all);
#define FL__ALL fl__dnn_inner(g, all, NULL, FL__DATA_FLOAT)
    const fl__dnn_desc product = fl__dnn_product(g, q, k, FL__ALL);
    fl__dnn_desc s = fl__dnn_pointwise(g, FL__POINTWISE_MUL, product, fl__dnn_number(g, FL__SCALE), FL__ALL);
    if (g->of->t[FL__BIAS].dim[0])
        s = fl__dnn_pointwise(g, FL__POINTWISE_ADD, s, fl__dnn_real(g, FL__BIAS), FL__ALL);
    return g->of->t[FL__HIDDEN].dim[0] ? fl__dnn_causal(g, s) : s;
}

/* The weights p with dropout, if the shape has a mask of it. */
static fl__dnn_desc fl__dnn_dropped(fl__dnn_graph *g, fl__dnn_desc p, int64_t type) {
    int64_t all[4];
    fl__dnn_score_dims(g, all);
    if (!g->of->t[FL__DROPOUT].dim[0]) return p;
    p = fl__dnn_pointwise(g, FL__POINTWISE_MUL, p, fl__dnn_real(g, FL__DROPOUT), FL__ALL);
    return fl__dnn_pointwise(g, FL__POINTWISE_MUL, p, fl__dnn_number(g, FL__DROPOUT_SCALE),
                             fl__dnn_inner(g, all, NULL, type));
}

/* y = dropout(softmax(s)) v, lse = max + log sum exp(s - max) */
static void fl__dnn_attention(fl__dnn_graph *g) {
    int64_t all[4];
    fl__dnn_score_dims(g, all);
    const int64_t row[4] = {all[0], all[1], all[2], 1};
    const fl__dnn_desc q = fl__dnn_real(g, FL__Q), k = fl__dnn_real(g, FL__KT), v = fl__dnn_real(g, FL__V);
    const fl__dnn_desc y = fl__dnn_real(g, FL__Y), lse = fl__dnn_real(g, FL__LSE);
#define FL__ROW fl__dnn_inner(g, row, NULL, FL__DATA_FLOAT)
    const fl__dnn_desc s = fl__dnn_scores(g, q, k);
    const fl__dnn_desc most = fl__dnn_reduced(g, FL__REDUCE_TENSOR_MAX, s, FL__ROW);
    const fl__dnn_desc e = fl__dnn_pointwise(
        g, FL__POINTWISE_EXP, fl__dnn_pointwise(g, FL__POINTWISE_SUB, s, most, FL__ALL), NULL, FL__ALL);
    const fl__dnn_desc sum = fl__dnn_reduced(g, FL__REDUCE_TENSOR_ADD, e, FL__ROW);
    fl__dnn_pointwise(g, FL__POINTWISE_ADD, most, fl__dnn_pointwise(g, FL__POINTWISE_LOG, sum, NULL, FL__ROW),
                      lse);
    const int64_t type = g->of->t[FL__Q].type;
    const fl__dnn_desc p =
        fl__dnn_inner(g, all, NULL, g->of->t[FL__DROPOUT].dim[0] ? FL__DATA_FLOAT : type);
    fl__dnn_pointwise(g, FL__POINTWISE_DIV, e, sum, p);
    fl__dnn_product(g, fl__dnn_dropped(g, p, type), v, y);
}

/* p = exp(s - lse), dv = dropout(p)^T dy, ds = p (dropout(dy v^T) - sum dy y) scale, dq = ds k, dk = ds^T q;
   the factor 1 / (1 - p) of dropout is taken out of the brackets. v is v^T. */
static void fl__dnn_attention_grad(fl__dnn_graph *g) {
    const fl__dnn_tensor *t = g->of->t;
    int64_t all[4], dim_k[4], stride_k[4];
    fl__dnn_score_dims(g, all);
    const int64_t row[4] = {all[0], all[1], all[2], 1}, other[4] = {all[0], all[1], all[3], all[2]};
    const int64_t crossed[4] = {all[1] * all[2] * all[3], all[2] * all[3], 1, all[3]};
    const int64_t type = t[FL__Q].type;
    fl__dnn_swap(dim_k, stride_k, &t[FL__KT]);
    const fl__dnn_desc q = fl__dnn_real(g, FL__Q), k = fl__dnn_real(g, FL__KT), v = fl__dnn_real(g, FL__V);
    const fl__dnn_desc y = fl__dnn_real(g, FL__Y), lse = fl__dnn_real(g, FL__LSE);
    const fl__dnn_desc dy = fl__dnn_real(g, FL__DY), row_sum = fl__dnn_real(g, FL__ROW_SUM);
    const bool drops = t[FL__DROPOUT].dim[0];
    const fl__dnn_desc both = fl__dnn_inner(g, t[FL__DY].dim, t[FL__DY].stride, FL__DATA_FLOAT);
    fl__dnn_pointwise(g, FL__POINTWISE_MUL, dy, y, both);
    fl__dnn_pointwise(g, FL__POINTWISE_MUL, fl__dnn_reduced(g, FL__REDUCE_TENSOR_ADD, both, FL__ROW),
                      fl__dnn_number(g, FL__KEEP), row_sum);
    const fl__dnn_desc s = fl__dnn_scores(g, q, k);
    const fl__dnn_desc p = fl__dnn_pointwise(
        g, FL__POINTWISE_EXP, fl__dnn_pointwise(g, FL__POINTWISE_SUB, s, lse, FL__ALL), NULL, FL__ALL);
    const fl__dnn_desc dropped = fl__dnn_dropped(g, p, FL__DATA_FLOAT);
    fl__dnn_product(g, fl__dnn_reshaped(g, dropped, fl__dnn_inner(g, other, crossed, type)), dy,
                    fl__dnn_real(g, FL__DV));
    fl__dnn_desc ds = fl__dnn_product(g, dy, v, FL__ALL);
    if (drops) ds = fl__dnn_pointwise(g, FL__POINTWISE_MUL, ds, fl__dnn_real(g, FL__DROPOUT), FL__ALL);
    ds = fl__dnn_pointwise(g, FL__POINTWISE_SUB, ds, row_sum, FL__ALL);
    ds = fl__dnn_pointwise(g, FL__POINTWISE_MUL, ds, p, FL__ALL);
    if (drops)
        ds = fl__dnn_pointwise(g, FL__POINTWISE_MUL, ds, fl__dnn_number(g, FL__DROPOUT_SCALE), FL__ALL);
    ds = fl__dnn_pointwise(g, FL__POINTWISE_MUL, ds, fl__dnn_number(g, FL__SCALE), FL__ALL);
    fl__dnn_product(g, fl__dnn_reshaped(g, ds, fl__dnn_inner(g, other, crossed, type)), q,
                    fl__dnn_real(g, FL__DK));
    fl__dnn_product(g, ds, fl__dnn_reshaped(g, k, fl__dnn_inner(g, dim_k, stride_k, type)),
                    fl__dnn_real(g, FL__DQ));
#undef FL__ALL
#undef FL__ROW
}

/* ---- plans ---- */

static bool fl__dnn_allowed(fl__dnn_graph *g, fl__dnn_desc config, bool exact) {
    const fl__dnn_desc engine = fl__dnn_new(g, FL__BACKEND_ENGINE_DESCRIPTOR);
    int32_t notes[16];
    int64_t n = 0;
    if (!engine ||
        fl__dnn.call.cudnnBackendGetAttribute(config, FL__ATTR_ENGINECFG_ENGINE, FL__TYPE_BACKEND_DESCRIPTOR,
                                              1, &n, (void *)&engine) ||
        fl__dnn.call.cudnnBackendGetAttribute(engine, FL__ATTR_ENGINE_NUMERICAL_NOTE, FL__TYPE_NUMERICAL_NOTE,
                                              16, &n, notes))
        return false;
    for (int64_t i = 0; i < n && i < 16; i++) {
        const int note = notes[i];
        if (note == FL__NUMERICAL_NOTE_NONDETERMINISTIC) return false;
        if (exact &&
            (note == FL__NUMERICAL_NOTE_TENSOR_CORE || note == FL__NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
             note == FL__NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
            return false;
    }
    return true;
}

static bool fl__dnn_build(fl__dnn_plan *p, fl__dnn_desc config) {
    fl__dnn_desc plan = NULL;
    int64_t n = 0;
    if (fl__dnn.call.cudnnBackendCreateDescriptor(FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan)) return false;
    const unsigned who = fl__dnn.device ? FL__ATTR_EXECUTION_PLAN_DEVICEPROP : FL__ATTR_EXECUTION_PLAN_HANDLE;
    bool ok = fl__dnn.device
                  ? !fl__dnn.call.cudnnBackendSetAttribute(plan, who, FL__TYPE_BACKEND_DESCRIPTOR, 1,
                                                           &fl__dnn.device)
                  : !fl__dnn.call.cudnnBackendSetAttribute(plan, who, FL__TYPE_HANDLE, 1,
                                                           &fl__dnn.handle[p->of.ordinal]);
    ok = ok && !fl__dnn.call.cudnnBackendSetAttribute(plan, FL__ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                      FL__TYPE_BACKEND_DESCRIPTOR, 1, &config);
    const fl__dnn_status s = ok ? fl__dnn.call.cudnnBackendFinalize(plan) : -1;
    /* Without a device, loading a runtime-compiled engine, the last step, must fail. */
    const bool compiled = fl__dnn.device && s == 5001;
    ok = !s && !fl__dnn.call.cudnnBackendGetAttribute(plan, FL__ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                      FL__TYPE_INT64, 1, &n, &p->workspace);
    if ((ok && p->workspace <= fl__dnn_workspace) || compiled) {
        p->plan = plan;
        return true;
    }
    fl__dnn.call.cudnnBackendDestroyDescriptor(plan);
    return false;
}

/* Chooses the first engine from p->at on that is allowed and can be built; p->at becomes its index. */
static bool fl__dnn_choose(fl__dnn_graph *g, fl__dnn_plan *p, fl__dnn_desc graph, int32_t mode) {
    fl__dnn_desc config[FL__DNN_CONFIGS];
    const fl__dnn_desc heuristics = fl__dnn_new(g, FL__BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n = 0;
    bool found = false;
    fl__dnn_link(g, heuristics, FL__ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    fl__dnn_set(g, heuristics, FL__ATTR_ENGINEHEUR_MODE, FL__TYPE_HEUR_MODE, 1, &mode);
    if (fl__dnn.device) fl__dnn_link(g, heuristics, FL__ATTR_ENGINEHEUR_DEVICEPROP, fl__dnn.device);
    fl__dnn_done(g, heuristics);
    for (int i = 0; i < FL__DNN_CONFIGS; i++) config[i] = fl__dnn_new(g, FL__BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed ||
        fl__dnn.call.cudnnBackendGetAttribute(heuristics, FL__ATTR_ENGINEHEUR_RESULTS,
                                              FL__TYPE_BACKEND_DESCRIPTOR, FL__DNN_CONFIGS, &n, config))
        return false;
    for (int i = p->at; i < n && i < FL__DNN_CONFIGS && !found; i++) {
        found = fl__dnn_allowed(g, config[i], p->of.exact) && fl__dnn_build(p, config[i]);
        if (found) p->at = i;
    }
    return found;
}

/* On Blackwell, sm_100, sums of the gradient are in a fixed order from 9.18 on, and not with dropout. */
static bool fl__dnn_in_order(const fl__dnn_shape *s) {
    return flk_architecture() / 10 != 10 ||
           (fl__dnn.call.cudnnGetVersion() >= 91800 && !s->t[FL__DROPOUT].dim[0]);
}

static bool fl__dnn_make(fl__dnn_plan *p) {
    fl__dnn_graph g = {.of = &p->of};
    if (p->of.op == FL__DNN_ATTENTION_GRAD && !fl__dnn_in_order(&p->of)) return false;
    if (p->of.op == FL__DNN_ATTENTION)
        fl__dnn_attention(&g);
    else if (p->of.op == FL__DNN_ATTENTION_GRAD)
        fl__dnn_attention_grad(&g);
    else
        fl__dnn_conv(&g);
    const fl__dnn_desc graph = fl__dnn_new(&g, FL__BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    fl__dnn_set(&g, graph, FL__ATTR_OPERATIONGRAPH_OPS, FL__TYPE_BACKEND_DESCRIPTOR, g.ops, g.op);
    if (!fl__dnn.device)
        fl__dnn_set(&g, graph, FL__ATTR_OPERATIONGRAPH_HANDLE, FL__TYPE_HANDLE, 1,
                    &fl__dnn.handle[p->of.ordinal]);
    fl__dnn_done(&g, graph);
    bool ok = !g.failed && fl__dnn_choose(&g, p, graph, FL__HEUR_MODE_A);
    if (!ok && !g.failed && !p->at) ok = fl__dnn_choose(&g, p, graph, FL__HEUR_MODE_FALLBACK);
    fl__dnn_drop(&g);
    return ok;
}

static uint64_t fl__dnn_key(const fl__dnn_shape *s) {
    fl__dnn_shape any = *s;
    any.ordinal = 0;
    return fl__cuda_tune_key(&any, sizeof any, fl__dnn.call.cudnnGetVersion());
}

/* The cached plan of a shape, which may be that it is unsupported; NULL as of fl__cuda_plan_find. */
static fl__dnn_plan *fl__dnn_plan_of(const fl_call *c, const fl__dnn_shape *s) {
    bool found;
    fl__dnn_plan *p = fl__cuda_plan_find(&fl__dnn_table, s, c, &found);
    if (!p || found) return p;
    if (p->plan) fl__dnn.call.cudnnBackendDestroyDescriptor(p->plan);
    *p = (fl__dnn_plan){.entry = p->entry, .of = *s};
    const bool tunes = !fl__dnn.device && fl__cuda_tunes();
    const int tuned = tunes ? fl__cuda_tuned(fl__dnn_key(s)) : -1;
    p->at = tuned < 0 ? 0 : tuned;
    p->can = fl__dnn_make(p);
    if (!p->can && p->at) p->at = 0, p->can = fl__dnn_make(p);
    p->fresh = tunes && tuned < 0 && p->can;
    return p;
}

/* ---- the library ---- */

static bool fl__dnn_read_device(const char *path) {
    static char text[4096];
    fl__dnn_graph g = {.failed = false};
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    while (n && text[n - 1] == '\n') n--;
    fl__dnn.device = fl__dnn_new(&g, FL__BACKEND_DEVICEPROP_DESCRIPTOR);
    fl__dnn_set(&g, fl__dnn.device, FL__ATTR_DEVICEPROP_JSON_REPRESENTATION, FL__TYPE_CHAR, (int64_t)n, text);
    fl__dnn_done(&g, fl__dnn.device);
    return !g.failed;
}

/* Attention needs cuDNN 9.16: 9.10.0 and 9.10.1 compute it wrongly, and up to 9.15 its gradient is wrong for
   numbers of keys that 128 does not divide. */
static bool fl__dnn_serves(int64_t op) {
    return op < FL__DNN_ATTENTION || fl__dnn.call.cudnnGetVersion() >= 91600;
}

static const char *const fl__dnn_instead =
    "convolutions use our own slower kernels, attention is computed in parts";

static int fl__dnn_look(void) {
#define FL__DNN_NAME(result, name, args) #name,
    static const char *const names[] = {FL__DNN_CALLS(FL__DNN_NAME)};
#undef FL__DNN_NAME
    const char *json = getenv("FL_CUDA_DEVICE_JSON");
    fl__cuda_library_open("libcublasLt.so.13"); /* dependencies of cuDNN */
    fl__cuda_library_open("libnvrtc.so.13");
    if (!fl__cuda_library("libcudnn.so.9", fl__dnn_instead, names, &fl__dnn.call,
                          (int)(sizeof names / sizeof *names)))
        return -1;
    const int version = (int)fl__dnn.call.cudnnGetVersion();
    if (!fl__dnn_serves(FL__DNN_ATTENTION))
        fl_log_message(FL_LOG_WARN, "cuda: attention is computed in parts: got cuDNN %d.%d.%d, expected 9.16",
                       version / 10000, version / 100 % 100, version % 100);
    if (!json) return 1;
    if (fl__dnn_read_device(json)) return 2;
    fl_log_message(FL_LOG_WARN, "cuda: cuDNN rejects the device described in %s", json);
    return -1;
}

static int fl__dnn_make_handle(void) {
    const fl__dnn_status s = fl__dnn.call.cudnnCreate(&fl__dnn.handle[flk_device()]);
    if (s)
        fl_log_message(FL_LOG_WARN, "cuda: cudnnCreate: %s: %s", fl__dnn.call.cudnnGetErrorString(s),
                       fl__dnn_instead);
    return s ? -1 : 1;
}

/* Loads the library for the current device if needed. Returns the state. */
static int fl__dnn_there(void) {
    pthread_mutex_lock(&fl__dnn.lock);
    if (!fl__dnn.state) fl__dnn.state = fl__dnn_look();
    if (fl__dnn.state == 1 && !fl__dnn.handle[flk_device()]) fl__dnn.state = fl__dnn_make_handle();
    const int state = fl__dnn.state;
    pthread_mutex_unlock(&fl__dnn.lock);
    return state;
}

/* ---- from calls to shapes ---- */

static int64_t fl__dnn_type_of(fl_dtype d) {
    return d == FL_F32 ? FL__DATA_FLOAT : d == FL_F16 ? FL__DATA_HALF : FL__DATA_BFLOAT16;
}

/* Normalises the strides of dims of size 1, as channels-last or channels-first. */
static void fl__dnn_strides(fl__dnn_tensor *t, const int64_t *stride) {
    static const int orders[2][4] = {{1, 3, 2, 0}, {3, 2, 1, 0}};
    for (int o = 0; o < 2; o++) {
        bool fits = true;
        int64_t step = 1;
        for (int i = 0; i < 4; step *= t->dim[orders[o][i++]]) {
            t->stride[orders[o][i]] = step;
            fits = fits && (t->dim[orders[o][i]] == 1 || stride[orders[o][i]] == step);
        }
        if (fits) return;
    }
    for (int i = 0; i < 4; i++) t->stride[i] = stride[i];
}

/* Describes the last 4 dims of t as tensor i of the shape, padding with 1s. Returns false for negative or
   zero strides. */
static bool fl__dnn_describe(fl__dnn_shape *s, int i, const fl_tensor *t) {
    int64_t stride[4];
    fl__dnn_tensor *d = &s->t[i];
    if (t->ndim > 4) return false;
    for (int k = 0; k < 4; k++) {
        const int from = t->ndim - 4 + k;
        d->dim[k] = from < 0 ? 1 : t->shape[from];
        stride[k] = from < 0 ? fl_numel(t) : t->stride[from];
        if (d->dim[k] < 1 || (d->dim[k] > 1 && stride[k] < 1)) return false;
    }
    d->type = fl__dnn_type_of(t->dtype);
    fl__dnn_strides(d, stride);
    return true;
}

/* A plan's arguments: tensors by index (NULL for numbers and temporaries), and their pointers. */
typedef struct fl__dnn_use {
    fl__dnn_shape shape;
    const fl_call *call;
    fl_tensor *t[FL__DNN_TENSORS];
    void *pointer[FL__DNN_TENSORS];
    float scale, hidden, keep, dropout_scale;
    int32_t offset;
} fl__dnn_use;

static bool fl__dnn_floats(const fl_tensor *t) {
    return t->dtype == FL_F32 || t->dtype == FL_F16 || t->dtype == FL_BF16;
}

static bool fl__dnn_conv_of(const fl_call *c, fl__dnn_use *u) {
    const fl_conv2d_args *a = c->args;
    const bool input = c->op == FL_OP_conv2d_grad_input, weight = c->op == FL_OP_conv2d_grad_weight;
    fl_tensor *out = c->out[0];
    const bool bias = u->shape.op == FL__DNN_CONV_BIAS;
    if (a->relu && !bias) return false;
    u->shape.relu = a->relu;
    if (bias) u->shape.op = FL__DNN_CONV;
    u->t[0] = input ? out : c->in[0];
    u->t[1] = weight ? out : c->in[1];
    u->t[2] = input ? c->in[0] : weight ? c->in[1] : out;
    if (!fl__dnn_floats(out)) return false;
    for (int i = 0; i < 3; i++)
        if (!fl__dnn_describe(&u->shape, i, u->t[i])) return false;
    if (bias) {
        const int64_t channels = c->in[2]->shape[0];
        u->t[3] = c->in[2];
        if (channels > 1 && c->in[2]->stride[0] != 1) return false;
        u->shape.t[3] = (fl__dnn_tensor){
            {1, channels, 1, 1}, {channels, 1, channels, channels}, fl__dnn_type_of(c->in[2]->dtype)};
    }
    for (int i = 0; i < 2; i++) {
        u->shape.pad_lo[i] = a->pad_lo[i];
        u->shape.pad_hi[i] = a->pad_hi[i];
        u->shape.stride[i] = a->stride[i];
        u->shape.dilation[i] = a->dilation[i];
    }
    return true;
}

static void fl__dnn_number_of(fl__dnn_use *u, int place, int64_t type, void *value) {
    u->shape.t[place] = (fl__dnn_tensor){{1, 1, 1, 1}, {1, 1, 1, 1}, type};
    u->pointer[place] = value;
}

/* A contiguous f32 tensor with `dims` of t's dims, padded with 1s. */
static void fl__dnn_dense(fl__dnn_tensor *to, const int64_t dim[4], int dims) {
    int64_t step = 1;
    to->type = FL__DATA_FLOAT;
    for (int i = 3; i >= 0; step *= to->dim[i--]) {
        to->dim[i] = i < dims ? dim[i] : 1;
        to->stride[i] = step;
    }
}

/* A mask as a bias, with broadcast dims as 1. */
static bool fl__dnn_bias_of(fl__dnn_use *u, const fl_tensor *mask) {
    int64_t dim[4];
    if (mask->weak) return mask->f64 == 0;
    if (mask->ndim > 4) return false;
    for (int i = 0; i < 4; i++) {
        const int from = mask->ndim - 4 + i;
        dim[i] = from < 0 || !mask->stride[from] ? 1 : mask->shape[from];
    }
    fl__dnn_dense(&u->shape.t[FL__BIAS], dim, 4);
    return true;
}

/* Score of a hidden key. Finite, because differences of infinities are NaN. */
static const double fl__dnn_hides = -1e30;

static void fl__dnn_causal_of(fl__dnn_use *u, int64_t offset) {
    u->hidden = (float)fl__dnn_hides;
    u->offset = (int32_t)offset;
    fl__dnn_number_of(u, FL__HIDDEN, FL__DATA_FLOAT, &u->hidden);
    if (offset) fl__dnn_number_of(u, FL__OFFSET, FL__DATA_INT32, &u->offset);
}

static void fl__dnn_dropout_of(fl__dnn_use *u, double p, int64_t keys) {
    const int64_t *q = u->shape.t[FL__Q].dim, all[4] = {q[0], q[1], q[2], keys};
    u->dropout_scale = (float)(1 / (1 - p));
    fl__dnn_number_of(u, FL__DROPOUT_SCALE, FL__DATA_FLOAT, &u->dropout_scale);
    fl__dnn_dense(&u->shape.t[FL__DROPOUT], all, 4);
    u->shape.t[FL__DROPOUT].type = u->shape.t[FL__Q].type;
}

/* q, k, v, mask, [y, lse, dy] */
static bool fl__dnn_attention_of(const fl_call *c, fl__dnn_use *u) {
    const fl_attention_args *a = c->args;
    const bool back = c->op == fl_op_attention_grad;
    fl_tensor *const all[FL__DROPOUT] = {[FL__Q] = c->in[0],
                                         [FL__KT] = c->in[1],
                                         [FL__V] = c->in[2],
                                         [FL__Y] = back ? c->in[4] : c->out[0],
                                         [FL__LSE] = back ? c->in[5] : c->out[1],
                                         [FL__DY] = back ? c->in[6] : NULL,
                                         [FL__DQ] = back ? c->out[0] : NULL,
                                         [FL__DK] = back ? c->out[1] : NULL,
                                         [FL__DV] = back ? c->out[2] : NULL};
    fl__dnn_shape *s = &u->shape;
    const int64_t queries = c->in[0]->shape[c->in[0]->ndim - 2], keys = c->in[1]->shape[c->in[1]->ndim - 2];
    if (a->p >= 1 || a->softcap != 0 || a->window || (a->causal && a->offset > INT32_MAX)) return false;
    if (queries == 1 && keys == 1) return false; /* the gradient of it is not supported */
    if (a->causal && a->offset && (a->p > 0 || !c->in[3]->weak))
        return false; /* cuDNN makes a plan, which NVIDIA's frontend refuses to ask for */
    if (c->in[0]->dtype != FL_F16 && c->in[0]->dtype != FL_BF16) return false;
    if (!fl__dnn_bias_of(u, c->in[3])) return false;
    for (int i = 0; i < FL__DROPOUT; i++)
        if (all[i] && !fl__dnn_describe(s, i, u->t[i] = all[i])) return false;
    s->t[FL__LSE].type = FL__DATA_FLOAT;
    u->scale = (float)a->scale;
    fl__dnn_number_of(u, FL__SCALE, FL__DATA_FLOAT, &u->scale);
    if (a->causal) fl__dnn_causal_of(u, a->offset);
    if (a->p > 0) fl__dnn_dropout_of(u, a->p, keys);
    for (int i = FL__KT; i <= (back ? FL__V : FL__KT); i++) {
        const fl__dnn_tensor t = s->t[i];
        fl__dnn_swap(s->t[i].dim, s->t[i].stride, &t);
    }
    if (!back) return true;
    u->keep = (float)(1 - a->p);
    fl__dnn_number_of(u, FL__KEEP, FL__DATA_FLOAT, &u->keep);
    fl__dnn_dense(&s->t[FL__ROW_SUM], s->t[FL__Q].dim, 3);
    return true;
}

static int fl__dnn_slot_of(fl_op op) {
    return op == FL_OP_conv2d               ? FL__DNN_CONV
           : op == FL_OP_conv2d_grad_input  ? FL__DNN_GRAD_INPUT
           : op == FL_OP_conv2d_grad_weight ? FL__DNN_GRAD_WEIGHT
           : op == fl_op_conv2d_bias        ? FL__DNN_CONV_BIAS
           : op == fl_op_attention          ? FL__DNN_ATTENTION
                                            : FL__DNN_ATTENTION_GRAD;
}

static bool fl__dnn_use_of(const fl_call *c, fl__dnn_use *u) {
    memset(u, 0, sizeof *u);
    u->call = c;
    u->shape.op = fl__dnn_slot_of(c->op);
    const bool attends = u->shape.op >= FL__DNN_ATTENTION;
    for (int i = 0; i < c->n_out; i++)
        if (!c->out[i] || !fl_numel(c->out[i])) return false;
    if (!(attends ? fl__dnn_attention_of(c, u) : fl__dnn_conv_of(c, u))) return false;
    u->shape.exact = c->in[0]->dtype == FL_F32 && fl_matmul_precision() == FL_F32;
    u->shape.align = 16;
    u->shape.ordinal = flk_device();
    return true;
}

/* ---- running ---- */

static bool fl__dnn_failed(const fl_call *c, fl__dnn_status s) {
    return fl_fail("fl_%s: cuda: cuDNN: %s", fl_op_get_info(c->op)->name,
                   fl__dnn.call.cudnnGetErrorString(s));
}

/* Starts the plan, with the pointers by id. */
static bool fl__dnn_execute(const fl__dnn_plan *p, const fl__dnn_use *u, void *work) {
    void *pointer[FL__DNN_TENSORS];
    int64_t id[FL__DNN_TENSORS], n = 0;
    fl__dnn_graph g = {.failed = false};
    const fl__dnn_handle handle = fl__dnn.handle[p->of.ordinal];
    for (int i = 0; i < FL__DNN_TENSORS; i++)
        if (p->of.t[i].dim[0]) pointer[n] = u->pointer[i], id[n++] = i + 1;
    const fl__dnn_desc pack = fl__dnn_new(&g, FL__BACKEND_VARIANT_PACK_DESCRIPTOR);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_DATA_POINTERS, FL__TYPE_VOID_PTR, n, pointer);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_UNIQUE_IDS, FL__TYPE_INT64, n, id);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_WORKSPACE, FL__TYPE_VOID_PTR, 1, &work);
    fl__dnn_done(&g, pack);
    fl__dnn_status s =
        g.failed ? 2000 : fl__dnn.call.cudnnSetStream(handle, (fl__dnn_stream)flk_stream_now());
    if (!s) s = fl__dnn.call.cudnnBackendExecute(handle, p->plan, pack);
    fl__dnn_drop(&g);
    return !s || fl__dnn_failed(u->call, s);
}

/* Allocates workspace for the plan, and for the row sums of attention's gradient after it. */
static bool fl__dnn_start(const fl__dnn_plan *p, fl__dnn_use *u) {
    const int64_t bytes = (p->workspace + 255) / 256 * 256;
    const fl__dnn_tensor *sum = &p->of.t[FL__ROW_SUM];
    fl_buffer *work = fl__cuda_scratch(u->call, (size_t)(bytes + sum->dim[0] * sum->stride[0] * 4) + 256);
    if (!work) return false;
    u->pointer[FL__ROW_SUM] = (char *)work->ptr + bytes;
    const bool ok = fl__dnn_execute(p, u, work->ptr);
    fl_buffer_drop(work);
    return ok;
}

/* ---- tuning ---- */

typedef struct fl__dnn_trial {
    fl__dnn_plan *plan;
    fl__dnn_use *use;
} fl__dnn_trial;

static int fl__dnn_try(void *trial, int at) {
    fl__dnn_plan *p = ((fl__dnn_trial *)trial)->plan;
    fl__dnn.call.cudnnBackendDestroyDescriptor(p->plan);
    p->plan = NULL;
    p->at = at;
    p->can = fl__dnn_make(p);
    return p->can ? p->at : -1;
}
static bool fl__dnn_try_start(void *trial) {
    const fl__dnn_trial *t = trial;
    return fl__dnn_start(t->plan, t->use);
}

/* ---- slots ---- */

/* The mask's stored elements as a bias: 0, or the value added, for visible keys. */
static fl_tensor *fl__dnn_bias(fl_tensor *mask) {
    const fl_shape shape = fl_shape_of(mask);
    for (int i = 0; mask && i < shape.ndim; i++)
        if (!mask->stride[i]) mask = fl_slice(mask, i, 0, 1, 1);
    if (!mask) return NULL;
    fl_tensor *y = fl_out_on(mask->backend, fl_shape_of(mask), FL_F32), *hides = fl_num(fl__dnn_hides);
    fl_call c = {.op = FL_OP_maximum, .n_out = 1, .n_in = 2, .out = {y}, .in = {mask, hides}};
    if (mask->dtype == FL_B8)
        c = (fl_call){.op = FL_OP_where, .n_out = 1, .n_in = 3, .out = {y}, .in = {mask, fl_num(0), hides}};
    return y && hides && c.in[1] && fl_call_run(&c) ? y : NULL;
}

/* Draws the dropout mask of a call. */
static fl_tensor *fl__dnn_dropout(const fl_call *c) {
    const fl_attention_args *a = c->args;
    fl_shape s = fl_shape_of(c->in[0]);
    s.dim[s.ndim - 1] = c->in[1]->shape[c->in[1]->ndim - 2];
    fl_tensor *y = fl_out_on(c->in[0]->backend, s, c->in[0]->dtype), *keep = fl_num(1 - a->p);
    flk_pass p;
    if (!y || !keep || !fl_out_allocate(y)) return NULL;
    fl__cuda_pass(&p, c->op, 2, (fl_tensor *[]){y, keep}, 0, -1, true);
    return fl__cuda_started(c, flk_dropout(&p, a->p, a->rng.key, a->rng.counter, (int)FL_F32)) ? y : NULL;
}

/* Corrects the results of queries without a visible key. */
static bool fl__dnn_mend_blind(const fl_call *c) {
    flk_lines l;
    fl__cuda_lines(&l, c->op, 2, c->out, 0, c->out[0]->ndim - 1);
    return fl__cuda_started(c, flk_attention_blind(&l, fl__dnn_hides / 2));
}

static bool fl__dnn_run_plan(fl__dnn_plan *p, fl__dnn_use *u) {
    const fl_call *c = u->call;
    if (u->shape.t[FL__BIAS].dim[0]) {
        if (!(u->t[FL__BIAS] = fl__dnn_bias(c->in[3]))) return false;
        u->pointer[FL__BIAS] = fl_data(u->t[FL__BIAS]);
    }
    if (u->shape.t[FL__DROPOUT].dim[0]) {
        if (!(u->t[FL__DROPOUT] = fl__dnn_dropout(c))) return false;
        u->pointer[FL__DROPOUT] = fl_data(u->t[FL__DROPOUT]);
    }
    if (p->fresh && !fl__cuda_captures()) {
        p->fresh = false;
        fl__cuda_tune(fl__dnn_key(&p->of), p->at, fl__dnn_try, fl__dnn_try_start, &(fl__dnn_trial){p, u});
    }
    return fl__dnn_start(p, u) && (!u->t[FL__BIAS] || c->op != fl_op_attention || fl__dnn_mend_blind(c));
}

/* Sets *done if the library computes the call. */
static bool fl__dnn_run(const fl_call *c, bool *done) {
    fl__dnn_use u;
    uintptr_t all = 0;
    *done = false;
    if (!fl__dnn_use_of(c, &u) || fl__dnn_there() != 1 || !fl__dnn_serves(u.shape.op)) return true;
    for (int i = 0; i < c->n_out; i++)
        if (!fl_out_make(c->out[i])) return false;
    for (int i = 0; i < FL__DNN_TENSORS; i++)
        if (u.t[i]) all |= (uintptr_t)(u.pointer[i] = fl_data(u.t[i]));
    if (all & 15) u.shape.align = (int64_t)(all & -all);
    fl_scope s = fl_scope_begin();
    pthread_mutex_lock(&fl__dnn.lock);
    fl__dnn_plan *p = fl__dnn_plan_of(c, &u.shape);
    const bool ok = p && p->can ? (*done = fl__dnn_run_plan(p, &u)) : p || !fl__cuda_captures();
    pthread_mutex_unlock(&fl__dnn.lock);
    fl_scope_end(&s);
    return ok;
}

FL_PRIVATE int fl__cuda_dnn_plans(const fl_call *c) {
    fl__dnn_use u;
    if (!fl__dnn_use_of(c, &u)) return 0;
    if (fl__dnn_there() < 0) return -1;
    if (!fl__dnn_serves(u.shape.op)) return 0;
    pthread_mutex_lock(&fl__dnn.lock);
    const fl__dnn_plan *p = fl__dnn_plan_of(c, &u.shape);
    const bool can = p && p->can;
    pthread_mutex_unlock(&fl__dnn.lock);
    return can;
}

static int64_t fl__dnn_declines; /* atomic */
FL_PRIVATE int64_t fl__cuda_dnn_declined(void) {
    return __atomic_load_n(&fl__dnn_declines, __ATOMIC_RELAXED);
}

FL_CUDA_SLOT(fl__dnn_slot) {
    const int at = fl__dnn_slot_of(c->op);
    const fl_slot own = fl__dnn_own[at];
    bool done;
    if (!fl__dnn_run(c, &done)) return false;
    if (done) return true;
    if (!own) return fl_call_compose(c);
    if (at < FL__DNN_ATTENTION) return fl__cuda_widely(own, self, c);
    __atomic_add_fetch(&fl__dnn_declines, 1, __ATOMIC_RELAXED);
    return own(self, c); /* it supports half floats */
}

FL_PRIVATE void fl__cuda_dnn_slots(fl_backend *cuda) {
    const fl_op ops[FL__DNN_OPS] = {FL_OP_conv2d,      FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight,
                                    fl_op_conv2d_bias, fl_op_attention,         fl_op_attention_grad};
    for (int i = 0; i < FL__DNN_OPS; i++) {
        fl__dnn_own[i] = cuda->op[ops[i]];
        fl_backend_set(cuda, ops[i], fl__dnn_slot, FL_SLOT_NARROW);
    }
}

#endif
#endif
/* MIT licence: see LICENSE. */
