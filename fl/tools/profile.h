/* fl/tools/profile.h - profiler: tables of ops and modules, and a trace for timeline viewers

    fl_profile_begin(0);
    for (int i = 0; i < 10; i++) step();
    fl_profile_print();                // ops and modules, slowest first
    fl_profile_save("step.json");      // for chrome://tracing or ui.perfetto.dev
    fl_profile_end();

   It is built on public hooks: fl_watch_calls reports all calls of all threads, fl_call_stack the module or
   backward function that they belong to. It costs nothing while no profile runs.

   Time    Wall time between a call and its return. The time of an op excludes the calls that its composition
           makes, which have their own rows, as have the gradients of formulas (relu_grad). The time of a
           module is that of the ops that it runs itself, without its children. Backward is the time in
           backward functions of ops recorded after fl_profile_begin, attributed to the module that recorded
           them. All other time, including optimizers, counts as forward.
   Async   Calls of asynchronous backends return before the work is done, so their time is that of submission.
           .sync = true waits after each call and so measures its work, but prevents overlap. A backend that
           times its work by device events adds slices with fl_profile_add.
   Lists   Deferred calls (fl_lazy) count when they run; those that wait run before a profile begins, and
           before its tables or trace are written.
   Work    By the cost model of fl/tools/cost.h. The share of peak is relative to a matrix product and a copy
           that are timed when the profile begins, or to the peaks in the options. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TOOLS_PROFILE_H
#define FL_TOOLS_PROFILE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_profile_opts {
    fl_opts_guard guard_;
    double peak_flops, peak_bytes; /* peak rates per second; 0: measured; FL_ZERO: no shares */
    bool sync;                  /* wait after each call */
    int64_t (*now)(void *user); /* clock in nanoseconds; NULL: CLOCK_MONOTONIC */
    void *user;                 /* passed to now */
    char _end;
} fl_profile_opts;
/* Starts the profile of the whole process; only one at a time. The trace has at most max_events events (0:
   one million); the tables count all. False after an error: one is running. */
#define fl_profile_begin(...) FL__PROFILE_BEGIN(__VA_ARGS__, ._end = 0)
#define FL__PROFILE_BEGIN(max_events, ...) \
    fl_profile_begin_opt(max_events, FL_LITERAL(fl_profile_opts, __VA_ARGS__))
FL_API bool fl_profile_begin_opt(int64_t max_events, fl_profile_opts o);
/* Ends the profile and discards its data; no effect if none is running. */
FL_API void fl_profile_end(void);
/* Writes the tables of the running profile to buf. Returns the length as snprintf does; -1 after an error:
   none is running. */
FL_API int64_t fl_profile_format(char *buf, size_t size);
/* Prints the tables to stdout. False after an error. */
FL_API bool fl_profile_print(void);
/* Writes the trace so far as JSON (Chrome trace events), replacing the file atomically: per thread, modules
   and ops as nested slices, backward marked as such, with operations, bytes, shapes and call site
   (FL_TRACE_CALLS), and memory in use as a counter. The profile continues. False after fl_fail. */
FL_API bool fl_profile_save(const char *path);
/* Adds a slice to the track of that name, such as work of a device; times in nanoseconds of the same clock.
   False after an error: no profile is running. */
FL_API bool fl_profile_add(const char *track, const char *name, int64_t begin, int64_t end);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_PROFILE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TOOLS_PROFILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_PROFILE_IMPL
#define FL_TOOLS_PROFILE_IMPL
#include "../../fl_backend.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/linear.h"
#include "cost.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum fl__track { FL__OPS, FL__MODULES, FL__MEMORY, FL__DEVICES, FL__TRACKS } fl__track;
/* A row of a table: an op, a gradient of a formula, or a module. */
typedef struct fl__profile_row {
    char name[160], shapes[96]; /* shapes of the slowest call */
    int64_t calls, slowest, ns[2], flops, bytes; /* ns: forward, backward */
    bool put;                                    /* the row was written */
} fl__profile_row;
typedef struct fl__slice {
    int64_t begin, ns, flops, bytes;
    int row, thread; /* thread, for devices: the row that names the track */
    fl__track track;
    bool backward;
    fl_site site;
    char shapes[96];
} fl__slice;

static struct {
    int number;                /* number of the running profile, 0: none; atomic */
    pthread_mutex_t lock;      /* for all fields below */
    fl_profile_opts o;
    fl__profile_row *row[FL__TRACKS];
    int64_t n_row[FL__TRACKS], row_cap[FL__TRACKS];
    fl__slice *slice;
    int64_t n, cap, most, lost;
    int64_t start, sampled;     /* time of the last sample of memory in use; atomic */
    int begun, threads;
} fl__profile = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum { FL__FRAMES = 16, FL__OPEN = 16, FL__SAMPLE_NS = 50000 };
/* Running calls and modules of this thread. A frame left by longjmp is removed when a call starts at the
   same or an outer scope depth, because nested calls run in inner scopes. */
static _Thread_local struct {
    int profile, thread, n, n_open;
    bool backward;
    fl_profile_opts o; /* copy of the profile's options: a call may outlast the profile and see the next
                          one */
    struct {
        int64_t begin, inner, depth; /* inner: nanoseconds in nested calls */
        bool composed;
    } frame[FL__FRAMES];
    struct {
        int64_t number, slice; /* slice -1: the trace is full */
        int row;
    } open[FL__OPEN];
} fl__running;

static int64_t fl__profile_now(const fl_profile_opts *o) {
    struct timespec t;
    if (o->now) return o->now(o->user);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- rows and slices: under the lock ---- */

/* If out of memory, the profile drops rows and slices without an error. */
static bool fl__profile_grow(void *array, int64_t *cap, int64_t need, size_t size) {
    const bool failed = fl_error(), ok = fl_heap_grow(array, cap, need, size);
    if (!ok && !failed) fl_error_clear();
    return ok;
}

/* Index of the row of that name; -1 if out of memory. */
static int fl__profile_row_of(fl__track track, const char *name) {
    fl__profile_row **rows = &fl__profile.row[track];
    int64_t *n = &fl__profile.n_row[track];
    for (int64_t i = 0; i < *n; i++)
        if (!strncmp((*rows)[i].name, name, sizeof (*rows)->name - 1)) return (int)i;
    if (!fl__profile_grow(rows, &fl__profile.row_cap[track], *n + 1, sizeof **rows)) return -1;
    (*rows)[*n] = (fl__profile_row){.calls = 0};
    snprintf((*rows)[*n].name, sizeof (*rows)->name, "%s", name);
    return (int)(*n)++;
}

static int64_t fl__profile_add_slice(fl__slice s) {
    const bool fits = s.row >= 0 && fl__profile.n < fl__profile.most &&
                      fl__profile_grow(&fl__profile.slice, &fl__profile.cap, fl__profile.n + 1, sizeof s);
    if (fits) fl__profile.slice[fl__profile.n] = s;
    else fl__profile.lost++;
    return fits ? fl__profile.n++ : -1;
}

/* Opens slices for the running modules; those of the last call that no longer run are closed. */
static void fl__profile_open(void) {
    fl_call_frame place[FL__OPEN];
    const int n = fl_call_stack(place, FL__OPEN);
    const int64_t now = fl__profile_now(&fl__profile.o);
    int same = 0;
    while (same < n && same < fl__running.n_open && fl__running.open[same].number == place[same].number)
        same++;
    fl__running.n_open = same;
    fl__running.backward = n && place[n - 1].at.backward;
    for (; same < n; same++) {
        const fl_error_context *at = &place[same].at;
        char name[160] = "";
        at->describe(at->of, name, sizeof name);
        if (!*name) snprintf(name, sizeof name, "no module");
        const int row = fl__profile_row_of(FL__MODULES, name);
        if (row >= 0) fl__profile.row[FL__MODULES][row].calls += !at->backward;
        const fl__slice s = {.begin = now, .row = row, .thread = fl__running.thread, .track = FL__MODULES,
                             .backward = at->backward != NULL, .site = fl_site_now()};
        fl__running.open[fl__running.n_open].number = place[same].number;
        fl__running.open[fl__running.n_open].row = row;
        fl__running.open[fl__running.n_open++].slice = fl__profile_add_slice(s);
    }
}

static void fl__profile_shapes(const fl_call *c, char *buf, size_t size) {
    fl_strbuf t = {.buf = buf, .size = size};
    for (int i = 0; i < c->n_in; i++)
        if (!c->in[i]->weak) fl_strbuf_printf(&t, "%s%s", t.n ? " " : "", FL_SHAPE_TEXT(c->in[i]));
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) fl_strbuf_printf(&t, "%s%s%s", t.n ? " " : "", i ? "" : "-> ",
                                        FL_SHAPE_TEXT(c->out[i]));
}

static int fl__profile_op_row(const fl_call *c) {
    char name[100];
    const bool formula = c->op == FL_OP_grad1 || c->op == FL_OP_grad2;
    const fl_op op = formula ? ((const fl_grad_args *)c->args)->op : c->op;
    snprintf(name, sizeof name, "%s%s", fl_op_get_info(op)->name, formula ? "_grad" : "");
    return fl__profile_row_of(FL__OPS, name);
}

static void fl__profile_add_time(fl__track track, const fl__slice *s, int row, int64_t own) {
    if (row < 0) return;
    fl__profile_row *r = &fl__profile.row[track][row];
    r->ns[s->backward] += own;
    r->flops += s->flops;
    r->bytes += s->bytes;
    if (track == FL__MODULES) return;
    r->calls++;
    if (own <= r->slowest && *r->shapes) return;
    r->slowest = own;
    memcpy(r->shapes, s->shapes, sizeof r->shapes);
}

/* ---- call hooks ---- */

/* True if profile `number` is still running; under the lock its data then stays valid until the unlock. */
static bool fl__profile_is_running(int number) {
    return number && __atomic_load_n(&fl__profile.number, __ATOMIC_ACQUIRE) == number;
}

static void fl__profile_before(const fl_call *c, void *user) {
    const int number = __atomic_load_n(&fl__profile.number, __ATOMIC_ACQUIRE);
    const int64_t depth = fl_scope_depth();
    (void)c, (void)user;
    if (!number) return;
    while (fl__running.n && fl__running.frame[fl__running.n - 1].depth >= depth) fl__running.n--;
    if (fl__running.profile != number || !fl__running.n) {
        pthread_mutex_lock(&fl__profile.lock);
        if (!fl__profile_is_running(number)) {
            pthread_mutex_unlock(&fl__profile.lock);
            return;
        }
        if (fl__running.profile != number) {
            fl__running.profile = number;
            fl__running.o = fl__profile.o;
            fl__running.n = fl__running.n_open = 0;
            fl__running.thread = ++fl__profile.threads;
        }
        fl__profile_open();
        pthread_mutex_unlock(&fl__profile.lock);
    }
    if (fl__running.n == FL__FRAMES) return;
    const int i = fl__running.n++;
    fl__running.frame[i].depth = depth;
    fl__running.frame[i].inner = 0;
    fl__running.frame[i].composed = false;
    fl__running.frame[i].begin = fl__profile_now(&fl__running.o);
}

static void fl__profile_after(const fl_call *c, void *user) {
    const int64_t depth = fl_scope_depth();
    for (int i = 0; fl__running.o.sync && i < c->n_out; i++) fl_sync(c->out[i]);
    const int64_t now = fl__profile_now(&fl__running.o);
    (void)user;
    while (fl__running.n && fl__running.frame[fl__running.n - 1].depth > depth) fl__running.n--;
    const int i = fl__running.n - 1;
    if (i < 0 || fl__running.frame[i].depth != depth) return; /* it began before the profile */
    fl__running.n--;
    if (!fl__profile_is_running(fl__running.profile)) return;
    const int64_t begin = fl__running.frame[i].begin, own = now - begin - fl__running.frame[i].inner;
    fl__slice s = {.begin = begin, .ns = now - begin, .thread = fl__running.thread,
                   .backward = fl__running.backward, .site = fl_site_now()};
    const fl_cost cost = fl__running.frame[i].composed ? (fl_cost){0, 0, 0} : fl_call_cost(c);
    s.flops = cost.flops;
    s.bytes = cost.bytes;
    fl__profile_shapes(c, s.shapes, sizeof s.shapes);
    if (i) fl__running.frame[i - 1].inner += now - begin, fl__running.frame[i - 1].composed = true;
    const bool sample = now - __atomic_load_n(&fl__profile.sampled, __ATOMIC_RELAXED) >= FL__SAMPLE_NS;
    const int64_t in_use = sample ? fl_mem_stats_of(NULL).in_use : 0;
    pthread_mutex_lock(&fl__profile.lock);
    if (!fl__profile_is_running(fl__running.profile)) { /* ended meanwhile, with its rows and slices */
        pthread_mutex_unlock(&fl__profile.lock);
        return;
    }
    s.row = fl__profile_op_row(c);
    fl__profile_add_time(FL__OPS, &s, s.row, own);
    if (fl__running.n_open)
        fl__profile_add_time(FL__MODULES, &s, fl__running.open[fl__running.n_open - 1].row, own);
    fl__profile_add_slice(s);
    for (int k = 0; k < fl__running.n_open; k++) {
        const int64_t at = fl__running.open[k].slice;
        if (at >= 0) fl__profile.slice[at].ns = now - fl__profile.slice[at].begin;
    }
    if (sample) fl__profile_add_slice((fl__slice){.begin = now, .bytes = in_use, .track = FL__MEMORY});
    if (sample) __atomic_store_n(&fl__profile.sampled, now, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__profile.lock);
}

/* ---- begin and end ---- */

static fl_call_watcher fl__profile_watcher = {.before = fl__profile_before, .after = fl__profile_after};

/* Peak rate: operations per second of a matrix product, or bytes per second of a copy; the best of 5, 0 if
   out of memory. */
static double fl__profile_peak(fl_tensor *x, bool product) {
    const fl_profile_opts clock = {.now = NULL};
    double best = 0;
    for (int i = 0; x && i < 5; i++) {
        fl_scope s = fl_scope_begin();
        const int64_t begin = fl__profile_now(&clock);
        fl_tensor *y = product ? fl_matmul(x, x) : fl_clone(x);
        const double seconds = y && fl_sync(y) ? (double)(fl__profile_now(&clock) - begin) * 1e-9 : 0;
        const double n = (double)fl_numel(x), work = product ? 2 * n * sqrt(n) : 8 * n;
        if (seconds > 0 && work / seconds > best) best = work / seconds;
        fl_scope_end(&s);
    }
    return best;
}

FL_API bool fl_profile_begin_opt(int64_t max_events, fl_profile_opts o) {
    static int profiles;
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    fl_quiet(1);
    fl_scope s = fl_scope_begin();
    pthread_mutex_lock(&fl__profile.lock);
    const bool runs = fl__profile.begun;
    if (!runs) fl__profile.begun = ++profiles;
    pthread_mutex_unlock(&fl__profile.lock);
    if (!runs && !fl_error()) {
        if (o.peak_flops == 0 && !signbit(o.peak_flops))
            o.peak_flops = fl__profile_peak(fl_full(FL_SHAPE(512, 512), 1, FL_F32), true);
        if (o.peak_bytes == 0 && !signbit(o.peak_bytes))
            o.peak_bytes = fl__profile_peak(fl_full(FL_SHAPE(1 << 23), 1, FL_F32), false);
        fl_error_clear(); /* out of memory: no shares */
    }
    fl_scope_end(&s);
    fl_quiet(-1);
    if (runs) return fl_err_false("fl_profile_begin: a profile is running: call fl_profile_end first");
    pthread_mutex_lock(&fl__profile.lock);
    fl__profile.o = o;
    fl__profile.most = max_events > 0 ? max_events : 1000000;
    fl__profile.start = fl__profile_now(&o);
    __atomic_store_n(&fl__profile.sampled, fl__profile.start - FL__SAMPLE_NS, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__profile.lock);
    __atomic_store_n(&fl__profile.number, fl__profile.begun, __ATOMIC_RELEASE);
    fl_provenance_enable(1);
    fl_watch_calls(&fl__profile_watcher);
    return true;
}

FL_API void fl_profile_end(void) {
    if (!__atomic_exchange_n(&fl__profile.number, 0, __ATOMIC_ACQ_REL)) return;
    fl_unwatch_calls(&fl__profile_watcher);
    fl_provenance_enable(-1);
    pthread_mutex_lock(&fl__profile.lock);
    for (int t = 0; t < FL__TRACKS; t++) {
        fl_heap_free(fl__profile.row[t]);
        fl__profile.row[t] = NULL;
        fl__profile.n_row[t] = fl__profile.row_cap[t] = 0;
    }
    fl_heap_free(fl__profile.slice);
    fl__profile.slice = NULL;
    fl__profile.n = fl__profile.cap = fl__profile.lost = fl__profile.threads = fl__profile.begun = 0;
    pthread_mutex_unlock(&fl__profile.lock);
}

FL_API bool fl_profile_add(const char *track, const char *name, int64_t begin, int64_t end) {
    if (fl_is_null_arg("fl_profile_add", track) || fl_is_null_arg("fl_profile_add", name))
        return fl_raise() != NULL;
    pthread_mutex_lock(&fl__profile.lock);
    const bool runs = fl__profile.begun;
    const int thread = runs ? fl__profile_row_of(FL__DEVICES, track) : -1;
    if (thread >= 0)
        fl__profile_add_slice((fl__slice){.begin = begin,
                                     .ns = end - begin,
                                     .thread = thread,
                                     .track = FL__DEVICES,
                                     .row = fl__profile_row_of(FL__DEVICES, name)});
    pthread_mutex_unlock(&fl__profile.lock);
    return runs || fl_err_false("fl_profile_add: no profile is running: call fl_profile_begin first");
}

/* ---- tables ---- */

/* A rate, in units of 1e9 per second, and its share of the peak. */
static void fl__profile_put_rate(fl_strbuf *t, int64_t work, int64_t ns, double peak) {
    const double rate = ns ? (double)work / (double)ns : 0;
    if (!work) fl_strbuf_printf(t, "  %8s  %7s", "-", "-");
    else if (peak > 0) fl_strbuf_printf(t, "  %8.2f  %5.1f %%", rate, 1e11 * rate / peak);
    else fl_strbuf_printf(t, "  %8.2f  %7s", rate, "-");
}

static void fl__profile_put_rows(fl_strbuf *t, fl__track track, int64_t total) {
    fl__profile_row *rows = fl__profile.row[track];
    const int64_t n = fl__profile.n_row[track];
    int width = 6;
    for (int64_t i = 0; i < n; i++)
        if ((int)strlen(rows[i].name) > width) width = (int)strlen(rows[i].name);
    fl_strbuf_printf(t, "%-*s  %7s  %10s  %11s  %7s  %8s  %7s  %8s  %7s%s\n", width, track == FL__OPS ? "Op" :
                     "Module",
                     "Calls", "Forward ms", "Backward ms", "Share", "GFLOP/s", "of peak", "GB/s", "of peak",
                     track == FL__OPS ? "  Slowest ms" : "");
    for (int64_t i = 0; i < n; i++) rows[i].put = false;
    for (int64_t k = 0; k < n; k++) {
        fl__profile_row *r = NULL;
        for (int64_t i = 0; i < n; i++) /* the slowest row left, the first of equals */
            if (!rows[i].put && (!r || rows[i].ns[0] + rows[i].ns[1] > r->ns[0] + r->ns[1])) r = &rows[i];
        const int64_t ns = r->ns[0] + r->ns[1];
        r->put = true;
        fl_strbuf_printf(t, "%-*s  %7lld  %10.3f  %11.3f  %5.1f %%", width, r->name, (long long)r->calls,
                         (double)r->ns[0] * 1e-6, (double)r->ns[1] * 1e-6,
                         total ? 100 * (double)ns / (double)total : 0);
        fl__profile_put_rate(t, r->flops, ns, fl__profile.o.peak_flops);
        fl__profile_put_rate(t, r->bytes, ns, fl__profile.o.peak_bytes);
        if (track == FL__OPS) fl_strbuf_printf(t, "  %10.3f  %s", (double)r->slowest * 1e-6, r->shapes);
        fl_strbuf_printf(t, "\n");
    }
}

static bool fl__profile_put(fl_strbuf *t, const char *fn) {
    int64_t total = 0;
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    pthread_mutex_lock(&fl__profile.lock);
    const bool runs = fl__profile.begun;
    const fl__profile_row *ops = fl__profile.row[FL__OPS];
    for (int64_t i = 0; i < fl__profile.n_row[FL__OPS]; i++) total += ops[i].ns[0] + ops[i].ns[1];
    if (runs) {
        fl_strbuf_printf(t, "Profile: %.3f ms in ops, of %.3f ms; %d threads\n", (double)total * 1e-6,
                         (double)(fl__profile_now(&fl__profile.o) - fl__profile.start) * 1e-6, fl__profile.threads);
        fl__profile_put_rows(t, FL__OPS, total);
        fl__profile_put_rows(t, FL__MODULES, total);
        if (fl__profile.lost) fl_strbuf_printf(t, "The trace lacks %lld events\n",
                                               (long long)fl__profile.lost);
    }
    pthread_mutex_unlock(&fl__profile.lock);
    return runs || fl_err_false("%s: no profile is running: call fl_profile_begin first", fn);
}

FL_API int64_t fl_profile_format(char *buf, size_t size) {
    fl_strbuf t = {.buf = buf, .size = size};
    return fl__profile_put(&t, "fl_profile_format") ? t.n : -1;
}

FL_API bool fl_profile_print(void) {
    return fl__profile_put(&(fl_strbuf){.file = stdout}, "fl_profile_print");
}

/* ---- the trace ---- */

/* Microseconds, written as integers because a decimal point would depend on the locale. */
static void fl__profile_put_time(fl_strbuf *t, const char *name, int64_t ns) {
    fl_strbuf_printf(t, ",\"%s\":%s%lld.%03lld", name, ns < 0 ? "-" : "", llabs((long long)ns) / 1000,
                     llabs((long long)ns) % 1000);
}

static void fl__profile_put_slice(fl_strbuf *t, const fl__slice *s) {
    static const char *const kinds[] = {"op", "module", "memory", "device"};
    const int thread = s->track == FL__DEVICES ? 1000 + s->thread : s->thread;
    fl_strbuf_printf(t, ",\n{\"name\":\"");
    fl_strbuf_put_json(t, s->track == FL__MEMORY ? "memory in use" : fl__profile.row[s->track][s->row].name);
    fl_strbuf_printf(t, "\",\"cat\":\"%s%s\",\"ph\":\"%s\",\"pid\":1,\"tid\":%d", kinds[s->track],
                     s->backward ? ",backward" : "", s->track == FL__MEMORY ? "C" : "X", thread);
    fl__profile_put_time(t, "ts", s->begin - fl__profile.start);
    if (s->track != FL__MEMORY) fl__profile_put_time(t, "dur", s->ns);
    fl_strbuf_printf(t, ",\"args\":{\"bytes\":%lld", (long long)s->bytes);
    if (s->track == FL__OPS) fl_strbuf_printf(t, ",\"flops\":%lld,\"shapes\":\"%s\"", (long long)s->flops,
                                              s->shapes);
    if (s->backward) fl_strbuf_printf(t, ",\"pass\":\"backward\"");
    if (s->site.file) {
        fl_strbuf_printf(t, ",\"at\":\"");
        fl_strbuf_put_json(t, s->site.file);
        fl_strbuf_printf(t, ":%d\"", s->site.line);
    }
    fl_strbuf_printf(t, "}}");
}

static void fl__profile_put_trace(fl_strbuf *t, void *user) {
    (void)user;
    pthread_mutex_lock(&fl__profile.lock);
    fl_strbuf_printf(t, "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":"
              "{\"name\":\"fl\"}}");
    for (int64_t i = 0; i < fl__profile.n; i++) {
        const fl__slice *s = &fl__profile.slice[i];
        if (s->track == FL__DEVICES) {
            fl_strbuf_printf(t, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"",
                             1000 + s->thread);
            fl_strbuf_put_json(t, fl__profile.row[FL__DEVICES][s->thread].name);
            fl_strbuf_printf(t, "\"}}");
        }
        fl__profile_put_slice(t, s);
    }
    fl_strbuf_printf(t, "\n],\"lost\":%lld}\n", (long long)fl__profile.lost);
    pthread_mutex_unlock(&fl__profile.lock);
}

FL_API bool fl_profile_save(const char *path) {
    if (!path) return fl_fail("fl_profile_save: path is NULL");
    if (!__atomic_load_n(&fl__profile.number, __ATOMIC_ACQUIRE))
        return fl_fail("fl_profile_save: no profile is running: call fl_profile_begin first");
    if (!fl__await_all_calls()) return false;
    return fl_write_file_atomic("fl_profile_save", path, fl__profile_put_trace, NULL);
}

#endif
#endif
/* MIT licence: see LICENSE. */
