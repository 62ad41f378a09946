/* fl/graph/graph.h - static execution: a step that is recorded, kept and replayed */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_GRAPH_H
#define FL_GRAPH_GRAPH_H
#include "lazy.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A step of calls. What this thread calls between begin and end is recorded, runs at end, and is compared
   with the steps before: nothing is frozen, shapes, branches and numbers may change, and results are new
   tensors each time. A read by the host in between runs what waits and goes on. Where a backend can (CUDA),
   a round that agrees with the two before it in calls, numbers and operands is one launch. */
typedef struct fl_graph fl_graph;
FL_API fl_graph *fl_graph_new(void); /* NULL after an error */
FL_API void fl_graph_free(fl_graph *g);
/* False, with an error, if this thread records a graph already. */
FL_API bool fl_graph_begin(fl_graph *g);
/* Runs the recorded calls. False, with an error, if one failed. */
FL_API bool fl_graph_end(fl_graph *g);
/* True if the last two rounds were the same calls on the same tensors with the same numbers, so that a replay
   does what a further round would do. */
FL_API bool fl_graph_ready(const fl_graph *g);
/* Why it is not ready: what a replay could not repeat, with op, place in the program (FL_TRACE_CALLS) and
   values: "fl_mul at net.c:41: the number 0.1, then 0.09"; for what the host does, module and place of that
   too; "" if it is. */
FL_API const char *fl_graph_reason(const fl_graph *g);
/* Runs the calls of the step once more, without the program's code. It reads inputs, parameters and state
   where they lie, and writes parameters and state in place, as the step did; random ops and the process's
   generator move on by what a step takes. The step's results that are still referenced get their new values
   in place. Only in the thread that recorded. False, with an error, if it is not ready, fl_seed has changed
   the generator's key, an input has been freed, or a call failed. */
FL_API bool fl_graph_replay(fl_graph *g);
/* The calls of the latest round, valid until the next one; empty before. */
FL_API fl_graph_list fl_graph_calls(const fl_graph *g);
/* fl_graph_list_print of it. */
FL_API bool fl_graph_print(const fl_graph *g, FILE *f);

/* Internal to fl/graph. A graph that has l, made of the latest round of another graph, as its latest round,
   with a reference to each value that has a buffer, and is never ready: for that reason. l becomes empty.
   NULL after fl_fail. */
FL_PRIVATE fl_graph *fl__graph_of(const fl_graph *from, fl__list *l, const char *reason);
/* The generator before the latest round, and the blocks of random numbers that it takes. */
FL_PRIVATE fl_rng fl__graph_rng(const fl_graph *g, uint64_t *draws);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_GRAPH_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_GRAPH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_GRAPH_IMPL
#define FL_GRAPH_GRAPH_IMPL
#include "../tensor/rng.h"
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

enum { FL__PLANS = 8, FL__REASON = 300, FL__ARENAS = 8 };

/* A step of one structure: the calls of its latest round. A value's buffer has a reference of the plan, but
   for temporaries: those get memory of the plan at the first replay. If one backend has all calls and can
   launch them as one, a round can be a launch too, although its results are new tensors: then outputs have
   memory of the plan as well, and are copied after each launch. */
typedef struct fl__plan {
    fl__list list;
    fl_rng begin;
    uint64_t draws;   /* blocks of random numbers that a step takes */
    int rounds;       /* that agreed in all that a replay repeats */
    fl_buffer *arena[FL__ARENAS]; /* memory of values, one per device; none before the first replay */
    int n_arenas;
    bool bound, copies; /* its calls use that memory; for outputs too */
    fl__order *order; /* of the calls, in groups; NULL: as they are */
    bool grouped;     /* has been looked for */
    bool in_groups;   /* is how replays run */
    const fl_backend *launcher; /* that can launch the calls as one; NULL: none can */
    void *launch;               /* what it has recorded */
} fl__plan;

struct fl_graph {
    fl__plan *plan[FL__PLANS]; /* latest first */
    int n;
    fl__list *list; /* while it records */
    fl__witness witness;
    fl_rng begin;
    int64_t flushes;
    const void *thread;
    bool current; /* the last round made plan[0] */
    char reason[FL__REASON];
};

static _Thread_local struct {
    fl_graph *recording;
    void *planned; /* the address for the next planned buffer */
} fl__graphs;

/* ---- plans ---- */

/* Frees the memory of replays. */
static void fl__plan_unbind(fl__plan *p) {
    if (p->launch) p->launcher->replay(p->launcher, &p->launch, NULL);
    for (int64_t i = 0; i < p->list.l.n_values; i++) {
        fl_buffer_drop(p->list.l.value[i].planned);
        p->list.l.value[i].planned = NULL;
    }
    while (p->n_arenas) fl_buffer_drop(p->arena[--p->n_arenas]);
    p->bound = false;
}

/* Drops the references to what the calls use. */
static void fl__plan_drop(fl__plan *p) {
    fl__plan_unbind(p);
    for (int64_t i = 0; i < p->list.l.n_values; i++) fl_buffer_drop(p->list.l.value[i].buffer);
}

/* Drops the results, and the memory of replays unless the round to come may be a launch: it needs what an
   eager step needs. Inputs and constants stay, for the comparison with the next round. */
static void fl__plan_drop_results(fl__plan *p) {
    for (int64_t i = 0; i < p->list.l.n_values; i++) {
        fl_graph_value *v = &p->list.l.value[i];
        if (v->role != FL_GRAPH_OUTPUT) continue;
        fl_buffer_drop(v->buffer);
        v->buffer = NULL;
    }
    if (!p->launch || !p->copies) fl__plan_unbind(p);
}

static void fl__plan_free(fl__plan *p) {
    if (!p) return;
    fl__plan_drop(p);
    fl__order_free(p->order);
    fl__list_free(&p->list);
    fl_heap_free(p);
}

/* ---- comparing two rounds ---- */

/* Size of c's arguments before those of its generator, *after: offset behind it. */
static size_t fl__args_before_rng(const fl_graph_call *c, size_t *after) {
    const char *args = c->call.args;
    const fl_rng *rng = fl_op_rng(c->call.op, (void *)(uintptr_t)args);
    const size_t size = args ? fl_op_get_info(c->call.op)->args_size : 0;
    *after = rng ? (size_t)((const char *)(rng + 1) - args) : size;
    return rng ? (size_t)((const char *)rng - args) : size;
}

/* The same op on values of the same index and geometry, with the same arguments. */
static bool fl__same_call(const fl_graph_call *a, const fl_graph_call *b) {
    if (a->call.op != b->call.op || a->call.n_out != b->call.n_out || a->call.n_in != b->call.n_in ||
        a->state != b->state || a->fn != b->fn || a->user != b->user)
        return false;
    for (int i = 0; i < a->call.n_out; i++)
        if (a->value[i] != b->value[i] || !fl__same_handle(a->call.out[i], b->call.out[i])) return false;
    for (int i = 0; i < a->call.n_in; i++)
        if (a->value[4 + i] != b->value[4 + i] || !fl__same_handle(a->call.in[i], b->call.in[i]))
            return false;
    size_t after;
    const size_t n = fl__args_before_rng(a, &after);
    const char *x = a->call.args, *y = b->call.args;
    if (!x || !y) return x == y;
    return !memcmp(x, y, n) && !memcmp(x + after, y + after, fl_op_get_info(a->call.op)->args_size - after);
}

/* Index of the first call that differs; the number of calls if none does. */
static int64_t fl__first_difference(const fl_graph_list *a, const fl_graph_list *b) {
    int64_t i = 0;
    while (i < a->n && i < b->n && fl__same_call(&a->call[i], &b->call[i])) i++;
    return i;
}

static bool fl__same_list(const fl_graph_list *a, const fl_graph_list *b) {
    if (a->n != b->n || a->n_values != b->n_values || fl__first_difference(a, b) < a->n) return false;
    for (int64_t i = 0; i < a->n_values; i++)
        if (a->value[i].made != b->value[i].made || a->value[i].constant != b->value[i].constant)
            return false;
    return true;
}

static void fl__refuse(fl_graph *g, const fl_graph_call *c, const char *format, ...) FL_PRINTF(3, 4);
static void fl__refuse(fl_graph *g, const fl_graph_call *c, const char *format, ...) {
    if (g->reason[0]) return; /* the first reason stays */
    size_t n = 0;
    if (c) {
        fl_graph_call_text(c, g->reason, sizeof g->reason - 2);
        n = strlen(g->reason);
        n += (size_t)snprintf(g->reason + n, sizeof g->reason - n, ": ");
    }
    va_list args;
    va_start(args, format);
    vsnprintf(g->reason + n, sizeof g->reason - n, format, args);
    va_end(args);
}

/* Both rounds gave call c the same numbers: weak operands, and random numbers of the process's generator at
   the same distance from the start of the step; or numbers that the step has not taken from it, and the very
   same ones (an op that needs none has a generator of zeros). */
static void fl__compare_numbers(fl_graph *g, const fl__plan *p, const fl_graph_call *old,
                                fl_graph_call *c) {
    for (int i = 0; i < c->call.n_in; i++) {
        const fl_tensor *a = old->call.in[i], *b = c->call.in[i];
        if (a->weak && (memcmp(&a->f64, &b->f64, sizeof a->f64) || a->i64 != b->i64))
            fl__refuse(g, c, "the number %g, then %g", a->f64, b->f64);
    }
    const fl_rng *a = fl_op_rng(c->call.op, (void *)(uintptr_t)old->call.args);
    const fl_rng *b = fl_op_rng(c->call.op, (void *)(uintptr_t)c->call.args);
    if (!b) return;
    const bool of_step = b->key == g->begin.key &&
                         b->counter - g->begin.counter < fl_rng_state().counter - g->begin.counter;
    c->fixed_rng = !of_step && a->key == b->key && a->counter == b->counter;
    if (c->fixed_rng) return;
    if (b->key != g->begin.key || a->key != p->begin.key)
        fl__refuse(g, c, "random numbers of a generator of the program");
    else if (b->counter - g->begin.counter != a->counter - p->begin.counter)
        fl__refuse(g, c, "random numbers %llu, then %llu blocks after the start of the step",
                   (unsigned long long)(a->counter - p->begin.counter),
                   (unsigned long long)(b->counter - g->begin.counter));
}

/* The first call that uses v; NULL: none, or one that could not be recorded. */
static const fl_graph_call *fl__first_call(const fl_graph_list *l, const fl_graph_value *v) {
    return v->first >= 0 && v->first < l->n ? &l->call[v->first] : NULL;
}

/* The contents of a constant, which may be away if its manager pages; *copy: of those on a device. NULL after
   fl_fail. */
static const void *fl__constant_map(fl_buffer *b, void **copy) {
    const fl_device *d = b->device;
    const void *p = fl__buffer_map(b);
    if (!p || d->host) return p;
    *copy = fl_heap_alloc(b->bytes + 1);
    const bool ok = *copy && (!d->wait || d->wait(d, NULL, b->stream)) && d->copy(d, *copy, p, b->bytes);
    if (!ok) fl_buffer_unmap(b);
    return ok ? *copy : NULL;
}

static bool fl__same_bytes(fl_buffer *a, fl_buffer *b) {
    const bool failed = fl_error() != NULL;
    void *copy[2] = {NULL, NULL};
    if (a->bytes != b->bytes) return false;
    const void *x = fl__constant_map(a, &copy[0]), *y = fl__constant_map(b, &copy[1]);
    const bool same = x && y && !memcmp(x, y, a->bytes);
    if (x) fl_buffer_unmap(a);
    if (y) fl_buffer_unmap(b);
    for (int i = 0; i < 2; i++) fl_heap_free(copy[i]);
    if (!failed) fl_error_clear(); /* then they count as different */
    return same;
}

static void fl__compare_values(fl_graph *g, const fl_graph_list *old, const fl_graph_list *l) {
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *a = &old->value[i], *b = &l->value[i];
        const fl_graph_call *c = fl__first_call(l, b);
        if (b->constant && b->writes) fl__refuse(g, c, "the step writes into a constant of the program");
        if (b->constant && c && !fl__same_bytes(a->buffer, b->buffer))
            fl__refuse(g, c, "a constant that the program writes differs between two steps");
        if (!b->made && a->buffer != b->buffer)
            fl__refuse(g, c, "an operand is another tensor than in the step before: write into the same one "
                             "(fl_set_host, fl_assign)");
    }
}

/* Values that share memory in a replay are ordered by one stream. */
static void fl__compare_streams(fl_graph *g, const fl_graph_list *l) {
    int stream = -1;
    for (int64_t i = 0; i < l->n; i++) {
        const fl_graph_call *c = &l->call[i];
        if (!c->call.n_out || c->value[0] < 0 || !l->value[c->value[0]].device->wait) continue;
        if (stream >= 0 && stream != fl__call_stream(c->state))
            fl__refuse(g, c, "calls of the step are on two streams");
        stream = fl__call_stream(c->state);
    }
}

/* ---- replay ---- */

static bool fl__planned_get(fl_mem_manager *m, fl_buffer *b, const fl_mem_info *info) {
    (void)m, (void)info;
    b->ptr = fl__graphs.planned;
    return true;
}
static void fl__planned_put(fl_mem_manager *m, fl_buffer *b) { (void)m, b->ptr = NULL; }
static fl_mem_manager fl__planned = {.name = "planned", .get = fl__planned_get, .put = fl__planned_put};

/* The backend of all calls, if it can launch them as one; else NULL. */
static const fl_backend *fl__plan_launcher(const fl_graph_list *l) {
    const fl_backend *b = NULL;
    for (int64_t i = 0; i < l->n; i++) {
        const fl_call *c = &l->call[i].call;
        if (!c->op) return NULL;
        for (int k = 0; k < 4 + c->n_in; k++) {
            const fl_tensor *t = k < 4 ? k < c->n_out ? c->out[k] : NULL : c->in[k - 4];
            if (!t || t->weak) continue;
            const fl_backend *its = fl_backend_at(t->backend);
            if (!its->replay || !its->move || (b && b != its)) return NULL;
            b = its;
        }
    }
    return b;
}

/* Gives the planned values of a device offsets in one buffer; `value` is large enough for all. */
static bool fl__plan_arrange(fl__plan *p, const fl_device *d, void *stream, fl_plan_value *value) {
    fl_graph_list *l = &p->list.l;
    int n = 0;
    if (p->n_arenas == FL__ARENAS)
        return fl_fail("fl_graph_replay: the step has values on more than %d devices", FL__ARENAS);
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        if (v->offset < 0 || v->device != d) continue;
        value[n++] = (fl_plan_value){.bytes = v->bytes, .first = p->in_groups ? p->order->first[i] : v->first,
                                     .last = v->role == FL_GRAPH_OUTPUT ? (int)l->n :
                                             p->in_groups ? p->order->last[i] : v->last};
    }
    const int64_t bytes = fl_plan_memory(value, n);
    if (bytes < 0) return false;
    for (int64_t i = 0; i < l->n_values; i++)
        if (l->value[i].offset >= 0 && l->value[i].device == d) l->value[i].offset = value++->offset;
    /* else its bytes add to those that the recorded steps have left in the cache */
    if (d->manager && d->manager->trim) d->manager->trim(d->manager);
    else fl_mem_trim();
    const fl_mem_info info = {.device = d, .stream = stream, .op = "graph", .lifetime = 3};
    fl_buffer *arena = fl_buffer_new((size_t)bytes, &info);
    if (!arena || !fl_buffer_map(arena)) return fl_buffer_drop(arena), false;
    p->arena[p->n_arenas++] = arena;
    return true;
}

static bool fl__plan_has(const fl__plan *p, const fl_device *d) {
    for (int i = 0; i < p->n_arenas; i++)
        if (p->arena[i]->device == d) return true;
    return false;
}

/* Memory for the planned values. */
static bool fl__plan_allocate(fl__plan *p) {
    fl_graph_list *l = &p->list.l;
    fl_plan_value *value = fl_heap_alloc((size_t)(l->n_values + 1) * sizeof *value);
    bool ok = value != NULL;
    for (int64_t i = 0; i < l->n_values; i++) {
        fl_graph_value *v = &l->value[i];
        const bool planned = v->role == FL_GRAPH_TEMPORARY || (v->role == FL_GRAPH_OUTPUT && p->copies);
        v->offset = planned && (p->in_groups ? p->order->first[i] : v->first) >= 0 ? 0 : -1;
    }
    for (int64_t i = 0; ok && i < l->n_values; i++)
        if (l->value[i].offset >= 0 && !fl__plan_has(p, l->value[i].device))
            ok = fl__plan_arrange(p, l->value[i].device, l->value[i].stream, value);
    fl_heap_free(value);
    for (int64_t i = 0; ok && i < l->n_values; i++) {
        fl_graph_value *v = &l->value[i];
        if (v->offset < 0) continue;
        int at = 0;
        while (p->arena[at]->device != v->device) at++;
        fl__graphs.planned = (char *)p->arena[at]->ptr + v->offset;
        const fl_mem_info info = {.device = v->device};
        ok = (v->planned = fl_buffer_from(&fl__planned, (size_t)v->bytes, &info)) != NULL;
        if (ok) v->planned->stream = v->stream;
    }
    return ok;
}

/* Makes the calls' handles refer to the memory of replays, or (copies) of rounds that are launches. */
static bool fl__plan_bind(fl__plan *p, bool copies) {
    fl_graph_list *l = &p->list.l;
    const bool grouped = p->order && !fl__is_watched(); /* watchers see the calls of the program */
    const bool in_groups = grouped && fl__order_fits(p->order, l);
    if (p->bound && p->copies == copies && p->in_groups == in_groups) return true;
    fl__plan_unbind(p);
    p->copies = copies;
    p->launcher = fl__plan_launcher(l);
    p->in_groups = in_groups;
    if (!fl__plan_allocate(p)) return fl__plan_unbind(p), false;
    for (int64_t i = 0; i < l->n; i++) {
        const fl_graph_call *c = &l->call[i];
        for (int k = 0; k < 4 + c->call.n_in; k++) {
            fl_tensor *t = k < 4 ? k < c->call.n_out ? c->call.out[k] : NULL : c->call.in[k - 4];
            if (!t || t->weak) continue;
            const fl_graph_value *v = &l->value[c->value[k]];
            t->buffer = v->planned ? v->planned : v->buffer;
        }
    }
    return p->bound = true;
}

/* A handle of all bytes of b. */
static fl_tensor fl__whole_of(fl_buffer *b, int backend) {
    return (fl_tensor){.dtype = FL_U8, .backend = (uint8_t)backend, .ndim = 1, .shape = {(int64_t)b->bytes},
                       .stride = {1}, .buffer = b};
}

/* Copies outputs from the memory of replays to the buffers of p, or to those of another round's list. */
static bool fl__plan_copy_outputs(const fl__plan *p, const fl_graph_list *to) {
    const fl_graph_list *l = &p->list.l;
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        fl_buffer *b = to->value[i].buffer;
        if (v->role != FL_GRAPH_OUTPUT || !v->planned || !b || b->state != FL_RESIDENT) continue;
        const int backend = v->handle->backend;
        fl_tensor dst = fl__whole_of(b, backend), src = fl__whole_of(v->planned, backend);
        if (!p->launcher->move(p->launcher, &dst, &src))
            return fl_error() ? false : fl_fail("fl_graph: backend '%s' does not copy", p->launcher->name);
    }
    return true;
}

typedef struct fl__plan_rerun {
    fl__plan *p;
    fl_rng from;
    fl__list_run_state state;
} fl__plan_rerun;

/* Moves the random numbers of c, if it draws any, from those of p's round to those of this one. */
static void fl__call_draw(const fl__plan *p, const fl_graph_call *c, fl_rng from) {
    fl_rng *rng = fl_op_rng(c->call.op, (void *)(uintptr_t)c->call.args);
    if (rng && !c->fixed_rng) rng->counter += from.counter - p->begin.counter;
}

static bool fl__plan_calls(void *user) {
    fl__plan_rerun *r = user;
    fl__plan *p = r->p;
    bool ok = true;
    fl__grouped_call made;
    for (int i = 0; i < p->list.l.n; i++) fl__call_draw(p, &p->list.l.call[i], r->from);
    for (int i = 0; ok && i < (p->in_groups ? p->order->n : p->list.l.n); i++) {
        const fl_graph_call *c =
            p->in_groups ? fl__order_call(p->order, &p->list.l, i, &made) : &p->list.l.call[i];
        fl__call_enter(&r->state, c);
        ok = c->fn ? c->fn(c->user) : !c->call.op || fl_call_run_taken(&c->call, c->state);
        fl__call_leave(c);
    }
    p->begin.counter = r->from.counter;
    return ok;
}

/* Runs the calls of a plan that is bound, as if the generator were at `from` before them, and copies outputs
   that it has planned to `to`. */
static bool fl__plan_run(fl__plan *p, fl_rng from, const fl_graph_list *to) {
    fl__plan_rerun r = {p, from, fl__list_run_begin(true)};
    const fl_replay all = {fl__plan_calls, &r, from, p->draws};
    bool ok;
    if (!p->launcher) {
        ok = fl__plan_calls(&r);
    } else {
        fl_stream(fl__call_stream(p->list.l.call[0].state));
        ok = fl__is_watched() ? fl__plan_calls(&r) : p->launcher->replay(p->launcher, &p->launch, &all);
        ok = ok && fl__plan_copy_outputs(p, to);
    }
    fl__list_run_end(&r.state);
    return ok;
}

/* ---- recording ---- */

static void fl__graph_access(const fl_tensor *t, int access, void *graph) {
    static const char *const why[] = {"the host draws a random number",
                                      "a call runs at once, on a backend with storage of its own",
                                      "fl_eval was called in the step"};
    fl_graph *g = graph;
    char place[FL__REASON / 2];
    const char *sep = *fl_call_stack_text(place, sizeof place) ? ": " : "";
    if (!t) {
        fl__refuse(g, NULL, "%s%s%s", why[access], sep, place);
        return;
    }
    fl__list_lock(g->list); /* another thread may run it */
    const int v = t->buffer ? fl__list_find(g->list, t->buffer) : -1;
    const fl_graph_value *value = v < 0 ? NULL : &g->list->l.value[v];
    const bool unused = value && value->first < 0, reads = !(access & FL_WRITE);
    const bool repeats = value && value->made && (unused || (value->constant && reads));
    if (!repeats)
        fl__refuse(g, value ? fl__first_call(&g->list->l, value) : NULL,
                   "the host %s a tensor of shape %s in the step%s%s", access & FL_WRITE ? "writes" : "reads",
                   FL_SHAPE_TEXT(t), sep, place);
    fl__list_unlock(g->list);
}

FL_API fl_graph *fl_graph_new(void) {
    fl_graph *g = fl_heap_alloc(sizeof *g);
    if (!g) return fl_raise();
    memset(g, 0, sizeof *g);
    g->witness = (fl__witness){fl__graph_access, g};
    snprintf(g->reason, sizeof g->reason, "no step has been recorded");
    return g;
}

FL_PRIVATE fl_rng fl__graph_rng(const fl_graph *g, uint64_t *draws) {
    *draws = g->plan[0]->draws;
    return g->plan[0]->begin;
}

FL_PRIVATE fl_graph *fl__graph_of(const fl_graph *from, fl__list *l, const char *reason) {
    fl_graph *g = fl_graph_new();
    fl__plan *p = g ? fl_heap_alloc(sizeof *p) : NULL;
    if (!p) return fl_graph_free(g), NULL;
    memset(p, 0, sizeof *p);
    memcpy(&p->list, l, sizeof *l);
    *l = (fl__list){0};
    p->begin = fl__graph_rng(from, &p->draws);
    g->plan[g->n++] = p;
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    return g;
}

FL_API void fl_graph_free(fl_graph *g) {
    if (!g) return;
    if (g->list) {
        fl_err_null("fl_graph_free: the graph records: call fl_graph_end first");
        return;
    }
    for (int i = 0; i < g->n; i++) fl__plan_free(g->plan[i]);
    fl_heap_free(g);
}

FL_API bool fl_graph_begin(fl_graph *g) {
    if (!fl_given(g, "fl_graph_begin", "the graph")) return fl_raise();
    if (g->list || fl__graphs.recording)
        return fl_err_false("fl_graph_begin: %s records already: call fl_graph_end first",
                            g->list ? "this graph" : "a graph of this thread");
    fl__list *l = fl__list_begin("fl_graph_begin");
    if (!l || !fl_eval()) return fl_raise();
    if (g->n) fl__plan_drop_results(g->plan[0]);
    g->list = l;
    g->thread = &fl__graphs;
    g->begin = fl_rng_state();
    g->flushes = l->flushes;
    g->reason[0] = 0;
    fl__graphs.recording = g;
    fl__list_witness(&g->witness);
    return true;
}

/* The plan with these calls, moved to the front; else a new one, in place of the oldest. NULL after
   fl_fail. */
static fl__plan *fl__plan_of(fl_graph *g, const fl__list *l, bool *is_new) {
    int at = 0;
    while (at < g->n && !fl__same_list(&g->plan[at]->list.l, &l->l)) at++;
    if (!g->n) fl__refuse(g, NULL, "the step has been recorded once");
    else if (at || !g->current) {
        const int64_t differs = fl__first_difference(&g->plan[0]->list.l, &l->l);
        fl__refuse(g, differs < l->l.n ? &l->l.call[differs] : NULL,
                   "the calls differ from those of the step before");
    }
    fl__plan *p = at < g->n ? g->plan[at] : fl_heap_alloc(sizeof *p);
    if (!p) return NULL;
    if (at && g->n) fl__plan_unbind(g->plan[0]);
    *is_new = at == g->n;
    if (*is_new) {
        memset(p, 0, sizeof *p);
        if (g->n == FL__PLANS) fl__plan_free(g->plan[--at]);
        else g->n++;
    }
    memmove(&g->plan[1], &g->plan[0], (size_t)at * sizeof p);
    return g->plan[0] = p;
}

/* Makes the calls that have run the plan's; l goes on with the plan's memory. */
static void fl__plan_take(fl_graph *g, fl__plan *p, fl__list *l) {
    fl__list old = p->list;
    fl__plan_drop(p);
    fl__list_roles(&l->l);
    for (int64_t i = 0; i < l->l.n_values; i++) {
        fl_graph_value *v = &l->l.value[i];
        if (!v->buffer) continue;
        const bool unseen = v->role == FL_GRAPH_TEMPORARY || v->first < 0;
        if (!unseen && !v->constant) fl_buffer_keep(v->buffer);
        fl__buffer_wait(v->buffer, false);
        if (unseen) v->buffer = NULL;
    }
    memcpy(&p->list, l, offsetof(fl__list, flushes));
    memcpy(l, &old, offsetof(fl__list, flushes));
    fl__list_clear(l);
    p->begin = g->begin;
    p->draws = fl_rng_state().counter - g->begin.counter;
}

/* Constants outlive their last call: a replay reads them. */
static void fl__constants_hold(const fl_graph_list *l, bool hold) {
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        if (!v->constant || v->first < 0) continue;
        if (hold) fl_buffer_keep(v->buffer);
        else fl_buffer_drop(v->buffer);
    }
}

/* The order in groups of a round of p's calls, made when they come again; NULL: as they are. */
static const fl__order *fl__round_order(fl__plan *p, const fl__list *l) {
    if (fl__list_passes() || fl__is_watched()) return NULL;
    if (p->order && p->order->tables != fl__table_changes()) {
        fl__plan_unbind(p);
        fl__order_free(p->order);
        p->grouped = false;
    }
    if (!p->grouped) p->order = fl__order_new(&l->l, 0, true);
    p->grouped = true;
    return p->order && fl__order_fits(p->order, &l->l) ? p->order : NULL;
}

/* True if l, a round that agrees with p in all that a replay repeats, can be a launch of p's calls. */
static bool fl__round_fits(fl__plan *p, fl__list *l) {
    fl__list_roles(&l->l);
    bool fits = p->rounds >= 2 && !fl__list_passes() && !fl__is_watched() && fl__plan_launcher(&p->list.l);
    for (int64_t i = 0; fits && i < l->l.n_values; i++)
        fits = l->l.value[i].role == p->list.l.value[i].role || l->l.value[i].role == FL_GRAPH_TEMPORARY;
    const bool failed = fl_error() != NULL;
    if (fits && !fl__plan_bind(p, true)) {
        if (!failed) fl_error_clear(); /* there is no memory for a plan: call by call */
        return false;
    }
    return fits;
}

/* Runs a round as a launch of p's calls. Its outputs get memory of their own, and are the plan's from now. */
static bool fl__round_launch(fl__plan *p, fl__list *l, fl_rng begin) {
    fl_graph_value *mine = p->list.l.value;
    for (int64_t i = 0; i < l->l.n_values; i++) {
        fl_graph_value *v = &l->l.value[i];
        if (v->role != FL_GRAPH_OUTPUT) continue;
        const fl_mem_info info = {.device = v->device, .stream = v->stream, .step = fl_mem_step_now(),
                                  .op = "graph", .lifetime = 2};
        if (v->buffer->state == FL_LAZY && !fl__buffer_arrive(v->buffer, &info)) return false;
        fl_buffer_drop(mine[i].buffer);
        mine[i].buffer = fl_buffer_keep(v->buffer);
    }
    return fl__plan_run(p, begin, &l->l);
}

FL_API bool fl_graph_end(fl_graph *g) {
    if (!fl_given(g, "fl_graph_end", "the graph")) return fl_raise();
    if (!g->list) return fl_err_false("fl_graph_end: the graph does not record: call fl_graph_begin first");
    if (g->thread != &fl__graphs)
        return fl_err_false("fl_graph_end: another thread has called fl_graph_begin");
    fl__list *l = g->list;
    fl__list_witness(NULL);
    fl__graphs.recording = NULL;
    fl__list_lock(l);
    if (l->flushes != g->flushes) fl__refuse(g, NULL, "calls of the step ran before its end");
    bool is_new = true;
    const bool whole = l->flushes == g->flushes; /* nothing ran before the end */
    fl__plan *p = whole ? fl__plan_of(g, l, &is_new) : NULL;
    g->current = p != NULL;
    for (int64_t i = 0; p && !is_new && i < l->l.n; i++)
        fl__compare_numbers(g, p, &p->list.l.call[i], &l->l.call[i]);
    if (p && !is_new) fl__compare_values(g, &p->list.l, &l->l);
    if (p) fl__compare_streams(g, &l->l);
    const bool launches = p && !is_new && !g->reason[0] && fl__round_fits(p, l);
    if (!launches) fl__constants_hold(&l->l, true);
    const fl__order *order = p && !is_new && !launches ? fl__round_order(p, l) : NULL;
    const bool ok = launches ? fl__round_launch(p, l, g->begin)
                             : fl__list_run(l, true, order) && (p || !whole); /* without a plan too */
    if (launches) {
        fl__list_release(l);
        p->rounds = ok ? p->rounds + 1 : 0;
    } else if (p && ok) {
        p->rounds = g->reason[0] ? 1 : p->rounds + 1;
        fl__plan_take(g, p, l);
    } else {
        fl__constants_hold(&l->l, false);
        fl__list_release(l);
        if (p) p->rounds = 0;
    }
    if (!ok || !p) g->current = false;
    fl__list_unlock(l);
    g->list = NULL;
    return ok || fl_raise();
}

FL_API bool fl_graph_ready(const fl_graph *g) {
    return g && g->current && !g->list && g->plan[0]->rounds >= 2;
}

FL_API const char *fl_graph_reason(const fl_graph *g) {
    return !g ? "the graph is NULL" : g->reason;
}

FL_API fl_graph_list fl_graph_calls(const fl_graph *g) {
    return g && g->n ? g->plan[0]->list.l : (fl_graph_list){0};
}

FL_API bool fl_graph_print(const fl_graph *g, FILE *f) {
    const fl_graph_list l = fl_graph_calls(g);
    return fl_graph_list_print(&l, f);
}

/* ---- replay ---- */

/* Before a replay: nobody has freed what the step reads, and calls that wait for its values have run. */
static bool fl__plan_check(fl__plan *p) {
    const fl_graph_list *l = &p->list.l;
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        if (v->first < 0) continue;
        if (!fl__await_calls(v->buffer, v->made || v->writes)) return false;
        if (v->made || __atomic_load_n(&v->buffer->refs_, __ATOMIC_ACQUIRE) > 1) continue;
        char text[200];
        return fl_fail("fl_graph_replay: an input of %s has been freed",
                       fl_graph_call_text(&l->call[v->first], text, sizeof text));
    }
    return true;
}

FL_API bool fl_graph_replay(fl_graph *g) {
    static const char fn[] = "fl_graph_replay";
    if (!fl_given(g, fn, "the graph")) return fl_raise();
    if (!fl_graph_ready(g))
        return fl_err_false("%s: the graph is not ready: %s", fn, g->list ? "it records" : g->reason);
    if (g->thread != &fl__graphs) return fl_err_false("%s: another thread has recorded the graph", fn);
    fl__plan *p = g->plan[0];
    const fl_rng now = fl_rng_state();
    if (now.key != p->begin.key)
        return fl_err_false("%s: the generator has another key than when the step was recorded (fl_seed): "
                            "record it twice again", fn);
    if (!fl_eval() || !fl__plan_check(p) || !fl__plan_bind(p, false)) return fl_raise();
    fl_graph_list *l = &p->list.l;
    const bool ok = fl__plan_run(p, now, l);
    for (int64_t i = 0; i < l->n_values; i++) {
        fl_graph_value *v = &l->value[i];
        if (v->buffer && (v->writes || v->role == FL_GRAPH_OUTPUT))
            v->buffer->version += (uint32_t)v->writes + (v->role == FL_GRAPH_OUTPUT);
    }
    fl_rng_take(NULL, 2 * (int64_t)p->draws);
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
