/* nvrtc.c - kernels that are made while a program runs: the texts of formulas, words and argument structs
   (fl_math.h, op_table.h, fl_primitives.h, flk.h, common.cuh) compile by NVRTC, and so do the kernels of
   programs (kernels/kernel_text.h) of all formulas and gradients (make cuda-nvrtc). Needs libnvrtc, no GPU;
   nothing runs

   usage: nvrtc ARCH ...     80 90: of each the PTX and the machine's code */
#include "../../fl_backend.h"
#include "../../fl_optim.h"
#include "../../kernels/kernel_text.h"
#include "../../kernels/cuda/library.h"
#include "../../kernels/cuda/nvrtc.h"
#define FL_IMPL_ONLY
#define FL_IMPL_ONLY_CUDA_LIBRARY
#include "../../kernels/cuda/library.h"
#define FL_IMPL_ONLY_CUDA_NVRTC
#include "../../kernels/cuda/nvrtc.h"

int flk_device(void) { return 0; } /* without the runtime */

static const fl__nvrtc_calls *call;
static int passed, bad;

static bool check(bool ok, const char *name, const char *what) {
    *(ok ? &passed : &bad) += 1;
    if (!ok) printf("%s: %s\n", name, what);
    return ok;
}

/* All formulas of the tables in a type, or their gradients, and a kernel of one. */
#define FORMULAS(type, suffix, kind, more, one)                                                              \
    "#include \"kernels/cuda/common.cuh\"\n"                                                                 \
    "#define FLK_T " type "\n#define FLK_S " suffix "\n#define FLK_KIND FLK_" kind "\n" more                 \
    "#include \"kernels/cuda/formulas.inc\"\n"                                                               \
    "extern \"C\" __global__ void generated(float *in, float *out) {\n"                                      \
    "    " type " x[4], y[2];\n"                                                                             \
    "    for (int i = 0; i < 4; i++) x[i] = (" type ")in[i];\n"                                              \
    "    " one "::run(x, y);\n"                                                                              \
    "    *out = (float)y[0];\n"                                                                              \
    "}\n"
#define GRADIENTS "#define FLK_GRADIENTS\n"

static const struct {
    const char *name, *text;
} programs[] = {
    {"a generated kernel", "#include \"kernels/cuda/common.cuh\"\n"
                           "#include \"kernels/fl_primitives.h\"\n"
                           "#define FL_FN(name) flm_##name##_f32\n"
                           "extern \"C\" __global__ void generated(flk_pass p) {\n"
                           "    const int64_t i = flk_thread();\n"
                           "    int64_t at[3];\n"
                           "    if (i >= p.n) return;\n"
                           "    flk_place<3>(p, i, at);\n"
                           "    const float y = flk_load<float>(p.t[1], at[1]);\n"
                           "    const float dy = flk_load<float>(p.t[2], at[2]);\n"
                           "    flk_store(p.t[0], at[0], MUL(dy, SUB(CONST(1), MUL(TANH(y), y))));\n"
                           "}\n"},
    {"formulas in f32", FORMULAS("float", "f32", "FLOATS", "", "flk_tanh_y")},
    {"formulas in f64", FORMULAS("double", "f64", "FLOATS", "", "flk_tanh_y")},
    {"formulas in i64", FORMULAS("int64_t", "i64", "INTEGERS", "", "flk_add_y")},
    {"formulas in b8", FORMULAS("uint8_t", "b8", "TRUTHS", "", "flk_eq_y")},
    {"gradients in f32", FORMULAS("float", "f32", "FLOATS", GRADIENTS, "flk_tanh_da")},
    {"gradients in f64", FORMULAS("double", "f64", "FLOATS", GRADIENTS, "flk_mul_da_db")},
};

static bool failed(const char *what, int status) {
    if (status) printf("%s: %s\n", what, call->nvrtcGetErrorString(status));
    return status;
}

static bool compile(const char *name, const char *text, const char *architecture, const char *target) {
    const char *const options[] = {architecture, "-I.", "--std=c++17", "--fmad=false",
                                   "--device-as-default-execution-space"};
    fl__nvrtc_program p = NULL;
    size_t log = 0, ptx = 0, code = 0;
    if (failed(name, call->nvrtcCreateProgram(&p, text, "generated.cu", 0, NULL, NULL))) return false;
    const int status = call->nvrtcCompileProgram(p, sizeof options / sizeof *options, options);
    char *said = !call->nvrtcGetProgramLogSize(p, &log) ? calloc(1, log + 1) : NULL;
    if (status && said && !call->nvrtcGetProgramLog(p, said)) printf("%.3000s", said);
    free(said);
    bool ok = !failed(name, status) && !call->nvrtcGetPTXSize(p, &ptx) && !call->nvrtcGetCUBINSize(p, &code);
    char *made = ok ? calloc(1, ptx + 1) : NULL;
    ok = ok && made && code > 0 && !call->nvrtcGetPTX(p, made) && strstr(made, target) &&
         strstr(made, ".entry generated");
    free(made);
    call->nvrtcDestroyProgram(&p);
    return ok;
}

/* ---- programs ---- */

typedef struct texts {
    char *all;
    size_t n;
    int kernels;
} texts;

static void add_kernel(texts *t, const fl_formula *f, fl_dtype d) {
    static fl__text text;
    char name[24];
    snprintf(name, sizeof name, "kernel_%d", t->kernels++);
    text.n = 0;
    if (!check(fl__kernel_print(&text, f, d, name, fl__language_cuda()) && text.n < sizeof text.at, name,
               "is not printed"))
        return;
    t->all = realloc(t->all, t->n + text.n + 1);
    memcpy(t->all + t->n, text.at, text.n + 1);
    t->n += text.n;
}

/* y = c ? x + 0.5 : y, and whether x < y && c, of a condition c. */
static void conditional(fl_formula *f, double number) {
    fl_formula_builder b;
    int out[2];
    check(fl_formula_build(&b, f, 3, 4), "conditional", "is not begun");
    const int half = fl_formula_build_number(&b, number);
    const int sum = fl_formula_build_step(&b, FL_PRIMITIVE_add, (int[]){0, half, 0});
    out[0] = fl_formula_build_step(&b, FL_PRIMITIVE_where, (int[]){2, sum, 1});
    const int less = fl_formula_build_step(&b, FL_PRIMITIVE_lt, (int[]){0, 1, 0});
    out[1] = fl_formula_build_step(&b, FL_PRIMITIVE_bitwise_and, (int[]){less, 2, 0});
    check(fl_formula_build_end(&b, 2, out), "conditional", "is not built");
}

/* The kernels of all formulas and gradients of the tables for floats. */
static texts all_kernels(fl_dtype d) {
    texts t = {NULL, 0, 0};
    fl_formula f;
    for (fl_op op = 1; op < FL_TABLE_OPS; op++) {
        const fl_op_info *info = fl_op_get_info(op);
        if (!info->formula || info->cls == FL_CLASS_INT || info->cls == FL_CLASS_BOOL) continue;
        add_kernel(&t, fl_op_program(op, FL_PROGRAM_Y), d);
        if (info->grad[0]) add_kernel(&t, fl_op_program(op, FL_PROGRAM_DA), d);
        if (info->grad[1]) add_kernel(&t, fl_op_program(op, FL_PROGRAM_DB), d);
        if (info->grad[0] && info->grad[1]) add_kernel(&t, fl_op_program(op, FL_PROGRAM_DA_DB), d);
    }
    conditional(&f, 0.5);
    add_kernel(&t, &f, d);
    return t;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *s = text; (s = strstr(s, word)); s++) n++;
    return n;
}

/* A product and a sum without a rounding mode could be contracted to a fused multiply-add: other bits. */
static void compile_programs(fl_dtype d, int architecture) {
    static const char *const contracted[] = {"mul.f", "add.f", "sub.f", "mul.ftz", "add.ftz", "sub.ftz"};
    static char log[4000];
    texts t = all_kernels(d);
    char *made = fl__nvrtc_compile(t.all, architecture, true, log, sizeof log);
    check(made != NULL, fl_dtype_name(d), "the kernels do not compile");
    if (!check(!*log, fl_dtype_name(d), "NVRTC warns")) puts(log);
    if (made) check(count(made, ".entry") == t.kernels, fl_dtype_name(d), "kernels are missing");
    for (size_t i = 0; made && i < sizeof contracted / sizeof *contracted; i++)
        check(!strstr(made, contracted[i]), fl_dtype_name(d), contracted[i]);
    fl_heap_free(made);
    free(t.all);
}

/* Neither multiply-adds of the text are fused, nor are those of fl_math.h that are fused lost. */
static void fusing(int architecture) {
    static char log[4000];
    fl_formula f;
    for (int fused = 0; fused < 2; fused++) {
        texts t = {NULL, 0, 0};
        check(fl_formula_parse(&f, "ADD(MUL(x, y), z)", "x y z"), "a product and a sum", "are not parsed");
        add_kernel(&t, fused ? fl_op_program(FL_OP_exp, FL_PROGRAM_Y) : &f, FL_F32);
        char *made = fl__nvrtc_compile(t.all, architecture, true, log, sizeof log);
        check(made && (count(made, "fma.rn.f32") > 0) == fused, "fused multiply-adds", t.all);
        fl_heap_free(made);
        free(t.all);
    }
}

/* Programs that differ in numbers alone have one text; others have other texts. */
static void equal_texts(void) {
    texts t[3] = {{NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0}};
    fl_formula f[2];
    for (int i = 0; i < 2; i++) {
        conditional(&f[i], i + 0.25);
        add_kernel(&t[i], &f[i], FL_F32);
    }
    add_kernel(&t[2], &f[0], FL_F64);
    check(!strcmp(t[0].all, t[1].all), t[0].all, "two texts of one program");
    check(strcmp(t[0].all, t[2].all) != 0, t[0].all, "one text of two dtypes");
    for (int i = 0; i < 3; i++) free(t[i].all);
}

/* As fl_cuda_launch gets it. */
static void text_of_a_user(int architecture) {
    char log[400], *made = fl__nvrtc_compile(
        "extern \"C\" __global__ void twice(float *y, const float *x, int64_t n) {\n"
        "    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) y[i] = flm_add_f32(x[i], x[i]);\n}\n", architecture, true, log, sizeof log);
    check(made && !*log && count(made, ".entry twice(") == 1, "a text of a user", log);
    fl_heap_free(made);
}

/* Kernels of optimizers' rules: in f32, in bf16 with f32 masters, in f64. Without a warning, they read and
   write 16 bytes at once. */
static void rules(int architecture) {
    static const int dtype[3][5] = {{FL_F32, FL_F32, FL_F32, FL_F32}, {FL_F64, FL_F64, FL_F64, FL_F64},
                                    {FL_BF16, FL_F32, FL_F32, FL_F32, FL_BF16}};
    static fl__text text;
    static char log[4000];
    fl_var *p = fv_param(fl_zeros(FL_SHAPE(1), FL_F32));
    fl_optim *o = fl_optim_adamw(((fv_list){1, &p}));
    for (int i = 0; i < 3; i++) {
        text.n = 0;
        fl__kernel_print_step(&text, fl_step_program(o->type->rule), 1, 3, i == 2, dtype[i]);
        char *made = fl__nvrtc_compile(text.at, architecture, true, log, sizeof log);
        check(made && !*log && count(made, ".entry rule_step(") == 1, "a rule", log);
        check(made && count(made, "ld.global.v") >= 4, "a rule", "has no vectors");
        fl_heap_free(made);
    }
    fl_optim_free(o);
}

static void errors(int architecture) {
    char log[200], *made = fl__nvrtc_compile("no text", architecture, false, log, sizeof log);
    check(!made && strstr(log, "error"), "a wrong text", "gives no error");
    made = fl__nvrtc_compile("", 7, false, log, sizeof log);
    check(!made && *log, "sm_7", "gives no error");
}

int main(int argc, char **argv) {
    if (!(call = fl__nvrtc()))
        return puts("skipped: NVRTC (libnvrtc.so.13 is not to be found: make cuda-nvrtc)") < 0;
    for (int a = 1; a < argc; a++) {
        const int number = atoi(argv[a]);
        char architecture[40], target[40];
        snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d", number);
        snprintf(target, sizeof target, ".target sm_%d", number);
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            check(compile(programs[i].name, programs[i].text, architecture, target), programs[i].name,
                  architecture);
        compile_programs(FL_F32, number);
        compile_programs(FL_F64, number);
        fusing(number);
        text_of_a_user(number);
        rules(number);
        errors(number);
    }
    equal_texts();
    printf("%d passed, %d failed\n", passed, bad);
    return bad > 0;
}
/* MIT licence: see LICENSE. */
