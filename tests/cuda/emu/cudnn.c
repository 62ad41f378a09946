/* tests/cuda/emu/cudnn.c - a cuDNN for the emulated device: libcudnn.so.9 whose engine walks a graph's
   operations in their order with plain loops, in doubles, late, in the emulated stream

   It checks what the real one would refuse: attributes of the wrong size, descriptors used before they are
   finalized, shapes that do not fit, pointers that are missing or less aligned than promised, too little
   workspace, a product into memory that a later operation reads (an accumulator) and that is not zero.
   Tensors inside the graph round as their type does. */
#include "../../../kernels/cuda/dnn_calls.h"
#include "mock.h"
#include <stddef.h>

enum { BAD_PARAM = 2000, UNSUPPORTED = 3000, FAILED = 5000, MOST_OPS = 32, MOST_IDS = 17 };

struct fl__dnn_library {
    fl__dnn_stream stream; /* in use */
    int device;
};

/* Any descriptor: what it is told. */
typedef struct desc {
    unsigned kind;
    bool done;
    int32_t type, mode, nan;
    int64_t dim[4], stride[4], id, align, axis, n_ops, n_ids, pre[2], post[2], dilation[2], step[2];
    bool inner, number;
    float alpha, beta;
    struct desc *in[5]; /* x, w or b, y; the description of the operation; t */
    struct desc *op[MOST_OPS];
    int64_t ids[MOST_IDS];
    void *pointer[MOST_IDS], *room;
} desc;

MOCK extern int mock_plans, mock_runs, mock_faults, mock_engine; /* that ran last */
MOCK extern int mock_version, mock_workspace;                    /* tests set them */
int mock_plans, mock_runs, mock_faults, mock_engine, mock_version = 91900, mock_workspace = 1000;

static int bad(const char *what, int64_t which) {
    mock_faults++;
    fprintf(stderr, "mock cuDNN: %s (%lld)\n", what, (long long)which);
    return BAD_PARAM;
}

static int64_t numel(const desc *t) {
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

static int64_t place(const desc *t, const int64_t at[4]) {
    int64_t o = 0;
    for (int i = 0; i < 4; i++) o += (t->dim[i] == 1 ? 0 : at[i]) * t->stride[i];
    return o;
}

/* ---- running ---- */

typedef struct value {
    int64_t id;
    void *p;
    bool mine;
} value;
typedef struct run {
    desc op[MOST_OPS], part[MOST_OPS][5]; /* copies: descriptors may be gone */
    value v[64];
    float number[MOST_IDS];
    int n_ops, n_values, engine;
} run;

static void *bytes_of(run *r, const desc *t) {
    for (int i = 0; i < r->n_values; i++)
        if (r->v[i].id == t->id) return r->v[i].p;
    int64_t last = 0;
    for (int i = 0; i < 4; i++) last += (t->dim[i] - 1) * t->stride[i];
    r->v[r->n_values] = (value){t->id, calloc((size_t)last + 1, 4), true};
    return r->v[r->n_values++].p;
}

static bool next(const desc *t, int64_t at[4]) {
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < t->dim[i]) return true;
        at[i] = 0;
    }
    return false;
}

static double pointwise(int mode, double x, double b, double t) {
    switch (mode) {
    case FL__POINTWISE_ADD: return x + b;
    case FL__POINTWISE_MUL: return x * b;
    case FL__POINTWISE_DIV: return x / b;
    case FL__POINTWISE_SUB: return x - b;
    case FL__POINTWISE_EXP: return exp(x);
    case FL__POINTWISE_LOG: return log(x);
    case FL__POINTWISE_RELU_FWD: return x <= 0 ? 0 : x;
    case FL__POINTWISE_CMP_GE: return x >= b;
    case FL__POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return x;
    }
}

static void run_pointwise(run *r, const desc *op, const desc part[5]) {
    const desc *x = &part[0], *b = &part[1], *y = &part[2], *f = &part[3], *t = &part[4];
    int64_t at[4] = {0};
    const void *px = bytes_of(r, x), *pb = op->in[1] ? bytes_of(r, b) : NULL;
    const void *pt = op->in[4] ? bytes_of(r, t) : NULL;
    void *py = bytes_of(r, y);
    do {
        const double u = load(x->type, px, place(x, at)), v = pb ? load(b->type, pb, place(b, at)) : 0;
        const double w = pt ? load(t->type, pt, place(t, at)) : 0;
        store(y->type, py, place(y, at),
              f->mode == FL__POINTWISE_GEN_INDEX ? (double)at[f->axis] : pointwise(f->mode, u, v, w));
    } while (next(y, at));
}

/* Whether an operation behind that one reads its result from memory. */
static bool is_accumulator(const run *r, int op) {
    const desc *c = &r->part[op][2];
    bool read = false;
    for (int i = op + 1; i < r->n_ops; i++)
        for (int k = 0; k < 5; k++) read |= k != 2 && r->op[i].in[k] && r->part[i][k].id == c->id;
    return read && !c->inner;
}

static void run_matmul(run *r, int op) {
    const desc *a = &r->part[op][0], *b = &r->part[op][1], *c = &r->part[op][2];
    const bool adds = is_accumulator(r, op);
    int64_t at[4] = {0}, dirty = 0;
    const void *pa = bytes_of(r, a), *pb = bytes_of(r, b);
    void *pc = bytes_of(r, c);
    do {
        double sum = adds ? load(c->type, pc, place(c, at)) : 0;
        dirty += sum != 0;
        for (int64_t k = 0; k < a->dim[3]; k++)
            sum += load(a->type, pa, place(a, (int64_t[]){at[0], at[1], at[2], k})) *
                   load(b->type, pb, place(b, (int64_t[]){at[0], at[1], k, at[3]}));
        store(c->type, pc, place(c, at), sum);
    } while (next(c, at));
    if (dirty) bad("an accumulator that is not zero", dirty);
}

static void run_reduction(run *r, const desc *x, const desc *y, const desc *f) {
    int64_t at[4] = {0};
    const void *px = bytes_of(r, x);
    void *py = bytes_of(r, y);
    do {
        double all = f->mode == FL__REDUCE_TENSOR_MAX ? -INFINITY : 0;
        for (int64_t k = 0; k < x->dim[3]; k++) {
            const double v = load(x->type, px, place(x, (int64_t[]){at[0], at[1], at[2], k}));
            all = f->mode == FL__REDUCE_TENSOR_MAX ? (v > all ? v : all) : all + v;
        }
        store(y->type, py, place(y, at), all);
    } while (next(y, at));
}

/* The same matrix, or transposed, in other strides. */
static void run_reshape(run *r, const desc *x, const desc *y) {
    const bool crossed =
        x->dim[2] != y->dim[2] || x->stride[2] != y->stride[2] || x->stride[3] != y->stride[3];
    int64_t at[4] = {0};
    const void *px = bytes_of(r, x);
    void *py = bytes_of(r, y);
    do {
        const int64_t from[4] = {at[0], at[1], crossed ? at[3] : at[2], crossed ? at[2] : at[3]};
        store(y->type, py, place(y, at), load(x->type, px, place(x, from)));
    } while (next(y, at));
}

/* A tensor's elements, dense, in the order of its dims. */
static double *dense(const desc *t, const void *p) {
    double *to = malloc((size_t)numel(t) * sizeof *to);
    int64_t at[4] = {0}, n = 0;
    do to[n++] = load(t->type, p, place(t, at));
    while (next(t, at));
    return to;
}

/* One tap of a kernel along a row of the output: sums into y, x or the tap, whichever is wanted. */
FAST static void run_tap(int which, double *x, double *w, double *y, int64_t n, int64_t step) {
    double sum = 0;
    if (which == 2)
        for (int64_t i = 0; i < n; i++) y[i] += x[i * step] * *w;
    else if (which == 0)
        for (int64_t i = 0; i < n; i++) x[i * step] += y[i] * *w;
    else
        for (int64_t i = 0; i < n; i++) sum += x[i * step] * y[i];
    if (which == 1) *w += sum;
}

/* Sums products over all places that belong together, into y, x or w. */
static void run_conv(run *r, const desc *op, const desc *x, const desc *w, const desc *y, const desc *c) {
    const int which = op->kind == FL__BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? 2
                      : op->kind == FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? 0
                                                                                               : 1;
    const desc *const t[3] = {x, w, y}, *out = t[which];
    const int64_t outs = w->dim[0] / (x->dim[1] / w->dim[1]), taps = w->dim[2] * w->dim[3], step = c->step[1];
    int64_t to[4] = {0}, n = 0;
    double *v[3];
    for (int i = 0; i < 3; i++) v[i] = dense(t[i], bytes_of(r, t[i]));
    memset(v[which], 0, (size_t)numel(out) * sizeof **v);
    for (int64_t image = 0; image < x->dim[0]; image++)
        for (int64_t o = 0; o < w->dim[0]; o++)
            for (int64_t k = 0; k < w->dim[1] * taps; k++) {
                const int64_t kh = k / w->dim[3] % w->dim[2] * c->dilation[0] - c->pre[0];
                const int64_t kw = k % w->dim[3] * c->dilation[1] - c->pre[1];
                const int64_t channel = image * x->dim[1] + o / outs * w->dim[1] + k / taps;
                int64_t first = 0, end = y->dim[3];
                while (first < end && first * step + kw < 0) first++;
                while (end > first && (end - 1) * step + kw >= x->dim[3]) end--;
                for (int64_t row = 0; row < y->dim[2]; row++) {
                    const int64_t h = row * c->step[0] + kh;
                    if (h < 0 || h >= x->dim[2] || first == end) continue;
                    run_tap(which, v[0] + (channel * x->dim[2] + h) * x->dim[3] + first * step + kw,
                            v[1] + o * w->dim[1] * taps + k,
                            v[2] + ((image * w->dim[0] + o) * y->dim[2] + row) * y->dim[3] + first,
                            end - first, step);
                }
            }
    do store(out->type, bytes_of(r, out), place(out, to), v[which][n++]);
    while (next(out, to));
    for (int i = 0; i < 3; i++) free(v[i]);
}

static void run_all(void *arg) {
    run *r = arg;
    for (int i = 0; i < r->n_ops; i++) {
        const desc *op = &r->op[i], *t = r->part[i];
        if (op->kind == FL__BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            run_pointwise(r, op, t);
        else if (op->kind == FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            run_matmul(r, i);
        else if (op->kind == FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            run_reduction(r, &t[0], &t[2], &t[3]);
        else if (op->kind == FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            run_reshape(r, &t[0], &t[2]);
        else
            run_conv(r, op, &t[0], &t[1], &t[2], &t[3]);
    }
    while (r->n_values && r->v[r->n_values - 1].mine) free(r->v[--r->n_values].p); /* a graph runs it again */
}

/* ---- the functions ---- */

#define DECLARE(result, name, args) MOCK result name args;
FL__DNN_CALLS(DECLARE)

size_t cudnnGetVersion(void) {
    return (size_t)mock_version;
}
const char *cudnnGetErrorString(fl__dnn_status s) {
    return s == FAILED ? "execution failed" : "mock error";
}
fl__dnn_status cudnnCreate(fl__dnn_handle *h) {
    if (!(*h = calloc(1, sizeof **h)) || !cuda_emu_device) return free(*h), FAILED;
    return (*h)->device = cuda_emu_device(), 0;
}
fl__dnn_status cudnnSetStream(fl__dnn_handle h, fl__dnn_stream s) {
    return h->stream = s, 0;
}
fl__dnn_status cudnnBackendCreateDescriptor(fl__dnn_kind kind, fl__dnn_desc *d) {
    desc *new = calloc(1, sizeof *new);
    if (new) new->kind = kind;
    return *d = new, new ? 0 : FAILED;
}
fl__dnn_status cudnnBackendDestroyDescriptor(fl__dnn_desc d) {
    return free(d), 0;
}

/* Where an attribute goes, and how many there are of what size. */
static int set(desc *d, unsigned a, int64_t n, const void *v) {
    static const struct {
        unsigned attribute;
        size_t at, size;
        int64_t n; /* -1: any */
    } fields[] = {
#define FIELD(a, field, n) \
    {FL__ATTR_##a, offsetof(desc, field), sizeof(((desc *)0)->field) / (n < 0 ? MOST_IDS : n), n}
        FIELD(TENSOR_DATA_TYPE, type, 1),
        FIELD(TENSOR_DIMENSIONS, dim, 4),
        FIELD(TENSOR_STRIDES, stride, 4),
        FIELD(TENSOR_UNIQUE_ID, id, 1),
        FIELD(TENSOR_BYTE_ALIGNMENT, align, 1),
        FIELD(TENSOR_IS_VIRTUAL, inner, 1),
        FIELD(TENSOR_IS_BY_VALUE, number, 1),
        FIELD(POINTWISE_MODE, mode, 1),
        FIELD(POINTWISE_MATH_PREC, type, 1),
        FIELD(POINTWISE_AXIS, axis, 1),
        FIELD(POINTWISE_NAN_PROPAGATION, nan, 1),
        FIELD(MATMUL_COMP_TYPE, type, 1),
        FIELD(REDUCTION_OPERATOR, mode, 1),
        FIELD(REDUCTION_COMP_TYPE, type, 1),
        FIELD(CONVOLUTION_SPATIAL_DIMS, id, 1),
        FIELD(CONVOLUTION_COMP_TYPE, type, 1),
        FIELD(CONVOLUTION_CONV_MODE, mode, 1),
        FIELD(CONVOLUTION_PRE_PADDINGS, pre, 2),
        FIELD(CONVOLUTION_POST_PADDINGS, post, 2),
        FIELD(CONVOLUTION_DILATIONS, dilation, 2),
        FIELD(CONVOLUTION_FILTER_STRIDES, step, 2),
        FIELD(VARIANT_PACK_UNIQUE_IDS, ids, -1),
        FIELD(VARIANT_PACK_DATA_POINTERS, pointer, -1),
        FIELD(VARIANT_PACK_WORKSPACE, room, 1),
        FIELD(ENGINEHEUR_MODE, mode, 1),
        FIELD(ENGINEHEUR_OPERATION_GRAPH, in[0], 1),
        FIELD(OPERATIONGRAPH_HANDLE, room, 1),
        FIELD(EXECUTION_PLAN_HANDLE, room, 1),
        FIELD(EXECUTION_PLAN_ENGINE_CONFIG, in[0], 1),
        FIELD(OPERATION_POINTWISE_XDESC, in[0], 1),
        FIELD(OPERATION_POINTWISE_BDESC, in[1], 1),
        FIELD(OPERATION_POINTWISE_YDESC, in[2], 1),
        FIELD(OPERATION_POINTWISE_TDESC, in[4], 1),
        FIELD(OPERATION_POINTWISE_PW_DESCRIPTOR, in[3], 1),
        FIELD(OPERATION_MATMUL_ADESC, in[0], 1),
        FIELD(OPERATION_MATMUL_BDESC, in[1], 1),
        FIELD(OPERATION_MATMUL_CDESC, in[2], 1),
        FIELD(OPERATION_MATMUL_DESC, in[3], 1),
        FIELD(OPERATION_REDUCTION_XDESC, in[0], 1),
        FIELD(OPERATION_REDUCTION_YDESC, in[2], 1),
        FIELD(OPERATION_REDUCTION_DESC, in[3], 1),
        FIELD(OPERATION_RESHAPE_XDESC, in[0], 1),
        FIELD(OPERATION_RESHAPE_YDESC, in[2], 1),
#define CONV(kind, dx, dw, dy)                                                           \
    FIELD(OPERATION_CONVOLUTION_##kind##_ALPHA, alpha, 1),                               \
        FIELD(OPERATION_CONVOLUTION_##kind##_##dx, in[0], 1),                            \
        FIELD(OPERATION_CONVOLUTION_##kind##_##dw, in[1], 1),                            \
        FIELD(OPERATION_CONVOLUTION_##kind##_##dy, in[2], 1),                            \
        {FL__ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 1, offsetof(desc, beta), 4, 1}, \
        {FL__ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA + 2, offsetof(desc, in[3]), 8, 1}
        CONV(FORWARD, X, W, Y),
        CONV(BWD_DATA, DX, W, DY),
        CONV(BWD_FILTER, X, DW, DY)};
    if (a == FL__ATTR_OPERATIONGRAPH_OPS) {
        if (n < 1 || n > MOST_OPS) return bad("operations", n);
        memcpy(d->op, v, (size_t)n * sizeof *d->op);
        d->n_ops = n;
        return 0;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].attribute != a) continue;
        if (fields[i].n >= 0 ? n != fields[i].n : n > MOST_IDS)
            return bad("attributes of the wrong count", a);
        if (a == FL__ATTR_VARIANT_PACK_UNIQUE_IDS) d->n_ids = n;
        memcpy((char *)d + fields[i].at, v, (size_t)n * fields[i].size);
        return 0;
    }
    return bad("an attribute it does not know", a);
}

fl__dnn_status cudnnBackendSetAttribute(fl__dnn_desc d, fl__dnn_attribute a, fl__dnn_type t, int64_t n,
                                        const void *v) {
    desc *const to = d;
    if (to->done) return bad("an attribute after the end", a);
    if (t == FL__TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < n; i++)
            if (!((desc *const *)v)[i]->done) return bad("a part that is not finalized", a);
    return set(to, a, n, v);
}

static bool fits(const desc *a, const desc *b) {
    for (int i = 0; i < 4; i++)
        if (a->dim[i] != b->dim[i] && a->dim[i] != 1) return false;
    return true;
}

static int check(const desc *d) {
    const desc *x = d->in[0], *w = d->in[1], *y = d->in[2], *c = d->in[3];
    switch (d->kind) {
    case FL__BACKEND_TENSOR_DESCRIPTOR:
        for (int i = 0; i < 4; i++)
            if (d->dim[i] < 1 || d->stride[i] < 1) return bad("dims or strides", d->id);
        return d->align >= 2 || d->inner ? 0 : bad("alignment", d->align);
    case FL__BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        if ((d->in[4] != NULL) != (c->mode == FL__POINTWISE_BINARY_SELECT))
            return bad("a choice without a condition, or a condition without one", c->mode);
        if (c->mode == FL__POINTWISE_RELU_FWD && c->nan != FL__PROPAGATE_NAN)
            return bad("a relu that drops NaN", c->mode);
        return fits(x, y) && (!w || fits(w, y)) && (!d->in[4] || fits(d->in[4], y))
                   ? 0
                   : bad("a pointwise operation's shapes", c->mode);
    case FL__BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return x->dim[2] == y->dim[2] && w->dim[3] == y->dim[3] && x->dim[3] == w->dim[2]
                   ? 0
                   : bad("a product", x->dim[3]);
    case FL__BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return y->dim[3] == 1 && fits(y, x) ? 0 : bad("a reduction", 0);
    case FL__BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return numel(x) == numel(y) ? 0 : bad("a reshape", 0);
    case FL__BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case FL__BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        if (d->alpha != 1 || d->beta != 0 || c->mode != FL__CROSS_CORRELATION)
            return bad("a convolution's numbers", 0);
        for (int i = 0; i < 2; i++)
            if (y->dim[2 + i] !=
                (x->dim[2 + i] + c->pre[i] + c->post[i] - c->dilation[i] * (w->dim[2 + i] - 1) - 1) /
                        c->step[i] +
                    1)
                return bad("a convolution's shapes", i);
        return x->dim[0] == y->dim[0] && w->dim[0] == y->dim[1] && x->dim[1] % w->dim[1] == 0
                   ? 0
                   : bad("channels", 0);
    default:
        return 0;
    }
}

fl__dnn_status cudnnBackendFinalize(fl__dnn_desc given) {
    desc *d = given;
    int s = d->done ? bad("finalized twice", d->kind) : check(d);
    if (d->kind == FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR && cuda_emu_captures && cuda_emu_captures())
        s = bad("a plan that is made during a capture", 0);
    d->done = !s;
    if (d->kind != FL__BACKEND_EXECUTION_PLAN_DESCRIPTOR || s) return s;
    /* The graph goes, the plan stays. */
    const desc *config = d->in[0];
    if (config->id != 1) return UNSUPPORTED; /* the first one can never be built */
    run *r = calloc(1, sizeof *r);
    const desc *graph = config->in[0];
    if (!r) return FAILED;
    r->n_ops = (int)graph->n_ops;
    r->engine = (int)config->align;
    for (int i = 0; i < r->n_ops; i++) {
        r->op[i] = *graph->op[i];
        for (int k = 0; k < 5; k++)
            if (graph->op[i]->in[k]) r->part[i][k] = *graph->op[i]->in[k];
    }
    d->room = r; /* stays when the descriptor goes: it is a mock */
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
            list[i]->in[0] = d->in[0], list[i]->id = i > 1, list[i]->align = i, list[i]->done = true;
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

static int bind(run *r, const desc *pack, const desc *t) {
    if (t->kind != FL__BACKEND_TENSOR_DESCRIPTOR || t->inner) return 0;
    for (int64_t i = 0; i < pack->n_ids; i++) {
        if (pack->ids[i] != t->id) continue;
        if (!pack->pointer[i] || (!t->number && (uintptr_t)pack->pointer[i] % (uintptr_t)t->align))
            return bad("a pointer that is missing or less aligned", t->id);
        r->number[i] = t->number ? *(const float *)pack->pointer[i] : 0;
        r->v[r->n_values++] = (value){t->id, t->number ? (void *)&r->number[i] : pack->pointer[i], false};
        return 0;
    }
    return bad("no pointer for a tensor", t->id);
}

fl__dnn_status cudnnBackendExecute(fl__dnn_handle h, fl__dnn_desc given, fl__dnn_desc given_pack) {
    const desc *plan = given, *pack = given_pack;
    run *r = malloc(sizeof *r);
    if (!r) return FAILED;
    *r = *(run *)plan->room;
    for (int i = 0; i < r->n_ops; i++)
        for (int k = 0; k < 5; k++) {
            bool bound = false;
            for (int v = 0; v < r->n_values; v++) bound |= r->v[v].id == r->part[i][k].id;
            if (!bound && bind(r, pack, &r->part[i][k])) return free(r), BAD_PARAM;
        }
    if (!pack->room) return free(r), bad("no workspace", 0);
    mock_runs++;
    mock_engine = r->engine;
    if (h->device != cuda_emu_device()) return free(r), bad("a handle of another device", h->device);
    if (cuda_emu_start(run_all, r, h->stream, free)) return 0;
    free(r);
    return FAILED;
}
/* MIT licence: see LICENSE. */
