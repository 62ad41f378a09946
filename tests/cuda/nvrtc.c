/* nvrtc.c - kernels that are made while a program runs: the texts of formulas, words and argument structs
   (fl_math.h, op_table.h, fl_primitives.h, flk.h, common.cuh) compile by NVRTC, and with them a kernel as
   one may be generated (make cuda-nvrtc). Needs libnvrtc, no GPU; nothing runs

   usage: nvrtc ARCH ...     80 90: of each the PTX and the machine's code */
#define FL_IMPLEMENTATION
#include "../../fl_mem.h"
#include "../../kernels/cuda/library.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_program *nvrtc_program; /* as nvrtc.h has them */
#define CALLS(X)                                                                                             \
    X(const char *, nvrtcGetErrorString, (int))                                                              \
    X(int, nvrtcCreateProgram,                                                                               \
      (nvrtc_program *, const char *, const char *, int, const char *const *, const char *const *))          \
    X(int, nvrtcDestroyProgram, (nvrtc_program *))                                                           \
    X(int, nvrtcCompileProgram, (nvrtc_program, int, const char *const *))                                   \
    X(int, nvrtcGetProgramLogSize, (nvrtc_program, size_t *))                                                \
    X(int, nvrtcGetProgramLog, (nvrtc_program, char *))                                                      \
    X(int, nvrtcGetPTXSize, (nvrtc_program, size_t *))                                                       \
    X(int, nvrtcGetPTX, (nvrtc_program, char *))                                                             \
    X(int, nvrtcGetCUBINSize, (nvrtc_program, size_t *))                                                     \
    X(int, nvrtcGetCUBIN, (nvrtc_program, char *))
static struct {
#define FIELD(result, name, args) result(*name) args;
    CALLS(FIELD)
#undef FIELD
} call;

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
    if (status) printf("%s: %s\n", what, call.nvrtcGetErrorString(status));
    return status;
}

static bool compile(const char *name, const char *text, const char *architecture, const char *target) {
    const char *const options[] = {architecture, "-I.", "--std=c++17", "--fmad=false",
                                   "--device-as-default-execution-space"};
    nvrtc_program p = NULL;
    size_t log = 0, ptx = 0, code = 0;
    if (failed(name, call.nvrtcCreateProgram(&p, text, "generated.cu", 0, NULL, NULL))) return false;
    const int status = call.nvrtcCompileProgram(p, sizeof options / sizeof *options, options);
    char *said = !call.nvrtcGetProgramLogSize(p, &log) ? calloc(1, log + 1) : NULL;
    if (status && said && !call.nvrtcGetProgramLog(p, said)) printf("%.3000s", said);
    free(said);
    bool ok = !failed(name, status) && !call.nvrtcGetPTXSize(p, &ptx) && !call.nvrtcGetCUBINSize(p, &code);
    char *made = ok ? calloc(1, ptx + 1) : NULL;
    ok = ok && made && code > 0 && !call.nvrtcGetPTX(p, made) && strstr(made, target) &&
         strstr(made, ".entry generated");
    free(made);
    call.nvrtcDestroyProgram(&p);
    if (!ok) printf("%s does not compile for %s\n", name, architecture);
    return ok;
}

int main(int argc, char **argv) {
#define NAME(result, name, args) #name,
    static const char *const names[] = {CALLS(NAME)};
#undef NAME
    int passed = 0, bad = 0;
    if (!fl__cuda_library("libnvrtc.so.13", "no kernel is generated", names, &call,
                          (int)(sizeof names / sizeof *names)))
        return puts("skipped: NVRTC (libnvrtc.so.13 is not to be found: make cuda-nvrtc)") < 0;
    for (int a = 1; a < argc; a++) {
        char architecture[40], target[40];
        snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%.9s", argv[a]);
        snprintf(target, sizeof target, ".target sm_%.9s", argv[a]);
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            *(compile(programs[i].name, programs[i].text, architecture, target) ? &passed : &bad) += 1;
    }
    printf("%d passed, %d failed\n", passed, bad);
    return bad > 0;
}
/* MIT licence: see LICENSE. */
