/* fl/mem/errors.h - per-thread errors: recording, the handler, call context for error texts */
#ifndef FL_MEM_ERRORS_H
#define FL_MEM_ERRORS_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records an error of this thread (printf format), by convention "function: what is wrong: got, expected",
   or with file and offset. The first text is kept until fl_error_clear. Returns false, so that a kernel or a
   reader can end with `return fl_fail(...)`. Never calls the handler. */
FL_API bool fl_fail(const char *format, ...) FL_PRINTF(1, 2);
/* Calls the handler with the recorded error, once per error, unless this thread is quiet. Returns NULL.
   Functions that return a value handle end with it on failure. Because a handler may longjmp, the caller
   must hold no lock and leave no work half done. */
FL_API void *fl_raise(void);
/* fl_fail and fl_raise in one, for a mistake of the caller: fl_err_null returns NULL, fl_err_false false. */
FL_API void *fl_err_null(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
FL_API bool fl_err_false(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
/* Under FL_DEBUG: true, with an error, if p was freed by fl_object_free; the last few thousand objects are
   remembered. Otherwise false. fn is the public function, what the argument's role, for the error text. */
FL_API bool fl_is_freed(const void *p, const char *fn, const char *what);
/* False, after fl_fail("fn: what is NULL"), if p is NULL; under FL_DEBUG also if p was freed. */
static inline bool fl_given(const void *p, const char *fn, const char *what) {
#ifdef FL_DEBUG
    if (fl_is_freed(p, fn, what)) return false;
#endif
    return __builtin_expect(p != NULL, 1) || fl_fail("%s: %s is NULL", fn, what);
}
/* The pending error of this thread, NULL if none. Valid until fl_error_clear. */
FL_API const char *fl_error(void);
/* Clears the pending error. */
FL_API void fl_error_clear(void);
typedef void (*fl_error_fn)(const char *text, void *user);
/* Sets the error handler of the process. The default (fn NULL) prints the text and aborts, so that a
   debugger stops at the faulty call. If a handler returns, errors are reported by return values only; it may
   also longjmp. It runs on the calling thread, outside parallel regions, with no lock held. */
FL_API void fl_set_error_handler(fl_error_fn fn, void *user);
/* Adds delta (+1, later -1) to this thread's quiet count; while it is positive, fl_raise does not call the
   handler. For functions on files and data, which never abort, and for worker threads, which pass their
   error to the consumer. */
FL_API void fl_quiet(int delta);
/* Call context of this thread, used in error texts; scopes save and restore it (fl_tensor.h). */
typedef struct fl_error_context {
    const char *fn; /* the public function that was called: its name replaces that of an inner function */
    const void *of; /* the object that runs it, a module, described first in the text; NULL: none */
    void (*describe)(const void *of, char *buf, size_t size);
    const char *backward; /* name of the node whose gradient runs, `of` then is where it was recorded; or
                             NULL */
} fl_error_context;
/* Call site: the source line of the innermost call into fl on this thread; NULL and 0 unless the program was
   compiled with FL_TRACE_CALLS. Then each macro of build/calls.h wraps its call in push and pop; pop returns
   its argument. */
typedef struct fl_site {
    const char *file; /* a string literal */
    int line;
} fl_site;
FL_API fl_site fl_site_now(void);
FL_API void fl_site_push(const char *file, int line);
FL_API void *fl_site_pop(const void *result);
/* Writes the running module's description and the call site, "fl_nn_linear 'head' at train.c:42", into buf;
   "" if neither is known. Returns buf; NULL with an error if buf is NULL. */
FL_API char *fl_call_stack_text(char *buf, size_t size);
/* As fl_fail, with a text that has its context already. raised: the error handler has received it. Returns
   false. */
FL_PRIVATE bool fl__fail_again(const char *text, bool raised);
/* True if the error handler has received the pending error. */
FL_PRIVATE bool fl__error_is_raised(void);
#ifndef __cplusplus
FL__PRIVATE_VARIABLE _Thread_local fl_error_context fl__place;
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_ERRORS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_ERRORS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_ERRORS_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_ERRORS_IMPL
#include "shared.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fl__error_record {
    bool pending, raised;
    int quiet;
    char text[FL__TEXT];
} fl__error_record;

static _Thread_local fl__error_record fl__failure;
static struct {
    fl_error_fn fn;
    void *user;
} fl__handler; /* under fl__lock */

FL_PRIVATE _Thread_local fl_error_context fl__place;

/* text without a leading "fl_name: " or "fv_name: ". */
static const char *fl__after_name(const char *text) {
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    const bool ours = text[0] == 'f' && (text[1] == 'l' || text[1] == 'v') && text[2] == '_';
    return ours && text[n] == ':' && text[n + 1] == ' ' ? text + n + 2 : text;
}

/* Ring of the call sites of this thread's nested calls. It is a ring because a call that is left by longjmp
   never pops its entry. */
enum { FL__SITES = 32 };
static _Thread_local struct {
    fl_site site[FL__SITES];
    unsigned n;
} fl__calls;

FL_API fl_site fl_site_now(void) {
    return fl__calls.site[fl__calls.n % FL__SITES];
}
FL_API void fl_site_push(const char *file, int line) {
    fl__calls.site[++fl__calls.n % FL__SITES] = (fl_site){file, line};
}
FL_API void *fl_site_pop(const void *result) {
    fl__calls.n--;
    return (void *)(uintptr_t)result;
}

FL_API char *fl_call_stack_text(char *buf, size_t size) {
    if (!fl_given(buf, "fl_call_stack_text", "the buffer")) return NULL;
    const fl_site site = fl_site_now();
    *buf = 0;
    if (fl__place.of) fl__place.describe(fl__place.of, buf, size);
    const size_t n = strlen(buf);
    if (site.file && !fl__place.backward) /* the call site of fl_backward is not informative */
        snprintf(buf + n, size - n, "%sat %s:%d", n ? " " : "", site.file, site.line);
    return buf;
}

/* Adds the call context: "fl_sum: axis 3 ..." becomes "fl_nn_x 'path': fl_norm: axis 3 ...". Names from
   __func__ are shortened: fv_conv_opt becomes fl_conv. */
static void fl__add_error_context(char *text) {
    char was[FL__TEXT], of[FL__TEXT / 4] = "", fn[100] = "", pass[100] = "";
    const fl_error_context *p = &fl__place;
    const char *what = was;
    strcpy(was, text);
    if (p->of) p->describe(p->of, of, sizeof of);
    if (*of && !strncmp(was, of, strlen(of))) return; /* text already starts with it */
    if (p->backward && strncmp(was, "fl_backward: ", 13))
        snprintf(pass, sizeof pass, "backward of %.80s: ", p->backward);
    if (p->fn) {
        const size_t n = strlen(p->fn + 3), end = n > 4 && !strcmp(p->fn + n - 1, "_opt") ? 4 : 0;
        snprintf(fn, sizeof fn, "fl_%.*s: ", (int)(n - end), p->fn + 3);
        what = fl__after_name(was);
    }
    snprintf(text, FL__TEXT, "%s%s%s%s%.500s", of, *of ? ": " : "", pass, fn, what);
}

/* Keeps the first text while an error is pending. */
static void fl__record_failure(const char *format, va_list args) {
    fl__error_record *e = &fl__failure;
    if (e->pending) return;
    vsnprintf(e->text, sizeof e->text, format ? format : "unspecified error (the format is NULL)", args);
    if (fl__place.fn || fl__place.of) fl__add_error_context(e->text);
    const fl_site site = fl_site_now();
    const size_t n = strlen(e->text);
    if (site.file) snprintf(e->text + n, sizeof e->text - n, " (%s:%d)", site.file, site.line);
    e->pending = true;
    e->raised = false;
}

FL_API bool fl_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return false;
}

FL_PRIVATE bool fl__fail_again(const char *text, bool raised) {
    fl__error_record *e = &fl__failure;
    if (e->pending) return false;
    snprintf(e->text, sizeof e->text, "%s", text);
    e->pending = true;
    e->raised = raised;
    return false;
}

FL_PRIVATE bool fl__error_is_raised(void) {
    return fl__failure.raised;
}

FL_API void *fl_raise(void) {
    fl__error_record *e = &fl__failure;
    if (!e->pending || e->raised || e->quiet > 0 || fl__inside_task) return NULL;
    e->raised = true;
    pthread_mutex_lock(&fl__lock);
    fl_error_fn fn = fl__handler.fn;
    void *user = fl__handler.user;
    pthread_mutex_unlock(&fl__lock);
    if (fn) {
        fn(e->text, user);
        return NULL;
    }
    fflush(stdout); /* abort does not flush: output of the program into a pipe would be lost */
    fprintf(stderr, "fl: %s\n", e->text);
    fflush(stderr);
    abort(); /* the default handler: the only place where the library ends a program */
}

FL_API void *fl_err_null(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return fl_raise();
}

FL_API bool fl_err_false(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fl__record_failure(format, args);
    va_end(args);
    return fl_raise();
}

FL_API const char *fl_error(void) {
    return fl__failure.pending ? fl__failure.text : NULL;
}

FL_API void fl_error_clear(void) {
    fl__failure.pending = false;
    fl__failure.raised = false;
}

FL_API void fl_set_error_handler(fl_error_fn fn, void *user) {
    pthread_mutex_lock(&fl__lock);
    fl__handler.fn = fn;
    fl__handler.user = user;
    pthread_mutex_unlock(&fl__lock);
}

FL_API void fl_quiet(int delta) {
    fl__failure.quiet += delta;
}

#endif
#endif

/* MIT licence: see LICENSE. */
