/* tests/cuda/emu/cudnn.c - a cuDNN for the emulated device: libcudnn.so.9 whose engine walks a graph's
   operations in their order with one plain loop, in doubles, late, in the emulated stream

   It checks what the real one would refuse: attributes of the wrong size, descriptors used before they are
   finalized, shapes that do not fit, pointers that are missing or less aligned than promised, too little
   workspace, a product into memory that a later operation reads (an accumulator) and that is not zero.
   Tensors inside the graph round as their type does. */
#include "../../../kernels/cuda/dnn_calls.h"
#include "mock.h"

enum { BAD_PARAM = 2000, UNSUPPORTED = 3000, FAILED = 5000, MOST_OPS = 32, MOST_IDS = 17, MOST_PARTS = 64 };

struct fl__dnn_library {
    fl__dnn_stream stream; /* in use */
    int device;
};

enum { X, W, T, Y, HOW, PARTS }; /* of an operation: what it reads and writes, its description */

/* Any descriptor: what it is told. */
typedef struct desc {
    unsigned kind;
    bool done;
    tensor t; /* its type may be that of sums */
    int32_t mode, nan;
    int64_t id, align, axis, n, pre[2], post[2], dilation[2], step[2];
    bool inner, number, written;
    float alpha, beta;
    struct desc *in[PARTS];
    struct desc *op[MOST_OPS];
    int64_t ids[MOST_IDS];
    void *pointer[MOST_IDS], *data; /* data: a tensor's, a workspace, a handle, a plan's work */
} desc;

MOCK int mock_plans, mock_runs, mock_faults, mock_engine; /* that ran last */
MOCK int mock_version = 91900, mock_workspace = 1000;     /* tests set them */

static int bad(const char *what, int64_t which) {
    mock_faults++;
    fprintf(stderr, "mock cuDNN: %s (%lld)\n", what, (long long)which);
    return BAD_PARAM;
}

/* ---- operations ---- */

static bool is_conv(const desc *op) {
    return op->kind >= FL__BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
           op->kind <= FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
}

/* The axes of the places where x, w and y meet, x with zeros around it. 0: the shapes do not fit. */
static int axes_of_conv(const desc *op, axis to[8]) {
    const desc *c = op->in[HOW];
    const tensor *x = &op->in[X]->t, *w = &op->in[W]->t, *y = &op->in[Y]->t;
    for (int i = 0; i < 2; i++) {
        const int64_t size = x->dim[2 + i] + c->pre[i] + c->post[i];
        const int64_t last = size - c->dilation[i] * (w->dim[2 + i] - 1) - 1;
        if (y->dim[2 + i] != last / c->step[i] + 1) return 0;
    }
    if (x->dim[0] != y->dim[0] || w->dim[0] != y->dim[1] || x->dim[1] % w->dim[1]) return 0;
    const int64_t groups = x->dim[1] / w->dim[1], outs = w->dim[0] / groups;
    const axis all[] = {{x->dim[0], {x->step[0], 0, 0, y->step[0]}},
                        {groups, {w->dim[1] * x->step[1], outs * w->step[0], 0, outs * y->step[1]}},
                        {outs, {0, w->step[0], 0, y->step[1]}},
                        {w->dim[1], {x->step[1], w->step[1], 0, 0}},
                        {w->dim[2], {c->dilation[0] * x->step[2], w->step[2], 0, 0}},
                        {w->dim[3], {c->dilation[1] * x->step[3], w->step[3], 0, 0}},
                        {y->dim[2], {c->step[0] * x->step[2], 0, 0, y->step[2]}},
                        {y->dim[3], {c->step[1] * x->step[3], 0, 0, y->step[3]}}};
    memcpy(to, all, sizeof all);
    return w->dim[0] % groups ? 0 : 8;
}

/* The same of other operations: an axis for each letter. */
static int axes_of(const desc *op, axis to[8]) {
    static const char *const forms[3][HOW] = {{"abcd", "abcd", "abcd", "abcd"}, /* element by element, sums */
                                              {"abce", "abed", "", "abcd"},
                                              {"abcd", "", "", "abdc"}};
    const bool multiplies = op->kind == FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR,
               reshapes = op->kind == FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
    const tensor *x = &op->in[X]->t, *y = &op->in[Y]->t;
    const bool crosses = reshapes && (x->dim[2] != y->dim[2] || x->stride[2] != y->stride[2] ||
                                      x->stride[3] != y->stride[3]);
    const char *const *form = forms[multiplies + 2 * crosses];
    const int whole = op->kind == FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR ? X : Y; /* what never repeats */
    if (is_conv(op)) return axes_of_conv(op, to);
    memset(to, 0, 8 * sizeof *to);
    for (int pass = 0; pass < 2; pass++)
        for (int k = X; k < HOW; k++)
            for (int d = 0; op->in[k] && d < 4; d++) {
                const int64_t n = op->in[k]->t.dim[d];
                const bool repeats = n == 1 && k != whole && !reshapes && !(multiplies && d > 1);
                axis *a = &to[form[k][d] - 'a'];
                if (n > a->n) a->n = n;
                if (pass && n != a->n && !repeats) return 0;
                a->step[k] = op->in[k]->t.step[d];
            }
    return 4 + multiplies;
}

enum { PRODUCT = -1, LARGEST = -2, COPY = -3 }; /* and cuDNN's numbers of element by element operations */
static int mode_of(const desc *op) {
    switch (op->kind) {
    case FL__BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return op->in[HOW]->mode;
    case FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return COPY;
    case FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return op->in[HOW]->mode == FL__REDUCE_TENSOR_MAX ? LARGEST : PRODUCT;
    default: return PRODUCT;
    }
}

static double mix(int mode, double y, double x, double b, double t) {
    switch (mode) {
    case LARGEST: return x > y ? x : y;
    case FL__POINTWISE_ADD: return x + b;
    case FL__POINTWISE_MUL: return x * b;
    case FL__POINTWISE_DIV: return x / b;
    case FL__POINTWISE_SUB: return x - b;
    case FL__POINTWISE_EXP: return exp(x);
    case FL__POINTWISE_LOG: return log(x);
    case FL__POINTWISE_RELU_FWD: return x <= 0 ? 0 : x;
    case FL__POINTWISE_CMP_GE: return x >= b;
    case FL__POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    case COPY: return x;
    default: return 0; /* of an index: set by run_op */
    }
}

/* adds: to what the result's memory has. */
static void run_op(desc *op, bool adds) {
    static double one = 1;
    const int out = op->kind == FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR     ? X
                    : op->kind == FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ? W
                                                                                               : Y;
    const int mode = mode_of(op);
    tensor *t = &op->in[out]->t;
    double *v[HOW];
    int64_t dirty = 0, index_step = 0;
    axis a[8];
    const int n = axes_of(op, a);
    op->in[out]->written = !op->in[out]->inner;
    for (int64_t i = 0; i < t->n; i++) {
        dirty += adds && t->v[i] != 0;
        if (!adds) t->v[i] = mode == LARGEST ? -INFINITY : 0;
    }
    if (dirty) bad("an accumulator that is not zero", dirty);
    for (int k = X; k < HOW; k++) v[k] = op->in[k] ? op->in[k]->t.v : &one;
    v[out] = v[Y], v[Y] = t->v; /* the result goes last */
    for (int i = 0; i < n; i++) {
        const int64_t step = a[i].step[out];
        a[i].step[out] = a[i].step[Y], a[i].step[Y] = step;
    }
    visit(a, n, mode == PRODUCT ? NULL : mix, mode, v[X], v[W], v[T], v[Y]);
    if (mode == FL__POINTWISE_GEN_INDEX) index_step = t->step[op->in[HOW]->axis];
    for (int64_t i = 0; i < t->n; i++) {
        double stored;
        if (index_step) t->v[i] = (double)(i / index_step % t->dim[op->in[HOW]->axis]);
        store(t->type, &stored, 0, t->v[i]);
        t->v[i] = (double)load(t->type, &stored, 0);
    }
}

/* ---- graphs ---- */

typedef struct run {
    desc op[MOST_OPS], how[MOST_OPS], part[MOST_PARTS], *list[MOST_OPS];
    int n_ops, n_parts, engine;
} run;

/* Copies operations and what they are made of, as descriptors may be gone when they run. */
static run *copy_of(desc *const *op, int64_t n) {
    run *r = calloc(1, sizeof *r);
    for (; r->n_ops < n; r->n_ops++) {
        desc *to = r->list[r->n_ops] = &r->op[r->n_ops];
        *to = *op[r->n_ops];
        if (to->in[HOW]) to->in[HOW] = memcpy(&r->how[r->n_ops], to->in[HOW], sizeof *to);
        for (int k = X, i = 0; k < HOW; k++, i = 0) {
            if (!to->in[k]) continue;
            while (i < r->n_parts && r->part[i].id != to->in[k]->id) i++;
            if (i == r->n_parts) r->part[r->n_parts++] = *to->in[k];
            to->in[k] = &r->part[i];
        }
        if (is_conv(to)) /* x gets zeros around it */
            memcpy(to->in[X]->pre, to->in[HOW]->pre, sizeof to->pre),
                memcpy(to->in[X]->post, to->in[HOW]->post, sizeof to->post);
    }
    return r;
}

/* Whether an operation behind that product reads its result from memory. */
static bool is_accumulator(const run *r, int op) {
    const desc *y = r->op[op].in[Y];
    bool read = false;
    for (int i = op + 1; i < r->n_ops; i++)
        for (int k = X; k < Y; k++) read |= r->op[i].in[k] == y;
    return read && !y->inner && r->op[op].kind == FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR;
}

static void run_all(void *arg) {
    run *r = arg;
    for (int i = 0; i < r->n_parts; i++) {
        make_dense(&r->part[i].t, r->part[i].pre, r->part[i].post);
        if (!r->part[i].inner) transfer(&r->part[i].t, r->part[i].data, false);
    }
    for (int i = 0; i < r->n_ops; i++) run_op(&r->op[i], is_accumulator(r, i));
    for (int i = 0; i < r->n_parts; i++) {
        if (r->part[i].written) transfer(&r->part[i].t, r->part[i].data, true);
        free(r->part[i].t.v);
    }
}

/* ---- the functions ---- */

FL__DNN_CALLS(MOCK_DECLARE)

size_t cudnnGetVersion(void) {
    return (size_t)mock_version;
}
const char *cudnnGetErrorString(fl__dnn_status s) {
    return s == FAILED ? "execution failed" : "mock error";
}
fl__dnn_status cudnnCreate(fl__dnn_handle *h) {
    if (!cuda_emu_device) return FAILED;
    *h = calloc(1, sizeof **h);
    return (*h)->device = cuda_emu_device(), 0;
}
fl__dnn_status cudnnSetStream(fl__dnn_handle h, fl__dnn_stream s) {
    return h->stream = s, 0;
}
fl__dnn_status cudnnBackendCreateDescriptor(fl__dnn_kind kind, fl__dnn_desc *d) {
    desc *new = calloc(1, sizeof *new);
    new->kind = kind;
    return *d = new, 0;
}
fl__dnn_status cudnnBackendDestroyDescriptor(fl__dnn_desc d) {
    return free(d), 0;
}

/* Attributes by kind of descriptor, and where they go. */
#define CONV_FIELDS(F, kind, dx, dw, dy) \
    F(OPERATION_CONVOLUTION_##kind##_##dx, in[X]) F(OPERATION_CONVOLUTION_##kind##_##dw, in[W]) \
    F(OPERATION_CONVOLUTION_##kind##_##dy, in[Y]) F(OPERATION_CONVOLUTION_##kind##_ALPHA, alpha) \
    F(OPERATION_CONVOLUTION_##kind##_ALPHA + 1, beta) F(OPERATION_CONVOLUTION_##kind##_ALPHA + 2, in[HOW])
#define FIELDS(F) \
    F(TENSOR_DATA_TYPE, t.type) F(TENSOR_DIMENSIONS, t.dim) F(TENSOR_STRIDES, t.stride) \
    F(TENSOR_UNIQUE_ID, id) F(TENSOR_BYTE_ALIGNMENT, align) F(TENSOR_IS_VIRTUAL, inner) \
    F(TENSOR_IS_BY_VALUE, number) \
    F(POINTWISE_MODE, mode) F(POINTWISE_MATH_PREC, t.type) F(POINTWISE_AXIS, axis) \
    F(POINTWISE_NAN_PROPAGATION, nan) \
    F(REDUCTION_OPERATOR, mode) F(REDUCTION_COMP_TYPE, t.type) F(MATMUL_COMP_TYPE, t.type) \
    F(CONVOLUTION_SPATIAL_DIMS, id) F(CONVOLUTION_COMP_TYPE, t.type) F(CONVOLUTION_CONV_MODE, mode) \
    F(CONVOLUTION_PRE_PADDINGS, pre) F(CONVOLUTION_POST_PADDINGS, post) \
    F(CONVOLUTION_DILATIONS, dilation) F(CONVOLUTION_FILTER_STRIDES, step) \
    F(OPERATION_POINTWISE_XDESC, in[X]) F(OPERATION_POINTWISE_BDESC, in[W]) \
    F(OPERATION_POINTWISE_TDESC, in[T]) F(OPERATION_POINTWISE_YDESC, in[Y]) \
    F(OPERATION_POINTWISE_PW_DESCRIPTOR, in[HOW]) \
    F(OPERATION_MATMUL_ADESC, in[X]) F(OPERATION_MATMUL_BDESC, in[W]) F(OPERATION_MATMUL_CDESC, in[Y]) \
    F(OPERATION_MATMUL_DESC, in[HOW]) \
    F(OPERATION_REDUCTION_XDESC, in[X]) F(OPERATION_REDUCTION_YDESC, in[Y]) \
    F(OPERATION_REDUCTION_DESC, in[HOW]) \
    F(OPERATION_RESHAPE_XDESC, in[X]) F(OPERATION_RESHAPE_YDESC, in[Y]) \
    CONV_FIELDS(F, FORWARD, X, W, Y) CONV_FIELDS(F, BWD_DATA, DX, W, DY) \
    CONV_FIELDS(F, BWD_FILTER, X, DW, DY) \
    F(OPERATIONGRAPH_OPS, op) F(OPERATIONGRAPH_HANDLE, data) \
    F(ENGINEHEUR_MODE, mode) F(ENGINEHEUR_OPERATION_GRAPH, in[X]) \
    F(EXECUTION_PLAN_ENGINE_CONFIG, in[X]) F(EXECUTION_PLAN_HANDLE, data) \
    F(VARIANT_PACK_UNIQUE_IDS, ids) F(VARIANT_PACK_DATA_POINTERS, pointer) F(VARIANT_PACK_WORKSPACE, data)

fl__dnn_status cudnnBackendSetAttribute(fl__dnn_desc given, fl__dnn_attribute a, fl__dnn_type t, int64_t n,
                                        const void *v) {
    const bool wide = t == FL__TYPE_INT64 || t == FL__TYPE_VOID_PTR || t == FL__TYPE_HANDLE ||
                      t == FL__TYPE_BACKEND_DESCRIPTOR;
#define FIELD_OF(a, name) FIELD(FL__ATTR_##a, desc, name),
    static const field fields[] = {FIELDS(FIELD_OF)};
    const bool list = a == FL__ATTR_OPERATIONGRAPH_OPS || a == FL__ATTR_VARIANT_PACK_UNIQUE_IDS ||
                      a == FL__ATTR_VARIANT_PACK_DATA_POINTERS;
    desc *to = given;
    if (to->done) return bad("an attribute after the end", a);
    for (int64_t i = 0; t == FL__TYPE_BACKEND_DESCRIPTOR && i < n; i++)
        if (!((desc *const *)v)[i]->done) return bad("a part that is not finalized", a);
    if (!set_field(fields, sizeof fields / sizeof *fields, to, a, v,
                   (size_t)n * (wide ? 8 : t == FL__TYPE_BOOLEAN ? 1 : 4), list))
        return bad("an attribute that it does not know, or of the wrong type or count", a);
    if (list) to->n = n;
    return 0;
}

static int check(const desc *d) {
    const desc *c = d->in[HOW];
    axis a[8];
    const bool is_tensor = d->kind == FL__BACKEND_TENSOR_DESCRIPTOR;
    for (int i = 0; i < 4 && is_tensor; i++)
        if (d->t.dim[i] < 1 || d->t.stride[i] < 1) return bad("dims or strides", d->id);
    if (is_tensor && d->align < 2 && !d->inner) return bad("alignment", d->align);
    if (!d->in[Y]) return 0; /* no operation */
    if ((d->in[T] != NULL) != (mode_of(d) == FL__POINTWISE_BINARY_SELECT))
        return bad("a choice without a condition, or a condition without one", mode_of(d));
    if (mode_of(d) == FL__POINTWISE_RELU_FWD && c->nan != FL__PROPAGATE_NAN)
        return bad("a relu that drops NaN", c->nan);
    if (is_conv(d) && (d->alpha != 1 || d->beta != 0 || c->mode != FL__CROSS_CORRELATION))
        return bad("a convolution's numbers", 0);
    if (d->kind == FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR && d->in[Y]->t.dim[3] != 1)
        return bad("a reduction", d->in[Y]->t.dim[3]);
    return axes_of(d, a) ? 0 : bad("an operation's shapes", d->kind);
}

fl__dnn_status cudnnBackendFinalize(fl__dnn_desc given) {
    desc *d = given;
    int s = d->done ? bad("finalized twice", d->kind) : check(d);
    if (d->kind == FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR && cuda_emu_captures())
        s = bad("a plan that is made during a capture", 0);
    d->done = !s;
    if (d->kind != FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR || s) return s;
    const desc *config = d->in[X], *graph = config->in[X];
    if (config->id != 1) return UNSUPPORTED; /* the first one can never be built */
    run *r = d->data = copy_of(graph->op, graph->n); /* stays when the descriptor goes: it is a mock */
    r->engine = (int)config->align;
    mock_plans++;
    return 0;
}

/* Four engines: one that cannot be built, one that draws its order, one that sums in TF32 where the operands
   are f32, a plain one. */
fl__dnn_status cudnnBackendGetAttribute(fl__dnn_desc given, fl__dnn_attribute a, fl__dnn_type t, int64_t room,
                                        int64_t *n, void *to) {
    desc *d = given, **list = to;
    (void)t;
    if (!d->done && d->kind != FL__BACKEND_ENGINECFG_DESCRIPTOR && d->kind != FL__BACKEND_ENGINE_DESCRIPTOR)
        return bad("a question before the end", a);
    if (a == FL__ATTR_ENGINEHEUR_RESULTS) {
        *n = room < 4 ? room : 4;
        for (int64_t i = 0; i < *n; i++)
            list[i]->in[X] = d->in[X], list[i]->id = i > 1, list[i]->align = i, list[i]->done = true;
    } else if (a == FL__ATTR_ENGINECFG_ENGINE) {
        (*list)->align = d->align, (*list)->done = true, *n = 1;
    } else if (a == FL__ATTR_ENGINE_NUMERICAL_NOTE) {
        const int32_t note =
            d->align == 1 ? FL__NUMERICAL_NOTE_NONDETERMINISTIC : FL__NUMERICAL_NOTE_TENSOR_CORE;
        *n = d->align == 1 || d->align == 2;
        if (*n) memcpy(to, &note, sizeof note);
    } else if (a == FL__ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)to = mock_workspace, *n = 1;
    } else {
        return bad("a question it does not know", a);
    }
    return 0;
}

/* Gives a tensor the pointer that the pack has for it. */
static int bind(desc *t, const desc *pack) {
    int64_t i = 0;
    if (t->inner) return 0;
    while (i < pack->n && pack->ids[i] != t->id) i++;
    if (i == pack->n) return bad("no pointer for a tensor", t->id);
    t->data = pack->pointer[i];
    if (!t->data || (!t->number && (uintptr_t)t->data % (uintptr_t)t->align))
        return bad("a pointer that is missing or less aligned", t->id);
    if (t->number) t->data = memcpy(&t->alpha, t->data, sizeof t->alpha); /* read now */
    return 0;
}

fl__dnn_status cudnnBackendExecute(fl__dnn_handle h, fl__dnn_desc given, fl__dnn_desc given_pack) {
    const desc *plan = given, *pack = given_pack;
    const run *planned = plan->data;
    run *r = copy_of(planned->list, planned->n_ops);
    int s = 0;
    for (int i = 0; i < r->n_parts && !s; i++) s = bind(&r->part[i], pack);
    if (!s && !pack->data) s = bad("no workspace", 0);
    if (s) return free(r), s;
    mock_runs++;
    mock_engine = planned->engine;
    if (h->device != cuda_emu_device()) return free(r), bad("a handle of another device", h->device);
    return cuda_emu_start(run_all, r, h->stream, free) ? 0 : FAILED;
}
/* MIT licence: see LICENSE. */
