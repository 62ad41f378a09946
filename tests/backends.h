/* backends.h - a backend by name, for the programs that test any of them */
#ifndef BACKENDS_H
#define BACKENDS_H

#include "../fl.h"
#include <stdio.h>
#include <string.h>
#if defined(__has_include)
#if __has_include("../examples/extend/naive.h")
#include "../examples/extend/naive.h"
#define HAVE_NAIVE
#endif
#if __has_include("../examples/extend/recorder.h")
#include "../examples/extend/recorder.h"
#define HAVE_RECORDER
#endif
#if __has_include("../examples/extend/evictor.h")
#include "../examples/extend/evictor.h"
#define HAVE_EVICTOR
#endif
#endif

#include "../examples/extend/own_op.h"

static void quiet_errors(const char *text, void *user) {
    (void)text, (void)user;
}

#ifdef HAVE_EVICTOR
/* The cpu on a memory manager that pages all but a few operands to a file. */
static bool choose_evictor(void) {
    fl_mem_manager *m = evictor_new(8 << 20, "conformance.pages");
    if (m) fl_mem_use(m);
    return m != NULL;
}
#endif

/* Registers the backend by name and makes it the default; strict where it has all required slots.
   "evictor" is the cpu backend on the memory manager of that name. */
static bool choose_backend(const char *name) {
#ifdef HAVE_EVICTOR
    if (!strcmp(name, "evictor")) {
        if (!choose_evictor()) return false;
        name = "cpu";
    }
#endif
#ifdef HAVE_NAIVE
    if (!strcmp(name, "naive") && !fl_backend_use(fl_backend_naive(), NULL)) return false;
#endif
#ifdef HAVE_RECORDER
    if (!strcmp(name, "recorder") && !fl_backend_use(fl_backend_recorder(), NULL)) return false;
#endif
    if (!op_snake && !snake_register()) return false; /* an op of a user's is tested as ours are */
    if (fl_backend_index(name) < 0 || !fl_backend_set_default(name)) return false;
    bool complete = true;
    for (int i = 1; i < fl_op_count(); i++)
        if (fl_op_get_info((fl_op)i)->required && !fl_backend_has(fl_backend_default(), (fl_op)i))
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
