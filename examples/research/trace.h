/* examples/research/trace.h - records the memory requests of a program, and replays them through allocators

   The recorder is a memory manager that notes op, shape, bytes, hint and life time of each buffer.

     trace t;
     fl_mem_manager manager = recorder_new(&t);
     fl_mem_manager *before = fl_mem_set_current(&manager);
     ... // fl_mem_step() at the start of each step; one thread (fl_set_threads(1)): the recorder has no lock
     fl_mem_set_current(before);
     recorder_end(&t); // after the last buffer was freed: t.r and t.event
     replay r = replay_new(&policy, &t); // policies: allocators.h
     figures f = replay_check(&r, false);
     trace_free(&t); */
#ifndef RESEARCH_TRACE_H
#define RESEARCH_TRACE_H
#include "../../fl_data.h"
#include "allocators.h"

#include <string.h>
#include <time.h>

/* ---- the recorder ---- */

enum { TRACE_MOST = 1 << 19 }; /* requests; more are refused as out of memory */

typedef struct request {
    int64_t bytes, get, put, step; /* get, put: when, as indices of events; step 0 is before the first one */
    int lifetime;                  /* the hint of fl_mem_info */
    char op[24], shape[64];
} request;

typedef struct trace {
    request *r;
    int64_t *event, n, n_events;  /* request i begins: i; ends: ~i */
    int64_t peak, peak_event;     /* most bytes in use, and when */
    int64_t first_step;           /* fl_mem_step_now at the start */
} trace;

static inline bool recorder_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    trace *t = self->user;
    if (b->device != fl_device_host()) return fl_mem_delegate(self, fl_mem_caching(), b, info);
    if (t->n == TRACE_MOST) return false;
    b->ptr = aligned_alloc(FL_ALIGN, (b->bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN);
    if (!b->ptr) return false;
    b->tag = (void *)(intptr_t)t->n;
    request *r = &t->r[t->n];
    *r = (request){.bytes = b->bytes ? (int64_t)b->bytes : 1, .get = t->n_events, .put = INT64_MAX,
                   .step = fl_mem_step_now() - t->first_step, .lifetime = info ? info->lifetime : 0};
    snprintf(r->op, sizeof r->op, "%s", info && info->op ? info->op : "-");
    for (int i = 0; info && info->shape && i < info->ndim; i++) {
        const size_t end = strlen(r->shape);
        snprintf(r->shape + end, sizeof r->shape - end, i ? "x%lld" : "%lld", (long long)info->shape[i]);
    }
    t->event[t->n_events++] = t->n++;
    return true;
}

static inline void recorder_put(fl_mem_manager *self, fl_buffer *b) {
    trace *t = self->user;
    const int64_t i = (intptr_t)b->tag;
    t->r[i].put = t->n_events;
    t->event[t->n_events++] = ~i;
    free(b->ptr);
}

/* A manager that records into t, which ends the program if there is no memory for it. */
static inline fl_mem_manager recorder_new(trace *t) {
    *t = (trace){.r = calloc(TRACE_MOST, sizeof *t->r), .event = calloc(2 * TRACE_MOST, sizeof *t->event),
                 .first_step = fl_mem_step_now()};
    if (!t->r || !t->event) fprintf(stderr, "recorder: out of memory\n"), exit(1);
    return (fl_mem_manager){.name = "recorder", .get = recorder_get, .put = recorder_put, .user = t};
}

/* Finds the peak; what still lives ends with the trace. */
static inline void recorder_end(trace *t) {
    int64_t in_use = 0;
    for (int64_t e = 0; e < t->n_events; e++) {
        const int64_t i = t->event[e];
        in_use += i >= 0 ? t->r[i].bytes : -t->r[~i].bytes;
        if (in_use > t->peak) t->peak = in_use, t->peak_event = e;
        if (i >= 0 && t->r[i].put == INT64_MAX) t->r[i].put = t->n_events;
    }
}

/* Appends a line for each request: name, step, op, shape, bytes, hint, get, put. */
static inline bool trace_write(const trace *t, const char *name, FILE *file) {
    for (const request *r = t->r; r < t->r + t->n; r++)
        fprintf(file, "%s\t%lld\t%s\t%s\t%lld\t%d\t%lld\t%lld\n", name, (long long)r->step, r->op, r->shape,
                (long long)r->bytes, r->lifetime, (long long)r->get, (long long)r->put);
    return !ferror(file);
}

static inline void trace_free(trace *t) {
    free(t->r);
    free(t->event);
}

/* ---- replays ---- */

typedef struct replay {
    policy p;
    const trace *t;
    block *plan;
    int64_t *match, range; /* of the plan */
} replay;

typedef struct figures {
    int64_t reserved, granted, errors; /* peak; at the trace's peak; blocks that are wrong */
    uint32_t hash;                     /* of all addresses */
    place *placed;                     /* address and bytes of each request; to be freed */
} figures;

/* A replay of t by p. With a plan of the first two steps, request k of a later step takes the place of
   request k of the step before the last. */
static inline replay replay_new(const policy *p, const trace *t) {
    replay r = {.p = *p, .t = t};
    if (!p->plan) return r;
    place *known = array_new(t->n, sizeof *known);
    int64_t n = 0, *first = array_new(t->r[t->n - 1].step + 2, sizeof *first);
    r.plan = array_new(t->n, sizeof *r.plan);
    r.match = array_new(t->n, sizeof *r.match);
    for (int64_t i = 0; i < t->n; i++) {
        const request *q = &t->r[i];
        r.match[i] = i;
        if (!i || q->step > q[-1].step) first[q->step] = i;
        if (p->plan > 1 && q->step > 2) {
            const int64_t k = first[q->step - 2] + i - first[q->step];
            r.match[i] = k < first[q->step - 1] ? r.match[k] : -1;
        } else {
            known[n++] = (place){.i = i, .bytes = up(q->bytes, p->round), .get = q->get, .put = q->put};
        }
    }
    r.range = heap_plan(known, n, r.plan);
    free(known);
    free(first);
    return r;
}

static inline void replay_free(replay *r) {
    free(r->plan);
    free(r->match);
}

static inline heap *replay_heap(const replay *r, int64_t budget) {
    return heap_new(&r->p, budget, r->t->n, r->plan, r->range, r->match);
}

/* Replays on a device of that many bytes; false if it is too small. ns: nanoseconds of a call, mean. */
static inline bool replay_passes(const replay *r, int64_t budget, double *ns) {
    const trace *t = r->t;
    heap *h = replay_heap(r, budget);
    bool ok = h->reserved <= budget;
    struct timespec a, b;
    timespec_get(&a, TIME_UTC);
    for (int64_t e = 0; ok && e < t->n_events; e++) {
        const int64_t i = t->event[e];
        if (i < 0) heap_put(h, ~i);
        else ok = heap_get(h, i, t->r[i].bytes);
    }
    timespec_get(&b, TIME_UTC);
    *ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)t->n_events;
    heap_free(h);
    return ok;
}

/* Replays on a device without end and checks that each block holds its request, is within what is reserved,
   and is disjoint from the live ones. fault: the request at the peak gets the address of request 0, which
   lives. */
static inline figures replay_check(const replay *r, bool fault) {
    const trace *t = r->t;
    heap *h = replay_heap(r, HEAP_NO_LIMIT);
    figures f = {.placed = array_new(t->n, sizeof *f.placed)};
    int64_t n = 0, granted = 0, *slot = array_new(t->n, sizeof *slot); /* of each request in live */
    place *live = array_new(t->n, sizeof *live);
    for (int64_t e = 0; e < t->n_events; e++) {
        const bool is_get = t->event[e] >= 0;
        const int64_t i = is_get ? t->event[e] : ~t->event[e];
        if (is_get) heap_get(h, i, t->r[i].bytes);
        const int64_t bytes = h->of[i]->bytes;
        granted += is_get ? bytes : -bytes;
        if (e == t->peak_event) f.granted = granted;
        if (!is_get) {
            heap_put(h, i);
            live[slot[i]] = live[--n];
            slot[live[n].i] = slot[i];
            continue;
        }
        const int64_t at = fault && e == t->peak_event ? h->of[0]->at : h->of[i]->at, end = at + bytes;
        f.errors += bytes < t->r[i].bytes || at < 0 || end > (h->top > h->reserved ? h->top : h->reserved);
        for (int64_t k = 0; k < n; k++) f.errors += at < live[k].at + live[k].bytes && live[k].at < end;
        slot[i] = n;
        live[n++] = f.placed[i] = (place){.i = i, .at = at, .bytes = bytes};
        f.hash = fl_data_crc32c(f.hash, &at, sizeof at);
    }
    f.reserved = h->peak;
    free(live);
    free(slot);
    heap_free(h);
    return f;
}

#endif /* MIT licence: see LICENSE. */
