/* fl/mem/trace.h - traces of buffer events, as JSON for timeline viewers */
#ifndef FL_MEM_TRACE_H
#define FL_MEM_TRACE_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts recording every get, put, map and restore of a buffer (pointer, bytes, op, step, time), up to
   max_events (0: one million); discards an earlier trace. False after fl_fail if max_events < 0. */
FL_API bool fl_mem_trace_begin(int64_t max_events);
/* Stops recording and writes the events in Chrome's trace format ("traceEvents"), for chrome://tracing or
   Perfetto. False after fl_fail; the events are then kept for another attempt. */
FL_API bool fl_mem_trace_save(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_TRACE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_TRACE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_TRACE_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_TRACE_IMPL
#include "thread_cache.h"
#include "errors.h"
#include "heap.h"
#include "text.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

FL_PRIVATE struct fl__trace fl__trace;

FL__COLD void fl__trace_add(fl__event_kind kind, const fl_buffer *b, const char *op) {
    const fl__thread *t = fl__this_thread();
    fl__event e = {.time = fl__nanoseconds(), .step = fl__load(&fl__step), .bytes = b->bytes};
    e.ptr = b->ptr;
    e.kind = kind;
    e.thread = t ? t->id : 0;
    snprintf(e.op, sizeof e.op, "%s", op ? op : "");
    pthread_mutex_lock(&fl__lock);
    bool fits = fl__trace.on && fl__trace.n < fl__trace.max &&
                fl__grow_raw(&fl__trace.events, &fl__trace.cap, fl__trace.n + 1, sizeof e);
    if (fits)
        fl__trace.events[fl__trace.n++] = e;
    else
        fl__trace.lost += fl__trace.on; /* out of space: drop events rather than fail */
    pthread_mutex_unlock(&fl__lock);
}

FL_API bool fl_mem_trace_begin(int64_t max_events) {
    if (max_events < 0)
        return fl_fail("fl_mem_trace_begin: max_events must not be negative, got %lld",
                       (long long)max_events);
    pthread_mutex_lock(&fl__lock);
    if (fl__trace.events) fl__heap_raw(fl__trace.events, 0);
    fl__trace.events = NULL;
    fl__trace.n = fl__trace.cap = fl__trace.lost = 0;
    fl__trace.max = max_events ? max_events : 1000000;
    __atomic_store_n(&fl__trace.on, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
    return true;
}

/* Writes an event as an instant event of its thread; gets and puts also as a counter, which viewers plot.
   Times are written as integers, because a decimal point would depend on the locale. */
static void fl__write_event(FILE *f, const fl__event *e, int64_t start, int64_t *in_use) {
    static const char *const names[] = {"get", "put", "map", "restore"};
    long long t = (long long)(e->time - start);
    fprintf(f,
            ",\n{\"name\":\"%s\",\"cat\":\"memory\",\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":%d,",
            names[e->kind], e->thread);
    fprintf(
        f, "\"ts\":%lld.%03lld,\"args\":{\"ptr\":\"0x%llx\",\"bytes\":%llu,\"step\":%lld,\"op\":\"",
        t / 1000, t % 1000, (unsigned long long)(uintptr_t)e->ptr, (unsigned long long)e->bytes,
        (long long)e->step);
    fl_strbuf_put_json(&(fl_strbuf){.file = f}, e->op);
    fprintf(f, "\"}}");
    if (e->kind > FL__PUT) return;
    *in_use += e->kind == FL__GET ? (int64_t)e->bytes : -(int64_t)e->bytes;
    fprintf(f,
            ",\n{\"name\":\"in "
            "use\",\"ph\":\"C\",\"pid\":1,\"ts\":%lld.%03lld,\"args\":{\"bytes\":%lld}}",
            t / 1000, t % 1000, (long long)*in_use);
}

/* Recording has stopped, so no lock is needed. */
static bool fl__trace_write(const char *path) {
    int64_t in_use = 0, start = fl__trace.n ? fl__trace.events[0].time : 0;
    FILE *f = fopen(path, "w");
    if (!f) return fl_fail("fl_mem_trace_save: cannot open %s: %s", path, strerror(errno));
    fprintf(f, "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{"
               "\"name\":\"fl\"}}");
    for (int64_t i = 0; i < fl__trace.n; i++)
        fl__write_event(f, &fl__trace.events[i], start, &in_use);
    fprintf(f, "\n],\"lost\":%lld}\n", (long long)fl__trace.lost);
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad)
        return fl_fail("fl_mem_trace_save: cannot write %s: %s", path, strerror(errno));
    return true;
}

FL_API bool fl_mem_trace_save(const char *path) {
    if (!path) return fl_fail("fl_mem_trace_save: path is NULL");
    pthread_mutex_lock(&fl__lock);
    bool begun = fl__trace.on || fl__trace.events;
    __atomic_store_n(&fl__trace.on, false, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
    if (!begun) return fl_fail("fl_mem_trace_save: no trace was begun: call fl_mem_trace_begin first");
    if (!fl__trace_write(path)) return false; /* keeps the events: saving to another path may work */
    fl__heap_raw(fl__trace.events, 0);
    fl__trace.events = NULL;
    fl__trace.n = fl__trace.cap = 0;
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
