/* fl/graph/list.h - lists of recorded calls and the values between them: contents, printing, recording */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_LIST_H
#define FL_GRAPH_LIST_H
#include "../../fl_backend.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a value is to its list. INPUT: was there before, and is only read. PARAMETER: was there before, is
   written by some call and read by others that do not write it. STATE: the same, but only calls that write
   it read it. CONSTANT: made during the list, written by the host. OUTPUT: made by a call, and still
   referenced after the list. TEMPORARY: made by a call, and not referenced after it. */
typedef enum fl_graph_role {
    FL_GRAPH_INPUT,
    FL_GRAPH_PARAMETER,
    FL_GRAPH_STATE,
    FL_GRAPH_CONSTANT,
    FL_GRAPH_OUTPUT,
    FL_GRAPH_TEMPORARY
} fl_graph_role;

/* The storage of one or more tensors: views of it are the same value. */
typedef struct fl_graph_value {
    fl_buffer *buffer; /* NULL after the last call that uses it, if nothing else refers to it */
    fl_graph_role role;
    int64_t bytes;
    int first, last; /* indices of the first and the last call that use it; -1: none */
    int writes;      /* number of calls that write it in place */
    /* private: made by the list; written by the host; its call failed; read by a call that only reads it */
    bool made, constant, failed, read_only;
    int64_t offset;          /* private: in the memory of replays on its device, -1: not there */
    fl_buffer *planned;      /* private: that memory */
    const fl_device *device; /* private */
    void *stream;            /* private: it was recorded on */
    fl_tensor *handle;       /* private: the latest copy of a handle of this value */
} fl_graph_value;

typedef struct fl_graph_call {
    fl_call call;     /* its handles and arguments are copies in the list's memory; calls share handles, so that
                         a pass must replace one, not change it; op FL_OP_NONE: a function of the host, see
                         fl_graph_host */
    int value[12];    /* indices of the values of out[0 .. 3] and in[0 .. 7]; -1: none, or a weak number */
    const char *file; /* of the program's call, under FL_TRACE_CALLS; else NULL, 0 */
    int line;
    bool fixed_rng;   /* private: two rounds took the same random numbers; a replay takes them again */
    uint64_t state;   /* fl_call_state() */
    bool (*fn)(void *user);
    void *user;
    /* private: the module that made the call, an fl__call_place; the composition, fl_error_context.fn */
    const void *place;
    const char *composed;
} fl_graph_call;

/* Calls in the order of the program, and their values. */
typedef struct fl_graph_list {
    fl_graph_call *call;
    fl_graph_value *value;
    int64_t n, n_values;
} fl_graph_list;

/* Writes one line per call, "%4 = linear(%0 f32 [32, 10], %1, %2) net.c:12", then one per value: role, bytes,
   first and last call. False with an error if f is NULL. */
FL_API bool fl_graph_list_print(const fl_graph_list *l, FILE *f);
/* "fl_add at net.c:12", or without the place if it is unknown; returns buf. */
FL_API char *fl_graph_call_text(const fl_graph_call *c, char *buf, size_t size);

/* Internal to fl/graph. */
typedef struct fl__chunk fl__chunk;
/* A scope of fl_scope_in that was open when a call was recorded; `of` is the text of describe. */
typedef struct fl__call_place {
    const struct fl__call_place *outer;
    fl_error_context at;
    int64_t number; /* fl_call_frame.number */
    int depth;      /* 1: outermost */
} fl__call_place;
/* The list of a thread, which others may run when they access one of its values. */
typedef struct fl__list {
    fl_graph_list l;
    int64_t cap, value_cap;
    fl__chunk *chunks, *chunk;  /* memory of handles and arguments: all, and the one in use */
    int64_t bytes, flushes;     /* of results that wait; times that the list has run */
    int64_t others;             /* bytes of values of others since fl__list_held was called */
    bool graph;                 /* a graph records */
    int busy;                   /* atomic: a thread records or runs */
    bool used;                  /* atomic: a thread has it */
    fl_taker taker;
    struct fl__list *next;
    const fl__call_place *place; /* of the latest call, and fl__places then; -1: none */
    int64_t places;
} fl__list;
/* Appends a copy of c; new outputs get buffers without memory. False after fl_fail. */
FL_PRIVATE bool fl__list_add(fl__list *l, const fl_call *c);
/* Index of b's value in l, -1 if its calls do not use it: by the hint in the buffer, which another list may
   have overwritten, else by a search. */
FL_PRIVATE int fl__list_search(const fl__list *l, const fl_buffer *b);
#ifndef __cplusplus
static inline int fl__list_find(const fl__list *l, const fl_buffer *b) {
    const int64_t at = __atomic_load_n(&b->slot_, __ATOMIC_RELAXED);
    if (at >= 0 && at < l->l.n_values && l->l.value[at].buffer == b) return (int)at;
    return fl__is_waited_for(b) ? fl__list_search(l, b) : -1;
}
#endif
/* Appends a value that a call will make: t->buffer, at info's device and stream. */
FL_PRIVATE bool fl__list_make(fl__list *l, fl_tensor *t, size_t bytes, const fl_mem_info *info);
/* A copy of a handle in the list's memory, without the dims that it does not have; NULL after fl_fail. */
FL_PRIVATE fl_tensor *fl__list_handle(fl__list *l, const fl_tensor *t);
/* Appends a function of the host. */
FL_PRIVATE bool fl__list_add_host(fl__list *l, bool (*fn)(void *user), void *user);
/* Forgets calls and values, without dropping references; the memory is kept for the next ones. */
FL_PRIVATE void fl__list_clear(fl__list *l);
FL_PRIVATE void fl__list_free(fl__list *l);
/* Both have the same shape, strides, offset, dtype and backend, or both are weak; or both are NULL. */
FL_PRIVATE bool fl__same_handle(const fl_tensor *a, const fl_tensor *b);
FL_PRIVATE const char *fl__role_name(fl_graph_role role);
/* What a value is to its list. */
FL_PRIVATE fl_graph_role fl__value_role(const fl_graph_value *v);
/* Sets the roles. */
FL_PRIVATE void fl__list_roles(fl_graph_list *l);
/* describe of the scopes of a call that runs. */
FL_PRIVATE void fl__place_text(const void *of, char *buf, size_t size);
/* Restore of buffers whose contents a call has not made. */
FL_PRIVATE bool fl__list_restore(fl_buffer *b);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_LIST_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_LIST) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_LIST_IMPL
#define FL_GRAPH_LIST_IMPL
#include <string.h>

/* ---- memory: chunks that are filled from the start, and kept ---- */

enum { FL__LIST_CHUNK = 1 << 16, FL__FEW_DIMS = 4 };
struct fl__chunk {
    fl__chunk *next;
    size_t used;
    _Alignas(16) char data[FL__LIST_CHUNK];
};

static FL__COLD bool fl__chunk_next(fl__list *l) {
    fl__chunk *next = l->chunk ? l->chunk->next : l->chunks;
    if (!next) {
        if (!(next = fl_heap_alloc(sizeof *next))) return false;
        next->next = NULL;
        *(l->chunk ? &l->chunk->next : &l->chunks) = next;
    }
    next->used = 0;
    l->chunk = next;
    return true;
}

/* `bytes` of the list's memory, at most FL__LIST_CHUNK. */
static inline void *fl__list_take(fl__list *l, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if ((!l->chunk || l->chunk->used + bytes > FL__LIST_CHUNK) && !fl__chunk_next(l)) return NULL;
    void *p = l->chunk->data + l->chunk->used;
    l->chunk->used += bytes;
    return p;
}

FL_PRIVATE void fl__place_text(const void *of, char *buf, size_t size) {
    snprintf(buf, size, "%s", (const char *)of);
}

FL_PRIVATE void fl__list_clear(fl__list *l) {
    l->l.n = l->l.n_values = l->bytes = l->others = 0;
    l->chunk = l->chunks;
    if (l->chunk) l->chunk->used = 0;
    l->place = NULL;
    l->places = -1;
}

FL_PRIVATE void fl__list_free(fl__list *l) {
    for (fl__chunk *c = l->chunks, *next; c; c = next) {
        next = c->next;
        fl_heap_free(c);
    }
    fl_heap_free(l->l.call);
    fl_heap_free(l->l.value);
    l->l = (fl_graph_list){0};
    l->chunks = l->chunk = NULL;
    l->cap = l->value_cap = l->bytes = 0;
}

/* ---- recording ---- */

FL_PRIVATE bool fl__list_restore(fl_buffer *b) {
    return fl_fail("fl_buffer_map: the deferred call that makes this value has not run: %zu bytes", b->bytes);
}

static int fl__value_new(fl__list *l, fl_buffer *b) {
    if (l->l.n_values == l->value_cap &&
        !fl_heap_grow(&l->l.value, &l->value_cap, l->l.n_values + 1, sizeof *l->l.value))
        return -1;
    l->l.value[l->l.n_values] =
        (fl_graph_value){.buffer = b, .bytes = (int64_t)b->bytes, .first = -1, .last = -1, .offset = -1,
                         .device = b->device, .stream = b->stream};
    __atomic_store_n(&b->slot_, l->l.n_values, __ATOMIC_RELAXED);
    return (int)l->l.n_values++;
}

FL_PRIVATE int fl__list_search(const fl__list *l, const fl_buffer *b) {
    int64_t i = l->l.n_values - 1;
    while (i >= 0 && l->l.value[i].buffer != b) i--;
    return (int)i;
}

static inline int fl__value_of(fl__list *l, fl_buffer *b) {
    const int found = fl__list_find(l, b);
    if (found >= 0) return found;
    const int added = fl__value_new(l, b);
    if (added < 0) return -1;
    fl__buffer_wait(b, true);
    l->others += (int64_t)b->bytes;
    return added;
}

FL_PRIVATE bool fl__list_make(fl__list *l, fl_tensor *t, size_t bytes, const fl_mem_info *info) {
    fl_buffer *b = fl_buffer_new_lazy(bytes, info->device, fl__list_restore, l);
    if (b) b->stream = info->stream;
    const int v = b ? fl__value_new(l, b) : -1;
    if (v < 0) return fl_buffer_drop(b), false;
    l->l.value[v].made = true;
    b->refs_ = 1 + FL__WAITED_FOR; /* nobody else has it yet */
    t->buffer = b;
    l->bytes += (int64_t)bytes;
    return true;
}

FL_PRIVATE fl_tensor *fl__list_handle(fl__list *l, const fl_tensor *t) {
    fl_tensor *copy = fl__list_take(l, sizeof *copy);
    if (!copy) return NULL;
    const int n = t->ndim ? t->ndim : 1;
    copy->obj = (fl_obj){.refs_ = 1, .size_ = t->obj.size_, .drop_ = t->obj.drop_};
    copy->dtype = t->dtype;
    copy->backend = t->backend;
    copy->weak = t->weak;
    copy->copied = t->copied;
    copy->ndim = t->ndim;
    if (n <= FL__FEW_DIMS) { /* compilers copy a known number in registers */
        memcpy(copy->shape, t->shape, FL__FEW_DIMS * sizeof *t->shape);
        memcpy(copy->stride, t->stride, FL__FEW_DIMS * sizeof *t->stride);
    } else {
        memcpy(copy->shape, t->shape, sizeof t->shape);
        memcpy(copy->stride, t->stride, sizeof t->stride);
    }
    copy->offset = t->offset;
    copy->buffer = t->buffer;
    copy->impl = NULL;
    copy->f64 = t->f64;
    copy->i64 = t->i64;
    copy->version_ = 0;
    copy->base_ = NULL;
    return copy;
}

FL_PRIVATE bool fl__same_handle(const fl_tensor *a, const fl_tensor *b) {
    if (!a || !b) return a == b;
    if (a->dtype != b->dtype || a->backend != b->backend || a->weak != b->weak || a->ndim != b->ndim ||
        a->offset != b->offset)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || a->stride[i] != b->stride[i]) return false;
    return true;
}

/* A copy of an operand's handle: the value's latest one, if it is the same. */
static inline fl_tensor *fl__list_operand(fl__list *l, const fl_tensor *t, int v) {
    fl_tensor *last = v < 0 ? NULL : l->l.value[v].handle;
    if (last && last->copied == t->copied && fl__same_handle(last, t)) return last;
    last = fl__list_handle(l, t);
    if (v >= 0) l->l.value[v].handle = last;
    return last;
}

/* ---- the modules that make the calls: copies, because a module may be freed before its calls run ---- */

enum { FL__PLACES = 64, FL__PLACE_TEXT = 256 };

static const fl__call_place *fl__place_add(fl__list *l, const fl_call_frame *frame) {
    char text[FL__PLACE_TEXT];
    *text = 0;
    if (frame->at.describe) frame->at.describe(frame->at.of, text, sizeof text);
    const size_t n = strlen(text) + 1;
    fl__call_place *p = fl__list_take(l, sizeof *p + n);
    if (!p) return NULL;
    *p = (fl__call_place){l->place, {NULL, memcpy(p + 1, text, n), fl__place_text, frame->at.backward},
                          frame->number, l->place ? l->place->depth + 1 : 1};
    return l->place = p;
}

/* Sets l->place to what runs now: what is still open of the latest call's, and copies of the rest. */
static FL__COLD bool fl__list_enter(fl__list *l) {
    fl_call_frame frame[FL__PLACES];
    const int n = fl_call_stack(frame, FL__PLACES);
    const fl__call_place *open = NULL;
    if (n == FL__PLACES) frame[n - 1] = (fl_call_frame){fl__place, fl__places}; /* at least the innermost */
    for (const fl__call_place *p = l->place; p && !open; p = p->outer)
        if (p->depth <= n && p->number == frame[p->depth - 1].number) open = p;
    l->place = open;
    for (int i = open ? open->depth : 0; i < n; i++)
        if (!fl__place_add(l, &frame[i])) return l->places = -1, false;
    l->places = fl__places;
    return true;
}

/* A new call, made by the module and the composition that run now. */
static inline fl_graph_call *fl__call_new(fl__list *l) {
    if (l->l.n == l->cap && !fl_heap_grow(&l->l.call, &l->cap, l->l.n + 1, sizeof *l->l.call)) return NULL;
    fl_graph_call *c = &l->l.call[l->l.n];
    if (l->places != fl__places && !fl__list_enter(l)) return NULL;
    c->place = l->place;
    c->composed = fl__place.fn;
    return c;
}

FL_PRIVATE bool fl__list_add_host(fl__list *l, bool (*fn)(void *user), void *user) {
    fl_graph_call *r = fl__call_new(l);
    if (!r) return false;
    *r = (fl_graph_call){.fn = fn, .user = user, .state = fl_call_state(), .place = r->place};
    l->l.n++;
    return true;
}

static inline bool fl__list_place(const fl_tensor *t, fl_mem_info *info) {
    const fl_backend *be = fl_backend_at(t->backend);
    return !be->place || be->place(be, info);
}

FL_PRIVATE bool fl__list_add(fl__list *l, const fl_call *c) {
    fl_graph_call *r = fl__call_new(l);
    if (!r) return false;
    const int at = (int)l->l.n;
    const fl_site site = fl_site_now();
    fl_call_begin(&r->call, c->op, c->n_out, c->n_in, NULL);
    r->file = site.file;
    r->line = site.line;
    r->state = fl_call_state();
    r->fn = NULL, r->user = NULL, r->fixed_rng = false;
    const size_t args = c->args ? fl_op_get_info(c->op)->args_size : 0;
    if (args) {
        void *copy = fl__list_take(l, args);
        if (!copy) return false;
        r->call.args = memcpy(copy, c->args, args);
    }
    for (int i = 0; i < c->n_out; i++) {
        fl_tensor *t = c->out[i];
        r->value[i] = -1;
        r->call.out[i] = NULL;
        if (!t) continue;
        const bool written = t->buffer;
        fl_mem_info info = {0};
        size_t bytes = 0;
        if (!written && __builtin_mul_overflow((size_t)fl_numel(t), fl_dtype_size(t->dtype), &bytes))
            return fl_fail("fl_%s: the bytes of shape %s of %s overflow size_t", fl_op_name(c->op),
                           FL_SHAPE_TEXT(t), fl_dtype_name(t->dtype));
        if (!written && !(fl__list_place(t, &info) && fl__list_make(l, t, bytes, &info))) return false;
        const int v = r->value[i] = fl__value_of(l, t->buffer);
        if (v < 0 || !(r->call.out[i] = fl__list_handle(l, t))) return false;
        fl_graph_value *value = &l->l.value[v];
        value->handle = r->call.out[i];
        value->writes += written;
        if (value->first < 0) value->first = at;
        value->last = at;
    }
    for (int i = 0; i < c->n_in; i++) {
        fl_tensor *t = c->in[i];
        r->value[4 + i] = -1;
        r->call.in[i] = NULL;
        for (int k = 0; k < c->n_out; k++)
            if (c->out[k] == t) r->call.in[i] = r->call.out[k];
        if (!t->weak) {
            const int v = r->value[4 + i] = fl__value_of(l, t->buffer);
            if (v < 0) return false;
            fl_graph_value *value = &l->l.value[v];
            if (value->last != at) value->read_only = true; /* else this call writes it */
            if (value->first < 0) value->first = at;
            value->last = at;
        }
        if (!r->call.in[i] && !(r->call.in[i] = fl__list_operand(l, t, r->value[4 + i]))) return false;
    }
    l->l.n++;
    return true;
}

/* ---- reading a list ---- */

FL_PRIVATE fl_graph_role fl__value_role(const fl_graph_value *v) {
    if (v->constant) return FL_GRAPH_CONSTANT;
    if (!v->made) return !v->writes ? FL_GRAPH_INPUT : v->read_only ? FL_GRAPH_PARAMETER : FL_GRAPH_STATE;
    const int refs = v->buffer ? __atomic_load_n(&v->buffer->refs_, __ATOMIC_ACQUIRE) : 0;
    return refs > FL__WAITED_FOR ? FL_GRAPH_OUTPUT : FL_GRAPH_TEMPORARY;
}

FL_PRIVATE void fl__list_roles(fl_graph_list *l) {
    for (int64_t i = 0; i < l->n_values; i++) l->value[i].role = fl__value_role(&l->value[i]);
}

FL_API char *fl_graph_call_text(const fl_graph_call *c, char *buf, size_t size) {
    if (!fl_given(c, "fl_graph_call_text", "the call") || !buf) return NULL;
    const int n = c->call.op ? snprintf(buf, size, "fl_%s", fl_op_name(c->call.op))
                             : snprintf(buf, size, "fl_graph_host");
    if (c->file && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, " at %s:%d", c->file, c->line);
    return buf;
}

static void fl__print_operand(FILE *f, const fl_tensor *t, int value) {
    if (!t) fprintf(f, "-");
    else if (t->weak) fprintf(f, "%g", t->f64);
    else fprintf(f, "%%%d %s %s", value, fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t));
}

FL_PRIVATE const char *fl__role_name(fl_graph_role role) {
    static const char *const names[] = {"input", "parameter", "state", "constant", "output", "temporary"};
    return names[role];
}

FL_API bool fl_graph_list_print(const fl_graph_list *l, FILE *f) {
    if (!fl_given(l, "fl_graph_list_print", "the list") || !fl_given(f, "fl_graph_list_print", "the file"))
        return false;
    for (int64_t i = 0; i < l->n; i++) {
        const fl_graph_call *c = &l->call[i];
        for (int k = 0; k < c->call.n_out; k++) {
            if (k) fprintf(f, ", ");
            fl__print_operand(f, c->call.out[k], c->value[k]);
        }
        fprintf(f, "%s%s(", c->call.n_out ? " = " : "", c->call.op ? fl_op_name(c->call.op) : "host");
        for (int k = 0; k < c->call.n_in; k++) {
            if (k) fprintf(f, ", ");
            fl__print_operand(f, c->call.in[k], c->value[4 + k]);
        }
        if (c->file) fprintf(f, ") %s:%d\n", c->file, c->line);
        else fprintf(f, ")\n");
    }
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        fprintf(f, "%%%lld: %s, %lld bytes, calls %d to %d\n", (long long)i, fl__role_name(v->role),
                (long long)v->bytes, v->first, v->last);
    }
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
