/* fl/export/names.h - what the values of a step are called where it is written for something else than fl */
#ifndef FL_EXPORT_NAMES_H
#define FL_EXPORT_NAMES_H
#include "../../fl_graph.h"
#include "../nn/save.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names of the step's tensors. Values are found by their memory, so views of them do as well. */
typedef struct fl_export_opts {
    fl_opts_guard guard_;
    /* What the step keeps between two runs: weights, and in training the optimizer's state. Host memory among
       its items and tensors that the step does not use are left out. What the step writes in place and is not
       here is kept too, as state0, ... Tied weights have the name of the first. */
    const fl_nn_state *state;
    /* What it reads and the program changes between two steps, in the order of arguments; then all else is
       kept, the numbers of an optimizer's groups (lr first) too. None: all that is only read is an input. */
    const fl_data_named_tensor *inputs;
    int n_inputs;
    /* Its results that are still referenced; none: all, as output0, ...; else these alone. */
    const fl_data_named_tensor *outputs;
    int n_outputs;
    bool embed; /* C, ONNX: state and constants are part of the file, not one beside it */
    /* ONNX: the same step with other sizes, its inputs and outputs in the same order, and names of the sizes
       that differ, separated by spaces. */
    const fl_graph *other;
    const fl_data_named_tensor *other_inputs, *other_outputs;
    const char *sizes;
    char _end;
} fl_export_opts;

/* Internal to fl/export. */
typedef enum fl__export_kind {
    FL__EXPORT_UNUSED,
    FL__EXPORT_WORK, /* temporary */
    FL__EXPORT_INPUT,
    FL__EXPORT_STATE,
    FL__EXPORT_CONSTANT,
    FL__EXPORT_OUTPUT
} fl__export_kind;
typedef struct fl__export_value {
    fl__export_kind kind;
    const char *label; /* the name in fl; NULL: none, it is called by kind and number */
    char name[64];     /* an identifier, unlike all others */
    int number;        /* among those of its kind, in order */
    fl_dtype dtype;
    int64_t n;         /* elements of its memory */
    fl_shape shape;    /* of the tensor of the options, if it is all of the memory, row-major; else [n] */
    const fl_tensor *tensor; /* of the options, or NULL */
} fl__export_value;
typedef struct fl__export {
    fl_graph *g; /* opened */
    fl_graph_list l;
    fl__export_value *value;
    int n[FL__EXPORT_OUTPUT + 1]; /* values of each kind */
    fl_rng begin;                 /* the generator before the step, and the blocks that it takes */
    uint64_t draws;
    bool random; /* a call draws */
} fl__export;
/* Opens g but for the ops `kept`, and names its values. NULL after fl_fail. */
FL_PRIVATE fl__export *fl__export_new(const char *fn, const fl_graph *g, const char *kept,
                                      const fl_export_opts *o);
FL_PRIVATE void fl__export_free(fl__export *e);
/* The value of that kind and number. */
FL_PRIVATE int fl__export_find(const fl__export *e, fl__export_kind kind, int number);
/* A view of memory as a block of a row-major array: memory -> dims, the block from `start` of `size`; its
   dims are axes axis[0 .. n - 1] of the view, some reversed. The last dim is the place within the least
   stride. */
typedef struct fl__export_block {
    int n, n_reversed;
    fl_shape dims;
    int64_t start[FL_MAX_DIMS + 1], size[FL_MAX_DIMS + 1], axis[FL_MAX_DIMS], reversed[FL_MAX_DIMS];
    /* Dim i of the view without dims of 1 and of stride 0 is dim to_view[i] of the block; and back. */
    int64_t to_view[FL_MAX_DIMS], to_block[FL_MAX_DIMS];
    bool whole;
} fl__export_block;
/* False if t is no such block of n elements. */
FL_PRIVATE bool fl__export_block_of(const fl_tensor *t, int64_t n, fl__export_block *b);
FL_PRIVATE bool fl__export_same_shape(fl_shape a, fl_shape b);
/* The number of a call of fill, as its dtype stores it. */
FL_PRIVATE fl_number fl__export_filled(const fl_graph_call *call);
/* The text of a path's last part without its ending, as an identifier. */
FL_PRIVATE void fl__export_identifier(const char *text, char *to, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* FL_EXPORT_NAMES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_EXPORT_NAMES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_EXPORT_NAMES_IMPL
#define FL_EXPORT_NAMES_IMPL
#include <ctype.h>
#include <stdio.h>
#include <string.h>

FL_PRIVATE void fl__export_identifier(const char *text, char *to, size_t size) {
    size_t n = 0;
    if (!*text || isdigit((unsigned char)*text)) to[n++] = '_';
    for (; *text && n + 1 < size; text++) {
        const bool kept = (*text & 0x80) == 0 && isalnum((unsigned char)*text);
        if (kept || !n || to[n - 1] != '_') to[n++] = kept ? *text : '_';
    }
    to[n] = 0;
}

FL_PRIVATE fl_number fl__export_filled(const fl_graph_call *call) {
    const fl_fill_args *a = call->call.args;
    const fl_dtype d = call->call.out[0]->dtype;
    uint64_t bits = 0;
    fl_number_store(d, &bits, (fl_number){d != FL_I64, a->f64, a->i64});
    return fl_number_load(d, &bits);
}

FL_PRIVATE int fl__export_find(const fl__export *e, fl__export_kind kind, int number) {
    for (int64_t i = 0; i < e->l.n_values; i++)
        if (e->value[i].kind == kind && e->value[i].number == number) return (int)i;
    return -1;
}

FL_PRIVATE bool fl__export_same_shape(fl_shape a, fl_shape b) {
    return a.ndim == b.ndim && !memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof *a.dim);
}

FL_PRIVATE bool fl__export_block_of(const fl_tensor *t, int64_t n, fl__export_block *b) {
    int64_t offset = t->offset, left = n, step[FL_MAX_DIMS];
    memset(b, 0, sizeof *b);
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1 || t->stride[i] == 0) continue;
        const int64_t s = t->stride[i] < 0 ? -t->stride[i] : t->stride[i];
        int at = b->n++;
        for (; at > 0 && step[at - 1] < s; at--) step[at] = step[at - 1], b->axis[at] = b->axis[at - 1];
        step[at] = s, b->axis[at] = i;
        if (t->stride[i] < 0) offset -= s * (t->shape[i] - 1);
    }
    b->whole = true;
    if (b->n == FL_MAX_DIMS) return false;
    for (int i = 0; i < b->n; i++) {
        if (left % step[i]) return false;
        b->dims.dim[i] = left / step[i];
        b->start[i] = offset / step[i];
        b->size[i] = t->shape[b->axis[i]];
        if (b->start[i] + b->size[i] > b->dims.dim[i]) return false;
        b->whole &= b->size[i] == b->dims.dim[i];
        if (t->stride[b->axis[i]] < 0) b->reversed[b->n_reversed++] = i;
        offset %= step[i], left = step[i];
    }
    for (int i = 0; i < b->n; i++) {
        for (int k = 0; k < b->n; k++) b->to_block[i] += b->axis[k] < b->axis[i];
        b->to_view[b->to_block[i]] = i;
    }
    b->dims.dim[b->n] = left, b->start[b->n] = offset, b->size[b->n] = 1;
    b->whole &= left == 1;
    b->dims.ndim = b->n + 1;
    return offset < left;
}

static int fl__export_value_of(const fl__export *e, const fl_tensor *t) {
    for (int64_t i = 0; t && t->buffer && i < e->l.n_values; i++)
        if (e->l.value[i].buffer == t->buffer && e->l.value[i].first >= 0) return (int)i;
    return -1;
}

/* Gives value v a kind and its number, unless it has one; t: its tensor in the options, or NULL. */
static void fl__export_set(fl__export *e, int v, fl__export_kind kind, const char *label,
                           const fl_tensor *t) {
    if (v < 0 || e->value[v].kind != FL__EXPORT_UNUSED) return;
    e->value[v].dtype = e->l.value[v].handle->dtype;
    e->value[v].n = e->l.value[v].bytes / (int64_t)fl_dtype_size(e->value[v].dtype);
    e->value[v].shape = t && fl_is_contiguous(t) && fl_numel(t) == e->value[v].n ? fl_shape_of(t)
                                                                                 : FL_SHAPE(e->value[v].n);
    e->value[v].kind = kind;
    e->value[v].label = label;
    e->value[v].tensor = t;
    e->value[v].number = e->n[kind]++;
}

static bool fl__export_is_free(const fl__export *e, const char *name, int64_t but) {
    for (int64_t i = 0; i < e->l.n_values; i++)
        if (i != but && !strcmp(e->value[i].name, name)) return false;
    return true;
}

static void fl__export_name(fl__export *e, int64_t v) {
    static const char *const kinds[] = {NULL, NULL, "input", "state", "constant", "output"};
    fl__export_value *x = &e->value[v];
    char base[48];
    if (x->label) fl__export_identifier(x->label, base, sizeof base);
    else snprintf(base, sizeof base, "%s%d", kinds[x->kind], x->number);
    snprintf(x->name, sizeof x->name, "%s", base);
    for (int k = 2; !fl__export_is_free(e, x->name, v); k++)
        snprintf(x->name, sizeof x->name, "%s_%d", base, k);
}

/* Gives the n named tensors of the options that kind; each is memory of its own. */
static bool fl__export_ports(const char *fn, fl__export *e, fl__export_kind kind,
                             const fl_data_named_tensor *t, int n) {
    const bool input = kind == FL__EXPORT_INPUT;
    const char *all = input ? "inputs" : "outputs";
    if (n < 0 || (n && !t)) return fl_fail("%s: got %d %s%s", fn, n, all, t ? "" : ", and no array of them");
    for (int i = 0; i < n; i++) {
        const int v = fl__export_value_of(e, t[i].tensor);
        const fl__export_value *x = v < 0 ? NULL : &e->value[v];
        if (!t[i].name) return fl_fail("%s: %s %d has no name", fn, input ? "input" : "output", i);
        if (!x && input) return fl_fail("%s: the step does not read the input '%s'", fn, t[i].name);
        if (!input && (!x || e->l.value[v].role != FL_GRAPH_OUTPUT))
            return fl_fail("%s: '%s' is no result of the step", fn, t[i].name);
        if (x->kind != FL__EXPORT_UNUSED)
            return fl_fail("%s: '%s' and '%s' are the same memory", fn, t[i].name, x->label);
        fl__export_set(e, v, kind, t[i].name, t[i].tensor);
    }
    return true;
}

static bool fl__export_names(const char *fn, fl__export *e, const fl_export_opts *o) {
    for (int64_t i = 0; o->state && i < o->state->n; i++)
        fl__export_set(e, fl__export_value_of(e, o->state->item[i].tensor), FL__EXPORT_STATE,
                       o->state->item[i].name, o->state->item[i].tensor);
    if (!fl__export_ports(fn, e, FL__EXPORT_INPUT, o->inputs, o->n_inputs) ||
        !fl__export_ports(fn, e, FL__EXPORT_OUTPUT, o->outputs, o->n_outputs))
        return false;
    for (int64_t i = 0; i < e->l.n_values; i++) {
        static const fl__export_kind kinds[] = {FL__EXPORT_INPUT,    FL__EXPORT_STATE,  FL__EXPORT_STATE,
                                                FL__EXPORT_CONSTANT, FL__EXPORT_OUTPUT, FL__EXPORT_WORK};
        const fl_graph_value *v = &e->l.value[i];
        const bool extra = v->role == FL_GRAPH_OUTPUT && o->n_outputs;
        const bool kept = v->role == FL_GRAPH_INPUT && o->n_inputs;
        if (v->first < 0) continue;
        if (e->value[i].kind == FL__EXPORT_INPUT && v->role != FL_GRAPH_INPUT)
            return fl_fail("%s: the step writes the input '%s': make it part of the state", fn,
                           e->value[i].label);
        const fl__export_kind of = extra ? FL__EXPORT_WORK : kept ? FL__EXPORT_STATE : kinds[v->role];
        fl__export_set(e, (int)i, of, NULL, NULL);
    }
    for (int64_t i = 0; i < e->l.n_values; i++) /* many, and unlike each other by their numbers */
        if (e->value[i].kind <= FL__EXPORT_WORK)
            snprintf(e->value[i].name, sizeof e->value[i].name, "v%d", e->value[i].number);
    for (int64_t i = 0; i < e->l.n_values; i++)
        if (e->value[i].kind > FL__EXPORT_WORK) fl__export_name(e, i);
    return true;
}

FL_PRIVATE void fl__export_free(fl__export *e) {
    if (!e) return;
    fl_graph_free(e->g);
    fl_heap_free(e->value);
    fl_heap_free(e);
}

FL_PRIVATE fl__export *fl__export_new(const char *fn, const fl_graph *g, const char *kept,
                                      const fl_export_opts *o) {
    if (!fl_given(g, fn, "the graph")) return NULL;
    fl__export *e = fl_heap_alloc(sizeof *e);
    if (!e) return NULL;
    bool ok = (e->g = fl_graph_open(g, kept)) != NULL;
    if (ok) e->l = fl_graph_calls(e->g), e->begin = fl__graph_rng(e->g, &e->draws);
    const size_t bytes = (size_t)(e->l.n_values + 1) * sizeof *e->value;
    ok = ok && (e->value = fl_heap_alloc(bytes)) != NULL;
    for (int64_t i = 0; ok && i < e->l.n; i++)
        e->random |= fl_op_rng(e->l.call[i].call.op, (void *)(uintptr_t)e->l.call[i].call.args) != NULL;
    if (ok && fl__export_names(fn, e, o)) return e;
    fl__export_free(e);
    return NULL;
}

#endif
#endif
/* MIT licence: see LICENSE. */
