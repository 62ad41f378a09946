/* fl/export/onnx.h - a step without training as an ONNX model */
#ifndef FL_EXPORT_ONNX_H
#define FL_EXPORT_ONNX_H
#include "names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fl_graph_save_onnx(g, "net.onnx", .state = &s, .inputs = in, .n_inputs = 1, .outputs = ...); options:
   fl_export_opts. Writes the step of g, which is ready and changes no state, as a model of opset 21 (IR
   version 10). Weights and constants go to net.onnx.data beside it, or with .embed into the model, which has
   at most 2 GiB. Layers that ONNX has are one node: convolution, linear, pooling, softmax, layer, group and
   batch norm, activations; the others are opened (fl_graph_open). Dtypes: f32, f64, integers and b8. Results
   agree with fl's within rounding, but for what ONNX leaves open: extremes of NaN, casts out of range.

   Sizes are those of the recording. To leave some free, record the same step again with inputs of other
   sizes, at least 2, and give that graph as .other, its inputs and outputs as .other_inputs and
   .other_outputs: a size that differs is free, and what depends on it is computed in the model. Choose sizes
   that are unlike each other and others in the net: batches of 2 and 3, lengths of 11 and 13. .sizes: their
   names in order of appearance, separated by spaces.

   False after an error, before anything is written: as fl_graph_open; an op or dtype that is not written, a
   step that writes its state, recordings that differ in more than sizes, a size or number that is neither a
   product nor a sum of a free size and a constant. If the second of two files cannot be written, the first,
   the weights, is new already. */
#define fl_graph_save_onnx(...) FL_GRAPH__SAVE_ONNX(__VA_ARGS__, ._end = 0)
#define FL_GRAPH__SAVE_ONNX(g, path, ...) \
    fl_graph_save_onnx_opt(g, path, FL_LITERAL(fl_export_opts, __VA_ARGS__))
FL_API bool fl_graph_save_onnx_opt(const fl_graph *g, const char *path, fl_export_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_EXPORT_ONNX_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_EXPORT_ONNX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_EXPORT_ONNX_IMPL
#define FL_EXPORT_ONNX_IMPL
#include "../data/protobuf.h"
#include "../records/conv.h"
#include "../records/copy.h"
#include "../records/linear.h"
#include "../records/norm.h"
#include "../records/pool.h"
#include "../records/softmax.h"
#include "../tensor/copy.h"
#include "../tensor/memo.h"
#include <stdio.h>
#include <string.h>

/* ---- the model so far ---- */

/* id > 0: made by a node; < 0: value ~id of the step, by its name; 0: none. */
typedef struct fl__onnx_value {
    int id;
    fl_shape shape;
    fl_dtype dtype;
} fl__onnx_value;

/* What the memory of a value of the step is now: x, which is the memory seen as tensor `as`, or (NULL) in its
   order. axis >= 0: only the first `filled` along it are written, though x.shape is that of all. */
typedef struct fl__onnx_memory {
    fl__onnx_value x;
    const fl_tensor *as;
    int64_t filled;
    int axis;
} fl__onnx_memory;

enum { FL__ONNX_SIZES = 64, FL__ONNX_CONSTANTS = 1024, FL__ONNX_ATTRIBUTES = 6 };
typedef struct fl__onnx {
    const char *fn, *sizes;
    fl__export *e, *pair[2]; /* of this pass; of the recording, and of the other one or NULL */
    bool other;              /* a first pass over that one: collects its numbers */
    bool sizing;             /* nodes that compute a size, in this recording alone: nothing is compared */
    fl_data_text t;          /* the graph */
    const fl_graph_call *call; /* that is written; NULL: inputs or outputs */
    fl__onnx_memory *now;      /* of each value */
    int n;                     /* values of nodes so far */
    int64_t *number;           /* that may depend on sizes, in order: those of the other recording */
    int64_t n_numbers, cap, at;
    fl_memo constants;         /* ids, by contents */
    fl_memo_entry *slot[2 * FL__ONNX_CONSTANTS];
    struct fl__onnx_size {
        int64_t a, b; /* in both recordings */
        int id;       /* one integer, of dims [1] */
    } size[FL__ONNX_SIZES];
    int n_sizes, n_free;        /* the first n_free are dims of inputs */
    int64_t data;               /* bytes of weights so far */
    bool embed, failed;
    const char *file;
    char text[24];
} fl__onnx;

static bool fl__onnx_refuse(fl__onnx *h, const char *what) {
    char text[200] = "inputs and outputs";
    if (h->call) fl_graph_call_text(h->call, text, sizeof text);
    if (!h->failed) fl_fail("%s: %s: %s", h->fn, text, what);
    h->failed = true;
    return false;
}

/* x as it is in the other recording. */
static int64_t fl__onnx_other(fl__onnx *h, int64_t x) {
    if (h->other) {
        if (fl_heap_grow(&h->number, &h->cap, h->n_numbers + 1, sizeof x)) h->number[h->n_numbers++] = x;
        else h->failed = true;
        return x;
    }
    if (!h->pair[1] || h->sizing || h->failed) return x;
    if (h->at < h->n_numbers) return h->number[h->at++];
    fl__onnx_refuse(h, "the other recording has fewer calls");
    return x;
}

/* For what the model has as a constant. */
static void fl__onnx_same(fl__onnx *h, int64_t x, const char *what) {
    if (fl__onnx_other(h, x) != x) fl__onnx_refuse(h, what);
}

static const char *fl__onnx_name(fl__onnx *h, int id) {
    if (id > 0) return snprintf(h->text, sizeof h->text, "fl.%d", id), h->text;
    if (!id) return "";
    const fl__export_value *v = h->e->value, *x = &v[~id];
    bool alone = x->label && *x->label && strncmp(x->label, "fl.", 3) != 0;
    for (int i = 0; alone && i < h->e->l.n_values; i++)
        alone = i == ~id || (strcmp(v[i].name, x->label) && (!v[i].label || strcmp(v[i].label, x->label)));
    return alone ? x->label : x->name;
}

static int fl__onnx_dtype(fl_dtype d) {
    switch ((int)d) {
    case FL_F32: return 1;
    case FL_U8: return 2;
    case FL_I8: return 3;
    case FL_U16: return 4;
    case FL_I16: return 5;
    case FL_I32: return 6;
    case FL_I64: return 7;
    case FL_B8: return 9;
    case FL_F64: return 11;
    case FL_U32: return 12;
    case FL_U64: return 13;
    default: return 0;
    }
}

/* Fields of the message that is written; nothing in the pass over the other recording. */
static void fl__onnx_put_int(fl__onnx *h, int field, int64_t x) {
    if (h->other || h->failed) return;
    h->failed = !fl__pb_key(&h->t, field, FL__PB_VARINT) || !fl__pb_varint(&h->t, (uint64_t)x);
}
static void fl__onnx_put(fl__onnx *h, int field, const void *bytes, int64_t n) {
    if (h->other || h->failed) return;
    h->failed = !fl__pb_bytes(&h->t, field, bytes, (size_t)n);
}
static void fl__onnx_put_text(fl__onnx *h, int field, const char *text) {
    fl__onnx_put(h, field, text, (int64_t)strlen(text));
}
static int64_t fl__onnx_open(fl__onnx *h, int field) {
    int64_t at = 0;
    if (!h->other && !h->failed) h->failed = !fl__pb_open(&h->t, field, &at);
    return at;
}
static void fl__onnx_close(fl__onnx *h, int64_t at) {
    if (!h->other && !h->failed) h->failed = !fl__pb_close(&h->t, at, h->fn);
}

/* An attribute: integers, a text, a real number, or an integer. */
typedef struct fl__onnx_attribute {
    const char *name;
    int64_t i;
    const int64_t *list;
    int n;
    const char *text;
    double real; /* 0: none */
} fl__onnx_attribute;
typedef struct fl__onnx_node {
    const char *op;
    int in[8]; /* ids */
    fl__onnx_attribute attribute[FL__ONNX_ATTRIBUTES];
    int to;    /* id of the output; 0: new ones */
    int n_out; /* 0: one */
} fl__onnx_node;
#define FL__ONNX_NODE(name, ...) (&(fl__onnx_node){.op = (name), __VA_ARGS__})

static void fl__onnx_put_attribute(fl__onnx *h, const fl__onnx_attribute *a) {
    const int64_t at = fl__onnx_open(h, 5);
    const float real = (float)a->real;
    fl__onnx_put_text(h, 1, a->name);
    for (int i = 0; i < a->n; i++) fl__onnx_put_int(h, 8, a->list[i]);
    if (a->text) fl__onnx_put_text(h, 4, a->text);
    if (a->real != 0 && !h->other && !h->failed)
        h->failed = !fl__pb_key(&h->t, 2, FL__PB_32) || !fl_data_text_put(&h->t, &real, 4);
    const int type = a->list ? 7 : a->text ? 3 : a->real != 0 ? 1 : 2;
    if (type == 2) fl__onnx_put_int(h, 3, a->i);
    fl__onnx_put_int(h, 20, type);
    fl__onnx_close(h, at);
}

/* Writes a node, and returns its (first) output. */
static fl__onnx_value fl__onnx_emit(fl__onnx *h, fl_shape s, fl_dtype d, const fl__onnx_node *n) {
    static const char differs[] = "an attribute, or the kind of a call, depends on the sizes";
    int to = n->to, n_in = 8;
    const int n_out = n->n_out ? n->n_out : 1;
    if (!to) to = h->n + 1, h->n += n_out;
    const int64_t at = fl__onnx_open(h, 1);
    while (n_in && !n->in[n_in - 1]) n_in--;
    for (int i = 0; i < n_in; i++) fl__onnx_put_text(h, 1, fl__onnx_name(h, n->in[i]));
    for (int i = 0; i < n_out; i++) fl__onnx_put_text(h, 2, fl__onnx_name(h, to > 0 ? to + i : to));
    fl__onnx_put_text(h, 4, n->op);
    fl__onnx_same(h, (int64_t)fl__hash(0, n->op, strlen(n->op)), differs);
    for (int k = 0; k < FL__ONNX_ATTRIBUTES && n->attribute[k].name; k++) {
        const fl__onnx_attribute *a = &n->attribute[k];
        for (int i = 0; i < a->n; i++) fl__onnx_same(h, a->list[i], differs);
        fl__onnx_same(h, a->i, differs);
        fl__onnx_put_attribute(h, a);
    }
    fl__onnx_close(h, at);
    return (fl__onnx_value){to, s, d};
}

static fl__onnx_value fl__onnx_unary(fl__onnx *h, const char *op, fl__onnx_value x) {
    return fl__onnx_emit(h, x.shape, x.dtype, FL__ONNX_NODE(op, .in = {x.id}));
}

static fl_shape fl__onnx_broadcast(fl_shape a, fl_shape b) {
    fl_tensor t = {.ndim = b.ndim};
    memcpy(t.shape, b.dim, sizeof b.dim);
    fl_broadcast_shape(&a, &t);
    return a;
}

static fl__onnx_value fl__onnx_binary(fl__onnx *h, const char *op, fl__onnx_value a, fl__onnx_value b,
                                      fl_dtype d) {
    return fl__onnx_emit(h, fl__onnx_broadcast(a.shape, b.shape), d, FL__ONNX_NODE(op, .in = {a.id, b.id}));
}

/* A node with an axis. */
static fl__onnx_value fl__onnx_along(fl__onnx *h, const char *op, int axis, fl_shape s, fl_dtype d, int a,
                                     int b, int c) {
    return fl__onnx_emit(h, s, d, FL__ONNX_NODE(op, .in = {a, b, c}, .attribute = {{"axis", .i = axis}}));
}

static fl__onnx_value fl__onnx_concat(fl__onnx *h, fl__onnx_value a, fl__onnx_value b, int axis) {
    fl_shape s = a.shape;
    if (!a.shape.dim[axis]) return b;
    if (!b.shape.dim[axis]) return a;
    s.dim[axis] += b.shape.dim[axis];
    return fl__onnx_along(h, "Concat", axis, s, a.dtype, a.id, b.id, 0);
}

/* ---- constants ---- */

/* An initializer of n bytes; bytes NULL: in the file beside, at h->data. */
static void fl__onnx_put_tensor(fl__onnx *h, fl__onnx_value x, const void *bytes, int64_t n) {
    const int64_t at = fl__onnx_open(h, 5);
    for (int i = 0; i < x.shape.ndim; i++) fl__onnx_put_int(h, 1, x.shape.dim[i]);
    fl__onnx_put_int(h, 2, fl__onnx_dtype(x.dtype));
    fl__onnx_put_text(h, 8, fl__onnx_name(h, x.id));
    if (bytes) fl__onnx_put(h, 9, bytes, n);
    const char *const keys[3] = {"location", "offset", "length"};
    for (int i = 0; !bytes && i < 3; i++) {
        const int64_t pair = fl__onnx_open(h, 13);
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)(i == 1 ? h->data : n));
        fl__onnx_put_text(h, 1, keys[i]);
        fl__onnx_put_text(h, 2, i ? text : h->file);
        fl__onnx_close(h, pair);
    }
    if (!bytes) fl__onnx_put_int(h, 14, 1);
    fl__onnx_close(h, at);
}

/* A number, or a vector of integers. */
static fl__onnx_value fl__onnx_constant(fl__onnx *h, fl_shape s, fl_dtype d, const void *bytes, size_t n) {
    const uint64_t tag = (uint64_t)d << 1 | (s.ndim > 0);
    const int *id = fl_memo_find(&h->constants, bytes, n, tag);
    if (id) return (fl__onnx_value){*id, s, d};
    const fl__onnx_value x = {++h->n, s, d};
    if (!fl_memo_add(&h->constants, bytes, n, tag, &x.id)) h->failed |= h->constants.n < FL__ONNX_CONSTANTS;
    fl__onnx_put_tensor(h, x, bytes, (int64_t)n);
    return x;
}

/* A scalar: of an integer dtype i, else f. */
static fl__onnx_value fl__onnx_number(fl__onnx *h, fl_dtype d, double f, int64_t i) {
    int64_t bits = 0;
    fl_number_store(d, &bits, (fl_number){fl_dtype_is_float(d) || d == FL_B8, f, i});
    fl__onnx_same(h, bits, "a number depends on the sizes");
    return fl__onnx_constant(h, (fl_shape){0}, d, &bits, fl_dtype_size(d));
}

static fl__onnx_value fl__onnx_ints(fl__onnx *h, const int64_t *x, int n) {
    return fl__onnx_constant(h, FL_SHAPE(n), FL_I64, x, (size_t)n * sizeof *x);
}

/* ---- sizes ---- */

static int fl__onnx_add_size(fl__onnx *h, int64_t a, int64_t b, int id) {
    if (h->n_sizes < FL__ONNX_SIZES) h->size[h->n_sizes++] = (struct fl__onnx_size){a, b, id};
    return id;
}

/* The integer that is a in this and b in the other recording; 0: it is not known how. */
static int fl__onnx_size(fl__onnx *h, int64_t a, int64_t b) {
    for (int i = 0; i < h->n_sizes; i++)
        if (h->size[i].a == a && h->size[i].b == b) return h->size[i].id;
    for (int i = 0; i < h->n_free; i++) /* k times one or two sizes */
        for (int j = -1; j <= i; j++) {
            const int64_t x = h->size[i].a * (j < 0 ? 1 : h->size[j].a);
            const int64_t y = h->size[i].b * (j < 0 ? 1 : h->size[j].b), k = x ? a / x : 0;
            if (!k || k * x != a || k * y != b) continue;
            fl__onnx_value product = {h->size[i].id, FL_SHAPE(1), FL_I64}, other = product;
            if (j >= 0) other.id = h->size[j].id, product = fl__onnx_binary(h, "Mul", product, other, FL_I64);
            if (k > 1) product = fl__onnx_binary(h, "Mul", product, fl__onnx_ints(h, &k, 1), FL_I64);
            return fl__onnx_add_size(h, a, b, product.id);
        }
    for (int i = 0; i < h->n_free; i++) {
        const int64_t k = a - h->size[i].a;
        if (k != b - h->size[i].b) continue;
        const fl__onnx_value x = {h->size[i].id, FL_SHAPE(1), FL_I64};
        return fl__onnx_add_size(h, a, b, fl__onnx_binary(h, "Add", x, fl__onnx_ints(h, &k, 1), FL_I64).id);
    }
    return 0;
}

/* n integers, which may depend on free sizes. infer: one of them may be -1, as the others give it. */
static fl__onnx_value fl__onnx_vector(fl__onnx *h, const int64_t *x, int n, bool infer) {
    int64_t y[FL_MAX_DIMS + 1];
    bool free = false;
    const int64_t inferred = -1;
    for (int i = 0; i < n; i++) y[i] = fl__onnx_other(h, x[i]), free |= x[i] != y[i];
    if (!free) return fl__onnx_ints(h, x, n);
    fl__onnx_value all = {0};
    h->sizing = true;
    for (int i = 0; i < n; i++) {
        fl__onnx_value part = fl__onnx_ints(h, &x[i], 1);
        if (x[i] != y[i]) part.id = fl__onnx_size(h, x[i], y[i]);
        if (!part.id) {
            if (!infer) fl__onnx_refuse(h, "a size is no product or sum of a free size and a number");
            infer = false;
            part = fl__onnx_ints(h, &inferred, 1);
        }
        all = i ? fl__onnx_concat(h, all, part, 0) : part;
    }
    h->sizing = false;
    return all;
}

/* ---- views ---- */

static fl__onnx_value fl__onnx_reshape(fl__onnx *h, fl__onnx_value x, fl_shape s) {
    if (fl__export_same_shape(x.shape, s)) return x;
    const fl__onnx_value to = fl__onnx_vector(h, s.dim, s.ndim, true);
    return fl__onnx_emit(h, s, x.dtype, FL__ONNX_NODE("Reshape", .in = {x.id, to.id}));
}

static fl__onnx_value fl__onnx_expand(fl__onnx *h, fl__onnx_value x, fl_shape s) {
    if (fl__export_same_shape(x.shape, s)) return x;
    const fl__onnx_value to = fl__onnx_vector(h, s.dim, s.ndim, false);
    return fl__onnx_emit(h, s, x.dtype, FL__ONNX_NODE("Expand", .in = {x.id, to.id}));
}

/* Dim i of the result is dim order[i] of x. */
static fl__onnx_value fl__onnx_transpose(fl__onnx *h, fl__onnx_value x, const int64_t *order) {
    fl_shape s = x.shape;
    bool same = true;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = x.shape.dim[order[i]], same &= order[i] == i;
    if (same) return x;
    return fl__onnx_emit(
        h, s, x.dtype,
        FL__ONNX_NODE("Transpose", .in = {x.id}, .attribute = {{"perm", .list = order, .n = s.ndim}}));
}

static fl__onnx_value fl__onnx_cast(fl__onnx *h, fl__onnx_value x, fl_dtype d) {
    if (x.dtype == d) return x;
    return fl__onnx_emit(h, x.shape, d,
                       FL__ONNX_NODE("Cast", .in = {x.id}, .attribute = {{"to", .i = fl__onnx_dtype(d)}}));
}

/* The part of x from start[0] before end[0] of axis axis[0], and so on; step -1: reversed, all of it. */
static fl__onnx_value fl__onnx_slice(fl__onnx *h, fl__onnx_value x, const int64_t *axis, int n,
                                     const int64_t *start, const int64_t *end, int64_t step) {
    int64_t steps[FL_MAX_DIMS + 1];
    if (!n) return x;
    for (int i = 0; i < n; i++) {
        steps[i] = step;
        if (step > 0) x.shape.dim[axis[i]] = end[i] - start[i];
    }
    const int from = fl__onnx_vector(h, start, n, false).id, to = fl__onnx_vector(h, end, n, false).id;
    const int along = fl__onnx_ints(h, axis, n).id, by = fl__onnx_ints(h, steps, n).id;
    return fl__onnx_emit(h, x.shape, x.dtype, FL__ONNX_NODE("Slice", .in = {x.id, from, to, along, by}));
}

static fl__onnx_value fl__onnx_reverse(fl__onnx *h, fl__onnx_value x, const int64_t *axes, int n) {
    int64_t last[FL_MAX_DIMS], before[FL_MAX_DIMS];
    for (int i = 0; i < n; i++) last[i] = -1, before[i] = INT64_MIN;
    return fl__onnx_slice(h, x, axes, n, last, before, -1);
}

static fl__onnx_value fl__onnx_zeros(fl__onnx *h, fl_shape s, fl_dtype d) {
    return fl__onnx_expand(h, fl__onnx_number(h, d, 0, 0), s);
}

/* 0, 1, ..., n - 1 */
static fl__onnx_value fl__onnx_range(fl__onnx *h, int64_t n) {
    const int end = fl__onnx_reshape(h, fl__onnx_vector(h, &n, 1, false), (fl_shape){0}).id;
    const int zero = fl__onnx_number(h, FL_I64, 0, 0).id, one = fl__onnx_number(h, FL_I64, 1, 1).id;
    return fl__onnx_emit(h, FL_SHAPE(n), FL_I64, FL__ONNX_NODE("Range", .in = {zero, end, one}));
}

/* c ? a : b; ONNX Runtime has no Where of conditions. */
static fl__onnx_value fl__onnx_select(fl__onnx *h, fl__onnx_value c, fl__onnx_value a, fl__onnx_value b) {
    if (a.dtype == FL_B8) {
        const fl__onnx_value no = fl__onnx_unary(h, "Not", c), yes = fl__onnx_binary(h, "And", c, a, FL_B8);
        return fl__onnx_binary(h, "Or", yes, fl__onnx_binary(h, "And", no, b, FL_B8), FL_B8);
    }
    const fl_shape s = fl__onnx_broadcast(c.shape, fl__onnx_broadcast(a.shape, b.shape));
    return fl__onnx_emit(h, s, a.dtype, FL__ONNX_NODE("Where", .in = {c.id, a.id, b.id}));
}

/* The linear index of each element of a tensor of that shape. */
static fl__onnx_value fl__onnx_index(fl__onnx *h, fl_shape s, const int64_t *stride, int64_t offset) {
    fl__onnx_value at = fl__onnx_vector(h, &offset, 1, false);
    for (int i = 0; i < s.ndim; i++) {
        fl_shape line = s;
        for (int k = 0; k < s.ndim; k++) line.dim[k] = k == i ? s.dim[i] : 1;
        const fl__onnx_value by = fl__onnx_vector(h, &stride[i], 1, false);
        const fl__onnx_value n = fl__onnx_reshape(h, fl__onnx_range(h, s.dim[i]), line);
        at = fl__onnx_binary(h, "Add", at, fl__onnx_binary(h, "Mul", n, by, FL_I64), FL_I64);
    }
    return at;
}

/* t is all of a memory of n elements, its dims in any order. */
static bool fl__onnx_covers(const fl_tensor *t, int64_t n) {
    fl__export_block b;
    return t && fl_numel(t) == n && fl__export_block_of(t, n, &b) && b.whole && !b.n_reversed;
}

static bool fl__onnx_same_view(const fl_tensor *a, const fl_tensor *b) {
    bool same = a->ndim == b->ndim && a->offset == b->offset;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i] && (a->shape[i] == 1 || a->stride[i] == b->stride[i]);
    return same;
}

/* The axes of t that are not 1, by falling stride, then those that are. */
static void fl__onnx_by_stride(const fl__export_block *b, const fl_tensor *t, int64_t *order) {
    int n = b->n;
    memcpy(order, b->axis, (size_t)n * sizeof *order);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 1) order[n++] = i;
}

/* The memory of value v in its order; its shape is any with that many elements. */
static fl__onnx_value fl__onnx_memory_of(fl__onnx *h, int v) {
    fl__onnx_memory *m = &h->now[v];
    fl__export_block b;
    int64_t order[FL_MAX_DIMS];
    if (!m->x.id) {
        fl__onnx_refuse(h, "it reads a result of a layer that is not written");
        return m->x;
    }
    if (m->axis >= 0) { /* the rest was never written */
        fl_shape rest = m->x.shape, start = rest;
        rest.dim[m->axis] -= m->filled, start.dim[m->axis] = m->filled;
        m->x.shape = start;
        m->x = fl__onnx_concat(h, m->x, fl__onnx_zeros(h, rest, m->x.dtype), m->axis);
        m->axis = -1;
    }
    if (m->as && !fl_is_contiguous(m->as) && fl__export_block_of(m->as, h->e->value[v].n, &b)) {
        fl__onnx_by_stride(&b, m->as, order);
        m->x = fl__onnx_transpose(h, m->x, order);
    }
    m->as = NULL;
    return m->x;
}

/* Memory of value v seen as t; dims of stride 0 are 1. */
static fl__onnx_value fl__onnx_view(fl__onnx *h, int v, const fl_tensor *t) {
    fl__export_block b;
    fl_shape size = {0}, s = fl_shape_of(t);
    int64_t axis[FL_MAX_DIMS + 1], end[FL_MAX_DIMS + 1];
    const fl__onnx_memory *m = &h->now[v];
    const int64_t n = h->e->value[v].n;
    if (m->as && m->axis < 0 && fl__onnx_same_view(m->as, t)) return m->x;
    if (fl_numel(t) == 0) return fl__onnx_zeros(h, s, t->dtype);
    fl__onnx_value x = fl__onnx_memory_of(h, v);
    if (fl_is_contiguous(t) && fl_numel(t) == n) return fl__onnx_reshape(h, x, s);
    if (!fl__export_block_of(t, n, &b)) {
        x = fl__onnx_reshape(h, x, FL_SHAPE(n));
        const fl__onnx_value at = fl__onnx_index(h, s, t->stride, t->offset);
        return fl__onnx_along(h, "Gather", 0, s, x.dtype, x.id, at.id, 0);
    }
    if (b.dims.dim[b.n] == 1 && b.n) b.dims.ndim--; /* no place within the least stride */
    x = fl__onnx_reshape(h, x, b.dims);
    int cut = 0;
    for (int i = 0; i < b.dims.ndim; i++)
        if (b.size[i] != b.dims.dim[i])
            axis[cut] = i, b.start[cut] = b.start[i], end[cut] = b.start[i] + b.size[i], cut++;
    x = fl__onnx_slice(h, x, axis, cut, b.start, end, 1);
    for (int i = 0; i < b.n; i++) size.dim[size.ndim++] = b.size[i];
    x = fl__onnx_reverse(h, fl__onnx_reshape(h, x, size), b.reversed, b.n_reversed);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != 1 && t->stride[i] == 0) s.dim[i] = 1;
    return fl__onnx_reshape(h, fl__onnx_transpose(h, x, b.to_view), s);
}

/* in[k]; a weak number as a scalar of dtype d. Dims of stride 0 are 1, unless `whole`. */
static fl__onnx_value fl__onnx_in(fl__onnx *h, int k, fl_dtype d, bool whole) {
    const fl_tensor *t = h->call->call.in[k];
    if (t->weak) return fl__onnx_number(h, d, t->f64, t->i64);
    const fl__onnx_value x = fl__onnx_view(h, h->call->value[4 + k], t);
    return whole ? fl__onnx_expand(h, x, fl_shape_of(t)) : x;
}

/* Memory of value v is now x, in its order. */
static void fl__onnx_set(fl__onnx *h, int v, fl__onnx_value x) {
    h->now[v] = (fl__onnx_memory){x, NULL, 0, -1};
}

/* The memory of value v in that shape; zeros if it is new. */
static fl__onnx_value fl__onnx_old(fl__onnx *h, int v, fl_shape s) {
    if (!h->now[v].x.id) fl__onnx_set(h, v, fl__onnx_zeros(h, s, h->e->value[v].dtype));
    return fl__onnx_reshape(h, fl__onnx_memory_of(h, v), s);
}

/* Writes y to t, any view of value v, element by element. */
static void fl__onnx_put_elements(fl__onnx *h, int v, const fl_tensor *t, fl__onnx_value y) {
    const fl_shape flat = FL_SHAPE(fl_numel(t));
    const fl__onnx_value old = fl__onnx_old(h, v, FL_SHAPE(h->e->value[v].n));
    const fl__onnx_value at = fl__onnx_index(h, fl_shape_of(t), t->stride, t->offset);
    const int to = fl__onnx_reshape(h, at, flat).id, what = fl__onnx_reshape(h, y, flat).id;
    fl__onnx_set(h, v, fl__onnx_along(h, "ScatterElements", 0, old.shape, old.dtype, old.id, to, what));
}

/* Writes y to the part of value v that block b cuts out along one axis. Parts of new memory in order are
   joined as they come; else what is before and behind is kept. */
static void fl__onnx_put_part(fl__onnx *h, int v, const fl__export_block *b, int axis, fl__onnx_value y) {
    const int64_t from = b->start[axis], to = from + b->size[axis], last = b->dims.dim[axis];
    const int64_t zero = 0, along = axis;
    const fl__onnx_memory m = h->now[v];
    const bool goes_on = m.axis == axis && m.filled == from && fl__export_same_shape(m.x.shape, b->dims);
    const bool next = m.x.id && goes_on;
    if (next || (!m.x.id && !from)) {
        fl__onnx_value start = m.x;
        start.shape.dim[axis] = from;
        if (next) y = fl__onnx_concat(h, start, y, axis);
        y.shape = b->dims;
        h->now[v] = (fl__onnx_memory){y, NULL, to, to < last ? axis : -1};
        return;
    }
    const fl__onnx_value old = fl__onnx_old(h, v, b->dims);
    if (from) y = fl__onnx_concat(h, fl__onnx_slice(h, old, &along, 1, &zero, &from, 1), y, axis);
    if (to < last) y = fl__onnx_concat(h, y, fl__onnx_slice(h, old, &along, 1, &to, &last, 1), axis);
    fl__onnx_set(h, v, y);
}

/* Writes y to out[k]. */
static bool fl__onnx_out_at(fl__onnx *h, int k, fl__onnx_value y) {
    const fl_tensor *t = h->call->call.out[k];
    if (!t) return true;
    const int v = h->call->value[k];
    fl__export_block b;
    fl_shape plain = {0}, part;
    y = fl__onnx_expand(h, fl__onnx_cast(h, y, t->dtype), fl_shape_of(t));
    if (!fl_numel(t)) return fl__onnx_old(h, v, FL_SHAPE(h->e->value[v].n)), true;
    if (fl__onnx_covers(t, h->e->value[v].n)) return h->now[v] = (fl__onnx_memory){y, t, 0, -1}, true;
    const bool block = fl__export_block_of(t, h->e->value[v].n, &b);
    int cut = 0, axis = 0;
    for (int i = 0; block && i < b.dims.ndim; i++)
        if (b.size[i] != b.dims.dim[i]) cut++, axis = i;
    if (!block || cut > 1) return fl__onnx_put_elements(h, v, t, y), true;
    plain.ndim = b.n;
    for (int d = 0; d < b.n; d++) plain.dim[b.to_block[d]] = b.size[d];
    y = fl__onnx_transpose(h, fl__onnx_reshape(h, y, plain), b.to_block);
    y = fl__onnx_reverse(h, y, b.reversed, b.n_reversed);
    part = b.dims;
    memcpy(part.dim, b.size, (size_t)part.ndim * sizeof *part.dim);
    y = fl__onnx_reshape(h, y, part);
    if (cut) fl__onnx_put_part(h, v, &b, axis, y);
    else fl__onnx_set(h, v, y);
    return true;
}

static bool fl__onnx_out(fl__onnx *h, fl__onnx_value y) { return fl__onnx_out_at(h, 0, y); }

/* ---- element-wise ops ---- */

/* Ops with a node of ONNX; of conditions, if that is another one. */
static const struct fl__onnx_word {
    fl_op op;
    const char *name, *of_b8;
} fl__onnx_words[] = {
    {FL_OP_neg, "Neg", NULL},
    {FL_OP_abs, "Abs", NULL},
    {FL_OP_exp, "Exp", NULL},
    {FL_OP_log, "Log", NULL},
    {FL_OP_sqrt, "Sqrt", NULL},
    {FL_OP_sin, "Sin", NULL},
    {FL_OP_cos, "Cos", NULL},
    {FL_OP_tanh, "Tanh", NULL},
    {FL_OP_erf, "Erf", NULL},
    {FL_OP_floor, "Floor", NULL},
    {FL_OP_ceil, "Ceil", NULL},
    {FL_OP_rint, "Round", NULL},
    {FL_OP_sign, "Sign", NULL},
    {FL_OP_reciprocal, "Reciprocal", NULL},
    {FL_OP_bitwise_not, "BitwiseNot", "Not"},
    {FL_OP_relu, "Relu", NULL},
    {FL_OP_sigmoid, "Sigmoid", NULL},
    {FL_OP_softplus, "Softplus", NULL},
    {FL_OP_gelu, "Gelu", NULL},
    {FL_OP_hardswish, "HardSwish", NULL},
    {FL_OP_mish, "Mish", NULL},
    {FL_OP_add, "Add", "Or"},
    {FL_OP_sub, "Sub", NULL},
    {FL_OP_mul, "Mul", "And"},
    {FL_OP_div, "Div", NULL},
    {FL_OP_pow, "Pow", NULL},
    {FL_OP_maximum, "Max", "Or"},
    {FL_OP_minimum, "Min", "And"},
    {FL_OP_bitwise_and, "BitwiseAnd", "And"},
    {FL_OP_bitwise_or, "BitwiseOr", "Or"},
    {FL_OP_bitwise_xor, "BitwiseXor", "Xor"},
    {FL_OP_eq, "Equal", NULL},
    {FL_OP_lt, "Less", NULL},
    {FL_OP_le, "LessOrEqual", NULL},
};

/* The remainder with b's sign, and floor(a / b) of integers: 0 for b = 0. */
static fl__onnx_value fl__onnx_divide(fl__onnx *h, bool rest, fl__onnx_value a, fl__onnx_value b) {
    const fl_dtype d = a.dtype;
    const fl__onnx_value zero = fl__onnx_number(h, d, 0, 0), one = fl__onnx_number(h, d, 1, 1);
    const fl__onnx_value none = fl__onnx_binary(h, "Equal", b, zero, FL_B8);
    const bool real = fl_dtype_is_float(d);
    const fl__onnx_value by = real ? b : fl__onnx_select(h, none, one, b);
    fl__onnx_value r =
        fl__onnx_emit(h, fl__onnx_broadcast(a.shape, b.shape), d,
                    FL__ONNX_NODE("Mod", .in = {a.id, by.id}, .attribute = {{"fmod", .i = real}}));
    if (real) { /* a's sign becomes b's */
        const fl__onnx_value low = fl__onnx_binary(h, "Less", r, zero, FL_B8);
        const fl__onnx_value down = fl__onnx_binary(h, "Less", b, zero, FL_B8);
        const fl__onnx_value differ = fl__onnx_binary(h, "Xor", low, down, FL_B8);
        const fl__onnx_value whole = fl__onnx_binary(h, "Equal", r, zero, FL_B8);
        const fl__onnx_value move = fl__onnx_binary(h, "And", differ, fl__onnx_unary(h, "Not", whole), FL_B8);
        return fl__onnx_select(h, move, fl__onnx_binary(h, "Add", r, b, d), r);
    }
    if (!rest) r = fl__onnx_binary(h, "Div", fl__onnx_binary(h, "Sub", a, r, d), by, d);
    return fl__onnx_select(h, none, zero, r);
}

static fl__onnx_value fl__onnx_activate(fl__onnx *h, fl__onnx_value x, fl_op act) {
    switch ((int)act) {
    case FL_OP_NONE: return x;
    case FL_OP_relu: return fl__onnx_unary(h, "Relu", x);
    case FL_OP_tanh: return fl__onnx_unary(h, "Tanh", x);
    case FL_OP_gelu: return fl__onnx_unary(h, "Gelu", x);
    case FL_OP_sigmoid: return fl__onnx_unary(h, "Sigmoid", x);
    case FL_OP_silu: return fl__onnx_binary(h, "Mul", x, fl__onnx_unary(h, "Sigmoid", x), x.dtype);
    }
    return fl__onnx_emit(h, x.shape, x.dtype, /* gelu_tanh */
                       FL__ONNX_NODE("Gelu", .in = {x.id}, .attribute = {{"approximate", .text = "tanh"}}));
}

static bool fl__onnx_elementwise(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_op op = c->op;
    fl_dtype d = c->out[0]->dtype;
    const char *name = NULL;
    for (int k = 0; k < c->n_in; k++)
        if (!c->in[k]->weak) d = c->in[k]->dtype;
    for (size_t i = 0; i < sizeof fl__onnx_words / sizeof *fl__onnx_words; i++) {
        const struct fl__onnx_word *w = &fl__onnx_words[i];
        if (w->op == op) name = d == FL_B8 && w->of_b8 ? w->of_b8 : w->name;
    }
    const bool whole = !fl_dtype_is_float(d), of_integers = whole && d != FL_B8;
    const bool mod = op == FL_OP_remainder, by_one = op == FL_OP_log1p || op == FL_OP_expm1;
    if (!name && !mod && !by_one && op != FL_OP_silu && op != FL_OP_gelu_tanh)
        return fl__onnx_refuse(h, "the op is not written for this dtype");
    fl__onnx_value a = fl__onnx_in(h, 0, d, false);
    if (c->n_in == 1) {
        if (whole && (op == FL_OP_floor || op == FL_OP_ceil || op == FL_OP_rint)) return fl__onnx_out(h, a);
        if (by_one) {
            const fl__onnx_value one = fl__onnx_number(h, d, 1, 1);
            const bool log = op == FL_OP_log1p;
            a = log ? fl__onnx_binary(h, "Add", a, one, d) : fl__onnx_unary(h, "Exp", a);
            a = log ? fl__onnx_unary(h, "Log", a) : fl__onnx_binary(h, "Sub", a, one, d);
            return fl__onnx_out(h, a);
        }
        return fl__onnx_out(h, name ? fl__onnx_unary(h, name, a) : fl__onnx_activate(h, a, op));
    }
    fl__onnx_value b = fl__onnx_in(h, 1, d, false);
    if (mod || (op == FL_OP_div && of_integers)) return fl__onnx_out(h, fl__onnx_divide(h, mod, a, b));
    if (d == FL_B8 && (op == FL_OP_lt || op == FL_OP_le)) /* numbers only */
        a = fl__onnx_cast(h, a, FL_I32), b = fl__onnx_cast(h, b, FL_I32);
    return fl__onnx_out(h, fl__onnx_binary(h, name, a, b, c->out[0]->dtype));
}

static bool fl__onnx_where(fl__onnx *h) {
    const fl_dtype d = h->call->call.out[0]->dtype;
    const fl__onnx_value c = fl__onnx_in(h, 0, FL_B8, false), a = fl__onnx_in(h, 1, d, false);
    return fl__onnx_out(h, fl__onnx_select(h, c, a, fl__onnx_in(h, 2, d, false)));
}

/* ---- reductions, indices, creation ---- */

static bool fl__onnx_reduce(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_tensor *x = c->in[0], *y = c->out[0];
    const uint32_t mask = ((const fl_reduce_args *)c->args)->axes;
    const bool most = c->op == FL_OP_amax, least = c->op == FL_OP_amin;
    int64_t axes[FL_MAX_DIMS];
    fl_shape s = fl_shape_of(x);
    int n = 0;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1) axes[n++] = i, s.dim[i] = 1;
    fl__onnx_value v = fl__onnx_in(h, 0, x->dtype, true);
    if (!most && !least) v = fl__onnx_cast(h, v, y->dtype);
    const char *name =
        most ? "ReduceMax" : least ? "ReduceMin" : c->op == FL_OP_prod ? "ReduceProd" : "ReduceSum";
    if (n) v = fl__onnx_emit(h, s, v.dtype, FL__ONNX_NODE(name, .in = {v.id, fl__onnx_ints(h, axes, n).id}));
    return fl__onnx_out(h, fl__onnx_reshape(h, v, fl_shape_of(y)));
}

static bool fl__onnx_argmax(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const uint32_t mask = ((const fl_reduce_args *)c->args)->axes;
    fl_shape s = fl_shape_of(c->in[0]);
    int axis = 0;
    while (!(mask >> axis & 1)) axis++;
    s.dim[axis] = 1;
    const int x = fl__onnx_in(h, 0, FL_F32, true).id;
    const char *name = c->op == FL_OP_argmax ? "ArgMax" : "ArgMin";
    const fl__onnx_value at = fl__onnx_along(h, name, axis, s, FL_I64, x, 0, 0);
    return fl__onnx_out(h, fl__onnx_reshape(h, at, fl_shape_of(c->out[0])));
}

static bool fl__onnx_cumsum(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl__onnx_value x = fl__onnx_cast(h, fl__onnx_in(h, 0, FL_F32, true), c->out[0]->dtype);
    const int axis = fl__onnx_number(h, FL_I64, 0, ((const fl_axis_args *)c->args)->axis).id;
    return fl__onnx_out(h, fl__onnx_emit(h, x.shape, x.dtype, FL__ONNX_NODE("CumSum", .in = {x.id, axis})));
}

/* An index that varies along the axis alone takes whole slices. */
static bool fl__onnx_gather(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_tensor *x = c->in[0], *at = c->in[1];
    const fl_shape s = fl_shape_of(at);
    bool slices = true;
    for (int i = 0; i < at->ndim; i++)
        slices &= i == axis || (x->shape[i] == at->shape[i] && (at->stride[i] == 0 || at->shape[i] == 1));
    const fl__onnx_value from = fl__onnx_in(h, 0, x->dtype, true);
    fl__onnx_value index = fl__onnx_in(h, 1, FL_I64, !slices);
    if (slices) index = fl__onnx_reshape(h, index, FL_SHAPE(at->shape[axis]));
    const char *name = slices ? "Gather" : "GatherElements";
    return fl__onnx_out(h, fl__onnx_along(h, name, axis, s, x->dtype, from.id, index.id, 0));
}

static bool fl__onnx_scatter(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl__onnx_value x = fl__onnx_in(h, 0, c->in[0]->dtype, true), at = fl__onnx_in(h, 1, FL_I64, true);
    const fl__onnx_value from = fl__onnx_in(h, 2, x.dtype, true);
    const fl__onnx_node n = {"ScatterElements", {x.id, at.id, fl__onnx_expand(h, from, at.shape).id},
                             .attribute = {{"axis", .i = ((const fl_axis_args *)c->args)->axis},
                                           {c->op == FL_OP_scatter_add ? "reduction" : NULL, .text = "add"}}};
    return fl__onnx_out(h, fl__onnx_emit(h, x.shape, x.dtype, &n));
}

static bool fl__onnx_sort(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_sort_args *a = c->args;
    const fl_shape s = fl_shape_of(c->out[0] ? c->out[0] : c->out[1]);
    const int n = fl__onnx_vector(h, &s.dim[a->axis], 1, false).id;
    const fl__onnx_node sort = {"TopK", {fl__onnx_in(h, 0, FL_F32, true).id, n}, .n_out = 2,
                                .attribute = {{"axis", .i = a->axis}, {"largest", .i = a->descending}}};
    const fl__onnx_value y = fl__onnx_emit(h, s, c->in[0]->dtype, &sort), index = {y.id + 1, s, FL_I64};
    return fl__onnx_out_at(h, 0, y) && fl__onnx_out_at(h, 1, index);
}

static bool fl__onnx_fill(fl__onnx *h) {
    const fl_number x = fl__export_filled(h->call);
    return fl__onnx_out(h, fl__onnx_number(h, h->call->call.out[0]->dtype, x.f, x.i));
}

static bool fl__onnx_iota(fl__onnx *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl_iota_args *a = h->call->call.args;
    const fl_dtype d = fl_dtype_is_float(y->dtype) ? FL_F64 : FL_I64;
    fl__onnx_value n = fl__onnx_cast(h, fl__onnx_range(h, fl_numel(y)), d);
    if (a->f_step != 1) n = fl__onnx_binary(h, "Mul", n, fl__onnx_number(h, d, a->f_step, a->i_step), d);
    if (a->f_start != 0) n = fl__onnx_binary(h, "Add", n, fl__onnx_number(h, d, a->f_start, a->i_start), d);
    return fl__onnx_out(h, n);
}

/* ---- layers ---- */

static bool fl__onnx_matmul(fl__onnx *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl__onnx_value a = fl__onnx_in(h, 0, y->dtype, false), b = fl__onnx_in(h, 1, y->dtype, false);
    fl_shape s = fl__onnx_broadcast(a.shape, b.shape);
    s.dim[s.ndim - 2] = a.shape.dim[s.ndim - 2], s.dim[s.ndim - 1] = b.shape.dim[s.ndim - 1];
    return fl__onnx_out(h, fl__onnx_emit(h, s, y->dtype, FL__ONNX_NODE("MatMul", .in = {a.id, b.id})));
}

static bool fl__onnx_linear(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_dtype d = c->in[0]->dtype;
    fl__onnx_node n = {"Gemm", .attribute = {{"transB", .i = 1}}};
    for (int i = 0; i < c->n_in; i++) n.in[i] = fl__onnx_in(h, i, d, i < 2).id;
    const fl__onnx_value z = fl__onnx_emit(h, fl_shape_of(c->out[0]), d, &n);
    if (c->n_out > 1) fl__onnx_out_at(h, 1, z);
    return fl__onnx_out(h, fl__onnx_activate(h, z, ((const fl_linear_args *)c->args)->act));
}

/* in[k], a bias, or weights of a norm, in that shape. */
static int fl__onnx_weights(fl__onnx *h, int k, fl_shape s) {
    const fl__onnx_value w = fl__onnx_in(h, k, h->call->call.in[0]->dtype, true);
    return (w.shape.ndim ? fl__onnx_reshape(h, w, s) : fl__onnx_expand(h, w, s)).id;
}

/* The window of a convolution or pool: h, w. */
static fl__onnx_node fl__onnx_window(const char *op, const int64_t *pads, const int64_t *stride,
                                     const int64_t *kernel) {
    return (fl__onnx_node){op, .attribute = {{"pads", .list = pads, .n = 4},
                                             {"strides", .list = stride, .n = 2},
                                             {"kernel_shape", .list = kernel, .n = 2}}};
}

static bool fl__onnx_conv(fl__onnx *h, bool transposed) {
    const fl_call *c = &h->call->call;
    const fl_conv2d_args *a = c->args;
    const fl_tensor *x = c->in[0], *w = c->in[1], *y = c->out[0];
    int64_t pads[4] = {a->pad_lo[0], a->pad_lo[1], a->pad_hi[0], a->pad_hi[1]};
    for (int k = 0; transposed && k < 2; k++) /* the end of y that no window reaches is part of it */
        pads[2 + k] = (x->shape[2 + k] - 1) * a->stride[k] + a->dilation[k] * (w->shape[2 + k] - 1) + 1 -
                      a->pad_lo[k] - y->shape[2 + k];
    int64_t more[2] = {0, 0};
    for (int k = 0; transposed && k < 2; k++)
        if (pads[2 + k] < 0) more[k] = -pads[2 + k], pads[2 + k] = 0;
    fl__onnx_node n = fl__onnx_window(transposed ? "ConvTranspose" : "Conv", pads, a->stride, w->shape + 2);
    n.attribute[3] = (fl__onnx_attribute){"dilations", .list = a->dilation, .n = 2};
    n.attribute[4] = (fl__onnx_attribute){"group", .i = a->groups};
    if (transposed) n.attribute[5] = (fl__onnx_attribute){"output_padding", .list = more, .n = 2};
    for (int i = 0; i < 2; i++) n.in[i] = fl__onnx_in(h, i, x->dtype, true).id;
    if (c->n_in > 2) n.in[2] = fl__onnx_weights(h, 2, FL_SHAPE(w->shape[0]));
    const fl__onnx_value z = fl__onnx_emit(h, fl_shape_of(y), x->dtype, &n);
    return fl__onnx_out(h, a->relu ? fl__onnx_unary(h, "Relu", z) : z);
}

static bool fl__onnx_pool(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_pool2d_args *a = c->args;
    const int64_t pads[4] = {a->pad_lo[0], a->pad_lo[1], a->pad_hi[0], a->pad_hi[1]};
    const bool most = c->op == fl_op_max_pool2d;
    fl__onnx_node n = fl__onnx_window(most ? "MaxPool" : "AveragePool", pads, a->stride, a->kernel);
    if (!most) n.attribute[3] = (fl__onnx_attribute){"count_include_pad", .i = a->count_pad};
    n.in[0] = fl__onnx_in(h, 0, c->in[0]->dtype, true).id;
    return fl__onnx_out(h, fl__onnx_emit(h, fl_shape_of(c->out[0]), c->in[0]->dtype, &n));
}

static bool fl__onnx_softmax(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl__onnx_value x = fl__onnx_in(h, 0, c->in[0]->dtype, true);
    const char *name = c->op == fl_op_softmax ? "Softmax" : "LogSoftmax";
    const int axis = ((const fl_axis_args *)c->args)->axis;
    return fl__onnx_out(h, fl__onnx_along(h, name, axis, x.shape, x.dtype, x.id, 0, 0));
}

static bool fl__onnx_layer_norm(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_norm_args *a = c->args;
    const fl__onnx_value x = fl__onnx_in(h, 0, c->in[0]->dtype, true);
    fl_shape last = {.ndim = (int)a->dims};
    for (int i = 0; i < last.ndim; i++) last.dim[i] = x.shape.dim[x.shape.ndim - last.ndim + i];
    if (!a->rms) {
        const fl__onnx_node n = {"LayerNormalization",
                                 {x.id, fl__onnx_weights(h, 1, last), fl__onnx_weights(h, 2, last)},
                                 .attribute = {{"axis", .i = -a->dims}, {"epsilon", .real = a->eps}}};
        return fl__onnx_out(h, fl__onnx_emit(h, x.shape, x.dtype, &n));
    }
    int64_t axes[FL_MAX_DIMS];
    fl_shape s = x.shape;
    for (int i = 0; i < last.ndim; i++) axes[i] = i - last.ndim, s.dim[s.ndim - 1 - i] = 1;
    const int square = fl__onnx_binary(h, "Mul", x, x, x.dtype).id;
    const int along = fl__onnx_ints(h, axes, last.ndim).id;
    fl__onnx_value r = fl__onnx_emit(h, s, x.dtype, FL__ONNX_NODE("ReduceMean", .in = {square, along}));
    r = fl__onnx_binary(h, "Add", r, fl__onnx_number(h, x.dtype, a->eps, 0), x.dtype);
    r = fl__onnx_binary(h, "Div", x, fl__onnx_unary(h, "Sqrt", r), x.dtype);
    r = fl__onnx_binary(h, "Mul", r, fl__onnx_in(h, 1, x.dtype, false), x.dtype);
    return fl__onnx_out(h, fl__onnx_binary(h, "Add", r, fl__onnx_in(h, 2, x.dtype, false), x.dtype));
}

/* Batch norm by given statistics, or group norm; then what is added, and relu. */
static bool fl__onnx_batch_norm(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_batch_norm_args *a = c->args;
    const bool groups = c->op == fl_op_group_norm;
    const fl__onnx_value x = fl__onnx_in(h, 0, c->in[0]->dtype, true);
    const fl_shape channels = FL_SHAPE(c->in[0]->shape[1]);
    if (!groups && c->n_in != 6)
        return fl__onnx_refuse(h, "it takes the batch's statistics: record the step in evaluation mode");
    fl__onnx_node n = {groups ? "GroupNormalization" : "BatchNormalization", {x.id},
                       .attribute = {{"epsilon", .real = a->eps},
                                     {groups ? "num_groups" : NULL, .i = a->groups}}};
    for (int i = 1; i < (groups ? 3 : 5); i++) n.in[i] = fl__onnx_weights(h, i < 3 ? i : i + 1, channels);
    fl__onnx_value y = fl__onnx_emit(h, x.shape, x.dtype, &n);
    if (!c->in[3]->weak || c->in[3]->f64 != 0)
        y = fl__onnx_binary(h, "Add", y, fl__onnx_in(h, 3, x.dtype, false), x.dtype);
    return fl__onnx_out(h, a->relu ? fl__onnx_unary(h, "Relu", y) : y);
}

static bool fl__onnx_join(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    fl__onnx_node n = {"Concat", .attribute = {{"axis", .i = ((const fl_axis_args *)c->args)->axis}}};
    for (int i = 0; i < c->n_in; i++) n.in[i] = fl__onnx_in(h, i, c->out[0]->dtype, true).id;
    return fl__onnx_out(h, fl__onnx_emit(h, fl_shape_of(c->out[0]), c->out[0]->dtype, &n));
}

/* ---- the model ---- */

static const char fl__onnx_layers[] =
    "ceil sign reciprocal relu sigmoid silu softplus gelu gelu_tanh hardswish mish conv2d_bias linear "
    "softmax log_softmax layer_norm batch_statistics batch_norm group_norm max_pool2d avg_pool2d concat";

static bool fl__onnx_call(fl__onnx *h) {
    const fl_call *c = &h->call->call;
    const fl_op op = c->op;
    for (int k = 0; k < 4 + c->n_in; k++) {
        const fl_tensor *t = k < 4 ? k < c->n_out ? c->out[k] : NULL : c->in[k - 4];
        if (t && !t->weak && !fl__onnx_dtype(t->dtype))
            return fl__onnx_refuse(h, "bf16, f16 and registered dtypes are not written");
    }
    switch ((int)op) {
    case FL_OP_copy: return fl__onnx_out(h, fl__onnx_in(h, 0, c->out[0]->dtype, false));
    case FL_OP_where: return fl__onnx_where(h);
    case FL_OP_sum:
    case FL_OP_prod:
    case FL_OP_amax:
    case FL_OP_amin: return fl__onnx_reduce(h);
    case FL_OP_argmax:
    case FL_OP_argmin: return fl__onnx_argmax(h);
    case FL_OP_cumsum: return fl__onnx_cumsum(h);
    case FL_OP_gather: return fl__onnx_gather(h);
    case FL_OP_scatter:
    case FL_OP_scatter_add: return fl__onnx_scatter(h);
    case FL_OP_sort: return fl__onnx_sort(h);
    case FL_OP_fill: return fl__onnx_fill(h);
    case FL_OP_iota: return fl__onnx_iota(h);
    case FL_OP_matmul: return fl__onnx_matmul(h);
    case FL_OP_conv2d: return fl__onnx_conv(h, false);
    case FL_OP_conv2d_grad_input: return fl__onnx_conv(h, true);
    }
    if (op == fl_op_conv2d_bias) return fl__onnx_conv(h, false);
    if (op == fl_op_linear) return fl__onnx_linear(h);
    if (op == fl_op_softmax || op == fl_op_log_softmax) return fl__onnx_softmax(h);
    if (op == fl_op_layer_norm) return fl__onnx_layer_norm(h);
    if (op == fl_op_batch_norm || op == fl_op_group_norm || op == fl_op_batch_statistics)
        return fl__onnx_batch_norm(h);
    if (op == fl_op_max_pool2d || op == fl_op_avg_pool2d) return fl__onnx_pool(h);
    if (op == fl_op_concat) return fl__onnx_join(h);
    return fl__onnx_elementwise(h);
}

/* Field 2: word k of the names of free sizes, or "size0", ... where there are fewer. */
static void fl__onnx_put_size_name(fl__onnx *h, int k) {
    const char *at = h->sizes ? h->sizes + strspn(h->sizes, " ") : "";
    for (int i = 0; i < k && *at; i++) at += strcspn(at, " "), at += strspn(at, " ");
    if (*at) {
        fl__onnx_put(h, 2, at, (int64_t)strcspn(at, " "));
        return;
    }
    snprintf(h->text, sizeof h->text, "size%d", k);
    fl__onnx_put_text(h, 2, h->text);
}

/* The number among free sizes of dim i of value v, whose size is `a` here and b there; -1: none. A dim of an
   input begins a new one. */
static int fl__onnx_free_size(fl__onnx *h, int v, int64_t i, int64_t a, int64_t b, bool input) {
    for (int k = 0; k < h->n_free; k++)
        if (h->size[k].a == a && h->size[k].b == b) return k;
    if (!input) return -1;
    h->sizing = true;
    const fl__onnx_value size = fl__onnx_emit(
        h, FL_SHAPE(1), FL_I64,
        FL__ONNX_NODE("Shape", .in = {~v}, .attribute = {{"start", .i = i}, {"end", .i = i + 1}}));
    h->sizing = false;
    if (h->n_free == FL__ONNX_SIZES) return fl__onnx_refuse(h, "more than 64 sizes are free"), -1;
    fl__onnx_add_size(h, a, b, size.id);
    return h->n_free++;
}

/* Declares value v, which is x, an input or output: its name, dtype, and dims. */
static void fl__onnx_declare(fl__onnx *h, int v, fl__onnx_value x, bool input) {
    int k[FL_MAX_DIMS];
    for (int i = 0; i < x.shape.ndim; i++) {
        const int64_t a = x.shape.dim[i], b = fl__onnx_other(h, a);
        k[i] = a == b ? -2 : fl__onnx_free_size(h, v, i, a, b, input);
    }
    const int64_t info = fl__onnx_open(h, input ? 11 : 12);
    fl__onnx_put_text(h, 1, fl__onnx_name(h, ~v));
    const int64_t type = fl__onnx_open(h, 2), tensor = fl__onnx_open(h, 1);
    fl__onnx_put_int(h, 1, fl__onnx_dtype(x.dtype));
    const int64_t shape = fl__onnx_open(h, 2);
    for (int i = 0; i < x.shape.ndim; i++) {
        const int64_t dim = fl__onnx_open(h, 1);
        if (k[i] == -2) fl__onnx_put_int(h, 1, x.shape.dim[i]);
        else if (k[i] >= 0) fl__onnx_put_size_name(h, k[i]); /* else it is not known how it is computed */
        fl__onnx_close(h, dim);
    }
    fl__onnx_close(h, shape), fl__onnx_close(h, tensor), fl__onnx_close(h, type), fl__onnx_close(h, info);
}

/* What value v is before the step: in the form of its tensor in the options. */
static void fl__onnx_begin(fl__onnx *h, int v) {
    const fl__export_value *x = &h->e->value[v];
    const fl_tensor *as = fl__onnx_covers(x->tensor, x->n) ? x->tensor : NULL;
    h->now[v].x = (fl__onnx_value){~v, as ? fl_shape_of(as) : x->shape, x->dtype};
    h->now[v].as = as;
}

/* The bytes of value v in the order of its tensor; *hold: a tensor to drop. NULL after fl_fail. */
static const void *fl__onnx_map(fl__onnx *h, int v, fl_tensor **hold) {
    const fl__export_value *x = &h->e->value[v];
    const fl_tensor *as = fl__onnx_covers(x->tensor, x->n) ? x->tensor : NULL;
    fl_buffer *b = h->e->l.value[v].buffer;
    if (as && !fl_is_contiguous(as)) {
        fl_scope s = fl_scope_begin();
        *hold = fl_keep(fl_contiguous((fl_tensor *)(uintptr_t)as));
        fl_scope_end(&s);
        b = *hold ? (*hold)->buffer : NULL;
    }
    const void *p = b ? fl_buffer_map(b) : NULL;
    if (!p) fl_drop(*hold);
    return p;
}

static void fl__onnx_unmap(fl__onnx *h, int v, fl_tensor *hold) {
    fl_buffer_unmap(hold ? hold->buffer : h->e->l.value[v].buffer);
    fl_drop(hold);
}

/* Initializer i: of the state, then of constants; -1 behind the last. */
static int fl__onnx_weight(const fl__onnx *h, int i) {
    const fl__export *e = h->pair[0];
    const int n = e->n[FL__EXPORT_STATE];
    if (i < n) return fl__export_find(e, FL__EXPORT_STATE, i);
    return i - n < e->n[FL__EXPORT_CONSTANT] ? fl__export_find(e, FL__EXPORT_CONSTANT, i - n) : -1;
}

static int64_t fl__onnx_align(int64_t at) { return (at + 63) / 64 * 64; }

static void fl__onnx_put_weights(fl__onnx *h) {
    int v;
    h->data = 0;
    for (int i = 0; (v = fl__onnx_weight(h, i)) >= 0 && !h->failed; i++) {
        const fl__export_value *value = &h->e->value[v];
        const fl_graph_role role = h->e->l.value[v].role;
        if (role == FL_GRAPH_PARAMETER || role == FL_GRAPH_STATE) {
            h->failed = !fl_fail("%s: the step writes its state '%s': record it in evaluation mode", h->fn,
                                 fl__onnx_name(h, ~v));
            return;
        }
        fl__onnx_begin(h, v);
        fl_tensor *hold = NULL;
        const int64_t bytes = value->n * (int64_t)fl_dtype_size(value->dtype);
        const void *p = h->embed && !h->other ? fl__onnx_map(h, v, &hold) : NULL;
        h->failed |= h->embed && !h->other && !p;
        fl__onnx_put_tensor(h, h->now[v].x, p, bytes);
        h->data = fl__onnx_align(h->data + bytes);
        if (p) fl__onnx_unmap(h, v, hold);
    }
}

/* The graph, as this pass has it. */
static void fl__onnx_put_graph(fl__onnx *h) {
    const fl__export *e = h->pair[0];
    h->e = h->pair[h->other];
    h->call = NULL;
    h->n = h->n_sizes = h->n_free = 0, h->at = 0;
    fl__memo_clear(&h->constants);
    for (int64_t i = 0; i < e->l.n_values; i++) h->now[i] = (fl__onnx_memory){.axis = -1};
    fl__onnx_put_text(h, 2, "step");
    for (int i = 0; i < e->n[FL__EXPORT_INPUT]; i++) {
        const int v = fl__export_find(e, FL__EXPORT_INPUT, i);
        fl__onnx_begin(h, v);
        fl__onnx_declare(h, v, h->now[v].x, true);
    }
    fl__onnx_put_weights(h);
    for (int64_t i = 0; i < h->e->l.n && !h->failed; i++) {
        h->call = &h->e->l.call[i];
        fl__onnx_call(h);
    }
    h->call = NULL;
    for (int i = 0; i < e->n[FL__EXPORT_OUTPUT] && !h->failed; i++) {
        const int v = fl__export_find(e, FL__EXPORT_OUTPUT, i);
        const fl_tensor *t = h->e->value[v].tensor;
        const fl__onnx_memory *m = &h->now[v];
        const fl__onnx_value x = t ? fl__onnx_expand(h, fl__onnx_view(h, v, t), fl_shape_of(t))
                                   : m->as ? m->x : fl__onnx_memory_of(h, v);
        fl__onnx_emit(h, x.shape, x.dtype, FL__ONNX_NODE("Identity", .in = {x.id}, .to = ~v));
        fl__onnx_declare(h, v, x, false);
    }
    if (h->pair[1] && !h->other && !h->failed && h->at != h->n_numbers)
        fl__onnx_refuse(h, "the other recording has more calls");
}

static void fl__onnx_put_bytes(fl_strbuf *t, const void *bytes, int64_t n) {
    fwrite(bytes, 1, (size_t)n, (FILE *)t->file);
    t->n += n;
}

/* IR version 10, the producer, the opset, and the graph of that many bytes. */
static void fl__onnx_put_file(fl_strbuf *t, void *user) {
    fl__onnx *h = user;
    fl_data_text head = {0};
    t->failed = !fl_data_text_put(&head, "\x08\x0a\x12\x02" "fl\x42\x04\x0a\x00\x10\x15\x3a", 13) ||
                !fl__pb_varint(&head, (uint64_t)h->t.n);
    if (!t->failed) fl__onnx_put_bytes(t, head.p, head.n), fl__onnx_put_bytes(t, h->t.p, h->t.n);
    fl_heap_free(head.p);
}

static void fl__onnx_put_data(fl_strbuf *t, void *user) {
    static const char zeros[64];
    fl__onnx *h = user;
    int v;
    for (int i = 0; (v = fl__onnx_weight(h, i)) >= 0 && !t->failed; i++) {
        const fl__export_value *x = &h->e->value[v];
        fl_tensor *hold = NULL;
        const void *p = fl__onnx_map(h, v, &hold);
        t->failed = !p;
        if (p) fl__onnx_put_bytes(t, p, x->n * (int64_t)fl_dtype_size(x->dtype)), fl__onnx_unmap(h, v, hold);
        fl__onnx_put_bytes(t, zeros, fl__onnx_align(t->n) - t->n);
    }
}

/* Both recordings have the same values, in the same roles. */
static bool fl__onnx_alike(fl__onnx *h) {
    const fl__export *a = h->pair[0], *b = h->pair[1];
    bool same = !b || a->l.n_values == b->l.n_values;
    for (int64_t i = 0; b && same && i < a->l.n_values; i++) same = a->value[i].kind == b->value[i].kind;
    return same || fl_fail("%s: the recordings differ in more than sizes", h->fn);
}

FL_API bool fl_graph_save_onnx_opt(const fl_graph *g, const char *path, fl_export_opts o) {
    static const char fn[] = "fl_graph_save_onnx";
    if (!fl_given(path, fn, "the path")) return fl_raise();
    char data[1024];
    const char *slash = strrchr(path, '/');
    fl__onnx *h = fl_heap_alloc(sizeof *h);
    if (!h) return fl_raise();
    h->fn = fn, h->sizes = o.sizes, h->embed = o.embed;
    h->constants = (fl_memo){.most = FL__ONNX_CONSTANTS, .size = sizeof(int), .slot = h->slot};
    bool ok = snprintf(data, sizeof data, "%s.data", path) < (int)sizeof data ||
              fl_fail("%s: the path is too long", fn);
    h->file = slash ? data + (slash + 1 - path) : data;
    ok = ok && (h->pair[0] = fl__export_new(fn, g, fl__onnx_layers, &o)) != NULL;
    if (ok && o.other) {
        fl_export_opts with = o;
        with.inputs = o.other_inputs, with.outputs = o.other_outputs;
        ok = (h->pair[1] = fl__export_new(fn, o.other, fl__onnx_layers, &with)) != NULL;
    }
    const size_t bytes = ok ? (size_t)(h->pair[0]->l.n_values + 1) * sizeof *h->now : 0;
    ok = ok && fl__onnx_alike(h) && (h->now = fl_heap_alloc(bytes)) != NULL;
    if (ok && h->pair[1]) h->other = true, fl__onnx_put_graph(h);
    h->other = false;
    if (ok && !h->failed) fl__onnx_put_graph(h);
    if (ok && !h->failed && h->t.n > INT32_MAX)
        ok = fl_fail("%s: the model has %lld bytes, expected at most 2 GiB: write it without .embed", fn,
                     (long long)h->t.n);
    if (ok && !h->failed && !o.embed) ok = fl_write_file_atomic(fn, data, fl__onnx_put_data, h);
    ok = ok && !h->failed && fl_write_file_atomic(fn, path, fl__onnx_put_file, h);
    fl_heap_free(h->t.p);
    fl__export_free(h->pair[0]);
    fl__export_free(h->pair[1]);
    fl_heap_free(h->now);
    fl_heap_free(h->number);
    fl__memo_clear(&h->constants);
    fl_heap_free(h);
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
