/* fl/graph/group.h - groups: element-wise calls of a list that run as one call of `formula`

   A group's calls have one shape, but for casts one dtype (f32 or f64), and the shipped slots of the cpu
   backend, or of cuda while it compiles programs (fl_compile): a replaced one is called. It runs where the
   first call comes that must see its results, or change what it reads; what only its calls use is never
   stored. Groups are made of calls in program order: a call joins the open group that made what it reads,
   else one that reads the same; two groups that meet in a call are joined if no order forbids it. Their
   results have the bits of the calls.

   A value that is one number everywhere, made by `fill` or by a copy of such a value, is a constant of the
   groups that read it, in whatever shape. The call that makes it is left out if nothing else reads the value,
   else it stays a call: a group would write the value no faster.

   Between b8 and numbers a cast is steps of the program. Between f32 and f64 it converts what the group reads
   or writes, on the cpu: what it makes in the other dtype, the group does not read.

   What `random`, `iota` and, of a value that the group has not computed, `dropout` make is computed block by
   block on the cpu: an input of the program without memory. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_GROUP_H
#define FL_GRAPH_GROUP_H
#include "../records/formula.h"
#include "compile.h"
#include "list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Internal to fl/graph. */
enum { FL__GROUP_CALLS = 48, FL__GROUP_INPUTS = 8 };
/* Operand k of a call: out[k], or in[k - 4]. */
typedef struct fl__operand_of {
    int call, k;
} fl__operand_of;
typedef struct fl__row_program fl__row_program; /* rows.h */
/* An entry of an order that is not one call of the list. */
typedef struct fl__group {
    int n_calls, call[FL__GROUP_CALLS];
    int n_in, n_out, n_numbers;
    fl__operand_of in[FL__GROUP_INPUTS], out[FL_FORMULA_OUTPUTS];
    bool mixed;        /* it reads or writes both f32 and f64 */
    uint8_t generated; /* bit j: input j is no operand, but what call in[j].call makes of input in[j].k */
    uint8_t shares[FL_FORMULA_OUTPUTS]; /* bit m: out[k] may have the memory of in[m], if that dies here */
    fl_dtype dtype; /* of its numbers */
    fl__row_program *rows; /* NULL: a call of `formula`: */
    fl__operand_of number[FL_FORMULA_CONSTANTS]; /* weak operands, and the constants that they are */
    uint8_t constant[FL_FORMULA_CONSTANTS];
    fl_formula_args args;
} fl__group;
/* The order in which a list runs: entry i is call run[i], or group -1 - run[i]. */
typedef struct fl__order {
    int *run;
    int n;
    int *first, *last; /* of each value: the entries that use it; -1: none, it is never stored */
    fl__group **group;
    int64_t n_groups, cap;
    int64_t tables; /* fl__table_changes() when it was made */
} fl__order;
/* The order of l in groups of calls of at least `least` elements; NULL if there is no group, or no memory.
   runs: here, so that there are groups of rows too and programs are compiled ahead. */
FL_PRIVATE fl__order *fl__order_new(const fl_graph_list *l, int64_t least, bool runs);
FL_PRIVATE void fl__order_free(fl__order *o);
/* True if the order, of a list of the same calls, can be l's: only l refers to what it never stores, and no
   slot was replaced since. */
FL_PRIVATE bool fl__order_fits(const fl__order *o, const fl_graph_list *l);
/* Entry i for a list of the same calls as the order's: a call of l, or *made of a group. */
typedef struct fl__grouped_call {
    fl_graph_call call;
    fl_formula_args args;
    const fl__group *group; /* of rows, mixed, or with generated inputs: call.user is this struct */
    const fl_graph_list *list;
} fl__grouped_call;
FL_PRIVATE const fl_graph_call *fl__order_call(const fl__order *o, const fl_graph_list *l, int i,
                                               fl__grouped_call *made);
/* For rows.h: a group of the first of n calls, as many as fit, whose results are all outputs; NULL if the
   first one does not. o owns it. */
typedef struct fl__grouping fl__grouping;
FL_PRIVATE fl__group *fl__group_of(fl__grouping *w, const int *call, int n);
/* A copy of g that o owns; NULL without memory. */
FL_PRIVATE fl__group *fl__order_keep(fl__order *o, const fl__group *g);
FL_PRIVATE bool fl__has_shipped_slot(int backend, fl_op op);
/* Maps the buffers of c's operands; unmaps the first n of them. */
FL_PRIVATE bool fl__operands_map(const fl_call *c);
FL_PRIVATE void fl__operands_unmap(const fl_call *c, int n);
/* True if another than the list refers to the value. */
FL_PRIVATE bool fl__is_held(const fl_graph_value *v);
#ifndef __cplusplus
static inline const fl_tensor *fl__operand_at(const fl_graph_list *l, fl__operand_of at) {
    const fl_call *c = &l->call[at.call].call;
    return at.k < 4 ? c->out[at.k] : c->in[at.k - 4];
}
static inline int fl__value_at(const fl_graph_list *l, fl__operand_of at) {
    return l->call[at.call].value[at.k];
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_GROUP_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_GROUP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_GROUP_IMPL
#define FL_GRAPH_GROUP_IMPL
#include "../../kernels/cpu/elementwise.h"
#include "rows.h"
#include <limits.h>
#include <string.h>

enum { FL__OPEN_GROUPS = 6 };

/* A value that an open group has computed: its index in the program. */
typedef struct fl__computed {
    int value, index;
    fl__operand_of at;
} fl__computed;

typedef struct fl__open_group {
    bool used;
    fl__group g;
    fl_formula_builder b;
    const fl_tensor *like; /* the layout of the outputs */
    uint64_t state;
    int n_computed, in_value[FL__GROUP_INPUTS];
    fl__computed computed[2 * FL__GROUP_CALLS];
} fl__open_group;

/* A value that is one number for the calls behind `from`, up to `until`. */
typedef struct fl__filled {
    int from, until;
    fl_dtype dtype;
    double number;
    enum { FL__UNUSED, FL__USED, FL__OVERWRITTEN } next; /* by the entries behind, in fl__order_drop_fills */
} fl__filled;

struct fl__grouping {
    const fl_graph_list *l;
    fl__order *o;
    int *reads; /* of each value, by the calls to come */
    fl__filled *filled; /* of each value */
    bool runs;          /* here */
    fl__open_group open[FL__OPEN_GROUPS];
};

static bool fl__same_layout(const fl_tensor *a, const fl_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->stride[i] != b->stride[i])) return false;
    return true;
}

/* ---- which calls join ---- */

FL_PRIVATE bool fl__has_shipped_slot(int backend, fl_op op) {
    const fl_backend *now = fl_backend_at(backend);
    const fl_backend *shipped = backend ? fl__programs_table(now) : fl_backend_cpu();
    return shipped && now->op[op] && now->op[op] == shipped->op[op];
}

static const fl_tensor *fl__first_output(const fl_call *c) {
    return c->out[0] ? c->out[0] : c->n_out > 1 ? c->out[1] : NULL;
}

/* The number of a weak operand is exact as a double. */
static bool fl__is_exact(const fl_tensor *t) {
    return fl_dtype_is_float(t->dtype) || (t->i64 > -(1LL << 53) && t->i64 < 1LL << 53);
}

static bool fl__is_wide(fl_dtype d) { return d == FL_F32 || d == FL_F64; }

/* That of a copy from x to y. */
static fl_dtype fl__copy_dtype(const fl__grouping *w, const fl_tensor *x, const fl_tensor *y) {
    const bool converts = fl__is_wide(x->dtype) && fl__is_wide(y->dtype) && x->dtype != y->dtype;
    if (x->weak || x->backend != y->backend || (converts && (!w->runs || y->backend))) return FL_DTYPE_NONE;
    if (y->dtype == FL_B8) return fl__is_wide(x->dtype) ? x->dtype : FL_DTYPE_NONE;
    const bool joins = fl__is_wide(y->dtype) && (x->dtype == FL_B8 || fl__is_wide(x->dtype));
    return joins ? y->dtype : FL_DTYPE_NONE;
}

/* The dtype of c's numbers if it can be in a group, else NONE. */
static fl_dtype fl__group_dtype(const fl__grouping *w, const fl_call *c, int64_t least) {
    const fl_op_info *info = fl_op_get_info(c->op);
    const bool formula = info && info->arity && info->cls != FL_CLASS_INT && info->cls != FL_CLASS_BOOL;
    const fl_tensor *y = fl__first_output(c);
    fl_dtype d = FL_DTYPE_NONE;
    if (!info || !y || fl_numel(y) < least || !fl__has_shipped_slot(y->backend, c->op)) return d;
    if (w->runs && !y->backend && fl__generates(c)) return fl_is_contiguous(y) ? y->dtype : d;
    if (!formula && c->op != FL_OP_where && c->op != FL_OP_copy && c->op != FL_OP_grad1 &&
        c->op != FL_OP_grad2)
        return d;
    if (!fl__has_shipped_slot(y->backend, fl_op_formula)) return d;
    if (c->op == FL_OP_copy) return fl__copy_dtype(w, c->in[0], y);
    for (int k = 0; k < c->n_in; k++) {
        const fl_tensor *t = c->in[k];
        if (t->weak && !fl__is_exact(t)) return FL_DTYPE_NONE;
        if (!t->weak && t->backend != y->backend) return FL_DTYPE_NONE;
        if (t->weak || (c->op == FL_OP_where && k == 0)) continue;
        if (d == FL_DTYPE_NONE) d = t->dtype;
        if (t->dtype != d) return FL_DTYPE_NONE;
    }
    for (int k = 0; k < c->n_out; k++)
        if (c->out[k] && c->out[k]->dtype != d && info->cls != FL_CLASS_CMP) return FL_DTYPE_NONE;
    return fl__is_wide(d) ? d : FL_DTYPE_NONE;
}

/* ---- values that are one number ---- */

/* If operand in[k] of call i is one number, sets *number to it. */
static bool fl__is_number(const fl__grouping *w, int i, int k, double *number) {
    const fl_tensor *t = w->l->call[i].call.in[k];
    const int value = w->l->call[i].value[4 + k];
    if (t->weak) return *number = t->f64, fl__is_exact(t);
    const fl__filled *f = &w->filled[value];
    *number = f->number;
    return f->from < i && i <= f->until && f->dtype == t->dtype;
}

static bool fl__is_all_of(const fl_graph_list *l, const fl_tensor *t, int value) {
    return fl_is_contiguous(t) && fl_numel(t) * (int64_t)fl_dtype_size(t->dtype) == l->value[value].bytes;
}

static bool fl__is_fill(const fl__grouping *w, int i) {
    const fl_graph_call *c = &w->l->call[i];
    return c->call.n_out == 1 && c->call.out[0] && w->filled[c->value[0]].from == i;
}

/* Notes what call i makes one number, and which value is no longer one behind it. */
static void fl__note_fill(fl__grouping *w, int i) {
    const fl_graph_call *rec = &w->l->call[i];
    const fl_call *c = &rec->call;
    for (int64_t v = 0; !c->op && v < w->l->n_values; v++) /* a function of the host may write any */
        if (w->filled[v].until == INT_MAX) w->filled[v].until = i;
    for (int k = 0; k < c->n_out; k++)
        if (c->out[k] && w->filled[rec->value[k]].until == INT_MAX) w->filled[rec->value[k]].until = i;
    const fl_tensor *y = c->n_out == 1 ? c->out[0] : NULL;
    fl__filled *f = y ? &w->filled[rec->value[0]] : NULL;
    double number;
    uint64_t bits = 0;
    if (!y || (c->op != FL_OP_fill && c->op != FL_OP_copy) || (y->dtype != FL_F32 && y->dtype != FL_F64) ||
        f->until != INT_MIN || !fl__has_shipped_slot(y->backend, c->op) ||
        !fl__is_all_of(w->l, y, rec->value[0]))
        return;
    if (c->op == FL_OP_fill) number = ((const fl_fill_args *)c->args)->f64;
    else if (!fl__is_number(w, i, 0, &number)) return;
    fl_number_store(y->dtype, &bits, (fl_number){true, number, 0});
    *f = (fl__filled){i, INT_MAX, y->dtype, fl_number_load(y->dtype, &bits).f, FL__UNUSED};
}

static fl__computed *fl__computed_of(fl__open_group *g, int value) {
    for (int i = g->n_computed - 1; i >= 0; i--)
        if (g->computed[i].value == value) return &g->computed[i];
    return NULL;
}

static bool fl__group_reads(const fl__open_group *g, int value) {
    for (int i = 0; i < g->g.n_in; i++)
        if (g->in_value[i] == value) return true;
    return false;
}

/* The value of a table formula in g's program for those operands. */
static void *fl__group_number(double value, void *b) {
    const int v = fl_formula_build_number(b, value);
    return v < 0 ? NULL : (void *)(uintptr_t)(v + 1);
}

static void *fl__group_step(fl_primitive primitive, void *const x[], void *b) {
    int in[3] = {0, 0, 0};
    for (int k = 0; k < fl_primitive_operands(primitive); k++) in[k] = (int)(uintptr_t)x[k] - 1;
    const int v = fl_formula_build_step(b, primitive, in);
    return v < 0 ? NULL : (void *)(uintptr_t)(v + 1);
}

/* The index of operand k of call i; -1 if it does not fit. */
static int fl__group_operand(fl__grouping *w, fl__open_group *g, int i, int k) {
    const fl_tensor *t = w->l->call[i].call.in[k];
    const int value = w->l->call[i].value[4 + k];
    fl_formula *f = &g->g.args.program;
    if (t->weak) { /* a constant of its own: its number may be another one the next time */
        if (f->n_constants == FL_FORMULA_CONSTANTS) return -1;
        g->g.number[g->g.n_numbers] = (fl__operand_of){i, 4 + k};
        g->g.constant[g->g.n_numbers++] = f->n_constants;
        const uint64_t unlike = 0x7ff8f10000000000 + f->n_constants; /* equal to no constant of a formula */
        memcpy(&f->constant[f->n_constants], &unlike, sizeof unlike);
        return FL_FORMULA_CONSTANT + f->n_constants++;
    }
    double number;
    const int constant = fl__is_number(w, i, k, &number) ? fl_formula_build_number(&g->b, number) : -1;
    if (constant >= 0) return constant;
    const fl__computed *made = fl__computed_of(g, value);
    if (made) {
        const bool as_computed = t->dtype == g->g.dtype || t->dtype == FL_B8; /* not rounded */
        return as_computed && fl__same_handle(fl__operand_at(w->l, made->at), t) ? made->index : -1;
    }
    for (int j = 0; j < g->g.n_in; j++)
        if (g->in_value[j] == value && fl__same_handle(fl__operand_at(w->l, g->g.in[j]), t)) return j;
    const int j = g->g.n_in;
    if (j == FL__GROUP_INPUTS) return -1;
    g->g.in[j] = (fl__operand_of){i, 4 + k};
    g->in_value[j] = value;
    g->b.logical[j] = t->dtype == FL_B8;
    f->conditions |= (uint32_t)(t->dtype == FL_B8) << j;
    f->n_in = (uint8_t)(g->g.n_in = j + 1);
    return j;
}

/* The index of operand x of dtype `from` as one of dtype `to`; numbers are converted where they are read or
   written. -1 if it does not fit. */
static int fl__group_cast(fl__open_group *g, int x, fl_dtype from, fl_dtype to) {
    if ((from == FL_B8) == (to == FL_B8)) return x;
    const int zero = fl_formula_build_number(&g->b, 0);
    const int one = from == FL_B8 ? fl_formula_build_number(&g->b, 1) : 0;
    if (zero < 0 || one < 0) return -1;
    if (from == FL_B8) return fl_formula_build_step(&g->b, FL_PRIMITIVE_where, (int[]){x, one, zero});
    const int is_zero = fl_formula_build_step(&g->b, FL_PRIMITIVE_eq, (int[]){x, zero});
    return is_zero < 0 ? -1 : fl_formula_build_step(&g->b, FL_PRIMITIVE_bitwise_not, &is_zero);
}

/* The index of what call i makes of its operand, which has index x (-1: none); -1 if it does not fit. The
   operand must be an input, or a copy of one, and dense. */
static int fl__group_generated(fl__grouping *w, fl__open_group *g, int i, int x) {
    const int j = g->g.n_in;
    if (j == FL__GROUP_INPUTS || x >= j || (x >= 0 && g->g.generated >> x & 1)) return -1;
    const fl_tensor *t = x < 0 ? NULL : fl__operand_at(w->l, g->g.in[x]);
    if (t && (t->dtype != g->g.dtype || !fl_is_contiguous(t))) return -1;
    g->g.in[j] = (fl__operand_of){i, x};
    g->in_value[j] = -1;
    g->b.logical[j] = false;
    g->g.generated |= (uint8_t)(1u << j);
    g->g.args.program.n_in = (uint8_t)(g->g.n_in = j + 1);
    return j;
}

/* Adds the steps of call i with operands in[] to g's program; out[k]: the index of out[k]. */
static bool fl__group_steps(fl__grouping *w, fl__open_group *g, int i, const int in[], int out[]) {
    const fl_call *c = &w->l->call[i].call;
    const fl_formula_vtable steps = {fl__group_number, fl__group_step, &g->b};
    void *x[FL_FORMULA_INPUTS], *y[FL_FORMULA_OUTPUTS];
    fl_op op = c->op;
    fl_program which = FL_PROGRAM_Y;
    if (op == FL_OP_copy)
        return (out[0] = fl__group_cast(g, in[0], c->in[0]->dtype, c->out[0]->dtype)) >= 0;
    if (fl__generates(c)) return (out[0] = fl__group_generated(w, g, i, c->n_in ? in[0] : -1)) >= 0;
    if (op == FL_OP_where) return (out[0] = fl_formula_build_step(&g->b, FL_PRIMITIVE_where, in)) >= 0;
    if (op == FL_OP_grad1 || op == FL_OP_grad2) {
        op = ((const fl_grad_args *)c->args)->op;
        which = c->n_out == 1 || !c->out[1] ? FL_PROGRAM_DA : !c->out[0] ? FL_PROGRAM_DB : FL_PROGRAM_DA_DB;
    }
    const fl_formula *f = fl_op_program(op, which);
    for (int k = 0; k < c->n_in; k++) x[k] = (void *)(uintptr_t)(in[k] + 1);
    if (!f || f->n_in != c->n_in || !fl_formula_run(f, &steps, x, y)) return false;
    for (int k = 0, m = 0; k < c->n_out; k++)
        if (c->out[k]) out[k] = (int)(uintptr_t)y[m++] - 1;
    return true;
}

FL_PRIVATE bool fl__is_held(const fl_graph_value *v) {
    if (!v->buffer) return v->role != FL_GRAPH_TEMPORARY; /* of an opened step */
    return v->constant || __atomic_load_n(&v->buffer->refs_, __ATOMIC_ACQUIRE) != FL__WAITED_FOR;
}

/* True if a call that is to come, other than `now`, or a holder outside of the list uses the value. */
static bool fl__is_kept(const fl__grouping *w, int value, const fl_graph_call *now) {
    const fl_graph_value *v = &w->l->value[value];
    int reads = w->reads[value];
    for (int k = 0; now && k < now->call.n_in; k++) reads -= now->value[4 + k] == value;
    return !v->made || reads > 0 || fl__is_held(v);
}

/* Adds call i to g; `now`: that call if w->reads counts its reads still. False, and g changed, if it does not
   fit. */
static bool fl__group_add(fl__grouping *w, fl__open_group *g, int i, fl_dtype d, const fl_graph_call *now) {
    const fl_graph_call *rec = &w->l->call[i];
    const fl_call *c = &rec->call;
    int in[FL_FORMULA_INPUTS], out[4] = {-1, -1, -1, -1}, kept = 0;
    if (g->g.n_calls == FL__GROUP_CALLS || g->g.dtype != d || g->state != rec->state) return false;
    for (int k = 0; k < c->n_in; k++)
        if ((in[k] = fl__group_operand(w, g, i, k)) < 0) return false;
    if (!fl__group_steps(w, g, i, in, out)) return false;
    for (int k = 0; k < c->n_out; k++) {
        const fl_tensor *t = c->out[k];
        if (!t) continue;
        const int value = rec->value[k];
        const bool constant = out[k] >= FL_FORMULA_CONSTANT && out[k] < FL_FORMULA_VALUE;
        const fl__computed *before = fl__computed_of(g, value);
        if (constant || g->b.logical[out[k]] != (t->dtype == FL_B8)) return false;
        if (before && !fl__same_handle(fl__operand_at(w->l, before->at), t)) return false;
        if (!g->like) g->like = t;
        if (!fl__same_layout(g->like, t)) return false;
        for (int j = 0; j < g->g.n_in; j++) /* written over an input: only as it is read */
            if (g->in_value[j] == value && !fl__same_handle(fl__operand_at(w->l, g->g.in[j]), t))
                return false;
        g->computed[g->n_computed++] = (fl__computed){value, out[k], {i, k}};
    }
    g->g.call[g->g.n_calls++] = i;
    for (int j = 0; j < g->n_computed; j++) /* more than 4 to store, when this call has read its operands? */
        kept += fl__computed_of(g, g->computed[j].value) == &g->computed[j] &&
                fl__is_kept(w, g->computed[j].value, now);
    return kept <= FL_FORMULA_OUTPUTS;
}

/* What fl__group_add adds to. */
typedef struct fl__group_sizes {
    int n_calls, n_in, n_numbers, n_computed, n_steps, n_constants;
    uint32_t conditions;
    const fl_tensor *like;
} fl__group_sizes;

static fl__group_sizes fl__group_sizes_of(const fl__open_group *g) {
    const fl_formula *f = &g->g.args.program;
    return (fl__group_sizes){g->g.n_calls, g->g.n_in,      g->g.n_numbers, g->n_computed,
                             f->n_steps,   f->n_constants, f->conditions,  g->like};
}

/* Takes out what was added since. */
static void fl__group_shrink(fl__open_group *g, const fl__group_sizes *to) {
    fl_formula *f = &g->g.args.program;
    memset(f->step + to->n_steps, 0, (size_t)(f->n_steps - to->n_steps) * sizeof *f->step);
    memset(f->constant + to->n_constants, 0,
           (size_t)(f->n_constants - to->n_constants) * sizeof *f->constant);
    f->n_steps = (uint8_t)to->n_steps, f->n_constants = (uint8_t)to->n_constants;
    f->n_in = (uint8_t)(g->g.n_in = to->n_in), f->conditions = to->conditions;
    g->g.generated &= (uint8_t)((1u << to->n_in) - 1);
    g->g.n_calls = to->n_calls, g->g.n_numbers = to->n_numbers;
    g->n_computed = to->n_computed, g->like = to->like;
}

/* Joins call i to g, or leaves g as it was. */
static bool fl__group_join(fl__grouping *w, fl__open_group *g, int i, fl_dtype d) {
    const fl__group_sizes before = fl__group_sizes_of(g);
    if (fl__group_add(w, g, i, d, &w->l->call[i])) return true;
    fl__group_shrink(g, &before);
    return false;
}

/* ---- the order ---- */

static void fl__order_add(fl__grouping *w, int entry) {
    w->o->run[w->o->n++] = entry;
}

FL_PRIVATE fl__group *fl__order_keep(fl__order *o, const fl__group *g) {
    fl__group *kept = fl_heap_grow(&o->group, &o->cap, o->n_groups + 1, sizeof *o->group)
                          ? fl_heap_alloc(sizeof *kept) : NULL;
    if (kept) o->group[o->n_groups++] = memcpy(kept, g, sizeof *kept);
    return kept;
}

static bool fl__is_mixed(const fl_graph_list *l, const fl__group *g) {
    bool mixed = false;
    for (int k = 0; k < g->n_out; k++) {
        const fl_dtype d = fl__operand_at(l, g->out[k])->dtype;
        mixed |= d != g->dtype && d != FL_B8;
    }
    for (int j = 0; j < g->n_in; j++) {
        const fl_dtype d = g->generated >> j & 1 ? g->dtype : fl__operand_at(l, g->in[j])->dtype;
        mixed |= d != g->dtype && d != FL_B8;
    }
    return mixed;
}

/* Completes the program of g and keeps it; NULL if it does not fit. */
static fl__group *fl__group_end(fl__grouping *w, fl__open_group *g) {
    fl__group *r = &g->g;
    int out[FL_FORMULA_OUTPUTS];
    for (int i = 0; i < g->n_computed; i++) {
        const fl__computed *m = &g->computed[i];
        if (fl__computed_of(g, m->value) != m || !fl__is_kept(w, m->value, NULL)) continue;
        if (r->n_out == FL_FORMULA_OUTPUTS) return NULL;
        r->shares[r->n_out] = 0xff;
        r->out[r->n_out] = m->at;
        out[r->n_out++] = m->index;
    }
    if (!r->n_out || !fl_formula_build_end(&g->b, r->n_out, out)) return NULL;
    int n = 0; /* numbers that steps use, as numbered now */
    for (int i = 0; i < r->n_numbers; i++) {
        const int at = g->b.at[FL_FORMULA_CONSTANT + r->constant[i]];
        if (at < 0) continue;
        r->number[n] = r->number[i];
        r->constant[n++] = (uint8_t)(at - FL_FORMULA_CONSTANT);
    }
    r->n_numbers = n;
    r->mixed = fl__is_mixed(w->l, r);
    return fl__order_keep(w->o, r);
}

static void fl__group_close(fl__grouping *w, fl__open_group *g) {
    if (!g->used) return;
    g->used = false;
    if (g->g.n_calls > 1 && fl__group_end(w, g)) {
        fl__order_add(w, -(int)w->o->n_groups);
        return;
    }
    for (int i = 0; i < g->g.n_calls; i++) fl__order_add(w, g->g.call[i]);
}

/* The open group that call c may join: one that made what it reads, else one that reads the same. */
static fl__open_group *fl__group_near(fl__grouping *w, const fl_graph_call *c) {
    for (int made = 1; made >= 0; made--)
        for (int o = 0; o < FL__OPEN_GROUPS; o++) {
            fl__open_group *g = &w->open[o];
            if (!g->used || !fl__same_layout(g->like, fl__first_output(&c->call))) continue;
            for (int k = 0; k < c->call.n_in; k++) {
                const int value = c->value[4 + k];
                if (value >= 0 && (made ? fl__computed_of(g, value) != NULL : fl__group_reads(g, value)))
                    return g;
            }
        }
    return NULL;
}

/* True if a call of g has value as an operand, be it a constant of g: it may still run alone. */
static bool fl__group_has_operand(const fl__grouping *w, const fl__open_group *g, int value) {
    for (int i = 0; i < g->g.n_calls; i++) {
        const fl_graph_call *c = &w->l->call[g->g.call[i]];
        for (int k = 0; k < c->call.n_in; k++)
            if (c->value[4 + k] == value) return true;
    }
    return false;
}

/* True if g must run before call i: it makes what i reads, or reads or makes what i writes. */
static bool fl__group_clashes(const fl__grouping *w, fl__open_group *g, int i) {
    const fl_graph_call *c = &w->l->call[i];
    if (!c->call.op) return true;
    for (int k = 0; k < c->call.n_in; k++)
        if (c->value[4 + k] >= 0 && fl__computed_of(g, c->value[4 + k])) return true;
    for (int k = 0; k < c->call.n_out; k++) {
        const int value = c->value[k];
        if (value < 0) continue;
        if (fl__computed_of(g, value) || fl__group_reads(g, value)) return true;
        if (w->filled[value].until == i && fl__group_has_operand(w, g, value)) return true;
    }
    return false;
}

/* Adds the calls of `from` to g, if all fit. */
static bool fl__group_merge(fl__grouping *w, fl__open_group *g, const fl__open_group *from) {
    const fl__group_sizes before = fl__group_sizes_of(g);
    bool ok = true;
    for (int i = 0; ok && i < from->g.n_calls; i++)
        ok = fl__group_add(w, g, from->g.call[i], from->g.dtype, NULL);
    if (!ok) fl__group_shrink(g, &before);
    return ok;
}

static bool fl__group_begin(fl__grouping *w, int i, fl_dtype d) {
    int o = 0;
    while (o < FL__OPEN_GROUPS && w->open[o].used) o++;
    if (o == FL__OPEN_GROUPS) fl__group_close(w, &w->open[o = 0]);
    fl__open_group *g = &w->open[o];
    memset(g, 0, sizeof *g);
    g->g.dtype = d;
    g->state = w->l->call[i].state;
    if (!fl_formula_build(&g->b, &g->g.args.program, 0, 0)) return false;
    return g->used = fl__group_join(w, g, i, d);
}

static void fl__group_call(fl__grouping *w, int i, int64_t least) {
    const fl_graph_call *c = &w->l->call[i];
    const fl_dtype d = fl__is_fill(w, i) ? FL_DTYPE_NONE : fl__group_dtype(w, &c->call, least);
    fl__open_group *to = d != FL_DTYPE_NONE ? fl__group_near(w, c) : NULL;
    const bool of_made = to && c->call.op == FL_OP_copy && fl__computed_of(to, c->value[4]);
    bool joined = false;
    for (int o = 0; o < FL__OPEN_GROUPS; o++) {
        fl__open_group *g = &w->open[o];
        if (!g->used || g == to || !fl__group_clashes(w, g, i)) continue;
        if (to && fl__same_layout(g->like, to->like) && fl__group_merge(w, to, g)) g->used = false;
        else fl__group_close(w, g);
    }
    if (to) joined = fl__group_join(w, to, i, of_made ? to->g.dtype : d);
    if (to && !joined && fl__group_clashes(w, to, i)) fl__group_close(w, to);
    if (!joined && d != FL_DTYPE_NONE) joined = fl__group_begin(w, i, d);
    if (!joined) fl__order_add(w, i);
    for (int k = 0; k < c->call.n_in; k++)
        if (c->value[4 + k] >= 0) w->reads[c->value[4 + k]]--;
}

FL_PRIVATE fl__group *fl__group_of(fl__grouping *w, const int *call, int n) {
    fl__open_group *g = &w->open[0]; /* none is open any more, and no call is to come: all results are kept */
    const fl_dtype d = fl__group_dtype(w, &w->l->call[call[0]].call, 0);
    if (d == FL_DTYPE_NONE || !fl__group_begin(w, call[0], d)) return NULL;
    for (int i = 1; i < n && fl__group_dtype(w, &w->l->call[call[i]].call, 0) == d; i++)
        if (!fl__group_join(w, g, call[i], d)) break;
    g->used = false;
    return fl__group_end(w, g);
}

/* Leaves out calls that make a value one number which no entry reads. */
static void fl__order_drop_fills(fl__grouping *w) {
    fl__grouped_call made;
    const fl_graph_list *l = w->l;
    fl__order *o = w->o;
    int first = o->n;
    for (int64_t v = 0; v < l->n_values; v++)
        w->filled[v].next = !l->value[v].made || fl__is_held(&l->value[v]) ? FL__USED : FL__UNUSED;
    for (int i = o->n - 1; i >= 0; i--) {
        const fl_graph_call *c = fl__order_call(o, l, i, &made);
        const fl_graph_value *v = o->run[i] >= 0 && fl__is_fill(w, o->run[i]) ? &l->value[c->value[0]] : NULL;
        if (v && v->made && w->filled[c->value[0]].next != FL__USED) continue;
        for (int k = 0; k < c->call.n_out; k++)
            if (c->call.out[k]) /* a group writes all of its outputs */
                w->filled[c->value[k]].next = o->run[i] < 0 && fl__is_all_of(l, c->call.out[k], c->value[k])
                                                  ? FL__OVERWRITTEN : FL__USED;
        for (int k = 0; k < c->call.n_in; k++)
            if (c->value[4 + k] >= 0) w->filled[c->value[4 + k]].next = FL__USED;
        o->run[--first] = o->run[i];
    }
    o->n -= first;
    memmove(o->run, o->run + first, (size_t)o->n * sizeof *o->run);
}

static void fl__order_uses(const fl__order *o, const fl_graph_list *l) {
    fl__grouped_call made;
    for (int64_t i = 0; i < l->n_values; i++) o->first[i] = o->last[i] = -1;
    for (int i = 0; i < o->n; i++) {
        const fl_graph_call *c = fl__order_call(o, l, i, &made);
        for (int k = 0; k < 4 + c->call.n_in; k++)
            if ((k >= 4 || k < c->call.n_out) && c->value[k] >= 0) {
                if (o->first[c->value[k]] < 0) o->first[c->value[k]] = i;
                o->last[c->value[k]] = i;
            }
    }
}

/* True if a group may come of it: two calls read or make as many elements, some of which are numbers. */
static bool fl__has_large_calls(const fl_graph_list *l, int64_t least) {
    int64_t large = 0;
    int n = 0;
    while (large < l->n_values && l->value[large].bytes < least * 4) large++;
    if (large == l->n_values) return false;
    for (int64_t i = 0; i < l->n && n < 2; i++) {
        const fl_call *c = &l->call[i].call;
        const fl_tensor *y = c->n_out ? fl__first_output(c) : NULL;
        n += (y && fl_numel(y) >= least) || (c->n_in && c->in[0] && fl_numel(c->in[0]) >= least);
    }
    return n == 2;
}

static void fl__group_announce(const fl__group *g, const fl_graph_list *l) {
    const fl_tensor *y = g->n_out ? fl__operand_at(l, g->out[0]) : NULL;
    if (y && !g->rows && !y->backend)
        fl__compile_ahead(&g->args.program, g->dtype,
                          fl__is_past_caches(&g->args.program, g->dtype, fl_numel(y)));
}

FL_PRIVATE fl__order *fl__order_new(const fl_graph_list *l, int64_t least, bool runs) {
    if (!fl__has_large_calls(l, least)) return NULL;
    const bool failed = fl_error() != NULL;
    fl__order *o = fl_heap_alloc(sizeof *o);
    fl__grouping *w = o ? fl_heap_alloc(sizeof *w) : NULL;
    int *numbers = w ? fl_heap_alloc((size_t)(l->n + 3 * l->n_values + 1) * sizeof *numbers) : NULL;
    fl__filled *filled = numbers ? fl_heap_alloc((size_t)(l->n_values + 1) * sizeof *filled) : NULL;
    if (filled) {
        *o = (fl__order){.run = numbers, .first = numbers + l->n,
                         .last = numbers + l->n + l->n_values, .tables = fl__table_changes()};
        w->l = l, w->o = o, w->reads = o->last + l->n_values, w->filled = filled;
        w->runs = runs;
        for (int64_t i = 0; i < l->n_values; i++)
            filled[i] = (fl__filled){.from = INT_MAX, .until = INT_MIN};
        for (int i = 0; i < l->n; i++) fl__note_fill(w, i);
        for (int64_t i = 0; i < l->n; i++)
            for (int k = 0; k < l->call[i].call.n_in; k++)
                if (l->call[i].value[4 + k] >= 0) w->reads[l->call[i].value[4 + k]]++;
        for (int i = 0; i < l->n; i++) fl__group_call(w, i, least);
        for (int k = 0; k < FL__OPEN_GROUPS; k++) fl__group_close(w, &w->open[k]);
        fl__order_drop_fills(w);
        fl__order_uses(o, l);
        for (int64_t i = 0; i < l->n_values; i++) w->reads[i] = INT_MAX / 2; /* for fl__group_of */
        if (runs && fl__order_rows(o, l, w, least)) fl__order_drop_fills(w), fl__order_uses(o, l);
        for (int64_t i = 0; runs && i < o->n_groups; i++) fl__group_announce(o->group[i], l);
    }
    if (!failed) fl_error_clear(); /* without memory there are no groups */
    const bool grouped = filled && o->n_groups;
    if (filled && !grouped) fl__order_free(o);
    else if (!filled) fl_heap_free(numbers), fl_heap_free(o);
    fl_heap_free(filled);
    fl_heap_free(w);
    return grouped ? o : NULL;
}

FL_PRIVATE void fl__order_free(fl__order *o) {
    if (!o) return;
    for (int64_t i = 0; i < o->n_groups; i++) {
        fl_heap_free(o->group[i]->rows);
        fl_heap_free(o->group[i]);
    }
    fl_heap_free(o->group);
    fl_heap_free(o->run);
    fl_heap_free(o);
}

FL_PRIVATE bool fl__order_fits(const fl__order *o, const fl_graph_list *l) {
    if (o->tables != fl__table_changes()) return false;
    for (int64_t i = 0; i < l->n_values; i++) {
        const fl_graph_value *v = &l->value[i];
        if (o->last[i] < 0 && v->first >= 0 && v->buffer &&
            __atomic_load_n(&v->buffer->refs_, __ATOMIC_ACQUIRE) != FL__WAITED_FOR)
            return false;
    }
    return true;
}

FL_PRIVATE bool fl__operands_map(const fl_call *c) {
    for (int k = 0; k < c->n_out + c->n_in; k++)
        if (!fl__buffer_map((k < c->n_out ? c->out[k] : c->in[k - c->n_out])->buffer))
            return fl__operands_unmap(c, k), false;
    return true;
}

FL_PRIVATE void fl__operands_unmap(const fl_call *c, int n) {
    while (n--) fl_buffer_unmap((n < c->n_out ? c->out[n] : c->in[n - c->n_out])->buffer);
}

/* Runs a group that is mixed or has generated inputs: user is its fl__grouped_call. */
static bool fl__group_run(void *user) {
    const fl__grouped_call *made = user;
    const fl__group *g = made->group;
    const fl_call *c = &made->call.call;
    fl__generator from[FL__GROUP_INPUTS] = {{.sequence = NULL}};
    if (!fl__operands_map(c)) return false;
    for (int j = 0; j < g->n_in; j++)
        if (g->generated >> j & 1)
            fl__generator_begin(&from[j], &made->list->call[g->in[j].call].call,
                                g->in[j].k < 0 ? NULL : fl__operand_at(made->list, g->in[g->in[j].k]));
    const bool ok = fl__program_run(c, g->dtype, from);
    fl__operands_unmap(c, c->n_out + c->n_in);
    return ok;
}

FL_PRIVATE const fl_graph_call *fl__order_call(const fl__order *o, const fl_graph_list *l, int i,
                                               fl__grouped_call *made) {
    if (o->run[i] >= 0) return &l->call[o->run[i]];
    const fl__group *g = o->group[-1 - o->run[i]];
    const fl_graph_call *last = &l->call[g->call[g->n_calls - 1]];
    fl_graph_call *c = &made->call;
    *c = *last;
    if (g->rows) {
        made->group = g, made->list = l;
        c->fn = fl__rows_run, c->user = made;
        fl_call_begin(&c->call, last->call.op, g->n_out, g->n_in, NULL);
    } else {
        made->args = g->args;
        for (int k = 0; k < g->n_numbers; k++)
            made->args.program.constant[g->constant[k]] = fl__operand_at(l, g->number[k])->f64;
        fl_call_begin(&c->call, fl_op_formula, g->n_out, g->n_in - __builtin_popcount(g->generated),
                      &made->args);
        if (g->generated || g->mixed) made->group = g, made->list = l, c->fn = fl__group_run, c->user = made;
    }
    for (int k = 0; k < g->n_out; k++) {
        c->call.out[k] = l->call[g->out[k].call].call.out[g->out[k].k];
        c->value[k] = fl__value_at(l, g->out[k]);
    }
    for (int j = 0, k = 0; j < g->n_in; j++) {
        if (g->generated >> j & 1) continue;
        c->call.in[k] = l->call[g->in[j].call].call.in[g->in[j].k - 4];
        c->value[4 + k++] = fl__value_at(l, g->in[j]);
    }
    return c;
}

#endif
#endif
/* MIT licence: see LICENSE. */
