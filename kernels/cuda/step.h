/* kernels/cuda/step.h - optimizer steps and sums of squares on backend cuda, launched in batches

   Calls wait in a queue of their rule and kinds of scalars; the queues hold their buffers. They are launched
   together before anything else is started, copied or waited for, or when one writes what another uses. So a
   step over all parameters of a network is one launch for each rule and dtype, and the squares of its
   gradients are one. A rule is compiled (program.h); without NVRTC it runs op by op. */
#ifndef FL_CUDA_STEP_H
#define FL_CUDA_STEP_H
#include "backend.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cuda_step_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_STEP_IMPL
#define FL_CUDA_STEP_IMPL
#include "../../fl/records/step.h"
#include "program.h"
#include <pthread.h>
#include <string.h>

enum { FL__CUDA_RULES = 4, FL__CUDA_HELD = FL__CUDA_RULES * FLK_MANY * 10, FL__CUDA_HELD_SLOTS = 16384 };

typedef struct fl__cuda_rule {
    flk_step_rule rule;
    fl_formula program;
    flk_step_list steps;
    void *kernel; /* on the device of the queue's stream; NULL: unused */
} fl__cuda_rule;

static struct {
    pthread_mutex_t lock;
    fl__cuda_rule rule[FL__CUDA_RULES];
    int next; /* the rule that a new one replaces */
    flk_squares_list squares;
    int dtype;       /* of the sums of squares */
    fl_buffer *work; /* of the sums of squares */
    void *stream;    /* of all queued calls */
    /* Hash table of buffers in use by address; `written` says which are written. */
    fl_buffer *held[FL__CUDA_HELD];
    bool written[FL__CUDA_HELD];
    int n_held;
    int16_t slot[FL__CUDA_HELD_SLOTS]; /* index of a buffer in held, plus 1 */
} fl__cuda_queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Launches the queued calls; the lock is held, by flk_run. */
static const char *fl__cuda_leave(void) {
    const char *why = NULL;
    void *const now = flk_swap_stream(fl__cuda_queue.stream);
    for (int i = 0; i < FL__CUDA_RULES; i++) {
        fl__cuda_rule *q = &fl__cuda_queue.rule[i];
        if (q->steps.n && !why) why = flk_step(&q->rule, &q->steps, q->kernel);
        q->steps.n = 0;
    }
    if (fl__cuda_queue.squares.n) {
        double *part = fl__cuda_queue.work->ptr;
        int *ended = (int *)(part + FLK_MANY * FLK_SQUARES_PARTS);
        if (!(why = flk_zero(ended, sizeof *ended)))
            why = flk_squares(&fl__cuda_queue.squares, fl__cuda_queue.dtype, part, ended);
    }
    fl__cuda_queue.squares.n = 0;
    for (int i = 0; i < fl__cuda_queue.n_held; i++) fl_buffer_drop(fl__cuda_queue.held[i]);
    if (fl__cuda_queue.n_held) memset(fl__cuda_queue.slot, 0, sizeof fl__cuda_queue.slot);
    fl__cuda_queue.n_held = 0;
    fl_buffer_drop(fl__cuda_queue.work);
    fl__cuda_queue.work = NULL;
    flk_before_next(NULL);
    flk_swap_stream(now);
    return why;
}

/* Launches calls queued by another stream before adding one of this stream. */
static const char *fl__cuda_enter(bool leaves) {
    void *stream = flk_stream_in_use();
    const bool other = stream != fl__cuda_queue.stream;
    const char *why = leaves || other ? flk_run(fl__cuda_leave) : NULL;
    for (int i = 0; other && i < FL__CUDA_RULES; i++) /* the device may be another one */
        fl__cuda_queue.rule[i].kernel = NULL;
    fl__cuda_queue.stream = stream;
    return why;
}

static const char *fl__cuda_leave_now(void) {
    pthread_mutex_lock(&fl__cuda_queue.lock);
    const char *why = flk_run(fl__cuda_leave);
    pthread_mutex_unlock(&fl__cuda_queue.lock);
    return why;
}

/* The slot of a buffer: its own, or a free one. */
static int fl__cuda_held_at(const fl_buffer *b) {
    uint32_t at = (uint32_t)((uintptr_t)b >> 6) * 2654435761u >> 18;
    while (fl__cuda_queue.slot[at] && fl__cuda_queue.held[fl__cuda_queue.slot[at] - 1] != b)
        at = (at + 1) % FL__CUDA_HELD_SLOTS;
    return (int)at;
}

/* Whether a use of b conflicts with the queued calls. */
static bool fl__cuda_disturbs(const fl_buffer *b, bool writes) {
    const int i = fl__cuda_queue.slot[fl__cuda_held_at(b)];
    return i && (writes || fl__cuda_queue.written[i - 1]);
}

static void fl__cuda_hold(fl_buffer *b, bool writes) {
    const int at = fl__cuda_held_at(b);
    if (!fl__cuda_queue.slot[at]) {
        fl__cuda_queue.held[fl__cuda_queue.n_held] = fl_buffer_keep(b);
        fl__cuda_queue.written[fl__cuda_queue.n_held] = false;
        fl__cuda_queue.slot[at] = (int16_t)++fl__cuda_queue.n_held;
    }
    fl__cuda_queue.written[fl__cuda_queue.slot[at] - 1] |= writes;
}

/* ---- slots ---- */

/* Whether t is contiguous in some order of its axes. */
static bool fl__cuda_dense(const fl_tensor *t) {
    int order[FL_MAX_DIMS];
    int64_t step = 1;
    bool ok = true;
    fl_axes_by_stride(t, order);
    for (int i = t->ndim; ok && i-- > 0;) {
        ok = t->shape[order[i]] == 1 || t->stride[order[i]] == step;
        step *= t->shape[order[i]];
    }
    return ok;
}

static bool fl__cuda_lie_alike(const fl_tensor *a, const fl_tensor *b) {
    bool ok = true;
    for (int i = 0; i < a->ndim; i++) ok &= a->stride[i] == b->stride[i] || a->shape[i] == 1;
    return ok;
}

/* Describes the call. Returns false if the kernel does not support it. */
static bool fl__cuda_step_of(flk_step_rule *r, flk_step_entry *e, fl_tensor **t, const fl_call *c) {
    const fl_step_args *rule = c->args;
    const int n = rule->n_reads + rule->n_writes, narrow = c->n_out - rule->n_writes;
    memset(r, 0, sizeof *r);
    memset(e, 0, sizeof *e);
    if (n > 7 || c->n_in - n > 6) return false;
    r->n_reads = rule->n_reads;
    r->n_writes = rule->n_writes;
    r->narrow = narrow;
    r->skips = rule->skips;
    r->n_numbers = c->n_in - n;
    for (int i = 0; i < n; i++) t[i] = c->in[i];
    if (narrow) t[n] = c->out[0];
    e->n = fl_numel(t[n - 1]);
    for (int i = 0; i < n + narrow; i++) {
        if (!fl__cuda_dense(t[i]) || !fl__cuda_lie_alike(t[i], t[n - 1])) return false;
        r->dtype[i] = (int)t[i]->dtype;
        e->p[i] = fl_data(t[i]);
    }
    for (int i = 0; i < r->n_numbers; i++) {
        const fl_tensor *x = c->in[n + i];
        r->weak[i] = x->weak ? x->f64 : 0;
        r->number_dtype[i] = (int)x->dtype;
        r->numbers[i] = (int)fl_numel(x);
        r->number_step[i] = x->ndim ? (int)x->stride[0] : 1;
        e->number[i] = x->weak ? NULL : fl_data(x);
    }
    r->n_constants = rule->program.n_constants;
    memcpy(r->constant, rule->program.constant, sizeof r->constant);
    return true;
}

/* The queue of a rule; NULL if it is new. */
static fl__cuda_rule *fl__cuda_queue_of(const flk_step_rule *r, const fl_formula *f) {
    for (int i = 0; i < FL__CUDA_RULES; i++) {
        fl__cuda_rule *q = &fl__cuda_queue.rule[i];
        const bool alike = q->kernel && !memcmp(r, &q->rule, sizeof *r);
        if (alike && !memcmp(f, &q->program, fl__formula_bytes(f))) return q;
    }
    return NULL;
}

/* The queue that a new rule gets, which another one's was. */
static fl__cuda_rule *fl__cuda_queue_new(const flk_step_rule *r, const fl_formula *f, void *kernel) {
    fl__cuda_rule *q = &fl__cuda_queue.rule[fl__cuda_queue.next];
    fl__cuda_queue.next = (fl__cuda_queue.next + 1) % FL__CUDA_RULES;
    memcpy(&q->rule, r, sizeof *r);
    q->program = *f;
    q->kernel = kernel;
    return q;
}

/* Adds a call to the queue of its rule; false: the rule has no kernel. *why: what failed. */
static bool fl__cuda_enqueue(const fl_call *c, const flk_step_rule *r, const flk_step_entry *e,
                             fl_tensor *const *t, const char **why) {
    const fl_formula *f = &((const fl_step_args *)c->args)->program;
    const int n = r->n_reads + r->n_writes + r->narrow;
    *why = fl__cuda_enter(false);
    fl__cuda_rule *q = fl__cuda_queue_of(r, f);
    void *kernel = q ? q->kernel : fl__cuda_step_kernel(r, f);
    if (!kernel) return false;
    bool leaves = fl__cuda_queue.squares.n ||
                  (q ? q->steps.n == FLK_MANY : fl__cuda_queue.rule[fl__cuda_queue.next].steps.n);
    for (int i = 0; i < n; i++) leaves |= fl__cuda_disturbs(t[i]->buffer, i >= r->n_reads);
    for (int i = n - r->narrow; i < c->n_in; i++)
        leaves |= !c->in[i]->weak && fl__cuda_disturbs(c->in[i]->buffer, false);
    if (leaves && !*why) *why = flk_run(fl__cuda_leave);
    if (!q) q = fl__cuda_queue_new(r, f, kernel);
    q->steps.entry[q->steps.n++] = *e;
    for (int i = 0; i < n; i++) fl__cuda_hold(t[i]->buffer, i >= r->n_reads);
    for (int i = n - r->narrow; i < c->n_in; i++)
        if (!c->in[i]->weak) fl__cuda_hold(c->in[i]->buffer, false);
    flk_before_next(fl__cuda_leave_now);
    return true;
}

FL_CUDA_SLOT(fl__cuda_step) {
    flk_step_rule r;
    flk_step_entry e;
    fl_tensor *t[8];
    const char *why;
    if (!fl_step_args_of(c)) return false;
    if (!fl__cuda_step_of(&r, &e, t, c)) return fl_call_compose(c);
    if (!e.n) return true;
    pthread_mutex_lock(&fl__cuda_queue.lock);
    const bool queued = fl__cuda_enqueue(c, &r, &e, t, &why);
    pthread_mutex_unlock(&fl__cuda_queue.lock);
    return queued ? fl__cuda_started(c, why) : fl_call_compose(c);
}

FL_CUDA_SLOT(fl__cuda_sum_squares) {
    enum { BYTES = (FLK_MANY * FLK_SQUARES_PARTS + 1) * sizeof(double) };
    fl_tensor *sum = c->in[0], *x = c->in[1], *y = c->out[0];
    if ((!sum->weak && sum->dtype != FL_F64) || !fl__cuda_dense(x)) return fl_call_compose(c);
    if (!fl_out_make(y)) return false;
    flk_squares_entry e = {.n = fl_numel(x),
                           .p = fl_data(x),
                           .before = sum->weak ? NULL : fl_data(sum),
                           .y = fl_data(y)};
    flk_squares_list *l = &fl__cuda_queue.squares;
    const char *why = NULL;
    pthread_mutex_lock(&fl__cuda_queue.lock);
    e.follows = e.before && l->n && l->entry[l->n - 1].y == e.before;
    bool leaves = l->n == FLK_MANY || (int)x->dtype != fl__cuda_queue.dtype ||
                  fl__cuda_disturbs(x->buffer, false) || fl__cuda_disturbs(y->buffer, true);
    for (int i = 0; i < FL__CUDA_RULES; i++) leaves |= fl__cuda_queue.rule[i].steps.n > 0;
    if (!sum->weak && !e.follows) leaves |= fl__cuda_disturbs(sum->buffer, false);
    why = fl__cuda_enter(leaves);
    if (!l->n) e.follows = false;
    fl__cuda_queue.dtype = (int)x->dtype;
    const bool has_work = fl__cuda_queue.work || (fl__cuda_queue.work = fl__cuda_scratch(c, BYTES));
    if (has_work) {
        l->entry[l->n++] = e;
        fl__cuda_hold(x->buffer, false);
        if (!sum->weak) fl__cuda_hold(sum->buffer, false);
        fl__cuda_hold(y->buffer, true);
        flk_before_next(fl__cuda_leave_now);
    }
    pthread_mutex_unlock(&fl__cuda_queue.lock);
    return has_work && fl__cuda_started(c, why);
}

FL_PRIVATE void fl__cuda_step_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_step, fl__cuda_step, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_sum_squares, fl__cuda_sum_squares, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
