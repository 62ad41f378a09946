/* kernels/cuda/dnn.h - convolution and attention on backend cuda by cuDNN 9's graph API

   A call becomes a graph of operations on tensors with their actual shapes and strides, so that images may
   be channels-first or channels-last. cuDNN's heuristics propose engines; the first one that is allowed and
   can be built makes the plan, which is cached (plan.h). Allowed engines are deterministic,
   and for f32 compute in f32, unless fl_matmul_precision permits less ("compute in float" means TF32 to most
   engines). Calls without a plan use the slot that this one replaced. With FL_CUDA_TUNE (plan.h) the fastest
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FL__DNN_PLANS = 1024,
    FL__DNN_PARTS = 192,  /* descriptors per graph */
    FL__DNN_STEPS = 32,   /* operations per graph */
    FL__DNN_CONFIGS = 16  /* engines tried */
};

/* Values of a graph. Those below FL__DNN_TENSORS are the call's tensors, temporaries and, from FL__SCALE on,
   numbers; the others are inside the plan. Of a convolution's x, w and y one is the gradient. K is
   transposed, as V is in the gradient of attention. */
enum {
    FL__NONE,
    FL__X, FL__W, FL__CONV_Y, FL__CONV_BIAS,
    FL__Q = 1, FL__KT, FL__V, FL__Y, FL__LSE, FL__BIAS, FL__DY, FL__DQ, FL__DK, FL__DV,
    FL__DROPOUT, /* [batch, heads, queries, keys]: 1, or 0 where a weight is dropped */
    FL__ROW_SUM,
    FL__SCALE,
    FL__HIDDEN, /* score of keys hidden by causal */
    FL__OFFSET,
    FL__KEEP,   /* 1 - p of dropout */
    FL__DROPOUT_SCALE,
    FL__DNN_TENSORS,
    FL__CONV_SUM = FL__DNN_TENSORS, FL__CONV_BIASED,
    FL__SCORE, FL__ROW, FL__COLUMN, FL__SEES, FL__MOST, FL__EXP, FL__SUM, FL__LOG,
    FL__WEIGHT, FL__NARROW_WEIGHT, FL__WEIGHT_T, FL__DY_Y, FL__DOT, FL__DSCORE, FL__DSCORE_T, FL__K,
    FL__DNN_VALUES
};

/* A tensor of a graph: 4 dims. */
typedef struct fl__dnn_tensor {
    int64_t dim[4], stride[4], type;
} fl__dnn_tensor;

/* Cache key of a plan, compared bytewise. */
enum { FL__DNN_CONV, FL__DNN_GRAD_INPUT, FL__DNN_GRAD_WEIGHT, FL__DNN_CONV_BIAS, FL__DNN_ATTENTION,
       FL__DNN_ATTENTION_GRAD, FL__DNN_OPS };
typedef struct fl__dnn_shape {
    int64_t device, op, align, exact, relu, pad_lo[2], pad_hi[2], stride[2], dilation[2];
    fl__dnn_tensor t[FL__DNN_TENSORS]; /* dims all 0: absent */
} fl__dnn_shape;

typedef struct fl__dnn_plan {
    fl__cuda_plan plan;
    fl__dnn_shape of;
    fl__dnn_desc made; /* NULL: not made */
    int64_t workspace;
} fl__dnn_plan;

static bool fl__dnn_has(const fl__dnn_shape *s, int value) {
    return s->t[value].dim[0] != 0;
}

/* ---- the library ---- */

static struct {
    FL__DNN_CALLS(FL__CUDA_FIELD)
} fl__dnn;
static fl__dnn_desc fl__dnn_device; /* from the JSON; NULL: the handle's */

static const char *fl__dnn_open(void **handle);
static fl__cuda_library fl__dnn_library = {
    .file = "libcudnn.so.9",
    .instead = "convolutions use our own slower kernels, attention is computed in parts",
    .needs = {"libcublasLt.so.13", "libnvrtc.so.13"},
    .functions = &fl__dnn,
    .name = {FL__DNN_CALLS(FL__CUDA_NAME)},
    .opened_by = "cudnnCreate",
    .open = fl__dnn_open};

/* Attention needs cuDNN 9.16: 9.10.0 and 9.10.1 compute it wrongly, and up to 9.15 its gradient is wrong for
   numbers of keys that 128 does not divide. */
static bool fl__dnn_serves(int64_t op) {
    return op < FL__DNN_ATTENTION || fl__dnn.cudnnGetVersion() >= 91600;
}

/* On Blackwell, sm_100, sums of the gradient are in a fixed order from 9.18 on, and not with dropout. */
static bool fl__dnn_in_order(const fl__dnn_shape *s) {
    return s->op != FL__DNN_ATTENTION_GRAD || flk_architecture() / 10 != 10 ||
           (fl__dnn.cudnnGetVersion() >= 91800 && !fl__dnn_has(s, FL__DROPOUT));
}

/* ---- descriptors; the lock is held in all functions below ---- */

/* A graph under construction, which owns its descriptors. */
typedef struct fl__dnn_graph {
    const fl__dnn_shape *of;
    fl__dnn_status failed; /* the first error; later functions do nothing */
    int n, steps;
    fl__dnn_desc part[FL__DNN_PARTS], step[FL__DNN_STEPS], value[FL__DNN_VALUES];
} fl__dnn_graph;

static fl__dnn_desc fl__dnn_new(fl__dnn_graph *g, fl__dnn_kind kind) {
    fl__dnn_desc d = NULL;
    if (g->n == FL__DNN_PARTS) g->failed = -1;
    if (!g->failed) g->failed = fl__dnn.cudnnBackendCreateDescriptor(kind, &d);
    if (!g->failed) g->part[g->n++] = d;
    return d;
}

static void fl__dnn_set(fl__dnn_graph *g, fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_type type, int64_t n,
                        const void *v) {
    if (!g->failed) g->failed = fl__dnn.cudnnBackendSetAttribute(d, a, type, n, v);
}

/* Returns the number of values read, -1 if it fails. */
static int64_t fl__dnn_get(fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_type type, int64_t most, void *v) {
    int64_t n = 0;
    return fl__dnn.cudnnBackendGetAttribute(d, a, type, most, &n, v) ? -1 : n < most ? n : most;
}

static void fl__dnn_link(fl__dnn_graph *g, fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_desc to) {
    if (to) fl__dnn_set(g, d, a, FL__TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

static fl__dnn_desc fl__dnn_done(fl__dnn_graph *g, fl__dnn_desc d) {
    if (!g->failed) g->failed = fl__dnn.cudnnBackendFinalize(d);
    return d;
}

static void fl__dnn_drop(fl__dnn_graph *g) {
    while (g->n > 0) fl__dnn.cudnnBackendDestroyDescriptor(g->part[--g->n]);
}

/* Names the handle, unless there is a device without one. */
static void fl__dnn_set_handle(fl__dnn_graph *g, fl__dnn_desc d, fl__dnn_attribute a) {
    if (!fl__dnn_device) fl__dnn_set(g, d, a, FL__TYPE_HANDLE, 1, &fl__dnn_library.handle[g->of->device]);
}

/* Describes the device of a file. */
static bool fl__dnn_read_device(const char *path) {
    static char text[4096];
    fl__dnn_graph g = {.failed = 0};
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    while (n && text[n - 1] == '\n') n--;
    fl__dnn_device = fl__dnn_new(&g, FL__BACKEND_DEVICEPROP_DESCRIPTOR);
    fl__dnn_set(&g, fl__dnn_device, FL__ATTR_DEVICEPROP_JSON_REPRESENTATION, FL__TYPE_CHAR, (int64_t)n, text);
    fl__dnn_done(&g, fl__dnn_device);
    return !g.failed;
}

static const char *fl__dnn_open(void **handle) {
    static bool warned;
    const char *json = getenv("FL_CUDA_DEVICE_JSON");
    const int version = (int)fl__dnn.cudnnGetVersion();
    fl__dnn_handle h;
    if (!fl__dnn_serves(FL__DNN_ATTENTION) && !warned)
        fl_log_message(FL_LOG_WARN, "cuda: attention is computed in parts: got cuDNN %d.%d.%d, expected 9.16",
                       version / 10000, version / 100 % 100, version % 100);
    warned = true;
    if (json) return fl__dnn_read_device(json) ? NULL : "the device of FL_CUDA_DEVICE_JSON is rejected";
    const fl__dnn_status s = fl__dnn.cudnnCreate(&h);
    if (s) return fl__dnn.cudnnGetErrorString(s);
    *handle = h;
    return NULL;
}

/* ---- values of a graph ---- */

static fl__dnn_desc fl__dnn_describe_value(fl__dnn_graph *g, int64_t id, const fl__dnn_tensor *t,
                                           fl__dnn_attribute where) {
    const fl__dnn_desc d = fl__dnn_new(g, FL__BACKEND_TENSOR_DESCRIPTOR);
    const int32_t type = (int32_t)t->type;
    const bool yes = true;
    fl__dnn_set(g, d, FL__ATTR_TENSOR_DATA_TYPE, FL__TYPE_DATA_TYPE, 1, &type);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_DIMENSIONS, FL__TYPE_INT64, 4, t->dim);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_STRIDES, FL__TYPE_INT64, 4, t->stride);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_UNIQUE_ID, FL__TYPE_INT64, 1, &id);
    fl__dnn_set(g, d, FL__ATTR_TENSOR_BYTE_ALIGNMENT, FL__TYPE_INT64, 1, &g->of->align);
    if (where) fl__dnn_set(g, d, where, FL__TYPE_BOOLEAN, 1, &yes);
    return fl__dnn_done(g, d);
}

/* Swaps t's last two dims, without moving data. */
static void fl__dnn_swap(fl__dnn_tensor *t) {
    const fl__dnn_tensor was = *t;
    t->dim[2] = was.dim[3], t->dim[3] = was.dim[2];
    t->stride[2] = was.stride[3], t->stride[3] = was.stride[2];
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

/* Tensors inside a plan: contiguous f32 [batch, heads, queries, keys] unless told otherwise here. rows: one
   number per query; like: as that tensor of the shape; swaps: with the last two dims swapped. */
enum { FL__DNN_NARROW = -1 /* q's type */ };
static const struct {
    int8_t rows, like, swaps, type;
} fl__dnn_inner[FL__DNN_VALUES] = {
    [FL__CONV_SUM] = {.like = FL__CONV_Y}, [FL__CONV_BIASED] = {.like = FL__CONV_Y},
    [FL__DY_Y] = {.like = FL__DY},         [FL__DOT] = {.rows = true},
    [FL__MOST] = {.rows = true},           [FL__SUM] = {.rows = true},
    [FL__LOG] = {.rows = true},            [FL__SEES] = {.type = FL__DATA_BOOLEAN},
    [FL__ROW] = {.type = FL__DATA_INT32},  [FL__COLUMN] = {.type = FL__DATA_INT32},
    [FL__NARROW_WEIGHT] = {.type = FL__DNN_NARROW},
    [FL__WEIGHT_T] = {.swaps = true, .type = FL__DNN_NARROW},
    [FL__DSCORE_T] = {.swaps = true, .type = FL__DNN_NARROW},
    [FL__K] = {.like = FL__KT, .swaps = true, .type = FL__DNN_NARROW}};

static fl__dnn_desc fl__dnn_new_inner(fl__dnn_graph *g, int i) {
    const fl__dnn_tensor *all = g->of->t, *q = &all[FL__Q];
    fl__dnn_tensor t = all[fl__dnn_inner[i].like];
    if (!fl__dnn_inner[i].like)
        fl__dnn_dense(&t, (int64_t[]){q->dim[0], q->dim[1], q->dim[2], all[FL__KT].dim[3]},
                      fl__dnn_inner[i].rows ? 3 : 4);
    if (fl__dnn_inner[i].swaps) fl__dnn_swap(&t);
    t.type = fl__dnn_inner[i].type == FL__DNN_NARROW ? q->type : fl__dnn_inner[i].type;
    return fl__dnn_describe_value(g, 100 + g->n, &t, FL__ATTR_TENSOR_IS_VIRTUAL);
}

/* The descriptor of a value: that of a tensor or number is created when first used. */
static fl__dnn_desc fl__dnn_value(fl__dnn_graph *g, int i) {
    if (i && i < FL__DNN_TENSORS && !g->value[i])
        g->value[i] = fl__dnn_describe_value(g, i, &g->of->t[i],
                                             i < FL__SCALE ? 0 : FL__ATTR_TENSOR_IS_BY_VALUE);
    return g->value[i];
}

/* ---- operations of a graph ---- */

/* Operations, numbered as 1000 times their kind, plus a mode. Those without a name here are pointwise. */
enum {
    FL__DNN_MATMUL = 1000,
    FL__DNN_RESHAPE = 2000,
    FL__DNN_SUM = 3000 + FL__REDUCE_TENSOR_ADD,
    FL__DNN_MAX = 3000 + FL__REDUCE_TENSOR_MAX,
    FL__DNN_CONVOLVE = 4000 + FL__CROSS_CORRELATION, /* and 5001, 6001: its gradients by x and w */
};
/* A descriptor of `rule` tells what is computed, by its mode and its type of computation (a reshape has
   none); one of `operation`, on which values. */
typedef struct fl__dnn_maker {
    unsigned rule, mode, mode_type, math, operation, rule_at, x, b, t, y;
} fl__dnn_maker;
static const fl__dnn_maker fl__dnn_makers[] = {
#define FL__DNN_CONVOLUTION(kind, way, dx, dw, dy)                                                        \
    {FL__BACKEND_CONVOLUTION_DESCRIPTOR, FL__ATTR_CONVOLUTION_CONV_MODE, FL__TYPE_CONVOLUTION_MODE,       \
     FL__ATTR_CONVOLUTION_COMP_TYPE, FL__BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR,               \
     FL__ATTR_OPERATION_CONVOLUTION_##way##_ALPHA + 2, FL__ATTR_OPERATION_CONVOLUTION_##way##_##dx,       \
     FL__ATTR_OPERATION_CONVOLUTION_##way##_##dw, 0, FL__ATTR_OPERATION_CONVOLUTION_##way##_##dy}
    {FL__BACKEND_POINTWISE_DESCRIPTOR, FL__ATTR_POINTWISE_MODE, FL__TYPE_POINTWISE_MODE,
     FL__ATTR_POINTWISE_MATH_PREC, FL__BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
     FL__ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, FL__ATTR_OPERATION_POINTWISE_XDESC,
     FL__ATTR_OPERATION_POINTWISE_BDESC, FL__ATTR_OPERATION_POINTWISE_TDESC,
     FL__ATTR_OPERATION_POINTWISE_YDESC},
    {FL__BACKEND_MATMUL_DESCRIPTOR, 0, 0, FL__ATTR_MATMUL_COMP_TYPE, FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR,
     FL__ATTR_OPERATION_MATMUL_DESC, FL__ATTR_OPERATION_MATMUL_ADESC, FL__ATTR_OPERATION_MATMUL_BDESC, 0,
     FL__ATTR_OPERATION_MATMUL_CDESC},
    {0, 0, 0, 0, FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 0, FL__ATTR_OPERATION_RESHAPE_XDESC, 0, 0,
     FL__ATTR_OPERATION_RESHAPE_YDESC},
    {FL__BACKEND_REDUCTION_DESCRIPTOR, FL__ATTR_REDUCTION_OPERATOR, FL__TYPE_REDUCTION_OPERATOR_TYPE,
     FL__ATTR_REDUCTION_COMP_TYPE, FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
     FL__ATTR_OPERATION_REDUCTION_DESC, FL__ATTR_OPERATION_REDUCTION_XDESC, 0, 0,
     FL__ATTR_OPERATION_REDUCTION_YDESC},
    FL__DNN_CONVOLUTION(FORWARD, FORWARD, X, W, Y),
    FL__DNN_CONVOLUTION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    FL__DNN_CONVOLUTION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY)};
#undef FL__DNN_CONVOLUTION

/* y = op(x[, b[, t]]), computed in `math` (0: f32), if the shape has value `has` and lacks `lacks`. A value
   inside the plan that is y of several steps is a new one each time. */
typedef struct fl__dnn_step {
    int16_t op;
    int8_t y, x, b, t, has, lacks, math, axis; /* axis: of indices */
} fl__dnn_step;

static void fl__dnn_set_conv(fl__dnn_graph *g, fl__dnn_desc rule) {
    const fl__dnn_shape *s = g->of;
    const int64_t dims = 2;
    fl__dnn_set(g, rule, FL__ATTR_CONVOLUTION_SPATIAL_DIMS, FL__TYPE_INT64, 1, &dims);
    fl__dnn_set(g, rule, FL__ATTR_CONVOLUTION_PRE_PADDINGS, FL__TYPE_INT64, 2, s->pad_lo);
    fl__dnn_set(g, rule, FL__ATTR_CONVOLUTION_POST_PADDINGS, FL__TYPE_INT64, 2, s->pad_hi);
    fl__dnn_set(g, rule, FL__ATTR_CONVOLUTION_DILATIONS, FL__TYPE_INT64, 2, s->dilation);
    fl__dnn_set(g, rule, FL__ATTR_CONVOLUTION_FILTER_STRIDES, FL__TYPE_INT64, 2, s->stride);
}

static fl__dnn_desc fl__dnn_rule(fl__dnn_graph *g, const fl__dnn_maker *m, fl__dnn_step s) {
    const int propagates = FL__PROPAGATE_NAN;
    const int32_t mode = s.op % 1000, math = s.math;
    const int64_t axis = s.axis;
    if (!m->math) return NULL;
    const fl__dnn_desc d = fl__dnn_new(g, m->rule);
    if (m->mode_type) fl__dnn_set(g, d, m->mode, m->mode_type, 1, &mode);
    fl__dnn_set(g, d, m->math, FL__TYPE_DATA_TYPE, 1, &math);
    if (axis) fl__dnn_set(g, d, FL__ATTR_POINTWISE_AXIS, FL__TYPE_INT64, 1, &axis);
    if (s.op == FL__POINTWISE_RELU_FWD)
        fl__dnn_set(g, d, FL__ATTR_POINTWISE_NAN_PROPAGATION, FL__TYPE_NAN_PROPOGATION, 1, &propagates);
    if (s.op >= FL__DNN_CONVOLVE) fl__dnn_set_conv(g, d);
    return fl__dnn_done(g, d);
}

static void fl__dnn_add(fl__dnn_graph *g, fl__dnn_step s) {
    const fl__dnn_maker *m = &fl__dnn_makers[s.op / 1000];
    const float one = 1, zero = 0;
    if ((s.has && !fl__dnn_has(g->of, s.has)) || (s.lacks && fl__dnn_has(g->of, s.lacks))) return;
    const fl__dnn_desc rule = fl__dnn_rule(g, m, s), x = fl__dnn_value(g, s.x), b = fl__dnn_value(g, s.b),
                       t = fl__dnn_value(g, s.t);
    if (s.y >= FL__DNN_TENSORS) g->value[s.y] = fl__dnn_new_inner(g, s.y);
    const fl__dnn_desc y = fl__dnn_value(g, s.y), d = fl__dnn_new(g, m->operation);
    if (s.op >= FL__DNN_CONVOLVE) {
        fl__dnn_set(g, d, m->rule_at - 2, FL__TYPE_FLOAT, 1, &one); /* alpha, beta */
        fl__dnn_set(g, d, m->rule_at - 1, FL__TYPE_FLOAT, 1, &zero);
    }
    fl__dnn_link(g, d, m->rule_at, rule);
    fl__dnn_link(g, d, m->x, x);
    fl__dnn_link(g, d, m->b, b);
    fl__dnn_link(g, d, m->t, t);
    fl__dnn_link(g, d, m->y, y);
    g->step[g->steps++] = fl__dnn_done(g, d);
}

/* Adds steps up to one without y. */
static void fl__dnn_add_all(fl__dnn_graph *g, const fl__dnn_step *s) {
    for (; s->y; s++) fl__dnn_add(g, *s);
}

/* ---- graphs ---- */

/* y = conv(x, w) [+ bias, [at least 0]] */
static void fl__dnn_conv(fl__dnn_graph *g) {
    const bool relu = g->of->relu;
    const int8_t sum = fl__dnn_has(g->of, FL__CONV_BIAS) ? FL__CONV_SUM : FL__CONV_Y,
                 biased = relu ? FL__CONV_BIASED : FL__CONV_Y;
    const fl__dnn_step steps[] = {
        {.op = (int16_t)(FL__DNN_CONVOLVE + 1000 * g->of->op), sum, FL__X, FL__W},
        {.op = FL__POINTWISE_ADD, biased, FL__CONV_SUM, FL__CONV_BIAS, .has = FL__CONV_BIAS},
        {.op = relu ? FL__POINTWISE_RELU_FWD : 0, relu ? FL__CONV_Y : FL__NONE, FL__CONV_BIASED},
        {.op = 0}};
    fl__dnn_add_all(g, steps);
}

/* The gradient: row_sum = sum dy y (1 - p) */
static const fl__dnn_step fl__dnn_row_sums[] = {{.op = FL__POINTWISE_MUL, FL__DY_Y, FL__DY, FL__Y},
                                                {.op = FL__DNN_SUM, FL__DOT, FL__DY_Y},
                                                {.op = FL__POINTWISE_MUL, FL__ROW_SUM, FL__DOT, FL__KEEP},
                                                {.op = 0}};

/* score = scale q k^T + bias; causal: hidden for keys after the query's position */
static const fl__dnn_step fl__dnn_scores[] = {
    {.op = FL__DNN_MATMUL, FL__SCORE, FL__Q, FL__KT},
    {.op = FL__POINTWISE_MUL, FL__SCORE, FL__SCORE, FL__SCALE},
    {.op = FL__POINTWISE_ADD, FL__SCORE, FL__SCORE, FL__BIAS, .has = FL__BIAS},
    {.op = FL__POINTWISE_GEN_INDEX, FL__ROW, FL__SCORE, .has = FL__HIDDEN, .axis = 2},
    {.op = FL__POINTWISE_GEN_INDEX, FL__COLUMN, FL__SCORE, .has = FL__HIDDEN, .axis = 3},
    {.op = FL__POINTWISE_ADD, FL__ROW, FL__ROW, FL__OFFSET, .has = FL__OFFSET, .math = FL__DATA_INT32},
    {.op = FL__POINTWISE_CMP_GE, FL__SEES, FL__ROW, FL__COLUMN, .has = FL__HIDDEN, .math = FL__DATA_BOOLEAN},
    {.op = FL__POINTWISE_BINARY_SELECT, FL__SCORE, FL__SCORE, FL__HIDDEN, FL__SEES, .has = FL__HIDDEN},
    {.op = 0}};

/* y = dropout(softmax(score)) v, lse = max + log sum exp(score - max) */
static const fl__dnn_step fl__dnn_attention[] = {
    {.op = FL__DNN_MAX, FL__MOST, FL__SCORE},
    {.op = FL__POINTWISE_SUB, FL__EXP, FL__SCORE, FL__MOST},
    {.op = FL__POINTWISE_EXP, FL__EXP, FL__EXP},
    {.op = FL__DNN_SUM, FL__SUM, FL__EXP},
    {.op = FL__POINTWISE_LOG, FL__LOG, FL__SUM},
    {.op = FL__POINTWISE_ADD, FL__LSE, FL__MOST, FL__LOG},
    {.op = FL__POINTWISE_DIV, FL__NARROW_WEIGHT, FL__EXP, FL__SUM, .lacks = FL__DROPOUT},
    {.op = FL__POINTWISE_DIV, FL__WEIGHT, FL__EXP, FL__SUM, .has = FL__DROPOUT},
    {.op = FL__POINTWISE_MUL, FL__WEIGHT, FL__WEIGHT, FL__DROPOUT, .has = FL__DROPOUT},
    {.op = FL__POINTWISE_MUL, FL__NARROW_WEIGHT, FL__WEIGHT, FL__DROPOUT_SCALE, .has = FL__DROPOUT},
    {.op = FL__DNN_MATMUL, FL__Y, FL__NARROW_WEIGHT, FL__V},
    {.op = 0}};

/* w = exp(score - lse), dv = dropout(w)^T dy, ds = w (dropout(dy v^T) - row_sum) scale, dq = ds k,
   dk = ds^T q; the factor 1 / (1 - p) of dropout is taken out of the brackets */
static const fl__dnn_step fl__dnn_attention_grad[] = {
    {.op = FL__POINTWISE_SUB, FL__EXP, FL__SCORE, FL__LSE},
    {.op = FL__POINTWISE_EXP, FL__EXP, FL__EXP},
    {.op = FL__DNN_RESHAPE, FL__WEIGHT_T, FL__EXP, .lacks = FL__DROPOUT},
    {.op = FL__POINTWISE_MUL, FL__WEIGHT, FL__EXP, FL__DROPOUT, .has = FL__DROPOUT},
    {.op = FL__POINTWISE_MUL, FL__WEIGHT, FL__WEIGHT, FL__DROPOUT_SCALE, .has = FL__DROPOUT},
    {.op = FL__DNN_RESHAPE, FL__WEIGHT_T, FL__WEIGHT, .has = FL__DROPOUT},
    {.op = FL__DNN_MATMUL, FL__DV, FL__WEIGHT_T, FL__DY},
    {.op = FL__DNN_MATMUL, FL__DSCORE, FL__DY, FL__V},
    {.op = FL__POINTWISE_MUL, FL__DSCORE, FL__DSCORE, FL__DROPOUT, .has = FL__DROPOUT},
    {.op = FL__POINTWISE_SUB, FL__DSCORE, FL__DSCORE, FL__ROW_SUM},
    {.op = FL__POINTWISE_MUL, FL__DSCORE, FL__DSCORE, FL__EXP},
    {.op = FL__POINTWISE_MUL, FL__DSCORE, FL__DSCORE, FL__DROPOUT_SCALE, .has = FL__DROPOUT},
    {.op = FL__POINTWISE_MUL, FL__DSCORE, FL__DSCORE, FL__SCALE},
    {.op = FL__DNN_RESHAPE, FL__DSCORE_T, FL__DSCORE},
    {.op = FL__DNN_MATMUL, FL__DK, FL__DSCORE_T, FL__Q},
    {.op = FL__DNN_RESHAPE, FL__K, FL__KT},
    {.op = FL__DNN_MATMUL, FL__DQ, FL__DSCORE, FL__K},
    {.op = 0}};

/* ---- plans ---- */

/* Whether an engine is deterministic and, if exact, computes in f32. */
static bool fl__dnn_allowed(fl__dnn_graph *g, fl__dnn_desc config) {
    fl__dnn_desc engine = fl__dnn_new(g, FL__BACKEND_ENGINE_DESCRIPTOR);
    int32_t note[16];
    if (!engine ||
        fl__dnn_get(config, FL__ATTR_ENGINECFG_ENGINE, FL__TYPE_BACKEND_DESCRIPTOR, 1, &engine) < 0)
        return false;
    const int64_t n = fl__dnn_get(engine, FL__ATTR_ENGINE_NUMERICAL_NOTE, FL__TYPE_NUMERICAL_NOTE, 16, note);
    bool ok = n >= 0;
    for (int64_t i = 0; i < n && ok; i++)
        ok = note[i] != FL__NUMERICAL_NOTE_NONDETERMINISTIC &&
             !(g->of->exact && (note[i] == FL__NUMERICAL_NOTE_TENSOR_CORE ||
                                note[i] == FL__NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                                note[i] == FL__NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
    return ok;
}

/* The most workspace of a plan in bytes. Attention may take what its gradient takes in our own kernels:
   scores, weights and the gradients of both, in f32 and narrow. */
static int64_t fl__dnn_most_workspace(const fl__dnn_shape *s) {
    const int64_t *q = s->t[FL__Q].dim, least = (int64_t)1 << 30;
    const int64_t own = s->op < FL__DNN_ATTENTION ? 0 : 12 * q[0] * q[1] * q[2] * s->t[FL__KT].dim[3];
    return own > least ? own : least;
}

static bool fl__dnn_build(fl__dnn_plan *p, fl__dnn_desc config) {
    fl__dnn_graph g = {.of = &p->of};
    const fl__dnn_desc plan = fl__dnn_new(&g, FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    fl__dnn_link(&g, plan, FL__ATTR_EXECUTION_PLAN_DEVICEPROP, fl__dnn_device);
    fl__dnn_set_handle(&g, plan, FL__ATTR_EXECUTION_PLAN_HANDLE);
    fl__dnn_link(&g, plan, FL__ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    fl__dnn_done(&g, plan);
    /* Without a device, loading a runtime-compiled engine, the last step, must fail. */
    const bool compiled = fl__dnn_device && g.failed == 5001;
    const bool ok = compiled || (!g.failed &&
                                 fl__dnn_get(plan, FL__ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, FL__TYPE_INT64, 1,
                                             &p->workspace) >= 0 &&
                                 p->workspace <= fl__dnn_most_workspace(&p->of));
    if (ok) p->made = plan, g.n = 0;
    fl__dnn_drop(&g);
    return ok;
}

/* Chooses the first engine from p->plan.at on that is allowed and can be built; `at` becomes its index. */
static bool fl__dnn_choose(fl__dnn_graph *g, fl__dnn_plan *p, fl__dnn_desc graph, int32_t mode) {
    fl__dnn_desc config[FL__DNN_CONFIGS];
    const fl__dnn_desc heuristics = fl__dnn_new(g, FL__BACKEND_ENGINEHEUR_DESCRIPTOR);
    fl__dnn_link(g, heuristics, FL__ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    fl__dnn_set(g, heuristics, FL__ATTR_ENGINEHEUR_MODE, FL__TYPE_HEUR_MODE, 1, &mode);
    fl__dnn_link(g, heuristics, FL__ATTR_ENGINEHEUR_DEVICEPROP, fl__dnn_device);
    fl__dnn_done(g, heuristics);
    for (int i = 0; i < FL__DNN_CONFIGS; i++) config[i] = fl__dnn_new(g, FL__BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed) return false;
    const int64_t n = fl__dnn_get(heuristics, FL__ATTR_ENGINEHEUR_RESULTS, FL__TYPE_BACKEND_DESCRIPTOR,
                                  FL__DNN_CONFIGS, config);
    for (int i = p->plan.at; i < n; i++)
        if (fl__dnn_allowed(g, config[i]) && fl__dnn_build(p, config[i]))
            return p->plan.at = i, true;
    return false;
}

static bool fl__dnn_make(void *plan, void *use) {
    fl__dnn_plan *p = plan;
    fl__dnn_graph g = {.of = &p->of};
    const bool back = p->of.op == FL__DNN_ATTENTION_GRAD;
    (void)use;
    if (!fl__dnn_in_order(&p->of)) return false;
    if (p->of.op < FL__DNN_ATTENTION) {
        fl__dnn_conv(&g);
    } else {
        if (back) fl__dnn_add_all(&g, fl__dnn_row_sums);
        fl__dnn_add_all(&g, fl__dnn_scores);
        fl__dnn_add_all(&g, back ? fl__dnn_attention_grad : fl__dnn_attention);
    }
    const fl__dnn_desc graph = fl__dnn_new(&g, FL__BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    fl__dnn_set(&g, graph, FL__ATTR_OPERATIONGRAPH_OPS, FL__TYPE_BACKEND_DESCRIPTOR, g.steps, g.step);
    fl__dnn_set_handle(&g, graph, FL__ATTR_OPERATIONGRAPH_HANDLE);
    fl__dnn_done(&g, graph);
    bool ok = fl__dnn_choose(&g, p, graph, FL__HEUR_MODE_A);
    if (!ok && !g.failed && !p->plan.at) ok = fl__dnn_choose(&g, p, graph, FL__HEUR_MODE_FALLBACK);
    fl__dnn_drop(&g);
    return ok;
}

static void fl__dnn_forget(void *plan) {
    fl__dnn_plan *p = plan;
    if (p->made) fl__dnn.cudnnBackendDestroyDescriptor(p->made);
    p->made = NULL;
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

/* The arguments of a plan: tensors (NULL: numbers and temporaries), and pointers to them and to numbers. */
typedef struct fl__dnn_use {
    fl__dnn_shape shape;
    const fl_call *call;
    fl_tensor *t[FL__DNN_TENSORS];
    void *pointer[FL__DNN_TENSORS];
    union {
        float f;
        int32_t i;
    } number[FL__DNN_TENSORS];
} fl__dnn_use;

static bool fl__dnn_conv_of(const fl_call *c, fl__dnn_use *u) {
    const fl_conv2d_args *a = c->args;
    const bool input = c->op == FL_OP_conv2d_grad_input, weight = c->op == FL_OP_conv2d_grad_weight;
    const bool bias = u->shape.op == FL__DNN_CONV_BIAS;
    fl_tensor *out = c->out[0];
    if (out->dtype != FL_F32 && out->dtype != FL_F16 && out->dtype != FL_BF16) return false;
    if (a->relu && !bias) return false;
    u->shape.relu = a->relu;
    u->t[FL__X] = input ? out : c->in[0];
    u->t[FL__W] = weight ? out : c->in[1];
    u->t[FL__CONV_Y] = input ? c->in[0] : weight ? c->in[1] : out;
    for (int i = FL__X; i <= FL__CONV_Y; i++)
        if (!fl__dnn_describe(&u->shape, i, u->t[i])) return false;
    if (bias) {
        const int64_t n = c->in[2]->shape[0];
        u->shape.op = FL__DNN_CONV;
        u->t[FL__CONV_BIAS] = c->in[2];
        if (n > 1 && c->in[2]->stride[0] != 1) return false;
        u->shape.t[FL__CONV_BIAS] =
            (fl__dnn_tensor){{1, n, 1, 1}, {n, 1, n, n}, fl__dnn_type_of(c->in[2]->dtype)};
    }
    for (int i = 0; i < 2; i++) {
        u->shape.pad_lo[i] = a->pad_lo[i];
        u->shape.pad_hi[i] = a->pad_hi[i];
        u->shape.stride[i] = a->stride[i];
        u->shape.dilation[i] = a->dilation[i];
    }
    return true;
}

static void fl__dnn_number(fl__dnn_use *u, int i, double value) {
    const bool whole = i == FL__OFFSET;
    if (whole) u->number[i].i = (int32_t)value;
    else u->number[i].f = (float)value;
    u->shape.t[i] = (fl__dnn_tensor){{1, 1, 1, 1}, {1, 1, 1, 1}, whole ? FL__DATA_INT32 : FL__DATA_FLOAT};
    u->pointer[i] = &u->number[i];
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

/* q, k, v, mask -> y, lse;  q, k, v, mask, y, lse, dy -> dq, dk, dv */
static bool fl__dnn_attention_of(const fl_call *c, fl__dnn_use *u) {
    const fl_attention_args *a = c->args;
    const bool back = c->op == fl_op_attention_grad;
    fl_tensor *const *in = c->in, *const *out = c->out, *const q = in[0];
    fl_tensor *const forward[FL__DROPOUT] = {NULL, q, in[1], in[2], out[0], out[1]};
    fl_tensor *const gradient[FL__DROPOUT] = {NULL,  q,    in[1], in[2],  in[4], in[5],
                                              NULL, in[6], out[0], out[1], out[2]};
    fl__dnn_shape *s = &u->shape;
    const int64_t queries = q->shape[q->ndim - 2], keys = in[1]->shape[in[1]->ndim - 2];
    if (a->p >= 1 || a->softcap != 0 || a->window || (a->causal && a->offset > INT32_MAX)) return false;
    if (queries == 1 && keys == 1) return false; /* the gradient of it is not supported */
    if (a->causal && a->offset && (a->p > 0 || !in[3]->weak))
        return false; /* cuDNN makes a plan, which NVIDIA's frontend refuses to ask for */
    if ((q->dtype != FL_F16 && q->dtype != FL_BF16) || !fl__dnn_bias_of(u, in[3])) return false;
    for (int i = 0; i < FL__DROPOUT; i++)
        if ((u->t[i] = back ? gradient[i] : forward[i]) && !fl__dnn_describe(s, i, u->t[i])) return false;
    s->t[FL__LSE].type = FL__DATA_FLOAT;
    fl__dnn_number(u, FL__SCALE, a->scale);
    if (a->causal) fl__dnn_number(u, FL__HIDDEN, fl__dnn_hides);
    if (a->causal && a->offset) fl__dnn_number(u, FL__OFFSET, (double)a->offset);
    if (a->p > 0) {
        const int64_t *dim = s->t[FL__Q].dim;
        fl__dnn_number(u, FL__DROPOUT_SCALE, 1 / (1 - a->p));
        fl__dnn_dense(&s->t[FL__DROPOUT], (int64_t[]){dim[0], dim[1], dim[2], keys}, 4);
        s->t[FL__DROPOUT].type = s->t[FL__Q].type;
    }
    fl__dnn_swap(&s->t[FL__KT]);
    if (!back) return true;
    fl__dnn_swap(&s->t[FL__V]);
    fl__dnn_number(u, FL__KEEP, 1 - a->p);
    fl__dnn_dense(&s->t[FL__ROW_SUM], s->t[FL__Q].dim, 3);
    return true;
}

/* By FL__DNN_CONV ...: the op, and the slot that this one replaced. */
static struct {
    fl_op op;
    fl_slot own;
} fl__dnn_slots[FL__DNN_OPS];

static int fl__dnn_slot_of(fl_op op) {
    int i = 0;
    while (fl__dnn_slots[i].op != op) i++;
    return i;
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
    u->shape.device = flk_device();
    return true;
}

/* ---- running ---- */

static bool fl__dnn_execute(const fl__dnn_plan *p, const fl__dnn_use *u, void *work) {
    void *pointer[FL__DNN_TENSORS];
    int64_t id[FL__DNN_TENSORS], n = 0;
    fl__dnn_graph g = {.failed = 0};
    const fl__dnn_handle handle = fl__dnn_library.handle[p->of.device];
    for (int i = 0; i < FL__DNN_TENSORS; i++)
        if (fl__dnn_has(&p->of, i)) pointer[n] = u->pointer[i], id[n++] = i;
    const fl__dnn_desc pack = fl__dnn_new(&g, FL__BACKEND_VARIANT_PACK_DESCRIPTOR);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_DATA_POINTERS, FL__TYPE_VOID_PTR, n, pointer);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_UNIQUE_IDS, FL__TYPE_INT64, n, id);
    fl__dnn_set(&g, pack, FL__ATTR_VARIANT_PACK_WORKSPACE, FL__TYPE_VOID_PTR, 1, &work);
    fl__dnn_done(&g, pack);
    if (!g.failed) g.failed = fl__dnn.cudnnSetStream(handle, (fl__dnn_stream)flk_stream_now());
    if (!g.failed) g.failed = fl__dnn.cudnnBackendExecute(handle, p->made, pack);
    fl__dnn_drop(&g);
    return !g.failed || fl_fail("fl_%s: cuda: cuDNN: %s", fl_op_get_info(u->call->op)->name,
                                fl__dnn.cudnnGetErrorString(g.failed));
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

/* Makes a tensor of a call that has one, once. */
static bool fl__dnn_prepare(fl__dnn_use *u, int i) {
    if (!fl__dnn_has(&u->shape, i) || u->t[i]) return true;
    u->t[i] = i == FL__BIAS ? fl__dnn_bias(u->call->in[3]) : fl__dnn_dropout(u->call);
    if (u->t[i]) u->pointer[i] = fl_data(u->t[i]);
    return u->t[i] != NULL;
}

/* Allocates workspace for the plan, and for the row sums of attention's gradient after it. */
static bool fl__dnn_start(void *plan, void *use) {
    const fl__dnn_plan *p = plan;
    fl__dnn_use *u = use;
    const int64_t bytes = (p->workspace + 255) / 256 * 256;
    const fl__dnn_tensor *sum = &p->of.t[FL__ROW_SUM];
    if (!fl__dnn_prepare(u, FL__BIAS) || !fl__dnn_prepare(u, FL__DROPOUT)) return false;
    fl_buffer *work = fl__cuda_scratch(u->call, (size_t)(bytes + sum->dim[0] * sum->stride[0] * 4) + 256);
    if (!work) return false;
    u->pointer[FL__ROW_SUM] = (char *)work->ptr + bytes;
    const bool ok = fl__dnn_execute(p, u, work->ptr);
    fl_buffer_drop(work);
    return ok;
}

static fl__dnn_plan fl__dnn_entries[FL__DNN_PLANS];
static fl__cuda_plans fl__dnn_plans = {PTHREAD_MUTEX_INITIALIZER, fl__dnn_entries, FL__DNN_PLANS,
                                       sizeof(fl__dnn_plan), sizeof(fl__dnn_shape), fl__dnn_make,
                                       fl__dnn_start, fl__dnn_forget, &fl__dnn.cudnnGetVersion};

/* Sets *done if the library computes the call. */
static bool fl__dnn_run(const fl_call *c, bool *done) {
    fl__dnn_use u;
    uintptr_t all = 0;
    *done = false;
    if (!fl__dnn_use_of(c, &u) || !fl__cuda_load(&fl__dnn_library) || fl__dnn_device ||
        !fl__dnn_serves(u.shape.op))
        return true;
    for (int i = 0; i < c->n_out; i++)
        if (!fl_out_make(c->out[i])) return false;
    for (int i = 0; i < FL__DNN_TENSORS; i++)
        if (u.t[i]) all |= (uintptr_t)(u.pointer[i] = fl_data(u.t[i]));
    if (all & 15) u.shape.align = (int64_t)(all & -all);
    fl_scope s = fl_scope_begin();
    bool ok = fl__cuda_plan_run(&fl__dnn_plans, &u.shape, c, &u, done);
    if (ok && *done && c->op == fl_op_attention && u.t[FL__BIAS]) ok = fl__dnn_mend_blind(c);
    fl_scope_end(&s);
    return ok;
}

FL_PRIVATE int fl__cuda_dnn_plans(const fl_call *c) {
    fl__dnn_use u;
    if (!fl__dnn_use_of(c, &u)) return 0;
    if (!fl__cuda_load(&fl__dnn_library)) return -1;
    if (!fl__dnn_serves(u.shape.op)) return 0;
    pthread_mutex_lock(&fl__dnn_plans.lock);
    const fl__cuda_plan *p = fl__cuda_plan_of(&fl__dnn_plans, &u.shape, c, &u);
    const bool can = p && p->can;
    pthread_mutex_unlock(&fl__dnn_plans.lock);
    return can;
}

static int64_t fl__dnn_declines; /* atomic */
FL_PRIVATE int64_t fl__cuda_dnn_declined(void) {
    return __atomic_load_n(&fl__dnn_declines, __ATOMIC_RELAXED);
}

FL_CUDA_SLOT(fl__dnn_slot) {
    const int at = fl__dnn_slot_of(c->op);
    const fl_slot own = fl__dnn_slots[at].own;
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
        fl__dnn_slots[i].op = ops[i];
        fl__dnn_slots[i].own = cuda->op[ops[i]];
        fl_backend_set(cuda, ops[i], fl__dnn_slot, FL_SLOT_NARROW);
    }
}

#endif
#endif
/* MIT licence: see LICENSE. */
