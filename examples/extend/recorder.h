/* examples/extend/recorder.h - a compiler: records calls, runs them when a value is read, replays steps

   What it shows: a backend that is one function, the slot of all ops. It receives each call as data and copies it:
   the op, its arguments, and each operand as {node, dtype, shape, strides, offset} or as a weak
   number. No handle is kept, so handles come and go as usual. Nothing runs until a value is read;
   then the pending calls run in order on the cpu backend, through fl_call_run, on shadow tensors over the
   nodes' buffers. A compiler would look at the list first: that is the place for it.

   The contract it exercises
     slot    Outputs without storage get a node in out->impl; outputs with one are written in place,
             in program order.
     view    A view is geometry, which is in the handle, over the same node: one more reference.
     make    Storage that no call has made: a node without a value (fl_empty, what fl_concat fills).
     map     Reading runs what is pending, but only if a pending call touches the node.
     drop    A node lives while a handle, a pending call or a tape needs it; its bytes are an
             fl_buffer, so that any memory manager serves it.
     errors  What only data can tell (an index out of range) comes late, with the next read, as on
             any asynchronous device.

   Tapes. What is called between recorder_begin and recorder_end runs once as always and makes a
   tape. recorder_replay runs its calls again, on the same nodes: external inputs (made before; a
   batch rewritten by fl_set_host, parameters and optimizer state written in place) with the values
   they have now; values made inside into the same nodes, so that a handle of the loss kept from the
   recorded step reads the latest replay. The others, which nobody can see, share a plan of buffers.
   K replays give the bits of K eager steps, dropout included: random calls move on by what one step
   takes from the process's generator, and so does the generator.

   What a tape cannot capture, and what happens
     A host read of a value computed inside, any host write inside: an error; the read fails,
       recorder_end too.
     Random numbers of a generator other than the process's, whose state is the caller's:
       recorder_end fails.
     An annealed number, a shape that follows data: frozen, unseen. Record again when they change.
       Optimizers keep lr and their counts in tensors: fl_optim_set_lr between replays is seen.
     A host read of an input: let through. What the host concluded from it is frozen.
     Results that the next step takes by handle, h = step(h): frozen, unseen. Write them in place,
       with fl_assign.
   End the scope of the step before recorder_end: a value that a handle can reach is not planned.

     fl_backend_use(fl_backend_recorder(), NULL);
     fl_backend_set_default("recorder");
     ... a step or two ...
     recorder_begin(); train_step(x, target); recorder_tape *tape = recorder_end();
     for (...) { fl_set_host(x, ...); fl_set_host(target, ...); recorder_replay(tape); }
     recorder_free(tape);

   Thread-safe: one lock around the list. A tape records the calls of the thread that began it. */
#ifndef RECORDER_H
#define RECORDER_H

#include "../../fl_backend.h"
#include "../../fl_tensor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Calls that may wait: a program that never reads must not grow. */
enum { RECORDER_PENDING = 1024, RECORDER_ARGS = 512 /* bytes of a drawing op's arguments */ };

/* ---- nodes, records, tapes ---- */

typedef struct recorder_tape recorder_tape;

/* A value's storage, shared by its handles, their views and the records that touch it. */
typedef struct recorder_node {
    int refs, handles; /* references in all, and of handles; atomic */
    int64_t pending;   /* operands of pending calls that name it */
    size_t bytes;
    fl_buffer *buffer; /* NULL until there is a value */
    bool failed;       /* the call that should have written it failed */
    int64_t in;                /* the tape that it was made in, 0: external */
    int64_t first, last, slot; /* of that tape: its first and last call, its place in the plan */
} recorder_node;

typedef struct recorder_operand {
    recorder_node *node; /* NULL: a weak number, or an absent output */
    fl_dtype dtype;
    int ndim;
    int same;   /* inputs: the output that is the same tensor (in-place steps), or -1 */
    bool fresh; /* outputs: the call gives it its storage */
    bool weak;
    double f64;
    int64_t i64, offset, shape[FL_MAX_DIMS], stride[FL_MAX_DIMS];
} recorder_operand;

typedef struct recorder_call {
    int refs; /* the pending list and a tape share it; under the lock */
    fl_op op;
    int n_out, n_in;
    void *args;                 /* a copy, NULL if there are none */
    recorder_operand operand[]; /* n_out outputs, then n_in inputs, then the bytes of args */
} recorder_call;

typedef struct recorder_list {
    recorder_call **call;
    int64_t n, cap;
} recorder_list;

struct recorder_tape {
    int64_t id;
    recorder_list list;
    fl_rng begin, end;  /* the process's generator before and after the step */
    bool broken;        /* something happened that cannot be replayed; said when it did */
    fl_buffer **buffer; /* the plan's */
    int64_t n_buffers;
    size_t planned, unplanned; /* bytes of the temporaries in the plan, and without one */
};

typedef struct recorder_counts {
    int64_t recorded, run, replayed; /* calls so far */
    int64_t nodes;                   /* alive now */
} recorder_counts;

/* One per process; the backend's table leads to it. */
typedef struct recorder_state {
    pthread_mutex_t lock;
    recorder_list pending;
    recorder_tape *tape; /* being recorded, by `owner` */
    pthread_t owner;
    int64_t tapes; /* so far */
    recorder_counts count;
} recorder_state;

/* ---- memory ---- */

static inline void recorder_node_drop(recorder_state *st, recorder_node *n) {
    if (__atomic_sub_fetch(&n->refs, 1, __ATOMIC_ACQ_REL)) return;
    fl_buffer_drop(n->buffer);
    free(n);
    __atomic_sub_fetch(&st->count.nodes, 1, __ATOMIC_RELAXED);
}

static inline bool recorder_taping(const recorder_state *st) {
    return __atomic_load_n(&st->tape, __ATOMIC_ACQUIRE) && pthread_equal(st->owner, pthread_self());
}

/* A node for t's elements, held by t's handle. False after fl_fail. */
static inline bool recorder_node_new(recorder_state *st, fl_tensor *t) {
    size_t bytes;
    if (__builtin_mul_overflow((size_t)fl_numel(t), fl_dtype_size(t->dtype), &bytes))
        return fl_fail("recorder: too large");
    recorder_node *n = calloc(1, sizeof *n);
    if (!n) return fl_fail("recorder: out of memory");
    int64_t in = recorder_taping(st) ? st->tape->id : 0;
    *n = (recorder_node){.refs = 1, .handles = 1, .bytes = bytes, .in = in, .first = -1};
    __atomic_add_fetch(&st->count.nodes, 1, __ATOMIC_RELAXED);
    t->impl = n;
    return true;
}

static inline bool recorder_has_bytes(recorder_node *n) {
    if (!n->buffer) n->buffer = fl_buffer_new(n->bytes, NULL);
    return n->buffer != NULL;
}

static inline bool recorder_append(recorder_list *l, recorder_call *r) {
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 64;
        recorder_call **call = realloc(l->call, (size_t)cap * sizeof *call);
        if (!call) return fl_fail("recorder: out of memory for %lld calls", (long long)cap);
        l->call = call;
        l->cap = cap;
    }
    l->call[l->n++] = r;
    r->refs++;
    return true;
}

static inline void recorder_call_drop(recorder_state *st, recorder_call *r) {
    if (--r->refs > 0) return;
    for (int i = 0; i < r->n_out + r->n_in; i++)
        if (r->operand[i].node) recorder_node_drop(st, r->operand[i].node);
    free(r);
}

/* ---- recording ---- */

static inline void recorder_describe(recorder_operand *o, const fl_tensor *t) {
    *o = (recorder_operand){.node = t->weak ? NULL : t->impl,
                            .dtype = t->dtype,
                            .ndim = t->ndim,
                            .same = -1,
                            .weak = t->weak,
                            .f64 = t->f64,
                            .i64 = t->i64,
                            .offset = t->offset};
    memcpy(o->shape, t->shape, sizeof o->shape);
    memcpy(o->stride, t->stride, sizeof o->stride);
    if (o->node) __atomic_add_fetch(&o->node->refs, 1, __ATOMIC_RELAXED);
}

/* A copy of c, whose new outputs get nodes. NULL after fl_fail. */
static inline recorder_call *recorder_call_new(recorder_state *st, const fl_call *c) {
    size_t args = c->args ? fl_op_get_info(c->op)->args_size : 0;
    int n = c->n_out + c->n_in;
    recorder_call *r = calloc(1, sizeof *r + (size_t)n * sizeof *r->operand + args);
    if (!r) {
        fl_fail("recorder: out of memory");
        return NULL;
    }
    *r = (recorder_call){.refs = 1,
                         .op = c->op,
                         .n_out = c->n_out,
                         .n_in = c->n_in,
                         .args = args ? r->operand + n : NULL};
    if (args) memcpy(r->args, c->args, args);
    for (int i = 0; i < c->n_out; i++) {
        bool fresh = c->out[i] && !c->out[i]->impl;
        if (fresh && !recorder_node_new(st, c->out[i])) {
            recorder_call_drop(st, r);
            return NULL;
        }
        if (c->out[i]) recorder_describe(&r->operand[i], c->out[i]);
        r->operand[i].fresh = fresh;
    }
    for (int i = 0; i < c->n_in; i++) {
        recorder_operand *o = &r->operand[c->n_out + i];
        recorder_describe(o, c->in[i]);
        for (int k = 0; k < c->n_out; k++)
            if (c->in[i] == c->out[k]) o->same = k;
    }
    return r;
}

static inline bool recorder_run_pending(recorder_state *st);

static inline bool recorder_record(const fl_backend *self, const fl_call *c) {
    recorder_state *st = self->user;
    pthread_mutex_lock(&st->lock);
    recorder_call *r = NULL;
    bool ok = (st->pending.n < RECORDER_PENDING || recorder_run_pending(st)) &&
              (r = recorder_call_new(st, c)) != NULL;
    ok = ok && recorder_append(&st->pending, r);
    for (int i = 0; ok && i < r->n_out + r->n_in; i++)
        if (r->operand[i].node) r->operand[i].node->pending++;
    if (ok && recorder_taping(st) && !recorder_append(&st->tape->list, r))
        ok = false, st->tape->broken = true;
    st->count.recorded += ok;
    if (r) recorder_call_drop(st, r);
    pthread_mutex_unlock(&st->lock);
    return ok;
}

/* ---- running ---- */

/* The operand as a tensor of the cpu backend, owned by the innermost scope. NULL after fl_fail. */
static inline fl_tensor *recorder_shadow(const recorder_operand *o) {
    fl_tensor *t;
    if (o->weak) {
        if (!(t = fl_num(o->f64))) return NULL;
        t->i64 = o->i64;
        t->dtype = o->dtype;
        return t;
    }
    fl_shape shape = {.ndim = o->ndim};
    memcpy(shape.dim, o->shape, sizeof shape.dim);
    if (!(t = fl_out_on(fl_backend_index("cpu"), shape, o->dtype))) return NULL;
    memcpy(t->stride, o->stride, sizeof t->stride);
    t->offset = o->offset;
    if (!o->fresh && !recorder_has_bytes(o->node)) return NULL;
    t->buffer = fl_buffer_keep(o->node->buffer); /* NULL for a fresh output: the slot makes it */
    return t;
}

/* Runs one call; args instead of its own if not NULL. */
static inline bool recorder_run(const recorder_call *r, const void *args) {
    fl_scope s = fl_scope_begin();
    fl_call c = {.op = r->op, .n_out = r->n_out, .n_in = r->n_in, .args = args ? args : r->args};
    bool ok = true;
    for (int i = 0; ok && i < r->n_out; i++)
        if (r->operand[i].node) ok = (c.out[i] = recorder_shadow(&r->operand[i])) != NULL;
    for (int i = 0; ok && i < r->n_in; i++) {
        const recorder_operand *o = &r->operand[r->n_out + i];
        if (o->node && o->node->failed)
            ok = fl_fail("recorder: an operand of %s failed before", fl_op_get_info(r->op)->name);
        else ok = (c.in[i] = o->same >= 0 ? c.out[o->same] : recorder_shadow(o)) != NULL;
    }
    ok = ok && fl_call_run(&c);
    for (int i = 0; i < r->n_out; i++) {
        recorder_node *n = r->operand[i].node;
        if (n && ok && !n->buffer) n->buffer = fl_buffer_keep(c.out[i]->buffer);
        if (n) n->failed = !ok;
    }
    fl_scope_end(&s);
    return ok;
}

/* The call has run. What was made inside a tape and has no handle will not be seen again: its bytes
   can go. */
static inline void recorder_ran(recorder_state *st, recorder_call *r) {
    for (int i = 0; i < r->n_out + r->n_in; i++) {
        recorder_node *n = r->operand[i].node;
        if (!n || --n->pending || !n->in || __atomic_load_n(&n->handles, __ATOMIC_ACQUIRE))
            continue;
        fl_buffer_drop(n->buffer);
        n->buffer = NULL;
    }
    recorder_call_drop(st, r);
}

/* Runs all pending calls, also past one that fails: what does not depend on it is computed. Under
   the lock; an error handler may jump, so it hears of a failure later, from the caller. */
static inline bool recorder_run_pending(recorder_state *st) {
    bool ok = true;
    fl_quiet(+1);
    for (int64_t i = 0; i < st->pending.n; i++) {
        ok &= recorder_run(st->pending.call[i], NULL);
        st->count.run++;
        recorder_ran(st, st->pending.call[i]);
    }
    st->pending.n = 0;
    fl_quiet(-1);
    return ok;
}

/* ---- hooks ---- */

static inline bool recorder_make(const fl_backend *self, fl_tensor *t, const fl_mem_info *info) {
    (void)info;
    return recorder_node_new(self->user, t);
}

static inline bool recorder_view(const fl_backend *self, fl_tensor *out, fl_tensor *in) {
    (void)self;
    recorder_node *n = in->impl;
    __atomic_add_fetch(&n->handles, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&n->refs, 1, __ATOMIC_RELAXED);
    out->impl = n;
    return true;
}

static inline void recorder_drop(const fl_backend *self, fl_tensor *t) {
    recorder_node *n = t->impl;
    __atomic_sub_fetch(&n->handles, 1, __ATOMIC_RELEASE);
    recorder_node_drop(self->user, n);
}

static inline bool recorder_sync(const fl_backend *self) {
    recorder_state *st = self->user;
    pthread_mutex_lock(&st->lock);
    bool ok = recorder_run_pending(st);
    pthread_mutex_unlock(&st->lock);
    return ok;
}

/* Brings the node's value about. Under the lock. */
static inline bool recorder_materialise(recorder_state *st, recorder_node *n, int access) {
    if (recorder_taping(st) && (n->in == st->tape->id || access & FL_WRITE)) {
        st->tape->broken = true;
        return fl_fail("recorder: a host %s inside a recorded step: a replay could not repeat it",
                       access & FL_WRITE ? "write" : "read of a value computed there");
    }
    if (n->pending && !recorder_run_pending(st)) return false;
    if (access & FL_WRITE) n->failed = false;
    return n->failed ? fl_fail("recorder: the call that computes this value failed")
                     : recorder_has_bytes(n);
}

static inline void *recorder_map(const fl_backend *self, fl_tensor *t, int access) {
    recorder_state *st = self->user;
    recorder_node *n = t->impl;
    pthread_mutex_lock(&st->lock);
    bool ok = recorder_materialise(st, n, access);
    pthread_mutex_unlock(&st->lock);
    char *p = ok ? fl_buffer_map(n->buffer) : NULL;
    return p ? p + t->offset * (int64_t)fl_dtype_size(t->dtype) : NULL;
}

static inline void recorder_unmap(const fl_backend *self, fl_tensor *t, int access) {
    (void)self, (void)access;
    fl_buffer_unmap(((recorder_node *)t->impl)->buffer);
}

static inline const fl_backend *fl_backend_recorder(void) {
    static recorder_state state = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static fl_backend table = {.name = "recorder",
                               .user = &state,
                               .make = recorder_make,
                               .drop = recorder_drop,
                               .map = recorder_map,
                               .unmap = recorder_unmap,
                               .view = recorder_view,
                               .sync = recorder_sync};
    for (int i = 1; i < FL_MAX_OPS; i++) table.op[i] = recorder_record;
    return &table;
}

/* ---- tapes ---- */

/* The state of the backend in use, which another file may have brought. NULL after fl_fail. */
static inline recorder_state *recorder_in_use(void) {
    const fl_backend *b = fl_backend_at(fl_backend_index("recorder"));
    return b ? b->user : NULL;
}

static inline recorder_counts recorder_count(void) {
    recorder_state *st = recorder_in_use();
    return st ? st->count : (recorder_counts){0};
}

/* Starts a tape of this thread's calls. False after fl_fail; one tape at a time. */
static inline bool recorder_begin(void) {
    recorder_state *st = recorder_in_use();
    if (!st) return false;
    if (st->tape) return fl_fail("recorder_begin: a tape is being recorded already");
    recorder_tape *tape = calloc(1, sizeof *tape);
    if (!tape) return fl_fail("recorder_begin: out of memory");
    tape->id = ++st->tapes;
    tape->begin = fl_rng_state();
    st->owner = pthread_self();
    __atomic_store_n(&st->tape, tape, __ATOMIC_RELEASE);
    return true;
}

static inline void recorder_free(recorder_tape *tape) {
    recorder_state *st = tape ? recorder_in_use() : NULL;
    if (!st) return;
    pthread_mutex_lock(&st->lock);
    for (int64_t i = 0; i < tape->list.n; i++) recorder_call_drop(st, tape->list.call[i]);
    pthread_mutex_unlock(&st->lock);
    for (int64_t i = 0; i < tape->n_buffers; i++) fl_buffer_drop(tape->buffer[i]);
    free(tape->buffer);
    free(tape->list.call);
    free(tape);
}

/* What can be known of a call that a replay would get wrong. False after fl_fail. */
static inline bool recorder_replayable(const recorder_tape *tape, const recorder_call *r) {
    const fl_rng *rng = fl_op_rng(r->op, r->args);
    if (rng && (rng->key || rng->counter) && /* both 0: it drops nothing */
        (rng->key != tape->begin.key || rng->counter < tape->begin.counter ||
         rng->counter >= tape->end.counter))
        return fl_fail("recorder_end: %s draws from a generator of its own, which a replay could "
                       "not advance",
                       fl_op_get_info(r->op)->name);
    return true;
}

/* A temporary of the tape that no handle can reach. */
static inline bool recorder_hidden(const recorder_tape *tape, const recorder_node *n) {
    return n && n->in == tape->id && !__atomic_load_n(&n->handles, __ATOMIC_ACQUIRE);
}

/* A plan slot that is free and fits best; else the largest free one, grown; else a new one.
   size < 0: occupied. */
static inline int64_t recorder_slot(int64_t *size, int64_t *n, int64_t bytes) {
    int64_t best = -1;
    for (int64_t i = 0; i < *n; i++) {
        if (size[i] < 0) continue;
        bool fits = size[i] >= bytes, best_fits = best >= 0 && size[best] >= bytes;
        if (best < 0 ||
            (fits ? !best_fits || size[i] < size[best] : !best_fits && size[i] > size[best]))
            best = i;
    }
    if (best < 0) best = (*n)++, size[best] = 0;
    if (size[best] < bytes) size[best] = bytes;
    return best;
}

/* Gives each hidden temporary a slot from its first call to its last. size: space for a slot per
   node. */
static inline void recorder_assign(recorder_tape *tape, int64_t *size) {
    for (int64_t i = 0; i < tape->list.n; i++) {
        recorder_call *r = tape->list.call[i];
        for (int k = 0; k < r->n_out + r->n_in; k++) {
            recorder_node *n = r->operand[k].node;
            if (!recorder_hidden(tape, n) || n->slot >= 0) continue;
            n->slot = recorder_slot(size, &tape->n_buffers, (int64_t)n->bytes);
            size[n->slot] = -size[n->slot] - 1;
            tape->unplanned += n->bytes;
        }
        for (int k = 0; k < r->n_out + r->n_in; k++) {
            recorder_node *n = r->operand[k].node;
            if (recorder_hidden(tape, n) && n->last == i && size[n->slot] < 0)
                size[n->slot] = -size[n->slot] - 1;
        }
    }
}

/* The temporaries' buffers: few, shared by nodes that do not live at the same time. False after
   fl_fail. */
static inline bool recorder_plan(recorder_tape *tape) {
    int64_t nodes = 0;
    for (int64_t i = 0; i < tape->list.n; i++)
        for (int k = 0; k < tape->list.call[i]->n_out + tape->list.call[i]->n_in; k++) {
            recorder_node *n = tape->list.call[i]->operand[k].node;
            if (!n || n->in != tape->id) continue;
            if (n->first < 0) n->first = i, n->slot = -1, nodes++;
            n->last = i;
        }
    int64_t *size = calloc((size_t)nodes + 1, sizeof *size);
    if (size) recorder_assign(tape, size);
    tape->buffer = calloc((size_t)tape->n_buffers + 1, sizeof(fl_buffer *));
    bool ok = (size && tape->buffer) || fl_fail("recorder_end: out of memory");
    for (int64_t i = 0; ok && i < tape->n_buffers; i++) {
        tape->planned += (size_t)size[i];
        ok = (tape->buffer[i] = fl_buffer_new((size_t)size[i], NULL)) != NULL;
    }
    for (int64_t i = 0; ok && i < tape->list.n; i++)
        for (int k = 0; k < tape->list.call[i]->n_out + tape->list.call[i]->n_in; k++) {
            recorder_node *n = tape->list.call[i]->operand[k].node;
            if (!recorder_hidden(tape, n)) continue;
            fl_buffer_drop(n->buffer);
            n->buffer = fl_buffer_keep(tape->buffer[n->slot]);
        }
    free(size);
    return ok;
}

/* Ends the tape and runs what it recorded, once, as always. NULL after fl_fail if the step cannot
   be replayed (it ran all the same) or failed. */
static inline recorder_tape *recorder_end(void) {
    recorder_state *st = recorder_in_use();
    recorder_tape *tape = st && recorder_taping(st) ? st->tape : NULL;
    if (!tape) {
        fl_fail("recorder_end: this thread records no tape");
        return NULL;
    }
    tape->end = fl_rng_state();
    pthread_mutex_lock(&st->lock);
    bool ok = recorder_run_pending(st);
    __atomic_store_n(&st->tape, NULL, __ATOMIC_RELEASE);
    if (tape->broken) ok = fl_fail("recorder_end: the step did something that cannot be replayed");
    for (int64_t i = 0; ok && i < tape->list.n; i++)
        ok = recorder_replayable(tape, tape->list.call[i]);
    ok = ok && recorder_plan(tape);
    pthread_mutex_unlock(&st->lock);
    if (ok) return tape;
    recorder_free(tape);
    return NULL;
}

/* Runs the tape's calls again. False after fl_fail; what was written in place until then stays
   written. */
static inline bool recorder_replay(recorder_tape *tape) {
    recorder_state *st = tape ? recorder_in_use() : NULL;
    if (!st) return fl_fail("recorder_replay: there is no tape");
    fl_rng now = fl_rng_state();
    pthread_mutex_lock(&st->lock);
    bool ok = recorder_run_pending(st);
    fl_quiet(+1);
    for (int64_t i = 0; ok && i < tape->list.n; i++) {
        recorder_call *r = tape->list.call[i];
        uint64_t args[RECORDER_ARGS / 8];
        const size_t bytes = fl_op_get_info(r->op)->args_size;
        fl_rng *rng = bytes <= sizeof args ? fl_op_rng(r->op, args) : NULL;
        if (rng) {
            memcpy(args, r->args, bytes);
            *rng = (fl_rng){now.key, rng->counter - tape->begin.counter + now.counter};
        }
        ok = recorder_run(r, rng ? args : NULL);
        st->count.replayed += ok;
    }
    fl_quiet(-1);
    pthread_mutex_unlock(&st->lock);
    fl_rng_set_state((fl_rng){now.key, now.counter + tape->end.counter - tape->begin.counter});
    return ok;
}

#endif
/* MIT licence: see LICENSE. */
