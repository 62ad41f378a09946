/* examples/extend/batch.h - automatic batching: runs the like calls of many samples as one call

    static fl_var *loss_of(void *user, int64_t i) { ... any code, other shapes for each sample ... }
    fl_batch_each(loss_of, user, n, .sum = &loss, .backward = true);

   A graph records all samples, their sum and its backward pass. Before it runs, calls of one op with the same
   shapes, arguments and weights at the same depth (the longest chain of calls that they depend on) form a
   group, which runs as one call: its operands are stacked along a new first axis, or are more rows, and the
   results are parts of its result. Operands that are such parts at equal distances are used where they are,
   others are copied. Gradients of a shared matrix, products over a sample's rows, are not added one by one: a
   product over all rows is their sum. Ops without a rule run one by one, which is only slower.

   Products of more rows may round differently: results equal the loop's within about 1e-5, not bit by bit.
   What the host reads (fl_item) runs before, one by one. Look up embeddings before, for all samples, because
   each lookup has a gradient of the size of the table. Recording a call takes longer than an op on a few
   hundred numbers, so that networks narrower than about 100 do not gain on a CPU. */
#ifndef BATCH_H
#define BATCH_H
#include "../../fl_graph.h"
#include "../../fl_autograd.h"
#include "../../fl/ops/ops.h"
#include "../../fl/records/linear.h"
#include <stdio.h>
#include <string.h>

typedef fl_var *(*fl_batch_fn)(void *user, int64_t i); /* the result of sample i; NULL after an error */
typedef struct fl_batch_opts {
    fl_opts_guard guard_;
    fl_var **results; /* [n]: receives the results, which the innermost scope owns; NULL: not needed */
    fl_var **sum;     /* receives their sum, for which they have one shape; NULL: not needed */
    bool backward;    /* fl_backward of the sum */
    char _end;
} fl_batch_opts;
/* Calls fn(user, i) for 0 <= i < n. The sum of no results is a constant 0. False after an error, which names
   the sample if it is known; results and gradients are undefined then. */
#define fl_batch_each(...) FL__BATCH_EACH(__VA_ARGS__, ._end = 0)
#define FL__BATCH_EACH(f, user, n, ...) fl_batch_each_opt(f, user, n, FL_LITERAL(fl_batch_opts, __VA_ARGS__))

/* How 4 outputs and the inputs of an op are joined. p: along a new first axis, r: as rows, c: as columns, s:
   it is the same for all, o: the first one's alone, 0: left out. Arguments name axes after the new one. */
typedef struct batch_rule {
    const char *op;
    char role[13];
    enum { BATCH_NO_AXIS, BATCH_AXIS, BATCH_AXES } args;
} batch_rule;
static const batch_rule batch_rules[] = {
    {"copy", "p   p", 0}, {"fill", "p", 0}, {"where", "p   ppp", 0}, {"grad1", "p   ppp", 0},
    {"grad2", "pp  pppp", 0}, {"matmul", "p   pp", 0}, {"sum", "p   p", BATCH_AXES},
    {"amax", "p   p", BATCH_AXES}, {"gather", "p   pp", BATCH_AXIS}, {"concat", "p   pppppppp", BATCH_AXIS},
    {"softmax", "p   p", BATCH_AXIS}, {"softmax_grad", "p   pp", BATCH_AXIS},
    {"log_softmax", "p   p", BATCH_AXIS}, {"log_softmax_grad", "p   pp", BATCH_AXIS},
    {"linear", "rr  rss", 0}, {"linear_grad", "r00 r0s", 0}, {"cross_entropy", "rrr rr", 0},
    {"cross_entropy_grad", "r   rrrrr", 0}};
static const batch_rule batch_formula = {"", "p   pp", 0}, batch_rows = {"", "r   rs", 0};
/* Products of which sums are made: of matmul's output, of linear_grad's outputs 1 and 2. */
static const batch_rule batch_sums[] = {{"", "o   cr", 0}, {"", "0o0 rr0", 0}, {"", "00o r00", 0}};

typedef struct batch_group { /* n calls of one kind and depth, or of products of which it is the sum */
    struct batch_group *next;
    const batch_rule *rule;
    int64_t depth, n, cap;
    int *call;
} batch_group;
typedef struct batch_value { /* of the graph's value of the same index */
    fl_buffer *memory;       /* it begins at byte `at`; NULL: not made yet */
    int64_t at, written, read; /* depths of the last calls that do */
    int sample;
    bool before, summed;     /* there before the graph, mapped; a product of a sum reads it */
    batch_group *sum;        /* that it is, as long as only sums need it */
} batch_value;
typedef struct batch {
    fl_graph_list l;
    batch_value *value;
    batch_group **deep;      /* lists by depth */
    int64_t deep_cap, deepest, floor; /* calls to come are deeper than floor */
    int sample;
    bool failed;
    const batch_rule *rule[FL_MAX_OPS];
} batch;

/* Prepends the number of the sample, -1: not known, to the error. */
static inline bool batch_fail(int64_t sample) {
    char text[800];
    snprintf(text, sizeof text, "%s", fl_error() ? fl_error() : "there is no result");
    fl_error_clear();
    return sample < 0 ? fl_fail("fl_batch_each: %s", text)
                      : fl_fail("fl_batch_each: sample %lld: %s", (long long)sample, text);
}

/* Operand k of c, outputs from 0 and inputs from 4; NULL: it has none, it is a number, or left out. */
static inline fl_tensor *batch_operand(const fl_graph_call *c, const batch_rule *rule, int k) {
    if (k < 4 ? k >= c->call.n_out : k - 4 >= c->call.n_in) return NULL;
    fl_tensor *t = k < 4 ? c->call.out[k] : c->call.in[k - 4];
    return t && !t->weak && !(rule && rule->role[k] == '0') ? t : NULL;
}

static inline bool batch_is_sum(const batch_rule *rule) {
    return rule >= batch_sums && rule < batch_sums + 3;
}

/* ---- grouping ---- */

static inline bool batch_append(batch_group *g, int i) {
    if (!fl_heap_grow(&g->call, &g->cap, g->n + 1, sizeof *g->call)) return false;
    return g->call[g->n++] = i, true;
}

static inline bool batch_link(batch *b, batch_group *g, int64_t depth) {
    if (!fl_heap_grow(&b->deep, &b->deep_cap, depth + 1, sizeof *b->deep)) return false;
    while (b->deepest < depth) b->deep[++b->deepest] = NULL;
    g->depth = depth;
    g->next = b->deep[depth];
    b->deep[depth] = g;
    return true;
}

static inline void batch_group_free(batch_group *g) {
    if (g) fl_heap_free(g->call);
    fl_heap_free(g);
}

/* A call needs v: if it is a sum, that becomes a group. */
static inline bool batch_need(batch *b, batch_value *v) {
    batch_group *g = v->sum;
    v->sum = NULL;
    if (!g) return true;
    v->written = 1 + (g->depth > b->floor ? g->depth : b->floor);
    for (int64_t i = 0; i < g->n * 8; i++) {
        const fl_graph_call *c = &b->l.call[g->call[i / 8]];
        batch_value *x = batch_operand(c, g->rule, 4 + i % 8) ? &b->value[c->value[4 + i % 8]] : NULL;
        if (x && x->read < v->written) x->read = v->written;
    }
    return batch_link(b, g, v->written) || (batch_group_free(g), false);
}

static inline bool batch_need_all(batch *b) {
    bool ok = true;
    for (int64_t i = 0; ok && i < b->l.n_values; i++) ok = batch_need(b, &b->value[i]);
    return ok;
}

/* in[0] += in[1] of two sums is one of all products. False if c is another call. */
static inline bool batch_adds(const batch *b, const fl_graph_call *c, bool *ok) {
    if (c->call.op != FL_OP_add || c->call.in[0] != c->call.out[0] || c->call.in[1]->weak) return false;
    batch_group *g = b->value[c->value[0]].sum, *more = b->value[c->value[5]].sum;
    const fl_tensor *to = c->call.out[0], *from = c->call.in[1];
    if (!g || !more || g == more || g->rule != more->rule || !fl_is_dense(to) ||
        memcmp(to->stride, from->stride, (size_t)to->ndim * sizeof *to->stride) ||
        fl_numel(to) * (int64_t)fl_dtype_size(to->dtype) != b->l.value[c->value[0]].bytes) return false;
    if (more->depth > g->depth) g->depth = more->depth;
    for (int64_t i = 0; *ok && i < more->n; i++) *ok = batch_append(g, more->call[i]);
    return true;
}

static inline bool batch_alike(const fl_graph_call *c, const fl_graph_call *d, const batch_rule *rule) {
    const size_t args = c->call.args ? fl_op_get_info(c->call.op)->args_size : 0;
    if (c->call.op != d->call.op || c->call.n_out != d->call.n_out || c->call.n_in != d->call.n_in ||
        c->state != d->state || (args && memcmp(c->call.args, d->call.args, args))) return false;
    for (int k = 0; k < c->call.n_in; k++)
        if (c->call.in[k]->weak && (memcmp(&c->call.in[k]->f64, &d->call.in[k]->f64, sizeof(double)) ||
                                    c->call.in[k]->i64 != d->call.in[k]->i64)) return false;
    for (int k = 0; k < 12; k++) {
        const fl_tensor *x = batch_operand(c, rule, k), *y = batch_operand(d, rule, k);
        if (!x != !y) return false;
        if (!x) continue;
        const int rows = rule && rule->role[k] == 'r'; /* their number may differ */
        const size_t bytes = (size_t)(x->ndim - rows) * sizeof *x->shape;
        if (x->dtype != y->dtype || x->backend != y->backend || x->ndim != y->ndim ||
            memcmp(x->shape + rows, y->shape + rows, bytes) ||
            memcmp(x->stride + rows, y->stride + rows, bytes)) return false;
        const bool shared = rule && rule->role[k] == 's';
        if (shared && (c->value[k] != d->value[k] || x->offset != y->offset)) return false;
    }
    return true;
}

/* Adds call i to its group, or, by a rule of sums, makes its output a sum. */
static inline bool batch_add(batch *b, int i, const batch_rule *rule) {
    const fl_graph_call *c = &b->l.call[i];
    const bool sum = batch_is_sum(rule);
    int64_t depth = b->floor;
    int sample = b->sample, output = 0;
    bool ok = true;
    for (int k = 12; ok && k-- > 0;) { /* inputs first */
        const fl_tensor *t = batch_operand(c, rule, k);
        if (!t) continue;
        batch_value *v = &b->value[c->value[k]];
        ok = k < 4 && v->summed ? batch_need_all(b) : batch_need(b, v);
        v->summed |= sum && k >= 4;
        if (v->written > depth) depth = v->written;
        if (k < 4 && v->read > depth) depth = v->read;
        if (v->sample > sample) sample = v->sample;
        if (k < 4) v->sample = sample, output = k;
        if (rule && (t->ndim == FL_MAX_DIMS || (rule->args && !t->ndim))) rule = NULL;
    }
    for (int k = 0; k < 12; k++) {
        batch_value *v = sum || !batch_operand(c, rule, k) ? NULL : &b->value[c->value[k]];
        if (v && k < 4 && v->written <= depth) v->written = depth + 1;
        if (v && k >= 4 && v->read <= depth) v->read = depth + 1;
    }
    batch_group *g = sum || depth >= b->deepest ? NULL : b->deep[depth + 1];
    while (g && (g->rule != rule || !batch_alike(c, &b->l.call[g->call[0]], rule))) g = g->next;
    if (!ok || g) return ok && batch_append(g, i);
    if (!(g = fl_heap_alloc(sizeof *g))) return false;
    *g = (batch_group){.rule = rule, .depth = depth};
    if (sum) b->value[c->value[output]].sum = g;
    return (sum || batch_link(b, g, depth + 1)) && batch_append(g, i);
}

/* Adds what call i computes. */
static inline bool batch_take(batch *b, int i) {
    const fl_graph_call *c = &b->l.call[i];
    const batch_value *y = c->call.n_out && c->call.out[0] ? &b->value[c->value[0]] : NULL;
    bool ok = true;
    if (batch_adds(b, c, &ok)) return ok;
    if (c->call.op == fl_op_linear_grad) {
        for (int k = 1; ok && k < 3; k++) ok = !c->call.out[k] || batch_add(b, i, &batch_sums[k]);
        return ok && (!y || batch_add(b, i, b->rule[c->call.op]));
    }
    if (c->call.op != FL_OP_matmul || c->call.in[0]->ndim != 2) return batch_add(b, i, b->rule[c->call.op]);
    if (c->call.in[0]->shape[1] == 1 && !y->memory && !y->written) return batch_add(b, i, &batch_sums[0]);
    return batch_add(b, i, b->value[c->value[5]].before ? &batch_rows : b->rule[FL_OP_matmul]);
}

/* ---- running ---- */

static inline void batch_transpose(fl_tensor *t) {
    const int64_t shape = t->shape[0], stride = t->stride[0];
    t->shape[0] = t->shape[1], t->stride[0] = t->stride[1];
    t->shape[1] = shape, t->stride[1] = stride;
}

/* Operand k of call i where it is; with a role, as rows. */
static inline fl_tensor batch_place(const batch *b, int i, int k, char role) {
    const fl_graph_call *c = &b->l.call[i];
    const batch_value *v = &b->value[c->value[k]];
    fl_tensor t = k < 4 ? *c->call.out[k] : *c->call.in[k - 4];
    t.buffer = v->memory;
    t.offset += v->at / (int64_t)fl_dtype_size(t.dtype);
    if (role == 'c') batch_transpose(&t);
    if (role != 'p') return t;
    memmove(t.shape + 1, t.shape, (size_t)t.ndim * sizeof *t.shape);
    memmove(t.stride + 1, t.stride, (size_t)t.ndim++ * sizeof *t.stride);
    t.shape[0] = t.stride[0] = 1;
    return t;
}

/* Sets t to operand k of all calls of g: where it is or, an input, copied. False if neither is possible. */
static inline bool batch_join(const batch *b, const batch_group *g, int k, fl_op op, fl_tensor *t) {
    const char role = g->rule->role[k];
    const int64_t n = role == 's' || role == 'o' ? 1 : g->n;
    fl_tensor row = *t = batch_place(b, g->call[0], k, role);
    const fl_backend *be = fl_backend_at(t->backend);
    const int64_t size = (int64_t)fl_dtype_size(t->dtype);
    if (n > 1 && row.shape[0] == 1) t->stride[0] = batch_place(b, g->call[1], k, role).offset - row.offset;
    bool there = true;
    for (int64_t i = 1; i < n; i++) {
        row = batch_place(b, g->call[i], k, role);
        there &= row.buffer == t->buffer && row.offset == t->offset + t->shape[0] * t->stride[0] &&
                 (row.shape[0] == 1 || row.stride[0] == t->stride[0]) &&
                 (row.ndim < 2 || row.stride[1] == t->stride[1]);
        t->shape[0] += row.shape[0];
    }
    if (!there || (k >= 4 && be->flags[op] & FL_SLOT_CONTIGUOUS && !fl_is_contiguous(t))) {
        fl_tensor *all = k < 4 ? NULL : fl_out_on(t->backend, fl_shape_of(t), t->dtype);
        if (!all || !fl_out_allocate(all)) return false;
        *t = *all;
        for (int64_t i = 0; i < n; i++, t->offset += row.shape[0] * t->stride[0]) {
            const fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {t}, .in = {&row}};
            row = batch_place(b, g->call[i], k, role);
            t->shape[0] = row.shape[0];
            if (!be->place && !be->map && fl_is_contiguous(&row))
                memcpy((char *)t->buffer->ptr + t->offset * size, (char *)row.buffer->ptr + row.offset * size,
                       (size_t)(fl_numel(&row) * size));
            else if (!fl_call_run_taken(&copy, b->l.call[g->call[0]].state)) return false;
        }
        *t = *all;
    }
    if (role == 'c') batch_transpose(t);
    return true;
}

/* Runs call i of g; with `joined` all as one. False if that is not possible. */
static inline bool batch_call(const batch *b, const batch_group *g, int64_t i, bool joined) {
    const fl_graph_call *of = &b->l.call[g->call[i]];
    fl_tensor t[12], none = {.weak = true, .backend = FL_ANY_BACKEND, .dtype = FL_F32};
    fl_call c = of->call;
    union { char bytes[512]; fl_axis_args one; fl_reduce_args bits; } args;
    for (int k = 0; k < 12; k++) {
        fl_tensor **x = k < 4 ? &c.out[k] : &c.in[k - 4];
        if (batch_operand(of, g->rule, k)) *x = &t[k];
        else if (g->rule && g->rule->role[k] == '0') *x = k < 4 ? NULL : &none;
        if (*x != &t[k] || (k < 4 ? k >= c.n_out : k - 4 >= c.n_in)) continue;
        if (!joined) t[k] = batch_place(b, g->call[i], k, 0);
        else if (!batch_join(b, g, k, c.op, &t[k])) return false;
    }
    if (joined && g->rule->args) memcpy(&args, c.args, fl_op_get_info(c.op)->args_size), c.args = &args;
    if (joined && g->rule->args == BATCH_AXIS) args.one.axis++;
    if (joined && g->rule->args == BATCH_AXES) args.bits.axes <<= 1;
    return fl_call_run_taken(&c, of->state);
}

/* The buffers of results: their tags are the memory that they are parts of. */
static inline void batch_put(fl_mem_manager *m, fl_buffer *b) {
    (void)m;
    fl_buffer_use(b->tag, b->stream);
    fl_buffer_drop(b->tag);
}
static fl_mem_manager batch_memory = {.name = "batch", .put = batch_put};

/* Adjacent memory for operand k of the calls of g, n of which make it. */
static inline bool batch_allocate(const batch *b, const batch_group *g, int k, int64_t n) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const int at = b->l.call[g->call[i]].value[k];
        if (!b->value[at].memory) b->value[at].at = bytes, bytes += b->l.value[at].bytes;
    }
    fl_tensor *all = fl_out_on(b->l.call[g->call[0]].call.out[k]->backend, FL_SHAPE(bytes), FL_U8);
    if (!all || !fl_out_allocate(all) || !fl_buffer_map(all->buffer)) return false;
    for (int64_t i = 0; i < n; i++) {
        batch_value *v = &b->value[b->l.call[g->call[i]].value[k]];
        if (!v->memory) v->memory = fl_buffer_keep(all->buffer);
    }
    return true;
}

/* Value `at` is made: the program's buffer, if it still has it, becomes a part of its memory. */
static inline void batch_made(const batch *b, int at) {
    const batch_value *v = &b->value[at];
    fl_buffer *result = b->l.value[at].buffer;
    if (result->state != FL_LAZY || !fl_buffer_refs(result)) return;
    result->ptr = (char *)v->memory->ptr + v->at;
    result->manager = &batch_memory, result->tag = fl_buffer_keep(v->memory);
    result->stream = v->memory->stream, result->restore = NULL;
    fl_buffer_resident(result);
}

static inline bool batch_run_group(const batch *b, const batch_group *g) {
    const bool sum = batch_is_sum(g->rule);
    bool ok = true;
    for (int k = 0; ok && k < 4; k++)
        if (batch_operand(&b->l.call[g->call[0]], g->rule, k)) ok = batch_allocate(b, g, k, sum ? 1 : g->n);
    const bool joined = ok && g->rule && (sum || g->n > 1) && batch_call(b, g, 0, true);
    if (!joined && (sum || !ok)) return batch_fail(-1);
    if (!joined) fl_error_clear(); /* one by one, which also finds the sample that fails */
    for (int64_t i = 0; i < (sum ? 1 : g->n); i++) {
        const fl_graph_call *c = &b->l.call[g->call[i]];
        const int first = !c->call.out[0]; /* of a gradient for two operands, one may be left out */
        if (!joined && !batch_call(b, g, i, false)) return batch_fail(b->value[c->value[first]].sample);
        for (int k = 0; k < 4; k++)
            if (batch_operand(c, g->rule, k)) batch_made(b, c->value[k]);
    }
    return true;
}

/* Frees g, and the values that no deeper call needs. */
static inline void batch_end_group(const batch *b, batch_group *g) {
    for (int64_t i = 0; i < g->n * 12; i++) {
        const fl_graph_call *c = &b->l.call[g->call[i / 12]];
        if (!batch_operand(c, g->rule, i % 12)) continue;
        batch_value *v = &b->value[c->value[i % 12]];
        if (v->before || v->read > g->depth || v->written > g->depth) continue;
        fl_buffer_drop(v->memory);
        v->memory = NULL;
    }
    batch_group_free(g);
}

/* Begins a sample, in the list: its number, from 1. */
static inline bool batch_sample(void *number) {
    return (void)number, true;
}

/* The first call of the graph: runs the others, and takes them out. */
static inline bool batch_run(void *user) {
    batch *b = user;
    bool ok = !b->failed;
    if (!b->l.n) return true; /* the host reads before the end */
    if (!(b->value = fl_heap_alloc((size_t)b->l.n_values * sizeof *b->value))) ok = false;
    for (int64_t i = 0; b->value && i < b->l.n_values; i++) {
        const fl_graph_value *of = &b->l.value[i];
        b->value[i] = (batch_value){.sample = -1, .before = of->role < FL_GRAPH_OUTPUT};
        if (!b->value[i].before) continue;
        b->value[i].memory = fl_buffer_keep(of->buffer);
        ok &= fl_buffer_map(of->buffer) != NULL;
    }
    for (int i = 1; ok && i < b->l.n; i++) {
        const fl_graph_call *c = &b->l.call[i];
        if (c->fn == batch_sample) b->sample = (int)(intptr_t)c->user - 1;
        if (c->fn == batch_sample && b->sample < 0) b->floor = b->deepest;
        else if (c->call.op) ok = batch_take(b, i);
        else if (c->fn && c->fn != batch_sample) ok = fl_fail("fl_batch_each: a sample calls fl_graph_host");
    }
    for (int64_t i = 0; ok && i < b->l.n_values; i++)
        ok = !fl_buffer_refs(b->l.value[i].buffer) || batch_need(b, &b->value[i]);
    for (int64_t d = 0; d <= b->deepest; d++) {
        fl_scope s = fl_scope_begin();
        for (const batch_group *g = b->deep[d]; ok && g; g = g->next) ok = batch_run_group(b, g);
        for (batch_group *g = b->deep[d], *next; g; g = next) next = g->next, batch_end_group(b, g);
        fl_scope_end(&s);
    }
    for (int64_t i = 0; b->value && i < b->l.n_values; i++) {
        batch_group_free(b->value[i].sum);
        if (b->value[i].before) fl_buffer_unmap(b->value[i].memory);
        fl_buffer_drop(b->value[i].memory);
    }
    for (int64_t i = 1; i < b->l.n; i++) b->l.call[i].fn = NULL, b->l.call[i].call.op = FL_OP_NONE;
    fl_heap_free(b->value);
    fl_heap_free(b->deep);
    return ok;
}

static inline bool batch_samples(fl_batch_fn fn, void *user, int64_t n, fl_var **result,
                                 const fl_batch_opts *o) {
    for (int64_t i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        fl_graph_host(batch_sample, (void *)(intptr_t)(i + 1));
        fl_var *y = fn(user, i);
        if (!(result[i] = fv_scope_return(&s, fl_error() ? NULL : y))) return batch_fail(i);
    }
    fl_graph_host(batch_sample, NULL);
    if (!o->sum && !o->backward) return true;
    fl_var *sum = n ? fv_sum(fv_stack(result, (int)n, 0), FL_AXES(0))
                    : fv_const(fl_zeros(FL_SCALAR_SHAPE, FL_F32));
    fl_graph_host(batch_sample, NULL);
    if (o->sum) *o->sum = sum;
    return sum && (!o->backward || !n || fl_backward(sum));
}

static inline bool fl_batch_each_opt(fl_batch_fn fn, void *user, int64_t n, fl_batch_opts o) {
    if (!fn || n < 0 || n > INT32_MAX)
        return fl_err_false("fl_batch_each: got %lld samples%s", (long long)n, fn ? "" : ", and no function");
    if (fl_error()) return false;
    batch *b = fl_heap_alloc(sizeof *b);
    fl_var **result = o.results ? o.results : fl_heap_alloc((size_t)(n + 1) * sizeof *result);
    fl_graph *g = fl_graph_new();
    bool ok = false;
    fl_quiet(+1);
    if (b && result && g && fl_graph_begin(g)) {
        *b = (batch){.deepest = -1};
        for (fl_op op = 1; op < fl_op_count(); op++)
            if (fl_op_get_info(op)->arity) b->rule[op] = &batch_formula;
        for (size_t i = 0; i < sizeof batch_rules / sizeof *batch_rules; i++)
            b->rule[fl_op_by_name(batch_rules[i].op)] = &batch_rules[i];
        ok = fl_graph_host(batch_run, b) && batch_samples(fn, user, n, result, &o);
        b->failed = !ok;
        const fl_graph_list l = fl_lazy_calls();
        if (l.n && l.call[0].fn == batch_run) b->l = l;
        ok = fl_graph_end(g) && ok;
    }
    fl_quiet(-1);
    fl_graph_free(g);
    fl_heap_free(b);
    if (!o.results) fl_heap_free(result);
    return ok || fl_raise();
}
#endif
/* MIT licence: see LICENSE. */
