/* kernels/kernel_text.h - prints programs as kernels in C and CUDA C

   A kernel has the bits of its program's steps, but that any NaN may be another one: each is a call of
   fl_math.h. Numbers are parameters, so that programs that differ in numbers alone are one kernel, of any
   shape. */
#ifndef FL_TENSOR_H
#include "../fl_tensor.h"
#endif
#ifndef FL_KERNEL_TEXT_H
#define FL_KERNEL_TEXT_H
#include "../fl_backend.h"
#include "../fl/tensor/formula.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Internal. */
enum { FL__KERNEL_TEXT = 16 << 10 /* bytes of the longest kernel, its 0 included */ };
/* A text that is printed piece by piece. */
typedef struct fl__text {
    size_t n;
    char at[FL__KERNEL_TEXT];
} fl__text;
/* What a language calls things. Formats get an index. */
typedef struct fl__language {
    void (*begin)(fl__text *to, const fl_formula *f, fl_dtype d, const char *name);
    const char *load, *store; /* load NULL: `begin` has loaded the inputs */
    void (*end)(fl__text *to, const fl_formula *f);
    const char *f32;          /* suffix of functions of f32; NULL: that of the level */
} fl__language;
FL_PRIVATE const fl__language *fl__language_c(void);
/* C that stores past the caches: for outputs at multiples of 16 bytes that are no inputs, and a multiple of
   FL__PAST_BLOCK elements. */
FL_PRIVATE const fl__language *fl__language_c_past(void);
/* The beginning and the end of a file of kernels in C. */
FL_PRIVATE const char *fl__c_file_begin(void);
FL_PRIVATE const char *fl__c_file_end(void);
/* A kernel of one argument, a flk_program by value (kernels/cuda/pass.h), and a thread per element. */
FL_PRIVATE const fl__language *fl__language_cuda(void);
/* Prints f, of numbers of dtype d, as a function `name`: in C of fl__loop's type (kernels/cpu/loops.h), for
   the current level of instructions, its arg the numbers, 8 bytes apart. False if d has no such kernels. */
FL_PRIVATE bool fl__kernel_print(fl__text *to, const fl_formula *f, fl_dtype d, const char *name,
                                 const fl__language *l);
/* Prints f's steps as calls of fl_math.h's functions with that suffix: t0, t1, ... of the type. at[i] is the
   text of the value of index i: those of inputs and constants are given, the others set. scalar (NULL: none)
   says which values are numbers, of type double: before: steps on those alone, s0, ..., in f64; else the
   others. */
FL_PRIVATE void fl__kernel_steps(fl__text *to, const fl_formula *f, const char *type, const char *suffix,
                                 char at[FL_FORMULA_OPERANDS][8], bool *scalar, bool before);
/* Prints f, the program of a step over tensors (fl/records/step.h), as a kernel "rule_step" in CUDA C. dtype:
   of its reads, writes and, if `narrow`, the copy of the first write. A block computes what depends on
   numbers alone once. */
FL_PRIVATE void fl__kernel_print_step(fl__text *to, const fl_formula *f, int n_reads, int n_writes,
                                      bool narrow, const int *dtype);
/* Backends that compile programs themselves, when a program runs first: kernels/cuda/program.h. `shipped`
   returns such a backend's table as shipped while it can, else NULL. Without one: NULL for all backends. */
typedef const fl_backend *(*fl__program_tables)(const fl_backend *now);
FL_PRIVATE void fl__programs_use(fl__program_tables shipped);
FL_PRIVATE const fl_backend *fl__programs_table(const fl_backend *now);
/* True unless fl_compile's mode is FL_COMPILE_NEVER, as fl_compile says. */
FL_PRIVATE void fl__programs_compile(bool on);
FL_PRIVATE bool fl__programs_compiled(void);
/* A file of fl_math.h that kernels include, without comments: pieces up to NULL. */
FL_PRIVATE const char *const *fl__math_text(void);     /* fl_math.h */
FL_PRIVATE const char *const *fl__math_f32_text(void); /* fl_math_f32.h, which it includes */

#ifdef __cplusplus
}
#endif
#endif /* FL_KERNEL_TEXT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_KERNEL_TEXT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_KERNEL_TEXT_IMPL
#define FL_KERNEL_TEXT_IMPL
#include "../fl_tensor.h"
#include "../fl_backend.h"
#include "cpu/formula.h"
#include "cpu/levels.h"
#include <stdarg.h>
#include <stdio.h>

FL_PRIVATE const char *const *fl__math_text(void) {
    static const char *const text[] = {
#include "fl_math_text.inc"
        NULL};
    return text;
}

FL_PRIVATE const char *const *fl__math_f32_text(void) {
    static const char *const text[] = {
#include "fl_math_f32_text.inc"
        NULL};
    return text;
}

static fl__program_tables fl__programs_shipped; /* atomic */
static bool fl__programs_on;                    /* atomic */

FL_PRIVATE void fl__programs_use(fl__program_tables shipped) {
    __atomic_store_n(&fl__programs_shipped, shipped, __ATOMIC_RELEASE);
}

FL_PRIVATE const fl_backend *fl__programs_table(const fl_backend *now) {
    const fl__program_tables shipped = __atomic_load_n(&fl__programs_shipped, __ATOMIC_ACQUIRE);
    return shipped ? shipped(now) : NULL;
}

FL_PRIVATE void fl__programs_compile(bool on) {
    __atomic_store_n(&fl__programs_on, on, __ATOMIC_RELAXED);
}

FL_PRIVATE bool fl__programs_compiled(void) {
    return __atomic_load_n(&fl__programs_on, __ATOMIC_RELAXED);
}

__attribute__((format(printf, 2, 3))) static void fl__text_add(fl__text *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    to->n += (size_t)vsnprintf(to->at + to->n, sizeof to->at - to->n, format, args);
    va_end(args);
}

static const char *fl__kernel_type(fl_dtype d) {
    return d == FL_F32 ? "float" : "double";
}

static bool fl__is_read(const fl_formula *f, int input) {
    return f->reads >> input & 1;
}

/* ---- C ---- */

FL_PRIVATE const char *fl__c_file_begin(void) {
    return "#include \"fl_math.h\"\n"
           "FL__LOOPS_BEGIN\n"
           "#ifdef __SSE2__\n"
           "typedef float fl__16_bytes __attribute__((vector_size(16), may_alias));\n"
           "#endif\n"
           "\n"
           "/* Copies n bytes, a multiple of 16, to memory past the caches. */\n"
           "static inline void fl__store_past(void *to, const void *from, int n) {\n"
           "#ifndef __SSE2__\n"
           "    memcpy(to, from, n);\n"
           "#else\n"
           "    fl__16_bytes *y = to;\n"
           "    const fl__16_bytes *x = from;\n"
           "    for (int i = 0; i < n / 16; i++)\n"
           "#ifdef __clang__\n"
           "        __builtin_nontemporal_store(x[i], y + i);\n"
           "#else\n"
           "        __builtin_ia32_movntps((float *)(y + i), x[i]);\n"
           "#endif\n"
           "#endif\n"
           "}\n"
           "static inline void fl__stores_end(void) {\n"
           "#ifdef __SSE2__\n"
           "    __builtin_ia32_sfence();\n"
           "#endif\n"
           "}\n";
}

FL_PRIVATE const char *fl__c_file_end(void) { return "\nFL__LOOPS_END\n"; }

static void fl__c_head(fl__text *to, const fl_formula *f, fl_dtype d, const char *name) {
    const char *type = fl__kernel_type(d), *isa = fl__level_isa();
    if (*isa) fl__text_add(to, "__attribute__((target(\"%s\")))\n", isa);
    fl__text_add(to, "void %s(void *const p[], int64_t n, const void *numbers) {\n", name);
    fl__text_add(to, "    const uint64_t *number = numbers;\n    (void)number;\n");
    for (int i = 0; i < f->n_constants; i++)
        fl__text_add(to, "    %s c%d;\n    memcpy(&c%d, number + %d, sizeof c%d);\n", type, i, i, i, i);
    for (int i = 0; i < f->n_out; i++)
        fl__text_add(to, "    %s *y%d = p[%d];\n", f->logical >> i & 1 ? "uint8_t" : type, i, i);
    for (int i = 0; i < f->n_in; i++)
        if (fl__is_read(f, i))
            fl__text_add(to, "    const %s *x%d = p[%d];\n", f->conditions >> i & 1 ? "uint8_t" : type, i,
                         f->n_out + i);
}

static void fl__c_begin(fl__text *to, const fl_formula *f, fl_dtype d, const char *name) {
    fl__c_head(to, f, d, name);
    fl__text_add(to, "    FL__VECTOR for (int64_t i = 0; i < n; i++) {\n");
}

static void fl__c_end(fl__text *to, const fl_formula *f) {
    (void)f;
    fl__text_add(to, "    }\n}\n");
}

FL_PRIVATE const fl__language *fl__language_c(void) {
    static const fl__language c = {fl__c_begin, "x%d[i]", "y%d[i]", fl__c_end, NULL};
    return &c;
}

/* A line of 16 numbers of each output is computed in local memory: compilers store no vectors past the caches
   of themselves. */
static void fl__c_begin_past(fl__text *to, const fl_formula *f, fl_dtype d, const char *name) {
    fl__c_head(to, f, d, name);
    fl__text_add(to, "    for (int64_t at = 0; at < n; at += %d) {\n", FL__PAST_BLOCK);
    for (int i = 0; i < f->n_out; i++)
        fl__text_add(to, "        _Alignas(64) %s line%d[%d];\n",
                     f->logical >> i & 1 ? "uint8_t" : fl__kernel_type(d), i, FL__PAST_BLOCK);
    fl__text_add(to, "        FL__VECTOR for (int64_t i = at; i < at + %d; i++) {\n", FL__PAST_BLOCK);
}

static void fl__c_end_past(fl__text *to, const fl_formula *f) {
    fl__text_add(to, "        }\n");
    for (int i = 0; i < f->n_out; i++)
        fl__text_add(to, "        fl__store_past(y%d + at, line%d, (int)sizeof line%d);\n", i, i, i);
    fl__text_add(to, "    }\n    fl__stores_end();\n}\n");
}

FL_PRIVATE const fl__language *fl__language_c_past(void) {
    static const fl__language c = {fl__c_begin_past, "x%d[i]", "line%d[i - at]", fl__c_end_past, NULL};
    return &c;
}

/* ---- CUDA C ---- */

static void fl__cuda_begin_kernel(fl__text *to, const fl_formula *f, fl_dtype d, const char *name) {
    const char *type = fl__kernel_type(d);
    fl__text_add(to, "extern \"C\" __global__ void %s(flk_program p) {\n", name);
    fl__text_add(to, "    int64_t at[%d];\n", f->n_out + f->n_in);
    for (int i = 0; i < f->n_constants; i++)
        fl__text_add(to, "    const %s c%d = (%s)p.number[%d];\n", type, i, type, i);
    fl__text_add(to, "    if (flk_program_place<%d>(p, at)) {\n", f->n_out + f->n_in);
    for (int i = 0; i < f->n_out; i++) {
        const char *of = f->logical >> i & 1 ? "uint8_t" : type;
        fl__text_add(to, "        %s *const y%d = (%s *)p.t[%d].p + at[%d];\n", of, i, of, i, i);
    }
    for (int i = 0; i < f->n_in; i++) {
        const char *of = f->conditions >> i & 1 ? "uint8_t" : type;
        const int k = f->n_out + i;
        if (!fl__is_read(f, i)) continue;
        fl__text_add(to, "        const %s a%d = flk_program_read<%s>", of, i, of);
        fl__text_add(to, "(p.t[%d], at[%d]);\n", k, k);
    }
}

FL_PRIVATE const fl__language *fl__language_cuda(void) {
    static const fl__language cuda = {fl__cuda_begin_kernel, NULL, "*y%d", fl__c_end, "f32"};
    return &cuda;
}

/* ---- any language ---- */

/* "mul add tanh": the first steps, for who reads the text. */
static void fl__kernel_comment(fl__text *to, const fl_formula *f, fl_dtype d) {
    enum { NAMED = 12 };
    fl__text_add(to, "\n/* %s, %d to %d:", fl_dtype_name(d), f->n_in, f->n_out);
    for (int i = 0; i < f->n_steps && i < NAMED; i++)
        fl__text_add(to, " %s", fl_op_name(fl_primitive_op((fl_primitive)f->step[i].primitive)));
    fl__text_add(to, "%s */\n", f->n_steps > NAMED ? " ..." : "");
}

FL_PRIVATE void fl__kernel_steps(fl__text *to, const fl_formula *f, const char *type, const char *suffix,
                                 char at[FL_FORMULA_OPERANDS][8], bool *scalar, bool before) {
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        const fl_primitive q = (fl_primitive)s->primitive;
        const bool compares = q == FL_PRIMITIVE_lt || q == FL_PRIMITIVE_le || q == FL_PRIMITIVE_eq;
        const int operands = fl_primitive_operands(q);
        bool known = scalar != NULL;
        for (int k = 0; k < operands; k++) known &= known && scalar[s->in[k]];
        if (scalar == NULL || known == before) {
            const char *is = s->logical ? "uint8_t" : compares ? "int" : before ? "double" : type;
            fl__text_add(to, "%*sconst %s %c%d = ", before ? 4 : 8, "", is, known ? 's' : 't', i);
            fl__text_add(to, "flm_%s_%s(", fl_op_name(fl_primitive_op(q)),
                         s->logical ? "b8"
                         : before   ? "f64"
                                    : suffix);
            for (int k = 0; k < operands; k++) {
                const bool number = scalar && !known && scalar[s->in[k]] && !(q == FL_PRIMITIVE_where && !k);
                fl__text_add(to, "%s%s%s%s%s", k ? ", " : "", number ? "(" : "", number ? type : "",
                             number ? ")" : "", at[s->in[k]]);
            }
            fl__text_add(to, ");\n");
        }
        snprintf(at[s->to], sizeof at[0], "%c%d", known ? 's' : 't', i);
        if (scalar) scalar[s->to] = known;
    }
}

/* ---- optimizer steps in CUDA C ---- */

/* Names the values at the start; which of them are numbers. */
static void fl__step_values(const fl_formula *f, int tensors, char at[FL_FORMULA_OPERANDS][8],
                            bool *scalar) {
    for (int i = 0; i < f->n_in; i++) {
        snprintf(at[i], sizeof at[0], "%c%d", i < tensors ? 'a' : 'n', i);
        scalar[i] = i >= tensors;
    }
    for (int i = 0; i < f->n_constants; i++) {
        snprintf(at[FL_FORMULA_CONSTANT + i], sizeof at[0], "c%d", i);
        scalar[FL_FORMULA_CONSTANT + i] = true;
    }
}

/* Prints the values that a block shares, by name: numbers, constants, and those of the steps on numbers. */
static void fl__step_cells(fl__text *to, const fl_formula *f, int tensors, const bool *of_numbers) {
    static const char line[] = "    [[maybe_unused]] const double %c%d = cell[%d];\n";
    int cell = 0;
    for (int i = tensors; i < f->n_in; i++) fl__text_add(to, line, 'n', i, cell++);
    for (int i = 0; i < f->n_constants; i++) fl__text_add(to, line, 'c', i, cell++);
    for (int i = 0; i < f->n_steps; i++)
        if (of_numbers[i]) fl__text_add(to, line, 's', i, cell++);
}

static void fl__step_begin(fl__text *to, const fl_formula *f, int tensors, const char *type,
                           const char *suffix, bool *of_numbers) {
    const bool none[FL_FORMULA_STEPS] = {false};
    char at[FL_FORMULA_OPERANDS][8];
    bool scalar[FL_FORMULA_OPERANDS] = {false};
    fl__step_values(f, tensors, at, scalar);
    fl__text_add(to, "extern \"C\" __global__ void rule_step(flk_step_rule r, flk_step_list l) {\n"
                     "    __shared__ double cell[FLK_STEP_CELLS];\n    int block = (int)blockIdx.x;\n"
                     "    const flk_step_entry &e = l.entry[flk_entry_of(l.first, l.n, &block)];\n"
                     "    if (threadIdx.x == 0) {\n    int cells = flk_step_numbers(r, e, cell);\n");
    fl__step_cells(to, f, tensors, none);
    fl__kernel_steps(to, f, type, suffix, at, scalar, true);
    fl__step_values(f, tensors, at, scalar);
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        of_numbers[i] = true;
        for (int k = 0; k < fl_primitive_operands((fl_primitive)s->primitive); k++)
            of_numbers[i] &= scalar[s->in[k]];
        if ((scalar[s->to] = of_numbers[i])) fl__text_add(to, "    cell[cells++] = s%d;\n", i);
    }
    fl__text_add(to, "    }\n    __syncthreads();\n    if (r.skips && cell[0] == 0) return;\n");
    fl__step_cells(to, f, tensors, of_numbers);
}

FL_PRIVATE void fl__kernel_print_step(fl__text *to, const fl_formula *f, int n_reads, int n_writes,
                                      bool narrow, const int *dtype) {
    const int n = n_reads + n_writes;
    const bool f64 = dtype[n_reads] == (int)FL_F64;
    const char *type = f64 ? "double" : "float", *suffix = f64 ? "f64" : "f32";
    char at[FL_FORMULA_OPERANDS][8];
    bool scalar[FL_FORMULA_OPERANDS] = {false}, of_numbers[FL_FORMULA_STEPS];
    fl__step_begin(to, f, n, type, suffix, of_numbers);
    fl__step_values(f, n, at, scalar);
    fl__text_add(to, "    enum { EACH = FLK_VECTOR<%s>, ALL = FLK_BLOCK * EACH };\n"
                     "    const int64_t begin = (int64_t)block * ALL * FLK_STEP_RUNS;\n"
                     "    const int64_t last = begin + ALL * FLK_STEP_RUNS, end = e.n < last ? e.n : last;\n"
                     "    const bool fits = flk_step_fits(e, %d);\n"
                     "    for (int64_t i = begin + threadIdx.x * EACH; i < end; i += ALL) {\n",
                 type, n + narrow);
    for (int k = 0; k < n; k++)
        fl__text_add(to, "    %s v%d[EACH];\n    flk_step_load<%d>(e.p[%d], i, end, fits, v%d);\n", type, k,
                     dtype[k], k, k);
    fl__text_add(to, "    #pragma unroll\n    for (int j = 0; j < EACH; j++) {\n");
    for (int k = 0; k < n; k++) fl__text_add(to, "        const %s a%d = v%d[j];\n", type, k, k);
    fl__kernel_steps(to, f, type, suffix, at, scalar, false);
    for (int k = 0; k < n_writes; k++)
        fl__text_add(to, "        v%d[j] = (%s)%s;\n", n_reads + k, type, at[f->out[k]]);
    fl__text_add(to, "    }\n");
    for (int k = n_reads; k < n + narrow; k++)
        fl__text_add(to, "    flk_step_store<%d>(e.p[%d], i, end, fits, v%d);\n", dtype[k], k,
                     k < n ? k : n_reads);
    fl__text_add(to, "    }\n}\n");
}

FL_PRIVATE bool fl__kernel_print(fl__text *to, const fl_formula *f, fl_dtype d, const char *name,
                                 const fl__language *l) {
    char at[FL_FORMULA_OPERANDS][8];
    const char *type = fl__kernel_type(d);
    const char *suffix = d == FL_F64 ? "f64" : l->f32 ? l->f32 : *fl__level_isa() ? "f32_fma" : "f32";
    if (d != FL_F32 && d != FL_F64) return false;
    fl__kernel_comment(to, f, d);
    l->begin(to, f, d, name);
    for (int i = 0; i < f->n_in; i++) {
        snprintf(at[i], sizeof at[i], "a%d", i);
        if (!l->load || !fl__is_read(f, i)) continue;
        fl__text_add(to, "        const %s a%d = ", f->conditions >> i & 1 ? "uint8_t" : type, i);
        fl__text_add(to, l->load, i);
        fl__text_add(to, ";\n");
    }
    for (int i = 0; i < f->n_constants; i++) snprintf(at[FL_FORMULA_CONSTANT + i], sizeof at[0], "c%d", i);
    fl__kernel_steps(to, f, type, suffix, at, NULL, false);
    for (int i = 0; i < f->n_out; i++) {
        fl__text_add(to, "        ");
        fl__text_add(to, l->store, i);
        fl__text_add(to, " = %s%s;\n", f->logical >> i & 1 ? "(uint8_t)" : "", at[f->out[i]]);
    }
    l->end(to, f);
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
