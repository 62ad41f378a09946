/* fl/export/c.h - a step as one C11 file that needs nothing of fl: inference or a whole training step */
#ifndef FL_EXPORT_C_H
#define FL_EXPORT_C_H
#include "names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fl_graph_save_c(g, path, .state = &s, .outputs = ..., ...); options: fl_export_opts. Writes the step of g,
   which is ready (fl_graph_ready), as one file of C11 that needs libc and libm alone, and what it keeps
   (state and constants) as a safetensors file beside it, with that ending instead of .c. For the path step.c:

     step_state *step_open(const char *path)   from that file; NULL: it is missing or of another step, or
                                               there is no memory; path NULL, with .embed: as it was
     int step_run(step_state *, const step_inputs *, const step_outputs *)
                                               one step: 0; -1 if an index is out of range: state and outputs
                                               are undefined then
     int step_save(const step_state *, const char *path)
                                               0 if all is written, aside and renamed
     void step_close(step_state *)

   and structs of pointers to the arrays, in the order of memory, named as in the options: the caller sets all
   of inputs and outputs. Random numbers are those of fl. Element-wise calls of one shape are one loop, by the
   functions of fl_math.h, which the file contains; products and convolutions are loops of its own, parallel
   with -fopenmp, or cblas_sgemm and cblas_dgemm with -Dstep_BLAS. Sums are taken in the order of memory, in
   f64: results agree with fl's within rounding, not in bits. Dtypes: f32, f64, integers and b8.
   -Dstep_DECLARE leaves only the declarations. Equal steps give equal texts. False after an error, before
   anything is written: as fl_graph_open, or for an op or dtype that has no C. If the second of the two files
   cannot be written, the first, safetensors, is new already. */
#define fl_graph_save_c(...) FL_GRAPH__SAVE_C(__VA_ARGS__, ._end = 0)
#define FL_GRAPH__SAVE_C(g, path, ...) fl_graph_save_c_opt(g, path, FL_LITERAL(fl_export_opts, __VA_ARGS__))
FL_API bool fl_graph_save_c_opt(const fl_graph *g, const char *path, fl_export_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_EXPORT_C_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_EXPORT_C) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_EXPORT_C_IMPL
#define FL_EXPORT_C_IMPL
#include "../graph/group.h"
#include "../graph/plan.h"
#include "../../kernels/kernel_text.h"
#include "../records/formula.h"
#include "../records/step.h"
#include "../tensor/rng.h"
#include <math.h>
#include <string.h>

/* Functions of the text, in its order; a call asks for those that it uses. */
enum {
    FL__C_PRODUCT = 1,
    FL__C_PRODUCT_F64 = 2,
    FL__C_CONV = 4,
    FL__C_RANDOM = 8,
    FL__C_SORT = 16
};

typedef struct fl__c {
    const char *fn;
    fl__export *e;
    fl__order *order; /* NULL: the calls as they are */
    int64_t *offset;  /* of each value in the work memory, -1: not there */
    int64_t work;     /* bytes of it, and of its end that convolutions take for themselves */
    int64_t columns;
    char name[64];    /* of the step */
    bool embed;
    unsigned uses;    /* functions, as bits */
    fl__text text;    /* of a formula */
    fl_strbuf *t;     /* NULL: a first pass, which finds what has no C, and what is used */
    bool failed;
} fl__c;

#define FL__C_PUT(c, ...) ((c)->t ? fl_strbuf_printf((c)->t, __VA_ARGS__) : (void)0)

static const char *fl__c_type(fl_dtype d) {
    switch ((int)d) {
    case FL_F32: return "float";
    case FL_F64: return "double";
    case FL_B8:
    case FL_U8: return "uint8_t";
    case FL_I8: return "int8_t";
    case FL_I16: return "int16_t";
    case FL_U16: return "uint16_t";
    case FL_I32: return "int32_t";
    case FL_U32: return "uint32_t";
    case FL_I64: return "int64_t";
    case FL_U64: return "uint64_t";
    default: return NULL;
    }
}

/* The type in which numbers of dtype d are computed. */
static fl_dtype fl__c_wide(fl_dtype d) {
    return d == FL_B8 || d == FL_F32 || d == FL_F64 ? d : FL_I64;
}

static bool fl__c_refuse(fl__c *c, const fl_graph_call *call, const char *what) {
    char text[200];
    if (!c->failed) fl_fail("%s: %s: %s", c->fn, fl_graph_call_text(call, text, sizeof text), what);
    c->failed = true;
    return false;
}

static void fl__c_put_int(fl__c *c, int64_t x) {
    FL__C_PUT(c, x == INT64_MIN ? "INT64_MIN" : "INT64_C(%lld)", (long long)x);
}

static void fl__c_put_number(fl__c *c, double x, fl_dtype d) {
    if (d == FL_B8) FL__C_PUT(c, "%d", x != 0);
    else if (d == FL_I64) fl__c_put_int(c, x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x);
    else if (isnan(x)) FL__C_PUT(c, "(%s)NAN", fl__c_type(d));
    else if (isinf(x)) FL__C_PUT(c, "%s(%s)INFINITY", x < 0 ? "-" : "", fl__c_type(d));
    else if (d == FL_F32 && fabs(x) > 3.4028234e38) FL__C_PUT(c, "%s(float)INFINITY", x < 0 ? "-" : "");
    else FL__C_PUT(c, d == FL_F32 ? "(float)%.17g%s" : "%.17g%s", x, x == 0 ? ".0" : ""); /* -0 is 0 */
}

/* ---- operands ---- */

/* Where a value lies, without a cast. */
static void fl__c_put_place(fl__c *c, int v) {
    const fl__export_value *x = &c->e->value[v];
    if (x->kind == FL__EXPORT_WORK) FL__C_PUT(c, "s->work + %lld", (long long)c->offset[v]);
    else
        FL__C_PUT(c, "%s->%s",
                  x->kind == FL__EXPORT_INPUT    ? "in"
                  : x->kind == FL__EXPORT_OUTPUT ? "out"
                                                 : "s",
                  x->name);
}

/* Declares the pointer `as` to an operand's first element. */
static bool fl__c_operand(fl__c *c, const fl_graph_call *call, int k, const char *as) {
    const fl_tensor *t = k < 4 ? call->call.out[k] : call->call.in[k - 4];
    const int v = call->value[k];
    const char *type = fl__c_type(t->dtype), *constant = k < 4 ? "" : "const ";
    if (!type) return fl__c_refuse(c, call, "bf16, f16 and registered dtypes are not written as C");
    if (c->e->value[v].kind != FL__EXPORT_WORK)
        FL__C_PUT(c, "    %s%s *%s = ", constant, type, as);
    else FL__C_PUT(c, "    %s%s *%s = (%s%s *)(void *)(", constant, type, as, constant, type);
    fl__c_put_place(c, v);
    FL__C_PUT(c, c->e->value[v].kind == FL__EXPORT_WORK ? ")" : "");
    if (t->offset) FL__C_PUT(c, " + %lld", (long long)t->offset);
    FL__C_PUT(c, ";\n");
    return true;
}

/* ---- loops over operands of one shape ---- */

typedef struct fl__c_nest {
    int ndim, n; /* dims; operands */
    int64_t size[FL_MAX_DIMS], stride[12][FL_MAX_DIMS];
} fl__c_nest;

/* Adds a dim inside the others; merges it with the one before where all operands go on. */
static void fl__c_dim(fl__c_nest *x, int64_t size, const int64_t *stride) {
    bool joins = x->ndim > 0;
    if (size == 1) return;
    for (int k = 0; joins && k < x->n; k++) joins = x->stride[k][x->ndim - 1] == stride[k] * size;
    const int to = joins ? x->ndim - 1 : x->ndim++;
    x->size[to] = joins ? x->size[to] * size : size;
    for (int k = 0; k < x->n; k++) x->stride[k][to] = stride[k];
}

/* Over the axes of `like` in `mask`, in the order of its memory; t NULL: a weak number, all strides 0. */
static fl__c_nest fl__c_nest_of(int n, const fl_tensor *const t[], const fl_tensor *like, uint32_t mask) {
    fl__c_nest x = {.n = n};
    int order[FL_MAX_DIMS];
    fl_axes_by_stride(like, order);
    for (int i = 0; i < like->ndim; i++) {
        int64_t stride[12];
        if (!(mask >> order[i] & 1)) continue;
        for (int k = 0; k < n; k++)
            stride[k] = t[k] && t[k]->shape[order[i]] > 1 ? t[k]->stride[order[i]] : 0;
        fl__c_dim(&x, like->shape[order[i]], stride);
    }
    return x;
}

static void fl__c_for(fl__c *c, const fl__c_nest *x, char index) {
    FL__C_PUT(c, "    ");
    for (int i = 0; i < x->ndim; i++)
        FL__C_PUT(c, "for (int64_t %c%d = 0; %c%d < %lld; %c%d++) ", index, i, index, i,
                  (long long)x->size[i], index, i);
    FL__C_PUT(c, "{\n");
}

/* The offset of operand k within the loops. */
static void fl__c_put_at(fl__c *c, const fl__c_nest *x, int k, char index) {
    bool any = false;
    for (int i = 0; i < x->ndim; i++) {
        const long long stride = x->stride[k][i];
        if (!stride) continue;
        FL__C_PUT(c, any ? " + " : "");
        if (stride == 1) FL__C_PUT(c, "%c%d", index, i);
        else FL__C_PUT(c, "%c%d * %lld", index, i, stride);
        any = true;
    }
    if (!any) FL__C_PUT(c, "0");
}

/* ---- element-wise calls ---- */

/* Stores a value of dtype d as one of dtype `to`. */
static void fl__c_store(fl__c *c, const char *value, fl_dtype d, fl_dtype to) {
    if (to == FL_B8) FL__C_PUT(c, "(uint8_t)(%s != 0)", value);
    else if (fl_dtype_is_float(d) && !fl_dtype_is_float(to))
        FL__C_PUT(c, "flm_%s_to_%s(%s)", fl_dtype_name(d), fl_dtype_name(to), value);
    else if (d == to) FL__C_PUT(c, "%s", value);
    else FL__C_PUT(c, "(%s)%s", fl__c_type(to), value);
}

/* Prints steps of f: see fl__kernel_steps. */
static bool fl__c_steps(fl__c *c, const fl_graph_call *call, const fl_formula *f, fl_dtype d,
                        char at[FL_FORMULA_OPERANDS][8], bool *scalar, bool before) {
    fl__text *text = &c->text;
    text->n = 0;
    fl__kernel_steps(text, f, fl__c_type(d), fl_dtype_name(d), at, scalar, before);
    if (text->n >= sizeof text->at) return fl__c_refuse(c, call, "its formula is too long");
    if (text->n) FL__C_PUT(c, "%s", text->at);
    return true;
}

static void fl__c_constants(fl__c *c, const fl_formula *f, fl_dtype d, int indent,
                            char at[FL_FORMULA_OPERANDS][8]) {
    for (int i = 0; i < f->n_constants; i++) {
        FL__C_PUT(c, "%*sconst %s c%d = ", indent, "", fl__c_type(d), i);
        fl__c_put_number(c, f->constant[i], d);
        FL__C_PUT(c, ";\n");
        snprintf(at[FL_FORMULA_CONSTANT + i], sizeof at[0], "c%d", i);
    }
}

/* Stores output i of f, of operand k of the loops. */
static void fl__c_output(fl__c *c, const char *as, const fl__c_nest *x, int k, const char *value, fl_dtype d,
                         fl_dtype to) {
    FL__C_PUT(c, "        %s[", as);
    fl__c_put_at(c, x, k, 'i');
    FL__C_PUT(c, "] = ");
    fl__c_store(c, value, d, to);
    FL__C_PUT(c, ";\n");
}

static bool fl__c_formula(fl__c *c, const fl_graph_call *call, const fl_formula *f) {
    const fl_call *r = &call->call;
    const fl_tensor *t[12] = {NULL}, *like = r->out[0] ? r->out[0] : r->out[1];
    fl_dtype d = FL_DTYPE_NONE;
    char as[16];
    for (int k = 0; k < r->n_out; k++) {
        snprintf(as, sizeof as, "y%d", k);
        if (r->out[k] && !fl__c_operand(c, call, k, as)) return false;
        t[k] = r->out[k];
    }
    for (int k = 0; k < r->n_in; k++) {
        const fl_tensor *x = r->in[k];
        const bool condition = x->dtype == FL_B8 && (r->op == FL_OP_where ? k == 0 : f->conditions >> k & 1);
        snprintf(as, sizeof as, "x%d", k);
        if (x->weak) continue;
        if (f->reads >> k & 1 && !fl__c_operand(c, call, 4 + k, as)) return false;
        t[r->n_out + k] = x;
        if (!condition && d == FL_DTYPE_NONE) d = fl__c_wide(x->dtype);
    }
    if (d == FL_DTYPE_NONE) d = fl__c_wide(like->dtype);
    if (r->op == FL_OP_copy && r->in[0]->dtype == FL_U64 && fl_dtype_is_float(like->dtype)) d = FL_U64;
    const fl__c_nest x = fl__c_nest_of(r->n_out + r->n_in, t, like, ~0u);
    fl__c_for(c, &x, 'i');
    for (int k = 0; k < r->n_in; k++) {
        const fl_tensor *o = r->in[k];
        if (!(f->reads >> k & 1)) continue;
        FL__C_PUT(c, "        const %s a%d = ", fl__c_type(o->dtype == FL_B8 && !o->weak ? FL_B8 : d), k);
        if (o->weak) {
            if (d == FL_I64) fl__c_put_int(c, o->i64);
            else fl__c_put_number(c, o->f64, d);
        } else {
            if (d == FL_I64 && o->dtype != FL_B8 && o->dtype != FL_I64) FL__C_PUT(c, "(int64_t)");
            FL__C_PUT(c, "x%d[", k);
            fl__c_put_at(c, &x, r->n_out + k, 'i');
            FL__C_PUT(c, "]");
        }
        FL__C_PUT(c, ";\n");
    }
    char at[FL_FORMULA_OPERANDS][8];
    for (int i = 0; i < f->n_in; i++) snprintf(at[i], sizeof at[i], "a%d", i);
    fl__c_constants(c, f, d, 8, at);
    if (!fl__c_steps(c, call, f, d, at, NULL, false)) return false;
    for (int i = 0, k = 0; k < r->n_out; k++) {
        snprintf(as, sizeof as, "y%d", k);
        if (r->out[k]) fl__c_output(c, as, &x, k, at[f->out[i++]], d, r->out[k]->dtype);
    }
    FL__C_PUT(c, "    }\n");
    return true;
}

/* A step of an optimizer: what depends on numbers alone is computed before the loop, in f64. */
static bool fl__c_step(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_step_args *a = r->args;
    const fl_formula *f = &a->program;
    const int n = a->n_reads + a->n_writes;
    const fl_dtype d = r->in[n - 1]->dtype;
    const fl_tensor *t[8];
    char at[FL_FORMULA_OPERANDS][8], as[16];
    bool scalar[FL_FORMULA_OPERANDS] = {false}, known[FL_FORMULA_OPERANDS];
    if (r->n_out != a->n_writes || (d != FL_F32 && d != FL_F64))
        return fl__c_refuse(c, call, "steps of bf16 are not written as C");
    for (int k = 0; k < n; k++) {
        snprintf(as, sizeof as, "x%d", k), snprintf(at[k], sizeof at[k], "a%d", k);
        if (!fl__c_operand(c, call, k < a->n_reads ? 4 + k : k - a->n_reads, as)) return false;
        t[k] = r->in[k];
    }
    for (int k = n, i = n; k < r->n_in; k++) {
        const fl_tensor *number = r->in[k];
        snprintf(as, sizeof as, "n%d", k);
        if (!number->weak && !fl__c_operand(c, call, 4 + k, as)) return false;
        for (int64_t j = 0; j < fl_numel(number); j++, i++) {
            snprintf(at[i], sizeof at[i], "a%d", i);
            scalar[i] = true;
            if (!(f->reads >> i & 1) && !(a->skips && i == n)) continue;
            FL__C_PUT(c, "    const double a%d = ", i);
            if (number->weak) fl__c_put_number(c, number->f64, FL_F64);
            else FL__C_PUT(c, "(double)%s[%lld]", as, (long long)(number->ndim ? j * number->stride[0] : 0));
            FL__C_PUT(c, ";\n");
        }
    }
    if (a->skips) FL__C_PUT(c, "    if (a%d == 0) return 0;\n", n);
    fl__c_constants(c, f, FL_F64, 4, at);
    for (int i = 0; i < f->n_constants; i++) scalar[FL_FORMULA_CONSTANT + i] = true;
    memcpy(known, scalar, sizeof known);
    if (!fl__c_steps(c, call, f, d, at, known, true)) return false;
    const fl__c_nest x = fl__c_nest_of(n, t, r->in[n - 1], ~0u);
    fl__c_for(c, &x, 'i');
    for (int k = 0; k < n; k++) {
        if (!(f->reads >> k & 1)) continue;
        FL__C_PUT(c, "        const %s a%d = x%d[", fl__c_type(d), k, k);
        fl__c_put_at(c, &x, k, 'i');
        FL__C_PUT(c, "];\n");
    }
    for (int k = 0; k < f->n_in; k++) snprintf(at[k], sizeof at[k], "a%d", k);
    if (!fl__c_steps(c, call, f, d, at, scalar, false)) return false;
    for (int i = 0; i < a->n_writes; i++) {
        snprintf(as, sizeof as, "x%d", a->n_reads + i);
        fl__c_output(c, as, &x, a->n_reads + i, at[f->out[i]], scalar[f->out[i]] ? FL_F64 : d, d);
    }
    FL__C_PUT(c, "    }\n");
    return true;
}

/* The formula of `where` and `copy`, which have none of their own. */
static bool fl__c_built(fl__c *c, const fl_graph_call *call) {
    fl_formula f;
    fl_formula_builder b;
    const bool choice = call->call.op == FL_OP_where;
    int out = 0;
    if (!fl_formula_build(&b, &f, choice ? 3 : 1, choice)) return false;
    if (choice) out = fl_formula_build_step(&b, FL_PRIMITIVE_where, (int[]){0, 1, 2});
    return fl_formula_build_end(&b, 1, &out) ? fl__c_formula(c, call, &f) : fl__c_refuse(c, call, "has no C");
}

/* ---- reductions and indices ---- */

/* y's handle with x's axes: reduced ones have size 1. */
static fl_tensor fl__c_spread(const fl_tensor *y, const fl_tensor *x, const fl_reduce_args *a) {
    fl_tensor t = *y;
    t.ndim = x->ndim;
    for (int i = 0, from = 0; i < x->ndim; i++) {
        const bool reduced = a->axes >> i & 1;
        t.shape[i] = reduced ? 1 : x->shape[i];
        t.stride[i] = reduced ? 0 : y->stride[from];
        from += !reduced || a->keepdim;
    }
    return t;
}

static bool fl__c_reduce(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_reduce_args *a = r->args;
    const fl_tensor *x = r->in[0];
    const fl_tensor y = fl__c_spread(r->out[0], x, a), *t[2] = {&y, x};
    const fl_dtype d = fl__c_wide(x->dtype);
    const bool real = fl_dtype_is_float(d), product = r->op == FL_OP_prod,
               sum = r->op == FL_OP_sum || product;
    const bool index = r->op == FL_OP_argmax || r->op == FL_OP_argmin;
    const bool least = r->op == FL_OP_amin || r->op == FL_OP_argmin;
    const char *type = sum && real ? "double" : fl__c_type(d);
    if (!fl__c_operand(c, call, 0, "y") || !fl__c_operand(c, call, 4, "x")) return false;
    fl__c_nest kept = fl__c_nest_of(2, t, x, ~a->axes), in = fl__c_nest_of(1, &x, x, a->axes);
    fl__c_for(c, &kept, 'i');
    FL__C_PUT(c, "        %s r = %s;\n", type, product ? "1" : "0");
    if (!sum) FL__C_PUT(c, "        int64_t n = 0, at = 0;\n");
    FL__C_PUT(c, "    ");
    fl__c_for(c, &in, 'j');
    FL__C_PUT(c, "            const %s a = %sx[", type, d == x->dtype ? "" : "(int64_t)");
    fl__c_put_at(c, &kept, 1, 'i');
    FL__C_PUT(c, " + ");
    fl__c_put_at(c, &in, 0, 'j');
    FL__C_PUT(c, "];\n            ");
    if (sum)
        FL__C_PUT(c, real ? "r %c= a;\n" : "r = (int64_t)((uint64_t)r %c (uint64_t)a);\n",
                  product ? '*' : '+');
    else FL__C_PUT(c, "if (!n || %s(a %c r)) r = a, at = n;\n            n++;\n",
                   real ? "(a != a && r == r) || " : "", least ? '<' : '>');
    FL__C_PUT(c, "        }\n        y[");
    fl__c_put_at(c, &kept, 0, 'i');
    FL__C_PUT(c, "] = ");
    if (index) FL__C_PUT(c, "at");
    else fl__c_store(c, "r", sum && real ? FL_F64 : d, r->out[0]->dtype);
    FL__C_PUT(c, ";\n%s        }\n", sum ? "" : index ? "        (void)r;\n" : "        (void)at;\n");
    return true;
}

/* Loops over `index`, with k the index and its check; operand 0: t, whose axis is indexed by the loop. */
static void fl__c_indexed(fl__c *c, const fl__c_nest *x, int64_t size) {
    fl__c_for(c, x, 'i');
    FL__C_PUT(c, "        const int64_t k = index[");
    fl__c_put_at(c, x, 1, 'i');
    FL__C_PUT(c, "];\n        if (k < 0 || k >= %lld) return -1;\n", (long long)size);
}

/* A handle without the axis. */
static fl_tensor fl__c_without(const fl_tensor *t, int axis) {
    fl_tensor u = *t;
    u.stride[axis] = 0;
    return u;
}

static bool fl__c_gather(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const int axis = ((const fl_axis_args *)r->args)->axis;
    const fl_tensor x = fl__c_without(r->in[0], axis), *t[3] = {r->out[0], r->in[1], &x};
    if (!fl__c_operand(c, call, 0, "y") || !fl__c_operand(c, call, 4, "x") ||
        !fl__c_operand(c, call, 5, "index"))
        return false;
    const fl__c_nest nest = fl__c_nest_of(3, t, r->out[0], ~0u);
    fl__c_indexed(c, &nest, r->in[0]->shape[axis]);
    FL__C_PUT(c, "        y[");
    fl__c_put_at(c, &nest, 0, 'i');
    FL__C_PUT(c, "] = x[");
    fl__c_put_at(c, &nest, 2, 'i');
    FL__C_PUT(c, " + k * %lld];\n    }\n", (long long)r->in[0]->stride[axis]);
    return true;
}

/* y = x, then the elements at the indices get those of src, or are added to. */
static bool fl__c_scatter(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const int axis = ((const fl_axis_args *)r->args)->axis;
    const fl_tensor y = fl__c_without(r->out[0], axis), *t[3] = {&y, r->in[1], r->in[2]};
    const fl_tensor *all[2] = {r->out[0], r->in[0]};
    if (!fl__c_operand(c, call, 0, "y") || !fl__c_operand(c, call, 4, "x") ||
        !fl__c_operand(c, call, 5, "index") || !fl__c_operand(c, call, 6, "src"))
        return false;
    const fl__c_nest whole = fl__c_nest_of(2, all, r->out[0], ~0u);
    fl__c_for(c, &whole, 'i');
    FL__C_PUT(c, "        y[");
    fl__c_put_at(c, &whole, 0, 'i');
    FL__C_PUT(c, "] = x[");
    fl__c_put_at(c, &whole, 1, 'i');
    FL__C_PUT(c, "];\n    }\n");
    fl__c_nest nest = fl__c_nest_of(3, t, r->in[1], ~0u);
    fl__c_indexed(c, &nest, r->out[0]->shape[axis]);
    FL__C_PUT(c, "        y[");
    fl__c_put_at(c, &nest, 0, 'i');
    FL__C_PUT(c, " + k * %lld] %s src[", (long long)r->out[0]->stride[axis],
              r->op == FL_OP_scatter ? "=" : "+=");
    fl__c_put_at(c, &nest, 2, 'i');
    FL__C_PUT(c, "];\n    }\n");
    return true;
}

static bool fl__c_scan(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const int axis = ((const fl_axis_args *)r->args)->axis;
    const fl_tensor *t[2] = {r->out[0], r->in[0]}, *x = r->in[0];
    const bool product = r->op == FL_OP_cumprod, real = fl_dtype_is_float(x->dtype);
    if (!fl__c_operand(c, call, 0, "y") || !fl__c_operand(c, call, 4, "x")) return false;
    const fl__c_nest kept = fl__c_nest_of(2, t, x, ~(1u << axis));
    fl__c_for(c, &kept, 'i');
    FL__C_PUT(c, "        %s r = %d;\n", real ? "double" : "uint64_t", product);
    FL__C_PUT(c, "        for (int64_t j = 0; j < %lld; j++) {\n            r %c= (%s)x[",
              (long long)x->shape[axis], product ? '*' : '+', real ? "double" : "uint64_t");
    fl__c_put_at(c, &kept, 1, 'i');
    FL__C_PUT(c, " + j * %lld];\n            y[", (long long)x->stride[axis]);
    fl__c_put_at(c, &kept, 0, 'i');
    FL__C_PUT(c, " + j * %lld] = (%s)r;\n        }\n    }\n", (long long)r->out[0]->stride[axis],
              fl__c_type(r->out[0]->dtype));
    return true;
}

/* Lines along the axis are sorted as pairs of a key, an unsigned integer in the order of x, and a place; the
   results have the first ones. */
static bool fl__c_sort(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_sort_args *a = r->args;
    const fl_tensor *y = r->out[0], *x = r->in[0], *t[3] = {y, r->out[1], x};
    const long long n = (long long)x->shape[a->axis], kept_n = (long long)(y ? y : t[1])->shape[a->axis];
    if ((y && !fl__c_operand(c, call, 0, "y")) || (t[1] && !fl__c_operand(c, call, 1, "index")) ||
        !fl__c_operand(c, call, 4, "x"))
        return false;
    const fl__c_nest kept = fl__c_nest_of(3, t, x, ~(1u << a->axis));
    c->uses |= FL__C_SORT;
    if (32 * n > c->columns) c->columns = 32 * n;
    fl__c_for(c, &kept, 'i');
    FL__C_PUT(c, "        pair *p = (pair *)(void *)(s->work + %lld);\n"
              "        for (int64_t j = 0; j < %lld; j++) {\n            p[j].key = %skey_%s(x[",
              (long long)c->work, n, a->descending ? "~" : "", fl_dtype_is_float(x->dtype) ? "float" : "int");
    fl__c_put_at(c, &kept, 2, 'i');
    FL__C_PUT(c, " + j * %lld]);\n            p[j].at = j;\n        }\n        sort(p, p + %lld, %lld);\n"
              "        for (int64_t j = 0; j < %lld; j++) {\n", (long long)x->stride[a->axis], n, n, kept_n);
    for (int k = 0; k < 2; k++) {
        if (!t[k]) continue;
        FL__C_PUT(c, "            %s[", k ? "index" : "y");
        fl__c_put_at(c, &kept, k, 'i');
        FL__C_PUT(c, " + j * %lld] = ", (long long)t[k]->stride[a->axis]);
        if (k) FL__C_PUT(c, "p[j].at;\n");
        else {
            FL__C_PUT(c, "x[");
            fl__c_put_at(c, &kept, 2, 'i');
            FL__C_PUT(c, " + p[j].at * %lld];\n", (long long)x->stride[a->axis]);
        }
    }
    FL__C_PUT(c, "        }\n    }\n");
    return true;
}

/* ---- creation ---- */

static bool fl__c_fill(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_tensor *y = r->out[0];
    const fl_number number = fl__export_filled(call);
    if (!fl__c_operand(c, call, 0, "y")) return false;
    const fl__c_nest x = fl__c_nest_of(1, &y, y, ~0u);
    fl__c_for(c, &x, 'i');
    FL__C_PUT(c, "        y[");
    fl__c_put_at(c, &x, 0, 'i');
    FL__C_PUT(c, "] = ");
    if (number.real) fl__c_put_number(c, number.f, y->dtype);
    else {
        FL__C_PUT(c, "(%s)", fl__c_type(y->dtype));
        fl__c_put_int(c, number.i);
    }
    FL__C_PUT(c, ";\n    }\n");
    return true;
}

/* Loops over y's elements, row-major, with n their number so far. */
static void fl__c_count(fl__c *c, const fl_tensor *y, fl__c_nest *x) {
    *x = (fl__c_nest){.n = 1};
    for (int i = 0; i < y->ndim; i++) fl__c_dim(x, y->shape[i], &y->stride[i]);
    FL__C_PUT(c, "    int64_t n = 0;\n");
    fl__c_for(c, x, 'i');
    FL__C_PUT(c, "        y[");
    fl__c_put_at(c, x, 0, 'i');
}

static bool fl__c_iota(fl__c *c, const fl_graph_call *call) {
    const fl_tensor *y = call->call.out[0];
    const fl_iota_args *a = call->call.args;
    fl__c_nest x;
    if (!fl__c_operand(c, call, 0, "y")) return false;
    fl__c_count(c, y, &x);
    if (fl_dtype_is_float(y->dtype))
        FL__C_PUT(c, "] = (%s)(%.17g + (double)n * %.17g);\n", fl__c_type(y->dtype), a->f_start, a->f_step);
    else FL__C_PUT(c, "] = (%s)(UINT64_C(%llu) + (uint64_t)n * UINT64_C(%llu));\n", fl__c_type(y->dtype),
                   (unsigned long long)a->i_start, (unsigned long long)a->i_step);
    FL__C_PUT(c, "        n++;\n    }\n");
    return true;
}

static bool fl__c_random(fl__c *c, const fl_graph_call *call) {
    const fl_tensor *y = call->call.out[0];
    const fl_random_args *a = call->call.args;
    const bool wide = y->dtype == FL_F64;
    fl__c_nest x;
    if (!fl__c_operand(c, call, 0, "y")) return false;
    if (y->dtype != FL_F32 && !wide && a->dist != FL_INTEGER)
        return fl__c_refuse(c, call, "random numbers of this dtype are not written as C");
    c->uses |= FL__C_RANDOM;
    if (call->fixed_rng)
        FL__C_PUT(c, "    const uint64_t key = UINT64_C(%llu), from = UINT64_C(%llu);\n",
                  (unsigned long long)a->rng.key, (unsigned long long)a->rng.counter);
    else FL__C_PUT(c, "    const uint64_t key = s->rng[0], from = s->rng[1] + UINT64_C(%llu);\n",
                   (unsigned long long)(a->rng.counter - c->e->begin.counter));
    fl__c_count(c, y, &x);
    if (a->dist == FL_INTEGER)
        FL__C_PUT(c, "] = (%s)(UINT64_C(%llu) + random_int(key, from, n, UINT64_C(%llu)));\n",
                  fl__c_type(y->dtype), (unsigned long long)a->ia,
                  (unsigned long long)a->ib - (unsigned long long)a->ia);
    else
        FL__C_PUT(c, "] = (%s)(%.17g + (%.17g) * random_%s%s(key, from, n));\n", fl__c_type(y->dtype), a->a,
                  a->dist == FL_NORMAL ? a->b : a->b - a->a, a->dist == FL_NORMAL ? "normal" : "uniform",
                  wide ? "_f64" : "");
    FL__C_PUT(c, "        n++;\n    }\n");
    return true;
}

/* ---- products ---- */

static bool fl__c_product_type(fl__c *c, const fl_graph_call *call) {
    const fl_dtype d = call->call.out[0]->dtype;
    if (d != FL_F32 && d != FL_F64)
        return fl__c_refuse(c, call, "products of this dtype are not written as C");
    c->uses |= d == FL_F64 ? FL__C_PRODUCT_F64 : FL__C_PRODUCT;
    return true;
}

static bool fl__c_matmul(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_tensor *y = r->out[0], *a = r->in[0], *b = r->in[1], *t[3] = {y, a, b};
    const int n = y->ndim;
    if (!fl__c_product_type(c, call) || !fl__c_operand(c, call, 0, "y") || !fl__c_operand(c, call, 4, "a") ||
        !fl__c_operand(c, call, 5, "b"))
        return false;
    const fl__c_nest batch = fl__c_nest_of(3, t, y, (1u << (n - 2)) - 1);
    fl__c_for(c, &batch, 'i');
    FL__C_PUT(c, "        product%s(%lld, %lld, %lld", y->dtype == FL_F64 ? "_f64" : "",
              (long long)y->shape[n - 2], (long long)y->shape[n - 1], (long long)a->shape[n - 1]);
    for (int k = 1; k <= 3; k++) {
        FL__C_PUT(c, ", %s + ", k == 1 ? "a" : k == 2 ? "b" : "y");
        fl__c_put_at(c, &batch, k % 3, 'i');
        FL__C_PUT(c, ", %lld, %lld", (long long)t[k % 3]->stride[n - 2], (long long)t[k % 3]->stride[n - 1]);
    }
    FL__C_PUT(c, ", 0);\n    }\n");
    return true;
}

static void fl__c_put_strides(fl__c *c, const char *name, const fl_tensor *t) {
    FL__C_PUT(c, "    const int64_t %s[4] = {%lld, %lld, %lld, %lld};\n", name, (long long)t->stride[0],
              (long long)t->stride[1], (long long)t->stride[2], (long long)t->stride[3]);
}

/* Whether the text's loops can address them: an output's weights are dense, y's pixels one dim. */
static bool fl__c_conv_fits(const fl_tensor *w, const fl_tensor *y) {
    const int64_t last = (w->shape[1] - 1) * w->stride[1] + (w->shape[2] - 1) * w->stride[2] +
                         (w->shape[3] - 1) * w->stride[3];
    const bool pixels = y->shape[2] == 1 || y->shape[3] == 1 || y->stride[2] == y->stride[3] * y->shape[3];
    return last == w->shape[1] * w->shape[2] * w->shape[3] - 1 && pixels;
}

/* conv2d x, w -> y; its gradients dy, w -> dx and x, dy -> dw: x, w and y are operands by role. */
static bool fl__c_conv(fl__c *c, const fl_graph_call *call) {
    const fl_call *r = &call->call;
    const fl_conv2d_args *a = r->args;
    const bool image = r->op == FL_OP_conv2d_grad_input, kernel = r->op == FL_OP_conv2d_grad_weight;
    const int of[3] = {image ? 0 : 4, kernel ? 0 : 5, image ? 4 : kernel ? 5 : 0};
    const fl_tensor *x = image ? r->out[0] : r->in[0], *w = kernel ? r->out[0] : r->in[1];
    fl_tensor y = image ? *r->in[0] : kernel ? *r->in[1] : *r->out[0];
    if (r->out[0]->dtype != FL_F32 || !fl__c_conv_fits(w, &y))
        return fl__c_refuse(c, call, "convolutions of this dtype or layout are not written as C");
    if (y.shape[3] == 1) y.stride[3] = y.stride[2];
    if (!fl__c_product_type(c, call) || !fl__c_operand(c, call, of[0], "x") ||
        !fl__c_operand(c, call, of[1], "w") || !fl__c_operand(c, call, of[2], "y"))
        return false;
    const int64_t columns = w->shape[1] * w->shape[2] * w->shape[3] * y.shape[2] * y.shape[3] * 4;
    if (columns > c->columns) c->columns = columns;
    c->uses |= FL__C_CONV;
    fl__c_put_strides(c, "xs", x), fl__c_put_strides(c, "ws", w), fl__c_put_strides(c, "ys", &y);
    FL__C_PUT(c,
              "    const convolution p = {%lld, %lld, {%lld, %lld}, %lld, {%lld, %lld}, {%lld, "
              "%lld}, {%lld, %lld},\n"
              "                           {%lld, %lld}, {%lld, %lld}, xs, ws, ys, (float *)(void "
              "*)(s->work + %lld)};\n",
              (long long)a->groups, (long long)x->shape[1], (long long)x->shape[2],
              (long long)x->shape[3], (long long)w->shape[0], (long long)w->shape[2],
              (long long)w->shape[3], (long long)y.shape[2], (long long)y.shape[3],
              (long long)a->stride[0], (long long)a->stride[1], (long long)a->pad_lo[0],
              (long long)a->pad_lo[1], (long long)a->dilation[0], (long long)a->dilation[1],
              (long long)c->work);
    if (image) {
        const fl__c_nest all = fl__c_nest_of(1, &x, x, ~0u);
        fl__c_for(c, &all, 'i');
        FL__C_PUT(c, "        x[");
        fl__c_put_at(c, &all, 0, 'i');
        FL__C_PUT(c, "] = 0;\n    }\n");
    }
    FL__C_PUT(
        c,
        "    convolve(&p, %s, %lld, (float *)(uintptr_t)x, (float *)(uintptr_t)w, (float *)(uintptr_t)y);\n",
        image    ? "CONV_IMAGE"
        : kernel ? "CONV_KERNEL"
                 : "CONV",
        (long long)x->shape[0]);
    return true;
}

/* ---- one call ---- */

static bool fl__c_call(fl__c *c, const fl_graph_call *call) {
    const fl_op op = call->call.op;
    const fl_op_info *info = fl_op_get_info(op);
    switch ((int)op) {
    case FL_OP_copy:
    case FL_OP_where: return fl__c_built(c, call);
    case FL_OP_sum:
    case FL_OP_prod:
    case FL_OP_amax:
    case FL_OP_amin:
    case FL_OP_argmax:
    case FL_OP_argmin: return fl__c_reduce(c, call);
    case FL_OP_cumsum:
    case FL_OP_cumprod: return fl__c_scan(c, call);
    case FL_OP_gather: return fl__c_gather(c, call);
    case FL_OP_scatter:
    case FL_OP_scatter_add: return fl__c_scatter(c, call);
    case FL_OP_sort: return fl__c_sort(c, call);
    case FL_OP_fill: return fl__c_fill(c, call);
    case FL_OP_iota: return fl__c_iota(c, call);
    case FL_OP_random: return fl__c_random(c, call);
    case FL_OP_matmul: return fl__c_matmul(c, call);
    case FL_OP_conv2d:
    case FL_OP_conv2d_grad_input:
    case FL_OP_conv2d_grad_weight: return fl__c_conv(c, call);
    }
    if (op == fl_op_formula)
        return fl__c_formula(c, call, &((const fl_formula_args *)call->call.args)->program);
    if (op == fl_op_step) return fl__c_step(c, call);
    const bool gradient = op == FL_OP_grad1 || op == FL_OP_grad2;
    if (!info->arity && !gradient) return fl__c_refuse(c, call, "the op has no C");
    const fl_call *r = &call->call;
    const fl_program which = !gradient                   ? FL_PROGRAM_Y
                             : r->n_out == 1 || !r->out[1] ? FL_PROGRAM_DA
                             : !r->out[0]                  ? FL_PROGRAM_DB : FL_PROGRAM_DA_DB;
    const fl_formula *f = fl_op_program(gradient ? ((const fl_grad_args *)r->args)->op : op, which);
    return f && fl__c_formula(c, call, f);
}

/* Entry i of the order, or of the list. */
static const fl_graph_call *fl__c_entry(const fl__c *c, int i, fl__grouped_call *made) {
    return c->order ? fl__order_call(c->order, &c->e->l, i, made) : &c->e->l.call[i];
}

static int fl__c_entries(const fl__c *c) {
    return c->order ? c->order->n : (int)c->e->l.n;
}

/* The module that a call belongs to. */
static void fl__c_section(const fl_graph_call *call, char *text, size_t size) {
    const fl__call_place *p = call->place;
    *text = 0;
    if (p && p->at.describe) p->at.describe(p->at.of, text, size);
    for (char *at = text; *at; at++)
        if (*at == '/' || (unsigned char)*at < ' ') *at = ' '; /* of a comment */
}

static bool fl__c_calls(fl__c *c) {
    fl__grouped_call made;
    char section[256], before[256] = "";
    FL__C_PUT(
        c,
        "\n/* ---- the calls ---- */\n\n#define UNUSED __attribute__((unused))\n#define CALL(name) \\\n"
        "    static int name(UNUSED %s_state *s, UNUSED const %s_inputs *in, UNUSED const %s_outputs *out)\n",
        c->name, c->name, c->name);
    for (int i = 0; i < fl__c_entries(c); i++) {
        const fl_graph_call *call = fl__c_entry(c, i, &made);
        const fl__group *group = c->order && c->order->run[i] < 0 ? c->order->group[-1 - c->order->run[i]]
                                                                  : NULL;
        const fl_tensor *y = call->call.out[0] ? call->call.out[0] : call->call.out[1];
        fl__c_section(call, section, sizeof section);
        if (*section && strcmp(section, before)) FL__C_PUT(c, "\n/* ---- %s ---- */\n", section);
        snprintf(before, sizeof before, "%s", section);
        FL__C_PUT(c, "\n/* ");
        if (!group) FL__C_PUT(c, "%s ", fl_op_name(call->call.op));
        for (int k = 0; group && k < group->n_calls; k++)
            FL__C_PUT(c, "%s ", fl_op_name(c->e->l.call[group->call[k]].call.op));
        FL__C_PUT(c, "-> %s %s */\nCALL(call%d) {\n", fl_dtype_name(y->dtype), FL_SHAPE_TEXT(y), i);
        if (!fl__c_call(c, call)) return c->failed = true, false;
        FL__C_PUT(c, "    return 0;\n}\n");
    }
    return true;
}

/* ---- the parts that every file has ---- */

#include "c_parts.inc"

/* Writes a section of c_parts.c with its words replaced; wide: products are of f64. */
static void fl__c_put_text(fl__c *c, const char *text, bool wide) {
    const char *const words[][2] = {{"STEP_", c->name},
                                    {"REAL", wide ? "double" : "float"},
                                    {"PRODUCT", wide ? "product_f64" : "product"},
                                    {"GEMM", wide ? "cblas_dgemm" : "cblas_sgemm"}};
    while (*text) {
        size_t i = 0, n = 0;
        for (; i < 4 && strncmp(text, words[i][0], n = strlen(words[i][0])); i++) continue;
        if (i < 4) FL__C_PUT(c, "%s%s", words[i][1], i ? "" : "_");
        else FL__C_PUT(c, "%c", *text);
        text += i < 4 ? n : 1;
    }
}

/* The values of the state's file, in its order: state, constants; -1 behind the last. */
static int fl__c_part(const fl__c *c, int i) {
    const int states = c->e->n[FL__EXPORT_STATE];
    if (i < states) return fl__export_find(c->e, FL__EXPORT_STATE, i);
    return i < states + c->e->n[FL__EXPORT_CONSTANT] ? fl__export_find(c->e, FL__EXPORT_CONSTANT, i - states)
                                                     : -1;
}

/* A part of the file: its bytes, and place in the program's memory and in the file. */
typedef struct fl__c_place {
    const char *name;
    fl_dtype dtype;
    fl_shape shape;
    int64_t bytes, at, from;
    const fl_buffer *buffer; /* NULL: the generator */
} fl__c_place;

/* Writes the entry of a part in the header; c: as the contents of a C string. */
static void fl__c_put_json(fl_strbuf *t, const fl__c_place *p, bool c) {
    const char *q = c ? "\\\"" : "\"";
    char text[6 * FL_DATA_MAX_NAME + 1];
    fl_strbuf json = {.buf = text, .size = sizeof text};
    fl_strbuf_put_json(&json, p->name);
    fl_strbuf_printf(t, "%s", q);
    for (const char *at = text; *at; at++)
        fl_strbuf_printf(t, "%s%c", c && (*at == '\\' || *at == '"') ? "\\" : "", *at);
    fl_strbuf_printf(t, "%s:{%sdtype%s:%s%s%s,%sshape%s:%s,%sdata_offsets%s:[%lld,%lld]}", q, q, q, q,
                     fl__st_dtype_name(p->dtype), q, q, q, FL_TEXT_OF(p->shape), q, q, (long long)p->from,
                     (long long)(p->from + p->bytes));
}

static bool fl__c_next_part(const fl__c *c, int i, fl__c_place *p) {
    const int v = fl__c_part(c, i);
    const int64_t at = i ? (p->at + p->bytes + 63) / 64 * 64 : 0, from = i ? p->from + p->bytes : 0;
    if (v >= 0) {
        const fl__export_value *x = &c->e->value[v];
        *p = (fl__c_place){x->label ? x->label : x->name, x->dtype, x->shape,
                           c->e->l.value[v].bytes,        at,       from,
                           c->e->l.value[v].buffer};
        return true;
    }
    const int last = c->e->n[FL__EXPORT_STATE] + c->e->n[FL__EXPORT_CONSTANT];
    *p = (fl__c_place){"rng", FL_U64, FL_SHAPE(2), i == last && c->e->random ? 16 : 0, at, from, NULL};
    return p->bytes > 0;
}

static void fl__c_put_header(const fl__c *c, fl_strbuf *t) {
    fl__c_place p;
    fl_strbuf_printf(t, "{");
    for (int i = 0; fl__c_next_part(c, i, &p); i++) {
        fl_strbuf_printf(t, i ? "," : "");
        fl__c_put_json(t, &p, false);
    }
    fl_strbuf_printf(t, "}");
}

static void fl__c_put_weights(fl_strbuf *t, void *user) {
    const fl__c *c = user;
    fl__c_place p;
    fl_strbuf count = {0};
    fl__c_put_header(c, &count);
    const uint64_t n = ((uint64_t)count.n + 7) / 8 * 8;
    fwrite(&n, 8, 1, (FILE *)t->file);
    fl__c_put_header(c, t);
    fl_strbuf_printf(t, "%*s", (int)((int64_t)n - count.n), "");
    for (int i = 0; fl__c_next_part(c, i, &p); i++) {
        const fl_rng now = fl_rng_state().key == c->e->begin.key ? fl_rng_state() : c->e->begin;
        const uint64_t rng[2] = {now.key, now.counter};
        const void *bytes = p.buffer ? fl_buffer_map((fl_buffer *)(uintptr_t)p.buffer) : rng;
        if (bytes) fwrite(bytes, 1, (size_t)p.bytes, (FILE *)t->file);
        if (p.buffer && bytes) fl_buffer_unmap((fl_buffer *)(uintptr_t)p.buffer);
    }
}

/* ---- the file ---- */

/* A name in a comment. */
static void fl__c_put_comment(fl__c *c, const char *text) {
    FL__C_PUT(c, ", ");
    for (; *text; text++) FL__C_PUT(c, "%c", *text == '/' || (unsigned char)*text < ' ' ? ' ' : *text);
}

/* The bytes of a part as words of 8, the last one filled with 0. */
static void fl__c_put_words(fl__c *c, const fl__c_place *p) {
    const fl_rng now = fl_rng_state().key == c->e->begin.key ? fl_rng_state() : c->e->begin;
    fl_buffer *b = (fl_buffer *)(uintptr_t)p->buffer;
    const char *bytes = b ? fl_buffer_map(b) : (const char *)&now;
    for (int64_t i = 0; bytes && i < p->bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, (size_t)(p->bytes - i < 8 ? p->bytes - i : 8));
        FL__C_PUT(c, "%s0x%llx,", i % 64 ? "" : "\n    ", (unsigned long long)word);
    }
    if (b && bytes) fl_buffer_unmap(b);
}

static void fl__c_put_struct(fl__c *c, fl__export_kind kind, const char *what, const char *constant) {
    FL__C_PUT(c, "typedef struct %s_%s {\n", c->name, what);
    int n = 0;
    for (fl__export_kind k = kind; k <= (kind == FL__EXPORT_STATE ? FL__EXPORT_CONSTANT : kind); k++)
        for (int i = 0; i < c->e->n[k]; i++, n++) {
            const int v = fl__export_find(c->e, k, i);
            const fl__export_value *x = &c->e->value[v];
            const fl_graph_value *g = &c->e->l.value[v];
            FL__C_PUT(c, "    %s%s *%s; /* %s, %s", constant, fl__c_type(x->dtype), x->name,
                      fl__role_name(g->role), FL_TEXT_OF(x->shape));
            if (x->label) fl__c_put_comment(c, x->label);
            FL__C_PUT(c, " */\n");
        }
    if (kind == FL__EXPORT_STATE) {
        if (c->e->random)
            FL__C_PUT(c, "    uint64_t *rng; /* key and counter of the random numbers, [2] */\n");
        FL__C_PUT(c, "    char *work;    /* of a step */\n    char *memory;  /* of all arrays */\n");
    } else if (!n) {
        FL__C_PUT(c, "    char none;\n");
    }
    FL__C_PUT(c, "} %s_%s;\n", c->name, what);
}

static void fl__c_put_open(fl__c *c) {
    fl__c_place p;
    int64_t memory = 0;
    FL__C_PUT(c, "\nstatic const struct {\n    const char *json;\n    size_t at, bytes; /* in "
                 "memory */\n} part[] = {\n");
    for (int i = 0; fl__c_next_part(c, i, &p); i++) {
        FL__C_PUT(c, "    {\"");
        if (c->t) fl__c_put_json(c->t, &p, true);
        FL__C_PUT(c, "\", %lld, %lld},\n", (long long)p.at, (long long)p.bytes);
        memory = (p.at + p.bytes + 63) / 64 * 64;
    }
    FL__C_PUT(c, "    {NULL, 0, 0}};\n");
    fl__c_put_text(c, fl__c_file_text, false);
    if (c->embed) {
        FL__C_PUT(c, "\nstatic const uint64_t initial[] = {");
        for (int i = 0; fl__c_next_part(c, i, &p); i++) fl__c_put_words(c, &p);
        FL__C_PUT(c, "0};\n");
    }
    FL__C_PUT(c, "\n%s_state *%s_open(const char *path) {\n    %s_state *s = calloc(1, sizeof *s);\n"
              "    if (!s) return NULL;\n    s->memory = aligned_alloc(64, %lld);\n"
              "    if (!s->memory) return free(s), (%s_state *)NULL;\n    memset(s->memory, 0, %lld);\n"
              "    s->work = s->memory + %lld;\n", c->name, c->name, c->name,
              (long long)((memory + c->work + c->columns + 127) / 64 * 64), c->name,
              (long long)((memory + c->work + c->columns + 127) / 64 * 64), (long long)memory);
    for (int i = 0; fl__c_next_part(c, i, &p); i++) {
        const int v = fl__c_part(c, i);
        FL__C_PUT(c, "    s->%s = (%s *)(void *)(s->memory + %lld);\n", v < 0 ? "rng" : c->e->value[v].name,
                  fl__c_type(p.dtype), (long long)p.at);
    }
    if (c->embed)
        FL__C_PUT(c, "    const uint64_t *from = initial;\n    for (int i = 0; i < PARTS; i++) {\n"
                  "        memcpy(s->memory + part[i].at, from, part[i].bytes);\n"
                  "        from += (part[i].bytes + 7) / 8;\n    }\n    if (!path) return s;\n");
    FL__C_PUT(c, "    if (path && state_read(s, path)) return s;\n    %s_close(s);\n    return NULL;\n}\n",
              c->name);
}

static void fl__c_put_run(fl__c *c) {
    FL__C_PUT(c, "\nint %s_run(%s_state *s, const %s_inputs *in, const %s_outputs *out) {\n", c->name,
              c->name, c->name, c->name);
    FL__C_PUT(c, "    static int (*const calls[])(%s_state *, const %s_inputs *, const %s_outputs *) = {",
              c->name, c->name, c->name);
    for (int i = 0; i < fl__c_entries(c); i++) FL__C_PUT(c, "%scall%d, ", i % 8 ? "" : "\n        ", i);
    FL__C_PUT(c,
              "NULL};\n    for (int i = 0; calls[i]; i++)\n        if (calls[i](s, in, out)) return -1;\n");
    if (c->e->random) FL__C_PUT(c, "    s->rng[1] += UINT64_C(%llu);\n", (unsigned long long)c->e->draws);
    FL__C_PUT(c, "    return 0;\n}\n");
}

static void fl__c_put_declarations(fl__c *c) {
    const char *n = c->name;
    FL__C_PUT(c, "/* %s.c - a step of %lld calls, written by fl: C11 with libc and libm alone\n\n"
              "   cc -O3 -march=native -c %s.c                products by a loop of its own\n"
              "   cc -O3 -march=native -D%s_BLAS -c %s.c      by a BLAS: link with -lopenblas\n\n"
              "   -D%s_DECLARE leaves the declarations. */\n", n, (long long)c->e->l.n, n, n, n, n);
    FL__C_PUT(c, "#ifndef %s_H\n#define %s_H\n#include <stddef.h>\n#include <stdint.h>\n\n", n, n);
    FL__C_PUT(c, "/* What is kept between steps. */\n");
    fl__c_put_struct(c, FL__EXPORT_STATE, "state", "");
    fl__c_put_struct(c, FL__EXPORT_INPUT, "inputs", "const ");
    fl__c_put_struct(c, FL__EXPORT_OUTPUT, "outputs", "");
    FL__C_PUT(
        c,
        "/* From a file of the state%s; NULL: it is missing or not this step's, or there is no memory. */\n"
        "%s_state *%s_open(const char *path);\n"
        "/* One step. 0; -1: an index was out of range, state and outputs are undefined. */\n"
        "int %s_run(%s_state *s, const %s_inputs *in, const %s_outputs *out);\n"
        "/* 0 if all is written, aside and renamed. */\n"
        "int %s_save(const %s_state *s, const char *path);\nvoid %s_close(%s_state *s);\n#endif\n",
        c->embed ? ", or as it was (NULL)" : "", n, n, n, n, n, n, n, n, n, n);
}

/* The text of fl_math.h, with the file that it includes in its place. */
static void fl__c_put_math(fl__c *c) {
    char line[1000];
    size_t n = 0;
    FL__C_PUT(c, "#if defined(__clang__)\n#pragma clang diagnostic ignored \"-Wunused-function\"\n#endif\n");
    for (const char *const *p = fl__math_text(); *p; p++)
        for (const char *at = *p; *at; at++) {
            if (n + 1 < sizeof line) line[n++] = *at;
            if (*at != '\n') continue;
            line[n] = 0;
            n = 0;
            const bool include = !strcmp(line, "#include \"fl_math_f32.h\"\n");
            if (!include) FL__C_PUT(c, "%s", line);
            for (const char *const *q = fl__math_f32_text(); include && *q; q++) FL__C_PUT(c, "%s", *q);
        }
}

static void fl__c_put_all(fl__c *c) {
    fl__c_put_declarations(c);
    FL__C_PUT(c, "\n#ifndef %s_DECLARE\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
              "#ifdef %s_BLAS\n#include <cblas.h>\n#endif\n", c->name, c->name);
    FL__C_PUT(c, "\n/* ---- functions of numbers ---- */\n");
    fl__c_put_math(c);
    const unsigned uses = c->uses;
    if (uses & (FL__C_PRODUCT | FL__C_PRODUCT_F64)) fl__c_put_text(c, fl__c_parallel_text, false);
    if (uses & FL__C_PRODUCT) fl__c_put_text(c, fl__c_product_text, false);
    if (uses & FL__C_PRODUCT_F64) fl__c_put_text(c, fl__c_product_text, true);
    if (uses & FL__C_CONV) fl__c_put_text(c, fl__c_conv_text, false);
    if (uses & FL__C_RANDOM) fl__c_put_text(c, fl__c_random_text, false);
    if (uses & FL__C_SORT) fl__c_put_text(c, fl__c_sort_text, false);
    fl__c_calls(c);
    fl__c_put_run(c);
    fl__c_put_open(c);
    FL__C_PUT(c, "#endif\n");
}

static void fl__c_put_file(fl_strbuf *t, void *user) {
    fl__c *c = user;
    c->t = t;
    fl__c_put_all(c);
}

/* Places for temporaries. */
static bool fl__c_plan(fl__c *c) {
    const fl_graph_list *l = &c->e->l;
    fl_plan_value *value = fl_heap_alloc((size_t)(l->n_values + 1) * sizeof *value);
    int n = 0;
    if (!value || !(c->offset = fl_heap_alloc((size_t)(l->n_values + 1) * sizeof *c->offset)))
        return fl_heap_free(value), false;
    for (int64_t i = 0; i < l->n_values; i++) {
        const int first = c->order ? c->order->first[i] : l->value[i].first;
        const int last = c->order ? c->order->last[i] : l->value[i].last;
        c->offset[i] = c->e->value[i].kind == FL__EXPORT_WORK && first >= 0 ? n : -1;
        if (c->offset[i] >= 0)
            value[n++] = (fl_plan_value){.bytes = l->value[i].bytes, .first = first, .last = last};
    }
    c->work = fl_plan_memory(value, n);
    for (int64_t i = 0; i < l->n_values; i++)
        if (c->offset[i] >= 0) c->offset[i] = value[c->offset[i]].offset;
    fl_heap_free(value);
    return c->work >= 0;
}

/* Everything that is read from the program is memory of the host. */
static bool fl__c_is_host(const fl__c *c) {
    for (int64_t i = 0; i < c->e->l.n_values; i++) {
        const fl_buffer *b = c->e->l.value[i].buffer;
        if (b && !b->device->host)
            return fl_fail("%s: '%s' is on device %s, expected the host", c->fn, c->e->value[i].name,
                           b->device->name);
    }
    return true;
}

FL_API bool fl_graph_save_c_opt(const fl_graph *g, const char *path, fl_export_opts o) {
    static const char fn[] = "fl_graph_save_c";
    char weights[1024];
    if (!fl_given(path, fn, "the path")) return fl_raise();
    const size_t length = strlen(path);
    if (length < 3 || strcmp(path + length - 2, ".c") || length + 12 > sizeof weights)
        return fl_err_false("%s: got the path %s, expected one that ends with .c", fn, path);
    const char *slash = strrchr(path, '/');
    fl__c *c = fl_heap_alloc(sizeof *c);
    if (!c) return fl_raise();
    c->fn = fn, c->embed = o.embed;
    snprintf(weights, sizeof weights, "%.*s", (int)(length - 2), slash ? slash + 1 : path);
    if (slash) snprintf(weights, sizeof weights, "%.*s", (int)(path + length - 2 - slash - 1), slash + 1);
    fl__export_identifier(weights, c->name, sizeof c->name);
    snprintf(weights, sizeof weights, "%.*s.safetensors", (int)(length - 2), path);
    bool ok = (c->e = fl__export_new(fn, g, "formulas step", &o)) != NULL && fl__c_is_host(c);
    if (ok) c->order = fl__order_new(&c->e->l, 0, false);
    ok = ok && fl__c_plan(c);
    if (ok) fl__c_put_all(c); /* finds what is used, and what has no C */
    ok = ok && !c->failed && (o.embed || fl_write_file_atomic(fn, weights, fl__c_put_weights, c)) &&
         fl_write_file_atomic(fn, path, fl__c_put_file, c);
    fl__order_free(c->order);
    fl__export_free(c->e);
    fl_heap_free(c->offset);
    fl_heap_free(c);
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
