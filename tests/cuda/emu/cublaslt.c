/* tests/cuda/emu/cublaslt.c - a cuBLASLt for the emulated device: libcublasLt.so.13 of plain loops

   It checks what the real library would refuse or read wrongly (layouts too short, promises of alignment
   that addresses break, a choice for another product, too little workspace) and says so on standard error,
   and computes late, in the emulated stream. TF32 and narrow types round as the library's do. */
#include "../../../kernels/cuda/lt_calls.h"
#include "mock.h"

enum { BAD_VALUE = 7, UNSUPPORTED = 15, FAILED = 13 };

struct fl__lt_library {
    int device;
};
typedef struct fl__lt_desc_data {
    unsigned compute, scale, ta, tb, epilogue;
    void *bias;
} product;
typedef struct fl__lt_layout_data { /* batch, 1, columns, rows */
    tensor t;
    int32_t batch;
} layout;
typedef struct fl__lt_pref_data {
    size_t workspace;
    uint32_t reduction, align[4];
} preference;

typedef struct work {
    product op;
    tensor t[3]; /* A, B, D */
    void *p[3];
} work;

/* What tests look at. */
MOCK int mock_products, mock_choices, mock_mistakes, mock_way; /* that ran last */

static int bad(const char *what) {
    mock_mistakes++;
    fprintf(stderr, "mock cuBLASLt: %s\n", what);
    return BAD_VALUE;
}

static double activated(unsigned epilogue, double v) {
    if (epilogue & FL__LT_RELU) v = v > 0 || isnan(v) ? v : 0;
    if (epilogue & FL__LT_GELU_TANH)
        v = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    return v;
}

/* As it is multiplied: batch, 1, columns, rows. */
static tensor operand(fl__lt_layout l, unsigned form) {
    tensor t = l->t;
    if (form != FL__LT_TRANSPOSE) return t;
    t.dim[2] = l->t.dim[3], t.dim[3] = l->t.dim[2];
    t.stride[2] = l->t.stride[3], t.stride[3] = l->t.stride[2];
    return t;
}

static void compute(void *arg) {
    const work *w = arg;
    tensor t[3], *a = &t[0], *b = &t[1], *d = &t[2];
    memcpy(t, w->t, sizeof t);
    for (int k = 0; k < 3; k++) {
        make_dense(&t[k], (int64_t[2]){0}, (int64_t[2]){0});
        if (k < 2) transfer(&t[k], w->p[k], false);
        for (int64_t i = 0; w->op.compute == FL__LT_COMPUTE_TF32 && i < t[k].n; i++)
            t[k].v[i] = (double)rounded((float)t[k].v[i], 10);
    }
    visit((axis[]){{d->dim[0], {a->step[0], b->step[0], 0, d->step[0]}},
                   {d->dim[2], {0, b->step[2], 0, d->step[2]}},
                   {d->dim[3], {a->step[3], 0, 0, d->step[3]}},
                   {a->dim[2], {a->step[2], b->step[3], 0, 0}}}, 4, NULL, 0, a->v, b->v, a->v, d->v);
    for (int64_t i = 0; i < d->n; i++) {
        if (w->op.epilogue & FL__LT_BIAS) d->v[i] += (double)load(d->type, w->op.bias, i % d->dim[3]);
        d->v[i] = activated(w->op.epilogue, d->v[i]);
    }
    transfer(d, w->p[2], true);
    for (int64_t j = 0; w->op.epilogue & FL__LT_SUMS_OF_B && j < b->dim[2]; j++) {
        double sum = 0;
        for (int64_t l = 0; l < b->dim[3]; l++) sum += b->v[j * b->step[2] + l * b->step[3]];
        store(d->type, w->op.bias, j, sum);
    }
    for (int k = 0; k < 3; k++) free(t[k].v);
}

/* ---- the functions ---- */

FL__LT_CALLS(MOCK_DECLARE)

fl__lt_status cublasLtCreate(fl__lt_handle *h) {
    if (!cuda_emu_device) return FAILED;
    *h = malloc(sizeof **h);
    return (*h)->device = cuda_emu_device(), 0;
}
size_t cublasLtGetVersion(void) {
    return 130000;
}
const char *cublasLtGetStatusString(fl__lt_status s) {
    return s == FAILED ? "execution failed" : "mock error";
}
fl__lt_status cublasLtMatmulDescCreate(fl__lt_desc *d, fl__lt_compute compute_type, fl__lt_type scale) {
    *d = malloc(sizeof **d);
    **d = (product){.compute = compute_type, .scale = scale, .epilogue = FL__LT_NO_EPILOGUE};
    return 0;
}
fl__lt_status cublasLtMatmulDescDestroy(fl__lt_desc d) {
    return free(d), 0;
}
fl__lt_status cublasLtMatmulDescSetAttribute(fl__lt_desc d, fl__lt_desc_attribute a, const void *v,
                                             size_t n) {
    static const field fields[] = {FIELD(FL__LT_TRANSA, product, ta),
                                   FIELD(FL__LT_TRANSB, product, tb),
                                   FIELD(FL__LT_EPILOGUE, product, epilogue),
                                   FIELD(FL__LT_BIAS_POINTER, product, bias)};
    return set_field(fields, 4, d, a, v, n, false) ? 0 : bad("an attribute of a product");
}
fl__lt_status cublasLtMatrixLayoutCreate(fl__lt_layout *l, fl__lt_type type, uint64_t rows, uint64_t columns,
                                         int64_t ld) {
    if (!rows || !columns || ld < (int64_t)rows) return bad("a layout shorter than its columns");
    *l = malloc(sizeof **l);
    **l = (layout){{.type = (int32_t)type, .dim = {1, 1, (int64_t)columns, (int64_t)rows},
                    .stride = {0, 0, ld, 1}}, 1};
    return 0;
}
fl__lt_status cublasLtMatrixLayoutDestroy(fl__lt_layout l) {
    return free(l), 0;
}
fl__lt_status cublasLtMatrixLayoutSetAttribute(fl__lt_layout l, fl__lt_layout_attribute a, const void *v,
                                               size_t n) {
    static const field fields[] = {FIELD(FL__LT_BATCH_COUNT, layout, batch),
                                   FIELD(FL__LT_BATCH_OFFSET, layout, t.stride[0])};
    if (!set_field(fields, 2, l, a, v, n, false)) return bad("an attribute of a layout");
    return (l->t.dim[0] = l->batch) > 0 ? 0 : bad("a batch of none");
}
fl__lt_status cublasLtMatmulPreferenceCreate(fl__lt_pref *p) {
    *p = malloc(sizeof **p);
    **p = (preference){.align = {256, 256, 256, 256}};
    return 0;
}
fl__lt_status cublasLtMatmulPreferenceDestroy(fl__lt_pref p) {
    return free(p), 0;
}
fl__lt_status cublasLtMatmulPreferenceSetAttribute(fl__lt_pref p, fl__lt_pref_attribute a, const void *v,
                                                   size_t n) {
    static const field fields[] = {FIELD(FL__LT_PREF_WORKSPACE, preference, workspace),
                                   FIELD(FL__LT_PREF_REDUCTION, preference, reduction),
                                   FIELD(FL__LT_PREF_ALIGN_A, preference, align[0]),
                                   FIELD(FL__LT_PREF_ALIGN_A + 1, preference, align[1]),
                                   FIELD(FL__LT_PREF_ALIGN_A + 2, preference, align[2]),
                                   FIELD(FL__LT_PREF_ALIGN_D, preference, align[3])};
    return set_field(fields, 6, p, a, v, n, false) ? 0 : bad("an attribute of a preference");
}

/* What makes a choice that of one product. */
static uint64_t mark_of(fl__lt_desc op, fl__lt_layout a, fl__lt_layout b, fl__lt_layout d) {
    const tensor *const t[3] = {&a->t, &b->t, &d->t};
    uint64_t mark = op->compute * 31u + op->ta * 7u + op->tb * 5u + op->epilogue;
    for (int i = 0; i < 12; i++)
        mark = mark * 1000003u + (uint64_t)(t[i / 4]->dim[i % 4] * 31 + t[i / 4]->stride[i % 4]);
    return mark;
}

fl__lt_status cublasLtMatmulAlgoGetHeuristic(fl__lt_handle h, fl__lt_desc op, fl__lt_layout a,
                                             fl__lt_layout b, fl__lt_layout c, fl__lt_layout d, fl__lt_pref p,
                                             int most, fl__lt_choice *choice, int *n) {
    const tensor ta = operand(a, op->ta), tb = operand(b, op->tb);
    const int64_t inner = ta.dim[2];
    const int type = ta.type;
    (void)h;
    *n = 0;
    mock_choices++;
    if (c != d || most < 1) return bad("C that is not D");
    if (p->reduction != FL__LT_REDUCE_IN_F32) return bad("a reduction in place, or in a narrow type");
    if (inner != tb.dim[3] || ta.dim[3] != d->t.dim[3] || tb.dim[2] != d->t.dim[2])
        return bad("shapes that do not fit");
    if (ta.dim[0] != d->t.dim[0] || tb.dim[0] != d->t.dim[0]) return bad("batches that differ");
    if (type != tb.type || (type != d->t.type && d->t.type != FL__LT_F32)) return bad("types that differ");
    if ((op->compute == FL__LT_COMPUTE_TF32 && type != FL__LT_F32) ||
        (op->compute == FL__LT_COMPUTE_F64) != (type == FL__LT_F64) ||
        op->scale != (type == FL__LT_F64 ? FL__LT_F64 : FL__LT_F32))
        return bad("a type of the sum that does not go with the operands");
    if (type == FL__LT_F64 && op->epilogue != FL__LT_NO_EPILOGUE) return UNSUPPORTED;
    if (inner == 13) return UNSUPPORTED; /* so that tests see a shape for which there is nothing */
    for (; *n < most && *n < 3; ++*n, choice++) { /* three ways, of which each does the same */
        *choice = (fl__lt_choice){.workspaceSize = (inner + *n) % 2 ? 0 : 1 << 20};
        if (choice->workspaceSize > p->workspace) return bad("little room");
        choice->algo.data[0] = mark_of(op, a, b, d);
        memcpy(&choice->algo.data[1], p->align, sizeof p->align);
        choice->algo.data[3] = choice->workspaceSize;
        choice->algo.data[4] = (uint64_t)*n;
    }
    return 0;
}

fl__lt_status cublasLtMatmul(fl__lt_handle h, fl__lt_desc op, const void *alpha, const void *pa,
                             fl__lt_layout a, const void *pb, fl__lt_layout b, const void *beta,
                             const void *pc, fl__lt_layout c, void *pd, fl__lt_layout d,
                             const fl__lt_algo *algo, void *room, size_t bytes, fl__lt_stream stream) {
    const uintptr_t address[4] = {(uintptr_t)pa, (uintptr_t)pb, (uintptr_t)pc, (uintptr_t)pd};
    uint32_t align[4];
    if (h->device != cuda_emu_device()) return bad("a handle of another device");
    memcpy(align, &algo->data[1], sizeof align);
    if (algo->data[0] != mark_of(op, a, b, d)) return bad("the choice is for another product");
    for (int i = 0; i < 4; i++)
        if (address[i] % align[i]) return bad("an address is not aligned as promised");
    if (bytes < algo->data[3] || (algo->data[3] && !room)) return bad("too little workspace");
    if (op->epilogue & (FL__LT_BIAS | FL__LT_SUMS_OF_B) &&
        (!op->bias || (uintptr_t)op->bias % size_of(d->t.type)))
        return bad("no bias");
    if (load((int)op->scale, alpha, 0) != 1 || load((int)op->scale, beta, 0) != 0 || pc != pd || c != d)
        return bad("a sum with C");
    work *w = malloc(sizeof *w);
    *w = (work){*op, {operand(a, op->ta), operand(b, op->tb), d->t},
                {(void *)(uintptr_t)pa, (void *)(uintptr_t)pb, pd}};
    mock_products++;
    mock_way = (int)algo->data[4];
    return cuda_emu_start(compute, w, stream, free) ? 0 : FAILED;
}
/* MIT licence: see LICENSE. */
