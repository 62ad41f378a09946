/* backends.h - a backend by name, and ops of a user's, for the programs that test any of them

   BACKEND_H: a header of yours with the backend fl_backend_BACKEND_NAME(), as FL_TENSOR_BACKEND_H names one.
   OPS_H: a header of yours with ops and their table own_ops[], in the place of examples/extend/own_op.h. */
#ifndef BACKENDS_H
#define BACKENDS_H

#include "../fl_all.h"
#include "arrays.h"
#include <stdio.h>
#include <string.h>
#if defined(__has_include)
#if __has_include("../examples/extend/naive.h")
#include "../examples/extend/naive.h"
#define HAVE_NAIVE
#endif
#if __has_include("../examples/extend/evictor.h")
#include "../examples/extend/evictor.h"
#define HAVE_EVICTOR
#endif
#if __has_include("../examples/extend/opencl.h")
#include "../examples/extend/opencl.h"
#define HAVE_OPENCL
#endif
#endif

#ifdef BACKEND_H
#include BACKEND_H
#define BACKEND_MADE(name) BACKEND_MADE_(name)
#define BACKEND_MADE_(name) fl_backend_##name()
#define BACKEND_TEXT(name) BACKEND_TEXT_(name)
#define BACKEND_TEXT_(name) #name
#endif

/* An op of a user's for the suites: conformance compares its results in each dtype and layout, with its slot
   and
   composed, gradcheck its gradients. Operands are floats of one dtype, as the result is. */
typedef struct own_op {
    const char *name;                               /* as it is registered */
    bool (*enroll)(void);                           /* registers it; false after an error */
    fl_var *(*call)(fl_var **x);                    /* the call that is tested */
    int n_in;                                       /* 1 to 3 operands ... */
    fl_shape in[3], out;                            /* of these shapes, and the result's; 64 numbers at most each */
    void (*expect)(double *const *x, double *y);    /* the result, in f64, of dense operands */
    double slack;      /* errors may be 4 units in the last place and this many epsilons of 1 + |y| */
    unsigned dtypes;   /* that it takes, as 1 << FL_F32 | ...; 0: f16, bf16, f32, f64 */
} own_op;
#define OWN_OPS
#ifndef OPS_H
#define OPS_H "../examples/extend/own_op.h"
#endif
#include OPS_H
enum { N_OWN_OPS = sizeof own_ops / sizeof *own_ops };

static void quiet_errors(const char *text, void *user) {
    (void)text, (void)user;
}

#ifdef HAVE_EVICTOR
/* The cpu on a memory manager that pages all but a few operands to a file. */
static bool choose_evictor(void) {
    fl_mem_manager *m = evictor_new(8 << 20, "conformance.pages");
    if (m) fl_mem_set_current(m);
    return m != NULL;
}
#endif

/* True, after a line that says so, if this machine lacks what the backend needs. */
static bool backend_is_absent(const char *name) {
#ifdef HAVE_OPENCL
    if (!strncmp(name, "opencl", 6) && !fl_backend_opencl())
        return printf("skipped: %s\n0 passed, 0 failed\n", fl_error()), true;
#endif
    return (void)name, false;
}

/* Registers the backend by name. "lazy" is the cpu backend with deferred execution in this thread, "evictor"
   on the memory manager of that name. */
static const fl_backend *add_backend(const char *name) {
    if (!strcmp(name, "lazy")) {
        fl_lazy(true);
        name = "cpu";
    }
#ifdef HAVE_EVICTOR
    if (!strcmp(name, "evictor")) {
        if (!choose_evictor()) return NULL;
        name = "cpu";
    }
#endif
#ifdef HAVE_NAIVE
    if (!strcmp(name, "naive") && !fl_backend_use(fl_backend_naive(), NULL)) return NULL;
#endif
#ifdef HAVE_OPENCL
    if (!strcmp(name, "opencl") && !fl_backend_use(fl_backend_opencl(), NULL)) return NULL;
#endif
#ifdef BACKEND_H
    if (!strcmp(name, BACKEND_TEXT(BACKEND_NAME)) &&
        !fl_backend_use(BACKEND_MADE(BACKEND_NAME), NULL)) return NULL;
#endif
    const int backend = fl_backend_index(name);
    return backend < 0 ? NULL : fl_backend_at(backend);
}

/* The backend that the tests' operands are on: "naive" is the default one too, of "naive@cpu" the default is
   cpu. Strict where it has all required slots. */
static bool choose_backend(const char *name) {
    char operands[32];
    const char *at = strchr(name, '@');
    snprintf(operands, sizeof operands, "%.*s", (int)strcspn(name, "@"), name);
    const fl_backend *b = add_backend(operands), *start = at ? add_backend(at + 1) : b;
    for (int i = 0; i < N_OWN_OPS; i++) /* they are tested as ours are */
        if (fl_op_by_name(own_ops[i].name) == FL_OP_NONE && !own_ops[i].enroll()) return false;
    if (!b || !start || !fl_backend_set_default(start->name)) return false;
    if (at) operands_on = b->name;
    bool complete = true;
    for (int i = 1; i < fl_op_count(); i++)
        if (fl_op_get_info((fl_op)i)->required && !fl_backend_has(operand_backend(), (fl_op)i))
            complete = false;
    fl_backend_strict(complete);
    printf("backend %s: %s\n", name,
           complete ? "has every required op, fallbacks are errors" : "falls back on cpu");
    return true;
}

/* What factorises runs: on the backend in use or, where that has no such slot, on the cpu. A deferred
   backend says so only when the value is read. */
__attribute__((unused)) static bool has_lapack(void) {
    bool was = fl_backend_strict(false);
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_inverse(fl_ones(FL_SHAPE(1, 1), FL_F32));
    bool absent = (!y || fl_item(y) != 1) && fl_error() && strstr(fl_error(), "without LAPACK");
    fl_error_clear();
    fl_scope_end(&s);
    fl_backend_strict(was);
    return !absent;
}

#endif /* MIT licence: see LICENSE. */
