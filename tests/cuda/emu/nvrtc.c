/* tests/cuda/emu/nvrtc.c - an NVRTC for the emulated device: libnvrtc.so.13 by the system's C++ compiler

   "Machine code" is the path of a shared object, which cudaLibraryLoadData of cuda_runtime.h opens and
   removes. It has emu_run, which runs the text's last kernel for all threads, without barriers. */
#include "../../../kernels/cuda/nvrtc.h"
#include "mock.h"
#include <unistd.h>

struct fl__nvrtc_data {
    char *text;
    char folder[32], code[64], kernel[64], log[2000];
};

static int mock_programs; /* that were compiled */
MOCK int mock_nvrtc_programs(void);
int mock_nvrtc_programs(void) { return mock_programs; }

static const char before[] =
    "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n#include <utility>\n"
    "#define __global__\n#define __device__\n#define __forceinline__ inline\n#define __shared__ static\n"
    "static void __syncthreads() {}\n" /* the block's first thread runs first */
    "static struct { unsigned x; } threadIdx, blockIdx, blockDim;\n";
static const char after[] =
    "template <class T> struct emu_of;\n"
    "template <class... A> struct emu_of<void (*)(A...)> {\n"
    "    static constexpr size_t bytes[] = {sizeof(A)..., 0};\n"
    "    template <size_t... I> static void call(void (*f)(A...), void **a, std::index_sequence<I...>) {\n"
    "        f(*(A *)a[I]...);\n"
    "    }\n"
    "    static void call(void (*f)(A...), void **a) { call(f, a, std::index_sequence_for<A...>()); }\n"
    "};\n"
    "using emu_kernel = emu_of<decltype(&EMU_KERNEL)>;\n"
    "extern \"C\" const size_t *emu_bytes() { return emu_kernel::bytes; }\n"
    "extern \"C\" void emu_run(void **args, unsigned grid, unsigned block) {\n"
    "    blockDim.x = block;\n"
    "    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)\n"
    "        for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) emu_kernel::call(EMU_KERNEL, args);\n"
    "}\n";

FL__NVRTC_CALLS(MOCK_DECLARE)

const char *nvrtcGetErrorString(int e) { return e == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

static bool put(const fl__nvrtc_program p, const char *name, const char *a, const char *b, const char *c) {
    char path[80];
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    FILE *f = fopen(path, "w");
    const bool ok = f && fprintf(f, "%s%s%s", a, b, c) > 0;
    return (!f || !fclose(f)) && ok;
}

int nvrtcCreateProgram(fl__nvrtc_program *to, const char *text, const char *name, int n,
                       const char *const *file, const char *const *as) {
    fl__nvrtc_program p = calloc(1, sizeof *p);
    (void)name;
    if (!p) return 1;
    snprintf(p->folder, sizeof p->folder, "/tmp/fl-nvrtc-XXXXXX");
    snprintf(p->log, sizeof p->log, " ");
    for (const char *at = text; (at = strstr(at, "__global__ void ")); at += 16)
        snprintf(p->kernel, sizeof p->kernel, "%.*s", (int)strcspn(at + 16, "("), at + 16);
    bool ok = mkdtemp(p->folder) && put(p, "program.cc", before, "#include \"all.h\"\n", text);
    for (int i = 0; ok && i < n; i++) ok = put(p, as[i], file[i], "", "");
    *to = p;
    return ok ? 0 : 1;
}

int nvrtcDestroyProgram(fl__nvrtc_program *at) {
    rmdir((*at)->folder); /* unless the code is there still */
    free(*at);
    return *at = NULL, 0;
}

/* The options are the real library's: --pre-include=FILE becomes an include, the rest is known. */
int nvrtcCompileProgram(fl__nvrtc_program p, int n, const char *const *option) {
    char includes[400] = "", command[600];
    for (int i = 0; i < n; i++) {
        const char *file = strstr(option[i], "--pre-include=");
        const size_t at = strlen(includes);
        if (file) snprintf(includes + at, sizeof includes - at, "#include \"%s\"\n", file + 14);
    }
    snprintf(p->code, sizeof p->code, "%s/code.so", p->folder);
    put(p, "all.h", includes, "", "\n");
    put(p, "after.h", after, "", "");
    snprintf(command, sizeof command,
             "cd %s || exit 1; cat program.cc after.h | g++ -x c++ -std=c++17 -O1 -fPIC -shared "
             "-ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-unknown-pragmas "
             "-DFL_CUDA_EMU -DFL_QUICK -DEMU_KERNEL=%s -I. -o code.so - 2>&1; status=$?; "
             "rm -f *.h program.cc; exit $status", p->folder, p->kernel);
    mock_programs++;
    FILE *f = popen(command, "r");
    p->log[f ? fread(p->log, 1, sizeof p->log - 1, f) : 0] = 0;
    return f && !pclose(f) ? 0 : 6;
}

int nvrtcGetProgramLogSize(fl__nvrtc_program p, size_t *n) { return *n = strlen(p->log) + 1, 0; }
int nvrtcGetProgramLog(fl__nvrtc_program p, char *to) { return strcpy(to, p->log), 0; }
int nvrtcGetPTXSize(fl__nvrtc_program p, size_t *n) { return (void)p, *n = 0, 1; }
int nvrtcGetPTX(fl__nvrtc_program p, char *to) { return (void)p, (void)to, 1; }
int nvrtcGetCUBINSize(fl__nvrtc_program p, size_t *n) { return *n = strlen(p->code) + 1, 0; }
int nvrtcGetCUBIN(fl__nvrtc_program p, char *to) { return strcpy(to, p->code), 0; }
/* MIT licence: see LICENSE. */
