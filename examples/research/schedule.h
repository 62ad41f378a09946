/* examples/research/schedule.h - a recorded training step that runs by a table of rows

   A step is a list of calls (fl_graph_calls). The values that its calls make are managed: each is generated
   by a call, and then preserved in memory until its last use, or evicted before: dropped, to be generated
   again, or paged to a file, to be fetched. A schedule is data: rows (time, action, value or call), where the
   time is the call of the program that is served. The runner follows the rows. It fails if an operand is not
   in memory, or if managed values exceed the budget.

   Same bits: random calls have their generator's counter in their arguments. A call is generated again only
   if it writes nothing in place, and before its operands are overwritten. Values that several calls write, as
   sums of gradients, and those made of them after they have gone, are paged or preserved. */
#ifndef RESEARCH_SCHEDULE_H
#define RESEARCH_SCHEDULE_H
#include "../../bench/models/model.h"

#include <limits.h>
#include <math.h>
static const double MIB = 1 << 20;

typedef enum action { GENERATE, DROP, PAGE, FETCH, ACTIONS } action;
static const char *const action_name[] = {"generate", "drop", "page", "fetch"};
typedef struct row {
    int time, what; /* what: a call of GENERATE, else a value */
    action action;
} row;
typedef struct schedule {
    row *row;
    int64_t n, cap, evicting; /* evicting: evictions that the planner did not foresee */
} schedule;

/* Model of seconds, so that schedules do not depend on the clock: of a multiply-add, of a byte that a call
   reads or writes, of a call, of a byte written to and read from the file. 2 cores of an AMD EPYC (Zen 3). */
static const double MAC_S = 1.2e-11, BYTE_S = 1.5e-10, CALL_S = 2e-6, WRITE_S = 6e-10, READ_S = 6e-10;

typedef struct step_value {
    int64_t bytes, at;      /* at: in the file */
    int maker, first, last; /* calls; last of a result of the step: INT_MAX */
    int writers, until;     /* until: last time at which it may be generated again */
    bool managed, once;     /* once: made by one call, and never written in place */
    int *use, uses;         /* calls that use it */
} step_value;

typedef struct step {
    fl_graph_list l;
    step_value *v;
    int (*value)[13];      /* of each call: its managed values, each once, ended by -1 */
    double *cost, seconds; /* of each call, and of all: by the model */
    int64_t *live, peak;   /* bytes of managed values at each call, and the most */
    int64_t made, fixed, largest; /* bytes: all, those that cannot be made again, the most of a call */
} step;

/* p with n elements; ends the program if there is no memory. */
static inline void *schedule_grow(void *p, int64_t n, size_t size) {
    if (!(p = realloc(p, (size_t)n * size))) fprintf(stderr, "schedule: out of memory\n"), exit(1);
    return p;
}

/* n zeros, and one more. */
static inline void *schedule_alloc(int64_t n, size_t size) {
    return memset(schedule_grow(NULL, n + 1, size), 0, (size_t)(n + 1) * size);
}

/* ---- the step ---- */

static inline bool step_writes(const fl_graph_call *c, int v) {
    for (int k = 0; k < c->call.n_out; k++)
        if (c->call.out[k] && c->value[k] == v) return true;
    return false;
}

static inline bool step_reads(const fl_graph_call *c, int v) {
    for (int k = 0; k < c->call.n_in; k++)
        if (c->value[4 + k] == v) return true;
    return false;
}

/* The first call from `from` on that uses v, or writes it (only_writes); INT_MAX: none. */
static inline int step_next(const step *s, int v, int from, bool only_writes) {
    for (int i = 0; i < s->v[v].uses; i++) {
        const int c = s->v[v].use[i];
        if (c >= from && (!only_writes || step_writes(&s->l.call[c], v))) return c;
    }
    return INT_MAX;
}

/* Sets `until` of what call c makes: the first time at which an operand is overwritten, or gone for good. */
static inline void step_limit(step *s, int c) {
    const fl_graph_call *g = &s->l.call[c];
    int until = INT_MAX;
    for (int k = 0; k < g->call.n_out; k++)
        if (g->call.out[k] && !s->v[g->value[k]].once) until = -1;
    for (int k = 0; k < g->call.n_in; k++) {
        if (g->value[4 + k] < 0) continue;
        const step_value *u = &s->v[g->value[4 + k]];
        const int written = u->once ? INT_MAX : step_next(s, g->value[4 + k], c + 1, true);
        const int gone = u->once && u->until > u->last ? u->until : u->managed ? u->last : INT_MAX;
        until = written < until ? written : until;
        until = gone < until ? gone : until;
    }
    for (int k = 0; k < g->call.n_out; k++)
        if (g->call.out[k]) s->v[g->value[k]].until = until;
}

/* True if v can be made again whenever it is used. */
static inline bool step_is_droppable(const step *s, int v) {
    return s->v[v].once && s->v[v].until >= s->v[v].last;
}

/* True if v is managed, and not too small to matter. */
static inline bool is_large(const step *s, int v) {
    return s->v[v].managed && 500 * s->v[v].bytes > s->peak;
}

static inline void step_add(step *s, int c, int v) {
    step_value *w = &s->v[v];
    if (w->uses && w->use[w->uses - 1] == c) return;
    w->use = schedule_grow(w->use, w->uses + 1, sizeof *w->use);
    w->use[w->uses++] = c;
    w->writers += step_writes(&s->l.call[c], v);
    int *at = s->value[c];
    while (w->managed && *at >= 0) at++;
    if (w->managed) *at = v;
}

static inline step step_new(fl_graph_list l) {
    step s = {.l = l, .v = schedule_alloc(l.n_values, sizeof *s.v)};
    s.cost = schedule_alloc(l.n, sizeof *s.cost);
    s.value = schedule_alloc(l.n, sizeof *s.value);
    s.live = schedule_alloc(l.n, sizeof *s.live);
    int64_t at = 0;
    for (int v = 0; v < l.n_values; v++) {
        const fl_graph_value *g = &l.value[v];
        s.v[v] = (step_value){.bytes = g->bytes, .at = at, .maker = -1, .first = g->first, .last = g->last,
                              .managed = g->role == FL_GRAPH_OUTPUT || g->role == FL_GRAPH_TEMPORARY};
        if (g->role == FL_GRAPH_OUTPUT) s.v[v].last = INT_MAX;
        at += g->bytes;
    }
    for (int c = 0; c < l.n; c++) {
        const fl_graph_call *g = &l.call[c];
        const fl_cost cost = fl_call_cost(&g->call);
        s.cost[c] = (double)cost.macs * MAC_S + (double)cost.bytes * BYTE_S + CALL_S;
        for (int k = 0; k < 13; k++) s.value[c][k] = -1;
        for (int k = 0; k < g->call.n_out; k++)
            if (g->call.out[k]) step_add(&s, c, g->value[k]);
        for (int k = 4; k < 4 + g->call.n_in; k++)
            if (g->value[k] >= 0) step_add(&s, c, g->value[k]);
    }
    for (int v = 0; v < l.n_values; v++) {
        step_value *w = &s.v[v];
        if (!w->managed || !w->uses) continue;
        w->maker = w->use[0];
        w->once = w->writers == 1 && !step_reads(&l.call[w->maker], v);
        for (int64_t t = w->first; t <= w->last && t < l.n; t++) s.live[t] += w->bytes;
        s.made += w->bytes;
    }
    for (int c = 0; c < l.n; c++) {
        int64_t bytes = 0;
        step_limit(&s, c);
        for (const int *v = s.value[c]; *v >= 0; v++) {
            bytes += s.v[*v].bytes;
            if (s.v[*v].maker == c && !step_is_droppable(&s, *v)) s.fixed += s.v[*v].bytes;
        }
        if (s.live[c] > s.peak) s.peak = s.live[c];
        if (bytes > s.largest) s.largest = bytes;
        s.seconds += s.cost[c];
    }
    return s;
}

static inline void step_free(step *s) {
    for (int v = 0; v < s->l.n_values; v++) free(s->v[v].use);
    free(s->v);
    free(s->cost);
    free(s->value);
    free(s->live);
}

/* ---- running a schedule ---- */

typedef struct runner {
    const step *s;
    fl_buffer **b; /* of each managed value; NULL: not in memory */
    FILE *file;
    int64_t budget, in_use, peak, sum[ACTIONS]; /* sum: calls of GENERATE, bytes of the others */
} runner;

static inline void runner_drop(runner *r, int v) {
    if (!r->b[v]) return;
    fl_buffer_drop(r->b[v]);
    r->b[v] = NULL;
    r->in_use -= r->s->v[v].bytes;
}

static inline bool runner_allocate(runner *r, int v) {
    const int64_t bytes = r->s->v[v].bytes;
    if (r->b[v]) return true;
    if (r->in_use + bytes > r->budget)
        return fl_fail("schedule: value %%%d exceeds the budget: got %lld bytes, expected at most %lld", v,
                       (long long)(r->in_use + bytes), (long long)r->budget);
    r->b[v] = fl_buffer_new((size_t)bytes, NULL);
    r->in_use += bytes;
    if (r->in_use > r->peak) r->peak = r->in_use;
    return r->b[v] != NULL;
}

/* Binds copies of call c's handles, of which equal ones stay equal, to the memory that values have now. */
static inline bool runner_call(runner *r, int c) {
    const fl_graph_call *g = &r->s->l.call[c];
    fl_call call = g->call;
    fl_tensor copy[12];
    for (int k = 0; k < 4 + g->call.n_in; k++) {
        const fl_tensor *t = k < 4 ? k < g->call.n_out ? g->call.out[k] : NULL : g->call.in[k - 4];
        if (!t) continue;
        fl_tensor **at = k < 4 ? &call.out[k] : &call.in[k - 4];
        for (int i = 0; k >= 4 && i < g->call.n_out; i++)
            if (t == g->call.out[i]) *at = call.out[i];
        const int v = g->value[k];
        if (v < 0 || *at != t) continue;
        copy[k] = *t;
        *at = &copy[k];
        if (!r->s->v[v].managed) {
            copy[k].buffer = r->s->l.value[v].buffer;
            continue;
        }
        if (k < 4 && !runner_allocate(r, v)) return false;
        if (!r->b[v]) return fl_fail("schedule: value %%%d, which call %d reads, is not in memory", v, c);
        copy[k].buffer = r->b[v];
    }
    return fl_call_run_taken(&call, g->state);
}

static inline bool runner_transfer(runner *r, int v, bool writes) {
    const step_value *w = &r->s->v[v];
    void *p = r->b[v] ? fl_buffer_map(r->b[v]) : NULL;
    if (!p) return fl_fail("schedule: value %%%d, which is paged, is not in memory", v);
    const size_t n = (size_t)w->bytes;
    bool ok = fseek(r->file, (long)w->at, SEEK_SET) == 0;
    ok = ok && (writes ? fwrite(p, 1, n, r->file) : fread(p, 1, n, r->file)) == n;
    fl_buffer_unmap(r->b[v]);
    return ok || fl_fail("schedule: cannot %s %zu bytes of the file", writes ? "write" : "read", n);
}

static inline bool runner_row(runner *r, row w) {
    bool ok = true;
    r->sum[w.action] += w.action == GENERATE ? 1 : r->s->v[w.what].bytes;
    if (w.action == GENERATE) ok = runner_call(r, w.what);
    if (w.action == FETCH) ok = runner_allocate(r, w.what) && runner_transfer(r, w.what, false);
    if (w.action == PAGE) ok = runner_transfer(r, w.what, true);
    if (w.action == DROP || w.action == PAGE) runner_drop(r, w.what);
    return ok;
}

/* ---- the state before a step ---- */

/* What a step changes: memory and contents of before. */
typedef struct before {
    fl_buffer **b;
    char **bytes;
    int64_t n;
    fl_rng rng;
} before;

static inline before before_new(fl_graph_list l) {
    before s = {.b = schedule_alloc(l.n_values, sizeof *s.b), .rng = fl_rng_state()};
    s.bytes = schedule_alloc(l.n_values, sizeof *s.bytes);
    for (int64_t i = 0; i < l.n_values; i++) {
        const fl_graph_value *v = &l.value[i];
        if (v->role != FL_GRAPH_PARAMETER && v->role != FL_GRAPH_STATE) continue;
        s.b[s.n] = fl_buffer_keep(v->buffer);
        s.bytes[s.n] = schedule_alloc(v->bytes, 1);
        memcpy(s.bytes[s.n++], fl_buffer_map(v->buffer), (size_t)v->bytes);
        fl_buffer_unmap(v->buffer);
    }
    return s;
}

/* Restores it (or not), and returns a hash of what was there. */
static inline uint32_t before_restore(const before *s, bool restores) {
    uint32_t hash = 0;
    for (int64_t i = 0; i < s->n; i++) {
        void *p = fl_buffer_map(s->b[i]);
        hash = fl_data_crc32c(hash, p, s->b[i]->bytes);
        if (restores) memcpy(p, s->bytes[i], s->b[i]->bytes);
        fl_buffer_unmap(s->b[i]);
    }
    if (restores) fl_rng_set_state(s->rng);
    return hash;
}

static inline void before_free(before *s) {
    for (int64_t i = 0; i < s->n; i++) {
        fl_buffer_drop(s->b[i]);
        free(s->bytes[i]);
    }
    free(s->b);
    free(s->bytes);
}

#endif /* MIT licence: see LICENSE. */
