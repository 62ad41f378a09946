/* kernels/cuda/nvrtc.h - compiles CUDA C in this process with NVIDIA's library NVRTC

   The functions of fl_math.h, pass.h and elements.h are declared before the text, from texts embedded here:
   no file is read. */
#ifndef FL_CUDA_NVRTC_H
#define FL_CUDA_NVRTC_H
#include "../../fl_mem.h"

#ifndef FL_CUDA_CHECK /* tests/cuda/vendor.c compares with nvrtc.h */
typedef struct fl__nvrtc_data *fl__nvrtc_program;
typedef int fl__nvrtc_result;
#endif
/* X(result, function, arguments) */
#define FL__NVRTC_CALLS(X)                                                                                 \
    X(const char *, nvrtcGetErrorString, (fl__nvrtc_result))                                               \
    X(fl__nvrtc_result, nvrtcCreateProgram,                                                                \
      (fl__nvrtc_program *, const char *, const char *, int, const char *const *, const char *const *))    \
    X(fl__nvrtc_result, nvrtcDestroyProgram, (fl__nvrtc_program *))                                        \
    X(fl__nvrtc_result, nvrtcCompileProgram, (fl__nvrtc_program, int, const char *const *))                \
    X(fl__nvrtc_result, nvrtcGetProgramLogSize, (fl__nvrtc_program, size_t *))                             \
    X(fl__nvrtc_result, nvrtcGetProgramLog, (fl__nvrtc_program, char *))                                   \
    X(fl__nvrtc_result, nvrtcGetPTXSize, (fl__nvrtc_program, size_t *))                                    \
    X(fl__nvrtc_result, nvrtcGetPTX, (fl__nvrtc_program, char *))                                          \
    X(fl__nvrtc_result, nvrtcGetCUBINSize, (fl__nvrtc_program, size_t *))                                  \
    X(fl__nvrtc_result, nvrtcGetCUBIN, (fl__nvrtc_program, char *))

#ifndef FL_CUDA_CHECK
#include "library.h"
typedef struct fl__nvrtc_calls {
    FL__NVRTC_CALLS(FL__CUDA_FIELD)
} fl__nvrtc_calls;
/* The library's functions; NULL, after one warning, if it is not found. */
FL_PRIVATE const fl__nvrtc_calls *fl__nvrtc(void);
/* Compiles a text for sm_<architecture> to machine code or PTX, which the caller frees by fl_heap_free. NULL
   if it does not compile. log, of `size` bytes: what NVRTC said, or why it failed; "" if nothing. */
FL_PRIVATE char *fl__nvrtc_compile(const char *text, int architecture, bool ptx, char *log, size_t size);
#endif
#endif

#if defined(FL_IMPL_ONLY_CUDA_NVRTC) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_NVRTC_IMPL
#define FL_CUDA_NVRTC_IMPL
#include "../kernel_text.h"
#include <stdio.h>
#include <string.h>

FL_PRIVATE const fl__nvrtc_calls *fl__nvrtc(void) {
    static fl__nvrtc_calls functions;
    static fl__cuda_library library = {.file = "libnvrtc.so.13", .instead = "programs run op by op",
                                       .functions = &functions, .name = {FL__NVRTC_CALLS(FL__CUDA_NAME)}};
    return fl__cuda_load(&library) ? &functions : NULL;
}

/* The pieces as one text; NULL: out of memory. */
static char *fl__nvrtc_joined(const char *const *piece) {
    size_t n = 1;
    for (int i = 0; piece[i]; i++) n += strlen(piece[i]);
    char *text = fl_heap_alloc(n), *at = text;
    for (int i = 0; text && piece[i]; i++) at += snprintf(at, n - (size_t)(at - text), "%s", piece[i]);
    return text;
}

/* What NVRTC made; NULL: it failed, or out of memory. */
static char *fl__nvrtc_result_of(const fl__nvrtc_calls *n, fl__nvrtc_program p, bool ptx) {
    size_t bytes = 0;
    if (ptx ? n->nvrtcGetPTXSize(p, &bytes) : n->nvrtcGetCUBINSize(p, &bytes)) return NULL;
    char *made = fl_heap_alloc(bytes + 1);
    if (!made) return NULL;
    made[bytes] = 0;
    if (!(ptx ? n->nvrtcGetPTX(p, made) : n->nvrtcGetCUBIN(p, made))) return made;
    fl_heap_free(made);
    return NULL;
}

FL_PRIVATE char *fl__nvrtc_compile(const char *text, int architecture, bool ptx, char *log, size_t size) {
    static const char *const rtc[] = {
#include "rtc_text.inc"
        NULL};
    static const char *const pass[] = {
#include "pass_text.inc"
        NULL};
    static const char *const elements[] = {
#include "elements_text.inc"
        NULL};
    static const char *const names[] = {"rtc.h", "fl_math.h", "fl_math_f32.h", "pass.h", "elements.h"};
    const char *const *const pieces[] = {rtc, fl__math_text(), fl__math_f32_text(), pass, elements};
    enum { FILES = sizeof names / sizeof *names };
    const fl__nvrtc_calls *n = fl__nvrtc();
    char option[40], *file[FILES], *made = NULL;
    const char *const options[] = {option, "--std=c++17", "--fmad=false",
                                   "--device-as-default-execution-space", "--pre-include=rtc.h",
                                   "--pre-include=fl_math.h", "--pre-include=pass.h",
                                   "--pre-include=elements.h"};
    fl__nvrtc_program p = NULL;
    size_t said = 0;
    bool ok = true;
    *log = 0;
    if (!n) return NULL;
    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", architecture);
    for (int i = 0; i < FILES; i++) ok &= (file[i] = fl__nvrtc_joined(pieces[i])) != NULL;
    const char *const *const files = (const char *const *)file;
    int status = ok ? n->nvrtcCreateProgram(&p, text, "kernels.cu", FILES, files, names) : 0;
    if (p && !status) status = n->nvrtcCompileProgram(p, sizeof options / sizeof *options, options);
    char *all = p && !n->nvrtcGetProgramLogSize(p, &said) && said > 1 ? fl_heap_alloc(said) : NULL;
    if (all && !n->nvrtcGetProgramLog(p, all)) snprintf(log, size, "%s", all);
    if (p && !status) made = fl__nvrtc_result_of(n, p, ptx);
    if (!made && !*log) snprintf(log, size, "%s", status ? n->nvrtcGetErrorString(status) : "out of memory");
    if (p) n->nvrtcDestroyProgram(&p);
    fl_heap_free(all);
    for (int i = 0; i < FILES; i++) fl_heap_free(file[i]);
    return made;
}

#endif
#endif
/* MIT licence: see LICENSE. */
