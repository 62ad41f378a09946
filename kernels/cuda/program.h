/* kernels/cuda/program.h - op `formula` on backend cuda: compiled programs

   While programs are compiled (fl_compile), a program of f32 or f64 runs as one kernel, made when it first
   runs: printed as CUDA C (kernels/kernel_text.h) and compiled with NVRTC in this process, which takes 0.13
   to 0.26 s. Programs that differ in numbers alone share a kernel, of any shape. It has the bits of the ops:
   both are the functions of fl_math.h, none of them contracted. Everything else, and every program that has
   no kernel yet while a CUDA graph is captured, runs op by op, as without NVRTC.

   A thread computes one element; there are no 16-byte loads. Rules of optimizers (step.h) are compiled
   whenever NVRTC is found: a thread processes vectors of 16 bytes. Never run on a GPU so far. */
#ifndef FL_CUDA_PROGRAM_H
#define FL_CUDA_PROGRAM_H
#include "../../fl_backend.h"
#include "flk.h"
FL_PRIVATE void fl__cuda_program_slots(fl_backend *cuda);
/* The kernel of an optimizer step's rule; NULL if it cannot be made: then the step runs op by op. */
FL_PRIVATE void *fl__cuda_step_kernel(const flk_step_rule *r, const fl_formula *f);
#endif

#if defined(FL_IMPL_ONLY_CUDA_PROGRAM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_PROGRAM_IMPL
#define FL_CUDA_PROGRAM_IMPL
#include "../kernel_text.h"
#include "../../fl/records/formula.h"
#include "../../fl/tensor/memo.h"
#include "backend.h"
#include "graph.h"
#include "library.h"
#include "nvrtc.h"
#include <pthread.h>
#include <string.h>

enum { FL__CUDA_PROGRAMS = 1024 /* further ones run op by op */ };

typedef struct fl__cuda_kernel {
    void *kernel; /* NULL: it could not be made */
} fl__cuda_kernel;
static fl_memo_entry *fl__cuda_kernel_slots[2 * FL__CUDA_PROGRAMS];
static fl_memo fl__cuda_kernels = {.most = FL__CUDA_PROGRAMS, .size = sizeof(fl__cuda_kernel),
                                   .slot = fl__cuda_kernel_slots};
static struct {
    pthread_mutex_t lock;          /* of what is made */
    int architecture[FLK_DEVICES]; /* 0: not known yet */
    bool warned;
    bool rules_fail; /* a rule did not compile: no other one is tried */
} fl__cuda_programs = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Compiles and loads the kernel; NULL after a warning, the first time. */
static void *fl__cuda_program_make(const fl_formula *f, fl_dtype d, int architecture) {
    char log[400] = "out of memory";
    void *kernel = NULL;
    fl__text *text = fl_heap_alloc(sizeof *text);
    const bool printed = text && fl__kernel_print(text, f, d, "program", fl__language_cuda());
    char *code = printed ? fl__nvrtc_compile(text->at, architecture, false, log, sizeof log) : NULL;
    const char *why = code ? flk_kernel_load(&kernel, code, "program") : log;
    if (why && !fl__cuda_programs.warned) {
        fl_log_message(FL_LOG_WARN, "cuda: a program is not compiled, it runs op by op: %s", why);
        fl__cuda_programs.warned = true;
    }
    fl_heap_free(code);
    fl_heap_free(text);
    return why ? NULL : kernel;
}

/* That of the current device. Under the lock. */
static int fl__cuda_architecture(void) {
    int *architecture = &fl__cuda_programs.architecture[flk_device()];
    if (!*architecture) *architecture = flk_architecture();
    return *architecture;
}

/* The kernel of a program on the current device, made if it is new; NULL if it cannot be. Under the lock. */
static void *fl__cuda_program_find(const fl_formula *f, fl_dtype d) {
    const int architecture = fl__cuda_architecture();
    const uint64_t tag = (uint64_t)d << 32 | (uint32_t)architecture;
    const size_t bytes = fl__formula_bytes(f);
    const fl__cuda_kernel *kept = fl_memo_find(&fl__cuda_kernels, f, bytes, tag);
    if (kept) return kept->kernel;
    if (fl__cuda_kernels.n == FL__CUDA_PROGRAMS || fl__cuda_captures()) return NULL;
    const fl__cuda_kernel made = {fl__cuda_program_make(f, d, architecture)};
    return fl_memo_add(&fl__cuda_kernels, f, bytes, tag, &made) ? made.kernel : NULL;
}

static void *fl__cuda_program_kernel(const fl_formula *f, fl_dtype d) {
    if (!fl__programs_compiled() || (d != FL_F32 && d != FL_F64) || !fl__nvrtc()) return NULL;
    const bool failed = fl_error() != NULL;
    pthread_mutex_lock(&fl__cuda_programs.lock);
    void *kernel = fl__cuda_program_find(f, d);
    pthread_mutex_unlock(&fl__cuda_programs.lock);
    if (!failed) fl_error_clear(); /* without memory it runs op by op */
    return kernel;
}

static void fl__cuda_program_operands(flk_program *p, const fl_call *c, const fl_formula *f) {
    const int n = c->n_out + c->n_in;
    const fl_tensor *t[FLK_PROGRAM_OPERANDS];
    int order[FL_MAX_DIMS];
    memset(p, 0, sizeof *p);
    p->n = fl_numel(c->out[0]);
    memcpy(p->number, f->constant, f->n_constants * sizeof *p->number);
    for (int k = 0; k < n; k++) {
        t[k] = k < c->n_out ? c->out[k] : f->reads >> (k - c->n_out) & 1 ? c->in[k - c->n_out] : NULL;
        if (t[k]) fl__cuda_operand(&p->t[k], t[k]);
    }
    fl_axes_by_stride(c->out[0], order);
    for (int i = 0; i < c->out[0]->ndim; i++) {
        const int axis = order[i];
        const int64_t size = c->out[0]->shape[axis];
        int64_t stride[FLK_PROGRAM_OPERANDS];
        bool joins = p->ndim > 0;
        if (size == 1) continue;
        for (int k = 0; k < n; k++) {
            stride[k] = t[k] && !t[k]->weak ? t[k]->stride[axis] : 0;
            joins &= !p->ndim || p->t[k].stride[p->ndim - 1] == stride[k] * size;
        }
        const int to = joins ? p->ndim - 1 : p->ndim++;
        p->shape[to] = joins ? p->shape[to] * size : size;
        for (int k = 0; k < n; k++) p->t[k].stride[to] = stride[k];
    }
}
_Static_assert((int)FLK_PROGRAM_NUMBERS == (int)FL_FORMULA_CONSTANTS, "pass.h: the numbers of a program");

FL_CUDA_SLOT(fl__cuda_formula_op) {
    fl_dtype d;
    flk_program p;
    const fl_formula_args *a = fl_formula_args_of(c, &d);
    if (!a) return false;
    void *kernel = fl__cuda_program_kernel(&a->program, d);
    if (!kernel) return fl_call_compose(c);
    for (int i = 0; i < c->n_out; i++)
        if (!fl_out_make(c->out[i])) return false;
    fl__cuda_program_operands(&p, c, &a->program);
    return fl__cuda_started(c, flk_program_run(kernel, &p));
}

/* ---- kernels of users ---- */

/* The kernel `name` of a text on the current device, made if it is new. Under the lock. */
static void *fl__cuda_source_kernel(const char *op, const char *source, const char *name) {
    const int architecture = fl__cuda_architecture();
    const uint64_t tag = fl__memo_hash(name, strlen(name), (uint64_t)architecture);
    const fl__cuda_kernel *found = fl_memo_find(&fl__cuda_kernels, source, strlen(source), tag);
    fl__cuda_kernel made = {NULL};
    char log[1000] = "out of memory";
    if (found) return found->kernel;
    if (fl__cuda_captures())
        return fl_fail("fl_%s: cuda: kernel '%s' is not compiled yet, and cannot be while a graph is captured",
                       op, name), NULL;
    if (!fl__nvrtc()) return fl_fail("fl_%s: cuda: kernel '%s': NVRTC is not found", op, name), NULL;
    char *code = fl__nvrtc_compile(source, architecture, false, log, sizeof log);
    const char *why = code ? flk_kernel_load(&made.kernel, code, name) : log;
    if (!why && !fl_memo_add(&fl__cuda_kernels, source, strlen(source), tag, &made))
        why = "there are too many kernels";
    fl_heap_free(code);
    return why ? fl_fail("fl_%s: cuda: kernel '%s': %s", op, name, why), NULL : made.kernel;
}

FL_API bool fl_cuda_launch(const fl_call *c, const char *source, const char *name, int64_t blocks,
                           int threads, void **args) {
    static const char *const fn = "fl_cuda_launch";
    if (!fl_given(c, fn, "the call") || !fl_given(source, fn, "the text") || !fl_given(name, fn, "the name"))
        return false;
    pthread_mutex_lock(&fl__cuda_programs.lock);
    void *kernel = fl__cuda_source_kernel(fl_op_get_info(c->op)->name, source, name);
    pthread_mutex_unlock(&fl__cuda_programs.lock);
    return kernel && (!blocks || fl__cuda_started(c, flk_kernel_launch(kernel, blocks, threads, args)));
}

/* ---- kernels of optimizer steps ---- */

FL_PRIVATE void *fl__cuda_step_kernel(const flk_step_rule *r, const fl_formula *f) {
    const bool failed = fl_error() != NULL;
    const bool tries = !fl__cuda_programs.rules_fail && fl__nvrtc();
    fl__text *text = tries ? fl_heap_alloc(sizeof *text) : NULL;
    void *kernel = NULL;
    if (text) {
        text->n = 0;
        fl__kernel_print_step(text, f, r->n_reads, r->n_writes, r->narrow, r->dtype);
        pthread_mutex_lock(&fl__cuda_programs.lock);
        if (text->n < sizeof text->at) kernel = fl__cuda_source_kernel("step", text->at, "rule_step");
        pthread_mutex_unlock(&fl__cuda_programs.lock);
    }
    if (text && !kernel && !fl__cuda_captures()) { /* during a capture nothing is compiled */
        fl__cuda_programs.rules_fail = true;
        fl_log_message(FL_LOG_WARN, "cuda: steps run op by op: %s",
                       fl_error() ? fl_error() : "a rule is too long");
    }
    if (!failed) fl_error_clear();
    fl_heap_free(text);
    return kernel;
}

static const fl_backend *fl__cuda_program_table(const fl_backend *now) {
    const bool compiles = now->replay == fl__cuda_replay && fl__programs_compiled() && fl__nvrtc();
    return compiles ? fl_backend_cuda() : NULL;
}

FL_PRIVATE void fl__cuda_program_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_formula, fl__cuda_formula_op, 0);
    fl__programs_use(fl__cuda_program_table);
}

#endif
#endif
/* MIT licence: see LICENSE. */
