/* fl/graph/open.h - a recorded step in fewer kinds of ops: each call replaced by its composition */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_OPEN_H
#define FL_GRAPH_OPEN_H
#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The latest round of g with every call replaced by its composition, down to the ops that each backend must
   have (CORE in fl_backend.h), which a program for something else than fl has to know. Calls of the ops named
   in `kept`, separated by spaces, stay; "formulas" stands for the ops that have a formula, their gradients
   and `formula`. NULL: none. Copies that only move a result to its place are left out. The result can be read
   and printed, not replayed; it holds what g holds, and is freed by fl_graph_free. NULL after an error: g is
   not ready (fl_graph_reason), or a call has no composition and is not CORE, runs a function of the host, or
   reads data while it is composed: the error names the call. */
FL_API fl_graph *fl_graph_open(const fl_graph *g, const char *kept);
/* Writes the latest round as a graph in Graphviz's language: a node for each call, with op and shape, and for
   each value that was there before or remains; an edge for each use of a value. */
FL_API bool fl_graph_save_dot(const fl_graph *g, const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_OPEN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_OPEN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_OPEN_IMPL
#define FL_GRAPH_OPEN_IMPL
#include "../records/formula.h"
#include <string.h>

typedef struct fl__opener {
    fl__list *to;
    fl_taker taker;
    const char *kept;
    int depth;      /* of compositions */
    bool fixed_rng; /* of the call that is replaced */
} fl__opener;

/* Whether `name` is among the words of a text. */
static bool fl__word_in(const char *text, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = text; at && (at = strstr(at, name)); at += n)
        if ((at == text || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

static bool fl__is_formula(fl_op op) {
    return fl_op_get_info(op)->arity || op == FL_OP_grad1 || op == FL_OP_grad2 || op == fl_op_formula;
}

static bool fl__opens(const fl__opener *o, fl_op op) {
    const fl_op_info *info = fl_op_get_info(op);
    if (info->required || fl__word_in(o->kept, info->name)) return false;
    return !fl__is_formula(op) || !fl__word_in(o->kept, "formulas");
}

/* Records c, or its composition, during which this taker takes calls again. */
static fl_taken fl__open_call(const fl_call *c, void *user) {
    enum { DEPTH = 32 };
    fl__opener *o = user;
    if (!fl__opens(o, c->op)) {
        if (!fl__list_add(o->to, c)) return FL_FAILED;
        o->to->l.call[o->to->l.n - 1].fixed_rng = o->fixed_rng;
        return FL_TAKEN;
    }
    if (o->depth == DEPTH) return fl_fail("fl_%s: its composition runs itself", fl_op_name(c->op)), FL_FAILED;
    o->depth++;
    fl_take_calls(NULL);
    fl_take_calls(&o->taker);
    const bool ok = fl_call_compose(c);
    o->depth--;
    return ok ? FL_TAKEN : FL_FAILED;
}

static fl_taken fl__open_make(fl_tensor *t, size_t bytes, const fl_mem_info *info, void *user) {
    return fl__list_make(((fl__opener *)user)->to, t, bytes, info) ? FL_TAKEN : FL_FAILED;
}

/* Compositions may write numbers of their own into new memory: constants. */
static bool fl__open_map(const fl_tensor *t, int access, void *user) {
    fl__opener *o = user;
    const int at = t && t->buffer ? fl__list_find(o->to, t->buffer) : -1;
    fl_graph_value *v = at < 0 ? NULL : &o->to->l.value[at];
    const bool fresh = v && v->made && v->first < 0;
    if (!t) return fl_fail("its composition draws a random number of the host");
    if (!fresh && !(v && v->constant && !(access & FL_WRITE)))
        return fl_fail("its composition %s data", access & FL_WRITE ? "writes" : "reads");
    const fl_mem_info info = {.device = v->device, .stream = v->stream};
    v->constant = true;
    return v->buffer->state != FL_LAZY || fl__buffer_arrive(v->buffer, &info);
}

/* A copy of a handle for the new list, on b; NULL: storage is made by the call. */
static fl_tensor *fl__open_handle(fl__list *to, const fl_tensor *t, fl_buffer *b) {
    fl_tensor *copy = fl__list_handle(to, t);
    if (copy) copy->buffer = b;
    return copy;
}

/* Records call c of the step. buffer[v]: what value v of the step is in the new list, NULL: not made yet. */
static bool fl__open_one(fl__opener *o, const fl_graph_call *c, fl_buffer **buffer) {
    fl_call d = c->call;
    for (int i = 0; i < d.n_in; i++) {
        const int v = c->value[4 + i];
        if (d.in[i]->weak) continue;
        for (int k = 0; k < d.n_out; k++)
            if (c->call.in[i] == c->call.out[k]) goto written; /* the same handle, below */
        if (!(d.in[i] = fl__open_handle(o->to, d.in[i], buffer[v]))) return false;
    written:;
    }
    for (int i = 0; i < d.n_out; i++) {
        if (!d.out[i]) continue;
        fl_tensor *y = fl__open_handle(o->to, d.out[i], buffer[c->value[i]]);
        if (!y) return false;
        for (int k = 0; k < d.n_in; k++)
            if (d.in[k] == d.out[i]) d.in[k] = y;
        d.out[i] = y;
    }
    const bool ok = fl_call_run(&d);
    for (int i = 0; i < d.n_out; i++)
        if (d.out[i]) buffer[c->value[i]] = d.out[i]->buffer;
    return ok;
}

/* Number of calls that have value v among their outputs. */
static int fl__times_written(const fl_graph_list *l, int64_t v) {
    int n = 0;
    for (int64_t i = l->value[v].first < 0 ? l->n : l->value[v].first; i <= l->value[v].last; i++)
        for (int k = 0; k < l->call[i].call.n_out; k++) n += l->call[i].value[k] == v;
    return n;
}

/* Sets buffer[] of what exists before the first call: values that the step has not made, constants, and memory
   that calls fill in place. */
static bool fl__open_begin(fl__opener *o, const fl_graph_list *l, fl_buffer **buffer) {
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        fl_tensor t = {.ndim = 1};
        const fl_mem_info info = {.device = v->device, .stream = v->stream};
        buffer[i] = v->made && !v->constant ? NULL : v->buffer;
        if (!v->made || v->constant || v->first < 0 || fl__times_written(l, i) > v->writes) continue;
        if (!fl__list_make(o->to, &t, (size_t)v->bytes, &info)) return false;
        buffer[i] = t.buffer;
    }
    return true;
}

static bool fl__open_calls(fl__opener *o, const fl_graph_list *l, fl_buffer **buffer) {
    char text[200];
    bool ok = fl__open_begin(o, l, buffer);
    fl__list_run_state run = fl__list_run_begin(true);
    fl_take_calls(&o->taker);
    for (int64_t i = 0; ok && i < l->n; i++) {
        const fl_graph_call *c = &l->call[i];
        if (!c->call.op && !c->fn) continue;
        fl__call_enter(&run, c);
        fl_set_flags(c->state & ~FL__LAZY);
        o->fixed_rng = c->fixed_rng;
        ok = c->call.op ? fl__open_one(o, c, buffer) : fl_fail("a function of the host");
        if (!ok) {
            char why[FL__ERROR_TEXT];
            snprintf(why, sizeof why, "%s", fl_error());
            fl_error_clear();
            fl_graph_call_text(c, text, sizeof text);
            fl_fail("fl_graph_open: %s: %s", text, why);
        }
        fl__call_leave(c);
    }
    fl_take_calls(NULL);
    fl__list_run_end(&run);
    return ok;
}

/* Whether operand k of c, out[k] or in[k - 4], is a value. */
static bool fl__has_value(const fl_graph_call *c, int k) {
    return (k < 4 ? k < c->call.n_out : k - 4 < c->call.n_in) && c->value[k] >= 0;
}

/* First and last uses of the values of a list whose calls have changed. */
static void fl__list_uses(fl_graph_list *l) {
    for (int64_t i = 0; i < l->n_values; i++) l->value[i].first = l->value[i].last = -1;
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < 12; k++) {
            if (!fl__has_value(&l->call[i], k)) continue;
            fl_graph_value *v = &l->value[l->call[i].value[k]];
            if (v->first < 0) v->first = i;
            v->last = i;
        }
}

/* Whether c copies the whole of a value that ends here to a whole one that begins here. */
static bool fl__only_moves(const fl_graph_list *l, const fl_graph_call *c, int i) {
    if (c->call.op != FL_OP_copy || c->value[4] < 0) return false;
    const fl_graph_value *from = &l->value[c->value[4]], *to = &l->value[c->value[0]];
    return from->made && from->role == FL_GRAPH_TEMPORARY && from->last == i && to->made && to->first == i &&
           from->bytes == to->bytes && !to->writes && !from->writes &&
           fl__same_handle(c->call.in[0], c->call.out[0]) &&
           from->bytes == fl_numel(c->call.out[0]) * (int64_t)fl_dtype_size(c->call.out[0]->dtype);
}

/* Leaves out copies that only move a value: what has made it makes the other one. */
static bool fl__open_join(fl_graph_list *l) {
    int *is = fl_heap_alloc((size_t)(l->n_values + 1) * sizeof *is);
    int64_t n = 0;
    if (!is) return false;
    for (int i = 0; i < l->n_values; i++) is[i] = i;
    for (int i = (int)l->n - 1; i >= 0; i--) { /* backwards: the target of a copy may be moved on */
        fl_graph_call *c = &l->call[i];
        if (fl__only_moves(l, c, i)) is[c->value[4]] = is[c->value[0]], c->call.op = FL_OP_NONE;
    }
    for (int64_t i = 0; i < l->n; i++) {
        if (!l->call[i].call.op) continue;
        for (int k = 0; k < 12; k++)
            if (fl__has_value(&l->call[i], k)) l->call[i].value[k] = is[l->call[i].value[k]];
        l->call[n++] = l->call[i];
    }
    l->n = n;
    fl_heap_free(is);
    fl__list_uses(l);
    return true;
}

/* Ends recording: roles, and a reference to what is there before or remains of the step: an output's is the
   buffer of the step's own, by which the program's tensor is found. ok: false drops everything. */
static bool fl__open_end(fl__list *to, const fl_graph_list *from, fl_buffer *const *buffer, bool ok) {
    for (int64_t i = 0; i < to->l.n_values; i++) {
        fl_graph_value *v = &to->l.value[i];
        v->role = v->made && !v->constant ? FL_GRAPH_TEMPORARY : fl__value_role(v);
        v->planned = NULL;
    }
    for (int64_t i = 0; i < from->n_values; i++) {
        const int at = buffer[i] ? fl__list_search(to, buffer[i]) : -1;
        if (at < 0) continue;
        fl_graph_value *v = &to->l.value[at];
        v->constant |= from->value[i].constant;
        if (v->constant) v->role = FL_GRAPH_CONSTANT;
        if (from->value[i].role != FL_GRAPH_OUTPUT) continue;
        v->role = FL_GRAPH_OUTPUT;
        v->planned = from->value[i].buffer;
    }
    ok = ok && fl__open_join(&to->l);
    for (int64_t i = 0; i < to->l.n_values; i++) {
        fl_graph_value *v = &to->l.value[i];
        fl_buffer *recorded = v->buffer;
        v->buffer = !ok || v->role == FL_GRAPH_TEMPORARY ? NULL
                    : v->role == FL_GRAPH_OUTPUT         ? v->planned : recorded;
        v->planned = NULL;
        fl_buffer_keep(v->buffer);
        fl__buffer_wait(recorded, false);
    }
    for (int64_t i = 0; i < from->n_values; i++) /* what the handles of the new list hold */
        if (buffer[i] && from->value[i].made && !from->value[i].constant) fl_buffer_drop(buffer[i]);
    return ok;
}

static void fl__list_drop(fl__list *l) {
    for (int64_t i = 0; i < l->l.n_values; i++) fl_buffer_drop(l->l.value[i].buffer);
    fl__list_free(l);
}

FL_API fl_graph *fl_graph_open(const fl_graph *g, const char *kept) {
    if (!fl_given(g, "fl_graph_open", "the graph")) return fl_raise();
    if (!fl_graph_ready(g))
        return fl_err_null("fl_graph_open: the graph is not ready: %s", fl_graph_reason(g));
    const fl_graph_list l = fl_graph_calls(g);
    const size_t bytes = (size_t)(l.n_values + 1) * sizeof(fl_buffer *);
    fl__list to = {.places = -1};
    fl__opener o = {.to = &to, .kept = kept, .taker = {fl__open_call, fl__open_make, fl__open_map, NULL, &o}};
    fl_buffer **buffer = fl_heap_alloc(bytes);
    if (!buffer) return fl_raise();
    const bool called = fl__open_calls(&o, &l, buffer), ok = fl__open_end(&to, &l, buffer, called);
    fl_heap_free(buffer);
    fl_graph *opened = ok ? fl__graph_of(g, &to, "an opened step is not replayed") : NULL;
    if (!opened) fl__list_drop(&to);
    return opened ? opened : fl_raise();
}

/* ---- Graphviz ---- */

typedef struct fl__dot {
    const fl_graph_list *l;
    int *maker; /* of each value: the latest call that has written it, -1: none */
} fl__dot;

static void fl__dot_edge(fl_strbuf *t, const fl__dot *d, int value, int64_t to) {
    if (d->maker[value] >= 0) fl_strbuf_printf(t, "    c%d -> c%lld;\n", d->maker[value], (long long)to);
    else fl_strbuf_printf(t, "    v%d -> c%lld;\n", value, (long long)to);
}

static void fl__dot_call(fl_strbuf *t, const fl__dot *d, int64_t i) {
    const fl_graph_call *c = &d->l->call[i];
    const fl_tensor *y = c->call.n_out ? c->call.out[0] ? c->call.out[0] : c->call.out[1] : NULL;
    fl_strbuf_printf(t, "    c%lld [label=\"%s\\n%s\"];\n", (long long)i,
                     c->call.op ? fl_op_name(c->call.op) : "host", y ? FL_SHAPE_TEXT(y) : "");
    for (int k = 0; k < c->call.n_in; k++)
        if (c->value[4 + k] >= 0) fl__dot_edge(t, d, c->value[4 + k], i);
    for (int k = 0; k < c->call.n_out; k++)
        if (c->value[k] >= 0) d->maker[c->value[k]] = (int)i;
}

static void fl__dot_put(fl_strbuf *t, void *user) {
    const fl__dot *d = user;
    const fl_graph_list *l = d->l;
    fl_strbuf_printf(t, "digraph step {\n    node [shape=ellipse, fontname=monospace];\n");
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        d->maker[i] = -1;
        if (v->role == FL_GRAPH_TEMPORARY || v->first < 0) continue;
        fl_strbuf_printf(t, "    v%lld [shape=box, label=\"%%%lld %s\"];\n", (long long)i, (long long)i,
                         fl__role_name(v->role));
    }
    for (int64_t i = 0; i < l->n; i++) fl__dot_call(t, d, i);
    for (int64_t i = 0; i < l->n_values; i++)
        if (d->maker[i] >= 0 && l->value[i].role != FL_GRAPH_TEMPORARY)
            fl_strbuf_printf(t, "    c%d -> v%lld;\n", d->maker[i], (long long)i);
    fl_strbuf_printf(t, "}\n");
}

FL_API bool fl_graph_save_dot(const fl_graph *g, const char *path) {
    if (!fl_given(g, "fl_graph_save_dot", "the graph") || !fl_given(path, "fl_graph_save_dot", "the path"))
        return fl_raise();
    const fl_graph_list l = fl_graph_calls(g);
    const fl__dot d = {&l, fl_heap_alloc((size_t)(l.n_values + 1) * sizeof *d.maker)};
    const bool ok = d.maker && fl_write_file_atomic("fl_graph_save_dot", path, fl__dot_put, (void *)&d);
    fl_heap_free(d.maker);
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
