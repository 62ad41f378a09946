/* fl/tools/alive.h - live buffers and where they were allocated: finds memory leaks

    fl_alive_begin();
    for (int i = 0; i < 10; i++) step();
    fl_alive_print(); // lists the buffers that the steps have left, largest first
    fl_alive_end(); */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TOOLS_ALIVE_H
#define FL_TOOLS_ALIVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Starts recording each buffer with its shape, op, step (fl_mem_step), module and call site
   (FL_TRACE_CALLS), by a memory manager in front of the current one. False after an error. */
FL_API bool fl_alive_begin(void);
/* Stops recording new buffers: restores the previous manager. */
FL_API void fl_alive_end(void);
/* Lists the recorded buffers that are still alive: totals and the open scopes of this thread, then a line
   for all buffers that differ only in their step, most bytes first. Column Life: "lasting" was allocated as
   persistent (fl_persistent: parameters, optimizer state); "scope" inside a scope, so that it was kept since
   or its scope never ended; "root" outside of scopes. Returns the length as snprintf does; -1 after an
   error. */
FL_API int64_t fl_alive_format(char *buf, size_t size);
/* Prints it to stdout. False after an error. */
FL_API bool fl_alive_print(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_ALIVE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TOOLS_ALIVE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_ALIVE_IMPL
#define FL_TOOLS_ALIVE_IMPL
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FL__ALIVE_LISTS = 1 << 12 };
typedef struct fl__alive fl__alive;
struct fl__alive {
    const fl_buffer *buffer;
    fl_mem_manager *inner; /* allocated its memory */
    fl__alive *next;
    int64_t step, last;    /* first and last step of a line */
    int64_t n, bytes;
    char what[280];        /* life, op, shape and call context: the key of a line */
};
static fl__alive *fl__alive_of[FL__ALIVE_LISTS];
static pthread_mutex_t fl__alive_lock = PTHREAD_MUTEX_INITIALIZER;

static fl__alive **fl__alive_at(const fl_buffer *b) {
    fl__alive **at = &fl__alive_of[((uintptr_t)b >> 6) % FL__ALIVE_LISTS];
    while (*at && (*at)->buffer != b) at = &(*at)->next;
    return at;
}

static void fl__alive_describe(fl__alive *a, const fl_mem_info *info) {
    static const char *const lives[] = {"root", "root", "scope", "lasting"};
    char place[200];
    fl_shape s = {info->ndim, {0}};
    for (int i = 0; i < s.ndim && i < FL_MAX_DIMS; i++) s.dim[i] = info->shape[i];
    snprintf(a->what, sizeof a->what, "%-7s  %-12s  %-20s  %s", lives[info->lifetime & 3],
             info->op ? info->op : "-", info->shape ? FL_TEXT_OF(s) : "-",
             fl_call_stack_text(place, sizeof place));
}

/* The previous manager, in table.user: atomic, because a call of another thread may still be running here
   when the next fl_alive_begin writes it. */
static fl_mem_manager *fl__alive_inner(fl_mem_manager *self) {
    return __atomic_load_n(&self->user, __ATOMIC_ACQUIRE);
}

/* If a buffer cannot be recorded, it is delegated to the previous manager. */
static bool fl__alive_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    fl_mem_manager *inner = fl__alive_inner(self);
    const bool failed = fl_error();
    fl__alive *a = fl_heap_alloc(sizeof *a);
    if (!a && !failed) fl_error_clear();
    if (!a || !inner->get(inner, b, info)) {
        fl_heap_free(a);
        return !a && fl_mem_delegate(self, inner, b, info);
    }
    *a = (fl__alive){.buffer = b, .inner = inner, .step = info->step, .last = info->step, .n = 1,
                     .bytes = (int64_t)b->bytes};
    fl__alive_describe(a, info);
    pthread_mutex_lock(&fl__alive_lock);
    fl__alive **at = fl__alive_at(b);
    fl__alive *known = *at; /* of a buffer whose memory was reallocated */
    a->next = known ? known->next : NULL;
    *at = a;
    pthread_mutex_unlock(&fl__alive_lock);
    fl_heap_free(known);
    return true;
}

static void fl__alive_put(fl_mem_manager *self, fl_buffer *b) {
    pthread_mutex_lock(&fl__alive_lock);
    fl__alive **at = fl__alive_at(b), *a = *at;
    fl_mem_manager *inner = a ? a->inner : fl__alive_inner(self);
    if (a) *at = a->next;
    pthread_mutex_unlock(&fl__alive_lock);
    fl_heap_free(a);
    inner->put(inner, b);
}

static size_t fl__alive_trim(fl_mem_manager *self) {
    fl_mem_manager *inner = fl__alive_inner(self);
    return inner->trim ? inner->trim(inner) : 0;
}
static void fl__alive_stats(fl_mem_manager *self, fl_mem_stats *out) {
    *out = fl_mem_stats_of(fl__alive_inner(self));
}
static void fl__alive_reset_peak(fl_mem_manager *self) {
    fl_mem_stats_reset_peak(fl__alive_inner(self));
}

static fl_mem_manager fl__alive_manager = {.name = "alive", .get = fl__alive_get, .put = fl__alive_put,
                                           .trim = fl__alive_trim, .stats = fl__alive_stats,
                                           .reset_peak = fl__alive_reset_peak};

FL_API bool fl_alive_begin(void) {
    fl_mem_manager *m = &fl__alive_manager;
    if (fl_mem_current() == m)
        return fl_err_false("fl_alive_begin: recording is on already: call fl_alive_end first");
    __atomic_store_n(&m->user, (void *)fl_mem_current(), __ATOMIC_RELEASE);
    fl_mem_set_current(m);
    return true;
}

FL_API void fl_alive_end(void) {
    if (fl_mem_current() == &fl__alive_manager) fl_mem_set_current(fl__alive_inner(&fl__alive_manager));
}

static int fl__alive_by_text(const void *a, const void *b) {
    return strcmp(((const fl__alive *)a)->what, ((const fl__alive *)b)->what);
}
static int fl__alive_by_bytes(const void *a, const void *b) {
    const int64_t x = ((const fl__alive *)a)->bytes, y = ((const fl__alive *)b)->bytes;
    return x != y ? (x < y) - (x > y) : fl__alive_by_text(a, b);
}

/* Copies all records to *all; returns their number, -1 after an error. */
static int64_t fl__alive_all(fl__alive **all) {
    int64_t n = 0, cap = 0;
    bool ok = true;
    pthread_mutex_lock(&fl__alive_lock);
    for (int i = 0; ok && i < FL__ALIVE_LISTS; i++)
        for (const fl__alive *a = fl__alive_of[i]; a && ok; a = a->next)
            if ((ok = fl_heap_grow(all, &cap, n + 1, sizeof **all))) (*all)[n++] = *a;
    pthread_mutex_unlock(&fl__alive_lock);
    return ok ? n : -1;
}

static bool fl__alive_put_text(fl_strbuf *t) {
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    fl__alive *all = NULL;
    int64_t n = fl__alive_all(&all), lines = 0, bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += all[i].bytes;
    if (n >= 0)
        fl_strbuf_printf(t, "Alive: %lld bytes in %lld buffers; scopes open on this thread: %lld\n",
                         (long long)bytes,
                         (long long)n, (long long)fl_scope_depth());
    if (n > 0) qsort(all, (size_t)n, sizeof *all, fl__alive_by_text);
    for (int64_t i = 0; i < n; i++) { /* merge equal ones into one line */
        fl__alive *line = lines ? &all[lines - 1] : NULL;
        if (!line || strcmp(line->what, all[i].what)) {
            all[lines++] = all[i];
            continue;
        }
        line->n++;
        line->bytes += all[i].bytes;
        line->step = all[i].step < line->step ? all[i].step : line->step;
        line->last = all[i].last > line->last ? all[i].last : line->last;
    }
    if (lines) qsort(all, (size_t)lines, sizeof *all, fl__alive_by_bytes);
    if (lines)
        fl_strbuf_printf(t, "%12s  %7s  %15s  %-7s  %-12s  %-20s  %s\n", "Bytes", "Buffers", "Steps", "Life",
                         "Op",
                         "Shape", "Made");
    for (int64_t i = 0; i < lines; i++)
        fl_strbuf_printf(t, "%12lld  %7lld  %6lld - %6lld  %s\n", (long long)all[i].bytes,
                         (long long)all[i].n,
                         (long long)all[i].step, (long long)all[i].last, all[i].what);
    fl_heap_free(all);
    return n >= 0 || fl_raise();
}

FL_API int64_t fl_alive_format(char *buf, size_t size) {
    fl_strbuf t = {.buf = buf, .size = size};
    return fl__alive_put_text(&t) ? t.n : -1;
}

FL_API bool fl_alive_print(void) {
    return fl__alive_put_text(&(fl_strbuf){.file = stdout});
}

#endif
#endif
/* MIT licence: see LICENSE. */
