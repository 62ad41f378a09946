/* fl/mem/errors.h - the error of each thread: recording, handing over, who is at work */
#ifndef FL_MEM_ERRORS_H
#define FL_MEM_ERRORS_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records a failure of this thread: printf format, "function: what, actual shapes or file and
   offset". The first text stays until fl_error_clear. Returns false, so that a slot or reader can
   end with `return fl_fail(...)`. Never calls the handler. */
FL_API bool fl_fail(const char *format, ...) FL_PRINTF(1, 2);
/* Hands a recorded failure to the handler, once, unless this thread is quiet. Returns NULL.
   Functions that return a value handle end their failures with it; nothing may be half-done and no
   lock held, because a handler may longjmp. */
FL_API void *fl_raise(void);
/* Both at once, for a mistake of the caller: fl_err_null ends functions that return a pointer (NULL),
   fl_err_false those that return a truth value (false). */
FL_API void *fl_err_null(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
FL_API bool fl_err_false(const char *format, ...) FL_PRINTF(1, 2) __attribute__((cold));
/* Under FL_DEBUG true, with an error, for an object that fl_object_free took: the last thousands are
   known. Else false. For functions that free objects. */
FL_API bool fl_is_freed(const void *p, const char *who, const char *what);
/* False for an argument that is NULL, after fl_fail: "who: what is NULL"; under FL_DEBUG also for one
   that was freed. */
static inline bool fl_given(const void *p, const char *who, const char *what) {
#ifdef FL_DEBUG
    if (fl_is_freed(p, who, what)) return false;
#endif
    return __builtin_expect(p != NULL, 1) || fl_fail("%s: %s is NULL", who, what);
}
/* The text of the pending error of this thread, NULL if there is none. Valid until
   fl_error_clear. */
FL_API const char *fl_error(void);
/* Ends the pending error. */
FL_API void fl_error_clear(void);
typedef void (*fl_error_fn)(const char *text, void *user);
/* Installs the process's error handler. The default (fn NULL) prints the text and aborts, so that a
   debugger stands on the faulty line. A handler that returns makes all errors return values; it may
   longjmp. It runs on the caller's thread, outside parallel regions, no lock held. */
FL_API void fl_on_error(fl_error_fn fn, void *user);
/* Adds delta (+1, then -1) to this thread's quiet count; above zero fl_raise leaves the handler
   alone. For functions about files and data, which never stop, and for worker threads, which carry
   their error to the consumer. */
FL_API void fl_quiet(int delta);
/* Who is at work on this thread, for the texts of its errors; scopes keep it (fl_tensor.h). */
typedef struct fl_error_place {
    const char *fn; /* the public function that was called: its name takes the place of an inner one's */
    const void *of; /* what runs it, a module, whose description comes first; NULL: nothing */
    void (*describe)(const void *of, char *buf, size_t size);
    const char
        *backward; /* name of the record whose backward runs: `of` is where that was made; NULL: none */
} fl_error_place;
/* The line of the program that made the innermost call on this thread, NULL and 0 if it was compiled without
   FL_TRACE_CALLS: then each call of build/calls.h pushes its line and pops it, as the one around it goes on
   behind its arguments. A pop gives back what it is given. */
typedef struct fl_site {
    const char *file; /* a literal */
    int line;
} fl_site;
FL_API fl_site fl_site_now(void);
FL_API void fl_site_push(const char *file, int line);
FL_API void *fl_site_pop(const void *result);
/* "fl_nn_linear 'head' at train.c:42": what describes the place of this thread, and the site; "" if nobody
   says so. Returns buf. */
FL_API char *fl_call_stack_text(char *buf, size_t size);
#ifndef __cplusplus
FL__PRIVATE_VARIABLE _Thread_local fl_error_place fl__place;
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

FL_PRIVATE _Thread_local fl_error_place fl__place;

/* text without the name of an fl_ or fv_ function in front. */
static const char *fl__after_name(const char *text) {
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    const bool ours = text[0] == 'f' && (text[1] == 'l' || text[1] == 'v') && text[2] == '_';
    return ours && text[n] == ':' && text[n + 1] == ' ' ? text + n + 2 : text;
}

/* The lines of the calls within calls of this thread. A call that is left by longjmp leaves its own behind,
   under those that come later: so they go round. */
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
    if (site.file && !fl__place.backward) /* that of fl_backward says nothing */
        snprintf(buf + n, size - n, "%sat %s:%d", n ? " " : "", site.file, site.line);
    return buf;
}

/* "fl_sum: axis 3 ..." becomes "fl_nn_x 'path': fl_norm: axis 3 ...". __func__ gave the name: fv_conv_opt
   is called fl_conv. */
static void fl__place_failure(char *text) {
    char was[FL__TEXT], of[FL__TEXT / 4] = "", fn[100] = "", pass[100] = "";
    const fl_error_place *p = &fl__place;
    const char *what = was;
    strcpy(was, text);
    if (p->of) p->describe(p->of, of, sizeof of);
    if (*of && !strncmp(was, of, strlen(of))) return; /* it says so itself */
    if (p->backward && strncmp(was, "fl_backward: ", 13))
        snprintf(pass, sizeof pass, "backward of %.80s: ", p->backward);
    if (p->fn) {
        const size_t n = strlen(p->fn + 3), end = n > 4 && !strcmp(p->fn + n - 1, "_opt") ? 4 : 0;
        snprintf(fn, sizeof fn, "fl_%.*s: ", (int)(n - end), p->fn + 3);
        what = fl__after_name(was);
    }
    snprintf(text, FL__TEXT, "%s%s%s%s%.500s", of, *of ? ": " : "", pass, fn, what);
}

/* The first text stays. */
static void fl__record_failure(const char *format, va_list args) {
    fl__error_record *e = &fl__failure;
    if (e->pending) return;
    vsnprintf(e->text, sizeof e->text, format ? format : "an error without a text", args);
    if (fl__place.fn || fl__place.of) fl__place_failure(e->text);
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
    fflush(stdout); /* abort does not: what the program printed into a pipe would be lost */
    fprintf(stderr, "fl: %s\n", e->text);
    fflush(stderr);
    abort(); /* the default handler: the only place where the library stops a program */
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

FL_API void fl_on_error(fl_error_fn fn, void *user) {
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
