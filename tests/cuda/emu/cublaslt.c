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
struct fl__lt_desc_data {
    unsigned compute, scale, ta, tb, epilogue;
    const void *bias;
};
struct fl__lt_layout_data {
    unsigned type;
    int64_t rows, columns, ld, step;
    int32_t batch;
};
struct fl__lt_pref_data {
    size_t workspace;
    uint32_t reduction, align[4];
};

typedef struct work {
    struct fl__lt_desc_data op;
    struct fl__lt_layout_data a, b, d;
    const char *pa, *pb;
    char *pd;
} work;

/* What tests look at. */
MOCK extern int mock_products, mock_choices, mock_mistakes, mock_way; /* that ran last */
int mock_products, mock_choices, mock_mistakes, mock_way;

static int bad(const char *what) {
    mock_mistakes++;
    fprintf(stderr, "mock cuBLASLt: %s\n", what);
    return BAD_VALUE;
}

static double activated(const work *w, double v) {
    if (w->op.epilogue & FL__LT_RELU) v = v > 0 || isnan(v) ? v : 0;
    if (w->op.epilogue & FL__LT_GELU_TANH)
        v = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    return v;
}

/* A batch's matrix op(m), [along, across]; TF32 rounds. */
static double *dense(const struct fl__lt_layout_data *m, const char *p, int64_t batch, bool crossed,
                     bool tf32) {
    const int64_t across = crossed ? m->columns : m->rows, along = crossed ? m->rows : m->columns;
    double *to = malloc((size_t)(across * along) * sizeof *to);
    for (int64_t k = 0, at = 0; to && k < along; k++)
        for (int64_t i = 0; i < across; i++, at++) {
            const int64_t from = batch * m->step + (crossed ? i * m->ld + k : k * m->ld + i);
            const double x = load((int)m->type, p, from);
            to[at] = tf32 ? rounded((float)x, 10) : x;
        }
    return to;
}

/* A column of the product, each element one chain over k. */
FAST static void multiply(double *restrict sum, const double *a, const double *b, int64_t m, int64_t n,
                          int64_t k, bool f64) {
    memset(sum, 0, (size_t)m * sizeof *sum);
    for (int64_t l = 0; l < k; l++)
        for (int64_t i = 0; i < m; i++)
            sum[i] = f64 ? sum[i] + a[l * m + i] * b[l * n]
                         : (double)fmaf((float)a[l * m + i], (float)b[l * n], (float)sum[i]);
}

static void compute_one(const work *w, int64_t batch) {
    const bool ta = w->op.ta == FL__LT_TRANSPOSE, tf32 = w->op.compute == FL__LT_COMPUTE_TF32;
    const int64_t inner = ta ? w->a.rows : w->a.columns, m = w->d.rows, n = w->d.columns;
    const int type = (int)w->d.type;
    double *a = dense(&w->a, w->pa, batch, ta, tf32), *sum = malloc((size_t)m * sizeof *sum);
    double *b = dense(&w->b, w->pb, batch, w->op.tb != FL__LT_TRANSPOSE, tf32);
    for (int64_t j = 0; a && b && sum && j < n; j++) {
        float of_b = 0;
        multiply(sum, a, b + j, m, n, inner, type == F64);
        for (int64_t i = 0; i < m; i++) {
            if (w->op.epilogue & FL__LT_BIAS) sum[i] += load(type, w->op.bias, i);
            store(type, w->pd, batch * w->d.step + j * w->d.ld + i, activated(w, sum[i]));
        }
        if (!(w->op.epilogue & FL__LT_SUMS_OF_B)) continue;
        for (int64_t l = 0; l < inner; l++) of_b += (float)b[l * n + j];
        store(type, (char *)(uintptr_t)w->op.bias, j, (double)of_b);
    }
    free(a), free(b), free(sum);
}

static void compute(void *arg) {
    const work *w = arg;
    for (int32_t i = 0; i < w->d.batch; i++) compute_one(w, i);
}

/* ---- the functions ---- */

#define DECLARE(result, name, args) MOCK result name args;
FL__LT_CALLS(DECLARE)

static int made(void *p) {
    return *(void **)p ? 0 : 3;
}

fl__lt_status cublasLtCreate(fl__lt_handle *h) {
    if (!(*h = malloc(sizeof **h)) || !cuda_emu_device) return free(*h), 3;
    return (*h)->device = cuda_emu_device(), 0;
}
size_t cublasLtGetVersion(void) {
    return 130000;
}
const char *cublasLtGetStatusString(fl__lt_status s) {
    return s == FAILED ? "execution failed" : "mock error";
}
fl__lt_status cublasLtMatmulDescCreate(fl__lt_desc *d, fl__lt_compute compute_type, fl__lt_type scale) {
    *d = calloc(1, sizeof **d);
    if (*d)
        **d = (struct fl__lt_desc_data){
            .compute = compute_type, .scale = scale, .epilogue = FL__LT_NO_EPILOGUE};
    return made(d);
}
fl__lt_status cublasLtMatmulDescDestroy(fl__lt_desc d) {
    return free(d), 0;
}
fl__lt_status cublasLtMatmulDescSetAttribute(fl__lt_desc d, fl__lt_desc_attribute a, const void *v,
                                             size_t n) {
    if (n != (a == FL__LT_BIAS_POINTER ? sizeof(void *) : 4)) return bad("an attribute's size");
    if (a == FL__LT_TRANSA)
        memcpy(&d->ta, v, n);
    else if (a == FL__LT_TRANSB)
        memcpy(&d->tb, v, n);
    else if (a == FL__LT_EPILOGUE)
        memcpy(&d->epilogue, v, n);
    else if (a == FL__LT_BIAS_POINTER)
        memcpy(&d->bias, v, n);
    else
        return bad("an attribute of a product");
    return 0;
}
fl__lt_status cublasLtMatrixLayoutCreate(fl__lt_layout *l, fl__lt_type type, uint64_t rows, uint64_t columns,
                                         int64_t ld) {
    if (!rows || !columns || ld < (int64_t)rows) return bad("a layout shorter than its columns");
    *l = calloc(1, sizeof **l);
    if (*l)
        **l = (struct fl__lt_layout_data){
            .type = type, .rows = (int64_t)rows, .columns = (int64_t)columns, .ld = ld, .batch = 1};
    return made(l);
}
fl__lt_status cublasLtMatrixLayoutDestroy(fl__lt_layout l) {
    return free(l), 0;
}
fl__lt_status cublasLtMatrixLayoutSetAttribute(fl__lt_layout l, fl__lt_layout_attribute a, const void *v,
                                               size_t n) {
    if (a == FL__LT_BATCH_COUNT && n == 4)
        memcpy(&l->batch, v, n);
    else if (a == FL__LT_BATCH_OFFSET && n == 8)
        memcpy(&l->step, v, n);
    else
        return bad("an attribute of a layout");
    return l->batch > 0 ? 0 : bad("a batch of none");
}
fl__lt_status cublasLtMatmulPreferenceCreate(fl__lt_pref *p) {
    *p = calloc(1, sizeof **p);
    for (int i = 0; *p && i < 4; i++) (*p)->align[i] = 256;
    return made(p);
}
fl__lt_status cublasLtMatmulPreferenceDestroy(fl__lt_pref p) {
    return free(p), 0;
}
fl__lt_status cublasLtMatmulPreferenceSetAttribute(fl__lt_pref p, fl__lt_pref_attribute a, const void *v,
                                                   size_t n) {
    if (a == FL__LT_PREF_WORKSPACE && n == 8)
        memcpy(&p->workspace, v, n);
    else if (a == FL__LT_PREF_REDUCTION && n == 4)
        memcpy(&p->reduction, v, n);
    else if (a >= FL__LT_PREF_ALIGN_A && a <= FL__LT_PREF_ALIGN_D && n == 4)
        memcpy(&p->align[a - FL__LT_PREF_ALIGN_A], v, n);
    else
        return bad("an attribute of a preference");
    return 0;
}

/* What makes a choice that of one product. */
static uint64_t mark_of(fl__lt_desc op, fl__lt_layout a, fl__lt_layout b, fl__lt_layout d) {
    const struct fl__lt_layout_data *const l[3] = {a, b, d};
    uint64_t mark = op->compute * 31u + op->ta * 7u + op->tb * 5u + op->epilogue;
    for (int i = 0; i < 3; i++)
        mark = mark * 1000003u +
               (uint64_t)(l[i]->rows * 31 + l[i]->columns * 17 + l[i]->ld + l[i]->batch * 13) +
               (uint64_t)l[i]->step * 7u;
    return mark;
}

fl__lt_status cublasLtMatmulAlgoGetHeuristic(fl__lt_handle h, fl__lt_desc op, fl__lt_layout a,
                                             fl__lt_layout b, fl__lt_layout c, fl__lt_layout d, fl__lt_pref p,
                                             int most, fl__lt_choice *choice, int *n) {
    const int64_t inner = op->ta ? a->rows : a->columns, outer = op->ta ? a->columns : a->rows;
    (void)h;
    *n = 0;
    mock_choices++;
    if (c != d || most < 1) return bad("C that is not D");
    if (p->reduction != FL__LT_REDUCE_IN_F32) return bad("a reduction in place, or in a narrow type");
    if (inner != (op->tb ? b->columns : b->rows) || outer != d->rows ||
        (op->tb ? b->rows : b->columns) != d->columns)
        return bad("shapes that do not fit");
    if (a->batch != d->batch || b->batch != d->batch) return bad("batches that differ");
    if (a->type != b->type || (a->type != d->type && d->type != FL__LT_F32)) return bad("types that differ");
    if ((op->compute == FL__LT_COMPUTE_TF32 && a->type != FL__LT_F32) ||
        (op->compute == FL__LT_COMPUTE_F64) != (a->type == FL__LT_F64) ||
        op->scale != (a->type == FL__LT_F64 ? FL__LT_F64 : FL__LT_F32))
        return bad("a type of the sum that does not go with the operands");
    if (a->type == FL__LT_F64 && op->epilogue != FL__LT_NO_EPILOGUE) return UNSUPPORTED;
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
    const bool f64 = d->type == FL__LT_F64;
    if (h->device != cuda_emu_device()) return bad("a handle of another device");
    memcpy(align, &algo->data[1], sizeof align);
    if (algo->data[0] != mark_of(op, a, b, d)) return bad("the choice is for another product");
    for (int i = 0; i < 4; i++)
        if (address[i] % align[i]) return bad("an address is not aligned as promised");
    if (bytes < algo->data[3] || (algo->data[3] && !room)) return bad("too little workspace");
    const bool vector = op->epilogue & (FL__LT_BIAS | FL__LT_SUMS_OF_B);
    if (vector && (!op->bias || (uintptr_t)op->bias % size_of((int)d->type)))
        return bad("no bias");
    if ((f64 ? *(const double *)alpha : (double)*(const float *)alpha) != 1 ||
        (f64 ? *(const double *)beta : (double)*(const float *)beta) != 0 || pc != pd || c != d)
        return bad("a sum with C");
    work *w = malloc(sizeof *w);
    if (!w) return 3;
    *w = (work){*op, *a, *b, *d, pa, pb, pd};
    mock_products++;
    mock_way = (int)algo->data[4];
    if (cuda_emu_start(compute, w, stream, free)) return 0;
    free(w);
    return FAILED;
}
/* MIT licence: see LICENSE. */
