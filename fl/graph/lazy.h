/* fl/graph/lazy.h - deferred execution: the list of calls of a thread, when it runs, and how */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_LAZY_H
#define FL_GRAPH_LAZY_H
#include "group.h"
#include "list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Deferred execution for this thread, until it is turned off or the scope ends: ops check their operands and
   return at once; their kernels run later, in the order of the program, with the same results bit by bit.
   They run before the host accesses a value that waits (fl_map, fl_item, ...) or writes one that a waiting
   call reads, before an eager op of any thread does, in fl_eval and fl_sync, when 1,024 calls, 64 MiB of
   results and 32 calls, or 64 MiB of dropped operands wait, and when the mode or the thread ends.
   Element-wise calls of 4,096 elements or more run in groups (group.h). What only data or memory can tell (an
   index out of range) becomes an error then: of whatever reads the value, or of fl_eval. Watchers, profiler
   and memory trace see calls when they run, one by one, in the module that made them. Backends with a `make`
   of their own stay eager. Also on at the start of a program with FL_MODE=lazy in the environment, if it has
   compiled fl.c or calls a function of fl_graph.h. Returns the previous setting. */
FL_API bool fl_lazy(bool on);
/* Runs the calls of this thread that wait. False, with an error, if one failed. */
FL_API bool fl_eval(void);
/* The calls of this thread that wait, valid until the next op. */
FL_API fl_graph_list fl_lazy_calls(void);
/* A pass receives each list before it runs, and may change it: replace a call's op, operands or arguments, or
   remove the call (op FL_OP_NONE with fn NULL). False after fl_fail: later passes are left out, the calls
   run, and whatever ran the list fails with the error. A graph whose calls a pass changes is never ready. */
typedef bool (*fl_graph_pass)(fl_graph_list *l, void *user);
/* Sets the passes of all threads, at most 8, run in this order; n 0: none. No list may run meanwhile. */
FL_API bool fl_graph_use(const fl_graph_pass *passes, void *const *users, int n);
/* Runs fn(user) in its place among the deferred calls: a collective, a read of data. Immediately if nothing
   is recorded. fn returns false after fl_fail. */
FL_API bool fl_graph_host(bool (*fn)(void *user), void *user);

/* Internal to fl/graph. */
#define FL__LAZY ((uint64_t)1 << 42) /* of fl_flags */
enum { FL__ERROR_TEXT = 1024 /* longest text of an error */ };
/* This thread's list with the taker installed; NULL after fl_fail. */
FL_PRIVATE fl__list *fl__list_begin(const char *fn);
FL_PRIVATE void fl__list_lock(fl__list *l);
FL_PRIVATE void fl__list_unlock(fl__list *l);
/* Runs the calls of l, under its lock, each value dropped after its last use; what else holds stays as it is
   until fl__list_release, which also empties l. o: their order, NULL: as they are. False after fl_fail if a
   call failed whose error nobody would see with a value, or (all) if any did. */
FL_PRIVATE bool fl__list_run(fl__list *l, bool all, const fl__order *o);
FL_PRIVATE void fl__list_release(fl__list *l);
FL_PRIVATE int fl__list_passes(void); /* number of passes that see each list */
/* Installed while this thread records a graph: hears of what the host does that a replay would not repeat.
   access: fl_access of t; t NULL: one of fl__unrepeatable. */
enum fl__unrepeatable { FL__RANDOM_NUMBER, FL__EAGER_CALL, FL__EVAL };
typedef struct fl__witness {
    void (*access)(const fl_tensor *t, int access, void *graph);
    void *graph;
} fl__witness;
FL_PRIVATE void fl__list_witness(const fl__witness *w);
/* The running of calls in this thread: its accesses are theirs and wait for nothing, ops that functions of
   the host call run at once, errors are not raised until the end, and the modules on the call stack are
   those that made the calls, not those that run them. */
typedef struct fl__list_run_state {
    fl_scope scope;
    fl_error_context around;     /* of what runs the calls */
    const fl__call_place *place; /* of the call that runs: its scopes are open */
    int64_t depth, hidden;
    bool replayed;               /* each place is a new frame, not the one that was recorded */
} fl__list_run_state;
FL_PRIVATE fl__list_run_state fl__list_run_begin(bool replayed);
FL_PRIVATE void fl__list_run_end(fl__list_run_state *r);
/* Ends the scopes of places that p is not in, and opens those of p. */
FL_PRIVATE void fl__place_change(fl__list_run_state *r, const fl__call_place *p);
#ifndef __cplusplus
/* Before and after c runs. */
static inline void fl__call_enter(fl__list_run_state *r, const fl_graph_call *c) {
    if (c->place != r->place) fl__place_change(r, c->place);
    fl__place.fn = c->composed;
    if (c->file) fl_site_push(c->file, c->line);
}
static inline void fl__call_leave(const fl_graph_call *c) {
    if (c->file) fl_site_pop(c);
    fl__place.fn = NULL;
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_LAZY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_LAZY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_LAZY_IMPL
#define FL_GRAPH_LAZY_IMPL
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FL__WAITING_CALLS = 1024, FL__WAITING_VALUES = 8 * FL__WAITING_CALLS, FL__WAITING_BYTES = 64 << 20,
       FL__GROUPED_CALLS = 32, FL__GROUPED_ELEMENTS = 4096, FL__GROUPED_BYTES = 32 << 10,
       FL__PASSES = 8 };

static fl__list *fl__lists; /* atomic; lists are only added: a thread takes one that an ended thread left */

static _Thread_local struct {
    fl__list *mine;
    int running;           /* times that fl__list_running has begun */
    const fl_taker *taker; /* of this thread, while it runs calls */
    const fl__witness *witness;
} fl__deferred;

static struct {
    fl_graph_pass fn[FL__PASSES];
    void *user[FL__PASSES];
    int n; /* atomic */
} fl__passes;

FL_PRIVATE void fl__list_lock(fl__list *l) {
    while (__atomic_exchange_n(&l->busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

FL_PRIVATE void fl__list_unlock(fl__list *l) {
    __atomic_store_n(&l->busy, 0, __ATOMIC_RELEASE);
}

/* ---- running ---- */

FL_PRIVATE fl__list_run_state fl__list_run_begin(bool replayed) {
    fl_quiet(+1);
    if (!fl__deferred.running++) fl__deferred.taker = fl_take_calls(NULL);
    fl__list_run_state r = {.scope = fl_scope_begin(), .around = fl__place, .replayed = replayed};
    fl__place = (fl_error_context){0};
    fl_site_push(NULL, 0);
    r.depth = fl_scope_depth();
    r.hidden = fl__places_hide(r.depth);
    return r;
}

FL_PRIVATE void fl__list_run_end(fl__list_run_state *r) {
    fl_site_pop(NULL);
    fl_scope_end(&r->scope);
    fl__places_hide(r->hidden);
    fl__place = r->around;
    if (!--fl__deferred.running) fl_take_calls(fl__deferred.taker);
    fl_quiet(-1);
}

/* Opens the scopes from r->place, which is above p, to p. */
static void fl__place_open(fl__list_run_state *r, const fl__call_place *p) {
    if (p == r->place) return;
    fl__place_open(r, p->outer);
    if (r->place == p->outer && fl__scope_at(&p->at, r->replayed ? 0 : p->number).depth_ > 0) r->place = p;
}

FL_PRIVATE FL__COLD void fl__place_change(fl__list_run_state *r, const fl__call_place *p) {
    const fl__call_place *common = r->place, *q = p;
    while (common != q)
        if (common && (!q || common->depth >= q->depth)) common = common->outer;
        else q = q->outer;
    if (r->place != common)
        fl_scope_end(&(fl_scope){r->depth + (common ? common->depth : 0) + 1});
    r->place = common;
    fl__place_open(r, p);
}

/* Owns the text of the error of a buffer that could not be made: b->tag. */
static void fl__failed_put(fl_mem_manager *m, fl_buffer *b) {
    (void)m;
    fl_heap_free(b->tag);
}
static bool fl__failed_get(fl_mem_manager *m, fl_buffer *b, const fl_mem_info *info) {
    return (void)m, (void)b, (void)info, false;
}
static fl_mem_manager fl__failed = {.name = "failed", .get = fl__failed_get, .put = fl__failed_put};

static bool fl__failed_restore(fl_buffer *b) {
    return fl__fail_again(b->tag ? b->tag : "out of memory", false);
}

/* Marks an output whose call failed: mapping its buffer fails with the same text. */
static void fl__value_failed(fl_graph_value *v) {
    fl_buffer *b = v->buffer;
    v->failed = true;
    if (!v->made || v->constant) return;
    if (b->ptr || b->pageable) b->manager->put(b->manager, b);
    const size_t n = fl_error() ? strlen(fl_error()) + 1 : 0;
    b->ptr = NULL;
    b->manager = &fl__failed;
    b->tag = n ? fl_heap_alloc(n) : NULL;
    if (b->tag) memcpy(b->tag, fl_error(), n);
    b->restore = fl__failed_restore;
    b->state = FL_LAZY;
    __atomic_store_n(&b->pins_, -1, __ATOMIC_RELEASE);
    b->pageable = true; /* so that slots map it */
}

/* Gives a value its memory before the first call that uses it. */
static bool fl__value_make(const fl_graph_call *c, int v, const fl_tensor *t, fl_graph_value *value);

static inline bool fl__value_arrive(const fl_graph_call *c, int v, const fl_tensor *t,
                                    fl_graph_value *value) {
    if (v < 0 || !value[v].made || value[v].failed || value[v].buffer->state != FL_LAZY) return true;
    return fl__value_make(c, v, t, value);
}

static bool fl__value_make(const fl_graph_call *c, int v, const fl_tensor *t, fl_graph_value *value) {
    fl_mem_info info = {.device = value[v].buffer->device, .stream = value[v].buffer->stream,
                        .step = fl_mem_step_now()};
    if (c) {
        info.op = fl_op_name(c->call.op);
        info.ndim = t->ndim;
        info.shape = t->shape;
        info.lifetime = fl__call_lifetime(c->state);
    }
    return fl__buffer_arrive(value[v].buffer, &info);
}

/* True if c reads the value of operand m by that handle alone, and does not write it. */
static bool fl__is_only_view(const fl_graph_call *c, int m) {
    for (int k = 0; k < c->call.n_out; k++)
        if (c->value[k] == c->value[4 + m]) return false;
    for (int k = 0; k < c->call.n_in; k++)
        if (k != m && c->value[4 + k] == c->value[4 + m]) return false;
    return true;
}

/* Lets outputs of c, entry i of the order, have the memory of inputs that die in it, so that a group needs no
   more memory than its calls did. Returns the bits of those inputs, which must forget their memory then. */
static uint32_t fl__outputs_steal(fl_graph_list *l, const fl_graph_call *c, int i, const fl__order *o) {
    uint32_t stolen = 0;
    for (int k = 0; o->run[i] < 0 && k < c->call.n_out; k++) {
        const fl_graph_value *y = &l->value[c->value[k]];
        for (int m = 0; m < c->call.n_in; m++) {
            const fl_graph_value *x = &l->value[c->value[4 + m]];
            if (!y->made || y->failed || x->failed || stolen >> m & 1 ||
                !(o->group[-1 - o->run[i]]->shares[k] >> m & 1) || o->last[c->value[4 + m]] != i ||
                !fl__is_only_view(c, m) || !fl__same_handle(c->call.in[m], c->call.out[k]) ||
                !fl__buffer_steal(y->buffer, x->buffer))
                continue;
            stolen |= 1u << m;
            break;
        }
    }
    return stolen;
}

static bool fl__call_run(fl_graph_list *l, const fl_graph_call *c) {
    if (!c->call.op) return !c->fn || c->fn(c->user);
    for (int i = 0; i < c->call.n_in; i++) {
        const int v = c->value[4 + i];
        if (v < 0) continue;
        const fl_graph_value *value = &l->value[v];
        if (value->failed && value->buffer->manager == &fl__failed) return fl__failed_restore(value->buffer);
        if (value->failed)
            return fl_fail("fl_%s: a call that writes an operand in place has failed",
                           fl_op_name(c->call.op));
        if (!fl__value_arrive(c, v, c->call.in[i], l->value)) return false;
    }
    for (int i = 0; i < c->call.n_out; i++)
        if (!fl__value_arrive(c, c->value[i], c->call.out[i], l->value)) return false;
    return c->fn ? c->fn(c->user) : fl_call_run_taken(&c->call, c->state);
}

/* Drops value v if entry i of the order is the last to use it, and nothing else holds it. */
static inline void fl__drop_if_last(fl_graph_list *l, int v, int i, const fl__order *o) {
    if (v < 0) return;
    fl_graph_value *value = &l->value[v];
    if ((o ? o->last[v] : value->last) != i || !value->buffer ||
        __atomic_load_n(&value->buffer->refs_, __ATOMIC_ACQUIRE) != FL__WAITED_FOR)
        return;
    fl__buffer_wait(value->buffer, false);
    value->buffer = NULL;
}

/* What depends on c fails with its error. */
static void fl__call_failed(fl_graph_list *l, const fl_graph_call *c) {
    for (int i = 0; i < c->call.n_out; i++)
        if (c->value[i] >= 0) fl__value_failed(&l->value[c->value[i]]);
}

FL_PRIVATE bool fl__list_run(fl__list *l, bool all, const fl__order *o) {
    fl__grouped_call made;
    char first[FL__ERROR_TEXT], pending[FL__ERROR_TEXT];
    *first = *pending = 0;
    const bool raised = fl__error_is_raised();
    if (fl_error()) snprintf(pending, sizeof pending, "%s", fl_error());
    fl_error_clear();
    fl__list_run_state r = fl__list_run_begin(l != fl__deferred.mine);
    bool ok = true;
    for (int i = 0; ok && i < __atomic_load_n(&fl__passes.n, __ATOMIC_ACQUIRE); i++)
        ok = fl__passes.fn[i](&l->l, fl__passes.user[i]);
    if (!ok) snprintf(first, sizeof first, "%s", fl_error() ? fl_error() : "fl_graph_use: a pass failed");
    fl_error_clear();
    for (int i = 0; i < (o ? o->n : l->l.n); i++) {
        const fl_graph_call *c = o ? fl__order_call(o, &l->l, i, &made) : &l->l.call[i];
        fl__call_enter(&r, c);
        const uint32_t stolen = o ? fl__outputs_steal(&l->l, c, i, o) : 0;
        const bool done = fl__call_run(&l->l, c);
        for (int m = 0; stolen >> m; m++)
            if (stolen >> m & 1) fl__buffer_forget(l->l.value[c->value[4 + m]].buffer);
        fl__call_leave(c);
        if (!done) {
            fl__call_failed(&l->l, c);
            bool seen = !all && c->call.op; /* with the values that it should have made */
            for (int k = 0; k < c->call.n_out; k++)
                if (c->value[k] >= 0) seen &= l->l.value[c->value[k]].made;
            if (!seen && !*first) snprintf(first, sizeof first, "%s", fl_error());
            ok &= seen;
            fl_error_clear();
        }
        for (int k = 0; k < c->call.n_out; k++) fl__drop_if_last(&l->l, c->value[k], i, o);
        for (int k = 0; k < c->call.n_in; k++) fl__drop_if_last(&l->l, c->value[4 + k], i, o);
    }
    for (int64_t i = 0; i < l->l.n_values; i++) { /* made, and used by no call */
        fl_graph_value *v = &l->l.value[i];
        if (v->buffer && v->first < 0 && v->buffer->refs_ > FL__WAITED_FOR &&
            !fl__value_arrive(NULL, (int)i, NULL, l->l.value))
            fl__value_failed(v), fl_error_clear();
    }
    fl__list_run_end(&r);
    fl_error_clear();
    if (*pending) fl__fail_again(pending, raised);
    else if (*first) fl__fail_again(first, false);
    return ok;
}

FL_PRIVATE int fl__list_passes(void) {
    return __atomic_load_n(&fl__passes.n, __ATOMIC_ACQUIRE);
}

FL_PRIVATE void fl__list_release(fl__list *l) {
    for (int64_t i = 0; i < l->l.n_values; i++)
        if (l->l.value[i].buffer) fl__buffer_wait(l->l.value[i].buffer, false);
    fl__list_clear(l);
}

static bool fl__list_flush(fl__list *l, bool all) {
    if (!l->l.n && !l->l.n_values) return true;
    l->flushes++;
    const bool large = l->bytes + l->others >= FL__GROUPED_BYTES && !fl__list_passes() && !fl__is_watched();
    fl__order *o = large ? fl__order_new(&l->l, FL__GROUPED_ELEMENTS, true) : NULL;
    const bool ok = fl__list_run(l, all, o);
    fl__order_free(o);
    fl__list_release(l);
    return ok;
}

/* Gives value `at`, which no call uses, its memory. It waits no more, unless it is a constant of a graph. */
static bool fl__value_for_host(fl__list *l, int at) {
    fl_graph_value *v = &l->l.value[at];
    if (!fl__value_arrive(NULL, at, NULL, l->l.value)) return false;
    v->constant = true;
    if (l->graph) return true;
    l->bytes -= v->bytes;
    fl__buffer_wait(v->buffer, false);
    v->buffer = NULL;
    if (at == l->l.n_values - 1) l->l.n_values--;
    return true;
}

/* fl__run_waiting: runs the lists in which an access to b must wait for calls, all if b is NULL. A value that
   was made for the host, which no call uses, gets its memory alone. */
static bool fl__lists_await(fl_buffer *b, bool write) {
    bool ok = true;
    if (fl__deferred.running) return true; /* recording has seen to what comes before */
    for (fl__list *l = __atomic_load_n(&fl__lists, __ATOMIC_ACQUIRE); l; l = l->next) {
        fl__list_lock(l);
        const int at = b ? fl__list_find(l, b) : -1;
        fl_graph_value *v = at < 0 ? NULL : &l->l.value[at];
        if (!b) {
            ok &= fl__list_flush(l, true);
        } else if (v && v->made && v->first < 0) {
            if (!v->constant) ok &= fl__value_for_host(l, at);
        } else if (v && ((v->made && !v->constant) || v->writes || write)) {
            ok &= fl__list_flush(l, false);
        }
        fl__list_unlock(l);
    }
    return ok;
}

/* ---- recording ---- */

/* Runs other lists whose calls must come before a call of l, which reads or writes b. */
static bool fl__others_run(const fl__list *l, fl_buffer *b, bool write) {
    bool ok = true;
    if (!b || !fl__is_waited_for(b)) return true;
    for (fl__list *o = __atomic_load_n(&fl__lists, __ATOMIC_ACQUIRE); o; o = o->next) {
        if (o == l) continue;
        fl__list_lock(o);
        const int at = fl__list_find(o, b);
        const fl_graph_value *v = at < 0 ? NULL : &o->l.value[at];
        if (v && ((v->made && !v->constant) || v->writes || write)) ok &= fl__list_flush(o, false);
        fl__list_unlock(o);
    }
    return ok;
}

/* True if calls of other lists wait for b; under l's lock. */
static inline bool fl__others_wait(const fl__list *l, const fl_buffer *b) {
    if (!b || !fl__is_waited_for(b)) return false;
    return __atomic_load_n(&b->refs_, __ATOMIC_ACQUIRE) >= 2 * FL__WAITED_FOR || fl__list_find(l, b) < 0;
}

/* Runs what other lists must run before c. */
static FL__COLD bool fl__others_run_for(const fl__list *l, const fl_call *c) {
    bool ok = true;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) ok &= fl__others_run(l, c->out[i]->buffer, true);
    for (int i = 0; i < c->n_in; i++) ok &= c->in[i]->weak || fl__others_run(l, c->in[i]->buffer, false);
    return ok;
}

static void fl__witness_access(const fl_tensor *t, int access) {
    if (fl__deferred.witness) fl__deferred.witness->access(t, access, fl__deferred.witness->graph);
}

static bool fl__is_recording(void) {
    return fl_flags() & FL__LAZY || fl__deferred.witness;
}

/* The mode has ended with its scope: what waits runs, and calls are taken no more, unless a scope ends that
   sets the mode again. */
static bool fl__lazy_ended(fl__list *l) {
    if (!fl__flags_return(FL__LAZY)) fl_take_calls(NULL);
    fl__list_lock(l);
    const bool ok = fl__list_flush(l, true);
    fl__list_unlock(l);
    return ok;
}

/* Bytes of operands that nothing but l holds any more. */
static int64_t fl__list_held(fl__list *l) {
    int64_t bytes = 0;
    l->others = 0;
    for (int64_t i = 0; i < l->l.n_values; i++) {
        const fl_graph_value *v = &l->l.value[i];
        const int refs = v->buffer ? __atomic_load_n(&v->buffer->refs_, __ATOMIC_ACQUIRE) : 0;
        if (!v->made && refs == FL__WAITED_FOR) bytes += v->bytes;
    }
    return bytes;
}

/* Runs l if enough waits. */
static bool fl__list_make_room(fl__list *l) {
    const bool full = l->l.n >= FL__WAITING_CALLS || l->l.n_values >= FL__WAITING_VALUES ||
                      (l->bytes >= FL__WAITING_BYTES && l->l.n >= FL__GROUPED_CALLS) ||
                      (l->others >= FL__WAITING_BYTES / 4 && fl__list_held(l) >= FL__WAITING_BYTES);
    return !full || l->graph || fl__list_flush(l, false);
}

static fl_taken fl__lazy_call(const fl_call *c, void *user) {
    fl__list *l = user;
    if (!fl__is_recording()) return fl__lazy_ended(l) ? FL_DECLINED : FL_FAILED;
    bool plain = true, others = false;
    fl__list_lock(l);
    for (int i = 0; i < c->n_out; i++) {
        if (!c->out[i]) continue;
        plain &= !fl_backend_at(c->out[i]->backend)->make;
        others |= fl__others_wait(l, c->out[i]->buffer);
    }
    for (int i = 0; i < c->n_in; i++) {
        plain &= c->in[i]->weak || c->in[i]->buffer;
        others |= !c->in[i]->weak && fl__others_wait(l, c->in[i]->buffer);
    }
    bool ok = true;
    if (__atomic_load_n(&fl__defers_nothing, __ATOMIC_RELAXED) && !l->graph) {
        plain = false;
        ok = fl__list_flush(l, true);
    }
    if (others) {
        fl__list_unlock(l); /* no thread holds one list and waits for another */
        ok = fl__others_run_for(l, c) && ok;
        fl__list_lock(l);
    }
    if (ok && !plain) {
        fl__list_unlock(l);
        return fl__witness_access(NULL, FL__EAGER_CALL), FL_DECLINED;
    }
    ok = ok && fl__list_make_room(l) && fl__list_add(l, c);
    fl__list_unlock(l);
    return ok ? FL_TAKEN : FL_FAILED;
}

static fl_taken fl__lazy_make(fl_tensor *t, size_t bytes, const fl_mem_info *info, void *user) {
    fl__list *l = user;
    if (!fl__is_recording()) return fl__lazy_ended(l) ? FL_DECLINED : FL_FAILED;
    fl__list_lock(l);
    const bool ok = fl__list_make_room(l) && fl__list_make(l, t, bytes, info);
    fl__list_unlock(l);
    return ok ? FL_TAKEN : FL_FAILED;
}

static bool fl__lazy_map(const fl_tensor *t, int access, void *user) {
    (void)user;
    fl__witness_access(t, access);
    return true;
}

/* The thread ends. */
static void fl__lazy_end(void *user) {
    fl__list *l = user;
    fl__list_lock(l);
    if (!fl__list_flush(l, true)) { /* no caller is left to fail */
        fl_log_message(FL_LOG_WARN, "deferred calls of a thread that ends: %s", fl_error());
        fl_error_clear();
    }
    fl__list_free(l);
    l->taker.call = NULL;
    fl__deferred.mine = NULL;
    fl__list_unlock(l);
    __atomic_store_n(&l->used, false, __ATOMIC_RELEASE);
}

/* A list that an ended thread left, or a new one. */
static fl__list *fl__list_get(void) {
    for (fl__list *l = __atomic_load_n(&fl__lists, __ATOMIC_ACQUIRE); l; l = l->next)
        if (!__atomic_exchange_n(&l->used, true, __ATOMIC_ACQ_REL)) return l;
    fl__list *l = fl_heap_alloc(sizeof *l);
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->used = true;
    l->next = __atomic_load_n(&fl__lists, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&fl__lists, &l->next, l, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {}
    return l;
}

FL_PRIVATE fl__list *fl__list_begin(const char *fn) {
    if (fl_in_parallel()) return fl_fail("%s: must not be called inside a task of fl_parallel", fn), NULL;
    fl__list *l = fl__deferred.mine ? fl__deferred.mine : fl__list_get();
    if (!l) return NULL;
    fl__deferred.mine = l;
    __atomic_store_n(&fl__run_waiting, fl__lists_await, __ATOMIC_RELAXED);
    l->taker = (fl_taker){fl__lazy_call, fl__lazy_make, fl__lazy_map, fl__lazy_end, l};
    const fl_taker *was = fl_take_calls(&l->taker);
    if (was && was != &l->taker) {
        fl_take_calls(was);
        return fl_fail("%s: this thread has a taker of its own (fl_take_calls)", fn), NULL;
    }
    return l;
}

FL_PRIVATE void fl__list_witness(const fl__witness *w) {
    fl__deferred.witness = w;
    fl__deferred.mine->graph = w;
}


/* ---- the surface ---- */

FL_API bool fl_lazy(bool on) {
    const uint64_t flags = fl_flags();
    const bool was = flags & FL__LAZY;
    if (on && !fl__list_begin("fl_lazy")) return fl_raise(), was;
    fl_set_flags(on ? flags | FL__LAZY : flags & ~FL__LAZY);
    if (was && !on) fl_eval();
    return was;
}

FL_API bool fl_eval(void) {
    fl__list *l = fl__deferred.mine;
    if (!l || fl__deferred.running) return true;
    fl__witness_access(NULL, FL__EVAL);
    fl__list_lock(l);
    const bool ok = fl__list_flush(l, true);
    fl__list_unlock(l);
    return ok || fl_raise();
}

FL_API fl_graph_list fl_lazy_calls(void) {
    fl__list *l = fl__deferred.mine;
    if (!l) return (fl_graph_list){0};
    fl__list_lock(l);
    fl__list_roles(&l->l);
    const fl_graph_list waiting = l->l;
    fl__list_unlock(l);
    return waiting;
}

FL_API bool fl_graph_use(const fl_graph_pass *passes, void *const *users, int n) {
    if (n < 0 || n > FL__PASSES)
        return fl_err_false("fl_graph_use: got %d passes, expected 0 to %d", n, FL__PASSES);
    if (n && !fl_given(passes, "fl_graph_use", "the passes")) return false;
    for (int i = 0; i < n; i++) fl__passes.fn[i] = passes[i], fl__passes.user[i] = users ? users[i] : NULL;
    __atomic_store_n(&fl__passes.n, n, __ATOMIC_RELEASE);
    return true;
}

FL_API bool fl_graph_host(bool (*fn)(void *user), void *user) {
    if (!fl_given((const void *)(uintptr_t)fn, "fl_graph_host", "the function")) return fl_raise();
    fl__list *l = fl__deferred.mine;
    if (!l || !fl__is_recording() || fl__deferred.running) return fn(user);
    fl__list_lock(l);
    const bool ok = fl__list_add_host(l, fn, user);
    fl__list_unlock(l);
    return ok || fl_raise();
}

__attribute__((constructor)) static void fl__lazy_from_environment(void) {
    const char *mode = getenv("FL_MODE");
    if (mode && !strcmp(mode, "lazy")) fl_lazy(true);
    else if (mode && strcmp(mode, "eager"))
        fl_log_message(FL_LOG_WARN, "FL_MODE: got '%s', expected eager or lazy", mode);
}

#endif
#endif
/* MIT licence: see LICENSE. */
