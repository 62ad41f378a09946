/* examples/extend/opencl.h - a backend for any OpenCL 1.2 device: GPUs, and processors by PoCL

   libOpenCL.so.1 is opened when the backend is made, and no header of OpenCL is needed: a program that
   includes this file builds and starts anywhere. fl_backend_opencl returns NULL, with the reason in fl_error,
   where the library or a platform is absent.

     if (!fl_backend_use(fl_backend_opencl(), NULL)) ...
     fl_backend_set_default("opencl");

   How it is made
     memory    A buffer is a cl_mem: opencl_device.h, which also moves bytes from and to the host.
     formulas  An element-wise op is printed as OpenCL C from its program in the op table (fl_op_program), one
               kernel for each program, dtype and set of operands that are numbers, and another one for
               operands without gaps. Gradients and the programs of fl_apply are printed in the same way.
     others    The texts of opencl_kernels.h, compiled for a dtype when they first run. Any strides: kernels
               get dims that were joined where the strides of all operands allow it.
     order     One queue, in order: fl waits only where the host reads. An index out of range or x % 0 is
               reported by the next read or fl_sync, as slots of an asynchronous backend do.

   The device: the first GPU, else the first device; OPENCL_DEVICE=text takes the first whose name contains
   the text.
   Tensors of more than 2^30 elements are refused, and f64 is refused by a device without double precision. */
#ifndef OPENCL_H
#define OPENCL_H
#include "../../fl/records/formula.h"
#include "opencl_device.h"
#include "opencl_kernels.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- kernels: compiled when they first run ---- */

enum { OPENCL_OPERANDS = 12, OPENCL_DIMS = FL_MAX_DIMS, OPENCL_MORE = 16, OPENCL_MOST = 1 << 30 };
/* What each kernel gets first. Element i of n, counted in row-major order of shape, is element
   at[k] + sum over d of index[d] * stride[k][d] of the cl_mem of operand k. */
typedef struct opencl_pass {
    int32_t n, ndim, op, dense, shape[OPENCL_DIMS], at[OPENCL_OPERANDS],
        stride[OPENCL_OPERANDS][OPENCL_DIMS];
    int32_t more[OPENCL_MORE]; /* what else an op needs */
} opencl_pass;

/* A program compiled, and its kernel: made of texts under the lock. NULL after fl_fail. */
static void *opencl_build(int n, const char **text, const char *kernel) {
    int error = 0;
    void *program =
        opencl.clCreateProgramWithSource(opencl.context, (uint32_t)n, text, NULL, &error);
    if (!opencl_ok(error, "clCreateProgramWithSource")) return NULL;
    char options[120];
    snprintf(options, sizeof options, "-w -cl-std=CL1.2 -DEACH=%d%s%s", opencl.each,
             opencl.gpu ? " -DGPU" : "",
             opencl.doubles ? " -DDOUBLES -cl-fp32-correctly-rounded-divide-sqrt" : "");
    if (opencl.clBuildProgram(program, 1, &opencl.device, options, NULL, NULL)) {
        size_t size = 0;
        opencl.clGetProgramBuildInfo(program, opencl.device, OPENCL_BUILD_LOG, 0, NULL, &size);
        char *log = fl_heap_alloc(size + 1);
        if (log)
            opencl.clGetProgramBuildInfo(program, opencl.device, OPENCL_BUILD_LOG, size, log, NULL);
        fl_fail("opencl: kernel %s does not compile: %.500s", kernel, log && size ? log : "");
        fl_heap_free(log);
        return NULL;
    }
    void *made = opencl.clCreateKernel(program, kernel, &error);
    opencl.kernels++;
    return opencl_ok(error, "clCreateKernel") ? made : NULL;
}

enum { OPENCL_KERNELS = 4096 };
static fl_memo_entry *opencl_kernel_slots[2 * OPENCL_KERNELS];
static fl_memo opencl_kernels = {
    .most = OPENCL_KERNELS, .size = sizeof(void *), .slot = opencl_kernel_slots};

static const char *opencl_type(fl_dtype d) {
    static const char *const name[] = {
        [FL_B8] = "uchar",   [FL_U8] = "uchar", [FL_I8] = "char",   [FL_I16] = "short",
        [FL_U16] = "ushort", [FL_I32] = "int",  [FL_U32] = "uint",  [FL_I64] = "long",
        [FL_U64] = "ulong",  [FL_F16] = "half", [FL_F32] = "float", [FL_F64] = "double",
        [FL_BF16] = "ushort"};
    return name[d];
}

/* The texts before a kernel that computes in dtype d. */
static int opencl_prelude(fl_dtype d, const char **text, char *type, size_t size) {
    snprintf(type, size, "typedef %s T;\n#define T_IS_%s\n", opencl_type(d), fl_dtype_name(d));
    text[0] = opencl_text, text[1] = type;
    text[2] = fl_dtype_is_float(d) ? opencl_float_text
              : d == FL_I64        ? opencl_long_text
                                   : opencl_b8_text;
    return 3;
}

/* A kernel of a text, compiled for dtype d; the key is its name, and what `defines` adds. Under the lock. */
static void *opencl_kernel(const char *name, const char *source, fl_dtype d, const char *defines) {
    char type[80], key[120];
    const char *text[5];
    const int n = snprintf(key, sizeof key, "%s %s", name, defines);
    void *const *known = fl_memo_find(&opencl_kernels, key, (size_t)n, d);
    if (known) return *known;
    opencl_prelude(d, text, type, sizeof type);
    text[3] = defines, text[4] = source;
    void *made = opencl_build(5, text, name);
    return made && fl_memo_add(&opencl_kernels, key, (size_t)n, d, &made) ? made : NULL;
}

/* ---- launches ---- */

/* Appends a dim; joins it with the last one, from dim `from` on, if the strides of all operands allow it, and
   leaves out one of size 1. from = OPENCL_DIMS: neither. */
static void opencl_dim(opencl_pass *p, int from, int n, int64_t size, const int64_t *stride) {
    bool joins = p->ndim > from;
    for (int k = 0; joins && k < n; k++) joins = p->stride[k][p->ndim - 1] == stride[k] * size;
    if (size == 1 && from < OPENCL_DIMS) return;
    const int to = joins ? p->ndim - 1 : p->ndim++;
    p->shape[to] = (int32_t)(joins ? p->shape[to] * size : size);
    for (int k = 0; k < n; k++) p->stride[k][to] = (int32_t)stride[k];
}

/* Sets p's dims to those of `like` but the ones in `skip`, in the order of its strides, with the strides of n
   operands (0 for numbers and NULLs), and p->n to the number of elements. */
static void opencl_dims(opencl_pass *p, const fl_tensor *like, uint32_t skip, int n,
                        fl_tensor *const *t) {
    int order[FL_MAX_DIMS];
    memset(p, 0, sizeof *p);
    fl_axes_by_stride(like, order);
    p->n = 1;
    for (int i = 0; i < like->ndim; i++) {
        int64_t stride[OPENCL_OPERANDS];
        if (skip >> order[i] & 1) continue;
        for (int k = 0; k < n; k++) stride[k] = t[k] && !t[k]->weak ? t[k]->stride[order[i]] : 0;
        opencl_dim(p, 0, n, like->shape[order[i]], stride);
        p->n *= (int32_t)like->shape[order[i]];
    }
    p->dense = p->ndim < 2;
    for (int k = 0; p->ndim && k < n; k++) p->dense &= !t[k] || t[k]->weak || p->stride[k][0] == 1;
}

/* Allocates outputs and checks operands. */
static bool opencl_ready(const fl_call *c) {
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    for (int i = 0; i < c->n_out + c->n_in; i++) {
        const fl_tensor *t = i < c->n_out ? c->out[i] : c->in[i - c->n_out];
        int64_t first;
        if (!t || t->weak) continue;
        const size_t bytes = opencl_span(t, &first);
        if (bytes / fl_dtype_size(t->dtype) > OPENCL_MOST || fl_numel(t) > OPENCL_MOST)
            return fl_fail("fl_%s: opencl: tensors may have 2^30 elements, got shape %s",
                           fl_op_name(c->op), FL_SHAPE_TEXT(t));
        if (t->dtype == FL_F64 && opencl.opened && !opencl.doubles)
            return fl_fail("fl_%s: opencl: %s has no f64", fl_op_name(c->op), opencl.name);
    }
    return true;
}

/* Runs a kernel: arguments are p, the fault, the n operands (NULLs are left out; numbers in dtype d) and, if
   any, `extra` bytes. unit: bytes of what at[] counts, 0: of each operand's dtype. Called under the lock,
   which it leaves. */
static bool opencl_launch(const fl_call *c, void *kernel, opencl_pass *p, fl_dtype d, int n,
                          fl_tensor *const *t, size_t unit, const void *extra, size_t bytes,
                          const size_t *global, const size_t *local) {
    uint32_t arg = 2;
    int error = 0;
    bool some = true;
    size_t size[3];
    for (int i = 0; i < 3; i++) {
        size[i] = (global[i] + local[i] - 1) / local[i] * local[i];
        some &= global[i] > 0;
    }
    for (int k = 0; kernel && some && k < n && !error; k++) {
        if (!t[k]) continue;
        uint64_t number = 0;
        size_t offset;
        if (t[k]->weak) {
            fl_number_store(d, &number, (fl_number){fl_dtype_is_float(d), t[k]->f64, t[k]->i64});
            error = opencl.clSetKernelArg(kernel, arg++, fl_dtype_size(d), &number);
            continue;
        }
        void *mem = opencl_find(opencl_start(t[k]), &offset);
        offset /= unit ? unit : fl_dtype_size(t[k]->dtype);
        p->at[k] = (int32_t)offset;
        error = offset > OPENCL_MOST ? OPENCL_INVALID_VALUE
                                     : opencl.clSetKernelArg(kernel, arg++, sizeof mem, &mem);
    }
    p->op = (int32_t)c->op;
    if (kernel && some && !error) {
        if (extra) error = opencl.clSetKernelArg(kernel, arg, bytes, extra);
        if (!error) error = opencl.clSetKernelArg(kernel, 0, sizeof *p, p);
        if (!error) error = opencl.clSetKernelArg(kernel, 1, sizeof opencl.fault, &opencl.fault);
        if (!error)
            error = opencl.clEnqueueNDRangeKernel(opencl.queue, kernel, 3, NULL, size, local, 0,
                                                  NULL, NULL);
        opencl.launches++;
    }
    pthread_mutex_unlock(&opencl.lock);
    return kernel && (!error || fl_fail("fl_%s: opencl: error %d", fl_op_name(c->op), error));
}

/* The same for kernels with a work-item for each EACH of p's elements (ELEMENTS), or for each of `items`. */
static bool opencl_elements(const fl_call *c, void *kernel, opencl_pass *p, fl_dtype d, int n,
                            fl_tensor *const *t, size_t unit, const void *extra, size_t bytes) {
    const size_t items = ((size_t)p->n + (size_t)opencl.each - 1) / (size_t)opencl.each;
    return opencl_launch(c, kernel, p, d, n, t, unit, extra, bytes, (size_t[]){items, 1, 1},
                         (size_t[]){(size_t)opencl.group, 1, 1});
}
static bool opencl_items(const fl_call *c, void *kernel, opencl_pass *p, fl_dtype d, int n,
                         fl_tensor *const *t, int64_t items) {
    const size_t global[] = {(size_t)items, 1, 1}, local[] = {64, 1, 1};
    return opencl_launch(c, kernel, p, d, n, t, 0, NULL, 0, global, local);
}

/* ---- element-wise: printed from programs ---- */

typedef struct opencl_print {
    size_t n;
    char at[24 << 10]; /* the longest program has 64 steps */
} opencl_print;

__attribute__((format(printf, 2, 3))) static void opencl_add(opencl_print *to, const char *format,
                                                             ...) {
    va_list args;
    va_start(args, format);
    to->n += (size_t)vsnprintf(to->at + to->n, sizeof to->at - to->n, format, args);
    va_end(args);
}

static void opencl_constant(char *to, size_t size, double v, fl_dtype d) {
    fl_number k = {fl_dtype_is_float(d), v, 0};
    uint64_t bits = 0;
    fl_number_store(d, &bits, (fl_number){true, v, 0});
    k = fl_number_load(d, &bits);
    if (d == FL_I64)
        snprintf(to, size, "((long)%lluUL)", (unsigned long long)bits);
    else if (d == FL_B8)
        snprintf(to, size, "%d", k.i != 0);
    else if (isnan(k.f))
        snprintf(to, size, "((T)NAN)");
    else if (isinf(k.f))
        snprintf(to, size, "((T)%sINFINITY)", k.f < 0 ? "-" : "");
    else
        snprintf(to, size, "(%.17e%s)", k.f, d == FL_F32 ? "f" : "");
}

/* The kernel `run` of a program. Bit i of weak: input i is a number. */
static void opencl_print_program(opencl_print *to, const fl_formula *f, fl_dtype d, unsigned weak,
                                 bool dense) {
    char at[FL_FORMULA_OPERANDS][40];
    opencl_add(to, "kernel void run(const pass p, global int *fault");
    for (int i = 0; i < f->n_out; i++)
        opencl_add(to, ", global %s *y%d", f->logical >> i & 1 ? "uchar" : "T", i);
    for (int i = 0; i < f->n_in; i++)
        if (f->reads >> i & 1)
            opencl_add(to, ", %sconst %s %s%d", weak >> i & 1 ? "" : "global ",
                       f->conditions >> i & 1 ? "uchar" : "T", weak >> i & 1 ? "a" : "*x", i);
    opencl_add(to, ") {\n");
    if (dense)
        opencl_add(to, "    START(p, %d)\n#pragma clang loop vectorize(assume_safety)\n",
                   f->n_out + f->n_in);
    opencl_add(to, "    ELEMENTS(i) {\n");
    if (!dense) opencl_add(to, "    START(p, %d)\n", f->n_out + f->n_in);
    if (!dense) opencl_add(to, "    place(&p, i, 0, p.ndim, %d, at);\n", f->n_out + f->n_in);
    for (int i = 0; i < f->n_in; i++) {
        snprintf(at[i], sizeof at[i], "a%d", i);
        if (f->reads >> i & 1 && !(weak >> i & 1))
            opencl_add(to, "    const %s a%d = x%d[at[%d]%s];\n",
                       f->conditions >> i & 1 ? "uchar" : "T", i, i, f->n_out + i,
                       dense ? " + i" : "");
    }
    for (int i = 0; i < f->n_constants; i++)
        opencl_constant(at[FL_FORMULA_CONSTANT + i], sizeof at[0], f->constant[i], d);
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        const fl_primitive q = (fl_primitive)s->primitive;
        const bool truth =
            s->logical || q == FL_PRIMITIVE_lt || q == FL_PRIMITIVE_le || q == FL_PRIMITIVE_eq;
        opencl_add(to, "    const %s t%d = %c_%s(", truth ? "int" : "T", i, s->logical ? 'c' : 't',
                   fl_op_name(fl_primitive_op(q)));
        for (int k = 0; k < fl_primitive_operands(q); k++)
            opencl_add(to, "%s%s", k ? ", " : "", at[s->in[k]]);
        opencl_add(to, ");\n");
        snprintf(at[s->to], sizeof at[0], "t%d", i);
    }
    for (int i = 0; i < f->n_out; i++)
        opencl_add(to, "    y%d[at[%d]%s] = %s;\n", i, i, dense ? " + i" : "", at[f->out[i]]);
    opencl_add(to, "}}\n");
}

/* Under the lock. */
static void *opencl_program(const fl_formula *f, fl_dtype d, unsigned weak, bool dense) {
    static opencl_print print;
    char type[80];
    const char *text[4];
    const uint64_t tag = (uint64_t)d << 40 | (uint64_t)weak << 8 | dense;
    void *const *known = fl_memo_find(&opencl_kernels, f, sizeof *f, tag);
    if (known) return *known;
    print.n = 0;
    opencl_print_program(&print, f, d, weak, dense);
    text[opencl_prelude(d, text, type, sizeof type)] = print.at;
    void *made = opencl_build(4, text, "run");
    return made && fl_memo_add(&opencl_kernels, f, sizeof *f, tag, &made) ? made : NULL;
}

/* Outputs and inputs, as the program has them. */
static bool opencl_run_program(const fl_call *c, const fl_formula *f, fl_dtype d) {
    fl_tensor *t[OPENCL_OPERANDS];
    opencl_pass p;
    unsigned weak = 0;
    int n = 0;
    if (!f || !opencl_ready(c)) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) t[n++] = c->out[i];
    for (int i = 0; i < f->n_in; i++) {
        t[n + i] = f->reads >> i & 1 ? c->in[i] : NULL;
        if (t[n + i] && t[n + i]->weak) weak |= 1u << i;
    }
    opencl_dims(&p, t[0], 0, n + f->n_in, t);
    pthread_mutex_lock(&opencl.lock);
    opencl.checked |= d == FL_I64 && fl_formula_has(f, FL_PRIMITIVE_remainder);
    return opencl_elements(c, opencl_program(f, d, weak, p.dense), &p, d, n + f->n_in, t, 0, NULL,
                           0);
}

#define OPENCL_SLOT(name) \
    static bool name(const fl_backend *self __attribute__((unused)), const fl_call *c)

OPENCL_SLOT(opencl_formula) {
    const fl_tensor *a = c->in[0], *b = c->in[c->n_in - 1];
    return opencl_run_program(c, fl_op_program(c->op, FL_PROGRAM_Y), a->weak ? b->dtype : a->dtype);
}

OPENCL_SLOT(opencl_grad) {
    const fl_grad_args *a = c->args;
    const bool both = c->n_out > 1 && c->out[0] && c->out[1];
    const fl_program which = both ? FL_PROGRAM_DA_DB : c->out[0] ? FL_PROGRAM_DA : FL_PROGRAM_DB;
    return opencl_run_program(c, fl_op_program(a->op, which),
                              c->out[0] ? c->out[0]->dtype : c->out[1]->dtype);
}

OPENCL_SLOT(opencl_apply) {
    fl_dtype d;
    const fl_formula_args *a = fl_formula_args_of(c, &d);
    return a && opencl_run_program(c, &a->program, d);
}

OPENCL_SLOT(opencl_where) {
    static fl_formula f;
    fl_formula_builder b;
    pthread_mutex_lock(&opencl.lock);
    const bool made =
        f.n_out ||
        (fl_formula_build(&b, &f, 3, 1) &&
         fl_formula_build_end(
             &b, 1, (int[]){fl_formula_build_step(&b, FL_PRIMITIVE_where, (int[]){0, 1, 2})}));
    pthread_mutex_unlock(&opencl.lock);
    return made && opencl_run_program(c, &f, c->out[0]->dtype);
}

/* ---- copies and what creates ---- */

/* The unsigned dtype of the largest power of two of bytes, 8 at most, that divides size. */
static fl_dtype opencl_raw(size_t size) {
    return size % 8 == 0 ? FL_U64 : size % 4 == 0 ? FL_U32 : size % 2 == 0 ? FL_U16 : FL_U8;
}

/* y = x, of the same shape. */
static bool opencl_assign(const fl_call *c, fl_tensor *y, fl_tensor *x) {
    fl_tensor *const t[] = {y, x};
    opencl_pass p;
    char defines[200];
    const fl_dtype from = x->dtype, to = y->dtype, raw = opencl_raw(fl_dtype_size(to));
    const bool same = from == to, real = fl_dtype_is_float(from);
    const char *of = opencl_type(from), *as = same ? NULL : opencl_type(to);
    opencl_dims(&p, y, 0, 2, t);
    pthread_mutex_lock(&opencl.lock);
    if (same) {
        p.more[0] = (int32_t)(fl_dtype_size(to) / fl_dtype_size(raw));
        return opencl_elements(c, opencl_kernel("copy", opencl_copy_text, raw, ""), &p, to, 2, t,
                               fl_dtype_size(raw), NULL, 0);
    }
    int n =
        snprintf(defines, sizeof defines,
                 "#define FROM %s\n#define TO %s\n#define FROM_%s\n#define TO_%s\n#define V %s\n",
                 of, as, fl_dtype_name(from), fl_dtype_name(to),
                 from == FL_F64 ? "double"
                 : real         ? "float"
                                : of);
    if (real && !fl_dtype_is_float(to))
        snprintf(defines + n, sizeof defines - (size_t)n, "#define SATURATES convert_%s_sat\n", as);
    void *kernel = opencl_kernel("cast", opencl_cast_text, FL_B8, defines);
    return opencl_elements(c, kernel, &p, to, 2, t, 0, NULL, 0);
}

OPENCL_SLOT(opencl_copy_slot) {
    return opencl_ready(c) && opencl_assign(c, c->out[0], c->in[0]);
}

OPENCL_SLOT(opencl_fill) {
    fl_tensor *y = c->out[0];
    const fl_fill_args *a = c->args;
    const size_t size = fl_dtype_size(y->dtype);
    uint64_t bits = 0;
    opencl_pass p;
    if (!opencl_ready(c)) return false;
    fl_number_store(y->dtype, &bits,
                    (fl_number){y->dtype != FL_I64, a->f64, a->i64}); /* as a cast of f64 */
    opencl_dims(&p, y, 0, 1, &y);
    pthread_mutex_lock(&opencl.lock);
    void *kernel = opencl_kernel("fill", opencl_copy_text, opencl_raw(size), "");
    return opencl_elements(c, kernel, &p, y->dtype, 1, &y, 0, &bits, size);
}

/* A number for the kernel, as the type `wide` there. */
static uint64_t opencl_wide(double v) {
    uint64_t bits = 0;
    fl_number_store(opencl.doubles ? FL_F64 : FL_F32, &bits, (fl_number){true, v, 0});
    return bits;
}

/* The output, which is new and so without gaps. */
static bool opencl_create(const fl_call *c, const char *kernel, const uint64_t *r) {
    fl_tensor *y = c->out[0];
    opencl_pass p = {.n = (int32_t)fl_numel(y)};
    pthread_mutex_lock(&opencl.lock);
    void *made = opencl_kernel(kernel, opencl_create_text, y->dtype, "");
    return opencl_elements(c, made, &p, y->dtype, 1, &y, 0, r, 8 * sizeof *r);
}

OPENCL_SLOT(opencl_iota) {
    const fl_iota_args *a = c->args;
    if (!opencl_ready(c)) return false;
    const bool whole = c->out[0]->dtype == FL_I64;
    return opencl_create(c, "iota",
                         (uint64_t[8]){whole ? (uint64_t)a->i_start : opencl_wide(a->f_start),
                                       whole ? (uint64_t)a->i_step : opencl_wide(a->f_step)});
}

OPENCL_SLOT(opencl_random) {
    const fl_random_args *a = c->args;
    if (!opencl_ready(c)) return false;
    return opencl_create(c, "draw",
                         (uint64_t[8]){a->rng.key, a->rng.counter, (uint64_t)a->ia,
                                       (uint64_t)a->ib - (uint64_t)a->ia, opencl_wide(a->a),
                                       opencl_wide(a->b), (uint64_t)a->dist});
}

/* ---- reductions and scans ---- */

OPENCL_SLOT(opencl_reduce) {
    fl_tensor *y = c->out[0], *x = c->in[0], *const t[] = {y, x};
    const fl_reduce_args *a = c->args;
    const bool arg = c->op == FL_OP_argmax || c->op == FL_OP_argmin;
    const bool most = c->op == FL_OP_amax || c->op == FL_OP_argmax,
               real = fl_dtype_is_float(x->dtype);
    const char *neutral = c->op == FL_OP_sum    ? "0"
                          : c->op == FL_OP_prod ? "1"
                          : real                ? (most ? "-INFINITY" : "INFINITY")
                          : most                ? "LONG_MIN"
                                                : "LONG_MAX";
    const char *step = c->op == FL_OP_sum    ? "t_add"
                       : c->op == FL_OP_prod ? "t_mul"
                       : most                ? "t_maximum"
                                             : "t_minimum";
    opencl_pass p = {.n = 1};
    char defines[200];
    int64_t gone = 1;
    if (!opencl_ready(c)) return false;
    for (int part = 0; part < 2; part++) { /* the dims that stay, then the others */
        const int from = p.ndim;
        for (int d = 0, at = 0; d < x->ndim; d++) {
            const bool reduced = a->axes >> d & 1;
            const int64_t stride[] = {reduced ? 0 : y->stride[at], x->stride[d]};
            if (reduced == part) opencl_dim(&p, from, 2, x->shape[d], stride);
            if (reduced == part && part) gone *= x->shape[d];
            if (!reduced || a->keepdim) at++;
        }
        if (!part) p.more[0] = p.ndim;
    }
    p.n = (int32_t)fl_numel(y);
    p.more[1] = (int32_t)gone;
    const size_t lanes = gone >= 64 && p.n < 4096 ? 64 : 1;
    snprintf(defines, sizeof defines,
             "#define LANES %d\n#define R %s\n#define NEUTRAL %s\n#define %s %s\n", (int)lanes,
             opencl_type(y->dtype), neutral, arg ? "ARG" : "OP",
             !arg   ? step
             : most ? ">"
                    : "<");
    const size_t global[] = {(size_t)p.n, lanes, 1}, local[] = {64 / lanes, lanes, 1};
    pthread_mutex_lock(&opencl.lock);
    void *kernel = opencl_kernel("reduce", opencl_reduce_text, x->dtype, defines);
    return opencl_launch(c, kernel, &p, x->dtype, 2, t, 0, NULL, 0, global, local);
}

/* ---- along one axis: a work-item for each line, or for each element ---- */

/* Lines along the axis of n tensors: dims are those of t[at], whose length along the axis is more[0]; more[2]
   and the next are the steps. */
static void opencl_lines(opencl_pass *p, int axis, int at, int n, fl_tensor *const *t) {
    opencl_dims(p, t[at], 1u << axis, n, t);
    p->more[0] = (int32_t)t[at]->shape[axis];
    p->more[1] = axis;
    for (int k = 0; k < n; k++) p->more[2 + k] = (int32_t)t[k]->stride[axis];
}

OPENCL_SLOT(opencl_scan) {
    fl_tensor *const t[] = {c->out[0], c->in[0]};
    const char *product = c->op == FL_OP_cumprod ? "#define PRODUCT 1\n" : "#define PRODUCT 0\n";
    opencl_pass p;
    if (!opencl_ready(c)) return false;
    opencl_lines(&p, ((const fl_axis_args *)c->args)->axis, 1, 2, t);
    pthread_mutex_lock(&opencl.lock);
    void *kernel = opencl_kernel("cumsum", opencl_axis_text, t[1]->dtype, product);
    return opencl_items(c, kernel, &p, t[1]->dtype, 2, t, p.n);
}

OPENCL_SLOT(opencl_gather) {
    fl_tensor *const t[] = {c->out[0], c->in[1], c->in[0]};
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_dtype raw = opencl_raw(fl_dtype_size(t[0]->dtype));
    opencl_pass p;
    if (!opencl_ready(c)) return false;
    opencl_lines(&p, axis, 1, 3, t);
    p.more[5] = (int32_t)t[2]->shape[axis];
    pthread_mutex_lock(&opencl.lock);
    opencl.checked = true;
    void *kernel = opencl_kernel("gather", opencl_index_text, raw, "#define PLACE(y, v) (v)\n");
    return opencl_items(c, kernel, &p, raw, 3, t, (int64_t)p.n * p.more[0]);
}

OPENCL_SLOT(opencl_scatter) {
    fl_tensor *const t[] = {c->out[0], c->in[1], c->in[2]};
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const bool add = c->op == FL_OP_scatter_add;
    const fl_dtype d = add ? t[0]->dtype : opencl_raw(fl_dtype_size(t[0]->dtype));
    opencl_pass p;
    if (!opencl_ready(c) || !opencl_assign(c, t[0], c->in[0])) return false;
    opencl_lines(&p, axis, 1, 3, t);
    p.more[5] = (int32_t)t[0]->shape[axis];
    pthread_mutex_lock(&opencl.lock);
    opencl.checked = true;
    void *kernel =
        opencl_kernel("scatter", opencl_index_text, d,
                      add ? "#define PLACE(y, v) t_add(y, v)\n" : "#define PLACE(y, v) (v)\n");
    return opencl_items(c, kernel, &p, d, 3, t, p.n);
}

static bool opencl_merge_sort(const fl_call *c, fl_tensor *y, fl_tensor *index, fl_tensor *x) {
    const fl_sort_args *a = c->args;
    const fl_shape all = FL_SHAPE(fl_numel(x));
    fl_tensor *to = fl_out_on(x->backend, all, FL_I64), *from = fl_out_on(x->backend, all, FL_I64);
    if (!to || !from || !fl_out_allocate(to) || !fl_out_allocate(from)) return false;
    fl_tensor *const t[] = {y, index, x};
    opencl_pass p;
    bool ok = true;
    opencl_lines(&p, a->axis, 2, 3, t);
    p.more[6] = a->descending;
    const int64_t items = (int64_t)p.n * p.more[0];
    for (p.more[5] = 1; ok && p.more[5] < p.more[0]; p.more[5] *= 2) {
        fl_tensor *const places[] = {to, from, x};
        pthread_mutex_lock(&opencl.lock);
        void *kernel = opencl_kernel("merge", opencl_sort_text, x->dtype, "");
        ok = opencl_items(c, kernel, &p, x->dtype, 3, places, items);
        to = places[1], from = places[0];
    }
    fl_tensor *const last[] = {y, index, x, from};
    p.more[5] = (int32_t)y->shape[a->axis];
    pthread_mutex_lock(&opencl.lock);
    void *kernel = ok ? opencl_kernel("sorted", opencl_sort_text, x->dtype, "") : NULL;
    return opencl_items(c, kernel, &p, x->dtype, 4, last, items) && ok;
}

OPENCL_SLOT(opencl_sort) {
    fl_scope s = fl_scope_begin();
    const bool ok = opencl_ready(c) && opencl_merge_sort(c, c->out[0], c->out[1], c->in[0]);
    fl_scope_end(&s);
    return ok;
}

OPENCL_SLOT(opencl_nonzero) {
    fl_tensor *const t[] = {c->out[0], c->in[0]};
    opencl_pass p = {.n = (int32_t)fl_numel(t[1])};
    if (!opencl_ready(c)) return false;
    for (int d = 0; d < t[1]->ndim; d++) /* as they are */
        opencl_dim(&p, OPENCL_DIMS, 2, t[1]->shape[d], (int64_t[]){0, t[1]->stride[d]});
    pthread_mutex_lock(&opencl.lock);
    return opencl_items(c, opencl_kernel("nonzero", opencl_nonzero_text, FL_B8, ""), &p, FL_B8, 2,
                        t, p.n ? 64 : 0);
}

/* ---- products ---- */

/* y = a b, [..., m, n] of [..., m, k] and [..., k, n]. */
static bool opencl_product(const fl_call *c, fl_tensor *y, fl_tensor *a, fl_tensor *b) {
    fl_tensor *const t[] = {y, a, b};
    const int rows = y->ndim - 2, columns = y->ndim - 1;
    const size_t m = (size_t)y->shape[rows], n = (size_t)y->shape[columns];
    const size_t width = y->dtype == FL_F32 ? 16 : 8; /* of the kernel's vectors */
    const size_t tile = opencl.gpu && m > 32 && n > 32 ? 4 : 1;
    opencl_pass p;
    opencl_dims(&p, y, 3u << rows, 3, t);
    p.more[0] = (int32_t)m, p.more[1] = (int32_t)n, p.more[2] = (int32_t)a->shape[columns];
    for (int k = 0; k < 3; k++)
        p.more[3 + 2 * k] = (int32_t)t[k]->stride[rows],
                       p.more[4 + 2 * k] = (int32_t)t[k]->stride[columns];
    const size_t items[3] = {opencl.gpu ? (n + tile - 1) / tile : (m + 3) / 4,
                             opencl.gpu ? (m + tile - 1) / tile : (n + width - 1) / width,
                             (size_t)p.n};
    pthread_mutex_lock(&opencl.lock);
    void *kernel = opencl_kernel("matmul", opencl_matmul_text, y->dtype,
                                 tile > 1 ? "#define TILE 4\n" : "#define TILE 1\n");
    return opencl_launch(c, kernel, &p, y->dtype, 3, t, 0, NULL, 0, items,
                         opencl.gpu ? (size_t[]){16, 16, 1} : (size_t[]){16, 1, 1});
}

OPENCL_SLOT(opencl_matmul) {
    return opencl_ready(c) && opencl_product(c, c->out[0], c->in[0], c->in[1]);
}

/* x to columns (fold false) or columns to x. */
static bool opencl_columns(const fl_call *c, bool fold, fl_tensor *column, fl_tensor *x,
                           const fl_tensor *y, const fl_tensor *w) {
    const fl_conv2d_args *a = c->args;
    fl_tensor *const t[] = {column, x};
    opencl_pass p = {.n = (int32_t)fl_numel(fold ? x : column)};
    const int64_t shape[] = {x->shape[1], w->shape[2], w->shape[3], y->shape[2], y->shape[3]};
    const int64_t more[] = {a->stride[0], a->stride[1],   a->pad_lo[0],
                            a->pad_lo[1], a->dilation[0], a->dilation[1],
                            x->shape[0],  x->shape[2],    x->shape[3]};
    for (int i = 0; i < 5; i++) p.shape[i] = (int32_t)shape[i];
    for (int i = 0; i < 9; i++) p.more[i] = (int32_t)more[i];
    for (int i = 0; i < 4; i++) p.stride[1][i] = (int32_t)x->stride[i];
    pthread_mutex_lock(&opencl.lock);
    void *kernel = opencl_kernel(fold ? "fold" : "unfold", opencl_conv_text, x->dtype, "");
    return opencl_elements(c, kernel, &p, x->dtype, 2, t, 0, NULL, 0);
}

/* x, w -> y;  dy, w -> dx;  x, dy -> dw: for each group a product with the columns [k, images oh ow]. */
static bool opencl_convolve(const fl_call *c, fl_tensor *x, fl_tensor *w, fl_tensor *y) {
    const int64_t groups = ((const fl_conv2d_args *)c->args)->groups, images = y->shape[0];
    const int64_t plane = y->shape[2] * y->shape[3], k = w->shape[1] * w->shape[2] * w->shape[3];
    const int64_t o = y->shape[1] / groups, n = images * plane;
    const bool forward = c->op == FL_OP_conv2d, input = c->op == FL_OP_conv2d_grad_input;
    fl_tensor *column = fl_out_on(y->backend, FL_SHAPE(groups, k, n), y->dtype);
    fl_tensor *planes =
        fl_out_on(y->backend, FL_SHAPE(y->shape[1], images, y->shape[2], y->shape[3]), y->dtype);
    if (!column || !planes || !fl_out_allocate(column) || !fl_out_allocate(planes)) return false;
    /* y as [o, images, oh, ow] and, for dw, as [images, oh, ow, o] */
    const int64_t ps = !forward && !input ? 1 : n, pn = ps == 1 ? y->shape[1] : 1;
    fl_tensor *as_y =
        fl_view_of(planes, fl_shape_of(y), (int64_t[]){plane * pn, ps, y->shape[3] * pn, pn}, 0);
    fl_tensor *flat = fl_view_of(planes, FL_SHAPE(groups, o, n), (int64_t[]){o * ps, ps, pn}, 0);
    fl_tensor *turned = fl_view_of(planes, FL_SHAPE(groups, n, o), (int64_t[]){o * ps, pn, ps}, 0);
    fl_tensor *weight = fl_view_of(w, FL_SHAPE(groups, o, k), (int64_t[]){o * k, k, 1}, w->offset);
    fl_tensor *weight_t =
        fl_view_of(w, FL_SHAPE(groups, k, o), (int64_t[]){o * k, 1, k}, w->offset);
    if (!as_y || !flat || !turned || !weight || !weight_t) return false;
    if (forward)
        return opencl_columns(c, false, column, x, y, w) &&
               opencl_product(c, flat, weight, column) && opencl_assign(c, y, as_y);
    if (!opencl_assign(c, as_y, y)) return false;
    if (input)
        return opencl_product(c, column, weight_t, flat) &&
               opencl_columns(c, true, column, x, y, w);
    return opencl_columns(c, false, column, x, y, w) && opencl_product(c, weight_t, column, turned);
}

/* Inputs are row-major; a gradient of weights may not be. */
OPENCL_SLOT(opencl_conv2d) {
    fl_tensor *out = c->out[0];
    if (!opencl_ready(c)) return false;
    fl_scope s = fl_scope_begin();
    fl_tensor *dense =
        fl_is_contiguous(out) ? out : fl_out_on(out->backend, fl_shape_of(out), out->dtype);
    if (!dense || !fl_out_allocate(dense)) return fl_scope_end(&s), false;
    bool ok = c->op == FL_OP_conv2d              ? opencl_convolve(c, c->in[0], c->in[1], out)
              : c->op == FL_OP_conv2d_grad_input ? opencl_convolve(c, out, c->in[1], c->in[0])
                                                 : opencl_convolve(c, c->in[0], dense, c->in[1]);
    if (c->op == FL_OP_conv2d_grad_weight && dense != out) ok = ok && opencl_assign(c, out, dense);
    fl_scope_end(&s);
    return ok;
}

/* ---- the table ---- */

/* NULL after fl_fail if OpenCL is absent. */
static inline const fl_backend *fl_backend_opencl(void) {
    static fl_backend b = {.name = "opencl",
                           .place = opencl_place,
                           .map = opencl_map,
                           .unmap = opencl_unmap,
                           .move = opencl_move,
                           .sync = opencl_sync};
    static const struct {
        fl_op op;
        fl_slot slot;
        unsigned flags;
    } slots[] = {{FL_OP_copy, opencl_copy_slot, FL_SLOT_NARROW | FL_SLOT_BLOCKS},
                 {FL_OP_fill, opencl_fill, FL_SLOT_NARROW},
                 {FL_OP_iota, opencl_iota, 0},
                 {FL_OP_random, opencl_random, 0},
                 {FL_OP_where, opencl_where, 0},
                 {FL_OP_sum, opencl_reduce, 0},
                 {FL_OP_prod, opencl_reduce, 0},
                 {FL_OP_amax, opencl_reduce, 0},
                 {FL_OP_amin, opencl_reduce, 0},
                 {FL_OP_argmax, opencl_reduce, 0},
                 {FL_OP_argmin, opencl_reduce, 0},
                 {FL_OP_cumsum, opencl_scan, 0},
                 {FL_OP_cumprod, opencl_scan, 0},
                 {FL_OP_gather, opencl_gather, FL_SLOT_NARROW},
                 {FL_OP_scatter_add, opencl_scatter, 0},
                 {FL_OP_scatter, opencl_scatter, FL_SLOT_NARROW},
                 {FL_OP_sort, opencl_sort, 0},
                 {FL_OP_nonzero, opencl_nonzero, 0},
                 {FL_OP_matmul, opencl_matmul, 0},
                 {FL_OP_conv2d, opencl_conv2d, FL_SLOT_CONTIGUOUS},
                 {FL_OP_conv2d_grad_input, opencl_conv2d, FL_SLOT_CONTIGUOUS},
                 {FL_OP_conv2d_grad_weight, opencl_conv2d, FL_SLOT_CONTIGUOUS},
                 {FL_OP_grad1, opencl_grad, 0},
                 {FL_OP_grad2, opencl_grad, 0}};
    pthread_mutex_lock(&opencl.lock);
    const bool found = opencl_load();
    pthread_mutex_unlock(&opencl.lock);
    if (!found) return NULL;
    for (int i = 1; i < FL_TABLE_OPS; i++)
        if (fl_op_get_info((fl_op)i)->arity) fl_backend_set(&b, (fl_op)i, opencl_formula, 0);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        fl_backend_set(&b, slots[i].op, slots[i].slot, slots[i].flags);
    fl_backend_set(&b, fl_op_formula, opencl_apply, 0);
    return &b;
}
#endif
/* MIT licence: see LICENSE. */
